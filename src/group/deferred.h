/* group/deferred.h - runs works that are not operations

   Knows: the pool of works of a group, the list of waiting works. Promises: a work stays a plain
   value; nothing is allocated after the pool. */
#ifndef CDP_SRC_GROUP_DEFERRED_H
#define CDP_SRC_GROUP_DEFERRED_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/error_api.h"
#include "../message/transport_api.h"
#include "group_api.h"
#include "collectives_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "../message/deferred.h"
#include "../message/stream.h"
#include "state.h"
#include "../failure/waits.h"
#include "../failure/spread.h"
#include "running.h"

/* The number of such a work is the index of its pool entry and the entry's use count, so a work
   stays a plain value and needs no allocation. Waiting works are in one list per world, which
   any thread that makes progress polls. */

/* True while this thread runs a function given to cdp_work_then(). Such a function must not
   wait, because the work that it waits for may need the same thread. */
CDP__PRIVATE bool *cdp__inside(void) {
    static CDP__THREAD_LOCAL bool inside;
    return &inside;
}

CDP__PRIVATE cdp_status cdp__must_not_wait(void) {
    return *cdp__inside() ? cdp__fail(CDP_ERR_STATE,
               "a function given to cdp_work_then() must not wait; start an operation and return, "
               "or chain another function")
                          : CDP_OK;
}

/* Takes the pool entry that was free longest. Lock held. */
CDP__PRIVATE cdp_status cdp__deferred_open(
    cdp_group *g, cdp__deferred_kind kind, cdp_work *out, cdp__deferred **entry) {
    const uint32_t room = g->desc.max_pending;
    cdp__deferred *s;
    uint32_t i;
    if (!g->deferred.entries)
        g->deferred.entries = (cdp__deferred *)cdp__alloc_zero(g->os, room * sizeof *s);
    if (!g->deferred.entries) return cdp__fail_nomem("the pool of pending works", room * sizeof *s);
    for (i = 0; i < room && g->deferred.entries[(g->deferred.at + i) % room].kind; ++i) {
    }
    if (i == room)
        return cdp__fail(CDP_ERR_STATE,
            "all %u places for works that are no operations are taken; wait for some of them, or "
            "set max_pending in the desc of the group",
            room);
    g->deferred.at = (g->deferred.at + i) % room;
    s = &g->deferred.entries[g->deferred.at];
    s->kind = kind;
    s->owner = g;
    s->next = NULL;
    s->poll = NULL;
    s->of = NULL;
    s->deadline_ns = CDP__NEVER;
    s->wait_ns = 0;
    s->reported_ns = 0;
    s->set = 0;
    memset(&s->after, 0, sizeof s->after);
    out->group = g;
    out->seq = CDP__DEFERRED_BIT | s->use << 16 | g->deferred.at;
    g->deferred.at = (g->deferred.at + 1) % room;
    *entry = s;
    return CDP_OK;
}

CDP__PRIVATE void cdp__deferred_enlist(cdp__deferred *s) {
    cdp__deferred **at = &s->owner->w->pending;
    while (*at)
        at = &(*at)->next;
    *at = s;
}

CDP__PRIVATE CDP__ONE_COPY void cdp__deferred_unlist(cdp__deferred *s) {
    cdp__deferred **at = &s->owner->w->pending;
    while (*at && *at != s)
        at = &(*at)->next;
    if (*at) *at = s->next;
}

/* The work no longer waits for other ranks. */
CDP__PRIVATE void cdp__deferred_end_wait(cdp__deferred *s) {
    cdp__deferred_unlist(s);
    if (s->reported_ns) cdp__wait_ended(s->of, s->set, 0, 0);
    s->reported_ns = 0;
}

/* The work has ended, completed or cancelled: frees its entry. */
CDP__PRIVATE void cdp__deferred_close(cdp__deferred *s, bool cancelled) {
    s->cancelled = s->cancelled << 1 | (cancelled ? 1u : 0u);
    s->kind = CDP__DEFERRED_FREE;
    ++s->use;
}

/* Wakes all threads that may wait for what has just changed. */
CDP__PRIVATE void cdp__world_wake(cdp__world *m) {
    if (m->cond) m->os->threads.cond_broadcast(m->os->user, m->cond);
    if (m->sleeping) m->transport.wake(m->transport.self);
}

/* Calls the function of a work that ended with status `st`, without the lock. If the function
   returns an error, the group fails. */
CDP__PRIVATE void cdp__deferred_call(cdp__deferred *s, cdp_status st) {
    cdp_group *g = s->owner;
    cdp__world *m = g->w;
    /* true if this thread runs a callback of another world, which has polled this one */
    const bool within = *cdp__inside();
    const uint64_t until = m->poll_until_ns; /* of this thread's poll, not of others meanwhile */
    cdp_status answer;
    cdp__deferred_unlist(s);
    m->calling = g;
    m->poll_until_ns = 0;
    cdp_lock_release(&m->lock);
    *cdp__inside() = true;
    answer = s->func(s->user, st);
    *cdp__inside() = within;
    cdp_lock_acquire(&m->lock);
    m->poll_until_ns = until;
    m->calling = NULL;
    if (st == CDP_OK && answer < CDP_OK) {
        const bool first = g->health == CDP__HEALTHY;
        cdp_error e = *cdp_last_error();
        if (e.status != answer)
            cdp__error(&e, answer, -1, "a function given to cdp_work_then() returned %s",
                cdp_status_name(answer));
        if (first) cdp__group_fail(g, &e, false);
    } else if (g->health != CDP__FAILED || st == CDP_OK) {
        cdp__deferred_close(s, st != CDP_OK);
    }
    cdp__world_wake(m);
}

/* Sets this thread's last error to the reason why a work failed. */
CDP__PRIVATE cdp_status cdp__work_explain(const cdp_group *g, cdp_status st) {
    if (g->health == CDP__FAILED && g->failure.error.status == st)
        *cdp__error_slot() = g->failure.error;
    else
        (void)cdp__fail(st, "this work was cancelled on this rank");
    return st;
}

/* Polls waiting works in the order of the calls. Functions of the program run one at a time. */
CDP__PRIVATE cdp__advance cdp__deferred_poll(cdp__world *m) {
    const uint64_t now = m->os->now_ns(m->os->user);
    cdp__deferred *s;
    ++m->polls;
    for (s = m->pending; s; s = s->next) {
        cdp_status st;
        if (s->poll && s->poll(s, now)) return CDP__MOVED; /* the list may have changed */
        st = s->kind == CDP__DEFERRED_THEN && !m->calling
            ? cdp__work_status(s->after.group, s->after.seq)
            : CDP_PENDING;
        if (st == CDP_PENDING) continue;
        if (st != CDP_OK) (void)cdp__work_explain(s->after.group, st);
        cdp__deferred_call(s, st);
        return CDP__MOVED;
    }
    return CDP__IDLE;
}

CDP__PRIVATE uint64_t cdp__deferred_deadline(const cdp__world *m) {
    const cdp__deferred *s;
    uint64_t at = CDP__NEVER;
    for (s = m->pending; s; s = s->next) {
        /* a late receive goes on until its group has settled the cause */
        if (!s->set || !cdp__group_settling(s->of)) at = cdp__min(at, s->deadline_ns);
        if (s->poll && s->wait_ns) at = cdp__min(at, s->wait_ns);
    }
    return at;
}

/* The group is being destroyed: calls its waiting functions a last time with an error, and fails
   operations of other groups that were to start after its works. */
CDP__PRIVATE void cdp__deferred_drop(cdp_group *g) {
    cdp__world *m = g->w;
    cdp__deferred *s;
    cdp_group *x;
    uint32_t i;
    for (s = m->pending; s; s = s ? s->next : m->pending) {
        if (s->owner != g && s->of != g) continue;
        if (s->kind == CDP__DEFERRED_THEN)
            cdp__deferred_call(
                s, cdp__fail(CDP_ERR_STATE, "the group was destroyed before this work was done"));
        else
            cdp__deferred_end_wait(s);
        s = NULL;
    }
    for (x = m->follows ? m->groups : NULL; x; x = x->next)
        for (i = 0; i < x->queue.used; ++i) {
            cdp_work *after = &x->queue.ops[(x->queue.at + i) % x->queue.room].after;
            if (!after->group || cdp__group_top(after->group) != g) continue;
            if (x != g && x->parent != g && cdp__work_status(after->group, after->seq) != CDP_OK) {
                cdp_error e;
                cdp__error(&e, CDP_ERR_STATE, -1,
                    "the group of the work that this one was to follow was destroyed");
                cdp__group_fail(x, &e, false);
            }
            after->group = NULL;
        }
}

#endif /* CDP_SRC_GROUP_DEFERRED_H */
