/* SPDX-License-Identifier: MIT-0 OR Unlicense
   Both texts are at the end of cdp.h. */
/*  cdp_nccl.h - process groups on NVIDIA GPUs, through NCCL - v0.3.0 - MIT-0 or Unlicense

    WHAT IT IS
        Gives a group of cdp.h a NCCL communicator. From then on the ordinary calls (cdp_allreduce
        and the others, messages, cdp_ddp_create) look where their pointers point to: device
        memory travels through NCCL, in the order of CUDA streams; the memory of the processor
        goes over the group's own links as before. One group, one kind of error. No nvcc is
        needed, and no NVIDIA header: NCCL, the CUDA runtime and NVRTC are loaded when the program
        runs.

    DO THIS
        #define CDP_IMPLEMENTATION      in exactly one C or C++ file, before
        #include "cdp_tcp.h"            or another way to connect ranks, and
        #include "cdp_nccl.h"           which brings cdp.h along

    QUICK START
        #define CDP_IMPLEMENTATION
        #include "cdp_tcp.h"
        #include "cdp_nccl.h"
        #include <cuda_runtime_api.h>
        #include <stdio.h>
        int main(void) {
            cdp_group *world;
            cdp_launch place;
            float *x, one = 1;
            if (cdp_init_from_env(NULL, &world) != CDP_OK) return cdp_print_error(stderr);
            if (cdp_launch_read(NULL, NULL, &place) != CDP_OK) return cdp_print_error(stderr);
            cudaSetDevice((int)place.local_rank); // one GPU per rank
            if (cdp_nccl_attach(world, NULL) != CDP_OK) return cdp_print_error(stderr);
            cudaMalloc((void **)&x, sizeof *x);
            cudaMemcpy(x, &one, sizeof one, cudaMemcpyDefault);
            if (cdp_allreduce(world, NULL, x, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM) != CDP_OK)
                return cdp_print_error(stderr);
            cudaMemcpy(&one, x, sizeof one, cudaMemcpyDefault); // after it, in the same stream
            printf("rank %u of %u: %g\n", cdp_rank(world), cdp_size(world), one);
            cdp_group_destroy(world);
            return 0;
        }
        cuda=/usr/local/cuda
        gcc -O2 ones.c -o ones -pthread -I$cuda/include -L$cuda/lib64 -lcudart
        cdprun -n 4 ./ones

    CONTENTS
        Each part is marked >>folder/name and comes from src/folder/name.h. `grep '>>'` lists the
        parts in their order, which is that of the #include lines of src/cdp_nccl.h. A part uses
        what comes before it, never what comes after it. Names in _api hold what programs call.

    API BY TASK
        I want to...                           call
        use GPUs                               cdp_nccl_attach(group, NULL), then all of cdp.h
        say which stream my own work is in     desc.stream, cdp_nccl_set_stream
        let my stream wait for an operation    cdp_work_wait: the host goes on
        let the host wait for it               cdp_work_wait_for
        several operations or messages as one  cdp_start_all, cdp_batch
        smaller groups                         cdp_group_split; or cdp_group_new, then
                                               cdp_nccl_attach on the new group
        train                                  cdp_ddp_create with device pointers
        send fewer bytes                       cdp_nccl_hook_create, cdp_ddp_set_hook
        memory that NCCL reaches directly      cdp_nccl_alloc
        the same, in a window of all ranks     cdp_nccl_alloc_symmetric
        go on without ranks that died          desc.keep, then cdp_group_new of the others and
                                               desc.from
        take in new ranks                      desc.from with desc.grow
        call NCCL myself                       cdp_nccl_comm, cdp_nccl_stream

    STREAMS
        The group has a stream of its own. An operation starts there after everything that the
        caller's stream (desc.stream) holds at the call; the call does not wait until it runs. But
        the first operation of a kind, and the first message between two ranks, block the host
        until the other ranks call it as well, because NCCL connects ranks then. So messages that
        cross must be one cdp_sendrecv() or cdp_batch(): two ranks that each send, and then
        receive, wait for each other, and time out.
        cdp_work_wait(work), and the calls without _async, make the caller's stream wait for the
        operation, not the host. cdp_work_wait_for(work, ms) blocks the host until the operation
        is done; it returns CDP_PENDING after `ms`. cdp_work_test does not block. cdp_barrier
        synchronizes the hosts. cdp_group_split, and attaching with `from`, block the host until
        no operation is outstanding, because NCCL requires that.

    CUDA GRAPHS
        Start and cdp_work_wait() between cudaStreamBeginCapture on the caller's stream and the
        end of the capture; the wait joins the group's stream to it. An operation is captured by
        all ranks or by none, and all of them launch the graph. Calls are compared when they are
        captured, not when the graph runs; a running graph has no deadlines. Destroy graphs
        (cudaGraphExecDestroy) before the group: NCCL may wait for them when it ends a
        communicator; then cdp_group_destroy() gives up after 10 s, and a stream, memory and a
        thread remain. A work of a capture cannot be waited for outside it, nor one from outside
        in it: STATE. No thread of this library calls CUDA during a capture: none polls events,
        and the watchdog reads host memory only.

    LIFETIMES
        Memory belongs to an operation from its start on. When may it be read, written or freed?
        after cdp_work_wait()               in the order of the caller's stream (kernels, copies,
                                            cudaFreeAsync)
        after OK of cdp_work_wait_for       at once, also after OK of cdp_work_test
        after a start that failed           at once: it returns when NCCL and the group's stream
                                            have finished with the memory, or after 5 s each if
                                            the GPU does not finish; then see the next row
        after a wait that failed, an        when the group's stream is empty:
        abort, or another failure of        cudaStreamSynchronize(cdp_nccl_stream(group)), which
        the group                           returns because the communicator is stopped; cudaFree
                                            waits for that itself
        in a captured graph                 when the graph is destroyed and its last run is over
        cdp_nccl_free, cdp_ddp_destroy and the end of a hook wait for that themselves. Destroy in
        this order: graphs; ddps and hooks, which use the caller's stream; the group, which no
        longer does; that stream.

    CONFIGURATION
        CDP_NCCL_LINK   off   compile against cuda_runtime_api.h, nccl.h and nvrtc.h, and link
                              -lnccl -lcudart -lnvrtc, in place of loading them; the compiler then
                              compares the declarations here with NVIDIA's. The driver's library
                              is still loaded.
        Macros of cdp.h otherwise. Environment variables are read by NCCL, not here. Before glibc
        2.34: link -ldl.

    THREADS
        As for any group: all ranks start the operations of one group in one order. The calling
        thread's current device must be the group's. Where several groups use one device, NCCL
        wants one thread at a time to start operations on it. cdp_group_abort: any thread. One
        thread for each attached group sleeps until the group fails; it stops the GPU.

    MEMORY
        NCCL's own on the device, for each communicator; 130 CUDA events, and for hooks what they
        say.

    ERRORS
        cdp_nccl_attach: see there. At a call: INVALID (memory of another device, another device
        current, input and result in different memory), UNSUPPORTED (NCCL has no such reduction);
        nothing was started. Later, of the group, on every rank: MISMATCH (ranks called different
        things), TIMEOUT (of a rank that did not call, which is named; or of the GPU), PEER_LOST
        (a rank died: seen over the links, or NCCL's ncclRemoteError), ABORTED, IO (what CUDA or
        NCCL said). The communicator is aborted then, so streams that waited go on, with memory in
        any state. NOMEM: of the device.

    LIMITS
        NCCL 2.18 and later, CUDA 11.8 to 13. Integers of 16 bits and the operations on bits are
        not reduced by NCCL, floats of 8 bits from NCCL 2.24 and compute capability 9.0 on all
        ranks. Receives from any rank, cdp_work_then, cdp_start_after, cdp_work_cancel and
        functions on bytes of any length: host memory alone. DDP: sparse parameters,
        the hooks POWERSGD, POWERSGD_BATCHED and SIGN, and those of cdp_hook_create, likewise;
        times of single buckets are not measured. Messages between two ranks meet in the order in
        which they are started: their tag must be 0 (else UNSUPPORTED), and nobody compares how long
        they are.

    License: MIT-0 or Unlicense, as you like; see the end of this file. */

/* Joined from src/cdp_nccl.h and what it includes: change that, then `make headers`. */
#if defined(CDP_NCCL_IMPLEMENTATION) && !defined(CDP_CORE_IMPLEMENTATION)
#define CDP_CORE_IMPLEMENTATION
#endif
#if !defined(CDP_INCLUDED) \
    || defined(CDP_IMPLEMENTATION) || defined(CDP_CORE_IMPLEMENTATION) \
    || defined(CDP_NCCL_IMPLEMENTATION)
#include "cdp.h"
#endif

#ifndef CDP_NCCL_INCLUDED
#define CDP_NCCL_INCLUDED

#define CDP_NCCL_VERSION 300 /* major * 10000 + minor * 100 + patch */
#if CDP_NCCL_VERSION != CDP_VERSION
#error "cdp_nccl.h and cdp.h are of different versions: copy all headers from the same release"
#endif
#ifdef CDP_NO_BACKEND
#error "cdp_nccl.h is a backend of groups, which CDP_NO_BACKEND leaves out"
#endif
#ifdef CDP_FEW_DTYPES
#error "cdp_nccl.h converts between all dtypes: do not define CDP_FEW_DTYPES"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- >>nccl/desc_api: which device, stream and limits ---------------------------------------- */

/* Those marked * must be equal on all ranks; that is checked. */
typedef struct cdp_nccl_desc {
    /* a cudaStream_t: where the caller's own work is (default: NULL, the legacy default stream) */
    void *stream;
    /* for making the communicator (default: the group's timeout_ms) */
    uint32_t init_timeout_ms;
    uint32_t
        /* how often a thread checks for operations past their deadline and for errors of NCCL, even
           if no caller waits, in ms; costs a call of a host function behind each operation
           (default: 0, no checks) */
        watchdog_ms;
    /* * ranks do not compare their calls over the links */
    bool no_check;
    /* * ranks compare each call before the GPU gets it, so that it never hangs in a mismatch;
       slow */
    bool check_first;
    /* * do not watch over the links whether a rank has died while GPUs work */
    bool no_peer_watch;
    /* cdp_work_wait() blocks the host until the operation is done or its deadline has passed */
    bool blocking_wait;
    /* * memory of cdp_nccl_alloc and of gradients is not registered with the communicator */
    bool no_register;
    bool
        /* * when the group fails, revoke the communicator, and keep it for `from`; no
           ncclCommRevoke: UNSUPPORTED */
        keep;
    /* * `from` is a part of this group, and others are new */
    bool grow;
    cdp_group *
        /* make the communicator from the one of this group, which may have failed (then:
           `keep`). Without `grow`: its ranks, in their order, without those that are not here.
           With it: its ranks come first in this group in the same order, and new ranks leave
           this NULL. When NCCL fails on the way, so does that group */
        from;
    /* files to load in place of the usual names; what the first attach of the process loaded */
    const char *cudart;
    /* serves all later ones */
    const char *nccl;
    const char *nvrtc;
    const char *driver;
} cdp_nccl_desc;

/* ---- >>nccl/create_api: what programs call --------------------------------------------------- */

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

#ifdef __cplusplus
} /* extern "C" */
#endif
/* ---- >>nccl/cxx_api: descs by reference in C++ ----------------------------------------------- */

#ifdef __cplusplus
extern "C++" { /* also where a program includes the header in extern "C" */
inline cdp_status cdp_nccl_attach(cdp_group *group, const cdp_nccl_desc &desc) {
    return cdp_nccl_attach(group, &desc);
}
#ifndef CDP_NO_HOOKS
inline cdp_status cdp_nccl_hook_create(cdp_group *group, const cdp_hook_desc &desc, cdp_hook *out) {
    return cdp_nccl_hook_create(group, &desc, out);
}
#endif
} /* extern "C++" */
#endif

#endif /* CDP_NCCL_INCLUDED */

#if (defined(CDP_IMPLEMENTATION) || defined(CDP_NCCL_IMPLEMENTATION)) \
    && !defined(CDP_NCCL_IMPL_INCLUDED)
#define CDP_NCCL_IMPL_INCLUDED
#undef CDP__HERE
#define CDP__HERE CDP__FILE_NCCL

/* ---- >>nccl/load: loads the libraries and looks up their functions --------------------------- */

/* Knows: names and types of functions of CUDA, NCCL and NVRTC. Promises: a missing library or
   function is an error that names it. */

#include <limits.h>
#ifdef CDP_NCCL_LINK
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <nvrtc.h>
#endif

/* Types of these libraries: opaque here; with CDP_NCCL_LINK theirs, so that the compiler checks
   the table below. */
#ifdef CDP_NCCL_LINK
typedef cudaError_t cdp__cu_error;
typedef cudaStream_t cdp__cu_stream;
typedef cudaEvent_t cdp__cu_event;
typedef enum cudaDeviceAttr cdp__cu_attr;
typedef enum cudaMemcpyKind cdp__cu_copy;
typedef enum cudaStreamCaptureStatus cdp__cu_capture;
typedef enum cudaStreamCaptureMode cdp__cu_mode;
typedef struct cudaPointerAttributes cdp__cu_pointer;
typedef cudaHostFn_t cdp__cu_host_fn;
typedef ncclResult_t cdp__nc_result;
typedef ncclComm_t cdp__nc_comm;
typedef ncclUniqueId cdp__nc_id;
typedef ncclConfig_t cdp__nc_config;
typedef ncclDataType_t cdp__nc_type;
typedef ncclRedOp_t cdp__nc_op;
typedef ncclScalarResidence_t cdp__nc_residence;
#if NCCL_VERSION_CODE >= 22700
typedef ncclWindow_t cdp__nc_window;
#else
typedef void *cdp__nc_window;
#endif
typedef nvrtcResult cdp__rtc_result;
typedef nvrtcProgram cdp__rtc_program;
#else
typedef int cdp__cu_error;
typedef struct CUstream_st *cdp__cu_stream;
typedef struct CUevent_st *cdp__cu_event;
typedef int cdp__cu_attr;
typedef int cdp__cu_copy;
typedef int cdp__cu_capture;
typedef int cdp__cu_mode;
typedef struct cdp__cu_pointer {
    int type, device;
    void *device_pointer, *host_pointer;
    long reserved[8]; /* empty before CUDA 13 */
} cdp__cu_pointer;
typedef void (*cdp__cu_host_fn)(void *user);
typedef int cdp__nc_result;
typedef struct ncclComm *cdp__nc_comm;
typedef struct cdp__nc_id {
    char bytes[128];
} cdp__nc_id;
typedef struct cdp__nc_config cdp__nc_config;
typedef int cdp__nc_type;
typedef int cdp__nc_op;
typedef int cdp__nc_residence;
typedef void *cdp__nc_window;
typedef int cdp__rtc_result;
typedef struct _nvrtcProgram *cdp__rtc_program;
#endif

/* A configuration as NCCL 2.18 defines it; later versions accept the shorter one and fill in the
   rest. */
typedef struct cdp__nc_settings {
    size_t size;
    unsigned magic, version;
    int blocking, cga_cluster, min_ctas, max_ctas;
    const char *net;
    int split_share;
} cdp__nc_settings;

enum {
    CDP__CU_NOT_READY = 600,
    CDP__CU_NOMEM = 2,
    CDP__CU_NO_DEVICE = 100,
    CDP__CU_NO_DRIVER = 35,
    CDP__CU_NON_BLOCKING = 1,
    CDP__CU_NO_TIMING = 2,
    CDP__CU_DEVICE_MEMORY = 2,
    CDP__CU_MANAGED_MEMORY = 3,
    CDP__CU_COPY_ANY = 4,
    CDP__CU_RELAXED = 2,
    CDP__CU_MAJOR = 75,
    CDP__CU_MINOR = 76,
    CDP__NC_CUDA = 1,
    CDP__NC_INVALID = 4,
    CDP__NC_USAGE = 5,
    CDP__NC_REMOTE = 6,
    CDP__NC_IN_PROGRESS = 7,
    CDP__NC_TIMEOUT = 8,
    CDP__NC_SUM = 0,
    CDP__NC_PRODUCT = 1,
    CDP__NC_MAX = 2,
    CDP__NC_MIN = 3,
    CDP__NC_AVG = 4,
    CDP__NC_HOST_SCALAR = 1,
    CDP__NC_SHRINK_ABORT = 1,
    CDP__NC_WINDOW_SYMMETRIC = 1
};
#ifdef CDP_NCCL_LINK
typedef char cdp__nccl_numbers_agree[(int)cudaErrorNotReady == CDP__CU_NOT_READY
            && (int)cudaErrorMemoryAllocation == CDP__CU_NOMEM
            && (int)cudaErrorNoDevice == CDP__CU_NO_DEVICE
            && (int)cudaErrorInsufficientDriver == CDP__CU_NO_DRIVER
            && cudaStreamNonBlocking == CDP__CU_NON_BLOCKING
            && cudaEventDisableTiming == CDP__CU_NO_TIMING
            && (int)cudaMemoryTypeDevice == CDP__CU_DEVICE_MEMORY
            && (int)cudaMemoryTypeManaged == CDP__CU_MANAGED_MEMORY
            && (int)cudaMemcpyDefault == CDP__CU_COPY_ANY
            && (int)cudaStreamCaptureModeRelaxed == CDP__CU_RELAXED
            && (int)cudaDevAttrComputeCapabilityMajor == CDP__CU_MAJOR
            && (int)cudaDevAttrComputeCapabilityMinor == CDP__CU_MINOR
            && (int)ncclUnhandledCudaError == CDP__NC_CUDA
            && (int)ncclInvalidArgument == CDP__NC_INVALID && (int)ncclInvalidUsage == CDP__NC_USAGE
            && (int)ncclRemoteError == CDP__NC_REMOTE && (int)ncclInProgress == CDP__NC_IN_PROGRESS
            && (int)ncclSum == CDP__NC_SUM && (int)ncclProd == CDP__NC_PRODUCT
            && (int)ncclMax == CDP__NC_MAX && (int)ncclMin == CDP__NC_MIN
            && (int)ncclAvg == CDP__NC_AVG && (int)ncclScalarHostImmediate == CDP__NC_HOST_SCALAR
#if NCCL_VERSION_CODE >= 22700
            && NCCL_WIN_COLL_SYMMETRIC == CDP__NC_WINDOW_SYMMETRIC
#endif
            && sizeof(ncclConfig_t) >= sizeof(cdp__nc_settings)
            && offsetof(ncclConfig_t, splitShare) == offsetof(cdp__nc_settings, split_share)
            && offsetof(ncclConfig_t, netName) == offsetof(cdp__nc_settings, net)
            && offsetof(ncclConfig_t, blocking) == offsetof(cdp__nc_settings, blocking)
        ? 1
        : -1];
#endif

/* X(name, result, parameters): functions of the CUDA runtime, of NCCL, of newer NCCL versions,
   of NVRTC, of the CUDA driver. */
/* clang-format off: one row a line */
#define CDP__CUDART(X)                                                                \
    X(cudaRuntimeGetVersion, cdp__cu_error, (int *))                                  \
    X(cudaGetDeviceCount, cdp__cu_error, (int *))                                     \
    X(cudaGetDevice, cdp__cu_error, (int *))                                          \
    X(cudaSetDevice, cdp__cu_error, (int))                                            \
    X(cudaDeviceGetAttribute, cdp__cu_error, (int *, cdp__cu_attr, int))              \
    X(cudaGetErrorString, const char *, (cdp__cu_error))                              \
    X(cudaGetLastError, cdp__cu_error, (void))                                        \
    X(cudaStreamCreateWithPriority, cdp__cu_error, (cdp__cu_stream *, unsigned, int)) \
    X(cudaStreamDestroy, cdp__cu_error, (cdp__cu_stream))                             \
    X(cudaStreamWaitEvent, cdp__cu_error, (cdp__cu_stream, cdp__cu_event, unsigned))  \
    X(cudaStreamIsCapturing, cdp__cu_error, (cdp__cu_stream, cdp__cu_capture *))      \
    X(cudaStreamSynchronize, cdp__cu_error, (cdp__cu_stream))                         \
    X(cudaEventCreateWithFlags, cdp__cu_error, (cdp__cu_event *, unsigned))           \
    X(cudaEventRecord, cdp__cu_error, (cdp__cu_event, cdp__cu_stream))                \
    X(cudaEventQuery, cdp__cu_error, (cdp__cu_event))                                 \
    X(cudaEventDestroy, cdp__cu_error, (cdp__cu_event))                               \
    X(cudaMalloc, cdp__cu_error, (void **, size_t))                                   \
    X(cudaFree, cdp__cu_error, (void *))                                              \
    X(cudaMemcpyAsync, cdp__cu_error,                                                 \
        (void *, const void *, size_t, cdp__cu_copy, cdp__cu_stream))                 \
    X(cudaMemsetAsync, cdp__cu_error, (void *, int, size_t, cdp__cu_stream))          \
    X(cudaPointerGetAttributes, cdp__cu_error, (cdp__cu_pointer *, const void *))     \
    X(cudaLaunchHostFunc, cdp__cu_error, (cdp__cu_stream, cdp__cu_host_fn, void *))   \
    X(cudaThreadExchangeStreamCaptureMode, cdp__cu_error, (cdp__cu_mode *))
/* clang-format on */
/* clang-format off: one row a line */
#define CDP__NCCL(X)                                                                               \
    X(ncclGetVersion, cdp__nc_result, (int *))                                                     \
    X(ncclGetErrorString, const char *, (cdp__nc_result))                                          \
    X(ncclGetLastError, const char *, (cdp__nc_comm))                                              \
    X(ncclGetUniqueId, cdp__nc_result, (cdp__nc_id *))                                             \
    X(ncclCommInitRankConfig, cdp__nc_result,                                                      \
        (cdp__nc_comm *, int, cdp__nc_id, int, cdp__nc_config *))                                  \
    X(ncclCommFinalize, cdp__nc_result, (cdp__nc_comm))                                            \
    X(ncclCommDestroy, cdp__nc_result, (cdp__nc_comm))                                             \
    X(ncclCommAbort, cdp__nc_result, (cdp__nc_comm))                                               \
    X(ncclCommGetAsyncError, cdp__nc_result, (cdp__nc_comm, cdp__nc_result *))                     \
    X(ncclGroupStart, cdp__nc_result, (void))                                                      \
    X(ncclGroupEnd, cdp__nc_result, (void))                                                        \
    X(ncclCommSplit, cdp__nc_result, (cdp__nc_comm, int, int, cdp__nc_comm *, cdp__nc_config *))   \
    X(ncclAllReduce, cdp__nc_result,                                                               \
        (const void *, void *, size_t, cdp__nc_type, cdp__nc_op, cdp__nc_comm, cdp__cu_stream))    \
    X(ncclBroadcast, cdp__nc_result,                                                               \
        (const void *, void *, size_t, cdp__nc_type, int, cdp__nc_comm, cdp__cu_stream))           \
    X(ncclReduce, cdp__nc_result,                                                                  \
        (const void *, void *, size_t, cdp__nc_type, cdp__nc_op, int, cdp__nc_comm,                \
            cdp__cu_stream))                                                                       \
    X(ncclAllGather, cdp__nc_result,                                                               \
        (const void *, void *, size_t, cdp__nc_type, cdp__nc_comm, cdp__cu_stream))                \
    X(ncclReduceScatter, cdp__nc_result,                                                           \
        (const void *, void *, size_t, cdp__nc_type, cdp__nc_op, cdp__nc_comm, cdp__cu_stream))    \
    X(ncclSend, cdp__nc_result,                                                                    \
        (const void *, size_t, cdp__nc_type, int, cdp__nc_comm, cdp__cu_stream))                   \
    X(ncclRecv, cdp__nc_result, (void *, size_t, cdp__nc_type, int, cdp__nc_comm, cdp__cu_stream)) \
    X(ncclRedOpCreatePreMulSum, cdp__nc_result,                                                    \
        (cdp__nc_op *, void *, cdp__nc_type, cdp__nc_residence, cdp__nc_comm))                     \
    X(ncclRedOpDestroy, cdp__nc_result, (cdp__nc_op, cdp__nc_comm))
/* clang-format on */
/* clang-format off: one row a line */
#define CDP__NCCL_NEWER(X)                                                       \
    X(ncclMemAlloc, cdp__nc_result, (void **, size_t))                           \
    X(ncclMemFree, cdp__nc_result, (void *))                                     \
    X(ncclCommRegister, cdp__nc_result, (cdp__nc_comm, void *, size_t, void **)) \
    X(ncclCommDeregister, cdp__nc_result, (cdp__nc_comm, void *))                \
    X(ncclCommWindowRegister, cdp__nc_result,                                    \
        (cdp__nc_comm, void *, size_t, cdp__nc_window *, int))                   \
    X(ncclCommWindowDeregister, cdp__nc_result, (cdp__nc_comm, cdp__nc_window))  \
    X(ncclCommShrink, cdp__nc_result,                                            \
        (cdp__nc_comm, int *, int, cdp__nc_comm *, cdp__nc_config *, int))       \
    X(ncclCommRevoke, cdp__nc_result, (cdp__nc_comm, int))                       \
    X(ncclCommGetUniqueId, cdp__nc_result, (cdp__nc_comm, cdp__nc_id *))         \
    X(ncclCommGrow, cdp__nc_result,                                              \
        (cdp__nc_comm, int, const cdp__nc_id *, int, cdp__nc_comm *, cdp__nc_config *))
/* clang-format on */
/* clang-format off: one row a line */
#define CDP__NVRTC(X)                                                                     \
    X(nvrtcCreateProgram, cdp__rtc_result,                                                \
        (cdp__rtc_program *, const char *, const char *, int, const char *const *,        \
            const char *const *))                                                         \
    X(nvrtcDestroyProgram, cdp__rtc_result, (cdp__rtc_program *))                         \
    X(nvrtcCompileProgram, cdp__rtc_result, (cdp__rtc_program, int, const char *const *)) \
    X(nvrtcGetCUBINSize, cdp__rtc_result, (cdp__rtc_program, size_t *))                   \
    X(nvrtcGetCUBIN, cdp__rtc_result, (cdp__rtc_program, char *))                         \
    X(nvrtcGetProgramLogSize, cdp__rtc_result, (cdp__rtc_program, size_t *))              \
    X(nvrtcGetProgramLog, cdp__rtc_result, (cdp__rtc_program, char *))                    \
    X(nvrtcGetErrorString, const char *, (cdp__rtc_result))
/* clang-format on */
/* clang-format off: one row a line */
#define CDP__CUDA_DRIVER(X)                                                            \
    X(cuModuleLoadData, int, (void **, const void *))                                  \
    X(cuModuleUnload, int, (void *))                                                   \
    X(cuModuleGetFunction, int, (void **, void *, const char *))                       \
    X(cuLaunchKernel, int,                                                             \
        (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, \
            cdp__cu_stream, void **, void **))
/* clang-format on */

#define CDP__MEMBER(name, result, parameters) result(*name) parameters;
#define CDP__NAME(name, result, parameters) #name,
#define CDP__ONE(name, result, parameters) +1

/* Function pointers, in the order of the names above; one table per process. */
typedef struct cdp__nccl_calls {
    CDP__CUDART(CDP__MEMBER)
    CDP__NCCL(CDP__MEMBER)
    CDP__NCCL_NEWER(CDP__MEMBER)
    CDP__NVRTC(CDP__MEMBER)
    CDP__CUDA_DRIVER(CDP__MEMBER)
} cdp__nccl_calls;

typedef enum cdp__nccl_part {
    CDP__PART_CUDART,
    CDP__PART_NCCL,
    CDP__PART_NEWER,
    CDP__PART_NVRTC,
    CDP__PART_DRIVER,
    CDP__PART_COUNT
} cdp__nccl_part;

typedef struct cdp__nccl_library {
    cdp__nccl_calls f;
    bool loaded[CDP__PART_COUNT];
    uint32_t turn; /* held by the thread that loads (atomic) */
    int cuda, nccl;
} cdp__nccl_library;

CDP__PRIVATE cdp__nccl_library *cdp__nccl_lib(void) {
    static cdp__nccl_library lib;
    return &lib;
}

typedef struct cdp__nccl_part_info {
    const char *what, *files; /* file names in order of preference, each followed by a blank */
    const char *advice;
    uint32_t first, count; /* its functions in the table */
} cdp__nccl_part_info;

CDP__PRIVATE cdp__nccl_part_info cdp__nccl_part_of(cdp__nccl_part part) {
    static const uint32_t counts[CDP__PART_COUNT] = {0 CDP__CUDART(CDP__ONE), 0 CDP__NCCL(CDP__ONE),
        0 CDP__NCCL_NEWER(CDP__ONE), 0 CDP__NVRTC(CDP__ONE), 0 CDP__CUDA_DRIVER(CDP__ONE)};
    static const char *const what[CDP__PART_COUNT] = {
        "the CUDA runtime", "NCCL", "NCCL", "NVRTC", "the CUDA driver"};
    static const char *const files[CDP__PART_COUNT] = {
        "libcudart.so.13 libcudart.so.12 libcudart.so.11.0 libcudart.so ",
        "libnccl.so.2 libnccl.so ", "libnccl.so.2 libnccl.so ",
        "libnvrtc.so.13 libnvrtc.so.12 libnvrtc.so.11.2 libnvrtc.so ", "libcuda.so.1 "};
    static const char *const advice[CDP__PART_COUNT] = {
        "cudart", "nccl", "nccl", "nvrtc", "driver"};
    cdp__nccl_part_info info;
    uint32_t i;
    info.what = what[part];
    info.files = files[part];
    info.advice = advice[part];
    info.count = counts[part];
    for (info.first = 0, i = 0; i < (uint32_t)part; ++i)
        info.first += counts[i];
    return info;
}

/* Opens the given file or, without one, the first of the usual names. If the program itself
   contains the library, opens the program. */
CDP__PRIVATE void *cdp__nccl_find_file(
    const cdp__nccl_part_info *info, const char *file, const char *probe) {
    char name[64];
    const char *at;
    void *lib = cdp__library_open(file);
    if (file || (lib && cdp__library_find(lib, probe))) return lib;
    if (lib) cdp__library_close(lib);
    for (lib = NULL, at = info->files; *at && !lib; ++at) {
        uint32_t n = 0;
        for (; *at != ' '; ++at)
            name[n++] = *at;
        name[n] = 0;
        lib = cdp__library_open(name);
    }
    return lib;
}

/* Loads the functions of a part. They stay loaded until the process ends. */
CDP__PRIVATE CDP__COLD cdp_status cdp__nccl_load_part(
    cdp__nccl_library *l, cdp__nccl_part part, const char *file) {
    static const char *const names[] = {CDP__CUDART(CDP__NAME) CDP__NCCL(CDP__NAME)
            CDP__NCCL_NEWER(CDP__NAME) CDP__NVRTC(CDP__NAME) CDP__CUDA_DRIVER(CDP__NAME)};
    const cdp__nccl_part_info info = cdp__nccl_part_of(part);
    void *lib, *function;
    uint32_t i;
    if (l->loaded[part]) return CDP_OK;
    lib = cdp__nccl_find_file(
        &info, file, names[part == CDP__PART_NEWER ? info.first - 1 : info.first]);
    if (!lib)
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "%s is not here: looked for %s; install it, add its folder to LD_LIBRARY_PATH, or name "
            "the file in desc.%s",
            info.what, file ? file : info.files, info.advice);
    for (i = info.first; i < info.first + info.count; ++i) {
        function = cdp__library_find(lib, names[i]);
        if (!function && part != CDP__PART_NEWER)
            return cdp__fail(CDP_ERR_UNSUPPORTED,
                "%s has no function %s: it is too old (NCCL 2.18 and CUDA 11.8 are the least); "
                "install a newer one",
                info.what, names[i]);
        /* all members are function pointers */
        memcpy((char *)&l->f + i * sizeof function, &function, sizeof function);
    }
    l->loaded[part] = true;
    return CDP_OK;
}

#ifdef CDP_NCCL_LINK
#define CDP__TAKE(name, result, parameters) l->f.name = name;
CDP__PRIVATE void cdp__nccl_link(cdp__nccl_library *l) {
    CDP__CUDART(CDP__TAKE)
    CDP__NCCL(CDP__TAKE)
    CDP__NVRTC(CDP__TAKE)
    l->loaded[CDP__PART_CUDART] = l->loaded[CDP__PART_NCCL] = l->loaded[CDP__PART_NVRTC] = true;
#if NCCL_VERSION_CODE >= 21900
    l->f.ncclMemAlloc = ncclMemAlloc;
    l->f.ncclMemFree = ncclMemFree;
    l->f.ncclCommRegister = ncclCommRegister;
    l->f.ncclCommDeregister = ncclCommDeregister;
#endif
#if NCCL_VERSION_CODE >= 22700
    l->f.ncclCommShrink = ncclCommShrink;
    l->f.ncclCommWindowRegister = ncclCommWindowRegister;
    l->f.ncclCommWindowDeregister = ncclCommWindowDeregister;
#endif
#if NCCL_VERSION_CODE >= 22809
    l->f.ncclCommRevoke = ncclCommRevoke;
#endif
#if NCCL_VERSION_CODE >= 23000
    l->f.ncclCommGetUniqueId = ncclCommGetUniqueId;
    l->f.ncclCommGrow = ncclCommGrow;
#endif
    l->loaded[CDP__PART_NEWER] = true;
}
#undef CDP__TAKE
#endif
#undef CDP__MEMBER
#undef CDP__NAME
#undef CDP__ONE

CDP__PRIVATE cdp_status cdp__nccl_load_now(
    cdp__nccl_library *l, const cdp_nccl_desc *d, bool kernels) {
    cdp_status st;
#ifdef CDP_NCCL_LINK
    cdp__nccl_link(l);
#endif
    if (kernels) {
        st = cdp__nccl_load_part(l, CDP__PART_NVRTC, d->nvrtc);
        return st == CDP_OK ? cdp__nccl_load_part(l, CDP__PART_DRIVER, d->driver) : st;
    }
    st = cdp__nccl_load_part(l, CDP__PART_CUDART, d->cudart);
    if (st == CDP_OK) st = cdp__nccl_load_part(l, CDP__PART_NCCL, d->nccl);
    if (st == CDP_OK) st = cdp__nccl_load_part(l, CDP__PART_NEWER, d->nccl);
    if (st != CDP_OK) return st;
    if (!l->nccl
        && (l->f.cudaRuntimeGetVersion(&l->cuda) != 0 || l->f.ncclGetVersion(&l->nccl) != 0))
        return cdp__fail(CDP_ERR_IO, "the CUDA runtime or NCCL cannot say which version it is");
    if (l->cuda < 11080)
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "the CUDA runtime that was found is %d.%d; 11.8 is the least", l->cuda / 1000,
            l->cuda / 10 % 100);
    if (l->nccl < 21800)
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "the NCCL that was found is %d.%d.%d; 2.18 is the least", l->nccl / 10000,
            l->nccl / 100 % 100, l->nccl % 100);
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__nccl_load(const cdp_os *os, const cdp_nccl_desc *d, bool kernels) {
    cdp__nccl_library *l = cdp__nccl_lib();
    cdp_status st;
    while (cdp__atomic_swap_u32(&l->turn, 1, CDP__ACQUIRE))
        cdp__sleep_until(os, os->now_ns(os->user) + CDP__MS);
    st = cdp__nccl_load_now(l, d, kernels);
    cdp__atomic_store_u32(&l->turn, 0, CDP__RELEASE);
    return st;
}

#define cdp__nc (cdp__nccl_lib()->f)

/* ---- >>nccl/map: dtypes, reductions and errors in terms of NCCL (pure) ----------------------- */

/* Knows: the numbers that NCCL gives to dtypes, reductions and results. Promises: what NCCL does
   not support is reported. */

/* NCCL's number of a dtype, or -1 if this version has none. */
CDP__PRIVATE int cdp__nccl_type(cdp_dtype t, int version) {
    const cdp__dtype_row *row = cdp__dtype_row_of(t);
    return version < row->nccl_since ? -1 : row->nccl;
}

/* How many dtypes the kernels know: the floats that parameters may have. Counted from the table: if
   it has more or fewer, the array has a negative size. */
#define CDP__NCCL_FLOATS 4u
#define CDP__ROW(id, name, bytes, kind, set, form, wide, one, ops, grads, nccl, since) \
    +((CDP__##kind) == CDP__FLOAT && grads)
typedef char cdp__nccl_floats_fit[0 CDP__DTYPES(CDP__ROW) == CDP__NCCL_FLOATS ? 1 : -1];
#undef CDP__ROW

CDP__PRIVATE bool cdp__nccl_has_kernels(cdp_dtype t) {
    return cdp__dtype_is_float(t) && cdp__dtype_row_of(t)->grads;
}

/* The dtype of that number, and the number of such a dtype, in the order of the table. */
CDP__PRIVATE cdp_dtype cdp__nccl_float(uint32_t index) {
    uint32_t t = CDP_DTYPE_F32;
    while (!cdp__nccl_has_kernels((cdp_dtype)t) || index--)
        ++t;
    return (cdp_dtype)t;
}
CDP__PRIVATE uint32_t cdp__nccl_float_index(cdp_dtype t) {
    uint32_t i = 0;
    while (i + 1 < CDP__NCCL_FLOATS && cdp__nccl_float(i) != cdp__def(t, CDP_DTYPE_F32))
        ++i;
    return i;
}

/* NCCL's number of a reduction, or -1 if it has none; PREMUL_SUM is created per operation. BOOL
   is sent as bytes of 0 and 1, so "or" is the maximum and "and" the minimum. */
CDP__PRIVATE int cdp__nccl_reduction(cdp_dtype t, cdp_reduce_op op) {
    const cdp__dtype_row *row = cdp__dtype_row_of(t);
    if (!(row->ops >> op & 1) || row->nccl < 0) return -1;
    if (row->kind == CDP__TRUTH) {
        if (op == CDP_REDUCE_SUM || op == CDP_REDUCE_MAX) return CDP__NC_MAX;
        return op == CDP_REDUCE_PRODUCT || op == CDP_REDUCE_MIN ? CDP__NC_MIN : -1;
    }
    switch (op) {
    case CDP_REDUCE_SUM: return CDP__NC_SUM;
    case CDP_REDUCE_AVG: return CDP__NC_AVG;
    case CDP_REDUCE_MIN: return CDP__NC_MIN;
    case CDP_REDUCE_MAX: return CDP__NC_MAX;
    case CDP_REDUCE_PRODUCT: return CDP__NC_PRODUCT;
    case CDP_REDUCE_PREMUL_SUM: return CDP__NC_SUM;
    default: return -1;
    }
}

/* The factor of a PREMUL_SUM, as a number of the dtype. */
CDP__PRIVATE void cdp__nccl_scalar(cdp_dtype t, double factor, uint8_t out[8]) {
    cdp__convert(CDP_DTYPE_F64, &factor, t, out, 1);
}

/* Maps an error of NCCL to a cdp_status. */
CDP__PRIVATE cdp_status cdp__nccl_status(int result) {
    if (result == CDP__NC_REMOTE) return CDP_ERR_PEER_LOST;
    return result == CDP__NC_TIMEOUT ? CDP_ERR_TIMEOUT : CDP_ERR_IO;
}

/* ---- >>nccl/bootstrap: creates a communicator of all ranks ----------------------------------- */

/* Knows: how a communicator is created. Promises: it exists on all ranks or on none, by a
   deadline. */

/* Operations with an event of their own; the event of a later operation covers those before it. */
#define CDP__NCCL_RING 64u
#define CDP__NCCL_LEAVE_MS 5000u /* time for this rank's own work when it leaves */
#define CDP__NCCL_FINAL_MS 300u  /* time for the other ranks' consent, which may never come */

/* Kernels that only hooks use. */
typedef enum cdp__nccl_hook_kernel {
    CDP__NK_FEED,
    CDP__NK_BEGIN,
    CDP__NK_COUNTS,
    CDP__NK_SUM,
    CDP__NK_PICK,
    CDP__NK_PARTS,
    CDP__NK_GROUPS,
    CDP__NK_WRITE,
    CDP__NK_ADD,
    CDP__NK_DIVIDE,
    CDP__NK_RANGE_PARTS,
    CDP__NK_RANGE,
    CDP__NK_QUANTIZE,
    CDP__NK_DEQUANTIZE,
    CDP__NK_COUNT
} cdp__nccl_hook_kernel;

/* An operation: the event behind it, and what an error says if it is late. */
typedef struct cdp__nccl_op {
    cdp__cu_event event;
    uint64_t index; /* from 1; captured operations have their own count */
    uint64_t deadline_ns, timeout_ms, count;
    cdp_coll_kind kind;
    cdp_dtype dtype;
    cdp_reduce_op op;
    uint32_t many; /* number of operations in one call */
} cdp__nccl_op;

/* Memory that the caller or a ddp has allocated. */
typedef struct cdp__nccl_memory {
    struct cdp__nccl_memory *next;
    void *data, *handle; /* handle: of its registration; NULL: none */
    cdp__nc_window window;
    uint64_t bytes;     /* symmetric memory: its length */
    uint64_t number;    /* symmetric memory: its number, from 1, equal on all ranks; else 0 */
    bool nccl;          /* from ncclMemAlloc */
    bool opening;       /* NCCL may still write `window` */
    cdp_allocator from; /* allocator of cdp_nccl_set_memory; alloc NULL: CUDA or NCCL */
} cdp__nccl_memory;

/* Where NCCL stores a communicator derived from another one. It may do so late, after the caller
   has given up waiting. */
typedef struct cdp__nccl_cell {
    struct cdp__nccl_cell *next;
    cdp__nc_comm comm;
} cdp__nccl_cell;

typedef struct cdp__nccl {
    cdp_group *group;
    /* while its communicator is derived from that of this group; else NULL */
    struct cdp__nccl *parent;
    const cdp_os *os;
    uint32_t rank, size, timeout_ms;
    int device, version;
    int capability; /* compute capability of the device (90 is 9.0), the lowest of all ranks */
    cdp__nc_comm comm;
    cdp__cu_stream caller, stream;
    cdp__cu_event begin, all;
    cdp__nccl_memory *memories;

    /* Guarded by `lock`. No thread holds it while it calls the group, or anything that may take
       long. */
    cdp_lock lock;
    void *cond, *thread;
    bool inside;     /* a thread is calling NCCL; `comm` must not change */
    bool abandoned;  /* `comm` was aborted under that thread, which clears it when it leaves */
    bool stop;       /* the keeper thread must end */
    bool resting;    /* the keeper thread has ended or does not exist */
    bool aborted;    /* aborted, or revoked to be kept: the communicator no longer blocks streams */
    uint32_t failed; /* the group has failed (atomic) */

    cdp_nccl_desc desc;
    bool installed; /* the group uses this backend */
    char name[48];
    uint64_t issued, captures; /* operations in both rings; written by the thread inside NCCL */
    /* operations completed, counted by the stream; only with a watchdog (atomic) */
    uint64_t ended;
    cdp_allocator from; /* source of memory; alloc NULL: CUDA or NCCL */
    /* symmetric allocations so far, and a hash of the numbers of the live ones (guarded by
       `lock`) */
    uint64_t symmetric_count, symmetric_hash;
    bool symmetric_warned; /* the warning that there are no windows was logged */
    /* for calls that did not complete: kept until the communicator ends */
    cdp__nccl_cell *cells;

    /* kernels, compiled on first use; cast: see cdp__nccl_kernels() */
    void *module[2], *cast[CDP__NCCL_FLOATS * (CDP__NCCL_FLOATS + 1)], *hooks[CDP__NK_COUNT];
    double *partial; /* device memory, for sums of squares */
    cdp__nccl_op ring[CDP__NCCL_RING], captured[CDP__NCCL_RING];
} cdp__nccl;

CDP__PRIVATE void cdp__nccl_wake(cdp__nccl *b) {
    if (b->cond) b->os->threads.cond_broadcast(b->os->user, b->cond);
}
CDP__PRIVATE bool cdp__nccl_failed(const cdp__nccl *b) {
    return cdp__atomic_load_u32(&b->failed, CDP__ACQUIRE) != 0;
}
CDP__PRIVATE uint64_t cdp__nccl_now(const cdp__nccl *b) {
    return b->os->now_ns(b->os->user);
}

/* Sleeps longer each time, so that a long wait costs little. */
CDP__PRIVATE void cdp__nccl_nap(const cdp__nccl *b, uint32_t *naps) {
    const uint64_t longer = *naps < 100 ? 100 : 1000, us = *naps < 20 ? 20 : longer;
    ++*naps;
    cdp__sleep_until(b->os, cdp__nccl_now(b) + us * 1000);
}

CDP__PRIVATE cdp_status cdp__nccl_cuda_failed(cdp__cu_error e, const char *what) {
    (void)cdp__nc.cudaGetLastError(); /* clears the error, which the next call would report again */
    return cdp__fail((int)e == CDP__CU_NOMEM ? CDP_ERR_NOMEM : CDP_ERR_IO, "%s: CUDA says: %s (%d)",
        what, cdp__nc.cudaGetErrorString(e), (int)e);
}

CDP__PRIVATE cdp_status cdp__nccl_fail_with(cdp_status st, int result, const char *what) {
    const char *more = cdp__nc.ncclGetLastError(NULL);
    return cdp__fail(st, "%s: NCCL says: %s (%d)%s%s", what,
        cdp__nc.ncclGetErrorString((cdp__nc_result)result), result, more && *more ? ": " : "",
        more ? more : "");
}
CDP__PRIVATE cdp_status cdp__nccl_nccl_failed(int result, const char *what) {
    return cdp__nccl_fail_with(cdp__nccl_status(result), result, what);
}

/* Maps errors while a communicator is created: wrong use in the sense of NCCL (two ranks on one
   GPU) is a mistake of the caller, and does not break the group. */
CDP__PRIVATE cdp_status cdp__nccl_refused(int result, const char *what) {
    return cdp__nccl_fail_with(result == CDP__NC_INVALID || result == CDP__NC_USAGE
            ? CDP_ERR_INVALID
            : cdp__nccl_status(result),
        result, what);
}

/* Returns an error if the group has failed, or the one that its communicator is derived from.
   Then NCCL must not be called, because the communicators may be gone. */
CDP__PRIVATE cdp_status cdp__nccl_over(const cdp__nccl *b, const char *what) {
    cdp_status st;
    if (!cdp__nccl_failed(b) && !(b->parent && cdp__nccl_failed(b->parent))) return CDP_OK;
    st = cdp_group_status(cdp__nccl_failed(b) ? b->group : b->parent->group);
    return st != CDP_OK ? st
                        : cdp__fail(CDP_ERR_ABORTED, "%s: the group has failed meanwhile", what);
}

/* A non-blocking communicator is "in progress" after many calls. Waits until it is not: before
   that, no other call is allowed. */
CDP__PRIVATE cdp_status cdp__nccl_settle(
    cdp__nccl *b, cdp__nc_comm comm, uint64_t deadline_ns, const char *what) {
    cdp__nc_result state = (cdp__nc_result)0;
    uint32_t naps = 0;
    for (;;) {
        cdp_status st = cdp__nccl_over(b, what);
        int r;
        if (st == CDP_OK && naps % 16 == 15) st = cdp_group_status(b->group);
        if (st != CDP_OK) return st;
        r = (int)cdp__nc.ncclCommGetAsyncError(comm, &state);
        if (r != 0) return cdp__nccl_nccl_failed(r, what);
        if ((int)state == 0) return CDP_OK;
        if ((int)state != CDP__NC_IN_PROGRESS)
            return b->installed ? cdp__nccl_nccl_failed((int)state, what)
                                : cdp__nccl_refused((int)state, what);
        if (cdp__nccl_now(b) >= deadline_ns)
            return cdp__fail(CDP_ERR_TIMEOUT,
                "%s: NCCL did not finish by the deadline; a rank does not take part, "
                "or cannot be reached (NCCL_DEBUG=INFO says more)",
                what);
        if (cdp_group_desc_of(b->group)->no_thread) (void)cdp_poll(b->group, 0);
        cdp__nccl_nap(b, &naps);
    }
}

CDP__PRIVATE cdp__nc_settings cdp__nccl_settings(void) {
    cdp__nc_settings c;
    memset(&c, 0, sizeof c);
    c.size = sizeof c;
    c.magic = 0xcafebeefu;
    c.version = 21800;
    c.blocking = 0;
    c.cga_cluster = c.min_ctas = c.max_ctas = c.split_share = INT_MIN; /* NCCL's "not set" */
    return c;
}

/* What ranks exchange before and after a collective step. */
typedef struct cdp__nccl_hello {
    int32_t status, nccl;
    uint32_t settings;
    uint32_t from; /* number of ranks of desc.from; 0: none */
    int32_t capability;
    uint32_t windows;     /* symmetric memory: this rank supports windows, or has one */
    uint64_t bytes, hash; /* symmetric memory: size, and hash of the live allocations */
    char text[240];
} cdp__nccl_hello;

/* Exchanges the statuses of all ranks; every rank returns the same one. The caller has filled in
   the other fields of all[rank]. `timeout_ms` 0: that of the group. */
CDP__PRIVATE cdp_status cdp__nccl_gather(
    cdp__nccl *b, cdp_status st, cdp__nccl_hello *all, const char *what, uint32_t timeout_ms) {
    cdp__nccl_hello *mine = &all[b->rank];
    const cdp_error own = *cdp_last_error();
    cdp_request rq;
    cdp_work work;
    uint32_t r;
    cdp_status together;
    memset(&rq, 0, sizeof rq);
    rq.kind = CDP_COLL_ALLGATHER;
    rq.out = all;
    rq.count = sizeof *all;
    rq.dtype = CDP_DTYPE_U8;
    rq.timeout_ms = timeout_ms;
    mine->status = (int32_t)st;
    if (st != CDP_OK) cdp__format(mine->text, sizeof mine->text, "%s", own.text);
    together = cdp_start(b->group, &rq, &work);
    if (together == CDP_OK) together = cdp_work_wait(work);
    if (together != CDP_OK) return together;
    for (r = 0; r < b->size; ++r)
        if (all[r].status != CDP_OK && all[r].status != CDP_ERR_ABORTED) break;
    /* an error other than ABORTED is the more useful cause; but ABORTED must be reported, too */
    if (r == b->size)
        for (r = 0; r < b->size && all[r].status == CDP_OK;)
            ++r;
    if (r < b->size) {
        char why[sizeof all[r].text];
        cdp__text_foreign_in(why, sizeof why, all[r].text, sizeof why);
        return cdp__fail_peer((cdp_status)all[r].status, cdp_world_rank_of(b->group, r), 0,
            r == b->rank ? "%s: rank %u cannot: %s"
                         : "%s: this rank does not do it, because rank %u cannot: %s",
            what, cdp_world_rank_of(b->group, r), why);
    }
    return CDP_OK;
}

/* Compares results and descs of all ranks, before and after a communicator is created. */
CDP__PRIVATE cdp_status cdp__nccl_agree(
    cdp__nccl *b, cdp_status st, cdp__nccl_hello *all, const char *what) {
    cdp__nccl_hello *mine = &all[b->rank];
    uint32_t r;
    memset(mine, 0, sizeof *mine);
    mine->nccl = cdp__nccl_lib()->nccl;
    mine->settings = (b->desc.no_check ? 1u : 0u) | (b->desc.check_first ? 2u : 0u)
        | (b->desc.no_peer_watch ? 4u : 0u) | (b->desc.keep ? 8u : 0u) | (b->desc.grow ? 16u : 0u)
        | (b->desc.no_register ? 32u : 0u);
    mine->capability = (int32_t)b->capability;
    mine->from = b->desc.from ? cdp_size(b->desc.from) : 0;
    st = cdp__nccl_gather(b, st, all, what, 0);
    if (st != CDP_OK) return st;
    for (r = 0; r < b->size; ++r)
        if (all[r].capability < b->capability) b->capability = (int)all[r].capability;
    for (r = 1; r < b->size; ++r) {
        if (all[r].nccl / 100 != all[0].nccl / 100)
            return cdp__fail_peer(CDP_ERR_MISMATCH, cdp_world_rank_of(b->group, r), 0,
                "%s: rank %u has NCCL %d.%d, rank %u has %d.%d; install the same everywhere", what,
                cdp_world_rank_of(b->group, 0), all[0].nccl / 10000, all[0].nccl / 100 % 100,
                cdp_world_rank_of(b->group, r), all[r].nccl / 10000, all[r].nccl / 100 % 100);
        if (all[r].settings != all[0].settings || (!b->desc.grow && all[r].from != all[0].from))
            return cdp__fail_peer(CDP_ERR_MISMATCH, cdp_world_rank_of(b->group, r), 0,
                "%s: the descs of rank %u and rank %u differ (no_check, check_first, "
                "no_peer_watch, "
                "no_register, keep, grow or from); give all ranks the same",
                what, cdp_world_rank_of(b->group, 0), cdp_world_rank_of(b->group, r));
    }
    for (r = 0; r < b->size && b->desc.grow; ++r)
        if (all[r].from != (r < all[0].from ? all[0].from : 0) || all[0].from == 0
            || all[0].from == b->size)
            return cdp__fail_peer(CDP_ERR_INVALID, cdp_world_rank_of(b->group, r), 0,
                "%s: with grow the ranks of `from` are the first of this group, in their order, "
                "and new ranks without `from` follow; rank %u does not fit",
                what, cdp_world_rank_of(b->group, r));
    return CDP_OK;
}

/* Creates a new communicator. Rank 0 broadcasts NCCL's unique id over the links. */
CDP__PRIVATE cdp_status cdp__nccl_init(cdp__nccl *b, uint64_t deadline_ns) {
    cdp__nc_settings config = cdp__nccl_settings();
    struct {
        cdp__nc_id id;
        int32_t status;
        char text[240];
    } word;
    char why[sizeof word.text];
    cdp_status st;
    int r;
    memset(&word, 0, sizeof word);
    if (b->rank == 0 && (r = (int)cdp__nc.ncclGetUniqueId(&word.id)) != 0) {
        word.status = (int32_t)cdp__nccl_nccl_failed(r, "cdp_nccl_attach");
        cdp__format(word.text, sizeof word.text, "%s", cdp_last_error()->text);
    }
    st = cdp_broadcast(b->group, &word, sizeof word, CDP_DTYPE_U8, 0);
    if (st != CDP_OK) return st;
    cdp__text_foreign_in(why, sizeof why, word.text, sizeof word.text);
    if (word.status != 0) return cdp__fail((cdp_status)word.status, "%s", why);
    r = (int)cdp__nc.ncclCommInitRankConfig(
        &b->comm, (int)b->size, word.id, (int)b->rank, (cdp__nc_config *)(void *)&config);
    if (r != 0 && r != CDP__NC_IN_PROGRESS) return cdp__nccl_refused(r, "cdp_nccl_attach");
    return cdp__nccl_settle(b, b->comm, deadline_ns, "cdp_nccl_attach");
}

/* Waits until the communicator that ncclCommSplit or a similar call (result `r`) derives from
   that of `old` is complete; *out is the new one. If it does not complete, `old` keeps the cell,
   because NCCL may still write into it. */
CDP__PRIVATE cdp_status cdp__nccl_made(cdp__nccl *b, cdp__nccl *old, cdp__nccl_cell *cell, int r,
    cdp__nc_comm *out, uint64_t deadline_ns, const char *what) {
    cdp_status st;
    if (r != 0 && r != CDP__NC_IN_PROGRESS) {
        cdp__free(old->os, cell);
        return b->installed ? cdp__nccl_nccl_failed(r, what) : cdp__nccl_refused(r, what);
    }
    st = cdp__nccl_settle(b, old->comm, deadline_ns, what);
    if (st == CDP_OK) {
        *out = cell->comm;
        cdp__free(old->os, cell);
        return CDP_OK;
    }
    cdp_lock_acquire(&old->lock);
    cell->next = old->cells;
    old->cells = cell;
    cdp_lock_release(&old->lock);
    if (b != old) cdp_group_fail(old->group); /* its communicator may stay in progress for ever */
    return st;
}

/* ---- >>nccl/stream: the order of work in streams --------------------------------------------- */

/* Knows: events and streams. Promises: later work of a stream runs after what it depends on, and
   nothing blocks the host. */

#define CDP__NCCL_CAPTURED 1ull /* bit in the number of a work, beside its index */

CDP__PRIVATE cdp_status cdp__nccl_open_streams(cdp__nccl *b) {
    cdp__cu_error e = cdp__nc.cudaStreamCreateWithPriority(&b->stream, CDP__CU_NON_BLOCKING, 0);
    uint32_t i;
    if (e == 0) e = cdp__nc.cudaEventCreateWithFlags(&b->begin, CDP__CU_NO_TIMING);
    if (e == 0) e = cdp__nc.cudaEventCreateWithFlags(&b->all, CDP__CU_NO_TIMING);
    for (i = 0; i < CDP__NCCL_RING && e == 0; ++i) {
        e = cdp__nc.cudaEventCreateWithFlags(&b->ring[i].event, CDP__CU_NO_TIMING);
        if (e == 0) e = cdp__nc.cudaEventCreateWithFlags(&b->captured[i].event, CDP__CU_NO_TIMING);
    }
    return e == 0 ? CDP_OK
                  : cdp__nccl_cuda_failed(e, "cdp_nccl_attach: the group's stream and events");
}

CDP__PRIVATE void cdp__nccl_close_streams(cdp__nccl *b) {
    uint32_t i;
    for (i = 0; i < CDP__NCCL_RING; ++i) {
        if (b->ring[i].event) (void)cdp__nc.cudaEventDestroy(b->ring[i].event);
        if (b->captured[i].event) (void)cdp__nc.cudaEventDestroy(b->captured[i].event);
    }
    if (b->begin) (void)cdp__nc.cudaEventDestroy(b->begin);
    if (b->all) (void)cdp__nc.cudaEventDestroy(b->all);
    if (b->stream) (void)cdp__nc.cudaStreamDestroy(b->stream);
}

CDP__PRIVATE CDP__ONE_COPY bool cdp__nccl_capturing(cdp__cu_stream stream) {
    cdp__cu_capture state = (cdp__cu_capture)0;
    return cdp__nc.cudaStreamIsCapturing(stream, &state) == 0 && (int)state != 0;
}

CDP__PRIVATE cdp_status cdp__nccl_right_device(const cdp__nccl *b) {
    int device = -1;
    const cdp__cu_error e = cdp__nc.cudaGetDevice(&device);
    if (e != 0) return cdp__nccl_cuda_failed(e, "device memory");
    return device == b->device ? CDP_OK
                               : cdp__fail(CDP_ERR_INVALID,
                                   "device %d is current on this thread, but the group is on "
                                   "device %d; call cudaSetDevice(%d) first",
                                   device, b->device, b->device);
}

/* Waits until no other thread calls NCCL. Until cdp__nccl_leave() the communicator stays valid. */
CDP__PRIVATE void cdp__nccl_hold(cdp__nccl *b) {
    cdp_lock_acquire(&b->lock);
    while (b->inside && b->cond)
        b->os->threads.cond_wait(
            b->os->user, b->cond, b->lock.mutex, cdp__nccl_now(b) + 10 * CDP__MS);
    b->inside = true;
    cdp_lock_release(&b->lock);
}

CDP__PRIVATE cdp_status cdp__nccl_enter(cdp__nccl *b) {
    const cdp_status st = cdp__nccl_right_device(b);
    if (st == CDP_OK) cdp__nccl_hold(b);
    return st;
}

CDP__PRIVATE void cdp__nccl_leave(cdp__nccl *b) {
    cdp_lock_acquire(&b->lock);
    b->inside = false;
    if (b->abandoned) b->comm = NULL;
    cdp_lock_release(&b->lock);
    cdp__nccl_wake(b);
}

/* Makes the group's stream wait for all work that is now in the caller's stream. */
CDP__PRIVATE cdp_status cdp__nccl_after_caller(cdp__nccl *b) {
    cdp__cu_error e = cdp__nc.cudaEventRecord(b->begin, b->caller);
    if (e == 0) e = cdp__nc.cudaStreamWaitEvent(b->stream, b->begin, 0);
    return e == 0 ? CDP_OK
                  : cdp__nccl_cuda_failed(e, "ordering the group's stream behind the caller's");
}

/* Called by CUDA, in a thread of its own, when the stream has reached this point. */
CDP__PRIVATE void cdp__nccl_ended(void *user) {
    (void)cdp__atomic_add_u64(&((cdp__nccl *)user)->ended, 1, CDP__RELEASE);
}

/* Records an event in the stream after the operation that was just enqueued. */
CDP__PRIVATE cdp_status cdp__nccl_mark(cdp__nccl *b, cdp__nccl_op *op, bool capture) {
    cdp__cu_error e = cdp__nc.cudaEventRecord(op->event, b->stream);
    if (e == 0 && !capture && b->desc.watchdog_ms)
        e = cdp__nc.cudaLaunchHostFunc(b->stream, cdp__nccl_ended, b);
    return e == 0 ? CDP_OK : cdp__nccl_cuda_failed(e, "the event behind an operation");
}

CDP__PRIVATE CDP__COLD void cdp__nccl_op_text(const cdp__nccl_op *op, char *out, uint64_t size) {
    cdp__text t = cdp__text_of(out, size);
    cdp__text_add(
        &t, "device operation #%llu (%s", (unsigned long long)op->index, cdp_coll_name(op->kind));
    if (op->kind != CDP_COLL_SEND)
        cdp__text_add(
            &t, " of %llu x %s", (unsigned long long)op->count, cdp_dtype_name(op->dtype));
    if (cdp__kind_reduces(op->kind)) cdp__text_add(&t, " %s", cdp_reduce_name(op->op));
    if (op->many > 1) cdp__text_add(&t, ", the first of %u", op->many);
    cdp__text_add(&t, ")");
}

/* The entry of a work with its event. NULL: the work is of a capture and `capture` is false, or
   the reverse; or there is no such work. */
CDP__PRIVATE cdp__nccl_op *cdp__nccl_find(cdp__nccl *b, uint64_t number, bool capture) {
    const uint64_t index = number >> 1;
    if (((number & CDP__NCCL_CAPTURED) != 0) != capture) {
        (void)cdp__fail(CDP_ERR_STATE,
            capture ? "device operation #%llu was started before this capture; wait for it before "
                      "cudaStreamBeginCapture"
                    : "device operation #%llu belongs to a captured graph; wait for it inside the "
                      "capture, and for the graph by its stream",
            (unsigned long long)index);
        return NULL;
    }
    if (index <= (capture ? b->captures : b->issued))
        return (capture ? b->captured : b->ring) + index % CDP__NCCL_RING;
    (void)cdp__fail(
        CDP_ERR_INVALID, "there was no device operation #%llu", (unsigned long long)index);
    return NULL;
}

/* Makes the caller's stream wait for operation `number`; 0: for the whole group's stream. */
CDP__PRIVATE cdp_status cdp__nccl_order(cdp__nccl *b, uint64_t number) {
    const bool capture = cdp__nccl_capturing(b->caller);
    cdp__cu_event event = b->all;
    cdp__cu_error e = (cdp__cu_error)0;
    if (number) {
        const cdp__nccl_op *op;
        cdp_lock_acquire(&b->lock);
        op = cdp__nccl_find(b, number, capture);
        cdp_lock_release(&b->lock);
        if (!op) return cdp_last_error()->status;
        event = op->event;
    } else {
        /* this capture contains no work of the group */
        if (capture && !cdp__nccl_capturing(b->stream)) return CDP_OK;
        e = cdp__nc.cudaEventRecord(event, b->stream);
    }
    if (e == 0) e = cdp__nc.cudaStreamWaitEvent(b->caller, event, 0);
    return e == 0 ? CDP_OK
                  : cdp__nccl_cuda_failed(e, "ordering the caller's stream behind an operation");
}

/* Calls cudaEventQuery even if another thread captures. A query does not disturb the capture,
   but CUDA forbids it unless the thread's capture mode is relaxed. */
CDP__PRIVATE cdp__cu_error cdp__nccl_query(cdp__cu_event event) {
    cdp__cu_mode mode = (cdp__cu_mode)CDP__CU_RELAXED;
    cdp__cu_error e;
    (void)cdp__nc.cudaThreadExchangeStreamCaptureMode(&mode);
    e = cdp__nc.cudaEventQuery(event);
    (void)cdp__nc.cudaThreadExchangeStreamCaptureMode(&mode);
    return e;
}

CDP__PRIVATE cdp_status cdp__nccl_late(const cdp__nccl_op *op) {
    char text[160];
    cdp__nccl_op_text(op, text, sizeof text);
    return cdp__fail(CDP_ERR_TIMEOUT,
        "%s has not ended within %llu ms on the GPU; a rank has died, is late with its own work "
        "before it, or calls something else",
        text, (unsigned long long)op->timeout_ms);
}

/* Makes the error of a library call about `op`. */
CDP__PRIVATE cdp_status cdp__nccl_op_failed(const cdp__nccl_op *op, cdp__cu_error e, int result) {
    char text[160];
    if (op->index)
        cdp__nccl_op_text(op, text, sizeof text);
    else
        cdp__format(text, sizeof text, "the communicator, before its first operation");
    return e != 0 ? cdp__nccl_cuda_failed(e, text) : cdp__nccl_nccl_failed(result, text);
}

/* Checks whether an operation is done. Never blocks, and does not call the group. */
CDP__PRIVATE cdp_status cdp__nccl_look(cdp__nccl *b, uint64_t number) {
    cdp__nc_result state = (cdp__nc_result)0;
    const cdp__nccl_op *at;
    cdp__nccl_op op;
    cdp__cu_error e;
    cdp_lock_acquire(&b->lock);
    if (!number) number = b->issued << 1;
    at = number ? cdp__nccl_find(b, number, false) : NULL;
    /* a copy: a later operation may reuse the entry, and its event covers this one */
    if (at) op = *at;
    cdp_lock_release(&b->lock);
    if (!number) return CDP_OK;
    if (!at) return cdp_last_error()->status;
    e = cdp__nccl_query(op.event);
    /* an abort ends operations, too; the group has the cause */
    if (cdp__nccl_failed(b)) return CDP_PENDING;
    if (e == 0) return CDP_OK;
    if ((int)e != CDP__CU_NOT_READY) return cdp__nccl_op_failed(&op, e, 0);
    (void)cdp__nc.cudaGetLastError();
    cdp_lock_acquire(
        &b->lock); /* keeps the communicator valid; a thread inside NCCL checks it itself */
    if (b->comm && !b->inside && cdp__nc.ncclCommGetAsyncError(b->comm, &state) != 0)
        state = (cdp__nc_result)0;
    cdp_lock_release(&b->lock);
    if ((int)state != 0 && (int)state != CDP__NC_IN_PROGRESS)
        return cdp__nccl_op_failed(&op, (cdp__cu_error)0, (int)state);
    if (op.index == number >> 1 && cdp__nccl_now(b) >= op.deadline_ns) return cdp__nccl_late(&op);
    return CDP_PENDING;
}

/* Fails the group with this thread's last error, and waits for its cause, which after a timeout
   needs answers of other ranks. Polls, because there may be no other thread that does. */
CDP__PRIVATE CDP__COLD cdp_status cdp__nccl_break(cdp__nccl *b) {
    const cdp_error e = *cdp_last_error();
    const uint64_t until = cdp__nccl_now(b) + CDP__NCCL_LEAVE_MS * CDP__MS;
    cdp_group_fail(b->group);
    while (cdp_group_status(b->group) == CDP_OK && cdp__nccl_now(b) < until)
        (void)cdp_poll(b->group, 1000);
    if (cdp_group_status(b->group) != CDP_OK) return cdp_last_error()->status;
    *cdp__error_slot() = e;
    return e.status;
}

/* Waits until the stream has done all its present work, or the group fails (which aborts its
   operations), or other work hangs for 2 * timeout_ms. */
CDP__PRIVATE cdp_status cdp__nccl_sync(cdp__nccl *b, cdp__cu_event event, cdp__cu_stream stream) {
    /* longer than operations, so that a late operation is reported as such */
    const uint64_t until = b->timeout_ms == CDP_NO_TIMEOUT
        ? CDP__NEVER
        : cdp__nccl_now(b) + (uint64_t)b->timeout_ms * 2 * CDP__MS;
    cdp__cu_error e = cdp__nc.cudaEventRecord(event, stream);
    uint32_t naps = 0;
    cdp_status st;
    while (e == 0 && (int)(e = cdp__nccl_query(event)) == CDP__CU_NOT_READY) {
        (void)cdp__nc.cudaGetLastError();
        e = (cdp__cu_error)0;
        if ((st = cdp_group_status(b->group)) != CDP_OK) return st;
        st = cdp__nccl_look(b, 0); /* the last operation may be late */
        if (st != CDP_OK && st != CDP_PENDING) return cdp__nccl_break(b);
        if (cdp__nccl_now(b) >= until)
            return cdp__fail(CDP_ERR_TIMEOUT,
                "a stream of device %d has not become empty within %llu ms, although no "
                "operation of this group is late; work of the caller or of another group hangs "
                "there",
                b->device, 2ull * b->timeout_ms);
        if (cdp_group_desc_of(b->group)->no_thread) (void)cdp_poll(b->group, 0);
        cdp__nccl_nap(b, &naps);
    }
    return e == 0 ? CDP_OK : cdp__nccl_cuda_failed(e, "waiting for a stream");
}
CDP__PRIVATE cdp_status cdp__nccl_sync_caller(cdp__nccl *b) {
    return cdp__nccl_sync(b, b->begin, b->caller);
}

/* Waits until the stream is empty, whether or not the group fails, for `ms` at most. */
CDP__PRIVATE bool cdp__nccl_drain(
    cdp__nccl *b, cdp__cu_event event, cdp__cu_stream stream, uint64_t ms) {
    const uint64_t until = cdp__nccl_now(b) + ms * CDP__MS;
    cdp__cu_error e = cdp__nc.cudaEventRecord(event, stream);
    uint32_t naps = 0;
    while (e == 0 && (int)(e = cdp__nccl_query(event)) == CDP__CU_NOT_READY
        && cdp__nccl_now(b) < until) {
        e = (cdp__cu_error)0;
        if (cdp_group_desc_of(b->group)->no_thread) (void)cdp_poll(b->group, 0);
        cdp__nccl_nap(b, &naps);
    }
    (void)cdp__nc.cudaGetLastError();
    return (int)e != CDP__CU_NOT_READY;
}

/* ---- >>nccl/watchdog: finds late operations and stops them ----------------------------------- */

/* Knows: operations that are late. Promises: a communicator whose peer is gone is aborted by the
   deadline of its operation. */

/* Waits until a communicator is no longer in progress, for `ms` at most. */
CDP__PRIVATE void cdp__nccl_rest(const cdp__nccl *b, cdp__nc_comm comm, uint64_t ms) {
    const uint64_t until = cdp__nccl_now(b) + ms * CDP__MS;
    cdp__nc_result state = (cdp__nc_result)0;
    uint32_t naps = 0;
    while (cdp__nc.ncclCommGetAsyncError(comm, &state) == 0 && (int)state == CDP__NC_IN_PROGRESS
        && cdp__nccl_now(b) < until)
        cdp__nccl_nap(b, &naps);
}

/* The group has failed: ends its work on the GPU. Waits a second at most for a thread inside
   NCCL to leave, which it does at its next check. After that, the abort makes its call return. */
CDP__PRIVATE CDP__COLD void cdp__nccl_stop_gpu(cdp__nccl *b) {
    const uint64_t until = cdp__nccl_now(b) + 1000 * CDP__MS;
    cdp__nc_comm comm;
    cdp_lock_acquire(&b->lock);
    while (b->inside && b->cond && cdp__nccl_now(b) < until)
        b->os->threads.cond_wait(b->os->user, b->cond, b->lock.mutex, until);
    comm = b->abandoned ? NULL : b->comm;
    if (!b->desc.keep) {
        b->abandoned = true;
        if (!b->inside) b->comm = NULL; /* otherwise the thread inside still reads it */
    }
    cdp_lock_release(&b->lock);
    if (comm && !b->desc.keep)
        (void)cdp__nc.ncclCommAbort(comm);
    else if (comm && cdp__nc.ncclCommRevoke
        && (int)cdp__nc.ncclCommRevoke(comm, 0) == CDP__NC_IN_PROGRESS)
        cdp__nccl_rest(b, comm, CDP__NCCL_LEAVE_MS - 1000);
    cdp_lock_acquire(&b->lock);
    b->aborted = true;
    cdp_lock_release(&b->lock);
    cdp__nccl_wake(b);
}

/* With watchdog_ms: fails the group if an operation is late or NCCL reports an error. Reads only
   host memory that the stream writes, and never calls CUDA, so that it cannot disturb a capture. */
CDP__PRIVATE void cdp__nccl_watch(cdp__nccl *b) {
    cdp__nc_result state = (cdp__nc_result)0;
    cdp__nccl_op op;
    const uint64_t index = cdp__atomic_load_u64(&b->ended, CDP__ACQUIRE) + 1;
    bool late;
    cdp_lock_acquire(&b->lock);
    op = b->ring[index % CDP__NCCL_RING];
    late = op.index == index && index <= b->issued && cdp__nccl_now(b) >= op.deadline_ns;
    if (op.index != index) op = b->ring[b->issued % CDP__NCCL_RING]; /* no operation is in flight */
    if (b->comm && !b->inside && cdp__nc.ncclCommGetAsyncError(b->comm, &state) != 0)
        state = (cdp__nc_result)0;
    cdp_lock_release(&b->lock);
    if (late)
        (void)cdp__nccl_late(&op);
    else if ((int)state != 0 && (int)state != CDP__NC_IN_PROGRESS)
        (void)cdp__nccl_op_failed(&op, (cdp__cu_error)0, (int)state);
    else
        return;
    cdp_group_fail(b->group);
}

/* Finalizes and destroys the communicator; if that fails or takes too long, aborts it. A revoked
   communicator may be destroyed, but not finalized. */
CDP__PRIVATE CDP__COLD void cdp__nccl_close_comm(cdp__nccl *b) {
    const uint64_t until = cdp__nccl_now(b) + CDP__NCCL_FINAL_MS * CDP__MS;
    const bool failed = cdp__nccl_failed(b);
    cdp__nc_result state = (cdp__nc_result)0;
    uint32_t naps = 0;
    int r = 0;
    cdp__nccl_hold(b); /* keeps other threads from using it meanwhile */
    if (b->comm && !b->abandoned) {
        if (!failed) r = (int)cdp__nc.ncclCommFinalize(b->comm);
        while ((r == 0 || r == CDP__NC_IN_PROGRESS)
            && (r = (int)cdp__nc.ncclCommGetAsyncError(b->comm, &state)) == 0
            && (int)state == CDP__NC_IN_PROGRESS && cdp__nccl_now(b) < until)
            cdp__nccl_nap(b, &naps);
        if (r == 0 && (int)state == 0 && (!failed || b->aborted))
            (void)cdp__nc.ncclCommDestroy(b->comm);
        else
            (void)cdp__nc.ncclCommAbort(b->comm);
    }
    b->abandoned = true;
    cdp__nccl_leave(b);
}

/* The keeper thread: sleeps until the group fails, then aborts the communicator. With
   watchdog_ms it checks operations periodically. At the end it closes the communicator, which
   may wait for other ranks; the thread that destroys the group waits for this thread with a
   deadline. */
CDP__PRIVATE void cdp__nccl_keeper(void *arg) {
    cdp__nccl *b = (cdp__nccl *)arg;
    (void)cdp__nc.cudaSetDevice(b->device);
    cdp_lock_acquire(&b->lock);
    while (!b->stop && !cdp__nccl_failed(b)) {
        b->os->threads.cond_wait(b->os->user, b->cond, b->lock.mutex,
            b->desc.watchdog_ms ? cdp__nccl_now(b) + b->desc.watchdog_ms * CDP__MS : CDP__NEVER);
        if (b->stop || cdp__nccl_failed(b) || !b->desc.watchdog_ms) continue;
        cdp_lock_release(&b->lock);
        cdp__nccl_watch(b);
        cdp_lock_acquire(&b->lock);
    }
    cdp_lock_release(&b->lock);
    if (cdp__nccl_failed(b)) cdp__nccl_stop_gpu(b);
    cdp_lock_acquire(&b->lock);
    while (!b->stop)
        b->os->threads.cond_wait(b->os->user, b->cond, b->lock.mutex, CDP__NEVER);
    cdp_lock_release(&b->lock);
    if (b->installed) cdp__nccl_close_comm(b);
    cdp_lock_acquire(&b->lock);
    b->resting = true;
    cdp_lock_release(&b->lock);
    cdp__nccl_wake(b);
}

/* Without a keeper thread, the next caller aborts the communicator. */
CDP__PRIVATE void cdp__nccl_by_hand(cdp__nccl *b) {
    if (!b->thread && cdp__nccl_failed(b) && !b->aborted && !b->inside) cdp__nccl_stop_gpu(b);
}

/* Waits until `*flag` is set, for `ms` at most. */
CDP__PRIVATE bool cdp__nccl_await(cdp__nccl *b, const bool *flag, uint32_t ms) {
    const uint64_t until = cdp__nccl_now(b) + ms * CDP__MS;
    bool done;
    cdp_lock_acquire(&b->lock);
    while (!*flag && b->cond && cdp__nccl_now(b) < until)
        b->os->threads.cond_wait(b->os->user, b->cond, b->lock.mutex, until);
    done = *flag;
    cdp_lock_release(&b->lock);
    return done;
}

/* ---- >>nccl/regroup: derives a communicator from that of another group ----------------------- */

/* Knows: the communicator of the other group, and which of its ranks are gone. Promises: dead ranks
   block no other rank. */

/* Derives a communicator for a part of the other group's ranks. */
CDP__PRIVATE cdp_status cdp__nccl_shrink(cdp__nccl *b, cdp__nccl *old, uint64_t deadline_ns) {
    cdp__nc_settings config = cdp__nccl_settings();
    const bool broken = cdp_group_status(old->group) != CDP_OK;
    int *lost = (int *)cdp__alloc(b->os, old->size * sizeof *lost), n = 0, r;
    cdp__nccl_cell *cell = (cdp__nccl_cell *)cdp__alloc_zero(old->os, sizeof *cell);
    cdp_status st;
    uint32_t i;
    if (!lost || !cell) {
        cdp__free(b->os, lost);
        cdp__free(old->os, cell);
        return cdp__fail_nomem("a list of ranks", old->size * sizeof *lost);
    }
    for (i = 0; i < old->size; ++i)
        if (cdp_rank_of_world(b->group, cdp_world_rank_of(old->group, i)) == UINT32_MAX)
            lost[n++] = (int)i;
    if (!n) { /* no rank is missing; NCCL refuses to shrink by none */
        cdp__free(b->os, lost);
        cdp__free(old->os, cell);
        return cdp__nccl_init(b, deadline_ns);
    }
    /* its own thread must abort it first; NCCL's errors about it no longer matter */
    if (broken) {
        cdp__nccl_by_hand(old);
        (void)cdp__nccl_await(old, &old->aborted, CDP__NCCL_LEAVE_MS);
    }
    r = (int)cdp__nc.ncclCommShrink(old->comm, lost, n, &cell->comm,
        (cdp__nc_config *)(void *)&config, broken ? CDP__NC_SHRINK_ABORT : 0);
    cdp__free(b->os, lost);
    st = cdp__nccl_made(b, old, cell, r, &b->comm, deadline_ns, "cdp_nccl_attach: ncclCommShrink");
    return st == CDP_OK
        ? cdp__nccl_settle(b, b->comm, deadline_ns, "cdp_nccl_attach: ncclCommShrink")
        : st;
}

CDP__PRIVATE cdp_status cdp__nccl_grow(cdp__nccl *b, cdp__nccl *old, uint64_t deadline_ns) {
    cdp__nc_settings config = cdp__nccl_settings();
    cdp__nccl_cell *cell = NULL;
    cdp__nc_id id;
    cdp_status st;
    int r = 0;
    memset(&id, 0, sizeof id);
    if (b->rank == 0) r = (int)cdp__nc.ncclCommGetUniqueId(old->comm, &id);
    if (r != 0) {
        (void)cdp__nccl_nccl_failed(r, "cdp_nccl_attach: ncclCommGetUniqueId");
        cdp_group_fail(b->group); /* other ranks wait for this broadcast */
        return cdp_group_status(b->group);
    }
    st = cdp_broadcast(b->group, &id, sizeof id, CDP_DTYPE_U8, 0);
    if (st != CDP_OK) return st;
    if (old && !(cell = (cdp__nccl_cell *)cdp__alloc_zero(old->os, sizeof *cell)))
        return cdp__fail_nomem("a communicator", sizeof *cell);
    r = (int)cdp__nc.ncclCommGrow(old ? old->comm : NULL, (int)b->size, old && b->rank ? NULL : &id,
        old ? -1 : (int)b->rank, old ? &cell->comm : &b->comm, (cdp__nc_config *)(void *)&config);
    if (!old && r != 0 && r != CDP__NC_IN_PROGRESS)
        return cdp__nccl_refused(r, "cdp_nccl_attach: ncclCommGrow");
    st = old
        ? cdp__nccl_made(b, old, cell, r, &b->comm, deadline_ns, "cdp_nccl_attach: ncclCommGrow")
        : CDP_OK;
    return st == CDP_OK ? cdp__nccl_settle(b, b->comm, deadline_ns, "cdp_nccl_attach: ncclCommGrow")
                        : st;
}

/* ---- >>nccl/kernels: kernels that NVRTC compiles --------------------------------------------- */

/* Knows: sources for NVRTC. Promises: each is compiled once per device, and a failure is reported
   with its reason. */

/* cdp_cast_A_B: out[i] = in[i] * factor, also for equal dtypes. cdp_sumsq_A: one sum of squares
   per thread, so that the order of additions, and with it the result, is the same on every rank.
   16-bit floats round to nearest even. */
CDP__PRIVATE const char *cdp__nccl_source(void) {
    return "typedef unsigned long long u64;\n"
           "static __device__ float get_f16(unsigned short h) {\n"
           "    const unsigned m = h & 0x7fffu;\n"
           "    const float f = m >= 0x7c00u ? __uint_as_float(0x7f800000u | (m & 0x3ffu) << 13) : "
           "m >= 0x400u ? __uint_as_float((m << 13) + (112u << 23)) : (float)m * "
           "5.9604644775390625e-8f;\n"
           "    return h & 0x8000u ? -f : f;\n"
           "}\n"
           "static __device__ unsigned short put_f16(float x) {\n"
           "    const unsigned u = __float_as_uint(x), s = u >> 16 & 0x8000u;\n"
           "    unsigned m = u & 0x7fffffffu;\n"
           "    if (m > 0x7f800000u) return (unsigned short)(s | 0x7e00u);\n"
           "    if (m >= 0x477ff000u) return (unsigned short)(s | 0x7c00u);\n"
           "    if (m < 0x38800000u) return (unsigned short)(s | "
           "(__float_as_uint(__uint_as_float(m) + 0.5f) - 0x3f000000u));\n"
           "    m += 0xfffu + (m >> 13 & 1u);\n"
           "    return (unsigned short)(s | (m - (112u << 23)) >> 13);\n"
           "}\n"
           "static __device__ float get_bf16(unsigned short h) { return "
           "__uint_as_float((unsigned)h << 16); }\n"
           "static __device__ unsigned short put_bf16(float x) {\n"
           "    const unsigned u = __float_as_uint(x);\n"
           "    return (unsigned short)((u & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : (u + 0x7fffu + "
           "(u >> 16 & 1u)) >> 16);\n"
           "}\n"
           "#define T_f32 float\n#define T_f64 double\n#define T_f16 unsigned short\n#define "
           "T_bf16 unsigned short\n"
           "#define W_f32 float\n#define W_f64 double\n#define W_f16 float\n#define W_bf16 float\n"
           "#define get_f32(x) (x)\n#define get_f64(x) (x)\n#define put_f32(x) "
           "((float)(x))\n#define put_f64(x) ((double)(x))\n"
           "#define CAST(a, b) extern \"C\" __global__ void cdp_cast_##a##_##b(const T_##a *in, "
           "T_##b *out, u64 n, double factor) {\\\n"
           "    u64 i;\\\n"
           "    for (i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (u64)gridDim.x * "
           "blockDim.x) out[i] = put_##b(get_##a(in[i]) * (W_##a)factor);\\\n"
           "}\n"
           "#define SUMSQ(a) extern \"C\" __global__ void cdp_sumsq_##a(const T_##a *in, double "
           "*partial, u64 n) {\\\n"
           "    double sum = 0;\\\n"
           "    u64 i;\\\n"
           "    for (i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (u64)gridDim.x * "
           "blockDim.x) { const double x = (double)get_##a(in[i]); sum += x * x; }\\\n"
           "    partial[blockIdx.x * blockDim.x + threadIdx.x] = sum;\\\n"
           "}\n";
}

/* Kernels of hooks, for f32. Each thread writes to its own locations, and only integers are
   added atomically, so the result does not depend on the order of threads. state: the bits of
   the k-th largest magnitude found so far, and its rank among the values that begin with these
   bits. For 16384 chunks of the bucket, and for groups of 128 chunks: how many values are above
   it, and equal to it. */
#ifndef CDP_NO_HOOKS
static const char cdp__nccl_hook_source[] =
    "typedef unsigned long long u64;\ntypedef unsigned u32;\ntypedef unsigned char u8;\n"
    "#define EACH(i, n) for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < (n); i "
    "+= (u64)gridDim.x * blockDim.x)\n"
    "#define KERNEL extern \"C\" __global__ void\n"
    "#define SIZE(x) (__float_as_uint(x) & 0x7fffffffu)\n"
    "#define INFINITE 0x7f800000u\n"
    "#define NOT_A_NUMBER 0x7fc00000u\n"
    "KERNEL cdp_feed(float *x, float *error, u64 n, int add) { EACH(i, n) error[i] = x[i] "
    "+= add ? error[i] : 0; }\n"
    "KERNEL cdp_begin(u32 *state, u32 k) { EACH(i, 1) state[0] = 0, state[1] = k; }\n"
    "KERNEL cdp_counts(const float *x, u64 n, const u32 *state, u32 *counts, int top, int "
    "shift) {\n"
    "    EACH(i, n) if (SIZE(x[i]) >> top == state[0] >> top) atomicAdd(&counts[blockIdx.x "
    "* 256 + (SIZE(x[i]) >> shift & 255u)], 1u);\n"
    "}\n"
    "KERNEL cdp_sum(u32 *counts, u32 copies) { EACH(d, 256) for (u32 c = 1; c < copies; "
    "++c) counts[d] += counts[c * 256 + d]; }\n"
    "KERNEL cdp_pick(const u32 *counts, u32 *state, int shift) {\n"
    "    EACH(i, 1) {\n"
    "        u32 d = 255, k = state[1];\n"
    "        while (d && counts[d] <= k) k -= counts[d--];\n"
    "        state[0] |= d << shift, state[1] = k;\n"
    "    }\n"
    "}\n"
    "KERNEL cdp_parts(const float *x, u64 n, const u32 *state, u32 *parts) {\n"
    "    const u64 per = (n + 16383) / 16384;\n"
    "    EACH(t, 16384) {\n"
    "        u32 above = 0, same = 0;\n"
    "        for (u64 i = t * per; i < n && i < (t + 1) * per; ++i) above += SIZE(x[i]) > "
    "state[0], same += SIZE(x[i]) == state[0];\n"
    "        parts[2 * t] = above, parts[2 * t + 1] = same;\n"
    "    }\n"
    "}\n"
    "KERNEL cdp_groups(const u32 *parts, u32 *groups) {\n"
    "    EACH(g, 128) {\n"
    "        u32 above = 0, same = 0;\n"
    "        for (u64 t = g * 128; t < (g + 1) * 128; ++t) above += parts[2 * t], same += "
    "parts[2 * t + 1];\n"
    "        groups[2 * g] = above, groups[2 * g + 1] = same;\n"
    "    }\n"
    "}\n"
    "KERNEL cdp_write(const float *x, float *error, u64 n, const u32 *state, const u32 "
    "*parts, const u32 *groups, u32 *own) {\n"
    "    const u64 per = (n + 16383) / 16384;\n"
    "    const u32 limit = state[0], quota = state[1] + 1;\n"
    "    EACH(t, 16384) {\n"
    "        u32 above = 0, same = 0;\n"
    "        for (u64 g = 0; g < t / 128; ++g) above += groups[2 * g], same += groups[2 * g "
    "+ 1];\n"
    "        for (u64 c = t / 128 * 128; c < t; ++c) above += parts[2 * c], same += parts[2 "
    "* c + 1];\n"
    "        for (u64 i = t * per; i < n && i < (t + 1) * per; ++i) {\n"
    "            const u32 m = SIZE(x[i]), at = above + (same < quota ? same : quota);\n"
    "            if (m > limit || (m == limit && same < quota)) own[2 * at] = (u32)i, own[2 "
    "* at + 1] = __float_as_uint(x[i]), error[i] = 0;\n"
    "            if (m >= INFINITE) error[i] = 0;\n"
    "            above += m > limit, same += m == limit;\n"
    "        }\n"
    "    }\n"
    "}\n"
    "KERNEL cdp_add(float *x, u64 n, const u32 *pairs, u64 k) { EACH(i, k) if (pairs[2 * i] "
    "< n) x[pairs[2 * i]] += __uint_as_float(pairs[2 * i + 1]); }\n"
    "KERNEL cdp_divide(float *x, u64 n, float by) { EACH(i, n) x[i] /= by; }\n";
#endif
CDP__PRIVATE const char *cdp__nccl_quantize_source(void) {
    return "static __device__ float whole(float v) {\n"
           "    const float x = v > 1024 ? 1024 : v >= -1024 ? v : -1024;\n"
           "    const int w = (int)x, odd = w & 1;\n"
           "    const float rest = x - (float)w;\n"
           "    return (float)(w + ((rest > 0.5f) | ((rest == 0.5f) & odd)) - ((rest < -0.5f) | "
           "((rest == -0.5f) & odd)));\n"
           "}\n"
           "KERNEL cdp_range_parts(const float *x, u64 n, u64 row, u64 rows, u64 parts, float "
           "*out) {\n"
           "    EACH(t, rows * parts) {\n"
           "        const u64 r = t / parts, end = (r + 1) * row < n ? (r + 1) * row : n;\n"
           "        float low = 0, high = 0;\n"
           "        u32 most = 0;\n"
           "        for (u64 i = r * row + t % parts; i < end; i += parts) low = x[i] < low ? x[i] "
           ": low, high = x[i] > high ? x[i] : high, most = SIZE(x[i]) > most ? SIZE(x[i]) : "
           "most;\n"
           "        out[2 * t] = low, out[2 * t + 1] = most < INFINITE ? high : "
           "__uint_as_float(NOT_A_NUMBER);\n"
           "    }\n"
           "}\n"
           "KERNEL cdp_range(const float *in, u64 rows, u64 parts, float *ranges) {\n"
           "    EACH(r, rows) {\n"
           "        float low = 0, high = 0, scale, zero;\n"
           "        u32 most = 0;\n"
           "        for (u64 t = r * parts; t < (r + 1) * parts; ++t) low = in[2 * t] < low ? in[2 "
           "* t] : low, high = in[2 * t + 1] > high ? in[2 * t + 1] : high, most = SIZE(in[2 * t "
           "+ 1]) > most ? SIZE(in[2 * t + 1]) : most;\n"
           "        scale = (high - low) / 255.0f;\n"
           "        if (!(scale >= 1.1920929e-07f)) scale = 1.1920929e-07f;\n"
           "        if (most >= INFINITE) scale = __uint_as_float(NOT_A_NUMBER);\n"
           "        zero = 0 - whole(low / scale);\n"
           "        ranges[2 * r] = scale, ranges[2 * r + 1] = zero < 0 ? 0 : zero > 255 ? 255 : "
           "zero;\n"
           "    }\n"
           "}\n"
           "KERNEL cdp_quantize(const float *x, u64 n, u64 row, const float *ranges, u8 *q, u64 "
           "padded) {\n"
           "    EACH(i, padded) {\n"
           "        const float *range = ranges + 2 * (i / row), v = i < n ? whole(x[i] / "
           "range[0]) + range[1] : 0;\n"
           "        q[i] = (u8)(int)(v < 0 ? 0 : v > 255 ? 255 : v);\n"
           "    }\n"
           "}\n"
           "KERNEL cdp_dequantize(float *x, u64 n, u64 row, u64 rows, const float *ranges, const "
           "u8 *q, u64 padded, u32 world, float by) {\n"
           "    EACH(i, n) {\n"
           "        float sum = 0;\n"
           "        for (u64 w = 0; w < world; ++w) {\n"
           "            const float *range = ranges + 2 * (w * rows + i / row);\n"
           "            sum += range[0] * ((float)q[w * padded + i] - range[1]);\n"
           "        }\n"
           "        x[i] = sum / by;\n"
           "    }\n"
           "}\n";
}

#define CDP__NCCL_THREADS 256u
#define CDP__NCCL_BLOCKS 512u
#define CDP__NCCL_SUM_BLOCKS 16u

/* Returns an error if the kernels know nothing of the dtype. */
CDP__PRIVATE CDP__COLD cdp_status cdp__nccl_kernel_check(cdp_dtype t) {
    char list[80];
    cdp__text text = cdp__text_of(list, sizeof list);
    uint32_t i;
    if (cdp__nccl_has_kernels(t)) return CDP_OK;
    for (i = 0; i < CDP__NCCL_FLOATS; ++i)
        cdp__text_add(&text, "%s%s", i ? ", " : "", cdp_dtype_name(cdp__nccl_float(i)));
    return cdp__fail(CDP_ERR_UNSUPPORTED,
        "gradients in device memory have a dtype of %s, and not %s", list, cdp_dtype_name(t));
}

CDP__PRIVATE cdp_status cdp__nccl_rtc_failed(int result, cdp__rtc_program program) {
    char log[300] = "";
    size_t bytes = 0;
    if (program && cdp__nc.nvrtcGetProgramLogSize(program, &bytes) == 0 && bytes
        && bytes <= sizeof log)
        (void)cdp__nc.nvrtcGetProgramLog(program, log);
    return cdp__fail(CDP_ERR_IO, "compiling kernels: NVRTC says: %s (%d) %s",
        cdp__nc.nvrtcGetErrorString((cdp__rtc_result)result), result, log);
}

/* Compiles source to machine code for this GPU; free it with cdp__free. Products and sums are
   rounded separately (no fused multiply-add), as on the host. */
CDP__PRIVATE cdp_status cdp__nccl_compile(cdp__nccl *b, const char *source, char **code) {
    int major = 0, minor = 0, r;
    char arch[40];
    const char *options[2] = {arch, "--fmad=false"};
    cdp__rtc_program program = NULL;
    size_t bytes = 0;
    cdp_status st = CDP_OK;
    *code = NULL;
    (void)cdp__nc.cudaDeviceGetAttribute(&major, (cdp__cu_attr)CDP__CU_MAJOR, b->device);
    (void)cdp__nc.cudaDeviceGetAttribute(&minor, (cdp__cu_attr)CDP__CU_MINOR, b->device);
    cdp__format(arch, sizeof arch, "--gpu-architecture=sm_%d%d", major, minor);
    r = (int)cdp__nc.nvrtcCreateProgram(&program, source, "cdp_nccl.cu", 0, NULL, NULL);
    if (r == 0) r = (int)cdp__nc.nvrtcCompileProgram(program, 2, options);
    if (r == 0) r = (int)cdp__nc.nvrtcGetCUBINSize(program, &bytes);
    if (r == 0 && !(*code = (char *)cdp__alloc(b->os, bytes)))
        st = cdp__fail_nomem("kernels", bytes);
    if (r == 0 && st == CDP_OK) r = (int)cdp__nc.nvrtcGetCUBIN(program, *code);
    if (r != 0) st = cdp__nccl_rtc_failed(r, program);
    if (program) (void)cdp__nc.nvrtcDestroyProgram(&program);
    return st;
}

/* Compiles and loads a module, and looks up kernels by their names, each followed by a blank.
   Once per group, on first use; not inside a capture. */
CDP__PRIVATE CDP__COLD cdp_status cdp__nccl_load_kernels(
    cdp__nccl *b, void **module, const char *source, const char *names, void **kernels) {
    char name[40], *code;
    uint32_t n;
    int r;
    cdp_status st;
    if (*module) return CDP_OK;
    if (cdp__nccl_capturing(b->caller))
        return cdp__fail(CDP_ERR_STATE,
            "kernels are compiled when they are first needed, which is not possible inside a "
            "capture; do one step before it");
    st = cdp__nccl_load(b->os, &b->desc, true);
    if (st != CDP_OK) return st;
    st = cdp__nccl_compile(b, source, &code);
    if (st != CDP_OK) {
        cdp__free(b->os, code);
        return st;
    }
    r = cdp__nc.cuModuleLoadData(module, code);
    cdp__free(b->os, code);
    for (; *names && r == 0; ++names, ++kernels) {
        for (n = 0; *names != ' '; ++names)
            name[n++] = *names;
        name[n] = 0;
        r = cdp__nc.cuModuleGetFunction(kernels, *module, name);
    }
    if (r == 0) return CDP_OK;
    if (*module) (void)cdp__nc.cuModuleUnload(*module);
    *module = NULL;
    return cdp__fail(CDP_ERR_IO, "loading kernels: the CUDA driver says error %d", r);
}

#define CDP__NCCL_NAMES (CDP__NCCL_FLOATS * (CDP__NCCL_FLOATS + 1) * 24) /* bytes of their names */
#define CDP__NCCL_SOURCE (CDP__NCCL_NAMES + 6000)

/* Writes the source of the kernels of b->cast, for the float rows of src/dtype/dtype.h, and their
   names: from each dtype to each, then sums of squares of each. A dtype for which the source has
   no get_ and put_ does not compile. */
CDP__PRIVATE CDP__COLD void cdp__nccl_cast_source(
    char source[CDP__NCCL_SOURCE], char names[CDP__NCCL_NAMES]) {
    cdp__text code = cdp__text_of(source, CDP__NCCL_SOURCE);
    cdp__text list = cdp__text_of(names, CDP__NCCL_NAMES);
    uint32_t from, to;
    cdp__text_add(&code, "%s", cdp__nccl_source());
    for (from = 0; from < CDP__NCCL_FLOATS; ++from)
        for (to = 0; to < CDP__NCCL_FLOATS; ++to) {
            const char *in = cdp_dtype_name(cdp__nccl_float(from));
            const char *out = cdp_dtype_name(cdp__nccl_float(to));
            cdp__text_add(&code, "CAST(%s, %s)\n", in, out);
            cdp__text_add(&list, "cdp_cast_%s_%s ", in, out);
        }
    for (from = 0; from < CDP__NCCL_FLOATS; ++from) {
        const char *in = cdp_dtype_name(cdp__nccl_float(from));
        cdp__text_add(&code, "SUMSQ(%s)\n", in);
        cdp__text_add(&list, "cdp_sumsq_%s ", in);
    }
}

CDP__PRIVATE cdp_status cdp__nccl_kernels(cdp__nccl *b) {
    char source[CDP__NCCL_SOURCE], names[CDP__NCCL_NAMES];
    if (b->module[0]) return CDP_OK;
    cdp__nccl_cast_source(source, names);
    return cdp__nccl_load_kernels(b, &b->module[0], source, names, b->cast);
}

CDP__PRIVATE uint32_t cdp__nccl_blocks(uint64_t n) {
    return (uint32_t)cdp__max(
        cdp__min((n + CDP__NCCL_THREADS - 1) / CDP__NCCL_THREADS, CDP__NCCL_BLOCKS), 1);
}

/* Launches a kernel over n values, with a thread for each up to a limit (the kernel loops over the
   rest). Does nothing if *st says that an earlier launch has failed. */
CDP__PRIVATE void cdp__nccl_run(
    cdp_status *st, void *kernel, uint64_t n, cdp__cu_stream stream, void **arguments) {
    int r;
    if (*st != CDP_OK) return;
    r = cdp__nc.cuLaunchKernel(
        kernel, cdp__nccl_blocks(n), 1, 1, CDP__NCCL_THREADS, 1, 1, 0, stream, arguments, NULL);
    if (r != 0) *st = cdp__fail(CDP_ERR_IO, "starting a kernel: the CUDA driver says error %d", r);
}

/* out = in * factor, converted to another dtype or the same. */
CDP__PRIVATE cdp_status cdp__nccl_cast(cdp__nccl *b, cdp_dtype from, const void *in, cdp_dtype to,
    void *out, uint64_t count, double factor, cdp__cu_stream stream) {
    unsigned long long n = count;
    void *arguments[4];
    cdp_status st = cdp__nccl_kernel_check(from);
    if (st == CDP_OK) st = cdp__nccl_kernel_check(to);
    if (st == CDP_OK) st = cdp__nccl_kernels(b);
    if (!count) return st;
    arguments[0] = (void *)&in;
    arguments[1] = (void *)&out;
    arguments[2] = (void *)&n;
    arguments[3] = (void *)&factor;
    cdp__nccl_run(&st,
        b->cast[cdp__nccl_float_index(from) * CDP__NCCL_FLOATS + cdp__nccl_float_index(to)], count,
        stream, arguments);
    return st;
}

/* ---- >>nccl/backend: requests of cdp.h, run by NCCL ------------------------------------------ */

/* Knows: requests of cdp.h. Promises: what cdp_backend says; what NCCL does not support is refused
   before anything starts. */

CDP__PRIVATE int cdp__nccl_owns(void *self, const void *data) {
    const cdp__nccl *b = (const cdp__nccl *)self;
    cdp__cu_pointer where;
    cdp__cu_error e;
    int type, device;
    memset(&where, 0, sizeof where);
    e = cdp__nc.cudaPointerGetAttributes(&where, data);
    if (e != 0) return (int)cdp__nccl_cuda_failed(e, "asking whose memory this is");
    type = (int)where.type;
    device = where.device;
    if (type != CDP__CU_MANAGED_MEMORY && type != CDP__CU_DEVICE_MEMORY) return 0;
    if (type == CDP__CU_MANAGED_MEMORY || device == b->device)
        return cdp__nccl_right_device(b) == CDP_OK ? 1 : (int)cdp_last_error()->status;
    return (int)cdp__fail(CDP_ERR_INVALID,
        "memory of device %d was given to a group on device %d; allocate it while "
        "cudaSetDevice(%d) is in effect",
        device, b->device, b->device);
}

/* Returns an error if NCCL does not support the request. */
CDP__PRIVATE cdp_status cdp__nccl_check(const cdp__nccl *b, const cdp_request *rq) {
    const int type = cdp__nccl_type(rq->dtype, b->version);
    if (!cdp__kind_is(rq->kind, CDP__KIND_NCCL))
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "%s in device memory: NCCL has no such collective; copy the data to host memory",
            cdp_coll_name(rq->kind));
    if (!cdp__kind_reduces(rq->kind)) return CDP_OK; /* bytes are only copied */
    if (cdp_dtype_size(rq->dtype) == 1 && cdp__dtype_is_float(rq->dtype) && type >= 0
        && b->capability < 90)
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "%s in device memory: NCCL reduces %s on devices of compute capability 9.0 and later "
            "only, and a rank of the group has %d.%d; reduce f16 or bf16",
            cdp_coll_name(rq->kind), cdp_dtype_name(rq->dtype), b->capability / 10,
            b->capability % 10);
    if (type >= 0 && cdp__nccl_reduction(rq->dtype, rq->op) >= 0) return CDP_OK;
    return cdp__fail(CDP_ERR_UNSUPPORTED, "%s in device memory: NCCL %d.%d has no %s of %s",
        cdp_coll_name(rq->kind), b->version / 10000, b->version / 100 % 100,
        cdp_reduce_name(rq->op), cdp_dtype_name(rq->dtype));
}

/* A request in terms of NCCL. */
typedef struct cdp__nccl_call {
    cdp__nccl *b;
    const cdp_request *rq;
    uint64_t size;     /* bytes of an element */
    uint8_t *in, *out; /* in == out: in place */
    uint64_t bytes;    /* bytes of `count` elements */
    cdp__nc_type type;
    cdp__nc_op op;
    bool made; /* `op` must be destroyed */
} cdp__nccl_call;

/* Where part r begins, and its length, in bytes. */
CDP__PRIVATE uint64_t cdp__nccl_part_at(
    const cdp__nccl_call *c, const uint64_t *counts, uint32_t r, uint64_t *bytes) {
    uint64_t at = 0;
    uint32_t i;
    *bytes = (counts ? counts[r] : c->rq->count) * c->size;
    if (!counts) return r * c->bytes;
    for (i = 0; i < r; ++i)
        at += counts[i];
    return at * c->size;
}

#define CDP__NC_BYTES ((cdp__nc_type)0) /* ncclInt8 */

CDP__PRIVATE int cdp__nccl_send(
    const cdp__nccl_call *c, const uint8_t *from, uint64_t bytes, uint32_t to) {
    return bytes ? (int)cdp__nc.ncclSend(
               from, (size_t)bytes, CDP__NC_BYTES, (int)to, c->b->comm, c->b->stream)
                 : 0;
}
CDP__PRIVATE int cdp__nccl_recv(
    const cdp__nccl_call *c, uint8_t *to, uint64_t bytes, uint32_t from) {
    return bytes ? (int)cdp__nc.ncclRecv(
               to, (size_t)bytes, CDP__NC_BYTES, (int)from, c->b->comm, c->b->stream)
                 : 0;
}

/* Starts collectives with parts of different lengths, and those that not all versions of NCCL
   have. */
CDP__PRIVATE int cdp__nccl_issue_parts(const cdp__nccl_call *c) {
    const cdp_request *rq = c->rq;
    cdp__nccl *b = c->b;
    uint64_t at, bytes, to, to_bytes;
    uint32_t r;
    int e = 0;
    for (r = 0; r < b->size && e == 0; ++r) {
        const bool me = r == b->rank;
        at = cdp__nccl_part_at(c, rq->in_counts, r, &bytes);
        to = cdp__nccl_part_at(c, rq->out_counts, r, &to_bytes);
        switch (rq->kind) {
        case CDP_COLL_ALLGATHER:
            if (to_bytes)
                e = (int)cdp__nc.ncclBroadcast(me && c->in != c->out ? c->in : c->out + to,
                    c->out + to, (size_t)to_bytes, CDP__NC_BYTES, (int)r, b->comm, b->stream);
            break;
        case CDP_COLL_REDUCE_SCATTER:
            if (bytes) {
                uint8_t *result = c->in == c->out ? c->out + at : c->out;
                e = (int)cdp__nc.ncclReduce(c->in + at, me ? result : NULL,
                    (size_t)(bytes / c->size), c->type, c->op, (int)r, b->comm, b->stream);
            }
            break;
        case CDP_COLL_GATHER:
            if (b->rank == rq->root && !me)
                e = cdp__nccl_recv(c, c->out + to, to_bytes, r);
            else if (me && b->rank != rq->root)
                e = cdp__nccl_send(c, c->in, to_bytes, rq->root);
            break;
        case CDP_COLL_SCATTER:
            if (b->rank == rq->root && !me)
                e = cdp__nccl_send(c, c->in + at, bytes, r);
            else if (me && b->rank != rq->root)
                e = cdp__nccl_recv(c, c->out, bytes, rq->root);
            break;
        case CDP_COLL_ALLTOALL:
            if (me) break;
            e = cdp__nccl_send(c, c->in + at, bytes, r);
            if (e == 0 || e == CDP__NC_IN_PROGRESS) e = cdp__nccl_recv(c, c->out + to, to_bytes, r);
            break;
        default: return CDP__NC_INVALID; /* cdp__nccl_check() has refused it */
        }
        if (e == CDP__NC_IN_PROGRESS) e = 0;
    }
    return e;
}

CDP__PRIVATE int cdp__nccl_issue(const cdp__nccl_call *c) {
    const cdp_request *rq = c->rq;
    cdp__nccl *b = c->b;
    const size_t n = (size_t)rq->count, bytes = (size_t)c->bytes;
    if (rq->in_counts || rq->out_counts) return cdp__nccl_issue_parts(c);
    switch (rq->kind) {
    case CDP_COLL_ALLREDUCE:
        return (int)cdp__nc.ncclAllReduce(c->in, c->out, n, c->type, c->op, b->comm, b->stream);
    case CDP_COLL_BROADCAST:
        return (int)cdp__nc.ncclBroadcast(
            c->out, c->out, bytes, CDP__NC_BYTES, (int)rq->root, b->comm, b->stream);
    case CDP_COLL_REDUCE:
        return (int)cdp__nc.ncclReduce(c->in, b->rank == rq->root ? c->out : NULL, n, c->type,
            c->op, (int)rq->root, b->comm, b->stream);
    case CDP_COLL_ALLGATHER:
        return (int)cdp__nc.ncclAllGather(c->in == c->out ? c->out + b->rank * c->bytes : c->in,
            c->out, bytes, CDP__NC_BYTES, b->comm, b->stream);
    case CDP_COLL_REDUCE_SCATTER:
        return (int)cdp__nc.ncclReduceScatter(c->in,
            c->in == c->out ? c->out + b->rank * c->bytes : c->out, n, c->type, c->op, b->comm,
            b->stream);
    default: return cdp__nccl_issue_parts(c);
    }
}

/* Copies this rank's own part, for collectives that are made of sends and receives. */
CDP__PRIVATE cdp_status cdp__nccl_own_part(const cdp__nccl_call *c) {
    const cdp_request *rq = c->rq;
    const cdp__nccl *b = c->b;
    uint64_t at, bytes, to, to_bytes;
    cdp__cu_error e;
    if (c->in == c->out
        || (rq->kind != CDP_COLL_ALLTOALL
            && ((rq->kind != CDP_COLL_GATHER && rq->kind != CDP_COLL_SCATTER)
                || rq->root != b->rank)))
        return CDP_OK;
    at = cdp__nccl_part_at(c, rq->in_counts, b->rank, &bytes);
    to = cdp__nccl_part_at(c, rq->out_counts, b->rank, &to_bytes);
    if (rq->kind == CDP_COLL_GATHER) {
        at = 0;
        bytes = to_bytes;
    }
    if (rq->kind == CDP_COLL_SCATTER) to = 0;
    e = bytes ? cdp__nc.cudaMemcpyAsync(
            c->out + to, c->in + at, (size_t)bytes, (cdp__cu_copy)CDP__CU_COPY_ANY, b->stream)
              : (cdp__cu_error)0;
    return e == 0 ? CDP_OK : cdp__nccl_cuda_failed(e, "copying this rank's own part");
}

CDP__PRIVATE cdp_status cdp__nccl_prepare(cdp__nccl *b, const cdp_request *rq, cdp__nccl_call *c) {
    uint8_t scalar[8];
    int r;
    c->b = b;
    c->rq = rq;
    c->size = cdp_dtype_size(rq->dtype);
    c->out = (uint8_t *)rq->out;
    c->in = rq->in ? (uint8_t *)(uintptr_t)rq->in : c->out;
    c->bytes = rq->count * c->size;
    c->type = (cdp__nc_type)cdp__nccl_type(rq->dtype, b->version);
    c->op = (cdp__nc_op)cdp__nccl_reduction(rq->dtype, rq->op);
    c->made = false;
    if (!cdp__kind_reduces(rq->kind) || rq->op != CDP_REDUCE_PREMUL_SUM) return CDP_OK;
    cdp__nccl_scalar(rq->dtype, rq->factor, scalar);
    r = (int)cdp__nc.ncclRedOpCreatePreMulSum(
        &c->op, scalar, c->type, (cdp__nc_residence)CDP__NC_HOST_SCALAR, b->comm);
    c->made = r == 0;
    return r == 0 ? CDP_OK : cdp__nccl_nccl_failed(r, "ncclRedOpCreatePreMulSum");
}

/* Takes the next entry of the ring for an operation about to start; from here on its number is
   valid. */
CDP__PRIVATE cdp__nccl_op *cdp__nccl_next(cdp__nccl *b, bool capture, uint64_t *number) {
    cdp__nccl_op *op;
    cdp_lock_acquire(&b->lock);
    *number = capture ? ++b->captures : ++b->issued;
    op = (capture ? b->captured : b->ring) + *number % CDP__NCCL_RING;
    op->index = *number;
    op->deadline_ns = CDP__NEVER; /* set when it has started */
    cdp_lock_release(&b->lock);
    *number = *number << 1 | (capture ? CDP__NCCL_CAPTURED : 0);
    return op;
}

CDP__PRIVATE void cdp__nccl_describe_op(cdp__nccl *b, cdp__nccl_op *op, const cdp_request *rq,
    uint32_t n, uint32_t timeout_ms, bool capture) {
    cdp_lock_acquire(&b->lock);
    op->kind = rq->kind;
    op->dtype = rq->dtype;
    op->op = rq->op;
    op->count = rq->count;
    op->many = n;
    op->timeout_ms = timeout_ms;
    /* if ranks compare calls over the links, that comparison times out first: it names the late
       rank */
    op->deadline_ns = CDP__NEVER;
    if (!capture && timeout_ms != CDP_NO_TIMEOUT) {
        const uint64_t later_ms = b->desc.no_check ? 0 : cdp__max(50, timeout_ms / 16);
        op->deadline_ns = cdp__nccl_now(b) + (timeout_ms + later_ms) * CDP__MS;
    }
    cdp_lock_release(&b->lock);
}

/* Starts operations in one NCCL group, and waits until they are in the stream. */
CDP__PRIVATE cdp_status cdp__nccl_together(cdp__nccl *b, cdp__nccl_call *calls,
    const cdp_transfer *list, uint32_t n, uint64_t deadline_ns) {
    int r = (int)cdp__nc.ncclGroupStart(), last;
    cdp_status st;
    uint32_t i;
    if (r != 0) return cdp__nccl_nccl_failed(r, "ncclGroupStart");
    for (i = 0; i < n && (r == 0 || r == CDP__NC_IN_PROGRESS); ++i) {
        if (calls)
            r = cdp__nccl_issue(&calls[i]);
        else {
            const uint64_t bytes =
                list[i].count * cdp_dtype_size(cdp__def(list[i].dtype, CDP_DTYPE_F32));
            cdp__nccl_call c;
            memset(&c, 0, sizeof c);
            c.b = b;
            r = list[i].receive
                ? cdp__nccl_recv(&c, (uint8_t *)list[i].data, bytes, list[i].peer)
                : cdp__nccl_send(&c, (const uint8_t *)list[i].data, bytes, list[i].peer);
        }
    }
    last = (int)cdp__nc.ncclGroupEnd();
    if (r != 0 && r != CDP__NC_IN_PROGRESS)
        return cdp__nccl_nccl_failed(r, "starting an operation");
    if (last != 0 && last != CDP__NC_IN_PROGRESS)
        return cdp__nccl_nccl_failed(last, "ncclGroupEnd");
    st = cdp__nccl_settle(b, b->comm, deadline_ns, "starting an operation");
    for (i = 0; calls && i < n && st == CDP_OK; ++i)
        st = cdp__nccl_own_part(&calls[i]);
    return st;
}

/* Prepares, starts and marks an operation. The caller must be inside NCCL (cdp__nccl_enter). */
CDP__PRIVATE cdp_status cdp__nccl_launch(cdp__nccl *b, const cdp_request *rqs,
    cdp__nccl_call *calls, const cdp_transfer *list, uint32_t n, uint32_t timeout_ms,
    uint64_t *number) {
    const bool capture = cdp__nccl_capturing(b->caller);
    cdp__nccl_op *op = cdp__nccl_next(b, capture, number);
    cdp_request what;
    cdp_status st = cdp__nccl_failed(b) ? cdp__fail(CDP_ERR_ABORTED, "the communicator was aborted")
                                        : cdp__nccl_after_caller(b);
    uint32_t i;
    memset(&what, 0, sizeof what);
    what.kind = CDP_COLL_SEND;
    for (i = 0; calls && i < n; ++i)
        calls[i].made = false;
    for (i = 0; calls && i < n && st == CDP_OK; ++i)
        st = cdp__nccl_prepare(b, &rqs[i], &calls[i]);
    cdp__nccl_describe_op(b, op, rqs ? rqs : &what, n, timeout_ms, capture);
    if (st == CDP_OK)
        st = cdp__nccl_together(
            b, calls, list, n, cdp__nccl_now(b) + cdp__min(timeout_ms, 1u << 30) * CDP__MS);
    /* after an error the reductions may still be in use; they end with the communicator */
    for (i = 0; calls && i < n && st == CDP_OK; ++i)
        if (calls[i].made) (void)cdp__nc.ncclRedOpDestroy(calls[i].op, b->comm);
    return st == CDP_OK ? cdp__nccl_mark(b, op, capture) : st;
}

/* Checks whether the oldest operation in the ring is late, in case no thread waits for it. */
CDP__PRIVATE cdp_status cdp__nccl_overdue(cdp__nccl *b) {
    const cdp__nccl_op *op =
        b->issued >= CDP__NCCL_RING ? &b->ring[(b->issued + 1) % CDP__NCCL_RING] : &b->ring[1];
    const cdp_status st = b->issued ? cdp__nccl_look(b, op->index << 1) : CDP_OK;
    return st == CDP_PENDING ? CDP_OK : st;
}

/* Ends every start. After a failure, threads of NCCL may still put operations into the stream;
   waits until the abort rules that out, because the caller may free the memory. */
CDP__PRIVATE cdp_status cdp__nccl_begun(cdp__nccl *b, cdp_status st, uint64_t number) {
    cdp__nccl_leave(b);
    if (st == CDP_OK || !number) return st;
    cdp_group_fail(b->group);
    cdp__nccl_by_hand(b);
    (void)cdp__nccl_await(b, &b->aborted, CDP__NCCL_LEAVE_MS);
    /* copies of this rank's own part may still run */
    if (!cdp__nccl_capturing(b->stream))
        (void)cdp__nccl_drain(b, b->all, b->stream, CDP__NCCL_LEAVE_MS);
    return cdp_group_status(b->group) != CDP_OK ? cdp_last_error()->status : st;
}

CDP__PRIVATE cdp_status cdp__nccl_start(
    void *self, const cdp_request *rqs, uint32_t n, uint64_t *number) {
    cdp__nccl *b = (cdp__nccl *)self;
    cdp__nccl_call one, *calls = &one;
    uint32_t i, timeout_ms = rqs[0].timeout_ms;
    cdp_status st = CDP_OK;
    *number = 0;
    for (i = 0; i < n && st == CDP_OK; ++i) {
        st = cdp__nccl_check(b, &rqs[i]);
        if (rqs[i].timeout_ms > timeout_ms) timeout_ms = rqs[i].timeout_ms;
    }
    if (st == CDP_OK) st = cdp__nccl_enter(b);
    if (st != CDP_OK) return st;
    if (n > 1) calls = (cdp__nccl_call *)cdp__alloc(b->os, n * sizeof *calls);
    if (!calls)
        st = cdp__fail_nomem("a list of requests", n * sizeof *calls);
    else if ((st = cdp__nccl_overdue(b)) != CDP_OK)
        *number = 1;
    if (st == CDP_OK && !b->desc.no_check)
        st = cdp_group_compare(b->group, rqs, n, b->desc.check_first);
    if (st == CDP_OK) st = cdp__nccl_launch(b, rqs, calls, NULL, n, timeout_ms, number);
    if (calls != &one) cdp__free(b->os, calls);
    return cdp__nccl_begun(b, st, *number);
}

CDP__PRIVATE cdp_status cdp__nccl_transfer(
    void *self, const cdp_transfer *list, uint32_t n, uint64_t *number) {
    cdp__nccl *b = (cdp__nccl *)self;
    uint32_t i, timeout_ms = 0;
    cdp_status st = CDP_OK;
    *number = 0;
    for (i = 0; i < n && st == CDP_OK; ++i)
        if (list[i].tag)
            st = cdp__fail(CDP_ERR_UNSUPPORTED,
                "device memory: messages between two ranks meet in the order in which they are "
                "started, so tag %u would be ignored; give tag 0",
                list[i].tag);
    if (st == CDP_OK) st = cdp__nccl_enter(b);
    if (st != CDP_OK) return st;
    for (i = 0; i < n; ++i)
        timeout_ms = (uint32_t)cdp__max(timeout_ms, cdp__def(list[i].timeout_ms, b->timeout_ms));
    if ((st = cdp__nccl_overdue(b)) != CDP_OK) *number = 1;
    if (st == CDP_OK) st = cdp__nccl_launch(b, NULL, NULL, list, n, timeout_ms, number);
    return cdp__nccl_begun(b, st, *number);
}

CDP__PRIVATE cdp_status cdp__nccl_wait(void *self, uint64_t number, uint64_t deadline_ns) {
    cdp__nccl *b = (cdp__nccl *)self;
    const bool no_limit = deadline_ns == CDP__NEVER;
    uint32_t naps = 0;
    cdp_status st;
    if (no_limit && !b->desc.blocking_wait) {
        st = cdp__nccl_right_device(b);
        return st == CDP_OK ? cdp__nccl_order(b, number) : st;
    }
    for (;;) {
        st = cdp__nccl_look(b, number);
        if (st != CDP_PENDING || deadline_ns == 0) return st;
        if ((st = cdp_group_status(b->group)) != CDP_OK) return st;
        if (cdp__nccl_now(b) >= deadline_ns) return CDP_PENDING;
        if (cdp_group_desc_of(b->group)->no_thread) (void)cdp_poll(b->group, 0);
        cdp__nccl_nap(b, &naps);
    }
}

CDP__PRIVATE void cdp__nccl_group_failed(void *self, const cdp_error *error) {
    cdp__nccl *b = (cdp__nccl *)self;
    (void)error;
    cdp_lock_acquire(&b->lock);
    cdp__atomic_store_u32(&b->failed, 1, CDP__RELEASE);
    cdp_lock_release(&b->lock);
    cdp__nccl_wake(b);
}

/* ---- >>nccl/memory: device memory for operations --------------------------------------------- */

/* Knows: allocators of CUDA, of NCCL and of the caller. Promises: memory is released to its source
   once no queued work uses it. */

/* Adds memory to the list of the group's memory. */
CDP__PRIVATE void cdp__nccl_memory_keep(cdp__nccl *b, cdp__nccl_memory *m) {
    cdp_lock_acquire(&b->lock);
    m->next = b->memories;
    b->memories = m;
    cdp_lock_release(&b->lock);
}

/* Allocates from NCCL or CUDA, without registering or listing the memory. NULL: see the last
   error. */
CDP__PRIVATE cdp__nccl_memory *cdp__nccl_memory_take(cdp__nccl *b, uint64_t bytes) {
    cdp__nccl_memory *m;
    cdp__cu_error e = (cdp__cu_error)0;
    char what[64];
    int r = 0;
    if (cdp__nccl_right_device(b) != CDP_OK) return NULL;
    if (cdp__nccl_capturing(b->caller)) {
        (void)cdp__fail(CDP_ERR_STATE,
            "device memory cannot be allocated inside a capture; allocate it, or run the first "
            "steps, before the capture");
        return NULL;
    }
    m = (cdp__nccl_memory *)cdp__alloc_zero(b->os, sizeof *m);
    if (!m) {
        (void)cdp__fail_nomem("device memory", bytes);
        return NULL;
    }
    cdp__format(what, sizeof what, "%llu bytes of device memory", (unsigned long long)bytes);
    m->nccl = cdp__nc.ncclMemAlloc && cdp__nc.ncclMemFree;
    if (m->nccl)
        r = (int)cdp__nc.ncclMemAlloc(&m->data, (size_t)bytes);
    else
        e = cdp__nc.cudaMalloc(&m->data, (size_t)bytes);
    if (e == 0 && r == 0) return m;
    if (e != 0) (void)cdp__nccl_cuda_failed(e, what);
    /* NCCL reports any CUDA error here; the only likely one is lack of memory */
    else
        (void)cdp__nccl_fail_with(r == CDP__NC_CUDA ? CDP_ERR_NOMEM : cdp__nccl_status(r), r, what);
    (void)cdp__nc.cudaGetLastError();
    cdp__free(b->os, m);
    return NULL;
}

/* Frees memory that is neither listed nor registered. */
CDP__PRIVATE void cdp__nccl_memory_drop(cdp__nccl *b, cdp__nccl_memory *m) {
    if (m->nccl)
        (void)cdp__nc.ncclMemFree(m->data);
    else
        (void)cdp__nc.cudaFree(m->data);
    (void)cdp__nc.cudaGetLastError();
    cdp__free(b->os, m);
}

/* Registers memory with the communicator on this rank, if this version of NCCL can. A failure is
   an error: NCCL requires the memory of an operation to be registered on all ranks or on none. */
CDP__PRIVATE CDP__COLD cdp_status cdp__nccl_memory_register(
    cdp__nccl *b, cdp__nccl_memory *m, uint64_t bytes) {
    int r = 0;
    if (!m->nccl || !cdp__nc.ncclCommRegister || cdp__nccl_enter(b) != CDP_OK) return CDP_OK;
    if (b->comm && !cdp__nccl_failed(b))
        r = (int)cdp__nc.ncclCommRegister(b->comm, m->data, (size_t)bytes, &m->handle);
    cdp__nccl_leave(b);
    return r ? cdp__nccl_fail_with(cdp__nccl_status(r), r, "ncclCommRegister") : CDP_OK;
}

/* Allocates from NCCL or CUDA, and registers the memory. */
CDP__PRIVATE void *cdp__nccl_memory_own(cdp__nccl *b, uint64_t bytes) {
    cdp__nccl_memory *const m = cdp__nccl_memory_take(b, bytes);
    if (!m) return NULL;
    if (!b->desc.no_register && cdp__nccl_memory_register(b, m, bytes) != CDP_OK) {
        cdp__nccl_memory_drop(b, m);
        return NULL;
    }
    cdp__nccl_memory_keep(b, m);
    return m->data;
}

/* Allocates from the caller's allocator. Not registered, because a pool registers its whole
   segment. */
CDP__PRIVATE void *cdp__nccl_memory_given(cdp__nccl *b, uint64_t bytes, const char *purpose) {
    cdp__nccl_memory *const m = (cdp__nccl_memory *)cdp__alloc_zero(b->os, sizeof *m);
    if (!m) {
        (void)cdp__fail_nomem("device memory", bytes);
        return NULL;
    }
    m->from = b->from;
    m->data = m->from.alloc(m->from.user, bytes, (void *)b->caller, purpose ? purpose : "nccl");
    if (!m->data) {
        cdp__free(b->os, m);
        return NULL;
    }
    cdp__nccl_memory_keep(b, m);
    return m->data;
}

CDP__PRIVATE CDP__COLD void *cdp__nccl_memory_alloc(void *self, uint64_t bytes) {
    cdp__nccl *const b = (cdp__nccl *)self;
    if (!b->from.alloc) return cdp__nccl_memory_own(b, bytes);
    return cdp__nccl_memory_given(b, bytes, *cdp__purpose());
}

/* Waits until both streams are empty: queued work may still use the memory, and not every call
   waits for that (ncclMemFree unmaps at once). False: they do not become empty in time. */
CDP__PRIVATE bool cdp__nccl_unused(cdp__nccl *b) {
    cdp_status st = CDP_OK;
    if (!b->installed) return true;
    if (!cdp__nccl_failed(b) && (st = cdp__nccl_sync_caller(b)) == CDP_OK
        && (st = cdp__nccl_sync(b, b->all, b->stream)) == CDP_OK)
        return true;
    /* a stream with an error has no work left */
    if (!cdp__nccl_failed(b) && cdp_group_status(b->group) == CDP_OK) return st != CDP_ERR_TIMEOUT;
    cdp__nccl_by_hand(b);
    return cdp__nccl_await(b, &b->aborted, CDP__NCCL_LEAVE_MS)
        && cdp__nccl_drain(b, b->begin, b->caller, 2000)
        && cdp__nccl_drain(b, b->all, b->stream, 2000);
}

/* Contribution of one symmetric allocation to the hash of the live ones. */
CDP__PRIVATE uint64_t cdp__nccl_symmetric_part(uint64_t number) {
    return number ? cdp__hash(CDP__HASH_START, &number, sizeof number) : 0;
}

/* The communicator has forgotten this memory. While it knows an allocation, that stays in the
   hash, because the location of later windows depends on it, too. */
CDP__PRIVATE void cdp__nccl_symmetric_forget(cdp__nccl *b, cdp__nccl_memory *m) {
    cdp_lock_acquire(&b->lock);
    b->symmetric_hash -= cdp__nccl_symmetric_part(m->number);
    m->number = 0;
    cdp_lock_release(&b->lock);
}

/* Deregisters unused memory. The calls are local to this rank. False: the communicator may still
   know the memory, because it refused or has failed; it forgets the memory when it ends. */
CDP__PRIVATE bool cdp__nccl_memory_deregister(cdp__nccl *b, const cdp__nccl_memory *m) {
    int r = 0;
    bool known;
    if (!m->handle && !m->window) return true;
    cdp__nccl_hold(b);
    cdp_lock_acquire(&b->lock);
    known = b->comm || (cdp__nccl_failed(b) && !b->aborted); /* being aborted */
    cdp_lock_release(&b->lock);
    if (b->comm && !cdp__nccl_failed(b)) {
        if (m->handle && cdp__nc.ncclCommDeregister)
            r = (int)cdp__nc.ncclCommDeregister(b->comm, m->handle);
        if (m->window && cdp__nc.ncclCommWindowDeregister)
            r = (int)cdp__nc.ncclCommWindowDeregister(b->comm, m->window);
        if (r == CDP__NC_IN_PROGRESS) cdp__nccl_rest(b, b->comm, CDP__NCCL_LEAVE_MS);
        known = r != 0;
    }
    cdp__nccl_leave(b);
    return !known;
}

CDP__PRIVATE CDP__COLD void cdp__nccl_memory_free(void *self, void *data) {
    cdp__nccl *b = (cdp__nccl *)self;
    /* restored: if the group fails meanwhile, its next call reports that */
    const cdp_error e = *cdp_last_error();
    cdp__nccl_memory **at, *m;
    if (!data) return;
    /* freed with the group */
    if (b->installed && (cdp__nccl_capturing(b->caller) || cdp__nccl_capturing(b->stream))) return;
    cdp_lock_acquire(&b->lock);
    for (at = &b->memories; *at && (*at)->data != data; at = &(*at)->next) {
    }
    m = *at;
    if (m) *at = m->next;
    cdp_lock_release(&b->lock);
    if (!m) return;
    if (cdp__nccl_unused(b)) { /* else leaking the memory is better than blocking this thread */
        if (!cdp__nccl_memory_deregister(b, m) && b->installed) {
            cdp__nccl_memory_keep(b, m); /* freed with the group */
            *cdp__error_slot() = e;
            return;
        }
        cdp__nccl_symmetric_forget(b, m);
        if (m->from.alloc)
            m->from.release(m->from.user, m->data);
        else if (m->nccl)
            (void)cdp__nc.ncclMemFree(m->data);
        else
            (void)cdp__nc.cudaFree(m->data);
    }
    cdp__free(b->os, m);
    *cdp__error_slot() = e;
}

CDP__PRIVATE cdp_status cdp__nccl_copy(void *self, void *dst, const void *src, uint64_t bytes) {
    cdp__nccl *b = (cdp__nccl *)self;
    const bool host = cdp__nccl_owns(b, dst) == 0, from_host = !host && cdp__nccl_owns(b, src) == 0;
    cdp_status st = CDP_OK;
    cdp__cu_error e;
    if (host && cdp__nccl_capturing(b->caller))
        return cdp__fail(CDP_ERR_STATE,
            "the host has to read from the device here (find_unused, static_graph, join, clip, "
            "verify), which is not possible inside a capture");
    if (from_host && cdp__nccl_capturing(b->caller))
        return cdp__fail(CDP_ERR_STATE,
            "the host has to write to the device here (find_unused, static_graph, join), which is "
            "not possible inside a capture");
    /* waits with a deadline; a copy to or from pageable memory would wait inside CUDA without
       one, behind work that hangs */
    if (host || from_host) st = cdp__nccl_sync_caller(b);
    if (st != CDP_OK) return st;
    e = cdp__nc.cudaMemcpyAsync(dst, src, (size_t)bytes, (cdp__cu_copy)CDP__CU_COPY_ANY, b->caller);
    if (e != 0) return cdp__nccl_cuda_failed(e, "copying device memory");
    return host || from_host ? cdp__nccl_sync_caller(b) : CDP_OK; /* pinned memory is read later */
}

CDP__PRIVATE cdp_status cdp__nccl_zero(void *self, void *dst, uint64_t bytes) {
    const cdp__cu_error e =
        cdp__nc.cudaMemsetAsync(dst, 0, (size_t)bytes, ((cdp__nccl *)self)->caller);
    return e == 0 ? CDP_OK : cdp__nccl_cuda_failed(e, "zeroing device memory");
}

CDP__PRIVATE cdp_status cdp__nccl_scale(
    void *self, cdp_dtype dtype, void *data, uint64_t count, double factor) {
    cdp__nccl *b = (cdp__nccl *)self;
    return cdp__nccl_cast(b, dtype, data, dtype, data, count, factor, b->caller);
}

CDP__PRIVATE cdp_status cdp__nccl_sum_squares(
    void *self, cdp_dtype dtype, const void *data, uint64_t count, double *sum) {
    static const uint32_t parts = CDP__NCCL_SUM_BLOCKS * CDP__NCCL_THREADS;
    cdp__nccl *b = (cdp__nccl *)self;
    unsigned long long n = count;
    double *host;
    void *arguments[3];
    uint32_t i;
    cdp_status st = cdp__nccl_kernel_check(dtype);
    if (st == CDP_OK) st = cdp__nccl_kernels(b);
    if (st != CDP_OK) return st;
    if (!b->partial) b->partial = (double *)cdp__nccl_memory_own(b, parts * sizeof *host);
    if (!b->partial) return cdp_last_error()->status;
    host = (double *)cdp__alloc(b->os, parts * sizeof *host);
    if (!host) return cdp__fail_nomem("a norm", parts * sizeof *host);
    arguments[0] = (void *)&data;
    arguments[1] = (void *)&b->partial;
    arguments[2] = (void *)&n;
    cdp__nccl_run(&st, b->cast[CDP__NCCL_FLOATS * CDP__NCCL_FLOATS + cdp__nccl_float_index(dtype)],
        parts, b->caller, arguments);
    if (st == CDP_OK) st = cdp__nccl_copy(b, host, b->partial, parts * sizeof *host);
    for (*sum = 0, i = 0; i < parts && st == CDP_OK; ++i)
        *sum += host[i];
    cdp__free(b->os, host);
    return st;
}

/* ---- >>nccl/symmetric: memory that all ranks register together ------------------------------- */

/* Knows: windows of NCCL, which all ranks open together, and whose location depends on the existing
   windows. Promises: no rank calls NCCL before all ranks have agreed to do so with the same size
   and the same existing windows; in the end all ranks have the memory, or none. */

static const char cdp__nccl_symmetric_name[] = "cdp_nccl_alloc_symmetric";

CDP__PRIVATE bool cdp__nccl_has_windows(void) {
    return cdp__nc.ncclCommWindowRegister && cdp__nc.ncclCommWindowDeregister;
}

/* All ranks sent OK: compares their sizes and existing windows. */
CDP__PRIVATE cdp_status cdp__nccl_symmetric_compare(
    const cdp__nccl *b, const cdp__nccl_hello *all) {
    const uint32_t zero = cdp_world_rank_of(b->group, 0);
    uint32_t r;
    for (r = 1; r < b->size; ++r) {
        const uint32_t rank = cdp_world_rank_of(b->group, r);
        if (all[r].bytes != all[0].bytes)
            return cdp__fail_peer(CDP_ERR_MISMATCH, rank, 0,
                "%s: rank %u asks for %llu bytes, rank %u for %llu; give all ranks the same size",
                cdp__nccl_symmetric_name, zero, (unsigned long long)all[0].bytes, rank,
                (unsigned long long)all[r].bytes);
        if (all[r].hash != all[0].hash)
            return cdp__fail_peer(CDP_ERR_MISMATCH, rank, 0,
                "%s: rank %u has not freed the same symmetric memory as rank %u; free it alike on "
                "all ranks, and not inside a capture, before more is allocated",
                cdp__nccl_symmetric_name, rank, zero);
    }
    return CDP_OK;
}

/* The number of ranks that support windows, or have one, according to their messages. */
CDP__PRIVATE uint32_t cdp__nccl_symmetric_windows(const cdp__nccl *b, const cdp__nccl_hello *all) {
    uint32_t n = 0, r;
    for (r = 0; r < b->size; ++r)
        n += all[r].windows;
    return n;
}

/* Calls NCCL, which waits for all ranks. OK without a window: these GPUs do not support it. An
   error fails the group: other ranks are inside NCCL, and the communicator may stay in progress
   for ever. */
CDP__PRIVATE cdp_status cdp__nccl_symmetric_open(cdp__nccl *b, cdp__nccl_memory *m) {
    const uint64_t deadline_ns = cdp__deadline(b->os, b->timeout_ms);
    static const char what[] = "cdp_nccl_alloc_symmetric: ncclCommWindowRegister";
    cdp_status st = cdp__nccl_enter(b);
    int r;
    if (st == CDP_OK) {
        st = cdp__nccl_over(b, what);
        if (st == CDP_OK) {
            m->opening = true;
            r = (int)cdp__nc.ncclCommWindowRegister(
                b->comm, m->data, (size_t)m->bytes, &m->window, CDP__NC_WINDOW_SYMMETRIC);
            st = r == 0 || r == CDP__NC_IN_PROGRESS
                ? cdp__nccl_settle(b, b->comm, deadline_ns, what)
                : cdp__nccl_nccl_failed(r, what);
        }
        cdp__nccl_leave(b);
    }
    m->opening = m->opening && st != CDP_OK;
    return st == CDP_OK ? CDP_OK : cdp__nccl_break(b);
}

CDP__PRIVATE void cdp__nccl_symmetric_warn(cdp__nccl *b, const cdp__nccl_memory *m) {
    char why[96] = "NCCL gives no window, because GPUs cannot reach each other's memory";
    (void)m; /* unused without log texts */
    if (b->symmetric_warned || b->rank != 0) return;
    b->symmetric_warned = true;
    if (!cdp__nccl_has_windows())
        cdp__format(why, sizeof why, "NCCL %d.%d has no ncclCommWindowRegister", b->version / 10000,
            b->version / 100 % 100);
    cdp__log(&cdp_group_desc_of(b->group)->logger, CDP_LOG_WARN, (int32_t)b->rank,
        m->handle ? "%s: memory is registered with ncclCommRegister and not symmetric: %s"
                  : "%s: memory is neither symmetric nor registered: %s",
        cdp__nccl_symmetric_name, why);
}

/* Registers `m` on all ranks. If this rank has no memory, `st` is the reason. */
CDP__PRIVATE cdp_status cdp__nccl_symmetric_register(
    cdp__nccl *b, cdp__nccl_memory *m, cdp_status st, cdp__nccl_hello *all, uint64_t bytes) {
    /* longer than NCCL's call and settling its failure take, so that a rank on which NCCL hangs
       fails the group before other ranks time out here */
    const uint32_t longer = b->timeout_ms > CDP_NO_TIMEOUT / 4
        ? CDP_NO_TIMEOUT
        : 2 * b->timeout_ms + CDP__NCCL_LEAVE_MS;
    cdp__nccl_hello *const mine = &all[b->rank];
    mine->bytes = bytes;
    mine->windows = cdp__nccl_has_windows() ? 1 : 0;
    cdp_lock_acquire(&b->lock);
    mine->hash = b->symmetric_hash;
    cdp_lock_release(&b->lock);
    st = cdp__nccl_gather(b, st, all, cdp__nccl_symmetric_name, 0);
    if (st == CDP_OK) st = cdp__nccl_symmetric_compare(b, all);
    if (st != CDP_OK) return st;
    if (cdp__nccl_symmetric_windows(b, all) == b->size) {
        st = cdp__nccl_symmetric_open(b, m);
        if (st != CDP_OK) return st;
    }
    if (!m->window) st = cdp__nccl_memory_register(b, m, bytes);
    mine->windows = m->window ? 1 : 0;
    st = cdp__nccl_gather(b, st, all, cdp__nccl_symmetric_name, longer);
    if (st != CDP_OK) return st;
    if (cdp__nccl_symmetric_windows(b, all) % b->size)
        return cdp__fail(CDP_ERR_MISMATCH,
            "%s: NCCL gave a window to %u of %u ranks; the same settings of NCCL belong on all",
            cdp__nccl_symmetric_name, cdp__nccl_symmetric_windows(b, all), b->size);
    if (!m->window) cdp__nccl_symmetric_warn(b, m);
    return CDP_OK;
}

/* Releases memory that did not become symmetric. If NCCL may still know it, it is freed with the
   group. */
CDP__PRIVATE void cdp__nccl_symmetric_undo(cdp__nccl *b, cdp__nccl_memory *m) {
    const cdp_error e = *cdp_last_error();
    if (!m->opening && cdp__nccl_memory_deregister(b, m))
        cdp__nccl_memory_drop(b, m);
    else
        cdp__nccl_memory_keep(b, m);
    *cdp__error_slot() = e;
}

CDP__PRIVATE CDP__COLD cdp_status cdp__nccl_symmetric_alloc(
    cdp__nccl *b, uint64_t bytes, void **out) {
    cdp__nccl_hello *const all = (cdp__nccl_hello *)cdp__alloc_zero(b->os, b->size * sizeof *all);
    cdp__nccl_memory *m;
    cdp_status st;
    if (!all) {
        st = cdp__fail_nomem(cdp__nccl_symmetric_name, b->size * sizeof *all);
        cdp_group_fail(b->group); /* other ranks wait for this rank's message */
        return st;
    }
    m = cdp__nccl_memory_take(b, bytes);
    if (m) m->bytes = bytes;
    st = m ? CDP_OK : cdp_last_error()->status;
    st = cdp__nccl_symmetric_register(b, m, st, all, bytes);
    cdp__free(b->os, all);
    if (st != CDP_OK) {
        if (m) cdp__nccl_symmetric_undo(b, m);
        return st;
    }
    m->number = ++b->symmetric_count;
    cdp_lock_acquire(&b->lock);
    b->symmetric_hash += cdp__nccl_symmetric_part(m->number);
    cdp_lock_release(&b->lock);
    cdp__nccl_memory_keep(b, m);
    *out = m->data;
    return CDP_OK;
}

/* ---- >>nccl/calls: the public functions ------------------------------------------------------ */

/* Knows: all of a backend. Promises: attach and split succeed on all ranks, or change nothing on
   any. */

CDP__PRIVATE void cdp__nccl_destroy(void *self);
CDP__PRIVATE cdp_status cdp__nccl_split(void *self, uint32_t color, uint32_t key, cdp_group *part);

CDP__PRIVATE cdp_backend cdp__nccl_backend(cdp__nccl *b) {
    cdp_backend k;
    memset(&k, 0, sizeof k);
    k.self = b;
    cdp__format(b->name, sizeof b->name, "NCCL %d.%d.%d on device %d", b->version / 10000,
        b->version / 100 % 100, b->version % 100, b->device);
    k.name = b->name;
    k.owns = cdp__nccl_owns;
    k.start = cdp__nccl_start;
    k.transfer = cdp__nccl_transfer;
    k.wait = cdp__nccl_wait;
    k.failed = cdp__nccl_group_failed;
    k.split = cdp__nccl_split;
    k.destroy = cdp__nccl_destroy;
    k.alloc = cdp__nccl_memory_alloc;
    k.release = cdp__nccl_memory_free;
    k.copy = cdp__nccl_copy;
    k.zero = cdp__nccl_zero;
    k.scale = cdp__nccl_scale;
    k.sum_squares = cdp__nccl_sum_squares;
    return k;
}

/* The group's NCCL backend, or NULL. */
CDP__PRIVATE cdp__nccl *cdp__nccl_of(const cdp_group *g) {
    const cdp_backend *k = cdp_group_backend(g);
    return k && k->start == cdp__nccl_start ? (cdp__nccl *)k->self : NULL;
}

/* Releases a backend, also one that was only partly created. Its streams must be empty or
   abandoned. */
CDP__PRIVATE void cdp__nccl_free(cdp__nccl *b) {
    const cdp_os *os = b->os;
    b->installed = false; /* the caller's stream may no longer exist */
    while (b->memories)
        cdp__nccl_memory_free(b, b->memories->data);
    while (b->cells) { /* communicators created after their callers gave up */
        cdp__nccl_cell *cell = b->cells;
        cdp__nc_comm made = (cdp__nc_comm)cdp__atomic_load_ptr(&cell->comm, CDP__ACQUIRE);
        if (made) (void)cdp__nc.ncclCommAbort(made);
        b->cells = cell->next;
        cdp__free(os, cell);
    }
    if (b->module[0]) (void)cdp__nc.cuModuleUnload(b->module[0]);
    if (b->module[1]) (void)cdp__nc.cuModuleUnload(b->module[1]);
    cdp__nccl_close_streams(b);
    if (b->cond) os->threads.cond_destroy(os, b->cond);
    cdp__lock_close(&b->lock);
    cdp__free(os, b);
}

/* The group is being destroyed. Not collective: waits until the deadlines of queued operations,
   and CDP__NCCL_LEAVE_MS for the rest. */
CDP__PRIVATE CDP__COLD void cdp__nccl_destroy(void *self) {
    cdp__nccl *b = (cdp__nccl *)self;
    int device = b->device;
    bool empty;
    (void)cdp__nc.cudaGetDevice(&device);
    (void)cdp__nc.cudaSetDevice(b->device);
    empty = cdp__nccl_failed(b)
        || cdp__nccl_drain(b, b->all, b->stream, cdp__min(b->timeout_ms, CDP__NCCL_LEAVE_MS));
    cdp_lock_acquire(&b->lock);
    b->stop = true;
    /* makes the keeper thread abort what hangs */
    if (!empty) cdp__atomic_store_u32(&b->failed, 1, CDP__RELEASE);
    cdp_lock_release(&b->lock);
    cdp__nccl_wake(b);
    cdp__nccl_by_hand(b);
    if (b->thread && !cdp__nccl_await(b, &b->resting, 2 * CDP__NCCL_LEAVE_MS)) {
        cdp__log(&cdp_group_desc_of(b->group)->logger, CDP_LOG_ERROR, (int32_t)b->rank,
            "NCCL does not come back from ending a communicator; its memory and a thread stay "
            "behind");
        return;
    }
    if (b->thread) b->os->threads.join(b->os, b->thread);
    b->thread = NULL;
    if (!b->lock.mutex && cdp__nccl_failed(b) && b->comm && !b->desc.keep) cdp__nccl_stop_gpu(b);
    if (b->comm) cdp__nccl_close_comm(b);
    if (cdp__nccl_failed(b) && !cdp__nccl_drain(b, b->all, b->stream, 2000)) {
        cdp__log(&cdp_group_desc_of(b->group)->logger, CDP_LOG_ERROR, (int32_t)b->rank,
            "the GPU has not finished the work of this group; its stream and memory are not "
            "released");
        return;
    }
    cdp_group_clear_backend(b->group);
    cdp__nccl_free(b);
    (void)cdp__nc.cudaSetDevice(device);
}

/* The communicator; NULL if it is about to be aborted. */
CDP__PRIVATE cdp__nc_comm cdp__nccl_comm(cdp__nccl *b) {
    cdp__nc_comm comm;
    cdp_lock_acquire(&b->lock);
    comm = b->desc.keep || !cdp__nccl_failed(b) ? b->comm : NULL;
    cdp_lock_release(&b->lock);
    return comm;
}

/* Waits until all operations of the old group are done: otherwise NCCL may wait for ever when a
   communicator is derived. */
CDP__PRIVATE cdp_status cdp__nccl_quiet(cdp__nccl *old) {
    if (cdp__nccl_failed(old)) return CDP_OK; /* aborted: nothing runs */
    if (cdp__nccl_capturing(old->caller))
        return cdp__fail(
            CDP_ERR_STATE, "a communicator cannot be made from another one inside a capture");
    return cdp__nccl_sync(old, old->all, old->stream);
}

/* Checks whether a communicator can be derived from that of desc.from. */
CDP__PRIVATE cdp_status cdp__nccl_check_from(const cdp__nccl *b) {
    const cdp_group *from = b->desc.from;
    cdp__nccl *old = from ? cdp__nccl_of(from) : NULL;
    uint32_t i, next = 0;
    if (b->desc.keep && !cdp__nc.ncclCommRevoke)
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "NCCL %d.%d has no ncclCommRevoke, so a communicator whose group failed cannot be "
            "kept; leave keep",
            b->version / 10000, b->version / 100 % 100);
    if (b->desc.grow && !cdp__nc.ncclCommGrow)
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "NCCL %d.%d has no ncclCommGrow; leave grow and from, and a new communicator is made",
            b->version / 10000, b->version / 100 % 100);
    if (from && !b->desc.grow && !cdp__nc.ncclCommShrink)
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "NCCL %d.%d has no ncclCommShrink; leave from, and a new communicator is made",
            b->version / 10000, b->version / 100 % 100);
    if (!from) return CDP_OK;
    if (!old || !cdp__nccl_comm(old))
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_nccl_attach: the group `from` has no communicator any more; set keep when it is "
            "attached");
    if (b->desc.grow)
        return cdp_rank(from) == b->rank
            ? cdp__nccl_quiet(old)
            : cdp__fail(CDP_ERR_INVALID,
                "cdp_nccl_attach: with grow the ranks of `from` keep their numbers, but this one "
                "was %u there and is %u here",
                cdp_rank(from), b->rank);
    for (i = 0; i < old->size; ++i)
        if (cdp_rank_of_world(b->group, cdp_world_rank_of(from, i)) == next) ++next;
    return next == b->size
        ? cdp__nccl_quiet(old)
        : cdp__fail(CDP_ERR_INVALID,
            "cdp_nccl_attach: the ranks of this group are not ranks of `from` in the same order, "
            "which NCCL keeps; make the group with its ranks in that order");
}

/* Checks the device, and creates what this rank needs locally: a lock, streams, events. */
CDP__PRIVATE CDP__COLD cdp_status cdp__nccl_open(cdp__nccl *b) {
    const bool threads = b->os->threads.start && b->os->threads.mutex_create;
    int count = 0;
    int major = 0, minor = 0;
    cdp__cu_error e;
    cdp_status st = cdp__nccl_load(b->os, &b->desc, false);
    if (st != CDP_OK) return st;
    b->version = cdp__nccl_lib()->nccl;
    e = cdp__nc.cudaGetDeviceCount(&count);
    if ((int)e == CDP__CU_NO_DEVICE || (int)e == CDP__CU_NO_DRIVER || (e == 0 && !count)) {
        (void)cdp__nc.cudaGetLastError();
        return cdp__fail(CDP_ERR_INVALID,
            (int)e == CDP__CU_NO_DRIVER
                ? "there is no CUDA device here: there is no driver, or it is older than the CUDA "
                  "runtime; host memory works without one"
                : "there is no CUDA device here; host memory works without one");
    }
    if (e == 0) e = cdp__nc.cudaGetDevice(&b->device);
    if (e == 0) e = cdp__nc.cudaDeviceGetAttribute(&major, (cdp__cu_attr)CDP__CU_MAJOR, b->device);
    if (e == 0) e = cdp__nc.cudaDeviceGetAttribute(&minor, (cdp__cu_attr)CDP__CU_MINOR, b->device);
    b->capability = major * 10 + minor;
    if (e != 0) return cdp__nccl_cuda_failed(e, "cdp_nccl_attach");
    if ((st = cdp__nccl_check_from(b)) != CDP_OK) return st;
    b->cond = threads ? b->os->threads.cond_create(b->os) : NULL;
    if (!cdp__lock_open(&b->lock, b->os, threads) || (threads && !b->cond))
        return cdp__fail_nomem("a lock", 64);
    return cdp__nccl_open_streams(b);
}

CDP__PRIVATE cdp__nccl *cdp__nccl_new(cdp_group *group, const cdp_nccl_desc *desc) {
    const cdp_os *os = cdp_group_desc_of(group)->os;
    cdp__nccl *b = (cdp__nccl *)cdp__alloc_zero(os, sizeof *b);
    if (!b) {
        (void)cdp__fail_nomem("a communicator", sizeof *b);
        return NULL;
    }
    b->os = os;
    b->group = group;
    if (desc) b->desc = *desc;
    b->rank = cdp_rank(group);
    b->size = cdp_size(group);
    b->timeout_ms = cdp_group_desc_of(group)->timeout_ms;
    b->caller = (cdp__cu_stream)b->desc.stream;
    return b;
}

/* Frees a backend that could not be created; the last error stays. */
CDP__PRIVATE void cdp__nccl_undo(cdp__nccl *b) {
    const cdp_error e = *cdp_last_error();
    if (b->comm) (void)cdp__nc.ncclCommAbort(b->comm);
    b->comm = NULL;
    cdp__nccl_free(b);
    *cdp__error_slot() = e;
}

/* The communicator exists on all ranks: the group uses it from now on. A local failure fails the
   group, because the other ranks use it already. */
CDP__PRIVATE cdp_status cdp__nccl_install(cdp__nccl *b) {
    const cdp_backend k = cdp__nccl_backend(b);
    cdp_status st = CDP_OK;
    b->resting = true;
    if (b->cond) {
        b->resting = false;
        b->thread = b->os->threads.start(b->os, cdp__nccl_keeper, b);
        if (!b->thread)
            st = cdp__fail(
                CDP_ERR_IO, "cannot start the thread that stops the GPU when the group fails");
    }
    if (st == CDP_OK) st = cdp_group_set_backend(b->group, &k);
    if (st != CDP_OK) {
        cdp_group_fail(b->group);
        cdp_lock_acquire(&b->lock);
        b->stop = true;
        cdp_lock_release(&b->lock);
        cdp__nccl_wake(b);
        if (b->thread) b->os->threads.join(b->os, b->thread);
        cdp__nccl_undo(b);
        return st;
    }
    b->installed = true;
    if (!b->desc.no_peer_watch && b->size > 1)
        st = cdp_group_watch(b->group, (b->rank + b->size - 1) % b->size);
    if (st != CDP_OK) cdp_group_fail(b->group);
    return st;
}

/* This rank is done, successfully or not: all ranks agree, and then all groups get the backend,
   or none. */
CDP__PRIVATE cdp_status cdp__nccl_conclude(
    cdp__nccl *b, cdp_status st, cdp__nccl_hello *all, const char *what) {
    st = cdp__nccl_agree(b, st, all, what);
    if (st != CDP_OK) {
        cdp__nccl_undo(b);
        return st;
    }
    return cdp__nccl_install(b);
}

CDP_API cdp_status cdp_nccl_attach(cdp_group *group, const cdp_nccl_desc *desc) {
    const cdp_group_desc *g = cdp_group_desc_of(group);
    cdp__nccl_hello *all;
    cdp__nccl *b, *from;
    uint64_t deadline_ns;
    cdp_status st = cdp_group_status(group);
    if (st != CDP_OK) return st;
    if (cdp_group_backend(group))
        return cdp__fail(CDP_ERR_STATE, "cdp_nccl_attach: this group has a backend already");
    deadline_ns = cdp__deadline(g->os, cdp__def(desc ? desc->init_timeout_ms : 0, g->timeout_ms));
    b = cdp__nccl_new(group, desc);
    all = (cdp__nccl_hello *)cdp__alloc_zero(g->os, g->world_size * sizeof *all);
    if (!b || !all) {
        if (!b)
            st = cdp_last_error()->status;
        else
            st = cdp__fail_nomem("a communicator", g->world_size * sizeof *all);
        cdp_group_fail(group); /* other ranks wait for this rank's message */
        if (b) cdp__free(g->os, b);
        cdp__free(g->os, all);
        return st;
    }
    st = cdp__nccl_agree(b, cdp__nccl_open(b), all, "cdp_nccl_attach");
    if (st != CDP_OK) {
        cdp__nccl_undo(b);
        cdp__free(g->os, all);
        return st;
    }
    from = b->desc.from ? cdp__nccl_of(b->desc.from) : NULL;
    /* no other thread uses that communicator meanwhile, and an abort waits for this one */
    if (from && !cdp__nccl_failed(from)) {
        cdp__nccl_hold(from);
        b->parent = from;
    }
    if (b->desc.grow)
        st = cdp__nccl_grow(b, from, deadline_ns);
    else if (from)
        st = cdp__nccl_shrink(b, from, deadline_ns);
    else
        st = cdp__nccl_init(b, deadline_ns);
    if (b->parent) cdp__nccl_leave(from);
    b->parent = NULL;
    st = cdp__nccl_conclude(b, st, all, "cdp_nccl_attach");
    cdp__free(g->os, all);
    return st;
}

/* Collective over the old group: derives communicators for its parts. */
CDP__PRIVATE CDP__COLD cdp_status cdp__nccl_split(
    void *self, uint32_t color, uint32_t key, cdp_group *part) {
    cdp__nccl *old = (cdp__nccl *)self, *b = part ? cdp__nccl_new(part, &old->desc) : NULL;
    const uint64_t deadline_ns =
        cdp__deadline(old->os, cdp__def(old->desc.init_timeout_ms, old->timeout_ms));
    cdp__nc_settings config = cdp__nccl_settings();
    cdp__nccl_hello *all =
        b ? (cdp__nccl_hello *)cdp__alloc_zero(b->os, b->size * sizeof *all) : NULL;
    cdp__nccl_cell *cell = (cdp__nccl_cell *)cdp__alloc_zero(old->os, sizeof *cell);
    cdp__nc_comm none = NULL;
    cdp_status st =
        !cell || (part && !(b && all)) ? cdp__fail_nomem("a communicator", sizeof *b) : CDP_OK;
    int r;
    (void)color;
    (void)key; /* `part` contains both: its first rank is the color, the rank in it the key */
    if (b) {
        b->desc.from = NULL;
        b->desc.grow = false;
        b->caller = old->caller;
        b->parent = old;
    }
    if (st == CDP_OK) st = cdp__nccl_quiet(old);
    if (b && st == CDP_OK) st = cdp__nccl_open(b);
    if (st == CDP_OK) st = cdp__nccl_enter(old);
    if (st != CDP_OK) {
        cdp_group_fail(old->group); /* other ranks wait for this one in ncclCommSplit */
        if (b) cdp__nccl_undo(b);
        cdp__free(old->os, cell);
        cdp__free(old->os, all);
        return st;
    }
    r = (int)cdp__nc.ncclCommSplit(old->comm, part ? (int)cdp_world_rank_of(part, 0) : -1,
        part ? (int)cdp_rank(part) : 0, &cell->comm, (cdp__nc_config *)(void *)&config);
    st = cdp__nccl_made(
        old, old, cell, r, b ? &b->comm : &none, deadline_ns, "cdp_group_split: ncclCommSplit");
    if (st == CDP_OK && b)
        st = cdp__nccl_settle(b, b->comm, deadline_ns, "cdp_group_split: ncclCommSplit");
    if (b) b->parent = NULL;
    cdp__nccl_leave(old);
    /* the other parts may have failed */
    if (st != CDP_OK) cdp_group_fail(old->group);
    if (b) st = cdp__nccl_conclude(b, st, all, "cdp_group_split");
    cdp__free(old->os, all);
    return st;
}

CDP_API void cdp_nccl_set_stream(cdp_group *group, void *stream) {
    cdp__nccl *b = cdp__nccl_of(group);
    if (b) b->caller = (cdp__cu_stream)stream;
}

CDP_API void *cdp_nccl_stream(const cdp_group *group) {
    const cdp__nccl *b = cdp__nccl_of(group);
    return b ? (void *)b->stream : NULL;
}

CDP_API void *cdp_nccl_comm(const cdp_group *group) {
    cdp__nccl *b = cdp__nccl_of(group);
    return b ? (void *)cdp__nccl_comm(b) : NULL;
}

CDP_API uint32_t cdp_nccl_version(const cdp_group *group) {
    const cdp__nccl *b = cdp__nccl_of(group);
    return b ? (uint32_t)b->version : 0;
}

CDP_API cdp_status cdp_nccl_alloc(cdp_group *group, uint64_t bytes, void **out) {
    cdp__nccl *b = cdp__nccl_of(group);
    if (!out) return cdp__missing("cdp_nccl_alloc", "out");
    *out = NULL;
    if (!b)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_nccl_alloc: this group has no communicator; call cdp_nccl_attach first");
    *out = cdp__nccl_memory_alloc(b, bytes ? bytes : 1);
    return *out ? CDP_OK : cdp_last_error()->status;
}

CDP_API void cdp_nccl_free(cdp_group *group, void *data) {
    cdp__nccl *b = cdp__nccl_of(group);
    if (b) cdp__nccl_memory_free(b, data);
}

CDP_API cdp_status cdp_nccl_set_memory(cdp_group *group, const cdp_allocator *memory) {
    cdp__nccl *b = cdp__nccl_of(group);
    if (!b)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_nccl_set_memory: this group has no communicator; call cdp_nccl_attach first");
    if (memory && (!memory->alloc || !memory->release))
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_nccl_set_memory: set both functions, alloc and release, or pass NULL");
    if (memory)
        b->from = *memory;
    else
        memset(&b->from, 0, sizeof b->from);
    return CDP_OK;
}

CDP__PRIVATE void *cdp__nccl_callback_alloc(
    void *user, uint64_t bytes, void *stream, const char *label) {
    cdp__nccl *const b = cdp__nccl_of((cdp_group *)user);
    (void)stream;
    (void)label;
    if (b) return cdp__nccl_memory_own(b, bytes);
    (void)cdp__fail(CDP_ERR_INVALID, "cdp_nccl_allocator: this group has no communicator");
    return NULL;
}

CDP__PRIVATE void cdp__nccl_callback_free(void *user, void *data) {
    cdp_nccl_free((cdp_group *)user, data);
}

CDP_API cdp_allocator cdp_nccl_allocator(cdp_group *group) {
    cdp_allocator a;
    a.user = group;
    a.alloc = cdp__nccl_callback_alloc;
    a.release = cdp__nccl_callback_free;
    return a;
}

CDP_API cdp_status cdp_nccl_alloc_symmetric(cdp_group *group, uint64_t bytes, void **out) {
    cdp__nccl *const b = cdp__nccl_of(group);
    if (!out) return cdp__missing("cdp_nccl_alloc_symmetric", "out");
    *out = NULL;
    if (!b)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_nccl_alloc_symmetric: this group has no communicator; call cdp_nccl_attach first");
    if (b->desc.no_register)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_nccl_alloc_symmetric: the group was attached with no_register; leave that out");
    return cdp__nccl_symmetric_alloc(b, bytes ? bytes : 1, out);
}

CDP__PRIVATE void *cdp__nccl_callback_symmetric(
    void *user, uint64_t bytes, void *stream, const char *label) {
    void *data = NULL;
    (void)stream;
    (void)label;
    return cdp_nccl_alloc_symmetric((cdp_group *)user, bytes, &data) == CDP_OK ? data : NULL;
}

CDP_API cdp_allocator cdp_nccl_symmetric_allocator(cdp_group *group) {
    cdp_allocator a;
    a.user = group;
    a.alloc = cdp__nccl_callback_symmetric;
    a.release = cdp__nccl_callback_free;
    return a;
}

CDP_API void *cdp_nccl_window(const cdp_group *group, const void *data) {
    cdp__nccl *const b = cdp__nccl_of(group);
    const uintptr_t at = (uintptr_t)data;
    const cdp__nccl_memory *m;
    void *window = NULL;
    if (!b) return NULL;
    cdp_lock_acquire(&b->lock);
    for (m = b->memories; m && !window; m = m->next)
        if (m->number && at >= (uintptr_t)m->data && at - (uintptr_t)m->data < m->bytes)
            window = (void *)m->window;
    cdp_lock_release(&b->lock);
    return window;
}

/* ---- >>nccl/device_hooks: compression on the device ------------------------------------------ */

/* Knows: layouts of compressed gradients, as in the hooks of cdp.h. Promises: the same values as
   those hooks, without a copy to the host. */

#ifndef CDP_NO_HOOKS
/* Device memory that grows on demand. */
typedef struct cdp__nccl_room {
    void *data;
    uint64_t bytes;
} cdp__nccl_room;

/* A hook's state for one bucket. */
typedef struct cdp__nccl_slot {
    cdp__nccl_room error; /* values that compression left out */
    bool plain;           /* this step runs without compression */
} cdp__nccl_slot;

typedef struct cdp__nccl_hook {
    cdp__nccl *b;
    const cdp_os *os;
    cdp_group *group;
    cdp_hook_desc desc;
    /* used by one bucket after the other, in stream order. wide: an f32 copy */
    cdp__nccl_room scratch, wide;
    cdp__nccl_slot *slots;
    uint32_t slot_count;
    uint64_t step;
} cdp__nccl_hook;

CDP__PRIVATE cdp_status cdp__nccl_room_for(
    cdp__nccl_hook *h, cdp__nccl_room *room, uint64_t bytes, bool zero) {
    cdp__cu_error e;
    if (room->data && room->bytes >= bytes) return CDP_OK;
    cdp__nccl_memory_free(h->b, room->data);
    room->bytes = bytes;
    *cdp__purpose() = "hook scratch";
    room->data = cdp__nccl_memory_alloc(h->b, bytes + 4);
    *cdp__purpose() = NULL;
    if (!room->data) return cdp_last_error()->status;
    e = zero ? cdp__nc.cudaMemsetAsync(room->data, 0, (size_t)bytes + 4, h->b->stream)
             : (cdp__cu_error)0;
    return e == 0 ? CDP_OK : cdp__nccl_cuda_failed(e, "zeroing device memory");
}

CDP__PRIVATE cdp__nccl_slot *cdp__nccl_slot_of(cdp__nccl_hook *h, uint32_t count, uint32_t index) {
    cdp__nccl_slot *more;
    if (count > h->slot_count) {
        more = (cdp__nccl_slot *)cdp__alloc_zero(h->os, count * sizeof *more);
        if (!more) {
            (void)cdp__fail_nomem("a hook", count * sizeof *more);
            return NULL;
        }
        if (h->slot_count) memcpy(more, h->slots, h->slot_count * sizeof *more);
        cdp__free(h->os, h->slots);
        h->slots = more;
        h->slot_count = count;
    }
    return &h->slots[index];
}

CDP__PRIVATE cdp_status cdp__nccl_hook_kernels(cdp__nccl *b) {
    const char *first = cdp__nccl_hook_source, *second = cdp__nccl_quantize_source();
    const uint64_t room = strlen(first) + strlen(second) + 1;
    char *source;
    cdp_status st = cdp__nccl_kernels(b);
    if (st != CDP_OK || b->module[1]) return st;
    source = (char *)cdp__alloc(b->os, room);
    if (!source) return cdp__fail_nomem("kernels", room);
    cdp__format(source, room, "%s%s", first, second);
    st = cdp__nccl_load_kernels(b, &b->module[1], source,
        "cdp_feed cdp_begin cdp_counts cdp_sum cdp_pick cdp_parts cdp_groups cdp_write cdp_add "
        "cdp_divide cdp_range_parts cdp_range cdp_quantize cdp_dequantize ",
        b->hooks);
    cdp__free(b->os, source);
    return st;
}

/* Launches a kernel of hooks. */
CDP__PRIVATE CDP__ONE_COPY void cdp__nccl_step(cdp__nccl *b, cdp_status *st,
    cdp__nccl_hook_kernel kernel, uint64_t threads, void **arguments) {
    cdp__nccl_run(st, b->hooks[kernel], threads, b->stream, arguments);
}

CDP__PRIVATE void cdp__nccl_step_zero(cdp__nccl *b, cdp_status *st, void *data, uint64_t bytes) {
    const cdp__cu_error e = *st == CDP_OK
        ? cdp__nc.cudaMemsetAsync(data, 0, (size_t)bytes, b->stream)
        : (cdp__cu_error)0;
    if (e != 0) *st = cdp__nccl_cuda_failed(e, "zeroing device memory");
}

CDP__PRIVATE void cdp__nccl_step_divide(
    cdp__nccl *b, cdp_status *st, float *x, uint64_t count, double by) {
    unsigned long long n = count;
    float divisor = (float)by;
    void *a[3];
    a[0] = &x;
    a[1] = &n;
    a[2] = &divisor;
    cdp__nccl_step(b, st, CDP__NK_DIVIDE, n, a);
}

CDP__PRIVATE cdp_status cdp__nccl_hook_gather(
    cdp_request *op, void *data, uint64_t count, cdp_dtype dtype) {
    op->kind = CDP_COLL_ALLGATHER;
    op->out = data;
    op->count = count;
    op->dtype = dtype;
    return CDP_PENDING;
}

/* Top-k: finds the k-th largest magnitude, 8 bits at a time. Each block of threads has its own
   counts. */
CDP__PRIVATE void cdp__nccl_hook_limit(cdp__nccl *b, cdp_status *st, float *x, unsigned long long n,
    uint32_t k, uint32_t *state, uint32_t *counts) {
    static const int tops[4] = {31, 23, 15, 7}, shifts[4] = {23, 15, 7, 0};
    uint32_t i, copies = (uint32_t)cdp__min(cdp__nccl_blocks(n), 128);
    void *a[6];
    a[0] = &state;
    a[1] = &k;
    cdp__nccl_step(b, st, CDP__NK_BEGIN, 1, a);
    for (i = 0; i < 4; ++i) {
        int top = tops[i], shift = shifts[i];
        cdp__nccl_step_zero(b, st, counts, copies * 1024);
        a[0] = &x;
        a[1] = &n;
        a[2] = &state;
        a[3] = &counts;
        a[4] = &top;
        a[5] = &shift;
        cdp__nccl_step(b, st, CDP__NK_COUNTS, (uint64_t)copies * CDP__NCCL_THREADS, a);
        a[0] = &counts;
        a[1] = &copies;
        cdp__nccl_step(b, st, CDP__NK_SUM, 256, a);
        a[0] = &counts;
        a[1] = &state;
        a[2] = &shift;
        cdp__nccl_step(b, st, CDP__NK_PICK, 1, a);
    }
}

/* Memory and parameters of top-k for one bucket. Scratch memory: (index, value) pairs of all
   ranks, then temporary data of this rank's selection. Kernels get the addresses of these
   members. */
typedef struct cdp__nccl_topk {
    unsigned long long n, k;
    int add;
    float *x, *error;
    uint32_t *pairs, *own, *state, *counts, *parts, *groups;
} cdp__nccl_topk;

CDP__PRIVATE cdp_status cdp__nccl_topk_open(
    cdp__nccl_hook *h, cdp__nccl_slot *s, uint64_t n, float *x, cdp__nccl_topk *t) {
    const uint64_t world = h->b->size;
    cdp_status st = CDP_OK;
    t->x = x;
    t->n = n;
    t->k = cdp__min(n, (uint64_t)((double)n / h->desc.ratio) + 1);
    t->add = !h->desc.no_error_feedback;
    if (n >> 32)
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "top-k: a bucket has more than 2^32 values; make bucket_bytes smaller");
    st = cdp__nccl_room_for(h, &s->error, n * 4, true);
    if (st == CDP_OK)
        st = cdp__nccl_room_for(
            h, &h->scratch, world * t->k * 8 + (4 + 128 * 256 + 2 * 16384 + 2 * 128) * 4, false);
    if (st != CDP_OK) return st;
    t->error = (float *)s->error.data;
    t->pairs = (uint32_t *)h->scratch.data;
    t->own = t->pairs + h->b->rank * t->k * 2;
    t->state = t->pairs + world * t->k * 2;
    t->counts = t->state + 4;
    t->parts = t->counts + 128 * 256;
    t->groups = t->parts + 2 * 16384;
    return CDP_OK;
}

/* Selects this rank's pairs: the k values of largest magnitude. */
CDP__PRIVATE void cdp__nccl_topk_find(cdp__nccl *b, cdp_status *st, cdp__nccl_topk *t) {
    void *feed[] = {&t->x, &t->error, &t->n, &t->add};
    void *parts[] = {&t->x, &t->n, &t->state, &t->parts};
    void *groups[] = {&t->parts, &t->groups};
    void *write[] = {&t->x, &t->error, &t->n, &t->state, &t->parts, &t->groups, &t->own};
    cdp__nccl_step(b, st, CDP__NK_FEED, t->n, feed);
    cdp__nccl_hook_limit(b, st, t->x, t->n, (uint32_t)(t->k - 1), t->state, t->counts);
    cdp__nccl_step(b, st, CDP__NK_PARTS, 16384, parts);
    cdp__nccl_step(b, st, CDP__NK_GROUPS, 128, groups);
    cdp__nccl_step(b, st, CDP__NK_WRITE, 16384, write);
}

CDP__PRIVATE cdp_status cdp__nccl_hook_topk(cdp__nccl_hook *h, cdp__nccl_slot *s,
    cdp_bucket *bucket, float *x, uint32_t stage, cdp_request *op) {
    cdp__nccl *b = h->b;
    cdp__nccl_topk t;
    uint32_t r;
    void *add[] = {&t.x, &t.n, &t.own, &t.k};
    cdp_status st = cdp__nccl_topk_open(h, s, bucket->count, x, &t);
    if (st != CDP_OK) return st;
    if (!stage) {
        cdp__nccl_topk_find(b, &st, &t);
        return st == CDP_OK ? cdp__nccl_hook_gather(op, t.pairs, 2 * t.k, CDP_DTYPE_U32) : st;
    }
    cdp__nccl_step_zero(b, &st, x, t.n * 4);
    /* rank by rank, so that no two threads add to the same value */
    for (r = 0; r < b->size; ++r) {
        t.own = t.pairs + r * t.k * 2;
        cdp__nccl_step(b, &st, CDP__NK_ADD, t.k, add);
    }
    cdp__nccl_step_divide(b, &st, x, t.n, bucket->divisor);
    return st;
}

/* Scratch memory: ranges of all ranks, bytes of all ranks, temporary data for finding the range. */
CDP__PRIVATE cdp_status cdp__nccl_hook_quantize(cdp__nccl_hook *h, cdp__nccl_slot *s,
    cdp_bucket *bucket, float *x, uint32_t stage, cdp_request *op) {
    const bool channel = h->desc.kind == CDP_HOOK_QUANTIZE_CHANNEL;
    cdp__nccl *b = h->b;
    unsigned long long n = bucket->count, row = channel ? 512 : n, rows = channel ? n / 512 + 1 : 1,
                       padded = rows * row, parts = channel ? 32 : 4096;
    uint32_t world = b->size;
    float *found, *ranges, *mine, by = (float)bucket->divisor;
    uint8_t *q, *own;
    void *a[9];
    cdp_status st =
        cdp__nccl_room_for(h, &h->scratch, rows * parts * 8 + world * (rows * 8 + padded), false);
    (void)s;
    if (st != CDP_OK) return st;
    found = (float *)h->scratch.data;
    ranges = found + 2 * rows * parts;
    mine = ranges + b->rank * rows * 2;
    q = (uint8_t *)(ranges + world * rows * 2);
    own = q + b->rank * padded;
    if (stage == 0) {
        a[0] = &x;
        a[1] = &n;
        a[2] = &row;
        a[3] = &rows;
        a[4] = &parts;
        a[5] = &found;
        cdp__nccl_step(b, &st, CDP__NK_RANGE_PARTS, rows * parts, a);
        a[0] = &found;
        a[1] = &rows;
        a[2] = &parts;
        a[3] = &mine;
        cdp__nccl_step(b, &st, CDP__NK_RANGE, rows, a);
        return st == CDP_OK ? cdp__nccl_hook_gather(op, ranges, rows * 2, CDP_DTYPE_F32) : st;
    }
    if (stage == 1) {
        a[0] = &x;
        a[1] = &n;
        a[2] = &row;
        a[3] = &mine;
        a[4] = &own;
        a[5] = &padded;
        cdp__nccl_step(b, &st, CDP__NK_QUANTIZE, padded, a);
        return st == CDP_OK ? cdp__nccl_hook_gather(op, q, padded, CDP_DTYPE_U8) : st;
    }
    a[0] = &x;
    a[1] = &n;
    a[2] = &row;
    a[3] = &rows;
    a[4] = &ranges;
    a[5] = &q;
    a[6] = &padded;
    a[7] = &world;
    a[8] = &by;
    cdp__nccl_step(b, &st, CDP__NK_DEQUANTIZE, n, a);
    return st;
}

/* Makes the stream of `b` wait for the work that `other` has started. */
CDP__PRIVATE cdp_status cdp__nccl_behind(cdp__nccl *b, cdp__nccl *other) {
    cdp__cu_error e = other ? cdp__nc.cudaEventRecord(other->all, other->stream) : (cdp__cu_error)0;
    if (other && e == 0) e = cdp__nc.cudaStreamWaitEvent(b->stream, other->all, 0);
    return e == 0 ? CDP_OK : cdp__nccl_cuda_failed(e, "ordering a stream behind a subgroup's");
}

/* Averages over bucket->group. */
CDP__PRIVATE cdp_status cdp__nccl_hook_mean(
    cdp_bucket *bucket, uint32_t stage, cdp_request *op, cdp_group *group) {
    if (stage) return CDP_OK;
    op->kind = CDP_COLL_ALLREDUCE;
    op->count = bucket->count;
    op->out = bucket->data;
    op->dtype = bucket->dtype;
    op->op = CDP_REDUCE_PREMUL_SUM;
    op->factor = 1 / (group ? (double)cdp_size(group) : bucket->divisor);
    if (group) bucket->group = group;
    return CDP_PENDING;
}

CDP__PRIVATE cdp_status cdp__nccl_hook_half(cdp__nccl_hook *h, cdp__nccl_slot *s,
    cdp_bucket *bucket, float *x, uint32_t stage, cdp_request *op) {
    const cdp_dtype to = h->desc.kind == CDP_HOOK_FP16 ? CDP_DTYPE_F16 : CDP_DTYPE_BF16;
    cdp_status st;
    (void)s;
    (void)x;
    if (bucket->dtype == to) return cdp__nccl_hook_mean(bucket, stage, op, NULL);
    if (stage)
        return cdp__nccl_cast(
            h->b, to, h->scratch.data, bucket->dtype, bucket->data, bucket->count, 1, h->b->stream);
    st = cdp__nccl_room_for(h, &h->scratch, bucket->count * 2, false);
    if (st == CDP_OK)
        st = cdp__nccl_cast(h->b, bucket->dtype, bucket->data, to, h->scratch.data, bucket->count,
            1 / bucket->divisor, h->b->stream);
    op->kind = CDP_COLL_ALLREDUCE;
    op->count = bucket->count;
    op->out = h->scratch.data;
    op->dtype = to;
    op->op = CDP_REDUCE_SUM;
    return st == CDP_OK ? CDP_PENDING : st;
}

CDP__PRIVATE cdp_status cdp__nccl_stage_mean(cdp__nccl_hook *h, cdp__nccl_slot *s,
    cdp_bucket *bucket, float *x, uint32_t stage, cdp_request *op) {
    (void)h;
    (void)s;
    (void)x;
    return cdp__nccl_hook_mean(bucket, stage, op, NULL);
}

CDP__PRIVATE cdp_status cdp__nccl_stage_noop(cdp__nccl_hook *h, cdp__nccl_slot *s,
    cdp_bucket *bucket, float *x, uint32_t stage, cdp_request *op) {
    (void)h;
    (void)s;
    (void)bucket;
    (void)x;
    (void)stage;
    (void)op;
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__nccl_stage_local(cdp__nccl_hook *h, cdp__nccl_slot *s,
    cdp_bucket *bucket, float *x, uint32_t stage, cdp_request *op) {
    (void)s;
    (void)x;
    if (!h->desc.subgroup) return CDP_OK;
    return stage ? cdp__nccl_behind(h->b, cdp__nccl_of(h->desc.subgroup))
                 : cdp__nccl_hook_mean(bucket, stage, op, h->desc.subgroup);
}

/* A stage on the device, and the module of kernels that it needs (0: none). `x`: the bucket, or
   its copy in f32 if the kind computes in f32. */
typedef struct cdp__nccl_hook_kind {
    cdp_hook_kind kind;
    cdp_status (*stage)(cdp__nccl_hook *h, cdp__nccl_slot *s, cdp_bucket *bucket, float *x,
        uint32_t stage, cdp_request *op);
    cdp_status (*kernels)(cdp__nccl *b);
} cdp__nccl_hook_kind;

/* NULL: hooks of this kind run in host memory only. */
CDP__PRIVATE const cdp__nccl_hook_kind *cdp__nccl_hook_kind_of(cdp_hook_kind kind) {
    static const cdp__nccl_hook_kind rows[] = {
        {CDP_HOOK_ALLREDUCE, cdp__nccl_stage_mean, NULL},
        {CDP_HOOK_FP16, cdp__nccl_hook_half, cdp__nccl_kernels},
        {CDP_HOOK_BF16, cdp__nccl_hook_half, cdp__nccl_kernels},
        {CDP_HOOK_QUANTIZE, cdp__nccl_hook_quantize, cdp__nccl_hook_kernels},
        {CDP_HOOK_QUANTIZE_CHANNEL, cdp__nccl_hook_quantize, cdp__nccl_hook_kernels},
        {CDP_HOOK_TOPK, cdp__nccl_hook_topk, cdp__nccl_hook_kernels},
        {CDP_HOOK_NOOP, cdp__nccl_stage_noop, NULL},
        {CDP_HOOK_POST_LOCAL_SGD, cdp__nccl_stage_local, NULL},
    };
    uint32_t i;
    for (i = 0; i < sizeof rows / sizeof *rows; ++i)
        if (rows[i].kind == kind) return &rows[i];
    return NULL;
}

/* Runs a stage that computes in f32, on a copy if the bucket has another dtype. */
CDP__PRIVATE cdp_status cdp__nccl_hook_compress(cdp__nccl_hook *h, const cdp__nccl_hook_kind *kind,
    cdp__nccl_slot *s, cdp_bucket *bucket, uint32_t stage, cdp_request *op) {
    const bool copy = bucket->dtype != CDP_DTYPE_F32;
    cdp_status st = copy ? cdp__nccl_room_for(h, &h->wide, bucket->count * 4, false) : CDP_OK;
    float *x = (float *)(copy ? h->wide.data : bucket->data);
    if (st == CDP_OK && copy && !stage)
        st = cdp__nccl_cast(
            h->b, bucket->dtype, bucket->data, CDP_DTYPE_F32, x, bucket->count, 1, h->b->stream);
    if (st != CDP_OK || !bucket->count) return st;
    st = kind->stage(h, s, bucket, x, stage, op);
    return st == CDP_OK && copy ? cdp__nccl_cast(
               h->b, CDP_DTYPE_F32, x, bucket->dtype, bucket->data, bucket->count, 1, h->b->stream)
                                : st;
}

CDP__PRIVATE cdp_status cdp__nccl_hook_stage(
    void *self, cdp_bucket *bucket, uint32_t stage, cdp_request *op) {
    cdp__nccl_hook *h = (cdp__nccl_hook *)self;
    cdp__nccl_slot *s = cdp__nccl_slot_of(h, bucket->bucket_count, bucket->index);
    const cdp__nccl_hook_kind *kind = cdp__nccl_hook_kind_of(h->desc.kind);
    cdp_status st;
    int where;
    if (!s) return cdp_last_error()->status;
    if (!stage) s->plain = h->step < h->desc.start;
    if (!stage && bucket->index + 1 == bucket->bucket_count) ++h->step;
    if (kind->kind == CDP_HOOK_NOOP) return CDP_OK;
    where = cdp__nccl_owns(h->b, bucket->data);
    if (where < 0) return (cdp_status)where;
    if (where != 1)
        return cdp__fail(CDP_ERR_INVALID,
            "a hook of cdp_nccl_hook_create is for parameters in device memory; use "
            "cdp_hook_create");
    if (s->plain) return cdp__nccl_hook_mean(bucket, stage, op, NULL);
    st = stage || !kind->kernels ? CDP_OK : cdp__nccl_after_caller(h->b);
    if (st != CDP_OK) return st;
    return cdp__hook_kind_of(kind->kind)->flags & CDP__HOOK_F32
        ? cdp__nccl_hook_compress(h, kind, s, bucket, stage, op)
        : kind->stage(h, s, bucket, NULL, stage, op);
}

CDP__PRIVATE CDP__COLD void cdp__nccl_hook_destroy(void *self) {
    cdp__nccl_hook *h = (cdp__nccl_hook *)self;
    const bool there = cdp__nccl_of(h->group) == h->b;
    uint32_t i;
    for (i = 0; i < h->slot_count && there; ++i) {
        cdp__nccl_memory_free(h->b, h->slots[i].error.data);
    }
    if (there) cdp__nccl_memory_free(h->b, h->scratch.data);
    if (there) cdp__nccl_memory_free(h->b, h->wide.data);
    cdp__free(h->os, h->slots);
    cdp__free(h->os, h);
}

CDP__PRIVATE double cdp__nccl_hook_error_norm(void *self) {
    const cdp__nccl_hook *h = (const cdp__nccl_hook *)self;
    double sum = 0, one = 0;
    uint32_t i;
    for (i = 0; i < h->slot_count; ++i)
        if (h->slots[i].error.data
            && cdp__nccl_sum_squares(
                   h->b, CDP_DTYPE_F32, h->slots[i].error.data, h->slots[i].error.bytes / 4, &one)
                == CDP_OK)
            sum += one;
    return cdp__sqrt(sum);
}

/* An equal hook in host memory, used to save and to load the state. with_slots: it gets a copy
   of this hook's state. */
CDP__PRIVATE cdp__hook *cdp__nccl_hook_twin(cdp__nccl_hook *h, bool with_slots) {
    cdp_hook made;
    cdp__hook *twin;
    cdp__nccl_slot *s;
    uint32_t i;
    if (cdp_hook_create(&h->desc, &made) != CDP_OK) return NULL;
    twin = (cdp__hook *)made.self;
    twin->step = h->step;
    if (!with_slots || !h->slot_count) return twin;
    if (!cdp__hook_slot(twin, h->slot_count, 0)) goto failed;
    for (i = 0; i < h->slot_count; ++i) {
        s = &h->slots[i];
        if (s->error.data
            && (!cdp__hook_memory(
                    twin, &twin->slots[i].error, &twin->slots[i].error_bytes, s->error.bytes)
                || cdp__nccl_copy(h->b, twin->slots[i].error, s->error.data, s->error.bytes)
                    != CDP_OK))
            goto failed;
    }
    return twin;
failed:
    cdp__hook_drop(twin);
    return NULL;
}

CDP__PRIVATE uint64_t cdp__nccl_hook_save(void *self, void *bytes, uint64_t room) {
    cdp__hook *twin = cdp__nccl_hook_twin((cdp__nccl_hook *)self, true);
    const uint64_t n = twin ? cdp__hook_save(twin, bytes, room) : 0;
    if (twin) cdp__hook_drop(twin);
    return n;
}

CDP__PRIVATE cdp_status cdp__nccl_hook_load(void *self, const void *bytes, uint64_t count) {
    cdp__nccl_hook *h = (cdp__nccl_hook *)self;
    cdp__hook *twin = cdp__nccl_hook_twin(h, false);
    cdp_status st = twin ? cdp__hook_load(twin, bytes, count) : cdp_last_error()->status;
    uint32_t i;
    if (st == CDP_OK && twin->slot_count && !cdp__nccl_slot_of(h, twin->slot_count, 0))
        st = cdp_last_error()->status;
    for (i = 0; st == CDP_OK && i < twin->slot_count; ++i) {
        const cdp__slot *from = &twin->slots[i];
        cdp__nccl_slot *s = &h->slots[i];
        if (from->error_bytes) st = cdp__nccl_room_for(h, &s->error, from->error_bytes, false);
        if (st == CDP_OK && from->error_bytes)
            st = cdp__nccl_copy(h->b, s->error.data, from->error, from->error_bytes);
    }
    if (st == CDP_OK) h->step = twin->step;
    if (twin) cdp__hook_drop(twin);
    return st;
}

CDP_API cdp_status cdp_nccl_hook_create(
    cdp_group *group, const cdp_hook_desc *desc, cdp_hook *out) {
    cdp__nccl *b = cdp__nccl_of(group);
    cdp__nccl_hook *h;
    const cdp__nccl_hook_kind *kind;
    cdp_hook_desc settled;
    cdp_status st;
    if (!out || !desc) return cdp__missing("cdp_nccl_hook_create", out ? "desc" : "out");
    memset(out, 0, sizeof *out);
    if (!b)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_nccl_hook_create: this group has no communicator; call cdp_nccl_attach first");
    st = cdp__hook_settle(desc, &settled);
    kind = cdp__nccl_hook_kind_of(desc->kind);
    if (st != CDP_OK) return st;
    if (desc->inner || !kind)
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "cdp_nccl_hook_create: a hook %s%s runs in host memory only; parameters in device "
            "memory need another one",
            cdp__hook_kind_of(desc->kind)->name, desc->inner ? " around another hook" : "");
    if (desc->subgroup
        && (!cdp__nccl_of(desc->subgroup) || cdp__nccl_of(desc->subgroup)->device != b->device))
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_nccl_hook_create: the subgroup has no communicator on device %d; make it with "
            "cdp_group_split, or attach it",
            b->device);
    h = (cdp__nccl_hook *)cdp__alloc_zero(b->os, sizeof *h);
    if (!h) return cdp__fail_nomem("a hook", sizeof *h);
    h->b = b;
    h->os = b->os;
    h->group = group;
    h->desc = settled;
    h->desc.os = b->os;
    if (kind->kernels) st = kind->kernels(b);
    if (st != CDP_OK) {
        cdp__free(b->os, h);
        return st;
    }
    cdp__hook_publish(desc, out);
    out->self = h;
    out->stage = cdp__nccl_hook_stage;
    out->save = cdp__nccl_hook_save;
    out->load = cdp__nccl_hook_load;
    out->error_norm = cdp__nccl_hook_error_norm;
    out->destroy = cdp__nccl_hook_destroy;
    out->device = true;
    return CDP_OK;
}
#endif

#endif /* CDP_NCCL_IMPL_INCLUDED */
