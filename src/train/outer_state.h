/* train/outer_state.h - saving and restoring what ranks of an outer have alike

   Knows: an outer's rows of numbers. Promises: all ranks restore the same bits. */
#ifndef CDP_SRC_TRAIN_OUTER_STATE_H
#define CDP_SRC_TRAIN_OUTER_STATE_H

#include "outer_api.h"
#include "../group/collectives_api.h"
#include "../base/compiler.h"
#include "../base/ended.h"
#include "../base/text.h"
#include "../group/state.h"
#include "outer.h"

#ifndef CDP_NO_DDP
#ifndef CDP_NO_AVERAGER
#ifndef CDP_NO_TRAINING

/* Finds one kind of state of a parameter; *here: `values` of this rank are used. */
CDP__PRIVATE cdp_status cdp__outer_find(cdp_outer *o, const char *call, uint32_t state,
    uint32_t index, const float *values, uint32_t root, float **own, bool *here) {
    const cdp_status st = cdp__outer_usable(o, call);
    uint32_t i;
    if (st != CDP_OK) return st;
    if (o->failed != CDP_OK)
        return cdp__fail(CDP_ERR_STATE, "%s: its group has failed (%s); call cdp_outer_rebind()",
            call, cdp_status_name(o->failed));
    if (o->in_flight) return cdp__outer_on_its_way(&o->desc, o->stats.steps, CDP_ERR_STATE, call);
    if (index >= o->desc.param_count)
        return cdp__fail(CDP_ERR_INVALID, "%s: parameter %u should be less than param_count, %u",
            call, index, o->desc.param_count);
    if (state > CDP_OUTER_MOMENTUM)
        return cdp__fail(
            CDP_ERR_INVALID, "%s: state %u is neither CDP_OUTER_PARAMS nor _MOMENTUM", call, state);
    if (root >= cdp_size(o->group))
        return cdp__fail(
            CDP_ERR_INVALID, "%s: root %u is no rank of %u", call, root, cdp_size(o->group));
    *here = cdp_rank(o->group) == root;
    if (*here && !values && o->params[index].count) return cdp__missing(call, "values");
    *own = state == CDP_OUTER_PARAMS ? o->saved : o->momentum;
    for (i = 0; i < index; ++i)
        *own += o->params[i].count;
    return CDP_OK;
}

CDP_API cdp_status cdp_outer_gather(
    cdp_outer *o, uint32_t state, uint32_t index, float *values, uint32_t root) {
    float *own = NULL;
    bool here = false;
    const cdp_status st =
        cdp__outer_find(o, "cdp_outer_gather", state, index, values, root, &own, &here);
    if (st == CDP_OK && here && o->params[index].count)
        memcpy(values, own, (size_t)o->params[index].count * sizeof *own);
    return st;
}

CDP_API cdp_status cdp_outer_scatter(
    cdp_outer *o, uint32_t state, uint32_t index, const float *values, uint32_t root) {
    float *own = NULL;
    bool here = false;
    cdp_status st =
        cdp__outer_find(o, "cdp_outer_scatter", state, index, values, root, &own, &here);
    if (st != CDP_OK || !o->params[index].count) return st;
    if (here) memcpy(own, values, (size_t)o->params[index].count * sizeof *own);
    st = cdp_broadcast(o->group, own, o->params[index].count, CDP_DTYPE_F32, root);
    return st == CDP_OK ? CDP_OK : cdp__outer_fail(o, st);
}

CDP_API const cdp_hook *cdp_outer_hook(const cdp_outer *o) {
    return o && !cdp__ended(o) && o->wire.stage != cdp__outer_plain ? &o->wire : NULL;
}

#endif /* CDP_NO_TRAINING */
#endif /* CDP_NO_AVERAGER */
#endif /* CDP_NO_DDP */

#endif /* CDP_SRC_TRAIN_OUTER_STATE_H */
