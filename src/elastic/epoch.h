/* elastic/epoch.h - who is in, from which step on, and whose state counts (pure)

   Knows: the place of one process, arrivals, tickets and decisions. Promises: a process that has
   arrived commits nothing more in its epoch; the step of a decision is the highest one committed
   among the arrived members of the epoch before; newcomers are never sources. */
#ifndef CDP_SRC_ELASTIC_EPOCH_H
#define CDP_SRC_ELASTIC_EPOCH_H

#include "../base/config.h"
#include "../base/compiler.h"
#include "../base/basics.h"

/* Tests plant defects here, to see that their exploration finds them. */
#ifndef CDP__ELASTIC_PLANT
#define CDP__ELASTIC_PLANT(defect) false
#endif

#define CDP__ELASTIC_ID_BYTES 16u
#define CDP__ELASTIC_NEW 0xffffffffu /* the old rank of a newcomer */

typedef enum cdp__elastic_phase {
    CDP__ELASTIC_WAITING, /* it has a ticket, and is in no epoch yet */
    CDP__ELASTIC_JOINED,  /* in an epoch; it connects, sends or receives state */
    CDP__ELASTIC_RUNNING, /* it runs and commits steps */
    CDP__ELASTIC_ARRIVED, /* it commits nothing more in its epoch */
    CDP__ELASTIC_OUT      /* it was left out, or has left */
} cdp__elastic_phase;

/* What one process stores about itself. */
typedef struct cdp__elastic_place {
    uint8_t id[CDP__ELASTIC_ID_BYTES];
    uint64_t epoch;         /* 0: none yet */
    uint64_t step, samples; /* committed, in the state that it holds */
    uint32_t rank, size;    /* in that epoch */
    uint32_t blamed;        /* 1 + the rank because of which it ended here; 0: none */
    bool absent;            /* that rank did not call, which others see as well */
    uint8_t phase;          /* cdp__elastic_phase */
    bool has_state;         /* no while it receives: half of it would be of another step */
    bool fresh;             /* it holds what it came with, in an epoch of newcomers alone */
    bool live;              /* the group of this epoch may communicate */
    bool ending;            /* it has committed its last step */
} cdp__elastic_place;

/* A newcomer asks to be taken in. The step counts for the first epoch alone. */
typedef struct cdp__elastic_ticket {
    uint8_t id[CDP__ELASTIC_ID_BYTES];
    uint64_t step, samples;
    uint32_t round_trip_ms; /* between its process and the store */
    bool ended;             /* its process has ended */
    bool asks;              /* to be tried, or says that it was: not yet to be taken in */
    bool untried;           /* it asks, and no later ticket is of the same process */
} cdp__elastic_ticket;

/* "I complete nothing more in this epoch." */
typedef struct cdp__elastic_arrival {
    uint8_t id[CDP__ELASTIC_ID_BYTES];
    uint64_t step, samples;
    uint32_t rank;
    uint32_t blamed;        /* 1 + the rank with which it could not go on; 0: none */
    uint32_t round_trip_ms; /* of a ticket: between its process and the store */
    bool absent;            /* because that rank did not call */
    bool has_state, fresh, ending;
    bool asks, tried; /* of a ticket: it wants to be tried; it was */
} cdp__elastic_arrival;

typedef struct cdp__elastic_member {
    uint8_t id[CDP__ELASTIC_ID_BYTES];
    uint32_t old_rank;      /* CDP__ELASTIC_NEW: a newcomer */
    bool source;            /* it holds the state of the decision's step */
    bool on_trial;          /* it came to an epoch that had members, and never had their state */
    uint8_t strikes;        /* epochs that ended because of it since the last step was committed */
    uint16_t round_trip_ms; /* between it and the store, when it came */
    /* only while cdp__elastic_decide() runs, of the member with this rank in the old epoch */
    bool struck, evicted, absent, counts;
    uint32_t blamed; /* as in its arrival, if that counts */
} cdp__elastic_member;

typedef struct cdp__elastic_decision {
    uint64_t epoch;         /* 0: none */
    uint64_t step, samples; /* of the state with which this epoch begins */
    uint32_t tickets;       /* how many tickets, from the first on, have been dealt with */
    uint32_t size, sources, lost, joined;
    uint32_t evicted; /* of the lost: members that arrived, and were left out */
    uint32_t cool;    /* evictions since newcomers last committed a step: they wait longer */
    cdp__elastic_member *members; /* in the order of ranks; the caller's memory */
    char cause[160];
} cdp__elastic_decision;

typedef enum cdp__elastic_verdict {
    CDP__ELASTIC_DECIDED,
    CDP__ELASTIC_FEW,     /* below the minimum */
    CDP__ELASTIC_NO_STATE /* no arrived member of the last epoch has state */
} cdp__elastic_verdict;

CDP__PRIVATE bool cdp__elastic_same(const uint8_t *a, const uint8_t *b) {
    return memcmp(a, b, CDP__ELASTIC_ID_BYTES) == 0;
}

/* A step begins. False: this process has to take part in a turn first. */
CDP__PRIVATE bool cdp__elastic_begin(cdp__elastic_place *p, uint32_t batch) {
    if (p->phase != CDP__ELASTIC_RUNNING || !p->has_state) return false;
    if (CDP__ELASTIC_PLANT(COUNTED_EARLY)) p->samples += (uint64_t)p->size * batch;
    return true;
}

/* Counts the step and its samples on this rank. False: an alarm came first, so the step does not
   count on this rank. */
CDP__PRIVATE bool cdp__elastic_count(cdp__elastic_place *p, uint32_t batch) {
    const bool may = p->phase == CDP__ELASTIC_RUNNING
        || (CDP__ELASTIC_PLANT(COMMIT_AFTER_ARRIVAL) && p->phase == CDP__ELASTIC_ARRIVED);
    if (!may || !p->has_state) return false;
    ++p->step;
    if (!CDP__ELASTIC_PLANT(COUNTED_EARLY)) p->samples += (uint64_t)p->size * batch;
    return true;
}

/* The process may end: all members of its epoch have called cdp_elastic_finish(). */
CDP__PRIVATE bool cdp__elastic_ends(const cdp__elastic_place *p, bool all_called) {
    if (p->phase != CDP__ELASTIC_RUNNING || !p->has_state) return false;
    return all_called || CDP__ELASTIC_PLANT(LEAVES_EARLY);
}

/* Fills in the arrival record of this process. */
CDP__PRIVATE void cdp__elastic_describe(const cdp__elastic_place *p, cdp__elastic_arrival *out) {
    memset(out, 0, sizeof *out);
    memcpy(out->id, p->id, sizeof out->id);
    out->step = p->step;
    out->samples = p->samples;
    out->rank = p->rank;
    out->blamed = p->blamed;
    out->absent = p->absent;
    out->has_state = p->has_state;
    out->fresh = p->fresh;
    out->ending = p->ending;
}

/* The process arrives: it revokes its group, commits nothing more in the epoch, and records in *out
   what it holds. False: it is in no epoch, or has arrived before. */
CDP__PRIVATE bool cdp__elastic_arrive(cdp__elastic_place *p, cdp__elastic_arrival *out) {
    if (p->phase != CDP__ELASTIC_JOINED && p->phase != CDP__ELASTIC_RUNNING) return false;
    p->phase = CDP__ELASTIC_ARRIVED;
    if (!CDP__ELASTIC_PLANT(NO_REVOKE)) p->live = false;
    cdp__elastic_describe(p, out);
    return true;
}

/* The arrival of rank r of that epoch, or NULL. Arrivals of processes that are not this member are
   ignored. Of several arrivals of the member the first one counts, or a later one that adds that
   the rank is ending. */
CDP__PRIVATE const cdp__elastic_arrival *cdp__elastic_arrival_of(const cdp__elastic_decision *d,
    uint32_t r, const cdp__elastic_arrival *arrivals, uint32_t count) {
    const cdp__elastic_arrival *found = NULL;
    uint32_t i;
    for (i = 0; i < count; ++i)
        if (arrivals[i].rank == r && cdp__elastic_same(arrivals[i].id, d->members[r].id)
            && (!found || arrivals[i].ending))
            found = &arrivals[i];
    return found;
}

CDP__PRIVATE void cdp__elastic_add(
    cdp__elastic_decision *d, const uint8_t *id, uint32_t old_rank, bool source) {
    cdp__elastic_member *m = &d->members[d->size++];
    memset(m, 0, sizeof *m);
    memcpy(m->id, id, sizeof m->id);
    m->old_rank = old_rank;
    m->source = source;
    d->sources += source;
}

/* What a decision is made of. */
typedef struct cdp__elastic_view {
    const cdp__elastic_decision *old; /* epoch 0: this decision makes the first epoch */
    const cdp__elastic_arrival *arrivals;
    uint32_t arrival_count;
    const cdp__elastic_ticket *tickets; /* all of them, oldest first */
    uint32_t ticket_count;
    uint32_t min_ranks, max_ranks;
} cdp__elastic_view;

/* Newcomers come behind the members of the last epoch, in the order of their tickets, until there
   are max_ranks. */
CDP__PRIVATE void cdp__elastic_take_in(const cdp__elastic_view *v, cdp__elastic_decision *out) {
    uint32_t i;
    for (i = v->old->tickets; i < v->ticket_count && out->size < v->max_ranks; ++i) {
        out->tickets = i + 1;
        if (v->tickets[i].ended || v->tickets[i].asks) continue;
        cdp__elastic_add(out, v->tickets[i].id, CDP__ELASTIC_NEW, false);
        out->members[out->size - 1].on_trial = v->old->epoch > 0;
        out->members[out->size - 1].round_trip_ms = (uint16_t)v->tickets[i].round_trip_ms;
        ++out->joined;
    }
}

/* ---- who is tried

   A newcomer to a job that runs asks to be tried: it and the members connect beside the epoch, and
   only then it may be taken in, so one that the members cannot reach costs them no step. If an
   attempt with all that ask fails, each is tried alone: by turns the newest and the oldest one that
   was not yet. Not the newest alone: one that starts again before it was tried would have each
   attempt. */

/* Which of those that ask, the oldest first, has attempt `turn` alone, from 0 on. The oldest is
   first again and again, one further each time (0; 0 1; 0 1 2; ...): however many more come
   meanwhile, each has attempts without end. */
CDP__PRIVATE uint32_t cdp__elastic_tried_alone(uint32_t turn, uint32_t ask) {
    uint32_t i = turn / 2, row = 1;
    if (turn % 2 == 0) return ask - 1 - i % ask;
    for (; i >= row; ++row)
        i -= row;
    return i % ask;
}

/* Lists the members and those that are tried: all, or those of that attempt alone; out->members has
   room as for cdp__elastic_decide(). False: nobody asks. */
CDP__PRIVATE bool cdp__elastic_draw_trial(
    const cdp__elastic_view *v, bool alone, uint32_t turn, cdp__elastic_decision *out) {
    const cdp__elastic_decision *old = v->old;
    cdp__elastic_member *const members = out->members;
    uint32_t r, i, ask = 0, at = 0, one = 0;
    memset(out, 0, sizeof *out);
    out->members = members;
    for (r = 0; r < old->size; ++r) {
        cdp__elastic_add(out, old->members[r].id, r, !r);
        out->members[r].round_trip_ms = old->members[r].round_trip_ms;
    }
    for (i = 0; i < v->ticket_count; ++i)
        ask += v->tickets[i].untried && !v->tickets[i].ended;
    if (ask && alone) one = cdp__elastic_tried_alone(turn, ask);
    for (i = 0; i < v->ticket_count; ++i) {
        if (!v->tickets[i].untried || v->tickets[i].ended) continue;
        if (at++ != one && alone) continue;
        cdp__elastic_add(out, v->tickets[i].id, CDP__ELASTIC_NEW, false);
        out->members[out->size - 1].round_trip_ms = (uint16_t)v->tickets[i].round_trip_ms;
    }
    return ask > 0;
}

/* The state of the first epoch is that of its rank 0. */
CDP__PRIVATE cdp__elastic_verdict cdp__elastic_found(
    const cdp__elastic_view *v, cdp__elastic_decision *out) {
    cdp__elastic_take_in(v, out);
    if (!out->size || out->size < v->min_ranks) return CDP__ELASTIC_FEW;
    out->members[0].source = true;
    out->sources = 1;
    for (uint32_t i = 0; i < v->ticket_count; ++i) {
        if (!cdp__elastic_same(v->tickets[i].id, out->members[0].id)) continue;
        out->step = v->tickets[i].step;
        out->samples = v->tickets[i].samples;
    }
    return CDP__ELASTIC_DECIDED;
}

/* A planted defect: makes a newcomer a source if it claims a later step than the last epoch has.
   That is wrong, because its state does not contain what the members have committed. */
CDP__PRIVATE void cdp__elastic_trust_newcomers(
    const cdp__elastic_view *v, cdp__elastic_decision *out) {
    uint32_t i, k;
    for (i = v->old->tickets; i < v->ticket_count; ++i)
        if (v->tickets[i].step > out->step) {
            out->step = v->tickets[i].step;
            out->samples = v->tickets[i].samples;
            out->sources = 0;
            for (k = 0; k < out->size; ++k)
                out->members[k].source = false;
        }
    for (k = 0; k < out->size; ++k)
        for (i = v->old->tickets; i < v->ticket_count; ++i)
            if (v->tickets[i].step == out->step
                && cdp__elastic_same(v->tickets[i].id, out->members[k].id)) {
                out->members[k].source = true;
                ++out->sources;
            }
}

/* ---- who is left out because others cannot go on with it

   A process may live, reach the store and block its peers: it hangs, or a path between two members
   carries nothing. Each member says in its arrival whom it could not go on with. A member that is
   blamed in so many epochs, with no step committed meanwhile, is left out; of members that cannot
   go on with each other, as few as possible are. A newcomer that has no state yet goes sooner, and
   before members of earlier epochs. If a member has not arrived, that explains why the epoch
   ended. */
#define CDP__ELASTIC_STRIKES 3u
#define CDP__ELASTIC_STRIKES_NEW 2u
#define CDP__ELASTIC_COOL 6u /* newcomers wait at most 2 to this power times grow_ms */

/* A newcomer that has not received state yet. */
CDP__PRIVATE bool cdp__elastic_on_trial(const cdp__elastic_view *v, uint32_t r) {
    const cdp__elastic_arrival *a =
        cdp__elastic_arrival_of(v->old, r, v->arrivals, v->arrival_count);
    return v->old->members[r].on_trial && a && !a->has_state;
}

/* Two members that were not left out, one of which blames the other. */
CDP__PRIVATE bool cdp__elastic_apart(const cdp__elastic_member *m, uint32_t a, uint32_t b) {
    return !m[a].evicted && !m[b].evicted && (m[a].blamed == b + 1 || m[b].blamed == a + 1);
}

/* Members that are apart from rank r; *last is one of them. */
CDP__PRIVATE uint32_t cdp__elastic_apart_from(
    const cdp__elastic_member *m, uint32_t size, uint32_t r, uint32_t *last) {
    uint32_t i, n = 0;
    for (i = 0; i < size; ++i) {
        if (i == r || !cdp__elastic_apart(m, r, i)) continue;
        *last = i;
        ++n;
    }
    return n;
}

/* Keeps the strikes of each rank, and whom it blames now. True if all have arrived. */
CDP__PRIVATE bool cdp__elastic_blames(
    const cdp__elastic_view *v, cdp__elastic_member *m, bool committed) {
    const uint32_t size = v->old->size;
    bool all = true;
    uint32_t r;
    for (r = 0; r < size; ++r) {
        const cdp__elastic_arrival *a =
            cdp__elastic_arrival_of(v->old, r, v->arrivals, v->arrival_count);
        memset(&m[r], 0, sizeof m[r]);
        m[r].strikes = committed ? 0 : v->old->members[r].strikes;
        all = all && a;
        if (!a || a->blamed > size || a->blamed == r + 1) continue;
        m[r].blamed = a->blamed;
        m[r].absent = a->absent;
    }
    return all;
}

/* A newcomer on trial alone blames a member: perhaps nothing comes to itself. */
CDP__PRIVATE bool cdp__elastic_alone(
    const cdp__elastic_view *v, const cdp__elastic_member *m, uint32_t r) {
    uint32_t i;
    if (!m[r].blamed || m[r].absent || !cdp__elastic_on_trial(v, r)) return false;
    for (i = 0; i < v->old->size; ++i)
        if (m[i].blamed == m[r].blamed && !cdp__elastic_on_trial(v, i)) return false;
    return true;
}

/* Counts strikes, and keeps the blames that count. True if there are any. */
CDP__PRIVATE bool cdp__elastic_strike(
    const cdp__elastic_view *v, cdp__elastic_member *m, bool committed) {
    const uint32_t size = v->old->size;
    bool any = false;
    uint32_t r;
    if (!cdp__elastic_blames(v, m, committed)) return false;
    for (r = 0; r < size; ++r)
        if (m[r].blamed) m[cdp__elastic_alone(v, m, r) ? r : m[r].blamed - 1].struck = true;
    for (r = 0; r < size; ++r)
        m[r].strikes = (uint8_t)(m[r].strikes + (m[r].struck && m[r].strikes < 255));
    for (r = 0; r < size; ++r) {
        const uint32_t who = cdp__elastic_alone(v, m, r) ? r : m[r].blamed - 1;
        if (!m[r].blamed) continue;
        m[r].counts = m[who].strikes
            >= (cdp__elastic_on_trial(v, who) ? CDP__ELASTIC_STRIKES_NEW : CDP__ELASTIC_STRIKES);
        any = any || m[r].counts;
    }
    for (r = 0; r < size; ++r)
        if (!m[r].counts) m[r].blamed = 0;
    return any;
}

/* Newcomers on trial go before any member does: who is blamed says little about which path carries
   nothing, and the members went on before these came. Not for a member that did not call. */
CDP__PRIVATE uint32_t cdp__elastic_end_trials(const cdp__elastic_view *v, cdp__elastic_member *m) {
    uint32_t r, n = 0;
    bool path = false;
    for (r = 0; r < v->old->size; ++r)
        path = path || (m[r].blamed && !m[r].absent);
    for (r = 0; path && r < v->old->size; ++r) {
        m[r].evicted = cdp__elastic_on_trial(v, r);
        n += m[r].evicted;
    }
    return n;
}

/* Whom to leave out next; `size`: nobody. A member that one other member alone is apart from, and
   that is apart from more, goes: so as few as possible do, since each blames one. Where there is no
   such member all are pairs or circles, in which any may go: the one that is blamed does. */
CDP__PRIVATE uint32_t cdp__elastic_next_out(const cdp__elastic_member *m, uint32_t size) {
    uint32_t r, other = 0, more = 0, found = size;
    for (r = 0; r < size; ++r) {
        const uint32_t b = m[r].blamed - 1;
        if (m[r].blamed && cdp__elastic_apart(m, r, b))
            found = m[b].blamed == r + 1 ? (uint32_t)cdp__max(r, b) : b;
    }
    for (r = 0; found < size && r < size; ++r)
        if (cdp__elastic_apart_from(m, size, r, &other) == 1
            && cdp__elastic_apart_from(m, size, other, &more) > 1)
            return other;
    return found;
}

/* The arrival whose state the next epoch begins with: of the members that arrived with state, the
   first with the highest step. In an epoch of newcomers alone perhaps no member has state yet, and
   then no member has committed a step in it: returns the first one that has not begun to receive
   state. NULL: there is none. Without those that are left out in `m` (NULL: nobody is). */
CDP__PRIVATE const cdp__elastic_arrival *cdp__elastic_best(
    const cdp__elastic_view *v, const cdp__elastic_member *m) {
    const cdp__elastic_arrival *best = NULL, *a;
    uint32_t r;
    for (r = 0; r < v->old->size; ++r) {
        a = cdp__elastic_arrival_of(v->old, r, v->arrivals, v->arrival_count);
        if (!a || (m && m[r].evicted)) continue;
        if (a->has_state && (!best || !best->has_state || a->step > best->step)) best = a;
        if (a->fresh && !best) best = a;
    }
    return best;
}

/* Marks who is left out; returns how many. */
CDP__PRIVATE uint32_t cdp__elastic_evict(
    const cdp__elastic_view *v, cdp__elastic_member *m, bool committed) {
    const uint32_t size = v->old->size;
    uint32_t r, n = 0;
    if (!cdp__elastic_strike(v, m, committed)) return 0;
    if (!cdp__elastic_end_trials(v, m))
        while ((r = cdp__elastic_next_out(m, size)) < size)
            m[r].evicted = true;
    for (r = 0; r < size; ++r)
        n += m[r].evicted;
    if (size - n >= v->min_ranks && cdp__elastic_best(v, m)) return n;
    for (r = 0; r < size; ++r)
        m[r].evicted = false;
    return 0;
}

/* The next decision; out->members has room for the members of the last epoch and for the tickets.
   Any process may make one of what it has seen, at any time: the first one that is in the store
   counts. */
CDP__PRIVATE cdp__elastic_verdict cdp__elastic_decide(
    const cdp__elastic_view *v, cdp__elastic_decision *out) {
    const cdp__elastic_decision *old = v->old;
    cdp__elastic_member *const members = out->members;
    const cdp__elastic_arrival *a, *best;
    uint32_t r, here = 0, ending = 0;
    bool committed;
    memset(out, 0, sizeof *out);
    out->members = members;
    out->epoch = old->epoch + 1;
    out->tickets = old->tickets;
    if (!old->epoch) return cdp__elastic_found(v, out);
    best = cdp__elastic_best(v, NULL);
    committed = best && best->step > old->step;
    out->evicted = cdp__elastic_evict(v, members, committed);
    out->cool = (committed && old->joined ? 0 : old->cool) + out->evicted;
    out->cool = (uint32_t)cdp__min(out->cool, CDP__ELASTIC_COOL);
    best = cdp__elastic_best(v, members);
    out->step = best ? best->step : 0;
    out->samples = best ? best->samples : 0;
    for (r = 0; r < old->size; ++r) {
        const uint8_t strikes = members[r].strikes; /* members are added at r or before */
        const bool trial = cdp__elastic_on_trial(v, r);
        a = cdp__elastic_arrival_of(old, r, v->arrivals, v->arrival_count);
        if (!a || members[r].evicted) continue;
        ++here;
        ending += a->ending;
        if (out->size == v->max_ranks) continue;
        cdp__elastic_add(out, a->id, r, a == best || (a->has_state && a->step == out->step));
        out->members[out->size - 1].strikes = strikes;
        out->members[out->size - 1].on_trial = trial;
        out->members[out->size - 1].round_trip_ms = old->members[r].round_trip_ms;
    }
    out->lost = old->size - out->size;
    /* members that have done all steps need no others: min_ranks is for steps still to come */
    if (!here || ending < here) cdp__elastic_take_in(v, out);
    if (CDP__ELASTIC_PLANT(NEWCOMER_SOURCE)) cdp__elastic_trust_newcomers(v, out);
    if (!here) return CDP__ELASTIC_FEW;
    /* newcomers would not help */
    if (!best) return CDP__ELASTIC_NO_STATE;
    if (out->size < v->min_ranks && ending < here) return CDP__ELASTIC_FEW;
    return CDP__ELASTIC_DECIDED;
}

/* Applies a decision to the place of this process. False: this process is not a member of the new
   epoch. */
CDP__PRIVATE bool cdp__elastic_learn(cdp__elastic_place *p, const cdp__elastic_decision *d) {
    const cdp__elastic_member *m;
    uint32_t r;
    for (r = 0; r < d->size && !cdp__elastic_same(d->members[r].id, p->id); ++r) {
    }
    if (r == d->size) {
        if (p->phase == CDP__ELASTIC_ARRIVED && d->epoch == p->epoch + 1)
            p->phase = CDP__ELASTIC_OUT;
        return false;
    }
    m = &d->members[r];
    p->epoch = d->epoch;
    p->rank = r;
    p->size = d->size;
    p->blamed = 0;
    p->absent = false;
    p->phase = CDP__ELASTIC_JOINED;
    p->live = true;
    if (m->source) {
        p->has_state = true;
        p->fresh = false;
    } else if (m->old_rank == CDP__ELASTIC_NEW) {
        /* a newcomer's own state belongs to no epoch; otherwise it would count if this epoch ended
           before the newcomer had received state */
        p->has_state = false;
        p->fresh = d->members[0].old_rank == CDP__ELASTIC_NEW;
    }
    return true;
}

/* This process is about to receive state. `apart`: into separate memory, so that its present state
   stays complete until cdp__elastic_hold(). */
CDP__PRIVATE void cdp__elastic_receive(cdp__elastic_place *p, bool apart) {
    if (!apart && !CDP__ELASTIC_PLANT(RECEIVER_KEEPS_STATE)) p->has_state = p->fresh = false;
}

/* All of the state was received, and its hashes were equal: this process has it, also if it arrives
   before it runs. No: an alarm was first. */
CDP__PRIVATE bool cdp__elastic_hold(cdp__elastic_place *p, const cdp__elastic_decision *d) {
    if (p->phase != CDP__ELASTIC_JOINED || p->epoch != d->epoch) return false;
    p->has_state = true;
    p->fresh = false;
    p->step = d->step;
    p->samples = d->samples;
    return true;
}

/* The members are connected, and this process holds the state of the decision. No: an alarm was
   first. */
CDP__PRIVATE bool cdp__elastic_run(cdp__elastic_place *p, const cdp__elastic_decision *d) {
    if (!cdp__elastic_hold(p, d)) return false;
    p->phase = CDP__ELASTIC_RUNNING;
    return true;
}

/* Identifies a process, in the first message on each connection and in all that it sends: the
   member with this rank of this epoch. */
typedef struct cdp__elastic_hello {
    uint8_t id[CDP__ELASTIC_ID_BYTES];
    uint64_t epoch;
} cdp__elastic_hello;

CDP__PRIVATE bool cdp__elastic_fits(
    const cdp__elastic_decision *d, uint32_t rank, const cdp__elastic_hello *h) {
    if (rank >= d->size || !cdp__elastic_same(d->members[rank].id, h->id)) return false;
    return h->epoch == d->epoch || CDP__ELASTIC_PLANT(NO_EPOCH);
}

#endif /* CDP_SRC_ELASTIC_EPOCH_H */
