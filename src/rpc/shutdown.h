/* rpc/shutdown.h - waits until no rank has calls in flight

   Knows: sums of messages, what is left. Promises: waits as long as ranks work and are alive; its
   deadline counts from the last call that came or ended; every rank that takes part names the same
   request if one keeps it; after OK no rank has a call, a message or a reference. */
#ifndef CDP_SRC_RPC_SHUTDOWN_H
#define CDP_SRC_RPC_SHUTDOWN_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../base/error_api.h"
#include "../message/transport_api.h"
#include "../group/group_api.h"
#include "../group/collectives_api.h"
#include "../group/works_api.h"
#include "../channel/channel_api.h"
#include "../base/compiler.h"
#include "../base/kept_error.h"
#include "../base/basics.h"
#include "../text/format.h"
#include "../base/text.h"
#include "../base/bytes.h"
#include "../base/hash.h"
#include "../message/stream.h"
#include "../group/state.h"
#include "../group/deferred.h"
#include "../group/progress.h"
#include "../channel/channel.h"
#include "worker_api.h"
#include "table.h"
#include "forks.h"
#include "packets.h"
#include "state.h"
#include "send.h"
#include "roll_call.h"
#include "contexts.h"
#include "requests.h"
#include "intake.h"
#include "waits.h"
#include "life.h"

/* True if this rank has nothing in flight. */
CDP__PRIVATE bool cdp__rpc_passive(cdp_rpc *rpc, void *none) {
    uint32_t r;
    (void)none;
    if (rpc->calls_used || rpc->rqs || rpc->waiting || rpc->in || rpc->tasks || rpc->waves)
        return false;
    for (r = 0; r < rpc->ranks; ++r)
        if (rpc->peers[r].queue || rpc->peers[r].offered) return false;
    return true;
}

/* How strongly a request or a call keeps a shutdown from its end: the strongest one is the cause of
   the others. */
typedef enum cdp__rpc_weight {
    CDP__RPC_KEEPS_NOTHING,
    CDP__RPC_KEEPS_MESSAGES,
    CDP__RPC_KEEPS_CALL,
    CDP__RPC_KEEPS_WAITING,
    CDP__RPC_KEEPS_RUNNING,
    CDP__RPC_KEEPS_KEPT
} cdp__rpc_weight;

CDP__PRIVATE cdp__rpc_weight cdp__rpc_weight_of(const cdp__rpc_rq *rq) {
    if (rq->stage == CDP__RPC_KEPT) return CDP__RPC_KEEPS_KEPT;
    if (rq->stage == CDP__RPC_RUNNING || rq->in_function) return CDP__RPC_KEEPS_RUNNING;
    return CDP__RPC_KEEPS_WAITING;
}

/* Describes the request or call of this rank that keeps a shutdown the most. *at is the rank that
   does not answer: this one, the called one, or one that takes no messages. */
CDP__PRIVATE cdp__rpc_weight cdp__rpc_keeper(
    const cdp_rpc *rpc, char *text, uint64_t room, uint32_t *at) {
    static const char *const states[] = {"waits", "still runs", "was kept and never replied to"};
    const cdp__rpc_rq *rq, *most = NULL;
    char name[16];
    uint32_t i;
    *at = rpc->rank;
    for (rq = rpc->all; rq; rq = rq->after)
        if (!most || cdp__rpc_weight_of(rq) > cdp__rpc_weight_of(most)) most = rq;
    if (most) {
        const cdp__rpc_weight weight = cdp__rpc_weight_of(most);
        cdp__format(text, room, "%s, called by rank %u (%s), request %llu, %s",
            most->f ? most->f->name : "a value", most->pub.from, rpc->peers[most->pub.from].name,
            (unsigned long long)most->call, states[weight - CDP__RPC_KEEPS_WAITING]);
        return weight;
    }
    for (i = 1; i <= rpc->call_count; ++i) {
        const cdp__rpc_call *c = rpc->calls[i];
        if (!c->used || c->wire_over) continue;
        cdp__format(text, room, "the call of %s on rank %u (%s) has not ended",
            c->function ? cdp__rpc_function_name(rpc, c->function, name) : "a value", c->to,
            rpc->peers[c->to].name);
        *at = c->to;
        return CDP__RPC_KEEPS_CALL;
    }
    for (i = 0; i < rpc->ranks; ++i) {
        if (!rpc->peers[i].queue && !rpc->peers[i].offered) continue;
        cdp__format(text, room, "rank %u (%s) takes no messages", i, rpc->peers[i].name);
        *at = i;
        return CDP__RPC_KEEPS_MESSAGES;
    }
    return CDP__RPC_KEEPS_NOTHING;
}

/* Sets the last error: what keeps a shutdown on `rank`, and which rank does not answer. */
CDP__PRIVATE cdp_status cdp__rpc_kept_by(
    const cdp_rpc *rpc, uint32_t rank, const char *text, uint32_t at) {
    return cdp__fail_peer(CDP_ERR_TIMEOUT, cdp_world_rank_of(rpc->group, at), 0,
        "cdp_rpc_shutdown: on rank %u (%s), %s", rank, rpc->peers[rank].name, text);
}

/* The deadline of a shutdown counts from the last call that came or ended. */
typedef struct cdp__rpc_patience {
    uint32_t timeout_ms; /* that the program gave, or 0 */
    bool all_here;       /* every rank has called cdp_rpc_shutdown() */
    uint64_t messages;   /* of all ranks, in the last sum */
} cdp__rpc_patience;
/* Functions that the waits of a shutdown run are not cut: a shutdown waits for what still runs. */

CDP__PRIVATE uint64_t cdp__rpc_until_quiet(const cdp_rpc *rpc, uint32_t timeout_ms) {
    return timeout_ms == CDP_NO_TIMEOUT ? CDP__NEVER : rpc->moved_ns + timeout_ms * CDP__MS;
}

/* Until when ranks that have not called cdp_rpc_shutdown() may go on working. */
CDP__PRIVATE uint64_t cdp__rpc_until_here(const cdp_rpc *rpc, const cdp__rpc_patience *p) {
    return p->timeout_ms ? cdp__rpc_until_quiet(rpc, p->timeout_ms) : CDP__NEVER;
}

/* Until when ranks that have called it may have something in flight. */
CDP__PRIVATE uint64_t cdp__rpc_until_idle(const cdp_rpc *rpc, const cdp__rpc_patience *p) {
    if (!p->all_here) return cdp__rpc_until_here(rpc, p);
    return cdp__rpc_until_quiet(rpc, cdp__def(p->timeout_ms, rpc->desc.timeout_ms));
}

/* Counts that ranks add up while they shut down. */
typedef enum cdp__rpc_count {
    CDP__RPC_SENT,
    CDP__RPC_RECEIVED,
    CDP__RPC_LOSSES,
    CDP__RPC_ONE_SIDED, /* the sum is 0 if both ends of every lost link have noticed the loss */
    CDP__RPC_TALLIES,
    CDP__RPC_BUSY = CDP__RPC_TALLIES, /* ranks that have something in flight */
    CDP__RPC_LATE,                    /* ranks whose deadline is over */
    CDP__RPC_COUNTS
} cdp__rpc_count;
typedef char cdp__assert_roll_counts[(uint32_t)CDP__RPC_COUNTS == CDP__ROLL_COUNTS ? 1 : -1];

/* Messages to and from lost ranks are not counted, because some of them never arrive. */
CDP__PRIVATE void cdp__rpc_tally(const cdp_rpc *rpc, uint64_t n[CDP__RPC_TALLIES]) {
    uint32_t r;
    memset(n, 0, CDP__RPC_TALLIES * sizeof *n);
    for (r = 0; r < rpc->ranks; ++r) {
        const uint64_t link[2] = {cdp__min(r, rpc->rank), cdp__max(r, rpc->rank)};
        const uint64_t name = cdp__hash(CDP__HASH_START, link, sizeof link);
        if (rpc->lost[r]) {
            ++n[CDP__RPC_LOSSES];
            if (!rpc->roll.words) n[CDP__RPC_ONE_SIDED] += r < rpc->rank ? name : 0 - name;
        } else {
            n[CDP__RPC_SENT] += rpc->peers[r].sent;
            n[CDP__RPC_RECEIVED] += rpc->peers[r].received;
        }
    }
}

CDP__PRIVATE bool cdp__rpc_tally_moved(cdp_rpc *rpc, void *summed) {
    uint64_t n[CDP__RPC_TALLIES];
    cdp__rpc_tally(rpc, n);
    return memcmp(n, summed, sizeof n) != 0;
}

typedef struct cdp__rpc_sum {
    cdp_rpc *rpc;
    cdp_status status;
    cdp_error error;
    bool over;
} cdp__rpc_sum;

/* The sum is complete. Runs in a callback. */
CDP__PRIVATE cdp_status cdp__rpc_summed(void *user, cdp_status status) {
    cdp__rpc_sum *s = (cdp__rpc_sum *)user;
    cdp_rpc *rpc = s->rpc;
    cdp__rpc_lock(rpc);
    s->status = status;
    s->error = *cdp_last_error();
    s->over = true;
    cdp_channel_wake(rpc->channel);
    cdp_lock_release(&rpc->lock);
    return CDP_OK;
}

CDP__PRIVATE bool cdp__rpc_sum_over(cdp_rpc *rpc, void *arg) {
    (void)rpc;
    return ((cdp__rpc_sum *)arg)->over;
}

/* Lets the deadline of the sum that this rank takes part in pass now: the group finds out which
   rank is late, and all ranks that take part fail with its name. */
CDP__PRIVATE void cdp__rpc_sum_late(cdp_rpc *rpc, uint32_t timeout_ms) {
    cdp_group *g = rpc->sums;
    cdp__enter(g);
    if (g->queue.used) {
        cdp__op *op = cdp__group_head(g);
        op->rq.timeout_ms = timeout_ms;
        op->deadline_ns = g->timers.soonest_ns = cdp__now(g->os);
        cdp__world_wake(g->w);
    }
    cdp__leave(g);
}

/* A sum of ranks that all take part ends within this time, also where threads wait for processors.
   A later one says that a rank does not: its thread has not come, or runs a function. */
#define CDP__RPC_SUM_NS (250 * CDP__MS)

/* Waits for the end of a sum as long as ranks may go on working. */
CDP__PRIVATE cdp_status cdp__rpc_wait_here(cdp_rpc *rpc, bool (*over)(cdp_rpc *rpc, void *arg),
    void *arg, const cdp__rpc_patience *patience) {
    uint64_t here;
    cdp_status st;
    do {
        here = cdp__rpc_until_here(rpc, patience);
        st = cdp__rpc_wait(
            rpc, over, arg, here == CDP__NEVER ? here : here + CDP__RPC_SUM_NS, CDP__NEVER);
    } while (st == CDP_PENDING && cdp__rpc_until_here(rpc, patience) > here);
    return st;
}

/* Waits for a sum that was started. */
CDP__PRIVATE cdp_status cdp__rpc_sum_wait(
    cdp_rpc *rpc, cdp__rpc_sum *sum, cdp_work then, const cdp__rpc_patience *patience) {
    const cdp_status st = cdp__rpc_wait_here(rpc, cdp__rpc_sum_over, sum, patience);
    if (st == CDP_OK) return st;
    /* it writes to memory of this function's caller until it has ended */
    {
        const cdp_error e = *cdp_last_error();
        cdp_lock_release(&rpc->lock);
        cdp__rpc_sum_late(rpc, patience->timeout_ms);
        (void)!cdp_work_wait(then);
        cdp__rpc_lock(rpc);
        *cdp__error_slot() = e;
    }
    return st == CDP_PENDING ? CDP_OK : st;
}

/* all = the sum of every rank's `mine`. Lock held; released meanwhile. */
CDP__PRIVATE cdp_status cdp__rpc_add_up(
    cdp_rpc *rpc, const uint64_t *mine, uint64_t *all, const cdp__rpc_patience *patience) {
    cdp_request request;
    cdp__rpc_sum sum;
    cdp_work work, then;
    cdp_status st;
    memset(&sum, 0, sizeof sum);
    memset(&request, 0, sizeof request);
    sum.rpc = rpc;
    request.kind = CDP_COLL_ALLREDUCE;
    request.in = mine;
    request.out = all;
    request.count = CDP__RPC_COUNTS;
    request.dtype = CDP_DTYPE_I64; /* every build adds up this dtype */
    request.op = CDP_REDUCE_SUM;
    request.timeout_ms = CDP_NO_TIMEOUT;
    cdp_lock_release(&rpc->lock);
    st = cdp_start(rpc->sums, &request, &work);
    if (st == CDP_OK) {
        st = cdp_work_then(work, cdp__rpc_summed, &sum, &then);
        if (st != CDP_OK) {
            /* no callback will report its end, and it writes to `all` until then */
            const cdp_error e = *cdp_last_error();
            cdp_group_abort(rpc->sums, e.text);
            (void)!cdp_work_wait(work);
            *cdp__error_slot() = e;
        }
    }
    cdp__rpc_lock(rpc);
    if (st == CDP_OK) st = cdp__rpc_sum_wait(rpc, &sum, then, patience);
    if (st == CDP_OK && sum.status != CDP_OK) return cdp__error_again(sum.status, &sum.error);
    return st;
}

CDP__PRIVATE cdp_status cdp__rpc_under_way(const uint64_t all[CDP__RPC_COUNTS]) {
    return cdp__fail(CDP_ERR_TIMEOUT,
        "cdp_rpc_shutdown: messages between ranks are still under way: %llu were sent, %llu have "
        "come",
        (unsigned long long)all[CDP__RPC_SENT], (unsigned long long)all[CDP__RPC_RECEIVED]);
}

/* ---- sums among ranks that are alive, see rpc/roll.h */

/* What this rank says if it does not come. */
#define CDP__RPC_NOT_HERE "cdp_rpc_shutdown() was not called in time, or runs a function"

CDP__PRIVATE bool cdp__rpc_roll_over(cdp_rpc *rpc, void *none) {
    (void)none;
    return rpc->roll.over || rpc->roll.failed || rpc->roll.cut_by >= 0;
}

/* A turn was not over in time: this rank ends, and all others with it, with the name of the rank
   that did not come, or of what this rank has in flight itself. */
CDP__PRIVATE cdp_status cdp__rpc_roll_late(cdp_rpc *rpc) {
    cdp__roll_say say = rpc->roll.mine;
    uint32_t r = 0;
    say.weight = (uint32_t)cdp__rpc_keeper(rpc, say.text, sizeof say.text, &say.at);
    if (!say.weight) {
        while (r < rpc->ranks && (r == rpc->rank || cdp__roll_has_said(&rpc->roll, r)))
            ++r;
        say.rank = say.at = r % rpc->ranks;
        cdp__format(say.text, sizeof say.text, "%s", CDP__RPC_NOT_HERE);
    }
    cdp__rpc_say(rpc, CDP__ROLL_FAIL, &say);
    return cdp__rpc_kept_by(rpc, say.rank, say.text, say.at);
}

/* all = the sum of what ranks that are alive say. Lock held; released meanwhile. */
CDP__PRIVATE cdp_status cdp__rpc_add_up_living(
    cdp_rpc *rpc, const uint64_t *mine, uint64_t *all, const cdp__rpc_patience *patience) {
    cdp__roll *roll = &rpc->roll;
    cdp__roll_say say;
    cdp_status st;
    uint32_t r;
    memset(&say, 0, sizeof say);
    memcpy(say.counts, mine, sizeof say.counts);
    say.rank = rpc->rank;
    say.weight = (uint32_t)cdp__rpc_keeper(rpc, say.text, sizeof say.text, &say.at);
    for (r = 0; r < rpc->ranks; ++r) /* what it holds is released when its link has ended */
        if (roll->out[r] && !rpc->lost[r]) say.counts[CDP__RPC_BUSY] = 1;
    cdp__roll_begin(roll, &say);
    cdp__rpc_say(rpc, CDP__ROLL_TURN, &say);
    st = cdp__rpc_wait_here(rpc, cdp__rpc_roll_over, NULL, patience);
    if (st == CDP_PENDING) return cdp__rpc_roll_late(rpc);
    if (st != CDP_OK) return st;
    if (roll->cut_by >= 0)
        return cdp__fail_peer(CDP_ERR_PEER_LOST,
            cdp_world_rank_of(rpc->group, (uint32_t)roll->cut_by), 0,
            "cdp_rpc_shutdown: rank %u (%s) counts this rank out: it has lost this one, or a rank "
            "that it hears has",
            (uint32_t)roll->cut_by, rpc->peers[roll->cut_by].name);
    if (!roll->over && !roll->why.text[0]) return cdp__rpc_under_way(roll->why.counts);
    if (!roll->over) return cdp__rpc_kept_by(rpc, roll->why.rank, roll->why.text, roll->why.at);
    memcpy(all, roll->sum.counts, sizeof roll->sum.counts);
    all[CDP__RPC_LOSSES] = 0;
    for (r = 0; r < rpc->ranks; ++r)
        all[CDP__RPC_LOSSES] += roll->sum_out[r];
    return CDP_OK;
}

/* All ranks have heard this one's last word, or have said theirs, or are lost. */
CDP__PRIVATE bool cdp__rpc_all_said(cdp_rpc *rpc, void *none) {
    (void)none;
    for (uint32_t r = 0; r < rpc->ranks; ++r)
        if (rpc->peers[r].queue
            || (r != rpc->rank && !rpc->roll.out[r] && !rpc->lost[r] && !rpc->roll.words[r].left))
            return false;
    return true;
}

/* The last turn is over: this rank says so, and waits for the last words of others, because the end
   of its links could overtake its own. Lock held; released meanwhile. */
CDP__PRIVATE void cdp__rpc_roll_end(cdp_rpc *rpc, uint64_t until_ns) {
    if (!rpc->roll.words) return;
    rpc->roll.done = rpc->leaving = true;
    cdp__rpc_say(rpc, CDP__ROLL_LAST, &rpc->roll.mine);
    (void)cdp__rpc_wait(rpc, cdp__rpc_all_said, NULL, until_ns, CDP__NEVER);
}

/* ---- */

/* A sum was not complete in time. This rank names what it has in flight itself, or the rank that
   did not take part. */
CDP__PRIVATE cdp_status cdp__rpc_not_here(const cdp_rpc *rpc) {
    const cdp_error e = *cdp_last_error();
    char text[200];
    uint32_t r = 0, at;
    if (cdp__rpc_keeper(rpc, text, sizeof text, &at))
        return cdp__rpc_kept_by(rpc, rpc->rank, text, at);
    while (r < rpc->ranks && (int32_t)cdp_world_rank_of(rpc->group, r) != e.peer)
        ++r;
    if (r == rpc->ranks) return e.status;
    return cdp__rpc_kept_by(rpc, r, CDP__RPC_NOT_HERE, r);
}

/* The deadline of some rank is over while all take part: they agree on what keeps them. Lock held;
   released meanwhile. */
CDP__PRIVATE cdp_status cdp__rpc_agree(cdp_rpc *rpc, const uint64_t all[CDP__RPC_COUNTS]) {
    uint8_t card[204]; /* the rank that does not answer, and a text */
    char *text = (char *)card + 4;
    uint64_t mine, most;
    uint32_t rank, at;
    cdp_status st;
    if (rpc->roll.words) cdp__rpc_say(rpc, CDP__ROLL_FAIL, &rpc->roll.sum);
    if (rpc->roll.words && rpc->roll.sum.weight)
        return cdp__rpc_kept_by(rpc, rpc->roll.sum.rank, rpc->roll.sum.text, rpc->roll.sum.at);
    if (rpc->roll.words) return cdp__rpc_under_way(all);
    memset(card, 0, sizeof card);
    mine = (uint64_t)cdp__rpc_keeper(rpc, text, 200, &at) << 32 | (rpc->ranks - 1 - rpc->rank);
    cdp__put_u32(card, at);
    cdp_lock_release(&rpc->lock);
    st = cdp_allreduce(rpc->sums, &mine, &most, 1, CDP_DTYPE_I64, CDP_REDUCE_MAX);
    rank = rpc->ranks - 1 - (uint32_t)most;
    if (st == CDP_OK) st = cdp_broadcast(rpc->sums, card, sizeof card, CDP_DTYPE_U8, rank);
    cdp__rpc_lock(rpc);
    if (st != CDP_OK) return st;
    if (most >> 32) return cdp__rpc_kept_by(rpc, rank, text, cdp__get_u32(card));
    return cdp__rpc_under_way(all);
}

/* Pause between two sums. Ranks add up again as soon as one of their counts changes, and
   otherwise after a pause that grows, because calls may take long and adding up all the time
   would keep every core busy. */
#define CDP__RPC_PAUSE_NS 50000u
#define CDP__RPC_PAUSE_MAX_NS 20000000u

/* One sum; a rank that has something in flight takes part after a pause. Lock held; released
   meanwhile. */
CDP__PRIVATE cdp_status cdp__rpc_sum_once(
    cdp_rpc *rpc, cdp__rpc_patience *patience, uint64_t mine[], uint64_t all[]) {
    const uint64_t until = cdp__rpc_until_idle(rpc, patience);
    uint64_t messages;
    bool moved;
    cdp_status st = cdp__rpc_wait(rpc, cdp__rpc_passive, NULL,
        cdp__min(until, cdp__rpc_time(rpc) + CDP__RPC_PAUSE_MAX_NS), CDP__NEVER);
    if (st != CDP_OK && st != CDP_PENDING) return st;
    cdp__rpc_tally(rpc, mine);
    mine[CDP__RPC_BUSY] = !cdp__rpc_passive(rpc, NULL);
    mine[CDP__RPC_LATE] = cdp__now(rpc->os) >= cdp__rpc_until_idle(rpc, patience);
    if (rpc->roll.words) {
        st = cdp__rpc_add_up_living(rpc, mine, all, patience);
    } else {
        st = cdp__rpc_add_up(rpc, mine, all, patience);
        if (st == CDP_ERR_TIMEOUT) return cdp__rpc_not_here(rpc);
    }
    if (st != CDP_OK) return st;
    messages = all[CDP__RPC_SENT] + all[CDP__RPC_RECEIVED];
    moved = patience->all_here ? messages != patience->messages : !patience->timeout_ms;
    if (moved) rpc->moved_ns = cdp__now(rpc->os);
    patience->all_here = true;
    patience->messages = messages;
    return CDP_OK;
}

/* Runs functions until no rank has anything in flight. That is so if two sums of the messages
   that all ranks have sent and received, each taken while they are passive, are equal, and as
   many were received as were sent. The second sum begins after the first is complete, so no
   message can be in flight during both. A loss between the two sums, or one that only one end
   has noticed, makes them unequal. Lock held; released meanwhile. */
CDP__PRIVATE cdp_status cdp__rpc_quiet(cdp_rpc *rpc, cdp__rpc_patience *patience) {
    uint64_t before[CDP__RPC_COUNTS], mine[CDP__RPC_COUNTS], all[CDP__RPC_COUNTS];
    uint64_t pause = 0;
    memset(before, 0xff, sizeof before);
    for (;;) {
        const cdp_status st = cdp__rpc_sum_once(rpc, patience, mine, all);
        cdp_status waited;
        uint64_t until;
        if (st != CDP_OK) return st;
        if (!all[CDP__RPC_BUSY]
            && (!memcmp(all, before, CDP__RPC_TALLIES * sizeof *all) || CDP__RPC_PLANT(ONE_SUM)))
            return CDP_OK;
        if (all[CDP__RPC_LATE]) return cdp__rpc_agree(rpc, all);
        if (!all[CDP__RPC_BUSY] && all[CDP__RPC_SENT] == all[CDP__RPC_RECEIVED]
            && !all[CDP__RPC_ONE_SIDED]) {
            memcpy(before, all, sizeof before);
            pause = 0;
            continue;
        }
        memset(before, 0xff, sizeof before);
        if (all[CDP__RPC_BUSY]) continue; /* ranks that are busy pause */
        until = cdp__rpc_until_idle(rpc, patience);
        pause = cdp__min(cdp__max(2 * pause, CDP__RPC_PAUSE_NS), CDP__RPC_PAUSE_MAX_NS);
        if (CDP__RPC_PLANT(NOT_OF_THE_SEED)) pause += CDP__RPC_PAUSE_NS;
        waited = cdp__rpc_wait(rpc, cdp__rpc_tally_moved, mine,
            cdp__min(until, cdp__rpc_time(rpc) + pause), CDP__NEVER);
        if (waited != CDP_OK && waited != CDP_PENDING) return waited;
    }
}

/* Drops references that the program still holds. Returns how many there were; `text` describes
   the first one. Lock held; released meanwhile. */
CDP__PRIVATE uint32_t cdp__rpc_drop_leaks(cdp_rpc *rpc, char text[160]) {
    uint32_t slot, n = 0;
    for (slot = 1; slot < rpc->refs.room; ++slot) {
        cdp__ref *r = &rpc->refs.at[slot];
        char *label = rpc->extra[slot].label;
        const uint64_t rid = r->rid;
        const uint32_t owner = r->rank;
        if (r->kind != CDP__REF_USER || !r->handles) continue;
        if (!n++)
            cdp__format(text, 160, "to a value of rank %u (%s)%s%s", owner, rpc->peers[owner].name,
                label ? ", label " : "", label ? label : "");
        r->handles = 1;
        rpc->extra[slot].label = NULL;
        cdp__ref_drop(&rpc->refs, slot);
        if (rpc->desc.leaked) {
            cdp_lock_release(&rpc->lock);
            rpc->desc.leaked(rpc->desc.user, rid, owner, label);
            cdp__rpc_lock(rpc);
        }
        cdp__free(rpc->os, label);
    }
    return n;
}

/* Ends contexts of this rank that the program has not ended. Returns how many. */
CDP__PRIVATE uint32_t cdp__rpc_end_contexts(cdp_rpc *rpc) {
    cdp_ctx *ctx, *next;
    uint32_t r, n = 0;
    for (ctx = rpc->contexts; ctx; ctx = next) {
        next = ctx->next;
        /* one that has ended waits for answers in another thread, which drops it */
        if (cdp__rpc_maker(ctx->id) != rpc->rank || ctx->ended) continue;
        ++n;
        for (r = 0; r < rpc->ranks; ++r)
            if (ctx->with[r] == CDP__CTX_WITH && r != rpc->rank)
                cdp__rpc_control(rpc, r, CDP__RPC_CTX_END, ctx->id, 0, 0);
        cdp__ctx_drop(rpc, ctx);
    }
    return n;
}

CDP__PRIVATE cdp_status cdp__rpc_shut(cdp_rpc *rpc, cdp__rpc_patience *patience) {
    char text[160];
    uint32_t leaks, contexts;
    cdp_status st = cdp__rpc_quiet(rpc, patience);
    if (st != CDP_OK) return st;
    rpc->phase = CDP__RPC_REFUSING;
    rpc->leaving = !rpc->roll.words; /* those that leave say so */
    contexts = cdp__rpc_end_contexts(rpc);
    leaks = cdp__rpc_drop_leaks(rpc, text);
    cdp__rpc_tidy(rpc);
    st = cdp__rpc_quiet(rpc, patience);
    if (st != CDP_OK) return st;
    cdp__rpc_roll_end(
        rpc, cdp__deadline(rpc->os, cdp__def(patience->timeout_ms, rpc->desc.timeout_ms)));
    if (!CDP__RPC_PLANT(ONE_SUM)
        && (rpc->refs.used[CDP__REF_USER] || rpc->refs.used[CDP__REF_FORK]
            || rpc->refs.used[CDP__REF_HOLD]))
        return cdp__fail(CDP_ERR_INTERNAL,
            "cdp_rpc_shutdown: %u references, %u forks and %u holds are left although no message "
            "is under way",
            rpc->refs.used[CDP__REF_USER], rpc->refs.used[CDP__REF_FORK],
            rpc->refs.used[CDP__REF_HOLD]);
    if (leaks)
        return cdp__fail(CDP_ERR_STATE,
            "cdp_rpc_shutdown: this rank still had %u references, the first one %s; drop them "
            "with cdp_rref_drop() or cdp_call_free()",
            leaks, text);
    if (contexts)
        return cdp__fail(CDP_ERR_STATE,
            "cdp_rpc_shutdown: this rank still had %u contexts; end them with cdp_ctx_end()",
            contexts);
    return CDP_OK;
}

/* Other threads may be in waits that have just ended: they leave before the channel is closed. Lock
   held, released meanwhile. */
CDP__PRIVATE void cdp__rpc_waits_end(cdp_rpc *rpc, cdp_channel *channel, uint64_t until_ns) {
    uint64_t seen = 0, now = cdp__now(rpc->os);
    for (; rpc->waiters && now < until_ns; now = cdp__now(rpc->os)) {
        cdp_lock_release(&rpc->lock);
        cdp_channel_wake(channel);
        (void)!cdp_channel_wait_since(channel, &seen, cdp__min(until_ns, now + 10 * CDP__MS));
        cdp__rpc_lock(rpc);
    }
}

CDP_API cdp_status cdp_rpc_shutdown(cdp_rpc *rpc, uint32_t timeout_ms) {
    cdp_channel *channel;
    cdp__rpc_patience patience;
    cdp_status st;
    bool inside;
    if (!rpc) return cdp__missing("cdp_rpc_shutdown", "rpc");
    if (cdp__rpc_gone(rpc, "cdp_rpc_shutdown")) return CDP_ERR_INVALID;
    memset(&patience, 0, sizeof patience);
    patience.timeout_ms = timeout_ms;
    cdp__rpc_lock(rpc);
    inside = cdp__rpc_here_of()->request || cdp__rpc_here_of()->no_wait || *cdp__inside();
    if (rpc->phase != CDP__RPC_OPEN || rpc->shutting || inside) {
        cdp_lock_release(&rpc->lock);
        return cdp__fail(CDP_ERR_STATE, "cdp_rpc_shutdown: %s",
            inside ? "a function or a callback must not shut down the rpc that runs it"
                   : "this rpc was shut down before; destroy it, and create another one");
    }
    rpc->shutting = true;
    rpc->moved_ns = cdp__rpc_time(rpc);
    st = cdp__rpc_shut(rpc, &patience);
    if (st != CDP_OK && st != CDP_ERR_STATE) {
        rpc->phase = CDP__RPC_REFUSING;
        cdp__rpc_leave(rpc);
        return st;
    }
    channel = rpc->channel;
    rpc->phase = CDP__RPC_SHUT;
    {
        const cdp_error e = *cdp_last_error();
        cdp__rpc_waits_end(
            rpc, channel, cdp__deadline(rpc->os, cdp__def(timeout_ms, rpc->desc.timeout_ms)));
        cdp_lock_release(&rpc->lock);
        cdp__rpc_stop_workers(rpc);
        cdp_channel_close(channel);
        *cdp__error_slot() = e;
    }
    cdp__rpc_lock(rpc);
    rpc->channel = NULL;
    rpc->changed = true;
    cdp__rpc_leave(rpc);
    return st;
}

CDP__PRIVATE bool cdp__rpc_not_open(cdp_rpc *rpc, void *none) {
    (void)none;
    return rpc->phase != CDP__RPC_OPEN;
}

CDP_API cdp_status cdp_rpc_serve(cdp_rpc *rpc, uint32_t timeout_ms) {
    cdp__rpc_here *here = cdp__rpc_here_of();
    cdp__rpc_rq *outer = here->request, serving;
    cdp_status st;
    if (!rpc) return cdp__missing("cdp_rpc_serve", "rpc");
    if (cdp__rpc_gone(rpc, "cdp_rpc_serve")) return CDP_ERR_INVALID;
    memset(&serving, 0, sizeof serving); /* this thread runs functions although there are workers */
    if (!outer) here->request = &serving;
    cdp__rpc_lock(rpc);
    st = cdp__rpc_wait(rpc, cdp__rpc_not_open, NULL,
        cdp__deadline(rpc->os, cdp__def(timeout_ms, rpc->desc.timeout_ms)), CDP__NEVER);
    cdp__rpc_leave(rpc);
    here->request = outer;
    return st;
}

CDP_API cdp_status cdp_rpc_poll(cdp_rpc *rpc, uint32_t budget_us) {
    const cdp__rpc_here *here = cdp__rpc_here_of();
    cdp__rpc_rq *rq;
    cdp_status st;
    uint64_t until;
    if (!rpc) return cdp__missing("cdp_rpc_poll", "rpc");
    if (cdp__rpc_gone(rpc, "cdp_rpc_poll")) return CDP_ERR_INVALID;
    if (here->no_wait || *cdp__inside())
        return cdp__fail(CDP_ERR_STATE,
            "cdp_rpc_poll: a callback and an INLINE function run inside of it already; return");
    until = cdp__now(rpc->os) + budget_us * 1000ull;
    st = cdp_poll(rpc->group, budget_us); /* unlike the program's, it outlives lost ranks */
    cdp__rpc_lock(rpc);
    do {
        rq = cdp__rpc_next(rpc, cdp__rpc_time(rpc), CDP__NEVER);
        if (rq) cdp__rpc_help(rpc, rq, CDP__NEVER);
    } while (rq && cdp__rpc_time(rpc) < until);
    cdp__rpc_leave(rpc);
    return st;
}

#endif /* CDP_SRC_RPC_SHUTDOWN_H */
