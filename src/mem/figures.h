/* mem/figures.h - statistics

   Knows: how tallies become statistics. Promises: allocated minus freed is current, and a peak is
   never below it. */
#ifndef CDP_SRC_MEM_FIGURES_H
#define CDP_SRC_MEM_FIGURES_H

#include "../base/config.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../os/child.h"
#include "allocator_api.h"
#include "statistics_api.h"
#include "ring.h"
#include "blocks.h"
#include "scopes.h"

#define CDP__MEM_TRIPLES 9u /* statistics with [3], in front of the two of oversize blocks */

/* Turns the tally of active blocks into an ordinary one, which includes blocks held by callers. */
CDP__PRIVATE void cdp__mem_tally_active(cdp__mem_tally *active, const cdp__mem_tally *held) {
    uint32_t i;
    for (i = 0; i < 2; ++i) {
        active->current[i] += held->current[i];
        active->allocated[i] = held->allocated[i];
        active->peak[i] = cdp__max(active->peak[i], held->peak[i]);
    }
    active->peak_all = cdp__max(active->peak_all, held->peak_all);
}

CDP__PRIVATE void cdp__mem_stat_class(const cdp__mem_tally *t, uint32_t large, cdp_mem_stat *out) {
    out->current = t->current[large];
    out->peak = t->peak[large];
    out->allocated = t->allocated[large];
    out->freed = t->allocated[large] + t->before[large] - t->current[large];
}

CDP__PRIVATE void cdp__mem_stat_triple(const cdp__mem_tally *t, cdp_mem_stat out[3]) {
    cdp__mem_stat_class(t, 0, &out[1]);
    cdp__mem_stat_class(t, 1, &out[2]);
    out[0].current = out[1].current + out[2].current;
    out[0].allocated = out[1].allocated + out[2].allocated;
    out[0].freed = out[1].freed + out[2].freed;
    out[0].peak = t->peak_all;
}

CDP_API cdp_mem_stats cdp_mem_stats_of(const cdp_mem *mem) {
    cdp_mem_stats out;
    cdp__mem_tallies all;
    const cdp__mem_tally *const t = (const cdp__mem_tally *)(const void *)&all;
    cdp_mem_stat *const s = (cdp_mem_stat *)(void *)&out;
    uint32_t i;
    memset(&out, 0, sizeof out);
    if (!cdp__mem_lives(mem)) return out;
    cdp__mem_lock(mem);
    out = mem->stats;
    all = mem->tally;
    cdp__mem_tally_active(&all.active, &all.allocation);
    cdp__mem_tally_active(&all.active_bytes, &all.allocated_bytes);
    cdp__mem_scopes_whole(mem, &all);
    for (i = 0; i < CDP__MEM_TRIPLES; ++i)
        cdp__mem_stat_triple(&t[i], &s[3 * i]);
    cdp__mem_stat_class(&mem->tally.oversize_allocations, 0, &out.oversize_allocations);
    cdp__mem_stat_class(&mem->tally.oversize_segments, 0, &out.oversize_segments);
    out.events_lost = mem->log.ring.room ? cdp__mem_ring_lost(&mem->log.ring) : 0;
    out.stacks_lost = mem->log.depot.lost + mem->log.sites.lost;
    out.labels_lost = mem->log.labels.lost;
    cdp__mem_unlock(mem);
    return out;
}

CDP__PRIVATE void cdp__mem_tally_reset(cdp__mem_tally *t, bool peak, bool accumulated) {
    uint32_t i;
    for (i = 0; i < 2; ++i) {
        if (peak) t->peak[i] = t->current[i];
        if (accumulated) t->allocated[i] = 0;
        if (accumulated) t->before[i] = t->current[i];
    }
    if (peak) t->peak_all = cdp__mem_now(t);
}

CDP__PRIVATE void cdp__mem_active_reset(
    cdp__mem_tally *active, const cdp__mem_tally *held, bool peak, bool accumulated) {
    uint32_t i;
    for (i = 0; i < 2; ++i) {
        if (peak) active->peak[i] = active->current[i] + held->current[i];
        if (accumulated) active->before[i] = active->current[i] + held->current[i];
    }
    if (peak) active->peak_all = cdp__mem_now(active) + cdp__mem_now(held);
}

CDP_API void cdp_mem_reset(cdp_mem *mem, bool peak, bool accumulated) {
    cdp__mem_tally *t;
    cdp_mem_stats *s;
    uint32_t i;
    if (!cdp__mem_lives(mem)) return;
    s = &mem->stats;
    t = (cdp__mem_tally *)(void *)&mem->tally;
    cdp__mem_lock(mem);
    cdp__mem_scopes_before_reset(mem, peak, accumulated);
    if (peak) cdp__mem_labels_reset(&mem->log.labels, cdp__mem_active_bytes(mem));
    for (i = 0; i < CDP__MEM_TRIPLES + 2; ++i)
        cdp__mem_tally_reset(&t[i], peak, accumulated);
    cdp__mem_active_reset(&mem->tally.active, &mem->tally.allocation, peak, accumulated);
    cdp__mem_active_reset(&mem->tally.active_bytes, &mem->tally.allocated_bytes, peak, accumulated);
    if (accumulated) s->alloc_retries = s->ooms = s->oom_rejections = s->sync_all_streams = 0;
    if (accumulated) s->device_allocs = s->device_frees = 0;
    cdp__mem_unlock(mem);
}

#endif /* CDP_SRC_MEM_FIGURES_H */
