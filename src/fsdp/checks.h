/* fsdp/checks.h - what a desc may say (pure)

   Knows: descs. Promises: a mistake is reported in one sentence before anything happens. */
#ifndef CDP_SRC_FSDP_CHECKS_H
#define CDP_SRC_FSDP_CHECKS_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/error_api.h"
#include "../message/transport_api.h"
#include "../train/optimizers_api.h"
#include "../base/compiler.h"
#include "../base/helpers.h"
#include "fsdp_api.h"
#include "cuts.h"

#define CDP__FSDP_NONE UINT32_MAX

CDP__PRIVATE cdp_status cdp__fsdp_missing(const char *call, const char *argument) {
    return cdp_error_set(CDP_ERR_INVALID, -1, 0, CDP__MISSING, call, argument);
}

CDP__PRIVATE cdp_status cdp__fsdp_nomem(const char *what, uint64_t bytes) {
    return cdp_error_set(CDP_ERR_NOMEM, -1, 0, "out of memory: %s of a cdp_fsdp needs %llu bytes",
        what, (unsigned long long)bytes);
}

/* How many units there are. */
CDP__PRIVATE uint32_t cdp__fsdp_unit_count(const cdp_fsdp_desc *d) {
    uint32_t i, n = 0;
    if (d->unit_count) return d->unit_count;
    for (i = 0; i < d->param_count; ++i)
        if (d->params[i].unit < CDP_FSDP_UNITS && d->params[i].unit >= n) n = d->params[i].unit + 1;
    return n;
}

CDP__PRIVATE cdp_status cdp__fsdp_check_param(
    const char *call, const cdp_fsdp_desc *d, uint32_t i, uint32_t units, uint64_t *all) {
    const cdp_fsdp_param *p = &d->params[i];
    uint64_t count = 0, row = 0;
    if (p->ndim > CDP_FSDP_DIMS)
        return cdp_error_set(CDP_ERR_INVALID, -1, 0, "%s: params[%u].ndim is %u; the most is %u",
            call, i, p->ndim, CDP_FSDP_DIMS);
    if (p->unit >= units)
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "%s: params[%u].unit is %u; it should be less than the number of units, %u", call, i,
            p->unit, units);
    if (!cdp__fsdp_product(p, 0, &count) || !cdp__fsdp_product(p, 1, &row)
        || (*all += count) > UINT64_MAX >> 3)
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "%s: params[%u] and those before it have more than 2^61 elements", call, i);
    return CDP_OK;
}

CDP__PRIVATE bool cdp__fsdp_is_dtype(cdp_dtype t) {
    return t == CDP_DTYPE_DEFAULT || t == CDP_DTYPE_F32 || t == CDP_DTYPE_F16
        || t == CDP_DTYPE_BF16;
}

/* Lets the optimizer look at its settings, by an update of no elements. */
CDP__PRIVATE cdp_status cdp__fsdp_check_optim(const char *call, const cdp_optim *own) {
    cdp_optim o = *own;
    cdp_optim_range none;
    cdp_status st;
    cdp_error e;
    memset(&none, 0, sizeof none);
    none.scale = 1;
    o.step = 1;
    st = cdp_optim_update(&o, &none);
    if (st == CDP_OK) return st;
    e = *cdp_last_error();
    return cdp_error_set(st, -1, 0, "%s: desc.optim: %s", call, e.text);
}

CDP__PRIVATE cdp_status cdp__fsdp_check_optimizer(const char *call, const cdp_fsdp_desc *d) {
    if (d->optim && d->update)
        return cdp_error_set(
            CDP_ERR_INVALID, -1, 0, "%s: set desc.optim or desc.update, not both", call);
    if (d->states > CDP_FSDP_STATES || (d->states && !d->update))
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "%s: desc.states is %u; it is for desc.update, and at most %u", call, d->states,
            CDP_FSDP_STATES);
    if (!(d->max_norm >= 0) || !(d->divisor >= 0))
        return cdp_error_set(
            CDP_ERR_INVALID, -1, 0, "%s: desc.max_norm or desc.divisor is negative or NaN", call);
    return d->optim ? cdp__fsdp_check_optim(call, d->optim) : CDP_OK;
}

CDP__PRIVATE cdp_status cdp__fsdp_check_copies(const char *call, const cdp_fsdp_desc *d) {
    if (!d->copies) return CDP_OK;
    if (d->copies > CDP_FSDP_COPIES || !(d->optim || d->update))
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "%s: desc.copies is %u; at most %u, and holders repeat updates, so set desc.optim or "
            "desc.update",
            call, d->copies, CDP_FSDP_COPIES);
    if (d->replicate || d->norm_group)
        return cdp_error_set(CDP_ERR_UNSUPPORTED, -1, 0,
            "%s: desc.copies is not offered with desc.replicate or desc.norm_group; leave one out",
            call);
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__fsdp_check(const char *call, const cdp_fsdp_desc *d) {
    uint64_t all = 0;
    uint32_t i, units;
    cdp_status st = CDP_OK;
    if (!d) return cdp__fsdp_missing(call, "desc");
    if (d->param_count && !d->params) return cdp__fsdp_missing(call, "desc.params");
    if (!d->param_count || d->param_count > 1u << 20 || d->unit_count > CDP_FSDP_UNITS)
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "%s: desc.param_count is %u, unit_count %u; there are 1 to 1048576 parameters in at "
            "most %u units",
            call, d->param_count, d->unit_count, CDP_FSDP_UNITS);
    if ((uint32_t)d->stage > (uint32_t)CDP_FSDP_OPTIMIZER)
        return cdp_error_set(
            CDP_ERR_INVALID, -1, 0, "%s: desc.stage %d does not exist", call, (int)d->stage);
    if (!cdp__fsdp_is_dtype(d->compute) || !cdp__fsdp_is_dtype(d->reduce))
        return cdp_error_set(CDP_ERR_UNSUPPORTED, -1, 0, "%s: desc.%s is %s; use F32, BF16 or F16",
            call, cdp__fsdp_is_dtype(d->compute) ? "reduce" : "compute",
            cdp_dtype_name(cdp__fsdp_is_dtype(d->compute) ? d->reduce : d->compute));
    units = cdp__fsdp_unit_count(d);
    for (i = 0; i < d->param_count && st == CDP_OK; ++i)
        st = cdp__fsdp_check_param(call, d, i, units, &all);
    if (st == CDP_OK) st = cdp__fsdp_check_optimizer(call, d);
    return st == CDP_OK ? cdp__fsdp_check_copies(call, d) : st;
}

CDP__PRIVATE uint64_t cdp__fsdp_size_of(cdp_dtype t) {
    return t == CDP_DTYPE_F16 || t == CDP_DTYPE_BF16 ? 2 : 4;
}

CDP__PRIVATE uint32_t cdp__fsdp_states(const cdp_fsdp_desc *d) {
    return d->optim ? cdp_optim_states(d->optim) : d->states;
}

/* How many slots units of one size share. */
CDP__PRIVATE uint32_t cdp__fsdp_slots_for(const cdp_fsdp_desc *d, uint32_t units) {
    const uint64_t most = d->no_prefetch ? 1 : 1ull + cdp__def(d->prefetch, 1u);
    return (uint32_t)cdp__min(units, most);
}

CDP__PRIVATE bool cdp__fsdp_keeps(const cdp_fsdp_desc *d, uint32_t unit) {
    return d->stage != CDP_FSDP_FULL || (d->units && d->unit_count && d->units[unit].keep);
}

CDP__PRIVATE uint32_t cdp__fsdp_uses(const cdp_fsdp_desc *d, uint32_t unit) {
    return d->units && d->unit_count && d->units[unit].uses ? d->units[unit].uses : 1;
}

/* Whether a unit has memory of its own for whole gradients. */
CDP__PRIVATE bool cdp__fsdp_owns_gradients(const cdp_fsdp_desc *d, uint32_t unit) {
    return d->stage == CDP_FSDP_OPTIMIZER || cdp__fsdp_uses(d, unit) > 1;
}

#endif /* CDP_SRC_FSDP_CHECKS_H */
