/* ddp/bucket_launch.h - starts the operations of full buckets

   Knows: the order of buckets and of the stages of a hook. Promises: buckets start in the same
   order on every rank, in whatever order they become full. */
#ifndef CDP_SRC_DDP_BUCKET_LAUNCH_H
#define CDP_SRC_DDP_BUCKET_LAUNCH_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../message/transport_api.h"
#include "../group/group_api.h"
#include "../group/collectives_api.h"
#include "ddp_api.h"
#include "hooks_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "../group/state.h"
#include "../group/device.h"
#include "../group/collective_calls.h"
#include "group_access.h"
#include "state.h"
#include "buckets.h"

#ifndef CDP_NO_DDP

/* Callback; the caller holds the group's lock. */
CDP__PRIVATE void cdp__bucket_done(void *user, uint64_t start_ns, uint64_t end_ns) {
    cdp__bucket *b = (cdp__bucket *)user;
    b->start_ns = start_ns;
    b->end_ns = end_ns;
}

CDP__PRIVATE void cdp__bucket_done_later(void *user, uint64_t start_ns, uint64_t end_ns) {
    ((cdp__bucket *)user)->late_ns += end_ns - start_ns;
}

/* Starts an operation for a bucket. `b` NULL: for none, so its times are not recorded. */
CDP__PRIVATE cdp_status cdp__ddp_start(cdp_ddp *d, cdp_group *group, const cdp_request *rq,
    void (*done)(void *, uint64_t, uint64_t), cdp__bucket *b, cdp_work *out) {
    const uint32_t bucket = b ? (uint32_t)(b - d->buckets) : 0xffffu;
    const cdp_status st = cdp__group_start_bucket(group, rq, d->number, bucket, done, b, out);
    if (st != CDP_OK) return st;
    d->stats.sent_bytes += rq->count * cdp_dtype_size(rq->dtype);
    if (group == d->group) d->last = *out;
    return CDP_OK;
}

/* Sums flags in an operation of their own, see cdp__ddp_flags_apart(). */
CDP__PRIVATE cdp_status cdp__ddp_start_flags(
    cdp_ddp *d, cdp__bucket *b, uint32_t from, uint32_t count, cdp_work *out) {
    uint8_t *const flags = cdp__ddp_arena(d) ? b->flags : b->memory + cdp__bucket_bytes(b);
    const cdp_request rq = cdp__request_of(
        CDP_COLL_ALLREDUCE, NULL, flags + from * b->elem, count, b->dtype, CDP_REDUCE_SUM, 0);
    return count ? cdp__ddp_start(d, d->group, &rq, NULL, NULL, out) : CDP_OK;
}

/* Calls one stage of a hook. Its errors have a text. */
CDP__PRIVATE cdp_status cdp__hook_call(
    const cdp_hook *hook, cdp_bucket *b, uint32_t stage, cdp_request *rq) {
    const cdp_group *g = b->group;
    cdp_status st, before;
    memset(rq, 0, sizeof *rq);
    before = cdp__error_slot()->status;
    cdp__error_slot()->status = CDP_OK;
    st = hook->stage(hook->self, b, stage, rq);
    if (st != CDP_OK && st != CDP_PENDING && cdp__error_slot()->status == CDP_OK)
        return cdp__fail(st < 0 ? st : CDP_ERR_INVALID,
            "rank %u/%u: a hook returned %s for bucket %u, stage %u, without saying why",
            cdp_rank(g), cdp_size(g), cdp_status_name(st), b->index, stage);
    if (cdp__error_slot()->status == CDP_OK) cdp__error_slot()->status = before;
    return st;
}

/* Calls one stage of the hook for a bucket, and starts the operation that it returns. */
CDP__PRIVATE cdp_status cdp__ddp_stage(cdp_ddp *d, cdp__bucket *b, uint32_t stage) {
    cdp_request rq;
    cdp_status st;
    b->view.group = stage < d->hook.operations ? d->groups[stage] : d->group;
    st = cdp__hook_call(&d->hook, &b->view, stage, &rq);
    b->done = st != CDP_PENDING;
    if (st != CDP_PENDING) return st;
    if (stage >= d->hook.operations)
        return cdp__fail(CDP_ERR_INVALID,
            "a hook asks for operation %u of bucket %u, but its .operations is %u", stage + 1,
            b->view.index, d->hook.operations);
    return cdp__ddp_start(
        d, b->view.group, &rq, stage ? cdp__bucket_done_later : cdp__bucket_done, b, &b->work);
}

CDP__PRIVATE cdp_status cdp__ddp_launch_hook(cdp_ddp *d, cdp__bucket *b, uint32_t used) {
    cdp_bucket *v = &b->view;
    cdp_status st;
    v->index = (uint32_t)(b - d->buckets);
    v->bucket_count = d->bucket_count;
    v->data = b->memory;
    v->count = b->count;
    v->dtype = b->dtype;
    v->params = b->slots;
    v->param_count = b->params;
    v->divisor = cdp__ddp_divisor(d);
    v->ddp = d;
    b->start_ns = b->end_ns = 0;
    b->work.seq = 0;
    st = cdp__ddp_stage(d, b, 0);
    return st == CDP_OK ? cdp__ddp_start_flags(d, b, 0, used, &d->used) : st;
}

/* This rank has not used some parameters of the bucket. It contributes their gradients unchanged
   and keeps a copy, which is restored if no rank has used them. */
CDP__PRIVATE cdp_status cdp__ddp_keep(cdp_ddp *d, cdp__bucket *b) {
    uint32_t i;
    for (i = 0; i < b->params; ++i) {
        cdp__param *p = &d->params[b->slots[i]];
        const uint64_t bytes = cdp__param_bytes(p);
        if (p->mark != CDP__MARK_UNUSED || !bytes) continue;
        if (p->user.grad) {
            cdp__ddp_copy(d, p->grad, p->user.grad, bytes);
            continue;
        }
        if (p->touched) continue;
        if (!p->kept) p->kept = (uint8_t *)cdp__ddp_alloc(d, bytes, "ddp kept gradient");
        if (!p->kept) return cdp__fail_nomem("the gradient of an unused parameter", bytes);
        cdp__ddp_copy(d, p->kept, p->grad, bytes);
    }
    return cdp__ddp_failed(d);
}

/* Sets this rank's flag among those that say which ranks have data; `from`: index of the first. */
CDP__PRIVATE void cdp__ddp_set_active(
    cdp_ddp *d, const cdp__bucket *b, uint32_t from, uint32_t active) {
    uint32_t i;
    for (i = 0; i < active; ++i)
        cdp__flag_set(b, from + i, !d->shadow && i == cdp_rank(d->group));
}

CDP__PRIVATE cdp_status cdp__ddp_set_flags(
    cdp_ddp *d, cdp__bucket *b, uint32_t active, uint32_t used) {
    uint32_t i;
    for (i = 0; i < used; ++i) {
        const cdp__param *p = &d->params[i];
        cdp__flag_set(b, i, !d->shadow && (p->mark == CDP__MARK_READY || p->touched));
    }
    cdp__ddp_set_active(d, b, used, active);
    cdp__flags_move(d, b, used + active, true);
    return used && !d->shadow ? cdp__ddp_keep(d, b) : cdp__ddp_failed(d);
}

/* The part of the divisor by which gradients are divided before summing; 0: none. f16 is divided
   before, because sums would soon exceed its range (65504); PyTorch does so for all dtypes. */
CDP__PRIVATE cdp_real cdp__ddp_predivide(const cdp_ddp *d, cdp_dtype dtype) {
    const cdp_real divisor = d->desc.divisor != 0 ? d->desc.divisor : (cdp_real)cdp_size(d->group);
    const bool mean = d->desc.divisor == 0 && !d->desc.join_effective;
    if (d->desc.predivide != 0 || dtype != CDP_DTYPE_F16) return d->desc.predivide;
    if (mean && d->desc.accumulate) return 0; /* a sum in f32 is divided before it is rounded */
    return divisor >= 1 ? divisor : 0;
}

/* The rest of the divisor, which is applied when the sum has arrived; 1: none. */
CDP__PRIVATE cdp_real cdp__ddp_rest(const cdp_ddp *d, cdp_dtype dtype) {
    const cdp_real before = cdp__ddp_predivide(d, dtype);
    if (before != 0) return cdp__ddp_divisor(d) / before;
    return d->desc.divisor == 0 && !d->desc.join_effective ? 1 : cdp__ddp_divisor(d);
}

/* The request that reduces a bucket, see also cdp__ddp_rest(). */
CDP__PRIVATE cdp_request cdp__ddp_request(const cdp_ddp *d, const cdp__bucket *b, uint32_t tail) {
    const cdp_real before = cdp__ddp_predivide(d, b->dtype);
    cdp_reduce_op op = CDP_REDUCE_SUM;
    cdp_request rq;
    if (before != 0)
        op = CDP_REDUCE_PREMUL_SUM;
    else if (d->desc.divisor == 0 && !d->desc.join_effective)
        op = CDP_REDUCE_AVG;
    rq = cdp__request_of(CDP_COLL_ALLREDUCE, NULL, b->memory, b->count + tail, b->dtype, op, 0);
    if (before != 0) rq.factor = 1 / before;
    rq.accumulate = d->desc.accumulate;
    return rq;
}

/* Reads from the flags, which have arrived, which ranks had data in this pass. */
CDP__PRIVATE cdp_status cdp__ddp_read_active(cdp_ddp *d) {
    cdp__bucket *b = d->buckets;
    const uint32_t n = cdp__ddp_active_flags(d, b), used = b->used_flags;
    cdp_status st;
    uint32_t i, count = 0;
    d->stats.active_ranks = cdp_size(d->group);
    if (!n) return CDP_OK;
    cdp__flags_move(d, b, used + n, false);
    st = cdp__ddp_failed(d);
    if (st != CDP_OK) return st;
    for (i = 0; i < n; ++i)
        if (cdp__flag_get(b, used + i)) {
            ++count;
            d->root = i;
        }
    d->stats.active_ranks = count;
    if (count) d->equal = count == n;
    return CDP_OK;
}

/* Sums the flags that say which ranks have data, before a hook sees the first bucket. Returns
   CDP_PENDING if the hook divides by their number and `active`, which tells it, is not done. */
CDP__PRIVATE cdp_status cdp__ddp_start_active(cdp_ddp *d) {
    const uint32_t active = cdp__ddp_active_flags(d, d->buckets);
    cdp_status st = CDP_OK;
    if (!active || !cdp__ddp_flags_apart(d) || d->launched) return CDP_OK;
    if (!d->active.seq) {
        const uint32_t used = d->buckets->used_flags;
        cdp__ddp_set_active(d, d->buckets, used, active);
        cdp__flags_move(d, d->buckets, used + active, true);
        st = cdp__ddp_start_flags(d, d->buckets, used, active, &d->active);
    }
    if (st != CDP_OK || !d->desc.join_effective) return st;
    st = cdp_work_test(d->active);
    return st == CDP_OK ? cdp__ddp_read_active(d) : st;
}

CDP__PRIVATE cdp_status cdp__ddp_launch(cdp_ddp *d, cdp__bucket *b) {
    const bool apart = cdp__ddp_flags_apart(d);
    const uint32_t active = apart ? 0 : cdp__ddp_active_flags(d, b), used = b->used_flags;
    const bool may_be_unused = d->desc.find_unused || d->desc.static_graph;
    cdp_request rq;
    cdp_status st = CDP_OK;
    CDP_ASSERT(b == &d->buckets[d->launched]); /* buckets start in order */
    if (active || used) st = cdp__ddp_set_flags(d, b, active, used);
    if (st == CDP_OK && may_be_unused && !used && !d->shadow) st = cdp__ddp_keep(d, b);
    if (st != CDP_OK) return st;
    if (d->hook.stage) {
        st = cdp__ddp_launch_hook(d, b, used);
    } else {
        rq = cdp__ddp_request(d, b, apart ? 0 : active + used);
        st = cdp__ddp_start(d, d->group, &rq, cdp__bucket_done, b, &b->work);
        if (st == CDP_OK && apart) st = cdp__ddp_start_flags(d, b, 0, used, &d->used);
    }
    if (st == CDP_OK) ++d->launched;
    return st;
}

/* Runs the next stage of the hook for its next bucket. CDP_PENDING: the previous operation of
   that bucket is not done. */
CDP__PRIVATE cdp_status cdp__ddp_advance_one(cdp_ddp *d, uint32_t stage) {
    cdp__bucket *b = &d->buckets[d->at[stage]];
    cdp_status st;
    if (b->done) return CDP_OK;
    /* on a device, the hook appends to a queue without waiting */
    st = cdp__work_on_device(b->work) ? CDP_OK : cdp_work_test(b->work);
    return st == CDP_OK ? cdp__ddp_stage(d, b, stage) : st;
}

/* Runs the later stages of a hook as far as possible without waiting. Each stage handles the
   buckets in order. */
CDP__PRIVATE cdp_status cdp__ddp_advance(cdp_ddp *d) {
    uint32_t stage;
    for (stage = 1; stage <= d->hook.operations; ++stage)
        while (d->at[stage] < (stage == 1 ? d->launched : d->at[stage - 1])) {
            const cdp_status st = cdp__ddp_advance_one(d, stage);
            if (st < CDP_OK) return st;
            if (st == CDP_PENDING) break;
            ++d->at[stage];
        }
    return CDP_OK;
}

/* Starts every full bucket, as far as the order of buckets allows. Only the thread that has set
   `launching` calls this. */
CDP__PRIVATE bool cdp__ddp_next_is_full(cdp_ddp *d) {
    bool full;
    cdp_lock_acquire(&d->lock);
    full = d->launched < d->bucket_count && !d->buckets[d->launched].pending;
    cdp_lock_release(&d->lock);
    return full;
}

CDP__PRIVATE cdp_status cdp__ddp_launch_full(cdp_ddp *d) {
    cdp_status st = CDP_OK;
    if (cdp__ddp_flags_apart(d) && !d->launched && cdp__ddp_next_is_full(d))
        st = cdp__ddp_start_active(d);
    if (st == CDP_PENDING) return CDP_OK; /* a later call continues */
    while (st == CDP_OK && cdp__ddp_next_is_full(d)) {
        st = cdp__ddp_launch(d, &d->buckets[d->launched]);
        /* on a device all stages share one queue, so finish bucket by bucket on every rank */
        if (st == CDP_OK && d->hook.stage && cdp__ddp_on_device(d)) st = cdp__ddp_advance(d);
    }
    if (st == CDP_OK && d->hook.stage) st = cdp__ddp_advance(d);
    if (st == CDP_OK && d->launched && cdp__group_is_polled(d->group)) st = cdp_poll(d->group, 0);
    return st;
}

/* Starts full buckets from any thread. If another thread is launching already, it also launches
   the buckets of this one. */
CDP__PRIVATE cdp_status cdp__ddp_launch_ready(cdp_ddp *d) {
    cdp_status st = CDP_OK;
    bool again;
    cdp_lock_acquire(&d->lock);
    again = !d->launching;
    d->launching = d->launch_again = true;
    cdp_lock_release(&d->lock);
    while (again) {
        cdp_lock_acquire(&d->lock);
        d->launch_again = false;
        cdp_lock_release(&d->lock);
        st = cdp__ddp_launch_full(d);
        cdp_lock_acquire(&d->lock);
        again = d->launch_again && st == CDP_OK;
        d->launching = again;
        cdp_lock_release(&d->lock);
    }
    return st;
}

#endif /* CDP_NO_DDP */

#endif /* CDP_SRC_DDP_BUCKET_LAUNCH_H */
