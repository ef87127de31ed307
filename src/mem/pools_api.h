/* mem/pools_api.h - private pools */
#ifndef CDP_SRC_MEM_POOLS_API_H
#define CDP_SRC_MEM_POOLS_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../os/os_api.h"
#include "source_api.h"
#include "allocator_api.h"

/* A pool with segments of its own: for a graph, whose replays need the same addresses, or for
   memory from another source. */
typedef struct cdp_mem_pool_desc {
    const char *label; /* of its segments; copied                                           */
    /* copied, and destroyed with the pool (default: the allocator's) */
    const cdp_mem_source *source;
    /* One segment of this size now, and never another: offsets follow from the order of calls
       alone, so equal calls give equal offsets on all ranks. Frees wait for no events. Over a
       source of cdp_nccl_symmetric_allocator() it is a pool in a window of NCCL: then all ranks
       create it, and destroy it, together; cdp_mem_pool_create() waits for them, under the lock
       of the allocator, as cdp_nccl_alloc_symmetric() says, and has its errors too. */
    uint64_t fixed_bytes;
    bool no_split;   /* blocks are not split                                              */
    bool use_on_oom; /* the ordinary pool may use its free blocks before it fails         */
    /* Only cdp_mem_pool_trim() and cdp_mem_pool_destroy() give idle segments back. Without it
       cdp_mem_trim() does, too, and any request of the allocator before it fails. A pool that
       served a request while a graph was captured keeps its segments in any case: replays use
       their addresses. */
    bool keep;
} cdp_mem_pool_desc;

/* Make a pool. Errors: INVALID, NOMEM, IO, and those of the source. Takes over the source also when
   it fails. */
CDP_MUST_CHECK CDP_API cdp_status cdp_mem_pool_create(
    cdp_mem *mem, const cdp_mem_pool_desc *desc, cdp_mem_pool **out);

/* Give its segments back and destroy it. Errors: STATE (blocks are in use or pending; nothing
   changed), IO. NULL is allowed. */
CDP_MUST_CHECK CDP_API cdp_status cdp_mem_pool_destroy(cdp_mem_pool *pool);

/* Complete the frees whose events have passed, and give back the segments of the pool without any
   block in use, also those that it keeps: no graph that was captured with them may run again.
   A fixed pool keeps its segment. Returns the bytes given back; 0 for NULL. */
CDP_API uint64_t cdp_mem_pool_trim(cdp_mem_pool *pool);

/* A hash of all sizes and offsets of its calls so far: compare it between ranks. */
CDP_API uint64_t cdp_mem_pool_hash(const cdp_mem_pool *pool);

/* Allocator callbacks over `mem` and `pool` (NULL: the ordinary one), for cdp_nccl_desc,
   cdp_ddp_desc and others; labels of the caller are recorded. `pool`, or `mem`, must outlive
   their use. */
CDP_API cdp_allocator cdp_mem_allocator(cdp_mem *mem);
CDP_API cdp_allocator cdp_mem_pool_allocator(cdp_mem_pool *pool);

#endif /* CDP_SRC_MEM_POOLS_API_H */
