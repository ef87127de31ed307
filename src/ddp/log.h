/* ddp/log.h - lines of a ddp at INFO: its settings, and statistics of steps

   Knows: statistics, the log of a group. Promises: without log_steps, a
   step costs one comparison. */
#ifndef CDP_SRC_DDP_LOG_H
#define CDP_SRC_DDP_LOG_H

#include "../base/config.h"
#include "../base/log_api.h"
#include "ddp_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "../group/state.h"
#include "../group/log.h"
#include "../group/progress.h"
#include "state.h"

#ifndef CDP_NO_DDP

#ifdef CDP_NO_LOG_STRINGS
CDP__PRIVATE void cdp__ddp_log_made(cdp_ddp *d) {
    (void)d;
}
CDP__PRIVATE void cdp__ddp_log_step(cdp_ddp *d) {
    (void)d;
}
#else
CDP__PRIVATE CDP__COLD void cdp__ddp_log_made(cdp_ddp *d) {
    const cdp_ddp_desc *const s = &d->desc;
    cdp__enter(d->group);
    cdp__group_log(d->group, CDP_LOG_INFO,
        "ddp %u%s%s: %u parameters of %llu bytes in %s memory, %u buckets (limits %llu, then %llu "
        "bytes), %u buffers%s; find_unused %u, static_graph %u, rebuild %u, join %u%s%s",
        d->number, s->name ? " " : "", s->name ? s->name : "", d->param_count,
        (unsigned long long)d->stats.bytes_per_step, d->device ? d->device->name : "host",
        d->bucket_count, (unsigned long long)s->bucket_list[0],
        (unsigned long long)s->bucket_list[s->bucket_list_count - 1], s->buffer_count,
        s->no_buffer_broadcast ? ", not copied" : "", s->find_unused, s->static_graph, s->rebuild,
        s->join, s->no_broadcast ? ", no_broadcast" : "", s->accumulate ? ", accumulate f32" : "");
    cdp__leave(d->group);
}

CDP__PRIVATE CDP__COLD void cdp__ddp_log_stats(cdp_ddp *d) {
    const cdp_ddp_stats *const s = &d->stats;
    cdp__enter(d->group);
    cdp__group_log(d->group, CDP_LOG_INFO,
        "ddp %u%s%s: step %llu: forward %llu us, backward %llu us, operations %llu us, of which "
        "%llu us after backward; %llu bytes sent; %u ranks with data, %u parameters unused; mean "
        "backward %llu us, operations %llu us",
        d->number, d->desc.name ? " " : "", d->desc.name ? d->desc.name : "",
        (unsigned long long)s->steps, (unsigned long long)(s->forward_ns / 1000),
        (unsigned long long)(s->backward_ns / 1000), (unsigned long long)(s->comm_ns / 1000),
        (unsigned long long)(s->exposed_ns / 1000), (unsigned long long)s->sent_bytes,
        s->active_ranks, s->unused_count, (unsigned long long)(s->avg_backward_ns / 1000),
        (unsigned long long)(s->avg_comm_ns / 1000));
    cdp__leave(d->group);
}

/* A synchronized step of this rank has ended well. */
CDP__PRIVATE void cdp__ddp_log_step(cdp_ddp *d) {
    if (d->desc.log_steps && d->stats.steps % d->desc.log_steps == 0) cdp__ddp_log_stats(d);
}
#endif /* CDP_NO_LOG_STRINGS */

#endif /* CDP_NO_DDP */

#endif /* CDP_SRC_DDP_LOG_H */
