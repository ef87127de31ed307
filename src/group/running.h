/* group/running.h - runs the operations of a group

   Knows: the queue of a group, its executor. Promises: operations run one after the other, in the
   order of the calls; each completes, or its group has failed, by its deadline. */
#ifndef CDP_SRC_GROUP_RUNNING_H
#define CDP_SRC_GROUP_RUNNING_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../base/error_api.h"
#include "group_api.h"
#include "collectives_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "../collective/kinds.h"
#include "../dtype/dtype.h"
#include "../collective/kinds.h"
#include "../collective/rounds.h"
#include "../collective/select.h"
#include "../failure/records.h"
#include "../failure/chains.h"
#include "../message/deferred.h"
#include "../message/stream.h"
#include "../message/transfer.h"
#include "../collective/executor.h"
#include "state.h"
#include "log.h"
#include "../failure/waits.h"
#include "../failure/report.h"
#include "../failure/spread.h"
#include "flows.h"

/* Stands for a work that ends when the world has nothing left to do. */
#define CDP__ALL_WORK UINT64_MAX

CDP__PRIVATE cdp_status cdp__failed_status(const cdp_group *g) {
    return g->health == CDP__FAILED && g->failure.settle_ns == CDP__NEVER ? g->failure.error.status
                                                                          : CDP_PENDING;
}

/* The status of use number `use` of a pool entry. */
CDP__PRIVATE cdp_status cdp__use_status(
    const cdp_group *g, uint64_t now_used, uint64_t use, uint64_t cancelled) {
    if (now_used == use) return cdp__failed_status(g);
    return now_used - use <= 64 && cancelled >> (now_used - 1 - use) & 1 ? CDP_ERR_ABORTED : CDP_OK;
}

CDP__PRIVATE cdp_status cdp__deferred_status(const cdp_group *g, uint64_t seq) {
    const uint64_t use = seq >> 16 & ((1ull << 47) - 1), index = seq & 0xffff;
    if (!g->deferred.entries || index >= g->desc.max_pending) return cdp__failed_status(g);
    return cdp__use_status(
        g, g->deferred.entries[index].use, use, g->deferred.entries[index].cancelled);
}

CDP__PRIVATE cdp_status cdp__post_status(const cdp_group *g, uint64_t seq) {
    const uint64_t index = seq & ((1u << CDP__POST_INDEX) - 1);
    const uint64_t use = (seq & ~CDP__POST_BIT) >> CDP__POST_INDEX;
    if (index >= g->messages.count) return cdp__failed_status(g);
    return cdp__use_status(
        g, g->messages.posts[index]->use, use, g->messages.posts[index]->cancelled);
}

CDP__PRIVATE cdp_status cdp__device_status(const cdp_group *g, uint64_t seq) {
    cdp_status st = CDP_PENDING;
    /* a thread that waits receives the cause */
    if (g->health == CDP__FAILED) return g->failure.error.status;
    if (cdp__backend_of(g)) st = g->backend->wait(g->backend->self, seq & ~CDP__DEVICE_BIT, 0);
    return st == CDP_OK ? st : CDP_PENDING;
}

/* True if this work was started in this group. */
CDP__PRIVATE bool cdp__work_exists(const cdp_group *g, uint64_t seq) {
    if (CDP__DEFERS && (seq & CDP__DEFERRED_BIT)) {
        const uint64_t use = seq >> 16 & ((1ull << 47) - 1), index = seq & 0xffff;
        const cdp__deferred *s = g->deferred.entries ? g->deferred.entries + index : NULL;
        if (!s || index >= g->desc.max_pending) return false;
        return use < s->use || (use == s->use && s->kind != CDP__DEFERRED_FREE);
    }
    if (seq & CDP__DEVICE_BIT) return true; /* only the backend can tell */
    if (CDP__POSTS && (seq & CDP__POST_BIT)) {
        const uint64_t index = seq & ((1u << CDP__POST_INDEX) - 1);
        const uint64_t use = (seq & ~CDP__POST_BIT) >> CDP__POST_INDEX;
        const cdp__post *post = index < g->messages.count ? g->messages.posts[index] : NULL;
        return post && (use < post->use || (use == post->use && post->taken));
    }
    return seq <= g->queue.issued;
}

/* How many bytes of an operation's output, counted from its beginning, have arrived. 0: not
   known. */
CDP__PRIVATE uint64_t cdp__op_arrived(const cdp_group *g, uint64_t seq) {
    return g->queue.completed + 1 == seq && g->exec.running ? cdp__exec_arrived(&g->exec) : 0;
}

/* OK, PENDING or the error of the failure; does not change the thread's last error. While a
   failure is being passed on, the operation's memory is still in use, so the result is PENDING. */
CDP__PRIVATE cdp_status cdp__work_status(const cdp_group *g, uint64_t seq) {
    if (seq == CDP__ALL_WORK)
        return !g->w->active && !g->w->pending ? CDP_OK : cdp__failed_status(g);
    if (CDP__DEFERS && (seq & CDP__DEFERRED_BIT)) return cdp__deferred_status(g, seq);
    if (seq & CDP__DEVICE_BIT) return cdp__device_status(g, seq);
    if (CDP__POSTS && (seq & CDP__POST_BIT)) return cdp__post_status(g, seq);
    return g->queue.completed >= seq ? CDP_OK : cdp__failed_status(g);
}

/* The bytes that the choice of an algorithm depends on. Parts of an uneven alltoall differ by
   rank, so they count as infinitely long. */
CDP__PRIVATE uint64_t cdp__op_bytes(const cdp_group *g, const cdp__op *op) {
    const cdp_request *rq = &op->rq;
    const uint32_t n = g->desc.world_size;
    const uint64_t size = cdp_dtype_size(cdp__reduced_as(rq->dtype, rq->op, rq->accumulate));
    if (rq->in_counts && rq->out_counts) return UINT64_MAX;
    if (rq->in_counts) return op->offs[n] * size;
    if (rq->out_counts) return op->offs[2 * n + 1] * size;
    return rq->count * size * (cdp__kind_has_parts(rq->kind) ? n : 1);
}

CDP__PRIVATE uint8_t cdp__op_algo(const cdp_group *g, const cdp__op *op) {
    const cdp_coll_kind kind = op->device ? CDP_COLL_BARRIER : op->rq.kind;
    const uint64_t bytes = op->device ? 0 : cdp__op_bytes(g, op);
    const cdp_request *rq = &op->rq;
    uint8_t is = g->topology.flags;
    if (cdp__reduced_as(rq->dtype, rq->op, rq->accumulate) != rq->dtype) is |= CDP__WIDER;
    if (cdp__kind_reduces(kind) && cdp__reduce_is_widest(rq->dtype, rq->op)) is |= CDP__WIDEST;
    return (uint8_t)cdp__select(cdp__choosing_of(g), kind, bytes, g->desc.world_size, is);
}

/* The shape of an operation, from which its algorithm is chosen. */

CDP__PRIVATE void cdp__op_shape(const cdp_group *g, const cdp__op *op, cdp__shape *s) {
    const cdp_request *rq = &op->rq;
    memset(s, 0, sizeof *s); /* clears the padding: shapes are compared as bytes */
    s->kind = rq->kind;
    s->op = rq->op;
    s->partial = cdp__reduced_as(rq->dtype, rq->op, rq->accumulate);
    s->rank = g->desc.rank;
    s->size = g->desc.world_size;
    s->root = rq->root;
    s->count = rq->count;
    s->hosts = &g->topology.hosts;
    s->in_place = !rq->in || rq->in == rq->out;
    s->in_offs = rq->in_counts ? op->offs : NULL;
    s->out_offs = rq->out_counts ? op->offs + s->size + 1 : NULL;
    if (!op->device) return;
    s->kind = CDP_COLL_BARRIER;
    s->count = s->root = 0;
    s->in_offs = s->out_offs = NULL;
}

/* Begins the first operation of the queue. */
CDP__PRIVATE void cdp__group_begin(cdp_group *g) {
    cdp__op *op = cdp__group_head(g);
    cdp__past *past = cdp__past_at(g, op->seq);
    cdp__task task;
    bool again;
    memset(&task, 0, sizeof task);
    cdp__op_shape(g, op, &task.shape);
    again = !op->parts && cdp__exec_like(&g->exec, &task.shape, cdp_dtype_size(op->rq.dtype));
    task.call = cdp__op_call(op);
    task.call.algo = again ? g->exec.task.call.algo : cdp__op_algo(g, op);
    task.in = op->rq.in;
    task.out = op->rq.out;
    task.factor = op->rq.factor;
    memset(past, 0, sizeof *past);
    past->call = task.call;
    past->from = past->to = -1;
    /* until now it was queued behind others */
    if (!op->start_ns) op->start_ns = cdp__now(g->os);
    past->start_ns = op->start_ns;
    g->timers.wait_ns =
        cdp__min(g->timers.wait_ns, op->start_ns + cdp__failure_period_ns(op->rq.timeout_ms));
    g->timers.checked_moved = 0;
    g->timers.checked_round = 0;
    g->timers.poll_peers_ns = g->channel == CDP__WORLD_CHANNEL || g->desc.world_size < 3
        ? CDP__NEVER
        : op->start_ns + CDP__POLL_PEERS_MS * CDP__MS;
    g->timers.revoke_ns = CDP__NEVER;
    cdp__exec_begin(&g->exec, &task, again);
    past->rounds = g->exec.rounds;
    cdp__log_begins(g);
}

/* True if a deadline has passed. Recomputes the earliest deadline, which may be that of an
   operation that is done. */
CDP__PRIVATE bool cdp__group_due(cdp_group *g, uint64_t now) {
    const cdp__flow *flow;
    const cdp__post *post;
    uint32_t i;
    if (now < g->timers.soonest_ns) return false;
    g->timers.soonest_ns = CDP__NEVER;
    for (i = 0; i < g->queue.used; ++i)
        g->timers.soonest_ns = cdp__min(
            g->timers.soonest_ns, g->queue.ops[(g->queue.at + i) % g->queue.room].deadline_ns);
    for (flow = g->messages.active; flow; flow = flow->next_active)
        for (i = 0; i < 2; ++i)
            for (post = flow->first[i]; post; post = post->next)
                g->timers.soonest_ns = cdp__min(g->timers.soonest_ns, post->deadline_ns);
    return now >= g->timers.soonest_ns;
}

CDP__PRIVATE void cdp__group_complete(cdp_group *g) {
    const cdp__op op = *cdp__group_head(g);
    const uint64_t now = cdp__now(g->os);
    cdp__past *past = cdp__past_at(g, op.seq);
    if (g->w->failure.waited || g->w->failure.waiting) cdp__wait_done(g, g->channel, op.seq + 1);
    if (g->w->failure.report_count) cdp__group_continued(g, op.start_ns);
    past->end_ns = now;
    past->round = g->exec.round;
    cdp__log_ends(g, &past->call, now - op.start_ns);
    g->queue.at = (g->queue.at + 1) % g->queue.room;
    --g->queue.used;
    g->queue.completed = op.seq;
    if (!g->queue.used && !g->messages.active) g->timers.soonest_ns = CDP__NEVER;
    g->timers.poll_peers_ns = 0;
    if (op.done) op.done(op.user, op.start_ns, now);
    cdp__group_ended(g);
}

/* The deadline of the first operation, or of one queued behind it, has passed. */
CDP__PRIVATE void cdp__group_fail_timeout(cdp_group *g, uint64_t now) {
    const cdp__transfer *late = cdp__exec_late(&g->exec);
    const cdp__op *op = cdp__group_head(g);
    cdp_error e;
    uint32_t i;
    for (i = 0; i < g->queue.used && op->deadline_ns > now; ++i)
        op = &g->queue.ops[(g->queue.at + i) % g->queue.room];
    g->failure.late_ms = op->rq.timeout_ms;
    if (late) {
        cdp__group_late(g, late, &g->exec.task.call, g->channel);
        return;
    }
    cdp__error(&e, CDP_ERR_TIMEOUT, -1,
        "the deadline of %u ms passed before the operation could start", g->failure.late_ms);
    cdp__group_fail(g, &e, true);
}

/* Turns a fault of the executor into a failure of the group. */
CDP__PRIVATE void cdp__group_fault(cdp_group *g) {
    const cdp__exec *x = &g->exec;
    if (x->fault == CDP__FAULT_LOST) cdp__group_lost(g, x->fault_rank, &g->w->fault);
    if (x->fault == CDP__FAULT_MISMATCH) cdp__group_fail_mismatch(g, x->fault_rank, &x->theirs);
    if (x->fault == CDP__FAULT_NOMEM) cdp__group_fail(g, &g->w->fault, false);
}

/* Called when nothing moves: sends exposed payloads that are not being read, and reads from
   other peers, each when its time has come. */
CDP__PRIVATE cdp__advance cdp__group_stuck(cdp_group *g, uint64_t now) {
    if (g->exec.exposing && g->timers.revoke_ns == CDP__NEVER)
        g->timers.revoke_ns = now + CDP__REVOKE_MS * CDP__MS;
    if (now >= g->timers.revoke_ns) {
        g->timers.revoke_ns = CDP__NEVER;
        g->exec.exposing = false;
        if (cdp__exec_try_revoke(&g->exec)) return CDP__MOVED;
    }
    if (now >= g->timers.poll_peers_ns) {
        g->timers.poll_peers_ns = now + CDP__POLL_PEERS_MS * CDP__MS;
        if (cdp__group_poll_peers(g)) return CDP__MOVED;
    }
    return CDP__BLOCKED;
}

/* The first operation must start after a work of this or another group. True if it may begin. */
CDP__PRIVATE bool cdp__group_gate(cdp_group *g, uint64_t now) {
    cdp__op *op = cdp__group_head(g);
    const cdp_group *other = op->after.group;
    const cdp_status st = cdp__work_status(other, op->after.seq);
    if (st == CDP_OK) {
        op->after.group = NULL;
        return true;
    }
    if (st != CDP_PENDING) {
        const cdp_error *cause = &other->failure.error;
        cdp_error e;
        if (other->health == CDP__FAILED)
            cdp__error(&e, st, cause->peer, "the work that this one was to follow has failed: %s",
                cause->text);
        else
            cdp__error(&e, st, -1, "the work that this one was to follow was cancelled");
        cdp__group_fail(g, &e, false);
    } else if (g->channel != CDP__WORLD_CHANNEL && now >= g->timers.poll_peers_ns) {
        g->timers.poll_peers_ns = now + CDP__POLL_PEERS_MS * CDP__MS;
        (void)cdp__group_poll_peers(g);
    }
    return false;
}

/* Begins the first operation of the queue, if none runs and it may begin. IDLE: the queue is empty;
   BLOCKED: the operation must still wait for another work. */
CDP__PRIVATE cdp__advance cdp__queue_begin(cdp_group *g) {
    if (g->exec.running) return CDP__MOVED;
    if (!g->queue.used) return CDP__IDLE;
    if (cdp__group_head(g)->after.group && !cdp__group_gate(g, cdp__now(g->os)))
        return g->health == CDP__HEALTHY ? CDP__BLOCKED : CDP__MOVED;
    cdp__group_begin(g);
    return CDP__MOVED;
}

/* The running operation was polled, with this result: it may have ended, or failed. */
CDP__PRIVATE cdp__advance cdp__queue_polled(cdp_group *g, cdp__advance polled) {
    if (g->health != CDP__HEALTHY) return CDP__MOVED;
    if (g->exec.fault != CDP__FAULT_NONE) {
        cdp__group_fault(g);
        return CDP__MOVED;
    }
    if (g->exec.running) return polled;
    cdp__group_complete(g);
    return CDP__MOVED;
}

/* Reports waits of the running operation: that the last wait is over if data has moved since
   and, if `look`, the current one. `tick`: the wait is long, so peers may compare calls. */
CDP__PRIVATE void cdp__queue_waits(cdp_group *g, bool look, bool tick) {
    const cdp__transfer *late = cdp__exec_late(&g->exec);
    const bool same =
        late && g->timers.checked_round == g->exec.round && g->timers.checked_moved == late->moved;
    const cdp__op *op = cdp__group_head(g);
    cdp__position at;
    memset(&at, 0, sizeof at);
    at.channel = g->channel;
    at.seq = op->seq;
    at.round = g->exec.round;
    if (!same && g->w->failure.waited) cdp__wait_ended(g, at.channel, at.seq, at.round);
    if (!late) return;
    if (look)
        cdp__wait_long(g, &at, late->s->peer, op->start_ns, tick && late->receive && !late->moved);
    g->timers.checked_round = g->exec.round;
    g->timers.checked_moved = late->moved;
}

/* Called when nothing moves: reports long waits, or all waits if other ranks wait for this one.
   True: poll again. */
CDP__PRIVATE bool cdp__group_waits(cdp_group *g, uint64_t now) {
    const bool tick = now >= g->timers.wait_ns;
    cdp__world *w = g->w;
    const bool look = tick || w->failure.waiting || cdp__group_settling(g);
    uint64_t period = CDP__FAILURE_WAIT_MS * CDP__MS;
    uint32_t i;
    if (look) period = cdp__min(period, cdp__flows_waits(g));
    if (g->exec.running && g->queue.used) {
        cdp__queue_waits(g, look, tick);
        period = cdp__min(period, cdp__failure_period_ns(cdp__group_head(g)->rq.timeout_ms));
    }
    if (tick) {
        cdp__waits_unacked(w);
        /* from the last check, or from the beginning of the latest wait */
        g->timers.wait_ns = now + period;
        for (i = 0; i < g->exec.transfer_count && g->exec.running; ++i)
            if (cdp__exec_check_receiver(&g->exec, i)) {
                cdp__group_fault(g);
                return true;
            }
        if (g->health != CDP__HEALTHY || cdp__group_poll_peers(g)) return true;
    }
    cdp__world_answer(w);
    if (w->failure.waited) cdp__world_read_all(w);
    /* the messages just read may let this rank continue; then it does not answer now */
    return w->failure.outbox || g->health != CDP__HEALTHY;
}

/* True if a deadline has just passed: the group settles why, and is to be polled again. */
CDP__PRIVATE bool cdp__group_overdue(cdp_group *g, uint64_t now) {
    if (cdp__group_settling(g) || !cdp__group_due(g, now)) return false;
    if (!cdp__flows_due(g, now)) cdp__group_fail_timeout(g, now);
    return true;
}

/* A poll without a budget continues until nothing moves, and checks deadlines then. Polls with a
   budget may all end before that, so they check deadlines here, if this rank waits for a peer:
   between two rounds it does not. */
CDP__PRIVATE void cdp__group_moved(cdp_group *g) {
    if (!CDP__BUDGETS || !g->w->poll_until_ns || g->health != CDP__HEALTHY) return;
    if (!g->exec.running || cdp__exec_late(&g->exec)) (void)cdp__group_overdue(g, cdp__now(g->os));
}

/* Neither operations nor messages have moved. */
CDP__PRIVATE cdp__advance cdp__group_blocked(cdp_group *g) {
    const uint64_t now = cdp__now(g->os);
    if (cdp__group_overdue(g, now)) return CDP__MOVED;
    if (g->queue.used && g->exec.running && cdp__group_stuck(g, now) == CDP__MOVED)
        return CDP__MOVED;
    if ((now >= g->timers.wait_ns || g->w->failure.waited || g->w->failure.outbox)
        && cdp__group_waits(g, now))
        return CDP__MOVED;
    return g->messages.active ? cdp__flows_stuck(g, now) : CDP__BLOCKED;
}

/* True if an operation, message or receive from any rank is late, in a group that fails together
   with `top`. */
CDP__PRIVATE bool cdp__domain_late(cdp_group *top, uint64_t now) {
    cdp_group *x;
    const cdp__deferred *s;
    for (x = top->w->groups; x; x = x->next)
        if (cdp__group_top(x) == top && (x->health != CDP__HEALTHY || cdp__group_due(x, now)))
            return true;
    for (s = top->w->pending; s; s = s->next)
        if (s->kind == CDP__DEFERRED_ANY && s->set && s->deadline_ns <= now
            && cdp__group_top(s->of) == top)
            return true;
    return false;
}

/* While a timeout settles, the late operation may still complete: then nothing has failed. */
CDP__PRIVATE cdp__advance cdp__group_settle_late(cdp_group *g, cdp__advance polled) {
    if (cdp__group_parent(g) || g->failure.domain.state != CDP__FAILURE_SETTLING) return polled;
    if (!cdp__domain_late(g, cdp__now(g->os))) {
        cdp__domain_step(g->w, g, CDP__FAILURE_RESUMED, g->w->rank, NULL, false);
        if (g->failure.domain.state == CDP__FAILURE_HEALTHY) return polled;
    }
    cdp__group_settle(g);
    if (g->health != CDP__HEALTHY) return CDP__MOVED;
    return polled == CDP__IDLE ? CDP__BLOCKED : polled;
}

/* A poll with a budget ended among these messages: the next one begins with another flow. */
CDP__PRIVATE void cdp__flows_turn(cdp_group *g) {
    cdp__flow *first = g->messages.active, **at = &g->messages.active;
    if (!first || !first->next_active) return;
    *at = first->next_active;
    first->next_active = NULL;
    while (*at)
        at = &(*at)->next_active;
    *at = first;
}

/* Polls everything once. Never blocks; allocates only for the first operation of a size. */
CDP__PRIVATE cdp__advance cdp__group_poll(cdp_group *g) {
    cdp__advance polled, flows = CDP__IDLE;
    if (g->health != CDP__HEALTHY) cdp__poll_extend(g->w);
    if (g->health == CDP__SETTLING) cdp__group_drain_all(g);
    if (g->health == CDP__SETTLING && !cdp__group_parent(g)) cdp__group_settle(g);
    if (g->health == CDP__SETTLING) return CDP__BLOCKED;
    if (g->health == CDP__FAILED) {
        if (cdp__group_reporting(g, cdp__now(g->os))) return CDP__BLOCKED;
        cdp__group_reported(g);
        return CDP__IDLE;
    }
    polled = cdp__queue_begin(g);
    if (g->exec.running) polled = cdp__queue_polled(g, cdp__exec_poll(&g->exec));
    if (g->messages.active && g->health == CDP__HEALTHY) flows = cdp__flows_poll(g);
    if (flows > polled) polled = flows;
    if (CDP__BUDGETS && g->w->cut) cdp__flows_turn(g);
    if (g->health == CDP__HEALTHY) polled = cdp__group_settle_late(g, polled);
    if (g->health != CDP__HEALTHY && polled == CDP__BLOCKED) return CDP__MOVED;
    if (polled == CDP__MOVED) cdp__group_moved(g);
    if (polled != CDP__BLOCKED || g->w->fast_poll || g->w->cut) return polled;
    return cdp__group_blocked(g);
}

/* The next moment that matters while settling: the last chance to store the end of a wait, the
   last chance to ask, or the end. */
CDP__PRIVATE uint64_t cdp__group_settle_end(const cdp_group *g) {
    const cdp__failure_domain *d =
        &(cdp__group_parent(g) ? cdp__group_parent(g) : g)->failure.domain;
    const uint64_t now = cdp__now(g->os), little = 2 * CDP__MS;
    const uint64_t share = cdp__failure_share_ns(&d->record, CDP__FAILURE_SETTLE_MS);
    if (now + share / 8 + little < d->due_ns) return d->due_ns - share / 8 - little;
    return now + little < d->due_ns ? d->due_ns - little : d->due_ns;
}

/* When the group must be polled again even if no data arrives. */
CDP__PRIVATE uint64_t cdp__group_deadline(const cdp_group *g) {
    uint64_t at = cdp__group_settling(g) ? cdp__group_settle_end(g) : g->timers.soonest_ns;
    if (g->w->failure.outbox) at = 0;
    if (g->health == CDP__SETTLING && cdp__group_parent(g))
        return CDP__NEVER; /* the parent settles */
    if (g->health == CDP__FAILED && g->failure.settle_ns != CDP__NEVER && g->failure.answer_ns)
        return g->failure.answer_ns;
    if (g->health == CDP__SETTLING) return cdp__group_settle_end(g);
    if (g->health != CDP__HEALTHY) return g->failure.settle_ns;
    if (g->messages.active) at = cdp__min(at, cdp__min(g->timers.wait_ns, g->timers.poll_peers_ns));
    if (g->exec.running)
        return cdp__min(cdp__min(at, g->timers.revoke_ns),
            cdp__min(g->timers.wait_ns, g->timers.poll_peers_ns));
    return g->channel != CDP__WORLD_CHANNEL ? cdp__min(at, g->timers.poll_peers_ns) : at;
}

#endif /* CDP_SRC_GROUP_RUNNING_H */
