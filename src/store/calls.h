/* store/calls.h - the blocking calls

   Knows: all kinds of stores. Promises: each call ends by its deadline. */
#ifndef CDP_SRC_STORE_CALLS_H
#define CDP_SRC_STORE_CALLS_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "interface_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "../base/ended.h"
#include "store_api.h"
#include "number.h"
#include "request.h"
#include "hash_store.h"
#include "file.h"
#include "client.h"
#include "client_calls.h"
#include "prefix.h"

/* The store without its prefixes, as far as the stores under them exist. */
CDP__PRIVATE cdp_store *cdp__store_base(cdp_store *s) {
#ifndef CDP_NO_PREFIX_STORE
    while (s->destroy == cdp__prefix_destroy) {
        cdp_store *const inner = ((cdp__prefix_store *)s->self)->inner;
        if (cdp__store_ended(inner)) break;
        s = inner;
    }
#endif
    return s;
}

CDP_API void cdp_store_set_timeout(cdp_store *s, uint32_t timeout_ms) {
    if (s) cdp__store_base(s)->timeout_ms = cdp__def(timeout_ms, CDP__STORE_TIMEOUT_MS);
}

CDP_API uint32_t cdp_store_timeout(const cdp_store *s) {
    return s ? cdp__store_base((cdp_store *)(uintptr_t)s)->timeout_ms : 0;
}

/* A description of the store, for errors; `s` is no prefix store. */
CDP__PRIVATE const char *cdp__store_name(const cdp_store *s) {
#ifndef CDP_NO_FILE_STORE
    if (s->destroy == cdp__file_destroy) return ((const cdp__file_store *)s->self)->path;
#endif
    if (s->destroy == cdp__client_destroy) return ((const cdp__client *)s->self)->name;
#ifndef CDP_NO_HASH_STORE
    if (s->destroy == cdp__hash_destroy) return "this process";
#endif
    return "its host";
}

CDP__PRIVATE const char *cdp__store_timeout_reason(cdp_store *s, const cdp_store_request *rq) {
#ifndef CDP_NO_FILE_STORE
    if (s->destroy == cdp__file_destroy && cdp__file_busy((cdp__file_store *)s->self))
        return "its file is locked; is one of its users stopped?";
#endif
    (void)s;
    if (rq->number == CDP__STORE_NOT_SENT)
        return "an earlier call on this client has not ended (cdp_store_clone makes another one)";
    if (rq->number != 0) return "the store does not answer";
    switch (rq->op) {
    case CDP_STORE_GET:
    case CDP_STORE_WAIT:
    case CDP_STORE_MULTI_GET: return "nobody has set it";
    case CDP_STORE_QUEUE_POP: return "the queue is empty";
    case CDP_STORE_BARRIER: return "not everybody has come";
    default: return "the store does not answer";
    }
}

/* The public function of an operation. */
CDP__PRIVATE const char *cdp__store_op_name(cdp_store_op op) {
    static const char *const names[CDP_STORE_OP_COUNT] = {"cdp_store_run", "cdp_store_set",
        "cdp_store_get", "cdp_store_add", "cdp_store_compare_set", "cdp_store_wait",
        "cdp_store_check", "cdp_store_delete", "cdp_store_num_keys", "cdp_store_append",
        "cdp_store_multi_get", "cdp_store_multi_set", "cdp_store_queue_push", "cdp_store_queue_pop",
        "cdp_store_queue_len", "cdp_store_list_keys", "cdp_store_barrier"};
    return names[(uint32_t)op < CDP_STORE_OP_COUNT ? op : 0];
}

CDP__PRIVATE cdp_status cdp__store_timed_out(
    cdp_store *s, const cdp_store_request *rq, uint32_t timeout_ms) {
    cdp__key_text t;
    cdp_bytes none;
    char seconds[24];
    none.data = NULL;
    none.bytes = 0;
    cdp__key_print(&t, rq->key_count ? rq->keys[0] : none);
    return cdp__fail(CDP_ERR_TIMEOUT, "%s of \"%s\"%s timed out after %s s: %s (the store at %s)",
        cdp__store_op_name(rq->op), t.at, rq->key_count > 1 ? " and others" : "",
        cdp__seconds(seconds, timeout_ms), cdp__store_timeout_reason(s, rq), cdp__store_name(s));
}

/* Starts a request. The caller has filled in all members except the results. */
CDP__PRIVATE cdp_status cdp__store_begin(cdp_store *s, cdp_store_request *rq) {
    if (!rq) return cdp__missing("cdp_store_run", s ? "request" : "store");
    if (!s) return cdp__missing(cdp__store_op_name(rq->op), "store");
    if (!s->start || !s->wait || !s->cancel || !s->os)
        return cdp__fail(CDP_ERR_STATE,
            "this store was never made, or was destroyed (a function of it is NULL)");
    cdp__ended_remove(cdp__store_mark(s)); /* a custom store at the address of a former one */
    rq->status = CDP_PENDING;
    rq->results = NULL;
    rq->priv = NULL;
    rq->next = NULL;
    rq->number = 0;
    return s->start(s->self, rq);
}

/* Ends a request after its last wait, which returned `status`. Cancels a pending one; until then
   another thread may write to it. */
CDP__PRIVATE cdp_status cdp__store_end(
    cdp_store *s, cdp_store_request *rq, cdp_status status, uint32_t timeout_ms) {
    if (status == CDP_PENDING) s->cancel(s->self, rq);
    /* it may have completed just before the cancellation */
    if (rq->status != CDP_PENDING && rq->status != CDP_ERR_TIMEOUT) return rq->status;
    rq->status = CDP_ERR_TIMEOUT;
    return cdp__store_timed_out(cdp__store_base(s), rq, timeout_ms);
}

CDP_API cdp_status cdp_store_run(cdp_store *s, cdp_store_request *rq, uint32_t timeout_ms) {
    const uint32_t ms = cdp__def(timeout_ms, cdp_store_timeout(s));
    const uint64_t deadline = s && s->os ? cdp__deadline(s->os, ms) : 0;
    cdp_status status = cdp__store_begin(s, rq);
    if (status < 0) return status;
    if (status == CDP_PENDING || rq->status == CDP_PENDING) status = s->wait(s->self, rq, deadline);
    return cdp__store_end(s, rq, status, ms);
}

/* Whose memory a store hands out; NULL: no store, or one that was destroyed. */
CDP__PRIVATE CDP__ONE_COPY const cdp_os *cdp__store_os(const cdp_store *s) {
    return s && !cdp__ended(cdp__store_mark(s)) ? s->os : NULL;
}

CDP_API void cdp_store_free(cdp_store *s, void *memory) {
    const cdp_os *const os = cdp__store_os(s);
    if (os) cdp__free(os, memory);
}

/* True if it frees the store with it. */
CDP__PRIVATE bool cdp__store_is_own(void (*destroy)(void *self)) {
#ifndef CDP_NO_HASH_STORE
    if (destroy == cdp__hash_destroy) return true;
#endif
#ifndef CDP_NO_FILE_STORE
    if (destroy == cdp__file_destroy) return true;
#endif
#ifndef CDP_NO_CUSTOM_STORE
    if (destroy == cdp__custom_destroy) return true;
#endif
    return destroy == cdp__client_destroy || destroy == cdp__prefix_destroy;
}

CDP_API CDP__ONE_COPY void cdp_store_destroy(cdp_store *s) {
    void (*destroy)(void *self);
    if (!s) return;
    if (cdp__ended(cdp__store_mark(s))) {
        (void)cdp__fail(CDP_ERR_STATE, "cdp_store_destroy: this store was destroyed");
        return;
    }
    destroy = s->destroy;
    if (!destroy) return;
    s->start = NULL; /* a later call then returns an error, if the memory still exists */
    s->destroy = NULL;
    cdp__ended_add(cdp__store_is_own(destroy) ? cdp__store_mark(s) : s);
    destroy(s->self);
}

CDP_API void cdp_store_request_free(cdp_store *s, cdp_store_request *rq) {
    const cdp_os *const os = cdp__store_os(s);
    if (os && rq) cdp__store_request_drop_results(os, rq, cdp__store_request_result_count(rq));
}

/* A call with one key, in a form that needs no allocation. */
typedef struct cdp__store_call {
    cdp_store_request rq;
    cdp_bytes key, value[2];
} cdp__store_call;

CDP__PRIVATE CDP__ONE_COPY cdp_status cdp__store_call_make(
    cdp__store_call *c, cdp_store_op op, const char *key, const void *value, uint64_t bytes) {
    memset(c, 0, sizeof *c);
    if (!key) return cdp__missing(cdp__store_op_name(op), "key");
    if (!value && bytes)
        return cdp__fail(CDP_ERR_INVALID, "%s: %s is NULL (key \"%s\")", cdp__store_op_name(op),
            op == CDP_STORE_COMPARE_SET ? "expected" : "value", key);
    c->key.data = key;
    c->key.bytes = strlen(key);
    c->value[0].data = value;
    c->value[0].bytes = bytes;
    c->rq.op = op;
    c->rq.keys = &c->key;
    c->rq.key_count = 1;
    c->rq.values = c->value;
    return CDP_OK;
}

/* Runs a call that cdp__store_call_make() has made; `status` is what that returned. If `value`
   is not NULL, the caller owns the first result. */
CDP__PRIVATE cdp_status cdp__store_call_run(cdp_store *s, cdp__store_call *c, cdp_status status,
    uint32_t timeout_ms, void **value, uint64_t *bytes) {
    if (value) *value = NULL;
    if (bytes) *bytes = 0;
    if (status == CDP_OK) status = cdp_store_run(s, &c->rq, timeout_ms);
    if (status != CDP_OK || !value) return status;
    memcpy(value, &c->rq.results[0].data, sizeof *value);
    if (bytes) *bytes = c->rq.results[0].bytes;
    cdp__free(s->os, c->rq.results);
    return CDP_OK;
}

/* Runs a call that stores a value. */
CDP__PRIVATE cdp_status cdp__store_put(
    cdp_store *s, cdp_store_op op, const char *key, const void *value, uint64_t bytes) {
    cdp__store_call c;
    const cdp_status status = cdp__store_call_make(&c, op, key, value, bytes);
    return cdp__store_call_run(s, &c, status, 0, NULL, NULL);
}

/* Runs a call that waits for a value, which the caller then owns. */
CDP__PRIVATE cdp_status cdp__store_take(cdp_store *s, cdp_store_op op, const char *key,
    void **value, uint64_t *bytes, uint32_t timeout_ms) {
    cdp__store_call c;
    const cdp_status status = cdp__store_call_make(&c, op, key, NULL, 0);
    return cdp__store_call_run(s, &c, status, timeout_ms, value, bytes);
}

/* Runs a call on a key that returns a number; 0 if it fails. */
CDP__PRIVATE CDP__ONE_COPY cdp_status cdp__store_count(
    cdp_store *s, cdp_store_op op, const char *key, int64_t delta, int64_t *number) {
    cdp__store_call c;
    cdp_status status = cdp__store_call_make(&c, op, key, NULL, 0);
    c.rq.delta = delta;
    status = cdp__store_call_run(s, &c, status, 0, NULL, NULL);
    *number = status == CDP_OK ? c.rq.number : 0;
    return status;
}

CDP_API cdp_status cdp_store_set(cdp_store *s, const char *key, const void *value, uint64_t bytes) {
    return cdp__store_put(s, CDP_STORE_SET, key, value, bytes);
}

CDP_API cdp_status cdp_store_get(
    cdp_store *s, const char *key, void **value, uint64_t *bytes, uint32_t timeout_ms) {
    if (!value) return cdp__missing("cdp_store_get", "value");
    return cdp__store_take(s, CDP_STORE_GET, key, value, bytes, timeout_ms);
}

CDP_API cdp_status cdp_store_add(cdp_store *s, const char *key, int64_t delta, int64_t *sum) {
    int64_t number;
    return cdp__store_count(s, CDP_STORE_ADD, key, delta, sum ? sum : &number);
}

CDP_API cdp_status cdp_store_compare_set(cdp_store *s, const char *key, const void *expected,
    uint64_t expected_bytes, const void *desired, uint64_t desired_bytes, void **value,
    uint64_t *bytes) {
    cdp__store_call c;
    cdp_status status =
        cdp__store_call_make(&c, CDP_STORE_COMPARE_SET, key, expected, expected_bytes);
    if (value) *value = NULL;
    if (!value) return cdp__missing("cdp_store_compare_set", "value");
    if (status == CDP_OK && !desired && desired_bytes)
        status =
            cdp__fail(CDP_ERR_INVALID, "cdp_store_compare_set: desired is NULL (key \"%s\")", key);
    c.value[1].data = desired;
    c.value[1].bytes = desired_bytes;
    return cdp__store_call_run(s, &c, status, 0, value, bytes);
}

#ifndef CDP_NO_STORE_CALLS

CDP_API cdp_status cdp_store_append(
    cdp_store *s, const char *key, const void *value, uint64_t bytes) {
    return cdp__store_put(s, CDP_STORE_APPEND, key, value, bytes);
}

CDP_API cdp_status cdp_store_delete(cdp_store *s, const char *key, bool *was_there) {
    int64_t number;
    const cdp_status status = cdp__store_count(s, CDP_STORE_DELETE, key, 0, &number);
    if (was_there) *was_there = number == 1;
    return status;
}

CDP_API cdp_status cdp_store_queue_push(
    cdp_store *s, const char *key, const void *value, uint64_t bytes) {
    return cdp__store_put(s, CDP_STORE_QUEUE_PUSH, key, value, bytes);
}

CDP_API cdp_status cdp_store_queue_pop(
    cdp_store *s, const char *key, void **value, uint64_t *bytes, uint32_t timeout_ms) {
    if (!value) return cdp__missing("cdp_store_queue_pop", "value");
    return cdp__store_take(s, CDP_STORE_QUEUE_POP, key, value, bytes, timeout_ms);
}

CDP_API cdp_status cdp_store_queue_try_pop(
    cdp_store *s, const char *key, void **value, uint64_t *bytes) {
    cdp__store_call c;
    const cdp_status status = cdp__store_call_make(&c, CDP_STORE_QUEUE_POP, key, NULL, 0);
    if (value) *value = NULL;
    if (!value) return cdp__missing("cdp_store_queue_try_pop", "value");
    c.rq.delta = 1;
    return cdp__store_call_run(s, &c, status, 0, value, bytes);
}

CDP_API cdp_status cdp_store_queue_len(cdp_store *s, const char *key, int64_t *count) {
    if (!count) return cdp__missing("cdp_store_queue_len", "count");
    return cdp__store_count(s, CDP_STORE_QUEUE_LEN, key, 0, count);
}

CDP_API cdp_status cdp_store_barrier(
    cdp_store *s, const char *key, uint32_t count, uint32_t timeout_ms) {
    cdp__store_call c;
    const cdp_status status = cdp__store_call_make(&c, CDP_STORE_BARRIER, key, NULL, 0);
    c.rq.delta = count;
    return cdp__store_call_run(s, &c, status, timeout_ms, NULL, NULL);
}

#define CDP__WORKERS_ASK_MS 10u

CDP_API cdp_status cdp_store_wait_workers(cdp_store *s, uint32_t workers, uint32_t timeout_ms) {
    const uint32_t ms = cdp__def(timeout_ms, cdp_store_timeout(s));
    cdp__client *c;
    char seconds[24];
    int64_t come = 0;
    uint64_t deadline;
    if (!s || !workers) return cdp__missing("cdp_store_wait_workers", s ? "workers" : "store");
    if (s->destroy != cdp__client_destroy)
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "cdp_store_wait_workers: only a store of cdp_tcp_store_create() counts its clients; "
            "use cdp_store_barrier()");
    c = (cdp__client *)s->self;
    for (deadline = cdp__deadline(s->os, ms);;) {
        const uint64_t now = s->os->now_ns(s->os->user);
        cdp_status st;
        c->bare = true;
        st = cdp_store_add(s, "init/", 0, &come);
        c->bare = false;
        if (st != CDP_OK || come >= (int64_t)workers) return st;
        if (now >= deadline) break;
        cdp__sleep_until(s->os, cdp__min(deadline, now + CDP__WORKERS_ASK_MS * CDP__MS));
    }
    return cdp__fail(CDP_ERR_TIMEOUT,
        "cdp_store_wait_workers: %lld of %u workers have come within %s s; start the others, or "
        "set count_me in their cdp_tcp_store_desc",
        (long long)come, workers, cdp__seconds(seconds, ms));
}

/* Copies the array and the keys to one block. */
CDP__PRIVATE cdp_status cdp__store_pack_keys(
    cdp_store *s, const cdp_store_request *rq, cdp_bytes **keys) {
    const uint64_t n = (uint64_t)rq->number;
    uint64_t total = n * sizeof **keys + 1, i;
    uint8_t *p;
    for (i = 0; i < n; ++i)
        total += rq->results[i].bytes + 1;
    *keys = (cdp_bytes *)cdp__alloc(s->os, total);
    if (!*keys) return cdp__fail_nomem("a list of keys", total);
    p = (uint8_t *)(*keys + n);
    for (i = 0; i < n; ++i) {
        const uint64_t bytes = rq->results[i].bytes;
        memcpy(p, rq->results[i].data, (size_t)bytes + 1);
        (*keys)[i].data = p;
        (*keys)[i].bytes = bytes;
        p += bytes + 1;
    }
    return CDP_OK;
}

CDP_API cdp_status cdp_store_list_keys(cdp_store *s, cdp_bytes **keys, uint64_t *count) {
    cdp__store_call c;
    cdp_status status;
    if (!keys || !count) return cdp__missing("cdp_store_list_keys", keys ? "count" : "keys");
    *keys = NULL;
    *count = 0;
    memset(&c, 0, sizeof c);
    c.rq.op = CDP_STORE_LIST_KEYS;
    status = cdp_store_run(s, &c.rq, 0);
    if (status != CDP_OK) return status;
    status = cdp__store_pack_keys(s, &c.rq, keys);
    if (status == CDP_OK) *count = (uint64_t)c.rq.number;
    cdp_store_request_free(s, &c.rq);
    return status;
}

/* As cdp_store_clone(); waits for the connection at most connect_ms, 0: the store's timeout. */
CDP__PRIVATE CDP__COLD cdp_status cdp__store_clone_within(
    cdp_store *s, uint32_t connect_ms, cdp_store **out) {
    if (!out) return cdp__missing("cdp_store_clone", "out");
    *out = NULL;
    if (!s) return cdp__missing("cdp_store_clone", "store");
    if (s->destroy == cdp__client_destroy)
        return cdp__client_clone((const cdp__client *)s->self, connect_ms, out);
#ifndef CDP_NO_PREFIX_STORE
    if (s->destroy == cdp__prefix_destroy) {
        const cdp__prefix_store *p = (const cdp__prefix_store *)s->self;
        cdp_store *inner;
        cdp_status status = cdp__store_clone_within(p->inner, connect_ms, &inner);
        if (status != CDP_OK) return status;
        status = cdp__prefix_create(inner, p + 1, p->prefix_bytes, out);
        if (status == CDP_OK)
            ((cdp__prefix_store *)(*out)->self)->owns_inner = true;
        else
            cdp_store_destroy(inner);
        return status;
    }
#endif
    return cdp__fail(CDP_ERR_UNSUPPORTED,
        "cdp_store_clone: only TCP stores, and prefixes of them, need clones; any number of "
        "threads may use this one");
}

CDP_API cdp_status cdp_store_clone(cdp_store *s, cdp_store **out) {
    CDP__NOT_COLD();
    return cdp__store_clone_within(s, 0, out);
}

CDP_API cdp_status cdp_store_num_keys(cdp_store *s, int64_t *count) {
    cdp_store_request rq;
    cdp_status status;
    if (!count) return cdp__missing("cdp_store_num_keys", "count");
    memset(&rq, 0, sizeof rq);
    rq.op = CDP_STORE_NUM_KEYS;
    status = cdp_store_run(s, &rq, 0);
    *count = status == CDP_OK ? rq.number : 0;
    return status;
}

/* Makes a request with a list of keys. The array belongs to the store; free it with
   cdp_store_free. */
CDP__PRIVATE cdp_status cdp__store_list(cdp_store *s, cdp_store_op op, const char *const *keys,
    uint32_t count, cdp_store_request *rq, cdp_bytes **array) {
    uint32_t i;
    *array = NULL;
    memset(rq, 0, sizeof *rq);
    if (!s) return cdp__missing(cdp__store_op_name(op), "store");
    if (!keys && count) return cdp__missing(cdp__store_op_name(op), "keys");
    *array = (cdp_bytes *)cdp__alloc(s->os, (count + 1ull) * sizeof **array);
    if (!*array) return cdp__fail_nomem("the keys of a request", (count + 1ull) * sizeof **array);
    for (i = 0; i < count; ++i) {
        if (!keys[i])
            return cdp__fail(CDP_ERR_INVALID, "%s: keys[%u] is NULL", cdp__store_op_name(op), i);
        (*array)[i].data = keys[i];
        (*array)[i].bytes = strlen(keys[i]);
    }
    rq->op = op;
    rq->keys = *array;
    rq->key_count = count;
    return CDP_OK;
}

CDP_API cdp_status cdp_store_wait(
    cdp_store *s, const char *const *keys, uint32_t count, uint32_t timeout_ms) {
    cdp_store_request rq;
    cdp_bytes *array;
    cdp_status status = cdp__store_list(s, CDP_STORE_WAIT, keys, count, &rq, &array);
    if (status == CDP_OK) status = cdp_store_run(s, &rq, timeout_ms);
    cdp_store_free(s, array);
    return status;
}

CDP_API cdp_status cdp_store_check(
    cdp_store *s, const char *const *keys, uint32_t count, bool *all_there) {
    cdp_store_request rq;
    cdp_bytes *array;
    cdp_status status = all_there ? cdp__store_list(s, CDP_STORE_CHECK, keys, count, &rq, &array)
                                  : cdp__missing("cdp_store_check", "all_there");
    if (!all_there) return status;
    if (status == CDP_OK) status = cdp_store_run(s, &rq, 0);
    *all_there = status == CDP_OK && rq.number == 1;
    cdp_store_free(s, array);
    return status;
}

CDP_API cdp_status cdp_store_multi_set(
    cdp_store *s, const char *const *keys, const cdp_bytes *values, uint32_t count) {
    cdp_store_request rq;
    cdp_bytes *array;
    cdp_status status = cdp__store_list(s, CDP_STORE_MULTI_SET, keys, count, &rq, &array);
    rq.values = values;
    if (status == CDP_OK && count) status = cdp_store_run(s, &rq, 0);
    cdp_store_free(s, array);
    return status;
}

/* Copies all results to one block, so that the caller frees a single pointer. */
CDP__PRIVATE cdp_status cdp__store_pack(
    cdp_store *s, const cdp_store_request *rq, cdp_bytes *values, void **memory) {
    uint64_t total = 0;
    uint32_t i;
    uint8_t *p;
    for (i = 0; i < rq->key_count; ++i)
        total += rq->results[i].bytes + 1;
    p = (uint8_t *)cdp__alloc(s->os, total);
    if (!p) return cdp__fail_nomem("the values of many keys", total);
    *memory = p;
    for (i = 0; i < rq->key_count; ++i) {
        values[i].data = p;
        values[i].bytes = rq->results[i].bytes;
        memcpy(p, rq->results[i].data, (size_t)values[i].bytes + 1);
        p += values[i].bytes + 1;
    }
    return CDP_OK;
}

CDP_API cdp_status cdp_store_multi_get(cdp_store *s, const char *const *keys, uint32_t count,
    cdp_bytes *values, void **memory, uint32_t timeout_ms) {
    cdp_store_request rq;
    cdp_bytes *array;
    cdp_status status;
    if (memory) *memory = NULL;
    if (!memory || (!values && count))
        return cdp__missing("cdp_store_multi_get", memory ? "values" : "memory");
    status = cdp__store_list(s, CDP_STORE_MULTI_GET, keys, count, &rq, &array);
    if (status == CDP_OK && count) {
        status = cdp_store_run(s, &rq, timeout_ms);
        if (status == CDP_OK) {
            status = cdp__store_pack(s, &rq, values, memory);
            cdp_store_request_free(s, &rq);
        }
    }
    cdp_store_free(s, array);
    return status;
}

#endif /* CDP_NO_STORE_CALLS */

#endif /* CDP_SRC_STORE_CALLS_H */
