/* fsdp/reduce.h - gradients leave while backward goes on

   Knows: whole gradients, reductions in flight. Promises: at most two are in flight; sums are added
   in f32, in the order of the calls. */
#ifndef CDP_SRC_FSDP_REDUCE_H
#define CDP_SRC_FSDP_REDUCE_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../os/os_api.h"
#include "../message/transport_api.h"
#include "../group/group_api.h"
#include "../group/collectives_api.h"
#include "../train/precision_api.h"
#include "../base/compiler.h"
#include "../base/helpers.h"
#include "fsdp_api.h"
#include "checks.h"
#include "state.h"
#include "gather.h"
#include "copies.h"

/* Adds a sum that has arrived. Where it is the first, f32 was received in place. */
CDP__PRIVATE cdp_status cdp__fsdp_add(cdp_fsdp *f, const cdp__fsdp_flight *g) {
    cdp__fsdp_unit *u = &f->units[g->unit];
    const cdp__fsdp_range *r = &u->range[0];
    const float *sum = g->grad + r->start;
    uint64_t i;
    if (g->narrow) {
        const cdp_status st = cdp_convert(g->narrow + 2 * r->start, f->desc.reduce,
            g->first ? u->mean : g->grad + r->start, CDP_DTYPE_F32, r->own, NULL);
        if (st != CDP_OK) return st;
    }
    for (i = 0; i < r->own && !g->first; ++i)
        u->mean[i] += sum[i];
    return CDP_OK;
}

/* Waits for the oldest reduction. */
CDP__PRIVATE cdp_status cdp__fsdp_retire(cdp_fsdp *f) {
    const cdp__fsdp_flight g = f->flight[0];
    cdp__fsdp_unit *u = &f->units[g.unit];
    cdp_status st = cdp__fsdp_wait(f, "cdp_fsdp_ready", u, g.work);
    if (st == CDP_OK && !g.first) st = cdp__fsdp_forwarded(f, u); /* it is read in place */
    if (st == CDP_OK) st = cdp__fsdp_add(f, &g);
    if (st != CDP_OK) return st;
    if (g.pool != CDP__FSDP_NONE) f->pool_taken[g.pool] = false;
    f->held -= u->range[0].total * sizeof(float);
    cdp__fsdp_ends(f, g.event);
    --u->reducing;
    --f->flights;
    cdp__fsdp_travels(f, false);
    cdp__fsdp_label_gradients(f, u);
    memmove(&f->flight[0], &f->flight[1], f->flights * sizeof f->flight[0]);
    return cdp__fsdp_pass_on(f, g.unit);
}

CDP__PRIVATE cdp_status cdp__fsdp_give_own(cdp_fsdp *f, cdp__fsdp_unit *u) {
    if (!u->own_grad)
        u->own_grad = (float *)cdp__fsdp_memory(
            f, u->range[0].total * sizeof(float), &f->stats.gradient_bytes);
    return u->own_grad ? CDP_OK : CDP_ERR_NOMEM;
}

/* Finds memory for a unit's whole gradient: its own, one of two that units share, or, if both are
   held by units that are not ready, own memory from now on. */
CDP__PRIVATE cdp_status cdp__fsdp_find_memory(cdp_fsdp *f, cdp__fsdp_unit *u) {
    cdp_status st = CDP_OK;
    uint32_t i;
    if (f->no_sync) st = cdp__fsdp_give_own(f, u);
    u->pool = CDP__FSDP_NONE;
    while (st == CDP_OK && !u->own_grad) {
        for (i = 0; i < CDP__FSDP_FLIGHTS; ++i)
            if (!f->pool_taken[i] && f->pool[i]) break;
        if (i < CDP__FSDP_FLIGHTS) {
            u->pool = i;
            f->pool_taken[i] = true;
            u->grad = f->pool[i];
            return CDP_OK;
        }
        st = f->flights ? cdp__fsdp_retire(f) : cdp__fsdp_give_own(f, u);
    }
    while (st == CDP_OK && u->reducing)
        st = cdp__fsdp_retire(f);
    if (st == CDP_OK) u->grad = u->own_grad;
    return st;
}

/* Begins a gradient, as zeros, if there is none. */
CDP__PRIVATE cdp_status cdp__fsdp_begin_grad(cdp_fsdp *f, cdp__fsdp_unit *u) {
    cdp_status st;
    if (u->grad) return CDP_OK;
    st = cdp__fsdp_find_memory(f, u);
    if (st != CDP_OK) return st;
    memset(u->grad, 0, (size_t)(u->range[0].total * sizeof(float)));
    f->held += u->range[0].total * sizeof(float);
    cdp__fsdp_label_gradients(f, u);
    return CDP_OK;
}

/* Rounds a whole gradient to 16 bits. Sums of f16 would overflow, so it is divided before. */
CDP__PRIVATE cdp_status cdp__fsdp_narrow(
    cdp_fsdp *f, const cdp__fsdp_unit *u, float *grad, uint8_t *out) {
    const float by = (float)f->desc.divisor;
    uint64_t i;
    for (i = 0; i < u->range[0].total && f->desc.reduce == CDP_DTYPE_F16; ++i)
        grad[i] /= by;
    return cdp_convert(grad, CDP_DTYPE_F32, out, f->desc.reduce, u->range[0].total, NULL);
}

/* Narrow memory that no reduction in flight uses. */
CDP__PRIVATE uint8_t *cdp__fsdp_free_narrow(const cdp_fsdp *f) {
    uint32_t i, k;
    for (i = 0; i < CDP__FSDP_FLIGHTS; ++i) {
        for (k = 0; k < f->flights && f->flight[k].narrow != f->narrow[i]; ++k) {
        }
        if (k == f->flights) break;
    }
    return f->narrow[i < CDP__FSDP_FLIGHTS ? i : 0];
}

CDP__PRIVATE cdp_status cdp__fsdp_start_reduction(cdp_fsdp *f, uint32_t unit) {
    cdp__fsdp_unit *u = &f->units[unit];
    cdp__fsdp_range *r = &u->range[0];
    cdp__fsdp_flight *g;
    cdp_request rq;
    cdp_status st = CDP_OK;
    const uint64_t received = (f->ranks - 1ull) * r->own * cdp__fsdp_size_of(f->desc.reduce);
    while (st == CDP_OK && f->flights == CDP__FSDP_FLIGHTS)
        st = cdp__fsdp_retire(f);
    if (st != CDP_OK) return st;
    g = &f->flight[f->flights];
    g->unit = unit;
    g->pool = u->pool;
    g->grad = u->grad;
    g->first = !u->reduced;
    g->narrow = cdp__fsdp_size_of(f->desc.reduce) == 2 ? cdp__fsdp_free_narrow(f) : NULL;
    if (g->narrow) st = cdp__fsdp_narrow(f, u, u->grad, g->narrow);
    if (st != CDP_OK) return st;
    memset(&rq, 0, sizeof rq);
    rq.kind = CDP_COLL_REDUCE_SCATTER;
    rq.in = g->narrow ? (const void *)g->narrow : (const void *)u->grad;
    rq.in_counts = r->counts;
    rq.dtype = f->desc.reduce;
    rq.accumulate = CDP_DTYPE_F32;
    rq.root = CDP__FSDP_TAG | unit;
    /* in place: this rank's part of `in` */
    rq.out = g->narrow ? (void *)(g->narrow + 2 * r->start) : (void *)(u->grad + r->start);
    if ((g->first && !g->narrow) || !r->own) rq.out = u->mean;
    st = cdp_start(f->reductions, &rq, &g->work);
    if (st != CDP_OK) return cdp__fsdp_named("cdp_fsdp_ready", u, st);
    ++f->flights;
    ++u->reducing;
    cdp__fsdp_travels(f, true);
    ++f->now.reductions;
    f->now.reduce_bytes += received;
    g->event = cdp__fsdp_begins(f, CDP__FSDP_REDUCTIONS, unit, received, cdp__fsdp_now(f));
    u->reduced = true;
    u->held = false;
    u->ready_count = 0;
    u->grad = NULL;
    return CDP_OK;
}

CDP_API float *cdp_fsdp_grad(cdp_fsdp *f, uint32_t param) {
    cdp__fsdp_unit *u;
    cdp_status st = cdp__fsdp_may(f, "cdp_fsdp_grad", 0, true);
    if (st == CDP_OK && param >= f->desc.param_count)
        st = cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_fsdp_grad: parameter %u should be less than param_count, %u", param,
            f->desc.param_count);
    if (st != CDP_OK || f->params[param].frozen) return NULL;
    u = &f->units[f->params[param].unit];
    st = cdp__fsdp_broken(f, cdp__fsdp_begin_grad(f, u));
    return st == CDP_OK ? u->grad + f->offset[param] : NULL;
}

CDP_API cdp_status cdp_fsdp_ready(cdp_fsdp *f, uint32_t unit) {
    cdp_status st = cdp__fsdp_may(f, "cdp_fsdp_ready", unit, true);
    cdp__fsdp_unit *u;
    if (st != CDP_OK) return st;
    u = &f->units[unit];
    if (u->opens) --u->opens;
    f->backward = true;
    if (!u->range[0].total) return CDP_OK;
    st = cdp__fsdp_begin_grad(f, u);
    if (f->no_sync)
        u->held = true;
    else if (st == CDP_OK && ++u->ready_count >= u->uses)
        st = cdp__fsdp_start_reduction(f, unit);
    return cdp__fsdp_broken(f, st);
}

CDP_API cdp_status cdp_fsdp_no_sync(cdp_fsdp *f, bool on) {
    const cdp_status st = cdp__fsdp_may(f, "cdp_fsdp_no_sync", 0, true);
    uint32_t i;
    if (st != CDP_OK) return st;
    for (i = 0; i < f->unit_count; ++i)
        if (f->units[i].ready_count)
            return cdp_error_set(CDP_ERR_STATE, -1, 0,
                "cdp_fsdp_no_sync: unit '%s' is ready %u of %u times; change it between passes",
                f->units[i].name, f->units[i].ready_count, f->units[i].uses);
    if (f->no_sync != on) f->backward = false;
    f->no_sync = on;
    return CDP_OK;
}

#endif /* CDP_SRC_FSDP_REDUCE_H */
