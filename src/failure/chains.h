/* failure/chains.h - where a chain of waits ends (pure)

   Knows: the waits of this rank, the ranks that wait for it, and the failures that it received.
   Promises: if all ranks answer, the end of every chain of waits is found. No clock (events
   carry the time), no input or output, no memory of its own. */
#ifndef CDP_SRC_FAILURE_CHAINS_H
#define CDP_SRC_FAILURE_CHAINS_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "records.h"

typedef enum cdp__failure_state {
    CDP__FAILURE_HEALTHY,
    CDP__FAILURE_SETTLING,  /* this rank saw a failure, and waits for reports of an earlier cause */
    CDP__FAILURE_REPORTING, /* the record is this rank's error; peers are being told */
    CDP__FAILURE_DONE,
    CDP__FAILURE_STATES
} cdp__failure_state;

/* All time limits of this section. A group has failed on every rank at most SETTLE + TELL after
   the first rank saw the cause; after a timeout, each of the two is at most 5% of that timeout. */
#define CDP__FAILURE_WAIT_MS 1000u  /* waits of this length (or timeout / 4, if less) are long */
#define CDP__FAILURE_SETTLE_MS 300u /* how long reports of an earlier cause are awaited */
#define CDP__FAILURE_REPORT_MS 50u  /* how long this rank tries to tell its peers */
#define CDP__FAILURE_SHARE 20u      /* limits SETTLE and TELL to this fraction of the timeout */
#define CDP__FAILURE_PICKS 8u       /* how often the end of one chain may be chosen, see above */

typedef struct cdp__failure_edge { /* this rank waits for `peer` */
    bool used;
    bool caller;     /* a thread of the program is inside a call that waits for this */
    bool ask;        /* a WAIT is to be sent */
    bool compared;   /* the peer has received this rank's call */
    bool alone;      /* only `peer` can end this wait, even if `set` names several */
    bool left;       /* the peer has left */
    bool unacked;    /* the peer's host acknowledges nothing */
    uint16_t probe;  /* how much further the WAIT is to be passed on; 0: it only compares calls */
    uint32_t serial; /* serial number of the last WAIT */
    uint32_t needed; /* answers with a smaller serial number do not count */
    uint32_t answer; /* serial number that `end` answers; 0: no answer yet */
    uint32_t peer;   /* rank in the world */
    cdp__position at;
    uint64_t set; /* not 0: progress on any edge of this set ends the wait */
    uint64_t since_ns;
    cdp__endpoint end;
} cdp__failure_edge;

typedef struct cdp__failure_waiter { /* `rank` waits for this rank */
    bool used;
    bool passed;     /* this rank has already done what the waiter waits for */
    bool answer_due; /* `end` is to be sent to the waiter */
    uint32_t rank;
    uint16_t probe;  /* how much further its WAIT is to be passed on */
    uint32_t serial; /* serial number of the WAIT to answer */
    cdp__position at;
    cdp__endpoint end;
} cdp__failure_waiter;

typedef struct cdp__failure_report { /* the record that `rank` sent when it failed */
    bool used;
    bool doubted; /* soon after it, the rank took part in an operation */
    uint32_t rank;
    uint64_t since_ns;
    cdp__failure_record record;
} cdp__failure_report;

typedef struct cdp__failure_domain { /* a group, and all messages that fail with it */
    cdp__failure_state state;
    uint64_t channel; /* identifies the group; equal on all its ranks */
    uint64_t due_ns;  /* when SETTLING or REPORTING ends */
    cdp__failure_record record;
    /* After a timeout, while settling: `asked` is the wait that the probes are about, `end` its
       end as last seen while it lasted (if `known`), and `found` says that it was an answer. */
    cdp__position asked;
    cdp__endpoint end;
    bool known, found;
} cdp__failure_domain;

/* The failure state of one process. The caller provides the arrays, zeroed: one waiter per rank
   and a few more, as many edges (a few are enough if the program never receives from any rank),
   and at least two reports. If an array is full, the blame may be less precise, but is never
   later. */
typedef struct cdp__failure {
    uint32_t rank, world_size;
    uint32_t edge_room, waiter_room, report_room, report_at, waiter_at;
    uint32_t waiting; /* ranks that wait for this one; if any, report BLOCKED operations at once */
    uint32_t waited;  /* edges in use: long waits of this rank */
    uint32_t report_count; /* reports in use */
    bool outbox;           /* cdp__failure_take() may have a message */
    cdp__failure_edge *edges;
    cdp__failure_waiter *waiters;
    cdp__failure_report *reports;
} cdp__failure;

typedef enum cdp__failure_event_type {
    /* events of a group; `domain` is set */
    CDP__FAILURE_OBSERVED, /* `record`: status, peer, call, at, ... as this rank saw them */
    /* `record` came from rank `from`; without a domain: of a group that this rank is not in */
    CDP__FAILURE_REPORTED,
    CDP__FAILURE_TIMER,
    CDP__FAILURE_DELIVERED, /* every peer has the record */
    CDP__FAILURE_STARTING,  /* rank `from` is still starting, and waits for `end.named` */
    CDP__FAILURE_RESUMED,   /* the operation completed while its timeout was settling */
    CDP__FAILURE_GROUP_EVENTS,
    /* events of waits */
    CDP__FAILURE_BLOCKED = CDP__FAILURE_GROUP_EVENTS, /* at `at`, this rank waits for rank `from` */
    CDP__FAILURE_MOVING, /* the channel or set has reached `at` and is not blocked */
    CDP__FAILURE_WAITS,  /* WAIT came from rank `from`, which is at `at` */
    /* ENDPOINT came from rank `from`: `end` answers this rank's wait at `at` */
    CDP__FAILURE_ANSWER,
    CDP__FAILURE_CONTINUED /* rank `from` did its part in an operation that began at `begun_ns` */
} cdp__failure_event_type;

typedef struct cdp__failure_event {
    cdp__failure_event_type type;
    uint64_t time_ns;
    cdp__failure_domain *domain;
    const cdp__failure_record *record;
    cdp__fingerprint own; /* TOLD: this rank's own call with the number of record->call */
    uint32_t from;
    cdp__position at;
    cdp__endpoint end;
    uint64_t since_ns, begun_ns; /* BLOCKED, GOES_ON */
    /* BLOCKED: any rank of this set can end the wait; 0: only `from` can */
    uint64_t set;
    bool caller; /* BLOCKED */
    /* BLOCKED: the wait is long, and the rank may have made another call */
    bool compare;
    bool left;       /* BLOCKED: the rank has left */
    uint16_t probe;  /* WAITS */
    uint32_t serial; /* WAITS, ANSWER */
    /* WAITS, ANSWER, TOLD: this rank has done what is waited for at `at`, `end.last.at` or
       `record->end.last.at` */
    bool passed;
    bool sure; /* TIMER: no rank knows an earlier cause */
} cdp__failure_event;

#define CDP__FAILURE_PUBLISH 1u  /* domain->record is the group's new error; tell peers */
#define CDP__FAILURE_FINISHED 2u /* the group is DONE */

CDP__PRIVATE uint64_t cdp__failure_share_ns(const cdp__failure_record *r, uint32_t most_ms) {
    if (r->status != CDP_ERR_TIMEOUT || !r->timeout_ms) return most_ms * CDP__MS;
    return cdp__min(most_ms * CDP__MS, r->timeout_ms * CDP__MS / CDP__FAILURE_SHARE);
}

/* How long a wait lasts before it is reported to peers. */
CDP__PRIVATE uint64_t cdp__failure_period_ns(uint32_t timeout_ms) {
    return cdp__min(CDP__FAILURE_WAIT_MS * CDP__MS, timeout_ms * CDP__MS / 4);
}

CDP__PRIVATE bool cdp__failure_answered(const cdp__failure_edge *e) {
    return e->answer >= e->needed;
}

/* True if progress on edge x would also end the wait of edge e. */
CDP__PRIVATE bool cdp__failure_joint(const cdp__failure_edge *e, const cdp__failure_edge *x) {
    return x == e || (x->used && e->set && !e->alone && x->set == e->set);
}

/* A deadline has passed: sends a new WAIT, to be passed on along at most `ranks` ranks. Earlier
   answers no longer count. Does nothing if such a question is still unanswered. */
CDP__PRIVATE void cdp__failure_ask(cdp__failure *f, cdp__failure_edge *e, uint32_t ranks) {
    if (e->probe >= ranks && !cdp__failure_answered(e)) return;
    e->probe = (uint16_t)cdp__min(ranks, UINT16_MAX);
    e->needed = ++e->serial;
    e->ask = f->outbox = true;
}

CDP__PRIVATE void cdp__failure_probe(cdp__failure *f, const cdp__failure_edge *e, uint32_t ranks) {
    uint32_t i;
    for (i = 0; i < f->edge_room; ++i)
        if (cdp__failure_joint(e, &f->edges[i])) cdp__failure_ask(f, &f->edges[i], ranks);
}

/* The edge that keeps this rank from making progress in `channel`: the operation blocked there
   or, if this rank has not come to it, the oldest wait of one of its threads. NULL: none. */
CDP__PRIVATE cdp__failure_edge *cdp__failure_blocker(const cdp__failure *f, uint64_t channel) {
    cdp__failure_edge *best = NULL;
    uint32_t i;
    for (i = 0; i < f->edge_room && f->waited; ++i) {
        cdp__failure_edge *e = &f->edges[i];
        if (!e->used) continue;
        if (e->at.channel == channel || (e->set && e->set == channel && !e->alone)) return e;
        if (e->caller && (!best || e->since_ns < best->since_ns)) best = e;
    }
    return best;
}

CDP__PRIVATE cdp__failure_report *cdp__failure_find_report(const cdp__failure *f, uint32_t rank) {
    uint32_t i;
    for (i = 0; i < f->report_room; ++i)
        if (f->reports[i].used && f->reports[i].rank == rank) return &f->reports[i];
    return NULL;
}

/* The first entry is for this rank's own will. When the others are full, the oldest is replaced. */
CDP__PRIVATE void cdp__failure_keep_report(
    cdp__failure *f, uint32_t rank, const cdp__failure_record *r, uint64_t time_ns) {
    cdp__failure_report *w = cdp__failure_find_report(f, rank);
    CDP_ASSERT(f->report_room > 1);
    if (!w && rank != f->rank) f->report_at = f->report_at % (f->report_room - 1) + 1;
    if (!w) w = &f->reports[rank == f->rank ? 0 : f->report_at];
    if (!w->used) ++f->report_count;
    w->used = true;
    w->doubted = false;
    w->rank = rank;
    w->since_ns = time_ns;
    w->record = *r;
}

/* The end of the chain that begins with edge e. A peer that has failed does not answer, but its
   last will says why it failed. */
CDP__PRIVATE cdp__endpoint cdp__failure_follow_one(
    const cdp__failure *f, const cdp__failure_edge *e) {
    const cdp__failure_report *will = cdp__failure_find_report(f, e->peer);
    cdp__endpoint end = e->end;
    if (cdp__failure_answered(e)) return end;
    memset(&end, 0, sizeof end);
    end.named = end.last.target = (int32_t)e->peer;
    end.why = CDP__WHY_SILENT;
    if (e->unacked) end.why = CDP__WHY_CUT;
    if (e->left) end.why = CDP__WHY_LEFT;
    end.last.waiter = (int32_t)f->rank;
    end.last.at = e->at;
    if (!will || will->record.end.named < 0) return end;
    end.named = will->record.end.named;
    end.why = CDP__WHY_EARLIER;
    return end;
}

/* The named rank does not answer, for whatever reason. */
CDP__PRIVATE bool cdp__endpoint_silent(const cdp__endpoint *end) {
    return end->why == CDP__WHY_SILENT || end->why == CDP__WHY_CUT;
}

/* Ranks endpoints of a receive from any rank: the highest is most likely the cause. A rank known
   to have failed comes first, then one that may only be slow. A rank that left may have done all
   it had to do. A circle is the cause only if all the endpoints are circles. */
CDP__PRIVATE uint32_t cdp__failure_weight(const cdp__endpoint *end) {
    switch ((cdp__why)end->why) {
    case CDP__WHY_EARLIER: return 5;
    case CDP__WHY_SILENT:
    case CDP__WHY_CUT:
    case CDP__WHY_AWAITED:
    case CDP__WHY_SENT: return 4;
    case CDP__WHY_LEFT: return 2;
    case CDP__WHY_CIRCLE: return 1;
    default: return 3;
    }
}

/* Of all edges that could end the wait of edge e, the one most likely to be the cause. */
CDP__PRIVATE cdp__failure_edge *cdp__failure_pick(const cdp__failure *f, cdp__failure_edge *e) {
    cdp__failure_edge *best = e;
    cdp__endpoint end = cdp__failure_follow_one(f, e);
    uint32_t i;
    for (i = 0; i < f->edge_room && e->set && !e->alone; ++i) {
        cdp__failure_edge *x = &f->edges[i];
        cdp__endpoint other;
        if (!cdp__failure_joint(e, x)) continue;
        other = cdp__failure_follow_one(f, x);
        if (cdp__failure_weight(&other) < cdp__failure_weight(&end)
            || (cdp__failure_weight(&other) == cdp__failure_weight(&end)
                && (other.picks > end.picks || (other.picks == end.picks && x >= best))))
            continue;
        best = x;
        end = other;
    }
    return best;
}

CDP__PRIVATE cdp__endpoint cdp__failure_follow(const cdp__failure *f, cdp__failure_edge *e) {
    cdp__endpoint end = cdp__failure_follow_one(f, cdp__failure_pick(f, e));
    if (e->set && !e->alone && end.picks < UINT8_MAX) ++end.picks;
    return end;
}

/* The answer to rank w->rank. */
CDP__PRIVATE cdp__endpoint cdp__failure_answer(
    const cdp__failure *f, const cdp__failure_waiter *w) {
    cdp__failure_edge *e = cdp__failure_blocker(f, w->at.channel);
    const cdp__failure_edge *best = e ? cdp__failure_pick(f, e) : NULL;
    const cdp__failure_report *own = cdp__failure_find_report(f, f->rank);
    const bool here = e && e->at.channel == w->at.channel;
    cdp__endpoint end;
    memset(&end, 0, sizeof end);
    end.named = end.last.target = (int32_t)f->rank;
    end.last.waiter = (int32_t)w->rank;
    end.last.at = w->at;
    end.why = CDP__WHY_BUSY;
    if (w->passed || (here && w->at.seq && cdp__position_reached(&e->at, &w->at))) {
        end.why = CDP__WHY_SENT;
    } else if (best && best->peer == w->rank && best->end.picks && cdp__failure_answered(best)) {
        /* rank w->rank has chosen the end that this rank would answer: stop, else it goes in
           circles */
        end.named = (int32_t)w->rank;
        end.why = CDP__WHY_SILENT;
        end.last.waiter = (int32_t)f->rank;
        end.last.target = (int32_t)w->rank;
        end.last.at = best->at;
    } else if (e) {
        end = cdp__failure_follow(f, e);
        if (end.hops < UINT8_MAX) ++end.hops;
    } else if (own && own->record.end.named >= 0) {
        end.named = own->record.end.named;
        end.why = CDP__WHY_EARLIER;
    }
    return end;
}

/* Call after every change of f: prepares new answers for the waiters whose endpoint has changed. */
CDP__PRIVATE void cdp__failure_update(cdp__failure *f) {
    uint32_t i;
    for (i = 0; i < f->waiter_room && f->waiting; ++i) {
        cdp__failure_waiter *w = &f->waiters[i];
        const cdp__endpoint end = cdp__failure_answer(f, w);
        if (!w->used || cdp__endpoint_same(&end, &w->end)) continue;
        w->end = end;
        w->answer_due = f->outbox = true;
    }
}

/* The channel has reached `at`: ranks that waited for an earlier position wait no longer. */
CDP__PRIVATE void cdp__failure_drop_waiters(cdp__failure *f, const cdp__position *at) {
    uint32_t i;
    for (i = 0; i < f->waiter_room && f->waiting; ++i) {
        cdp__failure_waiter *w = &f->waiters[i];
        if (!w->used || w->at.channel != at->channel || cdp__position_reached(&w->at, at)) continue;
        w->used = w->answer_due = false;
        --f->waiting;
    }
}

/* Edge e is new: passes on the questions of ranks that already wait for what it blocks. */
CDP__PRIVATE void cdp__failure_pass_probe(cdp__failure *f, cdp__failure_edge *e) {
    uint32_t i, probe = 0;
    for (i = 0; i < f->waiter_room && f->waiting; ++i) {
        const cdp__failure_waiter *w = &f->waiters[i];
        const cdp__failure_edge *b = NULL;
        if (w->used && !w->passed) b = cdp__failure_blocker(f, w->at.channel);
        if (b && cdp__failure_joint(b, e)) probe = w->probe > probe ? w->probe : probe;
    }
    if (probe > 1) cdp__failure_ask(f, e, probe - 1);
}

CDP__PRIVATE void cdp__failure_on_blocked(cdp__failure *f, const cdp__failure_event *v) {
    cdp__failure_edge *e = NULL;
    uint32_t i;
    for (i = 0; i < f->edge_room; ++i) {
        cdp__failure_edge *x = &f->edges[i];
        const bool same = x->used && x->at.channel == v->at.channel;
        if (same || (!x->used && !e)) e = x;
        if (same) break;
    }
    if (!e) return;
    if (e->used && e->peer == v->from && cdp__position_same(&e->at, &v->at)) {
        e->caller = v->caller;
        if (v->set) e->set = v->set;
    } else {
        if (!e->used) ++f->waited;
        memset(e, 0, sizeof *e);
        e->used = true;
        e->serial = e->needed = 1;
        e->caller = v->caller;
        e->peer = v->from;
        e->at = v->at;
        e->set = v->set;
        e->since_ns = v->since_ns;
        cdp__failure_drop_waiters(f, &v->at);
        cdp__failure_pass_probe(f, e);
    }
    if (!v->set) e->alone = true;
    if (v->set) e->left = v->left;
    if (v->compare && !e->compared) e->compared = e->ask = f->outbox = true;
    cdp__failure_update(f);
}

CDP__PRIVATE void cdp__failure_on_moving(cdp__failure *f, const cdp__failure_event *v) {
    uint32_t i;
    for (i = 0; i < f->edge_room && f->waited; ++i) {
        const cdp__failure_edge *e = &f->edges[i];
        if (!e->used || (e->at.channel != v->at.channel && (!e->set || e->set != v->at.channel)))
            continue;
        memset(&f->edges[i], 0, sizeof f->edges[i]);
        --f->waited;
    }
    cdp__failure_drop_waiters(f, &v->at);
    cdp__failure_update(f);
}

/* Stores one entry per rank and channel; in a full table the oldest is replaced. */
CDP__PRIVATE void cdp__failure_on_waits(cdp__failure *f, const cdp__failure_event *v) {
    cdp__failure_waiter *w = NULL;
    cdp__failure_edge *e = v->probe > 1 ? cdp__failure_blocker(f, v->at.channel) : NULL;
    uint32_t i;
    for (i = 0; i < f->waiter_room; ++i) {
        cdp__failure_waiter *x = &f->waiters[i];
        const bool same = x->used && x->rank == v->from && x->at.channel == v->at.channel;
        if (same || (!x->used && !w)) w = x;
        if (same) break;
    }
    if (!w && f->waiter_room) {
        w = &f->waiters[f->waiter_at];
        f->waiter_at = (f->waiter_at + 1) % f->waiter_room;
    }
    if (!w) return;
    if (!w->used) ++f->waiting;
    w->used = w->answer_due = f->outbox = true;
    w->rank = v->from;
    w->at = v->at;
    w->serial = v->serial;
    w->passed = v->passed;
    w->probe = v->probe;
    if (e && !w->passed) cdp__failure_probe(f, e, v->probe - 1u);
    w->end = cdp__failure_answer(f, w);
    cdp__failure_update(f);
}

/* Corrects an answer by what this rank knows. If the store does not answer, it is only a guess that
   a silent rank had not finished starting. This rank has finished, so it neither waits in its own
   start nor keeps another rank waiting there. */
CDP__PRIVATE cdp__endpoint cdp__failure_check_answer(
    const cdp__failure *f, const cdp__endpoint *said) {
    const int32_t self = (int32_t)f->rank;
    cdp__endpoint end = *said;
    if (end.why != CDP__WHY_AWAITED || end.last.target < 0
        || (end.named != self && end.last.target != self))
        return end;
    end.named = end.last.target;
    end.why = CDP__WHY_SILENT;
    return end;
}

/* An answer whose chain ends at this rank closes a circle. But if this rank has already done its
   part for the last waiter of the chain, the link between these two is cut, and either is to
   blame. */
CDP__PRIVATE void cdp__failure_on_answer(cdp__failure *f, const cdp__failure_event *v) {
    const cdp__endpoint end = cdp__failure_check_answer(f, &v->end);
    const bool here = end.named == (int32_t)f->rank;
    uint32_t i;
    for (i = 0; i < f->edge_room; ++i) {
        cdp__failure_edge *e = &f->edges[i];
        if (!e->used || e->peer != v->from || !cdp__position_same(&e->at, &v->at)
            || v->serial > e->serial)
            continue;
        e->answer = v->serial;
        if (end.why == CDP__WHY_CIRCLE && e->end.why == CDP__WHY_CIRCLE) continue;
        e->end = end;
        if (end.why == CDP__WHY_CIRCLE) continue;
        if (here && v->passed && end.last.waiter >= 0 && end.last.waiter != (int32_t)f->rank) {
            e->end.named = end.last.waiter;
            e->end.why = CDP__WHY_SENT;
        } else if (here || end.hops > f->world_size
            || end.picks > cdp__min(f->world_size, CDP__FAILURE_PICKS)) {
            e->end.named = (int32_t)e->peer;
            e->end.why = CDP__WHY_CIRCLE;
        }
    }
    cdp__failure_update(f);
}

CDP__PRIVATE void cdp__failure_drop_report(cdp__failure *f, cdp__failure_report *w) {
    w->used = false;
    --f->report_count;
}

/* A rank that takes part in an operation begun well after a failure did not leave because of it:
   removes its last will. Its part of one that begins soon afterwards may have been sent before: the
   will then counts only for as long as a rank takes to leave. */
CDP__PRIVATE void cdp__failure_on_continued(cdp__failure *f, const cdp__failure_event *v) {
    cdp__failure_report *w = cdp__failure_find_report(f, v->from);
    if (!w || w->since_ns >= v->begun_ns) return;
    if (w->since_ns + CDP__FAILURE_SETTLE_MS * CDP__MS < v->begun_ns)
        cdp__failure_drop_report(f, w);
    else
        w->doubted = true;
}

/* Removes the reports that were in doubt for so long that their ranks would have left by now. */
CDP__PRIVATE void cdp__failure_drop_doubted(cdp__failure *f, uint64_t time_ns) {
    const uint64_t leaving_ns = (CDP__FAILURE_SETTLE_MS + CDP__FAILURE_REPORT_MS) * CDP__MS;
    uint32_t i;
    for (i = 0; f->report_count && i < f->report_room; ++i) {
        cdp__failure_report *w = &f->reports[i];
        if (w->used && w->doubted && time_ns > w->since_ns + leaving_ns)
            cdp__failure_drop_report(f, w);
    }
}

/* The next message for rank `peer`. Returns 1: *wait is set (the caller adds the calls), 2:
   *answer is set, 0: no message. */
CDP__PRIVATE uint32_t cdp__failure_take(
    cdp__failure *f, uint32_t peer, cdp__wait_message *wait, cdp__answer_message *answer) {
    uint32_t i;
    for (i = 0; i < f->edge_room; ++i) {
        cdp__failure_edge *e = &f->edges[i];
        if (!e->used || !e->ask || e->peer != peer) continue;
        e->ask = false;
        memset(wait, 0, sizeof *wait);
        wait->at = e->at;
        wait->serial = e->serial;
        wait->probe = e->probe;
        return 1;
    }
    for (i = 0; i < f->waiter_room; ++i) {
        cdp__failure_waiter *w = &f->waiters[i];
        if (!w->used || !w->answer_due || w->rank != peer) continue;
        w->answer_due = false;
        memset(answer, 0, sizeof *answer);
        answer->at = w->at;
        answer->serial = w->serial;
        answer->end = w->end;
        return 2;
    }
    return 0;
}

#endif /* CDP_SRC_FAILURE_CHAINS_H */
