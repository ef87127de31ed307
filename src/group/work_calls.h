/* group/work_calls.h - waiting, testing, chaining, cancelling

   Knows: works of all kinds. Promises: a wait ends by the deadline of its work. */
#ifndef CDP_SRC_GROUP_WORK_CALLS_H
#define CDP_SRC_GROUP_WORK_CALLS_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/error_api.h"
#include "../message/transport_api.h"
#include "group_api.h"
#include "collectives_api.h"
#include "works_api.h"
#include "backend_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "../message/deferred.h"
#include "../message/stream.h"
#include "../message/receive.h"
#include "state.h"
#include "../failure/spread.h"
#include "flows.h"
#include "running.h"
#include "deferred.h"
#include "progress.h"
#include "group_calls.h"
#include "device.h"
#include "requests.h"
#include "queue.h"

/* Lock held. */
CDP__PRIVATE cdp_status cdp__work_state(cdp_work w) {
    const cdp_status st = cdp__work_status(w.group, w.seq);
    if (st != CDP_OK && !cdp__work_exists(w.group, w.seq))
        return cdp__fail(CDP_ERR_INVALID,
            "work #%llu was not started in this group; pass what cdp_start() has filled in",
            (unsigned long long)w.seq);
    return st < CDP_OK ? cdp__work_explain(w.group, st) : st;
}

CDP__PRIVATE cdp_status cdp__work_wait_locked(cdp_work w, uint64_t deadline_ns, bool budget) {
    cdp_status st;
    ++w.group->queue.waiters;
    cdp__progress_until(w.group, w.seq, deadline_ns, budget);
    st = cdp__work_state(w);
    /* last access: a thread that destroys the group waits until this is 0 */
    --w.group->queue.waiters;
    return st;
}

CDP__PRIVATE cdp_status cdp__work_wait_until(cdp_work w, uint64_t deadline_ns) {
    cdp_group *g = w.group;
    cdp__world *m;
    cdp_status st;
    if (!g || !w.seq) return CDP_OK;
    st = cdp__alive(g, "waiting for a work");
    if (st != CDP_OK) return st;
    if (cdp__work_on_device(w)) return cdp__device_wait(w, deadline_ns);
    m = g->w;
    cdp__enter(g);
    st = cdp__work_state(w);
    if (st == CDP_PENDING && (st = cdp__must_not_wait()) == CDP_OK)
        st = cdp__work_wait_locked(w, deadline_ns, false);
    cdp_lock_release(&m->lock);
    return st;
}

CDP_API CDP__ONE_COPY cdp_status cdp_work_wait(cdp_work w) {
    const cdp_status st = cdp__work_wait_until(w, CDP__NEVER);
    return st == CDP_PENDING ? cdp__fail(
               CDP_ERR_INTERNAL, "the wait ended, but its work has no result; this is a bug of cdp")
                             : st;
}

CDP_API cdp_status cdp_work_wait_for(cdp_work w, uint32_t timeout_ms) {
    cdp_status st = CDP_OK;
    if (!w.group || !w.seq) return CDP_OK;
    st = cdp__alive(w.group, "cdp_work_wait_for");
    if (st != CDP_OK) return st;
    return cdp__work_wait_until(w, cdp__deadline(w.group->os, timeout_ms));
}

/* As cdp_work_wait_for(), of an operation on host memory. As long as the operation runs, `arrived`
   is called with what cdp__op_arrived() returns, so that data can be read while it is in a cache.
   It is called with the lock of the group held, and must not call functions of a group. */
CDP__PRIVATE cdp_status cdp__work_wait_arriving(
    cdp_work w, uint32_t timeout_ms, void (*arrived)(void *user, uint64_t bytes), void *user) {
    cdp_group *g = w.group;
    cdp__progress t;
    cdp_status st;
    cdp__enter(g);
    st = cdp__work_state(w);
    if (st == CDP_PENDING && (st = cdp__must_not_wait()) == CDP_OK) {
        ++g->queue.waiters;
        cdp__progress_begin(&t, g, w.seq, cdp__deadline(g->os, timeout_ms), false);
        while (cdp__progress_next(&t)) {
            t.polled = cdp__world_poll(g->w);
            arrived(user, cdp__op_arrived(g, w.seq));
        }
        st = cdp__work_state(w);
        --g->queue.waiters;
    }
    cdp_lock_release(&g->w->lock);
    return st;
}

#ifndef CDP_NO_FRAMES
CDP_API cdp_status cdp_work_poll(cdp_work w, uint32_t budget_us) {
    cdp_group *g = w.group;
    cdp__world *m;
    uint64_t until;
    cdp_status st;
    if (!g || !w.seq) return CDP_OK;
    st = cdp__alive(g, "cdp_work_poll");
    if (st != CDP_OK) return st;
    m = g->w;
    until = m->os->now_ns(m->os->user) + budget_us * 1000ull;
    if (cdp__work_on_device(w)) return cdp__device_wait(w, until);
    cdp__enter(g);
    st = cdp__work_state(w);
    if (st == CDP_PENDING && !*cdp__inside()) {
        cdp__world_poll_transport(m, until);
        st = cdp__work_wait_locked(w, until, true);
    }
    cdp_lock_release(&m->lock);
    return st;
}

#endif

CDP_API cdp_status cdp_work_test(cdp_work w) {
    cdp_group *g = w.group;
    cdp_status st;
    if (!g || !w.seq) return CDP_OK;
    st = cdp__alive(g, "cdp_work_test");
    if (st != CDP_OK) return st;
    if (cdp__work_on_device(w)) return cdp__device_wait(w, 0);
    cdp__enter(g);
    if (!g->w->thread) { /* all that can move now */
        if (!g->w->sleeping) cdp__world_wait(g->w, NULL, 0);
        cdp__progress_until(g, CDP__ALL_WORK, 0, false);
    }
    st = cdp__work_state(w);
    cdp__leave(g);
    return st;
}

CDP_API cdp_status cdp_work_error(cdp_work w, cdp_error *out) {
    const cdp_error before = *cdp_last_error();
    cdp_status st = CDP_OK;
    if (!out) return cdp__missing("cdp_work_error", "out");
    if (w.group && w.seq) {
        st = cdp__alive(w.group, "cdp_work_error");
        if (st != CDP_OK) return st;
        cdp__enter(w.group);
        st = cdp__work_state(w);
        cdp__leave(w.group);
    }
    if (st < CDP_OK)
        *out = *cdp_last_error();
    else
        cdp__error_clear(out, st);
    *cdp__error_slot() = before;
    return st;
}

#ifndef CDP_NO_CHAINS

CDP_API cdp_status cdp_work_then(
    cdp_work w, cdp_status (*func)(void *user, cdp_status status), void *user, cdp_work *next) {
    cdp_work none;
    cdp__deferred *s;
    cdp_status st;
    if (next) {
        next->group = NULL;
        next->seq = 0;
    }
    if (!w.group) return cdp__missing("cdp_work_then", "work.group");
    if (!w.seq) return cdp__missing("cdp_work_then", "work.seq");
    if (!func) return cdp__missing("cdp_work_then", "func");
    st = cdp__alive(w.group, "cdp_work_then");
    if (st != CDP_OK) return st;
    if (cdp__work_on_device(w)) return cdp__device_cannot("cdp_work_then");
    cdp__enter(w.group);
    if (cdp__work_state(w) == CDP_ERR_INVALID) {
        cdp__leave(w.group);
        return CDP_ERR_INVALID;
    }
    st = cdp__deferred_open(cdp__group_top(w.group), CDP__DEFERRED_THEN, next ? next : &none, &s);
    if (st == CDP_OK) {
        s->after = w;
        s->func = func;
        s->user = user;
        cdp__deferred_enlist(s);
    }
    cdp__leave(w.group);
    if (st == CDP_OK) cdp__hand_over(w.group);
    return st;
}

CDP_API cdp_status cdp_start_after(
    cdp_group *g, const cdp_request *request, cdp_work after, cdp_work *out) {
    cdp__with with;
    cdp_request rq;
    bool device;
    cdp_status st = cdp__alive(g, "cdp_start_after");
    if (st != CDP_OK) return st;
    if (!out) return cdp__missing("cdp_start_after", "out");
    if (!request) return cdp__missing("cdp_start_after", "request");
    if (after.group && after.seq) st = cdp__alive(after.group, "cdp_start_after");
    if (st != CDP_OK) return st;
    out->group = NULL;
    out->seq = 0;
    if (after.group && after.group->w != g->w)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_start_after: the work belongs to another world; wait for it instead");
    rq = *request;
    st = cdp__request_check(g, &rq, &device);
    if (st == CDP_OK && (device || cdp__work_on_device(after)))
        st = cdp__device_cannot("cdp_start_after");
    if (st != CDP_OK) return st;
    memset(&with, 0, sizeof with);
    if (after.seq) with.after = after;
    cdp__enter(g);
    if (after.group && after.seq) st = cdp__work_state(after);
    if (st != CDP_ERR_INVALID) st = cdp__enqueue(g, &rq, &with, out);
    if (st == CDP_OK) cdp__first_moves(g);
    cdp__leave(g);
    if (st == CDP_OK) cdp__hand_over(g);
    return st;
}

CDP__PRIVATE cdp_status cdp__deferred_cancel(cdp_group *g, uint64_t seq) {
    cdp__deferred *s = g->deferred.entries + (seq & 0xffff);
    const cdp__deferred *x = g->w->pending;
    while (x && x != s)
        x = x->next;
    if (s->kind == CDP__DEFERRED_BATCH)
        return cdp__fail(CDP_ERR_STATE,
            "cdp_work_cancel: a batch cannot be cancelled; abort the group, or start its messages "
            "one by one");
    if (s->kind == CDP__DEFERRED_CALL)
        return cdp__fail(CDP_ERR_STATE,
            "cdp_work_cancel: this work belongs to a remote call; cancel that with "
            "cdp_call_cancel()");
    if (!x && s->kind == CDP__DEFERRED_THEN)
        return cdp__fail(CDP_ERR_STATE, "cdp_work_cancel: the function is being called");
    if (!x) { /* it was turned into a receive from one rank */
        const cdp_status st = cdp__post_cancel(s->after.group, s->after.seq);
        if (st != CDP_OK) return st;
    }
    cdp__deferred_end_wait(s);
    cdp__deferred_close(s, true);
    return CDP_OK;
}

CDP_API cdp_status cdp_work_cancel(cdp_work w) {
    cdp_group *g = w.group;
    cdp_error why;
    cdp_status st;
    if (!g || !w.seq) return cdp__fail(CDP_ERR_INVALID, "cdp_work_cancel needs a work");
    st = cdp__alive(g, "cdp_work_cancel");
    if (st != CDP_OK) return st;
    if (cdp__work_on_device(w)) return cdp__device_cannot("cdp_work_cancel");
    cdp__enter(g);
    st = cdp__work_state(w);
    if (st == CDP_OK) {
        st = cdp__fail(CDP_ERR_STATE, "cdp_work_cancel: it is done already");
    } else if (st == CDP_PENDING && g->health != CDP__HEALTHY) {
        st = cdp__fail(CDP_ERR_STATE, "cdp_work_cancel: its group is failing; wait for it");
    } else if (st == CDP_PENDING) {
        if (w.seq & CDP__DEFERRED_BIT) {
            st = cdp__deferred_cancel(g, w.seq);
        } else if (w.seq & CDP__POST_BIT) {
            st = cdp__post_cancel(g, w.seq);
        } else {
            cdp__error(&why, CDP_ERR_ABORTED, g->w->rank,
                "operation #%llu was cancelled by rank %u", (unsigned long long)w.seq, g->w->rank);
            cdp__group_break(g, &why);
            st = CDP_OK;
        }
        cdp__world_wake(g->w);
    }
    cdp__leave(g);
    return st;
}

#endif /* CDP_NO_CHAINS */

#ifndef CDP_NO_BACKEND

#define CDP__WATCH_MS 500u

/* Polls a neighbour, for a backend whose work may wait for it. A neighbour that has left in good
   order is no failure. */
CDP__PRIVATE bool cdp__watch_poll(cdp__deferred *s, uint64_t now) {
    cdp_group *g = s->of;
    cdp__peer *peer = &g->peers[s->want.peer];
    const cdp__stream *stream = &g->streams[s->want.peer];
    cdp_error e;
    if (g->health != CDP__HEALTHY) {
        cdp__deferred_unlist(s);
        return true;
    }
    if (!peer->lost) {
        /* the poll right after the one that read */
        if (s->left) {
            s->left = 0;
            s->deadline_ns = CDP__NEVER;
            return false;
        }
        if (now < s->arrivals) {
            s->deadline_ns = s->arrivals;
            return false;
        }
        s->arrivals = now + CDP__POLL_PEERS_MS * CDP__MS;
        s->left = 1;
        if (cdp__port_pump(g->w, stream->peer, NULL) < 0) {
            peer->lost = true;
            s->deadline_ns = now + CDP__WATCH_MS * CDP__MS;
        }
        /* other ranks may have failed */
        if (g->channel != CDP__WORLD_CHANNEL && g->health == CDP__HEALTHY)
            (void)cdp__group_poll_peers(g);
        return true; /* another thread may wait for messages just stored */
    }
    if (now < s->deadline_ns) return false;
    s->deadline_ns = now + CDP__WATCH_MS * CDP__MS;
    if (stream->left || !g->backend || g->backend->wait(g->backend->self, 0, 0) == CDP_OK)
        return false;
    cdp__error(&e, CDP_ERR_PEER_LOST, stream->peer,
        "rank %u has died, or left, while operations in device memory wait for it", stream->peer);
    cdp__group_fail(g, &e, false);
    return true;
}

CDP_API cdp_status cdp_group_watch(cdp_group *g, uint32_t peer) {
    cdp_work none;
    cdp__deferred *s;
    cdp_status st = cdp__alive(g, "cdp_group_watch");
    if (st != CDP_OK) return st;
    if (peer >= g->desc.world_size || peer == g->desc.rank)
        return cdp__fail(
            CDP_ERR_INVALID, "cdp_group_watch: %u is no other rank of this group", peer);
    cdp__enter(g);
    st = cdp__deferred_open(g, CDP__DEFERRED_ANY, &none, &s);
    if (st == CDP_OK) {
        s->of = g;
        s->want.peer = peer;
        s->poll = cdp__watch_poll;
        s->arrivals = 0;
        s->left = 0;
        cdp__deferred_enlist(s);
    }
    cdp__leave(g);
    if (st == CDP_OK) cdp__hand_over(g);
    return st;
}

#endif /* CDP_NO_BACKEND */

#endif /* CDP_SRC_GROUP_WORK_CALLS_H */
