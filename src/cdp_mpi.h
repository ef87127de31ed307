/*  cdp_mpi.h - process groups over any MPI - v0.3.0 - MIT-0 or Unlicense

    WHAT IT IS
        A group of cdp.h whose bytes travel as messages of MPI, so that a program on InfiniBand,
        Slingshot or Omni-Path uses the network that its MPI already drives. What the group can do
        is what every group can do: collectives, messages, channels, DDP. And the other way round:
        an exchange function with which cdp_tcp.h finds its ranks over MPI, and then talks TCP and
        shared memory itself.

    DO THIS
        #define CDP_IMPLEMENTATION      in exactly one C or C++ file, before
        #include "cdp_mpi.h"            which brings cdp.h and mpi.h along

    QUICK START
        #define CDP_IMPLEMENTATION
        #include "cdp_mpi.h"
        #include <stdio.h>
        int main(int argc, char **argv) {
            int provided;
            float sum = 1;
            cdp_group *world;
            MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
            if (cdp_init_from_mpi(MPI_COMM_WORLD, NULL, &world) != CDP_OK)
                return cdp_print_error(stderr);
            if (cdp_allreduce(world, NULL, &sum, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM) != CDP_OK)
                return cdp_print_error(stderr);
            printf("rank %u of %u: %g\n", cdp_rank(world), cdp_size(world), sum);
            cdp_group_destroy(world);   // before MPI_Finalize
            MPI_Finalize();
            return 0;
        }
        mpicc -O2 ones.c -o ones -pthread && mpirun -n 4 ./ones

    CONTENTS
        Each part is marked >>folder/name and comes from src/folder/name.h. `grep '>>'` lists the
        parts in their order, which is that of the #include lines of src/cdp_mpi.h. A part uses
        what comes before it, never what comes after it. Names in _api hold what programs call.

    API BY TASK
        I want to...                           call
        let MPI carry everything               cdp_init_from_mpi
        set options of the group myself        cdp_mpi_transport, then cdp_group_create
        find the ranks over MPI, and use       cdp_mpi_exchange as .exchange of a cdp_tcp_desc
        TCP and shared memory of cdp_tcp.h

    WHICH OF THE TWO
        On one machine and over Ethernet take cdp_tcp.h: ranks of one machine read each other's
        memory, a rank sleeps where nothing comes, and a process that ends is noticed at once.
        cdp_mpi.h is for networks that TCP does not use well. Side by side on your machine:
        make bench-peers PEERS="--only cdp,cdp-memory,openmpi,cdp-openmpi --lines FILE".

    THREADS
        With a progress thread (the default) MPI must have been initialized with
        MPI_THREAD_MULTIPLE; otherwise set group.no_thread, and operations advance in waits and in
        cdp_poll(). Without a thread any level will do, as long as the calls of this library come
        from threads that may call MPI.

    FAILURES
        MPI says nothing of a process that has ended; most launchers then end the job. Where they
        do not, the others notice by their deadlines, and the rank that hangs is named.
        cdp_group_destroy() says goodbye to the ranks that this one talked to, and waits up to 1 s
        until they have what was sent. What has not left by then stays with MPI: its memory and the
        communicator are not released.

    MEMORY
        Up to 2 * CDP_MPI_WINDOW * CDP_MPI_SEGMENT bytes for each rank that this one talks to
        (512 KiB), from the os of the group, when they are first needed.

    CONFIGURATION
        CDP_MPI_SEGMENT   65536   largest message of MPI, in bytes
        CDP_MPI_WINDOW    4       such messages to one rank that it has not yet read
        Both are equal on all ranks: if they are not, no rank gets a group.

    LIMITS
        An idle rank looks for messages once in a millisecond, since MPI has no way to wake a
        thread that sleeps. All ranks are of one byte order.

    WALKS
        bytes to MPI: cdp__mpi_send, cdp__mpi_put, MPI_Isend
        MPI to bytes: cdp__mpi_wait, cdp__mpi_look, cdp__mpi_match, cdp__mpi_arrive; cdp__mpi_recv

    LICENSE
        MIT-0 or Unlicense, as you like; both are at the end of cdp.h.
*/
#ifndef CDP_MPI_INCLUDED
#define CDP_MPI_INCLUDED

#include "cdp.h"

#define CDP_MPI_VERSION 300 /* major * 10000 + minor * 100 + patch */
#if CDP_MPI_VERSION != CDP_VERSION
#error "cdp_mpi.h and cdp.h are of different versions: copy both from one release"
#endif

#ifdef __has_include
#if !__has_include(<mpi.h>)
#error "cdp_mpi.h needs an MPI: compile with mpicc, or name the folder of its mpi.h with -I"
#define CDP__NO_MPI /* that one error is enough */
#endif
#endif
#ifndef CDP__NO_MPI
#include "mpi/config.h"

#ifdef __cplusplus
extern "C" {
#endif
#include "mpi/create_api.h"

#ifdef __cplusplus
} /* extern "C" */
#endif
#include "mpi/cxx_api.h"

#endif /* CDP__NO_MPI */
#endif /* CDP_MPI_INCLUDED */

#if defined(CDP_IMPLEMENTATION) && !defined(CDP_MPI_IMPL_INCLUDED) && !defined(CDP__NO_MPI)
#define CDP_MPI_IMPL_INCLUDED

#include "mpi/state.h"
#include "mpi/streams.h"
#include "mpi/transport.h"
#include "mpi/create.h"

#endif /* CDP_MPI_IMPL_INCLUDED */
