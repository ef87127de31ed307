/* store/prefix.h - another store, with a prefix before each key

   Knows: the inner store and the prefix. Promises: the inner store sees each key with the prefix,
   the caller without it. */
#ifndef CDP_SRC_STORE_PREFIX_H
#define CDP_SRC_STORE_PREFIX_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "interface_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "desc_api.h"
#include "store_api.h"
#include "request.h"

typedef struct cdp__prefix_store {
    cdp_store store;
    cdp_store *inner;
    bool owns_inner;       /* true for clones: destroying the store destroys `inner`, too */
    uint64_t prefix_bytes; /* including the slash; the prefix follows the struct in memory */
} cdp__prefix_store;

/* The request to the inner store. Its key table and the bytes of its keys follow the struct in
   memory. */
typedef struct cdp__prefix_request {
    cdp_store_request inner;
} cdp__prefix_request;

CDP__PRIVATE cdp__prefix_request *cdp__prefix_make(
    const cdp__prefix_store *s, const cdp_store_request *rq) {
    uint64_t bytes = sizeof(cdp__prefix_request) + rq->key_count * sizeof(cdp_bytes);
    cdp__prefix_request *p;
    cdp_bytes *keys;
    uint8_t *at;
    uint32_t i;
    for (i = 0; i < rq->key_count; ++i)
        bytes += s->prefix_bytes + rq->keys[i].bytes;
    p = (cdp__prefix_request *)cdp__alloc(s->store.os, bytes);
    if (!p) {
        cdp__fail_nomem("a request of a prefix store", bytes);
        return NULL;
    }
    keys = (cdp_bytes *)(p + 1);
    at = (uint8_t *)(keys + rq->key_count);
    p->inner = *rq;
    p->inner.keys = keys;
    p->inner.priv = NULL;
    p->inner.status = CDP_PENDING;
    for (i = 0; i < rq->key_count; ++i) {
        keys[i].data = at;
        keys[i].bytes = s->prefix_bytes + rq->keys[i].bytes;
        memcpy(at, s + 1, (size_t)s->prefix_bytes);
        if (rq->keys[i].bytes)
            memcpy(at + s->prefix_bytes, rq->keys[i].data, (size_t)rq->keys[i].bytes);
        at += keys[i].bytes;
    }
    return p;
}

/* Keeps the listed keys that begin with the prefix, removes the prefix from them, and frees the
   others. */
CDP__PRIVATE void cdp__prefix_filter(const cdp__prefix_store *s, cdp_store_request *rq) {
    int64_t i, kept = 0;
    for (i = 0; i < rq->number; ++i) {
        cdp_bytes *key = &rq->results[i];
        uint8_t *p;
        memcpy(&p, &key->data, sizeof p);
        if (key->bytes >= s->prefix_bytes && memcmp(p, s + 1, (size_t)s->prefix_bytes) == 0) {
            key->bytes -= s->prefix_bytes;
            memmove(p, p + s->prefix_bytes, (size_t)key->bytes + 1);
            rq->results[kept++] = *key;
        } else {
            cdp__free(s->store.os, p);
        }
    }
    rq->number = kept;
}

/* Copies the result of the inner request to the caller's request. `status` is what the inner store
   returned. If that is PENDING, the inner request is not read: another thread may be writing it. */
CDP__PRIVATE cdp_status cdp__prefix_update(
    cdp__prefix_store *s, cdp_store_request *rq, cdp_status status) {
    cdp__prefix_request *p = (cdp__prefix_request *)rq->priv;
    rq->status = status == CDP_OK ? p->inner.status : status;
    if (rq->status == CDP_PENDING) return rq->status;
    rq->number = p->inner.number;
    rq->results = p->inner.results;
    if (rq->op == CDP_STORE_LIST_KEYS && rq->status == CDP_OK) cdp__prefix_filter(s, rq);
    cdp__free(s->store.os, p);
    rq->priv = NULL;
    return rq->status;
}

CDP__PRIVATE cdp_status cdp__prefix_start(void *self, cdp_store_request *rq) {
    cdp__prefix_store *s = (cdp__prefix_store *)self;
    cdp__prefix_request *p;
    cdp_status status;
    rq->results = NULL;
    rq->status = cdp__store_request_validate(rq, UINT64_MAX);
    if (rq->status == CDP_OK && cdp__store_ended(s->inner))
        rq->status = cdp__fail(CDP_ERR_STATE,
            "the store under this prefix store was destroyed; destroy the prefix store first");
    if (rq->status != CDP_OK) return rq->status;
    p = cdp__prefix_make(s, rq);
    if (!p) return rq->status = CDP_ERR_NOMEM;
    rq->priv = p;
    status = s->inner->start(s->inner->self, &p->inner);
    return cdp__prefix_update(s, rq, status);
}

CDP__PRIVATE cdp_status cdp__prefix_wait(void *self, cdp_store_request *rq, uint64_t deadline_ns) {
    cdp__prefix_store *s = (cdp__prefix_store *)self;
    cdp__prefix_request *p = (cdp__prefix_request *)rq->priv;
    if (!p) return rq->status;
    return cdp__prefix_update(s, rq, s->inner->wait(s->inner->self, &p->inner, deadline_ns));
}

CDP__PRIVATE void cdp__prefix_cancel(void *self, cdp_store_request *rq) {
    cdp__prefix_store *s = (cdp__prefix_store *)self;
    cdp__prefix_request *p = (cdp__prefix_request *)rq->priv;
    if (!p) return;
    s->inner->cancel(s->inner->self, &p->inner);
    /* It may have completed before it was cancelled. */
    cdp__prefix_update(s, rq, p->inner.status == CDP_PENDING ? CDP_ERR_TIMEOUT : p->inner.status);
}

CDP__PRIVATE void cdp__prefix_destroy(void *self) {
    cdp__prefix_store *s = (cdp__prefix_store *)self;
    if (s->owns_inner) cdp_store_destroy(s->inner);
    cdp__free(s->store.os, s);
}

/* `prefix` has n bytes; the last one is the slash. */
CDP__PRIVATE CDP__COLD cdp_status cdp__prefix_create(
    cdp_store *inner, const void *prefix, uint64_t n, cdp_store **out) {
    cdp__prefix_store *s = (cdp__prefix_store *)cdp__alloc_zero(inner->os, sizeof *s + n);
    if (!s) return cdp__fail_nomem("a prefix store", sizeof *s + n);
    memcpy(s + 1, prefix, (size_t)n);
    s->inner = inner;
    cdp__store_lives(inner); /* it lives, and may be the program's own */
    s->prefix_bytes = n;
    s->store = *inner; /* for os and timeout_ms */
    s->store.self = s;
    s->store.start = cdp__prefix_start;
    s->store.wait = cdp__prefix_wait;
    s->store.cancel = cdp__prefix_cancel;
    cdp__store_made(&s->store, cdp__prefix_destroy);
    *out = &s->store;
    return CDP_OK;
}

#ifndef CDP_NO_PREFIX_STORE

CDP_API cdp_status cdp_prefix_store_create(cdp_store *inner, const char *prefix, cdp_store **out) {
    const uint64_t n = prefix ? strlen(prefix) : 0;
    cdp__prefix_store *s;
    cdp_status status;
    if (!out) return cdp__missing("cdp_prefix_store_create", "out");
    *out = NULL;
    if (!inner || !prefix)
        return cdp__missing("cdp_prefix_store_create", inner ? "prefix" : "inner");
    CDP__NOT_COLD();
    /* Copies the terminating zero, too, which becomes the slash. */
    status = cdp__prefix_create(inner, prefix, n + 1, out);
    if (status != CDP_OK) return status;
    s = (cdp__prefix_store *)(*out)->self;
    ((uint8_t *)(s + 1))[n] = '/';
    return CDP_OK;
}

#endif /* CDP_NO_PREFIX_STORE */

#endif /* CDP_SRC_STORE_PREFIX_H */
