/* ddp/zero.h - each parameter has its optimizer state on one rank

   Knows: which rank owns which parameter. Promises: owners depend on element counts alone. */
#ifndef CDP_SRC_DDP_ZERO_H
#define CDP_SRC_DDP_ZERO_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../group/group_api.h"
#include "../group/collectives_api.h"
#include "ddp_api.h"
#include "hooks_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "../group/state.h"
#include "state.h"

#ifndef CDP_NO_ZERO

/* Finds the largest count among parameters without an owner; false: every parameter has one. */
CDP__PRIVATE bool cdp__zero_largest(
    const uint64_t *counts, uint32_t n, const uint32_t *owner, uint64_t *largest) {
    bool found = false;
    uint32_t i;
    for (i = 0; i < n; ++i) {
        if (owner[i] != UINT32_MAX || (found && counts[i] <= *largest)) continue;
        *largest = counts[i];
        found = true;
    }
    return found;
}

CDP__PRIVATE uint32_t cdp__zero_least(const uint64_t *totals, uint32_t world) {
    uint32_t least = 0, r;
    for (r = 1; r < world; ++r)
        if (totals[r] < totals[least]) least = r;
    return least;
}

/* Makes one pass over the parameters per distinct count, of which a model has few. */
CDP_API CDP__COLD void cdp_zero_partition(
    const uint64_t *counts, uint32_t n, uint32_t world, uint64_t *totals, uint32_t *owner) {
    uint64_t largest = 0;
    uint32_t i;
    for (i = 0; i < n; ++i)
        owner[i] = UINT32_MAX;
    while (cdp__zero_largest(counts, n, owner, &largest))
        for (i = 0; i < n; ++i) {
            if (owner[i] != UINT32_MAX || counts[i] != largest) continue;
            owner[i] = cdp__zero_least(totals, world);
            totals[owner[i]] += largest;
        }
}

/* The gradient of a parameter, where the caller reads it; NULL: the parameter is sparse. */
CDP__PRIVATE const void *cdp__zero_grad(cdp_ddp *d, uint32_t i) {
    const cdp_param *p = cdp_ddp_param(d, i);
    if (p->sparse) return NULL;
    return p->grad ? p->grad : cdp_ddp_grad(d, i);
}

CDP_API cdp_status cdp_zero_step(cdp_ddp *d, const uint32_t *owner,
    void (*update)(void *user, uint32_t index, const cdp_param *param, const void *grad),
    void *user) {
    const uint32_t n = cdp_ddp_param_count(d);
    cdp_group *group = cdp_ddp_group(d);
    cdp_work last = {NULL, 0};
    cdp_status st = CDP_OK;
    uint32_t i, r;
    if (!d) return cdp__missing("cdp_zero_step", "ddp");
    if (!owner) return cdp__missing("cdp_zero_step", "owner");
    if (!update) return cdp__missing("cdp_zero_step", "update");
    st = cdp__ddp_between(d, "cdp_zero_step");
    if (st != CDP_OK) return st;
    for (i = 0; i < n; ++i)
        if (owner[i] >= cdp_size(group))
            return cdp__fail(CDP_ERR_INVALID,
                "cdp_zero_step: parameter %u belongs to rank %u, which does not exist", i,
                owner[i]);
    for (i = 0; i < n; ++i)
        if (owner[i] == cdp_rank(group)) update(user, i, cdp_ddp_param(d, i), cdp__zero_grad(d, i));
    for (r = 0; r < cdp_size(group); ++r)
        for (i = 0; i < n && st == CDP_OK; ++i) {
            const cdp_param *p = cdp_ddp_param(d, i);
            if (owner[i] == r && p->count)
                st = cdp_broadcast_async(group, p->data, p->count, p->dtype, r, &last);
        }
    return st == CDP_OK ? cdp_work_wait(last) : st;
}
#endif /* CDP_NO_ZERO */

#endif /* CDP_SRC_DDP_ZERO_H */
