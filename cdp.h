/*  cdp.h - data-parallel training for C: groups, collectives, DDP - v0.2.0 - MIT-0 or Unlicense

    WHAT IT IS
        torch.distributed and DistributedDataParallel for programs written in C. Several processes
        hold the same model. Each computes gradients on its own part of the batch, and all get the
        mean of the gradients while the backward pass still runs. This file is the ground floor:
        groups, collective operations, messages, DDP, and the interfaces to system, store and
        network. cdp_store.h (key-value stores) and cdp_tcp.h (processes and machines) stand on it.

    DO THIS
        #define CDP_IMPLEMENTATION    in exactly one C or C++ file, before
        #include "cdp_tcp.h"          which includes cdp_store.h and this file; or "cdp.h" alone,
                                      for threads of one program or a transport of your own

    QUICK START
        #define CDP_IMPLEMENTATION
        #include "cdp_tcp.h"
        #include <stdio.h>
        static float w[2] = {0, 0};                       // y = w0 + w1 x, to learn y = 1 + 2 x
        int main(void) {
            cdp_group *world;
            cdp_ddp *ddp;
            cdp_param params[] = {{ .name = "w", .data = w, .count = 2 }};
            if (cdp_init_from_env(NULL, &world) != CDP_OK) return cdp_print_error(stderr);
            cdp_ddp_desc desc = { .group = world, .params = params, .param_count = 1 };
            if (cdp_ddp_create(&desc, &ddp) != CDP_OK) return cdp_print_error(stderr);
            for (int step = 0; step < 200; ++step) {
                float *g = (float *)cdp_ddp_grad(ddp, 0); // lives in the bucket: nothing is copied
                const float x = (float)((step * 7 + (int)cdp_rank(world) * 3) % 10) / 10;
                const float err = w[0] + w[1] * x - (1 + 2 * x);
                if (cdp_ddp_backward_begin(ddp) != CDP_OK) return cdp_print_error(stderr);
                g[0] = err;
                g[1] = err * x;
                cdp_ddp_ready(ddp, 0);                    // a full bucket leaves at once
                if (cdp_ddp_backward_end(ddp) != CDP_OK) return cdp_print_error(stderr);
                w[0] -= 0.5f * g[0];                      // g is the mean over all ranks now
                w[1] -= 0.5f * g[1];
            }
            printf("rank %u: y = %.3f + %.3f x\n", cdp_rank(world), w[0], w[1]);
            cdp_ddp_destroy(ddp);
            cdp_group_destroy(world);
            return 0;
        }
        gcc -O2 fit.c -o fit -pthread        cdprun -n 4 ./fit
        Windows: gcc -O2 fit.c -o fit -lws2_32 -lbcrypt

    CONTENTS
        Each part is marked >>folder/name and comes from src/folder/name.h. `grep '>>'` lists the
        parts in their order, which is that of the #include lines of src/cdp.h. A part uses
        what comes before it, never what comes after it. Names in _api hold what programs call.

    API BY TASK
        I want to...                           call
        connect processes                      cdp_init_from_env of cdp_tcp.h
        connect threads of one program         cdp_hub_create; cdp_group_create with .hub on each
        combine arrays of all ranks            cdp_allreduce, cdp_reduce, cdp_reduce_scatter
        copy from one rank to all              cdp_broadcast, cdp_scatter
        collect from all ranks                 cdp_gather, cdp_allgather
        send every rank something else         cdp_alltoall
        send something to one rank             cdp_send, cdp_recv, cdp_sendrecv, cdp_batch
        allocate nothing later on              cdp_group_reserve
        take messages from any sender          cdp_recv_any, cdp_probe
        receive into columns of an array       cdp_batch, .row and .step of cdp_transfer
        build a protocol of my own             cdp_channel_open, cdp_channel_send
        exchange bytes of any length           cdp_allgather_bytes, cdp_gather_bytes,
                                               cdp_broadcast_bytes, cdp_scatter_bytes
        chain, cancel                          cdp_work_then, cdp_start_after, cdp_work_cancel
        work with some of the ranks            cdp_group_new, cdp_group_split
        have memory that peers read in place   cdp_group_alloc
        go on computing meanwhile              the same with _async, then cdp_work_wait
        send parts of different lengths        cdp_start with in_counts, out_counts
        wait for everybody                     cdp_barrier, cdp_monitored_barrier
        train                                  cdp_ddp_create; in each step
                                               cdp_ddp_backward_begin, cdp_ddp_ready for each
                                               parameter, cdp_ddp_backward_end
        accumulate over several passes         cdp_ddp_no_sync
        go on when ranks come or go            cdp_ddp_rebind, .consumed of cdp_sampler;
                                               cdp_elastic.h
        leave parameters out of a pass         .find_unused (and cdp_ddp_unused), .static_graph
        keep running means equal               .buffers and cdp_ddp_forward_begin
        train with unequal amounts of data     .join and cdp_ddp_join
        send fewer bytes                       cdp_hook_create, cdp_ddp_set_hook; own: cdp_hook
        average parameters now and then        cdp_averager_step
        shard optimizer state                  cdp_zero_partition, cdp_zero_step
        limit the norm of gradients            cdp_ddp_clip
        divide the data among ranks            cdp_sampler_fill
        train embeddings sparsely              cdp_param.sparse, cdp_ddp_ready_rows, cdp_ddp_rows
        check that parameters are equal        cdp_ddp_verify
        draw one step                          cdp_ddp_trace
        see how much was hidden                cdp_ddp_stats_of, cdp_ddp_bucket
        run without threads                    .no_thread = true and cdp_poll, or CDP_NO_THREADS
        run without a system                   CDP_NO_OS, a cdp_os and a cdp_transport
        use little memory                      .stage_bytes, .operations, .waits, .records
        spend so much of a frame at most       cdp_poll(group, budget_us), cdp_work_poll
        create a ddp, end a pass in frames     cdp_ddp_create_start, cdp_ddp_backward_end_start,
                                               cdp_ddp_poll
        leave without blocking                 cdp_group_leave
        stop everybody                         cdp_group_abort
        know what went wrong                   cdp_last_error, cdp_print_error
        see what a group did or waits for      cdp_group_records, cdp_group_dump, .dump_path
        see every setting and link             cdp_describe
        get the same bits for every size       .reproducible
        choose algorithms                      .choices
        tell the launcher why a rank failed    cdp_error_record_from_env

    COMING FROM PyTorch's DistributedDataParallel
        init_process_group("gloo")             cdp_init_from_env(NULL, &world)
        DDP(model, process_group=g)            cdp_ddp_create; one cdp_param each, in the order of
                                               model.parameters()
        bucket_cap_mb=N                        .bucket_bytes = N << 20; the first bucket, too
        gradient_as_bucket_view=True           the default: cdp_ddp_grad; False: cdp_param.grad
        broadcast_buffers=False                .no_buffer_broadcast
        init_sync=False                        .no_broadcast
        find_unused_parameters=True            .find_unused; cdp_ddp_unused(i), or leave i unmarked
        static_graph=True                      .static_graph
        (buckets rebuilt after one step)       .rebuild = true; cdp_ddp_grad() moves then, once
        y = ddp(x)                             cdp_ddp_forward_begin (if there are buffers)
        loss.backward()                        cdp_ddp_backward_begin; your backward, with
                                               cdp_ddp_ready(i) where autograd's hook would fire;
                                               cdp_ddp_backward_end
        optimizer.zero_grad()                  cdp_ddp_zero_grad, or overwrite
        param.grad is None                     !cdp_ddp_used(ddp, i)
        with ddp.no_sync(): ...                cdp_ddp_no_sync(ddp, true) ... (ddp, false); read by
                                               backward_begin here, by forward there
        with ddp.join(): ...                   .join = true; cdp_ddp_join when the data end
        divide_by_initial_world_size=False     .join_effective
        throw_on_early_termination=True        .join_throw
        Join([ddp, other])                     .join_hook
        register_comm_hook(state, hook)        cdp_hook_create or your cdp_hook; cdp_ddp_set_hook
        future.then(f)                         the next stage of the hook
        torch.save(state)                      save and load of cdp_ddp_hook(ddp); each rank its own
        Embedding(sparse=True)                 cdp_param.sparse, cdp_ddp_ready_rows, cdp_ddp_rows
        clip_grad_norm_(p, m)                  cdp_ddp_clip(ddp, m, &norm)
        ZeroRedundancyOptimizer                cdp_zero_partition; cdp_zero_step for optimizer.step
        PeriodicModelAverager                  cdp_averager; hierarchical: its .levels
        DistributedSampler, set_epoch          cdp_sampler_fill, .epoch
        ddp._get_ddp_logging_data()            cdp_ddp_trace(ddp, CDP_TRACE_TEXT, ...)
        The mean is the sum divided by the number of ranks. PyTorch divides first; .predivide set
        to that number gives its bits. f16 is divided first by default, because sums of f16 soon
        exceed its range.

    CONFIGURATION (macros; those marked * must be equal in all files that include this one)
        CDP_IMPLEMENTATION     off      this file holds the implementation; of cdp.h alone:
                                        CDP_CORE_IMPLEMENTATION
        CDP_API *              extern   prefix of all functions
        CDP_STATIC *           off      all functions are private to the file that implements them
        CDP_ASSERT(x)          assert   checks of the library's own logic; with CDP_NO_LOG_STRINGS,
                                        abort() without a text; with NDEBUG, nothing
        CDP_SLOTS *            8        slots for small messages between two ranks that share
                                        memory, each way, 1 to 16; see LIMITS
        CDP_SLOT_BYTES *       4096     payload of a slot, a multiple of 64 up to 32768
        CDP_EXPOSURES *        32       payloads that one peer may read in place at once, 1 to 1024
        CDP_NO_OS              off      no system: none of its headers is included, there is no
                                        default os, and CDP_NO_STDIO, CDP_NO_FILES, CDP_NO_THREADS,
                                        CDP_NO_SHARED_MEMORY hold; see WITHOUT A SYSTEM
        CDP_ERROR_TEXT *       512      bytes of cdp_error.text, at least 64; longer texts are cut
        CDP_ONLY_F32 *         off      no arithmetic of other floats: reductions and parameters of
                                        f64, f16 and bf16 are UNSUPPORTED, factors and divisors
                                        (cdp_real) are float; no hooks, no cdp_ddp_clip
        CDP_NO_STDIO           off      no stdio: cdp_print_error and the logger write nothing
        CDP_NO_FILES           off      the default os has no files: no cdp_error_record, no file
                                        store; cdp_group_dump needs an os of the program's own
        CDP_NO_THREADS         off      no pthreads: communication advances in calls only; the last
                                        error is one per program
        CDP_NO_DDP *           off      no data parallel training, and none of the next eight
        CDP_NO_HOOKS *         off      no built-in hooks (hooks of your own work)
        CDP_NO_AVERAGER *      off      no cdp_averager_step
        CDP_NO_ZERO *          off      no cdp_zero_partition, cdp_zero_step
        CDP_NO_TRACE *         off      no cdp_ddp_trace
        CDP_NO_SPARSE *        off      no cdp_ddp_ready_rows, cdp_ddp_rows; a parameter that is
                                        sparse: UNSUPPORTED
        CDP_NO_JOIN *          off      no cdp_ddp_join; a desc's join: UNSUPPORTED
        CDP_NO_CLIP *          off      no cdp_ddp_clip
        CDP_NO_VERIFY *        off      no cdp_ddp_verify
        CDP_NO_SAMPLER *       off      no cdp_sampler_fill
        CDP_NO_MESSAGES *      off      no cdp_send and the other calls of >>group/messages_api, no
                                        cdp_monitored_barrier, no channels
        CDP_NO_CHANNELS *      off      no cdp_channel_open and the other calls of channels
        CDP_NO_CHAINS *        off      no cdp_work_then, cdp_start_after, cdp_work_cancel
        CDP_NO_GROUPS *        off      no cdp_group_new, cdp_group_split
        CDP_NO_FRAMES *        off      no cdp_work_poll, cdp_init_start, cdp_ddp_poll and
                                        cdp_group_leave; a budget ends only waits: what moves goes
                                        on
        CDP_NO_OBJECTS *       off      no cdp_allgather_bytes and the others of >>group/objects
        CDP_NO_HUB *           off      no cdp_hub_create: no ranks in one process
        CDP_FEW_ALGORITHMS     off      one or two algorithms for each collective, none for several
                                        hosts; all ranks must be built so, else: MISMATCH
        CDP_NO_BACKEND *       off      no cdp_group_set_backend, cdp_group_clear_backend,
                                        cdp_group_compare, cdp_group_watch: all memory is that of
                                        the host, and there is no cdp_nccl.h
        CDP_NO_REPRODUCIBLE    off      no reductions in a fixed order: a desc with reproducible is
                                        UNSUPPORTED
        CDP_NO_RECORDER *      off      no cdp_group_records, cdp_group_dump, cdp_describe; the
                                        desc's dump_path is ignored
        CDP_NO_SHARED_MEMORY   off      the default os has no memory that processes share; see also
                                        cdp_tcp.h
        CDP_NO_LOG_STRINGS     off      log messages are left out, and texts of errors: a rank's
                                        error says "cdp.h:1234", the file and line that found it.
                                        Status, peer and errno are as ever, and so is the text of
                                        a failure that ranks tell each other
        CDP_NAMES_0_1 *        off      public names of 0.1 compile, too: the type cdp_reduce, the
                                        call cdp_reduce_to

    WITHOUT A SYSTEM (CDP_NO_OS)
        Each desc needs the program's own cdp_os: cdp_group_create without one is INVALID, other
        creations run out of memory. Of the C library only memcpy, strlen and their like are used
        (cdp_tcp.h also getenv, but with CDP_NO_ENV). `int` has 32 bits or more. What needs what:
        groups, collectives, DDP, messages     alloc, release, now_ns, random of the os; send, recv,
                                               wait, wake, destroy of a cdp_transport
        a hub polled by one thread             alloc, release, now_ns, random
        cdp_store.h, cdp_tcp.h                 the same, sleep_until, and the group net
        file stores, cdp_group_dump            the group files
        Calls must not overlap; interrupts must not call the library. What sizes its memory:
        stage_bytes, window_bytes, operations, waits, records and max_pending of the group's desc,
        CDP_ERROR_TEXT, CDP_ONLY_F32. The firmware in examples/18_firmware, two ranks on a
        Cortex-M3, takes 15 KB of memory, 2.5 KB of stack included, and 67 KB of code; `make
        firmware` measures it.

    THREADS
        Any thread may use a group. All ranks must start the operations of a group in one order, so
        it is best to start them from one thread. A group from cdp_group_create or cdp_init has one
        progress thread, which serves the groups made from it, too; it sleeps unless work is in
        flight that no caller waits for. A waiting caller advances communication itself. A cdp_ddp
        belongs to one thread at a time. Functions of cdp_work_then() and callbacks of channels run
        on the thread that advances communication, one at a time.
        cdp_group_abort: any thread, any time. cdp_group_destroy: when no other thread uses the
        group any more. A child of fork() must not use the groups of its parent.

    MEMORY
        All memory comes from os->alloc, except 0.8 KB while the default os looks up a name,
        and what the C library takes for itself (threads, names, lists of interfaces). The
        first group: about 0.17 MB and 0.7 KB per rank. Each group made from it: 10 KB and
        0.2 KB per rank. Unexpected data: at most window_bytes per channel and rank. A hub: 9
        bytes per pair of ranks, and 0.6 MB for each pair that talks. A DDP: its gradients once
        (the buckets are the gradients) and 0.25 KB per parameter; twice for a moment when
        buckets are rebuilt; up to 1 MiB for small parameters that are broadcast together; a
        copy of gradients that this rank did not use while others may have. Messages: 0.3 KB
        for each pair of rank and tag that was used, 0.6 KB for each message in flight; 10
        KB with the first cdp_work_then(), receive from any rank or batch of a group.
        Operations allocate nothing once the largest small message and the longest queue
        have been seen, except that a rank that has waited for a second, or a quarter of the
        timeout, needs memory once for a peer to say what it calls.

    ERRORS
        INVALID, UNSUPPORTED and NOMEM at a call: nothing was started; correct it and go on.
        TIMEOUT, PEER_LOST, ABORTED, MISMATCH, IO and STATE of an operation: the group is broken on
        every rank, for the same first cause, which every rank reports; destroy it. Every wait ends
        by its deadline. Ranks that call different collectives learn it from the first message
        between them, which may be one of a later collective: the root of a broadcast receives
        nothing, so two roots both succeed. Two that wait for each other in different collectives
        learn it after 1 s, or a quarter of the timeout if that is less; a receive to which nobody
        sends ends at the deadline. A rank that leaves while others still need something of it is
        PEER_LOST to them, as one whose process ends; both are named. After a deadline ranks ask
        each other, link by link, whom each waits for, in 5% of the timeout, at most 300 ms. A
        rank reads a question, or an answer, when it polls next. So without threads a rank should
        poll all the while: with frames of 16 ms, on a fast network, chains of up to 9 ranks can be
        followed, and one that answers later is taken for the end of its chain, and blamed.
        The library installs no signal handler and no atexit function,
        never forks, reads no environment variable, and never raises SIGPIPE.

    LIMITS
        ranks 65535 | elements and bytes 63 bits | operations in flight: memory
        messages in flight per group 1,048,576 | error text 511 bytes
        groups and tags that other ranks use before this rank asks for them: 256 at once; one more
        is an error on both sides
        two ranks that share memory, each way: CDP_SLOTS small messages in slots, CDP_EXPOSURES
        payloads read in place. What is beyond goes through the ring, so nothing fails. They are
        macros, not members of a desc: they lay out memory in which the peer may store any value,
        and a constant layout makes each check of an index one comparison. Make them smaller where
        many ranks share a machine. Ranks that were built with different ones use TCP.

    HOW AN ALLREDUCE BECOMES BYTES (seven functions: what a debugger shows in transport.send)
        cdp_allreduce            says which operation, and nothing else
          cdp__collective        checks the request, appends it to the queue of its group
                                 (cdp__enqueue, >>group/queue), and polls until it has ended:
            cdp__first_moves     at first its group alone, a few times (>>group/queue),
            cdp__world_poll      then all groups, as often as something moves (>>group/progress)
              cdp__group_poll    takes the first operation of the queue (>>group/running)
                cdp__exec_poll   a round of its algorithm: the transfers, then the local steps
                                 (>>collective/executor; the rounds are pure functions,
                                 >>collective/rounds)
                  cdp__transfer_send  a payload in pieces, each of them into a slot, or exposed to
                                 be read in place, or with a 64-byte header (>>message/transfer,
                                 >>message/send)
                    transport.send    bytes for one peer: a socket, a ring, or your own network
        Between its own polls a waiting caller spins or sleeps, in cdp__progress_next. Where no
        caller waits, cdp_poll() or the progress thread calls cdp__world_poll.
        On the other side transport.recv, cdp__port_pump and cdp__stream_read (>>message/receive)
        lead to cdp__transfer_receive, which stores the bytes in their place or combines them.

    HOW A FAILURE REACHES ALL RANKS (ten functions; where no section is given: >>failure/spread)
        cdp__group_lost          the transport has lost a peer
          cdp__group_fail        makes a record of that; a missed deadline and a mismatching call
                                 have records of their own
            cdp__group_observe   stops the group's operations
              cdp__domain_step   stores the decision of the next function as the error of every
                                 group that fails together with this one
                cdp__failure_step    decides which rank is to blame (>>failure/blame, pure): at
                                 once, or after it has settled. To settle, this rank asks the
                                 ranks it waits for where their chains of waits end
                                 (>>failure/waits), and accepts an earlier cause; meanwhile each
                                 poll of the group calls cdp__failure_step again
                cdp__group_publish   prepares a FAILURE message for every peer (>>failure/report)
        cdp__group_reporting     sends it in the next polls of the group, until every peer has it or
                                 its time is over (>>failure/report)
          cdp__group_send_cause  queues it for one peer, after a message that is half sent
        On each of the other ranks:
        cdp__world_on_control    receives it, whatever this rank is reading at the time
          cdp__world_on_report   turns it into an event; then cdp__domain_step as above

    HOW TWO RANKS SHARE MEMORY (>>message/fabric)
        One direction between two ranks is a `way` in memory that both see: a ring of bytes,
        CDP_SLOTS slots for small messages, and a table of exposures (payloads that the peer reads
        in place). Threads of one process allocate it: cdp__hub_way (>>group/hub). Of two processes
        of one host, the one that connects makes it and passes its descriptor, cdp__link_offer; the
        other one takes it, cdp__incoming_share; both map it, cdp__shared_open (all in src/tcp).
        A doorbell wakes the side that sleeps.

    License: MIT-0 or Unlicense, as you like; see the end of this file. */

/* Joined from src/cdp.h and what it includes: change that, then `make headers`. */
#if (defined(CDP_IMPLEMENTATION) || defined(CDP_CORE_IMPLEMENTATION)) && defined(__STRICT_ANSI__) \
    && !defined(_DEFAULT_SOURCE)
/* with -std=c11 the C library hides sockets and clocks unless it is told before its first header */
#define _DEFAULT_SOURCE 1
#endif
#ifndef CDP_INCLUDED
#define CDP_INCLUDED

/* ---- >>base/version: of the library, and of what ranks send each other ----------------------- */

#define CDP_VERSION_MAJOR 0
#define CDP_VERSION_MINOR 2
#define CDP_VERSION_PATCH 0
#define CDP_VERSION (CDP_VERSION_MAJOR * 10000 + CDP_VERSION_MINOR * 100 + CDP_VERSION_PATCH)
#define CDP_WIRE_VERSION 4 /* version of the protocol between ranks; compared in handshakes */

/* ---- >>base/config: macros that a program may set -------------------------------------------- */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* No system: the program passes a cdp_os of its own, and the default one is left out with all that
   it is made of. */
#ifdef CDP_NO_OS
#undef CDP_NO_STDIO
#undef CDP_NO_FILES
#undef CDP_NO_THREADS
#undef CDP_NO_SHARED_MEMORY
#define CDP_NO_STDIO
#define CDP_NO_FILES
#define CDP_NO_THREADS
#define CDP_NO_SHARED_MEMORY
#endif

/* Channels move offered bodies as messages do. */
#ifdef CDP_NO_MESSAGES
#undef CDP_NO_CHANNELS
#define CDP_NO_CHANNELS
#endif

/* They compute with f64. */
#ifdef CDP_ONLY_F32
#undef CDP_NO_HOOKS
#undef CDP_NO_CLIP
#define CDP_NO_HOOKS
#define CDP_NO_CLIP
#endif

/* The parts of training need it. */
#ifdef CDP_NO_DDP
#undef CDP_NO_HOOKS
#undef CDP_NO_AVERAGER
#undef CDP_NO_ZERO
#undef CDP_NO_TRACE
#undef CDP_NO_SPARSE
#undef CDP_NO_JOIN
#undef CDP_NO_CLIP
#undef CDP_NO_VERIFY
#define CDP_NO_HOOKS
#define CDP_NO_AVERAGER
#define CDP_NO_ZERO
#define CDP_NO_TRACE
#define CDP_NO_SPARSE
#define CDP_NO_JOIN
#define CDP_NO_CLIP
#define CDP_NO_VERIFY
#endif

#ifndef CDP_API
#if defined(CDP_STATIC) && (defined(__GNUC__) || defined(__clang__))
#define CDP_API __attribute__((__unused__)) static
#elif defined(CDP_STATIC)
#define CDP_API static
#else
#define CDP_API extern
#endif
#endif

#if defined(__GNUC__) || defined(__clang__)
#define CDP_MUST_CHECK __attribute__((warn_unused_result))
#else
#define CDP_MUST_CHECK
#endif
/* Where uint32_t is a long, as on many boards, the check would complain of every %u. */
#if (defined(__GNUC__) || defined(__clang__)) && !defined(CDP_NO_OS)
#define CDP_FORMAT_CHECK __attribute__((format(printf, 4, 5)))
#else
#define CDP_FORMAT_CHECK
#endif

/* A desc's timeout_ms: 0 means the default, this means never. */
#define CDP_NO_TIMEOUT 0xffffffffu

/* Bytes of cdp_error.text, at least 64. */
#ifndef CDP_ERROR_TEXT
#define CDP_ERROR_TEXT 512
#endif

/* The tables in memory that two ranks share; see LIMITS. */
#ifndef CDP_SLOTS
#define CDP_SLOTS 8u
#endif
#ifndef CDP_SLOT_BYTES
#define CDP_SLOT_BYTES 4096u
#endif
#ifndef CDP_EXPOSURES
#define CDP_EXPOSURES 32u
#endif
#if CDP_SLOTS < 1 || CDP_SLOTS > 16 || CDP_EXPOSURES < 1 || CDP_EXPOSURES > 1024
#error "cdp.h: CDP_SLOTS must be 1 to 16, CDP_EXPOSURES 1 to 1024"
#endif
#if CDP_SLOT_BYTES < 64 || CDP_SLOT_BYTES > 32768 || CDP_SLOT_BYTES % 64
#error "cdp.h: CDP_SLOT_BYTES must be 64 to 32768, a multiple of 64"
#endif

#ifdef __cplusplus
extern "C" {
#endif
/* ---- >>base/status_api: what calls return ---------------------------------------------------- */

/* What every fallible function returns. Zero is success, errors are negative; the details are in
   cdp_last_error(). */
typedef enum cdp_status {
    CDP_OK = 0,
    /* only from functions that document it: not finished yet, call again */
    CDP_PENDING = 1,
    /* an argument is wrong; nothing was done; the text says what to change */
    CDP_ERR_INVALID = -1,
    /* the allocator returned nothing */
    CDP_ERR_NOMEM = -2,
    /* The deadline passed; the text names the rank that was waited for. Operations that complete
       while the cause is being settled (5% of the timeout, at most 300 ms) return CDP_OK. */
    CDP_ERR_TIMEOUT = -3,
    /* a peer's connection ended or could not be made; `peer` names it */
    CDP_ERR_PEER_LOST = -4,
    /* a rank called cdp_group_abort(); the text contains the reason */
    CDP_ERR_ABORTED = -5,
    /* ranks called different things, or brought different models, versions or settings */
    CDP_ERR_MISMATCH = -6,
    /* a combination that is not supported, such as BAND of a float dtype */
    CDP_ERR_UNSUPPORTED = -7,
    /* the operating system refused, sys_errno says why; EBADMSG: bytes were changed on the way
       (`mac` of cdp_tcp.h) */
    CDP_ERR_IO = -8,
    /* the key-value store failed or went away */
    CDP_ERR_STORE = -9,
    /* the call came at the wrong time (twice, never, after destroy) */
    CDP_ERR_STATE = -10,
    /* a mistake in this library; please report it */
    CDP_ERR_INTERNAL = -11,
    /* the function that was called on another rank ran, and reported a failure (cdp_rpc.h) */
    CDP_ERR_REMOTE = -12,
    /* a limit of this rank or of the peer is reached, nothing was done; the text says which one */
    CDP_ERR_BUSY = -13
} cdp_status;

/* The usual short name of a status, for example "TIMEOUT". Never NULL. Any thread. */
CDP_API const char *cdp_status_name(cdp_status status);

/* ---- >>base/types_api: dtypes, reductions, memory -------------------------------------------- */

typedef enum cdp_dtype {
    CDP_DTYPE_DEFAULT = 0, /* means f32 */
    CDP_DTYPE_F32,
    CDP_DTYPE_F64,
    CDP_DTYPE_I32,
    CDP_DTYPE_I64,
    CDP_DTYPE_U8,
    CDP_DTYPE_F16,  /* IEEE half: 1 sign, 5 exponent, 10 fraction bits */
    CDP_DTYPE_BF16, /* the upper half of an f32 */
    CDP_DTYPE_I8,
    CDP_DTYPE_I16,
    CDP_DTYPE_U16,
    CDP_DTYPE_U32,
    CDP_DTYPE_U64,
    CDP_DTYPE_BOOL, /* one byte; 0 is false */
    /* One byte, with 4 and 3, or 5 and 2, exponent and fraction bits. F8E4M3 has no infinities:
       what exceeds 448 is NaN, as in PyTorch's float8_e4m3fn */
    CDP_DTYPE_F8E4M3,
    CDP_DTYPE_F8E5M2,
    CDP_DTYPE_COUNT
} cdp_dtype;

/* Factors, divisors and shares. */
#ifdef CDP_ONLY_F32
typedef float cdp_real;
#else
typedef double cdp_real;
#endif

/* Reductions. AVG is the sum divided by the number of ranks, once, after summing (integers: C
   division, towards zero). Integer sums and products wrap around modulo 2^bits. Floats: a NaN among
   the operands makes every result NaN, MIN and MAX included, and always the same one; MIN and MAX
   take 0 and -0 for equal and keep the left one of equals. Floats of 16 and 8 bits are combined,
   scaled and divided as f32, and rounded to nearest even after every such step. BAND, BOR, BXOR:
   integers and BOOL. PREMUL_SUM: floats; every rank's input is multiplied by its cdp_request.factor
   first. BOOL: every byte but 0 is true, and results are 0 or 1; SUM, MAX and BOR are "or",
   PRODUCT, MIN and BAND are "and", BXOR is "one of both"; it has no AVG. The call returns
   CDP_ERR_UNSUPPORTED for other combinations. Which operand is left, and in what order the ranks
   are combined, depends on the operation, the number of ranks and the length alone: every rank gets
   the same bits, and so does every run. */
typedef enum cdp_reduce_op {
    CDP_REDUCE_DEFAULT = 0, /* means SUM */
    CDP_REDUCE_SUM,
    CDP_REDUCE_AVG,
    CDP_REDUCE_MIN,
    CDP_REDUCE_MAX,
    CDP_REDUCE_PRODUCT,
    CDP_REDUCE_BAND,
    CDP_REDUCE_BOR,
    CDP_REDUCE_BXOR,
    CDP_REDUCE_PREMUL_SUM,
    CDP_REDUCE_COUNT
} cdp_reduce_op;

typedef enum cdp_coll_kind {
    CDP_COLL_NONE = 0,
    CDP_COLL_ALLREDUCE,
    CDP_COLL_BROADCAST,
    CDP_COLL_ALLGATHER,
    CDP_COLL_BARRIER,
    CDP_COLL_REDUCE,
    CDP_COLL_GATHER,
    CDP_COLL_SCATTER,
    CDP_COLL_REDUCE_SCATTER,
    CDP_COLL_ALLTOALL,
    CDP_COLL_SEND, /* a message from one rank to another, on both sides */
    CDP_COLL_COUNT
} cdp_coll_kind;

/* Bytes of one element, 0 for a value that is no dtype. */
CDP_API uint64_t cdp_dtype_size(cdp_dtype dtype);
CDP_API const char *cdp_dtype_name(cdp_dtype dtype);
CDP_API const char *cdp_reduce_name(cdp_reduce_op op);
CDP_API const char *cdp_coll_name(cdp_coll_kind kind);

/* A piece of memory, for scatter and gather. The functions that take one never write through
   `data` when sending. */
typedef struct cdp_iov {
    void *data;
    uint64_t bytes;
} cdp_iov;

/* Bytes that the receiver of this struct may read, but does not own. */
typedef struct cdp_bytes {
    const void *data;
    uint64_t bytes;
} cdp_bytes;

/* ---- >>base/error_api: the last error, as values and as text --------------------------------- */

/* Everything known about a failure. `text` is one complete sentence that already contains the
   other fields. Ranks are those in the world, also where a group of some of them failed. */
typedef struct cdp_error {
    cdp_status status;
    /* who reports it, -1 outside a group */
    int32_t rank;
    /* the rank to blame (it died, is late, or differs), -1: none */
    int32_t peer;
    /* the rank that saw the cause first; equals `rank` when it was seen here */
    int32_t origin;
    /* the operation that was running, NONE outside one */
    cdp_coll_kind kind;
    /* round of that operation */
    uint32_t round;
    /* sequence number of that operation in its group, from 1; 0 outside one */
    uint64_t op_seq;
    /* errno, 0 when the operating system had no part in it */
    int32_t sys_errno;
    /* the place in the library where it was noticed: static memory, never NULL */
    const char *file;
    /* (0: not in the library) */
    uint32_t line;
    char text[CDP_ERROR_TEXT];
} cdp_error;

/* The last failure that a call on this thread reported. Never NULL; status CDP_OK before the first
   one. A success does not clear it. Valid until the thread's next failing call. A failure that a
   progress thread saw arrives here when this thread waits for the operation or uses the group. */
CDP_API const cdp_error *cdp_last_error(void);

/* Print cdp_last_error() as one line ("cdp: ...") to a `FILE *` (usually stderr) and return 1,
   so that main() can end with `return cdp_print_error(stderr);`. Does nothing but return 1 under
   CDP_NO_STDIO. */
CDP_API int cdp_print_error(void *file);

/* Leave the reason of this rank's failure to the launcher: write it to the file `path` in the form
   that torchrun and cdprun read, {"message": {"message": ..., "extraInfo": {"py_callstack": ...,
   "timestamp": "seconds since 1970"}}}, replacing what is there. `message` (NULL: cdp_last_error())
   is UTF-8 text for people. ..._from_env: to the file that the variable TORCHELASTIC_ERROR_FILE
   names, and nowhere (CDP_OK) if there is none. Call it before the program ends, as
   cdp_print_error(): cdp_last_error() stays as it is even when this fails. Any thread. Errors:
   INVALID (no path); IO (the file cannot be written, errno says why); UNSUPPORTED under
   CDP_NO_FILES. */
CDP_API cdp_status cdp_error_record(const char *path, const char *message);
CDP_API cdp_status cdp_error_record_from_env(const char *message);

/* ---- >>base/log_api: messages for a log ------------------------------------------------------ */

typedef enum cdp_log_level {
    CDP_LOG_DEFAULT = 0, /* means WARN */
    CDP_LOG_ERROR,
    CDP_LOG_WARN,
    CDP_LOG_INFO,
    CDP_LOG_DEBUG,
    CDP_LOG_SILENT
} cdp_log_level;

/* Where messages go. `func` may be called from any thread of the library, one call at a time per
   group; it must not call back into the library. `rank` is -1 before a rank is known. Default:
   lines on stderr (nowhere under CDP_NO_STDIO). */
typedef struct cdp_logger {
    void (*func)(cdp_log_level level, const char *text, int32_t rank, void *user);
    void *user;
    cdp_log_level level; /* (default: WARN) messages less urgent than this are not made */
} cdp_logger;

/* ---- >>os/os_api: what is asked of the machine, replaceable as a whole ----------------------- */

/* A network address: IPv4 or IPv6, port in host order. */
typedef struct cdp_addr {
    uint8_t family; /* 4, 6, or 0 for "no address"                           */
    uint8_t ip[16]; /* network order; IPv4 uses the first four               */
    uint16_t port;
    uint32_t scope; /* IPv6 link-local: interface index, else 0              */
} cdp_addr;

#define CDP_IO_READ 1u
#define CDP_IO_WRITE 2u
#define CDP_IO_ERROR 4u       /* the connection is broken                      */
#define CDP_IO_END 8u         /* the other side ended the stream, behind what is still to be read */
#define CDP_IO_EOF (-1000000) /* recv: the other side ended the stream orderly */

/* What a watch reports of one descriptor. */
typedef struct cdp_ready {
    void *owner;  /* as given to watch_add */
    uint32_t got; /* CDP_IO_READ | CDP_IO_WRITE | CDP_IO_ERROR | CDP_IO_END */
} cdp_ready;

typedef struct cdp_os cdp_os;

/* What the library asks of the machine. alloc, release, now_ns and random are required; net,
   threads, shared and files are optional groups. A group whose first function is NULL is absent:
   then everything that needs it is refused at creation with a sentence, and the rest works. Without
   `threads` the library runs in the caller's thread alone. Without `net` only hubs and a program's
   own transport connect ranks. Without `shared` processes of one machine talk over `net`. Without
   `files` there is no file store, and nothing writes dumps.

   To replace a part, copy *cdp_os_default(), change that part, and pass the copy in a desc; it
   must outlive everything that was made with it. A simulation replaces clock, random and net; a
   board without a system sets the required members of a zeroed struct; an engine replaces alloc
   and release. Functions that return a descriptor return it (>= 0) or a negative errno. */

/* Sockets. They never block: send_iov and recv_iov return the bytes moved (> 0), 0 when nothing
   can be moved now, or a negative errno; recv_iov returns CDP_IO_EOF at the end of the stream. */
typedef struct cdp_os_net {
    /* Addresses of a host name; not called for literal addresses. May block, until deadline_ns
       (then -ETIMEDOUT). Returns how many it found, at most `max_count`, or -ENOENT when the name
       does not exist, or -EAGAIN when no name server answered. */
    int32_t (*resolve)(void *user, const char *host, uint16_t port, cdp_addr *out,
        uint32_t max_count, uint64_t deadline_ns);
    /* Returns a listening descriptor. Port 0: any; *bound gets the real one. */
    int32_t (*listen_at)(void *user, const cdp_addr *at, cdp_addr *bound);
    /* May be NULL. Prepares a listening descriptor that the program gives the library (listen_fd
       of a desc): non-blocking, closed by exec. Returns 0 or a negative errno. */
    int32_t (*adopt)(void *user, int32_t fd);
    /* Returns the descriptor of the next connection; -EAGAIN when none waits. */
    int32_t (*accept_next)(void *user, int32_t fd, cdp_addr *from);
    /* Begins to connect; the descriptor polls writable when that is done. */
    int32_t (*connect_to)(void *user, const cdp_addr *to);
    /* Afterwards: 0 when it is connected, or the reason as -errno. */
    int32_t (*connect_result)(void *user, int32_t fd);
    int64_t (*send_iov)(void *user, int32_t fd, const cdp_iov *iov, uint32_t n);
    int64_t (*recv_iov)(void *user, int32_t fd, const cdp_iov *iov, uint32_t n);
    void (*close_fd)(void *user, int32_t fd);
    /* May be NULL. This end of a connection sends no more: after what was sent before, the other
       end reads CDP_IO_EOF. Receiving goes on. Without this function, the last bytes that a rank
       sends may be lost if a message to it arrives just after it has left. */
    void (*end_sending)(void *user, int32_t fd);
    /* The address of this end of a connection. */
    int32_t (*local_addr)(void *user, int32_t fd, cdp_addr *out);

    /* A watch: a list of descriptors and what can be done with each of them. Everything is reported
       once: READ when there is something to read (or to accept), WRITE when there is room to send
       (or a connection stands), END and ERROR when that is so. READ and WRITE are reported again
       when there is something new after recv_iov, accept_next or send_iov said "not now".
       Descriptors may be added, changed and removed while another thread is in watch_wait, which
       need not see that before its next call. */

    /* Returns 0 or a negative errno. Takes memory from os->alloc. */
    int32_t (*watch_open)(const cdp_os *os, void **watch);
    void (*watch_close)(const cdp_os *os, void *watch);
    /* Adds `fd` to the watch: from now on these bits (CDP_IO_READ, CDP_IO_WRITE), END and ERROR are
       reported for it, with `owner`. Returns 0 or a negative errno. */
    int32_t (*watch_add)(const cdp_os *os, void *watch, int32_t fd, uint32_t bits, void *owner);
    /* Replaces the bits that are reported for `fd`. Directions that are ready already are reported
       once more. */
    void (*watch_change)(void *user, void *watch, int32_t fd, uint32_t bits, void *owner);
    /* May be NULL where the system itself reports everything new. Tells the watch that a call on
       `fd` has returned -EAGAIN in these directions, so that it reports them again when they are
       ready. */
    void (*watch_used_up)(void *user, void *watch, int32_t fd, uint32_t bits);
    /* Ends reports for `fd`. Always called before close_fd: a child of fork() may keep the
       descriptor open, and closing alone would not end them. */
    void (*watch_remove)(void *user, void *watch, int32_t fd);
    /* Sleeps until there is something to report, or now_ns() >= deadline_ns (0: returns at once,
       UINT64_MAX: no limit). Returns how many of `out` it filled, at most max_count, or a negative
       errno. One thread at a time. */
    int32_t (*watch_wait)(
        void *user, void *watch, cdp_ready *out, uint32_t max_count, uint64_t deadline_ns);

    /* Another thread ends a watch_wait() with these. wake_open makes two descriptors (both may be
       the same one): fd[0] is ready to read from wake_set(fd[1]) until wake_clear(fd[0]). Closed
       with close_fd. Returns 0 or a negative errno. */
    int32_t (*wake_open)(void *user, int32_t fd[2]);
    void (*wake_set)(void *user, int32_t fd);
    void (*wake_clear)(void *user, int32_t fd);

    /* May be NULL. For how many nanoseconds the machine at the other end of a connection has
       acknowledged nothing although something was sent to it; 0: nothing is outstanding, or not
       known. A program there that does not read does not count: its machine still acknowledges. */
    uint64_t (*unanswered_ns)(void *user, int32_t fd);

    /* May be NULL. Addresses of this machine's interfaces whose names begin with an entry of
       `interfaces` ("eth0,ib"; "^docker,veth": all but those; NULL: all). Returns how many, at
       most max_count. */
    uint32_t (*addresses)(void *user, const char *interfaces, cdp_addr *out, uint32_t max_count);
    /* May be NULL. Writes which process listens on this port of this machine, as text
       ("process 123 (nginx)"); false when that is not known. */
    bool (*port_owner)(void *user, uint16_t port, char *text, uint64_t size);
    /* May be NULL. How many descriptors this process may have open at once; 0: not known. */
    uint64_t (*descriptor_limit)(void *user);
} cdp_os_net;

/* Threads. start, mutex_create and cond_create return NULL when out of memory, which they take from
   os->alloc. */
typedef struct cdp_os_threads {
    void *(*start)(const cdp_os *os, void (*func)(void *arg), void *arg);
    void (*join)(const cdp_os *os, void *thread);
    void (*yield)(void *user);
    void *(*mutex_create)(const cdp_os *os);
    void (*mutex_destroy)(const cdp_os *os, void *mutex);
    void (*mutex_lock)(void *user, void *mutex);
    void (*mutex_unlock)(void *user, void *mutex);
    void *(*cond_create)(const cdp_os *os);
    void (*cond_destroy)(const cdp_os *os, void *cond);
    /* May return before the condition was signalled. */
    void (*cond_wait)(void *user, void *cond, void *mutex, uint64_t deadline_ns);
    void (*cond_broadcast)(void *user, void *cond);
} cdp_os_threads;

/* Memory that processes of one machine share. These functions make descriptors for the functions of
   cdp_os_net: an os that replaces accept_next, close_fd or the wake-ups must replace this group,
   too, or set `create` to NULL. */
typedef struct cdp_os_shared {
    /* Returns a descriptor of this many bytes, all allocated now (-ENOMEM where they are not, and
       never a signal later), which cannot be made smaller. */
    int32_t (*create)(void *user, uint64_t bytes);
    /* Maps such memory and writes its size. NULL when it cannot be mapped or could be made
       smaller. */
    void *(*map)(void *user, int32_t fd, bool writable, uint64_t *bytes);
    void (*unmap)(void *user, void *at, uint64_t bytes);
    /* `waits`: a socket that listens under this name for other processes of this machine, for
       accept_next(); otherwise one that is connected to the socket of this name. */
    int32_t (*pass_open)(void *user, const uint8_t name[12], bool waits);
    /* Sends (`sending`) or receives n descriptors over such a connection; the process at the
       other end must belong to the same user. Returns its process id (0: not known) or -errno
       (-EMFILE: this process has no room for descriptors, which stay queued). */
    int32_t (*pass)(void *user, int32_t fd, int32_t *fds, uint32_t n, bool sending);
    /* May be NULL. Copies n pieces of the memory of process `pid`, from these addresses. Returns
       0 or -errno. */
    int32_t (*read_process)(
        void *user, int32_t pid, const uint64_t *from, const cdp_iov *to, uint32_t n);
    /* May be NULL. A number that two processes have in common exactly where they can share memory
       and read each other's. 0: not known. */
    uint64_t (*host_id)(void *user);
    /* May be NULL, both or neither. process_place: writes the number of this process and returns
       that of the place in which it means this process (a running kernel and its process
       namespace); 0: not known. process_open: a descriptor that is ready to read when the process
       of that number, of the same place, has ended; or -errno (-ESRCH: it has). */
    uint64_t (*process_place)(void *user, uint32_t *number);
    int32_t (*process_open)(void *user, uint32_t number);
    /* `unmap` may be called for the first 64 KiB of a mapping, for the next, and so on; false: only
       for all of it (this may take some milliseconds in a poll with a budget) */
    bool unmap_parts;
    /* May be NULL. Gives the memory of such a mapping back to the system, for all processes that
       have mapped it, too: none of them needs what is in it. The mappings stay. Without this
       function the last process that unmaps the memory gives it back, and that takes 0.1 to 0.3 ms
       per MiB in one call. */
    void (*empty)(void *user, void *at, uint64_t bytes);
} cdp_os_shared;

/* How open_file() opens a file. */
#define CDP_FILE_WRITE 1u  /* for reading and writing, else for reading alone */
#define CDP_FILE_CREATE 2u /* creates the file if it does not exist */
#define CDP_FILE_EMPTY 4u  /* removes what the file contains */
/* refuses a symbolic link (-ELOOP); other users get no access to a new file */
#define CDP_FILE_PRIVATE 8u

/* What lock_file() does. */
typedef enum cdp_file_lock {
    CDP_FILE_UNLOCK,
    CDP_FILE_LOCK_SHARED,
    CDP_FILE_LOCK_ALONE
} cdp_file_lock;

/* What file_info() reports. */
typedef struct cdp_file_info {
    uint64_t bytes;
    uint64_t device, number; /* no other file has both while this one is open */
    uint32_t owner, mode;    /* user id and permission bits as in POSIX; 0 where there are none */
    bool regular;            /* not a folder, pipe or device */
    bool removed;            /* no path leads to it any more */
    bool foreign;            /* another user owns it, or may write to it */
} cdp_file_info;

/* Files: of file stores, of dumps (cdp_group_dump, dump_path) and of snapshots (cdp_mem.h).
   Functions return 0, or what they say, or a negative errno, and never -EINTR. */
typedef struct cdp_os_files {
    /* Returns a descriptor. Does not wait for the other end of a pipe. */
    int32_t (*open_file)(void *user, const char *path, uint32_t how);
    int32_t (*close_file)(void *user, int32_t fd);
    /* Copies up to `bytes` bytes, from the byte `at` of the file on; returns how many (0: the end
       of the file). write_at may ignore `at` where a file cannot be written elsewhere (a pipe). */
    int64_t (*read_at)(void *user, int32_t fd, uint64_t at, void *to, uint64_t bytes);
    int64_t (*write_at)(void *user, int32_t fd, uint64_t at, const void *from, uint64_t bytes);
    /* Cuts the file to this length. */
    int32_t (*cut_file)(void *user, int32_t fd, uint64_t bytes);
    /* Never waits: -EAGAIN when another process, or another descriptor of this one, has a lock
       that excludes this one. A process that ends loses its locks. */
    int32_t (*lock_file)(void *user, int32_t fd, cdp_file_lock lock);
    int32_t (*file_info)(void *user, int32_t fd, cdp_file_info *out);
    int32_t (*remove_file)(void *user, const char *path);
    /* Replaces the file `to` if there is one; a process that opens `to` gets the old file or the
       new one, never a mixture. */
    int32_t (*rename_file)(void *user, const char *from, const char *to);
} cdp_os_files;

struct cdp_os {
    /* first argument of all functions here and in the groups but those that take memory: these
       get the cdp_os itself, and use its alloc and release */
    void *user;

    /* aligned to 64 bytes, or NULL; without threads and shared memory, as any C type needs it */
    void *(*alloc)(void *user, uint64_t bytes);
    void (*release)(void *user, void *ptr);                      /* NULL is allowed */
    uint64_t (*now_ns)(void *user);                              /* monotonic */
    cdp_status (*random)(void *user, void *dst, uint64_t bytes); /* unpredictable bytes */

    /* May be NULL: then a wait without descriptors polls the clock in a busy loop. May return
       before the deadline. */
    void (*sleep_until)(void *user, uint64_t deadline_ns);

    cdp_os_net net;
    cdp_os_threads threads;
    cdp_os_shared shared;
    cdp_os_files files;
};

/* POSIX: posix_memalign, CLOCK_MONOTONIC, getrandom or /dev/urandom, BSD sockets, epoll or
   poll(2), pthreads, files with flock(). Windows: QueryPerformanceCounter, BCryptGenRandom,
   Winsock, WSAPoll, SRW locks, LockFileEx, file mappings that named pipes pass; a machine that
   vanished is noticed by the keepalive alone. Paths are in the code page of the process, and
   files have no owner and mode: checks of these refuse links only. All memory that it
   keeps comes from the alloc of the cdp_os that it is called with; only the C library's own
   functions for names, interfaces and /proc allocate for themselves, and a name that is still being
   looked up at its deadline keeps 0.5 KB of the C library's heap until the answer comes. All
   descriptors are closed by exec. Static memory. Any thread. */
CDP_API const cdp_os *cdp_os_default(void);

/* An allocator that a part of the library uses in place of its own for one kind of memory, such as
   device memory; cdp_mem.h makes one. `stream` is the stream that uses the memory first, NULL for
   the default one; `label` names its purpose. alloc returns NULL when there is none, and sets the
   last error. Both may be called by any thread that uses the part. */
typedef struct cdp_allocator {
    void *user;
    void *(*alloc)(void *user, uint64_t bytes, void *stream, const char *label);
    void (*release)(void *user, void *data);
} cdp_allocator;

/* ---- >>store/interface_api: what to implement for another store ------------------------------ */

/* A key-value store that all ranks reach: how they find each other before they have connections.
   cdp_store.h has the ready-made ones and the functions that a program calls; this is
   what a program that brings another store implements. */
typedef enum cdp_store_op {
    CDP_STORE_NONE = 0,
    /* keys[0] := values[0] */
    CDP_STORE_SET,
    /* waits for keys[0]; result: its value */
    CDP_STORE_GET,
    /* keys[0] as a decimal number (absent: 0) += delta; `number`: the sum */
    CDP_STORE_ADD,
    /* keys[0]: values[0] expected, values[1] desired; result: what is there afterwards (an
       absent key matches an empty expectation; else the expectation is answered) */
    CDP_STORE_COMPARE_SET,
    /* until every key is there */
    CDP_STORE_WAIT,
    /* `number`: 1 when every key is there, else 0 */
    CDP_STORE_CHECK,
    /* `number`: 1 when keys[0] was there */
    CDP_STORE_DELETE,
    /* `number` */
    CDP_STORE_NUM_KEYS,
    /* keys[0] += values[0] */
    CDP_STORE_APPEND,
    /* waits for all keys; results: key_count values */
    CDP_STORE_MULTI_GET,
    /* keys[i] := values[i] */
    CDP_STORE_MULTI_SET,
    /* appends values[0] to the queue keys[0]; queues are not keys: they are neither counted nor
       listed nor deleted, but a wait for the name of a queue ends when the queue has a value */
    CDP_STORE_QUEUE_PUSH,
    /* waits until the queue keys[0] has a value (delta 1: does not wait) and removes the first one;
       result: that value; `number`: how many the queue had (0: none, and the result is empty) */
    CDP_STORE_QUEUE_POP,
    /* `number`: values in the queue keys[0] */
    CDP_STORE_QUEUE_LEN,
    /* results: `number` keys, in any order */
    CDP_STORE_LIST_KEYS,
    /* adds 1 to keys[0], once, and waits until it is `delta` or more */
    CDP_STORE_BARRIER,
    CDP_STORE_OP_COUNT
} cdp_store_op;

typedef struct cdp_store_request {
    cdp_store_op op;
    uint32_t key_count;
    const cdp_bytes *keys;   /* the caller's, until the request is done or cancelled */
    const cdp_bytes *values; /* likewise */
    int64_t delta;
    /* results, written by the store */
    cdp_status status; /* CDP_PENDING until done */
    int64_t number;
    /* GET, COMPARE_SET: 1; MULTI_GET: key_count; freed by cdp_store_request_free() */
    cdp_bytes *results;
    /* the store's own */
    void *priv;
    struct cdp_store_request *next;
} cdp_store_request;

/* A custom store is this struct filled in (with less work, two functions do:
   cdp_custom_store_create() of cdp_store.h). Calls for one store come from one thread at a time.
   `deadline_ns` is a reading of os->now_ns. Errors: return the status and fill cdp_last_error()
   with cdp_error_set(). */
typedef struct cdp_store {
    void *self;
    const cdp_os *os;
    uint32_t timeout_ms; /* default of the calls that take 0 */
    /* Begins a request, whose status is CDP_PENDING. May finish it at once; never blocks. Returns
       < 0 if it does not take the request. */
    cdp_status (*start)(void *self, cdp_store_request *rq);
    /* Waits until the request is done, and returns its status; CDP_PENDING at the deadline. */
    cdp_status (*wait)(void *self, cdp_store_request *rq, uint64_t deadline_ns);
    /* Ends a request; afterwards rq is never touched. */
    void (*cancel)(void *self, cdp_store_request *rq);
    void (*destroy)(void *self);
} cdp_store;

/* ---- >>message/transport_api: what to implement for another network -------------------------- */

/* The lock that guards a group. A transport releases it while it sleeps in wait(). */
typedef struct cdp_lock cdp_lock;

/* A transport carries ordered, reliable bytes from this rank to every other rank and back. It
   does not interpret them. To run cdp over a network of your own, fill in this struct and pass it
   in cdp_group_desc.transport.

   Required: send, recv, wait, wake and destroy. Everything else is an optional capability. The
   members of one group below belong together: set them as the group says, and leave a group that
   you do not offer NULL. Without optional capabilities everything works over send and recv.

   Threads: the library calls wake from any thread. It calls every other function with the group's
   lock held, one call at a time, and a function other than wait must not block. Peers are ranks
   of the world that the transport was made for; a rank never names itself as a peer.

   Errors: a negative result is a cdp_status. Describe it with cdp_error_set() before returning. */
typedef struct cdp_transport {
    void *self; /* passed to every function */

    /* ---- required ---- */

    /* Append the bytes of iov[0..n) to the stream to `peer`. Returns how many were taken, which
       may be fewer than offered; 0 when none can be taken now, for example because the
       connection is still being made (make it at the first call); or < 0 when the peer is lost,
       CDP_ERR_PEER_LOST as a rule. The bytes are copied or sent before this returns. */
    int64_t (*send)(void *self, uint32_t peer, const cdp_iov *iov, uint32_t n);

    /* Move bytes that `peer` has sent into iov[0..n). Returns how many; 0 when there are none now;
       < 0 when the peer is lost and everything that it sent has been delivered. */
    int64_t (*recv)(void *self, uint32_t peer, const cdp_iov *iov, uint32_t n);

    /* Sleep until send or recv may do more than before, wake() was called, or now_ns of the os
       reaches `deadline_ns` (0: do not sleep, only look). May return early. Release the lock
       around the sleep: cdp_lock_release(lock), sleep, cdp_lock_acquire(lock). `lock` may be
       NULL. A wake() that comes before the sleep begins must end it. An error fails every group
       of the world: return one only if no peer can be reached any more. */
    cdp_status (*wait)(void *self, cdp_lock *lock, uint64_t deadline_ns);

    /* Make a wait() that is running, or the next one, return soon. Any thread, without the lock. */
    void (*wake)(void *self);

    /* Release everything. Bytes that send has taken should still arrive. Last call for `self`. */
    void (*destroy)(void *self);

    /* ---- optional: where ranks are ---- */

    struct {
        /* The number of the host that `peer`, or this rank itself, runs on. Hosts are numbered from
           0 in the order in which they first appear among ranks 0, 1, ...: rank 0 is always on
           host 0. The answer must be known at creation, never change, and be the same on every
           rank; otherwise the first operation reports that ranks call different things.
           Algorithms are chosen by it. NULL: nothing is assumed. */
        uint32_t (*host)(void *self, uint32_t peer);
    } topology;

    /* ---- optional: memory for cdp_group_alloc(); both or neither ---- */

    struct {
        /* `bytes` of memory, aligned to 64, that peers can map if it is exposed to them. It stays
           valid after destroy(). NULL: none is available; ordinary memory is used instead. */
        void *(*alloc)(void *self, uint64_t bytes);
        /* Release memory of alloc. False: `ptr` did not come from alloc; nothing was done. */
        bool (*release)(void *self, void *ptr);
    } memory;

    /* ---- optional: slots for small messages; both or neither ---- */

    struct {
        /* Memory of CDP_SLOTS_BYTES, aligned to CDP_SLOTS_ALIGN, that only this rank and `peer`
           share: what goes to the peer (`outgoing`), or what comes from it. Zero at first; after
           that only the library writes there. The answer is the same at every call, but for
           NULL, which means "not now": not connected yet, or (outgoing only) the peer is lost.
           The writer never waits for the reader: without room, messages take the stream. */
        void *(*memory)(void *self, uint32_t peer, bool outgoing);
        /* Doorbell: this rank has written to the slots of `peer`. End the peer's wait(), if it
           is in one. What was written before a wait() begins must keep it from sleeping. */
        void (*ring)(void *self, uint32_t peer);
    } slots;

    /* ---- optional: remote read; expose and revoke with map and unmap, or get, or all ---- */

    /* The owner of some memory exposes it to one peer and sends only the token. The peer reads
       the memory in place and reports that it has; then the owner revokes the exposure. Many
       exposures may exist at once. Tokens and lengths come from a peer: map and get must refuse
       what was not exposed to this rank in exactly that length. */
    struct {
        /* Let `peer` read data[0..bytes). Returns true and a token never used before for it.
           False: not to this peer, too many exposures, or not worth it; the bytes are then sent
           instead. `fresh`: the operation has just written these bytes, so they are in this
           processor's cache, from where another processor reads them at about half the speed. */
        bool (*expose)(void *self, uint32_t peer, const void *data, uint64_t bytes, bool fresh,
            uint64_t *token);
        /* End an exposure, read or not; called once for each that expose returned and try_revoke
           did not end. Afterwards the caller may change or free the memory: a peer either has
           stopped reading, or learns from unmap or get that what it read is void. */
        void (*revoke)(void *self, uint32_t peer, uint64_t token);
        /* Optional even where the rest is set. Like revoke, but only if the peer has not begun to
           read: else returns false and the exposure stays. The library calls it for messages of
           up to 4 MiB that no peer has begun to read after a few milliseconds, and sends them, so
           that no rank waits for a reader that waits for something else. Without it, messages
           that small are exposed only if cdp_group_desc.expose_bytes says so. */
        bool (*try_revoke)(void *self, uint32_t peer, uint64_t token);
        /* The peer's memory as seen here, all `bytes` of it, until unmap. The library holds it
           only while it reads some 100 KB. NULL: cannot be mapped, was never exposed to this rank
           in that length, or has been revoked. */
        const void *(*map)(void *self, uint32_t peer, uint64_t token, uint64_t bytes);
        /* Ends map. False: the exposure was revoked meanwhile, what was read is void. */
        bool (*unmap)(void *self, uint32_t peer, uint64_t token);
        /* Copy `bytes` from `offset` of the exposed memory to dst. Returns `bytes`; 0: revoked,
           or never exposed to this rank in that length; CDP_ERR_PEER_LOST: the peer has ended;
           any other error: it cannot be read, and the owner is asked to send it instead. */
        int64_t (*get)(
            void *self, uint32_t peer, uint64_t token, uint64_t offset, void *dst, uint64_t bytes);
    } remote;

    /* ---- optional: news of failures; each on its own ---- */

    struct {
        /* The world has failed, and `record` says why, in the library's own form. The first record
           of all ranks is kept: keep a copy, unless there is one already, for ranks that are not
           connected to this one, and let their wait() return an error of status CDP_ERR_ABORTED.
           Called again when this rank has a better record, for ranks that connect later. Both or
           neither of these two. */
        void (*publish)(void *self, const void *record, uint32_t bytes);
        /* The record that is kept, if it is known here: copy it and return its length, at most
           `room`; 0: not known. It may be the one that this rank has published. */
        uint32_t (*first)(void *self, void *record, uint32_t room);
        /* Called repeatedly when `peer` does not answer, or (`lost`) is gone. If `peer` had not
           finished starting, returns the rank that it waited for. -1: it had finished, or that is
           not known yet; called again unless `last`. -2: rank 0 is gone, too; which of them went
           first is not known. */
        int32_t (*starting)(void *self, uint32_t peer, bool lost, bool last);
        /* Is `peer` connected? Connected peers are told of a failure even if nothing was
           exchanged with them yet. */
        bool (*linked)(void *self, uint32_t peer);
    } failure;

    /* ---- optional: text for people ---- */

    /* Describe the connection to `peer` for cdp_describe(): its kind, addresses and state. */
    void (*describe)(void *self, uint32_t peer, char *out, uint64_t size);

    /* ---- optional: leaving without blocking ---- */

    /* Called before destroy() when this rank leaves, until it returns false: nothing is sent or
       received any more. Takes one step, and waits until `until_ns` at most, so that peers receive
       what was sent. destroy() does not wait then. Also without such calls before, destroy() must
       release everything. */
    bool (*leave)(void *self, uint64_t until_ns);
} cdp_transport;

/* Size and alignment of the memory that cdp_transport.slots.memory returns. */
#define CDP_SLOTS_BYTES (CDP_SLOTS * (CDP_SLOT_BYTES + 512u))
#define CDP_SLOTS_ALIGN 64u

/* For wait() above; NULL is allowed. */
CDP_API void cdp_lock_release(cdp_lock *lock);
CDP_API void cdp_lock_acquire(cdp_lock *lock);

/* For implementers of the interfaces above: set this thread's last error and return `status`.
   `format` knows %s %d %u %x %c %% with l, ll and z. Any thread. */
CDP_API CDP_FORMAT_CHECK cdp_status cdp_error_set(
    cdp_status status, int32_t peer, int32_t sys_errno, const char *format, ...);

/* ---- >>group/hub_api: ranks in one process --------------------------------------------------- */

/* Connects ranks that are threads of one program, or that one thread polls in turn. A payload of at
   least the group's expose_bytes is copied once: the receiver reads it in the sender's memory. */
typedef struct cdp_hub cdp_hub;

typedef struct cdp_hub_desc {
    uint32_t world_size; /* required, > 0 */
    /* memory of one direction of one pair, made on first use (default: 256 KiB) */
    uint64_t ring_bytes;
    const cdp_os *os; /* (default: cdp_os_default()) */
} cdp_hub_desc;

#ifndef CDP_NO_HUB
/* Errors: INVALID (world size), NOMEM. The hub must outlive its groups. Each rank makes one
   group in it, once; groups of some ranks are made of that one. For another world, also after a
   failure (but INVALID: call again), make another hub. */
CDP_MUST_CHECK CDP_API cdp_status cdp_hub_create(const cdp_hub_desc *desc, cdp_hub **out);
CDP_API void cdp_hub_destroy(cdp_hub *hub); /* NULL is allowed */
#endif                                      /* CDP_NO_HUB */

/* ---- >>group/group_api: groups of ranks ------------------------------------------------------ */

/* Which algorithm runs: the first row that fits an operation, the caller's rows before the
   built-in ones, which cdp_describe() lists. Rows must be the same on all ranks; where they are
   not, the first operation that differs says so. */
typedef struct cdp_choice {
    cdp_coll_kind kind;
    /* required, as cdp_describe() spells it; "hierarchical" and "leaders" (of an allreduce): only
       where a group spans several hosts of which one has several ranks */
    const char *algorithm;
    /* the row fits up to this size: of the vector, or of the parts of all ranks together (default:
       any) */
    uint64_t max_bytes;
    uint32_t max_ranks; /* the row fits groups of up to so many ranks (default: any) */
} cdp_choice;

/* A set of ranks that communicate. Ranks are numbered 0 to world_size - 1. Operations of one
   group run in the order in which they are called, which must be the same on every rank; the
   first message of each carries what was called, so ranks that differ all get an error. */
typedef struct cdp_group cdp_group;

typedef struct cdp_group_desc {
    /* this rank, < world_size */
    uint32_t rank;
    /* required, > 0 */
    uint32_t world_size;
    /* ranks in one process: the hub that connects them. Without hub and transport, world_size must
       be 1 */
    cdp_hub *hub;
    /* or any transport; copied; destroyed with the group, also when creation fails */
    cdp_transport *transport;
    /* deadline of each operation in ms, from the call on (default: 600000; CDP_NO_TIMEOUT: none) */
    uint32_t timeout_ms;
    /* operations of up to so many bytes use algorithms of few rounds (default: 64 KiB) */
    uint64_t small_bytes;
    /* bytes of the largest piece of a message, and so the delay of an abort (default: 1 MiB) */
    uint64_t piece_bytes;
    /* Ranks that share memory read data of at least so many bytes in place; UINT64_MAX: never
       (default: 64 KiB; more where a transport says so). Up to 4 MiB that no peer has begun to
       read after some milliseconds are copied, and leave before they are asked for; longer data
       wait for their reader */
    uint64_t expose_bytes;
    /* microseconds for which a waiting caller polls before it sleeps (default: 20) */
    uint32_t spin_us;
    /* a waiting caller sleeps at once */
    bool no_spin;
    /* no progress thread: operations advance in cdp_poll() and in waits; ERRORS, above, says why a
       rank that polls seldom may be blamed for what another one does */
    bool no_thread;
    /* reductions whose bits depend on the numbers of each rank alone: neither on counts,
       small_bytes, piece_bytes and buckets, nor on the transport */
    bool reproducible;
    /* rows before the built-in table of algorithms; read at creation */
    const cdp_choice *choices;
    uint32_t choice_count;
    /* operations that each group remembers, see cdp_group_records() (default: 32) */
    uint32_t records;
    /* when the group fails, this rank writes PATH.RANK.json, see cdp_group_dump(); kept, not
       copied: at most 1000 bytes (default: nothing is written) */
    const char *dump_path;
    /* how many works that are not operations, such as those of cdp_work_then(), may exist at once,
       at most 65535 (default: 64) */
    uint32_t max_pending;
    /* received bytes are combined in portions of this many bytes (default: 128 KiB; at least
       256) */
    uint64_t stage_bytes;
    /* how many bytes this rank sends in each channel to each rank before that rank asks for them,
       which is also the memory that they may take there; longer messages pause. Equal on all ranks,
       else senders have to ask for credit more often. cdp_channel_send() takes bodies of at most a
       quarter of it (default and at most: 4 MiB; at least 4096) */
    uint64_t window_bytes;
    /* operations for which there is memory from the beginning; longer queues take more of it
       (default: 64) */
    uint32_t operations;
    /* waits, beyond one for each rank, that are remembered to find whom to blame for a timeout;
       with too few the blame is less deep (default: 32) */
    uint32_t waits;
    /* (default: cdp_os_default()) */
    const cdp_os *os;
    /* (default: warnings and errors to stderr) */
    cdp_logger logger;
} cdp_group_desc;

/* Make this rank's end of a group. Local: nothing is sent yet (links are made on first use).
   Errors: INVALID (rank, world size, no way to reach the others, a rank of the hub that is
   taken, a row of `choices`), NOMEM, IO (no thread). */
CDP_MUST_CHECK CDP_API cdp_status cdp_group_create(const cdp_group_desc *desc, cdp_group **out);

#ifndef CDP_NO_GROUPS
/* A group of some of the ranks of another one, over the same links. Only those ranks call it,
   all with the same list: ranks[i] of `parent` becomes rank i. Local, like creation: nothing is
   sent. It inherits the settings of its parent and outlives it if need be. Groups, also of
   the same ranks, do not disturb each other: their operations may be called in different orders
   on different ranks. When several are made of the same ranks, the first one here is the first
   one there. It fails alone, and after its parent has failed another one can be made of the
   ranks that are left. Errors: INVALID (no ranks, one of them twice or not in the parent, this
   rank not among them), NOMEM. */
CDP_MUST_CHECK CDP_API cdp_status cdp_group_new(
    cdp_group *parent, const uint32_t *ranks, uint32_t count, cdp_group **out);

#define CDP_NO_COLOR 0xffffffffu

/* Collective over the parent: ranks of the same colour form a group, in the order of their keys
   (equal keys: of their ranks). With CDP_NO_COLOR this rank gets none: *out is NULL. Errors:
   those of an allgather and of cdp_group_new(). */
CDP_MUST_CHECK CDP_API cdp_status cdp_group_split(
    cdp_group *parent, uint32_t color, uint32_t key, cdp_group **out);
#endif /* CDP_NO_GROUPS */

/* Ranks of a group and of the world it was made from. UINT32_MAX: there is no such rank. Any
   thread. */
CDP_API uint32_t cdp_world_rank_of(const cdp_group *group, uint32_t rank);
CDP_API uint32_t cdp_rank_of_world(const cdp_group *group, uint32_t world_rank);

/* Leave: local, and never an error for the others unless they still wait for this rank. Operations
   in flight end with CDP_ERR_STATE for threads that wait for them. NULL is allowed. Not while
   another thread uses the group. A group that leaves others of its world behind (those made by
   cdp_group_new() and cdp_group_split(), or the one they were made from) does not wait, unless it
   has failed and has not told its peers. The last one ends its connections when the peers have read
   what this rank sent: mostly that takes less than a millisecond, over TCP some ms where a peer
   computes meanwhile and its progress thread stands by. A peer that does not read, because it is
   stopped or computes without a progress thread, is awaited over TCP for 0.1 s at most. Unmapping
   takes 0.1 to 0.3 ms per MiB of the peers' memory of cdp_group_alloc(). After a failure it first
   tells its cause: for 0.35 s at most, mostly some milliseconds. Then others may read the cause in
   the store of rank 0, which waits for 0.3 s at most; where that store is gone the other ranks wait
   for 50 ms. So all of it takes 0.75 s at most. cdp_group_leave() does the same in frames, and does
   not block. The last error stays what it was. */
CDP_API void cdp_group_destroy(cdp_group *group);

#ifndef CDP_NO_FRAMES
/* cdp_group_destroy() for a program that must not block: each call works on leaving for at most
   `budget_us` microseconds (0: one step), exceeded by at most one step as in cdp_poll().
   CDP_PENDING: call it again; after the first call the group may be given to cdp_group_leave() and
   cdp_group_destroy() alone. CDP_OK: the group is destroyed, or NULL, and must not be given to any
   call any more. Nothing is lost: it lasts as long as cdp_group_destroy() would have waited.
   cdp_group_destroy() in between ends it at once: the system still sends what it has taken, but a
   peer that then sends something to this rank may lose what it has not read yet, and after a
   failure peers may not learn its cause. Not bounded: a backend's destroy(), a function given to
   cdp_work_then() that is still running, a transport without leave(), such as that of cdp_mpi.h,
   the end of the progress thread, which takes some microseconds, and memory of cdp_group_alloc()
   that a peer had not freed when its process ended: the last rank that unmaps it gives it back to
   the system, in one call of 0.1 to 0.3 ms per MiB. Errors: STATE (inside such a function; or the
   group was destroyed). */
CDP_API cdp_status cdp_group_leave(cdp_group *group, uint32_t budget_us);
#endif

/* This rank, from 0, and how many ranks the group has; 0 for NULL. Any thread. */
CDP_API uint32_t cdp_rank(const cdp_group *group);
CDP_API uint32_t cdp_size(const cdp_group *group);
/* The desc of the group with the defaults filled in, the group's own. Any thread. */
CDP_API const cdp_group_desc *cdp_group_desc_of(const cdp_group *group);

/* CDP_OK, or the status of the first failure, which then is this thread's cdp_last_error(). Any
   thread. A group that failed stays failed: destroy it and make another. Operations that were in
   flight end soon after the failure, within 0.35 s: their memory is the caller's again when
   cdp_work_test() does not say PENDING any more, or when cdp_group_destroy() has returned. */
CDP_API cdp_status cdp_group_status(cdp_group *group);

/* Allocates memory that other ranks of this host can read in place, if the transport has such
   memory (cdp_tcp.h has, between processes); else memory of the group's os. Operations work with
   any memory; large ones are faster with this, as input and as output. Aligned to 64 bytes, not
   cleared. Free it with a group of the same world while one is left: afterwards it stays valid,
   but can no longer be freed. It may be shared memory: a parent reads what its child of fork()
   writes there. NULL: out of memory, see cdp_last_error(). Any thread. */
CDP_API void *cdp_group_alloc(cdp_group *group, uint64_t bytes);

/* `ptr` is from cdp_group_alloc() of a group of this world, or NULL. Call it when no operation on
   that memory is in flight (see cdp_group_status()). Nobody may use it any more, neither another
   rank nor a child of fork(). Memory that was shared goes back to the system at once, which takes
   0.1 to 0.3 ms per MiB. Any thread. */
CDP_API void cdp_group_free(cdp_group *group, void *ptr);

/* Break the group on every rank: waits return CDP_ERR_ABORTED with `reason` everywhere. Any thread,
   any time, any number of times; the first reason wins. Does not wait for other ranks. */
CDP_API void cdp_group_abort(cdp_group *group, const char *reason);

#ifndef CDP_NO_RECORDER
/* What the group remembers of an operation: always on, in memory of a fixed size. Times are of
   os->now_ns. */
typedef enum cdp_record_state {
    CDP_RECORD_QUEUED,
    CDP_RECORD_RUNNING,
    CDP_RECORD_DONE,
    CDP_RECORD_FAILED
} cdp_record_state;
typedef struct cdp_record {
    uint64_t seq; /* its number in the group, from 1 */
    cdp_record_state state;
    cdp_coll_kind kind;
    cdp_dtype dtype;
    cdp_reduce_op op;
    uint32_t root;          /* for a message: its tag */
    uint64_t count;         /* elements as the operation counts them; 0: uneven parts */
    const char *algorithm;  /* NULL while QUEUED */
    uint32_t round, rounds; /* where it is, or ended */
    /* RUNNING and FAILED: the rank in the world that it needs something from, else -1 */
    int32_t waits_for;
    uint64_t start_ns, end_ns; /* 0: not yet */
} cdp_record;

/* The group's last operations, oldest first, those that are still queued included: at most
   `max_count` of the newest. Returns how many; 0 for no group or one that is gone, see
   cdp_last_error(). Any thread, any time, also after a failure. */
CDP_API uint32_t cdp_group_records(cdp_group *group, cdp_record *out, uint32_t max_count);

/* Write the state of this rank as JSON: its groups, their failures, the last operations of each and
   the ranks that these wait for. tools/who_is_stuck.c reads the files of all ranks and prints
   which rank keeps which other ranks waiting. Any thread, any time. Errors: IO (the file), NOMEM,
   INVALID (no group, no path), STATE (destroyed), UNSUPPORTED (the group's os has no files). */
CDP_API cdp_status cdp_group_dump(cdp_group *group, const char *path);

/* Every setting with its value and where it came from, the table of algorithms, and the link to
   each rank, as text for a reader. Writes at most `room` bytes, a zero at the end among them; `text`
   may be NULL. Returns the length of the whole text without the zero (about 4 KB and 100 bytes per
   rank); 0 for no group or one that is gone, see cdp_last_error(). Any thread. */
CDP_API uint64_t cdp_describe(cdp_group *group, char *text, uint64_t room);
#endif /* CDP_NO_RECORDER */

/* Let communication advance, for programs without a progress thread, until `budget_us` microseconds
   have passed or nothing is in flight. The clock is read after each step of at most 64 KiB, so the
   budget is exceeded by one such step. Budget 0: reads what has arrived, and makes one step.
   Functions of the caller, such as those of cdp_work_then(), take their time on top; so does memory
   that an operation needs because it is larger than all before it, and, where the system cannot
   unmap memory in parts, as on Windows, memory of cdp_group_alloc() that a peer has freed. Any
   thread. Returns cdp_group_status(). */
CDP_API cdp_status cdp_poll(cdp_group *group, uint32_t budget_us);

/* ---- >>group/collectives_api: operations of all ranks ---------------------------------------- */

/* One collective operation as a struct, for cdp_start(). The functions below are short forms of it.

   Uneven parts: where `out` (ALLGATHER, GATHER), `in` (SCATTER, REDUCE_SCATTER) or both
   (ALLTOALL) have one part per rank, out_counts and in_counts say how many elements each part
   has; parts lie one after the other. They are read during the call, and `count` is ignored.
   Both are the same on all ranks, but those of ALLTOALL: what rank i sends to j (its
   in_counts[j]) is what j receives from i (its out_counts[i]), also where j is i. */
typedef struct cdp_request {
    cdp_coll_kind kind;
    /* NULL or equal to `out`: in place. Also in place, as with NCCL: `in` is this rank's own part
       of `out` (ALLGATHER; GATHER on the root), or `out` is its own part of `in` (REDUCE_SCATTER,
       whose other parts may hold anything afterwards; SCATTER on the root). */
    const void *in;
    void *out;
    uint64_t count;      /* elements: see each function */
    cdp_dtype dtype;     /* (default: f32) */
    cdp_reduce_op op;    /* (default: SUM) */
    uint32_t root;       /* BROADCAST, REDUCE, GATHER, SCATTER */
    uint32_t timeout_ms; /* (default: the group's) */
    /* world_size numbers, NULL: all parts have `count` elements */
    const uint64_t *in_counts, *out_counts;
    cdp_real factor; /* PREMUL_SUM: what this rank's input is multiplied by (default: 1) */
} cdp_request;

/* An operation in flight: a plain value, free to copy and to drop; it stays meaningful until its
   group is destroyed. */
typedef struct cdp_work {
    cdp_group *group;
    uint64_t seq; /* the operation's number in its group, from 1; 0: none, which counts as done */
} cdp_work;

/* Start an operation and return. The memory of `in` and `out` belongs to the library until the
   work is done. Several may be in flight; they run in the order of the calls. Any thread, but
   all ranks must see one order. Errors (at the call, nothing started): INVALID, UNSUPPORTED,
   NOMEM; or the group's first failure. */
CDP_MUST_CHECK CDP_API cdp_status cdp_start(
    cdp_group *group, const cdp_request *request, cdp_work *out);

/* Start `n` operations in their order as one call: all, or none when one of them is wrong. *out
   is done when all are. NOMEM breaks the group where some had been started. */
CDP_MUST_CHECK CDP_API cdp_status cdp_start_all(
    cdp_group *group, const cdp_request *requests, uint32_t n, cdp_work *out);

/* Wait until the work is done; the waiting thread advances communication itself. Returns CDP_OK, or
   the group's first failure: TIMEOUT, PEER_LOST, ABORTED, MISMATCH, IO. May be called again, from
   any thread; the answer stays the same. INVALID: there is no such work. */
CDP_MUST_CHECK CDP_API cdp_status cdp_work_wait(cdp_work work);

/* Like cdp_work_wait(), but waits at most `timeout_ms`: then returns CDP_PENDING, and the
   operation goes on. */
CDP_MUST_CHECK CDP_API cdp_status cdp_work_wait_for(cdp_work work, uint32_t timeout_ms);

/* CDP_OK when done, CDP_PENDING when not, else the failure. Never blocks; without a progress
   thread it also moves all that can move now, of any size (cdp_work_poll() has a budget). */
CDP_API cdp_status cdp_work_test(cdp_work work);

#ifndef CDP_NO_FRAMES
/* Let communication advance until `work` is done, for at most `budget_us` microseconds (0: one
   step), as cdp_poll() does, with or without a progress thread. Returns what cdp_work_test()
   returns. Any thread. */
CDP_API cdp_status cdp_work_poll(cdp_work work, uint32_t budget_us);
#endif

/* Every rank gets the reduction of all ranks' `count` elements, the same bits everywhere. */
CDP_MUST_CHECK CDP_API cdp_status cdp_allreduce(
    cdp_group *group, const void *in, void *out, uint64_t count, cdp_dtype dtype, cdp_reduce_op op);
CDP_MUST_CHECK CDP_API cdp_status cdp_allreduce_async(cdp_group *group, const void *in, void *out,
    uint64_t count, cdp_dtype dtype, cdp_reduce_op op, cdp_work *work);
/* `count` elements of `data` on rank `root` are copied to every rank's `data`. */
CDP_MUST_CHECK CDP_API cdp_status cdp_broadcast(
    cdp_group *group, void *data, uint64_t count, cdp_dtype dtype, uint32_t root);
CDP_MUST_CHECK CDP_API cdp_status cdp_broadcast_async(
    cdp_group *group, void *data, uint64_t count, cdp_dtype dtype, uint32_t root, cdp_work *work);
/* Every rank brings `count` elements; `out` has world_size * count, rank r's part at r * count. In
   place (`in` NULL): this rank's part is already in its place in `out`. */
CDP_MUST_CHECK CDP_API cdp_status cdp_allgather(
    cdp_group *group, const void *in, void *out, uint64_t count, cdp_dtype dtype);
CDP_MUST_CHECK CDP_API cdp_status cdp_allgather_async(
    cdp_group *group, const void *in, void *out, uint64_t count, cdp_dtype dtype, cdp_work *work);
/* Rank `root` gets the reduction of all ranks' `count` elements in `out`, which no other rank
   needs. In place (`in` NULL): `out` is the input on every rank, and only root's is changed.
   Large ones need scratch of that size on the other ranks. */
CDP_MUST_CHECK CDP_API cdp_status cdp_reduce(cdp_group *group, const void *in, void *out,
    uint64_t count, cdp_dtype dtype, cdp_reduce_op op, uint32_t root);
CDP_MUST_CHECK CDP_API cdp_status cdp_reduce_async(cdp_group *group, const void *in, void *out,
    uint64_t count, cdp_dtype dtype, cdp_reduce_op op, uint32_t root, cdp_work *work);
/* Every rank brings `count` elements; root's `out` has world_size * count, rank r's part at r *
   count. In place: on the root, its own part is already in its place in `out`; on other ranks,
   `out` is the input. */
CDP_MUST_CHECK CDP_API cdp_status cdp_gather(
    cdp_group *group, const void *in, void *out, uint64_t count, cdp_dtype dtype, uint32_t root);
CDP_MUST_CHECK CDP_API cdp_status cdp_gather_async(cdp_group *group, const void *in, void *out,
    uint64_t count, cdp_dtype dtype, uint32_t root, cdp_work *work);
/* Root's `in` has world_size * count elements, of which rank r gets `count` from r * count on.
   In place: root's `out` has all parts, and its own stays where it is. */
CDP_MUST_CHECK CDP_API cdp_status cdp_scatter(
    cdp_group *group, const void *in, void *out, uint64_t count, cdp_dtype dtype, uint32_t root);
CDP_MUST_CHECK CDP_API cdp_status cdp_scatter_async(cdp_group *group, const void *in, void *out,
    uint64_t count, cdp_dtype dtype, uint32_t root, cdp_work *work);
/* `in` has world_size * count elements; rank r gets the reduction of part r of all ranks. In place:
   `out` has all parts; the result replaces this rank's part, and the contents of the other parts
   are undefined afterwards. */
CDP_MUST_CHECK CDP_API cdp_status cdp_reduce_scatter(
    cdp_group *group, const void *in, void *out, uint64_t count, cdp_dtype dtype, cdp_reduce_op op);
CDP_MUST_CHECK CDP_API cdp_status cdp_reduce_scatter_async(cdp_group *group, const void *in,
    void *out, uint64_t count, cdp_dtype dtype, cdp_reduce_op op, cdp_work *work);
/* Part r of `in` (world_size * count elements) goes to rank r; part r of `out` comes from it.
   Not in place. */
CDP_MUST_CHECK CDP_API cdp_status cdp_alltoall(
    cdp_group *group, const void *in, void *out, uint64_t count, cdp_dtype dtype);
CDP_MUST_CHECK CDP_API cdp_status cdp_alltoall_async(
    cdp_group *group, const void *in, void *out, uint64_t count, cdp_dtype dtype, cdp_work *work);
/* Returns when every rank has called it. */
CDP_MUST_CHECK CDP_API cdp_status cdp_barrier(cdp_group *group);
CDP_MUST_CHECK CDP_API cdp_status cdp_barrier_async(cdp_group *group, cdp_work *work);

/* ---- >>group/works_api: operations in flight: waiting, chaining, cancelling ------------------ */

/* Writes the state of a work to *out: status OK or PENDING as from cdp_work_test(), or its failure.
   Does not advance communication, and leaves cdp_last_error() alone. INVALID: `out` is NULL. Any
   thread. */
CDP_API cdp_status cdp_work_error(cdp_work work, cdp_error *out);

#ifndef CDP_NO_CHAINS
/* Call func(user, status) once when `work` is done (status CDP_OK), has failed (the failure, which
   is also the thread's last error) or was cancelled (ABORTED); CDP_ERR_STATE: the group is being
   destroyed. *next (NULL is allowed) is a work that is done when `func` has returned; it fails as
   `work` does, or when `func` returns an error, which breaks the group on all ranks. `func` is
   called by the thread that advances communication: the progress thread, or a thread inside
   cdp_poll(), cdp_work_test() or any wait or blocking operation, of any group of the same world;
   never inside this call. One function at a time, those of one work in the order of the calls. It
   may start, test, chain, cancel and abort, but not wait (STATE) nor destroy groups, nor a ddp in a
   backward pass (nothing happens). What it starts takes its place in the order of operations only
   then; see cdp_start_after() for a place that is certain. Errors: INVALID, NOMEM, STATE
   (max_pending of the desc works are waiting already), UNSUPPORTED (an operation of a backend, on
   memory of a device). Any thread. */
CDP_MUST_CHECK CDP_API cdp_status cdp_work_then(
    cdp_work work, cdp_status (*func)(void *user, cdp_status status), void *user, cdp_work *next);

/* cdp_start(), but the operation does not begin before `after` is done: an operation of any
   group of the same world, or what cdp_work_then() gave. It has its place in the group's order
   from this call on, as all ranks see it, and those behind it wait. The deadline counts from
   this call. Where `after` fails or is cancelled, the group of this operation breaks for that
   cause. */
CDP_MUST_CHECK CDP_API cdp_status cdp_start_after(
    cdp_group *group, const cdp_request *request, cdp_work after, cdp_work *out);

/* End a work that is no longer needed; waits for it then return CDP_ERR_ABORTED. Two kinds of work
   end without an error on other ranks: a function that was not called yet (it never is), and a
   message of which nothing has been sent or received (the message of the other side meets the next
   one here, and is not lost). Other ranks take part in any other operation: to cancel it breaks
   the group on all ranks, as cdp_group_abort() does, and names this rank. Errors: STATE (too late:
   it is done, failing, or a message on its way; or it is a batch). */
CDP_API cdp_status cdp_work_cancel(cdp_work work);
#endif /* CDP_NO_CHAINS */

/* ---- >>group/messages_api: from one rank to another ------------------------------------------ */

#define CDP_ANY_RANK 0xffffffffu

/* What is known of a message. */
typedef struct cdp_message {
    uint32_t source, tag; /* the rank that sent it, in the group it was received in */
    uint64_t count;       /* elements */
    cdp_dtype dtype;
} cdp_message;

/* One message of a batch. */
typedef struct cdp_transfer {
    bool receive; /* else: send */
    void *data;
    uint64_t count;
    cdp_dtype dtype;     /* (default: f32) */
    uint32_t peer, tag;  /* the other rank */
    uint32_t timeout_ms; /* (default: the group's) */
    /* receive: if not NULL, up to `count` elements are accepted, and *got says how many came and
       from where, see cdp_recv_any() (default: NULL, exactly `count`) */
    cdp_message *got;
    /* receive: `data` is rows of `row` elements each, which begin `step` elements apart; the last
       one may be shorter (default: contiguous) */
    uint64_t row, step;
    /* send: it may wait until its receiver takes it, however short it is; then, from expose_bytes
       of the group on, the receiver reads it in place (default: only what is longer than 4 MiB
       may wait) */
    bool rendezvous;
} cdp_transfer;

#ifndef CDP_NO_MESSAGES
/* From one rank to another. The k-th send to a rank with a tag meets the k-th receive there from
   this rank with that tag; tags (any but 0xffffffff) are independent of each other and of
   collectives. A send is done when its bytes are on their way (up to 4 MiB ahead of the
   receiver) or have been read in place, a receive when they are there. count and dtype
   must be the same on both sides (MISMATCH). A failure breaks the group. From and to oneself:
   INVALID. Errors otherwise as for collectives. */
CDP_MUST_CHECK CDP_API cdp_status cdp_send(
    cdp_group *group, const void *data, uint64_t count, cdp_dtype dtype, uint32_t to, uint32_t tag);
CDP_MUST_CHECK CDP_API cdp_status cdp_send_async(cdp_group *group, const void *data, uint64_t count,
    cdp_dtype dtype, uint32_t to, uint32_t tag, cdp_work *work);
CDP_MUST_CHECK CDP_API cdp_status cdp_recv(
    cdp_group *group, void *data, uint64_t count, cdp_dtype dtype, uint32_t from, uint32_t tag);
CDP_MUST_CHECK CDP_API cdp_status cdp_recv_async(cdp_group *group, void *data, uint64_t count,
    cdp_dtype dtype, uint32_t from, uint32_t tag, cdp_work *work);

/* Both at once, so that two ranks may call it with each other: `out` goes to rank `to`, what
   comes from rank `from` goes to `in`. INVALID if `to` or `from` is this rank: copy the data
   yourself. */
CDP_MUST_CHECK CDP_API cdp_status cdp_sendrecv(cdp_group *group, const void *out,
    uint64_t out_count, uint32_t to, void *in, uint64_t in_count, uint32_t from, cdp_dtype dtype,
    uint32_t tag);

/* A message of a length that only its sender knows: up to `room` elements (a longer one is a
   MISMATCH, which breaks the group). From rank `from`, where it is one more receive in the order of
   those from that rank with this tag. Or from CDP_ANY_RANK: then it takes the next message with
   this tag that arrives from any rank and that no receive from that very rank waits for; where
   several are there, ranks come in turn, starting after the one that was last. Messages from one
   rank keep their order. A rank that has left, or died, is not waited for. If no other rank is left
   that could send, the group breaks with PEER_LOST, which names the first rank that went, unless
   one of them has sent a reason. After a TIMEOUT all ranks that could have sent are asked: one that
   does not answer is named, or else one that waits for no other. *got is written when it is done,
   and must stay until then. Errors otherwise as for cdp_recv(); STATE: max_pending of the desc
   receives from any rank are waiting already. */
CDP_MUST_CHECK CDP_API cdp_status cdp_recv_any(cdp_group *group, void *data, uint64_t room,
    cdp_dtype dtype, uint32_t from, uint32_t tag, cdp_message *got);
CDP_MUST_CHECK CDP_API cdp_status cdp_recv_any_async(cdp_group *group, void *data, uint64_t room,
    cdp_dtype dtype, uint32_t from, uint32_t tag, cdp_message *got, cdp_work *work);

/* Is there a message from `from` (or CDP_ANY_RANK) with this tag that no receive waits for?
   CDP_OK: *got says which, and a receive from that rank gets it; CDP_PENDING: none has come yet.
   Never blocks. Errors: INVALID, or the group's failure. */
CDP_MUST_CHECK CDP_API cdp_status cdp_probe(
    cdp_group *group, uint32_t from, uint32_t tag, cdp_message *got);

/* Allocates records for `messages` sends and receives of the group in flight at a time, for
   programs that must not allocate later. Without this call they are allocated when more messages
   are in flight than ever before. Local. Errors: INVALID; NOMEM (the group keeps the records that
   it had). */
CDP_MUST_CHECK CDP_API cdp_status cdp_group_reserve(cdp_group *group, uint32_t messages);

/* Start `n` sends and receives in this order: all, or none when one of them is wrong. *out is
   done when all are. No rank waits for another because of the order inside a batch. Errors: as
   for cdp_send(); INVALID: also rows that overlap, or of a send; STATE: max_pending of the desc;
   UNSUPPORTED: rows in device memory. */
CDP_MUST_CHECK CDP_API cdp_status cdp_batch(
    cdp_group *group, const cdp_transfer *list, uint32_t n, cdp_work *out);

/* A barrier that names the missing ranks. Rank 0 receives a message from every other rank, then
   answers all of them. If some are missing after `timeout_ms` (0: the group's timeout), the group
   breaks with a TIMEOUT that names all of them. Slower than cdp_barrier(): for tests. */
CDP_MUST_CHECK CDP_API cdp_status cdp_monitored_barrier(cdp_group *group, uint32_t timeout_ms);
#endif /* CDP_NO_MESSAGES */

/* ---- >>channel/channel_api: ordered messages to each rank ------------------------------------ */

#ifndef CDP_NO_CHANNELS
/* A channel sends messages to every rank of a group, in order for each of them, with bounded memory
   on both sides: the base of remote calls (cdp_rpc.h) and of protocols of your own. A channel that
   loses one rank goes on with the others. Groups and channels share the links: a channel that is
   always full can delay the messages of a group.

   All functions: any thread, also inside the callbacks of the channel, and never blocking but
   cdp_channel_wait(). Callbacks run one at a time, on whichever thread lets communication advance
   (the progress thread, a caller that waits, cdp_poll()), without a lock; they must not wait. */
typedef struct cdp_channel cdp_channel;

typedef struct cdp_channel_message {
    uint32_t peer;      /* rank in the group: to, or from */
    uint32_t kind, aux; /* yours: they arrive as they are */
    uint64_t a, b;      /* yours */
    const void *body;   /* NULL when bytes is 0, or when the body stays with the sender */
    uint64_t bytes;
    /* Not 0: the sender offers the body. Answer with cdp_channel_fetch() or cdp_channel_refuse(),
       at any time. */
    uint64_t handle;
} cdp_channel_message;

typedef struct cdp_channel_desc {
    cdp_group *group; /* required; it must outlive the channel */
    uint32_t number;  /* which channel of this group: the same on all its ranks, each once */
    void *user;       /* first argument of every function below */
    /* Required. A message has come. The message and its body are valid until this returns. */
    void (*deliver)(void *user, const cdp_channel_message *message);
    /* The rank has died, or has closed the channel: nothing more comes from it, and nothing goes to
       it. Called once for each rank. (default: nothing is called) */
    void (*lost)(void *user, uint32_t peer, const cdp_error *why);
    /* After cdp_channel_send() or _offer() returned CDP_PENDING: there is room again. */
    void (*credit)(void *user, uint32_t peer);
    /* An offered body is the caller's again: CDP_OK: it was fetched; CDP_ERR_ABORTED: refused;
       CDP_ERR_PEER_LOST, or what broke the group. */
    void (*released)(void *user, uint32_t peer, uint64_t handle, cdp_status status);
    /* A body that was asked for is there: CDP_OK, or CDP_ERR_PEER_LOST, or what broke the group. */
    void (*fetched)(void *user, uint32_t peer, uint64_t handle, cdp_status status);
    /* os->now_ns has reached the time that was given to cdp_channel_timer(). */
    void (*timer)(void *user);
} cdp_channel_desc;

/* Longest body of cdp_channel_send(). */
#define CDP_CHANNEL_BODY_MAX (1024u * 1024u) /* a quarter of window_bytes, where that is less */

/* Opens a channel; other ranks may open it later, what is sent to them waits (up to window_bytes
   each). Errors: INVALID (desc, number in use), NOMEM, STATE (the group was destroyed). */
CDP_MUST_CHECK CDP_API cdp_status cdp_channel_open(const cdp_channel_desc *desc, cdp_channel **out);

/* Sends a message; the body is copied, so it is the caller's again. CDP_PENDING: not taken, too
   much is under way to that rank; try again after the callback `credit`. Errors: INVALID (peer,
   this rank itself, body too long), PEER_LOST, NOMEM. */
CDP_MUST_CHECK CDP_API cdp_status cdp_channel_send(
    cdp_channel *channel, const cdp_channel_message *message);

/* Sends a message whose body stays here until the callback `released`; *handle names it. The
   receiver reads it in place where memory is shared, else it is sent. Returns what
   cdp_channel_send() does. */
CDP_MUST_CHECK CDP_API cdp_status cdp_channel_offer(
    cdp_channel *channel, const cdp_channel_message *message, uint64_t *handle);

/* Asks for an offered body: `to` has room for its `bytes` and is in use until the callback
   `fetched`. Errors: INVALID, PEER_LOST, NOMEM. */
CDP_MUST_CHECK CDP_API cdp_status cdp_channel_fetch(
    cdp_channel *channel, uint32_t peer, uint64_t handle, void *to, uint64_t bytes);
/* Declines it. Errors as for cdp_channel_fetch(). */
CDP_MUST_CHECK CDP_API cdp_status cdp_channel_refuse(
    cdp_channel *channel, uint32_t peer, uint64_t handle);

/* Sets the channel's timer: the callback `timer` is called once when os->now_ns reaches at_ns
   (UINT64_MAX: clears the timer). */
CDP_API void cdp_channel_timer(cdp_channel *channel, uint64_t at_ns);

/* Lets communication advance until some callback of this channel has run: CDP_OK, or until
   timeout_ms have passed: CDP_PENDING. Errors: STATE (inside a callback; or another thread, or
   such a callback, has closed the channel). */
CDP_MUST_CHECK CDP_API cdp_status cdp_channel_wait(cdp_channel *channel, uint32_t timeout_ms);

/* For a thread that waits for something that callbacks of this channel, or other threads, change:
   start with *seen = 0, and in turn look whether it has changed and call this. Returns CDP_OK at
   once if a callback has returned, or cdp_channel_wake() was called, since the previous turn;
   otherwise lets communication advance until then, or until os->now_ns reaches until_ns
   (CDP_PENDING). Errors as for cdp_channel_wait(). */
CDP_MUST_CHECK CDP_API cdp_status cdp_channel_wait_since(
    cdp_channel *channel, uint64_t *seen, uint64_t until_ns);
/* Ends the waits of other threads on this channel, as a callback does. Any thread; NULL is
   allowed. */
CDP_API void cdp_channel_wake(cdp_channel *channel);

/* Gives up the rank `peer`, for instance because it has violated the program's protocol: on this
   rank the callback `lost` is called with `reason` (copied; at most 400 bytes), on the peer as if
   this rank had closed the channel. The other ranks of the channel go on; a rank that was lost
   before stays so. Any thread. Errors: INVALID: channel or reason is NULL, or `peer` is this rank
   or not in the channel's group; nothing was done. */
CDP_API cdp_status cdp_channel_drop(cdp_channel *channel, uint32_t peer, const char *reason);

/* Closes the channel: no callback runs after this returned (or, inside a callback, after that one
   returned). Other ranks get the callback `lost` for this one. Offered bodies are the caller's
   again. NULL is allowed. */
CDP_API void cdp_channel_close(cdp_channel *channel);
#endif /* CDP_NO_CHANNELS */

/* ---- >>group/backend_api: memory that the processor does not reach --------------------------- */

/* A backend runs whole requests on memory of its own, such as that of a GPU, in queues of its own.
   If a group has one, the calls above check their pointers: requests on memory that the backend
   owns go to it, others over the links as before. cdp_nccl.h is one. For its works cdp_work_wait()
   orders what the caller does next on the device and returns; cdp_work_wait_for() and
   cdp_work_test() check whether they are done; cdp_work_then(), cdp_start_after(),
   cdp_work_cancel() and receives from any rank are UNSUPPORTED. The library calls all functions but
   `failed` without the group's lock. If start, transfer or wait returns a status < 0 while any of
   its work is in flight, the group breaks on all ranks. */
typedef struct cdp_backend {
    void *self;
    const char *name; /* for cdp_describe() */
    /* Returns 1 if `data` is memory of this backend, 0 if it is host memory. < 0: a status with its
       text in cdp_last_error(): neither the backend nor the host can use the memory */
    int (*owns)(void *self, const void *data);
    /* Starts `n` requests together; the caller has checked them and filled in defaults. *number
       becomes the backend's own count of what it started, from 1, below 2^62, or 0 if it failed
       before anything started. */
    cdp_status (*start)(void *self, const cdp_request *requests, uint32_t n, uint64_t *number);
    /* Like `start`, for `n` messages. */
    cdp_status (*transfer)(void *self, const cdp_transfer *list, uint32_t n, uint64_t *number);
    /* Waits for the work with this number (0: for everything so far) until os->now_ns >=
       deadline_ns: OK, PENDING, or the error. deadline_ns 0: only checks, and the lock may be held.
       UINT64_MAX: does not wait, but orders later work of the caller on the device after it.
       INVALID and STATE are the caller's mistakes. */
    cdp_status (*wait)(void *self, uint64_t number, uint64_t deadline_ns);
    /* the group broke: stop what runs. Lock held, must not block */
    void (*failed)(void *self, const cdp_error *error);
    /* Optional: gives the new group `part` a backend (NULL: this rank is in no part). */
    cdp_status (*split)(void *self, uint32_t color, uint32_t key, cdp_group *part);
    void (*destroy)(void *self);
    /* Memory for gradients, in the order of the caller's other device work. When `copy` to or from
       host memory returns, it is done. */
    void *(*alloc)(void *self, uint64_t bytes); /* NULL: sets the last error */
    void (*release)(void *self, void *data);
    cdp_status (*copy)(void *self, void *dst, const void *src, uint64_t bytes);
    cdp_status (*zero)(void *self, void *dst, uint64_t bytes);
    cdp_status (*scale)(void *self, cdp_dtype dtype, void *data, uint64_t count, double factor);
    /* waits for the result */
    cdp_status (*sum_squares)(
        void *self, cdp_dtype dtype, const void *data, uint64_t count, double *sum);
} cdp_backend;

#ifndef CDP_NO_BACKEND
/* Give the group a backend; it is copied, and destroyed with the group. Groups made of this one
   have none, but those of cdp_group_split(). Errors: INVALID; STATE (it has one). */
CDP_MUST_CHECK CDP_API cdp_status cdp_group_set_backend(
    cdp_group *group, const cdp_backend *backend);
/* For backends: checks that all ranks call the same requests, and sends nothing else. The text of a
   MISMATCH names both calls, that of a TIMEOUT the rank that has not called. `wait`: returns only
   when the check is done. Errors: INVALID (no group, no requests), STATE (destroyed), the group's
   failure. */
CDP_MUST_CHECK CDP_API cdp_status cdp_group_compare(
    cdp_group *group, const cdp_request *requests, uint32_t n, bool wait);
/* For backends: notice that rank `peer` has died although nothing over the links waits for it,
   when work of the backend is still not done half a second later. Takes one place of
   max_pending. Errors: INVALID, NOMEM, STATE. */
CDP_MUST_CHECK CDP_API cdp_status cdp_group_watch(cdp_group *group, uint32_t peer);
/* For backends, in their destroy: from now on no thread calls one of their functions. NULL is
   allowed. */
CDP_API void cdp_group_clear_backend(cdp_group *group);
#endif /* CDP_NO_BACKEND */

CDP_API const cdp_backend *cdp_group_backend(const cdp_group *group); /* NULL: none */
/* For backends: break the group on all ranks for this thread's last error, unless it is broken.
   Any thread, not in `failed`. */
CDP_API void cdp_group_fail(cdp_group *group);

/* ---- >>group/objects_api: bytes of any length from every rank -------------------------------- */

#ifndef CDP_NO_OBJECTS
/* Where a call stores the bytes that it receives, and how many it received. Ranks exchange lengths
   before any of them allocates: if bytes do not fit on a rank, all ranks get the same error, and
   the group stays usable. All zero is fine: memory comes from the group's os, at most 1 GiB, and
   goes back with cdp_blob_free(). */
typedef struct cdp_blob {
    /* the caller's memory, or NULL: the call allocates memory if it receives bytes, and sets
       this */
    void *data;
    /* bytes at `data` */
    uint64_t room;
    /* never take more than that (default: 1 GiB) */
    uint64_t max_bytes;
    /* both or neither (default: those of the group's os) */
    void *(*alloc)(void *user, uint64_t bytes);
    void (*release)(void *user, void *ptr);
    void *user;
    /* NULL, or room for world_size numbers: how many bytes are of each rank */
    uint64_t *lengths;
    /* set: how many came */
    uint64_t bytes;
    /* set: `data` is to go back with cdp_blob_free() */
    bool allocated;
} cdp_blob;

/* Every rank's `bytes` bytes, one after the other, go to every rank. Collective. This call and the
   next three block, and allocate memory for the lengths. Errors: INVALID (of the call; or, on all
   ranks, that some rank's room or max_bytes is too small: the text says whose and how much it
   needs), NOMEM (on all ranks: some rank could not allocate), MISMATCH (ranks called different ones
   of these functions, or with different roots; the group stays usable), or the group's failure. */
CDP_MUST_CHECK CDP_API cdp_status cdp_allgather_bytes(
    cdp_group *group, const void *data, uint64_t bytes, cdp_blob *all);
/* Like cdp_allgather_bytes(), but only rank `root` receives; `all` may be NULL on the others. */
CDP_MUST_CHECK CDP_API cdp_status cdp_gather_bytes(
    cdp_group *group, const void *data, uint64_t bytes, uint32_t root, cdp_blob *all);
/* Root's bytes go to all others; `got` may be NULL on root, where it is left alone. Only root
   reads `data` and `bytes`. */
CDP_MUST_CHECK CDP_API cdp_status cdp_broadcast_bytes(
    cdp_group *group, const void *data, uint64_t bytes, uint32_t root, cdp_blob *got);
/* Rank r gets the next lengths[r] bytes of root's `data`, root too; `data` and `lengths` count
   on root alone. */
CDP_MUST_CHECK CDP_API cdp_status cdp_scatter_bytes(
    cdp_group *group, const void *data, const uint64_t *lengths, uint32_t root, cdp_blob *mine);
/* Frees the memory that a call allocated for the blob; memory of the caller stays. NULL is
   allowed. */
CDP_API void cdp_blob_free(cdp_group *group, cdp_blob *blob);
#endif /* CDP_NO_OBJECTS */

/* ---- >>ddp/ddp_api: data parallel training --------------------------------------------------- */

#ifndef CDP_NO_DDP

/* Distributed data parallel training. Every rank holds the whole model and computes gradients on
   its own part of the batch; the library averages gradients over all ranks while the backward pass
   is still running. Buckets, their sizes and their launch order are those of PyTorch's
   DistributedDataParallel (Li et al., "PyTorch Distributed", VLDB 2020, arXiv 2006.15704). There is
   no autograd here: the caller reports when a gradient is complete.

   Threads: one thread at a time calls functions of a ddp. The exceptions are cdp_ddp_ready(),
   cdp_ddp_ready_rows() and cdp_ddp_unused(), which several threads may call in one backward pass.
   Memory: the gradients once (buckets hold them), twice during a rebuild, and a copy of each
   gradient that this rank did not use while other ranks may have used it. All from the group's os,
   or from cdp_group_alloc().
   Failures: after a failure of the group every call returns it; destroy the ddp, then the group.
   A group may have any number of ddps; create them in the same order on all ranks. */
typedef struct cdp_ddp cdp_ddp;

/* One parameter of the model, as an array. */
typedef struct cdp_param {
    const char *name; /* for messages; copied; equal on all ranks (default: "param<i>") */
    void *data;       /* `count` values, owned by the caller; must outlive the ddp */
    /* NULL: the gradient is in the bucket, see cdp_ddp_grad(). Else `count` values owned by the
       caller: cdp_ddp_ready() copies them to the bucket, cdp_ddp_backward_end() copies the mean
       back. */
    void *grad;
    uint64_t count;  /* elements; 0 is allowed */
    cdp_dtype dtype; /* f32 (default), f64, f16 or bf16; parameters may differ */
    /* First dimension of a matrix, which must divide count. Needed by `sparse`, used by hooks that
       compress matrices (default: the parameter is a vector). */
    uint64_t rows;
    /* An embedding: gradients are some rows of the matrix, see cdp_ddp_ready_rows(). Needs `rows`
       below 2^32 and no `grad`; host memory alone. */
    bool sparse;
    uint32_t device; /* 0: the pointers tell; device memory needs cdp_nccl_attach() */
} cdp_param;

/* State that is no parameter, such as running means. Before each synchronized step, rank 0's values
   are copied to every rank; with join, those of the highest rank that has data in that step. */
typedef struct cdp_buffer {
    const char *name; /* as in cdp_param (default: "buffer<i>") */
    void *data;       /* `count` values, owned by the caller; must outlive the ddp */
    uint64_t count;
    cdp_dtype dtype; /* any (default: f32) */
} cdp_buffer;

/* A rank that is out of data (cdp_ddp_join) must start the operations that the caller's own code
   starts on the other ranks. The library calls join_hook where that code runs there: */
typedef enum cdp_join_when {
    CDP_JOIN_FORWARD, /* between cdp_ddp_forward_begin and cdp_ddp_backward_begin */
    CDP_JOIN_STEP,    /* after cdp_ddp_backward_end */
    CDP_JOIN_LAST     /* once, when all ranks are out of data and parameters are equal again */
} cdp_join_when;

/* Except for `data`, `grad` and pointers, all members must be equal on all ranks; creation compares
   them. */
typedef struct cdp_ddp_desc {
    cdp_group *group;        /* required; must outlive the ddp */
    const cdp_param *params; /* required; in the order of the forward pass; copied */
    uint32_t param_count;
    /* Bytes of the first bucket of each dtype (default: bucket_bytes if that is set, as in
       PyTorch, else 1 MiB). A bucket is full when it reaches its size, so it may exceed it. */
    uint64_t first_bucket_bytes;
    uint64_t bucket_bytes;     /* bytes of the other buckets (default: 25 MiB) */
    bool no_broadcast;         /* rank 0's parameters and buffers are not copied at creation */
    const cdp_buffer *buffers; /* copied */
    uint32_t buffer_count;
    bool no_buffer_broadcast; /* after creation every rank keeps its own buffers */
    /* Called in place of copying buffers; may start operations, the same on all ranks.
       cdp_ddp_forward_begin or cdp_ddp_backward_begin returns its status. */
    cdp_status (*buffer_hook)(cdp_ddp *ddp, void *user);
    void *user; /* for buffer_hook and join_hook */
    /* The sum over ranks is divided by this (default: the number of ranks; 1 keeps the sum). */
    cdp_real divisor;
    /* The part of the divisor by which gradients are multiplied as 1 / predivide before they are
       summed, against overflow (default: 1; for f16 all of the divisor, because sums of f16 exceed
       65504 early). PyTorch divides all dtypes first: the number of ranks gives its bits. */
    cdp_real predivide;
    /* Parameters may have no gradient in a pass, different ones on different ranks. */
    bool find_unused;
    /* The same parameters get gradients, equally often, in every synchronized pass. */
    bool static_graph;
    /* After the first synchronized pass, gradients are stored in the order in which they became
       ready on rank 0. Pointers from cdp_ddp_grad() change once, in the next call of
       cdp_ddp_forward_begin or cdp_ddp_backward_begin. */
    bool rebuild;
    bool join;           /* ranks may run out of data at different times, see cdp_ddp_join() */
    bool join_throw;     /* with join: if one rank runs out, that step is an error on every rank */
    bool join_effective; /* with join: divide by the number of ranks that had data */
    /* See cdp_join_when. cdp_ddp_join returns its status. */
    cdp_status (*join_hook)(cdp_ddp *ddp, cdp_join_when when, void *user);
} cdp_ddp_desc;

/* Figures of a ddp. Times are in nanoseconds. "Last step": the last synchronized pass in which this
   rank had data. */
typedef struct cdp_ddp_stats {
    uint64_t steps; /* synchronized passes so far */
    uint32_t bucket_count;
    uint64_t bytes_per_step; /* of dense gradients */
    uint64_t sent_bytes;     /* last step: given to operations; fewer if a hook compresses */
    uint64_t backward_ns;    /* last step: from backward_begin to the call of backward_end */
    uint64_t comm_ns;        /* last step: operations of buckets were running */
    uint64_t exposed_ns;     /* last step: the part of comm_ns for which backward_end waited */
    cdp_real hidden;         /* last step: 1 - exposed_ns / comm_ns, 0 to 1 */
    uint64_t total_backward_ns, total_comm_ns, total_exposed_ns; /* over all steps */
    uint32_t active_ranks;     /* last step: ranks that had data */
    uint32_t unused_count;     /* last step: parameters that no rank used */
    bool rebuilt;              /* buckets are in the order of the first pass, see .rebuild */
    bool can_set_static_graph; /* this rank had gradients for the same parameters in every step */
    uint64_t unused_bytes;     /* last step: gradient bytes of parameters that no rank used */
    /* last step: from the last forward_begin to backward_begin; 0 if forward_begin is not called */
    uint64_t forward_ns;
    uint64_t overlap_ns; /* last step: from the start of the first bucket to backward_end's call */
    uint64_t total_forward_ns, total_overlap_ns;                           /* over all steps */
    uint64_t avg_forward_ns, avg_backward_ns, avg_comm_ns, avg_overlap_ns; /* total / steps */
} cdp_ddp_stats;

/* One bucket. Times are in nanoseconds from backward_begin of the last synchronized pass, and 0 if
   the bucket did not travel in it. */
typedef struct cdp_bucket_stats {
    uint64_t bytes; /* of gradients */
    cdp_dtype dtype;
    uint32_t param_count;
    const uint32_t *params; /* indices in memory order; valid until the next step */
    uint64_t ready_ns;      /* the last parameter became ready */
    uint64_t start_ns;      /* its first operation began */
    uint64_t end_ns;        /* its first operation ended */
} cdp_bucket_stats;

/* Create a ddp. Collective: every rank calls it with the same parameters. It compares names,
   dtypes, counts, order and settings over all ranks, then copies rank 0's values to all. The caller
   owns the result. Errors, on the rank that made the mistake: INVALID or UNSUPPORTED (the text says
   which member of the desc to change), NOMEM; the other ranks wait until their deadline. On all
   ranks: MISMATCH (the first parameter, buffer or setting that differs, here and there: make it
   equal), NOMEM (a rank has no device memory left), or the group's failure. */
CDP_MUST_CHECK CDP_API cdp_status cdp_ddp_create(const cdp_ddp_desc *desc, cdp_ddp **out);

#ifndef CDP_NO_FRAMES
/* cdp_ddp_create() for a program that must not block: checks *desc, allocates, and sends the first
   bytes; cdp_ddp_poll() goes on with it. It does not wait, and takes some microseconds for each
   parameter. Until creation ends, parameters and buffers must stay as they are, and calls with the
   ddp other than cdp_ddp_poll() and cdp_ddp_destroy() return STATE. Ranks may mix this form and the
   blocking one. Errors: INVALID, UNSUPPORTED, NOMEM as cdp_ddp_create(), and then *out is NULL; or
   the group's failure. */
CDP_MUST_CHECK CDP_API cdp_status cdp_ddp_create_start(const cdp_ddp_desc *desc, cdp_ddp **out);

/* Goes on with what cdp_ddp_create_start() or cdp_ddp_backward_end_start() has begun, for at most
   `budget_us` microseconds (0: one step), as cdp_work_poll() does. The budget includes its own
   work, in steps of at most 64 KiB: it clears buckets, divides gradients, copies them to the
   caller's arrays, packs parameters. Not bounded are a stage of a hook, the rows of one sparse
   parameter, and buckets that start at the end because parameters were not marked before. Only this
   call goes on, no other thread, because hooks and devices are bound to the thread of the ddp;
   operations that are in flight advance without it, too. Returns CDP_PENDING: call it again. Else
   what cdp_ddp_create() or cdp_ddp_backward_end() would have returned, or CDP_OK if nothing is
   under way. After a creation that failed, each call returns that failure again; destroy the ddp.
   INVALID: NULL. */
CDP_MUST_CHECK CDP_API cdp_status cdp_ddp_poll(cdp_ddp *ddp, uint32_t budget_us);
#endif

/* Destroy a ddp. Local. Waits for operations in flight, at most until their deadlines. Before the
   group is destroyed; NULL is allowed. Inside a function given to cdp_work_then() and a backward
   pass it does nothing but log an error. While cdp_ddp_poll() still returns CDP_PENDING the other
   ranks wait for this one, so it breaks the group on all ranks, with STATE. */
CDP_API void cdp_ddp_destroy(cdp_ddp *ddp);

#ifndef CDP_NO_GROUPS
/* Go on with another group, for instance after the loss of a rank: the same parameters and
   settings, and from then on the same bits as a ddp that is created in `group`. Collective over
   `group`: ranks without a ddp call cdp_ddp_create() with the same desc and no_broadcast, because
   nothing is broadcast: parameters and buffers must be equal on all ranks, as they are after
   cdp_elastic_next(). An open pass is dropped if its group has failed. Gradients in buckets are 0,
   pointers from cdp_ddp_grad() change, means are divided by the new number of ranks; statistics,
   the order that `rebuild` learns and the pass that `static_graph` records begin anew. The former
   group is used here for the last time: destroy it afterwards. Errors: INVALID (NULL; `group` has
   another os), STATE (a pass is open, and its group has not failed), UNSUPPORTED (a hook was set,
   or the model is in device memory: destroy the ddp and create another), and then nothing has
   changed. NOMEM (the new group is aborted, so that others do not wait), MISMATCH as in creation,
   the new group's failure: then the ddp has no group; call this again with a later one, or destroy
   the ddp, other calls return STATE. */
CDP_MUST_CHECK CDP_API cdp_status cdp_ddp_rebind(cdp_ddp *ddp, cdp_group *group);
#endif

/* The group (after cdp_ddp_rebind(): the new one) and the number of parameters that the ddp was
   created with; NULL and 0 for NULL. */
CDP_API cdp_group *cdp_ddp_group(const cdp_ddp *ddp);
CDP_API uint32_t cdp_ddp_param_count(const cdp_ddp *ddp);
/* Parameter `index` as it was given, with defaults filled in and the ddp's copy of its name. Valid
   until destroy. NULL: there is no such parameter. */
CDP_API const cdp_param *cdp_ddp_param(const cdp_ddp *ddp, uint32_t index);

/* Where the gradient of parameter `index` is in its bucket: `count` values, owned by the ddp, valid
   until destroy (but see .rebuild). Write them or add to them before cdp_ddp_ready(); read the mean
   after cdp_ddp_backward_end(). They are zero at first, then hold the last mean until the caller
   changes them. NULL, with INVALID as last error: there is no such parameter, or it is sparse (see
   cdp_ddp_rows). */
CDP_API void *cdp_ddp_grad(cdp_ddp *ddp, uint32_t index);

/* Did any rank have a gradient for parameter `index` in the last synchronized pass? The same
   answer on all ranks. An optimizer that skips parameters without a gradient (PyTorch: grad is
   None) skips those for which this is false. Without find_unused and static_graph it is true for
   all parameters after the first synchronized pass. False before that pass, for an index that
   does not exist, and for NULL. Call it outside a backward pass. */
CDP_API bool cdp_ddp_used(const cdp_ddp *ddp, uint32_t index);

/* Set all gradients to zero, also those in the caller's arrays, and drop collected rows. Between
   backward_begin and backward_end it does nothing. */
CDP_API void cdp_ddp_zero_grad(cdp_ddp *ddp);

/* Copy buffers before a forward pass whose backward pass is synchronized: rank 0's to all ranks,
   or with join those of the highest rank that has data in this step. Collective, once per
   synchronized pass however often it is called, and not while no_sync is on. If it was not called,
   backward_begin copies them; without buffers it is not needed. Errors: INVALID (NULL), STATE (a
   backward pass is open: end it first), NOMEM, what buffer_hook returns, or the group's failure. */
CDP_MUST_CHECK CDP_API cdp_status cdp_ddp_forward_begin(cdp_ddp *ddp);

/* One backward pass: begin, ready(i) for every parameter when its gradient is complete (usually the
   last layer first), then end. A bucket whose parameters are all ready starts on its way at once;
   buckets start in the same order on all ranks. After end, gradients hold the mean over all ranks.

   ready and unused may be called by several threads of a rank, one call for each parameter, as
   backward passes use threads; begin must have returned before, and end is called when all those
   calls have returned. With gradients in device memory, one thread at a time calls them. A function
   given to cdp_work_then() may call them, too.

   unused(i) takes the place of ready(i) with find_unused or static_graph: this rank has no gradient
   for i in this pass, and the bucket does not wait for it. A parameter that is not marked until end
   counts as unused, too. The rank contributes what the gradient held: zeros after zero_grad. A
   parameter that no rank used keeps its gradient as it was, see cdp_ddp_used(). One that got a
   gradient under no_sync since the last synchronized pass counts as used.

   With static_graph, the first synchronized pass records how often ready(i) is called for each i,
   and sends everything at its end. Later passes must call it equally often; a parameter is complete
   at its last ready(i).

   begin: INVALID (NULL), STATE (the pass before has not ended), NOMEM, or the group's failure.
   ready, unused: INVALID (no such parameter; sparse; unused without find_unused), STATE (marked
   twice, outside begin and end, or more often than recorded), NOMEM, what a hook returns, or the
   group's failure. end reports the first failure of the pass again, or STATE with the name of each
   parameter that was never ready, or STATE with the ranks that are out of data (join_throw). After
   a failure of a synchronized pass the group is broken on all ranks, because the others wait for
   gradients of this one: correct the program and start the job again. */
CDP_MUST_CHECK CDP_API cdp_status cdp_ddp_backward_begin(cdp_ddp *ddp);
CDP_API cdp_status cdp_ddp_ready(cdp_ddp *ddp, uint32_t index);
CDP_API cdp_status cdp_ddp_unused(cdp_ddp *ddp, uint32_t index);
CDP_MUST_CHECK CDP_API cdp_status cdp_ddp_backward_end(cdp_ddp *ddp);

#ifndef CDP_NO_FRAMES
/* cdp_ddp_backward_end() for a program that must not block: cdp_ddp_poll() goes on with it, and
   returns what backward_end would have returned, the same bits and errors. Gradients are the ddp's
   until then: read and write nothing there. Other calls with the ddp return STATE until then. Ranks
   may mix this form and the blocking one. Errors: INVALID (NULL), STATE (no backward pass is open,
   or its end is under way). */
CDP_MUST_CHECK CDP_API cdp_status cdp_ddp_backward_end_start(cdp_ddp *ddp);
#endif

/* Some rows of a matrix. */
typedef struct cdp_rows {
    uint64_t count; /* rows */
    uint64_t width; /* values in each row */
    const uint32_t *rows;
    void *values; /* count * width values of the parameter's dtype, row after row */
} cdp_rows;

#ifndef CDP_NO_SPARSE
/* In place of ready(i) for a sparse parameter: its gradient is `n` rows of the matrix, with n *
   count / rows numbers in `values`. Both arrays are copied. A row may occur several times: its
   values are added. n = 0: the parameter is used, without any row. Passes under no_sync add to the
   rows that the next synchronized pass sends. Threads: as ready. Errors: INVALID (not sparse; a row
   that does not exist; no rows or values), NOMEM, and those of ready.

   backward_end exchanges rows after the buckets, not through hooks: counts, then indices, then
   values of all ranks. If all ranks together have more rows than the matrix, a dense gradient is
   cheaper. Memory grows to the largest exchange and is kept. */
CDP_API cdp_status cdp_ddp_ready_rows(
    cdp_ddp *ddp, uint32_t index, const uint32_t *rows, uint32_t n, const void *values);

/* The mean of a sparse parameter after backward_end: the rows that any rank had, each once, those
   of rank 0 first, equal on all ranks. The ddp owns them, until the next backward_end or
   zero_grad. All zero: there is no such parameter, or it is dense. */
CDP_API cdp_rows cdp_ddp_rows(const cdp_ddp *ddp, uint32_t index);
#endif /* CDP_NO_SPARSE */

/* Gradient accumulation. While on, backward passes stay local: nothing is sent, and gradients hold
   what this rank wrote (add to them). The first pass that begins after it was switched off sends
   the accumulated gradients. It takes effect at the next backward_begin, the same on all ranks. To
   nest, remember what is_no_sync returns and restore it. Errors: INVALID (NULL), STATE (a backward
   pass is open). */
CDP_API cdp_status cdp_ddp_no_sync(cdp_ddp *ddp, bool on);
CDP_API bool cdp_ddp_is_no_sync(const cdp_ddp *ddp); /* false for NULL */

#ifndef CDP_NO_JOIN
/* This rank has no more data; needs .join. It takes part in the steps of the other ranks with
   gradients of zero, until every rank has called this. Then all ranks get the parameters and
   buffers of the highest rank that had data in the last step, and training may go on. Gradients
   accumulated under no_sync and not sent are lost. Cost: one number per rank in the first bucket
   (with a hook a small operation of its own), with buffers one operation of 4 bytes per step, and
   at the end one more first bucket. Errors: INVALID (NULL, or join is not set), STATE (a backward
   pass is open; or join_throw and other ranks have data), what join_hook returns, NOMEM, or the
   group's failure. */
CDP_MUST_CHECK CDP_API cdp_status cdp_ddp_join(cdp_ddp *ddp);
#endif /* CDP_NO_JOIN */

#ifndef CDP_NO_VERIFY
/* Compare parameters (not buffers) bit for bit over all ranks. Collective, between passes. They are
   equal as long as every rank does the same arithmetic with the same gradients; another compiler or
   a bug changes that silently. Sends one hash per rank, reads all parameters. Errors: INVALID
   (NULL), STATE (a backward pass is open), NOMEM, MISMATCH on all ranks (the first parameter that
   differs, and the first rank that has other bits than rank 0; the group stays usable), or the
   group's failure. */
CDP_MUST_CHECK CDP_API cdp_status cdp_ddp_verify(cdp_ddp *ddp);
#endif /* CDP_NO_VERIFY */

/* Return copies of the statistics; all zero for NULL, or for a bucket that does not exist. */
CDP_API cdp_ddp_stats cdp_ddp_stats_of(const cdp_ddp *ddp);
CDP_API cdp_bucket_stats cdp_ddp_bucket(const cdp_ddp *ddp, uint32_t index);

#ifndef CDP_NO_TRACE
/* How cdp_ddp_trace() writes. Pictures show the last synchronized step: when parameters became
   ready, and when buckets were on their way. */
typedef enum cdp_trace_format {
    CDP_TRACE_JSON = 0, /* for chrome://tracing or ui.perfetto.dev */
    CDP_TRACE_SVG,
    CDP_TRACE_TEXT /* settings and figures, one "name: value" per line, as PyTorch names them */
} cdp_trace_format;

/* Writes at most `room` bytes, a zero at the end among them; `text` may be NULL. Returns the length
   of the whole text without the zero; 0 if there is no step to draw yet, or for NULL. Not inside a
   backward pass. */
CDP_API uint64_t cdp_ddp_trace(
    const cdp_ddp *ddp, cdp_trace_format format, char *text, uint64_t room);
#endif /* CDP_NO_TRACE */

#ifndef CDP_NO_CLIP
/* Scale all gradients so that their Euclidean norm over all parameters is at most max_norm (0: do
   not scale). *norm, if not NULL, gets the norm before. Local, after backward_end: gradients, and
   so the norm, are equal on all ranks. Errors: INVALID (NULL, or max_norm is negative or NaN),
   STATE (a backward pass is open), or what a device returns. */
CDP_API cdp_status cdp_ddp_clip(cdp_ddp *ddp, double max_norm, double *norm);
#endif /* CDP_NO_CLIP */

#endif /* CDP_NO_DDP */

/* ---- >>ddp/hooks_api: what happens to gradients on their way --------------------------------- */

#ifndef CDP_NO_DDP

/* A communication hook replaces the allreduce of each bucket: it gets the gradients of this rank,
   not divided, and leaves the result in their place. A hook works in stages. Each stage may ask for
   one collective operation, which the library starts: stage 0 runs when the bucket is full, the
   next stage when that operation has ended. Each stage has a group of its own, of all ranks, and
   takes the buckets in their order, so that all ranks start the operations of a group in one order
   although they reach them at different times. Stages are called from ready(), unused() and
   backward_end, by one thread at a time. */
typedef struct cdp_bucket {
    uint32_t index, bucket_count; /* the last bucket has index bucket_count - 1 */
    void *data;                   /* `count` values: the gradients of `params`, in that order */
    uint64_t count;
    cdp_dtype dtype;
    const uint32_t
        *params; /* `param_count` indices, see cdp_ddp_param(); sparse ones have 0 values */
    uint32_t param_count;
    cdp_real divisor; /* the hook divides the sum by this */
    cdp_ddp *ddp;
    cdp_group *group; /* where this stage's operation runs; a stage may set another group */
} cdp_bucket;

typedef struct cdp_hook {
    void *self;
    /* Required. Returns CDP_PENDING: start *op, which is zero at the call, and call stage + 1 when
       it has ended; its memory must stay valid until then. CDP_OK: the bucket holds the result. An
       error: the pass fails with it, and with this thread's last error if the stage has set one. */
    cdp_status (*stage)(void *self, cdp_bucket *bucket, uint32_t stage, cdp_request *op);
    /* The next four are optional. save: write at most `room` bytes of state, return how many bytes
       the state has. load: restore a saved state. */
    uint64_t (*save)(void *self, void *bytes, uint64_t room);
    cdp_status (*load)(void *self, const void *bytes, uint64_t count);
    /* With error feedback: the norm of what the last step did not send. */
    double (*error_norm)(void *self);
    void (*destroy)(void *self);
    uint32_t
        operations;    /* most operations of one bucket, 1 to 8 (default: 1); equal on all ranks */
    bool keeps_layout; /* has state per bucket: buckets are not rebuilt while it is set */
    bool device;       /* works on parameters in device memory, and on no others */
} cdp_hook;

/* Use `hook` from the next backward pass on, in place of the one before, which is destroyed. NULL:
   none. The same call on all ranks, between steps. Local, but it makes groups of all ranks (see
   cdp_group_new). *hook is copied, and destroyed with the ddp or when another one is set; also if
   this call fails. With join_effective, buckets start only when the number of ranks with data is
   known. Errors: INVALID (NULL ddp, no stage function, more than 8 operations), STATE (a backward
   pass is open), UNSUPPORTED (a hook for the other kind of memory), NOMEM, or those of
   cdp_group_new. */
CDP_MUST_CHECK CDP_API cdp_status cdp_ddp_set_hook(cdp_ddp *ddp, const cdp_hook *hook);
/* The ddp's copy of its hook, for save, load and error_norm; NULL: it has none. */
CDP_API const cdp_hook *cdp_ddp_hook(const cdp_ddp *ddp);

#ifndef CDP_NO_HOOKS
/* Built-in hooks, with the mathematics of PyTorch's hooks of these names, for any dtype. Hooks that
   compress compute in f32; where values travel as numbers, f16 and bf16 travel as such. Memory, in
   buckets of f32, for each bucket in flight: FP16 and BF16 a half, POWERSGD its factors, QUANTIZE
   ranks / 4, TOPK 1 and the values of all ranks; one more if the dtype is not f32, and for
   POWERSGD_BATCHED. With error feedback, one for each bucket is kept. */
typedef enum cdp_hook_kind {
    CDP_HOOK_ALLREDUCE = 0,    /* divide, then sum */
    CDP_HOOK_FP16,             /* travels as f16; around `inner`, which sees f16 */
    CDP_HOOK_BF16,             /* travels as bf16, likewise */
    CDP_HOOK_POWERSGD,         /* each matrix (see cdp_param.rows) as a product of two thin ones */
    CDP_HOOK_POWERSGD_BATCHED, /* each bucket as one square matrix */
    CDP_HOOK_QUANTIZE,         /* 8 bits per value, one scale per bucket */
    CDP_HOOK_QUANTIZE_CHANNEL, /* 8 bits per value, one scale per 512 values */
    CDP_HOOK_TOPK,             /* the largest values; the others are added to the next step's */
    CDP_HOOK_NOOP,             /* nothing is sent and nothing is divided */
    /* divide and sum over all ranks until step `start`; then in `subgroup`, or not at all */
    CDP_HOOK_POST_LOCAL_SGD
} cdp_hook_kind;

typedef struct cdp_hook_desc {
    cdp_hook_kind kind;
    /* FP16, BF16: runs on the smaller numbers; copied, and owned by the new hook once that is
       created (default: ALLREDUCE) */
    const cdp_hook *inner;
    uint32_t rank; /* POWERSGD: columns of the thin matrices (default: 1) */
    /* POWERSGD: steps without compression first (default: 1000; at least 1). POST_LOCAL_SGD: steps
       over all ranks first (default: 0). */
    uint64_t start;
    double min_rate; /* POWERSGD: matrices that shrink less are not compressed (default: 2) */
    bool no_error_feedback; /* POWERSGD, TOPK */
    bool no_warm_start;     /* POWERSGD: begin from random columns in each step */
    double epsilon;         /* POWERSGD: added to norms (default: 0; columns of zeros stay zero) */
    uint64_t seed;          /* POWERSGD: of random columns; equal on all ranks */
    double ratio;           /* TOPK: one value in so many is sent (default: 100) */
    cdp_group *subgroup;    /* POST_LOCAL_SGD; must outlive the hook */
    const cdp_os *os;       /* (default: cdp_os_default()) */
} cdp_hook_desc;

/* Make a hook for cdp_ddp_set_hook, which then owns it; else call out->destroy(out->self). Local.
   A hook serves one ddp. Errors: INVALID (the text names the member of the desc), NOMEM; `inner` is
   not destroyed then. */
CDP_MUST_CHECK CDP_API cdp_status cdp_hook_create(const cdp_hook_desc *desc, cdp_hook *out);
#endif /* CDP_NO_HOOKS */

#ifndef CDP_NO_AVERAGER
/* Averages of parameters now and then, in place of gradients at every step (with CDP_HOOK_NOOP or
   POST_LOCAL_SGD, or under no_sync). */
typedef struct cdp_average_level {
    uint64_t period;  /* steps */
    cdp_group *group; /* of some ranks, this one among them (default: all ranks) */
} cdp_average_level;

/* Owned by the caller, who sets all members but `step`, which counts from 0; equal on all ranks. */
typedef struct cdp_averager {
    cdp_ddp *ddp;
    uint64_t period; /* average every so many steps after warmup (default: 1) */
    uint64_t warmup; /* steps before the first average */
    uint64_t step;   /* steps so far; save it with the model */
    /* In place of `period`, averages over growing groups: of the levels whose period divides
       step - warmup, the one with the longest period applies. */
    const cdp_average_level *levels;
    uint32_t level_count;
} cdp_averager;

/* Call it after each optimizer step, on all ranks. If an average is due, all parameters become
   their mean over the group, also those without a gradient; then ++step. Errors: INVALID (no ddp,
   or levels missing), what a device returns, or the failure of the group that averages. */
CDP_MUST_CHECK CDP_API cdp_status cdp_averager_step(cdp_averager *averager);
#endif /* CDP_NO_AVERAGER */

#ifndef CDP_NO_ZERO
/* Optimizer state on one rank per parameter only (ZeRO, stage 1). Chooses owner[i], the rank that
   owns parameter i, for `n` parameters with counts[i] elements: the largest parameter goes first,
   each to the rank with the fewest elements so far. totals[] has world_size entries, zero at first,
   and carries over from one group of parameters to the next. Local; equal on all ranks. Takes one
   pass over the parameters for each different count. */
CDP_API void cdp_zero_partition(
    const uint64_t *counts, uint32_t n, uint32_t world_size, uint64_t *totals, uint32_t *owner);

/* One optimizer step. Collective, after backward_end, with the same `owner` on all ranks: calls
   `update` for each parameter that this rank owns, then sends every parameter from its owner to
   all. `grad` is the mean where the caller reads it, NULL for a sparse parameter (see
   cdp_ddp_rows); `user` is passed on. To skip parameters without a gradient, ask cdp_ddp_used.
   Errors: INVALID (NULL, or an owner that is no rank: no update was called), STATE (a backward pass
   is open), or the group's failure. */
CDP_MUST_CHECK CDP_API cdp_status cdp_zero_step(cdp_ddp *ddp, const uint32_t *owner,
    void (*update)(void *user, uint32_t index, const cdp_param *param, const void *grad),
    void *user);
#endif /* CDP_NO_ZERO */
#endif /* CDP_NO_DDP */

#ifndef CDP_NO_SAMPLER
/* Which samples of a data set a rank sees in an epoch: those of PyTorch's DistributedSampler, in
   its order. Owned by the caller; no state is kept. */
typedef struct cdp_sampler {
    uint64_t size; /* samples of the data set, 1 to 2^32 - 1 */
    uint32_t ranks, rank;
    bool shuffle;
    bool drop_last; /* if ranks does not divide size: leave samples out, do not repeat the first */
    uint64_t seed;  /* of the order; equal on all ranks */
    uint64_t epoch; /* set it, or every epoch has the same order */
    const cdp_os *os; /* (default: cdp_os_default()) */
    /* Samples of this epoch that all ranks together have had; the others are dealt out. Where the
       number of ranks changes within an epoch, each sample still comes once: add ranks times batch
       after each step that counts, and give every rank the same number */
    uint64_t consumed;
} cdp_sampler;

/* Samples of each rank that are left; 0 for NULL or ranks 0. Any thread. */
CDP_API uint64_t cdp_sampler_count(const cdp_sampler *sampler);
/* Write their indices to `indices`, which has room for cdp_sampler_count() numbers. Local, any
   thread; with shuffle it allocates 4 bytes per sample of the data set for the call. Errors:
   INVALID (NULL, size or rank out of range), NOMEM. */
CDP_MUST_CHECK CDP_API cdp_status cdp_sampler_fill(const cdp_sampler *sampler, uint64_t *indices);
#endif /* CDP_NO_SAMPLER */

#ifdef __cplusplus
} /* extern "C" */
#endif
/* ---- >>group/cxx_api: descs by reference in C++ ---------------------------------------------- */

#ifdef CDP_NAMES_0_1
/* What cdp_reduce is called in 0.2 and later; `cdp_reduce` itself is the type here, see the end of
   this file. */
CDP_MUST_CHECK static inline cdp_status cdp_reduce_to(cdp_group *group, const void *in, void *out,
    uint64_t count, cdp_dtype dtype, cdp_reduce_op op, uint32_t root) {
    return cdp_reduce(group, in, out, count, dtype, op, root);
}
#endif

#ifdef __cplusplus
inline cdp_status cdp_group_create(const cdp_group_desc &desc, cdp_group **out) {
    return cdp_group_create(&desc, out);
}
#ifndef CDP_NO_HUB
inline cdp_status cdp_hub_create(const cdp_hub_desc &desc, cdp_hub **out) {
    return cdp_hub_create(&desc, out);
}
#endif
#ifndef CDP_NO_DDP
inline cdp_status cdp_ddp_create(const cdp_ddp_desc &desc, cdp_ddp **out) {
    return cdp_ddp_create(&desc, out);
}
#endif
inline cdp_status cdp_start(cdp_group *group, const cdp_request &request, cdp_work *out) {
    return cdp_start(group, &request, out);
}
#endif

#endif /* CDP_INCLUDED */

#if (defined(CDP_IMPLEMENTATION) || defined(CDP_CORE_IMPLEMENTATION) \
    || defined(CDP_DTENSOR_IMPLEMENTATION))                          \
    && !defined(CDP__SHARED_IMPL_INCLUDED)
#define CDP__SHARED_IMPL_INCLUDED

/* ---- >>base/compiler: what differs between compilers ----------------------------------------- */

/* Knows: gcc and clang, MSVC, other compilers of C11. Promises: the other sections contain no
   compiler extension, except >>base/config, whose macros the declarations need;
   tests/check_sources.sh checks that. */

/* How private functions are declared. Tests define it as something else, see tests/linked.h. */
#ifndef CDP__PRIVATE
#if defined(__GNUC__) || defined(__clang__)
#define CDP__PRIVATE __attribute__((__unused__)) static
#else
#define CDP__PRIVATE static
#endif
#endif

#if defined(__GNUC__) || defined(__clang__)
#define CDP__RESTRICT __restrict__
#if defined(CDP_NO_OS) /* see CDP_FORMAT_CHECK */
#define CDP__PRINTF(f, a)
#elif defined(_WIN32) && !defined(__clang__)
#define CDP__PRINTF(f, a) __attribute__((format(gnu_printf, f, a)))
#else
#define CDP__PRINTF(f, a) __attribute__((format(printf, f, a)))
#endif
/* Keeps compilers from copying a function into each of its callers. Used only where measured copies
   cost most; tests/check_sources.sh counts the uses of this and of CDP__COLD. */
#define CDP__ONE_COPY __attribute__((__noinline__))
/* Marks functions that run when something begins, ends, fails or is described, and not for each
   operation, message or request. Compilers optimize them for size, and keep them and all paths that
   lead to them apart from the rest; gcc also what only they call. A function that always calls one
   of them becomes one, too. */
#define CDP__COLD __attribute__((__cold__))
/* Marks functions that read any word of the stack. */
#define CDP__NO_ASAN __attribute__((no_sanitize_address))
#define cdp__return_address() __builtin_return_address(0)
#define cdp__frame_address() __builtin_frame_address(0)
/* With other compilers the C library's struct epoll_event does not have the kernel's layout. */
#ifdef __linux__
#define CDP__EPOLL
#endif
#else
#define CDP__RESTRICT
#define CDP__PRINTF(f, a)
#define CDP__ONE_COPY
#define CDP__COLD
#define CDP__NO_ASAN
#define cdp__return_address() NULL
#define cdp__frame_address() NULL
#endif

#if defined(CDP_NO_THREADS)
#define CDP__THREAD_LOCAL
#elif defined(_MSC_VER) && !defined(__clang__)
#define CDP__THREAD_LOCAL __declspec(thread)
#elif defined(__GNUC__) || defined(__clang__)
#define CDP__THREAD_LOCAL __thread
#else
#define CDP__THREAD_LOCAL _Thread_local
#endif

/* The positions of the highest and the lowest bit that is set; n > 0. */
#if defined(__GNUC__) || defined(__clang__)
#define cdp__highest_bit(n) (63u - (uint32_t)__builtin_clzll(n))
#define cdp__lowest_bit(n) ((uint32_t)__builtin_ctzll(n))
#else
CDP__PRIVATE uint32_t cdp__highest_bit(uint64_t n) {
    uint32_t at = 0, step;
    for (step = 32; step; step /= 2) {
        if (!(n >> step)) continue;
        n >>= step;
        at += step;
    }
    return at;
}
CDP__PRIVATE uint32_t cdp__lowest_bit(uint64_t n) {
    return cdp__highest_bit(n & (~n + 1));
}
#endif

/* ---- atomic accesses

   Macros or functions, one for each type. add, sub and and return the new value. cas compares with
   *expected and replaces; if it returns false, it has set *expected to the value found. The orders
   have the meaning of C11's. */

#if defined(__GNUC__) || defined(__clang__)
#define CDP__RELAXED __ATOMIC_RELAXED
#define CDP__ACQUIRE __ATOMIC_ACQUIRE
#define CDP__RELEASE __ATOMIC_RELEASE
#define CDP__ACQ_REL __ATOMIC_ACQ_REL
#define CDP__SEQ_CST __ATOMIC_SEQ_CST
#define cdp__atomic_load_u16(from, order) __atomic_load_n(from, order)
#define cdp__atomic_load_u32(from, order) __atomic_load_n(from, order)
#define cdp__atomic_load_ptr(from, order) __atomic_load_n(from, order)
#define cdp__atomic_store_u32(to, value, order) __atomic_store_n(to, value, order)
#define cdp__atomic_swap_u32(at, value, order) __atomic_exchange_n(at, value, order)
#define cdp__atomic_add_u32(at, value, order) __atomic_add_fetch(at, value, order)
#define cdp__atomic_add_u64(at, value, order) __atomic_add_fetch(at, value, order)
#define cdp__atomic_sub_u32(at, value, order) __atomic_sub_fetch(at, value, order)
#define cdp__atomic_and_u32(at, value, order) __atomic_and_fetch(at, value, order)
#define cdp__atomic_cas_u32(at, expected, value, order, otherwise) \
    __atomic_compare_exchange_n(at, expected, value, false, order, otherwise)
#define cdp__atomic_cas_ptr(at, expected, value, order, otherwise) \
    __atomic_compare_exchange_n(at, expected, value, false, order, otherwise)
/* If no other thread or process reads this memory, 64-bit stores need not be atomic: small
   processors have no such store. */
#if defined(CDP_NO_THREADS) && defined(CDP_NO_SHARED_MEMORY)
#define cdp__atomic_load_u64(from, order) (*(from))
#define cdp__atomic_store_u64(to, value, order) ((void)(*(to) = (value)))
#else
#define cdp__atomic_load_u64(from, order) __atomic_load_n(from, order)
#define cdp__atomic_store_u64(to, value, order) __atomic_store_n(to, value, order)
#endif

#elif defined(_MSC_VER)
/* Aligned volatile accesses are atomic. On x86 only the compiler may change their order, and only
   a store may be overtaken by a later load: a store that is SEQ_CST is an exchange. */
#include <intrin.h>
#if defined(_M_ARM64) || defined(_M_ARM)
#define CDP__BARRIER() __dmb(0xb)
#else
#define CDP__BARRIER() _ReadWriteBarrier()
#endif
#define CDP__RELAXED 0
#define CDP__ACQUIRE 1
#define CDP__RELEASE 2
#define CDP__ACQ_REL 3
#define CDP__SEQ_CST 4

CDP__PRIVATE uint16_t cdp__atomic_load_u16(const volatile uint16_t *from, int order) {
    const uint16_t value = *from;
    (void)order;
    CDP__BARRIER();
    return value;
}
CDP__PRIVATE uint32_t cdp__atomic_load_u32(const volatile uint32_t *from, int order) {
    const uint32_t value = *from;
    (void)order;
    CDP__BARRIER();
    return value;
}
CDP__PRIVATE uint32_t cdp__atomic_swap_u32(volatile uint32_t *at, uint32_t value, int order) {
    (void)order;
    return (uint32_t)_InterlockedExchange((volatile long *)at, (long)value);
}
CDP__PRIVATE void cdp__atomic_store_u32(volatile uint32_t *to, uint32_t value, int order) {
    if (order == CDP__SEQ_CST) {
        (void)cdp__atomic_swap_u32(to, value, order);
        return;
    }
    CDP__BARRIER();
    *to = value;
}
CDP__PRIVATE uint32_t cdp__atomic_add_u32(volatile uint32_t *at, uint32_t value, int order) {
    (void)order;
    return (uint32_t)_InterlockedExchangeAdd((volatile long *)at, (long)value) + value;
}
CDP__PRIVATE uint32_t cdp__atomic_sub_u32(volatile uint32_t *at, uint32_t value, int order) {
    return cdp__atomic_add_u32(at, 0u - value, order);
}
CDP__PRIVATE uint32_t cdp__atomic_and_u32(volatile uint32_t *at, uint32_t value, int order) {
    (void)order;
    return (uint32_t)_InterlockedAnd((volatile long *)at, (long)value) & value;
}
CDP__PRIVATE bool cdp__atomic_cas_u32(
    volatile uint32_t *at, uint32_t *expected, uint32_t value, int order, int otherwise) {
    const uint32_t wanted = *expected;
    (void)order;
    (void)otherwise;
    *expected =
        (uint32_t)_InterlockedCompareExchange((volatile long *)at, (long)value, (long)wanted);
    return *expected == wanted;
}
/* Adds to a number of 64 bits, or replaces it; 32-bit x86 has this one instruction for both. */
CDP__PRIVATE uint64_t cdp__atomic_change_u64(volatile uint64_t *at, uint64_t value, bool add) {
    uint64_t was, is = *at;
    do {
        was = is;
        is = (uint64_t)_InterlockedCompareExchange64(
            (volatile __int64 *)at, (__int64)(add ? was + value : value), (__int64)was);
    } while (is != was);
    return add ? was + value : value;
}
#define cdp__atomic_add_u64(at, value, order) cdp__atomic_change_u64(at, value, true)
#ifdef _M_IX86
#define cdp__atomic_load_u64(from, order) \
    ((uint64_t)_InterlockedCompareExchange64((volatile __int64 *)(from), 0, 0))
#define cdp__atomic_store_u64(to, value, order) ((void)cdp__atomic_change_u64(to, value, false))
#else
CDP__PRIVATE uint64_t cdp__atomic_load_u64(const volatile uint64_t *from, int order) {
    const uint64_t value = *from;
    (void)order;
    CDP__BARRIER();
    return value;
}
CDP__PRIVATE void cdp__atomic_store_u64(volatile uint64_t *to, uint64_t value, int order) {
    (void)order; /* none is SEQ_CST */
    CDP__BARRIER();
    *to = value;
}
#endif
CDP__PRIVATE void *cdp__atomic_load_pointer(void *const volatile *from) {
    void *const value = *from;
    CDP__BARRIER();
    return value;
}
CDP__PRIVATE bool cdp__atomic_cas_pointer(void *volatile *at, void **expected, void *value) {
    void *const wanted = *expected;
    *expected = _InterlockedCompareExchangePointer(at, value, wanted);
    return *expected == wanted;
}
#define cdp__atomic_load_ptr(from, order) cdp__atomic_load_pointer((void *const volatile *)(from))
#define cdp__atomic_cas_ptr(at, expected, value, order, otherwise) \
    cdp__atomic_cas_pointer((void *volatile *)(at), (void **)(expected), value)

#elif defined(CDP_NO_THREADS) && defined(CDP_NO_SHARED_MEMORY)
/* One thread, and no other process: plain accesses are enough. */
#define CDP__PLAIN_ACCESSES
#define cdp__atomic_load_u16(from, order) (*(from))
#define cdp__atomic_load_u32(from, order) (*(from))
#define cdp__atomic_load_u64(from, order) (*(from))
#define cdp__atomic_load_ptr(from, order) (*(from))
#define cdp__atomic_store_u32(to, value, order) ((void)(*(to) = (value)))
#define cdp__atomic_store_u64(to, value, order) ((void)(*(to) = (value)))
#define cdp__atomic_add_u32(at, value, order) (*(at) += (value))
#define cdp__atomic_sub_u32(at, value, order) (*(at) -= (value))
#define cdp__atomic_and_u32(at, value, order) (*(at) &= (value))
#define cdp__atomic_swap_u32(at, value, order) cdp__plain_swap_u32(at, value)
#define cdp__atomic_cas_u32(at, expected, value, order, otherwise) \
    cdp__plain_cas_u32(at, expected, value)
#define cdp__atomic_cas_ptr(at, expected, value, order, otherwise) \
    cdp__plain_cas_ptr((void **)(at), (void **)(expected), value)
CDP__PRIVATE uint32_t cdp__plain_swap_u32(uint32_t *at, uint32_t value) {
    const uint32_t was = *at;
    *at = value;
    return was;
}
CDP__PRIVATE bool cdp__plain_cas_u32(uint32_t *at, uint32_t *expected, uint32_t value) {
    const bool same = *at == *expected;
    *expected = *at;
    if (same) *at = value;
    return same;
}
CDP__PRIVATE bool cdp__plain_cas_ptr(void **at, void **expected, void *value) {
    const bool same = *at == *expected;
    *expected = *at;
    if (same) *at = value;
    return same;
}

#elif defined(__cplusplus) || defined(__STDC_NO_ATOMICS__) || __STDC_VERSION__ < 201112L
#error "cdp.h: a compiler without atomics of C11: define CDP_NO_THREADS and CDP_NO_SHARED_MEMORY"
#else
#include <stdatomic.h>
#define CDP__RELAXED memory_order_relaxed
#define CDP__ACQUIRE memory_order_acquire
#define CDP__RELEASE memory_order_release
#define CDP__ACQ_REL memory_order_acq_rel
#define CDP__SEQ_CST memory_order_seq_cst
#define cdp__atomic_load_u16(from, order) \
    atomic_load_explicit((const _Atomic uint16_t *)(from), order)
#define cdp__atomic_load_u32(from, order) \
    atomic_load_explicit((const _Atomic uint32_t *)(from), order)
#define cdp__atomic_load_u64(from, order) \
    atomic_load_explicit((const _Atomic uint64_t *)(from), order)
#define cdp__atomic_load_ptr(from, order) atomic_load_explicit((void *_Atomic *)(from), order)
#define cdp__atomic_store_u32(to, value, order) \
    atomic_store_explicit((_Atomic uint32_t *)(to), value, order)
#define cdp__atomic_store_u64(to, value, order) \
    atomic_store_explicit((_Atomic uint64_t *)(to), value, order)
#define cdp__atomic_swap_u32(at, value, order) \
    atomic_exchange_explicit((_Atomic uint32_t *)(at), value, order)
#define cdp__atomic_add_u32(at, value, order) \
    (atomic_fetch_add_explicit((_Atomic uint32_t *)(at), value, order) + (value))
#define cdp__atomic_add_u64(at, value, order) \
    (atomic_fetch_add_explicit((_Atomic uint64_t *)(at), value, order) + (value))
#define cdp__atomic_sub_u32(at, value, order) \
    (atomic_fetch_sub_explicit((_Atomic uint32_t *)(at), value, order) - (value))
#define cdp__atomic_and_u32(at, value, order) \
    (atomic_fetch_and_explicit((_Atomic uint32_t *)(at), value, order) & (value))
#define cdp__atomic_cas_u32(at, expected, value, order, otherwise) \
    atomic_compare_exchange_strong_explicit(                       \
        (_Atomic uint32_t *)(at), expected, value, order, otherwise)
#define cdp__atomic_cas_ptr(at, expected, value, order, otherwise) \
    atomic_compare_exchange_strong_explicit(                       \
        (void *_Atomic *)(at), (void **)(expected), value, order, otherwise)
#endif

/* ---- >>base/helpers: small helpers that need no system (pure) -------------------------------- */

/* Knows: headers of C. Promises: no state. The files that cdp_dtensor.h shares with cdp.h include
   this one, and not >>base/basics. */

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#ifndef CDP_ASSERT
#if defined(CDP_NO_LOG_STRINGS) && !defined(NDEBUG)
#define CDP_ASSERT(x) ((x) ? (void)0 : abort())
#else
#include <assert.h>
#define CDP_ASSERT(x) assert(x)
#endif
#endif

/* 0 in a desc means "the default". */
#define cdp__def(value, fallback) ((value) ? (value) : (fallback))

CDP__PRIVATE uint64_t cdp__min(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}
CDP__PRIVATE uint64_t cdp__max(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

/* ---- >>text/utf8: characters of UTF-8 (pure) ------------------------------------------------- */

/* Knows: code points and their bytes. Promises: any bytes yield characters; reads and writes no
   byte outside what the caller gives. */

#include <string.h>

/* Returns the next code point of a text that ends at `end`, '?' for each byte that is not valid
   UTF-8. */
CDP__PRIVATE uint32_t cdp__utf8_next(const uint8_t **at, const uint8_t *end) {
    /* by number of continuation bytes: the smallest code point that needs so many */
    static const uint32_t least[4] = {0, 0x80, 0x800, 0x10000};
    /* continuation bytes, by the upper five bits of the first byte; 4: not a first byte */
    static const uint8_t length[32] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 4, 4, 4,
        4, 4, 4, 4, 1, 1, 1, 1, 2, 2, 3, 4};
    const uint8_t *p = *at;
    const uint32_t more = length[p[0] >> 3];
    uint32_t i, c = p[0] & (more ? 0x3fu >> more : 0x7fu);
    *at = p + 1;
    if (more == 4 || more >= (uint64_t)(end - p)) return '?';
    for (i = 1; i <= more; ++i) {
        if ((p[i] & 0xc0) != 0x80) return '?';
        c = c << 6 | (p[i] & 0x3fu);
    }
    if (c < least[more] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000)) return '?';
    *at = p + more + 1;
    return c;
}

/* Writes a code point as 1 to 4 bytes, and returns how many; '?' for what is no character. */
CDP__PRIVATE uint32_t cdp__utf8_put(uint32_t c, char out[4]) {
    uint32_t more, i;
    if (c > 0x10ffff || (c >= 0xd800 && c < 0xe000)) c = '?';
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    more = c < 0x800 ? 1u : 2u + (c >= 0x10000);
    for (i = more; i; --i, c >>= 6)
        out[i] = (char)(0x80 | (c & 0x3f));
    out[0] = (char)((0xf0u << (3 - more) & 0xff) | c); /* as many ones as bytes, then a zero */
    return more + 1;
}

/* Copies a text that another process has written. Control characters, which could upset a
   terminal, and what is not valid UTF-8 become '?'. Characters that do not fit are left out. */
CDP__PRIVATE void cdp__text_foreign(char *out, uint64_t size, const void *text, uint64_t bytes) {
    const uint8_t *at = (const uint8_t *)text, *end = bytes ? at + bytes : at;
    uint64_t used = 0;
    while (at != end) {
        const uint8_t *from = at;
        const uint32_t c = cdp__utf8_next(&at, end);
        const uint64_t n = (uint64_t)(at - from);
        const bool bad = c < 32 || (c >= 127 && c < 160) || c == '?';
        if (used + (bad ? 1 : n) >= size) break;
        if (bad)
            out[used++] = '?';
        else
            memcpy(out + used, from, (size_t)n);
        used += bad ? 0 : n;
    }
    out[used] = 0;
}

/* cdp__text_foreign() for an array of `most` bytes whose text may end before, with a zero. */
CDP__PRIVATE void cdp__text_foreign_in(char *out, uint64_t size, const char *text, uint64_t most) {
    uint64_t n = 0;
    while (n < most && text[n])
        ++n;
    cdp__text_foreign(out, size, text, n);
}

/* ---- >>text/format: text that is built in memory of a given size (pure) ---------------------- */

/* Knows: characters, numbers and formats, so that builds without stdio have every message.
   Promises: never writes beyond the memory; a text in memory ends with a zero; `used` counts the
   whole text, also what did not fit. */

#include <stdarg.h>
#include <string.h>

typedef struct cdp__text {
    char *at;
    uint64_t room, used; /* room: in bytes, with the zero at the end; used: without it */
    /* NULL: what does not fit is counted and left out. Else it is called when the memory is full:
       takes all `used` bytes away and sets `used` to 0. */
    void (*flush)(struct cdp__text *t);
} cdp__text;

/* How many bytes of the text are in memory. */
CDP__PRIVATE uint64_t cdp__text_kept(const cdp__text *t) {
    if (t->used < t->room) return t->used;
    return t->room ? t->room - 1 : 0;
}

/* Ends the text with a zero; returns its whole length. */
CDP__PRIVATE uint64_t cdp__text_end(cdp__text *t) {
    if (t->room) t->at[cdp__text_kept(t)] = 0;
    return t->used;
}

/* A text for `room` bytes at `at`, where nothing is written yet. `at` may be NULL: then the text is
   only counted. */
CDP__PRIVATE cdp__text cdp__text_of(char *at, uint64_t room) {
    cdp__text t;
    t.at = at;
    t.room = at ? room : 0;
    t.used = 0;
    t.flush = NULL;
    return t;
}

CDP__PRIVATE void cdp__text_char(cdp__text *t, char c) {
    if (t->flush && t->used + 1 >= t->room) t->flush(t);
    if (t->used + 1 < t->room) t->at[t->used] = c;
    ++t->used;
}

CDP__PRIVATE void cdp__text_bytes(cdp__text *t, const void *data, uint64_t bytes) {
    const char *from = (const char *)data;
    while (bytes) {
        const uint64_t left = t->used + 1 < t->room ? t->room - 1 - t->used : 0;
        uint64_t n = left < bytes ? left : bytes;
        if (n) memcpy(t->at + t->used, from, (size_t)n);
        if (!t->flush) n = bytes;
        t->used += n;
        from += n;
        bytes -= n;
        if (bytes) t->flush(t);
    }
}

CDP__PRIVATE void cdp__text_number(cdp__text *t, uint64_t v, bool negative, uint32_t base) {
    char digits[24];
    uint32_t n = sizeof digits;
    do {
        digits[--n] = "0123456789abcdef"[v % base];
        v /= base;
    } while (v);
    if (negative) digits[--n] = '-';
    cdp__text_bytes(t, digits + n, sizeof digits - n);
}

/* Formats with %s, %c, %d, %u, %x and %%, and the lengths l, ll and z. An unknown directive ends
   the text. */
CDP__PRIVATE CDP__COLD void cdp__text_add_v(cdp__text *t, const char *f, va_list ap) {
    for (; *f; ++f) {
        if (*f != '%') {
            cdp__text_char(t, *f);
            continue;
        }
        uint64_t bytes = sizeof(int);
        for (++f; *f == 'l' || *f == 'z'; ++f) {
            bytes = bytes == sizeof(int) && f[1] != 'l' ? sizeof(long) : sizeof(long long);
            if (*f == 'z') bytes = sizeof(size_t);
        }
        if (*f == 's') {
            const char *s = va_arg(ap, const char *);
            if (!s) s = "(null)";
            cdp__text_bytes(t, s, strlen(s));
        } else if (*f == 'c') {
            cdp__text_char(t, (char)va_arg(ap, int));
        } else if (*f == 'd') {
            const int64_t v =
                bytes == 8 ? (int64_t)va_arg(ap, long long) : (int64_t)va_arg(ap, int);
            cdp__text_number(t, v < 0 ? 0 - (uint64_t)v : (uint64_t)v, v < 0, 10);
        } else if (*f == 'u' || *f == 'x') {
            const uint64_t v = bytes == 8 ? (uint64_t)va_arg(ap, unsigned long long)
                                          : (uint64_t)va_arg(ap, unsigned);
            cdp__text_number(t, v, false, *f == 'u' ? 10 : 16);
        } else {
            cdp__text_char(t, '%');
            if (*f != '%') break;
        }
    }
    (void)cdp__text_end(t);
}

CDP__PRIVATE CDP__COLD CDP__PRINTF(2, 3) void cdp__text_add(cdp__text *t, const char *f, ...) {
    va_list ap;
    va_start(ap, f);
    cdp__text_add_v(t, f, ap);
    va_end(ap);
}

/* Returns the length of the whole text; what does not fit is left out. */
CDP__PRIVATE CDP__COLD CDP__PRINTF(3, 4) uint64_t
    cdp__format(char *dst, uint64_t size, const char *f, ...) {
    cdp__text t = cdp__text_of(dst, size);
    va_list ap;
    va_start(ap, f);
    cdp__text_add_v(&t, f, ap);
    va_end(ap);
    return t.used;
}

/* Writes `v` >= 0 with one decimal. */
CDP__PRIVATE void cdp__text_tenths(cdp__text *t, double v) {
    const uint64_t tenths = v > 0 ? (uint64_t)(v * 10 + 0.5) : 0;
    cdp__text_add(
        t, "%llu.%llu", (unsigned long long)(tenths / 10), (unsigned long long)(tenths % 10));
}

/* Writes blanks up to column `column` of a line that began at `line`. */
CDP__PRIVATE void cdp__text_pad(cdp__text *t, uint64_t line, uint64_t column) {
    while (t->used - line < column)
        cdp__text_char(t, ' ');
}

/* ---- >>text/json_write: texts as strings of JSON (pure) -------------------------------------- */

/* Knows: which characters a string of JSON must not have. Promises: pure ASCII, which readers of
   any locale accept; bytes that are not UTF-8 become question marks. */

/* Writes one unit of UTF-16 as an escape. */
CDP__PRIVATE void cdp__json_unit(cdp__text *t, uint32_t unit) {
    uint32_t shift;
    cdp__text_bytes(t, "\\u", 2);
    for (shift = 16; shift; shift -= 4)
        cdp__text_char(t, "0123456789abcdef"[unit >> (shift - 4) & 15]);
}

/* Writes a text as the inside of a string, without the quotes. */
CDP__PRIVATE CDP__COLD void cdp__json_inside(cdp__text *t, const char *text) {
    const uint8_t *p = (const uint8_t *)text, *const end = p + strlen(text);
    while (p < end) {
        const uint32_t c = cdp__utf8_next(&p, end);
        if (c >= 0x20 && c < 0x7f) {
            if (c == '"' || c == '\\') cdp__text_char(t, '\\');
            cdp__text_char(t, (char)c);
        } else if (c < 0x10000) {
            cdp__json_unit(t, c);
        } else {
            cdp__json_unit(t, 0xd7c0 + (c >> 10));
            cdp__json_unit(t, 0xdc00 + (c & 0x3ff));
        }
    }
    if (!t->flush) (void)cdp__text_end(t);
}

CDP__PRIVATE CDP__COLD void cdp__json_string(cdp__text *t, const char *text) {
    cdp__text_char(t, '"');
    cdp__json_inside(t, text);
    cdp__text_char(t, '"');
    if (!t->flush) (void)cdp__text_end(t);
}

/* ---- >>dtype/dtype: the table of dtypes (pure) ----------------------------------------------- */

/* Knows: the properties of each dtype. Promises: one row per dtype, which all modules read; what a
   row does not allow is refused. */

#define CDP__OP(op) (1u << CDP_REDUCE_##op)
#define CDP__OPS_ORDERED \
    (CDP__OP(SUM) | CDP__OP(AVG) | CDP__OP(MIN) | CDP__OP(MAX) | CDP__OP(PRODUCT))
#define CDP__OPS_BITS (CDP__OP(BAND) | CDP__OP(BOR) | CDP__OP(BXOR))
#define CDP__OPS_FLOAT (CDP__OPS_ORDERED | CDP__OP(PREMUL_SUM))
#define CDP__OPS_INT (CDP__OPS_ORDERED | CDP__OPS_BITS)
#define CDP__OPS_BOOL (CDP__OPS_INT & ~CDP__OP(AVG))

typedef enum cdp__number_kind {
    CDP__FLOAT,
    CDP__SIGNED,
    CDP__UNSIGNED,
    CDP__TRUTH
} cdp__number_kind;

/* One row per dtype, in the order of cdp_dtype. To add one: its name in cdp_dtype, its row here,
   its set or form in >>dtype/reduce if it needs a new one, its line in the README's list of element
   types, and its values in tests/unit/test_reduce.c. Columns:
     id      CDP_DTYPE_id
     name    for people
     bytes   of one element
     kind    CDP__kind
     set     the kernels that compute with it, CDP__SET_set in >>dtype/reduce
     form    how it is widened to f32 and narrowed again: the functions cdp__widen_form and
             cdp__narrow_form there; `same`: it is not
     one     the bits of 1, for the highest number of bytes
     ops     CDP__OPS_ops, the reductions that exist
     grads   1: parameters and gradients may have it, in DDP, random fills and hooks
     nccl    its ncclDataType_t, -1 if NCCL has none; and the first version of NCCL that has it */
#define CDP__DTYPES(X)                                                      \
    X(F32, "f32", 4, FLOAT, f32, same, 0x3f800000u, FLOAT, 1, 7, 0)         \
    X(F64, "f64", 8, FLOAT, f64, same, 0x3ff0000000000000u, FLOAT, 1, 8, 0) \
    X(I32, "i32", 4, SIGNED, i32, same, 1, INT, 0, 2, 0)                    \
    X(I64, "i64", 8, SIGNED, i64, same, 1, INT, 0, 4, 0)                    \
    X(U8, "u8", 1, UNSIGNED, u8, same, 1, INT, 0, 1, 0)                     \
    X(F16, "f16", 2, FLOAT, f32, f16, 0x3c00, FLOAT, 1, 6, 0)               \
    X(BF16, "bf16", 2, FLOAT, f32, bf16, 0x3f80, FLOAT, 1, 9, 0)            \
    X(I8, "i8", 1, SIGNED, i8, same, 1, INT, 0, 0, 0)                       \
    X(I16, "i16", 2, SIGNED, i16, same, 1, INT, 0, -1, 0)                   \
    X(U16, "u16", 2, UNSIGNED, u16, same, 1, INT, 0, -1, 0)                 \
    X(U32, "u32", 4, UNSIGNED, u32, same, 1, INT, 0, 3, 0)                  \
    X(U64, "u64", 8, UNSIGNED, u64, same, 1, INT, 0, 5, 0)                  \
    X(BOOL, "bool", 1, TRUTH, bool, same, 1, BOOL, 0, 1, 0)                 \
    X(F8E4M3, "f8e4m3", 1, FLOAT, f32, f8e4m3, 0x38, FLOAT, 0, 10, 22400)   \
    X(F8E5M2, "f8e5m2", 1, FLOAT, f32, f8e5m2, 0x3c, FLOAT, 0, 11, 22400)

typedef struct cdp__dtype_row {
    const char *name;
    uint64_t one;
    int32_t nccl_since;
    uint16_t ops; /* bit r: reduction r exists */
    uint8_t bytes, kind;
    bool narrow, grads;
    int8_t nccl;
} cdp__dtype_row;

enum {
    CDP__FORM_same,
    CDP__FORM_f16,
    CDP__FORM_bf16,
    CDP__FORM_f8e4m3,
    CDP__FORM_f8e5m2
};

/* The rows have the order of cdp_dtype, and none is missing: else the array has a negative size. */
#define CDP__ROW(id, name, bytes, kind, set, form, one, ops, grads, nccl, since) char at_##id;
typedef struct cdp__dtype_rows {
    char at_default;
    CDP__DTYPES(CDP__ROW)
} cdp__dtype_rows;
#undef CDP__ROW
#define CDP__ROW(id, name, bytes, kind, set, form, one, ops, grads, nccl, since) \
    &&offsetof(cdp__dtype_rows, at_##id) == (size_t)CDP_DTYPE_##id
typedef char cdp__dtype_rows_fit
    [sizeof(cdp__dtype_rows) == (size_t)CDP_DTYPE_COUNT CDP__DTYPES(CDP__ROW) ? 1 : -1];
#undef CDP__ROW

/* The row of a dtype; a row without name and bytes for a value that is no dtype. */
CDP__PRIVATE const cdp__dtype_row *cdp__dtype_row_of(cdp_dtype t) {
#define CDP__ROW(id, name, bytes, kind, set, form, one, ops, grads, nccl, since)              \
    {name, one, since, (uint16_t)(CDP__OPS_##ops), bytes, CDP__##kind, CDP__FORM_##form != 0, \
        grads != 0, nccl},
    static const cdp__dtype_row rows[CDP_DTYPE_COUNT + 1] = {
        {"f32", 0x3f800000u, 0, CDP__OPS_FLOAT, 4, CDP__FLOAT, false, true, 7},
        CDP__DTYPES(CDP__ROW){"?", 0, 0, 0, 0, CDP__UNSIGNED, false, false, -1}};
#undef CDP__ROW
    return &rows[cdp__min((uint32_t)t, CDP_DTYPE_COUNT)];
}

CDP__PRIVATE bool cdp__dtype_is_float(cdp_dtype t) {
    return cdp__dtype_row_of(t)->kind == CDP__FLOAT;
}
/* True for floats that are computed as f32; a build without them has no such code. */
CDP__PRIVATE bool cdp__dtype_is_narrow(cdp_dtype t) {
#ifdef CDP_ONLY_F32
    (void)t;
    return false;
#else
    return cdp__dtype_row_of(t)->narrow;
#endif
}
/* True if parameters and gradients may have this dtype. */
CDP__PRIVATE bool cdp__dtype_has_grads(cdp_dtype t) {
    return cdp__dtype_row_of(t)->grads;
}
/* True if this build has no arithmetic for the dtype. */
CDP__PRIVATE bool cdp__dtype_left_out(cdp_dtype t) {
#ifdef CDP_ONLY_F32
    return cdp__dtype_is_float(t) && t > CDP_DTYPE_F32;
#else
    (void)t;
    return false;
#endif
}

CDP__PRIVATE bool cdp__reduce_exists(cdp_dtype t, cdp_reduce_op op) {
    return !cdp__dtype_left_out(t) && (cdp__dtype_row_of(t)->ops >> op & 1) != 0;
}

/* Stores the number 1 as an element of the dtype. */
CDP__PRIVATE void cdp__dtype_one(cdp_dtype t, void *out) {
    const cdp__dtype_row *row = cdp__dtype_row_of(t);
    const uint8_t b1 = (uint8_t)row->one;
    const uint16_t b2 = (uint16_t)row->one;
    const uint32_t b4 = (uint32_t)row->one;
    const void *from = &row->one;
    if (row->bytes == 1) from = &b1;
    if (row->bytes == 2) from = &b2;
    if (row->bytes == 4) from = &b4;
    memcpy(out, from, row->bytes);
}

/* ---- >>dtype/reduce: one arithmetic for every reduction (pure) ------------------------------- */

/* Knows: the arithmetic of each dtype. Promises: the same bits for the same operands in the same
   order. */

/* acc[i] = acc[i] OP x[i], or x[i] OP acc[i] if x comes from the lower rank: the order of the
   operands is part of the result (NaN, signed zero) and must be the same on all ranks. Kernels
   work on blocks of constant length, because gcc -O2 vectorises a loop only if it needs neither
   a remainder nor an overlap check; an incomplete block is padded. */
#define CDP__BLOCK 256u
#define CDP__STRIP 32u
/* Combines `strips` strips of CDP__STRIP elements each. For divide and scale, `x` points to one
   number. */
typedef void (*cdp__kernel)(void *acc, const void *x, uint64_t strips);

#define CDP__ADD(l, r) ((l) + (r))
#define CDP__MUL(l, r) (1u * (l) * (r)) /* not as int, where small types would overflow */
/* An addition of two different NaNs returns either, depending on the compiler; these macros
   return the same NaN for every result that is not a number. */
#define CDP__ADD_F32(l, r) ((l) + (r) == (l) + (r) ? (l) + (r) : NAN)
#define CDP__ADD_F64(l, r) ((l) + (r) == (l) + (r) ? (l) + (r) : (double)NAN)
#define CDP__MUL_F32(l, r) ((l) * (r) == (l) * (r) ? (l) * (r) : NAN)
#define CDP__MUL_F64(l, r) ((l) * (r) == (l) * (r) ? (l) * (r) : (double)NAN)
#define CDP__LOW(l, r) ((r) < (l) ? (r) : (l))
#define CDP__HIGH(l, r) ((r) > (l) ? (r) : (l))
#define CDP__OR_NAN(good, x) ((good) ? (x) : NAN)
#define CDP__LOW_F(l, r) ((l) <= (r) ? (l) : CDP__OR_NAN((r) < (l), r))
#define CDP__HIGH_F(l, r) ((l) >= (r) ? (l) : CDP__OR_NAN((r) > (l), r))
#define CDP__SWAP_LOW(a, x) CDP__LOW_F(x, a)
#define CDP__SWAP_HIGH(a, x) CDP__HIGH_F(x, a)
#define CDP__AND(l, r) ((l) & (r))
#define CDP__OR(l, r) ((l) | (r))
#define CDP__XOR(l, r) ((l) ^ (r))
/* of BOOL: every byte but 0 is true, and results are 0 or 1 */
#define CDP__BOTH_TRUE(l, r) (CDP__LOW(l, r) != 0)
#define CDP__ANY_TRUE(l, r) (((l) | (r)) != 0)
#define CDP__ONE_TRUE(l, r) (((l) != 0) != ((r) != 0))

#define CDP__KERNEL(name, T, EXPR)                                                 \
    CDP__PRIVATE void name(                                                        \
        void *CDP__RESTRICT acc_, const void *CDP__RESTRICT x_, uint64_t strips) { \
        T *acc = (T *)acc_;                                                        \
        const T *x = (const T *)x_;                                                \
        uint32_t i;                                                                \
        for (; strips; --strips, acc += CDP__STRIP, x += CDP__STRIP)               \
            for (i = 0; i < CDP__STRIP; ++i)                                       \
                acc[i] = (T)EXPR(acc[i], x[i]);                                    \
    }
/* BY_T is the type of the number of ranks, which may not fit 8 bits. */
#define CDP__KERNEL_BY(name, T, BY_T, OP)                                \
    CDP__PRIVATE void name(void *acc_, const void *x, uint64_t strips) { \
        T *acc = (T *)acc_;                                              \
        BY_T by;                                                         \
        uint32_t i;                                                      \
        memcpy(&by, x, sizeof by);                                       \
        for (; strips; --strips, acc += CDP__STRIP)                      \
            for (i = 0; i < CDP__STRIP; ++i)                             \
                acc[i] = (T)(acc[i] OP by);                              \
    }
#define CDP__KERNELS_FLOAT(s, T, ADD, MUL)             \
    CDP__KERNEL(cdp__add_##s, T, ADD)                  \
    CDP__KERNEL(cdp__mul_##s, T, MUL)                  \
    CDP__KERNEL(cdp__low_##s, T, CDP__LOW_F)           \
    CDP__KERNEL(cdp__high_##s, T, CDP__HIGH_F)         \
    CDP__KERNEL(cdp__low_swap_##s, T, CDP__SWAP_LOW)   \
    CDP__KERNEL(cdp__high_swap_##s, T, CDP__SWAP_HIGH) \
    CDP__KERNEL_BY(cdp__divide_##s, T, T, /)           \
    CDP__KERNEL_BY(cdp__scale_##s, T, T, *)
/* Unsigned integers: sums and products wrap, with the same bits as those of signed integers. */
#define CDP__KERNELS_INT(bits, BY_T)                            \
    CDP__KERNEL(cdp__add_##bits, uint##bits##_t, CDP__ADD)      \
    CDP__KERNEL(cdp__mul_##bits, uint##bits##_t, CDP__MUL)      \
    CDP__KERNEL(cdp__low_i##bits, int##bits##_t, CDP__LOW)      \
    CDP__KERNEL(cdp__low_u##bits, uint##bits##_t, CDP__LOW)     \
    CDP__KERNEL(cdp__high_i##bits, int##bits##_t, CDP__HIGH)    \
    CDP__KERNEL(cdp__high_u##bits, uint##bits##_t, CDP__HIGH)   \
    CDP__KERNEL_BY(cdp__divide_i##bits, int##bits##_t, BY_T, /) \
    CDP__KERNEL_BY(cdp__divide_u##bits, uint##bits##_t, u##BY_T, /)

CDP__KERNELS_FLOAT(f32, float, CDP__ADD_F32, CDP__MUL_F32)
#ifndef CDP_ONLY_F32
CDP__KERNELS_FLOAT(f64, double, CDP__ADD_F64, CDP__MUL_F64)
#endif
CDP__KERNELS_INT(8, int32_t)
CDP__KERNELS_INT(16, int32_t)
CDP__KERNELS_INT(32, int32_t)
CDP__KERNELS_INT(64, int64_t)
CDP__KERNEL(cdp__and_8, uint8_t, CDP__AND)
CDP__KERNEL(cdp__or_8, uint8_t, CDP__OR)
CDP__KERNEL(cdp__xor_8, uint8_t, CDP__XOR)

CDP__KERNEL(cdp__and_bool, uint8_t, CDP__BOTH_TRUE)
CDP__KERNEL(cdp__or_bool, uint8_t, CDP__ANY_TRUE)
CDP__KERNEL(cdp__xor_bool, uint8_t, CDP__ONE_TRUE)

/* The kernels of a dtype, in this order. Bitwise operations treat all integers as bytes. */
enum {
    CDP__DO_ADD,
    CDP__DO_MULTIPLY,
    CDP__DO_LOW,
    CDP__DO_HIGH,
    CDP__DO_LOW_SWAP,
    CDP__DO_HIGH_SWAP,
    CDP__DO_DIVIDE,
    CDP__DO_SCALE,
    CDP__DO_AND,
    CDP__DO_OR,
    CDP__DO_XOR,
    CDP__DO_COUNT
};
#define CDP__SET_FLOAT(s)                                                           \
    {                                                                               \
        cdp__add_##s, cdp__mul_##s, cdp__low_##s, cdp__high_##s, cdp__low_swap_##s, \
            cdp__high_swap_##s, cdp__divide_##s, cdp__scale_##s, NULL, NULL, NULL   \
    }
#define CDP__SET_INT(s, bits)                                                                 \
    {                                                                                         \
        cdp__add_##bits, cdp__mul_##bits, cdp__low_##s##bits, cdp__high_##s##bits,            \
            cdp__low_##s##bits, cdp__high_##s##bits, cdp__divide_##s##bits, NULL, cdp__and_8, \
            cdp__or_8, cdp__xor_8                                                             \
    }
#define CDP__SET_f32 CDP__SET_FLOAT(f32)
#ifdef CDP_ONLY_F32
#define CDP__SET_f64 CDP__SET_f32 /* never asked for */
#else
#define CDP__SET_f64 CDP__SET_FLOAT(f64)
#endif
#define CDP__SET_i8 CDP__SET_INT(i, 8)
#define CDP__SET_i16 CDP__SET_INT(i, 16)
#define CDP__SET_i32 CDP__SET_INT(i, 32)
#define CDP__SET_i64 CDP__SET_INT(i, 64)
#define CDP__SET_u8 CDP__SET_INT(u, 8)
#define CDP__SET_u16 CDP__SET_INT(u, 16)
#define CDP__SET_u32 CDP__SET_INT(u, 32)
#define CDP__SET_u64 CDP__SET_INT(u, 64)
#define CDP__SET_bool                                                                          \
    {                                                                                          \
        cdp__or_bool, cdp__and_bool, cdp__and_bool, cdp__or_bool, cdp__and_bool, cdp__or_bool, \
            NULL, NULL, cdp__and_bool, cdp__or_bool, cdp__xor_bool                             \
    }

CDP__PRIVATE cdp__kernel cdp__kernel_at(cdp_dtype t, uint32_t what) {
#define CDP__ROW(id, name, bytes, kind, set, form, one, ops, grads, nccl, since) CDP__SET_##set,
    static const cdp__kernel table[CDP_DTYPE_COUNT][CDP__DO_COUNT] = {
        CDP__SET_f32, CDP__DTYPES(CDP__ROW)};
#undef CDP__ROW
    return table[t][what];
}

/* The kernel for a reduction; `swap`: x is the left operand. */
CDP__PRIVATE cdp__kernel cdp__kernel_of(cdp_dtype t, cdp_reduce_op op, bool swap) {
    switch (op) {
    case CDP_REDUCE_PRODUCT: return cdp__kernel_at(t, CDP__DO_MULTIPLY);
    case CDP_REDUCE_MIN: return cdp__kernel_at(t, swap ? CDP__DO_LOW_SWAP : CDP__DO_LOW);
    case CDP_REDUCE_MAX: return cdp__kernel_at(t, swap ? CDP__DO_HIGH_SWAP : CDP__DO_HIGH);
    case CDP_REDUCE_BAND: return cdp__kernel_at(t, CDP__DO_AND);
    case CDP_REDUCE_BOR: return cdp__kernel_at(t, CDP__DO_OR);
    case CDP_REDUCE_BXOR: return cdp__kernel_at(t, CDP__DO_XOR);
    /* an average is a sum that is divided at the end; PREMUL_SUM, one that is scaled before */
    default: return cdp__kernel_at(t, CDP__DO_ADD);
    }
}

/* Convert narrow floats to f32 and back, CDP__BLOCK at a time. All cases are computed and a mask
   selects one, so that the loops vectorise. No case computes with subnormal f32 numbers, which
   some programs let the processor treat as zero. */
typedef void (*cdp__converter)(const void *CDP__RESTRICT in, void *CDP__RESTRICT out);
#define CDP__PICK(cond, yes, no) \
    (((yes) & (0u - (uint32_t)(cond))) | ((no) & ((uint32_t)(cond)-1u)))

CDP__PRIVATE void cdp__widen_bf16(const void *CDP__RESTRICT in_, void *CDP__RESTRICT out_) {
    const uint16_t *in = (const uint16_t *)in_;
    uint32_t *out = (uint32_t *)out_;
    uint32_t i;
    for (i = 0; i < CDP__BLOCK; ++i)
        out[i] = (uint32_t)in[i] << 16;
}

CDP__PRIVATE void cdp__narrow_bf16(const void *CDP__RESTRICT in_, void *CDP__RESTRICT out_) {
    const float *in = (const float *)in_;
    uint16_t *out = (uint16_t *)out_;
    uint32_t i;
    for (i = 0; i < CDP__BLOCK; ++i) {
        uint32_t bits;
        memcpy(&bits, &in[i], 4);
        out[i] = (uint16_t)CDP__PICK((bits & 0x7fffffffu) > 0x7f800000u, 0x7fc0u,
            (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
    }
}

/* LEAST: the least regular number; below it, numbers are multiples of STEP. BIAS: how much larger
   the exponent is in f32. From SPECIAL on, exponents are increased by MORE: infinities, NaNs. */
#define CDP__WIDEN(name, T, SIGN, SHIFT, LEAST, STEP, BIAS, SPECIAL, MORE)                     \
    CDP__PRIVATE void name(const void *CDP__RESTRICT in_, void *CDP__RESTRICT out_) {          \
        const T *in = (const T *)in_;                                                          \
        float *out = (float *)out_;                                                            \
        uint32_t i;                                                                            \
        for (i = 0; i < CDP__BLOCK; ++i) {                                                     \
            const uint32_t sign = (uint32_t)(in[i] & (1u << (SIGN))) << (31 - (SIGN));         \
            const uint32_t mag = in[i] & ((1u << (SIGN)) - 1);                                 \
            const float tiny = (float)(int32_t)mag * (STEP);                                   \
            uint32_t bits, tiny_bits;                                                          \
            memcpy(&tiny_bits, &tiny, 4);                                                      \
            bits = (mag << (SHIFT)) + CDP__PICK(mag >= (SPECIAL), (MORE) << 23, (BIAS) << 23); \
            bits = CDP__PICK(mag < (LEAST), tiny_bits, bits) | sign;                           \
            memcpy(&out[i], &bits, 4);                                                         \
        }                                                                                      \
    }
/* Rounds to nearest even. LEAST: the bits of the least regular number; adding ROUND, whose bits are
   ROUND_BITS, rounds smaller ones to a multiple of their step. From LARGE on (bits) the result is
   OVERFLOW. */
#define CDP__NARROW(name, T, SIGN, SHIFT, BIAS, LEAST, ROUND, ROUND_BITS, LARGE, OVERFLOW, NOT) \
    CDP__PRIVATE void name(const void *CDP__RESTRICT in_, void *CDP__RESTRICT out_) {           \
        const float *in = (const float *)in_;                                                   \
        T *out = (T *)out_;                                                                     \
        uint32_t i;                                                                             \
        for (i = 0; i < CDP__BLOCK; ++i) {                                                      \
            uint32_t bits, mag, tiny_bits, result;                                              \
            float tiny;                                                                         \
            memcpy(&bits, &in[i], 4);                                                           \
            mag = bits & 0x7fffffffu;                                                           \
            memcpy(&tiny, &mag, 4);                                                             \
            tiny += (ROUND);                                                                    \
            memcpy(&tiny_bits, &tiny, 4);                                                       \
            result = mag + ((1u << ((SHIFT)-1)) - 1) + (mag >> (SHIFT)&1u);                     \
            result = (result - ((BIAS) << 23)) >> (SHIFT);                                      \
            result = CDP__PICK(mag < (LEAST), tiny_bits - (ROUND_BITS), result);                \
            result = CDP__PICK(mag >= (LARGE), OVERFLOW, result);                               \
            result = CDP__PICK(mag > 0x7f800000u, NOT, result);                                 \
            out[i] = (T)(result | (bits >> (31 - (SIGN)) & (1u << (SIGN))));                    \
        }                                                                                       \
    }
CDP__WIDEN(cdp__widen_f16, uint16_t, 15, 13, 0x400u, 5.9604644775390625e-8f, 112u, 0x7c00u, 224u)
CDP__NARROW(cdp__narrow_f16, uint16_t, 15, 13, 112u, 0x38800000u, 0.5f, 0x3f000000u, 0x477ff000u,
    0x7c00u, 0x7e00u) /* from 65520 on, the nearest f16 is infinity */
CDP__WIDEN(cdp__widen_f8e5m2, uint8_t, 7, 21, 4u, 1.52587890625e-5f, 112u, 0x7cu, 224u)
CDP__NARROW(cdp__narrow_f8e5m2, uint8_t, 7, 21, 112u, 0x38800000u, 128.0f, 0x43000000u, 0x47700000u,
    0x7cu, 0x7fu) /* from 61440 on */
/* Without infinities: 0x7f is NaN, and so is what rounds to more than 448. */
CDP__WIDEN(cdp__widen_f8e4m3, uint8_t, 7, 20, 8u, 0.001953125f, 120u, 0x7fu, 240u)
CDP__NARROW(cdp__narrow_f8e4m3, uint8_t, 7, 20, 120u, 0x3c800000u, 16384.0f, 0x46800000u,
    0x43e80001u, 0x7fu, 0x7fu)

/* The function that widens a block of a narrow dtype, or narrows it; else NULL. */
CDP__PRIVATE cdp__converter cdp__converter_of(cdp_dtype t, bool widen) {
#define cdp__widen_same NULL
#define cdp__narrow_same NULL
#define CDP__ROW(id, name, bytes, kind, set, form, one, ops, grads, nccl, since) \
    {cdp__narrow_##form, cdp__widen_##form},
    static const cdp__converter table[CDP_DTYPE_COUNT][2] = {{NULL, NULL}, CDP__DTYPES(CDP__ROW)};
#undef CDP__ROW
#undef cdp__widen_same
#undef cdp__narrow_same
    return table[t][widen];
}

CDP__PRIVATE void cdp__widen_block(cdp_dtype t, const void *in, float *out) {
    cdp__converter_of(t, true)(in, out);
}
CDP__PRIVATE void cdp__narrow_block(cdp_dtype t, const float *in, void *out) {
    cdp__converter_of(t, false)(in, out);
}

/* Runs a kernel over n elements of dtype t, which is not narrow; `scalar`: x is one number. An
   incomplete strip is padded. */
CDP__PRIVATE void cdp__kernel_run(
    cdp_dtype t, cdp__kernel k, void *acc, const void *x, uint64_t n, bool scalar) {
    const uint64_t size = cdp__dtype_row_of(t)->bytes, whole = n & ~(uint64_t)(CDP__STRIP - 1);
    const size_t rest = (size_t)((n - whole) * size);
    uint64_t pad[2][CDP__STRIP];
    uint8_t *a = (uint8_t *)acc + whole * size;
    if (whole) k(acc, x, whole / CDP__STRIP);
    if (!rest) return;
    memset(pad, 0, sizeof pad);
    memcpy(pad[0], a, rest);
    if (!scalar) memcpy(pad[1], (const uint8_t *)x + whole * size, rest);
    k(pad[0], scalar ? x : pad[1], 1);
    memcpy(a, pad[0], rest);
}

/* The same for a narrow dtype, which is converted block by block; one number x is an f32. */
CDP__PRIVATE void cdp__kernel_run_narrow(
    cdp_dtype t, cdp__kernel k, void *acc, const void *x, uint64_t n, bool scalar) {
    const uint64_t size = cdp__dtype_row_of(t)->bytes;
    uint16_t pad[2][CDP__BLOCK];
    float wide[2][CDP__BLOCK];
    uint64_t at, part;
    for (at = 0; at < n; at += part) {
        uint8_t *to = (uint8_t *)acc + at * size;
        const uint8_t *from = (const uint8_t *)x + (scalar ? 0 : at * size);
        void *a = to;
        const void *b = from;
        part = cdp__min(n - at, CDP__BLOCK);
        if (part < CDP__BLOCK) {
            memset(pad, 0, sizeof pad);
            memcpy(pad[0], to, (size_t)(part * size));
            a = pad[0];
            if (!scalar) b = memcpy(pad[1], from, (size_t)(part * size));
        }
        cdp__widen_block(t, a, wide[0]);
        if (!scalar) cdp__widen_block(t, b, wide[1]);
        k(wide[0], scalar ? x : wide[1], CDP__BLOCK / CDP__STRIP);
        cdp__narrow_block(t, wide[0], a);
        if (a != to) memcpy(to, a, (size_t)(part * size));
    }
}

CDP__PRIVATE void cdp__kernel_apply(
    cdp_dtype t, cdp__kernel k, void *acc, const void *x, uint64_t n, bool scalar) {
    if (cdp__dtype_is_narrow(t))
        cdp__kernel_run_narrow(t, k, acc, x, n, scalar);
    else
        cdp__kernel_run(t, k, acc, x, n, scalar);
}

/* acc = acc OP x for n elements; with `swap`, acc = x OP acc. */
CDP__PRIVATE void cdp__reduce(
    cdp_dtype t, cdp_reduce_op op, bool swap, void *acc, const void *x, uint64_t n) {
    const cdp__kernel k = cdp__kernel_of(t, op, swap);
    const bool bits = (CDP__OPS_BITS >> op & 1) != 0 && t != CDP_DTYPE_BOOL;
    cdp__kernel_apply(
        bits ? CDP_DTYPE_U8 : t, k, acc, x, bits ? n * cdp__dtype_row_of(t)->bytes : n, false);
}

CDP__PRIVATE void cdp__divide(cdp_dtype t, void *data, uint64_t n, uint32_t by) {
    const float f = (float)by;
    const cdp_real d = (cdp_real)by;
    const uint64_t u = by;
    const cdp__dtype_row *row = cdp__dtype_row_of(t);
    const void *x = row->bytes == 8 ? (const void *)&u : (const void *)&by;
    if (row->kind == CDP__FLOAT) x = row->bytes == 8 ? (const void *)&d : (const void *)&f;
    cdp__kernel_apply(t, cdp__kernel_at(t, CDP__DO_DIVIDE), data, x, n, true);
}

CDP__PRIVATE void cdp__scale(cdp_dtype t, void *data, uint64_t n, cdp_real by) {
    const float f = (float)by;
    cdp__kernel_apply(t, cdp__kernel_at(t, CDP__DO_SCALE), data,
        cdp__dtype_row_of(t)->bytes == 8 ? (const void *)&by : (const void *)&f, n, true);
}

/* ---- >>dtype/convert: conversion between all dtypes (pure) ----------------------------------- */

/* Knows: the values of each dtype. Promises: one rounding, the same bits on every machine. */

/* A block of elements on its way from one dtype to another: as f32, f64, or integers of 64 bits.
   Blocks have a constant length, which gcc -O2 vectorises; an incomplete one is padded. */
typedef union cdp__carrier {
    float f[CDP__BLOCK];
    double d[CDP__BLOCK];
    int64_t i[CDP__BLOCK];
    uint64_t u[CDP__BLOCK];
} cdp__carrier;
typedef enum cdp__carried {
    CDP__AS_F32,
    CDP__AS_F64,
    CDP__AS_I64,
    CDP__AS_U64
} cdp__carried;

CDP__PRIVATE cdp__carried cdp__carried_as(cdp_dtype t) {
    const cdp__dtype_row *row = cdp__dtype_row_of(t);
    if (row->kind == CDP__FLOAT) return row->bytes == 8 ? CDP__AS_F64 : CDP__AS_F32;
    return row->kind == CDP__SIGNED ? CDP__AS_I64 : CDP__AS_U64;
}

#define CDP__EACH(to, value)         \
    for (i = 0; i < CDP__BLOCK; ++i) \
        to[i] = value;
#define CDP__LOAD(to, T)               \
    {                                  \
        const T *from = (const T *)in; \
        CDP__EACH(to, from[i]);        \
    }

CDP__PRIVATE void cdp__carry_in(cdp_dtype t, const void *in, cdp__carrier *c) {
    const cdp__dtype_row *row = cdp__dtype_row_of(t);
    uint32_t i;
    if (row->narrow)
        cdp__widen_block(t, in, c->f);
    else if (row->kind == CDP__FLOAT)
        memcpy(c, in, (size_t)CDP__BLOCK * row->bytes);
    else if (row->kind == CDP__TRUTH) {
        const uint8_t *from = (const uint8_t *)in;
        CDP__EACH(c->u, from[i] != 0);
    } else if (row->bytes == 1 && row->kind == CDP__SIGNED)
        CDP__LOAD(c->i, int8_t)
    else if (row->bytes == 2 && row->kind == CDP__SIGNED)
        CDP__LOAD(c->i, int16_t)
    else if (row->bytes == 4 && row->kind == CDP__SIGNED)
        CDP__LOAD(c->i, int32_t)
    else if (row->bytes == 1)
        CDP__LOAD(c->u, uint8_t)
    else if (row->bytes == 2)
        CDP__LOAD(c->u, uint16_t)
    else if (row->bytes == 4)
        CDP__LOAD(c->u, uint32_t)
    else
        memcpy(c, in, sizeof *c);
}

/* The integers that the integers of a dtype are limited to. */
CDP__PRIVATE int64_t cdp__between(int64_t v, int64_t low, int64_t high) {
    const int64_t w = v < low ? low : v;
    return w > high ? high : w;
}
#define CDP__STORE(T, from, value) \
    {                              \
        T *to = (T *)out;          \
        CDP__EACH(to, (T)value);   \
    }

CDP__PRIVATE void cdp__carry_out(cdp_dtype t, const cdp__carrier *c, void *out) {
    const cdp__dtype_row *row = cdp__dtype_row_of(t);
    uint32_t i;
    if (row->narrow)
        cdp__narrow_block(t, c->f, out);
    else if (row->kind == CDP__FLOAT)
        memcpy(out, c, (size_t)CDP__BLOCK * row->bytes);
    else if (row->kind == CDP__TRUTH)
        CDP__STORE(uint8_t, c->u, (c->u[i] != 0))
    else if (row->bytes == 1 && row->kind == CDP__SIGNED)
        CDP__STORE(int8_t, c->i, cdp__between(c->i[i], INT8_MIN, INT8_MAX))
    else if (row->bytes == 2 && row->kind == CDP__SIGNED)
        CDP__STORE(int16_t, c->i, cdp__between(c->i[i], INT16_MIN, INT16_MAX))
    else if (row->bytes == 4 && row->kind == CDP__SIGNED)
        CDP__STORE(int32_t, c->i, cdp__between(c->i[i], INT32_MIN, INT32_MAX))
    else if (row->bytes == 1)
        CDP__STORE(uint8_t, c->u, cdp__min(c->u[i], UINT8_MAX))
    else if (row->bytes == 2)
        CDP__STORE(uint16_t, c->u, cdp__min(c->u[i], UINT16_MAX))
    else if (row->bytes == 4)
        CDP__STORE(uint32_t, c->u, cdp__min(c->u[i], UINT32_MAX))
    else
        memcpy(out, c, sizeof *c);
}

/* Rounds to f32 "to odd": an inexact result gets an odd last bit. Rounding that once more, to fewer
   bits, gives what one rounding of the exact value gives. */
CDP__PRIVATE float cdp__odd_of_f64(double v) {
    float f = (float)v;
    const double back = (double)f;
    uint32_t bits;
    if (back == v || v != v) return f;
    memcpy(&bits, &f, 4);
    if ((back < 0 ? -back : back) > (v < 0 ? -v : v)) --bits; /* towards zero */
    bits |= 1u;
    memcpy(&f, &bits, 4);
    return f;
}
CDP__PRIVATE float cdp__odd_of_u64(uint64_t v) {
    float up = 1;
    while (v >> 24) {
        v = v >> 8 | ((v & 0xff) != 0);
        up *= 256;
    }
    return (float)v * up;
}
CDP__PRIVATE float cdp__odd_of_i64(int64_t v) {
    return v < 0 ? -cdp__odd_of_u64(0 - (uint64_t)v) : cdp__odd_of_u64((uint64_t)v);
}

/* The integer that a float is truncated to: the nearest one that exists, 0 for a NaN. */
CDP__PRIVATE int64_t cdp__i64_of(double v) {
    if (v != v) return 0;
    if (v >= 9223372036854775808.0) return INT64_MAX;
    return v < -9223372036854775808.0 ? INT64_MIN : (int64_t)v;
}
CDP__PRIVATE uint64_t cdp__u64_of(double v) {
    if (!(v > 0)) return 0;
    return v >= 18446744073709551616.0 ? UINT64_MAX : (uint64_t)v;
}

/* Changes how a block is carried. `odd`: it is rounded once more afterwards. */
CDP__PRIVATE void cdp__carry_f32(cdp__carrier *c, cdp__carried from, bool odd) {
    const cdp__carrier was = *c;
    uint32_t i;
    if (from == CDP__AS_F64 && odd)
        CDP__EACH(c->f, cdp__odd_of_f64(was.d[i]))
    else if (from == CDP__AS_F64)
        CDP__EACH(c->f, (float)was.d[i])
    else if (from == CDP__AS_I64 && odd)
        CDP__EACH(c->f, cdp__odd_of_i64(was.i[i]))
    else if (from == CDP__AS_I64)
        CDP__EACH(c->f, (float)was.i[i])
    else if (odd)
        CDP__EACH(c->f, cdp__odd_of_u64(was.u[i]))
    else
        CDP__EACH(c->f, (float)was.u[i])
}
CDP__PRIVATE void cdp__carry_f64(cdp__carrier *c, cdp__carried from) {
    const cdp__carrier was = *c;
    uint32_t i;
    if (from == CDP__AS_F32)
        CDP__EACH(c->d, (double)was.f[i])
    else if (from == CDP__AS_I64)
        CDP__EACH(c->d, (double)was.i[i])
    else
        CDP__EACH(c->d, (double)was.u[i])
}
CDP__PRIVATE void cdp__carry_int(cdp__carrier *c, cdp__carried from, bool has_sign) {
    uint32_t i;
    if (from == CDP__AS_F32) cdp__carry_f64(c, from);
    if (from <= CDP__AS_F64 && has_sign)
        CDP__EACH(c->i, cdp__i64_of(c->d[i]))
    else if (from <= CDP__AS_F64)
        CDP__EACH(c->u, cdp__u64_of(c->d[i]))
    else if (has_sign)
        CDP__EACH(c->i, (int64_t)cdp__min(c->u[i], INT64_MAX))
    else
        CDP__EACH(c->u, c->i[i] < 0 ? 0 : (uint64_t)c->i[i])
}
/* To bool: 1 for everything but 0, NaNs included. */
CDP__PRIVATE void cdp__carry_truth(cdp__carrier *c, cdp__carried from) {
    uint32_t i;
    if (from == CDP__AS_F32) cdp__carry_f64(c, from);
    if (from <= CDP__AS_F64) CDP__EACH(c->u, c->d[i] != 0)
}
#undef CDP__EACH
#undef CDP__LOAD
#undef CDP__STORE

CDP__PRIVATE void cdp__carry(cdp__carrier *c, cdp_dtype from, cdp_dtype to) {
    const cdp__carried was = cdp__carried_as(from), is = cdp__carried_as(to);
    if (cdp__dtype_row_of(to)->kind == CDP__TRUTH)
        cdp__carry_truth(c, was);
    else if (was == is)
        return;
    else if (is == CDP__AS_F32)
        cdp__carry_f32(c, was, cdp__dtype_row_of(to)->narrow);
    else if (is == CDP__AS_F64)
        cdp__carry_f64(c, was);
    else
        cdp__carry_int(c, was, is == CDP__AS_I64);
}

/* Converts `n` elements. Floats are rounded once, to nearest even; to integers, towards zero, and
   what is out of range becomes the nearest number that is not, a NaN 0. */
CDP__PRIVATE void cdp__convert(
    cdp_dtype from, const void *in, cdp_dtype to, void *out, uint64_t n) {
    const uint64_t from_size = cdp__dtype_row_of(from)->bytes;
    const uint64_t to_size = cdp__dtype_row_of(to)->bytes;
    const uint8_t *src = (const uint8_t *)in;
    uint8_t *dst = (uint8_t *)out;
    uint64_t rest[CDP__BLOCK];
    cdp__carrier c;
    for (; n >= CDP__BLOCK; n -= CDP__BLOCK) {
        cdp__carry_in(from, src, &c);
        cdp__carry(&c, from, to);
        cdp__carry_out(to, &c, dst);
        src += CDP__BLOCK * from_size;
        dst += CDP__BLOCK * to_size;
    }
    if (!n) return;
    memset(rest, 0, sizeof rest);
    memcpy(rest, src, (size_t)(n * from_size));
    cdp__carry_in(from, rest, &c);
    cdp__carry(&c, from, to);
    cdp__carry_out(to, &c, rest);
    memcpy(dst, rest, (size_t)(n * to_size));
}

/* Reads element i as an f64, or writes it. For a few elements. */
CDP__PRIVATE double cdp__number_get(cdp_dtype t, const void *at, uint64_t i) {
    double v;
    if (t == CDP_DTYPE_F64) return ((const double *)at)[i];
    if (t == CDP_DTYPE_F32 || t == CDP_DTYPE_DEFAULT) return (double)((const float *)at)[i];
    cdp__convert(t, (const uint8_t *)at + i * cdp__dtype_row_of(t)->bytes, CDP_DTYPE_F64, &v, 1);
    return v;
}
CDP__PRIVATE void cdp__number_put(cdp_dtype t, void *at, uint64_t i, double v) {
    if (t == CDP_DTYPE_F64)
        ((double *)at)[i] = v;
    else if (t == CDP_DTYPE_F32 || t == CDP_DTYPE_DEFAULT)
        ((float *)at)[i] = (float)v;
    else
        cdp__convert(CDP_DTYPE_F64, &v, t, (uint8_t *)at + i * cdp__dtype_row_of(t)->bytes, 1);
}

/* Stores the number that MAX (`high` false) or MIN never chooses over another one. */
CDP__PRIVATE void cdp__number_limit(cdp_dtype t, void *at, uint64_t i, bool high) {
    const double far = high ? (double)INFINITY : -(double)INFINITY;
    const bool truth = cdp__dtype_row_of(t)->kind == CDP__TRUTH;
    double got;
    cdp__number_put(t, at, i, truth ? high : far);
    got = cdp__number_get(t, at, i);
    if (got != got) cdp__number_put(t, at, i, high ? 448 : -448); /* f8e4m3 has no infinity */
}

#endif /* CDP__SHARED_IMPL_INCLUDED */

#if (defined(CDP_IMPLEMENTATION) || defined(CDP_CORE_IMPLEMENTATION)) && !defined(CDP_IMPL_INCLUDED)
#define CDP_IMPL_INCLUDED
#undef cdp_reduce /* a macro under CDP_NAMES_0_1 */

/* ---- >>base/basics: headers of the system, and small helpers --------------------------------- */

/* Knows: headers of the system. Promises: small helpers for all sections. */

#ifdef CDP_NO_OS
/* nothing of a system */
#elif defined(_WIN32)
#ifndef WIN32_LEAN_AND_MEAN
#define WIN32_LEAN_AND_MEAN
#endif
#ifndef NOMINMAX
#define NOMINMAX
#endif
#include <winsock2.h> /* before windows.h, always */
#include <ws2tcpip.h>
#include <windows.h>
#include <bcrypt.h>
#else
#include <dirent.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>
#ifndef CDP_NO_FILES
#include <stdio.h> /* rename() */
#include <sys/file.h>
#include <sys/stat.h>
#endif
#ifndef CDP_NO_THREADS
#include <pthread.h>
#include <sched.h>
#endif
#endif
#include <errno.h>
#include <stdarg.h>
#ifndef CDP_NO_OS
#include <time.h>
#endif
#ifdef __SSE2__
#include <emmintrin.h>
#endif
#ifndef CDP_NO_STDIO
#include <stdio.h>
#endif

#if !defined(CDP_NO_OS) && !defined(_WIN32) \
    && (!defined(CLOCK_MONOTONIC) || !defined(AI_NUMERICHOST))
#error "cdp.h: a system header came first under -std=c11: define _DEFAULT_SOURCE above it"
#endif

/* How this build computes with floating-point numbers, for cdp_describe(). Ranks agree in every bit
   whatever it says, since a sum is computed once and passed on or in one order everywhere as long
   as all ranks run one build; builds that differ in this may differ in the last bit. Some compilers
   fuse products and sums without defining __FP_FAST_FMA, so macros of the processor are checked,
   too. */
#if (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__ > 0) || defined(__FAST_MATH__) \
    || defined(__ASSOCIATIVE_MATH__) || defined(__RECIPROCAL_MATH__) || defined(_M_FP_FAST)
#define CDP__ARITHMETIC                                                                          \
    "fast-math (-Ofast, or parts of it): other builds may get other last bits, and NaNs may be " \
    "lost"
#elif FLT_EVAL_METHOD != 0
#define CDP__ARITHMETIC "wider than the types (x87): other builds may get other last bits"
#elif defined(__FP_FAST_FMAF) || defined(__FP_FAST_FMA) || defined(__FMA__) || defined(__FMA4__) \
    || defined(__ARM_FEATURE_FMA) || defined(__powerpc__) || defined(__riscv_flen)               \
    || defined(__s390__)
#define CDP__ARITHMETIC "IEEE 754; products and sums may be fused unless -ffp-contract=off"
#else
#define CDP__ARITHMETIC "IEEE 754, each operation rounded"
#endif

#define CDP__MS 1000000ull /* nanoseconds */
#define CDP__NEVER UINT64_MAX
#define CDP__MANY 64u   /* how many descriptors are served before the next look */
#define CDP__IOV_MAX 8u /* pieces of one call for a socket */

/* The files of the library, as numbers for cdp_error.file. Each file redefines CDP__HERE where
   its implementation begins. */
enum {
    CDP__FILE_NONE,
    CDP__FILE_CORE,
    CDP__FILE_STORE,
    CDP__FILE_TCP,
    CDP__FILE_NCCL,
    CDP__FILE_DTENSOR,
    CDP__FILE_RPC,
    CDP__FILE_MEM,
    CDP__FILE_ELASTIC
};
#define CDP__HERE CDP__FILE_CORE

/* As memcpy, but bypasses the caches where the processor can: for data too large to stay in them
   anyway. Call cdp__copied_past() before another thread may read the copy. */
#ifdef __SSE2__
CDP__PRIVATE void cdp__copy_past(uint8_t *to, const uint8_t *from, uint64_t bytes) {
    uint64_t i;
    if (((uintptr_t)to | bytes) % 16) {
        memcpy(to, from, (size_t)bytes);
        return;
    }
    for (i = 0; i < bytes; i += 16)
        _mm_stream_si128((__m128i *)(void *)(to + i),
            _mm_loadu_si128((const __m128i *)(const void *)(from + i)));
}
CDP__PRIVATE void cdp__copied_past(void) {
    _mm_sfence();
}
#else
CDP__PRIVATE void cdp__copy_past(uint8_t *to, const uint8_t *from, uint64_t bytes) {
    memcpy(to, from, (size_t)bytes);
}
CDP__PRIVATE void cdp__copied_past(void) {
}
#endif

/* The deadline `ms` milliseconds from now; CDP__NEVER for CDP_NO_TIMEOUT. */
CDP__PRIVATE uint64_t cdp__deadline(const cdp_os *os, uint32_t ms) {
    return ms == CDP_NO_TIMEOUT ? CDP__NEVER : os->now_ns(os->user) + ms * CDP__MS;
}

CDP__PRIVATE void cdp__sleep_until(const cdp_os *os, uint64_t deadline_ns) {
    if (os->sleep_until) os->sleep_until(os->user, deadline_ns);
}

CDP__PRIVATE void *cdp__alloc(const cdp_os *os, uint64_t bytes) {
    return os->alloc(os->user, bytes ? bytes : 1);
}

CDP__PRIVATE CDP__ONE_COPY void *cdp__alloc_zero(const cdp_os *os, uint64_t bytes) {
    void *p = cdp__alloc(os, bytes);
    if (p) memset(p, 0, (size_t)bytes);
    return p;
}

CDP__PRIVATE void cdp__free(const cdp_os *os, void *p) {
    os->release(os->user, p); /* which accepts NULL */
}

/* What this thread's next request for a backend's memory is for: the label that cdp_allocator
   gets. */
CDP__PRIVATE const char **cdp__purpose(void) {
    static CDP__THREAD_LOCAL const char *text;
    return &text;
}

/* ---- >>os/words: error texts of the system, and the date ------------------------------------- */

/* Knows: errors of the C library and of Winsock, the system's calendar. Promises: a text for every
   errno. */

#ifdef CDP_NO_OS
CDP__PRIVATE const char *cdp__os_error_text(int err) {
    (void)err;
    return "error of the system";
}

/* There is no calendar. */
CDP__PRIVATE uint64_t cdp__os_date_us(void) {
    return 0;
}

CDP__PRIVATE uint32_t cdp__os_user_number(void) {
    return 0;
}

CDP__PRIVATE uint32_t cdp__os_parent_number(void) {
    return 0;
}

CDP__PRIVATE const char *cdp__os_temporary(void) {
    return ".";
}
#elif defined(_WIN32)
/* A Winsock error as an errno value, with a text: some C libraries have none for these errors. */
typedef struct cdp__os_reason {
    int said, err;
    const char *text;
} cdp__os_reason;

CDP__PRIVATE const cdp__os_reason *cdp__os_reason_at(uint32_t i) {
    static const cdp__os_reason known[] = {
        {WSAEACCES, EACCES, "permission denied"},
        {WSAEADDRINUSE, EADDRINUSE, "address in use"},
        {WSAEADDRNOTAVAIL, EADDRNOTAVAIL, "no such address on this machine"},
        {WSAEAFNOSUPPORT, EAFNOSUPPORT, "this kind of address is not supported"},
        {WSAECONNABORTED, ECONNABORTED, "connection ended by this machine"},
        {WSAECONNREFUSED, ECONNREFUSED, "connection refused"},
        {WSAECONNRESET, ECONNRESET, "connection reset by the other end"},
        {WSAEHOSTUNREACH, EHOSTUNREACH, "no route to that machine"},
        {WSAEINTR, EINTR, "interrupted"},
        {WSAEINVAL, EINVAL, "invalid argument"},
        {WSAEMFILE, EMFILE, "too many sockets"},
        {WSAENETDOWN, ENETDOWN, "the network is down"},
        {WSAENETRESET, ENETRESET, "connection lost"},
        {WSAENETUNREACH, ENETUNREACH, "network unreachable"},
        {WSAENOBUFS, ENOBUFS, "no room for more in the system"},
        {WSAENOTCONN, ENOTCONN, "not connected"},
        {WSAENOTSOCK, ENOTSOCK, "not a socket"},
        {WSAESHUTDOWN, EPIPE, "connection was ended here"},
        {WSAETIMEDOUT, ETIMEDOUT, "timed out"},
        {WSAEWOULDBLOCK, EAGAIN, "not now"},
    };
    return i < sizeof known / sizeof known[0] ? &known[i] : NULL;
}

CDP__PRIVATE const char *cdp__os_error_text(int err) {
    const cdp__os_reason *r;
    uint32_t i;
    for (i = 0; (r = cdp__os_reason_at(i)) != NULL; ++i)
        if (r->err == err) return r->text;
    return strerror(err);
}

/* Windows counts units of 100 ns since 1601. */
CDP__PRIVATE uint64_t cdp__os_date_us(void) {
    FILETIME t;
    GetSystemTimeAsFileTime(&t);
    return ((uint64_t)t.dwHighDateTime << 32 | t.dwLowDateTime) / 10 - 11644473600000000ull;
}

/* Not needed: on Windows every user has a temporary folder of their own. */
CDP__PRIVATE uint32_t cdp__os_user_number(void) {
    return 0;
}

CDP__PRIVATE uint32_t cdp__os_parent_number(void) {
    return 0;
}

CDP__PRIVATE const char *cdp__os_temporary(void) {
    const char *dir = getenv("TEMP");
    return dir && *dir ? dir : ".";
}
#else
CDP__PRIVATE const char *cdp__os_error_text(int err) {
    return strerror(err);
}

CDP__PRIVATE uint32_t cdp__os_user_number(void) {
    return (uint32_t)getuid();
}

CDP__PRIVATE uint32_t cdp__os_parent_number(void) {
    return (uint32_t)getppid();
}

CDP__PRIVATE const char *cdp__os_temporary(void) {
    const char *dir = getenv("TMPDIR");
    return dir && *dir ? dir : "/tmp";
}

CDP__PRIVATE uint64_t cdp__os_date_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}
#endif

/* ---- >>base/text: errors, log ---------------------------------------------------------------- */

/* Knows: this thread's last error, loggers. Promises: a text that is too long is cut, and always
   ends with a zero. */

CDP__PRIVATE CDP__ONE_COPY cdp_error *cdp__error_slot(void) {
    static CDP__THREAD_LOCAL cdp_error slot;
    return &slot;
}

CDP_API const cdp_error *cdp_last_error(void) {
    return cdp__error_slot();
}

CDP__PRIVATE void cdp__error_clear(cdp_error *e, cdp_status status) {
    memset(e, 0, sizeof *e);
    e->status = status;
    e->rank = e->peer = e->origin = -1;
    e->file = "";
}

CDP__PRIVATE const char *cdp__file_name(uint32_t at) {
    static const char names[9][16] = {"", "cdp.h", "cdp_store.h", "cdp_tcp.h", "cdp_nccl.h",
        "cdp_dtensor.h", "cdp_rpc.h", "cdp_mem.h", "cdp_elastic.h"};
    return names[cdp__min(at >> 8 & 15, 8)];
}

/* Packs status, file and line of a call into one number: hundreds of calls report errors, and
   each compiles to less code with one small constant than with three. */
#define CDP__AT(status) ((uint32_t)__LINE__ << 12 | CDP__HERE << 8 | (uint8_t)(status))

CDP__PRIVATE cdp_status cdp__status_at(uint32_t at) {
    return (cdp_status)(int8_t)(at & 255);
}

CDP__PRIVATE void cdp__error_set_v(
    uint32_t at, int32_t peer, int32_t sys_errno, const char *f, va_list ap) {
    cdp_error e; /* built in a copy: an argument may be the text of the last error */
    cdp__text t = cdp__text_of(e.text, sizeof e.text);
    cdp__error_clear(&e, cdp__status_at(at));
    e.file = cdp__file_name(at);
    e.line = at >> 12;
    e.peer = peer;
    e.sys_errno = sys_errno;
    cdp__text_add_v(&t, f, ap);
    if (sys_errno) cdp__text_add(&t, ": %s (errno %d)", cdp__os_error_text(sys_errno), sys_errno);
    *cdp__error_slot() = e;
}

CDP_API cdp_status cdp_error_set(
    cdp_status status, int32_t peer, int32_t sys_errno, const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    cdp__error_set_v((uint8_t)status, peer, sys_errno, format, ap);
    va_end(ap);
    return status;
}

CDP__PRIVATE CDP__COLD CDP__PRINTF(4, 5) cdp_status
    cdp__error_of(uint32_t at, int32_t peer, int32_t sys_errno, const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    cdp__error_set_v(at, peer, sys_errno, format, ap);
    va_end(ap);
    return cdp__status_at(at);
}

CDP__PRIVATE CDP__COLD CDP__PRINTF(2, 3) cdp_status
    cdp__error_at(uint32_t at, const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    cdp__error_set_v(at, -1, 0, format, ap);
    va_end(ap);
    return cdp__status_at(at);
}

CDP__PRIVATE cdp_status cdp__nomem_at(uint32_t at, const char *what, uint64_t bytes) {
    return cdp__error_at(at, "out of memory: %s needs %llu bytes", what, (unsigned long long)bytes);
}

/* In builds without texts, an error holds only the file and line that reported it. */
CDP__PRIVATE cdp_status cdp__bare_of(uint32_t at, int32_t peer, int32_t sys_errno) {
    return cdp__error_of(at, peer, sys_errno, "%s:%u", cdp__file_name(at), (unsigned)(at >> 12));
}

CDP__PRIVATE cdp_status cdp__bare_at(uint32_t at) {
    return cdp__bare_of(at, -1, 0);
}

/* Records an error that has no peer and no errno, mostly a mistake of the caller. */
#ifdef CDP_NO_LOG_STRINGS
#define cdp__fail(status, ...) (0 ? cdp__error_at(0, __VA_ARGS__) : cdp__bare_at(CDP__AT(status)))
#define cdp__fail_peer(status, peer, err, ...) \
    (0 ? cdp__error_at(0, __VA_ARGS__) : cdp__bare_of(CDP__AT(status), (int32_t)(peer), (err)))
#define cdp__fail_nomem(what, bytes) \
    (0 ? cdp__nomem_at(0, (what), (bytes)) : cdp__bare_at(CDP__AT(CDP_ERR_NOMEM)))
#else
#define cdp__fail(status, ...) cdp__error_at(CDP__AT(status), __VA_ARGS__)
#define cdp__fail_peer(status, peer, err, ...) \
    cdp__error_of(CDP__AT(status), (int32_t)(peer), (err), __VA_ARGS__)
#define cdp__fail_nomem(what, bytes) cdp__nomem_at(CDP__AT(CDP_ERR_NOMEM), (what), (bytes))
#endif

CDP_API CDP__COLD const char *cdp_status_name(cdp_status status) {
    switch (status) {
    case CDP_OK: return "OK";
    case CDP_PENDING: return "PENDING";
    case CDP_ERR_INVALID: return "INVALID";
    case CDP_ERR_NOMEM: return "NOMEM";
    case CDP_ERR_TIMEOUT: return "TIMEOUT";
    case CDP_ERR_PEER_LOST: return "PEER_LOST";
    case CDP_ERR_ABORTED: return "ABORTED";
    case CDP_ERR_MISMATCH: return "MISMATCH";
    case CDP_ERR_UNSUPPORTED: return "UNSUPPORTED";
    case CDP_ERR_IO: return "IO";
    case CDP_ERR_STORE: return "STORE";
    case CDP_ERR_STATE: return "STATE";
    case CDP_ERR_INTERNAL: return "INTERNAL";
    case CDP_ERR_REMOTE: return "REMOTE";
    case CDP_ERR_BUSY: return "BUSY";
    }
    return "?";
}

CDP_API int cdp_print_error(void *file) {
#ifndef CDP_NO_STDIO
    const cdp_error *e = cdp_last_error();
    FILE *to = file ? (FILE *)file : stderr;
    fprintf(to, "cdp: %s: %s\n", cdp_status_name(e->status), e->text);
    fflush(to);
#else
    (void)file;
#endif
    return 1;
}

CDP__PRIVATE void cdp__log_text(
    const cdp_logger *l, cdp_log_level level, int32_t rank, const char *text) {
    if (l->func) {
        l->func(level, text, rank, l->user);
        return;
    }
#ifndef CDP_NO_STDIO
    if (rank >= 0)
        fprintf(stderr, "cdp: rank %d: %s\n", (int)rank, text);
    else
        fprintf(stderr, "cdp: %s\n", text);
#endif
}

CDP__PRIVATE CDP__PRINTF(4, 5) void cdp__log_at(
    const cdp_logger *l, cdp_log_level level, int32_t rank, const char *f, ...) {
    char text[CDP_ERROR_TEXT + 88];
    cdp__text t = cdp__text_of(text, sizeof text);
    va_list ap;
    if (level > cdp__def(l->level, CDP_LOG_WARN) || l->level == CDP_LOG_SILENT) return;
    va_start(ap, f);
    cdp__text_add_v(&t, f, ap);
    va_end(ap);
    cdp__log_text(l, level, rank, text);
}
#ifdef CDP_NO_LOG_STRINGS
#define cdp__log(logger, level, rank, ...) ((void)(logger), (void)(rank))
#else
#define cdp__log(logger, level, rank, ...) \
    cdp__log_at((logger), (level), (int32_t)(rank), __VA_ARGS__)
#endif

/* ---- >>os/addresses: socket addresses on POSIX and Windows ----------------------------------- */

/* Knows: socket address structures of POSIX and Winsock, and getaddrinfo(). Promises: the same
   addresses on all systems. */

#ifndef CDP_NO_OS /* what the default cdp_os is made of, to the end of >>os/linux */
typedef union cdp__sockaddr {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    struct sockaddr_storage room;
} cdp__sockaddr;

CDP__PRIVATE socklen_t cdp__os_to_native(const cdp_addr *a, cdp__sockaddr *out) {
    memset(out, 0, sizeof *out);
    if (a->family == 6) {
        out->v6.sin6_family = AF_INET6;
        out->v6.sin6_port = htons(a->port);
        out->v6.sin6_scope_id = a->scope;
        memcpy(&out->v6.sin6_addr, a->ip, 16);
        return sizeof out->v6;
    }
    out->v4.sin_family = AF_INET;
    out->v4.sin_port = htons(a->port);
    memcpy(&out->v4.sin_addr, a->ip, 4);
    return sizeof out->v4;
}

CDP__PRIVATE void cdp__os_from_native(const cdp__sockaddr *s, cdp_addr *out) {
    memset(out, 0, sizeof *out);
    /* an IPv4 address, as a dual-stack socket reports it */
    if (s->any.sa_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&s->v6.sin6_addr)) {
        out->family = 4;
        out->port = ntohs(s->v6.sin6_port);
        memcpy(out->ip, (const uint8_t *)&s->v6.sin6_addr + 12, 4);
    } else if (s->any.sa_family == AF_INET6) {
        out->family = 6;
        out->port = ntohs(s->v6.sin6_port);
        out->scope = s->v6.sin6_scope_id;
        memcpy(out->ip, &s->v6.sin6_addr, 16);
    } else if (s->any.sa_family == AF_INET) {
        out->family = 4;
        out->port = ntohs(s->v4.sin_port);
        memcpy(out->ip, &s->v4.sin_addr, 4);
    }
}

/* An address with a zone ("fe80::1%eth0") is resolved without asking a name server. */
CDP__PRIVATE CDP__COLD int32_t cdp__os_getaddrinfo(const char *host, cdp_addr *out, uint32_t max) {
    struct addrinfo hints, *list = NULL, *it;
    uint32_t n = 0;
    int rc;
    memset(&hints, 0, sizeof hints);
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = strchr(host, ':') ? AI_NUMERICHOST : 0;
    rc = getaddrinfo(host, NULL, &hints, &list);
    /* EAI_AGAIN: no name server answered, so the name may still exist */
    if (rc != 0) return rc == EAI_AGAIN ? -EAGAIN : -ENOENT;
    for (it = list; it && n < max; it = it->ai_next) {
        cdp__sockaddr s;
        if ((it->ai_family != AF_INET && it->ai_family != AF_INET6) || it->ai_addrlen > sizeof s)
            continue;
        memcpy(&s, it->ai_addr, it->ai_addrlen);
        cdp__os_from_native(&s, &out[n++]);
    }
    freeaddrinfo(list);
    return n ? (int32_t)n : -ENOENT;
}

/* True if `name` begins with one of the comma-separated words of `list`. A leading ^ inverts the
   result. */
CDP__PRIVATE bool cdp__interface_chosen(const char *list, const char *name) {
    const bool others = list && *list == '^';
    const char *word = list && others ? list + 1 : list, *end;
    for (; word && *word; word = *end ? end + 1 : end) {
        for (end = word; *end && *end != ','; ++end) {
        }
        if (end > word && strncmp(name, word, (size_t)(end - word)) == 0) return !others;
    }
    return !list || others;
}

#endif /* CDP_NO_OS */

/* ---- >>os/posix: memory, clock, random numbers, sockets -------------------------------------- */

/* Knows: system calls that POSIX has. Promises: what cdp_os says of memory, time, sockets and
   addresses; errors are negative errno values. */

#ifndef CDP_NO_OS /* what the default cdp_os is made of, to the end of >>os-linux */

#ifndef _WIN32
#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0 /* macOS: SO_NOSIGPIPE is set on the socket instead */
#endif

CDP__PRIVATE void *cdp__os_alloc(void *user, uint64_t bytes) {
    void *p = NULL;
    (void)user;
    if (bytes > SIZE_MAX) return NULL;
    return posix_memalign(&p, 64, (size_t)bytes) == 0 ? p : NULL;
}

CDP__PRIVATE void cdp__os_release(void *user, void *p) {
    (void)user;
    free(p);
}

CDP__PRIVATE uint64_t cdp__os_now(void *user) {
    struct timespec t;
    (void)user;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

#ifdef __linux__
#include <sys/syscall.h>
#endif

/* Random bytes from the kernel, without a descriptor. Returns how many; 0 if there is no such
   call. */
CDP__PRIVATE uint64_t cdp__os_getrandom(uint8_t *dst, uint64_t bytes) {
    uint64_t done = 0;
#ifdef SYS_getrandom
    while (done < bytes) {
        const long n = syscall(SYS_getrandom, dst + done, (size_t)(bytes - done), 0u);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        done += (uint64_t)n;
    }
#else
    (void)dst;
    (void)bytes;
#endif
    return done;
}

CDP__PRIVATE cdp_status cdp__os_random(void *user, void *dst, uint64_t bytes) {
    uint8_t *p = (uint8_t *)dst;
    uint64_t done = cdp__os_getrandom(p, bytes);
    const int fd = done < bytes ? open("/dev/urandom", O_RDONLY | O_CLOEXEC) : -1;
    (void)user;
    while (fd >= 0 && done < bytes) {
        const ssize_t n = read(fd, p + done, (size_t)(bytes - done));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        done += (uint64_t)n;
    }
    if (fd >= 0) close(fd);
    if (done == bytes) return CDP_OK;
    return cdp__fail_peer(CDP_ERR_IO, -1, errno, "the system gives no random bytes");
}

/* Returns early when a signal arrives. */
CDP__PRIVATE void cdp__os_sleep_until(void *user, uint64_t deadline_ns) {
    const uint64_t now = cdp__os_now(user), left = deadline_ns > now ? deadline_ns - now : 0;
    struct timespec t;
    if (!left) return;
    t.tv_sec = (time_t)(cdp__min(left, 1000000 * 1000000000ull) / 1000000000ull);
    t.tv_nsec = (long)(left % 1000000000ull);
    (void)nanosleep(&t, NULL);
}

CDP__PRIVATE CDP__COLD uint32_t cdp__os_addresses(
    void *user, const char *interfaces, cdp_addr *out, uint32_t max) {
    struct ifaddrs *list = NULL, *it;
    uint32_t n = 0;
    (void)user;
    if (getifaddrs(&list) != 0) return 0;
    for (it = list; it && n < max; it = it->ifa_next) {
        const int family = it->ifa_addr ? it->ifa_addr->sa_family : AF_UNSPEC;
        cdp__sockaddr s;
        if ((family != AF_INET && family != AF_INET6)
            || !cdp__interface_chosen(interfaces, it->ifa_name))
            continue;
        memcpy(&s, it->ifa_addr, family == AF_INET ? sizeof s.v4 : sizeof s.v6);
        cdp__os_from_native(&s, &out[n]);
        out[n++].port = 0;
    }
    freeifaddrs(list);
    return n;
}

/* Gives a socket the options that the library expects: non-blocking, not inherited, no SIGPIPE,
   no Nagle. The keepalive detects a host that disappears while the connection is idle;
   cdp__os_unanswered detects the others. (TCP_USER_TIMEOUT would also close connections to a
   program that does not read for that long although its host answers.) */
CDP__PRIVATE CDP__COLD int cdp__os_prepare_socket(int fd) {
    const int on = 1;
    int set = 0;
    socklen_t len = sizeof set;
#ifdef SO_NOSIGPIPE
    setsockopt(fd, SOL_SOCKET, SO_NOSIGPIPE, &on, sizeof on);
#endif
    /* an accepted socket has inherited all options from its listener */
    if (getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &set, &len) == 0 && set) return fd;
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
#if defined(__linux__) && defined(TCP_KEEPIDLE)
    {
        const int idle_s = 10, every_s = 5, probes = 4;
#ifdef TCP_RTO_MAX_MS
        const int rto_max = TCP_RTO_MAX_MS;
#else
        const int rto_max = 44; /* since Linux 6.15; older kernels refuse it */
#endif
        const int rto_max_ms = 5000;
        setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
        setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every_s, sizeof every_s);
        setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
        /* probe the closed window of a peer at least every 5 s; the default rises to 120 s */
        setsockopt(fd, IPPROTO_TCP, rto_max, &rto_max_ms, sizeof rto_max_ms);
    }
#endif
    /* set last: marks a socket that has all options, see above */
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
}

/* For descriptors that could not get these flags at creation. A blocking descriptor could
   outlast any deadline. */
CDP__PRIVATE int cdp__os_set_flags(int fd) {
    const int now = fcntl(fd, F_GETFL);
    if (now < 0 || fcntl(fd, F_SETFL, now | O_NONBLOCK) != 0) return -errno;
    return fcntl(fd, F_SETFD, FD_CLOEXEC) == 0 ? 0 : -errno;
}

/* Sets the flags on systems that cannot do it at creation. Returns the descriptor, or -errno
   after closing it. */
CDP__PRIVATE int cdp__os_protect(int fd) {
    const int err = fd < 0 ? -errno : cdp__os_set_flags(fd);
    if (fd >= 0 && err < 0) close(fd);
    return err < 0 ? err : fd;
}

CDP__PRIVATE int32_t cdp__os_adopt(void *user, int32_t fd) {
    const int32_t err = cdp__os_set_flags(fd);
    (void)user;
    if (err == 0) cdp__os_prepare_socket(fd);
    return err;
}

/* Sets close-on-exec at creation where the system can: another thread may fork and exec at any
   moment. */
CDP__PRIVATE int cdp__os_socket(int family) {
#ifdef SOCK_CLOEXEC
    const int made = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const int fd = made < 0 ? -errno : made;
#else
    const int fd = cdp__os_protect(socket(family, SOCK_STREAM, 0));
#endif
    return fd < 0 ? fd : cdp__os_prepare_socket(fd);
}

/* The beginning of the kernel's struct tcp_info. Some C libraries declare it only for programs
   that ask for GNU extensions. */
typedef struct cdp__tcp_info {
    uint8_t state, congestion, retransmits, probes, more[4];
    uint32_t rto, ato, mss[2], unacked, queues[4], last_data_sent, last_ack_sent, last_data_recv,
        last_ack_recv; /* ms */
} cdp__tcp_info;

/* Nanoseconds since the peer's host last acknowledged anything; 0 if no acknowledgement is due. A
   live host acknowledges retransmitted data and probes of a closed window, so the age counts
   only while data is unacknowledged or at least two probes were lost. */
CDP__PRIVATE uint64_t cdp__os_unanswered(void *user, int32_t fd) {
#if defined(__linux__) && defined(TCP_INFO)
    cdp__tcp_info i;
    socklen_t len = sizeof i;
    (void)user;
    memset(&i, 0, sizeof i);
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &i, &len) != 0) return 0;
    if (!i.unacked && i.probes < 2) return 0;
    return i.last_ack_recv * CDP__MS;
#else
    (void)user;
    (void)fd;
    return 0;
#endif
}

CDP__PRIVATE uint64_t cdp__os_descriptor_limit(void *user) {
    struct rlimit most;
    (void)user;
    if (getrlimit(RLIMIT_NOFILE, &most) != 0 || most.rlim_cur == RLIM_INFINITY) return 0;
    return (uint64_t)most.rlim_cur;
}

CDP__PRIVATE int32_t cdp__os_local_addr(void *user, int32_t fd, cdp_addr *out) {
    cdp__sockaddr s;
    socklen_t len = sizeof s;
    (void)user;
    if (getsockname(fd, &s.any, &len) != 0) return -errno;
    cdp__os_from_native(&s, out);
    return 0;
}

CDP__PRIVATE CDP__COLD int32_t cdp__os_listen(void *user, const cdp_addr *at, cdp_addr *bound) {
    cdp__sockaddr s;
    const socklen_t len = cdp__os_to_native(at, &s);
    const int on = 1, off = 0, fd = cdp__os_socket(s.any.sa_family);
    if (fd < 0) return fd;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    /* let "::" accept IPv4, too */
    if (at->family == 6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (bind(fd, &s.any, len) != 0 || listen(fd, SOMAXCONN) != 0) {
        const int err = errno;
        close(fd);
        return -err;
    }
    cdp__os_local_addr(user, fd, bound);
    return fd;
}

/* Connections inside one host need no congestion control, and pacing (bbr) made 16 MiB take a
   sixth longer. */
CDP__PRIVATE CDP__COLD void cdp__os_tune(int fd, const cdp__sockaddr *peer) {
#if defined(__linux__) && defined(TCP_CONGESTION)
    cdp_addr a;
    cdp__os_from_native(peer, &a);
    if (a.family == 4 ? a.ip[0] == 127
                      : a.family == 6 && a.ip[15] == 1 && !memcmp(a.ip, a.ip + 1, 14))
        setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
#else
    (void)fd;
    (void)peer;
#endif
}

/* Accepts a connection, non-blocking and close-on-exec; returns the descriptor or -errno. */
CDP__PRIVATE int cdp__os_accept_one(int listener, cdp__sockaddr *from) {
    socklen_t len = sizeof *from;
#if defined(__linux__) && defined(SYS_accept4) && defined(SOCK_CLOEXEC)
    /* the C library declares accept4() only with _GNU_SOURCE */
    const int fd =
        (int)syscall(SYS_accept4, listener, &from->any, &len, SOCK_CLOEXEC | SOCK_NONBLOCK);
    return fd < 0 ? -errno : fd;
#elif !defined(__linux__) && defined(SOCK_CLOEXEC)
    const int fd = accept4(listener, &from->any, &len, SOCK_CLOEXEC | SOCK_NONBLOCK);
    return fd < 0 ? -errno : fd;
#else
    return cdp__os_protect(accept(listener, &from->any, &len));
#endif
}

CDP__PRIVATE int32_t cdp__os_accept(void *user, int32_t listener, cdp_addr *from) {
    cdp__sockaddr s;
    int fd;
    (void)user;
    do
        fd = cdp__os_accept_one(listener, &s);
    while (fd == -EINTR || fd == -ECONNABORTED);
    if (fd < 0) return fd == -EWOULDBLOCK ? -EAGAIN : fd;
    cdp__os_prepare_socket(fd);
    cdp__os_tune(fd, &s);
    cdp__os_from_native(&s, from);
    return fd;
}

CDP__PRIVATE CDP__COLD int32_t cdp__os_connect(void *user, const cdp_addr *to) {
    cdp__sockaddr s;
    const socklen_t len = cdp__os_to_native(to, &s);
    const int fd = cdp__os_socket(s.any.sa_family);
    (void)user;
    if (fd < 0) return fd;
    cdp__os_tune(fd, &s);
    if (connect(fd, &s.any, len) != 0 && errno != EINPROGRESS && errno != EINTR) {
        const int err = errno;
        close(fd);
        return -err;
    }
    return fd;
}

CDP__PRIVATE int32_t cdp__os_connect_result(void *user, int32_t fd) {
    int err = 0;
    socklen_t len = sizeof err;
    cdp__sockaddr s;
    socklen_t slen = sizeof s;
    (void)user;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &len) != 0) return -errno;
    if (err) return -err;
    return getpeername(fd, &s.any, &slen) == 0 ? 0 : -errno;
}

CDP__PRIVATE uint32_t cdp__os_iov(const cdp_iov *v, uint32_t n, struct iovec *out) {
    uint32_t i;
    for (i = 0; i < n && i < CDP__IOV_MAX; ++i) {
        out[i].iov_base = v[i].data;
        out[i].iov_len = (size_t)v[i].bytes;
    }
    return i;
}

/* A msghdr for these pieces; `out` is its array. The type of msg_iovlen depends on the system: int,
   unsigned or size_t. */
CDP__PRIVATE struct msghdr cdp__os_message(const cdp_iov *v, uint32_t n, struct iovec *out) {
    struct msghdr m;
    uint32_t i = cdp__os_iov(v, n, out);
    memset(&m, 0, sizeof m);
    m.msg_iov = out;
    for (; i; --i)
        ++m.msg_iovlen;
    return m;
}

CDP__PRIVATE int64_t cdp__os_send(void *user, int32_t fd, const cdp_iov *v, uint32_t n) {
    struct iovec iov[CDP__IOV_MAX];
    struct msghdr m = cdp__os_message(v, n, iov);
    ssize_t r;
    (void)user;
    /* send() is cheaper than sendmsg() for a single piece */
    do
        r = n == 1 ? send(fd, v->data, (size_t)v->bytes, MSG_NOSIGNAL)
                   : sendmsg(fd, &m, MSG_NOSIGNAL);
    while (r < 0 && errno == EINTR);
    if (r >= 0) return r;
    return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -errno;
}

CDP__PRIVATE int64_t cdp__os_recv(void *user, int32_t fd, const cdp_iov *v, uint32_t n) {
    struct iovec iov[CDP__IOV_MAX];
    struct msghdr m = cdp__os_message(v, n, iov);
    ssize_t r;
    (void)user;
    do
        r = n == 1 ? recv(fd, v->data, (size_t)v->bytes, 0) : recvmsg(fd, &m, 0);
    while (r < 0 && errno == EINTR);
    if (r > 0) return r;
    if (r == 0) return CDP_IO_EOF;
    return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -errno;
}

CDP__PRIVATE void cdp__os_close(void *user, int32_t fd) {
    (void)user;
    close(fd);
}

CDP__PRIVATE void cdp__os_end_sending(void *user, int32_t fd) {
    (void)user;
    (void)shutdown(fd, SHUT_WR); /* fails on a broken connection, harmlessly */
}

#ifdef __linux__
#include <sys/eventfd.h>
CDP__PRIVATE int32_t cdp__os_wake_open(void *user, int32_t fd[2]) {
    (void)user;
    fd[0] = fd[1] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return fd[0] < 0 ? -errno : 0;
}
#else
/* A pipe: POSIX has no other way for one thread to wake another from poll(). */
CDP__PRIVATE int32_t cdp__os_wake_open(void *user, int32_t fd[2]) {
    int p[2];
    (void)user;
    if (pipe(p) != 0) return -errno;
    fd[0] = cdp__os_protect(p[0]);
    fd[1] = cdp__os_protect(p[1]);
    if (fd[0] >= 0 && fd[1] >= 0) return 0;
    if (fd[0] >= 0) close(fd[0]);
    if (fd[1] >= 0) close(fd[1]);
    return fd[0] < 0 ? fd[0] : fd[1];
}
#endif

CDP__PRIVATE void cdp__os_wake_set(void *user, int32_t fd) {
    const uint64_t one = 1;
    (void)user;
    /* if the pipe is full, the reader wakes anyway */
    while (write(fd, &one, sizeof one) < 0 && errno == EINTR) {
    }
}

CDP__PRIVATE void cdp__os_wake_clear(void *user, int32_t fd) {
    char sink[64];
    (void)user;
    /* one read() empties an eventfd; a pipe may need several */
    while (read(fd, sink, sizeof sink) == (ssize_t)sizeof sink) {
    }
}

#endif /* not Windows */

#endif /* CDP_NO_OS */

/* ---- >>os/windows: memory, clock, random numbers, sockets ------------------------------------ */

/* Knows: Win32 and Winsock. Promises: what cdp_os says of memory, time, sockets and addresses;
   errors are negative errno values. A socket fits an int32_t because Windows' handles are small
   numbers. */

#ifndef CDP_NO_OS /* what the default cdp_os is made of, to the end of >>os-linux */

#ifdef _WIN32
CDP__PRIVATE void *cdp__os_alloc(void *user, uint64_t bytes) {
    (void)user;
    return bytes > SIZE_MAX ? NULL : _aligned_malloc((size_t)bytes, 64);
}

CDP__PRIVATE void cdp__os_release(void *user, void *p) {
    (void)user;
    _aligned_free(p);
}

CDP__PRIVATE uint64_t cdp__os_now(void *user) {
    LARGE_INTEGER ticks, per_s;
    uint64_t t, f;
    (void)user;
    QueryPerformanceCounter(&ticks);
    QueryPerformanceFrequency(&per_s);
    t = (uint64_t)ticks.QuadPart;
    f = (uint64_t)per_s.QuadPart;
    return t / f * 1000000000ull + t % f * 1000000000ull / f;
}

CDP__PRIVATE cdp_status cdp__os_random(void *user, void *dst, uint64_t bytes) {
    uint8_t *p = (uint8_t *)dst;
    (void)user;
    while (bytes) {
        const ULONG n = (ULONG)cdp__min(bytes, 1u << 20);
        if (BCryptGenRandom(NULL, p, n, BCRYPT_USE_SYSTEM_PREFERRED_RNG) != 0)
            return cdp__fail(CDP_ERR_IO, "the system gives no random bytes");
        p += n;
        bytes -= n;
    }
    return CDP_OK;
}

/* Waits below one millisecond are not slept, because Windows would sleep longer. */
CDP__PRIVATE void cdp__os_sleep_until(void *user, uint64_t deadline_ns) {
    const uint64_t now = cdp__os_now(user), left = deadline_ns > now ? deadline_ns - now : 0;
    if (left >= CDP__MS)
        Sleep((DWORD)cdp__min(left / CDP__MS, 1u << 30));
    else if (left)
        SwitchToThread();
}

/* The last Winsock error, as an errno value. */
CDP__PRIVATE int cdp__os_socket_error(void) {
    const int said = WSAGetLastError();
    const cdp__os_reason *r;
    uint32_t i;
    for (i = 0; (r = cdp__os_reason_at(i)) != NULL; ++i)
        if (r->said == said) return r->err;
    return EIO;
}

/* Winsock must be started before its first use. It is never stopped: it ends with the process. */
static BOOL CALLBACK cdp__os_start_winsock(PINIT_ONCE once, PVOID arg, PVOID *out) {
    WSADATA data;
    (void)once;
    (void)arg;
    (void)out;
    return WSAStartup(MAKEWORD(2, 2), &data) == 0;
}

CDP__PRIVATE bool cdp__os_winsock(void) {
    static INIT_ONCE once = INIT_ONCE_STATIC_INIT;
    return InitOnceExecuteOnce(&once, cdp__os_start_winsock, NULL, NULL) != 0;
}

/* Gives a socket the options that the library expects: non-blocking, not inherited, no Nagle,
   and a keepalive that detects a host that disappears. Returns 0 or a negative errno. */
CDP__PRIVATE CDP__COLD int cdp__os_prepare_socket(SOCKET s) {
    const DWORD on = 1, idle_s = 10, every_s = 5;
    u_long set = 1;
    if (ioctlsocket(s, (long)FIONBIO, &set) != 0) return -cdp__os_socket_error();
    SetHandleInformation((HANDLE)s, HANDLE_FLAG_INHERIT, 0);
    setsockopt(s, SOL_SOCKET, SO_KEEPALIVE, (const char *)&on, sizeof on);
    setsockopt(s, IPPROTO_TCP, TCP_NODELAY, (const char *)&on, sizeof on);
    setsockopt(s, IPPROTO_TCP, 3, (const char *)&idle_s, sizeof idle_s);    /* TCP_KEEPIDLE */
    setsockopt(s, IPPROTO_TCP, 17, (const char *)&every_s, sizeof every_s); /* TCP_KEEPINTVL */
    return 0;
}

/* Shared memory and pipes are handles, too, but are closed with another function than sockets. */
CDP__PRIVATE void cdp__os_close(void *user, int32_t fd) {
    (void)user;
    if (closesocket((SOCKET)fd) != 0 && WSAGetLastError() == WSAENOTSOCK)
        CloseHandle((HANDLE)(uintptr_t)fd);
}

/* Prepares a socket and returns it as a descriptor, or closes it and returns a negative errno. */
CDP__PRIVATE int32_t cdp__os_descriptor(SOCKET s) {
    int err;
    if (s == INVALID_SOCKET) return -cdp__os_socket_error();
    err = s <= INT32_MAX ? cdp__os_prepare_socket(s) : -EMFILE;
    if (err) closesocket(s);
    return err ? err : (int32_t)s;
}

CDP__PRIVATE int32_t cdp__os_socket(int family, int type) {
    if (!cdp__os_winsock()) return -ENETDOWN;
    return cdp__os_descriptor(
        WSASocketW(family, type, 0, NULL, 0, WSA_FLAG_OVERLAPPED | WSA_FLAG_NO_HANDLE_INHERIT));
}

CDP__PRIVATE int32_t cdp__os_adopt(void *user, int32_t fd) {
    (void)user;
    return cdp__os_prepare_socket((SOCKET)fd);
}

CDP__PRIVATE int32_t cdp__os_local_addr(void *user, int32_t fd, cdp_addr *out) {
    cdp__sockaddr s;
    socklen_t len = sizeof s;
    (void)user;
    if (getsockname((SOCKET)fd, &s.any, &len) != 0) return -cdp__os_socket_error();
    cdp__os_from_native(&s, out);
    return 0;
}

/* Closes a socket for which a call failed, and returns the reason as a negative errno. */
CDP__PRIVATE int32_t cdp__os_give_up(int32_t fd) {
    const int err = cdp__os_socket_error();
    closesocket((SOCKET)fd);
    return -err;
}

/* SO_REUSEADDR is not set: on Windows it would let two programs listen at one port. */
CDP__PRIVATE CDP__COLD int32_t cdp__os_listen(void *user, const cdp_addr *at, cdp_addr *bound) {
    cdp__sockaddr s;
    const socklen_t len = cdp__os_to_native(at, &s);
    const DWORD on = 1, off = 0;
    const int32_t fd = cdp__os_socket(s.any.sa_family, SOCK_STREAM);
    if (fd < 0) return fd;
    setsockopt((SOCKET)fd, SOL_SOCKET, SO_EXCLUSIVEADDRUSE, (const char *)&on, sizeof on);
    if (at->family == 6) /* let "::" accept IPv4, too */
        setsockopt((SOCKET)fd, IPPROTO_IPV6, IPV6_V6ONLY, (const char *)&off, sizeof off);
    if (bind((SOCKET)fd, &s.any, len) != 0 || listen((SOCKET)fd, SOMAXCONN) != 0)
        return cdp__os_give_up(fd);
    cdp__os_local_addr(user, fd, bound);
    return fd;
}

CDP__PRIVATE int32_t cdp__os_accept(void *user, int32_t listener, cdp_addr *from) {
    cdp__sockaddr s;
    socklen_t len;
    SOCKET made;
    (void)user;
    do {
        len = sizeof s;
        made = accept((SOCKET)listener, &s.any, &len);
    } while (made == INVALID_SOCKET && WSAGetLastError() == WSAECONNRESET);
    if (made != INVALID_SOCKET) cdp__os_from_native(&s, from);
    return cdp__os_descriptor(made);
}

CDP__PRIVATE CDP__COLD int32_t cdp__os_connect(void *user, const cdp_addr *to) {
    cdp__sockaddr s;
    const socklen_t len = cdp__os_to_native(to, &s);
    const int32_t fd = cdp__os_socket(s.any.sa_family, SOCK_STREAM);
    (void)user;
    if (fd < 0) return fd;
    if (connect((SOCKET)fd, &s.any, len) == 0 || WSAGetLastError() == WSAEWOULDBLOCK) return fd;
    return cdp__os_give_up(fd);
}

CDP__PRIVATE int32_t cdp__os_connect_result(void *user, int32_t fd) {
    int err = 0;
    cdp__sockaddr s;
    socklen_t len = sizeof err, slen = sizeof s;
    (void)user;
    if (getsockopt((SOCKET)fd, SOL_SOCKET, SO_ERROR, (char *)&err, &len) != 0)
        return -cdp__os_socket_error();
    WSASetLastError(err);
    if (err) return -cdp__os_socket_error();
    return getpeername((SOCKET)fd, &s.any, &slen) == 0 ? 0 : -cdp__os_socket_error();
}

CDP__PRIVATE DWORD cdp__os_buffers(const cdp_iov *v, uint32_t n, WSABUF *out) {
    DWORD i;
    for (i = 0; i < n && i < CDP__IOV_MAX; ++i) {
        out[i].buf = (char *)v[i].data;
        out[i].len = (ULONG)cdp__min(v[i].bytes, 1u << 30);
        if (out[i].len < v[i].bytes) return i + 1; /* the socket buffer is full */
    }
    return i;
}

CDP__PRIVATE int64_t cdp__os_send(void *user, int32_t fd, const cdp_iov *v, uint32_t n) {
    WSABUF b[CDP__IOV_MAX];
    DWORD moved = 0;
    (void)user;
    if (WSASend((SOCKET)fd, b, cdp__os_buffers(v, n, b), &moved, 0, NULL, NULL) == 0)
        return (int64_t)moved;
    return WSAGetLastError() == WSAEWOULDBLOCK ? 0 : -cdp__os_socket_error();
}

CDP__PRIVATE int64_t cdp__os_recv(void *user, int32_t fd, const cdp_iov *v, uint32_t n) {
    WSABUF b[CDP__IOV_MAX];
    DWORD moved = 0, flags = 0;
    (void)user;
    if (WSARecv((SOCKET)fd, b, cdp__os_buffers(v, n, b), &moved, &flags, NULL, NULL) == 0)
        return moved ? (int64_t)moved : CDP_IO_EOF;
    return WSAGetLastError() == WSAEWOULDBLOCK ? 0 : -cdp__os_socket_error();
}

CDP__PRIVATE void cdp__os_end_sending(void *user, int32_t fd) {
    (void)user;
    (void)shutdown((SOCKET)fd, SD_SEND); /* fails on a broken connection, harmlessly */
}

/* A datagram socket connected to itself: no other socket can send to it, and WSAPoll can wait
   for it together with other sockets. */
CDP__PRIVATE int32_t cdp__os_wake_open(void *user, int32_t fd[2]) {
    cdp__sockaddr s;
    socklen_t len = sizeof s.v4;
    const int32_t made = cdp__os_socket(AF_INET, SOCK_DGRAM);
    (void)user;
    if (made < 0) return made;
    memset(&s, 0, sizeof s);
    s.v4.sin_family = AF_INET;
    s.v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind((SOCKET)made, &s.any, len) != 0 || getsockname((SOCKET)made, &s.any, &len) != 0
        || connect((SOCKET)made, &s.any, len) != 0)
        return cdp__os_give_up(made);
    fd[0] = fd[1] = made;
    return 0;
}

CDP__PRIVATE void cdp__os_wake_set(void *user, int32_t fd) {
    (void)user;
    (void)send((SOCKET)fd, "", 1, 0); /* if the queue is full, the reader wakes anyway */
}

CDP__PRIVATE void cdp__os_wake_clear(void *user, int32_t fd) {
    char sink[8];
    (void)user;
    while (recv((SOCKET)fd, sink, sizeof sink, 0) > 0) {
    }
}
#endif /* Windows */

#endif /* CDP_NO_OS */

/* ---- >>os/windows_shared: memory that processes share, and handles for another process ------- */

/* Knows: file mappings, named pipes, handles of other processes. Promises: what cdp_os says of
   shared memory. The system itself says which process is at the other end of a pipe. */

#ifndef CDP_NO_OS /* what the default cdp_os is made of, to the end of >>os-linux */

#if defined(_WIN32) && !defined(CDP_NO_SHARED_MEMORY)
#define CDP__PASS_MAX 4u

/* A message in a pipe. It passes either a socket, as WSADuplicateSocket() describes it to the
   other process, or memory: its handle in the sending process. */
typedef struct cdp__os_passed {
    uint32_t count, is_socket;
    uint64_t handle;
    WSAPROTOCOL_INFOW socket;
} cdp__os_passed;

/* The mapping is backed by the page file and committed as a whole; it has no name. */
CDP__PRIVATE CDP__COLD int32_t cdp__os_memory_create(void *user, uint64_t bytes) {
    HANDLE h;
    (void)user;
    if (bytes > PTRDIFF_MAX / 2) return -ENOMEM;
    h = CreateFileMappingW(INVALID_HANDLE_VALUE, NULL, PAGE_READWRITE | SEC_COMMIT,
        (DWORD)(bytes >> 32), (DWORD)(bytes & 0xffffffff), NULL);
    if (!h) return -ENOMEM;
    if ((uintptr_t)h <= INT32_MAX) return (int32_t)(uintptr_t)h;
    CloseHandle(h);
    return -EMFILE;
}

/* Maps the whole memory. Its size is a multiple of the page size, so both processes see the same
   size. */
CDP__PRIVATE void *cdp__os_memory_map(void *user, int32_t fd, bool writable, uint64_t *bytes) {
    MEMORY_BASIC_INFORMATION info;
    const DWORD access = writable ? FILE_MAP_READ | FILE_MAP_WRITE : FILE_MAP_READ;
    void *at = MapViewOfFile((HANDLE)(uintptr_t)fd, access, 0, 0, 0);
    (void)user;
    if (!at) return NULL;
    *bytes = VirtualQuery(at, &info, sizeof info) ? (uint64_t)info.RegionSize : 0;
    if (*bytes) return at;
    UnmapViewOfFile(at);
    return NULL;
}

CDP__PRIVATE void cdp__os_memory_unmap(void *user, void *at, uint64_t bytes) {
    (void)user;
    (void)bytes;
    UnmapViewOfFile(at);
}

/* A hash of this machine and of the user of this process; 0: not known. */
CDP__PRIVATE uint64_t cdp__os_memory_host(void *user) {
    char text[256];
    union {
        TOKEN_USER head;
        uint8_t room[sizeof(TOKEN_USER) + SECURITY_MAX_SID_SIZE];
    } who;
    DWORD n = sizeof text, i;
    HANDLE token = NULL;
    uint64_t id = 1;
    bool known;
    (void)user;
    known = GetComputerNameA(text, &n) != 0;
    for (i = 0; known && i < n; ++i)
        id = id * 1000003 + (uint8_t)text[i];
    n = sizeof text;
    known = known
        && RegGetValueA(HKEY_LOCAL_MACHINE, "SOFTWARE\\Microsoft\\Cryptography", "MachineGuid",
               RRF_RT_REG_SZ, NULL, text, &n)
            == 0;
    for (i = 0; known && i < n; ++i)
        id = id * 1000003 + (uint8_t)text[i];
    known = known && OpenProcessToken(GetCurrentProcess(), TOKEN_QUERY, &token)
        && GetTokenInformation(token, TokenUser, &who, sizeof who, &n);
    if (token) CloseHandle(token);
    n = known ? GetLengthSid(who.head.User.Sid) : 0;
    for (i = 0; i < n; ++i)
        id = id * 1000003 + ((const uint8_t *)who.head.User.Sid)[i];
    return known ? id | 1 : 0;
}

/* A pipe to one other process on this machine. It never blocks. */
CDP__PRIVATE CDP__COLD int32_t cdp__os_pass_open(void *user, const uint8_t name[12], bool waits) {
    char path[32] = "\\\\.\\pipe\\cdp-";
    DWORD never = PIPE_READMODE_MESSAGE | PIPE_NOWAIT;
    HANDLE h;
    (void)user;
    memcpy(path + 13, name, 12);
    if (waits)
        h = CreateNamedPipeA(path, PIPE_ACCESS_DUPLEX | FILE_FLAG_FIRST_PIPE_INSTANCE,
            PIPE_TYPE_MESSAGE | never | PIPE_REJECT_REMOTE_CLIENTS, 1, 65536, 65536, 0, NULL);
    else
        h = CreateFileA(path, GENERIC_READ | GENERIC_WRITE, 0, NULL, OPEN_EXISTING,
            SECURITY_SQOS_PRESENT | SECURITY_IDENTIFICATION, NULL);
    if (h == INVALID_HANDLE_VALUE) return GetLastError() == ERROR_ACCESS_DENIED ? -EACCES : -ENOENT;
    if (waits || SetNamedPipeHandleState(h, &never, NULL, NULL)) return (int32_t)(uintptr_t)h;
    CloseHandle(h);
    return -EIO;
}

/* A new handle for the only connection of a pipe; -EAGAIN: no data has arrived. */
CDP__PRIVATE int32_t cdp__os_pipe_accept(int32_t pipe) {
    DWORD bytes = 0;
    HANDLE made;
    (void)ConnectNamedPipe((HANDLE)(uintptr_t)pipe, NULL);
    if (!PeekNamedPipe((HANDLE)(uintptr_t)pipe, NULL, 0, NULL, &bytes, NULL) || !bytes)
        return -EAGAIN;
    if (!DuplicateHandle(GetCurrentProcess(), (HANDLE)(uintptr_t)pipe, GetCurrentProcess(), &made,
            0, FALSE, DUPLICATE_SAME_ACCESS))
        return -EMFILE;
    return (int32_t)(uintptr_t)made;
}

/* Accepts from a listening socket, or from a pipe of pass_open(), for which accept() fails (under
   wine with WSAEOPNOTSUPP). */
CDP__PRIVATE int32_t cdp__os_accept_any(void *user, int32_t listener, cdp_addr *from) {
    const int32_t made = cdp__os_accept(user, listener, from);
    const int said = made < 0 ? WSAGetLastError() : 0;
    return said == WSAENOTSOCK || said == WSAEOPNOTSUPP ? cdp__os_pipe_accept(listener) : made;
}

/* True if `process` belongs to the same user as the calling process. */
CDP__PRIVATE bool cdp__os_same_user(HANDLE process) {
    union {
        TOKEN_USER head;
        uint8_t room[sizeof(TOKEN_USER) + SECURITY_MAX_SID_SIZE];
    } who[2];
    const HANDLE of[2] = {process, GetCurrentProcess()};
    uint32_t i;
    for (i = 0; i < 2; ++i) {
        HANDLE token;
        DWORD n;
        BOOL known;
        if (!OpenProcessToken(of[i], TOKEN_QUERY, &token)) return false;
        known = GetTokenInformation(token, TokenUser, &who[i], sizeof who[i], &n);
        CloseHandle(token);
        if (!known) return false;
    }
    return EqualSid(who[0].head.User.Sid, who[1].head.User.Sid) != 0;
}

/* The process at the other end of a pipe; NULL if it is not known to belong to the same user. */
CDP__PRIVATE HANDLE cdp__os_pipe_peer(HANDLE pipe, ULONG *pid) {
    DWORD flags = 0;
    HANDLE peer;
    if (!GetNamedPipeInfo(pipe, &flags, NULL, NULL, NULL)) return NULL;
    if (!(flags & PIPE_SERVER_END ? GetNamedPipeClientProcessId(pipe, pid)
                                  : GetNamedPipeServerProcessId(pipe, pid)))
        return NULL;
    peer = OpenProcess(PROCESS_DUP_HANDLE | PROCESS_QUERY_INFORMATION, FALSE, *pid);
    if (peer && cdp__os_same_user(peer)) return peer;
    if (peer) CloseHandle(peer);
    return NULL;
}

CDP__PRIVATE int32_t cdp__os_pass_send(HANDLE pipe, ULONG pid, const int32_t *fds, uint32_t n) {
    cdp__os_passed of[CDP__PASS_MAX];
    DWORD moved = 0, i;
    memset(of, 0, sizeof of);
    for (i = 0; i < n; ++i) {
        of[i].count = n;
        of[i].handle = (uint64_t)fds[i];
        of[i].is_socket = WSADuplicateSocketW((SOCKET)fds[i], pid, &of[i].socket) == 0;
        if (!of[i].is_socket && WSAGetLastError() != WSAENOTSOCK) return -cdp__os_socket_error();
    }
    if (!WriteFile(pipe, of, n * (DWORD)sizeof *of, &moved, NULL)) return -EPIPE;
    return moved ? (int32_t)pid : -EAGAIN;
}

/* Makes a descriptor in this process for one that the other process passed. */
CDP__PRIVATE int32_t cdp__os_pass_take(HANDLE peer, cdp__os_passed *p) {
    HANDLE made;
    if (p->is_socket)
        return cdp__os_descriptor(WSASocketW(FROM_PROTOCOL_INFO, FROM_PROTOCOL_INFO,
            FROM_PROTOCOL_INFO, &p->socket, 0, WSA_FLAG_OVERLAPPED | WSA_FLAG_NO_HANDLE_INHERIT));
    if (!DuplicateHandle(peer, (HANDLE)(uintptr_t)p->handle, GetCurrentProcess(), &made, 0, FALSE,
            DUPLICATE_SAME_ACCESS))
        return -EMFILE;
    return (int32_t)(uintptr_t)made;
}

CDP__PRIVATE int32_t cdp__os_pass_receive(
    HANDLE pipe, HANDLE peer, ULONG pid, int32_t *fds, uint32_t n) {
    cdp__os_passed of[CDP__PASS_MAX];
    DWORD moved = 0, i;
    if (!PeekNamedPipe(pipe, NULL, 0, NULL, &moved, NULL)) return -ECONNRESET;
    if (!moved) return -EAGAIN;
    if (!ReadFile(pipe, of, sizeof of, &moved, NULL)) return -ECONNRESET;
    if (moved != n * sizeof *of || of[0].count != n) return -EPROTO;
    for (i = 0; i < n; ++i) {
        fds[i] = cdp__os_pass_take(peer, &of[i]);
        if (fds[i] >= 0) continue;
        moved = i;
        for (i = 0; i < moved; ++i)
            cdp__os_close(NULL, fds[i]);
        return fds[moved];
    }
    return (int32_t)pid;
}

CDP__PRIVATE CDP__COLD int32_t cdp__os_pass(
    void *user, int32_t fd, int32_t *fds, uint32_t n, bool sending) {
    const HANDLE pipe = (HANDLE)(uintptr_t)fd;
    ULONG pid = 0;
    const HANDLE peer = cdp__os_pipe_peer(pipe, &pid);
    int32_t r;
    (void)user;
    if (!peer) return -EACCES;
    r = sending ? cdp__os_pass_send(pipe, pid, fds, n)
                : cdp__os_pass_receive(pipe, peer, pid, fds, n);
    CloseHandle(peer);
    return r;
}

CDP__PRIVATE int32_t cdp__os_memory_read(
    void *user, int32_t pid, const uint64_t *from, const cdp_iov *to, uint32_t n) {
    const HANDLE peer = OpenProcess(PROCESS_VM_READ, FALSE, (DWORD)pid);
    int32_t err = peer ? 0 : -EPERM;
    uint32_t i;
    (void)user;
    for (i = 0; i < n && !err; ++i) {
        SIZE_T moved = 0;
        if ((uintptr_t)from[i] != from[i] /* of a process with longer addresses */
            || !ReadProcessMemory(
                peer, (const void *)(uintptr_t)from[i], to[i].data, (SIZE_T)to[i].bytes, &moved)
            || moved != to[i].bytes)
            err = -EFAULT;
    }
    if (peer) CloseHandle(peer);
    return err;
}
#endif

#endif /* CDP_NO_OS */

/* ---- >>os/watch: watches over epoll, or over any poll function ------------------------------- */

/* Knows: cdp_os and the two system calls. Promises: what cdp_os_net says of watches. */

#ifndef CDP_NO_OS /* what the default cdp_os is made of, to the end of >>os-linux */

/* A deadline as milliseconds from now, for poll() and epoll_wait(). Rounded up: rounded down,
   the last millisecond would be a busy loop. */
CDP__PRIVATE int cdp__os_poll_ms(uint64_t deadline_ns) {
    uint64_t now, ms;
    if (deadline_ns == CDP__NEVER) return -1;
    if (deadline_ns == 0) return 0;
    now = cdp__os_now(NULL);
    ms = deadline_ns > now ? (deadline_ns - now + CDP__MS - 1) / CDP__MS : 0;
    return (int)cdp__min(ms, 1u << 30);
}

/* As struct pollfd, with cdp's bits; the poll function fills in `got`. */
typedef struct cdp__pollfd {
    int32_t fd;
    uint32_t want; /* CDP_IO_READ | CDP_IO_WRITE */
    uint32_t got;
} cdp__pollfd;

/* Returns how many descriptors have events, or a negative errno; 0 also after a signal. */
typedef int32_t (*cdp__poll_func)(
    void *user, cdp__pollfd *fds, uint32_t n, uint64_t deadline_ns, void *room);

typedef struct cdp__pollwatch_entry {
    int32_t fd;
    uint32_t bits, armed; /* events wanted; of these, the ones not reported yet */
    bool broken;          /* failed: nothing is reported any more */
    void *owner;
} cdp__pollwatch_entry;

/* A watch for systems without epoll. poll() runs without the lock, on a copy of the list. */
typedef struct cdp__pollwatch {
    const cdp_os *os;
    cdp__poll_func poll;
    uint64_t room_bytes; /* scratch memory of the poll function, bytes per descriptor */
    void *mutex;
    cdp__pollwatch_entry *entries;
    /* begin: the entry reported first; it rotates, so that none starves */
    uint32_t count, room, begin;
    cdp__pollfd *fds;
    void *scratch;
    uint32_t fds_room;
} cdp__pollwatch;

CDP__PRIVATE void cdp__pollwatch_lock(cdp__pollwatch *p) {
    if (p->mutex) p->os->threads.mutex_lock(p->os->user, p->mutex);
}

CDP__PRIVATE void cdp__pollwatch_unlock(cdp__pollwatch *p) {
    if (p->mutex) p->os->threads.mutex_unlock(p->os->user, p->mutex);
}

CDP__PRIVATE int32_t cdp__pollwatch_open(
    const cdp_os *os, cdp__poll_func poll, uint64_t room_bytes, void **watch) {
    cdp__pollwatch *p = (cdp__pollwatch *)cdp__alloc_zero(os, sizeof *p);
    if (!p) return -ENOMEM;
    p->os = os;
    p->poll = poll;
    p->room_bytes = room_bytes;
    p->mutex = os->threads.mutex_create ? os->threads.mutex_create(os) : NULL;
    if (os->threads.mutex_create && !p->mutex) {
        cdp__free(os, p);
        return -ENOMEM;
    }
    *watch = p;
    return 0;
}

CDP__PRIVATE void cdp__pollwatch_close(const cdp_os *os, void *watch) {
    cdp__pollwatch *p = (cdp__pollwatch *)watch;
    if (p->mutex) os->threads.mutex_destroy(os, p->mutex);
    cdp__free(os, p->entries);
    cdp__free(os, p->fds);
    cdp__free(os, p->scratch);
    cdp__free(os, p);
}

/* The caller holds the lock. */
CDP__PRIVATE cdp__pollwatch_entry *cdp__pollwatch_find(cdp__pollwatch *p, int32_t fd) {
    uint32_t i;
    for (i = 0; i < p->count; ++i)
        if (p->entries[i].fd == fd) return &p->entries[i];
    return NULL;
}

/* The caller holds the lock. */
CDP__PRIVATE bool cdp__pollwatch_reserve(cdp__pollwatch *p) {
    const uint32_t room = p->room ? 2 * p->room : 16;
    cdp__pollwatch_entry *e;
    if (p->count < p->room) return true;
    e = (cdp__pollwatch_entry *)cdp__alloc(p->os, room * sizeof *e);
    if (!e) return false;
    if (p->count) memcpy(e, p->entries, p->count * sizeof *e);
    cdp__free(p->os, p->entries);
    p->entries = e;
    p->room = room;
    return true;
}

CDP__PRIVATE int32_t cdp__pollwatch_add(
    const cdp_os *os, void *watch, int32_t fd, uint32_t bits, void *owner) {
    cdp__pollwatch *p = (cdp__pollwatch *)watch;
    cdp__pollwatch_entry *e;
    (void)os;
    cdp__pollwatch_lock(p);
    if (!cdp__pollwatch_reserve(p)) {
        cdp__pollwatch_unlock(p);
        return -ENOMEM;
    }
    e = &p->entries[p->count++];
    e->fd = fd;
    e->bits = e->armed = bits;
    e->broken = false;
    e->owner = owner;
    cdp__pollwatch_unlock(p);
    return 0;
}

CDP__PRIVATE void cdp__pollwatch_change(
    void *user, void *watch, int32_t fd, uint32_t bits, void *owner) {
    cdp__pollwatch *p = (cdp__pollwatch *)watch;
    cdp__pollwatch_entry *e;
    (void)user;
    cdp__pollwatch_lock(p);
    e = cdp__pollwatch_find(p, fd);
    if (e) {
        e->bits = e->armed = bits;
        e->owner = owner;
    }
    cdp__pollwatch_unlock(p);
}

CDP__PRIVATE void cdp__pollwatch_used_up(void *user, void *watch, int32_t fd, uint32_t bits) {
    cdp__pollwatch *p = (cdp__pollwatch *)watch;
    cdp__pollwatch_entry *e;
    (void)user;
    cdp__pollwatch_lock(p);
    e = cdp__pollwatch_find(p, fd);
    if (e) e->armed |= bits & e->bits;
    cdp__pollwatch_unlock(p);
}

CDP__PRIVATE void cdp__pollwatch_remove(void *user, void *watch, int32_t fd) {
    cdp__pollwatch *p = (cdp__pollwatch *)watch;
    cdp__pollwatch_entry *e;
    (void)user;
    cdp__pollwatch_lock(p);
    e = cdp__pollwatch_find(p, fd);
    if (e) {
        --p->count;
        memmove(e, e + 1, (size_t)(p->entries + p->count - e) * sizeof *e);
    }
    cdp__pollwatch_unlock(p);
}

/* Fills the list for poll(). Entries without wanted events stay in it, so that broken
   connections are noticed. Returns the number of entries or a negative errno. */
CDP__PRIVATE int32_t cdp__pollwatch_fill(cdp__pollwatch *p) {
    uint32_t i, n = 0;
    if (p->fds_room < p->count) {
        cdp__free(p->os, p->fds);
        cdp__free(p->os, p->scratch);
        p->fds = (cdp__pollfd *)cdp__alloc(p->os, p->room * sizeof *p->fds);
        p->scratch = cdp__alloc(p->os, p->room * p->room_bytes);
        p->fds_room = p->fds && p->scratch ? p->room : 0;
        if (!p->fds_room) return -ENOMEM;
    }
    for (i = 0; i < p->count; ++i) {
        const cdp__pollwatch_entry *e = &p->entries[(p->begin + i) % p->count];
        if (e->broken) continue;
        p->fds[n].fd = e->fd;
        p->fds[n].want = e->armed;
        p->fds[n++].got = 0;
    }
    return (int32_t)n;
}

/* Reports the events that poll() found among the first `n` entries, at most `max_count` of them. */
CDP__PRIVATE int32_t cdp__pollwatch_report(
    cdp__pollwatch *p, uint32_t n, cdp_ready *out, uint32_t max_count) {
    uint32_t i, reported = 0;
    for (i = 0; i < n && reported < max_count; ++i) {
        cdp__pollwatch_entry *e = p->fds[i].got ? cdp__pollwatch_find(p, p->fds[i].fd) : NULL;
        if (!e) continue;
        e->broken = (p->fds[i].got & CDP_IO_ERROR) != 0;
        e->armed &= ~p->fds[i].got;
        out[reported].owner = e->owner;
        out[reported++].got = p->fds[i].got;
        if (reported == max_count) p->begin = (uint32_t)(e - p->entries) + 1;
    }
    return (int32_t)reported;
}

CDP__PRIVATE int32_t cdp__pollwatch_wait(
    void *user, void *watch, cdp_ready *out, uint32_t max_count, uint64_t deadline_ns) {
    cdp__pollwatch *p = (cdp__pollwatch *)watch;
    int32_t n, r;
    cdp__pollwatch_lock(p);
    n = cdp__pollwatch_fill(p);
    cdp__pollwatch_unlock(p);
    if (n < 0) return n;
    r = p->poll(user, p->fds, (uint32_t)n, deadline_ns, p->scratch);
    if (r <= 0) return r;
    cdp__pollwatch_lock(p);
    r = cdp__pollwatch_report(p, (uint32_t)n, out, max_count);
    cdp__pollwatch_unlock(p);
    return r;
}

#ifndef _WIN32
CDP__PRIVATE int32_t cdp__os_poll(
    void *user, cdp__pollfd *fds, uint32_t n, uint64_t deadline_ns, void *room) {
    struct pollfd *p = (struct pollfd *)room;
    int r;
    uint32_t i;
    (void)user;
    for (i = 0; i < n; ++i) {
        p[i].fd = fds[i].fd;
        p[i].events = (short)((fds[i].want & CDP_IO_READ ? POLLIN : 0)
            | (fds[i].want & CDP_IO_WRITE ? POLLOUT : 0));
        p[i].revents = 0;
    }
    r = poll(p, n, cdp__os_poll_ms(deadline_ns));
    if (r < 0) return errno == EINTR ? 0 : -errno;
    for (i = 0; i < n; ++i) {
        const short e = p[i].revents;
        fds[i].got = (e & POLLIN ? CDP_IO_READ : 0) | (e & POLLOUT ? CDP_IO_WRITE : 0)
            | (e & (POLLERR | POLLHUP | POLLNVAL) ? CDP_IO_ERROR : 0);
    }
    return r;
}

/* A watch over poll(2): the default where there is no epoll. */
CDP__PRIVATE int32_t cdp__os_polled_open(const cdp_os *os, void **watch) {
    return cdp__pollwatch_open(os, cdp__os_poll, sizeof(struct pollfd), watch);
}
#endif

#ifdef CDP__EPOLL
#include <sys/epoll.h>

/* The watch is the epoll descriptor itself. Edge-triggered: the kernel reports each change once. */
CDP__PRIVATE int32_t cdp__os_epoll_fd(const void *watch) {
    return (int32_t)((uintptr_t)watch - 1);
}

CDP__PRIVATE int32_t cdp__os_watch_open(const cdp_os *os, void **watch) {
    const int fd = epoll_create1(EPOLL_CLOEXEC);
    (void)os;
    if (fd < 0) return -errno;
    *watch = (void *)((uintptr_t)fd + 1);
    return 0;
}

CDP__PRIVATE void cdp__os_watch_close(const cdp_os *os, void *watch) {
    (void)os;
    close(cdp__os_epoll_fd(watch));
}

CDP__PRIVATE int32_t cdp__os_watch_set(
    void *watch, int32_t fd, uint32_t bits, void *owner, int how) {
    struct epoll_event e;
    memset(&e, 0, sizeof e);
    e.events = (uint32_t)EPOLLRDHUP | (uint32_t)EPOLLET;
    if (bits & CDP_IO_READ) e.events |= (uint32_t)EPOLLIN;
    if (bits & CDP_IO_WRITE) e.events |= (uint32_t)EPOLLOUT;
    e.data.ptr = owner;
    return epoll_ctl(cdp__os_epoll_fd(watch), how, fd, &e) == 0 ? 0 : -errno;
}

CDP__PRIVATE int32_t cdp__os_watch_add(
    const cdp_os *os, void *watch, int32_t fd, uint32_t bits, void *owner) {
    (void)os;
    return cdp__os_watch_set(watch, fd, bits, owner, EPOLL_CTL_ADD);
}

CDP__PRIVATE void cdp__os_watch_change(
    void *user, void *watch, int32_t fd, uint32_t bits, void *owner) {
    (void)user;
    (void)cdp__os_watch_set(watch, fd, bits, owner, EPOLL_CTL_MOD);
}

CDP__PRIVATE void cdp__os_watch_remove(void *user, void *watch, int32_t fd) {
    (void)user;
    (void)cdp__os_watch_set(watch, fd, 0, NULL, EPOLL_CTL_DEL);
}

CDP__PRIVATE int32_t cdp__os_watch_wait(
    void *user, void *watch, cdp_ready *out, uint32_t max_count, uint64_t deadline_ns) {
    struct epoll_event e[CDP__MANY];
    const int n = (int)cdp__min(max_count, CDP__MANY);
    const int r = epoll_wait(cdp__os_epoll_fd(watch), e, n, cdp__os_poll_ms(deadline_ns));
    int i;
    (void)user;
    for (i = 0; i < r; ++i) {
        out[i].owner = e[i].data.ptr;
        out[i].got = (e[i].events & (uint32_t)EPOLLIN ? CDP_IO_READ : 0)
            | (e[i].events & (uint32_t)EPOLLOUT ? CDP_IO_WRITE : 0)
            | (e[i].events & (uint32_t)EPOLLRDHUP ? CDP_IO_READ | CDP_IO_END : 0)
            | (e[i].events & ((uint32_t)EPOLLERR | (uint32_t)EPOLLHUP) ? CDP_IO_ERROR : 0);
    }
    if (r < 0) return errno == EINTR ? 0 : -errno;
    return r;
}
#endif

#endif /* CDP_NO_OS */

/* ---- >>os/threads: POSIX threads, and resolving names in a thread ---------------------------- */

/* Knows: pthreads, the resolver. Promises: what cdp_os says of threads and of names; looking up a
   name ends by its deadline, although the resolver may not. */

#ifndef CDP_NO_OS /* what the default cdp_os is made of, to the end of >>os-linux */

/* A count that is incremented in a child of fork() if this was called before the fork. Objects that
   a child must not use, or would wait for without end, store it and compare it later. It stays 0 in
   builds without threads and on Windows. */
#if !defined(CDP_NO_THREADS) && !defined(_WIN32)
CDP__PRIVATE uint32_t *cdp__os_forks_at(void) {
    static uint32_t forks;
    return &forks;
}

static void cdp__os_forked(void) {
    ++*cdp__os_forks_at();
}

static void cdp__os_watch_forks(void) {
    (void)pthread_atfork(NULL, NULL, cdp__os_forked);
}

CDP__PRIVATE const uint32_t *cdp__os_forks(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, cdp__os_watch_forks);
    return cdp__os_forks_at();
}
#else
CDP__PRIVATE const uint32_t *cdp__os_forks(void) {
    static const uint32_t none = 0;
    return &none;
}
#endif

#if !defined(CDP_NO_THREADS) && !defined(_WIN32)
typedef struct cdp__os_thread {
    pthread_t id;
    void (*func)(void *arg);
    void *arg;
} cdp__os_thread;

static void *cdp__os_thread_main(void *p) {
    cdp__os_thread *t = (cdp__os_thread *)p;
    t->func(t->arg);
    return NULL;
}

CDP__PRIVATE void *cdp__os_thread_start(const cdp_os *os, void (*func)(void *arg), void *arg) {
    cdp__os_thread *t = (cdp__os_thread *)cdp__alloc(os, sizeof *t);
    if (!t) return NULL;
    t->func = func;
    t->arg = arg;
    if (pthread_create(&t->id, NULL, cdp__os_thread_main, t) == 0) return t;
    cdp__free(os, t);
    return NULL;
}

CDP__PRIVATE void cdp__os_thread_join(const cdp_os *os, void *thread) {
    pthread_join(((cdp__os_thread *)thread)->id, NULL);
    cdp__free(os, thread);
}

CDP__PRIVATE void *cdp__os_mutex_create(const cdp_os *os) {
    pthread_mutex_t *m = (pthread_mutex_t *)cdp__alloc(os, sizeof *m);
    if (m) pthread_mutex_init(m, NULL);
    return m;
}

CDP__PRIVATE void cdp__os_mutex_destroy(const cdp_os *os, void *m) {
    pthread_mutex_destroy((pthread_mutex_t *)m);
    cdp__free(os, m);
}

CDP__PRIVATE void cdp__os_mutex_lock(void *user, void *m) {
    (void)user;
    pthread_mutex_lock((pthread_mutex_t *)m);
}

CDP__PRIVATE void cdp__os_mutex_unlock(void *user, void *m) {
    (void)user;
    pthread_mutex_unlock((pthread_mutex_t *)m);
}

CDP__PRIVATE void cdp__os_cond_init(pthread_cond_t *c) {
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
#ifndef __APPLE__
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
#endif
    pthread_cond_init(c, &attr);
    pthread_condattr_destroy(&attr);
}

CDP__PRIVATE void *cdp__os_cond_create(const cdp_os *os) {
    pthread_cond_t *c = (pthread_cond_t *)cdp__alloc(os, sizeof *c);
    if (c) cdp__os_cond_init(c);
    return c;
}

CDP__PRIVATE void cdp__os_cond_destroy(const cdp_os *os, void *c) {
    pthread_cond_destroy((pthread_cond_t *)c);
    cdp__free(os, c);
}

CDP__PRIVATE void cdp__os_cond_wait(void *user, void *c, void *m, uint64_t deadline_ns) {
    struct timespec t;
    if (deadline_ns == CDP__NEVER) {
        pthread_cond_wait((pthread_cond_t *)c, (pthread_mutex_t *)m);
        return;
    }
#ifdef __APPLE__ /* no monotonic condition variables there: wait relative to the wall clock */
    {
        const uint64_t now = cdp__os_now(user), left = deadline_ns > now ? deadline_ns - now : 0;
        clock_gettime(CLOCK_REALTIME, &t);
        deadline_ns = (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec + left;
    }
#endif
    (void)user;
    t.tv_sec = (time_t)(deadline_ns / 1000000000ull);
    t.tv_nsec = (long)(deadline_ns % 1000000000ull);
    pthread_cond_timedwait((pthread_cond_t *)c, (pthread_mutex_t *)m, &t);
}

CDP__PRIVATE void cdp__os_cond_broadcast(void *user, void *c) {
    (void)user;
    pthread_cond_broadcast((pthread_cond_t *)c);
}
#endif

#if !defined(CDP_NO_THREADS) && !defined(_WIN32)
CDP__PRIVATE void cdp__os_thread_yield(void *user) {
    (void)user;
    sched_yield();
}

/* getaddrinfo() has no timeout, so it runs in a thread of its own, which is abandoned at the
   deadline. Whichever of the two threads finishes last frees this record. That thread may
   outlive all memory of the caller, so the record is allocated with malloc(). */
typedef struct cdp__os_lookup {
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    bool left; /* one of the two threads has finished */
    int32_t n;
    cdp_addr at[16];
    char host[256];
} cdp__os_lookup;

/* The caller holds the lock. */
CDP__PRIVATE void cdp__os_lookup_leave(cdp__os_lookup *k) {
    const bool last = k->left;
    k->left = true;
    pthread_cond_broadcast(&k->cond);
    pthread_mutex_unlock(&k->mutex);
    if (!last) return;
    pthread_cond_destroy(&k->cond);
    pthread_mutex_destroy(&k->mutex);
    free(k);
}

static void *cdp__os_lookup_main(void *p) {
    cdp__os_lookup *k = (cdp__os_lookup *)p;
    cdp_addr at[16];
    const int32_t n = cdp__os_getaddrinfo(k->host, at, 16);
    pthread_mutex_lock(&k->mutex);
    memcpy(k->at, at, sizeof at);
    k->n = n;
    cdp__os_lookup_leave(k);
    return NULL;
}

CDP__PRIVATE int32_t cdp__os_lookup_run(
    const char *host, cdp_addr *out, uint32_t max_count, uint64_t deadline_ns) {
    cdp__os_lookup *k = (cdp__os_lookup *)calloc(1, sizeof *k);
    pthread_t id;
    int32_t n;
    if (!k) return -ENOMEM;
    memcpy(k->host, host, strlen(host));
    pthread_mutex_init(&k->mutex, NULL);
    cdp__os_cond_init(&k->cond);
    if (pthread_create(&id, NULL, cdp__os_lookup_main, k) != 0) {
        k->left = true;
        pthread_mutex_lock(&k->mutex);
        cdp__os_lookup_leave(k);
        /* without a thread, the deadline may pass meanwhile */
        return cdp__os_getaddrinfo(host, out, max_count);
    }
    pthread_detach(id);
    pthread_mutex_lock(&k->mutex);
    while (!k->left && cdp__os_now(NULL) < deadline_ns)
        cdp__os_cond_wait(NULL, &k->cond, &k->mutex, deadline_ns);
    n = k->left ? k->n : -ETIMEDOUT;
    if (n > (int32_t)max_count) n = (int32_t)max_count;
    if (n > 0) memcpy(out, k->at, (size_t)n * sizeof *out);
    cdp__os_lookup_leave(k);
    return n;
}
#endif

#endif /* CDP_NO_OS */

/* ---- >>os/windows_threads: waiting, threads, and resolving names in a thread ----------------- */

/* Knows: Win32 threads, WSAPoll, the resolver. Promises: what cdp_os says of watches, threads and
   names. */

#ifndef CDP_NO_OS /* what the default cdp_os is made of, to the end of >>os-linux */

#ifdef _WIN32
CDP__PRIVATE int32_t cdp__os_poll(
    void *user, cdp__pollfd *fds, uint32_t n, uint64_t deadline_ns, void *room) {
    WSAPOLLFD *p = (WSAPOLLFD *)room;
    int r;
    uint32_t i;
    (void)user;
    for (i = 0; i < n; ++i) {
        p[i].fd = (SOCKET)fds[i].fd;
        p[i].events = (short)((fds[i].want & CDP_IO_READ ? POLLRDNORM : 0)
            | (fds[i].want & CDP_IO_WRITE ? POLLWRNORM : 0));
        p[i].revents = 0;
    }
    r = WSAPoll(p, n, cdp__os_poll_ms(deadline_ns));
    if (r < 0) return -cdp__os_socket_error();
    for (i = 0; i < n; ++i) {
        const short e = p[i].revents;
        fds[i].got = (e & POLLRDNORM ? CDP_IO_READ : 0) | (e & POLLWRNORM ? CDP_IO_WRITE : 0)
            | (e & (POLLERR | POLLHUP | POLLNVAL) ? CDP_IO_ERROR : 0);
    }
    return r;
}

CDP__PRIVATE int32_t cdp__os_polled_open(const cdp_os *os, void **watch) {
    return cdp__pollwatch_open(os, cdp__os_poll, sizeof(WSAPOLLFD), watch);
}

#ifndef CDP_NO_THREADS
typedef struct cdp__os_thread {
    HANDLE id;
    void (*func)(void *arg);
    void *arg;
} cdp__os_thread;

static DWORD WINAPI cdp__os_thread_main(LPVOID p) {
    cdp__os_thread *t = (cdp__os_thread *)p;
    t->func(t->arg);
    return 0;
}

CDP__PRIVATE void *cdp__os_thread_start(const cdp_os *os, void (*func)(void *arg), void *arg) {
    cdp__os_thread *t = (cdp__os_thread *)cdp__alloc(os, sizeof *t);
    if (!t) return NULL;
    t->func = func;
    t->arg = arg;
    t->id = CreateThread(NULL, 0, cdp__os_thread_main, t, 0, NULL);
    if (t->id) return t;
    cdp__free(os, t);
    return NULL;
}

CDP__PRIVATE void cdp__os_thread_join(const cdp_os *os, void *thread) {
    cdp__os_thread *t = (cdp__os_thread *)thread;
    WaitForSingleObject(t->id, INFINITE);
    CloseHandle(t->id);
    cdp__free(os, t);
}

CDP__PRIVATE void cdp__os_thread_yield(void *user) {
    (void)user;
    SwitchToThread();
}

CDP__PRIVATE void *cdp__os_mutex_create(const cdp_os *os) {
    SRWLOCK *m = (SRWLOCK *)cdp__alloc(os, sizeof *m);
    if (m) InitializeSRWLock(m);
    return m;
}

CDP__PRIVATE void cdp__os_mutex_destroy(const cdp_os *os, void *m) {
    cdp__free(os, m);
}

CDP__PRIVATE void cdp__os_mutex_lock(void *user, void *m) {
    (void)user;
    AcquireSRWLockExclusive((SRWLOCK *)m);
}

CDP__PRIVATE void cdp__os_mutex_unlock(void *user, void *m) {
    (void)user;
    ReleaseSRWLockExclusive((SRWLOCK *)m);
}

CDP__PRIVATE void *cdp__os_cond_create(const cdp_os *os) {
    CONDITION_VARIABLE *c = (CONDITION_VARIABLE *)cdp__alloc(os, sizeof *c);
    if (c) InitializeConditionVariable(c);
    return c;
}

CDP__PRIVATE void cdp__os_cond_destroy(const cdp_os *os, void *c) {
    cdp__free(os, c);
}

CDP__PRIVATE void cdp__os_cond_wait(void *user, void *c, void *m, uint64_t deadline_ns) {
    const int ms = cdp__os_poll_ms(deadline_ns);
    (void)user;
    SleepConditionVariableSRW(
        (CONDITION_VARIABLE *)c, (SRWLOCK *)m, ms < 0 ? INFINITE : (DWORD)ms, 0);
}

CDP__PRIVATE void cdp__os_cond_broadcast(void *user, void *c) {
    (void)user;
    WakeAllConditionVariable((CONDITION_VARIABLE *)c);
}

/* As on POSIX: getaddrinfo() runs in a thread of its own, which is abandoned at the deadline.
   Whichever of the two threads finishes last frees this record. */
typedef struct cdp__os_lookup {
    HANDLE done;
    volatile LONG left; /* one of the two threads has finished */
    int32_t n;
    cdp_addr at[16];
    char host[256];
} cdp__os_lookup;

CDP__PRIVATE void cdp__os_lookup_leave(cdp__os_lookup *k) {
    if (!InterlockedExchange(&k->left, 1)) return;
    CloseHandle(k->done);
    free(k);
}

static DWORD WINAPI cdp__os_lookup_main(LPVOID p) {
    cdp__os_lookup *k = (cdp__os_lookup *)p;
    k->n = cdp__os_getaddrinfo(k->host, k->at, 16);
    SetEvent(k->done);
    cdp__os_lookup_leave(k);
    return 0;
}

CDP__PRIVATE int32_t cdp__os_lookup_run(
    const char *host, cdp_addr *out, uint32_t max_count, uint64_t deadline_ns) {
    cdp__os_lookup *k = (cdp__os_lookup *)calloc(1, sizeof *k);
    const int ms = cdp__os_poll_ms(deadline_ns);
    HANDLE thread;
    int32_t n = -ETIMEDOUT;
    if (!k) return -ENOMEM;
    memcpy(k->host, host, strlen(host));
    k->done = CreateEventA(NULL, TRUE, FALSE, NULL);
    thread = k->done ? CreateThread(NULL, 0, cdp__os_lookup_main, k, 0, NULL) : NULL;
    if (!thread) {
        if (k->done) CloseHandle(k->done);
        free(k);
        return -ENOMEM;
    }
    CloseHandle(thread);
    if (WaitForSingleObject(k->done, ms < 0 ? INFINITE : (DWORD)ms) == WAIT_OBJECT_0)
        n = (int32_t)cdp__min((uint64_t)k->n, k->n < 0 ? CDP__NEVER : max_count);
    if (n > 0) memcpy(out, k->at, (size_t)n * sizeof *out);
    cdp__os_lookup_leave(k);
    return n;
}
#endif
#endif /* Windows */

CDP__PRIVATE CDP__COLD int32_t cdp__os_resolve(void *user, const char *host, uint16_t port,
    cdp_addr *out, uint32_t max, uint64_t deadline_ns) {
    int32_t n, i;
    (void)user;
    if (strlen(host) > 255) return -ENAMETOOLONG;
#ifdef _WIN32
    if (!cdp__os_winsock()) return -ENETDOWN; /* getaddrinfo() needs Winsock */
#endif
#ifdef CDP_NO_THREADS
    (void)deadline_ns;
    n = cdp__os_getaddrinfo(host, out, max);
#else
    n = cdp__os_lookup_run(host, out, max, deadline_ns);
#endif
    for (i = 0; i < n; ++i)
        out[i].port = port;
    return n;
}

#endif /* CDP_NO_OS */

/* ---- >>os/files: POSIX files ----------------------------------------------------------------- */

/* Knows: system calls for files. Promises: what cdp_os_files says; nothing outside the os sections
   calls the system for a file. */

#ifndef CDP_NO_OS /* what the default cdp_os is made of, to the end of >>os-linux */

#ifndef CDP_NO_FILES
#ifndef _WIN32
CDP__PRIVATE int32_t cdp__os_open_file(void *user, const char *path, uint32_t how) {
    const bool alone = (how & CDP_FILE_PRIVATE) != 0;
    int flags = O_CLOEXEC | O_NONBLOCK; /* O_NONBLOCK: the file may be a pipe */
    int fd;
    (void)user;
    flags |= how & CDP_FILE_WRITE ? O_RDWR : O_RDONLY;
    if (how & CDP_FILE_CREATE) flags |= O_CREAT;
    if (how & CDP_FILE_EMPTY) flags |= O_TRUNC;
    if (alone) flags |= O_NOFOLLOW;
    do
        fd = open(path, flags, alone ? 0600 : 0666); /* less what umask takes away */
    while (fd < 0 && errno == EINTR);
    return fd >= 0 ? fd : -errno;
}

CDP__PRIVATE int32_t cdp__os_close_file(void *user, int32_t fd) {
    (void)user;
    /* EINTR: the descriptor is closed all the same */
    return close(fd) == 0 || errno == EINTR ? 0 : -errno;
}

CDP__PRIVATE int64_t cdp__os_read_at(
    void *user, int32_t fd, uint64_t at, void *to, uint64_t bytes) {
    ssize_t n;
    (void)user;
    do
        n = pread(fd, to, (size_t)bytes, (off_t)at);
    while (n < 0 && errno == EINTR);
    return n >= 0 ? n : -errno;
}

CDP__PRIVATE int64_t cdp__os_write_at(
    void *user, int32_t fd, uint64_t at, const void *from, uint64_t bytes) {
    ssize_t n;
    (void)user;
    do {
        n = pwrite(fd, from, (size_t)bytes, (off_t)at);
        if (n < 0 && errno == ESPIPE) n = write(fd, from, (size_t)bytes);
    } while (n < 0 && errno == EINTR);
    return n >= 0 ? n : -errno;
}

CDP__PRIVATE int32_t cdp__os_cut_file(void *user, int32_t fd, uint64_t bytes) {
    int r;
    (void)user;
    do
        r = ftruncate(fd, (off_t)bytes);
    while (r < 0 && errno == EINTR);
    return r == 0 ? 0 : -errno;
}

CDP__PRIVATE int32_t cdp__os_lock_file(void *user, int32_t fd, cdp_file_lock lock) {
    static const int how[] = {LOCK_UN, LOCK_SH | LOCK_NB, LOCK_EX | LOCK_NB};
    int r;
    (void)user;
    do
        r = flock(fd, how[lock]);
    while (r < 0 && errno == EINTR);
    if (r == 0) return 0;
    return errno == EWOULDBLOCK ? -EAGAIN : -errno;
}

CDP__PRIVATE int32_t cdp__os_file_info(void *user, int32_t fd, cdp_file_info *out) {
    struct stat st;
    (void)user;
    if (fstat(fd, &st) != 0) return -errno;
    out->bytes = (uint64_t)st.st_size;
    out->device = (uint64_t)st.st_dev;
    out->number = (uint64_t)st.st_ino;
    out->owner = (uint32_t)st.st_uid;
    out->mode = (uint32_t)st.st_mode & 07777;
    out->regular = S_ISREG(st.st_mode) != 0;
    out->removed = st.st_nlink == 0;
    out->foreign = st.st_uid != geteuid() || (st.st_mode & 022) != 0;
    return 0;
}

CDP__PRIVATE int32_t cdp__os_remove_file(void *user, const char *path) {
    (void)user;
    return unlink(path) == 0 ? 0 : -errno;
}

CDP__PRIVATE int32_t cdp__os_rename_file(void *user, const char *from, const char *to) {
    (void)user;
    return rename(from, to) == 0 ? 0 : -errno;
}
#else
CDP__PRIVATE int32_t cdp__os_file_error(void) {
    switch (GetLastError()) {
    case ERROR_FILE_NOT_FOUND:
    case ERROR_PATH_NOT_FOUND: return -ENOENT;
    case ERROR_ACCESS_DENIED:
    case ERROR_SHARING_VIOLATION: return -EACCES;
    case ERROR_FILE_EXISTS:
    case ERROR_ALREADY_EXISTS: return -EEXIST;
    case ERROR_DISK_FULL: return -ENOSPC;
    case ERROR_TOO_MANY_OPEN_FILES: return -EMFILE;
    case ERROR_LOCK_VIOLATION:
    case ERROR_IO_PENDING: return -EAGAIN;
    default: return -EIO;
    }
}

CDP__PRIVATE HANDLE cdp__os_file_handle(int32_t fd) {
    return (HANDLE)(intptr_t)fd;
}

/* Other processes may open, rename and remove the file meanwhile, as on POSIX. A new file
   inherits the permissions of its folder. Links are refused only if `how` asks for that. */
CDP__PRIVATE int32_t cdp__os_open_file(void *user, const char *path, uint32_t how) {
    const bool alone = (how & CDP_FILE_PRIVATE) != 0, create = (how & CDP_FILE_CREATE) != 0;
    const DWORD share = FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE;
    const DWORD access = GENERIC_READ | (how & CDP_FILE_WRITE ? GENERIC_WRITE : 0u);
    const DWORD flags = FILE_ATTRIBUTE_NORMAL | (alone ? FILE_FLAG_OPEN_REPARSE_POINT : 0u);
    const DWORD empty = create ? CREATE_ALWAYS : TRUNCATE_EXISTING;
    const DWORD whole = create ? OPEN_ALWAYS : OPEN_EXISTING;
    const DWORD mode = how & CDP_FILE_EMPTY ? empty : whole;
    const HANDLE h = CreateFileA(path, access, share, NULL, mode, flags, NULL);
    BY_HANDLE_FILE_INFORMATION info;
    (void)user;
    if (h == INVALID_HANDLE_VALUE) return cdp__os_file_error();
    if (alone && GetFileInformationByHandle(h, &info)
        && (info.dwFileAttributes & FILE_ATTRIBUTE_REPARSE_POINT)) {
        CloseHandle(h);
        return -ELOOP;
    }
    return (int32_t)(intptr_t)h;
}

CDP__PRIVATE int32_t cdp__os_close_file(void *user, int32_t fd) {
    (void)user;
    return CloseHandle(cdp__os_file_handle(fd)) ? 0 : cdp__os_file_error();
}

CDP__PRIVATE OVERLAPPED cdp__os_file_place(uint64_t at) {
    OVERLAPPED o;
    memset(&o, 0, sizeof o);
    o.Offset = (DWORD)at;
    o.OffsetHigh = (DWORD)(at >> 32);
    return o;
}

CDP__PRIVATE int64_t cdp__os_read_at(
    void *user, int32_t fd, uint64_t at, void *to, uint64_t bytes) {
    OVERLAPPED o = cdp__os_file_place(at);
    DWORD n = 0;
    (void)user;
    if (ReadFile(cdp__os_file_handle(fd), to, (DWORD)cdp__min(bytes, 1u << 30), &n, &o))
        return (int64_t)n;
    return GetLastError() == ERROR_HANDLE_EOF ? 0 : cdp__os_file_error();
}

CDP__PRIVATE int64_t cdp__os_write_at(
    void *user, int32_t fd, uint64_t at, const void *from, uint64_t bytes) {
    OVERLAPPED o = cdp__os_file_place(at);
    DWORD n = 0;
    (void)user;
    if (WriteFile(cdp__os_file_handle(fd), from, (DWORD)cdp__min(bytes, 1u << 30), &n, &o))
        return (int64_t)n;
    return cdp__os_file_error();
}

CDP__PRIVATE int32_t cdp__os_cut_file(void *user, int32_t fd, uint64_t bytes) {
    const HANDLE h = cdp__os_file_handle(fd);
    LARGE_INTEGER at;
    (void)user;
    at.QuadPart = (LONGLONG)bytes;
    return SetFilePointerEx(h, at, NULL, FILE_BEGIN) && SetEndOfFile(h) ? 0 : cdp__os_file_error();
}

/* Locked bytes of a file cannot be read by other processes on Windows, so the lock is on a byte
   far behind the end of any file. */
CDP__PRIVATE int32_t cdp__os_lock_file(void *user, int32_t fd, cdp_file_lock lock) {
    OVERLAPPED o = cdp__os_file_place(1ull << 62);
    const HANDLE h = cdp__os_file_handle(fd);
    const DWORD how =
        LOCKFILE_FAIL_IMMEDIATELY | (lock == CDP_FILE_LOCK_ALONE ? LOCKFILE_EXCLUSIVE_LOCK : 0u);
    (void)user;
    if (lock == CDP_FILE_UNLOCK)
        return UnlockFileEx(h, 0, 1, 0, &o) || GetLastError() == ERROR_NOT_LOCKED
            ? 0
            : cdp__os_file_error();
    return LockFileEx(h, how, 0, 1, 0, &o) ? 0 : cdp__os_file_error();
}

CDP__PRIVATE int32_t cdp__os_file_info(void *user, int32_t fd, cdp_file_info *out) {
    BY_HANDLE_FILE_INFORMATION info;
    (void)user;
    if (!GetFileInformationByHandle(cdp__os_file_handle(fd), &info)) return cdp__os_file_error();
    memset(out, 0, sizeof *out);
    out->bytes = (uint64_t)info.nFileSizeHigh << 32 | info.nFileSizeLow;
    out->device = info.dwVolumeSerialNumber;
    out->number = (uint64_t)info.nFileIndexHigh << 32 | info.nFileIndexLow;
    out->regular =
        !(info.dwFileAttributes & (FILE_ATTRIBUTE_DIRECTORY | FILE_ATTRIBUTE_REPARSE_POINT));
    out->removed = info.nNumberOfLinks == 0;
    return 0;
}

CDP__PRIVATE int32_t cdp__os_remove_file(void *user, const char *path) {
    (void)user;
    return DeleteFileA(path) ? 0 : cdp__os_file_error();
}

CDP__PRIVATE int32_t cdp__os_rename_file(void *user, const char *from, const char *to) {
    (void)user;
    return MoveFileExA(from, to, MOVEFILE_REPLACE_EXISTING) ? 0 : cdp__os_file_error();
}
#endif
#endif

#endif /* CDP_NO_OS */

/* ---- >>os/linux: owners of ports, shared memory, processes ----------------------------------- */

/* Knows: /proc, shared memory, descriptors sent to another process. Promises: what cdp_os says of
   them; on other systems these members are NULL or fail. */

#ifndef CDP_NO_OS /* what the default cdp_os is made of, to the end of >>os-linux */

#ifdef __linux__
/* Reads up to size - 1 bytes of a file as a text. */
CDP__PRIVATE bool cdp__os_read_text(const char *path, char *text, uint64_t size) {
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const ssize_t n = fd >= 0 ? read(fd, text, (size_t)size - 1) : -1;
    if (fd >= 0) close(fd);
    text[n > 0 ? n : 0] = 0;
    return n > 0;
}

/* The inode of the socket that listens on `port`, from /proc/net/tcp or tcp6; 0: none. A line
   reads "sl: ADDRESS:PORT REMOTE STATE queues timers retransmits uid timeout INODE ...", with
   port and state in hexadecimal; state 0A is listening. */
CDP__PRIVATE CDP__COLD uint64_t cdp__os_listener_inode(const char *path, uint16_t port) {
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    char text[4096];
    uint64_t value = 0, field_port = 0, state = 0, found = 0;
    uint32_t field = 0;
    bool blank = true;
    ssize_t n, i;
    while (fd >= 0 && !found && (n = read(fd, text, sizeof text)) > 0) {
        for (i = 0; i < n && !found; ++i) {
            const char c = text[i];
            uint32_t digit = 99;
            if (c >= '0' && c <= '9') digit = (uint32_t)(c - '0');
            if (c >= 'A' && c <= 'F') digit = (uint32_t)(c - 'A') + 10;
            if (c == ' ' || c == '\n') {
                if (!blank && field == 2) field_port = value;
                if (!blank && field == 4) state = value;
                if (!blank && field == 10 && state == 10 && field_port == port) found = value;
                blank = true;
                if (c == '\n') field = 0;
                continue;
            }
            if (blank) ++field;
            if (blank || c == ':') value = 0;
            blank = false;
            if (digit < 16) value = value * (field == 10 ? 10 : 16) + digit;
        }
    }
    if (fd >= 0) close(fd);
    return found;
}

/* True if a descriptor of process `pid` refers to `target`. */
CDP__PRIVATE bool cdp__os_process_has(const char *pid, const char *target) {
    char path[64], link[64];
    const struct dirent *e;
    bool found = false;
    DIR *d;
    cdp__format(path, sizeof path, "/proc/%s/fd", pid);
    d = opendir(path);
    while (d && !found && (e = readdir(d)) != NULL) {
        ssize_t n;
        cdp__format(path, sizeof path, "/proc/%s/fd/%s", pid, e->d_name);
        n = readlink(path, link, sizeof link - 1);
        link[n > 0 ? n : 0] = 0;
        found = strcmp(link, target) == 0;
    }
    if (d) closedir(d);
    return found;
}

CDP__PRIVATE bool cdp__os_port_owner(void *user, uint16_t port, char *text, uint64_t size) {
    char target[64], path[64], name[64];
    const struct dirent *e;
    uint64_t inode = cdp__os_listener_inode("/proc/net/tcp", port);
    bool found = false;
    DIR *d;
    (void)user;
    if (!inode) inode = cdp__os_listener_inode("/proc/net/tcp6", port);
    d = inode ? opendir("/proc") : NULL;
    cdp__format(target, sizeof target, "socket:[%llu]", (unsigned long long)inode);
    while (d && !found && (e = readdir(d)) != NULL) {
        if (e->d_name[0] < '1' || e->d_name[0] > '9' || strlen(e->d_name) > 10
            || !cdp__os_process_has(e->d_name, target))
            continue;
        found = true;
        cdp__format(path, sizeof path, "/proc/%s/comm", e->d_name);
        (void)cdp__os_read_text(path, name, sizeof name);
        name[strcspn(name, "\n")] = 0;
        cdp__format(text, size, "process %s (%s)", e->d_name, name);
    }
    if (d) closedir(d);
    return found;
}

#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>

/* Creates an anonymous file, which lives as long as its last descriptor or mapping. It is not in
   /dev/shm, which containers keep small. The flags are numbers because the C library declares
   their names only with _GNU_SOURCE. */
CDP__PRIVATE CDP__COLD int32_t cdp__os_memory_create(void *user, uint64_t bytes) {
    struct rlimit most;
    int fd, err;
    (void)user;
    if (bytes > PTRDIFF_MAX / 2) return -ENOMEM;
    /* beyond this limit the kernel would send SIGXFSZ */
    if (getrlimit(RLIMIT_FSIZE, &most) == 0 && most.rlim_cur < bytes) return -EFBIG;
    /* MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL */
    fd = (int)syscall(SYS_memfd_create, "cdp", 11u);
    if (fd < 0 && errno == EINVAL) fd = (int)syscall(SYS_memfd_create, "cdp", 3u);
    if (fd < 0) return -errno;
    do
        err = posix_fallocate(fd, 0, (off_t)bytes);
    while (err == EINTR);
    /* F_ADD_SEALS: F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW */
    if (!err && fcntl(fd, 1033, 7) != 0) err = errno;
    if (err) close(fd);
    return err ? -err : fd;
}

CDP__PRIVATE void *cdp__os_memory_map(void *user, int32_t fd, bool writable, uint64_t *bytes) {
    const int seals = fcntl(fd, 1034); /* F_GET_SEALS */
    struct stat s;
    void *at;
    (void)user;
    if (seals < 0 || !(seals & 2) || fstat(fd, &s) != 0 || s.st_size <= 0
        || s.st_size > PTRDIFF_MAX)
        return NULL;
    *bytes = (uint64_t)s.st_size;
    at = mmap(NULL, (size_t)s.st_size, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED, fd, 0);
    return at == MAP_FAILED ? NULL : at;
}

CDP__PRIVATE void cdp__os_memory_unmap(void *user, void *at, uint64_t bytes) {
    (void)user;
    munmap(at, (size_t)bytes);
}

CDP__PRIVATE void cdp__os_memory_empty(void *user, void *at, uint64_t bytes) {
    (void)user;
    (void)madvise(at, (size_t)bytes, MADV_REMOVE);
}

/* Identifies the running kernel, the network namespace and the user. */
CDP__PRIVATE uint64_t cdp__os_memory_host(void *user) {
    char boot[64];
    struct stat net;
    const int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t i, n = fd < 0 ? 0 : read(fd, boot, sizeof boot);
    uint64_t id = geteuid();
    (void)user;
    if (fd >= 0) close(fd);
    if (n <= 0 || stat("/proc/self/ns/net", &net) != 0) return 0;
    id = id * 1000003 + net.st_ino;
    for (i = 0; i < n; ++i)
        id = id * 1000003 + (uint8_t)boot[i];
    return id | 1;
}

CDP__PRIVATE CDP__COLD uint64_t cdp__os_process_place(void *user, uint32_t *number) {
    char boot[64];
    struct stat ns;
    const int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    const ssize_t n = fd < 0 ? 0 : read(fd, boot, sizeof boot);
    uint64_t id = 1;
    ssize_t i;
    (void)user;
    if (fd >= 0) close(fd);
    *number = (uint32_t)getpid();
    if (n <= 0 || stat("/proc/self/ns/pid", &ns) != 0) return 0;
    id = id * 1000003 + ns.st_ino;
    for (i = 0; i < n; ++i)
        id = id * 1000003 + (uint8_t)boot[i];
    return id | 1;
}

CDP__PRIVATE int32_t cdp__os_process_open(void *user, uint32_t number) {
    (void)user;
#ifdef SYS_pidfd_open
    {
        const int fd = (int)syscall(SYS_pidfd_open, (long)number, 0l);
        return fd < 0 ? -errno : fd;
    }
#else
    (void)number;
    return -ENOSYS;
#endif
}

/* Names in the abstract namespace are no files. They are visible only inside one network
   namespace. */
CDP__PRIVATE CDP__COLD int32_t cdp__os_pass_open(void *user, const uint8_t name[12], bool waits) {
    const int fd = cdp__os_socket(AF_UNIX);
    const socklen_t len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 13);
    union {
        struct sockaddr any;
        struct sockaddr_un un;
    } a;
    int err;
    (void)user;
    if (fd < 0) return fd;
    memset(&a, 0, sizeof a);
    a.un.sun_family = AF_UNIX;
    memcpy(a.un.sun_path + 1, name, 12);
    if (waits ? bind(fd, &a.any, len) == 0 && listen(fd, 4) == 0 : connect(fd, &a.any, len) == 0)
        return fd;
    err = errno;
    close(fd);
    return -err;
}

#define CDP__PASS_MAX 4u

CDP__PRIVATE CDP__COLD int32_t cdp__os_pass(
    void *user, int32_t fd, int32_t *fds, uint32_t n, bool sending) {
    struct {
        int32_t pid;
        uint32_t uid, gid;
    } who = {0, 0, 0};
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(CDP__PASS_MAX * sizeof(int32_t))];
    } c;
    socklen_t len = sizeof who;
    struct iovec v;
    struct msghdr m;
    char byte = 0;
    ssize_t r;
    size_t i, got;
    (void)user;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len) != 0 || who.uid != (uint32_t)geteuid())
        return -EACCES;
    memset(&m, 0, sizeof m);
    memset(&c, 0, sizeof c);
    v.iov_base = &byte;
    v.iov_len = 1;
    m.msg_iov = &v;
    m.msg_iovlen = 1;
    m.msg_control = &c;
    m.msg_controllen = sending ? CMSG_SPACE(n * sizeof *fds) : sizeof c;
    c.head.cmsg_level = SOL_SOCKET;
    c.head.cmsg_type = SCM_RIGHTS;
    c.head.cmsg_len = CMSG_LEN(n * sizeof *fds);
    if (sending) memcpy(CMSG_DATA(&c.head), fds, n * sizeof *fds);
    do
        r = sending ? sendmsg(fd, &m, MSG_NOSIGNAL) : recvmsg(fd, &m, MSG_CMSG_CLOEXEC | MSG_PEEK);
    while (r < 0 && errno == EINTR);
    if (sending || r < 0) return r < 0 ? -errno : who.pid;
    got = m.msg_controllen >= sizeof c.head && c.head.cmsg_type == SCM_RIGHTS
        ? (c.head.cmsg_len - CMSG_LEN(0)) / sizeof *fds
        : 0;
    if (got == n && !(m.msg_flags & MSG_CTRUNC)) {
        memcpy(fds, CMSG_DATA(&c.head), n * sizeof *fds);
        (void)recv(fd, &byte, 1, 0);
        return who.pid;
    }
    for (i = 0; i < got; ++i) {
        memcpy(&fd, CMSG_DATA(&c.head) + i * sizeof fd, sizeof fd);
        close(fd);
    }
    /* most likely no descriptors are left; MSG_PEEK left the message queued, so the caller may
       retry */
    return r ? -EMFILE : -ECONNRESET;
}

CDP__PRIVATE int32_t cdp__os_memory_read(
    void *user, int32_t pid, const uint64_t *from, const cdp_iov *to, uint32_t n) {
    struct iovec here[CDP__IOV_MAX], there[CDP__IOV_MAX];
    const uint32_t k = cdp__os_iov(to, n, here);
    uint64_t bytes = 0;
    uint32_t i;
    long r;
    (void)user;
    for (i = 0; i < k; bytes += to[i++].bytes) {
        /* from a 64-bit process, read by a 32-bit one */
        if ((uintptr_t)from[i] != from[i]) return -EFAULT;
        there[i].iov_base = (void *)(uintptr_t)from[i];
        there[i].iov_len = here[i].iov_len;
    }
    r = syscall(SYS_process_vm_readv, (long)pid, here, (long)k, there, (long)k, 0l);
    if (r < 0) return -errno;
    return (uint64_t)r == bytes ? 0 : -EFAULT;
}
#endif

/* The groups of functions of the default os, in the order of cdp_os's members. */
#ifdef CDP__EPOLL
#define CDP__OS_WATCH                                                                       \
    cdp__os_watch_open, cdp__os_watch_close, cdp__os_watch_add, cdp__os_watch_change, NULL, \
        cdp__os_watch_remove, cdp__os_watch_wait
#else
#define CDP__OS_WATCH                                                                     \
    cdp__os_polled_open, cdp__pollwatch_close, cdp__pollwatch_add, cdp__pollwatch_change, \
        cdp__pollwatch_used_up, cdp__pollwatch_remove, cdp__pollwatch_wait
#endif
#ifdef __linux__
#define CDP__OS_PROCESSES cdp__os_process_place, cdp__os_process_open
#else
#define CDP__OS_PROCESSES NULL, NULL
#endif
#ifdef _WIN32
#define CDP__OS_NEWS NULL, NULL, NULL, NULL
#else
#define CDP__OS_NEWS \
    cdp__os_unanswered, cdp__os_addresses, CDP__OS_PORT_OWNER, cdp__os_descriptor_limit
#endif
/* Only the texts of errors need the owner of a port. */
#if defined(__linux__) && !defined(CDP_NO_LOG_STRINGS)
#define CDP__OS_PORT_OWNER cdp__os_port_owner
#else
#define CDP__OS_PORT_OWNER NULL
#endif
#ifdef __linux__
#define CDP__OS_PARTS true, cdp__os_memory_empty
#else
#define CDP__OS_PARTS false, NULL
#endif
#if (defined(__linux__) || defined(_WIN32)) && !defined(CDP_NO_SHARED_MEMORY)
#define CDP__OS_SHARED                                                                      \
    {                                                                                       \
        cdp__os_memory_create, cdp__os_memory_map, cdp__os_memory_unmap, cdp__os_pass_open, \
            cdp__os_pass, cdp__os_memory_read, cdp__os_memory_host, CDP__OS_PROCESSES,      \
            CDP__OS_PARTS                                                                   \
    }
#else
#define CDP__OS_SHARED \
    { NULL, NULL, NULL, NULL, NULL, NULL, NULL, CDP__OS_PROCESSES, false, NULL }
#endif
#ifdef CDP_NO_FILES
#define CDP__OS_FILES \
    { NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL }
#else
#define CDP__OS_FILES                                                                    \
    {                                                                                    \
        cdp__os_open_file, cdp__os_close_file, cdp__os_read_at, cdp__os_write_at,        \
            cdp__os_cut_file, cdp__os_lock_file, cdp__os_file_info, cdp__os_remove_file, \
            cdp__os_rename_file                                                          \
    }
#endif
#ifdef CDP_NO_THREADS
#define CDP__OS_THREADS \
    { NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL }
#else
#define CDP__OS_THREADS                                                                           \
    {                                                                                             \
        cdp__os_thread_start, cdp__os_thread_join, cdp__os_thread_yield, cdp__os_mutex_create,    \
            cdp__os_mutex_destroy, cdp__os_mutex_lock, cdp__os_mutex_unlock, cdp__os_cond_create, \
            cdp__os_cond_destroy, cdp__os_cond_wait, cdp__os_cond_broadcast                       \
    }
#endif
#if defined(_WIN32) && !defined(CDP_NO_SHARED_MEMORY)
#define CDP__OS_ACCEPT cdp__os_accept_any
#else
#define CDP__OS_ACCEPT cdp__os_accept
#endif
#define CDP__OS_NET                                                                      \
    {                                                                                    \
        cdp__os_resolve, cdp__os_listen, cdp__os_adopt, CDP__OS_ACCEPT, cdp__os_connect, \
            cdp__os_connect_result, cdp__os_send, cdp__os_recv, cdp__os_close,           \
            cdp__os_end_sending, cdp__os_local_addr, CDP__OS_WATCH, cdp__os_wake_open,   \
            cdp__os_wake_set, cdp__os_wake_clear, CDP__OS_NEWS                           \
    }

CDP_API const cdp_os *cdp_os_default(void) {
    static const cdp_os os = {
        NULL,
        cdp__os_alloc,
        cdp__os_release,
        cdp__os_now,
        cdp__os_random,
        cdp__os_sleep_until,
        CDP__OS_NET,
        CDP__OS_THREADS,
        CDP__OS_SHARED,
        CDP__OS_FILES,
    };
    return &os;
}

#else
CDP__PRIVATE const uint32_t *cdp__os_forks(void) {
    static const uint32_t none = 0;
    return &none;
}

CDP__PRIVATE void *cdp__os_no_memory(void *user, uint64_t bytes) {
    (void)user;
    (void)bytes;
    return NULL;
}

/* Not NULL, since every creation asks it for memory: that fails in an orderly way. */
CDP_API const cdp_os *cdp_os_default(void) {
    static cdp_os os;
    os.alloc = cdp__os_no_memory;
    return &os;
}
#endif /* CDP_NO_OS */

/* A lock; does nothing in builds without threads. */
struct cdp_lock {
    const cdp_os *os;
    void *mutex;
};

CDP__PRIVATE bool cdp__lock_open(cdp_lock *l, const cdp_os *os, bool threads) {
    l->os = os;
    l->mutex = threads && os->threads.mutex_create ? os->threads.mutex_create(os) : NULL;
    return l->mutex || !threads || !os->threads.mutex_create;
}

CDP__PRIVATE CDP__ONE_COPY void cdp__lock_close(cdp_lock *l) {
    if (l->mutex) l->os->threads.mutex_destroy(l->os, l->mutex);
    l->mutex = NULL;
}

CDP__PRIVATE void cdp__lock_take(cdp_lock *l) {
    if (l->mutex) l->os->threads.mutex_lock(l->os->user, l->mutex);
}

CDP__PRIVATE void cdp__lock_give(cdp_lock *l) {
    if (l->mutex) l->os->threads.mutex_unlock(l->os->user, l->mutex);
}

CDP_API CDP__ONE_COPY void cdp_lock_acquire(cdp_lock *l) {
    if (l) cdp__lock_take(l);
}

CDP_API CDP__ONE_COPY void cdp_lock_release(cdp_lock *l) {
    if (l) cdp__lock_give(l);
}

/* ---- >>os/libraries: libraries that are loaded while the program runs ------------------------ */

/* Knows: dlopen() and LoadLibrary(). Promises: a library stays loaded until it is closed; the
   result is NULL if there is no such library or function. For cdp_nccl.h and cdp_mem.h. */

#ifdef CDP_NO_OS
CDP__PRIVATE void *cdp__library_open(const char *file) {
    (void)file;
    return NULL;
}
CDP__PRIVATE void *cdp__library_find(void *library, const char *name) {
    (void)library;
    (void)name;
    return NULL;
}
CDP__PRIVATE void cdp__library_close(void *library) {
    (void)library;
}
#elif defined(_WIN32)
/* file NULL: the program itself. */
CDP__PRIVATE void *cdp__library_open(const char *file) {
    HMODULE own = NULL;
    if (file) return (void *)LoadLibraryA(file);
    GetModuleHandleExA(0, NULL, &own);
    return (void *)own;
}
CDP__PRIVATE void *cdp__library_find(void *library, const char *name) {
    const FARPROC function = GetProcAddress((HMODULE)library, name);
    void *found;
    memcpy(&found, &function, sizeof found);
    return found;
}
CDP__PRIVATE void cdp__library_close(void *library) {
    FreeLibrary((HMODULE)library);
}
#else
#include <dlfcn.h>
CDP__PRIVATE void *cdp__library_open(const char *file) {
    return dlopen(file, RTLD_NOW | RTLD_LOCAL);
}
CDP__PRIVATE void *cdp__library_find(void *library, const char *name) {
    return dlsym(library, name);
}
CDP__PRIVATE void cdp__library_close(void *library) {
    dlclose(library);
}
#endif

/* ---- >>os/file_text: text written to a file -------------------------------------------------- */

/* Knows: files of a cdp_os. Promises: after the first failure nothing more is written, and closing
   the file reports that failure. */

/* Text on its way to a file; `room` collects short pieces. */
typedef struct cdp__file_text {
    cdp__text text; /* the first member: the flush of a text gets its address */
    const cdp_os *os;
    uint64_t at;       /* file offset of the next write */
    uint64_t until_ns; /* how long to wait for the reader of a full pipe; 0: it was never full */
    int32_t fd;
    int32_t err; /* errno of the first failure */
    char room[1024];
} cdp__file_text;

#define CDP__PIPE_MS 1000u /* longest wait for the reader of a full pipe, per text */

/* The file is a full pipe: sleeps 1 ms, so that its reader can make room. False: the reader has had
   CDP__PIPE_MS. */
CDP__PRIVATE bool cdp__file_text_wait(cdp__file_text *f) {
    const uint64_t now = f->os->now_ns(f->os->user);
    if (!f->until_ns) f->until_ns = now + CDP__PIPE_MS * CDP__MS;
    if (now >= f->until_ns) return false;
    cdp__sleep_until(f->os, now + CDP__MS);
    return true;
}

CDP__PRIVATE void cdp__file_text_flush(cdp__text *t) {
    cdp__file_text *const f = (cdp__file_text *)(void *)t;
    uint64_t done = 0;
    while (!f->err && done < t->used) {
        const int64_t n =
            f->os->files.write_at(f->os->user, f->fd, f->at, f->room + done, t->used - done);
        if (n == -EAGAIN && cdp__file_text_wait(f)) continue;
        if (n <= 0) {
            f->err = n ? (int32_t)-n : EIO;
            break;
        }
        done += (uint64_t)n;
        f->at += (uint64_t)n;
    }
    t->used = 0;
}

/* Returns 0 or a positive errno. */
CDP__PRIVATE int32_t cdp__file_text_open(cdp__file_text *f, const cdp_os *os, const char *path) {
    f->text = cdp__text_of(f->room, sizeof f->room);
    f->text.flush = cdp__file_text_flush;
    f->os = os;
    f->at = f->until_ns = 0;
    f->fd = -ENOSYS;
    if (os->files.open_file)
        f->fd =
            os->files.open_file(os->user, path, CDP_FILE_WRITE | CDP_FILE_CREATE | CDP_FILE_EMPTY);
    f->err = f->fd < 0 ? -f->fd : 0;
    return f->err;
}

/* Returns 0 or the errno of the first failure since the file was opened. */
CDP__PRIVATE int32_t cdp__file_text_close(cdp__file_text *f) {
    int32_t closed;
    cdp__file_text_flush(&f->text);
    closed = f->os->files.close_file(f->os->user, f->fd);
    if (!f->err) f->err = -closed;
    return f->err;
}

CDP_API cdp_status cdp_error_record(const char *path, const char *message) {
#ifndef CDP_NO_FILES
    const cdp_error *e = cdp_last_error();
    char own[sizeof e->text + 32];
    const uint64_t now_us = cdp__os_date_us();
    cdp__file_text f;
    if (!path || !*path) return CDP_ERR_INVALID;
    cdp__format(own, sizeof own, "%s: %s", cdp_status_name(e->status), e->text);
    errno = cdp__file_text_open(&f, cdp_os_default(), path);
    if (f.err) return CDP_ERR_IO;
    cdp__text_add(&f.text, "{\"message\": {\"message\": \"");
    cdp__json_inside(&f.text, message ? message : own);
    /* torchrun prints this member */
    cdp__text_add(&f.text, "\", \"extraInfo\": {\"py_callstack\": \"");
    cdp__json_inside(&f.text, message ? message : own);
    if (!message && e->line) {
        cdp__text_add(&f.text, "\\n  at ");
        cdp__json_inside(&f.text, e->file);
        cdp__text_add(&f.text, ":%u", e->line);
    }
    /* torchrun accepts whole seconds only; cdprun reads the microseconds */
    cdp__text_add(&f.text, "\", \"timestamp\": \"%llu\", \"timestamp_us\": \"%llu\"}}}\n",
        (unsigned long long)(now_us / 1000000), (unsigned long long)now_us);
    errno = cdp__file_text_close(&f);
    return f.err ? CDP_ERR_IO : CDP_OK;
#else
    (void)path;
    (void)message;
    return CDP_ERR_UNSUPPORTED;
#endif
}

CDP_API cdp_status cdp_error_record_from_env(const char *message) {
    const char *path = getenv("TORCHELASTIC_ERROR_FILE");
    return path && *path ? cdp_error_record(path, message) : CDP_OK;
}

/* ---- >>os/loop: sockets and timers in one place ---------------------------------------------- */

/* Knows: cdp_os and locks. Promises: at most one thread sleeps in a loop; callbacks may add and
   remove any socket or timer; no system call is made for a socket without events. */

/* A socket in a loop. `ready` holds the directions worth trying: an event of the system sets a
   bit, and a call that moves no bytes clears it. So a socket with unread data costs nothing, and
   no interest in reading is ever registered or withdrawn. */
typedef struct cdp__io {
    int32_t fd;      /* -1: none */
    uint16_t ready;  /* CDP_IO_READ | CDP_IO_WRITE | CDP_IO_END */
    bool want_write; /* there is something to send */
    /* the system also watches for room to send. Only while the loop waits for it: otherwise
       every acknowledgement on the connection would be an event. */
    bool watched_write;
    /* the system reported an error: both directions became ready once, later events are ignored */
    bool broken;
    void (*func)(struct cdp__io *io); /* called when `ready` grew; may remove any io of the loop */
    void *user;
    uint32_t slot; /* index in cdp__loop.slots */
    struct cdp__io *next, *prev;
} cdp__io;

/* An event may concern a socket that was removed while the loop slept, and whose memory is in
   use for something else. So the system stores the number of a socket's slot and a use count,
   not the address of the socket. */
typedef struct cdp__loop_slot {
    cdp__io *io; /* NULL: the slot is free, next_free is the next free one */
    uint32_t used, next_free;
} cdp__loop_slot;

typedef struct cdp__timer {
    uint64_t at_ns; /* CDP__NEVER: not set */
    void (*func)(struct cdp__timer *t);
    void *user;
    struct cdp__timer *next, *prev;
} cdp__timer;

typedef struct cdp__loop {
    const cdp_os *os;
    void *watch; /* NULL: the os has no network */
    cdp__io ios; /* list heads */
    cdp__timer timers;
    uint32_t io_count;
    int32_t add_errno; /* errno of a socket that could not be watched; the next run reports it */
    cdp__loop_slot *slots;
    uint32_t slot_count, free_slot; /* free_slot: CDP__NO_SLOT when all are in use */
    cdp_ready events[CDP__MANY];    /* events being served */
    uint32_t moved;                 /* sockets that had events at the last poll */
    int32_t wake_fd[2];
    uint64_t turns; /* runs of the loop: work that is spread over several runs counts by it */
    uint32_t awake; /* wake was set and not yet cleared (atomic) */
} cdp__loop;

#define CDP__NO_SLOT UINT32_MAX
#define CDP__SLOT_BITS 20u /* low bits of the system's number: the slot; high bits: its use */

CDP__PRIVATE void *cdp__loop_owner(const cdp__loop *l, uint32_t slot) {
    return (void *)(((uintptr_t)l->slots[slot].used << CDP__SLOT_BITS | slot) + 1);
}

/* NULL: the socket was removed. */
CDP__PRIVATE cdp__io *cdp__loop_find(const cdp__loop *l, const void *owner) {
    const uint32_t slot = (uint32_t)(((uintptr_t)owner - 1) & ((1u << CDP__SLOT_BITS) - 1));
    if (slot >= l->slot_count || cdp__loop_owner(l, slot) != owner) return NULL;
    return l->slots[slot].io;
}

CDP__PRIVATE bool cdp__loop_more_slots(cdp__loop *l) {
    const uint32_t count = l->slot_count ? 2 * l->slot_count : 8;
    cdp__loop_slot *slots;
    uint32_t i;
    if (count > 1u << CDP__SLOT_BITS) return false;
    slots = (cdp__loop_slot *)cdp__alloc_zero(l->os, count * sizeof *slots);
    if (!slots) return false;
    if (l->slot_count) memcpy(slots, l->slots, l->slot_count * sizeof *slots);
    for (i = l->slot_count; i < count; ++i)
        slots[i].next_free = i + 1 < count ? i + 1 : CDP__NO_SLOT;
    l->free_slot = l->slot_count;
    l->slot_count = count;
    cdp__free(l->os, l->slots);
    l->slots = slots;
    return true;
}

CDP__PRIVATE CDP__COLD void cdp__loop_close(cdp__loop *l) {
    const cdp_os *os = l->os;
    if (!os || !l->ios.next) return; /* it was never opened */
    if (l->watch && l->wake_fd[0] >= 0) os->net.watch_remove(os->user, l->watch, l->wake_fd[0]);
    if (l->watch) os->net.watch_close(os, l->watch);
    if (l->wake_fd[1] >= 0 && l->wake_fd[1] != l->wake_fd[0])
        os->net.close_fd(os->user, l->wake_fd[1]);
    if (l->wake_fd[0] >= 0) os->net.close_fd(os->user, l->wake_fd[0]);
    cdp__free(os, l->slots);
    memset(l, 0, sizeof *l);
}

CDP__PRIVATE cdp_status cdp__loop_open(cdp__loop *l, const cdp_os *os) {
    int32_t r;
    memset(l, 0, sizeof *l);
    l->os = os;
    l->ios.next = l->ios.prev = &l->ios;
    l->timers.next = l->timers.prev = &l->timers;
    l->wake_fd[0] = l->wake_fd[1] = -1;
    l->free_slot = CDP__NO_SLOT;
    if (!os->net.watch_open)
        return cdp__fail(CDP_ERR_UNSUPPORTED, "this cdp_os has no network: set its member `net`");
    r = os->net.watch_open(os, &l->watch);
    if (r == 0 && os->net.wake_open) r = os->net.wake_open(os->user, l->wake_fd);
    if (r >= 0 && l->wake_fd[0] >= 0)
        r = os->net.watch_add(os, l->watch, l->wake_fd[0], CDP_IO_READ, NULL);
    if (r >= 0) return CDP_OK;
    cdp__loop_close(l);
    if (r == -ENOMEM) return cdp__fail_nomem("a list of descriptors to wait for", 0);
    return cdp__fail_peer(CDP_ERR_IO, -1, -r, "cannot make a list of descriptors to wait for%s",
        r == -EMFILE || r == -ENFILE ? ": too many open descriptors; raise the limit (ulimit -n)"
                                     : "");
}

/* Thread-safe. Several wake-ups before the loop runs again cost one system call. */
CDP__PRIVATE void cdp__loop_wake(cdp__loop *l) {
    if (l->wake_fd[1] >= 0 && !cdp__atomic_swap_u32(&l->awake, 1, CDP__ACQ_REL))
        l->os->net.wake_set(l->os->user, l->wake_fd[1]);
}

/* Watches `fd` from now on. The caller owns `io` and must not move or free it before
   cdp__loop_remove. */
CDP__PRIVATE void cdp__loop_add(
    cdp__loop *l, cdp__io *io, int32_t fd, void (*func)(cdp__io *io), void *user) {
    int32_t r = -ENOMEM;
    memset(io, 0, sizeof *io);
    io->slot = CDP__NO_SLOT;
    io->fd = fd;
    io->func = func;
    io->user = user;
    io->next = &l->ios;
    io->prev = l->ios.prev;
    io->prev->next = io->next->prev = io;
    ++l->io_count;
    if (l->free_slot != CDP__NO_SLOT || cdp__loop_more_slots(l)) {
        io->slot = l->free_slot;
        l->free_slot = l->slots[io->slot].next_free;
        l->slots[io->slot].io = io;
        r = l->os->net.watch_add(l->os, l->watch, fd, CDP_IO_READ, cdp__loop_owner(l, io->slot));
    }
    if (r >= 0) return;
    l->add_errno = -r;
    cdp__loop_wake(l); /* another thread may sleep in this loop */
}

CDP__PRIVATE void cdp__loop_watch(cdp__loop *l, const cdp__io *io) {
    if (io->slot != CDP__NO_SLOT)
        l->os->net.watch_change(l->os->user, l->watch, io->fd,
            CDP_IO_READ | (io->watched_write ? CDP_IO_WRITE : 0), cdp__loop_owner(l, io->slot));
}

/* The callback left bytes unread: call it once more in the next run. */
CDP__PRIVATE void cdp__loop_again(cdp__loop *l, cdp__io *io) {
    io->ready &= (uint16_t)~CDP_IO_READ;
    cdp__loop_watch(l, io);
}

/* A call moved no bytes in this direction: it is not ready until the next event. */
CDP__PRIVATE CDP__ONE_COPY void cdp__loop_used_up(cdp__loop *l, cdp__io *io, uint32_t bit) {
    io->ready &= (uint16_t)~bit;
    if (l->os->net.watch_used_up) l->os->net.watch_used_up(l->os->user, l->watch, io->fd, bit);
}

/* Waits for room to send, or for the end of an attempt to connect. */
CDP__PRIVATE void cdp__loop_want_write(cdp__loop *l, cdp__io *io) {
    io->want_write = true;
    cdp__loop_used_up(l, io, CDP_IO_WRITE);
    if (io->watched_write) return;
    io->watched_write = true;
    cdp__loop_watch(l, io);
}

/* Removes the descriptor from the loop and returns it, still open; -1: `io` had none. */
CDP__PRIVATE int32_t cdp__loop_detach(cdp__loop *l, cdp__io *io) {
    const int32_t fd = io->fd;
    if (!io->next) return -1;
    io->next->prev = io->prev;
    io->prev->next = io->next;
    io->next = io->prev = NULL;
    --l->io_count;
    if (fd >= 0) l->os->net.watch_remove(l->os->user, l->watch, fd);
    if (io->slot != CDP__NO_SLOT) {
        l->slots[io->slot].io = NULL;
        ++l->slots[io->slot].used;
        l->slots[io->slot].next_free = l->free_slot;
        l->free_slot = io->slot;
    }
    io->fd = -1;
    return fd;
}

/* Removes and closes the descriptor. Does nothing if `io` is in no loop. */
CDP__PRIVATE void cdp__loop_remove(cdp__loop *l, cdp__io *io) {
    const int32_t fd = cdp__loop_detach(l, io);
    if (fd >= 0) l->os->net.close_fd(l->os->user, fd);
}

CDP__PRIVATE CDP__ONE_COPY void cdp__loop_timer_clear(cdp__timer *t) {
    if (t->next) {
        t->next->prev = t->prev;
        t->prev->next = t->next;
        t->next = t->prev = NULL;
    }
    t->at_ns = CDP__NEVER;
}

CDP__PRIVATE CDP__ONE_COPY void cdp__loop_timer_set(
    cdp__loop *l, cdp__timer *t, uint64_t at_ns, void (*func)(cdp__timer *t), void *user) {
    cdp__loop_timer_clear(t);
    t->at_ns = at_ns;
    t->func = func;
    t->user = user;
    t->next = &l->timers;
    t->prev = l->timers.prev;
    t->prev->next = t->next->prev = t;
}

CDP__PRIVATE uint64_t cdp__loop_next_timer(const cdp__loop *l) {
    uint64_t at = CDP__NEVER;
    const cdp__timer *t;
    for (t = l->timers.next; t != &l->timers; t = t->next)
        at = cdp__min(at, t->at_ns);
    return at;
}

/* Each due timer fires once. It is cleared before its callback, which may set it again. */
CDP__PRIVATE void cdp__loop_fire_timers(cdp__loop *l) {
    const uint64_t now = l->timers.next != &l->timers ? l->os->now_ns(l->os->user) : 0;
    cdp__timer *t = l->timers.next;
    while (t != &l->timers) {
        if (t->at_ns <= now) {
            cdp__loop_timer_clear(t);
            t->func(t);
            t = l->timers.next; /* restart: the callback may have changed the list */
        } else {
            t = t->next;
        }
    }
}

CDP__PRIVATE void cdp__loop_woken(cdp__loop *l) {
    const cdp_os *os = l->os;
    os->net.wake_clear(os->user, l->wake_fd[0]);
    if (os->net.watch_used_up)
        os->net.watch_used_up(os->user, l->watch, l->wake_fd[0], CDP_IO_READ);
    cdp__atomic_store_u32(&l->awake, 0, CDP__RELEASE);
}

CDP__PRIVATE void cdp__loop_dispatch(cdp__loop *l, uint32_t count) {
    bool woken = false;
    uint32_t i;
    l->moved = 0;
    ++l->turns;
    for (i = 0; i < count; ++i) {
        cdp__io *io = l->events[i].owner ? cdp__loop_find(l, l->events[i].owner) : NULL;
        const uint32_t got = l->events[i].got;
        woken = woken || !l->events[i].owner;
        if (!io) continue;
        ++l->moved;
        io->broken = (got & CDP_IO_ERROR) != 0;
        io->ready |= (uint16_t)(io->broken ? CDP_IO_READ | CDP_IO_WRITE : got);
        if ((got & CDP_IO_WRITE) && io->watched_write && !io->broken) {
            io->watched_write = false;
            cdp__loop_watch(l, io);
        }
        io->func(io);
    }
    /* last: wake-ups during this run need no system call, because the caller polls after it */
    if (woken) cdp__loop_woken(l);
}

/* Sleeps once, until an event, a due timer, a wake-up or the deadline, then calls the callbacks
   that are due. `lock` (may be NULL) is held on entry and exit, and released during the sleep.
   One thread at a time. */
CDP__PRIVATE cdp_status cdp__loop_run(cdp__loop *l, cdp_lock *lock, uint64_t deadline_ns) {
    const cdp_os *os = l->os;
    int32_t r = -l->add_errno;
    l->add_errno = 0; /* not after the wait: another thread may add a socket meanwhile */
    if (!r) {
        deadline_ns = cdp__min(deadline_ns, cdp__loop_next_timer(l));
        cdp_lock_release(deadline_ns ? lock : NULL);
        r = os->net.watch_wait(os->user, l->watch, l->events, CDP__MANY, deadline_ns);
        cdp_lock_acquire(deadline_ns ? lock : NULL);
    }
    if (r == -ENOMEM) return cdp__fail_nomem("a list of descriptors to wait for", 0);
    if (r < 0)
        return cdp__fail_peer(CDP_ERR_IO, -1, -r, "cannot wait for %u descriptors", l->io_count);
    cdp__loop_dispatch(l, (uint32_t)r);
    cdp__loop_fire_timers(l);
    return CDP_OK;
}

/* Receive and send. A call that moves no bytes clears the ready bit. Results as in cdp_os. */
CDP__PRIVATE int64_t cdp__io_recv(cdp__loop *l, cdp__io *io, const cdp_iov *iov, uint32_t n) {
    const int64_t r = l->os->net.recv_iov(l->os->user, io->fd, iov, n);
    if (r == 0) cdp__loop_used_up(l, io, CDP_IO_READ);
    return r;
}

/* Receives one buffer. A short read emptied the socket, so its ready bit is cleared, unless the
   end of the stream was reported: that event does not repeat. */
CDP__PRIVATE int64_t cdp__io_drain(cdp__loop *l, cdp__io *io, const cdp_iov *iov) {
    const int64_t r = cdp__io_recv(l, io, iov, 1);
    if (r > 0 && (uint64_t)r < iov->bytes && !(io->ready & CDP_IO_END) && !io->broken)
        cdp__loop_used_up(l, io, CDP_IO_READ);
    return r;
}

CDP__PRIVATE CDP__ONE_COPY int64_t cdp__io_send(
    cdp__loop *l, cdp__io *io, const cdp_iov *iov, uint32_t n) {
    const int64_t r = l->os->net.send_iov(l->os->user, io->fd, iov, n);
    io->want_write = false;
    if (r == 0) cdp__loop_want_write(l, io);
    return r;
}

/* ---- >>base/bytes: fixed layouts, little-endian on every machine (pure) ---------------------- */

/* Knows: widths of integers. Promises: the same bytes on every machine, at any alignment. */

/* not a loop, so that compilers make one store of it */
CDP__PRIVATE void cdp__put_u32(uint8_t *p, uint32_t v) {
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
    p[2] = (uint8_t)(v >> 16);
    p[3] = (uint8_t)(v >> 24);
}

CDP__PRIVATE CDP__ONE_COPY void cdp__put_u64(uint8_t *p, uint64_t v) {
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
    p[2] = (uint8_t)(v >> 16);
    p[3] = (uint8_t)(v >> 24);
    p[4] = (uint8_t)(v >> 32);
    p[5] = (uint8_t)(v >> 40);
    p[6] = (uint8_t)(v >> 48);
    p[7] = (uint8_t)(v >> 56);
}

CDP__PRIVATE uint32_t cdp__get_u32(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

CDP__PRIVATE uint64_t cdp__get_u64(const uint8_t *p) {
    return (uint64_t)cdp__get_u32(p) | (uint64_t)cdp__get_u32(p + 4) << 32;
}

/* Stores a * b, the size of an array of `a` elements of `b` bytes. False if the product exceeds
   any memory. This also catches negative lengths that became unsigned, and keeps addresses from
   overflowing. */
CDP__PRIVATE bool cdp__mul_fits(uint64_t a, uint64_t b, uint64_t *out) {
    if (b && a > UINT64_MAX / 2 / b) return false;
    *out = a * b;
    return true;
}

/* This machine's byte order: 1 little-endian, 2 big-endian. */
CDP__PRIVATE uint32_t cdp__byte_order(void) {
    const uint16_t one = 1;
    uint8_t first;
    memcpy(&first, &one, 1);
    return first ? 1 : 2;
}

/* ---- >>base/hash: one hash for keys, fingerprints and seeds (pure) --------------------------- */

/* Knows: bytes. Promises: the same number from the same bytes on every machine. */

/* FNV-1a, 64 bits (Fowler, Noll, Vo): detects accidental differences, not malicious ones. */
#define CDP__HASH_START 0xcbf29ce484222325ull
CDP__PRIVATE uint64_t cdp__hash(uint64_t h, const void *data, uint64_t bytes) {
    const uint8_t *p = (const uint8_t *)data;
    uint64_t i;
    for (i = 0; i < bytes; ++i)
        h = (h ^ p[i]) * 0x100000001b3ull;
    return h;
}

/* ---- >>dtype/names: public functions of dtypes and reductions (pure) ------------------------- */

/* Knows: the table of dtypes. Promises: an answer for every value. */

CDP_API uint64_t cdp_dtype_size(cdp_dtype dtype) {
    return cdp__dtype_row_of(dtype)->bytes;
}

CDP_API const char *cdp_dtype_name(cdp_dtype dtype) {
    return cdp__dtype_row_of(dtype)->name;
}

CDP_API const char *cdp_reduce_name(cdp_reduce_op op) {
    static const char *const names[CDP_REDUCE_COUNT] = {
        "sum", "sum", "avg", "min", "max", "product", "band", "bor", "bxor", "premul sum"};
    return (uint32_t)op < CDP_REDUCE_COUNT ? names[op] : "?";
}

/* ---- >>collective/kinds: what each kind of collective is (pure) ------------------------------ */

/* Knows: one row per kind. Promises: every module reads these rows; a kind does what its row
   allows, and nothing else. */

/* Whether a kind has a root, and which way data travels. */
typedef enum cdp__root {
    CDP__ROOT_NONE,
    CDP__ROOT_SENDS,
    CDP__ROOT_RECEIVES
} cdp__root;

/* The number of elements of `in` and `out`. */
typedef enum cdp__extent {
    CDP__NOTHING,
    CDP__VECTOR,      /* `count` */
    CDP__ROOT_VECTOR, /* `count` on the root, 0 on the other ranks */
    CDP__PARTS,       /* one part per rank, of `count` or the counts that the caller gives */
    CDP__ROOT_PARTS   /* likewise on the root, 0 on the other ranks */
} cdp__extent;

/* May be done in place; if not, `in` is required. */
#define CDP__KIND_IN_PLACE 1u
#define CDP__KIND_REDUCES 2u
/* What cdp_start() takes; the others only name calls in messages and records. */
#define CDP__KIND_STARTS 4u
/* Backends of device memory have it: cdp_nccl.h. */
#define CDP__KIND_NCCL 8u

typedef struct cdp__kind {
    const char *name;
    uint8_t in, out, root, flags;
} cdp__kind;

CDP__PRIVATE const cdp__kind *cdp__kind_of(cdp_coll_kind kind) {
    enum {
        STARTS = CDP__KIND_STARTS,
        MOVES = STARTS | CDP__KIND_IN_PLACE | CDP__KIND_NCCL,
        REDUCES = MOVES | CDP__KIND_REDUCES,
        APART = STARTS | CDP__KIND_NCCL
    };
    static const cdp__kind rows[] = {
        {"nothing", CDP__NOTHING, CDP__NOTHING, CDP__ROOT_NONE, 0},
        {"allreduce", CDP__VECTOR, CDP__VECTOR, CDP__ROOT_NONE, REDUCES},
        {"broadcast", CDP__NOTHING, CDP__VECTOR, CDP__ROOT_SENDS, MOVES},
        {"allgather", CDP__VECTOR, CDP__PARTS, CDP__ROOT_NONE, MOVES},
        {"barrier", CDP__NOTHING, CDP__NOTHING, CDP__ROOT_NONE, STARTS | CDP__KIND_IN_PLACE},
        {"reduce", CDP__VECTOR, CDP__ROOT_VECTOR, CDP__ROOT_RECEIVES, REDUCES},
        {"gather", CDP__VECTOR, CDP__ROOT_PARTS, CDP__ROOT_RECEIVES, MOVES},
        {"scatter", CDP__ROOT_PARTS, CDP__VECTOR, CDP__ROOT_SENDS, MOVES},
        {"reduce_scatter", CDP__PARTS, CDP__VECTOR, CDP__ROOT_NONE, REDUCES},
        {"alltoall", CDP__PARTS, CDP__PARTS, CDP__ROOT_NONE, APART},
        {"message", CDP__NOTHING, CDP__VECTOR, CDP__ROOT_NONE, 0},
        {"?", CDP__NOTHING, CDP__NOTHING, CDP__ROOT_NONE, 0},
    };
    typedef char one_row_per_kind[sizeof rows / sizeof *rows == CDP_COLL_COUNT + 1 ? 1 : -1];
    (void)sizeof(one_row_per_kind);
    return &rows[(uint32_t)kind < CDP_COLL_COUNT ? (uint32_t)kind : (uint32_t)CDP_COLL_COUNT];
}

CDP_API const char *cdp_coll_name(cdp_coll_kind kind) {
    return cdp__kind_of(kind)->name;
}

CDP__PRIVATE bool cdp__kind_is(cdp_coll_kind k, uint32_t flag) {
    return (cdp__kind_of(k)->flags & flag) != 0;
}
CDP__PRIVATE bool cdp__kind_reduces(cdp_coll_kind k) {
    return cdp__kind_is(k, CDP__KIND_REDUCES);
}
CDP__PRIVATE bool cdp__kind_has_root(cdp_coll_kind k) {
    return cdp__kind_of(k)->root != CDP__ROOT_NONE;
}
CDP__PRIVATE bool cdp__kind_parts_in(cdp_coll_kind k) {
    return cdp__kind_of(k)->in >= CDP__PARTS;
}
CDP__PRIVATE bool cdp__kind_parts_out(cdp_coll_kind k) {
    return cdp__kind_of(k)->out >= CDP__PARTS;
}
CDP__PRIVATE bool cdp__kind_has_parts(cdp_coll_kind k) {
    return cdp__kind_parts_in(k) || cdp__kind_parts_out(k);
}
/* The parts of input and result differ, and differ by rank. */
CDP__PRIVATE bool cdp__kind_exchanges(cdp_coll_kind k) {
    return cdp__kind_parts_in(k) && cdp__kind_parts_out(k);
}

/* The elements of a buffer. `all`: those of all parts together. */
CDP__PRIVATE uint64_t cdp__extent_of(uint8_t extent, uint64_t count, uint64_t all, bool root) {
    if (extent == CDP__NOTHING) return 0;
    if ((extent == CDP__ROOT_VECTOR || extent == CDP__ROOT_PARTS) && !root) return 0;
    return extent >= CDP__PARTS ? all : count;
}

/* ---- >>collective/rounds: collectives as rounds of steps (pure) ------------------------------ */

/* Knows: numbers of ranks and elements. Promises: the contract below. */

/* An algorithm is a function of (shape, round) that lists the steps of one rank in one round.
   The contract:
   1. The messages of a round (SEND, RECV, RECV_REDUCE) are posted together. When all of them are
     done, the local steps (COPY, REDUCE, DIVIDE, SCALE) run in their order, then the next round.
   2. What one rank sends in round k, its peer receives in round k, with equal length. A round has
     at most one message per ordered pair of ranks.
   3. No message of a round writes a range that another message of that round reads or writes.
   4. The order of operands is fixed by rank, so all ranks compute the same bits, in every run.
   5. A RECV_REDUCE combines the received elements with those at its destination or, if it names
     a source, with those at its source.
   6. Exception to 3: several RECV_REDUCE may share a destination if all but the first are marked
     CDP__CHAINED. Then each element is combined in the order in which the steps are listed.
   7. A COPY from IN that is listed last may run while the messages are in flight, because none
     of them touches its destination. No algorithm relies on buffering: a send may complete only
     after its receive is posted. */
typedef enum cdp__step_kind {
    CDP__SEND = 1,
    CDP__RECV,
    CDP__RECV_REDUCE,
    CDP__COPY,
    CDP__REDUCE,
    CDP__DIVIDE,
    CDP__SCALE
} cdp__step_kind;
typedef enum cdp__buffer {
    CDP__IN = 1,
    CDP__OUT,
    CDP__TMP
} cdp__buffer;

#define CDP__SRC_FIRST 1u /* step flag: the source is the left operand */
/* step flag: has the destination of the RECV_REDUCE listed before it, and is combined after it */
#define CDP__CHAINED 2u

typedef struct cdp__step { /* relocatable: offsets and lengths in elements, never pointers */
    uint64_t src_off, dst_off, len;
    int32_t peer; /* -1 for local steps */
    uint8_t kind, src, dst, flags;
} cdp__step;

/* Which ranks of a group share a host, 2 bytes per rank. Exists only for groups that span
   several hosts and have several ranks on at least one. */
typedef struct cdp__hosts {
    uint32_t count, fewest, most; /* number of hosts; ranks of the host with the fewest, the most */
    /* ranks host by host, ordered by each host's lowest rank; the first rank of a host is marked */
    uint16_t *ranks;
} cdp__hosts;
#define CDP__HOST_BEGINS 0x8000u

typedef struct cdp__shape {
    cdp_coll_kind kind;
    cdp_reduce_op op;
    uint32_t rank, size, root;
    /* number of parts that a vector is cut into; 0: one per rank */
    uint32_t lanes;
    const cdp__hosts *hosts; /* NULL: all on one host, or irrelevant */
    uint64_t count;          /* elements, as in cdp_request */
    bool in_place;
    /* where part i begins, size + 1 entries; NULL: at i * count */
    const uint64_t *in_offs, *out_offs;
} cdp__shape;

#define CDP__ROUND_MAX 12u

typedef struct cdp__algo {
    const char *name;
    cdp_coll_kind kind;
    /* the bits of the result depend on the inputs alone, not on the length of the message nor on
       the position of an element in it */
    bool fixed;
    /* number of rounds; equal on all ranks */
    uint32_t (*rounds)(const cdp__shape *s);
    /* lists the steps of round k, returns how many */
    uint32_t (*round)(const cdp__shape *s, uint32_t k, cdp__step out[CDP__ROUND_MAX]);
    /* elements of scratch memory (TMP) */
    uint64_t (*tmp_len)(const cdp__shape *s);
} cdp__algo;

typedef struct cdp__span {
    uint64_t off, len;
} cdp__span;

/* Part i when `count` elements are cut into parts that differ by at most one element. There are
   s->lanes parts (if 0, s->size); ranks beyond that number have none. */
CDP__PRIVATE cdp__span cdp__cut(const cdp__shape *s, uint32_t i) {
    const uint32_t n = s->lanes ? s->lanes : s->size;
    const uint64_t q = s->count / n, rest = s->count % n;
    cdp__span p;
    p.off = i < n ? i * q + cdp__min(i, rest) : s->count;
    p.len = i < n ? q + (i < rest) : 0;
    return p;
}

/* For collectives in which each rank has a part of its own: where rank i's part begins, the
   parts of ranks `from` to `to` - 1, and the part of rank i. */
CDP__PRIVATE uint64_t cdp__edge(const cdp__shape *s, const uint64_t *offs, uint32_t i) {
    return offs ? offs[i] : i * s->count;
}

CDP__PRIVATE CDP__ONE_COPY cdp__span cdp__blocks(
    const cdp__shape *s, const uint64_t *offs, uint32_t from, uint32_t to) {
    cdp__span p;
    p.off = cdp__edge(s, offs, from);
    p.len = cdp__edge(s, offs, to) - p.off;
    return p;
}

CDP__PRIVATE cdp__span cdp__block_of(const cdp__shape *s, const uint64_t *offs, uint32_t i) {
    return cdp__blocks(s, offs, i, i + 1);
}

/* The part of rank i: the one that it begins or ends with or, where all ranks begin and end with
   everything, a piece of that. (Ranks of an alltoall have two: use cdp__block_of().) */
CDP__PRIVATE cdp__span cdp__part(const cdp__shape *s, uint32_t i) {
    if (cdp__kind_parts_in(s->kind)) return cdp__block_of(s, s->in_offs, i);
    if (cdp__kind_parts_out(s->kind)) return cdp__block_of(s, s->out_offs, i);
    return cdp__cut(s, i);
}

CDP__PRIVATE cdp__span cdp__first(uint64_t len) {
    cdp__span p;
    p.off = 0;
    p.len = len;
    return p;
}

CDP__PRIVATE cdp__step cdp__step_make(uint8_t kind, int32_t peer, uint8_t src, uint8_t dst,
    uint64_t src_off, uint64_t dst_off, uint64_t len) {
    cdp__step t;
    t.kind = kind;
    t.peer = peer;
    t.src = src;
    t.dst = dst;
    t.src_off = src_off;
    t.dst_off = dst_off;
    t.len = len;
    t.flags = 0;
    return t;
}

CDP__PRIVATE cdp__step cdp__step_send(uint32_t peer, uint8_t buf, cdp__span p) {
    return cdp__step_make(CDP__SEND, (int32_t)peer, buf, 0, p.off, 0, p.len);
}

CDP__PRIVATE cdp__step cdp__step_recv(uint32_t peer, uint8_t buf, cdp__span p) {
    return cdp__step_make(CDP__RECV, (int32_t)peer, 0, buf, 0, p.off, p.len);
}

/* Round 0 of most algorithms: copies the first `len` elements of this rank's input to the buffer
   that the next rounds work on, and scales them for PREMUL_SUM. */
CDP__PRIVATE uint32_t cdp__bring(
    const cdp__shape *s, uint64_t len, uint8_t dst, uint64_t dst_off, cdp__step out[]) {
    const uint8_t src = s->in_place ? CDP__OUT : CDP__IN;
    uint32_t n = 0;
    if (src != dst || dst_off) out[n++] = cdp__step_make(CDP__COPY, -1, src, dst, 0, dst_off, len);
    if (s->op == CDP_REDUCE_PREMUL_SUM)
        out[n++] = cdp__step_make(CDP__SCALE, -1, 0, dst, 0, dst_off, len);
    return n;
}

/* Divides `len` elements of a complete sum by the number of ranks if the average is wanted. Returns
   the number of steps, 0 or 1. */
CDP__PRIVATE CDP__ONE_COPY uint32_t cdp__average(
    const cdp__shape *s, uint8_t buf, uint64_t off, uint64_t len, cdp__step *out) {
    if (s->op != CDP_REDUCE_AVG) return 0;
    *out = cdp__step_make(CDP__DIVIDE, -1, 0, buf, 0, off, len);
    return 1;
}

CDP__PRIVATE uint32_t cdp__log2_up(uint32_t n) {
    uint32_t k = 0;
    while ((1ull << k) < n)
        ++k;
    return k;
}

CDP__PRIVATE uint64_t cdp__no_tmp(const cdp__shape *s) {
    (void)s;
    return 0;
}

/* Ring allreduce (Patarasuk, Yuan 2009): optimal in bytes. n parts travel round the ring. In n-1
   rounds each part collects the contribution of one rank after the other; in n-1 more rounds the
   ranks pass on the finished parts. With 3 ranks, part -> what the rank holds:
       start        round 1             round 2             rounds 3, 4
       r0: a0       r0: part 2 = r2+r0  part 1 complete     the finished parts are passed on
   Sender and receiver of a round agree, because in round k rank r receives the part that rank
   r-1 sends. */
CDP__PRIVATE uint32_t cdp__ring_rounds(const cdp__shape *s) {
    return 1 + 2 * (s->size - 1);
}

/* True if this rank's input need not be copied first: it is combined in place with received
   data. */
CDP__PRIVATE bool cdp__reads_in(const cdp__shape *s) {
    return !s->in_place && s->op != CDP_REDUCE_PREMUL_SUM && s->size > 1;
}

/* Rounds 1 .. n-1, in buffer `work`. Afterwards rank r holds the finished part r+1. */
CDP__PRIVATE uint32_t cdp__ring_reduce(
    const cdp__shape *s, uint32_t k, uint8_t work, cdp__step out[]) {
    const uint32_t n = s->size, r = s->rank, send = (r + n - (k - 1)) % n;
    const cdp__span p = cdp__part(s, (send + n - 1) % n);
    const bool from_in = cdp__reads_in(s);
    out[0] = cdp__step_send(
        (r + 1) % n, from_in && k == 1 ? (uint8_t)CDP__IN : work, cdp__part(s, send));
    out[1] = cdp__step_make(CDP__RECV_REDUCE, (int32_t)((r + n - 1) % n), from_in ? CDP__IN : 0,
        work, p.off, p.off, p.len);
    out[1].flags = CDP__SRC_FIRST; /* the running value stays the left operand all the way round */
    if (k != n - 1) return 2;
    /* this part has just been completed: divide it here, once */
    return 2 + cdp__average(s, work, p.off, p.len, out + 2);
}

CDP__PRIVATE uint32_t cdp__ring_round(const cdp__shape *s, uint32_t k, cdp__step out[]) {
    /* which part, in rounds n .. 2n-2 */
    const uint32_t n = s->size, r = s->rank, send = (r + 2 * n - k + 1) % n;
    if (k == 0) return cdp__reads_in(s) ? 0 : cdp__bring(s, s->count, CDP__OUT, 0, out);
    if (k < n) return cdp__ring_reduce(s, k, CDP__OUT, out);
    out[0] = cdp__step_send((r + 1) % n, CDP__OUT, cdp__part(s, send));
    out[1] = cdp__step_recv((r + n - 1) % n, CDP__OUT, cdp__part(s, (send + n - 1) % n));
    return 2;
}

/* Recursive doubling (Thakur, Rabenseifner, Gropp 2005): log2 n rounds of the whole vector, for
   small messages. Each rank beyond the largest power of two first adds its vector to a
   neighbour's ("folds"), and receives the result at the end. */
typedef struct cdp__fold {
    uint32_t extra; /* ranks beyond the power of two */
    uint32_t bits;  /* log2 of the power of two */
    int32_t id;     /* this rank's number among the 2^bits; -1: folded, takes no part */
} cdp__fold;

CDP__PRIVATE cdp__fold cdp__fold_of(const cdp__shape *s) {
    cdp__fold f;
    f.bits = 0;
    while ((2ull << f.bits) <= s->size)
        ++f.bits;
    f.extra = s->size - (1u << f.bits);
    if (s->rank >= 2 * f.extra)
        f.id = (int32_t)(s->rank - f.extra);
    else
        f.id = s->rank % 2 ? (int32_t)(s->rank / 2) : -1;
    return f;
}

CDP__PRIVATE uint32_t cdp__doubling_rounds(const cdp__shape *s) {
    const cdp__fold f = cdp__fold_of(s);
    return 1 + f.bits + (f.extra ? 2 : 0);
}

CDP__PRIVATE uint64_t cdp__doubling_tmp(const cdp__shape *s) {
    return s->size > 1 ? s->count : 0;
}

/* Receives a whole vector into TMP and combines it; the lower rank's vector is the left operand. */
CDP__PRIVATE uint32_t cdp__combine(const cdp__shape *s, uint32_t peer, cdp__step out[]) {
    cdp__span all;
    all.off = 0;
    all.len = s->count;
    out[0] = cdp__step_recv(peer, CDP__TMP, all);
    out[1] = cdp__step_make(CDP__REDUCE, -1, CDP__TMP, CDP__OUT, 0, 0, s->count);
    out[1].flags = peer < s->rank ? CDP__SRC_FIRST : 0;
    return 2;
}

CDP__PRIVATE uint32_t cdp__doubling_round(const cdp__shape *s, uint32_t k, cdp__step out[]) {
    const cdp__fold f = cdp__fold_of(s);
    const uint32_t first = f.extra ? 2 : 1; /* the first doubling round */
    cdp__span all;
    uint32_t m, id, peer;
    all.off = 0;
    all.len = s->count;
    if (k == 0) return cdp__bring(s, s->count, CDP__OUT, 0, out);
    if (k < first || k == first + f.bits) { /* fold, or send the result to the folded rank */
        const bool back = k != 1;
        if (s->rank >= 2 * f.extra) return 0;
        if ((s->rank % 2 == 0) == back) {
            if (!back) return cdp__combine(s, s->rank - 1, out);
            out[0] = cdp__step_recv(s->rank + 1, CDP__OUT, all);
            return 1;
        }
        out[0] = cdp__step_send(back ? s->rank - 1 : s->rank + 1, CDP__OUT, all);
        return 1;
    }
    if (f.id < 0) return 0;
    id = (uint32_t)f.id ^ (1u << (k - first));
    peer = id < f.extra ? 2 * id + 1 : id + f.extra;
    m = cdp__combine(s, peer, out);
    out[m++] = cdp__step_send(peer, CDP__OUT, all);
    if (k + 1 == first + f.bits) m += cdp__average(s, CDP__OUT, 0, s->count, out + m);
    return m;
}

/* Binomial tree: in round k, each of the 2^k ranks that have the data (counted from the root)
   sends it to one more rank. */
CDP__PRIVATE uint32_t cdp__log_rounds(const cdp__shape *s) {
    return cdp__log2_up(s->size);
}

CDP__PRIVATE uint32_t cdp__tree_round(const cdp__shape *s, uint32_t k, cdp__step out[]) {
    const uint32_t n = s->size, v = (s->rank + n - s->root) % n, half = 1u << k;
    cdp__span all;
    all.off = 0;
    all.len = s->count;
    if (v < half && half < n - v)
        out[0] = cdp__step_send((s->rank + half) % n, CDP__OUT, all);
    else if (v >= half && v - half < half)
        out[0] = cdp__step_recv((s->rank + n - half) % n, CDP__OUT, all);
    else
        return 0;
    return 1;
}

/* Ring allgather: in every round each rank passes on the part that it received last. It sends
   its own part straight from the input, and copies it meanwhile. */
CDP__PRIVATE uint32_t cdp__gather_rounds(const cdp__shape *s) {
    return s->size;
}

/* Makes all sends among the m steps read this rank's own part from the input; in the first round
   also adds its copy to the output. Returns the number of steps. */
CDP__PRIVATE CDP__ONE_COPY uint32_t cdp__gather_own(
    const cdp__shape *s, uint32_t k, uint32_t m, cdp__step out[]) {
    const cdp__span own = cdp__part(s, s->rank);
    uint32_t i;
    if (s->in_place) return m;
    for (i = 0; i < m; ++i)
        if (out[i].kind == CDP__SEND) {
            out[i].src = CDP__IN;
            out[i].src_off = 0;
        }
    if (k <= 1) out[m++] = cdp__step_make(CDP__COPY, -1, CDP__IN, CDP__OUT, 0, own.off, own.len);
    return m;
}

CDP__PRIVATE uint32_t cdp__gather_round(const cdp__shape *s, uint32_t k, cdp__step out[]) {
    const uint32_t n = s->size, r = s->rank;
    if (k == 0) return n > 1 ? 0 : cdp__gather_own(s, 0, 0, out);
    out[0] = cdp__step_send((r + 1) % n, CDP__OUT, cdp__part(s, (r + n - (k - 1)) % n));
    out[1] = cdp__step_recv((r + n - 1) % n, CDP__OUT, cdp__part(s, (r + n - k) % n));
    return k == 1 ? cdp__gather_own(s, 1, 2, out) : 2;
}

/* Binomial tree towards the root: in round k+1, every second remaining rank (counted from the
   root) sends its sum to the rank before it. The root works in OUT, the others in TMP, because
   their OUT must not change. */
CDP__PRIVATE uint8_t cdp__reduce_buffer(const cdp__shape *s) {
    return s->rank == s->root ? CDP__OUT : CDP__TMP;
}
CDP__PRIVATE uint64_t cdp__reduce_tmp(const cdp__shape *s) {
    return s->rank == s->root ? 0 : s->count;
}
CDP__PRIVATE uint32_t cdp__reduce_tree_rounds(const cdp__shape *s) {
    return 1 + cdp__log2_up(s->size);
}

CDP__PRIVATE uint32_t cdp__reduce_tree_round(const cdp__shape *s, uint32_t k, cdp__step out[]) {
    const uint32_t n = s->size, v = (s->rank + n - s->root) % n, stride = k ? 1u << (k - 1) : 0;
    const uint8_t work = cdp__reduce_buffer(s);
    uint32_t m = 0;
    if (k == 0) return cdp__bring(s, s->count, work, 0, out);
    if (v % (2 * stride) == stride) {
        out[m++] = cdp__step_send((s->rank + n - stride) % n, work, cdp__first(s->count));
    } else if (v % (2 * stride) == 0 && stride < n - v) {
        out[m] = cdp__step_recv((s->rank + stride) % n, work, cdp__first(s->count));
        out[m++].kind = CDP__RECV_REDUCE;
    }
    if (v == 0 && 2ull * stride >= n) m += cdp__average(s, work, 0, s->count, out + m);
    return m;
}

/* Gather and scatter: in each round the root exchanges one part with one other rank. All parts
   are in the root's OUT (gather) or IN (scatter). */
CDP__PRIVATE uint32_t cdp__linear_round(const cdp__shape *s, uint32_t k, cdp__step out[]) {
    const bool root = s->rank == s->root, gather = s->kind == CDP_COLL_GATHER;
    const uint32_t other = (s->root + k) % s->size;
    const cdp__span own = cdp__part(s, s->rank);
    const uint8_t parts = gather || s->in_place ? CDP__OUT : CDP__IN;
    if (k == 0) {
        if (!root || s->in_place) return 0;
        out[0] = cdp__step_make(
            CDP__COPY, -1, CDP__IN, CDP__OUT, gather ? 0 : own.off, gather ? own.off : 0, own.len);
        return 1;
    }
    if (root)
        out[0] = gather ? cdp__step_recv(other, parts, cdp__part(s, other))
                        : cdp__step_send(other, parts, cdp__part(s, other));
    else if (s->rank == other)
        out[0] = gather ? cdp__step_send(s->root, CDP__IN, cdp__first(own.len))
                        : cdp__step_recv(s->root, CDP__OUT, cdp__first(own.len));
    else
        return 0;
    return 1;
}

/* Pairwise exchange: in round k every rank sends to the rank k after it and receives from the
   rank k before it. Reduce-scatter combines received data with its own part in the order r, r-1,
   r-2, ...; only PREMUL_SUM needs scratch memory, for the scaled input. */
CDP__PRIVATE CDP__ONE_COPY uint64_t cdp__pairwise_tmp(const cdp__shape *s) {
    if (s->kind != CDP_COLL_REDUCE_SCATTER || s->op != CDP_REDUCE_PREMUL_SUM || s->in_place)
        return 0;
    return s->in_offs ? s->in_offs[s->size] : s->size * s->count;
}

CDP__PRIVATE uint32_t cdp__scatter_reduce_round(const cdp__shape *s, uint32_t k, cdp__step out[]) {
    const uint32_t n = s->size, r = s->rank;
    const bool scaled = s->op == CDP_REDUCE_PREMUL_SUM;
    const uint8_t outside = scaled ? CDP__TMP : CDP__IN,
                  src = s->in_place ? (uint8_t)CDP__OUT : outside;
    const cdp__span own = cdp__part(s, r), result = s->in_place ? own : cdp__first(own.len);
    uint32_t m = 0;
    if (k == 0) {
        if (scaled) m = cdp__bring(s, cdp__edge(s, s->in_offs, n), src, 0, out);
        if (n == 1 && !s->in_place)
            out[m++] = cdp__step_make(CDP__COPY, -1, src, CDP__OUT, own.off, 0, own.len);
    } else {
        out[m++] = cdp__step_send((r + k) % n, src, cdp__part(s, (r + k) % n));
        out[m++] = cdp__step_make(CDP__RECV_REDUCE, (int32_t)((r + n - k) % n),
            k == 1 && !s->in_place ? src : 0, CDP__OUT, own.off, result.off, result.len);
    }
    if (k && k == n - 1) m += cdp__average(s, CDP__OUT, result.off, result.len, out + m);
    return m;
}

/* The rank to send to (`back`: to receive from) at distance `stride`. With 2, 4, 8, ... ranks
   both are the same rank, so that only two ranks wait for each other; if they share a core, a
   barrier takes about a fifth less time than with a ring. */
CDP__PRIVATE uint32_t cdp__partner(const cdp__shape *s, uint32_t stride, bool back) {
    const uint32_t n = s->size, onward = back ? n - stride : stride;
    return n & (n - 1) ? (s->rank + onward) % n : s->rank ^ stride;
}

CDP__PRIVATE uint32_t cdp__alltoall_round(const cdp__shape *s, uint32_t k, cdp__step out[]) {
    const uint32_t to = cdp__partner(s, k, false), from = cdp__partner(s, k, true);
    const cdp__span there = cdp__block_of(s, s->in_offs, to),
                    here = cdp__block_of(s, s->out_offs, from);
    if (k == 0) {
        out[0] = cdp__step_make(
            CDP__COPY, -1, CDP__IN, CDP__OUT, there.off, here.off, cdp__min(there.len, here.len));
        return 1;
    }
    out[0] = cdp__step_send(to, CDP__IN, there);
    out[1] = cdp__step_recv(from, CDP__OUT, here);
    return 2;
}

/* Dissemination barrier (Hensgen, Finkel, Manber 1988): after round k, every rank has learned,
   directly or through others, that 2^(k+1) ranks have arrived. */
CDP__PRIVATE uint32_t cdp__barrier_round(const cdp__shape *s, uint32_t k, cdp__step out[]) {
    const uint32_t stride = 1u << k;
    cdp__span none;
    none.off = none.len = 0;
    out[0] = cdp__step_send(cdp__partner(s, stride, false), CDP__OUT, none);
    out[1] = cdp__step_recv(cdp__partner(s, stride, true), CDP__OUT, none);
    return 2;
}

/* ---- >>collective/rounds_fixed: reductions whose bits depend on the inputs alone (pure) ------ */

/* Knows: shapes and steps. Promises: the contract of >>collective/rounds; the same bits for all
   message sizes. */

#ifndef CDP_NO_REPRODUCIBLE

/* Allreduce, reduce and reduce-scatter whose bits depend on the inputs alone: every element is
   combined along the same tree over the ranks (that of recursive doubling), wherever it lies in
   a message. The parts are handled in waves: each rank collects all ranks' slices of its own
   part in scratch memory, one slot per rank, and combines the slots. Then the parts travel round
   the ring, or to the root. The algorithm sends as many bytes as a ring. */
#ifndef CDP__WAVE
#define CDP__WAVE 65536u /* elements of a slot; fewer for many ranks, more for huge messages */
#endif
#define CDP__TREE_STEPS 3u /* per round */

/* Returns the number of waves and stores the elements of a slot. */
CDP__PRIVATE uint32_t cdp__fixed_waves(const cdp__shape *s, uint64_t *slot) {
    uint64_t longest = cdp__part(s, 0).len;
    uint32_t i;
    for (i = 1; i < s->size && s->in_offs; ++i)
        longest = cdp__max(longest, cdp__part(s, i).len);
    *slot =
        cdp__max(cdp__min(CDP__WAVE, (32u * CDP__WAVE - 1) / s->size + 1), (longest + 1023) / 1024);
    return (uint32_t)((longest + *slot - 1) / *slot);
}

CDP__PRIVATE cdp__span cdp__fixed_slice(
    const cdp__shape *s, uint32_t i, uint64_t at, uint64_t slot) {
    cdp__span p = cdp__part(s, i);
    at = cdp__min(at, p.len);
    p.off += at;
    p.len = cdp__min(p.len - at, slot);
    return p;
}

/* TMP begins with a working copy, for operations that must not work in OUT; the slots follow. */
CDP__PRIVATE uint64_t cdp__fixed_work_len(const cdp__shape *s) {
    if (s->kind == CDP_COLL_REDUCE) return cdp__reduce_tmp(s);
    return s->kind == CDP_COLL_REDUCE_SCATTER ? cdp__pairwise_tmp(s) : 0;
}

CDP__PRIVATE uint64_t cdp__fixed_tmp(const cdp__shape *s) {
    uint64_t slot;
    const uint32_t waves = cdp__fixed_waves(s, &slot);
    return cdp__fixed_work_len(s) + (waves && s->size > 1 ? s->size * slot : 0);
}

CDP__PRIVATE uint32_t cdp__fixed_wave_rounds(const cdp__shape *s) {
    return s->size - 1 + (s->size - 1 + CDP__TREE_STEPS - 1) / CDP__TREE_STEPS;
}

CDP__PRIVATE uint32_t cdp__fixed_rounds(const cdp__shape *s) {
    uint64_t slot;
    const uint32_t last = s->kind == CDP_COLL_REDUCE_SCATTER ? 0 : s->size - 1;
    return 1 + (s->size > 1 ? cdp__fixed_waves(s, &slot) * cdp__fixed_wave_rounds(s) + last : 0);
}

/* The buffer of a tree node, which combines 2^level ranks (after folding) from node * 2^level
   on. A node that includes this rank's contribution is kept in this rank's own buffer, so the
   result ends up there; other nodes are kept in the slot of one of their ranks. */
CDP__PRIVATE cdp__step cdp__fixed_place(const cdp__shape *s, uint32_t node, uint32_t level,
    uint64_t slots, uint64_t slot, cdp__step own) {
    const cdp__fold f = cdp__fold_of(s);
    const uint32_t me = f.id < 0 ? s->rank / 2 : (uint32_t)f.id, id = node << level;
    if (me >> level == node) return own;
    return cdp__step_make(CDP__REDUCE, -1, 0, CDP__TMP, 0,
        slots + (id < f.extra ? 2 * id + 1 : id + f.extra) * slot, own.len);
}

/* Step t of the tree's n-1: combines two nodes, the lower ranks on the left. */
CDP__PRIVATE cdp__step cdp__fixed_tree_step(
    const cdp__shape *s, uint32_t t, uint64_t slots, uint64_t slot, cdp__step own) {
    const cdp__fold f = cdp__fold_of(s);
    uint32_t level = 0, node = t;
    cdp__step left = own, right = own, into;
    bool keep_left;
    if (t < f.extra) {
        keep_left = s->rank == 2 * t;
        left = cdp__step_make(CDP__REDUCE, -1, 0, CDP__TMP, 0, slots + 2 * t * slot, own.len);
        right =
            cdp__step_make(CDP__REDUCE, -1, 0, CDP__TMP, 0, slots + (2 * t + 1) * slot, own.len);
        if (s->rank == 2 * t) left = own;
        if (s->rank == 2 * t + 1) right = own;
    } else {
        for (node -= f.extra; node >= 1u << (f.bits - 1 - level); ++level)
            node -= 1u << (f.bits - 1 - level);
        left = cdp__fixed_place(s, 2 * node, level, slots, slot, own);
        right = cdp__fixed_place(s, 2 * node + 1, level, slots, slot, own);
        keep_left = right.dst != own.dst || right.dst_off != own.dst_off;
    }
    into = keep_left ? left : right;
    into.src = keep_left ? right.dst : left.dst;
    into.src_off = keep_left ? right.dst_off : left.dst_off;
    into.flags = (uint8_t)(keep_left ? 0 : CDP__SRC_FIRST);
    return into;
}

/* Lists the steps of round k of a wave; the wave begins at element `at` of every part. */
CDP__PRIVATE uint32_t cdp__fixed_wave(
    const cdp__shape *s, uint32_t k, uint64_t at, uint64_t slot, uint8_t work, cdp__step out[]) {
    const uint32_t n = s->size, r = s->rank, there = (r + k + 1) % n,
                   here = (r + 2 * n - k - 1) % n;
    const uint64_t slots = cdp__fixed_work_len(s);
    const cdp__span from = cdp__fixed_slice(s, r, at, slot);
    /* the result goes to another buffer than the input */
    const bool moved = s->kind == CDP_COLL_REDUCE_SCATTER && !s->in_place;
    const cdp__step own = cdp__step_make(CDP__COPY, -1, work, moved ? (uint8_t)CDP__OUT : work,
        from.off, moved ? from.off - cdp__part(s, r).off : from.off, from.len);
    uint32_t m = 0, t;
    if (k < n - 1) {
        out[m++] = cdp__step_send(there, work, cdp__fixed_slice(s, there, at, slot));
        out[m++] =
            cdp__step_make(CDP__RECV, (int32_t)here, 0, CDP__TMP, 0, slots + here * slot, own.len);
        if (k == 0 && moved) out[m++] = own;
        return m;
    }
    for (t = (k - (n - 1)) * CDP__TREE_STEPS; t < n - 1 && m < CDP__TREE_STEPS; ++t) {
        out[m] = cdp__fixed_tree_step(s, t, slots, slot, own);
        out[m++].kind = CDP__REDUCE;
    }
    if (t == n - 1) m += cdp__average(s, own.dst, own.dst_off, own.len, out + m);
    return m;
}

CDP__PRIVATE uint32_t cdp__fixed_round(const cdp__shape *s, uint32_t k, cdp__step out[]) {
    const uint32_t n = s->size, r = s->rank, per = cdp__fixed_wave_rounds(s);
    const uint8_t mine = s->in_place ? CDP__OUT : CDP__IN;
    uint8_t work = s->kind == CDP_COLL_REDUCE ? cdp__reduce_buffer(s) : (uint8_t)CDP__OUT;
    uint64_t all = s->count, slot;
    uint32_t from, waves;
    if (s->kind == CDP_COLL_REDUCE_SCATTER) {
        all = cdp__edge(s, s->in_offs, n);
        /* working in IN is possible unless the input must be scaled */
        work = s->op == CDP_REDUCE_PREMUL_SUM && !s->in_place ? (uint8_t)CDP__TMP : mine;
        if (n == 1) return cdp__bring(s, all, CDP__OUT, 0, out);
    }
    if (k == 0) return cdp__bring(s, all, work, 0, out);
    waves = cdp__fixed_waves(s, &slot);
    if (--k < waves * per) return cdp__fixed_wave(s, k % per, k / per * slot, slot, work, out);
    k -= waves * per;
    if (s->kind == CDP_COLL_ALLREDUCE) {
        out[0] = cdp__step_send((r + 1) % n, CDP__OUT, cdp__part(s, (r + n - k) % n));
        out[1] = cdp__step_recv((r + n - 1) % n, CDP__OUT, cdp__part(s, (r + 2 * n - k - 1) % n));
        return 2;
    }
    from = (s->root + k + 1) % n;
    if (r == s->root)
        out[0] = cdp__step_recv(from, work, cdp__part(s, from));
    else if (r == from)
        out[0] = cdp__step_send(s->root, work, cdp__part(s, from));
    else
        return 0;
    return 1;
}

#endif /* CDP_NO_REPRODUCIBLE */

/* ---- >>collective/rounds_more: algorithms for some sizes and numbers of ranks (pure) --------- */

/* Knows: shapes and steps. Promises: the contract of >>collective/rounds. */

#ifndef CDP_FEW_ALGORITHMS

/* Reduce: the first half of a ring allreduce, then every rank sends its finished part to the
   root. */
CDP__PRIVATE uint32_t cdp__reduce_ring_round(const cdp__shape *s, uint32_t k, cdp__step out[]) {
    const uint32_t n = s->size, from = k < n ? 0 : (s->root + (k - n) + 1) % n;
    const uint8_t work = cdp__reduce_buffer(s);
    if (k == 0 && cdp__reads_in(s)) return 0;
    if (k == 0) return cdp__bring(s, s->count, work, 0, out);
    if (k < n) return cdp__ring_reduce(s, k, work, out);
    if (s->rank == s->root)
        out[0] = cdp__step_recv(from, work, cdp__part(s, (from + 1) % n));
    else if (s->rank == from)
        out[0] = cdp__step_send(s->root, work, cdp__part(s, (from + 1) % n));
    else
        return 0;
    return 1;
}

/* Alltoall that exchanges parts with several peers in each round, for small messages. */
#define CDP__SPREAD_WIDTH 6u /* two messages per peer; place 0 copies this rank's part */

CDP__PRIVATE uint32_t cdp__spread_rounds(const cdp__shape *s) {
    return (s->size - 1) / CDP__SPREAD_WIDTH + 1;
}

CDP__PRIVATE uint32_t cdp__spread_round(const cdp__shape *s, uint32_t k, cdp__step out[]) {
    uint32_t i, m = 0;
    for (i = k * CDP__SPREAD_WIDTH; i < s->size && i < (k + 1) * CDP__SPREAD_WIDTH; ++i)
        m += cdp__alltoall_round(s, i, out + m);
    return m;
}

/* The elements in `parts` consecutive parts from rank `first` on, continuing at rank 0 after the
   last. */
CDP__PRIVATE uint64_t cdp__run_len(
    const cdp__shape *s, const uint64_t *offs, uint32_t first, uint32_t parts) {
    const uint32_t n = s->size, to = first + parts;
    return to <= n ? cdp__edge(s, offs, to) - cdp__edge(s, offs, first)
                   : cdp__edge(s, offs, n) - cdp__edge(s, offs, first) + cdp__edge(s, offs, to - n);
}

/* TMP holds all parts, rotated so that rank `first` comes first: copies them to their places in
   `buf` or, if `in`, from there. */
CDP__PRIVATE uint32_t cdp__turn_back(const cdp__shape *s, const uint64_t *offs, uint32_t first,
    uint8_t buf, bool in, cdp__step out[]) {
    const uint64_t at = cdp__edge(s, offs, first), head = cdp__edge(s, offs, s->size) - at;
    out[0] = in ? cdp__step_make(CDP__COPY, -1, buf, CDP__TMP, at, 0, head)
                : cdp__step_make(CDP__COPY, -1, CDP__TMP, buf, 0, at, head);
    out[1] = in ? cdp__step_make(CDP__COPY, -1, buf, CDP__TMP, 0, head, at)
                : cdp__step_make(CDP__COPY, -1, CDP__TMP, buf, head, 0, at);
    return at ? 2 : 1;
}

/* Allgather in log2 n rounds (Bruck and others 1997): each rank holds 1, 2, 4, ... consecutive
   parts that end with its own, and receives as many from the rank just before them. TMP is
   filled from its end towards its beginning. With 2, 4, 8, ... ranks the parts are those of an
   aligned group of 1, 2, 4, ... ranks, already in their final places, and the partner in the
   neighbouring group holds the next ones. */
CDP__PRIVATE uint32_t cdp__bruck_rounds(const cdp__shape *s) {
    return 1 + cdp__log2_up(s->size);
}
CDP__PRIVATE uint64_t cdp__bruck_tmp(const cdp__shape *s) {
    return s->size & (s->size - 1) ? cdp__edge(s, s->out_offs, s->size) : 0;
}

CDP__PRIVATE uint32_t cdp__paired_gather_round(const cdp__shape *s, uint32_t k, cdp__step out[]) {
    const uint32_t stride = k ? 1u << (k - 1) : 0, first = s->rank & ~(stride - 1),
                   next = first ^ stride;
    if (k == 0) return cdp__gather_round(s, 0, out);
    out[0] = cdp__step_send(
        s->rank ^ stride, CDP__OUT, cdp__blocks(s, s->out_offs, first, first + stride));
    out[1] = cdp__step_recv(
        s->rank ^ stride, CDP__OUT, cdp__blocks(s, s->out_offs, next, next + stride));
    return k == 1 ? cdp__gather_own(s, 1, 2, out) : 2;
}

CDP__PRIVATE uint32_t cdp__bruck_round(const cdp__shape *s, uint32_t k, cdp__step out[]) {
    const uint32_t n = s->size, r = s->rank, stride = k ? 1u << (k - 1) : 0,
                   parts = (uint32_t)cdp__min(stride, n - stride), first = (r + 1) % n;
    const uint64_t *offs = s->out_offs;
    const cdp__span own = cdp__part(s, r);
    const uint64_t all = cdp__bruck_tmp(s), from = cdp__run_len(s, offs, first, n - parts),
                   to = cdp__run_len(s, offs, first, n - stride - parts);
    if (!(n & (n - 1))) return cdp__paired_gather_round(s, k, out);
    if (k == 0) {
        out[0] = cdp__step_make(CDP__COPY, -1, s->in_place ? CDP__OUT : CDP__IN, CDP__TMP,
            s->in_place ? own.off : 0, all - own.len, own.len);
        return 1;
    }
    out[0] =
        cdp__step_make(CDP__SEND, (int32_t)((r + stride) % n), CDP__TMP, 0, from, 0, all - from);
    out[1] = cdp__step_make(CDP__RECV, (int32_t)((r + n - stride) % n), 0, CDP__TMP, 0, to,
        cdp__run_len(s, offs, first, n - stride) - to);
    return 2 + (2ull * stride >= n ? cdp__turn_back(s, offs, first, CDP__OUT, false, out + 2) : 0);
}

/* Gather and scatter along a binomial tree, for small messages of many ranks. In TMP each rank
   holds the parts of its subtree, its own first. Gather works from the leaves, scatter from the
   root. Counted from the root, rank v has the parent v - stride, where stride is v's lowest set
   bit. */
/* The number of ranks in the subtree of this rank. */
CDP__PRIVATE uint32_t cdp__subtree(const cdp__shape *s, uint32_t stride) {
    return (uint32_t)cdp__min(stride, s->size - (s->rank + s->size - s->root) % s->size);
}

CDP__PRIVATE uint64_t cdp__subtree_tmp(const cdp__shape *s) {
    const uint32_t v = (s->rank + s->size - s->root) % s->size;
    return cdp__run_len(s, s->kind == CDP_COLL_GATHER ? s->out_offs : s->in_offs, s->rank,
        cdp__subtree(s, v ? v & (~v + 1) : s->size));
}

CDP__PRIVATE uint32_t cdp__subtree_round(const cdp__shape *s, uint32_t k, cdp__step out[]) {
    const uint32_t n = s->size, r = s->rank, v = (r + n - s->root) % n, last = cdp__log2_up(n);
    const bool root = v == 0, gather = s->kind == CDP_COLL_GATHER;
    const uint64_t *offs = gather ? s->out_offs : s->in_offs;
    const cdp__span own = cdp__part(s, r);
    const uint32_t doublings = gather ? k - 1 : last - k, stride = k ? 1u << doublings : 0;
    uint32_t m = 0;
    if (n == 1) return cdp__linear_round(s, 0, out);
    if (k == 0 && gather)
        out[m++] = cdp__step_make(CDP__COPY, -1, root && s->in_place ? CDP__OUT : CDP__IN, CDP__TMP,
            root && s->in_place ? own.off : 0, 0, own.len);
    if (k == 0 && !gather && root)
        m = cdp__turn_back(s, offs, r, s->in_place ? CDP__OUT : CDP__IN, true, out);
    if (k && v % (2 * stride) == stride) {
        const uint64_t len = cdp__run_len(s, offs, r, cdp__subtree(s, stride));
        out[m++] = cdp__step_make(gather ? CDP__SEND : CDP__RECV, (int32_t)((r + n - stride) % n),
            gather ? CDP__TMP : 0, gather ? 0 : CDP__TMP, 0, 0, len);
    } else if (k && v % (2 * stride) == 0 && stride < n - v) {
        const uint64_t at = cdp__run_len(s, offs, r, stride),
                       len = cdp__run_len(s, offs, r, cdp__subtree(s, 2 * stride)) - at;
        out[m++] = cdp__step_make(gather ? CDP__RECV : CDP__SEND, (int32_t)((r + stride) % n),
            gather ? 0 : CDP__TMP, gather ? CDP__TMP : 0, at, at, len);
    }
    if (k == last && gather && root) m += cdp__turn_back(s, offs, r, CDP__OUT, false, out + m);
    if (k == last && !gather && !(root && s->in_place))
        out[m++] = cdp__step_make(CDP__COPY, -1, CDP__TMP, CDP__OUT, 0, 0, own.len);
    return m;
}

/* Reduce-scatter by recursive halving (Thakur, Rabenseifner, Gropp 2005), for small messages: in
   each round two ranks whose numbers differ in one bit, the highest bit first, exchange halves,
   and each keeps the half that its partner no longer needs. Ranks beyond the power of two fold
   first and receive their part at the end, as in recursive doubling. */
CDP__PRIVATE uint64_t cdp__halving_tmp(const cdp__shape *s) {
    return s->in_place || s->size == 1 ? 0 : cdp__edge(s, s->in_offs, s->size);
}

/* The parts of ranks `id` to `id` + `ids` - 1, as numbered after folding. */
CDP__PRIVATE cdp__span cdp__halving_range(
    const cdp__shape *s, const cdp__fold *f, uint32_t id, uint32_t ids) {
    return cdp__blocks(s, s->in_offs, id < f->extra ? 2 * id : id + f->extra,
        id + ids < f->extra ? 2 * (id + ids) : id + ids + f->extra);
}

/* For ranks beyond the power of two: the even ones send their whole vector to a neighbour, and
   receive their part at the end. */
CDP__PRIVATE uint32_t cdp__halving_fold(
    const cdp__shape *s, bool back, uint8_t work, cdp__step out[]) {
    const uint32_t r = s->rank;
    const uint8_t brought = cdp__reads_in(s) ? (uint8_t)CDP__IN : work;
    const cdp__span all = cdp__first(cdp__edge(s, s->in_offs, s->size)), own = cdp__part(s, r);
    if (r >= 2 * cdp__fold_of(s).extra) return 0;
    if (back && r % 2)
        out[0] = cdp__step_send(r - 1, work, cdp__part(s, r - 1));
    else if (back)
        out[0] = cdp__step_make(
            CDP__RECV, (int32_t)r + 1, 0, CDP__OUT, 0, s->in_place ? own.off : 0, own.len);
    else if (r % 2 == 0)
        out[0] = cdp__step_send(r + 1, brought, all);
    else {
        out[0] = cdp__step_make(
            CDP__RECV_REDUCE, (int32_t)r - 1, cdp__reads_in(s) ? brought : 0, work, 0, 0, all.len);
        out[0].flags = CDP__SRC_FIRST;
    }
    return 1;
}

CDP__PRIVATE uint32_t cdp__halving_round(const cdp__shape *s, uint32_t k, cdp__step out[]) {
    const cdp__fold f = cdp__fold_of(s);
    const uint32_t first = f.extra ? 2 : 1, id = (uint32_t)f.id;
    const uint8_t work = s->in_place ? CDP__OUT : CDP__TMP;
    /* this rank's input is still in IN */
    const bool fresh = cdp__reads_in(s) && k == first && s->rank >= 2 * f.extra;
    const cdp__span own = cdp__part(s, s->rank);
    cdp__span mine, theirs;
    uint32_t half, peer, m = 2;
    if (s->size == 1) return cdp__scatter_reduce_round(s, 0, out);
    if (k == 0 && cdp__reads_in(s)) return 0;
    if (k == 0) return cdp__bring(s, cdp__edge(s, s->in_offs, s->size), work, 0, out);
    if (k < first || k == first + f.bits) return cdp__halving_fold(s, k >= first, work, out);
    if (f.id < 0) return 0;
    half = 1u << (f.bits - 1 - (k - first));
    peer = id ^ half;
    mine = cdp__halving_range(s, &f, id & ~(half - 1), half);
    theirs = cdp__halving_range(s, &f, peer & ~(half - 1), half);
    peer = peer < f.extra ? 2 * peer + 1 : peer + f.extra;
    out[0] = cdp__step_send(peer, fresh ? (uint8_t)CDP__IN : work, theirs);
    out[1] = cdp__step_make(
        CDP__RECV_REDUCE, (int32_t)peer, fresh ? CDP__IN : 0, work, mine.off, mine.off, mine.len);
    out[1].flags = peer < s->rank ? CDP__SRC_FIRST : 0;
    if (half > 1) return m;
    m += cdp__average(s, work, mine.off, mine.len, out + m);
    if (!s->in_place) out[m++] = cdp__step_make(CDP__COPY, -1, work, CDP__OUT, own.off, 0, own.len);
    return m;
}

/* Allreduce as a reduce-scatter by recursive halving and an allgather by recursive doubling
   (Rabenseifner 2004): hardly more bytes than a ring, in 2 log2 n rounds. The vector is cut into
   one part per rank that is not folded. */
CDP__PRIVATE uint32_t cdp__both_rounds(const cdp__shape *s) {
    const cdp__fold f = cdp__fold_of(s);
    return 1 + 2 * f.bits + (f.extra ? 2 : 0);
}

CDP__PRIVATE cdp__span cdp__both_range(
    const cdp__shape *s, uint32_t bits, uint32_t id, uint32_t ids) {
    const uint64_t q = s->count >> bits, rest = s->count - (q << bits);
    cdp__span p;
    p.off = id * q + cdp__min(id, rest);
    p.len = ids * q + cdp__min(id + ids, rest) - cdp__min(id, rest);
    return p;
}

CDP__PRIVATE uint32_t cdp__both_round(const cdp__shape *s, uint32_t k, cdp__step out[]) {
    const cdp__fold f = cdp__fold_of(s);
    const uint32_t first = f.extra ? 2 : 1, j = k - first, id = (uint32_t)f.id;
    /* this rank's input is still in IN */
    const bool from_in = cdp__reads_in(s),
               fresh = from_in && k == (s->rank < 2 * f.extra ? 1 : first);
    const cdp__span all = cdp__first(s->count);
    uint32_t half, peer;
    cdp__span mine, theirs;
    if (k == 0) return from_in ? 0 : cdp__bring(s, s->count, CDP__OUT, 0, out);
    if (k < first || k == first + 2 * f.bits) { /* as in recursive doubling */
        const bool back = k >= first, odd = s->rank % 2 != 0;
        if (s->rank >= 2 * f.extra) return 0;
        if (odd == back)
            out[0] = cdp__step_send(
                back ? s->rank - 1 : s->rank + 1, (uint8_t)(fresh ? CDP__IN : CDP__OUT), all);
        else
            out[0] = cdp__step_make(back ? CDP__RECV : CDP__RECV_REDUCE,
                (int32_t)(back ? s->rank + 1 : s->rank - 1), fresh ? CDP__IN : 0, CDP__OUT, 0, 0,
                all.len);
        if (!back && odd) out[0].flags = CDP__SRC_FIRST;
        return 1;
    }
    if (f.id < 0) return 0;
    half = 1u << (j < f.bits ? f.bits - 1 - j : j - f.bits);
    peer = id ^ half;
    mine = cdp__both_range(s, f.bits, id & ~(half - 1), half);
    theirs = cdp__both_range(s, f.bits, peer & ~(half - 1), half);
    peer = peer < f.extra ? 2 * peer + 1 : peer + f.extra;
    if (j >= f.bits) {
        out[0] = cdp__step_send(peer, CDP__OUT, mine);
        out[1] = cdp__step_recv(peer, CDP__OUT, theirs);
        return 2;
    }
    out[0] = cdp__step_send(peer, (uint8_t)(fresh ? CDP__IN : CDP__OUT), theirs);
    out[1] = cdp__step_make(CDP__RECV_REDUCE, (int32_t)peer, fresh ? CDP__IN : 0, CDP__OUT,
        mine.off, mine.off, mine.len);
    out[1].flags = peer < s->rank ? CDP__SRC_FIRST : 0;
    if (half > 1) return 2;
    return 2 + cdp__average(s, CDP__OUT, mine.off, mine.len, out + 2);
}

/* For ranks that read each other's memory: each rank reads its part of all vectors in place and
   combines CDP__DIRECT_WIDTH of them at once, so that the result is written once; then it copies
   the finished parts in the same way. Elements are combined in the order of the ring, or of
   pairwise exchange, so the result has the same bits. */
#define CDP__DIRECT_WIDTH 3u /* two messages per peer, and a division, make a round */

CDP__PRIVATE uint32_t cdp__direct_waves(const cdp__shape *s) {
    return (s->size - 1 + CDP__DIRECT_WIDTH - 1) / CDP__DIRECT_WIDTH;
}
CDP__PRIVATE uint32_t cdp__direct_rounds(const cdp__shape *s) {
    return 1 + cdp__direct_waves(s) * (s->kind == CDP_COLL_ALLREDUCE ? 2 : 1);
}

/* The buffer that peers read. `copies`: the reduction is over, or there is none. */
CDP__PRIVATE uint8_t cdp__direct_source(const cdp__shape *s, bool copies) {
    if (s->kind == CDP_COLL_REDUCE_SCATTER && !s->in_place)
        return s->op == CDP_REDUCE_PREMUL_SUM ? CDP__TMP : CDP__IN;
    return s->kind == CDP_COLL_ALLREDUCE && !copies && cdp__reads_in(s) ? CDP__IN : CDP__OUT;
}

CDP__PRIVATE uint32_t cdp__direct_round(const cdp__shape *s, uint32_t k, cdp__step out[]) {
    const uint32_t n = s->size, r = s->rank, waves = cdp__direct_waves(s);
    const bool scatter = s->kind == CDP_COLL_REDUCE_SCATTER, gather = s->kind == CDP_COLL_ALLGATHER,
               copies = gather || k > waves;
    const uint8_t src = cdp__direct_source(s, copies);
    const cdp__span own = cdp__part(s, r);
    const uint64_t result = scatter && !s->in_place ? 0 : own.off;
    uint32_t first, d, m = 0;
    if (k == 0 && scatter) return cdp__scatter_reduce_round(s, 0, out);
    if (k == 0 && gather) return cdp__gather_round(s, 0, out);
    if (k == 0) return cdp__ring_round(s, 0, out);
    first = (k > waves ? k - waves - 1 : k - 1) * CDP__DIRECT_WIDTH + 1;
    for (d = first; d < n && d < first + CDP__DIRECT_WIDTH; ++d) {
        const uint32_t above = (r + d) % n, below = (r + n - d) % n, to = scatter ? above : below,
                       from = scatter ? below : above;
        out[m++] = cdp__step_send(to, src, copies ? own : cdp__part(s, to));
        if (copies) {
            out[m++] = cdp__step_recv(from, CDP__OUT, cdp__part(s, from));
            continue;
        }
        out[m] = cdp__step_make(CDP__RECV_REDUCE, (int32_t)from,
            d == 1 && src != CDP__OUT ? src : 0, CDP__OUT, own.off, result, own.len);
        out[m++].flags = (uint8_t)(d > first ? CDP__CHAINED : 0);
    }
    if (!copies && k == waves) m += cdp__average(s, CDP__OUT, result, own.len, out + m);
    return gather ? cdp__gather_own(s, k, m, out) : m;
}

/* For small operations of ranks that share memory: every rank sends its vector to all others at
   once, so that each sleeping rank is woken once, and combines all vectors in TMP along the tree
   of recursive doubling. The list of messages and local steps is cut into rounds; up to 4 ranks
   need one round (and one before it to scale). */
CDP__PRIVATE uint32_t cdp__once_units(const cdp__shape *s) {
    return 2 * (s->size - 1)
        + (s->kind == CDP_COLL_ALLREDUCE ? s->size + 2 : s->kind == CDP_COLL_ALLGATHER);
}
CDP__PRIVATE uint32_t cdp__once_before(const cdp__shape *s) {
    return s->op == CDP_REDUCE_PREMUL_SUM && s->size > 1;
}
CDP__PRIVATE uint32_t cdp__once_rounds(const cdp__shape *s) {
    return cdp__once_before(s)
        + (s->size > 1 ? (cdp__once_units(s) + CDP__ROUND_MAX - 1) / CDP__ROUND_MAX : 1);
}
CDP__PRIVATE uint64_t cdp__once_tmp(const cdp__shape *s) {
    return s->kind == CDP_COLL_ALLREDUCE && s->size > 1 ? s->size * s->count : 0;
}

/* Step t of the tree's n-1. Ranks beyond the power of two fold first; a combined pair is kept in
   the place of the lower rank. */
CDP__PRIVATE cdp__step cdp__once_combine(const cdp__shape *s, uint32_t t) {
    const cdp__fold f = cdp__fold_of(s);
    uint32_t stride = 1, half = (1u << f.bits) / 2, left = 2 * t, right = 2 * t + 1;
    if (t >= f.extra) {
        for (t -= f.extra; t >= half; half /= 2, stride *= 2)
            t -= half;
        left = 2 * stride * t;
        right = left + stride;
        left += left < f.extra ? left : f.extra;
        right += right < f.extra ? right : f.extra;
    }
    return cdp__step_make(
        CDP__REDUCE, -1, CDP__TMP, CDP__TMP, right * s->count, left * s->count, s->count);
}

CDP__PRIVATE uint32_t cdp__once_round(const cdp__shape *s, uint32_t k, cdp__step out[]) {
    const uint32_t n = s->size, r = s->rank, before = cdp__once_before(s), pairs = n - 1,
                   units = cdp__once_units(s);
    const bool gather = s->kind == CDP_COLL_ALLGATHER, reduce = s->kind == CDP_COLL_ALLREDUCE,
               cast = s->kind == CDP_COLL_BROADCAST;
    const uint8_t whole = s->in_place || cast ? CDP__OUT : CDP__IN;
    const uint8_t mine = before ? (uint8_t)CDP__TMP : whole;
    const uint64_t length = reduce || cast ? s->count : 0;
    const cdp__span own = gather ? cdp__part(s, r) : cdp__first(length);
    const uint64_t whole_at = gather && s->in_place ? own.off : 0;
    const uint64_t mine_at = before ? r * s->count : whole_at;
    uint32_t m = 0, u = (k - before) * CDP__ROUND_MAX;
    if (n == 1 && gather) return cdp__gather_round(s, 0, out);
    if (n == 1) return reduce ? cdp__bring(s, s->count, CDP__OUT, 0, out) : 0;
    if (k < before) return cdp__bring(s, own.len, CDP__TMP, r * s->count, out);
    for (; u < units && u < (k - before + 1) * CDP__ROUND_MAX; ++u) {
        const uint32_t to = (r + u / 2 + 1) % n, from = (r + n - u / 2 - 1) % n,
                       step = u - 2 * pairs;
        const cdp__span theirs = gather ? cdp__part(s, from) : own;
        if (cast && (u % 2 ? from : r) != s->root) continue;
        if (u < 2 * pairs && u % 2 == 0)
            out[m++] = cdp__step_make(CDP__SEND, (int32_t)to, mine, 0, mine_at, 0, own.len);
        else if (u < 2 * pairs)
            out[m++] = cdp__step_make(CDP__RECV, (int32_t)from, 0, reduce ? CDP__TMP : CDP__OUT, 0,
                reduce ? from * s->count : theirs.off, theirs.len);
        else if (step == 0 && !before && !(gather && s->in_place))
            out[m++] = cdp__step_make(CDP__COPY, -1, mine, reduce ? CDP__TMP : CDP__OUT, mine_at,
                reduce ? r * s->count : own.off, own.len);
        else if (step && step < n)
            out[m++] = cdp__once_combine(s, step - 1);
        else if (step == n)
            m += cdp__average(s, CDP__TMP, 0, s->count, out + m);
        else if (step == n + 1)
            out[m++] = cdp__step_make(CDP__COPY, -1, CDP__TMP, CDP__OUT, 0, 0, s->count);
    }
    return m;
}

#endif /* CDP_FEW_ALGORITHMS */

/* ---- >>collective/hosts: collectives of several hosts whose ranks share memory (pure) -------- */

/* Knows: which ranks share a host. Promises: rounds that obey the contract of algo, and send each
   byte between two hosts once. */

#ifndef CDP_FEW_ALGORITHMS

/* In three phases: the ranks of each host combine their vectors in shared memory; hosts exchange
   each byte once; the result spreads in shared memory. Each phase is an algorithm from above, run
   among fewer ranks. In a large allreduce, rank i of each host has part i of the vector and
   exchanges it with rank i of the other hosts, so that all ranks share the network traffic.
   Otherwise one rank acts for its host: the root, or the first rank of the host.
       2 hosts, ranks 0 1 | 2 3      inside               between              inside
       part 0 of rank 0, 2           0 = 0+1, 2 = 2+3     0 = 2 = 0+1+2+3      to 1, 3
       part 1 of rank 1, 3           1 = 1+0, 3 = 3+2     1 = 3 = 1+0+3+2      to 0, 2 */
/* Where a rank is: its host, and its number among the ranks of that host. The root, if it is on
   this host, has number 0. */
typedef struct cdp__placement {
    /* first: index of the host's first rank in the list; ranks: their number on the host */
    uint32_t host, first, ranks, at;
} cdp__placement;

CDP__PRIVATE cdp__placement cdp__placement_of(
    const cdp__shape *s, uint32_t rank, const cdp__placement *root) {
    const uint16_t *list = s->hosts->ranks;
    cdp__placement p;
    uint32_t i;
    bool there = false;
    p.host = p.first = p.at = 0;
    for (i = 0; i < s->size; ++i) {
        if (i && list[i] >= CDP__HOST_BEGINS) {
            if (there) break;
            ++p.host;
            p.first = i;
        }
        if (list[i] % CDP__HOST_BEGINS != rank) continue;
        there = true;
        p.at = i - p.first;
    }
    p.ranks = i - p.first;
    if (root && root->host == p.host) p.at = (p.at + p.ranks - root->at) % p.ranks;
    return p;
}

CDP__PRIVATE uint32_t cdp__rank_on(
    const cdp__shape *s, const cdp__placement *root, uint32_t host, uint32_t at) {
    const uint16_t *list = s->hosts->ranks;
    uint32_t left = host;
    if (host == root->host) at = (at + root->at) % root->ranks;
    if (s->hosts->fewest == s->hosts->most)
        return list[host * s->hosts->most + at] % CDP__HOST_BEGINS;
    while (left)
        left -= *++list >= CDP__HOST_BEGINS;
    return list[at] % CDP__HOST_BEGINS;
}

/* Phase 0, 1 or 2 of an operation, as an operation among fewer ranks. `p` is the place of this
   rank or, for counting rounds, of a rank on the largest host. Input is scaled in phase 0, and
   sums are divided in phase 1. */
typedef struct cdp__phase {
    cdp__shape s;
    uint32_t (*round)(const cdp__shape *s, uint32_t k, cdp__step out[CDP__ROUND_MAX]);
    uint32_t rounds, skip; /* its rounds; of these, left out at the beginning */
    uint64_t off;          /* where its vector begins in that of the whole operation */
} cdp__phase;

CDP__PRIVATE cdp__phase cdp__phase_of(const cdp__shape *s, uint32_t part, bool lanes,
    const cdp__placement *p, const cdp__placement *root) {
    const uint32_t hosts = s->hosts->count;
    const bool sums = cdp__kind_reduces(s->kind);
    cdp__phase f;
    f.s = *s;
    f.s.hosts = NULL;
    f.s.lanes = lanes ? s->hosts->fewest : 0;
    f.s.rank = p->at;
    f.s.size = p->ranks;
    f.s.root = 0;
    f.skip = 0;
    f.off = 0;
    if (s->op == (part == 1 ? CDP_REDUCE_PREMUL_SUM : CDP_REDUCE_AVG)) f.s.op = CDP_REDUCE_SUM;
    if (part == 1) {
        const cdp__span own = lanes ? cdp__part(&f.s, p->at) : cdp__first(s->count);
        f.off = own.off;
        f.s.count = own.len;
        f.s.rank = p->host;
        f.s.size = hosts;
        f.s.root = root->host;
        f.s.lanes = 0;
        f.s.in_place = true;
        f.skip = sums; /* without its first round: the data is already in the right buffer */
        if (s->kind == CDP_COLL_REDUCE) {
            const bool ring = hosts > 2 && s->count >= 65536;
            f.round = ring ? cdp__reduce_ring_round : cdp__reduce_tree_round;
            f.rounds = ring ? cdp__ring_rounds(&f.s) : cdp__reduce_tree_rounds(&f.s);
        } else if (lanes) {
            f.round = hosts & (hosts - 1) ? cdp__ring_round : cdp__both_round;
            f.rounds = hosts & (hosts - 1) ? cdp__ring_rounds(&f.s) : cdp__both_rounds(&f.s);
        } else {
            f.round = s->kind == CDP_COLL_BARRIER ? cdp__barrier_round : cdp__tree_round;
            if (sums) f.round = cdp__doubling_round;
            f.rounds = sums ? cdp__doubling_rounds(&f.s) : cdp__log_rounds(&f.s);
        }
    } else if (lanes) {
        f.round = cdp__direct_round;
        f.rounds = 1 + cdp__direct_waves(&f.s);
        f.skip = part ? f.rounds : 0;
        f.rounds += part ? f.rounds - 1 : 0;
    } else {
        f.round = part ? cdp__tree_round : cdp__reduce_tree_round;
        f.rounds = part ? cdp__log_rounds(&f.s) : cdp__reduce_tree_rounds(&f.s);
        if (s->kind == (part ? CDP_COLL_REDUCE : CDP_COLL_BROADCAST)) f.rounds = 0;
    }
    return f;
}

CDP__PRIVATE uint32_t cdp__phase_rounds(
    const cdp__shape *s, uint32_t part, bool lanes, const cdp__placement *root) {
    cdp__placement p = *root;
    p.ranks = s->hosts->most;
    {
        const cdp__phase f = cdp__phase_of(s, part, lanes, &p, root);
        return f.rounds - f.skip;
    }
}

/* The rank that acts for the first host. */
CDP__PRIVATE cdp__placement cdp__head_of(const cdp__shape *s) {
    return cdp__placement_of(s, cdp__kind_has_root(s->kind) ? s->root : 0, NULL);
}

CDP__PRIVATE uint32_t cdp__phases_count(const cdp__shape *s, bool lanes) {
    const cdp__placement root = cdp__head_of(s);
    return cdp__phase_rounds(s, 0, lanes, &root) + cdp__phase_rounds(s, 1, lanes, &root)
        + cdp__phase_rounds(s, 2, lanes, &root);
}

CDP__PRIVATE uint32_t cdp__phases_round(
    const cdp__shape *s, uint32_t k, bool lanes, cdp__step out[]) {
    const cdp__placement root = cdp__head_of(s), me = cdp__placement_of(s, s->rank, &root);
    /* OUT of ranks other than the root must not change */
    const uint8_t work = s->kind == CDP_COLL_REDUCE ? cdp__reduce_buffer(s) : 0;
    cdp__phase f;
    uint32_t part, rounds, n, i, m = 0;
    if (k == 0 && work) return cdp__reduce_tree_round(s, 0, out);
    for (part = 0; k >= (rounds = cdp__phase_rounds(s, part, lanes, &root)); ++part)
        k -= rounds;
    f = cdp__phase_of(s, part, lanes, &me, &root);
    /* this rank takes no part: its host has fewer ranks, or another rank acts for the host */
    if (k + f.skip >= f.rounds || (part == 1 && me.at >= (lanes ? s->hosts->fewest : 1))) return 0;
    n = (f.round)(&f.s, k + f.skip, out);
    for (i = 0; i < n; ++i) {
        cdp__step t = out[i];
        if (!t.len && (s->count || t.peer < 0)) continue; /* both sides leave out empty messages */
        if (t.peer >= 0)
            t.peer = (int32_t)(part == 1 ? cdp__rank_on(s, &root, (uint32_t)t.peer, me.at)
                                         : cdp__rank_on(s, &root, me.host, (uint32_t)t.peer));
        t.src_off += f.off;
        t.dst_off += f.off;
        if (t.src && work) t.src = work;
        if (t.dst && work) t.dst = work;
        out[m++] = t;
    }
    return m;
}

CDP__PRIVATE uint32_t cdp__lanes_rounds(const cdp__shape *s) {
    return cdp__phases_count(s, true);
}
CDP__PRIVATE uint32_t cdp__lanes_round(const cdp__shape *s, uint32_t k, cdp__step out[]) {
    return cdp__phases_round(s, k, true, out);
}
CDP__PRIVATE uint32_t cdp__leaders_rounds(const cdp__shape *s) {
    return cdp__phases_count(s, false);
}
CDP__PRIVATE uint32_t cdp__leaders_round(const cdp__shape *s, uint32_t k, cdp__step out[]) {
    return cdp__phases_round(s, k, false, out);
}

/* Allgather where all hosts have equally many ranks: the i-th ranks of all hosts form a ring
   that passes on their parts. Each rank sends the part that it received last to the other ranks
   of its host, CDP__DIRECT_WIDTH at once, while the next part is in flight. */
CDP__PRIVATE uint32_t cdp__hosts_waves(const cdp__shape *s) {
    return (s->hosts->most + CDP__DIRECT_WIDTH - 2) / CDP__DIRECT_WIDTH;
}

/* `host` and `at` wrap around. */
CDP__PRIVATE int32_t cdp__even_rank(const cdp__shape *s, uint32_t host, uint32_t at) {
    return s->hosts->ranks[host % s->hosts->count * s->hosts->most + at % s->hosts->most]
        % CDP__HOST_BEGINS;
}

CDP__PRIVATE cdp__span cdp__even_block(const cdp__shape *s, uint32_t host, uint32_t at) {
    return cdp__part(s, (uint32_t)cdp__even_rank(s, host, at));
}

CDP__PRIVATE uint32_t cdp__hosts_gather_rounds(const cdp__shape *s) {
    return 1 + s->hosts->count * cdp__hosts_waves(s);
}

CDP__PRIVATE uint32_t cdp__hosts_gather_round(const cdp__shape *s, uint32_t k, cdp__step out[]) {
    const cdp__placement me = cdp__placement_of(s, s->rank, NULL);
    const uint32_t n = s->hosts->count, waves = cdp__hosts_waves(s), j = (k - 1) / waves,
                   host = me.host + n - j, end = ((k - 1) % waves + 1) * CDP__DIRECT_WIDTH;
    cdp__span last;
    uint32_t d = end - CDP__DIRECT_WIDTH + 1, m = 0;
    if (k == 0) return cdp__gather_own(s, 0, 0, out);
    last = cdp__even_block(s, host, me.at);
    if (d == 1 && j + 1 < n) {
        out[m++] = cdp__step_send((uint32_t)cdp__even_rank(s, me.host + 1, me.at), CDP__OUT, last);
        out[m++] = cdp__step_recv((uint32_t)cdp__even_rank(s, me.host + n - 1, me.at), CDP__OUT,
            cdp__even_block(s, host + n - 1, me.at));
    }
    for (; d < me.ranks && d <= end; ++d) {
        const uint32_t from = me.at + me.ranks - d;
        out[m++] = cdp__step_send((uint32_t)cdp__even_rank(s, me.host, me.at + d), CDP__OUT, last);
        out[m++] = cdp__step_recv(
            (uint32_t)cdp__even_rank(s, me.host, from), CDP__OUT, cdp__even_block(s, host, from));
    }
    return m;
}

/* Reduce-scatter where all hosts have equally many ranks: for one host after the other, its own
   first, a rank combines the parts for the rank of the same number there, and sends it the sum.
   TMP: the scaled input, then data in flight. */
CDP__PRIVATE uint32_t cdp__hosts_scatter_rounds(const cdp__shape *s) {
    return s->hosts->count * (cdp__hosts_waves(s) + 1);
}

CDP__PRIVATE uint64_t cdp__hosts_scatter_tmp(const cdp__shape *s) {
    uint64_t longest = 0;
    uint32_t i;
    for (i = 0; i < s->size; ++i)
        longest = cdp__max(longest, cdp__part(s, i).len);
    return cdp__pairwise_tmp(s) + longest;
}

CDP__PRIVATE uint32_t cdp__hosts_scatter_round(const cdp__shape *s, uint32_t k, cdp__step out[]) {
    const cdp__placement me = cdp__placement_of(s, s->rank, NULL);
    const uint32_t n = s->hosts->count, per = cdp__hosts_waves(s) + 1, at = k < per ? k : k + 1,
                   j = (at - 1) / per, host = me.host + j, wave = at % per;
    const uint8_t outside = s->op == CDP_REDUCE_PREMUL_SUM ? CDP__TMP : CDP__IN;
    const uint8_t src = s->in_place ? (uint8_t)CDP__OUT : outside;
    const cdp__span own = cdp__part(s, s->rank), there = cdp__even_block(s, host, me.at);
    const uint64_t result = s->in_place ? own.off : 0, way = cdp__pairwise_tmp(s);
    uint32_t d = (wave - 1) * CDP__DIRECT_WIDTH + 1, i, m = 0;
    if (k == 0) return cdp__scatter_reduce_round(s, 0, out);
    if (!wave) {
        out[m++] = cdp__step_make(
            CDP__SEND, cdp__even_rank(s, host, me.at), CDP__TMP, 0, way, 0, there.len);
        out[m++] = cdp__step_make(CDP__RECV_REDUCE, cdp__even_rank(s, me.host + n - j, me.at), 0,
            CDP__OUT, 0, result, own.len);
        if (j == n - 1) m += cdp__average(s, CDP__OUT, result, own.len, out + m);
        return m;
    }
    for (i = 0; d < me.ranks && i < CDP__DIRECT_WIDTH; ++d, ++i) {
        out[m++] = cdp__step_send((uint32_t)cdp__even_rank(s, me.host, me.at + d), src,
            cdp__even_block(s, host, me.at + d));
        out[m] = cdp__step_make(CDP__RECV_REDUCE, cdp__even_rank(s, me.host, me.at + me.ranks - d),
            d == 1 && (j || !s->in_place) ? src : 0, j ? CDP__TMP : CDP__OUT, there.off,
            j ? way : result, there.len);
        out[m++].flags = i ? CDP__CHAINED : 0;
    }
    return m;
}

#endif /* CDP_FEW_ALGORITHMS */

/* ---- >>collective/select: the choice of an algorithm, equal on all ranks (pure) -------------- */

/* Knows: what each algorithm is good at, as a table. Promises: the same choice on all ranks, from
   inputs that are equal on all. */

enum {
    CDP__RING,
    CDP__DOUBLING,
    CDP__TREE,
    CDP__GATHER,
    CDP__DISSEMINATION,
    CDP__REDUCE_TREE,
    CDP__LINEAR_GATHER,
    CDP__LINEAR_SCATTER,
    CDP__PAIRWISE_REDUCE,
    CDP__PAIRWISE,
    CDP__DIRECT,
    CDP__FIXED_ALLREDUCE,
    CDP__FIXED_REDUCE,
    CDP__FIXED_SCATTER,
    /* not with CDP_FEW_ALGORITHMS */
    CDP__REDUCE_RING,
    CDP__BRUCK,
    CDP__TREE_GATHER,
    CDP__TREE_SCATTER,
    CDP__HALVING,
    CDP__SPREAD,
    CDP__RABENSEIFNER,
    CDP__DIRECT_ALL,
    CDP__DIRECT_SCATTER,
    CDP__DIRECT_GATHER,
    CDP__FLAT,
    CDP__FLAT_GATHER,
    CDP__FLAT_BARRIER,
    CDP__FLAT_BROADCAST,
    /* for several hosts */
    CDP__LANES,
    CDP__LEADERS,
    CDP__HOSTS_BROADCAST,
    CDP__HOSTS_BARRIER,
    CDP__HOSTS_REDUCE,
    CDP__HOSTS_GATHER,
    CDP__HOSTS_SCATTER,
    CDP__ALGO_COUNT
};

static const cdp__algo cdp__algos[] = {
    {"ring", CDP_COLL_ALLREDUCE, false, cdp__ring_rounds, cdp__ring_round, cdp__no_tmp},
    {"recursive doubling", CDP_COLL_ALLREDUCE, true, cdp__doubling_rounds, cdp__doubling_round,
        cdp__doubling_tmp},
    {"binomial tree", CDP_COLL_BROADCAST, true, cdp__log_rounds, cdp__tree_round, cdp__no_tmp},
    {"ring", CDP_COLL_ALLGATHER, true, cdp__gather_rounds, cdp__gather_round, cdp__no_tmp},
    {"dissemination", CDP_COLL_BARRIER, true, cdp__log_rounds, cdp__barrier_round, cdp__no_tmp},
    {"binomial tree", CDP_COLL_REDUCE, false, cdp__reduce_tree_rounds, cdp__reduce_tree_round,
        cdp__reduce_tmp},
    {"linear", CDP_COLL_GATHER, true, cdp__gather_rounds, cdp__linear_round, cdp__no_tmp},
    {"linear", CDP_COLL_SCATTER, true, cdp__gather_rounds, cdp__linear_round, cdp__no_tmp},
    {"pairwise", CDP_COLL_REDUCE_SCATTER, false, cdp__gather_rounds, cdp__scatter_reduce_round,
        cdp__pairwise_tmp},
    {"pairwise", CDP_COLL_ALLTOALL, true, cdp__gather_rounds, cdp__alltoall_round, cdp__no_tmp},
    {"direct", CDP_COLL_SEND, true, cdp__log_rounds, cdp__tree_round, cdp__no_tmp},
#ifdef CDP_NO_REPRODUCIBLE /* removed constants keep their numbers */
    {"?", CDP_COLL_NONE, false, NULL, NULL, NULL}, {"?", CDP_COLL_NONE, false, NULL, NULL, NULL},
    {"?", CDP_COLL_NONE, false, NULL, NULL, NULL},
#else
    {"fixed order", CDP_COLL_ALLREDUCE, true, cdp__fixed_rounds, cdp__fixed_round, cdp__fixed_tmp},
    {"fixed order", CDP_COLL_REDUCE, true, cdp__fixed_rounds, cdp__fixed_round, cdp__fixed_tmp},
    {"fixed order", CDP_COLL_REDUCE_SCATTER, true, cdp__fixed_rounds, cdp__fixed_round,
        cdp__fixed_tmp},
#endif
#ifndef CDP_FEW_ALGORITHMS
    {"ring", CDP_COLL_REDUCE, false, cdp__ring_rounds, cdp__reduce_ring_round, cdp__reduce_tmp},
    {"Bruck", CDP_COLL_ALLGATHER, true, cdp__bruck_rounds, cdp__bruck_round, cdp__bruck_tmp},
    {"binomial tree", CDP_COLL_GATHER, true, cdp__bruck_rounds, cdp__subtree_round,
        cdp__subtree_tmp},
    {"binomial tree", CDP_COLL_SCATTER, true, cdp__bruck_rounds, cdp__subtree_round,
        cdp__subtree_tmp},
    {"recursive halving", CDP_COLL_REDUCE_SCATTER, false, cdp__doubling_rounds, cdp__halving_round,
        cdp__halving_tmp},
    {"spread", CDP_COLL_ALLTOALL, true, cdp__spread_rounds, cdp__spread_round, cdp__no_tmp},
    {"halving and doubling", CDP_COLL_ALLREDUCE, false, cdp__both_rounds, cdp__both_round,
        cdp__no_tmp},
    {"direct", CDP_COLL_ALLREDUCE, false, cdp__direct_rounds, cdp__direct_round, cdp__no_tmp},
    {"direct", CDP_COLL_REDUCE_SCATTER, false, cdp__direct_rounds, cdp__direct_round,
        cdp__pairwise_tmp},
    {"direct", CDP_COLL_ALLGATHER, true, cdp__direct_rounds, cdp__direct_round, cdp__no_tmp},
    {"at once", CDP_COLL_ALLREDUCE, true, cdp__once_rounds, cdp__once_round, cdp__once_tmp},
    {"at once", CDP_COLL_ALLGATHER, true, cdp__once_rounds, cdp__once_round, cdp__once_tmp},
    {"at once", CDP_COLL_BARRIER, true, cdp__once_rounds, cdp__once_round, cdp__once_tmp},
    {"at once", CDP_COLL_BROADCAST, true, cdp__once_rounds, cdp__once_round, cdp__once_tmp},
    {"hierarchical", CDP_COLL_ALLREDUCE, false, cdp__lanes_rounds, cdp__lanes_round, cdp__no_tmp},
    {"leaders", CDP_COLL_ALLREDUCE, false, cdp__leaders_rounds, cdp__leaders_round,
        cdp__doubling_tmp},
    {"hierarchical", CDP_COLL_BROADCAST, true, cdp__leaders_rounds, cdp__leaders_round,
        cdp__no_tmp},
    {"hierarchical", CDP_COLL_BARRIER, true, cdp__leaders_rounds, cdp__leaders_round, cdp__no_tmp},
    {"hierarchical", CDP_COLL_REDUCE, false, cdp__leaders_rounds, cdp__leaders_round,
        cdp__reduce_tmp},
    {"hierarchical", CDP_COLL_ALLGATHER, true, cdp__hosts_gather_rounds, cdp__hosts_gather_round,
        cdp__no_tmp},
    {"hierarchical", CDP_COLL_REDUCE_SCATTER, false, cdp__hosts_scatter_rounds,
        cdp__hosts_scatter_round, cdp__hosts_scatter_tmp},
#endif
    {"?", CDP_COLL_NONE, false, NULL, NULL, NULL}, /* an algorithm of another build */
};

CDP__PRIVATE const cdp__algo *cdp__algo_at(uint32_t i) {
    return &cdp__algos[cdp__min(i, sizeof cdp__algos / sizeof cdp__algos[0] - 1)];
}

#define CDP__SMALL UINT64_MAX        /* in a row: the group's small_bytes */
#define CDP__TINY (UINT64_MAX - 1)   /* in a row: a quarter of CDP__SMALL */
#define CDP__LITTLE (UINT64_MAX - 2) /* in a row: a sixteenth of CDP__SMALL */
/* up to this size, the parts of 64 ranks are below the default expose_bytes and are copied */
#define CDP__PARTS_COPIED (4u << 20)

/* A row of the table. The first row that matches an operation chooses its algorithm; 0 stands
   for any number of bytes or ranks. */
typedef struct cdp__row {
    uint64_t max_bytes;
    uint32_t max_ranks;
    uint8_t algo;
    uint8_t only; /* CDP__POWERS, ...: the group must have all these properties */
} cdp__row;
#define CDP__POWERS 1u    /* 2, 4, 8, ... ranks: with others it would send much more */
#define CDP__SHARED 2u    /* all ranks read each other's memory */
#define CDP__SAME_HOST 4u /* all ranks are on one host */
#define CDP__HOSTS 8u     /* several hosts, at least one with several ranks */
#define CDP__UNIFORM 16u  /* all hosts have equally many ranks */

/* The built-in rows. The caller's own rows (cdp_group_desc.choices) come before them. */
#ifdef CDP_FEW_ALGORITHMS
static const cdp__row cdp__rows[] = {
    {CDP__SMALL, 0, CDP__DOUBLING, 0},
    {0, 0, CDP__RING, 0},
    {0, 0, CDP__FIXED_ALLREDUCE, 0},
    {0, 0, CDP__TREE, 0},
    {0, 0, CDP__DISSEMINATION, 0},
    {0, 0, CDP__DIRECT, 0},
    {0, 0, CDP__GATHER, 0},
    {0, 0, CDP__REDUCE_TREE, 0},
    {0, 0, CDP__FIXED_REDUCE, 0},
    {0, 0, CDP__LINEAR_GATHER, 0},
    {0, 0, CDP__LINEAR_SCATTER, 0},
    {0, 0, CDP__PAIRWISE_REDUCE, 0},
    {0, 0, CDP__FIXED_SCATTER, 0},
    {0, 0, CDP__PAIRWISE, 0},
};
#else
static const cdp__row cdp__rows[] = {
    /* with more ranks, fewer rounds matter more */
    {CDP__LITTLE, 4, CDP__FLAT, CDP__SAME_HOST},
    {CDP__LITTLE, 4, CDP__FLAT_BROADCAST, CDP__SAME_HOST},
    {CDP__LITTLE, 4, CDP__DIRECT_SCATTER, CDP__SAME_HOST},
    {0, 7, CDP__FLAT_BARRIER, CDP__SAME_HOST},
    {CDP__TINY, 4, CDP__FLAT_GATHER, CDP__SAME_HOST},
    {CDP__TINY, 0, CDP__LEADERS, CDP__HOSTS},
    {0, 0, CDP__LANES, CDP__HOSTS},
    {CDP__TINY, 0, CDP__DOUBLING, 0},
    /* its rounds grow with the ranks, so it pays only if the parts are long enough to be exposed */
    {0, 8, CDP__DIRECT_ALL, CDP__SHARED},
    {CDP__PARTS_COPIED, 0, CDP__RABENSEIFNER, CDP__SHARED},
    {0, 0, CDP__DIRECT_ALL, CDP__SHARED},
    {CDP__SMALL, 0, CDP__DOUBLING, 0},
    {0, 2, CDP__RING, 0},
    {1u << 20, 16, CDP__RABENSEIFNER, CDP__POWERS},
    {0, 16, CDP__RING, 0},
    {8u << 20, 0, CDP__RABENSEIFNER, CDP__POWERS},
    {1u << 19, 0, CDP__RABENSEIFNER, 0},
    {0, 0, CDP__RING, 0},
    {0, 0, CDP__FIXED_ALLREDUCE, 0},
    {0, 0, CDP__HOSTS_BROADCAST, CDP__HOSTS},
    {0, 0, CDP__TREE, 0},
    {0, 0, CDP__HOSTS_BARRIER, CDP__HOSTS},
    {0, 0, CDP__DISSEMINATION, 0},
    {0, 0, CDP__DIRECT, 0},
    {CDP__TINY, 0, CDP__BRUCK, CDP__UNIFORM},
    {0, 16, CDP__HOSTS_GATHER, CDP__UNIFORM},
    {CDP__SMALL, 0, CDP__BRUCK, CDP__UNIFORM},
    {0, 0, CDP__HOSTS_GATHER, CDP__UNIFORM},
    {0, 2, CDP__GATHER, 0},
    {CDP__SMALL, 16, CDP__BRUCK, 0},
    {0, 8, CDP__DIRECT_GATHER, CDP__SHARED},
    {CDP__PARTS_COPIED, 0, CDP__BRUCK, CDP__SHARED},
    {0, 0, CDP__DIRECT_GATHER, CDP__SHARED},
    {8u << 20, 16, CDP__BRUCK, CDP__POWERS},
    {0, 16, CDP__GATHER, 0},
    {4u << 20, 0, CDP__BRUCK, 0},
    {0, 0, CDP__GATHER, 0},
    {0, 0, CDP__HOSTS_REDUCE, CDP__HOSTS},
    {CDP__SMALL, 0, CDP__REDUCE_TREE, 0},
    {0, 16, CDP__REDUCE_RING, 0},
    {1u << 20, 0, CDP__REDUCE_TREE, 0},
    {0, 0, CDP__REDUCE_RING, 0},
    {0, 0, CDP__FIXED_REDUCE, 0},
    {0, 8, CDP__LINEAR_GATHER, 0},
    {4u << 20, 0, CDP__TREE_GATHER, 0},
    {0, 0, CDP__LINEAR_GATHER, 0},
    {0, 8, CDP__LINEAR_SCATTER, 0},
    {CDP__SMALL, 0, CDP__TREE_SCATTER, 0},
    {0, 0, CDP__LINEAR_SCATTER, 0},
    {CDP__TINY, 0, CDP__HALVING, CDP__UNIFORM},
    {0, 16, CDP__HOSTS_SCATTER, CDP__UNIFORM},
    {CDP__SMALL, 0, CDP__HALVING, CDP__UNIFORM},
    {0, 0, CDP__HOSTS_SCATTER, CDP__UNIFORM},
    {0, 2, CDP__PAIRWISE_REDUCE, 0},
    {CDP__SMALL, 16, CDP__HALVING, 0},
    {0, 8, CDP__DIRECT_SCATTER, CDP__SHARED},
    {CDP__PARTS_COPIED, 0, CDP__HALVING, CDP__SHARED},
    {0, 0, CDP__DIRECT_SCATTER, CDP__SHARED},
    {1u << 20, 16, CDP__HALVING, CDP__POWERS},
    {0, 16, CDP__PAIRWISE_REDUCE, 0},
    {4u << 20, 0, CDP__HALVING, CDP__POWERS},
    {1u << 18, 0, CDP__HALVING, 0},
    {0, 0, CDP__PAIRWISE_REDUCE, 0},
    {0, 0, CDP__FIXED_SCATTER, 0},
    {CDP__SMALL, 0, CDP__SPREAD, 0},
    {0, 0, CDP__PAIRWISE, 0},
};
#endif

CDP__PRIVATE const cdp__row *cdp__row_at(uint32_t i) {
    return i < sizeof cdp__rows / sizeof cdp__rows[0] ? &cdp__rows[i] : NULL;
}

/* The inputs of a choice; equal on all ranks. */
typedef struct cdp__choosing {
    const cdp__row *rows; /* the caller's own rows */
    uint32_t row_count;
    uint64_t small_bytes;
    bool reproducible; /* only algorithms whose bits depend on the inputs alone */
} cdp__choosing;

CDP__PRIVATE uint64_t cdp__row_bytes(const cdp__choosing *c, const cdp__row *row) {
    return row->max_bytes < CDP__LITTLE ? row->max_bytes
                                        : c->small_bytes >> 2 * (CDP__SMALL - row->max_bytes);
}

/* Returns the algorithm for an operation: that of the first row that matches it. `bytes`: length of
   the vector that is reduced or broadcast, or of all ranks' parts together. `is`: the properties of
   the group, as in cdp__row.only. */
CDP__PRIVATE uint32_t cdp__select(
    const cdp__choosing *c, cdp_coll_kind kind, uint64_t bytes, uint32_t ranks, uint8_t is) {
    uint32_t i;
    if (!(ranks & (ranks - 1))) is |= CDP__POWERS;
    for (i = 0;; ++i) {
        const cdp__row *row = i < c->row_count ? &c->rows[i] : cdp__row_at(i - c->row_count);
        const cdp__algo *a;
        /* every kind has a row for all sizes, whose algorithm has a fixed order of operands */
        CDP_ASSERT(row);
        a = cdp__algo_at(row->algo);
        if (a->kind != kind || (c->reproducible && !a->fixed)
            || (row->max_ranks && ranks > row->max_ranks) || (row->only & ~is))
            continue;
        if (row->max_bytes && bytes > cdp__row_bytes(c, row)) continue;
        return row->algo;
    }
}

/* ---- >>message/header: one header for all messages (pure) ------------------------------------ */

/* Knows: bytes, names of operations and algorithms. Promises: decoded messages were checked. */

typedef enum cdp__message_type {
    CDP__MESSAGE_DATA = 1, /* a piece of a payload follows */
    CDP__MESSAGE_REMOTE =
        2, /* a token and a length follow: the receiver reads the payload itself */
    CDP__MESSAGE_FAILURE = 3, /* an encoded error follows: the channel is broken */
    /* The next ones have no body, and are neither counted nor limited by the window. */
    CDP__MESSAGE_CREDIT = 4,  /* only the field `ack` is used */
    CDP__MESSAGE_ASK = 5,     /* the window is exhausted: send CREDIT when half of it is free */
    CDP__MESSAGE_READ = 6,    /* the receiver has read the payload of the last REMOTE */
    CDP__MESSAGE_REFUSED = 7, /* the receiver cannot read that payload: send it as DATA */
    CDP__MESSAGE_LEAVE = 8,   /* the sender has left the channel */
    CDP__MESSAGE_LIMIT = 9,   /* the sender has too many unexpected streams */
    /* The next ones have a body, and are neither counted nor limited by the window. They use the
       world's channel. */
    CDP__MESSAGE_WAIT = 10,    /* the sender waits for the receiver, see >>failure/records */
    CDP__MESSAGE_ENDPOINT = 11 /* the answer to a WAIT */
} cdp__message_type;

/* The header of a message. The fields that name the call are equal on all ranks of an operation. */
typedef struct cdp__head {
    uint64_t channel;
    uint64_t seq, count;
    /* uneven parts: a hash of their lengths, or 1 if the lengths are not known to all ranks;
       else 0 */
    uint64_t parts;
    uint32_t bytes; /* length of the body that follows */
    uint32_t ack;   /* bytes of this channel that the sender has read from the receiver, mod 2^32 */
    uint32_t round, root;
    uint8_t type, kind, dtype, op, algo;
} cdp__head;

#define CDP__HEAD_BYTES 64u
#define CDP__HEAD_MAGIC 0x4d706463u /* "cdpM" */
#define CDP__HEAD_LITTLE_ENDIAN 1u  /* byte order of payloads; room for a second one */
#define CDP__FAILURE_MAX 640u       /* largest body of a FAILURE message */
#define CDP__REMOTE_BYTES 16u       /* body of a REMOTE message */

/* Layout, little-endian: 0 magic, 4 version, 5 type, 6 byte order, 7 bytes of authentication
   code behind the body (always 0 today), 8 channel, 16 seq, 24 count, 32 parts, 40 bytes, 44 ack,
   48 round, 52 root, 56 kind, 57 dtype, 58 op, 59 algo, 60 reserved. */
CDP__PRIVATE void cdp__head_encode(const cdp__head *h, uint8_t out[CDP__HEAD_BYTES]) {
    cdp__put_u32(out, CDP__HEAD_MAGIC);
    out[4] = CDP_WIRE_VERSION;
    out[5] = h->type;
    out[6] = CDP__HEAD_LITTLE_ENDIAN;
    out[7] = 0;
    cdp__put_u64(out + 8, h->channel);
    cdp__put_u64(out + 16, h->seq);
    cdp__put_u64(out + 24, h->count);
    cdp__put_u64(out + 32, h->parts);
    cdp__put_u32(out + 40, h->bytes);
    cdp__put_u32(out + 44, h->ack);
    cdp__put_u32(out + 48, h->round);
    cdp__put_u32(out + 52, h->root);
    out[56] = h->kind;
    out[57] = h->dtype;
    out[58] = h->op;
    out[59] = h->algo;
    cdp__put_u32(out + 60, 0);
}

/* The shorter header of a message in an eager slot: the slot stores channel and length, and
   operations with uneven parts have no count. */
#define CDP__SLOT_HEAD 30u
CDP__PRIVATE void cdp__slot_head_encode(const cdp__head *h, uint8_t out[CDP__SLOT_HEAD]) {
    out[0] = h->kind;
    out[1] = h->dtype;
    out[2] = h->op;
    out[3] = h->algo;
    out[4] = h->parts != 0;
    out[5] = 0;
    cdp__put_u32(out + 6, h->round);
    cdp__put_u32(out + 10, h->root);
    cdp__put_u64(out + 14, h->seq);
    cdp__put_u64(out + 22, h->parts ? h->parts : h->count);
}

CDP__PRIVATE void cdp__slot_head_decode(const uint8_t in[CDP__SLOT_HEAD], cdp__head *h) {
    const uint64_t count = cdp__get_u64(in + 22);
    memset(h, 0, sizeof *h);
    h->type = CDP__MESSAGE_DATA;
    h->kind = in[0];
    h->dtype = in[1];
    h->op = in[2];
    h->algo = in[3];
    h->round = cdp__get_u32(in + 6);
    h->root = cdp__get_u32(in + 10);
    h->seq = cdp__get_u64(in + 14);
    if (in[4])
        h->parts = count;
    else
        h->count = count;
}

/* The longest body that a message of this type may have. */
CDP__PRIVATE uint32_t cdp__body_max(uint8_t type) {
    switch (type) {
    case CDP__MESSAGE_DATA: return 1u << 30;
    case CDP__MESSAGE_REMOTE: return CDP__REMOTE_BYTES;
    case CDP__MESSAGE_FAILURE:
    case CDP__MESSAGE_WAIT:
    case CDP__MESSAGE_ENDPOINT: return CDP__FAILURE_MAX;
    default: return 0;
    }
}

/* Returns false if the bytes are no valid header of this version. */
CDP__PRIVATE bool cdp__head_decode(const uint8_t in[CDP__HEAD_BYTES], cdp__head *h) {
    h->type = in[5];
    h->channel = cdp__get_u64(in + 8);
    h->seq = cdp__get_u64(in + 16);
    h->count = cdp__get_u64(in + 24);
    h->parts = cdp__get_u64(in + 32);
    h->bytes = cdp__get_u32(in + 40);
    h->ack = cdp__get_u32(in + 44);
    h->round = cdp__get_u32(in + 48);
    h->root = cdp__get_u32(in + 52);
    h->kind = in[56];
    h->dtype = in[57];
    h->op = in[58];
    h->algo = in[59];
    return cdp__get_u32(in) == CDP__HEAD_MAGIC && in[4] == CDP_WIRE_VERSION
        && in[6] == CDP__HEAD_LITTLE_ENDIAN && in[7] == 0 && h->type >= CDP__MESSAGE_DATA
        && h->type <= CDP__MESSAGE_ENDPOINT && h->bytes <= cdp__body_max(h->type)
        && (h->type != CDP__MESSAGE_REMOTE || h->bytes == CDP__REMOTE_BYTES);
}

/* True if both headers name the same call; rounds, lengths and types may differ. */
CDP__PRIVATE bool cdp__same_call(const cdp__head *a, const cdp__head *b) {
    return a->kind == b->kind && a->dtype == b->dtype && a->op == b->op && a->algo == b->algo
        && a->root == b->root && a->seq == b->seq && a->count == b->count && a->parts == b->parts;
}

/* Buckets of a ddp store their number in the field of the root, if the operation has none. So an
   error is reported if ranks reduce different buckets that happen to have equal sizes. */
#define CDP__TAG_BUCKET 0xdd000000u
CDP__PRIVATE bool cdp__root_is_bucket(uint32_t root) {
    return (root & 0xff000000u) == CDP__TAG_BUCKET;
}

/* Makes a text like "allreduce #17 of 4194304 x f32 sum, ring". */
CDP__PRIVATE void cdp__call_text(const cdp__head *h, char *out, uint64_t size) {
    cdp__text t = cdp__text_of(out, size);
    const cdp_coll_kind kind = (cdp_coll_kind)h->kind;
    cdp__text_add(&t, "%s #%llu", cdp_coll_name(kind), (unsigned long long)h->seq);
    if (kind == CDP_COLL_BARRIER) return;
    cdp__text_add(
        &t, " of %llu x %s", (unsigned long long)h->count, cdp_dtype_name((cdp_dtype)h->dtype));
    if (h->parts == 1) cdp__text_add(&t, " in uneven parts");
    if (h->parts > 1) cdp__text_add(&t, " in uneven parts (%llx)", (unsigned long long)h->parts);
    if (cdp__kind_reduces(kind)) cdp__text_add(&t, " %s", cdp_reduce_name((cdp_reduce_op)h->op));
    if (kind == CDP_COLL_SEND) cdp__text_add(&t, " with tag %u", h->root);
    if (cdp__kind_has_root(kind))
        cdp__text_add(&t, " %s rank %u",
            cdp__kind_of(kind)->root == CDP__ROOT_SENDS ? "from" : "to", h->root);
    if (cdp__root_is_bucket(h->root) && (h->root & 0xffffu) == 0xffffu)
        cdp__text_add(&t, " beside the buckets of ddp %u", h->root >> 16 & 0xffu);
    else if (cdp__root_is_bucket(h->root))
        cdp__text_add(&t, " for bucket %u of ddp %u", h->root & 0xffffu, h->root >> 16 & 0xffu);
    if (kind == CDP_COLL_SEND) return;
    if (cdp__algo_at(h->algo)->kind == CDP_COLL_BARRIER)
        cdp__text_add(&t, ", in device memory");
    else if (cdp__kind_reduces(kind) && !cdp__kind_has_parts(kind))
        cdp__text_add(&t, ", %s", cdp__algo_at(h->algo)->name);
}

/* ---- >>failure/records: records of failures and waits, as sent to other ranks (pure) --------- */

/* Knows: the layout of three messages: FAILURE (a group is broken, and why), WAIT (the sender waits
   for the receiver) and ENDPOINT (the answer: which rank keeps the receiver waiting, at the end
   of the chain). Promises: decoders accept any bytes of any length and check every field; a
   decoded record is safe to store and print. Texts are made from records in this section; no
   code parses them. */

/* Identifies a call. Ranks that take part in the same operation have equal fingerprints. */
typedef struct cdp__fingerprint {
    uint8_t kind, dtype, op, algo; /* kind CDP_COLL_NONE: the call is not known */
    uint32_t root;                 /* or tag, or bucket */
    uint64_t seq, count;
    /* uneven parts: a hash of their lengths, or 1 if the lengths are not known to all ranks */
    uint64_t parts;
} cdp__fingerprint;

/* A position in a channel: operation and round. */
typedef struct cdp__position {
    uint64_t channel, seq;
    uint32_t round;
} cdp__position;

/* Rank `waiter` waits for rank `target` to reach the position `at`. */
typedef struct cdp__wait {
    int32_t waiter, target;
    cdp__position at;
} cdp__wait;

/* Why a chain of waits ends at a rank ("it"). */
typedef enum cdp__why {
    CDP__WHY_TEXT,   /* there is no chain: the record's text says what happened */
    CDP__WHY_SILENT, /* it has not answered: stopped, dead or not reachable */
    CDP__WHY_BUSY,   /* it answers and waits for no rank: it computes, or makes another call */
    CDP__WHY_SENT,   /* it did what the waiter waits for, so the link between the two is cut */
    CDP__WHY_CIRCLE, /* it waits for a rank that waits for it */
    /* it left its group after an earlier failure; `named` is the rank to blame for that */
    CDP__WHY_EARLIER,
    CDP__WHY_TURN,    /* no rank: the operation was queued behind another one on this rank */
    CDP__WHY_CALLS,   /* it makes another call */
    CDP__WHY_AWAITED, /* a lost or silent rank was still starting, and waited for this one */
    /* both it and rank 0 were lost before they were ready: either may be the cause */
    CDP__WHY_FIRST,
    CDP__WHY_LEFT, /* it has left the group and announced that */
    CDP__WHY_COUNT
} cdp__why;

typedef struct cdp__endpoint {
    int32_t named; /* the rank at the end; -1: none */
    uint8_t why;   /* cdp__why */
    uint8_t hops;  /* ranks that passed on this answer */
    /* of these, ranks whose receive from any rank could wait for several, and chose this one */
    uint8_t picks;
    cdp__wait last; /* the last wait of the chain */
} cdp__endpoint;

#define CDP__FAILURE_TEXT_SENT 400u /* bytes of a text that is sent, with a final zero */
#if CDP_ERROR_TEXT < 400            /* bytes of a text that is kept */
#define CDP__FAILURE_TEXT CDP_ERROR_TEXT
#else
#define CDP__FAILURE_TEXT CDP__FAILURE_TEXT_SENT
#endif

typedef struct cdp__failure_record {
    cdp_status status;
    int32_t observer; /* the rank that saw the failure */
    int32_t peer;     /* the peer for which the observer waited or which it lost; -1: none */
    cdp__endpoint end;
    uint64_t domain;  /* the group that is broken, identified by its channel */
    cdp__position at; /* the observer's position */
    cdp__fingerprint call;
    cdp__fingerprint other; /* CDP__WHY_CALLS: the call of the named rank */
    uint32_t rounds, group_size, timeout_ms;
    int32_t sys_errno;
    uint64_t moved, expected; /* bytes of the awaited message: transferred, and in total */
    uint8_t hops;             /* ranks that passed the record on */
    uint8_t corrections;      /* how often the blame was corrected */
    bool sending;             /* the observer waited for `peer` to receive, not to send */
    char text[CDP__FAILURE_TEXT];
} cdp__failure_record;

#define CDP__FINGERPRINT_BYTES 32u
#define CDP__WAIT_AT_BYTES 24u
#define CDP__WAIT_END_BYTES 40u
#define CDP__FAILURE_HEAD 192u /* bytes of an encoded record without its text */
#define CDP__FAILURE_BYTES (CDP__FAILURE_HEAD + CDP__FAILURE_TEXT)
#define CDP__WAIT_CALLS 8u
#define CDP__WAIT_BYTES (CDP__WAIT_AT_BYTES + 8u + CDP__WAIT_CALLS * CDP__FINGERPRINT_BYTES)
#define CDP__ANSWER_BYTES (CDP__WAIT_AT_BYTES + CDP__WAIT_END_BYTES + 8u)

CDP__PRIVATE void cdp__fingerprint_encode(const cdp__fingerprint *f, uint8_t *out) {
    out[0] = f->kind;
    out[1] = f->dtype;
    out[2] = f->op;
    out[3] = f->algo;
    cdp__put_u32(out + 4, f->root);
    cdp__put_u64(out + 8, f->seq);
    cdp__put_u64(out + 16, f->count);
    cdp__put_u64(out + 24, f->parts);
}

CDP__PRIVATE bool cdp__fingerprint_decode(const uint8_t *in, cdp__fingerprint *f) {
    f->kind = in[0];
    f->dtype = in[1];
    f->op = in[2];
    f->algo = in[3];
    f->root = cdp__get_u32(in + 4);
    f->seq = cdp__get_u64(in + 8);
    f->count = cdp__get_u64(in + 16);
    f->parts = cdp__get_u64(in + 24);
    return f->kind < CDP_COLL_COUNT && f->dtype < CDP_DTYPE_COUNT && f->op < CDP_REDUCE_COUNT
        && f->algo <= CDP__ALGO_COUNT;
}

/* True if both name the same call. A receive states the size of its buffer, not of the message,
   so lengths of messages may differ. */
CDP__PRIVATE bool cdp__fingerprint_same(const cdp__fingerprint *a, const cdp__fingerprint *b) {
    return a->kind == b->kind && a->dtype == b->dtype && a->op == b->op && a->algo == b->algo
        && a->root == b->root && a->seq == b->seq && a->parts == b->parts
        && (a->count == b->count || a->kind == CDP_COLL_SEND);
}

/* True if both ranks know their call number `seq` and the calls differ. */
CDP__PRIVATE bool cdp__fingerprint_differs(const cdp__fingerprint *a, const cdp__fingerprint *b) {
    return a->kind != CDP_COLL_NONE && b->kind != CDP_COLL_NONE && a->seq == b->seq
        && !cdp__fingerprint_same(a, b);
}

CDP__PRIVATE void cdp__position_encode(const cdp__position *at, uint8_t *out) {
    cdp__put_u64(out, at->channel);
    cdp__put_u64(out + 8, at->seq);
    cdp__put_u32(out + 16, at->round);
    cdp__put_u32(out + 20, 0);
}

CDP__PRIVATE bool cdp__position_decode(const uint8_t *in, cdp__position *at) {
    at->channel = cdp__get_u64(in);
    at->seq = cdp__get_u64(in + 8);
    at->round = cdp__get_u32(in + 16);
    return cdp__get_u32(in + 20) == 0;
}

/* Both positions are of one channel: true if a is at b or beyond. */
CDP__PRIVATE bool cdp__position_reached(const cdp__position *a, const cdp__position *b) {
    return a->seq > b->seq || (a->seq == b->seq && a->round >= b->round);
}

CDP__PRIVATE bool cdp__position_same(const cdp__position *a, const cdp__position *b) {
    return a->channel == b->channel && a->seq == b->seq && a->round == b->round;
}

CDP__PRIVATE bool cdp__rank_valid(int32_t rank, uint32_t world_size) {
    return rank >= -1 && (rank < 0 || (uint32_t)rank < world_size);
}

CDP__PRIVATE void cdp__endpoint_encode(const cdp__endpoint *e, uint8_t *out) {
    cdp__put_u32(out, (uint32_t)e->named);
    out[4] = e->why;
    out[5] = e->hops;
    out[6] = e->picks;
    out[7] = 0;
    cdp__put_u32(out + 8, (uint32_t)e->last.waiter);
    cdp__put_u32(out + 12, (uint32_t)e->last.target);
    cdp__position_encode(&e->last.at, out + 16);
}

CDP__PRIVATE bool cdp__endpoint_decode(const uint8_t *in, uint32_t world_size, cdp__endpoint *e) {
    memset(e, 0, sizeof *e);
    e->named = (int32_t)cdp__get_u32(in);
    e->why = in[4];
    e->hops = in[5];
    e->picks = in[6];
    e->last.waiter = (int32_t)cdp__get_u32(in + 8);
    e->last.target = (int32_t)cdp__get_u32(in + 12);
    return cdp__position_decode(in + 16, &e->last.at) && e->why < CDP__WHY_COUNT && !in[7]
        && cdp__rank_valid(e->named, world_size) && cdp__rank_valid(e->last.waiter, world_size)
        && cdp__rank_valid(e->last.target, world_size);
}

CDP__PRIVATE bool cdp__endpoint_same(const cdp__endpoint *a, const cdp__endpoint *b) {
    return a->named == b->named && a->why == b->why && a->picks == b->picks
        && a->last.waiter == b->last.waiter && a->last.target == b->last.target
        && cdp__position_same(&a->last.at, &b->last.at);
}

/* Returns the bytes written, at most CDP__FAILURE_BYTES. */
CDP__PRIVATE uint32_t cdp__failure_encode(
    const cdp__failure_record *r, uint8_t out[CDP__FAILURE_BYTES]) {
    const uint32_t n = (uint32_t)cdp__min(strlen(r->text), CDP__FAILURE_TEXT - 1);
    cdp__put_u32(out, (uint32_t)r->status);
    cdp__put_u32(out + 4, (uint32_t)r->observer);
    cdp__put_u32(out + 8, (uint32_t)r->peer);
    cdp__put_u32(out + 12, (uint32_t)r->sys_errno);
    cdp__put_u32(out + 16, r->rounds);
    cdp__put_u32(out + 20, r->group_size);
    cdp__put_u32(out + 24, r->timeout_ms);
    out[28] = r->hops;
    out[29] = r->corrections;
    out[30] = r->sending ? 1 : 0;
    out[31] = 0;
    cdp__put_u64(out + 32, r->domain);
    cdp__put_u64(out + 40, r->moved);
    cdp__put_u64(out + 48, r->expected);
    cdp__endpoint_encode(&r->end, out + 56);
    cdp__position_encode(&r->at, out + 96);
    cdp__fingerprint_encode(&r->call, out + 120);
    cdp__fingerprint_encode(&r->other, out + 152);
    cdp__put_u32(out + 184, n);
    cdp__put_u32(out + 188, 0);
    memcpy(out + CDP__FAILURE_HEAD, r->text, n);
    return CDP__FAILURE_HEAD + n;
}

/* A failure outside any operation. */
CDP__PRIVATE void cdp__failure_plain(
    cdp__failure_record *r, cdp_status status, int32_t observer, int32_t named, const char *text) {
    memset(r, 0, sizeof *r);
    r->status = status;
    r->observer = observer;
    r->peer = r->end.named = named;
    r->end.last.waiter = r->end.last.target = -1;
    r->domain = 1; /* the world */
    cdp__format(r->text, sizeof r->text, "%s", text);
}

/* False: this is no record. */
CDP__PRIVATE CDP__COLD bool cdp__failure_decode(
    const uint8_t *in, uint64_t bytes, uint32_t world_size, cdp__failure_record *r) {
    uint32_t n;
    memset(r, 0, sizeof *r);
    if (bytes < CDP__FAILURE_HEAD) return false;
    n = cdp__get_u32(in + 184);
    if (bytes != CDP__FAILURE_HEAD + (uint64_t)n || n >= CDP__FAILURE_TEXT_SENT || in[30] > 1
        || in[31] || cdp__get_u32(in + 188) != 0)
        return false;
    r->status = (cdp_status)(int32_t)cdp__get_u32(in);
    r->observer = (int32_t)cdp__get_u32(in + 4);
    r->peer = (int32_t)cdp__get_u32(in + 8);
    r->sys_errno = (int32_t)cdp__get_u32(in + 12);
    r->rounds = cdp__get_u32(in + 16);
    r->group_size = cdp__get_u32(in + 20);
    r->timeout_ms = cdp__get_u32(in + 24);
    r->hops = in[28];
    r->corrections = in[29];
    r->sending = in[30] == 1;
    r->domain = cdp__get_u64(in + 32);
    r->moved = cdp__get_u64(in + 40);
    r->expected = cdp__get_u64(in + 48);
    cdp__text_foreign(r->text, sizeof r->text, in + CDP__FAILURE_HEAD, n);
    return r->status < CDP_OK && r->status >= CDP_ERR_INTERNAL && r->observer >= 0
        && cdp__rank_valid(r->observer, world_size) && cdp__rank_valid(r->peer, world_size)
        && cdp__endpoint_decode(in + 56, world_size, &r->end)
        && cdp__position_decode(in + 96, &r->at) && cdp__fingerprint_decode(in + 120, &r->call)
        && cdp__fingerprint_decode(in + 152, &r->other);
}

/* WAIT, a message to the rank that its sender waits for: in which operation and round, and the
   sender's last calls in that group. */
typedef struct cdp__wait_message {
    cdp__position at;
    uint32_t serial; /* number of this question about the wait */
    uint8_t call_count;
    /* how many ranks further the question is to be passed on; 0: no answer is wanted, the
       receiver only compares the calls */
    uint16_t probe;
    cdp__fingerprint calls[CDP__WAIT_CALLS];
} cdp__wait_message;

CDP__PRIVATE uint32_t cdp__wait_encode(const cdp__wait_message *m, uint8_t out[CDP__WAIT_BYTES]) {
    uint32_t i;
    CDP_ASSERT(m->call_count <= CDP__WAIT_CALLS);
    cdp__position_encode(&m->at, out);
    out[24] = m->call_count;
    out[25] = 0;
    out[26] = (uint8_t)m->probe;
    out[27] = (uint8_t)(m->probe >> 8);
    cdp__put_u32(out + 28, m->serial);
    for (i = 0; i < m->call_count; ++i)
        cdp__fingerprint_encode(&m->calls[i], out + 32 + (uint64_t)i * CDP__FINGERPRINT_BYTES);
    return 32u + m->call_count * CDP__FINGERPRINT_BYTES;
}

CDP__PRIVATE bool cdp__wait_decode(const uint8_t *in, uint64_t bytes, cdp__wait_message *m) {
    uint32_t i;
    memset(m, 0, sizeof *m);
    if (bytes < 32 || !cdp__position_decode(in, &m->at) || in[25]) return false;
    m->call_count = in[24];
    m->probe = (uint16_t)(in[26] | in[27] << 8);
    m->serial = cdp__get_u32(in + 28);
    if (m->call_count > CDP__WAIT_CALLS
        || bytes != 32 + (uint64_t)m->call_count * CDP__FINGERPRINT_BYTES)
        return false;
    for (i = 0; i < m->call_count; ++i)
        if (!cdp__fingerprint_decode(in + 32 + (uint64_t)i * CDP__FINGERPRINT_BYTES, &m->calls[i]))
            return false;
    return true;
}

/* ENDPOINT: identifies the WAIT, and answers it. */
typedef struct cdp__answer_message {
    cdp__position at;
    uint32_t serial;
    cdp__endpoint end;
} cdp__answer_message;

CDP__PRIVATE uint32_t cdp__answer_encode(
    const cdp__answer_message *m, uint8_t out[CDP__ANSWER_BYTES]) {
    cdp__position_encode(&m->at, out);
    cdp__endpoint_encode(&m->end, out + CDP__WAIT_AT_BYTES);
    cdp__put_u32(out + 64, m->serial);
    cdp__put_u32(out + 68, 0);
    return CDP__ANSWER_BYTES;
}

CDP__PRIVATE bool cdp__answer_decode(
    const uint8_t *in, uint64_t bytes, uint32_t world_size, cdp__answer_message *m) {
    memset(m, 0, sizeof *m);
    if (bytes != CDP__ANSWER_BYTES) return false;
    m->serial = cdp__get_u32(in + 64);
    return cdp__get_u32(in + 68) == 0 && cdp__position_decode(in, &m->at)
        && cdp__endpoint_decode(in + CDP__WAIT_AT_BYTES, world_size, &m->end);
}

CDP__PRIVATE cdp__fingerprint cdp__fingerprint_of(const cdp__head *h) {
    cdp__fingerprint f;
    memset(&f, 0, sizeof f);
    f.kind = h->kind;
    f.dtype = h->dtype;
    f.op = h->op;
    f.algo = h->algo;
    f.root = h->root;
    f.seq = h->seq;
    f.count = h->count;
    f.parts = h->parts;
    return f;
}

CDP__PRIVATE cdp__head cdp__fingerprint_head(const cdp__fingerprint *f) {
    cdp__head h;
    memset(&h, 0, sizeof h);
    h.kind = f->kind;
    h.dtype = f->dtype;
    h.op = f->op;
    h.algo = f->algo;
    h.root = f->root;
    h.seq = f->seq;
    h.count = f->count;
    h.parts = f->parts;
    return h;
}

CDP__PRIVATE void cdp__fingerprint_text(cdp__text *t, const cdp__fingerprint *f) {
    const cdp__head h = cdp__fingerprint_head(f);
    char call[128];
    cdp__call_text(&h, call, sizeof call);
    cdp__text_add(t, "%s", call);
}

/* Appends sentences like "; in the end everybody waits for rank 2; rank 2 does not answer: ...". */
CDP__PRIVATE void cdp__endpoint_text(cdp__text *t, const cdp__failure_record *r) {
    const int named = (int)r->end.named, target = (int)r->end.last.target;
    /* the text says what this rank waited for */
    const bool said = r->text[0] && r->end.why != CDP__WHY_TEXT;
    if (named < 0) return;
    if (r->end.why == CDP__WHY_AWAITED) {
        if (target >= 0 && target != r->peer)
            cdp__text_add(t, "; in the end everybody waits for rank %d", target);
        cdp__text_add(t, "; rank %d had not finished starting, and waited for rank %d",
            target >= 0 ? target : (int)r->peer, named);
    } else if (said && r->status == CDP_ERR_TIMEOUT) {
        cdp__text_add(t, "; in the end everybody waits for rank %d", named);
    } else if (r->end.named != r->peer && r->status == CDP_ERR_TIMEOUT) {
        cdp__text_add(
            t, "; that rank is waiting too, and in the end everybody waits for rank %d", named);
    }
    switch (r->end.why) {
    case CDP__WHY_SILENT:
    case CDP__WHY_AWAITED:
        cdp__text_add(t, "; rank %d does not answer: look at what its process is doing", named);
        break;
    case CDP__WHY_BUSY:
        cdp__text_add(t, "; rank %d waits for nobody: it computes, or calls something else", named);
        break;
    case CDP__WHY_SENT:
        cdp__text_add(t, "; rank %d has done its part: the link to it is cut", named);
        break;
    case CDP__WHY_CIRCLE:
        cdp__text_add(t, "; these ranks wait for each other; compare the order of their calls");
        break;
    case CDP__WHY_EARLIER:
        cdp__text_add(t, "; rank %d failed, and others have left because of that", named);
        break;
    case CDP__WHY_FIRST: cdp__text_add(t, "; rank 0 is gone, too, and its store with it"); break;
    case CDP__WHY_LEFT: cdp__text_add(t, "; rank %d has left", named); break;
    default: break;
    }
}

CDP__PRIVATE void cdp__failure_cause_text(cdp__text *t, const cdp__failure_record *r) {
    if (r->text[0] || r->end.why == CDP__WHY_CALLS || r->peer < 0) {
        cdp__text_add(t, "%s", r->text);
    } else if (r->status == CDP_ERR_TIMEOUT) {
        cdp__text_add(t, "the deadline of %u ms passed while waiting for rank %d", r->timeout_ms,
            (int)r->peer);
        if (r->expected) /* a barrier has no bytes */
            cdp__text_add(t, " (it %s %llu of %llu bytes)", r->sending ? "took" : "sent",
                (unsigned long long)r->moved, (unsigned long long)r->expected);
    }
    if (r->status == CDP_ERR_TIMEOUT || r->end.why >= CDP__WHY_AWAITED) cdp__endpoint_text(t, r);
    if (r->end.why != CDP__WHY_CALLS) return;
    cdp__text_add(t, "ranks call different things: rank %d calls ", (int)r->observer);
    cdp__fingerprint_text(t, &r->call);
    cdp__text_add(t, ", rank %d calls ", (int)r->peer);
    cdp__fingerprint_text(t, &r->other);
}

/* Two ranks with different calls blame each other. The blamed rank passes that record on
   unchanged, because other ranks decide better which of the two is wrong; but the error of its
   own group names the other rank. */
CDP__PRIVATE int32_t cdp__failure_blamed(const cdp__failure_record *r, uint32_t rank) {
    return r->end.why == CDP__WHY_CALLS && r->end.named == (int32_t)rank ? r->observer
                                                                         : r->end.named;
}

/* Makes a text like "rank 0/8: told by rank 3/8: group of 4: allreduce #17 of 4 x f32 sum (round
   5/14): ...". */
CDP__PRIVATE void cdp__failure_text(
    const cdp__failure_record *r, uint32_t rank, uint32_t world_size, cdp_error *e) {
    cdp__text t = cdp__text_of(e->text, sizeof e->text);
    cdp__error_clear(e, r->status);
    e->rank = (int32_t)rank;
    e->peer = cdp__failure_blamed(r, rank);
    e->origin = r->observer;
    e->kind = (cdp_coll_kind)r->call.kind;
    e->round = r->at.round;
    e->op_seq = r->call.seq;
    e->sys_errno = r->sys_errno;
    if (r->observer != (int32_t)rank) cdp__text_add(&t, "rank %u/%u: told by ", rank, world_size);
    cdp__text_add(&t, "rank %d/%u: ", (int)r->observer, world_size);
    if (r->group_size) cdp__text_add(&t, "group of %u: ", r->group_size);
    if (r->call.kind != CDP_COLL_NONE) {
        cdp__fingerprint_text(&t, &r->call);
        cdp__text_add(&t, " (round %u/%u): ", r->at.round + 1, r->rounds);
    }
    cdp__failure_cause_text(&t, r);
}

/* ---- >>failure/chains: where a chain of waits ends (pure) ------------------------------------ */

/* Knows: the waits of this rank, the ranks that wait for it, and the failures that it received.
   Promises: if all ranks answer, the end of every chain of waits is found. No clock (events
   carry the time), no input or output, no memory of its own. */

typedef enum cdp__failure_state {
    CDP__FAILURE_HEALTHY,
    CDP__FAILURE_SETTLING,  /* this rank saw a failure, and waits for reports of an earlier cause */
    CDP__FAILURE_REPORTING, /* the record is this rank's error; peers are being told */
    CDP__FAILURE_DONE,
    CDP__FAILURE_STATES
} cdp__failure_state;

/* All time limits of this section. A group has failed on every rank at most SETTLE + TELL after
   the first rank saw the cause; after a timeout, each of the two is at most 5% of that timeout. */
#define CDP__FAILURE_WAIT_MS 1000u  /* waits of this length (or timeout / 4, if less) are long */
#define CDP__FAILURE_SETTLE_MS 300u /* how long reports of an earlier cause are awaited */
#define CDP__FAILURE_REPORT_MS 50u  /* how long this rank tries to tell its peers */
#define CDP__FAILURE_SHARE 20u      /* limits SETTLE and TELL to this fraction of the timeout */
#define CDP__FAILURE_PICKS 8u       /* how often the end of one chain may be chosen, see above */

typedef struct cdp__failure_edge { /* this rank waits for `peer` */
    bool used;
    bool caller;     /* a thread of the program is inside a call that waits for this */
    bool ask;        /* a WAIT is to be sent */
    bool compared;   /* the peer has received this rank's call */
    bool alone;      /* only `peer` can end this wait, even if `set` names several */
    bool left;       /* the peer has left */
    uint16_t probe;  /* how much further the WAIT is to be passed on; 0: it only compares calls */
    uint32_t serial; /* serial number of the last WAIT */
    uint32_t needed; /* answers with a smaller serial number do not count */
    uint32_t answer; /* serial number that `end` answers; 0: no answer yet */
    uint32_t peer;   /* rank in the world */
    cdp__position at;
    uint64_t set; /* not 0: progress on any edge of this set ends the wait */
    uint64_t since_ns;
    cdp__endpoint end;
} cdp__failure_edge;

typedef struct cdp__failure_waiter { /* `rank` waits for this rank */
    bool used;
    bool passed;     /* this rank has already done what the waiter waits for */
    bool answer_due; /* `end` is to be sent to the waiter */
    uint32_t rank;
    uint16_t probe;  /* how much further its WAIT is to be passed on */
    uint32_t serial; /* serial number of the WAIT to answer */
    cdp__position at;
    cdp__endpoint end;
} cdp__failure_waiter;

typedef struct cdp__failure_report { /* the record that `rank` sent when it failed */
    bool used;
    bool doubted; /* soon after it, the rank took part in an operation */
    uint32_t rank;
    uint64_t since_ns;
    cdp__failure_record record;
} cdp__failure_report;

typedef struct cdp__failure_domain { /* a group, and all messages that fail with it */
    cdp__failure_state state;
    uint64_t channel; /* identifies the group; equal on all its ranks */
    uint64_t due_ns;  /* when SETTLING or TELLING ends */
    cdp__failure_record record;
    /* After a timeout, while settling: `asked` is the wait that the probes are about, `end` its
       end as last seen while it lasted (if `known`), and `found` says that it was an answer. */
    cdp__position asked;
    cdp__endpoint end;
    bool known, found;
} cdp__failure_domain;

/* The failure state of one process. The caller provides the arrays, zeroed: one waiter per rank
   and a few more, as many edges (a few are enough if the program never receives from any rank),
   and at least two wills. If an array is full, the blame may be less precise, but is never
   later. */
typedef struct cdp__failure {
    uint32_t rank, world_size;
    uint32_t edge_room, waiter_room, report_room, report_at, waiter_at;
    uint32_t waiting; /* ranks that wait for this one; if any, report BLOCKED operations at once */
    uint32_t waited;  /* edges in use: long waits of this rank */
    uint32_t report_count; /* wills in use */
    bool outbox;           /* cdp__failure_take() may have a message */
    cdp__failure_edge *edges;
    cdp__failure_waiter *waiters;
    cdp__failure_report *reports;
} cdp__failure;

typedef enum cdp__failure_event_type {
    /* events of a group; `domain` is set */
    CDP__FAILURE_OBSERVED, /* `record`: status, peer, call, at, ... as this rank saw them */
    /* `record` came from rank `from`; without a domain: of a group that this rank is not in */
    CDP__FAILURE_REPORTED,
    CDP__FAILURE_TIMER,
    CDP__FAILURE_DELIVERED, /* every peer has the record */
    CDP__FAILURE_STARTING,  /* rank `from` is still starting, and waits for `end.named` */
    CDP__FAILURE_RESUMED,   /* the operation completed while its timeout was settling */
    CDP__FAILURE_GROUP_EVENTS,
    /* events of waits */
    CDP__FAILURE_BLOCKED = CDP__FAILURE_GROUP_EVENTS, /* at `at`, this rank waits for rank `from` */
    CDP__FAILURE_MOVING, /* the channel or set has reached `at` and is not blocked */
    CDP__FAILURE_WAITS,  /* WAIT came from rank `from`, which is at `at` */
    /* ENDPOINT came from rank `from`: `end` answers this rank's wait at `at` */
    CDP__FAILURE_ANSWER,
    CDP__FAILURE_CONTINUED /* rank `from` did its part in an operation that began at `begun_ns` */
} cdp__failure_event_type;

typedef struct cdp__failure_event {
    cdp__failure_event_type type;
    uint64_t time_ns;
    cdp__failure_domain *domain;
    const cdp__failure_record *record;
    cdp__fingerprint own; /* TOLD: this rank's own call with the number of record->call */
    uint32_t from;
    cdp__position at;
    cdp__endpoint end;
    uint64_t since_ns, begun_ns; /* BLOCKED, GOES_ON */
    /* BLOCKED: any rank of this set can end the wait; 0: only `from` can */
    uint64_t set;
    bool caller; /* BLOCKED */
    /* BLOCKED: the wait is long, and the rank may have made another call */
    bool compare;
    bool left;       /* BLOCKED: the rank has left */
    uint16_t probe;  /* WAITS */
    uint32_t serial; /* WAITS, ANSWER */
    /* WAITS, ANSWER, TOLD: this rank has done what is waited for at `at`, `end.last.at` or
       `record->end.last.at` */
    bool passed;
    bool sure; /* TIMER: no rank knows an earlier cause */
} cdp__failure_event;

#define CDP__FAILURE_PUBLISH 1u  /* domain->record is the group's new error; tell peers */
#define CDP__FAILURE_FINISHED 2u /* the group is DONE */

CDP__PRIVATE uint64_t cdp__failure_share_ns(const cdp__failure_record *r, uint32_t most_ms) {
    if (r->status != CDP_ERR_TIMEOUT || !r->timeout_ms) return most_ms * CDP__MS;
    return cdp__min(most_ms * CDP__MS, r->timeout_ms * CDP__MS / CDP__FAILURE_SHARE);
}

/* How long a wait lasts before it is reported to peers. */
CDP__PRIVATE uint64_t cdp__failure_period_ns(uint32_t timeout_ms) {
    return cdp__min(CDP__FAILURE_WAIT_MS * CDP__MS, timeout_ms * CDP__MS / 4);
}

CDP__PRIVATE bool cdp__failure_answered(const cdp__failure_edge *e) {
    return e->answer >= e->needed;
}

/* True if progress on edge x would also end the wait of edge e. */
CDP__PRIVATE bool cdp__failure_joint(const cdp__failure_edge *e, const cdp__failure_edge *x) {
    return x == e || (x->used && e->set && !e->alone && x->set == e->set);
}

/* A deadline has passed: sends a new WAIT, to be passed on along at most `ranks` ranks. Earlier
   answers no longer count. Does nothing if such a question is still unanswered. */
CDP__PRIVATE void cdp__failure_ask(cdp__failure *f, cdp__failure_edge *e, uint32_t ranks) {
    if (e->probe >= ranks && !cdp__failure_answered(e)) return;
    e->probe = (uint16_t)cdp__min(ranks, UINT16_MAX);
    e->needed = ++e->serial;
    e->ask = f->outbox = true;
}

CDP__PRIVATE void cdp__failure_probe(cdp__failure *f, const cdp__failure_edge *e, uint32_t ranks) {
    uint32_t i;
    for (i = 0; i < f->edge_room; ++i)
        if (cdp__failure_joint(e, &f->edges[i])) cdp__failure_ask(f, &f->edges[i], ranks);
}

/* The edge that keeps this rank from making progress in `channel`: the operation blocked there
   or, if this rank has not come to it, the oldest wait of one of its threads. NULL: none. */
CDP__PRIVATE cdp__failure_edge *cdp__failure_blocker(const cdp__failure *f, uint64_t channel) {
    cdp__failure_edge *best = NULL;
    uint32_t i;
    for (i = 0; i < f->edge_room && f->waited; ++i) {
        cdp__failure_edge *e = &f->edges[i];
        if (!e->used) continue;
        if (e->at.channel == channel || (e->set && e->set == channel && !e->alone)) return e;
        if (e->caller && (!best || e->since_ns < best->since_ns)) best = e;
    }
    return best;
}

CDP__PRIVATE cdp__failure_report *cdp__failure_find_report(const cdp__failure *f, uint32_t rank) {
    uint32_t i;
    for (i = 0; i < f->report_room; ++i)
        if (f->reports[i].used && f->reports[i].rank == rank) return &f->reports[i];
    return NULL;
}

/* The first entry is for this rank's own will. When the others are full, the oldest is replaced. */
CDP__PRIVATE void cdp__failure_keep_report(
    cdp__failure *f, uint32_t rank, const cdp__failure_record *r, uint64_t time_ns) {
    cdp__failure_report *w = cdp__failure_find_report(f, rank);
    CDP_ASSERT(f->report_room > 1);
    if (!w && rank != f->rank) f->report_at = f->report_at % (f->report_room - 1) + 1;
    if (!w) w = &f->reports[rank == f->rank ? 0 : f->report_at];
    if (!w->used) ++f->report_count;
    w->used = true;
    w->doubted = false;
    w->rank = rank;
    w->since_ns = time_ns;
    w->record = *r;
}

/* The end of the chain that begins with edge e. A peer that has failed does not answer, but its
   last will says why it failed. */
CDP__PRIVATE cdp__endpoint cdp__failure_follow_one(
    const cdp__failure *f, const cdp__failure_edge *e) {
    const cdp__failure_report *will = cdp__failure_find_report(f, e->peer);
    cdp__endpoint end = e->end;
    if (cdp__failure_answered(e)) return end;
    memset(&end, 0, sizeof end);
    end.named = end.last.target = (int32_t)e->peer;
    end.why = e->left ? CDP__WHY_LEFT : CDP__WHY_SILENT;
    end.last.waiter = (int32_t)f->rank;
    end.last.at = e->at;
    if (!will || will->record.end.named < 0) return end;
    end.named = will->record.end.named;
    end.why = CDP__WHY_EARLIER;
    return end;
}

/* Ranks endpoints of a receive from any rank: the highest is most likely the cause. A rank known
   to have failed comes first, then one that may only be slow. A rank that left may have done all
   it had to do. A circle is the cause only if all the endpoints are circles. */
CDP__PRIVATE uint32_t cdp__failure_weight(const cdp__endpoint *end) {
    switch ((cdp__why)end->why) {
    case CDP__WHY_EARLIER: return 5;
    case CDP__WHY_SILENT:
    case CDP__WHY_AWAITED:
    case CDP__WHY_SENT: return 4;
    case CDP__WHY_LEFT: return 2;
    case CDP__WHY_CIRCLE: return 1;
    default: return 3;
    }
}

/* Of all edges that could end the wait of edge e, the one most likely to be the cause. */
CDP__PRIVATE cdp__failure_edge *cdp__failure_pick(const cdp__failure *f, cdp__failure_edge *e) {
    cdp__failure_edge *best = e;
    cdp__endpoint end = cdp__failure_follow_one(f, e);
    uint32_t i;
    for (i = 0; i < f->edge_room && e->set && !e->alone; ++i) {
        cdp__failure_edge *x = &f->edges[i];
        cdp__endpoint other;
        if (!cdp__failure_joint(e, x)) continue;
        other = cdp__failure_follow_one(f, x);
        if (cdp__failure_weight(&other) < cdp__failure_weight(&end)
            || (cdp__failure_weight(&other) == cdp__failure_weight(&end)
                && (other.picks > end.picks || (other.picks == end.picks && x >= best))))
            continue;
        best = x;
        end = other;
    }
    return best;
}

CDP__PRIVATE cdp__endpoint cdp__failure_follow(const cdp__failure *f, cdp__failure_edge *e) {
    cdp__endpoint end = cdp__failure_follow_one(f, cdp__failure_pick(f, e));
    if (e->set && !e->alone && end.picks < UINT8_MAX) ++end.picks;
    return end;
}

/* The answer to rank w->rank. */
CDP__PRIVATE cdp__endpoint cdp__failure_answer(
    const cdp__failure *f, const cdp__failure_waiter *w) {
    cdp__failure_edge *e = cdp__failure_blocker(f, w->at.channel);
    const cdp__failure_edge *best = e ? cdp__failure_pick(f, e) : NULL;
    const cdp__failure_report *own = cdp__failure_find_report(f, f->rank);
    const bool here = e && e->at.channel == w->at.channel;
    cdp__endpoint end;
    memset(&end, 0, sizeof end);
    end.named = end.last.target = (int32_t)f->rank;
    end.last.waiter = (int32_t)w->rank;
    end.last.at = w->at;
    end.why = CDP__WHY_BUSY;
    if (w->passed || (here && w->at.seq && cdp__position_reached(&e->at, &w->at))) {
        end.why = CDP__WHY_SENT;
    } else if (best && best->peer == w->rank && best->end.picks && cdp__failure_answered(best)) {
        /* rank w->rank has chosen the end that this rank would answer: stop, else it goes in
           circles */
        end.named = (int32_t)w->rank;
        end.why = CDP__WHY_SILENT;
        end.last.waiter = (int32_t)f->rank;
        end.last.target = (int32_t)w->rank;
        end.last.at = best->at;
    } else if (e) {
        end = cdp__failure_follow(f, e);
        if (end.hops < UINT8_MAX) ++end.hops;
    } else if (own && own->record.end.named >= 0) {
        end.named = own->record.end.named;
        end.why = CDP__WHY_EARLIER;
    }
    return end;
}

/* Call after every change of f: prepares new answers for the waiters whose endpoint has changed. */
CDP__PRIVATE void cdp__failure_update(cdp__failure *f) {
    uint32_t i;
    for (i = 0; i < f->waiter_room && f->waiting; ++i) {
        cdp__failure_waiter *w = &f->waiters[i];
        const cdp__endpoint end = cdp__failure_answer(f, w);
        if (!w->used || cdp__endpoint_same(&end, &w->end)) continue;
        w->end = end;
        w->answer_due = f->outbox = true;
    }
}

/* The channel has reached `at`: ranks that waited for an earlier position wait no longer. */
CDP__PRIVATE void cdp__failure_drop_waiters(cdp__failure *f, const cdp__position *at) {
    uint32_t i;
    for (i = 0; i < f->waiter_room && f->waiting; ++i) {
        cdp__failure_waiter *w = &f->waiters[i];
        if (!w->used || w->at.channel != at->channel || cdp__position_reached(&w->at, at)) continue;
        w->used = w->answer_due = false;
        --f->waiting;
    }
}

/* Edge e is new: passes on the questions of ranks that already wait for what it blocks. */
CDP__PRIVATE void cdp__failure_pass_probe(cdp__failure *f, cdp__failure_edge *e) {
    uint32_t i, probe = 0;
    for (i = 0; i < f->waiter_room && f->waiting; ++i) {
        const cdp__failure_waiter *w = &f->waiters[i];
        const cdp__failure_edge *b = NULL;
        if (w->used && !w->passed) b = cdp__failure_blocker(f, w->at.channel);
        if (b && cdp__failure_joint(b, e)) probe = w->probe > probe ? w->probe : probe;
    }
    if (probe > 1) cdp__failure_ask(f, e, probe - 1);
}

CDP__PRIVATE void cdp__failure_on_blocked(cdp__failure *f, const cdp__failure_event *v) {
    cdp__failure_edge *e = NULL;
    uint32_t i;
    for (i = 0; i < f->edge_room; ++i) {
        cdp__failure_edge *x = &f->edges[i];
        const bool same = x->used && x->at.channel == v->at.channel;
        if (same || (!x->used && !e)) e = x;
        if (same) break;
    }
    if (!e) return;
    if (e->used && e->peer == v->from && cdp__position_same(&e->at, &v->at)) {
        e->caller = v->caller;
        if (v->set) e->set = v->set;
    } else {
        if (!e->used) ++f->waited;
        memset(e, 0, sizeof *e);
        e->used = true;
        e->serial = e->needed = 1;
        e->caller = v->caller;
        e->peer = v->from;
        e->at = v->at;
        e->set = v->set;
        e->since_ns = v->since_ns;
        cdp__failure_drop_waiters(f, &v->at);
        cdp__failure_pass_probe(f, e);
    }
    if (!v->set) e->alone = true;
    if (v->set) e->left = v->left;
    if (v->compare && !e->compared) e->compared = e->ask = f->outbox = true;
    cdp__failure_update(f);
}

CDP__PRIVATE void cdp__failure_on_moving(cdp__failure *f, const cdp__failure_event *v) {
    uint32_t i;
    for (i = 0; i < f->edge_room && f->waited; ++i) {
        const cdp__failure_edge *e = &f->edges[i];
        if (!e->used || (e->at.channel != v->at.channel && (!e->set || e->set != v->at.channel)))
            continue;
        memset(&f->edges[i], 0, sizeof f->edges[i]);
        --f->waited;
    }
    cdp__failure_drop_waiters(f, &v->at);
    cdp__failure_update(f);
}

/* Stores one entry per rank and channel; in a full table the oldest is replaced. */
CDP__PRIVATE void cdp__failure_on_waits(cdp__failure *f, const cdp__failure_event *v) {
    cdp__failure_waiter *w = NULL;
    cdp__failure_edge *e = v->probe > 1 ? cdp__failure_blocker(f, v->at.channel) : NULL;
    uint32_t i;
    for (i = 0; i < f->waiter_room; ++i) {
        cdp__failure_waiter *x = &f->waiters[i];
        const bool same = x->used && x->rank == v->from && x->at.channel == v->at.channel;
        if (same || (!x->used && !w)) w = x;
        if (same) break;
    }
    if (!w && f->waiter_room) {
        w = &f->waiters[f->waiter_at];
        f->waiter_at = (f->waiter_at + 1) % f->waiter_room;
    }
    if (!w) return;
    if (!w->used) ++f->waiting;
    w->used = w->answer_due = f->outbox = true;
    w->rank = v->from;
    w->at = v->at;
    w->serial = v->serial;
    w->passed = v->passed;
    w->probe = v->probe;
    if (e && !w->passed) cdp__failure_probe(f, e, v->probe - 1u);
    w->end = cdp__failure_answer(f, w);
    cdp__failure_update(f);
}

/* Corrects an answer by what this rank knows. If the store does not answer, it is only a guess that
   a silent rank had not finished starting. This rank has finished, so it neither waits in its own
   start nor keeps another rank waiting there. */
CDP__PRIVATE cdp__endpoint cdp__failure_check_answer(
    const cdp__failure *f, const cdp__endpoint *said) {
    const int32_t self = (int32_t)f->rank;
    cdp__endpoint end = *said;
    if (end.why != CDP__WHY_AWAITED || end.last.target < 0
        || (end.named != self && end.last.target != self))
        return end;
    end.named = end.last.target;
    end.why = CDP__WHY_SILENT;
    return end;
}

/* An answer whose chain ends at this rank closes a circle. But if this rank has already done its
   part for the last waiter of the chain, the link between these two is cut, and either is to
   blame. */
CDP__PRIVATE void cdp__failure_on_answer(cdp__failure *f, const cdp__failure_event *v) {
    const cdp__endpoint end = cdp__failure_check_answer(f, &v->end);
    const bool here = end.named == (int32_t)f->rank;
    uint32_t i;
    for (i = 0; i < f->edge_room; ++i) {
        cdp__failure_edge *e = &f->edges[i];
        if (!e->used || e->peer != v->from || !cdp__position_same(&e->at, &v->at)
            || v->serial > e->serial)
            continue;
        e->answer = v->serial;
        if (end.why == CDP__WHY_CIRCLE && e->end.why == CDP__WHY_CIRCLE) continue;
        e->end = end;
        if (end.why == CDP__WHY_CIRCLE) continue;
        if (here && v->passed && end.last.waiter >= 0 && end.last.waiter != (int32_t)f->rank) {
            e->end.named = end.last.waiter;
            e->end.why = CDP__WHY_SENT;
        } else if (here || end.hops > f->world_size
            || end.picks > cdp__min(f->world_size, CDP__FAILURE_PICKS)) {
            e->end.named = (int32_t)e->peer;
            e->end.why = CDP__WHY_CIRCLE;
        }
    }
    cdp__failure_update(f);
}

CDP__PRIVATE void cdp__failure_drop_report(cdp__failure *f, cdp__failure_report *w) {
    w->used = false;
    --f->report_count;
}

/* A rank that takes part in an operation begun well after a failure did not leave because of it:
   removes its last will. Its part of one that begins soon afterwards may have been sent before: the
   will then counts only for as long as a rank takes to leave. */
CDP__PRIVATE void cdp__failure_on_continued(cdp__failure *f, const cdp__failure_event *v) {
    cdp__failure_report *w = cdp__failure_find_report(f, v->from);
    if (!w || w->since_ns >= v->begun_ns) return;
    if (w->since_ns + CDP__FAILURE_SETTLE_MS * CDP__MS < v->begun_ns)
        cdp__failure_drop_report(f, w);
    else
        w->doubted = true;
}

/* Removes the wills that were in doubt for so long that their ranks would have left by now. */
CDP__PRIVATE void cdp__failure_drop_doubted(cdp__failure *f, uint64_t time_ns) {
    const uint64_t leaving_ns = (CDP__FAILURE_SETTLE_MS + CDP__FAILURE_REPORT_MS) * CDP__MS;
    uint32_t i;
    for (i = 0; f->report_count && i < f->report_room; ++i) {
        cdp__failure_report *w = &f->reports[i];
        if (w->used && w->doubted && time_ns > w->since_ns + leaving_ns)
            cdp__failure_drop_report(f, w);
    }
}

/* The next message for rank `peer`. Returns 1: *wait is set (the caller adds the calls), 2:
   *answer is set, 0: no message. */
CDP__PRIVATE uint32_t cdp__failure_take(
    cdp__failure *f, uint32_t peer, cdp__wait_message *wait, cdp__answer_message *answer) {
    uint32_t i;
    for (i = 0; i < f->edge_room; ++i) {
        cdp__failure_edge *e = &f->edges[i];
        if (!e->used || !e->ask || e->peer != peer) continue;
        e->ask = false;
        memset(wait, 0, sizeof *wait);
        wait->at = e->at;
        wait->serial = e->serial;
        wait->probe = e->probe;
        return 1;
    }
    for (i = 0; i < f->waiter_room; ++i) {
        cdp__failure_waiter *w = &f->waiters[i];
        if (!w->used || !w->answer_due || w->rank != peer) continue;
        w->answer_due = false;
        memset(answer, 0, sizeof *answer);
        answer->at = w->at;
        answer->serial = w->serial;
        answer->end = w->end;
        return 2;
    }
    return 0;
}

/* ---- >>failure/blame: which rank is to blame (pure) ------------------------------------------ */

/* Knows: what failure-waits knows, and the groups that fail. Promises: no other section decides
   blame. One function takes every event and returns what to do; like failure-waits it has no
   clock, no input or output, no memory of its own. A blame is right if it names any end of a cut
   link, or any of several simultaneous victims, and nobody else. tests/sim/failure.c explores it
   exhaustively for small worlds. */

CDP__PRIVATE uint32_t cdp__failure_publish(cdp__failure *f, const cdp__failure_event *v) {
    cdp__failure_domain *d = v->domain;
    d->state = CDP__FAILURE_REPORTING;
    d->due_ns = v->time_ns + cdp__failure_share_ns(&d->record, CDP__FAILURE_REPORT_MS);
    cdp__failure_keep_report(f, f->rank, &d->record, v->time_ns);
    cdp__failure_update(f);
    return CDP__FAILURE_PUBLISH;
}

/* Makes the record of another rank, or of another group of this rank, the cause of this failure. */
CDP__PRIVATE void cdp__failure_set_cause(cdp__failure_domain *d, const cdp__failure_record *r) {
    d->record = *r;
    d->record.domain = d->channel;
    if (d->record.hops < UINT8_MAX) ++d->record.hops;
}

/* All other ranks are gone: returns any will that names a rank. */
CDP__PRIVATE const cdp__failure_report *cdp__failure_any_report(const cdp__failure *f) {
    uint32_t i;
    for (i = 0; i < f->report_room; ++i)
        if (f->reports[i].used && f->reports[i].record.end.named >= 0) return &f->reports[i];
    return NULL;
}

/* How long a failure of some ranks may explain why other ranks leave. */
#define CDP__FAILURE_RECENT_MS 10000u

/* A rank is gone and sent no will. Returns the oldest recent will of any rank: that failure most
   likely made this rank leave, too. */
CDP__PRIVATE const cdp__failure_report *cdp__failure_recent_report(
    const cdp__failure *f, uint64_t now) {
    const cdp__failure_report *best = NULL;
    uint32_t i;
    for (i = 0; i < f->report_room; ++i) {
        const cdp__failure_report *w = &f->reports[i];
        if (w->used && w->since_ns + CDP__FAILURE_RECENT_MS * CDP__MS >= now
            && (!best || w->since_ns < best->since_ns))
            best = w;
    }
    return best;
}

/* Adopts the reason why `peer` left (-1: all others): its last will or, without one, a failure
   of this rank in another group, which most likely reached the peer, too. */
CDP__PRIVATE bool cdp__failure_inherit(
    const cdp__failure *f, cdp__failure_domain *d, int32_t peer) {
    const cdp__failure_report *w =
        peer < 0 ? cdp__failure_any_report(f) : cdp__failure_find_report(f, (uint32_t)peer);
    if (!w) w = cdp__failure_find_report(f, f->rank);
    if (w) cdp__failure_set_cause(d, &w->record);
    return w != NULL;
}

/* If all that is known is that a rank is gone, or rank 0 and one that did not start, adopts the
   last will that explains it most likely. */
CDP__PRIVATE void cdp__failure_inherit_any(const cdp__failure *f, const cdp__failure_event *v) {
    const cdp__failure_record *r = &v->domain->record;
    const bool vague = r->end.why == CDP__WHY_TEXT || r->end.why == CDP__WHY_FIRST;
    const cdp__failure_report *w = NULL;
    if (r->status == CDP_ERR_PEER_LOST && vague) w = cdp__failure_recent_report(f, v->time_ns);
    if (w) cdp__failure_set_cause(v->domain, &w->record);
}

/* While the failure settles, ranks that wait for this one receive the lost peer as the cause. */
CDP__PRIVATE void cdp__failure_add_edge(
    cdp__failure *f, const cdp__failure_event *v, const cdp__failure_record *r) {
    cdp__failure_event blocked;
    memset(&blocked, 0, sizeof blocked);
    blocked.time_ns = blocked.since_ns = v->time_ns;
    blocked.at = r->at;
    blocked.from = (uint32_t)r->peer;
    blocked.caller = true;
    cdp__failure_on_blocked(f, &blocked);
}

/* A failure outside any operation gets the position of an operation in which this rank already
   waits for that peer, if there is one: peers can then be asked about that operation. */
CDP__PRIVATE void cdp__failure_locate(const cdp__failure *f, cdp__failure_record *r) {
    uint32_t i;
    for (i = 0; i < f->edge_room; ++i)
        if (f->edges[i].used && f->edges[i].peer == (uint32_t)r->peer) r->at = f->edges[i].at;
}

CDP__PRIVATE CDP__COLD uint32_t cdp__failure_begin(cdp__failure *f, const cdp__failure_event *v) {
    cdp__failure_domain *d = v->domain;
    cdp__failure_record *r = &d->record;
    cdp__failure_edge *e = NULL;
    *r = *v->record;
    r->observer = (int32_t)f->rank;
    r->domain = d->channel;
    r->hops = r->corrections = 0;
    if (r->peer >= 0) r->end.named = r->peer;
    r->end.hops = 0;
    if (r->status == CDP_ERR_PEER_LOST && cdp__failure_inherit(f, d, r->peer))
        return cdp__failure_publish(f, v);
    if (r->status != CDP_ERR_PEER_LOST && r->status != CDP_ERR_TIMEOUT)
        return cdp__failure_publish(f, v);
    if (r->peer >= 0 && !r->at.seq) cdp__failure_locate(f, r);
    if (r->peer >= 0) cdp__failure_add_edge(f, v, r);
    d->state = CDP__FAILURE_SETTLING;
    d->asked = r->at;
    d->known = d->found = false;
    d->due_ns = v->time_ns + cdp__failure_share_ns(r, CDP__FAILURE_SETTLE_MS);
    if (r->status == CDP_ERR_TIMEOUT) e = cdp__failure_blocker(f, r->at.channel);
    if (e) cdp__failure_probe(f, e, f->world_size);
    cdp__failure_update(f);
    return 0;
}

/* True if the late data has arrived since the timeout, so this rank no longer waits for it. */
CDP__PRIVATE bool cdp__failure_late_arrived(const cdp__failure *f, const cdp__failure_domain *d) {
    uint32_t i;
    for (i = 0; i < f->edge_room; ++i)
        if (f->edges[i].used && cdp__position_same(&f->edges[i].at, &d->asked)) return false;
    return d->record.status == CDP_ERR_TIMEOUT && d->record.peer >= 0;
}

/* While a cause is being settled, a failure that needs no settling (an abort, a mismatch)
   replaces it. Another timeout or lost peer does not, unless what was late has arrived and only
   the lost peer keeps the operation from completing. */
CDP__PRIVATE uint32_t cdp__failure_interrupt(cdp__failure *f, const cdp__failure_event *v) {
    const cdp_status st = v->record->status;
    if (st == CDP_ERR_TIMEOUT) return 0;
    if (st == CDP_ERR_PEER_LOST && !cdp__failure_late_arrived(f, v->domain)) return 0;
    return cdp__failure_begin(f, v);
}

/* Called while a timeout settles. Keeps the end of the wait that lasted until the deadline,
   because the operation may go on to another wait; if no end was found for the first wait, the
   next one is probed. In the last eighth of the time nothing new is kept: it would be too late
   for other ranks to answer. */
CDP__PRIVATE void cdp__failure_keep_end(cdp__failure *f, const cdp__failure_event *v) {
    cdp__failure_domain *d = v->domain;
    cdp__failure_edge *e = cdp__failure_blocker(f, d->asked.channel);
    const uint64_t share = cdp__failure_share_ns(&d->record, CDP__FAILURE_SETTLE_MS);
    if (!e || (e->at.channel != d->asked.channel && e->set != d->asked.channel)) return;
    if (v->time_ns + share / 8 >= d->due_ns) return;
    if (!e->set && !cdp__position_same(&e->at, &d->asked)) {
        if (d->found) return;
        d->asked = e->at;
        cdp__failure_probe(f, e, f->world_size);
    }
    d->known = true;
    d->found = cdp__failure_answered(cdp__failure_pick(f, e));
    d->end = cdp__failure_follow(f, e);
}

/* Stores the end of the chain of waits that caused this timeout, if this rank waited for a rank. */
CDP__PRIVATE void cdp__failure_end_of(cdp__failure *f, cdp__failure_domain *d, cdp__endpoint *end) {
    cdp__failure_record *r = &d->record;
    cdp__failure_edge *e = cdp__failure_blocker(f, r->at.channel);
    const bool same = e && (e->set || cdp__position_same(&e->at, &d->asked));
    if (d->known) *end = d->end;
    if (!e || (d->known && !same)) return;
    if (r->peer >= 0 && d->known && !cdp__position_same(&r->at, &d->asked)) {
        /* the first wait ended; the operation now waits for another peer */
        r->peer = (int32_t)e->peer;
        r->at = d->asked;
        r->moved = r->expected = 0;
    }
    if (r->peer >= 0 && r->peer != (int32_t)e->peer) return; /* that edge is of another wait */
    *end = cdp__failure_follow(f, e);
    if (d->known && (d->end.why == CDP__WHY_SILENT || d->end.why == CDP__WHY_AWAITED)
        && end->why == CDP__WHY_SILENT)
        *end = d->end;
    if (r->peer < 0) r->peer = (int32_t)cdp__failure_pick(f, e)->peer;
}

/* Settling is over: this rank's own view becomes the group's error, unless a last will explains
   it. */
CDP__PRIVATE CDP__COLD uint32_t cdp__failure_conclude(
    cdp__failure *f, const cdp__failure_event *v) {
    cdp__failure_domain *d = v->domain;
    cdp__failure_record *r = &d->record;
    if (r->status == CDP_ERR_TIMEOUT) cdp__failure_keep_end(f, v);
    if (v->time_ns < d->due_ns && !v->sure) return 0;
    if (r->status == CDP_ERR_TIMEOUT) cdp__failure_end_of(f, d, &r->end);
    if (r->end.named == (int32_t)f->rank) r->end.named = r->peer;
    if (r->status == CDP_ERR_TIMEOUT && r->end.named < 0) r->end.why = CDP__WHY_TURN;
    if (r->end.named >= 0 && cdp__failure_find_report(f, (uint32_t)r->end.named))
        (void)cdp__failure_inherit(f, d, r->end.named);
    else
        cdp__failure_inherit_any(f, v);
    return cdp__failure_publish(f, v);
}

/* Rank v->from was still starting, and waited for another rank. If the blame is on v->from, it
   moves to that other rank; if that rank is not known, `end.why` says so. */
CDP__PRIVATE CDP__COLD uint32_t cdp__failure_starting(
    cdp__failure *f, const cdp__failure_event *v) {
    cdp__failure_record *r = &v->domain->record;
    cdp__failure_edge *e = NULL;
    cdp__endpoint end = r->end;
    if (r->status == CDP_ERR_TIMEOUT) e = cdp__failure_blocker(f, r->at.channel);
    if (e) e = cdp__failure_pick(f, e);
    if (e) end = cdp__failure_follow(f, e);
    if (!e && end.named == (int32_t)v->from && v->end.why == CDP__WHY_FIRST)
        r->end.why = CDP__WHY_FIRST;
    if (end.named != (int32_t)v->from || v->end.named < 0 || end.named == v->end.named
        || (e ? end.why != CDP__WHY_SILENT : r->status != CDP_ERR_PEER_LOST))
        return 0;
    end.named = v->end.named;
    end.why = CDP__WHY_AWAITED;
    if (e) {
        e->answer = e->serial;
        e->end = v->domain->end = end;
        cdp__failure_update(f);
    } else {
        r->end = end;
    }
    return 0;
}

/* Two ranks with different calls blame each other. A third rank compares both with its own call:
   if it equals that of the blamed rank, the observer is to blame. The blamed rank does not
   decide. */
CDP__PRIVATE void cdp__failure_arbitrate(
    const cdp__failure *f, cdp__failure_record *r, const cdp__fingerprint *own) {
    if (r->end.named != (int32_t)f->rank && r->end.why == CDP__WHY_CALLS
        && cdp__fingerprint_differs(own, &r->call) && cdp__fingerprint_same(own, &r->other))
        r->end.named = r->observer;
}

/* The record blames this rank, which itself waits for another rank: extends the chain. The record
   of a rank that could not start is the end of no chain. Each correction is counted, so that
   records cannot correct each other for ever. */
CDP__PRIVATE bool cdp__failure_correct(
    const cdp__failure *f, cdp__failure_record *r, const cdp__failure_event *v) {
    cdp__failure_edge *e = cdp__failure_blocker(f, r->end.last.at.channel);
    cdp__endpoint end;
    if (r->status != CDP_ERR_TIMEOUT || r->end.named != (int32_t)f->rank || v->passed || !e
        || r->end.last.waiter < 0 || r->corrections >= f->world_size || r->corrections == UINT8_MAX)
        return false;
    end = cdp__failure_follow(f, e);
    if (end.named == (int32_t)f->rank || end.why == CDP__WHY_CIRCLE) return false;
    /* the same cut link, seen from its other end: nothing to correct */
    if (end.why == CDP__WHY_SENT && r->end.why == end.why && end.named == r->end.last.waiter)
        return false;
    r->end = end;
    ++r->corrections;
    return true;
}

CDP__PRIVATE CDP__COLD uint32_t cdp__failure_adopt(cdp__failure *f, const cdp__failure_event *v) {
    cdp__failure_record *r = &v->domain->record;
    cdp__failure_set_cause(v->domain, v->record);
    /* the first rank that saw a loss may not have received the reason */
    cdp__failure_inherit_any(f, v);
    if (r->observer != (int32_t)f->rank) cdp__failure_arbitrate(f, r, &v->own);
    (void)cdp__failure_correct(f, r, v);
    return cdp__failure_publish(f, v);
}

/* Of two records of one timeout, the one with more corrections is right. A record that blames
   this rank, although another rank keeps it waiting, is answered with one more correction. */
CDP__PRIVATE CDP__COLD uint32_t cdp__failure_revise(cdp__failure *f, const cdp__failure_event *v) {
    cdp__failure_domain *d = v->domain;
    cdp__failure_record r = *v->record;
    const bool newer = r.corrections > d->record.corrections;
    if (d->record.status != CDP_ERR_TIMEOUT || r.status != CDP_ERR_TIMEOUT) return 0;
    if (!newer && (r.end.named != (int32_t)f->rank || d->record.end.named == (int32_t)f->rank))
        return 0;
    if (!newer) {
        if (d->record.corrections >= f->world_size || d->record.corrections == UINT8_MAX) return 0;
        d->record.corrections = (uint8_t)(cdp__max(d->record.corrections, r.corrections) + 1);
    } else {
        (void)cdp__failure_correct(f, &r, v);
        cdp__failure_set_cause(d, &r);
    }
    return cdp__failure_publish(f, v);
}

CDP__PRIVATE uint32_t cdp__failure_finish(cdp__failure *f, const cdp__failure_event *v) {
    (void)f;
    if (v->type == CDP__FAILURE_TIMER && v->time_ns < v->domain->due_ns) return 0;
    v->domain->state = CDP__FAILURE_DONE;
    v->domain->due_ns = CDP__NEVER;
    return CDP__FAILURE_FINISHED;
}

CDP__PRIVATE uint32_t cdp__failure_resume(cdp__failure *f, const cdp__failure_event *v) {
    cdp__failure_domain *d = v->domain;
    (void)f;
    if (d->record.status != CDP_ERR_TIMEOUT) return 0;
    d->state = CDP__FAILURE_HEALTHY;
    d->due_ns = CDP__NEVER;
    return 0;
}

CDP__PRIVATE uint32_t cdp__failure_ignore(cdp__failure *f, const cdp__failure_event *v) {
    (void)f;
    (void)v;
    return 0;
}

typedef uint32_t (*cdp__failure_rule)(cdp__failure *f, const cdp__failure_event *v);

CDP__PRIVATE uint32_t cdp__failure_step_domain(cdp__failure *f, const cdp__failure_event *v) {
    static const cdp__failure_rule rules[CDP__FAILURE_STATES][CDP__FAILURE_GROUP_EVENTS] = {
        {cdp__failure_begin, cdp__failure_adopt, cdp__failure_ignore, cdp__failure_ignore,
            cdp__failure_ignore, cdp__failure_ignore},
        {cdp__failure_interrupt, cdp__failure_adopt, cdp__failure_conclude, cdp__failure_ignore,
            cdp__failure_starting, cdp__failure_resume},
        {cdp__failure_ignore, cdp__failure_revise, cdp__failure_finish, cdp__failure_finish,
            cdp__failure_ignore, cdp__failure_ignore},
        {cdp__failure_ignore, cdp__failure_ignore, cdp__failure_ignore, cdp__failure_ignore,
            cdp__failure_ignore, cdp__failure_ignore},
    };
    return rules[v->domain->state][v->type](f, v);
}

/* The transition function. Returns what to do, see CDP__FAILURE_PUBLISH. cdp__failure_take()
   returns the WAIT and ENDPOINT messages to send. */
CDP__PRIVATE CDP__COLD uint32_t cdp__failure_step(cdp__failure *f, const cdp__failure_event *v) {
    CDP_ASSERT(f->rank < f->world_size && (!v->domain || v->type < CDP__FAILURE_GROUP_EVENTS));
    cdp__failure_drop_doubted(f, v->time_ns);
    if (v->type == CDP__FAILURE_REPORTED) {
        cdp__failure_keep_report(f, v->from, v->record, v->time_ns);
        cdp__failure_update(f);
    }
    if (v->domain) return cdp__failure_step_domain(f, v);
    if (v->type == CDP__FAILURE_BLOCKED) cdp__failure_on_blocked(f, v);
    if (v->type == CDP__FAILURE_MOVING) cdp__failure_on_moving(f, v);
    if (v->type == CDP__FAILURE_WAITS) cdp__failure_on_waits(f, v);
    if (v->type == CDP__FAILURE_ANSWER) cdp__failure_on_answer(f, v);
    if (v->type == CDP__FAILURE_CONTINUED) cdp__failure_on_continued(f, v);
    return 0;
}

/* ---- >>message/fabric: memory that two ranks share (pure) ------------------------------------ */

/* Knows: memory of two kinds, shared by the threads of one process (a hub) or by processes of one
   host (cdp_tcp.h). The caller provides that memory, and wakes a sleeping peer in the function
   `wake` of a line. Promises: bytes arrive in order. A rank that arms its doorbell before its
   last poll is woken by every later change. Exposed memory is not read after it was revoked, or
   what was read is discarded. A peer in another process may store any value: each of its values
   is read once and checked, and a wrong one damages only messages of that peer. */

/* ---- doorbells */

#define CDP__BELL_DATA 1u
#define CDP__BELL_ROOM 2u
#define CDP__BELL_ALL (CDP__BELL_DATA | CDP__BELL_ROOM)

/* The owner stores `wants`, then reads the counts; a peer increments a count, then reads
   `wants`. All four accesses are SEQ_CST, so at least one of the two sees the other's store.
   Counts are only compared for change. */
typedef struct cdp__doorbell {
    uint32_t wants;   /* what the owner sleeps for (CDP__BELL_...); 0: it is awake */
    uint32_t rung[2]; /* incremented by peers: for new data, for new room */
    uint8_t pad_[52];
} cdp__doorbell;

/* Call after a change. Returns true if the owner must be woken. `wants` is cleared, so that
   usually only one peer wakes it. */
CDP__PRIVATE bool cdp__doorbell_ring(cdp__doorbell *b, uint32_t what) {
    CDP_ASSERT(what == CDP__BELL_DATA || what == CDP__BELL_ROOM);
    (void)cdp__atomic_add_u32(&b->rung[what == CDP__BELL_ROOM], 1, CDP__SEQ_CST);
    if (!(cdp__atomic_load_u32(&b->wants, CDP__SEQ_CST) & what)) return false;
    cdp__atomic_store_u32(&b->wants, 0, CDP__SEQ_CST);
    return true;
}

CDP__PRIVATE void cdp__doorbell_arm(cdp__doorbell *b, uint32_t wants) {
    cdp__atomic_store_u32(&b->wants, wants, CDP__SEQ_CST);
}

/* True if a peer rang for one of `wants` since `seen` was stored: checked before each sleep. */
CDP__PRIVATE bool cdp__doorbell_rung(
    const cdp__doorbell *b, const uint32_t seen[2], uint32_t wants) {
    return ((wants & CDP__BELL_DATA) && cdp__atomic_load_u32(&b->rung[0], CDP__SEQ_CST) != seen[0])
        || ((wants & CDP__BELL_ROOM) && cdp__atomic_load_u32(&b->rung[1], CDP__SEQ_CST) != seen[1]);
}

/* The owner is awake. It polls everything after this call. */
CDP__PRIVATE void cdp__doorbell_seen(cdp__doorbell *b, uint32_t seen[2]) {
    if (cdp__atomic_load_u32(&b->wants, CDP__RELAXED))
        cdp__atomic_store_u32(&b->wants, 0, CDP__RELAXED);
    seen[0] = cdp__atomic_load_u32(&b->rung[0], CDP__ACQUIRE);
    seen[1] = cdp__atomic_load_u32(&b->rung[1], CDP__ACQUIRE);
}

/* ---- rings */

/* Bytes from one writer to one reader. Head and tail only grow; the ring's bytes follow in
   memory. */
typedef struct cdp__ring {
    uint64_t head; /* bytes ever written; only the writer stores */
    uint8_t pad_[56];
    uint64_t tail; /* bytes ever read; only the reader stores */
    uint8_t pad2_[56];
} cdp__ring;

/* Copies at most `room` bytes between pieces of memory and the ring, which has `size` bytes,
   from position `at` on, wrapping. Returns how many. */
CDP__PRIVATE uint64_t cdp__ring_move(cdp__ring *ring, uint64_t size, uint64_t at, uint64_t room,
    const cdp_iov *v, uint32_t n, bool into_ring) {
    uint8_t *bytes = (uint8_t *)(ring + 1);
    uint64_t off = at % size, moved = 0;
    uint32_t i;
    CDP_ASSERT(room <= size);
    for (i = 0; i < n && moved < room; ++i) {
        const uint64_t k = cdp__min(v[i].bytes, room - moved), first = cdp__min(k, size - off);
        uint8_t *mem = (uint8_t *)v[i].data;
        if (into_ring) {
            if (first) memcpy(bytes + off, mem, (size_t)first);
            if (k > first) memcpy(bytes, mem + first, (size_t)(k - first));
        } else {
            if (first) memcpy(mem, bytes + off, (size_t)first);
            if (k > first) memcpy(mem + first, bytes, (size_t)(k - first));
        }
        off += k;
        if (off >= size) off -= size;
        moved += k;
    }
    return moved;
}

/* ---- eager slots for small messages */

/* A message of at most CDP_SLOT_BYTES may travel in an eager slot instead of the stream, if its
   slot is free. The slot follows from the message's number in its stream, so the reader polls
   one word. If the slot is in use (the reader is behind, or the slot holds an unread message of
   another channel), the message takes the stream; the number tells the reader which of the two
   comes next. So no rank waits for a slot, and none is reserved. The header of a message is
   opaque here and has a fixed length. */
typedef struct cdp__eager_slot {
    uint32_t serial;  /* counts the messages stored in this slot; written last (atomic) */
    uint32_t number;  /* number of the message in its stream, from 0 */
    uint64_t channel; /* identifies the stream */
    uint16_t bytes;
    uint8_t head[CDP__SLOT_HEAD];
    uint8_t data[CDP_SLOT_BYTES + 16]; /* the first 16 bytes lie in the first cache line */
} cdp__eager_slot;
typedef struct cdp__eager_slots {
    cdp__eager_slot place[CDP_SLOTS];
    uint32_t taken[16]; /* written by the reader: the last serial that it has read (atomic) */
} cdp__eager_slots;

/* The slots must fit into the memory that a transport reserves for them. */
typedef char cdp__slots_fit[sizeof(cdp__eager_slots) <= CDP_SLOTS_BYTES ? 1 : -1];

/* One side's private state of the slots of both directions. */
typedef struct cdp__eager {
    uint32_t put[CDP_SLOTS], freed[CDP_SLOTS], got[CDP_SLOTS];
} cdp__eager;

CDP__PRIVATE uint32_t cdp__eager_place(uint64_t channel, uint32_t number) {
    return ((uint32_t)channel + number) % CDP_SLOTS;
}

/* True if slot i is free. Refreshes the copy of all `taken` counts at once, because reading that
   cache line of the other side is expensive. */
CDP__PRIVATE bool cdp__eager_free(cdp__eager *w, const cdp__eager_slots *to, uint32_t i) {
    uint32_t k;
    for (k = 0; k < CDP_SLOTS && w->put[i] != w->freed[i]; ++k) {
        const uint32_t at = (i + 1 + k) % CDP_SLOTS;
        w->freed[at] = cdp__atomic_load_u32(&to->taken[at], CDP__ACQUIRE);
    }
    return w->put[i] == w->freed[i];
}

/* Stores a message in its slot. False: the slot is in use. The caller rings the peer's doorbell
   afterwards. */
CDP__PRIVATE bool cdp__eager_put(cdp__eager *w, cdp__eager_slots *to, uint64_t channel,
    uint32_t number, const uint8_t head[CDP__SLOT_HEAD], const void *data, uint32_t bytes) {
    const uint32_t i = cdp__eager_place(channel, number);
    cdp__eager_slot *p = &to->place[i];
    CDP_ASSERT(bytes <= CDP_SLOT_BYTES);
    if (!cdp__eager_free(w, to, i)) return false;
    p->number = number;
    p->channel = channel;
    p->bytes = (uint16_t)bytes;
    memcpy(p->head, head, CDP__SLOT_HEAD);
    if (bytes) memcpy(p->data, data, bytes);
    cdp__atomic_store_u32(&p->serial, ++w->put[i], CDP__RELEASE);
    return true;
}

/* The slot that holds this message, or NULL. */
CDP__PRIVATE const cdp__eager_slot *cdp__eager_find(
    const cdp__eager *w, const cdp__eager_slots *from, uint64_t channel, uint32_t number) {
    const uint32_t i = cdp__eager_place(channel, number);
    const cdp__eager_slot *p = &from->place[i];
    if (cdp__atomic_load_u32(&p->serial, CDP__ACQUIRE) == w->got[i]) return NULL;
    return p->number == number && p->channel == channel ? p : NULL;
}

/* Copies the header. Returns the length of the message, or UINT32_MAX if the stored length is
   impossible. A malicious peer may change the stored length: use the returned one. */
CDP__PRIVATE uint32_t cdp__eager_head(const cdp__eager_slot *p, uint8_t head[CDP__SLOT_HEAD]) {
    const uint32_t bytes = cdp__atomic_load_u16(&p->bytes, CDP__RELAXED);
    memcpy(head, p->head, CDP__SLOT_HEAD);
    return bytes <= CDP_SLOT_BYTES ? bytes : UINT32_MAX;
}

/* The message has been read: frees its slot. */
CDP__PRIVATE void cdp__eager_taken(
    cdp__eager *w, cdp__eager_slots *from, uint64_t channel, uint32_t number) {
    const uint32_t i = cdp__eager_place(channel, number);
    w->got[i] = cdp__atomic_load_u32(&from->place[i].serial, CDP__RELAXED);
    cdp__atomic_store_u32(&from->taken[i], w->got[i], CDP__RELEASE);
}

/* True if any slot holds an unread message. */
CDP__PRIVATE bool cdp__eager_any(const cdp__eager_slots *from) {
    uint32_t i;
    for (i = 0; i < CDP_SLOTS; ++i)
        if (cdp__atomic_load_u32(&from->place[i].serial, CDP__ACQUIRE)
            != cdp__atomic_load_u32(&from->taken[i], CDP__RELAXED))
            return true;
    return false;
}

/* ---- exposures */

/* A large message stays in the sender's memory, and the receiver reads it in place. The state of
   an exposure is a growing number and three bits. Every change is a compare-and-swap of a known
   value (or clears bits), so all changes have one order.
     Owner:  free -> EXPOSED; try_revoke: EXPOSED -> free; revoke: any -> free, with the next
             number.
     Reader: EXPOSED -> EXPOSED, BEGUN before its first read.
   In one process the reader also sets HELD while it reads, and the owner waits until it is
   cleared. That wait is bounded, because threads of one process end together. Processes do not
   wait for each other: the reader checks the state again after each slice. If the owner revoked
   before that check, the slice is discarded; if it revokes later, it writes its memory only after
   the slice was read. A reader may see fields of a later exposure: it only reads memory that it
   has mapped. */
#define CDP__HELD 1u
#define CDP__EXPOSED 2u
#define CDP__BEGUN 4u
#define CDP__STATE_BITS 7u

typedef struct cdp__exposure {
    uint64_t at, bytes, off; /* address and length; offset in a segment */
    uint32_t state;
    uint32_t segment; /* number of that segment + 1; 0: in none */
} cdp__exposure;

/* ---- ways and lines */

/* One direction of a pair. The ring is the last member, because its bytes follow it. */
typedef struct cdp__way {
    cdp__exposure exposed[CDP_EXPOSURES]; /* the writer's memory that the reader may read */
    union {
        cdp__eager_slots slots;
        uint8_t slots_room[CDP_SLOTS_BYTES];
    } eager;
    cdp__ring ring;
} cdp__way;

/* Long data moves in pieces, so that both sides copy at the same time. */
#define CDP__LINE_PIECE (32u * 1024u)

typedef struct cdp__line {
    cdp__way *out, *in;            /* NULL until made */
    uint64_t size;                 /* bytes of each ring */
    uint64_t out_at, in_at;        /* bytes that this side has written and read */
    uint64_t out_tail;             /* bytes that the peer had read, as last loaded */
    bool full;                     /* the last write did not fit */
    bool same_process;             /* the peer is a thread of this process */
    uint32_t state[CDP_EXPOSURES]; /* states of this side's exposures */
    cdp__doorbell *theirs;
    void (*wake)(struct cdp__line *line); /* wakes the sleeping peer */
    void *owner;
    uint32_t peer;
} cdp__line;

CDP__PRIVATE void cdp__line_ring(cdp__line *l, uint32_t what) {
    if (cdp__doorbell_ring(l->theirs, what)) l->wake(l);
}

/* Writes one piece and rings the peer's doorbell. < 0: the peer has stored impossible values. */
CDP__PRIVATE int64_t cdp__line_put(cdp__line *l, const cdp_iov *v, uint32_t n, uint64_t bytes) {
    cdp__ring *ring = &l->out->ring;
    uint64_t moved;
    CDP_ASSERT(l->out_at - l->out_tail <= l->size);
    if (bytes > l->size - (l->out_at - l->out_tail)) {
        const uint64_t tail = cdp__atomic_load_u64(&ring->tail, CDP__ACQUIRE);
        if (l->out_at - tail > l->size) return -1;
        l->out_tail = tail;
    }
    moved =
        cdp__ring_move(ring, l->size, l->out_at, l->size - (l->out_at - l->out_tail), v, n, true);
    l->full = moved < bytes;
    if (!moved) return 0;
    l->out_at += moved;
    cdp__atomic_store_u64(&ring->head, l->out_at, CDP__RELEASE);
    cdp__line_ring(l, CDP__BELL_DATA);
    return (int64_t)moved;
}

CDP__PRIVATE int64_t cdp__line_get(cdp__line *l, const cdp_iov *v, uint32_t n) {
    cdp__ring *ring = &l->in->ring;
    const uint64_t head = cdp__atomic_load_u64(&ring->head, CDP__ACQUIRE);
    uint64_t moved;
    if (head - l->in_at > l->size) return -1;
    if (head == l->in_at) return 0;
    moved = cdp__ring_move(ring, l->size, l->in_at, head - l->in_at, v, n, false);
    if (!moved) return 0;
    l->in_at += moved;
    cdp__atomic_store_u64(&ring->tail, l->in_at, CDP__RELEASE);
    cdp__line_ring(l, CDP__BELL_ROOM);
    return (int64_t)moved;
}

/* As transport.send and .recv. < 0: the peer has stored impossible values. */
CDP__PRIVATE int64_t cdp__line_move(cdp__line *l, const cdp_iov *v, uint32_t n, bool sending) {
    uint64_t bytes = 0, off;
    int64_t moved = 0, r = 0;
    uint32_t i;
    for (i = 0; i < n; ++i)
        bytes += v[i].bytes;
    if (bytes <= CDP__LINE_PIECE)
        return sending ? cdp__line_put(l, v, n, bytes) : cdp__line_get(l, v, n);
    for (i = 0; i < n; ++i)
        for (off = 0; off < v[i].bytes; off += (uint64_t)r) {
            cdp_iov one;
            one.data = (uint8_t *)v[i].data + off;
            one.bytes = cdp__min(v[i].bytes - off, CDP__LINE_PIECE);
            r = sending ? cdp__line_put(l, &one, 1, one.bytes) : cdp__line_get(l, &one, 1);
            if (r <= 0) return moved ? moved : r;
            moved += r;
        }
    return moved;
}

/* What this rank sleeps for (CDP__BELL_...), for a line that has a doorbell of its own. */
CDP__PRIVATE uint32_t cdp__line_wants(const cdp__line *l) {
    return CDP__BELL_DATA | (l->full ? CDP__BELL_ROOM : 0u);
}

/* True if there is unread data, or new room for data that did not fit. Checked after the
   doorbell rang: it may have rung for data that has been read since. */
CDP__PRIVATE bool cdp__line_busy(const cdp__line *l) {
    return cdp__atomic_load_u64(&l->in->ring.head, CDP__ACQUIRE) != l->in_at
        || cdp__eager_any(&l->in->eager.slots)
        || (l->full && cdp__atomic_load_u64(&l->out->ring.tail, CDP__ACQUIRE) != l->out_tail);
}

/* The slot of the exposure table that a token of this side names. */
CDP__PRIVATE uint32_t cdp__exposure_index(const cdp__line *l, uint64_t token) {
    const uint32_t i = (uint32_t)(token >> 32);
    CDP_ASSERT(i < CDP_EXPOSURES && l->state[i] == (uint32_t)token);
    (void)l;
    return i % CDP_EXPOSURES;
}

/* Exposes memory to the peer. False: too many exposures. `segment` and `off` say where the peer
   can map the memory; 0: it cannot. */
CDP__PRIVATE bool cdp__line_expose(cdp__line *l, const void *data, uint64_t bytes, uint32_t segment,
    uint64_t off, uint64_t *token) {
    cdp__exposure *e;
    uint32_t i = 0;
    while (i < CDP_EXPOSURES && (l->state[i] & CDP__EXPOSED))
        ++i;
    if (i == CDP_EXPOSURES) return false;
    e = &l->out->exposed[i];
    cdp__atomic_store_u64(&e->at, (uint64_t)(uintptr_t)data, CDP__RELAXED);
    cdp__atomic_store_u64(&e->bytes, bytes, CDP__RELAXED);
    cdp__atomic_store_u64(&e->off, off, CDP__RELAXED);
    cdp__atomic_store_u32(&e->segment, segment, CDP__RELAXED);
    l->state[i] |= CDP__EXPOSED;
    cdp__atomic_store_u32(&e->state, l->state[i], CDP__RELEASE);
    *token = (uint64_t)i << 32 | l->state[i];
    return true;
}

CDP__PRIVATE bool cdp__line_try_revoke(cdp__line *l, uint64_t token) {
    const uint32_t i = cdp__exposure_index(l, token);
    const uint32_t next = (l->state[i] & ~CDP__STATE_BITS) + CDP__STATE_BITS + 1;
    uint32_t state = l->state[i];
    if (!cdp__atomic_cas_u32(&l->out->exposed[i].state, &state, next, CDP__ACQ_REL, CDP__RELAXED))
        return false;
    l->state[i] = next;
    return true;
}

/* False: the reader, a thread of this process, is reading a slice, and will not begin another
   one. Let it run, then call again. */
CDP__PRIVATE bool cdp__line_revoke(cdp__line *l, uint64_t token) {
    const uint32_t i = cdp__exposure_index(l, token);
    uint32_t *state = &l->out->exposed[i].state;
    const uint32_t next = (l->state[i] & ~CDP__STATE_BITS) + CDP__STATE_BITS + 1;
    if (l->same_process
        && (cdp__atomic_and_u32(state, ~(CDP__EXPOSED | CDP__BEGUN), CDP__ACQ_REL) & CDP__HELD))
        return false;
    l->state[i] = next;
    /* must precede the owner's next write to that memory */
    (void)cdp__atomic_swap_u32(state, next, CDP__ACQ_REL);
    return true;
}

/* Call before reading a slice of a peer's exposure. Copies its fields, which may hold any
   values. False: the memory is not exposed, or no longer. */
CDP__PRIVATE bool cdp__line_read_begin(cdp__line *l, uint64_t token, cdp__exposure *out) {
    const uint32_t exposed = (uint32_t)token, begun = exposed | CDP__BEGUN;
    const uint32_t hold = begun | (l->same_process ? CDP__HELD : 0u);
    uint32_t first = exposed, again = begun;
    cdp__exposure *e;
    if (!l->in || token >> 32 >= CDP_EXPOSURES || (exposed & CDP__STATE_BITS) != CDP__EXPOSED)
        return false;
    e = &l->in->exposed[token >> 32];
    if (!cdp__atomic_cas_u32(&e->state, &first, hold, CDP__ACQ_REL, CDP__ACQUIRE)
        && !cdp__atomic_cas_u32(&e->state, &again, hold, CDP__ACQ_REL, CDP__ACQUIRE))
        return false;
    out->at = cdp__atomic_load_u64(&e->at, CDP__RELAXED);
    out->bytes = cdp__atomic_load_u64(&e->bytes, CDP__RELAXED);
    out->off = cdp__atomic_load_u64(&e->off, CDP__RELAXED);
    out->segment = cdp__atomic_load_u32(&e->segment, CDP__RELAXED);
    return true;
}

/* Call after reading a slice. True if the memory was exposed all the time, so the slice is
   valid. */
CDP__PRIVATE bool cdp__line_read_end(cdp__line *l, uint64_t token) {
    uint32_t begun = (uint32_t)token | CDP__BEGUN;
    cdp__exposure *e = &l->in->exposed[(token >> 32) % CDP_EXPOSURES];
    if (l->same_process) {
        (void)cdp__atomic_and_u32(&e->state, ~CDP__HELD, CDP__RELEASE);
        return true;
    }
    return cdp__atomic_cas_u32(&e->state, &begun, begun, CDP__ACQ_REL, CDP__ACQUIRE);
}

/* ---- >>message/deferred: works that are not operations --------------------------------------- */

/* Knows: works, requests for messages. Promises: entries of a pool, which are reused. */

/* A work that is not an operation of the queue: a chained function, a receive from any rank, a
   batch. Entries are reused; `use` says which work an entry currently belongs to. */
typedef enum cdp__deferred_kind {
    CDP__DEFERRED_FREE = 0,
    CDP__DEFERRED_THEN,
    CDP__DEFERRED_ANY,
    CDP__DEFERRED_BATCH,
    CDP__DEFERRED_CALL /* the code that opened it closes it */
} cdp__deferred_kind;

typedef struct cdp__deferred {
    struct cdp__deferred *next; /* in world->pending */
    cdp_group *owner;
    cdp__deferred_kind kind;
    uint64_t use;
    uint64_t cancelled; /* bit i: use number `use - 1 - i` was cancelled */
    /* THEN: the work that it waits for. ANY: the receive that it was turned into */
    cdp_work after;
    cdp_status (*func)(void *user, cdp_status status);
    void *user;
    uint32_t left; /* BATCH: messages that are not complete yet */
    cdp_group *of; /* ANY: the group whose ranks may send */
    cdp_transfer want;
    uint64_t arrivals;    /* world->arrivals at the last poll */
    uint64_t set;         /* ANY: the channel of the messages that it accepts */
    uint64_t reported_ns; /* ANY: when this rank last reported the wait to its peers; 0: never */
    uint64_t start_ns, wait_ns; /* ANY: when it began, and when its wait counts as long */
    uint64_t deadline_ns;
    /* ANY: polls; true when something has changed */
    bool (*poll)(struct cdp__deferred *s, uint64_t now);
} cdp__deferred;

/* ---- >>message/stream: the messages of one channel to and from one peer ---------------------- */

/* Knows: transport, messages, slots. Promises: messages of a stream arrive whole and in order;
   whatever order ranks use their channels in, no channel waits for another; unexpected data is
   bounded. */

#define CDP__WINDOW (4u << 20) /* the largest window_bytes of any rank */
/* A FAILURE is sent even where the window is used up: the receiver keeps room for one. */
#define CDP__WINDOW_SLACK (CDP__HEAD_BYTES + CDP__FAILURE_MAX)
/* Half of a usual L2 cache, so that a reduction finds received data in the cache. */
#define CDP__STAGE_BYTES (128u * 1024u)
/* A message longer than this begins only if the window has room for this much of it. */
#define CDP__PIECE_MIN (64u * 1024u)
#define CDP__UNEXPECTED 256u /* unexpected streams, at most */
/* recently closed channels; messages for them are dropped */
#if defined(CDP_NO_GROUPS) && defined(CDP_NO_MESSAGES)
#define CDP__GONE 1u /* there is one channel */
#else
#define CDP__GONE 64u
#endif
#define CDP__CONTROL_MAX (1u << 30) /* bytes of queued messages per link, at most */
#define CDP__WORLD_CHANNEL 1u       /* channel of the group created with the transport */

typedef struct cdp__stream {
    uint64_t channel;
    struct cdp__stream *next; /* next stream in the same row of world->streams */
    uint32_t peer;            /* rank in the world */
    uint32_t put, got;        /* messages sent and received, in slots or on the link */
    bool unexpected;          /* no call of this rank has asked for it yet */
    bool left;                /* the peer has left the channel */
    bool dropping;            /* the channel failed: arriving messages are dropped */
    bool asking, asked;       /* this rank, the peer has asked for credit */
    /* the peer has not yet confirmed that it has read the exposed payload */
    bool exposed;
    bool refused;         /* the peer has answered that it cannot read that payload */
    uint64_t sent, acked; /* bytes with headers: sent; of these, read by the peer */
    uint64_t taken;       /* bytes read here */
    uint64_t answered;    /* of these, those that the last CREDIT told */
    uint64_t
        /* bytes allowed beyond the window, for the peer's answers to bodies that this rank
           offers */
        slack;
    uint8_t *early; /* ring of bytes that arrived before a call asked for them */
    uint64_t early_at, early_used, early_room;
    /* body of a FAILURE for a channel that is not open here yet */
    uint8_t *failure;
    uint32_t failure_bytes;
    /* the message being read */
    uint64_t body_left;
    /* the slot with its body; NULL: the body is in `early` or on the link */
    const cdp__eager_slot *slot;
    uint32_t slot_at;
} cdp__stream;

typedef struct cdp__port { /* this rank's end of one link */
    uint32_t tx_head_left, rx_head_got;
    /* body bytes still missing of the message half sent, half received */
    uint64_t tx_left, rx_left;
    /* its stream. NULL: the stream is gone: zeros complete the body; it is dropped */
    cdp__stream *tx_stream, *rx_stream;
    bool rx_fresh;   /* rx_head is complete, but the reader of rx_stream has not taken it */
    bool rx_control; /* the body of a FAILURE, WAIT or ENDPOINT is being received */
    bool broken;     /* received bytes were no valid message */
    bool dead;       /* the transport reports that the peer is lost */
    bool used;       /* bytes were sent to the peer, or came from it */
    /* 1: unexpected streams of the peer reached the limit here; 2: streams of this rank did
       there */
    uint32_t over_limit;
    bool nomem; /* out of memory for an unexpected stream: its messages cannot be stored */
    cdp__eager slots;
    uint8_t *control; /* queued whole messages, sent before the next DATA */
    uint32_t control_at, control_used, control_room;
    uint8_t *failure; /* body of the FAILURE, WAIT or ENDPOINT that is being received */
    uint32_t failure_got;
    uint8_t tx_head[CDP__HEAD_BYTES], rx_head[CDP__HEAD_BYTES];
} cdp__port;

/* How many groups of the same ranks were created here. The counts are equal on all ranks, so
   they number such groups without a message. */
typedef struct cdp__made {
    uint64_t ranks; /* hash of the ranks */
    uint64_t count;
    struct cdp__made *next;
} cdp__made;

/* Result of a call that never blocks. */
typedef enum cdp__advance {
    CDP__IDLE,    /* nothing to do */
    CDP__BLOCKED, /* waits for the transport */
    CDP__MOVED    /* poll again */
} cdp__advance;

/* State shared by all groups of one transport. The lock guards everything but `os`, and all
   groups. Members that much code uses come first. */
typedef struct cdp__world {
    const cdp_os *os;
    uint32_t size, rank;
    cdp__port *ports;
    cdp_group *groups;             /* all */
    cdp_group *active;             /* those with something to do */
    struct cdp__deferred *pending; /* works that are not operations, in the order of the calls */
    void *cond;             /* where callers sleep while another thread is in transport.wait */
    bool sleeping;          /* a thread is in transport.wait; at most one is */
    bool stop;              /* the progress thread must end */
    bool control_queued;    /* some port has control messages to send */
    bool fast_poll;         /* this poll of the groups is one of several: only the last one checks
                          deadlines */
    bool cut;               /* this poll ended at its budget, and there is more to do */
    uint64_t poll_until_ns; /* when this poll is to end; 0: when nothing moves any more */
    cdp_lock lock;
    cdp_transport transport;
    cdp__stream **streams; /* hash table, by channel and peer */
    uint32_t stream_rows;  /* a power of two */
    uint32_t stream_count;
    uint32_t unexpected_count;
    int32_t spin_luck; /* > 0: polling before sleeping has paid off lately; < 0: it has not */
    uint64_t arrivals; /* increases when a receive from any rank might find a message */
    /* `stored` counts events for other streams than the one being read; `stored_seen` is its
       value at the last poll of all groups */
    uint64_t stored, stored_seen;
    uint64_t gone[CDP__GONE];
    uint32_t gone_at;
    cdp__made *made;
    struct cdp_channel *channels; /* that are open */
    /* called as soon as a FAILURE, WAIT or ENDPOINT has arrived, whatever this rank reads just now;
       false: it is invalid */
    bool (*note)(struct cdp__world *w, uint32_t peer, uint8_t type, uint64_t channel,
        const uint8_t *body, uint32_t bytes);
    /* set when the first channel opens */
    cdp__advance (*channels_poll)(struct cdp__world *w);
    uint64_t (*channels_deadline)(const struct cdp__world *w);
    uint64_t polls;                     /* how often `pending` was polled */
    cdp_group *calling;                 /* the group whose callback is running, without the lock */
    uint8_t *stage;                     /* received bytes before they are reduced */
    uint64_t stage_bytes, window_bytes; /* of the desc */

    /* threads */
    void *thread;
    void *park;            /* where the progress thread sleeps while callers make progress */
    uint32_t lock_waiters; /* (atomic) */
    /* threads inside a wait: they make progress, the progress thread stands by */
    uint32_t callers;
    /* Counts of waits and of completed operations, many of which need no wait: a change shows
       the progress thread that callers are active. */
    uint64_t waits, ended;
    uint64_t yield_again; /* the value of `waits` from which on yielding is tried again */
    cdp__failure failure;
    cdp__choosing choosing;
    cdp_group_desc given; /* the desc as the caller wrote it, without defaults */
} cdp__world;

CDP__PRIVATE uint64_t cdp__now(const cdp_os *os) {
    return os->now_ns(os->user);
}

#ifdef CDP_NO_FRAMES
#define CDP__BUDGETS 0
#else
#define CDP__BUDGETS 1
#endif
/* Most bytes that one step of a poll with a budget copies, combines or gives to the transport. Such
   a step takes about ten microseconds, so a poll exceeds its budget by at most about that. */
#define CDP__STEP_BYTES (64u * 1024u)

/* How many of `bytes` this step may move. */
CDP__PRIVATE uint64_t cdp__step_bytes(const cdp__world *w, uint64_t bytes) {
    return CDP__BUDGETS && w->poll_until_ns ? cdp__min(bytes, CDP__STEP_BYTES) : bytes;
}

/* Called after a step that moved something. True if the poll's budget is used up, so it ends
   here. */
CDP__PRIVATE bool cdp__poll_over(cdp__world *w) {
    if (!CDP__BUDGETS) return false;
    if (!w->poll_until_ns || cdp__now(w->os) < w->poll_until_ns) return false;
    w->cut = true;
    return true;
}

/* A poll with a budget may take this long, however small its budget, to read what has arrived when
   it begins, and while a failure is settled: a peer's messages about a failure arrive behind data
   that it sent before, and must be read in time. */
#define CDP__POLL_EXTRA_NS 50000u
CDP__PRIVATE void cdp__poll_extend(cdp__world *w) {
    if (!CDP__BUDGETS || !w->poll_until_ns) return;
    w->poll_until_ns = cdp__max(w->poll_until_ns, cdp__now(w->os) + CDP__POLL_EXTRA_NS);
}

/* ---- streams by channel and peer */

CDP__PRIVATE cdp__stream **cdp__stream_row(const cdp__world *w, uint64_t channel, uint32_t peer) {
    const uint64_t h = (channel ^ peer * 0x9e3779b97f4a7c15ull) * 0xff51afd7ed558ccdull;
    return &w->streams[h >> 32 & (w->stream_rows - 1)];
}

CDP__PRIVATE cdp__stream *cdp__stream_find(const cdp__world *w, uint64_t channel, uint32_t peer) {
    cdp__stream *s = *cdp__stream_row(w, channel, peer);
    while (s && (s->channel != channel || s->peer != peer))
        s = s->next;
    return s;
}

/* Makes room for `more` streams in the table. False: out of memory. */
CDP__PRIVATE CDP__COLD bool cdp__streams_reserve(cdp__world *w, uint32_t more) {
    cdp__stream **old = w->streams;
    const uint32_t old_rows = w->stream_rows;
    uint32_t rows = old_rows ? old_rows : 8, i;
    while (rows < w->stream_count + more)
        rows *= 2;
    if (rows == old_rows) return true;
    w->streams = (cdp__stream **)cdp__alloc_zero(w->os, rows * sizeof *w->streams);
    if (!w->streams) {
        w->streams = old;
        return old != NULL; /* without a larger table, rows only become longer and slower */
    }
    w->stream_rows = rows;
    for (i = 0; i < old_rows; ++i)
        while (old[i]) {
            cdp__stream *s = old[i], **row = cdp__stream_row(w, s->channel, s->peer);
            old[i] = s->next;
            s->next = *row;
            *row = s;
        }
    cdp__free(w->os, old);
    return true;
}

CDP__PRIVATE void cdp__stream_insert(cdp__world *w, cdp__stream *s) {
    cdp__stream **row = cdp__stream_row(w, s->channel, s->peer);
    s->next = *row;
    *row = s;
    ++w->stream_count;
}

/* The buffer of the half-sent message is gone. If nothing of the message was sent, it is taken
   back: zeros for its body would pass for data of this rank, if the receiver is late and its
   operation still goes on. */
CDP__PRIVATE void cdp__port_abandon(cdp__port *port) {
    port->tx_stream = NULL;
    if (port->tx_head_left != CDP__HEAD_BYTES) return;
    port->tx_head_left = 0;
    port->tx_left = 0;
}

/* Removes the stream from the table and from its port. */
CDP__PRIVATE void cdp__stream_remove(cdp__world *w, cdp__stream *s) {
    cdp__stream **at = cdp__stream_row(w, s->channel, s->peer);
    cdp__port *port = &w->ports[s->peer];
    while (*at && *at != s)
        at = &(*at)->next;
    if (*at) {
        *at = s->next;
        --w->stream_count;
        if (s->unexpected) --w->unexpected_count;
    }
    if (port->tx_stream == s) cdp__port_abandon(port);
    if (port->rx_stream == s) {
        port->rx_stream = NULL;
        port->rx_fresh = false;
    }
}

/* The new stream `to` takes over all state of the unexpected stream `from`. */
CDP__PRIVATE void cdp__stream_replace(cdp__world *w, cdp__stream *from, cdp__stream *to) {
    cdp__port *port = &w->ports[from->peer];
    const bool receiving = port->rx_stream == from, fresh = port->rx_fresh;
    CDP_ASSERT(from->unexpected && port->tx_stream != from);
    cdp__stream_remove(w, from);
    *to = *from;
    to->unexpected = false;
    cdp__stream_insert(w, to);
    if (receiving) {
        port->rx_stream = to;
        port->rx_fresh = fresh;
    }
}

/* Enters a new stream, whose channel and peer are set, into the table, which has room for it. True:
   an unexpected stream had them, has given its state to the new one, and is freed. */
CDP__PRIVATE bool cdp__stream_enter(cdp__world *w, cdp__stream *s) {
    cdp__stream *came = cdp__stream_find(w, s->channel, s->peer);
    CDP_ASSERT(!came || came->unexpected);
    if (came) {
        cdp__stream_replace(w, came, s);
        cdp__free(w->os, came);
    } else {
        cdp__stream_insert(w, s);
    }
    return came != NULL;
}

/* A new stream that is not part of a group's array. NULL: out of memory. */
CDP__PRIVATE cdp__stream *cdp__stream_make(cdp__world *w, uint64_t channel, uint32_t peer) {
    cdp__stream *s;
    if (!cdp__streams_reserve(w, 1)) return NULL;
    s = (cdp__stream *)cdp__alloc_zero(w->os, sizeof *s);
    if (!s) return NULL;
    s->channel = channel;
    s->peer = peer;
    cdp__stream_insert(w, s);
    return s;
}

/* Records that a channel was closed here; one entry covers its streams to all ranks. */
CDP__PRIVATE void cdp__world_gone(cdp__world *w, uint64_t channel) {
    uint32_t i;
    for (i = 0; i < CDP__GONE; ++i)
        if (w->gone[i] == channel) return;
    w->gone[w->gone_at++ % CDP__GONE] = channel;
}

/* A stream for a message that no call has asked for. NULL: the channel is closed, the limit of
   unexpected streams is reached, or out of memory. */
CDP__PRIVATE cdp__stream *cdp__stream_unexpected(cdp__world *w, uint64_t channel, uint32_t peer) {
    cdp__stream *s;
    uint32_t i;
    for (i = 0; i < CDP__GONE; ++i)
        if (w->gone[i] == channel) return NULL;
    if (w->unexpected_count == CDP__UNEXPECTED) {
        w->ports[peer].over_limit = 1;
        return NULL;
    }
    s = cdp__stream_make(w, channel, peer);
    w->ports[peer].nomem = !s;
    if (!s) return NULL;
    s->unexpected = true;
    ++w->unexpected_count;
    return s;
}

/* ---- >>message/port: control messages of a link ---------------------------------------------- */

/* Knows: ports and their streams. Promises: control messages are whole, and leave before the next
   DATA. */

/* Makes room for `bytes` in the queue of control messages. False: out of memory, or the queue
   would exceed CDP__CONTROL_MAX. */
CDP__PRIVATE bool cdp__control_reserve(cdp__world *w, cdp__port *port, uint32_t bytes) {
    const uint32_t left = port->control_used - port->control_at;
    const uint64_t need = (uint64_t)left + bytes, room = cdp__max(2 * need, 4 * (uint64_t)bytes);
    uint8_t *p = port->control;
    if ((uint64_t)port->control_used + bytes <= port->control_room && left) return true;
    if (need > CDP__CONTROL_MAX) return false;
    if (2 * need <= port->control_room || (!left && need <= port->control_room)) {
        if (left) memmove(p, p + port->control_at, left);
    } else {
        p = (uint8_t *)cdp__alloc(w->os, room);
        if (!p) return false;
        if (left) memcpy(p, port->control + port->control_at, left);
        cdp__free(w->os, port->control);
        port->control = p;
        port->control_room = (uint32_t)room;
    }
    port->control_at = 0;
    port->control_used = left;
    return true;
}

/* Queues one whole message, sent as soon as no other message is half sent. False: out of memory. */
CDP__PRIVATE bool cdp__control_add(
    cdp__world *w, uint32_t peer, const cdp__head *h, const uint8_t *body) {
    cdp__port *port = &w->ports[peer];
    const uint32_t bytes = CDP__HEAD_BYTES + h->bytes;
    CDP_ASSERT(body || !h->bytes);
    if (port->dead) return true; /* the peer is lost: drop it */
    if (!cdp__control_reserve(w, port, bytes)) return false;
    cdp__head_encode(h, port->control + port->control_used);
    if (body) memcpy(port->control + port->control_used + CDP__HEAD_BYTES, body, h->bytes);
    port->control_used += bytes;
    w->control_queued = true;
    return true;
}

/* Queues a control message without a body. False: out of memory. */
CDP__PRIVATE CDP__ONE_COPY bool cdp__stream_send_control(
    cdp__world *w, const cdp__stream *s, cdp__message_type type) {
    cdp__head h;
    memset(&h, 0, sizeof h);
    h.type = (uint8_t)type;
    h.channel = s->channel;
    h.ack = (uint32_t)s->taken;
    return cdp__control_add(w, s->peer, &h, NULL);
}

/* Queues a control message for a channel that has no stream. */
CDP__PRIVATE void cdp__channel_send_control(
    cdp__world *w, uint32_t peer, uint64_t channel, cdp__message_type type) {
    cdp__head h;
    memset(&h, 0, sizeof h);
    h.type = (uint8_t)type;
    h.channel = channel;
    (void)cdp__control_add(w, peer, &h, NULL);
}

/* Sends queued control messages, and zeros for the rest of a body whose stream is gone. True if
   the port is free for the next message. */
CDP__PRIVATE bool cdp__port_flush(cdp__world *w, uint32_t peer) {
    static const uint8_t zeros[64] = {0};
    cdp__port *port = &w->ports[peer];
    while (!port->tx_stream && !port->dead) {
        cdp_iov v;
        int64_t r;
        const bool rest = port->tx_head_left || port->tx_left;
        if (!rest && port->control_at == port->control_used) return true;
        v.data = NULL;
        v.bytes = port->control_used - port->control_at;
        if (v.bytes) v.data = port->control + port->control_at;
        if (rest) {
            v.data = port->tx_head_left ? port->tx_head + (CDP__HEAD_BYTES - port->tx_head_left)
                                        : (uint8_t *)(uintptr_t)zeros;
            v.bytes =
                port->tx_head_left ? port->tx_head_left : cdp__min(port->tx_left, sizeof zeros);
        }
        v.bytes = cdp__step_bytes(w, v.bytes);
        r = w->transport.send(w->transport.self, peer, &v, 1);
        if (r < 0) { /* `dead` keeps later polls from trying again */
            port->dead = true;
            port->control_at = port->control_used = 0;
            port->tx_head_left = 0;
            port->tx_left = 0;
        }
        if (r <= 0) return false;
        if (!rest)
            port->control_at += (uint32_t)r;
        else if (port->tx_head_left)
            port->tx_head_left -= (uint32_t)r;
        else
            port->tx_left -= (uint64_t)r;
        if (cdp__poll_over(w)) return false;
    }
    return false;
}

/* Sends queued messages of all ports that have become free. */
CDP__PRIVATE void cdp__world_send_queued(cdp__world *w) {
    uint32_t i;
    w->control_queued = false;
    for (i = 0; i < w->size; ++i) {
        const cdp__port *port = &w->ports[i];
        const bool rest = !port->tx_stream && (port->tx_head_left || port->tx_left);
        if ((rest || port->control_at != port->control_used) && !cdp__port_flush(w, i))
            w->control_queued = true;
    }
}

/* The buffer of the half-sent message is about to be freed: copies the rest of header and `body`
   to the head of the queue. Without memory, zeros are sent in its place. */
CDP__PRIVATE void cdp__port_keep(cdp__world *w, uint32_t peer, const uint8_t *body) {
    cdp__port *port = &w->ports[peer];
    const uint64_t head = port->tx_head_left, rest = head + port->tx_left;
    const uint64_t left = port->control_used - port->control_at;
    uint8_t *p = NULL;
    if (rest + left <= CDP__CONTROL_MAX) p = (uint8_t *)cdp__alloc(w->os, rest + left);
    if (!p) return;
    if (head) memcpy(p, port->tx_head + (CDP__HEAD_BYTES - head), (size_t)head);
    if (port->tx_left) memcpy(p + head, body, (size_t)port->tx_left);
    if (left) memcpy(p + rest, port->control + port->control_at, (size_t)left);
    cdp__free(w->os, port->control);
    port->control = p;
    port->control_at = 0;
    port->control_used = port->control_room = (uint32_t)(rest + left);
    port->tx_head_left = 0;
    port->tx_left = 0;
    w->control_queued = true;
}

/* Answers a sender's request for credit, once at most half of the window is in use, and some of
   what came was read: the window of the sender may be smaller. */
CDP__PRIVATE void cdp__stream_answer(cdp__world *w, cdp__stream *s) {
    if (!s->asked || s->early_used > w->window_bytes / 2) return;
    if (s->early_used && s->taken == s->answered) return;
    /* out of memory: try again later */
    s->asked = !cdp__stream_send_control(w, s, CDP__MESSAGE_CREDIT);
    if (!s->asked) s->answered = s->taken;
    (void)cdp__port_flush(w, s->peer);
}

/* ---- >>message/receive: messages that arrive at a port --------------------------------------- */

/* Knows: ports, streams, slots. Promises: bytes of streams that no call reads now are stored,
   within the window; the reader of a stream gets its bytes in order. */

/* Makes room for `more` bytes in `early`. */
CDP__PRIVATE bool cdp__stream_room(const cdp_os *os, cdp__stream *s, uint64_t more) {
    uint64_t room = cdp__max(s->early_room, 1024);
    uint8_t *p;
    if (s->early_used + more <= s->early_room) return true;
    while (room < s->early_used + more)
        room *= 2;
    p = (uint8_t *)cdp__alloc(os, room);
    if (!p) return false;
    if (s->early_used) {
        const uint64_t first = cdp__min(s->early_used, s->early_room - s->early_at);
        memcpy(p, s->early + s->early_at, (size_t)first);
        memcpy(p + first, s->early, (size_t)(s->early_used - first));
    }
    cdp__free(os, s->early);
    s->early = p;
    s->early_room = room;
    s->early_at = 0;
    return true;
}

/* Appends to `early`, which has room. */
CDP__PRIVATE void cdp__early_put(cdp__stream *s, const uint8_t *from, uint64_t bytes) {
    const uint64_t at = (s->early_at + s->early_used) % s->early_room;
    const uint64_t first = cdp__min(bytes, s->early_room - at);
    memcpy(s->early + at, from, (size_t)first);
    memcpy(s->early, from + first, (size_t)(bytes - first));
    s->early_used += bytes;
}

/* Copies the first bytes of `early`, and removes them if `take` is set. */
CDP__PRIVATE void cdp__early_copy(cdp__stream *s, uint8_t *to, uint64_t bytes, bool take) {
    const uint64_t first = cdp__min(bytes, s->early_room - s->early_at);
    CDP_ASSERT(bytes <= s->early_used);
    memcpy(to, s->early + s->early_at, (size_t)first);
    memcpy(to + first, s->early, (size_t)(bytes - first));
    if (!take) return;
    s->early_at = (s->early_at + bytes) % s->early_room;
    s->early_used -= bytes;
}

/* Applies the control fields of a received header to its stream. False: the peer sent an
   impossible value. */
CDP__PRIVATE bool cdp__stream_control(cdp__world *w, cdp__stream *s, const cdp__head *h) {
    const uint32_t more = h->ack - (uint32_t)s->acked;
    const bool slack = h->type == CDP__MESSAGE_LEAVE || h->type == CDP__MESSAGE_LIMIT;
    if (slack) {
        s->left = true;
        ++w->stored;
        return true;
    }
    if (more > s->sent - s->acked) return false;
    if (more) s->asking = false;
    s->acked += more;
    if (more || h->type == CDP__MESSAGE_READ || h->type == CDP__MESSAGE_REFUSED) ++w->stored;
    if (h->type == CDP__MESSAGE_ASK) s->asked = true;
    if (h->type == CDP__MESSAGE_REFUSED) s->refused = s->exposed;
    if (h->type == CDP__MESSAGE_READ || h->type == CDP__MESSAGE_REFUSED) s->exposed = false;
    cdp__stream_answer(w, s);
    return true;
}

CDP__PRIVATE bool cdp__type_is_control(uint8_t type) {
    return type >= CDP__MESSAGE_CREDIT;
}

/* Handles a complete header. False: it is invalid. */
CDP__PRIVATE bool cdp__port_head(cdp__world *w, uint32_t peer) {
    cdp__port *port = &w->ports[peer];
    cdp__stream *s;
    cdp__head h;
    port->rx_head_got = 0;
    port->rx_left = 0;
    port->failure_got = 0;
    if (!cdp__head_decode(port->rx_head, &h)) return false;
    if (h.type >= CDP__MESSAGE_WAIT) {
        port->rx_stream = NULL;
        port->rx_control = true;
        port->rx_left = h.bytes;
        return h.bytes > 0;
    }
    s = port->rx_stream && port->rx_stream->channel == h.channel
        ? port->rx_stream
        : cdp__stream_find(w, h.channel, peer);
    if (!s && (!cdp__type_is_control(h.type) || h.type == CDP__MESSAGE_ASK))
        s = cdp__stream_unexpected(w, h.channel, peer);
    port->rx_stream = s;
    if (h.type == CDP__MESSAGE_LIMIT) port->over_limit = 2;
    /* tell the peer that its messages are dropped */
    if (!s && !port->nomem && !cdp__type_is_control(h.type))
        cdp__channel_send_control(
            w, peer, h.channel, port->over_limit ? CDP__MESSAGE_LIMIT : CDP__MESSAGE_LEAVE);
    if (s && !cdp__stream_control(w, s, &h)) return false;
    if (cdp__type_is_control(h.type)) return true;
    port->rx_left = h.bytes;
    port->rx_control = h.type == CDP__MESSAGE_FAILURE;
    port->rx_fresh = s && !port->rx_control;
    return !s
        || s->early_used + CDP__HEAD_BYTES + h.bytes <= CDP__WINDOW + CDP__WINDOW_SLACK + s->slack;
}

/* Receives the body of a FAILURE, WAIT or ENDPOINT. 1: moved; 0: later; < 0: failed. */
CDP__PRIVATE int64_t cdp__port_body(cdp__world *w, uint32_t peer) {
    cdp__port *port = &w->ports[peer];
    cdp_iov v;
    int64_t r;
    if (!port->failure && !(port->failure = (uint8_t *)cdp__alloc(w->os, CDP__FAILURE_MAX)))
        return cdp__fail_nomem("the body of a failure", CDP__FAILURE_MAX);
    CDP_ASSERT(port->failure_got + port->rx_left <= CDP__FAILURE_MAX);
    v.data = port->failure + port->failure_got;
    v.bytes = port->rx_left;
    r = v.bytes ? w->transport.recv(w->transport.self, peer, &v, 1) : 1;
    if (r <= 0 || !v.bytes) return r;
    port->failure_got += (uint32_t)r;
    port->rx_left -= (uint64_t)r;
    return 1;
}

/* A body is complete: handles it. A FAILURE whose channel is open no longer, or not yet, tells why
   the peer may leave soon; where it is not open yet, the body is stored until it is. */
CDP__PRIVATE void cdp__port_on_control(cdp__world *w, uint32_t peer) {
    cdp__port *port = &w->ports[peer];
    cdp__stream *s = port->rx_stream; /* of a FAILURE whose channel is open; the others have none */
    const uint32_t bytes = port->failure_got;
    const uint64_t channel = s && !s->unexpected ? s->channel : 0;
    port->rx_control = false;
    port->failure_got = 0;
    if (s) {
        s->taken += CDP__HEAD_BYTES + bytes;
        ++w->arrivals;
    }
    if (!w->note(w, peer, port->rx_head[5], channel, port->failure, bytes)) port->broken = true;
    if (s && s->unexpected && !s->failure) {
        s->failure = port->failure;
        s->failure_bytes = bytes;
        port->failure = NULL;
    }
}

/* Stores the received bytes of the current message, or drops them. 1: moved; 0: later; < 0:
   failed. */
CDP__PRIVATE int64_t cdp__port_store(cdp__world *w, uint32_t peer) {
    cdp__port *port = &w->ports[peer];
    cdp__stream *s = port->rx_stream;
    const bool drop = !s || s->dropping;
    cdp_iov v;
    int64_t r;
    uint64_t at;
    if (port->rx_control) {
        r = cdp__port_body(w, peer);
        if (r > 0 && !port->rx_left) cdp__port_on_control(w, peer);
        return r;
    }
    if (port->rx_fresh && !drop) {
        if (!cdp__stream_room(w->os, s, CDP__HEAD_BYTES + port->rx_left))
            return cdp__fail_nomem("data that came early", CDP__HEAD_BYTES + port->rx_left);
        cdp__early_put(s, port->rx_head, CDP__HEAD_BYTES);
        ++w->stored;
    }
    port->rx_fresh = false;
    ++w->arrivals;
    if (!port->rx_left) return 1;
    v.data = w->stage;
    v.bytes = cdp__min(port->rx_left, w->stage_bytes);
    if (!drop) {
        if (!cdp__stream_room(w->os, s, port->rx_left))
            return cdp__fail_nomem("data that came early", port->rx_left);
        at = (s->early_at + s->early_used) % s->early_room;
        v.data = s->early + at;
        v.bytes = cdp__min(port->rx_left, (at < s->early_at ? s->early_at : s->early_room) - at);
    }
    v.bytes = cdp__step_bytes(w, v.bytes);
    r = w->transport.recv(w->transport.self, peer, &v, 1);
    if (r <= 0) return r;
    port->rx_left -= (uint64_t)r;
    if (drop) return 1;
    s->early_used += (uint64_t)r;
    ++w->stored;
    return 1;
}

/* The limit of unexpected streams was reached at rank `where`. Messages were lost, so this port
   reads nothing more. */
CDP__PRIVATE cdp_status cdp__port_limit_error(uint32_t where, uint32_t peer) {
    return cdp__fail_peer(CDP_ERR_MISMATCH, peer, 0,
        "other ranks use more than %u groups and tags at once that rank %u has not asked for yet; "
        "let it make these groups and ask for these messages earlier, or the others wait for it",
        CDP__UNEXPECTED, where);
}

CDP__PRIVATE cdp_status cdp__port_nonsense(uint32_t peer) {
    return cdp__fail_peer(CDP_ERR_MISMATCH, peer, 0,
        "rank %u sent something that is no message; the connection is damaged or speaks another "
        "version",
        peer);
}

/* True if the message being received belongs to `want` and no earlier bytes of it are stored. */
CDP__PRIVATE bool cdp__port_has(const cdp__port *port, const cdp__stream *want) {
    if (!want || port->rx_control || port->rx_stream != want || want->early_used) return false;
    return port->rx_fresh || port->rx_left;
}

/* Reads headers, and stores messages of other streams than `want`. 1: the next bytes of the link
   belong to `want`; 0: no data now. */
CDP__PRIVATE int64_t cdp__port_pump(cdp__world *w, uint32_t peer, const cdp__stream *want) {
    cdp__port *port = &w->ports[peer];
    for (;;) {
        cdp_iov v;
        int64_t r;
        if (cdp__port_has(port, want)) return 1;
        if (port->rx_control || port->rx_fresh || port->rx_left) {
            r = cdp__port_store(w, peer);
            if (r <= 0 || cdp__poll_over(w)) return r <= 0 ? r : 0;
            continue;
        }
        if (port->nomem)
            return cdp__fail_nomem("a stream of messages that came early", sizeof(cdp__stream));
        if (port->over_limit)
            return cdp__port_limit_error(port->over_limit == 1 ? w->rank : peer, peer);
        if (port->broken) return cdp__port_nonsense(peer);
        v.data = port->rx_head + port->rx_head_got;
        v.bytes = CDP__HEAD_BYTES - port->rx_head_got;
        r = w->transport.recv(w->transport.self, peer, &v, 1);
        if (r <= 0) return r;
        port->used = true;
        port->rx_head_got += (uint32_t)r;
        if (port->rx_head_got == CDP__HEAD_BYTES && !cdp__port_head(w, peer)) {
            port->broken = true;
            port->rx_control = port->rx_fresh = false;
            port->rx_left = 0; /* the length in an invalid header means nothing */
        }
    }
}

CDP__PRIVATE cdp__eager_slots *cdp__stream_slots(
    const cdp__world *w, const cdp__stream *s, bool out) {
    const cdp_transport *t = &w->transport;
    return t->slots.memory ? (cdp__eager_slots *)t->slots.memory(t->self, s->peer, out) : NULL;
}

/* True if a slot holds a message of this peer. */
CDP__PRIVATE bool cdp__port_slots_wait(const cdp__world *w, uint32_t peer) {
    const cdp_transport *t = &w->transport;
    const cdp__eager_slots *memory = NULL;
    uint32_t i;
    if (t->slots.memory) memory = (const cdp__eager_slots *)t->slots.memory(t->self, peer, false);
    for (i = 0; i < CDP_SLOTS && memory; ++i)
        if (cdp__atomic_load_u32(&memory->place[i].serial, CDP__ACQUIRE)
            != w->ports[peer].slots.got[i])
            return true;
    return false;
}

/* The slot that holds the stream's next message, or NULL. */
CDP__PRIVATE const cdp__eager_slot *cdp__stream_slot(const cdp__world *w, const cdp__stream *s) {
    const cdp__eager_slots *memory = cdp__stream_slots(w, s, false);
    return memory ? cdp__eager_find(&w->ports[s->peer].slots, memory, s->channel, s->got) : NULL;
}

/* The body in a slot has been read: frees the slot. */
CDP__PRIVATE void cdp__stream_slot_done(cdp__world *w, cdp__stream *s) {
    s->slot = NULL;
    cdp__eager_taken(
        &w->ports[s->peer].slots, cdp__stream_slots(w, s, false), s->channel, s->got - 1);
}

/* Decodes the header of a message in a slot. False: it is invalid. */
CDP__PRIVATE bool cdp__stream_slot_head(const cdp__eager_slot *slot, cdp__head *h) {
    uint8_t head[CDP__SLOT_HEAD];
    const uint32_t bytes = cdp__eager_head(slot, head);
    cdp__slot_head_decode(head, h);
    h->channel = slot->channel;
    h->bytes = bytes;
    return bytes != UINT32_MAX;
}

CDP__PRIVATE int64_t cdp__stream_gone(const cdp__stream *s) {
    return cdp__fail_peer(CDP_ERR_PEER_LOST, s->peer, 0, "rank %u has left the group", s->peer);
}

/* Takes the header of the next message. 1: *h is set, read its body now; 0: later; < 0: the peer
   is lost or has left. */
CDP__PRIVATE int64_t cdp__stream_next(cdp__world *w, cdp__stream *s, cdp__head *h) {
    cdp__port *port = &w->ports[s->peer];
    const cdp__eager_slot *slot = cdp__stream_slot(w, s);
    uint8_t bytes[CDP__HEAD_BYTES];
    bool good;
    CDP_ASSERT(!s->body_left && !s->slot);
    if (!slot) {
        const int64_t r = s->early_used ? 1 : cdp__port_pump(w, s->peer, s);
        /* messages stored in slots before these bytes were sent, or the link broke, are visible
           now */
        slot = cdp__stream_slot(w, s);
        if (!slot && r < 0) return r;
        if (!slot && r == 0) return s->left ? cdp__stream_gone(s) : 0;
    }
    if (slot) {
        good = cdp__stream_slot_head(slot, h);
        s->slot = slot;
        s->slot_at = 0;
    } else if (s->early_used) {
        cdp__early_copy(s, bytes, CDP__HEAD_BYTES, true);
        good = cdp__head_decode(bytes, h);
        s->taken += CDP__HEAD_BYTES;
    } else {
        good = cdp__head_decode(port->rx_head, h);
        port->rx_fresh = false;
        s->taken += CDP__HEAD_BYTES;
    }
    ++s->got;
    s->body_left = h->bytes;
    if (slot && !h->bytes) cdp__stream_slot_done(w, s);
    return good ? 1 : cdp__port_nonsense(s->peer);
}

/* Copies the header of the next message without taking it. Only finds messages that are stored
   or in a slot: pump the port first. */
CDP__PRIVATE bool cdp__stream_peek(const cdp__world *w, cdp__stream *s, cdp__head *h) {
    const cdp__eager_slot *slot = cdp__stream_slot(w, s);
    uint8_t bytes[CDP__HEAD_BYTES];
    if (s->body_left) return false;
    if (slot) return cdp__stream_slot_head(slot, h);
    if (s->early_used < CDP__HEAD_BYTES) return false;
    cdp__early_copy(s, bytes, CDP__HEAD_BYTES, false);
    return cdp__head_decode(bytes, h);
}

/* Reads up to `bytes` of the current body. Returns how many; 0: later; < 0: lost. */
CDP__PRIVATE int64_t cdp__stream_read(cdp__world *w, cdp__stream *s, void *to, uint64_t bytes) {
    cdp__port *port = &w->ports[s->peer];
    cdp_iov v;
    int64_t r;
    bytes = cdp__min(bytes, s->body_left);
    if (s->slot) {
        memcpy(to, s->slot->data + s->slot_at, (size_t)bytes);
        s->slot_at += (uint32_t)bytes;
        s->body_left -= bytes;
        if (!s->body_left) cdp__stream_slot_done(w, s);
        return (int64_t)bytes;
    }
    if (s->early_used) {
        r = (int64_t)cdp__min(bytes, s->early_used);
        cdp__early_copy(s, (uint8_t *)to, (uint64_t)r, true);
    } else {
        r = cdp__port_pump(w, s->peer, s);
        if (r == 0 && s->left) return cdp__stream_gone(s);
        if (r <= 0) return r;
        CDP_ASSERT(!port->rx_fresh);
        v.data = to;
        v.bytes = cdp__min(bytes, port->rx_left);
        r = w->transport.recv(w->transport.self, s->peer, &v, 1);
        if (r <= 0) return r;
        port->rx_left -= (uint64_t)r;
    }
    s->body_left -= (uint64_t)r;
    s->taken += (uint64_t)r;
    if (s->asked) cdp__stream_answer(w, s);
    return r;
}

/* ---- >>message/send: messages that leave a port ---------------------------------------------- */

/* Knows: ports, streams, slots. Promises: a message leaves whole, header and body together. */

/* Stores a small message in a slot. False: it must take the link. */
CDP__PRIVATE bool cdp__stream_put(
    cdp__world *w, cdp__stream *s, const cdp__head *h, const void *body) {
    const cdp_transport *t = &w->transport;
    cdp__eager_slots *memory;
    uint8_t head[CDP__SLOT_HEAD];
    if (h->bytes > CDP_SLOT_BYTES || s->left) return false;
    memory = cdp__stream_slots(w, s, true);
    if (!memory) return false;
    cdp__slot_head_encode(h, head);
    if (!cdp__eager_put(&w->ports[s->peer].slots, memory, s->channel, s->put, head, body, h->bytes))
        return false;
    ++s->put;
    t->slots.ring(t->self, s->peer);
    return true;
}

/* Checks that the port is free, and that the window has room for this message, or for at least
   CDP__PIECE_MIN of it, or a quarter of the window. Reduces h->bytes to that room. 1: ready; 0:
   later; < 0: lost. */
CDP__PRIVATE int64_t cdp__stream_ready(cdp__world *w, cdp__stream *s, cdp__head *h) {
    const uint64_t window = w->window_bytes, piece = cdp__min(CDP__PIECE_MIN, window / 4);
    const uint64_t least = CDP__HEAD_BYTES + cdp__min(h->bytes, piece);
    uint64_t room;
    int64_t r;
    if (w->ports[s->peer].tx_stream || !cdp__port_flush(w, s->peer)) {
        /* another message is half sent; still find out whether the link is broken */
        r = cdp__port_pump(w, s->peer, s);
        return r < 0 ? r : 0;
    }
    if (s->sent - s->acked + CDP__HEAD_BYTES + h->bytes > window) {
        r = cdp__port_pump(w, s->peer, s);
        if (r < 0) return r;
        /* it may have answered a request for credit, and only a part of the answer has left */
        if (!cdp__port_flush(w, s->peer)) return 0;
    }
    if (s->left) return cdp__stream_gone(s);
    room = s->sent - s->acked < window ? window - (s->sent - s->acked) : 0;
    if (room < least) {
        s->asking = s->asking || cdp__stream_send_control(w, s, CDP__MESSAGE_ASK);
        (void)cdp__port_flush(w, s->peer);
        return 0;
    }
    h->bytes = (uint32_t)cdp__min(h->bytes, room - CDP__HEAD_BYTES);
    return 1;
}

/* Begins a message; cdp__stream_unsent() says what to send. The port must be ready. */
CDP__PRIVATE void cdp__stream_begin(cdp__world *w, cdp__stream *s, cdp__head *h) {
    cdp__port *port = &w->ports[s->peer];
    CDP_ASSERT(!port->tx_stream && !port->tx_head_left && !port->tx_left);
    h->channel = s->channel;
    h->ack = (uint32_t)s->taken;
    cdp__head_encode(h, port->tx_head);
    port->tx_head_left = CDP__HEAD_BYTES;
    port->tx_left = h->bytes;
    port->tx_stream = s;
    s->sent += CDP__HEAD_BYTES + h->bytes;
    ++s->put;
}

/* What is still to be sent of the message that was begun; `body` points to the unsent rest of its
   body. Header and body are sent together, so that a small message is one system call. Returns how
   many entries of v[2] it has filled in. */
CDP__PRIVATE uint32_t cdp__stream_unsent(
    const cdp__world *w, const cdp__stream *s, const void *body, cdp_iov *v) {
    cdp__port *port = &w->ports[s->peer];
    uint32_t n = 0;
    CDP_ASSERT(port->tx_stream == s);
    if (port->tx_head_left) {
        v[0].data = port->tx_head + (CDP__HEAD_BYTES - port->tx_head_left);
        v[n++].bytes = port->tx_head_left;
    }
    if (port->tx_left) {
        v[n].data = (void *)(uintptr_t)body;
        v[n++].bytes = cdp__step_bytes(w, port->tx_left);
    }
    return n;
}

/* The transport took `bytes` of it, > 0. Returns how many of the body. */
CDP__PRIVATE uint64_t cdp__stream_sent(cdp__world *w, cdp__stream *s, uint64_t bytes) {
    cdp__port *port = &w->ports[s->peer];
    const uint32_t head = (uint32_t)cdp__min(bytes, port->tx_head_left);
    port->used = true;
    port->tx_head_left -= head;
    port->tx_left -= bytes - head;
    if (!port->tx_head_left && !port->tx_left) port->tx_stream = NULL;
    return bytes - head;
}

/* Closes this rank's side of the stream: frees the slots with its messages and, if `tell`, sends
   LEAVE to the peer. The caller owns the stream's memory. */
CDP__PRIVATE void cdp__stream_close(cdp__world *w, cdp__stream *s, bool tell) {
    uint32_t i;
    cdp__stream_remove(w, s);
    for (i = 0; i < CDP_SLOTS && s->peer != w->rank; ++i) {
        if (!s->slot && cdp__stream_slot(w, s)) {
            s->slot = cdp__stream_slot(w, s);
            ++s->got;
        }
        if (s->slot) cdp__stream_slot_done(w, s);
    }
    if (tell) (void)cdp__stream_send_control(w, s, CDP__MESSAGE_LEAVE);
    cdp__free(w->os, s->early);
    cdp__free(w->os, s->failure);
    s->early = NULL;
    s->failure = NULL;
}

/* ---- >>message/transfer: one message, from memory to memory ---------------------------------- */

/* Knows: streams, the remote reads of a transport. Promises: received bytes are written straight to
   their destination, or combined there in cache-sized pieces; when a transfer is done or
   revoked, peers no longer read its memory. */

typedef struct cdp__transfer {
    cdp__stream *s;
    const cdp__head *call; /* header fields of its messages; not copied */
    uint32_t round;
    bool receive;
    bool reduce;  /* combine received elements with `other`, or with those at `data` */
    bool swap;    /* received elements are the left operand */
    bool chained; /* never ahead of the transfer listed before it */
    bool fresh;   /* a send: this operation has just written these bytes */
    bool done;
    bool remote;    /* the receiver reads the payload in the sender's memory */
    bool exposing;  /* the token is valid and not revoked */
    bool announced; /* the receiver has the token */
    /* receive: the sender was told that its memory is free again; send: the payload is sent,
       although it was exposed */
    bool returned;
    uint8_t *data;      /* source of a send, destination of a receive */
    uint64_t row, step; /* receive into rows: `row` bytes every `step` bytes; 0: contiguous */
    const uint8_t *other;
    uint64_t bytes, moved; /* of the payload, over all pieces */
    uint64_t limit;        /* receive: bytes that may be combined for now */
    uint64_t skip;         /* bytes still to arrive that were already read remotely */
    uint64_t elem;         /* bytes of one element */
    uint64_t piece_bytes;  /* largest body */
    uint64_t expose_bytes; /* payloads from this size on are exposed to the receiver */
    uint8_t token[CDP__REMOTE_BYTES];
    uint8_t torn[8]; /* the first bytes of an element that arrived incomplete */
    uint64_t torn_bytes;
    cdp__head theirs; /* CDP__TRANSFER_MISMATCH: header of the unexpected message */
} cdp__transfer;

/* Result: a message arrived that does not belong to this transfer, see `theirs`. */
#define CDP__TRANSFER_MISMATCH INT64_MIN
#define CDP__REMOTE_SLICE (128u * 1024u)
/* Slice of a remote read by the system without a reduction: slices of 128 KiB take a tenth
   longer. */
#define CDP__GET_SLICE (1024u * 1024u)
#define CDP__REMOTE_BLOCK (16u * 1024u)
/* A receive into rows of at least this size bypasses the caches, which takes half the time. The
   first rows leave the caches before the last one arrives anyway. Smaller ones would take longer
   (docs/NOTES.md). */
#define CDP__ROWS_PAST_BYTES (12u * 1024u * 1024u)

/* Revokes the exposed memory: the receiver reads it no more. */
CDP__PRIVATE void cdp__transfer_revoke(cdp__world *w, cdp__transfer *x) {
    const cdp_transport *t = &w->transport;
    if (x->exposing) t->remote.revoke(t->self, x->s->peer, cdp__get_u64(x->token));
    x->exposing = false;
}

/* Exposes the payload to the receiver. False: it must be sent. */
CDP__PRIVATE bool cdp__transfer_expose(cdp__world *w, cdp__transfer *x) {
    const cdp_transport *t = &w->transport;
    uint64_t token;
    if (!t->remote.expose || x->moved || x->returned || x->bytes < x->expose_bytes || x->s->left
        || !t->remote.expose(t->self, x->s->peer, x->data, x->bytes, x->fresh, &token))
        return false;
    cdp__put_u64(x->token, token);
    cdp__put_u64(x->token + 8, x->bytes);
    x->remote = x->exposing = true;
    x->announced = false;
    return true;
}

/* Sends the token to the receiver, once no other message is half sent. 1: done; 0: later; < 0:
   lost. */
CDP__PRIVATE int64_t cdp__transfer_announce(cdp__world *w, cdp__transfer *x) {
    cdp__stream *s = x->s;
    cdp__head h = *x->call;
    int64_t r;
    if (s->left) return cdp__stream_gone(s);
    if (w->ports[s->peer].tx_stream || !cdp__port_flush(w, s->peer)) {
        r = cdp__port_pump(w, s->peer, s);
        return r < 0 ? r : 0;
    }
    h.type = CDP__MESSAGE_REMOTE;
    h.channel = s->channel;
    h.round = x->round;
    h.bytes = CDP__REMOTE_BYTES;
    h.ack = (uint32_t)s->taken;
    if (!cdp__control_add(w, s->peer, &h, x->token)) return 0; /* out of memory: try again later */
    x->announced = s->exposed = true;
    s->sent += CDP__HEAD_BYTES + CDP__REMOTE_BYTES;
    ++s->put;
    (void)cdp__port_flush(w, s->peer);
    return 1;
}

/* The receiver did not read the payload, or not all of it: sends it from the beginning, and the
   receiver skips the bytes that it has. */
CDP__PRIVATE void cdp__transfer_unexpose(cdp__transfer *x) {
    x->exposing = x->s->exposed = x->s->refused = x->remote = false;
    x->returned = true;
}

/* Revokes the payload if the receiver has not begun to read it, so that it is sent instead.
   False: it is being read. */
CDP__PRIVATE bool cdp__transfer_try_revoke(cdp__world *w, cdp__transfer *x) {
    const cdp_transport *t = &w->transport;
    if (!t->remote.try_revoke(t->self, x->s->peer, cdp__get_u64(x->token))) return false;
    cdp__transfer_unexpose(x);
    return true;
}

/* Checks whether the receiver has read the exposed payload. 1: progress; 0: not yet; < 0: lost. */
CDP__PRIVATE int64_t cdp__transfer_await(cdp__world *w, cdp__transfer *x) {
    cdp__stream *s = x->s;
    const int64_t r = s->exposed ? cdp__port_pump(w, s->peer, s) : 0;
    if (s->exposed && r == 0 && s->left) return cdp__stream_gone(s);
    if (s->exposed) return r < 0 ? r : 0;
    cdp__transfer_revoke(w, x);
    if (s->refused) {
        cdp__transfer_unexpose(x);
        return 1;
    }
    x->moved = x->bytes;
    x->done = true;
    return 1;
}

/* Advances a send. 1: moved; 0: later; < 0: lost. */
CDP__PRIVATE int64_t cdp__transfer_send(cdp__world *w, cdp__transfer *x) {
    const cdp_transport *t = &w->transport;
    cdp__stream *s = x->s;
    cdp_iov v[2];
    int64_t r;
    if (w->ports[s->peer].tx_stream != s) { /* between two pieces */
        cdp__head h;
        if (x->remote && x->announced) return cdp__transfer_await(w, x);
        if (x->remote || cdp__transfer_expose(w, x)) return cdp__transfer_announce(w, x);
        h = *x->call;
        h.type = CDP__MESSAGE_DATA;
        h.channel = s->channel;
        h.round = x->round;
        h.bytes = (uint32_t)cdp__min(x->bytes - x->moved, x->piece_bytes);
        if (cdp__stream_put(w, s, &h, x->data ? x->data + x->moved : NULL)) {
            x->moved += h.bytes;
            x->done = x->moved == x->bytes;
            return 1;
        }
        r = cdp__stream_ready(w, s, &h);
        if (r <= 0) return r;
        cdp__stream_begin(w, s, &h);
    }
    r = t->send(
        t->self, s->peer, v, cdp__stream_unsent(w, s, x->data ? x->data + x->moved : NULL, v));
    if (r <= 0) return r;
    x->moved += cdp__stream_sent(w, s, (uint64_t)r);
    x->done = x->moved == x->bytes && w->ports[s->peer].tx_stream != s;
    return 1;
}

/* Combines `bytes` received bytes with the destination at `offset`. */
CDP__PRIVATE void cdp__transfer_combine(
    const cdp__transfer *x, uint64_t offset, const uint8_t *came, uint64_t bytes) {
    cdp__reduce((cdp_dtype)x->call->dtype, (cdp_reduce_op)x->call->op, x->swap, x->data + offset,
        came, bytes / x->elem);
}

/* Copies bytes of the payload, from byte `at` on, to their rows. */
CDP__PRIVATE void cdp__transfer_scatter(
    const cdp__transfer *x, uint64_t at, const uint8_t *from, uint64_t bytes) {
    const bool past = x->bytes / x->row * x->step >= CDP__ROWS_PAST_BYTES;
    uint64_t in = at % x->row, n;
    uint8_t *row = x->data + at / x->row * x->step;
    CDP_ASSERT(x->row && !x->reduce);
    for (; bytes; bytes -= n) {
        n = cdp__min(bytes, x->row - in);
        if (past)
            cdp__copy_past(row + in, from, n);
        else
            memcpy(row + in, from, (size_t)n);
        from += n;
        row += x->step;
        in = 0;
    }
    if (past) cdp__copied_past();
}

/* Receives body bytes. Those of a plain receive, or to be combined with a separate operand, go
   straight to the destination. Those to be combined with the destination, or to be copied to
   rows, pass through the stage. */
CDP__PRIVATE int64_t cdp__transfer_body(cdp__world *w, cdp__transfer *x) {
    const bool staged = x->reduce && !x->other, stage = staged || x->row || x->skip;
    uint8_t *to = stage ? w->stage + x->torn_bytes : x->data + x->moved;
    uint64_t bytes = x->s->body_left, done = x->moved / x->elem, whole;
    int64_t r;
    if (stage || x->reduce) bytes = cdp__min(bytes, w->stage_bytes - x->torn_bytes);
    if (x->skip) bytes = cdp__min(bytes, x->skip);
    bytes = cdp__step_bytes(w, bytes);
    r = cdp__stream_read(w, x->s, to, bytes);
    if (r <= 0) return r;
    if (x->skip) {
        x->skip -= (uint64_t)r;
        return r;
    }
    if (x->row) cdp__transfer_scatter(x, x->moved, w->stage, (uint64_t)r);
    x->moved += (uint64_t)r;
    whole = (x->moved / x->elem - done) * x->elem;
    done *= x->elem;
    if (staged) {
        memcpy(w->stage, x->torn, (size_t)x->torn_bytes);
        cdp__transfer_combine(x, done, w->stage, whole);
        x->torn_bytes = x->moved % x->elem; /* the rest of a torn element is still to come */
        memcpy(x->torn, w->stage + whole, (size_t)x->torn_bytes);
    } else if (x->reduce) {
        cdp__reduce((cdp_dtype)x->call->dtype, (cdp_reduce_op)x->call->op, !x->swap, x->data + done,
            x->other + done, whole / x->elem);
    }
    return r;
}

/* Copies `bytes` at `src`, the sender's memory, to the destination, or combines them with it. */
CDP__PRIVATE void cdp__transfer_from(
    const cdp__transfer *x, const uint8_t *src, uint64_t bytes, bool mapped) {
    const bool staged = x->reduce && !x->other;
    uint8_t *to = x->data + x->moved;
    uint64_t at, n;
    if (x->row) {
        cdp__transfer_scatter(x, x->moved, src, bytes);
        return;
    }
    for (at = 0; at < bytes; at += n) {
        n = x->other ? cdp__min(bytes - at, CDP__REMOTE_BLOCK) : bytes;
        if (!staged && mapped) memcpy(to + at, src + at, (size_t)n);
        if (!x->reduce) continue;
        if (staged)
            cdp__transfer_combine(x, x->moved + at, src + at, n);
        else
            cdp__reduce((cdp_dtype)x->call->dtype, (cdp_reduce_op)x->call->op, !x->swap, to + at,
                x->other + x->moved + at, n / x->elem);
    }
}

/* Copies exposed memory that this rank has not mapped, through the transport's remote.get. Returns
   the bytes copied, 0 if the owner revoked or refused it, or CDP_ERR_PEER_LOST. */
CDP__PRIVATE int64_t cdp__transfer_get(
    cdp__world *w, cdp__transfer *x, uint64_t token, uint64_t bytes) {
    const cdp_transport *t = &w->transport;
    const bool staged = x->row || (x->reduce && !x->other);
    uint8_t *to = staged ? w->stage : x->data + x->moved;
    int64_t r = 0;
    if (t->remote.get) r = t->remote.get(t->self, x->s->peer, token, x->moved, to, bytes);
    if (r == CDP_ERR_PEER_LOST) return r;
    if (r < 0 && !cdp__stream_send_control(w, x->s, CDP__MESSAGE_REFUSED)) return 0;
    x->remote = r > 0;
    if (r < 0) x->skip = x->moved;
    return r > 0 ? r : 0;
}

/* Reads the next slice of exposed memory. If the memory was revoked, that is no error: the
   sender sends the payload instead, or it has failed or left and will report that. If the memory
   cannot be read, asks the sender to send it. */
CDP__PRIVATE int64_t cdp__transfer_slice(cdp__world *w, cdp__transfer *x, uint64_t bytes) {
    const cdp_transport *t = &w->transport;
    const uint64_t token = cdp__get_u64(x->token);
    const uint8_t *at = NULL;
    int64_t r;
    if (t->remote.map) at = (const uint8_t *)t->remote.map(t->self, x->s->peer, token, x->bytes);
    /* our senders align their memory, but kernels may crash on misaligned elements */
    if (at && (uintptr_t)at % x->elem) {
        (void)t->remote.unmap(t->self, x->s->peer, token);
        at = NULL;
    }
    if (at) {
        cdp__transfer_from(x, at + x->moved, bytes, true);
        x->remote = t->remote.unmap(t->self, x->s->peer, token);
        if (x->remote) x->moved += bytes;
        return 1;
    }
    if (!x->reduce && !x->row)
        bytes = cdp__step_bytes(w, cdp__min(x->bytes - x->moved, CDP__GET_SLICE));
    else if (!x->other)
        bytes = cdp__min(bytes, w->stage_bytes);
    r = cdp__transfer_get(w, x, token, bytes);
    if (r < 0) return r;
    if (r == 0) return x->remote ? 0 : 1;
    if (x->reduce || x->row) cdp__transfer_from(x, w->stage, bytes, false);
    x->moved += bytes;
    return 1;
}

/* Receives a payload that stays in the sender's memory: first its token, then slice by slice.
   Finally tells the sender that its memory is free again. */
CDP__PRIVATE int64_t cdp__transfer_remote(cdp__world *w, cdp__transfer *x) {
    cdp__stream *s = x->s;
    const cdp__port *port = &w->ports[s->peer];
    int64_t r;
    if (s->body_left) {
        uint8_t *to = x->token + (CDP__REMOTE_BYTES - s->body_left);
        r = cdp__stream_read(w, s, to, s->body_left);
        if (r <= 0 || s->body_left || cdp__get_u64(x->token + 8) == x->bytes) return r;
        x->theirs = *x->call;
        x->theirs.round = x->round;
        x->theirs.bytes = (uint32_t)cdp__get_u64(x->token + 8);
        return CDP__TRANSFER_MISMATCH;
    }
    if (x->moved < x->bytes) {
        const uint64_t most = cdp__step_bytes(w, CDP__REMOTE_SLICE);
        const uint64_t bytes = cdp__min(x->limit - x->moved, most);
        return bytes ? cdp__transfer_slice(w, x, bytes) : 0;
    }
    if (!x->returned) x->returned = cdp__stream_send_control(w, s, CDP__MESSAGE_READ);
    /* done only when READ has been sent: this rank may leave right after this */
    x->done = x->returned
        && (cdp__port_flush(w, s->peer) || s->left
            || (port->control_at == port->control_used && port->tx_stream));
    r = x->done ? 1 : cdp__port_pump(w, s->peer, s);
    return x->done || r < 0 ? r : 0;
}

CDP__PRIVATE bool cdp__transfer_fits(
    const cdp__world *w, const cdp__transfer *x, const cdp__head *h) {
    const uint64_t left = x->bytes - x->moved + x->skip;
    if (!cdp__same_call(x->call, h) || h->round != x->round) return false;
    if (h->type == CDP__MESSAGE_REMOTE)
        return left && !x->moved && (w->transport.remote.map || w->transport.remote.get);
    return h->bytes <= left && (h->bytes == 0) == (x->bytes == 0);
}

/* Advances a receive. > 0: bytes moved; 0: nothing moved, try later; CDP__TRANSFER_MISMATCH; any other value
   < 0: the peer is lost. */
CDP__PRIVATE int64_t cdp__transfer_receive(cdp__world *w, cdp__transfer *x) {
    cdp__stream *s = x->s;
    int64_t r = 0, n;
    if (!s->body_left && !x->remote) {
        r = cdp__stream_next(w, s, &x->theirs);
        if (r <= 0) return r;
        if (!cdp__transfer_fits(w, x, &x->theirs)) return CDP__TRANSFER_MISMATCH;
        x->remote = x->theirs.type == CDP__MESSAGE_REMOTE;
    }
    if (x->remote) return cdp__transfer_remote(w, x);
    if (s->body_left && x->limit == x->bytes) {
        n = cdp__transfer_body(w, x);
        if (n < 0) return n;
        r += n;
    } else if (s->body_left && x->bytes > w->window_bytes / 2) {
        /* not its turn yet: store it, because the peer's CREDIT may be behind it */
        n = cdp__port_pump(w, s->peer, NULL);
        if (n < 0) return n;
    }
    x->done = x->moved == x->bytes && !s->body_left;
    return r;
}

/* ---- >>collective/executor: runs the rounds of one operation --------------------------------- */

/* Knows: round functions, transfers. Promises: an operation completes, or fails with a reason and
   the rank concerned; it never blocks, and allocates only when an operation needs more scratch
   memory than all before it. */

/* Call, buffers and shape of an operation. */
typedef struct cdp__task {
    cdp__head call;
    cdp__shape shape;
    const void *in;
    void *out;
    cdp_real factor; /* of CDP_REDUCE_PREMUL_SUM */
} cdp__task;

typedef enum cdp__fault_kind {
    CDP__FAULT_NONE,
    CDP__FAULT_LOST,     /* the reason is this thread's last error */
    CDP__FAULT_MISMATCH, /* `theirs` arrived instead of the expected message */
    CDP__FAULT_NOMEM     /* the reason is this thread's last error */
} cdp__fault_kind;

typedef struct cdp__exec {
    cdp__world *w;
    cdp__stream *streams; /* one per rank of the channel */
    uint64_t piece_bytes, expose_bytes;
    const cdp__algo *algo;
    uint64_t elem; /* bytes of one element */
    uint32_t round, rounds, transfer_count, step_count;
    bool running;
    bool kept;     /* the steps are those of a whole operation: an equal operation reuses them */
    bool exposing; /* a payload of this round is exposed, and may be revoked and sent instead */
    bool in_parts; /* see next_local */
    cdp__fault_kind fault;
    uint32_t fault_rank; /* rank in the channel */
    uint64_t copied; /* bytes of the last local step that were copied while waiting for messages */
    /* in_parts: a poll with a budget has begun the local steps: this one comes next, from this
       element on */
    uint32_t next_local;
    uint64_t local_done;
    void *tmp;
    uint64_t tmp_bytes;
    cdp__task task;
    cdp__step steps[CDP__ROUND_MAX];
    cdp__transfer transfers[CDP__ROUND_MAX];
    cdp__head theirs;
} cdp__exec;

CDP__PRIVATE void *cdp__exec_buffer(const cdp__exec *x, uint8_t which, uint64_t off) {
    uint8_t *base = (uint8_t *)x->task.out;
    if (which == CDP__TMP) base = (uint8_t *)x->tmp;
    if (which == CDP__IN && x->task.in) base = (uint8_t *)(uintptr_t)x->task.in;
    return base ? base + off * x->elem : NULL;
}

CDP__PRIVATE void cdp__exec_fail(cdp__exec *x, cdp__fault_kind kind, uint32_t rank) {
    if (x->fault != CDP__FAULT_NONE) return;
    x->fault = kind;
    x->fault_rank = rank;
}

/* Revokes all exposed memory of the operation. */
CDP__PRIVATE void cdp__exec_revoke(cdp__exec *x) {
    uint32_t i;
    for (i = 0; i < x->transfer_count; ++i)
        cdp__transfer_revoke(x->w, &x->transfers[i]);
}

CDP__PRIVATE void cdp__transfer_reset(cdp__transfer *t) {
    t->done = t->remote = t->exposing = t->announced = t->returned = false;
    t->moved = t->skip = t->torn_bytes = 0;
}

/* Makes a transfer of a step between two ranks. */
CDP__PRIVATE void cdp__exec_transfer(cdp__exec *x, const cdp__step *step, cdp__transfer *t) {
    const bool receive = step->kind != CDP__SEND;
    cdp__transfer_reset(t);
    t->s = &x->streams[step->peer];
    t->call = &x->task.call;
    t->round = x->round;
    t->receive = receive;
    t->reduce = step->kind == CDP__RECV_REDUCE;
    t->swap = (step->flags & CDP__SRC_FIRST) != 0;
    t->chained = receive && (step->flags & CDP__CHAINED) != 0;
    t->fresh = step->src != CDP__IN && x->rounds > 1;
    t->bytes = t->limit = step->len * x->elem;
    t->elem = x->elem;
    t->piece_bytes = x->piece_bytes;
    t->expose_bytes = x->expose_bytes;
    t->other = NULL;
    t->row = 0;
    if (receive) {
        t->data = (uint8_t *)cdp__exec_buffer(x, step->dst, step->dst_off);
        if (t->reduce && step->src)
            t->other = (const uint8_t *)cdp__exec_buffer(x, step->src, step->src_off);
    } else {
        t->data = (uint8_t *)cdp__exec_buffer(x, step->src, step->src_off);
    }
}

/* Lists the steps of the current round and posts their messages: first sends, for which peers
   may wait, then receives. */
CDP__PRIVATE void cdp__exec_post(cdp__exec *x) {
    uint32_t i;
    x->step_count = (x->algo->round)(&x->task.shape, x->round, x->steps);
    CDP_ASSERT(x->step_count <= CDP__ROUND_MAX);
    x->transfer_count = 0;
    x->exposing = false;
    for (i = 0; i < 2 * x->step_count; ++i) {
        const cdp__step *s = &x->steps[i % x->step_count];
        if (s->peer < 0 || (s->kind == CDP__SEND) != (i < x->step_count)) continue;
        CDP_ASSERT((uint32_t)s->peer < x->task.shape.size);
        cdp__exec_transfer(x, s, &x->transfers[x->transfer_count++]);
    }
}

/* Scratch memory of the algorithm. It grows to the largest size needed so far, and is kept. */
CDP__PRIVATE bool cdp__exec_scratch(cdp__exec *x, uint64_t bytes) {
    void *p;
    if (bytes <= x->tmp_bytes) return true;
    p = cdp__alloc(x->w->os, bytes);
    if (!p) {
        cdp__fail_nomem("the scratch of an operation", bytes);
        return false;
    }
    cdp__free(x->w->os, x->tmp);
    x->tmp = p;
    x->tmp_bytes = bytes;
    return true;
}

/* Prepares an operation that differs from the previous one. */
CDP__PRIVATE void cdp__exec_plan(cdp__exec *x) {
    x->step_count = x->transfer_count = x->round = 0;
    x->kept = false;
    x->rounds = x->algo->rounds(&x->task.shape);
    if (!cdp__exec_scratch(x, x->algo->tmp_len(&x->task.shape) * x->elem)) {
        cdp__exec_fail(x, CDP__FAULT_NOMEM, x->task.shape.rank);
        return;
    }
    if (x->rounds) cdp__exec_post(x);
    while (!x->step_count && x->round + 1 < x->rounds) {
        ++x->round;
        cdp__exec_post(x);
    }
    x->kept = x->round + 1 == x->rounds;
}

/* True if the next operation is equal to the previous one, whose steps are kept. Shapes are
   compared as bytes: their padding must be zero. */
CDP__PRIVATE bool cdp__exec_like(const cdp__exec *x, const cdp__shape *s, uint64_t elem) {
    return x->kept && x->elem == elem && !s->in_offs && !s->out_offs
        && memcmp(s, &x->task.shape, sizeof *s) == 0;
}

/* Reuses the steps of the previous operation: only the buffers of the transfers change. */
CDP__PRIVATE void cdp__exec_again(cdp__exec *x) {
    uint32_t i, n = 0;
    x->round = x->rounds - 1;
    x->exposing = false;
    for (i = 0; i < 2 * x->step_count; ++i) {
        const cdp__step *s = &x->steps[i % x->step_count];
        if (s->peer < 0 || (s->kind == CDP__SEND) != (i < x->step_count)) continue;
        cdp__exec_transfer(x, s, &x->transfers[n++]);
    }
    CDP_ASSERT(n == x->transfer_count);
}

/* Begins an operation. It uses the caller's memory until it is done or revoked. */
CDP__PRIVATE void cdp__exec_begin(cdp__exec *x, const cdp__task *task, bool again) {
    CDP_ASSERT(!x->running);
    x->task = *task;
    x->algo = cdp__algo_at(task->call.algo);
    x->elem = cdp_dtype_size((cdp_dtype)task->call.dtype);
    x->running = true;
    x->copied = x->local_done = 0;
    x->next_local = 0;
    x->in_parts = false;
    x->fault = CDP__FAULT_NONE;
    if (again)
        cdp__exec_again(x);
    else
        cdp__exec_plan(x);
}

/* Runs part of the last local step, a copy, while messages are in flight. A small copy waits
   until nothing moves; a large one is interleaved with the messages, so that data which is also
   sent is read while it is in a cache. */
CDP__PRIVATE bool cdp__exec_meanwhile(cdp__exec *x, bool moved) {
    const cdp__step *s = &x->steps[x->step_count - 1];
    const uint64_t bytes = s->len * x->elem;
    const uint64_t n = cdp__min(bytes - x->copied, CDP__REMOTE_SLICE);
    if (s->src != CDP__IN || !n || (moved && bytes < CDP__GET_SLICE) || x->in_parts) return moved;
    memcpy((uint8_t *)cdp__exec_buffer(x, s->dst, s->dst_off) + x->copied,
        (const uint8_t *)cdp__exec_buffer(x, s->src, s->src_off) + x->copied, (size_t)n);
    x->copied += n;
    return moved || x->copied < bytes;
}

CDP__PRIVATE uint32_t cdp__exec_rank_of(const cdp__exec *x, const cdp__transfer *t) {
    return (uint32_t)(t->s - x->streams);
}

/* True if this rank also waits for data from the rank that transfer `i` sends to. */
CDP__PRIVATE bool cdp__exec_expects(const cdp__exec *x, uint32_t i) {
    uint32_t k;
    for (k = 0; k < x->transfer_count; ++k)
        if (x->transfers[k].receive && !x->transfers[k].done
            && x->transfers[k].s == x->transfers[i].s)
            return true;
    return false;
}

/* A rank that only sends would not read from its receiver. Until its message is sent or read,
   the receiver is in the same round or an earlier one, and all earlier data of the receiver has
   arrived. So any further message belongs to a different call. True: the transfer can go on, or
   the operation has failed. */
CDP__PRIVATE bool cdp__exec_check_receiver(cdp__exec *x, uint32_t i) {
    const cdp__transfer *t = &x->transfers[i];
    cdp__stream *s = t->s;
    if (t->receive || t->done || s->body_left || cdp__exec_expects(x, i)) return false;
    if (cdp__port_pump(x->w, s->peer, NULL) < 0) {
        cdp__exec_fail(x, CDP__FAULT_LOST, cdp__exec_rank_of(x, t));
        return true;
    }
    /* the receiver has read the payload meanwhile, and may be ahead of this rank */
    if (t->remote && t->announced && !s->exposed) return true;
    if (!cdp__stream_peek(x->w, s, &x->theirs)) return false;
    cdp__exec_fail(x, CDP__FAULT_MISMATCH, cdp__exec_rank_of(x, t));
    return true;
}

/* Handles the result of polling transfer `i`. True: it moved, or failed. */
CDP__PRIVATE bool cdp__exec_result(cdp__exec *x, uint32_t i, int64_t r) {
    cdp__transfer *t = &x->transfers[i];
    if (r == CDP__TRANSFER_MISMATCH) {
        x->theirs = t->theirs;
        cdp__exec_fail(x, CDP__FAULT_MISMATCH, cdp__exec_rank_of(x, t));
        return true;
    }
    if (r < 0) {
        cdp__exec_fail(x, CDP__FAULT_LOST, cdp__exec_rank_of(x, t));
        return true;
    }
    if (r > 0 && !t->receive && t->remote) x->exposing = true;
    if (r == 0 && !t->receive && t->remote
        && (t->s->early_used || cdp__port_has(&x->w->ports[t->s->peer], t->s)))
        return cdp__exec_check_receiver(x, i);
    return r != 0;
}

/* Sets how far transfer `i` may be combined: a chained one not beyond the one before it. */
CDP__PRIVATE void cdp__exec_limit(cdp__exec *x, uint32_t i) {
    cdp__transfer *t = &x->transfers[i];
    const cdp__transfer *before = t - 1;
    t->limit = t->bytes;
    if (before->done) return;
    t->limit = before->remote ? before->moved : t->moved;
}

CDP__PRIVATE void cdp__exec_step(cdp__exec *x, const cdp__step *s) {
    const cdp_dtype dtype = (cdp_dtype)x->task.call.dtype;
    const bool swap = (s->flags & CDP__SRC_FIRST) != 0;
    void *dst = cdp__exec_buffer(x, s->dst, s->dst_off);
    const void *src = cdp__exec_buffer(x, s->src, s->src_off);
    switch (s->kind) {
    case CDP__COPY: memcpy(dst, src, (size_t)(s->len * x->elem)); break;
    case CDP__REDUCE:
        cdp__reduce(dtype, (cdp_reduce_op)x->task.call.op, swap, dst, src, s->len);
        break;
    case CDP__DIVIDE: cdp__divide(dtype, dst, s->len, x->task.shape.size); break;
    case CDP__SCALE: cdp__scale(dtype, dst, s->len, x->task.factor); break;
    default: break;
    }
}

/* Local steps of the round, in their order. */
CDP__PRIVATE void cdp__exec_local(cdp__exec *x, const cdp__step *steps, uint32_t n) {
    uint32_t i;
    for (i = 0; i < n; ++i) {
        const cdp__step *s = &steps[i];
        /* the last one was copied while waiting */
        if (x->copied && i + 1 == x->step_count) continue;
        if (s->peer < 0 && s->len) cdp__exec_step(x, s);
    }
}

/* The part of the local steps that a poll with a budget makes next. False: there is none. */
CDP__PRIVATE bool cdp__exec_part(cdp__exec *x, cdp__step *part) {
    x->in_parts = true;
    for (; x->next_local < x->step_count; ++x->next_local) {
        /* the last one has been made meanwhile */
        if (x->copied && x->next_local + 1 == x->step_count) continue;
        *part = x->steps[x->next_local];
        if (part->peer < 0 && x->local_done < part->len) break;
        x->local_done = 0;
    }
    if (x->next_local < x->step_count) {
        part->src_off += x->local_done;
        part->dst_off += x->local_done;
        part->len = cdp__min(part->len - x->local_done, CDP__STEP_BYTES / x->elem);
        x->local_done += part->len;
        return true;
    }
    x->in_parts = false;
    x->next_local = 0;
    return false;
}

/* Called when nothing moves: revokes small exposed payloads that are not being read, and sends
   them, so that this rank does not wait for a reader that is itself waiting. True if something
   changed. */
CDP__PRIVATE bool cdp__exec_try_revoke(cdp__exec *x) {
    bool any = false;
    uint32_t i;
    if (!x->w->transport.remote.try_revoke) return false;
    for (i = 0; i < x->transfer_count; ++i) {
        cdp__transfer *t = &x->transfers[i];
        if (t->receive || !t->remote || !t->s->exposed || t->bytes > x->w->window_bytes) continue;
        if (cdp__transfer_try_revoke(x->w, t)) any = true;
    }
    return any;
}

/* The transfer that this rank waits for, or NULL. A receive is preferred to a send; chained
   transfers that wait for an earlier one are left out. */
CDP__PRIVATE const cdp__transfer *cdp__exec_late(const cdp__exec *x) {
    const cdp__transfer *late = NULL;
    uint32_t i;
    for (i = 0; i < x->transfer_count && x->running; ++i) {
        const cdp__transfer *t = &x->transfers[i];
        if (t->done || (late && !t->receive)) continue;
        if (t->chained && !x->transfers[i - 1].done) continue;
        late = t;
    }
    return late;
}

/* How many bytes of the output of a broadcast, counted from its beginning, have arrived. They do
   not change any more. 0: not known. */
CDP__PRIVATE uint64_t cdp__exec_arrived(const cdp__exec *x) {
    uint32_t i;
    for (i = 0; i < x->transfer_count && x->task.shape.kind == CDP_COLL_BROADCAST; ++i)
        if (x->transfers[i].receive && x->transfers[i].data == (const uint8_t *)x->task.out)
            return x->transfers[i].moved;
    return 0;
}

/* Every message of the round is done: runs its local steps and starts the next round. */
CDP__PRIVATE void cdp__exec_next(cdp__exec *x) {
    const bool parts = CDP__BUDGETS && (x->w->poll_until_ns || x->in_parts);
    const cdp__step *steps = x->steps;
    uint32_t n = x->step_count;
    cdp__step part;
    do {
        if (parts) {
            if (!cdp__exec_part(x, &part)) break;
            steps = &part;
            n = 1;
        }
        cdp__exec_local(x, steps, n);
        if (parts && cdp__poll_over(x->w)) return;
    } while (parts);
    x->copied = 0;
    if (++x->round < x->rounds)
        cdp__exec_post(x);
    else
        x->running = false;
}

/* Advances every message of the round; when all are done, its local steps. IDLE: the operation is
   done. MOVED with a fault: it has failed. */
CDP__PRIVATE cdp__advance cdp__exec_poll(cdp__exec *x) {
    bool any = false, all = true;
    uint32_t i;
    if (!x->running) return CDP__IDLE;
    for (i = 0; i < x->transfer_count && x->fault == CDP__FAULT_NONE; ++i) {
        cdp__transfer *t = &x->transfers[i];
        int64_t r;
        if (t->done) continue;
        if (t->chained) cdp__exec_limit(x, i);
        r = t->receive ? cdp__transfer_receive(x->w, t) : cdp__transfer_send(x->w, t);
        all = all && t->done;
        if (!cdp__exec_result(x, i, r)) continue;
        any = true;
        if (cdp__poll_over(x->w)) return CDP__MOVED;
    }
    if (i && i == x->transfer_count && x->steps[x->step_count - 1].kind == CDP__COPY)
        any = cdp__exec_meanwhile(x, any);
    if (any || x->fault != CDP__FAULT_NONE) return CDP__MOVED;
    if (!all) return CDP__BLOCKED;
    cdp__exec_next(x);
    return x->running ? CDP__MOVED : CDP__IDLE;
}

/* ---- >>group/state: the data of a group ------------------------------------------------------ */

/* Knows: executors, streams, works. Promises: types, and small functions about groups that many
   later sections need. */

/* The record of an operation: for cdp_group_records(), and for comparing calls later. */
typedef struct cdp__past {
    cdp__head call;
    uint64_t start_ns, end_ns;
    uint32_t round, rounds;
    int32_t from, to; /* of a message: ranks in the world; else -1 */
} cdp__past;

/* What a group records of each of its ranks. */
typedef struct cdp__peer {
    bool used;       /* the group has used the link to it, so it is told of a failure */
    bool report_due; /* a FAILURE has to be sent to it */
    /* its link has ended: receives from any rank no longer wait for this one */
    bool lost;
    /* it has sent its own FAILURE, or its link has ended: this rank does not wait for it */
    bool answered;
} cdp__peer;

/* An operation in the queue. */
typedef struct cdp__op {
    /* with defaults; in_counts and out_counts only say whether the caller gave any */
    cdp_request rq;
    /* where uneven parts begin, 2 * (world_size + 1) entries; reused by later operations that take
       this place in the queue */
    uint64_t *offs;
    uint64_t parts;
    uint64_t seq;
    uint64_t deadline_ns, start_ns;
    cdp_work after; /* the work that must be done before it begins */
    /* called with the lock held, by the thread that made the progress */
    void (*done)(void *user, uint64_t start_ns, uint64_t end_ns);
    void *user;
    bool device; /* a backend runs it: the ranks only compare the call, in a barrier */
} cdp__op;

/* A send or a receive of one message. Entries of the pool are reused; `use` says which work an
   entry currently belongs to. */
typedef struct cdp__post {
    struct cdp__post *next; /* in the queue of its flow, or in the list of free posts */
    cdp__head call;
    cdp__transfer x;
    uint64_t start_ns, deadline_ns;
    uint32_t timeout_ms;
    uint32_t index;
    uint64_t use;
    uint64_t cancelled; /* bit i: use number `use - 1 - i` was cancelled */
    cdp_message *got;   /* receives of up to call.count elements store the true count here */
    void (*done)(void *user, uint64_t start_ns, uint64_t end_ns);
    void *user;
    uint64_t seen; /* bytes that had moved when its wait was last reported, plus 1 */
    bool begun, taken;
    bool rendezvous; /* a send that may wait for its receiver, however short it is */
} cdp__post;

/* The messages with one tag between this rank and one other. */
typedef struct cdp__flow {
    cdp__stream s; /* must be first: a message channel's stream is cast to its flow */
    cdp_group *g;
    /* the channel whose offered bodies it moves; NULL: messages of the group */
    struct cdp_channel *owner;
    /* set with `owner`: called if a transfer fails, which then breaks no group */
    void (*failed)(struct cdp__flow *flow);
    struct cdp__flow *next;        /* in g->flows */
    struct cdp__flow *next_active; /* in g->active_flows */
    bool active;
    uint32_t tag, rank;
    /* [0]: sends, [1]: receives */
    cdp__post *first[2], *last[2];
    uint64_t count[2]; /* messages, without cancelled ones */
} cdp__flow;

/* The number of a work encodes its kind: a deferred work (47 bits of use, 16 of index), a work
   of the backend (the other bits are the backend's number), a message (41 bits of use, 20 of
   index), or without any of these bits an operation of the queue. */
#define CDP__DEFERRED_BIT (1ull << 63)
#define CDP__DEVICE_BIT (1ull << 62)
#define CDP__POST_BIT (1ull << 61)
#define CDP__WORK_BITS (CDP__DEFERRED_BIT | CDP__DEVICE_BIT | CDP__POST_BIT)
#define CDP__POST_INDEX 20u

#define CDP__TAG_BARRIER 0xffffffffu /* tag of cdp_monitored_barrier() and of bodies of channels */

typedef enum cdp__health {
    CDP__HEALTHY,
    CDP__SETTLING, /* a failure was seen here; peers may still report an earlier cause */
    CDP__FAILED    /* `error` is final and is being passed on */
} cdp__health;

#define CDP__GROUP_MAGIC 0x70726763u
#define CDP__LEAVING_MAGIC \
    0x6c726763u /* cdp_group_leave() is under way, and its streams are closed */

/* Members that most functions use come first: instructions that use the first 128 bytes are
   shorter. */
struct cdp_group {
    /* detects the use of a destroyed group, until its memory is reused */
    uint32_t magic;
    cdp__health health;
    const cdp_os *os;
    cdp__world *w;
    uint64_t channel;     /* equal on all its ranks */
    cdp__stream *streams; /* of the channel, one per rank */
    cdp__peer *peers;
    uint32_t *members;          /* world rank of each of its ranks; NULL: equal */
    cdp_group *parent;          /* the group that it fails together with; NULL: none */
    const cdp_backend *backend; /* NULL: none */
    cdp__flow *active_flows;

    /* operations: a queue in order of issue; the first one runs */
    cdp__op *queue;
    uint32_t queue_room, queue_at, queue_used;
    uint32_t waiters; /* threads that wait for one of its operations */

    cdp_group_desc desc; /* with defaults; rank and world_size are those of this group */
    cdp_group *next;     /* in world->groups */
    uint64_t soonest_ns; /* at or before the earliest deadline of an operation or message */
    /* properties for >>collective/select: CDP__SAME_HOST, CDP__SHARED, CDP__HOSTS, CDP__UNIFORM */
    uint8_t is;
    bool active; /* in world->active */
    bool backed; /* it has or had a backend */
    cdp_group *next_active;
    uint64_t issued, completed; /* sequence numbers */
    uint32_t ddps;              /* ddps created on it */
    void *barrier;              /* memory of cdp_monitored_barrier(), kept for the next one */
    cdp__past *past;            /* the last desc.records operations, by sequence number */
    cdp__hosts hosts;           /* only for several hosts */

    /* messages */
    cdp__flow *flows;
    cdp__post **posts;                      /* the pool, by index */
    cdp__post *free_posts, *last_free_post; /* the one that was free longest is first */
    uint32_t post_count, post_room;
    cdp__past *past_messages; /* the last desc.records messages; allocated with the first */
    uint64_t message_count;
    uint32_t any_turn;   /* the rank that a receive from any rank tries first */
    uint64_t links_read; /* value of world->polls when links were last read for such receives */
    uint32_t first_gone; /* the first rank then found to have left or died, plus 1; 0: none */

    /* works that are no operations */
    cdp__deferred *deferred; /* desc.max_pending entries, allocated with the first one */
    /* index where the search for a free entry begins: the one that was free longest */
    uint32_t deferred_at;

    /* timers, as soonest_ns; CDP__NEVER: not set */
    uint64_t wait_ns;       /* when to check for long waits */
    uint64_t poll_peers_ns; /* when to read from peers that this rank does not wait for */
    uint64_t revoke_ns;     /* when exposed payloads that are not being read are sent instead */
    uint64_t seen_moved;    /* progress of the awaited transfer when last checked: its bytes */
    uint32_t seen_round;    /* and its round */

    /* failure */
    /* failed by the caller or a backend: a late operation that completes does not undo it */
    bool broken_by_caller;
    uint32_t late_ms;           /* the timeout that passed, ms */
    uint64_t answer_ns;         /* until when peers may answer with their FAILURE; 0: over */
    uint64_t settle_ns;         /* when SETTLING ends, then when telling ends */
    uint64_t leave_ns;          /* when leaving ends with a failure that is not told; 0: it stays */
    cdp__failure_domain domain; /* of a group without a parent */
    cdp_error error;
    uint8_t cause[CDP__FAILURE_BYTES];
    uint32_t cause_bytes;

    cdp__exec exec; /* runs the first operation of the queue */
};

/* NULL: the group has no backend, so all memory is host memory. */
CDP__PRIVATE const cdp_backend *cdp__backend_of(const cdp_group *g) {
#ifdef CDP_NO_BACKEND
    (void)g;
    return NULL;
#else
    return g->backend;
#endif
}

#define CDP__SETTLE_MS CDP__FAILURE_SETTLE_MS
#define CDP__REPORT_MS CDP__FAILURE_REPORT_MS
#define CDP__ANSWER_MS 8u /* how much of CDP__REPORT_MS may be spent waiting for answers */
#define CDP__POLL_PEERS_MS 20u
#define CDP__REVOKE_MS 5u /* copying 4 MiB is cheaper than waiting longer for the reader */

/* The first check of every public function. */
CDP__PRIVATE CDP__ONE_COPY cdp_status cdp__alive(const cdp_group *g, const char *call) {
    if (!g) return cdp__fail(CDP_ERR_INVALID, "%s needs a group; this one is NULL", call);
    if (g->magic == CDP__GROUP_MAGIC) return CDP_OK;
    return cdp__fail(CDP_ERR_STATE, "%s: this group was destroyed", call);
}

/* cdp__alive() for an operation, whose errors begin with its name. */
CDP__PRIVATE cdp_status cdp__alive_for(const cdp_group *g, cdp_coll_kind kind) {
    if (g && g->magic == CDP__GROUP_MAGIC) return CDP_OK;
    return cdp__alive(g, kind ? cdp_coll_name(kind) : "cdp_start");
}

/* The world rank of rank p of the group. Errors and links use world ranks. */
CDP__PRIVATE uint32_t cdp__world_rank(const cdp_group *g, uint32_t p) {
#ifdef CDP_NO_GROUPS
    (void)g;
    return p;
#else
    return g->members ? g->members[p] : p;
#endif
}

/* The first operation of the queue, which must not be empty. */
CDP__PRIVATE cdp__op *cdp__group_head(const cdp_group *g) {
    return &g->queue[g->queue_at];
}

CDP__PRIVATE void cdp__group_activate(cdp_group *g) {
    if (g->active) return;
    g->active = true;
    g->next_active = g->w->active;
    g->w->active = g;
}

CDP__PRIVATE bool cdp__group_linked(const cdp_group *g, uint32_t p) {
    const cdp_transport *t = &g->w->transport;
    return t->failure.linked && t->failure.linked(t->self, cdp__world_rank(g, p));
}

/* True if this group has exchanged messages with rank p. */
CDP__PRIVATE bool cdp__peer_used(const cdp_group *g, uint32_t p) {
    return g->peers[p].used || g->streams[p].put || g->streams[p].got;
}

/* The group that this one was made from, and fails together with; or NULL. */
CDP__PRIVATE cdp_group *cdp__group_parent(const cdp_group *g) {
#ifdef CDP_NO_GROUPS
    (void)g;
    return NULL;
#else
    return g->parent;
#endif
}

/* The group that settles failures for all groups that fail together with g. */
CDP__PRIVATE cdp_group *cdp__group_top(cdp_group *g) {
    return cdp__group_parent(g) ? cdp__group_parent(g) : g;
}

/* True while the cause of a failure or timeout is being settled. */
CDP__PRIVATE bool cdp__group_settling(const cdp_group *g) {
    const cdp_group *top = cdp__group_parent(g) ? cdp__group_parent(g) : g;
    return top->domain.state == CDP__FAILURE_SETTLING;
}

CDP__PRIVATE cdp__past *cdp__past_at(const cdp_group *g, uint64_t seq) {
    return &g->past[seq % g->desc.records];
}

/* Revokes all exposed memory of the group's operations and messages. */
CDP__PRIVATE void cdp__group_revoke(cdp_group *g) {
    cdp__flow *flow;
    cdp__exec_revoke(&g->exec);
    for (flow = g->active_flows; flow; flow = flow->next_active)
        if (flow->first[0]) cdp__transfer_revoke(g->w, &flow->first[0]->x);
}

/* The channel number under which waits for messages are reported: one per pair of ranks,
   direction and tag. */
CDP__PRIVATE uint64_t cdp__way_channel(uint64_t channel, uint32_t from, uint32_t to) {
    uint8_t id[16];
    cdp__put_u64(id, channel);
    cdp__put_u32(id + 8, from);
    cdp__put_u32(id + 12, to);
    return cdp__hash(CDP__HASH_START, id, sizeof id) | 2;
}

CDP__PRIVATE uint64_t cdp__flow_channel(const cdp__flow *flow, bool receive) {
    const uint32_t me = flow->g->w->rank, peer = flow->s.peer;
    return cdp__way_channel(flow->s.channel, receive ? peer : me, receive ? me : peer);
}

CDP__PRIVATE cdp_group *cdp__group_of_channel(const cdp__world *w, uint64_t channel) {
    cdp_group *g = w->groups;
    while (g && g->channel != channel)
        g = g->next;
    return g;
}

CDP__PRIVATE cdp_status cdp__world_wrong(const char *call, uint32_t size) {
    return cdp__fail(CDP_ERR_INVALID,
        "%s: world_size %u is not in 1 .. 65535; set it to the number of ranks", call, size);
}

CDP__PRIVATE cdp__head cdp__op_call(const cdp__op *op) {
    const cdp_request *rq = &op->rq;
    cdp__head h;
    memset(&h, 0, sizeof h);
    h.kind = (uint8_t)rq->kind;
    h.dtype = (uint8_t)rq->dtype;
    h.op = (uint8_t)rq->op;
    h.seq = op->seq;
    h.count = op->parts ? 0 : rq->count;
    h.parts = op->parts;
    h.root = rq->root;
    return h;
}

/* ---- >>group/records: recorded calls of a group, as records and as JSON ---------------------- */

/* Knows: all members of a group. Promises: a consistent snapshot in bounded memory, even while the
   group fails. */

#ifndef CDP_NO_MESSAGES
/* Records a message, in a list separate from that of operations. */
CDP__PRIVATE void cdp__post_remember(cdp_group *g, const cdp__post *post, uint64_t end_ns) {
    const uint32_t me = g->w->rank, peer = post->x.s->peer;
    cdp__past *past;
    if (!g->past_messages || post->call.root == CDP__TAG_BARRIER) return;
    past = &g->past_messages[g->message_count++ % g->desc.records];
    memset(past, 0, sizeof *past);
    past->call = post->call;
    past->start_ns = post->start_ns;
    past->end_ns = end_ns;
    past->round = past->rounds = 1;
    past->from = (int32_t)(post->x.receive ? peer : me);
    past->to = (int32_t)(post->x.receive ? me : peer);
}
#endif

#ifndef CDP_NO_RECORDER

/* Converts the internal record of a call to a cdp_record. */
CDP__PRIVATE void cdp__record_fill(const cdp__past *past, cdp_record *r) {
    memset(r, 0, sizeof *r);
    r->seq = past->call.seq;
    r->kind = (cdp_coll_kind)past->call.kind;
    r->dtype = (cdp_dtype)past->call.dtype;
    r->op = (cdp_reduce_op)past->call.op;
    r->root = past->call.root;
    r->count = past->call.count;
    r->waits_for = -1;
    r->rounds = past->rounds;
    r->round = past->round;
    r->start_ns = past->start_ns;
    r->end_ns = past->end_ns;
    r->state = CDP_RECORD_DONE;
}

/* Stores operation `seq` of g as a record. False: it is no longer kept, or does not exist. Lock
   held. */
CDP__PRIVATE bool cdp__record_of(const cdp_group *g, uint64_t seq, cdp_record *r) {
    const cdp__past *past = cdp__past_at(g, seq);
    const bool begun = past->call.seq == seq, queued = seq > g->completed && seq <= g->issued;
    const cdp__transfer *late = cdp__exec_late(&g->exec);
    cdp__past next;
    if (!begun && !queued) return false;
    if (!begun) {
        const uint64_t at = g->queue_at + (seq - g->completed - 1);
        memset(&next, 0, sizeof next);
        next.call = cdp__op_call(&g->queue[at % g->queue_room]);
        past = &next;
    }
    cdp__record_fill(past, r);
    if (!begun) {
        r->state = CDP_RECORD_QUEUED;
        return true;
    }
    r->algorithm = cdp__algo_at(past->call.algo)->name;
    if (!queued) return true;
    r->state = g->health == CDP__HEALTHY ? CDP_RECORD_RUNNING : CDP_RECORD_FAILED;
    r->round = g->exec.round;
    if (late) r->waits_for = (int32_t)late->s->peer;
    return true;
}

/* Writes JSON to a file; closing the file reports errors. */
CDP__PRIVATE void cdp__dump_record(cdp__text *f, const cdp_record *r, uint64_t now) {
    static const char *const states[] = {"queued", "running", "done", "failed"};
    cdp__text_add(f,
        "\n      {\"seq\": %llu, \"state\": \"%s\", \"kind\": \"%s\", \"dtype\": \"%s\", "
        "\"count\": %llu",
        (unsigned long long)r->seq, states[r->state], cdp_coll_name(r->kind),
        cdp_dtype_name(r->dtype), (unsigned long long)r->count);
    if (cdp__kind_reduces(r->kind)) cdp__text_add(f, ", \"op\": \"%s\"", cdp_reduce_name(r->op));
    cdp__text_add(f, r->kind == CDP_COLL_SEND ? ", \"tag\": %u" : ", \"root\": %u", r->root);
    if (r->algorithm)
        cdp__text_add(f,
            ", \"algorithm\": \"%s\", \"round\": %u, \"rounds\": %u, \"began_us_ago\": %llu",
            r->algorithm, r->round, r->rounds, (unsigned long long)((now - r->start_ns) / 1000));
    if (r->end_ns)
        cdp__text_add(
            f, ", \"took_us\": %llu", (unsigned long long)((r->end_ns - r->start_ns) / 1000));
    if (r->waits_for >= 0) cdp__text_add(f, ", \"waits_for\": %d", (int)r->waits_for);
    cdp__text_add(f, "}");
}

/* Writes the members that groups and message flows have in common. */
CDP__PRIVATE void cdp__dump_state(
    cdp__text *f, const cdp_group *g, uint64_t called, uint64_t completed) {
    static const char *const health[] = {"healthy", "settling", "failed"};
    cdp__text_add(f, "\"health\": \"%s\", \"called\": %llu, \"completed\": %llu", health[g->health],
        (unsigned long long)called, (unsigned long long)completed);
    if (g->health != CDP__HEALTHY) {
        cdp__text_add(f,
            ", \"error\": {\"status\": \"%s\", \"peer\": %d, \"origin\": %d, \"text\": \"",
            cdp_status_name(g->error.status), (int)g->error.peer, (int)g->error.origin);
        cdp__json_inside(f, g->error.text);
        cdp__text_add(f, "\"}");
    }
    cdp__text_add(f, ", \"operations\": [");
}

CDP__PRIVATE void cdp__dump_group(cdp__text *f, const cdp_group *g, uint64_t now) {
    const uint64_t kept = g->desc.records;
    const char *comma = "";
    cdp_record r;
    uint64_t seq = g->issued > kept ? g->issued - kept + 1 : 1;
    uint32_t p;
    cdp__text_add(f, "\n    {\"group\": \"%llx\", \"is\": \"%s\", \"ranks\": [",
        (unsigned long long)g->channel, g->channel == CDP__WORLD_CHANNEL ? "world" : "group");
    for (p = 0; p < g->desc.world_size; ++p)
        cdp__text_add(f, "%s%u", p ? ", " : "", cdp__world_rank(g, p));
    cdp__text_add(f, "], ");
    cdp__dump_state(f, g, g->issued, g->completed);
    for (; seq <= g->issued; ++seq) {
        if (!cdp__record_of(g, seq, &r)) continue;
        cdp__text_add(f, "%s", comma);
        cdp__dump_record(f, &r, now);
        comma = ",";
    }
    cdp__text_add(f, "]}");
}

/* Writes the kept messages of a flow in one direction (1: received here), then those in flight.
   Returns the number of those in flight; `f` NULL: only counts. */
CDP__PRIVATE uint64_t cdp__dump_posts(
    cdp__text *f, const cdp__flow *flow, uint32_t way, uint64_t now) {
    const cdp_group *g = flow->g;
    const int32_t from = (int32_t)(way ? flow->s.peer : g->w->rank);
    const uint64_t kept = g->desc.records, count = g->message_count;
    const char *comma = "";
    const cdp__post *post;
    uint64_t i = count > kept ? count - kept : 0, n = 0;
    cdp_record r;
    for (; f && i < count; ++i) {
        const cdp__past *past = &g->past_messages[i % kept];
        if (past->from != from || past->call.root != flow->tag) continue;
        if ((way ? past->to != (int32_t)g->w->rank : past->to != (int32_t)flow->s.peer)) continue;
        cdp__record_fill(past, &r);
        r.algorithm = "message";
        cdp__text_add(f, "%s", comma);
        cdp__dump_record(f, &r, now);
        comma = ",";
    }
    for (post = flow->first[way]; post; post = post->next, ++n) {
        cdp__past past;
        if (!f) continue;
        memset(&past, 0, sizeof past);
        past.call = post->call;
        past.start_ns = post->start_ns;
        cdp__record_fill(&past, &r);
        r.state = CDP_RECORD_QUEUED;
        if (!n) {
            r.state = g->health == CDP__HEALTHY ? CDP_RECORD_RUNNING : CDP_RECORD_FAILED;
            r.algorithm = "message";
            r.rounds = 1;
            r.waits_for = (int32_t)flow->s.peer;
        }
        cdp__text_add(f, "%s", comma);
        cdp__dump_record(f, &r, now);
        comma = ",";
    }
    return n;
}

/* Writes the messages with one tag from one rank to another, as if these two ranks were a group. */
CDP__PRIVATE void cdp__dump_flow(cdp__text *f, const cdp__flow *flow, uint32_t way, uint64_t now) {
    const uint32_t from = way ? flow->s.peer : flow->g->w->rank;
    const uint32_t to = way ? flow->g->w->rank : flow->s.peer;
    uint8_t id[8];
    cdp__put_u32(id, from);
    cdp__put_u32(id + 4, to);
    if (!flow->count[way]) return;
    cdp__text_add(f, ",\n    {\"group\": \"%llx\", \"is\": \"messages\", \"ranks\": [%u, %u], ",
        (unsigned long long)cdp__hash(flow->s.channel, id, sizeof id), from, to);
    cdp__dump_state(
        f, flow->g, flow->count[way], flow->count[way] - cdp__dump_posts(NULL, flow, way, now));
    (void)cdp__dump_posts(f, flow, way, now);
    cdp__text_add(f, "]}");
}

/* Lock held. */
CDP__PRIVATE cdp_status cdp__dump(const cdp__world *m, const char *path) {
    const uint64_t now = cdp__now(m->os);
    const cdp_group *g;
    const cdp__flow *flow;
    cdp__file_text f;
    int32_t why = cdp__file_text_open(&f, m->os, path);
    if (why) return cdp__fail_peer(CDP_ERR_IO, -1, why, "cannot write the dump %s", path);
    cdp__text_add(&f.text, "{\"cdp_dump\": 1, \"rank\": %u, \"world_size\": %u, \"groups\": [",
        m->rank, m->size);
    for (g = m->groups; g; g = g->next) {
        cdp__dump_group(&f.text, g, now);
        for (flow = g->flows; flow; flow = flow->next) {
            cdp__dump_flow(&f.text, flow, 0, now);
            cdp__dump_flow(&f.text, flow, 1, now);
        }
        if (g->next) cdp__text_add(&f.text, ",");
    }
    cdp__text_add(&f.text, "\n]}\n");
    why = cdp__file_text_close(&f);
    if (!why) return CDP_OK;
    return cdp__fail_peer(CDP_ERR_IO, -1, why, "cannot write the dump %s", path);
}

/* Writes the dump of a failed group, after telling its peers. Lock held. */
CDP__PRIVATE void cdp__group_dump_failed(cdp_group *g) {
    const cdp_error before = *cdp_last_error();
    char path[1024];
    if (!g->desc.dump_path || g->parent) return;
    cdp__format(path, sizeof path, "%s.%u.json", g->desc.dump_path, g->w->rank);
    if (cdp__dump(g->w, path) != CDP_OK)
        cdp__log(&g->desc.logger, CDP_LOG_WARN, g->desc.rank, "%s", cdp_last_error()->text);
    *cdp__error_slot() = before;
}

#else

CDP__PRIVATE void cdp__group_dump_failed(cdp_group *g) {
    (void)g;
}

#endif /* CDP_NO_RECORDER */

/* ---- >>failure/waits: which rank waits for which other rank ---------------------------------- */

/* Knows: operations and messages of all groups, and their positions. Promises: long waits become
   events of >>failure/blame, and its questions and answers become messages. */

#define CDP__FAILURE_REPORTS 8u

/* True if a thread of the program waits for an operation of g, or for one that starts after it. */
CDP__PRIVATE bool cdp__group_awaited(const cdp_group *g) {
    const cdp_group *x;
    if (g->waiters) return true;
    for (x = g->w->groups; x; x = x->next)
        if (x->waiters && x->queue_used && cdp__group_head(x)->after.group == g) return true;
    return false;
}

/* Reports that a receive from any rank waits for rank p. `set` is a number that the waits of this
   receive for all ranks have in common. */
CDP__PRIVATE void cdp__wait_any_long(const cdp_group *g, uint64_t set, const cdp__position *at,
    uint32_t p, uint64_t since_ns, bool caller) {
    cdp__failure_event v;
    memset(&v, 0, sizeof v);
    v.type = CDP__FAILURE_BLOCKED;
    v.time_ns = cdp__now(g->os);
    v.at = *at;
    v.from = cdp__world_rank(g, p);
    v.set = set;
    v.since_ns = since_ns;
    v.caller = caller;
    /* a peer that was never reached has most likely left before */
    v.left = g->streams[p].left || (g->peers[p].lost && !cdp__peer_used(g, p));
    (void)cdp__failure_step(&g->w->failure, &v);
}

/* Reports a long wait for `peer`. `compare`: send it this rank's calls, too. */
CDP__PRIVATE void cdp__wait_long(
    cdp_group *g, const cdp__position *at, uint32_t peer, uint64_t since_ns, bool compare) {
    cdp__failure_event v;
    memset(&v, 0, sizeof v);
    v.type = CDP__FAILURE_BLOCKED;
    v.time_ns = cdp__now(g->os);
    v.at = *at;
    v.from = peer;
    v.since_ns = since_ns;
    v.caller = cdp__group_awaited(g);
    v.compare = compare;
    (void)cdp__failure_step(&g->w->failure, &v);
}

/* Reports that a channel has reached this position. */
CDP__PRIVATE void cdp__wait_ended(cdp_group *g, uint64_t channel, uint64_t seq, uint32_t round) {
    cdp__failure_event v;
    memset(&v, 0, sizeof v);
    v.type = CDP__FAILURE_MOVING;
    v.time_ns = cdp__now(g->os);
    v.at.channel = channel;
    v.at.seq = seq;
    v.at.round = round;
    (void)cdp__failure_step(&g->w->failure, &v);
}

/* A rank that takes part in a new operation did not leave because of a failure. */
CDP__PRIVATE void cdp__rank_continued(cdp__world *w, uint32_t rank, uint64_t begun_ns) {
    cdp__failure_event v;
    memset(&v, 0, sizeof v);
    v.type = CDP__FAILURE_CONTINUED;
    v.from = rank;
    v.begun_ns = begun_ns;
    (void)cdp__failure_step(&w->failure, &v);
}

CDP__PRIVATE void cdp__group_continued(cdp_group *g, uint64_t begun_ns) {
    uint32_t i;
    for (i = 0; i < g->w->failure.report_room; ++i) {
        const cdp__failure_report *will = &g->w->failure.reports[i];
        if (will->used && cdp_rank_of_world(g, will->rank) < g->desc.world_size)
            cdp__rank_continued(g->w, will->rank, begun_ns);
    }
}

/* Adds the calls of the group up to number `seq`, which the receiver compares with its own. */
CDP__PRIVATE void cdp__wait_calls(const cdp__world *w, cdp__wait_message *m) {
    const cdp_group *g = cdp__group_of_channel(w, m->at.channel);
    uint64_t seq = m->at.seq;
    for (; g && seq && m->call_count < CDP__WAIT_CALLS; --seq) {
        if (cdp__past_at(g, seq)->call.seq != seq) return;
        m->calls[m->call_count++] = cdp__fingerprint_of(&cdp__past_at(g, seq)->call);
    }
}

CDP__PRIVATE void cdp__world_send_control(
    cdp__world *w, uint32_t peer, cdp__message_type type, const uint8_t *body, uint32_t bytes) {
    cdp__head h;
    memset(&h, 0, sizeof h);
    h.type = (uint8_t)type;
    h.channel = CDP__WORLD_CHANNEL;
    h.bytes = bytes;
    if (cdp__control_add(w, peer, &h, body)) (void)cdp__port_flush(w, peer);
}

CDP__PRIVATE CDP__COLD void cdp__world_answer(cdp__world *w) {
    uint8_t body[CDP__WAIT_BYTES];
    uint32_t p, what;
    for (p = 0; p < w->size && w->failure.outbox; ++p) {
        cdp__wait_message wait;
        cdp__answer_message answer;
        while ((what = cdp__failure_take(&w->failure, p, &wait, &answer)) != 0) {
            if (p == w->rank) continue;
            if (what == 1) cdp__wait_calls(w, &wait);
            if (what == 1)
                cdp__world_send_control(
                    w, p, CDP__MESSAGE_WAIT, body, cdp__wait_encode(&wait, body));
            else
                cdp__world_send_control(
                    w, p, CDP__MESSAGE_ENDPOINT, body, cdp__answer_encode(&answer, body));
        }
    }
    w->failure.outbox = false;
}

/* An operation or a message is done: ranks that wait for this one receive the new end of the
   chain. */
CDP__PRIVATE void cdp__wait_done(cdp_group *g, uint64_t channel, uint64_t next_seq) {
    cdp__wait_ended(g, channel, next_seq, 0);
    cdp__world_answer(g->w);
}

/* Reads from all ranks, for their WAIT and ENDPOINT messages. */
CDP__PRIVATE CDP__COLD void cdp__world_read_all(cdp__world *w) {
    const cdp_transport *t = &w->transport;
    uint32_t p;
    for (p = 0; p < w->size; ++p) {
        const cdp__port *port = &w->ports[p];
        const cdp__stream *s = port->rx_stream;
        if (p == w->rank || (s && s->body_left && port->rx_left)) continue;
        if (!s) s = cdp__stream_find(w, CDP__WORLD_CHANNEL, p);
        /* a rank that has left may have sent the reason, which is still unread */
        if (!port->used
            && (t->failure.linked ? !t->failure.linked(t->self, p) : !s || (!s->put && !s->got)))
            continue;
        (void)cdp__port_pump(w, p, NULL);
    }
}

/* True if this rank has already sent what rank `peer` of the world waits for at `at`. */
CDP__PRIVATE bool cdp__group_passed(const cdp_group *g, uint32_t peer, const cdp__position *at) {
    const cdp__exec *x = &g->exec;
    uint32_t i;
    if (g->completed >= at->seq) return true;
    if (!x->running || x->task.call.seq != at->seq || x->round != at->round)
        return x->running && x->task.call.seq == at->seq && x->round > at->round;
    for (i = 0; i < x->transfer_count; ++i)
        if (x->transfers[i].s->peer == peer && !x->transfers[i].done) return false;
    return true;
}

CDP__PRIVATE bool cdp__world_passed(const cdp__world *w, int32_t peer, const cdp__position *at) {
    const cdp_group *g = cdp__group_of_channel(w, at->channel);
    uint32_t way;
    if (peer < 0 || !at->seq) return false; /* operations count from 1 */
    if (g) return cdp__group_passed(g, (uint32_t)peer, at);
    for (g = w->groups; g; g = g->next) {
        const cdp__flow *flow;
        for (flow = g->flows; flow; flow = flow->next)
            for (way = 0; way < 2 && flow->s.peer == (uint32_t)peer; ++way)
                if (cdp__flow_channel(flow, way == 1) == at->channel)
                    return flow->first[way] ? flow->first[way]->call.seq > at->seq
                                            : flow->count[way] >= at->seq;
    }
    return false;
}

/* ---- >>failure/report: reports a failure to the peers ---------------------------------------- */

/* Knows: groups that have failed, and their streams. Promises: every peer that can be reached in
   time receives the record, after any half-sent message; messages of peers are read until then,
   so that no reset overtakes the record. */

/* Breaks the group, and prepares a FAILURE for every peer that it has exchanged messages with. */
CDP__PRIVATE void cdp__group_publish(cdp_group *g, const cdp__failure_record *r) {
    const uint64_t now = cdp__now(g->os);
    const uint64_t share_ms = cdp__failure_share_ns(r, CDP__REPORT_MS) / CDP__MS;
    uint64_t answer_ms = CDP__ANSWER_MS;
    uint32_t p;
    if (r->status == CDP_ERR_TIMEOUT) answer_ms = cdp__max(answer_ms, share_ms);
    cdp__group_revoke(g);
    g->cause_bytes = cdp__failure_encode(r, g->cause);
    for (p = 0; p < g->desc.world_size; ++p) {
        cdp__peer *peer = &g->peers[p];
        if (p == g->desc.rank) continue;
        /* in a group of some ranks all peers are told: the transport only reports failures of
           the world */
        peer->used =
            cdp__peer_used(g, p) || cdp__group_linked(g, p) || g->channel != CDP__WORLD_CHANNEL;
        peer->report_due = peer->used;
        g->streams[p].dropping = true;
    }
    g->health = CDP__FAILED;
    g->settle_ns = now + CDP__REPORT_MS * CDP__MS;
    g->answer_ns = now + answer_ms * CDP__MS;
    if (g->channel == CDP__WORLD_CHANNEL && g->w->transport.failure.publish)
        g->w->transport.failure.publish(g->w->transport.self, g->cause, g->cause_bytes);
    if (cdp__backend_of(g)) g->backend->failed(g->backend->self, &g->error);
    cdp__group_activate(g);
    cdp__log(&g->desc.logger, CDP_LOG_DEBUG, g->desc.rank, "%s", g->error.text);
}

/* Sends the record to ranks outside the group, as this rank's last will: it may leave soon. */
CDP__PRIVATE void cdp__group_report_outside(cdp_group *g) {
    const cdp_transport *t = &g->w->transport;
    cdp__head h;
    uint32_t p;
    memset(&h, 0, sizeof h);
    h.type = CDP__MESSAGE_FAILURE;
    h.channel = CDP__WORLD_CHANNEL;
    h.bytes = g->cause_bytes;
    for (p = 0; p < g->w->size && t->failure.linked; ++p) {
        cdp__stream *s = cdp__stream_find(g->w, CDP__WORLD_CHANNEL, p);
        if (!s || cdp_rank_of_world(g, p) < g->desc.world_size || !t->failure.linked(t->self, p))
            continue;
        h.ack = (uint32_t)s->taken;
        if (!cdp__control_add(g->w, p, &h, g->cause)) continue;
        s->sent += CDP__HEAD_BYTES + h.bytes;
        (void)cdp__port_flush(g->w, p);
    }
}

/* Reads and drops what p still sends, up to its FAILURE. A process that exits with unread data
   resets its connections, and that reset could overtake the FAILURE that it has sent. */
CDP__PRIVATE void cdp__group_drain(cdp_group *g, uint32_t p) {
    if (!g->peers[p].answered && cdp__port_pump(g->w, g->streams[p].peer, NULL) < 0)
        g->peers[p].answered = true;
}

/* While a failure settles: reads from all peers, which may have sent the cause. */
CDP__PRIVATE void cdp__group_drain_all(cdp_group *g) {
    uint32_t p;
    for (p = 0; p < g->desc.world_size && g->health == CDP__SETTLING; ++p)
        if (cdp__peer_used(g, p)) cdp__group_drain(g, p);
}

/* Sends the rest of a message, until the transport accepts no more: only then does the transport
   report new room. */
CDP__PRIVATE CDP__COLD int64_t cdp__group_finish_one(
    cdp__world *w, cdp__stream *s, cdp__transfer *t) {
    cdp_iov v[2];
    int64_t r;
    do {
        r = w->transport.send(w->transport.self, s->peer, v,
            cdp__stream_unsent(w, s, t->data ? t->data + t->moved : NULL, v));
        if (r > 0) t->moved += cdp__stream_sent(w, s, (uint64_t)r);
    } while (r > 0 && w->ports[s->peer].tx_stream == s && !cdp__poll_over(w));
    return r;
}

/* Completes a half-sent message of this group to p with its true bytes, because the receiver's
   operation may need only these. The buffer is still valid: failed works stay PENDING until
   telling has ended. > 0: complete, or there was none. */
CDP__PRIVATE int64_t cdp__group_finish(cdp_group *g, uint32_t p) {
    cdp__stream *s = &g->streams[p];
    cdp__exec *x = &g->exec;
    uint32_t i;
    int64_t r = 1;
    for (i = 0; i < x->transfer_count && g->w->ports[s->peer].tx_stream == s && r > 0; ++i) {
        cdp__transfer *t = &x->transfers[i];
        if (t->receive || t->s != s) continue;
        r = cdp__group_finish_one(g->w, s, t);
    }
    return g->w->ports[s->peer].tx_stream == s && r > 0 ? 0 : r;
}

/* The same for half-sent messages of flows. */
CDP__PRIVATE int64_t cdp__flows_finish(cdp_group *g, uint32_t p) {
    const uint32_t peer = g->streams[p].peer;
    cdp__flow *flow;
    int64_t r = 1;
    for (flow = g->active_flows; flow && r > 0; flow = flow->next_active) {
        cdp__transfer *t = flow->first[0] ? &flow->first[0]->x : NULL;
        if (!t || g->w->ports[peer].tx_stream != &flow->s) continue;
        r = cdp__group_finish_one(g->w, &flow->s, t);
        if (g->w->ports[peer].tx_stream == &flow->s && r > 0) r = 0;
    }
    return r;
}

/* Sends the FAILURE to p. */
CDP__PRIVATE void cdp__group_send_cause(cdp_group *g, uint32_t p) {
    cdp__stream *s = &g->streams[p];
    cdp__head h;
    int64_t r = cdp__group_finish(g, p);
    if (r > 0) r = cdp__flows_finish(g, p);
    if (r < 0) {
        g->peers[p].answered = true; /* p is lost: there is nothing more to send or to wait for */
        g->peers[p].report_due = false;
    }
    if (r <= 0) return;
    memset(&h, 0, sizeof h);
    h.type = CDP__MESSAGE_FAILURE;
    h.channel = g->channel;
    h.ack = (uint32_t)s->taken;
    h.bytes = g->cause_bytes;
    if (!cdp__control_add(g->w, s->peer, &h, g->cause)) return;
    s->sent += CDP__HEAD_BYTES + h.bytes;
    g->peers[p].report_due = false;
    (void)cdp__port_flush(g->w, s->peer);
}

/* True while the FAILURE for p is not sent completely. */
CDP__PRIVATE bool cdp__group_report_unsent(cdp_group *g, uint32_t p) {
    const uint32_t peer = g->streams[p].peer;
    if (g->peers[p].report_due) return true;
    return !g->peers[p].answered && !cdp__port_flush(g->w, peer)
        && g->w->ports[peer].control_at != g->w->ports[peer].control_used;
}

/* The group has failed. True while there is time and a peer has not received the FAILURE, or may
   still answer with its own one (reading it empties the connection, see cdp__group_drain). Peers
   answer at once or never, so answers are awaited for CDP__ANSWER_MS only. */
CDP__PRIVATE bool cdp__group_reporting(cdp_group *g, uint64_t now) {
    bool more = false;
    uint32_t p;
    if (g->settle_ns == CDP__NEVER) return false;
    if (now >= g->answer_ns)
        g->answer_ns = 0; /* over: answer_ns must not be a deadline any longer */
    for (p = 0; p < g->desc.world_size && now < g->settle_ns; ++p) {
        cdp__peer *peer = &g->peers[p];
        /* connected only now */
        if (p != g->desc.rank && !peer->used && cdp__group_linked(g, p))
            peer->used = peer->report_due = true;
        if (peer->used) cdp__group_drain(g, p);
    }
    /* a second loop, because a record that was just read may correct the one to be sent */
    for (p = 0; p < g->desc.world_size && now < g->settle_ns; ++p) {
        const cdp__peer *peer = &g->peers[p];
        if (!peer->used) continue;
        if (peer->report_due) cdp__group_send_cause(g, p);
        if (cdp__group_report_unsent(g, p) || (!peer->answered && now < g->answer_ns)) more = true;
    }
    return more;
}

/* ---- >>failure/spread: how a failure becomes an error on all ranks --------------------------- */

/* Knows: groups, streams. Promises: local failures become events of >>failure/blame, and its
   decisions become errors and messages; every failed group reports its cause within a bounded
   time. This section decides nothing itself. */

/* Makes a record of what this rank saw; `e` has status, peer, errno and a text without a prefix. */
CDP__PRIVATE void cdp__record_make(const cdp_group *g, cdp__failure_record *r, const cdp_error *e) {
    memset(r, 0, sizeof *r);
    r->status = e->status;
    r->peer = r->end.named = e->peer;
    r->end.last.waiter = r->end.last.target = -1;
    r->sys_errno = e->sys_errno;
    r->observer = (int32_t)g->w->rank;
    r->group_size = g->members ? g->desc.world_size : 0;
    r->at.channel = g->channel;
    r->timeout_ms = g->late_ms;
    cdp__format(r->text, sizeof r->text, "%s", e->text);
}

/* Adds the call and the round of this rank to the record. */
CDP__PRIVATE void cdp__record_call(
    cdp__failure_record *r, const cdp__head *call, uint32_t round, uint32_t rounds) {
    r->call = cdp__fingerprint_of(call);
    r->at.seq = call->seq;
    r->at.round = round;
    r->rounds = rounds;
}

/* An event of `top`, or of a group that this rank does not have: NULL. The transition function
   decides; if it settles a cause, that becomes the error of all groups that fail together with
   `top`. `from`: the rank of the world that has sent the record. */
CDP__PRIVATE CDP__COLD void cdp__domain_step(cdp__world *w, cdp_group *top,
    cdp__failure_event_type type, uint32_t from, const cdp__failure_record *r, bool sure) {
    const bool again = top && top->health == CDP__FAILED;
    cdp__failure_event v;
    cdp_group *x;
    memset(&v, 0, sizeof v);
    v.type = type;
    v.time_ns = cdp__now(w->os);
    v.domain = top ? &top->domain : NULL;
    v.from = from;
    v.record = r;
    v.sure = sure;
    if (type == CDP__FAILURE_REPORTED) {
        v.passed = cdp__world_passed(w, r->end.last.waiter, &r->end.last.at);
        if (top && cdp__past_at(top, r->call.seq)->call.seq == r->call.seq)
            v.own = cdp__fingerprint_of(&cdp__past_at(top, r->call.seq)->call);
    }
    if (cdp__failure_step(&w->failure, &v) & CDP__FAILURE_PUBLISH) {
        const cdp__failure_record *cause = &top->domain.record;
        const bool here = cause->observer == (int32_t)w->rank;
        const char *file = top->error.file;
        const uint32_t line = top->error.line;
        for (x = w->groups; x; x = x->next) {
            if (cdp__group_top(x) != top) continue;
            cdp__failure_text(cause, w->rank, w->size, &x->error);
            if (here && file) x->error.file = file;
            x->error.line = here ? line : 0;
            cdp__group_publish(x, cause);
        }
        if (!again && top->channel != CDP__WORLD_CHANNEL) cdp__group_report_outside(top);
    }
    cdp__world_answer(w);
}

CDP__PRIVATE bool cdp__world_adopt_first(cdp__world *w);

/* A lost rank may have left because of an earlier failure. So this rank offers its record to the
   transport: if that becomes the first record, no rank knows an earlier failure. */
CDP__PRIVATE void cdp__group_offer(cdp_group *g) {
    const cdp_transport *t = &g->w->transport;
    const cdp__failure_record *r = &g->domain.record;
    if (g->health != CDP__SETTLING || g->channel != CDP__WORLD_CHANNEL || !t->failure.publish
        || r->status != CDP_ERR_PEER_LOST)
        return;
    g->cause_bytes = cdp__failure_encode(r, g->cause);
    t->failure.publish(t->self, g->cause, g->cause_bytes);
}

/* Reports a failure of g that this rank saw to the group that settles it (g or its parent).
   `late`: a deadline of g has passed. Only such a failure is undone if the late operation
   completes; a timeout that a callback of the program returns is not. */
CDP__PRIVATE CDP__COLD void cdp__group_observe(
    cdp_group *g, const cdp__failure_record *r, const cdp_error *e, bool late) {
    cdp_group *top = cdp__group_top(g);
    /* a failure that needs no settling overrides one that is being settled */
    const bool sure = r->status != CDP_ERR_PEER_LOST && r->status != CDP_ERR_TIMEOUT;
    /* a lost peer may keep back an operation whose late message has arrived */
    const bool lost =
        r->status == CDP_ERR_PEER_LOST && top->domain.record.status == CDP_ERR_TIMEOUT;
    const cdp__failure_state most = sure || lost ? CDP__FAILURE_SETTLING : CDP__FAILURE_HEALTHY;
    /* a late operation goes on while its cause is settled, unless the caller broke the group */
    const bool stops = !late || top->broken_by_caller;
    if (g->health == CDP__FAILED || (g->health == CDP__SETTLING && !sure)) return;
    if (stops) g->health = CDP__SETTLING;
    /* A missed deadline is being settled at the same time. Its operation may still complete, but
       that must not undo this failure. */
    if (stops && top->domain.state == CDP__FAILURE_SETTLING) top->health = CDP__SETTLING;
    if (top->domain.state > most) return;
    if (top->channel == CDP__WORLD_CHANNEL && cdp__world_adopt_first(g->w)) return;
    if (stops) top->health = CDP__SETTLING;
    top->error.file = e->file;
    top->error.line = e->line;
    cdp__group_activate(top);
    cdp__domain_step(g->w, top, CDP__FAILURE_OBSERVED, g->w->rank, r, false);
    cdp__group_offer(top);
}

CDP__PRIVATE void cdp__group_fail(cdp_group *g, const cdp_error *e, bool late) {
    const cdp__exec *x = &g->exec;
    cdp__failure_record r;
    cdp__record_make(g, &r, e);
    if (x->running) cdp__record_call(&r, &x->task.call, x->round, x->rounds);
    cdp__group_observe(g, &r, e, late);
}

CDP__PRIVATE void cdp__group_fail_last(cdp_group *g) {
    cdp__group_fail(g, cdp_last_error(), false);
}

/* The caller breaks the group. This overrides a cause that is still being settled. */
CDP__PRIVATE void cdp__group_break_for(cdp_group *g, const cdp_error *e) {
    cdp_group *top = cdp__group_top(g);
    cdp__failure_record r;
    top->broken_by_caller = true;
    if (top->domain.state != CDP__FAILURE_SETTLING) {
        cdp__group_fail(g, e, false);
        return;
    }
    g->health = top->health = CDP__SETTLING;
    cdp__record_make(g, &r, e);
    top->error.file = e->file;
    top->error.line = e->line;
    cdp__domain_step(g->w, top, CDP__FAILURE_OBSERVED, g->w->rank, &r, false);
}

/* The deadline of a call passed while transfer `t` was awaited. */
CDP__PRIVATE void cdp__group_late(
    cdp_group *g, const cdp__transfer *t, const cdp__head *call, uint64_t channel) {
    cdp__failure_record r;
    cdp_error e;
    cdp__fail_peer(CDP_ERR_TIMEOUT, t->s->peer, 0, "the deadline of %u ms passed", g->late_ms);
    e = *cdp_last_error();
    cdp__record_make(g, &r, &e);
    if (call == &g->exec.task.call)
        cdp__record_call(&r, call, g->exec.round, g->exec.rounds);
    else
        cdp__record_call(&r, call, 0, 1);
    r.at.channel = channel;
    r.moved = t->moved;
    r.expected = t->bytes;
    r.sending = !t->receive;
    r.text[0] = 0; /* the text is made from the fields above */
    cdp__group_observe(g, &r, &e, true);
}

/* Handles a failure record of rank `from` of the world, of a group of this rank or another one. */
CDP__PRIVATE void cdp__world_on_report(cdp__world *w, uint32_t from, const cdp__failure_record *r) {
    cdp_group *g = cdp__group_of_channel(w, r->domain);
    if (g && cdp__group_parent(g)) g = NULL; /* records are of groups that settle failures */
    if (g) cdp__group_activate(g);
    cdp__domain_step(w, g, CDP__FAILURE_REPORTED, from, r, false);
}

/* Result of reading the first failure record of all ranks, which some transports store. `guess`:
   also accept a record without a group, which the transport only guessed. */
typedef enum cdp__known_first {
    CDP__FIRST_NONE,
    CDP__FIRST_OTHER, /* it came from another rank and was handled */
    CDP__FIRST_OWN    /* this rank's own is the first */
} cdp__known_first;

CDP__PRIVATE cdp__known_first cdp__world_read_first(cdp__world *w, bool guess) {
    const cdp_transport *t = &w->transport;
    const cdp_group *g = cdp__group_of_channel(w, CDP__WORLD_CHANNEL);
    uint8_t body[CDP__FAILURE_MAX];
    cdp__failure_record r;
    const uint32_t bytes = t->failure.first ? t->failure.first(t->self, body, sizeof body) : 0;
    if (!bytes || !cdp__failure_decode(body, bytes, w->size, &r)) return CDP__FIRST_NONE;
    if (g && g->cause_bytes == bytes && memcmp(g->cause, body, bytes) == 0) return CDP__FIRST_OWN;
    if (!guess && !r.domain) return CDP__FIRST_NONE;
    r.domain = CDP__WORLD_CHANNEL;
    cdp__world_on_report(w, (uint32_t)r.observer, &r);
    return CDP__FIRST_OTHER;
}

CDP__PRIVATE bool cdp__world_adopt_first(cdp__world *w) {
    return cdp__world_read_first(w, false) == CDP__FIRST_OTHER;
}

/* Whether this rank received anything from `peer`, which then has finished starting. */
CDP__PRIVATE bool cdp__world_received_from(const cdp__world *w, uint32_t peer) {
    const cdp__stream *s;
    uint32_t i;
    for (i = 0; i < w->stream_rows; ++i)
        for (s = w->streams[i]; s; s = s->next)
            if (s->peer == peer && (s->got || s->early_used)) return true;
    return false;
}

/* A named rank that does not answer or refuses connections may still be starting: asks the
   transport which rank it waits for. */
CDP__PRIVATE void cdp__group_ask_starting(cdp_group *g) {
    const cdp_transport *t = &g->w->transport;
    const cdp__failure_record *r = &g->domain.record;
    const bool lost = r->status == CDP_ERR_PEER_LOST;
    cdp__failure_edge *e = cdp__failure_blocker(&g->w->failure, r->at.channel);
    cdp__failure_event v;
    int32_t peer = r->end.named, named;
    if (!t->failure.starting || (!lost && (r->status != CDP_ERR_TIMEOUT || !e))) return;
    memset(&v, 0, sizeof v);
    v.type = CDP__FAILURE_STARTING;
    v.time_ns = cdp__now(g->os);
    v.domain = &g->domain;
    if (!lost) peer = cdp__failure_follow(&g->w->failure, e).named;
    if (peer < 0 || peer == (int32_t)g->w->rank) return;
    if (!lost && cdp__world_received_from(g->w, (uint32_t)peer)) return;
    v.from = (uint32_t)peer;
    named = t->failure.starting(
        t->self, (uint32_t)peer, lost, v.time_ns + 2 * CDP__MS >= g->domain.due_ns);
    if (named == -1 || named >= (int32_t)g->w->size) return;
    v.end.named = named < 0 ? -1 : named;
    if (named < 0) v.end.why = CDP__WHY_FIRST;
    (void)cdp__failure_step(&g->w->failure, &v);
}

/* Called while SETTLING: looks for an earlier cause. */
CDP__PRIVATE CDP__COLD void cdp__group_settle(cdp_group *g) {
    const bool lost = g->domain.record.status == CDP_ERR_PEER_LOST;
    bool sure = false;
    if (g->channel == CDP__WORLD_CHANNEL && lost)
        sure = cdp__world_read_first(g->w, true) == CDP__FIRST_OWN;
    if (g->domain.state != CDP__FAILURE_SETTLING) return;
    cdp__world_read_all(g->w);
    cdp__world_answer(g->w);
    if (g->domain.state != CDP__FAILURE_SETTLING) return;
    if (g->channel == CDP__WORLD_CHANNEL || !lost) cdp__group_ask_starting(g);
    cdp__domain_step(g->w, g, CDP__FAILURE_TIMER, g->w->rank, NULL, sure);
}

/* Decodes a FAILURE that rank `peer` of the world sent on this channel. False: it is damaged, and
   the group of the channel has failed. */
CDP__PRIVATE bool cdp__world_decode(cdp__world *w, uint64_t channel, uint32_t peer,
    const uint8_t *body, uint32_t bytes, cdp__failure_record *r) {
    cdp_group *g = cdp__group_of_channel(w, channel);
    const bool good = cdp__failure_decode(body, bytes, w->size, r);
    uint32_t p;
    if (g && (!good || r->domain == cdp__group_top(g)->channel)) {
        p = cdp_rank_of_world(g, peer);
        CDP_ASSERT(p < g->desc.world_size);
        g->peers[p].used = true;
        /* after its timeout a peer may still send a correction */
        g->peers[p].answered = good && r->status != CDP_ERR_TIMEOUT;
    }
    if (good || !g) return good;
    cdp__fail_peer(CDP_ERR_PEER_LOST, peer, 0, "rank %u failed and left without saying why", peer);
    cdp__group_fail_last(g);
    return false;
}

/* `theirs` came from p where this rank expected a message of `call`: sets this thread's last
   error. */
CDP__PRIVATE void cdp__group_mismatch(
    const cdp_group *g, uint32_t p, const cdp__head *call, const cdp__head *theirs) {
    const uint32_t other = cdp__world_rank(g, p);
    char here[128], there[128];
    cdp__call_text(call, here, sizeof here);
    cdp__call_text(theirs, there, sizeof there);
    if (cdp__same_call(call, theirs))
        cdp__fail_peer(CDP_ERR_MISMATCH, other, 0,
            "rank %u sent %u bytes for round %u, which is not what this rank expects; it runs with "
            "other counts, other settings (small_bytes, piece_bytes) or another version",
            other, theirs->bytes, theirs->round + 1);
    else
        cdp__fail_peer(CDP_ERR_MISMATCH, other, 0,
            "ranks call different things: rank %u calls %s, rank %u calls %s", g->w->rank, here,
            other, there);
}

/* This rank's own call to compare with `theirs`: the one with the same number, if still
   recorded. */
CDP__PRIVATE const cdp__head *cdp__group_call_like(const cdp_group *g, const cdp__head *theirs) {
    const cdp__head *past = &cdp__past_at(g, theirs->seq)->call;
    return past->seq == theirs->seq ? past : &g->exec.task.call;
}

CDP__PRIVATE void cdp__group_fail_mismatch(cdp_group *g, uint32_t p, const cdp__head *theirs) {
    const cdp__head *call = cdp__group_call_like(g, theirs);
    cdp__failure_record r;
    cdp_error e;
    cdp__group_mismatch(g, p, call, theirs);
    e = *cdp_last_error();
    cdp__record_make(g, &r, &e);
    cdp__record_call(&r, call, g->exec.round, g->exec.rounds);
    if (!cdp__same_call(call, theirs)) {
        r.end.why = CDP__WHY_CALLS;
        r.other = cdp__fingerprint_of(theirs);
        r.text[0] = 0;
    }
    cdp__group_observe(g, &r, &e, false);
}

/* True if the header belongs to an operation that this rank has begun, and names another call. */
CDP__PRIVATE bool cdp__group_differs(const cdp_group *g, const cdp__head *h) {
    return h->seq <= g->exec.task.call.seq && !cdp__same_call(&cdp__past_at(g, h->seq)->call, h);
}

/* The transport has lost p (the reason is this thread's last error). A mismatching call that p
   sent before is the better explanation; a FAILURE would have been handled already. */
CDP__PRIVATE void cdp__group_lost(cdp_group *g, uint32_t p) {
    const cdp_error e = *cdp_last_error();
    cdp__head h;
    if (e.status == CDP_ERR_PEER_LOST && g->health == CDP__HEALTHY
        && cdp__stream_peek(g->w, &g->streams[p], &h) && cdp__group_differs(g, &h))
        cdp__group_fail_mismatch(g, p, &h);
    cdp__group_fail(g, &e, false);
}

/* Reads from peers that this rank does not wait for: they may have failed, or made another call.
   The world's group calls this only during long waits: its transport reports failures. */
CDP__PRIVATE bool cdp__group_poll_peers(cdp_group *g) {
    uint32_t p;
    for (p = 0; p < g->desc.world_size && g->health == CDP__HEALTHY; ++p) {
        cdp__stream *s = &g->streams[p];
        cdp__head h;
        if (p == g->desc.rank || s->body_left
            || (g->channel == CDP__WORLD_CHANNEL && !cdp__group_linked(g, p)))
            continue;
        (void)cdp__port_pump(g->w, s->peer, NULL);
        if (g->health != CDP__HEALTHY) return true;
        if (!cdp__stream_peek(g->w, s, &h) || !cdp__group_differs(g, &h)) continue;
        cdp__group_fail_mismatch(g, p, &h);
        return true;
    }
    return g->health != CDP__HEALTHY;
}

/* Compares the calls in a WAIT with this rank's own. True if they differ: the sender waits in
   vain, and the group fails. */
CDP__PRIVATE bool cdp__world_differs(cdp__world *w, uint32_t peer, const cdp__wait_message *m) {
    cdp_group *g = cdp__group_of_channel(w, m->at.channel);
    uint32_t i, p;
    if (!g || g->health == CDP__FAILED) return false;
    p = cdp_rank_of_world(g, peer);
    for (i = 0; i < m->call_count && p < g->desc.world_size; ++i) {
        const cdp__head *own = &cdp__past_at(g, m->calls[i].seq)->call;
        const cdp__head theirs = cdp__fingerprint_head(&m->calls[i]);
        if (own->seq != theirs.seq || cdp__same_call(own, &theirs)) continue;
        cdp__group_fail_mismatch(g, p, &theirs);
        return true;
    }
    return false;
}

/* Handles a FAILURE, WAIT or ENDPOINT of rank `peer` of the world. False: it is invalid. */
CDP__PRIVATE CDP__COLD bool cdp__world_on_control(cdp__world *w, uint32_t peer, uint8_t type,
    uint64_t channel, const uint8_t *body, uint32_t bytes) {
    cdp__wait_message wait;
    cdp__answer_message answer;
    cdp__failure_record failure;
    cdp__failure_event v;
    if (type == CDP__MESSAGE_FAILURE) {
        if (cdp__world_decode(w, channel, peer, body, bytes, &failure))
            cdp__world_on_report(w, peer, &failure);
        return true;
    }
    memset(&v, 0, sizeof v);
    v.type = type == CDP__MESSAGE_WAIT ? CDP__FAILURE_WAITS : CDP__FAILURE_ANSWER;
    v.time_ns = cdp__now(w->os);
    v.from = peer;
    if (type == CDP__MESSAGE_WAIT) {
        if (!cdp__wait_decode(body, bytes, &wait)) return false;
        if (cdp__world_differs(w, peer, &wait) || !wait.probe) return true;
        v.at = wait.at;
        v.serial = wait.serial;
        v.probe = wait.probe;
        v.passed = cdp__world_passed(w, (int32_t)peer, &wait.at);
    } else {
        if (!cdp__answer_decode(body, bytes, w->size, &answer)) return false;
        v.at = answer.at;
        v.serial = answer.serial;
        v.end = answer.end;
        v.passed = cdp__world_passed(w, answer.end.last.waiter, &answer.end.last.at);
    }
    (void)cdp__failure_step(&w->failure, &v);
    return true; /* the answer is sent when nothing moves: see cdp__group_waits() */
}

/* Its peers have been told. Those that have not accepted the record by now do not get it. */
CDP__PRIVATE void cdp__group_reported(cdp_group *g) {
    if (g->settle_ns == CDP__NEVER) return;
    g->settle_ns = CDP__NEVER;
    cdp__group_dump_failed(g);
    if (!cdp__group_parent(g))
        cdp__domain_step(g->w, g, CDP__FAILURE_DELIVERED, g->w->rank, NULL, false);
}

/* ---- >>group/flows: messages from one rank to another ---------------------------------------- */

/* Knows: groups, transfers. Promises: the k-th send with a tag matches the k-th receive; tags are
   independent of each other and of collectives. */

/* A work has ended: wakes other callers, which may wait for it. */
CDP__PRIVATE void cdp__group_ended(cdp_group *g) {
    ++g->w->ended;
    if (g->w->callers > 1) g->os->threads.cond_broadcast(g->os->user, g->w->cond);
}

#ifndef CDP_NO_MESSAGES

/* The channel of all messages of a group with one tag. */
CDP__PRIVATE uint64_t cdp__message_channel(const cdp_group *g, uint32_t tag) {
    uint8_t id[12];
    cdp__put_u64(id, g->channel);
    cdp__put_u32(id + 8, tag);
    return cdp__hash(CDP__HASH_START, id, sizeof id) | 2;
}

/* Returns the flow, or NULL if this rank has not used it yet. */
CDP__PRIVATE cdp__flow *cdp__flow_find(const cdp_group *g, uint32_t rank, uint32_t tag) {
    cdp__stream *s = cdp__stream_find(g->w, cdp__message_channel(g, tag), cdp__world_rank(g, rank));
    return s && !s->unexpected ? (cdp__flow *)s : NULL;
}

/* A new flow from a channel to a rank of g. NULL: out of memory. */
CDP__PRIVATE cdp__flow *cdp__flow_make(
    cdp_group *g, uint64_t channel, uint32_t rank, uint32_t tag) {
    cdp__flow *flow;
    if (!cdp__streams_reserve(g->w, 1)) return NULL;
    flow = (cdp__flow *)cdp__alloc_zero(g->os, sizeof *flow);
    if (!flow) return NULL;
    flow->s.channel = channel;
    flow->s.peer = cdp__world_rank(g, rank);
    (void)cdp__stream_enter(g->w, &flow->s);
    flow->g = g;
    flow->tag = tag;
    flow->rank = rank;
    flow->next = g->flows;
    g->flows = flow;
    return flow;
}

/* The flow of messages with this tag, created on first use. NULL: out of memory. */
CDP__PRIVATE cdp__flow *cdp__flow_open(cdp_group *g, uint32_t rank, uint32_t tag) {
    cdp__flow *flow = cdp__flow_find(g, rank, tag);
    return flow ? flow : cdp__flow_make(g, cdp__message_channel(g, tag), rank, tag);
}

CDP__PRIVATE void cdp__flow_activate(cdp__flow *flow) {
    if (flow->active) return;
    flow->active = true;
    flow->next_active = flow->g->active_flows;
    flow->g->active_flows = flow;
}

/* ---- the pool of posts */

CDP__PRIVATE bool cdp__posts_grow(cdp_group *g) {
    const uint32_t room = (uint32_t)cdp__max(2 * g->post_room, 16);
    cdp__post **posts;
    if (g->post_count < g->post_room) return true;
    if (room > 1u << CDP__POST_INDEX) return false;
    posts = (cdp__post **)cdp__alloc(g->os, room * sizeof *posts);
    if (!posts) return false;
    if (g->post_count) memcpy(posts, g->posts, g->post_count * sizeof *posts);
    cdp__free(g->os, g->posts);
    g->posts = posts;
    g->post_room = room;
    return true;
}

CDP__PRIVATE cdp__post *cdp__post_new(cdp_group *g) {
    cdp__post *post = NULL;
    if (cdp__posts_grow(g)) post = (cdp__post *)cdp__alloc_zero(g->os, sizeof *post);
    if (!post) return NULL;
    post->index = g->post_count;
    g->posts[g->post_count++] = post;
    return post;
}

/* Takes the post that was free longest. NULL: out of memory. */
CDP__PRIVATE cdp__post *cdp__post_take(cdp_group *g) {
    cdp__post *post = g->free_posts;
    if (post) {
        g->free_posts = post->next;
        if (!g->free_posts) g->last_free_post = NULL;
        post->next = NULL;
        post->taken = true;
        return post;
    }
    post = cdp__post_new(g);
    if (post) post->taken = true;
    return post;
}

CDP__PRIVATE void cdp__post_free(cdp_group *g, cdp__post *post) {
    post->next = NULL;
    if (g->last_free_post)
        g->last_free_post->next = post;
    else
        g->free_posts = post;
    g->last_free_post = post;
}

/* The work of the post has ended, completed or cancelled: returns it to the pool. */
CDP__PRIVATE void cdp__post_give(cdp_group *g, cdp__post *post, bool cancelled) {
    post->cancelled = post->cancelled << 1 | (cancelled ? 1u : 0u);
    ++post->use;
    post->taken = false;
    cdp__post_free(g, post);
}

/* Makes room for `n` posts in the pool. False: out of memory. */
CDP__PRIVATE bool cdp__posts_reserve(cdp_group *g, uint32_t n) {
    if (n > 1u << CDP__POST_INDEX) return false;
    while (g->post_count < n) {
        cdp__post *post = cdp__post_new(g);
        if (!post) return false;
        cdp__post_free(g, post);
    }
    return true;
}

/* ---- sends and receives */

CDP__PRIVATE void cdp__post_begin(cdp__flow *flow, cdp__post *post, bool receive) {
    cdp__transfer *x = &post->x;
    const uint64_t elem = cdp_dtype_size((cdp_dtype)post->call.dtype);
    cdp__transfer_reset(x);
    x->s = &flow->s;
    x->call = &post->call;
    x->receive = receive;
    x->bytes = x->limit = post->call.count * elem;
    x->elem = elem;
    x->piece_bytes = flow->g->desc.piece_bytes;
    x->expose_bytes = flow->g->desc.expose_bytes;
    /* only messages above the window are exposed; shorter ones are sent unasked, except those
       that may wait for their receiver */
    if (!post->rendezvous && !flow->owner)
        x->expose_bytes = cdp__max(x->expose_bytes, flow->g->w->window_bytes + 1);
    /* else the transport knows which peers are connected, so that they are told of a failure */
    if (!flow->g->w->transport.failure.linked) flow->g->peers[flow->rank].used = true;
    post->begun = true;
}

CDP__PRIVATE void cdp__post_begin_if(cdp__flow *flow, cdp__post *post, bool receive) {
    if (!post->begun) cdp__post_begin(flow, post, receive);
}

CDP__PRIVATE void cdp__post_complete(cdp__flow *flow, uint32_t way) {
    cdp_group *g = flow->g;
    cdp__post *post = flow->first[way];
    void (*done)(void *, uint64_t, uint64_t) = post->done;
    const uint64_t now = cdp__now(g->os), start_ns = post->start_ns;
    flow->first[way] = post->next;
    if (!post->next) flow->last[way] = NULL;
    if (post->got) post->got->count = post->call.count;
    if (g->w->failure.waited || g->w->failure.waiting)
        cdp__wait_done(g, cdp__flow_channel(flow, way == 1), post->call.seq + 1);
    if (g->w->failure.report_count) cdp__rank_continued(g->w, flow->s.peer, post->start_ns);
    cdp__post_remember(g, post, now);
    cdp__post_give(g, post, false);
    ++g->w->arrivals;
    if (done) done(post->user, start_ns, now);
    cdp__group_ended(g);
}

CDP__PRIVATE void cdp__post_check_peer(cdp__flow *flow, const cdp__post *post) {
    const cdp_error e = *cdp_last_error();
    cdp__failure_record r;
    cdp__record_make(flow->g, &r, &e);
    cdp__record_call(&r, &post->call, 0, 1);
    r.at.channel = cdp__flow_channel(flow, post->x.receive);
    cdp__group_observe(flow->g, &r, &e, false);
}

/* The message failed; the reason is this thread's last error. A send may find that the peer is lost
   while the peer's last messages are still unread. */
CDP__PRIVATE void cdp__post_fail(cdp__flow *flow, const cdp__post *post) {
    const cdp_error e = *cdp_last_error();
    if (flow->failed) {
        flow->failed(flow);
        return;
    }
    if (!post->x.receive) (void)cdp__port_pump(flow->g->w, flow->s.peer, NULL);
    if (flow->g->health != CDP__HEALTHY) return;
    *cdp__error_slot() = e;
    cdp__post_check_peer(flow, post);
}

/* A receive of up to call.count elements adopts the true count of the message. */
CDP__PRIVATE bool cdp__post_accept(cdp__post *post) {
    cdp__transfer *x = &post->x;
    const cdp__head *h = &x->theirs;
    if (!post->got || x->moved || h->count > post->call.count) return false;
    post->call.count = h->count;
    x->bytes = x->limit = h->count * x->elem;
    return true;
}

/* The header differs from what this receive expects. True: the receive accepts it after all. */
CDP__PRIVATE bool cdp__post_mismatch(cdp__flow *flow, cdp__post *post) {
    cdp__transfer *x = &post->x;
    const cdp__head *h = &x->theirs;
    const uint32_t other = flow->s.peer;
    if (cdp__post_accept(post) && cdp__transfer_fits(flow->g->w, x, h)) {
        x->remote = h->type == CDP__MESSAGE_REMOTE;
        x->done = !x->remote && !x->bytes;
        return true;
    }
    if (post->got && h->kind == CDP_COLL_SEND && h->dtype == post->call.dtype
        && h->count > post->call.count)
        cdp__fail_peer(CDP_ERR_MISMATCH, other, 0,
            "the message of rank %u has %llu elements, but there is room for %llu only; ask "
            "cdp_probe() before",
            other, (unsigned long long)h->count, (unsigned long long)post->call.count);
    else
        cdp__group_mismatch(flow->g, flow->rank, &post->call, h);
    cdp__post_fail(flow, post);
    return false;
}

/* Advances the first send or receive of a flow. True if something moved. */
CDP__PRIVATE bool cdp__flow_move(cdp__flow *flow, uint32_t way) {
    cdp_group *g = flow->g;
    bool any = false;
    while (flow->first[way] && g->health == CDP__HEALTHY && !(any && cdp__poll_over(g->w))) {
        cdp__post *post = flow->first[way];
        int64_t r;
        if (!post->begun) cdp__post_begin(flow, post, way == 1);
        r = way == 1 ? cdp__transfer_receive(g->w, &post->x) : cdp__transfer_send(g->w, &post->x);
        if (g->health != CDP__HEALTHY) return true;
        if (r == CDP__TRANSFER_MISMATCH) {
            if (!cdp__post_mismatch(flow, post)) return true;
        } else if (r < 0) {
            cdp__post_fail(flow, post);
            return true;
        }
        any = any || r != 0;
        if (!post->x.done) return any;
        cdp__post_complete(flow, way);
    }
    return any;
}

/* Advances all flows. Sends are polled first, because peers may wait for them. */
CDP__PRIVATE cdp__advance cdp__flows_poll(cdp_group *g) {
    cdp__flow **at = &g->active_flows;
    bool any = false;
    while (*at && g->health == CDP__HEALTHY && !(any && cdp__poll_over(g->w))) {
        cdp__flow *flow = *at;
        if (cdp__flow_move(flow, 0)) any = true;
        if (cdp__flow_move(flow, 1)) any = true;
        while (*at != flow) /* a flow that became active meanwhile was inserted in front */
            at = &(*at)->next_active;
        if (flow->first[0] || flow->first[1]) {
            at = &flow->next_active;
        } else {
            *at = flow->next_active;
            flow->active = false;
        }
    }
    if (!g->active_flows && !g->queue_used) {
        g->soonest_ns = CDP__NEVER;
        if (g->health == CDP__HEALTHY) return any ? CDP__MOVED : CDP__IDLE;
    }
    return any ? CDP__MOVED : CDP__BLOCKED;
}

/* Fails the group, and returns true, if the deadline of a message has passed. */
CDP__PRIVATE bool cdp__flows_due(cdp_group *g, uint64_t now) {
    cdp__flow *flow;
    uint32_t way;
    for (flow = g->active_flows; flow; flow = flow->next_active)
        for (way = 0; way < 2; ++way) {
            cdp__post *post = flow->first[way], *late = post;
            while (post && post->deadline_ns > now)
                post = post->next;
            if (!post) continue;
            g->late_ms = post->timeout_ms;
            cdp__post_begin_if(flow, late, way == 1);
            cdp__group_late(g, &late->x, &late->call, cdp__flow_channel(flow, way == 1));
            return true;
        }
    return false;
}

/* Nothing moves: reads from peers that this rank only sends to, which may have failed. */
CDP__PRIVATE cdp__advance cdp__flows_stuck(cdp_group *g, uint64_t now) {
    cdp__flow *flow;
    if (now < g->poll_peers_ns) return CDP__BLOCKED;
    g->poll_peers_ns = now + CDP__POLL_PEERS_MS * CDP__MS;
    for (flow = g->active_flows; flow && g->health == CDP__HEALTHY; flow = flow->next_active)
        if (flow->first[0] && !flow->first[1] && !flow->s.body_left
            && cdp__port_pump(g->w, flow->s.peer, NULL) < 0 && g->health == CDP__HEALTHY)
            cdp__post_fail(flow, flow->first[0]);
    if (g->health == CDP__HEALTHY && g->channel != CDP__WORLD_CHANNEL)
        (void)cdp__group_poll_peers(g);
    return g->health == CDP__HEALTHY ? CDP__BLOCKED : CDP__MOVED;
}

/* Updates the wait records of the oldest send and the oldest receive of a flow: if it has moved
   data since the last call, the old wait is over and a new one begins. */
CDP__PRIVATE void cdp__flow_waits(cdp__flow *flow) {
    uint32_t way;
    for (way = 0; way < 2; ++way) {
        cdp__post *post = flow->first[way];
        cdp__position at;
        if (!post) continue;
        memset(&at, 0, sizeof at);
        at.channel = cdp__flow_channel(flow, way == 1);
        at.seq = post->call.seq;
        if (post->seen != post->x.moved + 1 && flow->g->w->failure.waited)
            cdp__wait_ended(flow->g, at.channel, at.seq, 0);
        cdp__wait_long(flow->g, &at, flow->s.peer, post->start_ns, false);
        post->seen = post->x.moved + 1;
    }
}

/* Updates the wait records of all flows. Returns after which time to do that again. */
CDP__PRIVATE uint64_t cdp__flows_waits(cdp_group *g) {
    uint64_t period = CDP__NEVER;
    cdp__flow *flow;
    uint32_t way;
    for (flow = g->active_flows; flow; flow = flow->next_active) {
        cdp__flow_waits(flow);
        for (way = 0; way < 2; ++way)
            if (flow->first[way])
                period = cdp__min(period, cdp__failure_period_ns(flow->first[way]->timeout_ms));
    }
    return period;
}

/* Appends a send or a receive to the queue of its flow. Lock held. */
CDP__PRIVATE cdp_status cdp__flow_post(cdp__flow *flow, const cdp_transfer *t,
    void (*done)(void *, uint64_t, uint64_t), void *user, cdp_work *out) {
    const uint32_t way = t->receive ? 1 : 0;
    cdp_group *g = flow->g;
    cdp__post *post = cdp__post_take(g);
    const uint64_t now = cdp__now(g->os);
    if (!g->past_messages)
        g->past_messages =
            (cdp__past *)cdp__alloc_zero(g->os, g->desc.records * sizeof *g->past_messages);
    if (!post) return cdp__fail_nomem("a message", sizeof *post + sizeof *flow);
    memset(&post->call, 0, sizeof post->call);
    post->call.kind = CDP_COLL_SEND;
    post->call.dtype = (uint8_t)t->dtype;
    post->call.op = CDP_REDUCE_SUM;
    post->call.count = t->count;
    post->call.root = flow->tag;
    post->call.seq = ++flow->count[way];
    post->timeout_ms = (uint32_t)cdp__def(t->timeout_ms, g->desc.timeout_ms);
    post->start_ns = now;
    post->deadline_ns =
        post->timeout_ms == CDP_NO_TIMEOUT ? CDP__NEVER : now + post->timeout_ms * CDP__MS;
    post->got = t->receive ? t->got : NULL;
    post->done = done;
    post->user = user;
    post->begun = false;
    cdp__transfer_reset(&post->x);
    post->x.s = &flow->s;
    post->x.receive = t->receive;
    post->x.data = (uint8_t *)t->data;
    post->x.row = post->x.step = 0;
    if (t->row) {
        post->x.row = t->row * cdp_dtype_size(t->dtype);
        post->x.step = t->step * cdp_dtype_size(t->dtype);
    }
    post->rendezvous = t->rendezvous;
    if (flow->last[way])
        flow->last[way]->next = post;
    else
        flow->first[way] = post;
    flow->last[way] = post;
    out->group = g;
    out->seq = CDP__POST_BIT | post->use << CDP__POST_INDEX | post->index;
    post->seen = 1;
    g->wait_ns = cdp__min(g->wait_ns, now + cdp__failure_period_ns(post->timeout_ms));
    g->soonest_ns = cdp__min(g->soonest_ns, post->deadline_ns);
    if (!flow->active && !g->exec.running) g->poll_peers_ns = now + CDP__POLL_PEERS_MS * CDP__MS;
    cdp__flow_activate(flow);
    cdp__group_activate(g);
    return CDP_OK;
}

/* True if any bytes of the message were sent or received. */
CDP__PRIVATE bool cdp__post_moved(const cdp__flow *flow, const cdp__post *post, uint32_t way) {
    const cdp__stream *s = &flow->s;
    if (!post->begun || flow->first[way] != post) return false;
    if (post->x.moved || post->x.done || post->x.returned) return true;
    if (post->x.remote && (way || post->x.announced)) return true;
    if (!way) return flow->g->w->ports[s->peer].tx_stream == s;
    return s->body_left || s->early_used;
}

/* Cancels a message of which no bytes have moved, and removes it from its queue. Lock held. */
CDP__PRIVATE cdp_status cdp__post_cancel(cdp_group *g, uint64_t seq) {
    cdp__post *post = g->posts[seq & ((1u << CDP__POST_INDEX) - 1)];
    cdp__flow *flow = (cdp__flow *)post->x.s;
    const uint32_t way = post->x.receive ? 1 : 0;
    cdp__post **at = &flow->first[way], *last = NULL;
    if (cdp__post_moved(flow, post, way))
        return cdp__fail(
            CDP_ERR_STATE, "cdp_work_cancel: the message has begun to move; wait for it");
    for (; *at && *at != post; at = &last->next)
        last = *at;
    CDP_ASSERT(*at == post);
    cdp__transfer_revoke(g->w, &post->x);
    *at = post->next;
    cdp__wait_ended(g, cdp__flow_channel(flow, way == 1), post->call.seq, 0);
    if (!post->next) flow->last[way] = last;
    for (; *at; at = &(*at)->next)
        --(*at)->call.seq;
    --flow->count[way];
    cdp__post_give(g, post, true);
    ++g->w->arrivals;
    return CDP_OK;
}

/* True if a message from rank p has arrived that no posted receive will take. */
CDP__PRIVATE bool cdp__flow_peek(const cdp_group *g, uint32_t p, uint32_t tag, cdp__head *h) {
    const uint64_t channel = cdp__message_channel(g, tag);
    cdp__stream *s = cdp__stream_find(g->w, channel, cdp__world_rank(g, p));
    cdp__stream none;
    if (s && !s->unexpected && ((cdp__flow *)s)->first[1]) return false;
    if (s) return cdp__stream_peek(g->w, s, h);
    /* a message in a slot can be found without a stream */
    memset(&none, 0, sizeof none);
    none.channel = channel;
    none.peer = cdp__world_rank(g, p);
    return cdp__stream_peek(g->w, &none, h);
}

/* Ends all sends and receives of a flow without notifying the peer; the caller owns their memory
   again. Lock held. */
CDP__PRIVATE void cdp__flow_stop(cdp__flow *flow) {
    cdp_group *g = flow->g;
    cdp__port *port = &g->w->ports[flow->s.peer];
    uint32_t way;
    if (port->tx_stream == &flow->s) {
        /* the receiver may need only these bytes; after a failure they belong to the caller */
        const cdp__transfer *x = flow->first[0] ? &flow->first[0]->x : NULL;
        if (x && g->health == CDP__HEALTHY)
            cdp__port_keep(g->w, flow->s.peer, x->data ? x->data + x->moved : NULL);
        cdp__port_abandon(port);
    }
    for (way = 0; way < 2; ++way) {
        while (flow->first[way]) {
            cdp__post *post = flow->first[way];
            cdp__transfer_revoke(g->w, &post->x);
            flow->first[way] = post->next;
            cdp__post_give(g, post, true);
        }
        flow->last[way] = NULL;
    }
}

/* Removes a flow whose group lives on. Lock held. */
CDP__PRIVATE void cdp__flow_drop(cdp__flow *flow) {
    cdp_group *g = flow->g;
    cdp__flow **at;
    cdp__flow_stop(flow);
    for (at = &g->active_flows; *at && *at != flow; at = &(*at)->next_active) {
    }
    if (*at) *at = flow->next_active;
    for (at = &g->flows; *at && *at != flow; at = &(*at)->next) {
    }
    if (*at) *at = flow->next;
    cdp__stream_close(g->w, &flow->s, true);
    cdp__world_gone(g->w, flow->s.channel);
    cdp__free(g->os, flow);
}

/* Closes all flows of a group. Lock held. */
CDP__PRIVATE void cdp__flows_close(cdp_group *g, bool tell) {
    cdp__world *w = g->w;
    uint32_t i;
    while (g->flows) {
        cdp__flow *flow = g->flows;
        g->flows = flow->next;
        cdp__flow_stop(flow);
        cdp__stream_close(w, &flow->s, tell);
        cdp__world_gone(w, flow->s.channel);
        cdp__free(w->os, flow);
    }
    for (i = 0; i < g->post_count; ++i)
        cdp__free(w->os, g->posts[i]);
    cdp__free(w->os, g->posts);
    cdp__free(w->os, g->past_messages);
    g->active_flows = NULL;
    g->posts = NULL;
    g->past_messages = NULL;
    g->post_count = 0;
}

#else

/* In builds without messages no flow exists, so `active_flows` stays empty. */
CDP__PRIVATE cdp__advance cdp__flows_poll(cdp_group *g) {
    (void)g;
    return CDP__IDLE;
}
CDP__PRIVATE bool cdp__flows_due(cdp_group *g, uint64_t now) {
    (void)g;
    (void)now;
    return false;
}
CDP__PRIVATE cdp__advance cdp__flows_stuck(cdp_group *g, uint64_t now) {
    (void)g;
    (void)now;
    return CDP__BLOCKED;
}
CDP__PRIVATE cdp_status cdp__post_cancel(cdp_group *g, uint64_t seq) {
    (void)g;
    (void)seq;
    return CDP_ERR_STATE;
}
CDP__PRIVATE void cdp__flows_close(cdp_group *g, bool tell) {
    (void)g;
    (void)tell;
}

CDP__PRIVATE uint64_t cdp__flows_waits(cdp_group *g) {
    (void)g;
    return CDP__NEVER;
}

#endif /* CDP_NO_MESSAGES */

/* ---- >>group/running: runs the operations of a group ----------------------------------------- */

/* Knows: the queue of a group, its executor. Promises: operations run one after the other, in the
   order of the calls; each completes, or its group has failed, by its deadline. */

/* Stands for a work that ends when the world has nothing left to do. */
#define CDP__ALL_WORK UINT64_MAX

CDP__PRIVATE cdp_status cdp__failed_status(const cdp_group *g) {
    return g->health == CDP__FAILED && g->settle_ns == CDP__NEVER ? g->error.status : CDP_PENDING;
}

/* The status of use number `use` of a pool entry. */
CDP__PRIVATE cdp_status cdp__use_status(
    const cdp_group *g, uint64_t now_used, uint64_t use, uint64_t cancelled) {
    if (now_used == use) return cdp__failed_status(g);
    return now_used - use <= 64 && cancelled >> (now_used - 1 - use) & 1 ? CDP_ERR_ABORTED : CDP_OK;
}

CDP__PRIVATE cdp_status cdp__deferred_status(const cdp_group *g, uint64_t seq) {
    const uint64_t use = seq >> 16 & ((1ull << 47) - 1), index = seq & 0xffff;
    if (!g->deferred || index >= g->desc.max_pending) return cdp__failed_status(g);
    return cdp__use_status(g, g->deferred[index].use, use, g->deferred[index].cancelled);
}

CDP__PRIVATE cdp_status cdp__post_status(const cdp_group *g, uint64_t seq) {
    const uint64_t index = seq & ((1u << CDP__POST_INDEX) - 1);
    const uint64_t use = (seq & ~CDP__POST_BIT) >> CDP__POST_INDEX;
    if (index >= g->post_count) return cdp__failed_status(g);
    return cdp__use_status(g, g->posts[index]->use, use, g->posts[index]->cancelled);
}

CDP__PRIVATE cdp_status cdp__device_status(const cdp_group *g, uint64_t seq) {
    cdp_status st = CDP_PENDING;
    /* a thread that waits receives the cause */
    if (g->health == CDP__FAILED) return g->error.status;
    if (cdp__backend_of(g)) st = g->backend->wait(g->backend->self, seq & ~CDP__DEVICE_BIT, 0);
    return st == CDP_OK ? st : CDP_PENDING;
}

/* True if this work was started in this group. */
CDP__PRIVATE bool cdp__work_exists(const cdp_group *g, uint64_t seq) {
    if (seq & CDP__DEFERRED_BIT) {
        const uint64_t use = seq >> 16 & ((1ull << 47) - 1), index = seq & 0xffff;
        const cdp__deferred *s = g->deferred ? g->deferred + index : NULL;
        if (!s || index >= g->desc.max_pending) return false;
        return use < s->use || (use == s->use && s->kind != CDP__DEFERRED_FREE);
    }
    if (seq & CDP__DEVICE_BIT) return true; /* only the backend can tell */
    if (seq & CDP__POST_BIT) {
        const uint64_t index = seq & ((1u << CDP__POST_INDEX) - 1);
        const uint64_t use = (seq & ~CDP__POST_BIT) >> CDP__POST_INDEX;
        const cdp__post *post = index < g->post_count ? g->posts[index] : NULL;
        return post && (use < post->use || (use == post->use && post->taken));
    }
    return seq <= g->issued;
}

/* How many bytes of an operation's output, counted from its beginning, have arrived. 0: not
   known. */
CDP__PRIVATE uint64_t cdp__op_arrived(const cdp_group *g, uint64_t seq) {
    return g->completed + 1 == seq && g->exec.running ? cdp__exec_arrived(&g->exec) : 0;
}

/* OK, PENDING or the error of the failure; does not change the thread's last error. While a
   failure is being passed on, the operation's memory is still in use, so the result is PENDING. */
CDP__PRIVATE cdp_status cdp__work_status(const cdp_group *g, uint64_t seq) {
    if (seq == CDP__ALL_WORK)
        return !g->w->active && !g->w->pending ? CDP_OK : cdp__failed_status(g);
    if (seq & CDP__DEFERRED_BIT) return cdp__deferred_status(g, seq);
    if (seq & CDP__DEVICE_BIT) return cdp__device_status(g, seq);
    if (seq & CDP__POST_BIT) return cdp__post_status(g, seq);
    return g->completed >= seq ? CDP_OK : cdp__failed_status(g);
}

/* The bytes that the choice of an algorithm depends on. Parts of an uneven alltoall differ by
   rank, so they count as infinitely long. */
CDP__PRIVATE uint64_t cdp__op_bytes(const cdp_group *g, const cdp__op *op) {
    const cdp_request *rq = &op->rq;
    const uint32_t n = g->desc.world_size;
    const uint64_t size = cdp_dtype_size(rq->dtype);
    if (rq->in_counts && rq->out_counts) return UINT64_MAX;
    if (rq->in_counts) return op->offs[n] * size;
    if (rq->out_counts) return op->offs[2 * n + 1] * size;
    return rq->count * size * (cdp__kind_has_parts(rq->kind) ? n : 1);
}

CDP__PRIVATE uint8_t cdp__op_algo(const cdp_group *g, const cdp__op *op) {
    const cdp_coll_kind kind = op->device ? CDP_COLL_BARRIER : op->rq.kind;
    const uint64_t bytes = op->device ? 0 : cdp__op_bytes(g, op);
    return (uint8_t)cdp__select(&g->w->choosing, kind, bytes, g->desc.world_size, g->is);
}

/* The shape of an operation, from which its algorithm is chosen. */

CDP__PRIVATE void cdp__op_shape(const cdp_group *g, const cdp__op *op, cdp__shape *s) {
    const cdp_request *rq = &op->rq;
    memset(s, 0, sizeof *s); /* clears the padding: shapes are compared as bytes */
    s->kind = rq->kind;
    s->op = rq->op;
    s->rank = g->desc.rank;
    s->size = g->desc.world_size;
    s->root = rq->root;
    s->count = rq->count;
    s->hosts = &g->hosts;
    s->in_place = !rq->in || rq->in == rq->out;
    s->in_offs = rq->in_counts ? op->offs : NULL;
    s->out_offs = rq->out_counts ? op->offs + s->size + 1 : NULL;
    if (!op->device) return;
    s->kind = CDP_COLL_BARRIER;
    s->count = s->root = 0;
    s->in_offs = s->out_offs = NULL;
}

/* Begins the first operation of the queue. */
CDP__PRIVATE void cdp__group_begin(cdp_group *g) {
    cdp__op *op = cdp__group_head(g);
    cdp__past *past = cdp__past_at(g, op->seq);
    cdp__task task;
    bool again;
    memset(&task, 0, sizeof task);
    cdp__op_shape(g, op, &task.shape);
    again = !op->parts && cdp__exec_like(&g->exec, &task.shape, cdp_dtype_size(op->rq.dtype));
    task.call = cdp__op_call(op);
    task.call.algo = again ? g->exec.task.call.algo : cdp__op_algo(g, op);
    task.in = op->rq.in;
    task.out = op->rq.out;
    task.factor = op->rq.factor;
    memset(past, 0, sizeof *past);
    past->call = task.call;
    past->from = past->to = -1;
    /* until now it was queued behind others */
    if (!op->start_ns) op->start_ns = cdp__now(g->os);
    past->start_ns = op->start_ns;
    g->wait_ns = cdp__min(g->wait_ns, op->start_ns + cdp__failure_period_ns(op->rq.timeout_ms));
    g->seen_moved = 0;
    g->seen_round = 0;
    g->poll_peers_ns = g->channel == CDP__WORLD_CHANNEL || g->desc.world_size < 3
        ? CDP__NEVER
        : op->start_ns + CDP__POLL_PEERS_MS * CDP__MS;
    g->revoke_ns = CDP__NEVER;
    cdp__exec_begin(&g->exec, &task, again);
    past->rounds = g->exec.rounds;
}

/* True if a deadline has passed. Recomputes the earliest deadline, which may be that of an
   operation that is done. */
CDP__PRIVATE bool cdp__group_due(cdp_group *g, uint64_t now) {
    const cdp__flow *flow;
    const cdp__post *post;
    uint32_t i;
    if (now < g->soonest_ns) return false;
    g->soonest_ns = CDP__NEVER;
    for (i = 0; i < g->queue_used; ++i)
        g->soonest_ns =
            cdp__min(g->soonest_ns, g->queue[(g->queue_at + i) % g->queue_room].deadline_ns);
    for (flow = g->active_flows; flow; flow = flow->next_active)
        for (i = 0; i < 2; ++i)
            for (post = flow->first[i]; post; post = post->next)
                g->soonest_ns = cdp__min(g->soonest_ns, post->deadline_ns);
    return now >= g->soonest_ns;
}

CDP__PRIVATE void cdp__group_complete(cdp_group *g) {
    const cdp__op op = *cdp__group_head(g);
    const uint64_t now = cdp__now(g->os);
    cdp__past *past = cdp__past_at(g, op.seq);
    if (g->w->failure.waited || g->w->failure.waiting) cdp__wait_done(g, g->channel, op.seq + 1);
    if (g->w->failure.report_count) cdp__group_continued(g, op.start_ns);
    past->end_ns = now;
    past->round = g->exec.round;
    g->queue_at = (g->queue_at + 1) % g->queue_room;
    --g->queue_used;
    g->completed = op.seq;
    if (!g->queue_used && !g->active_flows) g->soonest_ns = CDP__NEVER;
    g->poll_peers_ns = 0;
    if (op.done) op.done(op.user, op.start_ns, now);
    cdp__group_ended(g);
}

/* The deadline of the first operation, or of one queued behind it, has passed. */
CDP__PRIVATE void cdp__group_fail_timeout(cdp_group *g, uint64_t now) {
    const cdp__transfer *late = cdp__exec_late(&g->exec);
    const cdp__op *op = cdp__group_head(g);
    uint32_t i;
    for (i = 0; i < g->queue_used && op->deadline_ns > now; ++i)
        op = &g->queue[(g->queue_at + i) % g->queue_room];
    g->late_ms = op->rq.timeout_ms;
    if (late) {
        cdp__group_late(g, late, &g->exec.task.call, g->channel);
        return;
    }
    cdp__fail(CDP_ERR_TIMEOUT, "the deadline of %u ms passed before the operation could start",
        g->late_ms);
    cdp__group_fail(g, cdp_last_error(), true);
}

/* Turns a fault of the executor into a failure of the group. */
CDP__PRIVATE void cdp__group_fault(cdp_group *g) {
    const cdp__exec *x = &g->exec;
    if (x->fault == CDP__FAULT_LOST) cdp__group_lost(g, x->fault_rank);
    if (x->fault == CDP__FAULT_MISMATCH) cdp__group_fail_mismatch(g, x->fault_rank, &x->theirs);
    if (x->fault == CDP__FAULT_NOMEM) cdp__group_fail_last(g);
}

/* Called when nothing moves: sends exposed payloads that are not being read, and reads from
   other peers, each when its time has come. */
CDP__PRIVATE cdp__advance cdp__group_stuck(cdp_group *g, uint64_t now) {
    if (g->exec.exposing && g->revoke_ns == CDP__NEVER)
        g->revoke_ns = now + CDP__REVOKE_MS * CDP__MS;
    if (now >= g->revoke_ns) {
        g->revoke_ns = CDP__NEVER;
        g->exec.exposing = false;
        if (cdp__exec_try_revoke(&g->exec)) return CDP__MOVED;
    }
    if (now >= g->poll_peers_ns) {
        g->poll_peers_ns = now + CDP__POLL_PEERS_MS * CDP__MS;
        if (cdp__group_poll_peers(g)) return CDP__MOVED;
    }
    return CDP__BLOCKED;
}

/* The first operation must start after a work of this or another group. True if it may begin. */
CDP__PRIVATE bool cdp__group_gate(cdp_group *g, uint64_t now) {
    cdp__op *op = cdp__group_head(g);
    const cdp_group *other = op->after.group;
    const cdp_status st = cdp__work_status(other, op->after.seq);
    if (st == CDP_OK) {
        op->after.group = NULL;
        return true;
    }
    if (st != CDP_PENDING) {
        if (other->health == CDP__FAILED)
            cdp__fail_peer(st, other->error.peer, 0,
                "the work that this one was to follow has failed: %s", other->error.text);
        else
            cdp__fail(st, "the work that this one was to follow was cancelled");
        cdp__group_fail_last(g);
    } else if (g->channel != CDP__WORLD_CHANNEL && now >= g->poll_peers_ns) {
        g->poll_peers_ns = now + CDP__POLL_PEERS_MS * CDP__MS;
        (void)cdp__group_poll_peers(g);
    }
    return false;
}

/* Begins the first operation of the queue, if none runs and it may begin. IDLE: the queue is empty;
   BLOCKED: the operation must still wait for another work. */
CDP__PRIVATE cdp__advance cdp__queue_begin(cdp_group *g) {
    if (g->exec.running) return CDP__MOVED;
    if (!g->queue_used) return CDP__IDLE;
    if (cdp__group_head(g)->after.group && !cdp__group_gate(g, cdp__now(g->os)))
        return g->health == CDP__HEALTHY ? CDP__BLOCKED : CDP__MOVED;
    cdp__group_begin(g);
    return CDP__MOVED;
}

/* The running operation was polled, with this result: it may have ended, or failed. */
CDP__PRIVATE cdp__advance cdp__queue_polled(cdp_group *g, cdp__advance polled) {
    if (g->health != CDP__HEALTHY) return CDP__MOVED;
    if (g->exec.fault != CDP__FAULT_NONE) {
        cdp__group_fault(g);
        return CDP__MOVED;
    }
    if (g->exec.running) return polled;
    cdp__group_complete(g);
    return CDP__MOVED;
}

/* Reports waits of the running operation: that the last wait is over if data has moved since
   and, if `look`, the current one. `tick`: the wait is long, so peers may compare calls. */
CDP__PRIVATE void cdp__queue_waits(cdp_group *g, bool look, bool tick) {
    const cdp__transfer *late = cdp__exec_late(&g->exec);
    const bool same = late && g->seen_round == g->exec.round && g->seen_moved == late->moved;
    const cdp__op *op = cdp__group_head(g);
    cdp__position at;
    memset(&at, 0, sizeof at);
    at.channel = g->channel;
    at.seq = op->seq;
    at.round = g->exec.round;
    if (!same && g->w->failure.waited) cdp__wait_ended(g, at.channel, at.seq, at.round);
    if (!late) return;
    if (look)
        cdp__wait_long(g, &at, late->s->peer, op->start_ns, tick && late->receive && !late->moved);
    g->seen_round = g->exec.round;
    g->seen_moved = late->moved;
}

/* Called when nothing moves: reports long waits, or all waits if other ranks wait for this one.
   True: poll again. */
CDP__PRIVATE bool cdp__group_waits(cdp_group *g, uint64_t now) {
    const bool tick = now >= g->wait_ns;
    cdp__world *w = g->w;
    const bool look = tick || w->failure.waiting || cdp__group_settling(g);
    uint64_t period = CDP__FAILURE_WAIT_MS * CDP__MS;
    uint32_t i;
    if (look) period = cdp__min(period, cdp__flows_waits(g));
    if (g->exec.running && g->queue_used) {
        cdp__queue_waits(g, look, tick);
        period = cdp__min(period, cdp__failure_period_ns(cdp__group_head(g)->rq.timeout_ms));
    }
    if (tick) {
        /* from the last check, or from the beginning of the latest wait */
        g->wait_ns = now + period;
        for (i = 0; i < g->exec.transfer_count && g->exec.running; ++i)
            if (cdp__exec_check_receiver(&g->exec, i)) {
                cdp__group_fault(g);
                return true;
            }
        if (g->health != CDP__HEALTHY || cdp__group_poll_peers(g)) return true;
    }
    cdp__world_answer(w);
    if (w->failure.waited) cdp__world_read_all(w);
    /* the messages just read may let this rank continue; then it does not answer now */
    return w->failure.outbox || g->health != CDP__HEALTHY;
}

/* True if a deadline has just passed: the group settles why, and is to be polled again. */
CDP__PRIVATE bool cdp__group_overdue(cdp_group *g, uint64_t now) {
    if (cdp__group_settling(g) || !cdp__group_due(g, now)) return false;
    if (!cdp__flows_due(g, now)) cdp__group_fail_timeout(g, now);
    return true;
}

/* A poll without a budget continues until nothing moves, and checks deadlines then. Polls with a
   budget may all end before that, so they check deadlines here, if this rank waits for a peer:
   between two rounds it does not. */
CDP__PRIVATE void cdp__group_moved(cdp_group *g) {
    if (!CDP__BUDGETS || !g->w->poll_until_ns || g->health != CDP__HEALTHY) return;
    if (!g->exec.running || cdp__exec_late(&g->exec)) (void)cdp__group_overdue(g, cdp__now(g->os));
}

/* Neither operations nor messages have moved. */
CDP__PRIVATE cdp__advance cdp__group_blocked(cdp_group *g) {
    const uint64_t now = cdp__now(g->os);
    if (cdp__group_overdue(g, now)) return CDP__MOVED;
    if (g->queue_used && g->exec.running && cdp__group_stuck(g, now) == CDP__MOVED)
        return CDP__MOVED;
    if ((now >= g->wait_ns || g->w->failure.waited || g->w->failure.outbox)
        && cdp__group_waits(g, now))
        return CDP__MOVED;
    return g->active_flows ? cdp__flows_stuck(g, now) : CDP__BLOCKED;
}

/* True if an operation, message or receive from any rank is late, in a group that fails together
   with `top`. */
CDP__PRIVATE bool cdp__domain_late(cdp_group *top, uint64_t now) {
    cdp_group *x;
    const cdp__deferred *s;
    for (x = top->w->groups; x; x = x->next)
        if (cdp__group_top(x) == top && (x->health != CDP__HEALTHY || cdp__group_due(x, now)))
            return true;
    for (s = top->w->pending; s; s = s->next)
        if (s->kind == CDP__DEFERRED_ANY && s->set && s->deadline_ns <= now
            && cdp__group_top(s->of) == top)
            return true;
    return false;
}

/* While a timeout settles, the late operation may still complete: then nothing has failed. */
CDP__PRIVATE cdp__advance cdp__group_settle_late(cdp_group *g, cdp__advance polled) {
    if (cdp__group_parent(g) || g->domain.state != CDP__FAILURE_SETTLING) return polled;
    if (!cdp__domain_late(g, cdp__now(g->os))) {
        cdp__domain_step(g->w, g, CDP__FAILURE_RESUMED, g->w->rank, NULL, false);
        if (g->domain.state == CDP__FAILURE_HEALTHY) return polled;
    }
    cdp__group_settle(g);
    if (g->health != CDP__HEALTHY) return CDP__MOVED;
    return polled == CDP__IDLE ? CDP__BLOCKED : polled;
}

/* A poll with a budget ended among these messages: the next one begins with another flow. */
CDP__PRIVATE void cdp__flows_turn(cdp_group *g) {
    cdp__flow *first = g->active_flows, **at = &g->active_flows;
    if (!first || !first->next_active) return;
    *at = first->next_active;
    first->next_active = NULL;
    while (*at)
        at = &(*at)->next_active;
    *at = first;
}

/* Polls everything once. Never blocks; allocates only for the first operation of a size. */
CDP__PRIVATE cdp__advance cdp__group_poll(cdp_group *g) {
    cdp__advance polled, flows = CDP__IDLE;
    if (g->health != CDP__HEALTHY) cdp__poll_extend(g->w);
    if (g->health == CDP__SETTLING) cdp__group_drain_all(g);
    if (g->health == CDP__SETTLING && !cdp__group_parent(g)) cdp__group_settle(g);
    if (g->health == CDP__SETTLING) return CDP__BLOCKED;
    if (g->health == CDP__FAILED) {
        if (cdp__group_reporting(g, cdp__now(g->os))) return CDP__BLOCKED;
        cdp__group_reported(g);
        return CDP__IDLE;
    }
    polled = cdp__queue_begin(g);
    if (g->exec.running) polled = cdp__queue_polled(g, cdp__exec_poll(&g->exec));
    if (g->active_flows && g->health == CDP__HEALTHY) flows = cdp__flows_poll(g);
    if (flows > polled) polled = flows;
    if (CDP__BUDGETS && g->w->cut) cdp__flows_turn(g);
    if (g->health == CDP__HEALTHY) polled = cdp__group_settle_late(g, polled);
    if (g->health != CDP__HEALTHY && polled == CDP__BLOCKED) return CDP__MOVED;
    if (polled == CDP__MOVED) cdp__group_moved(g);
    if (polled != CDP__BLOCKED || g->w->fast_poll || g->w->cut) return polled;
    return cdp__group_blocked(g);
}

/* The next moment that matters while settling: the last chance to store the end of a wait, the
   last chance to ask, or the end. */
CDP__PRIVATE uint64_t cdp__group_settle_end(const cdp_group *g) {
    const cdp__failure_domain *d = &(cdp__group_parent(g) ? cdp__group_parent(g) : g)->domain;
    const uint64_t now = cdp__now(g->os), little = 2 * CDP__MS;
    const uint64_t share = cdp__failure_share_ns(&d->record, CDP__FAILURE_SETTLE_MS);
    if (now + share / 8 + little < d->due_ns) return d->due_ns - share / 8 - little;
    return now + little < d->due_ns ? d->due_ns - little : d->due_ns;
}

/* When the group must be polled again even if no data arrives. */
CDP__PRIVATE uint64_t cdp__group_deadline(const cdp_group *g) {
    uint64_t at = cdp__group_settling(g) ? cdp__group_settle_end(g) : g->soonest_ns;
    if (g->w->failure.outbox) at = 0;
    if (g->health == CDP__SETTLING && cdp__group_parent(g))
        return CDP__NEVER; /* the parent settles */
    if (g->health == CDP__FAILED && g->settle_ns != CDP__NEVER && g->answer_ns) return g->answer_ns;
    if (g->health == CDP__SETTLING) return cdp__group_settle_end(g);
    if (g->health != CDP__HEALTHY) return g->settle_ns;
    if (g->active_flows) at = cdp__min(at, cdp__min(g->wait_ns, g->poll_peers_ns));
    if (g->exec.running)
        return cdp__min(cdp__min(at, g->revoke_ns), cdp__min(g->wait_ns, g->poll_peers_ns));
    return g->channel != CDP__WORLD_CHANNEL ? cdp__min(at, g->poll_peers_ns) : at;
}

/* ---- >>group/hub: the in-process transport --------------------------------------------------- */

/* Knows: the lines of >>message/fabric between threads of one process, in memory of the os's
   allocator. Promises: what cdp_transport asks for; peers read exposed memory in place. Without
   condition variables, as when one thread polls all ranks in turn, a wait sleeps briefly, so
   that other ranks run. */

#ifndef CDP_NO_HUB

/* The state of one rank that all ranks share. */
typedef struct cdp__hub_rank {
    cdp__doorbell bell; /* one doorbell for all its lines */
    cdp_lock lock;      /* guards the owner's sleep */
    void *cond;
    uint32_t left, taken; /* (atomic) */
} cdp__hub_rank;

struct cdp_hub {
    cdp_hub_desc desc;
    const cdp_os *os;
    cdp__way **ways; /* [from * world_size + to], made on first use (atomic) */
    cdp__hub_rank *ranks;
    cdp_lock cause_lock;
    uint8_t cause[CDP__FAILURE_MAX]; /* the first record of any rank */
    uint32_t cause_bytes;            /* 0: none yet */
    uint32_t broken;                 /* a record exists: every rank must be told (atomic) */
};

typedef struct cdp__hub_end {
    cdp_hub *hub;
    cdp__line **lines; /* by peer, made on first use */
    uint32_t rank;
    uint32_t seen[2]; /* counts of its doorbell when last polled */
    bool broken_seen; /* this rank's group was told that there is a record */
    /* the rank has joined, so destroying this end means that it leaves; false after an invalid
       desc, so that the rank may try again */
    bool made;
} cdp__hub_end;

/* Two threads may create the same way at once; the one that loses the race frees its own. */
CDP__PRIVATE cdp__way *cdp__hub_way(cdp_hub *h, uint32_t from, uint32_t to, bool make) {
    cdp__way **place = &h->ways[(uint64_t)from * h->desc.world_size + to];
    cdp__way *way = (cdp__way *)cdp__atomic_load_ptr(place, CDP__ACQUIRE), *expected = NULL;
    if (way || !make) return way;
    way = (cdp__way *)cdp__alloc(h->os, sizeof *way + h->desc.ring_bytes);
    if (!way) {
        cdp__fail_nomem("the ring between two ranks of a hub", sizeof *way + h->desc.ring_bytes);
        return NULL;
    }
    memset(way, 0, sizeof *way);
    if (cdp__atomic_cas_ptr(place, &expected, way, CDP__ACQ_REL, CDP__ACQUIRE)) return way;
    cdp__free(h->os, way);
    return expected;
}

CDP__PRIVATE void cdp__hub_wake_rank(const cdp_hub *h, cdp__hub_rank *r) {
    if (!r->cond) return;
    cdp_lock_acquire(&r->lock);
    h->os->threads.cond_broadcast(h->os->user, r->cond);
    cdp_lock_release(&r->lock);
}

CDP__PRIVATE void cdp__hub_wake_peer(cdp__line *l) {
    cdp_hub *h = (cdp_hub *)l->owner;
    cdp__hub_wake_rank(h, &h->ranks[l->peer]);
}

CDP__PRIVATE void cdp__hub_ring(cdp_hub *h, uint32_t rank) {
    if (cdp__doorbell_ring(&h->ranks[rank].bell, CDP__BELL_DATA))
        cdp__hub_wake_rank(h, &h->ranks[rank]);
}

CDP__PRIVATE void cdp__hub_ring_all(cdp_hub *h) {
    uint32_t r;
    for (r = 0; r < h->desc.world_size; ++r)
        cdp__hub_ring(h, r);
}

CDP__PRIVATE cdp__line *cdp__hub_line_make(cdp__hub_end *e, uint32_t peer) {
    cdp_hub *h = e->hub;
    cdp__line *l = (cdp__line *)cdp__alloc_zero(h->os, sizeof *l);
    if (!l) {
        cdp__fail_nomem("a line between two ranks of a hub", sizeof *l);
        return NULL;
    }
    l->size = h->desc.ring_bytes;
    l->same_process = true;
    l->theirs = &h->ranks[peer].bell;
    l->wake = cdp__hub_wake_peer;
    l->owner = h;
    l->peer = peer;
    return e->lines[peer] = l;
}

/* The line to a peer, whose way in this direction exists. NULL: out of memory or, unless `make`
   is set, neither side has created the way. */
CDP__PRIVATE cdp__line *cdp__hub_line(cdp__hub_end *e, uint32_t peer, bool outgoing, bool make) {
    cdp__line *l = e->lines[peer];
    cdp__way *way = NULL;
    if (l) way = outgoing ? l->out : l->in;
    if (way) return l;
    way = cdp__hub_way(e->hub, outgoing ? e->rank : peer, outgoing ? peer : e->rank, make);
    if (!way || (!l && !(l = cdp__hub_line_make(e, peer)))) return NULL;
    *(outgoing ? &l->out : &l->in) = way;
    return l;
}

CDP__PRIVATE bool cdp__hub_left(const cdp__hub_end *e, uint32_t peer) {
    return cdp__atomic_load_u32(&e->hub->ranks[peer].left, CDP__ACQUIRE) != 0;
}

CDP__PRIVATE int64_t cdp__hub_move(
    cdp__hub_end *e, uint32_t peer, const cdp_iov *v, uint32_t n, bool sending) {
    cdp__line *l = cdp__hub_line(e, peer, sending, true);
    /* read before the ring, because data that the peer wrote before it left is still valid */
    const bool left = cdp__hub_left(e, peer);
    int64_t moved;
    if (!l) return CDP_ERR_NOMEM;
    moved = sending && left ? 0 : cdp__line_move(l, v, n, sending);
    CDP_ASSERT(moved >= 0); /* threads of one process store no invalid values */
    if (!moved && left)
        return cdp__fail_peer(CDP_ERR_PEER_LOST, peer, 0, "rank %u has left the group", peer);
    return moved;
}

CDP__PRIVATE int64_t cdp__hub_send(void *self, uint32_t peer, const cdp_iov *v, uint32_t n) {
    return cdp__hub_move((cdp__hub_end *)self, peer, v, n, true);
}

CDP__PRIVATE int64_t cdp__hub_recv(void *self, uint32_t peer, const cdp_iov *v, uint32_t n) {
    return cdp__hub_move((cdp__hub_end *)self, peer, v, n, false);
}

CDP__PRIVATE void *cdp__hub_slots(void *self, uint32_t peer, bool outgoing) {
    cdp__hub_end *e = (cdp__hub_end *)self;
    cdp__line *l = cdp__hub_line(e, peer, outgoing, false);
    if (!l || (outgoing && cdp__hub_left(e, peer))) return NULL;
    return outgoing ? &l->out->eager.slots : &l->in->eager.slots;
}

CDP__PRIVATE void cdp__hub_doorbell(void *self, uint32_t peer) {
    cdp__hub_ring(((cdp__hub_end *)self)->hub, peer);
}

CDP__PRIVATE bool cdp__hub_linked(void *self, uint32_t peer) {
    const cdp__hub_end *e = (const cdp__hub_end *)self;
    return cdp__hub_way(e->hub, peer, e->rank, false) != NULL;
}

/* Sleeps until the doorbell rings or the deadline. The lock guards only the sleep: a peer takes
   it after it has incremented the count, so no ring is lost between the last poll and the sleep. */
CDP__PRIVATE void cdp__hub_sleep(cdp__hub_end *e, uint64_t deadline_ns) {
    cdp__hub_rank *r = &e->hub->ranks[e->rank];
    const cdp_os *os = e->hub->os;
    if (!r->cond) {
        cdp__sleep_until(os, cdp__min(deadline_ns, os->now_ns(os->user) + CDP__MS / 10));
        return;
    }
    cdp_lock_acquire(&r->lock);
    /* again before each sleep: a peer that rang for an earlier one may clear `wants` only now */
    cdp__doorbell_arm(&r->bell, CDP__BELL_ALL);
    while (!cdp__doorbell_rung(&r->bell, e->seen, CDP__BELL_ALL)
        && os->now_ns(os->user) < deadline_ns) {
        os->threads.cond_wait(os->user, r->cond, r->lock.mutex, deadline_ns);
        cdp__doorbell_arm(&r->bell, CDP__BELL_ALL);
    }
    cdp_lock_release(&r->lock);
}

CDP__PRIVATE cdp_status cdp__hub_wait(void *self, cdp_lock *lock, uint64_t deadline_ns) {
    cdp__hub_end *e = (cdp__hub_end *)self;
    cdp__doorbell *bell = &e->hub->ranks[e->rank].bell;
    if (deadline_ns && !cdp__doorbell_rung(bell, e->seen, CDP__BELL_ALL)) {
        cdp_lock_release(lock);
        cdp__hub_sleep(e, deadline_ns);
        cdp_lock_acquire(lock);
    }
    cdp__doorbell_seen(bell, e->seen);
    if (e->broken_seen || !cdp__atomic_load_u32(&e->hub->broken, CDP__ACQUIRE)) return CDP_OK;
    e->broken_seen = true;
    /* cdp__hub_first() returns the record */
    return cdp__fail(CDP_ERR_PEER_LOST, "another rank has failed");
}

CDP__PRIVATE void cdp__hub_wake(void *self) {
    cdp__hub_end *e = (cdp__hub_end *)self;
    cdp__hub_ring(e->hub, e->rank);
}

CDP__PRIVATE bool cdp__hub_expose(
    void *self, uint32_t peer, const void *data, uint64_t bytes, bool fresh, uint64_t *token) {
    cdp__line *l = cdp__hub_line((cdp__hub_end *)self, peer, true, true);
    (void)fresh;
    return l && cdp__line_expose(l, data, bytes, 0, 0, token);
}

CDP__PRIVATE void cdp__hub_revoke(void *self, uint32_t peer, uint64_t token) {
    const cdp__hub_end *e = (const cdp__hub_end *)self;
    const cdp_os *os = e->hub->os;
    while (!cdp__line_revoke(e->lines[peer], token))
        if (os->threads.yield) os->threads.yield(os->user);
}

CDP__PRIVATE bool cdp__hub_try_revoke(void *self, uint32_t peer, uint64_t token) {
    return cdp__line_try_revoke(((cdp__hub_end *)self)->lines[peer], token);
}

CDP__PRIVATE uint32_t cdp__hub_host(void *self, uint32_t peer) {
    (void)self;
    (void)peer;
    return 0;
}

CDP__PRIVATE const void *cdp__hub_map(void *self, uint32_t peer, uint64_t token, uint64_t bytes) {
    cdp__line *l = cdp__hub_line((cdp__hub_end *)self, peer, false, false);
    cdp__exposure e;
    if (!l || !cdp__line_read_begin(l, token, &e)) return NULL;
    if (e.bytes == bytes) return (const void *)(uintptr_t)e.at;
    (void)cdp__line_read_end(l, token);
    return NULL;
}

CDP__PRIVATE bool cdp__hub_unmap(void *self, uint32_t peer, uint64_t token) {
    return cdp__line_read_end(((cdp__hub_end *)self)->lines[peer], token);
}

/* Returns the failure record that the first failing rank published. Ranks that only see other
   ranks leave learn the cause from it. */
CDP__PRIVATE uint32_t cdp__hub_first(void *self, void *record, uint32_t room) {
    cdp_hub *h = ((cdp__hub_end *)self)->hub;
    uint32_t n;
    cdp_lock_acquire(&h->cause_lock);
    n = h->cause_bytes <= room ? h->cause_bytes : 0;
    if (n) memcpy(record, h->cause, n);
    cdp_lock_release(&h->cause_lock);
    return n;
}

CDP__PRIVATE CDP__COLD void cdp__hub_publish(void *self, const void *record, uint32_t bytes) {
    cdp__hub_end *end = (cdp__hub_end *)self;
    cdp_hub *h = end->hub;
    cdp_lock_acquire(&h->cause_lock);
    if (!h->cause_bytes && bytes <= sizeof h->cause) {
        memcpy(h->cause, record, bytes);
        h->cause_bytes = bytes;
    }
    cdp_lock_release(&h->cause_lock);
    end->broken_seen = true;
    /* also those without messages from this rank */
    if (!cdp__atomic_swap_u32(&h->broken, 1, CDP__ACQ_REL)) cdp__hub_ring_all(h);
}

CDP__PRIVATE void cdp__hub_end_free(cdp__hub_end *e) {
    const cdp_os *os = e->hub->os;
    uint32_t r;
    for (r = 0; e->lines && r < e->hub->desc.world_size; ++r)
        cdp__free(os, e->lines[r]);
    cdp__free(os, e->lines);
    cdp__free(os, e);
}

CDP__PRIVATE void cdp__hub_leave(void *self) {
    cdp__hub_end *e = (cdp__hub_end *)self;
    cdp__atomic_store_u32(&e->hub->ranks[e->rank].left, e->made, CDP__RELEASE);
    cdp__atomic_store_u32(&e->hub->ranks[e->rank].taken, e->made, CDP__RELEASE);
    cdp__hub_ring_all(e->hub);
    cdp__hub_end_free(e);
}

CDP__PRIVATE cdp_status cdp__hub_attach(
    cdp_hub *h, uint32_t rank, uint32_t world_size, cdp_transport *out) {
    cdp__hub_end *e;
    if (h->desc.world_size != world_size)
        return cdp__fail(CDP_ERR_INVALID,
            "the hub connects %u ranks, the group is to have %u: make them equal",
            h->desc.world_size, world_size);
    e = (cdp__hub_end *)cdp__alloc_zero(h->os, sizeof *e);
    if (!e) return cdp__fail_nomem("a rank's end of a hub", sizeof *e);
    e->hub = h;
    e->rank = rank;
    e->made = true;
    e->lines = (cdp__line **)cdp__alloc_zero(h->os, world_size * sizeof *e->lines);
    if (!e->lines) {
        cdp__hub_end_free(e);
        return cdp__fail_nomem("a rank's end of a hub", world_size * sizeof *e->lines);
    }
    if (cdp__atomic_swap_u32(&h->ranks[rank].taken, 1, CDP__ACQ_REL)) {
        cdp__hub_end_free(e);
        return cdp__fail(CDP_ERR_INVALID,
            "rank %u of this hub has a group, or had one; for another world make another hub",
            rank);
    }
    out->self = e;
    out->send = cdp__hub_send;
    out->recv = cdp__hub_recv;
    out->wait = cdp__hub_wait;
    out->wake = cdp__hub_wake;
    out->failure.publish = cdp__hub_publish;
    out->failure.first = cdp__hub_first;
    out->failure.linked = cdp__hub_linked;
    out->destroy = cdp__hub_leave;
    out->remote.expose = cdp__hub_expose;
    out->remote.revoke = cdp__hub_revoke;
    out->remote.try_revoke = cdp__hub_try_revoke;
    out->remote.map = cdp__hub_map;
    out->slots.memory = cdp__hub_slots;
    out->slots.ring = cdp__hub_doorbell;
    out->remote.unmap = cdp__hub_unmap;
    out->topology.host = cdp__hub_host;
    return CDP_OK;
}

/* The group was not created because its desc is invalid: this rank may try again. */
CDP__PRIVATE void cdp__hub_refuse(void *self) {
    ((cdp__hub_end *)self)->made = false;
}

CDP_API CDP__COLD void cdp_hub_destroy(cdp_hub *h) {
    uint64_t i;
    if (!h) return;
    for (i = 0; h->ways && i < (uint64_t)h->desc.world_size * h->desc.world_size; ++i)
        cdp__free(h->os, h->ways[i]);
    for (i = 0; h->ranks && i < h->desc.world_size; ++i) {
        if (h->ranks[i].cond) h->os->threads.cond_destroy(h->os, h->ranks[i].cond);
        cdp__lock_close(&h->ranks[i].lock);
    }
    cdp__lock_close(&h->cause_lock);
    cdp__free(h->os, h->ways);
    cdp__free(h->os, h->ranks);
    cdp__free(h->os, h);
}

CDP_API CDP__COLD cdp_status cdp_hub_create(const cdp_hub_desc *desc, cdp_hub **out) {
    const cdp_os *os;
    cdp_hub *h;
    uint32_t i;
    if (!desc || !out) return cdp__fail(CDP_ERR_INVALID, "cdp_hub_create: desc or out is NULL");
    *out = NULL;
    if (desc->world_size - 1 >= 65535) return cdp__world_wrong("cdp_hub_create", desc->world_size);
    os = desc->os ? desc->os : cdp_os_default();
    h = (cdp_hub *)cdp__alloc_zero(os, sizeof *h);
    if (!h) return cdp__fail_nomem("a hub", sizeof *h);
    h->os = os;
    h->desc = *desc;
    h->desc.ring_bytes = cdp__def(desc->ring_bytes, 256 * 1024);
    h->ways = (cdp__way **)cdp__alloc_zero(
        os, (uint64_t)desc->world_size * desc->world_size * sizeof *h->ways);
    h->ranks = (cdp__hub_rank *)cdp__alloc_zero(os, desc->world_size * sizeof *h->ranks);
    for (i = 0; h->ways && h->ranks && i < desc->world_size; ++i) {
        if (!cdp__lock_open(&h->ranks[i].lock, os, os->threads.mutex_create != NULL)) break;
        h->ranks[i].cond = os->threads.cond_create ? os->threads.cond_create(os) : NULL;
        if (os->threads.cond_create && !h->ranks[i].cond) break;
    }
    if (!h->ways || !h->ranks || i < desc->world_size
        || !cdp__lock_open(&h->cause_lock, os, os->threads.mutex_create != NULL)) {
        cdp_hub_destroy(h);
        return cdp__fail_nomem("a hub", sizeof *h);
    }
    *out = h;
    return CDP_OK;
}

#else

CDP__PRIVATE cdp_status cdp__hub_attach(
    cdp_hub *h, uint32_t rank, uint32_t world_size, cdp_transport *out) {
    (void)h;
    (void)rank;
    (void)world_size;
    (void)out;
    return cdp__fail(CDP_ERR_UNSUPPORTED,
        "cdp_group_create: hub is set, but CDP_NO_HUB was defined when cdp.h was compiled");
}
CDP__PRIVATE void cdp__hub_refuse(void *self) {
    (void)self;
}

#endif /* CDP_NO_HUB */

/* ---- >>group/deferred: runs works that are not operations ------------------------------------ */

/* Knows: the pool of works of a group, the list of waiting works. Promises: a work stays a plain
   value; nothing is allocated after the pool. */

/* The number of such a work is the index of its pool entry and the entry's use count, so a work
   stays a plain value and needs no allocation. Waiting works are in one list per world, which
   any thread that makes progress polls. */

/* True while this thread runs a function given to cdp_work_then(). Such a function must not
   wait, because the work that it waits for may need the same thread. */
CDP__PRIVATE bool *cdp__inside(void) {
    static CDP__THREAD_LOCAL bool inside;
    return &inside;
}

CDP__PRIVATE cdp_status cdp__must_not_wait(void) {
    return *cdp__inside() ? cdp__fail(CDP_ERR_STATE,
               "a function given to cdp_work_then() must not wait; start an operation and return, "
               "or chain another function")
                          : CDP_OK;
}

/* Takes the pool entry that was free longest. NULL: the reason is this thread's last error. Lock
   held. */
CDP__PRIVATE cdp__deferred *cdp__deferred_open(
    cdp_group *g, cdp__deferred_kind kind, cdp_work *out) {
    const uint32_t room = g->desc.max_pending;
    cdp__deferred *s;
    uint32_t i;
    if (!g->deferred) g->deferred = (cdp__deferred *)cdp__alloc_zero(g->os, room * sizeof *s);
    if (!g->deferred) {
        (void)cdp__fail_nomem("the pool of pending works", room * sizeof *s);
        return NULL;
    }
    for (i = 0; i < room && g->deferred[(g->deferred_at + i) % room].kind; ++i) {
    }
    if (i == room) {
        (void)cdp__fail(CDP_ERR_STATE,
            "all %u places for works that are no operations are taken; wait for some of them, or "
            "set max_pending in the desc of the group",
            room);
        return NULL;
    }
    g->deferred_at = (g->deferred_at + i) % room;
    s = &g->deferred[g->deferred_at];
    s->kind = kind;
    s->owner = g;
    s->next = NULL;
    s->poll = NULL;
    s->of = NULL;
    s->deadline_ns = CDP__NEVER;
    s->wait_ns = 0;
    s->reported_ns = 0;
    s->set = 0;
    memset(&s->after, 0, sizeof s->after);
    out->group = g;
    out->seq = CDP__DEFERRED_BIT | s->use << 16 | g->deferred_at;
    g->deferred_at = (g->deferred_at + 1) % room;
    return s;
}

CDP__PRIVATE void cdp__deferred_enlist(cdp__deferred *s) {
    cdp__deferred **at = &s->owner->w->pending;
    while (*at)
        at = &(*at)->next;
    *at = s;
}

CDP__PRIVATE CDP__ONE_COPY void cdp__deferred_unlist(cdp__deferred *s) {
    cdp__deferred **at = &s->owner->w->pending;
    while (*at && *at != s)
        at = &(*at)->next;
    if (*at) *at = s->next;
}

/* The work no longer waits for other ranks. */
CDP__PRIVATE void cdp__deferred_end_wait(cdp__deferred *s) {
    cdp__deferred_unlist(s);
    if (s->reported_ns) cdp__wait_ended(s->of, s->set, 0, 0);
    s->reported_ns = 0;
}

/* The work has ended, completed or cancelled: frees its entry. */
CDP__PRIVATE void cdp__deferred_close(cdp__deferred *s, bool cancelled) {
    s->cancelled = s->cancelled << 1 | (cancelled ? 1u : 0u);
    s->kind = CDP__DEFERRED_FREE;
    ++s->use;
}

/* Wakes all threads that may wait for what has just changed. */
CDP__PRIVATE void cdp__world_wake(cdp__world *m) {
    if (m->cond) m->os->threads.cond_broadcast(m->os->user, m->cond);
    if (m->sleeping) m->transport.wake(m->transport.self);
}

/* Calls the function of a work that ended with status `st`, without the lock. If the function
   returns an error, the group fails. */
CDP__PRIVATE void cdp__deferred_call(cdp__deferred *s, cdp_status st) {
    cdp_group *g = s->owner;
    cdp__world *m = g->w;
    /* true if this thread runs a callback of another world, which has polled this one */
    const bool within = *cdp__inside();
    const uint64_t until = m->poll_until_ns; /* of this thread's poll, not of others meanwhile */
    cdp_status answer;
    cdp__deferred_unlist(s);
    m->calling = g;
    m->poll_until_ns = 0;
    cdp_lock_release(&m->lock);
    *cdp__inside() = true;
    answer = s->func(s->user, st);
    *cdp__inside() = within;
    cdp_lock_acquire(&m->lock);
    m->poll_until_ns = until;
    m->calling = NULL;
    if (st == CDP_OK && answer < CDP_OK) {
        const bool first = g->health == CDP__HEALTHY;
        if (cdp_last_error()->status != answer)
            cdp__fail(
                answer, "a function given to cdp_work_then() returned %s", cdp_status_name(answer));
        if (first) cdp__group_fail_last(g);
    } else if (g->health != CDP__FAILED || st == CDP_OK) {
        cdp__deferred_close(s, st != CDP_OK);
    }
    cdp__world_wake(m);
}

/* Sets this thread's last error to the reason why a work failed. */
CDP__PRIVATE cdp_status cdp__work_explain(const cdp_group *g, cdp_status st) {
    if (g->health == CDP__FAILED && g->error.status == st)
        *cdp__error_slot() = g->error;
    else
        (void)cdp__fail(st, "this work was cancelled on this rank");
    return st;
}

/* Polls waiting works in the order of the calls. Functions of the program run one at a time. */
CDP__PRIVATE cdp__advance cdp__deferred_poll(cdp__world *m) {
    const uint64_t now = m->os->now_ns(m->os->user);
    cdp__deferred *s;
    ++m->polls;
    for (s = m->pending; s; s = s->next) {
        cdp_status st;
        if (s->poll && s->poll(s, now)) return CDP__MOVED; /* the list may have changed */
        st = s->kind == CDP__DEFERRED_THEN && !m->calling
            ? cdp__work_status(s->after.group, s->after.seq)
            : CDP_PENDING;
        if (st == CDP_PENDING) continue;
        if (st != CDP_OK) (void)cdp__work_explain(s->after.group, st);
        cdp__deferred_call(s, st);
        return CDP__MOVED;
    }
    return CDP__IDLE;
}

CDP__PRIVATE uint64_t cdp__deferred_deadline(const cdp__world *m) {
    const cdp__deferred *s;
    uint64_t at = CDP__NEVER;
    for (s = m->pending; s; s = s->next) {
        /* a late receive goes on until its group has settled the cause */
        if (!s->set || !cdp__group_settling(s->of)) at = cdp__min(at, s->deadline_ns);
        if (s->poll && s->wait_ns) at = cdp__min(at, s->wait_ns);
    }
    return at;
}

/* The group is being destroyed: calls its waiting functions a last time with an error, and fails
   operations of other groups that were to start after its works. */
CDP__PRIVATE void cdp__deferred_drop(cdp_group *g) {
    cdp__world *m = g->w;
    cdp__deferred *s;
    cdp_group *x;
    uint32_t i;
    for (s = m->pending; s; s = s ? s->next : m->pending) {
        if (s->owner != g && s->of != g) continue;
        if (s->kind == CDP__DEFERRED_THEN)
            cdp__deferred_call(
                s, cdp__fail(CDP_ERR_STATE, "the group was destroyed before this work was done"));
        else
            cdp__deferred_end_wait(s);
        s = NULL;
    }
    for (x = m->groups; x; x = x->next)
        for (i = 0; i < x->queue_used; ++i) {
            cdp_work *after = &x->queue[(x->queue_at + i) % x->queue_room].after;
            if (!after->group || cdp__group_top(after->group) != g) continue;
            if (x != g && x->parent != g && cdp__work_status(after->group, after->seq) != CDP_OK) {
                cdp__fail(CDP_ERR_STATE,
                    "the group of the work that this one was to follow was destroyed");
                cdp__group_fail_last(x);
            }
            after->group = NULL;
        }
}

/* ---- >>group/progress: which thread makes progress ------------------------------------------- */

/* Knows: the world's lock, its threads, its groups. Promises: at most one thread sleeps in
   transport.wait, and work in flight always has a thread that makes progress. */

/* A thread that waits for a work makes progress itself, so that a synchronous operation needs no
   hand-over between threads. The progress thread stands by while callers come and go. It takes
   over if work is in flight and no caller waits, or if no caller has waited for CDP__STAND_BY_MS
   (then it sleeps in the transport, for failures). */
#define CDP__STAND_BY_MS 2u /* after the last caller, until the progress thread takes over */
#define CDP__CALLER_MS 10u  /* how often it checks that a caller in a long wait is still there */
#define CDP__YIELDS 4u      /* times spin_us: how long other threads may run before sleeping */
#define CDP__YIELD_LONG_NS 300000u
/* polls of the awaited operation for each poll of all sockets and of the clock */
#define CDP__FAST_POLLS 8u
/* The thread that starts an operation polls so often: copies the input, sends the first bytes. */
#define CDP__FIRST_MOVES 3u

/* Yields the lock to a waiting thread: after a plain release, a mutex mostly goes back to the
   thread that has just released it. */
CDP__PRIVATE void cdp__progress_yield_lock(cdp__world *m) {
    uint32_t i;
    if (!cdp__atomic_load_u32(&m->lock_waiters, CDP__RELAXED)) return;
    cdp_lock_release(&m->lock);
    for (i = 0; i < 64 && cdp__atomic_load_u32(&m->lock_waiters, CDP__RELAXED); ++i)
        m->os->threads.yield(m->os->user);
    cdp_lock_acquire(&m->lock);
}

/* Takes the lock for a call of the program. */
CDP__PRIVATE void cdp__enter(cdp_group *g) {
    cdp__world *m = g->w;
#ifndef CDP_NO_THREADS /* no thread would yield to this one */
    (void)cdp__atomic_add_u32(&m->lock_waiters, 1, CDP__RELAXED);
#endif
    cdp__lock_take(&m->lock);
#ifndef CDP_NO_THREADS
    (void)cdp__atomic_sub_u32(&m->lock_waiters, 1, CDP__RELAXED);
#endif
}

CDP__PRIVATE void cdp__leave(cdp_group *g) {
    cdp__world *m = g->w;
    /* a sleeping thread does not see messages that this call has stored for it */
    if (m->sleeping && m->stored != m->stored_seen) m->transport.wake(m->transport.self);
    cdp__lock_give(&m->lock);
}

/* True if there is work in flight. */
CDP__PRIVATE bool cdp__world_busy(const cdp__world *m) {
    return m->active || m->pending;
}

/* The budget of a poll ended with this group: the next poll begins with another one. */
CDP__PRIVATE void cdp__world_last(cdp__world *m, cdp_group *g) {
    cdp_group **at = &m->active;
    if (!g->next_active) return;
    while (*at != g)
        at = &(*at)->next_active;
    *at = g->next_active;
    g->next_active = NULL;
    while (*at)
        at = &(*at)->next_active;
    *at = g;
}

/* Polls every active group once. */
CDP__PRIVATE cdp__advance cdp__world_poll(cdp__world *m) {
    cdp__advance most = CDP__IDLE;
    cdp_group **at = &m->active;
    m->stored_seen = m->stored;
    m->cut = false;
    if (m->control_queued) cdp__world_send_queued(m);
    while (*at) {
        cdp_group *g = *at;
        const cdp__advance p = cdp__group_poll(g);
        if (p > most) most = p;
        if (*at != g) { /* a group that became active meanwhile was inserted in front */
            most = CDP__MOVED;
            for (at = &m->active; *at != g; at = &(*at)->next_active) {
            }
        }
        if (p == CDP__IDLE) {
            *at = g->next_active;
            g->active = false;
        } else {
            at = &g->next_active;
        }
        if (!CDP__BUDGETS || !m->cut) continue;
        if (p != CDP__IDLE) cdp__world_last(m, g);
        break;
    }
    if (m->pending) {
        const cdp__advance p = cdp__deferred_poll(m);
        if (p > most) most = p;
    }
    if (m->channels && !m->fast_poll) {
        const cdp__advance p = m->channels_poll(m);
        if (p > most) most = p;
    }
    /* stored messages may be for groups that were polled before they arrived */
    return (CDP__BUDGETS && m->cut) || m->stored != m->stored_seen ? CDP__MOVED : most;
}

CDP__PRIVATE void cdp__progress_poll(cdp__world *m) {
    while (cdp__world_poll(m) == CDP__MOVED)
        cdp__progress_yield_lock(m);
}

CDP__PRIVATE uint64_t cdp__world_deadline(const cdp__world *m) {
    const cdp_group *g;
    uint64_t at = m->pending ? cdp__deferred_deadline(m) : CDP__NEVER;
    for (g = m->active; g; g = g->next_active)
        at = cdp__min(at, cdp__group_deadline(g));
    if (m->channels) at = cdp__min(at, m->channels_deadline(m));
    return at;
}

/* transport.wait reports a failure of another rank, or has failed itself; the reason is this
   thread's last error. */
CDP__PRIVATE void cdp__world_wait_failed(cdp__world *m) {
    cdp_error e = *cdp_last_error();
    const bool news = e.status == CDP_ERR_ABORTED || e.status == CDP_ERR_PEER_LOST;
    cdp_group *g;
    if (news) e.status = CDP_ERR_PEER_LOST; /* the cause is settled first */
    /* records of peers may tell more than that of one lost rank */
    if (news) cdp__world_read_all(m);
    if (news && cdp__world_adopt_first(m)) return;
    for (g = m->groups; g; g = g->next)
        if (!news || g->channel == CDP__WORLD_CHANNEL) cdp__group_fail(g, &e, false);
}

CDP__PRIVATE void cdp__world_wait(cdp__world *m, cdp_lock *lock, uint64_t deadline_ns) {
    m->sleeping = true;
    if (m->transport.wait(m->transport.self, lock, deadline_ns) != CDP_OK)
        cdp__world_wait_failed(m);
    m->sleeping = false;
}

/* At the beginning of a poll with a budget: lets the transport report what has arrived. */
CDP__PRIVATE void cdp__world_poll_transport(cdp__world *m, uint64_t until_ns) {
    if (m->sleeping) return;
    m->poll_until_ns = CDP__BUDGETS ? cdp__max(until_ns, 1) : 0;
    cdp__poll_extend(m);
    cdp__world_wait(m, NULL, 0);
    m->poll_until_ns = 0;
}

/* Sleeps in the transport or, if another thread sleeps there, on the condition variable. */
CDP__PRIVATE void cdp__progress_sleep(cdp__world *m, uint64_t deadline_ns) {
    deadline_ns = cdp__min(deadline_ns, cdp__world_deadline(m));
    if (m->sleeping) {
        if (m->cond) m->os->threads.cond_wait(m->os->user, m->cond, m->lock.mutex, deadline_ns);
        return;
    }
    cdp__world_wait(m, &m->lock, deadline_ns);
    if (m->cond && m->callers) /* another caller sleeps in the transport next */
        m->os->threads.cond_broadcast(m->os->user, m->cond);
    cdp__progress_yield_lock(m); /* the transport does not sleep while it has work of its own */
}

/* Waits within a budget. A sleep may end a millisecond late, so the last one is spent polling. */
CDP__PRIVATE void cdp__progress_rest(cdp__world *m, uint64_t now, uint64_t deadline_ns) {
    if (m->sleeping) {
        cdp__progress_sleep(m, deadline_ns); /* on the condition variable */
    } else if (deadline_ns - now > CDP__MS) {
        cdp__progress_sleep(m, deadline_ns - CDP__MS);
    } else {
        cdp__world_wait(m, NULL, 0);
        cdp__progress_yield_lock(m);
    }
}

/* Polls for a few microseconds before sleeping, because a wake-up costs more than most small
   operations. If polling has not paid off lately (more ranks than cores), most waits yield the
   core instead, likely to the awaited rank, unless that took long last time (another program
   uses the core). Returns true if another poll is worthwhile. */
CDP__PRIVATE bool cdp__progress_spin(cdp__world *m, const cdp_group_desc *desc, uint64_t now,
    uint64_t until_ns, uint32_t *looks, uint32_t *spun) {
    const bool out_of_luck = m->spin_luck < 0 && (m->waits & 31) != 0;
    if (desc->no_spin || m->sleeping) return false;
    if (!out_of_luck && now >= until_ns) return false;
    if (out_of_luck
        && (!m->os->threads.yield || m->waits < m->yield_again
            || now >= until_ns + CDP__YIELDS * desc->spin_us * 1000ull))
        return false;
    /* the caller polls the awaited operation; this polls all sockets */
    if (++*looks % (out_of_luck ? CDP__FAST_POLLS : 1) == 0) cdp__world_wait(m, NULL, 0);
    if (!out_of_luck) {
        ++*spun;
        return true;
    }
    cdp_lock_release(&m->lock);
    m->os->threads.yield(m->os->user);
    cdp_lock_acquire(&m->lock);
    if (m->os->now_ns(m->os->user) - now > CDP__YIELD_LONG_NS) m->yield_again = m->waits + 256;
    return true;
}

/* A thread that waits and polls meanwhile, in rounds: some fast polls, then full ones until nothing
   moves, then a pause. */
typedef struct cdp__progress {
    cdp_group *g;
    uint64_t seq; /* the operation of g that it waits for, or CDP__ALL_WORK */
    uint64_t deadline_ns;
    bool budget;         /* ends at the deadline even if something moves */
    bool fast;           /* its rounds have fast polls: not of the clock, nor of all sockets */
    cdp__advance polled; /* the result of the last poll */
    bool first;          /* no full poll of this round was made yet */
    uint32_t fast_left;  /* fast polls of this round */
    uint32_t polls, spun;
    uint64_t completed; /* g->completed after the last pause */
    uint64_t spin_until_ns;
} cdp__progress;

CDP__PRIVATE void cdp__progress_round(cdp__progress *t) {
    const cdp__world *m = t->g->w;
    t->fast_left = t->fast && !m->sleeping && !m->pending ? CDP__FAST_POLLS : 0;
    t->first = true;
}

/* Begins to wait until operation `seq` of g is done, the group has failed and told its peers, or
   the deadline. The thread that waits then polls:

       while (cdp__progress_next(&t))
           t.polled = cdp__world_poll(g->w); */
CDP__PRIVATE void cdp__progress_begin(
    cdp__progress *t, cdp_group *g, uint64_t seq, uint64_t deadline_ns, bool budget) {
    cdp__world *m = g->w;
    memset(t, 0, sizeof *t);
    t->g = g;
    t->seq = seq;
    t->deadline_ns = deadline_ns;
    t->completed = g->completed;
    t->budget = CDP__BUDGETS && budget;
    t->fast = !g->desc.no_spin && m->spin_luck >= 0 && !budget && seq != CDP__ALL_WORK;
    ++m->callers;
    ++m->waits;
    /* if the progress thread sleeps there, it will stand by */
    if (m->sleeping) m->transport.wake(m->transport.self);
    cdp__progress_round(t);
}

/* Nothing moves: spins, yields or sleeps. */
CDP__PRIVATE void cdp__progress_pause(cdp__progress *t, uint64_t now) {
    cdp__world *m = t->g->w;
    if (t->g->completed != t->completed || !t->spin_until_ns)
        t->spin_until_ns = now + t->g->desc.spin_us * 1000ull;
    if (!cdp__progress_spin(m, &t->g->desc, now, t->spin_until_ns, &t->polls, &t->spun)) {
        if (t->spun && m->spin_luck > -8) --m->spin_luck;
        t->spun = 0;
        if (t->budget)
            cdp__progress_rest(m, now, t->deadline_ns);
        else
            cdp__progress_sleep(m, t->deadline_ns);
    }
    t->completed = t->g->completed;
}

/* The wait has ended: polling has paid off, if it spun until then. */
CDP__PRIVATE void cdp__progress_lucky(const cdp__progress *t) {
    cdp__world *m = t->g->w;
    if (t->spun && m->spin_luck < 8) m->spin_luck += 2;
}

/* Yields the lock or pauses before the next poll. False: the wait is over. */
CDP__PRIVATE bool cdp__progress_full(cdp__progress *t, bool pending) {
    cdp__world *m = t->g->w;
    const bool again =
        t->polled == CDP__MOVED && (pending || !t->budget || t->seq == CDP__ALL_WORK);
    m->fast_poll = false;
    if (t->budget) m->poll_until_ns = 0;
    if (!t->first && again) {
        cdp__progress_yield_lock(m);
        if (t->budget && cdp__now(m->os) >= t->deadline_ns) return false;
    } else if (!t->first) {
        const uint64_t now = pending ? cdp__now(m->os) : 0;
        if (!pending || now >= t->deadline_ns) return false;
        cdp__progress_pause(t, now);
        cdp__progress_round(t);
        m->fast_poll = t->fast_left != 0;
        if (m->fast_poll) {
            --t->fast_left;
            return true;
        }
    }
    t->first = false;
    if (t->budget) m->poll_until_ns = cdp__max(t->deadline_ns, 1);
    return true;
}

CDP__PRIVATE void cdp__progress_end(const cdp__progress *t) {
    cdp__world *m = t->g->w;
    cdp__progress_lucky(t);
    --m->callers;
    if (m->callers)
        m->os->threads.cond_broadcast(m->os->user, m->cond); /* another caller takes over */
    else if (m->thread && cdp__world_busy(m))
        m->os->threads.cond_broadcast(m->os->user, m->park);
}

/* True: the thread polls next. False: the wait has ended. */
CDP__PRIVATE bool cdp__progress_next(cdp__progress *t) {
    const bool pending = cdp__work_status(t->g, t->seq) == CDP_PENDING;
    if (pending && t->fast_left) {
        --t->fast_left;
        t->g->w->fast_poll = true;
        return true;
    }
    if (cdp__progress_full(t, pending)) return true;
    cdp__progress_end(t);
    return false;
}

CDP__PRIVATE CDP__ONE_COPY void cdp__progress_until(
    cdp_group *g, uint64_t seq, uint64_t deadline_ns, bool budget) {
    cdp__progress t;
    cdp__progress_begin(&t, g, seq, deadline_ns, budget);
    while (cdp__progress_next(&t))
        t.polled = cdp__world_poll(g->w);
}

CDP__PRIVATE void cdp__progress_thread(void *arg) {
    cdp__world *m = (cdp__world *)arg;
    const cdp_os *os = m->os;
    uint64_t seen = 0;
    cdp_lock_acquire(&m->lock);
    while (!m->stop) {
        const uint64_t waits = m->waits + m->ended;
        /* stand by while callers make progress; not for long after short waits, since a peer that
           leaves meanwhile waits until this rank reads that */
        if (m->callers || m->sleeping || (!cdp__world_busy(m) && seen != waits)) {
            const bool still = m->callers && seen == waits;
            seen = waits;
            os->threads.cond_wait(os->user, m->park, m->lock.mutex,
                os->now_ns(os->user) + (still ? CDP__CALLER_MS : CDP__STAND_BY_MS) * CDP__MS);
        } else if (cdp__world_poll(m) == CDP__MOVED) {
            cdp__progress_yield_lock(m);
        } else {
            cdp__progress_sleep(m, CDP__NEVER);
        }
    }
    cdp_lock_release(&m->lock);
}

/* ---- >>group/world: what the groups of one transport share ----------------------------------- */

/* Knows: ports, the lock, threads. Promises: a world that was only partly created is released
   completely. */

CDP__PRIVATE int64_t cdp__alone_move(void *self, uint32_t peer, const cdp_iov *v, uint32_t n) {
    (void)self;
    (void)v;
    (void)n;
    return cdp__fail_peer(CDP_ERR_INTERNAL, peer, 0, "a group of one rank has no peer");
}
CDP__PRIVATE cdp_status cdp__alone_wait(void *self, cdp_lock *lock, uint64_t deadline_ns) {
    (void)self;
    (void)lock;
    (void)deadline_ns;
    return CDP_OK;
}
CDP__PRIVATE void cdp__alone_nothing(void *self) {
    (void)self;
}

CDP__PRIVATE void cdp__group_desc_defaults(cdp_group_desc *d) {
    d->timeout_ms = cdp__def(d->timeout_ms, 600000);
    d->small_bytes = cdp__def(d->small_bytes, 64 * 1024);
    d->piece_bytes = cdp__min(cdp__def(d->piece_bytes, 1024 * 1024), 1u << 30);
    d->expose_bytes = cdp__def(d->expose_bytes, 64 * 1024);
    d->spin_us = cdp__def(d->spin_us, 20);
    d->max_pending = (uint32_t)cdp__min(cdp__def(d->max_pending, 64), 65535);
    d->records = cdp__def(d->records, 32);
    d->stage_bytes = cdp__max(cdp__def(d->stage_bytes, CDP__STAGE_BYTES), 256) & ~63ull;
    d->window_bytes = cdp__def(d->window_bytes, CDP__WINDOW);
    d->operations = (uint32_t)cdp__min(cdp__def(d->operations, 64), 65535);
    d->waits = (uint32_t)cdp__min(cdp__def(d->waits, 32), 65535);
    d->choices = NULL;
    d->choice_count = 0;
    if (!d->os) d->os = cdp_os_default();
}

#ifdef CDP_NO_THREADS
CDP__PRIVATE void cdp__world_stop(cdp__world *m) {
    (void)m;
}
#else
CDP__PRIVATE void cdp__world_stop(cdp__world *m) {
    const cdp_os *os = m->os;
    if (!m->thread) return;
    cdp_lock_acquire(&m->lock);
    m->stop = true;
    os->threads.cond_broadcast(os->user, m->park);
    m->transport.wake(m->transport.self);
    cdp_lock_release(&m->lock);
    os->threads.join(os, m->thread);
    m->thread = NULL;
}
#endif

/* Accepts a world that was only partly created. */
CDP__PRIVATE void cdp__world_destroy(cdp__world *m) {
    const cdp_os *os = m->os;
    /* why creation failed: destroying may set other errors */
    const cdp_error kept = *cdp_last_error();
    uint32_t i;
    cdp__world_stop(m);
    if (m->transport.destroy) m->transport.destroy(m->transport.self);
    for (i = 0; i < m->stream_rows; ++i)
        while (m->streams[i]) { /* unexpected streams */
            cdp__stream *s = m->streams[i];
            m->streams[i] = s->next;
            cdp__free(os, s->early);
            cdp__free(os, s->failure);
            cdp__free(os, s);
        }
    while (m->made) {
        cdp__made *made = m->made;
        m->made = made->next;
        cdp__free(os, made);
    }
    for (i = 0; m->ports && i < m->size; ++i) {
        cdp__free(os, m->ports[i].control);
        cdp__free(os, m->ports[i].failure);
    }
    if (m->cond) os->threads.cond_destroy(os, m->cond);
    if (m->park) os->threads.cond_destroy(os, m->park);
    cdp__lock_close(&m->lock);
    cdp__free(os, (void *)(uintptr_t)m->choosing.rows);
    cdp__free(os, m->streams);
    cdp__free(os, m->ports);
    cdp__free(os, m->failure.edges);
    cdp__free(os, m->failure.waiters);
    cdp__free(os, m->failure.reports);
    cdp__free(os, m->stage);
    cdp__free(os, m);
    *cdp__error_slot() = kept;
}

/* The desc's defaults are filled in. */
CDP__PRIVATE cdp__world *cdp__world_create(const cdp_group_desc *d, const cdp_transport *t) {
    const cdp_os *os = d->os;
    const uint32_t rank = d->rank, size = d->world_size;
    /* callers may be threads even without a progress thread */
    const bool threads = os->threads.start && os->threads.mutex_create;
    cdp__world *m = (cdp__world *)cdp__alloc_zero(os, sizeof *m);
    if (!m) return NULL;
    m->os = os;
    m->rank = rank;
    m->size = size;
    m->note = cdp__world_on_control;
    m->ports = (cdp__port *)cdp__alloc_zero(os, size * sizeof *m->ports);
    m->failure.rank = rank;
    m->failure.world_size = size;
    m->failure.edge_room = m->failure.waiter_room = size + d->waits;
    m->failure.report_room = size < 2 ? 2 : (uint32_t)cdp__min(size, CDP__FAILURE_REPORTS);
    m->failure.edges =
        (cdp__failure_edge *)cdp__alloc_zero(os, m->failure.edge_room * sizeof *m->failure.edges);
    m->failure.waiters = (cdp__failure_waiter *)cdp__alloc_zero(
        os, m->failure.waiter_room * sizeof *m->failure.waiters);
    m->failure.reports = (cdp__failure_report *)cdp__alloc_zero(
        os, m->failure.report_room * sizeof *m->failure.reports);
    m->stage_bytes = d->stage_bytes;
    m->window_bytes = d->window_bytes;
    m->stage = (uint8_t *)cdp__alloc(os, m->stage_bytes);
    m->cond = threads ? os->threads.cond_create(os) : NULL;
    m->park = threads ? os->threads.cond_create(os) : NULL;
    if (!m->ports || !m->stage || !m->failure.edges || !m->failure.waiters || !m->failure.reports
        || (threads && (!m->cond || !m->park)) || !cdp__streams_reserve(m, size)
        || !cdp__lock_open(&m->lock, os, threads)) {
        cdp__world_destroy(m);
        return NULL;
    }
    m->transport = *t; /* from here on the world owns it */
    return m;
}

/* ---- >>group/create: creating and destroying a group ----------------------------------------- */

/* Knows: worlds, streams, the queue. Promises: destroying is local and bounded; other ranks are
   told. */

/* Enters the streams of a new group into the table. Messages that arrived for its channel before it
   was created become its own. Returns false when out of memory. */
CDP__PRIVATE bool cdp__group_enter_streams(cdp_group *g) {
    cdp__world *w = g->w;
    uint32_t p;
    if (!cdp__streams_reserve(w, g->desc.world_size)) return false;
    for (p = 0; p < g->desc.world_size; ++p) {
        g->streams[p].channel = g->channel;
        g->streams[p].peer = cdp__world_rank(g, p);
        if (cdp__stream_enter(w, &g->streams[p])) g->peers[p].used = true;
    }
    return true;
}

/* Handles FAILURE messages that arrived before this rank created the group. */
CDP__PRIVATE void cdp__group_read_early(cdp_group *g) {
    uint32_t p;
    for (p = 0; p < g->desc.world_size; ++p) {
        cdp__stream *s = &g->streams[p];
        if (!s->failure) continue;
        (void)cdp__world_on_control(
            g->w, s->peer, CDP__MESSAGE_FAILURE, g->channel, s->failure, s->failure_bytes);
        cdp__free(g->os, s->failure);
        s->failure = NULL;
    }
}

/* Completes half-sent messages of operations that never end here with their true bytes: a
   receiver may need only these. Not after a failure, because the memory belongs to the caller
   again. */
CDP__PRIVATE void cdp__group_keep(cdp_group *g) {
    cdp__exec *x = &g->exec;
    uint32_t i;
    if (g->health != CDP__HEALTHY) return;
    for (i = 0; i < x->transfer_count; ++i) {
        const cdp__transfer *t = &x->transfers[i];
        cdp__port *port = t->s ? &g->w->ports[t->s->peer] : NULL;
        if (t->receive || !port || port->tx_stream != t->s || (!t->data && port->tx_left)) continue;
        cdp__port_keep(g->w, t->s->peer, t->data ? t->data + t->moved : NULL);
        cdp__port_abandon(port);
    }
}

/* Tells peers that this rank has left, and releases the ports. Lock held. */
CDP__PRIVATE void cdp__group_unlink(cdp_group *g) {
    cdp__world *m = g->w;
    cdp_group **at;
    uint32_t p;
    for (at = &m->active; *at && *at != g; at = &(*at)->next_active) {
    }
    if (*at) *at = g->next_active;
    for (at = &m->groups; *at && *at != g; at = &(*at)->next) {
    }
    if (*at) *at = g->next;
    cdp__group_revoke(g);
    cdp__group_keep(g);
    cdp__flows_close(g, m->groups || g->backed);
    cdp__world_gone(m, g->channel);
    for (p = 0; p < g->desc.world_size; ++p)
        cdp__stream_close(m, &g->streams[p], (m->groups || g->backed) && cdp__peer_used(g, p));
    if (m->control_queued) cdp__world_send_queued(m);
}

CDP__PRIVATE void cdp__group_free(cdp_group *g) {
    const cdp_os *os = g->os;
    uint32_t i;
    g->magic = 0;
    for (i = 0; g->queue && i < g->queue_room; ++i)
        cdp__free(os, g->queue[i].offs);
    cdp__free(os, g->past);
    cdp__free(os, g->streams);
    cdp__free(os, g->peers);
    cdp__free(os, g->queue);
    cdp__free(os, g->barrier);
    cdp__free(os, g->deferred);
    cdp__free(os, g->exec.tmp);
    cdp__free(os, g->members);
    cdp__free(os, g->hosts.ranks);
    cdp__free(os, g);
}

/* Makes threads that wait for operations of the group return with an error, and waits until no
   callback of the group runs. The caller holds the lock. */
CDP__PRIVATE void cdp__group_dismiss(cdp_group *g) {
    cdp__world *m = g->w;
    cdp_group *x;
    uint32_t waiting;
    while (m->calling)
        m->os->threads.cond_wait(
            m->os->user, m->cond, m->lock.mutex, m->os->now_ns(m->os->user) + 10 * CDP__MS);
    cdp__deferred_drop(g);
    for (;;) {
        for (waiting = 0, x = m->groups; x; x = x->next) {
            if ((x != g && x->parent != g) || !x->waiters) continue;
            waiting += x->waiters;
            if (x->health == CDP__FAILED && x->settle_ns == CDP__NEVER) continue;
            cdp__fail(CDP_ERR_STATE,
                "rank %u/%u: the group was destroyed while this thread was waiting for one of its "
                "operations",
                g->desc.rank, g->desc.world_size);
            x->error = *cdp_last_error();
            cdp__group_revoke(x);
            x->health = CDP__FAILED;
            x->domain.state = CDP__FAILURE_DONE;
            x->settle_ns = CDP__NEVER;
        }
        if (!waiting) return;
        cdp__world_wake(m);
        m->os->threads.cond_wait(
            m->os->user, m->cond, m->lock.mutex, m->os->now_ns(m->os->user) + 10 * CDP__MS);
    }
}

/* Refuses to destroy a group inside a callback, because its works may still be in use. */
CDP__PRIVATE bool cdp__destroys_inside(cdp_group *g, const char *call) {
    if (!*cdp__inside()) return false;
    (void)call; /* unused with CDP_NO_LOG_STRINGS */
    cdp__enter(g);
    cdp__log(&g->desc.logger, CDP_LOG_ERROR, g->desc.rank,
        "%s: a function given to cdp_work_then() must not destroy groups, nor a ddp in a backward "
        "pass; nothing was done",
        call);
    cdp__leave(g);
    return true;
}

/* True while this group's failure is not told to the peers, even if its cause is not settled. */
CDP__PRIVATE bool cdp__group_must_report(cdp_group *g) {
    return g->settle_ns != CDP__NEVER
        && (g->health != CDP__HEALTHY || (!cdp__group_parent(g) && cdp__group_settling(g)));
}

/* The first part of leaving: other threads return, and no backend is left. Locks the world. */
CDP__PRIVATE void cdp__group_retire(cdp_group *g) {
    cdp__world *m = g->w;
#ifndef CDP_NO_BACKEND
    if (g->backend) {
        const cdp_backend b = *g->backend;
        b.destroy(b.self);
        cdp_group_clear_backend(g);
    }
#endif
    cdp__enter(g);
    cdp__group_dismiss(g);
    /* reads the questions of other ranks, since unread data would reset the connections */
    if (!cdp__group_parent(g) && g->channel == CDP__WORLD_CHANNEL) cdp__world_read_all(m);
    g->leave_ns = m->os->now_ns(m->os->user) + (CDP__SETTLE_MS + CDP__REPORT_MS) * CDP__MS;
}

/* The second part of leaving, after peers were told of a failure, if any: unlinks the group and
   unlocks the world. False: the world has other groups, and goes on. */
CDP__PRIVATE bool cdp__group_part(cdp_group *g) {
    cdp__world *m = g->w;
    cdp_group *x;
    bool last;
    for (x = m->groups; x; x = x->next)
        if (cdp__group_parent(x) == g)
            x->parent = NULL; /* it lives on, and from now on fails alone */
    cdp__group_unlink(g);
    last = !m->groups;
    cdp_lock_release(&m->lock);
    if (last) cdp__world_stop(m);
    return last;
}

/* The last one. */
CDP__PRIVATE void cdp__group_gone(cdp_group *g, bool last) {
    cdp__world *m = g->w;
    cdp__group_free(g);
    if (last) cdp__world_destroy(m);
}

CDP__PRIVATE void cdp__group_end(cdp_group *g) {
    cdp__world *m;
    bool last, at_once;
#ifndef CDP_NO_FRAMES
    if (g->magic == CDP__LEAVING_MAGIC) {
        cdp__group_gone(g, true);
        return;
    }
#endif
    if (cdp__alive(g, "cdp_group_destroy") != CDP_OK) return; /* a second call does nothing */
    if (cdp__destroys_inside(g, "cdp_group_destroy")) return;
    m = g->w;
    at_once = CDP__BUDGETS && g->leave_ns; /* cdp_group_leave() is under way */
    cdp__group_retire(g);
    if (!at_once && cdp__group_must_report(g))
        cdp__progress_until(g, CDP__ALL_WORK, g->leave_ns, false);
    last = cdp__group_part(g);
    while (last && !at_once && m->transport.leave
        && m->transport.leave(m->transport.self, CDP__NEVER)) {
    }
    cdp__group_gone(g, last);
}

CDP_API CDP__COLD void cdp_group_destroy(cdp_group *g) {
    const cdp_error before = *cdp_last_error(); /* errors of leaving are not the caller's */
    if (!g) return;
    cdp__group_end(g);
    *cdp__error_slot() = before;
}

#ifndef CDP_NO_FRAMES
CDP__PRIVATE cdp_status cdp__group_leave_for(cdp_group *g, uint32_t budget_us) {
    cdp__world *m;
    uint64_t until;
    cdp_status st = CDP_OK;
    if (!g) return CDP_OK;
    if (g->magic != CDP__LEAVING_MAGIC) st = cdp__alive(g, "cdp_group_leave");
    if (st != CDP_OK) return st;
    m = g->w;
    until = m->os->now_ns(m->os->user) + budget_us * 1000ull;
    if (g->magic != CDP__LEAVING_MAGIC) {
        if (cdp__must_not_wait() != CDP_OK) return CDP_ERR_STATE;
        if (!g->leave_ns)
            cdp__group_retire(g);
        else
            cdp__enter(g);
        if (cdp__group_must_report(g)) {
            cdp__world_poll_transport(m, until);
            cdp__progress_until(g, CDP__ALL_WORK, cdp__min(until, g->leave_ns), true);
        }
        if (cdp__group_must_report(g) && m->os->now_ns(m->os->user) < g->leave_ns) {
            cdp__leave(g);
            return CDP_PENDING;
        }
        if (!cdp__group_part(g)) {
            cdp__group_gone(g, false);
            return CDP_OK;
        }
        g->magic = CDP__LEAVING_MAGIC;
    }
    while (m->transport.leave && m->transport.leave(m->transport.self, until))
        if (m->os->now_ns(m->os->user) >= until) return CDP_PENDING;
    cdp__group_gone(g, true);
    return CDP_OK;
}

CDP_API CDP__COLD cdp_status cdp_group_leave(cdp_group *g, uint32_t budget_us) {
    const cdp_error before = *cdp_last_error();
    const cdp_status st = cdp__group_leave_for(g, budget_us);
    if (st >= 0) *cdp__error_slot() = before;
    return st;
}
#endif

/* Stores which ranks share a host, and the resulting properties of the group. False: out of
   memory. */
CDP__PRIVATE bool cdp__group_read_topology(cdp_group *g) {
    const cdp_transport *t = &g->w->transport;
    const uint32_t n = g->desc.world_size;
    uint32_t *host = (uint32_t *)cdp__alloc(g->os, n * sizeof *host), i, k, at = 0;
    uint16_t *list = (uint16_t *)cdp__alloc(g->os, n * sizeof *list);
    cdp__hosts *h = &g->hosts;
    h->ranks = list;
    h->fewest = UINT32_MAX;
    for (i = 0; i < n && host && list; ++i)
        host[i] = t->topology.host(t->self, cdp__world_rank(g, i));
    for (i = 0; i < n && host && list; ++i) {
        const uint32_t first = at, of = host[i];
        if (of == UINT32_MAX) continue; /* already in the list */
        for (k = i; k < n; ++k) {
            if (host[k] != of) continue;
            list[at] = (uint16_t)(k | (at == first ? CDP__HOST_BEGINS : 0));
            host[k] = UINT32_MAX;
            ++at;
        }
        ++h->count;
        h->fewest = (uint32_t)cdp__min(h->fewest, at - first);
        h->most = (uint32_t)cdp__max(h->most, at - first);
    }
    cdp__free(g->os, host);
    if (h->count == 1) g->is = (uint8_t)(CDP__SAME_HOST | (t->remote.map ? CDP__SHARED : 0));
    if (h->count > 1 && h->most > 1 && n <= CDP__HOST_BEGINS) {
        g->is = h->fewest == h->most ? CDP__HOSTS | CDP__UNIFORM : CDP__HOSTS;
    } else { /* the list is not needed */
        cdp__free(g->os, list);
        h->ranks = NULL;
    }
    return host && list;
}

/* Allocates the group's arrays. After a failure cdp__group_free() frees those that exist. */
CDP__PRIVATE bool cdp__group_memory(cdp_group *g) {
    const uint32_t n = g->desc.world_size;
    g->peers = (cdp__peer *)cdp__alloc_zero(g->os, n * sizeof *g->peers);
    g->streams = (cdp__stream *)cdp__alloc_zero(g->os, n * sizeof *g->streams);
    g->queue = (cdp__op *)cdp__alloc_zero(g->os, g->queue_room * sizeof *g->queue);
    g->past = (cdp__past *)cdp__alloc_zero(g->os, g->desc.records * sizeof *g->past);
    return g->peers && g->streams && g->queue && g->past;
}

/* Creates a group over existing links. Takes ownership of `members` (NULL: all ranks) if it
   succeeds. Lock held if other threads use the world. */
CDP__PRIVATE cdp_group *cdp__group_make(
    cdp__world *m, const cdp_group_desc *desc, uint64_t channel, uint32_t *members) {
    cdp_group *g = (cdp_group *)cdp__alloc_zero(m->os, sizeof *g);
    bool good;
    if (!g) return NULL;
    g->magic = CDP__GROUP_MAGIC;
    g->os = m->os;
    g->w = m;
    g->desc = *desc;
    g->desc.transport = &m->transport;
    g->channel = channel;
    g->members = members;
    g->domain.channel = channel;
    g->domain.due_ns = g->wait_ns = CDP__NEVER;
    g->soonest_ns = g->revoke_ns = CDP__NEVER;
    g->queue_room = desc->operations;
    if (channel != CDP__WORLD_CHANNEL) g->queue_room = (uint32_t)cdp__min(desc->operations, 8);
    good = cdp__group_memory(g) && cdp__streams_reserve(m, desc->world_size)
        && (!m->transport.topology.host || cdp__group_read_topology(g));
    if (!good || !cdp__group_enter_streams(g)) {
        g->members = NULL; /* the caller keeps it */
        cdp__group_free(g);
        return NULL;
    }
    g->exec.w = m;
    g->exec.streams = g->streams;
    g->exec.piece_bytes = g->desc.piece_bytes;
    g->exec.expose_bytes = g->desc.expose_bytes;
    g->next = m->groups;
    m->groups = g;
    cdp__group_read_early(g);
    return g;
}

/* The number of the algorithm that `c` names. CDP__ALGO_COUNT: there is none; `known` then lists
   those of its collective. */
CDP__PRIVATE uint32_t cdp__choice_algo(const cdp_choice *c, char *known, uint64_t room) {
    cdp__text t = cdp__text_of(known, room);
    uint32_t a;
    for (a = 0; a < CDP__ALGO_COUNT; ++a) {
        const cdp__algo *algo = cdp__algo_at(a);
        if (algo->kind != c->kind) continue;
        if (c->algorithm && strcmp(algo->name, c->algorithm) == 0) return a;
        cdp__text_add(&t, "%s%s", t.used ? ", " : "", algo->name);
    }
    return a;
}

/* Reads the caller's rows of algorithm choices, and resolves the algorithms' names. */
CDP__PRIVATE cdp_status cdp__choices_read(cdp__world *m, const cdp_group_desc *desc) {
    cdp__row *rows = (cdp__row *)cdp__alloc(m->os, desc->choice_count * sizeof *rows);
    uint32_t i;
    m->choosing.rows = rows;
    m->choosing.small_bytes = cdp__def(desc->small_bytes, 64 * 1024);
    m->choosing.reproducible = desc->reproducible;
    if (!rows) return cdp__fail_nomem("a group", desc->choice_count * sizeof *rows);
#ifdef CDP_NO_REPRODUCIBLE
    if (desc->reproducible)
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "cdp_group_create: reproducible is set, but this program was built with "
            "CDP_NO_REPRODUCIBLE");
#endif
    if (desc->choice_count && !desc->choices)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_group_create: choice_count is %u but choices is NULL", desc->choice_count);
    for (i = 0; i < desc->choice_count; ++i) {
        const cdp_choice *c = &desc->choices[i];
        char known[160] = "";
        const uint32_t a = cdp__choice_algo(c, known, sizeof known);
        if (a == CDP__ALGO_COUNT)
            return cdp__fail(CDP_ERR_INVALID,
                "cdp_group_create: choices[%u]: there is no algorithm \"%s\" for %s; there is: %s",
                i, c->algorithm, cdp_coll_name(c->kind), known);
        if (desc->reproducible && !cdp__algo_at(a)->fixed)
            return cdp__fail(CDP_ERR_INVALID,
                "cdp_group_create: choices[%u]: the bits of %s depend on the message's size, which "
                "`reproducible` forbids",
                i, c->algorithm);
        rows[i].algo = (uint8_t)a;
        rows[i].max_bytes = cdp__min(c->max_bytes, CDP__TINY - 1);
        rows[i].max_ranks = c->max_ranks;
        rows[i].only = a < CDP__HOSTS_GATHER ? CDP__HOSTS : CDP__UNIFORM;
        if (a < CDP__LANES) rows[i].only = 0;
    }
    m->choosing.row_count = desc->choice_count;
    return CDP_OK;
}

/* Without a system the caller's cdp_os is required, and whole. */
CDP__PRIVATE bool cdp__group_has_os(const cdp_os *os) {
#ifdef CDP_NO_OS
    return os && os->alloc && os->release && os->now_ns && os->random;
#else
    (void)os;
    return true;
#endif
}

/* Checks the desc that the caller has filled in. */
CDP__PRIVATE cdp_status cdp__group_desc_check(const cdp_group_desc *desc) {
    const cdp_transport *t = desc->transport;
    const bool linked =
        t ? t->send && t->recv && t->wait && t->wake : desc->hub || desc->world_size == 1;
    if (desc->world_size - 1 >= 65535)
        return cdp__world_wrong("cdp_group_create", desc->world_size);
    if (desc->rank >= desc->world_size)
        return cdp__fail(CDP_ERR_INVALID, "cdp_group_create: rank %u is not below world_size %u",
            desc->rank, desc->world_size);
    if (!cdp__group_has_os(desc->os))
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_group_create: the library was compiled with CDP_NO_OS: set os in the desc, with "
            "alloc, release, now_ns and random");
    if (!linked)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_group_create: %u ranks need a hub or a transport with send, recv, wait and wake "
            "(or cdp_init_from_env of cdp_tcp.h)",
            desc->world_size);
    if (desc->window_bytes && (desc->window_bytes < 4096 || desc->window_bytes > CDP__WINDOW))
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_group_create: window_bytes %llu is not in 4096 .. %u; 0 is the default",
            (unsigned long long)desc->window_bytes, CDP__WINDOW);
    if (desc->dump_path && strlen(desc->dump_path) > 1000)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_group_create: dump_path has %u bytes; at most 1000 are kept",
            (unsigned)strlen(desc->dump_path));
#ifndef CDP_NO_RECORDER
    if (desc->dump_path && !(desc->os ? desc->os : cdp_os_default())->files.open_file)
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "cdp_group_create: dump_path is set and this cdp_os has no files; set its member "
            "`files`, or leave dump_path NULL");
#endif
    return CDP_OK;
}

/* The transport of a new group: the caller's, the hub's, or that of a rank without peers. */
CDP__PRIVATE cdp_status cdp__group_transport(const cdp_group_desc *desc, cdp_transport *t) {
    if (desc->transport) return CDP_OK;
    if (desc->hub) return cdp__hub_attach(desc->hub, desc->rank, desc->world_size, t);
    t->send = t->recv = cdp__alone_move;
    t->wait = cdp__alone_wait;
    t->wake = t->destroy = cdp__alone_nothing;
    return CDP_OK;
}

/* Starts the progress thread of the world, unless the desc forbids it. */
#ifdef CDP_NO_THREADS
CDP__PRIVATE cdp_status cdp__group_start_thread(cdp_group *g) {
    (void)g;
    return CDP_OK;
}
#else
CDP__PRIVATE cdp_status cdp__group_start_thread(cdp_group *g) {
    cdp__world *m = g->w;
    if (!m->cond || g->desc.no_thread || g->desc.world_size == 1) return CDP_OK;
    m->thread = g->os->threads.start(g->os, cdp__progress_thread, m);
    return m->thread ? CDP_OK
                     : cdp__fail(CDP_ERR_IO,
                         "cannot start the progress thread; set no_thread in the desc and call "
                         "cdp_poll() instead");
}
#endif

CDP_API CDP__COLD cdp_status cdp_group_create(const cdp_group_desc *desc, cdp_group **out) {
    cdp_group_desc d;
    cdp_transport t;
    cdp__world *m = NULL;
    cdp_status st;
    if (!desc || !out) return cdp__fail(CDP_ERR_INVALID, "cdp_group_create: desc or out is NULL");
    *out = NULL;
    d = *desc;
    cdp__group_desc_defaults(&d);
    memset(&t, 0, sizeof t);
    if (desc->transport) t = *desc->transport;
    st = cdp__group_desc_check(desc);
    if (st == CDP_OK) st = cdp__group_transport(desc, &t);
    if (st == CDP_OK) m = cdp__world_create(&d, &t);
    if (!m) {
        if (t.destroy) t.destroy(t.self);
        return st == CDP_OK
            ? cdp__fail_nomem("a group", d.world_size * sizeof(cdp__port) + d.stage_bytes)
            : st;
    }
    m->given = *desc;
    if (!desc->expose_bytes && !t.remote.try_revoke) d.expose_bytes = d.window_bytes + 1;
    st = cdp__choices_read(m, desc);
    if (st == CDP_ERR_INVALID && !desc->transport && desc->hub) cdp__hub_refuse(t.self);
    if (st == CDP_OK) *out = cdp__group_make(m, &d, CDP__WORLD_CHANNEL, NULL);
    if (st == CDP_OK && !*out) st = cdp__fail_nomem("a group", d.world_size * sizeof(cdp__peer));
    if (st != CDP_OK) {
        cdp__world_destroy(m);
        return st;
    }
    st = cdp__group_start_thread(*out);
    if (st == CDP_OK) return CDP_OK;
    cdp_group_destroy(*out);
    *out = NULL;
    return st;
}

/* ---- >>group/subgroups: groups of some ranks, and queries about a group ---------------------- */

/* Knows: groups and the ranks that they share. Promises: groups of the same ranks get equal numbers
   on every rank. */

#ifndef CDP_NO_GROUPS

/* A new channel number for a group: a hash of its ranks and of how many groups of these ranks
   exist. Equal on all ranks, and different for each group. */
CDP__PRIVATE uint64_t cdp__world_channel(cdp__world *m, uint64_t ranks) {
    cdp__made *made;
    for (made = m->made; made && made->ranks != ranks; made = made->next) {
    }
    if (!made) {
        made = (cdp__made *)cdp__alloc_zero(m->os, sizeof *made);
        if (!made) return 0;
        made->ranks = ranks;
        made->next = m->made;
        m->made = made;
    }
    ++made->count;
    /* neither 0 nor CDP__WORLD_CHANNEL */
    return cdp__hash(ranks, &made->count, sizeof made->count) | 2;
}

/* Creates a group of the world ranks world[0 .. count - 1]. Lock held. NULL: out of memory. */
CDP__PRIVATE cdp_group *cdp__group_of(
    cdp_group *parent, const uint32_t *world, uint32_t count, uint64_t channel, uint32_t records) {
    cdp_group_desc d = parent->desc;
    uint32_t *own = (uint32_t *)cdp__alloc(parent->os, count * sizeof *own);
    cdp_group *g;
    if (!own) return NULL;
    memcpy(own, world, count * sizeof *own);
    d.world_size = count;
    d.records = records;
    for (d.rank = 0; own[d.rank] != parent->w->rank; ++d.rank) {
    }
    g = cdp__group_make(parent->w, &d, channel, own);
    if (!g) cdp__free(parent->os, own);
    return g;
}

CDP_API CDP__COLD cdp_status cdp_group_new(
    cdp_group *parent, const uint32_t *ranks, uint32_t count, cdp_group **out) {
    uint32_t *world, i, k;
    uint64_t channel, hash = CDP__HASH_START;
    bool member = false;
    const cdp_status st = cdp__alive(parent, "cdp_group_new");
    if (st != CDP_OK) return st;
    if (!ranks || !out || !count)
        return cdp__fail(CDP_ERR_INVALID, "cdp_group_new: ranks or out is NULL, or count is 0");
    *out = NULL;
    for (i = 0; i < count; ++i) {
        if (ranks[i] >= parent->desc.world_size)
            return cdp__fail(CDP_ERR_INVALID,
                "cdp_group_new: rank %u is not below the parent's size %u", ranks[i],
                parent->desc.world_size);
        for (k = 0; k < i; ++k)
            if (ranks[k] == ranks[i])
                return cdp__fail(
                    CDP_ERR_INVALID, "cdp_group_new: rank %u is in the list twice", ranks[i]);
        member = member || ranks[i] == parent->desc.rank;
    }
    if (!member)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_group_new: this rank (%u) is not in the list; only the ranks of the new group "
            "make it",
            parent->desc.rank);
    world = (uint32_t *)cdp__alloc(parent->os, count * sizeof *world);
    if (!world) return cdp__fail_nomem("a group", count * sizeof *world);
    for (i = 0; i < count; ++i) {
        uint8_t bytes[4];
        world[i] = cdp__world_rank(parent, ranks[i]);
        cdp__put_u32(bytes, world[i]);
        hash = cdp__hash(hash, bytes, 4);
    }
    cdp__enter(parent);
    channel = cdp__world_channel(parent->w, hash);
    if (channel) *out = cdp__group_of(parent, world, count, channel, parent->desc.records);
    cdp__leave(parent);
    cdp__free(parent->os, world);
    return *out ? CDP_OK : cdp__fail_nomem("a group", count * sizeof(cdp__peer));
}

CDP_API CDP__COLD cdp_status cdp_group_split(
    cdp_group *parent, uint32_t color, uint32_t key, cdp_group **out) {
    const uint32_t n = cdp_size(parent), me = cdp_rank(parent);
    uint32_t *all, *ranks, count = 0, i, k;
    cdp_status st = cdp__alive(parent, "cdp_group_split");
    if (st != CDP_OK) return st;
    if (!out) return cdp__fail(CDP_ERR_INVALID, "cdp_group_split: out is NULL");
    *out = NULL;
    all = (uint32_t *)cdp__alloc(parent->os, 3ull * n * sizeof *all);
    if (!all) return cdp__fail_nomem("a split", 3ull * n * sizeof *all);
    ranks = all + 2 * n;
    all[2 * me] = color;
    all[2 * me + 1] = key;
    st = cdp_allgather(parent, NULL, all, 2, CDP_DTYPE_U32);
    /* insertion sort by key; ranks are read in order, so equal keys stay in rank order */
    for (i = 0; i < n && st == CDP_OK; ++i) {
        if (all[2 * i] != color) continue;
        for (k = count++; k && all[2 * ranks[k - 1] + 1] > all[2 * i + 1]; --k)
            ranks[k] = ranks[k - 1];
        ranks[k] = i;
    }
    if (st == CDP_OK && color != CDP_NO_COLOR) st = cdp_group_new(parent, ranks, count, out);
    cdp__free(parent->os, all);
    if (st == CDP_OK && cdp__backend_of(parent) && parent->backend->split)
        st = parent->backend->split(parent->backend->self, color, key, *out);
    if (st != CDP_OK && *out) {
        const cdp_error e = *cdp_last_error();
        cdp_group_destroy(*out);
        *out = NULL;
        *cdp__error_slot() = e;
    }
    return st;
}

#endif /* CDP_NO_GROUPS */

CDP_API uint32_t cdp_world_rank_of(const cdp_group *g, uint32_t rank) {
    return g && rank < g->desc.world_size ? cdp__world_rank(g, rank) : UINT32_MAX;
}

CDP_API uint32_t cdp_rank_of_world(const cdp_group *g, uint32_t world_rank) {
    uint32_t p;
    for (p = 0; g && p < g->desc.world_size; ++p)
        if (cdp__world_rank(g, p) == world_rank) return p;
    return UINT32_MAX;
}

CDP_API uint32_t cdp_rank(const cdp_group *g) {
    return g ? g->desc.rank : 0;
}
CDP_API uint32_t cdp_size(const cdp_group *g) {
    return g ? g->desc.world_size : 0;
}
CDP_API const cdp_group_desc *cdp_group_desc_of(const cdp_group *g) {
    return g ? &g->desc : NULL;
}

/* Copies the group's failure to this thread's last error. Lock held. OK while SETTLING, because
   the cause is not final yet. */
CDP__PRIVATE cdp_status cdp__group_report(cdp_group *g) {
    if (g->health != CDP__FAILED) return CDP_OK;
    *cdp__error_slot() = g->error;
    return g->error.status;
}

CDP_API void *cdp_group_alloc(cdp_group *g, uint64_t bytes) {
    const cdp_transport *t = g ? &g->w->transport : NULL;
    void *p = NULL;
    if (cdp__alive(g, "cdp_group_alloc") != CDP_OK) return NULL;
    cdp__enter(g);
    if (t->memory.alloc) p = t->memory.alloc(t->self, bytes);
    cdp__leave(g);
    if (!p && !(p = cdp__alloc(g->os, bytes))) cdp__fail_nomem("cdp_group_alloc", bytes);
    return p;
}

CDP_API void cdp_group_free(cdp_group *g, void *ptr) {
    bool taken = false;
    if (!ptr || cdp__alive(g, "cdp_group_free") != CDP_OK) return;
    cdp__enter(g);
    if (g->w->transport.memory.release)
        taken = g->w->transport.memory.release(g->w->transport.self, ptr);
    cdp__leave(g);
    if (!taken) cdp__free(g->os, ptr);
}

CDP_API cdp_status cdp_group_status(cdp_group *g) {
    cdp_status st;
    if (cdp__alive(g, "cdp_group_status") != CDP_OK) return cdp_last_error()->status;
    cdp__enter(g);
    st = cdp__group_report(g);
    cdp__leave(g);
    return st;
}

/* Fails the group with an error that needs no settling, and begins to tell peers. Lock held. */
CDP__PRIVATE void cdp__group_break(cdp_group *g, const cdp_error *e) {
    /* `e` may be this thread's last error, which telling peers changes */
    const cdp_error kept = *e;
    if (g->health == CDP__FAILED) return;
    /* overrides a cause that is still being settled */
    cdp__group_break_for(g, &kept);
    cdp__progress_poll(g->w);
    if (g->w->cond) g->os->threads.cond_broadcast(g->os->user, g->w->cond);
    if (g->w->sleeping) g->w->transport.wake(g->w->transport.self);
    *cdp__error_slot() = kept;
}

CDP_API void cdp_group_abort(cdp_group *g, const char *reason) {
    if (cdp__alive(g, "cdp_group_abort") != CDP_OK) return;
    cdp__fail_peer(CDP_ERR_ABORTED, g->w->rank, 0, "aborted: %s",
        reason && *reason ? reason : "no reason given");
    cdp__enter(g);
    cdp__group_break(g, cdp_last_error());
    cdp__leave(g);
}

CDP_API CDP__ONE_COPY cdp_status cdp_poll(cdp_group *g, uint32_t budget_us) {
    cdp__world *m;
    uint64_t until;
    cdp_status st = cdp__alive(g, "cdp_poll");
    if (st != CDP_OK) return st;
    m = g->w;
    until = m->os->now_ns(m->os->user) + budget_us * 1000ull;
    cdp__enter(g);
    /* even if nothing is in flight: another rank may have failed */
    cdp__world_poll_transport(m, until);
    cdp__progress_until(g, CDP__ALL_WORK, until, true);
    st = cdp__group_report(g);
    cdp__leave(g);
    return st;
}

/* ---- >>group/device: operations that a backend runs ------------------------------------------ */

/* Knows: the functions of a cdp_backend. Promises: an operation on memory that the backend owns is
   passed to the backend, and completes like any other work. */

#ifndef CDP_NO_BACKEND
CDP_API CDP__COLD cdp_status cdp_group_set_backend(cdp_group *g, const cdp_backend *backend) {
    cdp_backend *own;
    const cdp_status st = cdp__alive(g, "cdp_group_set_backend");
    if (st != CDP_OK) return st;
    if (!backend) return cdp__fail(CDP_ERR_INVALID, "cdp_group_set_backend needs a backend");
    if (g->backend)
        return cdp__fail(CDP_ERR_STATE, "cdp_group_set_backend: this group has a backend already");
    own = (cdp_backend *)cdp__alloc(g->os, sizeof *own);
    if (!own) return cdp__fail_nomem("a backend", sizeof *own);
    *own = *backend;
    cdp__enter(g);
    g->backend = own;
    g->backed = true;
    if (g->health == CDP__FAILED) own->failed(own->self, &g->error);
    cdp__leave(g);
    return CDP_OK;
}

CDP_API void cdp_group_clear_backend(cdp_group *g) {
    if (!g) return;
    cdp__enter(g);
    cdp__free(g->os, (void *)(uintptr_t)g->backend);
    g->backend = NULL;
    cdp__leave(g);
}
#endif /* CDP_NO_BACKEND */

CDP_API const cdp_backend *cdp_group_backend(const cdp_group *g) {
    return g ? cdp__backend_of(g) : NULL;
}

CDP_API CDP__ONE_COPY void cdp_group_fail(cdp_group *g) {
    if (!g) return;
    cdp__enter(g);
    cdp__group_break(g, cdp_last_error());
    cdp__leave(g);
}

/* Stores whether the buffers are in device memory. It is an error if one of them is and one is
   not. */
CDP__PRIVATE cdp_status cdp__device_claims(
    const cdp_group *g, const char *name, const void *in, const void *out, bool *device) {
    const cdp_backend *b = cdp__backend_of(g);
    const int i = b && in ? b->owns(b->self, in) : 0, o = b && out ? b->owns(b->self, out) : 0;
    *device = i > 0 || o > 0;
    if (i < 0 || o < 0) return (cdp_status)(i < 0 ? i : o);
    if (!in || !out || i == o) return CDP_OK;
    return cdp__fail(CDP_ERR_INVALID,
        "%s: the input is in %s memory but the result in %s memory; both must be in the same", name,
        i ? "device" : "host", o ? "device" : "host");
}

/* Handles the result of the backend's start or transfer. */
CDP__PRIVATE cdp_status cdp__device_begun(
    cdp_group *g, cdp_status st, uint64_t number, cdp_work *out) {
    if (st == CDP_OK) {
        out->group = g;
        out->seq = CDP__DEVICE_BIT | number;
        return CDP_OK;
    }
    if (!number) return st;
    cdp_group_fail(g);
    return cdp_group_status(g) != CDP_OK ? cdp_last_error()->status : st;
}

CDP__PRIVATE cdp_status cdp__device_start(
    cdp_group *g, const cdp_request *rqs, uint32_t n, cdp_work *out) {
    uint64_t number = 0;
    cdp_status st = cdp_group_status(g);
    if (st != CDP_OK) return st;
    st = g->backend->start(g->backend->self, rqs, n, &number);
    return cdp__device_begun(g, st, number, out);
}

CDP__PRIVATE cdp_status cdp__device_transfer(
    cdp_group *g, const cdp_transfer *list, uint32_t n, cdp_work *out) {
    uint64_t number = 0;
    cdp_status st = cdp_group_status(g);
    uint32_t i;
    for (i = 0; i < n && st == CDP_OK; ++i) {
        if (list[i].peer == CDP_ANY_RANK || list[i].got)
            st = cdp__fail(CDP_ERR_UNSUPPORTED,
                "device memory: a receive must say from which rank and how much; use cdp_recv()");
        if (list[i].row)
            st = cdp__fail(CDP_ERR_UNSUPPORTED,
                "device memory: a receive into rows; receive contiguous memory and copy it");
    }
    if (st != CDP_OK) return st;
    st = g->backend->transfer(g->backend->self, list, n, &number);
    return cdp__device_begun(g, st, number, out);
}

/* Waits for a work of the backend; see cdp_backend.wait for the deadline. */
CDP__PRIVATE cdp_status cdp__device_wait(cdp_work w, uint64_t deadline_ns) {
    cdp_group *g = w.group;
    cdp_status st = cdp_group_status(g);
    if (st != CDP_OK) return st;
    if (!cdp__backend_of(g))
        return cdp__fail(CDP_ERR_STATE, "this work's group has no backend any more");
    st = g->backend->wait(g->backend->self, w.seq & ~CDP__DEVICE_BIT, deadline_ns);
    if (st >= CDP_OK || st == CDP_ERR_INVALID || st == CDP_ERR_STATE) return st;
    cdp_group_fail(g);
    return cdp_group_status(g) != CDP_OK ? cdp_last_error()->status : st;
}

CDP__PRIVATE bool cdp__work_on_device(cdp_work w) {
#ifdef CDP_NO_BACKEND
    (void)w;
    return false;
#else
    return (w.seq & (CDP__DEFERRED_BIT | CDP__DEVICE_BIT)) == CDP__DEVICE_BIT;
#endif
}

CDP__PRIVATE cdp_status cdp__device_cannot(const char *call) {
    return cdp__fail(CDP_ERR_UNSUPPORTED,
        "%s: not with device memory; order it by the device's streams, or copy to host memory",
        call);
}

/* ---- >>group/requests: checks of the arguments of calls -------------------------------------- */

/* Knows: requests, groups' sizes. Promises: a mistake is reported in one sentence, and nothing was
   started. */

CDP__PRIVATE bool cdp__overlap(const void *a, const void *b, uint64_t a_bytes, uint64_t b_bytes) {
    const uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;
    return x < y + b_bytes && y < x + a_bytes;
}

/* Stores the number of elements of `in` and `out` on this rank; false if it exceeds 64 bits. */
CDP__PRIVATE bool cdp__request_lengths(
    const cdp_group *g, const cdp_request *rq, uint64_t *in, uint64_t *out) {
    const uint32_t n = g->desc.world_size;
    const cdp__kind *kind = cdp__kind_of(rq->kind);
    const bool root = g->desc.rank == rq->root, in_place = !rq->in || rq->in == rq->out;
    uint64_t in_all = 0, out_all = 0;
    uint32_t i;
    bool fits_in = rq->in_counts || cdp__mul_fits(rq->count, n, &in_all),
         fits_out = rq->out_counts || cdp__mul_fits(rq->count, n, &out_all);
    for (i = 0; i < n && rq->in_counts; ++i)
        fits_in = fits_in && (in_all += rq->in_counts[i]) >= rq->in_counts[i];
    for (i = 0; i < n && rq->out_counts; ++i)
        fits_out = fits_out && (out_all += rq->out_counts[i]) >= rq->out_counts[i];
    *in = cdp__extent_of(kind->in, rq->count, in_all, root);
    *out = cdp__extent_of(kind->out, rq->count, out_all, root);
    if (in_place) *out = cdp__max(*out, *in); /* `out` is the input, too */
    return (fits_in || !cdp__kind_parts_in(rq->kind))
        && (fits_out || !cdp__kind_parts_out(rq->kind));
}

/* Fills in the defaults. Members that an operation does not use are made equal on all ranks. */
CDP__PRIVATE cdp_status cdp__request_defaults(const cdp_group *g, cdp_request *rq) {
    const cdp_coll_kind k = rq->kind;
    if (!cdp__kind_is(k, CDP__KIND_STARTS))
        return cdp__fail(CDP_ERR_INVALID, "cdp_start: kind %d is no operation", (int)k);
    if (!rq->dtype) rq->dtype = CDP_DTYPE_F32;
    if (!rq->op) rq->op = CDP_REDUCE_SUM;
    if (!rq->timeout_ms) rq->timeout_ms = g->desc.timeout_ms;
    if (rq->factor == 0.0) rq->factor = 1.0;
    if ((uint32_t)rq->dtype >= CDP_DTYPE_COUNT)
        return cdp__fail(
            CDP_ERR_INVALID, "%s: dtype %d does not exist", cdp_coll_name(k), (int)rq->dtype);
    if ((uint32_t)rq->op >= CDP_REDUCE_COUNT)
        return cdp__fail(
            CDP_ERR_INVALID, "%s: reduction %d does not exist", cdp_coll_name(k), (int)rq->op);
    if (!cdp__kind_reduces(k)) rq->op = CDP_REDUCE_SUM;
    if (!cdp__kind_has_root(k) && !cdp__root_is_bucket(rq->root)) rq->root = 0;
    if (!cdp__kind_parts_in(k)) rq->in_counts = NULL;
    if (!cdp__kind_parts_out(k)) rq->out_counts = NULL;
    if (cdp__kind_exchanges(k)
        && (!rq->in_counts != !rq->out_counts
            || (rq->in_counts && rq->in_counts[g->desc.rank] != rq->out_counts[g->desc.rank])))
        return cdp__fail(CDP_ERR_INVALID,
            "%s: give both in_counts and out_counts, or neither; this rank's own part is equally "
            "long in both",
            cdp_coll_name(k));
    if (rq->in_counts) rq->count = rq->in_counts[g->desc.rank];
    if (rq->out_counts) rq->count = rq->out_counts[g->desc.rank];
    return CDP_OK;
}

/* Where this rank's part begins among all parts, in bytes. */
CDP__PRIVATE uintptr_t cdp__request_own_part(
    const cdp_group *g, const cdp_request *rq, const uint64_t *counts) {
    uint64_t before = counts ? 0 : rq->count * g->desc.rank;
    uint32_t i;
    for (i = 0; counts && i < g->desc.rank; ++i)
        before += counts[i];
    return (uintptr_t)(before * cdp_dtype_size(rq->dtype));
}

/* Recognises in-place calls in NCCL's form, too: the smaller buffer is this rank's own part of
   the larger one. On rank 0 this looks like in == out, so every rank accepts it. */
CDP__PRIVATE void cdp__request_in_place(const cdp_group *g, cdp_request *rq) {
    const bool root = g->desc.rank == rq->root || !cdp__kind_has_root(rq->kind);
    const bool parts_in = cdp__kind_parts_in(rq->kind), parts_out = cdp__kind_parts_out(rq->kind);
    if (!rq->in || !rq->out || !root || parts_in == parts_out) return;
    if (parts_out) {
        if ((uintptr_t)rq->in == (uintptr_t)rq->out + cdp__request_own_part(g, rq, rq->out_counts))
            rq->in = NULL;
        return;
    }
    if ((uintptr_t)rq->out != (uintptr_t)rq->in + cdp__request_own_part(g, rq, rq->in_counts))
        return;
    rq->out = (void *)(uintptr_t)rq->in;
    rq->in = NULL;
}

/* Checks a request for mistakes of the caller. *device: its buffers are in device memory. */
CDP__PRIVATE cdp_status cdp__request_check(const cdp_group *g, cdp_request *rq, bool *device) {
    const char *name = cdp_coll_name(rq->kind);
    const uint64_t size = cdp_dtype_size(rq->dtype ? rq->dtype : CDP_DTYPE_F32);
    uint64_t in, out;
    cdp_status st = cdp__request_defaults(g, rq);
    *device = false;
    if (st == CDP_OK) cdp__request_in_place(g, rq);
    if (st == CDP_OK && cdp__backend_of(g))
        st = cdp__device_claims(g, name, rq->in, rq->out, device);
    if (st != CDP_OK) return st;
    if (cdp__kind_reduces(rq->kind) && !*device && !cdp__reduce_exists(rq->dtype, rq->op))
        return cdp__fail(CDP_ERR_UNSUPPORTED, "%s: there is no %s of %s", name,
            cdp_reduce_name(rq->op), cdp_dtype_name(rq->dtype));
    if (cdp__kind_has_root(rq->kind) && rq->root >= g->desc.world_size)
        return cdp__fail(CDP_ERR_INVALID, "%s: root %u is not below world_size %u", name, rq->root,
            g->desc.world_size);
    if (!cdp__request_lengths(g, rq, &in, &out) || !cdp__mul_fits(in, size, &in)
        || !cdp__mul_fits(out, size, &out))
        return cdp__fail(CDP_ERR_INVALID, "%s: %llu x %s is more than 2^63 bytes", name,
            (unsigned long long)rq->count, cdp_dtype_name(rq->dtype));
    if (!cdp__kind_is(rq->kind, CDP__KIND_IN_PLACE) && (in || out)
        && (!rq->in || rq->in == rq->out))
        return cdp__fail(CDP_ERR_INVALID,
            "%s: it does not work in place; use separate memory for input and result", name);
    if (out && !rq->out)
        return cdp__fail(CDP_ERR_INVALID, "%s: the result pointer is NULL but count is %llu", name,
            (unsigned long long)rq->count);
    if ((out && (uintptr_t)rq->out % size) || (in && (uintptr_t)rq->in % size))
        return cdp__fail(CDP_ERR_INVALID,
            "%s: the %s is not aligned to its dtype %s; align it to %u bytes", name,
            out && (uintptr_t)rq->out % size ? "result" : "input", cdp_dtype_name(rq->dtype),
            (uint32_t)size);
    if (in && out && rq->in && rq->in != rq->out && cdp__overlap(rq->in, rq->out, in, out))
        return cdp__fail(CDP_ERR_INVALID,
            "%s: input and result overlap; use separate memory, or pass NULL as the input to work "
            "in place",
            name);
    return CDP_OK;
}

/* ---- >>group/queue: operations that wait for their turn -------------------------------------- */

/* Knows: the queue of a group. Promises: an operation is in the queue completely, or not at all. */

CDP__PRIVATE bool cdp__queue_grow(cdp_group *g) {
    const uint32_t room = g->queue_room * 2;
    cdp__op *q = (cdp__op *)cdp__alloc_zero(g->os, room * sizeof *q);
    uint32_t i;
    if (!q) return false;
    /* the queue is full: copy all entries */
    for (i = 0; i < g->queue_used; ++i)
        q[i] = g->queue[(g->queue_at + i) % g->queue_room];
    cdp__free(g->os, g->queue);
    g->queue = q;
    g->queue_room = room;
    g->queue_at = 0;
    return true;
}

/* Reads the caller's counts: stores where each part begins, and a hash of all counts, which
   ranks compare. */
CDP__PRIVATE bool cdp__op_parts(cdp_group *g, cdp__op *op) {
    const uint32_t n = g->desc.world_size;
    const cdp_request *rq = &op->rq;
    uint32_t i;
    op->parts = 0;
    if (!rq->in_counts && !rq->out_counts) return true;
    /* allocated once for all entries of the queue, so that later operations allocate nothing */
    for (i = 0; !op->offs && i < g->queue_room; ++i)
        if (!g->queue[i].offs)
            g->queue[i].offs =
                (uint64_t *)cdp__alloc_zero(g->os, 2 * (n + 1ull) * sizeof *op->offs);
    if (!op->offs) return false;
    for (i = 0; i < n; ++i) {
        if (rq->in_counts) op->offs[i + 1] = op->offs[i] + rq->in_counts[i];
        if (rq->out_counts) op->offs[n + 2 + i] = op->offs[n + 1 + i] + rq->out_counts[i];
    }
    op->parts = 1;
    if (!cdp__kind_exchanges(rq->kind)) {
        const uint64_t *offs = op->offs + (rq->in_counts ? 0 : n + 1);
        op->parts = cdp__hash(CDP__HASH_START, offs, (n + 1) * sizeof *offs) | 2;
    }
    return true;
}

/* Optional properties of an operation. */
typedef struct cdp__with {
    cdp_work after;
    void (*done)(void *user, uint64_t start_ns, uint64_t end_ns);
    void *user;
    bool device;
} cdp__with;

/* Polls a few times in the caller's thread, so that the first bytes are sent before its call
   returns; where that thread is to poll with budgets later, only as long as one step takes. Lock
   held. */
CDP__PRIVATE void cdp__first_moves(cdp_group *g) {
    const uint64_t before = g->w->poll_until_ns;
    uint32_t i;
    if (g->desc.no_thread) g->w->poll_until_ns = 1; /* over after one step */
    g->w->fast_poll = true;                         /* no deadline has passed yet */
    for (i = 0; i < CDP__FIRST_MOVES && cdp__group_poll(g) == CDP__MOVED; ++i) {
    }
    g->w->fast_poll = false;
    g->w->poll_until_ns = before;
    /* already complete: no thread is needed */
    if (!g->queue_used && !g->active_flows && g->health == CDP__HEALTHY && !cdp__group_settling(g)
        && g->w->active == g) {
        g->w->active = g->next_active;
        g->active = false;
    }
}

/* Appends an operation to the queue. cdp__first_moves() is next. Lock held. */
CDP__PRIVATE cdp_status cdp__enqueue(
    cdp_group *g, const cdp_request *rq, const cdp__with *with, cdp_work *out) {
    cdp_status st = cdp__group_report(g);
    cdp__op *op;
    if (st != CDP_OK) return st;
    if (g->queue_used == g->queue_room && !cdp__queue_grow(g))
        return cdp__fail_nomem("the queue of operations", 2 * g->queue_room * sizeof *op);
    op = &g->queue[(g->queue_at + g->queue_used) % g->queue_room];
    op->rq = *rq;
    if (!cdp__op_parts(g, op))
        return cdp__fail_nomem("uneven parts", 2 * g->desc.world_size * sizeof *op->offs);
    ++g->queue_used;
    op->seq = ++g->issued;
    op->after = with->after;
    op->start_ns = g->os->now_ns(g->os->user);
    op->deadline_ns =
        rq->timeout_ms == CDP_NO_TIMEOUT ? CDP__NEVER : op->start_ns + rq->timeout_ms * CDP__MS;
    if (g->queue_used > 1 || with->after.group) op->start_ns = 0; /* set when it begins */
    op->done = with->done;
    op->user = with->user;
    op->device = with->device;
    out->group = g;
    out->seq = op->seq;
    g->soonest_ns = cdp__min(g->soonest_ns, op->deadline_ns);
    cdp__group_activate(g);
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__start(cdp_group *g, const cdp_request *request,
    void (*done)(void *, uint64_t, uint64_t), void *user, cdp_work *out) {
    const cdp__with with = {{NULL, 0}, done, user, false};
    cdp_request rq;
    bool device;
    cdp_status st = cdp__alive_for(g, request ? request->kind : CDP_COLL_NONE);
    if (st != CDP_OK) return st;
    if (!request || !out)
        return cdp__fail(CDP_ERR_INVALID, "cdp_start needs a request and a pointer for the work");
    out->group = NULL;
    out->seq = 0;
    rq = *request;
    st = cdp__request_check(g, &rq, &device);
    if (st != CDP_OK) return st;
    if (device) {
        const uint64_t now = g->os->now_ns(g->os->user);
        if (done) done(user, now, now); /* the device's duration is not known here */
        return cdp__device_start(g, &rq, 1, out);
    }
    cdp__enter(g);
    st = cdp__enqueue(g, &rq, &with, out);
    if (st == CDP_OK) cdp__first_moves(g);
    cdp__leave(g);
    return st;
}

/* Work was started without waiting: makes sure that some thread makes progress for it. */
CDP__PRIVATE void cdp__hand_over(cdp_group *g) {
    cdp__world *m = g->w;
    if (!m->cond) return;
    cdp__enter(g);
    if (cdp__world_busy(m)) {
        /* the sleeping thread does not know of this work */
        if (m->sleeping)
            m->transport.wake(m->transport.self);
        else if (!m->callers)
            m->os->threads.cond_broadcast(m->os->user, m->park);
    }
    cdp__leave(g);
}

CDP_API cdp_status cdp_start(cdp_group *g, const cdp_request *request, cdp_work *out) {
    const cdp_status st = cdp__start(g, request, NULL, NULL, out);
    if (st == CDP_OK) cdp__hand_over(g);
    return st;
}

CDP__PRIVATE cdp_status cdp__device_start_all(
    cdp_group *g, const cdp_request *requests, uint32_t n, uint32_t devices, cdp_work *out) {
    cdp_request *own;
    cdp_status st = CDP_OK;
    uint32_t i;
    bool device;
    if (devices != n)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_start_all: %u of %u requests are in device memory; start those and the others "
            "apart",
            devices, n);
    own = (cdp_request *)cdp__alloc(g->os, n * sizeof *own);
    if (!own) return cdp__fail_nomem("a list of requests", n * sizeof *own);
    for (i = 0; i < n && st == CDP_OK; ++i) {
        own[i] = requests[i];
        st = cdp__request_check(g, &own[i], &device);
    }
    if (st == CDP_OK) st = cdp__device_start(g, own, n, out);
    cdp__free(g->os, own);
    return st;
}

#ifndef CDP_NO_BACKEND
CDP_API cdp_status cdp_group_compare(
    cdp_group *g, const cdp_request *requests, uint32_t n, bool wait) {
    const cdp__with with = {{NULL, 0}, NULL, NULL, true};
    cdp_work w = {NULL, 0};
    cdp_status st = cdp__alive(g, "cdp_group_compare");
    uint32_t i;
    if (st == CDP_OK && !requests)
        st = cdp__fail(CDP_ERR_INVALID, "cdp_group_compare needs requests");
    for (i = 0; i < n && st == CDP_OK; ++i) {
        cdp_request rq = requests[i];
        if (!rq.timeout_ms) rq.timeout_ms = g->desc.timeout_ms;
        cdp__enter(g);
        st = cdp__enqueue(g, &rq, &with, &w);
        if (st == CDP_OK) cdp__first_moves(g);
        /* bounds how many calls are queued before they are compared */
        wait = wait || g->queue_used > 256;
        cdp__leave(g);
    }
    if (st == CDP_OK) cdp__hand_over(g);
    return st == CDP_OK && wait ? cdp_work_wait(w) : st;
}
#endif /* CDP_NO_BACKEND */

CDP_API cdp_status cdp_start_all(
    cdp_group *g, const cdp_request *requests, uint32_t n, cdp_work *out) {
    uint32_t i, devices = 0;
    bool device;
    cdp_status st = cdp__alive(g, "cdp_start_all");
    if (st != CDP_OK) return st;
    if (!requests || !n || !out)
        return cdp__fail(
            CDP_ERR_INVALID, "cdp_start_all needs requests and a pointer for the work");
    out->group = NULL;
    out->seq = 0;
    for (i = 0; i < n && st == CDP_OK; ++i) {
        cdp_request rq = requests[i];
        st = cdp__request_check(g, &rq, &device);
        devices += device ? 1 : 0;
    }
    if (st == CDP_OK && devices) return cdp__device_start_all(g, requests, n, devices, out);
    for (i = 0; i < n && st == CDP_OK; ++i)
        st = cdp__start(g, &requests[i], NULL, NULL, out);
    if (st == CDP_OK)
        cdp__hand_over(g);
    else if (i > 1)
        cdp_group_fail(g); /* out of memory after a part was started */
    return st;
}

/* ---- >>group/work_calls: waiting, testing, chaining, cancelling ------------------------------ */

/* Knows: works of all kinds. Promises: a wait ends by the deadline of its work. */

/* Lock held. */
CDP__PRIVATE cdp_status cdp__work_state(cdp_work w) {
    const cdp_status st = cdp__work_status(w.group, w.seq);
    if (st != CDP_OK && !cdp__work_exists(w.group, w.seq))
        return cdp__fail(CDP_ERR_INVALID,
            "work #%llu was not started in this group; pass what cdp_start() has filled in",
            (unsigned long long)w.seq);
    return st < CDP_OK ? cdp__work_explain(w.group, st) : st;
}

CDP__PRIVATE cdp_status cdp__work_wait_locked(cdp_work w, uint64_t deadline_ns, bool budget) {
    cdp_status st;
    ++w.group->waiters;
    cdp__progress_until(w.group, w.seq, deadline_ns, budget);
    st = cdp__work_state(w);
    /* last access: a thread that destroys the group waits until this is 0 */
    --w.group->waiters;
    return st;
}

CDP__PRIVATE cdp_status cdp__work_wait_until(cdp_work w, uint64_t deadline_ns) {
    cdp_group *g = w.group;
    cdp__world *m;
    cdp_status st;
    if (!g || !w.seq) return CDP_OK;
    st = cdp__alive(g, "waiting for a work");
    if (st != CDP_OK) return st;
    if (cdp__work_on_device(w)) return cdp__device_wait(w, deadline_ns);
    m = g->w;
    cdp__enter(g);
    st = cdp__work_state(w);
    if (st == CDP_PENDING && (st = cdp__must_not_wait()) == CDP_OK)
        st = cdp__work_wait_locked(w, deadline_ns, false);
    cdp_lock_release(&m->lock);
    return st;
}

CDP_API CDP__ONE_COPY cdp_status cdp_work_wait(cdp_work w) {
    const cdp_status st = cdp__work_wait_until(w, CDP__NEVER);
    return st == CDP_PENDING ? cdp__fail(
               CDP_ERR_INTERNAL, "the wait ended, but its work has no result; this is a bug of cdp")
                             : st;
}

CDP_API cdp_status cdp_work_wait_for(cdp_work w, uint32_t timeout_ms) {
    if (!w.group || !w.seq) return CDP_OK;
    if (cdp__alive(w.group, "cdp_work_wait_for") != CDP_OK) return cdp_last_error()->status;
    return cdp__work_wait_until(w, cdp__deadline(w.group->os, timeout_ms));
}

/* As cdp_work_wait_for(), of an operation on host memory. As long as the operation runs, `arrived`
   is called with what cdp__op_arrived() returns, so that data can be read while it is in a cache.
   It is called with the lock of the group held, and must not call functions of a group. */
CDP__PRIVATE cdp_status cdp__work_wait_arriving(
    cdp_work w, uint32_t timeout_ms, void (*arrived)(void *user, uint64_t bytes), void *user) {
    cdp_group *g = w.group;
    cdp__progress t;
    cdp_status st;
    cdp__enter(g);
    st = cdp__work_state(w);
    if (st == CDP_PENDING && (st = cdp__must_not_wait()) == CDP_OK) {
        ++g->waiters;
        cdp__progress_begin(&t, g, w.seq, cdp__deadline(g->os, timeout_ms), false);
        while (cdp__progress_next(&t)) {
            t.polled = cdp__world_poll(g->w);
            arrived(user, cdp__op_arrived(g, w.seq));
        }
        st = cdp__work_state(w);
        --g->waiters;
    }
    cdp_lock_release(&g->w->lock);
    return st;
}

#ifndef CDP_NO_FRAMES
CDP_API cdp_status cdp_work_poll(cdp_work w, uint32_t budget_us) {
    cdp_group *g = w.group;
    cdp__world *m;
    uint64_t until;
    cdp_status st;
    if (!g || !w.seq) return CDP_OK;
    st = cdp__alive(g, "cdp_work_poll");
    if (st != CDP_OK) return st;
    m = g->w;
    until = m->os->now_ns(m->os->user) + budget_us * 1000ull;
    if (cdp__work_on_device(w)) return cdp__device_wait(w, until);
    cdp__enter(g);
    st = cdp__work_state(w);
    if (st == CDP_PENDING && !*cdp__inside()) {
        cdp__world_poll_transport(m, until);
        st = cdp__work_wait_locked(w, until, true);
    }
    cdp_lock_release(&m->lock);
    return st;
}

#endif

CDP_API cdp_status cdp_work_test(cdp_work w) {
    cdp_group *g = w.group;
    cdp_status st;
    if (!g || !w.seq) return CDP_OK;
    st = cdp__alive(g, "cdp_work_test");
    if (st != CDP_OK) return st;
    if (cdp__work_on_device(w)) return cdp__device_wait(w, 0);
    cdp__enter(g);
    if (!g->w->thread) { /* all that can move now */
        if (!g->w->sleeping) cdp__world_wait(g->w, NULL, 0);
        cdp__progress_until(g, CDP__ALL_WORK, 0, false);
    }
    st = cdp__work_state(w);
    cdp__leave(g);
    return st;
}

CDP_API cdp_status cdp_work_error(cdp_work w, cdp_error *out) {
    const cdp_error before = *cdp_last_error();
    cdp_status st = CDP_OK;
    if (!out) return cdp__fail(CDP_ERR_INVALID, "cdp_work_error needs a pointer for the error");
    if (w.group && w.seq) {
        st = cdp__alive(w.group, "cdp_work_error");
        if (st != CDP_OK) return st;
        cdp__enter(w.group);
        st = cdp__work_state(w);
        cdp__leave(w.group);
    }
    if (st < CDP_OK)
        *out = *cdp_last_error();
    else
        cdp__error_clear(out, st);
    *cdp__error_slot() = before;
    return st;
}

#ifndef CDP_NO_CHAINS

CDP_API cdp_status cdp_work_then(
    cdp_work w, cdp_status (*func)(void *user, cdp_status status), void *user, cdp_work *next) {
    cdp_work none;
    cdp__deferred *s;
    if (next) {
        next->group = NULL;
        next->seq = 0;
    }
    if (!w.group || !w.seq || !func)
        return cdp__fail(CDP_ERR_INVALID, "cdp_work_then needs a work and a function");
    if (cdp__alive(w.group, "cdp_work_then") != CDP_OK) return cdp_last_error()->status;
    if (cdp__work_on_device(w)) return cdp__device_cannot("cdp_work_then");
    cdp__enter(w.group);
    if (cdp__work_state(w) == CDP_ERR_INVALID) {
        cdp__leave(w.group);
        return CDP_ERR_INVALID;
    }
    s = cdp__deferred_open(cdp__group_top(w.group), CDP__DEFERRED_THEN, next ? next : &none);
    if (s) {
        s->after = w;
        s->func = func;
        s->user = user;
        cdp__deferred_enlist(s);
    }
    cdp__leave(w.group);
    if (!s) return cdp_last_error()->status;
    cdp__hand_over(w.group);
    return CDP_OK;
}

CDP_API cdp_status cdp_start_after(
    cdp_group *g, const cdp_request *request, cdp_work after, cdp_work *out) {
    cdp__with with;
    cdp_request rq;
    bool device;
    cdp_status st = cdp__alive(g, "cdp_start_after");
    if (st != CDP_OK) return st;
    if (!request || !out)
        return cdp__fail(
            CDP_ERR_INVALID, "cdp_start_after needs a request and a pointer for the work");
    if (after.group && after.seq && cdp__alive(after.group, "cdp_start_after") != CDP_OK)
        return cdp_last_error()->status;
    out->group = NULL;
    out->seq = 0;
    if (after.group && after.group->w != g->w)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_start_after: the work belongs to another world; wait for it instead");
    rq = *request;
    st = cdp__request_check(g, &rq, &device);
    if (st == CDP_OK && (device || cdp__work_on_device(after)))
        st = cdp__device_cannot("cdp_start_after");
    if (st != CDP_OK) return st;
    memset(&with, 0, sizeof with);
    if (after.seq) with.after = after;
    cdp__enter(g);
    if (after.group && after.seq) st = cdp__work_state(after);
    if (st != CDP_ERR_INVALID) st = cdp__enqueue(g, &rq, &with, out);
    if (st == CDP_OK) cdp__first_moves(g);
    cdp__leave(g);
    if (st == CDP_OK) cdp__hand_over(g);
    return st;
}

CDP__PRIVATE cdp_status cdp__deferred_cancel(cdp_group *g, uint64_t seq) {
    cdp__deferred *s = g->deferred + (seq & 0xffff);
    const cdp__deferred *x = g->w->pending;
    while (x && x != s)
        x = x->next;
    if (s->kind == CDP__DEFERRED_BATCH)
        return cdp__fail(CDP_ERR_STATE,
            "cdp_work_cancel: a batch cannot be cancelled; abort the group, or start its messages "
            "one by one");
    if (s->kind == CDP__DEFERRED_CALL)
        return cdp__fail(CDP_ERR_STATE,
            "cdp_work_cancel: this work belongs to a remote call; cancel that with "
            "cdp_call_cancel()");
    if (!x && s->kind == CDP__DEFERRED_THEN)
        return cdp__fail(CDP_ERR_STATE, "cdp_work_cancel: the function is being called");
    if (!x) { /* it was turned into a receive from one rank */
        const cdp_status st = cdp__post_cancel(s->after.group, s->after.seq);
        if (st != CDP_OK) return st;
    }
    cdp__deferred_end_wait(s);
    cdp__deferred_close(s, true);
    return CDP_OK;
}

CDP_API CDP__COLD cdp_status cdp_work_cancel(cdp_work w) {
    cdp_group *g = w.group;
    cdp_status st;
    if (!g || !w.seq) return cdp__fail(CDP_ERR_INVALID, "cdp_work_cancel needs a work");
    st = cdp__alive(g, "cdp_work_cancel");
    if (st != CDP_OK) return st;
    if (cdp__work_on_device(w)) return cdp__device_cannot("cdp_work_cancel");
    cdp__enter(g);
    st = cdp__work_state(w);
    if (st == CDP_OK) {
        st = cdp__fail(CDP_ERR_STATE, "cdp_work_cancel: it is done already");
    } else if (st == CDP_PENDING && g->health != CDP__HEALTHY) {
        st = cdp__fail(CDP_ERR_STATE, "cdp_work_cancel: its group is failing; wait for it");
    } else if (st == CDP_PENDING) {
        if (w.seq & CDP__DEFERRED_BIT) {
            st = cdp__deferred_cancel(g, w.seq);
        } else if (w.seq & CDP__POST_BIT) {
            st = cdp__post_cancel(g, w.seq);
        } else {
            cdp__fail_peer(CDP_ERR_ABORTED, g->w->rank, 0,
                "operation #%llu was cancelled by rank %u", (unsigned long long)w.seq, g->w->rank);
            cdp__group_break(g, cdp_last_error());
            st = CDP_OK;
        }
        cdp__world_wake(g->w);
    }
    cdp__leave(g);
    return st;
}

#endif /* CDP_NO_CHAINS */

#ifndef CDP_NO_BACKEND

#define CDP__WATCH_MS 500u

/* Polls a neighbour, for a backend whose work may wait for it. A neighbour that has left in good
   order is no failure. */
CDP__PRIVATE bool cdp__watch_poll(cdp__deferred *s, uint64_t now) {
    cdp_group *g = s->of;
    cdp__peer *peer = &g->peers[s->want.peer];
    const cdp__stream *stream = &g->streams[s->want.peer];
    if (g->health != CDP__HEALTHY) {
        cdp__deferred_unlist(s);
        return true;
    }
    if (!peer->lost) {
        /* the poll right after the one that read */
        if (s->left) {
            s->left = 0;
            s->deadline_ns = CDP__NEVER;
            return false;
        }
        if (now < s->arrivals) {
            s->deadline_ns = s->arrivals;
            return false;
        }
        s->arrivals = now + CDP__POLL_PEERS_MS * CDP__MS;
        s->left = 1;
        if (cdp__port_pump(g->w, stream->peer, NULL) < 0) {
            peer->lost = true;
            s->deadline_ns = now + CDP__WATCH_MS * CDP__MS;
        }
        /* other ranks may have failed */
        if (g->channel != CDP__WORLD_CHANNEL && g->health == CDP__HEALTHY)
            (void)cdp__group_poll_peers(g);
        return true; /* another thread may wait for messages just stored */
    }
    if (now < s->deadline_ns) return false;
    s->deadline_ns = now + CDP__WATCH_MS * CDP__MS;
    if (stream->left || !g->backend || g->backend->wait(g->backend->self, 0, 0) == CDP_OK)
        return false;
    cdp__fail_peer(CDP_ERR_PEER_LOST, stream->peer, 0,
        "rank %u has died, or left, while operations in device memory wait for it", stream->peer);
    cdp__group_fail_last(g);
    return true;
}

CDP_API cdp_status cdp_group_watch(cdp_group *g, uint32_t peer) {
    cdp_work none;
    cdp__deferred *s;
    const cdp_status st = cdp__alive(g, "cdp_group_watch");
    if (st != CDP_OK) return st;
    if (peer >= g->desc.world_size || peer == g->desc.rank)
        return cdp__fail(
            CDP_ERR_INVALID, "cdp_group_watch: %u is no other rank of this group", peer);
    cdp__enter(g);
    s = cdp__deferred_open(g, CDP__DEFERRED_ANY, &none);
    if (s) {
        s->of = g;
        s->want.peer = peer;
        s->poll = cdp__watch_poll;
        s->arrivals = 0;
        s->left = 0;
        cdp__deferred_enlist(s);
    }
    cdp__leave(g);
    if (s) cdp__hand_over(g);
    return s ? CDP_OK : cdp_last_error()->status;
}

#endif /* CDP_NO_BACKEND */

/* ---- >>group/collective_calls: the named operations ------------------------------------------ */

/* Knows: requests. Promises: a blocking call returns when its operation has ended, or by its
   deadline. */

CDP__PRIVATE cdp_request cdp__request_of(cdp_coll_kind kind, const void *in, void *out,
    uint64_t count, cdp_dtype dtype, cdp_reduce_op op, uint32_t root) {
    cdp_request rq;
    memset(&rq, 0, sizeof rq);
    rq.kind = kind;
    rq.in = in;
    rq.out = out;
    rq.count = count;
    rq.dtype = dtype;
    rq.op = op;
    rq.root = root;
    return rq;
}

/* Starts an operation and waits until it has ended. `counts`: the lengths of all parts, or NULL. */
CDP__PRIVATE cdp_status cdp__collective(cdp_group *g, cdp_coll_kind kind, const void *in, void *out,
    uint64_t count, cdp_dtype dtype, cdp_reduce_op op, uint32_t root, const uint64_t *counts) {
    const cdp__with with = {{NULL, 0}, NULL, NULL, false};
    cdp_request rq = cdp__request_of(kind, in, out, count, dtype, op, root);
    cdp_work w = {NULL, 0};
    cdp__world *m;
    cdp__progress t;
    bool device;
    cdp_status st = cdp__must_not_wait();
    rq.in_counts = rq.out_counts = counts; /* an operation uses those that it has */
    if (st == CDP_OK) st = cdp__alive_for(g, kind);
    if (st == CDP_OK) st = cdp__request_check(g, &rq, &device);
    if (st == CDP_OK && device) {
        st = cdp__device_start(g, &rq, 1, &w);
        return st == CDP_OK ? cdp__device_wait(w, CDP__NEVER) : st;
    }
    if (st != CDP_OK) return st;
    m = g->w;
    cdp__enter(g);
    st = cdp__enqueue(g, &rq, &with, &w); /* no hand-over: this thread makes the progress */
    if (st == CDP_OK) cdp__first_moves(g);
    if (st == CDP_OK && (st = cdp__work_state(w)) == CDP_PENDING) {
        ++g->waiters;
        cdp__progress_begin(&t, g, w.seq, CDP__NEVER, false);
        /* as cdp__progress_until(), but here: the walk in the head of this file stays short */
        while (cdp__progress_next(&t))
            t.polled = cdp__world_poll(m);
        st = cdp__work_state(w);
        --g->waiters; /* last access: a thread that destroys the group waits until this is 0 */
    }
    cdp_lock_release(&m->lock);
    return st == CDP_PENDING ? cdp__fail(
               CDP_ERR_INTERNAL, "the wait ended, but its work has no result; this is a bug of cdp")
                             : st;
}

CDP__PRIVATE cdp_status cdp__collective_async(cdp_group *g, cdp_work *work, cdp_coll_kind kind,
    const void *in, void *out, uint64_t count, cdp_dtype dtype, cdp_reduce_op op, uint32_t root) {
    const cdp_request rq = cdp__request_of(kind, in, out, count, dtype, op, root);
    return cdp_start(g, &rq, work);
}

CDP_API cdp_status cdp_barrier(cdp_group *g) {
    return cdp__collective(
        g, CDP_COLL_BARRIER, NULL, NULL, 0, CDP_DTYPE_U8, CDP_REDUCE_DEFAULT, 0, NULL);
}

CDP_API cdp_status cdp_barrier_async(cdp_group *g, cdp_work *work) {
    return cdp__collective_async(
        g, work, CDP_COLL_BARRIER, NULL, NULL, 0, CDP_DTYPE_U8, CDP_REDUCE_DEFAULT, 0);
}

CDP_API cdp_status cdp_allreduce(
    cdp_group *g, const void *in, void *out, uint64_t count, cdp_dtype dtype, cdp_reduce_op op) {
    return cdp__collective(g, CDP_COLL_ALLREDUCE, in, out, count, dtype, op, 0, NULL);
}

CDP_API cdp_status cdp_allreduce_async(cdp_group *g, const void *in, void *out, uint64_t count,
    cdp_dtype dtype, cdp_reduce_op op, cdp_work *work) {
    return cdp__collective_async(g, work, CDP_COLL_ALLREDUCE, in, out, count, dtype, op, 0);
}

CDP_API cdp_status cdp_broadcast(
    cdp_group *g, void *data, uint64_t count, cdp_dtype dtype, uint32_t root) {
    return cdp__collective(
        g, CDP_COLL_BROADCAST, NULL, data, count, dtype, CDP_REDUCE_DEFAULT, root, NULL);
}

CDP_API cdp_status cdp_broadcast_async(
    cdp_group *g, void *data, uint64_t count, cdp_dtype dtype, uint32_t root, cdp_work *work) {
    return cdp__collective_async(
        g, work, CDP_COLL_BROADCAST, NULL, data, count, dtype, CDP_REDUCE_DEFAULT, root);
}

CDP_API cdp_status cdp_allgather(
    cdp_group *g, const void *in, void *out, uint64_t count, cdp_dtype dtype) {
    return cdp__collective(
        g, CDP_COLL_ALLGATHER, in, out, count, dtype, CDP_REDUCE_DEFAULT, 0, NULL);
}

CDP_API cdp_status cdp_allgather_async(
    cdp_group *g, const void *in, void *out, uint64_t count, cdp_dtype dtype, cdp_work *work) {
    return cdp__collective_async(
        g, work, CDP_COLL_ALLGATHER, in, out, count, dtype, CDP_REDUCE_DEFAULT, 0);
}

CDP_API cdp_status cdp_reduce(cdp_group *g, const void *in, void *out, uint64_t count,
    cdp_dtype dtype, cdp_reduce_op op, uint32_t root) {
    return cdp__collective(g, CDP_COLL_REDUCE, in, out, count, dtype, op, root, NULL);
}

CDP_API cdp_status cdp_reduce_async(cdp_group *g, const void *in, void *out, uint64_t count,
    cdp_dtype dtype, cdp_reduce_op op, uint32_t root, cdp_work *work) {
    return cdp__collective_async(g, work, CDP_COLL_REDUCE, in, out, count, dtype, op, root);
}

CDP_API cdp_status cdp_gather(
    cdp_group *g, const void *in, void *out, uint64_t count, cdp_dtype dtype, uint32_t root) {
    return cdp__collective(
        g, CDP_COLL_GATHER, in, out, count, dtype, CDP_REDUCE_DEFAULT, root, NULL);
}

CDP_API cdp_status cdp_gather_async(cdp_group *g, const void *in, void *out, uint64_t count,
    cdp_dtype dtype, uint32_t root, cdp_work *work) {
    return cdp__collective_async(
        g, work, CDP_COLL_GATHER, in, out, count, dtype, CDP_REDUCE_DEFAULT, root);
}

CDP_API cdp_status cdp_scatter(
    cdp_group *g, const void *in, void *out, uint64_t count, cdp_dtype dtype, uint32_t root) {
    return cdp__collective(
        g, CDP_COLL_SCATTER, in, out, count, dtype, CDP_REDUCE_DEFAULT, root, NULL);
}

CDP_API cdp_status cdp_scatter_async(cdp_group *g, const void *in, void *out, uint64_t count,
    cdp_dtype dtype, uint32_t root, cdp_work *work) {
    return cdp__collective_async(
        g, work, CDP_COLL_SCATTER, in, out, count, dtype, CDP_REDUCE_DEFAULT, root);
}

CDP_API cdp_status cdp_reduce_scatter(
    cdp_group *g, const void *in, void *out, uint64_t count, cdp_dtype dtype, cdp_reduce_op op) {
    return cdp__collective(g, CDP_COLL_REDUCE_SCATTER, in, out, count, dtype, op, 0, NULL);
}

CDP_API cdp_status cdp_reduce_scatter_async(cdp_group *g, const void *in, void *out, uint64_t count,
    cdp_dtype dtype, cdp_reduce_op op, cdp_work *work) {
    return cdp__collective_async(g, work, CDP_COLL_REDUCE_SCATTER, in, out, count, dtype, op, 0);
}

CDP_API cdp_status cdp_alltoall(
    cdp_group *g, const void *in, void *out, uint64_t count, cdp_dtype dtype) {
    return cdp__collective(
        g, CDP_COLL_ALLTOALL, in, out, count, dtype, CDP_REDUCE_DEFAULT, 0, NULL);
}

CDP_API cdp_status cdp_alltoall_async(
    cdp_group *g, const void *in, void *out, uint64_t count, cdp_dtype dtype, cdp_work *work) {
    return cdp__collective_async(
        g, work, CDP_COLL_ALLTOALL, in, out, count, dtype, CDP_REDUCE_DEFAULT, 0);
}

/* ---- >>group/message_calls: sends and receives ----------------------------------------------- */

/* Knows: flows, receives from any rank. Promises: a call that returns an error at once has started
   nothing. */

#ifndef CDP_NO_MESSAGES

CDP__PRIVATE CDP__ONE_COPY cdp_transfer cdp__transfer_of(
    bool receive, const void *data, uint64_t count, cdp_dtype dtype, uint32_t peer, uint32_t tag) {
    cdp_transfer t;
    memset(&t, 0, sizeof t);
    t.receive = receive;
    t.data = (void *)(uintptr_t)data;
    t.count = count;
    t.dtype = dtype;
    t.peer = peer;
    t.tag = tag;
    return t;
}

CDP__PRIVATE cdp_status cdp__transfer_check_rows(const cdp_transfer *t, uint64_t size) {
    uint64_t bytes;
    if (!t->row && !t->step) return CDP_OK;
    if (!t->receive)
        return cdp__fail(CDP_ERR_INVALID, "cdp_batch: a send of rows; pack them before");
    if (!t->row || t->step < t->row)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_batch: rows of %llu elements that begin %llu apart; row must be at least 1 and "
            "step at least row",
            (unsigned long long)t->row, (unsigned long long)t->step);
    if (!cdp__mul_fits(t->step, size, &bytes)
        || !cdp__mul_fits(t->count / t->row + 1, bytes, &bytes))
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_batch: %llu elements in rows %llu apart are more "
            "than 2^63 bytes",
            (unsigned long long)t->count, (unsigned long long)t->step);
    return CDP_OK;
}

/* Checks a transfer for mistakes of the caller, and fills in the defaults. */
CDP__PRIVATE cdp_status cdp__transfer_check(const cdp_group *g, cdp_transfer *t, const void *out) {
    const char *name = t->receive ? "cdp_recv" : "cdp_send";
    uint64_t bytes, size;
    const cdp_status st = cdp__alive(g, name);
    if (st != CDP_OK) return st;
    if (!out) return cdp__fail(CDP_ERR_INVALID, "%s needs a pointer for the work", name);
    if (!t->dtype) t->dtype = CDP_DTYPE_F32;
    size = cdp_dtype_size(t->dtype);
    if (t->peer >= g->desc.world_size && !(t->receive && t->peer == CDP_ANY_RANK))
        return cdp__fail(CDP_ERR_INVALID, "%s: rank %u is not below world_size %u", name, t->peer,
            g->desc.world_size);
    if (t->peer == g->desc.rank)
        return cdp__fail(CDP_ERR_INVALID, "%s: rank %u is this rank; copy the data", name, t->peer);
    if (t->peer == CDP_ANY_RANK && g->desc.world_size == 1)
        return cdp__fail(CDP_ERR_INVALID, "%s: there is no other rank in this group", name);
    if (t->tag == CDP__TAG_BARRIER)
        return cdp__fail(CDP_ERR_INVALID,
            "%s: tag %u is reserved; use a smaller one (no tag means 'any tag')", name, t->tag);
    if (!size)
        return cdp__fail(CDP_ERR_INVALID, "%s: dtype %d does not exist", name, (int)t->dtype);
    if (!cdp__mul_fits(t->count, size, &bytes))
        return cdp__fail(CDP_ERR_INVALID, "%s: %llu x %s is more than 2^63 bytes", name,
            (unsigned long long)t->count, cdp_dtype_name(t->dtype));
    if (bytes && !t->data)
        return cdp__fail(CDP_ERR_INVALID, "%s: the data pointer is NULL but count is %llu", name,
            (unsigned long long)t->count);
    if (bytes && (uintptr_t)t->data % size)
        return cdp__fail(CDP_ERR_INVALID,
            "%s: the data is not aligned to its dtype %s; align it to %u bytes", name,
            cdp_dtype_name(t->dtype), (uint32_t)size);
    return cdp__transfer_check_rows(t, size);
}

/* Posts a message with checked arguments, without polling it. Lock held. */
CDP__PRIVATE cdp_status cdp__message_post(cdp_group *g, const cdp_transfer *t,
    void (*done)(void *, uint64_t, uint64_t), void *user, cdp_work *out) {
    cdp_status st = cdp__group_report(g);
    cdp__flow *flow;
    flow = st == CDP_OK ? cdp__flow_open(g, t->peer, t->tag) : NULL;
    if (st == CDP_OK && !flow) st = cdp__fail_nomem("a message", sizeof *flow);
    if (st == CDP_OK) st = cdp__flow_post(flow, t, done, user, out);
    if (st != CDP_OK) return st;
    if (t->receive && t->got) {
        t->got->source = t->peer;
        t->got->tag = t->tag;
        t->got->dtype = t->dtype;
    }
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__message_locked(cdp_group *g, const cdp_transfer *t,
    void (*done)(void *, uint64_t, uint64_t), void *user, cdp_work *out) {
    const cdp_status st = cdp__message_post(g, t, done, user, out);
    if (st == CDP_OK) cdp__first_moves(g);
    return st;
}

/* ---- receives from any rank: pending works until a message with that tag has arrived */

/* Reads from all links of g, and records which ranks have left or died, since these send no more
   messages. Lock held. */
CDP__PRIVATE void cdp__any_read(cdp_group *g) {
    uint32_t p, left = 0, died = 0, went = 0; /* `died` and `went` are ranks plus 1 */
    for (p = 0; p < g->desc.world_size && g->health == CDP__HEALTHY; ++p) {
        cdp__peer *peer = &g->peers[p];
        if (p == g->desc.rank) continue;
        if (!peer->lost && cdp__port_pump(g->w, g->streams[p].peer, NULL) < 0) {
            if (cdp_last_error()->status != CDP_ERR_PEER_LOST) cdp__group_fail_last(g);
            peer->lost = true;
        }
        if (!peer->lost && !g->streams[p].left) ++left;
        if (!died && peer->lost && !g->streams[p].left) died = p + 1;
        if (!went && g->streams[p].left) went = p + 1;
        if (cdp__port_slots_wait(g->w, g->streams[p].peer)) ++g->w->arrivals;
    }
    if (g->health == CDP__HEALTHY && g->channel != CDP__WORLD_CHANNEL)
        (void)cdp__group_poll_peers(g);
    g->links_read = left ? g->w->polls : 0;
    if (!g->first_gone) g->first_gone = died ? died : went;
}

/* The rank whose message a receive from `from` (or any rank) with this tag takes: the next rank
   in turn with a message that no posted receive will take. UINT32_MAX: none. Lock held. */
CDP__PRIVATE uint32_t cdp__any_find(const cdp_group *g, uint32_t from, uint32_t tag, cdp__head *h) {
    const uint32_t n = g->desc.world_size;
    uint32_t i;
    for (i = 0; i < n; ++i) {
        const uint32_t p = (g->any_turn + i) % n;
        if (p == g->desc.rank || (from != CDP_ANY_RANK && from != p)) continue;
        if (cdp__flow_peek(g, p, tag, h)) return p;
    }
    return UINT32_MAX;
}

CDP__PRIVATE void cdp__any_done(void *user, uint64_t start_ns, uint64_t end_ns) {
    (void)start_ns;
    (void)end_ns;
    cdp__deferred_close((cdp__deferred *)user, false);
}

/* True if a message with this tag is being received: more messages may follow it, even if its
   sender has left. */
CDP__PRIVATE bool cdp__any_busy(const cdp_group *g, uint32_t tag) {
    const cdp__flow *flow;
    for (flow = g->active_flows; flow; flow = flow->next_active)
        if (flow->tag == tag && flow->first[1]) return true;
    return false;
}

/* Reports that this rank waits for all ranks that could send, each for its next message with
   this tag. */
CDP__PRIVATE void cdp__any_long(cdp__deferred *s) {
    cdp_group *g = s->of;
    const bool caller = cdp__group_awaited(s->owner);
    const uint64_t told = 2 * (g->w->arrivals + 1) + (caller ? 1 : 0);
    uint32_t p;
    if (s->reported_ns == told) return;
    s->reported_ns = told;
    for (p = 0; p < g->desc.world_size; ++p) {
        const cdp__flow *flow = p == g->desc.rank ? NULL : cdp__flow_find(g, p, s->want.tag);
        cdp__position at;
        if (p == g->desc.rank) continue;
        memset(&at, 0, sizeof at);
        at.channel = cdp__way_channel(s->set, cdp__world_rank(g, p), g->w->rank);
        at.seq = flow ? flow->count[1] + 1 : 1;
        if (flow && flow->first[1]) at.seq = flow->first[1]->call.seq;
        cdp__wait_any_long(g, s->set, &at, p, s->start_ns, caller);
    }
}

/* Reports the wait if it is long, or if another rank waits for this one. */
CDP__PRIVATE void cdp__any_waits(cdp__deferred *s, uint64_t now) {
    cdp__world *w = s->of->w;
    if (now >= s->wait_ns || w->failure.waiting) cdp__any_long(s);
    if (now >= s->wait_ns) s->wait_ns = now + cdp__failure_period_ns(s->want.timeout_ms);
    if (w->failure.outbox) cdp__world_answer(w);
    if (w->failure.waited) cdp__world_read_all(w);
}

/* The deadline of the receive has passed: the group fails. */
CDP__PRIVATE void cdp__any_late(cdp__deferred *s) {
    cdp_group *g = s->of;
    cdp__failure_record r;
    cdp_error e;
    s->reported_ns = 0;
    cdp__any_long(s);
    g->late_ms = s->want.timeout_ms;
    cdp__fail(CDP_ERR_TIMEOUT,
        "the deadline of %u ms passed while waiting for a message with tag %u from any rank",
        g->late_ms, s->want.tag);
    e = *cdp_last_error();
    cdp__record_make(g, &r, &e);
    r.at.channel = s->set;
    cdp__group_observe(g, &r, &e, true);
}

/* The number of messages with this tag that rank p has sent to this one. */
CDP__PRIVATE uint64_t cdp__any_count(const cdp_group *g, uint32_t p, uint32_t tag) {
    const cdp__flow *flow = cdp__flow_find(g, p, tag);
    return flow ? flow->count[1] : 0;
}

/* Chooses a rank to blame when all others are gone: the one that sent fewest messages with this
   tag or, among equals, the one that went first. If that rank died, ranks that left in good
   order are not chosen. */
CDP__PRIVATE uint32_t cdp__any_fewest(const cdp_group *g, uint32_t tag) {
    uint32_t p, best = g->first_gone - 1;
    const bool died = g->peers[best].lost && !g->streams[best].left;
    for (p = 0; p < g->desc.world_size; ++p) {
        if (p == g->desc.rank || (died && g->streams[p].left)) continue;
        if (cdp__any_count(g, p, tag) < cdp__any_count(g, best, tag)) best = p;
    }
    return best;
}

/* All other ranks are gone, so the group fails. The blame goes to the cause that one of them
   reported or, without one, to the rank that sent fewest messages. */
CDP__PRIVATE void cdp__any_alone(const cdp__deferred *s) {
    cdp_group *g = s->of;
    const uint32_t fewest = cdp__any_fewest(g, s->want.tag);
    const uint64_t sent = cdp__any_count(g, fewest, s->want.tag);
    const uint32_t first = cdp__world_rank(g, fewest);
    cdp__failure_record r;
    cdp_error e;
    CDP_ASSERT(g->first_gone);
    cdp__fail(CDP_ERR_PEER_LOST,
        "a message with tag %u from any rank cannot come any more: all other ranks have left; "
        "rank %u sent fewest of them, %llu",
        s->want.tag, first, (unsigned long long)sent);
    e = *cdp_last_error();
    cdp__record_make(g, &r, &e);
    r.end.named = (int32_t)first;
    cdp__group_observe(g, &r, &e, false);
}

/* The oldest receive from any rank with this tag, or NULL. */
CDP__PRIVATE cdp__deferred *cdp__any_first(const cdp_group *g, uint32_t tag) {
    cdp__deferred *s = g->w->pending;
    while (s && (s->kind != CDP__DEFERRED_ANY || s->of != g || s->want.tag != tag))
        s = s->next;
    return s;
}

/* Turns a receive from any rank into one from rank p, which has sent a message, with the same
   deadline. If that has passed, the cause is still being settled, and the message may still
   complete the receive. */
CDP__PRIVATE void cdp__any_take(cdp__deferred *s, uint32_t p) {
    cdp_group *g = s->of;
    s->want.peer = p;
    g->any_turn = (p + 1) % g->desc.world_size;
    cdp__deferred_end_wait(s);
    if (cdp__message_post(g, &s->want, cdp__any_done, s, &s->after) != CDP_OK) {
        cdp__group_fail_last(g);
        return;
    }
    g->posts[s->after.seq & ((1u << CDP__POST_INDEX) - 1)]->deadline_ns = s->deadline_ns;
    g->soonest_ns = cdp__min(g->soonest_ns, s->deadline_ns);
    cdp__first_moves(g);
}

CDP__PRIVATE bool cdp__any_poll(cdp__deferred *s, uint64_t now) {
    cdp_group *g = s->of;
    cdp__head f;
    uint32_t p;
    if (g->health != CDP__HEALTHY) {
        cdp__deferred_unlist(s);
        return true;
    }
    if (g->links_read != g->w->polls) cdp__any_read(g);
    p = s->arrivals == g->w->arrivals ? UINT32_MAX
                                      : cdp__any_find(g, CDP_ANY_RANK, s->want.tag, &f);
    if (p != UINT32_MAX) {
        /* the oldest receive takes it, even if it did not see the message when it was polled:
           otherwise two messages of a rank could change their order */
        cdp__any_take(cdp__any_first(g, s->want.tag), p);
        return true;
    }
    s->arrivals = g->w->arrivals;
    if (now >= s->deadline_ns && !cdp__group_settling(g)) {
        cdp__any_late(s);
    } else if (!g->links_read && g->first_gone && !cdp__any_busy(g, s->want.tag)) {
        cdp__any_alone(s);
    } else {
        cdp__any_waits(s, now);
    }
    return g->health != CDP__HEALTHY;
}

/* Starts a message. Fills in the defaults of *t. */
CDP__PRIVATE cdp_status cdp__message(cdp_group *g, cdp_transfer *t, cdp_work *out) {
    cdp_status st = cdp__transfer_check(g, t, out);
    cdp__deferred *s;
    bool device = false;
    if (out) {
        out->group = NULL;
        out->seq = 0;
    }
    if (st == CDP_OK && cdp__backend_of(g))
        st = cdp__device_claims(g, "a message", t->data, NULL, &device);
    if (st == CDP_OK && device) return cdp__device_transfer(g, t, 1, out);
    if (st != CDP_OK) return st;
    cdp__enter(g);
    st = cdp__group_report(cdp__group_top(g));
    if (st == CDP_OK && t->peer != CDP_ANY_RANK) {
        st = cdp__message_locked(g, t, NULL, NULL, out);
    } else if (st == CDP_OK) {
        s = cdp__deferred_open(cdp__group_top(g), CDP__DEFERRED_ANY, out);
        if (!s)
            st = cdp_last_error()->status;
        else {
            s->of = g;
            s->want = *t;
            s->want.timeout_ms = cdp__def(t->timeout_ms, g->desc.timeout_ms);
            s->deadline_ns = cdp__deadline(g->os, s->want.timeout_ms);
            s->set = cdp__message_channel(g, t->tag);
            s->start_ns = cdp__now(g->os);
            s->wait_ns = s->start_ns + cdp__failure_period_ns(s->want.timeout_ms);
            s->poll = cdp__any_poll;
            s->arrivals = g->w->arrivals - 1;
            cdp__deferred_enlist(s);
        }
    }
    cdp__leave(g);
    return st;
}

CDP__PRIVATE cdp_status cdp__message_async(cdp_group *g, bool receive, const void *data,
    uint64_t count, cdp_dtype dtype, uint32_t peer, uint32_t tag, cdp_message *got,
    cdp_work *work) {
    cdp_transfer t = cdp__transfer_of(receive, data, count, dtype, peer, tag);
    cdp_status st;
    t.got = got;
    st = cdp__message(g, &t, work);
    if (st == CDP_OK) cdp__hand_over(work->group);
    return st;
}

CDP__PRIVATE cdp_status cdp__message_wait(cdp_group *g, bool receive, const void *data,
    uint64_t count, cdp_dtype dtype, uint32_t peer, uint32_t tag, cdp_message *got) {
    cdp_transfer t = cdp__transfer_of(receive, data, count, dtype, peer, tag);
    cdp_work work;
    cdp_status st = cdp__must_not_wait();
    if (st != CDP_OK) return st;
    t.got = got;
    st = cdp__message(g, &t, &work);
    return st == CDP_OK ? cdp_work_wait(work) : st;
}

CDP_API cdp_status cdp_send(
    cdp_group *g, const void *data, uint64_t count, cdp_dtype dtype, uint32_t to, uint32_t tag) {
    return cdp__message_wait(g, false, data, count, dtype, to, tag, NULL);
}

CDP_API cdp_status cdp_send_async(cdp_group *g, const void *data, uint64_t count, cdp_dtype dtype,
    uint32_t to, uint32_t tag, cdp_work *work) {
    return cdp__message_async(g, false, data, count, dtype, to, tag, NULL, work);
}

CDP_API cdp_status cdp_recv(
    cdp_group *g, void *data, uint64_t count, cdp_dtype dtype, uint32_t from, uint32_t tag) {
    return cdp__message_wait(g, true, data, count, dtype, from, tag, NULL);
}

CDP_API cdp_status cdp_recv_async(cdp_group *g, void *data, uint64_t count, cdp_dtype dtype,
    uint32_t from, uint32_t tag, cdp_work *work) {
    return cdp__message_async(g, true, data, count, dtype, from, tag, NULL, work);
}

CDP_API cdp_status cdp_recv_any(cdp_group *g, void *data, uint64_t room, cdp_dtype dtype,
    uint32_t from, uint32_t tag, cdp_message *got) {
    return got ? cdp__message_wait(g, true, data, room, dtype, from, tag, got)
               : cdp__fail(CDP_ERR_INVALID, "cdp_recv_any: got is NULL");
}

CDP_API cdp_status cdp_recv_any_async(cdp_group *g, void *data, uint64_t room, cdp_dtype dtype,
    uint32_t from, uint32_t tag, cdp_message *got, cdp_work *work) {
    return got ? cdp__message_async(g, true, data, room, dtype, from, tag, got, work)
               : cdp__fail(CDP_ERR_INVALID, "cdp_recv_any_async: got is NULL");
}

CDP_API cdp_status cdp_probe(cdp_group *g, uint32_t from, uint32_t tag, cdp_message *got) {
    cdp_transfer t = cdp__transfer_of(true, NULL, 0, CDP_DTYPE_U8, from, tag);
    cdp_status st = cdp__transfer_check(g, &t, got);
    cdp__deferred *s;
    cdp__head f;
    uint32_t p;
    if (st != CDP_OK) return st;
    if (!g->w->thread) (void)cdp_poll(g, 0);
    cdp__enter(g);
    cdp__any_read(g);
    p = cdp__any_find(g, from, tag, &f);
    /* a message that a receive from any rank will take is not reported to the caller */
    while (p != UINT32_MAX && g->health == CDP__HEALTHY && (s = cdp__any_first(g, tag)) != NULL) {
        cdp__any_take(s, p);
        p = cdp__any_find(g, from, tag, &f);
    }
    st = cdp__group_report(cdp__group_top(g));
    if (st == CDP_OK && p == UINT32_MAX) st = CDP_PENDING;
    if (st == CDP_OK) {
        got->source = p;
        got->tag = tag;
        got->count = f.count;
        got->dtype = (cdp_dtype)f.dtype;
    }
    cdp__leave(g);
    return st;
}

CDP__PRIVATE void cdp__batch_done(void *user, uint64_t start_ns, uint64_t end_ns) {
    cdp__deferred *s = (cdp__deferred *)user;
    (void)start_ns;
    (void)end_ns;
    if (--s->left == 0) cdp__deferred_close(s, false);
}

CDP_API cdp_status cdp_group_reserve(cdp_group *g, uint32_t messages) {
    bool room;
    const cdp_status st = cdp__alive(g, "cdp_group_reserve");
    if (st != CDP_OK) return st;
    cdp__enter(g);
    room = cdp__posts_reserve(g, messages);
    cdp__leave(g);
    return room ? CDP_OK : cdp__fail_nomem("messages in flight", messages * sizeof(cdp__post));
}

CDP_API cdp_status cdp_batch(cdp_group *g, const cdp_transfer *list, uint32_t n, cdp_work *out) {
    cdp__deferred *s;
    uint32_t i, devices = 0;
    bool device = false;
    cdp_status st = cdp__alive(g, "cdp_batch");
    if (st != CDP_OK) return st;
    if (!list || !n || !out)
        return cdp__fail(CDP_ERR_INVALID, "cdp_batch needs messages and a pointer for the work");
    out->group = NULL;
    out->seq = 0;
    for (i = 0; i < n && st == CDP_OK; ++i) {
        cdp_transfer t = list[i];
        st = t.peer == CDP_ANY_RANK ? cdp__fail(CDP_ERR_INVALID,
                 "cdp_batch: a receive from any rank cannot be part of a batch; use "
                 "cdp_recv_any_async()")
                                    : cdp__transfer_check(g, &t, out);
        if (st == CDP_OK && cdp__backend_of(g))
            st = cdp__device_claims(g, "a message", t.data, NULL, &device);
        devices += device ? 1 : 0;
    }
    if (st == CDP_OK && devices)
        return devices == n ? cdp__device_transfer(g, list, n, out)
                            : cdp__fail(CDP_ERR_INVALID,
                                "cdp_batch: %u of %u messages are in device memory; start "
                                "them in a batch of their own",
                                devices, n);
    if (st != CDP_OK) return st;
    cdp__enter(g);
    st = cdp__group_report(cdp__group_top(g));
    s = st == CDP_OK ? cdp__deferred_open(cdp__group_top(g), CDP__DEFERRED_BATCH, out) : NULL;
    if (!s)
        st = cdp_last_error()->status;
    else
        s->left = n;
    for (i = 0; i < n && st == CDP_OK; ++i) {
        cdp_transfer t = list[i];
        cdp_work work;
        (void)cdp__transfer_check(g, &t, out);
        st = cdp__message_locked(g, &t, cdp__batch_done, s, &work);
        /* a part of it was started already */
        if (st != CDP_OK && i)
            cdp__group_break(g, cdp_last_error());
        else if (st != CDP_OK)
            cdp__deferred_close(s, true);
    }
    if (st != CDP_OK) {
        out->group = NULL;
        out->seq = 0;
    }
    cdp__leave(g);
    if (st == CDP_OK) cdp__hand_over(g);
    return st;
}

CDP_API cdp_status cdp_sendrecv(cdp_group *g, const void *out, uint64_t out_count, uint32_t to,
    void *in, uint64_t in_count, uint32_t from, cdp_dtype dtype, uint32_t tag) {
    cdp_transfer t[2];
    cdp_work work;
    cdp_status st = cdp__must_not_wait();
    if (st == CDP_OK) st = cdp__alive(g, "cdp_sendrecv");
    if (st != CDP_OK) return st;
    if (to == g->desc.rank || from == g->desc.rank)
        return cdp__fail(
            CDP_ERR_INVALID, "cdp_sendrecv: rank %u is this rank; copy the data", g->desc.rank);
    if (in && out
        && cdp__overlap(in, out, in_count * cdp_dtype_size(cdp__def(dtype, CDP_DTYPE_F32)),
            out_count * cdp_dtype_size(cdp__def(dtype, CDP_DTYPE_F32))))
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_sendrecv: what is sent and what is received overlap; use separate memory");
    t[0] = cdp__transfer_of(true, in, in_count, dtype, from, tag);
    t[1] = cdp__transfer_of(false, out, out_count, dtype, to, tag);
    st = cdp_batch(g, t, 2, &work);
    return st == CDP_OK ? cdp_work_wait(work) : st;
}

#endif /* CDP_NO_MESSAGES */

/* ---- >>group/monitored_barrier: a barrier that names who is missing -------------------------- */

/* Knows: sends, receives. Promises: if ranks are missing, one error names all of them. */

#ifndef CDP_NO_MESSAGES

CDP__PRIVATE cdp_status cdp__barrier_message(
    cdp_group *g, uint8_t *byte, bool receive, uint32_t peer, uint32_t timeout_ms, cdp_work *out) {
    cdp_transfer t = cdp__transfer_of(receive, byte, 1, CDP_DTYPE_U8, peer, CDP__TAG_BARRIER);
    cdp_status st;
    t.timeout_ms = timeout_ms;
    cdp__enter(g);
    st = cdp__group_report(cdp__group_top(g));
    if (st == CDP_OK) st = cdp__message_locked(g, &t, NULL, NULL, out);
    cdp__leave(g);
    return st;
}

/* Rank 0's deadline has passed: breaks the group with an error that names the missing ranks. */
CDP__PRIVATE cdp_status cdp__barrier_missing(
    cdp_group *g, const cdp_work *works, uint32_t timeout_ms) {
    char names[256];
    cdp__text t = cdp__text_of(names, sizeof names);
    const uint32_t none = UINT32_MAX - 1;
    /* consecutive ranks are printed as "3 to 9" */
    uint32_t p, count = 0, first = 0, last = none, run = 0;
    cdp__enter(g);
    for (p = 1; p <= g->desc.world_size; ++p) {
        const uint32_t rank =
            p < g->desc.world_size && cdp__work_status(works[p].group, works[p].seq) == CDP_PENDING
            ? cdp__world_rank(g, p)
            : none;
        if (rank != last + 1) {
            if (run > 1) cdp__text_add(&t, run > 2 ? " to %u" : ", %u", last);
            if (rank != none) cdp__text_add(&t, count ? ", %u" : "%u", rank);
            run = 0;
        }
        if (rank != none && !count++) first = rank;
        last = rank;
        ++run;
    }
    if (count) {
        cdp__fail_peer(CDP_ERR_TIMEOUT, first, 0,
            "monitored barrier: %u of %u ranks have not come within %u ms: %s", count,
            g->desc.world_size, timeout_ms, names);
        cdp__group_break(g, cdp_last_error());
    }
    cdp__leave(g);
    return count ? cdp_group_status(g) : CDP_OK;
}

/* Memory for a monitored barrier: a work and a byte for each rank. It is allocated once per group.
   NULL: out of memory. */
CDP__PRIVATE cdp_work *cdp__barrier_take(cdp_group *g) {
    const uint64_t bytes = g->desc.world_size * (sizeof(cdp_work) + 1);
    void *memory;
    cdp__enter(g);
    memory = g->barrier;
    g->barrier = NULL; /* a concurrent call must not use the same memory */
    cdp__leave(g);
    if (!memory) memory = cdp__alloc(g->os, bytes);
    if (memory) memset(memory, 0, (size_t)bytes);
    if (!memory) (void)cdp__fail_nomem("a monitored barrier", bytes);
    return (cdp_work *)memory;
}

CDP__PRIVATE void cdp__barrier_give(cdp_group *g, void *memory) {
    cdp__enter(g);
    if (!g->barrier) {
        g->barrier = memory;
        memory = NULL;
    }
    cdp__leave(g);
    cdp__free(g->os, memory);
}

/* Rank 0's part: receives from every rank until `until`, then answers all of them. */
CDP__PRIVATE cdp_status cdp__barrier_root(cdp_group *g, cdp_work *works, uint8_t *bytes,
    uint32_t timeout_ms, uint32_t longer, uint64_t until) {
    const uint32_t n = g->desc.world_size;
    cdp_status st = CDP_OK;
    uint32_t p;
    for (p = 1; p < n && st == CDP_OK; ++p)
        st = cdp__barrier_message(g, &bytes[p], true, p, longer, &works[p]);
    for (p = 1; p < n && st == CDP_OK; ++p)
        st = cdp__work_wait_until(works[p], until);
    if (st == CDP_PENDING) st = cdp__barrier_missing(g, works, timeout_ms);
    for (p = 1; p < n && st == CDP_OK; ++p)
        st = cdp__barrier_message(g, &bytes[p], false, p, longer, &works[p]);
    for (p = 1; p < n && st == CDP_OK; ++p)
        st = cdp_work_wait(works[p]);
    return st;
}

CDP_API CDP__COLD cdp_status cdp_monitored_barrier(cdp_group *g, uint32_t timeout_ms) {
    uint32_t longer;
    uint64_t until;
    uint8_t *bytes;
    cdp_work *works;
    cdp_status st = cdp__alive(g, "cdp_monitored_barrier");
    if (st == CDP_OK) st = cdp__must_not_wait();
    if (st != CDP_OK) return st;
    timeout_ms = cdp__def(timeout_ms, g->desc.timeout_ms);
    /* the other ranks wait longer, so that rank 0's error, which names the missing ranks, comes
       first */
    longer = timeout_ms > CDP_NO_TIMEOUT / 2 ? CDP_NO_TIMEOUT : 2 * timeout_ms;
    until = cdp__deadline(g->os, timeout_ms);
    works = cdp__barrier_take(g);
    if (!works) return CDP_ERR_NOMEM;
    bytes = (uint8_t *)(works + g->desc.world_size);
    if (g->desc.rank == 0) {
        st = cdp__barrier_root(g, works, bytes, timeout_ms, longer, until);
    } else {
        st = cdp__barrier_message(g, bytes, false, 0, longer, &works[1]);
        if (st == CDP_OK) st = cdp__barrier_message(g, bytes, true, 0, longer, &works[0]);
        if (st == CDP_OK) st = cdp_work_wait(works[0]);
    }
    cdp__barrier_give(g, works);
    return st;
}

#endif /* CDP_NO_MESSAGES */

/* ---- >>channel/channel: ordered messages to each rank ---------------------------------------- */

/* Knows: streams, flows (for offered bodies), the world's lock. Promises: messages of a rank are
   delivered in order, one at a time, without the lock; losing one rank fails no group and no
   other rank. */

#ifndef CDP_NO_CHANNELS

#define CDP__CHANNEL_INLINE 0u /* `dtype` of a message's header: the body follows */
#define CDP__CHANNEL_OFFER 1u  /* a handle and a length follow */
#define CDP__CHANNEL_FETCH 2u  /* answers an offer; `a` is its handle */
#define CDP__CHANNEL_REFUSE 3u /* answers an offer; `a` is its handle */

typedef struct cdp__offer {
    struct cdp__offer *next;
    cdp_channel *channel;
    uint64_t handle;
    uint32_t peer;
    void *data;
    uint64_t bytes;
    bool receive; /* a body that this rank fetches */
    bool moving;  /* its transfer has begun */
    bool over;    /* `status` must be reported to the program */
    cdp_status status;
} cdp__offer;

/* A channel's state for one rank. */
typedef struct cdp__channel_peer {
    cdp__head head; /* header of the message being read */
    bool reading;
    uint8_t *body;
    uint64_t room, got;
    bool starved; /* a send was refused for lack of credit */
    bool lost, lost_told;
    cdp_error why;
    cdp__flow *bulk; /* moves offered bodies; created with the first one */
} cdp__channel_peer;

struct cdp_channel {
    cdp_group *g;
    cdp_channel *next; /* in world->channels */
    uint64_t id;
    cdp__stream *streams; /* one per rank */
    cdp__channel_peer *peers;
    cdp__offer *offers;
    uint64_t handles; /* number of handles given out */
    uint64_t timer_ns;
    uint64_t called;        /* counts callbacks */
    uint32_t waiting;       /* threads in cdp_channel_wait() */
    bool calling;           /* a callback is running */
    uint64_t poll_until_ns; /* during a callback: that of the world before it */
    bool closing;           /* no new callback may begin */
    bool left_over;         /* closed inside a callback: the last thread that uses it frees it */
    cdp_channel_desc desc;
};

CDP__PRIVATE uint64_t cdp__channel_id(const cdp_group *g, uint32_t number, uint32_t what) {
    uint8_t id[16];
    cdp__put_u64(id, g->channel);
    cdp__put_u32(id + 8, number);
    cdp__put_u32(id + 12, 0x6368616eu + what);
    return cdp__hash(CDP__HASH_START, id, sizeof id) | 2;
}

/* A body that the peer has read counts as fetched, although the peer has left by the time that this
   rank finds its answer. */
CDP__PRIVATE void cdp__channel_settle(cdp__flow *bulk) {
    cdp__post *post = bulk->first[0];
    if (!post || !post->x.remote || !post->x.announced || bulk->s.exposed) return;
    if (bulk->g->health != CDP__HEALTHY) return; /* its offers have ended with the group's error */
    if (cdp__transfer_await(bulk->g->w, &post->x) > 0 && post->x.done) cdp__post_complete(bulk, 0);
}

/* The channel loses rank p; the reason is this thread's last error. Sends LEAVE, so that p does
   not wait: this rank reads no more of its messages. */
CDP__PRIVATE CDP__COLD void cdp__channel_lose(cdp_channel *c, uint32_t p) {
    cdp__channel_peer *peer = &c->peers[p];
    cdp__offer *o;
    if (peer->lost) return;
    peer->lost = true;
    peer->why = *cdp_last_error();
    c->streams[p].dropping = true;
    if (!c->streams[p].left)
        (void)cdp__stream_send_control(c->g->w, &c->streams[p], CDP__MESSAGE_LEAVE);
    if (peer->bulk) {
        cdp__channel_settle(peer->bulk);
        cdp__flow_stop(peer->bulk); /* the caller owns the bodies in flight again */
        peer->bulk->s.dropping = true;
    }
    for (o = c->offers; o; o = o->next) {
        if (o->peer != p || o->over) continue;
        o->over = true;
        o->status = CDP_ERR_PEER_LOST;
    }
}

/* A transfer of an offered body has failed: only this channel loses the rank. */
CDP__PRIVATE void cdp__channel_flow_failed(cdp__flow *flow) {
    cdp__channel_lose(flow->owner, flow->rank);
}

/* ---- callbacks */

/* Releases the lock for a callback of c; cdp__channel_called() takes it again. */
CDP__PRIVATE CDP__ONE_COPY void cdp__channel_call(cdp_channel *c) {
    cdp__world *w = c->g->w;
    c->calling = true;
    c->poll_until_ns = w->poll_until_ns; /* of this thread's poll, not of others meanwhile */
    w->calling = c->g;
    w->poll_until_ns = 0;
    *cdp__inside() = true;
    cdp_lock_release(&w->lock);
}

CDP__PRIVATE void cdp__channel_called(cdp_channel *c) {
    cdp__world *w = c->g->w;
    cdp__enter(c->g); /* takes precedence over threads that only poll */
    *cdp__inside() = false;
    w->poll_until_ns = c->poll_until_ns;
    w->calling = NULL;
    c->calling = false;
    ++c->called;
    cdp__world_wake(w);
}

/* ---- sending */

CDP__PRIVATE cdp_status cdp__channel_peer_check(
    const cdp_channel *c, const char *call, uint32_t peer) {
    if (peer >= c->g->desc.world_size || peer == c->g->desc.rank)
        return cdp__fail(
            CDP_ERR_INVALID, "%s: %u is no other rank of the channel's group", call, peer);
    if (!c->peers[peer].lost) return CDP_OK;
    return cdp__fail_peer(CDP_ERR_PEER_LOST, c->streams[peer].peer, c->peers[peer].why.sys_errno,
        "%s: rank %u is lost: %s", call, c->streams[peer].peer, c->peers[peer].why.text);
}

/* Queues one message; its body is copied. Lock held. */
CDP__PRIVATE cdp_status cdp__channel_put(
    cdp_channel *c, uint32_t p, cdp__head *h, const void *body) {
    cdp__world *w = c->g->w;
    cdp__stream *s = &c->streams[p];
    h->type = CDP__MESSAGE_DATA;
    h->kind = CDP_COLL_SEND;
    h->channel = s->channel;
    h->ack = (uint32_t)s->taken;
    if (s->sent - s->acked + CDP__HEAD_BYTES + h->bytes > w->window_bytes) {
        c->peers[p].starved = true;
        s->asking = s->asking || cdp__stream_send_control(w, s, CDP__MESSAGE_ASK);
        (void)cdp__port_flush(w, s->peer);
        return CDP_PENDING;
    }
    if (cdp__stream_put(w, s, h, body)) return CDP_OK;
    if (!cdp__control_add(w, s->peer, h, (const uint8_t *)body))
        return cdp__fail_nomem("a message of a channel", h->bytes);
    s->sent += CDP__HEAD_BYTES + h->bytes;
    ++s->put;
    (void)cdp__port_flush(w, s->peer);
    return CDP_OK;
}

CDP__PRIVATE cdp__head cdp__channel_head(const cdp_channel_message *m) {
    cdp__head h;
    memset(&h, 0, sizeof h);
    h.root = m->kind;
    h.round = m->aux;
    h.seq = m->a;
    h.count = m->b;
    h.bytes = (uint32_t)m->bytes;
    return h;
}

/* Releases the lock. Wakes the sleeping thread if messages were queued that it must send. */
CDP__PRIVATE cdp_status cdp__channel_leave(cdp_channel *c, cdp_status st) {
    if (c->g->w->control_queued && c->g->w->sleeping)
        c->g->w->transport.wake(c->g->w->transport.self);
    cdp__leave(c->g);
    return st;
}

CDP_API cdp_status cdp_channel_send(cdp_channel *c, const cdp_channel_message *m) {
    cdp__head h;
    cdp_status st;
    if (!c || !m || (m->bytes && !m->body))
        return cdp__fail(
            CDP_ERR_INVALID, "cdp_channel_send needs a channel, a message and its body");
    if (m->bytes > c->g->w->window_bytes / 4)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_channel_send: a body of %llu bytes; at most %u are copied, use "
            "cdp_channel_offer()",
            (unsigned long long)m->bytes, (unsigned)(c->g->w->window_bytes / 4));
    h = cdp__channel_head(m);
    cdp__enter(c->g);
    st = cdp__channel_peer_check(c, "cdp_channel_send", m->peer);
    if (st == CDP_OK) st = cdp__channel_put(c, m->peer, &h, m->body);
    return cdp__channel_leave(c, st);
}

CDP__PRIVATE cdp__offer *cdp__offer_make(
    cdp_channel *c, uint32_t peer, void *data, uint64_t bytes) {
    cdp__offer *o = (cdp__offer *)cdp__alloc_zero(c->g->os, sizeof *o);
    if (!o) {
        (void)cdp__fail_nomem("an offered body", sizeof *o);
        return NULL;
    }
    o->channel = c;
    o->peer = peer;
    o->data = data;
    o->bytes = bytes;
    return o;
}

CDP_API cdp_status cdp_channel_offer(
    cdp_channel *c, const cdp_channel_message *m, uint64_t *handle) {
    uint8_t body[CDP__REMOTE_BYTES];
    cdp__offer *o = NULL;
    cdp__head h;
    cdp_status st;
    if (!c || !m || !handle || !m->body || !m->bytes)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_channel_offer needs a channel, a message with a body and a pointer for the "
            "handle");
    h = cdp__channel_head(m);
    h.dtype = CDP__CHANNEL_OFFER;
    h.bytes = CDP__REMOTE_BYTES;
    cdp__enter(c->g);
    st = cdp__channel_peer_check(c, "cdp_channel_offer", m->peer);
    if (st == CDP_OK && !(o = cdp__offer_make(c, m->peer, (void *)(uintptr_t)m->body, m->bytes)))
        st = CDP_ERR_NOMEM;
    if (st == CDP_OK) {
        cdp__put_u64(body, c->handles + 1);
        cdp__put_u64(body + 8, m->bytes);
        st = cdp__channel_put(c, m->peer, &h, body);
    }
    if (st == CDP_OK) {
        c->streams[m->peer].slack += CDP__HEAD_BYTES;
        o->handle = *handle = ++c->handles;
        o->next = c->offers;
        c->offers = o;
    } else {
        cdp__free(c->g->os, o);
    }
    return cdp__channel_leave(c, st);
}

#endif /* CDP_NO_CHANNELS */

/* ---- >>channel/bodies: bodies that stay with the sender -------------------------------------- */

/* Knows: offers, flows. Promises: an offered body is returned to the caller exactly once. */

#ifndef CDP_NO_CHANNELS

CDP__PRIVATE void cdp__offer_moved(void *user, uint64_t start_ns, uint64_t end_ns) {
    cdp__offer *o = (cdp__offer *)user;
    (void)start_ns;
    (void)end_ns;
    o->over = true;
    o->status = CDP_OK;
}

/* The flow that moves bodies to and from rank p, created on first use. NULL: out of memory. */
CDP__PRIVATE cdp__flow *cdp__channel_bulk(cdp_channel *c, uint32_t p) {
    cdp__channel_peer *peer = &c->peers[p];
    if (peer->bulk) return peer->bulk;
    peer->bulk =
        cdp__flow_make(c->g, cdp__channel_id(c->g, c->desc.number, 1), p, CDP__TAG_BARRIER);
    if (peer->bulk) {
        peer->bulk->owner = c;
        peer->bulk->failed = cdp__channel_flow_failed;
    }
    return peer->bulk;
}

/* Begins to send or receive the body of an offer. */
CDP__PRIVATE cdp_status cdp__offer_move(cdp__offer *o) {
    cdp_channel *c = o->channel;
    cdp__flow *flow = cdp__channel_bulk(c, o->peer);
    cdp_transfer t;
    cdp_work work;
    memset(&t, 0, sizeof t);
    t.receive = o->receive;
    t.data = o->data;
    t.count = o->bytes;
    t.dtype = CDP_DTYPE_U8;
    t.timeout_ms = CDP_NO_TIMEOUT;
    o->moving = true;
    if (!flow) return cdp__fail_nomem("the transfer of an offered body", sizeof *flow);
    return cdp__flow_post(flow, &t, cdp__offer_moved, o, &work);
}

CDP__PRIVATE bool cdp__channel_answer(cdp_channel *c, uint32_t p, const cdp__head *h) {
    cdp__offer *o = c->offers;
    while (o && (o->receive || o->peer != p || o->handle != h->seq || o->moving || o->over))
        o = o->next;
    if (!o) return false;
    c->streams[p].slack -= CDP__HEAD_BYTES;
    if (h->dtype == CDP__CHANNEL_FETCH) {
        if (h->count != o->bytes) return false;
        o->status = cdp__offer_move(o);
        if (o->status != CDP_OK) cdp__channel_lose(c, p);
        return true;
    }
    o->over = true;
    o->status = CDP_ERR_ABORTED;
    return h->dtype == CDP__CHANNEL_REFUSE;
}

/* Sends FETCH or REFUSE. These answers may exceed the window: they are no longer than the offer. */
CDP__PRIVATE cdp_status cdp__channel_reply(
    cdp_channel *c, uint32_t p, uint8_t what, uint64_t handle, uint64_t bytes) {
    cdp__stream *s = &c->streams[p];
    cdp__head h;
    memset(&h, 0, sizeof h);
    h.type = CDP__MESSAGE_DATA;
    h.kind = CDP_COLL_SEND;
    h.dtype = what;
    h.channel = s->channel;
    h.ack = (uint32_t)s->taken;
    h.seq = handle;
    h.count = bytes;
    if (!cdp__control_add(c->g->w, s->peer, &h, NULL))
        return cdp__fail_nomem("the answer to an offer", sizeof h);
    s->sent += CDP__HEAD_BYTES;
    ++s->put;
    (void)cdp__port_flush(c->g->w, s->peer);
    return CDP_OK;
}

CDP_API cdp_status cdp_channel_fetch(
    cdp_channel *c, uint32_t peer, uint64_t handle, void *to, uint64_t bytes) {
    cdp__offer *o = NULL;
    cdp_status st;
    if (!c || !handle || !to || !bytes)
        return cdp__fail(CDP_ERR_INVALID, "cdp_channel_fetch needs a channel, a handle and room");
    cdp__enter(c->g);
    st = cdp__channel_peer_check(c, "cdp_channel_fetch", peer);
    if (st == CDP_OK && !(o = cdp__offer_make(c, peer, to, bytes))) st = CDP_ERR_NOMEM;
    if (st == CDP_OK) {
        o->receive = true;
        o->handle = handle;
        o->next = c->offers;
        c->offers = o;
        st = cdp__offer_move(o);
        if (st == CDP_OK) st = cdp__channel_reply(c, peer, CDP__CHANNEL_FETCH, handle, bytes);
        if (st != CDP_OK) cdp__channel_lose(c, peer); /* the receive cannot be withdrawn any more */
        st = CDP_OK;
    }
    return cdp__channel_leave(c, st);
}

CDP_API cdp_status cdp_channel_refuse(cdp_channel *c, uint32_t peer, uint64_t handle) {
    cdp_status st;
    if (!c || !handle)
        return cdp__fail(CDP_ERR_INVALID, "cdp_channel_refuse needs a channel and a handle");
    cdp__enter(c->g);
    st = cdp__channel_peer_check(c, "cdp_channel_refuse", peer);
    if (st == CDP_OK) st = cdp__channel_reply(c, peer, CDP__CHANNEL_REFUSE, handle, 0);
    return cdp__channel_leave(c, st);
}

#endif /* CDP_NO_CHANNELS */

/* ---- >>channel/progress: receiving, and callbacks -------------------------------------------- */

/* Knows: the channels of a world. Promises: messages of a rank are delivered in order, one at a
   time, without the lock. */

#ifndef CDP_NO_CHANNELS

/* Delivers a complete message to the program, or handles an answer to an offer. The channel
   loses a peer that answers without an offer. */
CDP__PRIVATE void cdp__channel_deliver(cdp_channel *c, uint32_t p) {
    cdp__channel_peer *peer = &c->peers[p];
    const cdp__head h = peer->head;
    cdp_channel_message m;
    peer->reading = false;
    if (h.dtype != CDP__CHANNEL_INLINE && h.dtype != CDP__CHANNEL_OFFER) {
        if (cdp__channel_answer(c, p, &h)) return;
        (void)cdp__fail_peer(CDP_ERR_MISMATCH, c->streams[p].peer, 0,
            "rank %u speaks of a body that was not offered", c->streams[p].peer);
        cdp__channel_lose(c, p);
        return;
    }
    memset(&m, 0, sizeof m);
    m.peer = p;
    m.kind = h.root;
    m.aux = h.round;
    m.a = h.seq;
    m.b = h.count;
    m.bytes = h.bytes;
    m.body = h.bytes ? peer->body : NULL;
    if (h.dtype == CDP__CHANNEL_OFFER) {
        m.handle = cdp__get_u64(peer->body);
        m.bytes = cdp__get_u64(peer->body + 8);
        m.body = NULL;
        if (!m.handle || !m.bytes) {
            (void)cdp__port_nonsense(c->streams[p].peer);
            cdp__channel_lose(c, p);
            return;
        }
    }
    cdp__channel_call(c);
    c->desc.deliver(c->desc.user, &m);
    cdp__channel_called(c);
}

/* ---- receiving */

/* A header has arrived: allocates memory for the body. */
CDP__PRIVATE bool cdp__channel_begin(cdp_channel *c, uint32_t p) {
    cdp__channel_peer *peer = &c->peers[p];
    const cdp__head *h = &peer->head;
    if (h->kind != CDP_COLL_SEND || h->type != CDP__MESSAGE_DATA || h->bytes > CDP_CHANNEL_BODY_MAX
        || (h->dtype == CDP__CHANNEL_OFFER) != (h->dtype && h->bytes == CDP__REMOTE_BYTES)) {
        (void)cdp__port_nonsense(c->streams[p].peer);
        return false;
    }
    peer->got = 0;
    if (h->bytes <= peer->room) return true;
    cdp__free(c->g->os, peer->body);
    peer->room = cdp__max(h->bytes, 256);
    peer->body = (uint8_t *)cdp__alloc(c->g->os, peer->room);
    if (peer->body) return true;
    peer->room = 0;
    (void)cdp__fail_nomem("a message of a channel", h->bytes);
    return false;
}

/* Reads messages of rank p. True if something moved. */
CDP__PRIVATE bool cdp__channel_read(cdp_channel *c, uint32_t p) {
    cdp__channel_peer *peer = &c->peers[p];
    cdp__stream *s = &c->streams[p];
    int64_t r = 1;
    if (!peer->reading) {
        r = cdp__stream_next(c->g->w, s, &peer->head);
        if (r > 0 && !cdp__channel_begin(c, p)) r = -1;
        peer->reading = r > 0;
    }
    while (r > 0 && s->body_left) {
        r = cdp__stream_read(c->g->w, s, peer->body + peer->got, s->body_left);
        if (r > 0) peer->got += (uint64_t)r;
        if (r > 0 && cdp__poll_over(c->g->w)) break;
    }
    if (r < 0) {
        const cdp_error why = *cdp_last_error();
        c->g->w->poll_until_ns = 0; /* all of it, whatever the budget */
        /* still receive bodies that arrived before the sender left */
        while (peer->bulk && cdp__flow_move(peer->bulk, 1)) {
        }
        *cdp__error_slot() = why;
        cdp__channel_lose(c, p);
        return true;
    }
    if (!peer->reading || s->body_left) return false;
    cdp__channel_deliver(c, p);
    return true;
}

/* ---- telling the program */

CDP__PRIVATE bool cdp__channel_on_offer(cdp_channel *c) {
    cdp__offer **at = &c->offers, *o;
    while (*at && !(*at)->over)
        at = &(*at)->next;
    if (!*at) return false;
    o = *at;
    *at = o->next;
    cdp__channel_call(c);
    if (o->receive && c->desc.fetched) c->desc.fetched(c->desc.user, o->peer, o->handle, o->status);
    if (!o->receive && c->desc.released)
        c->desc.released(c->desc.user, o->peer, o->handle, o->status);
    cdp__channel_called(c);
    cdp__free(c->g->os, o);
    return true;
}

CDP__PRIVATE bool cdp__channel_on_peer(cdp_channel *c, uint32_t p) {
    cdp__channel_peer *peer = &c->peers[p];
    cdp__stream *s = &c->streams[p];
    if (peer->lost && !peer->lost_told) {
        peer->lost_told = true;
        cdp__channel_call(c);
        if (c->desc.lost) c->desc.lost(c->desc.user, p, &peer->why);
        cdp__channel_called(c);
        return true;
    }
    if (!peer->starved || peer->lost) return false;
    if (s->sent - s->acked > c->g->w->window_bytes / 2) {
        /* ask once more: messages sent after the last request may have used up the credit */
        if (!s->asking && (s->asking = cdp__stream_send_control(c->g->w, s, CDP__MESSAGE_ASK)))
            (void)cdp__port_flush(c->g->w, s->peer);
        return false;
    }
    peer->starved = false;
    cdp__channel_call(c);
    if (c->desc.credit) c->desc.credit(c->desc.user, p);
    cdp__channel_called(c);
    return true;
}

CDP__PRIVATE bool cdp__channel_on_time(cdp_channel *c) {
    if (c->timer_ns == CDP__NEVER || cdp__now(c->g->os) < c->timer_ns) return false;
    c->timer_ns = CDP__NEVER;
    cdp__channel_call(c);
    if (c->desc.timer) c->desc.timer(c->desc.user);
    cdp__channel_called(c);
    return true;
}

/* Offers of a failed group end with its error, because the group moves no more bodies. */
CDP__PRIVATE void cdp__channel_group_failed(cdp_channel *c) {
    cdp__offer *o;
    for (o = c->offers; o; o = o->next) {
        if (o->over || c->g->health != CDP__FAILED || c->g->settle_ns != CDP__NEVER) continue;
        o->over = true;
        o->status = c->g->error.status;
    }
}

/* Advances one channel by one step. True: something happened, maybe with the lock released. */
CDP__PRIVATE bool cdp__channel_step(cdp_channel *c) {
    uint32_t p;
    if (c->g->health != CDP__HEALTHY) cdp__channel_group_failed(c);
    if (cdp__channel_on_offer(c) || cdp__channel_on_time(c)) return true;
    for (p = 0; p < c->g->desc.world_size; ++p) {
        if (p == c->g->desc.rank) continue;
        if (!c->peers[p].lost && cdp__channel_read(c, p)) return true;
        if (cdp__channel_on_peer(c, p)) return true;
    }
    return false;
}

/* Frees a channel, its streams and its offers. */
CDP__PRIVATE CDP__COLD void cdp__channel_free(cdp_channel *c) {
    cdp__world *w = c->g->w;
    cdp_channel **at = &w->channels;
    uint32_t p;
    while (*at && *at != c)
        at = &(*at)->next;
    if (*at) *at = c->next;
    cdp__world_gone(w, c->id);
    for (p = 0; c->streams && c->peers && p < c->g->desc.world_size; ++p) {
        if (c->peers[p].bulk) cdp__flow_drop(c->peers[p].bulk);
        if (c->streams[p].channel) cdp__stream_close(w, &c->streams[p], p != c->g->desc.rank);
        cdp__free(w->os, c->peers[p].body);
    }
    while (c->offers) {
        cdp__offer *o = c->offers;
        c->offers = o->next;
        cdp__free(w->os, o);
    }
    if (w->control_queued) cdp__world_send_queued(w);
    cdp__free(w->os, c->streams);
    cdp__free(w->os, c->peers);
    cdp__free(w->os, c);
}

CDP__PRIVATE void cdp__channel_over(cdp_channel *c) {
    if (c->left_over && !c->calling && !c->waiting) cdp__channel_free(c);
}

/* Polls all channels of the world, until one callback has run. */
CDP__PRIVATE cdp__advance cdp__channels_poll(cdp__world *w) {
    cdp_channel *c;
    for (c = w->channels; c && !w->calling; c = c->next) {
        if (c->closing || !cdp__channel_step(c)) continue;
        cdp__channel_over(c);
        return CDP__MOVED;
    }
    return CDP__BLOCKED;
}

CDP__PRIVATE uint64_t cdp__channels_deadline(const cdp__world *w) {
    uint64_t at = CDP__NEVER;
    const cdp_channel *c;
    /* while a callback runs no timer can fire; its return wakes the sleeping thread */
    for (c = w->calling ? NULL : w->channels; c; c = c->next)
        at = cdp__min(at, c->timer_ns);
    return at;
}

#endif /* CDP_NO_CHANNELS */

/* ---- >>channel/life: opening, waiting, closing ----------------------------------------------- */

/* Knows: channels, streams. Promises: no callback runs after its channel was closed. */

#ifndef CDP_NO_CHANNELS

/* Enters the channel's streams into the table; they take over unexpected streams of the same
   channel. Lock held. */
CDP__PRIVATE cdp_status cdp__channel_enter(cdp_channel *c) {
    cdp__world *w = c->g->w;
    const uint32_t n = c->g->desc.world_size;
    uint32_t p;
    c->streams = (cdp__stream *)cdp__alloc_zero(w->os, n * sizeof *c->streams);
    c->peers = (cdp__channel_peer *)cdp__alloc_zero(w->os, n * sizeof *c->peers);
    if (!c->streams || !c->peers || !cdp__streams_reserve(w, n))
        return cdp__fail_nomem("a channel", n * (sizeof *c->streams + sizeof *c->peers));
    for (p = 0; p < n; ++p) {
        cdp__stream *s = &c->streams[p];
        const cdp__stream *came = cdp__stream_find(w, c->id, cdp__world_rank(c->g, p));
        if (came && !came->unexpected)
            return cdp__fail(CDP_ERR_INVALID,
                "cdp_channel_open: channel %u of this group is open already", c->desc.number);
        s->channel = c->id;
        s->peer = cdp__world_rank(c->g, p);
        (void)cdp__stream_enter(w, s);
    }
    c->next = w->channels;
    w->channels = c;
    w->channels_poll = cdp__channels_poll;
    w->channels_deadline = cdp__channels_deadline;
    return CDP_OK;
}

CDP_API CDP__COLD cdp_status cdp_channel_open(const cdp_channel_desc *desc, cdp_channel **out) {
    cdp_channel *c;
    cdp_status st;
    if (!desc || !out || !desc->deliver)
        return cdp__fail(CDP_ERR_INVALID, "cdp_channel_open: desc, desc->deliver or out is NULL");
    *out = NULL;
    st = cdp__alive(desc->group, "cdp_channel_open");
    if (st != CDP_OK) return st;
    c = (cdp_channel *)cdp__alloc_zero(desc->group->os, sizeof *c);
    if (!c) return cdp__fail_nomem("a channel", sizeof *c);
    c->desc = *desc;
    c->g = desc->group;
    c->id = cdp__channel_id(c->g, desc->number, 0);
    c->timer_ns = CDP__NEVER;
    cdp__enter(c->g);
    st = cdp__channel_enter(c);
    if (st != CDP_OK) {
        const cdp_error e = *cdp_last_error();
        cdp_group *g = c->g;
        if (c->streams && st == CDP_ERR_INVALID) c->streams[0].channel = 0;
        cdp__channel_free(c);
        cdp__leave(g);
        *cdp__error_slot() = e;
        return st;
    }
    *out = c;
    cdp__leave(c->g);
    return CDP_OK;
}

CDP_API void cdp_channel_timer(cdp_channel *c, uint64_t at_ns) {
    if (!c) return;
    cdp__enter(c->g);
    c->timer_ns = at_ns;
    if (c->g->w->sleeping) c->g->w->transport.wake(c->g->w->transport.self);
    cdp__leave(c->g);
}

/* Makes progress until more than `before` callbacks have run, the channel closes, or the
   deadline. Lock held. */
CDP__PRIVATE void cdp__channel_advance(cdp_channel *c, uint64_t before, uint64_t until_ns) {
    cdp__world *w = c->g->w;
    cdp__progress t;
    memset(&t, 0, sizeof t);
    t.g = c->g;
    t.deadline_ns = until_ns;
    t.completed = c->g->completed;
    if (w->sleeping) w->transport.wake(w->transport.self); /* the progress thread stands by */
    for (;;) {
        uint64_t now;
        cdp__progress_yield_lock(w);
        cdp__progress_poll(w);
        now = cdp__now(w->os);
        if (c->called != before || c->closing || now >= until_ns) break;
        cdp__progress_pause(&t, now);
    }
    cdp__progress_lucky(&t);
}

CDP_API cdp_status cdp_channel_wait(cdp_channel *c, uint32_t timeout_ms) {
    uint64_t seen;
    if (!c) return cdp__fail(CDP_ERR_INVALID, "cdp_channel_wait needs a channel");
    cdp__enter(c->g);
    seen = c->called;
    cdp__leave(c->g);
    return cdp_channel_wait_since(c, &seen, cdp__deadline(c->g->w->os, timeout_ms));
}

CDP_API void cdp_channel_wake(cdp_channel *c) {
    if (!c) return;
    cdp__enter(c->g);
    ++c->called;
    cdp__world_wake(c->g->w);
    cdp__leave(c->g);
}

CDP_API cdp_status cdp_channel_drop(cdp_channel *c, uint32_t peer, const char *reason) {
    /* restored below, because this call does not fail */
    const cdp_error before = *cdp_last_error();
    if (!c || !reason)
        return cdp__fail(CDP_ERR_INVALID, "cdp_channel_drop needs a channel and a reason");
    if (peer >= c->g->desc.world_size || peer == c->g->desc.rank)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_channel_drop: rank %u is no other rank of the channel's group of %u", peer,
            c->g->desc.world_size);
    cdp__enter(c->g);
    (void)cdp__fail_peer(CDP_ERR_PEER_LOST, c->streams[peer].peer, 0, "rank %u was given up: %s",
        c->streams[peer].peer, reason);
    cdp__channel_lose(c, peer);
    if (c->g->w->sleeping) cdp__world_wake(c->g->w);
    cdp__leave(c->g);
    *cdp__error_slot() = before;
    return CDP_OK;
}

CDP_API cdp_status cdp_channel_wait_since(cdp_channel *c, uint64_t *seen, uint64_t until_ns) {
    cdp__world *w;
    cdp_group *g;
    uint64_t before;
    cdp_status st = cdp__must_not_wait();
    if (st != CDP_OK) return st;
    if (!c || !seen)
        return cdp__fail(CDP_ERR_INVALID, "cdp_channel_wait_since needs a channel and a count");
    g = c->g;
    w = g->w;
    cdp__enter(g);
    before = *seen;
    ++c->waiting;
    ++w->callers;
    ++w->waits;
    if (c->called == before) cdp__channel_advance(c, before, until_ns);
    *seen = c->called;
    st = c->called != before ? CDP_OK : CDP_PENDING;
    if (st == CDP_PENDING && c->closing)
        st = cdp__fail(CDP_ERR_STATE, "cdp_channel_wait: the channel was closed meanwhile");
    --w->callers;
    --c->waiting;
    cdp__channel_over(c);
    if (w->cond) w->os->threads.cond_broadcast(w->os->user, w->cond);
    cdp__leave(g);
    return st;
}

CDP_API void cdp_channel_close(cdp_channel *c) {
    cdp__world *w;
    cdp_group *g;
    if (!c) return;
    g = c->g;
    w = g->w;
    cdp__enter(g);
    c->closing = true;
    c->timer_ns = CDP__NEVER;
    if (!*cdp__inside()) {
        while (c->calling || c->waiting) {
            cdp__world_wake(w);
            w->os->threads.cond_wait(
                w->os->user, w->cond, w->lock.mutex, cdp__now(w->os) + 10 * CDP__MS);
        }
    }
    c->left_over = true;
    if (c->waiting) cdp__world_wake(w);
    cdp__channel_over(c);
    cdp__leave(g);
}

#endif /* CDP_NO_CHANNELS */

/* ---- >>group/objects: bytes of any length from every rank ------------------------------------ */

/* Knows: byte strings whose lengths only their owners know. Promises: lengths are exchanged first,
   memory for the result is allocated once, and a failure leaks nothing. */

#ifndef CDP_NO_OBJECTS

typedef enum cdp__object_kind {
    CDP__OBJECT_ALLGATHER = 1,
    CDP__OBJECT_GATHER,
    CDP__OBJECT_BROADCAST,
    CDP__OBJECT_SCATTER
} cdp__object_kind;

/* Fields that all ranks exchange first: kind, root, length of the rank's bytes, limit of what it
   accepts, whether it allocates the result. */
#define CDP__OBJECT_FIELDS 5u

typedef struct cdp__objects {
    cdp_group *g;
    cdp__object_kind kind;
    uint32_t root;
    const void *data;
    uint64_t bytes;
    cdp_blob *blob;
    uint64_t *said, *lengths; /* of all ranks: the exchanged fields; the lengths */
} cdp__objects;

CDP__PRIVATE const char *cdp__object_name(uint64_t kind) {
    static const char *const names[] = {
        "?", "cdp_allgather_bytes", "cdp_gather_bytes", "cdp_broadcast_bytes", "cdp_scatter_bytes"};
    return names[kind <= CDP__OBJECT_SCATTER ? kind : 0];
}

/* The number of bytes that rank r receives. */
CDP__PRIVATE uint64_t cdp__objects_share(const cdp__objects *o, uint32_t r, uint64_t total) {
    if (o->kind == CDP__OBJECT_SCATTER) return o->lengths[r];
    return o->kind == CDP__OBJECT_ALLGATHER || (r == o->root) == (o->kind == CDP__OBJECT_GATHER)
        ? total
        : 0;
}

/* Checks the exchanged numbers. All ranks check equal numbers in the same order, so they return
   the same error. */
CDP__PRIVATE cdp_status cdp__objects_judge(const cdp__objects *o, uint64_t *total) {
    const char *name = cdp__object_name((uint64_t)o->kind);
    const uint32_t n = o->g->desc.world_size;
    uint32_t r;
    for (*total = 0, r = 0; r < n; ++r) {
        if (*total + o->lengths[r] < *total)
            return cdp__fail(
                CDP_ERR_INVALID, "%s: the bytes of all ranks are more than 2^64", name);
        *total += o->lengths[r];
    }
    for (r = 0; r < n; ++r) {
        const uint64_t *said = o->said + (uint64_t)r * CDP__OBJECT_FIELDS,
                       share = cdp__objects_share(o, r, *total);
        if (share > said[3])
            return cdp__fail_peer(CDP_ERR_INVALID, cdp__world_rank(o->g, r), 0,
                "%s: rank %u is to get %llu bytes, but takes %llu at most; give it more room, or "
                "raise its max_bytes",
                name, r, (unsigned long long)share, (unsigned long long)said[3]);
    }
    return CDP_OK;
}

/* Exchanges the fields with all ranks. */
CDP__PRIVATE cdp_status cdp__objects_exchange(cdp__objects *o, const uint64_t *lengths) {
    cdp_group *g = o->g;
    const uint32_t n = g->desc.world_size;
    const cdp_blob *b = o->blob;
    const uint64_t limit = b ? cdp__def(b->max_bytes, 1ull << 30) : 0;
    uint64_t *mine = o->said + (uint64_t)g->desc.rank * CDP__OBJECT_FIELDS;
    uint32_t r;
    cdp_status st;
    mine[0] = (uint64_t)o->kind;
    mine[1] = o->root;
    mine[2] = o->bytes;
    mine[3] = b && b->data ? cdp__min(b->room, limit) : limit;
    mine[4] = b && !b->data;
    st = cdp_allgather(g, NULL, o->said, CDP__OBJECT_FIELDS, CDP_DTYPE_U64);
    if (st != CDP_OK) return st;
    for (r = 0; r < n; ++r) {
        const uint64_t *said = o->said + (uint64_t)r * CDP__OBJECT_FIELDS;
        if (said[0] != o->said[0] || said[1] != o->said[1])
            return cdp__fail_peer(CDP_ERR_MISMATCH, cdp__world_rank(g, r), 0,
                "ranks call different things: rank 0 calls %s with root %llu, rank %u calls %s "
                "with root %llu",
                cdp__object_name(o->said[0]), (unsigned long long)o->said[1], r,
                cdp__object_name(said[0]), (unsigned long long)said[1]);
        o->lengths[r] = o->kind != CDP__OBJECT_BROADCAST || r == o->root ? said[2] : 0;
    }
    if (o->kind != CDP__OBJECT_SCATTER) return CDP_OK;
    if (g->desc.rank == o->root) memcpy(o->lengths, lengths, n * sizeof *lengths);
    return cdp_broadcast(g, o->lengths, n, CDP_DTYPE_U64, o->root);
}

/* Allocates the result. If any rank allocates, all ranks exchange whether it succeeded, before
   any bytes are sent. */
CDP__PRIVATE cdp_status cdp__objects_memory(cdp__objects *o, uint64_t share, bool *owned) {
    cdp_group *g = o->g;
    const uint32_t n = g->desc.world_size;
    uint8_t *fine = (uint8_t *)o->said; /* reuses that memory: the fields are no longer needed */
    cdp_blob *b = o->blob;
    bool any = false;
    uint32_t r;
    cdp_status st;
    for (r = 0; r < n; ++r)
        any = any || o->said[(uint64_t)r * CDP__OBJECT_FIELDS + 4];
    if (!any) return CDP_OK;
    *owned = share && !b->data;
    if (*owned) b->data = b->alloc ? b->alloc(b->user, share) : cdp__alloc(g->os, share);
    fine[g->desc.rank] = !*owned || b->data;
    st = cdp_allgather(g, NULL, fine, 1, CDP_DTYPE_U8);
    for (r = 0; r < n && st == CDP_OK; ++r)
        if (!fine[r])
            st = cdp__fail_peer(CDP_ERR_NOMEM, cdp__world_rank(g, r), 0,
                "%s: rank %u could not allocate the bytes that it was to get",
                cdp__object_name((uint64_t)o->kind), r);
    return st;
}

CDP__PRIVATE cdp_status cdp__objects_move(const cdp__objects *o) {
    static const cdp_coll_kind kinds[] = {
        CDP_COLL_NONE, CDP_COLL_ALLGATHER, CDP_COLL_GATHER, CDP_COLL_BROADCAST, CDP_COLL_SCATTER};
    void *out = o->blob ? o->blob->data : NULL;
    const void *in = o->data;
    if (o->kind == CDP__OBJECT_BROADCAST && o->g->desc.rank == o->root)
        out = (void *)(uintptr_t)in; /* the root only reads it */
    if (o->kind == CDP__OBJECT_BROADCAST) in = NULL;
    return cdp__collective(o->g, kinds[o->kind], in, out, o->lengths[o->root], CDP_DTYPE_U8,
        CDP_REDUCE_DEFAULT, o->root, o->lengths);
}

CDP__PRIVATE void cdp__blob_drop(cdp_group *g, cdp_blob *b) {
    if (b->data && b->release)
        b->release(b->user, b->data);
    else
        cdp__free(g->os, b->data);
    b->data = NULL;
    b->allocated = false;
}

/* Checks for mistakes of the caller, before anything is exchanged. */
CDP__PRIVATE cdp_status cdp__objects_check(const cdp__objects *o, const uint64_t *lengths) {
    const char *name = cdp__object_name((uint64_t)o->kind);
    const cdp_group *g = o->g;
    const cdp_blob *b = o->blob;
    cdp_status st = cdp__must_not_wait();
    uint64_t bytes = o->bytes;
    uint32_t r;
    if (st == CDP_OK) st = cdp__alive(g, name);
    if (st != CDP_OK) return st;
    if (o->root >= g->desc.world_size)
        return cdp__fail(CDP_ERR_INVALID, "%s: root %u is not below world_size %u", name, o->root,
            g->desc.world_size);
    if (!b
        && (o->kind == CDP__OBJECT_ALLGATHER || o->kind == CDP__OBJECT_SCATTER
            || (g->desc.rank == o->root) == (o->kind == CDP__OBJECT_GATHER)))
        return cdp__fail(CDP_ERR_INVALID, "%s needs a cdp_blob that receives the bytes", name);
    if (b && !b->alloc != !b->release)
        return cdp__fail(
            CDP_ERR_INVALID, "%s: set both alloc and release in the blob, or neither", name);
    if (b && !b->data && b->room)
        return cdp__fail(CDP_ERR_INVALID, "%s: the blob has room but no data", name);
    if (o->kind == CDP__OBJECT_SCATTER && g->desc.rank == o->root && !lengths)
        return cdp__fail(CDP_ERR_INVALID, "%s: root needs the lengths of all parts", name);
    for (r = 0; o->kind == CDP__OBJECT_SCATTER && g->desc.rank == o->root && r < g->desc.world_size;
         ++r)
        bytes += lengths[r];
    if (bytes && !o->data)
        return cdp__fail(CDP_ERR_INVALID, "%s: the data pointer is NULL but there are %llu bytes",
            name, (unsigned long long)bytes);
    if (b && b->data && o->data && cdp__overlap(o->data, b->data, bytes, b->room))
        return cdp__fail(
            CDP_ERR_INVALID, "%s: the data and the blob overlap; use separate memory", name);
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__objects_run(cdp__object_kind kind, cdp_group *g, const void *data,
    uint64_t bytes, const uint64_t *lengths, uint32_t root, cdp_blob *blob) {
    cdp__objects o;
    uint64_t total = 0, share, n;
    bool owned = false;
    cdp_status st;
    memset(&o, 0, sizeof o);
    o.g = g;
    o.kind = kind;
    o.root = root;
    o.data = data;
    o.bytes =
        kind == CDP__OBJECT_SCATTER || (kind == CDP__OBJECT_BROADCAST && g && g->desc.rank != root)
        ? 0
        : bytes;
    o.blob = (kind == CDP__OBJECT_GATHER && g && g->desc.rank != root)
            || (kind == CDP__OBJECT_BROADCAST && g && g->desc.rank == root)
        ? NULL
        : blob;
    st = cdp__objects_check(&o, lengths);
    if (st != CDP_OK) return st;
    n = g->desc.world_size;
    o.said = (uint64_t *)cdp__alloc_zero(g->os, (CDP__OBJECT_FIELDS + 1) * n * sizeof *o.said);
    if (!o.said) return cdp__fail_nomem("lengths", (CDP__OBJECT_FIELDS + 1) * n * sizeof *o.said);
    o.lengths = o.said + CDP__OBJECT_FIELDS * n;
    st = cdp__objects_exchange(&o, lengths);
    if (st == CDP_OK) st = cdp__objects_judge(&o, &total);
    share = st == CDP_OK ? cdp__objects_share(&o, g->desc.rank, total) : 0;
    if (st == CDP_OK) st = cdp__objects_memory(&o, share, &owned);
    if (st == CDP_OK && total) st = cdp__objects_move(&o);
    if (st != CDP_OK && owned) cdp__blob_drop(g, o.blob);
    if (st == CDP_OK && o.blob) {
        o.blob->bytes = share;
        o.blob->allocated = owned;
        if (o.blob->lengths) memcpy(o.blob->lengths, o.lengths, (size_t)(n * sizeof *o.lengths));
    }
    cdp__free(g->os, o.said);
    return st;
}

CDP_API cdp_status cdp_allgather_bytes(
    cdp_group *g, const void *data, uint64_t bytes, cdp_blob *all) {
    return cdp__objects_run(CDP__OBJECT_ALLGATHER, g, data, bytes, NULL, 0, all);
}

CDP_API cdp_status cdp_gather_bytes(
    cdp_group *g, const void *data, uint64_t bytes, uint32_t root, cdp_blob *all) {
    return cdp__objects_run(CDP__OBJECT_GATHER, g, data, bytes, NULL, root, all);
}

CDP_API cdp_status cdp_broadcast_bytes(
    cdp_group *g, const void *data, uint64_t bytes, uint32_t root, cdp_blob *got) {
    return cdp__objects_run(CDP__OBJECT_BROADCAST, g, data, bytes, NULL, root, got);
}

CDP_API cdp_status cdp_scatter_bytes(
    cdp_group *g, const void *data, const uint64_t *lengths, uint32_t root, cdp_blob *mine) {
    return cdp__objects_run(CDP__OBJECT_SCATTER, g, data, 0, lengths, root, mine);
}

CDP_API void cdp_blob_free(cdp_group *g, cdp_blob *b) {
    if (!g || !b || !b->allocated) return;
    cdp__blob_drop(g, b);
    b->bytes = 0;
}

#endif /* CDP_NO_OBJECTS */

/* ---- >>group/recorder: records and settings of a group, as text ------------------------------ */

/* Knows: all members of a group. Promises: a consistent snapshot. */

#ifndef CDP_NO_RECORDER

CDP_API CDP__COLD uint32_t cdp_group_records(cdp_group *g, cdp_record *out, uint32_t max) {
    cdp_record r;
    uint64_t seq;
    uint32_t n = 0, i;
    if (!out || cdp__alive(g, "cdp_group_records") != CDP_OK) return 0;
    cdp__enter(g);
    for (seq = g->issued; seq && n < max && cdp__record_of(g, seq, &r); --seq)
        out[n++] = r;
    cdp__leave(g);
    for (i = 0; i < n / 2; ++i) {
        r = out[i];
        out[i] = out[n - 1 - i];
        out[n - 1 - i] = r;
    }
    return n;
}

CDP_API CDP__COLD cdp_status cdp_group_dump(cdp_group *g, const char *path) {
    cdp_status st = cdp__alive(g, "cdp_group_dump");
    if (st != CDP_OK) return st;
    if (!path) return cdp__fail(CDP_ERR_INVALID, "cdp_group_dump needs the path of a file");
    if (!g->w->os->files.open_file)
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "cdp_group_dump: this cdp_os has no files; set its member `files`, or use "
            "cdp_group_records()");
    cdp__enter(g);
    st = cdp__dump(g->w, path);
    cdp__leave(g);
    return st;
}

CDP__PRIVATE void cdp__describe_choices(const cdp_group *g, cdp__text *t) {
    const cdp__choosing *c = &g->w->choosing;
    uint32_t kind, i;
    if (g->hosts.ranks)
        cdp__text_add(
            t, "%u hosts, of %u to %u ranks; ", g->hosts.count, g->hosts.fewest, g->hosts.most);
    cdp__text_add(t, "algorithms (the first row that fits):\n");
    for (kind = CDP_COLL_NONE + 1; kind < CDP_COLL_COUNT; ++kind)
        for (i = 0;; ++i) {
            const cdp__row *row = i < c->row_count ? &c->rows[i] : cdp__row_at(i - c->row_count);
            const cdp__algo *a = row ? cdp__algo_at(row->algo) : NULL;
            if (!row) break;
            if (a->kind != (cdp_coll_kind)kind
                || (i >= c->row_count && row->only & ~g->is & (CDP__HOSTS | CDP__UNIFORM)))
                continue;
            cdp__text_add(t, "  %s: %s", cdp_coll_name(a->kind), a->name);
            if (row->max_bytes)
                cdp__text_add(t, ", up to %llu bytes", (unsigned long long)cdp__row_bytes(c, row));
            if (row->max_ranks) cdp__text_add(t, ", up to %u ranks", row->max_ranks);
            if (row->only & CDP__POWERS) cdp__text_add(t, ", for 2, 4, 8, ... ranks");
            if (row->only & (CDP__SAME_HOST | CDP__SHARED)) cdp__text_add(t, ", in shared memory");
            if (row->only & (CDP__HOSTS | CDP__UNIFORM))
                cdp__text_add(t,
                    row->only & CDP__UNIFORM ? ", for hosts of as many ranks each"
                                             : ", for hosts of several ranks");
            if (row->only & ~(g->is | CDP__POWERS)) cdp__text_add(t, " (never in this group)");
            cdp__text_add(t, "%s%s\n", i < c->row_count ? " (choices)" : "",
                c->reproducible && !a->fixed ? " (not while reproducible)" : "");
        }
}

CDP__PRIVATE void cdp__describe_setting(
    cdp__text *t, const char *name, uint64_t value, const char *unit, bool set) {
    cdp__text_add(
        t, "  %s = %llu%s (%s)\n", name, (unsigned long long)value, unit, set ? "set" : "default");
}

CDP_API CDP__COLD uint64_t cdp_describe(cdp_group *g, char *text, uint64_t room) {
    cdp__text t = cdp__text_of(text, room);
    const cdp_group_desc *d, *given;
    uint32_t p;
    if (cdp__alive(g, "cdp_describe") != CDP_OK) return cdp__text_end(&t);
    cdp__enter(g);
    d = &g->desc;
    given = &g->w->given;
#define CDP__SAY(name, unit) cdp__describe_setting(&t, #name, d->name, unit, given->name != 0)
    cdp__text_add(&t, "cdp %d.%d.%d, wire %d; rank %u of %u", CDP_VERSION_MAJOR, CDP_VERSION_MINOR,
        CDP_VERSION_PATCH, CDP_WIRE_VERSION, d->rank, d->world_size);
    if (g->members) cdp__text_add(&t, ", rank %u of %u in the world", g->w->rank, g->w->size);
    cdp__text_add(&t, "; %llu operations called, %llu completed\n", (unsigned long long)g->issued,
        (unsigned long long)g->completed);
    if (cdp__backend_of(g)) cdp__text_add(&t, "device memory: %s\n", g->backend->name);
    cdp__text_add(&t, "settings:\n");
    CDP__SAY(timeout_ms, " ms");
    CDP__SAY(small_bytes, "");
    CDP__SAY(piece_bytes, "");
    CDP__SAY(expose_bytes, "");
    CDP__SAY(spin_us, " us");
    CDP__SAY(no_spin, "");
    CDP__SAY(no_thread, "");
    CDP__SAY(reproducible, "");
    CDP__SAY(records, "");
    CDP__SAY(max_pending, "");
    CDP__SAY(stage_bytes, "");
    CDP__SAY(window_bytes, "");
    CDP__SAY(operations, "");
    CDP__SAY(waits, "");
#undef CDP__SAY
    cdp__text_add(&t, "  dump_path = %s\n", d->dump_path ? d->dump_path : "none (default)");
    cdp__text_add(&t, "arithmetic: %s\n", CDP__ARITHMETIC);
    cdp__describe_choices(g, &t);
    cdp__text_add(&t, "links:\n");
    for (p = 0; p < d->world_size; ++p) {
        const cdp_transport *link = &g->w->transport;
        const uint32_t peer = cdp__world_rank(g, p);
        char words[1600] = "";
        if (p == d->rank) continue;
        if (link->describe)
            link->describe(link->self, peer, words, sizeof words);
        else if (!link->failure.linked)
            cdp__format(words, sizeof words, "a transport that does not describe itself");
        else
            cdp__format(
                words, sizeof words, cdp__group_linked(g, p) ? "connected" : "not used yet");
        cdp__text_add(&t, "  rank %u: %s\n", peer, words);
    }
    cdp__leave(g);
    return cdp__text_end(&t);
}

#endif /* CDP_NO_RECORDER */

/* ---- >>ddp/group_access: functions of a group for training only ------------------------------ */

/* Knows: the members of cdp_group. Promises: later sections access a group only through its public
   functions and those of this section. */

/* The operating system interface that the group was created with. */
CDP__PRIVATE const cdp_os *cdp__group_os(const cdp_group *g) {
    return g->os;
}

/* Breaks the group on every rank with error `e`, unless it is failing already: then its own
   cause stands. */
CDP__PRIVATE void cdp__group_break_unless_failing(cdp_group *g, const cdp_error *e) {
    cdp__enter(g);
    if (g->health == CDP__HEALTHY) cdp__group_break(g, e);
    cdp__leave(g);
}

/* True if communication advances only inside calls. */
CDP__PRIVATE bool cdp__group_is_polled(const cdp_group *g) {
    return !g->w->thread;
}

/* The number of a new ddp of this group; equal on all ranks, because ddps are created in the
   same order. */
CDP__PRIVATE uint32_t cdp__group_next_ddp(cdp_group *g) {
    return g->ddps++;
}

/* Makes a failure of `part` one of `whole`, and the reverse. */
CDP__PRIVATE void cdp__group_share_failures(cdp_group *part, cdp_group *whole) {
    part->parent = cdp__group_top(whole);
}

/* A work that completes when the group's backend has done everything given to it so far. */
CDP__PRIVATE cdp_work cdp__group_device_work(cdp_group *g) {
    cdp_work w;
    w.group = g;
    w.seq = CDP__DEVICE_BIT;
    return w;
}

/* Starts an operation for bucket `bucket` (0xffff: none) of ddp number `ddp`. Ranks compare both
   numbers, so that ranks at different buckets of equal size get an error. `done`, which may be
   NULL, is called with the times at which the operation began and ended, with the group's lock
   held. */
CDP__PRIVATE cdp_status cdp__group_start_bucket(cdp_group *g, const cdp_request *request,
    uint32_t ddp, uint32_t bucket, void (*done)(void *, uint64_t, uint64_t), void *user,
    cdp_work *out) {
    cdp_request rq = *request;
    cdp_status st;
    if (!cdp__kind_has_root(rq.kind))
        rq.root = CDP__TAG_BUCKET | (ddp & 0xffu) << 16 | (bucket & 0xffffu);
    st = cdp__start(g, &rq, done, user, out);
    if (st == CDP_OK) cdp__hand_over(g);
    return st;
}

/* ---- >>dtype/numbers: square root, division (pure) ------------------------------------------- */

/* Knows: the float dtypes. Promises: the same bits on every machine. */

CDP__PRIVATE double cdp__sqrt(double x) {
    uint64_t bits;
    double y;
    uint32_t i;
    const bool regular = x > 0 && x - x == 0; /* no zero, infinity, or NaN */
    memcpy(&bits, &x, 8);
    bits = (bits >> 1) + 0x1ff8000000000000ull; /* half the exponent: some percent off */
    memcpy(&y, &bits, 8);
    for (i = 0; i < 5; ++i)
        y = 0.5 * (y + x / y);
    return regular ? y : x;
}

/* Divides integers; multiplies floats by the reciprocal. */
CDP__PRIVATE void cdp__divide_by(cdp_dtype t, void *data, uint64_t n, cdp_real by) {
    if (by >= 1 && by < (cdp_real)4e9 && by == (cdp_real)(uint32_t)by)
        cdp__divide(t, data, n, (uint32_t)by);
    else
        cdp__scale(t, data, n, 1 / by);
}

/* ---- >>ddp/bucket: which parameters share a bucket (pure) ------------------------------------ */

/* Knows: dtypes and sizes of parameters. Promises: the same plan for the same numbers, in linear
   time, without memory of its own. */

#ifndef CDP_NO_DDP

/* The bucket that is being filled with parameters of one dtype. While it is open, bucket_of[] of
   its parameters is a list: each entry is the index of the parameter that was added before it. */
typedef struct cdp__bucket_open {
    uint64_t bytes, limit;
    uint32_t newest; /* the parameter added last; UINT32_MAX: the bucket is empty */
    /* the lowest parameter index of this dtype: after it, the open bucket is complete */
    uint32_t lowest;
} cdp__bucket_open;

CDP__PRIVATE void cdp__bucket_close(cdp__bucket_open *o, uint32_t number, uint32_t *bucket_of) {
    uint32_t i = o->newest;
    while (i != UINT32_MAX) {
        const uint32_t before = bucket_of[i];
        bucket_of[i] = number;
        i = before;
    }
    o->newest = UINT32_MAX;
    o->bytes = 0;
}

/* PyTorch's rule over the parameters in reverse order: one open bucket per dtype. The parameter
   that brings a bucket to its limit closes it, so a bucket may exceed its limit. The first bucket
   of each dtype has its own, smaller limit, so that communication starts early. Buckets are
   numbered in the order in which a backward pass from the last parameter to the first completes
   them. `bucket_of` has room for n numbers; returns how many buckets there are. Takes time
   proportional to n. */
CDP__PRIVATE uint32_t cdp__bucket_plan_make(const cdp_param *params, uint32_t n,
    uint64_t first_bytes, uint64_t bytes, uint32_t *bucket_of) {
    cdp__bucket_open open[CDP_DTYPE_COUNT];
    uint32_t count = 0, i;
    for (i = 0; i < CDP_DTYPE_COUNT; ++i) {
        open[i].bytes = 0;
        open[i].limit = first_bytes;
        open[i].newest = open[i].lowest = UINT32_MAX;
    }
    for (i = n; i-- > 0;)
        open[params[i].dtype].lowest = i;
    for (i = n; i-- > 0;) {
        cdp__bucket_open *o = &open[params[i].dtype];
        bucket_of[i] = o->newest;
        o->newest = i;
        o->bytes += params[i].count * cdp_dtype_size(params[i].dtype);
        if (o->bytes < o->limit && i != o->lowest) continue;
        cdp__bucket_close(o, count++, bucket_of);
        o->limit = bytes;
    }
    return count;
}

#endif /* CDP_NO_DDP */

/* ---- >>ddp/state: the data of a ddp ---------------------------------------------------------- */

/* Knows: all members of a ddp, and whether gradients are in host or device memory. Promises: the
   first failure of a pass is kept. */

#ifndef CDP_NO_DDP

typedef enum cdp__mark {
    CDP__MARK_NONE,
    CDP__MARK_READY,
    CDP__MARK_UNUSED
} cdp__mark;

/* A sparse parameter: the rows that this rank has received since the last synchronized pass, and
   the mean that this pass computed. */
typedef struct cdp__sparse {
    uint32_t *rows, *mean_rows;
    uint32_t *place; /* for each row of the matrix: its position in the mean, from 1; 0: none */
    uint8_t *values, *mean;
    uint64_t used, room, mean_used, mean_room;
    /* the rows of all ranks while they are exchanged */
    uint32_t *all_rows;
    uint8_t *all_values;
    uint64_t all_used, all_room;
} cdp__sparse;

typedef struct cdp__param {
    cdp_param user; /* as the caller gave it, with defaults; its name is a copy */
    char *name;
    uint32_t bucket;
    uint64_t elem; /* bytes of one element */
    uint8_t *grad; /* the gradient's position in its bucket */
    uint8_t
        /* copy of the gradient, restored if no rank used the parameter; allocated when first
           needed */
        *kept;
    cdp__mark mark;       /* in this pass */
    bool touched;         /* this rank had a gradient for it since the last synchronized pass */
    bool used;            /* some rank had a gradient for it in the last synchronized pass */
    uint32_t calls, want; /* calls of ready() in this pass; expected calls (static graph) */
    uint64_t ready_ns;
    cdp__sparse *sparse; /* NULL: dense */
} cdp__param;

typedef struct cdp__bucket {
    uint8_t *memory; /* gradients, then flags that are summed with them */
    uint64_t room;   /* its bytes */
    uint64_t count;  /* elements, without the flags */
    cdp_dtype dtype;
    uint64_t elem;            /* bytes of one element */
    uint32_t params, pending; /* its parameters; those not complete yet */
    uint32_t used_flags;      /* flags which say that a parameter was used; only in the last one */
    const uint32_t *slots;    /* indices of its parameters, in memory order */
    bool done;                /* the hook has finished with this bucket */
    uint8_t *flags;           /* flags on the host if gradients are in device memory; else NULL */
    cdp_work work;
    uint64_t start_ns, end_ns; /* written with the group's lock held */
    uint64_t late_ns;          /* duration of further operations, which only hooks start */
    cdp_bucket view;           /* what the hook sees */
} cdp__bucket;

#define CDP__HOOK_LANES 8u

/* What cdp_ddp_poll() goes on with. */
typedef enum cdp__ddp_task {
    CDP__DDP_IDLE,
    CDP__DDP_CREATES,
    CDP__DDP_ENDS,
    CDP__DDP_FAILED /* creation has failed */
} cdp__ddp_task;

/* Members that much code uses come first. */
struct cdp_ddp {
    cdp_group *group;
    const cdp_os *os;
    cdp__param *params;
    uint32_t param_count, bucket_count;
    cdp__bucket *buckets;
    const cdp_backend *device; /* where parameters and gradients are; NULL: in host memory */
    cdp_buffer *buffers;
    bool in_backward, sync, sync_next;
    bool rebuild_due, buffers_due;
    bool recorded;     /* static graph: the first pass is over */
    bool shadow;       /* this rank is out of data and contributes zeros in this pass */
    bool equal;        /* all ranks had data in the last pass in which any rank had data */
    uint32_t root;     /* the highest rank that had data in that pass */
    uint32_t launched; /* buckets that have started in this pass */
    cdp_status failed; /* the first failure of this pass */
    cdp_work last;     /* the last operation started in `group` */
    /* Creation and backward_end run in stages: the next one, when `awaits` is done. */
    cdp_status (*stage)(cdp_ddp *d);
    cdp__ddp_task task;
    uint32_t item; /* of what a stage works on, and where it goes on there, in bytes */
    uint64_t at_byte;
    uint64_t begin_ns, called_ns, forward_ns, end_ns;
    cdp_work awaits;

    cdp_ddp_desc desc; /* with defaults; its pointers to params and buffers are not used */
    uint32_t *slots;   /* indices of parameters, in memory order */
    uint8_t *pack;     /* small parameters or buffers are broadcast from here in one message */
    uint64_t pack_bytes;
    uint32_t *order; /* order in which parameters became complete in the first synchronized pass */
    uint32_t *seen, ordered; /* that order in the last pass; number of complete parameters */

    /* Several threads may call ready() in one pass. The lock guards marks, `pending`, rows of
       sparse parameters, `failed` and the next two members. The others are only used by the
       thread that has set `launching`, or by the thread that begins and ends passes. */
    cdp_lock lock;
    bool launching, launch_again;

    cdp_hook hook; /* stage NULL: none */
    /* groups in which the stages of a hook run; the first one is `group` */
    cdp_group *lanes[CDP__HOOK_LANES];
    uint32_t at[CDP__HOOK_LANES + 1]; /* the next bucket for each stage */
    cdp_work active, used;            /* operations that sum flags which a hook must not see */
    uint32_t number;                  /* number of this ddp in its group */
    uint32_t sparse_count;
    uint64_t *sparse_counts; /* rows of each rank and sparse parameter, then of one parameter */
    bool placed;             /* `device` is decided */
    uint64_t own_steps;      /* synchronized passes in which this rank had data */
    /* hash of the parameters that this rank used in the last of these passes */
    uint64_t marks;
    cdp_ddp_stats stats;
    uint32_t pack_first, pack_root; /* of a broadcast: the first item that is not sent yet */
    uint64_t pack_used;
    bool rows_under_way; /* of the sparse parameter `item` */
    bool pack_sent;      /* its packed items are on their way, or are being unpacked */
    uint64_t *scratch;   /* what ranks compare at creation */

    cdp_error failed_error;
};

/* Runs `stage` next: when `work` is done; at once if `work` is zero. */
CDP__PRIVATE cdp_status cdp__ddp_then(cdp_ddp *d, cdp_work work, cdp_status (*stage)(cdp_ddp *d)) {
    d->awaits = work;
    d->stage = stage;
    return CDP_PENDING;
}
CDP__PRIVATE cdp_status cdp__ddp_at_once(cdp_ddp *d, cdp_status (*stage)(cdp_ddp *d)) {
    const cdp_work none = {NULL, 0};
    return cdp__ddp_then(d, none, stage);
}

/* The last stage of a task that has nothing left to do. */
CDP__PRIVATE cdp_status cdp__ddp_nothing(cdp_ddp *d) {
    (void)d;
    return CDP_OK;
}

/* Runs `stage` when the operation that was started last is done. `st`: what its start returned. */
CDP__PRIVATE cdp_status cdp__ddp_after(cdp_ddp *d, cdp_status st, cdp_status (*stage)(cdp_ddp *d)) {
    return st == CDP_OK ? cdp__ddp_then(d, d->last, stage) : st;
}

/* Runs stages until the last one has ended. `st` is what the first one has returned. */
CDP__PRIVATE cdp_status cdp__ddp_wait(cdp_ddp *d, cdp_status st) {
    while (st == CDP_PENDING) {
        st = cdp_work_wait(d->awaits);
        if (st == CDP_OK) st = d->stage(d);
    }
    return st;
}

/* The error for a call that the ddp cannot carry out in its present state. */
CDP__PRIVATE cdp_status cdp__ddp_refuse(const cdp_ddp *d, const char *call) {
    if (!d) return cdp__fail(CDP_ERR_INVALID, "%s needs a ddp", call);
#ifndef CDP_NO_GROUPS
    if (!d->group)
        return cdp__fail(CDP_ERR_STATE,
            "%s: cdp_ddp_rebind() has failed; call it again, or destroy this ddp", call);
#endif
    if (CDP__BUDGETS && d->task == CDP__DDP_FAILED)
        return cdp__fail(
            CDP_ERR_STATE, "%s: the creation of this ddp has failed; destroy it", call);
    if (CDP__BUDGETS && d->task != CDP__DDP_IDLE)
        return cdp__fail(CDP_ERR_STATE,
            "%s: what cdp_ddp_%s_start has begun is under way; call cdp_ddp_poll until it no "
            "longer returns CDP_PENDING",
            call, d->task == CDP__DDP_CREATES ? "create" : "backward_end");
    return cdp__fail(
        CDP_ERR_STATE, "%s: a backward pass is open; call cdp_ddp_backward_end first", call);
}

/* Refuses calls while another one is under way. */
CDP__PRIVATE cdp_status cdp__ddp_free_to(const cdp_ddp *d, const char *call) {
    const bool idle = d && d->group && (!CDP__BUDGETS || d->task == CDP__DDP_IDLE);
    return idle ? CDP_OK : cdp__ddp_refuse(d, call);
}

/* Refuses calls while another one is under way, or while a backward pass is open. */
CDP__PRIVATE cdp_status cdp__ddp_between(const cdp_ddp *d, const char *call) {
    const cdp_status st = cdp__ddp_free_to(d, call);
    return st == CDP_OK && d->in_backward ? cdp__ddp_refuse(d, call) : st;
}

/* True if parameters and gradients are in device memory. */
CDP__PRIVATE bool cdp__ddp_on_device(const cdp_ddp *d) {
#ifdef CDP_NO_BACKEND
    (void)d;
    return false;
#else
    return d->device != NULL;
#endif
}

/* Keeps the first failure of a pass, which backward_end reports again. Returns st. The caller
   must not hold the ddp's lock. */
CDP__PRIVATE CDP__ONE_COPY cdp_status cdp__ddp_fail(cdp_ddp *d, cdp_status st) {
    if (st == CDP_OK) return st;
    cdp_lock_acquire(&d->lock);
    if (d->failed == CDP_OK) {
        d->failed = st;
        d->failed_error = *cdp_last_error();
    }
    cdp_lock_release(&d->lock);
    return st;
}

CDP__PRIVATE cdp_status cdp__ddp_failed(cdp_ddp *d) {
    cdp_status st;
    cdp_lock_acquire(&d->lock);
    st = d->failed;
    cdp_lock_release(&d->lock);
    return st;
}

/* Allocates zeroed memory for gradients. If a device cannot clear it, the end of the pass reports
   that. */
CDP__PRIVATE void *cdp__ddp_alloc(cdp_ddp *d, uint64_t bytes, const char *purpose) {
    void *p;
    if (!cdp__ddp_on_device(d)) return cdp__alloc_zero(d->os, bytes);
    *cdp__purpose() = purpose;
    p = d->device->alloc(d->device->self, bytes ? bytes : 1);
    *cdp__purpose() = NULL;
    if (p && bytes) (void)cdp__ddp_fail(d, d->device->zero(d->device->self, p, bytes));
    return p;
}

CDP__PRIVATE void cdp__ddp_free(cdp_ddp *d, void *p) {
    if (!d->device || !p)
        cdp__free(d->os, p);
    else if (cdp_group_backend(d->group)) /* a backend frees its memory when it is destroyed */
        d->device->release(d->device->self, p);
}

CDP__PRIVATE void cdp__ddp_copy(cdp_ddp *d, void *dst, const void *src, uint64_t bytes) {
    if (!cdp__ddp_on_device(d))
        memcpy(dst, src, (size_t)bytes);
    else if (bytes)
        (void)cdp__ddp_fail(d, d->device->copy(d->device->self, dst, src, bytes));
}

CDP__PRIVATE void cdp__ddp_zero(cdp_ddp *d, void *dst, uint64_t bytes) {
    if (!cdp__ddp_on_device(d))
        memset(dst, 0, (size_t)bytes);
    else if (bytes)
        (void)cdp__ddp_fail(d, d->device->zero(d->device->self, dst, bytes));
}

/* Divides `n` numbers in the ddp's memory, on host or device. */
CDP__PRIVATE cdp_status cdp__ddp_divide_data(
    cdp_ddp *d, cdp_dtype t, void *data, uint64_t n, cdp_real by) {
    if (cdp__ddp_on_device(d))
        return n ? d->device->scale(d->device->self, t, data, n, 1 / by) : CDP_OK;
    cdp__divide_by(t, data, n, by);
    return CDP_OK;
}

/* The next piece of the current item, which has `bytes`: as much as one step may copy. *at: where
   it begins. The cursor moves behind it. */
CDP__PRIVATE uint64_t cdp__ddp_piece(cdp_ddp *d, uint64_t bytes, uint64_t *at) {
    *at = CDP__BUDGETS ? d->at_byte : 0;
    bytes -= *at;
    if (CDP__BUDGETS && bytes > CDP__STEP_BYTES && !cdp__ddp_on_device(d)) {
        d->at_byte += CDP__STEP_BYTES;
        return CDP__STEP_BYTES;
    }
    if (CDP__BUDGETS) d->at_byte = 0;
    ++d->item;
    return bytes;
}

/* Other ranks wait for buckets that this rank will not send: breaks the group, so that they
   receive the reason. */
CDP__PRIVATE void cdp__ddp_break(cdp_ddp *d) {
    cdp__group_break_unless_failing(d->group, &d->failed_error);
    (void)cdp_group_status(d->group);
}

/* Number of elements and bytes of a parameter in its bucket. */
CDP__PRIVATE uint64_t cdp__param_count(const cdp__param *p) {
    return p->user.sparse ? 0 : p->user.count;
}

CDP__PRIVATE uint64_t cdp__param_bytes(const cdp__param *p) {
    return cdp__param_count(p) * p->elem;
}

CDP__PRIVATE uint64_t cdp__bucket_bytes(const cdp__bucket *b) {
    return b->count * b->elem;
}

/* The gradient between passes: in the caller's own array or in the bucket. NULL: the parameter
   is sparse. */
CDP__PRIVATE uint8_t *cdp__param_grad(const cdp__param *p) {
    if (p->sparse) return NULL;
    return p->user.grad ? (uint8_t *)p->user.grad : p->grad;
}

CDP__PRIVATE uint64_t cdp__sparse_width(const cdp_param *p) {
    return p->count / p->rows;
}

/* The number by which the sum of a bucket is finally divided. */
CDP__PRIVATE cdp_real cdp__ddp_divisor(const cdp_ddp *d) {
    if (d->desc.join_effective) return (cdp_real)cdp__max(d->stats.active_ranks, 1);
    return d->desc.divisor != 0 ? d->desc.divisor : (cdp_real)cdp_size(d->group);
}

#endif /* CDP_NO_DDP */

/* ---- >>ddp/buckets: gradients and flags in bucket memory ------------------------------------- */

/* Knows: the layout of a bucket. Promises: gradients keep their values when buckets are rebuilt. */

#ifndef CDP_NO_DDP

CDP__PRIVATE uint32_t cdp__ddp_active_flags(const cdp_ddp *d, const cdp__bucket *b) {
    return d->desc.join && b == d->buckets ? cdp_size(d->group) : 0;
}

CDP__PRIVATE uint8_t *cdp__flag_at(const cdp__bucket *b, uint64_t i) {
    uint8_t *const first = b->flags ? b->flags : b->memory + cdp__bucket_bytes(b);
    return first + i * b->elem;
}

/* Copies `n` flags to device memory, or back. Does nothing if gradients are in host memory. */
CDP__PRIVATE void cdp__flags_move(cdp_ddp *d, cdp__bucket *b, uint64_t n, bool to_device) {
    uint8_t *const there = b->memory + cdp__bucket_bytes(b);
    const uint64_t bytes = n * b->elem;
    if (!b->flags || !n) return;
    if (to_device)
        cdp__ddp_copy(d, there, b->flags, bytes);
    else
        cdp__ddp_copy(d, b->flags, there, bytes);
}

CDP__PRIVATE void cdp__flag_set(const cdp__bucket *b, uint64_t i, bool on) {
    memset(cdp__flag_at(b, i), 0, (size_t)b->elem);
    if (on) cdp__dtype_one(b->dtype, cdp__flag_at(b, i));
}

CDP__PRIVATE bool cdp__flag_get(const cdp__bucket *b, uint64_t i) {
    static const uint8_t zero[8] = {0};
    return memcmp(cdp__flag_at(b, i), zero, (size_t)b->elem) != 0;
}

CDP__PRIVATE void cdp__ddp_free_buckets(cdp_ddp *d, cdp__bucket *buckets, uint32_t count) {
    uint32_t i;
    for (i = 0; buckets && i < count; ++i) {
        if (cdp__ddp_on_device(d))
            cdp__ddp_free(d, buckets[i].memory);
        else
            cdp_group_free(d->group, buckets[i].memory);
        cdp__free(d->os, buckets[i].flags);
    }
    cdp__free(d->os, buckets);
}

/* Replaces d->buckets by empty buckets for parameters that become complete in this order. */
CDP__PRIVATE cdp_status cdp__ddp_plan(cdp_ddp *d, const uint32_t *order) {
    const uint32_t n = d->param_count;
    uint32_t *bucket_of = (uint32_t *)cdp__alloc(d->os, n * sizeof *bucket_of), i;
    cdp_param *plain = (cdp_param *)cdp__alloc(d->os, n * sizeof *plain);
    d->buckets = NULL;
    if (bucket_of && plain) {
        for (i = 0; i < n; ++i) {
            plain[n - 1 - i] = d->params[order[i]].user;
            plain[n - 1 - i].count = cdp__param_count(&d->params[order[i]]);
        }
        d->bucket_count = cdp__bucket_plan_make(
            plain, n, d->desc.first_bucket_bytes, d->desc.bucket_bytes, bucket_of);
        for (i = 0; i < n; ++i)
            d->params[order[i]].bucket = bucket_of[n - 1 - i];
        d->buckets = (cdp__bucket *)cdp__alloc_zero(d->os, d->bucket_count * sizeof *d->buckets);
    }
    cdp__free(d->os, bucket_of);
    cdp__free(d->os, plain);
    return d->buckets ? CDP_OK : cdp__fail_nomem("the bucket plan", n * sizeof(cdp_param));
}

/* Memory of a device is zero, that of the host is not yet. */
CDP__PRIVATE cdp_status cdp__ddp_alloc_bucket(cdp_ddp *d, cdp__bucket *b) {
    const uint64_t flags = (cdp__ddp_active_flags(d, b) + b->used_flags) * b->elem;
    const uint64_t bytes = b->room = cdp__bucket_bytes(b) + flags;
    bool ok = true;
    if (cdp__ddp_on_device(d)) {
        char purpose[32];
        cdp__format(purpose, sizeof purpose, "ddp bucket %u", (unsigned)(b - d->buckets));
        b->memory = (uint8_t *)cdp__ddp_alloc(d, bytes, purpose);
        if (flags) b->flags = (uint8_t *)cdp__alloc_zero(d->os, flags);
        ok = b->flags || !flags;
    } else {
        b->memory = (uint8_t *)cdp_group_alloc(d->group, bytes);
    }
    return b->memory && ok ? CDP_OK : cdp__fail_nomem("a gradient bucket", bytes);
}

/* Assigns each parameter its position in its bucket, and copies its gradient there. */
CDP__PRIVATE void cdp__ddp_fill_buckets(cdp_ddp *d, const uint32_t *order) {
    uint32_t at = 0, i;
    for (i = 0; i < d->bucket_count; ++i) {
        cdp__bucket *b = &d->buckets[i];
        d->stats.bytes_per_step += cdp__bucket_bytes(b);
        b->slots = d->slots + at;
        at += b->params;
        b->count = b->params = 0; /* counted again below */
    }
    CDP_ASSERT(at == d->param_count);
    for (i = 0; i < d->param_count; ++i) {
        cdp__param *p = &d->params[order[i]];
        cdp__bucket *b = &d->buckets[p->bucket];
        uint8_t *const from = p->grad;
        d->slots[(uint64_t)(b->slots - d->slots) + b->params++] = order[i];
        p->grad = b->memory + cdp__bucket_bytes(b);
        b->count += cdp__param_count(p);
        if (from) cdp__ddp_copy(d, p->grad, from, cdp__param_bytes(p));
    }
}

/* A rebuild failed: restores the old buckets. */
CDP__PRIVATE void cdp__ddp_restore_buckets(cdp_ddp *d, cdp__bucket *old, uint32_t count) {
    uint32_t i, k;
    cdp__ddp_free_buckets(d, d->buckets, d->bucket_count);
    d->buckets = old;
    d->bucket_count = count;
    for (i = 0; i < count; ++i)
        for (k = 0; k < old[i].params; ++k)
            d->params[old[i].slots[k]].bucket = i;
}

/* Makes new buckets for parameters that become complete in this order. */
CDP__PRIVATE CDP__COLD cdp_status cdp__ddp_place(cdp_ddp *d, const uint32_t *order) {
    cdp__bucket *old = d->buckets;
    const uint32_t old_count = d->bucket_count;
    cdp_status st = cdp__ddp_plan(d, order);
    uint32_t i;
    for (i = 0; i < d->param_count && st == CDP_OK; ++i) {
        cdp__bucket *b = &d->buckets[d->params[i].bucket];
        b->dtype = d->params[i].user.dtype;
        b->elem = d->params[i].elem;
        b->count += cdp__param_count(&d->params[i]);
        ++b->params;
    }
    if (st == CDP_OK && (d->desc.find_unused || d->desc.static_graph))
        d->buckets[d->bucket_count - 1].used_flags = d->param_count;
    for (i = 0; i < d->bucket_count && st == CDP_OK; ++i)
        st = cdp__ddp_alloc_bucket(d, &d->buckets[i]);
    if (st != CDP_OK) {
        cdp__ddp_restore_buckets(d, old, old_count);
        return st;
    }
    d->stats.bytes_per_step = 0;
    cdp__ddp_fill_buckets(d, order);
    d->stats.bucket_count = d->bucket_count;
    cdp__ddp_free_buckets(d, old, old_count);
    return d->failed;
}

#endif /* CDP_NO_DDP */

/* ---- >>ddp/broadcast: broadcasts parameters and buffers of one rank -------------------------- */

/* Knows: where parameters and buffers are. Promises: small ones share messages, large ones are in
   flight together. */

#ifndef CDP_NO_DDP

/* Parameters and buffers smaller than this are packed into one message. */
#define CDP__PACK_BELOW 65536u
#define CDP__PACK_BYTES 1048576u

/* The memory of parameter i; indices from param_count on are buffers. */
CDP__PRIVATE uint8_t *cdp__ddp_item(const cdp_ddp *d, uint32_t i, uint64_t *bytes) {
    const cdp_buffer *b = &d->buffers[i < d->param_count ? 0 : i - d->param_count];
    const cdp_param *p = &d->params[i < d->param_count ? i : 0].user;
    *bytes = i < d->param_count ? p->count * cdp_dtype_size(p->dtype)
                                : b->count * cdp_dtype_size(b->dtype);
    return (uint8_t *)(i < d->param_count ? p->data : b->data);
}

/* Allocates the buffer for one message of the small items from index `first` on. */
CDP__PRIVATE cdp_status cdp__ddp_open_pack(cdp_ddp *d, uint32_t first) {
    uint64_t bytes, small_bytes = 0;
    uint32_t i;
    for (i = first; i < d->param_count + d->desc.buffer_count; ++i) {
        (void)cdp__ddp_item(d, i, &bytes);
        small_bytes += bytes < CDP__PACK_BELOW ? bytes : 0;
    }
    small_bytes = cdp__min(small_bytes, CDP__PACK_BYTES);
    if (small_bytes <= d->pack_bytes) return CDP_OK;
    cdp__ddp_free(d, d->pack);
    d->pack = (uint8_t *)cdp__ddp_alloc(d, small_bytes, "ddp pack");
    d->pack_bytes = d->pack ? small_bytes : 0;
    return d->pack ? CDP_OK : cdp__fail_nomem("a copy of small parameters", small_bytes);
}

/* Copies one packed item to its place. False: there are no more. */
CDP__PRIVATE bool cdp__ddp_unpack(cdp_ddp *d) {
    uint64_t bytes;
    uint8_t *to;
    if (cdp_rank(d->group) == d->pack_root) d->pack_first = d->item;
    if (d->pack_first == d->item) return false;
    to = cdp__ddp_item(d, d->pack_first++, &bytes);
    if (!bytes || bytes >= CDP__PACK_BELOW) return true;
    cdp__ddp_copy(d, to, d->pack + d->at_byte, bytes);
    d->at_byte += bytes;
    return true;
}

/* One step of a broadcast: a large item is sent, a small one is packed, or unpacked when its
   message has arrived. */
CDP__PRIVATE cdp_status cdp__ddp_send_item(cdp_ddp *d) {
    const bool more = d->item < d->param_count + d->desc.buffer_count;
    uint64_t bytes = 0;
    uint8_t *const item = more ? cdp__ddp_item(d, d->item, &bytes) : NULL;
    cdp_status st = CDP_OK;
    if (d->pack_sent) {
        d->pack_sent = cdp__ddp_unpack(d);
        if (!d->pack_sent) d->pack_used = d->at_byte = 0;
    } else if (bytes >= CDP__PACK_BELOW) {
        st = cdp_broadcast_async(d->group, item, bytes, CDP_DTYPE_U8, d->pack_root, &d->last);
        ++d->item;
    } else if (more && d->pack_used + bytes <= d->pack_bytes) {
        if (bytes && cdp_rank(d->group) == d->pack_root)
            cdp__ddp_copy(d, d->pack + d->pack_used, item, bytes);
        d->pack_used += bytes;
        ++d->item;
    } else if (d->pack_used) {
        d->pack_sent = true;
        return cdp__ddp_after(d,
            cdp_broadcast_async(
                d->group, d->pack, d->pack_used, CDP_DTYPE_U8, d->pack_root, &d->last),
            cdp__ddp_send_item);
    } else { /* operations of a group end in order */
        return cdp__ddp_then(d, d->last, cdp__ddp_nothing);
    }
    return st == CDP_OK ? cdp__ddp_at_once(d, cdp__ddp_send_item) : st;
}

/* Broadcasts all buffers and, if `params` is set, all parameters from rank `root`. */
CDP__PRIVATE cdp_status cdp__ddp_broadcast(cdp_ddp *d, uint32_t root, bool params) {
    const uint32_t first = params ? 0 : d->param_count;
    const cdp_status st = cdp__ddp_open_pack(d, first);
    d->pack_root = root;
    d->pack_first = d->item = first;
    d->pack_used = d->at_byte = 0;
    d->pack_sent = false;
    return st == CDP_OK ? cdp__ddp_send_item(d) : st;
}

/* Broadcasts the buffers once per synchronized pass. With join, the root is the highest rank
   that has data in this step, as in PyTorch; a small allreduce determines it. If no rank has
   data, cdp_ddp_join() broadcasts the buffers. */
CDP__PRIVATE cdp_status cdp__ddp_send_buffers(cdp_ddp *d) {
    int32_t root = d->shadow ? -1 : (int32_t)cdp_rank(d->group);
    cdp_status st = CDP_OK;
    if (!d->buffers_due) return CDP_OK;
    d->buffers_due = false;
    if (d->desc.buffer_hook) return d->desc.buffer_hook(d, d->desc.user);
    if (d->desc.join)
        st = cdp_allreduce(d->group, NULL, &root, 1, CDP_DTYPE_I32, CDP_REDUCE_MAX);
    else
        root = 0;
    if (st != CDP_OK || root < 0) return st;
    return cdp__ddp_wait(d, cdp__ddp_broadcast(d, (uint32_t)root, false));
}

#endif /* CDP_NO_DDP */

/* ---- >>ddp/compare: compares the model on all ranks ------------------------------------------ */

/* Knows: names, shapes and settings of a model, and the bits of its parameters. Promises: if ranks
   differ, every rank returns the same sentence about the first difference. */

#ifndef CDP_NO_DDP

/* A hash of one parameter or buffer. Buffers pass a number of rows that no parameter has. */
CDP__PRIVATE uint64_t cdp__shape_hash(
    const char *name, cdp_dtype dtype, uint64_t count, uint64_t rows) {
    char shape[80];
    cdp__format(shape, sizeof shape, "|%d|%llu|%llu", (int)dtype, (unsigned long long)count,
        (unsigned long long)rows);
    return cdp__hash(cdp__hash(CDP__HASH_START, name, strlen(name)), shape, strlen(shape));
}

CDP__PRIVATE uint64_t cdp__param_hash(const cdp_ddp *d, uint32_t i) {
    if (i >= d->param_count) {
        const cdp_buffer *b = &d->buffers[i - d->param_count];
        return cdp__shape_hash(b->name, b->dtype, b->count, UINT64_MAX);
    } else {
        const cdp_param *p = &d->params[i].user;
        const uint64_t rows = p->rows | (p->sparse ? 1ull << 63 : 0);
        return cdp__shape_hash(d->params[i].name, p->dtype, p->count, rows);
    }
}

/* Shortens a long name to its end, where the names of one model differ. */
CDP__PRIVATE const char *cdp__param_short(const char *name, char out[48]) {
    const size_t n = strlen(name);
    cdp__format(out, 48, n < 48 ? "%s" : "...%s", n < 48 ? name : name + n - 44);
    return out;
}

/* Describes one of this rank's parameters or buffers, to be compared. The first 8 bytes are a
   hash, because shortened names may be equal. */
#define CDP__PARAM_TEXT 104u
CDP__PRIVATE void cdp__param_text(const cdp_ddp *d, uint32_t i, char out[CDP__PARAM_TEXT]) {
    const uint32_t n = d->param_count, all = n + d->desc.buffer_count;
    const uint64_t hash = i < all ? cdp__param_hash(d, i) : 0;
    const cdp_param *p = &d->params[i < n ? i : 0].user;
    char name[48];
    cdp__text t = cdp__text_of(out + 8, CDP__PARAM_TEXT - 8);
    memset(out, 0, CDP__PARAM_TEXT);
    memcpy(out, &hash, 8);
    if (i >= all) {
        cdp__text_add(&t, "nothing (%s is %u)",
            d->desc.buffer_count ? "param_count + buffer_count" : "param_count", all);
    } else if (i >= n) {
        cdp__text_add(&t, "buffer '%s' %s[%llu]", d->buffers[i - n].name,
            cdp_dtype_name(d->buffers[i - n].dtype), (unsigned long long)d->buffers[i - n].count);
    } else {
        cdp__text_add(&t, "'%s' %s[%llu]", cdp__param_short(p->name, name),
            cdp_dtype_name(p->dtype), (unsigned long long)p->count);
        if (p->rows)
            cdp__text_add(&t, p->sparse ? " in %llu sparse rows" : " in %llu rows",
                (unsigned long long)p->rows);
    }
}

/* What ranks with different models exchange: hashes of rank 0's parameters (the largest number of
   parameters of any rank), the index of the first one that differs on this rank and then on any
   rank, and a text of each rank. */
CDP__PRIVATE char *cdp__ddp_texts(const cdp_ddp *d) {
    return (char *)(d->scratch + d->item + 1);
}

/* All ranks have sent how the first parameter that differs looks there. */
CDP__PRIVATE CDP__COLD cdp_status cdp__ddp_explained(cdp_ddp *d) {
    const uint32_t world = cdp_size(d->group);
    const char *texts = cdp__ddp_texts(d);
    uint32_t other = 0, r;
    for (r = 1; r < world && !other; ++r)
        if (memcmp(texts, texts + r * CDP__PARAM_TEXT, CDP__PARAM_TEXT) != 0) other = r;
    return cdp__fail_peer(CDP_ERR_MISMATCH, other, 0,
        "rank %u/%u: cdp_ddp_create: ranks have different models: parameter %lld is %s on rank "
        "0 but %s on rank %u; give every rank the same parameters in the same order",
        cdp_rank(d->group), world, (long long)d->scratch[d->item], texts + 8,
        texts + other * CDP__PARAM_TEXT + 8, other);
}

CDP__PRIVATE cdp_status cdp__ddp_explain_text(cdp_ddp *d) {
    char *const texts = cdp__ddp_texts(d);
    cdp__param_text(d, (uint32_t)d->scratch[d->item], texts + cdp_rank(d->group) * CDP__PARAM_TEXT);
    return cdp__ddp_after(d,
        cdp_allgather_async(d->group, NULL, texts, CDP__PARAM_TEXT, CDP_DTYPE_U8, &d->last),
        cdp__ddp_explained);
}

/* The hashes of rank 0 are here. */
CDP__PRIVATE CDP__COLD cdp_status cdp__ddp_explain_which(cdp_ddp *d) {
    const uint32_t count = d->param_count + d->desc.buffer_count, most = d->item;
    uint32_t i = 0;
    while (i < most && (i < count ? cdp__param_hash(d, i) : 0) == d->scratch[i])
        ++i;
    d->scratch[most] = i;
    return cdp__ddp_after(d,
        cdp_allreduce_async(
            d->group, NULL, d->scratch + most, 1, CDP_DTYPE_I64, CDP_REDUCE_MIN, &d->last),
        cdp__ddp_explain_text);
}

/* The ranks have different models. Finds the first parameter that differs on any rank; every
   rank reports how it looks on rank 0 and on the first rank that differs. `scratch` holds (hash,
   count, settings) of each rank. */
CDP__PRIVATE cdp_status cdp__ddp_explain(cdp_ddp *d) {
    const uint32_t world = cdp_size(d->group), count = d->param_count + d->desc.buffer_count;
    uint32_t most = 0, i;
    uint64_t room;
    for (i = 0; i < world; ++i)
        most = (uint32_t)cdp__max(most, d->scratch[3 * i + 1]);
    cdp__free(d->os, d->scratch);
    room = (most + 1ull) * sizeof *d->scratch + CDP__PARAM_TEXT * world;
    d->scratch = (uint64_t *)cdp__alloc_zero(d->os, room);
    if (!d->scratch) return cdp__fail_nomem("a comparison of parameters", room);
    d->item = most;
    for (i = 0; i < count && !cdp_rank(d->group); ++i)
        d->scratch[i] = cdp__param_hash(d, i);
    return cdp__ddp_after(d,
        cdp_broadcast_async(d->group, d->scratch, most, CDP_DTYPE_I64, 0, &d->last),
        cdp__ddp_explain_which);
}

/* The bits of the f64 that has this value, equal on ranks of every build. */
CDP__PRIVATE uint64_t cdp__real_bits(cdp_real x) {
#ifdef CDP_ONLY_F32
    uint32_t bits, size;
    memcpy(&bits, &x, 4);
    size = bits & 0x7fffffffu;
    return (uint64_t)(bits ^ size) << 32 | (size ? ((uint64_t)size << 29) + (896ull << 52) : 0);
#else
    uint64_t bits;
    memcpy(&bits, &x, 8);
    return bits;
#endif
}

/* The settings that must agree: one bit per switch, so that an error can name it, and above
   these bits a hash of the numbers. */
CDP__PRIVATE uint64_t cdp__ddp_settings(const cdp_ddp_desc *s) {
    const uint64_t numbers[2] = {s->first_bucket_bytes, s->bucket_bytes};
    const uint64_t factors[2] = {cdp__real_bits(s->divisor), cdp__real_bits(s->predivide)};
    const uint64_t hash =
        cdp__hash(cdp__hash(CDP__HASH_START, numbers, sizeof numbers), factors, sizeof factors);
    return (hash & ~255ull) | (s->no_broadcast ? 1u : 0u) | (s->no_buffer_broadcast ? 2u : 0u)
        | (s->find_unused ? 4u : 0u) | (s->static_graph ? 8u : 0u) | (s->rebuild ? 16u : 0u)
        | (s->join ? 32u : 0u) | (s->join_throw ? 64u : 0u) | (s->join_effective ? 128u : 0u);
}

CDP__PRIVATE cdp_status cdp__ddp_explain_settings(
    const cdp_ddp *d, uint64_t zero, uint64_t there, uint32_t other) {
    static const char *const names[9] = {"no_broadcast", "no_buffer_broadcast", "find_unused",
        "static_graph", "rebuild", "join", "join_throw", "join_effective",
        "bucket sizes, divisor or predivide"};
    uint32_t i = 0;
    while (i < 8 && !((zero ^ there) >> i & 1))
        ++i;
    return cdp__fail_peer(CDP_ERR_MISMATCH, other, 0,
        "rank %u/%u: cdp_ddp_create: ranks have different settings: %s of rank %u is not that of "
        "rank 0; give every rank the same desc",
        cdp_rank(d->group), cdp_size(d->group), names[i], other);
}

/* The hashes of all ranks are here. Ranks that agree get the values of rank 0. */
CDP__PRIVATE CDP__COLD cdp_status cdp__ddp_compared(cdp_ddp *d) {
    const uint32_t world = cdp_size(d->group), rank = cdp_rank(d->group);
    const uint64_t *heads = d->scratch;
    bool equal = true;
    uint32_t i, odd = 0;
    for (i = 0; i < world; ++i) {
        if (heads[3 * i + 1] != UINT64_MAX) continue;
        if (i != rank)
            return cdp__fail_peer(CDP_ERR_NOMEM, i, 0,
                "rank %u/%u: cdp_ddp_create: rank %u has no device memory left for its gradients",
                rank, world, i);
        *cdp__error_slot() = d->failed_error;
        return d->failed;
    }
    for (i = 1; i < world; ++i) {
        equal = equal && heads[3 * i] == heads[0] && heads[3 * i + 1] == heads[1];
        if (!odd && heads[3 * i + 2] != heads[2]) odd = i;
    }
    if (odd) return cdp__ddp_explain_settings(d, heads[2], heads[3 * odd + 2], odd);
    if (!equal) return cdp__ddp_explain(d);
    return d->desc.no_broadcast ? CDP_OK : cdp__ddp_broadcast(d, 0, true);
}

/* Compares one hash of the whole model per rank; only if they differ, more data is exchanged.
   A rank that has run out of device memory has failed with
   that. */
CDP__PRIVATE cdp_status cdp__ddp_compare(cdp_ddp *d) {
    const uint32_t world = cdp_size(d->group), rank = cdp_rank(d->group),
                   count = d->param_count + d->desc.buffer_count;
    uint64_t *heads = (uint64_t *)cdp__alloc(d->os, 3 * world * sizeof *heads),
             hash = CDP__HASH_START;
    uint32_t i;
    if (!heads) return cdp__fail_nomem("a comparison of models", 3 * world * sizeof *heads);
    d->scratch = heads;
    for (i = 0; i < count; ++i) {
        const uint64_t h = cdp__param_hash(d, i);
        hash = cdp__hash(hash, &h, sizeof h);
    }
    heads[3 * rank] = hash;
    heads[3 * rank + 1] = d->failed == CDP_ERR_NOMEM ? UINT64_MAX : count;
    heads[3 * rank + 2] = cdp__ddp_settings(&d->desc);
    return cdp__ddp_after(d, cdp_allgather_async(d->group, NULL, heads, 3, CDP_DTYPE_I64, &d->last),
        cdp__ddp_compared);
}

#ifndef CDP_NO_VERIFY
/* Parameters in device memory are read in pieces of this size. */
#define CDP__PIECE_BYTES 1048576u

CDP__PRIVATE uint64_t cdp__bits_hash(uint64_t h, const uint8_t *at, uint64_t n) {
    uint64_t w;
    for (; n >= 8; n -= 8, at += 8) {
        memcpy(&w, at, 8);
        h = (h ^ w) * 0x9fb21c651e98df25ull;
        h ^= h >> 29;
    }
    w = n;
    if (n) memcpy(&w, at, (size_t)n);
    return (h ^ w) * 0x9fb21c651e98df25ull;
}

/* A hash of a parameter's bits, eight bytes at a time; not cryptographic. `stage` has room for
   one piece if parameters are in device memory; else it is NULL. */
CDP__PRIVATE uint64_t cdp__ddp_bits(cdp_ddp *d, const cdp__param *p, uint8_t *stage) {
    const uint8_t *from = (const uint8_t *)p->user.data;
    uint64_t left = p->user.count * p->elem, n, h = 0x9e3779b97f4a7c15ull;
    for (; left; left -= n, from += n) {
        n = stage ? cdp__min(left, CDP__PIECE_BYTES) : left;
        if (stage) cdp__ddp_copy(d, stage, from, n);
        h = cdp__bits_hash(h, stage ? stage : from, n);
    }
    return h ^ h >> 32;
}

/* The first rank whose number differs from rank 0's; 0: all are equal. */
CDP__PRIVATE uint32_t cdp__first_odd_rank(const uint64_t *numbers, uint32_t world) {
    uint32_t r;
    for (r = 1; r < world; ++r)
        if (numbers[r] != numbers[0]) return r;
    return 0;
}

/* The models differ: compares parameter by parameter, and names the first that differs. `all`
   has room for one number per rank; `hashes` are those of this rank's parameters. */
CDP__PRIVATE cdp_status cdp__ddp_verify_each(cdp_ddp *d, uint64_t *all, const uint64_t *hashes) {
    const uint32_t world = cdp_size(d->group), rank = cdp_rank(d->group);
    uint32_t i, odd;
    for (i = 0; i < d->param_count; ++i) {
        cdp_status st;
        all[rank] = hashes[i];
        st = cdp_allgather(d->group, NULL, all, 1, CDP_DTYPE_U64);
        if (st != CDP_OK) return st;
        odd = cdp__first_odd_rank(all, world);
        if (odd)
            return cdp__fail_peer(CDP_ERR_MISMATCH, odd, 0,
                "rank %u/%u: cdp_ddp_verify: parameter '%s' (index %u) is no longer the same on "
                "all ranks: rank %u has other bits than rank 0",
                rank, world, d->params[i].name, i, odd);
    }
    return CDP_OK;
}

CDP_API CDP__COLD cdp_status cdp_ddp_verify(cdp_ddp *d) {
    uint64_t *all, hash = CDP__HASH_START, room;
    uint8_t *stage = NULL;
    uint32_t world, i;
    cdp_status st;
    st = cdp__ddp_between(d, "cdp_ddp_verify");
    if (st != CDP_OK) return st;
    world = cdp_size(d->group);
    room = ((uint64_t)world + d->param_count) * sizeof *all;
    all = (uint64_t *)cdp__alloc(d->os, room + (cdp__ddp_on_device(d) ? CDP__PIECE_BYTES : 0));
    if (!all) return cdp__fail_nomem("a comparison of parameters", room);
    if (cdp__ddp_on_device(d)) stage = (uint8_t *)all + room;
    d->failed = CDP_OK;
    for (i = 0; i < d->param_count; ++i) {
        all[world + i] = cdp__ddp_bits(d, &d->params[i], stage);
        hash = cdp__hash(hash, &all[world + i], sizeof *all);
    }
    all[cdp_rank(d->group)] = hash;
    if (d->failed != CDP_OK) cdp__ddp_break(d);
    st = cdp_allgather(d->group, NULL, all, 1, CDP_DTYPE_U64);
    if (st == CDP_OK && cdp__first_odd_rank(all, world))
        st = cdp__ddp_verify_each(d, all, all + world);
    cdp__free(d->os, all);
    return st;
}
#endif /* CDP_NO_VERIFY */

#endif /* CDP_NO_DDP */

/* ---- >>ddp/create: creating a ddp, and its checks -------------------------------------------- */

/* Knows: valid descs. Promises: a ddp is created completely, or not at all. */

#ifndef CDP_NO_DDP

CDP__PRIVATE void cdp__sparse_free(cdp_ddp *d, cdp__sparse *s) {
    if (!s) return;
    cdp__free(d->os, s->rows);
    cdp__free(d->os, s->values);
    cdp__free(d->os, s->mean_rows);
    cdp__free(d->os, s->mean);
    cdp__free(d->os, s->place);
    cdp__free(d->os, s->all_rows);
    cdp__free(d->os, s->all_values);
    cdp__free(d->os, s);
}

#ifndef CDP_NO_FRAMES
/* Other ranks wait for what this one does not end: they receive the reason. */
CDP__PRIVATE void cdp__ddp_forsake(cdp_ddp *d) {
    if (d->task == CDP__DDP_IDLE || d->task == CDP__DDP_FAILED) return;
    if (d->task == CDP__DDP_ENDS && !d->sync) return; /* nobody waits */
    (void)cdp__ddp_fail(d,
        cdp__fail_peer(CDP_ERR_STATE, cdp_rank(d->group), 0,
            "rank %u/%u destroyed a ddp before cdp_ddp_poll had ended its %s", cdp_rank(d->group),
            cdp_size(d->group), d->task == CDP__DDP_CREATES ? "creation" : "backward pass"));
    cdp__ddp_break(d);
}
#endif

/* Waits for all operations that use memory of this ddp. */
CDP__PRIVATE void cdp__ddp_settle(cdp_ddp *d) {
    uint32_t i;
    (void)!cdp_work_wait(d->last);
    for (i = 0; d->in_backward && d->hook.stage && i < d->launched; ++i)
        (void)!cdp_work_wait(d->buckets[i].work);
    if (cdp__ddp_on_device(d))
        (void)!cdp_work_wait_for(
            cdp__group_device_work(d->group), cdp_group_desc_of(d->group)->timeout_ms);
}

CDP_API CDP__COLD void cdp_ddp_destroy(cdp_ddp *d) {
    uint32_t i;
    if (!d
        || ((d->in_backward || (CDP__BUDGETS && d->task))
            && cdp__destroys_inside(d->group, "cdp_ddp_destroy")))
        return;
    /* destroyed after a failure, without backward_end */
    if (d->in_backward && d->sync && d->failed != CDP_OK) cdp__ddp_break(d);
#ifndef CDP_NO_FRAMES
    cdp__ddp_forsake(d);
#endif
    cdp__ddp_settle(d);
    if (d->hook.destroy) d->hook.destroy(d->hook.self);
    for (i = 1; i < CDP__HOOK_LANES; ++i)
        if (d->lanes[i] != d->group) cdp_group_destroy(d->lanes[i]);
    cdp__ddp_free_buckets(d, d->buckets, d->bucket_count);
    for (i = 0; d->params && i < d->param_count; ++i) {
        cdp__free(d->os, d->params[i].name);
        cdp__ddp_free(d, d->params[i].kept);
        cdp__sparse_free(d, d->params[i].sparse);
    }
    for (i = 0; d->buffers && i < d->desc.buffer_count; ++i)
        cdp__free(d->os, (void *)(uintptr_t)d->buffers[i].name);
    cdp__free(d->os, d->buffers);
    cdp__free(d->os, d->params);
    cdp__free(d->os, d->slots);
    cdp__ddp_free(d, d->pack);
    cdp__free(d->os, d->order);
    cdp__free(d->os, d->sparse_counts);
    cdp__free(d->os, d->scratch);
    cdp__lock_close(&d->lock);
    cdp__free(d->os, d);
}

/* A copy of a name, or of "<what><i>" if there is none. */
CDP__PRIVATE char *cdp__ddp_name(cdp_ddp *d, const char *name, const char *what, uint32_t i) {
    char fallback[32], *copy;
    cdp__format(fallback, sizeof fallback, "%s%u", what, i);
    if (!name) name = fallback;
    copy = (char *)cdp__alloc(d->os, strlen(name) + 1);
    if (copy) memcpy(copy, name, strlen(name) + 1);
    return copy;
}

/* Stores whether the model is in device memory. All parameters, gradients and buffers must be
   where the first one is. */
CDP__PRIVATE cdp_status cdp__ddp_where(
    cdp_ddp *d, const char *what, const char *name, uint32_t i, const void *data) {
    const cdp_backend *b = cdp_group_backend(d->group);
    const int own = data && b ? b->owns(b->self, data) : 0;
    if (own < 0) return (cdp_status)own;
    if (data && !d->placed) d->device = own ? b : NULL;
    d->placed = d->placed || data;
    if (!data || (own != 0) == cdp__ddp_on_device(d)) return CDP_OK;
    return cdp__fail(CDP_ERR_INVALID,
        "cdp_ddp_create: %s '%s' (index %u) is in %s memory, but those before are in %s memory; "
        "put all of them in the same memory",
        what, name, i, own ? "device" : "host", own ? "host" : "device");
}

/* Checks the numbers of one parameter for mistakes. */
CDP__PRIVATE cdp_status cdp__ddp_check_param(const cdp__param *mine, uint32_t i) {
    const cdp_param *p = &mine->user;
    uint64_t bytes;
    if (!cdp__dtype_has_grads(p->dtype))
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_ddp_create: parameter '%s' (index %u) has dtype %s; gradients are f32, f64, f16 "
            "or bf16",
            mine->name, i, cdp_dtype_name(p->dtype));
    if (cdp__dtype_left_out(p->dtype))
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "cdp_ddp_create: parameter '%s' (index %u) has dtype %s, and CDP_ONLY_F32 was defined "
            "when cdp.h was compiled",
            mine->name, i, cdp_dtype_name(p->dtype));
    if (!cdp__mul_fits(p->count, cdp_dtype_size(p->dtype), &bytes))
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_ddp_create: parameter '%s' (index %u) is larger than 2^63 bytes", mine->name, i);
    if (p->count && !p->data)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_ddp_create: parameter '%s' (index %u) has no data pointer", mine->name, i);
    if (p->rows && p->count % p->rows)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_ddp_create: parameter '%s' (index %u) has %llu values, which %llu rows do not "
            "divide",
            mine->name, i, (unsigned long long)p->count, (unsigned long long)p->rows);
    if (p->device)
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "cdp_ddp_create: parameter '%s' (index %u) is on device %u; set device 0, the pointer "
            "says where memory is",
            mine->name, i, p->device);
    return CDP_OK;
}

#ifdef CDP_NO_SPARSE
CDP__PRIVATE cdp_status cdp__ddp_open_sparse(cdp_ddp *d, cdp__param *mine, uint32_t i) {
    (void)d;
    return cdp__fail(CDP_ERR_UNSUPPORTED,
        "cdp_ddp_create: parameter '%s' (index %u) is sparse, and CDP_NO_SPARSE was defined when "
        "cdp.h was compiled",
        mine->name, i);
}
#else
CDP__PRIVATE cdp_status cdp__ddp_open_sparse(cdp_ddp *d, cdp__param *mine, uint32_t i) {
    const cdp_param *p = &mine->user;
    cdp__sparse *s;
    if (cdp__ddp_on_device(d))
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "cdp_ddp_create: parameter '%s' (index %u) is sparse; rows of gradients must be in "
            "host memory",
            mine->name, i);
    if (!p->rows || p->rows >> 32 || p->grad)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_ddp_create: parameter '%s' (index %u) is sparse, so it needs rows (below 2^32) "
            "and no gradient array",
            mine->name, i);
    ++d->sparse_count;
    s = mine->sparse = (cdp__sparse *)cdp__alloc_zero(d->os, sizeof *s);
    if (s) s->place = (uint32_t *)cdp__alloc_zero(d->os, p->rows * sizeof *s->place);
    return s && s->place ? CDP_OK
                         : cdp__fail_nomem("a sparse parameter", p->rows * sizeof *s->place);
}
#endif

CDP__PRIVATE cdp_status cdp__ddp_copy_param(cdp_ddp *d, uint32_t i, const cdp_param *p) {
    cdp__param *mine = &d->params[i];
    cdp_status st;
    mine->user = *p;
    if (!p->dtype) mine->user.dtype = CDP_DTYPE_F32;
    mine->elem = cdp_dtype_size(mine->user.dtype);
    mine->name = cdp__ddp_name(d, p->name, "param", i);
    mine->user.name = mine->name;
    if (!mine->name) return cdp__fail_nomem("a parameter's name", 32);
    st = cdp__ddp_check_param(mine, i);
    if (st == CDP_OK) st = cdp__ddp_where(d, "parameter", mine->name, i, p->data);
    if (st == CDP_OK) st = cdp__ddp_where(d, "the gradient of parameter", mine->name, i, p->grad);
    return st == CDP_OK && p->sparse ? cdp__ddp_open_sparse(d, mine, i) : st;
}

CDP__PRIVATE cdp_status cdp__ddp_copy_buffer(cdp_ddp *d, uint32_t i, const cdp_buffer *b) {
    cdp_buffer *mine = &d->buffers[i];
    uint64_t bytes;
    *mine = *b;
    if (!b->dtype) mine->dtype = CDP_DTYPE_F32;
    mine->name = cdp__ddp_name(d, b->name, "buffer", i);
    if (!mine->name) return cdp__fail_nomem("a buffer's name", 32);
    if ((uint32_t)b->dtype >= CDP_DTYPE_COUNT
        || !cdp__mul_fits(b->count, cdp_dtype_size(mine->dtype), &bytes) || (b->count && !b->data))
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_ddp_create: buffer '%s' (index %u) has no data pointer, an unknown dtype, or more "
            "than 2^63 bytes",
            mine->name, i);
    return cdp__ddp_where(d, "buffer", mine->name, i, b->data);
}

/* Allocates the lists of parameters and buffers, and copies the caller's entries. */
CDP__PRIVATE cdp_status cdp__ddp_open_lists(cdp_ddp *d, const cdp_ddp_desc *desc) {
    const uint32_t n = desc->param_count;
    cdp_status st = CDP_OK;
    uint64_t room;
    uint32_t i;
    d->param_count = n;
    d->params = (cdp__param *)cdp__alloc_zero(d->os, n * sizeof *d->params);
    d->buffers =
        (cdp_buffer *)cdp__alloc_zero(d->os, (desc->buffer_count + 1) * sizeof *d->buffers);
    d->slots = (uint32_t *)cdp__alloc(d->os, n * sizeof *d->slots);
    d->order = (uint32_t *)cdp__alloc(d->os, 2ull * n * sizeof *d->order);
    d->seen = d->order + n;
    if (!d->params || !d->buffers || !d->slots || !d->order)
        return cdp__fail_nomem("the parameter list", n * sizeof *d->params);
    for (i = 0; i < n && st == CDP_OK; ++i)
        st = cdp__ddp_copy_param(d, i, &desc->params[i]);
    for (i = 0; i < desc->buffer_count && st == CDP_OK; ++i)
        st = cdp__ddp_copy_buffer(d, i, &desc->buffers[i]);
    for (i = 0; i < n; ++i)
        d->order[i] = n - 1 - i;
    if (st != CDP_OK || !d->sparse_count) return st;
    room = (d->sparse_count + 1ull) * cdp_size(d->group) * sizeof *d->sparse_counts;
    d->sparse_counts = (uint64_t *)cdp__alloc(d->os, room);
    return d->sparse_counts ? CDP_OK : cdp__fail_nomem("counts of rows", room);
}

/* One step that clears buckets in host memory. Then ranks compare their models. */
CDP__PRIVATE CDP__COLD cdp_status cdp__ddp_clear(cdp_ddp *d) {
    while (!cdp__ddp_on_device(d) && d->item < d->bucket_count) {
        const cdp__bucket *b = &d->buckets[d->item];
        uint64_t at;
        const uint64_t n = cdp__ddp_piece(d, b->room, &at);
        memset(b->memory + at, 0, (size_t)n);
        if (CDP__BUDGETS) return cdp__ddp_at_once(d, cdp__ddp_clear);
    }
    return cdp__ddp_compare(d);
}

CDP__PRIVATE CDP__COLD cdp_status cdp__ddp_open(cdp_ddp *d, const cdp_ddp_desc *desc) {
    cdp_status st = cdp__ddp_open_lists(d, desc);
    if (st == CDP_OK) st = cdp__ddp_place(d, d->order);
    /* some ranks may run out of device memory while others do not: these must learn it */
    if (st == CDP_ERR_NOMEM && cdp__ddp_on_device(d))
        (void)cdp__ddp_fail(d, st);
    else if (st != CDP_OK)
        return st;
    return cdp__ddp_clear(d);
}

CDP__PRIVATE cdp_status cdp__ddp_check_desc(const cdp_ddp_desc *desc) {
    if (!desc->group) return cdp__fail(CDP_ERR_INVALID, "cdp_ddp_create: the desc has no group");
    if (!desc->params || !desc->param_count)
        return cdp__fail(
            CDP_ERR_INVALID, "cdp_ddp_create: there are no parameters; set params and param_count");
    if (desc->buffer_count && !desc->buffers)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_ddp_create: buffer_count is %u but there are no buffers", desc->buffer_count);
    if (!(desc->divisor >= 0) || !(desc->predivide >= 0))
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_ddp_create: divisor and predivide must be positive (0: the default)");
    if ((desc->join_throw || desc->join_effective) && !desc->join)
        return cdp__fail(
            CDP_ERR_INVALID, "cdp_ddp_create: join_throw and join_effective need join");
    if (desc->join_effective && desc->divisor != 0)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_ddp_create: join_effective divides by the number of ranks with data; leave "
            "divisor 0");
#ifdef CDP_NO_JOIN
    if (desc->join)
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "cdp_ddp_create: join is set, and CDP_NO_JOIN was defined when cdp.h was compiled");
#endif
    return CDP_OK;
}

/* Creation has ended: releases what is left of a ddp that failed. */
CDP__PRIVATE cdp_status cdp__ddp_created(cdp_ddp **out, cdp_status st) {
    if (st == CDP_OK) return st;
    cdp_ddp_destroy(*out);
    *out = NULL;
    return st;
}

/* Begins to create a ddp. CDP_PENDING: creation continues in stages. After any other status than
   that and CDP_OK nothing is left behind. */
CDP__PRIVATE CDP__COLD cdp_status cdp__ddp_create(const cdp_ddp_desc *desc, cdp_ddp **out) {
    const cdp_os *os;
    cdp_status st;
    cdp_ddp *d;
    if (!desc || !out) return cdp__fail(CDP_ERR_INVALID, "cdp_ddp_create: desc or out is NULL");
    *out = NULL;
    st = cdp__ddp_check_desc(desc);
    if (st != CDP_OK) return st;
    os = cdp__group_os(desc->group);
    d = (cdp_ddp *)cdp__alloc_zero(os, sizeof *d);
    if (!d) return cdp__fail_nomem("a ddp", sizeof *d);
    d->os = os;
    d->group = desc->group;
    d->desc = *desc;
    /* an explicit bucket size also applies to the first bucket, as in PyTorch */
    d->desc.first_bucket_bytes =
        cdp__def(desc->first_bucket_bytes, cdp__def(desc->bucket_bytes, 1024 * 1024));
    d->desc.bucket_bytes = cdp__def(desc->bucket_bytes, 25 * 1024 * 1024);
    d->sync = d->sync_next = d->equal = d->stats.can_set_static_graph = true;
    d->buffers_due = desc->buffer_hook || (desc->buffer_count && !desc->no_buffer_broadcast);
    d->rebuild_due = desc->rebuild;
    d->number = cdp__group_next_ddp(desc->group);
    *out = d;
    st = cdp__lock_open(&d->lock, os, true) ? cdp__ddp_open(d, desc)
                                            : cdp__fail_nomem("a lock", sizeof(void *));
    return st == CDP_PENDING ? st : cdp__ddp_created(out, st);
}

CDP_API cdp_status cdp_ddp_create(const cdp_ddp_desc *desc, cdp_ddp **out) {
    const cdp_status st = cdp__ddp_create(desc, out);
    return st == CDP_PENDING ? cdp__ddp_created(out, cdp__ddp_wait(*out, st)) : st;
}

#ifndef CDP_NO_FRAMES
CDP_API cdp_status cdp_ddp_create_start(const cdp_ddp_desc *desc, cdp_ddp **out) {
    const cdp_status st = cdp__ddp_create(desc, out);
    if (st != CDP_PENDING) return st;
    (*out)->task = CDP__DDP_CREATES;
    return CDP_OK;
}
#endif

#ifndef CDP_NO_GROUPS
CDP__PRIVATE cdp_status cdp__ddp_check_rebind(cdp_ddp *d, cdp_group *group) {
    const bool again = d && !d->group; /* the last call has failed */
    const cdp_status st = again ? CDP_OK : cdp__ddp_free_to(d, "cdp_ddp_rebind");
    if (st != CDP_OK) return st;
    if (!group) return cdp__fail(CDP_ERR_INVALID, "cdp_ddp_rebind needs a group");
    if (cdp__group_os(group) != d->os)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_ddp_rebind: the group has another cdp_os than the one that the ddp was created "
            "in");
    if (d->hook.stage)
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "cdp_ddp_rebind: a hook was set, which belongs to the former group; destroy the ddp, "
            "create it again, and set the hook");
    if (cdp__ddp_on_device(d))
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "cdp_ddp_rebind: the model is in device memory of the former group; destroy the ddp "
            "and create it again");
    if (d->in_backward && d->group && cdp_group_status(d->group) == CDP_OK)
        return cdp__fail(CDP_ERR_STATE,
            "cdp_ddp_rebind: a backward pass is open; call cdp_ddp_backward_end first");
    return CDP_OK;
}

/* Resets marks, rows and the order of parameters to their state at creation. */
CDP__PRIVATE void cdp__ddp_forget(cdp_ddp *d) {
    uint32_t i;
    for (i = 0; i < d->param_count; ++i) {
        cdp__param *p = &d->params[i];
        p->grad = NULL; /* so that placing it copies nothing */
        p->mark = CDP__MARK_NONE;
        p->touched = p->used = false;
        p->calls = p->want = 0;
        p->ready_ns = 0;
        if (p->sparse) p->sparse->used = p->sparse->mean_used = 0;
        d->order[i] = d->param_count - 1 - i;
    }
    d->launching = d->launch_again = d->in_backward = d->recorded = d->shadow = false;
    d->launched = d->root = d->ordered = 0;
    d->sync = d->sync_next = d->equal = true;
    d->rebuild_due = d->desc.rebuild;
    d->buffers_due = d->desc.buffer_hook || (d->desc.buffer_count && !d->desc.no_buffer_broadcast);
    memset(&d->active, 0, sizeof d->active);
    memset(&d->used, 0, sizeof d->used);
    memset(&d->last, 0, sizeof d->last);
    d->failed = CDP_OK;
    d->forward_ns = d->own_steps = d->marks = d->at_byte = d->pack_used = 0;
    d->item = 0;
    d->rows_under_way = d->pack_sent = false;
    cdp__free(d->os, d->scratch);
    d->scratch = NULL;
    memset(&d->stats, 0, sizeof d->stats);
    d->stats.can_set_static_graph = true;
}

/* It has no group until the next cdp_ddp_rebind(). */
CDP__PRIVATE void cdp__ddp_unbind(cdp_ddp *d) {
    uint32_t i;
    for (i = 1; i < CDP__HOOK_LANES; ++i) { /* of a hook that was removed */
        if (d->lanes[i] != d->group) cdp_group_destroy(d->lanes[i]);
        d->lanes[i] = NULL;
    }
    cdp__ddp_free_buckets(d, d->buckets, d->bucket_count);
    d->buckets = NULL;
    d->bucket_count = 0;
    for (i = 0; i < d->param_count; ++i)
        d->params[i].grad = NULL;
    d->group = d->desc.group = NULL;
}

CDP__PRIVATE cdp_status cdp__ddp_bind(cdp_ddp *d, cdp_group *group) {
    uint64_t room;
    cdp_status st;
    d->group = d->desc.group = group;
    d->desc.no_broadcast = true;
    d->number = cdp__group_next_ddp(group);
    cdp__ddp_forget(d);
    if (d->sparse_count) {
        cdp__free(d->os, d->sparse_counts);
        room = (d->sparse_count + 1ull) * cdp_size(group) * sizeof *d->sparse_counts;
        d->sparse_counts = (uint64_t *)cdp__alloc(d->os, room);
        if (!d->sparse_counts) return cdp__fail_nomem("counts of rows", room);
    }
    st = cdp__ddp_place(d, d->order);
    return st == CDP_OK ? cdp__ddp_wait(d, cdp__ddp_clear(d)) : st;
}

CDP_API CDP__COLD cdp_status cdp_ddp_rebind(cdp_ddp *d, cdp_group *group) {
    cdp_status st = cdp__ddp_check_rebind(d, group);
    cdp_error why;
    if (st != CDP_OK) return st;
    if (d->group) {
        cdp__ddp_settle(d);
        cdp__ddp_unbind(d);
    }
    st = cdp__ddp_bind(d, group);
    if (st == CDP_OK) return st;
    why = *cdp_last_error();
    if (st == CDP_ERR_NOMEM) cdp_group_abort(group, why.text);
    cdp__ddp_unbind(d);
    *cdp__error_slot() = why;
    return st;
}
#endif

CDP_API cdp_group *cdp_ddp_group(const cdp_ddp *d) {
    return d ? d->group : NULL;
}
CDP_API uint32_t cdp_ddp_param_count(const cdp_ddp *d) {
    return d ? d->param_count : 0;
}
CDP_API const cdp_param *cdp_ddp_param(const cdp_ddp *d, uint32_t i) {
    return d && i < d->param_count ? &d->params[i].user : NULL;
}

CDP_API void *cdp_ddp_grad(cdp_ddp *d, uint32_t i) {
    if (!d || i >= d->param_count) {
        (void)cdp__fail(CDP_ERR_INVALID, "cdp_ddp_grad(%u): it should be less than param_count, %u",
            i, d ? d->param_count : 0);
        return NULL;
    }
    if (CDP__BUDGETS && d->task != CDP__DDP_ENDS && cdp__ddp_free_to(d, "cdp_ddp_grad") != CDP_OK)
        return NULL;
    if (!d->params[i].sparse) return d->params[i].grad;
    (void)cdp__fail(CDP_ERR_INVALID,
        "cdp_ddp_grad: parameter '%s' (index %u) is sparse and has no dense gradient; give its "
        "rows to cdp_ddp_ready_rows and read their mean with cdp_ddp_rows",
        d->params[i].name, i);
    return NULL;
}

CDP_API bool cdp_ddp_used(const cdp_ddp *d, uint32_t i) {
    return d && i < d->param_count && d->params[i].used;
}

CDP_API void cdp_ddp_zero_grad(cdp_ddp *d) {
    uint32_t i;
    if (!d || d->in_backward || (CDP__BUDGETS && d->task)) return;
    for (i = 0; i < d->bucket_count; ++i)
        cdp__ddp_zero(d, d->buckets[i].memory, cdp__bucket_bytes(&d->buckets[i]));
    for (i = 0; i < d->param_count; ++i) {
        cdp__param *p = &d->params[i];
        if (p->sparse)
            p->sparse->used = p->sparse->mean_used = 0;
        else if (p->user.grad)
            cdp__ddp_zero(d, p->user.grad, cdp__param_bytes(p));
    }
}

#endif /* CDP_NO_DDP */

/* ---- >>ddp/stats: statistics of the last step and of all steps ------------------------------- */

/* Knows: the times of a pass. Promises: only statistics; nothing depends on them. */

#ifndef CDP_NO_DDP

/* Computes for the last step how long operations ran, and how long backward_end waited for them. */
CDP__PRIVATE void cdp__ddp_account_comm(cdp_ddp *d) {
    cdp_ddp_stats *s = &d->stats;
    uint32_t i;
    s->comm_ns = s->exposed_ns = 0;
    /* operations of a group run one after the other, so no time is counted twice */
    for (i = 0; i < d->bucket_count; ++i) {
        const cdp__bucket *b = &d->buckets[i];
        s->comm_ns += b->end_ns - b->start_ns + b->late_ns;
        if (b->end_ns > d->called_ns)
            s->exposed_ns += b->end_ns - cdp__max(b->start_ns, d->called_ns);
    }
    if (d->hook.stage) { /* stages of a hook overlap, so only the waiting time is known */
        s->exposed_ns = d->end_ns - d->called_ns;
        s->comm_ns = cdp__max(s->comm_ns, s->exposed_ns);
    }
    s->hidden = s->comm_ns ? 1 - (cdp_real)s->exposed_ns / (cdp_real)s->comm_ns : 0;
}

CDP__PRIVATE void cdp__ddp_account(cdp_ddp *d) {
    cdp_ddp_stats *s = &d->stats;
    const uint64_t first_ns = d->buckets[0].start_ns;
    cdp__ddp_account_comm(d);
    s->backward_ns = d->called_ns - d->begin_ns;
    s->forward_ns = d->forward_ns ? d->begin_ns - d->forward_ns : 0;
    s->overlap_ns = first_ns && first_ns < d->called_ns ? d->called_ns - first_ns : 0;
    d->forward_ns = 0;
    s->total_forward_ns += s->forward_ns;
    s->total_overlap_ns += s->overlap_ns;
    s->total_backward_ns += s->backward_ns;
    s->total_comm_ns += s->comm_ns;
    s->total_exposed_ns += s->exposed_ns;
    ++d->own_steps;
    s->avg_forward_ns = s->total_forward_ns / d->own_steps;
    s->avg_backward_ns = s->total_backward_ns / d->own_steps;
    s->avg_comm_ns = s->total_comm_ns / d->own_steps;
    s->avg_overlap_ns = s->total_overlap_ns / d->own_steps;
}

CDP_API cdp_ddp_stats cdp_ddp_stats_of(const cdp_ddp *d) {
    cdp_ddp_stats none;
    if (d) return d->stats;
    memset(&none, 0, sizeof none);
    return none;
}

CDP_API cdp_bucket_stats cdp_ddp_bucket(const cdp_ddp *d, uint32_t index) {
    cdp_bucket_stats s;
    const cdp__bucket *b;
    uint32_t i;
    memset(&s, 0, sizeof s);
    if (!d || index >= d->bucket_count) return s;
    b = &d->buckets[index];
    s.bytes = cdp__bucket_bytes(b);
    s.dtype = b->dtype;
    s.params = b->slots;
    s.param_count = b->params;
    if (!b->start_ns || b->start_ns < d->begin_ns) return s;
    for (i = 0; i < b->params; ++i)
        s.ready_ns = cdp__max(s.ready_ns, d->params[b->slots[i]].ready_ns);
    if (s.ready_ns) s.ready_ns -= d->begin_ns;
    s.start_ns = b->start_ns - d->begin_ns;
    s.end_ns = b->end_ns - d->begin_ns;
    return s;
}

#endif /* CDP_NO_DDP */

/* ---- >>ddp/launch: starts the operations of full buckets ------------------------------------- */

/* Knows: the order of buckets and of the stages of a hook. Promises: buckets start in the same
   order on every rank, in whatever order they become full. */

#ifndef CDP_NO_DDP

/* Callback; the caller holds the group's lock. */
CDP__PRIVATE void cdp__bucket_done(void *user, uint64_t start_ns, uint64_t end_ns) {
    cdp__bucket *b = (cdp__bucket *)user;
    b->start_ns = start_ns;
    b->end_ns = end_ns;
}

CDP__PRIVATE void cdp__bucket_done_later(void *user, uint64_t start_ns, uint64_t end_ns) {
    ((cdp__bucket *)user)->late_ns += end_ns - start_ns;
}

/* Starts an operation for a bucket. `b` NULL: for none, so its times are not recorded. */
CDP__PRIVATE cdp_status cdp__ddp_start(cdp_ddp *d, cdp_group *group, const cdp_request *rq,
    void (*done)(void *, uint64_t, uint64_t), cdp__bucket *b, cdp_work *out) {
    const uint32_t bucket = b ? (uint32_t)(b - d->buckets) : 0xffffu;
    const cdp_status st = cdp__group_start_bucket(group, rq, d->number, bucket, done, b, out);
    if (st != CDP_OK) return st;
    d->stats.sent_bytes += rq->count * cdp_dtype_size(rq->dtype);
    if (group == d->group) d->last = *out;
    return CDP_OK;
}

/* Sums flags in an operation of their own, because a hook changes the values in front of them. */
CDP__PRIVATE cdp_status cdp__ddp_start_flags(
    cdp_ddp *d, cdp__bucket *b, uint32_t from, uint32_t count, cdp_work *out) {
    const cdp_request rq = cdp__request_of(CDP_COLL_ALLREDUCE, NULL,
        b->memory + (b->count + from) * b->elem, count, b->dtype, CDP_REDUCE_SUM, 0);
    return count ? cdp__ddp_start(d, d->group, &rq, NULL, NULL, out) : CDP_OK;
}

/* Calls one stage of the hook for a bucket, and starts the operation that it returns. */
CDP__PRIVATE cdp_status cdp__ddp_stage(cdp_ddp *d, cdp__bucket *b, uint32_t stage) {
    cdp_request rq;
    cdp_status st, before;
    memset(&rq, 0, sizeof rq);
    b->view.group = stage < d->hook.operations ? d->lanes[stage] : d->group;
    before = cdp__error_slot()->status;
    cdp__error_slot()->status = CDP_OK;
    st = d->hook.stage(d->hook.self, &b->view, stage, &rq);
    b->done = st != CDP_PENDING;
    if (st != CDP_OK && st != CDP_PENDING && cdp__error_slot()->status == CDP_OK)
        return cdp__fail(st < 0 ? st : CDP_ERR_INVALID,
            "rank %u/%u: a hook returned %s for bucket %u, stage %u, without saying why",
            cdp_rank(d->group), cdp_size(d->group), cdp_status_name(st), b->view.index, stage);
    if (cdp__error_slot()->status == CDP_OK) cdp__error_slot()->status = before;
    if (st != CDP_PENDING) return st;
    if (stage >= d->hook.operations)
        return cdp__fail(CDP_ERR_INVALID,
            "a hook asks for operation %u of bucket %u, but its .operations is %u", stage + 1,
            b->view.index, d->hook.operations);
    return cdp__ddp_start(
        d, b->view.group, &rq, stage ? cdp__bucket_done_later : cdp__bucket_done, b, &b->work);
}

CDP__PRIVATE cdp_status cdp__ddp_launch_hook(cdp_ddp *d, cdp__bucket *b, uint32_t used) {
    cdp_bucket *v = &b->view;
    cdp_status st;
    v->index = (uint32_t)(b - d->buckets);
    v->bucket_count = d->bucket_count;
    v->data = b->memory;
    v->count = b->count;
    v->dtype = b->dtype;
    v->params = b->slots;
    v->param_count = b->params;
    v->divisor = cdp__ddp_divisor(d);
    v->ddp = d;
    b->start_ns = b->end_ns = 0;
    b->work.seq = 0;
    st = cdp__ddp_stage(d, b, 0);
    return st == CDP_OK ? cdp__ddp_start_flags(d, b, 0, used, &d->used) : st;
}

/* This rank has not used some parameters of the bucket. It contributes their gradients unchanged
   and keeps a copy, which is restored if no rank has used them. */
CDP__PRIVATE cdp_status cdp__ddp_keep(cdp_ddp *d, cdp__bucket *b) {
    uint32_t i;
    for (i = 0; i < b->params; ++i) {
        cdp__param *p = &d->params[b->slots[i]];
        const uint64_t bytes = cdp__param_bytes(p);
        if (p->mark != CDP__MARK_UNUSED || !bytes) continue;
        if (p->user.grad) {
            cdp__ddp_copy(d, p->grad, p->user.grad, bytes);
            continue;
        }
        if (p->touched) continue;
        if (!p->kept) p->kept = (uint8_t *)cdp__ddp_alloc(d, bytes, "ddp kept gradient");
        if (!p->kept) return cdp__fail_nomem("the gradient of an unused parameter", bytes);
        cdp__ddp_copy(d, p->kept, p->grad, bytes);
    }
    return cdp__ddp_failed(d);
}

/* Sets this rank's flag among those that say which ranks have data; `from`: index of the first. */
CDP__PRIVATE void cdp__ddp_set_active(
    cdp_ddp *d, const cdp__bucket *b, uint32_t from, uint32_t active) {
    uint32_t i;
    for (i = 0; i < active; ++i)
        cdp__flag_set(b, from + i, !d->shadow && i == cdp_rank(d->group));
}

CDP__PRIVATE cdp_status cdp__ddp_set_flags(
    cdp_ddp *d, cdp__bucket *b, uint32_t active, uint32_t used) {
    uint32_t i;
    for (i = 0; i < used; ++i) {
        const cdp__param *p = &d->params[i];
        cdp__flag_set(b, i, !d->shadow && (p->mark == CDP__MARK_READY || p->touched));
    }
    cdp__ddp_set_active(d, b, used, active);
    cdp__flags_move(d, b, used + active, true);
    return used && !d->shadow ? cdp__ddp_keep(d, b) : cdp__ddp_failed(d);
}

/* The part of the divisor by which gradients are divided before summing; 0: none. f16 is divided
   before, because sums would soon exceed its range (65504); PyTorch does so for all dtypes. */
CDP__PRIVATE cdp_real cdp__ddp_predivide(const cdp_ddp *d, cdp_dtype dtype) {
    const cdp_real divisor = d->desc.divisor != 0 ? d->desc.divisor : (cdp_real)cdp_size(d->group);
    if (d->desc.predivide != 0 || dtype != CDP_DTYPE_F16) return d->desc.predivide;
    return divisor >= 1 ? divisor : 0;
}

/* The request that reduces a bucket; cdp__ddp_divide() applies the rest of the divisor. */
CDP__PRIVATE cdp_request cdp__ddp_request(const cdp_ddp *d, const cdp__bucket *b, uint32_t tail) {
    const cdp_real before = cdp__ddp_predivide(d, b->dtype);
    cdp_reduce_op op = CDP_REDUCE_SUM;
    cdp_request rq;
    if (before != 0)
        op = CDP_REDUCE_PREMUL_SUM;
    else if (d->desc.divisor == 0 && !d->desc.join_effective)
        op = CDP_REDUCE_AVG;
    rq = cdp__request_of(CDP_COLL_ALLREDUCE, NULL, b->memory, b->count + tail, b->dtype, op, 0);
    if (before != 0) rq.factor = 1 / before;
    return rq;
}

/* Reads from the flags, which have arrived, which ranks had data in this pass. */
CDP__PRIVATE cdp_status cdp__ddp_read_active(cdp_ddp *d) {
    cdp__bucket *b = d->buckets;
    const uint32_t n = cdp__ddp_active_flags(d, b), used = b->used_flags;
    cdp_status st;
    uint32_t i, count = 0;
    d->stats.active_ranks = cdp_size(d->group);
    if (!n) return CDP_OK;
    cdp__flags_move(d, b, used + n, false);
    st = cdp__ddp_failed(d);
    if (st != CDP_OK) return st;
    for (i = 0; i < n; ++i)
        if (cdp__flag_get(b, used + i)) {
            ++count;
            d->root = i;
        }
    d->stats.active_ranks = count;
    if (count) d->equal = count == n;
    return CDP_OK;
}

/* Sums the flags that say which ranks have data, before a hook sees the first bucket. Returns
   CDP_PENDING if the hook divides by their number and `active`, which tells it, is not done. */
CDP__PRIVATE cdp_status cdp__ddp_start_active(cdp_ddp *d) {
    const uint32_t active = cdp__ddp_active_flags(d, d->buckets);
    cdp_status st = CDP_OK;
    if (!active || !d->hook.stage || d->launched) return CDP_OK;
    if (!d->active.seq) {
        const uint32_t used = d->buckets->used_flags;
        cdp__ddp_set_active(d, d->buckets, used, active);
        cdp__flags_move(d, d->buckets, used + active, true);
        st = cdp__ddp_start_flags(d, d->buckets, used, active, &d->active);
    }
    if (st != CDP_OK || !d->desc.join_effective) return st;
    st = cdp_work_test(d->active);
    return st == CDP_OK ? cdp__ddp_read_active(d) : st;
}

CDP__PRIVATE cdp_status cdp__ddp_launch(cdp_ddp *d, cdp__bucket *b) {
    const uint32_t active = d->hook.stage ? 0 : cdp__ddp_active_flags(d, b), used = b->used_flags;
    const bool may_be_unused = d->desc.find_unused || d->desc.static_graph;
    cdp_request rq;
    cdp_status st = CDP_OK;
    CDP_ASSERT(b == &d->buckets[d->launched]); /* buckets start in order */
    if (active || used) st = cdp__ddp_set_flags(d, b, active, used);
    if (st == CDP_OK && may_be_unused && !used && !d->shadow) st = cdp__ddp_keep(d, b);
    if (st != CDP_OK) return st;
    if (d->hook.stage) {
        st = cdp__ddp_launch_hook(d, b, used);
    } else {
        rq = cdp__ddp_request(d, b, active + used);
        st = cdp__ddp_start(d, d->group, &rq, cdp__bucket_done, b, &b->work);
    }
    if (st == CDP_OK) ++d->launched;
    return st;
}

/* Runs the next stage of the hook for its next bucket. CDP_PENDING: the previous operation of
   that bucket is not done. */
CDP__PRIVATE cdp_status cdp__ddp_advance_one(cdp_ddp *d, uint32_t stage) {
    cdp__bucket *b = &d->buckets[d->at[stage]];
    cdp_status st;
    if (b->done) return CDP_OK;
    /* on a device, the hook appends to a queue without waiting */
    st = cdp__work_on_device(b->work) ? CDP_OK : cdp_work_test(b->work);
    return st == CDP_OK ? cdp__ddp_stage(d, b, stage) : st;
}

/* Runs the later stages of a hook as far as possible without waiting. Each stage handles the
   buckets in order. */
CDP__PRIVATE cdp_status cdp__ddp_advance(cdp_ddp *d) {
    uint32_t stage;
    for (stage = 1; stage <= d->hook.operations; ++stage)
        while (d->at[stage] < (stage == 1 ? d->launched : d->at[stage - 1])) {
            const cdp_status st = cdp__ddp_advance_one(d, stage);
            if (st < CDP_OK) return st;
            if (st == CDP_PENDING) break;
            ++d->at[stage];
        }
    return CDP_OK;
}

/* Starts every full bucket, as far as the order of buckets allows. Only the thread that has set
   `launching` calls this. */
CDP__PRIVATE bool cdp__ddp_next_is_full(cdp_ddp *d) {
    bool full;
    cdp_lock_acquire(&d->lock);
    full = d->launched < d->bucket_count && !d->buckets[d->launched].pending;
    cdp_lock_release(&d->lock);
    return full;
}

CDP__PRIVATE cdp_status cdp__ddp_launch_full(cdp_ddp *d) {
    cdp_status st = CDP_OK;
    if (d->hook.stage && !d->launched && cdp__ddp_next_is_full(d)) st = cdp__ddp_start_active(d);
    if (st == CDP_PENDING) return CDP_OK; /* a later call continues */
    while (st == CDP_OK && cdp__ddp_next_is_full(d)) {
        st = cdp__ddp_launch(d, &d->buckets[d->launched]);
        /* on a device all stages share one queue, so finish bucket by bucket on every rank */
        if (st == CDP_OK && d->hook.stage && cdp__ddp_on_device(d)) st = cdp__ddp_advance(d);
    }
    if (st == CDP_OK && d->hook.stage) st = cdp__ddp_advance(d);
    if (st == CDP_OK && d->launched && cdp__group_is_polled(d->group)) st = cdp_poll(d->group, 0);
    return st;
}

/* Starts full buckets from any thread. If another thread is launching already, it also launches
   the buckets of this one. */
CDP__PRIVATE cdp_status cdp__ddp_launch_ready(cdp_ddp *d) {
    cdp_status st = CDP_OK;
    bool again;
    cdp_lock_acquire(&d->lock);
    again = !d->launching;
    d->launching = d->launch_again = true;
    cdp_lock_release(&d->lock);
    while (again) {
        cdp_lock_acquire(&d->lock);
        d->launch_again = false;
        cdp_lock_release(&d->lock);
        st = cdp__ddp_launch_full(d);
        cdp_lock_acquire(&d->lock);
        again = d->launch_again && st == CDP_OK;
        d->launching = again;
        cdp_lock_release(&d->lock);
    }
    return st;
}

#endif /* CDP_NO_DDP */

/* ---- >>ddp/deliver: what is left to do when all gradients have arrived ----------------------- */

/* Knows: buckets, divisors, where the caller reads gradients. Promises: a step copies at most
   CDP__STEP_BYTES. */

#ifndef CDP_NO_DDP

/* One step that applies the rest of the divisor, see cdp__ddp_request(). */
CDP__PRIVATE void cdp__ddp_divide(cdp_ddp *d, cdp__bucket *b) {
    const cdp_real before = cdp__ddp_predivide(d, b->dtype);
    cdp_real by = cdp__ddp_divisor(d);
    uint64_t at, n;
    if (before != 0) by /= before;
    if (d->hook.stage || (d->desc.divisor == 0 && before == 0 && !d->desc.join_effective)) by = 1;
    n = cdp__ddp_piece(d, by != 1 ? cdp__bucket_bytes(b) : 0, &at) / b->elem;
    if (n) (void)cdp__ddp_fail(d, cdp__ddp_divide_data(d, b->dtype, b->memory + at, n, by));
}

/* One step that copies the result of one parameter to where the caller reads it. `used`: at least
   one rank had a gradient for the parameter. If not, the gradient is restored to its content before
   the step. */
CDP__PRIVATE void cdp__ddp_deliver_param(cdp_ddp *d, cdp__param *p, bool used) {
    const uint64_t bytes = cdp__param_bytes(p);
    const uint8_t *from = used ? p->grad : p->kept;
    uint8_t *const to = used ? (uint8_t *)p->user.grad : p->grad;
    const bool copied = from && to && !d->shadow && used == (p->user.grad != NULL);
    uint64_t at, n;
    if (!CDP__BUDGETS || !d->at_byte) {
        p->used = used;
        if (!used) {
            ++d->stats.unused_count;
            d->stats.unused_bytes += bytes;
        }
    }
    n = cdp__ddp_piece(d, copied ? bytes : 0, &at);
    if (n) cdp__ddp_copy(d, to + at, from + at, n);
}

/* The pass has ended well. */
CDP__PRIVATE cdp_status cdp__ddp_delivered(cdp_ddp *d) {
    uint64_t marks = CDP__HASH_START;
    uint32_t i;
    for (i = 0; i < d->param_count; ++i) {
        cdp__param *p = &d->params[i];
        const uint8_t mark = p->mark == CDP__MARK_READY || p->touched;
        marks = cdp__hash(marks, &mark, 1);
        p->touched = false;
    }
    if (!d->shadow) {
        if (d->own_steps && marks != d->marks) d->stats.can_set_static_graph = false;
        d->marks = marks;
    }
    if (d->failed != CDP_OK) return d->failed;
    if (!d->shadow) cdp__ddp_account(d);
    ++d->stats.steps;
    d->buffers_due = d->desc.buffer_hook || (d->desc.buffer_count && !d->desc.no_buffer_broadcast);
    return CDP_OK;
}

/* One step after all operations of the pass: works on a bucket, then on a parameter. */
CDP__PRIVATE cdp_status cdp__ddp_deliver(cdp_ddp *d) {
    cdp__bucket *last = &d->buckets[d->bucket_count - 1];
    const uint32_t flags = last->used_flags;
    do {
        const uint32_t i = d->item - d->bucket_count;
        if (d->item < d->bucket_count)
            cdp__ddp_divide(d, &d->buckets[d->item]);
        else if (i < d->param_count)
            cdp__ddp_deliver_param(d, &d->params[i], !flags || cdp__flag_get(last, i));
        else
            return cdp__ddp_delivered(d);
    } while (!CDP__BUDGETS);
    return cdp__ddp_at_once(d, cdp__ddp_deliver);
}

/* Everything has arrived. */
CDP__PRIVATE cdp_status cdp__ddp_arrived(cdp_ddp *d) {
    cdp__bucket *last = &d->buckets[d->bucket_count - 1];
    d->end_ns = d->os->now_ns(d->os->user);
    cdp__flags_move(d, last, last->used_flags, false);
    d->stats.unused_count = 0;
    d->stats.unused_bytes = 0;
    d->item = 0;
    d->at_byte = 0;
    return cdp__ddp_deliver(d);
}

#endif /* CDP_NO_DDP */

/* ---- >>ddp/rows: gradients of sparse parameters ---------------------------------------------- */

/* Knows: rows of a matrix and their positions. Promises: the same mean, in the same order, on every
   rank; after the first steps no memory is allocated. */

#ifndef CDP_NO_DDP

#ifndef CDP_NO_SPARSE
/* Makes room for `more` rows after the existing ones. False: out of memory. */
CDP__PRIVATE bool cdp__sparse_room(const cdp_ddp *d, uint32_t **rows, uint8_t **values,
    uint64_t used, uint64_t *room, uint64_t more, uint64_t row_bytes) {
    const uint64_t want = cdp__max(used + more, *room * 2);
    uint32_t *r;
    uint8_t *v;
    if (used + more <= *room) return true;
    r = (uint32_t *)cdp__alloc(d->os, want * sizeof *r);
    v = (uint8_t *)cdp__alloc(d->os, want * row_bytes);
    if (!r || !v) {
        cdp__free(d->os, r);
        cdp__free(d->os, v);
        return false;
    }
    if (used) {
        memcpy(r, *rows, (size_t)(used * sizeof *r));
        memcpy(v, *values, (size_t)(used * row_bytes));
    }
    cdp__free(d->os, *rows);
    cdp__free(d->os, *values);
    *rows = r;
    *values = v;
    *room = want;
    return true;
}

/* Appends copies of rows. False: out of memory. The caller holds the ddp's lock. */
CDP__PRIVATE bool cdp__sparse_append(
    cdp_ddp *d, cdp__param *p, const uint32_t *rows, uint32_t n, const void *values) {
    const uint64_t bytes = cdp__sparse_width(&p->user) * p->elem;
    cdp__sparse *s = p->sparse;
    if (!cdp__sparse_room(d, &s->rows, &s->values, s->used, &s->room, n, bytes)) return false;
    if (n) {
        memcpy(s->rows + s->used, rows, n * sizeof *rows);
        memcpy(s->values + s->used * bytes, values, (size_t)(n * bytes));
    }
    s->used += n;
    return true;
}

CDP_API cdp_rows cdp_ddp_rows(const cdp_ddp *d, uint32_t i) {
    cdp_rows r;
    memset(&r, 0, sizeof r);
    if (!d || i >= d->param_count || !d->params[i].sparse) return r;
    r.count = d->params[i].sparse->mean_used;
    r.width = cdp__sparse_width(&d->params[i].user);
    r.rows = d->params[i].sparse->mean_rows;
    r.values = d->params[i].sparse->mean;
    return r;
}

/* Computes the mean of all ranks' rows, added in rank order, with one entry per distinct row. */
CDP__PRIVATE cdp_status cdp__sparse_add(cdp_ddp *d, cdp__param *p) {
    cdp__sparse *s = p->sparse;
    const uint64_t n = s->all_used, width = cdp__sparse_width(&p->user), bytes = width * p->elem;
    const uint32_t *rows = s->all_rows;
    const uint8_t *values = s->all_values;
    uint64_t k;
    s->mean_used = 0;
    if (!cdp__sparse_room(
            d, &s->mean_rows, &s->mean, 0, &s->mean_room, cdp__min(n, p->user.rows), bytes))
        return cdp__fail_nomem("rows of a gradient", n * bytes);
    for (k = 0; k < n; ++k) {
        uint32_t *place;
        if (rows[k] >= p->user.rows)
            return cdp__fail(CDP_ERR_INTERNAL,
                "a rank sent row %u of parameter '%s', which has fewer rows", rows[k], p->name);
        place = &s->place[rows[k]];
        if (*place) {
            cdp__reduce(p->user.dtype, CDP_REDUCE_SUM, false, s->mean + (*place - 1) * bytes,
                values + k * bytes, width);
        } else {
            memcpy(s->mean + s->mean_used * bytes, values + k * bytes, (size_t)bytes);
            s->mean_rows[s->mean_used++] = rows[k];
            *place = (uint32_t)s->mean_used;
        }
    }
    for (k = 0; k < s->mean_used; ++k)
        s->place[s->mean_rows[k]] = 0;
    s->used = 0;
    cdp__divide_by(p->user.dtype, s->mean, s->mean_used * width, cdp__ddp_divisor(d));
    return CDP_OK;
}

/* Starts to exchange one sparse parameter: indices of all ranks, then values. Rank r has counts[r]
   rows. */
CDP__PRIVATE cdp_status cdp__sparse_exchange(cdp_ddp *d, cdp__param *p, uint64_t *counts) {
    const uint32_t n = cdp_size(d->group), rank = cdp_rank(d->group);
    const uint64_t width = cdp__sparse_width(&p->user), bytes = width * p->elem;
    cdp__sparse *s = p->sparse;
    uint64_t all = 0, before = 0;
    cdp_request rq;
    cdp_status st;
    uint32_t r;
    for (r = 0; r < n; ++r) {
        all += counts[r];
        before += r < rank ? counts[r] : 0;
    }
    s->all_used = all;
    if (!cdp__sparse_room(d, &s->all_rows, &s->all_values, 0, &s->all_room, all + 1, bytes))
        return cdp__fail_nomem("rows of a gradient", all * (bytes + 4));
    if (s->used) {
        memcpy(s->all_rows + before, s->rows, (size_t)(s->used * sizeof *s->rows));
        memcpy(s->all_values + before * bytes, s->values, (size_t)(s->used * bytes));
    }
    rq = cdp__request_of(
        CDP_COLL_ALLGATHER, NULL, s->all_rows, all, CDP_DTYPE_U32, CDP_REDUCE_DEFAULT, 0);
    rq.out_counts = counts;
    st = cdp__ddp_start(d, d->group, &rq, NULL, NULL, &d->last);
    for (r = 0; r < n; ++r)
        counts[r] *= width;
    rq.out = s->all_values;
    rq.count = all * width;
    rq.dtype = p->user.dtype;
    return st == CDP_OK ? cdp__ddp_start(d, d->group, &rq, NULL, NULL, &d->last) : st;
}

/* Exchanges the rows of the next sparse parameter: `item`, and number `at_byte` of the sparse ones.
   After the last one everything has arrived. */
CDP__PRIVATE cdp_status cdp__ddp_next_rows(cdp_ddp *d) {
    const uint32_t n = cdp_size(d->group);
    uint64_t *one = d->sparse_counts + (uint64_t)d->sparse_count * n;
    cdp__param *p = &d->params[d->item];
    cdp_status st = CDP_OK;
    uint32_t r;
    if (d->rows_under_way) {
        st = cdp__sparse_add(d, p);
        d->rows_under_way = false;
        ++d->item;
        ++d->at_byte;
        return st == CDP_OK ? cdp__ddp_at_once(d, cdp__ddp_next_rows) : st;
    }
    while (d->item < d->param_count && !d->params[d->item].sparse)
        ++d->item;
    if (d->item == d->param_count) {
        return cdp__ddp_arrived(d);
    }
    p = &d->params[d->item];
    if (d->shadow) p->sparse->used = 0;
    for (r = 0; r < n; ++r)
        one[r] = d->sparse_counts[r * d->sparse_count + d->at_byte];
    d->rows_under_way = true;
    return cdp__ddp_after(d, cdp__sparse_exchange(d, p, one), cdp__ddp_next_rows);
}

/* Runs after the buckets: exchanges how many rows each rank has of each sparse parameter, then
   the rows. */
CDP__PRIVATE cdp_status cdp__ddp_sparse(cdp_ddp *d) {
    uint64_t *counts = d->sparse_counts;
    uint32_t i, k;
    for (i = k = 0; i < d->param_count; ++i)
        if (d->params[i].sparse)
            counts[cdp_rank(d->group) * d->sparse_count + k++] =
                d->shadow ? 0 : d->params[i].sparse->used;
    d->rows_under_way = false;
    d->item = 0;
    d->at_byte = 0;
    return cdp__ddp_after(d,
        cdp_allgather_async(d->group, NULL, counts, d->sparse_count, CDP_DTYPE_U64, &d->last),
        cdp__ddp_next_rows);
}
#else
CDP__PRIVATE cdp_status cdp__ddp_sparse(cdp_ddp *d) {
    return cdp__ddp_arrived(d);
}
#endif /* CDP_NO_SPARSE */

#endif /* CDP_NO_DDP */

/* ---- >>ddp/backward: one backward pass, from begin to end ------------------------------------ */

/* Knows: which parameters are complete, unused or missing. Promises: backward_end returns the first
   failure of the pass, on every rank. */

#ifndef CDP_NO_DDP

CDP_API bool cdp_ddp_is_no_sync(const cdp_ddp *d) {
    return d && !d->sync_next;
}

CDP_API cdp_status cdp_ddp_no_sync(cdp_ddp *d, bool on) {
    const cdp_status st = cdp__ddp_between(d, "cdp_ddp_no_sync");
    if (st == CDP_OK) d->sync_next = !on;
    return st;
}

/* The number of the pass that records the order of parameters. With a static graph, the first
   pass launches nothing until its end, so it has no order. */
CDP__PRIVATE uint64_t cdp__ddp_observed(const cdp_ddp *d) {
    return d->desc.static_graph ? 1 : 0;
}

/* Rebuilds the buckets in the order that rank 0 has recorded, unless a hook keeps state for each
   bucket. */
CDP__PRIVATE cdp_status cdp__ddp_rebuild(cdp_ddp *d) {
    cdp_status st;
    if (!d->rebuild_due || d->stats.steps <= cdp__ddp_observed(d)
        || (d->hook.stage && d->hook.keeps_layout))
        return CDP_OK;
    d->rebuild_due = false;
    st = cdp_broadcast(d->group, d->order, d->param_count, CDP_DTYPE_U32, 0);
    if (st != CDP_OK) return st;
    st = cdp__ddp_place(d, d->order);
    if (st != CDP_OK) { /* other ranks continue with new buckets, so this rank cannot */
        const cdp_error why = *cdp_last_error();
        cdp_group_abort(d->group, why.text);
        *cdp__error_slot() = why; /* the reason, not the error of the abort */
    }
    d->stats.rebuilt = st == CDP_OK;
    return st;
}

CDP_API cdp_status cdp_ddp_forward_begin(cdp_ddp *d) {
    cdp_status st = cdp__ddp_between(d, "cdp_ddp_forward_begin");
    if (st != CDP_OK) return st;
    d->forward_ns = d->os->now_ns(d->os->user);
    st = cdp_group_status(d->group);
    if (st == CDP_OK) st = cdp__ddp_rebuild(d);
    return st == CDP_OK && d->sync_next ? cdp__ddp_send_buffers(d) : st;
}

/* Begins a pass, also one in which this rank has no data. */
CDP__PRIVATE cdp_status cdp__ddp_begin(cdp_ddp *d, bool sync) {
    cdp_status st = cdp_group_status(d->group);
    uint32_t i;
    if (st == CDP_OK) st = cdp__ddp_rebuild(d);
    if (st == CDP_OK && sync) st = cdp__ddp_send_buffers(d);
    d->in_backward = true;
    d->sync = sync;
    d->launched = 0;
    d->failed = CDP_OK;
    d->called_ns = 0;
    d->active.seq = d->used.seq = 0;
    memset(d->at, 0, sizeof d->at);
    for (i = 0; i < d->bucket_count; ++i) {
        d->buckets[i].pending = d->buckets[i].params;
        d->buckets[i].done = false;
        d->buckets[i].late_ns = 0;
    }
    for (i = 0; i < d->param_count; ++i) {
        cdp__param *p = &d->params[i];
        p->mark = CDP__MARK_NONE;
        p->calls = 0;
        p->ready_ns = 0;
    }
    if (sync) d->stats.sent_bytes = d->ordered = 0;
    d->begin_ns = d->os->now_ns(d->os->user);
    return st;
}

/* Checks a call of ready() or unused() before parameter i is accessed. */
CDP__PRIVATE cdp_status cdp__ddp_call_check(cdp_ddp *d, uint32_t i, const char *call) {
    const cdp_status st = cdp__ddp_free_to(d, call);
    if (st != CDP_OK) return st;
    if (!d->in_backward)
        return cdp__fail(CDP_ERR_STATE,
            "%s(%u): no backward pass is open; call cdp_ddp_backward_begin first", call, i);
    if (i < d->param_count) return CDP_OK;
    return cdp__ddp_fail(d,
        cdp__fail(CDP_ERR_INVALID, "%s(%u): it should be less than param_count, %u", call, i,
            d->param_count));
}

/* Reports that parameter i is marked already and cannot be marked as `now` in this pass. */
CDP__PRIVATE cdp_status cdp__ddp_marked_twice(cdp_ddp *d, uint32_t i, cdp__mark now) {
    static const char *const how[2][2] = {
        {"ready twice", "ready and then unused"}, {"unused and then ready", "unused twice"}};
    const cdp__param *p = &d->params[i];
    const uint32_t rank = cdp_rank(d->group);
    if (d->recorded && d->sync)
        return cdp__ddp_fail(d,
            cdp__fail_peer(CDP_ERR_STATE, rank, 0,
                "static graph: parameter '%s' (index %u) was marked ready %u times in the first "
                "synchronized pass of rank %u, and now once more; without static_graph passes may "
                "differ",
                p->name, i, p->want, rank));
    return cdp__ddp_fail(d,
        cdp__fail_peer(CDP_ERR_STATE, rank, 0,
            "parameter '%s' (index %u) was marked %s in one backward pass of rank %u; mark it "
            "once, when its gradient is complete",
            p->name, i, how[p->mark == CDP__MARK_UNUSED][now == CDP__MARK_UNUSED], rank));
}

/* Parameter i is complete in this pass: its bucket waits for one parameter less. If the gradient
   is in the caller's own array, it is copied to the bucket first. */
CDP__PRIVATE void cdp__ddp_complete(cdp_ddp *d, uint32_t i) {
    cdp__param *p = &d->params[i];
    if (p->mark == CDP__MARK_READY && p->user.grad)
        cdp__ddp_copy(d, p->grad, p->user.grad, cdp__param_bytes(p));
    cdp_lock_acquire(&d->lock);
    CDP_ASSERT(d->ordered < d->param_count && d->buckets[p->bucket].pending);
    d->seen[d->ordered] = i;
    if (d->stats.steps == cdp__ddp_observed(d)) d->order[d->ordered] = i;
    ++d->ordered;
    --d->buckets[p->bucket].pending;
    cdp_lock_release(&d->lock);
}

CDP_API cdp_status cdp_ddp_backward_begin(cdp_ddp *d) {
    cdp_status st = cdp__ddp_free_to(d, "cdp_ddp_backward_begin");
    uint32_t i;
    if (st != CDP_OK) return st;
    if (d->in_backward && cdp_group_status(d->group) == CDP_OK)
        return cdp__fail(CDP_ERR_STATE,
            "cdp_ddp_backward_begin: the backward pass before this one has not ended; call "
            "cdp_ddp_backward_end first");
    st = cdp__ddp_begin(d, d->sync_next);
    /* kept, so that backward_end reports it if the caller ignores it here */
    (void)cdp__ddp_fail(d, st);
    /* static graph: the first pass has shown which parameters are never ready */
    for (i = 0; d->sync && d->recorded && i < d->param_count; ++i) {
        if (d->params[i].want) continue;
        d->params[i].mark = CDP__MARK_UNUSED;
        cdp__ddp_complete(d, i);
    }
    return st;
}

/* True if parameter p may be marked ready now. The caller holds the ddp's lock. */
CDP__PRIVATE bool cdp__ddp_may_be_ready(const cdp_ddp *d, const cdp__param *p) {
    if (!d->desc.static_graph) return p->mark == CDP__MARK_NONE;
    if (p->mark == CDP__MARK_UNUSED) return false;
    return !d->sync || !d->recorded || p->calls < p->want;
}

/* Parameter i is marked and its gradient is in place: launches full buckets. */
CDP__PRIVATE cdp_status cdp__ddp_marked_ready(cdp_ddp *d, uint32_t i, bool complete) {
    if (!complete) return CDP_OK;
    d->params[i].ready_ns = d->os->now_ns(d->os->user);
    cdp__ddp_complete(d, i);
    return cdp__ddp_fail(d, cdp__ddp_launch_ready(d));
}

/* Marks p ready. True: it is complete, and is reduced in this pass. The caller holds the ddp's
   lock. */
CDP__PRIVATE bool cdp__ddp_mark_ready(cdp_ddp *d, cdp__param *p) {
    p->mark = CDP__MARK_READY;
    ++p->calls;
    if (!d->sync) p->touched = true;
    return d->sync && (!d->desc.static_graph || (d->recorded && p->calls == p->want));
}

CDP_API cdp_status cdp_ddp_ready(cdp_ddp *d, uint32_t i) {
    const cdp_status st = cdp__ddp_call_check(d, i, "cdp_ddp_ready");
    bool may, complete = false;
    if (st != CDP_OK) return st;
    if (d->params[i].sparse)
        return cdp__ddp_fail(d,
            cdp__fail(CDP_ERR_INVALID,
                "cdp_ddp_ready: parameter '%s' (index %u) is sparse; give its rows to "
                "cdp_ddp_ready_rows",
                d->params[i].name, i));
    cdp_lock_acquire(&d->lock);
    may = cdp__ddp_may_be_ready(d, &d->params[i]);
    if (may) complete = cdp__ddp_mark_ready(d, &d->params[i]);
    cdp_lock_release(&d->lock);
    return may ? cdp__ddp_marked_ready(d, i, complete)
               : cdp__ddp_marked_twice(d, i, CDP__MARK_READY);
}

#ifndef CDP_NO_SPARSE
/* Checks the arguments of ready_rows. */
CDP__PRIVATE cdp_status cdp__ddp_check_rows(
    const cdp__param *p, uint32_t i, const uint32_t *rows, uint32_t n, const void *values) {
    uint32_t k;
    if (!p->sparse)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_ddp_ready_rows: parameter '%s' (index %u) is not sparse; set sparse and rows, or "
            "call cdp_ddp_ready",
            p->name, i);
    if (n && (!rows || !values))
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_ddp_ready_rows: parameter '%s' (index %u): rows or values is NULL", p->name, i);
    for (k = 0; k < n; ++k)
        if (rows[k] >= p->user.rows)
            return cdp__fail(CDP_ERR_INVALID,
                "cdp_ddp_ready_rows: parameter '%s' (index %u) has %u rows, not row %u", p->name, i,
                (uint32_t)p->user.rows, rows[k]);
    return CDP_OK;
}

CDP_API cdp_status cdp_ddp_ready_rows(
    cdp_ddp *d, uint32_t i, const uint32_t *rows, uint32_t n, const void *values) {
    cdp_status st = cdp__ddp_call_check(d, i, "cdp_ddp_ready_rows");
    bool may, stored = false, complete = false;
    cdp__param *p;
    if (st != CDP_OK) return st;
    p = &d->params[i];
    st = cdp__ddp_fail(d, cdp__ddp_check_rows(p, i, rows, n, values));
    if (st != CDP_OK) return st;
    cdp_lock_acquire(&d->lock);
    may = cdp__ddp_may_be_ready(d, p);
    if (may) stored = cdp__sparse_append(d, p, rows, n, values);
    if (stored) complete = cdp__ddp_mark_ready(d, p);
    cdp_lock_release(&d->lock);
    if (!may) return cdp__ddp_marked_twice(d, i, CDP__MARK_READY);
    if (!stored) return cdp__ddp_fail(d, cdp__fail_nomem("rows of a gradient", n));
    return cdp__ddp_marked_ready(d, i, complete);
}
#endif /* CDP_NO_SPARSE */

CDP_API cdp_status cdp_ddp_unused(cdp_ddp *d, uint32_t i) {
    const cdp_status st = cdp__ddp_call_check(d, i, "cdp_ddp_unused");
    bool known, may;
    cdp__param *p;
    if (st != CDP_OK) return st;
    p = &d->params[i];
    if (!d->desc.find_unused && !d->desc.static_graph)
        return cdp__ddp_fail(d,
            cdp__fail(CDP_ERR_INVALID,
                "cdp_ddp_unused: parameter '%s' (index %u): set find_unused in the desc on all "
                "ranks, so that they can agree on which parameters no rank used",
                p->name, i));
    cdp_lock_acquire(&d->lock);
    known = d->sync && d->recorded; /* the first pass of a static graph has decided it */
    may = known ? p->mark == CDP__MARK_UNUSED : p->mark == CDP__MARK_NONE;
    if (may) p->mark = CDP__MARK_UNUSED;
    cdp_lock_release(&d->lock);
    if (!may) return cdp__ddp_marked_twice(d, i, CDP__MARK_UNUSED);
    if (known || !d->sync || d->desc.static_graph) return CDP_OK;
    cdp__ddp_complete(d, i);
    return cdp__ddp_fail(d, cdp__ddp_launch_ready(d));
}

/* The buckets have arrived. */
CDP__PRIVATE cdp_status cdp__ddp_collect(cdp_ddp *d) {
    const cdp_status st = cdp__ddp_read_active(d);
    if (st != CDP_OK) return st;
    return d->sparse_count ? cdp__ddp_sparse(d) : cdp__ddp_arrived(d);
}

/* All operations of a synchronized pass have ended. On a device, waits for kernels of a hook, too,
   which belong to no operation. If no rank had data, the pass ends here. */
CDP__PRIVATE cdp_status cdp__ddp_reduced(cdp_ddp *d) {
    if (d->shadow && !d->stats.active_ranks) return CDP_OK;
    if (!cdp__ddp_on_device(d)) return cdp__ddp_collect(d);
    return cdp__ddp_then(d, cdp__group_device_work(d->group), cdp__ddp_collect);
}

/* The hook finishes with every bucket, then all operations end. */
CDP__PRIVATE cdp_status cdp__ddp_finish(cdp_ddp *d) {
    cdp_status st = CDP_OK;
    uint32_t i = d->hook.stage ? 0 : d->bucket_count;
    if (d->hook.stage) st = cdp__ddp_advance(d);
    while (i < d->bucket_count && d->buckets[i].done)
        ++i;
    if (st == CDP_OK && i < d->bucket_count)
        return cdp__ddp_then(d, d->buckets[i].work, cdp__ddp_finish);
    return cdp__ddp_after(d, st, cdp__ddp_reduced);
}

/* Launches what is complete, and goes on with the end of the pass. */
CDP__PRIVATE cdp_status cdp__ddp_launch_rest(cdp_ddp *d) {
    const cdp_status st = cdp__ddp_launch_ready(d);
    if (st != CDP_OK) return st;
    if (d->launched == d->bucket_count) return cdp__ddp_finish(d);
    CDP_ASSERT(d->active.seq); /* the operation that sums the divisor of the hook */
    return cdp__ddp_then(d, d->active, cdp__ddp_launch_rest);
}

/* Reports parameters that were not marked ready; a long list is truncated. CDP_OK: there are
   none. */
CDP__PRIVATE cdp_status cdp__ddp_missing(cdp_ddp *d) {
    char names[256];
    cdp__text t = cdp__text_of(names, sizeof names);
    uint32_t i, count = 0;
    for (i = 0; i < d->param_count; ++i) {
        const cdp__param *p = &d->params[i];
        if (p->mark == CDP__MARK_UNUSED
            || (p->mark == CDP__MARK_READY && (!d->recorded || p->calls == p->want)))
            continue;
        if (count++ < 5) cdp__text_add(&t, "%s'%s' (index %u)", count > 1 ? ", " : "", p->name, i);
    }
    if (count > 5) cdp__text_add(&t, " and %u more", count - 5);
    if (!count) return CDP_OK;
    if (d->recorded)
        return cdp__fail_peer(CDP_ERR_STATE, cdp_rank(d->group), 0,
            "backward pass of rank %u ended although %u of %u parameters were never marked ready "
            "as often as in the first synchronized pass (static graph): %s",
            cdp_rank(d->group), count, d->param_count, names);
    return cdp__fail_peer(CDP_ERR_STATE, cdp_rank(d->group), 0,
        d->desc.find_unused
            ? "backward pass of rank %u ended although %u of %u parameters were never marked "
              "ready: %s"
            : "backward pass of rank %u ended although %u of %u parameters were never marked "
              "ready: %s; if they have no gradient in this pass, set find_unused in the desc",
        cdp_rank(d->group), count, d->param_count, names);
}

/* Ends the marking of a pass: unmarked parameters count as unused where that is allowed, and the
   first pass of a static graph launches its buckets now. */
CDP__PRIVATE cdp_status cdp__ddp_close(cdp_ddp *d) {
    const bool first = d->desc.static_graph && !d->recorded;
    uint32_t i;
    for (i = 0; i < d->param_count; ++i) {
        cdp__param *p = &d->params[i];
        const bool open = p->mark == CDP__MARK_NONE;
        if (open && !d->shadow && !first && (!d->desc.find_unused || d->recorded))
            return cdp__ddp_missing(d);
        if (open) p->mark = CDP__MARK_UNUSED;
        if (first && !d->shadow) p->want = p->calls;
        if (open || (first && !d->shadow))
            cdp__ddp_complete(d, i);
        else if (d->recorded && p->mark == CDP__MARK_READY && p->calls < p->want)
            return cdp__ddp_missing(d);
    }
    if (first && !d->shadow) d->recorded = true;
    return cdp__ddp_launch_rest(d);
}

#ifdef CDP_NO_JOIN
CDP__PRIVATE cdp_status cdp__ddp_uneven(const cdp_ddp *d) {
    (void)d;
    return CDP_OK;
}
#else
/* With join_throw: reports the ranks that have run out of data while others have not. */
CDP__PRIVATE cdp_status cdp__ddp_uneven(const cdp_ddp *d) {
    const uint32_t used = d->buckets->used_flags, n = cdp_size(d->group);
    char ranks[128];
    cdp__text t = cdp__text_of(ranks, sizeof ranks);
    uint32_t i, first = n, count = n - d->stats.active_ranks;
    if (!d->desc.join_throw || !count || count == n) return CDP_OK;
    for (i = 0; i < n; ++i) {
        if (cdp__flag_get(d->buckets, used + i)) continue;
        cdp__text_add(&t, first < n ? ", %u" : "%u", i);
        if (first == n) first = i;
    }
    return cdp__fail_peer(CDP_ERR_STATE, first, 0,
        "%u of %u ranks ran out of data before the others (join_throw): rank %s", count, n, ranks);
}
#endif

/* Begins the end of a pass. */
CDP__PRIVATE cdp_status cdp__ddp_end(cdp_ddp *d) {
    d->called_ns = d->os->now_ns(d->os->user);
    return d->failed == CDP_OK && d->sync ? cdp__ddp_close(d) : d->failed;
}

/* The pass has ended with this status. Returns what backward_end returns. */
CDP__PRIVATE cdp_status cdp__ddp_ended(cdp_ddp *d, cdp_status st) {
    (void)cdp__ddp_fail(d, st);
    st = d->failed;
    if (st != CDP_OK && d->sync) {
        cdp__ddp_break(d);
        /* the group's error is the first cause */
        if (cdp_group_status(d->group) != CDP_OK) st = cdp_group_status(d->group);
    }
    if (st != CDP_OK && !d->sync) *cdp__error_slot() = d->failed_error;
    if (st == CDP_OK && d->sync) st = cdp__ddp_uneven(d);
    d->in_backward = false;
    return st;
}

CDP__PRIVATE cdp_status cdp__ddp_may_end(cdp_ddp *d, const char *call) {
    const cdp_status st = cdp__ddp_free_to(d, call);
    if (st != CDP_OK || d->in_backward) return st;
    return cdp__fail(
        CDP_ERR_STATE, "%s: no backward pass is open; call cdp_ddp_backward_begin first", call);
}

CDP_API cdp_status cdp_ddp_backward_end(cdp_ddp *d) {
    const cdp_status st = cdp__ddp_may_end(d, "cdp_ddp_backward_end");
    return st == CDP_OK ? cdp__ddp_ended(d, cdp__ddp_wait(d, cdp__ddp_end(d))) : st;
}

#ifndef CDP_NO_FRAMES
CDP_API cdp_status cdp_ddp_backward_end_start(cdp_ddp *d) {
    cdp_status st = cdp__ddp_may_end(d, "cdp_ddp_backward_end_start");
    if (st != CDP_OK) return st;
    d->task = CDP__DDP_ENDS;
    st = cdp__ddp_end(d);
    if (st == CDP_PENDING) return CDP_OK;
    (void)cdp__ddp_fail(d, st); /* cdp_ddp_poll() reports it */
    (void)cdp__ddp_at_once(d, cdp__ddp_failed);
    return CDP_OK;
}

CDP_API cdp_status cdp_ddp_poll(cdp_ddp *d, uint32_t budget_us) {
    cdp_status st;
    uint64_t now, until;
    if (!d) return cdp__fail(CDP_ERR_INVALID, "cdp_ddp_poll needs a ddp");
    if (d->task == CDP__DDP_FAILED) *cdp__error_slot() = d->failed_error;
    if (d->task == CDP__DDP_FAILED) return d->failed;
    if (d->task == CDP__DDP_IDLE) return CDP_OK;
    now = d->os->now_ns(d->os->user);
    until = now + budget_us * 1000ull;
    do {
        st = cdp_work_poll(d->awaits, (uint32_t)((until - now) / 1000));
        if (st == CDP_OK) st = d->stage(d);
        now = d->os->now_ns(d->os->user);
    } while (st == CDP_PENDING && now < until);
    if (st == CDP_PENDING) return st;
    if (d->task == CDP__DDP_ENDS) {
        d->task = CDP__DDP_IDLE;
        return cdp__ddp_ended(d, st);
    }
    (void)cdp__ddp_fail(d, st);
    d->task = st == CDP_OK ? CDP__DDP_IDLE : CDP__DDP_FAILED;
    return st;
}
#endif

#endif /* CDP_NO_DDP */

/* ---- >>ddp/join: ranks that run out of data at different times ------------------------------- */

/* Knows: the operations of other ranks in a step. Promises: a rank without data starts the same
   operations. */

#ifndef CDP_NO_DDP

#ifndef CDP_NO_JOIN
/* Begins one step of a rank without data. Every step begins in the same way on every rank: the
   rebuild if due, buffers if due, then the first bucket, whose flags say which ranks have data.
   The other buckets follow only if some rank has data. So in the last step, in which no rank has
   data, all ranks stop after the first bucket. */
CDP__PRIVATE cdp_status cdp__ddp_shadow_first(cdp_ddp *d) {
    cdp_status st = cdp__ddp_begin(d, true);
    uint32_t i;
    if (st == CDP_OK && d->desc.join_hook)
        st = d->desc.join_hook(d, CDP_JOIN_FORWARD, d->desc.user);
    if (st != CDP_OK) return st;
    for (i = 0; i < d->bucket_count; ++i)
        cdp__ddp_zero(d, d->buckets[i].memory, cdp__bucket_bytes(&d->buckets[i]));
    d->called_ns = d->begin_ns;
    st = cdp__ddp_start_active(d);
    if (st == CDP_PENDING) st = cdp_work_wait(d->active);
    if (st == CDP_OK) st = cdp__ddp_start_active(d); /* reads what has arrived */
    if (st == CDP_OK) st = cdp__ddp_launch(d, d->buckets);
    if (st == CDP_OK) st = cdp_work_wait(d->hook.stage ? d->active : d->buckets->work);
    return st == CDP_OK ? cdp__ddp_read_active(d) : st;
}

CDP__PRIVATE cdp_status cdp__ddp_shadow(cdp_ddp *d) {
    cdp_status st = cdp__ddp_shadow_first(d);
    uint32_t i;
    if (st != CDP_OK) return st;
    if (!d->stats.active_ranks) { /* the hook's operations for the first bucket must still end */
        for (i = 1; i < d->bucket_count; ++i)
            d->buckets[i].done = true;
        return cdp__ddp_wait(d, cdp__ddp_finish(d));
    }
    for (i = 0; i < d->bucket_count; ++i)
        d->buckets[i].pending = 0;
    if (d->stats.steps == cdp__ddp_observed(d)) /* this rank has recorded no order */
        for (i = 0; i < d->param_count; ++i)
            d->order[i] = d->param_count - 1 - i;
    st = cdp__ddp_wait(d, cdp__ddp_launch_rest(d));
    if (st == CDP_OK) st = cdp__ddp_uneven(d);
    if (st == CDP_OK && d->desc.join_hook) st = d->desc.join_hook(d, CDP_JOIN_STEP, d->desc.user);
    return st;
}

CDP_API CDP__COLD cdp_status cdp_ddp_join(cdp_ddp *d) {
    cdp_status st = cdp__ddp_between(d, "cdp_ddp_join");
    uint32_t i;
    if (st != CDP_OK) return st;
    if (!d->desc.join)
        return cdp__fail(CDP_ERR_INVALID, "cdp_ddp_join: set join in the desc on all ranks");
    d->shadow = true;
    do {
        st = cdp__ddp_shadow(d);
        d->in_backward = false;
    } while (st == CDP_OK && d->stats.active_ranks);
    d->shadow = false;
    for (i = 0; i < d->param_count; ++i)
        d->params[i].touched = false;
    if (st == CDP_OK && (!d->equal || d->desc.buffer_count))
        st = cdp__ddp_wait(d, cdp__ddp_broadcast(d, d->root, !d->equal));
    d->equal = true;
    if (st == CDP_OK && d->desc.join_hook) st = d->desc.join_hook(d, CDP_JOIN_LAST, d->desc.user);
    return st;
}
#endif /* CDP_NO_JOIN */

#endif /* CDP_NO_DDP */

/* ---- >>ddp/clip: the norm of all gradients --------------------------------------------------- */

/* Knows: where gradients are. Promises: the same norm on all ranks. */

#ifndef CDP_NO_DDP

#ifndef CDP_NO_CLIP
/* Stores where the numbers of a gradient are, and returns their count. */
CDP__PRIVATE uint64_t cdp__clip_part(const cdp__param *p, void **part) {
    *part = p->sparse ? p->sparse->mean : cdp__param_grad(p);
    return p->sparse ? p->sparse->mean_used * cdp__sparse_width(&p->user) : p->user.count;
}

/* Adds the squares in the order of parameters, which gives the same sum on all ranks. */
CDP__PRIVATE cdp_status cdp__clip_squares(cdp_ddp *d, double *sum) {
    cdp_status st = CDP_OK;
    double g = 0;
    void *part;
    uint64_t k;
    uint32_t i;
    *sum = 0;
    for (i = 0; i < d->param_count && st == CDP_OK; ++i) {
        const cdp__param *p = &d->params[i];
        const uint64_t n = cdp__clip_part(p, &part);
        if (cdp__ddp_on_device(d) && n) {
            st = d->device->sum_squares(d->device->self, p->user.dtype, part, n, &g);
            *sum += g;
        }
        for (k = 0; k < n && !cdp__ddp_on_device(d); ++k) {
            g = cdp__number_get(p->user.dtype, part, k);
            *sum += g * g;
        }
    }
    return st;
}

CDP_API cdp_status cdp_ddp_clip(cdp_ddp *d, double max_norm, double *norm) {
    double sum, by;
    void *part;
    cdp_status st = cdp__ddp_between(d, "cdp_ddp_clip");
    uint32_t i;
    if (st != CDP_OK) return st;
    if (!(max_norm >= 0))
        return cdp__fail(CDP_ERR_INVALID, "cdp_ddp_clip: max_norm is not a positive number");
    st = cdp__clip_squares(d, &sum);
    if (st != CDP_OK) return st;
    sum = cdp__sqrt(sum);
    if (norm) *norm = sum;
    if (max_norm == 0 || sum <= max_norm) return CDP_OK;
    by = max_norm / (sum + 1e-6);
    for (i = 0; i < d->param_count; ++i) {
        const cdp_dtype dtype = d->params[i].user.dtype;
        const uint64_t n = cdp__clip_part(&d->params[i], &part);
        if (!cdp__ddp_on_device(d))
            cdp__scale(dtype, part, n, by);
        else if (n && st == CDP_OK)
            st = d->device->scale(d->device->self, dtype, part, n, by);
    }
    return st;
}
#endif /* CDP_NO_CLIP */

#endif /* CDP_NO_DDP */

/* ---- >>ddp/set_hook: sets the hook of a ddp -------------------------------------------------- */

/* Knows: that stages of a hook run in groups of their own. Promises: a hook given to
   cdp_ddp_set_hook is destroyed exactly once. */

#ifndef CDP_NO_DDP

CDP_API const cdp_hook *cdp_ddp_hook(const cdp_ddp *d) {
    return d && d->hook.stage ? &d->hook : NULL;
}

/* Creates one group per operation of a bucket. On a device all stages share the queue of one
   group. */
CDP__PRIVATE cdp_status cdp__ddp_open_lanes(cdp_ddp *d, uint32_t operations) {
    const uint32_t n = cdp_size(d->group);
    uint32_t *all, i;
    cdp_status st = CDP_OK;
    d->lanes[0] = d->group;
    for (i = 1; i < operations && cdp__ddp_on_device(d); ++i)
        d->lanes[i] = d->group;
    if (operations < 2 || cdp__ddp_on_device(d)) return CDP_OK;
#ifdef CDP_NO_GROUPS
    (void)all;
    (void)n;
    (void)st;
    return cdp__fail(CDP_ERR_UNSUPPORTED,
        "cdp_ddp_set_hook: a hook of %u operations needs groups of its own, and CDP_NO_GROUPS was "
        "defined when cdp.h was compiled",
        operations);
#else
    all = (uint32_t *)cdp__alloc(d->os, n * sizeof *all);
    if (!all) return cdp__fail_nomem("a hook", n * sizeof *all);
    for (i = 0; i < n; ++i)
        all[i] = i;
    for (i = 1; i < operations && st == CDP_OK; ++i) {
        if (d->lanes[i]) continue;
        st = cdp_group_new(d->group, all, n, &d->lanes[i]);
        if (st == CDP_OK) cdp__group_share_failures(d->lanes[i], d->group);
    }
    cdp__free(d->os, all);
    return st;
#endif
}

CDP__PRIVATE cdp_status cdp__ddp_check_hook(cdp_ddp *d, const cdp_hook *hook) {
    const cdp_status st = cdp__ddp_between(d, "cdp_ddp_set_hook");
    if (st != CDP_OK) return st;
    if (hook && !hook->stage)
        return cdp__fail(CDP_ERR_INVALID, "cdp_ddp_set_hook: the hook has no stage function");
    if (hook && hook->operations > CDP__HOOK_LANES)
        return cdp__fail(CDP_ERR_INVALID, "cdp_ddp_set_hook: a hook may have at most %u operations",
            CDP__HOOK_LANES);
    if (hook && hook->device != cdp__ddp_on_device(d))
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "cdp_ddp_set_hook: the parameters are in %s memory, and this hook is not for that (see "
            "cdp_nccl_hook_create)",
            cdp__ddp_on_device(d) ? "device" : "host");
    return hook ? cdp__ddp_open_lanes(d, hook->operations) : CDP_OK;
}

CDP_API CDP__COLD cdp_status cdp_ddp_set_hook(cdp_ddp *d, const cdp_hook *hook) {
    const cdp_status st = cdp__ddp_check_hook(d, hook);
    if (st != CDP_OK) {
        if (hook && hook->destroy) hook->destroy(hook->self);
        return st;
    }
    if (d->hook.destroy) d->hook.destroy(d->hook.self);
    memset(&d->hook, 0, sizeof d->hook);
    if (hook) d->hook = *hook;
    d->hook.operations = (uint32_t)cdp__max(d->hook.operations, 1);
    return CDP_OK;
}

#endif /* CDP_NO_DDP */

/* ---- >>ddp/trace: one step as a picture, a ddp as text --------------------------------------- */

/* Knows: the statistics of a ddp. Promises: at most `room` bytes are written, and the length of the
   whole text is returned. */

#ifndef CDP_NO_DDP
#ifndef CDP_NO_TRACE

/* Copies a name without characters that JSON or XML would have to escape. */
CDP__PRIVATE void cdp__trace_name(const char *name, char out[64]) {
    uint32_t i;
    for (i = 0; i < 63 && name[i]; ++i)
        out[i] = name[i] < 32 || strchr("\"\\<>&'", name[i]) ? '_' : name[i];
    out[i] = 0;
}

CDP__PRIVATE void cdp__trace_us(cdp__text *t, uint64_t ns) {
    cdp__text_add(t, "%llu.%u%u%u", (unsigned long long)(ns / 1000), (unsigned)(ns / 100 % 10),
        (unsigned)(ns / 10 % 10), (unsigned)(ns % 10));
}

/* One bar of a timeline; its times count from the beginning of the pass. */
CDP__PRIVATE void cdp__trace_slice(cdp__text *t, const char *name, uint32_t rank, uint32_t row,
    uint64_t from_ns, uint64_t to_ns, uint64_t bytes) {
    cdp__text_add(
        t, "{\"name\":\"%s\",\"ph\":\"X\",\"pid\":%u,\"tid\":%u,\"ts\":", name, rank, row);
    cdp__trace_us(t, from_ns);
    cdp__text_add(t, ",\"dur\":");
    cdp__trace_us(t, to_ns - from_ns);
    cdp__text_add(t, ",\"args\":{\"bytes\":%llu}},\n", (unsigned long long)bytes);
}

CDP__PRIVATE void cdp__trace_json(const cdp_ddp *d, cdp__text *t) {
    const uint64_t called = d->called_ns - d->begin_ns, end = d->end_ns - d->begin_ns;
    const uint32_t rank = cdp_rank(d->group);
    char name[64];
    uint32_t i;
    cdp__text_add(t, "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n");
    cdp__text_add(t,
        "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%u,\"args\":{\"name\":\"rank %u\"}},\n",
        rank, rank);
    cdp__trace_slice(t, "backward", rank, 1, 0, called, d->stats.bytes_per_step);
    cdp__trace_slice(t, "wait", rank, 1, called, end, 0);
    for (i = 0; i < d->param_count; ++i) {
        if (!d->params[i].ready_ns) continue;
        cdp__trace_name(d->params[i].name, name);
        cdp__text_add(t,
            "{\"name\":\"%s\",\"ph\":\"i\",\"s\":\"t\",\"pid\":%u,\"tid\":1,\"ts\":", name, rank);
        cdp__trace_us(t, d->params[i].ready_ns - d->begin_ns);
        cdp__text_add(t, "},\n");
    }
    for (i = 0; i < d->bucket_count; ++i) {
        const cdp__bucket *b = &d->buckets[i];
        if (b->start_ns < d->begin_ns) continue;
        cdp__format(name, sizeof name, "bucket %u", i);
        cdp__trace_slice(t, name, rank, 2, b->start_ns - d->begin_ns, b->end_ns - d->begin_ns,
            cdp__bucket_bytes(b));
    }
    cdp__text_add(t,
        "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%u,\"tid\":1,\"args\":{\"name\":"
        "\"compute\"}},\n"
        "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%u,\"tid\":2,\"args\":{\"name\":"
        "\"communication\"}}]}\n",
        rank, rank);
}

CDP__PRIVATE void cdp__trace_bar(cdp__text *t, uint64_t from, uint64_t to, uint64_t whole,
    uint32_t y, const char *colour, const char *what) {
    const uint64_t x = 80 + from * 900 / whole, w = cdp__max(1, (to - from) * 900 / whole);
    cdp__text_add(t,
        "<rect x=\"%llu\" y=\"%u\" width=\"%llu\" height=\"22\" fill=\"%s\"><title>%s: %llu "
        "us</title></rect>\n",
        (unsigned long long)x, y, (unsigned long long)w, colour, what,
        (unsigned long long)((to - from) / 1000));
}

CDP__PRIVATE void cdp__trace_svg(const cdp_ddp *d, cdp__text *t) {
    const uint64_t whole = cdp__max(1, d->end_ns - d->begin_ns),
                   called = d->called_ns - d->begin_ns;
    char name[64];
    uint32_t i;
    cdp__text_add(t,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"1000\" height=\"130\" "
        "font-family=\"sans-serif\" font-size=\"12\">\n"
        "<rect width=\"1000\" height=\"130\" fill=\"#ffffff\"></rect>\n");
    cdp__text_add(
        t, "<text x=\"5\" y=\"37\">compute</text><text x=\"5\" y=\"77\">network</text>\n");
    cdp__trace_bar(t, 0, called, whole, 20, "#7aa6c2", "backward");
    cdp__trace_bar(t, called, whole, whole, 20, "#d9d9d9", "wait");
    for (i = 0; i < d->bucket_count; ++i) {
        const cdp__bucket *b = &d->buckets[i];
        cdp__format(name, sizeof name, "bucket %u, %llu bytes", i,
            (unsigned long long)cdp__bucket_bytes(b));
        if (b->start_ns >= d->begin_ns)
            cdp__trace_bar(t, b->start_ns - d->begin_ns, b->end_ns - d->begin_ns, whole, 60,
                i % 2 ? "#c98f5a" : "#e0b07f", name);
    }
    for (i = 0; i < d->param_count; ++i) {
        if (!d->params[i].ready_ns) continue;
        cdp__trace_name(d->params[i].name, name);
        cdp__trace_bar(t, d->params[i].ready_ns - d->begin_ns, d->params[i].ready_ns - d->begin_ns,
            whole, 20, "#204a63", name);
    }
    cdp__text_add(t,
        "<text x=\"80\" y=\"110\">rank %u, step %llu: %llu us; network %llu us, of which %llu us "
        "were waited for</text>\n</svg>\n",
        cdp_rank(d->group), (unsigned long long)d->stats.steps, (unsigned long long)(whole / 1000),
        (unsigned long long)(d->stats.comm_ns / 1000),
        (unsigned long long)(d->stats.exposed_ns / 1000));
}

CDP__PRIVATE void cdp__trace_number(cdp__text *t, const char *name, uint64_t v) {
    cdp__text_add(t, "%s: %llu\n", name, (unsigned long long)v);
}

CDP__PRIVATE void cdp__trace_settings(const cdp_ddp *d, cdp__text *t) {
    uint64_t bytes = 0;
    uint32_t i, dtypes = 0;
    bool views = true;
    cdp__trace_number(t, "world_size", cdp_size(d->group));
    cdp__trace_number(t, "rank", cdp_rank(d->group));
    cdp__trace_number(t, "num_parameter_tensors", d->param_count);
    for (i = 0; i < d->param_count; ++i) {
        const cdp_param *p = &d->params[i].user;
        bytes += p->count * cdp_dtype_size(p->dtype);
        dtypes |= 1u << p->dtype;
        views = views && !p->grad;
    }
    cdp__trace_number(t, "total_parameter_size_bytes", bytes);
    cdp__text_add(t, "dtypes:");
    for (i = 1; i < CDP_DTYPE_COUNT; ++i)
        if (dtypes >> i & 1) cdp__text_add(t, " %s", cdp_dtype_name((cdp_dtype)i));
    cdp__text_add(t, "\n");
    cdp__trace_number(t, "broadcast_buffers",
        d->desc.buffer_count && !d->desc.no_buffer_broadcast && !d->desc.buffer_hook);
    cdp__trace_number(t, "first_bucket_bytes", d->desc.first_bucket_bytes);
    cdp__trace_number(t, "bucket_cap_bytes", d->desc.bucket_bytes);
    cdp__trace_number(t, "find_unused_parameters", d->desc.find_unused);
    cdp__trace_number(t, "gradient_as_bucket_view", views);
    cdp__trace_number(t, "static_graph", d->desc.static_graph);
    cdp__trace_number(t, "join_uneven_inputs", d->desc.join);
    cdp__trace_number(t, "comm_hook", d->hook.stage != NULL);
}

CDP__PRIVATE void cdp__trace_text(const cdp_ddp *d, cdp__text *t) {
    const cdp_ddp_stats *s = &d->stats;
    uint32_t i, k;
    cdp__trace_settings(d, t);
    cdp__trace_number(t, "iteration", s->steps);
    cdp__trace_number(t, "active_ranks", s->active_ranks);
    cdp__trace_number(t, "unused_parameter_size", s->unused_bytes);
    cdp__trace_number(t, "can_set_static_graph", s->can_set_static_graph);
    cdp__trace_number(t, "has_rebuilt_buckets", s->rebuilt);
    cdp__text_add(t, "bucket_sizes:");
    for (i = 0; i < d->bucket_count; ++i)
        cdp__text_add(t, " %llu", (unsigned long long)cdp__bucket_bytes(&d->buckets[i]));
    cdp__text_add(t, "\nper_bucket_param_indices:");
    for (i = 0; i < d->bucket_count; ++i)
        for (k = 0; k < d->buckets[i].params; ++k)
            cdp__text_add(t, k ? ",%u" : " %u", d->buckets[i].slots[k]);
    cdp__text_add(t, "\nprev_iteration_grad_ready_order_indices:");
    for (i = 0; i < d->ordered && s->steps; ++i)
        cdp__text_add(t, " %u", d->seen[i]);
    cdp__text_add(t, "\n");
    cdp__trace_number(t, "sent_bytes", s->sent_bytes);
    cdp__trace_number(t, "forward_compute_time_ns", s->forward_ns);
    cdp__trace_number(t, "backward_compute_time_ns", s->backward_ns);
    cdp__trace_number(t, "backward_comm_time_ns", s->comm_ns);
    cdp__trace_number(t, "backward_compute_comm_overlap_time_ns", s->overlap_ns);
    cdp__trace_number(t, "avg_forward_compute_time_ns", s->avg_forward_ns);
    cdp__trace_number(t, "avg_backward_compute_time_ns", s->avg_backward_ns);
    cdp__trace_number(t, "avg_backward_comm_time_ns", s->avg_comm_ns);
    cdp__trace_number(t, "avg_backward_compute_comm_overlap_time_ns", s->avg_overlap_ns);
    cdp__text_add(t, "error: %s\n", d->failed != CDP_OK ? d->failed_error.text : "none");
}

CDP_API CDP__COLD uint64_t cdp_ddp_trace(
    const cdp_ddp *d, cdp_trace_format format, char *text, uint64_t room) {
    cdp__text t = cdp__text_of(text, room);
    if (d && format == CDP_TRACE_TEXT)
        cdp__trace_text(d, &t);
    else if (d && d->end_ns && format == CDP_TRACE_SVG)
        cdp__trace_svg(d, &t);
    else if (d && d->end_ns)
        cdp__trace_json(d, &t);
    return cdp__text_end(&t);
}

#endif /* CDP_NO_TRACE */
#endif /* CDP_NO_DDP */

/* ---- >>ddp/hooks: memory of a hook, hooks without compression, 16-bit hooks ------------------ */

/* Knows: buckets as a hook sees them (cdp_bucket), not the ddp behind them. Promises: memory of a
   finished bucket is reused for the next one. */

#ifndef CDP_NO_HOOKS

/* State and memory that a hook keeps per bucket. */
typedef struct cdp__slot {
    uint8_t *scratch; /* used within one step */
    uint8_t *wide;    /* a copy in f32, used within one step */
    uint8_t *error;   /* values that compression has left out so far */
    uint8_t *q;       /* PowerSGD: the last right factors */
    uint64_t scratch_bytes, wide_bytes, error_bytes, q_bytes;
    uint32_t phase;   /* PowerSGD: the next operation */
    bool plain;       /* this step runs without compression */
    bool busy;        /* scratch and wide are in use; if not, another bucket may take them */
    cdp_bucket inner; /* the bucket as a wrapped hook, or code for f32, sees it */
} cdp__slot;

typedef struct cdp__hook {
    cdp_hook_desc desc;
    const cdp_os *os;
    cdp_hook inner;
    cdp__slot *slots;
    uint32_t slot_count;
    uint64_t step, random;
} cdp__hook;

CDP__PRIVATE void cdp__hook_drop(void *self) {
    cdp__hook *h = (cdp__hook *)self;
    uint32_t i;
    if (h->inner.destroy) h->inner.destroy(h->inner.self);
    for (i = 0; i < h->slot_count; ++i) {
        cdp__free(h->os, h->slots[i].scratch);
        cdp__free(h->os, h->slots[i].wide);
        cdp__free(h->os, h->slots[i].error);
        cdp__free(h->os, h->slots[i].q);
    }
    cdp__free(h->os, h->slots);
    cdp__free(h->os, h);
}

CDP__PRIVATE cdp__slot *cdp__hook_slot(cdp__hook *h, uint32_t count, uint32_t index) {
    cdp__slot *more;
    if (count > h->slot_count) {
        more = (cdp__slot *)cdp__alloc_zero(h->os, count * sizeof *more);
        if (!more) return NULL;
        if (h->slot_count) memcpy(more, h->slots, h->slot_count * sizeof *more);
        cdp__free(h->os, h->slots);
        h->slots = more;
        h->slot_count = count;
    }
    return &h->slots[index];
}

/* Makes memory of a slot at least `bytes` long; new memory is zero. False: out of memory. */
CDP__PRIVATE bool cdp__hook_memory(cdp__hook *h, uint8_t **p, uint64_t *have, uint64_t bytes) {
    if (*p && *have >= bytes) return true;
    cdp__free(h->os, *p);
    *p = (uint8_t *)cdp__alloc_zero(h->os, bytes);
    *have = *p ? bytes : 0;
    return *p != NULL;
}

/* Begins a bucket: takes over scratch memory from a finished one, so that only buckets in flight
   have any. */
CDP__PRIVATE void cdp__hook_begin(cdp__hook *h, cdp__slot *s) {
    uint32_t i;
    s->busy = true;
    for (i = 0; i < h->slot_count && !s->scratch; ++i) {
        cdp__slot *from = &h->slots[i];
        if (from->busy || !from->scratch) continue;
        s->scratch = from->scratch;
        s->scratch_bytes = from->scratch_bytes;
        s->wide = from->wide;
        s->wide_bytes = from->wide_bytes;
        from->scratch = from->wide = NULL;
        from->scratch_bytes = from->wide_bytes = 0;
    }
}

/* Divides, then sums in `group`. */
CDP__PRIVATE cdp_status cdp__hook_allreduce(
    cdp_bucket *b, uint32_t stage, cdp_request *op, cdp_group *group) {
    if (stage) return CDP_OK;
    cdp__divide_by(
        b->dtype, b->data, b->count, group == b->group ? b->divisor : (double)cdp_size(group));
    b->group = group;
    *op = cdp__request_of(CDP_COLL_ALLREDUCE, NULL, b->data, b->count, b->dtype, CDP_REDUCE_SUM, 0);
    return CDP_PENDING;
}

/* Sends the bucket as f16 or bf16; an inner hook may run on that copy. */
CDP__PRIVATE cdp_status cdp__hook_half(
    cdp__hook *h, cdp__slot *s, cdp_bucket *b, uint32_t stage, cdp_request *op) {
    const cdp_dtype t = h->desc.kind == CDP_HOOK_FP16 ? CDP_DTYPE_F16 : CDP_DTYPE_BF16;
    cdp_status st;
    if (!stage) {
        if (!cdp__hook_memory(h, &s->scratch, &s->scratch_bytes, b->count * 2))
            return cdp__fail_nomem("a compressed bucket", b->count * 2);
        cdp__convert(b->dtype, b->data, t, s->scratch, b->count);
        s->inner = *b;
        s->inner.data = s->scratch;
        s->inner.dtype = t;
    }
    s->inner.group = b->group;
    st = h->inner.stage ? h->inner.stage(h->inner.self, &s->inner, stage, op)
                        : cdp__hook_allreduce(&s->inner, stage, op, s->inner.group);
    b->group = s->inner.group;
    if (st == CDP_OK) cdp__convert(t, s->scratch, b->dtype, b->data, b->count);
    return st;
}

#endif /* CDP_NO_HOOKS */

/* ---- >>ddp/hooks_quantize: sends 8 bits per value -------------------------------------------- */

/* Knows: the arithmetic of PyTorch's quantization hooks. Promises: the same bits on every rank. */

#ifndef CDP_NO_HOOKS

/* Rounds to the nearest integer, ties to even. Values beyond +-1024 become +-1024, NaN becomes
   -1024. Inline, so that the calling loop vectorises; masks select the case, because gcc makes
   branches of `?:` here. */
CDP__PRIVATE inline int32_t cdp__round_whole(float v) {
    uint32_t bits;
    int32_t whole, odd, up, down;
    float x, rest;
    memcpy(&bits, &v, 4);
    bits = CDP__PICK(v > 1024, 0x44800000u, bits);      /* 1024 */
    bits = CDP__PICK(!(v >= -1024), 0xc4800000u, bits); /* -1024 */
    memcpy(&x, &bits, 4);
    whole = (int32_t)x;
    odd = whole & 1;
    rest = x - (float)whole;
    up = (int32_t)(rest > 0.5f) | ((int32_t)(rest == 0.5f) & odd);
    down = (int32_t)(rest < -0.5f) | ((int32_t)(rest == -0.5f) & odd);
    return whole + up - down;
}

CDP__PRIVATE float cdp__round_even(float v) {
    return (float)cdp__round_whole(v);
}

#define CDP__RANGE_LANES 16u

/* Updates the smallest and largest values so far, in lanes. */
CDP__PRIVATE void cdp__quantize_range_block(
    const float *CDP__RESTRICT x, float *CDP__RESTRICT lows, float *CDP__RESTRICT highs) {
    uint32_t i, k;
    for (i = 0; i < CDP__BLOCK; i += CDP__RANGE_LANES)
        for (k = 0; k < CDP__RANGE_LANES; ++k) {
            lows[k] = x[i + k] < lows[k] ? x[i + k] : lows[k];
            highs[k] = x[i + k] > highs[k] ? x[i + k] : highs[k];
        }
}

/* Scale and zero point of one row, from a range that always includes 0. */
CDP__PRIVATE void cdp__quantize_range(const float *x, uint64_t n, float *out) {
    float lows[CDP__RANGE_LANES] = {0}, highs[CDP__RANGE_LANES] = {0}, rest[CDP__BLOCK] = {0};
    float low = 0, high = 0, scale, zero;
    uint32_t k;
    for (; n >= CDP__BLOCK; n -= CDP__BLOCK, x += CDP__BLOCK)
        cdp__quantize_range_block(x, lows, highs);
    if (n) memcpy(rest, x, (size_t)n * sizeof *rest);
    cdp__quantize_range_block(rest, lows, highs);
    for (k = 0; k < CDP__RANGE_LANES; ++k) {
        low = lows[k] < low ? lows[k] : low;
        high = highs[k] > high ? highs[k] : high;
    }
    scale = (high - low) / 255.0f;
    if (!(scale >= 1.1920929e-07f)) scale = 1.1920929e-07f;
    zero = 0 - cdp__round_even(low / scale);
    if (zero < 0) zero = 0;
    if (zero > 255) zero = 255;
    out[0] = scale;
    out[1] = zero;
}

CDP__PRIVATE void cdp__quantize_block(
    const float *CDP__RESTRICT x, float scale, float zero, uint8_t *CDP__RESTRICT out) {
    const int32_t origin = (int32_t)zero; /* an integer, 0 to 255 */
    uint32_t i;
    for (i = 0; i < CDP__BLOCK; ++i) {
        int32_t q = cdp__round_whole(x[i] / scale) + origin;
        q = q < 0 ? 0 : q;
        q = q > 255 ? 255 : q;
        out[i] = (uint8_t)q;
    }
}

CDP__PRIVATE void cdp__quantize_row(const float *x, uint64_t n, const float *range, uint8_t *out) {
    float rest[CDP__BLOCK] = {0};
    uint8_t bytes[CDP__BLOCK];
    for (; n >= CDP__BLOCK; n -= CDP__BLOCK, x += CDP__BLOCK, out += CDP__BLOCK)
        cdp__quantize_block(x, range[0], range[1], out);
    if (!n) return;
    memcpy(rest, x, (size_t)n * sizeof *rest);
    cdp__quantize_block(rest, range[0], range[1], bytes);
    memcpy(out, bytes, (size_t)n);
}

CDP__PRIVATE void cdp__dequantize_block(
    float *CDP__RESTRICT x, float scale, float zero, const uint8_t *CDP__RESTRICT q) {
    uint32_t i;
    for (i = 0; i < CDP__BLOCK; ++i)
        x[i] += scale * ((float)q[i] - zero);
}

/* Adds the values that one rank sent to x. */
CDP__PRIVATE void cdp__dequantize_row(float *x, uint64_t n, const float *range, const uint8_t *q) {
    float rest[CDP__BLOCK] = {0};
    uint8_t bytes[CDP__BLOCK] = {0};
    for (; n >= CDP__BLOCK; n -= CDP__BLOCK, x += CDP__BLOCK, q += CDP__BLOCK)
        cdp__dequantize_block(x, range[0], range[1], q);
    if (!n) return;
    memcpy(rest, x, (size_t)n * sizeof *rest);
    memcpy(bytes, q, (size_t)n);
    cdp__dequantize_block(rest, range[0], range[1], bytes);
    memcpy(x, rest, (size_t)n * sizeof *rest);
}

/* A bucket as rows that have a scale and a zero point each: rows of 512 values, the last one
   padded, or a single row. Scratch memory holds the ranges of all ranks, then the bytes of all
   ranks. */
typedef struct cdp__quantized {
    uint64_t row, rows;
    float *ranges;  /* rank r: `rows` pairs, from r * rows * 2 on */
    uint8_t *bytes; /* rank r: `rows` * `row` bytes, from r * rows * row on */
} cdp__quantized;

/* The number of values in row i, without padding. */
CDP__PRIVATE uint64_t cdp__quantized_row(const cdp__quantized *z, const cdp_bucket *b, uint64_t i) {
    const uint64_t begin = i * z->row;
    return begin < b->count ? cdp__min(z->row, b->count - begin) : 0;
}

CDP__PRIVATE void cdp__quantize_own(
    const cdp__quantized *z, const cdp_bucket *b, bool ranges_only) {
    const uint64_t rank = cdp_rank(b->group), n = z->rows * z->row;
    const float *x = (const float *)b->data;
    uint64_t i;
    if (!ranges_only) memset(z->bytes + rank * n, 0, (size_t)n);
    for (i = 0; i < z->rows; ++i, x += z->row) {
        float *range = z->ranges + (rank * z->rows + i) * 2;
        const uint64_t used = cdp__quantized_row(z, b, i);
        if (ranges_only)
            cdp__quantize_range(x, used, range);
        else
            cdp__quantize_row(x, used, range, z->bytes + rank * n + i * z->row);
    }
}

/* Replaces the bucket by the mean of the values of all ranks. */
CDP__PRIVATE void cdp__quantized_mean(const cdp__quantized *z, const cdp_bucket *b) {
    const uint64_t world = cdp_size(b->group), n = z->rows * z->row;
    const float divisor = (float)b->divisor;
    float *x = (float *)b->data;
    uint64_t i, r;
    memset(x, 0, (size_t)b->count * sizeof *x);
    for (i = 0; i < z->rows; ++i)
        for (r = 0; r < world; ++r)
            cdp__dequantize_row(x + i * z->row, cdp__quantized_row(z, b, i),
                z->ranges + (r * z->rows + i) * 2, z->bytes + r * n + i * z->row);
    cdp__kernel_run(CDP_DTYPE_F32, cdp__divide_f32, x, &divisor, b->count, true);
}

CDP__PRIVATE cdp_status cdp__hook_quantize(
    cdp__hook *h, cdp__slot *s, cdp_bucket *b, uint32_t stage, cdp_request *op) {
    const bool channel = h->desc.kind == CDP_HOOK_QUANTIZE_CHANNEL;
    const uint64_t world = cdp_size(b->group);
    cdp__quantized z;
    uint64_t bytes;
    z.row = channel ? 512 : b->count;
    z.rows = channel ? b->count / 512 + 1 : 1;
    bytes = world * z.rows * (8 + z.row);
    if (!cdp__hook_memory(h, &s->scratch, &s->scratch_bytes, bytes))
        return cdp__fail_nomem("a quantized bucket", bytes);
    z.ranges = (float *)(void *)s->scratch;
    z.bytes = s->scratch + world * z.rows * 8;
    if (stage == 2) {
        cdp__quantized_mean(&z, b);
        return CDP_OK;
    }
    cdp__quantize_own(&z, b, stage == 0);
    if (stage == 0)
        *op = cdp__request_of(
            CDP_COLL_ALLGATHER, NULL, z.ranges, z.rows * 2, CDP_DTYPE_F32, CDP_REDUCE_DEFAULT, 0);
    else
        *op = cdp__request_of(
            CDP_COLL_ALLGATHER, NULL, z.bytes, z.rows * z.row, CDP_DTYPE_U8, CDP_REDUCE_DEFAULT, 0);
    return CDP_PENDING;
}

#endif /* CDP_NO_HOOKS */

/* ---- >>ddp/hooks_topk: sends only the largest values ----------------------------------------- */

/* Knows: magnitudes of floats as bits. Promises: selects exactly k values; of equal ones, the
   first. */

#ifndef CDP_NO_HOOKS

/* A kernel over two arrays of CDP__BLOCK values. */
typedef void (*cdp__pair_kernel)(float *CDP__RESTRICT a, float *CDP__RESTRICT b);

/* Runs a kernel over n values; an incomplete block is copied to a full one. */
CDP__PRIVATE void cdp__pair_run(cdp__pair_kernel k, float *a, float *b, uint64_t n) {
    float rest[2][CDP__BLOCK] = {{0}};
    for (; n >= CDP__BLOCK; n -= CDP__BLOCK, a += CDP__BLOCK, b += CDP__BLOCK)
        k(a, b);
    if (!n) return;
    memcpy(rest[0], a, (size_t)n * sizeof *a);
    memcpy(rest[1], b, (size_t)n * sizeof *b);
    k(rest[0], rest[1]);
    memcpy(a, rest[0], (size_t)n * sizeof *a);
    memcpy(b, rest[1], (size_t)n * sizeof *b);
}

/* Error feedback before compression: x += error, and error = x. */
CDP__PRIVATE void cdp__feed_back(float *CDP__RESTRICT x, float *CDP__RESTRICT error) {
    uint32_t i;
    for (i = 0; i < CDP__BLOCK; ++i) {
        const float sum = x[i] + error[i];
        x[i] = sum;
        error[i] = sum;
    }
}

/* Without error feedback, before compression: error = x. */
CDP__PRIVATE void cdp__feed_none(float *CDP__RESTRICT x, float *CDP__RESTRICT error) {
    memcpy(error, x, CDP__BLOCK * sizeof *x);
}

/* Error feedback after compression: error -= x. */
CDP__PRIVATE void cdp__feed_left(float *CDP__RESTRICT x, float *CDP__RESTRICT error) {
    uint32_t i;
    for (i = 0; i < CDP__BLOCK; ++i)
        error[i] -= x[i];
}

/* size = bits of |x|, which order like the magnitudes, with NaN as the largest. */
CDP__PRIVATE void cdp__magnitudes(float *CDP__RESTRICT x, float *CDP__RESTRICT size) {
    uint32_t i;
    for (i = 0; i < CDP__BLOCK; ++i) {
        uint32_t bits;
        memcpy(&bits, &x[i], 4);
        bits &= 0x7fffffffu;
        memcpy(&size[i], &bits, 4);
    }
}

/* The k-th largest of n magnitudes (k from 0; floats as bits without their sign). A radix
   selection: counts digits of 9, 11 and 11 bits. n must be below 2^32. */
CDP__PRIVATE uint32_t cdp__topk_threshold(const uint32_t *x, uint64_t n, uint64_t k) {
    static const uint32_t above[3] = {0, 22, 11}, shift[3] = {22, 11, 0};
    uint32_t counts[2048], found = 0, step, d;
    uint64_t i;
    CDP_ASSERT(!(n >> 32));
    for (step = 0; step < 3 && n; ++step) {
        memset(counts, 0, sizeof counts);
        for (i = 0; i < n; ++i)
            if (!step || x[i] >> above[step] == found >> above[step])
                ++counts[x[i] >> shift[step] & 2047];
        for (d = 2047; counts[d] <= k; --d)
            k -= counts[d];
        found |= d << shift[step];
    }
    return found;
}

/* Writes (index, value) of the k largest values to `own`, and removes these values from `error`. */
CDP__PRIVATE void cdp__topk_select(
    const float *x, const uint32_t *size, uint64_t n, uint64_t k, uint32_t *own, float *error) {
    const uint32_t limit = k ? cdp__topk_threshold(size, n, k - 1) : 0;
    uint64_t i, above = 0, at = 0;
    for (i = 0; i < n; ++i)
        above += size[i] > limit;
    for (i = 0; i < n && at < k; ++i) {
        if (size[i] < limit || (size[i] == limit && above >= k)) continue;
        if (size[i] == limit) ++above;
        own[2 * at] = (uint32_t)i;
        memcpy(&own[2 * at + 1], &x[i], 4);
        error[i] = 0;
        ++at;
    }
    CDP_ASSERT(at == k);
}

/* Scratch memory holds the (index, value) pairs of all ranks, then magnitudes. */
CDP__PRIVATE cdp_status cdp__hook_topk(
    cdp__hook *h, cdp__slot *s, cdp_bucket *b, uint32_t stage, cdp_request *op) {
    const uint64_t n = b->count, k = cdp__min(n, (uint64_t)((double)n / h->desc.ratio) + 1),
                   world = cdp_size(b->group);
    float *x = (float *)b->data, *error;
    uint32_t *pairs, *size;
    uint64_t i;
    if (n >> 32)
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "top-k: a bucket has more than 2^32 values; make bucket_bytes smaller");
    if (!cdp__hook_memory(h, &s->scratch, &s->scratch_bytes, world * k * 8 + n * 4)
        || !cdp__hook_memory(h, &s->error, &s->error_bytes, n * 4))
        return cdp__fail_nomem("a sparse bucket", n * 8);
    pairs = (uint32_t *)(void *)s->scratch;
    size = pairs + world * k * 2;
    error = (float *)(void *)s->error;
    if (!stage) {
        cdp__pair_run(h->desc.no_error_feedback ? cdp__feed_none : cdp__feed_back, x, error, n);
        cdp__pair_run(cdp__magnitudes, x, (float *)(void *)size, n);
        cdp__topk_select(x, size, n, k, pairs + cdp_rank(b->group) * k * 2, error);
        *op = cdp__request_of(
            CDP_COLL_ALLGATHER, NULL, pairs, 2 * k, CDP_DTYPE_U32, CDP_REDUCE_DEFAULT, 0);
        return CDP_PENDING;
    }
    memset(x, 0, (size_t)n * 4);
    for (i = 0; i < world * k; ++i) {
        float v;
        memcpy(&v, &pairs[2 * i + 1], 4);
        if (pairs[2 * i] < n) x[pairs[2 * i]] += v;
    }
    cdp__divide_by(CDP_DTYPE_F32, x, n, b->divisor);
    return CDP_OK;
}

#endif /* CDP_NO_HOOKS */

/* ---- >>ddp/hooks_powersgd: sends matrices as products of two thin ones ----------------------- */

/* Knows: the mathematics of PowerSGD (Vogels, Karimireddy and Jaggi 2019). Promises: the same bits
   on every rank. */

#ifndef CDP_NO_HOOKS

/* Makes the columns of an n x r matrix, stored by rows, orthonormal, one after the other. Fast
   compared with the rest, because a bucket has many more elements. */
CDP__PRIVATE void cdp__orthogonalize(float *a, uint64_t n, uint64_t r, float epsilon) {
    uint64_t i, j, k;
    for (j = 0; j < r; ++j) {
        float norm = 0;
        for (i = 0; i < n; ++i)
            norm += a[i * r + j] * a[i * r + j];
        norm = (float)cdp__sqrt((double)norm) + epsilon;
        for (i = 0; i < n && norm > 0; ++i)
            a[i * r + j] /= norm;
        for (k = j + 1; k < r; ++k) {
            float dot = 0;
            for (i = 0; i < n; ++i)
                dot += a[i * r + j] * a[i * r + k];
            for (i = 0; i < n; ++i)
                a[i * r + k] -= dot * a[i * r + j];
        }
    }
}

/* One parameter of a bucket (or, if batched, the whole bucket) as a matrix of PowerSGD. */
typedef struct cdp__matrix {
    float *at;               /* n x m by rows */
    uint64_t n, m, r, count; /* r 0: not compressed */
    uint64_t p, q, plain;    /* where its data begins in the buffers that all parameters share */
} cdp__matrix;

/* The side of the smallest square with room for n numbers. */
CDP__PRIVATE uint64_t cdp__square_side(uint64_t n) {
    uint64_t side = (uint64_t)cdp__sqrt((double)n);
    while (side && side * side > n)
        --side;
    while (side * side < n)
        ++side;
    return side;
}

/* Shapes a parameter as a matrix. x->r 0: compression would not pay, so it is sent uncompressed. */
CDP__PRIVATE void cdp__matrix_of_param(const cdp__hook *h, const cdp_param *p, cdp__matrix *x) {
    x->count = p->sparse ? 0 : p->count;
    x->n = p->rows ? p->rows : x->count;
    x->m = x->n ? x->count / x->n : 0;
    x->r = cdp__min(cdp__min(x->n, x->m), h->desc.rank);
    if (!((double)(x->n + x->m) * (double)x->r * h->desc.min_rate < (double)(x->n * x->m)))
        x->r = 0;
}

/* Advances to the next matrix of a bucket; *i begins at 0. False at the end: then *x holds the
   total sizes. */
CDP__PRIVATE bool cdp__matrix_next(
    const cdp__hook *h, const cdp_bucket *b, uint32_t *i, cdp__matrix *x) {
    const bool batched = h->desc.kind == CDP_HOOK_POWERSGD_BATCHED;
    if (*i == 0) {
        memset(x, 0, sizeof *x);
        x->at = (float *)b->data;
    } else {
        x->p += x->n * x->r;
        x->q += x->m * x->r;
        x->plain += x->r ? 0 : x->count;
        x->at += x->count;
    }
    if (*i == (batched ? 1u : b->param_count)) return false;
    if (batched) {
        x->n = x->m = cdp__square_side(b->count);
        x->count = b->count;
        x->r = cdp__min(x->n, h->desc.rank);
    } else {
        cdp__matrix_of_param(h, cdp_ddp_param(b->ddp, b->params[*i]), x);
    }
    ++*i;
    return true;
}

/* A nearly normal random number: the sum of twelve uniform ones (splitmix64) has variance 1. */
CDP__PRIVATE float cdp__hook_normal(cdp__hook *h) {
    double sum = -6;
    uint32_t i;
    for (i = 0; i < 12; ++i) {
        uint64_t z = h->random += 0x9e3779b97f4a7c15ull;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ z >> 27) * 0x94d049bb133111ebull;
        sum += (double)((z ^ z >> 31) >> 11) / 9007199254740992.0;
    }
    return (float)sum;
}

/* Matrix products handle CDP__BLOCK columns of the large matrix and CDP__COLUMNS columns of the
   thin one at a time, so that all loops over values have constant length. */
#define CDP__COLUMNS 4u
typedef struct cdp__strip {
    /* columns of the large matrix, which are rows of the thin one */
    uint64_t from, used;
    uint64_t first, count;                /* columns of the thin matrix */
    float thin[CDP__COLUMNS][CDP__BLOCK]; /* zeros after `used` */
} cdp__strip;

/* Loads a part of an m x r matrix: rows `from` on, columns `first` on; zeros beyond its end. */
CDP__PRIVATE void cdp__strip_load(cdp__strip *t, const float *a, uint64_t m, uint64_t r) {
    uint64_t c, j;
    t->used = cdp__min(m - t->from, CDP__BLOCK);
    t->count = cdp__min(r - t->first, CDP__COLUMNS);
    memset(t->thin, 0, sizeof t->thin);
    for (c = 0; c < t->count; ++c)
        for (j = 0; j < t->used; ++j)
            t->thin[c][j] = a[(t->from + j) * r + t->first + c];
}

CDP__PRIVATE void cdp__strip_store(const cdp__strip *t, float *a, uint64_t r) {
    uint64_t c, j;
    for (c = 0; c < t->count; ++c)
        for (j = 0; j < t->used; ++j)
            a[(t->from + j) * r + t->first + c] = t->thin[c][j];
}

/* The number of values of row i in the strip; the last row of a batched matrix may be short. */
CDP__PRIVATE uint64_t cdp__strip_row(const cdp__strip *t, const cdp__matrix *x, uint64_t i) {
    const uint64_t begin = i * x->m + t->from;
    return begin < x->count ? cdp__min(t->used, x->count - begin) : 0;
}

/* CDP__BLOCK values of a row: in place or, if there are fewer, copied to `rest` with zeros. */
CDP__PRIVATE const float *cdp__strip_values(
    const cdp__strip *t, const cdp__matrix *x, uint64_t i, float rest[CDP__BLOCK]) {
    const uint64_t n = cdp__strip_row(t, x, i);
    if (n == CDP__BLOCK) return x->at + i * x->m + t->from;
    memset(rest, 0, CDP__BLOCK * sizeof *rest);
    if (n) memcpy(rest, x->at + i * x->m + t->from, (size_t)n * sizeof *rest);
    return rest;
}

CDP__PRIVATE float cdp__block_dot(const float *CDP__RESTRICT a, const float *CDP__RESTRICT b) {
    float lanes[16] = {0}, sum = 0;
    uint32_t i, k;
    for (i = 0; i < CDP__BLOCK; i += 16)
        for (k = 0; k < 16; ++k)
            lanes[k] += a[i + k] * b[i + k];
    for (k = 0; k < 16; ++k)
        sum += lanes[k];
    return sum;
}

/* out += a * by */
CDP__PRIVATE void cdp__block_add(float *CDP__RESTRICT out, const float *CDP__RESTRICT a, float by) {
    uint32_t i;
    for (i = 0; i < CDP__BLOCK; ++i)
        out[i] += a[i] * by;
}

/* out = M a; a and out are stored by rows of r values. */
CDP__PRIVATE void cdp__matrix_times(const cdp__matrix *x, const float *a, float *out) {
    float rest[CDP__BLOCK];
    cdp__strip t;
    uint64_t i, c;
    memset(out, 0, (size_t)(x->n * x->r) * sizeof *out);
    for (t.first = 0; t.first < x->r; t.first += CDP__COLUMNS)
        for (t.from = 0; t.from < x->m; t.from += CDP__BLOCK) {
            cdp__strip_load(&t, a, x->m, x->r);
            for (i = 0; i < x->n; ++i) {
                const float *row = cdp__strip_values(&t, x, i, rest);
                for (c = 0; c < t.count; ++c)
                    out[i * x->r + t.first + c] += cdp__block_dot(row, t.thin[c]);
            }
        }
}

/* out = M^T a; a and out are stored by rows of r values. */
CDP__PRIVATE void cdp__matrix_transposed_times(const cdp__matrix *x, const float *a, float *out) {
    float rest[CDP__BLOCK];
    cdp__strip t;
    uint64_t i, c;
    memset(out, 0, (size_t)(x->m * x->r) * sizeof *out);
    for (t.first = 0; t.first < x->r; t.first += CDP__COLUMNS)
        for (t.from = 0; t.from < x->m; t.from += CDP__BLOCK) {
            cdp__strip_load(&t, out, x->m, x->r); /* zeros */
            for (i = 0; i < x->n; ++i) {
                const float *row = cdp__strip_values(&t, x, i, rest);
                for (c = 0; c < t.count; ++c)
                    cdp__block_add(t.thin[c], row, a[i * x->r + t.first + c]);
            }
            cdp__strip_store(&t, out, x->r);
        }
}

/* M = p q^T */
CDP__PRIVATE void cdp__matrix_compose(const cdp__matrix *x, const float *p, const float *q) {
    float row[CDP__BLOCK];
    cdp__strip t;
    uint64_t i, c;
    memset(x->at, 0, (size_t)x->count * sizeof *x->at);
    for (t.from = 0; t.from < x->m; t.from += CDP__BLOCK)
        for (t.first = 0; t.first < x->r; t.first += CDP__COLUMNS) {
            cdp__strip_load(&t, q, x->m, x->r);
            for (i = 0; i < x->n; ++i) {
                const uint64_t n = cdp__strip_row(&t, x, i);
                float *at = x->at + i * x->m + t.from, *out = n == CDP__BLOCK ? at : row;
                if (!n) break;
                if (out == row) memcpy(row, at, (size_t)n * sizeof *row);
                for (c = 0; c < t.count; ++c)
                    cdp__block_add(out, t.thin[c], p[i * x->r + t.first + c]);
                if (out == row) memcpy(at, row, (size_t)n * sizeof *row);
            }
        }
}

/* The buffers of a PowerSGD step: left factors, right factors, uncompressed values. */
typedef struct cdp__factors {
    float *p, *q, *plain;
    uint64_t p_count, q_count, plain_count;
} cdp__factors;

/* Handles one matrix before the operation of a phase (0: uncompressed values, 1: left factors,
   2: right factors), and after the last operation (3). */
CDP__PRIVATE void cdp__powersgd_matrix(cdp__hook *h, uint32_t phase, const cdp_bucket *b,
    const cdp__factors *f, const cdp__matrix *x) {
    const float epsilon = (float)h->desc.epsilon;
    if (!x->r) {
        if (phase == 0) memcpy(f->plain + x->plain, x->at, (size_t)x->count * 4);
        if (phase != 1) return;
        memcpy(x->at, f->plain + x->plain, (size_t)x->count * 4);
        cdp__divide_by(CDP_DTYPE_F32, x->at, x->count, b->divisor);
        return;
    }
    if (phase == 0) {
        cdp__orthogonalize(f->q + x->q, x->m, x->r, epsilon);
        cdp__matrix_times(x, f->q + x->q, f->p + x->p);
    } else if (phase == 2) {
        cdp__orthogonalize(f->p + x->p, x->n, x->r, epsilon);
        cdp__matrix_transposed_times(x, f->p + x->p, f->q + x->q);
    } else if (phase == 3) {
        cdp__matrix_compose(x, f->p + x->p, f->q + x->q);
    }
}

CDP__PRIVATE void cdp__powersgd_phase(
    cdp__hook *h, cdp__slot *s, cdp_bucket *b, const cdp__factors *f) {
    float *data = (float *)b->data, *error = (float *)(void *)s->error;
    const bool feedback = !h->desc.no_error_feedback;
    cdp__matrix x;
    uint32_t i = 0;
    if (s->phase == 0 && feedback) cdp__pair_run(cdp__feed_back, data, error, b->count);
    if (s->phase == 3) cdp__divide_by(CDP_DTYPE_F32, f->q, f->q_count, b->divisor);
    while (cdp__matrix_next(h, b, &i, &x))
        cdp__powersgd_matrix(h, s->phase, b, f, &x);
    if (s->phase == 3 && feedback) cdp__pair_run(cdp__feed_left, data, error, b->count);
}

/* The numbers that the operation of this phase sums. */
CDP__PRIVATE float *cdp__powersgd_part(const cdp__factors *f, uint32_t phase, uint64_t *count) {
    const uint64_t counts[3] = {f->plain_count, f->p_count, f->q_count};
    float *const parts[3] = {f->plain, f->p, f->q};
    *count = counts[phase];
    return parts[phase];
}

/* Allocates the buffers in a slot; `half`: with a copy as 16-bit floats. *fresh: the right
   factors are new. */
CDP__PRIVATE cdp_status cdp__powersgd_memory(
    cdp__hook *h, cdp__slot *s, const cdp_bucket *b, bool half, cdp__factors *f, bool *fresh) {
    const uint64_t q_before = s->q_bytes;
    cdp__matrix x;
    uint64_t floats, halves;
    uint32_t i = 0;
    while (cdp__matrix_next(h, b, &i, &x)) {
    }
    floats = x.p + x.plain;
    halves = half ? x.p + x.q + x.plain : 0;
    if (!cdp__hook_memory(h, &s->scratch, &s->scratch_bytes, floats * 4 + halves * 2)
        || !cdp__hook_memory(h, &s->q, &s->q_bytes, x.q * 4)
        || (!h->desc.no_error_feedback
            && !cdp__hook_memory(h, &s->error, &s->error_bytes, b->count * 4)))
        return cdp__fail_nomem("a compressed bucket", (floats + x.q + b->count) * 4);
    f->p = (float *)(void *)s->scratch;
    f->q = (float *)(void *)s->q;
    f->plain = f->p + x.p;
    f->p_count = x.p;
    f->q_count = x.q;
    f->plain_count = x.plain;
    *fresh = s->q_bytes != q_before;
    return CDP_OK;
}

/* `dtype`: the dtype of the bucket, of which `b` is an f32 copy; 16-bit floats are sent as such. */
CDP__PRIVATE cdp_status cdp__hook_powersgd(
    cdp__hook *h, cdp__slot *s, cdp_bucket *b, cdp_dtype dtype, uint32_t stage, cdp_request *op) {
    const bool half = cdp__dtype_is_narrow(dtype);
    cdp__factors f;
    uint64_t k, n;
    float *part;
    void *wire;
    bool fresh = false;
    cdp_status st;
    memset(&f, 0, sizeof f);
    st = cdp__powersgd_memory(h, s, b, half, &f, &fresh);
    if (st != CDP_OK) return st;
    wire = f.plain + f.plain_count;
    if (!stage) {
        s->phase = 0;
        for (k = 0; k < f.q_count && (h->desc.no_warm_start || fresh); ++k)
            f.q[k] = cdp__hook_normal(h);
    } else if (half) { /* the previous operation is done */
        CDP_ASSERT(s->phase > 0 && s->phase <= 3);
        part = cdp__powersgd_part(&f, s->phase - 1, &n);
        cdp__convert(dtype, wire, CDP_DTYPE_F32, part, n);
    }
    for (;; ++s->phase) { /* operations without values are left out */
        cdp__powersgd_phase(h, s, b, &f);
        if (s->phase == 3) return CDP_OK;
        part = cdp__powersgd_part(&f, s->phase, &n);
        if (n) break;
    }
    if (half) cdp__convert(CDP_DTYPE_F32, part, dtype, wire, n);
    *op = cdp__request_of(CDP_COLL_ALLREDUCE, NULL, half ? wire : part, n,
        half ? dtype : CDP_DTYPE_F32, CDP_REDUCE_SUM, 0);
    ++s->phase;
    return CDP_PENDING;
}

#endif /* CDP_NO_HOOKS */

/* ---- >>ddp/hooks_state: creating a hook, saving and loading its state ------------------------ */

/* Knows: all kinds of hooks. Promises: saved state can be loaded on every machine (32-bit words,
   least significant byte first). */

#ifndef CDP_NO_HOOKS

/* Compressing hooks compute in f32; other dtypes go through a copy. Batched PowerSGD always uses
   a copy, padded with zeros to a square, because errors are fed back in the padding, too. */
CDP__PRIVATE cdp_status cdp__hook_compress(
    cdp__hook *h, cdp__slot *s, cdp_bucket *b, uint32_t stage, cdp_request *op) {
    const cdp_hook_kind kind = h->desc.kind;
    const bool square = kind == CDP_HOOK_POWERSGD_BATCHED,
               copy = square || b->dtype != CDP_DTYPE_F32;
    const uint64_t side = square ? cdp__square_side(b->count) : 0,
                   count = square ? side * side : b->count;
    cdp_bucket *in = copy ? &s->inner : b;
    cdp_status st;
    if (copy && !stage) {
        if (!cdp__hook_memory(h, &s->wide, &s->wide_bytes, count * 4))
            return cdp__fail_nomem("a bucket in f32", count * 4);
        cdp__convert(b->dtype, b->data, CDP_DTYPE_F32, s->wide, b->count);
        memset(s->wide + b->count * 4, 0, (size_t)((count - b->count) * 4));
        s->inner = *b;
        s->inner.data = s->wide;
        s->inner.count = count;
        s->inner.dtype = CDP_DTYPE_F32;
    }
    in->group = b->group;
    if (kind == CDP_HOOK_TOPK)
        st = cdp__hook_topk(h, s, in, stage, op);
    else if (kind == CDP_HOOK_QUANTIZE || kind == CDP_HOOK_QUANTIZE_CHANNEL)
        st = cdp__hook_quantize(h, s, in, stage, op);
    else
        st = cdp__hook_powersgd(h, s, in, b->dtype, stage, op);
    if (copy && st == CDP_OK) cdp__convert(CDP_DTYPE_F32, s->wide, b->dtype, b->data, b->count);
    return st;
}

CDP__PRIVATE cdp_status cdp__hook_stage(
    void *self, cdp_bucket *b, uint32_t stage, cdp_request *op) {
    cdp__hook *h = (cdp__hook *)self;
    cdp__slot *s = cdp__hook_slot(h, b->bucket_count, b->index);
    const cdp_hook_kind kind = h->desc.kind;
    cdp_status st;
    if (!s) return cdp__fail_nomem("a hook", b->bucket_count * sizeof *s);
    if (!stage) { /* PowerSGD and post-local SGD begin with uncompressed steps */
        cdp__hook_begin(h, s);
        s->plain = h->step < h->desc.start;
    }
    if (kind == CDP_HOOK_FP16 || kind == CDP_HOOK_BF16)
        st = cdp__hook_half(h, s, b, stage, op);
    else if (kind == CDP_HOOK_NOOP)
        st = CDP_OK;
    else if (kind == CDP_HOOK_ALLREDUCE || s->plain)
        st = cdp__hook_allreduce(b, stage, op, b->group);
    else if (kind == CDP_HOOK_POST_LOCAL_SGD)
        st = h->desc.subgroup ? cdp__hook_allreduce(b, stage, op, h->desc.subgroup) : CDP_OK;
    else
        st = cdp__hook_compress(h, s, b, stage, op);
    if (!stage && b->index + 1 == b->bucket_count) ++h->step;
    s->busy = st == CDP_PENDING;
    return st;
}

CDP__PRIVATE double cdp__hook_error_norm(void *self) {
    const cdp__hook *h = (const cdp__hook *)self;
    double sum = 0;
    uint64_t k;
    uint32_t i;
    for (i = 0; i < h->slot_count; ++i)
        for (k = 0; h->slots[i].error && k < h->slots[i].error_bytes / 4; ++k) {
            const double e = (double)((const float *)(const void *)h->slots[i].error)[k];
            sum += e * e;
        }
    return h->inner.error_norm ? h->inner.error_norm(h->inner.self) : cdp__sqrt(sum);
}

/* Layout of a saved state: kind, step, random state, number of slots; per slot the sizes and
   contents of error and q; then the state of the wrapped hook. */
CDP__PRIVATE void cdp__hook_put(
    uint8_t *out, uint64_t room, uint64_t *at, const uint8_t *words, uint64_t bytes) {
    uint64_t k;
    for (k = 0; k < bytes; k += 4, *at += 4) {
        uint32_t w;
        memcpy(&w, words + k, 4);
        if (*at + 4 <= room) cdp__put_u32(out + *at, w);
    }
}

CDP__PRIVATE void cdp__hook_put_u64(uint8_t *out, uint64_t room, uint64_t *at, uint64_t v) {
    const uint32_t words[2] = {(uint32_t)v, (uint32_t)(v >> 32)};
    cdp__hook_put(out, room, at, (const uint8_t *)(const void *)words, 8);
}

CDP__PRIVATE CDP__COLD uint64_t cdp__hook_save(void *self, void *bytes, uint64_t room) {
    const cdp__hook *h = (const cdp__hook *)self;
    uint8_t *out = (uint8_t *)bytes;
    uint64_t at = 0;
    uint32_t i;
    bool fits;
    if (!out) room = 0;
    cdp__hook_put_u64(out, room, &at, (uint64_t)h->desc.kind);
    cdp__hook_put_u64(out, room, &at, h->step);
    cdp__hook_put_u64(out, room, &at, h->random);
    cdp__hook_put_u64(out, room, &at, h->slot_count);
    for (i = 0; i < h->slot_count; ++i) {
        const cdp__slot *s = &h->slots[i];
        cdp__hook_put_u64(out, room, &at, s->error_bytes);
        cdp__hook_put_u64(out, room, &at, s->q_bytes);
        cdp__hook_put(out, room, &at, s->error, s->error_bytes);
        cdp__hook_put(out, room, &at, s->q, s->q_bytes);
    }
    if (!h->inner.save) return at;
    fits = out && at <= room;
    return at + h->inner.save(h->inner.self, fits ? out + at : NULL, fits ? room - at : 0);
}

CDP__PRIVATE bool cdp__hook_get(
    const uint8_t *in, uint64_t count, uint64_t *at, uint8_t *words, uint64_t bytes) {
    uint64_t k;
    if (bytes > count - *at) return false;
    for (k = 0; k < bytes; k += 4, *at += 4) {
        const uint32_t w = cdp__get_u32(in + *at);
        memcpy(words + k, &w, 4);
    }
    return true;
}

CDP__PRIVATE bool cdp__hook_get_u64(const uint8_t *in, uint64_t count, uint64_t *at, uint64_t *v) {
    uint32_t words[2];
    if (!cdp__hook_get(in, count, at, (uint8_t *)(void *)words, 8)) return false;
    *v = words[0] | (uint64_t)words[1] << 32;
    return true;
}

/* Loads one slot's state. INVALID: the bytes are no valid state. */
CDP__PRIVATE cdp_status cdp__hook_load_slot(
    cdp__hook *h, cdp__slot *s, const uint8_t *in, uint64_t count, uint64_t *at) {
    uint64_t error = 0, q = 0;
    if (!cdp__hook_get_u64(in, count, at, &error) || !cdp__hook_get_u64(in, count, at, &q)
        || error % 4 || q % 4 || error > count - *at || q > count - *at - error)
        return CDP_ERR_INVALID;
    if ((error && !cdp__hook_memory(h, &s->error, &s->error_bytes, error))
        || (q && !cdp__hook_memory(h, &s->q, &s->q_bytes, q)))
        return cdp__fail_nomem("a hook's state", error + q);
    return cdp__hook_get(in, count, at, s->error, error) && cdp__hook_get(in, count, at, s->q, q)
        ? CDP_OK
        : CDP_ERR_INVALID;
}

CDP__PRIVATE CDP__COLD cdp_status cdp__hook_load(void *self, const void *bytes, uint64_t count) {
    cdp__hook *h = (cdp__hook *)self;
    const uint8_t *in = (const uint8_t *)bytes;
    uint64_t at = 0, kind = 0, step = 0, random = 0, slots = 0;
    const bool ok = in && !(count % 4) && cdp__hook_get_u64(in, count, &at, &kind)
        && cdp__hook_get_u64(in, count, &at, &step) && cdp__hook_get_u64(in, count, &at, &random)
        && cdp__hook_get_u64(in, count, &at, &slots) && kind == (uint64_t)h->desc.kind
        && slots <= count / 16;
    cdp_status st = ok ? CDP_OK : CDP_ERR_INVALID;
    uint32_t i;
    if (ok && slots && !cdp__hook_slot(h, (uint32_t)slots, 0))
        return cdp__fail_nomem("a hook", slots * sizeof(cdp__slot));
    for (i = 0; st == CDP_OK && i < slots; ++i)
        st = cdp__hook_load_slot(h, &h->slots[i], in, count, &at);
    if (st == CDP_ERR_INVALID)
        return cdp__fail(CDP_ERR_INVALID,
            "a hook cannot load %llu bytes: they are not the state of a hook of this kind",
            (unsigned long long)count);
    if (st != CDP_OK) return st;
    h->step = step;
    h->random = random;
    return h->inner.load ? h->inner.load(h->inner.self, in + at, count - at) : CDP_OK;
}

CDP__PRIVATE cdp_status cdp__hook_check(const cdp_hook_desc *desc) {
    if ((uint32_t)desc->kind > CDP_HOOK_POST_LOCAL_SGD)
        return cdp__fail(
            CDP_ERR_INVALID, "cdp_hook_create: kind %d does not exist", (int)desc->kind);
    if (desc->inner && desc->kind != CDP_HOOK_FP16 && desc->kind != CDP_HOOK_BF16)
        return cdp__fail(
            CDP_ERR_INVALID, "cdp_hook_create: only FP16 and BF16 run around another hook");
    if (!(desc->min_rate >= 0) || !(desc->epsilon >= 0)
        || (desc->ratio != 0 && !(desc->ratio >= 1)))
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_hook_create: min_rate and epsilon must be positive, ratio at least 1");
    return CDP_OK;
}

CDP__PRIVATE bool cdp__hook_is_powersgd(cdp_hook_kind kind) {
    return kind == CDP_HOOK_POWERSGD || kind == CDP_HOOK_POWERSGD_BATCHED;
}

CDP__PRIVATE void cdp__hook_defaults(cdp__hook *h, const cdp_hook_desc *desc) {
    h->desc = *desc;
    h->random = desc->seed;
    h->desc.rank = cdp__def(desc->rank, 1);
    if (cdp__hook_is_powersgd(desc->kind))
        h->desc.start = cdp__def(desc->start, 1000);
    else if (desc->kind != CDP_HOOK_POST_LOCAL_SGD)
        h->desc.start = 0;
    if (desc->min_rate == 0) h->desc.min_rate = 2;
    if (desc->ratio == 0) h->desc.ratio = 100;
    if (desc->inner) h->inner = *desc->inner;
}

/* The largest number of operations per bucket. */
CDP__PRIVATE uint32_t cdp__hook_operations(const cdp_hook_desc *desc) {
    if (desc->inner) return desc->inner->operations;
    switch (desc->kind) {
    case CDP_HOOK_POWERSGD: return 3;
    case CDP_HOOK_POWERSGD_BATCHED:
    case CDP_HOOK_QUANTIZE:
    case CDP_HOOK_QUANTIZE_CHANNEL: return 2;
    default: return 1;
    }
}

CDP_API CDP__COLD cdp_status cdp_hook_create(const cdp_hook_desc *desc, cdp_hook *out) {
    cdp__hook *h;
    const cdp_os *os;
    cdp_status st;
    if (!desc || !out) return cdp__fail(CDP_ERR_INVALID, "cdp_hook_create: desc or out is NULL");
    memset(out, 0, sizeof *out);
    st = cdp__hook_check(desc);
    if (st != CDP_OK) return st;
    os = desc->os ? desc->os : cdp_os_default();
    h = (cdp__hook *)cdp__alloc_zero(os, sizeof *h);
    if (!h) return cdp__fail_nomem("a hook", sizeof *h);
    h->os = os;
    cdp__hook_defaults(h, desc);
    out->self = h;
    out->stage = cdp__hook_stage;
    out->save = cdp__hook_save;
    out->load = cdp__hook_load;
    out->error_norm = cdp__hook_error_norm;
    out->destroy = cdp__hook_drop;
    out->operations = cdp__hook_operations(desc);
    out->keeps_layout = cdp__hook_is_powersgd(desc->kind) || desc->kind == CDP_HOOK_TOPK
        || (desc->inner && desc->inner->keeps_layout);
    return CDP_OK;
}
#endif /* CDP_NO_HOOKS */

/* ---- >>ddp/averager: periodic averaging of parameters ---------------------------------------- */

/* Knows: when to average, and with which ranks. Promises: every rank averages at the same steps. */

#ifndef CDP_NO_AVERAGER

/* The group in which parameters are averaged at this step; NULL: no averaging. */
CDP__PRIVATE cdp_group *cdp__averager_group(const cdp_averager *a, uint64_t since) {
    cdp_group *group = NULL, *all = cdp_ddp_group(a->ddp);
    uint64_t longest = 0;
    uint32_t i;
    if (!a->level_count) return since % cdp__def(a->period, 1) == 0 ? all : NULL;
    for (i = 0; i < a->level_count; ++i) {
        const cdp_average_level *l = &a->levels[i];
        if (!l->period || since % l->period || l->period < longest) continue;
        longest = l->period;
        group = l->group ? l->group : all;
    }
    return group;
}

CDP_API cdp_status cdp_averager_step(cdp_averager *a) {
    cdp_status st = CDP_OK;
    cdp_group *group;
    cdp_work last;
    uint32_t i;
    if (!a || !a->ddp || (a->level_count && !a->levels))
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_averager_step needs an averager with a ddp, and levels where level_count says so");
    if (a->step++ < a->warmup) return CDP_OK;
    group = cdp__averager_group(a, a->step - 1 - a->warmup);
    memset(&last, 0, sizeof last);
    for (i = 0; group && i < cdp_ddp_param_count(a->ddp) && st == CDP_OK; ++i) {
        const cdp_param *p = cdp_ddp_param(a->ddp, i);
        st = cdp__ddp_divide_data(a->ddp, p->dtype, p->data, p->count, (cdp_real)cdp_size(group));
        if (st == CDP_OK)
            st = cdp_allreduce_async(
                group, NULL, p->data, p->count, p->dtype, CDP_REDUCE_SUM, &last);
    }
    return st == CDP_OK ? cdp_work_wait(last) : st;
}
#endif /* CDP_NO_AVERAGER */

/* ---- >>ddp/zero: each parameter has its optimizer state on one rank -------------------------- */

/* Knows: which rank owns which parameter. Promises: owners depend on element counts alone. */

#ifndef CDP_NO_ZERO

/* Finds the largest count among parameters without an owner; false: every parameter has one. */
CDP__PRIVATE bool cdp__zero_largest(
    const uint64_t *counts, uint32_t n, const uint32_t *owner, uint64_t *largest) {
    bool found = false;
    uint32_t i;
    for (i = 0; i < n; ++i) {
        if (owner[i] != UINT32_MAX || (found && counts[i] <= *largest)) continue;
        *largest = counts[i];
        found = true;
    }
    return found;
}

CDP__PRIVATE uint32_t cdp__zero_least(const uint64_t *totals, uint32_t world) {
    uint32_t least = 0, r;
    for (r = 1; r < world; ++r)
        if (totals[r] < totals[least]) least = r;
    return least;
}

/* Makes one pass over the parameters per distinct count, of which a model has few. */
CDP_API CDP__COLD void cdp_zero_partition(
    const uint64_t *counts, uint32_t n, uint32_t world, uint64_t *totals, uint32_t *owner) {
    uint64_t largest = 0;
    uint32_t i;
    for (i = 0; i < n; ++i)
        owner[i] = UINT32_MAX;
    while (cdp__zero_largest(counts, n, owner, &largest))
        for (i = 0; i < n; ++i) {
            if (owner[i] != UINT32_MAX || counts[i] != largest) continue;
            owner[i] = cdp__zero_least(totals, world);
            totals[owner[i]] += largest;
        }
}

/* The gradient of a parameter, where the caller reads it; NULL: the parameter is sparse. */
CDP__PRIVATE const void *cdp__zero_grad(cdp_ddp *d, uint32_t i) {
    const cdp_param *p = cdp_ddp_param(d, i);
    if (p->sparse) return NULL;
    return p->grad ? p->grad : cdp_ddp_grad(d, i);
}

CDP_API cdp_status cdp_zero_step(cdp_ddp *d, const uint32_t *owner,
    void (*update)(void *user, uint32_t index, const cdp_param *param, const void *grad),
    void *user) {
    const uint32_t n = cdp_ddp_param_count(d);
    cdp_group *group = cdp_ddp_group(d);
    cdp_work last = {NULL, 0};
    cdp_status st = CDP_OK;
    uint32_t i, r;
    if (!d || !owner || !update)
        return cdp__fail(
            CDP_ERR_INVALID, "cdp_zero_step needs a ddp, owners and an update function");
    st = cdp__ddp_between(d, "cdp_zero_step");
    if (st != CDP_OK) return st;
    for (i = 0; i < n; ++i)
        if (owner[i] >= cdp_size(group))
            return cdp__fail(CDP_ERR_INVALID,
                "cdp_zero_step: parameter %u belongs to rank %u, which does not exist", i,
                owner[i]);
    for (i = 0; i < n; ++i)
        if (owner[i] == cdp_rank(group)) update(user, i, cdp_ddp_param(d, i), cdp__zero_grad(d, i));
    for (r = 0; r < cdp_size(group); ++r)
        for (i = 0; i < n && st == CDP_OK; ++i) {
            const cdp_param *p = cdp_ddp_param(d, i);
            if (owner[i] == r && p->count)
                st = cdp_broadcast_async(group, p->data, p->count, p->dtype, r, &last);
        }
    return st == CDP_OK ? cdp_work_wait(last) : st;
}
#endif /* CDP_NO_ZERO */

/* ---- >>ddp/sampler: which samples a rank trains on ------------------------------------------- */

/* Knows: PyTorch's random permutation. Promises: the order of PyTorch's DistributedSampler. */

#ifndef CDP_NO_SAMPLER

/* MT19937 (Matsumoto and Nishimura 1998), because PyTorch draws the order of samples with it. */
typedef struct cdp__mt {
    uint32_t state[624], at;
} cdp__mt;

CDP__PRIVATE void cdp__mt_seed(cdp__mt *m, uint32_t seed) {
    uint32_t i;
    m->state[0] = seed;
    for (i = 1; i < 624; ++i)
        m->state[i] = 1812433253u * (m->state[i - 1] ^ m->state[i - 1] >> 30) + i;
    m->at = 624;
}

CDP__PRIVATE uint32_t cdp__mt_next(cdp__mt *m) {
    uint32_t i, y;
    if (m->at == 624) {
        for (i = 0; i < 624; ++i) {
            y = (m->state[i] & 0x80000000u) | (m->state[(i + 1) % 624] & 0x7fffffffu);
            m->state[i] = m->state[(i + 397) % 624] ^ y >> 1 ^ (y & 1 ? 0x9908b0dfu : 0);
        }
        m->at = 0;
    }
    y = m->state[m->at++];
    y ^= y >> 11;
    y ^= y << 7 & 0x9d2c5680u;
    y ^= y << 15 & 0xefc60000u;
    return y ^ y >> 18;
}

CDP_API uint64_t cdp_sampler_count(const cdp_sampler *s) {
    uint64_t rest;
    if (!s || !s->ranks || s->consumed >= s->size) return 0;
    rest = s->size - s->consumed;
    return s->drop_last ? rest / s->ranks : (rest + s->ranks - 1) / s->ranks;
}

/* Writes a random permutation of 0 .. n - 1 to `order`. */
CDP__PRIVATE void cdp__sampler_shuffle(uint32_t *order, uint64_t n, uint32_t seed) {
    uint64_t i;
    cdp__mt m;
    cdp__mt_seed(&m, seed);
    for (i = 0; i < n; ++i)
        order[i] = (uint32_t)i;
    for (i = 0; i + 1 < n; ++i) {
        const uint64_t j = i + cdp__mt_next(&m) % (n - i);
        const uint32_t t = order[i];
        order[i] = order[j];
        order[j] = t;
    }
}

CDP_API cdp_status cdp_sampler_fill(const cdp_sampler *s, uint64_t *indices) {
    const uint64_t count = cdp_sampler_count(s);
    const cdp_os *os;
    uint32_t *order = NULL;
    uint64_t i, at;
    if (!s || !indices || !s->size || !s->ranks || s->rank >= s->ranks || s->size >> 32)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_sampler_fill needs a size from 1 to 2^32 - 1, a rank below ranks, and memory "
            "for the indices");
    os = s->os ? s->os : cdp_os_default();
    if (s->shuffle) {
        order = (uint32_t *)cdp__alloc(os, s->size * sizeof *order);
        if (!order) return cdp__fail_nomem("an order of samples", s->size * sizeof *order);
        cdp__sampler_shuffle(order, s->size, (uint32_t)(s->seed + s->epoch));
    }
    for (i = 0; i < count; ++i) {
        /* beyond the end, the list starts over */
        at = (s->consumed + s->rank + i * s->ranks) % s->size;
        indices[i] = order ? order[at] : at;
    }
    cdp__free(os, order);
    return CDP_OK;
}
#endif /* CDP_NO_SAMPLER */

#endif /* CDP_IMPL_INCLUDED */

#ifdef CDP_NAMES_0_1
/* Public names of version 0.1, kept for one version: the type cdp_reduce_op was called
   cdp_reduce, and the call cdp_reduce was called cdp_reduce_to. Members of structs have no old
   names; CHANGELOG.md lists them. At the end of the file, because the macro would rename the
   call above. */
#undef cdp_reduce
#define cdp_reduce cdp_reduce_op
#endif

/*  This software is available under two licenses; choose whichever you prefer.

    ALTERNATIVE A - MIT No Attribution (MIT-0)

    Permission is hereby granted, free of charge, to any person obtaining a copy of this
    software and associated documentation files (the "Software"), to deal in the Software
    without restriction, including without limitation the rights to use, copy, modify, merge,
    publish, distribute, sublicense, and/or sell copies of the Software, and to permit persons
    to whom the Software is furnished to do so.

    THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED,
    INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR
    PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE
    FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR
    OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER
    DEALINGS IN THE SOFTWARE.

    ALTERNATIVE B - Public domain (Unlicense, www.unlicense.org)

    This is free and unencumbered software released into the public domain. Anyone is free to
    copy, modify, publish, use, compile, sell, or distribute this software, either in source
    code form or as a compiled binary, for any purpose, commercial or non-commercial, and by any
    means. In jurisdictions that recognize copyright laws, the author or authors of this
    software dedicate any and all copyright interest in the software to the public domain. We
    make this dedication for the benefit of the public at large and to the detriment of our
    heirs and successors. We intend this dedication to be an overt act of relinquishment in
    perpetuity of all present and future rights to this software under copyright law. The
    software is provided "as is", without warranty of any kind. */
