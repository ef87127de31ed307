/* elastic/turn.h - who proposes, and when (pure)

   Knows: who arrived and who is dead. Promises: nobody waits for the dead, nor longer than
   settle_ms (begun anew after a standstill of its own) for those of whom nothing is known; a
   dead leader costs CDP__ELASTIC_STAGGER_MS. These times decide how good a decision is, never
   whether there is one. */
#ifndef CDP_SRC_ELASTIC_TURN_H
#define CDP_SRC_ELASTIC_TURN_H

#include "../base/config.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "epoch.h"

#define CDP__ELASTIC_STAGGER_MS 50u
#define CDP__ELASTIC_FOUND_MS 100u /* the same before the first epoch, where all poll less often */
#define CDP__ELASTIC_LOOK_MS 10u   /* how often the leader reads the arrivals */
#define CDP__ELASTIC_AGAIN_MS 100u /* after a proposal that was not possible */
#define CDP__ELASTIC_PAUSES 3u /* after which the time goes on, on a machine that is always late */

/* How many round trips things take; see cdp__elastic_init_ms() and cdp__elastic_settle_ms(). */
#define CDP__ELASTIC_INIT_TRIPS 48u
#define CDP__ELASTIC_SETTLE_TRIPS 4u
#define CDP__ELASTIC_INIT_MS 500u /* for the first attempt to connect, without them */

/* The longest round trip of a member to the store, which is equal on all ranks of the epoch. */
CDP__PRIVATE uint32_t cdp__elastic_round_trip_ms(const cdp__elastic_decision *d) {
    uint32_t r, most = 0;
    for (r = 0; r < d->size; ++r)
        most = (uint32_t)cdp__max(most, d->members[r].round_trip_ms);
    return most;
}

/* For an attempt to connect, after so many that failed. cdp_init() over TCP took 15 to 20 round
   trips without a job key, and 43 of 100 ms where there was one: addresses in the store of the job,
   a connection to the store of rank 0, addresses of all ranks there, connections between ranks, and
   the agreement that all are complete. */
CDP__PRIVATE uint32_t cdp__elastic_init_ms(const cdp__elastic_decision *d, uint32_t failures) {
    const uint32_t trips_ms = CDP__ELASTIC_INIT_TRIPS * cdp__elastic_round_trip_ms(d);
    return (CDP__ELASTIC_INIT_MS + d->size * 20u + trips_ms) << cdp__min(failures, 5);
}

/* The same, where operations may take timeout_ms: that bounds how the time grows, and not the first
   attempt, which needs its round trips. */
CDP__PRIVATE uint32_t cdp__elastic_attempt_ms(
    const cdp__elastic_decision *d, uint32_t failures, uint32_t timeout_ms) {
    const uint32_t least_ms = (uint32_t)cdp__max(timeout_ms, cdp__elastic_init_ms(d, 0));
    return (uint32_t)cdp__min(cdp__elastic_init_ms(d, failures), least_ms);
}

/* For how long arrivals are waited for. Between the first arrival and another one are half a round
   trip until the other process reads the alarm, one in which it may finish what it asks now, and
   one in which it arrives; the process that waits needs two to read the arrivals. */
CDP__PRIVATE uint32_t cdp__elastic_settle_ms(const cdp__elastic_decision *d, uint32_t settle_ms) {
    return settle_ms + CDP__ELASTIC_SETTLE_TRIPS * cdp__elastic_round_trip_ms(d);
}

typedef struct cdp__elastic_turn {
    const cdp__elastic_decision *d; /* the epoch that ends */
    const cdp__elastic_arrival *arrivals;
    uint32_t count;
    const bool *dead;  /* of each rank: known to be dead */
    uint32_t rank;     /* of the process that asks */
    uint64_t since_ms; /* see cdp__elastic_waited_ms() */
    uint32_t settle_ms;
} cdp__elastic_turn;

/* How long a process has waited for members that have neither arrived nor are known to be dead. */
typedef struct cdp__elastic_settle {
    uint64_t since_ns, due_ns; /* due_ns: when it planned to poll next */
    uint32_t pauses;
} cdp__elastic_settle;

/* If this process polls much later than planned, it was stopped itself, perhaps with its machine
   and all other processes there. Then missing arrivals prove nothing, so the other members get the
   whole time once more. */
CDP__PRIVATE uint64_t cdp__elastic_waited_ms(
    cdp__elastic_settle *s, uint64_t time_ns, uint32_t settle_ms) {
    const uint64_t late_ns = time_ns > s->due_ns ? time_ns - s->due_ns : 0;
    if (late_ns > settle_ms * CDP__MS / 2 && s->pauses < CDP__ELASTIC_PAUSES
        && !CDP__ELASTIC_PLANT(COUNTS_PAUSES)) {
        ++s->pauses;
        s->since_ns = time_ns;
    }
    return (time_ns - s->since_ns) / CDP__MS;
}

/* Each member has arrived or is known to be dead. */
CDP__PRIVATE bool cdp__elastic_complete(const cdp__elastic_turn *t) {
    uint32_t r;
    for (r = 0; r < t->d->size; ++r) {
        const bool known_dead = t->dead[r] && !CDP__ELASTIC_PLANT(WAITS_FOR_DEAD);
        if (!known_dead && !cdp__elastic_arrival_of(t->d, r, t->arrivals, t->count)) return false;
    }
    return true;
}

/* The leader: the lowest rank that has arrived and, as far as this process knows, is alive. */
CDP__PRIVATE uint32_t cdp__elastic_leader(const cdp__elastic_turn *t) {
    uint32_t r;
    for (r = 0; r < t->rank; ++r)
        if (!t->dead[r] && cdp__elastic_arrival_of(t->d, r, t->arrivals, t->count)) break;
    return r;
}

/* True if this process proposes a decision now. False: it polls again after *wait_ms. If the leader
   does not propose, the other ranks do, one after the other. */
CDP__PRIVATE bool cdp__elastic_proposes(const cdp__elastic_turn *t, uint64_t *wait_ms) {
    uint64_t own_ms = t->settle_ms;
    uint32_t r, before = 0;
    for (r = 0; r < t->rank; ++r)
        if (!t->dead[r]) before += cdp__elastic_arrival_of(t->d, r, t->arrivals, t->count) != NULL;
    *wait_ms = 0;
    if (!before && cdp__elastic_complete(t)) return true;
    own_ms += (uint64_t)before * CDP__ELASTIC_STAGGER_MS;
    if (t->since_ms >= own_ms) return true;
    *wait_ms = own_ms - t->since_ms;
    if (!before && *wait_ms > CDP__ELASTIC_LOOK_MS) *wait_ms = CDP__ELASTIC_LOOK_MS;
    return false;
}

/* True if this process proposes the first epoch now. The process with the oldest live ticket does,
   when there are max_ranks, or at least min_ranks and no new ticket for settle_ms. It may be dead,
   and not known to be: if it does not propose, the others do, one after the other. */
CDP__PRIVATE bool cdp__elastic_founds(
    const cdp__elastic_view *v, const uint8_t *id, uint64_t quiet_ms, uint32_t settle_ms) {
    uint32_t i, there = 0, before = 0;
    bool mine = false;
    for (i = 0; i < v->ticket_count; ++i) {
        if (v->tickets[i].ended) continue;
        mine = mine || cdp__elastic_same(v->tickets[i].id, id);
        before += !mine;
        ++there;
    }
    if (!mine || there < v->min_ranks) return false;
    if (!before && there >= v->max_ranks) return true;
    return quiet_ms >= settle_ms + (uint64_t)before * CDP__ELASTIC_FOUND_MS;
}

#endif /* CDP_SRC_ELASTIC_TURN_H */
