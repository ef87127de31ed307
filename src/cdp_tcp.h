/*  cdp_tcp.h - process groups over TCP - v0.3.0 - MIT-0 or Unlicense

    WHAT IT IS
        Brings the ranks of a job together over TCP and gives each of them a cdp_group. They meet
        through a key-value store on rank 0 (or one that a launcher serves). Two ranks connect
        directly to each other when they first communicate.

    DO THIS
        #define CDP_IMPLEMENTATION      in exactly one C or C++ file, before
        #include "cdp_tcp.h"            which includes cdp_store.h and cdp.h

    QUICK START
        #define CDP_IMPLEMENTATION
        #include "cdp_tcp.h"
        #include <stdio.h>
        int main(void) {
            cdp_group *world;
            float x;
            if (cdp_init_from_env(NULL, &world) != CDP_OK) return cdp_print_error(stderr);
            x = (float)cdp_rank(world);
            if (cdp_allreduce(world, NULL, &x, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM) != CDP_OK)
                return cdp_print_error(stderr);
            printf("rank %u of %u: the ranks add up to %g\n", cdp_rank(world), cdp_size(world), x);
            cdp_group_destroy(world);
            return 0;
        }
        gcc -O2 hello.c -o hello -pthread        cdprun -n 4 ./hello

    CONTENTS
        Each part is marked >>folder/name and comes from src/folder/name.h. `grep '>>'` lists the
        parts in their order, which is that of the #include lines of src/cdp_tcp.h. A part uses
        what comes before it, never what comes after it. Names in _api hold what programs call.

    API BY TASK
        I want to...                                       call
        join the job that cdprun or torchrun started       cdp_init_from_env(NULL, &group)
        the same, under srun, mpirun or mpiexec            cdp_init_from_env(NULL, &group)
        set rank, size and rank 0's address myself         cdp_init(&desc, &group)
        join without blocking                              cdp_init_start, cdp_init_poll
        give them as one text                              cdp_init_url("tcp://node-0:29500", ...)
        start over NCCL, MPI or a way of my own by name    cdp_backend_register; desc.backend,
                                                           backend=NAME in the url, CDP_BACKEND
        meet in a file, a store, or over MPI               desc.file, desc.store, desc.exchange
        know my number among the ranks of this machine     cdp_launch_read
        read the variables, then change something          cdp_tcp_desc_from_env, then cdp_init
        leave                                              cdp_group_destroy(group), see cdp.h
        leave without blocking                             cdp_group_leave(group, budget_us)

    CONFIGURATION
        Macros: those of cdp.h and cdp_store.h. All other settings are in the desc; those that
        every group has are in its member `group`. Only the functions with `env` in their name,
        and cdp_launch_read, read environment variables. These must be equal in all files:
        CDP_NO_ENV             no cdp_init_from_env, cdp_init_url, cdp_launch_read,
                               cdp_tcp_desc_from_env, cdp_tcp_desc_from_url: fill in a
                               cdp_tcp_desc; no cdp_backend_register, no desc.backend
        CDP_NO_SHARED_MEMORY   ranks of one host use TCP, as with no_shared_memory
        CDP_SEGMENTS           segments of cdp_group_alloc() memory that a rank has at once, 1 to
                               1024 (default: 128); see LIMITS of cdp.h
        CDP_NO_MAC             no authentication codes: a desc with `mac` is UNSUPPORTED
        CDP_NO_STORE_SERVER    rank 0 cannot serve the store: without external_store it must be
                               another program, or cdp_init returns UNSUPPORTED
        CDP_NO_MEETING         rank 0 is found by master_addr alone: a desc with file, store or
                               exchange is UNSUPPORTED
        CDP_NO_JOB_KEY         no authentication; cdp_init returns UNSUPPORTED when a job_key is
                               set. Several machines then need trust_network

    THREADS
        cdp_init blocks its caller and may run in several threads at once (several groups). A group
        has one progress thread unless group.no_thread is set or the os has no threads. For the
        functions of groups see cdp.h.

    SHARED MEMORY
        On Linux two ranks of one machine and user exchange bytes through shared memory. Their TCP
        connection stays open and reports when one of them ends. The rank that connects makes the
        memory, of fixed size and reserved before use, and passes its descriptor over a Unix socket
        in the abstract namespace. The memory has no name and ends with the last of the two ranks.
        Everything read from it is checked: a peer that writes invalid data is named, and can only
        corrupt what it sends itself. If shared memory is not available (limits, another user or
        network namespace, an os without it), the rank logs one warning and uses TCP. Other users of
        the machine are refused, and the connecting rank proves with random bytes that the memory
        belongs to the TCP connection that was authenticated. Each such link takes four
        descriptors, with that of the connection.
        Peers read memory from cdp_group_alloc() (and so the buckets of a DDP) in place, from 64 KiB
        on. That memory consists of segments: up to 128 for each rank (CDP_SEGMENTS), each a
        descriptor and at least 1 MiB, reserved when allocated. A peer maps a segment read-only when
        it first receives something from it, and unmaps it when it is freed or the owner has ended
        (with group.no_thread in cdp_group_destroy(), because that may take 0.1 ms per MiB). On
        Linux a segment that is freed goes back to the system at once. Other memory is read by the
        receiver (process_vm_readv) from 64 KiB on, and from 256 KiB on for data that is only
        forwarded, if the system permits that when the link is made; containers and Yama often do
        not. Everything else, and whatever cannot be read when the time comes, goes through the ring
        buffers.

    MEMORY
        More than cdp.h says: about 10 KB and 0.8 KB per rank. 16 KiB of receive buffer for each
        connection, made with it; 145 KiB with `mac`. 89 KiB and twice ring_bytes (256 KiB;
        more with no_thread, see there) for each pair of ranks of one machine, together; with
        CDP_SLOTS and CDP_EXPOSURES of 1, CDP_SLOT_BYTES of 64 and CDP_SEGMENTS of 16, 4 KiB. Rank 0
        also holds the store: about 70 KB and 1.5 KB per rank.
        Descriptors: 16, one for each connection of a link, three more for each rank of the same
        machine with which memory is shared, and on rank 0 two for each rank. cdp_init compares
        that with the limit of the process: a rank without room for the store returns IO; one
        without room for memory logs a warning, uses TCP, and sees the end of a process only by the
        end of its connection. Both say what to raise.

    ERRORS
        cdp_init: INVALID (desc or variables), UNSUPPORTED (interfaces, but the os cannot list
        addresses; mac, but CDP_NO_MAC), IO (cannot listen: address, port and errno; too few
        descriptors), TIMEOUT (names the ranks that are missing), MISMATCH (two processes with one
        rank; ranks that differ in world size, connections, job key, mac, version, byte order),
        PEER_LOST (a process ended while the job was starting; the text names its rank), STORE (no
        store listens at master_addr, or it ended). Of init_timeout_ms the last eighth, at most
        1.2 s, is for finding out who is missing and for telling the others.
        Afterwards, in operations: see cdp_work_wait in cdp.h.

    STARTING AGAIN
        After a group is destroyed, its processes may call cdp_init with the same desc, in any order
        and however the group ended. A rank that comes before others have left finds the start that
        has begun, or failed, and waits for the next one, at most init_timeout_ms; after a second it
        logs for what. A process that a launcher starts in place of one that has ended does the
        same. So a second process of a rank is MISMATCH only while the job starts; where the job has
        begun, it waits. A rank 0 whose port another process still has gets IO.

    LOST RANKS
        A process that ends closes its connections, and its peers see that at once. If a child that
        it forked keeps them open, ranks of the same machine and process namespace still see the
        end of the process within about a second; ranks of other machines wait for their deadline.
        So close the descriptors in such a child, or call exec, which closes all of them.
        A machine that is gone without a word is PEER_LOST 30 to 40 s after its last
        acknowledgement, for an idle connection after 30 s. A rank that computes, sleeps or is
        stopped is not lost: its machine acknowledges. (Before Linux 6.15 a machine that disappears
        while its rank does not read may take some minutes to be found.)

    SECURITY
        Closed by default. Without a job key, the store and the ranks serve only processes of their
        own machine. A job over several machines needs a key, the same for all: CDP_JOB_KEY or
        `job_key`, 16 random characters or more (openssl rand -hex 16). With a key, both ends of
        every connection prove to each other that they know it before another byte is parsed:
        challenge and response with keyed BLAKE2s, which cannot be replayed. Nothing is encrypted:
        anyone who can read or change packets can read or change the data. `trust_network` opens a
        job without a key to every program that can reach its ports.
        A store that another program serves (`external_store`, torchrun's agent) has no keys: links
        between ranks are authenticated there, the contents of that store are not.
        Rank 0 listens at master_addr if that is an address, and on all interfaces if it is a name
        or not set. The other ranks listen at the address through which they reached rank 0. In a
        job with a key or a trusted network that does not stay on 127.0.0.1, ::1 or localhost, they
        listen on all interfaces, because only the peers can find out which of a machine's addresses
        leads to it. listen_addr narrows that down. A link counts only after both ends have named
        the job (16 random bytes) and their ranks.

    CHANGED BYTES
        A bit that flips on the way and passes the checksum of TCP changes an array, and so a sum,
        without an error. With `mac` (CDP_MAC=1; needs a job key) all bytes between two ranks over
        TCP travel in records of at most 16 KiB with an authentication code of 128 bits, whose keys
        both ends derive from the job key and the nonces of their proof. A record that was changed,
        repeated, moved or left out is CDP_ERR_IO with errno EBADMSG on the rank that receives it:
        the text names peer, address, connection and record. None of its bytes is handed on,
        nothing more is read from that connection, and the job fails with that cause on all ranks.
        A connection that is cut ends as if the peer had left. Nothing is encrypted. Ranks that
        differ in `mac` refuse each other. Ranks of one machine that share memory need no codes
        there. Connections to the store, and NCCL, have none. What it costs: make bench-mac.

    LIMITS
        ranks 65535; 1 to 16 connections for each pair of ranks; IPv4 and IPv6; all ranks of one
        byte order. 1024 connections that have not proved to be of the job, beyond those of its
        ranks; one more closes the oldest of them.

    SEVERAL CONNECTIONS
        One TCP flow may be slower than the network: because of its window on long distances,
        because of a limit for each flow, or because all its packets take one of several paths. With
        `connections` (CDP_CONNECTIONS) the bytes between two ranks go over several in turn, 128 KiB
        at a time, so none should be slower than the others. With `interfaces` (CDP_INTERFACES) the
        connections also take turns over the addresses of the peer that are equally near: with two
        connections and two interfaces in two networks, each cable carries half. Then rank 0 listens
        on all interfaces even if master_addr is an address. A link is up when all its connections
        are up; when one breaks, the link is lost, and the error says which. cdp_describe() shows
        the addresses of each.

    License: that of cdp.h. */
#if defined(CDP_TCP_IMPLEMENTATION) && !defined(CDP_STORE_IMPLEMENTATION)
#define CDP_STORE_IMPLEMENTATION
#endif
#include "cdp_store.h"

#ifndef CDP_TCP_INCLUDED
#define CDP_TCP_INCLUDED

#define CDP_TCP_VERSION 300 /* major * 10000 + minor * 100 + patch */
#if CDP_TCP_VERSION != CDP_VERSION
#error "cdp_tcp.h and cdp.h are of different versions: copy all headers from the same release"
#endif

#ifdef __cplusplus
extern "C" {
#endif

#include "tcp/desc_api.h"
#include "tcp/create_api.h"
#include "tcp/backends_api.h"
#include "tcp/launch_api.h"

#ifdef __cplusplus
} /* extern "C" */
#endif
#include "tcp/cxx_api.h"

#endif /* CDP_TCP_INCLUDED */

#if (defined(CDP_IMPLEMENTATION) || defined(CDP_TCP_IMPLEMENTATION)) \
    && !defined(CDP_TCP_IMPL_INCLUDED)
#define CDP_TCP_IMPL_INCLUDED
#undef CDP__HERE
#define CDP__HERE CDP__FILE_TCP

#include "tcp/handshake.h"
#include "tcp/paths.h"
#include "tcp/mac.h"
#include "tcp/memory.h"
#include "tcp/link.h"
#include "tcp/starts.h"
#include "tcp/mesh.h"
#include "tcp/link_streams.h"
#include "tcp/link_choosing.h"
#include "tcp/link_connecting.h"
#include "tcp/incoming.h"
#include "tcp/transport.h"
#include "tcp/first_cause.h"
#include "tcp/rendezvous.h"
#include "tcp/rendezvous_missing.h"
#include "tcp/rendezvous_again.h"
#include "tcp/rendezvous_steps.h"
#include "tcp/rendezvous_meeting.h"
#include "tcp/rendezvous_given.h"
#include "tcp/launchers.h"
#include "tcp/url.h"
#include "tcp/backends.h"
#include "tcp/calls.h"

#endif /* CDP_TCP_IMPL_INCLUDED */
