/* SPDX-License-Identifier: MIT-0 OR Unlicense
   Both texts are at the end of cdp.h. */
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

/* Joined from src/cdp_tcp.h and what it includes: change that, then `make headers`. */
#if defined(CDP_TCP_IMPLEMENTATION) && !defined(CDP_STORE_IMPLEMENTATION)
#define CDP_STORE_IMPLEMENTATION
#endif
#if !defined(CDP_STORE_INCLUDED) \
    || defined(CDP_IMPLEMENTATION) || defined(CDP_CORE_IMPLEMENTATION) \
    || defined(CDP_STORE_IMPLEMENTATION) \
    || defined(CDP_TCP_IMPLEMENTATION)
#include "cdp_store.h"
#endif

#ifndef CDP_TCP_INCLUDED
#define CDP_TCP_INCLUDED

#define CDP_TCP_VERSION 300 /* major * 10000 + minor * 100 + patch */
#if CDP_TCP_VERSION != CDP_VERSION
#error "cdp_tcp.h and cdp.h are of different versions: copy all headers from the same release"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- >>tcp/desc_api: what a job is started from ---------------------------------------------- */

typedef struct cdp_tcp_desc {
    /* rank and world_size (required), timeout_ms, os, logger and all that holds for any group.
       hub and transport stay NULL: cdp_init() makes the transport. small_bytes, piece_bytes,
       reproducible and choices must be equal on all ranks, and are compared. */
    cdp_group_desc group;
    /* address or name of rank 0's machine (default: "127.0.0.1") */
    const char *master_addr;
    /* required (unless world_size is 1): where rank 0 serves the store */
    uint16_t master_port;
    /* Another program (torchrun's agent) serves the store there, not rank 0. PyTorch's stores do
       not tell that a client has died: ranks that wait in cdp_init() for one that dies meanwhile
       wait until init_timeout_ms. */
    bool external_store;
    /* secret of this job, the same on all ranks (default: none; one machine only) */
    const char *job_key;
    /* without a job_key, work with other machines, too: any program that reaches them can join
       in */
    bool trust_network;
    /* every byte between two ranks over TCP is covered by an authentication code; needs a job_key,
       the same on all ranks; see CHANGED BYTES above (default: no) */
    bool mac;
    /* Other ways for the ranks to find rank 0, which then takes any free port when master_port is
      0 and publishes where it listens. The first of them that is set counts; they are used
      during cdp_init() only. */

    /* a file that all ranks reach; removed in the end, see cdp_file_store_create() */
    const char *file;
    /* any store that all ranks reach; the key "<job>/meet" is used */
    cdp_store *store;
    /* give rank 0's bytes to all, as MPI_Bcast does; 0: done */
    int (*exchange)(void *user, void *bytes, uint64_t count);
    void *exchange_user;
    /* this rank listens at this numeric address only (default: see SECURITY) */
    const char *listen_addr;
    /* in a job over several machines, the interfaces over which the others reach this rank: names
       or how they begin, such as "eth0,ib"; "^docker,veth": all but these (default: all) */
    const char *interfaces;
    /* TCP connections between each pair of ranks, for networks that one does not fill: 1 to 16, the
       same on all ranks (default: 1). With `interfaces`, in turn over these, each of which must be
       in a network of its own */
    uint32_t connections;
    /* ranks other than 0 listen at a port in first_port .. last_port (default: any free one) */
    uint16_t first_port;
    /* up to here (default: first_port) */
    uint16_t last_port;
    /* ranks of one machine use TCP, too, in place of shared memory; holds for all links of a rank
       that sets it */
    bool no_shared_memory;
    /* bytes of shared memory between two ranks of one machine, each way, 64 to 2^30 (default: 256
       KiB; with no_thread 4 MiB divided by the number of peers, if that is more: a message that
       fits into it needs no further frame of the peer). The rank that connects decides */
    uint64_t ring_bytes;
    /* rank 0: the process that started this one opened listen_fd, which listens at master_port */
    bool has_listen_fd;
    /* closed with the group; it stays open if cdp_init() fails before rank 0 serves the store */
    int32_t listen_fd;
    /* prefix of this job's keys in the store: one name per job (default: "cdp") */
    const char *job;
    /* connect to all ranks in cdp_init(), as soon as their addresses are known, and not when there
       is something to send: the first operations take some round trips less. Ignored with
       external_store, and in a process that may have too few descriptors for all links */
    bool connect_all;
    /* how long to wait for all ranks (default: 300000; CDP_NO_TIMEOUT: for ever) */
    uint32_t init_timeout_ms;
    /* of cdp_init_from_env(): a process that no launcher has started is a job of one rank */
    bool alone_ok;
#ifndef CDP_NO_ENV
    /* a name of cdp_backend_register(), whose function starts in place of cdp_init(); only the
       functions that block know it (default: "tcp") */
    const char *backend;
#endif
} cdp_tcp_desc;

/* ---- >>tcp/create_api: ranks find each other, and are connected ------------------------------ */

/* Join the job: meet the other ranks through the store, then return this rank's group. Blocks
   until every rank is there, at most init_timeout_ms. Errors: see the top of this file; nothing
   is left behind after one. */
CDP_MUST_CHECK CDP_API cdp_status cdp_init(const cdp_tcp_desc *desc, cdp_group **out);

#ifndef CDP_NO_FRAMES
/* A job that this rank is about to join. */
typedef struct cdp_starting cdp_starting;

/* cdp_init() for a program that must not block: checks *desc and begins to join; cdp_init_poll()
   goes on with it. All that *desc points to (texts, store, os, group.choices) must stay valid until
   that ends. Errors: INVALID, UNSUPPORTED, NOMEM, and then *out is NULL. A name in master_addr
   (rank 0), a file that another process has locked and `exchange` may still block: use an address
   and master_port. */
CDP_MUST_CHECK CDP_API cdp_status cdp_init_start(const cdp_tcp_desc *desc, cdp_starting **out);

/* Goes on for at most `budget_us` microseconds (0: one step, without waiting); waiting may take a
   millisecond more. CDP_PENDING: call it again. Everything else ends the start and releases it:
   CDP_OK, then *out is this rank's group; or what cdp_init() would have returned. STATE: the start
   is over already, or this process is a child, by fork(), of the one that began it. One thread at a
   time. */
CDP_MUST_CHECK CDP_API cdp_status cdp_init_poll(
    cdp_starting *starting, uint32_t budget_us, cdp_group **out);

/* Ends a start at once and releases it; NULL is allowed. The other ranks' starts fail with an error
   that names this rank: at once, or at their deadline if this rank had hardly begun. Does nothing
   for a start that is over, and in a child of fork(). */
CDP_API void cdp_init_cancel(cdp_starting *starting);
#endif /* CDP_NO_FRAMES */

#ifndef CDP_NO_ENV
/* Fill in rank, world_size and how to find rank 0 from the variables that a launcher has set:
   cdprun, torchrun, mpirun of Open MPI, mpiexec of MPICH (Hydra), srun of Slurm, MVAPICH, PALS,
   Flux; see cdp_launch_read() for which. MASTER_ADDR and MASTER_PORT are read under every launcher.
   If they are missing: under torchrun and cdprun the address is 127.0.0.1, and a missing port is an
   error; under Slurm they are the first node of the step and a port made from the numbers of job
   and step; under the others with all ranks on one machine they meet in a file named after the job
   (Open MPI: in its session directory; MPICH, MVAPICH: after the parent process, in TMPDIR), so any
   number of jobs can start at once; on several machines an error that says what to pass.
   TORCHELASTIC_USE_AGENT_STORE=True sets external_store
   (TORCHELASTIC_RESTART_COUNT is not read: it differs between the agents of one start);
   CDP_JOB_KEY becomes job_key unless there is one, and CDP_TRUST_NETWORK=1 (`cdprun --open`)
   sets trust_network; CDP_MAC=1 sets mac; CDP_INTERFACES is `interfaces`, CDP_CONNECTIONS
   `connections`, CDP_BACKEND `backend`, CDP_LOG_LEVEL (error, warn, info, debug, silent)
   logger.level, and CDP_LOG_LINES logger.lines_per_second, unless the desc has them. What the desc
   has already counts before the environment: rank and world_size if world_size is not 0,
   master_addr, master_port; a program that gives these two numbers needs no launcher. Where no
   launcher has set anything: an error, or with alone_ok one rank. The texts are valid until the
   environment changes or this thread calls this again.
   Errors: INVALID, naming the variable, what it holds and what it should hold. */
CDP_MUST_CHECK CDP_API cdp_status cdp_tcp_desc_from_env(cdp_tcp_desc *desc);

/* cdp_tcp_desc_from_env() on a copy of *desc (NULL: all defaults), then cdp_init(). */
CDP_MUST_CHECK CDP_API cdp_status cdp_init_from_env(const cdp_tcp_desc *desc, cdp_group **out);

/* Fill in how to find rank 0 from one text:
       env://                  cdp_tcp_desc_from_env()
       tcp://HOST:PORT         master_addr and master_port; HOST as in [fe80::1%eth0] if it has
                               colons
       file:///PATH            file
   Each may go on with ?rank=R&world_size=N&backend=NAME, or some of these, which count before the
   desc and the environment. The texts are valid until this thread calls this again. Errors:
   INVALID. */
CDP_MUST_CHECK CDP_API cdp_status cdp_tcp_desc_from_url(const char *url, cdp_tcp_desc *desc);

/* cdp_tcp_desc_from_url() on a copy of *desc (NULL: all defaults), then cdp_init(). */
CDP_MUST_CHECK CDP_API cdp_status cdp_init_url(
    const char *url, const cdp_tcp_desc *desc, cdp_group **out);
#endif /* CDP_NO_ENV */

/* ---- >>tcp/backends_api: ways to start, by name ---------------------------------------------- */

#ifndef CDP_NO_ENV
/* Makes this rank's group, as cdp_init() does; `backend` of *desc is "tcp", so it may call that. It
   returns a status below 0 after a failure, and has left nothing behind then. */
typedef cdp_status (*cdp_backend_func)(const cdp_tcp_desc *desc, void *user, cdp_group **out);

/* Give a way to start a name, so that `backend` of a desc, backend=NAME in a URL or the variable
   CDP_BACKEND can choose it: cdp_init(), cdp_init_url() and cdp_init_from_env() then call `create`.
   For example "nccl": a function that calls cdp_init() and cdp_nccl_attach(); "mpi": one that calls
   cdp_init_from_mpi(). "tcp", and "gloo" as PyTorch calls it, are cdp_init() itself. `name` is
   copied: 1 to 31 letters, digits, '_' and '-'. A second call with a name replaces its function; a
   NULL function takes the name away. At most 8 names in a process; call it before other threads
   start groups. Errors: INVALID (the name; "tcp" and "gloo"; a NULL function of an unknown name),
   NOMEM (8 names). */
CDP_MUST_CHECK CDP_API cdp_status cdp_backend_register(
    const char *name, cdp_backend_func create, void *user);
#endif

/* ---- >>tcp/launch_api: what launchers tell a rank -------------------------------------------- */

#ifndef CDP_NO_ENV
/* Returns the value of a variable, or NULL, as getenv() does. The text must stay valid until the
   cdp_ function that was given this one has returned. */
typedef const char *(*cdp_getenv_func)(void *user, const char *name);

/* What a launcher passes to a process in environment variables. */
typedef struct cdp_launch {
    /* "torchrun" (under cdprun, too), "openmpi", "mvapich", "pals", "flux", "mpich", "slurm"; ""
       when there is none */
    char launcher[12];
    uint32_t rank, world_size;
    /* among the ranks of this machine; local_size 0: not given */
    uint32_t local_rank, local_size;
    /* "": not given and not known */
    char master_addr[256];
    /* 0: likewise */
    uint16_t master_port;
    /* a name that no other job of this launcher has now; "": not known */
    char job[64];
    /* where it keeps files of this job; "": not known */
    char dir[200];
    bool external_store;
} cdp_launch;

/* Which variables are read, in this order:
       torchrun, cdprun   RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
                          TORCHELASTIC_USE_AGENT_STORE
       Open MPI           OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE; PMIX_NAMESPACE,
                          PMIX_SERVER_TMPDIR
       MVAPICH            MV2_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE
       PALS (HPE Cray)    PALS_RANKID, PMI_SIZE, PALS_LOCAL_RANKID, PALS_LOCAL_SIZE, PALS_APID
       Flux               FLUX_TASK_RANK, FLUX_JOB_SIZE, FLUX_TASK_LOCAL_ID, FLUX_JOB_ID,
                          FLUX_JOB_NNODES
       MPICH (Hydra)      PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS
       Slurm              SLURM_PROCID, SLURM_STEP_NUM_TASKS or SLURM_NTASKS, SLURM_LOCALID,
                          SLURM_STEP_TASKS_PER_NODE, SLURM_NODEID, SLURM_STEP_NODELIST,
                          SLURM_JOB_ID, SLURM_STEP_ID, SLURM_STEP_RESV_PORTS, SLURM_RESTART_COUNT
   and MASTER_ADDR, MASTER_PORT. All values come from `get` (NULL: the environment). Without a
   launcher: CDP_OK with launcher "". Errors: INVALID, naming the variable. */
CDP_MUST_CHECK CDP_API cdp_status cdp_launch_read(cdp_getenv_func get, void *user, cdp_launch *out);
#endif /* CDP_NO_ENV */

#ifdef __cplusplus
} /* extern "C" */
#endif
/* ---- >>tcp/cxx_api: descs by reference in C++ ------------------------------------------------ */

#ifdef __cplusplus
extern "C++" { /* also where a program includes the header in extern "C" */
inline cdp_status cdp_init(const cdp_tcp_desc &desc, cdp_group **out) {
    return cdp_init(&desc, out);
}
#ifndef CDP_NO_ENV
inline cdp_status cdp_init_url(const char *url, const cdp_tcp_desc &desc, cdp_group **out) {
    return cdp_init_url(url, &desc, out);
}
#endif
#ifndef CDP_NO_FRAMES
inline cdp_status cdp_init_start(const cdp_tcp_desc &desc, cdp_starting **out) {
    return cdp_init_start(&desc, out);
}
#endif
#ifndef CDP_NO_ENV
inline cdp_status cdp_init_from_env(const cdp_tcp_desc &desc, cdp_group **out) {
    return cdp_init_from_env(&desc, out);
}
#endif
} /* extern "C++" */
#endif

#endif /* CDP_TCP_INCLUDED */

#if (defined(CDP_IMPLEMENTATION) || defined(CDP_TCP_IMPLEMENTATION)) \
    && !defined(CDP_TCP_IMPL_INCLUDED)
#define CDP_TCP_IMPL_INCLUDED
#undef CDP__HERE
#define CDP__HERE CDP__FILE_TCP

/* ---- >>tcp/handshake: the first messages on a connection between two ranks (pure) ------------ */

/* Knows: the messages of the handshake. Promises: both sides choose the same connection; an
   unauthenticated client costs a few hundred bytes. */

/* The rank with the higher number connects to several addresses of the other rank at once, and
   sends HELLO on each connection. The other rank answers WELCOME, or REFUSED with a reason. On the
   connection whose WELCOME arrives first, the connecting rank sends CHOSEN: this connection is the
   link. Each message is 64 bytes. Nothing else is read from a connection before its HELLO is
   found valid, so strangers and ranks of other jobs cost a few hundred bytes and get no further.
   Ranks of one host switch to shared memory: HELLO says whether the sender supports that, and
   WELCOME the local name under which the answering rank waits for the memory. The connecting rank
   creates the memory, passes it there, and repeats in CHOSEN a random proof that the memory
   contains. If CHOSEN contains no proof, the link is up. Otherwise the other rank answers TAKEN,
   and the link is up: with `refusal` 0 bytes go through memory in both directions, with 1 they go
   through TCP. */
typedef enum cdp__hello_type {
    CDP__HELLO = 1,
    CDP__WELCOME = 2,
    CDP__REFUSED = 3,
    CDP__CHOSEN = 4,
    CDP__TAKEN = 5,
    CDP__INVITE = 6 /* from the lower rank, which waits for the connection: connect now */
} cdp__hello_type;
typedef enum cdp__refusal {
    CDP__REFUSE_NOTHING,
    CDP__REFUSE_VERSION,
    CDP__REFUSE_JOB,
    CDP__REFUSE_RANK,
    CDP__REFUSE_TWICE,
    CDP__REFUSE_INDEX,
    CDP__REFUSE_ORDER,
    CDP__REFUSE_MAC,
    CDP__REFUSE_COUNT
} cdp__refusal;

#define CDP__HELLO_BYTES 64u
#define CDP__REFUSE_KEY 100u /* values above this: a cdp__auth_refusal, received before any HELLO */
#define CDP__JOB_BYTES 16u
#define CDP__NAME_BYTES 12u
#define CDP__PLACE_BYTES 20u /* beginning of an address record: host, place, process */

typedef struct cdp__hello {
    uint32_t type, version, world_size, from, to, refusal;
    uint8_t job[CDP__JOB_BYTES];
    /* number of this connection between the two ranks; in the listener's own record: how many
       there are */
    uint32_t index;
    uint8_t memory[CDP__NAME_BYTES]; /* local name, or proof; zeros: no shared memory */
    uint8_t order;                   /* cdp__byte_order() of the sender */
    uint8_t mac; /* 1: after the handshake, bytes travel in records of >>tcp/mac */
} cdp__hello;

CDP__PRIVATE void cdp__hello_encode(const cdp__hello *h, uint8_t out[CDP__HELLO_BYTES]) {
    memset(out, 0, CDP__HELLO_BYTES);
    memcpy(out, "cdp-link", 8);
    cdp__put_u32(out + 8, h->version); /* below 2^24 */
    out[11] = h->order;
    cdp__put_u32(out + 12, h->type);
    cdp__put_u32(out + 16, h->world_size);
    cdp__put_u32(out + 20, h->from);
    cdp__put_u32(out + 24, h->to);
    cdp__put_u32(out + 28, h->refusal);
    memcpy(out + 32, h->job, CDP__JOB_BYTES);
    cdp__put_u32(out + 48, h->index); /* below 2^24 */
    out[51] = h->mac;
    memcpy(out + 52, h->memory, CDP__NAME_BYTES);
}

/* Returns false if the bytes are no HELLO of any version. */
CDP__PRIVATE bool cdp__hello_decode(const uint8_t in[CDP__HELLO_BYTES], cdp__hello *h) {
    h->version = cdp__get_u32(in + 8) & 0xffffff;
    h->order = in[11];
    h->type = cdp__get_u32(in + 12);
    h->world_size = cdp__get_u32(in + 16);
    h->from = cdp__get_u32(in + 20);
    h->to = cdp__get_u32(in + 24);
    h->refusal = cdp__get_u32(in + 28);
    memcpy(h->job, in + 32, CDP__JOB_BYTES);
    h->index = cdp__get_u32(in + 48) & 0xffffff;
    h->mac = in[51];
    memcpy(h->memory, in + 52, CDP__NAME_BYTES);
    return memcmp(in, "cdp-link", 8) == 0;
}

/* Decides whether rank `mine->from` accepts the HELLO of a rank that connects to it. */
CDP__PRIVATE cdp__refusal cdp__hello_judge(const cdp__hello *mine, const cdp__hello *theirs) {
    if (theirs->version != mine->version || theirs->type != CDP__HELLO) return CDP__REFUSE_VERSION;
    if (theirs->order != mine->order) return CDP__REFUSE_ORDER;
    if (memcmp(theirs->job, mine->job, CDP__JOB_BYTES) != 0
        || theirs->world_size != mine->world_size)
        return CDP__REFUSE_JOB;
    if (theirs->mac != mine->mac) return CDP__REFUSE_MAC;
    if (theirs->to != mine->from || theirs->from <= mine->from || theirs->from >= mine->world_size)
        return CDP__REFUSE_RANK;
    return theirs->index < mine->index ? CDP__REFUSE_NOTHING : CDP__REFUSE_INDEX;
}

CDP__PRIVATE const char *cdp__refusal_text(uint32_t r) {
    static const char *const texts[CDP__REFUSE_COUNT] = {"it gave no reason",
        "it speaks another version", "it belongs to another job", "it has another rank",
        "it is connected to this rank already",
        "it has more connections than this rank: set `connections` alike on all ranks",
        "its processor has another byte order: all ranks of a job must have the same",
        "mac is on at one end and off at the other: set it, or CDP_MAC, alike on all ranks"};
    if (r > CDP__REFUSE_KEY) return cdp__auth_text(r - CDP__REFUSE_KEY);
    return texts[r < (uint32_t)CDP__REFUSE_COUNT ? r : 0];
}

/* ---- >>tcp/paths: which addresses of a peer to try, and in what order (pure) ----------------- */

/* Knows: addresses of this rank and of a peer. Promises: addresses on a shared network come
   first. */

#define CDP__ADDRS 12u /* published by a rank, at most */
#define CDP__PATHS 16u /* tried for a peer, at most */

CDP__PRIVATE bool cdp__addr_loopback(const cdp_addr *a) {
    static const uint8_t one[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
    return a->family == 4 ? a->ip[0] == 127 : memcmp(a->ip, one, 16) == 0;
}

CDP__PRIVATE bool cdp__addr_link_local(const cdp_addr *a) {
    return a->family == 6 && a->ip[0] == 0xfe && (a->ip[1] & 0xc0) == 0x80;
}

/* True for the address that means all interfaces. */
CDP__PRIVATE bool cdp__addr_any(const cdp_addr *a) {
    static const uint8_t none[16] = {0};
    return memcmp(a->ip, none, a->family == 4 ? 4 : 16) == 0;
}

/* The number of leading bits that two addresses have in common. */
CDP__PRIVATE uint32_t cdp__addr_common(const cdp_addr *a, const cdp_addr *b) {
    const uint32_t bits = a->family == 4 ? 32 : 128;
    uint32_t i = 0;
    if (a->family != b->family) return 0;
    while (i < bits && !((a->ip[i / 8] ^ b->ip[i / 8]) >> (7 - i % 8) & 1))
        ++i;
    return i;
}

/* Parses a list like "10.0.0.1:4711,[fd00::1]:4711". Returns the number of addresses; 0 if it is
   invalid. */
CDP__PRIVATE uint32_t cdp__addrs_parse(
    const char *text, uint64_t bytes, cdp_addr *out, uint32_t max) {
    uint64_t at = 0;
    uint32_t n = 0;
    while (at < bytes && n < max) {
        char one[80];
        uint64_t end = at;
        while (end < bytes && text[end] != ',')
            ++end;
        if (end - at >= sizeof one) return 0;
        memcpy(one, text + at, (size_t)(end - at));
        one[end - at] = 0;
        if (!cdp__addr_parse(one, &out[n++])) return 0;
        at = end + 1;
    }
    return n;
}

CDP__PRIVATE void cdp__addrs_text(const cdp_addr *a, uint32_t n, char *dst, uint64_t size) {
    cdp__text t = cdp__text_of(dst, size);
    char one[80];
    uint32_t i;
    dst[0] = 0;
    for (i = 0; i < n; ++i) {
        cdp__addr_text(&a[i], one, sizeof one);
        if (t.used + strlen(one) + 2 < size) cdp__text_add(&t, i ? ",%s" : "%s", one);
    }
}

/* The cost of trying an address; lower is better. In order: the same network; other networks, by
   common leading bits; link-local addresses; addresses that most likely mean another host: one
   that this host has, too (every host has its own docker0), and loopback. */
CDP__PRIVATE uint32_t cdp__path_cost(
    const cdp_addr *mine, uint32_t n, const cdp_addr *a, bool same_machine) {
    uint32_t i, common = 0;
    for (i = 0; i < n; ++i)
        common = (uint32_t)cdp__max(common, cdp__addr_common(&mine[i], a));
    if (same_machine) return 0;
    if (cdp__addr_loopback(a)) return 2000;
    if (common == (a->family == 4 ? 32u : 128u)) return 1000;
    if (cdp__addr_link_local(a)) return 500;
    if (common >= (a->family == 4 ? 24u : 64u)) return 100;
    return 300 - common;
}

/* Selects the addresses of a peer to connect to, the most promising first. Zone numbers of
   link-local addresses differ from machine to machine, so such an address is tried in every zone of
   this machine. */
CDP__PRIVATE uint32_t cdp__paths(const cdp_addr *mine, uint32_t n, const cdp_addr *theirs,
    uint32_t k, cdp_addr out[CDP__PATHS]) {
    uint32_t cost[CDP__PATHS], i, j, count = 0;
    bool same = n > 0;
    for (i = 0; i < k && same; ++i) {
        for (j = 0; j < n && memcmp(mine[j].ip, theirs[i].ip, 16) != 0; ++j) {
        }
        same = j < n;
    }
    for (i = 0; i < k; ++i) {
        const bool zones = cdp__addr_link_local(&theirs[i]) && n && !same;
        for (j = 0; j < (zones ? n : 1) && count < CDP__PATHS; ++j) {
            uint32_t at = count, c = cdp__path_cost(mine, n, &theirs[i], same);
            if (zones && !cdp__addr_link_local(&mine[j])) continue;
            for (; at && cost[at - 1] > c; --at) {
                cost[at] = cost[at - 1];
                out[at] = out[at - 1];
            }
            cost[at] = c;
            out[at] = theirs[i];
            if (zones) out[at].scope = mine[j].scope;
            ++count;
        }
    }
    if (!count && k) out[count++] = theirs[0];
    return count;
}

/* The cost class of an address, without its common bits. */
CDP__PRIVATE uint32_t cdp__path_class(const cdp_addr *mine, uint32_t n, const cdp_addr *a) {
    const uint32_t cost = cdp__path_cost(mine, n, a, false);
    return cost > 100 && cost < 500 ? 300 : cost;
}

/* With several connections, rotates the equally good addresses at the front, so that the
   connections use different ones. Only addresses of one IP version rotate, because those of the
   other one are often of the same interfaces. */
CDP__PRIVATE void cdp__paths_turn(
    const cdp_addr *mine, uint32_t n, cdp_addr at[CDP__PATHS], uint32_t count, uint32_t times) {
    uint32_t same = 1;
    while (same < count && at[same].family == at[0].family
        && cdp__path_class(mine, n, &at[same]) == cdp__path_class(mine, n, &at[0]))
        ++same;
    for (times %= same; times; --times) {
        const cdp_addr first = at[0];
        memmove(at, at + 1, (same - 1) * sizeof *at);
        at[same - 1] = first;
    }
}

#if defined(CDP_NO_JOB_KEY) && !defined(CDP_NO_MAC)
#define CDP_NO_MAC
#endif

/* ---- >>tcp/mac: records with an authentication code ------------------------------------------ */

/* Knows: the keys, counters and buffers of one connection. Promises: a byte is delivered only after
   the code of its record was verified; send reports a record as sent only when the system has
   accepted all of it. */

#ifndef CDP_NO_MAC

/* With `mac`, a connection carries records after its handshake, one after the other:

       length of the body (2)   check (6)   body (1 to 16384)   code (16)

   The code covers the record's number, its first eight bytes and the body. The check is the
   beginning of a code of number and length: so a changed length is detected at once, and not by
   waiting for bytes that never arrive. The number is not sent, because both ends count: a record
   that is repeated, left out or moved does not match. Each direction of each connection has its
   own key: a hash, keyed with the job's key, of both nonces of the authentication and of CHOSEN.
   So both ends also agree on ranks, job and index of the connection.

   SipHash-2-4 with a result of 128 bits, because it is faster than keyed BLAKE2s and Poly1305 here
   (docs/NOTES.md), takes the least code, and needs no key of its own for each record. */
#define CDP__MAC_BODY 16384u
#define CDP__MAC_HEAD 8u
#define CDP__MAC_CODE 16u
#ifndef CDP__MAC_RECORDS
#define CDP__MAC_RECORDS 4u /* moved with one system call, at most */
#endif
#define CDP__MAC_BYTES (CDP__MAC_RECORDS * (CDP__MAC_HEAD + CDP__MAC_BODY + CDP__MAC_CODE))

typedef struct cdp__mac {
    /* [0]: receiving, [1]: sending; number: records verified or made so far */
    uint64_t key[2][2], number[2];
    uint32_t in_at, in_used;     /* received, not verified yet */
    uint32_t body_at, body_left; /* verified, not delivered yet */
    uint32_t out_at, out_used;   /* made, not sent yet */
    bool changed;                /* a record did not match: nothing more is received */
    uint8_t in[CDP__MAC_BYTES], out[CDP__MAC_BYTES];
} cdp__mac;

CDP__PRIVATE void cdp__sip_words(uint64_t v[4], const uint8_t *p, uint64_t words) {
    uint64_t a = v[0], b = v[1], c = v[2], d = v[3];
    uint32_t i;
    for (; words; --words) {
        const uint64_t word = cdp__get_u64(p);
        p += 8;
        d ^= word;
        for (i = 0; i < 2; ++i) {
            a += b;
            c += d;
            b = (b << 13 | b >> 51) ^ a;
            d = (d << 16 | d >> 48) ^ c;
            a = a << 32 | a >> 32;
            c += b;
            a += d;
            b = (b << 17 | b >> 47) ^ c;
            d = (d << 21 | d >> 43) ^ a;
            c = c << 32 | c >> 32;
        }
        a ^= word;
    }
    v[0] = a;
    v[1] = b;
    v[2] = c;
    v[3] = d;
}

/* SipHash-2-4 of the eight bytes of `first` followed by `data`. Each half of the result ends
   with four rounds: mixing in two zero words runs just these. */
CDP__PRIVATE void cdp__sip(const uint64_t key[2], uint64_t first, const uint8_t *data,
    uint64_t bytes, uint8_t out[CDP__MAC_CODE]) {
    static const uint8_t zeros[16] = {0};
    uint64_t v[4];
    uint8_t word[8];
    uint32_t half;
    v[0] = key[0] ^ 0x736f6d6570736575u;
    v[1] = key[1] ^ 0x646f72616e646f6du ^ 0xee;
    v[2] = key[0] ^ 0x6c7967656e657261u;
    v[3] = key[1] ^ 0x7465646279746573u;
    cdp__put_u64(word, first);
    cdp__sip_words(v, word, 1);
    cdp__sip_words(v, data, bytes / 8);
    memset(word, 0, sizeof word);
    memcpy(word, data + bytes / 8 * 8, (size_t)(bytes % 8));
    word[7] = (uint8_t)(8 + bytes);
    cdp__sip_words(v, word, 1);
    v[2] ^= 0xee;
    for (half = 0; half < 2; ++half) {
        cdp__sip_words(v, zeros, 2);
        cdp__put_u64(out + 8 * half, v[0] ^ v[1] ^ v[2] ^ v[3]);
        v[1] ^= 0xdd; /* before the second half */
    }
}

/* Writes head and code around a body, which is already in place after the head. Returns the
   length of the record. */
CDP__PRIVATE uint32_t cdp__mac_seal(
    const uint64_t key[2], uint64_t number, uint8_t *record, uint32_t body) {
    uint8_t check[CDP__MAC_CODE];
    record[0] = (uint8_t)body;
    record[1] = (uint8_t)(body >> 8);
    cdp__sip(key, number, record, 2, check);
    memcpy(record + 2, check, CDP__MAC_HEAD - 2);
    cdp__sip(key, number, record, CDP__MAC_HEAD + body, record + CDP__MAC_HEAD + body);
    return CDP__MAC_HEAD + body + CDP__MAC_CODE;
}

/* Verifies the record with this number that begins here. Returns its length, 0 if more than
   `bytes` are needed to tell, or -EBADMSG if it was changed. *whole: it is complete and valid. */
CDP__PRIVATE int32_t cdp__mac_judge(
    const uint64_t key[2], uint64_t number, const uint8_t *record, uint64_t bytes, bool *whole) {
    uint8_t code[CDP__MAC_CODE];
    uint32_t body;
    *whole = false;
    if (bytes < CDP__MAC_HEAD) return 0;
    body = record[0] | (uint32_t)record[1] << 8;
    cdp__sip(key, number, record, 2, code);
    if (!cdp__auth_equal(code, record + 2, CDP__MAC_HEAD - 2) || !body || body > CDP__MAC_BODY)
        return -EBADMSG;
    if (bytes < CDP__MAC_HEAD + body + CDP__MAC_CODE) return 0;
    cdp__sip(key, number, record, CDP__MAC_HEAD + body, code);
    if (!cdp__auth_equal(code, record + CDP__MAC_HEAD + body, CDP__MAC_CODE)) return -EBADMSG;
    *whole = true;
    return (int32_t)(CDP__MAC_HEAD + body + CDP__MAC_CODE);
}

/* Derives the keys of both directions; [0] is for what the listener receives. */
CDP__PRIVATE void cdp__mac_keys(const uint8_t key[CDP__AUTH_BYTES], uint8_t nonce[2][16],
    const uint8_t chosen[CDP__HELLO_BYTES], uint64_t keys[2][2]) {
    uint8_t data[8 + 32 + CDP__HELLO_BYTES], hash[32];
    uint32_t i;
    memset(data, 0, 8);
    data[0] = CDP__AUTH_LINK;
    data[1] = 2; /* differs from authentication proofs, which have 0 or 1 here */
    memcpy(data + 8, nonce, 32);
    memcpy(data + 40, chosen, CDP__HELLO_BYTES);
    cdp__blake2s(key, CDP__AUTH_BYTES, data, sizeof data, hash, sizeof hash);
    for (i = 0; i < 4; ++i)
        keys[i / 2][i % 2] = cdp__get_u64(hash + 8 * i);
    cdp__wipe(hash, sizeof hash);
}

/* Returns NULL when out of memory. */
CDP__PRIVATE cdp__mac *cdp__mac_open(const cdp_os *os, const uint8_t key[CDP__AUTH_BYTES],
    uint8_t nonce[2][16], const uint8_t chosen[CDP__HELLO_BYTES], bool listener) {
    cdp__mac *c = (cdp__mac *)cdp__alloc_zero(os, sizeof *c);
    uint64_t keys[2][2];
    if (!c) return NULL;
    cdp__mac_keys(key, nonce, chosen, keys);
    memcpy(c->key[!listener], keys[0], sizeof keys[0]);
    memcpy(c->key[listener], keys[1], sizeof keys[1]);
    cdp__wipe(keys, sizeof keys);
    return c;
}

CDP__PRIVATE void cdp__mac_close(const cdp_os *os, cdp__mac *c) {
    if (c) cdp__wipe(c->key, sizeof c->key);
    cdp__free(os, c);
}

/* Sends finished records. 1: all are sent; 0: the socket accepts no more now; else a negative
   errno. */
CDP__PRIVATE int64_t cdp__mac_flush(cdp__mac *c, cdp__loop *l, cdp__io *io) {
    while (c->out_at < c->out_used) {
        cdp_iov v;
        int64_t r;
        v.data = c->out + c->out_at;
        v.bytes = c->out_used - c->out_at;
        r = cdp__io_send(l, io, &v, 1);
        if (r <= 0) return r;
        c->out_at += (uint32_t)r;
    }
    c->out_at = c->out_used = 0;
    return 1;
}

/* Copies up to `room` bytes of the pieces, from byte `from` of their concatenation on. Returns
   how many. */
CDP__PRIVATE uint32_t cdp__mac_gather(
    const cdp_iov *iov, uint32_t n, uint64_t from, uint8_t *to, uint32_t room) {
    uint32_t i, moved = 0;
    for (i = 0; i < n && moved < room; ++i) {
        uint32_t bytes;
        if (from >= iov[i].bytes) {
            from -= iov[i].bytes;
            continue;
        }
        bytes = (uint32_t)cdp__min(iov[i].bytes - from, room - moved);
        memcpy(to + moved, (const uint8_t *)iov[i].data + from, bytes);
        moved += bytes;
        from = 0;
    }
    return moved;
}

/* Sends like cdp__io_send(). While a record is partly sent, its last byte is reported as not
   sent, so that the caller calls again and no reported byte is still in this buffer. The next
   call must begin with that byte, which is skipped. */
CDP__PRIVATE int64_t cdp__mac_send(
    cdp__mac *c, cdp__loop *l, cdp__io *io, const cdp_iov *iov, uint32_t n) {
    const uint32_t kept = c->out_used ? 1 : 0;
    uint64_t moved = kept;
    uint32_t body, i;
    int64_t r = cdp__mac_flush(c, l, io);
    if (r <= 0) return r;
    for (i = 0; i < CDP__MAC_RECORDS; ++i) {
        uint8_t *record = c->out + c->out_used;
        body = cdp__mac_gather(iov, n, moved, record + CDP__MAC_HEAD, CDP__MAC_BODY);
        if (!body) break;
        c->out_used += cdp__mac_seal(c->key[1], c->number[1]++, record, body);
        moved += body;
    }
    r = cdp__mac_flush(c, l, io);
    if (r < 0) return r;
    return (int64_t)(r ? moved : moved - 1);
}

/* Verifies the next record. 1: verified; 0: incomplete; else as cdp__io_recv(). */
CDP__PRIVATE int64_t cdp__mac_next(cdp__mac *c, cdp__loop *l, cdp__io *io, bool look) {
    for (;;) {
        cdp_iov v;
        int64_t r;
        bool whole;
        const int32_t bytes = cdp__mac_judge(
            c->key[0], c->number[0], c->in + c->in_at, c->in_used - c->in_at, &whole);
        if (bytes < 0) c->changed = true;
        if (c->changed) return -EBADMSG;
        if (whole) {
            ++c->number[0];
            c->body_at = c->in_at + CDP__MAC_HEAD;
            c->body_left = (uint32_t)bytes - CDP__MAC_HEAD - CDP__MAC_CODE;
            c->in_at += (uint32_t)bytes;
            return 1;
        }
        if (!look) return 0;
        c->in_used -= c->in_at;
        memmove(c->in, c->in + c->in_at, c->in_used);
        c->in_at = 0;
        v.data = c->in + c->in_used;
        v.bytes = sizeof c->in - c->in_used;
        r = cdp__io_drain(l, io, &v);
        if (r <= 0) return r;
        c->in_used += (uint32_t)r;
        look = (io->ready & CDP_IO_READ) != 0;
    }
}

/* Receives like cdp__io_drain(). The socket stays ready while received bytes are not delivered. */
CDP__PRIVATE int64_t cdp__mac_recv(cdp__mac *c, cdp__loop *l, cdp__io *io, const cdp_iov *iov) {
    uint64_t moved = 0;
    int64_t r = 1;
    while (moved < iov->bytes) {
        uint32_t bytes;
        if (!c->body_left) r = cdp__mac_next(c, l, io, !moved || (io->ready & CDP_IO_READ));
        if (r <= 0) break;
        bytes = (uint32_t)cdp__min(iov->bytes - moved, c->body_left);
        memcpy((uint8_t *)iov->data + moved, c->in + c->body_at, bytes);
        c->body_at += bytes;
        c->body_left -= bytes;
        moved += bytes;
    }
    if (!moved) return r;
    if (c->body_left || c->in_at < c->in_used || r < 0) io->ready |= CDP_IO_READ;
    return (int64_t)moved;
}

#endif /* CDP_NO_MAC */

/* ---- >>tcp/memory: memory that two processes of one host share ------------------------------- */

/* Knows: memory that the os shares between processes, and how far a process can read the memory of
   another one. The line between two ranks is that of >>message/fabric in cdp.h. Promises: values
   that the peer stores are read once and checked. */

#ifndef CDP_SEGMENTS
#define CDP_SEGMENTS 128u /* of one rank, at once */
#endif
#if CDP_SEGMENTS < 1 || CDP_SEGMENTS > 1024
#error "cdp_tcp.h: CDP_SEGMENTS must be 1 to 1024"
#endif
#define CDP__SEGMENT_BYTES (1024u * 1024u) /* smaller allocations share a segment of this size */
#define CDP__RETIRED CDP_SEGMENTS          /* more than these are unmapped at once */
/* How a rank can read its peer's memory: any address; mapped segments. */
#define CDP__READS_ANY 1u
#define CDP__READS_SEGMENTS 2u

/* The values that one rank of a pair stores. (Peers store the counts of its doorbell.) */
typedef struct cdp__side {
    cdp__doorbell bell;
    /* address of this side's private copy of the proof: a peer that can read it can read all
       memory */
    uint64_t proof_at;
    uint32_t reads; /* CDP__READS_... */
    uint32_t freed; /* incremented when a segment of this side is freed */
    uint8_t pad_[48];
    /* [i]: the number of the descriptor that passed segment i of this side, from 1; 0: there is
       no segment i. Whole cache lines: one layout for processes of 32 and 64 bits */
    uint32_t segments[(CDP_SEGMENTS + 15) / 16 * 16];
} cdp__side;

/* A segment of memory for cdp_group_alloc(). */
typedef struct cdp__segment {
    uint8_t *at;
    uint64_t bytes, used;
    uint32_t live; /* live allocations; at 0 it is closed */
    int32_t fd;
} cdp__segment;

/* A segment of the peer, mapped here. */
typedef struct cdp__mapping {
    const uint8_t *at;
    uint64_t bytes;
    uint32_t number;
} cdp__mapping;

typedef struct cdp__pair {
    /* random, repeated in CHOSEN: proves that both ranks have mapped the same memory */
    uint8_t proof[CDP__NAME_BYTES];
    uint32_t taken;  /* the other side has mapped this memory */
    uint64_t layout; /* of the rank that created it */
    uint8_t pad_[40];
    cdp__side side[2]; /* 0: the rank that created the memory */
} cdp__pair;           /* followed by the two ways with their rings, first the one from side 0 */

/* Equal where two builds lay out this memory in the same way. */
#define CDP__LAYOUT                                                                           \
    ((uint64_t)CDP_SLOT_BYTES + ((uint64_t)CDP_SLOTS << 16) + ((uint64_t)CDP_EXPOSURES << 32) \
        + ((uint64_t)CDP_SEGMENTS << 48))

typedef struct cdp__shared {
    cdp__pair *pair;
    uint64_t bytes; /* of the whole mapping */
    cdp__line line;
    cdp__side *mine, *theirs;
    const cdp_os *os;
    uint32_t bell_counts[2]; /* counts of this side's doorbell when last polled */
    uint8_t proof[CDP__NAME_BYTES];
    int32_t pid; /* process id of the peer if its memory can be read; else 0 */
    cdp__mapping mappings[CDP_SEGMENTS];
    cdp__mapping retired[CDP__RETIRED]; /* that the peer has freed: they are unmapped in steps */
    uint32_t retired_count;
    bool passed_on[CDP_SEGMENTS]; /* segments passed to the peer */
    uint32_t passed, received;    /* numbers of descriptors */
    uint32_t freed;               /* the peer's count of freed segments, as last read */
    int32_t bell;                 /* descriptor that wakes the peer */
    int32_t pass;                 /* socket for descriptors of segments */
    int32_t memory;               /* its descriptor, until the peer has mapped it */
    bool taken;                   /* the peer has mapped it */
    struct cdp__shared *next;
} cdp__shared;

/* The peer has freed this segment. To unmap it takes 0.1 to 0.3 ms per MiB, too long for one step
   of a poll with a budget. */
CDP__PRIVATE void cdp__shared_retire(cdp__shared *s, cdp__mapping *v, bool now) {
    if (now || s->retired_count == CDP__RETIRED || !s->os->shared.unmap_parts)
        s->os->shared.unmap(s->os->user, (void *)(uintptr_t)v->at, v->bytes);
    else
        s->retired[s->retired_count++] = *v;
    v->at = NULL;
}

/* One step: unmaps a piece of a retired segment. */
CDP__PRIVATE void cdp__shared_shrink(cdp__shared *s) {
    cdp__mapping *v = &s->retired[s->retired_count - 1];
    const uint64_t bytes = cdp__min(v->bytes, CDP__STEP_BYTES);
    s->os->shared.unmap(s->os->user, (void *)(uintptr_t)v->at, bytes);
    v->at += bytes;
    v->bytes -= bytes;
    if (!v->bytes) --s->retired_count;
}

/* This rank leaves: unmaps a piece of what is mapped. False: nothing is left. */
CDP__PRIVATE bool cdp__shared_leave(cdp__shared *s) {
    uint32_t i;
    for (i = 0; i < CDP_SEGMENTS && !s->retired_count; ++i)
        if (s->mappings[i].at) cdp__shared_retire(s, &s->mappings[i], false);
    if (!s->retired_count) return false;
    cdp__shared_shrink(s);
    return true;
}

/* One pass over the peer's segments: unmaps those that the peer has freed (`all`: every one),
   and maps the latest descriptor `fd` (-1: none) at its place. */
CDP__PRIVATE void cdp__shared_remap(cdp__shared *s, int32_t fd, bool all) {
    const cdp_os *os = s->os;
    uint32_t i;
    for (i = 0; i < CDP_SEGMENTS; ++i) {
        cdp__mapping *v = &s->mappings[i];
        const uint32_t number = cdp__atomic_load_u32(&s->theirs->segments[i], CDP__ACQUIRE);
        if (v->at && (all || number != v->number)) cdp__shared_retire(s, v, all);
        if (fd < 0 || v->at || number != s->received) continue;
        /* maps the real length of that memory, because the peer may claim any */
        v->at = (const uint8_t *)os->shared.map(os->user, fd, false, &v->bytes);
        v->number = number;
    }
}

/* Unmaps segments that the peer has freed (`all`: every one), and maps those that it has passed.
   The peer may reuse a place at any time, so its number is read once for both decisions. */
CDP__PRIVATE CDP__COLD void cdp__shared_tidy(cdp__shared *s, bool all) {
    const cdp_os *os = s->os;
    int32_t fd = -1;
    uint32_t tries = 0;
    bool more;
    s->freed = cdp__atomic_load_u32(&s->theirs->freed, CDP__ACQUIRE);
    while (all && s->retired_count)
        cdp__shared_retire(s, &s->retired[--s->retired_count], true);
    do {
        more = !all && tries++ < CDP_SEGMENTS
            && os->shared.pass(os->user, s->pass, &fd, 1, false) >= 0;
        if (more) ++s->received;
        cdp__shared_remap(s, more ? fd : -1, all);
        if (more) os->net.close_fd(os->user, fd);
    } while (more);
}

/* Returns that many bytes of a segment of the peer, or NULL if it was freed or cannot be mapped.
   The index comes from the peer: out of range, it wraps to another segment, which is harmless. */
CDP__PRIVATE const uint8_t *cdp__shared_map(
    cdp__shared *s, uint32_t i, uint64_t off, uint64_t bytes) {
    const cdp__mapping *v = &s->mappings[i %= CDP_SEGMENTS];
    if (!v->at || v->number != cdp__atomic_load_u32(&s->theirs->segments[i], CDP__ACQUIRE))
        cdp__shared_tidy(s, false);
    return v->at && off <= v->bytes && bytes <= v->bytes - off ? v->at + off : NULL;
}

/* Passes this rank's segment i to the peer, which maps it. */
CDP__PRIVATE bool cdp__shared_pass(cdp__shared *s, uint32_t i, int32_t fd) {
    cdp__atomic_store_u32(&s->mine->segments[i], s->passed + 1, CDP__RELEASE);
    s->passed_on[i] = s->os->shared.pass(s->os->user, s->pass, &fd, 1, true) >= 0;
    if (s->passed_on[i])
        ++s->passed;
    else
        cdp__atomic_store_u32(&s->mine->segments[i], 0, CDP__RELEASE);
    return s->passed_on[i];
}

/* Makes the peer unmap this rank's segment i at its next poll. It stays mapped there until then. */
CDP__PRIVATE void cdp__shared_withdraw(cdp__shared *s, uint32_t i) {
    if (!s->passed_on[i]) return;
    s->passed_on[i] = false;
    cdp__atomic_store_u32(&s->mine->segments[i], 0, CDP__RELEASE);
    (void)cdp__atomic_add_u32(&s->mine->freed, 1, CDP__RELEASE);
    cdp__line_ring(&s->line, CDP__BELL_DATA);
}

CDP__PRIVATE void cdp__shared_close(cdp__shared *s) {
    const cdp_os *os;
    if (!s) return;
    os = s->os;
    if (s->theirs) cdp__shared_tidy(s, true);
    if (s->pair) os->shared.unmap(os->user, s->pair, s->bytes);
    if (s->bell >= 0) os->net.close_fd(os->user, s->bell);
    if (s->pass >= 0) os->net.close_fd(os->user, s->pass);
    if (s->memory >= 0) os->net.close_fd(os->user, s->memory);
    cdp__free(os, s);
}

CDP__PRIVATE void cdp__shared_wake(cdp__line *l) {
    const cdp__shared *s = (const cdp__shared *)l->owner;
    s->os->net.wake_set(s->os->user, s->bell);
}

/* The length of a pair's memory with rings of `room` bytes each. */
CDP__PRIVATE uint64_t cdp__shared_size(uint64_t room) {
    return sizeof(cdp__pair) + 2 * (sizeof(cdp__way) + room);
}

/* Maps the memory of descriptor `memory`, and takes ownership of the descriptor. NULL: it is not
   usable. */
CDP__PRIVATE cdp__shared *cdp__shared_open(const cdp_os *os, int32_t memory, bool maker) {
#ifdef CDP_NO_SHARED_MEMORY
    (void)maker;
    os->net.close_fd(os->user, memory);
    return NULL;
#else
    cdp__shared *s = (cdp__shared *)cdp__alloc_zero(os, sizeof *s);
    cdp__way *first, *second;
    if (!s) {
        os->net.close_fd(os->user, memory);
        return NULL;
    }
    s->os = os;
    s->bell = s->pass = -1;
    s->memory = memory;
    s->pair = (cdp__pair *)os->shared.map(os->user, memory, true, &s->bytes);
    if (s->pair && s->bytes >= cdp__shared_size(0))
        s->line.size = (s->bytes - sizeof *s->pair) / 2 / 64 * 64 - sizeof *first;
    if (!s->line.size) {
        cdp__shared_close(s);
        return NULL;
    }
    first = (cdp__way *)(s->pair + 1);
    second = (cdp__way *)((uint8_t *)(first + 1) + s->line.size);
    s->line.out = maker ? first : second;
    s->line.in = maker ? second : first;
    s->mine = &s->pair->side[maker ? 0 : 1];
    s->theirs = &s->pair->side[maker ? 1 : 0];
    s->line.theirs = &s->theirs->bell;
    s->line.wake = cdp__shared_wake;
    s->line.owner = s;
    return s;
#endif
}

/* Both sides know the proof now: publishes the address of this rank's copy, for the peer to
   read. */
CDP__PRIVATE void cdp__shared_prove(cdp__shared *s, const uint8_t proof[CDP__NAME_BYTES]) {
    memcpy(s->proof, proof, CDP__NAME_BYTES);
    s->mine->proof_at = (uint64_t)(uintptr_t)s->proof;
}

/* Reads the peer's memory. Also reads its proof, because another process may have the same
   process id by now. Returns 0 or -errno. */
CDP__PRIVATE int32_t cdp__shared_read(
    const cdp__shared *s, int32_t pid, uint64_t at, void *dst, uint64_t bytes) {
    uint8_t proof[CDP__NAME_BYTES];
    uint64_t from[2];
    cdp_iov to[2];
    int32_t r;
    from[0] = cdp__atomic_load_u64(&s->theirs->proof_at, CDP__RELAXED);
    to[0].data = proof;
    to[0].bytes = sizeof proof;
    from[1] = at;
    to[1].data = dst;
    to[1].bytes = bytes;
    r = s->os->shared.read_process(s->os->user, pid, from, to, bytes ? 2 : 1);
    return r == 0 && memcmp(proof, s->proof, sizeof proof) != 0 ? -ESRCH : r;
}

/* The peer has published the address of its proof: finds out what memory of the peer is
   readable. */
CDP__PRIVATE void cdp__shared_try(cdp__shared *s, int32_t pid) {
    if (pid > 0 && s->os->shared.read_process && cdp__shared_read(s, pid, 0, NULL, 0) == 0)
        s->pid = pid;
    cdp__atomic_store_u32(&s->mine->reads,
        s->pid ? CDP__READS_ANY | CDP__READS_SEGMENTS : CDP__READS_SEGMENTS, CDP__RELEASE);
}

/* Call before sleeping: arms all doorbells, then polls once more. True: there is something to
   do. */
CDP__PRIVATE bool cdp__shared_doze(cdp__shared *list) {
    cdp__shared *s;
    bool news = false;
    for (s = list; s; s = s->next) {
        cdp__doorbell_arm(&s->mine->bell, cdp__line_wants(&s->line));
        news = news || s->retired_count;
    }
    for (s = list; s && !news; s = s->next)
        news = cdp__doorbell_rung(&s->mine->bell, s->bell_counts, cdp__line_wants(&s->line))
            && (cdp__line_busy(&s->line)
                || cdp__atomic_load_u32(&s->theirs->freed, CDP__ACQUIRE) != s->freed);
    return news;
}

/* Call after sleeping: the caller polls everything next. */
CDP__PRIVATE void cdp__shared_awake(cdp__shared *list) {
    for (; list; list = list->next) {
        cdp__doorbell_read(&list->mine->bell, list->bell_counts);
        if (cdp__atomic_load_u32(&list->theirs->freed, CDP__RELAXED) != list->freed)
            cdp__shared_tidy(list, false);
        if (list->retired_count) cdp__shared_shrink(list);
    }
}

/* ---- >>tcp/link: one connection and its states ----------------------------------------------- */

/* Knows: one connection and its buffers. Promises: the loop watches no socket of a closed link. */

typedef enum cdp__link_state {
    CDP__LINK_NONE,       /* never needed                                                       */
    CDP__LINK_AWAITED,    /* needed; the peer has the higher rank, so it is to connect          */
    CDP__LINK_CONNECTING, /* this rank connects: it tries the addresses of the peer             */
    CDP__LINK_CHOOSING,   /* chosen: CHOSEN is sent and TAKEN awaited, or the reverse */
    CDP__LINK_UP,
    CDP__LINK_LOST /* for good; `status` and `lost_errno` say why                        */
} cdp__link_state;

#define CDP__RX_BYTES 16384u /* read ahead: one system call for several small messages */
/* Each way, between two ranks of one machine. Of a rank that polls in frames: all its rings
   together, so that a message waits in them, not for a frame of the peer. */
#define CDP__RING_BYTES (256u * 1024u)
#define CDP__FRAME_RING_BYTES (4096u * 1024u)
/* see cdp__mesh_readable */
#define CDP__FRESH_BYTES (256u * 1024u)
/* A caller that polls memory in a busy loop polls the sockets once in this time. */
#define CDP__LOOK_NS 4000u
#define CDP__TX_BYTES 512u /* a message in pieces up to this total is sent as one piece */
/* How long to wait for a connection before checking whether the peer is alive. */
#define CDP__PROBE_FIRST_MS 50u
#define CDP__PROBE_EVERY_MS 250u
#define CDP__HELLO_MS 10000u /* time for a client to send HELLO */
#define CDP__STAGGER_MS 50u  /* delay before the next address of a peer is tried, too */

struct cdp__mesh;
struct cdp__link;

/* An attempt to connect to one of a peer's addresses. */
typedef struct cdp__path {
    struct cdp__link *link;
    cdp_addr at;
    cdp__io io;
    bool proving;  /* TCP is connected: both ends prove that they know the key */
    bool greeting; /* HELLO is being sent, then WELCOME is awaited */
    cdp__auth auth;
    uint8_t hello[CDP__HELLO_BYTES];
    uint32_t sent, got;
} cdp__path;

/* All attempts to connect to a peer, until one succeeds. */
typedef struct cdp__race {
    uint32_t count, begun, over;
    uint32_t worth; /* how informative the link's error is; see cdp__path_over() */
    cdp__timer timer;
    cdp__path paths[CDP__PATHS];
} cdp__race;

typedef struct cdp__link {
    struct cdp__mesh *mesh;
    uint32_t peer;
    uint32_t index;  /* number of this connection to the peer */
    uint32_t broken; /* number of the connection lost first */
    cdp__link_state state;
    cdp__shared *shared; /* memory for the bytes; while CHOOSING: offered */
#ifndef CDP_NO_MAC
    cdp__mac *mac; /* NULL: no authentication codes */
#endif
    uint8_t *rx;
    uint32_t rx_at, rx_used;
    cdp_status status;
    int32_t lost_errno; /* 0: the peer closed the connection */
    cdp__io io;
    cdp__race *race; /* while CONNECTING, or inviting */
    bool inviting;
    bool nonsense; /* the peer has stored or sent invalid values */
    bool was_up;
    bool cause_unsent; /* the rest of the cause waits for room in the socket */
    bool wanted;       /* a receive found no bytes: its caller will read the socket itself */
    uint32_t
        cause_sent; /* bytes of the cause that were sent to the peer; see cdp__link_send_cause */
    uint32_t refusal;
    uint32_t silent; /* consecutive checks in which the peer's host or process was silent */
    /* errno for which no memory is shared with a rank of this host, until that is logged */
    int32_t apart;
    cdp_addr addr; /* the peer's address, or the one being tried */
    cdp__io probe; /* a connection that only tests whether the peer's port refuses it */
    cdp__timer probe_timer;
    uint32_t probes;
    uint32_t hello_sent, hello_got;
    /* for a rank of this host: ready when its process has ended, even if a child process keeps
       the connection open */
    cdp__io process;
    cdp__timer process_timer;
    uint8_t hello[CDP__HELLO_BYTES];
    uint8_t answer[CDP__HELLO_BYTES];

    /* members of the first of several connections only */
    bool whole;        /* all connections have been up */
    uint64_t moved[2]; /* bytes received and sent over all connections */
    cdp__timer end_timer;
    uint64_t received_before; /* bytes received at the last check after one connection ended */
} cdp__link;

/* A connection from a rank that has not identified itself, or that has not chosen this
   connection yet. */
typedef struct cdp__incoming {
    struct cdp__mesh *mesh;
    cdp__io io;
    cdp__timer timer;
    cdp_addr from;
    bool guarded; /* must authenticate itself first, or is being refused */
    cdp__auth auth;
    uint8_t hello[CDP__HELLO_BYTES];
    uint32_t sent, got;
    bool welcome; /* accepted: WELCOME is being sent, then CHOSEN is expected */
    bool offers;  /* the peer will pass descriptors of shared memory at `pass` */
    int32_t pass;
    struct cdp__incoming *next;
} cdp__incoming;

/* ---- >>tcp/starts: which start of a job a process belongs to (pure) -------------------------- */

/* Knows: what the store says of the start that is found there. Promises: a process that comes to a
   start that was over before waits for the next one; two that claim one rank of one start are
   told. */

/* Programs destroy their groups and start again at the same address, in any order. So a store may
   still be that of the start before: rank 0 has not left yet, or others serve it. Each of these
   becomes true once and stays so while that start's keys are there. */
typedef struct cdp__start_found {
    bool begun;   /* rank 0, or the process that had this rank, has found all others */
    bool failed;  /* a rank has reported that the start failed */
    bool claimed; /* another process, or this one before, has claimed this rank */
    bool lives;   /* that process may be alive */
    bool differs; /* its settings are not those of this rank */
} cdp__start_found;

typedef enum cdp__start_verdict {
    CDP__START_JOIN,
    CDP__START_TAKE_OVER, /* the rank of a process that ended while the job was starting */
    CDP__START_NEXT,      /* wait for the next start; rank 0: begin it */
    CDP__START_DIFFERS,
    CDP__START_TWICE /* two processes have one rank */
} cdp__start_verdict;

#ifndef CDP__START_PLANT /* tests plant mistakes here */
#define CDP__START_PLANT(mistake) false
#endif

/* Who claimed a rank of a start that then failed has been told why. It now asks for another one. */
CDP__PRIVATE cdp__start_verdict cdp__start_judge(const cdp__start_found *s) {
    if (s->begun && !CDP__START_PLANT(JOINS_WHAT_HAS_BEGUN)) return CDP__START_NEXT;
    if (s->claimed && s->failed && !CDP__START_PLANT(JOINS_WHAT_HAS_FAILED)) return CDP__START_NEXT;
    if (s->differs) return CDP__START_DIFFERS;
    if (!s->claimed) return CDP__START_JOIN;
    return s->lives || CDP__START_PLANT(NEVER_TAKES_OVER) ? CDP__START_TWICE : CDP__START_TAKE_OVER;
}

/* What cdp__start_found is made of, in the order in which it is read: the key, and whether that of
   rank 0 (0), of this rank (1), or of the job (2). */
typedef struct cdp__start_key {
    const char *name;
    uint8_t whose;
} cdp__start_key;

static const cdp__start_key cdp__start_keys[] = {
    {"claim", 1}, {"done", 1}, {"fail", 2}, {"done", 0}};

#define CDP__START_KEYS ((uint32_t)(sizeof cdp__start_keys / sizeof *cdp__start_keys))

/* The store has answered whether key number `i` is there. */
CDP__PRIVATE void cdp__start_record_key(cdp__start_found *s, uint32_t i, bool there) {
    if (i == 0) s->claimed = s->claimed || there;
    if (i == 1 || i == 3) s->begun = s->begun || there;
    if (i == 2) s->failed = s->failed || there;
}

/* ---- >>tcp/mesh: all links of a rank, and its listener --------------------------------------- */

/* Knows: all links of a rank, its listener, the store. Promises: the first cause of a failure is
   kept. */

/* Progress of reading another rank's wait record in the store: which rank it waits for while it
   starts. */
typedef enum cdp__wait_record_state {
    CDP__WAIT_RECORD_NONE,
    CDP__WAIT_RECORD_CHECK, /* asking whether there is one */
    CDP__WAIT_RECORD_GET,
    CDP__WAIT_RECORD_DONE
} cdp__wait_record_state;

/* A request that stores this rank's record of the job's failure. */
typedef struct cdp__cause_put {
    cdp_store_request rq;
    cdp_bytes key, values[2]; /* expected, and new */
    uint8_t value[CDP__FAILURE_MAX];
} cdp__cause_put;

/* A state of rendezvous; see >>tcp/rendezvous. */
typedef cdp_status cdp__join_func(struct cdp__mesh *m);

#define CDP__ENDPOINT_BYTES 1024u

typedef enum cdp__join_wait {
    CDP__WAITS_NOT,
    CDP__WAITS_REQUEST,    /* for the answer of a store */
    CDP__WAITS_CONNECTION, /* for the connection `made` to a store */
    CDP__WAITS_LISTENER,   /* for one of several addresses to accept a connection */
    CDP__WAITS_LINKS,      /* until no link is being made any more */
    CDP__WAITS_TIME
} cdp__join_wait;

typedef struct cdp__join {
    cdp__join_func *next;
    cdp__join_func *back; /* continues after states that several callers share */
    cdp__join_wait waits;
    cdp_status result; /* of what the previous state waited for */
    cdp_error why;     /* if that is an error; in reports of missing ranks, what they say */
    uint32_t step;
    uint32_t hold; /* it pauses before this step; 0: nowhere */
    bool over;
    bool with_values;     /* of keys of all ranks: also reads their values, into m->addrs */
    cdp_status status;    /* of the whole rendezvous */
    uint64_t deadline_ns; /* for finding all ranks; see cdp__mesh_init_deadline */
    bool complete;        /* all ranks have come, so that is later now */
    uint64_t until_ns;

    /* which ranks are missing */
    uint32_t looks;
    uint32_t rank, middle, end; /* whether ranks rank .. middle - 1 have come is asked now */
    bool narrow;                /* one of the ranks rank .. end - 1 has not come */
    bool blameless;             /* the store answers: rank 0, which serves it, is not to blame */
    uint32_t found;
    int32_t absent;
    int32_t named; /* the rank that the last report names; -1: none */
    /* the store has been asked whether other ranks of this host miss the same; they do */
    bool counted, quiet;
    uint32_t gloo;
    uint32_t polls; /* polls of a store that is not on this rank's loop */
    uint64_t pause_ns, give_up_ns, last_ns;

    /* the request in progress */
    cdp_store *asked;
    cdp_store_request rq;
    uint32_t timeout_ms;
    /* when a reported failure ends the wait for all ranks; 0: none was reported */
    uint64_t cause_grace_ns;
    cdp_bytes key, values[2];

    /* connections to a store, or to find out whether an address is in use */
    cdp_store *made;
    cdp_store *second;          /* another one to that store, which becomes `watch`; NULL: none */
    uint64_t reread_ns;         /* when the published address is read again; 0: it is not */
    uint64_t followed;          /* a hash of that address */
    uint32_t reached, reaching; /* connections that are up; that are being made */

    /* for a key that one process may own: the value of this process, and that of another one */
    uint64_t own_bytes, own_head;
    void *theirs;
    uint64_t their_bytes;
    bool config; /* that key is the config of rank 0 */

    /* the start that was found in the store, and waiting for the next one */
    cdp__start_found start;
    cdp__join_func *reopen;                      /* see cdp__join_reopen() */
    uint32_t look;                               /* the number of the key that is asked for now */
    uint64_t retry_ms, log_ns, claimed_until_ns; /* the last pause; when to log; how long to look */

    /* keys of all ranks */
    char (*texts)[96];
    cdp_bytes *keys;

    void *file; /* the cdp__file_store of the desc */
    uint64_t patience_ms;

    /* texts and lists of these */
    char key_text[96];
    char names[128];
    cdp__text list;
    cdp_addr at[CDP__PATHS];
    cdp__io reach[CDP__PATHS];
    uint8_t own[CDP__ENDPOINT_BYTES];
    cdp_error error; /* of the whole rendezvous */
} cdp__join;

typedef struct cdp__mesh {
    const cdp_os *os;
    cdp__link *links; /* the first connection of each peer, then the second of each, and so on */
    cdp__join *join;  /* rendezvous; NULL when it is over */
    cdp_store *store; /* for requests */
    cdp_store *watch; /* its only request waits for the key "fail" */
    cdp__segment *segments; /* CDP_SEGMENTS entries, allocated with the first one */
    cdp__shared *sharing;   /* memory of all links, also of lost ones */
    cdp__incoming *incoming;
    uint32_t incoming_count;
    uint32_t mine_count;
    cdp_tcp_desc desc;
    cdp__io listener;
    cdp__timer accept_timer;
    cdp__timer unanswered_timer; /* period of cdp__mesh_check_unanswered() */
    bool clients_warned, refusal_warned, memory_warned;
    bool keyed;
    bool spread;    /* connections of a link are spread over the interfaces of the desc */
    bool job_known; /* rank 0's published address was read, so `job` is known */
    uint64_t init_deadline_ns;
    uint64_t place; /* see cdp_os_shared.process_place */
    uint64_t looked_ns, start_ns;
    cdp_addr at; /* address of this rank's listener */
#ifndef CDP_NO_FRAMES
    cdp_addr home; /* without a store: an address of this host; see >>tcp/rendezvous_given */
#endif
    cdp_addr mine[CDP__ADDRS]; /* addresses of this host; mine_count of them */
    cdp_store_request addrs;   /* results: the published addresses of each rank */
    uint32_t *hosts;           /* host number of each rank, in order of appearance */
    uint8_t job[CDP__JOB_BYTES];
    uint8_t key[CDP__AUTH_BYTES];
    /* a store may outlive this start: a random part of the keys of this start */
    char round[20];
    char job_name[64];

    /* rendezvous */
    cdp_store_server *server; /* rank 0, unless the store is external */
    cdp_store *meeting;       /* the store in which rank 0 publishes its address, if any */
    char fail_key[96];
    cdp_store_request watch_rq;
    cdp_bytes watch_key;
    cdp__cause_put puts[2]; /* the first one, and then corrections by turns */
    uint32_t put_count;     /* how many were begun */
    bool watching;
    bool claimed;          /* this process owns its rank */
    bool started;          /* it has found all other ranks */
    bool foreign;          /* the missing rank is a process of PyTorch */
    bool frugal;           /* this process may have few descriptors: only TCP */
    uint64_t linger_ns[2]; /* until when it lingers after a failed start: least, most */
    bool parting;          /* it has ended its sending side of all links */
    uint64_t part_ns;      /* until when it waits for peers to close theirs; 0: not yet */
    /* only reports the cause of a failure to ranks that connect now */
    bool leaving;
    uint64_t leave_ns;               /* when it began to leave; 0: not yet */
    uint8_t cause[CDP__FAILURE_MAX]; /* this rank's record of the job's failure */
    uint32_t cause_bytes;
    bool failing;             /* `cause` is set */
    uint64_t known_ns;        /* rank 0: when it received the first cause; 0: not yet */
    cdp__timer readers_timer; /* gives other ranks time to read it */

    /* Wait records in the store, key wait/<rank>: the rank that this rank waits for while it
       starts. */
    bool wait_recorded; /* this rank has written one */
    cdp__wait_record_state wait_record_state;
    uint32_t wait_record_rank; /* the rank whose record is read */
    uint64_t wait_record_ns;   /* since when */
    int32_t wait_record_named;
    cdp_store_request wait_record_rq;
    cdp_bytes wait_record_key;
    char wait_record_text[96];

    cdp__loop loop;
} cdp__mesh;

/* True if this process serves the store. */
CDP__PRIVATE bool cdp__mesh_serves(const cdp__mesh *m) {
#ifdef CDP_NO_STORE_SERVER
    (void)m;
    return false;
#else
    return m->server != NULL;
#endif
}

/* True if this rank asks no store: see >>tcp/rendezvous_given. A constant in builds without such
   starts. */
CDP__PRIVATE bool cdp__mesh_alone(const cdp__mesh *m) {
#ifdef CDP_NO_FRAMES
    (void)m;
    return false;
#else
    return m->home.family != 0;
#endif
}

/* Then, an address of this host. */
CDP__PRIVATE bool cdp__mesh_home(const cdp__mesh *m, cdp_addr *out) {
#ifdef CDP_NO_FRAMES
    (void)m;
    (void)out;
    return false;
#else
    *out = m->home;
    return true;
#endif
}

/* The shared memory of a link. A constant in builds without shared memory, so that compilers
   omit the code that uses it. */
CDP__PRIVATE cdp__shared *cdp__link_shared(const cdp__link *l) {
#ifdef CDP_NO_SHARED_MEMORY
    (void)l;
    return NULL;
#else
    return l->shared;
#endif
}

/* The first in the list of all links' shared memory. */
CDP__PRIVATE cdp__shared *cdp__mesh_sharing(const cdp__mesh *m) {
#ifdef CDP_NO_SHARED_MEMORY
    (void)m;
    return NULL;
#else
    return m->sharing;
#endif
}

CDP__PRIVATE void cdp__race_end(cdp__link *l) {
    uint32_t i;
    if (!l->race) return;
    for (i = 0; i < l->race->begun; ++i)
        cdp__loop_remove(&l->mesh->loop, &l->race->paths[i].io);
    cdp__loop_timer_clear(&l->race->timer);
    cdp__free(l->mesh->os, l->race);
    l->race = NULL;
    l->inviting = false;
}

/* Marks the link as lost. The caller closes its connection, if any. */
CDP__PRIVATE void cdp__link_forget(cdp__link *l, cdp_status status, int32_t err) {
    l->was_up = l->state == CDP__LINK_UP
        && (l->mesh->desc.connections == 1 || l->mesh->links[l->peer].whole);
    cdp__race_end(l);
    cdp__loop_remove(&l->mesh->loop, &l->probe);
    cdp__loop_timer_clear(&l->probe_timer);
    cdp__loop_remove(&l->mesh->loop, &l->process);
    cdp__loop_timer_clear(&l->process_timer);
    l->state = CDP__LINK_LOST;
    l->status = status;
    l->lost_errno = err;
    /* Unmaps the peer's memory. If its process has ended, the last rank that unmaps makes the
       system free it, which takes 0.1 ms per MiB: too long for a poll with a budget, so without a
       progress thread this is left until this rank leaves. */
    if (cdp__link_shared(l) && !l->mesh->desc.group.no_thread) cdp__shared_tidy(l->shared, true);
}

CDP__PRIVATE void cdp__link_drop(cdp__link *l, cdp_status status, int32_t err) {
    cdp__link_forget(l, status, err);
    cdp__loop_remove(&l->mesh->loop, &l->io);
}

/* ---- >>tcp/link_streams: several connections as one link, and the bytes on them -------------- */

/* Knows: the connections of a link, their ends, records with a code. Promises: the error names the
   connection that was lost first; data that the peer sent is read before a link ends. */

/* Several connections as one link: block k of the bytes to a peer uses connection k %
   connections. So both sides know which connection carries the next byte, and nothing needs to
   be reordered. If one connection is lost, the link is lost. */
#ifndef CDP__BLOCK_BYTES
#define CDP__BLOCK_BYTES (128u * 1024u)
#endif
#define CDP__ENDED_MS 2000u /* how long to read the others when one has ended */

CDP__PRIVATE void cdp__link_read_ahead(cdp__link *l);

CDP__PRIVATE cdp__link *cdp__bundle_at(const cdp__link *l, uint32_t i) {
    return &l->mesh->links[l->peer + i * l->mesh->desc.group.world_size];
}

CDP__PRIVATE uint32_t cdp__bundle_turn(const cdp__link *first, uint64_t at) {
    return (uint32_t)(at / CDP__BLOCK_BYTES % first->mesh->desc.connections);
}

/* Drops data that still arrives on an unused connection, until the peer closes it. */
CDP__PRIVATE CDP__COLD void cdp__link_discard(cdp__link *l) {
    uint8_t dropped[512];
    cdp_iov v;
    int64_t r = 1;
    v.data = dropped;
    v.bytes = sizeof dropped;
    while (r > 0 && l->io.next && (l->io.ready & CDP_IO_READ))
        r = cdp__io_recv(&l->mesh->loop, &l->io, &v, 1);
    if (r < 0 && l->state == CDP__LINK_LOST)
        cdp__loop_remove(&l->mesh->loop, &l->io);
    else if (r < 0)
        cdp__link_drop(l, CDP_ERR_STATE, 0);
}

CDP__PRIVATE void cdp__link_send_cause(cdp__link *l);

CDP__PRIVATE void cdp__link_parting(cdp__io *io) {
    cdp__link *l = (cdp__link *)io->user;
    if (l->cause_unsent && l->state == CDP__LINK_UP) cdp__link_send_cause(l);
    cdp__link_discard(l);
}

/* Ends the sending side of an intact connection. The connection is closed when the peer has ended
   its side, too. */
CDP__PRIVATE void cdp__link_end_sending(cdp__link *l) {
    l->mesh->os->net.end_sending(l->mesh->os->user, l->io.fd);
    l->io.func = cdp__link_parting;
    l->io.ready |= CDP_IO_READ;
    cdp__link_discard(l);
}

/* When one connection to a peer breaks, all connections to that peer end. The others only stop
   sending at first: closing a socket with unread data sends a reset, and a peer that sees this
   reset before the first break would report the wrong connection. */
CDP__PRIVATE CDP__COLD void cdp__bundle_drop(cdp__link *l, cdp_status status, int32_t err) {
    uint32_t i;
    cdp__loop_timer_clear(&cdp__bundle_at(l, 0)->end_timer);
    for (i = 0; i < l->mesh->desc.connections; ++i) {
        cdp__link *s = cdp__bundle_at(l, i);
        s->addr = l->addr;
        s->refusal = l->refusal;
        s->broken = l->index;
        if (s->state == CDP__LINK_LOST) { /* it ended before the reason was known */
            s->status = status;
            s->lost_errno = err;
        } else if (s != l && s->state == CDP__LINK_UP && !cdp__link_shared(s)
            && l->mesh->os->net.end_sending) {
            cdp__link_forget(s, status, err);
            cdp__link_end_sending(s);
        } else {
            cdp__link_drop(s, status, err);
        }
    }
}

CDP__PRIVATE void cdp__bundle_ended(cdp__timer *t);

CDP__PRIVATE void cdp__bundle_await_end(cdp__link *first) {
    const cdp_os *os = first->mesh->os;
    first->received_before = first->moved[0];
    cdp__loop_timer_set(&first->mesh->loop, &first->end_timer,
        os->now_ns(os->user) + CDP__ENDED_MS * CDP__MS, cdp__bundle_ended, first);
}

/* Timer: one connection has ended, the others have not. A peer that leaves ends them all, but
   its last data may still be in flight on slower connections, or be unread here. */
CDP__PRIVATE void cdp__bundle_ended(cdp__timer *t) {
    cdp__link *first = (cdp__link *)t->user,
              *turn = cdp__bundle_at(first, cdp__bundle_turn(first, first->moved[0]));
    uint32_t i = 0;
    cdp__link_read_ahead(turn);
    if (first->received_before != first->moved[0] || turn->rx_at < turn->rx_used) {
        cdp__bundle_await_end(first);
        return;
    }
    while (cdp__bundle_at(first, i)->state != CDP__LINK_LOST)
        ++i;
    cdp__bundle_drop(cdp__bundle_at(first, i), CDP_ERR_PEER_LOST, 0);
}

/* One of several connections has ended. That alone has no clear meaning: the peer may have left,
   or may have lost another connection. If all have ended, the first one is named. */
CDP__PRIVATE void cdp__bundle_one_ended(cdp__link *l) {
    cdp__link *first = cdp__bundle_at(l, 0);
    uint32_t i, ended = 0, broken = l->index;
    l->broken = l->index;
    cdp__link_drop(l, CDP_ERR_PEER_LOST, 0);
    for (i = 0; i < l->mesh->desc.connections; ++i) {
        const cdp__link *s = cdp__bundle_at(l, i);
        if (s->state == CDP__LINK_LOST) ++ended;
        if (s->state == CDP__LINK_LOST && s != l) broken = s->broken;
    }
    l->broken = broken;
    if (ended == l->mesh->desc.connections)
        cdp__loop_timer_clear(&first->end_timer);
    else if (!first->end_timer.next)
        cdp__bundle_await_end(first);
}

CDP__PRIVATE void cdp__link_lose(cdp__link *l, cdp_status status, int32_t err) {
    cdp__link *first = cdp__bundle_at(l, 0), *turn;
    if (l->state == CDP__LINK_LOST) return;
    if (l->mesh->desc.connections > 1 && !cdp__link_shared(first) && l->state == CDP__LINK_UP
        && status == CDP_ERR_PEER_LOST && !err) {
        cdp__bundle_one_ended(l);
        return;
    }
    turn = cdp__bundle_at(l, cdp__bundle_turn(first, first->moved[0]));
    if (turn != l) { /* earlier data of the peer may explain the loss */
        turn->io.ready |= CDP_IO_READ;
        cdp__link_read_ahead(turn);
    }
    if (l->state != CDP__LINK_LOST) cdp__bundle_drop(l, status, err);
}

/* The peer's address, and which of several connections broke. Returns `at`. */
CDP__PRIVATE const char *cdp__link_text(const cdp__link *l, char at[112]) {
    cdp__addr_text(&l->addr, at, 80);
    if (l->mesh->desc.connections > 1)
        cdp__format(at + strlen(at), 32, " (connection %u of %u)", l->broken + 1,
            l->mesh->desc.connections);
    return at;
}

/* Sets this thread's last error to the reason why the link is lost. */
CDP__PRIVATE cdp_status cdp__link_explain(const cdp__link *l) {
    char at[112];
    if (l->status == CDP_ERR_NOMEM) return cdp__fail_nomem("a link", CDP__RX_BYTES);
#ifndef CDP_NO_MAC
    if (l->lost_errno == EBADMSG && cdp__bundle_at(l, l->broken)->mac)
        return cdp__fail_peer(CDP_ERR_IO, l->peer, EBADMSG,
            "record %llu from rank %u at %s does not match its authentication code: it was "
            "changed, repeated or left out on the way; nothing more is read from there",
            (unsigned long long)cdp__bundle_at(l, l->broken)->mac->number[0] + 1, l->peer,
            cdp__link_text(l, at));
#endif
    if (l->nonsense)
        return cdp__fail_peer(CDP_ERR_MISMATCH, l->peer, 0,
            "rank %u wrote nonsense into the memory that it shares with this rank: something in "
            "its process overwrites what is not its own",
            l->peer);
    if (l->status == CDP_ERR_MISMATCH && l->refusal)
        return cdp__fail_peer(CDP_ERR_MISMATCH, l->peer, 0,
            "rank %u at %s refused the connection: %s", l->peer, cdp__link_text(l, at),
            cdp__refusal_text(l->refusal));
    if (l->status == CDP_ERR_MISMATCH)
        return cdp__fail_peer(CDP_ERR_MISMATCH, l->peer, 0,
            "what listens at %s is not rank %u of this job", cdp__link_text(l, at), l->peer);
    if (l->lost_errno == ECONNREFUSED)
        return cdp__fail_peer(CDP_ERR_PEER_LOST, l->peer, ECONNREFUSED,
            "rank %u does not listen at %s any more: its process has ended, or has left the group",
            l->peer, cdp__link_text(l, at));
    if (!l->lost_errno)
        return cdp__fail_peer(CDP_ERR_PEER_LOST, l->peer, 0,
            "rank %u at %s closed its connection: its process has ended, or has left the group",
            l->peer, cdp__link_text(l, at));
    return cdp__fail_peer(CDP_ERR_PEER_LOST, l->peer, l->lost_errno,
        "lost the connection to rank %u at %s", l->peer, cdp__link_text(l, at));
}

/* Sends or receives the rest of a 64-byte handshake message. 1: complete; 0: call again when the
   socket is ready; else a negative errno, or as cdp_os.net.recv_iov. */
CDP__PRIVATE int32_t cdp__hello_move(
    cdp__mesh *m, cdp__io *io, uint8_t hello[CDP__HELLO_BYTES], uint32_t *done, bool receive) {
    while (*done < CDP__HELLO_BYTES) {
        cdp_iov v;
        int64_t r;
        v.data = hello + *done;
        v.bytes = CDP__HELLO_BYTES - *done;
        r = receive ? cdp__io_recv(&m->loop, io, &v, 1) : cdp__io_send(&m->loop, io, &v, 1);
        if (r <= 0) return (int32_t)r;
        *done += (uint32_t)r;
    }
    return 1;
}

CDP__PRIVATE int32_t cdp__hello_send(
    cdp__mesh *m, cdp__io *io, uint8_t hello[CDP__HELLO_BYTES], uint32_t *sent) {
    return cdp__hello_move(m, io, hello, sent, false);
}

CDP__PRIVATE int32_t cdp__hello_recv(
    cdp__mesh *m, cdp__io *io, uint8_t hello[CDP__HELLO_BYTES], uint32_t *got) {
    return cdp__hello_move(m, io, hello, got, true);
}

/* True if this rank can share memory with other ranks of its host. */
CDP__PRIVATE bool cdp__mesh_shares(const cdp__mesh *m) {
#ifdef CDP_NO_SHARED_MEMORY
    (void)m;
    return false;
#else
    return !m->desc.no_shared_memory && m->os->shared.create && m->loop.wake_fd[1] >= 0;
#endif
}

CDP__PRIVATE void cdp__hello_fill(
    const cdp__mesh *m, uint8_t out[CDP__HELLO_BYTES], uint32_t type, const cdp__link *l) {
    cdp__hello h;
    memset(&h, 0, sizeof h);
    h.type = type;
    h.version = CDP_WIRE_VERSION;
    h.order = (uint8_t)cdp__byte_order();
    h.mac = m->desc.mac;
    h.world_size = m->desc.group.world_size;
    h.from = m->desc.group.rank;
    h.to = l->peer;
    h.index = l->index;
    memcpy(h.job, m->job, CDP__JOB_BYTES);
    h.memory[0] = type == CDP__HELLO && !l->index && cdp__mesh_shares(m);
    cdp__hello_encode(&h, out);
}

/* Sends bytes over TCP, in records if the link has a mac. Results as in cdp_os. */
CDP__PRIVATE int64_t cdp__link_put(cdp__link *l, const cdp_iov *iov, uint32_t n) {
#ifndef CDP_NO_MAC
    if (l->mac) return cdp__mac_send(l->mac, &l->mesh->loop, &l->io, iov, n);
#endif
    return cdp__io_send(&l->mesh->loop, &l->io, iov, n);
}

CDP__PRIVATE int64_t cdp__link_get(cdp__link *l, const cdp_iov *iov) {
#ifndef CDP_NO_MAC
    if (l->mac) return cdp__mac_recv(l->mac, &l->mesh->loop, &l->io, iov);
#endif
    return cdp__io_recv(&l->mesh->loop, &l->io, iov, 1);
}

/* Receives like cdp__io_drain(). A function of its own, because a combined one would make every
   call slower. */
CDP__PRIVATE int64_t cdp__link_drain(cdp__link *l, const cdp_iov *iov) {
#ifndef CDP_NO_MAC
    if (l->mac) return cdp__mac_recv(l->mac, &l->mesh->loop, &l->io, iov);
#endif
    return cdp__io_drain(&l->mesh->loop, &l->io, iov);
}

/* Starts records on a connection with these nonces and this CHOSEN, if the job uses a mac.
   False: out of memory, the link is lost. */
CDP__PRIVATE bool cdp__link_guard(
    cdp__link *l, uint8_t nonce[2][16], const uint8_t chosen[CDP__HELLO_BYTES], bool listener) {
#ifndef CDP_NO_MAC
    if (!l->mesh->desc.mac) return true;
    l->mac = cdp__mac_open(l->mesh->os, l->mesh->key, nonce, chosen, listener);
    if (!l->mac) cdp__link_lose(l, CDP_ERR_NOMEM, 0);
    return l->mac != NULL;
#else
    (void)l;
    (void)nonce;
    (void)chosen;
    (void)listener;
    return true;
#endif
}

CDP__PRIVATE void cdp__link_unguard(cdp__link *l) {
#ifndef CDP_NO_MAC
    cdp__mac_close(l->mesh->os, l->mac);
    l->mac = NULL;
#else
    (void)l;
#endif
}

/* Sends the cause of the job's failure over a link on which nothing else was sent, so a FAILURE on
   the world's channel needs no stream. A socket may accept only a part of it: then `telling` is
   set, and this is called again. */
CDP__PRIVATE void cdp__link_send_cause(cdp__link *l) {
    uint8_t bytes[CDP__HEAD_BYTES + CDP__FAILURE_MAX];
    const uint32_t all = CDP__HEAD_BYTES + l->mesh->cause_bytes;
    cdp__head h;
    cdp_iov v;
    int64_t r = 1;
    memset(&h, 0, sizeof h);
    h.type = CDP__MESSAGE_FAILURE;
    h.channel = CDP__WORLD_CHANNEL;
    h.bytes = l->mesh->cause_bytes;
    if (!h.bytes) return;
    memcpy(bytes + CDP__HEAD_BYTES, l->mesh->cause, h.bytes);
    cdp__head_encode(&h, bytes);
    while (r > 0 && l->cause_sent < all) {
        v.data = bytes + l->cause_sent;
        v.bytes = all - l->cause_sent;
        r = cdp__link_shared(l) ? cdp__line_move(&l->shared->line, &v, 1, true)
                                : cdp__link_put(l, &v, 1);
        if (r > 0) l->cause_sent += (uint32_t)r;
    }
    l->cause_unsent = r == 0 && !cdp__link_shared(l);
}

CDP__PRIVATE void cdp__link_nonsense(cdp__link *l) {
    if (l->state != CDP__LINK_LOST) cdp__link_lose(l, CDP_ERR_MISMATCH, 0);
    l->nonsense = true;
}

/* Handles the failed receive `r`. A record that does not match ends receiving only: this rank
   can still send, so it sends the cause to the peer before it closes the connection. */
CDP__PRIVATE void cdp__link_broke(cdp__link *l, int64_t r) {
#ifndef CDP_NO_MAC
    if (l->mac && l->mac->changed) {
        l->lost_errno = EBADMSG;
        l->broken = l->index;
        return;
    }
#endif
    cdp__link_lose(l, CDP_ERR_PEER_LOST, r == CDP_IO_EOF ? 0 : (int32_t)-r);
}

/* True if no more data can arrive over this link. */
CDP__PRIVATE bool cdp__link_ended(const cdp__link *l) {
#ifndef CDP_NO_MAC
    if (l->mac && l->mac->changed) return true;
#endif
    return l->state == CDP__LINK_LOST;
}

/* Sharing memory with this rank of the host failed: TCP is used. Logged once. */
CDP__PRIVATE void cdp__mesh_no_memory(cdp__mesh *m, uint32_t peer, int32_t err) {
    (void)peer;
    (void)err; /* unused without log texts */
    cdp__log(&m->desc.group.logger, m->memory_warned ? CDP_LOG_DEBUG : CDP_LOG_WARN,
        m->desc.group.rank,
        "no shared memory with rank %u, although it is on this machine (errno %d, %s): their bytes "
        "go over TCP, which is slower; no_shared_memory says that this is meant",
        peer, (int)err, err ? cdp__os_error_text(err) : "the other rank could not");
    m->memory_warned = true;
}

/* Bytes of the peer have come over the connection. So it had not just left when memory could not be
   shared with it: that is logged. */
CDP__PRIVATE void cdp__link_received(cdp__link *l) {
    const int32_t err = l->apart;
    l->silent = 0;
    l->apart = 0;
    if (err) cdp__mesh_no_memory(l->mesh, l->peer, err);
}

/* Reads ahead while no call asks for data: small messages of the peer keep moving, and the end
   of the connection is noticed. */
CDP__PRIVATE void cdp__link_read_ahead(cdp__link *l) {
    while (l->state == CDP__LINK_UP && (l->io.ready & CDP_IO_READ) && l->rx_used < CDP__RX_BYTES) {
        cdp_iov v;
        int64_t r;
        if (l->rx_at) memmove(l->rx, l->rx + l->rx_at, l->rx_used - l->rx_at);
        l->rx_used -= l->rx_at;
        l->rx_at = 0;
        v.data = l->rx + l->rx_used;
        v.bytes = CDP__RX_BYTES - l->rx_used;
        r = v.bytes ? cdp__link_drain(l, &v) : 0;
        if (r > 0 && cdp__link_shared(l)) {
            cdp__link_nonsense(l);
            return;
        }
        /* data read earlier stays readable */
        if (r < 0) cdp__link_broke(l, r);
        if (r <= 0) return;
        cdp__link_received(l);
        l->rx_used += (uint32_t)r;
    }
}

/* How large a ring of this rank is, each way: a multiple of 64. */
CDP__PRIVATE uint64_t cdp__ring_room(const cdp_tcp_desc *desc) {
    const uint32_t peers = desc->group.world_size - 1;
    uint64_t usual = CDP__RING_BYTES;
    if (desc->group.no_thread) usual = cdp__max(usual, CDP__FRAME_RING_BYTES / cdp__max(peers, 1));
    return (cdp__def(desc->ring_bytes, usual) + 63) / 64 * 64;
}

/* The peer waits for shared memory under this name: creates and passes it. Writes the proof for
   CHOSEN into `proof`. */
CDP__PRIVATE void cdp__link_offer(
    cdp__link *l, const uint8_t name[CDP__NAME_BYTES], uint8_t proof[CDP__NAME_BYTES]) {
    cdp__mesh *m = l->mesh;
    const cdp_os *os = m->os;
    const uint64_t room = cdp__ring_room(&m->desc);
    const int32_t pass = os->shared.pass_open(os->user, name, false);
    int32_t fds[2],
        err = fds[0] = pass < 0 ? pass : os->shared.create(os->user, cdp__shared_size(room));
    cdp__shared *s = err < 0 ? NULL : cdp__shared_open(os, fds[0], true);
    if (s) {
        s->pass = pass;
        fds[1] = m->loop.wake_fd[1];
        err = os->random(os->user, proof, CDP__NAME_BYTES) == CDP_OK ? 0 : -EIO;
        proof[0] |= 1; /* a proof must not be zero */
        memcpy(s->pair->proof, proof, CDP__NAME_BYTES);
        s->pair->layout = CDP__LAYOUT;
        cdp__shared_prove(s, proof);
        if (!err) err = os->shared.pass(os->user, pass, fds, 2, true);
    } else {
        if (pass >= 0) os->net.close_fd(os->user, pass);
        err = err < 0 ? err : -ENOMEM;
    }
    if (err >= 0) {
        l->shared = s;
        return;
    }
    cdp__shared_close(s);
    memset(proof, 0, CDP__NAME_BYTES);
    l->apart = -err;
}

/* ---- >>tcp/link_choosing: a connection becomes a link; how its end is noticed ---------------- */

/* Knows: links and the handshake. Promises: a link is UP only when both sides have chosen the same
   connection. From then on its end is noticed: by the end of the stream, by the silence of the
   host, or by the end of the process. */

CDP__PRIVATE void cdp__link_choose_again(cdp__timer *t);

/* The answer to CHOSEN has arrived: it accepts the shared memory or not. False: call again
   later. If the peer has accepted but this process has no free descriptor, it retries until
   there is one. (Closing the memory's descriptor frees one, but another thread may take it.) */
CDP__PRIVATE bool cdp__link_taken(cdp__link *l) {
    const cdp_os *os = l->mesh->os;
    cdp__shared *s = l->shared;
    cdp__hello h;
    const bool ours = cdp__hello_decode(l->answer, &h) && h.type == CDP__TAKEN && h.from == l->peer;
    int32_t pid = 0;
    if (s->memory >= 0) os->net.close_fd(os->user, s->memory);
    s->memory = -1;
    if (ours && !h.refusal) pid = os->shared.pass(os->user, s->pass, &s->bell, 1, false);
    if (pid == -EMFILE) {
        cdp__loop_timer_set(&l->mesh->loop, &l->probe_timer, os->now_ns(os->user) + CDP__MS,
            cdp__link_choose_again, l);
        return false;
    }
    s->taken = true;
    if (ours && h.refusal) {
        cdp__shared_close(s);
        l->shared = NULL;
        cdp__mesh_no_memory(l->mesh, l->peer, 0);
    } else if (!ours || !s->pair->taken) {
        cdp__link_lose(l, CDP_ERR_MISMATCH, 0);
    } else if (pid < 0) {
        cdp__link_lose(l, CDP_ERR_PEER_LOST, -pid);
    } else if (l->mesh->desc.group.expose_bytes != UINT64_MAX) {
        cdp__shared_try(s, pid);
    }
    return true;
}

#ifndef CDP__UNANSWERED_MS
#define CDP__UNANSWERED_MS 5000u /* period of cdp__mesh_check_unanswered() */
#define CDP__SILENCE_MS 30000u   /* a host that acknowledges nothing for so long is lost */
#endif

/* Detects hosts that have disappeared, which send no end of stream. A link is lost only if two
   consecutive checks find it silent: data sent just before the first check has been acknowledged
   by the second. */
CDP__PRIVATE CDP__COLD void cdp__mesh_check_unanswered(cdp__timer *t) {
    cdp__mesh *m = (cdp__mesh *)t->user;
    const uint32_t count = m->desc.group.world_size * m->desc.connections;
    uint32_t i;
    cdp__loop_timer_set(&m->loop, t, m->os->now_ns(m->os->user) + CDP__UNANSWERED_MS * CDP__MS,
        cdp__mesh_check_unanswered, m);
    for (i = 0; i < count; ++i) {
        cdp__link *l = &m->links[i];
        if (l->state != CDP__LINK_UP || cdp__link_shared(l)) continue;
        if (m->os->net.unanswered_ns(m->os->user, l->io.fd) < CDP__SILENCE_MS * CDP__MS)
            l->silent = 0;
        else if (++l->silent == 2)
            cdp__link_lose(l, CDP_ERR_PEER_LOST, ETIMEDOUT);
    }
}

#define CDP__PROCESS_LOOK_MS 50u
#define CDP__PROCESS_LOOKS 12u /* checks without data; data in flight has shorter gaps */

/* Timer: the peer's process has ended. Its data is read first. If no more arrives but the
   connection stays open, a child process keeps it open, and the link is lost. */
CDP__PRIVATE void cdp__link_process_ended(cdp__timer *t) {
    cdp__link *l = (cdp__link *)t->user;
    if (l->state != CDP__LINK_UP) return;
    cdp__link_read_ahead(l);
    if (l->state != CDP__LINK_UP) return;
    if (cdp__link_shared(l) || (!(l->io.ready & CDP_IO_READ) && l->rx_at == l->rx_used)) {
        if (cdp__link_shared(l) || ++l->silent > CDP__PROCESS_LOOKS) {
            cdp__link_lose(l, CDP_ERR_PEER_LOST, 0);
            return;
        }
    } else {
        l->silent = 0;
    }
    cdp__loop_timer_set(&l->mesh->loop, t,
        l->mesh->os->now_ns(l->mesh->os->user) + CDP__PROCESS_LOOK_MS * CDP__MS,
        cdp__link_process_ended, l);
}

CDP__PRIVATE void cdp__link_process_event(cdp__io *io) {
    cdp__link *l = (cdp__link *)io->user;
    cdp__loop_remove(&l->mesh->loop, io);
    l->silent = 0;
    cdp__loop_timer_set(&l->mesh->loop, &l->process_timer,
        l->mesh->os->now_ns(l->mesh->os->user) + CDP__PROCESS_LOOK_MS * CDP__MS,
        cdp__link_process_ended, l);
}

/* The number of the peer's process if it is in the same place (see process_place); else 0. */
CDP__PRIVATE uint32_t cdp__link_process(const cdp__link *l) {
    const cdp__mesh *m = l->mesh;
    const cdp_bytes *v;
    if (l->index || !m->place || m->addrs.status != CDP_OK || !m->addrs.results) return 0;
    v = &m->addrs.results[l->peer];
    if (v->bytes < CDP__PLACE_BYTES || cdp__get_u64((const uint8_t *)v->data + 8) != m->place)
        return 0;
    return cdp__get_u32((const uint8_t *)v->data + 16);
}

CDP__PRIVATE void cdp__link_up(cdp__link *l) {
    cdp__mesh *m = l->mesh;
    const uint32_t number = cdp__link_process(l);
    int32_t fd;
    l->state = CDP__LINK_UP;
    if (m->os->net.unanswered_ns && !m->unanswered_timer.next)
        cdp__loop_timer_set(&m->loop, &m->unanswered_timer,
            m->os->now_ns(m->os->user) + CDP__UNANSWERED_MS * CDP__MS, cdp__mesh_check_unanswered,
            m);
    if (!number || !m->os->shared.process_open || m->frugal) return;
    fd = m->os->shared.process_open(m->os->user, number);
    if (fd >= 0) cdp__loop_add(&m->loop, &l->process, fd, cdp__link_process_event, l);
}

/* A link has just come up. If this rank is leaving because of a failure, sends the cause to the
   peer first. */
CDP__PRIVATE void cdp__link_send_cause_late(cdp__link *l) {
    if (l->mesh->leaving && !l->index && l->state == CDP__LINK_UP) cdp__link_send_cause(l);
}

/* Sends CHOSEN or TAKEN; after a CHOSEN that offers memory, waits for TAKEN. */
CDP__PRIVATE CDP__COLD void cdp__link_choosing(cdp__link *l) {
    cdp__mesh *m = l->mesh;
    const bool offers = cdp__link_shared(l) && !l->shared->taken;
    int32_t r = cdp__hello_send(m, &l->io, l->hello, &l->hello_sent);
    if (r > 0 && offers) r = cdp__hello_recv(m, &l->io, l->answer, &l->hello_got);
    if (r < 0)
        cdp__link_lose(l, CDP_ERR_PEER_LOST, r == CDP_IO_EOF ? 0 : -r);
    else if (r > 0 && offers)
        r = cdp__link_taken(l);
    if (r <= 0 || l->state == CDP__LINK_LOST) return;
    cdp__link_up(l);
    if (cdp__link_shared(l) && l->state == CDP__LINK_UP) {
        l->whole = true; /* with shared memory, the other connections are not needed */
        cdp__link_unguard(l);
        l->shared->next = m->sharing;
        m->sharing = l->shared;
    }
    cdp__link_send_cause_late(l);
}

CDP__PRIVATE void cdp__link_choose_again(cdp__timer *t) {
    cdp__link_choosing((cdp__link *)t->user);
}

CDP__PRIVATE void cdp__link_event(cdp__io *io) {
    cdp__link *l = (cdp__link *)io->user;
    if (l->state == CDP__LINK_CHOOSING) cdp__link_choosing(l);
    if (!l->wanted || cdp__link_shared(l)) cdp__link_read_ahead(l);
}

CDP__PRIVATE bool cdp__link_room(cdp__link *l) {
    if (!l->rx) l->rx = (uint8_t *)cdp__alloc(l->mesh->os, CDP__RX_BYTES);
    if (!l->rx) cdp__link_lose(l, CDP_ERR_NOMEM, 0);
    return l->rx != NULL;
}

/* The link takes ownership of the connection. */
CDP__PRIVATE void cdp__link_take(cdp__link *l, cdp__io *io, cdp__link_state state) {
    const int32_t fd = cdp__loop_detach(&l->mesh->loop, io);
    cdp__loop_timer_clear(&l->probe_timer);
    cdp__loop_remove(&l->mesh->loop, &l->probe);
    if (l->inviting) cdp__race_end(l);
    cdp__loop_add(&l->mesh->loop, &l->io, fd, cdp__link_event, l);
    l->io.ready = CDP_IO_READ | CDP_IO_WRITE;
    l->state = state;
}

/* ---- >>tcp/link_connecting: connects to several addresses of a peer at once ------------------ */

/* Knows: the addresses of a peer and the attempts in progress. Promises: the first address whose
   handshake succeeds becomes the link; of several failures, the most informative is kept. */

CDP__PRIVATE void cdp__race_next(cdp__timer *t);

/* An attempt has failed: begins the next one at once. When all have failed, the link keeps the
   most informative error (`worth`): a refusal by the peer, or a port without a listener, says
   more than an address that does not answer. */
CDP__PRIVATE void cdp__path_over(
    cdp__path *p, cdp_status status, int32_t err, uint32_t refusal, uint32_t worth) {
    cdp__link *l = p->link;
    cdp__race *race = l->race;
    cdp__loop_remove(&l->mesh->loop, &p->io);
    if (worth >= race->worth) {
        race->worth = worth;
        l->addr = p->at;
        l->status = status;
        l->lost_errno = err;
        l->refusal = refusal;
    }
    if (++race->over == race->count && l->inviting)
        cdp__race_end(l);
    else if (race->over == race->count)
        cdp__link_lose(l, l->status, l->lost_errno);
    else if (race->begun < race->count)
        cdp__race_next(&race->timer);
}

CDP__PRIVATE void cdp__path_failed(cdp__path *p, int32_t err) {
    uint32_t worth = err ? 2 : 3;
    if (err == ECONNREFUSED) worth = 4;
    cdp__path_over(p, CDP_ERR_PEER_LOST, err, 0, worth);
}

/* Receives the answer to this rank's HELLO, into the buffer that held the HELLO. */
CDP__PRIVATE void cdp__path_answered(cdp__path *p) {
    cdp__link *l = p->link;
    cdp__hello h;
    const bool ours = cdp__hello_decode(p->hello, &h);
    uint8_t nonce[2][16];
    memcpy(nonce, p->auth.nonce, sizeof nonce);
    if (ours && h.type == CDP__WELCOME && h.from == l->peer
        && memcmp(h.job, l->mesh->job, CDP__JOB_BYTES) == 0) {
        l->addr = p->at;
        cdp__link_take(l, &p->io, CDP__LINK_CHOOSING);
        cdp__race_end(l);
        cdp__hello_fill(l->mesh, l->hello, CDP__CHOSEN, l);
        if (h.memory[0] && !l->index && cdp__mesh_shares(l->mesh))
            cdp__link_offer(l, h.memory, l->hello + 52);
        l->hello_sent = 0;
        if (cdp__link_guard(l, nonce, l->hello, false)) cdp__link_event(&l->io);
    } else if (ours && h.type == CDP__REFUSED) {
        cdp__path_over(p, CDP_ERR_MISMATCH, 0,
            h.refusal < (uint32_t)CDP__REFUSE_COUNT ? h.refusal : 0, h.from == l->peer ? 5 : 1);
    } else {
        cdp__path_over(p, CDP_ERR_MISMATCH, 0, 0, 1);
    }
}

#ifndef CDP_NO_JOB_KEY
/* Advances the authentication exchange. True: HELLO may follow. It does when this rank has sent its
   proof, for the peer reads nothing before that is found right; so it takes a round trip less. The
   peer's own proof is the next that is read, before its WELCOME. */
CDP__PRIVATE CDP__COLD bool cdp__path_prove(cdp__path *p) {
    cdp__mesh *m = p->link->mesh;
    int64_t result = 1;
    const cdp_status st = cdp__auth_pump(&p->auth, &m->loop, &p->io, &result);
    if (st == CDP_ERR_MISMATCH)
        cdp__path_over(p, st, 0, CDP__REFUSE_KEY + p->auth.refusal, 3);
    else if (st < 0)
        cdp__path_failed(p, result == CDP_IO_EOF ? 0 : (int32_t)-result);
    return st >= 0 && cdp__auth_said(&p->auth);
}
#endif

CDP__PRIVATE CDP__COLD void cdp__path_event(cdp__io *io) {
    cdp__path *p = (cdp__path *)io->user;
    cdp__mesh *m = p->link->mesh;
    int32_t r = 1;
    if (!p->greeting && !p->proving) {
        r = io->ready & CDP_IO_WRITE ? m->os->net.connect_result(m->os->user, io->fd)
                                     : -EINPROGRESS;
        if (r == -EINPROGRESS || r == -ENOTCONN) return;
#ifndef CDP_NO_JOB_KEY
        if (r >= 0 && m->keyed
            && cdp__auth_open(&p->auth, m->os, m->key, false, CDP__AUTH_LINK, CDP__AUTH_NO_ANSWER)
                != CDP_OK)
            r = -EIO;
#endif
        if (r < 0) {
            cdp__path_failed(p, -r);
            return;
        }
        p->proving = true;
    }
#ifndef CDP_NO_JOB_KEY
    if (m->keyed && !p->auth.done && !cdp__path_prove(p)) return;
#endif
    if (!p->greeting) {
        p->greeting = true;
        cdp__hello_fill(m, p->hello, p->link->inviting ? CDP__INVITE : CDP__HELLO, p->link);
    }
    r = cdp__hello_send(m, io, p->hello, &p->sent);
#ifndef CDP_NO_JOB_KEY
    if (r > 0 && m->keyed && !p->auth.done) return; /* it reads the rest of the exchange first */
#endif
    if (r > 0) r = cdp__hello_recv(m, io, p->hello, &p->got);
    if (p->got > 8 && memcmp(p->hello, "cdp-no: ", 8) == 0)
        cdp__path_over(p, CDP_ERR_MISMATCH, 0, CDP__REFUSE_KEY + p->hello[8], 3);
    else if (r > 0)
        cdp__path_answered(p);
    else if (r < 0)
        cdp__path_failed(p, r == CDP_IO_EOF ? 0 : -r);
}

/* Tries the next address. The one after it follows when this one fails, or after
   CDP__STAGGER_MS. */
CDP__PRIVATE CDP__COLD void cdp__race_next(cdp__timer *t) {
    cdp__link *l = (cdp__link *)t->user;
    cdp__mesh *m = l->mesh;
    cdp__path *p = &l->race->paths[l->race->begun++];
    const int32_t fd = m->os->net.connect_to(m->os->user, &p->at);
    cdp__loop_timer_clear(t);
    if (fd < 0) {
        cdp__path_failed(p, -fd);
        return;
    }
    cdp__loop_add(&m->loop, &p->io, fd, cdp__path_event, p);
    cdp__loop_want_write(&m->loop, &p->io);
    if (l->race->begun < l->race->count)
        cdp__loop_timer_set(
            &m->loop, t, m->os->now_ns(m->os->user) + CDP__STAGGER_MS * CDP__MS, cdp__race_next, l);
}

/* The addresses of the peer to try, best first. */
CDP__PRIVATE uint32_t cdp__link_paths(const cdp__link *l, cdp_addr out[CDP__PATHS]) {
    const cdp__mesh *m = l->mesh;
    const cdp_bytes *text = &m->addrs.results[l->peer];
    /* a record that is too short ends the start; connections may still arrive meanwhile */
    const uint64_t bytes = text->bytes - cdp__min(text->bytes, CDP__PLACE_BYTES);
    const char *addrs = bytes ? (const char *)text->data + CDP__PLACE_BYTES : "";
    cdp_addr theirs[CDP__ADDRS];
    uint32_t n = 0;
    memset(theirs, 0, sizeof theirs); /* gcc -O3 does not see that only the first n are read */
    /* the store connection has shown that this address works */
    if (l->peer == 0 && !m->desc.external_store && !m->spread)
        theirs[n++] = cdp__tcp_store_peer_addr(m->store);
    n += cdp__addrs_parse(addrs, bytes, theirs + n, CDP__ADDRS - n);
    n = cdp__paths(m->mine, m->mine_count, theirs, n, out);
    if (m->spread) cdp__paths_turn(m->mine, m->mine_count, out, n, l->index);
    return n;
}

CDP__PRIVATE void cdp__link_connect(cdp__link *l) {
    cdp_addr at[CDP__PATHS];
    uint32_t i, n = cdp__link_paths(l, at);
    if (!cdp__link_room(l)) return;
    l->race = (cdp__race *)cdp__alloc_zero(l->mesh->os, sizeof *l->race);
    if (!l->race) {
        cdp__link_lose(l, CDP_ERR_NOMEM, 0);
        return;
    }
    if (!l->inviting) l->state = CDP__LINK_CONNECTING;
    l->race->count = n;
    l->race->timer.user = l;
    for (i = 0; i < n; ++i) {
        l->race->paths[i].link = l;
        l->race->paths[i].at = at[i];
    }
    cdp__race_next(&l->race->timer);
}

/* A connection attempt only tests whether the peer's process is alive: its listening port
   refuses if it is not. But the peer may also have connected, sent all its data and ended, while
   this rank still handles its handshake. So refusals are ignored while a handshake is in
   progress, and the test is repeated. */
CDP__PRIVATE void cdp__link_probed(cdp__link *l, int32_t err) {
    const cdp__incoming *g = l->mesh->incoming;
    while (g && !g->welcome)
        g = g->next;
    if (err && !g) cdp__link_lose(l, CDP_ERR_PEER_LOST, err);
}

CDP__PRIVATE void cdp__link_probe_event(cdp__io *io) {
    cdp__link *l = (cdp__link *)io->user;
    const int32_t err = io->ready & CDP_IO_WRITE
        ? l->mesh->os->net.connect_result(l->mesh->os->user, io->fd)
        : -EINPROGRESS;
    if (err == -EINPROGRESS || err == -ENOTCONN) return;
    cdp__loop_remove(&l->mesh->loop, io);
    cdp__link_probed(l, -err);
}

/* Asks the higher rank to connect. It may not need the link yet, but this rank must send it
   questions about a wait. A rank that still starts does not hear it, so it is asked again. */
CDP__PRIVATE void cdp__link_invite(cdp__link *l) {
    l->inviting = true;
    cdp__link_connect(l);
}

CDP__PRIVATE CDP__COLD void cdp__link_probe(cdp__timer *t) {
    cdp__link *l = (cdp__link *)t->user;
    cdp__mesh *m = l->mesh;
    if (l->state != CDP__LINK_AWAITED) return;
    ++l->probes;
    if (l->probes > 1 && !(l->probes & (l->probes - 1)) && !l->race) cdp__link_invite(l);
    if (l->state != CDP__LINK_AWAITED) return;
    if (!l->probe.next) {
        const int32_t fd = m->os->net.connect_to(m->os->user, &l->addr);
        if (fd == -ECONNREFUSED) cdp__link_probed(l, ECONNREFUSED);
        if (l->state != CDP__LINK_AWAITED) return;
        if (fd >= 0) {
            cdp__loop_add(&m->loop, &l->probe, fd, cdp__link_probe_event, l);
            cdp__loop_want_write(&m->loop, &l->probe);
        }
    }
    cdp__loop_timer_set(&m->loop, t, m->os->now_ns(m->os->user) + CDP__PROBE_EVERY_MS * CDP__MS,
        cdp__link_probe, l);
}

/* First use of a link. The higher rank connects and the lower one waits, so two ranks never
   connect to each other at once. */
CDP__PRIVATE void cdp__link_need(cdp__link *l) {
    cdp__mesh *m = l->mesh;
    cdp_addr at[CDP__PATHS];
    if (l->state != CDP__LINK_NONE) return;
    if (m->desc.group.rank > l->peer) {
        cdp__link_connect(l);
        return;
    }
    (void)cdp__link_paths(l, at);
    l->addr = at[0];
    l->state = CDP__LINK_AWAITED;
    if (!l->index)
        cdp__loop_timer_set(&m->loop, &l->probe_timer,
            m->os->now_ns(m->os->user) + CDP__PROBE_FIRST_MS * CDP__MS, cdp__link_probe, l);
}

/* ---- >>tcp/incoming: accepted connections that are not authenticated ------------------------- */

/* Knows: connections that are not authenticated. Promises: they are bounded in number, in time and
   in work per turn; only the handshake is read from them. */

CDP__PRIVATE void cdp__incoming_close(cdp__incoming *g) {
    cdp__incoming **at = &g->mesh->incoming;
    while (*at != g)
        at = &(*at)->next;
    *at = g->next;
    --g->mesh->incoming_count;
    cdp__loop_timer_clear(&g->timer);
    cdp__loop_remove(&g->mesh->loop, &g->io);
    if (g->offers) g->mesh->os->net.close_fd(g->mesh->os->user, g->pass);
    cdp__free(g->mesh->os, g);
}

CDP__PRIVATE void cdp__incoming_late(cdp__timer *t) {
    cdp__incoming_close((cdp__incoming *)t->user);
}

/* If the connecting rank is on this host: waits for shared memory from it, under a name that
   WELCOME contains. */
CDP__PRIVATE void cdp__incoming_offer(
    cdp__incoming *g, uint32_t peer, uint8_t name[CDP__NAME_BYTES]) {
    const cdp_os *os = g->mesh->os;
    cdp_addr here;
    uint32_t i;
    memset(&here, 0, sizeof here);
    if (os->net.local_addr(os->user, g->io.fd, &here) < 0 || !cdp__addr_is_here(&g->from, &here)
        || os->random(os->user, name, CDP__NAME_BYTES) != CDP_OK)
        return;
    for (i = 0; i < CDP__NAME_BYTES; ++i)
        name[i] = (uint8_t)('a' + (name[i] & 15));
    g->pass = os->shared.pass_open(os->user, name, true);
    g->offers = g->pass >= 0;
    if (g->offers) return;
    memset(name, 0, CDP__NAME_BYTES);
    cdp__mesh_no_memory(g->mesh, peer, -g->pass);
}

/* Takes the shared memory that the client has passed, if it contains the proof of CHOSEN. Other
   processes may have passed memory there, too, but they do not know the proof. */
CDP__PRIVATE cdp__shared *cdp__incoming_share(
    cdp__incoming *g, cdp__link *l, const cdp__hello *chosen) {
    cdp__mesh *m = g->mesh;
    const cdp_os *os = m->os;
    int32_t fds[2], at, err = -ENOENT, bell = m->loop.wake_fd[1];
    uint32_t tries;
    cdp_addr from;
    for (tries = 0; tries < 8 && (at = os->net.accept_next(os->user, g->pass, &from)) >= 0;
         ++tries) {
        cdp__shared *s = NULL;
        err = os->shared.pass(os->user, at, fds, 2, false);
        if (err >= 0 && !(s = cdp__shared_open(os, fds[0], false))) {
            os->net.close_fd(os->user, fds[1]);
            err = -ENOMEM;
        }
        if (s) {
            s->bell = fds[1];
            s->pass = at;
            err = memcmp(s->pair->proof, chosen->memory, CDP__NAME_BYTES) != 0
                    || s->pair->layout != CDP__LAYOUT
                ? -EPROTO
                : os->shared.pass(os->user, at, &bell, 1, true);
        } else {
            os->net.close_fd(os->user, at);
        }
        if (s && err >= 0) {
            cdp__shared_prove(s, chosen->memory);
            if (m->desc.group.expose_bytes != UINT64_MAX) cdp__shared_try(s, err);
            s->pair->taken = 1;
            s->taken = true;
            os->net.close_fd(os->user, s->memory);
            s->memory = -1;
            return s;
        }
        cdp__shared_close(s);
    }
    if (tries == 0 && at != -EAGAIN) err = at;
    l->apart = -err;
    return NULL;
}

/* The connecting rank has authenticated itself and has chosen this connection, which becomes the
   link to it. */
CDP__PRIVATE void cdp__incoming_adopt(cdp__incoming *g, cdp__link *l, const cdp__hello *chosen) {
    const bool asks = cdp__mesh_shares(l->mesh) && g->offers && chosen->memory[0];
    cdp_addr at[CDP__PATHS];
    if (!cdp__link_room(l) || !cdp__link_guard(l, g->auth.nonce, g->hello, true)) return;
    if (!l->addr.family && l->mesh->addrs.status == CDP_OK && l->mesh->addrs.results
        && cdp__link_paths(l, at))
        l->addr.port = at[0].port;
    g->from.port = l->addr.port;
    l->addr = g->from;
    cdp__link_take(l, &g->io, asks ? CDP__LINK_CHOOSING : CDP__LINK_UP);
    if (asks) {
        l->shared = cdp__incoming_share(g, l, chosen);
        cdp__hello_fill(l->mesh, l->hello, CDP__TAKEN, l);
        l->hello[28] = !l->shared;
        cdp__link_choosing(l);
    }
    if (!asks) cdp__link_up(l);
    if (!asks) cdp__link_send_cause_late(l);
    cdp__link_event(&l->io);
}

/* A lower rank waits for a connection from this rank: connects. */
CDP__PRIVATE void cdp__mesh_invited(cdp__mesh *m, const cdp__hello *theirs) {
    uint32_t i;
    if (theirs->version != CDP_WIRE_VERSION || theirs->world_size != m->desc.group.world_size
        || theirs->to != m->desc.group.rank || theirs->from >= m->desc.group.rank
        || memcmp(theirs->job, m->job, CDP__JOB_BYTES) != 0)
        return;
    for (i = 0; i < m->desc.connections && m->started; ++i)
        cdp__link_need(cdp__bundle_at(&m->links[theirs->from], i));
}

/* Handles a complete HELLO, CHOSEN or INVITE. False: the connection must be closed, or belongs
   to the link now. */
CDP__PRIVATE bool cdp__incoming_judge(cdp__incoming *g) {
    cdp__mesh *m = g->mesh;
    cdp__hello mine, theirs;
    const bool ours = cdp__hello_decode(g->hello, &theirs);
    cdp__link *l;
    bool chosen;
    uint32_t refusal;
    if (!ours) return false;
    if (theirs.type == CDP__INVITE) {
        cdp__mesh_invited(m, &theirs);
        return false;
    }
    memset(&mine, 0, sizeof mine);
    mine.version = CDP_WIRE_VERSION;
    mine.order = (uint8_t)cdp__byte_order();
    mine.mac = m->desc.mac;
    mine.world_size = m->desc.group.world_size;
    mine.from = m->desc.group.rank;
    mine.index = m->desc.connections;
    memcpy(mine.job, m->job, CDP__JOB_BYTES);
    chosen = g->welcome && theirs.type == CDP__CHOSEN;
    if (chosen) theirs.type = CDP__HELLO; /* they have the same fields */
    refusal = (uint32_t)cdp__hello_judge(&mine, &theirs);
    l = refusal ? NULL : cdp__bundle_at(&m->links[theirs.from], theirs.index);
    if (l && l->state > CDP__LINK_AWAITED) refusal = CDP__REFUSE_TWICE;
    if (chosen && !refusal) cdp__incoming_adopt(g, l, &theirs);
    if (g->welcome) return false;
    mine.type = refusal ? CDP__REFUSED : CDP__WELCOME;
    mine.to = theirs.from;
    mine.refusal = refusal;
    if (refusal) memset(mine.job, 0, CDP__JOB_BYTES); /* a stranger must not learn the job's name */
    if (!refusal && theirs.memory[0] && !theirs.index && cdp__mesh_shares(m))
        cdp__incoming_offer(g, theirs.from, mine.memory);
    if (refusal)
        cdp__log(&m->desc.group.logger, CDP_LOG_INFO, m->desc.group.rank,
            "refused a connection: %s", cdp__refusal_text(refusal));
    cdp__hello_encode(&mine, g->hello);
    g->welcome = !refusal;
    if (g->welcome) cdp__loop_timer_clear(&g->timer); /* it may choose at any time */
    /* a refusal that the socket has no room for is dropped */
    else
        (void)cdp__hello_send(m, &g->io, g->hello, &g->sent);
    return g->welcome;
}

/* Logs a refused connection. The first one is a warning, because it may be a rank of this job. */
CDP__PRIVATE void cdp__incoming_refused(cdp__incoming *g, uint32_t refusal) {
    cdp__mesh *m = g->mesh;
    (void)refusal; /* unused without log texts */
    cdp__log(&m->desc.group.logger, m->refusal_warned ? CDP_LOG_INFO : CDP_LOG_WARN,
        m->desc.group.rank, "refused a connection: %s", cdp__auth_text(refusal));
    m->refusal_warned = true;
    cdp__auth_drain(&m->loop, &g->io);
    cdp__incoming_close(g);
}

/* True if the client may send HELLO; false if authentication is in progress, or the connection
   was closed. A build without job keys refuses every guarded connection. */
CDP__PRIVATE bool cdp__incoming_prove(cdp__incoming *g) {
#ifdef CDP_NO_JOB_KEY
    const bool guarded = g->guarded;
    if (guarded) cdp__incoming_refused(g, CDP__AUTH_REMOTE);
    return !guarded;
#else
    int64_t result;
    const cdp_status st =
        g->guarded ? cdp__auth_pump(&g->auth, &g->mesh->loop, &g->io, &result) : CDP_OK;
    if (st == CDP_ERR_MISMATCH)
        cdp__incoming_refused(g, g->auth.refusal);
    else if (st < 0)
        cdp__incoming_close(g); /* most likely a probe */
    else if (st == CDP_OK)
        g->guarded = false;
    return st == CDP_OK;
#endif
}

/* The client has sent no HELLO. One that tries to authenticate is told that this job has no key;
   others are no cdp processes, and are closed. */
CDP__PRIVATE void cdp__incoming_strange(cdp__incoming *g) {
#ifndef CDP_NO_JOB_KEY
    if (g->got >= 8 && memcmp(g->hello, "cdp-key1", 8) == 0) {
        int64_t result;
        (void)cdp__auth_open(
            &g->auth, g->mesh->os, NULL, true, CDP__AUTH_LINK, CDP__AUTH_NOT_NEEDED);
        g->auth.in[0] = 'c';
        (void)cdp__auth_refuse(&g->auth, CDP__AUTH_NOT_NEEDED);
        (void)cdp__auth_pump(&g->auth, &g->mesh->loop, &g->io, &result);
        cdp__incoming_refused(g, CDP__AUTH_NOT_NEEDED);
        return;
    }
#endif
    cdp__incoming_close(g);
}

CDP__PRIVATE CDP__COLD void cdp__incoming_event(cdp__io *io) {
    cdp__incoming *g = (cdp__incoming *)io->user;
    int32_t r = 1;
    if (!cdp__incoming_prove(g)) return;
    if (g->welcome && g->sent < CDP__HELLO_BYTES) { /* WELCOME is being sent */
        r = cdp__hello_send(g->mesh, io, g->hello, &g->sent);
        if (r < 0) cdp__incoming_close(g);
        if (r <= 0) return;
        g->got = 0;
    }
    if (!(io->ready & CDP_IO_READ)) return;
    r = cdp__hello_recv(g->mesh, io, g->hello, &g->got);
    if (memcmp(g->hello, "cdp-link", (size_t)cdp__min(g->got, 8)) != 0
        && (g->got >= 8 || memcmp(g->hello, "cdp-key1", (size_t)g->got) != 0)) {
        cdp__incoming_strange(g);
        /* r < 0: the connection ended. It was a probe, or the peer chose another connection. */
    } else if (r < 0 || (r > 0 && !cdp__incoming_judge(g))) {
        cdp__incoming_close(g);
    } else if (r > 0) {
        cdp__incoming_event(io); /* send WELCOME */
    }
}

/* Limit of unauthenticated connections, beyond one per connection of the job. High enough that a
   rank whose authentication takes some round trips is not closed in favour of others. */
#define CDP__STRANGERS 1024u

/* Strangers may open any number of connections and keep them open. Closes the oldest one that
   has sent nothing, or else the oldest that has not proved to know the key. True if one was
   closed. */
CDP__PRIVATE bool cdp__mesh_make_room(cdp__mesh *m, uint32_t most) {
    cdp__incoming *oldest = NULL, *g;
    bool mute = false;
    for (g = m->incoming; g && m->incoming_count >= most; g = g->next) {
        const bool said_nothing = !g->got && !g->auth.got && !g->auth.step;
        if (g->welcome || g->auth.done || (mute && !said_nothing)) continue;
        oldest = g;
        mute = said_nothing;
    }
    if (oldest) cdp__incoming_close(oldest);
    return oldest != NULL;
}

#define CDP__ACCEPTS 16u /* connections accepted in one turn */

CDP__PRIVATE void cdp__mesh_accept_again(cdp__timer *t) {
    cdp__mesh *m = (cdp__mesh *)t->user;
    cdp__loop_again(&m->loop, &m->listener);
}

/* Out of descriptors: closes a stranger's connection. If there is none, stops accepting for a
   while (the listener stays `ready`, so the system is not polled for it). True: try again now. */
CDP__PRIVATE bool cdp__mesh_accept_later(cdp__mesh *m) {
    if (cdp__mesh_make_room(m, 1)) return true;
    if (!m->clients_warned)
        cdp__log(&m->desc.group.logger, CDP_LOG_WARN, m->desc.group.rank,
            "cannot accept a connection: too many open descriptors, or no memory; raise the limit "
            "(ulimit -n)");
    m->clients_warned = true;
    cdp__loop_timer_set(&m->loop, &m->accept_timer,
        m->os->now_ns(m->os->user) + CDP__PROBE_FIRST_MS * CDP__MS, cdp__mesh_accept_again, m);
    return false;
}

/* Decides whether the client must authenticate itself or is refused: without a key, clients from
   other hosts are. False: no random bytes. */
CDP__PRIVATE bool cdp__incoming_guard(cdp__incoming *g, int32_t fd, const cdp_addr *from) {
    cdp__mesh *m = g->mesh;
    cdp_addr here;
    memset(&here, 0, sizeof here);
    if (!m->keyed && !m->desc.trust_network) (void)m->os->net.local_addr(m->os->user, fd, &here);
    g->guarded = m->keyed || (!m->desc.trust_network && !cdp__addr_is_here(from, &here));
#ifdef CDP_NO_JOB_KEY
    return true;
#else
    return !g->guarded
        || cdp__auth_open(
               &g->auth, m->os, m->keyed ? m->key : NULL, true, CDP__AUTH_LINK, CDP__AUTH_REMOTE)
        == CDP_OK;
#endif
}

/* A new connection. If the store server passes it on (bytes > 0), it has authenticated itself
   with these nonces, and `said` is the beginning of its HELLO. */
CDP__PRIVATE CDP__COLD void cdp__mesh_incoming(void *user, int32_t fd, const cdp_addr *from,
    const uint8_t *said, uint64_t bytes, uint8_t nonce[2][16]) {
    cdp__mesh *m = (cdp__mesh *)user;
    cdp__incoming *g;
    cdp__mesh_make_room(m, m->desc.group.world_size * m->desc.connections + CDP__STRANGERS);
    g = bytes > CDP__HELLO_BYTES ? NULL : (cdp__incoming *)cdp__alloc_zero(m->os, sizeof *g);
    if (g) g->mesh = m;
    if (!g || (!bytes && !cdp__incoming_guard(g, fd, from))) {
        m->os->net.close_fd(m->os->user, fd);
        cdp__free(m->os, g);
        return;
    }
    g->from = *from;
    if (bytes) {
        memcpy(g->hello, said, (size_t)bytes);
        memcpy(g->auth.nonce, nonce, sizeof g->auth.nonce);
    }
    g->got = (uint32_t)bytes;
    g->next = m->incoming;
    m->incoming = g;
    ++m->incoming_count;
    cdp__loop_add(&m->loop, &g->io, fd, cdp__incoming_event, g);
    cdp__loop_timer_set(&m->loop, &g->timer, m->os->now_ns(m->os->user) + CDP__HELLO_MS * CDP__MS,
        cdp__incoming_late, g);
    g->io.ready = CDP_IO_READ; /* its HELLO may have arrived already */
    cdp__incoming_event(&g->io);
}

/* Accepts a limited number of connections per turn, so that many clients do not keep this thread
   from its own operations and deadlines. */
CDP__PRIVATE CDP__COLD void cdp__mesh_accept(cdp__io *io) {
    cdp__mesh *m = (cdp__mesh *)io->user;
    uint32_t i;
    io->broken = false; /* an error of a listening socket is not final */
    for (i = 0; i < CDP__ACCEPTS; ++i) {
        cdp_addr from;
        const int32_t fd = m->os->net.accept_next(m->os->user, io->fd, &from);
        if (fd == -EMFILE || fd == -ENFILE || fd == -ENOBUFS || fd == -ENOMEM) {
            if (cdp__mesh_accept_later(m)) continue;
            return;
        }
        if (fd < 0) {
            cdp__loop_used_up(&m->loop, io, CDP_IO_READ);
            return;
        }
        cdp__mesh_incoming(m, fd, &from, NULL, 0, NULL);
    }
    cdp__loop_again(&m->loop, io);
}

/* ---- >>tcp/transport: the mesh as a cdp_transport -------------------------------------------- */

/* Knows: the mesh and the interface of transports. Promises: what cdp_transport asks for. */

/* Copies small pieces into one, which is cheaper than a system call with several pieces. False:
   they are too long. */
CDP__PRIVATE bool cdp__iov_join(const cdp_iov *iov, uint32_t n, uint8_t *to, cdp_iov *one) {
    uint64_t bytes = 0;
    uint32_t i;
    for (i = 0; i < n; ++i)
        bytes += iov[i].bytes;
    if (bytes > CDP__TX_BYTES) return false;
    one->data = to;
    one->bytes = bytes;
    for (i = 0; i < n; to += iov[i++].bytes)
        if (iov[i].bytes) memcpy(to, iov[i].data, (size_t)iov[i].bytes);
    return true;
}

CDP__PRIVATE int64_t cdp__mesh_send(void *self, uint32_t peer, const cdp_iov *iov, uint32_t n) {
    cdp__link *l = &((cdp__mesh *)self)->links[peer];
    uint8_t joined[CDP__TX_BYTES];
    cdp_iov one;
    int64_t r = 0;
    cdp__link_need(l);
    if (cdp__link_shared(l) && l->state == CDP__LINK_UP) {
        r = cdp__line_move(&l->shared->line, iov, n, true);
        if (r >= 0) return r;
        cdp__link_nonsense(l);
    }
    if (n > 1 && cdp__iov_join(iov, n, joined, &one)) {
        iov = &one;
        n = 1;
    }
    if (l->state == CDP__LINK_UP) r = cdp__link_put(l, iov, n);
    if (r < 0) { /* data that the peer sent earlier may still be in the socket */
        l->io.ready |= CDP_IO_READ;
        cdp__link_read_ahead(l);
        /* the system reports an error once; then the socket looks closed */
        if (cdp__bundle_at(l, 0)->end_timer.next && r != -EPIPE)
            cdp__bundle_drop(l, CDP_ERR_PEER_LOST, (int32_t)-r);
        cdp__link_lose(l, CDP_ERR_PEER_LOST, (int32_t)-r);
    }
    return l->state == CDP__LINK_LOST ? (int64_t)cdp__link_explain(l) : r;
}

/* Reads buffered data first. A large read goes straight to its destination; small pieces go
   through the buffer. */
CDP__PRIVATE int64_t cdp__mesh_recv(void *self, uint32_t peer, const cdp_iov *iov, uint32_t n) {
    cdp__link *l = &((cdp__mesh *)self)->links[peer];
    int64_t moved = 0;
    uint32_t i;
    cdp__link_need(l);
    /* includes data written before the link was lost */
    if (cdp__link_shared(l) && l->state >= CDP__LINK_UP) {
        moved = l->nonsense ? 0 : cdp__line_move(&l->shared->line, iov, n, false);
        if (moved < 0) cdp__link_nonsense(l);
        return moved <= 0 && l->state == CDP__LINK_LOST ? (int64_t)cdp__link_explain(l) : moved;
    }
    if (l->state == CDP__LINK_UP && l->rx_at == l->rx_used) {
        l->rx_at = l->rx_used = 0;
        if (n == 1 && iov[0].bytes >= CDP__RX_BYTES / 2) {
            moved = cdp__link_get(l, iov);
            l->wanted = moved == 0;
            if (moved > 0) cdp__link_received(l);
            if (moved >= 0) return moved;
            cdp__link_broke(l, moved);
            return cdp__link_explain(l);
        }
        l->io.ready |= CDP_IO_READ;
        cdp__link_read_ahead(l);
    }
    for (i = 0; i < n && l->rx_at < l->rx_used; ++i) {
        const uint32_t bytes = (uint32_t)cdp__min(iov[i].bytes, l->rx_used - l->rx_at);
        memcpy(iov[i].data, l->rx + l->rx_at, bytes);
        l->rx_at += bytes;
        moved += bytes;
    }
    l->wanted = moved == 0;
    return moved == 0 && cdp__link_ended(l) ? (int64_t)cdp__link_explain(l) : moved;
}

/* Copies the part of `iov` that covers its first `bytes`. Returns the number of pieces. */
CDP__PRIVATE uint32_t cdp__iov_clip(const cdp_iov *iov, uint32_t n, uint64_t bytes, cdp_iov *out) {
    uint32_t i;
    for (i = 0; i < n && bytes; ++i) {
        out[i].data = iov[i].data;
        out[i].bytes = cdp__min(iov[i].bytes, bytes);
        bytes -= out[i].bytes;
    }
    return i;
}

/* cdp__mesh_send or cdp__mesh_recv over several connections: moves bytes of the current block
   over its connection. Nothing is sent before all connections are up. */
CDP__PRIVATE int64_t cdp__bundle_move(
    cdp__mesh *m, uint32_t peer, const cdp_iov *iov, uint32_t n, bool send) {
    cdp__link *first = &m->links[peer],
              *l = cdp__bundle_at(first, cdp__bundle_turn(first, first->moved[send]));
    const uint64_t left = CDP__BLOCK_BYTES - first->moved[send] % CDP__BLOCK_BYTES;
    cdp_iov v[CDP__IOV_MAX];
    uint32_t i;
    int64_t r;
    if (cdp__link_shared(first) && first->state >= CDP__LINK_UP)
        return send ? cdp__mesh_send(m, peer, iov, n) : cdp__mesh_recv(m, peer, iov, n);
    if (!first->whole && l->state != CDP__LINK_LOST) {
        bool whole = true;
        /* others follow when the first is up: with shared memory they are not needed */
        for (i = 0; i < m->desc.connections && (!i || first->state >= CDP__LINK_UP); ++i) {
            cdp__link_need(cdp__bundle_at(first, i));
            whole = whole && cdp__bundle_at(first, i)->state == CDP__LINK_UP;
        }
        first->whole = whole;
        if (send && !whole && l->state != CDP__LINK_LOST) return 0;
    }
    n = cdp__iov_clip(iov, n, left, v);
    i = peer + l->index * m->desc.group.world_size;
    r = send ? cdp__mesh_send(m, i, v, n) : cdp__mesh_recv(m, i, v, n);
    /* this connection has ended; the others of the link show whether the peer has left */
    if (r < 0 && first->whole && first->end_timer.next) return 0;
    if (r > 0) first->moved[send] += (uint64_t)r;
    /* watches the connection for its end until its next block */
    if (!send && r == (int64_t)left && l->io.next) cdp__loop_again(&m->loop, &l->io);
    return r;
}

CDP__PRIVATE int64_t cdp__bundle_send(void *self, uint32_t peer, const cdp_iov *iov, uint32_t n) {
    return cdp__bundle_move((cdp__mesh *)self, peer, iov, n, true);
}
CDP__PRIVATE int64_t cdp__bundle_recv(void *self, uint32_t peer, const cdp_iov *iov, uint32_t n) {
    return cdp__bundle_move((cdp__mesh *)self, peer, iov, n, false);
}

/* The segment that contains these bytes; NULL: none. */
CDP__PRIVATE cdp__segment *cdp__mesh_segment(const cdp__mesh *m, const void *data, uint64_t bytes) {
    uint32_t i;
    for (i = 0; m->segments && i < CDP_SEGMENTS; ++i) {
        const uint64_t off = (uint64_t)((uintptr_t)data - (uintptr_t)m->segments[i].at);
        if (off < m->segments[i].bytes && bytes <= m->segments[i].bytes - off)
            return &m->segments[i];
    }
    return NULL;
}

CDP__PRIVATE void *cdp__mesh_alloc(void *self, uint64_t bytes) {
    cdp__mesh *m = (cdp__mesh *)self;
    const cdp_os *os = m->os;
    cdp__segment *g = NULL;
    uint32_t i;
    if (!cdp__mesh_shares(m) || m->desc.group.expose_bytes == UINT64_MAX || bytes > INT64_MAX)
        return NULL;
    if (!m->segments
        && !(m->segments = (cdp__segment *)cdp__alloc_zero(os, CDP_SEGMENTS * sizeof *g)))
        return NULL;
    bytes = cdp__max((bytes + 63) / 64 * 64, 64);
    for (i = 0; i < CDP_SEGMENTS; ++i) {
        if (m->segments[i].bytes - m->segments[i].used >= bytes) break;
        if (!m->segments[i].at && !g) g = &m->segments[i];
    }
    if (i < CDP_SEGMENTS) {
        g = &m->segments[i];
    } else {
        if (!g || (g->fd = os->shared.create(os->user, cdp__max(bytes, CDP__SEGMENT_BYTES))) < 0)
            return NULL;
        if (!(g->at = (uint8_t *)os->shared.map(os->user, g->fd, true, &g->bytes))) {
            os->net.close_fd(os->user, g->fd);
            g->bytes = 0;
            return NULL;
        }
    }
    ++g->live;
    g->used += bytes;
    return g->at + (g->used - bytes);
}

/* Frees a segment. Peers unmap it at their next poll; it stays mapped there until then. */
CDP__PRIVATE void cdp__segment_close(cdp__mesh *m, cdp__segment *g) {
    const uint32_t i = (uint32_t)(g - m->segments);
    cdp__shared *s;
    for (s = m->sharing; s; s = s->next)
        cdp__shared_withdraw(s, i);
    if (m->os->shared.empty) m->os->shared.empty(m->os->user, g->at, g->bytes);
    m->os->shared.unmap(m->os->user, g->at, g->bytes);
    m->os->net.close_fd(m->os->user, g->fd);
    memset(g, 0, sizeof *g);
}

CDP__PRIVATE bool cdp__mesh_release(void *self, void *ptr) {
    cdp__segment *g = cdp__mesh_segment((cdp__mesh *)self, ptr, 1);
    if (g && --g->live == 0) cdp__segment_close((cdp__mesh *)self, g);
    return g != NULL;
}

#ifndef CDP_NO_SHARED_MEMORY

/* True if the peer should read this memory directly. Data just written is in this core's cache,
   so below CDP__FRESH_BYTES the ring is faster, unless the data is in a segment. */
CDP__PRIVATE bool cdp__mesh_readable(
    const cdp__mesh *m, uint32_t reads, uint64_t bytes, bool fresh) {
    if (!(reads & CDP__READS_ANY)) return false;
    return !fresh || bytes >= cdp__def(m->desc.group.expose_bytes, CDP__FRESH_BYTES);
}

CDP__PRIVATE bool cdp__mesh_expose(
    void *self, uint32_t peer, const void *data, uint64_t bytes, bool fresh, uint64_t *token) {
    cdp__mesh *m = (cdp__mesh *)self;
    cdp__shared *s = m->links[peer].shared;
    const cdp__segment *g;
    uint32_t reads, place;
    if (m->links[peer].state != CDP__LINK_UP || !s) return false;
    reads = cdp__atomic_load_u32(&s->theirs->reads, CDP__ACQUIRE);
    g = reads & CDP__READS_SEGMENTS ? cdp__mesh_segment(m, data, bytes) : NULL;
    place = g ? (uint32_t)(g - m->segments) : 0;
    if (g && !s->passed_on[place] && !cdp__shared_pass(s, place, g->fd)) g = NULL;
    if (g)
        return cdp__line_expose(
            &s->line, data, bytes, place + 1, (uint64_t)((const uint8_t *)data - g->at), token);
    return cdp__mesh_readable(m, reads, bytes, fresh)
        && cdp__line_expose(&s->line, data, bytes, 0, 0, token);
}

CDP__PRIVATE bool cdp__mesh_try_revoke(void *self, uint32_t peer, uint64_t token) {
    return cdp__line_try_revoke(&((cdp__mesh *)self)->links[peer].shared->line, token);
}

/* Does not wait for the reader, which is another process: it checks the state after reading. */
CDP__PRIVATE void cdp__mesh_revoke(void *self, uint32_t peer, uint64_t token) {
    const bool ended = cdp__line_revoke(&((cdp__mesh *)self)->links[peer].shared->line, token);
    CDP_ASSERT(ended);
    (void)ended;
}

CDP__PRIVATE const void *cdp__mesh_map(void *self, uint32_t peer, uint64_t token, uint64_t bytes) {
    const cdp__link *l = &((cdp__mesh *)self)->links[peer];
    cdp__shared *s = l->shared;
    const void *at = NULL;
    cdp__exposure e;
    if (!s || !cdp__line_read_begin(&s->line, token, &e)) return NULL;
    if (!e.segment || e.bytes != bytes) return NULL;
    if (l->state != CDP__LINK_LOST) at = cdp__shared_map(s, e.segment - 1, e.off, bytes);
    /* mapping failed: do not try segments again */
    if (!at) (void)cdp__atomic_and_u32(&s->mine->reads, ~CDP__READS_SEGMENTS, CDP__RELAXED);
    return at;
}

CDP__PRIVATE bool cdp__mesh_unmap(void *self, uint32_t peer, uint64_t token) {
    return cdp__line_read_end(&((cdp__mesh *)self)->links[peer].shared->line, token);
}

CDP__PRIVATE int64_t cdp__mesh_get(
    void *self, uint32_t peer, uint64_t token, uint64_t offset, void *dst, uint64_t bytes) {
    const cdp__link *l = &((cdp__mesh *)self)->links[peer];
    cdp__shared *s = l->shared;
    cdp__exposure e;
    int32_t r = -EPERM;
    if (!s || !cdp__line_read_begin(&s->line, token, &e)) return 0;
    if (offset > e.bytes || bytes > e.bytes - offset) return 0;
    if (s->pid) r = cdp__shared_read(s, s->pid, e.at + offset, dst, bytes);
    if (!cdp__line_read_end(&s->line, token)) return 0;
    if (r == 0) return (int64_t)bytes;
    if (l->state == CDP__LINK_LOST) return cdp__link_explain(l);
    if (r == -ESRCH)
        return cdp__fail_peer(CDP_ERR_PEER_LOST, peer, ESRCH,
            "cannot read what rank %u has exposed to this one: its process has ended", peer);
    /* reading was permitted when the link was made, but is no longer */
    (void)cdp__atomic_and_u32(&s->mine->reads, ~CDP__READS_ANY, CDP__RELAXED);
    return CDP_ERR_IO;
}

/* The eager slots. As with the ring, messages stored before the link was lost can still be read. */
CDP__PRIVATE void *cdp__mesh_slots(void *self, uint32_t peer, bool outgoing) {
    const cdp__link *l = &((cdp__mesh *)self)->links[peer];
    if (!l->shared || l->state < CDP__LINK_UP) return NULL;
    if (!outgoing) return &l->shared->line.in->eager.slots;
    return l->state == CDP__LINK_UP ? &l->shared->line.out->eager.slots : NULL;
}

CDP__PRIVATE void cdp__mesh_doorbell(void *self, uint32_t peer) {
    cdp__line_ring(&((cdp__mesh *)self)->links[peer].shared->line, CDP__BELL_DATA);
}

#endif /* CDP_NO_SHARED_MEMORY */

/* ---- >>tcp/first_cause: the first failure of a job, recorded in the store -------------------- */

/* Knows: the store's keys "fail" and "wait". Promises: an earlier or deeper cause that another rank
   has recorded replaces this rank's own; its own record there is its latest one. */

CDP__PRIVATE uint64_t cdp__mesh_now(const cdp__mesh *m) {
    return m->os->now_ns(m->os->user);
}

/* Returns an error if another rank has stored a cause under "fail". */
CDP__PRIVATE cdp_status cdp__mesh_cause_status(cdp__mesh *m) {
    if (!m->watching || m->watch_rq.status == CDP_PENDING) return CDP_OK;
    m->watching = false;
    /* the store is gone: rank 0 may have left, which is no failure */
    if (m->watch_rq.status != CDP_OK) return CDP_OK;
    return cdp__fail(CDP_ERR_ABORTED, "another rank reported a failure");
}

CDP__PRIVATE cdp_status cdp__mesh_wait(void *self, cdp_lock *lock, uint64_t deadline_ns) {
    cdp__mesh *m = (cdp__mesh *)self;
    cdp_status st;
    if (cdp__mesh_sharing(m)
        && !deadline_ns) { /* a caller in a busy loop polls the memory itself */
        const uint64_t now = cdp__mesh_now(m);
        if (now < m->looked_ns + CDP__LOOK_NS) return CDP_OK;
        m->looked_ns = now;
    }
    if (cdp__mesh_sharing(m) && deadline_ns && cdp__shared_doze(m->sharing)) deadline_ns = 0;
    st = cdp__loop_run(&m->loop, lock, deadline_ns);
    cdp__shared_awake(cdp__mesh_sharing(m));
    return st == CDP_OK ? cdp__mesh_cause_status(m) : st;
}

CDP__PRIVATE void cdp__mesh_wake(void *self) {
    cdp__loop_wake(&((cdp__mesh *)self)->loop);
}

CDP__PRIVATE void cdp__mesh_key(const cdp__mesh *m, char out[96], const char *what, uint32_t rank) {
    if (rank == UINT32_MAX)
        cdp__format(out, 96, "%s%s/%s", m->desc.job, m->round, what);
    else
        cdp__format(out, 96, "%s%s/%s/%u", m->desc.job, m->round, what, rank);
}

/* A key that all starts of the job have in common. */
CDP__PRIVATE void cdp__mesh_common_key(const cdp__mesh *m, char out[96], const char *what) {
    cdp__format(out, 96, "%s/%s", m->desc.job, what);
}

/* Starts an asynchronous request. False: the store refused it. */
CDP__PRIVATE cdp_status cdp__mesh_start(cdp_store *s, cdp_store_request *rq, cdp_store_op op,
    const cdp_bytes *keys, uint32_t count, const cdp_bytes *values) {
    memset(rq, 0, sizeof *rq);
    rq->op = op;
    rq->keys = keys;
    rq->key_count = count;
    rq->values = values;
    rq->status = CDP_PENDING;
    return s->start(s->self, rq);
}

/* Starts to store this rank's cause under "fail" if `expected` is there now. False: the store
   refused the request. */
CDP__PRIVATE bool cdp__mesh_put(cdp__mesh *m, cdp__cause_put *p, cdp_bytes expected) {
    bool begun;
    p->key.data = m->fail_key;
    p->key.bytes = strlen(m->fail_key);
    p->values[0] = expected;
    memcpy(p->value, m->cause, m->cause_bytes);
    p->values[1].data = p->value;
    p->values[1].bytes = m->cause_bytes;
    begun =
        cdp__mesh_start(m->store, &p->rq, CDP_STORE_COMPARE_SET, &p->key, 1, p->values) >= CDP_OK;
    if (!begun) p->rq.status = CDP_ERR_STORE; /* there is nothing to cancel */
    return begun;
}

CDP__PRIVATE cdp__cause_put *cdp__mesh_last_put(cdp__mesh *m) {
    return m->put_count ? &m->puts[(m->put_count - 1) % 2] : NULL;
}

/* Stores this rank's cause, if no rank has stored one before. Stores it again when this rank has
   received a deeper cause, because ranks that are still starting read only the store. */
CDP__PRIVATE CDP__COLD void cdp__mesh_put_cause(cdp__mesh *m) {
    cdp__cause_put *const last = cdp__mesh_last_put(m), *const p = &m->puts[m->put_count % 2];
    cdp_bytes expected = {NULL, 0};
    if (!m->store) return;
    if (last) {
        expected = last->values[1];
        if (expected.bytes == m->cause_bytes && !memcmp(expected.data, m->cause, m->cause_bytes))
            return;
        /* a third one needs the memory of both: some stores do not answer in order */
        if (m->put_count > 1 && (last->rq.status == CDP_PENDING || p->rq.status == CDP_PENDING))
            return;
        if (m->put_count > 1) cdp_store_request_free(m->store, &p->rq);
    }
    m->put_count += cdp__mesh_put(m, p, expected);
}

/* Stores a correction that had to wait. Only >>tcp/rendezvous stores the cause of a start that
   failed: a process that does not belong to the job must not end it. */
CDP__PRIVATE void cdp__mesh_put_again(cdp__mesh *m) {
    if (m->put_count) cdp__mesh_put_cause(m);
}

CDP__PRIVATE void cdp__mesh_publish(void *self, const void *record, uint32_t bytes) {
    cdp__mesh *m = (cdp__mesh *)self;
    CDP_ASSERT(bytes <= sizeof m->cause);
    m->failing = true;
    memcpy(m->cause, record, bytes);
    m->cause_bytes = bytes;
    cdp__mesh_put_cause(m);
}

/* Rank 0 has left without a goodbye, and its store with it: makes a record that blames rank 0. */
CDP__PRIVATE uint32_t cdp__mesh_store_lost(const cdp__mesh *m, void *record, uint32_t room) {
    uint8_t body[CDP__FAILURE_BYTES];
    cdp__failure_record r;
    uint32_t n;
    if (m->desc.external_store || !m->desc.group.rank || !m->watch || m->watch_rq.number
        || m->watch_rq.status != CDP_ERR_STORE)
        return 0;
    cdp__failure_plain(&r, CDP_ERR_PEER_LOST, (int32_t)m->desc.group.rank, 0,
        "rank 0 is gone, and its store with it");
    r.domain = 0; /* this is a guess */
    n = cdp__failure_encode(&r, body);
    if (n > room) return 0;
    memcpy(record, body, n);
    return n;
}

/* True if this rank's own record blames rank 0 and its store is gone, too. Then there is no
   store to ask. */
CDP__PRIVATE bool cdp__mesh_lost_store_with_rank0(const cdp__mesh *m) {
    cdp__failure_record r;
    return !m->desc.external_store && m->watch && m->watch_rq.status == CDP_ERR_STORE
        && cdp__failure_decode(m->cause, m->cause_bytes, m->desc.group.world_size, &r)
        && r.end.named == 0;
}

/* How long the rank that serves the store waits for other ranks to read a cause, at most. */
#define CDP__HOST_MS CDP__REPORT_MS

CDP__PRIVATE void cdp__mesh_readers_late(cdp__timer *t) {
    (void)t; /* the timer only makes the group poll again */
}

/* A process may exit as soon as it has an error, and the store that it serves ends with it. True
   while other ranks may not have read the first cause; for CDP__HOST_MS at most, since one of
   them may have stopped. */
CDP__PRIVATE bool cdp__mesh_readers(cdp__mesh *m) {
    const uint64_t now = cdp__mesh_now(m);
    if (!cdp__mesh_serves(m) || !m->started) return false;
    if (!m->known_ns) {
        m->known_ns = now;
        cdp__loop_timer_set(
            &m->loop, &m->readers_timer, now + CDP__HOST_MS * CDP__MS, cdp__mesh_readers_late, m);
    }
    return now < m->known_ns + CDP__HOST_MS * CDP__MS && !cdp__store_server_quiet(m->server);
}

CDP__PRIVATE CDP__COLD uint32_t cdp__mesh_first(void *self, void *record, uint32_t room) {
    cdp__mesh *m = (cdp__mesh *)self;
    const cdp_bytes *v = NULL;
    uint32_t i;
    if (m->watch && m->watch_rq.status == CDP_OK) v = m->watch_rq.results;
    for (i = m->put_count > 2 ? m->put_count - 2 : 0; i < m->put_count; ++i)
        if (m->puts[i % 2].rq.status == CDP_OK) v = m->puts[i % 2].rq.results;
    cdp__mesh_put_again(m);
    if (v && cdp__mesh_readers(m)) return 0;
    if (!v && cdp__mesh_lost_store_with_rank0(m) && m->cause_bytes <= room) {
        memcpy(record, m->cause, m->cause_bytes);
        return m->cause_bytes;
    }
    if (!v || v->bytes > room) return cdp__mesh_store_lost(m, record, room);
    memcpy(record, v->data, (size_t)v->bytes);
    return (uint32_t)v->bytes;
}

CDP__PRIVATE void cdp__mesh_wait_record_start(cdp__mesh *m, cdp_store_op op) {
    const bool begun =
        cdp__mesh_start(m->store, &m->wait_record_rq, op, &m->wait_record_key, 1, NULL) >= CDP_OK;
    m->wait_record_state = CDP__WAIT_RECORD_DONE;
    if (begun)
        m->wait_record_state = op == CDP_STORE_GET ? CDP__WAIT_RECORD_GET : CDP__WAIT_RECORD_CHECK;
}

/* Takes the next step of reading the wait record of `wait_record_rank`. */
CDP__PRIVATE void cdp__mesh_wait_record_step(cdp__mesh *m) {
    if (m->wait_record_state == CDP__WAIT_RECORD_DONE || m->wait_record_rq.status == CDP_PENDING)
        return;
    if (m->wait_record_state == CDP__WAIT_RECORD_CHECK && m->wait_record_rq.status == CDP_OK
        && m->wait_record_rq.number) {
        cdp_store_request_free(m->store, &m->wait_record_rq);
        cdp__mesh_wait_record_start(m, CDP_STORE_GET);
        return;
    }
    if (m->wait_record_state == CDP__WAIT_RECORD_GET && m->wait_record_rq.status == CDP_OK
        && m->wait_record_rq.results[0].bytes == 4)
        m->wait_record_named =
            (int32_t)cdp__get_u32((const uint8_t *)m->wait_record_rq.results[0].data);
    cdp_store_request_free(m->store, &m->wait_record_rq);
    m->wait_record_state = CDP__WAIT_RECORD_DONE;
}

/* How long a store that answers may take for it. */
#define CDP__WAIT_RECORD_MS 10u

/* Reads the wait record of a rank that does not answer: returns the rank that it waits for while it
   starts, or -1 if that is not known (yet) or it has started. A lost rank that was connected before
   has started. If the store has not answered by the last call (`last`) and has had
   CDP__WAIT_RECORD_MS, returns 0, because rank 0 serves it. -2: the rank is lost, and so is the
   store of rank 0, so either may be the cause. */
CDP__PRIVATE CDP__COLD int32_t cdp__mesh_starting(void *self, uint32_t peer, bool lost, bool last) {
    cdp__mesh *m = (cdp__mesh *)self;
    if (lost && peer && !m->desc.external_store && m->watch && m->watch_rq.status < CDP_OK)
        return -2;
    if (lost && m->links[peer].was_up) return -1;
    if (!m->store) return -1;
    if (m->wait_record_state != CDP__WAIT_RECORD_NONE) cdp__mesh_wait_record_step(m);
    if (m->wait_record_state == CDP__WAIT_RECORD_DONE && m->wait_record_rank != peer)
        m->wait_record_state = CDP__WAIT_RECORD_NONE;
    if (m->wait_record_state == CDP__WAIT_RECORD_NONE) {
        m->wait_record_rank = peer;
        m->wait_record_named = -1;
        cdp__mesh_key(m, m->wait_record_text, "wait", peer);
        m->wait_record_key.data = m->wait_record_text;
        m->wait_record_key.bytes = strlen(m->wait_record_text);
        cdp__mesh_wait_record_start(m, CDP_STORE_CHECK);
        m->wait_record_ns = cdp__mesh_now(m);
    }
    if (m->wait_record_state == CDP__WAIT_RECORD_DONE) return m->wait_record_named;
    if (!last || m->wait_record_rq.status != CDP_PENDING
        || cdp__mesh_now(m) < m->wait_record_ns + CDP__WAIT_RECORD_MS * CDP__MS)
        return -1;
    return m->desc.group.rank && !m->desc.external_store ? 0 : -1;
}

CDP__PRIVATE bool cdp__mesh_linked(void *self, uint32_t peer) {
    cdp__mesh *m = (cdp__mesh *)self;
    uint32_t i = 0;
    while (i < m->desc.connections && cdp__bundle_at(&m->links[peer], i)->state == CDP__LINK_UP)
        ++i;
    return i == m->desc.connections || (i && cdp__link_shared(&m->links[peer]));
}

/* Longer than a lost packet or two take on any network that works. */
#define CDP__UNACKED_MS 500u

CDP__PRIVATE CDP__COLD bool cdp__mesh_unacked(void *self, uint32_t peer) {
    cdp__mesh *m = (cdp__mesh *)self;
    uint32_t i;
    for (i = 0; m->os->net.unanswered_ns && i < m->desc.connections; ++i) {
        const cdp__link *l = cdp__bundle_at(&m->links[peer], i);
        if (l->state == CDP__LINK_UP && !l->shared
            && m->os->net.unanswered_ns(m->os->user, l->io.fd) >= CDP__UNACKED_MS * CDP__MS)
            return true;
    }
    return false;
}

/* The number of a rank's host. */
CDP__PRIVATE uint32_t cdp__mesh_host(void *self, uint32_t peer) {
    return ((cdp__mesh *)self)->hosts[peer];
}

#ifndef CDP_NO_RECORDER
CDP__PRIVATE void cdp__mesh_describe(void *self, uint32_t peer, char *out, uint64_t size) {
    static const char *const states[] = {
        "not used yet", "awaited", "trying its addresses", "being made", "", "lost"};
    cdp__mesh *m = (cdp__mesh *)self;
    const cdp__shared *s = m->links[peer].state == CDP__LINK_UP ? m->links[peer].shared : NULL;
    cdp__text t = cdp__text_of(out, size);
    char here[80], there[80];
    cdp_addr at;
    uint64_t views;
    uint32_t i;
    if (s)
        cdp__text_add(&t, "memory, %llu KiB each way, ", (unsigned long long)(s->line.size / 1024));
    for (i = 0, views = 0; s && i < CDP_SEGMENTS; ++i)
        views += s->mappings[i].at ? s->mappings[i].bytes : 0;
    if (views)
        cdp__text_add(
            &t, "%llu KiB of its group memory mapped here, ", (unsigned long long)(views / 1024));
    if (s) cdp__text_add(&t, "beside ");
    cdp__text_add(&t, "TCP");
    for (i = 0; i < (s ? 1 : m->desc.connections); ++i) {
        const cdp__link *l = cdp__bundle_at(&m->links[peer], i);
        memset(&at, 0, sizeof at);
        if (l->state == CDP__LINK_UP) (void)m->os->net.local_addr(m->os->user, l->io.fd, &at);
        cdp__addr_text(&at, here, sizeof here);
        cdp__addr_text(&l->addr, there, sizeof there);
        if (l->state == CDP__LINK_UP)
            cdp__text_add(&t, ", %s to %s", here, there);
        else
            cdp__text_add(&t, l->addr.family ? ", %s, at %s" : ", %s", states[l->state], there);
    }
    if (m->keyed && cdp__mesh_linked(m, peer)) cdp__text_add(&t, ", key proved");
    if (m->desc.mac && !s && cdp__mesh_linked(m, peer)) cdp__text_add(&t, ", mac");
}
#endif

/* How long the rank that serves the store waits for ranks that started late, at most. */
#define CDP__LATE_MS 1000u

/* This rank could not start, and others may not have connected yet. Rank 0 keeps the store open
   for 2 * CDP__SETTLE_MS, so that they can read the cause, and then until no rank is connected, for
   CDP__LATE_MS at most. Another rank whose store is gone tells ranks that connect, for
   CDP__REPORT_MS. True: it waited, until until_ns at most, and is to be called again. */
CDP__PRIVATE bool cdp__mesh_lingers(cdp__mesh *m, uint64_t until_ns) {
    const bool serves = cdp__mesh_serves(m);
    const uint32_t own = (m->store ? 1u : 0u) + (m->watch ? 1u : 0u);
    const uint64_t now = cdp__mesh_now(m), *at = m->linger_ns;
    if (!serves && m->watch_rq.status >= CDP_OK) return false;
    if (!at[1]) {
        const uint64_t most =
            (serves ? 2 * CDP__SETTLE_MS + CDP__LATE_MS : CDP__REPORT_MS) * CDP__MS;
        m->linger_ns[0] = now + 2 * CDP__SETTLE_MS * CDP__MS;
        m->linger_ns[1] = cdp__min(now + most, m->init_deadline_ns);
    }
    if (now >= at[1]) return false;
    if (serves && now >= at[0] && cdp__store_server_clients(m->server) <= own) return false;
    until_ns = cdp__min(until_ns, now < at[0] ? cdp__min(at[0], at[1]) : at[1]);
    return cdp__loop_run(&m->loop, NULL, until_ns) == CDP_OK;
}

/* A failed rank leaves only when the store has its cause. The rank that serves the store waits
   until the others have disconnected; after CDP__REPORT_MS it suffices that all answers were sent.
   Without a store, waits for late ranks to connect, and tells them. One step, until `until_ns` at
   most. False: there is nothing more to wait for. */
CDP__PRIVATE bool cdp__mesh_linger(cdp__mesh *m, uint64_t until_ns) {
    const bool serves = cdp__mesh_serves(m), store_gone = !serves && m->watch_rq.status < CDP_OK;
    const uint64_t now = cdp__mesh_now(m), told = m->leave_ns + CDP__REPORT_MS * CDP__MS;
    const uint64_t end = serves ? m->leave_ns + CDP__SETTLE_MS * CDP__MS : told;
    const uint32_t own = (m->store ? 1u : 0u) + (m->watch ? 1u : 0u);
    uint64_t at = end;
    bool more;
    if (!serves && !store_gone) {
        /* ranks that see this one leave ask the store why: the answer must be there before */
        cdp__mesh_put_again(m);
        more = m->put_count && cdp__mesh_last_put(m)->rq.status == CDP_PENDING;
    } else {
        m->leaving = true;
        if (!m->started) return cdp__mesh_lingers(m, until_ns);
        more = !serves || cdp__store_server_clients(m->server) > own;
        if (now < told)
            at = told;
        else if (serves && cdp__store_server_quiet(m->server))
            more = false;
    }
    return more && now < end && cdp__loop_run(&m->loop, NULL, cdp__min(at, until_ns)) == CDP_OK;
}

#define CDP__PART_MS 100u

/* True if the peer may still send data on this connection, or close it. */
CDP__PRIVATE bool cdp__link_open(const cdp__link *l) {
    return l->io.next && !cdp__link_shared(l)
        && (l->state == CDP__LINK_UP || l->state == CDP__LINK_LOST);
}

/* Sends the rest of the cause on links whose socket accepted only a part of it. True: on some link
   a rest still waits for room. */
CDP__PRIVATE bool cdp__mesh_sending_cause(cdp__mesh *m) {
    bool more = false;
    uint32_t i;
    for (i = 0; i < m->desc.group.world_size; ++i) {
        cdp__link *l = &m->links[i];
        if (l->state != CDP__LINK_UP || !l->cause_unsent) continue;
        cdp__link_send_cause(l);
        more = more || l->cause_unsent;
    }
    return more;
}

CDP__PRIVATE bool cdp__mesh_parting(const cdp__mesh *m) {
    uint32_t i;
    for (i = 0; i < m->desc.group.world_size * m->desc.connections; ++i)
        if (cdp__link_open(&m->links[i])) return true;
    return false;
}

/* This rank leaves: drops what still arrives, until the peers close their connections. */
CDP__PRIVATE void cdp__mesh_discard(cdp__mesh *m, bool end_sending) {
    uint32_t i;
    for (i = 0; m->links && i < m->desc.group.world_size * m->desc.connections; ++i) {
        cdp__link *l = &m->links[i];
        if (!cdp__link_open(l)) continue;
        l->io.func = cdp__link_parting;
        l->io.ready |= CDP_IO_READ;
        if (end_sending && l->state == CDP__LINK_UP)
            cdp__link_end_sending(l);
        else
            cdp__link_discard(l);
    }
}

/* Ends this rank's side of its links, and then waits until the peers have closed theirs. True: some
   have not yet. */
CDP__PRIVATE bool cdp__mesh_links_part(cdp__mesh *m, uint64_t now) {
    if (!m->links || !m->os->net.end_sending) return false;
    if (!m->parting && (now >= m->part_ns || !cdp__mesh_sending_cause(m))) {
        m->parting = true;
        cdp__mesh_discard(m, true);
    }
    return now < m->part_ns && (!m->parting || cdp__mesh_parting(m));
}

/* Says goodbye to the store, so that the last will of this rank is not carried out. True: the store
   has not answered, and may until *until_ns. */
CDP__PRIVATE bool cdp__mesh_store_parts(cdp__mesh *m, uint64_t *until_ns) {
    if (!m->watch) return false;
    if (m->watching && m->watch_rq.status == CDP_PENDING) {
        m->watch->cancel(m->watch->self, &m->watch_rq);
        m->watching = false;
    }
    return cdp__tcp_store_parts(m->watch, until_ns);
}

/* Leaves the other ranks. Closing a connection on which data arrives later resets it, and the
   peer would lose unread data of this rank. So this rank ends its sending side first, and closes
   the connection when the peer has closed its side, or after CDP__PART_MS if it is busy. It leaves
   the store at the same time; if it serves that, clients then may take their last answers. True: it
   waited, until until_ns at most, and is to be called again. */
CDP__PRIVATE bool cdp__mesh_parts(cdp__mesh *m, uint64_t until_ns) {
    const uint64_t now = cdp__mesh_now(m);
    uint64_t end = 0;
    bool links, store;
    if (!m->part_ns) m->part_ns = now + CDP__PART_MS * CDP__MS;
    store = cdp__mesh_store_parts(m, &end);
    links = cdp__mesh_links_part(m, now);
    if (links) end = m->part_ns;
    if (!links && !store && (!cdp__mesh_serves(m) || !cdp__store_server_parts(m->server, &end)))
        return false;
    return cdp__loop_run(&m->loop, NULL, cdp__min(until_ns, end)) == CDP_OK;
}

/* No peer connects any more. */
CDP__PRIVATE void cdp__mesh_shut(cdp__mesh *m) {
    if (cdp__mesh_serves(m)) cdp__store_server_share(m->server, NULL, NULL);
    cdp__loop_timer_clear(&m->accept_timer);
    cdp__loop_timer_clear(&m->unanswered_timer);
    cdp__loop_timer_clear(&m->readers_timer);
    cdp__loop_remove(&m->loop, &m->listener);
    while (m->incoming)
        cdp__incoming_close(m->incoming);
}

/* This rank leaves: ends the link and releases its memory. May be called again. */
CDP__PRIVATE void cdp__link_release(cdp__link *l) {
    cdp__mesh *m = l->mesh;
    cdp__link_lose(l, CDP_ERR_STATE, 0);
    cdp__loop_remove(&m->loop, &l->io);
    cdp__free(m->os, l->rx);
    l->rx = NULL;
    cdp__link_unguard(l);
    cdp__shared_close(cdp__link_shared(l));
    l->shared = NULL;
}

/* Releases links in steps, if this rank leaves within a budget. Returns false when nothing is left
   to release, or when there is no budget: then destroy() releases all of them. */
CDP__PRIVATE bool cdp__mesh_release_some(cdp__mesh *m, uint64_t until_ns) {
    const uint32_t n = m->links ? m->desc.group.world_size * m->desc.connections : 0;
    uint32_t i;
    m->sharing = NULL; /* memory that is released is not polled any more */
    for (i = 0; CDP__BUDGETS && until_ns != CDP__NEVER && i < n; ++i) {
        cdp__link *l = &m->links[i];
        cdp__shared *s = cdp__link_shared(l);
        while (s && cdp__shared_leave(s))
            if (cdp__mesh_now(m) >= until_ns) return true;
        if (!s && !l->rx && !l->io.next) continue;
        cdp__link_release(l);
        if (cdp__mesh_now(m) >= until_ns) return true;
    }
    return false;
}

/* One step of leaving, until `until_ns` at most. False: there is nothing more to wait for. */
CDP__PRIVATE CDP__COLD bool cdp__mesh_leave(void *self, uint64_t until_ns) {
    cdp__mesh *m = (cdp__mesh *)self;
    if (!m->leave_ns) {
        cdp__mesh_discard(m, false);
        m->leave_ns = cdp__mesh_now(m);
    }
    if (!m->part_ns) {
        if ((m->failing || (cdp__mesh_serves(m) && cdp__store_server_has(m->server, m->fail_key)))
            && cdp__mesh_linger(m, until_ns))
            return true;
        cdp__mesh_shut(m);
    }
    return cdp__mesh_parts(m, until_ns) || cdp__mesh_release_some(m, until_ns);
}

/* Closes everything. Accepts a mesh that was only partly created. */
CDP__PRIVATE CDP__COLD void cdp__mesh_close(void *self) {
    cdp__mesh *m = (cdp__mesh *)self;
    const cdp_os *os = m->os;
    uint32_t i;
    cdp__mesh_discard(m, false);
    cdp__mesh_shut(m);
    for (i = 0; m->links && i < m->desc.group.world_size * m->desc.connections; ++i)
        cdp__link_release(&m->links[i]);
    for (i = 0; m->segments && i < CDP_SEGMENTS; ++i)
        /* memory that was not freed may still be in use: it stays mapped */
        if (m->segments[i].at) os->net.close_fd(os->user, m->segments[i].fd);
    cdp__free(os, m->segments);
    for (i = 0; i < 2 && m->store; ++i) {
        cdp_store_request *rq = &m->puts[i].rq;
        if (i < m->put_count && rq->status == CDP_PENDING) m->store->cancel(m->store->self, rq);
        cdp_store_request_free(m->store, rq);
    }
    if ((m->wait_record_state == CDP__WAIT_RECORD_CHECK
            || m->wait_record_state == CDP__WAIT_RECORD_GET)
        && m->wait_record_rq.status == CDP_PENDING)
        m->store->cancel(m->store->self, &m->wait_record_rq);
    if (m->store) cdp_store_request_free(m->store, &m->wait_record_rq);
    if (m->store) cdp_store_request_free(m->store, &m->addrs);
    if (cdp__mesh_alone(m))
        cdp__store_request_drop_results(
            m->os, &m->addrs, cdp__store_request_result_count(&m->addrs));
    cdp__free(m->os, m->hosts);
    if (m->watching && m->watch_rq.status == CDP_PENDING)
        m->watch->cancel(m->watch->self, &m->watch_rq);
    if (m->watch) {
        cdp_store_request_free(m->watch, &m->watch_rq);
        cdp_store_destroy(m->watch);
    }
    if (m->store) cdp_store_destroy(m->store);
#ifndef CDP_NO_STORE_SERVER
    cdp_store_server_destroy(m->server);
#endif
    cdp__loop_close(&m->loop);
    cdp__free(os, m->links);
    cdp__wipe(m->key, sizeof m->key);
    cdp__free(os, m);
}

/* ---- >>tcp/rendezvous: how the ranks of a job find each other -------------------------------- */

/* Knows: the keys of the job in the store. Promises: every wait ends by the deadline of cdp_init();
   no step waits except cdp__mesh_rendezvous(). */

/* Keys of a job: <job>/config (rank 0: version, world size, settings, the random name of this
   start); and, under <job>/<part of that name>/, claim/<rank> (the process that owns the rank),
   addr/<rank> (its addresses), done/<rank> (it has read everything), fail (the record of the first
   failure), wait/<rank> (for whom it waits while starting, if that takes long). From its claim
   until it has started, each rank has a last will: if it dies, the store sets "fail". So the death
   of a process ends the wait of all ranks, even if none of them is connected to it.

   Programs leave and start again at the same address, and a rank may come before others have left.
   So it may find an earlier start: in the store of a rank 0 that has not left yet, or in one that
   others serve. cdp__start_judge() says what is to be done then. What ranks of an earlier start
   still write has the name of that start, so it does not disturb the next one.

   A store that others serve may have no last wills. There, config also contains the addresses of
   rank 0. A rank 0 replaces the config of an earlier start that is over, or whose rank 0 does not
   listen any more; the other ranks wait for that. In the same way, a rank takes over the claim of a
   process that has ended. So no process needs to know how often the job was started: torchrun's
   TORCHELASTIC_RESTART_COUNT differs between the hosts of one start. */

/* Rendezvous is a state machine whose states never wait. A state (`next`) is a function that
   does what is possible now, and names the next state. It may name an event that must happen
   before (`waits`), with the deadline until_ns; the next state finds the outcome in `result`, and
   the reason of a failure in `why`. A state that fails sets the last error, as all functions do.
   Without a next state the step is complete, and the next of cdp__join_steps begins. */

/* Milliseconds left for finding the other ranks. */
CDP__PRIVATE uint32_t cdp__join_ms_left(const cdp__mesh *m) {
    const uint64_t now = cdp__mesh_now(m), end = m->join->deadline_ns;
    if (end == CDP__NEVER) return CDP_NO_TIMEOUT;
    return (uint32_t)cdp__min(cdp__max(1, (end - cdp__min(now, end)) / CDP__MS), 1u << 31);
}

/* A store, or the loop, has just returned `st`: the outcome of what is waited for. */
CDP__PRIVATE void cdp__join_set_outcome(cdp__join *s, cdp_status st) {
    s->result = st;
    if (st >= 0) return;
    s->why = *cdp_last_error();
    if (s->why.status != st)
        cdp__error(&s->why, st, -1, "the store returned %s", cdp_status_name(st));
}

/* A state returns this if the outcome is all that counts. */
CDP__PRIVATE cdp_status cdp__join_outcome(const cdp__join *s) {
    return s->result < 0 ? cdp__error_record(&s->why) : s->result;
}

/* Cancels or frees the previous request. */
CDP__PRIVATE void cdp__join_forget(cdp__join *s) {
    if (!s->asked) return;
    if (s->rq.status == CDP_PENDING) s->asked->cancel(s->asked->self, &s->rq);
    cdp_store_request_free(s->asked, &s->rq);
    s->asked = NULL;
}

/* Sends the request `op` with `count` keys to a store. timeout_ms 0: all the time left. */
CDP__PRIVATE CDP__COLD void cdp__join_send(cdp__mesh *m, cdp_store *store, cdp_store_op op,
    const cdp_bytes *keys, uint32_t count, uint32_t timeout_ms) {
    cdp__join *s = m->join;
    s->timeout_ms = timeout_ms ? timeout_ms : cdp__join_ms_left(m);
    s->until_ns = cdp__deadline(m->os, s->timeout_ms);
    cdp__join_forget(s);
    memset(&s->rq, 0, sizeof s->rq);
    s->rq.op = op;
    s->rq.keys = keys;
    s->rq.key_count = count;
    s->rq.values = s->values;
    s->rq.delta = 1;
    s->asked = store;
    s->polls = 0;
    s->waits = CDP__WAITS_REQUEST;
    cdp__join_set_outcome(s, cdp__store_begin(store, &s->rq));
    if (s->result >= 0) s->result = CDP_PENDING; /* the request's status tells the rest */
}

/* cdp__join_send() for the single key s->key_text; `next` is the next state. */
CDP__PRIVATE void cdp__join_ask(
    cdp__mesh *m, cdp_store *store, cdp_store_op op, uint32_t timeout_ms, cdp__join_func *next) {
    cdp__join *s = m->join;
    s->key.data = s->key_text;
    s->key.bytes = strlen(s->key_text);
    s->next = next;
    cdp__join_send(m, store, op, &s->key, 1, timeout_ms);
}

CDP__PRIVATE void cdp__join_value(cdp__join *s, uint32_t i, const void *data, uint64_t bytes) {
    s->values[i].data = data;
    s->values[i].bytes = bytes;
}

CDP__PRIVATE void cdp__join_pause(cdp__join *s, uint64_t until_ns, cdp__join_func *next) {
    s->until_ns = until_ns;
    s->waits = CDP__WAITS_TIME;
    s->next = next;
}

#define CDP__AGAIN_FIRST_MS 5u /* pauses before the next attempt: the first one, and the longest */
#define CDP__AGAIN_MOST_MS 250u

/* From here on, keys are those of the start of this name. NULL: of no start yet. */
CDP__PRIVATE void cdp__mesh_round(cdp__mesh *m, const uint8_t *job) {
    m->round[0] = 0;
    if (job) cdp__format(m->round, sizeof m->round, "/%llx", (unsigned long long)cdp__get_u64(job));
    cdp__mesh_key(m, m->fail_key, "fail", UINT32_MAX);
}

/* This rank has no part in the start that it has found, or found over. */
CDP__PRIVATE void cdp__join_leave_start(cdp__mesh *m) {
    cdp__join_forget(m->join);
    if (m->watch) {
        if (m->watching && m->watch_rq.status == CDP_PENDING)
            m->watch->cancel(m->watch->self, &m->watch_rq);
        cdp_store_request_free(m->watch, &m->watch_rq);
        cdp_store_destroy(m->watch); /* withdraws the last will */
    }
    m->watch = NULL;
    cdp_store_destroy(m->join->second);
    m->join->second = NULL;
    if (m->store) cdp_store_request_free(m->store, &m->addrs);
    if (m->store && !m->desc.external_store) {
        cdp_store_destroy(m->store);
        m->store = NULL;
    }
    cdp__free(m->os, m->hosts);
    m->hosts = NULL;
    m->watching = m->claimed = m->job_known = m->wait_recorded = m->join->complete = false;
    m->join->counted = m->join->quiet = false;
    m->join->cause_grace_ns = 0;
    cdp__mesh_round(m, NULL);
}

/* `why` says why this rank waits for another start: logs it from time to time, and tries again. At
   the deadline it is the error of this rank. */
CDP__PRIVATE CDP__COLD cdp_status cdp__join_again(cdp__mesh *m, const cdp_error *why) {
    cdp__join *s = m->join;
    const uint64_t now = cdp__mesh_now(m),
                   patient = cdp__min(CDP__FAILURE_WAIT_MS, m->desc.init_timeout_ms / 4) * CDP__MS;
    if (now >= s->deadline_ns) return cdp__error_record(why);
    if (!s->log_ns) s->log_ns = m->start_ns + patient;
    if (now >= s->log_ns) {
        cdp__log(&m->desc.group.logger, CDP_LOG_WARN, m->desc.group.rank, "%s", why->text);
        s->log_ns = now + cdp__max(10000 * CDP__MS, now - m->start_ns);
    }
    cdp__join_leave_start(m);
    s->retry_ms = cdp__min(cdp__max(2 * s->retry_ms, CDP__AGAIN_FIRST_MS), CDP__AGAIN_MOST_MS);
    s->step = 2; /* cdp__mesh_listen_first */
    cdp__join_pause(s, cdp__min(now + s->retry_ms * CDP__MS, s->deadline_ns), s->reopen);
    return CDP_OK;
}

/* A rank 0 that takes over a start of an external store puts this under its "fail": whoever waits
   in that start waits for the new one. */
#define CDP__MOVED_ON "a new start"

/* Adopts the cause stored under "fail" as this rank's error. */
CDP__PRIVATE cdp_status cdp__join_adopted(cdp__mesh *m) {
    const cdp_bytes *v = m->join->rq.results;
    cdp__failure_record r;
    cdp_error cause;
    cdp_status st;
    if (m->join->result != CDP_OK) return cdp__join_outcome(m->join);
    if (v->bytes == sizeof CDP__MOVED_ON - 1
        && memcmp(v->data, CDP__MOVED_ON, (size_t)v->bytes) == 0) {
        cdp__error(&cause, CDP_ERR_TIMEOUT, 0, "rank 0 has started again");
        return cdp__join_again(m, &cause);
    }
    if (!cdp__failure_decode((const uint8_t *)v->data, v->bytes, m->desc.group.world_size, &r))
        return cdp__fail(CDP_ERR_MISMATCH,
            "the store holds no cause under %s that this version understands", m->fail_key);
    cdp__failure_text(&r, (uint32_t)r.observer, m->desc.group.world_size, &cause);
    /* of another process that claims the same rank */
    if (cause.origin == (int32_t)m->desc.group.rank)
        st = cdp__fail_peer(cause.status, cause.peer, 0, "%s", cause.text);
    else
        st = cdp__fail_peer(cause.status, cause.peer, 0, "rank %u/%u: told while starting: %s",
            m->desc.group.rank, m->desc.group.world_size, cause.text);
    cdp__error_slot()->rank = (int32_t)m->desc.group.rank;
    cdp__error_slot()->origin = cause.origin;
    return st;
}

/* True while the keys of all ranks are awaited. */
CDP__PRIVATE bool cdp__join_awaits(const cdp__mesh *m) {
    const cdp__join *s = m->join;
    return s->rq.keys == s->keys && s->rq.op != CDP_STORE_CHECK && m->watching;
}

/* A rank whose start is complete may fail while keys that other ranks have set are still on their
   way to this one. They get this much time before that failure ends this rank's start. */
#define CDP__CAUSE_GRACE_MS 50u

CDP__PRIVATE bool cdp__join_must_end(cdp__mesh *m, uint64_t now) {
    cdp__join *s = m->join;
    if (!cdp__join_awaits(m) || m->watch_rq.status != CDP_OK) return false;
    if (!s->cause_grace_ns) s->cause_grace_ns = now + CDP__CAUSE_GRACE_MS * CDP__MS;
    return now >= s->cause_grace_ns && cdp__mesh_cause_status(m) != CDP_OK;
}

/* True while the request is in progress. A store of the caller is not on this rank's loop, so it
   is polled, at growing intervals. */
CDP__PRIVATE bool cdp__join_request_waits(cdp__mesh *m, uint64_t now) {
    cdp__join *s = m->join;
    if (s->result != CDP_PENDING) return false;
    s->result = s->rq.status;
    if (s->result != CDP_PENDING || s->asked != m->store) {
        /* with an error this only sets the last error */
        cdp__join_set_outcome(s, s->asked->wait(s->asked->self, &s->rq, 0));
        ++s->polls;
    }
    if (s->result != CDP_PENDING) return false;
    if (cdp__join_must_end(m, now)) {
        cdp__format(s->key_text, sizeof s->key_text, "%s", m->fail_key);
        cdp__join_ask(m, m->store, CDP_STORE_GET, 1000, cdp__join_adopted);
        return cdp__join_request_waits(m, now);
    }
    if (now < s->until_ns) return true;
    cdp__join_set_outcome(s, cdp__store_end(s->asked, &s->rq, CDP_PENDING, s->timeout_ms));
    return false;
}

CDP__PRIVATE void cdp__reach_event(cdp__io *io) {
    cdp__mesh *m = (cdp__mesh *)io->user;
    const int32_t err =
        io->ready & CDP_IO_WRITE ? m->os->net.connect_result(m->os->user, io->fd) : -EINPROGRESS;
    if (err == -EINPROGRESS || err == -ENOTCONN) return;
    cdp__loop_remove(&m->loop, io);
    --m->join->reaching;
    if (err >= 0) ++m->join->reached;
}

CDP__PRIVATE void cdp__join_reach_end(cdp__mesh *m) {
    uint32_t i;
    for (i = 0; i < CDP__PATHS; ++i)
        cdp__loop_remove(&m->loop, &m->join->reach[i]);
}

#define CDP__REACH_MS 2000u /* time for an address to answer */

/* Finds out whether a process listens at one of these addresses (text as in cdp__addrs_text). If
   so, `reached` is not 0 in the state `next`. */
CDP__PRIVATE void cdp__join_reach(
    cdp__mesh *m, const void *text, uint64_t bytes, cdp__join_func *next) {
    cdp__join *s = m->join;
    cdp_addr theirs[CDP__ADDRS];
    uint32_t i, n = cdp__addrs_parse((const char *)text, bytes, theirs, CDP__ADDRS);
    n = cdp__paths(m->mine, m->mine_count, theirs, n, s->at);
    s->reached = s->reaching = 0;
    for (i = 0; i < n; ++i) {
        const int32_t fd = m->os->net.connect_to(m->os->user, &s->at[i]);
        if (fd < 0) continue;
        ++s->reaching;
        cdp__loop_add(&m->loop, &s->reach[i], fd, cdp__reach_event, m);
        cdp__loop_want_write(&m->loop, &s->reach[i]);
    }
    s->until_ns = cdp__deadline(m->os, CDP__REACH_MS);
    s->waits = CDP__WAITS_LISTENER;
    s->next = next;
}

#ifndef CDP_NO_FRAMES
/* Some link is being made, and none is lost. */
CDP__PRIVATE bool cdp__mesh_links_wait(const cdp__mesh *m) {
    const uint32_t n = m->desc.group.world_size * m->desc.connections;
    bool made = true;
    uint32_t i;
    for (i = 0; i < n; ++i) {
        const cdp__link_state state = m->links[i].state;
        if (m->links[i].peer == m->desc.group.rank) continue;
        if (state == CDP__LINK_LOST) return false;
        made = made && (state == CDP__LINK_UP || state == CDP__LINK_NONE);
    }
    return !made;
}
#endif

/* True while the event that the current state waits for has not happened. */
CDP__PRIVATE bool cdp__join_waiting(cdp__mesh *m) {
    cdp__join *s = m->join;
    const uint64_t now = cdp__mesh_now(m);
    switch (s->waits) {
    case CDP__WAITS_REQUEST: return cdp__join_request_waits(m, now);
    case CDP__WAITS_CONNECTION:
        cdp__join_set_outcome(s, cdp__tcp_store_connected(s->made));
        return s->result == CDP_PENDING && (!s->reread_ns || now < s->reread_ns);
    case CDP__WAITS_LISTENER:
        if (s->reaching && !s->reached && now < s->until_ns) return true;
        cdp__join_reach_end(m);
        return false;
#ifndef CDP_NO_FRAMES
    case CDP__WAITS_LINKS: return now < s->until_ns && cdp__mesh_links_wait(m);
#endif
    case CDP__WAITS_TIME: return now < s->until_ns;
    default: return false;
    }
}

/* Until when to run the loop. */
CDP__PRIVATE uint64_t cdp__join_until(const cdp__mesh *m) {
    const cdp__join *s = m->join;
    uint64_t until = s->until_ns;
    if (s->waits != CDP__WAITS_REQUEST) return until;
    if (s->cause_grace_ns && cdp__join_awaits(m)) until = cdp__min(until, s->cause_grace_ns);
    if (s->asked == m->store) return until;
    return cdp__min(
        until, cdp__mesh_now(m) + cdp__min(10 * CDP__MS, (CDP__MS / 4) << cdp__min(s->polls, 6)));
}

CDP__PRIVATE void cdp__join_free(cdp__mesh *m) {
    cdp__join *s = m->join;
    const cdp_os *os = m->os;
    if (!s) return;
    cdp__join_forget(s);
    cdp__join_reach_end(m);
    if (s->made) cdp_store_destroy(s->made);
    cdp_store_destroy(s->second);
#ifndef CDP_NO_FILE_STORE
    if (s->file && m->meeting)
        cdp_store_destroy(m->meeting);
    else if (s->file)
        cdp__file_free((cdp__file_store *)s->file);
#endif
    cdp__free(os, s->theirs);
    cdp__free(os, s->texts);
    cdp__free(os, s->keys);
    m->join = NULL;
    cdp__free(os, s);
}

/* Sends the cause to ranks that are already connected. Reads their data, because unread data
   would reset the connection and the cause would be lost. */
CDP__PRIVATE void cdp__mesh_send_cause(cdp__mesh *m) {
    uint32_t r;
    for (r = 0; r < m->desc.group.world_size; ++r) {
        if (m->links[r].state != CDP__LINK_UP) continue;
        cdp__link_send_cause(&m->links[r]);
        cdp__link_read_ahead(&m->links[r]);
    }
}

CDP__PRIVATE cdp_status cdp__join_end(cdp__mesh *m) {
    m->join->over = true;
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__join_published(cdp__mesh *m) {
    const bool told = m->join->result == CDP_OK;
    cdp__mesh_send_cause(m);
    /* if the store did not take the cause, the last will tells the other ranks */
    if (!told && m->watch) cdp__tcp_store_abandon(m->watch);
    return cdp__join_end(m);
}

CDP__PRIVATE cdp_status cdp__join_publish(cdp__mesh *m) {
    cdp__join *s = m->join;
    cdp__format(s->key_text, sizeof s->key_text, "%s", m->fail_key);
    cdp__join_value(s, 0, NULL, 0);
    cdp__join_value(s, 1, m->cause, m->cause_bytes);
    cdp__join_ask(m, m->store, CDP_STORE_COMPARE_SET, CDP__SETTLE_MS, cdp__join_published);
    return CDP_OK;
}

/* The rank is claimed, so that this process knows this start again: see cdp__start_judge(). */
CDP__PRIVATE cdp_status cdp__join_marked(cdp__mesh *m) {
    return cdp__join_publish(m);
}

/* If rank 0 has finished starting, this process is a stranger without a rank: its failure must
   not end the job. */
CDP__PRIVATE cdp_status cdp__join_belongs(cdp__mesh *m) {
    cdp__join *s = m->join;
    if (s->result == CDP_OK && !s->rq.number) {
        cdp__mesh_key(m, s->key_text, "claim", m->desc.group.rank);
        cdp__join_value(s, 0, NULL, 0);
        cdp__join_value(s, 1, "failed", 6);
        cdp__join_ask(m, m->store, CDP_STORE_COMPARE_SET, CDP__SETTLE_MS, cdp__join_marked);
        return CDP_OK;
    }
    s->result = CDP_ERR_STATE;
    return cdp__join_published(m);
}

/* This rank's start has failed: adds the rank to the error, and reports it to the other ranks. */
CDP__PRIVATE cdp_status cdp__join_failed(cdp__mesh *m) {
    cdp__join *s = m->join;
    const cdp_error own = s->error;
    cdp_error *e = &s->error;
    const bool store =
        own.status == CDP_ERR_STORE || own.status == CDP_ERR_STATE || own.status == CDP_ERR_TIMEOUT;
    cdp__text t = cdp__text_of(e->text, sizeof e->text);
    cdp__failure_record r;
    uint64_t said;
    if (own.origin >= 0) return cdp__join_end(m);
    e->rank = e->origin = (int32_t)m->desc.group.rank;
    cdp__text_add(&t, "rank %u/%u: ", m->desc.group.rank, m->desc.group.world_size);
    said = t.used;
    cdp__text_add(&t, "%s", own.text);
    if (store && e->peer < 0 && m->desc.group.rank != 0 && !m->desc.external_store
        && !s->blameless) {
        e->peer = 0;
        cdp__text_add(&t, "; rank 0 serves the store");
    }
    cdp__failure_plain(&r, e->status, e->origin, e->peer, e->text + said);
    r.sys_errno = e->sys_errno;
    m->cause_bytes = cdp__failure_encode(&r, m->cause);
    s->result = CDP_ERR_STATE;
    if (!m->store) return cdp__join_published(m);
    if (m->claimed) return cdp__join_publish(m);
    cdp__mesh_key(m, s->key_text, "done", 0);
    cdp__join_ask(m, m->store, CDP_STORE_CHECK, CDP__SETTLE_MS, cdp__join_belongs);
    return CDP_OK;
}

/* ---- >>tcp/rendezvous_missing: waits for all ranks, and says which are missing --------------- */

/* Knows: the keys of all ranks, wait records, the log. Promises: one rank of a host warns, and more
   and more rarely. */

/* What reports say: this rank waits for rank `absent` and maybe others. */
CDP__PRIVATE void cdp__mesh_waits_for(cdp__mesh *m) {
    cdp_error *why = &m->join->why;
    const unsigned long long ms = (unsigned long long)((cdp__mesh_now(m) - m->start_ns) / CDP__MS);
    const uint32_t r = (uint32_t)m->join->absent;
    if (m->foreign && m->join->absent >= 0)
        cdp__error(why, CDP_ERR_TIMEOUT, r,
            "after %llu ms still waiting for rank %s; rank %u is a process of PyTorch, which "
            "waits for the others with Gloo: ranks of cdp and of Gloo cannot be in one job",
            ms, m->join->names, r);
    else
        cdp__error(why, CDP_ERR_TIMEOUT, r,
            "after %llu ms still waiting for rank %s; start it, or look at why it ended", ms,
            m->join->names);
}

/* Checks whether the missing process has created a Gloo group of PyTorch in this store; then it
   waits for other processes of PyTorch there. PyTorch has used two names for that key. */
CDP__PRIVATE cdp_status cdp__join_gloo(cdp__mesh *m) {
    static const char *const names[] = {"default_pg/0//cpu//0/rank_%u", "default_pg/0/0/rank_%u"};
    cdp__join *s = m->join;
    m->foreign = s->gloo && s->result == CDP_OK && s->rq.number;
    if (!CDP__TEXTS || (s->gloo && (s->result != CDP_OK || m->foreign || s->gloo == 2))) {
        cdp__mesh_waits_for(m);
        return s->back(m);
    }
    cdp__format(s->key_text, sizeof s->key_text, names[s->gloo++], (uint32_t)s->absent);
    cdp__join_ask(m, m->store, CDP_STORE_CHECK, CDP__SETTLE_MS / 2, cdp__join_gloo);
    return CDP_OK;
}

/* Rank r is missing, and maybe others (s->names): `why` says so in the state `back`. */
CDP__PRIVATE cdp_status cdp__join_complain(cdp__mesh *m, uint32_t r, cdp__join_func *back) {
    m->join->absent = (int32_t)r;
    m->join->back = back;
    m->join->gloo = 0;
    return cdp__join_gloo(m);
}

CDP__PRIVATE cdp_status cdp__join_await(cdp__mesh *m);

CDP__PRIVATE cdp_status cdp__join_wait_written(cdp__mesh *m) {
    m->wait_recorded = m->join->result == CDP_OK || m->wait_recorded;
    return cdp__join_await(m);
}

/* Writes this rank's wait record into the store: the rank that it waits for while it starts (-1:
   none). Ranks that have started and wait for this one read it. */
CDP__PRIVATE void cdp__join_write_wait(cdp__mesh *m, int32_t named, cdp__join_func *next) {
    cdp__join *s = m->join;
    cdp__put_u32(s->own, (uint32_t)named);
    cdp__join_value(s, 0, s->own, 4);
    cdp__mesh_key(m, s->key_text, "wait", m->desc.group.rank);
    cdp__join_ask(m, m->store, CDP_STORE_SET, CDP__SETTLE_MS, next);
}

/* Time to wait before it is worth a word that ranks are missing. */
CDP__PRIVATE uint64_t cdp__join_pause_ns(const cdp__mesh *m) {
    return cdp__max(1, cdp__min(CDP__FAILURE_WAIT_MS, m->desc.init_timeout_ms / 4)) * CDP__MS;
}

/* The same, where other ranks may have started. They give up after timeout_ms: by then this rank
   has recorded for whom it waits, or has started, too, else they blame it. */
CDP__PRIVATE uint64_t cdp__join_unsaid_ns(const cdp__mesh *m) {
    const uint32_t ms = m->desc.group.timeout_ms;
    const uint64_t pause = cdp__join_pause_ns(m);
    return ms ? cdp__min(pause, cdp__failure_period_ns(ms)) : pause;
}

/* Logs `why`, which names the missing ranks: a warning after 2, 12, 32, 72 seconds and so on,
   unless another rank of this host says the same. */
CDP__PRIVATE void cdp__join_log_missed(cdp__mesh *m) {
    cdp__join *s = m->join;
    const bool due = s->looks && !(s->looks & (s->looks - 1)) && !s->quiet;
    (void)due; /* builds without log strings */
    cdp__log(&m->desc.group.logger, due || m->foreign ? CDP_LOG_WARN : CDP_LOG_INFO,
        m->desc.group.rank, "%s", s->why.text);
    s->pause_ns = s->looks++ ? 10000 * CDP__MS : cdp__join_pause_ns(m);
}

/* Goes on to wait for all ranks, after a report to ranks that wait for this one. */
CDP__PRIVATE cdp_status cdp__join_await_on(cdp__mesh *m) {
    cdp__join *s = m->join;
    /* while addresses are missing, no rank has started */
    if (s->named < 0 || s->with_values) return cdp__join_await(m);
    cdp__join_write_wait(m, s->named, cdp__join_wait_written);
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__join_counted(cdp__mesh *m) {
    m->join->counted = true;
    m->join->quiet = m->join->result == CDP_OK && m->join->rq.number > 1;
    return cdp__join_await_on(m);
}

/* Counts the ranks of this host that miss others: the first one warns. */
CDP__PRIVATE cdp_status cdp__join_count(cdp__mesh *m) {
    cdp__join *s = m->join;
    uint64_t host = cdp__hash(CDP__HASH_START, &m->place, sizeof m->place), used;
    if (m->mine_count) host = cdp__hash(host, m->mine[0].ip, sizeof m->mine[0].ip);
    cdp__mesh_key(m, s->key_text, "missed", UINT32_MAX);
    used = strlen(s->key_text);
    cdp__format(s->key_text + used, sizeof s->key_text - used, "/%llx", (unsigned long long)host);
    cdp__join_ask(m, m->store, CDP_STORE_ADD, CDP__SETTLE_MS, cdp__join_counted);
    return CDP_OK;
}

/* Reports missing ranks to the log, and to ranks that wait for this one. */
CDP__PRIVATE cdp_status cdp__join_missed(cdp__mesh *m) {
    cdp__join *s = m->join;
    if (cdp__mesh_now(m) >= s->deadline_ns) return cdp__error_record(&s->why);
    s->named = s->why.peer;
    /* the store has just not answered: every rank says so */
    if (s->absent < 0) s->quiet = false;
    cdp__join_log_missed(m);
    return !CDP__TEXTS || s->counted || s->absent < 0 ? cdp__join_await_on(m) : cdp__join_count(m);
}

/* All ranks have come. What is left takes a few messages: they may take half of the time that was
   kept for finding out which ranks are missing. */
CDP__PRIVATE void cdp__join_complete(cdp__mesh *m) {
    cdp__join *s = m->join;
    if (!s->complete) s->deadline_ns += (m->init_deadline_ns - s->deadline_ns) / 2;
    s->complete = true;
}

/* The store did not answer the question who is missing. */
CDP__PRIVATE cdp_status cdp__join_store_silent(cdp__mesh *m) {
    const cdp_addr a = cdp__tcp_store_peer_addr(m->store);
    char at[80];
    cdp__error(&m->join->why, CDP_ERR_TIMEOUT, m->desc.external_store ? -1 : 0,
        m->desc.external_store
            ? "the store at %s does not answer any more, but has not closed the connection: its "
              "server has become unreachable, or is stopped"
            : "the store at %s does not answer any more, but has not closed the connection: rank "
              "0, which serves it, has become unreachable, or is stopped",
        cdp__addr_text(&a, at, sizeof at));
    return cdp__join_missed(m);
}

CDP__PRIVATE cdp_status cdp__join_missing_found(cdp__mesh *m) {
    cdp__join *s = m->join;
    if (s->found > 8 && CDP__TEXTS) cdp__text_add(&s->list, " and %u more", s->found - 8);
    if (s->found) return cdp__join_complain(m, (uint32_t)s->absent, cdp__join_missed);
    if (s->rank == m->desc.group.world_size) {
        /* the last one has come since the wait for it ended */
        s->blameless = true;
        if (cdp__mesh_now(m) >= m->init_deadline_ns)
            return cdp__fail(CDP_ERR_TIMEOUT,
                "all ranks have come, but after init_timeout_ms, %u ms", m->desc.init_timeout_ms);
        cdp__join_complete(m);
        return cdp__join_await(m);
    }
    /* there was no time to find out which rank it is */
    s->blameless = true;
    cdp__text_add(&s->list, "%u to %u (at least one of them)", s->rank, s->end - 1);
    cdp__mesh_waits_for(m);
    return cdp__join_missed(m);
}

/* The store says whether ranks s->rank to s->middle - 1 have all come. */
CDP__PRIVATE void cdp__join_narrow(cdp__mesh *m) {
    cdp__join *s = m->join;
    if (s->rq.number) {
        s->rank = s->middle;
    } else {
        s->end = s->middle;
        s->narrow = true;
    }
    if (!s->narrow || s->end - s->rank > 1) return;
    if (s->absent < 0) s->absent = (int32_t)s->rank;
    if (s->found++ < 8 && CDP__TEXTS)
        cdp__text_add(&s->list, "%s%u", s->found > 1 ? ", " : "", s->rank);
    ++s->rank;
    s->end = m->desc.group.world_size;
    s->narrow = false;
}

/* Finds out which ranks have not set their key, as a text like "2, 5 and 7 more". Asks whether all
   have, then whether the first half has, and so on, because the store may be far away and the ranks
   many. If the store does not answer soon, rank 0 is missing, which serves it. */
CDP__PRIVATE CDP__COLD cdp_status cdp__join_missing(cdp__mesh *m) {
    cdp__join *s = m->join;
    uint64_t now;
    if (s->middle) { /* the answer has come */
        if (s->result == CDP_ERR_TIMEOUT && !s->found) return cdp__join_store_silent(m);
        if (s->result != CDP_OK)
            return s->found ? cdp__join_missing_found(m) : cdp__join_outcome(s);
        cdp__join_narrow(m);
    }
    now = cdp__mesh_now(m);
    if (s->rank == m->desc.group.world_size
        || now >= (s->narrow && !s->found ? s->last_ns : s->give_up_ns))
        return cdp__join_missing_found(m);
    s->middle = s->narrow ? s->rank + (s->end - s->rank) / 2 : s->end;
    s->next = cdp__join_missing;
    cdp__join_send(
        m, m->store, CDP_STORE_CHECK, s->keys + s->rank, s->middle - s->rank, CDP__SETTLE_MS / 2);
    return CDP_OK;
}

/* The wait for all ranks has ended: with success, an error, or a pause to report missing ranks. */
CDP__PRIVATE cdp_status cdp__join_awaited(cdp__mesh *m) {
    cdp__join *s = m->join;
    const cdp__text none = cdp__text_of(s->names, sizeof s->names);
    const uint64_t now = cdp__mesh_now(m), left = cdp__max(m->init_deadline_ns, now) - now;
    /* a process that was stopped until after the deadline still gets this time to ask */
    const uint64_t least = cdp__min(CDP__SETTLE_MS, m->desc.init_timeout_ms / 20) * CDP__MS;
    if (s->result == CDP_OK && s->with_values) {
        m->addrs = s->rq;
        s->asked = NULL;
    }
    if (s->result != CDP_ERR_TIMEOUT) return cdp__join_outcome(s);
    s->names[0] = 0;
    s->list = none;
    s->absent = -1;
    s->rank = s->middle = s->found = 0;
    s->narrow = false;
    s->end = m->desc.group.world_size;
    s->give_up_ns = now + cdp__min(CDP__SETTLE_MS * CDP__MS, cdp__max(left / 4, least));
    s->last_ns = now + cdp__min(2000 * CDP__MS, cdp__max(left / 2, least));
    return cdp__join_missing(m);
}

/* Waits for the keys of all ranks. The wait is interrupted from time to time to report missing
   ranks. */
CDP__PRIVATE cdp_status cdp__join_await(cdp__mesh *m) {
    cdp__join *s = m->join;
    const uint64_t left = s->deadline_ns - cdp__min(cdp__mesh_now(m), s->deadline_ns);
    s->blameless = false;
    s->next = cdp__join_awaited;
    cdp__join_send(m, m->store, s->with_values ? CDP_STORE_MULTI_GET : CDP_STORE_WAIT, s->keys,
        m->desc.group.world_size,
        (uint32_t)cdp__max(1, (cdp__min(left, s->pause_ns) + CDP__MS - 1) / CDP__MS));
    return CDP_OK;
}

/* Waits until every rank has set its key "<what>/<rank>"; with_values: also stores the values in
   m->addrs. Then the step is complete. */
CDP__PRIVATE CDP__COLD cdp_status cdp__join_await_all(
    cdp__mesh *m, const char *what, bool with_values) {
    cdp__join *s = m->join;
    const uint32_t n = m->desc.group.world_size;
    uint32_t r;
    if (!s->texts) s->texts = (char(*)[96])cdp__alloc(m->os, n * (uint64_t)sizeof *s->texts);
    if (!s->keys) s->keys = (cdp_bytes *)cdp__alloc(m->os, n * sizeof *s->keys);
    if (!s->texts || !s->keys) return cdp__fail_nomem("the list of ranks", n * sizeof *s->keys);
    for (r = 0; r < n; ++r) {
        cdp__mesh_key(m, s->texts[r], what, r);
        s->keys[r].data = s->texts[r];
        s->keys[r].bytes = strlen(s->texts[r]);
    }
    s->with_values = with_values;
    s->looks = 0;
    s->pause_ns = cdp__join_unsaid_ns(m);
    return cdp__join_await(m);
}

/* ---- >>tcp/rendezvous_again: starting again at the same address ------------------------------ */

/* Knows: the keys of a start that this process has found in the store. Promises: a process waits
   for the next start, until its own deadline, if the one it found was over before. */

#define CDP__TWICE_MS 200u /* how long a store may need to notice that a process has ended */

/* ---- looking at a start */

CDP__PRIVATE void cdp__join_look_at(cdp__mesh *m, uint32_t i);
CDP__PRIVATE cdp_status cdp__join_store_failed(cdp__mesh *m, const cdp_error *why);

CDP__PRIVATE cdp_status cdp__join_looked(cdp__mesh *m) {
    cdp__join *s = m->join;
    if (s->result != CDP_OK) return cdp__join_store_failed(m, &s->why);
    cdp__start_record_key(&s->start, s->look, s->rq.number != 0);
    if (s->look + 1 == CDP__START_KEYS) return s->back(m);
    cdp__join_look_at(m, s->look + 1);
    return CDP_OK;
}

CDP__PRIVATE void cdp__join_look_at(cdp__mesh *m, uint32_t i) {
    cdp__join *s = m->join;
    const uint32_t of[] = {0, m->desc.group.rank, UINT32_MAX};
    s->look = i;
    cdp__mesh_key(m, s->key_text, cdp__start_keys[i].name, of[cdp__start_keys[i].whose]);
    cdp__join_ask(m, m->store, CDP_STORE_CHECK, 0, cdp__join_looked);
}

/* Reads s->start from the keys of the start m->round; then the state `back`. */
CDP__PRIVATE cdp_status cdp__join_look(cdp__mesh *m, cdp__join_func *back) {
    m->join->back = back;
    cdp__join_look_at(m, 0);
    return CDP_OK;
}

/* The store has failed. Rank 0 may have served it for the start before, and has left: then there
   will be another one. */
CDP__PRIVATE cdp_status cdp__join_store_failed(cdp__mesh *m, const cdp_error *why) {
    const bool served = m->desc.group.rank != 0 && !m->desc.external_store && !m->claimed;
    return served && (why->status == CDP_ERR_STORE || why->status == CDP_ERR_STATE)
        ? cdp__join_again(m, why)
        : cdp__error_record(why);
}

/* The start in the store was over when this process came: waits for the next one. */
CDP__PRIVATE CDP__COLD cdp_status cdp__join_next(cdp__mesh *m) {
    const cdp_addr a = cdp__tcp_store_peer_addr(m->store);
    const uint32_t r = m->desc.group.rank;
    cdp_error why;
    char at[80];
    if (m->join->start.begun)
        cdp__error(&why, CDP_ERR_TIMEOUT, 0,
            "after %llu ms still waiting for rank 0 to start again: in the store at %s is a job "
            "that has begun with another rank %u; end it, or give every process its own RANK",
            (unsigned long long)((cdp__mesh_now(m) - m->start_ns) / CDP__MS),
            cdp__addr_text(&a, at, sizeof at), r);
    else
        cdp__error(&why, CDP_ERR_TIMEOUT, 0,
            "after %llu ms still waiting for rank 0 to start again: in the store at %s is only a "
            "start that has failed",
            (unsigned long long)((cdp__mesh_now(m) - m->start_ns) / CDP__MS),
            cdp__addr_text(&a, at, sizeof at));
    return cdp__join_again(m, &why);
}

/* ---- a rank that a process may have already */

/* The config that rank 0 publishes. In an external store, its addresses follow as a text. */
#define CDP__CONFIG_BYTES (8u + 8u + 8u + CDP__JOB_BYTES + 4u)

/* The text in a value of the store, from byte `head` on. Returns `out`. */
CDP__PRIVATE const char *cdp__mesh_text(
    const void *value, uint64_t bytes, uint64_t head, char *out, uint64_t size) {
    head = cdp__min(head, bytes);
    cdp__text_foreign(out, size, (const uint8_t *)value + head, bytes - head);
    return out;
}

/* Another live process owns the key: compares its value with `mine` for the error. */
CDP__PRIVATE cdp_status cdp__mesh_claimed_twice(
    cdp__mesh *m, const void *value, uint64_t bytes, uint64_t head, const uint8_t *mine) {
    char text[160];
    return cdp__fail_peer(CDP_ERR_MISMATCH, m->desc.group.rank, 0,
        "two processes claim rank %u: one listens at %s, the other at %s; give every process its "
        "own RANK",
        m->desc.group.rank, cdp__mesh_text(value, bytes, head, text, sizeof text),
        (const char *)mine + head);
}

CDP__PRIVATE cdp_status cdp__join_taken(cdp__mesh *m);
CDP__PRIVATE cdp_status cdp__join_take(cdp__mesh *m);

/* Where rank 0 has taken over a start that had not begun, others may wait in that one. */
CDP__PRIVATE cdp_status cdp__join_notified_others(cdp__mesh *m) {
    cdp__mesh_round(m, m->job);
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__join_notify_others(cdp__mesh *m) {
    cdp__join *s = m->join;
    cdp__mesh_round(m, (const uint8_t *)s->theirs + 24);
    cdp__mesh_key(m, s->key_text, "fail", UINT32_MAX);
    cdp__join_value(s, 0, NULL, 0);
    cdp__join_value(s, 1, CDP__MOVED_ON, sizeof CDP__MOVED_ON - 1);
    cdp__join_ask(m, m->store, CDP_STORE_COMPARE_SET, 0, cdp__join_notified_others);
    return CDP_OK;
}

/* The key that this rank takes: its claim, or the config of rank 0. */
CDP__PRIVATE void cdp__join_own_key(cdp__mesh *m) {
    cdp__join *s = m->join;
    cdp__mesh_round(m, m->job);
    if (s->config)
        cdp__mesh_common_key(m, s->key_text, "config");
    else
        cdp__mesh_key(m, s->key_text, "claim", m->desc.group.rank);
}

/* Replaces the value of another process, unless it has changed meanwhile. */
CDP__PRIVATE cdp_status cdp__join_replace(cdp__mesh *m) {
    cdp__join *s = m->join;
    cdp__join_value(s, 0, s->theirs, s->their_bytes);
    cdp__join_ask(m, m->store, CDP_STORE_COMPARE_SET, 0, cdp__join_taken);
    return CDP_OK;
}

/* It is known what became of the start in which another process has this rank. */
CDP__PRIVATE CDP__COLD cdp_status cdp__join_judged(cdp__mesh *m) {
    cdp__join *s = m->join;
    const uint64_t now = cdp__mesh_now(m);
    cdp__join_own_key(m);
    s->start.claimed = true; /* its config or its claim is there */
    s->start.lives = s->reached != 0;
    switch (cdp__start_judge(&s->start)) {
    case CDP__START_NEXT: return s->config ? cdp__join_replace(m) : cdp__join_next(m);
    case CDP__START_TWICE: break;
    default: return cdp__join_replace(m);
    }
    if (!s->claimed_until_ns) s->claimed_until_ns = now + CDP__TWICE_MS * CDP__MS;
    if (m->desc.external_store || now >= s->claimed_until_ns)
        return cdp__mesh_claimed_twice(m, s->theirs, s->their_bytes, s->own_head, s->own);
    /* it may have ended a moment ago: the store that rank 0 serves will say so */
    cdp__join_pause(s, now + 20 * CDP__MS, cdp__join_take);
    return CDP_OK;
}

/* Finds out whether the process that has this rank may live. */
CDP__PRIVATE cdp_status cdp__join_find(cdp__mesh *m) {
    cdp__join *s = m->join;
    const uint64_t head = cdp__min(s->own_head, s->their_bytes);
    const uint8_t *at = (const uint8_t *)s->theirs + head;
    const uint64_t bytes = s->their_bytes - head;
    s->reached = 1;
    if (s->start.begun || s->start.failed) return cdp__join_judged(m);
    /* this process has its port now */
    if (bytes == s->own_bytes - s->own_head
        && memcmp(at, s->own + s->own_head, (size_t)bytes) == 0) {
        s->reached = 0;
        return cdp__join_judged(m);
    }
    cdp__join_reach(m, at, bytes, cdp__join_judged);
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__join_taken(cdp__mesh *m) {
    cdp__join *s = m->join;
    cdp_bytes *v = s->rq.results;
    if (s->result != CDP_OK) return cdp__join_store_failed(m, &s->why);
    if (v->bytes == s->own_bytes && memcmp(v->data, s->own, (size_t)v->bytes) == 0)
        return s->config && s->their_bytes >= CDP__CONFIG_BYTES && !s->start.begun
                && !s->start.failed
            ? cdp__join_notify_others(m)
            : CDP_OK;
    cdp__free(m->os, s->theirs);
    memcpy(&s->theirs, &v->data, sizeof s->theirs);
    s->their_bytes = v->bytes;
    v->data = NULL;
    memset(&s->start, 0, sizeof s->start);
    if (s->config && s->their_bytes < CDP__CONFIG_BYTES) return cdp__join_find(m);
    if (s->config) cdp__mesh_round(m, (const uint8_t *)s->theirs + 24);
    return cdp__join_look(m, cdp__join_find);
}

/* Sets the key s->key_text, which one process of this rank may own, to s->own. The value ends
   with the addresses of that process, from byte own_head on. The value of a process that has
   ended is replaced. */
CDP__PRIVATE cdp_status cdp__join_take(cdp__mesh *m) {
    cdp__join *s = m->join;
    cdp__join_value(s, 0, NULL, 0);
    cdp__join_value(s, 1, s->own, s->own_bytes);
    cdp__join_ask(m, m->store, CDP_STORE_COMPARE_SET, 0, cdp__join_taken);
    return CDP_OK;
}

/* ---- >>tcp/rendezvous_steps: listen, compare, claim, exchange -------------------------------- */

/* Knows: the deadline of cdp_init(), the store, results of earlier steps. Promises: a step that
   fails reports which rank is missing or differs. */

/* True if the desc restricts the job to one host. (A host often resolves its own name to
   127.0.1.1, so a name proves nothing.) */
CDP__PRIVATE bool cdp__mesh_local_only(const cdp__mesh *m) {
    cdp_addr a;
    return cdp__addr_parse(m->desc.master_addr, &a) ? cdp__addr_loopback(&a)
                                                    : strcmp(m->desc.master_addr, "localhost") == 0;
}

/* Binds the listener to one of the ports that this rank may use. Returns the descriptor, or a
   negative errno; `at` is the last address tried. */
CDP__PRIVATE int32_t cdp__mesh_bind(cdp__mesh *m, cdp_addr *at) {
    const uint32_t first = m->desc.first_port,
                   last = m->desc.last_port > first ? m->desc.last_port : first;
    uint32_t port;
    int32_t fd = -EADDRINUSE;
    for (port = first; port <= last && fd == -EADDRINUSE; ++port) {
        at->port = (uint16_t)port;
        fd = m->os->net.listen_at(m->os->user, at, &m->at);
    }
    return fd;
}

/* An address of this host at which others may reach this rank: that from which it reaches the
   store. */
CDP__PRIVATE bool cdp__mesh_local_addr(const cdp__mesh *m, cdp_addr *out) {
    if (cdp__mesh_alone(m)) return cdp__mesh_home(m, out);
    return cdp__tcp_store_local_addr(m->store, out);
}

/* Opens this rank's listener. Rank 0 shares the port of the store. Other ranks listen at the
   address from which they reach rank 0 if the job is on one machine or no other address is known,
   else at all addresses: each peer finds out which of them it can reach. */
CDP__PRIVATE CDP__COLD cdp_status cdp__mesh_listen(cdp__mesh *m) {
    cdp_error why;
    cdp_addr at;
    int32_t fd;
    if (m->listener.func) return CDP_OK; /* this rank waits for the next start */
    if (cdp__mesh_serves(m)) {
        cdp__store_server_share(m->server, cdp__mesh_incoming, m);
        return CDP_OK;
    }
    if (!cdp__mesh_local_addr(m, &at)) {
        cdp__error(&why, CDP_ERR_STORE, -1, "the connection to the store broke at once");
        return cdp__join_store_failed(m, &why);
    }
    if (m->desc.listen_addr)
        (void)cdp__addr_parse(m->desc.listen_addr, &at);
    else if (m->mine_count && (m->keyed || m->desc.trust_network) && !cdp__mesh_local_only(m))
        (void)cdp__addr_parse("::", &at);
    fd = cdp__mesh_bind(m, &at);
    /* this host has no IPv6 */
    if (fd < 0 && fd != -EADDRINUSE && cdp__addr_any(&at) && !m->desc.listen_addr) {
        (void)cdp__addr_parse("0.0.0.0", &at);
        fd = cdp__mesh_bind(m, &at);
    }
    if (fd < 0) return cdp__cannot_listen(m->os, &at, -fd);
    cdp__loop_add(&m->loop, &m->listener, fd, cdp__mesh_accept, m);
    return CDP_OK;
}

/* The config of rank 0 has the address of its listener. The others need its config first: only who
   knows the name of the start can tell others that it has no port. */
CDP__PRIVATE cdp_status cdp__mesh_listen_first(cdp__mesh *m) {
    return m->desc.group.rank == 0 ? cdp__mesh_listen(m) : CDP_OK;
}

CDP__PRIVATE uint32_t cdp__mesh_own_addrs(cdp__mesh *m, cdp_addr out[CDP__ADDRS]);

/* Ends a step that sets a key: whether the request succeeded is all that counts. */
CDP__PRIVATE cdp_status cdp__join_set(cdp__mesh *m) {
    return cdp__join_outcome(m->join);
}

/* Encodes the settings of this rank, which must equal those of rank 0. */
CDP__PRIVATE void cdp__mesh_own_config(const cdp__mesh *m, uint8_t out[CDP__CONFIG_BYTES]) {
    cdp_group_desc g = m->desc.group;
    cdp__group_desc_defaults(&g);
    memset(out, 0, CDP__CONFIG_BYTES);
    cdp__put_u32(out, CDP_WIRE_VERSION | cdp__byte_order() << 24);
    cdp__put_u32(out + 4, m->desc.group.world_size);
    cdp__put_u64(out + 8, g.small_bytes);
    cdp__put_u64(out + 16, g.piece_bytes);
    memcpy(out + 24, m->job, CDP__JOB_BYTES);
    cdp__put_u32(
        out + 40, m->desc.connections | (uint32_t)m->keyed << 16 | (uint32_t)m->desc.mac << 24);
}

/* Rank 0 publishes the settings of the job. */
CDP__PRIVATE cdp_status cdp__mesh_publish_config(cdp__mesh *m) {
    cdp__join *s = m->join;
    char *at = (char *)s->own + CDP__CONFIG_BYTES;
    cdp_addr own[CDP__ADDRS];
    cdp__mesh_own_config(m, s->own);
    cdp__mesh_round(m, m->job);
    s->config = true;
    s->their_bytes = 0;
    s->claimed_until_ns = 0;
    s->own_head = s->own_bytes = CDP__CONFIG_BYTES;
    if (!m->desc.external_store) {
        cdp__join_value(s, 0, s->own, s->own_bytes);
        cdp__join_ask(m, m->store, CDP_STORE_SET, 0, cdp__join_set);
        return CDP_OK;
    }
    cdp__addrs_text(own, cdp__mesh_own_addrs(m, own), at, sizeof s->own - CDP__CONFIG_BYTES);
    s->own_bytes += strlen(at);
    return cdp__join_take(m);
}

/* Rank 0 has another job key, or another setting of `mac`. */
CDP__PRIVATE void cdp__mesh_guarded_otherwise(const cdp__mesh *m, bool key, cdp_error *why) {
    if (key)
        cdp__error(why, CDP_ERR_MISMATCH, 0,
            "rank 0 has %s job key, but this rank has %s: set CDP_JOB_KEY, or job_key, to the same "
            "secret for all ranks, or for none",
            m->keyed ? "no" : "a", m->keyed ? "one" : "none");
    else
        cdp__error(why, CDP_ERR_MISMATCH, 0,
            "mac is %s here but %s on rank 0: set it, or CDP_MAC, alike on all ranks",
            m->desc.mac ? "on" : "off", m->desc.mac ? "off" : "on");
}

/* Compares the settings of rank 0 with those of this rank. why->status is OK if they are equal. */
CDP__PRIVATE void cdp__mesh_compare(
    cdp__mesh *m, const uint8_t *value, uint64_t bytes, cdp_error *why) {
    uint8_t mine[CDP__CONFIG_BYTES];
    cdp__mesh_own_config(m, mine);
    cdp__error_clear(why, CDP_OK);
    if (bytes < sizeof mine || (cdp__get_u32(value) & 0xffffff) != CDP_WIRE_VERSION)
        cdp__error(why, CDP_ERR_MISMATCH, 0,
            "rank 0 runs another version of cdp: this one speaks version %u; build all ranks from "
            "the same headers",
            (unsigned)CDP_WIRE_VERSION);
    else if (value[3] != cdp__byte_order())
        cdp__error(why, CDP_ERR_MISMATCH, 0,
            "byte order: rank 0 is %s-endian and this rank %s-endian; they must be the same",
            value[3] == CDP__HEAD_LITTLE_ENDIAN ? "little" : "big",
            cdp__byte_order() == CDP__HEAD_LITTLE_ENDIAN ? "little" : "big");
    else if (cdp__get_u32(value + 4) != m->desc.group.world_size)
        cdp__error(why, CDP_ERR_MISMATCH, 0,
            "WORLD_SIZE is %u here but %u on rank 0; make them equal", m->desc.group.world_size,
            cdp__get_u32(value + 4));
    else if (memcmp(value + 8, mine + 8, 16) != 0)
        cdp__error(why, CDP_ERR_MISMATCH, 0,
            "small_bytes or piece_bytes differ from those of rank 0 (%llu, %llu); make them equal",
            (unsigned long long)cdp__get_u64(value + 8),
            (unsigned long long)cdp__get_u64(value + 16));
    else if (memcmp(value + 42, mine + 42, 2) != 0)
        cdp__mesh_guarded_otherwise(m, value[42] != mine[42], why);
    else if (memcmp(value + 40, mine + 40, 4) != 0)
        cdp__error(why, CDP_ERR_MISMATCH, 0,
            "connections is %u here but %u on rank 0; make them equal", m->desc.connections,
            cdp__get_u32(value + 40) & 0xffff);
    else if (m->job_known && memcmp(m->job, value + 24, CDP__JOB_BYTES) != 0)
        cdp__error(why, CDP_ERR_MISMATCH, 0,
            "the published address of rank 0 leads to another job: it is that of an earlier run; "
            "remove the meeting file or key");
}

CDP__PRIVATE cdp_status cdp__join_config_got(cdp__mesh *m);

CDP__PRIVATE cdp_status cdp__join_config_ask(cdp__mesh *m) {
    cdp__join *s = m->join;
    cdp__mesh_common_key(m, s->key_text, "config");
    cdp__join_ask(m, m->store, CDP_STORE_GET,
        (uint32_t)cdp__min(s->pause_ns / CDP__MS, 1 + (uint64_t)cdp__join_ms_left(m)),
        cdp__join_config_got);
    return CDP_OK;
}

/* Rank 0 is missing, as `why` says: gives up, or logs it and waits on. */
CDP__PRIVATE cdp_status cdp__join_config_missed(cdp__mesh *m) {
    cdp__join *s = m->join;
    const bool late = cdp__mesh_now(m) >= s->deadline_ns;
    if (late && m->foreign) return cdp__error_record(&s->why);
    if (late)
        return cdp__fail_peer(
            CDP_ERR_TIMEOUT, 0, 0, "rank 0 did not come within %u ms", m->desc.init_timeout_ms);
    cdp__join_log_missed(m);
    return cdp__join_config_ask(m);
}

/* Waits for the config. From time to time this logs that rank 0 is missing. */
CDP__PRIVATE cdp_status cdp__join_config_get(cdp__mesh *m) {
    m->join->looks = 0;
    m->join->pause_ns = cdp__join_pause_ns(m);
    return cdp__join_config_ask(m);
}

/* The store only contained the config of an earlier start; the address in it is in s->own. */
CDP__PRIVATE cdp_status cdp__join_config_stale(cdp__mesh *m) {
    return cdp__fail_peer(CDP_ERR_TIMEOUT, 0, 0,
        "rank 0 did not come within %u ms: the store still names that of an earlier start, "
        "and no process listens at its address %s any more",
        m->desc.init_timeout_ms, (const char *)m->join->own);
}

/* The settings differ from those in the config, and what is said of that start is in s->start. */
CDP__PRIVATE CDP__COLD cdp_status cdp__join_differs(cdp__mesh *m) {
    cdp__join *s = m->join;
    s->start.differs = true;
    if (cdp__start_judge(&s->start) == CDP__START_NEXT) return cdp__join_next(m);
    return cdp__error_record(&s->error);
}

/* Compares the config. In an address that was published the job has its name: another one was
   read too early, or too late. */
CDP__PRIVATE CDP__COLD cdp_status cdp__join_config_compare(
    cdp__mesh *m, const uint8_t *value, uint64_t bytes) {
    cdp__join *s = m->join;
    cdp_error why;
    cdp__mesh_compare(m, value, bytes, &why);
    if (bytes < CDP__CONFIG_BYTES) return cdp__error_record(&why);
    if (m->job_known && memcmp(m->job, value + 24, CDP__JOB_BYTES) != 0)
        return m->meeting ? cdp__join_again(m, &why) : cdp__error_record(&why);
    memcpy(m->job, value + 24, CDP__JOB_BYTES);
    cdp__mesh_round(m, m->job);
    if (why.status == CDP_OK) return CDP_OK;
    s->error = why;
    memset(&s->start, 0, sizeof s->start);
    return cdp__join_look(m, cdp__join_differs);
}

/* Compares the config. One in an external store may be of an earlier start whose rank 0 has
   ended; then it is read again until the new rank 0 has replaced it. */
CDP__PRIVATE CDP__COLD cdp_status cdp__join_config_reached(cdp__mesh *m) {
    cdp__join *s = m->join;
    const cdp_bytes *v = s->rq.results;
    const uint8_t *value = (const uint8_t *)v->data;
    const uint64_t now = cdp__mesh_now(m);
    if (s->reached) return cdp__join_config_compare(m, value, v->bytes);
    cdp__mesh_text(value, v->bytes, CDP__CONFIG_BYTES, (char *)s->own, 128);
    s->own_bytes = strlen((const char *)s->own);
    if (now >= s->deadline_ns) return cdp__join_config_stale(m);
    cdp__join_pause(
        s, cdp__min(now + s->patience_ms * CDP__MS, s->deadline_ns), cdp__join_config_get);
    s->patience_ms = cdp__min(2 * s->patience_ms, 500);
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__join_config_got(cdp__mesh *m) {
    cdp__join *s = m->join;
    const cdp_bytes *v = s->rq.results;
    if (s->result == CDP_ERR_TIMEOUT) {
        if (s->own_bytes && cdp__mesh_now(m) >= s->deadline_ns) return cdp__join_config_stale(m);
        cdp__format(s->names, sizeof s->names, "0");
        return cdp__join_complain(m, 0, cdp__join_config_missed);
    }
    if (s->result != CDP_OK) return cdp__join_store_failed(m, &s->why);
    s->reached = 1;
    if (!m->desc.external_store || v->bytes <= CDP__CONFIG_BYTES)
        return cdp__join_config_reached(m);
    cdp__join_reach(m, (const uint8_t *)v->data + CDP__CONFIG_BYTES, v->bytes - CDP__CONFIG_BYTES,
        cdp__join_config_reached);
    return CDP_OK;
}

/* Rank 0 publishes the config; the other ranks compare it. */
CDP__PRIVATE cdp_status cdp__mesh_config(cdp__mesh *m) {
    cdp__join *s = m->join;
    s->patience_ms = 20;
    cdp__mesh_common_key(m, s->key_text, "config");
    return m->desc.group.rank == 0 ? cdp__mesh_publish_config(m) : cdp__join_config_get(m);
}

/* Makes sure that no other process has this rank. */
CDP__PRIVATE cdp_status cdp__mesh_claim(cdp__mesh *m) {
    cdp__join *s = m->join;
    char *mine = (char *)s->own;
    uint64_t random = 0;
    cdp_addr own[CDP__ADDRS];
    cdp__text t = cdp__text_of(mine, sizeof s->own);
    cdp_status st = m->os->random(m->os->user, &random, sizeof random);
    if (st != CDP_OK) return st;
    cdp__mesh_key(m, s->key_text, "claim", m->desc.group.rank);
    s->config = false;
    s->claimed_until_ns = 0;
    cdp__text_add(&t, "%llx ", (unsigned long long)(random | 1ull << 63)); /* 16 digits */
    s->own_head = t.used;
    cdp__addrs_text(
        own, cdp__mesh_own_addrs(m, own), mine + s->own_head, sizeof s->own - s->own_head);
    s->own_bytes = strlen(mine);
    return cdp__join_take(m);
}

/* The addresses under which other ranks may try this one: first the one from which it reaches
   the store. */
CDP__PRIVATE CDP__COLD uint32_t cdp__mesh_own_addrs(cdp__mesh *m, cdp_addr out[CDP__ADDRS]) {
    const bool all = cdp__addr_any(&m->at);
    uint32_t i, n = 0;
    out[0] = m->at;
    if (all && m->desc.interfaces && m->os->net.addresses) {
        const uint32_t chosen =
            m->os->net.addresses(m->os->user, m->desc.interfaces, out, CDP__ADDRS);
        for (i = 0; i < chosen; ++i)
            if (m->at.family == 6 || out[i].family == 4) {
                out[n] = out[i];
                out[n++].port = m->at.port;
            }
        return n;
    }
    if (!all || cdp__mesh_local_addr(m, &out[0])) n = !all || !cdp__addr_loopback(&out[0]);
    for (i = 0; all && i < m->mine_count && n < CDP__ADDRS; ++i) {
        if ((n && memcmp(m->mine[i].ip, out[0].ip, 16) == 0) || cdp__addr_loopback(&m->mine[i]))
            continue;
        if (m->at.family == 6 || m->mine[i].family == 4) out[n++] = m->mine[i];
    }
    n = n ? n : 1; /* the host has no address but loopback */
    for (i = 0; i < n; ++i)
        out[i].port = m->at.port;
    return n;
}

/* Decides whether this rank may connect to rank `r`, before any link is opened, so that the error
   is reported once. */
CDP__PRIVATE cdp_status cdp__mesh_admissible(const cdp__mesh *m, uint32_t r, const cdp_addr *theirs,
    uint32_t n, const cdp_addr *own, uint32_t count) {
    uint32_t i, k;
    char at[80];
    for (i = 0; i < n && !m->keyed && !m->desc.trust_network; ++i) {
        for (k = 0; k < count && !cdp__addr_is_here(&theirs[i], &own[k]); ++k) {
        }
        if (k < count) continue;
        for (k = 0; k < m->mine_count && !cdp__addr_is_here(&theirs[i], &m->mine[k]); ++k) {
        }
        if (k < m->mine_count) continue;
        return cdp__fail_peer(CDP_ERR_INVALID, r, 0,
            "rank %u is on another machine (%s) and this job has no key: set CDP_JOB_KEY, or "
            "job_key, to the same secret for all ranks (or trust_network, "
            "if every program in that network may read and change everything)",
            r, cdp__addr_text(&theirs[i], at, sizeof at));
    }
    return CDP_OK;
}

/* A number for rank r's host: that of an earlier rank with the same host id, or a new one. Id 0:
   the rank shares its host with no other rank. */
CDP__PRIVATE uint32_t cdp__mesh_host_before(const cdp__mesh *m, uint32_t r, uint32_t *hosts) {
    const uint64_t id = cdp__get_u64((const uint8_t *)m->addrs.results[r].data);
    uint32_t q;
    for (q = 0; id && q < r; ++q)
        if (cdp__get_u64((const uint8_t *)m->addrs.results[q].data) == id) return m->hosts[q];
    return (*hosts)++;
}

/* Makes a record of this rank's host id and addresses, s->values[0], and publishes it, if it asks a
   store. */
CDP__PRIVATE cdp_status cdp__mesh_exchange(cdp__mesh *m) {
    cdp__join *s = m->join;
    char *text = (char *)s->own;
    cdp_addr own[CDP__ADDRS];
    const uint32_t count = cdp__mesh_own_addrs(m, own);
    uint32_t number = 0;
    m->hosts = (uint32_t *)cdp__alloc_zero(m->os, m->desc.group.world_size * sizeof *m->hosts);
    if (!m->hosts)
        return cdp__fail_nomem(
            "the hosts of all ranks", m->desc.group.world_size * sizeof *m->hosts);
    if (!count)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_init: interfaces '%s': this machine has no address on any of these; name others, "
            "or none for all",
            m->desc.interfaces);
    cdp__mesh_key(m, s->key_text, "addr", m->desc.group.rank);
    cdp__put_u64((uint8_t *)text,
        cdp__mesh_shares(m) && m->os->shared.host_id ? m->os->shared.host_id(m->os->user) : 0);
    if (m->os->shared.process_place) m->place = m->os->shared.process_place(m->os->user, &number);
    cdp__put_u64((uint8_t *)text + 8, m->place);
    cdp__put_u32((uint8_t *)text + 16, number);
    cdp__addrs_text(own, count, text + CDP__PLACE_BYTES, sizeof s->own - CDP__PLACE_BYTES);
    cdp__join_value(s, 0, text, CDP__PLACE_BYTES + strlen(text + CDP__PLACE_BYTES));
    if (cdp__mesh_alone(m)) return CDP_OK;
    cdp__join_ask(m, m->store, CDP_STORE_SET, 0, cdp__join_set);
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__mesh_await_addrs(cdp__mesh *m) {
    cdp_store_request_free(m->store, &m->addrs);
    return cdp__join_await_all(m, "addr", true);
}

#define CDP__OWN_DESCRIPTORS 16u /* standard streams, listener, watch, wake-up, store, ... */
/* beside those of its connections: to see the end of a process; and to share memory with it */
#define CDP__WATCH_DESCRIPTORS 1u
#define CDP__MEMORY_DESCRIPTORS 3u

/* UINT64_MAX: not known. */
CDP__PRIVATE uint64_t cdp__mesh_descriptor_limit(const cdp__mesh *m) {
    const uint64_t limit =
        m->os->net.descriptor_limit ? m->os->net.descriptor_limit(m->os->user) : 0;
    return limit ? limit : UINT64_MAX;
}

/* How many descriptors this rank needs with links to `links` ranks, over memory to `shared` of
   them. On rank 0 every rank has two connections to the store. */
CDP__PRIVATE uint64_t cdp__mesh_descriptors(const cdp__mesh *m, uint64_t links, uint64_t shared) {
    const bool serves = m->desc.group.rank == 0 && !m->desc.external_store;
    return CDP__OWN_DESCRIPTORS + (serves ? 2ull * m->desc.group.world_size : 0)
        + links * m->desc.connections + shared * CDP__MEMORY_DESCRIPTORS;
}

/* It is known now which ranks are on this machine. Where memory shared with them would take more
   descriptors than this process may have, this rank uses TCP alone: better slow than out of
   descriptors. */
CDP__PRIVATE void cdp__mesh_count_descriptors(cdp__mesh *m) {
    const uint64_t limit = cdp__mesh_descriptor_limit(m);
    const uint32_t n = m->desc.group.world_size;
    const uint64_t least = cdp__mesh_descriptors(m, n, 0);
    uint64_t all = least;
#ifndef CDP_NO_SHARED_MEMORY
    const uint32_t each = cdp__mesh_shares(m) ? CDP__MEMORY_DESCRIPTORS : CDP__WATCH_DESCRIPTORS;
    uint32_t r;
    for (r = 0; r < n; ++r) {
        const uint8_t *at = (const uint8_t *)m->addrs.results[r].data;
        if (r != m->desc.group.rank && m->place && cdp__get_u64(at + 8) == m->place) all += each;
    }
#endif
    if (limit >= all || m->frugal) return; /* the addresses may be read twice */
    m->frugal = m->desc.no_shared_memory = true;
    cdp__log(&m->desc.group.logger, CDP_LOG_WARN, m->desc.group.rank,
        "with a link to every other rank %llu descriptors are needed (%llu without shared memory), "
        "but this process may have %llu, so it shares no memory: raise the limit (ulimit -n)",
        (unsigned long long)all, (unsigned long long)least, (unsigned long long)limit);
}

CDP__PRIVATE void cdp__mesh_need_all(cdp__mesh *m) {
    uint32_t r, i;
    for (r = 0; r < m->desc.group.world_size; ++r)
        for (i = 0; i < m->desc.connections && r != m->desc.group.rank; ++i)
            cdp__link_need(cdp__bundle_at(&m->links[r], i));
}

/* The addresses of all ranks have arrived: checks them, and numbers the hosts. */
CDP__PRIVATE cdp_status cdp__mesh_read_addrs(cdp__mesh *m) {
    cdp_addr at[CDP__ADDRS], own[CDP__ADDRS];
    const uint32_t count = cdp__mesh_own_addrs(m, own);
    cdp_status st = CDP_OK;
    uint32_t r, n, hosts = 0;
    char text[160];
    for (r = 0; st == CDP_OK && r < m->desc.group.world_size; ++r) {
        const cdp_bytes *v = &m->addrs.results[r];
        n = v->bytes < CDP__PLACE_BYTES ? 0
                                        : cdp__addrs_parse((const char *)v->data + CDP__PLACE_BYTES,
                                            v->bytes - CDP__PLACE_BYTES, at, CDP__ADDRS);
        if (n)
            st = cdp__mesh_admissible(m, r, at, n, own, count);
        else
            st = cdp__fail_peer(CDP_ERR_MISMATCH, r, 0,
                "rank %u published addresses that cannot be read: '%s'", r,
                cdp__mesh_text(v->data, v->bytes, CDP__PLACE_BYTES, text, sizeof text));
        if (n && CDP__BY_HOST) m->hosts[r] = cdp__mesh_host_before(m, r, &hosts);
    }
    if (st == CDP_OK) cdp__mesh_count_descriptors(m);
    cdp__join_complete(m);
    if (m->desc.external_store || m->frugal) return st; /* links are opened when they are used */
    if (st == CDP_OK && m->desc.connect_all) cdp__mesh_need_all(m);
    return st;
}

CDP__PRIVATE cdp_status cdp__mesh_done(cdp__mesh *m) {
    cdp__mesh_key(m, m->join->key_text, "done", m->desc.group.rank);
    /* ADD, because a SET is not acknowledged */
    cdp__join_ask(m, m->store, CDP_STORE_ADD, 0, cdp__join_set);
    return CDP_OK;
}

/* Rank 0 serves the store, so it must not leave before all ranks have read it. An external store
   does not report that a rank has ended, so there every rank waits for all others and then reads
   the addresses again: another process may have taken over a rank meanwhile. */
CDP__PRIVATE cdp_status cdp__mesh_all_done(cdp__mesh *m) {
    if (!cdp__mesh_serves(m) && !m->desc.external_store) return CDP_OK;
    return cdp__join_await_all(m, "done", false);
}

CDP__PRIVATE cdp_status cdp__join_answered(cdp__mesh *m) {
    cdp__join *s = m->join;
    const uint64_t now = cdp__mesh_now(m);
    if (!cdp__store_server_sent(m->server) && now < s->give_up_ns)
        cdp__join_pause(s, cdp__min(s->give_up_ns, now + CDP__MS), cdp__join_answered);
    return CDP_OK;
}

/* A rank's key may be set before that rank has received the answer. If rank 0 left now, answers
   that are not sent yet would be lost. But a rank that has just been cut off does not hold rank 0
   up: others that have started would blame rank 0 for that. The server goes on to send. */
CDP__PRIVATE cdp_status cdp__mesh_all_answered(cdp__mesh *m) {
    const uint64_t now = cdp__mesh_now(m);
    if (!cdp__mesh_serves(m)) return CDP_OK;
    m->join->give_up_ns = cdp__min(m->join->deadline_ns, now + cdp__join_unsaid_ns(m));
    return cdp__join_answered(m);
}

CDP__PRIVATE cdp_status cdp__mesh_await_addrs_again(cdp__mesh *m) {
    return m->desc.external_store ? cdp__mesh_await_addrs(m) : CDP_OK;
}

CDP__PRIVATE cdp_tcp_store_desc cdp__mesh_store_desc(cdp__mesh *m) {
    cdp_tcp_store_desc d;
    memset(&d, 0, sizeof d);
    d.host = m->desc.master_addr;
    d.port = m->desc.master_port;
    d.timeout_ms = m->desc.init_timeout_ms;
    d.job_key = m->desc.external_store ? NULL : m->desc.job_key; /* PyTorch's stores have no keys */
    d.os = m->os;
    d.logger = m->desc.group.logger;
    d.loop = &m->loop;
    return d;
}

/* True if the ranks find rank 0 by other means than its address. */
CDP__PRIVATE bool cdp__mesh_meets(const cdp__mesh *m) {
#ifdef CDP_NO_MEETING
    (void)m;
    return false;
#else
    return m->desc.file || m->desc.store || m->desc.exchange;
#endif
}

/* True if that is a store. (Valid after cdp__mesh_meet.) */
CDP__PRIVATE bool cdp__mesh_meets_in_store(const cdp__mesh *m) {
    return cdp__mesh_meets(m) && m->meeting;
}

/* ---- >>tcp/rendezvous_meeting: how the other ranks find rank 0 ------------------------------- */

/* Knows: how rank 0 publishes its address: directly, in a file, in a store, or through an exchange
   function. Promises: an address of an earlier run is not mistaken for this one's. */

#ifndef CDP_NO_MEETING
/* The text that rank 0 publishes: "JOB ADDRESSES", where JOB is the job's random name as 32
   hexadecimal digits. */
CDP__PRIVATE void cdp__mesh_endpoint(cdp__mesh *m, char out[CDP__ENDPOINT_BYTES]) {
    cdp__text t = cdp__text_of(out, CDP__ENDPOINT_BYTES);
    cdp_addr at[CDP__ADDRS];
    uint32_t i;
    memset(out, 0, CDP__ENDPOINT_BYTES);
    for (i = 0; i < CDP__JOB_BYTES; ++i)
        cdp__text_add(&t, "%x%x", m->job[i] >> 4, m->job[i] & 15);
    cdp__text_add(&t, " ");
    cdp__addrs_text(at, cdp__mesh_own_addrs(m, at), out + t.used, CDP__ENDPOINT_BYTES - t.used);
}

/* False: this is no published address. */
CDP__PRIVATE bool cdp__mesh_parse_endpoint(
    cdp__mesh *m, const char *word, uint64_t bytes, cdp_addr *out, uint32_t *count) {
    const uint64_t head = 2 * CDP__JOB_BYTES;
    cdp_addr at[CDP__ADDRS];
    uint32_t i, n;
    if (bytes <= head || word[head] != ' ') return false;
    for (i = 0; i < head; ++i) {
        if (cdp__addr_hex(word[i]) < 0) return false;
        m->job[i / 2] = (uint8_t)(m->job[i / 2] << 4 | cdp__addr_hex(word[i]));
    }
    n = cdp__addrs_parse(word + head + 1, bytes - head - 1, at, CDP__ADDRS);
    *count = cdp__paths(m->mine, m->mine_count, at, n, out);
    m->job_known = true;
    return n > 0;
}
#endif /* CDP_NO_MEETING */

CDP__PRIVATE cdp_status cdp__join_open_store(cdp__mesh *m);

#ifndef CDP_NO_FILE_STORE
/* Registers with the file. It retries, because another process may have the file locked. */
CDP__PRIVATE cdp_status cdp__join_file(cdp__mesh *m) {
    cdp__join *s = m->join;
    cdp__file_store *f = (cdp__file_store *)s->file;
    const uint64_t now = cdp__mesh_now(m);
    const cdp_status st = cdp__file_register(f, false);
    if (st == CDP_PENDING && now >= s->deadline_ns) return cdp__file_locked(f);
    if (st == CDP_PENDING)
        cdp__join_pause(s, cdp__min(s->deadline_ns, now + CDP__MS), cdp__join_file);
    if (st != CDP_OK) return st < 0 ? st : CDP_OK;
    m->meeting = &f->polling.store;
    return cdp__join_open_store(m);
}
#endif

/* Opens the store in which rank 0 publishes its address, if the desc asks for one. */
CDP__PRIVATE cdp_status cdp__mesh_meet(cdp__mesh *m) {
#ifdef CDP_NO_MEETING
    if (m->desc.file || m->desc.store || m->desc.exchange)
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "cdp_init: file, store or exchange is set, but this program was built with "
            "CDP_NO_MEETING: set master_addr and master_port");
#elif defined(CDP_NO_FILE_STORE)
    m->meeting = m->desc.store;
    if (m->desc.file)
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "cdp_init: file %s: CDP_NO_FILE_STORE is defined; meet in another store", m->desc.file);
#else
    cdp_file_store_desc d;
    cdp__file_store *f = NULL;
    cdp_status st;
    m->meeting = m->desc.store;
    memset(&d, 0, sizeof d);
    d.path = m->desc.file;
    d.world_size = m->desc.group.world_size;
    d.os = m->os;
    d.private_file = true; /* its default folder may be writable by every user */
    if (d.path) {
        st = cdp__file_make(&d, &f);
        m->join->file = f;
        return st == CDP_OK ? cdp__join_file(m) : st;
    }
#endif
    return cdp__join_open_store(m);
}

#ifndef CDP_NO_MEETING
/* Rank 0 publishes its address, and replaces that of an earlier run. */
CDP__PRIVATE cdp_status cdp__mesh_publish_endpoint(cdp__mesh *m) {
    cdp__join *s = m->join;
    char *word = (char *)s->own;
    cdp__mesh_endpoint(m, word);
    if (!m->meeting)
        return m->desc.exchange(m->desc.exchange_user, word, CDP__ENDPOINT_BYTES) == 0
            ? CDP_OK
            : cdp__fail(CDP_ERR_STORE, "the exchange function failed");
    cdp__mesh_common_key(m, s->key_text, "meet");
    cdp__join_value(s, 0, word, strlen(word));
    cdp__join_ask(m, m->meeting, CDP_STORE_SET, 0, cdp__join_set);
    return CDP_OK;
}
#endif

/* Connects to the store. In the state `next`, s->result is the outcome, and s->made the store. */
CDP__PRIVATE cdp_status cdp__join_connect(
    cdp__mesh *m, const cdp_tcp_store_desc *d, cdp__join_func *next) {
    cdp__join *s = m->join;
    const cdp_status st = cdp__tcp_store_start(d, &s->made);
    s->until_ns = cdp__deadline(m->os, cdp__def(d->connect_timeout_ms, d->timeout_ms));
    s->waits = CDP__WAITS_CONNECTION;
    s->next = next;
    return st;
}

CDP__PRIVATE void cdp__join_disconnect(cdp__join *s) {
    cdp_store_destroy(s->made);
    s->made = NULL;
    s->reread_ns = 0;
}

CDP__PRIVATE cdp_status cdp__join_follow(cdp__mesh *m);

/* The connection to the store is up: begins the second one, which becomes `watch` when this process
   owns its rank, and is ready then. */
CDP__PRIVATE cdp_status cdp__join_second(cdp__mesh *m) {
    cdp_tcp_store_desc d = cdp__mesh_store_desc(m);
    const cdp_addr at = cdp__tcp_store_peer_addr(m->store);
    d.connect_timeout_ms = cdp__join_ms_left(m);
    /* its name need not be resolved again */
    d.addrs = &at;
    d.addr_count = 1;
    return cdp__tcp_store_start(&d, &m->join->second);
}

/* The connection has succeeded or failed, or takes long. An address in a meeting store may be of an
   earlier run, so then it is read again; an attempt at an address that is still there goes on, for
   rank 0 may be far away. */
CDP__PRIVATE CDP__COLD cdp_status cdp__join_store_up(cdp__mesh *m) {
    cdp__join *s = m->join;
    cdp_status st;
    if (s->result == CDP_PENDING) {
        s->patience_ms = cdp__min(2 * s->patience_ms, 8000);
        return cdp__join_follow(m);
    }
    if (s->result == CDP_OK) {
        m->store = s->made;
        s->made = NULL;
        s->reread_ns = 0;
        st = cdp__join_second(m);
        if (st != CDP_OK) return st;
#ifndef CDP_NO_MEETING
        if (cdp__mesh_serves(m) && cdp__mesh_meets(m)) return cdp__mesh_publish_endpoint(m);
#endif
        return CDP_OK;
    }
    if (cdp__mesh_serves(m) || !cdp__mesh_meets_in_store(m) || cdp__mesh_now(m) >= s->deadline_ns)
        return cdp__join_outcome(s);
    cdp__join_disconnect(s);
    s->patience_ms = cdp__min(2 * s->patience_ms, 8000);
    return cdp__join_follow(m);
}

#ifdef CDP_NO_MEETING
CDP__PRIVATE cdp_status cdp__join_follow(cdp__mesh *m) {
    return cdp__join_outcome(m->join);
}
#else
/* Waits for the connection until the address is to be read again. */
CDP__PRIVATE cdp_status cdp__join_follow_on(cdp__mesh *m) {
    cdp__join *s = m->join;
    s->reread_ns = cdp__min(s->deadline_ns, cdp__mesh_now(m) + s->patience_ms * CDP__MS);
    s->until_ns = s->reread_ns;
    s->waits = CDP__WAITS_CONNECTION;
    s->next = cdp__join_store_up;
    return CDP_OK;
}

CDP__PRIVATE CDP__COLD cdp_status cdp__join_follow_to(
    cdp__mesh *m, const char *word, uint64_t bytes) {
    cdp__join *s = m->join;
    cdp_tcp_store_desc d = cdp__mesh_store_desc(m);
    const uint64_t followed = cdp__hash(CDP__HASH_START, word, bytes);
    if (s->made && followed == s->followed) return cdp__join_follow_on(m);
    if (s->made) cdp__join_disconnect(s);
    s->followed = followed;
    if (!cdp__mesh_parse_endpoint(m, word, bytes, s->at, &d.addr_count))
        return cdp__fail(CDP_ERR_MISMATCH, "the published address of rank 0 cannot be read");
    d.addrs = s->at;
    d.connect_timeout_ms = cdp__join_ms_left(m);
    cdp__join_set_outcome(s, cdp__join_connect(m, &d, cdp__join_store_up));
    if (s->result != CDP_OK) return cdp__join_store_up(m);
    return cdp__mesh_meets_in_store(m) ? cdp__join_follow_on(m) : CDP_OK;
}

CDP__PRIVATE cdp_status cdp__join_followed(cdp__mesh *m) {
    const cdp__join *s = m->join;
    const cdp_bytes *v = s->rq.results;
    if (s->result == CDP_ERR_TIMEOUT && s->made) return cdp__join_follow_on(m);
    if (s->result == CDP_ERR_TIMEOUT)
        return cdp__fail_peer(CDP_ERR_TIMEOUT, 0, 0,
            "rank 0 did not publish its address within %u ms", m->desc.init_timeout_ms);
    if (s->result != CDP_OK) return cdp__join_outcome(s);
    return cdp__join_follow_to(m, (const char *)v->data, v->bytes);
}

/* A rank other than 0 reads the address, then connects. */
CDP__PRIVATE cdp_status cdp__join_follow(cdp__mesh *m) {
    char word[CDP__ENDPOINT_BYTES];
    if (!m->meeting) {
        memset(word, 0, sizeof word);
        if (m->desc.exchange(m->desc.exchange_user, word, sizeof word) != 0)
            return cdp__fail(CDP_ERR_STORE, "the exchange function failed");
        return cdp__join_follow_to(m, word, strnlen(word, sizeof word));
    }
    cdp__mesh_common_key(m, m->join->key_text, "meet");
    cdp__join_ask(m, m->meeting, CDP_STORE_GET, m->join->made ? (uint32_t)m->join->patience_ms : 0,
        cdp__join_followed);
    return CDP_OK;
}
#endif /* CDP_NO_MEETING */

/* Rank 0 starts the store server. A host name may resolve differently on each host, so then the
   server listens at all addresses. */
CDP__PRIVATE cdp_status cdp__mesh_serve(cdp__mesh *m) {
#ifdef CDP_NO_STORE_SERVER
    (void)m;
    return cdp__fail(CDP_ERR_UNSUPPORTED,
        "rank 0 serves the store, but this program was built with CDP_NO_STORE_SERVER: set "
        "external_store, or let another program be rank 0");
#else
    cdp_store_server_desc s;
    cdp_addr self;
    memset(&s, 0, sizeof s);
    s.host = m->desc.master_addr;
    if (m->os->net.addresses && (cdp__mesh_meets(m) || (m->spread && !cdp__mesh_local_only(m))))
        s.host = "*";
    if (m->desc.listen_addr) s.host = m->desc.listen_addr;
    if (m->os->net.addresses && !cdp__addr_parse(s.host, &self) && s.host == m->desc.master_addr
        && !cdp__mesh_local_only(m)) {
        /* ranks that need a slow resolver wait for it themselves */
        const int32_t n = m->os->net.resolve(m->os->user, s.host, 0, &self, 1,
            cdp__min(m->join->deadline_ns, cdp__deadline(m->os, 2000)));
        if (n == -ENOENT)
            return cdp__fail_peer(
                CDP_ERR_IO, -1, 0, "master_addr: the name \"%s\" has no address", s.host);
        s.host = "*";
    }
    s.port = m->desc.master_port;
    s.job_key = m->desc.job_key;
    s.trust_network = m->desc.trust_network;
    s.has_listen_fd = m->desc.has_listen_fd;
    s.listen_fd = m->desc.listen_fd;
    s.os = m->os;
    s.logger = m->desc.group.logger;
    s.loop = &m->loop;
    return cdp_store_server_create(&s, &m->server);
#endif
}

/* Rank 0 serves the store unless another process does; every rank connects. Rank 0 connects to
   itself without resolving a name. */
CDP__PRIVATE CDP__COLD cdp_status cdp__join_open_store(cdp__mesh *m) {
    cdp_tcp_store_desc d = cdp__mesh_store_desc(m);
    cdp_addr self;
    cdp_status st;
    m->join->patience_ms = 250;
    if (m->desc.group.rank != 0 || m->desc.external_store)
        return cdp__mesh_meets(m) ? cdp__join_follow(m)
                                  : cdp__join_connect(m, &d, cdp__join_store_up);
    st = cdp__mesh_serve(m);
    if (st != CDP_OK) return st;
    m->at = self = cdp__store_server_addr(m->server);
    if (cdp__addr_any(&self)) {
        (void)cdp__addr_parse("127.0.0.1", &self);
        self.port = m->at.port;
    }
    d.addrs = &self;
    d.addr_count = 1;
    return cdp__join_connect(m, &d, cdp__join_store_up);
}

/* Connects to the store again: the start that was there is over. */
CDP__PRIVATE CDP__COLD cdp_status cdp__join_reopen(cdp__mesh *m) {
    cdp_tcp_store_desc d = cdp__mesh_store_desc(m);
    if (m->store) return CDP_OK; /* one that others serve */
    m->join->patience_ms = 250;
    if (cdp__mesh_meets_in_store(m)) return cdp__join_follow(m);
    if (cdp__mesh_meets(m))
        return cdp__fail_peer(CDP_ERR_MISMATCH, 0, 0,
            "the exchange function gave the address of a start of rank 0 that is over");
    d.connect_timeout_ms = cdp__join_ms_left(m);
    return cdp__join_connect(m, &d, cdp__join_store_up);
}

CDP__PRIVATE cdp_status cdp__join_watching(cdp__mesh *m) {
    cdp__join *s = m->join;
    cdp_status st = cdp__join_outcome(s);
    if (st != CDP_OK) return st;
    m->watch = s->made;
    s->made = NULL;
    m->watch_key.data = m->fail_key;
    m->watch_key.bytes = strlen(m->fail_key);
    st = cdp__mesh_start(m->watch, &m->watch_rq, CDP_STORE_GET, &m->watch_key, 1, NULL);
    m->watching = st >= CDP_OK;
    return m->watching ? CDP_OK : st;
}

/* Uses the second connection to the store. From here on this rank notices a failure of any rank
   while it waits, and the last will reports its own death. Not before it owns its rank: a stray
   process that tries to join a running job must not end it. */
CDP__PRIVATE CDP__COLD cdp_status cdp__mesh_start_watch(cdp__mesh *m) {
    cdp__join *s = m->join;
    uint8_t will[CDP__FAILURE_MAX];
    cdp__failure_record r;
    cdp_bytes value;
    char text[64];
    cdp_status st = CDP_OK;
    m->claimed = true; /* the previous step has made sure of that */
    cdp__format(text, sizeof text, "rank %u ended while the job was starting", m->desc.group.rank);
    cdp__failure_plain(&r, CDP_ERR_PEER_LOST, 0, (int32_t)m->desc.group.rank, text);
    value.data = will;
    value.bytes = cdp__failure_encode(&r, will);
    if (!s->second) st = cdp__join_second(m);
    if (st == CDP_OK) st = cdp__tcp_store_set_last_will(s->second, m->fail_key, value);
    if (st != CDP_OK) return st;
    s->made = s->second;
    s->second = NULL;
    s->until_ns = s->deadline_ns;
    s->waits = CDP__WAITS_CONNECTION;
    s->next = cdp__join_watching;
    return CDP_OK;
}

/* The deadline for finding all ranks. The rest of init_timeout_ms, at most an eighth, is kept
   for finding out which ranks are missing and for telling the others. */
CDP__PRIVATE uint64_t cdp__mesh_init_deadline(cdp__mesh *m) {
    const uint64_t ms = m->desc.init_timeout_ms, farewell = cdp__min(4 * CDP__SETTLE_MS, ms / 8);
    m->init_deadline_ns = cdp__deadline(m->os, m->desc.init_timeout_ms);
    if (m->init_deadline_ns == CDP__NEVER) return CDP__NEVER;
    return m->init_deadline_ns - farewell * CDP__MS;
}

/* Without room for two connections of every rank to the store the job cannot start. Links are made
   when they are needed: see cdp__mesh_count_descriptors(). */
CDP__PRIVATE cdp_status cdp__mesh_check_descriptors(const cdp__mesh *m) {
    const uint64_t limit = cdp__mesh_descriptor_limit(m), start = cdp__mesh_descriptors(m, 0, 0);
    const uint32_t ranks = m->desc.group.world_size;
    if (limit >= start) return CDP_OK;
    return cdp__fail_peer(CDP_ERR_IO, -1, EMFILE,
        "rank %u of %u needs %llu descriptors to start the job, %llu with a link to every other "
        "rank and %llu if they share memory, but this process may have %llu: raise the limit "
        "(ulimit -n)",
        m->desc.group.rank, ranks, (unsigned long long)start,
        (unsigned long long)cdp__mesh_descriptors(m, ranks, 0),
        (unsigned long long)cdp__mesh_descriptors(m, ranks, ranks), (unsigned long long)limit);
}

CDP__PRIVATE cdp_status cdp__mesh_prepare(cdp__mesh *m) {
    const cdp_status st = cdp__mesh_check_descriptors(m);
    return st == CDP_OK && m->desc.group.rank == 0
        ? m->os->random(m->os->user, m->job, CDP__JOB_BYTES)
        : st;
}

#define CDP__LEAVE_MS 100u /* time to unregister from a file that another process has locked */

/* The start has succeeded: if this rank has written a wait record, replaces it by one that names no
   rank. */
CDP__PRIVATE cdp_status cdp__join_good(cdp__mesh *m) {
    m->started = true;
    if (!m->wait_recorded) return cdp__join_end(m);
    cdp__join_write_wait(m, -1, cdp__join_end);
    return CDP_OK;
}

/* Unregisters from the file. It retries, because another process may have the file locked. */
CDP__PRIVATE cdp_status cdp__join_leave(cdp__mesh *m) {
    cdp__join *s = m->join;
#ifndef CDP_NO_FILE_STORE
    cdp__file_store *f = (cdp__file_store *)s->file;
    const uint64_t now = cdp__mesh_now(m);
    cdp__join_forget(s);
    if (f && m->meeting && cdp__file_register(f, true) == CDP_PENDING && now < s->give_up_ns) {
        cdp__join_pause(s, now + CDP__MS, cdp__join_leave);
        return CDP_OK;
    }
    if (f) cdp__file_free(f);
    s->file = NULL;
#endif
    cdp__join_forget(s);
    m->meeting = NULL;
    return s->status == CDP_OK ? cdp__join_good(m) : cdp__join_failed(m);
}

/* Rendezvous is over: rank 0 deletes its address from the meeting store. */
CDP__PRIVATE cdp_status cdp__join_withdraw(cdp__mesh *m) {
    cdp__join *s = m->join;
    s->give_up_ns = cdp__deadline(m->os, CDP__SETTLE_MS + CDP__LEAVE_MS);
    if (!cdp__mesh_meets_in_store(m) || m->desc.group.rank != 0) return cdp__join_leave(m);
    cdp__mesh_common_key(m, s->key_text, "meet");
    cdp__join_ask(m, m->meeting, CDP_STORE_DELETE, CDP__SETTLE_MS, cdp__join_leave);
    if (s->status != CDP_OK || s->rq.status != CDP_PENDING) return CDP_OK;
    /* it was sent, so the answer need not be awaited: the store may be far away */
    m->meeting->cancel(m->meeting->self, &s->rq);
    if (s->rq.number != CDP__STORE_NO_ANSWER)
        cdp__join_ask(m, m->meeting, CDP_STORE_DELETE, CDP__SETTLE_MS, cdp__join_leave);
    return CDP_OK;
}

/* The steps of a start, in order, with one common deadline. */
static cdp__join_func *const cdp__join_steps[] = {cdp__mesh_prepare, cdp__mesh_meet,
    cdp__mesh_listen_first, cdp__mesh_config, cdp__mesh_listen, cdp__mesh_claim,
    cdp__mesh_start_watch, cdp__mesh_exchange, cdp__mesh_await_addrs, cdp__mesh_read_addrs,
    cdp__mesh_done, cdp__mesh_all_done, cdp__mesh_all_answered, cdp__mesh_await_addrs_again,
    cdp__mesh_read_addrs};

/* The first step of rank 0 for which it needs others; before, it has published where it listens. */
#define CDP__JOIN_OTHERS 8u
#define CDP__JOIN_STEPS ((uint32_t)(sizeof cdp__join_steps / sizeof *cdp__join_steps))

/* Ends the start with this error. */
CDP__PRIVATE void cdp__join_fail(cdp__mesh *m, const cdp_error *why) {
    cdp__join *s = m->join;
    s->error = *why;
    /* of a store that was closed by its host */
    if (s->error.status == CDP_ERR_STATE) s->error.status = CDP_ERR_STORE;
    s->status = s->error.status;
    s->waits = CDP__WAITS_NOT;
    if (s->made) cdp__join_disconnect(s);
    s->next = cdp__join_withdraw;
}

/* It pauses, and waits for nothing. */
CDP__PRIVATE bool cdp__join_held(const cdp__join *s) {
#ifdef CDP_NO_FRAMES
    (void)s; /* nothing else could go on meanwhile */
    return false;
#else
    return s->hold && s->step == s->hold && !s->next;
#endif
}

/* Continues the start as far as possible without waiting. PENDING: it is held, or waits for an
   event on the loop, until cdp__join_until() at the latest. Otherwise it is over; returns its
   result. The reason of a failure is join->error. */
CDP__PRIVATE cdp_status cdp__join_go_on(cdp__mesh *m) {
    cdp__join *s = m->join;
    while (!s->over) {
        cdp__join_func *func;
        if (cdp__join_waiting(m)) return CDP_PENDING;
        if (cdp__join_held(s)) return CDP_PENDING;
        func = s->next;
        if (!func && s->step < CDP__JOIN_STEPS) func = cdp__join_steps[s->step++];
        if (!func) func = cdp__join_withdraw;
        s->next = NULL;
        s->waits = CDP__WAITS_NOT;
        if (func(m) != CDP_OK) cdp__join_fail(m, cdp_last_error());
    }
    if (s->status == CDP_OK && !cdp__mesh_alone(m)) cdp__tcp_store_withdraw_last_will(m->watch);
    return s->status;
}

/* Runs the loop until something happens that the current state may wait for. A loop that fails is
   the outcome: then this cancels what was waited for. */
CDP__PRIVATE void cdp__join_run(cdp__mesh *m, uint64_t until_ns) {
    cdp__join *s = m->join;
    const cdp_status st = cdp__loop_run(&m->loop, NULL, cdp__min(cdp__join_until(m), until_ns));
    if (st == CDP_OK) return;
    cdp__join_set_outcome(s, st);
    if (s->waits == CDP__WAITS_REQUEST) s->asked->cancel(s->asked->self, &s->rq);
    if (s->waits == CDP__WAITS_LISTENER) cdp__join_reach_end(m);
    s->waits = CDP__WAITS_NOT;
}

/* Runs a start. The only function of a start that waits. `why`: the reason of a failure. */
CDP__PRIVATE cdp_status cdp__mesh_rendezvous(cdp__mesh *m, cdp_error *why) {
    cdp_status st;
    while ((st = cdp__join_go_on(m)) == CDP_PENDING)
        cdp__join_run(m, CDP__NEVER);
    *why = m->join->error;
    cdp__join_free(m);
    return st;
}

CDP__PRIVATE cdp_status cdp__mesh_open(cdp__mesh *m) {
    const uint32_t n = m->desc.group.world_size * m->desc.connections;
    cdp_status st = cdp__loop_open(&m->loop, m->os);
    uint32_t i;
    if (st != CDP_OK) return st;
    m->links = (cdp__link *)cdp__alloc_zero(m->os, n * (uint64_t)sizeof *m->links);
    if (!m->links) return cdp__fail_nomem("the links", n * (uint64_t)sizeof *m->links);
    for (i = 0; i < n; ++i) {
        m->links[i].mesh = m;
        m->links[i].peer = i % m->desc.group.world_size;
        m->links[i].index = i / m->desc.group.world_size;
    }
    if (m->os->net.addresses)
        m->mine_count = m->os->net.addresses(m->os->user, NULL, m->mine, CDP__ADDRS);
    cdp__mesh_key(m, m->fail_key, "fail", UINT32_MAX);
    m->join = (cdp__join *)cdp__alloc_zero(m->os, sizeof *m->join);
    if (!m->join) return cdp__fail_nomem("what starting needs", sizeof *m->join);
    m->join->reopen = cdp__join_reopen;
    m->start_ns = cdp__mesh_now(m);
    m->join->deadline_ns = cdp__mesh_init_deadline(m);
    return CDP_OK;
}

/* ---- >>tcp/rendezvous_given: a start whose caller exchanges the addresses -------------------- */

/* Knows: a table with the record of each rank, as ranks publish it under "addr". Promises: no
   store is asked; the start ends when all ranks are connected, and a rank that is lost meanwhile,
   or does not connect by the deadline, is named. */

#ifndef CDP_NO_FRAMES

/* The first link of `state`; NULL: none is in it. */
CDP__PRIVATE const cdp__link *cdp__mesh_link_in(const cdp__mesh *m, cdp__link_state state) {
    const uint32_t n = m->desc.group.world_size * m->desc.connections;
    uint32_t i;
    for (i = 0; i < n; ++i)
        if (m->links[i].peer != m->desc.group.rank && m->links[i].state == state)
            return &m->links[i];
    return NULL;
}

/* No link is being made any more, or the time is over. */
CDP__PRIVATE cdp_status cdp__given_linked(cdp__mesh *m) {
    const cdp__link *l = cdp__mesh_link_in(m, CDP__LINK_LOST);
    uint32_t state;
    if (l) return cdp__link_explain(l);
    for (state = CDP__LINK_AWAITED; !l && state < CDP__LINK_UP; ++state)
        l = cdp__mesh_link_in(m, (cdp__link_state)state);
    if (!l) return CDP_OK;
    return cdp__fail_peer(CDP_ERR_TIMEOUT, l->peer, 0,
        "rank %u has come, and is not connected to this rank within %u ms", l->peer,
        m->desc.init_timeout_ms);
}

/* The records of all ranks are known: connects to all ranks. */
CDP__PRIVATE cdp_status cdp__given_connect(cdp__mesh *m) {
    cdp__join *s = m->join;
    const cdp_status st = cdp__mesh_read_addrs(m);
    if (st != CDP_OK || m->frugal || !m->desc.connect_all) return st;
    cdp__mesh_need_all(m);
    s->until_ns = s->deadline_ns;
    s->waits = CDP__WAITS_LINKS;
    s->next = cdp__given_linked;
    return CDP_OK;
}

/* Prepares a start that asks no store: this rank listens, and its record is
   m->join->values[0]. `job`:
   the name of the start, which no other start has. `store`: through which the caller exchanges the
   records; this rank listens where it reaches that, if this is known. */
CDP__PRIVATE cdp_status cdp__mesh_given(
    cdp__mesh *m, const uint8_t job[CDP__JOB_BYTES], cdp_store *store) {
    cdp__join *s = m->join;
    cdp_status st = cdp__mesh_check_descriptors(m);
    m->desc.external_store = true; /* rank 0 serves none */
    memcpy(m->job, job, CDP__JOB_BYTES);
    store = cdp__store_base(store);
    if (store->destroy != cdp__client_destroy || !cdp__tcp_store_local_addr(store, &m->home))
        (void)cdp__addr_parse("127.0.0.1", &m->home);
    s->step = s->hold = CDP__JOIN_STEPS;
    if (st == CDP_OK) st = cdp__mesh_listen(m);
    return st == CDP_OK ? cdp__mesh_exchange(m) : st;
}

/* Takes copies of the records of all ranks, in the order of ranks. */
CDP__PRIVATE cdp_status cdp__mesh_take_records(cdp__mesh *m, const cdp_bytes *records) {
    cdp_store_request *rq = &m->addrs;
    uint32_t r;
    rq->op = CDP_STORE_MULTI_GET;
    rq->key_count = m->desc.group.world_size;
    if (!cdp__store_request_make_results(m->os, rq))
        return cdp__fail_nomem("the addresses of all ranks", rq->key_count * sizeof *records);
    for (r = 0; r < rq->key_count; ++r)
        if (!cdp__store_request_put_result(m->os, rq, r, records[r]))
            return cdp__fail_nomem("the addresses of a rank", records[r].bytes);
    m->join->next = cdp__given_connect;
    return CDP_OK;
}

#endif /* CDP_NO_FRAMES */

/* ---- >>tcp/launchers: variables that launchers set (pure) ------------------------------------ */

/* Knows: the variables of cdprun, torchrun, Open MPI, MVAPICH, PALS, Flux, MPICH and Slurm.
   Promises: an error names the variable, its value, and what it should contain. */

#ifndef CDP_NO_ENV

typedef struct cdp__vars {
    cdp_getenv_func get;
    void *user;
} cdp__vars;

/* The value of a variable; NULL if it is unset or empty. */
CDP__PRIVATE CDP__ONE_COPY const char *cdp__var(const cdp__vars *v, const char *name) {
    const char *text = v->get(v->user, name);
    return text && *text ? text : NULL;
}

/* Parses a decimal integer in lo .. hi. */
CDP__PRIVATE cdp_status cdp__var_number(
    const cdp__vars *v, const char *name, uint32_t lo, uint32_t hi, uint32_t *out) {
    const char *text = cdp__var(v, name), *p = text;
    uint64_t n = 0;
    if (!text)
        return cdp__fail(CDP_ERR_INVALID,
            "the environment variable %s is not set, though others of its launcher are; start the "
            "program with `cdprun -n 4 PROGRAM`, torchrun, mpirun or srun",
            name);
    for (; *p >= '0' && *p <= '9' && n <= hi; ++p)
        n = n * 10 + (uint64_t)(*p - '0');
    if (*p || p == text || n < lo || n > hi)
        return cdp__fail(CDP_ERR_INVALID,
            "the environment variable %s is '%s'; it must be a whole number from %u to %u", name,
            text, lo, hi);
    *out = (uint32_t)n;
    return CDP_OK;
}

/* Reads rank, world size, local rank and local size from the variables with these names. The last
   two names may be NULL, and these variables may be unset. */
CDP__PRIVATE cdp_status cdp__launch_numbers(const cdp__vars *v, cdp_launch *l, const char *rank,
    const char *size, const char *local_rank, const char *local_size) {
    cdp_status st = cdp__var_number(v, size, 1, 65535, &l->world_size);
    if (st == CDP_OK) st = cdp__var_number(v, rank, 0, 65534, &l->rank);
    if (st == CDP_OK && l->rank >= l->world_size)
        st = cdp__fail(CDP_ERR_INVALID,
            "the environment variable %s is %u but %s is %u; ranks are 0 to %u", rank, l->rank,
            size, l->world_size, l->world_size - 1);
    if (st == CDP_OK && local_rank && cdp__var(v, local_rank))
        st = cdp__var_number(v, local_rank, 0, 65534, &l->local_rank);
    if (st == CDP_OK && local_size && cdp__var(v, local_size))
        st = cdp__var_number(v, local_size, 1, 65535, &l->local_size);
    return st;
}

/* Appends text to the name of a key or file; special characters become dashes. */
CDP__PRIVATE void cdp__name_add(cdp__text *t, const char *text) {
    char c;
    for (; *text && t->used < 40; ++text) {
        c = *text;
        if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.'
                || c == '_'))
            c = '-';
        cdp__text_add(t, "%c", c);
    }
}

/* The first host of a Slurm node list: "node[003-010,012],login" gives node003. False if the
   list is invalid. */
CDP__PRIVATE bool cdp__first_host(const char *list, char *out, uint64_t size) {
    uint64_t n = 0;
    bool inside = false, skipping = false;
    for (; *list && (inside || *list != ','); ++list) {
        const char c = *list;
        if (c == '[' || c == ']') {
            if (inside == (c == '[')) return false;
            inside = c == '[';
            skipping = false;
        } else if (inside && (c == '-' || c == ',')) {
            skipping = true; /* skip the rest of a range or list */
        } else if (!skipping) {
            if (c <= ' ' || c > '~' || n + 1 >= size) return false;
            out[n++] = c;
        }
    }
    out[n] = 0;
    return n > 0 && !inside;
}

/* The number of tasks on node `node` in a Slurm list like "2(x3),1": two on each of the first
   three nodes, one on the fourth. 0: not in the list. */
CDP__PRIVATE uint32_t cdp__tasks_of(const char *list, uint32_t node) {
    uint64_t tasks = 0, times;
    const char *p = list;
    for (;; ++p) {
        for (tasks = 0; *p >= '0' && *p <= '9' && tasks < 65536; ++p)
            tasks = tasks * 10 + (uint64_t)(*p - '0');
        times = 1;
        if (p[0] == '(' && p[1] == 'x') {
            for (p += 2, times = 0; *p >= '0' && *p <= '9' && times < 1000000; ++p)
                times = times * 10 + (uint64_t)(*p - '0');
            if (*p++ != ')') return 0;
        }
        if (node < times) return tasks < 65536 ? (uint32_t)tasks : 0;
        node -= (uint32_t)times;
        if (*p != ',') return 0;
    }
}

/* srun sets the rank and the size, but not the address of rank 0, which runs on the first node of
   the step. A script under sbatch has most of these variables, too, without being a task of a step;
   only SLURM_STEP_ID tells them apart. */
CDP__PRIVATE cdp_status cdp__launch_slurm(const cdp__vars *v, cdp_launch *l) {
    const char *list = cdp__var(v, "SLURM_STEP_NODELIST"), *job = cdp__var(v, "SLURM_JOB_ID"),
               *step = cdp__var(v, "SLURM_STEP_ID");
    const char *ports = cdp__var(v, "SLURM_STEP_RESV_PORTS"),
               *tasks = cdp__var(v, "SLURM_STEP_TASKS_PER_NODE"),
               *again = cdp__var(v, "SLURM_RESTART_COUNT");
    cdp__text t = cdp__text_of(l->job, sizeof l->job);
    uint32_t node = 0, port = 0;
    cdp_status st = cdp__launch_numbers(v, l, "SLURM_PROCID",
        cdp__var(v, "SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS",
        "SLURM_LOCALID", NULL);
    if (st != CDP_OK) return st;
    if (tasks && cdp__var(v, "SLURM_NODEID"))
        st = cdp__var_number(v, "SLURM_NODEID", 0, 65534, &node);
    if (st != CDP_OK) return st;
    if (tasks) l->local_size = cdp__tasks_of(tasks, node);
    if (!list) list = cdp__var(v, "SLURM_JOB_NODELIST");
    if (!list || !cdp__first_host(list, l->master_addr, sizeof l->master_addr))
        return cdp__fail(CDP_ERR_INVALID,
            "SLURM_STEP_NODELIST is '%s', which is no list of hosts; set MASTER_ADDR to the "
            "machine of rank 0",
            list ? list : "");
    if (l->local_size == l->world_size)
        cdp__format(l->master_addr, sizeof l->master_addr, "127.0.0.1");
    cdp__text_add(&t, "slurm-");
    cdp__name_add(&t, job ? job : "");
    cdp__text_add(&t, ".");
    cdp__name_add(&t, step);
    if (again) cdp__text_add(&t, ".");
    if (again) cdp__name_add(&t, again);
    for (; ports && *ports >= '0' && *ports <= '9' && port < 65536; ++ports)
        port = port * 10 + (uint32_t)(*ports - '0');
    /* below the range of ephemeral ports */
    if (!port || port > 65535)
        port = 10000 + (uint32_t)(cdp__hash(0, l->job, cdp__text_kept(&t)) % 20000);
    l->master_port = (uint16_t)port;
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__launch_torchrun(const cdp__vars *v, cdp_launch *l) {
    const char *agent = cdp__var(v, "TORCHELASTIC_USE_AGENT_STORE");
    cdp_status st =
        cdp__launch_numbers(v, l, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE");
    if (agent && strcmp(agent, "True") == 0) l->external_store = true;
    return st;
}

/* A launcher that says all by variables of its own. */
typedef struct cdp__launcher {
    const char *name, *rank, *size, *local_rank;
    /* NULL: it has no such variable. job: a name; nodes: 1 where local_size is the world's */
    const char *local_size, *job, *nodes;
} cdp__launcher;

/* The one that started this process, or NULL. MPICH's Hydra is looked for last, because PALS and
   Flux set its variables, too; but where Hydra runs inside of these, it sets MPI_LOCALRANKID. In a
   Slurm step, PMI_RANK alone may be set by srun itself. */
CDP__PRIVATE const cdp__launcher *cdp__launcher_of(const cdp__vars *v, bool step) {
    static const cdp__launcher all[] = {
        {"openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
            "OMPI_COMM_WORLD_LOCAL_SIZE", NULL, NULL},
        {"mvapich", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK",
            "MV2_COMM_WORLD_LOCAL_SIZE", NULL, NULL},
        {"pals", "PALS_RANKID", "PMI_SIZE", "PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE", "PALS_APID",
            NULL},
        {"flux", "FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID", NULL, "FLUX_JOB_ID",
            "FLUX_JOB_NNODES"},
        {"mpich", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", NULL, NULL},
    };
    const bool hydra = cdp__var(v, "PMI_RANK") && cdp__var(v, "MPI_LOCALRANKID");
    uint32_t i;
    for (i = 0; i < sizeof all / sizeof *all; ++i) {
        const bool last = i + 1 == sizeof all / sizeof *all;
        if (!cdp__var(v, all[i].rank) || (last && step && !hydra)) continue;
        if (!all[i].job || !hydra) return &all[i];
    }
    return NULL;
}

CDP__PRIVATE cdp_status cdp__launch_row(
    const cdp__vars *v, const cdp__launcher *row, cdp_launch *l) {
    cdp__text t = cdp__text_of(l->job, sizeof l->job);
    const char *const job = row->job ? cdp__var(v, row->job) : NULL;
    uint32_t nodes = 0;
    cdp_status st =
        cdp__launch_numbers(v, l, row->rank, row->size, row->local_rank, row->local_size);
    if (st == CDP_OK && row->nodes && cdp__var(v, row->nodes))
        st = cdp__var_number(v, row->nodes, 1, 65535, &nodes);
    if (nodes == 1) l->local_size = l->world_size;
    if (!job) return st;
    cdp__text_add(&t, "%s-", row->name);
    cdp__name_add(&t, job);
    return st;
}

/* Open MPI has no variable of its own for these; MPI may run without PMIx. */
CDP__PRIVATE void cdp__launch_openmpi(const cdp__vars *v, cdp_launch *l) {
    const char *const dir = cdp__var(v, "PMIX_SERVER_TMPDIR");
    const char *job = cdp__var(v, "PMIX_NAMESPACE");
    cdp__text t = cdp__text_of(l->job, sizeof l->job);
    if (!job) job = cdp__var(v, "OMPI_MCA_ess_base_jobid");
    if (job) {
        cdp__text_add(&t, "ompi-");
        cdp__name_add(&t, job);
    }
    if (dir && strlen(dir) < sizeof l->dir) cdp__format(l->dir, sizeof l->dir, "%s", dir);
}

CDP__PRIVATE CDP__COLD cdp_status cdp__launch_read(const cdp__vars *v, cdp_launch *l) {
    const char *name = "", *addr = cdp__var(v, "MASTER_ADDR");
    const bool step = cdp__var(v, "SLURM_STEP_ID") && cdp__var(v, "SLURM_PROCID");
    const cdp__launcher *const row = cdp__launcher_of(v, step);
    cdp_status st = CDP_OK;
    uint32_t port;
    memset(l, 0, sizeof *l);
    if (cdp__var(v, "RANK") || cdp__var(v, "WORLD_SIZE")) {
        name = "torchrun";
        st = cdp__launch_torchrun(v, l);
    } else if (row) {
        name = row->name;
        st = cdp__launch_row(v, row, l);
        if (strcmp(name, "openmpi") == 0) cdp__launch_openmpi(v, l);
    } else if (step) {
        name = "slurm";
        st = cdp__launch_slurm(v, l);
    }
    if (st != CDP_OK) return st;
    cdp__format(l->launcher, sizeof l->launcher, "%s", name);
    if (addr && strlen(addr) >= sizeof l->master_addr)
        return cdp__fail(CDP_ERR_INVALID, "MASTER_ADDR has %u characters; no host has such a name",
            (unsigned)strlen(addr));
    if (addr) cdp__format(l->master_addr, sizeof l->master_addr, "%s", addr);
    if (l->world_size == 1 || !v->get(v->user, "MASTER_PORT")) return CDP_OK;
    st = cdp__var_number(v, "MASTER_PORT", 1, 65535, &port);
    if (st == CDP_OK) l->master_port = (uint16_t)port;
    return st;
}

#endif /* CDP_NO_ENV */

/* ---- >>tcp/url: the address of a job as a text (pure) ---------------------------------------- */

/* Knows: the three forms of a job's URL. Promises: an invalid text is refused completely. */

#ifndef CDP_NO_ENV

typedef enum cdp__url_kind {
    CDP__URL_ENV,
    CDP__URL_TCP,
    CDP__URL_FILE
} cdp__url_kind;

typedef struct cdp__url {
    cdp__url_kind kind;
    char host[1024]; /* or a path */
    uint16_t port;
    bool has_rank, has_size;
    uint32_t rank, world_size;
    char backend[32];
} cdp__url;

/* Parses a number of the query; NULL: it is none, or a second one. */
CDP__PRIVATE const char *cdp__url_number(const char *p, uint32_t *number, bool *has) {
    if (*has) return NULL;
    *has = true;
    return cdp__addr_decimal(p, 65535, number);
}

CDP__PRIVATE const char *cdp__url_name(const char *p, char *name, size_t room) {
    const size_t n = strcspn(p, "&");
    if (name[0] || !n || n >= room) return NULL;
    memcpy(name, p, n);
    return p + n;
}

/* Parses "rank=R&world_size=N&backend=NAME", in any order. */
CDP__PRIVATE bool cdp__url_query(const char *p, cdp__url *u) {
    while (*p) {
        if (strncmp(p, "rank=", 5) == 0)
            p = cdp__url_number(p + 5, &u->rank, &u->has_rank);
        else if (strncmp(p, "world_size=", 11) == 0)
            p = cdp__url_number(p + 11, &u->world_size, &u->has_size);
        else if (strncmp(p, "backend=", 8) == 0)
            p = cdp__url_name(p + 8, u->backend, sizeof u->backend);
        else
            return false;
        if (!p || (*p && *p != '&') || (*p && !*++p)) return false;
    }
    return true;
}

CDP__PRIVATE bool cdp__url_tcp(cdp__url *u) {
    const bool bracket = u->host[0] == '[';
    char *end = bracket ? strchr(u->host, ']') : strrchr(u->host, ':');
    const char *p = end && bracket ? end + 1 : end;
    uint32_t port = 0;
    if (!p || *p != ':' || !(p = cdp__addr_decimal(p + 1, 65535, &port)) || *p || !port)
        return false;
    *end = 0;
    if (bracket) memmove(u->host, u->host + 1, (size_t)(end - u->host));
    u->port = (uint16_t)port;
    return u->host[0] && strlen(u->host) < 256 && (bracket || !strchr(u->host, ':'))
        && !strpbrk(u->host, "/ []");
}

CDP__PRIVATE cdp_status cdp__url_parse(const char *url, cdp__url *u) {
    static const char *const schemes[] = {"env://", "tcp://", "file://"};
    uint32_t k = 0;
    const char *rest, *query;
    bool good;
    memset(u, 0, sizeof *u);
    while (k < 3 && strncmp(url, schemes[k], strlen(schemes[k])) != 0)
        ++k;
    if (k == 3)
        return cdp__fail(CDP_ERR_INVALID,
            "'%s' begins neither with env:// nor with tcp:// nor with file://", url);
    u->kind = (cdp__url_kind)k;
    rest = url + strlen(schemes[k]);
    query = strchr(rest, '?');
    if (!query) query = rest + strlen(rest);
    if ((uint64_t)(query - rest) >= sizeof u->host)
        return cdp__fail(
            CDP_ERR_INVALID, "a url is longer than %u characters", (unsigned)sizeof u->host);
    memcpy(u->host, rest, (size_t)(query - rest));
    if (u->kind == CDP__URL_ENV)
        good = !u->host[0];
    else if (u->kind == CDP__URL_TCP)
        good = cdp__url_tcp(u);
    else
        good = u->host[0] == '/';
    if (!good)
        return cdp__fail(CDP_ERR_INVALID,
            "'%s' is none of env://, tcp://HOST:PORT, tcp://[IPV6]:PORT, file:///PATH", url);
    if (*query && !cdp__url_query(query + 1, u))
        return cdp__fail(CDP_ERR_INVALID,
            "'%s': only rank=R, world_size=N and backend=NAME are allowed after the ?, joined by &",
            url);
    return CDP_OK;
}

#endif /* CDP_NO_ENV */

/* ---- >>tcp/backends: ways to start, by name -------------------------------------------------- */

/* Knows: names and functions of the program. Promises: a name that is unknown is refused before
   anything has started. */

#ifndef CDP_NO_ENV

#define CDP__BACKEND_NAME 32u
#define CDP__BACKENDS 8u

typedef struct cdp__named_backend {
    char name[CDP__BACKEND_NAME]; /* "": a free place */
    cdp_backend_func create;
    void *user;
} cdp__named_backend;

/* One table per process, filled before groups are started. */
static cdp__named_backend cdp__backends[CDP__BACKENDS];

/* None, "tcp" and "gloo" are cdp_init() itself. */
CDP__PRIVATE bool cdp__backend_is_tcp(const char *name) {
    return !name || !name[0] || strcmp(name, "tcp") == 0 || strcmp(name, "gloo") == 0;
}

CDP__PRIVATE bool cdp__backend_name_fits(const char *name) {
    size_t i = 0;
    for (; name[i]; ++i) {
        const char c = name[i];
        const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        if (!letter && !(c >= '0' && c <= '9') && c != '_' && c != '-') return false;
    }
    return i > 0 && i < CDP__BACKEND_NAME;
}

/* The place of a name; "": the first free one. NULL: there is none. */
CDP__PRIVATE cdp__named_backend *cdp__backend_at(const char *name) {
    uint32_t i;
    for (i = 0; i < CDP__BACKENDS; ++i)
        if (strcmp(cdp__backends[i].name, name) == 0) return &cdp__backends[i];
    return NULL;
}

CDP_API cdp_status cdp_backend_register(const char *name, cdp_backend_func create, void *user) {
    cdp__named_backend *b;
    if (!name) return cdp__missing("cdp_backend_register", "name");
    if (name[0] && cdp__backend_is_tcp(name))
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_backend_register: the name '%s' is that of cdp_init(); use another one", name);
    if (!cdp__backend_name_fits(name))
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_backend_register: the name '%s' is not 1 to 31 letters, digits, '_' and '-'",
            name);
    b = cdp__backend_at(name);
    if (!create && !b)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_backend_register: create is NULL, but no backend is named '%s'", name);
    if (!b) b = cdp__backend_at("");
    if (!b)
        return cdp__fail(CDP_ERR_NOMEM,
            "cdp_backend_register: there are %u backends, and no place for '%s'; take one away",
            CDP__BACKENDS, name);
    memset(b, 0, sizeof *b);
    if (!create) return CDP_OK;
    cdp__format(b->name, sizeof b->name, "%s", name);
    b->create = create;
    b->user = user;
    return CDP_OK;
}

/* Starts with the backend that the desc names. */
CDP__PRIVATE CDP__COLD cdp_status cdp__backend_start(const cdp_tcp_desc *desc, cdp_group **out) {
    const cdp__named_backend *b = desc->backend[0] ? cdp__backend_at(desc->backend) : NULL;
    char names[CDP__BACKENDS * (CDP__BACKEND_NAME + 2) + 1];
    cdp__text t = cdp__text_of(names, sizeof names);
    cdp_tcp_desc d = *desc;
    cdp_status st;
    uint32_t i;
    if (b) {
        d.backend = "tcp"; /* so that it may start a group from the environment, too */
        st = b->create(&d, b->user, out);
        if (st < 0) *out = NULL;
        return st;
    }
    for (i = 0; i < CDP__BACKENDS; ++i)
        if (cdp__backends[i].name[0]) cdp__text_add(&t, ", %s", cdp__backends[i].name);
    (void)cdp__text_end(&t);
    return cdp__fail(CDP_ERR_INVALID,
        "cdp_init: no backend is named '%s'; there is: tcp, gloo%s (see cdp_backend_register)",
        desc->backend, names);
}

#endif /* CDP_NO_ENV */

/* ---- >>tcp/calls: the public functions ------------------------------------------------------- */

/* Knows: descs and the environment. Promises: a call that fails leaves nothing behind. */

CDP__PRIVATE cdp_tcp_desc cdp__tcp_desc_defaults(const cdp_tcp_desc *desc) {
    cdp_tcp_desc d = *desc;
    d.master_addr = cdp__def(d.master_addr, "127.0.0.1");
    d.job = cdp__def(d.job, "cdp");
    d.init_timeout_ms = cdp__def(d.init_timeout_ms, 300000);
    d.connections = cdp__def(d.connections, 1);
    if (!d.group.os) d.group.os = cdp_os_default();
    return d;
}

/* Checks a desc for invalid values and combinations. */
CDP__PRIVATE CDP__COLD cdp_status cdp__tcp_desc_check(const cdp_tcp_desc *d) {
    cdp_addr at;
    if (cdp__os_whole(d->group.os, "cdp_init") != CDP_OK) return CDP_ERR_INVALID;
    if (d->group.hub || d->group.transport)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_init: group.%s is set; leave it NULL, or call cdp_group_create() for ranks that "
            "are connected by it",
            d->group.hub ? "hub" : "transport");
    if (!d->group.world_size || d->group.world_size > 65535)
        return cdp__fail(
            CDP_ERR_INVALID, "cdp_init: world_size %u is not in 1 .. 65535", d->group.world_size);
    if (d->group.rank >= d->group.world_size)
        return cdp__fail(CDP_ERR_INVALID, "cdp_init: rank %u is not below world_size %u",
            d->group.rank, d->group.world_size);
    if (!cdp__host_plausible(d->master_addr))
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_init: master_addr '%s' is neither an address nor the name of a host: give that "
            "alone, "
            "such as 10.0.0.1 or node7",
            d->master_addr);
    if (d->listen_addr && !cdp__addr_parse(d->listen_addr, &at))
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_init: listen_addr '%s' is no address; names are not allowed there",
            d->listen_addr);
    if (d->ring_bytes && (d->ring_bytes < 64 || d->ring_bytes > 1u << 30))
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_init: ring_bytes %llu is not in 64 .. 1073741824; 0 is the default",
            (unsigned long long)d->ring_bytes);
    if (d->connections > 16)
        return cdp__fail(
            CDP_ERR_INVALID, "cdp_init: connections %u is not in 1 .. 16", d->connections);
    if (d->interfaces && !d->group.os->net.addresses)
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "cdp_init: interfaces '%s': the os of the desc has no function `addresses` that could "
            "find them; give it one, or set listen_addr instead",
            d->interfaces);
#ifdef CDP_NO_MAC
    if (d->mac)
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "cdp_init: mac is set, but CDP_NO_MAC is defined: compile without it, or unset mac");
#endif
    if (d->mac && !(d->job_key && d->job_key[0]))
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_init: mac needs a job key: set CDP_JOB_KEY, or job_key, to the same secret for "
            "all ranks");
#ifndef CDP_NO_ENV
    if (!cdp__backend_is_tcp(d->backend))
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "backend '%s': only cdp_init(), cdp_init_url() and cdp_init_from_env() start with "
            "backends of the program; leave desc.backend and CDP_BACKEND empty here, or set "
            "\"tcp\"",
            d->backend);
#endif
    if (strlen(d->job) > 48)
        return cdp__fail(CDP_ERR_INVALID, "cdp_init: the job name is longer than 48 bytes");
    if (d->group.world_size > 1 && !d->master_port && !d->file && !d->store && !d->exchange)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_init: master_port is 0; set it to a port that is free on rank 0's machine");
    return CDP_OK;
}

CDP__PRIVATE void cdp__mesh_transport(cdp__mesh *m, cdp_transport *t) {
    memset(t, 0, sizeof *t);
    t->self = m;
    t->send = m->desc.connections > 1 ? cdp__bundle_send : cdp__mesh_send;
    t->recv = m->desc.connections > 1 ? cdp__bundle_recv : cdp__mesh_recv;
    t->wait = cdp__mesh_wait;
    t->wake = cdp__mesh_wake;
    t->failure.publish = cdp__mesh_publish;
    t->failure.first = cdp__mesh_first;
    t->failure.linked = cdp__mesh_linked;
    t->failure.unacked = cdp__mesh_unacked;
#ifndef CDP_NO_RECORDER
    t->describe = cdp__mesh_describe;
    t->name = "tcp";
#endif
    t->failure.starting = cdp__mesh_starting;
    t->leave = cdp__mesh_leave;
    t->destroy = cdp__mesh_close;
#ifndef CDP_NO_SHARED_MEMORY
    t->remote.expose = cdp__mesh_expose;
    t->remote.revoke = cdp__mesh_revoke;
    t->remote.try_revoke = cdp__mesh_try_revoke;
    t->remote.map = cdp__mesh_map;
    t->remote.unmap = cdp__mesh_unmap;
    t->remote.get = cdp__mesh_get;
    t->memory.alloc = cdp__mesh_alloc;
    t->memory.release = cdp__mesh_release;
    t->slots.memory = cdp__mesh_slots;
    t->slots.ring = cdp__mesh_doorbell;
#endif
    if (CDP__BY_HOST) t->topology.host = cdp__mesh_host;
}

/* Closes what is left of an attempt that has failed for the reason `why`. */
CDP__PRIVATE cdp_status cdp__mesh_undo(cdp__mesh *m, const cdp_error *why) {
    m->failing = true;
    while (cdp__mesh_leave(m, CDP__NEVER)) {
    }
    cdp__mesh_close(m);
    return cdp__error_record(why);
}

/* All that is needed to meet the other ranks. */
CDP__PRIVATE cdp_status cdp__mesh_make(const cdp_tcp_desc *d, cdp__mesh **out) {
    cdp__mesh *m = (cdp__mesh *)cdp__alloc_zero(d->group.os, sizeof *m);
    cdp_error why;
    cdp_status st;
    if (!m) return cdp__fail_nomem("a mesh", sizeof *m);
    m->desc = *d;
    cdp__format(m->job_name, sizeof m->job_name, "%s", d->job);
    m->spread = d->interfaces && d->connections > 1;
    m->os = d->group.os;
    st = cdp__auth_key_read(d->job_key, m->key, &m->keyed);
    if (st != CDP_OK) {
        cdp__free(m->os, m);
        return st;
    }
    st = cdp__mesh_open(m);
    if (st == CDP_OK) {
        *out = m;
        return CDP_OK;
    }
    why = *cdp_last_error();
    return cdp__mesh_undo(m, &why);
}

/* All ranks have met: the group. */
#ifdef CDP_NO_LOG_STRINGS
CDP__PRIVATE void cdp__mesh_log_start(const cdp__mesh *m) {
    (void)m;
}
#else
/* The ranks have met. */
CDP__PRIVATE CDP__COLD void cdp__mesh_log_start(const cdp__mesh *m) {
    const cdp_group_desc *const g = &m->desc.group;
    const char *store = "a store elsewhere";
    uint32_t i, hosts = 0;
    char at[80];
    if (m->desc.file) store = "a file";
    if (m->desc.store) store = "a store of the program";
    if (cdp__mesh_alone(m)) store = "addresses that were given";
    if (cdp__mesh_serves(m)) store = "a store that this rank serves";
    for (i = 0; m->hosts && i < g->world_size; ++i)
        hosts = (uint32_t)cdp__max(hosts, m->hosts[i] + 1);
    cdp__log(&g->logger, CDP_LOG_INFO, g->rank,
        "started in %llu ms: rank %u of %u, job '%s', %u hosts, met by %s; listens on %s; %s, %s%s",
        (unsigned long long)((cdp__mesh_now(m) - m->start_ns) / CDP__MS), g->rank, g->world_size,
        m->job_name, hosts, store, cdp__addr_text(&m->at, at, sizeof at),
        m->keyed ? "with a job key" : "without a job key",
        m->desc.mac ? "codes of all bytes" : "no codes",
        m->desc.no_shared_memory ? ", no shared memory" : "");
}
#endif

CDP__PRIVATE cdp_status cdp__mesh_group(cdp__mesh *m, cdp_group **out) {
    cdp_group_desc g = m->desc.group;
    cdp_transport t;
    cdp__mesh_log_start(m);
    /* the caller's texts are only valid while it starts */
    m->desc.master_addr = "";
    m->desc.listen_addr = m->desc.interfaces = m->desc.file = m->desc.job_key = NULL;
    m->desc.store = NULL;
    m->desc.exchange = NULL;
    m->desc.job = m->job_name;
    cdp__mesh_transport(m, &t);
    g.transport = &t;
    return cdp_group_create(&g, out);
}

CDP__PRIVATE cdp_status cdp__init_check(
    const cdp_tcp_desc *desc, const void *out, cdp_tcp_desc *d) {
    if (!out) return cdp__missing("cdp_init", "out");
    if (!desc) return cdp__missing("cdp_init", "desc");
    *d = cdp__tcp_desc_defaults(desc);
    return cdp__tcp_desc_check(d);
}

CDP_API cdp_status cdp_init(const cdp_tcp_desc *desc, cdp_group **out) {
    cdp_tcp_desc d;
    cdp__mesh *m = NULL;
    cdp_error why;
    cdp_status st;
    CDP__NOT_COLD();
    if (out) *out = NULL;
#ifndef CDP_NO_ENV
    if (desc && out && !cdp__backend_is_tcp(desc->backend)) return cdp__backend_start(desc, out);
#endif
    st = cdp__init_check(desc, out, &d);
    if (st != CDP_OK) return st;
    if (d.group.world_size == 1) return cdp_group_create(&d.group, out);
    st = cdp__mesh_make(&d, &m);
    if (st != CDP_OK) return st;
    st = cdp__mesh_rendezvous(m, &why);
    return st == CDP_OK ? cdp__mesh_group(m, out) : cdp__mesh_undo(m, &why);
}

#ifndef CDP_NO_FRAMES

struct cdp_starting {
    const cdp_os *os;
    uint32_t forks;       /* see cdp__is_child() */
    cdp_group_desc alone; /* of a rank without others */
    cdp__mesh *mesh;      /* NULL: there are none */
    cdp_status status;    /* PENDING while the ranks meet; then a failure that others still read */
    cdp_error error;
};

/* Where a start that is over is remembered: inside of it, because a group may soon have its
   address. */
CDP__PRIVATE const void *cdp__starting_mark(const cdp_starting *s) {
    return (const char *)s + 16;
}

/* Refuses a start that is over, and one that a parent by fork() has begun. */
CDP__PRIVATE cdp_status cdp__starting_lives(const cdp_starting *s, const char *call) {
    if (!s) return cdp__missing(call, "starting");
    if (cdp__ended(cdp__starting_mark(s)))
        return cdp__fail(CDP_ERR_STATE,
            "%s: this start is over: cdp_init_poll() has returned another status than PENDING, or "
            "it was cancelled",
            call);
    return cdp__is_child(s->forks) ? cdp__child_refuses(CDP_ERR_STATE, call, "start") : CDP_OK;
}

/* Its memory goes. */
CDP__PRIVATE void cdp__starting_free(cdp_starting *s) {
    cdp__ended_add(cdp__starting_mark(s));
    cdp__free(s->os, s);
}

CDP_API cdp_status cdp_init_start(const cdp_tcp_desc *desc, cdp_starting **out) {
    cdp_tcp_desc d;
    cdp_starting *s;
    cdp_status st;
    CDP__NOT_COLD();
    if (out) *out = NULL;
    st = cdp__init_check(desc, out, &d);
    if (st != CDP_OK) return st;
    s = (cdp_starting *)cdp__alloc_zero(d.group.os, sizeof *s);
    if (!s) return cdp__fail_nomem("a start", sizeof *s);
    cdp__ended_remove(cdp__starting_mark(s));
    s->os = d.group.os;
    s->forks = cdp__forks_watch();
    s->alone = d.group;
    s->status = CDP_PENDING;
    if (d.group.world_size > 1) st = cdp__mesh_make(&d, &s->mesh);
    if (st == CDP_OK)
        *out = s;
    else
        cdp__free(s->os, s);
    return st;
}

CDP_API void cdp_init_cancel(cdp_starting *s) {
    if (!s || cdp__starting_lives(s, "cdp_init_cancel") != CDP_OK) return;
    if (s->mesh) {
        cdp__join_free(s->mesh);
        /* its last will tells the others, unless its failure already has */
        if (s->status == CDP_PENDING && s->mesh->watch) cdp__tcp_store_abandon(s->mesh->watch);
        cdp__mesh_close(s->mesh);
    }
    cdp__starting_free(s);
}

/* One step of a start; waits until until_ns at most. A rank that could not start stays until the
   others have read the reason. */
CDP__PRIVATE cdp_status cdp__starting_step(cdp_starting *s, uint64_t until_ns) {
    cdp__mesh *m = s->mesh;
    cdp_status st = s->status;
    if (st == CDP_PENDING) st = cdp__join_go_on(m);
    if (st == CDP_PENDING) {
        if (!cdp__join_held(m->join)) cdp__join_run(m, until_ns);
        return CDP_PENDING;
    }
    if (st == CDP_OK) {
        cdp__join_free(m);
        return st;
    }
    if (s->status == CDP_PENDING) {
        s->error = m->join->error;
        s->status = st;
        cdp__join_free(m);
        m->leaving = true;
    }
    if (!m->part_ns && cdp__mesh_lingers(m, until_ns)) return CDP_PENDING;
    return cdp__mesh_parts(m, until_ns) ? CDP_PENDING : st;
}

/* It goes on, and the time in which all ranks must be found begins now. */
CDP__PRIVATE void cdp__starting_anew(cdp_starting *s) {
    cdp__mesh *m = s->mesh;
    if (!m) return;
    m->join->hold = 0;
    m->start_ns = cdp__mesh_now(m);
    m->join->deadline_ns = cdp__mesh_init_deadline(m);
}

/* A start for which the caller exchanges what *own is: a record of this rank, valid until the start
   continues. See cdp__mesh_given(). */
CDP__PRIVATE cdp_status cdp__starting_given(
    const cdp_tcp_desc *desc, const uint8_t *job, cdp_bytes *own, cdp_starting **out) {
    cdp_error why;
    cdp_status st = cdp_init_start(desc, out);
    own->data = "1";
    own->bytes = 1;
    if (st != CDP_OK || !(*out)->mesh) return st;
    st = cdp__mesh_given((*out)->mesh, job, desc->store);
    *own = (*out)->mesh->join->values[0];
    if (st == CDP_OK) return st;
    why = *cdp_last_error();
    cdp_init_cancel(*out);
    *out = NULL;
    return cdp__error_record(&why);
}

/* The records of all ranks, in their order: the start goes on, and its time begins now. */
CDP__PRIVATE cdp_status cdp__starting_give(cdp_starting *s, const cdp_bytes *records) {
    const cdp_status st = s->mesh ? cdp__mesh_take_records(s->mesh, records) : CDP_OK;
    if (st == CDP_OK) cdp__starting_anew(s);
    return st;
}

/* Continues the start of rank 0 up to where it needs others, who can read then where it listens.
   For that, it connects to nothing but itself. It waits for nothing when this returns: a time limit
   would pass while nobody continues it. */
CDP__PRIVATE cdp_status cdp__starting_publish(cdp_starting *s) {
    cdp__mesh *m = s->mesh;
    cdp_status st = s->status;
    if (m) m->join->hold = CDP__JOIN_OTHERS;
    while (m && st == CDP_PENDING && !(m->join && cdp__join_held(m->join)))
        st = cdp__starting_step(s, cdp__deadline(s->os, 100));
    return st < 0 ? cdp__error_record(&s->error) : CDP_OK;
}

CDP_API cdp_status cdp_init_poll(cdp_starting *s, uint32_t budget_us, cdp_group **out) {
    uint64_t until;
    cdp_status st = CDP_OK;
    cdp_error e;
    if (!out) return cdp__missing("cdp_init_poll", "out");
    *out = NULL;
    if (cdp__starting_lives(s, "cdp_init_poll") != CDP_OK) return cdp_last_error()->status;
    until = budget_us ? s->os->now_ns(s->os->user) + budget_us * 1000ull : 0;
    do
        if (s->mesh) st = cdp__starting_step(s, until);
    while (st == CDP_PENDING && s->os->now_ns(s->os->user) < until);
    if (st == CDP_PENDING) return st;
    if (st == CDP_OK) {
        st = s->mesh ? cdp__mesh_group(s->mesh, out) : cdp_group_create(&s->alone, out);
        cdp__starting_free(s);
        return st;
    }
    e = s->error;
    cdp_init_cancel(s);
    return cdp__error_record(&e);
}

#endif /* CDP_NO_FRAMES */

#ifndef CDP_NO_ENV

CDP__PRIVATE const char *cdp__getenv(void *user, const char *name) {
    (void)user;
    return getenv(name);
}

CDP_API cdp_status cdp_launch_read(cdp_getenv_func get, void *user, cdp_launch *out) {
    cdp__vars v;
    if (!out) return cdp__missing("cdp_launch_read", "out");
    v.get = get ? get : cdp__getenv;
    v.user = user;
    CDP__NOT_COLD();
    return cdp__launch_read(&v, out);
}

/* The file in which the ranks of one host meet if their launcher gives no port. */
CDP__PRIVATE void cdp__launch_file(const cdp_launch *l, char *file, uint64_t size) {
    const char *dir = l->dir[0] ? l->dir : cdp__os_temporary();
    const unsigned user = cdp__os_user_number();
    if (l->job[0]) {
        cdp__format(file, size, "%s/cdp-%u-%s", dir, user, l->job);
        return;
    }
    /* Hydra has one parent process per host */
    cdp__format(file, size, "%s/cdp-%u-parent-%u", dir, user, (unsigned)cdp__os_parent_number());
}

CDP__PRIVATE cdp_status cdp__log_level_read(const char *text, cdp_log_level *level) {
    static const char *const names[] = {"", "error", "warn", "info", "debug", "silent"};
    uint32_t i;
    for (i = 0; i < sizeof names / sizeof names[0]; ++i)
        if (!text || strcmp(text, names[i]) == 0) {
            *level = text ? (cdp_log_level)i : CDP_LOG_DEFAULT;
            return CDP_OK;
        }
    return cdp__fail(CDP_ERR_INVALID,
        "the environment variable CDP_LOG_LEVEL is '%s'; set it to error, warn, info, debug or "
        "silent",
        text);
}

/* Sets *flag if the variable is 1. */
CDP__PRIVATE cdp_status cdp__flag_read(const char *name, bool *flag) {
    const cdp__vars own = {cdp__getenv, NULL};
    uint32_t on = 0;
    const cdp_status st = cdp__var(&own, name) ? cdp__var_number(&own, name, 0, 1, &on) : CDP_OK;
    if (on) *flag = true;
    return st;
}

/* The environment of a program that has given both numbers: half of them there means nothing. */
CDP__PRIVATE const char *cdp__getenv_else(void *user, const char *name) {
    if (strcmp(name, "RANK") == 0 || strcmp(name, "WORLD_SIZE") == 0) return NULL;
    return cdp__getenv(user, name);
}

/* One of the two numbers that the caller has given, where the environment has the other one. */
typedef struct cdp__env_number {
    const char *name;
    char text[16];
} cdp__env_number;

CDP__PRIVATE const char *cdp__getenv_and(void *user, const char *name) {
    const cdp__env_number *const given = (const cdp__env_number *)user;
    return strcmp(name, given->name) == 0 ? given->text : cdp__getenv(NULL, name);
}

/* Reads the environment: numbers that the caller has given count before those in it. */
CDP__PRIVATE cdp_status cdp__launch_read_given(
    const cdp_tcp_desc *d, bool has_rank, bool has_size, cdp_launch *l) {
    const cdp__vars own = {cdp__getenv, NULL};
    const bool rank = cdp__var(&own, "RANK") != NULL, size = cdp__var(&own, "WORLD_SIZE") != NULL;
    cdp__env_number given;
    if (rank == size) return cdp_launch_read(NULL, NULL, l);
    if (has_rank && has_size) return cdp_launch_read(cdp__getenv_else, NULL, l);
    if (rank ? !has_size : !has_rank) return cdp_launch_read(NULL, NULL, l);
    given.name = rank ? "WORLD_SIZE" : "RANK";
    cdp__format(given.text, sizeof given.text, "%u", rank ? d->group.world_size : d->group.rank);
    return cdp_launch_read(cdp__getenv_and, &given, l);
}

/* How its user passes variables. */
CDP__PRIVATE CDP__COLD const char *cdp__launch_hint(const char *launcher) {
    if (strcmp(launcher, "openmpi") == 0)
        return "as in mpirun -x MASTER_ADDR=node-0 -x MASTER_PORT=29500";
    if (strcmp(launcher, "flux") == 0)
        return "as in flux run --env=MASTER_ADDR=node-0 --env=MASTER_PORT=29500";
    return "as in mpiexec -genv MASTER_ADDR node-0 -genv MASTER_PORT 29500";
}

/* What is in the desc already wins: the caller has given it. */
CDP__PRIVATE cdp_status cdp__desc_from_env(cdp_tcp_desc *d, bool has_rank, bool has_size) {
    static CDP__THREAD_LOCAL cdp_launch l;
    static CDP__THREAD_LOCAL char file[400];
    const cdp__vars own = {cdp__getenv, NULL};
    cdp_status st;
    st = cdp__launch_read_given(d, has_rank, has_size, &l);
    if (st == CDP_OK && !l.launcher[0] && !d->alone_ok && !(has_rank && has_size))
        st = cdp__fail(CDP_ERR_INVALID,
            "the environment variable RANK is not set; start the program with `cdprun -n 4 "
            "PROGRAM`, torchrun, mpirun or srun, or set RANK, WORLD_SIZE, MASTER_ADDR and "
            "MASTER_PORT (to run alone: alone_ok in the desc, or RANK=0 WORLD_SIZE=1)");
    if (st != CDP_OK) return st;
    if (!l.launcher[0]) l.world_size = 1;
    if (!has_rank) d->group.rank = l.rank;
    if (!has_size) d->group.world_size = l.world_size;
    if (!d->master_port) d->master_port = l.master_port;
    if (l.master_addr[0] && !d->master_addr) d->master_addr = l.master_addr;
    if (!d->job_key) d->job_key = getenv("CDP_JOB_KEY");
    if (!d->interfaces) d->interfaces = getenv("CDP_INTERFACES");
    if (!d->backend) d->backend = cdp__var(&own, "CDP_BACKEND");
    if (!d->connections && cdp__var(&own, "CDP_CONNECTIONS"))
        st = cdp__var_number(&own, "CDP_CONNECTIONS", 1, 16, &d->connections);
    if (st == CDP_OK) st = cdp__flag_read("CDP_MAC", &d->mac);
    if (st == CDP_OK) st = cdp__flag_read("CDP_TRUST_NETWORK", &d->trust_network);
    if (st == CDP_OK && d->group.logger.level == CDP_LOG_DEFAULT)
        st = cdp__log_level_read(getenv("CDP_LOG_LEVEL"), &d->group.logger.level);
    if (st == CDP_OK && !d->group.logger.lines_per_second && cdp__var(&own, "CDP_LOG_LINES"))
        st = cdp__var_number(&own, "CDP_LOG_LINES", 1, 1000000, &d->group.logger.lines_per_second);
    if (st != CDP_OK) return st;
    if (l.external_store) d->external_store = true;
    if (l.job[0] && !d->job) d->job = l.job;
    if (d->group.world_size == 1 || l.master_port || d->master_port || d->file || d->store
        || d->exchange)
        return CDP_OK;
    if (!cdp__backend_is_tcp(d->backend)
        && (!l.launcher[0] || !strcmp(l.launcher, "torchrun") || l.local_size != l.world_size))
        return CDP_OK; /* a backend of the program may need no port */
    if (!l.launcher[0] || strcmp(l.launcher, "torchrun") == 0)
        return cdp__fail(CDP_ERR_INVALID,
            "the environment variable MASTER_PORT is not set; set it to a port that is free on "
            "rank 0's machine, and MASTER_ADDR to that machine");
    if (l.local_size != l.world_size)
        return cdp__fail(CDP_ERR_INVALID,
            "%s has started %u ranks on several machines and does not say where rank 0 is: pass "
            "MASTER_ADDR (the machine of rank 0) and MASTER_PORT (a free port there) to all ranks, "
            "%s",
            l.launcher, l.world_size, cdp__launch_hint(l.launcher));
    cdp__launch_file(&l, file, sizeof file);
    d->file = file;
    return CDP_OK;
}

CDP_API cdp_status cdp_tcp_desc_from_env(cdp_tcp_desc *d) {
    bool given;
    if (!d) return cdp__missing("cdp_tcp_desc_from_env", "desc");
    given = d->group.world_size > 0;
    return cdp__desc_from_env(d, given, given);
}

CDP_API cdp_status cdp_tcp_desc_from_url(const char *url, cdp_tcp_desc *d) {
    static CDP__THREAD_LOCAL cdp__url u;
    bool given;
    cdp_status st;
    if (!url) return cdp__missing("cdp_tcp_desc_from_url", "url");
    if (!d) return cdp__missing("cdp_tcp_desc_from_url", "desc");
    st = cdp__url_parse(url, &u);
    if (st != CDP_OK) return st;
    given = d->group.world_size > 0;
    if (u.has_rank) d->group.rank = u.rank;
    if (u.has_size) d->group.world_size = u.world_size;
    if (u.backend[0]) d->backend = u.backend;
    if (u.kind == CDP__URL_ENV)
        return cdp__desc_from_env(d, u.has_rank || given, u.has_size || given);
    if (u.kind == CDP__URL_TCP) {
        d->master_addr = u.host;
        d->master_port = u.port;
    }
    if (u.kind == CDP__URL_FILE) d->file = u.host;
    return CDP_OK;
}

CDP_API cdp_status cdp_init_url(const char *url, const cdp_tcp_desc *desc, cdp_group **out) {
    cdp_tcp_desc d;
    cdp_status st;
    if (out) *out = NULL;
    memset(&d, 0, sizeof d);
    if (desc) d = *desc;
    st = cdp_tcp_desc_from_url(url, &d);
    return st == CDP_OK ? cdp_init(&d, out) : st;
}

CDP_API cdp_status cdp_init_from_env(const cdp_tcp_desc *desc, cdp_group **out) {
    cdp_tcp_desc d;
    cdp_status st;
    if (out) *out = NULL;
    memset(&d, 0, sizeof d);
    if (desc) d = *desc;
    st = cdp_tcp_desc_from_env(&d);
    return st == CDP_OK ? cdp_init(&d, out) : st;
}

#endif /* CDP_NO_ENV */

#endif /* CDP_TCP_IMPL_INCLUDED */
