/* mem/allocator_api.h - allocating and freeing */
#ifndef CDP_SRC_MEM_ALLOCATOR_API_H
#define CDP_SRC_MEM_ALLOCATOR_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "desc_api.h"

typedef struct cdp_mem cdp_mem;
typedef struct cdp_mem_pool cdp_mem_pool;
typedef struct cdp_mem_shot cdp_mem_shot;

/* Make an allocator. Takes over the source also when it fails. Errors: INVALID (desc),
   UNSUPPORTED (default source without CUDA; backtrace where the C library has none), NOMEM. */
CDP_MUST_CHECK CDP_API cdp_status cdp_mem_create(const cdp_mem_desc *desc, cdp_mem **out);

/* Wait at most timeout_ms for pending frees, give all segments back that have no live block,
   destroy the pools that are left, the source and the allocator. Returns the bytes of blocks that
   were still allocated: each is named in the log, and their segments are not given back. In a child
   of fork() it does nothing. NULL is allowed. A second call does nothing but set
   cdp_last_error(); other calls of what was destroyed are STATE, or do nothing. */
CDP_API uint64_t cdp_mem_destroy(cdp_mem *mem);

/* The place of a call, for stacks without unwinding. Texts are copied when they are new. */
typedef struct cdp_mem_site {
    const char *file;
    uint32_t line;
    const char *function;
} cdp_mem_site;
#ifndef __cplusplus
#define CDP_MEM_HERE (&(const cdp_mem_site){__FILE__, (uint32_t)__LINE__, __func__})
#endif

/* `bytes` of memory for work in `stream`, aligned to 512, not zeroed. 0 bytes: *out is NULL.
   Errors: NOMEM (after all retries; the text says what was asked, what is free, cached and
   fragmented, and which label or stack holds the most), IO, TIMEOUT, STATE (the stream is being
   captured and this is no private pool), INVALID. */
CDP_MUST_CHECK CDP_API cdp_status cdp_mem_alloc(
    cdp_mem *mem, uint64_t bytes, void *stream, void **out);

/* The same from a private pool (NULL: the ordinary one), by a call at `site` (NULL: not said). */
CDP_MUST_CHECK CDP_API cdp_status cdp_mem_alloc_at(cdp_mem *mem, cdp_mem_pool *pool, uint64_t bytes,
    void *stream, const cdp_mem_site *site, void **out);

/* Free a block in the order of the stream it was allocated for, and after the work that recorded
   streams hold now. NULL is allowed. Errors: INVALID (not a block of this allocator, or freed
   already), IO (an event could not be recorded, because a stream is gone, say): the block stays
   allocated. */
CDP_MUST_CHECK CDP_API cdp_status cdp_mem_free(cdp_mem *mem, void *data);

/* The block is used in `stream`, too: it is not reused before the work that the stream holds at
   the time of the free is over. Ignored for the block's own stream, for fixed pools, and without
   events. Errors: INVALID, NOMEM. */
CDP_MUST_CHECK CDP_API cdp_status cdp_mem_record_stream(cdp_mem *mem, void *data, void *stream);

/* `stream` is about to be destroyed, and all its work is over: forget it. Blocks recorded on it
   no longer wait for it, and free segments that served it are given back. Errors: INVALID (a
   block allocated for it is still in use; nothing changed), IO, STATE. */
CDP_MUST_CHECK CDP_API cdp_status cdp_mem_forget_stream(cdp_mem *mem, void *stream);

/* Bytes that the caller may use at `data`; 0 when it is no live block of `mem`. */
CDP_API uint64_t cdp_mem_usable(const cdp_mem *mem, const void *data);

/* Complete the frees whose events have passed, and give back all segments without any block in use;
   of segments that grow, all pages without one. Returns the bytes given back. Of private pools
   too, but not of those that are fixed, that are made with `keep`, or that served a request while a
   graph was captured: see cdp_mem_pool_trim. */
CDP_API uint64_t cdp_mem_trim(cdp_mem *mem);

/* Never hold more than `bytes` from now on (0: no limit). What is held already stays; see
   cdp_mem_trim. */
CDP_API void cdp_mem_set_limit(cdp_mem *mem, uint64_t bytes);

/* Called on the thread whose request failed, without the lock, before the error returns. True:
   something was freed, try once more. `func` may use the allocator and take a snapshot. NULL:
   none. */
typedef struct cdp_mem_oom {
    uint32_t device;
    uint64_t bytes, held_bytes, limit_bytes,
        free_bytes; /* free_bytes: of the device, 0: not known */
} cdp_mem_oom;
typedef bool (*cdp_mem_oom_func)(void *user, cdp_mem *mem, const cdp_mem_oom *oom);
/* One function at a time; a second call replaces the first. */
CDP_API void cdp_mem_on_oom(cdp_mem *mem, cdp_mem_oom_func func, void *user);

/* Call `func` for each segment: now for those that exist, later for each new one, and before one is
   given back. Of segments that grow it hears of pages: SEGMENT_MAP and SEGMENT_UNMAP. Under the
   lock: `func` must not call this header, CUDA or NCCL. Errors: INVALID (8 watchers exist
   already). cdp_mem_unwatch removes those with this `user`. */
typedef void (*cdp_mem_watch_func)(
    void *user, cdp_mem_action action, void *at, uint64_t bytes, cdp_mem_pool *pool);
/* `user` also names the watcher for cdp_mem_unwatch. */
CDP_MUST_CHECK CDP_API cdp_status cdp_mem_watch(cdp_mem *mem, cdp_mem_watch_func func, void *user);
CDP_API void cdp_mem_unwatch(cdp_mem *mem, void *user);

#endif /* CDP_SRC_MEM_ALLOCATOR_API_H */
