/*  cdp_rpc.h - remote calls and remote references for C - v0.3.0 - MIT-0 or Unlicense

    WHAT IT IS
        Functions that other ranks call, and values that live on one rank and are used from all:
        what torch.distributed.rpc does, for parameter servers, actors and drivers in C. Each rank
        registers functions by name. A call runs at most once, ends by its deadline, and says
        whether the function ran. A remote reference keeps a value alive on its owner until no rank
        has a reference any more; a rank that dies releases what it held, and everything that waits
        for it ends with an error that names it. The other ranks go on.

    DO THIS
        #define CDP_IMPLEMENTATION      in exactly one C or C++ file, before
        #include "cdp_tcp.h"            or another way to connect ranks, and
        #include "cdp_rpc.h"            which needs cdp.h alone
        Install: cp cdp.h cdp_store.h cdp_tcp.h cdp_rpc.h your/program/; there is nothing to build.

    QUICK START
        #define CDP_IMPLEMENTATION
        #include "cdp_tcp.h"
        #include "cdp_rpc.h"
        #include <stdio.h>
        static void twice(void *user, cdp_rpc_request *request) {
            double x = 2 * *(const double *)request->data;
            cdp_iov iov = { &x, sizeof x };
            cdp_args results = { .iov = &iov, .iov_count = 1 };
            (void)user;
            cdp_rpc_reply(request, &results);
        }
        int main(void) {
            cdp_rpc_function functions[] = { { .name = "twice", .func = twice } };
            cdp_rpc_desc desc = { .functions = functions, .function_count = 1 };
            double x = 21;
            cdp_iov iov = { &x, sizeof x };
            static cdp_call call;
            cdp_rpc *rpc;
            if (cdp_init_from_env(NULL, &desc.group) != CDP_OK) return cdp_print_error(stderr);
            if (cdp_rpc_create(&desc, &rpc) != CDP_OK) return cdp_print_error(stderr);
            cdp_call_desc what = { .to = (cdp_rank(desc.group) + 1) % cdp_size(desc.group),
                .function = cdp_rpc_id("twice"),
                .args = { .iov = &iov, .iov_count = 1 } };
            if (cdp_rpc_call(rpc, &what, &call) != CDP_OK) return cdp_print_error(stderr);
            printf("rank %u: %g\n", cdp_rank(desc.group), *(const double *)call.data);
            cdp_call_free(&call);
            if (cdp_rpc_shutdown(rpc, 0) != CDP_OK) return cdp_print_error(stderr);
            cdp_rpc_destroy(rpc);
            cdp_group_destroy(desc.group);
            return 0;
        }
        gcc -O2 twice.c -o twice -pthread -lm        cdprun -n 4 ./twice

    CONTENTS
        Each part is marked >>folder/name and comes from src/folder/name.h. `grep '>>'` lists the
        parts in their order, which is that of the #include lines of src/cdp_rpc.h. A part uses
        what comes before it, never what comes after it. Names in _api hold what programs call.

    API BY TASK
        I want to...                                       call
        let other ranks call my functions                  cdp_rpc_create, .functions
        call one and wait                                  cdp_rpc_call
        call several at once                               cdp_rpc_start, cdp_call_wait_all, _any
        call one function on many ranks, or on all         cdp_rpc_call_many, cdp_rpc_start_many
        add up, or else combine, their results             cdp_call_reduce_many
        be told when a call has ended                      .done of cdp_call_desc
        run calls of one value one after the other         .in_order of cdp_call_desc
        start an operation of the group after a call       cdp_call_work
        send something and forget it                       .one_way
        give up                                            cdp_call_cancel, .timeout_ms
        answer later, or many callers at once              CDP_RPC_LATER, then cdp_rpc_reply
        report that a function failed                      cdp_rpc_fail
        make a value on another rank                       cdp_rpc_remote
        share a value of this rank                         cdp_rref_create, as argument or result
        call a function with such a value                  .on of cdp_call_desc
        copy it to this rank                               cdp_rref_to_here, cdp_rref_fetch
        use it on its own rank                             cdp_rref_local, cdp_rref_unpin
        only serve                                         cdp_rpc_shutdown(rpc, 0): it serves
                                                           until all ranks have called it, however
                                                           long they work; or cdp_rpc_serve
        end well although ranks have died                  .survivors, then cdp_rpc_alive
        serve in the loop of a game, without threads       cdp_rpc_poll
        find references that were not dropped              .leaked, cdp_rpc_stats_of
        see what waits for whom                            cdp_rpc_describe
        send described arrays                              .tensors of cdp_args
        record calls for a backward pass                   .ctx of cdp_call_desc, .backward of
                                                           cdp_rpc_function, cdp_ctx_op
        compute gradients over all ranks                   cdp_ctx_backward, cdp_ctx_grad
        train a table of which few rows are used           .grad_rows of cdp_backward
        send or return much without a copy                 .release, cdp_rpc_reply_value
        get a result in memory of the program              .into of cdp_call
        see when the last calls left, ran and ended        cdp_rpc_records
        update parameters on their ranks                   cdp_dist_optim_step
        by a rule of the program                           CDP_OPTIM_OWN

    COMING FROM torch.distributed.rpc
        init_rpc(name, rank, world_size)       cdp_rpc_create, collective over a group
        rpc_sync, rpc_async, remote            cdp_rpc_call, cdp_rpc_start, cdp_rpc_remote
        fut.wait(), fut.then(cb)               cdp_call_wait, .done or cdp_call_work with
                                               cdp_work_then; wait_all: cdp_call_wait_all
        @functions.async_execution             CDP_RPC_LATER and cdp_rpc_reply
        rref.to_here(), rref.local_value()     cdp_rref_to_here, cdp_rref_local
        rref.rpc_sync().method(x)              cdp_rpc_call with .on = rref
        rref.remote().method(x)                cdp_rpc_remote with .on = rref
        rref.confirmed_by_owner()              cdp_rref_confirmed
        rpc_timeout, _set_rpc_timeout          .timeout_ms of cdp_rpc_desc and cdp_call_desc
        shutdown(graceful=True / False)        cdp_rpc_shutdown / cdp_rpc_destroy
        get_worker_info                        cdp_rpc_rank_of, cdp_rpc_name_of
        _rref_context_get_debug_info           cdp_rpc_stats_of, cdp_rpc_describe
        Differences: functions are registered, and nothing else can be called; a call that was
        given up is cancelled on its rank, too; deadlines travel to nested calls; a reference is
        confirmed before its function runs, not afterwards; dead ranks release their references,
        and with .survivors the others shut down well.
        Backward functions are the program's; dist_autograd.backward and DistributedOptimizer:
        dist_autograd.context()                cdp_ctx_begin, cdp_ctx_end, .ctx of cdp_call_desc
        dist_autograd.backward(id, roots)      cdp_ctx_backward: ends also where a value is unused
        dist_autograd.get_gradients(id)        cdp_ctx_grad
        nn.Embedding(sparse=True)              .grad_rows of cdp_backward, cdp_ctx_grad_rows
        DistributedOptimizer, opt.step(id)     cdp_dist_optim_create, cdp_dist_optim_step, with
                                               .param of the values that it may write to
        functional_optim_map, an own class     CDP_OPTIM_OWN
        profiler around a call                 cdp_rpc_records, on both ranks
        What is not here, and why: joining and leaving (a group has fixed ranks; make another one);
        targets by name in a call (cdp_rpc_rank_of() once is faster); waits inside `done` (it runs
        where messages arrive); futures that travel (reply later, or return a reference); references
        in pickles and one-way calls (nobody would know when they end). retain_graph: what
        cdp_ctx_save() keeps is freed when the context ends, so a second pass needs nothing. The
        fast mode of a pass, which expects every value to be used, ends late where one is not. The
        reverse of one call without a context: a registered function does that. Values that are
        encoded when they are fetched: ask by a function. A context for to_here(): a call of a
        function that returns the value is recorded, a copy is not. Received memory that is wiped:
        the links would keep copies.

    CONFIGURATION
        CDP_RPC_IMPLEMENTATION implements this header and cdp.h, whose private parts it uses, in
        the same file; no other file must implement cdp.h then. The macros of cdp.h hold here, too:
        CDP_API, CDP_STATIC, CDP_ASSERT, CDP_NO_STDIO, CDP_NO_THREADS.

    THREADS
        Every function may be called by any thread unless it says otherwise. INLINE functions,
        `done`, `destroy` and `lost` are callbacks: they run one at a time, on whichever thread lets
        communication advance (the progress thread of the group, a thread that waits, cdp_poll()),
        and must not wait. Other functions run in worker threads. A call that a function starts is
        one level above the call that runs the function; one outside functions has level 0. A thread
        that waits inside a function runs functions of higher levels meanwhile, and calls of each
        level have room of their own: so calls of functions that call back do not starve (tested
        with all limits at 1, 2 and without). What the program makes wait may wait in a circle,
        which ends by deadlines: functions with max_running that wait for calls themselves (what
        their thread runs meanwhile may call them), in_order of calls that functions start, no_help,
        replies that wait for other calls. The text of a call that was late names the limit.
        Without workers every thread that waits runs functions.
        One of these can then delay the wait by the
        time that it computes or sleeps itself; but the calls that it starts (unless they are
        detached), and what else it waits for, end at the latest 50 ms after the call that this
        thread waits for, with TIMEOUT, or PENDING where a wait has that. Not cut are waits for
        works, and cdp_call_wait() for a detached call or one that another thread started. So a
        wait with less time left than a second, and than a quarter of what a function has, leaves
        functions that wait, also functions that have not run yet, to later waits, but not for
        longer than that, nor those whose values are asked for meanwhile. With CDP_NO_THREADS, or
        with no_thread of the group, everything runs in waits and in cdp_rpc_poll(), INLINE
        functions and callbacks also in cdp_poll(): a program that must not wait starts its calls
        with cdp_rpc_start() and `done`, and calls cdp_rpc_poll() in each turn of its loop. In a
        child of fork(), every function for an rpc of its parent is INVALID, or does nothing, and
        the parent's is as it was (not noticed with CDP_NO_THREADS and on Windows): a child makes
        groups and an rpc of its own. So is every function for an rpc that was destroyed; a reply to
        a request that went with it is STATE.

    MEMORY
        From the os of the group. Arguments and results are copied in the call that takes them, so
        the caller's memory is free again when it returns, unless .release is set. Bodies of more
        than 64 KiB stay with their sender until the receiver has room (max_queue_bytes). At most
        max_calls calls to one rank, with max_call_bytes of arguments, are under way, and a rank
        serves at most its part of max_queue for each other one: more wait at the caller. Records
        are kept and used again, and so is the memory of messages of more than 64 KiB: at most twice
        max_message_bytes that nothing uses.

    ERRORS
        See cdp_rpc_start(). `ran` of cdp_call says whether the function ran: NO is certain, YES is
        certain, UNKNOWN means that the request left and no answer came. A peer that sends what no
        peer of this version sends is given up: it is lost to this rank, and this rank to it.

    ORDER
        Calls from one rank to another arrive in the order of the calls, unless their arguments are
        longer than 64 KiB, hold references that are not confirmed yet, or run on a value that is
        not ready. INLINE functions start in the order of arrival, those with max_running 1 in that
        order for each rank that calls, but a call that a function starts may pass less deep ones;
        others in any order. Ranks whose calls wait for a thread are served in turn. Calls with
        in_order run one after the other: each leaves when the one before has been answered.

    LIMITS
        65535 ranks | 1024 rpcs in one process at once | 16 references in one message | names: 127
        bytes | texts of failures: 400 bytes | host memory only | all others are fields of
        cdp_rpc_desc

    License: MIT-0 or Unlicense, as you like; see the end of cdp.h.                            */
#if defined(CDP_RPC_IMPLEMENTATION) && !defined(CDP_CORE_IMPLEMENTATION)
#define CDP_CORE_IMPLEMENTATION
#endif
#include "cdp.h"

#ifndef CDP_RPC_INCLUDED
#define CDP_RPC_INCLUDED

#define CDP_RPC_VERSION 300 /* major * 10000 + minor * 100 + patch */
#if CDP_RPC_VERSION != CDP_VERSION
#error "cdp_rpc.h and cdp.h are of different versions: copy both from the same release"
#endif

#if defined(CDP_NO_CHANNELS) || defined(CDP_NO_CHAINS) || defined(CDP_NO_GROUPS)
#error "cdp_rpc.h needs channels, chains and groups: do not define CDP_NO_CHANNELS and the like"
#endif

#ifdef __cplusplus
extern "C" {
#endif

#include "rpc/worker_api.h"
#include "rpc/calls_api.h"
#include "rpc/many_api.h"
#include "rpc/references_api.h"
#include "rpc/handler_api.h"
#include "rpc/gradients_api.h"
#include "rpc/optimizer_api.h"

#ifdef __cplusplus
} /* extern "C" */
#endif
#include "rpc/cxx_api.h"

#endif /* CDP_RPC_INCLUDED */

#if (defined(CDP_IMPLEMENTATION) || defined(CDP_RPC_IMPLEMENTATION)) \
    && !defined(CDP_RPC_IMPL_INCLUDED)
#define CDP_RPC_IMPL_INCLUDED
#undef CDP__HERE
#define CDP__HERE CDP__FILE_RPC

#include "rpc/alive.h"
#include "rpc/table.h"
#include "rpc/forks.h"
#include "rpc/waves.h"
#include "rpc/levels.h"
#include "rpc/roll.h"
#include "rpc/packets.h"
#include "rpc/state.h"
#include "rpc/pools.h"
#include "rpc/send.h"
#include "rpc/roll_call.h"
#include "rpc/contexts.h"
#include "rpc/calls.h"
#include "rpc/sums.h"
#include "rpc/passes.h"
#include "rpc/requests.h"
#include "rpc/intake.h"
#include "rpc/waits.h"
#include "rpc/life.h"
#include "rpc/shutdown.h"
#include "rpc/facts.h"
#include "rpc/records.h"
#include "rpc/start.h"
#include "rpc/call_waits.h"
#include "rpc/many.h"
#include "rpc/references.h"
#include "rpc/replies.h"
#include "rpc/gradients.h"
#include "rpc/update_rules.h"
#include "rpc/optimizer.h"
#include "rpc/create.h"

#endif /* CDP_RPC_IMPL_INCLUDED */
