/*  cdp_tcp.h - process groups over TCP - v0.2.0 - MIT-0 or Unlicense

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
        desc        cdp_tcp_desc
        create      cdp_init, cdp_init_url, cdp_init_from_env, and what fills in a desc
        launch      cdp_launch_read: rank, size and local rank from a launcher's variables
        (implementation)
        handshake   the first messages of two processes
        paths       which addresses of a peer are tried, and in what order
        mac         records with an authentication code
        memory      shared memory of two ranks of one machine
        link        one connection and its states
        mesh        all links of a rank, and what it listens at
        link-streams  connections that make one link, and what goes over them
        link-choosing, link-connecting, incoming: how a connection becomes a link
        transport   the mesh as the transport of a group
        first-cause what the store knows of a failure
        rendezvous, rendezvous-steps, rendezvous-meeting: how ranks find rank 0, compare settings
                    and exchange addresses
        launchers, url, public

    API BY TASK
        I want to...                                       call
        join the job that cdprun or torchrun started       cdp_init_from_env(NULL, &group)
        the same, under srun, mpirun or mpiexec            cdp_init_from_env(NULL, &group)
        set rank, size and rank 0's address myself         cdp_init(&desc, &group)
        join without blocking                              cdp_init_start, cdp_init_poll
        give them as one text                              cdp_init_url("tcp://node-0:29500", ...)
        meet in a file, a store, or over MPI               desc.file, desc.store, desc.exchange
        know my number among the ranks of this machine     cdp_launch_read
        read the variables, then change something          cdp_tcp_desc_from_env, then cdp_init
        leave                                              cdp_group_destroy(group), see cdp.h

    CONFIGURATION
        Macros: those of cdp.h and cdp_store.h. All other settings are in the desc; those that
        every group has are in its member `group`. Only the functions with `env` in their name,
        and cdp_launch_read, read environment variables. These must be equal in all files:
        CDP_NO_ENV             no cdp_init_from_env, cdp_init_url, cdp_launch_read,
                               cdp_tcp_desc_from_env, cdp_tcp_desc_from_url: fill in a cdp_tcp_desc
        CDP_NO_SHARED_MEMORY   ranks of one host use TCP, as with no_shared_memory
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
        on. That memory consists of segments: up to 128 for each rank, each a descriptor and at
        least 1 MiB, reserved when allocated. A peer maps a segment read-only when it first receives
        something from it, and unmaps it when it is freed or the owner has ended (with
        group.no_thread in cdp_group_destroy(), because that may take 0.1 ms per MiB). Other memory
        is read by the receiver (process_vm_readv) from 64 KiB on, and from 256 KiB on for data that
        is only forwarded, if the system permits that when the link is made; containers and Yama
        often do not. Everything else, and whatever cannot be read when the time comes, goes through
        the ring buffers.

    MEMORY
        16 KiB of receive buffer for each connection, made with it; 145 KiB with `mac`. 7 KiB and
        twice ring_bytes (256 KiB) for each pair of ranks of one machine, together. Rank 0 also
        holds the store: about 1 KiB for each rank.
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
        job without a key to everybody who can reach its ports.
        A store that somebody else serves (`external_store`, torchrun's agent) has no keys: links
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

#define CDP_TCP_VERSION 200 /* major * 10000 + minor * 100 + patch */
#if CDP_TCP_VERSION != CDP_VERSION
#error "cdp_tcp.h and cdp.h are of different versions: copy all headers from the same release"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- >>desc ---------------------------------------------------------------------------------- */

typedef struct cdp_tcp_desc {
    /* rank and world_size (required), timeout_ms, os, logger and all that holds for any group.
       hub and transport stay NULL: cdp_init() makes the transport. small_bytes, piece_bytes,
       reproducible and choices must be equal on all ranks, and are compared. */
    cdp_group_desc group;
    /* address or name of rank 0's machine (default: "127.0.0.1") */
    const char *master_addr;
    /* required (unless world_size is 1): where rank 0 serves the store */
    uint16_t master_port;
    /* somebody else (torchrun's agent) serves the store there, not rank 0 */
    bool external_store;
    /* secret of this job, the same on all ranks (default: none; one machine only) */
    const char *job_key;
    /* without a job_key, work with other machines, too: whoever reaches them can join in */
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
    /* this rank listens at this literal address only (default: see SECURITY) */
    const char *listen_addr;
    /* in a job over several machines: the others reach this rank over these interfaces, */
    const char *interfaces;
    /* names or how they begin: "eth0,ib"; "^docker,veth": all but these (default: all)    */
    /* between each pair of ranks, 1 to 16, the same on all ranks (default: 1): for links */
    uint32_t connections;
    /* that one flow does not fill. With `interfaces`, in turn over these, each of which   */
    /* must be in a network of its own                                                     */
    /* ranks other than 0 listen at a port from here on (default: any free one) */
    uint16_t first_port;
    /* up to here (default: first_port) */
    uint16_t last_port;
    /* ranks of one machine talk over TCP, too; one that says so counts for its links */
    bool no_shared_memory;
    /* memory through which two ranks of one machine talk, each way, 64 to 2^30 (default: 256
       KiB) */
    uint64_t ring_bytes;
    /* rank 0: listen_fd is a socket that listens at master_port already, inherited from */
    bool has_listen_fd;
    /* whoever started it; closed in the end, also when cdp_init() fails */
    int32_t listen_fd;
    /* prefix of this job's keys in the store: one name per job (default: "cdp") */
    const char *job;
    /* how long to wait for all ranks (default: 300000; CDP_NO_TIMEOUT: for ever) */
    uint32_t init_timeout_ms;
} cdp_tcp_desc;

/* ---- >>create -------------------------------------------------------------------------------- */

/* Join the job: meet the other ranks through the store, then return this rank's group. Blocks
   until every rank is there, at most init_timeout_ms. Errors: see the top of this file; nothing
   is left behind after one. */
CDP_MUST_CHECK CDP_API cdp_status cdp_init(const cdp_tcp_desc *desc, cdp_group **out);

#ifndef CDP_NO_FRAMES
/* A job that this rank is about to join. */
typedef struct cdp_starting cdp_starting;

/* cdp_init() for a program that must not block: checks *desc and begins to join; cdp_init_poll()
   goes on with it. The texts and the store of *desc must stay valid until that ends. Errors:
   INVALID, UNSUPPORTED, NOMEM, IO (too few descriptors), and then *out is NULL. A name in
   master_addr (rank 0), a file that another process has locked and `exchange` may still block: use
   an address and master_port. */
CDP_MUST_CHECK CDP_API cdp_status cdp_init_start(const cdp_tcp_desc *desc, cdp_starting **out);

/* Goes on for at most `budget_us` microseconds (0: one look, without waiting). CDP_PENDING: call it
   again. Everything else ends the start and releases it: CDP_OK, then *out is this rank's group;
   or what cdp_init() would have returned. One thread at a time. */
CDP_MUST_CHECK CDP_API cdp_status cdp_init_poll(
    cdp_starting *starting, uint32_t budget_us, cdp_group **out);

/* Ends a start at once and releases it; NULL is allowed. The other ranks' starts fail: they are
   told that this rank has ended. */
CDP_API void cdp_init_cancel(cdp_starting *starting);
#endif /* CDP_NO_FRAMES */

#ifndef CDP_NO_ENV
/* Fill in rank, world_size and how to find rank 0 from the variables that a launcher has set:
   cdprun, torchrun, mpirun of Open MPI, mpiexec of MPICH (Hydra), srun of Slurm; see
   cdp_launch_read() for which. MASTER_ADDR and MASTER_PORT count in any case. Without them:
   under torchrun and cdprun, 127.0.0.1 and an error; under Slurm, the first node of the step and
   a port made from the numbers of job and step; under MPI with all ranks on one machine, a file
   named after the job (Open MPI: in its session directory; MPICH: after the parent process, in
   TMPDIR), so any number of jobs can start at once; under MPI on several machines an error that
   says what to pass. With TORCHELASTIC_USE_AGENT_STORE=True also external_store
   (TORCHELASTIC_RESTART_COUNT is not read: it differs between the agents of one start);
   CDP_JOB_KEY becomes job_key unless there is one, and CDP_TRUST_NETWORK=1 (`cdprun --open`)
   sets trust_network; CDP_MAC=1 sets mac; CDP_INTERFACES is `interfaces`, CDP_CONNECTIONS
   `connections`, and CDP_LOG_LEVEL (error, warn, info, debug, silent) logger.level, unless the desc
   has them. The texts are valid until the environment changes or this thread calls this again.
   Errors: INVALID, naming the variable, what it holds and what it should hold. */
CDP_MUST_CHECK CDP_API cdp_status cdp_tcp_desc_from_env(cdp_tcp_desc *desc);

/* cdp_tcp_desc_from_env() on a copy of *desc (NULL: all defaults), then cdp_init(). */
CDP_MUST_CHECK CDP_API cdp_status cdp_init_from_env(const cdp_tcp_desc *desc, cdp_group **out);

/* Fill in how to find rank 0 from one text:
       env://                  cdp_tcp_desc_from_env()
       tcp://HOST:PORT         master_addr and master_port; HOST as in [fe80::1%eth0] if it has
                               colons
       file:///PATH            file
   Each may go on with ?rank=R&world_size=N. The texts are valid until this thread calls this
   again. Errors: INVALID. */
CDP_MUST_CHECK CDP_API cdp_status cdp_tcp_desc_from_url(const char *url, cdp_tcp_desc *desc);

/* cdp_tcp_desc_from_url() on a copy of *desc (NULL: all defaults), then cdp_init(). */
CDP_MUST_CHECK CDP_API cdp_status cdp_init_url(
    const char *url, const cdp_tcp_desc *desc, cdp_group **out);
#endif /* CDP_NO_ENV */

/* ---- >>launch -------------------------------------------------------------------------------- */

#ifndef CDP_NO_ENV
/* The value of a variable, or NULL, as getenv() has it; the text stays as it is until the call
   that asks for it returns. */
typedef const char *(*cdp_getenv_func)(void *user, const char *name);

/* What a launcher says to a process in variables. */
typedef struct cdp_launch {
    /* "torchrun" (cdprun says the same), "openmpi", "mpich", "slurm"; "" when there is none */
    char launcher[12];
    uint32_t rank, world_size;
    /* among the ranks of this machine; local_size 0: not said */
    uint32_t local_rank, local_size;
    /* "": not said and not known */
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
inline cdp_status cdp_init(const cdp_tcp_desc &desc, cdp_group **out) {
    return cdp_init(&desc, out);
}
#ifndef CDP_NO_ENV
inline cdp_status cdp_init_url(const char *url, const cdp_tcp_desc &desc, cdp_group **out) {
    return cdp_init_url(url, &desc, out);
}
#endif
#endif
#endif /* CDP_TCP_INCLUDED */

#if (defined(CDP_IMPLEMENTATION) || defined(CDP_TCP_IMPLEMENTATION)) \
    && !defined(CDP_TCP_IMPL_INCLUDED)
#define CDP_TCP_IMPL_INCLUDED
#undef CDP__HERE
#define CDP__HERE CDP__FILE_TCP

#ifdef __cplusplus
extern "C" {
#endif

/* ---- >>handshake (pure): what two processes say before anything else ------------------------- */

/* Knows: the messages of the handshake. Promises: one connection is chosen by both sides; a
   stranger costs a few hundred bytes. May use: bytes of cdp.h, auth of cdp_store.h. */

/* The rank with the higher number connects, over several of the other's addresses at once, and
   says HELLO on each; the other answers WELCOME, or REFUSED with a reason; on the connection
   whose WELCOME came first follows CHOSEN, and that one is the link. Each is 64 bytes. Nothing
   else is read from a connection before its HELLO was found right, so that strangers and ranks
   of other jobs cost a few hundred bytes and get no further. Ranks of one machine go on in
   memory that both see. HELLO says whether that is wanted, WELCOME under which name the peer
   waits for it in the machine; who connects makes the memory, hands it over there, and says with
   CHOSEN what is written in it. When CHOSEN says nothing of the kind, the link is up. Else it is
   up with TAKEN, which says whether it went well: bytes go through memory in both directions, or
   `refusal` is 1 and they go through TCP. */
typedef enum cdp__hello_type {
    CDP__HELLO = 1,
    CDP__WELCOME = 2,
    CDP__REFUSED = 3,
    CDP__CHOSEN = 4,
    CDP__TAKEN = 5,
    CDP__INVITE = 6 /* from the lower rank, which awaits the connection: make it now */
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
#define CDP__REFUSE_KEY 100u /* more than this: a cdp__auth_refusal, heard before any hello */
#define CDP__JOB_BYTES 16u
#define CDP__NAME_BYTES 12u
#define CDP__PLACE_BYTES 20u /* of an address record: host, place and number of the process */

typedef struct cdp__hello {
    uint32_t type, version, world_size, from, to, refusal;
    uint8_t job[CDP__JOB_BYTES];
    /* of the connections between these two; what a listener is judged by: how many there are */
    uint32_t index;
    uint8_t memory[CDP__NAME_BYTES]; /* zeros: not wanted, or not possible */
    uint8_t order;                   /* cdp__byte_order() of the sender */
    uint8_t mac;                     /* 1: after the greetings bytes travel in records of >>mac */
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

/* False for bytes that are no hello of any version. */
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

/* ---- >>paths (pure): which addresses of a peer to try, and in what order --------------------- */

/* Knows: addresses of this rank and of a peer. Promises: addresses with a shorter way come
   first. May use: addr of cdp_store.h. */

#define CDP__ADDRS 12u /* that a rank publishes at most */
#define CDP__PATHS 16u /* that are tried at most        */

CDP__PRIVATE bool cdp__addr_loopback(const cdp_addr *a) {
    static const uint8_t one[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
    return a->family == 4 ? a->ip[0] == 127 : memcmp(a->ip, one, 16) == 0;
}

CDP__PRIVATE bool cdp__addr_link_local(const cdp_addr *a) {
    return a->family == 6 && a->ip[0] == 0xfe && (a->ip[1] & 0xc0) == 0x80;
}

/* "All interfaces." */
CDP__PRIVATE bool cdp__addr_any(const cdp_addr *a) {
    static const uint8_t none[16] = {0};
    return memcmp(a->ip, none, a->family == 4 ? 4 : 16) == 0;
}

/* How many bits two addresses begin with in common. */
CDP__PRIVATE uint32_t cdp__addr_common(const cdp_addr *a, const cdp_addr *b) {
    const uint32_t bits = a->family == 4 ? 32 : 128;
    uint32_t i = 0;
    if (a->family != b->family) return 0;
    while (i < bits && !((a->ip[i / 8] ^ b->ip[i / 8]) >> (7 - i % 8) & 1))
        ++i;
    return i;
}

/* "10.0.0.1:4711,[fd00::1]:4711" to addresses. Returns how many; 0 for what is no such list. */
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
    cdp__text t = {dst, size, 0};
    char one[80];
    uint32_t i;
    dst[0] = 0;
    for (i = 0; i < n; ++i) {
        cdp__addr_text(&a[i], one, sizeof one);
        if (t.used + strlen(one) + 2 < size) cdp__text_add(&t, i ? ",%s" : "%s", one);
    }
}

/* The lower, the better: the same network, other networks (the nearer by its number the better),
   link-local ones; last what another machine can hardly mean: an address that this one has, too
   (each machine has its own docker0), and loopback. */
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

/* How far an address is away, without regard to its number. */
CDP__PRIVATE uint32_t cdp__path_class(const cdp_addr *mine, uint32_t n, const cdp_addr *a) {
    const uint32_t cost = cdp__path_cost(mine, n, a, false);
    return cost > 100 && cost < 500 ? 300 : cost;
}

/* Of those to connect to, the ones that are as good as the first take turns at being it. An
   address of the other kind is often that of an interface that has its turn already. */
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
#ifndef CDP_NO_MAC

/* ---- >>mac: records with an authentication code ---------------------------------------------- */

/* Knows: the keys, counters and buffers of one connection. Promises: a byte is handed out only
   after the code of its record was found right; send reports a record whole only when the system
   has all of it. May use: auth of cdp_store.h, bytes and loop of cdp.h. */

/* With `mac`, what follows the greetings of a connection is records, one after the other:

       length of the body (2)   check (6)   body (1 to 16384)   code (16)

   The code is that of the record's number, the first eight bytes and the body. The check is how the
   code of number and length begins: a changed length is noticed at once, and not by waiting for
   bytes that never come. The number is not sent, both ends count: a record that is repeated, left
   out or moved does not match. Each direction of each connection has its own key: the hash, keyed
   with the job's key, of both nonces of the proof and of CHOSEN, so both ends also agree on ranks,
   job and index of the connection.

   SipHash-2-4 with a result of 128 bits, because it is faster than keyed BLAKE2s and Poly1305 here
   (tests/bench/NOTES.md), takes the least code, and needs no key of its own for each record. */
#define CDP__MAC_BODY 16384u
#define CDP__MAC_HEAD 8u
#define CDP__MAC_CODE 16u
#ifndef CDP__MAC_RECORDS
#define CDP__MAC_RECORDS 4u /* that are moved with one system call */
#endif
#define CDP__MAC_BYTES (CDP__MAC_RECORDS * (CDP__MAC_HEAD + CDP__MAC_BODY + CDP__MAC_CODE))

typedef struct cdp__mac {
    /* [0]: receiving, [1]: sending; number: records verified, or made, so far */
    uint64_t key[2][2], number[2];
    uint32_t in_at, in_used;     /* received and not found right yet */
    uint32_t body_at, body_left; /* found right and not handed out yet */
    uint32_t out_at, out_used;   /* made and not sent yet */
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

/* SipHash-2-4 of the eight bytes of `first` and of `data`. The four rounds that end each half of
   the result are those of two words of zeros. */
CDP__PRIVATE void cdp__sip(const uint64_t key[2], uint64_t first, const uint8_t *data,
    uint64_t bytes, uint8_t out[CDP__MAC_CODE]) {
    static const uint8_t zeros[16] = {0};
    uint64_t v[4];
    uint8_t word[8];
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
    cdp__sip_words(v, zeros, 2);
    cdp__put_u64(out, v[0] ^ v[1] ^ v[2] ^ v[3]);
    v[1] ^= 0xdd;
    cdp__sip_words(v, zeros, 2);
    cdp__put_u64(out + 8, v[0] ^ v[1] ^ v[2] ^ v[3]);
}

/* Writes head and code around a body that lies behind the room for its head. Returns the bytes of
   the record. */
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

/* The bytes of the record of this number that begins here: 0: more than `bytes` are needed to know;
   -EBADMSG: it is not what was sent. *whole: all of it is here, and right. */
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

/* The keys of both directions; [0] is that of what the listener receives. */
CDP__PRIVATE void cdp__mac_keys(const uint8_t key[CDP__AUTH_BYTES], uint8_t nonce[2][16],
    const uint8_t chosen[CDP__HELLO_BYTES], uint64_t keys[2][2]) {
    uint8_t data[8 + 32 + CDP__HELLO_BYTES], hash[32];
    uint32_t i;
    memset(data, 0, 8);
    data[0] = CDP__AUTH_LINK;
    data[1] = 2; /* a proof has 0 or 1 there */
    memcpy(data + 8, nonce, 32);
    memcpy(data + 40, chosen, CDP__HELLO_BYTES);
    cdp__blake2s(key, CDP__AUTH_BYTES, data, sizeof data, hash, sizeof hash);
    for (i = 0; i < 4; ++i)
        keys[i / 2][i % 2] = cdp__get_u64(hash + 8 * i);
    cdp__wipe(hash, sizeof hash);
}

/* NULL: out of memory. */
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

/* 1: everything made is sent; 0: the socket takes no more now; or a negative errno. */
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

/* Copies up to `room` bytes of the pieces, from byte `from` of them all on. Returns how many. */
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

/* As cdp__io_send(). While part of a record still waits for room in the socket, its last byte is
   reported as not taken: so the caller comes again, and nothing that was reported as taken waits
   here. That byte is in the middle of a message: the caller brings it first the next time. */
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

/* The next record is found right: 1; 0: it is not there yet; else as cdp__io_recv(). */
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

/* As cdp__io_drain(). What is received and not handed out keeps the socket ready. */
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

/* ---- >>memory: what two processes of one host share ------------------------------------------ */

/* Knows: memory that the os shares between processes, and how far a process can read another
   one's. The line between two ranks is that of >>fabric in cdp.h. Promises: values that the peer
   stores are read once and checked. May use: os, and fabric of cdp.h. */

#define CDP__SEGMENTS 128u                 /* of a rank, at once */
#define CDP__SEGMENT_BYTES (1024u * 1024u) /* at least: what is smaller shares one */
/* how a rank can read the other's memory: any of it; segments */
#define CDP__READS_ANY 1u
#define CDP__READS_SEGMENTS 2u

/* What one rank of a pair stores, but for the counts of the doorbell. */
typedef struct cdp__side {
    cdp__doorbell bell;
    /* where this side keeps the proof for itself: who reads it there can read everything */
    uint64_t proof_at;
    uint32_t reads; /* CDP__READS_... */
    uint32_t freed; /* grows when a segment of this side ends */
    uint8_t pad_[48];
    /* of this side: which of the descriptors that it has passed, from 1 on; 0: none */
    uint32_t segments[CDP__SEGMENTS];
} cdp__side;

/* Memory of cdp_group_alloc(). */
typedef struct cdp__segment {
    uint8_t *at;
    uint64_t bytes, used;
    uint32_t live; /* allocations; with the last one it is closed */
    int32_t fd;
} cdp__segment;

/* A segment of the peer, mapped here. */
typedef struct cdp__mapping {
    const uint8_t *at;
    uint64_t bytes;
    uint32_t number;
} cdp__mapping;

typedef struct cdp__pair {
    /* equal to what CHOSEN says: so both know that they see the same memory */
    uint8_t proof[CDP__NAME_BYTES];
    uint32_t taken; /* the other side has mapped it */
    uint8_t pad_[48];
    cdp__side side[2]; /* 0: of the rank that made it */
} cdp__pair;           /* the two ways follow, each with its ring: first the one out of side 0 */

typedef struct cdp__shared {
    cdp__pair *pair;
    uint64_t bytes; /* of all of it */
    cdp__line line;
    cdp__side *mine, *theirs;
    const cdp_os *os;
    uint32_t seen[2]; /* of this side's doorbell */
    uint8_t proof[CDP__NAME_BYTES];
    int32_t pid; /* of the peer, if its memory can be read; else 0 */
    cdp__mapping mappings[CDP__SEGMENTS];
    bool told[CDP__SEGMENTS];  /* this rank has passed that segment to the peer */
    uint32_t passed, received; /* descriptors */
    uint32_t freed;            /* the peer's count of freed segments when it was last read */
    int32_t bell;              /* wakes the peer */
    int32_t pass;              /* descriptors of segments */
    int32_t memory;            /* descriptor, until the peer has mapped it */
    bool taken;                /* the peer has mapped it */
    struct cdp__shared *next;
} cdp__shared;

/* One pass over the places of the peer's segments: unmaps those that the peer has freed (`all`:
   every one), and maps descriptor `fd` (-1: none), the latest that came, at its place. */
CDP__PRIVATE void cdp__shared_remap(cdp__shared *s, int32_t fd, bool all) {
    const cdp_os *os = s->os;
    uint32_t i;
    for (i = 0; i < CDP__SEGMENTS; ++i) {
        cdp__mapping *v = &s->mappings[i];
        const uint32_t number = __atomic_load_n(&s->theirs->segments[i], __ATOMIC_ACQUIRE);
        if (v->at && (all || number != v->number)) {
            os->shared.unmap(os->user, (void *)(uintptr_t)v->at, v->bytes);
            v->at = NULL;
        }
        if (fd < 0 || v->at || number != s->received) continue;
        /* as long as the memory behind the descriptor, whatever the peer says */
        v->at = (const uint8_t *)os->shared.map(os->user, fd, false, &v->bytes);
        v->number = number;
    }
}

/* Unmaps segments that the peer has freed (`all`: every one), and maps those that it has passed. A
   place may have a new segment since it was last read: its number is read once for both. */
CDP__PRIVATE void cdp__shared_tidy(cdp__shared *s, bool all) {
    const cdp_os *os = s->os;
    int32_t fd = -1;
    uint32_t tries = 0;
    bool more;
    s->freed = __atomic_load_n(&s->theirs->freed, __ATOMIC_ACQUIRE);
    do {
        more = !all && tries++ < CDP__SEGMENTS
            && os->shared.pass(os->user, s->pass, &fd, 1, false) >= 0;
        if (more) ++s->received;
        cdp__shared_remap(s, more ? fd : -1, all);
        if (more) os->net.close_fd(os->user, fd);
    } while (more);
}

/* So many bytes of a segment of the peer, or NULL: freed, or not to be had. The index comes from
   the peer: out of range wraps to another of its segments, which is harmless. */
CDP__PRIVATE const uint8_t *cdp__shared_map(
    cdp__shared *s, uint32_t i, uint64_t off, uint64_t bytes) {
    const cdp__mapping *v = &s->mappings[i %= CDP__SEGMENTS];
    if (!v->at || v->number != __atomic_load_n(&s->theirs->segments[i], __ATOMIC_ACQUIRE))
        cdp__shared_tidy(s, false);
    return v->at && off <= v->bytes && bytes <= v->bytes - off ? v->at + off : NULL;
}

/* Let the peer map segment i of ours. */
CDP__PRIVATE bool cdp__shared_tell(cdp__shared *s, uint32_t i, int32_t fd) {
    __atomic_store_n(&s->mine->segments[i], s->passed + 1, __ATOMIC_RELEASE);
    s->told[i] = s->os->shared.pass(s->os->user, s->pass, &fd, 1, true) >= 0;
    if (s->told[i])
        ++s->passed;
    else
        __atomic_store_n(&s->mine->segments[i], 0, __ATOMIC_RELEASE);
    return s->told[i];
}

/* The peer unmaps segment i of ours the next time that it looks; until then it stays there. */
CDP__PRIVATE void cdp__shared_untell(cdp__shared *s, uint32_t i) {
    if (!s->told[i]) return;
    s->told[i] = false;
    __atomic_store_n(&s->mine->segments[i], 0, __ATOMIC_RELEASE);
    (void)__atomic_add_fetch(&s->mine->freed, 1, __ATOMIC_RELEASE);
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

/* Bytes of memory for a pair whose rings have `room` bytes each. */
CDP__PRIVATE uint64_t cdp__shared_size(uint64_t room) {
    return sizeof(cdp__pair) + 2 * (sizeof(cdp__way) + room);
}

/* What lies behind descriptor `memory`, which becomes its own. NULL: nothing that could be used. */
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

/* Both know the proof now. Where is ours kept, for the peer to try. */
CDP__PRIVATE void cdp__shared_prove(cdp__shared *s, const uint8_t proof[CDP__NAME_BYTES]) {
    memcpy(s->proof, proof, CDP__NAME_BYTES);
    s->mine->proof_at = (uint64_t)(uintptr_t)s->proof;
}

/* Bytes of the peer's own memory. The proof is read with them, because another process may have
   the peer's number by now. 0, or -errno. */
CDP__PRIVATE int32_t cdp__shared_read(
    const cdp__shared *s, int32_t pid, uint64_t at, void *dst, uint64_t bytes) {
    uint8_t proof[CDP__NAME_BYTES];
    uint64_t from[2];
    cdp_iov to[2];
    int32_t r;
    from[0] = __atomic_load_n(&s->theirs->proof_at, __ATOMIC_RELAXED);
    to[0].data = proof;
    to[0].bytes = sizeof proof;
    from[1] = at;
    to[1].data = dst;
    to[1].bytes = bytes;
    r = s->os->shared.read_process(s->os->user, pid, from, to, bytes ? 2 : 1);
    return r == 0 && memcmp(proof, s->proof, sizeof proof) != 0 ? -ESRCH : r;
}

/* The peer has said where its proof is: what can be read of it? */
CDP__PRIVATE void cdp__shared_try(cdp__shared *s, int32_t pid) {
    if (pid > 0 && s->os->shared.read_process && cdp__shared_read(s, pid, 0, NULL, 0) == 0)
        s->pid = pid;
    __atomic_store_n(&s->mine->reads,
        s->pid ? CDP__READS_ANY | CDP__READS_SEGMENTS : CDP__READS_SEGMENTS, __ATOMIC_RELEASE);
}

/* Before sleeping: arm all doorbells, then look. True: there is something to do. */
CDP__PRIVATE bool cdp__shared_doze(cdp__shared *list) {
    cdp__shared *s;
    bool news = false;
    for (s = list; s; s = s->next)
        cdp__doorbell_arm(&s->mine->bell, cdp__line_wants(&s->line));
    for (s = list; s && !news; s = s->next)
        news = cdp__doorbell_rung(&s->mine->bell, s->seen, cdp__line_wants(&s->line))
            && (cdp__line_busy(&s->line)
                || __atomic_load_n(&s->theirs->freed, __ATOMIC_ACQUIRE) != s->freed);
    return news;
}

/* Afterwards: everything that is there now will be looked at next. */
CDP__PRIVATE void cdp__shared_rise(cdp__shared *list) {
    for (; list; list = list->next) {
        cdp__doorbell_seen(&list->mine->bell, list->seen);
        if (__atomic_load_n(&list->theirs->freed, __ATOMIC_RELAXED) != list->freed)
            cdp__shared_tidy(list, false);
    }
}

/* ---- >>link: one connection and its states --------------------------------------------------- */

/* Knows: one connection and its buffers. Promises: the loop watches no socket of a link that is
   closed. May use: >>handshake, >>memory, loop of cdp.h. */

typedef enum cdp__link_state {
    CDP__LINK_NONE,       /* never needed                                                       */
    CDP__LINK_AWAITED,    /* needed; the peer has the higher rank, so it is to connect          */
    CDP__LINK_CONNECTING, /* this rank connects: it tries the addresses of the peer             */
    CDP__LINK_CHOOSING,   /* the peer was found: CHOSEN is sent, TAKEN expected, or the reverse  */
    CDP__LINK_UP,
    CDP__LINK_LOST /* for good; `status` and `lost_errno` say why                        */
} cdp__link_state;

#define CDP__RX_BYTES 16384u           /* read ahead: small messages come with one system call */
#define CDP__RING_BYTES (256u * 1024u) /* each way, between two ranks of one machine */
/* see cdp__mesh_readable */
#define CDP__FRESH_BYTES (256u * 1024u)
/* between two looks at the sockets, of who looks at memory again and again */
#define CDP__LOOK_NS 4000u
#define CDP__TX_BYTES 512u /* pieces of a message up to this size are sent as one */
/* how long to await a connection before asking whether the peer is still there */
#define CDP__PROBE_FIRST_MS 50u
#define CDP__PROBE_EVERY_MS 250u
#define CDP__HELLO_MS 10000u /* a connection that has not said HELLO by then is closed */
#define CDP__STAGGER_MS 50u  /* an address gets this much of a start over the next one */

struct cdp__mesh;
struct cdp__link;

/* One of the addresses of a peer, being tried. */
typedef struct cdp__path {
    struct cdp__link *link;
    cdp_addr at;
    cdp__io io;
    bool proving;  /* TCP is connected: both ends prove that they know the key */
    bool greeting; /* then: HELLO goes out, WELCOME is awaited */
    cdp__auth auth;
    uint8_t hello[CDP__HELLO_BYTES];
    uint32_t sent, got;
} cdp__path;

/* All of them, while it is open which is the right one. */
typedef struct cdp__race {
    uint32_t count, begun, over;
    uint32_t worth; /* of the best explanation so far, which the link has */
    cdp__timer timer;
    cdp__path paths[CDP__PATHS];
} cdp__race;

typedef struct cdp__link {
    struct cdp__mesh *mesh;
    uint32_t peer;
    uint32_t index;  /* of the connections to this peer */
    uint32_t broken; /* the one that was lost first     */
    cdp__link_state state;
    cdp_addr addr; /* the peer's end, or where it is sought */
    cdp__io io;
    cdp__io probe; /* a connection that only tests whether the peer's port refuses it */
    cdp__timer probe_timer;
    cdp__race *race; /* while CONNECTING, or inviting */
    bool inviting;
    uint32_t probes;
    uint8_t hello[CDP__HELLO_BYTES];
    uint8_t answer[CDP__HELLO_BYTES];
    uint32_t hello_sent, hello_got;
    cdp__shared *shared; /* bytes go through it; while CHOOSING: it is offered */
    bool nonsense;       /* what the peer did there makes no sense */
    uint8_t *rx;
    uint32_t rx_at, rx_used;
    /* a rank of this machine: ready when its process has ended, even if a child of it keeps the
       connection open */
    cdp__io process;
    cdp__timer process_timer;
    uint32_t silent; /* looks in a row at which its machine, or its process, said nothing */
    bool was_up;
    bool wanted; /* the executor asked for bytes and got none: it will read them itself */
#ifndef CDP_NO_MAC
    cdp__mac *mac; /* NULL: bytes travel as they are */
#endif
    cdp_status status;
    int32_t lost_errno; /* 0: the stream ended */
    uint32_t refusal;

    /* only of the first of several connections */
    bool whole;        /* all have stood */
    uint64_t moved[2]; /* bytes received and sent over all */
    cdp__timer end_timer;
    uint64_t seen; /* received, when it was last looked at whether anything still comes */
} cdp__link;

/* Somebody connected and has not yet said who it is; or has, and we wait whether it chooses this
   connection. */
typedef struct cdp__incoming {
    struct cdp__mesh *mesh;
    cdp__io io;
    cdp__timer timer;
    cdp_addr from;
    bool guarded; /* not authenticated yet, or about to be refused */
    cdp__auth auth;
    uint8_t hello[CDP__HELLO_BYTES];
    uint32_t sent, got;
    bool welcome; /* accepted: WELCOME is being sent, then CHOSEN is expected */
    bool offers;  /* descriptors of shared memory are expected at `pass` */
    int32_t pass;
    struct cdp__incoming *next;
} cdp__incoming;

/* ---- >>mesh: all links of a rank, and what it listens at ------------------------------------- */

/* Knows: all links of a rank, its listener, the store. Promises: the first cause of a failure is
   kept. May use: >>link, >>memory, >>handshake, loop of cdp.h. */

/* A note in the store is being read. */
typedef enum cdp__note_state {
    CDP__NOTE_NONE,
    CDP__NOTE_THERE, /* is there one? */
    CDP__NOTE_READ,
    CDP__NOTE_DONE
} cdp__note_state;

/* The state of a start; see >>rendezvous. */
typedef cdp_status cdp__join_func(struct cdp__mesh *m);

#define CDP__ENDPOINT_BYTES 1024u

typedef enum cdp__join_wait {
    CDP__WAITS_NOT,
    CDP__WAITS_REQUEST,    /* for the answer of a store */
    CDP__WAITS_CONNECTION, /* of `made` to a store */
    CDP__WAITS_LISTENER,   /* whether anybody listens at one of several addresses */
    CDP__WAITS_TIME
} cdp__join_wait;

typedef struct cdp__join {
    cdp__join_func *next;
    cdp__join_func *back; /* where a sequence of states that several use goes on in the end */
    cdp__join_wait waits;
    cdp_status result; /* with the last error, if it is one */
    uint32_t step;
    bool over;
    cdp_status status; /* of the whole */
    cdp_error error;
    uint64_t deadline_ns; /* for meeting; see cdp__mesh_init_deadline */
    uint64_t until_ns;

    /* the request under way */
    cdp_store *asked;
    cdp_store_request rq;
    uint32_t timeout_ms;
    uint32_t polls;   /* of a store that is not on the loop */
    uint64_t news_ns; /* when a failure that is told ends the wait for all ranks; 0: none is */
    char key_text[96];
    cdp_bytes key, values[2];

    /* connections: to a store, and to see whether anybody listens */
    cdp_store *made;
    cdp_addr at[CDP__PATHS];
    cdp__io reach[CDP__PATHS];
    uint32_t reached, reaching; /* how many stand; how many are still being made */

    /* a key that one process may have: what this one puts there, what another has put there */
    uint8_t own[CDP__ENDPOINT_BYTES];
    uint64_t own_bytes, own_head;
    void *theirs;
    uint64_t their_bytes;

    /* the key of every rank */
    char (*texts)[96];
    cdp_bytes *keys;
    bool with_values; /* they are read, too: into m->addrs */

    /* who is missing */
    uint32_t looks;
    uint64_t pause_ns, give_up_ns;
    uint32_t rank, found;
    int32_t absent;
    char names[128];
    cdp__text list;
    uint32_t gloo;

    void *file; /* the cdp__file_store of the desc */
    uint64_t patience_ms;
} cdp__join;

typedef struct cdp__mesh {
    cdp_tcp_desc desc;
    const cdp_os *os;
    cdp__loop loop;
    cdp__io listener;
    cdp__timer accept_timer;
    bool crowd_told;
    cdp__timer vigil_timer; /* when to look whether machines still answer */
    uint64_t init_deadline_ns;
    uint64_t place;            /* see cdp_os_shared.process_place */
    cdp_addr at;               /* where this rank listens */
    cdp_addr mine[CDP__ADDRS]; /* of this machine */
    uint32_t mine_count;
    bool met;                /* rank 0 was found otherwise than by its address; `job` is known */
    cdp_store_request addrs; /* its results: where each rank can be reached */
    uint32_t *hosts;         /* of each rank, numbered as they appear */
    uint8_t job[CDP__JOB_BYTES];
    /* in a store that others serve, and so may outlive this start: part of the names of its keys */
    char round[20];
    bool keyed, refusal_told, memory_told;
    bool spread;            /* the connections of a link, over the interfaces that the desc names */
    cdp__shared *sharing;   /* those of all links; some may be lost */
    cdp__segment *segments; /* CDP__SEGMENTS, made with the first one */
    uint64_t looked_ns;
    uint8_t key[CDP__AUTH_BYTES];
    uint64_t start_ns;
    char job_name[64];
    cdp__link *links; /* the first of each peer, then the second of each, and so on */
    cdp__incoming *incoming;
    uint32_t incoming_count;

    /* rendezvous */
    cdp__join *join;          /* while it is under way */
    cdp_store_server *server; /* rank 0, unless the store is external */
    cdp_store *meeting;       /* where rank 0 leaves word; not for long */
    cdp_store *store;         /* for questions */
    cdp_store *watch;         /* its one request waits for the key "fail" */
    char fail_key[96];
    cdp_store_request watch_rq, ask_rq;
    cdp_bytes watch_key, ask_key, ask_values[2];
    uint8_t ask_value[CDP__FAILURE_MAX];
    bool watching;
    bool claimed;                    /* this rank is known to be ours */
    bool started;                    /* it has met all others */
    bool foreign;                    /* the rank that is missing is a process of PyTorch */
    bool frugal;                     /* this process may have few descriptors: only TCP */
    bool hasty;                      /* it leaves without waiting for anything */
    uint64_t linger_ns[2];           /* until when it lingers after a failed start: least, most */
    bool leaving;                    /* only the cause is still to be told, to those who come now */
    uint8_t cause[CDP__FAILURE_MAX]; /* this rank's record of the job's failure, */
    uint32_t cause_bytes;
    bool failing;             /* once it knows of one */
    bool asking;              /* the cause is on its way to the store, or there */
    uint64_t known_ns;        /* rank 0: when the first cause was known here; 0: not yet */
    cdp__timer readers_timer; /* and when others have had time to read it */

    /* whom a rank waits for while it starts, under wait/<rank> */
    bool noted; /* this rank has left one */
    cdp__note_state note_state;
    uint32_t note_rank; /* whose is read */
    int32_t note_named;
    cdp_store_request note_rq;
    cdp_bytes note_key;
    char note_text[96];
} cdp__mesh;

/* Whether this process serves the store. */
CDP__PRIVATE bool cdp__mesh_serves(const cdp__mesh *m) {
#ifdef CDP_NO_STORE_SERVER
    (void)m;
    return false;
#else
    return m->server != NULL;
#endif
}

/* The memory of a link. A constant where shared memory is left out, so that the compiler leaves out
   what it takes. */
CDP__PRIVATE cdp__shared *cdp__link_shared(const cdp__link *l) {
#ifdef CDP_NO_SHARED_MEMORY
    (void)l;
    return NULL;
#else
    return l->shared;
#endif
}

/* The first of the list of all links' memory. */
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

/* The link is lost. Its connection, if there is one, is the caller's to end. */
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
    /* The system frees memory of a process that has ended with the last view of it, and that takes
       0.1 ms per MiB: not in a poll with a budget, but when this rank leaves. */
    if (cdp__link_shared(l) && !l->mesh->desc.group.no_thread) cdp__shared_tidy(l->shared, true);
}

CDP__PRIVATE void cdp__link_drop(cdp__link *l, cdp_status status, int32_t err) {
    cdp__link_forget(l, status, err);
    cdp__loop_remove(&l->mesh->loop, &l->io);
}

/* ---- >>link-streams: connections that make one link, and what goes over them ----------------- */

/* Knows: the connections of a link, their ends, records with a code. Promises: the connection that
   was lost first is the one that is named; what the peer has sent is read before a link ends. May
   use: >>mesh, >>link, >>mac, >>memory, >>handshake, loop of cdp.h. */

/* Several connections as one link: block k of the bytes that go to a peer takes its connection
   number k % connections, so it is known without a word which one the next byte comes over, and
   nothing needs to be put in order. All stand and fall together. */
#ifndef CDP__BLOCK_BYTES
#define CDP__BLOCK_BYTES (128u * 1024u)
#endif
#define CDP__ENDED_MS 2000u /* how long to await more over the others when one has ended */

CDP__PRIVATE void cdp__link_read_ahead(cdp__link *l);

CDP__PRIVATE cdp__link *cdp__bundle_at(const cdp__link *l, uint32_t i) {
    return &l->mesh->links[l->peer + i * l->mesh->desc.group.world_size];
}

CDP__PRIVATE uint32_t cdp__bundle_turn(const cdp__link *first, uint64_t at) {
    return (uint32_t)(at / CDP__BLOCK_BYTES % first->mesh->desc.connections);
}

/* What still comes over a connection that is not used any more is dropped, and its end noticed. */
CDP__PRIVATE void cdp__link_discard(cdp__link *l) {
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

CDP__PRIVATE void cdp__link_parting(cdp__io *io) {
    cdp__link_discard((cdp__link *)io->user);
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
CDP__PRIVATE void cdp__bundle_drop(cdp__link *l, cdp_status status, int32_t err) {
    uint32_t i;
    cdp__loop_timer_clear(&cdp__bundle_at(l, 0)->end_timer);
    for (i = 0; i < l->mesh->desc.connections; ++i) {
        cdp__link *s = cdp__bundle_at(l, i);
        s->addr = l->addr;
        s->refusal = l->refusal;
        s->broken = l->index;
        if (s->state == CDP__LINK_LOST) { /* It ended before the reason was known. */
            s->status = status;
            s->lost_errno = err;
        } else if (s != l && s->state == CDP__LINK_UP && !s->shared
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
    first->seen = first->moved[0];
    cdp__loop_timer_set(&first->mesh->loop, &first->end_timer,
        os->now_ns(os->user) + CDP__ENDED_MS * CDP__MS, cdp__bundle_ended, first);
}

/* One has ended, the others have not. A peer that leaves ends them all, but what it said last
   may still be under way over the slower ones, or wait here until somebody asks for it. */
CDP__PRIVATE void cdp__bundle_ended(cdp__timer *t) {
    cdp__link *first = (cdp__link *)t->user,
              *turn = cdp__bundle_at(first, cdp__bundle_turn(first, first->moved[0]));
    uint32_t i = 0;
    cdp__link_read_ahead(turn);
    if (first->seen != first->moved[0] || turn->rx_at < turn->rx_used) {
        cdp__bundle_await_end(first);
        return;
    }
    while (cdp__bundle_at(first, i)->state != CDP__LINK_LOST)
        ++i;
    cdp__bundle_drop(cdp__bundle_at(first, i), CDP_ERR_PEER_LOST, 0);
}

/* One of several connections has ended, which alone says little: a peer that leaves ends them all,
   and one that lost another connection, too. If all have ended, the first one is named. */
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
    if (l->mesh->desc.connections > 1 && !first->shared && l->state == CDP__LINK_UP
        && status == CDP_ERR_PEER_LOST && !err) {
        cdp__bundle_one_ended(l);
        return;
    }
    turn = cdp__bundle_at(l, cdp__bundle_turn(first, first->moved[0]));
    if (turn != l) { /* what the peer said before may explain it */
        turn->io.ready |= CDP_IO_READ;
        cdp__link_read_ahead(turn);
    }
    if (l->state != CDP__LINK_LOST) cdp__bundle_drop(l, status, err);
}

/* Why the link is lost, as this thread's last error. */
CDP__PRIVATE cdp_status cdp__link_explain(const cdp__link *l) {
    char at[112];
    cdp__addr_text(&l->addr, at, sizeof at);
    if (l->mesh->desc.connections > 1)
        cdp__format(at + strlen(at), 32, " (connection %u of %u)", l->broken + 1,
            l->mesh->desc.connections);
    if (l->status == CDP_ERR_NOMEM) return cdp__fail_nomem("a link", CDP__RX_BYTES);
#ifndef CDP_NO_MAC
    if (l->lost_errno == EBADMSG && cdp__bundle_at(l, l->broken)->mac)
        return cdp__fail_peer(CDP_ERR_IO, l->peer, EBADMSG,
            "record %llu from rank %u at %s does not match its authentication code: it was "
            "changed, repeated or left out on the way; nothing more is read from there",
            (unsigned long long)cdp__bundle_at(l, l->broken)->mac->number[0] + 1, l->peer, at);
#endif
    if (l->nonsense)
        return cdp__fail_peer(CDP_ERR_MISMATCH, l->peer, 0,
            "rank %u wrote nonsense into the memory that it shares with this rank: something in "
            "its process overwrites what is not its own",
            l->peer);
    if (l->status == CDP_ERR_MISMATCH && l->refusal)
        return cdp__fail_peer(CDP_ERR_MISMATCH, l->peer, 0,
            "rank %u at %s refused the connection: %s", l->peer, at, cdp__refusal_text(l->refusal));
    if (l->status == CDP_ERR_MISMATCH)
        return cdp__fail_peer(CDP_ERR_MISMATCH, l->peer, 0,
            "what listens at %s is not rank %u of this job", at, l->peer);
    if (l->lost_errno == ECONNREFUSED)
        return cdp__fail_peer(CDP_ERR_PEER_LOST, l->peer, ECONNREFUSED,
            "rank %u does not listen at %s any more: its process has ended, or has left the group",
            l->peer, at);
    if (!l->lost_errno)
        return cdp__fail_peer(CDP_ERR_PEER_LOST, l->peer, 0,
            "rank %u at %s closed its connection: its process has ended, or has left the group",
            l->peer, at);
    return cdp__fail_peer(CDP_ERR_PEER_LOST, l->peer, l->lost_errno,
        "lost the connection to rank %u at %s", l->peer, at);
}

/* Sends, or receives, the rest of the 64 bytes of a greeting. 1: it is complete; 0: call again when
   the socket is ready; else a negative errno, or as cdp_os.net.recv_iov. */
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

/* Can this rank share memory with others of this machine? */
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

/* The bytes of a link over TCP, in records if it has a mac. Results as in cdp_os. */
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

/* As cdp__io_drain(). A function of its own, because one with both would cost every call more. */
CDP__PRIVATE int64_t cdp__link_drain(cdp__link *l, const cdp_iov *iov) {
#ifndef CDP_NO_MAC
    if (l->mac) return cdp__mac_recv(l->mac, &l->mesh->loop, &l->io, iov);
#endif
    return cdp__io_drain(&l->mesh->loop, &l->io, iov);
}

/* The connection with these nonces and this CHOSEN becomes the link. False: out of memory, the link
   is lost. */
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

/* Nothing was sent over this link yet, so a FAILURE of the whole job's group can go out as it
   is. */
CDP__PRIVATE void cdp__link_tell(cdp__link *l) {
    uint8_t bytes[CDP__HEAD_BYTES + CDP__FAILURE_MAX];
    cdp__head h;
    cdp_iov v;
    memset(&h, 0, sizeof h);
    h.type = CDP__MESSAGE_FAILURE;
    h.channel = CDP__WORLD_CHANNEL;
    h.bytes = l->mesh->cause_bytes;
    if (!h.bytes) return;
    memcpy(bytes + CDP__HEAD_BYTES, l->mesh->cause, h.bytes);
    cdp__head_encode(&h, bytes);
    v.data = bytes;
    v.bytes = CDP__HEAD_BYTES + h.bytes;
    /* a fresh link takes it whole, or is lost anyway */
    (void)(cdp__link_shared(l) ? cdp__line_move(&l->shared->line, &v, 1, true)
                               : cdp__link_put(l, &v, 1));
}

CDP__PRIVATE void cdp__link_nonsense(cdp__link *l) {
    if (l->state != CDP__LINK_LOST) cdp__link_lose(l, CDP_ERR_MISMATCH, 0);
    l->nonsense = true;
}

/* Receiving gave `r`. After a record that does not match nothing more is received, but what this
   rank sends still arrives: so it tells the peer the cause before the peer sees an end. */
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

/* Nothing will come over this link any more. */
CDP__PRIVATE bool cdp__link_ended(const cdp__link *l) {
#ifndef CDP_NO_MAC
    if (l->mac && l->mac->changed) return true;
#endif
    return l->state == CDP__LINK_LOST;
}

/* Read ahead while nobody asks: it keeps the peer's small messages moving and notices that it
   ended. */
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
        /* what was read before stays readable */
        if (r < 0) cdp__link_broke(l, r);
        if (r <= 0) return;
        l->silent = 0;
        l->rx_used += (uint32_t)r;
    }
}

/* With this rank of this machine it goes on over TCP; said once. */
CDP__PRIVATE void cdp__mesh_no_memory(cdp__mesh *m, uint32_t peer, int32_t err) {
    (void)peer;
    (void)err; /* unused without log texts */
    cdp__log(&m->desc.group.logger, m->memory_told ? CDP_LOG_DEBUG : CDP_LOG_WARN,
        m->desc.group.rank,
        "no shared memory with rank %u, although it is on this machine (errno %d, %s): their bytes "
        "go over TCP, which is slower; no_shared_memory says that this is meant",
        peer, (int)err, err ? cdp__os_error_text(err) : "the other rank could not");
    m->memory_told = true;
}

/* The peer waits for memory under this name. Writes into `proof` what CHOSEN is to say. */
CDP__PRIVATE void cdp__link_offer(
    cdp__link *l, const uint8_t name[CDP__NAME_BYTES], uint8_t proof[CDP__NAME_BYTES]) {
    cdp__mesh *m = l->mesh;
    const cdp_os *os = m->os;
    const uint64_t room = (cdp__def(m->desc.ring_bytes, CDP__RING_BYTES) + 63) / 64 * 64;
    const int32_t pass = os->shared.pass_open(os->user, name, false);
    int32_t fds[2],
        err = fds[0] = pass < 0 ? pass : os->shared.create(os->user, cdp__shared_size(room));
    cdp__shared *s = err < 0 ? NULL : cdp__shared_open(os, fds[0], true);
    if (s) {
        s->pass = pass;
        fds[1] = m->loop.wake_fd[1];
        err = os->random(os->user, proof, CDP__NAME_BYTES) == CDP_OK ? 0 : -EIO;
        proof[0] |= 1; /* not zeros */
        memcpy(s->pair->proof, proof, CDP__NAME_BYTES);
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
    cdp__mesh_no_memory(m, l->peer, -err);
}

/* ---- >>link-choosing: a connection becomes a link, and its end is noticed -------------------- */

/* Knows: links and the handshake. Promises: a link is UP only when both sides have chosen the
   same connection. From then on its end is noticed: by the end of the stream, by the silence of
   the machine, or by the end of the process. May use: >>handshake, >>memory, >>link, >>mesh. */

CDP__PRIVATE void cdp__link_choose_again(cdp__timer *t);

/* The answer to CHOSEN is there: memory or not. False: later. The peer has said yes, so a table
   of descriptors that is full does not change that: it is asked again whether there is room.
   (What is closed here makes some, but another thread may be faster.) */
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

#ifndef CDP__VIGIL_MS
#define CDP__VIGIL_MS 5000u    /* period of the check whether machines still answer */
#define CDP__SILENCE_MS 30000u /* a machine that acknowledges nothing for so long is lost */
#endif

/* Finds machines that are gone, which send no end of stream. A link is lost only if two checks in a
   row find it silent: data that was sent just before the first check is acknowledged by the second.
   */
CDP__PRIVATE void cdp__mesh_vigil(cdp__timer *t) {
    cdp__mesh *m = (cdp__mesh *)t->user;
    const uint32_t count = m->desc.group.world_size * m->desc.connections;
    uint32_t i;
    cdp__loop_timer_set(
        &m->loop, t, m->os->now_ns(m->os->user) + CDP__VIGIL_MS * CDP__MS, cdp__mesh_vigil, m);
    for (i = 0; i < count; ++i) {
        cdp__link *l = &m->links[i];
        if (l->state != CDP__LINK_UP || l->shared) continue;
        if (m->os->net.unanswered_ns(m->os->user, l->io.fd) < CDP__SILENCE_MS * CDP__MS)
            l->silent = 0;
        else if (++l->silent == 2)
            cdp__link_lose(l, CDP_ERR_PEER_LOST, ETIMEDOUT);
    }
}

#define CDP__PROCESS_LOOK_MS 50u
#define CDP__PROCESS_LOOKS 12u /* without a byte: what was sent before arrives with shorter gaps */

/* The peer's process has ended. What it sent is read to its end first; when nothing more comes
   although the connection stays open, a child of the process keeps it open. */
CDP__PRIVATE void cdp__link_process_ended(cdp__timer *t) {
    cdp__link *l = (cdp__link *)t->user;
    if (l->state != CDP__LINK_UP) return;
    cdp__link_read_ahead(l);
    if (l->state != CDP__LINK_UP) return;
    if (l->shared || (!(l->io.ready & CDP_IO_READ) && l->rx_at == l->rx_used)) {
        if (l->shared || ++l->silent > CDP__PROCESS_LOOKS) {
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

/* The number of the peer's process, if it is one of this place; else 0. */
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
    if (m->os->net.unanswered_ns && !m->vigil_timer.next)
        cdp__loop_timer_set(&m->loop, &m->vigil_timer,
            m->os->now_ns(m->os->user) + CDP__VIGIL_MS * CDP__MS, cdp__mesh_vigil, m);
    if (!number || !m->os->shared.process_open || m->frugal) return;
    fd = m->os->shared.process_open(m->os->user, number);
    if (fd >= 0) cdp__loop_add(&m->loop, &l->process, fd, cdp__link_process_event, l);
}

/* CHOSEN, or TAKEN, is being sent; after a CHOSEN that offers memory TAKEN is awaited. */
CDP__PRIVATE void cdp__link_choosing(cdp__link *l) {
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
    if (!cdp__link_shared(l) || l->state != CDP__LINK_UP) return;
    l->whole = true; /* no other connections are needed */
    cdp__link_unguard(l);
    l->shared->next = m->sharing;
    m->sharing = l->shared;
}

CDP__PRIVATE void cdp__link_choose_again(cdp__timer *t) {
    cdp__link_choosing((cdp__link *)t->user);
}

CDP__PRIVATE void cdp__link_event(cdp__io *io) {
    cdp__link *l = (cdp__link *)io->user;
    if (l->state == CDP__LINK_CHOOSING) cdp__link_choosing(l);
    if (!l->wanted || l->shared) cdp__link_read_ahead(l);
}

CDP__PRIVATE bool cdp__link_room(cdp__link *l) {
    if (!l->rx) l->rx = (uint8_t *)cdp__alloc(l->mesh->os, CDP__RX_BYTES);
    if (!l->rx) cdp__link_lose(l, CDP_ERR_NOMEM, 0);
    return l->rx != NULL;
}

/* The connection is the link now, and nobody else's to close. */
CDP__PRIVATE void cdp__link_take(cdp__link *l, cdp__io *io, cdp__link_state state) {
    const int32_t fd = cdp__loop_detach(&l->mesh->loop, io);
    cdp__loop_timer_clear(&l->probe_timer);
    cdp__loop_remove(&l->mesh->loop, &l->probe);
    if (l->inviting) cdp__race_end(l);
    cdp__loop_add(&l->mesh->loop, &l->io, fd, cdp__link_event, l);
    l->io.ready = CDP_IO_READ | CDP_IO_WRITE;
    l->state = state;
}

/* ---- >>link-connecting: the addresses of a peer, several at once ----------------------------- */

/* Knows: the addresses of a peer and the attempts in progress. Promises: the first address whose
   handshake succeeds becomes the link; of several failures, the most informative is kept. May
   use: >>paths, >>link, >>mesh, >>link-choosing. */

CDP__PRIVATE void cdp__race_next(cdp__timer *t);

/* This address leads nowhere: on with the next one, at once. When none is left, the explanation
   that is worth most is kept: what the peer itself says, or that nobody listens there any more,
   tells more than an address that was never its. */
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

/* The answer to our HELLO. The buffer that held the HELLO takes it. */
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

CDP__PRIVATE void cdp__path_event(cdp__io *io) {
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
    if (!p->greeting) {
#ifndef CDP_NO_JOB_KEY
        int64_t result = 1;
        const cdp_status st = m->keyed ? cdp__auth_pump(&p->auth, &m->loop, io, &result) : CDP_OK;
        if (st == CDP_ERR_MISMATCH)
            cdp__path_over(p, st, 0, CDP__REFUSE_KEY + p->auth.refusal, 3);
        else if (st < 0)
            cdp__path_failed(p, result == CDP_IO_EOF ? 0 : (int32_t)-result);
        if (st != CDP_OK) return;
#endif
        p->greeting = true;
        cdp__hello_fill(m, p->hello, p->link->inviting ? CDP__INVITE : CDP__HELLO, p->link);
    }
    r = cdp__hello_send(m, io, p->hello, &p->sent);
    if (r > 0) r = cdp__hello_recv(m, io, p->hello, &p->got);
    if (p->got > 8 && memcmp(p->hello, "cdp-no: ", 8) == 0)
        cdp__path_over(p, CDP_ERR_MISMATCH, 0, CDP__REFUSE_KEY + p->hello[8], 3);
    else if (r > 0)
        cdp__path_answered(p);
    else if (r < 0)
        cdp__path_failed(p, r == CDP_IO_EOF ? 0 : -r);
}

/* Begin with the next address; the one after it follows when this one fails, or in a moment. */
CDP__PRIVATE void cdp__race_next(cdp__timer *t) {
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

/* Where the peer can be reached, the most promising address first. */
CDP__PRIVATE uint32_t cdp__link_paths(const cdp__link *l, cdp_addr out[CDP__PATHS]) {
    const cdp__mesh *m = l->mesh;
    const cdp_bytes *text = &m->addrs.results[l->peer];
    cdp_addr theirs[CDP__ADDRS];
    uint32_t n = 0;
    /* known to be right */
    if (l->peer == 0 && !m->desc.external_store && !m->spread)
        theirs[n++] = cdp__tcp_store_peer_addr(m->store);
    /* read before */
    n += cdp__addrs_parse((const char *)text->data + CDP__PLACE_BYTES,
        text->bytes - CDP__PLACE_BYTES, theirs + n, CDP__ADDRS - n);
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

/* A peer that is to connect and does not may be busy, or dead. Its listening port knows: it
   refuses when the process is gone. The probe says nothing and is closed as soon as it stands.
   But a peer may also have connected, sent all that it had to send, and ended, while we were
   still in its handshake: as long as one of the job is under way a refusal means nothing, and is
   asked for again. */
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

/* The peer may not need this link yet, and so not make it. But what this rank has to ask about its
   wait goes over it. */
CDP__PRIVATE void cdp__link_invite(cdp__link *l) {
    l->inviting = true;
    cdp__link_connect(l);
}

CDP__PRIVATE void cdp__link_probe(cdp__timer *t) {
    cdp__link *l = (cdp__link *)t->user;
    cdp__mesh *m = l->mesh;
    if (l->state != CDP__LINK_AWAITED) return;
    if (++l->probes == 2 && !l->race) cdp__link_invite(l);
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

/* First use: the higher rank connects, the lower awaits it; so two ranks never make two
   connections at once. */
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

/* ---- >>incoming: connections that have not proved themselves --------------------------------- */

/* Knows: connections that have not proved themselves. Promises: they are bounded in number, in
   time and in work per turn; only the handshake is read from them. May use: >>handshake, >>link,
   >>mesh, >>link-choosing, auth-exchange of cdp_store.h. */

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

/* Wait for memory from this rank, if it is of this machine. Its name goes out with WELCOME. */
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

/* The visitor says with CHOSEN what is in the memory that it has handed over. Others may have
   come there: they cannot know. */
CDP__PRIVATE cdp__shared *cdp__incoming_share(cdp__incoming *g, const cdp__hello *chosen) {
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
    cdp__mesh_no_memory(m, chosen->from, -err);
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
        l->shared = cdp__incoming_share(g, chosen);
        cdp__hello_fill(l->mesh, l->hello, CDP__TAKEN, l);
        l->hello[28] = !l->shared;
        cdp__link_choosing(l);
    }
    if (!asks) cdp__link_up(l);
    if (l->mesh->leaving && !l->index && l->state == CDP__LINK_UP) cdp__link_tell(l);
    cdp__link_event(&l->io);
}

/* A lower rank that waits for this one wants the connection between them. */
CDP__PRIVATE void cdp__mesh_invited(cdp__mesh *m, const cdp__hello *theirs) {
    uint32_t i;
    if (theirs->version != CDP_WIRE_VERSION || theirs->world_size != m->desc.group.world_size
        || theirs->to != m->desc.group.rank || theirs->from >= m->desc.group.rank
        || memcmp(theirs->job, m->job, CDP__JOB_BYTES) != 0)
        return;
    for (i = 0; i < m->desc.connections && m->started; ++i)
        cdp__link_need(cdp__bundle_at(&m->links[theirs->from], i));
}

/* A HELLO or CHOSEN is complete. False: the connection is to be closed, or is the link now. */
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
    if (chosen) theirs.type = CDP__HELLO; /* otherwise they are alike */
    refusal = (uint32_t)cdp__hello_judge(&mine, &theirs);
    l = refusal ? NULL : cdp__bundle_at(&m->links[theirs.from], theirs.index);
    if (l && l->state > CDP__LINK_AWAITED) refusal = CDP__REFUSE_TWICE;
    if (chosen && !refusal) cdp__incoming_adopt(g, l, &theirs);
    if (g->welcome) return false;
    mine.type = refusal ? CDP__REFUSED : CDP__WELCOME;
    mine.to = theirs.from;
    mine.refusal = refusal;
    if (refusal) memset(mine.job, 0, CDP__JOB_BYTES); /* a stranger does not learn it here */
    if (!refusal && theirs.memory[0] && !theirs.index && cdp__mesh_shares(m))
        cdp__incoming_offer(g, theirs.from, mine.memory);
    if (refusal)
        cdp__log(&m->desc.group.logger, CDP_LOG_INFO, m->desc.group.rank,
            "refused a connection: %s", cdp__refusal_text(refusal));
    cdp__hello_encode(&mine, g->hello);
    g->welcome = !refusal;
    if (g->welcome) cdp__loop_timer_clear(&g->timer); /* no deadline for its choice */
    /* The refusal is dropped if the socket has no room for it. */
    else
        (void)cdp__hello_send(m, &g->io, g->hello, &g->sent);
    return g->welcome;
}

/* Logs a refused connection. The first one is a warning, because it may be a rank of this job. */
CDP__PRIVATE void cdp__incoming_refused(cdp__incoming *g, uint32_t refusal) {
    cdp__mesh *m = g->mesh;
    (void)refusal; /* unused without log texts */
    cdp__log(&m->desc.group.logger, m->refusal_told ? CDP_LOG_INFO : CDP_LOG_WARN,
        m->desc.group.rank, "refused a connection: %s", cdp__auth_text(refusal));
    m->refusal_told = true;
    cdp__auth_drain(&m->loop, &g->io);
    cdp__incoming_close(g);
}

/* True when it may go on to its HELLO; false when that is to come, or it was closed. A build
   without job keys refuses every guarded connection. */
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
        cdp__incoming_close(g); /* a probe */
    else if (st == CDP_OK)
        g->guarded = false;
    return st == CDP_OK;
#endif
}

/* Bytes that are no HELLO: of one with a key, who is told that here is none, or of no cdp at
   all. */
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

CDP__PRIVATE void cdp__incoming_event(cdp__io *io) {
    cdp__incoming *g = (cdp__incoming *)io->user;
    int32_t r = 1;
    if (!cdp__incoming_prove(g)) return;
    if (g->welcome && g->sent < CDP__HELLO_BYTES) { /* WELCOME is under way */
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
        /* r < 0: a probe, or it has chosen another connection */
    } else if (r < 0 || (r > 0 && !cdp__incoming_judge(g))) {
        cdp__incoming_close(g);
    } else if (r > 0) {
        cdp__incoming_event(io); /* say WELCOME */
    }
}

/* Room for connections that have not proved to be of this job, beyond one for each of its own. So
   many that a rank whose proof takes some round trips is not crowded out meanwhile. */
#define CDP__STRANGERS 1024u

/* Strangers may connect in any number and stay: of those that have sent nothing the oldest makes
   room for the next, else the oldest that has proved nothing. True when one was closed. */
CDP__PRIVATE bool cdp__mesh_make_room(cdp__mesh *m, uint32_t most) {
    cdp__incoming *oldest = NULL, *g;
    bool mute = false;
    for (g = m->incoming; g && m->incoming_count >= most; g = g->next) {
        const bool said_nothing = !g->got && !(g->guarded && g->auth.got);
        if (g->welcome || (mute && !said_nothing)) continue;
        oldest = g;
        mute = said_nothing;
    }
    if (oldest) cdp__incoming_close(oldest);
    return oldest != NULL;
}

#define CDP__ACCEPTS 16u /* connections that are accepted before the next look at everything else */

CDP__PRIVATE void cdp__mesh_accept_again(cdp__timer *t) {
    cdp__mesh *m = (cdp__mesh *)t->user;
    cdp__loop_again(&m->loop, &m->listener);
}

/* Out of descriptors: a stranger goes; without one, the listener is left alone for a while (it
   stays `ready`, so nobody polls for it). True: try again now. */
CDP__PRIVATE bool cdp__mesh_accept_later(cdp__mesh *m) {
    if (cdp__mesh_make_room(m, 1)) return true;
    if (!m->crowd_told)
        cdp__log(&m->desc.group.logger, CDP_LOG_WARN, m->desc.group.rank,
            "cannot accept a connection: too many open descriptors, or no memory; raise the limit "
            "(ulimit -n)");
    m->crowd_told = true;
    cdp__loop_timer_set(&m->loop, &m->accept_timer,
        m->os->now_ns(m->os->user) + CDP__PROBE_FIRST_MS * CDP__MS, cdp__mesh_accept_again, m);
    return false;
}

/* Who has to prove itself, and who is not let in: without a key, other machines. False: out of
   chance. */
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

/* A new connection. From the store server (bytes > 0) it has proved the key already, with these
   nonces, and `said` is how its HELLO begins. */
CDP__PRIVATE void cdp__mesh_incoming(void *user, int32_t fd, const cdp_addr *from,
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
    g->io.ready = CDP_IO_READ; /* its HELLO may be there already */
    cdp__incoming_event(&g->io);
}

/* Some at a time: connections that come faster than they are served must not keep this thread from
   its own operations and deadlines. */
CDP__PRIVATE void cdp__mesh_accept(cdp__io *io) {
    cdp__mesh *m = (cdp__mesh *)io->user;
    uint32_t i;
    io->broken = false; /* a listening socket has no connection that could break */
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

/* ---- >>transport: the mesh as cdp.h wants it ------------------------------------------------- */

/* Knows: the mesh as cdp.h wants it. Promises: what cdp_transport asks for. May use: >>memory,
   >>link, >>mesh, >>link-connecting. */

/* Small pieces are copied into one: that is cheaper than what the kernel does for several.
   False: they are not joined. */
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
    if (l->shared && l->state == CDP__LINK_UP) {
        r = cdp__line_move(&l->shared->line, iov, n, true);
        if (r >= 0) return r;
        cdp__link_nonsense(l);
    }
    if (n > 1 && cdp__iov_join(iov, n, joined, &one)) {
        iov = &one;
        n = 1;
    }
    if (l->state == CDP__LINK_UP) r = cdp__link_put(l, iov, n);
    if (r < 0) { /* what the peer said before it went may still be in the socket */
        l->io.ready |= CDP_IO_READ;
        cdp__link_read_ahead(l);
        /* an error is reported once: reading it again looks like an end */
        if (cdp__bundle_at(l, 0)->end_timer.next && r != -EPIPE)
            cdp__bundle_drop(l, CDP_ERR_PEER_LOST, (int32_t)-r);
        cdp__link_lose(l, CDP_ERR_PEER_LOST, (int32_t)-r);
    }
    return l->state == CDP__LINK_LOST ? (int64_t)cdp__link_explain(l) : r;
}

/* From the buffer first. A large read goes straight to its place; a joined one fills the buffer
   on the way. */
CDP__PRIVATE int64_t cdp__mesh_recv(void *self, uint32_t peer, const cdp_iov *iov, uint32_t n) {
    cdp__link *l = &((cdp__mesh *)self)->links[peer];
    int64_t moved = 0;
    uint32_t i;
    cdp__link_need(l);
    if (l->shared && l->state >= CDP__LINK_UP) { /* also what was written before the end */
        moved = l->nonsense ? 0 : cdp__line_move(&l->shared->line, iov, n, false);
        if (moved < 0) cdp__link_nonsense(l);
        return moved <= 0 && l->state == CDP__LINK_LOST ? (int64_t)cdp__link_explain(l) : moved;
    }
    if (l->state == CDP__LINK_UP && l->rx_at == l->rx_used) {
        l->rx_at = l->rx_used = 0;
        if (n == 1 && iov[0].bytes >= CDP__RX_BYTES / 2) {
            moved = cdp__link_get(l, iov);
            l->wanted = moved == 0;
            if (moved > 0) l->silent = 0;
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

/* Bytes of `iov` that belong to the first `bytes`. */
CDP__PRIVATE uint32_t cdp__iov_clip(const cdp_iov *iov, uint32_t n, uint64_t bytes, cdp_iov *out) {
    uint32_t i;
    for (i = 0; i < n && bytes; ++i) {
        out[i].data = iov[i].data;
        out[i].bytes = cdp__min(iov[i].bytes, bytes);
        bytes -= out[i].bytes;
    }
    return i;
}

/* The same over several connections: as much of it as belongs to the one whose turn it is.
   Nothing is sent before all stand. */
CDP__PRIVATE int64_t cdp__bundle_move(
    cdp__mesh *m, uint32_t peer, const cdp_iov *iov, uint32_t n, bool send) {
    cdp__link *first = &m->links[peer],
              *l = cdp__bundle_at(first, cdp__bundle_turn(first, first->moved[send]));
    const uint64_t left = CDP__BLOCK_BYTES - first->moved[send] % CDP__BLOCK_BYTES;
    cdp_iov v[CDP__IOV_MAX];
    uint32_t i;
    int64_t r;
    if (first->shared && first->state >= CDP__LINK_UP)
        return send ? cdp__mesh_send(m, peer, iov, n) : cdp__mesh_recv(m, peer, iov, n);
    if (!first->whole && l->state != CDP__LINK_LOST) {
        bool whole = true;
        /* the first may do without the others */
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
    /* it has ended: whether that is the end of all, the others will show */
    if (r < 0 && first->whole && first->end_timer.next) return 0;
    if (r > 0) first->moved[send] += (uint64_t)r;
    /* until its next turn it is watched for its end */
    if (!send && r == (int64_t)left && l->io.next) cdp__loop_again(&m->loop, &l->io);
    return r;
}

CDP__PRIVATE int64_t cdp__bundle_send(void *self, uint32_t peer, const cdp_iov *iov, uint32_t n) {
    return cdp__bundle_move((cdp__mesh *)self, peer, iov, n, true);
}
CDP__PRIVATE int64_t cdp__bundle_recv(void *self, uint32_t peer, const cdp_iov *iov, uint32_t n) {
    return cdp__bundle_move((cdp__mesh *)self, peer, iov, n, false);
}

/* The segment that these bytes lie in; NULL: none. */
CDP__PRIVATE cdp__segment *cdp__mesh_segment(const cdp__mesh *m, const void *data, uint64_t bytes) {
    uint32_t i;
    for (i = 0; m->segments && i < CDP__SEGMENTS; ++i) {
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
        && !(m->segments = (cdp__segment *)cdp__alloc_zero(os, CDP__SEGMENTS * sizeof *g)))
        return NULL;
    bytes = cdp__max((bytes + 63) / 64 * 64, 64);
    for (i = 0; i < CDP__SEGMENTS; ++i) {
        if (m->segments[i].bytes - m->segments[i].used >= bytes) break;
        if (!m->segments[i].at && !g) g = &m->segments[i];
    }
    if (i < CDP__SEGMENTS) {
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

/* Peers unmap it the next time that they look; until then it stays there. */
CDP__PRIVATE void cdp__segment_close(cdp__mesh *m, cdp__segment *g) {
    const uint32_t i = (uint32_t)(g - m->segments);
    cdp__shared *s;
    for (s = m->sharing; s; s = s->next)
        cdp__shared_untell(s, i);
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

/* Is it worth it to let the peer read this itself? What was just written is in this processor's
   cache: less than so much goes faster through the ring, if it is in no segment. */
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
    reads = __atomic_load_n(&s->theirs->reads, __ATOMIC_ACQUIRE);
    g = reads & CDP__READS_SEGMENTS ? cdp__mesh_segment(m, data, bytes) : NULL;
    place = g ? (uint32_t)(g - m->segments) : 0;
    if (g && !s->told[place] && !cdp__shared_tell(s, place, g->fd)) g = NULL;
    if (g)
        return cdp__line_expose(
            &s->line, data, bytes, place + 1, (uint64_t)((const uint8_t *)data - g->at), token);
    return cdp__mesh_readable(m, reads, bytes, fresh)
        && cdp__line_expose(&s->line, data, bytes, 0, 0, token);
}

CDP__PRIVATE bool cdp__mesh_try_revoke(void *self, uint32_t peer, uint64_t token) {
    return cdp__line_try_revoke(&((cdp__mesh *)self)->links[peer].shared->line, token);
}

/* Processes do not wait for each other here: the reader finds out afterwards. */
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
    /* rather not again */
    if (!at) (void)__atomic_and_fetch(&s->mine->reads, ~CDP__READS_SEGMENTS, __ATOMIC_RELAXED);
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
    /* it was permitted when the link was made */
    (void)__atomic_and_fetch(&s->mine->reads, ~CDP__READS_ANY, __ATOMIC_RELAXED);
    return CDP_ERR_IO;
}

/* As with the ring: what was put there before the link was lost can still be read. */
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

/* ---- >>first-cause: what the store knows of a failure ---------------------------------------- */

/* Knows: the store's keys "fail" and "wait". Promises: an earlier or deeper cause that another
   rank has recorded replaces this rank's own. May use: >>memory, >>link, >>mesh, >>incoming,
   stores. */

/* Somebody put a cause under "fail" while this rank was busy with something else. */
CDP__PRIVATE cdp_status cdp__mesh_news(cdp__mesh *m) {
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
        && !deadline_ns) { /* a spinning caller polls the memory itself meanwhile */
        const uint64_t now = m->os->now_ns(m->os->user);
        if (now < m->looked_ns + CDP__LOOK_NS) return CDP_OK;
        m->looked_ns = now;
    }
    if (cdp__mesh_sharing(m) && deadline_ns && cdp__shared_doze(m->sharing)) deadline_ns = 0;
    st = cdp__loop_run(&m->loop, lock, deadline_ns);
    cdp__shared_rise(cdp__mesh_sharing(m));
    return st == CDP_OK ? cdp__mesh_news(m) : st;
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

/* A request in the background; true when it was taken. */
CDP__PRIVATE bool cdp__mesh_start(cdp_store *s, cdp_store_request *rq, cdp_store_op op,
    const cdp_bytes *keys, uint32_t count, const cdp_bytes *values) {
    memset(rq, 0, sizeof *rq);
    rq->op = op;
    rq->keys = keys;
    rq->key_count = count;
    rq->values = values;
    rq->status = CDP_PENDING;
    return s->start(s->self, rq) >= CDP_OK;
}

/* The first cause of a job is the first that reaches the key "fail". */
CDP__PRIVATE void cdp__mesh_cause_values(cdp__mesh *m) {
    m->ask_key.data = m->fail_key;
    m->ask_key.bytes = strlen(m->fail_key);
    m->ask_values[0].data = NULL;
    m->ask_values[0].bytes = 0;
    memcpy(m->ask_value, m->cause, m->cause_bytes);
    m->ask_values[1].data = m->ask_value;
    m->ask_values[1].bytes = m->cause_bytes;
}

CDP__PRIVATE void cdp__mesh_publish(void *self, const void *record, uint32_t bytes) {
    cdp__mesh *m = (cdp__mesh *)self;
    CDP_ASSERT(bytes <= sizeof m->cause);
    m->failing = true;
    memcpy(m->cause, record, bytes);
    m->cause_bytes = bytes;
    if (!m->store || m->asking) return;
    cdp__mesh_cause_values(m);
    m->asking =
        cdp__mesh_start(m->store, &m->ask_rq, CDP_STORE_COMPARE_SET, &m->ask_key, 1, m->ask_values);
}

/* A record that names rank 0, which went without taking its leave, and the store with it. */
CDP__PRIVATE uint32_t cdp__mesh_store_gone(const cdp__mesh *m, void *record, uint32_t room) {
    uint8_t body[CDP__FAILURE_BYTES];
    cdp__failure_record r;
    uint32_t n;
    if (m->desc.external_store || !m->desc.group.rank || !m->watch || m->watch_rq.number
        || m->watch_rq.status != CDP_ERR_STORE)
        return 0;
    cdp__failure_plain(&r, CDP_ERR_PEER_LOST, (int32_t)m->desc.group.rank, 0,
        "rank 0 is gone, and its store with it");
    r.domain = 0; /* a guess */
    n = cdp__failure_encode(&r, body);
    if (n > room) return 0;
    memcpy(record, body, n);
    return n;
}

/* Does this rank's own record name rank 0? Who has seen it go, and the store with it, need not
   ask. */
CDP__PRIVATE bool cdp__mesh_saw_store_go(const cdp__mesh *m) {
    cdp__failure_record r;
    return !m->desc.external_store && m->watch && m->watch_rq.status == CDP_ERR_STORE
        && cdp__failure_decode(m->cause, m->cause_bytes, m->desc.group.world_size, &r)
        && r.end.named == 0;
}

/* How long the rank that serves the store waits at most for others to read a cause there. */
#define CDP__HOST_MS CDP__TELL_MS

CDP__PRIVATE void cdp__mesh_readers_late(cdp__timer *t) {
    (void)t; /* the group looks again */
}

/* A process may end as soon as it has an error, and the store that it serves ends with it: are
   there others that have not read the first cause? Not for long, since one may have stopped. */
CDP__PRIVATE bool cdp__mesh_readers(cdp__mesh *m) {
    const uint64_t now = m->os->now_ns(m->os->user);
    if (!cdp__mesh_serves(m) || !m->started) return false;
    if (!m->known_ns) {
        m->known_ns = now;
        cdp__loop_timer_set(
            &m->loop, &m->readers_timer, now + CDP__HOST_MS * CDP__MS, cdp__mesh_readers_late, m);
    }
    return now < m->known_ns + CDP__HOST_MS * CDP__MS && !cdp__store_server_quiet(m->server);
}

CDP__PRIVATE uint32_t cdp__mesh_first(void *self, void *record, uint32_t room) {
    cdp__mesh *m = (cdp__mesh *)self;
    const cdp_bytes *v = NULL;
    if (m->watch && m->watch_rq.status == CDP_OK) v = m->watch_rq.results;
    if (m->asking && m->ask_rq.status == CDP_OK) v = m->ask_rq.results;
    if (v && cdp__mesh_readers(m)) return 0;
    if (!v && cdp__mesh_saw_store_go(m) && m->cause_bytes <= room) {
        memcpy(record, m->cause, m->cause_bytes);
        return m->cause_bytes;
    }
    if (!v || v->bytes > room) return cdp__mesh_store_gone(m, record, room);
    memcpy(record, v->data, (size_t)v->bytes);
    return (uint32_t)v->bytes;
}

CDP__PRIVATE void cdp__mesh_note_start(cdp__mesh *m, cdp_store_op op) {
    const bool begun = cdp__mesh_start(m->store, &m->note_rq, op, &m->note_key, 1, NULL);
    m->note_state = CDP__NOTE_DONE;
    if (begun) m->note_state = op == CDP_STORE_GET ? CDP__NOTE_READ : CDP__NOTE_THERE;
}

/* Read the note of a rank that does not answer. A store that does not answer either, at the last
   call, is rank 0's fault; one that is gone tells nothing. A rank that was connected speaks for
   itself when it goes. */
CDP__PRIVATE int32_t cdp__mesh_starting(void *self, uint32_t peer, bool lost, bool last) {
    cdp__mesh *m = (cdp__mesh *)self;
    if (lost && peer && !m->desc.external_store && m->watch && m->watch_rq.status < CDP_OK)
        return -2;
    if (lost && m->links[peer].was_up) return -1;
    if (!m->store || (m->note_state != CDP__NOTE_NONE && m->note_rank != peer)) return -1;
    if (m->note_state == CDP__NOTE_NONE) {
        m->note_rank = peer;
        m->note_named = -1;
        cdp__mesh_key(m, m->note_text, "wait", peer);
        m->note_key.data = m->note_text;
        m->note_key.bytes = strlen(m->note_text);
        cdp__mesh_note_start(m, CDP_STORE_CHECK);
    }
    if (m->note_state == CDP__NOTE_DONE) return m->note_named;
    if (m->note_rq.status == CDP_PENDING)
        return last && m->desc.group.rank && !m->desc.external_store ? 0 : -1;
    if (m->note_state == CDP__NOTE_THERE && m->note_rq.status == CDP_OK && m->note_rq.number) {
        cdp_store_request_free(m->store, &m->note_rq);
        cdp__mesh_note_start(m, CDP_STORE_GET);
        return -1;
    }
    if (m->note_state == CDP__NOTE_READ && m->note_rq.status == CDP_OK
        && m->note_rq.results[0].bytes == 4)
        m->note_named = (int32_t)cdp__get_u32((const uint8_t *)m->note_rq.results[0].data);
    cdp_store_request_free(m->store, &m->note_rq);
    m->note_state = CDP__NOTE_DONE;
    return m->note_named;
}

CDP__PRIVATE bool cdp__mesh_linked(void *self, uint32_t peer) {
    cdp__mesh *m = (cdp__mesh *)self;
    uint32_t i = 0;
    while (i < m->desc.connections && cdp__bundle_at(&m->links[peer], i)->state == CDP__LINK_UP)
        ++i;
    return i == m->desc.connections || (i && m->links[peer].shared);
}

/* The pair of addresses that a link runs over, or how far it is. */
CDP__PRIVATE uint32_t cdp__mesh_host(void *self, uint32_t peer) {
    return ((cdp__mesh *)self)->hosts[peer];
}

#ifndef CDP_NO_RECORDER
CDP__PRIVATE void cdp__mesh_describe(void *self, uint32_t peer, char *out, uint64_t size) {
    static const char *const states[] = {
        "not used yet", "awaited", "trying its addresses", "being made", "", "lost"};
    cdp__mesh *m = (cdp__mesh *)self;
    const cdp__shared *s = m->links[peer].state == CDP__LINK_UP ? m->links[peer].shared : NULL;
    cdp__text t = {out, size, 0};
    char here[80], there[80];
    cdp_addr at;
    uint64_t views;
    uint32_t i;
    if (s)
        cdp__text_add(&t, "memory, %llu KiB each way, ", (unsigned long long)(s->line.size / 1024));
    for (i = 0, views = 0; s && i < CDP__SEGMENTS; ++i)
        views += s->mappings[i].at ? s->mappings[i].bytes : 0;
    if (views)
        cdp__text_add(
            &t, "%llu KiB of its group memory in view, ", (unsigned long long)(views / 1024));
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

/* How long the rank that serves the store waits at most for ranks that came to it late. */
#define CDP__LATE_MS 1000u

/* Rank 0 could not start. Some ranks may not even have come: the store is open for twice
   CDP__SETTLE_MS more. Ranks that have come by then are still reading the cause, each from a
   connection or two; the store is closed when no rank is connected. */
CDP__PRIVATE bool cdp__mesh_lingers(cdp__mesh *m, uint64_t until_ns) {
    const uint32_t own = (m->store ? 1u : 0u) + (m->watch ? 1u : 0u);
    const uint64_t now = m->os->now_ns(m->os->user), *at = m->linger_ns;
    if (!at[1]) {
        m->linger_ns[0] = now + 2 * CDP__SETTLE_MS * CDP__MS;
        m->linger_ns[1] = cdp__min(at[0] + CDP__LATE_MS * CDP__MS, m->init_deadline_ns);
    }
    if (now >= at[1] || (now >= at[0] && cdp__store_server_clients(m->server) <= own)) return false;
    until_ns = cdp__min(until_ns, now < at[0] ? cdp__min(at[0], at[1]) : at[1]);
    return cdp__loop_run(&m->loop, NULL, until_ns) == CDP_OK;
}

/* A failed rank does not leave at once, but when the store has its cause. The one that serves
   the store waits until the others have gone, or for CDP__TELL_MS when all that they wait for has
   been sent to them: they read it even if they are late. Without a store, whoever connects late is
   told. */
CDP__PRIVATE void cdp__mesh_linger(cdp__mesh *m) {
    const bool store_gone = !cdp__mesh_serves(m) && m->watch_rq.status < CDP_OK;
    const uint64_t ms = cdp__mesh_serves(m) ? CDP__SETTLE_MS : CDP__TELL_MS;
    const uint64_t began = m->os->now_ns(m->os->user), told = began + CDP__TELL_MS * CDP__MS;
    const uint64_t until =
        cdp__min(began + ms * CDP__MS, m->started ? CDP__NEVER : m->init_deadline_ns);
    const uint32_t own = (m->store ? 1u : 0u) + (m->watch ? 1u : 0u);
    /* whoever sees this rank leave asks the store why: the answer must be there before */
    if (!cdp__mesh_serves(m) && !store_gone) {
        while (m->asking && m->ask_rq.status == CDP_PENDING && m->os->now_ns(m->os->user) < until)
            if (cdp__loop_run(&m->loop, NULL, until) != CDP_OK) return;
        return;
    }
    m->leaving = true;
    if (cdp__mesh_serves(m) && !m->started) {
        while (cdp__mesh_lingers(m, CDP__NEVER)) {
        }
        return;
    }
    while ((!cdp__mesh_serves(m) || cdp__store_server_clients(m->server) > own)
        && m->os->now_ns(m->os->user) < until) {
        const bool late = m->os->now_ns(m->os->user) >= told;
        if (late && cdp__mesh_serves(m) && cdp__store_server_quiet(m->server)) return;
        if (cdp__loop_run(&m->loop, NULL, late ? until : cdp__min(told, until)) != CDP_OK) return;
    }
}

#define CDP__PART_MS 100u

/* A connection over which the peer may still say something, or end it. */
CDP__PRIVATE bool cdp__link_open(const cdp__link *l) {
    return l->io.next && !l->shared && (l->state == CDP__LINK_UP || l->state == CDP__LINK_LOST);
}

CDP__PRIVATE bool cdp__mesh_parting(const cdp__mesh *m) {
    uint32_t i;
    for (i = 0; i < m->desc.group.world_size * m->desc.connections; ++i)
        if (cdp__link_open(&m->links[i])) return true;
    return false;
}

/* This rank leaves: nobody wants what still comes, but the end is to be noticed. */
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

/* Leave the other ranks. What one of them sends to a connection that is closed resets it, and with
   the reset goes what this rank sent last and the other one has not read yet. So sending ends
   first, and the connection is closed when the other end has read that; or after a while, where it
   computes. */
CDP__PRIVATE void cdp__mesh_part(cdp__mesh *m) {
    const uint64_t until = m->os->now_ns(m->os->user) + CDP__PART_MS * CDP__MS;
    if (!m->links || !m->os->net.end_sending || m->hasty) return;
    cdp__mesh_discard(m, true);
    while (cdp__mesh_parting(m) && m->os->now_ns(m->os->user) < until)
        if (cdp__loop_run(&m->loop, NULL, until) != CDP_OK) return;
}

/* Accepts a mesh that was only half made. */
CDP__PRIVATE void cdp__mesh_close(void *self) {
    cdp__mesh *m = (cdp__mesh *)self;
    const cdp_os *os = m->os;
    uint32_t i;
    cdp__mesh_discard(m, false);
    if (!m->hasty
        && (m->failing || (cdp__mesh_serves(m) && cdp__store_server_has(m->server, m->fail_key))))
        cdp__mesh_linger(m);
    if (cdp__mesh_serves(m)) cdp__store_server_share(m->server, NULL, NULL);
    cdp__loop_timer_clear(&m->accept_timer);
    cdp__loop_timer_clear(&m->vigil_timer);
    cdp__loop_timer_clear(&m->readers_timer);
    cdp__loop_remove(&m->loop, &m->listener);
    while (m->incoming)
        cdp__incoming_close(m->incoming);
    cdp__mesh_part(m);
    for (i = 0; m->links && i < m->desc.group.world_size * m->desc.connections; ++i) {
        cdp__link_lose(&m->links[i], CDP_ERR_STATE, 0);
        cdp__loop_remove(&m->loop, &m->links[i].io);
        cdp__free(os, m->links[i].rx);
        cdp__link_unguard(&m->links[i]);
        cdp__shared_close(cdp__link_shared(&m->links[i]));
    }
    for (i = 0; m->segments && i < CDP__SEGMENTS; ++i)
        /* what was not freed may still be in use: it stays where it is */
        if (m->segments[i].at) os->net.close_fd(os->user, m->segments[i].fd);
    cdp__free(os, m->segments);
    if (m->asking && m->ask_rq.status == CDP_PENDING) m->store->cancel(m->store->self, &m->ask_rq);
    if ((m->note_state == CDP__NOTE_THERE || m->note_state == CDP__NOTE_READ)
        && m->note_rq.status == CDP_PENDING)
        m->store->cancel(m->store->self, &m->note_rq);
    if (m->store) cdp_store_request_free(m->store, &m->note_rq);
    if (m->store) cdp_store_request_free(m->store, &m->ask_rq);
    if (m->store) cdp_store_request_free(m->store, &m->addrs);
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
    cdp__free(os, m);
}

/* ---- >>rendezvous ---------------------------------------------------------------------------- */

/* Knows: the keys of the job in the store. Promises: every wait ends by the deadline of
   cdp_init(); no step waits, cdp__mesh_rendezvous() alone does. May use: >>paths, >>mesh,
   >>first-cause, loop of cdp.h, stores. */

/* Keys under "<job>/": config (rank 0: version, world size, settings, the job's random name),
   claim/<rank> (who has the rank), addr/<rank> (where it listens), done/<rank> (it has read
   everything), fail (the record of the first failure), wait/<rank> (whom it waits for while it
   starts, when that takes long). From its claim on until it has started, a rank's last will is a
   cause under "fail": so the death of a process that nobody has a connection to yet ends the
   others' wait.

   A store that others serve may hold what an earlier start of the job left there, and it knows no
   last wills. There config also says where rank 0 listens, and all other keys are under
   "<job>/<part of the job's random name>/". A rank 0 replaces the config of an earlier rank 0 at
   whose address nobody listens any more; the other ranks wait for that. In the same way a rank
   takes over the claim of a process that has ended. So nobody has to be told how often the job was
   started: torchrun's TORCHELASTIC_RESTART_COUNT differs between the machines of one start. */

/* Rendezvous is a state machine, whose steps never wait: a state (`next`) is a function that does
   what is possible now, names the next one, and may say that something has to happen before:
   `waits`, at the latest at until_ns. What came out is `result` when the next one is called.
   Without a next one the step is complete, and the next of the list of steps begins. */

CDP__PRIVATE uint64_t cdp__mesh_now(const cdp__mesh *m) {
    return m->os->now_ns(m->os->user);
}

/* What is left for meeting. */
CDP__PRIVATE uint32_t cdp__join_ms_left(const cdp__mesh *m) {
    const uint64_t now = cdp__mesh_now(m), end = m->join->deadline_ns;
    if (end == CDP__NEVER) return CDP_NO_TIMEOUT;
    return (uint32_t)cdp__min(cdp__max(1, (end - cdp__min(now, end)) / CDP__MS), 1u << 31);
}

/* Nothing is wanted any more from the request before. */
CDP__PRIVATE void cdp__join_forget(cdp__join *s) {
    if (!s->asked) return;
    if (s->rq.status == CDP_PENDING) s->asked->cancel(s->asked->self, &s->rq);
    cdp_store_request_free(s->asked, &s->rq);
    s->asked = NULL;
}

/* Sends the request of `op` with `count` keys to a store. timeout_ms 0: what is left. */
CDP__PRIVATE void cdp__join_send(cdp__mesh *m, cdp_store *store, cdp_store_op op,
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
    s->result = cdp__store_begin(store, &s->rq);
    if (s->result >= 0) s->result = CDP_PENDING; /* its status says the rest */
}

/* The same with the key s->key_text; then comes `next`. */
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

/* What lies under "fail" becomes this rank's error. */
CDP__PRIVATE cdp_status cdp__join_adopted(cdp__mesh *m) {
    const cdp_bytes *v = m->join->rq.results;
    cdp__failure_record r;
    cdp_error cause;
    cdp_status st;
    if (m->join->result != CDP_OK) return m->join->result;
    if (!cdp__failure_decode((const uint8_t *)v->data, v->bytes, m->desc.group.world_size, &r))
        return cdp__fail(CDP_ERR_MISMATCH,
            "the store holds no cause under %s that this version understands", m->fail_key);
    cdp__failure_text(&r, (uint32_t)r.observer, m->desc.group.world_size, &cause);
    /* of a process that claims the same rank */
    if (cause.origin == (int32_t)m->desc.group.rank)
        st = cdp__fail_peer(cause.status, cause.peer, 0, "%s", cause.text);
    else
        st = cdp__fail_peer(cause.status, cause.peer, 0, "rank %u/%u: told while starting: %s",
            m->desc.group.rank, m->desc.group.world_size, cause.text);
    cdp__error_slot()->rank = (int32_t)m->desc.group.rank;
    cdp__error_slot()->origin = cause.origin;
    return st;
}

/* A rank that has started may fail at once. What the others have done for this start is on its way
   then, and gets this much time before the failure ends it. */
#define CDP__NEWS_MS 50u

CDP__PRIVATE bool cdp__join_has_news(cdp__mesh *m, uint64_t now) {
    cdp__join *s = m->join;
    if (s->rq.keys != s->keys || !m->watching || m->watch_rq.status != CDP_OK) return false;
    if (!s->news_ns) s->news_ns = now + CDP__NEWS_MS * CDP__MS;
    return now >= s->news_ns && cdp__mesh_news(m) != CDP_OK;
}

/* A store of the caller's is not on the loop of this rank: it is polled, at growing intervals. */
CDP__PRIVATE bool cdp__join_request_waits(cdp__mesh *m, uint64_t now) {
    cdp__join *s = m->join;
    if (s->result != CDP_PENDING) return false;
    s->result = s->rq.status;
    if (s->result != CDP_PENDING || s->asked != m->store) {
        s->result = s->asked->wait(s->asked->self, &s->rq, 0); /* or only the last error */
        ++s->polls;
    }
    if (s->result != CDP_PENDING) return false;
    if (cdp__join_has_news(m, now)) {
        cdp__format(s->key_text, sizeof s->key_text, "%s", m->fail_key);
        cdp__join_ask(m, m->store, CDP_STORE_GET, 1000, cdp__join_adopted);
        return cdp__join_request_waits(m, now);
    }
    if (now < s->until_ns) return true;
    s->result = cdp__store_end(s->asked, &s->rq, CDP_PENDING, s->timeout_ms);
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

#define CDP__REACH_MS 2000u /* an address that has not answered by then leads nowhere */

/* Does a process listen at one of these addresses (text as in cdp__addrs_text)? Then `reached` is
   not 0 in `next`. */
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

/* Is what the start waits for still to come? */
CDP__PRIVATE bool cdp__join_waiting(cdp__mesh *m) {
    cdp__join *s = m->join;
    const uint64_t now = cdp__mesh_now(m);
    switch (s->waits) {
    case CDP__WAITS_REQUEST: return cdp__join_request_waits(m, now);
    case CDP__WAITS_CONNECTION:
        s->result = cdp__tcp_store_connected(s->made);
        return s->result == CDP_PENDING;
    case CDP__WAITS_LISTENER:
        if (s->reaching && !s->reached && now < s->until_ns) return true;
        cdp__join_reach_end(m);
        return false;
    case CDP__WAITS_TIME: return now < s->until_ns;
    default: return false;
    }
}

/* Until when to wait for what happens on the loop. */
CDP__PRIVATE uint64_t cdp__join_until(const cdp__mesh *m) {
    const cdp__join *s = m->join;
    uint64_t until = s->until_ns;
    if (s->waits != CDP__WAITS_REQUEST) return until;
    if (s->news_ns && s->rq.keys == s->keys && m->watching) until = cdp__min(until, s->news_ns);
    if (s->asked == m->store) return until;
    return cdp__min(
        until, cdp__mesh_now(m) + cdp__min(10 * CDP__MS, (CDP__MS / 4) << cdp__min(s->polls, 6)));
}

CDP__PRIVATE void cdp__join_pause(cdp__join *s, uint64_t until_ns, cdp__join_func *next) {
    s->until_ns = until_ns;
    s->waits = CDP__WAITS_TIME;
    s->next = next;
}

CDP__PRIVATE void cdp__join_free(cdp__mesh *m) {
    cdp__join *s = m->join;
    const cdp_os *os = m->os;
    if (!s) return;
    cdp__join_forget(s);
    cdp__join_reach_end(m);
    if (s->made) cdp_store_destroy(s->made);
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

/* Ranks that have finished starting may be connected to this one already. What they have said is
   read, lest a reset overtakes what they are told. */
CDP__PRIVATE void cdp__mesh_tell_links(cdp__mesh *m) {
    uint32_t r;
    for (r = 0; r < m->desc.group.world_size; ++r) {
        if (m->links[r].state != CDP__LINK_UP) continue;
        cdp__link_tell(&m->links[r]);
        cdp__link_read_ahead(&m->links[r]);
    }
}

CDP__PRIVATE cdp_status cdp__join_end(cdp__mesh *m) {
    m->join->over = true;
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__join_told(cdp__mesh *m) {
    const bool told = m->join->result == CDP_OK;
    cdp__mesh_tell_links(m);
    /* then the last will tells the others */
    if (!told && m->watch) cdp__tcp_store_abandon(m->watch);
    return cdp__join_end(m);
}

CDP__PRIVATE cdp_status cdp__join_tell(cdp__mesh *m) {
    cdp__join *s = m->join;
    cdp__format(s->key_text, sizeof s->key_text, "%s", m->fail_key);
    cdp__join_value(s, 0, NULL, 0);
    cdp__join_value(s, 1, m->cause, m->cause_bytes);
    cdp__join_ask(m, m->store, CDP_STORE_COMPARE_SET, CDP__SETTLE_MS, cdp__join_told);
    return CDP_OK;
}

/* When rank 0 has met everybody, whoever has no rank by then is a stranger, whose troubles are
   not the job's. */
CDP__PRIVATE cdp_status cdp__join_belongs(cdp__mesh *m) {
    cdp__join *s = m->join;
    if (s->result == CDP_OK && !s->rq.number) return cdp__join_tell(m);
    s->result = CDP_ERR_STATE;
    return cdp__join_told(m);
}

/* Turn an error of this rank into the job's: others are told, and this thread's last error gets
   the rank. */
CDP__PRIVATE cdp_status cdp__join_failed(cdp__mesh *m) {
    cdp__join *s = m->join;
    const cdp_error own = s->error;
    cdp_error *e = &s->error;
    const bool store =
        own.status == CDP_ERR_STORE || own.status == CDP_ERR_STATE || own.status == CDP_ERR_TIMEOUT;
    cdp__text t = {e->text, sizeof e->text, 0};
    cdp__failure_record r;
    uint64_t said;
    if (own.origin >= 0) return cdp__join_end(m);
    e->rank = e->origin = (int32_t)m->desc.group.rank;
    cdp__text_add(&t, "rank %u/%u: ", m->desc.group.rank, m->desc.group.world_size);
    said = t.used;
    cdp__text_add(&t, "%s", own.text);
    if (store && e->peer < 0 && m->desc.group.rank != 0 && !m->desc.external_store) {
        e->peer = 0;
        cdp__text_add(&t, " (rank 0 serves it)");
    }
    cdp__failure_plain(&r, e->status, e->origin, e->peer, e->text + said);
    r.sys_errno = e->sys_errno;
    m->cause_bytes = cdp__failure_encode(&r, m->cause);
    s->result = CDP_ERR_STATE;
    if (!m->store) return cdp__join_told(m);
    if (m->claimed) return cdp__join_tell(m);
    cdp__mesh_key(m, s->key_text, "done", 0);
    cdp__join_ask(m, m->store, CDP_STORE_CHECK, CDP__SETTLE_MS, cdp__join_belongs);
    return CDP_OK;
}

/* This rank waits for rank `absent`: say so, and what is known of it. */
CDP__PRIVATE cdp_status cdp__mesh_waits_for(cdp__mesh *m) {
    const unsigned long long ms = (unsigned long long)((cdp__mesh_now(m) - m->start_ns) / CDP__MS);
    const uint32_t r = (uint32_t)m->join->absent;
    if (m->foreign)
        return cdp__fail_peer(CDP_ERR_TIMEOUT, r, 0,
            "after %llu ms still waiting for rank %s; rank %u is a process of PyTorch, which "
            "waits for the others with Gloo: ranks of cdp and of Gloo cannot be in one job",
            ms, m->join->names, r);
    return cdp__fail_peer(CDP_ERR_TIMEOUT, r, 0,
        "after %llu ms still waiting for rank %s; start it, or look at why it ended", ms,
        m->join->names);
}

/* Has process `absent` of this job set up a Gloo group of PyTorch in this store? Then it will wait
   for the others there. Both names that PyTorch has had for that key are known. */
CDP__PRIVATE cdp_status cdp__join_gloo(cdp__mesh *m) {
    static const char *const names[] = {"default_pg/0//cpu//0/rank_%u", "default_pg/0/0/rank_%u"};
    cdp__join *s = m->join;
    m->foreign = s->gloo && s->result == CDP_OK && s->rq.number;
    if (s->gloo && (s->result != CDP_OK || m->foreign || s->gloo == 2)) {
        (void)cdp__mesh_waits_for(m);
        return s->back(m);
    }
    cdp__format(s->key_text, sizeof s->key_text, names[s->gloo++], (uint32_t)s->absent);
    cdp__join_ask(m, m->store, CDP_STORE_CHECK, CDP__SETTLE_MS / 2, cdp__join_gloo);
    return CDP_OK;
}

/* Rank r is missing, and perhaps others (s->names): `back` is called with the error that says
   so. */
CDP__PRIVATE cdp_status cdp__join_complain(cdp__mesh *m, uint32_t r, cdp__join_func *back) {
    m->join->absent = (int32_t)r;
    m->join->back = back;
    m->join->gloo = 0;
    return cdp__join_gloo(m);
}

CDP__PRIVATE cdp_status cdp__join_await(cdp__mesh *m);

CDP__PRIVATE cdp_status cdp__join_noted(cdp__mesh *m) {
    m->noted = m->join->result == CDP_OK || m->noted;
    return cdp__join_await(m);
}

/* Leave word for whom this rank waits while it starts (-1: not any more), for those that have
   started and wait for it. */
CDP__PRIVATE void cdp__join_note(cdp__mesh *m, int32_t named, cdp__join_func *next) {
    cdp__join *s = m->join;
    cdp__put_u32(s->own, (uint32_t)named);
    cdp__join_value(s, 0, s->own, 4);
    cdp__mesh_key(m, s->key_text, "wait", m->desc.group.rank);
    cdp__join_ask(m, m->store, CDP_STORE_SET, CDP__SETTLE_MS, next);
}

/* The last error says who is missing. */
CDP__PRIVATE void cdp__join_log_missed(cdp__mesh *m) {
    cdp__join *s = m->join;
    cdp__log(&m->desc.group.logger, s->looks || m->foreign ? CDP_LOG_WARN : CDP_LOG_INFO,
        m->desc.group.rank, "%s", cdp_last_error()->text);
    if (s->looks++) s->pause_ns = 10000 * CDP__MS;
}

/* It is told to those who wait for this rank, too. */
CDP__PRIVATE cdp_status cdp__join_missed(cdp__mesh *m) {
    cdp__join *s = m->join;
    const cdp_error *e = cdp_last_error();
    if (cdp__mesh_now(m) >= s->deadline_ns) return e->status;
    cdp__join_log_missed(m);
    /* while addresses are missing nobody has started yet */
    if (e->peer < 0 || s->with_values) return cdp__join_await(m);
    cdp__join_note(m, e->peer, cdp__join_noted);
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__join_missing_told(cdp__mesh *m) {
    cdp__join *s = m->join;
    char at[80];
    cdp_addr a;
    if (s->found > 8) cdp__text_add(&s->list, " and %u more", s->found - 8);
    if (s->found) return cdp__join_complain(m, (uint32_t)s->absent, cdp__join_missed);
    a = cdp__tcp_store_peer_addr(m->store);
    cdp__addr_text(&a, at, sizeof at);
    (void)cdp__fail_peer(CDP_ERR_TIMEOUT, m->desc.external_store ? -1 : 0, 0,
        "the store at %s does not answer any more, but has not closed the connection: %s, has "
        "become unreachable, or is stopped",
        at, m->desc.external_store ? "who serves it" : "rank 0, which serves it");
    return cdp__join_missed(m);
}

/* Which ranks have not set their key? As text, "2, 5 and 7 more". The store gets little time to
   answer: if it does not, it is rank 0, which serves it, that is missing. */
CDP__PRIVATE cdp_status cdp__join_missing(cdp__mesh *m) {
    cdp__join *s = m->join;
    if (s->rq.keys == &s->key) { /* the answer for s->rank */
        if (s->result != CDP_OK) return cdp__join_missing_told(m);
        if (!s->rq.number && s->absent < 0) s->absent = (int32_t)s->rank;
        if (!s->rq.number && s->found++ < 8)
            cdp__text_add(&s->list, "%s%u", s->found > 1 ? ", " : "", s->rank);
        ++s->rank;
    }
    if (s->rank == m->desc.group.world_size || cdp__mesh_now(m) >= s->give_up_ns)
        return cdp__join_missing_told(m);
    cdp__format(s->key_text, sizeof s->key_text, "%s", s->texts[s->rank]);
    cdp__join_ask(m, m->store, CDP_STORE_CHECK, CDP__SETTLE_MS / 2, cdp__join_missing);
    return CDP_OK;
}

/* Every rank has set its key, or something else has happened. */
CDP__PRIVATE cdp_status cdp__join_awaited(cdp__mesh *m) {
    cdp__join *s = m->join;
    const cdp__text none = {s->names, sizeof s->names, 0};
    const uint64_t now = cdp__mesh_now(m);
    if (s->result == CDP_OK && s->with_values) {
        m->addrs = s->rq;
        s->asked = NULL;
    }
    if (s->result != CDP_ERR_TIMEOUT) return s->result;
    s->names[0] = 0;
    s->list = none;
    s->absent = -1;
    s->rank = s->found = 0;
    s->give_up_ns = cdp__min(
        now + CDP__SETTLE_MS * CDP__MS, now + (cdp__max(m->init_deadline_ns, now) - now) / 4);
    return cdp__join_missing(m);
}

/* Wait for the keys of all ranks. Now and then the wait is broken off to say who is missing. */
CDP__PRIVATE cdp_status cdp__join_await(cdp__mesh *m) {
    cdp__join *s = m->join;
    const uint64_t left = s->deadline_ns - cdp__min(cdp__mesh_now(m), s->deadline_ns);
    s->next = cdp__join_awaited;
    cdp__join_send(m, m->store, s->with_values ? CDP_STORE_MULTI_GET : CDP_STORE_WAIT, s->keys,
        m->desc.group.world_size,
        (uint32_t)cdp__max(1, (cdp__min(left, s->pause_ns) + CDP__MS - 1) / CDP__MS));
    return CDP_OK;
}

/* Wait until every rank has set its key "<what>/<rank>"; with_values: m->addrs holds them then. The
   step is complete after that. */
CDP__PRIVATE cdp_status cdp__join_await_all(cdp__mesh *m, const char *what, bool with_values) {
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
    s->pause_ns = cdp__min(CDP__FAILURE_WAIT_MS, m->desc.init_timeout_ms / 4) * CDP__MS;
    return cdp__join_await(m);
}

/* ---- >>rendezvous-steps: listen, compare, claim, exchange ------------------------------------ */

/* Knows: the deadline of cdp_init(), the store, what the step before left. Promises: a step that
   fails says which rank is missing or differs. May use: >>handshake, >>paths, >>mesh,
   >>incoming, >>rendezvous, stores. */

/* A job that says itself that it stays on one machine. (The name of this machine is often
   127.0.1.1 to itself, and says nothing.) */
CDP__PRIVATE bool cdp__mesh_local_only(const cdp__mesh *m) {
    cdp_addr a;
    return cdp__addr_parse(m->desc.master_addr, &a) ? cdp__addr_loopback(&a)
                                                    : strcmp(m->desc.master_addr, "localhost") == 0;
}

/* At one of the ports that this rank may use. Returns the descriptor, or a negative errno with
   `at` as it was tried last. */
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

/* Opens this rank's listener. Rank 0 shares the port of the store. Other ranks listen at the
   address from which they reach rank 0 if the job is on one machine or no other address is known,
   else at all addresses: each peer finds out which of them it can reach. */
CDP__PRIVATE cdp_status cdp__mesh_listen(cdp__mesh *m) {
    cdp_addr at;
    int32_t fd;
    if (cdp__mesh_serves(m)) {
        cdp__store_server_share(m->server, cdp__mesh_incoming, m);
        return CDP_OK;
    }
    if (!cdp__tcp_store_local_addr(m->store, &at))
        return cdp__fail(CDP_ERR_STORE, "the connection to the store broke at once");
    if (m->desc.listen_addr)
        (void)cdp__addr_parse(m->desc.listen_addr, &at);
    else if (m->mine_count && (m->keyed || m->desc.trust_network) && !cdp__mesh_local_only(m))
        (void)cdp__addr_parse("::", &at);
    fd = cdp__mesh_bind(m, &at);
    /* no IPv6 here */
    if (fd < 0 && fd != -EADDRINUSE && cdp__addr_any(&at) && !m->desc.listen_addr) {
        (void)cdp__addr_parse("0.0.0.0", &at);
        fd = cdp__mesh_bind(m, &at);
    }
    if (fd < 0) return cdp__cannot_listen(m->os, &at, -fd);
    cdp__loop_add(&m->loop, &m->listener, fd, cdp__mesh_accept, m);
    return CDP_OK;
}

/* What rank 0 says of the job; where it listens follows as text, if the store is external. */
#define CDP__CONFIG_BYTES (8u + 8u + 8u + CDP__JOB_BYTES + 4u)

CDP__PRIVATE uint32_t cdp__mesh_own_addrs(cdp__mesh *m, cdp_addr out[CDP__ADDRS]);

/* From here on the keys of this start are known, if the store is external. */
CDP__PRIVATE void cdp__mesh_name_round(cdp__mesh *m) {
    if (m->desc.external_store)
        cdp__format(m->round, sizeof m->round, "/%llx", (unsigned long long)cdp__get_u64(m->job));
    cdp__mesh_key(m, m->fail_key, "fail", UINT32_MAX);
}

/* The text in a value of the store, from `head` on: cut where it does not fit, and without what
   could upset a terminal. */
CDP__PRIVATE void cdp__mesh_text(
    const void *value, uint64_t bytes, uint64_t head, char *out, uint64_t size) {
    const uint8_t *in = (const uint8_t *)value;
    cdp__text t = {out, size, 0};
    out[0] = 0;
    for (; head < bytes; ++head)
        cdp__text_add(&t, "%c", in[head] < 32 || in[head] > 126 ? '?' : in[head]);
}

/* A process that lives has put `value` where this one wanted to put `mine`. */
CDP__PRIVATE cdp_status cdp__mesh_claimed_twice(
    cdp__mesh *m, const void *value, uint64_t bytes, uint64_t head, const uint8_t *mine) {
    char text[160];
    cdp__mesh_text(value, bytes, head, text, sizeof text);
    return cdp__fail_peer(CDP_ERR_MISMATCH, m->desc.group.rank, 0,
        "two processes claim rank %u: one listens at %s, the other at %s; give every process its "
        "own RANK",
        m->desc.group.rank, text, (const char *)mine + head);
}

CDP__PRIVATE cdp_status cdp__join_taken(cdp__mesh *m);

/* What another process has put under s->key_text is replaced, if it is still that. */
CDP__PRIVATE cdp_status cdp__join_replace(cdp__mesh *m) {
    cdp__join *s = m->join;
    if (s->reached)
        return cdp__mesh_claimed_twice(m, s->theirs, s->their_bytes, s->own_head, s->own);
    cdp__join_value(s, 0, s->theirs, s->their_bytes);
    cdp__join_ask(m, m->store, CDP_STORE_COMPARE_SET, 0, cdp__join_taken);
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__join_taken(cdp__mesh *m) {
    cdp__join *s = m->join;
    cdp_bytes *v = s->rq.results;
    uint64_t head;
    if (s->result != CDP_OK) return s->result;
    if (v->bytes == s->own_bytes && memcmp(v->data, s->own, (size_t)v->bytes) == 0) return CDP_OK;
    cdp__free(m->os, s->theirs);
    memcpy(&s->theirs, &v->data, sizeof s->theirs);
    s->their_bytes = v->bytes;
    v->data = NULL;
    head = cdp__min(s->own_head, s->their_bytes);
    s->reached = 1;
    if (!m->desc.external_store) return cdp__join_replace(m);
    cdp__join_reach(m, (const uint8_t *)s->theirs + head, s->their_bytes - head, cdp__join_replace);
    return CDP_OK;
}

/* Put s->own under the key s->key_text, which only one process of this rank may have. The value
   ends with the addresses of that process, own_head bytes from its beginning. What a process that
   has ended left there is replaced. */
CDP__PRIVATE cdp_status cdp__join_take(cdp__mesh *m) {
    cdp__join *s = m->join;
    cdp__join_value(s, 0, NULL, 0);
    cdp__join_value(s, 1, s->own, s->own_bytes);
    cdp__join_ask(m, m->store, CDP_STORE_COMPARE_SET, 0, cdp__join_taken);
    return CDP_OK;
}

/* A request whose answer says nothing more than that it was done. */
CDP__PRIVATE cdp_status cdp__join_set(cdp__mesh *m) {
    return m->join->result;
}

/* What this rank says of the job. */
CDP__PRIVATE void cdp__mesh_own_config(const cdp__mesh *m, uint8_t out[CDP__CONFIG_BYTES]) {
    memset(out, 0, CDP__CONFIG_BYTES);
    cdp__put_u32(out, CDP_WIRE_VERSION | cdp__byte_order() << 24);
    cdp__put_u32(out + 4, m->desc.group.world_size);
    cdp__put_u64(out + 8, m->desc.group.small_bytes);
    cdp__put_u64(out + 16, m->desc.group.piece_bytes);
    memcpy(out + 24, m->job, CDP__JOB_BYTES);
    cdp__put_u32(
        out + 40, m->desc.connections | (uint32_t)m->keyed << 16 | (uint32_t)m->desc.mac << 24);
}

/* Rank 0 publishes what the job is. */
CDP__PRIVATE cdp_status cdp__mesh_publish_config(cdp__mesh *m) {
    cdp__join *s = m->join;
    char *at = (char *)s->own + CDP__CONFIG_BYTES;
    cdp_addr own[CDP__ADDRS];
    cdp__mesh_own_config(m, s->own);
    cdp__mesh_name_round(m);
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

/* Rank 0 has another setting of the job key, or of `mac`. */
CDP__PRIVATE cdp_status cdp__mesh_guarded_otherwise(const cdp__mesh *m, bool key) {
    if (key)
        return cdp__fail_peer(CDP_ERR_MISMATCH, 0, 0,
            "rank 0 has %s job key, but this rank has %s: set CDP_JOB_KEY, or job_key, to the same "
            "secret for all ranks, or for none",
            m->keyed ? "no" : "a", m->keyed ? "one" : "none");
    return cdp__fail_peer(CDP_ERR_MISMATCH, 0, 0,
        "mac is %s here but %s on rank 0: set it, or CDP_MAC, alike on all ranks",
        m->desc.mac ? "on" : "off", m->desc.mac ? "off" : "on");
}

/* What rank 0 says of the job, against what this rank says. */
CDP__PRIVATE cdp_status cdp__mesh_compare(cdp__mesh *m, const uint8_t *value, uint64_t bytes) {
    uint8_t mine[CDP__CONFIG_BYTES];
    cdp__mesh_own_config(m, mine);
    if (bytes < sizeof mine || (cdp__get_u32(value) & 0xffffff) != CDP_WIRE_VERSION)
        return cdp__fail_peer(CDP_ERR_MISMATCH, 0, 0,
            "rank 0 runs another version of cdp: this one speaks version %u; build all ranks from "
            "the same headers",
            (unsigned)CDP_WIRE_VERSION);
    if (value[3] != cdp__byte_order())
        return cdp__fail_peer(CDP_ERR_MISMATCH, 0, 0,
            "the processor of rank 0 has another byte order than this one; all ranks of a job must "
            "have the same");
    if (cdp__get_u32(value + 4) != m->desc.group.world_size)
        return cdp__fail_peer(CDP_ERR_MISMATCH, 0, 0,
            "WORLD_SIZE is %u here but %u on rank 0; make them equal", m->desc.group.world_size,
            cdp__get_u32(value + 4));
    if (memcmp(value + 8, mine + 8, 16) != 0)
        return cdp__fail_peer(CDP_ERR_MISMATCH, 0, 0,
            "small_bytes or piece_bytes differ from those of rank 0 (%llu, %llu); make them equal",
            (unsigned long long)cdp__get_u64(value + 8),
            (unsigned long long)cdp__get_u64(value + 16));
    if (memcmp(value + 42, mine + 42, 2) != 0)
        return cdp__mesh_guarded_otherwise(m, value[42] != mine[42]);
    if (memcmp(value + 40, mine + 40, 4) != 0)
        return cdp__fail_peer(CDP_ERR_MISMATCH, 0, 0,
            "connections is %u here but %u on rank 0; make them equal", m->desc.connections,
            cdp__get_u32(value + 40) & 0xffff);
    if (m->met && memcmp(m->job, value + 24, CDP__JOB_BYTES) != 0)
        return cdp__fail_peer(CDP_ERR_MISMATCH, 0, 0,
            "the published address of rank 0 leads to another job: it is that of an earlier run; "
            "remove the meeting file or key");
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__join_config_got(cdp__mesh *m);

CDP__PRIVATE cdp_status cdp__join_config_ask(cdp__mesh *m) {
    cdp__join *s = m->join;
    cdp__mesh_key(m, s->key_text, "config", UINT32_MAX);
    cdp__join_ask(m, m->store, CDP_STORE_GET,
        (uint32_t)cdp__min(s->pause_ns / CDP__MS, 1 + (uint64_t)cdp__join_ms_left(m)),
        cdp__join_config_got);
    return CDP_OK;
}

/* Rank 0 is missing, which the last error says. */
CDP__PRIVATE cdp_status cdp__join_config_missed(cdp__mesh *m) {
    cdp__join *s = m->join;
    const bool late = cdp__mesh_now(m) >= s->deadline_ns;
    if (late && m->foreign) return CDP_ERR_TIMEOUT;
    if (late)
        return cdp__fail_peer(
            CDP_ERR_TIMEOUT, 0, 0, "rank 0 did not come within %u ms", m->desc.init_timeout_ms);
    cdp__join_log_missed(m);
    return cdp__join_config_ask(m);
}

/* The key may not be there yet. Now and then this says that rank 0 is missing. */
CDP__PRIVATE cdp_status cdp__join_config_get(cdp__mesh *m) {
    m->join->looks = 0;
    m->join->pause_ns =
        cdp__max(1, cdp__min(CDP__FAILURE_WAIT_MS, m->desc.init_timeout_ms / 4)) * CDP__MS;
    return cdp__join_config_ask(m);
}

/* The store only had the config of an earlier start; its address is in s->own. */
CDP__PRIVATE cdp_status cdp__join_config_stale(cdp__mesh *m) {
    return cdp__fail_peer(CDP_ERR_TIMEOUT, 0, 0,
        "rank 0 did not come within %u ms: the store still names that of an earlier start, "
        "and nobody listens at its address %s any more",
        m->desc.init_timeout_ms, (const char *)m->join->own);
}

/* In an external store it may be that of an earlier start, whose rank 0 has ended; then it is read
   again until the next rank 0 has replaced it. */
CDP__PRIVATE cdp_status cdp__join_config_reached(cdp__mesh *m) {
    cdp__join *s = m->join;
    const cdp_bytes *v = s->rq.results;
    const uint8_t *value = (const uint8_t *)v->data;
    const uint64_t now = cdp__mesh_now(m);
    if (s->reached) {
        const cdp_status st = cdp__mesh_compare(m, value, v->bytes);
        if (v->bytes >= CDP__CONFIG_BYTES && (!m->met || st == CDP_OK)) {
            memcpy(m->job, value + 24, CDP__JOB_BYTES);
            cdp__mesh_name_round(m);
        }
        return st;
    }
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
    if (s->result != CDP_OK) return s->result;
    s->reached = 1;
    if (!m->desc.external_store || v->bytes <= CDP__CONFIG_BYTES)
        return cdp__join_config_reached(m);
    cdp__join_reach(m, (const uint8_t *)v->data + CDP__CONFIG_BYTES, v->bytes - CDP__CONFIG_BYTES,
        cdp__join_config_reached);
    return CDP_OK;
}

/* Rank 0 says what the job is; the others compare. */
CDP__PRIVATE cdp_status cdp__mesh_config(cdp__mesh *m) {
    cdp__join *s = m->join;
    s->patience_ms = 20;
    cdp__mesh_key(m, s->key_text, "config", UINT32_MAX);
    return m->desc.group.rank == 0 ? cdp__mesh_publish_config(m) : cdp__join_config_get(m);
}

/* Make sure that nobody else has this rank. */
CDP__PRIVATE cdp_status cdp__mesh_claim(cdp__mesh *m) {
    cdp__join *s = m->join;
    char *mine = (char *)s->own;
    uint64_t random = 0;
    cdp_addr own[CDP__ADDRS];
    cdp__text t = {mine, sizeof s->own, 0};
    cdp_status st = m->os->random(m->os->user, &random, sizeof random);
    if (st != CDP_OK) return st;
    cdp__mesh_key(m, s->key_text, "claim", m->desc.group.rank);
    cdp__text_add(&t, "%llx ", (unsigned long long)random);
    s->own_head = t.used;
    if (m->desc.external_store)
        cdp__addrs_text(
            own, cdp__mesh_own_addrs(m, own), mine + s->own_head, sizeof s->own - s->own_head);
    else
        cdp__addr_text(&m->at, mine + s->own_head, sizeof s->own - s->own_head);
    s->own_bytes = strlen(mine);
    return cdp__join_take(m);
}

/* Under which addresses the others may try this rank: first the one through which it talks to
   the store. */
CDP__PRIVATE uint32_t cdp__mesh_own_addrs(cdp__mesh *m, cdp_addr out[CDP__ADDRS]) {
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
    if (!all || cdp__tcp_store_local_addr(m->store, &out[0]))
        n = !all || !cdp__addr_loopback(&out[0]);
    for (i = 0; all && i < m->mine_count && n < CDP__ADDRS; ++i) {
        if ((n && memcmp(m->mine[i].ip, out[0].ip, 16) == 0) || cdp__addr_loopback(&m->mine[i]))
            continue;
        if (m->at.family == 6 || m->mine[i].family == 4) out[n++] = m->mine[i];
    }
    n = n ? n : 1; /* a machine with nothing but loopback */
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
        cdp__addr_text(&theirs[i], at, sizeof at);
        return cdp__fail_peer(CDP_ERR_INVALID, r, 0,
            "rank %u is on another machine (%s) and this job has no key: set CDP_JOB_KEY, or "
            "job_key, to the same secret for all ranks (or trust_network, "
            "if everybody in that network may read and change everything)",
            r, at);
    }
    return CDP_OK;
}

/* The number of rank r's host: that of an earlier rank there, or the next. 0: a host that nobody
   shares. */
CDP__PRIVATE uint32_t cdp__mesh_host_before(const cdp__mesh *m, uint32_t r, uint32_t *hosts) {
    const uint64_t id = cdp__get_u64((const uint8_t *)m->addrs.results[r].data);
    uint32_t q;
    for (q = 0; id && q < r; ++q)
        if (cdp__get_u64((const uint8_t *)m->addrs.results[q].data) == id) return m->hosts[q];
    return (*hosts)++;
}

/* Publish this rank's addresses, and behind what number it shares memory. */
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
    uint32_t r, together = 0;
    uint64_t all;
    for (r = 0; r < n; ++r) {
        const uint8_t *at = (const uint8_t *)m->addrs.results[r].data;
        if (r != m->desc.group.rank && m->place && cdp__get_u64(at + 8) == m->place) ++together;
    }
    all = least
        + (uint64_t)together
            * (cdp__mesh_shares(m) ? CDP__MEMORY_DESCRIPTORS : CDP__WATCH_DESCRIPTORS);
    if (limit >= all || m->frugal) return; /* the addresses may be read twice */
    m->frugal = m->desc.no_shared_memory = true;
    cdp__log(&m->desc.group.logger, CDP_LOG_WARN, m->desc.group.rank,
        "with a link to every other rank %llu descriptors are needed (%llu without shared memory), "
        "but this process may have %llu, so it shares no memory: raise the limit (ulimit -n)",
        (unsigned long long)all, (unsigned long long)least, (unsigned long long)limit);
}

/* Everybody's addresses have come. The answers are kept. */
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
            cdp__mesh_text(v->data, v->bytes, CDP__PLACE_BYTES, text, sizeof text);
        if (!n)
            st = cdp__fail_peer(CDP_ERR_MISMATCH, r, 0,
                "rank %u published addresses that cannot be read: '%s'", r, text);
        if (n) m->hosts[r] = cdp__mesh_host_before(m, r, &hosts);
    }
    if (st == CDP_OK) cdp__mesh_count_descriptors(m);
    return st;
}

CDP__PRIVATE cdp_status cdp__mesh_done(cdp__mesh *m) {
    cdp__mesh_key(m, m->join->key_text, "done", m->desc.group.rank);
    /* not a set: this one is acknowledged */
    cdp__join_ask(m, m->store, CDP_STORE_ADD, 0, cdp__join_set);
    return CDP_OK;
}

/* Rank 0 serves the store: it must not leave before everybody has read it. An external store does
   not tell that a rank has ended, so there everybody waits for everybody, and reads the addresses
   again: another process may have taken over a rank meanwhile. */
CDP__PRIVATE cdp_status cdp__mesh_all_done(cdp__mesh *m) {
    if (!cdp__mesh_serves(m) && !m->desc.external_store) return CDP_OK;
    return cdp__join_await_all(m, "done", false);
}

/* The key of a rank is there before the rank has the answer that says so. An answer that a socket
   has not taken yet would be lost if rank 0 left now. */
CDP__PRIVATE cdp_status cdp__mesh_all_answered(cdp__mesh *m) {
    cdp__join *s = m->join;
    const uint64_t now = cdp__mesh_now(m);
    if (cdp__mesh_serves(m) && !cdp__store_server_sent(m->server) && now < s->deadline_ns)
        cdp__join_pause(s, cdp__min(s->deadline_ns, now + CDP__MS), cdp__mesh_all_answered);
    return CDP_OK;
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
    d.job_key = m->desc.external_store ? NULL : m->desc.job_key; /* PyTorch's stores know none */
    d.os = m->os;
    d.logger = m->desc.group.logger;
    d.loop = &m->loop;
    return d;
}

/* Do the ranks find rank 0 by other means than its address? */
CDP__PRIVATE bool cdp__mesh_meets(const cdp__mesh *m) {
#ifdef CDP_NO_MEETING
    (void)m;
    return false;
#else
    return m->desc.file || m->desc.store || m->desc.exchange;
#endif
}

/* Is there a store through which they meet? (Not before cdp__mesh_meet.) */
CDP__PRIVATE bool cdp__mesh_meets_in_store(const cdp__mesh *m) {
    return cdp__mesh_meets(m) && m->meeting;
}

/* ---- >>rendezvous-meeting: how the others find rank 0 ---------------------------------------- */

/* Knows: how rank 0 publishes its address: by itself, in a file, in a store, or through an
   exchange function. Promises: an address of an earlier run is not mistaken for this one's. May
   use: >>rendezvous, >>rendezvous-steps, stores. */

#ifndef CDP_NO_MEETING
/* What rank 0 publishes: "JOB ADDRESSES", the job's random name as 32 hexadecimal digits. */
CDP__PRIVATE void cdp__mesh_endpoint(cdp__mesh *m, char out[CDP__ENDPOINT_BYTES]) {
    cdp__text t = {out, CDP__ENDPOINT_BYTES, 0};
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
    m->met = true;
    return n > 0;
}
#endif /* CDP_NO_MEETING */

CDP__PRIVATE cdp_status cdp__join_open_store(cdp__mesh *m);

#ifndef CDP_NO_FILE_STORE
/* Another process may have the file locked. */
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

/* The store through which the ranks meet, if it is one. */
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
    d.private_file = true; /* by default it is in a folder in which everybody may put files */
    if (d.path) {
        st = cdp__file_make(&d, &f);
        m->join->file = f;
        return st == CDP_OK ? cdp__join_file(m) : st;
    }
#endif
    return cdp__join_open_store(m);
}

#ifndef CDP_NO_MEETING
/* Rank 0 publishes its address. It replaces that of an earlier run. */
CDP__PRIVATE cdp_status cdp__mesh_publish_endpoint(cdp__mesh *m) {
    cdp__join *s = m->join;
    char *word = (char *)s->own;
    cdp__mesh_endpoint(m, word);
    if (!m->meeting)
        return m->desc.exchange(m->desc.exchange_user, word, CDP__ENDPOINT_BYTES) == 0
            ? CDP_OK
            : cdp__fail(CDP_ERR_STORE, "the exchange function failed");
    cdp__mesh_key(m, s->key_text, "meet", UINT32_MAX);
    cdp__join_value(s, 0, word, strlen(word));
    cdp__join_ask(m, m->meeting, CDP_STORE_SET, 0, cdp__join_set);
    return CDP_OK;
}
#endif

/* A connection to the store; what came of it is s->result in `next`, and s->made the store. */
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
}

CDP__PRIVATE cdp_status cdp__join_follow(cdp__mesh *m);

/* In a meeting store the address may be that of an earlier run, where nobody listens any more; so
   it is read again after each failed attempt. */
CDP__PRIVATE cdp_status cdp__join_store_up(cdp__mesh *m) {
    cdp__join *s = m->join;
    if (s->result == CDP_OK) {
        m->store = s->made;
        s->made = NULL;
#ifndef CDP_NO_MEETING
        if (cdp__mesh_serves(m) && cdp__mesh_meets(m)) return cdp__mesh_publish_endpoint(m);
#endif
        return CDP_OK;
    }
    if (cdp__mesh_serves(m) || !cdp__mesh_meets_in_store(m) || cdp__mesh_now(m) >= s->deadline_ns)
        return s->result;
    cdp__join_disconnect(s);
    s->patience_ms = cdp__min(2 * s->patience_ms, 8000);
    return cdp__join_follow(m);
}

#ifdef CDP_NO_MEETING
CDP__PRIVATE cdp_status cdp__join_follow(cdp__mesh *m) {
    return m->join->result;
}
#else
CDP__PRIVATE cdp_status cdp__join_follow_to(cdp__mesh *m, const char *word, uint64_t bytes) {
    cdp__join *s = m->join;
    cdp_tcp_store_desc d = cdp__mesh_store_desc(m);
    if (!cdp__mesh_parse_endpoint(m, word, bytes, s->at, &d.addr_count))
        return cdp__fail(CDP_ERR_MISMATCH, "the published address of rank 0 cannot be read");
    d.addrs = s->at;
    d.connect_timeout_ms = cdp__join_ms_left(m);
    if (cdp__mesh_meets_in_store(m))
        d.connect_timeout_ms = (uint32_t)cdp__min(d.connect_timeout_ms, s->patience_ms);
    s->result = cdp__join_connect(m, &d, cdp__join_store_up);
    return s->result == CDP_OK ? CDP_OK : cdp__join_store_up(m);
}

CDP__PRIVATE cdp_status cdp__join_followed(cdp__mesh *m) {
    const cdp__join *s = m->join;
    const cdp_bytes *v = s->rq.results;
    if (s->result == CDP_ERR_TIMEOUT)
        return cdp__fail_peer(CDP_ERR_TIMEOUT, 0, 0,
            "rank 0 did not publish its address within %u ms", m->desc.init_timeout_ms);
    if (s->result != CDP_OK) return s->result;
    return cdp__join_follow_to(m, (const char *)v->data, v->bytes);
}

/* The other ranks read the address and connect. */
CDP__PRIVATE cdp_status cdp__join_follow(cdp__mesh *m) {
    char word[CDP__ENDPOINT_BYTES];
    if (!m->meeting) {
        memset(word, 0, sizeof word);
        if (m->desc.exchange(m->desc.exchange_user, word, sizeof word) != 0)
            return cdp__fail(CDP_ERR_STORE, "the exchange function failed");
        return cdp__join_follow_to(m, word, strnlen(word, sizeof word));
    }
    cdp__mesh_key(m, m->join->key_text, "meet", UINT32_MAX);
    cdp__join_ask(m, m->meeting, CDP_STORE_GET, 0, cdp__join_followed);
    return CDP_OK;
}
#endif /* CDP_NO_MEETING */

/* Where rank 0 serves the store. A name may mean another address on each machine, so then it
   listens everywhere. */
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
        /* a slow resolver is the others' trouble */
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

/* Rank 0 serves the store unless somebody else does; everybody connects. Rank 0 finds itself
   without any name. */
CDP__PRIVATE cdp_status cdp__join_open_store(cdp__mesh *m) {
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

CDP__PRIVATE cdp_status cdp__join_watching(cdp__mesh *m) {
    cdp__join *s = m->join;
    if (s->result != CDP_OK) return s->result;
    m->watch = s->made;
    s->made = NULL;
    m->watch_key.data = m->fail_key;
    m->watch_key.bytes = strlen(m->fail_key);
    m->watching = cdp__mesh_start(m->watch, &m->watch_rq, CDP_STORE_GET, &m->watch_key, 1, NULL);
    return m->watching ? CDP_OK : cdp_last_error()->status;
}

/* From here on a failure of any rank is noticed while this one waits, and its own death by the
   others. Not before it has its rank: a stray process that tries to join a running job must not
   end it. */
CDP__PRIVATE cdp_status cdp__mesh_start_watch(cdp__mesh *m) {
    cdp_tcp_store_desc d = cdp__mesh_store_desc(m);
    const cdp_addr at = cdp__tcp_store_peer_addr(m->store);
    uint8_t will[CDP__FAILURE_MAX];
    cdp__failure_record r;
    char text[64];
    m->claimed = true; /* by the step before */
    cdp__format(text, sizeof text, "rank %u ended while the job was starting", m->desc.group.rank);
    cdp__failure_plain(&r, CDP_ERR_PEER_LOST, 0, (int32_t)m->desc.group.rank, text);
    /* it has just been reached: no reason to be patient, */
    d.connect_timeout_ms = (uint32_t)cdp__min(m->desc.init_timeout_ms, 2000);
    /* and no need to ask for its address again */
    d.addrs = &at;
    d.addr_count = 1;
    d.will_key = m->fail_key;
    d.will_value.data = will;
    d.will_value.bytes = cdp__failure_encode(&r, will);
    return cdp__join_connect(m, &d, cdp__join_watching);
}

/* The deadline for meeting. The rest of init_timeout_ms, at most an eighth of it, is kept for
   finding out which ranks are missing and for telling the others. */
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

#define CDP__LEAVE_MS 100u /* for a file that another process has locked */

/* All have met, and the meeting is over. */
CDP__PRIVATE cdp_status cdp__join_good(cdp__mesh *m) {
    m->started = true;
    if (!m->noted) return cdp__join_end(m);
    cdp__join_note(m, -1, cdp__join_end);
    return CDP_OK;
}

/* This rank leaves the file, which another process may have locked. */
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
    cdp__mesh_key(m, s->key_text, "meet", UINT32_MAX);
    cdp__join_ask(m, m->meeting, CDP_STORE_DELETE, CDP__SETTLE_MS, cdp__join_leave);
    return CDP_OK;
}

/* The steps of starting, in their order. All of them share one deadline. */
static cdp__join_func *const cdp__join_steps[] = {cdp__mesh_prepare, cdp__mesh_meet,
    cdp__mesh_listen, cdp__mesh_config, cdp__mesh_claim, cdp__mesh_start_watch, cdp__mesh_exchange,
    cdp__mesh_await_addrs, cdp__mesh_read_addrs, cdp__mesh_done, cdp__mesh_all_done,
    cdp__mesh_all_answered, cdp__mesh_await_addrs_again, cdp__mesh_read_addrs};

#define CDP__JOIN_STEPS ((uint32_t)(sizeof cdp__join_steps / sizeof *cdp__join_steps))

/* The last error ends the start. */
CDP__PRIVATE void cdp__join_fail(cdp__mesh *m) {
    cdp__join *s = m->join;
    s->error = *cdp_last_error();
    s->status = s->error.status;
    s->waits = CDP__WAITS_NOT;
    if (s->made) cdp__join_disconnect(s);
    s->next = cdp__join_withdraw;
}

/* Goes on with the start as far as possible without waiting. PENDING: it waits for something on
   the loop, at the latest until cdp__join_until(). Else it is over, with that result. */
CDP__PRIVATE cdp_status cdp__join_go_on(cdp__mesh *m) {
    cdp__join *s = m->join;
    while (!s->over) {
        cdp__join_func *func;
        if (cdp__join_waiting(m)) return CDP_PENDING;
        func = s->next;
        if (!func && s->step < CDP__JOIN_STEPS) func = cdp__join_steps[s->step++];
        if (!func) func = cdp__join_withdraw;
        s->next = NULL;
        s->waits = CDP__WAITS_NOT;
        if (func(m) != CDP_OK) cdp__join_fail(m);
    }
    if (s->status != CDP_OK)
        *cdp__error_slot() = s->error;
    else
        cdp__tcp_store_withdraw_will(m->watch);
    return s->status;
}

/* The loop has failed, as the last error says: what the start waits for will not come. */
CDP__PRIVATE void cdp__join_upset(cdp__mesh *m) {
    cdp__join *s = m->join;
    const cdp_error e = *cdp_last_error();
    if (s->waits == CDP__WAITS_REQUEST) s->asked->cancel(s->asked->self, &s->rq);
    if (s->waits == CDP__WAITS_LISTENER) cdp__join_reach_end(m);
    s->waits = CDP__WAITS_NOT;
    s->result = e.status;
    *cdp__error_slot() = e;
}

/* The one place that waits while a job starts. */
CDP__PRIVATE cdp_status cdp__mesh_rendezvous(cdp__mesh *m) {
    cdp_status st;
    while ((st = cdp__join_go_on(m)) == CDP_PENDING)
        if (cdp__loop_run(&m->loop, NULL, cdp__join_until(m)) != CDP_OK) cdp__join_upset(m);
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
    m->start_ns = cdp__mesh_now(m);
    m->join->deadline_ns = cdp__mesh_init_deadline(m);
    return CDP_OK;
}

/* ---- >>launchers (pure): their variables ----------------------------------------------------- */

/* Knows: the variables of cdprun, torchrun, Open MPI, MPICH and Slurm. Promises: an error names
   the variable, its value, and what it should hold. May use: text and hash of cdp.h. */

#ifndef CDP_NO_ENV

typedef struct cdp__vars {
    cdp_getenv_func get;
    void *user;
} cdp__vars;

/* An empty variable counts as none. */
CDP__PRIVATE const char *cdp__var(const cdp__vars *v, const char *name) {
    const char *text = v->get(v->user, name);
    return text && *text ? text : NULL;
}

/* A whole decimal number in lo .. hi. */
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

/* Text as part of a name of a key or file: what has a meaning elsewhere becomes a dash. */
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

/* The first host of a list as Slurm writes it: "node[003-010,012],login" is node003 and so on.
   False when it makes no sense. */
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
            skipping = true; /* only the first of a range, or of several */
        } else if (!skipping) {
            if (c <= ' ' || c > '~' || n + 1 >= size) return false;
            out[n++] = c;
        }
    }
    out[n] = 0;
    return n > 0 && !inside;
}

/* How many tasks node `node` has in a list as "2(x3),1": two on each of the first three, one on
   the fourth. 0: not said. */
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
    cdp__text t = {l->job, sizeof l->job, 0};
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
    /* below those that systems hand out */
    if (!port || port > 65535) port = 10000 + (uint32_t)(cdp__hash(0, l->job, t.used) % 20000);
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

CDP__PRIVATE cdp_status cdp__launch_read(const cdp__vars *v, cdp_launch *l) {
    const char *name = "", *addr = cdp__var(v, "MASTER_ADDR"),
               *dir = cdp__var(v, "PMIX_SERVER_TMPDIR"), *job = cdp__var(v, "PMIX_NAMESPACE");
    const bool step = cdp__var(v, "SLURM_STEP_ID") && cdp__var(v, "SLURM_PROCID");
    cdp__text t = {l->job, sizeof l->job, 0};
    cdp_status st = CDP_OK;
    uint32_t port;
    memset(l, 0, sizeof *l);
    if (cdp__var(v, "RANK") || cdp__var(v, "WORLD_SIZE")) {
        name = "torchrun";
        st = cdp__launch_torchrun(v, l);
    } else if (cdp__var(v, "OMPI_COMM_WORLD_RANK")) {
        name = "openmpi";
        st = cdp__launch_numbers(v, l, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
            "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE");
        if (job || (job = cdp__var(v, "OMPI_MCA_ess_base_jobid")) != NULL) {
            cdp__text_add(&t, "ompi-");
            cdp__name_add(&t, job);
        }
        if (dir && strlen(dir) < sizeof l->dir) cdp__format(l->dir, sizeof l->dir, "%s", dir);
        /* without it, srun speaks PMI */
    } else if (cdp__var(v, "PMI_RANK") && (cdp__var(v, "MPI_LOCALRANKID") || !step)) {
        name = "mpich";
        st =
            cdp__launch_numbers(v, l, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS");
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

/* ---- >>url (pure) ---------------------------------------------------------------------------- */

/* Knows: the three forms of a job's address. Promises: a text that is none of them is refused
   whole. May use: >>addr of cdp_store.h. */

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
} cdp__url;

/* "rank=R&world_size=N", in any order. */
CDP__PRIVATE bool cdp__url_query(const char *p, cdp__url *u) {
    while (*p) {
        const bool rank = strncmp(p, "rank=", 5) == 0;
        if (!rank && strncmp(p, "world_size=", 11) != 0) return false;
        p = cdp__addr_decimal(p + (rank ? 5 : 11), 65535, rank ? &u->rank : &u->world_size);
        if (!p || (*p && *p != '&') || (rank ? u->has_rank : u->has_size)) return false;
        if (rank)
            u->has_rank = true;
        else
            u->has_size = true;
        if (*p && !*++p) return false;
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
            "'%s': behind the ? only rank=R and world_size=N may stand, joined by &", url);
    return CDP_OK;
}

#endif /* CDP_NO_ENV */

/* ---- >>public -------------------------------------------------------------------------------- */

/* Knows: descs and the environment. Promises: a call that fails leaves nothing behind. May use:
   everything above. */

CDP__PRIVATE cdp_tcp_desc cdp__tcp_desc_defaults(const cdp_tcp_desc *desc) {
    cdp_tcp_desc d = *desc;
    d.master_addr = cdp__def(d.master_addr, "127.0.0.1");
    d.job = cdp__def(d.job, "cdp");
    d.init_timeout_ms = cdp__def(d.init_timeout_ms, 300000);
    d.connections = cdp__def(d.connections, 1);
    if (!d.group.os) d.group.os = cdp_os_default();
    return d;
}

/* Is the desc one that can work? */
CDP__PRIVATE cdp_status cdp__tcp_desc_check(const cdp_tcp_desc *d) {
    cdp_addr at;
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
#ifndef CDP_NO_RECORDER
    t->describe = cdp__mesh_describe;
#endif
    t->failure.starting = cdp__mesh_starting;
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
    t->topology.host = cdp__mesh_host;
}

/* Closes what is left of a failed attempt, and keeps the last error. */
CDP__PRIVATE cdp_status cdp__mesh_undo(cdp__mesh *m) {
    const cdp_error e = *cdp_last_error();
    m->failing = true;
    cdp__mesh_close(m);
    *cdp__error_slot() = e;
    return e.status;
}

/* All that is needed to meet the other ranks. */
CDP__PRIVATE cdp_status cdp__mesh_make(const cdp_tcp_desc *d, cdp__mesh **out) {
    cdp__mesh *m = (cdp__mesh *)cdp__alloc_zero(d->group.os, sizeof *m);
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
    if (st != CDP_OK) return cdp__mesh_undo(m);
    *out = m;
    return CDP_OK;
}

/* All ranks have met: the group. */
CDP__PRIVATE cdp_status cdp__mesh_group(cdp__mesh *m, cdp_group **out) {
    cdp_group_desc g = m->desc.group;
    cdp_transport t;
    /* the caller's texts are not kept */
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
    if (!desc || !out)
        return cdp__fail(CDP_ERR_INVALID, "cdp_init needs a desc and a place for the result");
    *d = cdp__tcp_desc_defaults(desc);
    return cdp__tcp_desc_check(d);
}

CDP_API cdp_status cdp_init(const cdp_tcp_desc *desc, cdp_group **out) {
    cdp_tcp_desc d;
    cdp__mesh *m = NULL;
    cdp_status st;
    if (out) *out = NULL;
    st = cdp__init_check(desc, out, &d);
    if (st != CDP_OK) return st;
    if (d.group.world_size == 1) return cdp_group_create(&d.group, out);
    st = cdp__mesh_make(&d, &m);
    if (st != CDP_OK) return st;
    st = cdp__mesh_rendezvous(m);
    return st == CDP_OK ? cdp__mesh_group(m, out) : cdp__mesh_undo(m);
}

#ifndef CDP_NO_FRAMES

struct cdp_starting {
    const cdp_os *os;
    cdp_group_desc alone; /* of a rank without others */
    cdp__mesh *mesh;      /* NULL: there are none */
    cdp_status status;    /* PENDING while the ranks meet; then a failure that others still read */
    cdp_error error;
};

CDP_API cdp_status cdp_init_start(const cdp_tcp_desc *desc, cdp_starting **out) {
    cdp_tcp_desc d;
    cdp_starting *s;
    cdp_status st;
    if (out) *out = NULL;
    st = cdp__init_check(desc, out, &d);
    if (st != CDP_OK) return st;
    s = (cdp_starting *)cdp__alloc_zero(d.group.os, sizeof *s);
    if (!s) return cdp__fail_nomem("a start", sizeof *s);
    s->os = d.group.os;
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
    if (!s) return;
    if (s->mesh) {
        cdp__join_free(s->mesh);
        s->mesh->hasty = true;
        /* its last will tells the others, unless its failure already has */
        if (s->status == CDP_PENDING && s->mesh->watch) cdp__tcp_store_abandon(s->mesh->watch);
        cdp__mesh_close(s->mesh);
    }
    cdp__free(s->os, s);
}

/* One look; waits until until_ns at most. A rank 0 that could not start stays until the others
   have read why. */
CDP__PRIVATE cdp_status cdp__starting_step(cdp_starting *s, uint64_t until_ns) {
    cdp__mesh *m = s->mesh;
    cdp_status st = s->status;
    if (st == CDP_PENDING) st = cdp__join_go_on(m);
    if (st == CDP_PENDING) {
        if (cdp__loop_run(&m->loop, NULL, cdp__min(cdp__join_until(m), until_ns)) != CDP_OK)
            cdp__join_upset(m);
        return CDP_PENDING;
    }
    if (st == CDP_OK) {
        cdp__join_free(m);
        return st;
    }
    if (s->status == CDP_PENDING) {
        s->error = *cdp_last_error();
        s->status = st;
        cdp__join_free(m);
        m->leaving = true;
    }
    return cdp__mesh_serves(m) && cdp__mesh_lingers(m, until_ns) ? CDP_PENDING : st;
}

CDP_API cdp_status cdp_init_poll(cdp_starting *s, uint32_t budget_us, cdp_group **out) {
    uint64_t until;
    cdp_status st = CDP_OK;
    cdp_error e;
    if (!s || !out)
        return cdp__fail(CDP_ERR_INVALID, "cdp_init_poll needs a start and a place for the result");
    *out = NULL;
    until = budget_us ? s->os->now_ns(s->os->user) + budget_us * 1000ull : 0;
    do
        if (s->mesh) st = cdp__starting_step(s, until);
    while (st == CDP_PENDING && s->os->now_ns(s->os->user) < until);
    if (st == CDP_PENDING) return st;
    if (st == CDP_OK) {
        st = s->mesh ? cdp__mesh_group(s->mesh, out) : cdp_group_create(&s->alone, out);
        cdp__free(s->os, s);
        return st;
    }
    e = s->error;
    cdp_init_cancel(s);
    *cdp__error_slot() = e;
    return st;
}

#endif /* CDP_NO_FRAMES */

#ifndef CDP_NO_ENV

CDP__PRIVATE const char *cdp__getenv(void *user, const char *name) {
    (void)user;
    return getenv(name);
}

CDP_API cdp_status cdp_launch_read(cdp_getenv_func get, void *user, cdp_launch *out) {
    cdp__vars v;
    if (!out) return cdp__fail(CDP_ERR_INVALID, "cdp_launch_read needs a place for the result");
    v.get = get ? get : cdp__getenv;
    v.user = user;
    return cdp__launch_read(&v, out);
}

/* Where the ranks of one machine meet when their launcher says no port. */
CDP__PRIVATE void cdp__launch_file(const cdp_launch *l, char *file, uint64_t size) {
    const char *dir = l->dir[0] ? l->dir : cdp__os_temporary();
    const unsigned user = cdp__os_user_number();
    if (l->job[0]) {
        cdp__format(file, size, "%s/cdp-%u-%s", dir, user, l->job);
        return;
    }
    /* Hydra: one for all of a machine */
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

CDP_API cdp_status cdp_tcp_desc_from_env(cdp_tcp_desc *d) {
    static CDP__THREAD_LOCAL cdp_launch l;
    static CDP__THREAD_LOCAL char file[400];
    const char *trust = getenv("CDP_TRUST_NETWORK");
    const cdp__vars own = {cdp__getenv, NULL};
    uint32_t mac = 0;
    cdp_status st;
    if (!d) return cdp__fail(CDP_ERR_INVALID, "cdp_tcp_desc_from_env needs a desc");
    st = cdp_launch_read(NULL, NULL, &l);
    if (st == CDP_OK && !l.launcher[0])
        st = cdp__fail(CDP_ERR_INVALID,
            "the environment variable RANK is not set; start the program with `cdprun -n 4 "
            "PROGRAM`, torchrun, mpirun or srun, or set RANK, WORLD_SIZE, MASTER_ADDR and "
            "MASTER_PORT "
            "(RANK=0 WORLD_SIZE=1 to run alone)");
    if (st != CDP_OK) return st;
    d->group.rank = l.rank;
    d->group.world_size = l.world_size;
    if (l.master_port) d->master_port = l.master_port;
    if (l.master_addr[0]) d->master_addr = l.master_addr;
    if (!d->job_key) d->job_key = getenv("CDP_JOB_KEY");
    if (trust && strcmp(trust, "1") == 0) d->trust_network = true;
    if (!d->interfaces) d->interfaces = getenv("CDP_INTERFACES");
    if (!d->connections && cdp__var(&own, "CDP_CONNECTIONS"))
        st = cdp__var_number(&own, "CDP_CONNECTIONS", 1, 16, &d->connections);
    if (st == CDP_OK && cdp__var(&own, "CDP_MAC"))
        st = cdp__var_number(&own, "CDP_MAC", 0, 1, &mac);
    if (mac) d->mac = true;
    if (st == CDP_OK && d->group.logger.level == CDP_LOG_DEFAULT)
        st = cdp__log_level_read(getenv("CDP_LOG_LEVEL"), &d->group.logger.level);
    if (st != CDP_OK) return st;
    if (l.external_store) d->external_store = true;
    if (l.job[0] && !d->job) d->job = l.job;
    if (d->group.world_size == 1 || l.master_port || d->master_port || d->file || d->store
        || d->exchange)
        return CDP_OK;
    if (strcmp(l.launcher, "torchrun") == 0)
        return cdp__fail(CDP_ERR_INVALID,
            "the environment variable MASTER_PORT is not set; set it to a port that is free on "
            "rank 0's machine, and MASTER_ADDR to that machine");
    if (l.local_size != l.world_size)
        return cdp__fail(CDP_ERR_INVALID,
            "%s has started %u ranks on several machines and does not say where rank 0 is: pass "
            "MASTER_ADDR (the machine of rank 0) and MASTER_PORT (a free port there) to all ranks, "
            "%s",
            l.launcher, l.world_size,
            strcmp(l.launcher, "openmpi") == 0
                ? "as in mpirun -x MASTER_ADDR=node-0 -x MASTER_PORT=29500"
                : "as in mpiexec -genv MASTER_ADDR node-0 -genv MASTER_PORT 29500");
    cdp__launch_file(&l, file, sizeof file);
    d->file = file;
    return CDP_OK;
}

CDP_API cdp_status cdp_tcp_desc_from_url(const char *url, cdp_tcp_desc *d) {
    static CDP__THREAD_LOCAL cdp__url u;
    cdp_status st;
    if (!url || !d)
        return cdp__fail(CDP_ERR_INVALID, "cdp_tcp_desc_from_url needs a text and a desc");
    st = cdp__url_parse(url, &u);
    if (st == CDP_OK && u.kind == CDP__URL_ENV) st = cdp_tcp_desc_from_env(d);
    if (st != CDP_OK) return st;
    if (u.kind == CDP__URL_TCP) {
        d->master_addr = u.host;
        d->master_port = u.port;
    }
    if (u.kind == CDP__URL_FILE) d->file = u.host;
    if (u.has_rank) d->group.rank = u.rank;
    if (u.has_size) d->group.world_size = u.world_size;
    return CDP_OK;
}

CDP_API cdp_status cdp_init_url(const char *url, const cdp_tcp_desc *desc, cdp_group **out) {
    cdp_tcp_desc d;
    cdp_status st;
    memset(&d, 0, sizeof d);
    if (desc) d = *desc;
    st = cdp_tcp_desc_from_url(url, &d);
    return st == CDP_OK ? cdp_init(&d, out) : st;
}

CDP_API cdp_status cdp_init_from_env(const cdp_tcp_desc *desc, cdp_group **out) {
    cdp_tcp_desc d;
    cdp_status st;
    memset(&d, 0, sizeof d);
    if (desc) d = *desc;
    st = cdp_tcp_desc_from_env(&d);
    return st == CDP_OK ? cdp_init(&d, out) : st;
}

#endif /* CDP_NO_ENV */

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* CDP_TCP_IMPL_INCLUDED */
