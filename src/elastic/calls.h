/* elastic/calls.h - steps, and what ends them

   Knows: the place of this process and its group. Promises: each wait ends by join_ms; what a call
   returns holds for the epoch that it was made in. */
#ifndef CDP_SRC_ELASTIC_CALLS_H
#define CDP_SRC_ELASTIC_CALLS_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../base/error_api.h"
#include "../base/log_api.h"
#include "../group/group_api.h"
#include "../group/collectives_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../text/format.h"
#include "../base/text.h"
#include "../group/state.h"
#include "../store/store_api.h"
#include "elastic_api.h"
#include "epoch.h"
#include "store.h"
#include "turns.h"
#include "attend.h"
#include "connect.h"
#include "entry.h"

CDP__PRIVATE cdp_status cdp__elastic_set_error(const cdp_error *why) {
    *cdp__error_slot() = *why;
    return why->status;
}

/* Lock held. */
CDP__PRIVATE void cdp__elastic_now_of(cdp_elastic *e, cdp_elastic_now *now) {
    const cdp__elastic_place *p = &e->place;
    memset(now, 0, sizeof *now);
    now->group = e->group;
    now->epoch = p->epoch;
    now->step = p->step;
    now->samples = p->samples;
    /* an operation of the last step has ended here, and all ranks began it with the step before
       committed */
    now->stable = p->step > e->d.step ? p->step - 1 : p->step;
    now->rank = p->rank;
    now->size = p->size;
    now->old_rank = e->d.members[p->rank].old_rank;
    now->lost = e->d.lost;
    now->joined = e->d.joined;
    now->changed = e->changed;
    now->received = e->received;
    now->cause = e->cause;
    e->changed = e->received = false;
    if (e->reported != p->epoch) e->agreed = 0;
    e->reported = p->epoch;
}

/* The program asked to leave. Lock held; given back meanwhile. */
CDP__PRIVATE cdp_status cdp__elastic_leave_job(cdp_elastic *e) {
    const uint64_t k = e->place.epoch;
    char why[160];
    cdp_status st;
    cdp__format(why, sizeof why, "rank %u leaves: %s", e->place.rank, e->leaving);
    e->place.phase = CDP__ELASTIC_OUT;
    e->place.live = false;
    cdp__elastic_unlock(e);
    st = cdp__elastic_record_end(e, e->store, why);
    if (st == CDP_OK && k) st = cdp__elastic_alarm_at(e, e->store, k, why);
    cdp__elastic_lock(e);
    e->left = st == CDP_OK;
    if (st == CDP_OK) (void)cdp__fail(CDP_ERR_STATE, "this process left: %s", e->leaving);
    cdp__elastic_fail(e);
    return e->failure.status;
}

CDP__PRIVATE void cdp__elastic_end_group_now(void *arg) {
    cdp_group_destroy((cdp_group *)arg);
}

/* Destroys a group, in a thread of its own, because this takes up to 0.7 s after a failure. Without
   threads, each poll makes one step of leaving the group. */
CDP__PRIVATE void cdp__elastic_end_group(cdp_elastic *e, cdp_group *group) {
    if (!group) return;
#ifndef CDP_NO_FRAMES
    if (e->no_thread) {
        cdp_group_destroy(e->closing);
        e->closing = group;
        return;
    }
#endif
    if (e->no_thread) {
        cdp_group_destroy(group);
        return;
    }
    if (e->destroyer) e->os->threads.join(e->os, e->destroyer);
    e->destroyer = e->os->threads.start(e->os, cdp__elastic_end_group_now, group);
    if (!e->destroyer) cdp_group_destroy(group);
}

/* The group of the epoch before stays until the call after the one that said `changed`. */
CDP__PRIVATE void cdp__elastic_retire(cdp_elastic *e) {
    cdp_group *old;
    cdp__elastic_lock(e);
    old = e->retired;
    e->retired = NULL;
    cdp__elastic_unlock(e);
    cdp__elastic_end_group(e, old);
}

/* One attempt to begin the epoch in which this process is. Lock held; given back meanwhile. */
CDP__PRIVATE cdp_status cdp__elastic_join(cdp_elastic *e) {
    cdp__elastic_decision d = e->d;
    const uint32_t rank = e->place.rank;
    cdp_group *old = e->group;
    cdp_status st;
    e->group = NULL;
    if (!e->retired) {
        e->retired = old;
        old = NULL;
    } else if (old && e->shown) { /* two changes in one call: connected() has seen the first */
        e->middle = old;
        old = NULL;
    }
    e->shown = false;
    d.members = (cdp__elastic_member *)cdp__alloc(e->os, d.size * sizeof *d.members);
    if (d.members) memcpy(d.members, e->d.members, d.size * sizeof *d.members);
    cdp__elastic_unlock(e);
    cdp__elastic_end_group(e, old);
    st = d.members ? cdp__elastic_connect(e, &d, rank) : cdp__fail_nomem("a list of members", 0);
    /* what came last was not the program's time */
    if (e->no_thread) e->looked_ns = cdp__elastic_now_ns(e);
    st = cdp__elastic_of_group(e, st);
    cdp__free(e->os, d.members);
    if (e->shown && e->middle) {
        const cdp_error why = *cdp_last_error();
        cdp__elastic_end_group(e, e->middle);
        e->middle = NULL;
        *cdp__error_slot() = why;
    }
    cdp__elastic_lock(e);
    return st;
}

/* A call that waits for other ranks waits for the store, too. Lock held. */
CDP__PRIVATE void cdp__elastic_has_patience(cdp_elastic *e) {
    if (!e->patient_ns) e->patient_ns = cdp__deadline(e->os, e->desc.join_ms);
}

/* The deadline of a turn, or of a wait for one, that began at begun_ns. */
CDP__PRIVATE uint64_t cdp__elastic_limit(const cdp_elastic *e, uint64_t begun_ns) {
    return begun_ns + ((uint64_t)e->desc.join_ms + e->store_ms) * CDP__MS;
}

/* True if the system of this process refused something, such as a descriptor. Each later epoch
   would fail for the same reason, so this process ends, and the others go on without it. */
CDP__PRIVATE bool cdp__elastic_is_own(const cdp_error *why) {
    return why->status == CDP_ERR_IO && why->peer < 0 && why->origin == why->rank;
}

/* This thread's last error ends the epoch if it is a loss, or, while the members connect (`joins`),
   any error of another rank: no operation of the program can differ yet. Waits until this process
   has arrived. Lock held; given back meanwhile. */
CDP__PRIVATE cdp_status cdp__elastic_give_up(cdp_elastic *e, uint64_t k, bool joins) {
    const cdp_error why = *cdp_last_error();
    const bool lost = cdp__elastic_is_loss(why.status) || (joins && cdp__elastic_reported(&why));
    uint64_t deadline;
    cdp_status st;
    if (!lost || cdp__elastic_is_own(&why) || e->refused) {
        if (e->place.phase == CDP__ELASTIC_JOINED) cdp__elastic_fail(e);
        return why.status;
    }
    cdp__elastic_blame(e, k, &why, joins && e->absent);
    cdp__elastic_unlock(e);
    st = cdp__elastic_alarm_at(e, e->store, k, why.text);
    cdp__elastic_lock(e);
    if (st != CDP_OK) return st;
    deadline = cdp__elastic_limit(e, cdp__elastic_now_ns(e));
    while (e->place.epoch == k && e->failure.status == CDP_OK
        && e->place.phase != CDP__ELASTIC_ARRIVED) {
        if (cdp__elastic_now_ns(e) >= deadline)
            return cdp__fail(CDP_ERR_TIMEOUT,
                "epoch %llu failed (%s), and the store did not say so within join_ms, %u ms",
                (unsigned long long)k, why.text, e->desc.join_ms);
        cdp__elastic_sleep(e, deadline);
    }
    return CDP_OK;
}

/* True if the program has asked to leave and may: no rank receives state from this process now, and
   no decision relies on it. Lock held. */
CDP__PRIVATE bool cdp__elastic_may_leave(const cdp_elastic *e) {
    const cdp__elastic_place *p = &e->place;
    if (!e->leaving[0]) return false;
    if (p->phase == CDP__ELASTIC_RUNNING || p->phase == CDP__ELASTIC_WAITING) return true;
    return p->phase == CDP__ELASTIC_JOINED ? p->size == 1 : e->few;
}

/* Epoch k did not begin, or timed out without a step: perhaps two members reach the store and not
   each other. Says so from the third one on, and ends it after join_ms; if it begins, not before
   that, since steps may take long. Lock held. */
CDP__PRIVATE cdp_status cdp__elastic_persist(
    cdp_elastic *e, uint64_t k, const cdp_error *why, bool joins) {
    cdp__elastic_tries *tries = &e->tries;
    const uint64_t now = cdp__elastic_now_ns(e);
    if (!tries->count++) tries->deadline_ns = cdp__elastic_limit(e, now);
    if (now < tries->deadline_ns || (!joins && tries->count < 3)) {
        if (tries->count > 2)
            cdp__log(&e->tcp.group.logger, CDP_LOG_WARN, e->place.rank,
                "epoch %llu %s, the next one tries again: %s", (unsigned long long)k,
                joins ? "did not begin" : "committed nothing", why->text);
        return CDP_OK;
    }
    (void)cdp__fail(CDP_ERR_TIMEOUT,
        "no epoch %s within join_ms, %u ms; the last one, epoch %llu, failed: %s",
        joins ? "began" : "committed a step", e->desc.join_ms, (unsigned long long)k, why->text);
    cdp__elastic_fail(e);
    return e->failure.status;
}

/* Waits for the next decision. A wait for min_ranks has a limit of its own, and takes nothing from
   that of e->tries. Lock held; given back meanwhile. */
CDP__PRIVATE void cdp__elastic_wait_for_turn(cdp_elastic *e) {
    const uint64_t begun = cdp__elastic_now_ns(e);
    const bool few = e->few;
    cdp__elastic_sleep(e, cdp__elastic_limit(e, e->epoch_ns));
    if (few) e->tries.deadline_ns += cdp__elastic_now_ns(e) - begun;
}

CDP__PRIVATE cdp_status cdp__elastic_step(cdp_elastic *e, cdp_elastic_now *now) {
    for (;;) {
        const uint64_t k = e->place.epoch;
        const bool joins = e->place.phase == CDP__ELASTIC_JOINED;
        cdp_status st = CDP_OK;
        if (e->failure.status != CDP_OK) return cdp__elastic_set_error(&e->failure);
        if (e->place.phase != CDP__ELASTIC_RUNNING) cdp__elastic_has_patience(e);
        if (e->ended) return cdp__fail(CDP_ERR_STATE, "cdp_elastic_finish() has ended the job");
        if (cdp__elastic_may_leave(e)) return cdp__elastic_leave_job(e);
        if (e->place.phase == CDP__ELASTIC_WAITING) {
            cdp__elastic_unlock(e);
            if (e->stage == CDP__ELASTIC_TRIED && e->desc.connected
                && !CDP__ELASTIC_PLANT(NO_REHEARSAL))
                st = cdp__elastic_rehearse(e);
            if (st == CDP_OK) st = cdp__elastic_enter(e);
            if (st == CDP_OK) st = cdp__elastic_attends(e);
            cdp__elastic_lock(e);
            if (st != CDP_OK) return st;
            continue;
        }
        if (e->group && !joins) st = cdp_group_status(e->group);
        if (st != CDP_OK) cdp__elastic_has_patience(e);
        if (st == CDP_ERR_STORE) {
            cdp__elastic_unlock(e);
            st = cdp__elastic_of_group(e, st);
            cdp__elastic_lock(e);
            if (e->place.epoch != k) continue;
        }
        if (st != CDP_OK && !cdp__elastic_is_loss(st)) return cdp_last_error()->status;
        if (e->place.phase == CDP__ELASTIC_RUNNING) {
            if (st == CDP_OK && cdp__elastic_begin(&e->place, e->desc.batch)) {
                cdp__elastic_now_of(e, now);
                return CDP_OK;
            }
        } else if (joins) {
            st = cdp__elastic_join(e);
        } else if (cdp__elastic_now_ns(e) >= cdp__elastic_limit(e, e->epoch_ns)) {
            return cdp__fail(CDP_ERR_TIMEOUT,
                "epoch %llu ended, and no decision was there after join_ms, %u ms",
                (unsigned long long)k, e->desc.join_ms);
        } else {
            st = CDP_OK;
            cdp__elastic_wait_for_turn(e);
        }
        if (st == CDP_OK) continue;
        const cdp_error why = *cdp_last_error();
        st = cdp__elastic_give_up(e, k, joins);
        if (st == CDP_OK && (joins || why.status == CDP_ERR_TIMEOUT))
            st = cdp__elastic_persist(e, k, &why, joins);
        if (st != CDP_OK) return st;
    }
}

CDP_API cdp_status cdp_elastic_next(cdp_elastic *e, cdp_elastic_now *now) {
    cdp_status st;
    st = cdp__elastic_here(e, "cdp_elastic_next");
    if (st != CDP_OK) return st;
    if (!now) return cdp__missing("cdp_elastic_next", "now");
    if (e->retired) cdp__elastic_retire(e); /* this thread alone sets it */
    cdp__elastic_attend(e, 0);
    cdp__elastic_lock(e);
    st = cdp__elastic_step(e, now);
    e->patient_ns = 0;
    cdp__elastic_unlock(e);
    return st;
}

CDP_API cdp_status cdp_elastic_commit(cdp_elastic *e) {
    bool counts;
    if (cdp__elastic_here(e, "cdp_elastic_commit") != CDP_OK) return cdp_last_error()->status;
    cdp__elastic_attend(e, 0);
    cdp__elastic_lock(e);
    counts = cdp__elastic_count(&e->place, e->desc.batch);
    if (counts) e->tries.count = 0;
    cdp__elastic_unlock(e);
    if (counts) return CDP_OK;
    return cdp__fail(CDP_ERR_ABORTED,
        "the epoch ended before this step: drop its gradients and call cdp_elastic_next()");
}

CDP_API cdp_status cdp_elastic_poll(cdp_elastic *e) {
    cdp_error why;
    bool runs;
    if (cdp__elastic_here(e, "cdp_elastic_poll") != CDP_OK) return cdp_last_error()->status;
    cdp__elastic_attend(e, 0);
    cdp__elastic_lock(e);
    why = e->failure;
    runs = e->place.phase == CDP__ELASTIC_RUNNING || e->place.phase == CDP__ELASTIC_WAITING;
    /* it has not begun here. In a step that counts nowhere the group is still that of the epoch
       that has ended, and was aborted. */
    if (e->place.phase == CDP__ELASTIC_JOINED)
        runs = !e->group || cdp_group_status(e->group) == CDP_OK;
    cdp__elastic_unlock(e);
    if (why.status != CDP_OK) return cdp__elastic_set_error(&why);
    if (runs) return CDP_OK;
    return cdp__fail(
        CDP_ERR_ABORTED, "the epoch ended, and this step counts nowhere: call cdp_elastic_next()");
}

CDP_API cdp_status cdp_elastic_agree(cdp_elastic *e, bool yes, bool *all) {
    char key[CDP__ELASTIC_KEY];
    uint8_t flag = yes;
    cdp_group *group;
    void *data;
    uint64_t bytes, number;
    bool may;
    cdp_status st;
    st = cdp__elastic_here(e, "cdp_elastic_agree");
    if (st != CDP_OK) return st;
    if (!all) return cdp__missing("cdp_elastic_agree", "all");
    *all = false;
    cdp__elastic_attend(e, 0);
    cdp__elastic_lock(e);
    may = e->reported && !e->ended && e->failure.status == CDP_OK;
    group = e->place.epoch == e->reported ? e->group : NULL;
    cdp__elastic_unlock(e);
    if (!may) return cdp__fail(CDP_ERR_STATE, "cdp_elastic_agree: call cdp_elastic_next() before");
    /* Epoch and number are those that this thread has seen. The thread of this header may be in a
       later epoch already: then this rank contributes nothing to the operation, so no rank can have
       received a yes. */
    number = ++e->agreed;
    st = CDP_ERR_ABORTED;
    if (group) st = cdp_allreduce(group, NULL, &flag, 1, CDP_DTYPE_U8, CDP_REDUCE_MIN);
    st = cdp__elastic_of_group(e, st);
    if (st != CDP_OK && !cdp__elastic_is_loss(st)) return st;
    if (CDP__ELASTIC_PLANT(AGREE_ALONE)) {
        *all = st == CDP_OK && flag;
        return CDP_OK;
    }
    /* the first rank that sets the key also decides for ranks on which the operation failed */
    cdp__elastic_key(
        e, key, "agree/%llu/%llu", (unsigned long long)e->reported, (unsigned long long)number);
    cdp__elastic_be_patient(e, true);
    st = cdp__elastic_claim(e, e->store, key, st == CDP_OK && flag ? "y" : "n", 1, &data, &bytes);
    cdp__elastic_be_patient(e, false);
    if (st == CDP_OK) *all = bytes == 1 && *(const char *)data == 'y';
    cdp_store_free(e->store, data);
    if (st == CDP_OK) return st;
    /* the others may have an answer: this process must not go on in their epoch without it */
    cdp__elastic_lock(e);
    cdp__elastic_fail(e);
    cdp__elastic_unlock(e);
    return e->failure.status;
}

/* The job is over on all ranks: no rank waits for this process any more. */
CDP__PRIVATE cdp_status cdp__elastic_end(cdp_elastic *e) {
    char key[CDP__ELASTIC_KEY];
    cdp_status st;
    cdp__elastic_key(e, key, "final");
    st = cdp__elastic_mark(e, e->store, key, "done");
    /* after the mark: members that are all gone without it have lost the state of the job */
    if (st == CDP_OK) st = cdp__elastic_record_end(e, e->store, "has finished");
    cdp__elastic_lock(e);
    e->ended = true;
    cdp__elastic_signal(e);
    cdp__elastic_unlock(e);
    return st;
}

/* This process has done all its steps. If it arrived before, its arrival does not say so: it adds a
   second one, because with fewer than min_ranks the remaining members would wait for newcomers that
   they do not need. */
CDP__PRIVATE cdp_status cdp__elastic_report_ending(cdp_elastic *e) {
    char key[CDP__ELASTIC_KEY];
    cdp__elastic_arrival a;
    bool arrived;
    cdp__elastic_lock(e);
    e->place.ending = true;
    arrived = e->place.phase == CDP__ELASTIC_ARRIVED;
    cdp__elastic_describe(&e->place, &a);
    cdp__elastic_key(e, key, "e/%llu/in", (unsigned long long)e->place.epoch);
    cdp__elastic_unlock(e);
    return arrived ? cdp__elastic_append(e, e->store, key, &a) : CDP_OK;
}

CDP__PRIVATE cdp_status cdp__elastic_end_all(cdp_elastic *e) {
    char key[CDP__ELASTIC_KEY];
    cdp_elastic_now now;
    bool over = false, ends;
    cdp_status st;
    cdp__elastic_be_patient(e, true);
    st = cdp__elastic_report_ending(e);
    if (st != CDP_OK) return st;
    cdp__elastic_key(e, key, "final");
    for (;;) {
        st = cdp_elastic_next(e, &now);
        if (st != CDP_OK) return st;
        cdp__elastic_be_patient(e, true);
        st = cdp__elastic_of_group(e, cdp_barrier(now.group));
        cdp__elastic_lock(e);
        ends = cdp__elastic_ends(&e->place, st == CDP_OK);
        cdp__elastic_unlock(e);
        if (ends) return cdp__elastic_end(e);
        if (st != CDP_OK && !cdp__elastic_is_loss(st)) return st;
        /* others may have seen all members here, and have gone */
        st = cdp__elastic_there(e, e->store, key, &over);
        if (st != CDP_OK) return st;
        if (over) return cdp__elastic_end(e);
    }
}

CDP_API cdp_status cdp_elastic_finish(cdp_elastic *e) {
    cdp_status st = cdp__elastic_here(e, "cdp_elastic_finish");
    if (st != CDP_OK) return st;
    st = cdp__elastic_end_all(e);
    cdp__elastic_be_patient(e, false);
    return st;
}

CDP_API void cdp_elastic_leave(cdp_elastic *e, const char *reason) {
    if (cdp__elastic_here(e, "cdp_elastic_leave") != CDP_OK) return;
    cdp__elastic_lock(e);
    if (!e->leaving[0])
        cdp__format(e->leaving, sizeof e->leaving, "%s", reason && *reason ? reason : "asked to");
    cdp__elastic_signal(e);
    cdp__elastic_unlock(e);
}

CDP_API cdp_status cdp_elastic_alarm(cdp_elastic *e, const char *reason) {
    uint64_t k;
    if (cdp__elastic_here(e, "cdp_elastic_alarm") != CDP_OK) return cdp_last_error()->status;
    cdp__elastic_lock(e);
    k = e->place.epoch;
    cdp__elastic_unlock(e);
    if (!k) return CDP_OK; /* a newcomer, which is in none yet */
    return cdp__elastic_alarm_at(e, e->store, k, reason && *reason ? reason : "asked to");
}

#endif /* CDP_SRC_ELASTIC_CALLS_H */
