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
#include "bucket_launch.h"
#include "backward.h"

#ifndef CDP_NO_DDP

#ifndef CDP_NO_JOIN
CDP__PRIVATE cdp_status cdp__join_hook(cdp_ddp *d, cdp_join_when when) {
    cdp_status before;
    if (!d->desc.join_hook) return CDP_OK;
    before = cdp__ddp_call_begin();
    return cdp__ddp_call_end(d, before, d->desc.join_hook(d, when, d->desc.user), "the join_hook");
}

/* A step fails on this rank: the others, which wait for it, receive the reason. */
CDP__PRIVATE cdp_status cdp__ddp_join_failed(cdp_ddp *d, cdp_status st) {
    if (st == CDP_OK) return CDP_OK;
    (void)cdp__ddp_fail(d, st);
    cdp__ddp_break(d);
    return cdp_group_status(d->group) != CDP_OK ? cdp_group_status(d->group) : st;
}

/* Begins one step of a rank without data. Every step begins in the same way on every rank: the
   rebuild if due, buffers if due, then the first bucket, whose flags say which ranks have data.
   The other buckets follow only if some rank has data. So in the last step, in which no rank has
   data, all ranks stop after the first bucket. */
CDP__PRIVATE cdp_status cdp__ddp_shadow_first(cdp_ddp *d) {
    cdp_status st = cdp__ddp_begin(d, true);
    if (st == CDP_OK) st = cdp__join_hook(d, CDP_JOIN_FORWARD);
    if (st != CDP_OK) return st;
    cdp__ddp_zero_buckets(d);
    d->called_ns = d->begin_ns;
    st = cdp__ddp_start_active(d);
    if (st == CDP_PENDING) st = cdp_work_wait(d->active);
    if (st == CDP_OK) st = cdp__ddp_start_active(d); /* reads what has arrived */
    if (st == CDP_OK) st = cdp__ddp_launch(d, d->buckets);
    if (st == CDP_OK) st = cdp_work_wait(cdp__ddp_flags_apart(d) ? d->active : d->buckets->work);
    return st == CDP_OK ? cdp__ddp_read_active(d) : st;
}

CDP__PRIVATE cdp_status cdp__ddp_shadow(cdp_ddp *d) {
    cdp_status st = cdp__ddp_shadow_first(d);
    uint32_t i;
    if (st != CDP_OK) return cdp__ddp_join_failed(d, st);
    if (!d->stats.active_ranks) { /* the hook's operations for the first bucket must still end */
        for (i = 1; i < d->bucket_count; ++i)
            d->buckets[i].done = true;
        return cdp__ddp_join_failed(d, cdp__ddp_wait(d, cdp__ddp_finish(d)));
    }
    for (i = 0; i < d->bucket_count; ++i)
        d->buckets[i].pending = 0;
    if (d->stats.steps == cdp__ddp_observed(d)) /* this rank has recorded no order */
        for (i = 0; i < d->param_count; ++i)
            d->order[i] = d->param_count - 1 - i;
    st = cdp__ddp_wait(d, cdp__ddp_launch_rest(d));
    if (st == CDP_OK && cdp__ddp_uneven(d) != CDP_OK) return CDP_ERR_STATE; /* on all ranks */
    d->in_backward = false; /* the hook may call what follows backward_end */
    if (st == CDP_OK) st = cdp__join_hook(d, CDP_JOIN_STEP);
    return cdp__ddp_join_failed(d, st);
}

CDP__PRIVATE CDP__COLD cdp_status cdp__join_check(
    const char *call, const cdp_joinable *items, uint32_t n) {
    uint32_t i;
    if (!items || !n) return cdp__missing(call, "items");
    if (!items->ddp)
        return cdp__fail(
            CDP_ERR_INVALID, "%s: items[0] is no ddp; its first bucket says who has data", call);
    for (i = 0; i < n; ++i) {
        cdp_ddp *const d = items[i].ddp;
        const cdp_status st = d ? cdp__ddp_between(d, call) : CDP_OK;
        if (st != CDP_OK) return st;
        if (d && !d->desc.join)
            return cdp__fail(CDP_ERR_INVALID, "%s: set join in the desc on all ranks", call);
        if (!d && !items[i].step) return cdp__missing(call, "step of an item");
    }
    return CDP_OK;
}

/* Calls `step` or `last` of an item. */
CDP__PRIVATE cdp_status cdp__join_program(
    const cdp_joinable *items, cdp_status (*call)(void *user), void *user) {
    const cdp_status before = cdp__ddp_call_begin();
    const cdp_status st = cdp__ddp_call_end(items->ddp, before, call(user), "a joinable item");
    return cdp__ddp_join_failed(items->ddp, st);
}

/* One step of the others. Where nobody has data, a ddp learns it from its own first bucket, and no
   rank has started what `step` would join. */
CDP__PRIVATE cdp_status cdp__join_step(const cdp_joinable *items, uint32_t n) {
    cdp_status st = CDP_OK;
    uint32_t i;
    for (i = 0; i < n && st == CDP_OK; ++i) {
        cdp_ddp *const d = items[i].ddp;
        if (d) {
            d->shadow = true;
            st = cdp__ddp_shadow(d);
            d->in_backward = d->shadow = false;
        } else if (items->ddp->stats.active_ranks) {
            st = cdp__join_program(items, items[i].step, items[i].user);
        }
    }
    return st;
}

/* All ranks are out of data: everybody gets the parameters of one that had some last. */
CDP__PRIVATE cdp_status cdp__join_last(cdp_ddp *d) {
    cdp_status st = CDP_OK;
    uint32_t i;
    for (i = 0; i < d->param_count; ++i)
        d->params[i].touched = false;
    if (!d->equal || d->desc.buffer_count)
        st = cdp__ddp_wait(d, cdp__ddp_broadcast(d, d->root, !d->equal));
    d->equal = true;
    if (st == CDP_OK) st = cdp__join_hook(d, CDP_JOIN_LAST);
    return cdp__ddp_join_failed(d, st);
}

CDP__PRIVATE CDP__COLD cdp_status cdp__join_items(
    const char *call, const cdp_joinable *items, uint32_t n) {
    cdp_status st = cdp__join_check(call, items, n);
    uint32_t i;
    if (st != CDP_OK) return st;
    do {
        st = cdp__join_step(items, n);
    } while (st == CDP_OK && items->ddp->stats.active_ranks);
    for (i = 0; i < n && st == CDP_OK; ++i) {
        if (items[i].ddp)
            st = cdp__join_last(items[i].ddp);
        else if (items[i].last)
            st = cdp__join_program(items, items[i].last, items[i].user);
    }
    return st;
}

CDP_API cdp_status cdp_ddp_join_all(const cdp_joinable *items, uint32_t n) {
    CDP__NOT_COLD();
    return cdp__join_items("cdp_ddp_join_all", items, n);
}

CDP_API cdp_status cdp_ddp_join(cdp_ddp *d) {
    cdp_joinable item;
    memset(&item, 0, sizeof item);
    item.ddp = d;
    if (!d) return cdp__missing("cdp_ddp_join", "ddp");
    CDP__NOT_COLD();
    return cdp__join_items("cdp_ddp_join", &item, 1);
}
#endif /* CDP_NO_JOIN */

#endif /* CDP_NO_DDP */

#endif /* CDP_SRC_DDP_JOIN_H */
