/* ddp/stats.h - statistics of the last step and of all steps

   Knows: the times of a pass. Promises: only statistics; nothing depends on them. */
#ifndef CDP_SRC_DDP_STATS_H
#define CDP_SRC_DDP_STATS_H

#include "../base/config.h"
#include "../base/types_api.h"
#include "ddp_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "state.h"

#ifndef CDP_NO_DDP

/* Computes for the last step how long operations ran, and how long backward_end waited for them. */
CDP__PRIVATE void cdp__ddp_account_comm(cdp_ddp *d) {
    cdp_ddp_stats *s = &d->stats;
    uint32_t i;
    s->comm_ns = s->exposed_ns = 0;
    /* operations of a group run one after the other, so no time is counted twice */
    for (i = 0; i < d->bucket_count; ++i) {
        const cdp__bucket *b = &d->buckets[i];
        s->comm_ns += b->end_ns - b->start_ns + b->late_ns;
        if (b->end_ns > d->called_ns)
            s->exposed_ns += b->end_ns - cdp__max(b->start_ns, d->called_ns);
    }
    if (d->hook.stage) { /* stages of a hook overlap, so only the waiting time is known */
        s->exposed_ns = d->end_ns - d->called_ns;
        s->comm_ns = cdp__max(s->comm_ns, s->exposed_ns);
    }
    s->hidden = s->comm_ns ? 1 - (cdp_real)s->exposed_ns / (cdp_real)s->comm_ns : 0;
}

CDP__PRIVATE void cdp__ddp_account(cdp_ddp *d) {
    cdp_ddp_stats *s = &d->stats;
    const uint64_t first_ns = d->buckets[0].start_ns;
    cdp__ddp_account_comm(d);
    s->backward_ns = d->called_ns - d->begin_ns;
    s->forward_ns = d->forward_ns ? d->begin_ns - d->forward_ns : 0;
    s->overlap_ns = first_ns && first_ns < d->called_ns ? d->called_ns - first_ns : 0;
    d->forward_ns = 0;
    s->total_forward_ns += s->forward_ns;
    s->total_overlap_ns += s->overlap_ns;
    s->total_backward_ns += s->backward_ns;
    s->total_comm_ns += s->comm_ns;
    s->total_exposed_ns += s->exposed_ns;
    ++d->own_steps;
    s->avg_forward_ns = s->total_forward_ns / d->own_steps;
    s->avg_backward_ns = s->total_backward_ns / d->own_steps;
    s->avg_comm_ns = s->total_comm_ns / d->own_steps;
    s->avg_overlap_ns = s->total_overlap_ns / d->own_steps;
}

CDP_API cdp_ddp_stats cdp_ddp_stats_of(const cdp_ddp *d) {
    cdp_ddp_stats none;
    if (cdp__ddp_lives(d)) return d->stats;
    memset(&none, 0, sizeof none);
    return none;
}

CDP_API cdp_bucket_stats cdp_ddp_bucket(const cdp_ddp *d, uint32_t index) {
    cdp_bucket_stats s;
    const cdp__bucket *b;
    uint32_t i;
    memset(&s, 0, sizeof s);
    if (!cdp__ddp_lives(d) || index >= d->bucket_count) return s;
    b = &d->buckets[index];
    s.bytes = cdp__bucket_bytes(b);
    s.dtype = b->dtype;
    s.params = b->slots;
    s.param_count = b->params;
    if (!b->start_ns || b->start_ns < d->begin_ns) return s;
    for (i = 0; i < b->params; ++i)
        s.ready_ns = cdp__max(s.ready_ns, d->params[b->slots[i]].ready_ns);
    if (s.ready_ns) s.ready_ns -= d->begin_ns;
    s.start_ns = b->start_ns - d->begin_ns;
    s.end_ns = b->end_ns - d->begin_ns;
    return s;
}

#endif /* CDP_NO_DDP */

#endif /* CDP_SRC_DDP_STATS_H */
