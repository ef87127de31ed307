/* mem/source_api.h - where memory comes from */
#ifndef CDP_SRC_MEM_SOURCE_API_H
#define CDP_SRC_MEM_SOURCE_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../os/os_api.h"

/* Where segments come from: CUDA, the host, another allocator, or functions of the caller. The
   allocator calls these functions under its lock, so they must not call it. A failing function
   sets its sentence by cdp_error_set() and returns the status. A stream is what the caller calls
   one; NULL is the default. */
typedef struct cdp_mem_source {
    void *user;       /* first argument of every function                                     */
    const char *name; /* in texts: "cuda:0"; must outlive the allocator                       */
    uint32_t device;  /* ordinal in snapshots, up to 1023                                     */
    /* A segment of `bytes`, aligned to 512. On NOMEM the allocator gives cached
       segments back and calls again. */
    cdp_status (*reserve)(void *user, uint64_t bytes, void **out);
    /* Give a segment back; nothing uses it any more. */
    cdp_status (*release)(void *user, void *at, uint64_t bytes);
    /* Optional: what the device has. */
    cdp_status (*info)(void *user, uint64_t *free_bytes, uint64_t *total_bytes);
    /* Events: all four or none. Without them a free is complete at once. */
    cdp_status (*event_create)(void *user, void **event);
    void (*event_destroy)(void *user, void *event);
    cdp_status (*event_record)(void *user, void *event, void *stream);
    cdp_status (*event_query)(void *user, void *event); /* OK: passed; PENDING; or an error   */
    /* Optional: whether a graph is being captured from this stream. */
    bool (*capturing)(void *user, void *stream);
    /* Optional, all five or none: segments that grow (desc.expandable). A range of addresses gets
       memory in its pages: every `at` of map and unmap lies a multiple of page_bytes after the
       start of its range, and `bytes` is a multiple, too. page_bytes: 4096 or more. */
    uint64_t page_bytes;
    /* Reserve addresses, aligned to 512, without memory: `least` bytes or more, a multiple of
       page_bytes; *bytes says how many. As many as the device has bytes is a good size. */
    cdp_status (*range_reserve)(void *user, uint64_t least, void **at, uint64_t *bytes);
    void (*range_release)(
        void *user, void *at, uint64_t bytes); /* nothing is mapped in it        */
    /* Give these pages memory. If this fails, none of them has any. NOMEM: as for reserve. */
    cdp_status (*map)(void *user, void *at, uint64_t bytes);
    /* Take their memory away, after the work that `stream` holds: only that may still use it. */
    cdp_status (*unmap)(void *user, void *at, uint64_t bytes, void *stream);
    /* Optional: called once, by cdp_mem_destroy or cdp_mem_pool_destroy. */
    void (*destroy)(void *user);
} cdp_mem_source;

/* The CUDA device that is current on this thread. `cudart`: file of the CUDA runtime to load,
   NULL for the usual names. Pages are of the driver's smallest size, usually 2 MiB, and for this
   device alone: not for peers, not for cudaIpcGetMemHandle. Errors: UNSUPPORTED (no such library,
   or no device; the text names what was looked for), IO, NOMEM. Pass the result to one allocator
   or pool, which destroys it. */
CDP_MUST_CHECK CDP_API cdp_status cdp_mem_source_cuda(const char *cudart, cdp_mem_source *out);

/* Host memory from os->alloc (`os` NULL: cdp_os_default()), at most `limit_bytes` at a time (0:
   no limit). Pages, of 2 MiB, come from the system itself (mmap, VirtualAlloc; not with
   CDP_NO_OS). It has no streams: a free is complete at once. Errors: NOMEM. Pass it to one
   allocator or pool. */
CDP_MUST_CHECK CDP_API cdp_status cdp_mem_source_host(
    const cdp_os *os, uint64_t limit_bytes, cdp_mem_source *out);

/* Segments from another allocator (of cdp_nccl_allocator(), say), which must return memory
   aligned to 512. If it returns NULL, the error that it has set is the error of the request, else
   NOMEM. `from` is copied; `os` NULL: cdp_os_default(). Errors: INVALID, NOMEM. Pass it to one
   allocator or pool. */
CDP_MUST_CHECK CDP_API cdp_status cdp_mem_source_of(
    const cdp_allocator *from, const cdp_os *os, cdp_mem_source *out);

#endif /* CDP_SRC_MEM_SOURCE_API_H */
