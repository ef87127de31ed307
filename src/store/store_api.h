/* store/store_api.h - what programs call */
#ifndef CDP_SRC_STORE_STORE_API_H
#define CDP_SRC_STORE_STORE_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "interface_api.h"

/* All calls. The deadline counts from the call. timeout_ms 0, and calls without one, use the
   store's timeout (cdp_store_set_timeout); CDP_NO_TIMEOUT waits for ever. The caller keeps keys and
   values that it passes in; the library reads them until the call returns. `key` is text that ends
   with a zero byte. Results are set to NULL, 0 or false if the call fails. Errors of every call,
   explained in ERRORS above: INVALID (a NULL argument, or a key or value above the limits), NOMEM,
   TIMEOUT, STORE, STATE; with a file store also IO. Calls name only their other errors.

   Consistency. A store is one map, and each call takes effect at one moment between its begin and
   its end. A call that failed may take effect later, or never. A TCP store promises less: set,
   append, multi_set and queue_push have no answer, and take effect by the end of this client's next
   call that has one, which all other calls do; calls with several keys test one key after the
   other; and get may read an empty value if the key is deleted during the call. */

/* Stores `bytes` bytes under `key`. A TCP store returns when the bytes are on their way; a later
   call on the same store reads the new value. */
CDP_MUST_CHECK CDP_API cdp_status cdp_store_set(
    cdp_store *store, const char *key, const void *value, uint64_t bytes);

/* Waits until the key exists and reads its value. *value has *bytes bytes (`bytes` may be NULL) and
   one zero byte after them; the caller frees it with cdp_store_free(). */
CDP_MUST_CHECK CDP_API cdp_status cdp_store_get(
    cdp_store *store, const char *key, void **value, uint64_t *bytes, uint32_t timeout_ms);

/* Adds `delta` to the key's value, a decimal number (0 if the key is absent), wrapping around at 64
   bits; *sum (may be NULL) is the result. Errors: INVALID if the value is not a number; a TCP
   server closes this client's connection then (STORE). */
CDP_MUST_CHECK CDP_API cdp_status cdp_store_add(
    cdp_store *store, const char *key, int64_t delta, int64_t *sum);

/* Stores `desired` if the key's value equals `expected`, or if the key is absent and `expected` is
   empty. *value (`bytes` may be NULL) is the value after the call, or `expected` if the key is
   absent and `expected` is not empty. The caller frees it with cdp_store_free(). */
CDP_MUST_CHECK CDP_API cdp_status cdp_store_compare_set(cdp_store *store, const char *key,
    const void *expected, uint64_t expected_bytes, const void *desired, uint64_t desired_bytes,
    void **value, uint64_t *bytes);

#ifndef CDP_NO_STORE_CALLS

/* Waits until each of `count` keys has existed. */
CDP_MUST_CHECK CDP_API cdp_status cdp_store_wait(
    cdp_store *store, const char *const *keys, uint32_t count, uint32_t timeout_ms);

/* Tests, without waiting for them, whether all `count` keys exist. */
CDP_MUST_CHECK CDP_API cdp_status cdp_store_check(
    cdp_store *store, const char *const *keys, uint32_t count, bool *all_there);

/* Deletes the key if it exists. *was_there (may be NULL): whether it did. */
CDP_MUST_CHECK CDP_API cdp_status cdp_store_delete(
    cdp_store *store, const char *key, bool *was_there);

/* Counts the keys of the whole store, including those under other prefixes. Errors: UNSUPPORTED (a
   custom store without `num_keys`). */
CDP_MUST_CHECK CDP_API cdp_status cdp_store_num_keys(cdp_store *store, int64_t *count);

/* Appends `bytes` bytes to the key's value, or sets it if the key is absent. Errors: UNSUPPORTED
   (servers of PyTorch 1.13). */
CDP_MUST_CHECK CDP_API cdp_status cdp_store_append(
    cdp_store *store, const char *key, const void *value, uint64_t bytes);

/* Lists the keys that begin with the store's prefix, without that prefix: keys[0 .. *count - 1], in
   any order, each followed by a zero byte. A key that is set or deleted during the call may be
   missing. *keys is one block, which the caller frees with cdp_store_free(). Errors: UNSUPPORTED
   (custom stores, servers of PyTorch 1.13); STORE (servers of PyTorch 2.x that are too old for this
   close the connection). */
CDP_MUST_CHECK CDP_API cdp_status cdp_store_list_keys(
    cdp_store *store, cdp_bytes **keys, uint64_t *count);

/* Queues of values: first in, first out. A queue has a name of its own that is not a key: it is not
   counted, listed or deleted with the keys. But cdp_store_wait() and cdp_store_check() of that name
   succeed while the queue holds a value. Do not set an ordinary value under the same name. Errors
   of these four calls: UNSUPPORTED (file and custom stores, servers of PyTorch 1.13). */

/* Puts a value at the end of a queue, which exists without being created, and wakes one waiting
   client. */
CDP_MUST_CHECK CDP_API cdp_status cdp_store_queue_push(
    cdp_store *store, const char *key, const void *value, uint64_t bytes);

/* Waits until the queue holds a value, and removes its first value. *value and *bytes as in
   cdp_store_get(). With a TCP store, a removed value is lost if the connection breaks or the
   deadline passes before its answer arrives. Errors: STATE also if an ordinary value was set under
   this name. */
CDP_MUST_CHECK CDP_API cdp_status cdp_store_queue_pop(
    cdp_store *store, const char *key, void **value, uint64_t *bytes, uint32_t timeout_ms);

/* Like cdp_store_queue_pop(), but does not wait: *value is NULL if the queue is empty. */
CDP_MUST_CHECK CDP_API cdp_status cdp_store_queue_try_pop(
    cdp_store *store, const char *key, void **value, uint64_t *bytes);

/* Counts the values in the queue. */
CDP_MUST_CHECK CDP_API cdp_status cdp_store_queue_len(
    cdp_store *store, const char *key, int64_t *count);

/* Waits until `count` callers, including this one, have called it with this key. The key counts
   them and is not reset, so use a new key for each barrier. A caller that timed out stays counted.
   Errors: UNSUPPORTED (servers of PyTorch 1.13). */
CDP_MUST_CHECK CDP_API cdp_status cdp_store_barrier(
    cdp_store *store, const char *key, uint32_t count, uint32_t timeout_ms);

/* Waits until `workers` clients have counted themselves: those of this library with count_me, and
   PyTorch's TCPStore with a world_size, of which the process that serves the store waits so. Asks
   every 10 ms. Call it on a store of cdp_tcp_store_create(), such as a client of one's own server;
   one with count_me counts, too, and no other thread may use it meanwhile. Clones of such a store
   count once more. Errors: INVALID (no store, no workers); TIMEOUT (the text says how many have
   come); UNSUPPORTED (another kind of store: use cdp_store_barrier()). */
CDP_MUST_CHECK CDP_API cdp_status cdp_store_wait_workers(
    cdp_store *store, uint32_t workers, uint32_t timeout_ms);

/* Connects a second client, without a last will, to the server of a TCP store or of a prefix store
   on one: a wait on one of them does not delay calls on the other. Blocks until it is connected, at
   most the store's timeout. The caller owns *out (cdp_store_destroy()). Errors: those of
   cdp_tcp_store_create(); UNSUPPORTED (hash, file and custom stores, which any number of threads
   can use at once: use the store itself). */
CDP_MUST_CHECK CDP_API cdp_status cdp_store_clone(cdp_store *store, cdp_store **out);

/* Waits until all `count` keys exist and reads them: values[0 .. count - 1] (memory of the caller)
   point into *memory, each followed by a zero byte. The caller frees *memory with cdp_store_free().
   */
CDP_MUST_CHECK CDP_API cdp_status cdp_store_multi_get(cdp_store *store, const char *const *keys,
    uint32_t count, cdp_bytes *values, void **memory, uint32_t timeout_ms);

/* Stores values[i] under keys[i] for each i below `count`. Other users may read some of the new
   values before the rest are stored. */
CDP_MUST_CHECK CDP_API cdp_status cdp_store_multi_set(
    cdp_store *store, const char *const *keys, const cdp_bytes *values, uint32_t count);

#endif /* CDP_NO_STORE_CALLS */

/* Sets the timeout, in milliseconds, of calls whose timeout_ms is 0 and of calls that take none (0:
   300000; or CDP_NO_TIMEOUT). A prefix store has the timeout of its inner store, as have all other
   prefixes of that. No other thread may use the store meanwhile. NULL is allowed. */
CDP_API void cdp_store_set_timeout(cdp_store *store, uint32_t timeout_ms);
/* Returns that timeout in milliseconds; 0 if `store` is NULL. */
CDP_API uint32_t cdp_store_timeout(const cdp_store *store);

/* Frees memory that a call on this store returned, once, before the store is destroyed; afterwards
   nothing is freed. NULL is allowed. Any thread may call it. */
CDP_API void cdp_store_free(cdp_store *store, void *memory);

/* Ends a store: closes its connection or file and frees it. Does not wait for other processes;
   returns within about 100 ms. No other thread may use the store meanwhile. NULL is allowed; a
   second time it only sets the last error (STATE). */
CDP_API void cdp_store_destroy(cdp_store *store);

/* The general form of the calls above: starts `request`, waits for it, and at the deadline cancels
   it and returns TIMEOUT. The caller owns the request and its keys and values, and frees its
   results with cdp_store_request_free(). Errors: those of the call that has this operation. */
CDP_MUST_CHECK CDP_API cdp_status cdp_store_run(
    cdp_store *store, cdp_store_request *request, uint32_t timeout_ms);

/* Frees the results of a request that is done, before the store is destroyed; afterwards nothing is
   freed. A second call does nothing. NULL is allowed.
   If you implement a store: `results` must be one block from os->alloc, and so must each
   results[i].data. If you start requests yourself: where several threads share a client, a request
   can complete just before it is cancelled; its status is then CDP_OK, and it may have results to
   free. The status of a prefix store's request changes only in start(), wait() and cancel(). */
CDP_API void cdp_store_request_free(cdp_store *store, cdp_store_request *request);

#endif /* CDP_SRC_STORE_STORE_API_H */
