/*  cdp_elastic.h - ranks that come, go and die - v0.2.0 - MIT-0 or Unlicense

    WHAT IT IS
        The protocol by which a job goes on when its number of processes changes.

    CONTENTS (search for the name with >> before it)
        (implementation) epoch: who is in, from which step on, and whose state counts; turn: who
        proposes, and when; records: tickets, arrivals and decisions as bytes

    License: MIT-0 or Unlicense, as you like; see the end of cdp.h.                            */
#if defined(CDP_ELASTIC_IMPLEMENTATION) && !defined(CDP_TCP_IMPLEMENTATION)
#define CDP_TCP_IMPLEMENTATION
#endif
#include "cdp_tcp.h"

#ifndef CDP_ELASTIC_INCLUDED
#define CDP_ELASTIC_INCLUDED

#define CDP_ELASTIC_VERSION 200 /* major * 10000 + minor * 100 + patch */
#if CDP_ELASTIC_VERSION != CDP_VERSION
#error "cdp_elastic.h and cdp.h are of different versions: copy both from the same release"
#endif

#endif /* CDP_ELASTIC_INCLUDED */

#if (defined(CDP_IMPLEMENTATION) || defined(CDP_ELASTIC_IMPLEMENTATION)) \
    && !defined(CDP_ELASTIC_IMPL_INCLUDED)
#define CDP_ELASTIC_IMPL_INCLUDED
#undef CDP__HERE
#define CDP__HERE CDP__FILE_ELASTIC

#ifdef __cplusplus
extern "C" {
#endif

/* ---- >>epoch (pure): who is in, from which step on, and whose state counts ------------------- */

/* Knows: the place of one process, arrivals, tickets and decisions. Promises: a process that has
   arrived commits nothing more in its epoch; the step of a decision is the highest one committed
   among the arrived members of the epoch before; newcomers are never sources. May use: nothing. */

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
    uint8_t phase;          /* cdp__elastic_phase */
    bool has_state;         /* no while it receives: half of it would be of another step */
    bool live;              /* the group of this epoch may communicate */
    bool ending;            /* it has committed its last step */
} cdp__elastic_place;

/* A newcomer asks to be taken in. The step counts for the first epoch alone. */
typedef struct cdp__elastic_ticket {
    uint8_t id[CDP__ELASTIC_ID_BYTES];
    uint64_t step, samples;
    bool gone; /* nobody stands behind it any more */
} cdp__elastic_ticket;

/* "I complete nothing more in this epoch." */
typedef struct cdp__elastic_arrival {
    uint8_t id[CDP__ELASTIC_ID_BYTES];
    uint64_t step, samples;
    uint32_t rank;
    bool has_state, ending;
} cdp__elastic_arrival;

typedef struct cdp__elastic_member {
    uint8_t id[CDP__ELASTIC_ID_BYTES];
    uint32_t old_rank; /* CDP__ELASTIC_NEW: a newcomer */
    bool source;       /* it holds the state of the decision's step */
} cdp__elastic_member;

typedef struct cdp__elastic_decision {
    uint64_t epoch;         /* 0: none */
    uint64_t step, samples; /* of the state with which this epoch begins */
    uint32_t tickets;       /* how many tickets, from the first on, have been dealt with */
    uint32_t size, sources, lost, joined;
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

/* A step begins. No: this process has to take part in a turn first. */
CDP__PRIVATE bool cdp__elastic_begin(cdp__elastic_place *p, uint32_t batch) {
    if (p->phase != CDP__ELASTIC_RUNNING || !p->has_state) return false;
    if (CDP__ELASTIC_PLANT(COUNTED_EARLY)) p->samples += (uint64_t)p->size * batch;
    return true;
}

/* The step counts here, and its samples. No: an alarm was first, and it counts nowhere here. */
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

/* The process arrives: it revokes its group, commits nothing more, and says what it holds. No: it
   is in no epoch, or has arrived before. */
CDP__PRIVATE bool cdp__elastic_arrive(cdp__elastic_place *p, cdp__elastic_arrival *out) {
    if (p->phase != CDP__ELASTIC_JOINED && p->phase != CDP__ELASTIC_RUNNING) return false;
    p->phase = CDP__ELASTIC_ARRIVED;
    if (!CDP__ELASTIC_PLANT(NO_REVOKE)) p->live = false;
    memset(out, 0, sizeof *out);
    memcpy(out->id, p->id, sizeof out->id);
    out->step = p->step;
    out->samples = p->samples;
    out->rank = p->rank;
    out->has_state = p->has_state;
    out->ending = p->ending;
    return true;
}

/* The arrival of rank r of that epoch, or NULL. An arrival of anybody else counts for nothing. */
CDP__PRIVATE const cdp__elastic_arrival *cdp__elastic_arrival_of(const cdp__elastic_decision *d,
    uint32_t r, const cdp__elastic_arrival *arrivals, uint32_t count) {
    uint32_t i;
    for (i = 0; i < count; ++i)
        if (arrivals[i].rank == r && cdp__elastic_same(arrivals[i].id, d->members[r].id))
            return &arrivals[i];
    return NULL;
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
        if (v->tickets[i].gone) continue;
        cdp__elastic_add(out, v->tickets[i].id, CDP__ELASTIC_NEW, false);
        ++out->joined;
    }
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

/* Who claims to be further than the last epoch is no source, however far that is: the members may
   all have committed steps that it has never seen. This is the defect that would ask it. */
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

/* The next decision; out->members has room for max_ranks. Any process may make one of what it has
   seen, at any time: the first one that is in the store counts. */
CDP__PRIVATE cdp__elastic_verdict cdp__elastic_decide(
    const cdp__elastic_view *v, cdp__elastic_decision *out) {
    const cdp__elastic_decision *old = v->old;
    cdp__elastic_member *const members = out->members;
    const cdp__elastic_arrival *a;
    uint32_t r, here = 0, ending = 0;
    bool state = false;
    memset(out, 0, sizeof *out);
    out->members = members;
    out->epoch = old->epoch + 1;
    out->tickets = old->tickets;
    if (!old->epoch) return cdp__elastic_found(v, out);
    for (r = 0; r < old->size; ++r) {
        a = cdp__elastic_arrival_of(old, r, v->arrivals, v->arrival_count);
        if (!a) continue;
        ++here;
        ending += a->ending;
        if (!a->has_state || (state && a->step <= out->step)) continue;
        state = true;
        out->step = a->step;
        out->samples = a->samples;
    }
    for (r = 0; r < old->size && out->size < v->max_ranks; ++r) {
        a = cdp__elastic_arrival_of(old, r, v->arrivals, v->arrival_count);
        if (a) cdp__elastic_add(out, a->id, r, a->has_state && a->step == out->step);
    }
    out->lost = old->size - out->size;
    /* who is done needs nobody else: the minimum is for steps that are still to come */
    if (!here || ending < here) cdp__elastic_take_in(v, out);
    if (CDP__ELASTIC_PLANT(NEWCOMER_SOURCE)) cdp__elastic_trust_newcomers(v, out);
    if (!here || (out->size < v->min_ranks && ending < here)) return CDP__ELASTIC_FEW;
    return state ? CDP__ELASTIC_DECIDED : CDP__ELASTIC_NO_STATE;
}

/* What a decision makes of a process. No: it is not in it. */
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
    p->phase = CDP__ELASTIC_JOINED;
    p->live = true;
    /* what a newcomer holds is of no epoch; it would count if this epoch ended before it had
       received */
    if (m->old_rank == CDP__ELASTIC_NEW && !m->source) p->has_state = false;
    return true;
}

/* The first byte of the entries is about to be overwritten. */
CDP__PRIVATE void cdp__elastic_receive(cdp__elastic_place *p) {
    if (!CDP__ELASTIC_PLANT(RECEIVER_KEEPS_STATE)) p->has_state = false;
}

/* The members are connected, and this process holds the state of the decision. No: an alarm was
   first. */
CDP__PRIVATE bool cdp__elastic_run(cdp__elastic_place *p, const cdp__elastic_decision *d) {
    if (p->phase != CDP__ELASTIC_JOINED || p->epoch != d->epoch) return false;
    p->phase = CDP__ELASTIC_RUNNING;
    p->has_state = true;
    p->step = d->step;
    p->samples = d->samples;
    return true;
}

/* What a process says first on its connections, and with everything that it sends: it is the
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

/* ---- >>turn (pure): who proposes, and when --------------------------------------------------- */

/* Knows: who arrived and who is dead. Promises: nobody waits for the dead, nor longer than
   settle_ms for those of whom nothing is known; a dead leader costs CDP__ELASTIC_STAGGER_MS. These
   times decide how good a decision is, never whether there is one. May use: epoch. */

#define CDP__ELASTIC_STAGGER_MS 50u
#define CDP__ELASTIC_LOOK_MS 10u   /* how often the leader looks at arrivals */
#define CDP__ELASTIC_AGAIN_MS 100u /* after a proposal that was not possible */

typedef struct cdp__elastic_turn {
    const cdp__elastic_decision *d; /* the epoch that ends */
    const cdp__elastic_arrival *arrivals;
    uint32_t count;
    const bool *gone;  /* of each rank: known to be dead */
    uint32_t rank;     /* of the process that asks */
    uint64_t since_ms; /* since it arrived */
    uint32_t settle_ms;
} cdp__elastic_turn;

/* Each member has arrived or is known to be dead. */
CDP__PRIVATE bool cdp__elastic_complete(const cdp__elastic_turn *t) {
    uint32_t r;
    for (r = 0; r < t->d->size; ++r) {
        const bool known_dead = t->gone[r] && !CDP__ELASTIC_PLANT(WAITS_FOR_DEAD);
        if (!known_dead && !cdp__elastic_arrival_of(t->d, r, t->arrivals, t->count)) return false;
    }
    return true;
}

/* Whether this process proposes now. No: it looks again after *wait_ms. The lowest rank among the
   arrivals leads; the others propose later, one after the other. */
CDP__PRIVATE bool cdp__elastic_proposes(const cdp__elastic_turn *t, uint64_t *wait_ms) {
    uint64_t own_ms = t->settle_ms;
    uint32_t r, before = 0;
    for (r = 0; r < t->rank; ++r)
        before += cdp__elastic_arrival_of(t->d, r, t->arrivals, t->count) != NULL;
    *wait_ms = 0;
    if (!before && cdp__elastic_complete(t)) return true;
    own_ms += (uint64_t)before * CDP__ELASTIC_STAGGER_MS;
    if (t->since_ms >= own_ms) return true;
    *wait_ms = own_ms - t->since_ms;
    if (!before && *wait_ms > CDP__ELASTIC_LOOK_MS) *wait_ms = CDP__ELASTIC_LOOK_MS;
    return false;
}

/* The same for the first epoch: the oldest ticket that is not gone leads, and waits until max_ranks
   are there, or min_ranks and no other one has come for settle_ms. */
CDP__PRIVATE bool cdp__elastic_founds(
    const cdp__elastic_view *v, const uint8_t *id, uint64_t quiet_ms, uint32_t settle_ms) {
    uint32_t i, there = 0;
    bool leads = false;
    for (i = 0; i < v->ticket_count; ++i) {
        if (v->tickets[i].gone) continue;
        if (!there) leads = cdp__elastic_same(v->tickets[i].id, id);
        ++there;
    }
    if (!leads || there < v->min_ranks) return false;
    return there >= v->max_ranks || quiet_ms >= settle_ms;
}

/* ---- >>records (pure): tickets, arrivals and decisions as bytes ------------------------------ */

/* Knows: what is in the store. Promises: bytes that nobody wrote as a record are refused, and never
   read beyond their end. May use: epoch, bytes and hash of cdp.h. */

#define CDP__ELASTIC_RECORD_BYTES 48u /* of a ticket or an arrival */
#define CDP__ELASTIC_HEAD_BYTES 216u  /* of a decision, before its members */
#define CDP__ELASTIC_MEMBER_BYTES 24u
#define CDP__ELASTIC_RECORD_MARK 0x31726c65u   /* "elr1" */
#define CDP__ELASTIC_DECISION_MARK 0x31646c65u /* "eld1" */

/* mark, rank, flags, sum over the rest; step, samples; id */
CDP__PRIVATE void cdp__elastic_put_record(uint8_t *out, const cdp__elastic_arrival *a) {
    cdp__put_u32(out, CDP__ELASTIC_RECORD_MARK);
    cdp__put_u32(out + 4, a->rank);
    cdp__put_u32(out + 8, (a->has_state ? 1u : 0u) | (a->ending ? 2u : 0u));
    cdp__put_u64(out + 16, a->step);
    cdp__put_u64(out + 24, a->samples);
    memcpy(out + 32, a->id, CDP__ELASTIC_ID_BYTES);
    cdp__put_u32(out + 12, 0);
    cdp__put_u32(out + 12, (uint32_t)cdp__hash(CDP__HASH_START, out, CDP__ELASTIC_RECORD_BYTES));
}

CDP__PRIVATE bool cdp__elastic_get_record(const uint8_t *in, cdp__elastic_arrival *a) {
    uint8_t copy[CDP__ELASTIC_RECORD_BYTES];
    memcpy(copy, in, sizeof copy);
    memset(copy + 12, 0, 4);
    memset(a, 0, sizeof *a);
    if (cdp__get_u32(in) != CDP__ELASTIC_RECORD_MARK) return false;
    if (cdp__get_u32(in + 12) != (uint32_t)cdp__hash(CDP__HASH_START, copy, sizeof copy))
        return false;
    a->rank = cdp__get_u32(in + 4);
    a->has_state = (in[8] & 1) != 0;
    a->ending = (in[8] & 2) != 0;
    a->step = cdp__get_u64(in + 16);
    a->samples = cdp__get_u64(in + 24);
    memcpy(a->id, in + 32, sizeof a->id);
    return true;
}

CDP__PRIVATE uint64_t cdp__elastic_decision_bytes(uint32_t size) {
    return CDP__ELASTIC_HEAD_BYTES + (uint64_t)size * CDP__ELASTIC_MEMBER_BYTES;
}

/* mark, size, tickets, lost, joined, 0; epoch, step, samples; sum; cause; then members */
CDP__PRIVATE void cdp__elastic_put_decision(uint8_t *out, const cdp__elastic_decision *d) {
    const uint64_t bytes = cdp__elastic_decision_bytes(d->size);
    uint32_t r;
    memset(out, 0, (size_t)bytes);
    cdp__put_u32(out, CDP__ELASTIC_DECISION_MARK);
    cdp__put_u32(out + 4, d->size);
    cdp__put_u32(out + 8, d->tickets);
    cdp__put_u32(out + 12, d->lost);
    cdp__put_u32(out + 16, d->joined);
    cdp__put_u64(out + 24, d->epoch);
    cdp__put_u64(out + 32, d->step);
    cdp__put_u64(out + 40, d->samples);
    memcpy(out + 56, d->cause, sizeof d->cause);
    for (r = 0; r < d->size; ++r) {
        uint8_t *at = out + cdp__elastic_decision_bytes(r);
        memcpy(at, d->members[r].id, CDP__ELASTIC_ID_BYTES);
        cdp__put_u32(at + 16, d->members[r].old_rank);
        cdp__put_u32(at + 20, d->members[r].source ? 1 : 0);
    }
    cdp__put_u64(out + 48, cdp__hash(CDP__HASH_START, out, bytes));
}

/* How many members the bytes hold; 0: they are no decision. */
CDP__PRIVATE uint32_t cdp__elastic_decision_size(const uint8_t *in, uint64_t bytes) {
    uint32_t size;
    if (bytes < CDP__ELASTIC_HEAD_BYTES || cdp__get_u32(in) != CDP__ELASTIC_DECISION_MARK) return 0;
    size = cdp__get_u32(in + 4);
    return bytes == cdp__elastic_decision_bytes(size) ? size : 0;
}

/* d->members has room for as many as cdp__elastic_decision_size() said. Changes `in`. */
CDP__PRIVATE bool cdp__elastic_get_decision(uint8_t *in, uint64_t bytes, cdp__elastic_decision *d) {
    const uint32_t size = cdp__elastic_decision_size(in, bytes);
    const uint64_t sum = size ? cdp__get_u64(in + 48) : 0;
    cdp__elastic_member *const members = d->members;
    uint32_t r;
    if (!size) return false;
    cdp__put_u64(in + 48, 0);
    if (cdp__hash(CDP__HASH_START, in, bytes) != sum) return false;
    memset(d, 0, sizeof *d);
    d->members = members;
    d->tickets = cdp__get_u32(in + 8);
    d->lost = cdp__get_u32(in + 12);
    d->joined = cdp__get_u32(in + 16);
    d->epoch = cdp__get_u64(in + 24);
    d->step = cdp__get_u64(in + 32);
    d->samples = cdp__get_u64(in + 40);
    memcpy(d->cause, in + 56, sizeof d->cause - 1);
    for (r = 0; r < size; ++r) {
        const uint8_t *at = in + cdp__elastic_decision_bytes(r);
        cdp__elastic_add(d, at, cdp__get_u32(at + 16), cdp__get_u32(at + 20) != 0);
    }
    return d->epoch && d->sources;
}

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* CDP_ELASTIC_IMPL_INCLUDED */
