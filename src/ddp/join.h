/* ddp/join.h - ranks that run out of data at different times

   Knows: the operations of other ranks in a step. Promises: a rank without data starts the same
   operations. */
#ifndef CDP_SRC_DDP_JOIN_H
#define CDP_SRC_DDP_JOIN_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../group/collectives_api.h"
#include "ddp_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "state.h"
#include "broadcast.h"
#include "launch.h"
#include "backward.h"

#ifndef CDP_NO_DDP

#ifndef CDP_NO_JOIN
/* Begins one step of a rank without data. Every step begins in the same way on every rank: the
   rebuild if due, buffers if due, then the first bucket, whose flags say which ranks have data.
   The other buckets follow only if some rank has data. So in the last step, in which no rank has
   data, all ranks stop after the first bucket. */
CDP__PRIVATE cdp_status cdp__ddp_shadow_first(cdp_ddp *d) {
    cdp_status st = cdp__ddp_begin(d, true);
    uint32_t i;
    if (st == CDP_OK && d->desc.join_hook)
        st = d->desc.join_hook(d, CDP_JOIN_FORWARD, d->desc.user);
    if (st != CDP_OK) return st;
    for (i = 0; i < d->bucket_count; ++i)
        cdp__ddp_zero(d, d->buckets[i].memory, cdp__bucket_bytes(&d->buckets[i]));
    d->called_ns = d->begin_ns;
    st = cdp__ddp_start_active(d);
    if (st == CDP_PENDING) st = cdp_work_wait(d->active);
    if (st == CDP_OK) st = cdp__ddp_start_active(d); /* reads what has arrived */
    if (st == CDP_OK) st = cdp__ddp_launch(d, d->buckets);
    if (st == CDP_OK) st = cdp_work_wait(d->hook.stage ? d->active : d->buckets->work);
    return st == CDP_OK ? cdp__ddp_read_active(d) : st;
}

CDP__PRIVATE cdp_status cdp__ddp_shadow(cdp_ddp *d) {
    cdp_status st = cdp__ddp_shadow_first(d);
    uint32_t i;
    if (st != CDP_OK) return st;
    if (!d->stats.active_ranks) { /* the hook's operations for the first bucket must still end */
        for (i = 1; i < d->bucket_count; ++i)
            d->buckets[i].done = true;
        return cdp__ddp_wait(d, cdp__ddp_finish(d));
    }
    for (i = 0; i < d->bucket_count; ++i)
        d->buckets[i].pending = 0;
    if (d->stats.steps == cdp__ddp_observed(d)) /* this rank has recorded no order */
        for (i = 0; i < d->param_count; ++i)
            d->order[i] = d->param_count - 1 - i;
    st = cdp__ddp_wait(d, cdp__ddp_launch_rest(d));
    if (st == CDP_OK) st = cdp__ddp_uneven(d);
    if (st == CDP_OK && d->desc.join_hook) st = d->desc.join_hook(d, CDP_JOIN_STEP, d->desc.user);
    return st;
}

CDP_API CDP__COLD cdp_status cdp_ddp_join(cdp_ddp *d) {
    cdp_status st = cdp__ddp_between(d, "cdp_ddp_join");
    uint32_t i;
    if (st != CDP_OK) return st;
    if (!d->desc.join)
        return cdp__fail(CDP_ERR_INVALID, "cdp_ddp_join: set join in the desc on all ranks");
    d->shadow = true;
    do {
        st = cdp__ddp_shadow(d);
        d->in_backward = false;
    } while (st == CDP_OK && d->stats.active_ranks);
    d->shadow = false;
    for (i = 0; i < d->param_count; ++i)
        d->params[i].touched = false;
    if (st == CDP_OK && (!d->equal || d->desc.buffer_count))
        st = cdp__ddp_wait(d, cdp__ddp_broadcast(d, d->root, !d->equal));
    d->equal = true;
    if (st == CDP_OK && d->desc.join_hook) st = d->desc.join_hook(d, CDP_JOIN_LAST, d->desc.user);
    return st;
}
#endif /* CDP_NO_JOIN */

#endif /* CDP_NO_DDP */

#endif /* CDP_SRC_DDP_JOIN_H */
