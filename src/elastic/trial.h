/* elastic/trial.h - newcomers are tried beside the running epoch

   Knows: who asks for it. A newcomer and all members connect as they would for the next epoch, and
   part again. Promises: a member waits for nothing here but short answers of the store, and only
   while newcomers ask; the epoch goes on, whatever becomes of a trial. */
#ifndef CDP_SRC_ELASTIC_TRIAL_H
#define CDP_SRC_ELASTIC_TRIAL_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/error_api.h"
#include "../base/log_api.h"
#include "../store/interface_api.h"
#include "../group/group_api.h"
#include "../group/collectives_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/hash.h"
#include "../text/format.h"
#include "../store/store_api.h"
#include "../store/calls.h"
#include "../tcp/desc_api.h"
#include "../tcp/create_api.h"
#include "epoch.h"
#include "turn.h"
#include "records.h"
#include "store.h"

#define CDP__ELASTIC_MOST_JOB 48u /* that cdp_tcp_desc.job takes */

/* The name under which ranks meet, for cdp_tcp_desc.job, which is shorter than a key may be.
   `trial` 0: those of epoch k; else those of that trial beside it. */
CDP__PRIVATE void cdp__elastic_meeting(
    const cdp_elastic *e, char out[CDP__ELASTIC_KEY], uint64_t k, uint64_t trial) {
    char what[64];
    if (trial)
        cdp__format(what, sizeof what, "e/%llu/trial/%llu", (unsigned long long)k,
            (unsigned long long)trial);
    else
        cdp__format(what, sizeof what, "e/%llu/init", (unsigned long long)k);
    cdp__elastic_key(e, out, "%s", what);
    if (strlen(out) <= CDP__ELASTIC_MOST_JOB) return;
    cdp__format(out, CDP__ELASTIC_KEY, "%llx/%s",
        (unsigned long long)cdp__hash(CDP__HASH_START, e->job, strlen(e->job)), what);
}

/* The key that ranks leave behind which met under this name. */
CDP__PRIVATE void cdp__elastic_meeting_key(
    const cdp_elastic *e, char out[CDP__ELASTIC_KEY], uint64_t k, uint64_t trial) {
    cdp__elastic_meeting(e, out, k, trial);
    memcpy(out + strlen(out), "/meet", 6);
}

/* The trial beside epoch k: d->epoch is its number; d->members is allocated, NULL: there is
   none. */
CDP__PRIVATE cdp_status cdp__elastic_read_trial(
    cdp_elastic *e, cdp_store *s, uint64_t k, cdp__elastic_decision *d) {
    char key[CDP__ELASTIC_KEY];
    cdp__elastic_key(e, key, "e/%llu/trial", (unsigned long long)k);
    return cdp__elastic_read_form(e, s, key, 0, d);
}

/* Announces a trial: d->epoch is its number. */
CDP__PRIVATE cdp_status cdp__elastic_put_trial(
    cdp_elastic *e, uint64_t k, const cdp__elastic_decision *d) {
    char key[CDP__ELASTIC_KEY];
    const uint64_t bytes = cdp__elastic_decision_bytes(d->size);
    uint8_t *out = (uint8_t *)cdp__alloc(e->os, bytes);
    cdp_status st;
    if (!out) return cdp__fail_nomem("a trial", bytes);
    cdp__elastic_put_decision(out, d);
    cdp__elastic_key(e, key, "e/%llu/trial", (unsigned long long)k);
    st = cdp__elastic_put(e, e->store, CDP_STORE_SET, key, out, bytes);
    cdp__free(e->os, out);
    return st;
}

/* Removes the keys of a trial. */
CDP__PRIVATE cdp_status cdp__elastic_tidy_trial(cdp_elastic *e, uint64_t k, uint64_t number) {
    char key[CDP__ELASTIC_KEY];
    cdp_status st;
    cdp__elastic_key(e, key, "e/%llu/trial", (unsigned long long)k);
    st = cdp__elastic_put(e, e->store, CDP_STORE_DELETE, key, NULL, 0);
    cdp__elastic_meeting_key(e, key, k, number);
    return st == CDP_OK ? cdp__elastic_put(e, e->store, CDP_STORE_DELETE, key, NULL, 0) : st;
}

/* Tickets of those that may be taken in: they live, and do not ask to be tried before. */
CDP__PRIVATE uint32_t cdp__elastic_waiting(
    const cdp__elastic_ticket *tickets, uint32_t from, uint32_t count) {
    uint32_t i, n = 0;
    for (i = from; i < count; ++i)
        n += !tickets[i].ended && !tickets[i].asks;
    return n;
}

#ifndef CDP_NO_FRAMES

#define CDP__ELASTIC_TRIAL_US 5000u /* for how long a thread goes on before it checks the alarm */
#define CDP__ELASTIC_TRIAL_BYTES 4096u /* more than a packet holds: some networks drop long ones */
#define CDP__ELASTIC_PROBE_BYTES (16u << 10) /* of the first one; smaller states come at once */
#define CDP__ELASTIC_MOST_PROBE (4u << 20)
#define CDP__ELASTIC_PROBE_MS 250u       /* one that takes so long says how fast a link is */
#define CDP__ELASTIC_PROBE_TRIPS 8u      /* and what these take says nothing about it */
#define CDP__ELASTIC_TRIAL_PAUSE_MS 500u /* between trials; doubles with each that fails */

/* Ranks other than 0 poll for a trial less often in large jobs, for the sake of the store. */
CDP__PRIVATE uint64_t cdp__elastic_look_ms(const cdp_elastic *e) {
    return CDP__ELASTIC_SLICE_MS + (e->place.rank ? e->d.size * 2u : 0u);
}

/* Long enough for members without threads, which go on in their calls only: nobody waits for it but
   other newcomers. */
CDP__PRIVATE uint32_t cdp__elastic_trial_ms(const cdp_elastic *e, const cdp__elastic_decision *d) {
    const uint64_t looks_ms = 2 * (CDP__ELASTIC_SLICE_MS + d->size * 2u) + 4ull * e->desc.settle_ms;
    return cdp__elastic_attempt_ms(d, d->cool, e->store_ms)
        + (uint32_t)cdp__min(looks_ms, e->store_ms);
}

/* How this process connects as `rank` in trial number d->epoch beside epoch k. */
CDP__PRIVATE void cdp__elastic_trial_desc(
    cdp_elastic *e, const cdp__elastic_decision *d, uint64_t k, uint32_t rank, cdp_tcp_desc *t) {
    cdp__elastic_trial *const tr = &e->trial;
    uint32_t r;
    *t = e->tcp;
    cdp__elastic_meeting(e, tr->job, k, d->epoch);
    t->group.rank = rank;
    t->group.world_size = d->size;
    t->group.no_thread = true;
    t->group.logger.level = CDP_LOG_SILENT; /* a trial that fails is no mistake of a member */
    t->store = tr->store ? tr->store : e->store;
    t->job = tr->job;
    t->master_port = 0; /* the group of the epoch may listen there */
    t->init_timeout_ms = cdp__elastic_trial_ms(e, d);
    t->group.timeout_ms = t->init_timeout_ms;
    tr->number = d->epoch;
    tr->trip_ms = cdp__elastic_round_trip_ms(d);
    for (r = tr->newcomers = 0; r < d->size; ++r)
        tr->newcomers += d->members[r].old_rank == CDP__ELASTIC_NEW;
}

/* What belongs to another epoch is forgotten. */
CDP__PRIVATE cdp__elastic_trial *cdp__elastic_trial_of(cdp_elastic *e, uint64_t k) {
    if (e->trial.epoch != k) memset(&e->trial, 0, sizeof e->trial);
    e->trial.epoch = k;
    return &e->trial;
}

/* Somebody asks who did not before, and is tried at once; alone, if an attempt with all failed. */
CDP__PRIVATE void cdp__elastic_trial_soon(cdp__elastic_trial *tr) {
    tr->failures = tr->failures > 0;
    tr->due_ns = 0;
}

CDP__PRIVATE uint32_t cdp__elastic_rank_in(const cdp__elastic_decision *d, const uint8_t *id) {
    uint32_t r;
    for (r = 0; r < d->size && !cdp__elastic_same(d->members[r].id, id); ++r) {
    }
    return r;
}

CDP__PRIVATE bool cdp__elastic_trial_runs(const cdp_elastic *e) {
    return e->trial.starting || e->trial.group;
}

/* Nothing of a trial goes on any more, at once: who stops it may be about to decide on the next
   epoch. Its keys are removed with those of the epoch. */
CDP__PRIVATE void cdp__elastic_trial_stop(cdp_elastic *e) {
    cdp__elastic_trial *const tr = &e->trial;
    const cdp_error why = *cdp_last_error();
    cdp_init_cancel(tr->starting);
    /* a group that is being left ends without a wait */
    if (tr->group && cdp_group_leave(tr->group, 0) == CDP_PENDING) cdp_group_destroy(tr->group);
    cdp__free(e->os, tr->data);
    if (tr->store) cdp_store_destroy(tr->store);
    tr->starting = NULL;
    tr->group = NULL;
    tr->data = NULL;
    tr->store = NULL;
    tr->leaving = false;
    *cdp__error_slot() = why;
}

CDP__PRIVATE bool cdp__elastic_any(const uint8_t *p, uint64_t bytes) {
    uint64_t i;
    for (i = 0; i < bytes && !p[i]; ++i) {
    }
    return i < bytes;
}

/* Newcomers and all ranks exchange so much: `sent` bytes from each rank that is not a newcomer, and
   `back` from newcomers to each rank. */
CDP__PRIVATE cdp_status cdp__elastic_trial_move(cdp_elastic *e, uint64_t sent, uint64_t back) {
    cdp__elastic_trial *const tr = &e->trial;
    const uint32_t size = cdp_size(tr->group), rank = cdp_rank(tr->group);
    const uint32_t first = size - tr->newcomers;
    const uint64_t most = (uint64_t)size * cdp__max(sent, back);
    const uint64_t room = 2ull * size * sizeof(uint64_t) + 2 * most;
    uint64_t *counts;
    cdp_request rq;
    uint32_t r;
    cdp__free(e->os, tr->data);
    tr->data = (uint8_t *)cdp__alloc_zero(e->os, room);
    if (!tr->data) return cdp__fail_nomem("what a trial exchanges", room);
    counts = (uint64_t *)(void *)tr->data;
    for (r = 0; r < size; ++r) {
        if (r == rank || (r < first && rank < first)) continue;
        counts[r] = rank < first ? sent : back;
        counts[size + r] = r < first ? sent : back;
    }
    memset(&rq, 0, sizeof rq);
    rq.kind = CDP_COLL_ALLTOALL;
    rq.dtype = CDP_DTYPE_U8;
    rq.in_counts = counts;
    rq.out_counts = counts + size;
    rq.in = tr->data + 2ull * size * sizeof *counts;
    rq.out = tr->data + 2ull * size * sizeof *counts + most;
    memset(tr->data + 2ull * size * sizeof *counts, e->no_thread, (size_t)most);
    return cdp_start(tr->group, &rq, &tr->work);
}

/* Groups connect two ranks when these have something for each other: here each newcomer exchanges
   something with all ranks. */
CDP__PRIVATE cdp_status cdp__elastic_trial_exchange(cdp_elastic *e) {
    e->trial.part = CDP__ELASTIC_MEETS;
    e->trial.probe = 0;
    e->trial.slow = false;
    return cdp__elastic_trial_move(e, CDP__ELASTIC_TRIAL_BYTES, CDP__ELASTIC_TRIAL_BYTES);
}

/* ---- how fast the state would come

   While a newcomer receives the state, the members wait. If its link is so slow that the state does
   not arrive within the deadline of operations, they would lose whole epochs: so they send it some
   of as many bytes before, twice as much each time, until that took long enough to judge. What
   seems too slow is looked at twice: a machine may be busy for a moment. Where the store is far
   away, a probe takes round trips, and members wait for answers of the store before they send it:
   that time does not count. Members without threads send in their calls alone, which says nothing
   about the link. */

/* Bytes of state that may be on their way to a newcomer at the same time: each must arrive within
   timeout_ms. */
CDP__PRIVATE uint64_t cdp__elastic_in_flight(const cdp_elastic *e) {
    uint64_t bytes = 0;
    uint32_t i;
    for (i = 0; i < e->desc.entry_count; ++i)
        bytes += e->desc.entries[i].count * cdp_dtype_size(e->desc.entries[i].dtype);
    return cdp__min(bytes, 2ull * CDP__ELASTIC_SOURCES * CDP__ELASTIC_PIECE);
}

CDP__PRIVATE cdp_status cdp__elastic_trial_probe(cdp_elastic *e) {
    cdp__elastic_trial *const tr = &e->trial;
    const uint32_t members = cdp_size(tr->group) - tr->newcomers;
    if (!tr->slow) tr->probe = tr->probe ? 2 * tr->probe : CDP__ELASTIC_PROBE_BYTES;
    tr->part = CDP__ELASTIC_PROBES;
    tr->probe_ns = cdp__elastic_now_ns(e);
    return cdp__elastic_trial_move(e, tr->probe / members + 1, 0);
}

/* What a newcomer says of a probe: the least answer of all ranks counts. */
enum {
    CDP__ELASTIC_AGAIN, /* it was too slow */
    CDP__ELASTIC_MORE,
    CDP__ELASTIC_ENOUGH
};

/* A newcomer has got a probe. An error if the state would not arrive in time. */
CDP__PRIVATE cdp_status cdp__elastic_trial_judge(cdp_elastic *e, uint8_t *answer) {
    cdp__elastic_trial *const tr = &e->trial;
    const uint64_t bytes = cdp__elastic_in_flight(e);
    const uint64_t took_us = (cdp__elastic_now_ns(e) - tr->probe_ns) / 1000;
    const uint64_t trips_us = CDP__ELASTIC_PROBE_TRIPS * tr->trip_ms * 1000ull;
    const uint64_t us = took_us > trips_us ? took_us - trips_us : 0;
    const uint64_t ms = us * (bytes / (tr->probe >> 10) + 1) / 1024 / 1000;
    const bool enough = us >= CDP__ELASTIC_PROBE_MS * 1000ull || tr->probe >= bytes
        || tr->probe >= CDP__ELASTIC_MOST_PROBE;
    const bool late = enough && !tr->uneven && ms > e->tcp.group.timeout_ms;
    *answer = enough ? CDP__ELASTIC_ENOUGH : CDP__ELASTIC_MORE;
    if (late) *answer = CDP__ELASTIC_AGAIN;
    if (!late || !tr->slow) return CDP_OK;
    return cdp__fail(CDP_ERR_TIMEOUT,
        "%llu bytes took %llu ms from the ranks to this process; the state would take %llu ms, and "
        "timeout_ms is %u ms",
        (unsigned long long)tr->probe, (unsigned long long)(us / 1000), (unsigned long long)ms,
        e->tcp.group.timeout_ms);
}

/* All ranks learn whether each newcomer knows enough; ranks that are none have no opinion. */
CDP__PRIVATE cdp_status cdp__elastic_trial_ask(cdp_elastic *e) {
    cdp__elastic_trial *const tr = &e->trial;
    const bool newcomer = cdp_rank(tr->group) >= cdp_size(tr->group) - tr->newcomers;
    cdp_status st = CDP_OK;
    tr->answer[0] = CDP__ELASTIC_ENOUGH;
    if (newcomer) st = cdp__elastic_trial_judge(e, &tr->answer[0]);
    if (st != CDP_OK) return st;
    tr->part = CDP__ELASTIC_JUDGES;
    return cdp_allreduce_async(
        tr->group, &tr->answer[0], &tr->answer[1], 1, CDP_DTYPE_U8, CDP_REDUCE_MIN, &tr->work);
}

/* What comes after a part that has succeeded: CDP_PENDING, or CDP_OK if it was the last one. */
CDP__PRIVATE cdp_status cdp__elastic_trial_next(cdp_elastic *e) {
    cdp__elastic_trial *const tr = &e->trial;
    const uint32_t size = cdp_size(tr->group);
    const uint8_t *const got =
        tr->data + 2ull * size * sizeof(uint64_t) + (uint64_t)size * CDP__ELASTIC_TRIAL_BYTES;
    bool more = false;
    cdp_status st;
    if (tr->part == CDP__ELASTIC_PARTS) return CDP_OK;
    if (tr->part == CDP__ELASTIC_MEETS) {
        tr->uneven = cdp__elastic_any(got, (uint64_t)(size - 1) * CDP__ELASTIC_TRIAL_BYTES);
        more =
            cdp__elastic_in_flight(e) > CDP__ELASTIC_PROBE_BYTES && !CDP__ELASTIC_PLANT(NO_PROBE);
    }
    if (tr->part == CDP__ELASTIC_JUDGES) {
        more = tr->answer[1] != CDP__ELASTIC_ENOUGH;
        tr->slow = tr->answer[1] == CDP__ELASTIC_AGAIN;
    }
    if (tr->part == CDP__ELASTIC_PROBES)
        st = cdp__elastic_trial_ask(e);
    else if (more)
        st = cdp__elastic_trial_probe(e);
    else {
        tr->part = CDP__ELASTIC_PARTS;
        st = cdp_barrier_async(tr->group, &tr->work);
    }
    return st == CDP_OK ? CDP_PENDING : st;
}

/* How long a member may take for a client of its own: it reads no alarm meanwhile, and others wait
   for it as long. Connecting takes up to 8 round trips. */
CDP__PRIVATE uint32_t cdp__elastic_clone_ms(const cdp_elastic *e) {
    const uint32_t settle_ms = cdp__elastic_settle_ms(&e->d, e->desc.settle_ms);
    return settle_ms + CDP__ELASTIC_SETTLE_TRIPS * cdp__elastic_round_trip_ms(&e->d);
}

/* This member begins to connect. If it cannot, the trial fails, and nothing else. */
CDP__PRIVATE void cdp__elastic_trial_begin(
    cdp_elastic *e, const cdp__elastic_decision *d, uint64_t k) {
    cdp__elastic_trial *const tr = &e->trial;
    const uint32_t rank = cdp__elastic_rank_in(d, e->place.id);
    cdp_tcp_desc t;
    cdp_status st;
    if (rank == d->size) return;
    st = cdp__store_clone_within(e->store, cdp__elastic_clone_ms(e), &tr->store);
    if (st == CDP_ERR_UNSUPPORTED) st = CDP_OK;
    cdp__elastic_trial_desc(e, d, k, rank, &t);
    if (st == CDP_OK) st = cdp_init_start(&t, &tr->starting);
    if (st != CDP_OK) cdp__elastic_trial_stop(e);
}

/* A member reads which trial there is. */
CDP__PRIVATE cdp_status cdp__elastic_trial_read(cdp_elastic *e, uint64_t k) {
    cdp__elastic_trial *const tr = cdp__elastic_trial_of(e, k);
    cdp__elastic_decision d;
    cdp_status st;
    if (cdp__elastic_trial_runs(e)) return CDP_OK;
    st = cdp__elastic_read_trial(e, e->store, k, &d);
    if (st == CDP_OK && d.members && d.epoch > tr->number) cdp__elastic_trial_begin(e, &d, k);
    cdp__free(e->os, d.members);
    return st;
}

/* The trial has ended on this member. Rank 0 removes its keys. */
CDP__PRIVATE cdp_status cdp__elastic_trial_ended(cdp_elastic *e, bool connected) {
    cdp__elastic_trial *const tr = &e->trial;
    uint64_t pause_ms;
    if (!tr->announced) return CDP_OK;
    tr->announced = false;
    tr->failures = connected ? 0 : tr->failures + 1;
    pause_ms = CDP__ELASTIC_TRIAL_PAUSE_MS << cdp__min(tr->failures, CDP__ELASTIC_COOL);
    tr->due_ns = cdp__elastic_now_ns(e) + pause_ms * CDP__MS;
    return cdp__elastic_tidy_trial(e, tr->epoch, tr->number);
}

/* Rank 0 has `tickets` in v, and begins a trial if somebody asks for one. */
CDP__PRIVATE cdp_status cdp__elastic_trial_call(
    cdp_elastic *e, const cdp__elastic_view *v, uint64_t k, bool *asked) {
    cdp__elastic_trial *const tr = cdp__elastic_trial_of(e, k);
    const uint64_t room = (uint64_t)v->old->size + v->ticket_count + 1;
    cdp__elastic_decision d;
    cdp_status st = CDP_OK;
    d.members = (cdp__elastic_member *)cdp__alloc(e->os, room * sizeof *d.members);
    if (!d.members) return cdp__fail_nomem("a list of members", room * sizeof *d.members);
    *asked = cdp__elastic_draw_trial(v, tr->failures > 0, tr->turn, &d);
    if (!*asked) tr->failures = tr->turn = 0;
    if (*asked && !cdp__elastic_trial_runs(e) && cdp__elastic_now_ns(e) >= tr->due_ns) {
        d.epoch = tr->number + 1;
        d.cool = (uint32_t)cdp__min(tr->failures, CDP__ELASTIC_COOL);
        tr->turn += tr->failures > 0;
        st = cdp__elastic_put_trial(e, k, &d);
        tr->announced = true;
        if (st == CDP_OK) cdp__elastic_trial_begin(e, &d, k);
        if (st == CDP_OK && !cdp__elastic_trial_runs(e)) st = cdp__elastic_trial_ended(e, false);
    }
    cdp__free(e->os, d.members);
    return st;
}

/* One step in the group of a trial: CDP_PENDING, or how the trial ends. */
CDP__PRIVATE cdp_status cdp__elastic_trial_step(cdp_elastic *e, uint32_t budget_us) {
    cdp__elastic_trial *const tr = &e->trial;
    cdp_status st;
    if (tr->starting) {
        st = cdp_init_poll(tr->starting, budget_us, &tr->group);
        if (st == CDP_PENDING) return st;
        tr->starting = NULL;
        if (st == CDP_OK) st = cdp__elastic_trial_exchange(e);
        return st == CDP_OK ? CDP_PENDING : st;
    }
    st = cdp_work_poll(tr->work, budget_us);
    return st == CDP_OK ? cdp__elastic_trial_next(e) : st;
}

/* Goes on with a trial for so long; 0: one step. */
CDP__PRIVATE cdp_status cdp__elastic_trial_poll(cdp_elastic *e, uint32_t budget_us) {
    cdp__elastic_trial *const tr = &e->trial;
    cdp_status st;
    if (!tr->leaving) {
        st = cdp__elastic_trial_step(e, budget_us);
        if (st == CDP_PENDING) return CDP_OK;
        tr->leaving = true;
        if (!tr->group) cdp__elastic_trial_stop(e);
        return cdp__elastic_trial_ended(e, st == CDP_OK);
    }
    if (cdp_group_leave(tr->group, budget_us) == CDP_PENDING) return CDP_OK;
    tr->group = NULL;
    cdp__elastic_trial_stop(e);
    return CDP_OK;
}

/* A newcomer is tried beside epoch k, if a trial lists it. */
CDP__PRIVATE cdp_status cdp__elastic_join_trial(cdp_elastic *e, uint64_t k) {
    cdp__elastic_trial *const tr = cdp__elastic_trial_of(e, k);
    cdp__elastic_decision d;
    cdp_tcp_desc t;
    uint32_t rank;
    cdp_status st;
    st = cdp__elastic_read_trial(e, e->store, k, &d);
    rank = st == CDP_OK ? cdp__elastic_rank_in(&d, e->place.id) : 0;
    if (st == CDP_OK && rank < d.size && d.epoch > tr->number) {
        cdp__elastic_trial_desc(e, &d, k, rank, &t);
        st = cdp_init(&t, &tr->group);
        if (st == CDP_OK) st = cdp__elastic_trial_exchange(e);
        do {
            if (st == CDP_OK || st == CDP_PENDING) st = cdp_work_wait(tr->work);
            if (st == CDP_OK) st = cdp__elastic_trial_next(e);
        } while (st == CDP_PENDING);
        if (st == CDP_OK)
            e->stage = CDP__ELASTIC_TRIED;
        else
            cdp__format(e->untried, sizeof e->untried, "%s", cdp_last_error()->text);
        cdp_group_destroy(tr->group); /* members may not have read all that it has sent */
        tr->group = NULL;
        cdp__elastic_trial_stop(e);
        st = CDP_OK;
    }
    cdp__free(e->os, d.members);
    return st;
}

#endif /* CDP_NO_FRAMES */

#endif /* CDP_SRC_ELASTIC_TRIAL_H */
