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
#if defined(CDP_NCCL_IMPLEMENTATION) && !defined(CDP_CORE_IMPLEMENTATION)
#define CDP_CORE_IMPLEMENTATION
#endif
#include "cdp.h"

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

#include "nccl/desc_api.h"
#include "nccl/create_api.h"

#ifdef __cplusplus
} /* extern "C" */
#endif
#include "nccl/cxx_api.h"

#endif /* CDP_NCCL_INCLUDED */

#if (defined(CDP_IMPLEMENTATION) || defined(CDP_NCCL_IMPLEMENTATION)) \
    && !defined(CDP_NCCL_IMPL_INCLUDED)
#define CDP_NCCL_IMPL_INCLUDED
#undef CDP__HERE
#define CDP__HERE CDP__FILE_NCCL

#include "nccl/load.h"
#include "nccl/map.h"
#include "nccl/bootstrap.h"
#include "nccl/stream.h"
#include "nccl/watchdog.h"
#include "nccl/regroup.h"
#include "nccl/kernels.h"
#include "nccl/backend.h"
#include "nccl/memory.h"
#include "nccl/symmetric.h"
#include "nccl/calls.h"
#include "nccl/device_hooks.h"

#endif /* CDP_NCCL_IMPL_INCLUDED */
