/* elastic/connect.h - a decision becomes a group

   Knows: the members of a decision. Promises: a group is used only after each of its ranks has said
   that it is that member of that epoch; nobody waits for a member that is known to be gone. */
#ifndef CDP_SRC_ELASTIC_CONNECT_H
#define CDP_SRC_ELASTIC_CONNECT_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../base/error_api.h"
#include "../store/interface_api.h"
#include "../group/group_api.h"
#include "../group/collectives_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../text/format.h"
#include "../base/text.h"
#include "../base/bytes.h"
#include "../base/hash.h"
#include "../group/state.h"
#include "../store/calls.h"
#include "../tcp/desc_api.h"
#include "../tcp/create_api.h"
#include "../tcp/handshake.h"
#include "../tcp/cxx_api.h"
#include "../tcp/calls.h"
#include "elastic_api.h"
#include "epoch.h"
#include "turn.h"
#include "store.h"
#include "trial.h"
#include "doubt.h"
#include "turns.h"
#include "attend.h"
#include "transfer.h"

CDP__PRIVATE bool cdp__elastic_still(cdp_elastic *e, uint64_t k) {
    bool still;
    cdp__elastic_lock(e);
    still = e->place.epoch == k && e->place.phase == CDP__ELASTIC_JOINED && !e->stop;
    cdp__elastic_unlock(e);
    return still;
}

CDP__PRIVATE cdp_status cdp__elastic_not_here(cdp_elastic *e, const cdp__elastic_decision *d) {
    char key[CDP__ELASTIC_KEY];
    uint32_t r, missing = 0, first = 0;
    for (r = 0; r < d->size; ++r) {
        bool there;
        cdp__elastic_key(e, key, "e/%llu/here/%u", (unsigned long long)d->epoch, r);
        if (cdp__elastic_there(e, e->store, key, &there) != CDP_OK) return cdp_last_error()->status;
        if (!there && !missing++) first = r;
    }
    e->absent = true;
    return cdp__fail_peer(CDP_ERR_TIMEOUT, first, 0,
        "epoch %llu: %u of its %u ranks, rank %u first, did not call cdp_elastic_next() within "
        "timeout_ms, %u ms",
        (unsigned long long)d->epoch, missing, d->size, first, e->tcp.group.timeout_ms);
}

/* Waits for all members with one request that stays open: a store far away answers after two round
   trips, which may be longer than a slice. CDP_PENDING: it is time to check whether a member is
   gone. */
CDP__PRIVATE cdp_status cdp__elastic_await_all(
    cdp_elastic *e, const cdp__elastic_decision *d, cdp_store_request *rq, uint64_t deadline) {
    const uint64_t slice_ms = e->no_thread ? CDP__ELASTIC_LOOK_MS : CDP__ELASTIC_SLICE_MS;
    uint64_t now = cdp__elastic_now_ns(e);
    const uint64_t until = cdp__min(deadline, now + cdp__elastic_wait_ms(d) * CDP__MS);
    cdp_status st = cdp__elastic_store_status(e, cdp__store_begin(e->store, rq));
    if (st < 0) return st;
    do {
        st = cdp__elastic_answer(e, e->store, rq, cdp__min(until, now + slice_ms * CDP__MS));
        if (st != CDP_PENDING) return st;
        cdp__elastic_attend(e, 0);
        if (!cdp__elastic_still(e, d->epoch))
            st = cdp__fail(
                CDP_ERR_ABORTED, "epoch %llu ended before it began", (unsigned long long)d->epoch);
        now = cdp__elastic_now_ns(e);
    } while (st == CDP_PENDING && now < until);
    e->store->cancel(e->store->self, rq);
    if (st == CDP_PENDING && rq->status == CDP_OK) return CDP_OK; /* all came just now */
    if (rq->status == CDP_OK) cdp_store_request_free(e->store, rq);
    return st;
}

/* All members are inside cdp_elastic_next(). */
CDP__PRIVATE void cdp__elastic_all_present(cdp_elastic *e, uint64_t k) {
    cdp__elastic_lock(e);
    e->present_epoch = k;
    cdp__elastic_unlock(e);
}

/* Says that this process is here, with the value `own`, and waits until the keys of all members
   are there. Meanwhile each of them checks whether others have ended. */
CDP__PRIVATE cdp_status cdp__elastic_gather_with(cdp_elastic *e, const cdp__elastic_decision *d,
    uint32_t rank, cdp_bytes own, cdp_store_request *rq) {
    const uint64_t deadline = cdp__deadline(e->os, e->tcp.group.timeout_ms);
    const char *const key = (const char *)rq->keys[rank].data;
    cdp__elastic_doubt doubt;
    cdp_status st = cdp__elastic_put(e, e->store, CDP_STORE_SET, key, own.data, own.bytes);
    memset(&doubt, 0, sizeof doubt);
    doubt.rank = rank;
    while (st == CDP_OK) {
        st = cdp__elastic_await_all(e, d, rq, deadline);
        if (st == CDP_OK) cdp__elastic_all_present(e, d->epoch);
        if (st != CDP_PENDING) return st;
        if (cdp__elastic_now_ns(e) >= deadline) return cdp__elastic_not_here(e, d);
        st = cdp__elastic_doubts(e, d, rank, &doubt);
    }
    return st;
}

/* What members do when all of them are inside cdp_elastic_next(); `starting` NULL: nothing. */
CDP__PRIVATE cdp_status cdp__elastic_gathered(
    cdp_elastic *e, struct cdp_starting *starting, cdp_store_request *rq) {
#ifndef CDP_NO_FRAMES
    const cdp_status st = starting ? cdp__starting_give(starting, rq->results) : CDP_OK;
    cdp_store_request_free(e->store, rq);
    return st;
#else
    (void)starting;
    cdp_store_request_free(e->store, rq);
    return CDP_OK;
#endif
}

/* Waits until all members are inside cdp_elastic_next(). `own`: what this one says there, which
   others read; `starting`, if it is not NULL, gets what they say. */
CDP__PRIVATE cdp_status cdp__elastic_gather(cdp_elastic *e, const cdp__elastic_decision *d,
    uint32_t rank, cdp_bytes own, struct cdp_starting *starting) {
    const uint64_t room = (uint64_t)d->size * (sizeof(cdp_bytes) + CDP__ELASTIC_KEY);
    cdp_store_request rq;
    cdp_bytes *keys = (cdp_bytes *)cdp__alloc(e->os, room);
    char *text = (char *)(keys + d->size);
    uint32_t r;
    cdp_status st;
    if (!keys) return cdp__fail_nomem("the keys of all members", room);
    for (r = 0; r < d->size; ++r, text += CDP__ELASTIC_KEY) {
        cdp__elastic_key(e, text, "e/%llu/here/%u", (unsigned long long)d->epoch, r);
        keys[r].data = text;
        keys[r].bytes = strlen(text);
    }
    memset(&rq, 0, sizeof rq);
    rq.op = starting ? CDP_STORE_MULTI_GET : CDP_STORE_WAIT;
    rq.keys = keys;
    rq.key_count = d->size;
    st = cdp__elastic_gather_with(e, d, rank, own, &rq);
    if (st == CDP_OK) st = cdp__elastic_gathered(e, starting, &rq);
    cdp__free(e->os, keys);
    return st;
}

/* Links to all ranks are opened together in jobs of at most this many ranks. */
#define CDP__ELASTIC_MESH 16u

/* From this round trip on, members meet without a store of rank 0. That takes 20 round trips less;
   but after the loss of a rank the others wait CDP__FAILURE_SETTLE_MS for reports of an earlier
   cause, because no store says which record was the first. */
#define CDP__ELASTIC_FAR_MS 20u

/* True if members find each other in the store of the job: see cdp__elastic_meet_at_once(). The
   same on all of them. */
CDP__PRIVATE bool cdp__elastic_meets_at_once(const cdp__elastic_decision *d) {
#ifdef CDP_NO_FRAMES
    (void)d; /* no start can wait for the others */
    return false;
#else
    return d->size <= CDP__ELASTIC_MESH && cdp__elastic_round_trip_ms(d) >= CDP__ELASTIC_FAR_MS;
#endif
}

/* All ranks exchange ids and epochs, and check that each rank is the member that the decision
   lists. Not needed where the name of a start says both: only who knows that is connected. */
CDP__PRIVATE cdp_status cdp__elastic_greet(
    cdp_elastic *e, cdp_group *group, const cdp__elastic_decision *d, uint32_t rank) {
    const uint32_t each = CDP__ELASTIC_ID_BYTES + 8;
    uint8_t mine[CDP__ELASTIC_ID_BYTES + 8], *all;
    cdp__elastic_hello h;
    uint32_t r;
    cdp_status st;
    all = (uint8_t *)cdp__alloc(e->os, (uint64_t)d->size * each);
    if (!all) return cdp__fail_nomem("greetings of all ranks", (uint64_t)d->size * each);
    memcpy(mine, d->members[rank].id, CDP__ELASTIC_ID_BYTES);
    cdp__put_u64(mine + CDP__ELASTIC_ID_BYTES, d->epoch);
    st = cdp_allgather(group, mine, all, each, CDP_DTYPE_U8);
    for (r = 0; st == CDP_OK && r < d->size; ++r) {
        memcpy(h.id, all + (size_t)r * each, sizeof h.id);
        h.epoch = cdp__get_u64(all + (size_t)r * each + CDP__ELASTIC_ID_BYTES);
        if (!cdp__elastic_fits(d, r, &h))
            st = cdp__fail(CDP_ERR_MISMATCH,
                "epoch %llu: the process that connected as rank %u is not the one that the "
                "decision of the "
                "epoch lists",
                (unsigned long long)d->epoch, r);
    }
    cdp__free(e->os, all);
    return st;
}

/* How this process connects as `rank`. */
CDP__PRIVATE void cdp__elastic_init_desc(cdp_elastic *e, const cdp__elastic_decision *d,
    uint32_t rank, char job[CDP__ELASTIC_KEY], cdp_tcp_desc *t) {
    *t = e->tcp;
    cdp__elastic_meeting(e, job, d->epoch, 0);
    t->group.rank = rank;
    t->group.world_size = d->size;
    t->store = e->store;
    t->job = job;
    t->connect_all = t->connect_all || d->size <= CDP__ELASTIC_MESH;
    /* All members are here, so connecting takes some round trips. A member that dies now may be
       noticed only at the deadline, so the timeout is short at first, and later ones are longer. */
    t->init_timeout_ms = cdp__elastic_attempt_ms(d, e->failures, e->store_ms);
}

#ifdef CDP_NO_FRAMES
/* No start can wait for the others. */
CDP__PRIVATE cdp_status cdp__elastic_gather_and_init(
    cdp_elastic *e, const cdp__elastic_decision *d, uint32_t rank, cdp_group **out) {
    char job[CDP__ELASTIC_KEY];
    const cdp_bytes here = {"1", 1};
    cdp_tcp_desc t;
    cdp_status st = cdp__elastic_gather(e, d, rank, here, NULL);
    if (st != CDP_OK) return st;
    cdp__elastic_init_desc(e, d, rank, job, &t);
    ++e->failures;
    st = cdp_init(&t, out);
    if (st == CDP_OK) e->failures = 0;
    return st;
}
#else
/* cdp_init(), which may take longer than settle_ms: without a thread it is interrupted to poll. */
CDP__PRIVATE cdp_status cdp__elastic_init_in_steps(
    cdp_elastic *e, cdp_starting *starting, uint64_t k, cdp_group **out) {
    const uint32_t look_us = e->no_thread ? CDP__ELASTIC_LOOK_MS * 1000 : UINT32_MAX;
    cdp_status st;
    for (;;) {
        st = cdp_init_poll(starting, look_us, out);
        if (st != CDP_PENDING) return st;
        cdp__elastic_attend(e, 0);
        if (cdp__elastic_still(e, k)) continue;
        cdp_init_cancel(starting);
        return cdp__fail(CDP_ERR_ABORTED, "the epoch ended before it began");
    }
}

/* The name of the start of an epoch: who knows it knows the epoch and all its members. */
CDP__PRIVATE void cdp__elastic_start_name(
    const cdp_elastic *e, const cdp__elastic_decision *d, uint8_t out[CDP__JOB_BYTES]) {
    uint64_t h = cdp__hash(CDP__HASH_START, e->job, strlen(e->job));
    uint32_t i, r;
    for (i = 0; i < CDP__JOB_BYTES / 8; ++i) {
        h = cdp__hash(h, &i, sizeof i);
        h = cdp__hash(h, &d->epoch, sizeof d->epoch);
        for (r = 0; r < d->size; ++r)
            h = cdp__hash(h, d->members[r].id, sizeof d->members[r].id);
        cdp__put_u64(out + 8 * i, h);
    }
}

/* Each member says in the store of the job where it listens, and that it is here, in one key: so
   when all are here they connect, and need no other store to meet. The time to connect begins
   then. */
CDP__PRIVATE cdp_status cdp__elastic_meet_at_once(cdp_elastic *e, const cdp__elastic_decision *d,
    uint32_t rank, const cdp_tcp_desc *t, cdp_starting **starting) {
    uint8_t name[CDP__JOB_BYTES];
    cdp_bytes own;
    cdp_status st;
    cdp__elastic_start_name(e, d, name);
    st = cdp__starting_given(t, name, &own, starting);
    if (st != CDP_OK) ++e->failures;
    return st == CDP_OK ? cdp__elastic_gather(e, d, rank, own, *starting) : st;
}

/* Large jobs, and near ones, meet in a store of rank 0. It publishes before it waits for the
   others, who read that as soon as all are here: the time to connect begins then. */
CDP__PRIVATE cdp_status cdp__elastic_meet_in_store(cdp_elastic *e, const cdp__elastic_decision *d,
    uint32_t rank, const cdp_tcp_desc *t, cdp_starting **starting) {
    const cdp_bytes here = {"1", 1};
    cdp_status st = CDP_OK;
    if (rank == 0) st = cdp_init_start(t, starting);
    if (st == CDP_OK && rank == 0) st = cdp__starting_publish(*starting);
    if (st != CDP_OK) ++e->failures;
    if (st == CDP_OK) st = cdp__elastic_gather(e, d, rank, here, NULL);
    if (st == CDP_OK && rank != 0) st = cdp_init_start(t, starting);
    if (st == CDP_OK && rank == 0) cdp__starting_anew(*starting);
    return st;
}

CDP__PRIVATE cdp_status cdp__elastic_gather_and_init(
    cdp_elastic *e, const cdp__elastic_decision *d, uint32_t rank, cdp_group **out) {
    char job[CDP__ELASTIC_KEY];
    cdp_tcp_desc t;
    cdp_starting *starting = NULL;
    cdp_status st;
    cdp__elastic_init_desc(e, d, rank, job, &t);
    if (cdp__elastic_meets_at_once(d))
        st = cdp__elastic_meet_at_once(e, d, rank, &t, &starting);
    else
        st = cdp__elastic_meet_in_store(e, d, rank, &t, &starting);
    if (st != CDP_OK) {
        const cdp_error why = *cdp_last_error();
        cdp_init_cancel(starting);
        *cdp__error_slot() = why;
        return st;
    }
    ++e->failures;
    st = cdp__elastic_init_in_steps(e, starting, d->epoch, out);
    if (st == CDP_OK) e->failures = 0;
    return st;
}
#endif

/* Removes all keys of an epoch but its decision. */
CDP__PRIVATE cdp_status cdp__elastic_tidy_epoch(cdp_elastic *e, uint64_t k) {
    static const char *const names[3] = {"alarm", "in", "ask"};
    const uint64_t room = CDP__ELASTIC_TOGETHER * sizeof(cdp__elastic_get);
    const unsigned long long epoch = (unsigned long long)k;
    cdp__elastic_get *g;
    cdp__elastic_decision d;
    uint32_t i = 0, n;
    cdp_status st = cdp__elastic_read_trial(e, e->store, k, &d);
    if (st == CDP_OK && d.members) st = cdp__elastic_tidy_trial(e, k, d.epoch);
    cdp__free(e->os, d.members);
    if (st != CDP_OK) return st;
    st = cdp__elastic_read_decision(e, e->store, k, &d);
    if (st != CDP_OK) return st;
    g = (cdp__elastic_get *)cdp__alloc_zero(e->os, room);
    if (!g) st = cdp__fail_nomem("requests to the store", room);
    while (st == CDP_OK && i < 4 + d.size) {
        for (n = 0; n < CDP__ELASTIC_TOGETHER && i < 4 + d.size; ++i, ++n) {
            g[n].removes = true;
            if (i < 3)
                cdp__elastic_key(e, g[n].key, "e/%llu/%s", epoch, names[i]);
            else if (i == 3)
                cdp__elastic_meeting_key(e, g[n].key, k, 0);
            else
                cdp__elastic_key(e, g[n].key, "e/%llu/here/%u", epoch, i - 4);
        }
        st = cdp__elastic_get_all(e, e->store, g, n);
    }
    cdp__free(e->os, g);
    cdp__free(e->os, d.members);
    return st;
}

/* Rank 0 removes keys that no rank needs any more: those of the epoch before last, and those that
   earlier epochs had no time to remove. */
CDP__PRIVATE cdp_status cdp__elastic_tidy(cdp_elastic *e, const cdp__elastic_decision *d) {
    char key[CDP__ELASTIC_KEY], text[24];
    uint64_t k = 0;
    cdp_status st = d->epoch > 2 ? cdp__elastic_hint(e, &k) : CDP_OK;
    for (k = k > 2 ? k - 1 : 1; st == CDP_OK && k + 2 <= d->epoch; ++k)
        st = cdp__elastic_tidy_epoch(e, k);
    if (st != CDP_OK) return st;
    cdp__format(text, sizeof text, "%llu", (unsigned long long)d->epoch);
    cdp__elastic_key(e, key, "e/now");
    return cdp__elastic_put(e, e->store, CDP_STORE_SET, key, text, strlen(text));
}

#define CDP__ELASTIC_REHEARSALS 2u

/* A newcomer that was tried calls connected() beside the running epoch, with a group of itself
   alone: what takes long when it is done first, such as to load a library, delays nobody then. If
   it takes longer than the members would wait for it, also once more, this process stays out. */
CDP__PRIVATE cdp_status cdp__elastic_rehearse(cdp_elastic *e) {
    const uint32_t most_ms = e->tcp.group.timeout_ms;
    cdp_group_desc alone = e->tcp.group;
    cdp_elastic_now now;
    uint64_t ms = 0, begun;
    uint32_t i;
    cdp_status st = CDP_OK;
    alone.rank = 0;
    alone.world_size = 1;
    for (i = 0; st == CDP_OK && i < CDP__ELASTIC_REHEARSALS && (!i || ms > most_ms); ++i) {
        cdp_group *const before = e->middle;
        st = cdp_group_create(&alone, &e->middle);
        if (st != CDP_OK) e->middle = before; /* connected() was called with that one */
        if (st != CDP_OK) return st;
        begun = cdp__elastic_now_ns(e);
        memset(&now, 0, sizeof now);
        now.group = e->middle;
        now.size = 1;
        now.old_rank = CDP__ELASTIC_NEW;
        now.cause = "this process was tried, and will be taken in";
        st =
            cdp__elastic_returned(e, e->middle, "connected", e->desc.connected(e->desc.user, &now));
        ms = (cdp__elastic_now_ns(e) - begun) / CDP__MS;
        cdp_group_destroy(before);
    }
    if (st != CDP_OK || ms <= most_ms) return st;
    return cdp__fail(CDP_ERR_TIMEOUT,
        "connected() of cdp_elastic_desc took %llu ms, twice, before this process was taken in, "
        "and the members wait for timeout_ms, %u ms: let it do less, or raise timeout_ms of "
        "tcp->group on all ranks",
        (unsigned long long)ms, most_ms);
}

/* The group is connected: calls connected() of the program, and transfers state. */
CDP__PRIVATE cdp_status cdp__elastic_fill(
    cdp_elastic *e, cdp_group *group, const cdp__elastic_decision *d, uint32_t rank) {
    cdp_elastic_now now;
    cdp_status st = CDP_OK;
    if (e->desc.connected) {
        memset(&now, 0, sizeof now);
        now.group = group;
        now.epoch = d->epoch;
        now.step = d->step;
        now.samples = d->samples;
        now.rank = rank;
        now.size = d->size;
        now.old_rank = d->members[rank].old_rank;
        now.cause = d->cause;
        e->shown = true;
        cdp__elastic_before_callback(e);
        st = cdp__elastic_returned(e, group, "connected", e->desc.connected(e->desc.user, &now));
    }
    return st == CDP_OK ? cdp__elastic_transfer_all(e, group, d, rank) : st;
}

CDP__PRIVATE cdp_status cdp__elastic_connect(
    cdp_elastic *e, const cdp__elastic_decision *d, uint32_t rank) {
    const uint64_t begun = cdp__elastic_now_ns(e);
    uint64_t connected;
    cdp_group *group = NULL;
    bool in;
    cdp_status st;
    e->absent = false;
    st = cdp__elastic_gather_and_init(e, d, rank, &group);
    if (st != CDP_OK) return st;
    cdp__elastic_lock(e);
    in = e->place.epoch == d->epoch && e->place.phase == CDP__ELASTIC_JOINED;
    if (in) e->group = group;
    cdp__elastic_unlock(e);
    if (!in) {
        cdp_group_destroy(group);
        return cdp__fail(CDP_ERR_ABORTED, "the epoch ended before it began");
    }
    if (!cdp__elastic_meets_at_once(d)) st = cdp__elastic_greet(e, group, d, rank);
    connected = cdp__elastic_now_ns(e);
    if (st == CDP_OK) st = cdp__elastic_fill(e, group, d, rank);
    if (st == CDP_OK && rank == 0) st = cdp__elastic_tidy(e, d);
    if (st != CDP_OK) return st;
    cdp__elastic_lock(e);
    in = cdp__elastic_run(&e->place, d);
    if (in) {
        cdp__elastic_past *p = &e->past[(e->pasts - 1) % CDP__ELASTIC_PASTS];
        p->connect_ns = connected - begun;
        p->transfer_ns = cdp__elastic_now_ns(e) - connected;
        e->changed = true;
        e->received = e->received || !d->members[rank].source;
        e->epoch_ns = cdp__elastic_now_ns(e);
        memcpy(e->cause, d->cause, sizeof e->cause);
    }
    cdp__elastic_unlock(e);
    return in ? CDP_OK : cdp__fail(CDP_ERR_ABORTED, "the epoch ended before its first step");
}

#endif /* CDP_SRC_ELASTIC_CONNECT_H */
