/* store/custom.h - two functions of a program as a store; polling stores

   Knows: stores without notification, which have to be polled. Promises: each operation is atomic
   if the program's `swap` is; a waiting call polls at least every 10 ms. */
#ifndef CDP_SRC_STORE_CUSTOM_H
#define CDP_SRC_STORE_CUSTOM_H

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
#include "record.h"
#include "number.h"
#include "request.h"

/* The common part of polling stores: the custom store and the file store. `attempt` either
   completes a request, or returns CDP_PENDING and may be called again for it without doing anything
   twice. A wait calls it again at growing intervals. The lock is held during an attempt. */
typedef struct cdp__polling {
    cdp_store store;
    cdp_lock lock;
    uint32_t forks; /* see cdp__is_child() */
    bool inherited; /* a child of fork() may use it */
    cdp_status (*attempt)(struct cdp__polling *t, cdp_store_request *rq);
} cdp__polling;

#define CDP__POLLING_PAUSE_MAX_NS (10 * CDP__MS)

/* Implements a barrier with ADD and GET: the first attempt adds 1 to the counter and sets rq->priv,
   later attempts only read the counter. */
CDP__PRIVATE cdp_status cdp__polling_barrier(cdp__polling *t, cdp_store_request *rq) {
    cdp_store_request part = *rq;
    cdp_status status;
    int64_t sum = 0;
    part.results = NULL;
    part.number = 0;
    part.op = rq->priv ? CDP_STORE_GET : CDP_STORE_ADD;
    part.delta = 1;
    status = t->attempt(t, &part);
    if (status != CDP_OK) return status;
    if (!rq->priv) {
        rq->priv = t;
        sum = part.number;
    } else {
        const bool good =
            cdp__number_parse((const uint8_t *)part.results[0].data, part.results[0].bytes, &sum);
        cdp__store_request_drop_results(t->store.os, &part, 1);
        if (!good) return cdp__store_no_number(rq->keys[0]);
    }
    return sum >= rq->delta ? CDP_OK : CDP_PENDING;
}

CDP__PRIVATE cdp_status cdp__polling_attempt(cdp__polling *t, cdp_store_request *rq) {
    switch (rq->op) {
    case CDP_STORE_BARRIER: return cdp__polling_barrier(t, rq);
    case CDP_STORE_QUEUE_PUSH:
    case CDP_STORE_QUEUE_POP:
    case CDP_STORE_QUEUE_LEN: return cdp__store_has_no_queues(rq);
    default: return t->attempt(t, rq);
    }
}

CDP__PRIVATE cdp_status cdp__polling_start(void *self, cdp_store_request *rq) {
    cdp__polling *t = (cdp__polling *)self;
    rq->results = NULL;
    rq->priv = NULL;
    rq->number = 0;
    rq->status = cdp__store_request_validate(rq, CDP_STORE_MAX_VALUE_BYTES);
    if (rq->status == CDP_OK && !t->inherited && cdp__is_child(t->forks))
        rq->status = cdp__child_refuses(CDP_ERR_STATE, "a call of a store", "store");
    if (rq->status != CDP_OK) return rq->status;
    cdp_lock_acquire(&t->lock);
    rq->status = cdp__polling_attempt(t, rq);
    cdp_lock_release(&t->lock);
    return rq->status;
}

/* Sleeps until the next attempt. The first four pauses only yield the processor, because another
   user holds a lock for microseconds; then they double from 4 ms to 10 ms. */
CDP__PRIVATE void cdp__polling_pause(
    const cdp_os *os, uint32_t attempts, uint64_t now, uint64_t deadline_ns) {
    if (attempts < 4 && os->threads.yield)
        os->threads.yield(os->user);
    else
        cdp__sleep_until(os,
            cdp__min(deadline_ns,
                now
                    + cdp__min(
                        CDP__POLLING_PAUSE_MAX_NS, (CDP__MS / 4) << cdp__min(attempts, 20))));
}

CDP__PRIVATE cdp_status cdp__polling_wait(void *self, cdp_store_request *rq, uint64_t deadline_ns) {
    cdp__polling *t = (cdp__polling *)self;
    uint32_t attempts;
    for (attempts = 0; rq->status == CDP_PENDING; ++attempts) {
        /* Read the clock first, so that the last attempt begins after the deadline. */
        const uint64_t now = t->store.os->now_ns(t->store.os->user);
        cdp_lock_acquire(&t->lock);
        rq->status = cdp__polling_attempt(t, rq);
        cdp_lock_release(&t->lock);
        if (rq->status != CDP_PENDING || now >= deadline_ns) break;
        cdp__polling_pause(t->store.os, attempts, now, deadline_ns);
    }
    return rq->status;
}

CDP__PRIVATE void cdp__polling_cancel(void *self, cdp_store_request *rq) {
    (void)self;
    (void)rq; /* The store keeps no reference to a pending request. */
}

/* Returns false when out of memory. The caller has set t->store.destroy; other members of the
   object around *t are left alone. */
CDP__PRIVATE bool cdp__polling_open(cdp__polling *t, const cdp_os *os, uint32_t timeout_ms,
    cdp_status (*attempt)(cdp__polling *t, cdp_store_request *rq)) {
    t->store.self = t;
    t->store.os = os;
    t->store.timeout_ms = cdp__def(timeout_ms, CDP__STORE_TIMEOUT_MS);
    t->store.start = cdp__polling_start;
    t->store.wait = cdp__polling_wait;
    t->store.cancel = cdp__polling_cancel;
    t->attempt = attempt;
    t->forks = cdp__forks_watch();
    return cdp__lock_open(&t->lock, os, true);
}

typedef struct cdp__custom_store {
    cdp__polling polling;
    cdp_custom_store_desc desc;
} cdp__custom_store;

/* A WAIT reads no key again that was there before: they may be many, and the store far away. The
   first `number` of them were. */
CDP__PRIVATE cdp_status cdp__custom_read(cdp__custom_store *c, cdp_store_request *rq) {
    const bool waits = rq->op == CDP_STORE_WAIT;
    const uint64_t n = cdp__store_request_result_count(rq);
    cdp_status status = CDP_OK;
    uint64_t i;
    if (!cdp__store_request_make_results(c->desc.os, rq))
        return cdp__fail_nomem("the results of a request", n * sizeof(cdp_bytes));
    for (i = waits ? (uint64_t)rq->number : 0; i < rq->key_count && status == CDP_OK; ++i) {
        cdp_bytes value;
        status = c->desc.get(c->desc.user, rq->keys[i], &value);
        if (waits && status == CDP_OK) ++rq->number;
        if (status == CDP_OK && i < n && !cdp__store_request_put_result(c->desc.os, rq, i, value))
            status = cdp__fail_nomem("a value", value.bytes);
    }
    if (status != CDP_OK) cdp__store_request_drop_results(c->desc.os, rq, n);
    return status;
}

/* Computes the value that a request gives its i-th key, from the value that the key has now (`now`;
   NULL: absent). OK: *out is the new value (of no use to DELETE); PENDING: the value does not
   change. `text` has room for 24 bytes. The caller frees *memory when it no longer needs *out. */
CDP__PRIVATE cdp_status cdp__custom_new_value(cdp__custom_store *c, cdp_store_request *rq,
    uint64_t i, const cdp_bytes *now, cdp_bytes *out, char *text, uint8_t **memory) {
    int64_t sum = 0;
    if (rq->op == CDP_STORE_COMPARE_SET)
        *out = rq->values[1];
    else if (rq->op != CDP_STORE_ADD && rq->op != CDP_STORE_DELETE)
        *out = rq->values[i];
    if (rq->op == CDP_STORE_DELETE) return now ? CDP_OK : CDP_PENDING;
    if (rq->op == CDP_STORE_ADD) {
        if (now && !cdp__number_parse((const uint8_t *)now->data, now->bytes, &sum))
            return cdp__store_no_number(rq->keys[0]);
        rq->number = (int64_t)((uint64_t)sum + (uint64_t)rq->delta);
        out->data = text;
        out->bytes = cdp__number_text(rq->number, text);
    } else if (rq->op == CDP_STORE_APPEND && now) {
        if (now->bytes + out->bytes > CDP_STORE_MAX_VALUE_BYTES)
            return cdp__store_too_long(
                rq->keys[0], now->bytes + out->bytes, CDP_STORE_MAX_VALUE_BYTES);
        *memory = (uint8_t *)cdp__alloc(c->desc.os, now->bytes + out->bytes);
        if (!*memory) return cdp__fail_nomem("a value", now->bytes + out->bytes);
        cdp__record_copy(cdp__record_copy(*memory, *now), *out);
        out->data = *memory;
        out->bytes += now->bytes;
    } else if (rq->op == CDP_STORE_COMPARE_SET) {
        return cdp__store_expected(rq, now) ? CDP_OK : CDP_PENDING;
    }
    return CDP_OK;
}

/* Changes one key: reads it with `get` and replaces it with `swap`. PENDING: another user changed
   the key in between. */
CDP__PRIVATE cdp_status cdp__custom_change(
    cdp__custom_store *c, cdp_store_request *rq, uint64_t i) {
    char text[24];
    uint8_t *memory = NULL;
    cdp_bytes now, wish;
    const cdp_status found = c->desc.get(c->desc.user, rq->keys[i], &now);
    cdp_status status = found < 0 ? found : CDP_OK;
    memset(&wish, 0, sizeof wish);
    if (status == CDP_OK)
        status =
            cdp__custom_new_value(c, rq, i, found == CDP_OK ? &now : NULL, &wish, text, &memory);
    if (rq->op == CDP_STORE_COMPARE_SET && status >= 0) {
        cdp_bytes answer = rq->values[status == CDP_OK];
        if (status != CDP_OK && found == CDP_OK) answer = now;
        if (!cdp__store_answer(c->desc.os, rq, answer))
            status = cdp__fail_nomem("a value", answer.bytes);
    }
    if (status == CDP_PENDING) return CDP_OK; /* The value does not change. */
    if (status == CDP_OK)
        status = (c->desc.swap)(c->desc.user, rq->keys[i], found == CDP_OK ? &now : NULL,
            rq->op == CDP_STORE_DELETE ? NULL : &wish);
    if (status == CDP_OK && rq->op == CDP_STORE_DELETE) rq->number = 1;
    if (status != CDP_OK)
        cdp__store_request_drop_results(c->desc.os, rq, cdp__store_request_result_count(rq));
    cdp__free(c->desc.os, memory);
    return status;
}

CDP__PRIVATE cdp_status cdp__custom_attempt(cdp__polling *t, cdp_store_request *rq) {
    cdp__custom_store *c = (cdp__custom_store *)t;
    cdp_status status = CDP_OK;
    switch (rq->op) {
    case CDP_STORE_GET:
    case CDP_STORE_WAIT:
    case CDP_STORE_MULTI_GET: return cdp__custom_read(c, rq);
    case CDP_STORE_CHECK:
        status = cdp__custom_read(c, rq);
        rq->number = status == CDP_OK;
        return status == CDP_PENDING ? CDP_OK : status;
    case CDP_STORE_NUM_KEYS:
        if (!c->desc.num_keys)
            return cdp__fail(CDP_ERR_UNSUPPORTED,
                "this custom store cannot count its keys (cdp_custom_store_desc.num_keys is NULL)");
        return c->desc.num_keys(c->desc.user, &rq->number);
    case CDP_STORE_LIST_KEYS:
        return cdp__fail(CDP_ERR_UNSUPPORTED, "a custom store cannot list its keys");
    case CDP_STORE_MULTI_SET: /* `number` keys are set; a later attempt sets the others */
        while ((uint64_t)rq->number < rq->key_count && status == CDP_OK) {
            status = cdp__custom_change(c, rq, (uint64_t)rq->number);
            rq->number += status == CDP_OK;
        }
        return status;
    default: return cdp__custom_change(c, rq, 0);
    }
}

CDP__PRIVATE void cdp__custom_destroy(void *self) {
    cdp__custom_store *c = (cdp__custom_store *)self;
    if (cdp__is_child(c->polling.forks)) return;
    if (c->desc.destroy) c->desc.destroy(c->desc.user);
    cdp__lock_close(&c->polling.lock);
    cdp__free(c->desc.os, c);
}

#ifndef CDP_NO_CUSTOM_STORE

CDP_API cdp_status cdp_custom_store_create(const cdp_custom_store_desc *desc, cdp_store **out) {
    cdp__custom_store *c;
    const cdp_os *os = desc && desc->os ? desc->os : cdp_os_default();
    if (!out) return cdp__missing("cdp_custom_store_create", "out");
    *out = NULL;
    if (!desc) return cdp__missing("cdp_custom_store_create", "desc");
    if (!desc->get) return cdp__missing("cdp_custom_store_create", "desc.get");
    if (!desc->swap) return cdp__missing("cdp_custom_store_create", "desc.swap");
    if (cdp__os_whole(desc->os, "cdp_custom_store_create") != CDP_OK) return CDP_ERR_INVALID;
    c = (cdp__custom_store *)cdp__alloc_zero(os, sizeof *c);
    if (!c) return cdp__fail_nomem("a custom store", sizeof *c);
    c->desc = *desc;
    c->desc.os = os;
    cdp__store_made(&c->polling.store, cdp__custom_destroy);
    if (!cdp__polling_open(&c->polling, os, desc->timeout_ms, cdp__custom_attempt)) {
        cdp__free(os, c); /* Without calling desc->destroy: the caller still owns `user`. */
        return cdp__fail_nomem("a lock", sizeof(cdp_lock));
    }
    *out = &c->polling.store;
    return CDP_OK;
}

#endif /* CDP_NO_CUSTOM_STORE */

#endif /* CDP_SRC_STORE_CUSTOM_H */
