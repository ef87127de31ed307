/* fsdp/step.h - the end of a step: norm, overflow, updates

   Knows: sums of gradients, an optimizer. Promises: nothing is updated before every rank has what
   its update needs; all ranks skip a step, or none. */
#ifndef CDP_SRC_FSDP_STEP_H
#define CDP_SRC_FSDP_STEP_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../os/os_api.h"
#include "../message/transport_api.h"
#include "../group/group_api.h"
#include "../group/collectives_api.h"
#include "../train/precision_api.h"
#include "../train/optimizers_api.h"
#include "../base/compiler.h"
#include "../base/helpers.h"
#include "../dtype/norms.h"
#include "../dtype/numbers.h"
#include "fsdp_api.h"
#include "checks.h"
#include "state.h"
#include "gather.h"
#include "reduce.h"

/* Names the first unit with which this step cannot end. */
CDP__PRIVATE cdp_status cdp__fsdp_complete(const cdp_fsdp *f) {
    uint32_t i;
    for (i = 0; i < f->unit_count; ++i) {
        const cdp__fsdp_unit *u = &f->units[i];
        const char *why = NULL;
        if (u->opens) why = "is still needed; call cdp_fsdp_done() or cdp_fsdp_ready()";
        if (!why && !u->range[0].total) continue;
        if (!why && u->held)
            why = "has gradients that no_sync has kept; turn it off before the last pass";
        if (!why && u->ready_count) why = "was not ready as often as its `uses` says";
        if (!why && u->grad) why = "has new gradients; call cdp_fsdp_ready()";
        if (!why && !u->reduced)
            why = "was not ready; call cdp_fsdp_ready(), also if this step has not used it";
        if (why)
            return cdp_error_set(
                CDP_ERR_STATE, -1, 0, "cdp_fsdp_backward_end: unit '%s' %s", u->name, why);
    }
    return CDP_OK;
}

/* Adds the sums of the copies, and divides, as all holders of a shard do. */
CDP__PRIVATE cdp_status cdp__fsdp_mean(cdp_fsdp *f) {
    const float by = (float)f->desc.divisor;
    uint64_t i;
    uint32_t k;
    if (f->replicas && f->mean_count) {
        const cdp_status st = cdp_allreduce(
            f->replicas, NULL, f->means, f->mean_count, CDP_DTYPE_F32, CDP_REDUCE_SUM);
        if (st != CDP_OK) return st;
    }
    if (by == 1 || f->desc.reduce == CDP_DTYPE_F16) return CDP_OK;
    for (k = 0; k < f->image_count; ++k)
        for (i = 0; i < f->images[k].mean_count; ++i)
            f->images[k].means[i] /= by;
    return CDP_OK;
}

/* The squares of the mean of all ranks, and whether an element is not finite: each element once. */
CDP__PRIVATE cdp_status cdp__fsdp_squares(cdp_fsdp *f, double *squares, bool *found_inf) {
    cdp_group *const g = f->norms ? f->norms : f->reductions;
    const bool replica = f->norms && f->replicas && cdp_rank(f->replicas);
    double sums[2] = {0, 0};
    uint32_t i;
    cdp_work work;
    cdp_status st;
    for (i = 0; i < f->piece_count; ++i) {
        const cdp_fsdp_piece *p = &f->pieces[i];
        double q;
        if (!p->grad) continue;
        q = cdp__norm_of(CDP_DTYPE_F32, CDP__NORM_SQUARES, p->grad, p->count);
        if (q - q != 0) sums[1] = 1;
        if (!replica && !f->params[p->param].copy) sums[0] += q;
    }
    st = cdp_allreduce_async(g, NULL, sums, 2, CDP_DTYPE_F64, CDP_REDUCE_SUM, &work);
    if (st == CDP_OK) st = cdp__fsdp_await(f, work);
    *squares = sums[0];
    *found_inf = sums[1] != 0;
    return st;
}

/* What the step will do. */
CDP__PRIVATE void cdp__fsdp_judge(cdp_fsdp *f, double squares) {
    f->info.norm = cdp__sqrt(squares) / f->loss_scale;
    f->info.scale = 1 / f->loss_scale;
    if (f->desc.max_norm > 0 && !(f->info.norm + 1e-6 <= f->desc.max_norm))
        f->info.scale *= f->desc.max_norm / (f->info.norm + 1e-6);
    f->info.skipped = f->info.found_inf && f->desc.skip_nonfinite;
    f->ended = true;
    for (uint32_t i = 0; i < f->held_pieces; ++i) {
        f->pieces[i].scale = f->info.scale;
        f->pieces[i].step = f->step + (f->info.skipped ? 0 : 1);
    }
}

CDP_API cdp_status cdp_fsdp_backward_end(cdp_fsdp *f, double loss_scale, cdp_fsdp_info *info) {
    cdp_status st = cdp__fsdp_may(f, "cdp_fsdp_backward_end", 0, true);
    double squares = 0;
    if (info) memset(info, 0, sizeof *info);
    if (st == CDP_OK && !(loss_scale >= 0 && loss_scale <= DBL_MAX))
        st = cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_fsdp_backward_end: loss_scale is negative or not finite; pass 0 for 1");
    if (st == CDP_OK) st = cdp__fsdp_complete(f);
    if (st != CDP_OK) return st;
    f->loss_scale = loss_scale == 0 ? 1 : loss_scale;
    while (st == CDP_OK && f->flights)
        st = cdp__fsdp_retire(f);
    if (st == CDP_OK) st = cdp__fsdp_complete_copies(f);
    if (st == CDP_OK) st = cdp__fsdp_mean(f);
    f->entered = st == CDP_OK;
    if (st == CDP_OK) st = cdp__fsdp_squares(f, &squares, &f->info.found_inf);
    if (st != CDP_OK) return cdp__fsdp_broken(f, st);
    cdp__fsdp_judge(f, squares);
    if (info) *info = f->info;
    return CDP_OK;
}

/* ---- updates ---- */

CDP__PRIVATE cdp_status cdp__fsdp_cast(cdp_fsdp *f) {
    if (!f->copies) return CDP_OK;
    return cdp_convert(f->values, CDP_DTYPE_F32, f->copies, f->desc.compute, f->value_count, NULL);
}

CDP__PRIVATE cdp_status cdp__fsdp_update_unit(cdp_fsdp *f, cdp__fsdp_unit *u) {
    cdp_optim_range r;
    uint32_t k;
    memset(&r, 0, sizeof r);
    r.param = u->range[0].value;
    for (k = 0; k < cdp_optim_states(f->desc.optim); ++k)
        r.state[k] = u->state[k];
    r.grad = u->mean;
    r.count = u->range[0].own;
    r.scale = f->info.scale;
    r.compute = u->range[0].copy;
    r.compute_dtype = u->range[0].copy ? f->desc.compute : CDP_DTYPE_DEFAULT;
    return cdp_optim_update(f->desc.optim, &r);
}

/* Repeats the update of a unit on this rank's copy of a shard. */
CDP__PRIVATE cdp_status cdp__fsdp_update_copy(cdp_fsdp *f, uint32_t unit, uint32_t image) {
    const cdp__fsdp_image *m = &f->images[image];
    const uint64_t at = cdp__fsdp_place(f, unit, 0, image);
    cdp_optim_range r;
    uint32_t k;
    memset(&r, 0, sizeof r);
    r.param = m->values + at;
    for (k = 0; k < cdp_optim_states(f->desc.optim); ++k)
        r.state[k] = m->states[k] + at;
    r.grad = m->means + at;
    r.count = cdp__fsdp_in_image(f, unit, 0, image);
    r.scale = f->info.scale;
    return cdp_optim_update(f->desc.optim, &r);
}

CDP__PRIVATE cdp_status cdp__fsdp_update(cdp_fsdp *f) {
    cdp_status st = CDP_OK;
    uint32_t i, k;
    f->torn = true;
    if (f->desc.optim) ++f->desc.optim->step;
    for (i = 0; i < f->unit_count && f->desc.optim && st == CDP_OK; ++i) {
        st = cdp__fsdp_update_unit(f, &f->units[i]);
        for (k = 1; k < f->image_count && st == CDP_OK; ++k)
            st = cdp__fsdp_update_copy(f, i, k);
    }
    for (i = 0; i < f->held_pieces && f->desc.update && st == CDP_OK; ++i)
        if (f->pieces[i].grad) st = f->desc.update(f->desc.user, &f->pieces[i]);
    if (st == CDP_OK && !f->desc.optim) st = cdp__fsdp_cast(f);
    if (st != CDP_OK) return st;
    ++f->step;
    f->torn = false;
    return CDP_OK;
}

/* What has to be true before parameters change. */
CDP__PRIVATE cdp_status cdp__fsdp_may_change(cdp_fsdp *f, const char *call, bool ended) {
    cdp_status st = cdp__fsdp_may(f, call, 0, false);
    uint32_t i;
    if (st == CDP_OK && f->ended != ended)
        st = cdp_error_set(CDP_ERR_STATE, -1, 0,
            ended ? "%s: call cdp_fsdp_backward_end() first" : "%s: call cdp_fsdp_step() first",
            call);
    for (i = 0; st == CDP_OK && i < f->unit_count; ++i)
        if (f->units[i].opens)
            st = cdp_error_set(CDP_ERR_STATE, -1, 0,
                "%s: unit '%s' is still needed; call cdp_fsdp_done()", call, f->units[i].name);
    return st;
}

/* The next step begins. */
CDP__PRIVATE cdp_status cdp__fsdp_next_step(cdp_fsdp *f, bool changed) {
    uint32_t *const was = f->record;
    cdp_status st;
    uint32_t i;
    f->record = f->next_record;
    f->next_record = was;
    f->record_count = f->next_count;
    f->next_count = f->cursor = 0;
    f->last = CDP__FSDP_NONE;
    f->backward = f->ended = f->entered = false;
    ++f->turn;
    f->left_out = !changed;
    for (i = 0; i < f->unit_count; ++i) {
        cdp__fsdp_unit *u = &f->units[i];
        u->reduced = false;
        u->expected = u->sums;
        u->sums = u->forwarded = 0;
    }
    if (changed) cdp__fsdp_forget_slots(f);
    cdp__fsdp_end_figures(f);
    cdp__fsdp_end_spans(f);
    st = f->record_count ? cdp__fsdp_prefetch(f) : CDP_OK;
    return cdp__fsdp_broken(f, st);
}

/* Whether the update of a step that has ended is possible: a NaN as the norm allows no clip. */
CDP__PRIVATE bool cdp__fsdp_can_scale(const cdp_fsdp *f) {
    return f->info.scale > 0 && f->info.scale <= DBL_MAX;
}

CDP__PRIVATE bool cdp__fsdp_will_update(const cdp_fsdp *f) {
    return !f->info.skipped && cdp__fsdp_can_scale(f);
}

CDP_API cdp_status cdp_fsdp_step(cdp_fsdp *f) {
    cdp_status st = cdp__fsdp_may_change(f, "cdp_fsdp_step", true);
    if (st == CDP_OK && !f->info.skipped && !cdp__fsdp_can_scale(f))
        st = cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_fsdp_step: the norm of the gradients is not finite, so no clip is possible; set "
            "desc.skip_nonfinite, or call cdp_fsdp_drop()");
    if (st != CDP_OK) return st;
    st = cdp__fsdp_arrive_all(f);
    if (st == CDP_OK && !f->info.skipped) {
        st = cdp__fsdp_update(f);
        if (st != CDP_OK) cdp__fsdp_give_up(f, st, "cdp_fsdp_step: the update has failed: ");
    }
    if (st != CDP_OK) return cdp__fsdp_broken(f, st);
    return cdp__fsdp_next_step(f, !f->info.skipped);
}

CDP_API cdp_status cdp_fsdp_drop(cdp_fsdp *f) {
    cdp_status st = cdp__fsdp_may_change(f, "cdp_fsdp_drop", true);
    return st == CDP_OK ? cdp__fsdp_next_step(f, false) : st;
}

#endif /* CDP_SRC_FSDP_STEP_H */
