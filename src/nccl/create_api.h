/* nccl/create_api.h - what programs call */
#ifndef CDP_SRC_NCCL_CREATE_API_H
#define CDP_SRC_NCCL_CREATE_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../os/os_api.h"
#include "../group/group_api.h"
#include "../ddp/hooks_api.h"
#include "desc_api.h"

/* Give `group` a communicator on the device that is current on this thread. Collective over the
   group; `desc` NULL: the defaults. If it fails on any rank, all ranks get the same status, the
   text names that rank and its reason, and the group stays usable for host memory. Errors:
   UNSUPPORTED (no library: names what was looked for; too old; no `grow` or `from` in this
   version), INVALID (no GPU, two ranks on one GPU where NCCL refuses that, desc), MISMATCH
   (versions of NCCL or descs differ), TIMEOUT, IO (CUDA's or NCCL's words), NOMEM, STATE (the group
   has a backend), or the group's failure. It goes with the group. */
CDP_MUST_CHECK CDP_API cdp_status cdp_nccl_attach(cdp_group *group, const cdp_nccl_desc *desc);

/* From now on the caller's stream of this group is `stream`, a cudaStream_t of the group's device:
   operations start after it, and waits hold it. This holds for all threads that use the group.
   Without a communicator nothing happens. */
CDP_API void cdp_nccl_set_stream(cdp_group *group, void *stream);

/* The group's own stream (cudaStream_t), its ncclComm_t, and the NCCL that was loaded (22809 is
   2.28.9); NULL or 0 when there is none, or not any more. For kernels of hooks, and calls of
   NCCL in the group's order. They belong to the group. */
CDP_API void *cdp_nccl_stream(const cdp_group *group);
CDP_API void *cdp_nccl_comm(const cdp_group *group);
CDP_API uint32_t cdp_nccl_version(const cdp_group *group);

/* Allocates device memory for operations of NCCL: from ncclMemAlloc and registered, if this version
   of NCCL has that; else from cudaMalloc. Not zeroed. Give it back with cdp_nccl_free() before the
   group is destroyed. NCCL wants the memory of one operation registered on all ranks or on none: so
   use it, and its parts, alike on all ranks. Freeing waits until the caller's stream, which must
   still exist, and the group's are empty, and for a communicator that is being aborted; work of
   further streams: wait for it before. Memory is not released if that work hangs for more than
   twice timeout_ms. Where the group was destroyed, which frees what is left, and for memory that is
   none of the group's or was freed, cdp_nccl_free() does nothing. Inside a capture nothing can be
   allocated (STATE), and memory freed there stays until the group is destroyed. Errors: INVALID,
   NOMEM, IO, STATE. */
CDP_MUST_CHECK CDP_API cdp_status cdp_nccl_alloc(cdp_group *group, uint64_t bytes, void **out);
CDP_API void cdp_nccl_free(cdp_group *group, void *data);

/* From now on cdp_nccl_alloc, buckets of DDP and scratch of hooks take memory from `memory`, which
   is copied; it may be that of cdp_mem_allocator or cdp_mem_pool_allocator of cdp_mem.h. Each
   allocation has a label that says what it is for ("ddp bucket 3", "hook scratch", "nccl"). NULL:
   from NCCL and CUDA again. Such memory is not registered piece by piece. For registered memory
   make a fixed pool over cdp_nccl_allocator() or cdp_nccl_symmetric_allocator(), on all ranks
   alike. Memory is released to where it was allocated: free all of it before `memory` ends.
   Errors: INVALID. */
CDP_MUST_CHECK CDP_API cdp_status cdp_nccl_set_memory(
    cdp_group *group, const cdp_allocator *memory);

/* The group's own memory, as cdp_nccl_alloc returns it without cdp_nccl_set_memory: registered, and
   to be asked for alike on all ranks. For cdp_mem_source_of(). All of it must be freed before the
   group is destroyed. */
CDP_API cdp_allocator cdp_nccl_allocator(cdp_group *group);

/* Symmetric device memory: `bytes` from ncclMemAlloc, which all ranks register together as a window
   (ncclCommWindowRegister with NCCL_WIN_COLL_SYMMETRIC, NCCL 2.27 and later). NCCL may then use its
   kernels for symmetric memory in operations of this group whose input and result lie in windows.
   NCCL asks for them at the same offset from the beginning of the same window on all ranks, and
   neither NCCL nor this library checks that: equal calls to a fixed pool of cdp_mem.h give equal
   offsets, and cdp_mem_pool_hash() compares them. Not zeroed; *out is NULL on failure.

   Collective: all ranks of the group call it in the same order among its operations, with the same
   `bytes`, while they hold the same symmetric memory. So free it alike on all ranks before the next
   call; between two calls the order of frees does not matter. Ranks compare all of that over the
   links before NCCL is called, and after it whether all have a window, so every rank gets the same
   status, and no rank is left inside NCCL because another one has no memory. The call blocks the
   host until all ranks have registered: timeout_ms for the first comparison, as for any operation,
   then timeout_ms for NCCL's call, and twice timeout_ms and 5 s for the second comparison, so
   that the rank that hangs inside NCCL is the one that reports it.

   Where NCCL has no ncclCommWindowRegister, or gives no window because the GPUs cannot reach each
   other's memory, all ranks register with ncclCommRegister in place of it, if there is one; rank 0
   logs a warning the first time, and cdp_nccl_window() returns NULL.

   Errors, on all ranks alike, the group stays whole: MISMATCH (bytes, or what ranks hold, differ;
   names two ranks; or some ranks have a window and others none), NOMEM, STATE (a rank is inside a
   capture: allocate before), INVALID (no communicator, no_register, another device current); the
   text names the rank that cannot. Errors that fail the group: TIMEOUT (a rank did not call, which
   is named; or NCCL's call did not end, which the text names: NCCL does not tell which rank is
   missing), MISMATCH (a rank called another operation), IO (NCCL's words), ABORTED, NOMEM (no host
   memory for the comparison).

   Free it with cdp_nccl_free() on each rank, when operations on it are done on that rank; the
   memory is deregistered then. Memory that is freed inside a capture, or not freed at all, is
   released with the group. A group made from this one (cdp_group_split, desc.from) does not have
   the windows. */
CDP_MUST_CHECK CDP_API cdp_status cdp_nccl_alloc_symmetric(
    cdp_group *group, uint64_t bytes, void **out);

/* cdp_nccl_alloc_symmetric() as an allocator, for cdp_mem_source_of(): each of its allocations is
   that collective call. So use it for a pool with fixed_bytes, which allocates once, when it is
   created: create that pool on all ranks alike, and give it to cdp_nccl_set_memory(). A pool that
   grows would call it at different moments on different ranks. All of it must be freed before the
   group is destroyed. */
CDP_API cdp_allocator cdp_nccl_symmetric_allocator(cdp_group *group);

/* The window (ncclWindow_t) that `data` lies in; NULL: none. It belongs to the group, and ends when
   its memory is freed. */
CDP_API void *cdp_nccl_window(const cdp_group *group, const void *data);

#ifndef CDP_NO_HOOKS
/* A hook for cdp_ddp_set_hook() where parameters are in device memory; the desc, what it does
   and what it saves are those of cdp_hook_create(), so that what one of them saved the other one
   loads. Its kernels run on the group's stream, and all buckets use the same memory one after
   the other: the largest bucket counts, but error feedback has one for each. Everything is
   compiled and allocated within the first steps: do those before a capture (else STATE).
   error_norm, save and load block the host. Errors: INVALID, UNSUPPORTED (POWERSGD; a hook
   within a hook; no NVRTC), NOMEM, IO. */
CDP_MUST_CHECK CDP_API cdp_status cdp_nccl_hook_create(
    cdp_group *group, const cdp_hook_desc *desc, cdp_hook *out);
#endif

#endif /* CDP_SRC_NCCL_CREATE_API_H */
