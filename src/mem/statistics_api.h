/* mem/statistics_api.h - how much is used, cached, wasted */
#ifndef CDP_SRC_MEM_STATISTICS_API_H
#define CDP_SRC_MEM_STATISTICS_API_H

#include "../base/config.h"
#include "allocator_api.h"

typedef struct cdp_mem_stat {
    uint64_t current, peak, allocated, freed;
} cdp_mem_stat;

/* Arrays: [0] all, [1] small requests (up to 1 MiB), [2] large ones. allocation: in callers'
   hands; active: also frees that wait for streams; inactive_split: free parts of segments that
   are partly in use, which cannot be given back. */
typedef struct cdp_mem_stats { /* 29 of cdp_mem_stat come first */
    cdp_mem_stat allocation[3], segment[3], active[3], inactive_split[3];
    cdp_mem_stat allocated_bytes[3], reserved_bytes[3], active_bytes[3], inactive_split_bytes[3];
    cdp_mem_stat requested_bytes[3];
    cdp_mem_stat oversize_allocations, oversize_segments;
    uint64_t alloc_retries, ooms, oom_rejections, sync_all_streams, device_allocs, device_frees;
    uint64_t events_lost; /* overwritten in the ring, since recording began */
    uint64_t stacks_lost; /* not stored: the table was full                 */
    uint64_t labels_lost; /* not stored: memory for labels ran out          */
} cdp_mem_stats;
/* All zero when `mem` is NULL. */
CDP_API cdp_mem_stats cdp_mem_stats_of(const cdp_mem *mem);

/* Set peaks to the current figures, and sums of what was allocated and freed to 0. */
CDP_API void cdp_mem_reset(cdp_mem *mem, bool peak, bool accumulated);

#endif /* CDP_SRC_MEM_STATISTICS_API_H */
