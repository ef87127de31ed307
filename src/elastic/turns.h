/* elastic/turns.h - looks for the alarm, arrives and decides

   Knows: the alarm of the epoch. cdp__elastic_tick() is one look; a thread of this header calls it
   again and again, or, with no_thread, the calls of the program do (cdp__elastic_attend()).
   Promises: after an alarm this process arrives at the next look, and the thread looks within
   CDP__ELASTIC_SLICE_MS, also while the program computes; each turn ends with a decision, or
   with e->failure. */
#ifndef CDP_SRC_ELASTIC_TURNS_H
#define CDP_SRC_ELASTIC_TURNS_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/error_api.h"
#include "../store/interface_api.h"
#include "../group/group_api.h"
#include "../group/group_calls.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../text/utf8.h"
#include "../text/format.h"
#include "../base/text.h"
#include "../store/store_api.h"
#include "../store/calls.h"
#include "elastic_api.h"
#include "epoch.h"
#include "turn.h"
#include "records.h"
#include "store.h"
#include "trial.h"
#include "doubt.h"

/* True if another rank saw the error first, such as one that has no memory. */
CDP__PRIVATE bool cdp__elastic_reported(const cdp_error *why) {
    return why->origin >= 0 && why->origin != why->rank;
}

/* True for statuses of this thread's last error that end an epoch: the loss of a peer, and every
   error of a peer, which is the end of that peer alone. Other errors are mistakes of the program,
   which would recur on each survivor; so are calls that differ, whoever saw that first. */
CDP__PRIVATE bool cdp__elastic_is_loss(cdp_status st) {
    if (st == CDP_OK) return false;
    return st == CDP_ERR_PEER_LOST || st == CDP_ERR_TIMEOUT || st == CDP_ERR_ABORTED
        || st == CDP_ERR_IO || (st != CDP_ERR_MISMATCH && cdp__elastic_reported(cdp_last_error()));
}

/* Whom this process could not go on with, if it is still in epoch k. `absent`: a rank that did not
   call cdp_elastic_next(). Lock held. */
CDP__PRIVATE void cdp__elastic_blame(
    cdp_elastic *e, uint64_t k, const cdp_error *why, bool absent) {
    const bool blocked = why->status == CDP_ERR_TIMEOUT || why->status == CDP_ERR_PEER_LOST;
    if (e->place.epoch != k || !blocked || why->peer < 0) return;
    if ((uint32_t)why->peer == e->place.rank) return;
    e->place.blamed = (uint32_t)why->peer + 1;
    e->place.absent = absent;
}

/* Ends this process's part in the job with this thread's last error. Lock held. */
CDP__PRIVATE void cdp__elastic_fail(cdp_elastic *e) {
    if (e->failure.status == CDP_OK) e->failure = *cdp_last_error();
    e->place.live = false;
    if (e->place.phase != CDP__ELASTIC_OUT) e->place.phase = CDP__ELASTIC_OUT;
    if (e->group) cdp__elastic_break(e->group, e->failure.text);
    *cdp__error_slot() = e->failure;
    cdp__elastic_signal(e);
}

/* Sets the error of a process that the others have left out of the next epoch. */
CDP__PRIVATE void cdp__elastic_left_out(cdp_elastic *e, const cdp__elastic_decision *d) {
    const uint64_t away_ms = e->away_ns / CDP__MS;
    const char *const back = "create another cdp_elastic to come back as a newcomer";
    if (d->evicted && away_ms <= e->desc.settle_ms)
        (void)cdp__fail(CDP_ERR_STATE,
            "left out of epoch %llu (%s): in %u epochs in which nothing was committed the others "
            "could not go on with this process: it called nothing for timeout_ms, %u ms, or a "
            "connection to one of them carries nothing; %s",
            (unsigned long long)d->epoch, d->cause, e->d.members[e->place.rank].strikes + 1u,
            e->tcp.group.timeout_ms, back);
    else if (away_ms > e->desc.settle_ms)
        (void)cdp__fail(CDP_ERR_STATE,
            "left out of epoch %llu (%s): this process called nothing of cdp_elastic.h for %llu "
            "ms, and settle_ms is %u; without threads make it longer than the longest time "
            "between two calls, or call cdp_elastic_poll() in between; %s",
            (unsigned long long)d->epoch, d->cause, (unsigned long long)away_ms, e->desc.settle_ms,
            back);
    else
        (void)cdp__fail(CDP_ERR_STATE,
            "left out of epoch %llu (%s): this process did not arrive within settle_ms, %u ms, or "
            "its connection to the store ended; %s",
            (unsigned long long)d->epoch, d->cause, e->desc.settle_ms, back);
}

/* A decision becomes the one of this process. Takes d->members. Lock held. */
CDP__PRIVATE void cdp__elastic_adopt(cdp_elastic *e, cdp__elastic_decision *d) {
    const uint64_t now = cdp__elastic_now_ns(e);
    if (!cdp__elastic_learn(&e->place, d)) {
        cdp__elastic_left_out(e, d);
        e->left = true;
        cdp__elastic_fail(e);
        cdp__free(e->os, d->members);
        return;
    }
    cdp__elastic_past *p = &e->past[e->pasts++ % CDP__ELASTIC_PASTS];
    memset(p, 0, sizeof *p);
    p->epoch = d->epoch;
    p->step = d->step;
    p->size = d->size;
    p->rank = e->place.rank;
    p->lost = d->lost;
    p->joined = d->joined;
    p->turn_ns = e->d.epoch ? now - e->epoch_ns : 0;
    memcpy(p->cause, d->cause, sizeof p->cause);
    cdp__free(e->os, e->d.members);
    e->d = *d;
    e->epoch_ns = now;
    e->away_ns = 0;
    e->few = false;
    cdp__elastic_signal(e);
}

/* Epoch k ends here: nothing is committed in it from now on. */
CDP__PRIVATE cdp_status cdp__elastic_arrive_at(cdp_elastic *e, uint64_t k) {
    char key[CDP__ELASTIC_KEY], why[160];
    cdp__elastic_arrival a;
    void *data;
    uint64_t bytes;
    bool arrived;
    cdp_status st;
    cdp__elastic_key(e, key, "e/%llu/alarm", (unsigned long long)k);
    st = cdp__elastic_read(e, e->watched, key, &data, &bytes);
    if (st != CDP_OK) return st;
    cdp__format(why, sizeof why, "its alarm was removed");
    if (data) cdp__text_foreign(why, sizeof why, data, bytes);
    cdp_store_free(e->watched, data);
    cdp__elastic_lock(e);
    arrived = e->place.epoch == k && cdp__elastic_arrive(&e->place, &a);
    if (arrived) {
        e->epoch_ns = cdp__elastic_now_ns(e);
        if (e->group) cdp__elastic_break(e->group, why);
        cdp__elastic_signal(e);
    }
    cdp__elastic_unlock(e);
    if (!arrived) return CDP_OK;
    cdp__elastic_key(e, key, "e/%llu/in", (unsigned long long)k);
    return cdp__elastic_append(e, e->watched, key, &a);
}

/* Makes a decision of these arrivals and of the tickets, and proposes it. `why`: what ended the
   epoch, NULL: nothing did. *won: the decision that counts, if the verdict is DECIDED; its members
   are allocated. */
CDP__PRIVATE cdp_status cdp__elastic_try(cdp_elastic *e, cdp_store *s, const cdp__elastic_view *v,
    const cdp__elastic_get *why, cdp__elastic_verdict *verdict, cdp__elastic_decision *won) {
    const uint64_t room = (uint64_t)v->old->size + v->ticket_count + 1;
    cdp__elastic_decision d;
    cdp_status st = CDP_OK;
    memset(won, 0, sizeof *won);
    d.members = (cdp__elastic_member *)cdp__alloc(e->os, room * sizeof *d.members);
    if (!d.members) return cdp__fail_nomem("a list of members", room * sizeof *d.members);
    *verdict = cdp__elastic_decide(v, &d);
    if (*verdict == CDP__ELASTIC_DECIDED) {
        cdp__format(d.cause, sizeof d.cause, "the job begins");
        if (why && why->data) cdp__text_foreign(d.cause, sizeof d.cause, why->data, why->bytes);
        st = cdp__elastic_propose(e, s, &d, won);
    }
    cdp__free(e->os, d.members);
    return st;
}

/* The same for a turn: reads the tickets and the alarm first. */
CDP__PRIVATE cdp_status cdp__elastic_try_turn(cdp_elastic *e, cdp_store *s,
    const cdp__elastic_decision *old, const cdp__elastic_arrival *arrivals, uint32_t count,
    cdp__elastic_verdict *verdict, cdp__elastic_decision *won) {
    cdp__elastic_get g[2];
    cdp__elastic_ticket *tickets = NULL;
    cdp__elastic_view v;
    cdp_status st;
    memset(won, 0, sizeof *won);
    memset(g, 0, sizeof g);
    memset(&v, 0, sizeof v);
    v.old = old;
    v.arrivals = arrivals;
    v.arrival_count = count;
    v.min_ranks = e->desc.min_ranks;
    v.max_ranks = e->desc.max_ranks;
    cdp__elastic_key(e, g[0].key, "join/in");
    cdp__elastic_key(e, g[1].key, "e/%llu/alarm", (unsigned long long)old->epoch);
    st = cdp__elastic_get_all(e, s, g, 2);
    if (st != CDP_OK) return st;
    st = cdp__elastic_tickets_of(
        e, s, old->tickets, g[0].data, g[0].bytes, &tickets, &v.ticket_count);
    v.tickets = tickets;
    if (st == CDP_OK) st = cdp__elastic_try(e, s, &v, &g[1], verdict, won);
    cdp__elastic_get_free(s, g, 2);
    cdp__free(e->os, tickets);
    return st;
}

/* Finds out which members are gone, and removes their arrivals, because they could send no state. A
   process that does not lead asks only for the leader, and for all members if the leader is
   gone. */
CDP__PRIVATE cdp_status cdp__elastic_find_dead(
    cdp_elastic *e, cdp__elastic_turn *t, bool *dead, cdp__elastic_arrival *arrivals) {
    const uint32_t leader = cdp__elastic_leader(t);
    uint32_t r, i;
    cdp_status st = CDP_OK;
    if (leader != t->rank) {
        st = cdp__elastic_has_ended(e, e->watched, t->d->members[leader].id, &dead[leader]);
        if (st != CDP_OK || !dead[leader]) return st;
    }
    dead[t->rank] = true; /* that is not to be asked */
    if (t->d->size)
        st = cdp__elastic_have_ended(e, e->watched, t->d->members[0].id, sizeof *t->d->members,
            dead, sizeof *dead, t->d->size);
    dead[t->rank] = false;
    for (i = 0; i < t->count;) {
        r = arrivals[i].rank;
        if (r < t->d->size && dead[r])
            arrivals[i] = arrivals[--t->count];
        else
            ++i;
    }
    return st;
}

/* Why a turn that cannot be decided ends: CDP_OK if it goes on. */
CDP__PRIVATE cdp_status cdp__elastic_hopeless(
    cdp_elastic *e, const cdp__elastic_turn *t, uint64_t turn_ms, cdp__elastic_verdict verdict) {
    uint32_t r, there = 0; /* a member may have two arrival records */
    if (verdict == CDP__ELASTIC_NO_STATE && cdp__elastic_complete(t))
        return cdp__fail(CDP_ERR_STATE,
            "no member of epoch %llu that is left has state: start again from a checkpoint",
            (unsigned long long)t->d->epoch);
    if (verdict == CDP__ELASTIC_DECIDED || turn_ms < e->desc.join_ms) return CDP_OK;
    for (r = 0; r < t->d->size; ++r)
        there += cdp__elastic_arrival_of(t->d, r, t->arrivals, t->count) != NULL;
    if (verdict == CDP__ELASTIC_NO_STATE)
        return cdp__fail(CDP_ERR_TIMEOUT,
            "epoch %llu ended and %u of its %u ranks arrived, none of them with state: of those "
            "that have it, nobody came or was known to be dead within join_ms, %u ms",
            (unsigned long long)t->d->epoch, there, t->d->size, e->desc.join_ms);
    return cdp__fail(CDP_ERR_TIMEOUT,
        "epoch %llu ended and %u of its %u ranks arrived, but min_ranks is %u: nobody came within "
        "join_ms, %u ms",
        (unsigned long long)t->d->epoch, there, t->d->size, e->desc.min_ranks, e->desc.join_ms);
}

/* One poll of a turn, of which `in` holds the arrivals: proposes if it is time. *wait_ms: when to
   poll again. *won: the decision, if there is one now; its members are allocated. */
CDP__PRIVATE cdp_status cdp__elastic_look(cdp_elastic *e, const cdp__elastic_get *in,
    cdp__elastic_settle *settle, uint64_t *wait_ms, cdp__elastic_decision *won) {
    const uint64_t now = cdp__elastic_now_ns(e);
    cdp__elastic_verdict verdict = CDP__ELASTIC_DECIDED;
    cdp__elastic_arrival *arrivals;
    cdp__elastic_turn t;
    bool *dead = (bool *)cdp__alloc_zero(e->os, e->d.size * sizeof *dead);
    cdp_status st;
    if (!dead) return cdp__fail_nomem("a list of members", e->d.size);
    memset(&t, 0, sizeof t);
    t.d = &e->d; /* whoever looks alone changes it */
    t.dead = dead;
    t.rank = e->place.rank;
    t.settle_ms = cdp__elastic_settle_ms(t.d, e->desc.settle_ms);
    t.since_ms = cdp__elastic_waited_ms(settle, now, t.settle_ms);
    st = cdp__elastic_records_of(e, in->key, in->data, in->bytes, &arrivals, &t.count);
    t.arrivals = arrivals;
    if (st == CDP_OK) st = cdp__elastic_find_dead(e, &t, dead, arrivals);
    if (st == CDP_OK && cdp__elastic_proposes(&t, wait_ms)) {
        *wait_ms = CDP__ELASTIC_AGAIN_MS;
        st = cdp__elastic_try_turn(e, e->watched, t.d, arrivals, t.count, &verdict, won);
    }
    if (st == CDP_OK && verdict == CDP__ELASTIC_FEW) {
        cdp__elastic_lock(e);
        e->few = true;
        cdp__elastic_signal(e);
        cdp__elastic_unlock(e);
    }
    if (st == CDP_OK) st = cdp__elastic_hopeless(e, &t, (now - e->epoch_ns) / CDP__MS, verdict);
    *wait_ms = cdp__min(*wait_ms, CDP__ELASTIC_SLICE_MS);
    settle->due_ns = now + *wait_ms * CDP__MS;
    cdp__free(e->os, arrivals);
    cdp__free(e->os, dead);
    return st;
}

/* Begins to wait for a key of epoch k; the request stays open from one poll to the next. */
CDP__PRIVATE cdp_status cdp__elastic_open(cdp_elastic *e, cdp__elastic_asks asks, uint64_t k) {
    cdp__elastic_watch *w = &e->watch;
    const unsigned long long epoch = (unsigned long long)k;
    cdp_status st;
    if (asks == CDP__ELASTIC_ASKS_ALARM)
        cdp__elastic_key(e, w->key, "e/%llu/alarm", epoch);
    else
        cdp__elastic_key(e, w->key, "e/%llu", epoch + 1);
    st = cdp__store_call_make(&w->call, CDP_STORE_WAIT, w->key, NULL, 0);
    if (st == CDP_OK) st = cdp__elastic_store_status(e, cdp__store_begin(e->watched, &w->call.rq));
    if (st < 0) return st;
    w->asks = (uint8_t)asks;
    w->epoch = k;
    return CDP_OK;
}

/* Nothing is asked any more. */
CDP__PRIVATE void cdp__elastic_close(cdp_elastic *e) {
    cdp_store_request *rq = &e->watch.call.rq;
    if (e->watch.asks != CDP__ELASTIC_ASKS_NOTHING && rq->status == CDP_PENDING)
        e->watched->cancel(e->watched->self, rq);
    e->watch.asks = CDP__ELASTIC_ASKS_NOTHING;
}

/* No list of tickets is read any more, nor is a trial looked for. */
CDP__PRIVATE void cdp__elastic_close_tickets(cdp_elastic *e) {
    cdp_store_request *rq = &e->watch.tickets.rq;
    if (!e->watch.reads) return;
    e->watch.reads = false;
    if (rq->status == CDP_PENDING) e->store->cancel(e->store->self, rq);
    if (rq->status == CDP_OK) cdp_store_request_free(e->store, rq);
}

CDP__PRIVATE void cdp__elastic_close_all(cdp_elastic *e) {
    cdp__elastic_close(e);
    cdp__elastic_close_tickets(e);
}

/* One poll of a turn, between the arrival in epoch k and the next decision. Waits for that decision
   until `until_ns`, but not longer than until the next poll is due. */
CDP__PRIVATE cdp_status cdp__elastic_look_for_decision(
    cdp_elastic *e, uint64_t k, uint64_t until_ns) {
    cdp__elastic_watch *w = &e->watch;
    cdp__elastic_get g[2];
    cdp__elastic_decision d;
    uint64_t wait_ms = 0;
    bool here;
    cdp_status st;
    memset(g, 0, sizeof g);
    if (w->turn != k) {
        w->turn = k;
        w->settle.since_ns = w->settle.due_ns = e->epoch_ns;
        w->settle.pauses = 0;
    }
    if (w->asks == CDP__ELASTIC_ASKS_DECISION) {
        st = cdp__elastic_answer(e, e->watched, &w->call.rq, cdp__min(until_ns, w->due_ns));
        if (st == CDP_PENDING && cdp__elastic_now_ns(e) < w->due_ns) return CDP_OK;
        cdp__elastic_close(e);
        if (st < 0) return st;
    }
    cdp__elastic_key(e, g[0].key, "e/%llu", (unsigned long long)(k + 1));
    cdp__elastic_key(e, g[1].key, "e/%llu/in", (unsigned long long)k);
    st = cdp__elastic_get_all(e, e->watched, g, 2);
    if (st != CDP_OK) return st;
    st = cdp__elastic_decision_of(e, k + 1, g[0].data, g[0].bytes, &d);
    if (st == CDP_OK && !d.members) {
        st = cdp__elastic_look(e, &g[1], &w->settle, &wait_ms, &d);
        w->due_ns = cdp__elastic_now_ns(e) + wait_ms * CDP__MS;
    }
    cdp__elastic_get_free(e->watched, g, 2);
    if (st == CDP_OK && !d.members && wait_ms)
        st = cdp__elastic_open(e, CDP__ELASTIC_ASKS_DECISION, k);
    if (st != CDP_OK || !d.members) {
        cdp__free(e->os, d.members);
        return st;
    }
    cdp__elastic_lock(e);
    here = e->place.phase == CDP__ELASTIC_ARRIVED; /* no: it has left meanwhile */
    if (here) cdp__elastic_adopt(e, &d);
    cdp__elastic_unlock(e);
    if (!here) cdp__free(e->os, d.members);
    return CDP_OK;
}

/* So many newcomers may be taken in: *found if they end the epoch. */
CDP__PRIVATE cdp_status cdp__elastic_let_in(cdp_elastic *e, uint32_t waiting, bool *found) {
    char why[80];
    if (!waiting) return CDP_OK;
    *found = true;
    cdp__format(why, sizeof why, "%u newcomer%s", waiting, waiting == 1 ? " waits" : "s wait");
    return cdp__elastic_alarm_at(e, e->watched, e->d.epoch, why);
}

/* Newcomers end the epoch: *found. */
CDP__PRIVATE cdp_status cdp__elastic_look_for_newcomers(cdp_elastic *e, bool *found) {
    cdp__elastic_ticket *tickets;
    uint32_t count, waiting;
    cdp_status st;
    *found = false;
    st = cdp__elastic_read_tickets(e, e->watched, e->d.tickets, &tickets, &count);
    if (st != CDP_OK) return st;
    waiting = cdp__elastic_waiting(tickets, e->d.tickets, count);
    cdp__free(e->os, tickets);
    return cdp__elastic_let_in(e, waiting, found);
}

/* Newcomers may end the epoch now. Lock held. */
CDP__PRIVATE bool cdp__elastic_grows(const cdp_elastic *e) {
    return !e->place.ending && e->place.size < e->desc.max_ranks
        && cdp__elastic_now_ns(e) - e->epoch_ns
        >= ((uint64_t)e->desc.grow_ms << e->d.cool) * CDP__MS;
}

/* Newcomers that were tried end the epoch, at the earliest grow_ms after it began, if there is
   room: *found. Others are tried. Rank 0 does this. */
CDP__PRIVATE cdp_status cdp__elastic_receive_newcomers(cdp_elastic *e, uint64_t k, bool *found) {
#ifdef CDP_NO_FRAMES
    (void)k;
    return cdp__elastic_look_for_newcomers(e, found);
#else
    cdp__elastic_trial *const tr = cdp__elastic_trial_of(e, k);
    cdp__elastic_ticket *tickets;
    cdp__elastic_view v;
    uint32_t waiting;
    bool grows;
    cdp_status st;
    memset(&v, 0, sizeof v);
    st = cdp__elastic_read_tickets(e, e->watched, e->d.tickets, &tickets, &v.ticket_count);
    if (st != CDP_OK) return st;
    v.old = &e->d;
    v.tickets = tickets;
    if (tr->ticket_count != v.ticket_count) cdp__elastic_trial_soon(tr);
    tr->ticket_count = v.ticket_count;
    waiting = cdp__elastic_waiting(tickets, e->d.tickets, v.ticket_count);
    cdp__elastic_lock(e);
    grows = cdp__elastic_grows(e);
    cdp__elastic_unlock(e);
    if (grows) st = cdp__elastic_let_in(e, waiting, found);
    if (st == CDP_OK && !*found) st = cdp__elastic_trial_call(e, &v, k, &tr->asked);
    tr->asked = tr->asked || waiting;
    cdp__free(e->os, tickets);
    return st;
#endif
}

/* What this process has to do while it waits for an alarm. */
typedef enum cdp__elastic_duty {
    CDP__ELASTIC_NOTHING,
    CDP__ELASTIC_ALARM,    /* the group failed: this thread's last error says why */
    CDP__ELASTIC_ANSWER,   /* others wait for its program, and may ask whether it lives */
    CDP__ELASTIC_NEWCOMERS /* it polls for newcomers: rank 0 for tickets, others for a trial */
} cdp__elastic_duty;

/* The answer to what cdp__elastic_check_newcomers() asked: whether there may be something to do. */
CDP__PRIVATE bool cdp__elastic_found_some(const cdp_elastic *e, const cdp_store_request *rq) {
    const cdp__elastic_trial *const tr = &e->trial;
    uint64_t count;
    if (rq->op == CDP_STORE_CHECK) return rq->number == 1;
    count = rq->results ? rq->results[0].bytes / CDP__ELASTIC_RECORD_BYTES : 0;
    /* the decision counts tickets of processes that only ask, and may not have been tried yet */
    if (tr->epoch != e->d.epoch) return count > 0;
    return tr->asked || (count > e->d.tickets && count != tr->ticket_count);
}

/* Sets *may if there may be new tickets, or a trial. With a thread rank 0 reads them in
   cdp__elastic_receive_newcomers(). Otherwise the request is spread over several polls, so that no
   call of the program is delayed, and goes over `store`, while `watched` waits for the alarm. */
CDP__PRIVATE cdp_status cdp__elastic_check_newcomers(cdp_elastic *e, uint64_t k, bool *may) {
    cdp__elastic_watch *w = &e->watch;
    cdp_store_request *rq = &w->tickets.rq;
    const bool leads = e->place.rank == 0;
    cdp_status st = CDP_OK;
    *may = leads && !e->no_thread;
    if (*may) cdp__elastic_close_tickets(e); /* of an epoch in which another rank led */
    if (!w->reads) w->tickets_ns = cdp__elastic_now_ns(e);
    if (*may) return CDP_OK;
    if (!w->reads) {
        w->reads_question = e->no_thread && cdp__elastic_reads_question(e);
        if (w->reads_question)
            cdp__elastic_ask_key(e, w->tickets_key);
        else if (leads)
            cdp__elastic_key(e, w->tickets_key, "join/in");
        else
            cdp__elastic_key(e, w->tickets_key, "e/%llu/trial", (unsigned long long)k);
        st = cdp__store_call_make(&w->tickets,
            leads && !w->reads_question ? CDP_STORE_GET : CDP_STORE_CHECK, w->tickets_key, NULL, 0);
        if (st == CDP_OK) st = cdp__elastic_store_status(e, cdp__store_begin(e->store, rq));
        if (st < 0) return st;
        w->reads = true;
    }
    st = cdp__elastic_answer(e, e->store, rq, 0);
    if (st == CDP_PENDING
        && cdp__elastic_now_ns(e) - w->tickets_ns
            < cdp__max(e->store_ms, e->desc.join_ms) * CDP__MS)
        return CDP_OK;
    w->reads = false;
    st = cdp__elastic_store_status(e, cdp__store_end(e->store, rq, st, e->desc.join_ms));
    if (st != CDP_OK) return st;
    if (w->reads_question) {
        w->question_ns = cdp__elastic_now_ns(e);
        if (rq->number != 1) return CDP_OK;
        cdp__elastic_close(e);
        return cdp__elastic_answer_newcomers(e);
    }
    *may = cdp__elastic_found_some(e, rq);
    cdp_store_request_free(e->store, rq);
    return CDP_OK;
}

/* Whether this process polls for newcomers now. Lock held. */
CDP__PRIVATE bool cdp__elastic_looks(const cdp_elastic *e) {
    const uint64_t now = cdp__elastic_now_ns(e);
#ifdef CDP_NO_FRAMES
    if (e->place.rank || !cdp__elastic_grows(e)) return false;
    return e->watch.reads || now - e->watch.tickets_ns >= CDP__ELASTIC_SLICE_MS * CDP__MS;
#else
    if (e->place.ending) return false;
    return e->watch.reads || now - e->watch.tickets_ns >= cdp__elastic_look_ms(e) * CDP__MS;
#endif
}

CDP__PRIVATE cdp__elastic_duty cdp__elastic_duty_of(cdp_elastic *e, uint64_t k) {
    cdp__elastic_duty duty = CDP__ELASTIC_NOTHING;
    cdp__elastic_lock(e);
    const bool here = !e->stop && !e->ended && e->failure.status == CDP_OK && e->place.epoch == k;
    if (here && cdp__elastic_is_awaited(e))
        duty = CDP__ELASTIC_ANSWER;
    else if (!here || e->place.phase != CDP__ELASTIC_RUNNING)
        duty = CDP__ELASTIC_NOTHING; /* `group` may be that of the epoch before */
    else if (cdp__elastic_is_loss(cdp_group_status(e->group)))
        duty = CDP__ELASTIC_ALARM;
    else if (cdp__elastic_looks(e))
        duty = CDP__ELASTIC_NEWCOMERS;
    cdp__elastic_unlock(e);
    return duty;
}

/* There is no alarm yet: if the group has failed or ranks want to join, this process raises it and
   arrives. */
CDP__PRIVATE cdp_status cdp__elastic_do_duty(cdp_elastic *e, uint64_t k) {
    const cdp__elastic_duty duty = cdp__elastic_duty_of(e, k);
    const cdp_error why = *cdp_last_error();
    bool alarm = duty == CDP__ELASTIC_ALARM, may = false;
    cdp_status st = CDP_OK;
    if (duty == CDP__ELASTIC_ANSWER) {
        cdp__elastic_close(e);
        return cdp__elastic_answer_doubts(e, k);
    }
    if (duty == CDP__ELASTIC_NEWCOMERS) st = cdp__elastic_check_newcomers(e, k, &may);
    if (st != CDP_OK || !(alarm || may)) return st;
#ifndef CDP_NO_FRAMES
    if (!alarm && e->place.rank) return cdp__elastic_trial_read(e, k);
#endif
    cdp__elastic_close(e);
    if (alarm) {
        cdp__elastic_lock(e);
        cdp__elastic_blame(e, k, &why, false);
        cdp__elastic_unlock(e);
        st = cdp__elastic_alarm_at(e, e->watched, k, why.text);
    }
    if (!alarm) st = cdp__elastic_receive_newcomers(e, k, &alarm);
    return st == CDP_OK && alarm ? cdp__elastic_arrive_at(e, k) : st;
}

/* One poll of an epoch that goes on: waits for its alarm until `until_ns`, and then arrives. The
   request to the store stays open between polls, so that calls of a program without a thread are
   not delayed. It uses `watched`: `store` may be busy for as long as the program's thread
   connects. */
CDP__PRIVATE cdp_status cdp__elastic_look_for_alarm(cdp_elastic *e, uint64_t k, uint64_t until_ns) {
    cdp__elastic_watch *w = &e->watch;
    cdp_status st = CDP_OK;
    if (w->asks == CDP__ELASTIC_ASKS_NOTHING) st = cdp__elastic_open(e, CDP__ELASTIC_ASKS_ALARM, k);
#ifndef CDP_NO_FRAMES
    if (st == CDP_OK && cdp__elastic_trial_runs(e)) {
        st = cdp__elastic_trial_poll(e, e->no_thread ? 0 : CDP__ELASTIC_TRIAL_US);
        until_ns = 0;
    }
#endif
    if (st == CDP_OK) st = cdp__elastic_answer(e, e->watched, &w->call.rq, until_ns);
    if (st == CDP_PENDING) return cdp__elastic_do_duty(e, k);
    cdp__elastic_close(e);
    return st == CDP_OK ? cdp__elastic_arrive_at(e, k) : st;
}

/* It is in no epoch that could end. Lock held. */
CDP__PRIVATE bool cdp__elastic_idle(const cdp_elastic *e) {
    return e->place.phase == CDP__ELASTIC_OUT || e->failure.status != CDP_OK || e->ended
        || !e->place.epoch;
}

/* One poll of the store; waits until until_ns at most for the alarm or the decision. */
CDP__PRIVATE cdp_status cdp__elastic_tick(cdp_elastic *e, uint64_t until_ns) {
    const cdp__elastic_watch *w = &e->watch;
    bool arrived, idle, asked;
    uint64_t k;
    cdp_status st = CDP_OK;
    cdp__elastic_lock(e);
    k = e->place.epoch;
    arrived = e->place.phase == CDP__ELASTIC_ARRIVED;
    idle = cdp__elastic_idle(e);
    /* in its steps, a program without threads does not wait: see cdp__elastic_check_newcomers() */
    asked = !idle && (!e->no_thread || e->place.phase != CDP__ELASTIC_RUNNING || e->place.ending)
        && cdp__elastic_reads_question(e);
    cdp__elastic_unlock(e);
    if (asked || idle || w->epoch != k || (w->asks == CDP__ELASTIC_ASKS_DECISION) != arrived)
        cdp__elastic_close(e);
#ifndef CDP_NO_FRAMES
    if (idle || arrived || e->trial.epoch != k) cdp__elastic_trial_stop(e);
#endif
    if (asked) st = cdp__elastic_answer_newcomers(e);
    if (idle || st != CDP_OK) return st;
    return arrived ? cdp__elastic_look_for_decision(e, k, until_ns)
                   : cdp__elastic_look_for_alarm(e, k, until_ns);
}

#endif /* CDP_SRC_ELASTIC_TURNS_H */
