/*  cdp.h - data-parallel training for C: groups, collectives, DDP - v0.3.0 - MIT-0 or Unlicense

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
        reduce over the ranks up to this one   cdp_scan, cdp_exscan (up to the one before)
        send something to one rank             cdp_send, cdp_recv, cdp_sendrecv, cdp_batch
        allocate nothing later on              cdp_group_reserve
        take messages from any sender          cdp_recv_any, cdp_probe
        receive into columns of an array       cdp_batch, .row and .step of cdp_transfer
        build a protocol of my own             cdp_channel_open, cdp_channel_send
        exchange bytes of any length           cdp_allgather_bytes, cdp_gather_bytes,
                                               cdp_broadcast_bytes, cdp_scatter_bytes
        chain, cancel                          cdp_work_then, cdp_start_after, cdp_work_cancel
        work with some of the ranks            cdp_group_new, cdp_group_split; with settings of its
                                               own: cdp_group_new_with; which: cdp_group_ranks
        have memory that peers read in place   cdp_group_alloc
        go on computing meanwhile              the same with _async, then cdp_work_wait
        send parts of different lengths        cdp_start with in_counts, out_counts
        have parts in separate arrays          cdp_collective_lists
        wait for everybody                     cdp_barrier, cdp_monitored_barrier
        train                                  cdp_ddp_create; in each step
                                               cdp_ddp_backward_begin, cdp_ddp_ready for each
                                               parameter, cdp_ddp_backward_end
        accumulate over several passes         cdp_ddp_no_sync
        keep gradients where they are          .grad_arena; gradients that move: cdp_ddp_ready_from
        tie weights of several layers          .uses of cdp_param; sent after the last use
        go on when ranks come or go            cdp_ddp_rebind, .consumed of cdp_sampler;
                                               cdp_elastic.h
        leave parameters out of a pass         .find_unused (and cdp_ddp_unused), .static_graph
        keep running means equal               .buffers and cdp_ddp_forward_begin
        train with unequal amounts of data     .join and cdp_ddp_join
        send fewer bytes                       cdp_hook_create, cdp_ddp_set_hook; own: cdp_hook
        average parameters now and then        cdp_averager_step
        train over a slow network              cdp_outer_create; cdp_outer_step after each step;
                                               CDP_HOOK_QUANTIZE_4
        save, restore an outer's state         cdp_outer_gather, cdp_outer_scatter
        update parameters, shard their state   cdp_optimizer_create; cdp_optimizer_step
        save, restore an optimizer's state     cdp_optimizer_gather, cdp_optimizer_scatter
        limit the norm of gradients            cdp_ddp_clip
        normalise over the batch of all ranks  cdp_batch_norm_forward, cdp_batch_norm_backward
        divide the data among ranks            cdp_sampler_fill
        evaluate on every sample once          .exact of cdp_sampler
        draw samples by weight, by length      .weights, .lengths of cdp_sampler
        read batches ahead, files of tokens    cdp_loader_create, cdp_tokens_create
        train embeddings sparsely              cdp_param.sparse, cdp_ddp_ready_rows, cdp_ddp_rows
        check that parameters are equal        cdp_ddp_verify
        draw one step                          cdp_ddp_trace
        say more or less in the log            logger of a desc; cdp_group_set_log_level;
                                               .log_steps of cdp_ddp_desc
        have the caller's place in errors      CDP_AT(cdp_allreduce(...))
        know what moves the data of a group    cdp_group_backend_name, cdp_describe
        watch a job, find a slow rank          cdp_report_create; cdp_report_step in each step
        draw one step of all ranks             cdp_report_svg
        see how much was hidden                cdp_ddp_stats_of, cdp_ddp_bucket
        run without threads                    .no_thread = true and cdp_poll, or CDP_NO_THREADS
        run without a system                   CDP_NO_OS, a cdp_os and a cdp_transport
        wait with a poll or select of my own   CDP_OS_POLL and cdp_os_use_poll
        use little memory                      .stage_bytes, .operations, .waits, .records
        spend so much of a frame at most       cdp_poll(group, budget_us), cdp_work_poll
        create a ddp, end a pass in frames     cdp_ddp_create_start, cdp_ddp_backward_end_start,
                                               cdp_ddp_poll
        leave without blocking                 cdp_group_leave
        stop everybody                         cdp_group_abort
        know what went wrong                   cdp_last_error, cdp_print_error
        see what a group did or waits for      cdp_group_records, cdp_group_dump, .dump_path
        see every setting and link             cdp_describe
        know which build a program has         cdp_version, cdp_build
        get the same bits for every size       .reproducible
        get them on any number of ranks        cdp_leaves_create; cdp_leaves_begin, cdp_leaves_end
                                               for each micro-batch
        choose algorithms                      .choices
        tell the launcher why a rank failed    cdp_error_record_from_env

    COMING FROM PyTorch's DistributedDataParallel
        init_process_group("gloo")             cdp_init_from_env(NULL, &world)
        DDP(model, process_group=g)            cdp_ddp_create; one cdp_param each, in the order of
                                               model.parameters()
        bucket_cap_mb=N                        .bucket_bytes = N << 20; the first bucket, too
        bucket_cap_mb_list                     .bucket_list
        delay_all_reduce_named_params          .delayed of cdp_param
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
        Join([ddp, other])                     cdp_ddp_join_all
        register_comm_hook(state, hook)        cdp_hook_create or your cdp_hook; cdp_ddp_set_hook
        future.then(f)                         the next stage of the hook
        torch.save(state)                      save and load of cdp_ddp_hook(ddp); each rank its own
        Embedding(sparse=True)                 cdp_param.sparse, cdp_ddp_ready_rows, cdp_ddp_rows
        clip_grad_norm_(p, m)                  cdp_ddp_clip(ddp, m, &norm); on a mesh
                                               cdp_grads_norm, cdp_grads_scale
        ZeroRedundancyOptimizer                cdp_optimizer_create with .deferred, then
                                               cdp_optimizer_step; overlap_with_ddp: without
        _apply_optimizer_in_backward           cdp_optimizer_create with .whole
        consolidate_state_dict                 cdp_optimizer_gather, one parameter at a time
        SyncBatchNorm                          cdp_batch_norm: its statistics and sums
        PeriodicModelAverager                  cdp_averager; hierarchical: its .levels
        DistributedSampler, set_epoch          cdp_sampler_fill, .epoch
        DataLoader(sampler=s)                  cdp_loader_create, cdp_loader_next
        StatefulDataLoader                     cdp_loader_state, for any number of ranks
        WeightedRandomSampler(w, n, False)     .weights, .draws = n, .once (its draws are others)
        ddp._get_ddp_logging_data()            cdp_ddp_trace(ddp, CDP_TRACE_TEXT, ...)
        The mean is the sum divided by the number of ranks. PyTorch divides first; .predivide set
        to that number gives its bits. f16 is divided first by default, because sums of f16 soon
        exceed its range; .accumulate = CDP_DTYPE_F32 adds in f32 and rounds once.

    CONFIGURATION (macros; those marked * must be equal in all files that include this one, or
    they do not link: see >>base/built_with_api)
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
        CDP_OS_POLL            off      cdp_os_use_poll: a cdp_os that waits with one function of
                                        the program's own
        CDP_ERROR_TEXT *       512      bytes of cdp_error.text, at least 64; longer texts are cut
        CDP_ONLY_F32 *         off      no arithmetic of other floats: reductions and parameters of
                                        f64, f16 and bf16 are UNSUPPORTED, factors and divisors
                                        (cdp_real) are float; no hooks, no cdp_ddp_clip
        CDP_NO_STDIO           off      no stdio: cdp_print_error and the logger write nothing
        CDP_NO_FILES           off      the default os has no files: no cdp_error_record, no file
                                        store; cdp_group_dump needs an os of the program's own
        CDP_NO_THREADS         off      no pthreads: communication advances in calls only; the last
                                        error is one per program
        CDP_NO_DDP *           off      no data parallel training, and none of the next seven
        CDP_NO_HOOKS *         off      no built-in hooks (hooks of your own work)
        CDP_NO_AVERAGER *      off      no cdp_averager_step, cdp_outer
        CDP_NO_TRACE *         off      no cdp_ddp_trace, cdp_report
        CDP_NO_SPARSE *        off      no cdp_ddp_ready_rows, cdp_ddp_rows; a parameter that is
                                        sparse: UNSUPPORTED
        CDP_NO_JOIN *          off      no cdp_ddp_join(_all); a desc's join: UNSUPPORTED
        CDP_NO_CLIP *          off      no cdp_ddp_clip
        CDP_NO_VERIFY *        off      no cdp_ddp_verify
        CDP_NO_TRAINING *      off      no cdp_convert, cdp_scaler_update, cdp_optim_update,
                                        cdp_optimizer_create, cdp_batch_norm, cdp_leaves,
                                        cdp_outer, cdp_report,
                                        cdp_ddp_ready_from; no .grad_arena, .uses
        CDP_NO_SAMPLER *       off      no cdp_sampler_fill, cdp_sampler_part, cdp_loader
        CDP_NO_MESSAGES *      off      no cdp_send and the other calls of >>group/messages_api, no
                                        cdp_monitored_barrier, no channels
        CDP_NO_CHANNELS *      off      no cdp_channel_open and the other calls of channels
        CDP_NO_CHAINS *        off      no cdp_work_then, cdp_start_after, cdp_work_cancel
        CDP_NO_GROUPS *        off      no cdp_group_new, _new_with, _split, _ranks
        CDP_NO_FRAMES *        off      no cdp_work_poll, cdp_init_start, cdp_ddp_poll and
                                        cdp_group_leave; a budget ends only waits: what moves goes
                                        on
        CDP_NO_OBJECTS *       off      no cdp_allgather_bytes and the others of >>group/objects, no
                                        cdp_collective_lists
        CDP_NO_HUB *           off      no cdp_hub_create: no ranks in one process
        CDP_FEW_ALGORITHMS     off      one or two algorithms for each collective, none for several
                                        hosts; all ranks must be built so, else: MISMATCH
        CDP_NO_BACKEND *       off      no cdp_group_set_backend, cdp_group_clear_backend,
                                        cdp_group_compare, cdp_group_watch: all memory is that of
                                        the host, and there is no cdp_nccl.h
        CDP_FEW_DTYPES         off      arithmetic of f32, f64, f16, bf16, i32, i64, u8 and bool
                                        only, and none in a wider dtype: others, AVG of all but f32,
                                        f64 and i64, and `accumulate` are UNSUPPORTED; no
                                        cdp_nccl.h, no cdp_dtensor.h
        CDP_NO_SCAN *          off      no cdp_scan, cdp_exscan
        CDP_NO_REPRODUCIBLE    off      no reductions in a fixed order, and means of 64-bit integers
                                        whose sum overflows are wrong: a desc with reproducible is
                                        UNSUPPORTED
        CDP_NO_RECORDER *      off      no cdp_group_records, cdp_group_dump, cdp_describe; the
                                        desc's dump_path is ignored
        CDP_NO_SHARED_MEMORY   off      the default os has no memory that processes share; see also
                                        cdp_tcp.h. With CDP_NO_HUB, messages take the stream only:
                                        `slots` and `remote` of a cdp_transport are not used, which
                                        must be so on all ranks that have such a transport
        CDP_NO_LOG_STRINGS     off      log messages are left out, and texts of errors: a rank's
                                        error says "cdp.h:1234", the file and line that found it;
                                        that of several ranks, the name of the status, or what
                                        the rank that saw it has written. All other members are
                                        as ever, and ranks of other builds have the whole text

    WITHOUT A SYSTEM (CDP_NO_OS)
        Each desc needs the program's own cdp_os: cdp_group_create without one is INVALID, other
        creations run out of memory. Of the C library only memcpy, strlen and their like are used
        (cdp_tcp.h also getenv, but with CDP_NO_ENV). `int` has 32 bits or more. What needs what:
        groups, collectives, DDP, messages     alloc, release, now_ns, random of the os; send, recv,
                                               wait, wake, destroy of a cdp_transport
        a hub polled by one thread             alloc, release, now_ns, random
        cdp_store.h, cdp_tcp.h                 the same, sleep_until, and the group net, of which
                                               cdp_os_use_poll makes the functions watch_...
        file stores, cdp_group_dump            the group files
        Calls must not overlap; interrupts must not call the library. What sizes its memory:
        stage_bytes, window_bytes, operations, waits, records and max_pending of the group's
        desc, CDP_ERROR_TEXT, CDP_ONLY_F32, CDP_FEW_DTYPES. The firmware in
        examples/18_firmware, two ranks on a Cortex-M3, takes 16 KB of memory, 2.6 KB of
        stack included, and 65 KB of code; `make firmware` measures it.

    THREADS
        Any thread may use a group. All ranks must start the operations of a group in one order, so
        it is best to start them from one thread. A group from cdp_group_create or cdp_init has one
        progress thread, which serves the groups made from it, too; it sleeps unless work is in
        flight that no caller waits for. A waiting caller advances communication itself. A cdp_ddp
        belongs to one thread at a time. Functions of cdp_work_then() and callbacks of channels run
        on the thread that advances communication, one at a time.
        cdp_group_abort: any thread, any time. cdp_group_destroy: when no other thread uses the
        group any more. A child of fork() must not use the groups of its parent, nor what was
        made of them: such calls are STATE.

    MEMORY
        All memory comes from os->alloc, except 0.8 KB while the default os looks up a name,
        and what the C library takes for itself (threads, names, lists of interfaces). The
        first group: about 0.17 MB and 0.7 KB per rank. Each group made from it: 10.3 KB
        and 0.2 KB per rank. Unexpected data: at most window_bytes per channel and rank. A hub: 9
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
#if (defined(CDP_IMPLEMENTATION) || defined(CDP_CORE_IMPLEMENTATION)) && defined(__STRICT_ANSI__) \
    && !defined(_DEFAULT_SOURCE)
/* with -std=c11 the C library hides sockets and clocks unless it is told before its first header */
#define _DEFAULT_SOURCE 1
#endif
#ifndef CDP_INCLUDED
#define CDP_INCLUDED

#include "base/version.h"
#include "base/config.h"
#ifdef __cplusplus
extern "C" {
#endif
#include "base/built_with_api.h"
#include "base/build_api.h"
#include "base/status_api.h"
#include "base/types_api.h"
#include "base/error_api.h"
#include "base/log_api.h"
#include "os/os_api.h"
#include "store/interface_api.h"
#include "message/transport_api.h"
#include "group/hub_api.h"
#include "group/group_api.h"
#include "group/collectives_api.h"
#include "group/works_api.h"
#include "group/messages_api.h"
#include "channel/channel_api.h"
#include "group/backend_api.h"
#include "group/objects_api.h"
#include "group/lists_api.h"
#include "ddp/ddp_api.h"
#include "ddp/norm_api.h"
#include "train/precision_api.h"
#include "train/optimizers_api.h"
#include "ddp/hooks_api.h"
#include "train/sampler_api.h"
#include "ddp/optimizer_api.h"
#include "train/loader_api.h"
#include "train/batch_norm_api.h"
#include "train/leaves_api.h"
#include "train/outer_api.h"
#include "train/report_api.h"

#ifdef __cplusplus
} /* extern "C" */
#endif
#include "group/cxx_api.h"

#endif /* CDP_INCLUDED */

#if (defined(CDP_IMPLEMENTATION) || defined(CDP_CORE_IMPLEMENTATION)           \
    || defined(CDP_DTENSOR_IMPLEMENTATION) || defined(CDP_FSDP_IMPLEMENTATION) \
    || defined(CDP_PIPELINE_IMPLEMENTATION))                                   \
    && !defined(CDP__SHARED_IMPL_INCLUDED)
#define CDP__SHARED_IMPL_INCLUDED

#include "base/compiler.h"
#include "base/ended.h"
#include "base/helpers.h"
#include "base/kept_error.h"
#include "base/status.h"
#include "os/whole.h"
#include "text/utf8.h"
#include "text/format.h"
#include "text/json_write.h"
#include "text/json_real.h"
#include "text/svg.h"
#include "text/timeline.h"
#include "dtype/dtype.h"
#include "dtype/reduce.h"
#include "dtype/convert.h"
#include "dtype/slices.h"
#include "dtype/numbers.h"
#include "dtype/norms.h"
#include "group/vote.h"
#include "group/clocks.h"

#endif /* CDP__SHARED_IMPL_INCLUDED */

#if (defined(CDP_IMPLEMENTATION) || defined(CDP_CORE_IMPLEMENTATION)) && !defined(CDP_IMPL_INCLUDED)
#define CDP_IMPL_INCLUDED

#include "base/built_with.h"
#include "base/build.h"
#include "base/basics.h"
#include "os/words.h"
#include "base/text.h"
#include "os/addresses.h"
#include "os/posix.h"
#include "os/windows.h"
#include "os/windows_shared.h"
#include "os/poll.h"
#include "os/watch.h"
#include "os/threads.h"
#include "os/windows_threads.h"
#include "os/files.h"
#include "os/linux.h"
#include "os/child.h"
#include "os/libraries.h"
#include "os/file_text.h"
#include "os/loop.h"
#include "base/bytes.h"
#include "base/hash.h"
#include "dtype/names.h"
#include "collective/kinds.h"
#include "collective/rounds.h"
#include "collective/rounds_scan.h"
#include "collective/rounds_fixed.h"
#include "collective/rounds_by_size.h"
#include "collective/hosts.h"
#include "collective/select.h"
#include "message/header.h"
#include "failure/records.h"
#include "failure/chains.h"
#include "failure/blame.h"
#include "message/fabric.h"
#include "message/deferred.h"
#include "message/stream.h"
#include "message/port.h"
#include "message/receive.h"
#include "message/send.h"
#include "message/transfer.h"
#include "collective/executor.h"
#include "group/state.h"
#include "group/ranks.h"
#include "group/log.h"
#include "group/records.h"
#include "failure/waits.h"
#include "failure/report.h"
#include "failure/spread.h"
#include "group/flows.h"
#include "group/running.h"
#include "group/hub.h"
#include "group/deferred.h"
#include "group/abort.h"
#include "group/progress.h"
#include "group/world.h"
#include "group/create.h"
#include "group/subgroups.h"
#include "group/group_calls.h"
#include "group/device.h"
#include "group/requests.h"
#include "group/queue.h"
#include "group/work_calls.h"
#include "group/collective_calls.h"
#include "group/message_calls.h"
#include "group/monitored_barrier.h"
#include "channel/channel.h"
#include "channel/bodies.h"
#include "channel/progress.h"
#include "channel/life.h"
#include "group/objects.h"
#include "group/lists.h"
#include "group/recorder.h"
#include "ddp/group_access.h"
#include "train/precision.h"
#include "train/optimizer_defaults.h"
#include "train/optimizers.h"
#include "ddp/bucket_plan.h"
#include "ddp/state.h"
#include "ddp/log.h"
#include "ddp/buckets.h"
#include "ddp/broadcast.h"
#include "ddp/compare.h"
#include "ddp/overlap.h"
#include "ddp/create.h"
#include "ddp/stats.h"
#include "ddp/bucket_launch.h"
#include "ddp/deliver.h"
#include "ddp/rows.h"
#include "ddp/backward.h"
#include "ddp/join.h"
#include "ddp/norm.h"
#include "ddp/clip.h"
#include "ddp/set_hook.h"
#include "ddp/trace.h"
#include "ddp/hooks.h"
#include "ddp/hooks_quantize.h"
#include "ddp/hooks_topk.h"
#include "ddp/hooks_sign.h"
#include "ddp/hooks_powersgd.h"
#include "ddp/hooks_state.h"
#include "ddp/averager.h"
#include "ddp/optimizer.h"
#include "train/sampler.h"
#include "train/loader.h"
#include "train/tokens.h"
#include "train/batch_norm.h"
#include "train/leaves_tree.h"
#include "train/leaves.h"
#include "train/outer.h"
#include "train/outer_state.h"
#include "train/stragglers.h"
#include "train/report.h"

#endif /* CDP_IMPL_INCLUDED */

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
