/* store/hash_store.h - a map inside one process as a store

   Knows: a map and the threads that wait for its keys. Promises: a waiting thread wakes when its
   key is set. */
#ifndef CDP_SRC_STORE_HASH_STORE_H
#define CDP_SRC_STORE_HASH_STORE_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../os/os_api.h"
#include "../os/whole.h"
#include "interface_api.h"
#include "../message/transport_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "../os/linux.h"
#include "../os/child.h"
#include "desc_api.h"
#include "number.h"
#include "kv.h"
#include "request.h"

typedef struct cdp__hash_store {
    cdp_store store;
    cdp__kv kv;
    cdp_lock lock;
    void *cond;     /* NULL without threads */
    uint32_t forks; /* see cdp__is_child() */
} cdp__hash_store;

CDP__PRIVATE cdp_status cdp__hash_read(cdp__hash_store *h, cdp_store_request *rq) {
    const uint64_t n = cdp__store_request_result_count(rq);
    uint64_t i;
    for (i = 0; i < rq->key_count; ++i)
        if (n ? !cdp__kv_get(&h->kv, rq->keys[i]) : !cdp__kv_available(&h->kv, rq->keys[i]))
            return CDP_PENDING;
    if (!cdp__store_request_make_results(h->kv.os, rq))
        return cdp__fail_nomem("the results of a request", n * sizeof(cdp_bytes));
    for (i = 0; i < n; ++i) {
        const cdp__kv_entry *e = cdp__kv_get(&h->kv, rq->keys[i]);
        cdp_bytes value;
        value.data = e->value;
        value.bytes = e->value_bytes;
        if (cdp__store_request_put_result(h->kv.os, rq, i, value)) continue;
        cdp__store_request_drop_results(h->kv.os, rq, n);
        return cdp__fail_nomem("a value", value.bytes);
    }
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__hash_compare_set(cdp__hash_store *h, cdp_store_request *rq) {
    cdp__kv_entry *e;
    cdp_bytes answer;
    cdp_status status;
    uint8_t *p = NULL;
    const uint64_t room = cdp__max(rq->values[1].bytes, rq->values[0].bytes);
    const cdp__kv_entry *old = cdp__kv_get(&h->kv, rq->keys[0]);
    memset(&answer, 0, sizeof answer);
    /* allocate first: after a change the store must not report a failure */
    if (cdp__store_request_make_results(h->kv.os, rq))
        p = cdp__store_request_result(h->kv.os, rq, 0, cdp__max(room, old ? old->value_bytes : 0));
    status = p ? cdp__kv_compare_set(&h->kv, rq->keys[0], rq->values[0], rq->values[1], &answer, &e)
               : cdp__fail_nomem("a value", room);
    if (status != CDP_OK) {
        cdp__store_request_drop_results(h->kv.os, rq, 1);
        return status;
    }
    if (answer.bytes) memcpy(p, answer.data, (size_t)answer.bytes);
    p[answer.bytes] = 0;
    rq->results[0].bytes = answer.bytes;
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__hash_write(cdp__hash_store *h, cdp_store_request *rq) {
    cdp__kv_entry *e;
    cdp_status status = CDP_OK;
    uint32_t i;
    if (rq->op == CDP_STORE_ADD)
        return cdp__kv_add(&h->kv, rq->keys[0], rq->delta, &rq->number, &e);
    if (rq->op == CDP_STORE_COMPARE_SET) return cdp__hash_compare_set(h, rq);
    if (rq->op == CDP_STORE_APPEND) {
        const cdp__kv_entry *old = cdp__kv_get(&h->kv, rq->keys[0]);
        const uint64_t bytes = rq->values[0].bytes + (old ? old->value_bytes : 0);
        return bytes > CDP_STORE_MAX_VALUE_BYTES
            ? cdp__store_too_long(rq->keys[0], bytes, CDP_STORE_MAX_VALUE_BYTES)
            : cdp__kv_append(&h->kv, rq->keys[0], rq->values[0], &e);
    }
    for (i = 0; i < rq->key_count && status == CDP_OK; ++i)
        status = cdp__kv_set(&h->kv, rq->keys[i], rq->values[i], &e);
    return status;
}

CDP__PRIVATE cdp_status cdp__hash_pop(cdp__hash_store *h, cdp_store_request *rq) {
    cdp__kv_entry *e = cdp__kv_find(&h->kv, rq->keys[0]);
    cdp__kv_item *item;
    cdp_bytes value;
    const int64_t count = e ? (int64_t)e->item_count : 0;
    if (!count && !rq->delta) return CDP_PENDING;
    rq->number = count;
    if (!cdp__store_request_make_results(h->kv.os, rq))
        return cdp__fail_nomem("the result of a request", sizeof(cdp_bytes));
    if (!count) return CDP_OK;
    value.data = e->first_item + 1;
    value.bytes = e->first_item->bytes;
    if (!cdp__store_request_put_result(h->kv.os, rq, 0, value)) {
        cdp__store_request_drop_results(h->kv.os, rq, 1);
        return cdp__fail_nomem("a value", value.bytes);
    }
    item = cdp__kv_pop(&h->kv, e);
    cdp__free(h->kv.os, item);
    cdp__kv_release(&h->kv, e);
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__hash_push(cdp__hash_store *h, cdp_store_request *rq) {
    cdp__kv_entry *e;
    return cdp__kv_push(&h->kv, rq->keys[0], rq->values[0], &e);
}

CDP__PRIVATE cdp_status cdp__hash_queue_len(cdp__hash_store *h, cdp_store_request *rq) {
    const cdp__kv_entry *e = cdp__kv_find(&h->kv, rq->keys[0]);
    rq->number = e ? (int64_t)e->item_count : 0;
    return CDP_OK;
}

/* The first attempt increments the count, and sets `priv` so that later ones do not. */
CDP__PRIVATE cdp_status cdp__hash_barrier(cdp__hash_store *h, cdp_store_request *rq) {
    cdp__kv_entry *e = cdp__kv_get(&h->kv, rq->keys[0]);
    int64_t sum = 0;
    if (!rq->priv) {
        const cdp_status status = cdp__kv_add(&h->kv, rq->keys[0], 1, &sum, &e);
        if (status != CDP_OK) return status;
        rq->priv = h;
    } else if (e && !cdp__number_parse(e->value, e->value_bytes, &sum)) {
        return cdp__store_no_number(rq->keys[0]);
    }
    return sum >= rq->delta ? CDP_OK : CDP_PENDING;
}

/* Lists the keys of the map that begin with `prefix`, without that prefix. */
CDP__PRIVATE cdp_status cdp__kv_list(const cdp__kv *kv, const char *prefix, cdp_store_request *rq) {
    const uint64_t skip = strlen(prefix);
    uint64_t i;
    rq->number = 0;
    rq->results = (cdp_bytes *)cdp__alloc_zero(kv->os, (kv->present_count + 1) * sizeof(cdp_bytes));
    if (!rq->results) return cdp__fail_nomem("a list of keys", kv->present_count);
    for (i = 0; i < kv->bucket_count; ++i) {
        const cdp__kv_entry *e;
        for (e = kv->buckets[i]; e; e = e->next) {
            cdp_bytes key;
            if (!e->present || e->key_bytes < skip
                || memcmp(cdp__kv_key(e), prefix, (size_t)skip) != 0)
                continue;
            key.data = cdp__kv_key(e) + skip;
            key.bytes = e->key_bytes - skip;
            if (!cdp__store_request_put_result(kv->os, rq, (uint64_t)rq->number, key)) {
                cdp__store_request_drop_results(kv->os, rq, (uint64_t)rq->number);
                return cdp__fail_nomem("a key of a list", key.bytes);
            }
            ++rq->number;
        }
    }
    return CDP_OK;
}

/* Requires the lock. Carries out the request, or returns CDP_PENDING if it must wait. */
CDP__PRIVATE cdp_status cdp__hash_try(cdp__hash_store *h, cdp_store_request *rq) {
    cdp_status status;
    switch (rq->op) {
    case CDP_STORE_GET:
    case CDP_STORE_WAIT:
    case CDP_STORE_MULTI_GET: return cdp__hash_read(h, rq);
    case CDP_STORE_CHECK:
        status = cdp__hash_read(h, rq);
        rq->number = status == CDP_OK;
        return status == CDP_PENDING ? CDP_OK : status;
    case CDP_STORE_DELETE: rq->number = cdp__kv_delete(&h->kv, rq->keys[0]); return CDP_OK;
#ifndef CDP_NO_STORE_CALLS
    case CDP_STORE_NUM_KEYS: rq->number = (int64_t)h->kv.present_count; return CDP_OK;
    case CDP_STORE_LIST_KEYS: return cdp__kv_list(&h->kv, "", rq);
    case CDP_STORE_QUEUE_POP: return cdp__hash_pop(h, rq);
    case CDP_STORE_QUEUE_LEN: return cdp__hash_queue_len(h, rq);
    case CDP_STORE_QUEUE_PUSH: status = cdp__hash_push(h, rq); break;
    case CDP_STORE_BARRIER: status = cdp__hash_barrier(h, rq); break;
#endif
    default: status = cdp__hash_write(h, rq); break;
    }
    if (h->cond && rq->op != CDP_STORE_BARRIER)
        h->kv.os->threads.cond_broadcast(h->kv.os->user, h->cond);
    else if (h->cond && status == CDP_OK)
        h->kv.os->threads.cond_broadcast(h->kv.os->user, h->cond);
    return status;
}

CDP__PRIVATE cdp_status cdp__hash_start(void *self, cdp_store_request *rq) {
    cdp__hash_store *h = (cdp__hash_store *)self;
    rq->results = NULL;
    rq->priv = NULL;
    rq->status = cdp__store_request_validate(rq, CDP_STORE_MAX_VALUE_BYTES);
    if (rq->status == CDP_OK && cdp__is_child(h->forks))
        rq->status = cdp__child_refuses(CDP_ERR_STATE, "a call of a store", "store");
    if (rq->status != CDP_OK) return rq->status;
    cdp_lock_acquire(&h->lock);
    rq->status = cdp__hash_try(h, rq);
    cdp_lock_release(&h->lock);
    return rq->status;
}

CDP__PRIVATE cdp_status cdp__hash_wait(void *self, cdp_store_request *rq, uint64_t deadline_ns) {
    cdp__hash_store *h = (cdp__hash_store *)self;
    const cdp_os *os = h->kv.os;
    cdp_lock_acquire(&h->lock);
    while (rq->status == CDP_PENDING) {
        rq->status = cdp__hash_try(h, rq);
        if (rq->status != CDP_PENDING || !h->cond || os->now_ns(os->user) >= deadline_ns) break;
        os->threads.cond_wait(os->user, h->cond, h->lock.mutex, deadline_ns);
    }
    cdp_lock_release(&h->lock);
    return rq->status;
}

CDP__PRIVATE void cdp__hash_cancel(void *self, cdp_store_request *rq) {
    (void)self;
    (void)rq; /* The store keeps no reference to a pending request. */
}

CDP__PRIVATE void cdp__hash_destroy(void *self) {
    cdp__hash_store *h = (cdp__hash_store *)self;
    const cdp_os *os = h->kv.os;
    if (cdp__is_child(h->forks)) return;
    cdp__kv_close(&h->kv);
    if (h->cond) os->threads.cond_destroy(os, h->cond);
    cdp__lock_close(&h->lock);
    cdp__free(os, h);
}

#ifndef CDP_NO_HASH_STORE

CDP_API cdp_status cdp_hash_store_create(const cdp_hash_store_desc *desc, cdp_store **out) {
    const cdp_os *os = desc && desc->os ? desc->os : cdp_os_default();
    cdp__hash_store *h;
    if (!out) return cdp__missing("cdp_hash_store_create", "out");
    *out = NULL;
    if (cdp__os_whole(os, "cdp_hash_store_create") != CDP_OK) return CDP_ERR_INVALID;
    h = (cdp__hash_store *)cdp__alloc_zero(os, sizeof *h);
    if (!h) return cdp__fail_nomem("a hash store", sizeof *h);
    cdp__kv_open(&h->kv, os, 0, UINT64_MAX);
    h->forks = cdp__forks_watch();
    h->store.self = h;
    h->store.os = os;
    h->store.timeout_ms = cdp__def(desc ? desc->timeout_ms : 0, CDP__STORE_TIMEOUT_MS);
    h->store.start = cdp__hash_start;
    h->store.wait = cdp__hash_wait;
    h->store.cancel = cdp__hash_cancel;
    cdp__store_made(&h->store, cdp__hash_destroy);
    if (!cdp__lock_open(&h->lock, os, true)) {
        cdp__hash_destroy(h);
        return cdp__fail_nomem("a lock", sizeof(cdp_lock));
    }
    if (h->lock.mutex) {
        h->cond = os->threads.cond_create(os);
        if (!h->cond) {
            cdp__hash_destroy(h);
            return cdp__fail_nomem("a condition variable", sizeof(cdp_lock));
        }
    }
    *out = &h->store;
    return CDP_OK;
}

#endif /* CDP_NO_HASH_STORE */

#endif /* CDP_SRC_STORE_HASH_STORE_H */
