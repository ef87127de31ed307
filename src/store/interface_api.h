/* store/interface_api.h - what to implement for another store */
#ifndef CDP_SRC_STORE_INTERFACE_API_H
#define CDP_SRC_STORE_INTERFACE_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../os/os_api.h"

/* A key-value store that all ranks reach: how they find each other before they have connections.
   cdp_store.h has the ready-made ones and the functions that a program calls; this is
   what a program that brings another store implements. */
typedef enum cdp_store_op {
    CDP_STORE_NONE = 0,
    /* keys[0] := values[0] */
    CDP_STORE_SET,
    /* waits for keys[0]; result: its value */
    CDP_STORE_GET,
    /* keys[0] as a decimal number (absent: 0) += delta; `number`: the sum */
    CDP_STORE_ADD,
    /* keys[0]: values[0] expected, values[1] desired; result: what is there afterwards (an
       absent key matches an empty expectation; else the expectation is answered) */
    CDP_STORE_COMPARE_SET,
    /* until every key is there */
    CDP_STORE_WAIT,
    /* `number`: 1 when every key is there, else 0 */
    CDP_STORE_CHECK,
    /* `number`: 1 when keys[0] was there */
    CDP_STORE_DELETE,
    /* `number` */
    CDP_STORE_NUM_KEYS,
    /* keys[0] += values[0] */
    CDP_STORE_APPEND,
    /* waits for all keys; results: key_count values */
    CDP_STORE_MULTI_GET,
    /* keys[i] := values[i] */
    CDP_STORE_MULTI_SET,
    /* appends values[0] to the queue keys[0]; queues are not keys: they are neither counted nor
       listed nor deleted, but a wait for the name of a queue ends when the queue has a value */
    CDP_STORE_QUEUE_PUSH,
    /* waits until the queue keys[0] has a value (delta 1: does not wait) and removes the first one;
       result: that value; `number`: how many the queue had (0: none, and the result is empty) */
    CDP_STORE_QUEUE_POP,
    /* `number`: values in the queue keys[0] */
    CDP_STORE_QUEUE_LEN,
    /* results: `number` keys, in any order */
    CDP_STORE_LIST_KEYS,
    /* adds 1 to keys[0], once, and waits until it is `delta` or more */
    CDP_STORE_BARRIER,
    CDP_STORE_OP_COUNT
} cdp_store_op;

typedef struct cdp_store_request {
    cdp_store_op op;
    uint32_t key_count;
    const cdp_bytes *keys;   /* the caller's, until the request is done or cancelled */
    const cdp_bytes *values; /* likewise */
    int64_t delta;
    /* results, written by the store */
    cdp_status status; /* CDP_PENDING until done */
    int64_t number;
    /* GET, COMPARE_SET: 1; MULTI_GET: key_count; freed by cdp_store_request_free() */
    cdp_bytes *results;
    /* the store's own */
    void *priv;
    struct cdp_store_request *next;
} cdp_store_request;

/* A custom store is this struct filled in (with less work, two functions do:
   cdp_custom_store_create() of cdp_store.h). Calls for one store come from one thread at a time.
   `deadline_ns` is a reading of os->now_ns. Errors: return the status and fill cdp_last_error()
   with cdp_error_set(). */
typedef struct cdp_store {
    void *self;
    const cdp_os *os;
    uint32_t timeout_ms; /* default of the calls that take 0 */
    /* Begins a request, whose status is CDP_PENDING. May finish it at once; never blocks. Returns
       < 0 if it does not take the request. */
    cdp_status (*start)(void *self, cdp_store_request *rq);
    /* Waits until the request is done, and returns its status; CDP_PENDING at the deadline. */
    cdp_status (*wait)(void *self, cdp_store_request *rq, uint64_t deadline_ns);
    /* Ends a request; afterwards rq is never touched. */
    void (*cancel)(void *self, cdp_store_request *rq);
    void (*destroy)(void *self);
} cdp_store;

#endif /* CDP_SRC_STORE_INTERFACE_API_H */
