/* ddp/optimizer.h - an optimizer that meets the buckets of a ddp

   Knows: which elements this rank updates, their state, the stages of a bucket. Promises: the same
   parameters as a plain ddp with the same optimizer; every element is updated by one rank, or by
   all. */
#ifndef CDP_SRC_DDP_OPTIMIZER_H
#define CDP_SRC_DDP_OPTIMIZER_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../group/group_api.h"
#include "../group/collectives_api.h"
#include "../train/optimizers_api.h"
#include "ddp_api.h"
#include "norm_api.h"
#include "hooks_api.h"
#include "optimizer_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/ended.h"
#include "../base/text.h"
#include "../dtype/dtype.h"
#include "../dtype/convert.h"
#include "../dtype/numbers.h"
#include "../group/state.h"
#include "../group/collective_calls.h"
#include "../group/vote.h"
#include "../train/optimizers.h"
#include "state.h"
#include "bucket_launch.h"
#include "deliver.h"
#include "create.h"
#include "norm.h"
#include "set_hook.h"

#if !defined(CDP_NO_DDP) && !defined(CDP_NO_TRAINING)

struct cdp_optimizer {
    cdp_optimizer_desc desc;
    cdp_ddp *ddp; /* NULL: the ddp has another hook, or was destroyed */
    const cdp_os *os;
    /* f32: what cdp_optim_update() keeps, then copies of parameters of 16 bits; NULL: none */
    float *state[CDP_OPTIMIZER_MASTER + 1];
    /* where state begins: of each bucket, or with `whole` of each parameter */
    uint64_t *base;
    uint64_t total;   /* elements that this rank updates */
    uint64_t *counts; /* one per rank: the parts of an operation */
};

/* Range `r` of `n` equal ones begins here; the first ones have the elements that are left over. */
CDP__PRIVATE uint64_t cdp__optimizer_cut(uint64_t count, uint32_t n, uint32_t r) {
    return count / n * r + cdp__min(r, count % n);
}

/* The part of a parameter that a rank updates. `at` is that of this rank. */
CDP__PRIVATE cdp_optimizer_part cdp__optimizer_part_on(
    const cdp_optimizer *o, uint32_t rank, uint32_t index) {
    const cdp_ddp *d = o->ddp;
    const cdp__param *p = &d->params[index];
    const cdp__bucket *b = &d->buckets[p->bucket];
    const uint32_t n = cdp_size(d->group);
    const uint64_t start = (uint64_t)(p->grad - b->memory) / p->elem;
    const uint64_t low = cdp__optimizer_cut(b->count, n, rank);
    const uint64_t first = cdp__max(low, start);
    const uint64_t end =
        cdp__min(cdp__optimizer_cut(b->count, n, rank + 1), start + cdp__param_count(p));
    cdp_optimizer_part part = {0, cdp__param_count(p), 0};
    if (o->desc.whole) {
        part.at = o->base[index];
        return part;
    }
    part.count = end > first ? end - first : 0;
    part.first = part.count ? first - start : 0;
    part.at = o->base[p->bucket] + (part.count ? first - low : 0);
    return part;
}

CDP__PRIVATE cdp_optimizer_part cdp__optimizer_own_part(const cdp_optimizer *o, uint32_t index) {
    return cdp__optimizer_part_on(o, cdp_rank(o->ddp->group), index);
}

CDP_API cdp_optimizer_part cdp_optimizer_part_of(const cdp_optimizer *o, uint32_t index) {
    const cdp_optimizer_part none = {0, 0, 0};
    const bool known = o && !cdp__ended(o) && o->ddp && cdp__ddp_lives(o->ddp)
        && cdp__ddp_has_group(o->ddp) && index < o->ddp->param_count;
    return known ? cdp__optimizer_own_part(o, index) : none;
}

CDP_API uint64_t cdp_optimizer_count(const cdp_optimizer *o) {
    return o && !cdp__ended(o) ? o->total : 0;
}

/* ---- one bucket ---- */

/* Where the mean is. A rank without data has it in the bucket alone. */
CDP__PRIVATE uint8_t *cdp__optimizer_grad(const cdp_optimizer *o, const cdp__param *p) {
    return o->desc.deferred && !o->ddp->shadow ? cdp__param_grad(p) : p->grad;
}

/* Calls the program's own update; a failure has a text. */
CDP__PRIVATE cdp_status cdp__optimizer_call(cdp_optimizer *o, uint32_t index,
    const cdp_optimizer_part *part, void *data, const void *grad, double scale) {
    const cdp_group *g = o->ddp->group;
    const cdp_status before = cdp__error_slot()->status;
    cdp_status st;
    cdp__error_slot()->status = CDP_OK;
    st = o->desc.update(o->desc.user, index, part, data, grad, scale);
    if (st != CDP_OK && cdp__error_slot()->status == CDP_OK)
        return cdp__fail(st < 0 ? st : CDP_ERR_INVALID,
            "rank %u/%u: the update of an optimizer returned %s for parameter '%s' (index %u), "
            "without saying why",
            cdp_rank(g), cdp_size(g), cdp_status_name(st), o->ddp->params[index].name, index);
    if (cdp__error_slot()->status == CDP_OK) cdp__error_slot()->status = before;
    return st > 0 ? cdp__error_slot()->status : st;
}

CDP__PRIVATE cdp_status cdp__optimizer_update_part(cdp_optimizer *o, uint32_t index,
    const cdp_optimizer_part *part, const uint8_t *grad, double scale) {
    const cdp__param *p = &o->ddp->params[index];
    uint8_t *const data = (uint8_t *)p->user.data + part->first * p->elem;
    cdp_optim_range r;
    uint32_t k;
    grad += part->first * p->elem;
    if (o->desc.update) return cdp__optimizer_call(o, index, part, data, grad, scale);
    memset(&r, 0, sizeof r);
    r.param = (float *)(void *)data;
    if (cdp__dtype_is_narrow(p->user.dtype)) {
        r.param = o->state[CDP_OPTIMIZER_MASTER] + part->at;
        r.compute = data;
        r.compute_dtype = p->user.dtype;
    }
    for (k = 0; k < CDP_OPTIMIZER_MASTER; ++k)
        r.state[k] = o->state[k] ? o->state[k] + part->at : NULL;
    r.grad = grad;
    r.grad_dtype = p->user.dtype;
    r.count = part->count;
    r.scale = scale;
    return cdp_optim_update(o->desc.optim, &r);
}

/* Updates this rank's part of a bucket, and writes it where gradients were: peers get it from
   there. */
CDP__PRIVATE cdp_status cdp__optimizer_update(cdp_optimizer *o, cdp__bucket *b, double scale) {
    cdp_ddp *d = o->ddp;
    cdp_status st = CDP_OK;
    uint32_t i;
    for (i = 0; i < b->params && st == CDP_OK; ++i) {
        const uint32_t index = b->slots[i];
        const cdp__param *p = &d->params[index];
        const cdp_optimizer_part part = cdp__optimizer_own_part(o, index);
        const uint64_t at = part.first * p->elem;
        const uint8_t *const grad = cdp__optimizer_grad(o, p);
        if (!part.count) continue;
        if (!o->desc.deferred || p->used)
            st = cdp__optimizer_update_part(o, index, &part, grad, scale);
        if (!o->desc.whole)
            memcpy(
                p->grad + at, (const uint8_t *)p->user.data + at, (size_t)(part.count * p->elem));
    }
    return st;
}

/* The parts of a bucket as an operation. */
CDP__PRIVATE void cdp__optimizer_parts(
    cdp_optimizer *o, const cdp__bucket *b, cdp_coll_kind kind, cdp_request *rq) {
    const uint32_t n = cdp_size(o->ddp->group);
    uint32_t r;
    for (r = 0; r < n; ++r)
        o->counts[r] = cdp__optimizer_cut(b->count, n, r + 1) - cdp__optimizer_cut(b->count, n, r);
    rq->kind = kind;
    rq->in = NULL;
    rq->out = b->memory;
    rq->in_counts = rq->out_counts = o->counts;
}

CDP__PRIVATE cdp_request cdp__optimizer_gather_request(cdp_optimizer *o, const cdp__bucket *b) {
    cdp_request rq = cdp__request_of(
        CDP_COLL_ALLGATHER, NULL, b->memory, b->count, b->dtype, CDP_REDUCE_DEFAULT, 0);
    cdp__optimizer_parts(o, b, CDP_COLL_ALLGATHER, &rq);
    return rq;
}

/* A bucket as its gradients travel. */
CDP__PRIVATE cdp__bucket cdp__optimizer_wire(const cdp_optimizer *o, const cdp__bucket *b) {
    cdp__bucket wire = *b;
    if (!o->desc.reduce_dtype || b->dtype != CDP_DTYPE_F32) return wire;
    wire.dtype = o->desc.reduce_dtype;
    wire.elem = cdp_dtype_size(wire.dtype);
    return wire;
}

/* Starts to reduce a bucket: all of it, or only this rank's part is needed. */
CDP__PRIVATE cdp_request cdp__optimizer_reduce_request(cdp_optimizer *o, cdp__bucket *b) {
    const cdp__bucket wire = cdp__optimizer_wire(o, b);
    cdp_request rq = cdp__ddp_request(o->ddp, &wire, 0);
    if (wire.dtype != b->dtype) cdp__convert(b->dtype, b->memory, wire.dtype, b->memory, b->count);
    if (!o->desc.whole) cdp__optimizer_parts(o, &wire, CDP_COLL_REDUCE_SCATTER, &rq);
    return rq;
}

/* Elements from `low` on as f32 again, in the same memory: the last ones first, because each goes
   to a higher address than those before it are read from. */
CDP__PRIVATE void cdp__optimizer_widen_back(
    const cdp__bucket *b, const cdp__bucket *wire, uint64_t low, uint64_t count) {
    float block[CDP__BLOCK];
    while (wire->dtype != b->dtype && count) {
        const uint64_t n = cdp__min(count, CDP__BLOCK);
        count -= n;
        cdp__convert(wire->dtype, b->memory + (low + count) * wire->elem, CDP_DTYPE_F32, block, n);
        memcpy(b->memory + (low + count) * b->elem, block, (size_t)(n * sizeof *block));
    }
}

/* Copies what other ranks have updated to the parameters. */
CDP__PRIVATE void cdp__optimizer_take(cdp_optimizer *o, const cdp__bucket *b) {
    uint32_t i;
    for (i = 0; i < b->params; ++i) {
        const cdp__param *p = &o->ddp->params[b->slots[i]];
        const cdp_optimizer_part part = cdp__optimizer_own_part(o, b->slots[i]);
        const uint64_t before = part.first * p->elem;
        const uint64_t after = before + part.count * p->elem;
        uint8_t *const data = (uint8_t *)p->user.data;
        if (before) memcpy(data, p->grad, (size_t)before);
        if (cdp__param_bytes(p) > after)
            memcpy(data + after, p->grad + after, (size_t)(cdp__param_bytes(p) - after));
    }
}

/* The mean has arrived: makes it f32 again, and applies the rest of the divisor, in this rank's
   part. */
CDP__PRIVATE void cdp__optimizer_divide(cdp_optimizer *o, cdp__bucket *b) {
    const cdp_ddp *d = o->ddp;
    const uint32_t n = o->desc.whole ? 1 : cdp_size(d->group);
    const uint32_t rank = o->desc.whole ? 0 : cdp_rank(d->group);
    const cdp__bucket wire = cdp__optimizer_wire(o, b);
    const cdp_real by = cdp__ddp_rest(d, wire.dtype);
    const uint64_t low = cdp__optimizer_cut(b->count, n, rank);
    const uint64_t count = cdp__optimizer_cut(b->count, n, rank + 1) - low;
    cdp__optimizer_widen_back(b, &wire, low, count);
    if (by != 1) cdp__divide_by(b->dtype, b->memory + low * b->elem, count, by);
}

/* Stages of a bucket: the mean (of this rank's part), the update, which the others gather. */
CDP__PRIVATE cdp_status cdp__optimizer_stage(
    void *self, cdp_bucket *v, uint32_t stage, cdp_request *op) {
    cdp_optimizer *o = (cdp_optimizer *)self;
    cdp__bucket *b = &o->ddp->buckets[v->index];
    cdp_status st;
    if (stage == 2) {
        cdp__optimizer_take(o, b);
        return CDP_OK;
    }
    if (stage == 0) {
        *op = cdp__optimizer_reduce_request(o, b);
        return CDP_PENDING;
    }
    cdp__optimizer_divide(o, b);
    if (o->desc.deferred) return CDP_OK;
    if (!v->index && o->desc.optim) ++o->desc.optim->step;
    st = cdp__optimizer_update(o, b, 1);
    if (st != CDP_OK || o->desc.whole) return st;
    *op = cdp__optimizer_gather_request(o, b);
    return CDP_PENDING;
}

/* ---- life ---- */

/* The ddp has another hook now, or ends. */
CDP__PRIVATE void cdp__optimizer_detached(void *self) {
    ((cdp_optimizer *)self)->ddp = NULL;
}

CDP__PRIVATE bool cdp__optimizer_has_hook(const cdp_optimizer *o) {
    return !(o->desc.whole && o->desc.deferred && !o->desc.reduce_dtype);
}

/* Checks the settings as the next update will. */
CDP__PRIVATE cdp_status cdp__optimizer_check_settings(const cdp_optimizer_desc *desc) {
    cdp_optim_range none;
    cdp_optim next;
    if (!desc->optim) return CDP_OK;
    next = *desc->optim;
    ++next.step;
    memset(&none, 0, sizeof none);
    return cdp_optim_update(&next, &none);
}

CDP__PRIVATE cdp_status cdp__optimizer_check(const cdp_optimizer_desc *desc) {
    const cdp_ddp *d = desc->ddp;
    const bool hooked = !(desc->whole && desc->deferred && !desc->reduce_dtype);
    uint32_t i;
    if (cdp__ddp_on_device(d))
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "cdp_optimizer_create: the parameters are in device memory; update them there");
    if (desc->reduce_dtype && desc->reduce_dtype != CDP_DTYPE_F16
        && desc->reduce_dtype != CDP_DTYPE_BF16)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_optimizer_create: reduce_dtype is %s; set it to CDP_DTYPE_F16 or CDP_DTYPE_BF16, "
            "or leave it 0",
            cdp_dtype_name(desc->reduce_dtype));
    if (hooked && d->hook.stage)
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "cdp_optimizer_create: the ddp has a hook; remove it, or set both whole and deferred");
    if (!cdp__ddp_leaves(d, CDP__DDP_MEAN))
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "cdp_optimizer_create: another optimizer of the ddp leaves no mean of all gradients on "
            "a rank; destroy it, or set whole there");
    if (!desc->deferred && (d->desc.find_unused || d->desc.static_graph || d->desc.join))
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "cdp_optimizer_create: the ddp has find_unused, static_graph or join, so what to "
            "update is known at the end of a pass; set deferred, and call cdp_optimizer_step");
    for (i = 0; i < d->param_count && desc->optim; ++i)
        if (d->params[i].user.dtype == CDP_DTYPE_F64 && !d->params[i].sparse)
            return cdp__fail(CDP_ERR_UNSUPPORTED,
                "cdp_optimizer_create: parameter '%s' (index %u) is f64; optim computes in f32, so "
                "set update instead",
                d->params[i].name, i);
    return cdp__optimizer_check_settings(desc);
}

CDP__PRIVATE void cdp__optimizer_free(cdp_optimizer *o) {
    uint32_t k;
    for (k = 0; k <= CDP_OPTIMIZER_MASTER; ++k)
        cdp__free(o->os, o->state[k]);
    cdp__free(o->os, o->base);
    cdp__free(o->os, o->counts);
    cdp__free(o->os, o);
}

/* Assigns positions in the state arrays. */
CDP__PRIVATE void cdp__optimizer_place(cdp_optimizer *o) {
    const cdp_ddp *d = o->ddp;
    const uint32_t n = cdp_size(d->group), rank = cdp_rank(d->group);
    uint32_t i;
    for (i = 0; i < (o->desc.whole ? d->param_count : d->bucket_count); ++i) {
        const uint64_t count =
            o->desc.whole ? cdp__param_count(&d->params[i]) : d->buckets[i].count;
        o->base[i] = o->total;
        o->total += o->desc.whole
            ? count
            : cdp__optimizer_cut(count, n, rank + 1) - cdp__optimizer_cut(count, n, rank);
    }
}

/* Copies this rank's parts of parameters of 16 bits to f32. */
CDP__PRIVATE void cdp__optimizer_widen(cdp_optimizer *o) {
    const cdp_ddp *d = o->ddp;
    uint32_t i;
    for (i = 0; i < d->param_count && o->state[CDP_OPTIMIZER_MASTER]; ++i) {
        const cdp__param *p = &d->params[i];
        const cdp_optimizer_part part = cdp__optimizer_own_part(o, i);
        if (cdp__dtype_is_narrow(p->user.dtype) && part.count)
            cdp__convert(p->user.dtype, (const uint8_t *)p->user.data + part.first * p->elem,
                CDP_DTYPE_F32, o->state[CDP_OPTIMIZER_MASTER] + part.at, part.count);
    }
}

CDP__PRIVATE cdp_status cdp__optimizer_alloc(cdp_optimizer *o) {
    const cdp_ddp *d = o->ddp;
    uint64_t bytes = cdp__max(d->param_count, d->bucket_count) * sizeof *o->base;
    uint32_t k, states = o->desc.optim ? cdp_optim_states(o->desc.optim) : 0;
    bool narrow = false;
    for (k = 0; k < d->param_count && o->desc.optim; ++k)
        narrow = narrow || (cdp__dtype_is_narrow(d->params[k].user.dtype) && !d->params[k].sparse);
    o->base = (uint64_t *)cdp__alloc(o->os, bytes);
    o->counts = (uint64_t *)cdp__alloc(o->os, cdp_size(d->group) * sizeof *o->counts);
    if (!o->base || !o->counts) return cdp__fail_nomem("an optimizer", bytes);
    cdp__optimizer_place(o);
    bytes = (o->total + 1) * sizeof *o->state[0]; /* also without an element it is not NULL */
    for (k = 0; k <= CDP_OPTIMIZER_MASTER; ++k) {
        if (k < CDP_OPTIMIZER_MASTER ? k >= states : !narrow) continue;
        o->state[k] = (float *)cdp__alloc_zero(o->os, bytes);
        if (!o->state[k]) return cdp__fail_nomem("the state of an optimizer", bytes);
    }
    cdp__optimizer_widen(o);
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__optimizer_attach(cdp_optimizer *o) {
    cdp_ddp *d = o->ddp;
    cdp_hook hook;
    cdp_status st;
    if (!cdp__optimizer_has_hook(o)) return CDP_OK;
    memset(&hook, 0, sizeof hook);
    hook.self = o;
    hook.stage = cdp__optimizer_stage;
    hook.destroy = cdp__optimizer_detached;
    hook.operations = o->desc.whole || o->desc.deferred ? 1 : 2;
    hook.keeps_layout = !o->desc.whole;
    st = cdp_ddp_set_hook(d, &hook);
    if (st != CDP_OK || o->desc.whole) return st;
    cdp__ddp_set_result(d, o->desc.deferred ? CDP__DDP_PARTS : CDP__DDP_SPENT);
    return CDP_OK;
}

CDP_API cdp_status cdp_optimizer_create(const cdp_optimizer_desc *desc, cdp_optimizer **out) {
    cdp_optimizer *o;
    cdp_status st;
    if (!out) return cdp__missing("cdp_optimizer_create", "out");
    *out = NULL;
    if (!desc) return cdp__missing("cdp_optimizer_create", "desc");
    if (!desc->ddp) return cdp__missing("cdp_optimizer_create", "desc.ddp");
    if (!desc->optim && !desc->update) return cdp__missing("cdp_optimizer_create", "desc.optim");
    if (desc->optim && desc->update)
        return cdp__fail(
            CDP_ERR_INVALID, "cdp_optimizer_create: set desc.optim or desc.update, not both");
    st = cdp__ddp_between(desc->ddp, "cdp_optimizer_create");
    if (st == CDP_OK) st = cdp__optimizer_check(desc);
    if (st != CDP_OK) return st;
    o = (cdp_optimizer *)cdp__alloc_zero(desc->ddp->os, sizeof *o);
    if (!o) st = cdp__fail_nomem("an optimizer", sizeof *o);
    if (!o) return cdp__vote(desc->ddp->group, st, "cdp_optimizer_create");
    cdp__ended_remove(o);
    o->desc = *desc;
    o->ddp = desc->ddp;
    o->os = desc->ddp->os;
    st = cdp__vote(o->ddp->group, cdp__optimizer_alloc(o), "cdp_optimizer_create");
    if (st == CDP_OK) st = cdp__optimizer_attach(o);
    if (st == CDP_OK)
        *out = o;
    else
        cdp__optimizer_free(o);
    return st;
}

CDP_API void cdp_optimizer_destroy(cdp_optimizer *o) {
    if (!o || cdp__ended(o)) return;
    if (o->ddp && cdp__ddp_lives(o->ddp) && cdp__optimizer_has_hook(o)) {
        if (o->ddp->in_backward && cdp__ddp_between(o->ddp, "cdp_optimizer_destroy") != CDP_OK)
            return;
        (void)!cdp_ddp_set_hook(o->ddp, NULL);
        if (o->ddp) { /* its group was destroyed: the hook is not called any more */
            memset(&o->ddp->hook, 0, sizeof o->ddp->hook);
            cdp__ddp_set_result(o->ddp, CDP__DDP_MEAN);
        }
    }
    cdp__ended_add(o);
    cdp__optimizer_free(o);
}

/* ---- between passes ---- */

/* Checks a call between passes. */
CDP__PRIVATE cdp_status cdp__optimizer_between(const cdp_optimizer *o, const char *call) {
    if (!o) return cdp__missing(call, "optimizer");
    if (cdp__ended(o)) return cdp__fail(CDP_ERR_STATE, "%s: this optimizer was destroyed", call);
    if (!o->ddp)
        return cdp__fail(CDP_ERR_STATE,
            "%s: the ddp of this optimizer was destroyed, or has another hook", call);
    return cdp__ddp_between(o->ddp, call);
}

CDP__PRIVATE cdp_status cdp__optimizer_may_step(const cdp_optimizer *o, const char *call) {
    const cdp_status st = cdp__optimizer_between(o, call);
    if (st != CDP_OK) return st;
    if (!o->desc.deferred)
        return cdp__fail(CDP_ERR_INVALID,
            "%s: parameters are updated during the pass; set deferred to do it afterwards", call);
    if (o->desc.whole && !cdp__ddp_leaves(o->ddp, CDP__DDP_MEAN))
        return cdp__fail(CDP_ERR_STATE,
            "%s: another optimizer of the ddp leaves no mean of all gradients on a rank", call);
    return CDP_OK;
}

#ifndef CDP_NO_CLIP
CDP_API cdp_status cdp_optimizer_norm(cdp_optimizer *o, cdp_norm *out) {
    cdp_status st = cdp__optimizer_may_step(o, "cdp_optimizer_norm");
    cdp_norm_item *items;
    cdp_norm_desc n;
    uint32_t i;
    if (st != CDP_OK) return st;
    if (!out) return cdp__missing("cdp_optimizer_norm", "out");
    items = (cdp_norm_item *)cdp__alloc_zero(o->os, o->ddp->param_count * sizeof *items);
    if (!items) return cdp__fail_nomem("a norm", o->ddp->param_count * sizeof *items);
    memset(&n, 0, sizeof n);
    n.group = o->desc.whole ? NULL : o->ddp->group;
    n.items = items;
    n.count = o->ddp->param_count;
    for (i = 0; i < n.count; ++i) {
        const cdp__param *p = &o->ddp->params[i];
        const cdp_optimizer_part part = cdp__optimizer_own_part(o, i);
        items[i].count = p->used ? part.count : 0;
        items[i].dtype = p->user.dtype;
        items[i].grad = part.count ? cdp__optimizer_grad(o, p) + part.first * p->elem : NULL;
    }
    st = cdp__grads_norm(o->os, &n, NULL, out);
    cdp__free(o->os, items);
    return st;
}
#endif

/* Updates and gathers all buckets; ranks gather the first ones while they update the next. */
CDP__PRIVATE cdp_status cdp__optimizer_step_buckets(cdp_optimizer *o, double scale) {
    cdp_ddp *d = o->ddp;
    cdp_status st = CDP_OK;
    uint32_t i;
    for (i = 0; i < d->bucket_count && st == CDP_OK; ++i) {
        cdp__bucket *b = &d->buckets[i];
        cdp_request rq;
        st = cdp__optimizer_update(o, b, scale);
        if (st != CDP_OK || o->desc.whole) continue;
        rq = cdp__optimizer_gather_request(o, b);
        st = cdp__ddp_start(d, d->group, &rq, NULL, NULL, &d->last);
    }
    if (o->desc.whole) return st;
    if (st == CDP_OK) st = cdp_work_wait(d->last);
    for (i = 0; i < d->bucket_count && st == CDP_OK; ++i)
        cdp__optimizer_take(o, &d->buckets[i]);
    if (st == CDP_OK) cdp__ddp_zero_dense(d);
    return st;
}

/* The settings may have changed so that an update needs more state than there is. */
CDP__PRIVATE cdp_status cdp__optimizer_check_state(const cdp_optimizer *o) {
    const uint32_t need = o->desc.optim ? cdp_optim_states(o->desc.optim) : 0;
    if (!need || o->state[need - 1]) return CDP_OK;
    return cdp__fail(CDP_ERR_INVALID,
        "cdp_optimizer_step: optim now needs %u arrays of state, more than when the optimizer was "
        "created; create another one",
        need);
}

CDP_API cdp_status cdp_optimizer_step(cdp_optimizer *o, double scale) {
    cdp_status st = cdp__optimizer_may_step(o, "cdp_optimizer_step");
    if (st == CDP_OK && !(scale > 0 && scale <= DBL_MAX))
        st = cdp__fail(CDP_ERR_INVALID,
            "cdp_optimizer_step: scale is %s: pass 1 for the mean as it is, and leave out a step "
            "whose norm is no finite number",
            scale == 0 ? "0" : "negative or not finite");
    if (st == CDP_OK) st = cdp__must_not_wait();
    if (st == CDP_OK) st = cdp_group_status(o->ddp->group);
    if (st == CDP_OK) st = cdp__optimizer_check_settings(&o->desc);
    if (st == CDP_OK) st = cdp__optimizer_check_state(o);
    if (st != CDP_OK) return st;
    if (o->desc.optim) ++o->desc.optim->step;
    st = cdp__optimizer_step_buckets(o, scale);
    if (st == CDP_OK || o->desc.whole) return st;
    (void)cdp__ddp_fail(o->ddp, st); /* other ranks wait for the parts of this one */
    cdp__ddp_break(o->ddp);
    return st;
}

/* Finds one kind of state of a parameter, and which parts of it ranks hold. */
CDP__PRIVATE cdp_status cdp__optimizer_find(cdp_optimizer *o, const char *call, uint32_t state,
    uint32_t index, const float *values, uint32_t root, float **own) {
    const cdp_status st = cdp__optimizer_between(o, call);
    uint32_t r;
    if (st != CDP_OK) return st;
    if (index >= o->ddp->param_count)
        return cdp__fail(CDP_ERR_INVALID, "%s: parameter %u should be less than param_count, %u",
            call, index, o->ddp->param_count);
    if (root >= cdp_size(o->ddp->group))
        return cdp__fail(
            CDP_ERR_INVALID, "%s: root %u is no rank of %u", call, root, cdp_size(o->ddp->group));
    if (state > CDP_OPTIMIZER_MASTER || !o->state[state] || o->ddp->params[index].sparse
        || (state == CDP_OPTIMIZER_MASTER
            && !cdp__dtype_is_narrow(o->ddp->params[index].user.dtype)))
        return cdp__fail(CDP_ERR_INVALID, "%s: parameter '%s' has no state %u in this optimizer",
            call, o->ddp->params[index].name, state);
    /* with `whole` the ddp may have gone on in a larger group, for which `counts` has no room */
    for (r = 0; !o->desc.whole && r < cdp_size(o->ddp->group); ++r)
        o->counts[r] = cdp__optimizer_part_on(o, r, index).count;
    *own = o->state[state] + cdp__optimizer_own_part(o, index).at;
    if (cdp_rank(o->ddp->group) == root && !values) return cdp__missing(call, "values");
    return CDP_OK;
}

/* Moves the parts of one kind of state to `root`, or from there. */
CDP__PRIVATE cdp_status cdp__optimizer_move(
    cdp_optimizer *o, cdp_coll_kind kind, const void *in, void *out, uint32_t root) {
    cdp_group *const group = o->ddp->group;
    const bool gathers = kind == CDP_COLL_GATHER;
    const bool here = cdp_rank(group) == root;
    cdp_request rq = cdp__request_of(kind, gathers || here ? in : NULL,
        !gathers || here ? out : NULL, 0, CDP_DTYPE_F32, CDP_REDUCE_DEFAULT, root);
    cdp_work work = {NULL, 0};
    cdp_status st;
    rq.in_counts = gathers ? NULL : o->counts;
    rq.out_counts = gathers ? o->counts : NULL;
    st = cdp_start(group, &rq, &work);
    return st == CDP_OK ? cdp_work_wait(work) : st;
}

CDP_API cdp_status cdp_optimizer_gather(
    cdp_optimizer *o, uint32_t state, uint32_t index, float *values, uint32_t root) {
    float *own = NULL;
    cdp_status st =
        cdp__optimizer_find(o, "cdp_optimizer_gather", state, index, values, root, &own);
    uint64_t count;
    if (st != CDP_OK) return st;
    if (!o->desc.whole) return cdp__optimizer_move(o, CDP_COLL_GATHER, own, values, root);
    count = cdp__param_count(&o->ddp->params[index]);
    if (cdp_rank(o->ddp->group) == root) memcpy(values, own, (size_t)(count * sizeof *own));
    return CDP_OK;
}

CDP_API cdp_status cdp_optimizer_scatter(
    cdp_optimizer *o, uint32_t state, uint32_t index, const float *values, uint32_t root) {
    float *own = NULL;
    cdp_status st =
        cdp__optimizer_find(o, "cdp_optimizer_scatter", state, index, values, root, &own);
    uint64_t count;
    if (st != CDP_OK) return st;
    if (!o->desc.whole) return cdp__optimizer_move(o, CDP_COLL_SCATTER, values, own, root);
    count = cdp__param_count(&o->ddp->params[index]);
    if (cdp_rank(o->ddp->group) == root) memcpy(own, values, (size_t)(count * sizeof *own));
    return cdp_broadcast(o->ddp->group, own, count, CDP_DTYPE_F32, root);
}

#endif

#endif /* CDP_SRC_DDP_OPTIMIZER_H */
