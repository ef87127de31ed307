/* failure/blame.h - which rank is to blame (pure)

   Knows: what failure-waits knows, and the groups that fail. Promises: no other section decides
   blame. One function takes every event and returns what to do; like failure-waits it has no
   clock, no input or output, no memory of its own. A blame is right if it names any end of a cut
   link, or any of several simultaneous victims, and nobody else. tests/sim/failure.c explores it
   exhaustively for small worlds. */
#ifndef CDP_SRC_FAILURE_BLAME_H
#define CDP_SRC_FAILURE_BLAME_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "records.h"
#include "chains.h"

CDP__PRIVATE uint32_t cdp__failure_publish(cdp__failure *f, const cdp__failure_event *v) {
    cdp__failure_domain *d = v->domain;
    d->state = CDP__FAILURE_REPORTING;
    d->due_ns = v->time_ns + cdp__failure_share_ns(&d->record, CDP__FAILURE_REPORT_MS);
    cdp__failure_keep_report(f, f->rank, &d->record, v->time_ns);
    cdp__failure_update(f);
    return CDP__FAILURE_PUBLISH;
}

/* Makes the record of another rank, or of another group of this rank, the cause of this failure. */
CDP__PRIVATE void cdp__failure_set_cause(cdp__failure_domain *d, const cdp__failure_record *r) {
    d->record = *r;
    d->record.domain = d->channel;
    if (d->record.hops < UINT8_MAX) ++d->record.hops;
}

/* All other ranks are gone: returns any will that names a rank. */
CDP__PRIVATE const cdp__failure_report *cdp__failure_any_report(const cdp__failure *f) {
    uint32_t i;
    for (i = 0; i < f->report_room; ++i)
        if (f->reports[i].used && f->reports[i].record.end.named >= 0) return &f->reports[i];
    return NULL;
}

/* How long a failure of some ranks may explain why other ranks leave. */
#define CDP__FAILURE_RECENT_MS 10000u

/* A rank is gone and sent no will. Returns the oldest recent will of any rank: that failure most
   likely made this rank leave, too. */
CDP__PRIVATE const cdp__failure_report *cdp__failure_recent_report(
    const cdp__failure *f, uint64_t now) {
    const cdp__failure_report *best = NULL;
    uint32_t i;
    for (i = 0; i < f->report_room; ++i) {
        const cdp__failure_report *w = &f->reports[i];
        if (w->used && w->since_ns + CDP__FAILURE_RECENT_MS * CDP__MS >= now
            && (!best || w->since_ns < best->since_ns))
            best = w;
    }
    return best;
}

/* Adopts the reason why `peer` left (-1: all others): its last will or, without one, a failure
   of this rank in another group, which most likely reached the peer, too. */
CDP__PRIVATE bool cdp__failure_inherit(
    const cdp__failure *f, cdp__failure_domain *d, int32_t peer) {
    const cdp__failure_report *w =
        peer < 0 ? cdp__failure_any_report(f) : cdp__failure_find_report(f, (uint32_t)peer);
    if (!w) w = cdp__failure_find_report(f, f->rank);
    if (w) cdp__failure_set_cause(d, &w->record);
    return w != NULL;
}

/* If all that is known is that a rank is gone, or rank 0 and one that did not start, adopts the
   last will that explains it most likely. */
CDP__PRIVATE void cdp__failure_inherit_any(const cdp__failure *f, const cdp__failure_event *v) {
    const cdp__failure_record *r = &v->domain->record;
    const bool vague = r->end.why == CDP__WHY_TEXT || r->end.why == CDP__WHY_FIRST;
    const cdp__failure_report *w = NULL;
    if (r->status == CDP_ERR_PEER_LOST && vague) w = cdp__failure_recent_report(f, v->time_ns);
    if (w) cdp__failure_set_cause(v->domain, &w->record);
}

/* While the failure settles, ranks that wait for this one receive the lost peer as the cause. */
CDP__PRIVATE void cdp__failure_add_edge(
    cdp__failure *f, const cdp__failure_event *v, const cdp__failure_record *r) {
    cdp__failure_event blocked;
    memset(&blocked, 0, sizeof blocked);
    blocked.time_ns = blocked.since_ns = v->time_ns;
    blocked.at = r->at;
    blocked.from = (uint32_t)r->peer;
    blocked.caller = true;
    cdp__failure_on_blocked(f, &blocked);
}

/* A failure outside any operation gets the position of an operation in which this rank already
   waits for that peer, if there is one: peers can then be asked about that operation. */
CDP__PRIVATE void cdp__failure_locate(const cdp__failure *f, cdp__failure_record *r) {
    uint32_t i;
    for (i = 0; i < f->edge_room; ++i)
        if (f->edges[i].used && f->edges[i].peer == (uint32_t)r->peer) r->at = f->edges[i].at;
}

CDP__PRIVATE CDP__COLD uint32_t cdp__failure_begin(cdp__failure *f, const cdp__failure_event *v) {
    cdp__failure_domain *d = v->domain;
    cdp__failure_record *r = &d->record;
    cdp__failure_edge *e = NULL;
    *r = *v->record;
    r->observer = (int32_t)f->rank;
    r->domain = d->channel;
    r->hops = r->corrections = 0;
    if (r->peer >= 0) r->end.named = r->peer;
    r->end.hops = 0;
    if (r->status == CDP_ERR_PEER_LOST && cdp__failure_inherit(f, d, r->peer))
        return cdp__failure_publish(f, v);
    if (r->status != CDP_ERR_PEER_LOST && r->status != CDP_ERR_TIMEOUT)
        return cdp__failure_publish(f, v);
    if (r->peer >= 0 && !r->at.seq) cdp__failure_locate(f, r);
    if (r->peer >= 0) cdp__failure_add_edge(f, v, r);
    d->state = CDP__FAILURE_SETTLING;
    d->asked = r->at;
    d->known = d->found = false;
    d->due_ns = v->time_ns + cdp__failure_share_ns(r, CDP__FAILURE_SETTLE_MS);
    if (r->status == CDP_ERR_TIMEOUT) e = cdp__failure_blocker(f, r->at.channel);
    if (e) cdp__failure_probe(f, e, f->world_size);
    cdp__failure_update(f);
    return 0;
}

/* True if the late data has arrived since the timeout, so this rank no longer waits for it. */
CDP__PRIVATE bool cdp__failure_late_arrived(const cdp__failure *f, const cdp__failure_domain *d) {
    uint32_t i;
    for (i = 0; i < f->edge_room; ++i)
        if (f->edges[i].used && cdp__position_same(&f->edges[i].at, &d->asked)) return false;
    return d->record.status == CDP_ERR_TIMEOUT && d->record.peer >= 0;
}

/* While a cause is being settled, a failure that needs no settling (an abort, a mismatch)
   replaces it. Another timeout or lost peer does not, unless what was late has arrived and only
   the lost peer keeps the operation from completing. */
CDP__PRIVATE uint32_t cdp__failure_interrupt(cdp__failure *f, const cdp__failure_event *v) {
    const cdp_status st = v->record->status;
    if (st == CDP_ERR_TIMEOUT) return 0;
    if (st == CDP_ERR_PEER_LOST && !cdp__failure_late_arrived(f, v->domain)) return 0;
    return cdp__failure_begin(f, v);
}

/* Called while a timeout settles. Keeps the end of the wait that lasted until the deadline,
   because the operation may go on to another wait; if no end was found for the first wait, the
   next one is probed. In the last eighth of the time nothing new is kept: it would be too late
   for other ranks to answer. */
CDP__PRIVATE void cdp__failure_keep_end(cdp__failure *f, const cdp__failure_event *v) {
    cdp__failure_domain *d = v->domain;
    cdp__failure_edge *e = cdp__failure_blocker(f, d->asked.channel);
    const uint64_t share = cdp__failure_share_ns(&d->record, CDP__FAILURE_SETTLE_MS);
    if (!e || (e->at.channel != d->asked.channel && e->set != d->asked.channel)) return;
    if (v->time_ns + share / 8 >= d->due_ns) return;
    if (!e->set && !cdp__position_same(&e->at, &d->asked)) {
        if (d->found) return;
        d->asked = e->at;
        cdp__failure_probe(f, e, f->world_size);
    }
    d->known = true;
    d->found = cdp__failure_answered(cdp__failure_pick(f, e));
    d->end = cdp__failure_follow(f, e);
}

/* Stores the end of the chain of waits that caused this timeout, if this rank waited for a rank. */
CDP__PRIVATE void cdp__failure_end_of(cdp__failure *f, cdp__failure_domain *d, cdp__endpoint *end) {
    cdp__failure_record *r = &d->record;
    cdp__failure_edge *e = cdp__failure_blocker(f, r->at.channel);
    const bool same = e && (e->set || cdp__position_same(&e->at, &d->asked));
    if (d->known) *end = d->end;
    if (!e || (d->known && !same)) return;
    if (r->peer >= 0 && d->known && !cdp__position_same(&r->at, &d->asked)) {
        /* the first wait ended; the operation now waits for another peer */
        r->peer = (int32_t)e->peer;
        r->at = d->asked;
        r->moved = r->expected = 0;
    }
    if (r->peer >= 0 && r->peer != (int32_t)e->peer) return; /* that edge is of another wait */
    *end = cdp__failure_follow(f, e);
    if (d->known && (cdp__endpoint_silent(&d->end) || d->end.why == CDP__WHY_AWAITED)
        && cdp__endpoint_silent(end))
        *end = d->end;
    if (r->peer < 0) r->peer = (int32_t)cdp__failure_pick(f, e)->peer;
}

/* Settling is over: this rank's own view becomes the group's error, unless a last will explains
   it. */
CDP__PRIVATE CDP__COLD uint32_t cdp__failure_conclude(
    cdp__failure *f, const cdp__failure_event *v) {
    cdp__failure_domain *d = v->domain;
    cdp__failure_record *r = &d->record;
    if (r->status == CDP_ERR_TIMEOUT) cdp__failure_keep_end(f, v);
    if (v->time_ns < d->due_ns && !v->sure) return 0;
    if (r->status == CDP_ERR_TIMEOUT) cdp__failure_end_of(f, d, &r->end);
    if (r->end.named == (int32_t)f->rank) r->end.named = r->peer;
    if (r->status == CDP_ERR_TIMEOUT && r->end.named < 0) r->end.why = CDP__WHY_TURN;
    if (r->end.named >= 0 && cdp__failure_find_report(f, (uint32_t)r->end.named))
        (void)cdp__failure_inherit(f, d, r->end.named);
    else
        cdp__failure_inherit_any(f, v);
    return cdp__failure_publish(f, v);
}

/* Rank v->from was still starting, and waited for another rank. If the blame is on v->from, it
   moves to that other rank; if that rank is not known, `end.why` says so. */
CDP__PRIVATE CDP__COLD uint32_t cdp__failure_starting(
    cdp__failure *f, const cdp__failure_event *v) {
    cdp__failure_record *r = &v->domain->record;
    cdp__failure_edge *e = NULL;
    cdp__endpoint end = r->end;
    if (r->status == CDP_ERR_TIMEOUT) e = cdp__failure_blocker(f, r->at.channel);
    if (e) e = cdp__failure_pick(f, e);
    if (e) end = cdp__failure_follow(f, e);
    if (!e && end.named == (int32_t)v->from && v->end.why == CDP__WHY_FIRST)
        r->end.why = CDP__WHY_FIRST;
    if (end.named != (int32_t)v->from || v->end.named < 0 || end.named == v->end.named
        || (e ? !cdp__endpoint_silent(&end) : r->status != CDP_ERR_PEER_LOST))
        return 0;
    end.named = v->end.named;
    end.why = CDP__WHY_AWAITED;
    if (e) {
        e->answer = e->serial;
        e->end = v->domain->end = end;
        cdp__failure_update(f);
    } else {
        r->end = end;
    }
    return 0;
}

/* Two ranks with different calls blame each other. A third rank compares both with its own call:
   if it equals that of the blamed rank, the observer is to blame. The blamed rank does not
   decide. */
CDP__PRIVATE void cdp__failure_arbitrate(
    const cdp__failure *f, cdp__failure_record *r, const cdp__fingerprint *own) {
    if (r->end.named != (int32_t)f->rank && r->end.why == CDP__WHY_CALLS
        && cdp__fingerprint_differs(own, &r->call) && cdp__fingerprint_same(own, &r->other))
        r->end.named = r->observer;
}

/* The record blames this rank, which itself waits for another rank: extends the chain. The record
   of a rank that could not start is the end of no chain. Each correction is counted, so that
   records cannot correct each other for ever. */
CDP__PRIVATE bool cdp__failure_correct(
    const cdp__failure *f, cdp__failure_record *r, const cdp__failure_event *v) {
    cdp__failure_edge *e = cdp__failure_blocker(f, r->end.last.at.channel);
    cdp__endpoint end;
    if (r->status != CDP_ERR_TIMEOUT || r->end.named != (int32_t)f->rank || v->passed || !e
        || r->end.last.waiter < 0 || r->corrections >= f->world_size || r->corrections == UINT8_MAX)
        return false;
    end = cdp__failure_follow(f, e);
    if (end.named == (int32_t)f->rank || end.why == CDP__WHY_CIRCLE) return false;
    /* the same cut link, seen from its other end: nothing to correct */
    if (end.why == CDP__WHY_SENT && r->end.why == end.why && end.named == r->end.last.waiter)
        return false;
    r->end = end;
    ++r->corrections;
    return true;
}

CDP__PRIVATE CDP__COLD uint32_t cdp__failure_adopt(cdp__failure *f, const cdp__failure_event *v) {
    cdp__failure_record *r = &v->domain->record;
    cdp__failure_set_cause(v->domain, v->record);
    /* the first rank that saw a loss may not have received the reason */
    cdp__failure_inherit_any(f, v);
    if (r->observer != (int32_t)f->rank) cdp__failure_arbitrate(f, r, &v->own);
    (void)cdp__failure_correct(f, r, v);
    return cdp__failure_publish(f, v);
}

/* True if this rank yields to a record that blames it: it did before, or it was cut off and can be
   reached again. Then it has only its own word for it that another rank does not answer, and
   several ranks say so of this one. (Not where a build leaves out what explains failures.) */
CDP__PRIVATE bool cdp__failure_yields(const cdp__failure *f, const cdp__failure_domain *d) {
#ifdef CDP_NO_RECORDER
    (void)f;
    (void)d;
    return false;
#else
    const cdp__endpoint *own = &d->record.end;
    uint32_t i, votes = 0;
    if (own->named == (int32_t)f->rank) return true;
    if (!cdp__endpoint_silent(own) && own->why != CDP__WHY_AWAITED) return false;
    for (i = 1; i < f->report_room; ++i) {
        const cdp__failure_report *w = &f->reports[i];
        votes += w->used && w->record.end.named == (int32_t)f->rank
            && w->record.observer == (int32_t)w->rank;
    }
    return votes > 1;
#endif
}

/* Of two records of one timeout, the one with more corrections is right. A record that blames
   this rank, although another rank keeps it waiting, is answered with one more correction. */
CDP__PRIVATE CDP__COLD uint32_t cdp__failure_revise(cdp__failure *f, const cdp__failure_event *v) {
    cdp__failure_domain *d = v->domain;
    cdp__failure_record r = *v->record;
    const bool newer = r.corrections > d->record.corrections, yields = cdp__failure_yields(f, d);
    if (d->record.status != CDP_ERR_TIMEOUT || r.status != CDP_ERR_TIMEOUT) return 0;
    if (!newer && (r.end.named != (int32_t)f->rank || d->record.end.named == (int32_t)f->rank))
        return 0;
    if (!newer) {
        if (d->record.corrections >= f->world_size || d->record.corrections == UINT8_MAX) return 0;
        r.corrections = (uint8_t)(cdp__max(d->record.corrections, r.corrections) + 1);
        if (yields)
            cdp__failure_set_cause(d, &r);
        else
            d->record.corrections = r.corrections;
    } else {
        if (!yields) (void)cdp__failure_correct(f, &r, v);
        cdp__failure_set_cause(d, &r);
    }
    return cdp__failure_publish(f, v);
}

CDP__PRIVATE uint32_t cdp__failure_finish(cdp__failure *f, const cdp__failure_event *v) {
    (void)f;
    if (v->type == CDP__FAILURE_TIMER && v->time_ns < v->domain->due_ns) return 0;
    v->domain->state = CDP__FAILURE_DONE;
    v->domain->due_ns = CDP__NEVER;
    return CDP__FAILURE_FINISHED;
}

CDP__PRIVATE uint32_t cdp__failure_resume(cdp__failure *f, const cdp__failure_event *v) {
    cdp__failure_domain *d = v->domain;
    (void)f;
    if (d->record.status != CDP_ERR_TIMEOUT) return 0;
    d->state = CDP__FAILURE_HEALTHY;
    d->due_ns = CDP__NEVER;
    return 0;
}

CDP__PRIVATE uint32_t cdp__failure_ignore(cdp__failure *f, const cdp__failure_event *v) {
    (void)f;
    (void)v;
    return 0;
}

typedef uint32_t (*cdp__failure_rule)(cdp__failure *f, const cdp__failure_event *v);

CDP__PRIVATE uint32_t cdp__failure_step_domain(cdp__failure *f, const cdp__failure_event *v) {
    static const cdp__failure_rule rules[CDP__FAILURE_STATES][CDP__FAILURE_GROUP_EVENTS] = {
        {cdp__failure_begin, cdp__failure_adopt, cdp__failure_ignore, cdp__failure_ignore,
            cdp__failure_ignore, cdp__failure_ignore},
        {cdp__failure_interrupt, cdp__failure_adopt, cdp__failure_conclude, cdp__failure_ignore,
            cdp__failure_starting, cdp__failure_resume},
        {cdp__failure_ignore, cdp__failure_revise, cdp__failure_finish, cdp__failure_finish,
            cdp__failure_ignore, cdp__failure_ignore},
        {cdp__failure_ignore, cdp__failure_ignore, cdp__failure_ignore, cdp__failure_ignore,
            cdp__failure_ignore, cdp__failure_ignore},
    };
    return rules[v->domain->state][v->type](f, v);
}

/* The transition function. Returns what to do, see CDP__FAILURE_PUBLISH. cdp__failure_take()
   returns the WAIT and ENDPOINT messages to send. */
CDP__PRIVATE CDP__COLD uint32_t cdp__failure_step(cdp__failure *f, const cdp__failure_event *v) {
    CDP_ASSERT(f->rank < f->world_size && (!v->domain || v->type < CDP__FAILURE_GROUP_EVENTS));
    cdp__failure_drop_doubted(f, v->time_ns);
    if (v->type == CDP__FAILURE_REPORTED) {
        cdp__failure_keep_report(f, v->from, v->record, v->time_ns);
        cdp__failure_update(f);
    }
    if (v->domain) return cdp__failure_step_domain(f, v);
    if (v->type == CDP__FAILURE_BLOCKED) cdp__failure_on_blocked(f, v);
    if (v->type == CDP__FAILURE_MOVING) cdp__failure_on_moving(f, v);
    if (v->type == CDP__FAILURE_WAITS) cdp__failure_on_waits(f, v);
    if (v->type == CDP__FAILURE_ANSWER) cdp__failure_on_answer(f, v);
    if (v->type == CDP__FAILURE_CONTINUED) cdp__failure_on_continued(f, v);
    return 0;
}

#endif /* CDP_SRC_FAILURE_BLAME_H */
