/* store/request.h - functions for requests that all stores share

   Knows: requests and their results. Promises: results are one block from the os's allocator, and
   so is each value. */
#ifndef CDP_SRC_STORE_REQUEST_H
#define CDP_SRC_STORE_REQUEST_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../os/os_api.h"
#include "interface_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "../base/ended.h"
#include "desc_api.h"
#include "number.h"

/* A store that is destroyed stands in the table of base/ended.h: a custom one that a program has
   filled in by its address, for the memory is the program's; another one, which frees its memory,
   by the address after it. So a custom store at the address of a former store is not refused. */
CDP__PRIVATE const void *cdp__store_mark(const cdp_store *s) {
    return (const uint8_t *)s + 1;
}

CDP__PRIVATE bool cdp__store_ended(const cdp_store *s) {
    return cdp__ended(s) || cdp__ended(cdp__store_mark(s));
}

/* The store at this address lives. */
CDP__PRIVATE void cdp__store_lives(const cdp_store *s) {
    cdp__ended_remove(s);
    cdp__ended_remove(cdp__store_mark(s));
}

/* This store is new, and frees itself. */
CDP__PRIVATE void cdp__store_made(cdp_store *s, void (*destroy)(void *self)) {
    cdp__store_lives(s);
    s->destroy = destroy;
}

CDP__PRIVATE void cdp__store_request_drop_results(
    const cdp_os *os, cdp_store_request *rq, uint64_t count) {
    uint64_t i;
    for (i = 0; rq->results && i < count; ++i) {
        void *p;
        /* copied, because the member is a const pointer */
        memcpy(&p, &rq->results[i].data, sizeof p);
        cdp__free(os, p);
    }
    cdp__free(os, rq->results);
    rq->results = NULL;
}

/* True for LIST_KEYS. A constant in builds without it, so that compilers omit the code for it. */
CDP__PRIVATE bool cdp__store_lists(const cdp_store_request *rq) {
#ifdef CDP_NO_STORE_CALLS
    (void)rq;
    return false;
#else
    return rq->op == CDP_STORE_LIST_KEYS;
#endif
}

/* The number of results; for LIST_KEYS, of the keys found so far. */
CDP__PRIVATE CDP__ONE_COPY uint64_t cdp__store_request_result_count(const cdp_store_request *rq) {
    switch (rq->op) {
    case CDP_STORE_GET:
    case CDP_STORE_COMPARE_SET:
    case CDP_STORE_QUEUE_POP: return 1;
    case CDP_STORE_MULTI_GET: return rq->key_count;
    case CDP_STORE_LIST_KEYS: return rq->number > 0 ? (uint64_t)rq->number : 0;
    default: return 0;
    }
}

CDP__PRIVATE bool cdp__store_request_make_results(const cdp_os *os, cdp_store_request *rq) {
    const uint64_t n = cdp__store_request_result_count(rq);
    rq->results = NULL;
    if (n) rq->results = (cdp_bytes *)cdp__alloc_zero(os, n * sizeof *rq->results);
    return !n || rq->results;
}

/* Allocates a result of `bytes` and a terminating zero. */
CDP__PRIVATE uint8_t *cdp__store_request_result(
    const cdp_os *os, cdp_store_request *rq, uint64_t i, uint64_t bytes) {
    uint8_t *p = (uint8_t *)cdp__alloc(os, bytes + 1);
    if (!p) return NULL;
    p[bytes] = 0;
    rq->results[i].data = p;
    rq->results[i].bytes = bytes;
    return p;
}

CDP__PRIVATE bool cdp__store_request_put_result(
    const cdp_os *os, cdp_store_request *rq, uint64_t i, cdp_bytes value) {
    uint8_t *p = cdp__store_request_result(os, rq, i, value.bytes);
    if (p && value.bytes) memcpy(p, value.data, (size_t)value.bytes);
    return p != NULL;
}

CDP__PRIVATE uint32_t cdp__store_request_keys_needed(cdp_store_op op) {
    if (op == CDP_STORE_NUM_KEYS || op == CDP_STORE_LIST_KEYS) return 0;
    return op == CDP_STORE_WAIT || op == CDP_STORE_CHECK || op == CDP_STORE_MULTI_GET
            || op == CDP_STORE_MULTI_SET
        ? UINT32_MAX
        : 1;
}

/* The number of values in the request. */
CDP__PRIVATE uint32_t cdp__store_request_values(const cdp_store_request *rq) {
    switch (rq->op) {
    case CDP_STORE_SET:
    case CDP_STORE_APPEND:
    case CDP_STORE_QUEUE_PUSH: return 1;
    case CDP_STORE_COMPARE_SET: return 2;
    case CDP_STORE_MULTI_SET: return rq->key_count;
    default: return 0;
    }
}

CDP__PRIVATE cdp_status cdp__store_too_long(cdp_bytes key, uint64_t bytes, uint64_t max) {
    cdp__key_text t;
    return cdp__fail(CDP_ERR_INVALID,
        "the value for the store key \"%s\" has %llu bytes; at most %llu are allowed "
        "(max_value_bytes)",
        cdp__key_print(&t, key), (unsigned long long)bytes, (unsigned long long)max);
}

CDP__PRIVATE cdp_status cdp__store_has_no_queues(const cdp_store_request *rq) {
    (void)rq;
    return cdp__fail(CDP_ERR_UNSUPPORTED,
        "file and custom stores have no queues; use a TCP store or a hash store");
}

/* True if a compare_set matches. *now is the key's value; NULL: the key is absent. */
CDP__PRIVATE bool cdp__store_expected(const cdp_store_request *rq, const cdp_bytes *now) {
    const cdp_bytes *want = &rq->values[0];
    if (!now || !want->bytes) return !want->bytes && (!now || !now->bytes);
    return now->bytes == want->bytes && memcmp(now->data, want->data, (size_t)want->bytes) == 0;
}

/* Stores the result of a compare_set. */
CDP__PRIVATE bool cdp__store_answer(const cdp_os *os, cdp_store_request *rq, cdp_bytes value) {
    if (cdp__store_request_make_results(os, rq) && cdp__store_request_put_result(os, rq, 0, value))
        return true;
    cdp__store_request_drop_results(os, rq, 0);
    return false;
}

#define CDP__STORE_TIMEOUT_MS 300000u
/* Values of `number` in a request that timed out. 0: the store has answered that the key is
   absent. */
#define CDP__STORE_NO_ANSWER (-1)
#define CDP__STORE_NOT_SENT (-2)

CDP__PRIVATE cdp_status cdp__store_request_validate_sizes(
    const cdp_store_request *rq, uint64_t max_value_bytes) {
    const uint32_t values = cdp__store_request_values(rq);
    uint32_t i;
    if (rq->key_count > CDP_STORE_MAX_LIST)
        return cdp__fail(CDP_ERR_INVALID, "%u keys in one store request; at most %u fit",
            rq->key_count, CDP_STORE_MAX_LIST);
    for (i = 0; i < rq->key_count; ++i) {
        if (!rq->keys[i].data && rq->keys[i].bytes)
            return cdp__fail(CDP_ERR_INVALID, "cdp_store_run: request.keys[%u].data is NULL", i);
        /* TCP and file stores put a slash in front */
        if (rq->keys[i].bytes + 1 > CDP_STORE_MAX_KEY_BYTES)
            return cdp__fail(CDP_ERR_INVALID, "a store key has %llu bytes; at most %u are allowed",
                (unsigned long long)rq->keys[i].bytes, CDP_STORE_MAX_KEY_BYTES - 1);
    }
    for (i = 0; i < values; ++i) {
        const cdp_bytes key = rq->keys[rq->key_count > 1 ? i : 0];
        cdp__key_text t;
        if (!rq->values[i].data && rq->values[i].bytes)
            return cdp__fail(CDP_ERR_INVALID,
                "cdp_store_run: request.values[%u].data is NULL (key \"%s\")", i,
                cdp__key_print(&t, key));
        if (rq->values[i].bytes > max_value_bytes)
            return cdp__store_too_long(key, rq->values[i].bytes, max_value_bytes);
    }
    return CDP_OK;
}

#ifdef CDP_NO_STORE_CALLS
/* True for operations that cdp_init() does not need, in builds without them. */
CDP__PRIVATE bool cdp__store_left_out(cdp_store_op op) {
    return op == CDP_STORE_NUM_KEYS || op == CDP_STORE_APPEND || op >= CDP_STORE_MULTI_SET;
}
#endif

/* Checks a request before it starts. */
CDP__PRIVATE CDP__ONE_COPY cdp_status cdp__store_request_validate(
    const cdp_store_request *rq, uint64_t max_value_bytes) {
    const uint32_t needed = rq->op > CDP_STORE_NONE && rq->op < CDP_STORE_OP_COUNT
        ? cdp__store_request_keys_needed(rq->op)
        : 0;
    if (rq->op <= CDP_STORE_NONE || rq->op >= CDP_STORE_OP_COUNT)
        return cdp__fail(CDP_ERR_INVALID, "no such store operation: %d", (int)rq->op);
#ifdef CDP_NO_STORE_CALLS
    if (cdp__store_left_out(rq->op))
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "store operation %d is left out: CDP_NO_STORE_CALLS is defined", (int)rq->op);
#endif
    if (needed != UINT32_MAX && rq->key_count != needed)
        return cdp__fail(CDP_ERR_INVALID, "store operation %d takes %u keys, not %u", (int)rq->op,
            needed, rq->key_count);
    if (rq->key_count && !rq->keys) return cdp__missing("cdp_store_run", "request.keys");
    if (cdp__store_request_values(rq) && !rq->values)
        return cdp__missing("cdp_store_run", "request.values");
    return cdp__store_request_validate_sizes(rq, max_value_bytes);
}

#endif /* CDP_SRC_STORE_REQUEST_H */
