/* group/queue.h - operations that wait for their turn

   Knows: the queue of a group. Promises: an operation is in the queue completely, or not at all. */
#ifndef CDP_SRC_GROUP_QUEUE_H
#define CDP_SRC_GROUP_QUEUE_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "group_api.h"
#include "collectives_api.h"
#include "backend_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../collective/kinds.h"
#include "../base/text.h"
#include "../base/hash.h"
#include "../message/stream.h"
#include "state.h"
#include "running.h"
#include "progress.h"
#include "group_calls.h"
#include "device.h"
#include "requests.h"

CDP__PRIVATE bool cdp__queue_grow(cdp_group *g) {
    const uint32_t room = g->queue.room * 2;
    cdp__op *q = (cdp__op *)cdp__alloc_zero(g->os, room * sizeof *q);
    uint32_t i;
    if (!q) return false;
    /* the queue is full: copy all entries */
    for (i = 0; i < g->queue.used; ++i)
        q[i] = g->queue.ops[(g->queue.at + i) % g->queue.room];
    cdp__free(g->os, g->queue.ops);
    g->queue.ops = q;
    g->queue.room = room;
    g->queue.at = 0;
    return true;
}

/* Reads the caller's counts: stores where each part begins, and a hash of all counts, which
   ranks compare. */
CDP__PRIVATE bool cdp__op_parts(cdp_group *g, cdp__op *op) {
    const uint32_t n = g->desc.world_size;
    const cdp_request *rq = &op->rq;
    uint32_t i;
    op->parts = 0;
    if (!rq->in_counts && !rq->out_counts) return true;
    /* allocated once for all entries of the queue, so that later operations allocate nothing */
    for (i = 0; !op->offs && i < g->queue.room; ++i)
        if (!g->queue.ops[i].offs)
            g->queue.ops[i].offs =
                (uint64_t *)cdp__alloc_zero(g->os, 2 * (n + 1ull) * sizeof *op->offs);
    if (!op->offs) return false;
    for (i = 0; i < n; ++i) {
        if (rq->in_counts) op->offs[i + 1] = op->offs[i] + rq->in_counts[i];
        if (rq->out_counts) op->offs[n + 2 + i] = op->offs[n + 1 + i] + rq->out_counts[i];
    }
    op->parts = 1;
    if (!cdp__kind_exchanges(rq->kind)) {
        const uint64_t *offs = op->offs + (rq->in_counts ? 0 : n + 1);
        op->parts = cdp__hash(CDP__HASH_START, offs, (n + 1) * sizeof *offs) | 2;
    }
    return true;
}

/* Optional properties of an operation. */
typedef struct cdp__with {
    cdp_work after;
    void (*done)(void *user, uint64_t start_ns, uint64_t end_ns);
    void *user;
    bool device;
    uint32_t tag; /* of cdp__op */
} cdp__with;

/* Polls a few times in the caller's thread, so that the first bytes are sent before its call
   returns; where that thread is to poll with budgets later, only as long as one step takes. Lock
   held. */
CDP__PRIVATE void cdp__first_moves(cdp_group *g) {
    const uint64_t before = g->w->poll_until_ns;
    uint32_t i;
    if (g->desc.no_thread) g->w->poll_until_ns = 1; /* over after one step */
    g->w->fast_poll = true;                         /* no deadline has passed yet */
    for (i = 0; i < CDP__FIRST_MOVES && cdp__group_poll(g) == CDP__MOVED; ++i) {
    }
    g->w->fast_poll = false;
    g->w->poll_until_ns = before;
    /* already complete: no thread is needed */
    if (!g->queue.used && !g->messages.active && g->health == CDP__HEALTHY
        && !cdp__group_settling(g) && g->w->active == g) {
        g->w->active = g->next_active;
        g->active = false;
    }
}

/* Appends an operation to the queue. cdp__first_moves() is next. Lock held. */
CDP__PRIVATE cdp_status cdp__enqueue(
    cdp_group *g, const cdp_request *rq, const cdp__with *with, cdp_work *out) {
    cdp_status st = cdp__group_report(g);
    cdp__op *op;
    if (st != CDP_OK) return st;
    if (g->queue.used == g->queue.room && !cdp__queue_grow(g))
        return cdp__fail_nomem("the queue of operations", 2 * g->queue.room * sizeof *op);
    op = &g->queue.ops[(g->queue.at + g->queue.used) % g->queue.room];
    op->rq = *rq;
    if (!cdp__op_parts(g, op))
        return cdp__fail_nomem("uneven parts", 2 * g->desc.world_size * sizeof *op->offs);
    ++g->queue.used;
    op->seq = ++g->queue.issued;
    op->after = with->after;
    if (with->after.group) g->w->follows = true;
    op->start_ns = g->os->now_ns(g->os->user);
    op->deadline_ns =
        rq->timeout_ms == CDP_NO_TIMEOUT ? CDP__NEVER : op->start_ns + rq->timeout_ms * CDP__MS;
    if (g->queue.used > 1 || with->after.group) op->start_ns = 0; /* set when it begins */
    op->done = with->done;
    op->user = with->user;
    op->device = with->device;
    op->tag = with->tag;
    out->group = g;
    out->seq = op->seq;
    g->timers.soonest_ns = cdp__min(g->timers.soonest_ns, op->deadline_ns);
    cdp__group_activate(g);
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__start(
    cdp_group *g, const cdp_request *request, const cdp__with *with, cdp_work *out) {
    cdp_request rq;
    bool device;
    cdp_status st = cdp__alive_for(g, request ? request->kind : CDP_COLL_NONE);
    if (st != CDP_OK) return st;
    if (!out) return cdp__missing("cdp_start", "out");
    if (!request) return cdp__missing("cdp_start", "request");
    out->group = NULL;
    out->seq = 0;
    rq = *request;
    st = cdp__request_check(g, &rq, &device);
    if (st != CDP_OK) return st;
    if (device) {
        const uint64_t now = g->os->now_ns(g->os->user);
        if (with->done)
            with->done(with->user, now, now); /* the device's duration is not known here */
        return cdp__device_start(g, &rq, 1, out);
    }
    cdp__enter(g);
    st = cdp__enqueue(g, &rq, with, out);
    if (st == CDP_OK) cdp__first_moves(g);
    cdp__leave(g);
    return st;
}

/* Work was started without waiting: makes sure that some thread makes progress for it. */
CDP__PRIVATE void cdp__hand_over(cdp_group *g) {
    cdp__world *m = g->w;
    if (!m->cond) return;
    cdp__enter(g);
    if (cdp__world_busy(m)) {
        /* the sleeping thread does not know of this work */
        if (m->sleeping)
            m->transport.wake(m->transport.self);
        else if (!m->callers)
            m->os->threads.cond_broadcast(m->os->user, m->park);
    }
    cdp__leave(g);
}

CDP_API cdp_status cdp_start(cdp_group *g, const cdp_request *request, cdp_work *out) {
    const cdp__with with = {{NULL, 0}, NULL, NULL, false, 0};
    const cdp_status st = cdp__start(g, request, &with, out);
    if (st == CDP_OK) cdp__hand_over(g);
    return st;
}

CDP__PRIVATE cdp_status cdp__device_start_all(
    cdp_group *g, const cdp_request *requests, uint32_t n, uint32_t devices, cdp_work *out) {
    cdp_request *own;
    cdp_status st = CDP_OK;
    uint32_t i;
    bool device;
    if (devices != n)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_start_all: %u of %u requests are in device memory; start those and the others "
            "apart",
            devices, n);
    own = (cdp_request *)cdp__alloc(g->os, n * sizeof *own);
    if (!own) return cdp__fail_nomem("a list of requests", n * sizeof *own);
    for (i = 0; i < n && st == CDP_OK; ++i) {
        own[i] = requests[i];
        st = cdp__request_check(g, &own[i], &device);
    }
    if (st == CDP_OK) st = cdp__device_start(g, own, n, out);
    cdp__free(g->os, own);
    return st;
}

#ifndef CDP_NO_BACKEND
CDP_API cdp_status cdp_group_compare(
    cdp_group *g, const cdp_request *requests, uint32_t n, bool wait) {
    const cdp__with with = {{NULL, 0}, NULL, NULL, true, 0};
    cdp_work w = {NULL, 0};
    cdp_status st = cdp__alive(g, "cdp_group_compare");
    uint32_t i;
    if (st == CDP_OK && !requests)
        st = cdp__fail(CDP_ERR_INVALID, "cdp_group_compare needs requests");
    for (i = 0; i < n && st == CDP_OK; ++i) {
        cdp_request rq = requests[i];
        if (!rq.timeout_ms) rq.timeout_ms = g->desc.timeout_ms;
        cdp__enter(g);
        st = cdp__enqueue(g, &rq, &with, &w);
        if (st == CDP_OK) cdp__first_moves(g);
        /* bounds how many calls are queued before they are compared */
        wait = wait || g->queue.used > 256;
        cdp__leave(g);
    }
    if (st == CDP_OK) cdp__hand_over(g);
    return st == CDP_OK && wait ? cdp_work_wait(w) : st;
}
#endif /* CDP_NO_BACKEND */

CDP_API cdp_status cdp_start_all(
    cdp_group *g, const cdp_request *requests, uint32_t n, cdp_work *out) {
    const cdp__with with = {{NULL, 0}, NULL, NULL, false, 0};
    uint32_t i, devices = 0;
    bool device;
    cdp_status st = cdp__alive(g, "cdp_start_all");
    if (st != CDP_OK) return st;
    if (!out) return cdp__missing("cdp_start_all", "out");
    if (!requests) return cdp__missing("cdp_start_all", "requests");
    if (!n) return cdp__missing("cdp_start_all", "n");
    out->group = NULL;
    out->seq = 0;
    for (i = 0; i < n && st == CDP_OK; ++i) {
        cdp_request rq = requests[i];
        st = cdp__request_check(g, &rq, &device);
        devices += device ? 1 : 0;
    }
    if (st == CDP_OK && devices) return cdp__device_start_all(g, requests, n, devices, out);
    for (i = 0; i < n && st == CDP_OK; ++i)
        st = cdp__start(g, &requests[i], &with, out);
    if (st == CDP_OK)
        cdp__hand_over(g);
    else if (i > 1)
        cdp_group_fail(g); /* out of memory after a part was started */
    return st;
}

#endif /* CDP_SRC_GROUP_QUEUE_H */
