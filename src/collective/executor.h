/* collective/executor.h - runs the rounds of one operation

   Knows: round functions, transfers. Promises: an operation completes, or fails with a reason and
   the rank concerned; it never blocks, and allocates only when an operation needs more scratch
   memory than all before it. */
#ifndef CDP_SRC_COLLECTIVE_EXECUTOR_H
#define CDP_SRC_COLLECTIVE_EXECUTOR_H

#include "../base/config.h"
#include "../base/types_api.h"
#include "../base/error_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "../dtype/dtype.h"
#include "../dtype/reduce.h"
#include "../dtype/convert.h"
#include "../dtype/slices.h"
#include "kinds.h"
#include "rounds.h"
#include "select.h"
#include "../message/header.h"
#include "../message/stream.h"
#include "../message/receive.h"
#include "../message/transfer.h"

/* Call, buffers and shape of an operation. */
typedef struct cdp__task {
    cdp__head call;
    cdp__shape shape;
    const void *in;
    void *out;
    cdp_real factor; /* of CDP_REDUCE_PREMUL_SUM */
} cdp__task;

typedef enum cdp__fault_kind {
    CDP__FAULT_NONE,
    CDP__FAULT_LOST,     /* because of w->fault */
    CDP__FAULT_MISMATCH, /* `theirs` arrived instead of the expected message */
    CDP__FAULT_NOMEM     /* because of w->fault */
} cdp__fault_kind;

typedef struct cdp__exec {
    cdp__world *w;
    cdp__stream *streams; /* one per rank of the channel */
    uint64_t piece_bytes, expose_bytes;
    const cdp__algo *algo;
    /* the dtype in which it is computed, and the bytes of its elements. `wide`: not that of the
       call; the first round converts the input to a vector of `wide_bytes` at the beginning of
       TMP, the last one converts the result. */
    cdp_dtype dtype;
    uint64_t elem, wide_bytes;
    bool wide;
    uint32_t round, rounds, transfer_count, step_count;
    bool running;
    bool kept;     /* the steps are those of a whole operation: an equal operation reuses them */
    bool exposing; /* a payload of this round is exposed, and may be revoked and sent instead */
    bool in_parts; /* see next_local */
    cdp__fault_kind fault;
    uint32_t fault_rank; /* rank in the channel */
    uint64_t copied; /* bytes of the last local step that were copied while waiting for messages */
    /* in_parts: a poll with a budget has begun the local steps: this one comes next, from this
       element on */
    uint32_t next_local;
    uint64_t local_done;
    void *tmp;
    uint64_t tmp_bytes;
    cdp__task task;
    cdp__step steps[CDP__ROUND_MAX];
    cdp__transfer transfers[CDP__ROUND_MAX];
    cdp__head theirs;
} cdp__exec;

CDP__PRIVATE void *cdp__exec_buffer(const cdp__exec *x, uint8_t which, uint64_t off) {
    uint8_t *base = (uint8_t *)(x->wide ? x->tmp : x->task.out);
    if (which == CDP__TMP) base = (uint8_t *)x->tmp + x->wide_bytes;
    if (which == CDP__IN && x->task.in) base = (uint8_t *)(uintptr_t)x->task.in;
    return base ? base + off * x->elem : NULL;
}

CDP__PRIVATE void cdp__exec_fail(cdp__exec *x, cdp__fault_kind kind, uint32_t rank) {
    if (x->fault != CDP__FAULT_NONE) return;
    x->fault = kind;
    x->fault_rank = rank;
    /* the functions that have just failed report their reason like those of a transport */
    if (kind != CDP__FAULT_MISMATCH) x->w->fault = *cdp_last_error();
}

/* Revokes all exposed memory of the operation. */
CDP__PRIVATE void cdp__exec_revoke(cdp__exec *x) {
    uint32_t i;
    for (i = 0; i < x->transfer_count; ++i)
        cdp__transfer_revoke(x->w, &x->transfers[i]);
}

CDP__PRIVATE void cdp__transfer_reset(cdp__transfer *t) {
    t->done = t->remote = t->exposing = t->announced = t->returned = false;
    t->moved = t->skip = t->torn_bytes = 0;
}

/* Makes a transfer of a step between two ranks. */
CDP__PRIVATE void cdp__exec_transfer(cdp__exec *x, const cdp__step *step, cdp__transfer *t) {
    const bool receive = step->kind != CDP__SEND;
    cdp__transfer_reset(t);
    t->s = &x->streams[step->peer];
    t->call = &x->task.call;
    t->dtype = x->dtype;
    t->round = x->round;
    t->receive = receive;
    t->reduce = step->kind == CDP__RECV_REDUCE;
    t->swap = (step->flags & CDP__SRC_FIRST) != 0;
    t->chained = receive && (step->flags & CDP__CHAINED) != 0;
    t->fresh = step->src != CDP__IN && x->rounds > 1;
    t->bytes = t->limit = step->len * x->elem;
    t->elem = x->elem;
    t->piece_bytes = x->piece_bytes;
    t->expose_bytes = x->expose_bytes;
    t->other = NULL;
    t->row = 0;
    if (receive) {
        t->data = (uint8_t *)cdp__exec_buffer(x, step->dst, step->dst_off);
        if (t->reduce && step->src)
            t->other = (const uint8_t *)cdp__exec_buffer(x, step->src, step->src_off);
    } else {
        t->data = (uint8_t *)cdp__exec_buffer(x, step->src, step->src_off);
    }
}

/* Elements of the vector that this rank contributes to a reduction. */
CDP__PRIVATE uint64_t cdp__exec_length(const cdp__shape *s) {
    return s->kind == CDP_COLL_REDUCE_SCATTER ? cdp__edge(s, s->in_offs, s->size) : s->count;
}

/* Lists the steps of the current round: those of the algorithm, between two conversions. */
CDP__PRIVATE uint32_t cdp__exec_wide_round(cdp__exec *x) {
    const cdp__shape *s = &x->task.shape;
    const bool in_place = !x->task.in || x->task.in == x->task.out;
    cdp__span part = cdp__first(s->count);
    if (!x->round) {
        x->steps[0] = cdp__step_make(CDP__WIDEN, -1, CDP__OUT, CDP__OUT, 0, 0, cdp__exec_length(s));
        return 1;
    }
    if (x->round + 1 < x->rounds) return (x->algo->round)(s, x->round - 1, x->steps);
    if (s->kind == CDP_COLL_REDUCE && s->rank != s->root) return 0;
    if (s->kind == CDP_COLL_EXSCAN && s->rank == 0) return 0;
    if (s->kind == CDP_COLL_REDUCE_SCATTER) part = cdp__part(s, s->rank);
    x->steps[0] = cdp__step_make(
        CDP__NARROW, -1, CDP__OUT, CDP__OUT, part.off, in_place ? part.off : 0, part.len);
    return 1;
}

/* Lists the steps of the current round and posts their messages: first sends, for which peers
   may wait, then receives. */
CDP__PRIVATE void cdp__exec_post(cdp__exec *x) {
    uint32_t i;
    x->step_count =
        x->wide ? cdp__exec_wide_round(x) : (x->algo->round)(&x->task.shape, x->round, x->steps);
    CDP_ASSERT(x->step_count <= CDP__ROUND_MAX);
    x->transfer_count = 0;
    x->exposing = false;
    for (i = 0; i < 2 * x->step_count; ++i) {
        const cdp__step *s = &x->steps[i % x->step_count];
        if (s->peer < 0 || (s->kind == CDP__SEND) != (i < x->step_count)) continue;
        CDP_ASSERT((uint32_t)s->peer < x->task.shape.size);
        cdp__exec_transfer(x, s, &x->transfers[x->transfer_count++]);
    }
}

/* Scratch memory of the algorithm. It grows to the largest size needed so far, and is kept. */
CDP__PRIVATE bool cdp__exec_scratch(cdp__exec *x, uint64_t bytes) {
    void *p;
    if (bytes <= x->tmp_bytes) return true;
    p = cdp__alloc(x->w->os, bytes);
    if (!p) {
        cdp__fail_nomem("the scratch of an operation", bytes);
        return false;
    }
    cdp__free(x->w->os, x->tmp);
    x->tmp = p;
    x->tmp_bytes = bytes;
    return true;
}

/* Prepares an operation that differs from the previous one. */
CDP__PRIVATE void cdp__exec_plan(cdp__exec *x) {
    x->step_count = x->transfer_count = x->round = 0;
    x->kept = false;
    x->rounds = x->algo->rounds(&x->task.shape) + (x->wide ? 2 : 0);
    if (!cdp__exec_scratch(x, x->algo->tmp_len(&x->task.shape) * x->elem + x->wide_bytes)) {
        cdp__exec_fail(x, CDP__FAULT_NOMEM, x->task.shape.rank);
        return;
    }
    if (x->rounds) cdp__exec_post(x);
    while (!x->step_count && x->round + 1 < x->rounds) {
        ++x->round;
        cdp__exec_post(x);
    }
    x->kept = x->round + 1 == x->rounds;
}

/* True if the next operation is equal to the previous one, whose steps are kept. Shapes are
   compared as bytes: their padding must be zero. */
CDP__PRIVATE bool cdp__exec_like(const cdp__exec *x, const cdp__shape *s, uint64_t elem) {
    return x->kept && x->elem == elem && !s->in_offs && !s->out_offs
        && memcmp(s, &x->task.shape, sizeof *s) == 0;
}

/* Reuses the steps of the previous operation: only the buffers of the transfers change. */
CDP__PRIVATE void cdp__exec_again(cdp__exec *x) {
    uint32_t i, n = 0;
    x->round = x->rounds - 1;
    x->exposing = false;
    for (i = 0; i < 2 * x->step_count; ++i) {
        const cdp__step *s = &x->steps[i % x->step_count];
        if (s->peer < 0 || (s->kind == CDP__SEND) != (i < x->step_count)) continue;
        cdp__exec_transfer(x, s, &x->transfers[n++]);
    }
    CDP_ASSERT(n == x->transfer_count);
}

/* Chooses the dtype of the computation. An algorithm whose partial results would be rounded works
   on a wide vector, in place. */
CDP__PRIVATE void cdp__exec_compute_as(cdp__exec *x) {
    cdp__shape *s = &x->task.shape;
    const cdp__head *call = &x->task.call;
    const cdp_dtype t = (cdp_dtype)call->dtype;
    x->dtype = t;
    if (s->size > 1 && cdp__kind_reduces(s->kind))
        x->dtype = cdp__reduced_as(t, s->op, (cdp_dtype)call->accumulate);
    /* a scaled input is a partial result, too */
    if (cdp__algo_combines(call->algo) && s->op != CDP_REDUCE_PREMUL_SUM) x->dtype = t;
    x->elem = cdp_dtype_size(x->dtype);
    x->wide = x->dtype != t;
    x->wide_bytes = 0;
    if (!x->wide) return;
    /* so many elements that their bytes do not fit 64 bits have no memory either */
    x->wide_bytes = cdp__min(cdp__exec_length(s), UINT64_MAX / 32) * x->elem;
    s->in_place = true;
}

/* Begins an operation. It uses the caller's memory until it is done or revoked. */
CDP__PRIVATE void cdp__exec_begin(cdp__exec *x, const cdp__task *task, bool again) {
    CDP_ASSERT(!x->running);
    x->task = *task;
    x->algo = cdp__algo_at(task->call.algo);
    cdp__exec_compute_as(x);
    x->running = true;
    x->copied = x->local_done = 0;
    x->next_local = 0;
    x->in_parts = false;
    x->fault = CDP__FAULT_NONE;
    if (again)
        cdp__exec_again(x);
    else
        cdp__exec_plan(x);
}

/* Runs part of the last local step, a copy, while messages are in flight. A small copy waits
   until nothing moves; a large one is interleaved with the messages, so that data which is also
   sent is read while it is in a cache. */
CDP__PRIVATE bool cdp__exec_meanwhile(cdp__exec *x, bool moved) {
    const cdp__step *s = &x->steps[x->step_count - 1];
    const uint64_t bytes = s->len * x->elem;
    const uint64_t n = cdp__min(bytes - x->copied, CDP__REMOTE_SLICE);
    if (s->src != CDP__IN || !n || (moved && bytes < CDP__GET_SLICE) || x->in_parts) return moved;
    memcpy((uint8_t *)cdp__exec_buffer(x, s->dst, s->dst_off) + x->copied,
        (const uint8_t *)cdp__exec_buffer(x, s->src, s->src_off) + x->copied, (size_t)n);
    x->copied += n;
    return moved || x->copied < bytes;
}

CDP__PRIVATE uint32_t cdp__exec_rank_of(const cdp__exec *x, const cdp__transfer *t) {
    return (uint32_t)(t->s - x->streams);
}

/* True if this rank also waits for data from the rank that transfer `i` sends to. */
CDP__PRIVATE bool cdp__exec_expects(const cdp__exec *x, uint32_t i) {
    uint32_t k;
    for (k = 0; k < x->transfer_count; ++k)
        if (x->transfers[k].receive && !x->transfers[k].done
            && x->transfers[k].s == x->transfers[i].s)
            return true;
    return false;
}

/* A rank that only sends would not read from its receiver. Until its message is sent or read,
   the receiver is in the same round or an earlier one, and all earlier data of the receiver has
   arrived. So any further message belongs to a different call. True: the transfer can go on, or
   the operation has failed. */
CDP__PRIVATE bool cdp__exec_check_receiver(cdp__exec *x, uint32_t i) {
    const cdp__transfer *t = &x->transfers[i];
    cdp__stream *s = t->s;
    if (t->receive || t->done || s->body_left || cdp__exec_expects(x, i)) return false;
    if (cdp__port_pump(x->w, s->peer, NULL) < 0) {
        cdp__exec_fail(x, CDP__FAULT_LOST, cdp__exec_rank_of(x, t));
        return true;
    }
    /* the receiver has read the payload meanwhile, and may be ahead of this rank */
    if (cdp__transfer_in_place(t) && t->announced && !s->exposed) return true;
    if (!cdp__stream_peek(x->w, s, &x->theirs)) return false;
    cdp__exec_fail(x, CDP__FAULT_MISMATCH, cdp__exec_rank_of(x, t));
    return true;
}

/* Handles the result of polling transfer `i`. True: it moved, or failed. */
CDP__PRIVATE bool cdp__exec_result(cdp__exec *x, uint32_t i, int64_t r) {
    cdp__transfer *t = &x->transfers[i];
    if (r == CDP__TRANSFER_MISMATCH) {
        x->theirs = t->theirs;
        cdp__exec_fail(x, CDP__FAULT_MISMATCH, cdp__exec_rank_of(x, t));
        return true;
    }
    if (r < 0) {
        cdp__exec_fail(x, CDP__FAULT_LOST, cdp__exec_rank_of(x, t));
        return true;
    }
    if (r > 0 && !t->receive && cdp__transfer_in_place(t)) x->exposing = true;
    if (r == 0 && !t->receive && cdp__transfer_in_place(t)
        && (t->s->early_used || cdp__port_has(&x->w->ports[t->s->peer], t->s)))
        return cdp__exec_check_receiver(x, i);
    return r != 0;
}

/* Sets how far transfer `i` may be combined: a chained one not beyond the one before it. */
CDP__PRIVATE void cdp__exec_limit(cdp__exec *x, uint32_t i) {
    cdp__transfer *t = &x->transfers[i];
    const cdp__transfer *before = t - 1;
    t->limit = t->bytes;
    if (before->done) return;
    t->limit = cdp__transfer_in_place(before) ? before->moved : t->moved;
}

CDP__PRIVATE void cdp__exec_step(cdp__exec *x, const cdp__step *s) {
    const cdp_dtype dtype = x->dtype;
#ifndef CDP_FEW_DTYPES
    const cdp_dtype given = (cdp_dtype)x->task.call.dtype;
    const uint64_t size = cdp_dtype_size(given);
#endif
    const cdp_reduce_op op = (cdp_reduce_op)x->task.call.op;
    const bool swap = (s->flags & CDP__SRC_FIRST) != 0;
    void *dst = cdp__exec_buffer(x, s->dst, s->dst_off);
    const void *src = cdp__exec_buffer(x, s->src, s->src_off);
    switch (s->kind) {
    case CDP__COPY: memcpy(dst, src, (size_t)(s->len * x->elem)); break;
    case CDP__REDUCE: cdp__reduce(dtype, op, swap, dst, src, s->len); break;
#ifndef CDP_NO_REPRODUCIBLE
    case CDP__COMBINE:
        cdp__slices_combine(dtype, op,
            x->wide ? dtype : cdp__reduced_as(dtype, op, (cdp_dtype)x->task.call.accumulate), src,
            s->stride, x->task.shape.size, dst, s->len);
        break;
#endif
    case CDP__DIVIDE: cdp__divide(dtype, dst, s->len, x->task.shape.size); break;
#ifndef CDP_FEW_DTYPES
    case CDP__WIDEN:
        src = x->task.in ? x->task.in : x->task.out;
        cdp__convert(given, (const uint8_t *)src + s->src_off * size, dtype, dst, s->len);
        break;
    case CDP__NARROW:
        cdp__convert(dtype, src, given, (uint8_t *)x->task.out + s->dst_off * size, s->len);
        break;
#endif
    case CDP__SCALE: cdp__scale(dtype, dst, s->len, x->task.factor); break;
    default: break;
    }
}

/* Local steps of the round, in their order. */
CDP__PRIVATE void cdp__exec_local(cdp__exec *x, const cdp__step *steps, uint32_t n) {
    uint32_t i;
    for (i = 0; i < n; ++i) {
        const cdp__step *s = &steps[i];
        /* the last one was copied while waiting */
        if (x->copied && i + 1 == x->step_count) continue;
        if (s->peer < 0 && s->len) cdp__exec_step(x, s);
    }
}

/* The part of the local steps that a poll with a budget makes next. False: there is none. */
CDP__PRIVATE bool cdp__exec_part(cdp__exec *x, cdp__step *part) {
    uint64_t most;
    x->in_parts = true;
    for (; x->next_local < x->step_count; ++x->next_local) {
        /* the last one has been made meanwhile */
        if (x->copied && x->next_local + 1 == x->step_count) continue;
        *part = x->steps[x->next_local];
        if (part->peer < 0 && x->local_done < part->len) break;
        x->local_done = 0;
    }
    if (x->next_local < x->step_count) {
        part->src_off += x->local_done;
        part->dst_off += x->local_done;
        most = CDP__STEP_BYTES / x->elem;
        if (part->kind == CDP__COMBINE) most = most / x->task.shape.size + 1;
        part->len = cdp__min(part->len - x->local_done, most);
        x->local_done += part->len;
        return true;
    }
    x->in_parts = false;
    x->next_local = 0;
    return false;
}

/* Called when nothing moves: revokes small exposed payloads that are not being read, and sends
   them, so that this rank does not wait for a reader that is itself waiting. True if something
   changed. */
CDP__PRIVATE bool cdp__exec_try_revoke(cdp__exec *x) {
    bool any = false;
    uint32_t i;
    if (!CDP__IN_PLACE || !x->w->transport.remote.try_revoke) return false;
    for (i = 0; i < x->transfer_count; ++i) {
        cdp__transfer *t = &x->transfers[i];
        if (t->receive || !t->remote || !t->s->exposed || t->bytes > x->w->window_bytes) continue;
        if (cdp__transfer_try_revoke(x->w, t)) any = true;
    }
    return any;
}

/* The transfer that this rank waits for, or NULL. A receive is preferred to a send; chained
   transfers that wait for an earlier one are left out. */
CDP__PRIVATE const cdp__transfer *cdp__exec_late(const cdp__exec *x) {
    const cdp__transfer *late = NULL;
    uint32_t i;
    for (i = 0; i < x->transfer_count && x->running; ++i) {
        const cdp__transfer *t = &x->transfers[i];
        if (t->done || (late && !t->receive)) continue;
        if (t->chained && !x->transfers[i - 1].done) continue;
        late = t;
    }
    return late;
}

/* How many bytes of the output of a broadcast, counted from its beginning, have arrived. They do
   not change any more. 0: not known. */
CDP__PRIVATE uint64_t cdp__exec_arrived(const cdp__exec *x) {
    uint32_t i;
    for (i = 0; i < x->transfer_count && x->task.shape.kind == CDP_COLL_BROADCAST; ++i)
        if (x->transfers[i].receive && x->transfers[i].data == (const uint8_t *)x->task.out)
            return x->transfers[i].moved;
    return 0;
}

/* Every message of the round is done: runs its local steps and starts the next round. */
CDP__PRIVATE void cdp__exec_next(cdp__exec *x) {
    const bool parts = CDP__BUDGETS && (x->w->poll_until_ns || x->in_parts);
    const cdp__step *steps = x->steps;
    uint32_t n = x->step_count;
    cdp__step part;
    do {
        if (parts) {
            if (!cdp__exec_part(x, &part)) break;
            steps = &part;
            n = 1;
        }
        cdp__exec_local(x, steps, n);
        if (parts && cdp__poll_over(x->w)) return;
    } while (parts);
    x->copied = 0;
    if (++x->round < x->rounds)
        cdp__exec_post(x);
    else
        x->running = false;
}

/* Advances every message of the round; when all are done, its local steps. IDLE: the operation is
   done. MOVED with a fault: it has failed. */
CDP__PRIVATE cdp__advance cdp__exec_poll(cdp__exec *x) {
    bool any = false, all = true;
    uint32_t i;
    if (!x->running) return CDP__IDLE;
    for (i = 0; i < x->transfer_count && x->fault == CDP__FAULT_NONE; ++i) {
        cdp__transfer *t = &x->transfers[i];
        int64_t r;
        if (t->done) continue;
        if (t->chained) cdp__exec_limit(x, i);
        r = t->receive ? cdp__transfer_receive(x->w, t) : cdp__transfer_send(x->w, t);
        all = all && t->done;
        if (!cdp__exec_result(x, i, r)) continue;
        any = true;
        if (cdp__poll_over(x->w)) return CDP__MOVED;
    }
    if (i && i == x->transfer_count && x->steps[x->step_count - 1].kind == CDP__COPY)
        any = cdp__exec_meanwhile(x, any);
    if (any || x->fault != CDP__FAULT_NONE) return CDP__MOVED;
    if (!all) return CDP__BLOCKED;
    cdp__exec_next(x);
    return x->running ? CDP__MOVED : CDP__IDLE;
}

#endif /* CDP_SRC_COLLECTIVE_EXECUTOR_H */
