/* SPDX-License-Identifier: MIT-0 OR Unlicense
   Both texts are at the end of cdp.h. */
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

/* Joined from src/cdp_rpc.h and what it includes: change that, then `make headers`. */
#if defined(CDP_RPC_IMPLEMENTATION) && !defined(CDP_CORE_IMPLEMENTATION)
#define CDP_CORE_IMPLEMENTATION
#endif
#if !defined(CDP_INCLUDED) \
    || defined(CDP_IMPLEMENTATION) || defined(CDP_CORE_IMPLEMENTATION) \
    || defined(CDP_RPC_IMPLEMENTATION)
#include "cdp.h"
#endif

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

/* ---- >>rpc/worker_api: a rank that calls and is called --------------------------------------- */

/* This rank's end: it calls functions of other ranks, serves its own, and owns values. */
typedef struct cdp_rpc cdp_rpc;
/* One call that runs here, see >>rpc/handler_api. */
typedef struct cdp_rpc_request cdp_rpc_request;
/* One forward and backward computation over several ranks, see >>rpc/gradients_api. */
typedef struct cdp_ctx cdp_ctx;
typedef struct cdp_backward cdp_backward;

/* A remote reference: names a value that lives on one rank, its owner. A plain value, free to
   copy; cdp_rref_keep() and cdp_rref_drop() alone count handles. {0} is none. */
typedef struct cdp_rref {
    cdp_rpc *rpc;
    uint64_t slot;
} cdp_rref;

/* A described array: dense, row by row. The receiver gets it checked (dtype, dims, the product of
   shape is what came), aligned to 8 bytes. */
typedef struct cdp_tensor {
    void *data;
    cdp_dtype dtype;
    uint32_t dims;     /* 0 to 8; 0: one element */
    uint64_t shape[8]; /* elements */
    uint64_t value;    /* its number in a context, see >>rpc/gradients_api; 0: a constant */
} cdp_tensor;

/* What travels, as arguments or as results. It is read before the call that takes it returns, and
   never kept; of `plain` of a cdp_value a copy is, see there. */
typedef struct cdp_args {
    const cdp_iov *iov; /* bytes as the program likes them: gathered in this order */
    uint32_t iov_count;
    const cdp_rref *rrefs; /* references; the caller keeps its handles */
    uint32_t rref_count;
    const cdp_tensor *tensors; /* described arrays, at most 16 */
    uint32_t tensor_count;
} cdp_args;

/* What an owner holds. */
typedef struct cdp_value {
    void *data;    /* the program's object */
    uint32_t type; /* the program's number; cdp_rref_local() compares it */
    /* Steps of cdp_dist_optim_step() may write to it, of every rank that has a reference, see
       >>rpc/optimizer_api (default: they are refused) */
    bool param;
    /* what cdp_rref_to_here() copies. The lists are copied and need not stay, and the value has a
       handle of each reference until `destroy` has returned. The memory that iov and tensors point
       to is the object's and stays valid until `destroy`. It is read at any time; if functions
       change it meanwhile, ask for the value by a function. */
    cdp_args plain;
    /* Called once, when no rank has a reference any more; may be NULL. It runs where callbacks
       run, see THREADS. */
    void (*destroy)(void *user, void *data);
    void *user;
} cdp_value;

/* The function is run by whichever thread lets communication advance, in the order of arrival,
   and must not wait nor take long (microseconds). The fastest way. */
#define CDP_RPC_INLINE 1u
/* The function may return without a reply and keep the request, see cdp_rpc_reply(). */
#define CDP_RPC_LATER 2u
/* It does not wait until references among its arguments are confirmed. */
#define CDP_RPC_EARLY 4u

typedef struct cdp_rpc_function {
    /* required: letters, digits and _ . : - alone, at most 127 bytes; copied */
    const char *name;
    void (*func)(void *user, cdp_rpc_request *request); /* required */
    void *user;
    uint32_t flags; /* CDP_RPC_INLINE, CDP_RPC_LATER, CDP_RPC_EARLY (default: none) */
    /* how many at once (default: no limit); 1: in the order of arrival, for each rank that calls,
       where a call that a function starts may pass others. If such a function itself waits for
       calls, these may wait for it in a circle until their deadline */
    uint32_t max_running;
    uint64_t max_bytes; /* of arguments, tensors included (default: max_message_bytes) */
    uint32_t max_tensors, max_rrefs; /* among its arguments (default: 16 each) */
    const uint32_t *allow;           /* ranks that may call it (default: all); copied */
    uint32_t allow_count;
    /* Gradients of the tensors among its arguments, from those of its results: a call inside a
       context is then recorded, see cdp_backward. */
    cdp_status (*backward)(void *user, cdp_backward *b);
} cdp_rpc_function;

/* What stands for a function on the wire and in cdp_call_desc: a hash of its name. Any thread. */
CDP_API uint32_t cdp_rpc_id(const char *name);

typedef struct cdp_rpc_desc {
    cdp_group *group; /* required: its ranks take part, by their numbers; it must outlive the rpc */
    uint32_t number;  /* of this rpc, for texts: the same on all its ranks */
    const char *name; /* of this rank, unique (default: "rankN"); as names of functions; copied */
    const cdp_rpc_function *functions; /* copied; may differ between ranks */
    uint32_t function_count;
    /* threads that run functions (default: 4; with no_thread of the group, with CDP_NO_THREADS or
       without threads in its os: none) */
    uint32_t workers;
    /* no such threads: functions run in waits, in cdp_rpc_serve() and in cdp_rpc_shutdown() */
    bool no_workers;
    /* a thread that waits inside a function does not run others meanwhile: functions of ranks that
       call each other can then hold all workers until their calls end with TIMEOUT */
    bool no_help;
    /* a call to a rank that has max_calls under way already, or max_call_bytes, is BUSY (default:
       it waits; inside callbacks it is always BUSY) */
    bool fail_when_full;
    uint32_t timeout_ms; /* of calls that give none (default: 60000; CDP_NO_TIMEOUT) */
    /* under way from this rank to one other: so many that start outside functions, and as many from
       inside, where one of each depth may always leave (default: 256) */
    uint32_t max_calls;
    /* of the arguments of those; a call that finds more waits, or is BUSY, as for max_calls, but
       not if none is under way (default: 64 MiB) */
    uint64_t max_call_bytes;
    uint32_t max_queue; /* waiting or running here; each rank may use its equal part, as for
                            max_calls (default: 4096) */
    /* so many calls may be above a function that waits for calls: one that is deeper starts them,
       but does not wait, BUSY; 1: only functions that no function has called wait (default: 255,
       which is the most) */
    uint32_t max_depth;
    uint64_t max_message_bytes; /* of one message, both ways (default: 64 MiB) */
    /* memory for long arguments that wait here, and as much for gradients; one message of each
       depth of calls from inside functions always fits (default: 256 MiB) */
    uint64_t max_queue_bytes;
    uint32_t max_rrefs;    /* entries of the table of references; a fork, and a child that is being
                           shared, needs one, too (default: 65536) */
    uint32_t max_contexts; /* that this rank takes part in at once (default: 256) */
    /* ranks that are lost do not keep cdp_rpc_shutdown() from OK, see there: the same on all
       ranks (default: it ends with PEER_LOST) */
    bool survivors;
    /* Called once for each rank whose link ended before this rank shut down: a callback. */
    void (*lost)(void *user, uint32_t rank, const cdp_error *why);
    /* Called by cdp_rpc_shutdown() for each reference that the program still has. */
    void (*leaked)(void *user, uint64_t rid, uint32_t owner, const char *label);
    void *user;
} cdp_rpc_desc;

/* Collective over the group: names and limits are exchanged. Errors, none of which leaves anything
   behind: INVALID (desc; two functions with one id; survivors with a small window_bytes), NOMEM,
   BUSY (1024 rpcs in this process), IO (no thread), MISMATCH (two ranks with one name; other
   versions, numbers, survivors or max_message_bytes: on all ranks), or the failure of the
   exchange. */
CDP_MUST_CHECK CDP_API cdp_status cdp_rpc_create(const cdp_rpc_desc *desc, cdp_rpc **out);

/* Collective. Serves until no rank has a call under way, refuses new ones, drops references that
   the program still has (each is reported to `leaked`), and waits until no rank has a reference any
   more. Then the rpc serves nothing; cdp_rpc_destroy() frees it.
   timeout_ms counts from the last call that came to this rank or ended; where a rank does not come,
   250 ms more. 0: ranks that have not called this function may work as long as they are alive; when
   all have, timeout_ms of the desc counts. The earliest deadline of a rank is that of all.
   Errors: STATE (references were left: everything else is as after OK; or it was shut down before,
   or the call is made inside a function); TIMEOUT (every rank that takes part names the same rank
   with the request that was not answered, or the rank that did not come); PEER_LOST (a rank died,
   or left without a shutdown). After those two: cdp_rpc_destroy().
   With `survivors` of the desc, OK means that all ranks that are alive have come to the end, and
   cdp_rpc_alive() then says of every rank the same on each of them: whoever was lost before the
   end, or left without a shutdown, is not alive, and its references were released. The ranks agree:
   one that another has lost is counted out by all that reach each other, also where it is alive and
   cut off from that one rank alone. It ends with PEER_LOST, which names a rank that has counted it
   out.
   Two ranks that have lost each other may both be counted out. Where a network falls into parts,
   each part ends for itself, and counts out the others; so may ranks that miss the last word of one
   that has ended with OK, if its link breaks under that. */
CDP_MUST_CHECK CDP_API cdp_status cdp_rpc_shutdown(cdp_rpc *rpc, uint32_t timeout_ms);

/* Local, at once: own calls end with STATE, other ranks lose this one for this rpc, values are
   destroyed. Waits for functions that run in worker threads; cdp_rpc_cancelled() tells them. A
   request that was kept stays valid until it is replied to, but has no references, value and
   context any more. Not while another thread uses the rpc. Inside a callback or a function nothing
   happens, and the last error is STATE. Calls and references that the program still holds stay
   valid: cdp_call_test(), the waits, cdp_call_cancel() and cdp_call_free() use the memory of the
   call alone, functions of references return STATE. NULL is allowed. */
CDP_API void cdp_rpc_destroy(cdp_rpc *rpc);

/* Runs functions in this thread until this rank shuts down (OK) or the time is over (PENDING). */
CDP_MUST_CHECK CDP_API cdp_status cdp_rpc_serve(cdp_rpc *rpc, uint32_t timeout_ms);

/* For programs that have a loop of their own, such as one frame after the other, and no workers:
   cdp_poll(), then functions that wait for a thread, one after the other in this thread, as long as
   budget_us is not over; at least one, if any waits. One that waits or computes for long takes its
   own time. Errors: INVALID; STATE (inside a callback or an INLINE function). */
CDP_MUST_CHECK CDP_API cdp_status cdp_rpc_poll(cdp_rpc *rpc, uint32_t budget_us);

/* The rank of that name, or -1; the name of that rank, or NULL. Any thread. */
CDP_API int32_t cdp_rpc_rank_of(const cdp_rpc *rpc, const char *name);
CDP_API const char *cdp_rpc_name_of(const cdp_rpc *rpc, uint32_t rank);
/* False once the link to that rank has ended. After a shutdown with `survivors` it says what the
   ranks have agreed on. */
CDP_API bool cdp_rpc_alive(cdp_rpc *rpc, uint32_t rank);

typedef struct cdp_rpc_stats {
    uint64_t calls_out; /* started here and not ended on the wire */
    uint64_t calls_in;  /* came here and not replied to */
    uint64_t queued;    /* of calls_in: those that wait for a thread, references or a value */
    uint64_t owners;    /* values of this rank */
    uint64_t users;     /* references to values of others */
    uint64_t pending;   /* of those: not confirmed yet */
    uint64_t forks;     /* references of others to values of this rank */
    uint64_t holds;     /* references on their way to others */
    uint64_t refused;   /* requests that did not run, since the rpc was created */
    uint64_t contexts;  /* of gradients, that this rank takes part in */
    uint64_t kept;      /* of calls_in: their function has returned without a reply (LATER) */
    uint64_t parked;    /* of queued: waiting for the value that they are to run on */
    uint64_t passes;    /* backward passes that are under way on this rank */
    uint64_t workers, workers_idle;
    uint64_t call_bytes;  /* of the arguments of calls_out */
    uint64_t queue_bytes; /* memory for long arguments that are here, see max_queue_bytes */
    uint64_t bytes_out,
        bytes_in;     /* of messages with other ranks, since the rpc was created: bodies,
                                     and a head of 64 bytes each */
    uint64_t one_way; /* one-way calls that were started here, since then */
    uint64_t late; /* since then: calls of this rank that ended with TIMEOUT, and requests that did
                      not run since their time was over */
    /* Nanoseconds that calls of this rank took, of the last ones that cdp_rpc_records() has: half
       of them at most p50, 99 of 100 at most p99; 0: there are none. */
    uint64_t p50_ns, p99_ns, worst_ns;
} cdp_rpc_stats;
/* How much there is now. All zero for NULL. Any thread. */
CDP_API cdp_rpc_stats cdp_rpc_stats_of(cdp_rpc *rpc);

/* Everything that cdp_rpc_stats counts, one by one, as text for a reader: limits, lost ranks, calls
   and the ranks that they wait for, requests and what they wait for, values, references. Writes at
   most `room` bytes, a zero at the end among them; `text` may be NULL. Returns the length of the
   whole text without the zero; 0 if rpc is NULL. Any thread. */
CDP_API uint64_t cdp_rpc_describe(cdp_rpc *rpc, char *text, uint64_t room);

/* ---- >>rpc/calls_api: calls of functions on other ranks -------------------------------------- */

/* Did the function run? UNKNOWN: the request left this rank, and no answer came. */
typedef enum cdp_ran {
    CDP_RAN_UNKNOWN = 0,
    CDP_RAN_NO,
    CDP_RAN_YES
} cdp_ran;

/* A call, in the caller's memory, which must not move until the call has ended; afterwards the
   library does not touch it. Results belong to it until cdp_call_free(). */
typedef struct cdp_call {
    cdp_status status; /* CDP_PENDING, then the same for ever */
    cdp_ran ran;
    int32_t code;     /* with CDP_ERR_REMOTE: that of cdp_rpc_fail() */
    const void *data; /* the result, aligned to 8 bytes */
    uint64_t bytes;
    cdp_rref *rrefs; /* one handle each, the caller's: cdp_call_free() drops them, so keep those
                        that are to stay */
    uint32_t rref_count;
    uint32_t tensor_count;
    cdp_tensor *tensors; /* in memory of the call */
    cdp_error error;     /* why it failed */
    /* Set before the start, where the contents of the result go: memory of the program, aligned to
       8 bytes, that the program does not use until the call has ended; cdp_call_free() does not
       free it. Tensors come first, each filled up to a multiple of 8 bytes. A result that is
       longer: the call fails with INVALID, and `ran` is YES (default: memory of the library). */
    cdp_iov into;
    uint64_t priv[10];
} cdp_call;

typedef struct cdp_call_desc {
    uint32_t to;         /* rank; any, this one too */
    cdp_rref on;         /* run at the owner of this value instead, which the function finds in
                    request->on; the call waits there, in no thread, until the value is ready */
    uint32_t function;   /* cdp_rpc_id() of its name */
    uint32_t timeout_ms; /* (default: that of cdp_rpc_desc; CDP_NO_TIMEOUT) */
    cdp_args args;
    /* no result: the call is done when it is on its way, and can be used again; no references */
    bool one_way;
    /* It starts after earlier in_order calls of this rank have been answered: those on the same
       value, or, without `on`, those of the same function on the same rank. It waits here, and
       its time counts. Not for cdp_rpc_remote(). */
    bool in_order;
    bool detached;     /* inside a function: may outlast the deadline of the call that runs it */
    cdp_ctx *ctx;      /* the call is a part of this computation (default: none) */
    const char *label; /* of the reference that cdp_rpc_remote() makes; copied (default: none) */
    /* Called once when the call has ended; waits return after it has returned. It may start
       calls, but not wait. It may give its call to cdp_call_free(), whose memory is the program's
       then: nobody may wait for that call. Where callbacks run, see THREADS. */
    void (*done)(void *user, cdp_call *call);
    void *user;
    /* If this is set, the memory of `args` is not copied where it need not be, and is the program's
       again when this function is called: once, after a start that was OK, perhaps within it, and
       perhaps after the call has ended. A copy is avoided for more than 64 KiB in one piece,
       without tensors, references, `on` and `ctx`, to another rank; a call that waits for its turn
       (in_order) is copied, too. It runs where callbacks run, see THREADS. */
    void (*release)(void *user);
    void *release_user;
} cdp_call_desc;

/* Starts a call. At most once: nothing is ever sent again. Errors (nothing was started): INVALID,
   STATE (shut down; the reference was dropped; the call has a result), NOMEM, BUSY (max_calls, see
   fail_when_full; the owner of a reference among the arguments had no room for it), PEER_LOST (the
   owner of a reference among the arguments is lost).
   Later, in call->status: TIMEOUT (the text names the limit that the call waited for, here or on
   its rank, as far as that rank could report it in time), PEER_LOST, REMOTE (the function failed),
   ABORTED (cancelled), UNSUPPORTED (no such function there, or not for this rank), INVALID (its
   limits), BUSY (limits of that rank), STATE (one of the two shut down; the value is gone); on a
   value that was not made: what its maker failed with, `ran` is NO and the text names the maker.
   Any thread. */
CDP_MUST_CHECK CDP_API cdp_status cdp_rpc_start(
    cdp_rpc *rpc, const cdp_call_desc *desc, cdp_call *call);
/* Starts it and waits. Returns its status. STATE, and nothing was started, inside an INLINE
   function or a callback: cdp_rpc_start() and `done` there; BUSY, likewise, inside a function that
   is deeper than max_depth. */
CDP_MUST_CHECK CDP_API cdp_status cdp_rpc_call(
    cdp_rpc *rpc, const cdp_call_desc *desc, cdp_call *call);
/* Runs a function whose result stays on its rank; *out refers to the result at once, with one
   handle. With `on`, that rank is the owner of the value that the function finds in request->on,
   and the call waits there, in no thread, until that value is ready; it stays until the function
   has replied. `done`, `one_way` and `in_order` must not be set. If the function fails, so do all
   uses of the value; if the value of `on` was not made, with what its maker failed with.
   Errors as for cdp_rpc_start(), BUSY (max_rrefs), and TIMEOUT (there was no room for the call in
   its time: see max_calls; nothing was started). */
CDP_MUST_CHECK CDP_API cdp_status cdp_rpc_remote(
    cdp_rpc *rpc, const cdp_call_desc *desc, cdp_rref *out);

/* Waits until the call has ended; returns its status, the same each time, and sets
   cdp_last_error(). STATE inside an INLINE function or a callback: the call goes on. Inside a
   function that is deeper than max_depth the call ends with BUSY. */
CDP_MUST_CHECK CDP_API cdp_status cdp_call_wait(cdp_call *call);
/* PENDING after timeout_ms; the call goes on. PENDING earlier where a wait below ends, see
   THREADS. */
CDP_MUST_CHECK CDP_API cdp_status cdp_call_wait_for(cdp_call *call, uint32_t timeout_ms);
/* Its status, or PENDING, at once. */
CDP_MUST_CHECK CDP_API cdp_status cdp_call_test(cdp_call *call);
/* Waits until all have ended. OK, or the first failure in the order of the list. */
CDP_MUST_CHECK CDP_API cdp_status cdp_call_wait_all(cdp_call *const *calls, uint32_t count);
/* Waits until one has ended; *which is its index. Returns its status, or PENDING after
   timeout_ms. */
CDP_MUST_CHECK CDP_API cdp_status cdp_call_wait_any(
    cdp_call *const *calls, uint32_t count, uint32_t timeout_ms, uint32_t *which);
/* Ends it with ABORTED. Not if it has ended: STATE. A function that runs already sees
   cdp_rpc_cancelled(), and its result is dropped. */
CDP_API cdp_status cdp_call_cancel(cdp_call *call);
/* The call as a work, for cdp_work_then(), cdp_start_after() and cdp_work_test() of this world,
   until cdp_rpc_destroy(). It ends when the call has: OK, or ABORTED, whatever the call has failed
   with, which stands in `error` of the call. Cancel the call, not the work. Waits for works run no
   functions. Errors: INVALID (not started), NOMEM, STATE (max_pending of the group's desc; it has
   one already). Any thread, but not beside another function for the same call. */
CDP_MUST_CHECK CDP_API cdp_status cdp_call_work(cdp_call *call, cdp_work *out);
/* Frees the result and drops its references; the call can be used again. Not while it is under
   way: nothing happens then. NULL is allowed. Also after cdp_rpc_destroy(), as long as the os of
   the group exists. */
CDP_API void cdp_call_free(cdp_call *call);

/* What is remembered of one call. Times are of os->now_ns of this rank; 0: not yet, or that happens
   on the other rank. */
typedef struct cdp_rpc_record {
    uint64_t call;       /* its number on the rank that calls: the same in its record there */
    uint32_t from, to;   /* ranks; both this one: a call to oneself */
    uint32_t function;   /* 0: a value was asked for */
    cdp_status status;   /* PENDING: under way; of a call in: what was answered */
    cdp_ran ran;         /* did the function run? */
    uint64_t start_ns;   /* it was started, or came here */
    uint64_t sent_ns;    /* it left this rank */
    uint64_t run_ns;     /* its function began */
    uint64_t replied_ns; /* its answer was given */
    uint64_t end_ns; /* it ended for its caller; of cdp_rpc_remote(): its function has replied */
} cdp_rpc_record;
/* The last calls from and to this rank, at most `max` and at most 256 of them, the oldest first.
   They are always recorded. Returns how many; 0 if rpc or out is NULL. Any thread. */
CDP_API uint32_t cdp_rpc_records(cdp_rpc *rpc, cdp_rpc_record *out, uint32_t max);

/* ---- >>rpc/many_api: calls of one function on many ranks ------------------------------------- */

/* Starts one call on each of `count` ranks: calls[i], of `count` that the program has, runs on
   ranks[i]; ranks NULL: on rank i, so cdp_size(group) as count means all, this rank among them. All
   are as cdp_rpc_start() makes them of the desc, with the same arguments; `to` is not used. Set
   calls[i].into, each its own part of one array, to have the results side by side.
   OK: every call ends, each with its own status. Their time begins now, for all of them. A rank
   that has no room for its call (max_calls) keeps no call of another rank: this function waits for
   room until the deadline, or ends that call with BUSY where a start would be BUSY. A call that
   could not be started (a start would have failed) ends with that, `ran` is NO, and the text names
   its rank; one on a rank that is lost ends with PEER_LOST.
   `done` is called once for each call, also of those that could not be started; `release` once,
   when no call uses the arguments any more.
   Errors (nothing was started, and neither `done` nor `release` is called): INVALID (desc; `on` is
   set; a rank that the group does not have), STATE (shut down; a call is under way or has a
   result), NOMEM. Any thread. */
CDP_MUST_CHECK CDP_API cdp_status cdp_rpc_start_many(cdp_rpc *rpc, const cdp_call_desc *desc,
    const uint32_t *ranks, uint32_t count, cdp_call *calls);
/* Starts them and waits until all have ended. OK, or the first failure in the order of the list;
   the last error names its rank. The results of the others are in their calls then. Errors as of
   cdp_rpc_start_many() and cdp_rpc_call(). */
CDP_MUST_CHECK CDP_API cdp_status cdp_rpc_call_many(cdp_rpc *rpc, const cdp_call_desc *desc,
    const uint32_t *ranks, uint32_t count, cdp_call *calls);
/* Waits until all have ended. OK, or the first failure in the order of the list. */
CDP_MUST_CHECK CDP_API cdp_status cdp_call_wait_many(cdp_call *calls, uint32_t count);
/* out[k] = the k-th elements of all results, combined: `count` elements of `dtype` at `out`, from
   calls that have ended. A result is the one tensor of its call, or else its bytes. The order of
   the calls alone decides the bits; means are rounded once. `out` is no memory of a result. Nothing
   is written after an error: the first call of the list that has failed (its status, and its error
   is the last one); STATE (one has not ended, or was freed), MISMATCH (a result of another dtype or
   length; the text names the call), INVALID (no calls; dtype; op), UNSUPPORTED (PREMUL_SUM; a build
   with CDP_NO_REPRODUCIBLE), NOMEM. Any thread. */
CDP_MUST_CHECK CDP_API cdp_status cdp_call_reduce_many(const cdp_call *calls, uint32_t call_count,
    cdp_dtype dtype, cdp_reduce_op op, void *out, uint64_t count);
/* cdp_call_free() of each. NULL is allowed. */
CDP_API void cdp_call_free_many(cdp_call *calls, uint32_t count);

/* ---- >>rpc/references_api: values that live on another rank ---------------------------------- */

/* This rank owns the value: one handle. `value` and `label` are copied. Errors: INVALID, NOMEM,
   BUSY (max_rrefs), STATE. */
CDP_MUST_CHECK CDP_API cdp_status cdp_rref_create(
    cdp_rpc *rpc, const cdp_value *value, const char *label, cdp_rref *out);
/* One handle more, or less: the last one gone, the reference is, too. {0}: nothing happens. Use
   of a reference that is gone is STATE. They never wait. Any thread. */
CDP_API void cdp_rref_keep(cdp_rref rref);
CDP_API void cdp_rref_drop(cdp_rref rref);
/* A copy of the value's `plain`, as the result of `call`; waits until the value is ready.
   Errors as for cdp_rpc_call(); what the function that was to make the value failed with. */
CDP_MUST_CHECK CDP_API cdp_status cdp_rref_to_here(
    cdp_rref rref, uint32_t timeout_ms, cdp_call *call);
/* The same, without waiting. */
CDP_MUST_CHECK CDP_API cdp_status cdp_rref_fetch(
    cdp_rref rref, uint32_t timeout_ms, cdp_call *call);
/* On the owner: the value itself, when it is ready, which stays until cdp_rref_unpin(). Errors:
   STATE (another rank owns it, the text names both), INVALID (type; 0 fits every one), TIMEOUT, or
   what the function that was to make it failed with. */
CDP_MUST_CHECK CDP_API cdp_status cdp_rref_local(
    cdp_rref rref, uint32_t type, uint32_t timeout_ms, cdp_value *out);
CDP_API void cdp_rref_unpin(cdp_rref rref);
/* OK: its owner knows this reference; PENDING: not yet, after timeout_ms (0: at once). PEER_LOST,
   BUSY: it cannot be used any more. */
CDP_MUST_CHECK CDP_API cdp_status cdp_rref_confirmed(cdp_rref rref, uint32_t timeout_ms);

typedef struct cdp_rref_info {
    uint64_t rid; /* the value: equal where it is the same one */
    uint64_t fid; /* this reference to it; 0 on the owner */
    uint32_t owner;
    uint32_t parent; /* the rank that it came from; the owner's own number: from there */
    uint32_t handles, holds, forks;
    bool is_owner;
    /* status of the value (on the owner) or of the reference (on other ranks). OK: it exists;
       PENDING: the value is being made, or the owner has not confirmed the reference yet; an error:
       it will never exist */
    cdp_status status;
    uint32_t type;     /* on the owner: of cdp_value */
    const char *label; /* valid as long as the reference; NULL: none */
} cdp_rref_info;
/* Errors: STATE (dropped). */
CDP_MUST_CHECK CDP_API cdp_status cdp_rref_info_of(cdp_rref rref, cdp_rref_info *out);

/* ---- >>rpc/handler_api: inside a function that is called ------------------------------------- */

/* What a function gets: to be read; valid until it is replied to. */
struct cdp_rpc_request {
    cdp_rpc *rpc;
    void *user;    /* of cdp_rpc_desc */
    uint32_t from; /* who calls */
    uint32_t function;
    uint64_t deadline_ns; /* of os->now_ns; UINT64_MAX: none */
    bool one_way, remote;
    const void *data; /* arguments, aligned to 8 bytes */
    uint64_t bytes;
    const cdp_rref *rrefs; /* dropped after the reply: cdp_rref_keep() what is to stay */
    uint32_t rref_count;
    const cdp_value *on; /* the value of cdp_call_desc.on, or NULL. Several functions may have it
                            at once: lock it, or set max_running */
    const cdp_tensor *tensors;
    uint32_t tensor_count;
    cdp_ctx *ctx; /* of the call, or NULL; valid until the reply */
    /* A reference to `on`, for example for cdp_ctx_param(): cdp_rref_keep() it if it is to stay
       after the reply. {0}: there is none. */
    cdp_rref on_rref;
};

/* Exactly one reply for each request; with CDP_RPC_LATER from any thread at any time. A function
   that returns without one replies nothing, unless it has CDP_RPC_LATER. `results` may be NULL.
   The request is gone afterwards, unless its function still runs. If the caller gave up: OK, and
   nothing is sent. Of cdp_rpc_remote(): the value is a copy of the results. Errors, after which
   the caller's call has failed, too: STATE (the second reply; a reference that was dropped),
   INVALID (too long), NOMEM. */
CDP_API cdp_status cdp_rpc_reply(cdp_rpc_request *request, const cdp_args *results);
/* Replies with a value. To cdp_rpc_remote(): the value stays on this rank. To another call: its
   plain bytes are sent, then it is destroyed; more than 64 KiB in one piece (one iov, no tensors
   and references) are not copied here, the caller reads them in place until `destroy` is called,
   fastest from memory of cdp_group_alloc(); without `destroy` they are copied. Errors: those of
   cdp_rpc_reply(), after which the value is the caller's. */
CDP_API cdp_status cdp_rpc_reply_value(cdp_rpc_request *request, const cdp_value *value);
/* The function failed: the caller gets CDP_ERR_REMOTE, `code` and this text (at most 400 bytes; no
   format). NULL: no text. */
CDP_API cdp_status cdp_rpc_fail(cdp_rpc_request *request, int32_t code, const char *text);
/* The caller gave up or died, its time is over, or the rpc is being destroyed. */
CDP_API bool cdp_rpc_cancelled(const cdp_rpc_request *request);

/* ---- >>rpc/gradients_api: backward passes over several ranks --------------------------------- */

/* The program computes gradients itself; a context records which values came from which calls, and
   in a backward pass gradients travel back over all ranks, also over ranks that were called by a
   called rank. A value is a number for a tensor that gradients may flow to: it is stored in `value`
   of a cdp_tensor that is an argument or a result of a call with .ctx, and the receiver gets the
   tensor with a number of its own rank in that member. Values are made by cdp_ctx_value() and
   cdp_ctx_param(), by cdp_ctx_op() for a step of the program, and by calls of functions that have
   `backward`, for their results. Numbers of one context mean nothing in another one.

   A pass never waits for a value that is not used, and a failure anywhere (a callback, a rank that
   is lost, the deadline) fails the context on all its ranks with the first cause: its gradients
   are refused from then on, begin another one. */

/* What a backward function gets and fills in. */
struct cdp_backward {
    cdp_rpc *rpc;
    void *rpc_user; /* user of cdp_rpc_desc */
    cdp_ctx *ctx;
    void *saved;                /* of cdp_ctx_save() */
    const cdp_tensor *grad_out; /* of each output; data NULL: none came */
    uint32_t out_count;
    /* of each input: set data, dtype, dims, shape; data NULL: none. It is read after the function
       has returned: use grad_out, saved memory, or cdp_backward_alloc(). */
    cdp_tensor *grad_in;
    uint32_t in_count;
    /* Of each input: NULL, or which rows of the value grad_in holds, shape[0] of them in any order:
       the gradient of an embedding is that of the rows that were looked up. The others are zero; a
       row that occurs twice is added. Read as grad_in is. Only where cdp_ctx_grad() is asked for
       the value, on this rank; all contributions to it are then rows. */
    const uint32_t **grad_rows;
    void *priv;
};
/* Memory for gradients, aligned to 8 bytes; freed when they have left. Only inside the backward
   function, in its thread. Errors: INVALID, NOMEM, and then *out is NULL. */
CDP_MUST_CHECK CDP_API cdp_status cdp_backward_alloc(
    cdp_backward *backward, uint64_t bytes, void **out);

/* Begins one; this rank is its origin. Local. Errors: INVALID, NOMEM, BUSY (max_contexts), STATE
   (shut down). Any thread. */
CDP_MUST_CHECK CDP_API cdp_status cdp_ctx_begin(cdp_rpc *rpc, cdp_ctx **out);
/* On the origin: ends it on all ranks, frees what it holds, and waits for their answers (0:
   timeout_ms of the desc). The context is gone afterwards, also after a failure. Calls of it
   should have ended. The loss of its origin ends a context, too. NULL: nothing happens. Errors:
   STATE (another rank is the origin; inside a callback; the context stays), TIMEOUT (the text
   names a rank that did not answer). cdp_rpc_destroy() ends the contexts that this rank has begun:
   after it all functions of such a context do nothing and are STATE. The process remembers the last
   256 of them. */
CDP_API cdp_status cdp_ctx_end(cdp_ctx *ctx, uint32_t timeout_ms);
/* The same number on all ranks. */
CDP_API uint64_t cdp_ctx_id(const cdp_ctx *ctx);

/* Makes a value, and stores its number in *value: an input whose gradient is asked for, or an
   output of cdp_ctx_op(). Errors of this call and the next three: INVALID (a value that this rank
   does not have in this context), NOMEM, STATE (the context has failed, or ended). */
CDP_MUST_CHECK CDP_API cdp_status cdp_ctx_value(cdp_ctx *ctx, uint64_t *value);
/* Stores the number of the value of a parameter that this rank owns: the same one in each call. */
CDP_MUST_CHECK CDP_API cdp_status cdp_ctx_param(cdp_ctx *ctx, cdp_rref param, uint64_t *value);

/* A step of the program: how gradients of its outputs become those of its inputs. */
typedef struct cdp_ctx_op_desc {
    const uint64_t *inputs; /* values of this rank; 0: a constant */
    uint32_t input_count;
    const uint64_t *outputs; /* of cdp_ctx_value(), each in one step only */
    uint32_t output_count;
    cdp_status (*backward)(void *user, cdp_backward *b); /* required */
    void *user;
    void *saved;                  /* what backward gets */
    void (*release)(void *saved); /* when the context ends (default: nothing); also on failure */
} cdp_ctx_op_desc;
/* Records it. Errors as for cdp_ctx_value(), and INVALID for what the desc lacks. */
CDP_MUST_CHECK CDP_API cdp_status cdp_ctx_op(cdp_ctx *ctx, const cdp_ctx_op_desc *desc);
/* In a function with `backward`, before the reply: what its backward gets, and values beside its
   arguments that gradients flow to (parameters): they are inputs after the tensors. Once for each
   request. STATE: there is no context, or no backward; then nothing is kept. */
CDP_MUST_CHECK CDP_API cdp_status cdp_ctx_save(cdp_rpc_request *request, void *saved,
    void (*release)(void *saved), const uint64_t *inputs, uint32_t input_count);

typedef struct cdp_backward_desc {
    const cdp_tensor *roots; /* values of this rank, with dtype and shape, at most 16; data is
                                not looked at, so results of calls will do */
    uint32_t root_count;
    const cdp_tensor *grads; /* the gradients to begin with, for each root (default: ones) */
    uint32_t timeout_ms;     /* (default: that of cdp_rpc_desc) */
} cdp_backward_desc;
/* One pass, from values of this rank through all ranks; returns when it is over everywhere. Any
   rank of the context; two at once fail it. Steps of this rank run in the thread that is in this
   call, those of other ranks where functions run. Passes add up. Contributions to a value are
   added in an order that does not depend on when they arrive. Errors: INVALID, STATE (the context
   has failed; a pass is under way; inside a callback), and the first cause: PEER_LOST, TIMEOUT,
   NOMEM, MISMATCH (gradients of one value with different shapes), REMOTE and others (what a
   backward function returned; the text names the rank). */
CDP_MUST_CHECK CDP_API cdp_status cdp_ctx_backward(cdp_ctx *ctx, const cdp_backward_desc *desc);
/* The gradient of a value of this rank that no step made; data NULL: it has none. Its memory is
   the context's, until it ends or the next pass. Errors: INVALID, STATE (a pass has failed). */
CDP_MUST_CHECK CDP_API cdp_status cdp_ctx_grad(cdp_ctx *ctx, uint64_t value, cdp_tensor *out);
/* Which rows of the value cdp_ctx_grad() gives, shape[0] of them, ascending, each once; NULL: all.
   Valid until the next pass, or the end of the context. */
CDP_API const uint32_t *cdp_ctx_grad_rows(cdp_ctx *ctx, uint64_t value);

/* ---- >>rpc/optimizer_api: updates where the parameters are ----------------------------------- */

/* Updates parameters where they are: one object on each owner, which keeps its state. A parameter
   is a value (cdp_rref_create) with `param` set whose `plain` is one tensor of F32 or F64 in memory
   of the program, which a step writes; the program should not use it meanwhile. Steps on one owner
   run one after the other. Parameters of F32 have the bits of cdp_optim_update(), in the kinds that
   it has. All else is computed in double and rounded to the parameter's dtype. */
typedef struct cdp_optim_desc {
    cdp_rpc *rpc;           /* required */
    cdp_optim_kind kind;    /* required */
    const cdp_rref *params; /* required, of any owners; read in the call */
    uint32_t param_count;
    double lr, momentum, dampening, beta1, beta2, alpha, rho, eps; /* (defaults: of the kind) */
    double weight_decay, lr_decay, initial;                        /* (default: 0) */
    bool nesterov; /* SGD; needs momentum and no dampening */
    bool amsgrad;  /* ADAM and ADAMW */
    bool centered; /* RMSPROP */
    bool maximize;
    uint32_t timeout_ms; /* of each of its calls (default: that of cdp_rpc_desc) */
    /* OWN, and required there: cdp_rpc_id() of a function that every owner has registered, best
       with max_running 1, so that steps run one after the other. A step calls it once on each
       owner for every 16 parameters: request->rrefs are those, request->ctx the context, whose
       gradients cdp_ctx_param() and cdp_ctx_grad() give, and request->data two doubles, lr and
       weight_decay (default: 0). It fails by cdp_rpc_fail(). Its state is the program's, and
       parameters may be values of any kind; whether owners have the function, the first step
       tells. */
    uint32_t own_function;
} cdp_optim_desc;

typedef struct cdp_dist_optim cdp_dist_optim;
/* Makes the objects on all owners and waits for them. One thread at a time uses it. Errors:
   INVALID, NOMEM, and those of cdp_rpc_call(), as of the two functions below; REMOTE: an owner
   refuses a parameter, the text says why. */
CDP_MUST_CHECK CDP_API cdp_status cdp_dist_optim_create(
    const cdp_optim_desc *desc, cdp_dist_optim **out);
/* One step with the gradients of a context, on all owners at once; waits for all. A parameter
   without a gradient stays as it is, and so do the other rows of one whose gradient is of some
   rows (see grad_rows; SGD, ADAGRAD and ADAM without weight_decay). After a failure, which names
   every owner that failed, the others have made their step. */
CDP_MUST_CHECK CDP_API cdp_status cdp_dist_optim_step(cdp_dist_optim *optim, cdp_ctx *ctx);
/* Changes settings from the next step on. A setting that is 0 stays as it was. */
CDP_MUST_CHECK CDP_API cdp_status cdp_dist_optim_set(
    cdp_dist_optim *optim, double lr, double weight_decay);
/* The objects end on their owners; parameters stay. NULL is allowed. */
CDP_API void cdp_dist_optim_destroy(cdp_dist_optim *optim);

#ifdef __cplusplus
} /* extern "C" */
#endif
/* ---- >>rpc/cxx_api: descs by reference in C++ ------------------------------------------------ */

#ifdef __cplusplus
extern "C++" { /* also where a program includes the header in extern "C" */
inline cdp_status cdp_rpc_create(const cdp_rpc_desc &desc, cdp_rpc **out) {
    return cdp_rpc_create(&desc, out);
}
inline cdp_status cdp_rpc_start(cdp_rpc *rpc, const cdp_call_desc &desc, cdp_call *call) {
    return cdp_rpc_start(rpc, &desc, call);
}
inline cdp_status cdp_rpc_call(cdp_rpc *rpc, const cdp_call_desc &desc, cdp_call *call) {
    return cdp_rpc_call(rpc, &desc, call);
}
inline cdp_status cdp_rpc_start_many(cdp_rpc *rpc, const cdp_call_desc &desc, const uint32_t *ranks,
    uint32_t count, cdp_call *calls) {
    return cdp_rpc_start_many(rpc, &desc, ranks, count, calls);
}
inline cdp_status cdp_rpc_call_many(cdp_rpc *rpc, const cdp_call_desc &desc, const uint32_t *ranks,
    uint32_t count, cdp_call *calls) {
    return cdp_rpc_call_many(rpc, &desc, ranks, count, calls);
}
inline cdp_status cdp_rpc_remote(cdp_rpc *rpc, const cdp_call_desc &desc, cdp_rref *out) {
    return cdp_rpc_remote(rpc, &desc, out);
}
inline cdp_status cdp_ctx_op(cdp_ctx *ctx, const cdp_ctx_op_desc &desc) {
    return cdp_ctx_op(ctx, &desc);
}
inline cdp_status cdp_ctx_backward(cdp_ctx *ctx, const cdp_backward_desc &desc) {
    return cdp_ctx_backward(ctx, &desc);
}
inline cdp_status cdp_dist_optim_create(const cdp_optim_desc &desc, cdp_dist_optim **out) {
    return cdp_dist_optim_create(&desc, out);
}
} /* extern "C++" */
#endif

#endif /* CDP_RPC_INCLUDED */

#if (defined(CDP_IMPLEMENTATION) || defined(CDP_RPC_IMPLEMENTATION)) \
    && !defined(CDP_RPC_IMPL_INCLUDED)
#define CDP_RPC_IMPL_INCLUDED
#undef CDP__HERE
#define CDP__HERE CDP__FILE_RPC

/* ---- >>rpc/alive: which rpcs of this process exist, and which contexts are gone with theirs -- */

/* Knows: addresses. Promises: a call, a reference or a context that the program still holds after
   cdp_rpc_destroy() is recognized without touching freed memory, from any thread, without a lock
   that a child of fork() could find taken. */

#define CDP__RPCS_MAX 1024u /* in one process at once: a power of two */

typedef struct cdp__rpcs {
    cdp_rpc *at[CDP__RPCS_MAX]; /* NULL: none */
    uint32_t created;           /* in this process so far */
} cdp__rpcs;

CDP__PRIVATE cdp__rpcs *cdp__rpcs_of_process(void) {
    static cdp__rpcs rpcs;
    return &rpcs;
}

/* Replaces `from` by `to` in the table. It is stored near the place that its address gives, so that
   most searches look at one entry. False: `from` is not there. */
CDP__PRIVATE bool cdp__rpcs_replace(const cdp_rpc *of, cdp_rpc *from, cdp_rpc *to) {
    cdp__rpcs *t = cdp__rpcs_of_process();
    const uint32_t first = (uint32_t)((uintptr_t)of >> 6);
    uint32_t i;
    for (i = 0; i < CDP__RPCS_MAX; ++i) {
        cdp_rpc **at = &t->at[(first + i) % CDP__RPCS_MAX];
        cdp_rpc *expected = from;
        if (cdp__atomic_load_ptr(at, CDP__ACQUIRE) != from) continue;
        if (cdp__atomic_cas_ptr(at, &expected, to, CDP__ACQ_REL, CDP__ACQUIRE)) return true;
    }
    return false;
}

/* False: there are too many. */
CDP__PRIVATE bool cdp__rpc_enlist(cdp_rpc *rpc) {
    return cdp__rpcs_replace(rpc, NULL, rpc);
}

CDP__PRIVATE void cdp__rpc_delist(cdp_rpc *rpc) {
    (void)cdp__rpcs_replace(rpc, rpc, NULL);
}

/* False: it was destroyed. */
CDP__PRIVATE bool cdp__rpc_exists(const cdp_rpc *rpc) {
    cdp__rpcs *t = cdp__rpcs_of_process();
    const uint32_t first = (uint32_t)((uintptr_t)rpc >> 6);
    uint32_t i;
    for (i = 0; i < CDP__RPCS_MAX; ++i)
        if (cdp__atomic_load_ptr(&t->at[(first + i) % CDP__RPCS_MAX], CDP__ACQUIRE) == rpc)
            return true;
    return false;
}

/* Where a table of references begins to count the uses of its slots: references of an rpc that was
   at the same address before do not fit its slots. */
CDP__PRIVATE uint32_t cdp__rpc_first_use(void) {
    return cdp__atomic_add_u32(&cdp__rpcs_of_process()->created, 1, CDP__RELAXED) * 0x9e3779b1u;
}

/* Contexts that the program had not ended when their rpc was destroyed: the last ones. */
#define CDP__CTX_ORPHANS 256u

typedef struct cdp__ctx_orphans {
    cdp_ctx *at[CDP__CTX_ORPHANS]; /* NULL: none */
    uint32_t count;                /* so many so far; each replaces the oldest one */
} cdp__ctx_orphans;

CDP__PRIVATE cdp__ctx_orphans *cdp__ctx_orphans_of_process(void) {
    static cdp__ctx_orphans orphans;
    return &orphans;
}

/* The rpc of a context is destroyed: its memory will be freed. */
CDP__PRIVATE void cdp__ctx_orphan(cdp_ctx *ctx) {
    cdp__ctx_orphans *t = cdp__ctx_orphans_of_process();
    const uint32_t count = cdp__atomic_add_u32(&t->count, 1, CDP__ACQ_REL);
    cdp_ctx **at = &t->at[count % CDP__CTX_ORPHANS];
    cdp_ctx *oldest = cdp__atomic_load_ptr(at, CDP__ACQUIRE);
    while (!cdp__atomic_cas_ptr(at, &oldest, ctx, CDP__ACQ_REL, CDP__ACQUIRE)) {
    }
}

/* True if this context is gone with its rpc. */
CDP__PRIVATE bool cdp__ctx_is_orphan(const cdp_ctx *ctx) {
    cdp__ctx_orphans *t = cdp__ctx_orphans_of_process();
    uint32_t i;
    if (!ctx || !cdp__atomic_load_u32(&t->count, CDP__ACQUIRE)) return false;
    for (i = 0; i < CDP__CTX_ORPHANS; ++i)
        if (cdp__atomic_load_ptr(&t->at[i], CDP__ACQUIRE) == ctx) return true;
    return false;
}

/* The memory at this address is that of a new context now. */
CDP__PRIVATE void cdp__ctx_adopt(cdp_ctx *ctx) {
    cdp__ctx_orphans *t = cdp__ctx_orphans_of_process();
    uint32_t i;
    if (!cdp__atomic_load_u32(&t->count, CDP__ACQUIRE)) return;
    for (i = 0; i < CDP__CTX_ORPHANS; ++i) {
        cdp_ctx *expected = ctx;
        (void)cdp__atomic_cas_ptr(&t->at[i], &expected, NULL, CDP__ACQ_REL, CDP__ACQUIRE);
    }
}

/* ---- >>rpc/table: owners, users, forks and holds by number (pure) ---------------------------- */

/* Knows: slots, chains of a hash. Promises: a slot keeps its index until it is removed; the time of
   every function is independent of how full the table is. */

/* Tests plant defects here, to see that their checks find them. */
#ifndef CDP__RPC_PLANT
#define CDP__RPC_PLANT(defect) false
#endif

typedef enum cdp__ref_kind {
    CDP__REF_FREE,
    CDP__REF_OWNER, /* a value of this rank; key: its rid */
    CDP__REF_USER,  /* a reference to a value of another rank; key: its fid */
    CDP__REF_FORK,  /* a reference of another rank that this owner has recorded; key: its fid, of
                       which each rank has its own */
    CDP__REF_HOLD,  /* a child sent to another rank and not accepted yet; key: the child's fid */
    CDP__REF_KINDS
} cdp__ref_kind;

typedef enum cdp__ref_state {
    CDP__REF_PENDING, /* the owner has not confirmed it */
    CDP__REF_LIVE,    /* the owner has recorded it */
    CDP__REF_BROKEN   /* the owner is lost, or no longer had the value, or had no room */
} cdp__ref_state;

#define CDP__REF_NONE 0xffffffffu

typedef struct cdp__ref {
    uint64_t key, rid;
    uint32_t next;    /* in its chain of the hash, or in the list of free slots; 0: the last */
    uint32_t of;      /* fork: the slot of its owner entry; hold: of its user entry */
    uint32_t sibling; /* user: its first hold; hold: the next one of the same user; 0: none */
    uint32_t rank;    /* user: the owner; fork: its holder; hold: the receiver of the child */
    uint32_t parent;  /* user: the rank that shared it; NONE: the owner, or created here */
    /* user: handles of the program; owner: those, and all other local uses of the value */
    uint32_t handles;
    uint32_t count; /* user: holds, and calls on it in flight; owner: forks */
    uint32_t uses;  /* how often this slot was in use: tells stale handles from valid ones */
    uint8_t kind, state;
    bool waiting; /* hold: the message with the child waits until the user is LIVE */
} cdp__ref;

/* What the caller must do: send messages, tell the program. */
typedef enum cdp__ref_what {
    CDP__REF_SEND_REMOTE_ACK, /* to, rid, fid, how */
    CDP__REF_SEND_FORK,       /* to, rid, fid, parent */
    CDP__REF_SEND_FORK_ACK,   /* to, rid, fid, how */
    CDP__REF_SEND_ACCEPT,     /* to, fid */
    CDP__REF_SEND_DELETE,     /* to, rid, fid */
    CDP__REF_SHARE_NOW,       /* to, rid, fid: the waiting message may be sent */
    CDP__REF_SHARE_NEVER,     /* to, rid, fid: the waiting message must not be sent */
    CDP__REF_NOW_LIVE,        /* slot */
    CDP__REF_NOW_BROKEN,      /* slot, how */
    /* slot of a user or owner entry that ends: an owner's value must be destroyed */
    CDP__REF_NOW_ENDED,
    CDP__REF_WHATS
} cdp__ref_what;

typedef enum cdp__ref_how {
    CDP__REF_OK,
    CDP__REF_GONE,
    CDP__REF_FULL,
    CDP__REF_LOST
} cdp__ref_how;

typedef struct cdp__ref_act {
    cdp__ref_what what;
    cdp__ref_how how;
    uint32_t to, parent, slot;
    uint64_t rid, fid;
} cdp__ref_act;

typedef struct cdp__refs {
    cdp__ref *at;    /* slot 0 is not used */
    uint32_t *heads; /* the first slot of each chain */
    uint32_t room;   /* slots */
    uint32_t mask;   /* chains - 1 */
    uint32_t vacant; /* the first free slot */
    uint32_t left;   /* number of free slots */
    uint32_t used[CDP__REF_KINDS];
    uint32_t rank;      /* this rank */
    uint32_t first_use; /* `uses` of a slot that is new */
    const bool *lost;   /* by rank: its link has ended */
    /* Called by the functions below, in the order in which to act. Must not use the table. */
    void (*act)(void *user, const cdp__ref_act *act);
    void *user;
} cdp__refs;

CDP__PRIVATE uint32_t *cdp__refs_chain(const cdp__refs *t, uint32_t kind, uint64_t key) {
    uint64_t h = (key ^ kind) * 0x9e3779b97f4a7c15ull;
    return &t->heads[(uint32_t)(h >> 32) & t->mask];
}

/* The slot with this key; 0: there is none. */
CDP__PRIVATE uint32_t cdp__refs_find(const cdp__refs *t, cdp__ref_kind kind, uint64_t key) {
    uint32_t slot = t->heads ? *cdp__refs_chain(t, (uint32_t)kind, key) : 0;
    while (slot && (t->at[slot].kind != kind || t->at[slot].key != key))
        slot = t->at[slot].next;
    return slot;
}

/* The fork with this number that `rank` holds; 0: there is none. Only that rank and its parent know
   the number, and one of them may lie about it: each rank has entries of its own. */
CDP__PRIVATE uint32_t cdp__refs_fork(const cdp__refs *t, uint64_t fid, uint32_t rank) {
    uint32_t slot = t->heads ? *cdp__refs_chain(t, CDP__REF_FORK, fid) : 0;
    while (slot
        && (t->at[slot].kind != CDP__REF_FORK || t->at[slot].key != fid
            || t->at[slot].rank != rank))
        slot = t->at[slot].next;
    return slot;
}

/* Adds an entry, all zero. There must be a free slot. */
CDP__PRIVATE uint32_t cdp__refs_add(cdp__refs *t, cdp__ref_kind kind, uint64_t key) {
    const uint32_t slot = t->vacant;
    cdp__ref *r = &t->at[slot];
    uint32_t *head = cdp__refs_chain(t, (uint32_t)kind, key);
    const uint32_t uses = r->uses + 1;
    CDP_ASSERT(slot && t->left);
    t->vacant = r->next;
    --t->left;
    ++t->used[kind];
    memset(r, 0, sizeof *r);
    r->uses = uses;
    r->kind = (uint8_t)kind;
    r->key = key;
    r->next = *head;
    *head = slot;
    return slot;
}

CDP__PRIVATE void cdp__refs_remove(cdp__refs *t, uint32_t slot) {
    cdp__ref *r = &t->at[slot];
    uint32_t *at = cdp__refs_chain(t, r->kind, r->key);
    while (*at != slot)
        at = &t->at[*at].next;
    *at = r->next;
    --t->used[r->kind];
    ++t->left;
    r->kind = CDP__REF_FREE;
    r->next = t->vacant;
    t->vacant = slot;
}

/* Moves the table to larger arrays: `at` has `room` slots, `heads` a power of two of chains. The
   old contents are copied; the caller owns the old arrays again. */
CDP__PRIVATE void cdp__refs_move(
    cdp__refs *t, cdp__ref *at, uint32_t room, uint32_t *heads, uint32_t chains) {
    const uint32_t before = t->room ? t->room : 1;
    uint32_t slot;
    if (t->room) memcpy(at, t->at, t->room * sizeof *at);
    memset(at + t->room, 0, (room - t->room) * sizeof *at);
    for (slot = t->room; slot < room; ++slot)
        at[slot].uses = t->first_use;
    memset(heads, 0, chains * sizeof *heads);
    t->at = at;
    t->heads = heads;
    t->mask = chains - 1;
    for (slot = 1; slot < t->room; ++slot) {
        uint32_t *head = cdp__refs_chain(t, at[slot].kind, at[slot].key);
        if (at[slot].kind == CDP__REF_FREE) continue;
        at[slot].next = *head;
        *head = slot;
    }
    for (slot = room; slot-- > before; ++t->left) {
        at[slot].next = t->vacant;
        t->vacant = slot;
    }
    t->room = room;
}

/* ---- >>rpc/forks: when a value may be destroyed (pure) --------------------------------------- */

/* Knows: the table. Promises: a value is destroyed once, when no rank has a reference to it any
   more, and never before, in whatever order messages of different ranks and of one rank arrive;
   nothing waits for a lost rank. */

CDP__PRIVATE void cdp__ref_do(
    const cdp__refs *t, cdp__ref_what what, uint32_t slot, uint32_t to, cdp__ref_how how) {
    const cdp__ref *r = &t->at[slot];
    cdp__ref_act act;
    if (what <= CDP__REF_SEND_DELETE && t->lost[to]) return;
    memset(&act, 0, sizeof act);
    act.what = what;
    act.how = how;
    act.to = to;
    act.slot = slot;
    act.rid = r->rid;
    act.fid = r->key;
    act.parent = r->parent;
    t->act(t->user, &act);
}

/* Answers a message about an entry that does not exist here. */
CDP__PRIVATE void cdp__ref_answer(const cdp__refs *t, cdp__ref_what what, uint32_t to, uint64_t rid,
    uint64_t fid, cdp__ref_how how) {
    cdp__ref_act act;
    if (t->lost[to]) return;
    memset(&act, 0, sizeof act);
    act.what = what;
    act.how = how;
    act.to = to;
    act.rid = rid;
    act.fid = fid;
    t->act(t->user, &act);
}

/* Ends the entry if nothing needs it any more. */
CDP__PRIVATE void cdp__ref_release(cdp__refs *t, uint32_t slot) {
    cdp__ref *r = &t->at[slot];
    if (r->handles || r->count) return;
    if (r->kind == CDP__REF_USER) {
        if (r->state == CDP__REF_PENDING) return; /* the answer of the owner decides */
        if (r->state == CDP__REF_LIVE)
            cdp__ref_do(t, CDP__REF_SEND_DELETE, slot, r->rank, CDP__REF_OK);
    }
    cdp__ref_do(t, CDP__REF_NOW_ENDED, slot, r->rank, CDP__REF_OK);
    cdp__refs_remove(t, slot);
}

/* Ends a hold. Its user entry stays, even if nothing needs it: see cdp__ref_release(). */
CDP__PRIVATE void cdp__ref_hold_ends(cdp__refs *t, uint32_t hold) {
    cdp__ref *user = &t->at[t->at[hold].of];
    uint32_t *at = &user->sibling;
    while (*at != hold)
        at = &t->at[*at].sibling;
    *at = t->at[hold].sibling;
    --user->count;
    cdp__refs_remove(t, hold);
}

/* The state of a user entry is decided: its waiting shares may be sent now, or never. */
CDP__PRIVATE void cdp__ref_waiting(cdp__refs *t, uint32_t slot) {
    const bool live = t->at[slot].state == CDP__REF_LIVE;
    uint32_t hold = t->at[slot].sibling;
    while (hold) {
        const uint32_t next = t->at[hold].sibling;
        if (t->at[hold].waiting) {
            t->at[hold].waiting = false;
            cdp__ref_do(t, live ? CDP__REF_SHARE_NOW : CDP__REF_SHARE_NEVER, hold, t->at[hold].rank,
                CDP__REF_OK);
            if (!live) cdp__ref_hold_ends(t, hold);
        }
        hold = next;
    }
}

/* Adds a user entry: pending, or broken if the owner is lost. */
CDP__PRIVATE uint32_t cdp__ref_user(
    cdp__refs *t, uint64_t rid, uint64_t fid, uint32_t owner, uint32_t parent) {
    const uint32_t slot = cdp__refs_add(t, CDP__REF_USER, fid);
    cdp__ref *r = &t->at[slot];
    r->rid = rid;
    r->rank = owner;
    r->parent = parent;
    r->handles = 1;
    r->state = t->lost[owner] ? CDP__REF_BROKEN : CDP__REF_PENDING;
    return slot;
}

/* ---- actions of the program */

/* This rank creates a value, with one handle. Needs one free slot. */
CDP__PRIVATE uint32_t cdp__ref_create(cdp__refs *t, uint64_t rid) {
    const uint32_t slot = cdp__refs_add(t, CDP__REF_OWNER, rid);
    t->at[slot].rid = rid;
    t->at[slot].rank = t->rank;
    t->at[slot].parent = CDP__REF_NONE;
    t->at[slot].handles = 1;
    t->at[slot].state = CDP__REF_LIVE;
    return slot;
}

/* This rank asks `owner` to create a value; the caller sends REMOTE with both numbers. Needs one
   free slot. */
CDP__PRIVATE uint32_t cdp__ref_remote(cdp__refs *t, uint64_t rid, uint64_t fid, uint32_t owner) {
    return cdp__ref_user(t, rid, fid, owner, CDP__REF_NONE);
}

CDP__PRIVATE void cdp__ref_drop(cdp__refs *t, uint32_t slot) {
    CDP_ASSERT(t->at[slot].handles);
    --t->at[slot].handles;
    cdp__ref_release(t, slot);
}

/* A call on a reference is about to be sent, or is over on the wire. */
CDP__PRIVATE void cdp__ref_on_wire(cdp__refs *t, uint32_t slot) {
    ++t->at[slot].count;
}
CDP__PRIVATE void cdp__ref_off_wire(cdp__refs *t, uint32_t slot) {
    CDP_ASSERT(t->at[slot].count);
    --t->at[slot].count;
    cdp__ref_release(t, slot);
}

/* Records that a message with the new fork `child` goes to rank `to`. PENDING: the message must
   wait for SHARE_NOW or SHARE_NEVER. BROKEN: it cannot be shared, nothing was recorded. Needs
   one free slot. */
CDP__PRIVATE cdp__ref_state cdp__ref_share(
    cdp__refs *t, uint32_t slot, uint64_t child, uint32_t to) {
    const bool own = t->at[slot].kind == CDP__REF_OWNER;
    const cdp__ref_state state = (cdp__ref_state)t->at[slot].state;
    cdp__ref *r;
    uint32_t s;
    if (state == CDP__REF_BROKEN) return state;
    s = cdp__refs_add(t, own ? CDP__REF_FORK : CDP__REF_HOLD, child);
    r = &t->at[s];
    r->rid = t->at[slot].rid;
    r->of = slot;
    r->rank = to;
    r->parent = CDP__REF_NONE;
    ++t->at[slot].count;
    if (own) return state;
    r->waiting = state == CDP__REF_PENDING;
    r->sibling = t->at[slot].sibling;
    t->at[slot].sibling = s;
    return state;
}

/* The message with this child was not sent. */
CDP__PRIVATE void cdp__ref_unshare(cdp__refs *t, uint64_t child) {
    uint32_t s = cdp__refs_find(t, CDP__REF_HOLD, child), of;
    if (s) {
        of = t->at[s].of;
        cdp__ref_hold_ends(t, s);
        cdp__ref_release(t, of);
        return;
    }
    s = cdp__refs_find(t, CDP__REF_FORK, child);
    if (!s) return; /* its rank was lost meanwhile */
    of = t->at[s].of;
    cdp__refs_remove(t, s);
    --t->at[of].count;
    cdp__ref_release(t, of);
}

/* ---- messages of peers */

/* At the owner: rank `from` asks this rank to create a value. *slot: its entry; 0: there was no
   room. */
CDP__PRIVATE bool cdp__ref_got_remote(
    cdp__refs *t, uint32_t from, uint64_t rid, uint64_t fid, uint32_t *slot) {
    uint32_t fork;
    *slot = 0;
    if (cdp__refs_find(t, CDP__REF_OWNER, rid) || cdp__refs_fork(t, fid, from)) return false;
    if (t->left < 2) {
        cdp__ref_answer(t, CDP__REF_SEND_REMOTE_ACK, from, rid, fid, CDP__REF_FULL);
        return true;
    }
    *slot = cdp__ref_create(t, rid);
    t->at[*slot].handles = 0;
    (void)cdp__ref_share(t, *slot, fid, from);
    fork = cdp__refs_fork(t, fid, from);
    cdp__ref_do(t, CDP__REF_SEND_REMOTE_ACK, fork, from, CDP__REF_OK);
    return true;
}

/* At a user: the owner's answer to REMOTE or FORK. */
CDP__PRIVATE bool cdp__ref_got_ack(cdp__refs *t, uint32_t from, uint64_t fid, cdp__ref_how how) {
    const uint32_t slot = cdp__refs_find(t, CDP__REF_USER, fid);
    cdp__ref *r = &t->at[slot];
    if (!slot || r->rank != from || r->state != CDP__REF_PENDING) return false;
    r->state = how == CDP__REF_OK ? CDP__REF_LIVE : CDP__REF_BROKEN;
    if (r->parent != CDP__REF_NONE) cdp__ref_do(t, CDP__REF_SEND_ACCEPT, slot, r->parent, how);
    cdp__ref_do(t, how == CDP__REF_OK ? CDP__REF_NOW_LIVE : CDP__REF_NOW_BROKEN, slot, from, how);
    cdp__ref_waiting(t, slot);
    cdp__ref_release(t, slot);
    return true;
}

/* At the owner: rank `from` has received the reference from another user. */
CDP__PRIVATE bool cdp__ref_got_fork(cdp__refs *t, uint32_t from, uint64_t rid, uint64_t fid) {
    const uint32_t slot = cdp__refs_find(t, CDP__REF_OWNER, rid);
    cdp__ref_how how = slot ? CDP__REF_OK : CDP__REF_GONE;
    if (cdp__refs_fork(t, fid, from)) return false;
    if (slot && !t->left) how = CDP__REF_FULL;
    if (how == CDP__REF_OK) (void)cdp__ref_share(t, slot, fid, from);
    cdp__ref_answer(t, CDP__REF_SEND_FORK_ACK, from, rid, fid, how);
    return true;
}

/* At a parent: the owner has recorded the child, or the child was refused. */
CDP__PRIVATE bool cdp__ref_got_accept(cdp__refs *t, uint32_t from, uint64_t child) {
    const uint32_t hold = cdp__refs_find(t, CDP__REF_HOLD, child);
    uint32_t of;
    if (!hold || t->at[hold].rank != from || t->at[hold].waiting) return false;
    of = t->at[hold].of;
    cdp__ref_hold_ends(t, hold);
    cdp__ref_release(t, of);
    return true;
}

/* At the owner: a fork ends. */
CDP__PRIVATE bool cdp__ref_got_delete(cdp__refs *t, uint32_t from, uint64_t rid, uint64_t fid) {
    const uint32_t fork = cdp__refs_fork(t, fid, from);
    uint32_t of;
    if (!fork || t->at[fork].rid != rid) return false;
    of = t->at[fork].of;
    cdp__refs_remove(t, fork);
    --t->at[of].count;
    cdp__ref_release(t, of);
    return true;
}

/* A message contained a reference {owner, rid, fid}, shared by `from`. *slot: an entry with one
   handle for the receiver; 0: the value is gone, or there was no room. */
CDP__PRIVATE bool cdp__ref_take(
    cdp__refs *t, uint32_t from, uint32_t owner, uint64_t rid, uint64_t fid, uint32_t *slot) {
    if (owner == t->rank) { /* returned to the owner: no fork is needed */
        *slot = cdp__refs_find(t, CDP__REF_OWNER, rid);
        if (*slot) ++t->at[*slot].handles;
        cdp__ref_answer(t, CDP__REF_SEND_ACCEPT, from, rid, fid, CDP__REF_OK);
        return true;
    }
    *slot = 0;
    if (cdp__refs_find(t, CDP__REF_USER, fid)) return false;
    if (!t->left) {
        cdp__ref_answer(t, from == owner ? CDP__REF_SEND_DELETE : CDP__REF_SEND_ACCEPT, from, rid,
            fid, CDP__REF_FULL);
        return true;
    }
    *slot = cdp__ref_user(t, rid, fid, owner, from == owner ? CDP__REF_NONE : from);
    if (from == owner) {
        t->at[*slot].state = CDP__REF_LIVE;
    } else if (t->lost[owner]) {
        cdp__ref_do(t, CDP__REF_SEND_ACCEPT, *slot, from, CDP__REF_LOST);
        cdp__ref_do(t, CDP__REF_NOW_BROKEN, *slot, owner, CDP__REF_LOST);
    } else {
        cdp__ref_do(t, CDP__REF_SEND_FORK, *slot, owner, CDP__REF_OK);
    }
    return true;
}

/* ---- losses */

CDP__PRIVATE void cdp__ref_user_lost(cdp__refs *t, uint32_t slot, uint32_t rank) {
    cdp__ref *r = &t->at[slot];
    uint32_t hold = r->sibling;
    while (hold) { /* children sent to that rank */
        const uint32_t next = t->at[hold].sibling;
        if (t->at[hold].rank == rank) {
            if (t->at[hold].waiting)
                cdp__ref_do(t, CDP__REF_SHARE_NEVER, hold, rank, CDP__REF_LOST);
            cdp__ref_hold_ends(t, hold);
        }
        hold = next;
    }
    if (r->rank == rank && r->state != CDP__REF_BROKEN) {
        /* otherwise its parent would wait for ever */
        if (r->state == CDP__REF_PENDING && r->parent != CDP__REF_NONE)
            cdp__ref_do(t, CDP__REF_SEND_ACCEPT, slot, r->parent, CDP__REF_LOST);
        r->state = CDP__REF_BROKEN;
        cdp__ref_do(t, CDP__REF_NOW_BROKEN, slot, rank, CDP__REF_LOST);
        cdp__ref_waiting(t, slot);
    }
    cdp__ref_release(t, slot);
}

/* The link to `rank` has ended; lost[rank] is set already. */
CDP__PRIVATE void cdp__ref_lost(cdp__refs *t, uint32_t rank) {
    uint32_t slot;
    for (slot = 1; slot < t->room; ++slot) {
        cdp__ref *r = &t->at[slot];
        if (r->kind == CDP__REF_USER) cdp__ref_user_lost(t, slot, rank);
        if (r->kind == CDP__REF_FORK && r->rank == rank) {
            const uint32_t of = r->of;
            cdp__refs_remove(t, slot);
            --t->at[of].count;
            cdp__ref_release(t, of);
        }
    }
}

/* ---- >>rpc/waves: which gradients flow where, and when all have arrived (pure) --------------- */

/* Knows: the values of one context on this rank, and the nodes that made them. Promises: in a
   backward pass every node that the roots reach fires once, when all gradients of its outputs
   have arrived; no other node fires; the starter learns when the pass is over on all ranks; a
   pass never waits for a value that the roots do not reach. */

typedef struct cdp__wave_edge {
    uint64_t value; /* an input */
    uint32_t to;    /* the rank on which it lives */
} cdp__wave_edge;

typedef enum cdp__wave_state {
    CDP__WAVE_IDLE,
    CDP__WAVE_MARKED,
    CDP__WAVE_FIRING, /* all gradients have arrived; its function runs */
    CDP__WAVE_FIRED,  /* gradients of its inputs are being sent */
    CDP__WAVE_OVER
} cdp__wave_state;

typedef struct cdp__wave_node {
    uint32_t first, edges;        /* its inputs, in the array of all edges */
    uint32_t marked, got;         /* gradients expected in this pass; of these, received */
    uint32_t deficit;             /* messages of it that are not answered by DONE */
    uint32_t parent, parent_node; /* rank and node that get its DONE */
    uint32_t epoch;               /* the pass that these counts belong to */
    uint8_t state;
} cdp__wave_node;

typedef struct cdp__wave_value {
    uint32_t node;      /* the node that made it */
    uint32_t output;    /* which one of its outputs */
    uint32_t receivers; /* the first rank that it was sent to; 0: none */
} cdp__wave_value;

typedef struct cdp__wave_receiver {
    uint32_t rank, next;
    uint32_t epoch; /* the last pass in which that rank sent its MARK */
} cdp__wave_receiver;

typedef enum cdp__wave_what {
    CDP__WAVE_SEND_MARK, /* to, node (which sends), value */
    CDP__WAVE_SEND_GRAD, /* to, node, value, edge (which input of the node) */
    CDP__WAVE_SEND_DONE, /* to, node (which gets it) */
    CDP__WAVE_FIRE,      /* node: call its function, then cdp__wave_fired() */
    CDP__WAVE_COUNTED,   /* the starter's first wave is over: cdp__wave_grads() */
    CDP__WAVE_ENDED      /* the pass is over on all ranks */
} cdp__wave_what;

typedef struct cdp__wave_act {
    cdp__wave_what what;
    uint32_t to, node, edge;
    uint64_t value;
} cdp__wave_act;

/* The result of handling a message. */
typedef enum cdp__wave_how {
    CDP__WAVE_OK,
    CDP__WAVE_LIE,      /* no peer of this version sends that */
    CDP__WAVE_CONFLICT, /* another pass of this context is in progress here */
    /* No peer of this version sends that now; but its sender may be honest, and another rank of the
       context has answered too early, or too often. */
    CDP__WAVE_DISORDER
} cdp__wave_how;

/* The caller owns and enlarges the arrays. Entry 0 of each is unused, except node 0: the
   starter, whose inputs are the roots. */
typedef struct cdp__waves {
    cdp__wave_node *nodes;
    cdp__wave_edge *edges;
    cdp__wave_value *values;
    cdp__wave_receiver *receivers;
    uint32_t node_count, edge_count, value_count, receiver_count;
    uint32_t rank;
    uint32_t epoch; /* number of passes on this rank so far */
    uint32_t open;  /* visited nodes of the pass that are not complete */
    uint64_t pass;
    void (*act)(void *user, const cdp__wave_act *act); /* must not call functions of this section */
    void *user;
} cdp__waves;

CDP__PRIVATE uint32_t cdp__wave_home(uint64_t value) {
    return (uint32_t)(value >> 48);
}

/* The entry of a value of this rank; 0: there is none. */
CDP__PRIVATE uint32_t cdp__wave_entry(const cdp__waves *t, uint64_t value) {
    const uint64_t index = value & 0xffffffffffffull;
    return cdp__wave_home(value) == t->rank && index <= t->value_count ? (uint32_t)index : 0;
}

/* ---- the graph; there must be room in the arrays */

/* Adds a node with these inputs: values of this rank or, for an import, one value of another
   rank. */
CDP__PRIVATE uint32_t cdp__wave_add_node(cdp__waves *t, const uint64_t *inputs, uint32_t count) {
    const uint32_t node = ++t->node_count;
    cdp__wave_node *n = &t->nodes[node];
    uint32_t i;
    memset(n, 0, sizeof *n);
    n->first = t->edge_count + 1;
    for (i = 0; i < count; ++i) {
        if (!inputs[i]) continue; /* a constant */
        ++n->edges;
        t->edges[++t->edge_count].value = inputs[i];
        t->edges[t->edge_count].to = cdp__wave_home(inputs[i]);
    }
    return node;
}

/* Adds a value of this rank, made by this node. */
CDP__PRIVATE uint64_t cdp__wave_add_value(cdp__waves *t, uint32_t node, uint32_t output) {
    cdp__wave_value *v = &t->values[++t->value_count];
    v->node = node;
    v->output = output;
    v->receivers = 0;
    return (uint64_t)t->rank << 48 | t->value_count;
}

/* The record that this value was sent to that rank; 0: it was not. */
CDP__PRIVATE uint32_t cdp__wave_has(const cdp__waves *t, uint32_t value, uint32_t rank) {
    uint32_t at = t->values[value].receivers;
    while (at && t->receivers[at].rank != rank)
        at = t->receivers[at].next;
    return at;
}

/* Records that this value is sent to a rank, from which gradients may come back. */
CDP__PRIVATE void cdp__wave_record_sent(cdp__waves *t, uint32_t value, uint32_t rank) {
    if (cdp__wave_has(t, value, rank)) return;
    t->receivers[++t->receiver_count].rank = rank;
    t->receivers[t->receiver_count].epoch = 0;
    t->receivers[t->receiver_count].next = t->values[value].receivers;
    t->values[value].receivers = t->receiver_count;
}

/* ---- the waves */

CDP__PRIVATE void cdp__wave_do(const cdp__waves *t, cdp__wave_what what, uint32_t to, uint32_t node,
    uint64_t value, uint32_t edge) {
    cdp__wave_act act;
    act.what = what;
    act.to = to;
    act.node = node;
    act.value = value;
    act.edge = edge;
    t->act(t->user, &act);
}

CDP__PRIVATE void cdp__wave_enter(cdp__waves *t, uint64_t pass) {
    t->pass = pass;
    ++t->epoch;
}

/* Answers the message by which the node joined the wave. */
CDP__PRIVATE void cdp__wave_answer(cdp__waves *t, cdp__wave_node *n) {
    if (n->state == CDP__WAVE_FIRED) {
        n->state = CDP__WAVE_OVER;
        --t->open;
    }
    cdp__wave_do(t, CDP__WAVE_SEND_DONE, n->parent, n->parent_node, 0, 0);
}

/* Sends one message per input. */
CDP__PRIVATE void cdp__wave_spread(cdp__waves *t, uint32_t node, cdp__wave_what what) {
    cdp__wave_node *n = &t->nodes[node];
    uint32_t i;
    n->deficit = n->edges;
    for (i = 0; i < n->edges; ++i)
        cdp__wave_do(t, what, t->edges[n->first + i].to, node, t->edges[n->first + i].value, i);
    if (!n->deficit) cdp__wave_answer(t, n);
}

/* Begins a pass on this rank, whose roots are values of this rank. False: another pass is in
   progress. */
CDP__PRIVATE bool cdp__wave_begin(
    cdp__waves *t, uint64_t pass, const uint64_t *roots, uint32_t count) {
    uint32_t i;
    if (t->open) return false;
    cdp__wave_enter(t, pass);
    ++t->open;
    t->nodes[0].first = t->edge_count + 1;
    t->nodes[0].edges = count;
    for (i = 0; i < count; ++i) {
        t->edges[++t->edge_count].value = roots[i];
        t->edges[t->edge_count].to = t->rank;
    }
    t->nodes[0].state = CDP__WAVE_MARKED;
    cdp__wave_spread(t, 0, CDP__WAVE_SEND_MARK);
    return true;
}

/* Starts the second wave, after COUNTED. */
CDP__PRIVATE void cdp__wave_grads(cdp__waves *t) {
    t->nodes[0].state = CDP__WAVE_FIRED;
    cdp__wave_spread(t, 0, CDP__WAVE_SEND_GRAD);
}

CDP__PRIVATE cdp__wave_how cdp__wave_got_mark(
    cdp__waves *t, uint32_t from, uint32_t from_node, uint64_t pass, uint64_t value) {
    const uint32_t v = cdp__wave_entry(t, value);
    const uint32_t receiver = v && from != t->rank ? cdp__wave_has(t, v, from) : 0;
    cdp__wave_node *n;
    if (!v || (from != t->rank && !receiver)) return CDP__WAVE_LIE;
    if (pass != t->pass && t->open) return CDP__WAVE_CONFLICT;
    if (pass != t->pass) cdp__wave_enter(t, pass);
    if (receiver && t->receivers[receiver].epoch == t->epoch)
        return CDP__WAVE_LIE; /* it has one import */
    if (receiver) t->receivers[receiver].epoch = t->epoch;
    n = &t->nodes[t->values[v].node];
    if (n->epoch != t->epoch) {
        n->epoch = t->epoch;
        n->marked = n->got = n->deficit = 0;
        n->state = CDP__WAVE_IDLE;
    }
    if (n->got) return CDP__WAVE_DISORDER;
    if (n->marked++) {
        cdp__wave_do(t, CDP__WAVE_SEND_DONE, from, from_node, 0, 0);
        return CDP__WAVE_OK;
    }
    n->state = CDP__WAVE_MARKED;
    n->parent = from;
    n->parent_node = from_node;
    ++t->open;
    cdp__wave_spread(t, t->values[v].node, CDP__WAVE_SEND_MARK);
    return CDP__WAVE_OK;
}

/* Handles a GRAD. The caller adds its gradient to the value *entry. */
CDP__PRIVATE cdp__wave_how cdp__wave_got_grad(cdp__waves *t, uint32_t from, uint32_t from_node,
    uint64_t pass, uint64_t value, uint32_t *entry) {
    cdp__wave_node *n;
    *entry = cdp__wave_entry(t, value);
    if (!*entry || (from != t->rank && !cdp__wave_has(t, *entry, from))) return CDP__WAVE_LIE;
    n = &t->nodes[t->values[*entry].node];
    if (pass != t->pass || n->epoch != t->epoch || n->state != CDP__WAVE_MARKED || n->deficit)
        return CDP__WAVE_DISORDER;
    if (++n->got < n->marked) {
        cdp__wave_do(t, CDP__WAVE_SEND_DONE, from, from_node, 0, 0);
        return CDP__WAVE_OK;
    }
    n->state = CDP__WAVE_FIRING;
    n->parent = from;
    n->parent_node = from_node;
    cdp__wave_do(t, CDP__WAVE_FIRE, t->rank, t->values[*entry].node, value, 0);
    return CDP__WAVE_OK;
}

/* The function of a node has returned. */
CDP__PRIVATE void cdp__wave_fired(cdp__waves *t, uint32_t node) {
    CDP_ASSERT(t->nodes[node].state == CDP__WAVE_FIRING);
    t->nodes[node].state = CDP__WAVE_FIRED;
    cdp__wave_spread(t, node, CDP__WAVE_SEND_GRAD);
}

CDP__PRIVATE bool cdp__wave_knows(const cdp__waves *t, const cdp__wave_node *n, uint32_t rank) {
    uint32_t i;
    for (i = 0; i < n->edges; ++i)
        if (t->edges[n->first + i].to == rank) return true;
    return false;
}

CDP__PRIVATE cdp__wave_how cdp__wave_got_done(
    cdp__waves *t, uint32_t from, uint64_t pass, uint32_t node) {
    cdp__wave_node *n = node <= t->node_count ? &t->nodes[node] : NULL;
    if (!n || !cdp__wave_knows(t, n, from)) return CDP__WAVE_LIE;
    if (pass != t->pass) return CDP__WAVE_DISORDER;
    if (!n->deficit) return CDP__WAVE_LIE; /* nobody else answers an import */
    if (--n->deficit) return CDP__WAVE_OK;
    if (node) {
        cdp__wave_answer(t, n);
    } else if (n->state == CDP__WAVE_MARKED) {
        cdp__wave_do(t, CDP__WAVE_COUNTED, t->rank, 0, 0, 0);
    } else {
        n->state = CDP__WAVE_OVER;
        --t->open;
        cdp__wave_do(t, CDP__WAVE_ENDED, t->rank, 0, 0, 0);
    }
    return CDP__WAVE_OK;
}

/* ---- >>rpc/levels: which calls may leave, which functions a waiting thread may run (pure) ---- */

/* Knows: how deep in other calls a call is. Promises: a call waits for a call of a higher level,
   or for a limit that only calls of its own and of higher levels hold, so calls of functions do not
   wait for each other in a circle. Not covered: a maker that waits for a value whose maker already
   runs, and a pass that begins inside a backward function.

   A call that starts outside functions has level 0; one that a function starts is one level above
   the call that runs the function. A thread that waits inside a function runs functions of higher
   levels alone. Calls that make a value have levels of their own, above those, since functions of
   any level may wait for the value; backward functions, which a pass waits for, are above both. A
   function that is max_depth levels deep starts calls, but does not wait: its calls begin at 0. */

#define CDP__RPC_DEPTHS 256u /* levels of each kind */
#define CDP__RPC_MAKER_LEVEL 256
#define CDP__RPC_BACKWARD_LEVEL 512
#define CDP__RPC_LEVELS 768u
#define CDP__RPC_OUTSIDE (-1) /* the level of a thread that runs no function */

/* True if a function of this level may wait. */
CDP__PRIVATE bool cdp__level_waits(int32_t inside, uint32_t max_depth) {
    return inside < 0 || (uint32_t)inside % CDP__RPC_DEPTHS < max_depth;
}

/* The level of a call that is started inside a function of level `inside`. */
CDP__PRIVATE int32_t cdp__level_of(int32_t inside, bool makes, uint32_t max_depth) {
    const int32_t least = makes ? CDP__RPC_MAKER_LEVEL : 0;
    if (!cdp__level_waits(inside, max_depth) || inside + 1 < least) return least;
    return inside + 1;
}

/* True if a thread that waits inside a function of level `inside` may run one of level `level`. */
CDP__PRIVATE bool cdp__level_runs(int32_t inside, int32_t level) {
    return level > inside;
}

/* True if a request of level `level` waits until an earlier one of the same function, of level
   `earlier`, has run, where these run in order. Not if that one is less deep: threads that run this
   one may not run that one. */
CDP__PRIVATE bool cdp__level_follows(int32_t level, int32_t earlier) {
    return earlier >= level;
}

/* What calls to one rank that are under way hold of one limit: those that functions have started,
   or the others. */
typedef struct cdp__rpc_flight {
    uint32_t calls;
    uint64_t bytes; /* of their arguments */
} cdp__rpc_flight;

/* True if a call may leave. alone: no other call to that rank from inside functions has its level,
   and it is from inside one: it is let through, since what it would wait for may wait for it. */
CDP__PRIVATE bool cdp__flight_fits(
    const cdp__rpc_flight *f, uint64_t bytes, bool alone, uint32_t max_calls, uint64_t max_bytes) {
    if (!f->calls || alone) return true;
    return f->calls < max_calls && bytes <= max_bytes && f->bytes <= max_bytes - bytes;
}

/* True if a long argument may be fetched now. held: memory of those that are here; deep: of those
   from inside functions, of its level and above. */
CDP__PRIVATE bool cdp__bytes_fit(
    uint64_t held, uint64_t deep, bool nested, uint64_t bytes, uint64_t max_bytes) {
    if (!held || (bytes <= max_bytes && held <= max_bytes - bytes)) return true;
    return nested && !deep;
}

/* ---- >>rpc/roll: ranks that are alive agree on who is, and add up counts (pure) -------------- */

/* Knows: what each rank has said last. Promises: every rank that ends a turn has the same sum and
   the same list of ranks that are counted out, whichever ranks die meanwhile; a rank is never
   counted in again.

   In a turn every rank says its counts and whom it counts out to all others that it counts in. It
   counts out whom it has lost, and whom a rank that it counts in does. The turn is over as soon as
   all that are counted in have said the same list; a rank that says the next turn has ended this
   one, and says its sum, which the others take over. So two ranks cannot end a turn with different
   lists: the one that has ended it does not say another list in it. */

#define CDP__ROLL_COUNTS 6u
#define CDP__ROLL_TEXT 160u
#define CDP__ROLL_SAY_BYTES (8u * CDP__ROLL_COUNTS + 12u + CDP__ROLL_TEXT)

/* What one rank says in a turn, or the sum of what all have said. */
typedef struct cdp__roll_say {
    uint64_t counts[CDP__ROLL_COUNTS];
    uint32_t weight, rank; /* how strongly something of this rank keeps the others; 0: nothing */
    uint32_t at;           /* the rank that does not answer */
    char text[CDP__ROLL_TEXT];
} cdp__roll_say;

/* What is said. */
typedef enum cdp__roll_kind {
    CDP__ROLL_TURN,
    CDP__ROLL_LAST, /* the turn before was the last one: this rank leaves */
    CDP__ROLL_FAIL, /* it ends with a failure, whose text is said */
    CDP__ROLL_KINDS
} cdp__roll_kind;

typedef struct cdp__roll_word {
    uint64_t turn; /* 0: it has said nothing */
    uint32_t outs; /* so many were in its list, which is a part of this rank's */
    bool left;
    cdp__roll_say say;
} cdp__roll_word;

typedef struct cdp__roll {
    uint32_t rank, ranks;
    uint64_t turn;  /* 0: this rank has not begun */
    bool over;      /* `sum` is that of this turn */
    bool done;      /* it was the last one */
    bool failed;    /* a rank ends with the failure in `why` */
    int32_t cut_by; /* a rank that counts this one out, or -1 */
    uint32_t outs;  /* in `out` */
    cdp__roll_say mine, sum, why;
    cdp__roll_word *words; /* by rank, as the lists */
    bool *out;             /* counted out */
    bool *sum_out;         /* when the turn of `sum` was over */
} cdp__roll;

CDP__PRIVATE uint64_t cdp__roll_bytes(uint32_t ranks) {
    return 2u * CDP__ROLL_SAY_BYTES + 2u * ((ranks + 7ull) / 8);
}

CDP__PRIVATE uint8_t *cdp__roll_put_say(uint8_t *at, const cdp__roll_say *s) {
    uint32_t i;
    for (i = 0; i < CDP__ROLL_COUNTS; ++i, at += 8)
        cdp__put_u64(at, s->counts[i]);
    cdp__put_u32(at, s->weight);
    cdp__put_u32(at + 4, s->rank);
    cdp__put_u32(at + 8, s->at);
    memcpy(at + 12, s->text, CDP__ROLL_TEXT);
    return at + 12 + CDP__ROLL_TEXT;
}

/* False: it names ranks that there are not. */
CDP__PRIVATE bool cdp__roll_get_say(const uint8_t *at, uint32_t ranks, cdp__roll_say *s) {
    uint32_t i;
    for (i = 0; i < CDP__ROLL_COUNTS; ++i, at += 8)
        s->counts[i] = cdp__get_u64(at);
    s->weight = cdp__get_u32(at);
    s->rank = cdp__get_u32(at + 4);
    s->at = cdp__get_u32(at + 8);
    cdp__text_foreign_in(s->text, sizeof s->text, (const char *)at + 12, CDP__ROLL_TEXT - 1);
    return s->rank < ranks && s->at < ranks;
}

CDP__PRIVATE uint8_t *cdp__roll_put_list(uint8_t *at, const bool *list, uint32_t ranks) {
    uint32_t r;
    memset(at, 0, (ranks + 7u) / 8);
    for (r = 0; r < ranks; ++r)
        at[r / 8] = (uint8_t)(at[r / 8] | (unsigned)list[r] << r % 8);
    return at + (ranks + 7u) / 8;
}

CDP__PRIVATE bool cdp__roll_listed(const uint8_t *list, uint32_t rank) {
    return list[rank / 8] >> rank % 8 & 1;
}

/* Writes what this rank says: `say`, its list, and the sum of the turn that was over last. */
CDP__PRIVATE void cdp__roll_put(const cdp__roll *roll, const cdp__roll_say *say, uint8_t *at) {
    at = cdp__roll_put_say(at, say);
    at = cdp__roll_put_say(at, &roll->sum);
    at = cdp__roll_put_list(at, roll->out, roll->ranks);
    (void)cdp__roll_put_list(at, roll->sum_out, roll->ranks);
}

/* Adds what one rank says to a sum; the strongest keeper stays, of equal ones that of the lowest
   rank. */
CDP__PRIVATE void cdp__roll_add(cdp__roll_say *sum, const cdp__roll_say *s) {
    cdp__roll_say most =
        sum->weight > s->weight || (sum->weight == s->weight && sum->rank < s->rank) ? *sum : *s;
    uint32_t i;
    for (i = 0; i < CDP__ROLL_COUNTS; ++i)
        most.counts[i] = sum->counts[i] + s->counts[i];
    *sum = most;
}

/* This turn waits no more for this rank. */
CDP__PRIVATE bool cdp__roll_has_said(const cdp__roll *roll, uint32_t rank) {
    const cdp__roll_word *w = &roll->words[rank];
    return roll->out[rank] || (w->turn == roll->turn && !w->left && w->outs == roll->outs);
}

/* Ends the turn if all that are counted in have said the same list. */
CDP__PRIVATE void cdp__roll_judge(cdp__roll *roll) {
    cdp__roll_say sum = roll->mine;
    uint32_t r;
    if (!roll->turn || roll->over) return;
    for (r = 0; r < roll->ranks; ++r) {
        const cdp__roll_word *w = &roll->words[r];
        if (r == roll->rank || roll->out[r]) continue;
        if (!cdp__roll_has_said(roll, r) && !(CDP__RPC_PLANT(ANY_LIST) && w->turn == roll->turn))
            return;
        cdp__roll_add(&sum, &w->say);
    }
    roll->sum = sum;
    memcpy(roll->sum_out, roll->out, roll->ranks * sizeof *roll->out);
    roll->over = true;
}

/* False: it was counted out before. */
CDP__PRIVATE bool cdp__roll_count_out(cdp__roll *roll, uint32_t rank) {
    if (roll->out[rank]) return false;
    roll->out[rank] = true;
    ++roll->outs;
    return true;
}

/* Begins the next turn. Who has said its last word although another turn is needed is mistaken. */
CDP__PRIVATE void cdp__roll_begin(cdp__roll *roll, const cdp__roll_say *mine) {
    uint32_t r;
    for (r = 0; r < roll->ranks; ++r) {
        if (roll->words[r].left) (void)cdp__roll_count_out(roll, r);
        roll->words[r].left = false;
    }
    roll->mine = *mine;
    ++roll->turn;
    roll->over = false;
    cdp__roll_judge(roll);
}

/* The link to a rank has ended. True: the list has changed. */
CDP__PRIVATE bool cdp__roll_lost(cdp__roll *roll, uint32_t rank) {
    if (roll->words[rank].left || roll->done || !cdp__roll_count_out(roll, rank)) return false;
    cdp__roll_judge(roll);
    return true;
}

/* Takes over the list of a rank, which is counted in. True: this rank's has changed. */
CDP__PRIVATE bool cdp__roll_join(cdp__roll *roll, const uint8_t *list, uint32_t *outs) {
    bool changed = false;
    uint32_t r;
    *outs = 0;
    for (r = 0; r < roll->ranks; ++r) {
        if (!cdp__roll_listed(list, r)) continue;
        ++*outs;
        if (cdp__roll_count_out(roll, r)) changed = true;
    }
    return changed;
}

/* A rank has said something, in cdp__roll_bytes(). Returns NULL or what is wrong with it. *changed:
   so has this rank's list. */
CDP__PRIVATE const char *cdp__roll_got(cdp__roll *roll, uint32_t from, cdp__roll_kind kind,
    uint64_t turn, const uint8_t *body, bool *changed) {
    const uint8_t *list = body + 2 * CDP__ROLL_SAY_BYTES;
    const uint8_t *before = list + (roll->ranks + 7u) / 8;
    cdp__roll_word *w = &roll->words[from];
    cdp__roll_say say, sum;
    uint32_t r;
    *changed = false;
    memset(&say, 0, sizeof say);
    memset(&sum, 0, sizeof sum);
    if (!cdp__roll_get_say(body, roll->ranks, &say)
        || !cdp__roll_get_say(body + CDP__ROLL_SAY_BYTES, roll->ranks, &sum)
        || cdp__roll_listed(list, from))
        return "a word about ranks that there are not";
    if (roll->out[from]) return NULL;
    if (roll->done) { /* this rank waits for last words alone */
        w->left = w->left || kind == CDP__ROLL_LAST;
        return NULL;
    }
    if (cdp__roll_listed(list, roll->rank)) {
        roll->cut_by = (int32_t)from;
        return NULL;
    }
    if (turn > roll->turn + 1 || turn < w->turn || w->left) return "a turn that cannot be";
    if (kind == CDP__ROLL_LAST && (!roll->turn || turn != roll->turn + 1))
        return "a last word that cannot be";
    if (kind == CDP__ROLL_FAIL) {
        if (!roll->failed) roll->why = say;
        roll->failed = true;
        return NULL;
    }
    *changed = cdp__roll_join(roll, list, &w->outs);
    w->turn = turn;
    w->say = say;
    w->left = kind == CDP__ROLL_LAST;
    if (turn == roll->turn + 1 && roll->turn && !roll->over) {
        roll->sum = sum;
        for (r = 0; r < roll->ranks; ++r)
            roll->sum_out[r] = cdp__roll_listed(before, r);
        roll->over = true;
    }
    cdp__roll_judge(roll);
    return NULL;
}

/* ---- >>rpc/packets: messages as bytes (pure) ------------------------------------------------- */

/* Knows: the messages of a channel. Promises: everything that a peer sent is checked before use. */

typedef enum cdp__rpc_kind {
    /* aux: function; a: call; b: time left in ms, level << 32, 1 << 48 if a function started it */
    CDP__RPC_CALL = 1,
    CDP__RPC_REPLY,      /* a: call */
    CDP__RPC_FAIL,       /* a: call; aux: -status; b: code and whether it ran; body: text */
    CDP__RPC_CANCEL,     /* a: call */
    CDP__RPC_REMOTE_ACK, /* a: rid; b: fid; aux: how */
    CDP__RPC_FORK,       /* a: rid; b: fid; aux: parent */
    CDP__RPC_FORK_ACK,   /* as REMOTE_ACK */
    CDP__RPC_ACCEPT,     /* b: fid; body: more of them, as a and b */
    CDP__RPC_DELETE,     /* a: rid; b: fid; body: more of them */
    CDP__RPC_MARK,       /* a: context; b: value; aux: node that sends it; slot: pass */
    CDP__RPC_GRAD,       /* as MARK, and a tensor, or none: no gradient */
    CDP__RPC_DONE,       /* a: context; b: pass; aux: node that gets it */
    CDP__RPC_JOIN,       /* a: context; to its origin: this rank takes part */
    CDP__RPC_CTX_FAIL,   /* a: context; aux: -status; b: rank to blame; body: text */
    CDP__RPC_CTX_END,    /* a: context */
    CDP__RPC_CTX_ENDED,  /* a: context */
    CDP__RPC_HELD,       /* a: call, which has little time left and not begun; aux: why; b: limit */
    CDP__RPC_ROLL,       /* a: turn; aux: what is said; body: see rpc/roll.h */
    CDP__RPC_KINDS
} cdp__rpc_kind;

/* What a call waits for on the rank that it was sent to. */
typedef enum cdp__rpc_why {
    CDP__RPC_NOT_HELD,
    CDP__RPC_FOR_THREAD,  /* limit: workers */
    CDP__RPC_FOR_RUNNING, /* limit: max_running of its function */
    CDP__RPC_FOR_VALUE,
    CDP__RPC_FOR_RREFS,
    CDP__RPC_FOR_BYTES, /* limit: max_queue_bytes */
    CDP__RPC_WHYS
} cdp__rpc_why;

#define CDP__RPC_ONE_WAY 1u /* flags of CALL */
#define CDP__RPC_ON 2u      /* the message contains rid and fid of a value, before the references */
#define CDP__RPC_REMOTE 4u  /* and rid and fid of a value to be created, after those of ON */
#define CDP__RPC_FETCH 8u   /* with ON: no function, returns the value itself */

#define CDP__RPC_CTX 16u /* the message contains the number of a context, or of a pass */

#define CDP__RPC_RECORD 24u        /* a reference: rid, fid, owner, zero */
#define CDP__RPC_RREFS 16u         /* in one message */
#define CDP__RPC_SHAPE 80u         /* a tensor: dtype, dims, value, shape */
#define CDP__RPC_TENSORS 16u       /* in one message */
#define CDP__RPC_TEXT 400u         /* of an error text */
#define CDP__RPC_LIST 4080u        /* bytes of a list: 255 entries after the first */
#define CDP__RPC_INLINE_MAX 65536u /* longer bodies are offered */
#define CDP__RPC_NAME 128u

typedef struct cdp__rpc_packet {
    cdp__rpc_kind kind;
    uint32_t flags, rrefs, tensors, aux;
    uint64_t a, b;
    const uint8_t *body; /* NULL: not received yet */
    uint64_t bytes;
    /* parts of the body */
    uint64_t rid, fid;             /* with ON */
    uint64_t makes_rid, makes_fid; /* with REMOTE */
    uint64_t slot;                 /* with CTX */
    const uint8_t *records, *shapes;
    const uint8_t *area; /* contents of tensors, each padded to 8 bytes; then bytes */
    uint64_t area_bytes;
} cdp__rpc_packet;

/* The rank that has created this number. */
CDP__PRIVATE uint32_t cdp__rpc_maker(uint64_t id) {
    return (uint32_t)(id >> 48);
}

CDP__PRIVATE uint32_t cdp__rpc_kind_of(const cdp__rpc_packet *p) {
    return (uint32_t)p->kind | p->flags << 8 | p->rrefs << 16 | p->tensors << 24;
}

CDP__PRIVATE uint64_t cdp__rpc_head_bytes(const cdp__rpc_packet *p) {
    return (p->flags & CDP__RPC_ON ? 16u : 0u) + (p->flags & CDP__RPC_REMOTE ? 16u : 0u)
        + (p->flags & CDP__RPC_CTX ? 8u : 0u) + (uint64_t)p->rrefs * CDP__RPC_RECORD
        + (uint64_t)p->tensors * CDP__RPC_SHAPE;
}

/* Bytes of a tensor in a message; UINT64_MAX: too many. */
CDP__PRIVATE uint64_t cdp__rpc_tensor_bytes(const cdp_tensor *t) {
    uint64_t n = cdp_dtype_size(t->dtype);
    uint32_t i;
    if (t->dims > 8) return UINT64_MAX;
    for (i = 0; i < t->dims; ++i) {
        if (t->shape[i] && n > (UINT64_MAX >> 2) / t->shape[i]) return UINT64_MAX;
        n *= t->shape[i];
    }
    return n;
}
CDP__PRIVATE uint64_t cdp__rpc_filled(uint64_t bytes) {
    return bytes + ((8 - bytes % 8) & 7);
}

CDP__PRIVATE void cdp__rpc_put_shape(uint8_t *at, const cdp_tensor *t, uint64_t value) {
    uint32_t i;
    memset(at, 0, CDP__RPC_SHAPE);
    at[0] = (uint8_t)t->dtype;
    at[1] = (uint8_t)t->dims;
    cdp__put_u64(at + 8, value);
    for (i = 0; i < t->dims; ++i)
        cdp__put_u64(at + 16 + 8 * i, t->shape[i]);
}

/* Decodes the record of a tensor, without its contents. */
CDP__PRIVATE cdp_tensor cdp__rpc_get_shape(const uint8_t *at) {
    cdp_tensor t;
    uint32_t i;
    memset(&t, 0, sizeof t);
    t.dtype = (cdp_dtype)at[0];
    t.dims = at[1];
    t.value = cdp__get_u64(at + 8);
    for (i = 0; i < t.dims && i < 8; ++i)
        t.shape[i] = cdp__get_u64(at + 16 + 8 * i);
    return t;
}

/* Checks the records of tensors against the received bytes. Returns NULL or what is wrong. */
CDP__PRIVATE const char *cdp__rpc_wrong_shapes(const cdp__rpc_packet *p, uint32_t from) {
    uint64_t left = p->area_bytes;
    uint32_t i;
    for (i = 0; i < p->tensors; ++i) {
        const cdp_tensor t = cdp__rpc_get_shape(p->shapes + i * CDP__RPC_SHAPE);
        uint64_t n;
        if (!cdp_dtype_size(t.dtype) || t.dims > 8) return "a tensor of no dtype, or of 9 dims";
        if (t.value && (p->kind == CDP__RPC_GRAD || !(p->flags & CDP__RPC_CTX)))
            return "a value without a context";
        if (t.value && cdp__rpc_maker(t.value) != from) return "a value that its sender has not";
        n = cdp__rpc_tensor_bytes(&t);
        if (n > left || cdp__rpc_filled(n) > left) return "a tensor longer than its message";
        left -= cdp__rpc_filled(n);
    }
    return NULL;
}

CDP__PRIVATE bool cdp__rpc_is_list(cdp__rpc_kind kind) {
    return kind == CDP__RPC_ACCEPT || kind == CDP__RPC_DELETE;
}

/* Checks the head of a message. Returns NULL, or a text that names the wrong part. */
CDP__PRIVATE const char *cdp__rpc_wrong_head(const cdp__rpc_packet *p, uint64_t max_bytes) {
    if (p->kind < CDP__RPC_CALL || p->kind >= CDP__RPC_KINDS) return "an unknown kind";
    if (p->flags >= 32) return "unknown flags";
    if (p->kind == CDP__RPC_CALL && (p->b >> 49 || (p->b >> 32 & 0xffff) >= CDP__RPC_LEVELS))
        return "a level that there is not";
    if ((p->flags & ~CDP__RPC_CTX) && p->kind != CDP__RPC_CALL) return "unknown flags";
    if ((p->flags & CDP__RPC_CTX) && p->kind != CDP__RPC_CALL && p->kind != CDP__RPC_REPLY
        && p->kind != CDP__RPC_MARK && p->kind != CDP__RPC_GRAD)
        return "unknown flags";
    if ((p->kind == CDP__RPC_MARK || p->kind == CDP__RPC_GRAD) && !(p->flags & CDP__RPC_CTX))
        return "no pass where there must be one";
    if ((p->flags & CDP__RPC_FETCH) && p->flags != (CDP__RPC_FETCH | CDP__RPC_ON))
        return "contradicting flags";
    if ((p->flags & CDP__RPC_ONE_WAY) && ((p->flags & CDP__RPC_REMOTE) || p->rrefs))
        return "a one-way call with references";
    if (p->rrefs > CDP__RPC_RREFS || (p->rrefs && p->kind > CDP__RPC_REPLY))
        return "too many references";
    if (p->tensors > (p->kind == CDP__RPC_GRAD ? 1 : CDP__RPC_TENSORS)
        || (p->tensors && p->kind > CDP__RPC_REPLY && p->kind != CDP__RPC_GRAD))
        return "too many tensors";
    if (cdp__rpc_is_list(p->kind))
        return p->bytes % 16 || p->bytes > CDP__RPC_LIST ? "a list of no length" : NULL;
    if (p->kind >= CDP__RPC_CANCEL && p->bytes != cdp__rpc_head_bytes(p) && p->kind != CDP__RPC_GRAD
        && p->kind != CDP__RPC_CTX_FAIL && p->kind != CDP__RPC_ROLL)
        return "a body where there is none";
    if ((p->kind == CDP__RPC_FAIL || p->kind == CDP__RPC_CTX_FAIL) && p->bytes > CDP__RPC_TEXT)
        return "too long a text";
    if (p->kind == CDP__RPC_ROLL) return NULL; /* cdp__rpc_got_roll() knows its length */
    if (p->bytes < cdp__rpc_head_bytes(p)) return "too short a body";
    if (p->bytes - cdp__rpc_head_bytes(p) > max_bytes) return "too long a body";
    if ((p->flags & CDP__RPC_FETCH) && p->bytes != cdp__rpc_head_bytes(p))
        return "arguments of a fetch";
    return NULL;
}

/* Checks a reference in a message from `from` to `me`. */
CDP__PRIVATE const char *cdp__rpc_wrong_record(
    const uint8_t *r, uint32_t from, uint32_t me, uint32_t ranks) {
    const uint64_t rid = cdp__get_u64(r), fid = cdp__get_u64(r + 8);
    const uint32_t owner = cdp__get_u32(r + 16);
    if (cdp__get_u32(r + 20)) return "a reference with unknown bits";
    if (owner >= ranks) return "a reference without an owner";
    if (cdp__rpc_maker(rid) >= ranks || !(rid << 16)) return "a value that no rank made";
    if (cdp__rpc_maker(fid) != from || !(fid << 16)) return "a fork that its sender did not make";
    (void)me;
    return NULL;
}

/* Checks a complete body, for messages with more than a text. */
CDP__PRIVATE const char *cdp__rpc_wrong_body(
    cdp__rpc_packet *p, uint32_t from, uint32_t me, uint32_t ranks) {
    const uint8_t *at = p->body;
    const char *wrong = NULL;
    uint32_t i;
    if (p->flags & CDP__RPC_ON) {
        p->rid = cdp__get_u64(at);
        p->fid = cdp__get_u64(at + 8);
        at += 16;
    }
    if (p->flags & CDP__RPC_REMOTE) {
        p->makes_rid = cdp__get_u64(at);
        p->makes_fid = cdp__get_u64(at + 8);
        at += 16;
        if (cdp__rpc_maker(p->makes_rid) != from || cdp__rpc_maker(p->makes_fid) != from
            || !(p->makes_rid << 16) || !(p->makes_fid << 16))
            return "a new value that its sender did not number";
    }
    if (p->flags & CDP__RPC_CTX) {
        p->slot = cdp__get_u64(at);
        at += 8;
        if (cdp__rpc_maker(p->slot) >= ranks || !(p->slot << 16)) return "a context of no rank";
    }
    p->records = at;
    for (i = 0; i < p->rrefs && !wrong; ++i)
        wrong = cdp__rpc_wrong_record(at + i * CDP__RPC_RECORD, from, me, ranks);
    p->shapes = at + p->rrefs * CDP__RPC_RECORD;
    p->area_bytes = p->bytes - cdp__rpc_head_bytes(p);
    p->area = p->area_bytes ? p->shapes + p->tensors * CDP__RPC_SHAPE : NULL;
    return wrong ? wrong : cdp__rpc_wrong_shapes(p, from);
}

/* Decodes a message of a channel. Returns NULL or what is wrong. Of a body that is not received
   yet, only the length is checked. */
CDP__PRIVATE const char *cdp__rpc_read(const cdp_channel_message *m, uint32_t me, uint32_t ranks,
    uint64_t max_bytes, cdp__rpc_packet *p) {
    const char *wrong;
    memset(p, 0, sizeof *p);
    p->kind = (cdp__rpc_kind)(m->kind & 0xff);
    p->flags = m->kind >> 8 & 0xff;
    p->rrefs = m->kind >> 16 & 0xff;
    p->tensors = m->kind >> 24;
    p->aux = m->aux;
    p->a = m->a;
    p->b = m->b;
    p->body = (const uint8_t *)m->body;
    p->bytes = m->bytes;
    wrong = cdp__rpc_wrong_head(p, max_bytes);
    if (wrong) return wrong;
    if (m->handle)
        return p->kind > CDP__RPC_REPLY && p->kind != CDP__RPC_GRAD
            ? "an offered body where there is none"
            : NULL;
    if (p->kind == CDP__RPC_FORK && (p->aux >= ranks || cdp__rpc_maker(p->b) != p->aux))
        return "a fork that its parent did not make";
    if (p->kind == CDP__RPC_FORK && (p->aux == me || p->aux == m->peer))
        return "a fork of a fork that cannot be";
    if ((p->kind == CDP__RPC_REMOTE_ACK || p->kind == CDP__RPC_FORK_ACK) && p->aux > CDP__REF_FULL)
        return "an unknown answer";
    if (p->kind == CDP__RPC_HELD && p->aux >= CDP__RPC_WHYS) return "an unknown reason";
    if (p->kind > CDP__RPC_DELETE && p->kind != CDP__RPC_HELD && p->kind != CDP__RPC_ROLL
        && (cdp__rpc_maker(p->a) >= ranks || !(p->a << 16)))
        return "a context of no rank";
    if (p->kind != CDP__RPC_FAIL && p->kind != CDP__RPC_CTX_FAIL && p->bytes
        && !cdp__rpc_is_list(p->kind))
        return cdp__rpc_wrong_body(p, m->peer, me, ranks);
    return NULL;
}

CDP__PRIVATE void cdp__rpc_put_record(uint8_t *at, uint64_t rid, uint64_t fid, uint32_t owner) {
    cdp__put_u64(at, rid);
    cdp__put_u64(at + 8, fid);
    cdp__put_u32(at + 16, owner);
    cdp__put_u32(at + 20, 0);
}

/* True for 1 to `most` bytes of letters, digits and _ . : - */
CDP__PRIVATE bool cdp__rpc_name_fits(const char *name) {
    uint32_t n = 0;
    for (; name && name[n]; ++n) {
        const char c = name[n];
        const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        if (!letter && !(c >= '0' && c <= '9') && c != '_' && c != '.' && c != ':' && c != '-')
            return false;
    }
    return n > 0 && n < CDP__RPC_NAME;
}

/* ---- >>rpc/state: what an rpc holds ---------------------------------------------------------- */

/* Knows: the lock of an rpc, its pools. Promises: callbacks of the program run without the lock;
   used records are reused. */

typedef struct cdp__rpc_task {
    struct cdp__rpc_task *next;
    void (*run)(cdp_rpc *rpc, struct cdp__rpc_task *task); /* without the lock */
} cdp__rpc_task;

/* A message to be sent: `bytes` bytes follow it in memory. */
typedef struct cdp__rpc_out {
    struct cdp__rpc_out *next;
    cdp__rpc_packet p;
    uint32_t to;
    uint32_t waits; /* references in it that are not confirmed */
    uint32_t on;    /* slot of a reference that must be confirmed first, or 0 */
    uint32_t children;
    uint64_t child[CDP__RPC_RREFS];
    uint64_t handle;     /* of its offer, once offered */
    bool broken;         /* a reference in it broke: it must not be sent */
    bool in_order;       /* waits for earlier calls of its order */
    const void *lent;    /* the body in memory of the program; NULL: it follows this record */
    cdp__rpc_task *back; /* runs when the program owns its body again */
} cdp__rpc_out;

typedef struct cdp__rpc_call {
    cdp__rpc_task task; /* runs `done` */
    uint32_t index, uses, next_free;
    uint32_t to, function;
    uint64_t start_ns, deadline_ns;
    uint64_t bytes;  /* of its arguments */
    uint64_t record; /* its number among records */
    cdp_call *call;  /* NULL: nobody waits for it any more */
    cdp_call *done_call;
    void (*done)(void *user, cdp_call *call);
    void *done_user;
    uint32_t on;         /* slot of the reference that it runs on, while in flight */
    uint64_t remote_fid; /* fid of the reference that it creates, or 0 */
    uint64_t order;      /* its number among calls in order; 0: none */
    uint64_t order_on;   /* value that defines the order; 0: the function does */
    cdp_ctx *ctx;        /* used until the record is closed */
    bool used, left, wire_over, one_way;
    bool result_comes; /* a long one was offered */
    bool cut;          /* it has less time than it asked for, see cdp__rpc_cut() */
    bool nested;       /* a function started it */
    bool no_room;      /* it waits for room, see cdp__flight_fits() */
    cdp__rpc_why held; /* what it waited for when its rank reported that last */
    uint64_t held_limit;
    int32_t level;
} cdp__rpc_call;

typedef struct cdp__rpc_value cdp__rpc_value;

typedef enum cdp__rpc_stage {
    CDP__RPC_NEW,
    CDP__RPC_CONFIRMING, /* waits for references among its arguments, or for its turn */
    CDP__RPC_PARKED,     /* waits for the value that it is to run on */
    CDP__RPC_QUEUED,     /* waits for a thread */
    CDP__RPC_RUNNING,
    CDP__RPC_KEPT, /* its function has returned without a reply */
    CDP__RPC_REPLIED
} cdp__rpc_stage;

/* State of one registered function. */
typedef struct cdp__rpc_use {
    uint32_t running;
    bool known; /* it has run, so `waits` is known */
    bool waits; /* it has waited for something of this rpc */
} cdp__rpc_use;

typedef struct cdp__rpc_rq {
    struct cdp_rpc_request pub; /* the first member: the program has a pointer to it */
    struct cdp__rpc_rq *next;
    struct cdp__rpc_rq *after, *before; /* in the list of all */
    const cdp_rpc_function *f;
    cdp__rpc_use *use; /* of f */
    cdp__rpc_stage stage;
    uint64_t call;
    uint32_t flags;
    uint32_t on;    /* slot of the value that it runs on: pinned */
    uint32_t makes; /* slot of the value that it makes: pinned */
    cdp_value on_value;
    uint8_t *buffer;     /* arguments that do not fit `room` */
    cdp_tensor *tensors; /* among its arguments */
    uint64_t area_bytes; /* of arguments, tensors included */
    uint64_t ctx_number; /* number of the context, until that is found */
    uint64_t turn;       /* its place in the queue, see cdp__rpc_enqueue() */
    uint32_t node;       /* node whose backward function runs, or 0 */
    uint32_t made_node;  /* node of this call in its context, or 0 */
    uint64_t room[32];
    cdp_rref refs[CDP__RPC_RREFS];
    uint64_t counted;   /* of in_bytes */
    uint64_t record;    /* its number among records */
    uint64_t report_ns; /* when its caller is told what it waits for, or 0 */
    uint64_t passed_ns; /* since when waits that have too little time pass it over, or 0 */
    int32_t level;
    bool nested; /* a function started it */
    bool cancelled, in_function;
} cdp__rpc_rq;

struct cdp__rpc_value {
    cdp__rpc_task task; /* destroys it */
    cdp_value value;
    bool settled;      /* the value exists, or creating it has failed */
    cdp_status failed; /* OK: the value exists */
    int32_t code;
    char *why;
    cdp__rpc_rq *parked, **parked_end;
    uint8_t *area; /* the library's copy of the contents, or NULL */
    /* what value.plain points to; a handle each of the references */
    cdp_iov *iov;
    cdp_tensor *tensors;
    cdp_rref *rrefs;
};

/* A long body that is being fetched, or that waits for memory. */
typedef struct cdp__rpc_in {
    struct cdp__rpc_in *next;
    cdp_channel_message m;
    uint8_t *body; /* NULL: not asked for yet */
    uint64_t arrived_ns;
    uint64_t report_ns; /* when its caller is told that it waits for memory, or 0 */
    bool cancelled;
} cdp__rpc_in;

typedef struct cdp__rpc_peer {
    cdp__rpc_task task; /* tells the program that the peer is lost */
    char name[CDP__RPC_NAME];
    uint32_t limit;            /* calls under way to it: so many, and so many from functions */
    cdp__rpc_flight flight[2]; /* to it; [1]: of calls that functions have started */
    uint32_t requests[2];      /* of it, here */
    uint64_t turn;             /* of its last request in the queue */
    uint32_t arriving;         /* long bodies of it, in `in` */
    uint32_t marks;            /* how many gradients it may still send */
    bool dropped;              /* it was given up */
    cdp_error why;
    uint64_t sent, received;          /* messages to it and from it, for the sums of shutdown */
    cdp__rpc_out *queue, **queue_end; /* messages that the channel had no room for */
    cdp__rpc_out *list;               /* a queued list that has room, or NULL */
    cdp__rpc_out *offered;            /* bodies that it has not fetched yet */
} cdp__rpc_peer;

/* Further data of each slot of the table. */
typedef struct cdp__rpc_extra {
    cdp__rpc_value *value; /* owner */
    char *label;           /* owner and user */
    cdp__rpc_out *out;     /* hold that waits */
    cdp_status broken;     /* user */
} cdp__rpc_extra;

typedef enum cdp__rpc_phase {
    CDP__RPC_OPEN,
    CDP__RPC_REFUSING,
    CDP__RPC_SHUT
} cdp__rpc_phase;

/* The name of a function that was called from this rank. */
#define CDP__RPC_CALLED 64u
typedef struct cdp__rpc_called {
    uint32_t id;
    char *name;
} cdp__rpc_called;

#define CDP__RPC_BUILTINS 3u
#define CDP__RPC_RECORDS 256u

/* Memory for long messages, kept for reuse, because fresh memory of the system costs as much as
   a copy. */
#define CDP__RPC_AREAS 16u
typedef struct cdp__rpc_area {
    void *at; /* NULL: none */
    uint64_t room;
    bool used;
} cdp__rpc_area;

struct cdp_rpc {
    cdp_rpc_desc desc;
    const cdp_os *os;
    uint32_t forks; /* see cdp__is_child() */
    cdp_lock lock;
    cdp_group *group; /* moves bodies; has no operations, so none can break it */
    cdp_group *sums;  /* exchanges names, and adds up counts in shutdown */
    cdp_channel *channel;
    uint32_t rank, ranks, share;
    cdp__rpc_phase phase;
    bool shutting;  /* cdp_rpc_shutdown() was called */
    bool leaving;   /* closing ranks no longer count as lost */
    cdp__roll roll; /* with desc.survivors; else its lists are NULL */
    uint8_t *word;  /* room for one of the roll */
    cdp__rpc_peer *peers;
    bool *lost;                  /* by rank */
    cdp_rpc_function *functions; /* what desc.functions points to */
    cdp__rpc_use *uses;          /* by function */

    cdp__rpc_called called[CDP__RPC_CALLED]; /* by id */
    cdp__rpc_call **calls;                   /* by index; 0 is not used */
    uint32_t call_room, call_count, call_free, calls_used;
    cdp__rpc_rq *all, *free_rqs;
    uint32_t rqs;                            /* in `all` */
    cdp__rpc_rq *queue, **queue_end;         /* for threads, ordered by turns */
    uint64_t turn, last_turn;                /* that was served last; the largest one so far */
    cdp__rpc_rq *inline_queue, **inline_end; /* requests of this rank to itself, run by callbacks */
    cdp__rpc_rq *confirming;
    cdp__rpc_rq *unparked, **unparked_end; /* their value is settled; while one is looked at */
    cdp__rpc_out *waiting;                 /* messages whose references are not confirmed */
    cdp__rpc_in *in, **in_end;
    uint64_t in_bytes;   /* bodies of `in` and of requests */
    uint64_t grad_bytes; /* gradients of `in` */

    cdp__refs refs;
    cdp__rpc_extra *extra;
    uint64_t ids;    /* numbers created so far */
    uint64_t orders; /* calls in order so far */
    bool confirmed;  /* a reference was confirmed or broke */

    cdp_ctx *contexts;
    uint32_t context_count;
    struct cdp__rpc_wave *waves, **waves_end; /* steps of backward passes on this rank */
    cdp_rpc_function builtins[CDP__RPC_BUILTINS];
    cdp__rpc_use builtin_uses[CDP__RPC_BUILTINS];
    cdp_rpc_function backward; /* stands for the functions of nodes */
    cdp__rpc_use backward_use;

    cdp__rpc_task *tasks, **tasks_end;
    uint64_t timer_ns;
    uint64_t now_ns;                                       /* see cdp__rpc_time() */
    uint64_t refused, late, one_ways, bytes_out, bytes_in; /* since it was created */
    cdp_rpc_record *records; /* of the last CDP__RPC_RECORDS calls, by their numbers */
    uint64_t record_count;
    uint64_t moved_ns; /* when the last call came or ended, see rpc/shutdown.h */
    uint32_t waiters;  /* threads in waits */
    bool changed;      /* waits should look again */

    void *cond; /* where workers sleep; NULL: there are none */
    void **threads;
    uint32_t thread_count, idle;
    bool stop;
    uint32_t kept;       /* requests that outlive cdp_rpc_destroy() */
    uint64_t inline_max; /* CDP__RPC_INLINE_MAX, or what cdp_channel_send() takes if that is less */
    uint8_t *scratch;    /* CDP__RPC_INLINE_MAX bytes, in which short messages are put together */
    cdp__rpc_area areas[CDP__RPC_AREAS];
    uint64_t areas_kept; /* bytes of unused areas */
    /* runs when the body of the message being posted may be freed; NULL: that is copied */
    cdp__rpc_task *lends;
};

/* A gradient that one input of one node sent. */
typedef struct cdp__ctx_sum {
    struct cdp__ctx_sum *next;
    uint32_t rank, node, edge; /* contributions are added in this order */
    cdp_tensor t;              /* its contents follow in memory */
    uint32_t *rows;            /* rows of the contribution, stored after the contents; NULL: all */
} cdp__ctx_sum;

/* Further data of each node. */
typedef struct cdp__ctx_node {
    cdp_status (*backward)(void *user, cdp_backward *b); /* NULL: a leaf, or an import */
    void *user, *saved;
    void (*release)(void *saved);
    uint32_t value; /* the only output of a leaf or an import */
    uint32_t in_count, out_count;
    uint32_t *outputs; /* values; then, for each edge, the index of its input */
    uint32_t *input_of;
} cdp__ctx_node;

/* Further data of each value. */
typedef struct cdp__ctx_value {
    cdp__ctx_sum *sums; /* contributions in this pass */
    cdp__ctx_sum *grad; /* leaf: sum over all passes */
    uint64_t other;     /* import: the value on its home rank; parameter: its rid */
    uint32_t next;      /* in its chain */
} cdp__ctx_value;

/* What a context waits for from each rank. */
enum {
    CDP__CTX_STRANGER,
    CDP__CTX_WITH,   /* it takes part */
    CDP__CTX_ENDING, /* it was told that the context ends */
    CDP__CTX_LOST
};

struct cdp_ctx {
    cdp__rpc_task task; /* frees it */
    cdp_rpc *rpc;
    cdp_ctx *next;
    uint64_t id;
    uint32_t uses;    /* requests, calls, steps of passes and waits that use it */
    uint32_t answers; /* answers that its end waits for */
    bool ended, failed;
    bool mine; /* cdp_ctx_backward() runs on this rank */
    bool over; /* its pass has ended */
    cdp_error why;
    uint8_t *with; /* by rank */
    cdp__waves w;
    cdp__ctx_node *nodes;
    cdp__ctx_value *values;
    uint32_t node_room, edge_room, value_room, receiver_room, chains[64];
    const cdp_tensor *roots;             /* while it is mine */
    const cdp_tensor *sending;           /* gradients of the inputs of the sending node */
    const uint32_t *const *sending_rows; /* rows of each gradient; NULL: all rows of all */
    cdp__rpc_rq *fires, **fires_end;     /* for the thread in cdp_ctx_backward() */
};

/* A step of a pass on this rank. */
typedef struct cdp__rpc_wave {
    struct cdp__rpc_wave *next;
    cdp_ctx *ctx;
    cdp__wave_act act;
    cdp__ctx_sum *sum;
} cdp__rpc_wave;

/* This thread's state for an rpc. */
typedef struct cdp__rpc_here {
    cdp__rpc_rq *request; /* the request whose function runs */
    uint32_t depth;
    int32_t level;     /* of the function that runs, plus 1; 0: none does */
    uint32_t no_wait;  /* inside an INLINE function or a task */
    uint64_t until_ns; /* the deadline of the waits that run it; 0: none */
    cdp_call *done;    /* whose `done` runs; NULL: none, or it has freed its call */
} cdp__rpc_here;

CDP__PRIVATE cdp__rpc_here *cdp__rpc_here_of(void) {
    static CDP__THREAD_LOCAL cdp__rpc_here here;
    return &here;
}

/* The level of the function that this thread runs, or CDP__RPC_OUTSIDE. */
CDP__PRIVATE int32_t cdp__rpc_inside(void) {
    return cdp__rpc_here_of()->level - 1;
}

/* A function that runs inside a wait delays the end of that wait. So its own waits end at most
   this much after the outer one: a function that begins late still has time for a short call. */
#define CDP__RPC_GRACE_NS 50000000u

CDP__PRIVATE void cdp__rpc_lock(cdp_rpc *rpc) {
    cdp_lock_acquire(&rpc->lock);
    rpc->now_ns = 0;
}

/* The time of os->now_ns, read once each time the lock is taken: a call needs it in many places,
   and reading it takes as long as many other steps of a short call. */
CDP__PRIVATE uint64_t cdp__rpc_time(cdp_rpc *rpc) {
    if (!rpc->now_ns) rpc->now_ns = cdp__now(rpc->os);
    return rpc->now_ns;
}

/* So many bytes were copied, which may have taken long. */
CDP__PRIVATE void cdp__rpc_copied(cdp_rpc *rpc, uint64_t bytes) {
    if (bytes > CDP__RPC_INLINE_MAX) rpc->now_ns = 0;
}

/* This process is a child of the one that made the rpc: its locks may be held by threads that are
   not here, its links are the parent's. */
CDP__PRIVATE bool cdp__rpc_forked(const cdp_rpc *rpc, const char *call) {
    if (!cdp__is_child(rpc->forks)) return false;
    (void)cdp__child_refuses(CDP_ERR_INVALID, call, "rpc");
    return true;
}

/* The first check of public functions: the rpc was destroyed, or is a parent's. */
CDP__PRIVATE bool cdp__rpc_gone(const cdp_rpc *rpc, const char *call) {
    if (cdp__rpc_exists(rpc)) return cdp__rpc_forked(rpc, call);
    (void)cdp__fail(CDP_ERR_INVALID, "%s: this rpc was destroyed", call);
    return true;
}

CDP__PRIVATE void cdp__rpc_add_task(cdp_rpc *rpc, cdp__rpc_task *task) {
    task->next = NULL;
    *rpc->tasks_end = task;
    rpc->tasks_end = &task->next;
}

CDP__PRIVATE uint64_t cdp__rpc_number(cdp_rpc *rpc) {
    return (uint64_t)rpc->rank << 48 | ++rpc->ids;
}

CDP__PRIVATE void cdp__rpc_timer(cdp_rpc *rpc, uint64_t at_ns) {
    if (at_ns >= rpc->timer_ns || !rpc->channel) return;
    rpc->timer_ns = at_ns;
    cdp_channel_timer(rpc->channel, at_ns);
}

CDP__PRIVATE uint32_t cdp__rpc_id_of(const char *name) {
    const uint64_t h = cdp__hash(CDP__HASH_START, name ? name : "", name ? strlen(name) : 0);
    const uint32_t id = (uint32_t)(h ^ h >> 32);
    return id ? id : 1;
}

/* The last names that this thread has given to cdp_rpc_id(), by their ids: what a text says of a
   function that is not registered on this rank. */
#define CDP__RPC_WRITTEN 8u
typedef struct cdp__rpc_written {
    uint32_t id;
    char name[CDP__RPC_NAME];
} cdp__rpc_written;

CDP__PRIVATE cdp__rpc_written *cdp__rpc_written_of(uint32_t id) {
    static CDP__THREAD_LOCAL cdp__rpc_written written[CDP__RPC_WRITTEN];
    return &written[id % CDP__RPC_WRITTEN];
}

CDP_API uint32_t cdp_rpc_id(const char *name) {
    const uint32_t id = cdp__rpc_id_of(name);
    cdp__rpc_written *w = cdp__rpc_written_of(id);
    if (w->id != id) cdp__format(w->name, sizeof w->name, "%s", name ? name : "");
    w->id = id;
    return id;
}

/* A copy in memory of the rpc. NULL: of NULL, or out of memory. */
CDP__PRIVATE char *cdp__rpc_text_copy(cdp_rpc *rpc, const char *text) {
    const uint64_t bytes = text ? strlen(text) + 1 : 0;
    char *copy = text ? (char *)cdp__alloc(rpc->os, bytes) : NULL;
    if (copy) memcpy(copy, text, (size_t)bytes);
    return copy;
}

/* A call of this function starts in this thread, which has written its name most likely. */
CDP__PRIVATE void cdp__rpc_remember_name(cdp_rpc *rpc, uint32_t id) {
    cdp__rpc_called *known = &rpc->called[id % CDP__RPC_CALLED];
    const cdp__rpc_written *w = cdp__rpc_written_of(id);
    char *name;
    if (known->id == id || w->id != id) return;
    name = cdp__rpc_text_copy(rpc, w->name);
    if (!name) return; /* texts then say its number */
    cdp__free(rpc->os, known->name);
    known->name = name;
    known->id = id;
}

/* The name of a function for texts: as registered on this rank, else as the program has written it
   in a call, else its number. */
CDP__PRIVATE const char *cdp__rpc_function_name(const cdp_rpc *rpc, uint32_t id, char text[16]) {
    const cdp__rpc_called *known = &rpc->called[id % CDP__RPC_CALLED];
    uint32_t i;
    for (i = 0; i < rpc->desc.function_count; ++i)
        if (cdp__rpc_id_of(rpc->desc.functions[i].name) == id) return rpc->desc.functions[i].name;
    if (known->name && known->id == id) return known->name;
    cdp__format(text, 16, "0x%x", id);
    return text;
}

/* ---- >>rpc/pools: records of calls and requests, memory of long messages --------------------- */

/* Knows: what was used once and is kept for the next use, what is remembered of calls. Promises: a
   record that ended is not taken for the one that uses its memory. */

/* ---- what is remembered of calls */

/* A new one, under way; its number is not 0. */
CDP__PRIVATE uint64_t cdp__rpc_record_new(
    cdp_rpc *rpc, uint64_t call, uint32_t from, uint32_t to, uint32_t function, uint64_t start_ns) {
    cdp_rpc_record *r = &rpc->records[++rpc->record_count % CDP__RPC_RECORDS];
    memset(r, 0, sizeof *r);
    r->call = call;
    r->from = from;
    r->to = to;
    r->function = function;
    r->status = CDP_PENDING;
    r->start_ns = start_ns;
    return rpc->record_count;
}

/* NULL: it has made room for later ones. */
CDP__PRIVATE cdp_rpc_record *cdp__rpc_record_of(cdp_rpc *rpc, uint64_t number) {
    if (!number || rpc->record_count - number >= CDP__RPC_RECORDS) return NULL;
    return &rpc->records[number % CDP__RPC_RECORDS];
}

/* ---- records of calls and requests */

/* Makes a new record. */
CDP__PRIVATE bool cdp__rpc_call_more(cdp_rpc *rpc) {
    const uint32_t room = rpc->call_room ? rpc->call_room * 2 : 16;
    cdp__rpc_call **more = rpc->calls, *c;
    if (rpc->call_count + 1 >= rpc->call_room) {
        more = (cdp__rpc_call **)cdp__alloc_zero(rpc->os, room * sizeof *more);
        if (!more) return false;
        if (rpc->call_room) memcpy(more, rpc->calls, rpc->call_room * sizeof *more);
        cdp__free(rpc->os, rpc->calls);
        rpc->calls = more;
        rpc->call_room = room;
    }
    c = (cdp__rpc_call *)cdp__alloc_zero(rpc->os, sizeof *c);
    if (!c) return false;
    c->index = ++rpc->call_count;
    rpc->calls[c->index] = c;
    rpc->call_free = c->index;
    return true;
}

CDP__PRIVATE cdp__rpc_call *cdp__rpc_call_open(cdp_rpc *rpc) {
    cdp__rpc_call *c;
    uint32_t index, uses;
    if (!rpc->call_free && !cdp__rpc_call_more(rpc)) return NULL;
    index = rpc->call_free;
    c = rpc->calls[index];
    rpc->call_free = c->next_free;
    uses = c->uses + 1;
    memset(c, 0, sizeof *c);
    c->index = index;
    c->uses = uses;
    c->used = true;
    ++rpc->calls_used;
    return c;
}

CDP__PRIVATE void cdp__ctx_unuse(cdp_rpc *rpc, cdp_ctx *ctx) {
    --ctx->uses;
    if (ctx->ended && !ctx->uses) cdp__rpc_add_task(rpc, &ctx->task);
    rpc->changed = true;
}

CDP__PRIVATE void cdp__rpc_call_close(cdp_rpc *rpc, cdp__rpc_call *c) {
    cdp_ctx *ctx = c->ctx;
    c->ctx = NULL;
    if (ctx) cdp__ctx_unuse(rpc, ctx);
    c->used = false;
    c->next_free = rpc->call_free;
    rpc->call_free = c->index;
    --rpc->calls_used;
    rpc->changed = true;
}

CDP__PRIVATE uint64_t cdp__rpc_call_id(const cdp__rpc_call *c) {
    return (uint64_t)c->uses << 32 | c->index;
}

/* Finds a call. NULL: it has ended. */
CDP__PRIVATE cdp__rpc_call *cdp__rpc_call_find(const cdp_rpc *rpc, uint64_t id) {
    const uint32_t index = (uint32_t)id;
    cdp__rpc_call *c = index && index <= rpc->call_count ? rpc->calls[index] : NULL;
    return c && c->used && c->uses == (uint32_t)(id >> 32) ? c : NULL;
}

/* True if all earlier calls of its order were answered. */
CDP__PRIVATE bool cdp__rpc_turn(const cdp_rpc *rpc, const cdp__rpc_call *c) {
    uint32_t i;
    for (i = 1; c && c->order && i <= rpc->call_count; ++i) {
        const cdp__rpc_call *other = rpc->calls[i];
        if (other->used && !other->wire_over && other->order && other->order < c->order
            && other->to == c->to && other->order_on == c->order_on
            && (c->order_on || other->function == c->function))
            return false;
    }
    return true;
}

CDP__PRIVATE void cdp__rpc_record_call(cdp_rpc *rpc, cdp__rpc_call *c) {
    c->record =
        cdp__rpc_record_new(rpc, cdp__rpc_call_id(c), rpc->rank, c->to, c->function, c->start_ns);
    rpc->one_ways += c->one_way;
}

/* The call has ended for its caller; later messages do not change its record. */
CDP__PRIVATE void cdp__rpc_record_end(
    cdp_rpc *rpc, const cdp__rpc_call *c, cdp_status status, cdp_ran ran) {
    cdp_rpc_record *r = cdp__rpc_record_of(rpc, c->record);
    if (!r || r->end_ns) return;
    r->status = status;
    r->ran = ran;
    r->end_ns = cdp__rpc_time(rpc);
}

/* ---- memory of long messages */

/* Returns unused memory to the system. */
CDP__PRIVATE void cdp__rpc_area_drop(cdp_rpc *rpc, cdp__rpc_area *a) {
    if (!a->at || a->used) return;
    rpc->areas_kept -= a->room;
    cdp__free(rpc->os, a->at);
    a->at = NULL;
}

/* Returns NULL when out of memory. */
CDP__PRIVATE void *cdp__rpc_area_alloc(cdp_rpc *rpc, uint64_t bytes) {
    cdp__rpc_area *fit = NULL, *none = NULL;
    uint32_t i;
    if (bytes <= CDP__RPC_INLINE_MAX) return cdp__alloc(rpc->os, bytes);
    for (i = 0; i < CDP__RPC_AREAS; ++i) {
        cdp__rpc_area *a = &rpc->areas[i];
        if (!a->at) none = a;
        if (!a->at || a->used || a->room < bytes || a->room / 2 > bytes) continue;
        if (!fit || a->room < fit->room) fit = a;
    }
    if (fit) {
        rpc->areas_kept -= fit->room;
        fit->used = true;
        return fit->at;
    }
    for (i = 0; i < CDP__RPC_AREAS && !none; ++i) {
        cdp__rpc_area_drop(rpc, &rpc->areas[i]);
        if (!rpc->areas[i].at) none = &rpc->areas[i];
    }
    if (!none) return cdp__alloc(rpc->os, bytes);
    none->at = cdp__alloc(rpc->os, bytes);
    if (!none->at && rpc->areas_kept) {
        for (i = 0; i < CDP__RPC_AREAS; ++i)
            cdp__rpc_area_drop(rpc, &rpc->areas[i]);
        none->at = cdp__alloc(rpc->os, bytes);
    }
    none->room = bytes;
    none->used = none->at != NULL;
    return none->at;
}

/* Frees memory of cdp__rpc_area_alloc(), or any other memory. */
CDP__PRIVATE void cdp__rpc_area_free(cdp_rpc *rpc, void *p) {
    cdp__rpc_area *a = rpc->areas;
    while (p && a < rpc->areas + CDP__RPC_AREAS && a->at != p)
        ++a;
    if (!p || a == rpc->areas + CDP__RPC_AREAS) {
        cdp__free(rpc->os, p);
        return;
    }
    a->used = false;
    rpc->areas_kept += a->room;
    if (rpc->areas_kept > 2 * rpc->desc.max_message_bytes) cdp__rpc_area_drop(rpc, a);
}

CDP__PRIVATE cdp__rpc_rq *cdp__rpc_rq_open(cdp_rpc *rpc) {
    cdp__rpc_rq *rq = rpc->free_rqs;
    if (rq)
        rpc->free_rqs = rq->next;
    else
        rq = (cdp__rpc_rq *)cdp__alloc(rpc->os, sizeof *rq);
    if (!rq) return NULL;
    cdp__ended_remove(rq);
    memset(rq, 0, offsetof(cdp__rpc_rq, room));
    memset(rq->refs, 0, sizeof rq->refs);
    rq->counted = rq->passed_ns = rq->record = 0;
    rq->cancelled = rq->in_function = rq->nested = false;
    rq->level = 0;
    rq->pub.rpc = rpc;
    rq->pub.user = rpc->desc.user;
    rq->pub.rrefs = rq->refs;
    rq->after = rpc->all;
    if (rpc->all) rpc->all->before = rq;
    rpc->all = rq;
    ++rpc->rqs;
    rpc->moved_ns = cdp__rpc_time(rpc);
    return rq;
}

CDP__PRIVATE void cdp__rpc_rq_close(cdp_rpc *rpc, cdp__rpc_rq *rq) {
    if (rq->before)
        rq->before->after = rq->after;
    else
        rpc->all = rq->after;
    if (rq->after) rq->after->before = rq->before;
    rpc->in_bytes -= rq->counted;
    cdp__rpc_area_free(rpc, rq->buffer);
    cdp__free(rpc->os, rq->tensors);
    if (rq->pub.ctx) cdp__ctx_unuse(rpc, rq->pub.ctx);
    rq->next = rpc->free_rqs;
    rpc->free_rqs = rq;
    --rpc->rqs;
    rpc->moved_ns = cdp__rpc_time(rpc);
    rpc->changed = true;
}

CDP__PRIVATE void cdp__rpc_append(cdp__rpc_rq ***end, cdp__rpc_rq *rq) {
    rq->next = NULL;
    **end = rq;
    *end = &rq->next;
}

/* Adds a request to the queue for threads, in which ranks have turns: before it are at most as many
   requests of each other rank as of its own. */
CDP__PRIVATE void cdp__rpc_enqueue(cdp_rpc *rpc, cdp__rpc_rq *rq) {
    cdp__rpc_peer *peer = &rpc->peers[rq->pub.from];
    cdp__rpc_rq **at = &rpc->queue;
    rq->turn = peer->turn = cdp__max(peer->turn, rpc->turn) + 1;
    if (rpc->queue && rq->turn < rpc->last_turn) {
        while (*at && (*at)->turn <= rq->turn)
            at = &(*at)->next;
    } else {
        at = rpc->queue_end;
    }
    rpc->last_turn = cdp__max(rpc->last_turn, rq->turn);
    rq->next = *at;
    *at = rq;
    if (!rq->next) rpc->queue_end = &rq->next;
}

/* Removes a request from a list, if it is in it. True: it was. */
CDP__PRIVATE bool cdp__rpc_unlist(cdp__rpc_rq **list, cdp__rpc_rq ***end, cdp__rpc_rq *rq) {
    cdp__rpc_rq **at = list;
    while (*at && *at != rq)
        at = &(*at)->next;
    if (!*at) return false;
    *at = rq->next;
    if (end && !*at) *end = at;
    return true;
}

/* Makes room for `need` more references. False: out of memory, or max_rrefs is reached. */
CDP__PRIVATE bool cdp__rpc_reserve(cdp_rpc *rpc, uint32_t need) {
    const uint32_t most = rpc->desc.max_rrefs + 1;
    uint32_t room = rpc->refs.room ? rpc->refs.room : 32;
    uint32_t chains = 32, *heads;
    cdp__ref *at;
    cdp__rpc_extra *extra;
    if (rpc->refs.left >= need) return true;
    while (room < most && room - (rpc->refs.room ? rpc->refs.room - rpc->refs.left : 1) < need)
        room *= 2;
    room = (uint32_t)cdp__min(room, most);
    if (room <= rpc->refs.room) return false;
    at = (cdp__ref *)cdp__alloc(rpc->os, room * sizeof *at);
    while (chains < room)
        chains *= 2;
    heads = (uint32_t *)cdp__alloc(rpc->os, chains * sizeof *heads);
    extra = (cdp__rpc_extra *)cdp__alloc_zero(rpc->os, room * sizeof *extra);
    if (at && heads && extra) {
        cdp__ref *old_at = rpc->refs.at;
        uint32_t *old_heads = rpc->refs.heads;
        if (rpc->refs.room) memcpy(extra, rpc->extra, rpc->refs.room * sizeof *extra);
        cdp__refs_move(&rpc->refs, at, room, heads, chains);
        cdp__free(rpc->os, rpc->extra);
        rpc->extra = extra;
        cdp__free(rpc->os, old_at);
        cdp__free(rpc->os, old_heads);
        return rpc->refs.left >= need;
    }
    cdp__free(rpc->os, at);
    cdp__free(rpc->os, heads);
    cdp__free(rpc->os, extra);
    return false;
}

/* ---- >>rpc/send: messages on their way out --------------------------------------------------- */

/* Knows: messages, their references. Promises: messages to one rank are sent in the order in which
   they were posted, unless they wait for a reference or are long; a message that is never sent
   keeps its references on this rank. */

CDP__PRIVATE void cdp__rpc_give_up(cdp_rpc *rpc, uint32_t rank, const char *reason) {
    rpc->peers[rank].dropped = true;
    (void)cdp_channel_drop(rpc->channel, rank, reason);
}

CDP__PRIVATE uint8_t *cdp__rpc_body(cdp__rpc_out *o) {
    return (uint8_t *)(o + 1);
}

/* Frees a message that is sent or dropped. */
CDP__PRIVATE void cdp__rpc_out_free(cdp_rpc *rpc, cdp__rpc_out *o) {
    if (o->back) cdp__rpc_add_task(rpc, o->back);
    cdp__rpc_area_free(rpc, o);
}

CDP__PRIVATE cdp_channel_message cdp__rpc_message(
    const cdp__rpc_packet *p, uint32_t to, const void *body) {
    cdp_channel_message m;
    memset(&m, 0, sizeof m);
    m.peer = to;
    m.kind = cdp__rpc_kind_of(p);
    m.aux = p->aux;
    m.a = p->a;
    m.b = p->b;
    m.bytes = p->bytes;
    m.body = p->bytes ? body : NULL;
    return m;
}

/* What a header says of a deadline. */
CDP__PRIVATE uint32_t cdp__rpc_time_left(cdp_rpc *rpc, uint64_t deadline_ns) {
    const uint64_t now = cdp__rpc_time(rpc);
    uint64_t ms;
    if (deadline_ns == CDP__NEVER) return CDP_NO_TIMEOUT;
    ms = deadline_ns > now ? (deadline_ns - now + CDP__MS - 1) / CDP__MS : 0;
    return (uint32_t)cdp__min(ms, CDP_NO_TIMEOUT - 1);
}

/* What a message of a call says of its time and level. */
CDP__PRIVATE uint64_t cdp__rpc_call_b(cdp_rpc *rpc, const cdp__rpc_call *c) {
    return (uint64_t)c->nested << 48 | (uint64_t)c->level << 32
        | cdp__rpc_time_left(rpc, c->deadline_ns);
}

/* The request has left this rank: from now on it is not certain that it did not run. */
CDP__PRIVATE void cdp__rpc_left(cdp_rpc *rpc, uint32_t to, const cdp__rpc_packet *p) {
    cdp__rpc_call *c = p->kind == CDP__RPC_CALL ? cdp__rpc_call_find(rpc, p->a) : NULL;
    cdp_rpc_record *r = c ? cdp__rpc_record_of(rpc, c->record) : NULL;
    if (p->kind != CDP__RPC_ROLL && (p->kind != CDP__RPC_ACCEPT || !CDP__RPC_PLANT(NOT_COUNTED)))
        ++rpc->peers[to].sent;
    rpc->bytes_out += CDP__HEAD_BYTES + p->bytes;
    cdp__rpc_copied(rpc, p->bytes);
    if (c) c->left = true;
    if (r) r->sent_ns = cdp__rpc_time(rpc);
}

/* Sends queued messages to a peer, as far as the channel has room. */
CDP__PRIVATE void cdp__rpc_flush(cdp_rpc *rpc, uint32_t to) {
    cdp__rpc_peer *peer = &rpc->peers[to];
    while (peer->queue && !rpc->lost[to]) {
        cdp__rpc_out *o = peer->queue;
        const cdp__rpc_call *c =
            o->p.kind == CDP__RPC_CALL ? cdp__rpc_call_find(rpc, o->p.a) : NULL;
        cdp_channel_message m;
        cdp_status st;
        const bool offer = o->p.bytes > rpc->inline_max;
        if (c) o->p.b = cdp__rpc_call_b(rpc, c); /* it has waited */
        m = cdp__rpc_message(&o->p, to, o->lent ? o->lent : cdp__rpc_body(o));
        st = offer ? cdp_channel_offer(rpc->channel, &m, &o->handle)
                   : cdp_channel_send(rpc->channel, &m);
        if (st == CDP_ERR_NOMEM) cdp__rpc_give_up(rpc, to, "out of memory for a message to it");
        if (st != CDP_OK) return;
        cdp__rpc_left(rpc, to, &o->p);
        if (o == peer->list) peer->list = NULL;
        peer->queue = o->next;
        if (!o->next) peer->queue_end = &peer->queue;
        if (offer && o->back && CDP__RPC_PLANT(BACK_EARLY)) {
            cdp__rpc_add_task(rpc, o->back);
            o->back = NULL;
        }
        if (offer) {
            o->next = peer->offered;
            peer->offered = o;
        } else {
            cdp__rpc_out_free(rpc, o);
        }
    }
}

CDP__PRIVATE void cdp__rpc_queue_out(cdp_rpc *rpc, cdp__rpc_out *o) {
    cdp__rpc_peer *peer = &rpc->peers[o->to];
    o->next = NULL;
    *peer->queue_end = o;
    peer->queue_end = &o->next;
    cdp__rpc_flush(rpc, o->to);
}

/* Bytes of the tensors, each padded to 8 bytes, and of the other data. */
CDP__PRIVATE uint64_t cdp__rpc_args_bytes(const cdp_args *args) {
    uint64_t n = 0;
    uint32_t i;
    for (i = 0; args && i < args->tensor_count; ++i) {
        const uint64_t one = cdp__rpc_tensor_bytes(&args->tensors[i]);
        n = one > UINT64_MAX / 4 - n ? UINT64_MAX / 4 : n + cdp__rpc_filled(one);
    }
    for (i = 0; args && i < args->iov_count; ++i)
        n = args->iov[i].bytes > UINT64_MAX / 2 - n ? UINT64_MAX / 2 : n + args->iov[i].bytes;
    return n;
}

CDP__PRIVATE void cdp__rpc_gather(uint8_t *to, const cdp_args *args) {
    uint32_t i;
    for (i = 0; args && i < args->tensor_count; ++i) {
        const uint64_t n = cdp__rpc_tensor_bytes(&args->tensors[i]);
        if (n) memcpy(to, args->tensors[i].data, (size_t)n);
        memset(to + n, 0, (size_t)(cdp__rpc_filled(n) - n));
        to += cdp__rpc_filled(n);
    }
    for (i = 0; args && i < args->iov_count; ++i) {
        if (args->iov[i].bytes) memcpy(to, args->iov[i].data, (size_t)args->iov[i].bytes);
        to += args->iov[i].bytes;
    }
}

/* Points the tensors of `args` to their contents in `area`. Returns where the bytes after them
   begin. */
CDP__PRIVATE uint8_t *cdp__rpc_tensors_in(
    cdp_tensor *out, const cdp_tensor *like, uint32_t count, uint8_t *area) {
    uint32_t i;
    for (i = 0; i < count; ++i) {
        out[i] = like[i];
        out[i].data = area;
        area += cdp__rpc_filled(cdp__rpc_tensor_bytes(&like[i]));
    }
    return area;
}

/* Writes the part of a message before its references. Returns the position after it. */
CDP__PRIVATE uint8_t *cdp__rpc_put_head(uint8_t *at, const cdp__rpc_packet *p) {
    if (p->flags & CDP__RPC_ON) {
        cdp__put_u64(at, p->rid);
        cdp__put_u64(at + 8, p->fid);
        at += 16;
    }
    if (p->flags & CDP__RPC_REMOTE) {
        cdp__put_u64(at, p->makes_rid);
        cdp__put_u64(at + 8, p->makes_fid);
        at += 16;
    }
    if (p->flags & CDP__RPC_CTX) {
        cdp__put_u64(at, p->slot);
        at += 8;
    }
    return at;
}

/* Writes the part after the references. */
CDP__PRIVATE void cdp__rpc_put_args(uint8_t *at, const cdp__rpc_packet *p, const cdp_args *args) {
    const bool tags = (p->flags & CDP__RPC_CTX) && p->kind <= CDP__RPC_REPLY;
    uint32_t i;
    for (i = 0; i < p->tensors; ++i, at += CDP__RPC_SHAPE)
        cdp__rpc_put_shape(at, &args->tensors[i], tags ? args->tensors[i].value : 0);
    cdp__rpc_gather(at, args);
}

/* Posts a message without references. OK: it is sent or queued. */
CDP__PRIVATE cdp_status cdp__rpc_post(
    cdp_rpc *rpc, uint32_t to, cdp__rpc_packet *p, const cdp_args *args) {
    uint64_t head;
    cdp__rpc_out *o;
    bool lend;
    if (rpc->lost[to]) return CDP_OK; /* the peer is lost */
    p->tensors = args ? args->tensor_count : 0;
    head = cdp__rpc_head_bytes(p);
    p->bytes = head + cdp__rpc_args_bytes(args);
    if (!rpc->peers[to].queue && p->bytes <= rpc->inline_max) {
        const bool direct = !head && args && args->iov_count == 1;
        const void *body = direct ? args->iov[0].data : rpc->scratch;
        cdp_channel_message m;
        cdp_status st;
        if (!direct) cdp__rpc_put_args(cdp__rpc_put_head(rpc->scratch, p), p, args);
        m = cdp__rpc_message(p, to, body);
        st = cdp_channel_send(rpc->channel, &m);
        if (st == CDP_OK) cdp__rpc_left(rpc, to, p);
        if (st == CDP_OK || st == CDP_ERR_PEER_LOST) return CDP_OK;
        if (st != CDP_PENDING) return st;
    }
    lend = rpc->lends && p->bytes > rpc->inline_max && !head && args->iov_count == 1;
    o = (cdp__rpc_out *)cdp__rpc_area_alloc(rpc, sizeof *o + (lend ? 0 : p->bytes));
    if (!o) return cdp__fail_nomem("a message of a call", sizeof *o + p->bytes);
    memset(o, 0, sizeof *o);
    o->p = *p;
    o->to = to;
    if (lend) {
        o->lent = args->iov[0].data;
        o->back = rpc->lends;
        rpc->lends = NULL;
    } else {
        cdp__rpc_put_args(cdp__rpc_put_head(cdp__rpc_body(o), p), p, args);
    }
    cdp__rpc_queue_out(rpc, o);
    return CDP_OK;
}

/* Posts a message that the protocol requires: if memory runs out, the peer is given up. */
CDP__PRIVATE void cdp__rpc_must_post(
    cdp_rpc *rpc, uint32_t to, cdp__rpc_packet *p, const cdp_args *args) {
    if (cdp__rpc_post(rpc, to, p, args) != CDP_OK)
        cdp__rpc_give_up(rpc, to, "out of memory for a message to it");
}

/* While the queue to a rank is not empty, messages about references are combined into one. They
   may then overtake other messages, which the table allows. False: send it by itself. */
CDP__PRIVATE bool cdp__rpc_listed(
    cdp_rpc *rpc, uint32_t to, cdp__rpc_kind kind, uint64_t a, uint64_t b) {
    cdp__rpc_peer *peer = &rpc->peers[to];
    cdp__rpc_out *o = peer->list;
    uint8_t *at;
    if (!cdp__rpc_is_list(kind) || !peer->queue) return false;
    if (o && o->p.kind == kind && o->p.bytes < CDP__RPC_LIST) {
        at = cdp__rpc_body(o) + o->p.bytes;
        cdp__put_u64(at, a);
        cdp__put_u64(at + 8, b);
        o->p.bytes += 16;
        return true;
    }
    o = (cdp__rpc_out *)cdp__alloc(rpc->os, sizeof *o + CDP__RPC_LIST);
    if (!o) return false;
    memset(o, 0, sizeof *o);
    o->p.kind = kind;
    o->p.a = a;
    o->p.b = b;
    o->to = to;
    peer->list = o;
    cdp__rpc_queue_out(rpc, o);
    return true;
}

CDP__PRIVATE void cdp__rpc_control(
    cdp_rpc *rpc, uint32_t to, cdp__rpc_kind kind, uint64_t a, uint64_t b, uint32_t aux) {
    cdp__rpc_packet p;
    if (cdp__rpc_listed(rpc, to, kind, a, b)) return;
    memset(&p, 0, sizeof p);
    p.kind = kind;
    p.a = a;
    p.b = b;
    p.aux = aux;
    cdp__rpc_must_post(rpc, to, &p, NULL);
}

/* ---- messages with references */

/* The slot of a handle; 0: the handle was dropped, see this thread's last error. */
CDP__PRIVATE uint32_t cdp__rpc_slot(cdp_rpc *rpc, const char *call, cdp_rref rref) {
    const uint32_t slot = (uint32_t)rref.slot;
    if (rref.rpc == rpc && slot && slot < rpc->refs.room) {
        const cdp__ref *r = &rpc->refs.at[slot];
        if (r->uses == (uint32_t)(rref.slot >> 32) && r->handles
            && (r->kind == CDP__REF_OWNER || r->kind == CDP__REF_USER))
            return slot;
    }
    if (rref.rpc != rpc)
        (void)cdp__fail(CDP_ERR_INVALID, "%s: %s", call,
            rref.rpc ? "the reference belongs to another rpc; use one of this rpc"
                     : "there is no reference in this cdp_rref");
    else
        (void)cdp__fail(CDP_ERR_STATE,
            "%s: the reference was dropped before; keep it with cdp_rref_keep() as long as you "
            "use it",
            call);
    return 0;
}

CDP__PRIVATE cdp_rref cdp__rpc_rref(cdp_rpc *rpc, uint32_t slot) {
    cdp_rref r;
    r.rpc = rpc;
    r.slot = (uint64_t)rpc->refs.at[slot].uses << 32 | slot;
    return r;
}

/* Tensors are described fully, and bytes have memory; else the reason is this thread's last error.
   Before anything else looks at them. */
CDP__PRIVATE cdp_status cdp__rpc_args_check(const char *call, const cdp_args *args) {
    uint32_t i;
    for (i = 0; args && i < args->iov_count; ++i)
        if (!args->iov || (args->iov[i].bytes && !args->iov[i].data))
            return cdp__fail(CDP_ERR_INVALID, "%s: args.iov[%u] has no memory", call, i);
    if (!args || !args->tensor_count) return CDP_OK;
    if (!args->tensors || args->tensor_count > CDP__RPC_TENSORS)
        return cdp__fail(CDP_ERR_INVALID, "%s: %u tensors in one message; at most %u travel", call,
            args->tensor_count, CDP__RPC_TENSORS);
    for (i = 0; i < args->tensor_count; ++i) {
        const cdp_tensor *t = &args->tensors[i];
        if (!cdp_dtype_size(t->dtype) || t->dims > 8)
            return cdp__fail(CDP_ERR_INVALID,
                "%s: tensors[%u] has dtype %d and %u dims; set a dtype and at most 8", call, i,
                (int)t->dtype, t->dims);
        if (!t->data && cdp__rpc_tensor_bytes(t))
            return cdp__fail(CDP_ERR_INVALID, "%s: tensors[%u] has no memory", call, i);
    }
    return CDP_OK;
}

/* Checks that all references can be used; if not, sets this thread's last error. */
CDP__PRIVATE cdp_status cdp__rpc_rrefs_check(cdp_rpc *rpc, const char *call, const cdp_args *args) {
    uint32_t i;
    if (args && args->rref_count > CDP__RPC_RREFS)
        return cdp__fail(CDP_ERR_INVALID, "%s: %u references in one message; at most %u travel",
            call, args->rref_count, CDP__RPC_RREFS);
    if (args && args->rref_count && !args->rrefs) return cdp__missing(call, "args.rrefs");
    for (i = 0; args && i < args->rref_count; ++i) {
        const uint32_t slot = cdp__rpc_slot(rpc, call, args->rrefs[i]);
        if (!slot) return cdp_last_error()->status;
        if (rpc->refs.at[slot].state == CDP__REF_BROKEN)
            return cdp__fail_peer(rpc->extra[slot].broken, rpc->refs.at[slot].rank, 0,
                "%s: a reference to a value of rank %u cannot be shared: that rank is lost, or "
                "never confirmed it",
                call, rpc->refs.at[slot].rank);
    }
    return CDP_OK;
}

/* Drops a message that will not be sent: its references stay here. */
CDP__PRIVATE void cdp__rpc_out_drop(cdp_rpc *rpc, cdp__rpc_out *o) {
    uint32_t i;
    for (i = 0; i < o->children; ++i) {
        const uint32_t hold = cdp__refs_find(&rpc->refs, CDP__REF_HOLD, o->child[i]);
        if (hold) rpc->extra[hold].out = NULL;
        cdp__ref_unshare(&rpc->refs, o->child[i]);
    }
    cdp__rpc_out_free(rpc, o);
}

/* Posts a message that contains references, or that waits for `on` or for its turn. The
   references were checked, and there is room. */
CDP__PRIVATE cdp_status cdp__rpc_post_rrefs(cdp_rpc *rpc, uint32_t to, cdp__rpc_packet *p,
    const cdp_args *args, uint32_t on, bool in_order) {
    cdp__rpc_out *o;
    uint8_t *at;
    uint32_t i;
    if (rpc->lost[to]) return CDP_OK;
    p->rrefs = args ? args->rref_count : 0;
    p->tensors = args ? args->tensor_count : 0;
    p->bytes = cdp__rpc_head_bytes(p) + cdp__rpc_args_bytes(args);
    o = (cdp__rpc_out *)cdp__rpc_area_alloc(rpc, sizeof *o + p->bytes);
    if (!o) return cdp__fail_nomem("a message of a call", sizeof *o + p->bytes);
    memset(o, 0, sizeof *o);
    o->p = *p;
    o->to = to;
    at = cdp__rpc_put_head(cdp__rpc_body(o), p);
    for (i = 0; i < p->rrefs; ++i, at += CDP__RPC_RECORD) {
        const uint32_t slot = (uint32_t)args->rrefs[i].slot;
        const uint64_t child = cdp__rpc_number(rpc);
        cdp__rpc_put_record(at, rpc->refs.at[slot].rid, child, rpc->refs.at[slot].rank);
        o->child[o->children++] = child;
        if (cdp__ref_share(&rpc->refs, slot, child, to) != CDP__REF_PENDING) continue;
        ++o->waits;
        rpc->extra[cdp__refs_find(&rpc->refs, CDP__REF_HOLD, child)].out = o;
    }
    cdp__rpc_put_args(at, p, args);
    if (on && rpc->refs.at[on].state == CDP__REF_PENDING) o->on = on;
    o->in_order = in_order;
    if (!o->waits && !o->on && !in_order) {
        cdp__rpc_queue_out(rpc, o);
        return CDP_OK;
    }
    o->next = rpc->waiting;
    rpc->waiting = o;
    return CDP_OK;
}

/* Carries out an action of the table. */
CDP__PRIVATE void cdp__rpc_act(void *user, const cdp__ref_act *a) {
    cdp_rpc *rpc = (cdp_rpc *)user;
    cdp__rpc_extra *x = &rpc->extra[a->slot];
    switch (a->what) {
    case CDP__REF_SEND_REMOTE_ACK:
        cdp__rpc_control(rpc, a->to, CDP__RPC_REMOTE_ACK, a->rid, a->fid, (uint32_t)a->how);
        break;
    case CDP__REF_SEND_FORK:
        cdp__rpc_control(rpc, a->to, CDP__RPC_FORK, a->rid, a->fid, a->parent);
        break;
    case CDP__REF_SEND_FORK_ACK:
        cdp__rpc_control(rpc, a->to, CDP__RPC_FORK_ACK, a->rid, a->fid, (uint32_t)a->how);
        break;
    case CDP__REF_SEND_ACCEPT: cdp__rpc_control(rpc, a->to, CDP__RPC_ACCEPT, 0, a->fid, 0); break;
    case CDP__REF_SEND_DELETE:
        cdp__rpc_control(rpc, a->to, CDP__RPC_DELETE, a->rid, a->fid, 0);
        break;
    case CDP__REF_SHARE_NEVER:
    case CDP__REF_SHARE_NOW:
        if (!x->out) break;
        if (a->what == CDP__REF_SHARE_NEVER) x->out->broken = true;
        --x->out->waits;
        x->out = NULL;
        rpc->confirmed = true;
        break;
    case CDP__REF_NOW_BROKEN:
        x->broken = a->how == CDP__REF_FULL ? CDP_ERR_BUSY : CDP_ERR_PEER_LOST;
        rpc->confirmed = rpc->changed = true;
        break;
    case CDP__REF_NOW_LIVE: rpc->confirmed = rpc->changed = true; break;
    case CDP__REF_NOW_ENDED:
        if (x->value) cdp__rpc_add_task(rpc, &x->value->task);
        cdp__free(rpc->os, x->label);
        memset(x, 0, sizeof *x);
        break;
    case CDP__REF_WHATS: break;
    }
}

/* ---- >>rpc/roll_call: says and hears words of a shutdown among ranks that are alive ---------- */

/* Knows: the message of a word. Promises: a rank that is counted out is told so before its link is
   given up; a list that changes within a turn is said again. */

CDP__PRIVATE cdp_status cdp__rpc_roll_open(cdp_rpc *rpc) {
    cdp__roll *roll = &rpc->roll;
    const uint64_t bytes = cdp__roll_bytes(rpc->ranks);
    if (bytes > rpc->inline_max)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_rpc_create: survivors of %u ranks needs a window_bytes of the group of %llu",
            rpc->ranks, (unsigned long long)(4 * bytes));
    roll->rank = rpc->rank;
    roll->ranks = rpc->ranks;
    roll->cut_by = -1;
    roll->words = (cdp__roll_word *)cdp__alloc_zero(rpc->os, rpc->ranks * sizeof *roll->words);
    roll->out = (bool *)cdp__alloc_zero(rpc->os, rpc->ranks);
    roll->sum_out = (bool *)cdp__alloc_zero(rpc->os, rpc->ranks);
    rpc->word = (uint8_t *)cdp__alloc_zero(rpc->os, bytes);
    if (roll->words && roll->out && roll->sum_out && rpc->word) return CDP_OK;
    return cdp__fail_nomem("words of a shutdown", rpc->ranks * sizeof *roll->words);
}

CDP__PRIVATE void cdp__rpc_roll_close(cdp_rpc *rpc) {
    cdp__free(rpc->os, rpc->roll.words);
    cdp__free(rpc->os, rpc->roll.out);
    cdp__free(rpc->os, rpc->roll.sum_out);
    cdp__free(rpc->os, rpc->word);
}

/* Says something to all ranks that have not left. Those that are counted out hear it, and no more:
   so one that is alive learns that it is. */
CDP__PRIVATE void cdp__rpc_say(cdp_rpc *rpc, cdp__roll_kind kind, const cdp__roll_say *say) {
    const cdp__roll *roll = &rpc->roll;
    cdp_iov iov;
    cdp_args args;
    uint32_t r;
    cdp__roll_put(roll, say, rpc->word);
    iov.data = rpc->word;
    iov.bytes = cdp__roll_bytes(rpc->ranks);
    memset(&args, 0, sizeof args);
    args.iov = &iov;
    args.iov_count = 1;
    for (r = 0; r < rpc->ranks; ++r) {
        cdp__rpc_packet p;
        if (r == rpc->rank || rpc->lost[r]) continue;
        memset(&p, 0, sizeof p);
        p.kind = CDP__RPC_ROLL;
        p.aux = (uint32_t)kind;
        p.a = roll->turn + (kind == CDP__ROLL_LAST);
        cdp__rpc_must_post(rpc, r, &p, &args);
        if (roll->out[r])
            (void)cdp_channel_drop(rpc->channel, r, "a rank that goes on has lost it");
    }
}

/* The list has changed: within a turn, it is said again. */
CDP__PRIVATE void cdp__rpc_roll_changed(cdp_rpc *rpc) {
    rpc->changed = true;
    if (rpc->roll.turn && !rpc->roll.over) cdp__rpc_say(rpc, CDP__ROLL_TURN, &rpc->roll.mine);
}

CDP__PRIVATE const char *cdp__rpc_got_roll(cdp_rpc *rpc, uint32_t from, const cdp__rpc_packet *p) {
    const char *wrong;
    bool changed;
    if (!rpc->roll.words || p->bytes != cdp__roll_bytes(rpc->ranks)) return "a word of no length";
    if (p->aux >= CDP__ROLL_KINDS) return "a word of no kind";
    wrong = cdp__roll_got(&rpc->roll, from, (cdp__roll_kind)p->aux, p->a, p->body, &changed);
    rpc->changed = true;
    if (changed) cdp__rpc_roll_changed(rpc);
    return wrong;
}

/* The link to a rank has ended. */
CDP__PRIVATE void cdp__rpc_roll_lost(cdp_rpc *rpc, uint32_t rank) {
    if (rpc->roll.words && cdp__roll_lost(&rpc->roll, rank)) cdp__rpc_roll_changed(rpc);
}

/* True if the program learns that the link to this rank has ended. */
CDP__PRIVATE bool cdp__rpc_tells_lost(const cdp_rpc *rpc, uint32_t rank) {
    return !rpc->leaving && !(rpc->roll.words && rpc->roll.words[rank].left);
}

/* ---- >>rpc/contexts: values, nodes and gradients of a context -------------------------------- */

/* Knows: contexts that this rank takes part in. Promises: a context has one record here from its
   first call until its origin ends it or is lost, and its memory until nothing uses it; the
   first failure reaches every rank of it through its origin. */

CDP__PRIVATE void cdp__ctx_sums_free(cdp_rpc *rpc, cdp__ctx_sum **list) {
    while (*list) {
        cdp__ctx_sum *next = (*list)->next;
        cdp__free(rpc->os, *list);
        *list = next;
    }
}

/* Runs without the lock, because memory that the program has saved is released. */
CDP__PRIVATE void cdp__ctx_free(cdp_rpc *rpc, cdp__rpc_task *task) {
    cdp_ctx *ctx = (cdp_ctx *)task;
    uint32_t i;
    for (i = 1; i <= ctx->w.node_count; ++i) {
        if (ctx->nodes[i].release) ctx->nodes[i].release(ctx->nodes[i].saved);
        cdp__free(rpc->os, ctx->nodes[i].outputs);
    }
    for (i = 1; i <= ctx->w.value_count; ++i) {
        cdp__ctx_sums_free(rpc, &ctx->values[i].sums);
        cdp__ctx_sums_free(rpc, &ctx->values[i].grad);
    }
    cdp__free(rpc->os, ctx->w.nodes);
    cdp__free(rpc->os, ctx->w.edges);
    cdp__free(rpc->os, ctx->w.values);
    cdp__free(rpc->os, ctx->w.receivers);
    cdp__free(rpc->os, ctx->nodes);
    cdp__free(rpc->os, ctx->values);
    cdp__free(rpc->os, ctx->with);
    cdp__free(rpc->os, ctx);
}

CDP__PRIVATE cdp_ctx *cdp__ctx_find(const cdp_rpc *rpc, uint64_t id) {
    cdp_ctx *ctx = rpc->contexts;
    while (ctx && ctx->id != id)
        ctx = ctx->next;
    return ctx;
}

/* Removes a context from this rank's list. Its memory stays until nothing uses it. */
CDP__PRIVATE void cdp__ctx_drop(cdp_rpc *rpc, cdp_ctx *ctx) {
    cdp_ctx **at = &rpc->contexts;
    while (*at && *at != ctx)
        at = &(*at)->next;
    if (!*at) return; /* its origin was lost meanwhile */
    *at = ctx->next;
    --rpc->context_count;
    ctx->ended = true;
    cdp__ended_add(ctx);
    ++ctx->uses;
    cdp__ctx_unuse(rpc, ctx);
}

/* Enlarges an array; copies the old contents. */
CDP__PRIVATE bool cdp__ctx_grow(
    cdp_rpc *rpc, void *array, uint32_t room, uint32_t more, uint64_t size) {
    void *old, *now = cdp__alloc_zero(rpc->os, more * size);
    memcpy(&old, array, sizeof old);
    if (!now) return false;
    if (room) memcpy(now, old, (size_t)(room * size));
    cdp__free(rpc->os, old);
    memcpy(array, &now, sizeof now);
    return true;
}

CDP__PRIVATE uint32_t cdp__ctx_more(uint32_t room, uint32_t need) {
    uint32_t more = room ? room : 16;
    while (more < need)
        more *= 2;
    return more;
}

/* Makes room for so many more of each. False: out of memory. */
CDP__PRIVATE bool cdp__ctx_reserve(cdp_rpc *rpc, cdp_ctx *ctx, uint32_t nodes, uint32_t edges,
    uint32_t values, uint32_t receivers) {
    cdp__waves *w = &ctx->w;
    const uint32_t n = cdp__ctx_more(ctx->node_room, w->node_count + nodes + 1);
    const uint32_t e = cdp__ctx_more(ctx->edge_room, w->edge_count + edges + 1);
    const uint32_t v = cdp__ctx_more(ctx->value_room, w->value_count + values + 1);
    const uint32_t g = cdp__ctx_more(ctx->receiver_room, w->receiver_count + receivers + 1);
    if (n > ctx->node_room) {
        if (!cdp__ctx_grow(rpc, &w->nodes, ctx->node_room, n, sizeof *w->nodes)
            || !cdp__ctx_grow(rpc, &ctx->nodes, ctx->node_room, n, sizeof *ctx->nodes))
            return false;
        ctx->node_room = n;
    }
    if (e > ctx->edge_room) {
        if (!cdp__ctx_grow(rpc, &w->edges, ctx->edge_room, e, sizeof *w->edges)) return false;
        ctx->edge_room = e;
    }
    if (v > ctx->value_room) {
        if (!cdp__ctx_grow(rpc, &w->values, ctx->value_room, v, sizeof *w->values)
            || !cdp__ctx_grow(rpc, &ctx->values, ctx->value_room, v, sizeof *ctx->values))
            return false;
        ctx->value_room = v;
    }
    if (g > ctx->receiver_room) {
        if (!cdp__ctx_grow(rpc, &w->receivers, ctx->receiver_room, g, sizeof *w->receivers))
            return false;
        ctx->receiver_room = g;
    }
    return true;
}

/* ---- failures */

CDP__PRIVATE void cdp__ctx_post_fail(cdp_rpc *rpc, const cdp_ctx *ctx, uint32_t to) {
    cdp__rpc_packet p;
    cdp_args args;
    cdp_iov iov;
    memset(&p, 0, sizeof p);
    memset(&args, 0, sizeof args);
    p.kind = CDP__RPC_CTX_FAIL;
    p.a = ctx->id;
    p.aux = (uint32_t) - (int32_t)ctx->why.status;
    p.b = (uint64_t)(uint32_t)ctx->why.peer;
    iov.data = (void *)(uintptr_t)ctx->why.text;
    iov.bytes = cdp__min(strlen(ctx->why.text), CDP__RPC_TEXT);
    args.iov = &iov;
    args.iov_count = 1;
    cdp__rpc_must_post(rpc, to, &p, &args);
}

/* Records the first failure of the context. `from`: the rank that reported it; `peer`: the world
   rank to blame. */
CDP__PRIVATE void cdp__ctx_fail(
    cdp_rpc *rpc, cdp_ctx *ctx, cdp_status status, int32_t peer, uint32_t from, const char *text) {
    const uint32_t origin = cdp__rpc_maker(ctx->id);
    const cdp_error before = *cdp_last_error();
    uint32_t r;
    if (ctx->failed || ctx->ended) return;
    (void)cdp__fail_peer(status, peer, 0, "%s", text);
    ctx->why = *cdp_last_error();
    ctx->why.peer = peer;
    *cdp__error_slot() = before;
    ctx->failed = true;
    rpc->changed = true;
    for (r = 1; r <= ctx->w.value_count; ++r)
        cdp__ctx_sums_free(rpc, &ctx->values[r].sums);
    if (origin != rpc->rank) {
        if (from != origin) cdp__ctx_post_fail(rpc, ctx, origin);
        return;
    }
    for (r = 0; r < rpc->ranks; ++r)
        if (ctx->with[r] == CDP__CTX_WITH && r != from) cdp__ctx_post_fail(rpc, ctx, r);
}

/* Fails a context because of an error on this rank. */
CDP__PRIVATE CDP__PRINTF(4, 5) void cdp__ctx_fail_here(
    cdp_rpc *rpc, cdp_ctx *ctx, cdp_status status, const char *format, ...) {
    char text[CDP__RPC_TEXT + 1];
    cdp__text t = cdp__text_of(text, sizeof text);
    va_list ap;
    va_start(ap, format);
    cdp__text_add_v(&t, format, ap);
    va_end(ap);
    cdp__ctx_fail(
        rpc, ctx, status, (int32_t)cdp_world_rank_of(rpc->group, rpc->rank), rpc->rank, text);
}

/* ---- messages of passes */

/* Allocates a record for a gradient like `t`, of some rows or of all. NULL: out of memory. */
CDP__PRIVATE cdp__ctx_sum *cdp__ctx_room_for(cdp_rpc *rpc, const cdp_tensor *t, bool rows) {
    const uint64_t bytes = cdp__rpc_filled(cdp__rpc_tensor_bytes(t));
    const uint64_t head = cdp__rpc_filled(sizeof(cdp__ctx_sum));
    const uint64_t more = rows ? t->shape[0] * sizeof(uint32_t) : 0;
    cdp__ctx_sum *sum = (cdp__ctx_sum *)cdp__alloc(rpc->os, head + bytes + more);
    if (!sum) return NULL;
    memset(sum, 0, sizeof *sum);
    sum->t = *t;
    sum->t.value = 0;
    sum->t.data = (uint8_t *)sum + head;
    if (rows) sum->rows = (uint32_t *)(void *)((uint8_t *)sum + head + bytes);
    return sum;
}

/* Copies a gradient to a new record. NULL: out of memory. */
CDP__PRIVATE cdp__ctx_sum *cdp__ctx_copy(cdp_rpc *rpc, const cdp_tensor *t, const uint32_t *rows,
    uint32_t rank, uint32_t node, uint32_t edge) {
    const uint64_t bytes = cdp__rpc_tensor_bytes(t);
    cdp__ctx_sum *sum = cdp__ctx_room_for(rpc, t, rows != NULL);
    if (!sum) return NULL;
    sum->rank = rank;
    sum->node = node;
    sum->edge = edge;
    if (bytes) memcpy(sum->t.data, t->data, (size_t)bytes);
    if (rows) memcpy(sum->rows, rows, (size_t)(t->shape[0] * sizeof *rows));
    return sum;
}

CDP__PRIVATE const cdp_tensor *cdp__ctx_sent(
    const cdp_ctx *ctx, const cdp__wave_act *a, const uint32_t **rows) {
    const uint32_t *input_of;
    uint32_t input;
    *rows = NULL;
    /* in other messages the node may be one of another rank */
    if (a->what != CDP__WAVE_SEND_GRAD) return NULL;
    input_of = a->node ? ctx->nodes[a->node].input_of : NULL;
    input = input_of ? input_of[a->edge] : a->edge;
    if (!ctx->sending[input].data) return NULL;
    if (ctx->sending_rows) *rows = ctx->sending_rows[input];
    return &ctx->sending[input];
}

/* A message to a node of this rank becomes a step in a list. */
CDP__PRIVATE void cdp__ctx_local(cdp_rpc *rpc, cdp_ctx *ctx, const cdp__wave_act *a) {
    const uint32_t *rows;
    const cdp_tensor *t = cdp__ctx_sent(ctx, a, &rows);
    cdp__rpc_wave *w = (cdp__rpc_wave *)cdp__alloc_zero(rpc->os, sizeof *w);
    if (w && t) w->sum = cdp__ctx_copy(rpc, t, rows, rpc->rank, a->node, a->edge);
    if (!w || (t && !w->sum)) {
        cdp__free(rpc->os, w);
        cdp__ctx_fail_here(rpc, ctx, CDP_ERR_NOMEM, "out of memory for a gradient");
        return;
    }
    w->ctx = ctx;
    ++ctx->uses;
    w->act = *a;
    *rpc->waves_end = w;
    rpc->waves_end = &w->next;
}

CDP__PRIVATE void cdp__ctx_remote(cdp_rpc *rpc, cdp_ctx *ctx, const cdp__wave_act *a) {
    static const cdp__rpc_kind kinds[] = {CDP__RPC_MARK, CDP__RPC_GRAD, CDP__RPC_DONE};
    const uint32_t *rows;
    const cdp_tensor *t = cdp__ctx_sent(ctx, a, &rows);
    cdp__rpc_packet p;
    cdp_args args;
    memset(&p, 0, sizeof p);
    memset(&args, 0, sizeof args);
    p.kind = kinds[a->what];
    p.a = ctx->id;
    p.aux = a->node;
    p.b = p.kind == CDP__RPC_DONE ? ctx->w.pass : a->value;
    if (p.kind != CDP__RPC_DONE) p.flags = CDP__RPC_CTX;
    p.slot = ctx->w.pass;
    args.tensors = t;
    args.tensor_count = t ? 1 : 0;
    if (cdp__rpc_post(rpc, a->to, &p, &args) != CDP_OK)
        cdp__ctx_fail_here(rpc, ctx, CDP_ERR_NOMEM, "out of memory for a gradient");
}

/* Carries out an action of the waves. */
CDP__PRIVATE void cdp__ctx_act(void *user, const cdp__wave_act *a) {
    cdp_ctx *ctx = (cdp_ctx *)user;
    cdp_rpc *rpc = ctx->rpc;
    if (a->what == CDP__WAVE_ENDED) {
        ctx->over = true;
        rpc->changed = true;
    } else if (ctx->failed || ctx->ended) {
        return;
    } else if (a->what >= CDP__WAVE_FIRE || a->to == rpc->rank) {
        cdp__ctx_local(rpc, ctx, a);
    } else if (rpc->lost[a->to]) {
        cdp__ctx_fail(rpc, ctx, CDP_ERR_PEER_LOST, (int32_t)cdp_world_rank_of(rpc->group, a->to),
            rpc->rank, rpc->peers[a->to].why.text);
    } else {
        cdp__ctx_remote(rpc, ctx, a);
    }
}

/* ---- records of contexts */

/* Returns NULL when out of memory. */
CDP__PRIVATE cdp_ctx *cdp__ctx_make(cdp_rpc *rpc, uint64_t id) {
    cdp_ctx *ctx = (cdp_ctx *)cdp__alloc_zero(rpc->os, sizeof *ctx);
    if (!ctx) return NULL;
    cdp__ended_remove(ctx);
    ctx->rpc = rpc;
    ctx->id = id;
    ctx->task.run = cdp__ctx_free;
    ctx->fires_end = &ctx->fires;
    ctx->w.rank = rpc->rank;
    ctx->w.act = cdp__ctx_act;
    ctx->w.user = ctx;
    ctx->with = (uint8_t *)cdp__alloc_zero(rpc->os, rpc->ranks);
    if (!ctx->with || !cdp__ctx_reserve(rpc, ctx, 8, 8, 8, 8)) {
        cdp__ctx_free(rpc, &ctx->task);
        return NULL;
    }
    cdp__ctx_adopt(ctx);
    ctx->next = rpc->contexts;
    rpc->contexts = ctx;
    ++rpc->context_count;
    return ctx;
}

/* The entry of a value of this context; 0: this rank does not have it. */
CDP__PRIVATE uint32_t cdp__ctx_entry(const cdp_ctx *ctx, uint64_t value) {
    return value ? cdp__wave_entry(&ctx->w, value) : 0;
}

/* Adds a node with one output and one input, or none. 0: out of memory. */
CDP__PRIVATE uint64_t cdp__ctx_leaf(cdp_rpc *rpc, cdp_ctx *ctx, uint64_t goes_to) {
    uint64_t value;
    uint32_t node;
    if (!cdp__ctx_reserve(rpc, ctx, 1, 1, 1, 0)) return 0;
    node = cdp__wave_add_node(&ctx->w, &goes_to, goes_to ? 1 : 0);
    value = cdp__wave_add_value(&ctx->w, node, 0);
    ctx->nodes[node].value = (uint32_t)value;
    return value;
}

CDP__PRIVATE uint32_t *cdp__ctx_chain(cdp_ctx *ctx, uint64_t other) {
    return &ctx->chains[(other * 0x9e3779b97f4a7c15ull) >> 58];
}

/* This rank's own value for a value of another rank, or for a parameter; created on first use.
   `goes_to`: where its gradients go, or 0. Returns 0 when out of memory. */
CDP__PRIVATE uint64_t cdp__ctx_known(cdp_rpc *rpc, cdp_ctx *ctx, uint64_t other, uint64_t goes_to) {
    uint32_t *chain = cdp__ctx_chain(ctx, other), at = *chain;
    uint64_t value;
    for (; at; at = ctx->values[at].next) {
        const bool leaf = !ctx->w.nodes[ctx->w.values[at].node].edges;
        if (ctx->values[at].other == other && leaf == !goes_to)
            return (uint64_t)rpc->rank << 48 | at;
    }
    value = cdp__ctx_leaf(rpc, ctx, goes_to);
    if (!value) return 0;
    at = (uint32_t)value;
    ctx->values[at].other = other;
    ctx->values[at].next = *chain;
    *chain = at;
    return value;
}

/* This rank's value for one received from rank `from`. 0: it does not take part in the
   computation here. */
CDP__PRIVATE uint64_t cdp__ctx_import(
    cdp_rpc *rpc, cdp_ctx *ctx, uint64_t id, uint32_t from, uint64_t value) {
    uint64_t here;
    if (!ctx || ctx->id != id || ctx->failed || ctx->ended) return 0;
    if (!ctx->with[from]) ctx->with[from] = CDP__CTX_WITH;
    here = cdp__ctx_known(rpc, ctx, value, value);
    if (!here) cdp__ctx_fail_here(rpc, ctx, CDP_ERR_NOMEM, "out of memory for a value");
    return here;
}

CDP__PRIVATE bool cdp__ctx_reserve_sent(cdp_rpc *rpc, cdp_ctx *ctx) {
    if (cdp__ctx_reserve(rpc, ctx, 0, 0, 0, CDP__RPC_TENSORS)) return true;
    (void)cdp__fail_nomem("the record of a call", CDP__RPC_TENSORS * sizeof(cdp__wave_receiver));
    return false;
}

/* Records that values among the tensors are sent to a rank. False: out of memory. */
CDP__PRIVATE bool cdp__ctx_record_sent(
    cdp_rpc *rpc, cdp_ctx *ctx, const cdp_args *args, uint32_t to) {
    uint32_t i;
    if (to == rpc->rank) return true;
    if (!ctx->with[to]) ctx->with[to] = CDP__CTX_WITH;
    if (!cdp__ctx_reserve(rpc, ctx, 0, 0, 0, CDP__RPC_TENSORS)) return false;
    for (i = 0; args && i < args->tensor_count; ++i)
        if (args->tensors[i].value)
            cdp__wave_record_sent(&ctx->w, cdp__ctx_entry(ctx, args->tensors[i].value), to);
    return true;
}

/* Refuses a context that is gone; NULL is OK. */
CDP__PRIVATE cdp_status cdp__ctx_lives(const cdp_ctx *ctx, const char *call) {
    if (cdp__ctx_is_orphan(ctx))
        return cdp__fail(CDP_ERR_STATE,
            "%s: the rpc of this context was destroyed, and the context with it; end contexts with "
            "cdp_ctx_end() before",
            call);
    if (cdp__ended(ctx)) return cdp__fail(CDP_ERR_STATE, "%s: this context has ended", call);
    return CDP_OK;
}

/* Checks that values among the tensors are of this context; if not, sets this thread's last
   error. */
CDP__PRIVATE cdp_status cdp__ctx_check(const char *call, const cdp_ctx *ctx, const cdp_args *args) {
    uint32_t i;
    if (ctx && ctx->failed)
        return cdp__fail(CDP_ERR_STATE, "%s: this context has failed; begin another one; why: %s",
            call, ctx->why.text);
    if (ctx && ctx->ended)
        return cdp__fail(CDP_ERR_STATE, "%s: this context has ended; begin another one", call);
    for (i = 0; args && i < args->tensor_count; ++i)
        if (args->tensors[i].value && (!ctx || !cdp__ctx_entry(ctx, args->tensors[i].value)))
            return cdp__fail(CDP_ERR_INVALID,
                ctx ? "%s: tensors[%u] has a value that this rank does not have in this context"
                    : "%s: tensors[%u] has a value, which belongs to a context; set ctx",
                call, i);
    return CDP_OK;
}

/* Adds a node with a function. Constants among its inputs get no edges. 0: out of memory. */
CDP__PRIVATE uint32_t cdp__ctx_node_add(
    cdp_rpc *rpc, cdp_ctx *ctx, const uint64_t *inputs, uint32_t in_count, uint32_t outputs) {
    uint32_t *list = (uint32_t *)cdp__alloc(rpc->os, (in_count + outputs + 1) * sizeof *list);
    uint32_t i, node;
    if (!list || !cdp__ctx_reserve(rpc, ctx, 1, in_count, outputs, 0)) {
        cdp__free(rpc->os, list);
        return 0;
    }
    node = cdp__wave_add_node(&ctx->w, inputs, in_count);
    ctx->nodes[node].outputs = list;
    ctx->nodes[node].in_count = in_count;
    ctx->nodes[node].input_of = list += outputs;
    for (i = 0; i < in_count; ++i)
        if (inputs[i]) *list++ = i;
    return node;
}

/* ---- >>rpc/calls: calls of this rank --------------------------------------------------------- */

/* Knows: records of calls. Promises: a call ends once, by its deadline; `ran` is NO only if the
   function did not run and never will. */

enum {
    CDP__CALL_RPC,
    CDP__CALL_ID,                /* while it is under way */
    CDP__CALL_OS = CDP__CALL_ID, /* afterwards */
    CDP__CALL_STAGE,
    CDP__CALL_MEMORY,
    CDP__CALL_TENSORS,
    CDP__CALL_WORK,
    CDP__CALL_ROOM,
    CDP__CALL_WORDS = 10
};
#define CDP__CALL_UNDER_WAY 1u
#define CDP__CALL_ENDED 2u

/* Completes the work of a call. */
CDP__PRIVATE void cdp__rpc_end_work(cdp_rpc *rpc, cdp_call *call) {
    const uint64_t seq = call->priv[CDP__CALL_WORK];
    if (!seq) return;
    cdp__enter(rpc->group);
    cdp__deferred_close(&rpc->group->deferred.entries[seq & 0xffff], call->status != CDP_OK);
    cdp__world_wake(rpc->group->w);
    cdp__leave(rpc->group);
    call->priv[CDP__CALL_WORK] = 0;
}

/* The program owns its call again. */
CDP__PRIVATE void cdp__rpc_publish(cdp_rpc *rpc, cdp_call *call) {
    cdp__rpc_end_work(rpc, call);
    /* what cdp_call_free() needs if the rpc is destroyed before */
    call->priv[CDP__CALL_OS] = (uint64_t)(uintptr_t)rpc->os;
    call->priv[CDP__CALL_STAGE] = CDP__CALL_ENDED;
    rpc->changed = true;
}

CDP__PRIVATE void cdp__rpc_call_over(cdp_rpc *rpc, cdp__rpc_call *c) {
    if (c->call || c->done_call || !c->wire_over) return;
    cdp__rpc_call_close(rpc, c);
}

/* Tells the program that its call has ended; then it owns the call again. Takes the lock. */
CDP__PRIVATE void cdp__rpc_tell(
    cdp_rpc *rpc, cdp_call *call, void (*done)(void *user, cdp_call *call), void *user) {
    cdp__rpc_here *here = cdp__rpc_here_of();
    if (call->status != CDP_OK) *cdp__error_slot() = call->error;
    here->done = call;
    done(user, call);
    if (CDP__RPC_PLANT(TOLD_TWICE)) done(user, call);
    cdp__rpc_lock(rpc);
    if (here->done) cdp__rpc_publish(rpc, call);
    here->done = NULL;
}

CDP__PRIVATE void cdp__rpc_done(cdp_rpc *rpc, cdp__rpc_task *task) {
    cdp__rpc_call *c = (cdp__rpc_call *)task;
    cdp__rpc_tell(rpc, c->done_call, c->done, c->done_user);
    c->done_call = NULL;
    cdp__rpc_call_over(rpc, c);
    cdp_lock_release(&rpc->lock);
}

/* Ends the call for the program. For a failure, this thread's last error is copied. */
CDP__PRIVATE void cdp__rpc_end(
    cdp_rpc *rpc, cdp__rpc_call *c, cdp_status status, cdp_ran ran, int32_t code) {
    cdp_call *call = c->call;
    if (!call) return;
    cdp__rpc_record_end(rpc, c, status, ran);
    rpc->late += status == CDP_ERR_TIMEOUT;
    c->call = NULL;
    call->status = status;
    call->ran = ran;
    call->code = code;
    if (status != CDP_OK) {
        call->error = *cdp_last_error();
        call->error.status = status;
        call->error.rank = (int32_t)cdp_world_rank_of(rpc->group, rpc->rank);
    }
    if (!c->done) {
        cdp__rpc_publish(rpc, call);
        return;
    }
    c->done_call = call;
    c->task.run = cdp__rpc_done;
    cdp__rpc_add_task(rpc, &c->task);
}

/* No more messages of this call will arrive. */
CDP__PRIVATE void cdp__rpc_wire_over(cdp_rpc *rpc, cdp__rpc_call *c) {
    const uint32_t on = c->on;
    if (c->wire_over) return;
    cdp__rpc_record_end(rpc, c, CDP_OK, CDP_RAN_UNKNOWN); /* nobody waited for it */
    c->wire_over = true;
    --rpc->peers[c->to].flight[c->nested].calls;
    rpc->peers[c->to].flight[c->nested].bytes -= c->bytes;
    rpc->moved_ns = cdp__rpc_time(rpc);
    rpc->changed = true;
    c->on = 0;
    if (c->order) rpc->confirmed = true; /* the next call of the order may have its turn */
    if (on) cdp__ref_off_wire(&rpc->refs, on);
    cdp__rpc_call_over(rpc, c);
}

/* Sets the last error, with the beginning that all texts about a call have. */
CDP__PRIVATE CDP__PRINTF(4, 5) void cdp__rpc_set_error(
    cdp_rpc *rpc, const cdp__rpc_call *c, cdp_status status, const char *format, ...) {
    char name[16], text[CDP__RPC_TEXT + 1];
    cdp__text t = cdp__text_of(text, sizeof text);
    va_list ap;
    va_start(ap, format);
    cdp__text_add_v(&t, format, ap);
    va_end(ap);
    (void)cdp__fail_peer(status, cdp_world_rank_of(rpc->group, c->to), 0, "%s on rank %u (%s): %s",
        c->function ? cdp__rpc_function_name(rpc, c->function, name) : "the value", c->to,
        rpc->peers[c->to].name, text);
}

/* Room for a result: for references, and then, or where the program wants it, for its contents.
   NULL: out of memory. */
CDP__PRIVATE uint8_t *cdp__rpc_result_room(
    cdp_rpc *rpc, cdp_call *call, uint32_t rrefs, uint32_t tensors, uint64_t bytes) {
    const uint64_t need = rrefs * sizeof(cdp_rref) + (call->into.data ? 0 : bytes);
    uint8_t *at = (uint8_t *)&call->priv[CDP__CALL_ROOM];
    if (tensors) {
        call->tensors = (cdp_tensor *)cdp__alloc(rpc->os, tensors * sizeof *call->tensors);
        call->priv[CDP__CALL_TENSORS] = (uint64_t)(uintptr_t)call->tensors;
        if (!call->tensors) return NULL;
        call->tensor_count = tensors;
    }
    if (need > 8 * (CDP__CALL_WORDS - CDP__CALL_ROOM)) {
        at = (uint8_t *)cdp__alloc(rpc->os, need);
        call->priv[CDP__CALL_MEMORY] = (uint64_t)(uintptr_t)at;
        if (!at) return NULL;
    }
    call->rrefs = rrefs ? (cdp_rref *)(void *)at : NULL;
    call->rref_count = rrefs;
    return call->into.data ? (uint8_t *)call->into.data : at + rrefs * sizeof(cdp_rref);
}

/* Where the program wants the result, there is room for it; else the call has failed. */
CDP__PRIVATE bool cdp__rpc_result_fits(cdp_rpc *rpc, cdp__rpc_call *c, uint64_t bytes) {
    if (!c->call->into.data || bytes <= c->call->into.bytes) return true;
    cdp__rpc_set_error(rpc, c, CDP_ERR_INVALID,
        "its result has %llu bytes, into of the cdp_call has room for %llu",
        (unsigned long long)bytes, (unsigned long long)c->call->into.bytes);
    cdp__rpc_end(rpc, c, CDP_ERR_INVALID, CDP_RAN_YES, 0);
    return false;
}

/* The contents of a result are in `area`; its tensors are described by `like`. */
CDP__PRIVATE void cdp__rpc_result_in(
    cdp_call *call, const cdp_tensor *like, uint8_t *area, uint64_t bytes) {
    uint8_t *at = cdp__rpc_tensors_in(call->tensors, like, call->tensor_count, area);
    call->bytes = bytes - (uint64_t)(at - area);
    call->data = call->bytes ? at : NULL;
}

/* A call to this rank itself has a result: handles it like one from another rank. */
CDP__PRIVATE void cdp__rpc_own_reply(cdp_rpc *rpc, cdp__rpc_call *c, const cdp_args *args) {
    const uint32_t rrefs = args ? args->rref_count : 0;
    const uint64_t bytes = cdp__rpc_args_bytes(args);
    uint8_t *at = NULL;
    uint32_t i;
    if (!c->call || !cdp__rpc_result_fits(rpc, c, bytes)) return;
    at = cdp__rpc_result_room(rpc, c->call, rrefs, args ? args->tensor_count : 0, bytes);
    if (!at) {
        cdp__rpc_set_error(rpc, c, CDP_ERR_NOMEM, "out of memory: its result needs %llu bytes",
            (unsigned long long)bytes);
        cdp__rpc_end(rpc, c, CDP_ERR_NOMEM, CDP_RAN_YES, 0);
        return;
    }
    for (i = 0; i < rrefs; ++i) {
        c->call->rrefs[i] = args->rrefs[i];
        ++rpc->refs.at[(uint32_t)args->rrefs[i].slot].handles;
    }
    cdp__rpc_gather(at, args);
    cdp__rpc_copied(rpc, bytes);
    cdp__rpc_result_in(c->call, args ? args->tensors : NULL, at, bytes);
    cdp__rpc_end(rpc, c, CDP_OK, CDP_RAN_YES, 0);
}

/* References of a message that is not used. */
CDP__PRIVATE void cdp__rpc_untake(cdp_rpc *rpc, const uint32_t *slots, uint32_t count) {
    uint32_t i;
    for (i = 0; i < count; ++i)
        if (slots[i]) cdp__ref_drop(&rpc->refs, slots[i]);
}

/* A result has come; its references were taken over already. `owned`: the body is ours. True:
   it is the call's now. */
CDP__PRIVATE bool cdp__rpc_reply_received(cdp_rpc *rpc, cdp__rpc_call *c, const cdp__rpc_packet *p,
    const uint32_t *slots, uint8_t *owned) {
    cdp_tensor like[CDP__RPC_TENSORS];
    uint8_t *at;
    uint32_t i;
    bool kept = false;
    for (i = 0; i < p->tensors; ++i) {
        like[i] = cdp__rpc_get_shape(p->shapes + i * CDP__RPC_SHAPE);
        if (like[i].value)
            like[i].value = cdp__ctx_import(rpc, c->ctx, p->slot, c->to, like[i].value);
    }
    if (!c->call || !cdp__rpc_result_fits(rpc, c, p->area_bytes)) {
        cdp__rpc_untake(rpc, slots, p->rrefs);
        return false;
    }
    kept = owned && !p->rrefs && !c->call->into.data;
    at = cdp__rpc_result_room(rpc, c->call, p->rrefs, p->tensors, kept ? 0 : p->area_bytes);
    if (!at) {
        cdp__rpc_untake(rpc, slots, p->rrefs);
        cdp__rpc_set_error(rpc, c, CDP_ERR_NOMEM, "out of memory: its result needs %llu bytes",
            (unsigned long long)p->area_bytes);
        cdp__rpc_end(rpc, c, CDP_ERR_NOMEM, CDP_RAN_YES, 0);
        return false;
    }
    for (i = 0; i < p->rrefs; ++i) {
        memset(&c->call->rrefs[i], 0, sizeof(cdp_rref));
        if (slots[i]) c->call->rrefs[i] = cdp__rpc_rref(rpc, slots[i]);
    }
    if (kept) {
        at = (uint8_t *)(uintptr_t)p->area;
        c->call->priv[CDP__CALL_MEMORY] = (uint64_t)(uintptr_t)owned;
    } else if (p->area_bytes) {
        memcpy(at, p->area, (size_t)p->area_bytes);
        cdp__rpc_copied(rpc, p->area_bytes);
    }
    cdp__rpc_result_in(c->call, like, at, p->area_bytes);
    cdp__rpc_end(rpc, c, CDP_OK, CDP_RAN_YES, 0);
    return kept;
}

/* The owner reports that the call failed, or refuses it. */
CDP__PRIVATE void cdp__rpc_failure_received(cdp_rpc *rpc, cdp__rpc_call *c, cdp_status status,
    cdp_ran ran, int32_t code, const char *text) {
    if (!c->call) return;
    if (status == CDP_ERR_REMOTE && ran == CDP_RAN_YES)
        cdp__rpc_set_error(rpc, c, status, "failed with code %d: %s", code, text);
    else
        cdp__rpc_set_error(rpc, c, status, "%s", text);
    cdp__rpc_end(rpc, c, status, ran, code);
}

/* Removes the message of a call that has not been sent from a queue. */
CDP__PRIVATE bool cdp__rpc_take_back(cdp_rpc *rpc, cdp__rpc_out **list, uint64_t id) {
    cdp__rpc_out **at = list, *o;
    while (*at && ((*at)->p.kind != CDP__RPC_CALL || (*at)->p.a != id))
        at = &(*at)->next;
    o = *at;
    if (!o) return false;
    *at = o->next;
    cdp__rpc_out_drop(rpc, o);
    return true;
}

/* The request of a call to this rank itself whose function has not begun, and will not if it is
   cancelled now; NULL: there is none. */
CDP__PRIVATE const cdp__rpc_rq *cdp__rpc_still_here(const cdp_rpc *rpc, const cdp__rpc_call *c) {
    const uint64_t id = cdp__rpc_call_id(c);
    const cdp__rpc_rq *rq = c->to == rpc->rank ? rpc->all : NULL;
    while (rq && (rq->pub.from != rpc->rank || rq->call != id))
        rq = rq->after;
    return rq && rq->stage < CDP__RPC_RUNNING ? rq : NULL;
}

/* What a request that has not begun waits for. */
CDP__PRIVATE cdp__rpc_why cdp__rpc_waits_for(
    const cdp_rpc *rpc, const cdp__rpc_rq *rq, uint64_t *limit) {
    *limit = 0;
    if (rq->stage == CDP__RPC_CONFIRMING) return CDP__RPC_FOR_RREFS;
    if (rq->stage == CDP__RPC_PARKED) return CDP__RPC_FOR_VALUE;
    if (rq->stage != CDP__RPC_QUEUED || !rq->f) return CDP__RPC_NOT_HELD;
    if (rq->f->max_running && rq->use->running >= rq->f->max_running) {
        *limit = rq->f->max_running;
        return CDP__RPC_FOR_RUNNING;
    }
    *limit = rpc->desc.workers;
    return CDP__RPC_FOR_THREAD;
}

/* The longest time before its deadline at which the caller is told what a request waits for; also
   at most an eighth of the time that it has. */
#define CDP__RPC_NOTIFY_NS 250000000u

/* When to tell the caller: it may give the request up before an answer of this rank arrives.
   0: never. */
CDP__PRIVATE uint64_t cdp__rpc_notify_at(cdp_rpc *rpc, uint32_t flags, uint64_t ends) {
    const uint64_t now = cdp__rpc_time(rpc);
    if ((flags & (CDP__RPC_ONE_WAY | CDP__RPC_REMOTE)) != 0 || ends <= now) return 0;
    return ends - cdp__min((ends - now) / 8, CDP__RPC_NOTIFY_NS);
}

/* Not worth the link if there is no memory for it. */
CDP__PRIVATE void cdp__rpc_notify(
    cdp_rpc *rpc, uint32_t from, uint64_t call, cdp__rpc_why why, uint64_t limit) {
    cdp__rpc_packet p;
    memset(&p, 0, sizeof p);
    p.kind = CDP__RPC_HELD;
    p.a = call;
    p.aux = (uint32_t)why;
    p.b = limit;
    (void)!cdp__rpc_post(rpc, from, &p, NULL);
}

#define CDP__RPC_HELD_TEXT 128u

/* The end of a sentence about a call that was late. restarted: a function that was max_depth calls
   deep has started it, so its level is 0 again. */
CDP__PRIVATE const char *cdp__rpc_held_text(
    char text[CDP__RPC_HELD_TEXT], cdp__rpc_why why, uint64_t limit, bool restarted) {
    switch (why) {
    case CDP__RPC_FOR_THREAD:
        cdp__format(text, CDP__RPC_HELD_TEXT,
            limit ? "; at last it waited for a free thread there: raise workers (%llu) of that "
                    "rank%s"
                  : "; at last it waited for a thread there, which has %llu workers: add some, or "
                    "call cdp_rpc_serve()%s",
            (unsigned long long)limit, restarted ? ", or max_depth of the one that calls" : "");
        return text;
    case CDP__RPC_FOR_RUNNING:
        cdp__format(text, CDP__RPC_HELD_TEXT,
            "; at last it waited there for others of this function: raise its max_running (%llu)",
            (unsigned long long)limit);
        return text;
    case CDP__RPC_FOR_VALUE: return "; at last it waited there for its value (on) to be made";
    case CDP__RPC_FOR_RREFS:
        return "; at last it waited there for references among its arguments to be confirmed";
    case CDP__RPC_FOR_BYTES:
        cdp__format(text, CDP__RPC_HELD_TEXT,
            "; at last its arguments waited for memory there: raise max_queue_bytes (%llu) of that "
            "rank",
            (unsigned long long)limit);
        return text;
    case CDP__RPC_NOT_HELD:
    case CDP__RPC_WHYS: break;
    }
    return "";
}

/* What a call that has left waits for, as far as this rank was told. */
CDP__PRIVATE const char *cdp__rpc_held_there(
    const cdp_rpc *rpc, const cdp__rpc_call *c, char text[CDP__RPC_HELD_TEXT]) {
    const cdp__rpc_rq *rq = cdp__rpc_still_here(rpc, c);
    uint64_t limit = c->held_limit;
    const cdp__rpc_why why = rq ? cdp__rpc_waits_for(rpc, rq, &limit) : c->held;
    return cdp__rpc_held_text(text, why, limit, c->nested && !c->level);
}

CDP__PRIVATE const char *cdp__rpc_ran_text(
    const cdp_rpc *rpc, const cdp__rpc_call *c, cdp_ran ran) {
    if (ran != CDP_RAN_NO) return "whether it ran is not known";
    return c->to == rpc->rank ? "it had not begun" : "the call never left this rank";
}

/* What a call that has not left this rank waits for. */
CDP__PRIVATE const char *cdp__rpc_held(const cdp_rpc *rpc, const cdp__rpc_call *c) {
    const uint64_t id = cdp__rpc_call_id(c);
    const cdp__rpc_out *o = rpc->waiting;
    if (c->no_room)
        return c->nested ? ": as many calls from functions as max_calls, its part of max_queue "
                           "there or max_call_bytes allow were under way"
                         : ": as many calls as max_calls, its part of max_queue there or "
                           "max_call_bytes allow were under way";
    while (o && (o->p.kind != CDP__RPC_CALL || o->p.a != id))
        o = o->next;
    if (!o) return ": that rank took no messages";
    if (o->in_order) return ": an earlier call of its order (in_order) has not been answered";
    return ": a reference in it was not confirmed";
}

/* Ends a call that the program does not wait for any longer; status is TIMEOUT, ABORTED, STATE, or
   BUSY (max_depth). */
CDP__PRIVATE void cdp__rpc_abandon(cdp_rpc *rpc, cdp__rpc_call *c, cdp_status status) {
    cdp__rpc_peer *peer = &rpc->peers[c->to];
    const uint64_t id = cdp__rpc_call_id(c);
    const bool never_left = !c->left; /* for a call to this rank: there is no request of it yet */
    cdp_ran ran = CDP_RAN_UNKNOWN;
    char text[CDP__RPC_HELD_TEXT];
    const char *held = never_left ? cdp__rpc_held(rpc, c) : cdp__rpc_held_there(rpc, c, text);
    if (never_left && c->to != rpc->rank) {
        (void)(cdp__rpc_take_back(rpc, &rpc->waiting, id)
            || cdp__rpc_take_back(rpc, &peer->queue, id));
        for (peer->queue_end = &peer->queue; *peer->queue_end;)
            peer->queue_end = &(*peer->queue_end)->next;
    }
    if (never_left || cdp__rpc_still_here(rpc, c)) ran = CDP_RAN_NO;
    if (status == CDP_ERR_TIMEOUT)
        cdp__rpc_set_error(rpc, c, status, "no answer within %llu ms%s; %s%s",
            (unsigned long long)(c->deadline_ns > c->start_ns
                    ? (c->deadline_ns - c->start_ns) / CDP__MS
                    : 0),
            c->cut ? "; the wait that ran the calling function had to end then" : "",
            cdp__rpc_ran_text(rpc, c, ran), held);
    else if (status == CDP_ERR_BUSY)
        cdp__rpc_set_error(rpc, c, status,
            "the function that waits for it is max_depth (%u) calls deep, and must not wait; %s",
            rpc->desc.max_depth, cdp__rpc_ran_text(rpc, c, ran));
    else
        cdp__rpc_set_error(rpc, c, status, "%s",
            status == CDP_ERR_ABORTED ? "cancelled by cdp_call_cancel()"
                                      : "this rank's rpc was destroyed");
    cdp__rpc_end(rpc, c, status, ran, 0);
    if (never_left)
        cdp__rpc_wire_over(rpc, c);
    else if (c->to != rpc->rank)
        cdp__rpc_control(rpc, c->to, CDP__RPC_CANCEL, id, 0, 0);
}

/* Ends a call because its rank is lost, its long body was refused, or a reference in it broke. */
CDP__PRIVATE void cdp__rpc_call_failed(
    cdp_rpc *rpc, cdp__rpc_call *c, cdp_status status, cdp_ran ran, const char *why) {
    if (c->call) {
        cdp__rpc_set_error(rpc, c, status, "%s", why);
        cdp__rpc_end(rpc, c, status, ran, 0);
    }
    cdp__rpc_record_end(rpc, c, status, ran);
    cdp__rpc_wire_over(rpc, c);
}

/* ---- >>rpc/sums: contributions to a value ---------------------------------------------------- */

/* Knows: gradients, complete ones and rows. Promises: contributions are added in an order that does
   not depend on when they arrive. */

/* Inserts a contribution to a value at its position in the order. */
CDP__PRIVATE void cdp__ctx_add(cdp_ctx *ctx, uint32_t value, cdp__ctx_sum *sum) {
    cdp__ctx_sum **at = &ctx->values[value].sums;
    while (*at) {
        const cdp__ctx_sum *s = *at;
        const bool same = s->rank == sum->rank && s->node == sum->node;
        if (s->rank > sum->rank || (s->rank == sum->rank && s->node > sum->node)) break;
        if (same && s->edge > sum->edge) break;
        at = &(*at)->next;
    }
    sum->next = *at;
    *at = sum;
}

/* a += b. False: their shapes differ, and the context has failed. */
CDP__PRIVATE bool cdp__ctx_plus(
    cdp_rpc *rpc, cdp_ctx *ctx, const cdp_tensor *a, const cdp_tensor *b) {
    const uint64_t bytes = cdp__rpc_tensor_bytes(a);
    if (a->dtype != b->dtype || a->dims != b->dims
        || memcmp(a->shape, b->shape, a->dims * sizeof *a->shape) != 0
        || !cdp__reduce_exists(a->dtype, CDP_REDUCE_SUM)) {
        cdp__ctx_fail_here(rpc, ctx, CDP_ERR_MISMATCH,
            "two gradients of one value differ on rank %u (%s): %llu bytes of dtype %d, and %llu "
            "of dtype %d",
            rpc->rank, rpc->peers[rpc->rank].name, (unsigned long long)bytes, (int)a->dtype,
            (unsigned long long)cdp__rpc_tensor_bytes(b), (int)b->dtype);
        return false;
    }
    cdp__reduce(
        a->dtype, CDP_REDUCE_SUM, false, a->data, b->data, bytes / cdp_dtype_size(a->dtype));
    return true;
}

typedef struct cdp__ctx_row {
    uint32_t row;
    uint32_t order; /* position among all contributions */
    const uint8_t *data;
} cdp__ctx_row;

CDP__PRIVATE int cdp__ctx_row_order(const void *a, const void *b) {
    const cdp__ctx_row *x = (const cdp__ctx_row *)a, *y = (const cdp__ctx_row *)b;
    if (x->row != y->row) return x->row < y->row ? -1 : 1;
    return x->order < y->order ? -1 : 1;
}

/* Counts the rows in a list of contributions. False: their shapes differ. */
CDP__PRIVATE bool cdp__ctx_rows_fit(const cdp__ctx_sum *list, uint64_t *count) {
    const cdp_tensor *a = &list->t;
    const cdp__ctx_sum *s;
    *count = 0;
    for (s = list; s; s = s->next) {
        if (!s->rows || s->t.dtype != a->dtype || s->t.dims != a->dims
            || memcmp(s->t.shape + 1, a->shape + 1, (a->dims - 1) * sizeof *a->shape) != 0)
            return false;
        *count += s->t.shape[0];
    }
    return *count < UINT32_MAX;
}

/* Merges contributions of some rows: each row once, ascending. Contributions to a row are added
   in their order. NULL: the context has failed. */
CDP__PRIVATE cdp__ctx_sum *cdp__ctx_rows_total(
    cdp_rpc *rpc, cdp_ctx *ctx, const cdp__ctx_sum *list) {
    const cdp__ctx_sum *s;
    cdp__ctx_sum *total = NULL;
    cdp__ctx_row *all;
    cdp_tensor t = list->t;
    uint64_t count, bytes, i;
    uint32_t n = 0;
    if (!cdp__ctx_rows_fit(list, &count)) {
        cdp__ctx_fail_here(rpc, ctx, CDP_ERR_MISMATCH,
            "gradients of one value differ on rank %u (%s): some are rows, others are not, or "
            "their rows have other shapes",
            rpc->rank, rpc->peers[rpc->rank].name);
        return NULL;
    }
    t.shape[0] = 1;
    bytes = cdp__rpc_tensor_bytes(&t);
    t.shape[0] = count;
    all = (cdp__ctx_row *)cdp__alloc(rpc->os, (count + 1) * sizeof *all);
    if (all) total = cdp__ctx_room_for(rpc, &t, true);
    if (!total) {
        cdp__free(rpc->os, all);
        cdp__ctx_fail_here(rpc, ctx, CDP_ERR_NOMEM, "out of memory for rows of a gradient");
        return NULL;
    }
    for (s = list; s; s = s->next)
        for (i = 0; i < s->t.shape[0]; ++i, ++n) {
            all[n].row = s->rows[i];
            all[n].order = n;
            all[n].data = (const uint8_t *)s->t.data + i * bytes;
        }
    qsort(all, (size_t)count, sizeof *all, cdp__ctx_row_order);
    total->t.shape[0] = 0;
    for (i = 0; i < count; ++i) {
        uint8_t *end = (uint8_t *)total->t.data + total->t.shape[0] * bytes;
        if (i && all[i].row == all[i - 1].row) {
            cdp__reduce(t.dtype, CDP_REDUCE_SUM, false, end - bytes, all[i].data,
                bytes / cdp_dtype_size(t.dtype));
            continue;
        }
        memcpy(end, all[i].data, (size_t)bytes);
        total->rows[total->t.shape[0]++] = all[i].row;
    }
    cdp__free(rpc->os, all);
    return total;
}

/* The sum of all contributions to a value, which the caller owns. NULL: there was none, or their
   shapes differ. */
CDP__PRIVATE cdp__ctx_sum *cdp__ctx_total(cdp_rpc *rpc, cdp_ctx *ctx, uint32_t value) {
    cdp__ctx_sum *total = ctx->values[value].sums, *rest, *s;
    bool rows = false;
    ctx->values[value].sums = NULL;
    for (s = total; s; s = s->next)
        rows = rows || s->rows;
    if (rows) {
        rest = total;
        total = cdp__ctx_rows_total(rpc, ctx, rest);
        cdp__ctx_sums_free(rpc, &rest);
        return total;
    }
    if (!total) return NULL;
    if (CDP__RPC_PLANT(ADDED_TWICE)) (void)cdp__ctx_plus(rpc, ctx, &total->t, &total->t);
    rest = total->next;
    total->next = NULL;
    for (s = rest; s; s = s->next) {
        if (cdp__ctx_plus(rpc, ctx, &total->t, &s->t)) continue;
        cdp__ctx_sums_free(rpc, &total);
        break;
    }
    cdp__ctx_sums_free(rpc, &rest);
    return total;
}

/* ---- >>rpc/passes: backward passes ----------------------------------------------------------- */

/* Knows: messages of waves, nodes that fire. Promises: a gradient is added to a value once;
   functions of nodes run without the lock, like those of calls. */

/* ---- nodes fire */

typedef struct cdp__ctx_room {
    struct cdp__ctx_room *next;
    uint64_t filled;
} cdp__ctx_room;

CDP_API cdp_status cdp_backward_alloc(cdp_backward *b, uint64_t bytes, void **out) {
    cdp__ctx_room *room;
    if (!out) return cdp__missing("cdp_backward_alloc", "out");
    *out = NULL;
    if (!b) return cdp__missing("cdp_backward_alloc", "backward");
    room = bytes > UINT64_MAX / 2 ? NULL
                                  : (cdp__ctx_room *)cdp__alloc(b->rpc->os, sizeof *room + bytes);
    if (!room) return cdp__fail_nomem("gradients", bytes);
    room->next = (cdp__ctx_room *)b->priv;
    b->priv = room;
    *out = room + 1;
    return CDP_OK;
}

/* Checks the gradients that a function has returned. Returns NULL, or what is wrong with number
   *i. */
CDP__PRIVATE const char *cdp__ctx_wrong(const cdp_backward *b, uint32_t *i) {
    for (*i = 0; *i < b->in_count; ++*i) {
        const cdp_tensor *t = &b->grad_in[*i];
        if (!t->data) continue;
        if (!cdp__reduce_exists(t->dtype, CDP_REDUCE_SUM)) return "its dtype cannot be added";
        if (t->dims > 8) return "it has more than 8 dims";
        if (cdp__rpc_tensor_bytes(t) > b->rpc->desc.max_message_bytes)
            return "it is longer than max_message_bytes";
        if (b->grad_rows[*i] && !t->dims) return "it has rows, but no dims";
    }
    return NULL;
}

/* A backward function has returned: sends its gradients, or fails the context. */
CDP__PRIVATE void cdp__ctx_ran(
    cdp_rpc *rpc, cdp_ctx *ctx, uint32_t node, const cdp_backward *b, cdp_status st) {
    uint32_t i = 0;
    const char *wrong = st == CDP_OK ? cdp__ctx_wrong(b, &i) : cdp_last_error()->text;
    if (st != CDP_OK) {
        const bool text = cdp_last_error()->status == st && wrong[0];
        cdp__ctx_fail_here(rpc, ctx, st < CDP_OK ? st : CDP_ERR_REMOTE,
            text ? "a backward function on rank %u (%s) returned %d: %s"
                 : "a backward function on rank %u (%s) returned %d without saying why%s",
            rpc->rank, rpc->peers[rpc->rank].name, (int)st, text ? wrong : "");
    } else if (wrong) {
        cdp__ctx_fail_here(rpc, ctx, CDP_ERR_INVALID,
            "a backward function on rank %u (%s) left a wrong grad_in[%u]: %s", rpc->rank,
            rpc->peers[rpc->rank].name, i, wrong);
    } else if (!ctx->failed && !ctx->ended) {
        ctx->sending = b->grad_in;
        ctx->sending_rows = b->grad_rows;
        cdp__wave_fired(&ctx->w, node);
        ctx->sending = NULL;
        ctx->sending_rows = NULL;
    }
}

/* Runs a backward function, without the lock. */
CDP__PRIVATE void cdp__ctx_run_node(void *user, cdp_rpc_request *request) {
    const cdp__rpc_rq *rq = (const cdp__rpc_rq *)(const void *)request;
    cdp_rpc *rpc = request->rpc;
    cdp_ctx *ctx = request->ctx;
    cdp__ctx_node x;
    cdp__ctx_sum **held;
    cdp_tensor *t;
    cdp_backward b;
    cdp_status st;
    uint32_t i;
    (void)user;
    cdp__rpc_lock(rpc);
    x = ctx->nodes[rq->node];
    memset(&b, 0, sizeof b);
    b.rpc = rpc;
    b.rpc_user = rpc->desc.user;
    b.ctx = ctx;
    b.saved = x.saved;
    b.out_count = x.out_count;
    b.in_count = x.in_count;
    t = (cdp_tensor *)cdp__alloc_zero(rpc->os, (x.in_count + x.out_count + 1) * sizeof *t);
    held = (cdp__ctx_sum **)cdp__alloc_zero(rpc->os, (x.out_count + 1) * sizeof *held);
    b.grad_rows =
        (const uint32_t **)cdp__alloc_zero(rpc->os, (x.in_count + 1) * sizeof *b.grad_rows);
    if (!t || !held || !b.grad_rows)
        cdp__ctx_fail_here(rpc, ctx, CDP_ERR_NOMEM, "out of memory for gradients");
    for (i = 0; i < x.out_count && !ctx->failed && !ctx->ended; ++i) {
        held[i] = cdp__ctx_total(rpc, ctx, x.outputs[i]);
        if (held[i]) t[i] = held[i]->t;
    }
    if (!ctx->failed && !ctx->ended) {
        b.grad_out = t;
        b.grad_in = t + x.out_count;
        cdp_lock_release(&rpc->lock);
        st = x.backward(x.user, &b);
        cdp__rpc_lock(rpc);
        cdp__ctx_ran(rpc, ctx, rq->node, &b, st);
    }
    for (i = 0; held && i < x.out_count; ++i)
        cdp__free(rpc->os, held[i]);
    while (b.priv) {
        cdp__ctx_room *next = ((cdp__ctx_room *)b.priv)->next;
        cdp__free(rpc->os, b.priv);
        b.priv = next;
    }
    cdp__free(rpc->os, (void *)(uintptr_t)b.grad_rows);
    cdp__free(rpc->os, held);
    cdp__free(rpc->os, t);
    cdp_lock_release(&rpc->lock);
}

/* Queues a backward function, as a request of this rank to itself. */
CDP__PRIVATE void cdp__ctx_queue(cdp_rpc *rpc, cdp_ctx *ctx, uint32_t node) {
    cdp__rpc_rq *rq = cdp__rpc_rq_open(rpc);
    if (!rq) {
        cdp__ctx_fail_here(rpc, ctx, CDP_ERR_NOMEM, "out of memory for a backward function");
        return;
    }
    rq->f = &rpc->backward;
    rq->use = &rpc->backward_use;
    rq->stage = CDP__RPC_QUEUED;
    rq->pub.from = rpc->rank;
    rq->pub.ctx = ctx;
    rq->pub.deadline_ns = CDP__NEVER;
    rq->node = node;
    rq->level = CDP__RPC_BACKWARD_LEVEL;
    ++ctx->uses;
    if (ctx->mine)
        cdp__rpc_append(&ctx->fires_end, rq);
    else
        cdp__rpc_enqueue(rpc, rq);
    rpc->changed = true;
}

/* Adds the gradient of a pass to that of a leaf. True: the leaf keeps the record `total`. */
CDP__PRIVATE bool cdp__ctx_keep(
    cdp_rpc *rpc, cdp_ctx *ctx, cdp__ctx_sum **grad, cdp__ctx_sum *total) {
    cdp__ctx_sum *both;
    if (!*grad) {
        *grad = total;
        return true;
    }
    if (!(*grad)->rows && !total->rows) {
        (void)cdp__ctx_plus(rpc, ctx, &(*grad)->t, &total->t);
        return false;
    }
    (*grad)->next = total;
    both = cdp__ctx_rows_total(rpc, ctx, *grad);
    (*grad)->next = NULL;
    if (both) {
        cdp__ctx_sums_free(rpc, grad);
        *grad = both;
    }
    return false;
}

/* All gradients of a node have arrived: runs its function, or passes the gradient on. */
CDP__PRIVATE void cdp__ctx_fire(cdp_rpc *rpc, cdp_ctx *ctx, uint32_t node) {
    const uint32_t value = ctx->nodes[node].value;
    cdp__ctx_sum *total;
    cdp_tensor none;
    if (ctx->nodes[node].backward) {
        cdp__ctx_queue(rpc, ctx, node);
        return;
    }
    memset(&none, 0, sizeof none);
    total = cdp__ctx_total(rpc, ctx, value);
    if (ctx->failed) return;
    if (!ctx->w.nodes[node].edges && total) {
        if (cdp__ctx_keep(rpc, ctx, &ctx->values[value].grad, total)) total = NULL;
        if (ctx->failed) {
            cdp__ctx_sums_free(rpc, &total);
            return;
        }
    }
    ctx->sending = total ? &total->t : &none;
    cdp__wave_fired(&ctx->w, node);
    ctx->sending = NULL;
    cdp__ctx_sums_free(rpc, &total);
}

/* ---- messages */

/* Handles the result of a message. False: no peer of this version sends it. */
CDP__PRIVATE bool cdp__ctx_received(cdp_rpc *rpc, cdp_ctx *ctx, uint32_t from, cdp__wave_how how) {
    if (how == CDP__WAVE_CONFLICT)
        cdp__ctx_fail_here(rpc, ctx, CDP_ERR_STATE,
            "two backward passes of one context at once; start the second one after the first");
    if (how == CDP__WAVE_DISORDER)
        cdp__ctx_fail_here(rpc, ctx, CDP_ERR_INTERNAL,
            "messages of a backward pass came to rank %u (%s) in an order that cannot be, the last "
            "one from rank %u (%s): a rank of the context has sent what it should not",
            rpc->rank, rpc->peers[rpc->rank].name, from, rpc->peers[from].name);
    return how != CDP__WAVE_LIE;
}

CDP__PRIVATE bool cdp__ctx_got_grad(cdp_rpc *rpc, cdp_ctx *ctx, uint32_t from, uint32_t node,
    uint64_t pass, uint64_t value, cdp__ctx_sum *sum) {
    uint32_t entry;
    const cdp__wave_how how = cdp__wave_got_grad(&ctx->w, from, node, pass, value, &entry);
    if (sum && sum->rows && how == CDP__WAVE_OK) {
        const uint32_t to = ctx->w.values[entry].node;
        if (ctx->nodes[to].backward || ctx->w.nodes[to].edges)
            cdp__ctx_fail_here(rpc, ctx, CDP_ERR_INVALID,
                "a backward function on rank %u (%s) has left rows as the gradient of a value that "
                "is no parameter of that rank",
                rpc->rank, rpc->peers[rpc->rank].name);
    }
    if (sum && how == CDP__WAVE_OK && !ctx->failed)
        cdp__ctx_add(ctx, entry, sum);
    else
        cdp__free(rpc->os, sum);
    return cdp__ctx_received(rpc, ctx, from, how);
}

/* Handles the steps of this rank, until there are none. */
CDP__PRIVATE void cdp__ctx_steps(cdp_rpc *rpc) {
    while (rpc->waves) {
        cdp__rpc_wave *w = rpc->waves;
        cdp_ctx *ctx = w->ctx;
        const cdp__wave_act *a = &w->act;
        bool fine = true;
        rpc->waves = w->next;
        if (!w->next) rpc->waves_end = &rpc->waves;
        if (ctx->failed || ctx->ended) {
            cdp__free(rpc->os, w->sum);
        } else if (a->what == CDP__WAVE_SEND_MARK) {
            fine = cdp__ctx_received(rpc, ctx, rpc->rank,
                cdp__wave_got_mark(&ctx->w, rpc->rank, a->node, ctx->w.pass, a->value));
        } else if (a->what == CDP__WAVE_SEND_GRAD) {
            fine = cdp__ctx_got_grad(rpc, ctx, rpc->rank, a->node, ctx->w.pass, a->value, w->sum);
        } else if (a->what == CDP__WAVE_SEND_DONE) {
            fine = cdp__ctx_received(
                rpc, ctx, rpc->rank, cdp__wave_got_done(&ctx->w, rpc->rank, ctx->w.pass, a->node));
        } else if (a->what == CDP__WAVE_FIRE) {
            cdp__ctx_fire(rpc, ctx, a->node);
        } else {
            ctx->sending = ctx->roots;
            cdp__wave_grads(&ctx->w);
            ctx->sending = NULL;
        }
        CDP_ASSERT(fine);
        (void)fine;
        cdp__free(rpc->os, w);
        cdp__ctx_unuse(rpc, ctx);
    }
}

/* Handles a MARK, GRAD or DONE. Returns NULL or what is wrong with it. */
CDP__PRIVATE const char *cdp__ctx_got_wave(cdp_rpc *rpc, uint32_t from, const cdp__rpc_packet *p) {
    cdp_ctx *ctx = cdp__ctx_find(rpc, p->a);
    cdp__ctx_sum *sum = NULL;
    cdp__wave_how how;
    if (!ctx || ctx->failed || ctx->ended) return NULL; /* its sender was told, or will be */
    if (p->kind == CDP__RPC_DONE) {
        how = cdp__wave_got_done(&ctx->w, from, p->b, p->aux);
        return cdp__ctx_received(rpc, ctx, from, how) ? NULL : "an answer to no message of a pass";
    }
    if (p->kind == CDP__RPC_MARK) {
        how = cdp__wave_got_mark(&ctx->w, from, p->aux, p->slot, p->b);
        if (how == CDP__WAVE_OK) ++rpc->peers[from].marks;
        return cdp__ctx_received(rpc, ctx, from, how)
            ? NULL
            : "a value that it does not have, or twice in one pass";
    }
    if (p->tensors) {
        cdp_tensor t = cdp__rpc_get_shape(p->shapes);
        t.data = (void *)(uintptr_t)p->area;
        sum = cdp__ctx_copy(rpc, &t, NULL, from, p->aux, 0);
        if (!sum) {
            cdp__ctx_fail_here(rpc, ctx, CDP_ERR_NOMEM, "out of memory for a gradient");
            return NULL;
        }
    }
    return cdp__ctx_got_grad(rpc, ctx, from, p->aux, p->slot, p->b, sum)
        ? NULL
        : "a gradient that nobody waits for";
}

/* ---- members */

CDP__PRIVATE const char *cdp__ctx_got_join(cdp_rpc *rpc, uint32_t from, uint64_t id) {
    cdp_ctx *ctx = cdp__ctx_find(rpc, id);
    if (cdp__rpc_maker(id) != rpc->rank) return "a context of another rank";
    if (!ctx) {
        cdp__rpc_control(rpc, from, CDP__RPC_CTX_END, id, 0, 0);
    } else if (ctx->ended && ctx->with[from] <= CDP__CTX_WITH) {
        ctx->with[from] = CDP__CTX_ENDING;
        ++ctx->answers;
        cdp__rpc_control(rpc, from, CDP__RPC_CTX_END, id, 0, 0);
    } else if (ctx->with[from] == CDP__CTX_STRANGER) {
        ctx->with[from] = CDP__CTX_WITH;
        if (ctx->failed) cdp__ctx_post_fail(rpc, ctx, from);
    }
    return NULL;
}

CDP__PRIVATE const char *cdp__ctx_got_member(
    cdp_rpc *rpc, uint32_t from, const cdp__rpc_packet *p) {
    cdp_ctx *ctx = cdp__ctx_find(rpc, p->a);
    const bool origin = cdp__rpc_maker(p->a) == rpc->rank;
    char text[CDP__RPC_TEXT + 1];
    if (p->kind == CDP__RPC_JOIN) return cdp__ctx_got_join(rpc, from, p->a);
    if (!origin && from != cdp__rpc_maker(p->a)) return "a context of another rank";
    if (p->kind == CDP__RPC_CTX_END) {
        if (origin) return "a context of another rank";
        if (ctx) cdp__ctx_drop(rpc, ctx);
        cdp__rpc_control(rpc, from, CDP__RPC_CTX_ENDED, p->a, 0, 0);
    } else if (p->kind == CDP__RPC_CTX_ENDED) {
        if (ctx && ctx->with[from] == CDP__CTX_ENDING) {
            ctx->with[from] = CDP__CTX_LOST;
            --ctx->answers;
            rpc->changed = true;
        }
    } else if (!cdp__status_is_error((int32_t)(0u - p->aux))) {
        return "an unknown status";
    } else if (p->b != UINT32_MAX
        && (p->b > UINT32_MAX || cdp_rank_of_world(rpc->group, (uint32_t)p->b) == UINT32_MAX)) {
        return "a rank to blame that there is not";
    } else if (ctx && ctx->with[from] == CDP__CTX_STRANGER) {
        return "a failure of a context in which it has no part";
    } else if (ctx) {
        cdp__text_foreign(text, sizeof text, p->body, p->bytes);
        cdp__ctx_fail(
            rpc, ctx, (cdp_status) - (int32_t)p->aux, (int32_t)(uint32_t)p->b, from, text);
    }
    return NULL;
}

/* The link to a rank has ended: fails its contexts. */
CDP__PRIVATE void cdp__ctx_lose(cdp_rpc *rpc, uint32_t rank) {
    cdp_ctx *ctx, *next;
    for (ctx = rpc->contexts; ctx; ctx = next) {
        const uint8_t with = ctx->with[rank];
        next = ctx->next;
        ctx->with[rank] = CDP__CTX_LOST;
        if (with == CDP__CTX_ENDING) --ctx->answers;
        if (rank != rpc->rank && (with == CDP__CTX_WITH || cdp__rpc_maker(ctx->id) == rank)
            && (ctx->w.open || ctx->mine))
            cdp__ctx_fail(rpc, ctx, CDP_ERR_PEER_LOST, (int32_t)cdp_world_rank_of(rpc->group, rank),
                rpc->rank, rpc->peers[rank].why.text);
        if (rank != rpc->rank && cdp__rpc_maker(ctx->id) == rank) cdp__ctx_drop(rpc, ctx);
    }
    rpc->changed = true;
}

/* ---- calls of a context */

/* Enters a request into its context. Returns NULL, or why it does not run, with *status. */
CDP__PRIVATE const char *cdp__ctx_enter(cdp_rpc *rpc, cdp__rpc_rq *rq, cdp_status *status) {
    const uint64_t id = rq->ctx_number;
    const uint32_t origin = cdp__rpc_maker(id), from = rq->pub.from;
    cdp_ctx *ctx = cdp__ctx_find(rpc, id);
    uint32_t i;
    *status = CDP_ERR_STATE;
    if (!ctx && origin == rpc->rank) return "its context has ended";
    if (ctx && (ctx->failed || ctx->ended)) return "its context has failed, or ended";
    *status = CDP_ERR_PEER_LOST;
    if (!ctx && rpc->lost[origin]) return "the origin of its context is lost";
    *status = CDP_ERR_BUSY;
    if (!ctx && rpc->context_count >= rpc->desc.max_contexts)
        return "that rank takes part in max_contexts contexts";
    *status = CDP_ERR_NOMEM;
    if (!ctx) {
        ctx = cdp__ctx_make(rpc, id);
        if (ctx && from != origin) cdp__rpc_control(rpc, origin, CDP__RPC_JOIN, id, 0, 0);
        if (ctx) ctx->with[origin] = CDP__CTX_WITH;
    }
    if (!ctx) return "out of memory for its context";
    if (from != rpc->rank) ctx->with[from] = CDP__CTX_WITH;
    rq->pub.ctx = ctx;
    ++ctx->uses;
    for (i = 0; i < rq->pub.tensor_count && from != rpc->rank; ++i) {
        if (!rq->tensors[i].value) continue;
        rq->tensors[i].value = cdp__ctx_import(rpc, ctx, id, from, rq->tensors[i].value);
        if (!rq->tensors[i].value) return "out of memory for a value";
    }
    return NULL;
}

/* Adds the node of a call, with these inputs besides its tensors. 0: out of memory. */
CDP__PRIVATE uint32_t cdp__ctx_call_node(
    cdp_rpc *rpc, cdp__rpc_rq *rq, const uint64_t *more, uint32_t count) {
    const uint32_t tensors = rq->pub.tensor_count;
    cdp_ctx *ctx = rq->pub.ctx;
    uint64_t *inputs = (uint64_t *)cdp__alloc(rpc->os, (tensors + count + 1) * sizeof *inputs);
    uint32_t i, node;
    if (!inputs) return 0;
    for (i = 0; i < tensors; ++i)
        inputs[i] = rq->tensors[i].value;
    if (count) memcpy(inputs + tensors, more, count * sizeof *inputs);
    node = cdp__ctx_node_add(rpc, ctx, inputs, tensors + count, CDP__RPC_TENSORS);
    cdp__free(rpc->os, inputs);
    if (!node) return 0;
    ctx->nodes[node].backward = rq->f->backward;
    ctx->nodes[node].user = rq->f->user;
    rq->made_node = node;
    return node;
}

/* Prepares the results of a request in a context: those of a function with `backward` become
   values. */
CDP__PRIVATE cdp_status cdp__ctx_results(
    cdp_rpc *rpc, cdp__rpc_rq *rq, const cdp_args *args, cdp_tensor *out) {
    cdp_ctx *ctx = rq->pub.ctx;
    uint32_t i, node = rq->made_node;
    cdp_status st;
    for (i = 0; i < args->tensor_count; ++i)
        out[i] = args->tensors[i];
    if (ctx->failed || ctx->ended) { /* the call itself continues */
        for (i = 0; i < args->tensor_count; ++i)
            out[i].value = 0;
        return CDP_OK;
    }
    if (!rq->f->backward) {
        st = cdp__ctx_check("cdp_rpc_reply", ctx, args);
        if (st != CDP_OK) return st;
    } else {
        if (!node) node = cdp__ctx_call_node(rpc, rq, NULL, 0);
        if (!node || !cdp__ctx_reserve(rpc, ctx, 0, 0, args->tensor_count, 0))
            return cdp__fail_nomem("the record of a call", sizeof(cdp__ctx_node));
        ctx->nodes[node].out_count = args->tensor_count;
        for (i = 0; i < args->tensor_count; ++i) {
            out[i].value = cdp__wave_add_value(&ctx->w, node, i);
            ctx->nodes[node].outputs[i] = (uint32_t)out[i].value;
        }
    }
    {
        cdp_args sent = *args;
        sent.tensors = out;
        if (!cdp__ctx_record_sent(rpc, ctx, &sent, rq->pub.from))
            return cdp__fail_nomem("the record of a call", sizeof(cdp__wave_receiver));
    }
    return CDP_OK;
}

/* ---- >>rpc/requests: calls that run here ----------------------------------------------------- */

/* Knows: requests, values of this rank. Promises: a function runs at most once for each request,
   without the lock; every request is answered once. */

CDP__PRIVATE void cdp__rpc_advance(cdp_rpc *rpc, cdp__rpc_rq *rq);
CDP__PRIVATE void cdp__rpc_refuse(
    cdp_rpc *rpc, cdp__rpc_rq *rq, cdp_status status, cdp_ran ran, int32_t code, const char *text);

/* ---- values */

/* Frees what the library has of a value: before `plain` points to it, and when the value ends. */
CDP__PRIVATE void cdp__rpc_value_free_lists(cdp_rpc *rpc, cdp__rpc_value *v) {
    cdp__free(rpc->os, v->area);
    cdp__free(rpc->os, v->iov);
    cdp__free(rpc->os, v->tensors);
    cdp__free(rpc->os, v->rrefs);
    v->area = NULL;
    v->iov = NULL;
    v->tensors = NULL;
    v->rrefs = NULL;
}

CDP__PRIVATE void cdp__rpc_value_end(cdp_rpc *rpc, cdp__rpc_task *task) {
    cdp__rpc_value *v = (cdp__rpc_value *)task;
    uint32_t i;
    if (v->value.destroy) v->value.destroy(v->value.user, v->value.data);
    for (i = 0; v->rrefs && i < v->value.plain.rref_count; ++i)
        cdp_rref_drop(v->rrefs[i]);
    cdp__rpc_value_free_lists(rpc, v);
    cdp__free(rpc->os, v->why);
    cdp__free(rpc->os, v);
}

/* Returns NULL when out of memory. */
CDP__PRIVATE cdp__rpc_value *cdp__rpc_value_make(cdp_rpc *rpc) {
    cdp__rpc_value *v = (cdp__rpc_value *)cdp__alloc_zero(rpc->os, sizeof *v);
    if (!v) {
        (void)cdp__fail_nomem("a value", sizeof *v);
        return NULL;
    }
    v->task.run = cdp__rpc_value_end;
    v->parked_end = &v->parked;
    return v;
}

/* Memory for lists like those of `args`, with `iovs` pieces. The references are checked. After an
   error there is none. */
CDP__PRIVATE cdp_status cdp__rpc_value_lists(
    cdp_rpc *rpc, cdp__rpc_value *v, const cdp_args *args, uint32_t iovs) {
    const uint64_t n = iovs * sizeof *v->iov, t = args->tensor_count * sizeof *v->tensors,
                   r = args->rref_count * sizeof *v->rrefs;
    uint32_t i;
    if (n) v->iov = (cdp_iov *)cdp__alloc(rpc->os, n);
    if (t) v->tensors = (cdp_tensor *)cdp__alloc(rpc->os, t);
    if (r) v->rrefs = (cdp_rref *)cdp__alloc(rpc->os, r);
    if ((n && !v->iov) || (t && !v->tensors) || (r && !v->rrefs)) {
        cdp__rpc_value_free_lists(rpc, v);
        return cdp__fail_nomem("a value", n + t + r);
    }
    if (t) memcpy(v->tensors, args->tensors, (size_t)t);
    for (i = 0; i < args->rref_count; ++i) {
        v->rrefs[i] = args->rrefs[i];
        ++rpc->refs.at[(uint32_t)args->rrefs[i].slot].handles;
    }
    return CDP_OK;
}

/* `plain` of the value is like `args`, in memory of the library. */
CDP__PRIVATE void cdp__rpc_value_plain(cdp__rpc_value *v, const cdp_args *args, uint32_t iovs) {
    v->value.plain = *args;
    v->value.plain.iov = v->iov;
    v->value.plain.iov_count = iovs;
    v->value.plain.tensors = v->tensors;
    v->value.plain.rrefs = v->rrefs;
}

/* The value is that of the program: the lists of its `plain` are copied, what they point to is
   not. Lock held. After an error nothing has changed. */
CDP__PRIVATE cdp_status cdp__rpc_value_keep(
    cdp_rpc *rpc, const char *call, cdp__rpc_value *v, const cdp_value *value) {
    const cdp_args *plain = &value->plain;
    cdp_status st = cdp__rpc_rrefs_check(rpc, call, plain);
    if (st == CDP_OK) st = cdp__rpc_value_lists(rpc, v, plain, plain->iov_count);
    if (st != CDP_OK) return st;
    if (v->iov) memcpy(v->iov, plain->iov, plain->iov_count * sizeof *v->iov);
    v->value = *value;
    cdp__rpc_value_plain(v, plain, plain->iov_count);
    return CDP_OK;
}

/* Makes a copy of results the value. */
CDP__PRIVATE cdp_status cdp__rpc_value_copy(cdp_rpc *rpc, cdp__rpc_value *v, const cdp_args *args) {
    const uint64_t bytes = cdp__rpc_args_bytes(args);
    const cdp_args none = {NULL, 0, NULL, 0, NULL, 0};
    uint8_t *at;
    uint32_t i;
    cdp_status st;
    if (!args) args = &none;
    v->area = (uint8_t *)cdp__alloc(rpc->os, bytes);
    if (!v->area) return cdp__fail_nomem("a value", bytes);
    st = cdp__rpc_value_lists(rpc, v, args, 1);
    if (st != CDP_OK) return st;
    cdp__rpc_gather(v->area, args);
    at = cdp__rpc_tensors_in(v->tensors, args->tensors, args->tensor_count, v->area);
    for (i = 0; i < args->tensor_count; ++i)
        v->tensors[i].value = 0;
    v->iov->data = at;
    v->iov->bytes = bytes - (uint64_t)(at - v->area);
    v->value.data = at;
    cdp__rpc_value_plain(v, args, 1);
    return CDP_OK;
}

/* The value exists, or creating it has failed: requests that wait for it continue. One that fails
   settles the value that it was to make, and so on: those of the inner calls of this function are
   left to the outermost one, because values of one rank can depend on each other in a long row. */
CDP__PRIVATE void cdp__rpc_value_settle(cdp_rpc *rpc, cdp__rpc_value *v) {
    const bool outermost = !rpc->unparked_end;
    cdp__rpc_rq *rq;
    v->settled = true;
    rpc->changed = true;
    if (outermost) rpc->unparked_end = &rpc->unparked;
    for (rq = v->parked; rq; rq = rq->next)
        rq->stage = CDP__RPC_NEW;
    *rpc->unparked_end = v->parked;
    if (v->parked) rpc->unparked_end = v->parked_end;
    v->parked = NULL;
    v->parked_end = &v->parked;
    while (outermost && rpc->unparked) {
        rq = rpc->unparked;
        rpc->unparked = rq->next;
        if (!rq->next) rpc->unparked_end = &rpc->unparked;
        cdp__rpc_advance(rpc, rq);
    }
    if (outermost) rpc->unparked_end = NULL;
}

/* The request does not make its value. What fails later for that reason names its function, not
   the one that was to run on the value. */
CDP__PRIVATE void cdp__rpc_value_fail(
    cdp_rpc *rpc, const cdp__rpc_rq *rq, cdp_status status, int32_t code, const char *text) {
    cdp__rpc_value *v = rpc->extra[rq->makes].value;
    const cdp__rpc_value *on = rq->on ? rpc->extra[rq->on].value : NULL;
    char name[16];
    v->failed = status;
    v->code = code;
    v->why = (char *)cdp__alloc(rpc->os, CDP__RPC_TEXT + 1);
    if (v->why && on && on->settled && on->failed)
        cdp__format(v->why, CDP__RPC_TEXT + 1, "%s", text); /* that names the first one */
    else if (v->why && status == CDP_ERR_REMOTE)
        cdp__format(v->why, CDP__RPC_TEXT + 1, "its value was not made: %s failed with code %d: %s",
            cdp__rpc_function_name(rpc, rq->pub.function, name), code, text);
    else if (v->why)
        cdp__format(v->why, CDP__RPC_TEXT + 1, "its value was not made: %s: %s",
            cdp__rpc_function_name(rpc, rq->pub.function, name), text);
    cdp__rpc_value_settle(rpc, v);
}

/* ---- answers */

/* The request is over; its record ends when its function has returned, too. */
CDP__PRIVATE void cdp__rpc_replied(cdp_rpc *rpc, cdp__rpc_rq *rq, cdp_status status) {
    cdp_rpc_record *record = cdp__rpc_record_of(rpc, rq->record);
    const uint32_t on = rq->on, makes = rq->makes;
    uint32_t i;
    if (record) {
        record->replied_ns = cdp__rpc_time(rpc);
        if (record->from != rpc->rank || !record->end_ns) record->status = status;
    }
    rq->stage = CDP__RPC_REPLIED;
    rq->on = rq->makes = 0;
    for (i = 0; i < rq->pub.rref_count; ++i)
        if (rq->refs[i].rpc) cdp__ref_drop(&rpc->refs, (uint32_t)rq->refs[i].slot);
    if (on) cdp__ref_drop(&rpc->refs, on);
    if (makes) cdp__ref_drop(&rpc->refs, makes);
    if (!rq->in_function) cdp__rpc_rq_close(rpc, rq);
}

/* Call before the answer is sent: the caller counts its calls in flight, and this one is over
   then. */
CDP__PRIVATE void cdp__rpc_uncount(cdp_rpc *rpc, const cdp__rpc_rq *rq) {
    if (rq->pub.from != rpc->rank) --rpc->peers[rq->pub.from].requests[rq->nested];
}

CDP__PRIVATE void cdp__rpc_send_fail(cdp_rpc *rpc, uint32_t to, uint64_t call, cdp_status status,
    cdp_ran ran, int32_t code, const char *text) {
    cdp__rpc_packet p;
    cdp_args args;
    cdp_iov iov;
    memset(&p, 0, sizeof p);
    memset(&args, 0, sizeof args);
    p.kind = CDP__RPC_FAIL;
    p.a = call;
    p.aux = (uint32_t) - (int32_t)status;
    p.b = (uint64_t)ran << 32 | (uint32_t)code;
    iov.data = (void *)(uintptr_t)text;
    iov.bytes = cdp__min(strlen(text), CDP__RPC_TEXT);
    args.iov = &iov;
    args.iov_count = 1;
    cdp__rpc_must_post(rpc, to, &p, &args);
}

/* Answers a request with a failure; it must not have been answered before. */
CDP__PRIVATE void cdp__rpc_answer_fail(
    cdp_rpc *rpc, cdp__rpc_rq *rq, cdp_status status, cdp_ran ran, int32_t code, const char *text) {
    cdp__rpc_call *c;
    cdp__rpc_packet p;
    const bool silent = (rq->flags & (CDP__RPC_ONE_WAY | CDP__RPC_REMOTE)) != 0;
    cdp__rpc_uncount(rpc, rq);
    if (rq->makes) cdp__rpc_value_fail(rpc, rq, status, code, text);
    if (rq->pub.from == rpc->rank) {
        c = cdp__rpc_call_find(rpc, rq->call);
        if (c && !silent) cdp__rpc_failure_received(rpc, c, status, ran, code, text);
        if (c) cdp__rpc_wire_over(rpc, c);
    } else if (silent) {
        memset(&p, 0, sizeof p);
        p.kind = CDP__RPC_REPLY;
        p.a = rq->call;
        cdp__rpc_must_post(rpc, rq->pub.from, &p, NULL);
    } else {
        cdp__rpc_send_fail(rpc, rq->pub.from, rq->call, status, ran, code, text);
    }
    cdp__rpc_replied(rpc, rq, status);
}

/* Answers a request whose function does not run. */
CDP__PRIVATE void cdp__rpc_refuse(
    cdp_rpc *rpc, cdp__rpc_rq *rq, cdp_status status, cdp_ran ran, int32_t code, const char *text) {
    cdp_rpc_record *record = cdp__rpc_record_of(rpc, rq->record);
    ++rpc->refused;
    rpc->late += status == CDP_ERR_TIMEOUT;
    if (record) record->ran = ran;
    cdp__rpc_answer_fail(rpc, rq, status, ran, code, text);
}

/* They can be sent; else the reason is this thread's last error. */
CDP__PRIVATE cdp_status cdp__rpc_results_check(
    cdp_rpc *rpc, const char *name, const cdp_args *results) {
    const cdp_status st = cdp__rpc_args_check(name, results);
    const uint64_t bytes = st == CDP_OK ? cdp__rpc_args_bytes(results) : 0;
    if (st != CDP_OK) return st;
    if (bytes > rpc->desc.max_message_bytes)
        return cdp__fail(CDP_ERR_INVALID,
            "%s: results of %llu bytes; max_message_bytes of cdp_rpc_desc is %llu; reply less, or "
            "raise it on all ranks",
            name, (unsigned long long)bytes, (unsigned long long)rpc->desc.max_message_bytes);
    return cdp__rpc_rrefs_check(rpc, name, results);
}

/* Sends the reply with the results. After an error nothing was sent. */
CDP__PRIVATE cdp_status cdp__rpc_answer(cdp_rpc *rpc, cdp__rpc_rq *rq, const cdp_args *args) {
    const bool silent = (rq->flags & (CDP__RPC_ONE_WAY | CDP__RPC_REMOTE)) != 0;
    cdp_tensor tensors[CDP__RPC_TENSORS];
    cdp__rpc_packet p;
    cdp_args results;
    cdp_status st = CDP_OK;
    memset(&p, 0, sizeof p);
    if (silent || (rq->cancelled && rq->pub.from != rpc->rank)) args = NULL;
    if (args && rq->pub.ctx && args->tensor_count) {
        results = *args;
        results.tensors = tensors;
        st = cdp__ctx_results(rpc, rq, args, tensors);
        if (st != CDP_OK) return st;
        args = &results;
        p.flags = CDP__RPC_CTX;
        p.slot = rq->pub.ctx->id;
    }
    if (rq->pub.from == rpc->rank) {
        cdp__rpc_call *c = cdp__rpc_call_find(rpc, rq->call);
        if (c && !silent) cdp__rpc_own_reply(rpc, c, args);
        if (c) cdp__rpc_wire_over(rpc, c);
    } else {
        p.kind = CDP__RPC_REPLY;
        p.a = rq->call;
        if (args && args->rref_count && !cdp__rpc_reserve(rpc, args->rref_count))
            return cdp__fail(CDP_ERR_BUSY, "the table of references is full (max_rrefs %u)",
                rpc->desc.max_rrefs);
        if (silent) /* nothing of it can fail for the program: the value is there */
            cdp__rpc_must_post(rpc, rq->pub.from, &p, NULL);
        else if (args && args->rref_count)
            st = cdp__rpc_post_rrefs(rpc, rq->pub.from, &p, args, 0, false);
        else
            st = cdp__rpc_post(rpc, rq->pub.from, &p, args);
        if (st != CDP_OK) return st;
        cdp__rpc_uncount(rpc, rq);
    }
    cdp__rpc_replied(rpc, rq, CDP_OK);
    return CDP_OK;
}

/* ---- before the function runs */

/* The state of the references among the arguments: LIVE if all are, PENDING, or BROKEN. */
CDP__PRIVATE cdp__ref_state cdp__rpc_confirmed(const cdp_rpc *rpc, const cdp__rpc_rq *rq) {
    cdp__ref_state worst = CDP__REF_LIVE;
    uint32_t i;
    for (i = 0; i < rq->pub.rref_count; ++i) {
        const cdp__ref *r = &rpc->refs.at[(uint32_t)rq->refs[i].slot];
        if (!rq->refs[i].rpc || r->state == CDP__REF_BROKEN) return CDP__REF_BROKEN;
        if (r->state == CDP__REF_PENDING) worst = CDP__REF_PENDING;
    }
    return worst;
}

/* Sends a value that was asked for and exists. */
CDP__PRIVATE void cdp__rpc_answer_fetch(cdp_rpc *rpc, cdp__rpc_rq *rq) {
    const cdp_args *plain = &rpc->extra[rq->on].value->value.plain;
    cdp_status st = cdp__rpc_results_check(rpc, "the value's plain", plain);
    if (st == CDP_OK) st = cdp__rpc_answer(rpc, rq, plain);
    if (st != CDP_OK) cdp__rpc_refuse(rpc, rq, st, CDP_RAN_NO, 0, cdp_last_error()->text);
}

/* What a call of this level waits for is run by threads that may run such calls: the request that
   is to make the value in `slot`, if it has not begun, and those that make what that one waits
   for. */
CDP__PRIVATE void cdp__rpc_raise(cdp_rpc *rpc, uint32_t slot, int32_t level) {
    cdp__rpc_rq *rq;
    while (slot) {
        for (rq = rpc->all; rq && rq->makes != slot;)
            rq = rq->after;
        if (!rq || rq->stage >= CDP__RPC_RUNNING || rq->level >= level) return;
        rq->level = level;
        slot = rq->on;
    }
}

/* Moves a request from stage NEW to its next stage. */
CDP__PRIVATE void cdp__rpc_advance(cdp_rpc *rpc, cdp__rpc_rq *rq) {
    const bool early = (rq->f && (rq->f->flags & CDP_RPC_EARLY)) || CDP__RPC_PLANT(NOT_CONFIRMED);
    const bool own = rq->pub.from == rpc->rank && !rq->node;
    const bool turn = !own || cdp__rpc_turn(rpc, cdp__rpc_call_find(rpc, rq->call));
    const cdp__ref_state state = early ? CDP__REF_LIVE : cdp__rpc_confirmed(rpc, rq);
    cdp__rpc_value *v = rq->on ? rpc->extra[rq->on].value : NULL;
    if (state == CDP__REF_BROKEN) {
        cdp__rpc_refuse(rpc, rq, CDP_ERR_PEER_LOST, CDP_RAN_NO, 0,
            "a reference among its arguments is broken: the owner of the value is lost, or the "
            "value is gone");
    } else if (state == CDP__REF_PENDING || !turn) {
        rq->stage = CDP__RPC_CONFIRMING;
        rq->next = rpc->confirming;
        rpc->confirming = rq;
    } else if (v && !v->settled) {
        rq->stage = CDP__RPC_PARKED;
        cdp__rpc_raise(rpc, rq->on, rq->level);
        cdp__rpc_append(&v->parked_end, rq);
    } else if (v && v->failed) {
        cdp__rpc_refuse(
            rpc, rq, v->failed, CDP_RAN_NO, v->code, v->why ? v->why : "its value was not made");
    } else if (rq->flags & CDP__RPC_FETCH) {
        cdp__rpc_answer_fetch(rpc, rq);
    } else {
        rq->stage = CDP__RPC_QUEUED;
        if (v) {
            rq->on_value = v->value;
            rq->pub.on = &rq->on_value;
            rq->pub.on_rref = cdp__rpc_rref(rpc, rq->on);
        }
        if (rq->f->flags & CDP_RPC_INLINE)
            cdp__rpc_append(&rpc->inline_end, rq);
        else
            cdp__rpc_enqueue(rpc, rq);
        rpc->changed = true;
    }
}

/* Checks all requests and messages that wait for confirmed references, or for their turn. */
CDP__PRIVATE void cdp__rpc_look_again(cdp_rpc *rpc) {
    cdp__rpc_rq *rq = rpc->confirming;
    cdp__rpc_out *o = rpc->waiting, *keep = NULL;
    rpc->confirming = NULL;
    rpc->waiting = NULL;
    while (rq) {
        cdp__rpc_rq *next = rq->next;
        rq->stage = CDP__RPC_NEW;
        cdp__rpc_advance(rpc, rq);
        rq = next;
    }
    while (o) {
        cdp__rpc_out *next = o->next;
        const uint32_t on = o->on;
        if (on && rpc->refs.at[on].state != CDP__REF_PENDING) {
            o->broken = o->broken || rpc->refs.at[on].state == CDP__REF_BROKEN;
            o->on = 0;
        }
        if (o->in_order && cdp__rpc_turn(rpc, cdp__rpc_call_find(rpc, o->p.a))) o->in_order = false;
        if (o->broken || rpc->lost[o->to]) {
            const cdp__rpc_packet p = o->p;
            const uint32_t to = o->to;
            cdp__rpc_call *c = p.kind == CDP__RPC_CALL ? cdp__rpc_call_find(rpc, p.a) : NULL;
            cdp__rpc_out_drop(rpc, o);
            if (c && c->remote_fid) /* the value is never created */
                (void)cdp__ref_got_ack(&rpc->refs, to, c->remote_fid, CDP__REF_GONE);
            if (c)
                cdp__rpc_call_failed(rpc, c, CDP_ERR_PEER_LOST, CDP_RAN_NO,
                    "a reference in it broke before it left: the owner of the value is lost");
            else if (p.kind == CDP__RPC_REPLY)
                cdp__rpc_send_fail(rpc, to, p.a, CDP_ERR_PEER_LOST, CDP_RAN_YES, 0,
                    "a reference in the result broke: the owner of the value is lost");
        } else if (o->waits || o->on || o->in_order) {
            o->next = keep;
            keep = o;
        } else {
            cdp__rpc_queue_out(rpc, o);
        }
        o = next;
    }
    while (keep) { /* messages that were added meanwhile stay behind them */
        cdp__rpc_out *next = keep->next;
        keep->next = rpc->waiting;
        rpc->waiting = keep;
        keep = next;
    }
}

/* ---- running a function */

/* The longest time for which waits pass over a request; also at most a quarter of the time that
   the request has. */
#define CDP__RPC_PASS_NS 1000000000u

/* True if a thread in a wait that ends by bound_ns may run this request meanwhile. A function that
   runs there must itself stop waiting soon after bound_ns. So a function that is known to wait, or
   that has never run, is left to a wait with more time, unless the deadline of a request that needs
   its value is within this wait. It is left for a limited time, because there may be no other
   wait. */
CDP__PRIVATE bool cdp__rpc_may(
    const cdp_rpc *rpc, cdp__rpc_rq *rq, uint64_t now, uint64_t bound_ns) {
    uint64_t ends = rq->pub.deadline_ns, enough;
    const cdp__rpc_rq *parked;
    if (rq->f->max_running && rq->use->running >= rq->f->max_running) return false;
    if (bound_ns == CDP__NEVER || (rq->use->known && !rq->use->waits)) return true;
    for (parked = rq->makes ? rpc->extra[rq->makes].value->parked : NULL; parked;
         parked = parked->next)
        ends = cdp__min(ends, parked->pub.deadline_ns);
    if (ends <= bound_ns + CDP__RPC_GRACE_NS) return true;
    enough = cdp__min((ends - now) / 4, CDP__RPC_PASS_NS);
    if (bound_ns >= now + enough) return true;
    if (!rq->passed_ns) rq->passed_ns = now;
    return now - rq->passed_ns >= enough;
}

/* Functions with max_running 1 run in the order of the queue: true if no earlier request of the
   same function is in it that is as deep. */
CDP__PRIVATE bool cdp__rpc_first(const cdp_rpc *rpc, const cdp__rpc_rq *rq) {
    const cdp__rpc_rq *at = rpc->queue;
    if (rq->f->max_running != 1) return true;
    while (at != rq && (at->f != rq->f || !cdp__level_follows(rq->level, at->level)))
        at = at->next;
    return at == rq;
}

/* Removes from the queue the next request that may run in a wait that ends by bound_ns. NULL:
   none. */
CDP__PRIVATE cdp__rpc_rq *cdp__rpc_next(cdp_rpc *rpc, uint64_t now, uint64_t bound_ns) {
    cdp__rpc_rq *rq = rpc->queue;
    while (rq
        && !(cdp__level_runs(cdp__rpc_inside(), rq->level) && cdp__rpc_may(rpc, rq, now, bound_ns)
            && cdp__rpc_first(rpc, rq)))
        rq = rq->next;
    if (rq) (void)cdp__rpc_unlist(&rpc->queue, &rpc->queue_end, rq);
    if (rq) rpc->turn = cdp__max(rpc->turn, rq->turn);
    return rq;
}

/* Runs the function of a request, with the lock released. */
CDP__PRIVATE void cdp__rpc_run(cdp_rpc *rpc, cdp__rpc_rq *rq) {
    cdp__rpc_here *here = cdp__rpc_here_of();
    cdp__rpc_rq *outer = here->request;
    const int32_t level = here->level;
    const uint32_t no_wait = (rq->f->flags & CDP_RPC_INLINE) ? 1 : 0;
    const uint64_t now = cdp__rpc_time(rpc);
    const bool late = rq->pub.deadline_ns <= now;
    cdp_rpc_record *record = cdp__rpc_record_of(rpc, rq->record);
    if (rq->cancelled || late) {
        cdp__rpc_refuse(rpc, rq, rq->cancelled ? CDP_ERR_ABORTED : CDP_ERR_TIMEOUT, CDP_RAN_NO, 0,
            rq->cancelled ? "cancelled before it ran" : "its time was over before it ran");
        return;
    }
    if (record) {
        record->run_ns = now;
        record->ran = CDP_RAN_YES;
    }
    rq->stage = CDP__RPC_RUNNING;
    rq->in_function = true;
    ++rq->use->running;
    cdp_lock_release(&rpc->lock);
    here->request = rq;
    here->level = rq->level + 1;
    ++here->depth;
    here->no_wait += no_wait;
    rq->f->func(rq->f->user, &rq->pub);
    here->no_wait -= no_wait;
    --here->depth;
    here->level = level;
    here->request = outer;
    cdp__rpc_lock(rpc);
    rq->in_function = false;
    --rq->use->running;
    rq->use->known = true;
    rpc->changed = true;
    if (rq->stage == CDP__RPC_REPLIED) {
        cdp__rpc_rq_close(rpc, rq);
    } else if (rq->f->flags & CDP_RPC_LATER) {
        rq->stage = CDP__RPC_KEPT;
    } else {
        if (rq->makes) cdp__rpc_value_settle(rpc, rpc->extra[rq->makes].value);
        if (cdp__rpc_answer(rpc, rq, NULL) != CDP_OK)
            cdp__rpc_answer_fail(rpc, rq, CDP_ERR_NOMEM, CDP_RAN_YES, 0, "out of memory");
    }
}

/* ---- incoming requests */

/* Returns NULL, or why this function does not run for this rank, with *status. */
CDP__PRIVATE const char *cdp__rpc_admit(
    cdp_rpc *rpc, cdp__rpc_rq *rq, cdp_status *status, char text[96]) {
    const cdp_rpc_function *f = NULL;
    uint32_t i;
    for (i = 0; i < rpc->desc.function_count && !f; ++i)
        if (cdp__rpc_id_of(rpc->desc.functions[i].name) == rq->pub.function) {
            f = &rpc->desc.functions[i];
            rq->use = &rpc->uses[i];
        }
    for (i = 0; i < CDP__RPC_BUILTINS && !f; ++i)
        if (cdp__rpc_id_of(rpc->builtins[i].name) == rq->pub.function) {
            f = &rpc->builtins[i];
            rq->use = &rpc->builtin_uses[i];
        }
    *status = CDP_ERR_UNSUPPORTED;
    if (!f)
        return "no function of this name is registered there; add it to the functions of its "
               "cdp_rpc_desc";
    rq->f = f;
    for (i = 0; i < f->allow_count && f->allow[i] != rq->pub.from; ++i) {
    }
    if (f->allow_count && i == f->allow_count) return "this rank may not call it (allow)";
    *status = CDP_ERR_INVALID;
    if (f->max_bytes && rq->area_bytes > f->max_bytes) {
        cdp__format(text, 96, "its arguments have %llu bytes, max_bytes of the function is %llu",
            (unsigned long long)rq->area_bytes, (unsigned long long)f->max_bytes);
        return text;
    }
    if (f->max_tensors && rq->pub.tensor_count > f->max_tensors) {
        cdp__format(text, 96, "its arguments have %u tensors, max_tensors of the function is %u",
            rq->pub.tensor_count, f->max_tensors);
        return text;
    }
    if (f->max_rrefs && rq->pub.rref_count > f->max_rrefs) {
        cdp__format(text, 96, "its arguments have %u references, max_rrefs of the function is %u",
            rq->pub.rref_count, f->max_rrefs);
        return text;
    }
    *status = CDP_ERR_STATE;
    if (rpc->phase != CDP__RPC_OPEN) return "that rank has shut down";
    return NULL;
}

/* Allocates memory for arguments of a request. NULL: out of memory. */
CDP__PRIVATE uint8_t *cdp__rpc_rq_room(cdp_rpc *rpc, cdp__rpc_rq *rq, uint64_t bytes) {
    if (bytes <= sizeof rq->room) return (uint8_t *)rq->room;
    rq->buffer = (uint8_t *)cdp__alloc(rpc->os, bytes);
    return rq->buffer;
}

/* The contents of the arguments are in `area`; the tensors are described by `like`. False: out
   of memory. */
CDP__PRIVATE bool cdp__rpc_rq_args(cdp_rpc *rpc, cdp__rpc_rq *rq, const cdp_tensor *like,
    uint32_t tensors, uint8_t *area, uint64_t bytes) {
    uint8_t *at = area;
    rq->area_bytes = bytes;
    if (tensors) {
        rq->tensors = (cdp_tensor *)cdp__alloc(rpc->os, tensors * sizeof *rq->tensors);
        if (!rq->tensors) return false;
        at = cdp__rpc_tensors_in(rq->tensors, like, tensors, area);
        rq->pub.tensors = rq->tensors;
        rq->pub.tensor_count = tensors;
    }
    rq->pub.bytes = bytes - (uint64_t)(at - area);
    rq->pub.data = rq->pub.bytes ? at : NULL;
    return true;
}

/* Stores the arguments that a message contains. Returns NULL or what is wrong. */
CDP__PRIVATE const char *cdp__rpc_rq_got(
    cdp_rpc *rpc, cdp__rpc_rq *rq, const cdp__rpc_packet *p, uint8_t **owned) {
    cdp_tensor like[CDP__RPC_TENSORS];
    uint8_t *area = (uint8_t *)(uintptr_t)p->area;
    uint32_t i;
    for (i = 0; i < p->tensors; ++i)
        like[i] = cdp__rpc_get_shape(p->shapes + i * CDP__RPC_SHAPE);
    if (*owned) {
        rq->buffer = *owned;
        rq->counted = p->bytes;
        *owned = NULL;
    } else {
        area = cdp__rpc_rq_room(rpc, rq, p->area_bytes);
        if (!area) return "out of memory for arguments of it";
        if (p->area_bytes) memcpy(area, p->area, (size_t)p->area_bytes);
    }
    return cdp__rpc_rq_args(rpc, rq, like, p->tensors, area, p->area_bytes)
        ? NULL
        : "out of memory for arguments of it";
}

/* Begins a request that is filled in: it runs, waits or is refused. */
CDP__PRIVATE void cdp__rpc_begin(cdp_rpc *rpc, cdp__rpc_rq *rq) {
    char text[96];
    cdp_status status = CDP_OK;
    const char *why = (rq->flags & CDP__RPC_FETCH) ? NULL : cdp__rpc_admit(rpc, rq, &status, text);
    if (!why && rq->ctx_number) why = cdp__ctx_enter(rpc, rq, &status);
    if (rq->pub.deadline_ns != CDP__NEVER) {
        if (rq->pub.from != rpc->rank)
            rq->report_ns = cdp__rpc_notify_at(rpc, rq->flags, rq->pub.deadline_ns);
        cdp__rpc_timer(rpc, rq->report_ns ? rq->report_ns : rq->pub.deadline_ns);
    }
    if (why)
        cdp__rpc_refuse(rpc, rq, status, CDP_RAN_NO, 0, why);
    else
        cdp__rpc_advance(rpc, rq);
}

/* ---- >>rpc/intake: handles messages of peers ------------------------------------------------- */

/* Knows: every kind of message. Promises: a message that no peer of this version sends ends only
   the link to its sender; references in a message are taken over before anything else is
   checked. */

/* Takes the references of a message. A text: what is wrong with them, and none is taken. */
CDP__PRIVATE const char *cdp__rpc_take(
    cdp_rpc *rpc, uint32_t from, const cdp__rpc_packet *p, uint32_t *slots) {
    uint32_t i;
    (void)cdp__rpc_reserve(rpc, p->rrefs + 2); /* without room, the table refuses each reference */
    for (i = 0; i < p->rrefs; ++i) {
        const uint8_t *r = p->records + i * CDP__RPC_RECORD;
        slots[i] = 0;
        if (!cdp__ref_take(&rpc->refs, from, cdp__get_u32(r + 16), cdp__get_u64(r),
                cdp__get_u64(r + 8), &slots[i])) {
            cdp__rpc_untake(rpc, slots, i);
            return "a fork that is there already";
        }
    }
    return NULL;
}

/* Finds the value that the request runs on, and creates the entry of the one that it makes.
   Returns NULL or what is wrong. */
CDP__PRIVATE const char *cdp__rpc_target(cdp_rpc *rpc, cdp__rpc_rq *rq, const cdp__rpc_packet *p) {
    uint32_t slot;
    if (p->flags & CDP__RPC_ON) {
        slot = cdp__refs_fork(&rpc->refs, p->fid, rq->pub.from);
        if (!slot || rpc->refs.at[slot].rid != p->rid)
            return "a call on a reference that it does not have";
        rq->on = rpc->refs.at[slot].of;
        ++rpc->refs.at[rq->on].handles;
    }
    if (p->flags & CDP__RPC_REMOTE) {
        cdp__rpc_value *v = cdp__rpc_value_make(rpc);
        if (!v) return "out of memory for a value that it wants";
        if (!cdp__ref_got_remote(&rpc->refs, rq->pub.from, p->makes_rid, p->makes_fid, &slot)) {
            cdp__free(rpc->os, v);
            return "a value that is there already";
        }
        if (!slot) {
            cdp__free(rpc->os, v);
            return NULL;
        }
        ++rpc->refs.at[slot].handles;
        rpc->extra[slot].value = v;
        rq->makes = slot;
    }
    return NULL;
}

CDP__PRIVATE const char *cdp__rpc_got_call(
    cdp_rpc *rpc, uint32_t from, const cdp__rpc_packet *p, uint8_t **owned, bool cancelled) {
    cdp__rpc_peer *peer = &rpc->peers[from];
    const uint64_t now = cdp__rpc_time(rpc);
    uint32_t slots[CDP__RPC_RREFS], i;
    const char *wrong = cdp__rpc_take(rpc, from, p, slots);
    const bool nested = p->b >> 48 & 1;
    bool room;
    cdp__rpc_rq *rq;
    if (wrong) return wrong;
    room = peer->requests[nested] < rpc->share + (nested ? CDP__RPC_LEVELS : 0);
    rq = room ? cdp__rpc_rq_open(rpc) : NULL;
    if (!rq) {
        cdp__rpc_untake(rpc, slots, p->rrefs);
        return room ? "out of memory for a call of it" : "more calls at once than were agreed upon";
    }
    ++peer->requests[nested];
    rq->nested = nested;
    rq->level = (int32_t)(p->b >> 32 & 0xffff);
    rq->pub.from = from;
    rq->pub.function = p->aux;
    rq->pub.one_way = (p->flags & CDP__RPC_ONE_WAY) != 0;
    rq->pub.remote = (p->flags & CDP__RPC_REMOTE) != 0;
    rq->pub.deadline_ns =
        (uint32_t)p->b == CDP_NO_TIMEOUT ? CDP__NEVER : now + (uint32_t)p->b * CDP__MS;
    rq->pub.rrefs = rq->refs;
    rq->pub.rref_count = p->rrefs;
    rq->record = cdp__rpc_record_new(rpc, p->a, from, rpc->rank, p->aux, now);
    rq->call = p->a;
    rq->flags = p->flags;
    rq->cancelled = cancelled;
    for (i = 0; i < p->rrefs; ++i)
        if (slots[i]) rq->refs[i] = cdp__rpc_rref(rpc, slots[i]);
    wrong = cdp__rpc_target(rpc, rq, p);
    if (!wrong) wrong = cdp__rpc_rq_got(rpc, rq, p, owned);
    if (p->flags & CDP__RPC_CTX) rq->ctx_number = p->slot;
    if (wrong) {
        rq->cancelled = true;
        cdp__rpc_refuse(rpc, rq, CDP_ERR_ABORTED, CDP_RAN_NO, 0, wrong);
        return wrong;
    }
    if ((p->flags & CDP__RPC_REMOTE) && !rq->makes)
        cdp__rpc_refuse(rpc, rq, CDP_ERR_BUSY, CDP_RAN_NO, 0, "the table of references is full");
    else
        cdp__rpc_begin(rpc, rq);
    return NULL;
}

CDP__PRIVATE const char *cdp__rpc_got_answer(
    cdp_rpc *rpc, uint32_t from, const cdp__rpc_packet *p, uint8_t **owned) {
    uint32_t slots[CDP__RPC_RREFS];
    char text[CDP__RPC_TEXT + 1];
    const char *wrong = NULL;
    cdp__rpc_call *c = cdp__rpc_call_find(rpc, p->a);
    if (p->kind == CDP__RPC_REPLY) wrong = cdp__rpc_take(rpc, from, p, slots);
    if (wrong) return wrong;
    if (!c || c->to != from || !c->left || c->wire_over) {
        cdp__rpc_untake(rpc, slots, p->kind == CDP__RPC_REPLY ? p->rrefs : 0);
        return "an answer to no call";
    }
    if (p->kind == CDP__RPC_REPLY) {
        if (cdp__rpc_reply_received(rpc, c, p, slots, *owned)) *owned = NULL;
    } else {
        const uint32_t ran = (uint32_t)(p->b >> 32);
        if (!cdp__status_is_error((int32_t)(0u - p->aux)) || ran > CDP_RAN_YES)
            return "an unknown status";
        cdp__text_foreign(text, sizeof text, p->body, p->bytes);
        cdp__rpc_failure_received(
            rpc, c, (cdp_status) - (int32_t)p->aux, (cdp_ran)ran, (int32_t)(uint32_t)p->b, text);
    }
    cdp__rpc_wire_over(rpc, c);
    return NULL;
}

/* Removes a request from the list in which it waits. False: it runs, or is kept. */
CDP__PRIVATE bool cdp__rpc_unstage(cdp_rpc *rpc, cdp__rpc_rq *rq) {
    cdp__rpc_value *v = rq->on ? rpc->extra[rq->on].value : NULL;
    bool found = false;
    if (rq->stage == CDP__RPC_CONFIRMING) found = cdp__rpc_unlist(&rpc->confirming, NULL, rq);
    if (rq->stage == CDP__RPC_PARKED) found = cdp__rpc_unlist(&v->parked, &v->parked_end, rq);
    if (rq->stage == CDP__RPC_QUEUED)
        found = cdp__rpc_unlist(&rpc->queue, &rpc->queue_end, rq)
            || cdp__rpc_unlist(&rpc->inline_queue, &rpc->inline_end, rq);
    rq->stage = found ? CDP__RPC_NEW : rq->stage;
    return found;
}

CDP__PRIVATE void cdp__rpc_got_cancel(cdp_rpc *rpc, uint32_t from, uint64_t call) {
    cdp__rpc_rq *rq = rpc->all;
    cdp__rpc_in *came;
    for (came = rpc->in; came; came = came->next)
        if (came->m.peer == from && came->m.a == call) came->cancelled = true;
    while (rq && (rq->pub.from != from || rq->call != call || rq->stage == CDP__RPC_REPLIED))
        rq = rq->after;
    if (!rq) return; /* it is answered already */
    if (cdp__rpc_unstage(rpc, rq))
        cdp__rpc_refuse(rpc, rq, CDP_ERR_ABORTED, CDP_RAN_NO, 0, "cancelled before it ran");
    else
        rq->cancelled = true;
}

/* The call may have ended meanwhile. */
CDP__PRIVATE void cdp__rpc_got_held(cdp_rpc *rpc, uint32_t from, const cdp__rpc_packet *p) {
    cdp__rpc_call *c = cdp__rpc_call_find(rpc, p->a);
    if (!c || c->to != from) return;
    c->held = (cdp__rpc_why)p->aux;
    c->held_limit = p->b;
}

/* Handles a list of ACCEPT or DELETE. */
CDP__PRIVATE bool cdp__rpc_got_list(cdp_rpc *rpc, uint32_t from, const cdp__rpc_packet *p) {
    uint64_t a = p->a, b = p->b, i;
    bool honest = true;
    for (i = 0; honest; i += 16) {
        honest = p->kind == CDP__RPC_ACCEPT ? cdp__ref_got_accept(&rpc->refs, from, b)
                                            : cdp__ref_got_delete(&rpc->refs, from, a, b);
        if (i >= p->bytes) break;
        a = cdp__get_u64(p->body + i);
        b = cdp__get_u64(p->body + i + 8);
    }
    return honest;
}

/* Handles a complete message. *owned: its body, if this rank may keep it. Returns NULL or what
   is wrong. */
CDP__PRIVATE const char *cdp__rpc_got(
    cdp_rpc *rpc, uint32_t from, const cdp__rpc_packet *p, uint8_t **owned, bool cancelled) {
    bool honest = true;
    if (p->kind != CDP__RPC_ROLL) ++rpc->peers[from].received;
    rpc->bytes_in += CDP__HEAD_BYTES + p->bytes;
    switch (p->kind) {
    case CDP__RPC_CALL: return cdp__rpc_got_call(rpc, from, p, owned, cancelled);
    case CDP__RPC_REPLY:
    case CDP__RPC_FAIL: return cdp__rpc_got_answer(rpc, from, p, owned);
    case CDP__RPC_CANCEL: cdp__rpc_got_cancel(rpc, from, p->a); break;
    case CDP__RPC_REMOTE_ACK:
    case CDP__RPC_FORK_ACK:
        honest = cdp__ref_got_ack(&rpc->refs, from, p->b, (cdp__ref_how)p->aux);
        break;
    case CDP__RPC_FORK:
        (void)cdp__rpc_reserve(rpc, 1);
        honest = cdp__ref_got_fork(&rpc->refs, from, p->a, p->b);
        break;
    case CDP__RPC_ACCEPT:
    case CDP__RPC_DELETE: honest = cdp__rpc_got_list(rpc, from, p); break;
    case CDP__RPC_MARK:
    case CDP__RPC_GRAD:
    case CDP__RPC_DONE: return cdp__ctx_got_wave(rpc, from, p);
    case CDP__RPC_JOIN:
    case CDP__RPC_CTX_FAIL:
    case CDP__RPC_CTX_END:
    case CDP__RPC_CTX_ENDED: return cdp__ctx_got_member(rpc, from, p);
    case CDP__RPC_HELD: cdp__rpc_got_held(rpc, from, p); break;
    case CDP__RPC_ROLL: return cdp__rpc_got_roll(rpc, from, p);
    case CDP__RPC_KINDS: break;
    }
    return honest ? NULL : "a reference that it does not have";
}

/* ---- long bodies */

CDP__PRIVATE void cdp__rpc_in_close(cdp_rpc *rpc, cdp__rpc_in *came) {
    cdp__rpc_in **at = &rpc->in;
    while (*at != came)
        at = &(*at)->next;
    *at = came->next;
    if (!*at) rpc->in_end = at;
    --rpc->peers[came->m.peer].arriving;
    cdp__rpc_area_free(rpc, came->body);
    cdp__free(rpc->os, came);
}

/* Which sum the bytes of a message count to; NULL: none. */
CDP__PRIVATE uint64_t *cdp__rpc_in_sum(cdp_rpc *rpc, const cdp__rpc_in *came) {
    const uint32_t kind = came->m.kind & 0xff;
    if (kind == CDP__RPC_CALL) return &rpc->in_bytes;
    return kind == CDP__RPC_GRAD ? &rpc->grad_bytes : NULL;
}

/* True if there is memory for a long argument or a gradient, of which there are `held` bytes. */
CDP__PRIVATE bool cdp__rpc_bytes_fit(const cdp_rpc *rpc, const cdp__rpc_in *one, uint64_t held) {
    const bool nested = (one->m.kind & 0xff) == CDP__RPC_CALL && (one->m.b >> 48 & 1);
    const int32_t level = (int32_t)(one->m.b >> 32 & 0xffff);
    const cdp__rpc_rq *rq;
    const cdp__rpc_in *came;
    uint64_t deep = 0;
    for (rq = rpc->all; nested && rq; rq = rq->after)
        if (rq->nested && rq->level >= level) deep += rq->counted;
    for (came = rpc->in; nested && came; came = came->next)
        if (came->body && (came->m.kind & 0xff) == CDP__RPC_CALL && (came->m.b >> 48 & 1)
            && (int32_t)(came->m.b >> 32 & 0xffff) >= level)
            deep += came->m.bytes;
    return cdp__bytes_fit(held, deep, nested, one->m.bytes, rpc->desc.max_queue_bytes);
}

/* Fetches offered bodies while there is memory for them. Results are always fetched: each call has
   one. Arguments and gradients do not wait for each other, since a pass may run inside a
   function. */
CDP__PRIVATE void cdp__rpc_fetch_more(cdp_rpc *rpc) {
    cdp__rpc_in *came = rpc->in, *next;
    for (; came; came = next) {
        const bool result = (came->m.kind & 0xff) != CDP__RPC_CALL;
        uint64_t *sum = cdp__rpc_in_sum(rpc, came);
        next = came->next;
        if (came->body || rpc->lost[came->m.peer]) continue;
        if (sum && !cdp__rpc_bytes_fit(rpc, came, *sum) && !CDP__RPC_PLANT(NO_LIMIT_OF_BYTES))
            continue;
        came->body = (uint8_t *)cdp__rpc_area_alloc(rpc, came->m.bytes);
        if (!came->body) {
            const bool grad = (came->m.kind & 0xff) == CDP__RPC_GRAD;
            cdp__rpc_call *c = result && !grad ? cdp__rpc_call_find(rpc, came->m.a) : NULL;
            cdp_ctx *ctx = grad ? cdp__ctx_find(rpc, came->m.a) : NULL;
            if (ctx) cdp__ctx_fail_here(rpc, ctx, CDP_ERR_NOMEM, "out of memory for a gradient");
            ++rpc->peers[came->m.peer].received;
            (void)!cdp_channel_refuse(rpc->channel, came->m.peer, came->m.handle);
            if (c && c->to == came->m.peer)
                cdp__rpc_call_failed(
                    rpc, c, CDP_ERR_NOMEM, CDP_RAN_YES, "out of memory for its result");
            cdp__rpc_in_close(rpc, came);
            continue;
        }
        if (sum) *sum += came->m.bytes;
        if (cdp_channel_fetch(rpc->channel, came->m.peer, came->m.handle, came->body, came->m.bytes)
            != CDP_OK)
            cdp__rpc_give_up(rpc, came->m.peer, "its message could not be fetched");
    }
}

CDP__PRIVATE const char *cdp__rpc_offered(cdp_rpc *rpc, const cdp_channel_message *m) {
    cdp__rpc_peer *peer = &rpc->peers[m->peer];
    cdp__rpc_in *came;
    const uint64_t most =
        2ull * rpc->share + CDP__RPC_LEVELS + peer->flight[0].calls + peer->flight[1].calls;
    if ((m->kind & 0xff) != CDP__RPC_GRAD && peer->arriving >= most)
        return "more calls at once than were agreed upon";
    if ((m->kind & 0xff) == CDP__RPC_REPLY) { /* memory for one result of each call */
        cdp__rpc_call *c = cdp__rpc_call_find(rpc, m->a);
        if (!c || c->to != m->peer || !c->left || c->wire_over || c->result_comes)
            return "an answer to no call";
        c->result_comes = true;
    }
    came = (cdp__rpc_in *)cdp__alloc_zero(rpc->os, sizeof *came);
    if (!came) return "out of memory for a message of it";
    came->m = *m;
    came->arrived_ns = cdp__rpc_time(rpc);
    if ((m->kind & 0xff) == CDP__RPC_CALL && (uint32_t)m->b != CDP_NO_TIMEOUT) {
        const uint64_t ends = came->arrived_ns + (uint64_t)(uint32_t)m->b * CDP__MS;
        came->report_ns = cdp__rpc_notify_at(rpc, m->kind >> 8 & 0xff, ends);
        if (came->report_ns) cdp__rpc_timer(rpc, came->report_ns);
    }
    ++peer->arriving;
    *rpc->in_end = came;
    rpc->in_end = &came->next;
    return NULL;
}

/* ---- callbacks of the channel; the lock is not held */

/* Continues with everything that has become possible. */
CDP__PRIVATE void cdp__rpc_tidy(cdp_rpc *rpc) {
    while (rpc->confirmed || rpc->waves) {
        cdp__ctx_steps(rpc);
        if (!rpc->confirmed) break;
        rpc->confirmed = false;
        cdp__rpc_look_again(rpc);
    }
    if (rpc->tasks || rpc->inline_queue) cdp__rpc_timer(rpc, 0);
    if (rpc->queue && rpc->idle) rpc->os->threads.cond_broadcast(rpc->os->user, rpc->cond);
}

CDP__PRIVATE void cdp__rpc_leave(cdp_rpc *rpc) {
    bool wake;
    cdp__rpc_tidy(rpc);
    wake = rpc->changed && rpc->waiters && rpc->channel;
    rpc->changed = false;
    if (wake) cdp_channel_wake(rpc->channel);
    cdp_lock_release(&rpc->lock);
}

/* It is no part of the function that waits in this thread. */
CDP__PRIVATE void cdp__rpc_run_task(cdp_rpc *rpc, cdp__rpc_task *task) {
    cdp__rpc_here *here = cdp__rpc_here_of();
    cdp__rpc_rq *outer = here->request;
    const int32_t level = here->level;
    cdp_lock_release(&rpc->lock);
    here->request = NULL;
    here->level = 0;
    ++here->no_wait;
    task->run(rpc, task);
    --here->no_wait;
    here->level = level;
    here->request = outer;
    cdp__rpc_lock(rpc);
}

/* Runs tasks and INLINE functions. The lock is released meanwhile. */
CDP__PRIVATE void cdp__rpc_tasks(cdp_rpc *rpc) {
    while (rpc->tasks || rpc->inline_queue || rpc->confirmed) {
        cdp__rpc_task *task = rpc->tasks;
        cdp__rpc_rq *rq = rpc->inline_queue;
        if (rpc->confirmed) {
            rpc->confirmed = false;
            cdp__rpc_look_again(rpc);
        } else if (rq) {
            rpc->inline_queue = rq->next;
            if (!rq->next) rpc->inline_end = &rpc->inline_queue;
            cdp__rpc_run(rpc, rq);
        } else {
            rpc->tasks = task->next;
            if (!task->next) rpc->tasks_end = &rpc->tasks;
            cdp__rpc_run_task(rpc, task);
        }
    }
}

CDP__PRIVATE void cdp__rpc_leave_callback(cdp_rpc *rpc) {
    cdp__rpc_tasks(rpc);
    cdp__rpc_fetch_more(rpc);
    cdp__rpc_tidy(rpc);
    rpc->changed = false; /* waits check again after every callback */
    cdp_lock_release(&rpc->lock);
}

CDP__PRIVATE void cdp__rpc_deliver(void *user, const cdp_channel_message *m) {
    cdp_rpc *rpc = (cdp_rpc *)user;
    cdp__rpc_packet p;
    uint8_t *owned = NULL;
    const char *wrong;
    cdp__rpc_lock(rpc);
    wrong = cdp__rpc_read(m, rpc->rank, rpc->ranks, rpc->desc.max_message_bytes, &p);
    if (!wrong && p.kind == CDP__RPC_GRAD && !rpc->peers[m->peer].marks--) {
        rpc->peers[m->peer].marks = 0;
        wrong = "a gradient that was not announced";
    }
    if (!wrong)
        wrong =
            m->handle ? cdp__rpc_offered(rpc, m) : cdp__rpc_got(rpc, m->peer, &p, &owned, false);
    if (wrong) cdp__rpc_give_up(rpc, m->peer, wrong);
    cdp__rpc_leave_callback(rpc);
}

/* The time of a request goes on while its arguments wait for memory. */
CDP__PRIVATE void cdp__rpc_waited(cdp_rpc *rpc, const cdp__rpc_in *came, cdp__rpc_packet *p) {
    const uint64_t ms = (cdp__rpc_time(rpc) - came->arrived_ns) / CDP__MS;
    if (p->kind != CDP__RPC_CALL || (uint32_t)p->b == CDP_NO_TIMEOUT) return;
    p->b -= cdp__min(ms, (uint32_t)p->b);
}

CDP__PRIVATE void cdp__rpc_fetched(void *user, uint32_t from, uint64_t handle, cdp_status status) {
    cdp_rpc *rpc = (cdp_rpc *)user;
    cdp__rpc_packet p;
    cdp__rpc_in *came;
    const char *wrong = NULL;
    cdp__rpc_lock(rpc);
    for (came = rpc->in; came && (came->m.peer != from || came->m.handle != handle || !came->body);)
        came = came->next;
    if (came) {
        uint64_t *sum = cdp__rpc_in_sum(rpc, came);
        uint8_t *owned = came->body;
        came->body = NULL;
        came->m.handle = 0;
        came->m.body = owned;
        if (status != CDP_OK) ++rpc->peers[from].received;
        if (status == CDP_OK)
            wrong = cdp__rpc_read(&came->m, rpc->rank, rpc->ranks, rpc->desc.max_message_bytes, &p);
        if (status == CDP_OK && !wrong) {
            cdp__rpc_waited(rpc, came, &p);
            wrong = cdp__rpc_got(rpc, from, &p, &owned, came->cancelled);
        }
        if (owned && sum) *sum -= came->m.bytes;
        cdp__rpc_area_free(rpc, owned);
        cdp__rpc_in_close(rpc, came);
    }
    if (wrong) cdp__rpc_give_up(rpc, from, wrong);
    cdp__rpc_leave_callback(rpc);
}

CDP__PRIVATE void cdp__rpc_released(void *user, uint32_t to, uint64_t handle, cdp_status status) {
    cdp_rpc *rpc = (cdp_rpc *)user;
    cdp__rpc_out **at, *o;
    cdp__rpc_lock(rpc);
    at = &rpc->peers[to].offered;
    while (*at && (*at)->handle != handle)
        at = &(*at)->next;
    o = *at;
    if (o) *at = o->next;
    if (o && status == CDP_OK) {
        cdp__rpc_out_free(rpc, o);
    } else if (o) {
        cdp__rpc_call *c = o->p.kind == CDP__RPC_CALL ? cdp__rpc_call_find(rpc, o->p.a) : NULL;
        const bool refused = status == CDP_ERR_ABORTED;
        const uint64_t fid = c ? c->remote_fid : 0;
        cdp__rpc_out_drop(rpc, o);
        if (fid) (void)cdp__ref_got_ack(&rpc->refs, to, fid, CDP__REF_FULL);
        if (c && !rpc->lost[to])
            cdp__rpc_call_failed(rpc, c, refused ? CDP_ERR_BUSY : status,
                refused ? CDP_RAN_NO : CDP_RAN_UNKNOWN,
                refused ? "that rank has no memory for its arguments"
                        : "its arguments could not be sent");
    }
    cdp__rpc_leave_callback(rpc);
}

CDP__PRIVATE void cdp__rpc_credit(void *user, uint32_t peer) {
    cdp_rpc *rpc = (cdp_rpc *)user;
    cdp__rpc_lock(rpc);
    cdp__rpc_flush(rpc, peer);
    cdp__rpc_leave_callback(rpc);
}

/* ---- a peer is lost */

CDP__PRIVATE void cdp__rpc_notify_lost(cdp_rpc *rpc, cdp__rpc_task *task) {
    cdp__rpc_peer *peer = (cdp__rpc_peer *)task;
    if (rpc->desc.lost) rpc->desc.lost(rpc->desc.user, (uint32_t)(peer - rpc->peers), &peer->why);
}

/* A peer is lost: ends everything that waits for it. Lock held. */
CDP__PRIVATE void cdp__rpc_lose(cdp_rpc *rpc, uint32_t rank) {
    cdp__rpc_peer *peer = &rpc->peers[rank];
    cdp__rpc_rq *rq, *after;
    cdp__rpc_in *came, *next;
    uint32_t i;
    rpc->lost[rank] = true;
    for (i = 1; i <= rpc->call_count; ++i) {
        cdp__rpc_call *c = rpc->calls[i];
        if (c->used && c->to == rank && !c->wire_over)
            cdp__rpc_call_failed(
                rpc, c, CDP_ERR_PEER_LOST, c->left ? CDP_RAN_UNKNOWN : CDP_RAN_NO, peer->why.text);
    }
    while (peer->queue) {
        cdp__rpc_out *o = peer->queue;
        peer->queue = o->next;
        cdp__rpc_out_drop(rpc, o);
    }
    peer->list = NULL;
    peer->queue_end = &peer->queue;
    for (came = rpc->in; came; came = next) {
        next = came->next;
        if (came->m.peer == rank && !came->body) cdp__rpc_in_close(rpc, came);
    }
    for (rq = rpc->all; rq; rq = after) {
        after = rq->after;
        if (rq->pub.from != rank || rq->stage == CDP__RPC_REPLIED) continue;
        rq->cancelled = true;
        if (!cdp__rpc_unstage(rpc, rq)) continue;
        cdp__rpc_refuse(rpc, rq, CDP_ERR_PEER_LOST, CDP_RAN_NO, 0, "its caller is lost");
        after = rpc->all; /* other requests may have ended, too: start over */
    }
    cdp__ref_lost(&rpc->refs, rank);
    cdp__ctx_lose(rpc, rank);
    rpc->confirmed = rpc->changed = true;
}

CDP__PRIVATE void cdp__rpc_peer_lost(void *user, uint32_t rank, const cdp_error *why) {
    cdp_rpc *rpc = (cdp_rpc *)user;
    cdp__rpc_lock(rpc);
    rpc->peers[rank].why = *why;
    rpc->peers[rank].task.run = cdp__rpc_notify_lost;
    if (cdp__rpc_tells_lost(rpc, rank)) cdp__rpc_add_task(rpc, &rpc->peers[rank].task);
    cdp__rpc_lose(rpc, rank);
    cdp__rpc_roll_lost(rpc, rank);
    cdp__rpc_leave_callback(rpc);
}

/* ---- time */

/* Refuses a request whose time was over while it waited. It is in no list any more. */
CDP__PRIVATE void cdp__rpc_refuse_late(
    cdp_rpc *rpc, cdp__rpc_rq *rq, cdp__rpc_why why, uint64_t limit) {
    char held[CDP__RPC_HELD_TEXT], text[CDP__RPC_HELD_TEXT + 40];
    cdp__format(text, sizeof text, "its time was over before it ran%s",
        cdp__rpc_held_text(held, why, limit, rq->nested && !rq->level));
    cdp__rpc_refuse(rpc, rq, CDP_ERR_TIMEOUT, CDP_RAN_NO, 0, text);
}

/* Tells callers whose arguments still wait for memory; returns when to do so again. */
CDP__PRIVATE uint64_t cdp__rpc_notify_offers(cdp_rpc *rpc, uint64_t now) {
    uint64_t next = CDP__NEVER;
    cdp__rpc_in *came;
    for (came = rpc->in; came; came = came->next) {
        if (came->body || !came->report_ns) continue;
        if (came->report_ns <= now) {
            cdp__rpc_notify(
                rpc, came->m.peer, came->m.a, CDP__RPC_FOR_BYTES, rpc->desc.max_queue_bytes);
            came->report_ns = 0;
        } else {
            next = cdp__min(next, came->report_ns);
        }
    }
    return next;
}

/* Ends calls and requests that are late, and sets the timer to the next deadline. Lock held. */
CDP__PRIVATE void cdp__rpc_expire(cdp_rpc *rpc) {
    const uint64_t now = cdp__rpc_time(rpc);
    uint64_t next = CDP__NEVER;
    cdp__rpc_rq *rq, *after;
    cdp__rpc_why why;
    uint64_t limit;
    uint32_t i;
    for (i = 1; i <= rpc->call_count; ++i) {
        cdp__rpc_call *c = rpc->calls[i];
        if (!c->used || !c->call || CDP__RPC_PLANT(NO_DEADLINE)) continue;
        if (c->deadline_ns <= now)
            cdp__rpc_abandon(rpc, c, CDP_ERR_TIMEOUT);
        else
            next = cdp__min(next, c->deadline_ns);
    }
    for (rq = rpc->all; rq; rq = after) {
        after = rq->after;
        if (rq->stage == CDP__RPC_REPLIED || rq->stage == CDP__RPC_RUNNING
            || rq->stage == CDP__RPC_KEPT)
            continue;
        why = cdp__rpc_waits_for(rpc, rq, &limit);
        if (rq->pub.deadline_ns > now) {
            if (rq->report_ns && rq->report_ns <= now) {
                cdp__rpc_notify(rpc, rq->pub.from, rq->call, why, limit);
                rq->report_ns = 0;
            }
            next = cdp__min(next, rq->report_ns ? rq->report_ns : rq->pub.deadline_ns);
        } else if (cdp__rpc_unstage(rpc, rq)) {
            cdp__rpc_refuse_late(rpc, rq, why, limit);
            after = rpc->all;
        }
    }
    next = cdp__min(next, cdp__rpc_notify_offers(rpc, now));
    if (next != CDP__NEVER) cdp__rpc_timer(rpc, next);
}

CDP__PRIVATE void cdp__rpc_tick(void *user) {
    cdp_rpc *rpc = (cdp_rpc *)user;
    cdp__rpc_lock(rpc);
    rpc->timer_ns = CDP__NEVER;
    cdp__rpc_expire(rpc);
    cdp__rpc_leave_callback(rpc);
}

/* ---- >>rpc/waits: threads that wait, threads that run functions ------------------------------ */

/* Knows: workers, waits. Promises: one absolute deadline for each wait; a thread that waits inside
   a function runs functions of higher levels meanwhile, see rpc/levels.h. */

/* The latest end of this thread's waits and calls, if it runs inside another wait. */
CDP__PRIVATE uint64_t cdp__rpc_cut(void) {
    const uint64_t until = cdp__rpc_here_of()->until_ns;
    return until && until != CDP__NEVER ? until + CDP__RPC_GRACE_NS : CDP__NEVER;
}

/* The deadline of a wait with this timeout_ms; 0 only checks. */
CDP__PRIVATE uint64_t cdp__rpc_until(const cdp_rpc *rpc, uint32_t timeout_ms) {
    return timeout_ms ? cdp__min(cdp__deadline(rpc->os, timeout_ms), cdp__rpc_cut()) : 0;
}

CDP__PRIVATE bool cdp__rpc_helps(const cdp_rpc *rpc) {
    const cdp__rpc_here *here = cdp__rpc_here_of();
    if (here->depth && rpc->desc.no_help) return false;
    return !rpc->cond || here->request;
}

/* Runs a function inside a wait that ends by bound_ns. Waits of that function end soon after it,
   see cdp__rpc_cut(). */
CDP__PRIVATE void cdp__rpc_help(cdp_rpc *rpc, cdp__rpc_rq *rq, uint64_t bound_ns) {
    cdp__rpc_here *here = cdp__rpc_here_of();
    const uint64_t outer = here->until_ns;
    here->until_ns = cdp__min(bound_ns, outer ? outer : CDP__NEVER);
    cdp__rpc_run(rpc, rq);
    here->until_ns = outer;
    cdp__rpc_tidy(rpc);
}

/* Records that the function running in this thread, if any, waits. */
CDP__PRIVATE void cdp__rpc_it_waits(const cdp_rpc *rpc) {
    cdp__rpc_rq *rq = cdp__rpc_here_of()->request;
    if (rq && rq->pub.rpc == rpc && rq->use) rq->use->waits = true;
}

/* Waits are refused here, and so is what starts something and then waits for it: before it starts,
   because what has started writes to the program's memory when it ends. */
CDP__PRIVATE cdp_status cdp__rpc_may_wait(void) {
    if (!cdp__rpc_here_of()->no_wait && !*cdp__inside()) return CDP_OK;
    return cdp__fail(CDP_ERR_STATE,
        "an INLINE function and a callback must not wait; start the call with cdp_rpc_start() and "
        "return, or register the function without CDP_RPC_INLINE");
}

/* Sets the last error: a function that is so deep may not wait for calls. */
CDP__PRIVATE cdp_status cdp__rpc_too_deep(const cdp_rpc *rpc) {
    return cdp__fail(CDP_ERR_BUSY,
        "max_depth of cdp_rpc_desc is %u: functions that so many calls are above start calls, but "
        "do not wait for them; reply later (CDP_RPC_LATER), or raise it (at most 255)",
        rpc->desc.max_depth);
}

/* Waits with the lock held, and releases it meanwhile. OK: over(rpc, arg) is true; PENDING:
   until_ns has come. Functions may begin meanwhile, before bound_ns. After until_ns at most one
   begins, so that waits with timeout 0 make progress, too. */
CDP__PRIVATE cdp_status cdp__rpc_wait(cdp_rpc *rpc, bool (*over)(cdp_rpc *rpc, void *arg),
    void *arg, uint64_t until_ns, uint64_t bound_ns) {
    const uint64_t outer = cdp__rpc_here_of()->until_ns;
    uint64_t seen = 0;
    cdp_status st = CDP_OK;
    bool ran = false;
    cdp__rpc_it_waits(rpc);
    if (over(rpc, arg)) return CDP_OK;
    if (outer) bound_ns = cdp__min(bound_ns, outer);
    if (until_ns != CDP__NEVER) until_ns = cdp__min(until_ns, cdp__rpc_cut());
    if (cdp__rpc_may_wait() != CDP_OK) return CDP_ERR_STATE;
    if (!rpc->channel) return cdp__fail(CDP_ERR_STATE, "the rpc has shut down");
    ++rpc->waiters;
    while (st >= 0 && !over(rpc, arg)) {
        const uint64_t now = cdp__rpc_time(rpc);
        const bool may = now < bound_ns && (now < until_ns || !ran);
        cdp__rpc_rq *rq = may && cdp__rpc_helps(rpc) ? cdp__rpc_next(rpc, now, bound_ns) : NULL;
        if (rq) {
            cdp__rpc_help(rpc, rq, bound_ns);
            ran = true;
            continue;
        }
        if (now >= until_ns) {
            st = CDP_PENDING;
            break;
        }
        cdp_lock_release(&rpc->lock);
        st = cdp_channel_wait_since(rpc->channel, &seen, until_ns);
        cdp__rpc_lock(rpc);
    }
    --rpc->waiters;
    if (rpc->phase == CDP__RPC_SHUT) rpc->changed = true; /* cdp_rpc_shutdown() waits for waits */
    if (over(rpc, arg)) return CDP_OK;
    return st < 0 ? st : CDP_PENDING;
}

CDP__PRIVATE void cdp__rpc_worker(void *arg) {
    cdp_rpc *rpc = (cdp_rpc *)arg;
    cdp__rpc_lock(rpc);
    while (!rpc->stop) {
        cdp__rpc_rq *rq = cdp__rpc_next(rpc, 0, CDP__NEVER);
        if (rq) {
            cdp__rpc_run(rpc, rq);
            cdp__rpc_leave(rpc);
            cdp__rpc_lock(rpc);
            continue;
        }
        ++rpc->idle;
        rpc->os->threads.cond_wait(rpc->os->user, rpc->cond, rpc->lock.mutex, CDP__NEVER);
        rpc->now_ns = 0;
        --rpc->idle;
    }
    cdp_lock_release(&rpc->lock);
}

/* ---- >>rpc/life: creation, destruction ------------------------------------------------------- */

/* Knows: the exchange of names and limits. Promises: creation fails on all ranks that take part in
   the exchange, or on none of them. */

#define CDP__RPC_MAGIC 0x36637072u /* version 6 of the messages: shutdown among survivors */
#define CDP__RPC_CARD (24u + CDP__RPC_NAME)

CDP__PRIVATE cdp_status cdp__rpc_desc_check(const cdp_rpc_desc *d) {
    uint32_t i, k;
    if (!d->group) return cdp__missing("cdp_rpc_create", "desc.group");
    if (d->name && !cdp__rpc_name_fits(d->name))
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_rpc_create: the name \"%s\" is not made of 1 to 127 letters, digits and _ . : -",
            d->name);
    if (d->function_count && !d->functions) return cdp__missing("cdp_rpc_create", "desc.functions");
    for (i = 0; i < d->function_count; ++i) {
        const cdp_rpc_function *f = &d->functions[i];
        if (f->flags & ~(CDP_RPC_INLINE | CDP_RPC_LATER | CDP_RPC_EARLY))
            return cdp__fail(CDP_ERR_INVALID,
                "cdp_rpc_create: functions[%u] has flags 0x%x; there are CDP_RPC_INLINE, _LATER "
                "and "
                "_EARLY",
                i, f->flags);
        if (!cdp__rpc_name_fits(f->name) || !f->func || (f->allow_count && !f->allow))
            return cdp__fail(CDP_ERR_INVALID,
                "cdp_rpc_create: functions[%u] needs func, a name of 1 to 127 letters, digits and "
                "_ . : -, and allow if allow_count is set",
                i);
        for (k = 0; k < i; ++k)
            if (cdp__rpc_id_of(d->functions[k].name) == cdp__rpc_id_of(f->name))
                return cdp__fail(CDP_ERR_INVALID,
                    "cdp_rpc_create: functions \"%s\" and \"%s\" have the same id; rename one",
                    d->functions[k].name, f->name);
    }
    return CDP_OK;
}

/* Copies the functions of the desc, with their names and lists of ranks, into one piece. */
CDP__PRIVATE cdp_status cdp__rpc_copy_functions(cdp_rpc *rpc) {
    cdp_rpc_desc *d = &rpc->desc;
    uint64_t bytes = d->function_count * sizeof *d->functions;
    uint8_t *at;
    uint32_t i;
    for (i = 0; i < d->function_count; ++i)
        bytes += strlen(d->functions[i].name) + 1 + 4ull * d->functions[i].allow_count;
    rpc->functions = (cdp_rpc_function *)cdp__alloc(rpc->os, bytes);
    if (!rpc->functions) return cdp__fail_nomem("a list of functions", bytes);
    at = (uint8_t *)(rpc->functions + d->function_count);
    if (d->function_count)
        memcpy(rpc->functions, d->functions, (size_t)(at - (uint8_t *)rpc->functions));
    for (i = 0; i < d->function_count; ++i) {
        cdp_rpc_function *f = &rpc->functions[i];
        const uint64_t n = 4ull * f->allow_count;
        if (n) f->allow = (const uint32_t *)memcpy(at, f->allow, (size_t)n);
        at += n;
    }
    for (i = 0; i < d->function_count; ++i) {
        cdp_rpc_function *f = &rpc->functions[i];
        const uint64_t n = strlen(f->name) + 1;
        f->name = (const char *)memcpy(at, f->name, (size_t)n);
        at += n;
    }
    d->functions = rpc->functions;
    return CDP_OK;
}

CDP__PRIVATE void cdp__rpc_defaults(cdp_rpc *rpc) {
    cdp_rpc_desc *d = &rpc->desc;
    const bool threads = rpc->os->threads.start && !cdp_group_desc_of(d->group)->no_thread;
    d->timeout_ms = cdp__def(d->timeout_ms, 60000u);
    d->workers = d->no_workers || !threads ? 0 : cdp__def(d->workers, 4u);
    d->max_calls = cdp__def(d->max_calls, 256u);
    d->max_call_bytes = cdp__def(d->max_call_bytes, 64ull << 20);
    d->max_queue = cdp__def(d->max_queue, 4096u);
    d->max_depth = (uint32_t)cdp__min(cdp__def(d->max_depth, 255u), CDP__RPC_DEPTHS - 1);
    d->max_message_bytes = cdp__def(d->max_message_bytes, 64ull << 20);
    d->max_queue_bytes = cdp__def(d->max_queue_bytes, 256ull << 20);
    d->max_rrefs = cdp__def(d->max_rrefs, 65536u);
    d->max_contexts = cdp__def(d->max_contexts, 256u);
    if (d->max_rrefs > 0x7ffffffe) d->max_rrefs = 0x7ffffffe;
    rpc->share = d->max_queue / (rpc->ranks > 1 ? rpc->ranks - 1 : 1);
    if (!rpc->share) rpc->share = 1;
}

/* Allocates memory whose size never changes. */
CDP__PRIVATE cdp_status cdp__rpc_memory(cdp_rpc *rpc) {
    uint32_t r;
    rpc->peers = (cdp__rpc_peer *)cdp__alloc_zero(rpc->os, rpc->ranks * sizeof *rpc->peers);
    rpc->lost = (bool *)cdp__alloc_zero(rpc->os, rpc->ranks);
    rpc->uses =
        (cdp__rpc_use *)cdp__alloc_zero(rpc->os, rpc->desc.function_count * sizeof *rpc->uses);
    rpc->inline_max =
        cdp__min(CDP__RPC_INLINE_MAX, cdp_group_desc_of(rpc->desc.group)->window_bytes / 4);
    rpc->scratch = (uint8_t *)cdp__alloc(rpc->os, CDP__RPC_INLINE_MAX);
    rpc->records = (cdp_rpc_record *)cdp__alloc(rpc->os, CDP__RPC_RECORDS * sizeof *rpc->records);
    rpc->threads =
        (void **)cdp__alloc_zero(rpc->os, (rpc->desc.workers + 1) * sizeof *rpc->threads);
    if (!rpc->peers || !rpc->lost || !rpc->uses || !rpc->scratch || !rpc->threads || !rpc->records
        || !cdp__lock_open(&rpc->lock, rpc->os, true))
        return cdp__fail_nomem("an rpc", rpc->ranks * sizeof *rpc->peers + CDP__RPC_INLINE_MAX);
    for (r = 0; r < rpc->ranks; ++r)
        rpc->peers[r].queue_end = &rpc->peers[r].queue;
    rpc->queue_end = &rpc->queue;
    rpc->inline_end = &rpc->inline_queue;
    rpc->tasks_end = &rpc->tasks;
    rpc->in_end = &rpc->in;
    rpc->forks = cdp__forks_watch();
    rpc->timer_ns = CDP__NEVER;
    rpc->waves_end = &rpc->waves;
    rpc->refs.rank = rpc->rank;
    rpc->refs.first_use = cdp__rpc_first_use();
    rpc->refs.lost = rpc->lost;
    rpc->refs.act = cdp__rpc_act;
    rpc->refs.user = rpc;
    if (rpc->desc.survivors && cdp__rpc_roll_open(rpc) != CDP_OK) return cdp_last_error()->status;
    if (!cdp__rpc_reserve(rpc, 1)) return cdp__fail_nomem("a table of references", 4096);
    return cdp__rpc_copy_functions(rpc);
}

/* Compares the names and limits of all ranks. */
CDP__PRIVATE cdp_status cdp__rpc_cards(cdp_rpc *rpc, const uint8_t *cards) {
    uint32_t r, k;
    for (r = 0; r < rpc->ranks; ++r) {
        const uint8_t *card = cards + r * CDP__RPC_CARD;
        cdp__rpc_peer *peer = &rpc->peers[r];
        if (memcmp(card, cards, 8) != 0 || memcmp(card + 12, cards + 12, 12) != 0)
            return cdp__fail_peer(CDP_ERR_MISMATCH, cdp_world_rank_of(rpc->group, r), 0,
                "cdp_rpc_create: ranks 0 and %u differ in version, number (%u and %u), survivors "
                "(%u and %u) or max_message_bytes (%llu and %llu)",
                r, cdp__get_u32(cards + 4), cdp__get_u32(card + 4), cdp__get_u32(cards + 12),
                cdp__get_u32(card + 12), (unsigned long long)cdp__get_u64(cards + 16),
                (unsigned long long)cdp__get_u64(card + 16));
        peer->limit = (uint32_t)cdp__min(rpc->desc.max_calls, cdp__get_u32(card + 8));
        cdp__text_foreign_in(
            peer->name, sizeof peer->name, (const char *)card + 24, CDP__RPC_NAME - 1);
        for (k = 0; k < r; ++k)
            if (!strcmp(rpc->peers[k].name, peer->name))
                return cdp__fail_peer(CDP_ERR_MISMATCH, cdp_world_rank_of(rpc->group, r), 0,
                    "cdp_rpc_create: ranks %u and %u are both called \"%s\"; names must be unique",
                    k, r, peer->name);
    }
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__rpc_exchange(cdp_rpc *rpc) {
    uint8_t card[CDP__RPC_CARD], *cards;
    char own[16];
    const char *name = rpc->desc.name ? rpc->desc.name : own;
    cdp_status st;
    cdp__format(own, sizeof own, "rank%u", rpc->rank);
    memset(card, 0, sizeof card);
    cdp__put_u32(card, CDP__RPC_MAGIC);
    cdp__put_u32(card + 4, rpc->desc.number);
    cdp__put_u32(card + 8, rpc->share);
    cdp__put_u32(card + 12, rpc->desc.survivors);
    cdp__put_u64(card + 16, rpc->desc.max_message_bytes);
    memcpy(card + 24, name, strlen(name));
    cards = (uint8_t *)cdp__alloc(rpc->os, rpc->ranks * CDP__RPC_CARD);
    if (!cards) return cdp__fail_nomem("names of ranks", rpc->ranks * CDP__RPC_CARD);
    st = cdp_allgather(rpc->sums, card, cards, CDP__RPC_CARD, CDP_DTYPE_U8);
    if (st == CDP_OK) st = cdp__rpc_cards(rpc, cards);
    cdp__free(rpc->os, cards);
    return st;
}

CDP__PRIVATE cdp_status cdp__rpc_open(cdp_rpc *rpc) {
    cdp_channel_desc c;
    memset(&c, 0, sizeof c);
    c.group = rpc->group;
    c.number = rpc->desc.number;
    c.user = rpc;
    c.deliver = cdp__rpc_deliver;
    c.lost = cdp__rpc_peer_lost;
    c.credit = cdp__rpc_credit;
    c.released = cdp__rpc_released;
    c.fetched = cdp__rpc_fetched;
    c.timer = cdp__rpc_tick;
    /* before other threads read it without the lock */
    rpc->backward.name = "a backward function";
    rpc->backward.func = cdp__ctx_run_node;
    rpc->backward_use.known = true;
    if (rpc->desc.workers) {
        rpc->cond = rpc->os->threads.cond_create(rpc->os);
        if (!rpc->cond) return cdp__fail_nomem("a condition of workers", 64);
    }
    for (; rpc->thread_count < rpc->desc.workers; ++rpc->thread_count) {
        rpc->threads[rpc->thread_count] = rpc->os->threads.start(rpc->os, cdp__rpc_worker, rpc);
        if (!rpc->threads[rpc->thread_count])
            return cdp__fail(CDP_ERR_IO, "cdp_rpc_create: worker thread %u could not be started",
                rpc->thread_count);
    }
    cdp__rpc_lock(rpc); /* callbacks wait until rpc->channel is set */
    if (cdp_channel_open(&c, &rpc->channel) != CDP_OK) rpc->channel = NULL;
    cdp_lock_release(&rpc->lock);
    return rpc->channel ? CDP_OK : cdp_last_error()->status;
}

CDP__PRIVATE void cdp__rpc_stop_workers(cdp_rpc *rpc) {
    cdp__rpc_lock(rpc);
    rpc->stop = true;
    if (rpc->cond) rpc->os->threads.cond_broadcast(rpc->os->user, rpc->cond);
    cdp_lock_release(&rpc->lock);
    while (rpc->thread_count)
        rpc->os->threads.join(rpc->os, rpc->threads[--rpc->thread_count]);
}

/* Call without the lock: destroying a group waits for its callbacks, which may take the lock. */
CDP__PRIVATE void cdp__rpc_free_groups(cdp_rpc *rpc) {
    cdp_group_destroy(rpc->sums);
    cdp_group_destroy(rpc->group);
    rpc->sums = rpc->group = NULL;
}

/* Frees everything except the record itself, which kept requests still need. */
CDP__PRIVATE void cdp__rpc_free_parts(cdp_rpc *rpc) {
    const cdp_os *os = rpc->os;
    uint32_t i;
    for (i = 1; i <= rpc->call_count; ++i)
        cdp__free(os, rpc->calls[i]);
    while (rpc->free_rqs) {
        cdp__rpc_rq *next = rpc->free_rqs->next;
        cdp__ended_add(rpc->free_rqs);
        cdp__free(os, rpc->free_rqs);
        rpc->free_rqs = next;
    }
    for (i = 0; i < CDP__RPC_AREAS; ++i)
        cdp__rpc_area_drop(rpc, &rpc->areas[i]);
    if (rpc->cond) os->threads.cond_destroy(os, rpc->cond);
    cdp__free(os, rpc->calls);
    cdp__free(os, rpc->peers);
    cdp__free(os, rpc->lost);
    cdp__free(os, rpc->uses);
    cdp__free(os, rpc->scratch);
    cdp__free(os, rpc->records);
    cdp__free(os, rpc->threads);
    cdp__free(os, rpc->refs.at);
    cdp__free(os, rpc->refs.heads);
    cdp__free(os, rpc->extra);
    for (i = 0; i < CDP__RPC_CALLED; ++i)
        cdp__free(os, rpc->called[i].name);
    cdp__free(os, rpc->functions);
    cdp__rpc_roll_close(rpc);
}

CDP__PRIVATE void cdp__rpc_free(cdp_rpc *rpc) {
    cdp__lock_close(&rpc->lock);
    cdp__free(rpc->os, rpc);
}

/* ---- destruction */

/* Ends all values and references, on whichever rank their handles are. Lock held. */
CDP__PRIVATE void cdp__rpc_end_refs(cdp_rpc *rpc) {
    uint32_t slot;
    for (slot = 1; slot < rpc->refs.room; ++slot) {
        cdp__ref *r = &rpc->refs.at[slot];
        while (r->kind == CDP__REF_OWNER && (r->handles || r->count)) {
            r->handles = 1;
            r->count = 0;
            cdp__ref_drop(&rpc->refs, slot);
        }
    }
}

/* Nothing can be sent any more: what waits to be sent is dropped, and every rank is lost. */
CDP__PRIVATE void cdp__rpc_lose_all(cdp_rpc *rpc) {
    uint32_t i;
    for (i = 0; i < rpc->ranks; ++i)
        rpc->lost[i] = true;
    for (i = 0; i < rpc->ranks; ++i) {
        while (rpc->peers[i].offered) {
            cdp__rpc_out *o = rpc->peers[i].offered;
            rpc->peers[i].offered = o->next;
            cdp__rpc_out_drop(rpc, o);
        }
        cdp__rpc_lose(rpc, i);
    }
}

/* False: this thread must not destroy the rpc, or it was destroyed. */
CDP__PRIVATE bool cdp__rpc_may_end(cdp_rpc *rpc) {
    if (cdp__rpc_gone(rpc, "cdp_rpc_destroy")) return false;
    if (!cdp__rpc_here_of()->request && !cdp__rpc_here_of()->no_wait && !*cdp__inside())
        return true;
    (void)cdp__fail(CDP_ERR_STATE,
        "cdp_rpc_destroy: a function or a callback must not destroy an rpc; do it where nothing of "
        "it runs");
    return false;
}

CDP_API void cdp_rpc_destroy(cdp_rpc *rpc) {
    cdp__rpc_rq *rq;
    uint32_t i;
    if (!rpc || !cdp__rpc_may_end(rpc)) return;
    cdp__rpc_lock(rpc);
    rpc->phase = CDP__RPC_SHUT;
    rpc->leaving = true;
    for (i = 1; i <= rpc->call_count; ++i)
        if (rpc->calls[i]->used && rpc->calls[i]->call)
            cdp__rpc_abandon(rpc, rpc->calls[i], CDP_ERR_STATE);
    for (rq = rpc->all; rq; rq = rq->after)
        rq->cancelled = true;
    cdp__rpc_leave(rpc);
    cdp__rpc_stop_workers(rpc);
    cdp_channel_close(rpc->channel);
    cdp__rpc_lock(rpc);
    rpc->channel = NULL;
    cdp__rpc_lose_all(rpc);
    while (rpc->in)
        cdp__rpc_in_close(rpc, rpc->in);
    while (rpc->contexts) {
        if (cdp__rpc_maker(rpc->contexts->id) == rpc->rank) cdp__ctx_orphan(rpc->contexts);
        cdp__ctx_drop(rpc, rpc->contexts);
    }
    cdp__ctx_steps(rpc);
    cdp__rpc_tasks(rpc);
    cdp__rpc_end_refs(rpc);
    cdp__rpc_tasks(rpc);
    for (i = 1; i < rpc->refs.room; ++i)
        cdp__free(rpc->os, rpc->extra[i].label); /* of references that the program still has */
    rpc->refs.room = 0;
    rpc->kept = rpc->rqs + 1; /* the one more is for this function */
    for (rq = rpc->all; rq; rq = rq->after) {
        rq->pub.rref_count = 0;
        if (rq->pub.ctx) cdp__ctx_unuse(rpc, rq->pub.ctx);
        rq->pub.ctx = NULL;
        rq->pub.on = NULL;
        memset(&rq->pub.on_rref, 0, sizeof rq->pub.on_rref);
    }
    cdp__rpc_tasks(rpc);
    cdp_lock_release(&rpc->lock);
    cdp__rpc_free_groups(rpc);
    cdp__rpc_delist(
        rpc); /* from here on, calls and references of the program touch nothing of it */
    cdp__rpc_lock(rpc);
    cdp__rpc_free_parts(rpc);
    rpc->free_rqs = NULL;
    i = --rpc->kept;
    cdp_lock_release(&rpc->lock);
    if (!i) cdp__rpc_free(rpc);
}

/* ---- >>rpc/shutdown: waits until no rank has calls in flight --------------------------------- */

/* Knows: sums of messages, what is left. Promises: waits as long as ranks work and are alive; its
   deadline counts from the last call that came or ended; every rank that takes part names the same
   request if one keeps it; after OK no rank has a call, a message or a reference. */

/* True if this rank has nothing in flight. */
CDP__PRIVATE bool cdp__rpc_passive(cdp_rpc *rpc, void *none) {
    uint32_t r;
    (void)none;
    if (rpc->calls_used || rpc->rqs || rpc->waiting || rpc->in || rpc->tasks || rpc->waves)
        return false;
    for (r = 0; r < rpc->ranks; ++r)
        if (rpc->peers[r].queue || rpc->peers[r].offered) return false;
    return true;
}

/* How strongly a request or a call keeps a shutdown from its end: the strongest one is the cause of
   the others. */
typedef enum cdp__rpc_weight {
    CDP__RPC_KEEPS_NOTHING,
    CDP__RPC_KEEPS_MESSAGES,
    CDP__RPC_KEEPS_CALL,
    CDP__RPC_KEEPS_WAITING,
    CDP__RPC_KEEPS_RUNNING,
    CDP__RPC_KEEPS_KEPT
} cdp__rpc_weight;

CDP__PRIVATE cdp__rpc_weight cdp__rpc_weight_of(const cdp__rpc_rq *rq) {
    if (rq->stage == CDP__RPC_KEPT) return CDP__RPC_KEEPS_KEPT;
    if (rq->stage == CDP__RPC_RUNNING || rq->in_function) return CDP__RPC_KEEPS_RUNNING;
    return CDP__RPC_KEEPS_WAITING;
}

/* Describes the request or call of this rank that keeps a shutdown the most. *at is the rank that
   does not answer: this one, the called one, or one that takes no messages. */
CDP__PRIVATE cdp__rpc_weight cdp__rpc_keeper(
    const cdp_rpc *rpc, char *text, uint64_t room, uint32_t *at) {
    static const char *const states[] = {"waits", "still runs", "was kept and never replied to"};
    const cdp__rpc_rq *rq, *most = NULL;
    char name[16];
    uint32_t i;
    *at = rpc->rank;
    for (rq = rpc->all; rq; rq = rq->after)
        if (!most || cdp__rpc_weight_of(rq) > cdp__rpc_weight_of(most)) most = rq;
    if (most) {
        const cdp__rpc_weight weight = cdp__rpc_weight_of(most);
        cdp__format(text, room, "%s, called by rank %u (%s), request %llu, %s",
            most->f ? most->f->name : "a value", most->pub.from, rpc->peers[most->pub.from].name,
            (unsigned long long)most->call, states[weight - CDP__RPC_KEEPS_WAITING]);
        return weight;
    }
    for (i = 1; i <= rpc->call_count; ++i) {
        const cdp__rpc_call *c = rpc->calls[i];
        if (!c->used || c->wire_over) continue;
        cdp__format(text, room, "the call of %s on rank %u (%s) has not ended",
            c->function ? cdp__rpc_function_name(rpc, c->function, name) : "a value", c->to,
            rpc->peers[c->to].name);
        *at = c->to;
        return CDP__RPC_KEEPS_CALL;
    }
    for (i = 0; i < rpc->ranks; ++i) {
        if (!rpc->peers[i].queue && !rpc->peers[i].offered) continue;
        cdp__format(text, room, "rank %u (%s) takes no messages", i, rpc->peers[i].name);
        *at = i;
        return CDP__RPC_KEEPS_MESSAGES;
    }
    return CDP__RPC_KEEPS_NOTHING;
}

/* Sets the last error: what keeps a shutdown on `rank`, and which rank does not answer. */
CDP__PRIVATE cdp_status cdp__rpc_kept_by(
    const cdp_rpc *rpc, uint32_t rank, const char *text, uint32_t at) {
    return cdp__fail_peer(CDP_ERR_TIMEOUT, cdp_world_rank_of(rpc->group, at), 0,
        "cdp_rpc_shutdown: on rank %u (%s), %s", rank, rpc->peers[rank].name, text);
}

/* The deadline of a shutdown counts from the last call that came or ended. */
typedef struct cdp__rpc_patience {
    uint32_t timeout_ms; /* that the program gave, or 0 */
    bool all_here;       /* every rank has called cdp_rpc_shutdown() */
    uint64_t messages;   /* of all ranks, in the last sum */
} cdp__rpc_patience;
/* Functions that the waits of a shutdown run are not cut: a shutdown waits for what still runs. */

CDP__PRIVATE uint64_t cdp__rpc_until_quiet(const cdp_rpc *rpc, uint32_t timeout_ms) {
    return timeout_ms == CDP_NO_TIMEOUT ? CDP__NEVER : rpc->moved_ns + timeout_ms * CDP__MS;
}

/* Until when ranks that have not called cdp_rpc_shutdown() may go on working. */
CDP__PRIVATE uint64_t cdp__rpc_until_here(const cdp_rpc *rpc, const cdp__rpc_patience *p) {
    return p->timeout_ms ? cdp__rpc_until_quiet(rpc, p->timeout_ms) : CDP__NEVER;
}

/* Until when ranks that have called it may have something in flight. */
CDP__PRIVATE uint64_t cdp__rpc_until_idle(const cdp_rpc *rpc, const cdp__rpc_patience *p) {
    if (!p->all_here) return cdp__rpc_until_here(rpc, p);
    return cdp__rpc_until_quiet(rpc, cdp__def(p->timeout_ms, rpc->desc.timeout_ms));
}

/* Counts that ranks add up while they shut down. */
typedef enum cdp__rpc_count {
    CDP__RPC_SENT,
    CDP__RPC_RECEIVED,
    CDP__RPC_LOSSES,
    CDP__RPC_ONE_SIDED, /* the sum is 0 if both ends of every lost link have noticed the loss */
    CDP__RPC_TALLIES,
    CDP__RPC_BUSY = CDP__RPC_TALLIES, /* ranks that have something in flight */
    CDP__RPC_LATE,                    /* ranks whose deadline is over */
    CDP__RPC_COUNTS
} cdp__rpc_count;
typedef char cdp__assert_roll_counts[(uint32_t)CDP__RPC_COUNTS == CDP__ROLL_COUNTS ? 1 : -1];

/* Messages to and from lost ranks are not counted, because some of them never arrive. */
CDP__PRIVATE void cdp__rpc_tally(const cdp_rpc *rpc, uint64_t n[CDP__RPC_TALLIES]) {
    uint32_t r;
    memset(n, 0, CDP__RPC_TALLIES * sizeof *n);
    for (r = 0; r < rpc->ranks; ++r) {
        const uint64_t link[2] = {cdp__min(r, rpc->rank), cdp__max(r, rpc->rank)};
        const uint64_t name = cdp__hash(CDP__HASH_START, link, sizeof link);
        if (rpc->lost[r]) {
            ++n[CDP__RPC_LOSSES];
            if (!rpc->roll.words) n[CDP__RPC_ONE_SIDED] += r < rpc->rank ? name : 0 - name;
        } else {
            n[CDP__RPC_SENT] += rpc->peers[r].sent;
            n[CDP__RPC_RECEIVED] += rpc->peers[r].received;
        }
    }
}

CDP__PRIVATE bool cdp__rpc_tally_moved(cdp_rpc *rpc, void *summed) {
    uint64_t n[CDP__RPC_TALLIES];
    cdp__rpc_tally(rpc, n);
    return memcmp(n, summed, sizeof n) != 0;
}

typedef struct cdp__rpc_sum {
    cdp_rpc *rpc;
    cdp_status status;
    cdp_error error;
    bool over;
} cdp__rpc_sum;

/* The sum is complete. Runs in a callback. */
CDP__PRIVATE cdp_status cdp__rpc_summed(void *user, cdp_status status) {
    cdp__rpc_sum *s = (cdp__rpc_sum *)user;
    cdp_rpc *rpc = s->rpc;
    cdp__rpc_lock(rpc);
    s->status = status;
    s->error = *cdp_last_error();
    s->over = true;
    cdp_channel_wake(rpc->channel);
    cdp_lock_release(&rpc->lock);
    return CDP_OK;
}

CDP__PRIVATE bool cdp__rpc_sum_over(cdp_rpc *rpc, void *arg) {
    (void)rpc;
    return ((cdp__rpc_sum *)arg)->over;
}

/* Lets the deadline of the sum that this rank takes part in pass now: the group finds out which
   rank is late, and all ranks that take part fail with its name. */
CDP__PRIVATE void cdp__rpc_sum_late(cdp_rpc *rpc, uint32_t timeout_ms) {
    cdp_group *g = rpc->sums;
    cdp__enter(g);
    if (g->queue.used) {
        cdp__op *op = cdp__group_head(g);
        op->rq.timeout_ms = timeout_ms;
        op->deadline_ns = g->timers.soonest_ns = cdp__now(g->os);
        cdp__world_wake(g->w);
    }
    cdp__leave(g);
}

/* A sum of ranks that all take part ends within this time, also where threads wait for processors.
   A later one says that a rank does not: its thread has not come, or runs a function. */
#define CDP__RPC_SUM_NS (250 * CDP__MS)

/* Waits for the end of a sum as long as ranks may go on working. */
CDP__PRIVATE cdp_status cdp__rpc_wait_here(cdp_rpc *rpc, bool (*over)(cdp_rpc *rpc, void *arg),
    void *arg, const cdp__rpc_patience *patience) {
    uint64_t here;
    cdp_status st;
    do {
        here = cdp__rpc_until_here(rpc, patience);
        st = cdp__rpc_wait(
            rpc, over, arg, here == CDP__NEVER ? here : here + CDP__RPC_SUM_NS, CDP__NEVER);
    } while (st == CDP_PENDING && cdp__rpc_until_here(rpc, patience) > here);
    return st;
}

/* Waits for a sum that was started. */
CDP__PRIVATE cdp_status cdp__rpc_sum_wait(
    cdp_rpc *rpc, cdp__rpc_sum *sum, cdp_work then, const cdp__rpc_patience *patience) {
    const cdp_status st = cdp__rpc_wait_here(rpc, cdp__rpc_sum_over, sum, patience);
    if (st == CDP_OK) return st;
    /* it writes to memory of this function's caller until it has ended */
    {
        const cdp_error e = *cdp_last_error();
        cdp_lock_release(&rpc->lock);
        cdp__rpc_sum_late(rpc, patience->timeout_ms);
        (void)!cdp_work_wait(then);
        cdp__rpc_lock(rpc);
        *cdp__error_slot() = e;
    }
    return st == CDP_PENDING ? CDP_OK : st;
}

/* all = the sum of every rank's `mine`. Lock held; released meanwhile. */
CDP__PRIVATE cdp_status cdp__rpc_add_up(
    cdp_rpc *rpc, const uint64_t *mine, uint64_t *all, const cdp__rpc_patience *patience) {
    cdp_request request;
    cdp__rpc_sum sum;
    cdp_work work, then;
    cdp_status st;
    memset(&sum, 0, sizeof sum);
    memset(&request, 0, sizeof request);
    sum.rpc = rpc;
    request.kind = CDP_COLL_ALLREDUCE;
    request.in = mine;
    request.out = all;
    request.count = CDP__RPC_COUNTS;
    request.dtype = CDP_DTYPE_I64; /* every build adds up this dtype */
    request.op = CDP_REDUCE_SUM;
    request.timeout_ms = CDP_NO_TIMEOUT;
    cdp_lock_release(&rpc->lock);
    st = cdp_start(rpc->sums, &request, &work);
    if (st == CDP_OK) {
        st = cdp_work_then(work, cdp__rpc_summed, &sum, &then);
        if (st != CDP_OK) {
            /* no callback will report its end, and it writes to `all` until then */
            const cdp_error e = *cdp_last_error();
            cdp_group_abort(rpc->sums, e.text);
            (void)!cdp_work_wait(work);
            *cdp__error_slot() = e;
        }
    }
    cdp__rpc_lock(rpc);
    if (st == CDP_OK) st = cdp__rpc_sum_wait(rpc, &sum, then, patience);
    if (st == CDP_OK && sum.status != CDP_OK) return cdp__error_again(sum.status, &sum.error);
    return st;
}

CDP__PRIVATE cdp_status cdp__rpc_under_way(const uint64_t all[CDP__RPC_COUNTS]) {
    return cdp__fail(CDP_ERR_TIMEOUT,
        "cdp_rpc_shutdown: messages between ranks are still under way: %llu were sent, %llu have "
        "come",
        (unsigned long long)all[CDP__RPC_SENT], (unsigned long long)all[CDP__RPC_RECEIVED]);
}

/* ---- sums among ranks that are alive, see rpc/roll.h */

/* What this rank says if it does not come. */
#define CDP__RPC_NOT_HERE "cdp_rpc_shutdown() was not called in time, or runs a function"

CDP__PRIVATE bool cdp__rpc_roll_over(cdp_rpc *rpc, void *none) {
    (void)none;
    return rpc->roll.over || rpc->roll.failed || rpc->roll.cut_by >= 0;
}

/* A turn was not over in time: this rank ends, and all others with it, with the name of the rank
   that did not come, or of what this rank has in flight itself. */
CDP__PRIVATE cdp_status cdp__rpc_roll_late(cdp_rpc *rpc) {
    cdp__roll_say say = rpc->roll.mine;
    uint32_t r = 0;
    say.weight = (uint32_t)cdp__rpc_keeper(rpc, say.text, sizeof say.text, &say.at);
    if (!say.weight) {
        while (r < rpc->ranks && (r == rpc->rank || cdp__roll_has_said(&rpc->roll, r)))
            ++r;
        say.rank = say.at = r % rpc->ranks;
        cdp__format(say.text, sizeof say.text, "%s", CDP__RPC_NOT_HERE);
    }
    cdp__rpc_say(rpc, CDP__ROLL_FAIL, &say);
    return cdp__rpc_kept_by(rpc, say.rank, say.text, say.at);
}

/* all = the sum of what ranks that are alive say. Lock held; released meanwhile. */
CDP__PRIVATE cdp_status cdp__rpc_add_up_living(
    cdp_rpc *rpc, const uint64_t *mine, uint64_t *all, const cdp__rpc_patience *patience) {
    cdp__roll *roll = &rpc->roll;
    cdp__roll_say say;
    cdp_status st;
    uint32_t r;
    memset(&say, 0, sizeof say);
    memcpy(say.counts, mine, sizeof say.counts);
    say.rank = rpc->rank;
    say.weight = (uint32_t)cdp__rpc_keeper(rpc, say.text, sizeof say.text, &say.at);
    for (r = 0; r < rpc->ranks; ++r) /* what it holds is released when its link has ended */
        if (roll->out[r] && !rpc->lost[r]) say.counts[CDP__RPC_BUSY] = 1;
    cdp__roll_begin(roll, &say);
    cdp__rpc_say(rpc, CDP__ROLL_TURN, &say);
    st = cdp__rpc_wait_here(rpc, cdp__rpc_roll_over, NULL, patience);
    if (st == CDP_PENDING) return cdp__rpc_roll_late(rpc);
    if (st != CDP_OK) return st;
    if (roll->cut_by >= 0)
        return cdp__fail_peer(CDP_ERR_PEER_LOST,
            cdp_world_rank_of(rpc->group, (uint32_t)roll->cut_by), 0,
            "cdp_rpc_shutdown: rank %u (%s) counts this rank out: it has lost this one, or a rank "
            "that it hears has",
            (uint32_t)roll->cut_by, rpc->peers[roll->cut_by].name);
    if (!roll->over && !roll->why.text[0]) return cdp__rpc_under_way(roll->why.counts);
    if (!roll->over) return cdp__rpc_kept_by(rpc, roll->why.rank, roll->why.text, roll->why.at);
    memcpy(all, roll->sum.counts, sizeof roll->sum.counts);
    all[CDP__RPC_LOSSES] = 0;
    for (r = 0; r < rpc->ranks; ++r)
        all[CDP__RPC_LOSSES] += roll->sum_out[r];
    return CDP_OK;
}

/* All ranks have heard this one's last word, or have said theirs, or are lost. */
CDP__PRIVATE bool cdp__rpc_all_said(cdp_rpc *rpc, void *none) {
    (void)none;
    for (uint32_t r = 0; r < rpc->ranks; ++r)
        if (rpc->peers[r].queue
            || (r != rpc->rank && !rpc->roll.out[r] && !rpc->lost[r] && !rpc->roll.words[r].left))
            return false;
    return true;
}

/* The last turn is over: this rank says so, and waits for the last words of others, because the end
   of its links could overtake its own. Lock held; released meanwhile. */
CDP__PRIVATE void cdp__rpc_roll_end(cdp_rpc *rpc, uint64_t until_ns) {
    if (!rpc->roll.words) return;
    rpc->roll.done = rpc->leaving = true;
    cdp__rpc_say(rpc, CDP__ROLL_LAST, &rpc->roll.mine);
    (void)cdp__rpc_wait(rpc, cdp__rpc_all_said, NULL, until_ns, CDP__NEVER);
}

/* ---- */

/* A sum was not complete in time. This rank names what it has in flight itself, or the rank that
   did not take part. */
CDP__PRIVATE cdp_status cdp__rpc_not_here(const cdp_rpc *rpc) {
    const cdp_error e = *cdp_last_error();
    char text[200];
    uint32_t r = 0, at;
    if (cdp__rpc_keeper(rpc, text, sizeof text, &at))
        return cdp__rpc_kept_by(rpc, rpc->rank, text, at);
    while (r < rpc->ranks && (int32_t)cdp_world_rank_of(rpc->group, r) != e.peer)
        ++r;
    if (r == rpc->ranks) return e.status;
    return cdp__rpc_kept_by(rpc, r, CDP__RPC_NOT_HERE, r);
}

/* The deadline of some rank is over while all take part: they agree on what keeps them. Lock held;
   released meanwhile. */
CDP__PRIVATE cdp_status cdp__rpc_agree(cdp_rpc *rpc, const uint64_t all[CDP__RPC_COUNTS]) {
    uint8_t card[204]; /* the rank that does not answer, and a text */
    char *text = (char *)card + 4;
    uint64_t mine, most;
    uint32_t rank, at;
    cdp_status st;
    if (rpc->roll.words) cdp__rpc_say(rpc, CDP__ROLL_FAIL, &rpc->roll.sum);
    if (rpc->roll.words && rpc->roll.sum.weight)
        return cdp__rpc_kept_by(rpc, rpc->roll.sum.rank, rpc->roll.sum.text, rpc->roll.sum.at);
    if (rpc->roll.words) return cdp__rpc_under_way(all);
    memset(card, 0, sizeof card);
    mine = (uint64_t)cdp__rpc_keeper(rpc, text, 200, &at) << 32 | (rpc->ranks - 1 - rpc->rank);
    cdp__put_u32(card, at);
    cdp_lock_release(&rpc->lock);
    st = cdp_allreduce(rpc->sums, &mine, &most, 1, CDP_DTYPE_I64, CDP_REDUCE_MAX);
    rank = rpc->ranks - 1 - (uint32_t)most;
    if (st == CDP_OK) st = cdp_broadcast(rpc->sums, card, sizeof card, CDP_DTYPE_U8, rank);
    cdp__rpc_lock(rpc);
    if (st != CDP_OK) return st;
    if (most >> 32) return cdp__rpc_kept_by(rpc, rank, text, cdp__get_u32(card));
    return cdp__rpc_under_way(all);
}

/* Pause between two sums. Ranks add up again as soon as one of their counts changes, and
   otherwise after a pause that grows, because calls may take long and adding up all the time
   would keep every core busy. */
#define CDP__RPC_PAUSE_NS 50000u
#define CDP__RPC_PAUSE_MAX_NS 20000000u

/* One sum; a rank that has something in flight takes part after a pause. Lock held; released
   meanwhile. */
CDP__PRIVATE cdp_status cdp__rpc_sum_once(
    cdp_rpc *rpc, cdp__rpc_patience *patience, uint64_t mine[], uint64_t all[]) {
    const uint64_t until = cdp__rpc_until_idle(rpc, patience);
    uint64_t messages;
    bool moved;
    cdp_status st = cdp__rpc_wait(rpc, cdp__rpc_passive, NULL,
        cdp__min(until, cdp__rpc_time(rpc) + CDP__RPC_PAUSE_MAX_NS), CDP__NEVER);
    if (st != CDP_OK && st != CDP_PENDING) return st;
    cdp__rpc_tally(rpc, mine);
    mine[CDP__RPC_BUSY] = !cdp__rpc_passive(rpc, NULL);
    mine[CDP__RPC_LATE] = cdp__now(rpc->os) >= cdp__rpc_until_idle(rpc, patience);
    if (rpc->roll.words) {
        st = cdp__rpc_add_up_living(rpc, mine, all, patience);
    } else {
        st = cdp__rpc_add_up(rpc, mine, all, patience);
        if (st == CDP_ERR_TIMEOUT) return cdp__rpc_not_here(rpc);
    }
    if (st != CDP_OK) return st;
    messages = all[CDP__RPC_SENT] + all[CDP__RPC_RECEIVED];
    moved = patience->all_here ? messages != patience->messages : !patience->timeout_ms;
    if (moved) rpc->moved_ns = cdp__now(rpc->os);
    patience->all_here = true;
    patience->messages = messages;
    return CDP_OK;
}

/* Runs functions until no rank has anything in flight. That is so if two sums of the messages
   that all ranks have sent and received, each taken while they are passive, are equal, and as
   many were received as were sent. The second sum begins after the first is complete, so no
   message can be in flight during both. A loss between the two sums, or one that only one end
   has noticed, makes them unequal. Lock held; released meanwhile. */
CDP__PRIVATE cdp_status cdp__rpc_quiet(cdp_rpc *rpc, cdp__rpc_patience *patience) {
    uint64_t before[CDP__RPC_COUNTS], mine[CDP__RPC_COUNTS], all[CDP__RPC_COUNTS];
    uint64_t pause = 0;
    memset(before, 0xff, sizeof before);
    for (;;) {
        const cdp_status st = cdp__rpc_sum_once(rpc, patience, mine, all);
        cdp_status waited;
        uint64_t until;
        if (st != CDP_OK) return st;
        if (!all[CDP__RPC_BUSY]
            && (!memcmp(all, before, CDP__RPC_TALLIES * sizeof *all) || CDP__RPC_PLANT(ONE_SUM)))
            return CDP_OK;
        if (all[CDP__RPC_LATE]) return cdp__rpc_agree(rpc, all);
        if (!all[CDP__RPC_BUSY] && all[CDP__RPC_SENT] == all[CDP__RPC_RECEIVED]
            && !all[CDP__RPC_ONE_SIDED]) {
            memcpy(before, all, sizeof before);
            pause = 0;
            continue;
        }
        memset(before, 0xff, sizeof before);
        if (all[CDP__RPC_BUSY]) continue; /* ranks that are busy pause */
        until = cdp__rpc_until_idle(rpc, patience);
        pause = cdp__min(cdp__max(2 * pause, CDP__RPC_PAUSE_NS), CDP__RPC_PAUSE_MAX_NS);
        if (CDP__RPC_PLANT(NOT_OF_THE_SEED)) pause += CDP__RPC_PAUSE_NS;
        waited = cdp__rpc_wait(rpc, cdp__rpc_tally_moved, mine,
            cdp__min(until, cdp__rpc_time(rpc) + pause), CDP__NEVER);
        if (waited != CDP_OK && waited != CDP_PENDING) return waited;
    }
}

/* Drops references that the program still holds. Returns how many there were; `text` describes
   the first one. Lock held; released meanwhile. */
CDP__PRIVATE uint32_t cdp__rpc_drop_leaks(cdp_rpc *rpc, char text[160]) {
    uint32_t slot, n = 0;
    for (slot = 1; slot < rpc->refs.room; ++slot) {
        cdp__ref *r = &rpc->refs.at[slot];
        char *label = rpc->extra[slot].label;
        const uint64_t rid = r->rid;
        const uint32_t owner = r->rank;
        if (r->kind != CDP__REF_USER || !r->handles) continue;
        if (!n++)
            cdp__format(text, 160, "to a value of rank %u (%s)%s%s", owner, rpc->peers[owner].name,
                label ? ", label " : "", label ? label : "");
        r->handles = 1;
        rpc->extra[slot].label = NULL;
        cdp__ref_drop(&rpc->refs, slot);
        if (rpc->desc.leaked) {
            cdp_lock_release(&rpc->lock);
            rpc->desc.leaked(rpc->desc.user, rid, owner, label);
            cdp__rpc_lock(rpc);
        }
        cdp__free(rpc->os, label);
    }
    return n;
}

/* Ends contexts of this rank that the program has not ended. Returns how many. */
CDP__PRIVATE uint32_t cdp__rpc_end_contexts(cdp_rpc *rpc) {
    cdp_ctx *ctx, *next;
    uint32_t r, n = 0;
    for (ctx = rpc->contexts; ctx; ctx = next) {
        next = ctx->next;
        /* one that has ended waits for answers in another thread, which drops it */
        if (cdp__rpc_maker(ctx->id) != rpc->rank || ctx->ended) continue;
        ++n;
        for (r = 0; r < rpc->ranks; ++r)
            if (ctx->with[r] == CDP__CTX_WITH && r != rpc->rank)
                cdp__rpc_control(rpc, r, CDP__RPC_CTX_END, ctx->id, 0, 0);
        cdp__ctx_drop(rpc, ctx);
    }
    return n;
}

CDP__PRIVATE cdp_status cdp__rpc_shut(cdp_rpc *rpc, cdp__rpc_patience *patience) {
    char text[160];
    uint32_t leaks, contexts;
    cdp_status st = cdp__rpc_quiet(rpc, patience);
    if (st != CDP_OK) return st;
    rpc->phase = CDP__RPC_REFUSING;
    rpc->leaving = !rpc->roll.words; /* those that leave say so */
    contexts = cdp__rpc_end_contexts(rpc);
    leaks = cdp__rpc_drop_leaks(rpc, text);
    cdp__rpc_tidy(rpc);
    st = cdp__rpc_quiet(rpc, patience);
    if (st != CDP_OK) return st;
    cdp__rpc_roll_end(
        rpc, cdp__deadline(rpc->os, cdp__def(patience->timeout_ms, rpc->desc.timeout_ms)));
    if (!CDP__RPC_PLANT(ONE_SUM)
        && (rpc->refs.used[CDP__REF_USER] || rpc->refs.used[CDP__REF_FORK]
            || rpc->refs.used[CDP__REF_HOLD]))
        return cdp__fail(CDP_ERR_INTERNAL,
            "cdp_rpc_shutdown: %u references, %u forks and %u holds are left although no message "
            "is under way",
            rpc->refs.used[CDP__REF_USER], rpc->refs.used[CDP__REF_FORK],
            rpc->refs.used[CDP__REF_HOLD]);
    if (leaks)
        return cdp__fail(CDP_ERR_STATE,
            "cdp_rpc_shutdown: this rank still had %u references, the first one %s; drop them "
            "with cdp_rref_drop() or cdp_call_free()",
            leaks, text);
    if (contexts)
        return cdp__fail(CDP_ERR_STATE,
            "cdp_rpc_shutdown: this rank still had %u contexts; end them with cdp_ctx_end()",
            contexts);
    return CDP_OK;
}

/* Other threads may be in waits that have just ended: they leave before the channel is closed. Lock
   held, released meanwhile. */
CDP__PRIVATE void cdp__rpc_waits_end(cdp_rpc *rpc, cdp_channel *channel, uint64_t until_ns) {
    uint64_t seen = 0, now = cdp__now(rpc->os);
    for (; rpc->waiters && now < until_ns; now = cdp__now(rpc->os)) {
        cdp_lock_release(&rpc->lock);
        cdp_channel_wake(channel);
        (void)!cdp_channel_wait_since(channel, &seen, cdp__min(until_ns, now + 10 * CDP__MS));
        cdp__rpc_lock(rpc);
    }
}

CDP_API cdp_status cdp_rpc_shutdown(cdp_rpc *rpc, uint32_t timeout_ms) {
    cdp_channel *channel;
    cdp__rpc_patience patience;
    cdp_status st;
    bool inside;
    if (!rpc) return cdp__missing("cdp_rpc_shutdown", "rpc");
    if (cdp__rpc_gone(rpc, "cdp_rpc_shutdown")) return CDP_ERR_INVALID;
    memset(&patience, 0, sizeof patience);
    patience.timeout_ms = timeout_ms;
    cdp__rpc_lock(rpc);
    inside = cdp__rpc_here_of()->request || cdp__rpc_here_of()->no_wait || *cdp__inside();
    if (rpc->phase != CDP__RPC_OPEN || rpc->shutting || inside) {
        cdp_lock_release(&rpc->lock);
        return cdp__fail(CDP_ERR_STATE, "cdp_rpc_shutdown: %s",
            inside ? "a function or a callback must not shut down the rpc that runs it"
                   : "this rpc was shut down before; destroy it, and create another one");
    }
    rpc->shutting = true;
    rpc->moved_ns = cdp__rpc_time(rpc);
    st = cdp__rpc_shut(rpc, &patience);
    if (st != CDP_OK && st != CDP_ERR_STATE) {
        rpc->phase = CDP__RPC_REFUSING;
        cdp__rpc_leave(rpc);
        return st;
    }
    channel = rpc->channel;
    rpc->phase = CDP__RPC_SHUT;
    {
        const cdp_error e = *cdp_last_error();
        cdp__rpc_waits_end(
            rpc, channel, cdp__deadline(rpc->os, cdp__def(timeout_ms, rpc->desc.timeout_ms)));
        cdp_lock_release(&rpc->lock);
        cdp__rpc_stop_workers(rpc);
        cdp_channel_close(channel);
        *cdp__error_slot() = e;
    }
    cdp__rpc_lock(rpc);
    rpc->channel = NULL;
    rpc->changed = true;
    cdp__rpc_leave(rpc);
    return st;
}

CDP__PRIVATE bool cdp__rpc_not_open(cdp_rpc *rpc, void *none) {
    (void)none;
    return rpc->phase != CDP__RPC_OPEN;
}

CDP_API cdp_status cdp_rpc_serve(cdp_rpc *rpc, uint32_t timeout_ms) {
    cdp__rpc_here *here = cdp__rpc_here_of();
    cdp__rpc_rq *outer = here->request, serving;
    cdp_status st;
    if (!rpc) return cdp__missing("cdp_rpc_serve", "rpc");
    if (cdp__rpc_gone(rpc, "cdp_rpc_serve")) return CDP_ERR_INVALID;
    memset(&serving, 0, sizeof serving); /* this thread runs functions although there are workers */
    if (!outer) here->request = &serving;
    cdp__rpc_lock(rpc);
    st = cdp__rpc_wait(rpc, cdp__rpc_not_open, NULL,
        cdp__deadline(rpc->os, cdp__def(timeout_ms, rpc->desc.timeout_ms)), CDP__NEVER);
    cdp__rpc_leave(rpc);
    here->request = outer;
    return st;
}

CDP_API cdp_status cdp_rpc_poll(cdp_rpc *rpc, uint32_t budget_us) {
    const cdp__rpc_here *here = cdp__rpc_here_of();
    cdp__rpc_rq *rq;
    cdp_status st;
    uint64_t until;
    if (!rpc) return cdp__missing("cdp_rpc_poll", "rpc");
    if (cdp__rpc_gone(rpc, "cdp_rpc_poll")) return CDP_ERR_INVALID;
    if (here->no_wait || *cdp__inside())
        return cdp__fail(CDP_ERR_STATE,
            "cdp_rpc_poll: a callback and an INLINE function run inside of it already; return");
    until = cdp__now(rpc->os) + budget_us * 1000ull;
    st = cdp_poll(rpc->group, budget_us); /* unlike the program's, it outlives lost ranks */
    cdp__rpc_lock(rpc);
    do {
        rq = cdp__rpc_next(rpc, cdp__rpc_time(rpc), CDP__NEVER);
        if (rq) cdp__rpc_help(rpc, rq, CDP__NEVER);
    } while (rq && cdp__rpc_time(rpc) < until);
    cdp__rpc_leave(rpc);
    return st;
}

/* ---- >>rpc/facts: names, ranks that are alive, counts ---------------------------------------- */

/* Knows: tables and lists. Promises: it changes nothing. */

CDP_API int32_t cdp_rpc_rank_of(const cdp_rpc *rpc, const char *name) {
    uint32_t r;
    if (!rpc || !cdp__rpc_exists(rpc)) return -1;
    for (r = 0; name && r < rpc->ranks; ++r)
        if (!strcmp(rpc->peers[r].name, name)) return (int32_t)r;
    return -1;
}

CDP_API const char *cdp_rpc_name_of(const cdp_rpc *rpc, uint32_t rank) {
    return rpc && cdp__rpc_exists(rpc) && rank < rpc->ranks ? rpc->peers[rank].name : NULL;
}

CDP_API bool cdp_rpc_alive(cdp_rpc *rpc, uint32_t rank) {
    bool alive;
    if (!rpc || cdp__rpc_gone(rpc, "cdp_rpc_alive") || rank >= rpc->ranks) return false;
    cdp__rpc_lock(rpc);
    alive = !(rpc->roll.done ? rpc->roll.sum_out : rpc->lost)[rank];
    cdp_lock_release(&rpc->lock);
    return alive;
}

/* The status of the value on its owner, else of the reference. */
CDP__PRIVATE cdp_status cdp__rpc_slot_status(const cdp_rpc *rpc, uint32_t slot) {
    const cdp__ref *r = &rpc->refs.at[slot];
    const cdp__rpc_value *v = rpc->extra[slot].value;
    if (r->kind == CDP__REF_OWNER) return v && v->settled ? v->failed : CDP_PENDING;
    if (r->state == CDP__REF_BROKEN) return rpc->extra[slot].broken;
    return r->state == CDP__REF_PENDING ? CDP_PENDING : CDP_OK;
}

CDP__PRIVATE void cdp__rpc_describe_time(const cdp_rpc *rpc, cdp__text *t, uint64_t deadline_ns) {
    const uint64_t now = cdp__now(rpc->os);
    if (deadline_ns == CDP__NEVER)
        cdp__text_add(t, ", no deadline\n");
    else
        cdp__text_add(t, ", %llu ms left\n",
            (unsigned long long)(deadline_ns > now ? (deadline_ns - now) / CDP__MS : 0));
}

CDP__PRIVATE void cdp__rpc_describe_calls(const cdp_rpc *rpc, cdp__text *t) {
    char name[16];
    uint32_t i;
    for (i = 1; i <= rpc->call_count; ++i) {
        const cdp__rpc_call *c = rpc->calls[i];
        if (!c->used) continue;
        cdp__text_add(t, "call of %s on rank %u (%s): %s%s",
            c->function ? cdp__rpc_function_name(rpc, c->function, name) : "a value", c->to,
            rpc->peers[c->to].name, c->left ? "waits for the answer" : "has not left",
            c->call ? "" : ", nobody waits for it");
        cdp__rpc_describe_time(rpc, t, c->deadline_ns);
    }
}

CDP__PRIVATE void cdp__rpc_describe_requests(const cdp_rpc *rpc, cdp__text *t) {
    static const char *const stages[] = {"has come",
        "waits until references are confirmed, or for its turn", "waits for the value",
        "waits for a thread", "runs", "was kept", "was replied to"};
    const cdp__rpc_rq *rq;
    for (rq = rpc->all; rq; rq = rq->after) {
        cdp__text_add(t, "request of rank %u (%s) for %s: %s%s", rq->pub.from,
            rpc->peers[rq->pub.from].name, rq->f ? rq->f->name : "a value", stages[rq->stage],
            rq->cancelled ? ", cancelled" : "");
        cdp__rpc_describe_time(rpc, t, rq->pub.deadline_ns);
    }
}

CDP__PRIVATE void cdp__rpc_describe_refs(const cdp_rpc *rpc, cdp__text *t) {
    uint32_t slot;
    for (slot = 1; slot < rpc->refs.room; ++slot) {
        const cdp__ref *r = &rpc->refs.at[slot];
        const char *label = rpc->extra[slot].label;
        if (r->kind != CDP__REF_OWNER && r->kind != CDP__REF_USER) continue;
        if (r->kind == CDP__REF_OWNER)
            cdp__text_add(t, "value %llx", (unsigned long long)r->rid);
        else
            cdp__text_add(t, "reference to value %llx of rank %u (%s)", (unsigned long long)r->rid,
                r->rank, rpc->peers[r->rank].name);
        cdp__text_add(t, "%s%s: %s, %u handles, %u %s\n", label ? ", label " : "",
            label ? label : "", cdp_status_name(cdp__rpc_slot_status(rpc, slot)), r->handles,
            r->count, r->kind == CDP__REF_OWNER ? "references of others" : "holds");
    }
}

CDP_API uint64_t cdp_rpc_describe(cdp_rpc *rpc, char *text, uint64_t room) {
    cdp__text t = cdp__text_of(text, room);
    uint32_t r;
    if (!rpc || cdp__rpc_gone(rpc, "cdp_rpc_describe")) return cdp__text_end(&t);
    cdp__rpc_lock(rpc);
    cdp__text_add(&t, "rpc %u, rank %u of %u (%s)%s\n", rpc->desc.number, rpc->rank, rpc->ranks,
        rpc->peers ? rpc->peers[rpc->rank].name : "", rpc->phase ? ", has shut down" : "");
    cdp__text_add(&t,
        "  %u workers, %u idle; timeout_ms %u, max_calls %u, max_queue %u, max_depth %u, "
        "max_rrefs %u, max_call_bytes %llu, max_message_bytes %llu, max_queue_bytes %llu\n",
        rpc->desc.workers, rpc->idle, rpc->desc.timeout_ms, rpc->desc.max_calls,
        rpc->desc.max_queue, rpc->desc.max_depth, rpc->desc.max_rrefs,
        (unsigned long long)rpc->desc.max_call_bytes,
        (unsigned long long)rpc->desc.max_message_bytes,
        (unsigned long long)rpc->desc.max_queue_bytes);
    for (r = 0; r < rpc->ranks; ++r)
        if (rpc->lost[r])
            cdp__text_add(
                &t, "rank %u (%s) is lost: %s\n", r, rpc->peers[r].name, rpc->peers[r].why.text);
    cdp__rpc_describe_calls(rpc, &t);
    cdp__rpc_describe_requests(rpc, &t);
    cdp__rpc_describe_refs(rpc, &t);
    cdp_lock_release(&rpc->lock);
    return cdp__text_end(&t);
}

/* ---- >>rpc/records: how much there is, and the last calls ------------------------------------ */

/* Knows: tables, lists, what is remembered of calls. Promises: it changes nothing. */

CDP__PRIVATE int cdp__rpc_longer(const void *a, const void *b) {
    uint64_t x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return (x > y) - (x < y);
}

/* How long the last calls of this rank took. */
CDP__PRIVATE void cdp__rpc_times(const cdp_rpc *rpc, cdp_rpc_stats *s) {
    uint64_t took[CDP__RPC_RECORDS], i, n = 0;
    for (i = 0; i < cdp__min(rpc->record_count, CDP__RPC_RECORDS); ++i) {
        const cdp_rpc_record *r = &rpc->records[(rpc->record_count - i) % CDP__RPC_RECORDS];
        if (r->from == rpc->rank && r->end_ns) took[n++] = r->end_ns - r->start_ns;
    }
    if (!n) return;
    qsort(took, (size_t)n, sizeof *took, cdp__rpc_longer);
    s->p50_ns = took[(n - 1) / 2];
    s->p99_ns = took[(n * 99 + 99) / 100 - 1];
    s->worst_ns = took[n - 1];
}

CDP__PRIVATE void cdp__rpc_count_requests(const cdp_rpc *rpc, cdp_rpc_stats *s) {
    const cdp__rpc_rq *rq;
    for (rq = rpc->all; rq; rq = rq->after) {
        if (rq->stage == CDP__RPC_REPLIED) continue;
        ++s->calls_in;
        s->queued += rq->stage < CDP__RPC_RUNNING;
        s->parked += rq->stage == CDP__RPC_PARKED;
        s->kept += rq->stage == CDP__RPC_KEPT;
    }
}

CDP_API cdp_rpc_stats cdp_rpc_stats_of(cdp_rpc *rpc) {
    const cdp_ctx *ctx;
    cdp_rpc_stats s;
    uint32_t i;
    memset(&s, 0, sizeof s);
    if (!rpc || cdp__rpc_gone(rpc, "cdp_rpc_stats_of")) return s;
    cdp__rpc_lock(rpc);
    s.calls_out = rpc->calls_used;
    s.refused = rpc->refused;
    s.contexts = rpc->context_count;
    s.owners = rpc->refs.used[CDP__REF_OWNER];
    s.users = rpc->refs.used[CDP__REF_USER];
    s.forks = rpc->refs.used[CDP__REF_FORK];
    s.holds = rpc->refs.used[CDP__REF_HOLD];
    s.workers = rpc->thread_count;
    s.workers_idle = rpc->idle;
    s.queue_bytes = rpc->in_bytes;
    s.bytes_out = rpc->bytes_out;
    s.bytes_in = rpc->bytes_in;
    s.one_way = rpc->one_ways;
    s.late = rpc->late;
    for (ctx = rpc->contexts; ctx; ctx = ctx->next)
        s.passes += !ctx->failed && (ctx->w.open || ctx->mine);
    for (i = 0; i < rpc->ranks; ++i)
        s.call_bytes += rpc->peers[i].flight[0].bytes + rpc->peers[i].flight[1].bytes;
    for (i = 1; i < rpc->refs.room; ++i)
        s.pending +=
            rpc->refs.at[i].kind == CDP__REF_USER && rpc->refs.at[i].state == CDP__REF_PENDING;
    cdp__rpc_count_requests(rpc, &s);
    cdp__rpc_times(rpc, &s);
    cdp_lock_release(&rpc->lock);
    return s;
}

CDP_API uint32_t cdp_rpc_records(cdp_rpc *rpc, cdp_rpc_record *out, uint32_t max) {
    uint32_t n, i;
    if (!rpc || !out || cdp__rpc_gone(rpc, "cdp_rpc_records")) return 0;
    cdp__rpc_lock(rpc);
    n = (uint32_t)cdp__min(cdp__min(rpc->record_count, CDP__RPC_RECORDS), max);
    for (i = 0; i < n; ++i)
        out[i] = rpc->records[(rpc->record_count - n + 1 + i) % CDP__RPC_RECORDS];
    cdp_lock_release(&rpc->lock);
    return n;
}

/* ---- >>rpc/start: calls begin ---------------------------------------------------------------- */

/* Knows: descs of calls. Promises: invalid calls are refused at once, with nothing started. */

/* Memory of the program that must be returned to it. */
typedef struct cdp__rpc_lender {
    cdp__rpc_task task;
    void (*release)(void *user);
    void *user;
} cdp__rpc_lender;

CDP__PRIVATE void cdp__rpc_lender_end(cdp_rpc *rpc, cdp__rpc_task *task) {
    cdp__rpc_lender *l = (cdp__rpc_lender *)task;
    l->release(l->user);
    cdp__free(rpc->os, l);
}

/* A call being prepared; filled in step by step. */
typedef struct cdp__rpc_starting {
    const char *name; /* of the public function */
    const cdp_call_desc *desc;
    cdp_call *call;  /* NULL: cdp_rpc_remote() */
    uint32_t to, on; /* on: slot, 0: none */
    uint32_t flags;
    uint64_t deadline_ns, start_ns;
    uint64_t bytes;          /* of its arguments */
    cdp__rpc_lender *lender; /* of the memory of its arguments, or NULL */
    bool waits;              /* the public function waits for the call, too */
    bool cut;                /* its time was shortened, see cdp__rpc_cut() */
    uint32_t makes;          /* slot of the reference that the call makes */
    bool nested;             /* a function starts it */
    int32_t level;
} cdp__rpc_starting;

CDP__PRIVATE cdp_status cdp__rpc_start_check(cdp_rpc *rpc, cdp__rpc_starting *s) {
    const cdp_call_desc *d = s->desc;
    uint64_t bytes;
    if (rpc->phase != CDP__RPC_OPEN)
        return cdp__fail(CDP_ERR_STATE, "%s: the rpc was shut down; create another one", s->name);
    s->to = d->to;
    if (d->on.rpc || d->on.slot) {
        s->on = cdp__rpc_slot(rpc, s->name, d->on);
        if (!s->on) return cdp_last_error()->status;
        s->to = rpc->refs.at[s->on].rank;
        s->flags |= CDP__RPC_ON;
    }
    if (s->to >= rpc->ranks)
        return cdp__fail(CDP_ERR_INVALID, "%s: to is %u; the group has ranks 0 to %u", s->name,
            s->to, rpc->ranks - 1);
    if (!d->function && !(s->flags & CDP__RPC_FETCH))
        return cdp__fail(
            CDP_ERR_INVALID, "%s: set function of the desc to cdp_rpc_id(name)", s->name);
    if (d->one_way && (d->args.rref_count || (s->flags & CDP__RPC_REMOTE)))
        return cdp__fail(CDP_ERR_INVALID,
            "%s: a one-way call takes no references and makes none; clear one_way", s->name);
    if (cdp__rpc_args_check(s->name, &d->args) != CDP_OK) return CDP_ERR_INVALID;
    bytes = cdp__rpc_args_bytes(&d->args);
    if (bytes > rpc->desc.max_message_bytes)
        return cdp__fail(CDP_ERR_INVALID,
            "%s: arguments of %llu bytes; max_message_bytes of cdp_rpc_desc is %llu; send less, or "
            "raise it on all ranks",
            s->name, (unsigned long long)bytes, (unsigned long long)rpc->desc.max_message_bytes);
    if (cdp__ctx_lives(d->ctx, s->name) != CDP_OK) return CDP_ERR_STATE;
    if (d->ctx && d->ctx->rpc != rpc)
        return cdp__fail(
            CDP_ERR_INVALID, "%s: ctx belongs to another rpc; begin one of this one", s->name);
    if (d->ctx && (s->flags & (CDP__RPC_REMOTE | CDP__RPC_FETCH)))
        return cdp__fail(CDP_ERR_INVALID, "%s: a reference is made outside contexts", s->name);
    if (d->ctx && !cdp__ctx_reserve_sent(rpc, d->ctx)) return CDP_ERR_NOMEM;
    if (cdp__ctx_check(s->name, d->ctx, &d->args) != CDP_OK) return cdp_last_error()->status;
    return cdp__rpc_rrefs_check(rpc, s->name, &d->args);
}

CDP__PRIVATE void cdp__rpc_start_time(cdp_rpc *rpc, cdp__rpc_starting *s) {
    const cdp__rpc_here *here = cdp__rpc_here_of();
    const cdp__rpc_rq *outer = here->request;
    s->start_ns = cdp__rpc_time(rpc);
    s->deadline_ns = cdp__def(s->desc->timeout_ms, rpc->desc.timeout_ms) == CDP_NO_TIMEOUT
        ? CDP__NEVER
        : s->start_ns + cdp__def(s->desc->timeout_ms, rpc->desc.timeout_ms) * CDP__MS;
    if (outer && outer->pub.rpc == rpc && !s->desc->detached)
        s->deadline_ns = cdp__min(s->deadline_ns, outer->pub.deadline_ns);
    if (!here->no_wait && !s->desc->detached && cdp__rpc_cut() < s->deadline_ns) {
        s->deadline_ns = cdp__rpc_cut();
        s->cut = true;
    }
}

/* True if no other call from inside functions to that rank has this level. */
CDP__PRIVATE bool cdp__rpc_alone(const cdp_rpc *rpc, const cdp__rpc_starting *s) {
    uint32_t i;
    for (i = 1; i <= rpc->call_count; ++i) {
        const cdp__rpc_call *c = rpc->calls[i];
        if (c->used && !c->wire_over && c->nested && c->to == s->to && c->level == s->level)
            return false;
    }
    return true;
}

/* Sets the last error to what a call that finds no room waits for. */
CDP__PRIVATE cdp_status cdp__rpc_set_room_error(
    const cdp_rpc *rpc, const cdp__rpc_starting *s, cdp_status status, const char *end) {
    const cdp__rpc_peer *peer = &rpc->peers[s->to];
    const cdp__rpc_flight *f = &peer->flight[s->nested];
    return cdp__fail_peer(status, cdp_world_rank_of(rpc->group, s->to), 0,
        "%s: %u calls to rank %u (%s)%s are under way, with %llu bytes of arguments; %u is the "
        "smaller one of max_calls here and its part of max_queue there, max_call_bytes is %llu; %s",
        s->name, f->calls, s->to, peer->name, s->nested ? " from functions" : "",
        (unsigned long long)f->bytes, peer->limit, (unsigned long long)rpc->desc.max_call_bytes,
        end);
}

CDP__PRIVATE bool cdp__rpc_has_room(cdp_rpc *rpc, void *arg) {
    const cdp__rpc_starting *s = (const cdp__rpc_starting *)arg;
    const cdp__rpc_peer *peer = &rpc->peers[s->to];
    const cdp__rpc_flight *f = &peer->flight[s->nested];
    if (rpc->lost[s->to] || rpc->phase != CDP__RPC_OPEN || CDP__RPC_PLANT(NO_CREDIT)) return true;
    if (cdp__flight_fits(f, s->bytes, false, peer->limit, rpc->desc.max_call_bytes)) return true;
    return s->nested && cdp__rpc_alone(rpc, s);
}

/* What decides whether there is room for a call. */
CDP__PRIVATE void cdp__rpc_start_measure(const cdp_rpc *rpc, cdp__rpc_starting *s) {
    s->bytes = cdp__rpc_args_bytes(&s->desc->args);
    s->nested = cdp__rpc_inside() >= 0;
    s->level =
        cdp__level_of(cdp__rpc_inside(), (s->flags & CDP__RPC_REMOTE) != 0, rpc->desc.max_depth);
}

/* False: a call that this thread starts is BUSY where it finds no room. */
CDP__PRIVATE bool cdp__rpc_waits_for_room(const cdp_rpc *rpc) {
    return !rpc->desc.fail_when_full && !cdp__rpc_here_of()->no_wait && !*cdp__inside()
        && cdp__level_waits(cdp__rpc_inside(), rpc->desc.max_depth);
}

/* Waits until a call may be sent. PENDING: its time is over, and it was not sent. */
CDP__PRIVATE cdp_status cdp__rpc_start_room(cdp_rpc *rpc, cdp__rpc_starting *s) {
    cdp_status st;
    cdp__rpc_start_measure(rpc, s);
    if (cdp__rpc_has_room(rpc, s)) return CDP_OK;
    if (!cdp__rpc_waits_for_room(rpc))
        return cdp__rpc_set_room_error(rpc, s, CDP_ERR_BUSY, "wait for one of them");
    st = cdp__rpc_wait(rpc, cdp__rpc_has_room, s, s->deadline_ns, s->deadline_ns);
    if (st != CDP_OK) return st;
    return cdp__rpc_start_check(rpc, s); /* the state may have changed meanwhile */
}

/* Starts a call to another rank: sends it, or queues it until its references are confirmed. */
CDP__PRIVATE cdp_status cdp__rpc_start_far(cdp_rpc *rpc, cdp__rpc_starting *s, cdp__rpc_call *c) {
    const cdp_args *args = &s->desc->args;
    const bool waits = s->on && rpc->refs.at[s->on].state == CDP__REF_PENDING;
    const bool turn = cdp__rpc_turn(rpc, c);
    cdp__rpc_packet p;
    cdp_status st;
    memset(&p, 0, sizeof p);
    p.kind = CDP__RPC_CALL;
    p.flags = s->flags;
    p.aux = s->desc->function;
    p.a = cdp__rpc_call_id(c);
    p.b = cdp__rpc_call_b(rpc, c);
    if (s->on) {
        p.rid = rpc->refs.at[s->on].rid;
        p.fid = rpc->refs.at[s->on].key;
    }
    if (s->makes) {
        p.makes_rid = rpc->refs.at[s->makes].rid;
        p.makes_fid = c->remote_fid = rpc->refs.at[s->makes].key;
    }
    if (c->ctx) {
        p.flags |= CDP__RPC_CTX;
        p.slot = c->ctx->id;
        (void)cdp__ctx_record_sent(rpc, c->ctx, args, s->to); /* room was reserved before */
    }
    if (rpc->lost[s->to]) {
        cdp__rpc_call_failed(rpc, c, CDP_ERR_PEER_LOST, CDP_RAN_NO, rpc->peers[s->to].why.text);
        return CDP_OK;
    }
    if (s->on && rpc->refs.at[s->on].state == CDP__REF_BROKEN) {
        const cdp_status broken = rpc->extra[s->on].broken;
        if (s->makes) /* the value is never created */
            (void)cdp__ref_got_ack(&rpc->refs, s->to, c->remote_fid,
                broken == CDP_ERR_BUSY ? CDP__REF_FULL : CDP__REF_GONE);
        cdp__rpc_call_failed(
            rpc, c, broken, CDP_RAN_NO, "the reference is broken: its owner never confirmed it");
        return CDP_OK;
    }
    rpc->lends = s->lender ? &s->lender->task : NULL;
    st = args->rref_count || waits || !turn
        ? cdp__rpc_post_rrefs(rpc, s->to, &p, args, s->on, !turn)
        : cdp__rpc_post(rpc, s->to, &p, args);
    if (!rpc->lends) s->lender = NULL;
    rpc->lends = NULL;
    if (st == CDP_OK && s->on && !c->wire_over) {
        c->on = s->on;
        cdp__ref_on_wire(&rpc->refs, s->on);
    }
    return st;
}

/* Starts a call to this rank itself: the same without a link. */
CDP__PRIVATE cdp_status cdp__rpc_start_here(cdp_rpc *rpc, cdp__rpc_starting *s, cdp__rpc_call *c) {
    const cdp_args *args = &s->desc->args;
    const uint64_t bytes = cdp__rpc_args_bytes(args);
    cdp__rpc_rq *rq = cdp__rpc_rq_open(rpc);
    uint8_t *area;
    uint32_t i;
    if (!rq) return cdp__fail_nomem("a request", sizeof *rq);
    area = cdp__rpc_rq_room(rpc, rq, bytes);
    if (!area || !cdp__rpc_rq_args(rpc, rq, args->tensors, args->tensor_count, area, bytes)) {
        cdp__rpc_rq_close(rpc, rq);
        return cdp__fail_nomem("arguments", bytes);
    }
    cdp__rpc_gather(area, args);
    cdp__rpc_copied(rpc, bytes);
    if (s->desc->ctx) rq->ctx_number = s->desc->ctx->id;
    rq->pub.from = rpc->rank;
    rq->pub.function = s->desc->function;
    rq->pub.one_way = s->desc->one_way;
    rq->pub.remote = s->makes != 0;
    rq->pub.deadline_ns = s->deadline_ns;
    rq->pub.rref_count = args->rref_count;
    rq->call = cdp__rpc_call_id(c);
    rq->level = c->level;
    rq->nested = c->nested;
    rq->record = c->record;
    rq->flags = s->flags;
    for (i = 0; i < args->rref_count; ++i) {
        rq->refs[i] = args->rrefs[i];
        ++rpc->refs.at[(uint32_t)args->rrefs[i].slot].handles;
    }
    rq->on = s->on;
    rq->makes = s->makes;
    if (s->on) ++rpc->refs.at[s->on].handles;
    if (s->makes) ++rpc->refs.at[s->makes].handles;
    c->left = true;
    cdp__rpc_begin(rpc, rq);
    return CDP_OK;
}

/* Creates the entry of the reference that a call makes. */
CDP__PRIVATE cdp_status cdp__rpc_start_makes(cdp_rpc *rpc, cdp__rpc_starting *s) {
    cdp__rpc_value *v;
    char *label;
    uint64_t rid;
    if (!cdp__rpc_reserve(rpc, 1 + s->desc->args.rref_count))
        return cdp__fail(CDP_ERR_BUSY,
            "%s: the table of references is full (max_rrefs of the desc is %u)", s->name,
            rpc->desc.max_rrefs);
    if (!(s->flags & CDP__RPC_REMOTE)) return CDP_OK;
    label = cdp__rpc_text_copy(rpc, s->desc->label);
    v = s->to == rpc->rank ? cdp__rpc_value_make(rpc) : NULL;
    if ((s->desc->label && !label) || (s->to == rpc->rank && !v)) {
        cdp__free(rpc->os, label);
        cdp__free(rpc->os, v);
        return cdp__fail_nomem("a reference", sizeof *v);
    }
    rid = cdp__rpc_number(rpc);
    if (s->to != rpc->rank) {
        s->makes = cdp__ref_remote(&rpc->refs, rid, cdp__rpc_number(rpc), s->to);
        if (rpc->lost[s->to]) rpc->extra[s->makes].broken = CDP_ERR_PEER_LOST;
    } else {
        s->makes = cdp__ref_create(&rpc->refs, rid);
        rpc->extra[s->makes].value = v;
    }
    rpc->extra[s->makes].label = label;
    return CDP_OK;
}

/* Undoes a start that has failed. */
CDP__PRIVATE void cdp__rpc_start_undo(
    cdp_rpc *rpc, cdp__rpc_starting *s, cdp__rpc_call *c, cdp_status status) {
    if (c) {
        c->call = NULL;
        c->done = NULL;
        cdp__rpc_record_end(rpc, c, status, CDP_RAN_NO);
        cdp__rpc_wire_over(rpc, c);
    }
    if (s->call) {
        s->call->priv[CDP__CALL_RPC] = 0;
        s->call->priv[CDP__CALL_ID] = 0;
        s->call->priv[CDP__CALL_STAGE] = 0;
    }
    if (!s->makes) return;
    if (s->to != rpc->rank && rpc->refs.at[s->makes].state == CDP__REF_PENDING)
        (void)cdp__ref_got_ack(&rpc->refs, s->to, rpc->refs.at[s->makes].key, CDP__REF_FULL);
    cdp__ref_drop(&rpc->refs, s->makes);
    s->makes = 0;
}

CDP__PRIVATE cdp_status cdp__rpc_start_checked(cdp_rpc *rpc, cdp__rpc_starting *s) {
    cdp__rpc_call *c;
    cdp_status st, room;
    if (!s->start_ns) cdp__rpc_start_time(rpc, s);
    room = cdp__rpc_start_room(rpc, s);
    if (room == CDP_PENDING && !s->call)
        return cdp__rpc_set_room_error(
            rpc, s, CDP_ERR_TIMEOUT, "so it was until its deadline; it never left this rank");
    if (room < 0) return room;
    st = cdp__rpc_start_makes(rpc, s);
    if (st != CDP_OK) return st;
    c = cdp__rpc_call_open(rpc);
    if (!c) {
        st = cdp__fail_nomem("a call", sizeof *c);
        cdp__rpc_start_undo(rpc, s, NULL, st);
        return st;
    }
    c->to = s->to;
    c->function = s->desc->function;
    cdp__rpc_remember_name(rpc, c->function);
    c->start_ns = s->start_ns;
    c->deadline_ns = s->deadline_ns;
    c->one_way = s->desc->one_way;
    c->cut = s->cut;
    c->nested = s->nested;
    c->level = s->level;
    c->no_room = room == CDP_PENDING;
    if (s->desc->in_order) {
        c->order = ++rpc->orders;
        c->order_on = s->on ? rpc->refs.at[s->on].rid : 0;
    }
    c->ctx = s->desc->ctx;
    if (c->ctx) ++c->ctx->uses;
    c->call = s->call;
    c->done = s->desc->done;
    c->done_user = s->desc->user;
    c->bytes = s->bytes;
    ++rpc->peers[s->to].flight[c->nested].calls;
    rpc->peers[s->to].flight[c->nested].bytes += s->bytes;
    cdp__rpc_record_call(rpc, c);
    if (s->call) {
        s->call->priv[CDP__CALL_RPC] = (uint64_t)(uintptr_t)rpc;
        s->call->priv[CDP__CALL_ID] = cdp__rpc_call_id(c);
        s->call->priv[CDP__CALL_STAGE] = CDP__CALL_UNDER_WAY;
        if (s->deadline_ns != CDP__NEVER) cdp__rpc_timer(rpc, s->deadline_ns);
    }
    if (room == CDP_PENDING) {
        cdp__rpc_abandon(rpc, c, CDP_ERR_TIMEOUT);
        return CDP_OK;
    }
    st = s->to == rpc->rank ? cdp__rpc_start_here(rpc, s, c) : cdp__rpc_start_far(rpc, s, c);
    if (st != CDP_OK) {
        const cdp_error e = *cdp_last_error();
        cdp__rpc_start_undo(rpc, s, c, st);
        return cdp__error_again(st, &e);
    }
    if (s->desc->one_way && c->used && c->call == s->call && s->call)
        cdp__rpc_end(rpc, c, CDP_OK, CDP_RAN_UNKNOWN, 0);
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__rpc_start_call(cdp_rpc *rpc, cdp__rpc_starting *s) {
    cdp_status st = cdp__rpc_start_check(rpc, s);
    cdp__rpc_lender *l = NULL;
    if (st == CDP_OK && s->desc->release) {
        l = (cdp__rpc_lender *)cdp__alloc_zero(rpc->os, sizeof *l);
        if (!l) return cdp__fail_nomem("a call", sizeof *l);
        l->task.run = cdp__rpc_lender_end;
        l->release = s->desc->release;
        l->user = s->desc->release_user;
    }
    s->lender = l;
    if (st == CDP_OK) st = cdp__rpc_start_checked(rpc, s);
    l = s->lender; /* NULL: a message uses the memory */
    if (l && st == CDP_OK) cdp__rpc_add_task(rpc, &l->task);
    if (l && st != CDP_OK) cdp__free(rpc->os, l);
    return st;
}

/* Checks that the call may be started. */
CDP__PRIVATE cdp_status cdp__rpc_call_ready(const char *name, cdp_call *call) {
    if (call->priv[CDP__CALL_STAGE] == CDP__CALL_UNDER_WAY)
        return cdp__fail(CDP_ERR_STATE, "%s: this cdp_call is under way; use another one", name);
    if (call->priv[CDP__CALL_STAGE] == CDP__CALL_ENDED
        && (call->bytes || call->rref_count || call->priv[CDP__CALL_MEMORY]
            || call->priv[CDP__CALL_TENSORS]))
        return cdp__fail(CDP_ERR_STATE,
            "%s: this cdp_call has a result; give it to cdp_call_free() before it is used again",
            name);
    if ((call->into.bytes && !call->into.data) || ((uintptr_t)call->into.data & 7))
        return cdp__fail(CDP_ERR_INVALID,
            "%s: into of the cdp_call is not memory that is aligned to 8 bytes; or the cdp_call "
            "was "
            "not set to {0} before its first use",
            name);
    memset(call, 0, offsetof(cdp_call, into));
    memset(call->priv, 0, sizeof call->priv);
    call->status = CDP_PENDING;
    return CDP_OK;
}

/* Not OK: a function that starts a call must not wait for it here. */
CDP__PRIVATE cdp_status cdp__rpc_may_wait_for_call(const cdp_rpc *rpc) {
    const cdp_status st = cdp__rpc_may_wait();
    if (st != CDP_OK || cdp__level_waits(cdp__rpc_inside(), rpc->desc.max_depth)) return st;
    return cdp__rpc_too_deep(rpc);
}

/* The call was not started, as the last error says. */
CDP__PRIVATE void cdp__rpc_start_failed(cdp_call *call, cdp_status status) {
    call->status = status;
    call->ran = CDP_RAN_NO;
    call->error = *cdp_last_error();
}

CDP__PRIVATE cdp_status cdp__rpc_start_any(cdp_rpc *rpc, cdp__rpc_starting *s) {
    cdp_status st = CDP_ERR_INVALID;
    if (!cdp__rpc_gone(rpc, s->name)) st = cdp__rpc_call_ready(s->name, s->call);
    if (st != CDP_OK) return st;
    if (s->desc->one_way) s->flags |= CDP__RPC_ONE_WAY;
    cdp__rpc_lock(rpc);
    st = s->waits ? cdp__rpc_may_wait_for_call(rpc) : CDP_OK;
    if (st == CDP_OK) st = cdp__rpc_start_call(rpc, s);
    if (st != CDP_OK) cdp__rpc_start_failed(s->call, st);
    cdp__rpc_leave(rpc);
    return st == CDP_OK && s->waits ? cdp_call_wait(s->call) : st;
}

CDP__PRIVATE cdp_status cdp__rpc_start_named(
    const char *name, cdp_rpc *rpc, const cdp_call_desc *desc, cdp_call *call, bool waits) {
    cdp__rpc_starting s;
    if (!rpc) return cdp__missing(name, "rpc");
    if (!desc) return cdp__missing(name, "desc");
    if (!call) return cdp__missing(name, "call");
    memset(&s, 0, sizeof s);
    s.name = name;
    s.desc = desc;
    s.call = call;
    s.waits = waits;
    return cdp__rpc_start_any(rpc, &s);
}

CDP_API cdp_status cdp_rpc_start(cdp_rpc *rpc, const cdp_call_desc *desc, cdp_call *call) {
    return cdp__rpc_start_named("cdp_rpc_start", rpc, desc, call, false);
}

CDP_API cdp_status cdp_rpc_call(cdp_rpc *rpc, const cdp_call_desc *desc, cdp_call *call) {
    return cdp__rpc_start_named("cdp_rpc_call", rpc, desc, call, true);
}

CDP_API cdp_status cdp_rpc_remote(cdp_rpc *rpc, const cdp_call_desc *desc, cdp_rref *out) {
    cdp__rpc_starting s;
    cdp_status st;
    if (!out) return cdp__missing("cdp_rpc_remote", "out");
    if (!rpc) return cdp__missing("cdp_rpc_remote", "rpc");
    if (!desc) return cdp__missing("cdp_rpc_remote", "desc");
    memset(out, 0, sizeof *out);
    if (cdp__rpc_gone(rpc, "cdp_rpc_remote")) return CDP_ERR_INVALID;
    if (desc->done || desc->one_way || desc->in_order)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_rpc_remote: done, one_way and in_order of the desc must not be set; use "
            "cdp_rref_confirmed()");
    memset(&s, 0, sizeof s);
    s.name = "cdp_rpc_remote";
    s.desc = desc;
    s.flags = CDP__RPC_REMOTE;
    cdp__rpc_lock(rpc);
    st = cdp__rpc_start_call(rpc, &s);
    if (st == CDP_OK) *out = cdp__rpc_rref(rpc, s.makes);
    cdp__rpc_leave(rpc);
    return st;
}

/* ---- >>rpc/call_waits: a call under way ------------------------------------------------------ */

/* Knows: a call of the program, and its record. Promises: a wait returns the status that the call
   has ended with; its memory is freed once. */

CDP__PRIVATE bool cdp__call_over(cdp_rpc *rpc, void *arg) {
    (void)rpc;
    return ((cdp_call *)arg)->priv[CDP__CALL_STAGE] == CDP__CALL_ENDED;
}

CDP__PRIVATE cdp_status cdp__call_result(const cdp_call *call) {
    return call->status == CDP_OK ? CDP_OK : cdp__error_again(call->status, &call->error);
}

/* True if the rpc of the call was destroyed, which has ended the call. */
CDP__PRIVATE bool cdp__call_outlived(const cdp_call *call) {
    cdp_rpc *rpc = call ? (cdp_rpc *)(uintptr_t)call->priv[CDP__CALL_RPC] : NULL;
    /* as long as the rpc exists, its lock protects the stage */
    return rpc && !cdp__rpc_exists(rpc) && call->priv[CDP__CALL_STAGE] == CDP__CALL_ENDED;
}

/* As long as the rpc exists, other threads may end the call. */
CDP__PRIVATE bool cdp__call_has_ended(const cdp_call *call) {
    cdp_rpc *rpc = (cdp_rpc *)(uintptr_t)call->priv[CDP__CALL_RPC];
    bool ended;
    if (!rpc || !cdp__rpc_exists(rpc) || cdp__is_child(rpc->forks))
        return call->priv[CDP__CALL_STAGE] == CDP__CALL_ENDED;
    cdp__rpc_lock(rpc);
    ended = call->priv[CDP__CALL_STAGE] == CDP__CALL_ENDED;
    cdp_lock_release(&rpc->lock);
    return ended;
}

/* The rpc of a call; NULL: the call was never started, or the rpc was destroyed. */
CDP__PRIVATE cdp_rpc *cdp__call_rpc(const char *name, const cdp_call *call) {
    cdp_rpc *rpc = call ? (cdp_rpc *)(uintptr_t)call->priv[CDP__CALL_RPC] : NULL;
    if (rpc && cdp__rpc_exists(rpc)) return cdp__rpc_forked(rpc, name) ? NULL : rpc;
    (void)cdp__fail(CDP_ERR_INVALID, "%s: %s", name,
        rpc ? "the rpc of this cdp_call was destroyed" : "this cdp_call was not started");
    return NULL;
}

/* The latest end of the call, on the clock of os->now_ns; 0: it has ended, but perhaps `done` has
   not run yet. */
CDP__PRIVATE uint64_t cdp__call_deadline(cdp_rpc *rpc, const cdp_call *call) {
    const cdp__rpc_call *c = call->priv[CDP__CALL_STAGE] == CDP__CALL_UNDER_WAY
        ? cdp__rpc_call_find(rpc, call->priv[CDP__CALL_ID])
        : NULL;
    return c && c->call == call ? c->deadline_ns : 0;
}

/* The function that wants to wait is too deep: its call ends now, so that nothing writes to memory
   that the function leaves. */
CDP__PRIVATE void cdp__call_not_waited(cdp_rpc *rpc, cdp_call *call) {
    cdp__rpc_call *c = call->priv[CDP__CALL_STAGE] == CDP__CALL_UNDER_WAY
        ? cdp__rpc_call_find(rpc, call->priv[CDP__CALL_ID])
        : NULL;
    if (c && c->call == call) cdp__rpc_abandon(rpc, c, CDP_ERR_BUSY);
}

CDP__PRIVATE cdp_status cdp__call_wait_until(
    const char *name, cdp_call *call, bool bounded, uint32_t timeout_ms) {
    cdp_rpc *rpc;
    cdp_status st = CDP_OK;
    if (cdp__call_outlived(call)) return cdp__call_result(call);
    rpc = cdp__call_rpc(name, call);
    if (!rpc) return CDP_ERR_INVALID;
    cdp__rpc_lock(rpc);
    if (!bounded && !cdp__level_waits(cdp__rpc_inside(), rpc->desc.max_depth))
        cdp__call_not_waited(rpc, call);
    st = cdp__rpc_wait(rpc, cdp__call_over, call,
        bounded ? cdp__rpc_until(rpc, timeout_ms) : CDP__NEVER, cdp__call_deadline(rpc, call));
    cdp__rpc_leave(rpc);
    return st == CDP_OK ? cdp__call_result(call) : st;
}

CDP_API cdp_status cdp_call_wait(cdp_call *call) {
    return cdp__call_wait_until("cdp_call_wait", call, false, 0);
}

CDP_API cdp_status cdp_call_wait_for(cdp_call *call, uint32_t timeout_ms) {
    return cdp__call_wait_until("cdp_call_wait_for", call, true, timeout_ms);
}

CDP_API cdp_status cdp_call_test(cdp_call *call) {
    cdp_rpc *rpc;
    bool over;
    if (cdp__call_outlived(call)) return cdp__call_result(call);
    rpc = cdp__call_rpc("cdp_call_test", call);
    if (!rpc) return CDP_ERR_INVALID;
    cdp__rpc_lock(rpc);
    over = cdp__call_over(rpc, call);
    cdp_lock_release(&rpc->lock);
    return over ? cdp__call_result(call) : CDP_PENDING;
}

/* Waits for each call of a list, or of an array. */
CDP__PRIVATE cdp_status cdp__call_wait_each(
    cdp_call *const *list, cdp_call *array, uint32_t count) {
    cdp_status first = CDP_OK, st;
    cdp_error e;
    uint32_t i;
    for (i = 0; i < count; ++i) {
        st = cdp_call_wait(list ? list[i] : &array[i]);
        if (st == CDP_OK || first != CDP_OK) continue;
        first = st;
        e = *cdp_last_error();
    }
    return first == CDP_OK ? CDP_OK : cdp__error_again(first, &e);
}

CDP_API cdp_status cdp_call_wait_all(cdp_call *const *calls, uint32_t count) {
    if (count && !calls) return cdp__missing("cdp_call_wait_all", "calls");
    return cdp__call_wait_each(calls, NULL, count);
}

typedef struct cdp__calls {
    cdp_call *const *at;
    uint32_t count, which;
} cdp__calls;

CDP__PRIVATE bool cdp__call_any_over(cdp_rpc *rpc, void *arg) {
    cdp__calls *c = (cdp__calls *)arg;
    for (c->which = 0; c->which < c->count; ++c->which)
        if (cdp__call_over(rpc, c->at[c->which])) return true;
    return false;
}

CDP_API cdp_status cdp_call_wait_any(
    cdp_call *const *calls, uint32_t count, uint32_t timeout_ms, uint32_t *which) {
    cdp__calls c;
    cdp_rpc *rpc;
    cdp_status st;
    uint64_t bound_ns = CDP__NEVER;
    uint32_t i;
    if (!calls) return cdp__missing("cdp_call_wait_any", "calls");
    if (!count) return cdp__missing("cdp_call_wait_any", "count");
    if (!which) return cdp__missing("cdp_call_wait_any", "which");
    for (i = 0; i < count; ++i) {
        if (cdp__call_outlived(calls[i])) {
            *which = i;
            return cdp__call_result(calls[i]);
        }
        rpc = cdp__call_rpc("cdp_call_wait_any", calls[i]);
        if (!rpc) return CDP_ERR_INVALID;
        if (rpc != cdp__call_rpc("cdp_call_wait_any", calls[0]))
            return cdp__fail(CDP_ERR_INVALID,
                "cdp_call_wait_any: calls[0] and calls[%u] belong to different rpcs", i);
    }
    c.at = calls;
    c.count = count;
    rpc = cdp__call_rpc("cdp_call_wait_any", calls[0]);
    cdp__rpc_lock(rpc);
    for (i = 0; i < count; ++i)
        bound_ns = cdp__min(bound_ns, cdp__call_deadline(rpc, calls[i]));
    st = cdp__rpc_wait(rpc, cdp__call_any_over, &c, cdp__rpc_until(rpc, timeout_ms), bound_ns);
    cdp__rpc_leave(rpc);
    if (st != CDP_OK) return st;
    *which = c.which;
    return cdp__call_result(calls[c.which]);
}

CDP_API cdp_status cdp_call_cancel(cdp_call *call) {
    static const char *const ended = "cdp_call_cancel: the call has ended before";
    cdp_rpc *rpc;
    cdp__rpc_call *c;
    cdp_status st = CDP_OK;
    if (cdp__call_outlived(call)) return cdp__fail(CDP_ERR_STATE, "%s", ended);
    rpc = cdp__call_rpc("cdp_call_cancel", call);
    if (!rpc) return CDP_ERR_INVALID;
    cdp__rpc_lock(rpc);
    c = call->priv[CDP__CALL_STAGE] == CDP__CALL_UNDER_WAY
        ? cdp__rpc_call_find(rpc, call->priv[CDP__CALL_ID])
        : NULL;
    if (c && c->call == call) {
        const uint64_t id = cdp__rpc_call_id(c);
        cdp__rpc_abandon(rpc, c, CDP_ERR_ABORTED);
        if (c->to == rpc->rank) cdp__rpc_got_cancel(rpc, rpc->rank, id);
    } else {
        st = cdp__fail(CDP_ERR_STATE, "%s", ended);
    }
    cdp__rpc_leave(rpc);
    return st;
}

CDP_API cdp_status cdp_call_work(cdp_call *call, cdp_work *out) {
    cdp_rpc *rpc = cdp__call_rpc("cdp_call_work", call);
    cdp__deferred *entry;
    cdp_status st = CDP_OK;
    if (!rpc || !out) return rpc ? cdp__missing("cdp_call_work", "out") : CDP_ERR_INVALID;
    memset(out, 0, sizeof *out);
    cdp__rpc_lock(rpc);
    if (call->priv[CDP__CALL_WORK])
        st = cdp__fail(CDP_ERR_STATE, "cdp_call_work: this call has a work already; use that one");
    if (st == CDP_OK) {
        cdp__enter(rpc->group);
        st = cdp__deferred_open(rpc->group, CDP__DEFERRED_CALL, out, &entry);
        cdp__leave(rpc->group);
    }
    if (st == CDP_OK) call->priv[CDP__CALL_WORK] = out->seq;
    if (st == CDP_OK && cdp__call_over(rpc, call)) cdp__rpc_end_work(rpc, call);
    cdp__rpc_leave(rpc);
    return st;
}

/* Frees the memory of a call whose rpc was destroyed, and its references with that. */
CDP__PRIVATE void cdp__call_free_outlived(cdp_call *call) {
    const cdp_os *os = (const cdp_os *)(uintptr_t)call->priv[CDP__CALL_OS];
    cdp__free(os, (void *)(uintptr_t)call->priv[CDP__CALL_MEMORY]);
    cdp__free(os, (void *)(uintptr_t)call->priv[CDP__CALL_TENSORS]);
    memset(call, 0, sizeof *call);
}

CDP_API void cdp_call_free(cdp_call *call) {
    cdp__rpc_here *here = cdp__rpc_here_of();
    const bool in_done = call && here->done == call;
    bool used;
    cdp_rpc *rpc;
    uint32_t i;
    if (!call || (!in_done && call->priv[CDP__CALL_STAGE] != CDP__CALL_ENDED)) return;
    rpc = (cdp_rpc *)(uintptr_t)call->priv[CDP__CALL_RPC];
    if (cdp__call_outlived(call)) {
        cdp__call_free_outlived(call);
        return;
    }
    used = call->rref_count || call->priv[CDP__CALL_MEMORY] || call->priv[CDP__CALL_TENSORS];
    if (used && cdp__rpc_forked(rpc, "cdp_call_free")) return;
    if (in_done) {
        here->done = NULL;
        cdp__rpc_lock(rpc);
        cdp__rpc_end_work(rpc, call);
        cdp_lock_release(&rpc->lock);
    }
    for (i = 0; i < call->rref_count; ++i)
        cdp_rref_drop(call->rrefs[i]);
    if (call->priv[CDP__CALL_MEMORY]) {
        cdp__rpc_lock(rpc);
        cdp__rpc_area_free(rpc, (void *)(uintptr_t)call->priv[CDP__CALL_MEMORY]);
        cdp_lock_release(&rpc->lock);
    }
    cdp__free(rpc->os, (void *)(uintptr_t)call->priv[CDP__CALL_TENSORS]);
    memset(call, 0, sizeof *call);
}

/* ---- >>rpc/many: one function on many ranks -------------------------------------------------- */

/* Knows: starts of calls, and waits for them. Promises: every call ends once, all by one deadline,
   also those that could not be started; a rank without room keeps no call of another rank; results
   are combined in the order of their calls, whichever came first. */

/* Calls that are started together. */
typedef struct cdp__rpc_many {
    cdp__rpc_task task; /* ends its use, in a callback */
    const cdp_os *os;
    cdp_rpc *rpc;
    cdp_call_desc desc;     /* of the call that is started now */
    cdp__rpc_starting like; /* what all have in common */
    const uint32_t *ranks;
    cdp_call *calls;
    uint32_t count;
    void (*release)(void *user); /* of the program */
    void *release_user;
    uint32_t uses;             /* the task, and each call that uses the memory of the arguments */
    uint32_t waiting, *waits;  /* those that have no room yet */
    uint32_t failures, *fails; /* those that were not started, and whose `done` was not called */
} cdp__rpc_many;

CDP__PRIVATE uint32_t cdp__rpc_many_rank(const cdp__rpc_many *m, uint32_t i) {
    return m->ranks ? m->ranks[i] : i;
}

/* Runs in a callback. */
CDP__PRIVATE void cdp__rpc_many_unuse(void *many) {
    cdp__rpc_many *m = (cdp__rpc_many *)many;
    if (cdp__atomic_sub_u32(&m->uses, 1, CDP__ACQ_REL)) return;
    if (m->release) m->release(m->release_user);
    cdp__free(m->os, m);
}

CDP__PRIVATE void cdp__rpc_many_end(cdp_rpc *rpc, cdp__rpc_task *task) {
    cdp__rpc_many *m = (cdp__rpc_many *)task;
    uint32_t i;
    for (i = 0; i < m->failures; ++i) {
        cdp__rpc_tell(rpc, &m->calls[m->fails[i]], m->desc.done, m->desc.user);
        cdp_lock_release(&rpc->lock);
    }
    cdp__rpc_many_unuse(m);
}

/* Ends a call that was not started, as the last error says. */
CDP__PRIVATE void cdp__rpc_many_failed(cdp__rpc_many *m, uint32_t i, const cdp_error *e) {
    cdp_rpc *rpc = m->rpc;
    cdp_call *call = &m->calls[i];
    const uint32_t to = cdp__rpc_many_rank(m, i);
    (void)cdp__fail_peer(e->status, cdp_world_rank_of(rpc->group, to), 0,
        "it was not started on rank %u (%s): %s", to, rpc->peers[to].name, e->text);
    call->status = e->status;
    call->ran = CDP_RAN_NO;
    call->error = *cdp_last_error();
    call->priv[CDP__CALL_RPC] = (uint64_t)(uintptr_t)rpc;
    call->priv[CDP__CALL_ID] = 0;
    call->priv[CDP__CALL_STAGE] = CDP__CALL_UNDER_WAY;
    if (m->desc.done)
        m->fails[m->failures++] = i;
    else
        cdp__rpc_publish(rpc, call);
}

CDP__PRIVATE void cdp__rpc_many_start(cdp__rpc_many *m, uint32_t i) {
    cdp__rpc_starting s = m->like;
    cdp_error e;
    m->desc.to = cdp__rpc_many_rank(m, i);
    s.call = &m->calls[i];
    if (m->release) (void)cdp__atomic_add_u32(&m->uses, 1, CDP__ACQ_REL);
    if (cdp__rpc_start_call(m->rpc, &s) == CDP_OK) return;
    e = *cdp_last_error();
    if (m->release) (void)cdp__atomic_sub_u32(&m->uses, 1, CDP__ACQ_REL);
    cdp__rpc_many_failed(m, i, &e);
}

/* True if the start of this call does not wait. */
CDP__PRIVATE bool cdp__rpc_many_fits(cdp__rpc_many *m, uint32_t i) {
    cdp__rpc_starting s = m->like;
    s.to = cdp__rpc_many_rank(m, i);
    return cdp__rpc_has_room(m->rpc, &s) || !cdp__rpc_waits_for_room(m->rpc);
}

CDP__PRIVATE bool cdp__rpc_many_room(cdp_rpc *rpc, void *arg) {
    cdp__rpc_many *m = (cdp__rpc_many *)arg;
    uint32_t k;
    (void)rpc;
    for (k = 0; k < m->waiting; ++k)
        if (cdp__rpc_many_fits(m, m->waits[k])) return true;
    return false;
}

/* Starts each call as soon as its rank has room. Lock held; released meanwhile. */
CDP__PRIVATE void cdp__rpc_many_run(cdp__rpc_many *m) {
    const uint64_t until = m->like.deadline_ns;
    uint32_t i, k;
    for (i = 0; i < m->count; ++i) {
        if (cdp__rpc_many_fits(m, i))
            cdp__rpc_many_start(m, i);
        else
            m->waits[m->waiting++] = i;
    }
    while (m->waiting) {
        const uint32_t waiting = m->waiting;
        cdp_status st;
        cdp_error e;
        cdp__rpc_leave(m->rpc); /* workers begin with what was started */
        cdp__rpc_lock(m->rpc);
        st = cdp__rpc_wait(m->rpc, cdp__rpc_many_room, m, until, until);
        e = *cdp_last_error();
        m->waiting = 0;
        for (k = 0; k < waiting; ++k) {
            i = m->waits[k];
            if (st < 0)
                cdp__rpc_many_failed(m, i, &e);
            else if (st == CDP_OK && !cdp__rpc_many_fits(m, i))
                m->waits[m->waiting++] = i;
            else
                cdp__rpc_many_start(m, i); /* after the deadline it ends there with TIMEOUT */
        }
    }
}

CDP__PRIVATE cdp__rpc_many *cdp__rpc_many_open(cdp_rpc *rpc, const cdp__rpc_starting *like,
    const uint32_t *ranks, uint32_t count, cdp_call *calls) {
    const uint64_t bytes = sizeof(cdp__rpc_many) + 2ull * count * sizeof(uint32_t);
    cdp__rpc_many *m = (cdp__rpc_many *)cdp__alloc_zero(rpc->os, bytes);
    if (!m) {
        (void)cdp__fail_nomem("calls", bytes);
        return NULL;
    }
    m->task.run = cdp__rpc_many_end;
    m->os = rpc->os;
    m->rpc = rpc;
    m->desc = *like->desc;
    m->release = m->desc.release;
    m->release_user = m->desc.release_user;
    if (m->release) m->desc.release = cdp__rpc_many_unuse;
    m->desc.release_user = m;
    m->like = *like;
    m->like.desc = &m->desc;
    m->ranks = ranks;
    m->calls = calls;
    m->count = count;
    m->uses = 1;
    m->waits = (uint32_t *)(void *)(m + 1);
    m->fails = m->waits + count;
    cdp__rpc_start_time(rpc, &m->like);
    cdp__rpc_start_measure(rpc, &m->like);
    return m;
}

/* What can be checked before any call is touched. */
CDP__PRIVATE cdp_status cdp__rpc_many_check(cdp_rpc *rpc, const char *name,
    const cdp_call_desc *desc, const uint32_t *ranks, uint32_t count) {
    uint32_t i;
    if (desc->on.rpc || desc->on.slot)
        return cdp__fail(CDP_ERR_INVALID,
            "%s: on of the desc is a value of one rank; start a call for each value", name);
    if (!ranks && count > rpc->ranks)
        return cdp__fail(CDP_ERR_INVALID,
            "%s: count is %u without a list of ranks; the group has ranks 0 to %u", name, count,
            rpc->ranks - 1);
    for (i = 0; ranks && i < count; ++i)
        if (ranks[i] >= rpc->ranks)
            return cdp__fail(CDP_ERR_INVALID, "%s: ranks[%u] is %u; the group has ranks 0 to %u",
                name, i, ranks[i], rpc->ranks - 1);
    return CDP_OK;
}

/* Starts them all, or none. Lock held; released meanwhile. */
CDP__PRIVATE cdp_status cdp__rpc_many_begin(
    cdp_rpc *rpc, cdp__rpc_starting *like, const uint32_t *ranks, uint32_t count, cdp_call *calls) {
    cdp_call_desc first = *like->desc;
    cdp__rpc_starting s = *like;
    cdp__rpc_many *m;
    cdp_status st = like->waits ? cdp__rpc_may_wait_for_call(rpc) : CDP_OK;
    if (st != CDP_OK) return st;
    first.to = ranks ? ranks[0] : 0;
    s.desc = &first;
    st = cdp__rpc_start_check(rpc, &s);
    if (st != CDP_OK) return st;
    m = cdp__rpc_many_open(rpc, like, ranks, count, calls);
    if (!m) return CDP_ERR_NOMEM;
    cdp__rpc_many_run(m);
    cdp__rpc_add_task(rpc, &m->task);
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__rpc_many_named(const char *name, cdp_rpc *rpc,
    const cdp_call_desc *desc, const uint32_t *ranks, uint32_t count, cdp_call *calls, bool waits) {
    cdp__rpc_starting like;
    cdp_status st;
    uint32_t i;
    if (!rpc) return cdp__missing(name, "rpc");
    if (!desc) return cdp__missing(name, "desc");
    if (count && !calls) return cdp__missing(name, "calls");
    if (cdp__rpc_gone(rpc, name)) return CDP_ERR_INVALID;
    st = cdp__rpc_many_check(rpc, name, desc, ranks, count);
    for (i = 0; st == CDP_OK && i < count; ++i)
        st = cdp__rpc_call_ready(name, &calls[i]);
    if (st != CDP_OK || !count) return st;
    memset(&like, 0, sizeof like);
    like.name = name;
    like.desc = desc;
    like.waits = waits;
    if (desc->one_way) like.flags |= CDP__RPC_ONE_WAY;
    cdp__rpc_lock(rpc);
    st = cdp__rpc_many_begin(rpc, &like, ranks, count, calls);
    for (i = 0; st != CDP_OK && i < count; ++i)
        cdp__rpc_start_failed(&calls[i], st);
    cdp__rpc_leave(rpc);
    return st == CDP_OK && waits ? cdp_call_wait_many(calls, count) : st;
}

CDP_API cdp_status cdp_rpc_start_many(cdp_rpc *rpc, const cdp_call_desc *desc,
    const uint32_t *ranks, uint32_t count, cdp_call *calls) {
    return cdp__rpc_many_named("cdp_rpc_start_many", rpc, desc, ranks, count, calls, false);
}

CDP_API cdp_status cdp_rpc_call_many(cdp_rpc *rpc, const cdp_call_desc *desc, const uint32_t *ranks,
    uint32_t count, cdp_call *calls) {
    return cdp__rpc_many_named("cdp_rpc_call_many", rpc, desc, ranks, count, calls, true);
}

CDP_API cdp_status cdp_call_wait_many(cdp_call *calls, uint32_t count) {
    if (count && !calls) return cdp__missing("cdp_call_wait_many", "calls");
    return cdp__call_wait_each(NULL, calls, count);
}

#ifndef CDP_NO_REPRODUCIBLE
/* Where the result of a call is. NULL: it is not of this dtype and length, see the last error. */
CDP__PRIVATE const void *cdp__call_elements(
    const cdp_call *call, uint32_t i, cdp_dtype dtype, uint64_t bytes) {
    const bool tensor = call->tensor_count == 1;
    const cdp_dtype of = tensor ? call->tensors->dtype : dtype;
    const uint64_t has = tensor ? cdp__rpc_tensor_bytes(call->tensors) : call->bytes;
    if (call->tensor_count <= 1 && has == bytes && (of ? of : CDP_DTYPE_F32) == dtype)
        return tensor ? call->tensors->data : call->data;
    (void)cdp__fail(CDP_ERR_MISMATCH,
        "cdp_call_reduce_many: the result of calls[%u] has %llu bytes of dtype %d%s, and not the "
        "%llu of dtype %d that are asked for",
        i, (unsigned long long)has, (int)of, call->tensor_count > 1 ? " after several tensors" : "",
        (unsigned long long)bytes, (int)dtype);
    return NULL;
}

/* Checks everything before anything is written. */
CDP__PRIVATE cdp_status cdp__call_reduce_check(
    const cdp_call *calls, uint32_t call_count, cdp_dtype dtype, cdp_reduce_op op, uint64_t count) {
    const uint64_t size = cdp_dtype_size(dtype);
    uint32_t i;
    if (!call_count || !size || (uint32_t)op >= CDP_REDUCE_COUNT || count > (UINT64_MAX >> 8))
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_call_reduce_many: %u calls, dtype %d, op %d, %llu elements; give one call or "
            "more, "
            "a dtype and an op",
            call_count, (int)dtype, (int)op, (unsigned long long)count);
    if (op == CDP_REDUCE_PREMUL_SUM || !cdp__reduce_exists(dtype, op))
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "cdp_call_reduce_many: op %d does not exist for results of dtype %d", (int)op,
            (int)dtype);
    for (i = 0; i < call_count; ++i) {
        if (!cdp__call_has_ended(&calls[i]))
            return cdp__fail(CDP_ERR_STATE,
                "cdp_call_reduce_many: calls[%u] has not ended, or has no result any more; "
                "cdp_call_wait_many() comes first",
                i);
        if (calls[i].status != CDP_OK) return cdp__error_again(calls[i].status, &calls[i].error);
    }
    for (i = 0; count && i < call_count; ++i)
        if (!cdp__call_elements(&calls[i], i, dtype, count * size)) return CDP_ERR_MISMATCH;
    return CDP_OK;
}

#define CDP__CALL_PIECE 4096u /* bytes of each result that are combined at once */
#endif

CDP_API cdp_status cdp_call_reduce_many(const cdp_call *calls, uint32_t call_count, cdp_dtype dtype,
    cdp_reduce_op op, void *out, uint64_t count) {
#ifndef CDP_NO_REPRODUCIBLE
    const uint64_t size = cdp_dtype_size(dtype), room = (uint64_t)call_count * CDP__CALL_PIECE;
    const cdp_os *os;
    uint8_t *pieces;
    uint64_t at, n;
    uint32_t i;
    cdp_status st;
    if (!calls) return cdp__missing("cdp_call_reduce_many", "calls");
    if (count && !out) return cdp__missing("cdp_call_reduce_many", "out");
    if (!op) op = CDP_REDUCE_SUM;
    if (!dtype) dtype = CDP_DTYPE_F32;
    st = cdp__call_reduce_check(calls, call_count, dtype, op, count);
    if (st != CDP_OK || !count) return st;
    os = (const cdp_os *)(uintptr_t)calls[0].priv[CDP__CALL_OS];
    pieces = (uint8_t *)cdp__alloc(os, room);
    if (!pieces) return cdp__fail_nomem("results of calls", room);
    for (at = 0; at < count; at += n) {
        n = cdp__min(count - at, CDP__CALL_PIECE / size);
        for (i = 0; i < call_count; ++i)
            memcpy(pieces + i * n * size,
                (const uint8_t *)cdp__call_elements(&calls[i], i, dtype, count * size) + at * size,
                (size_t)(n * size));
        cdp__slices_combine(dtype, op, cdp__reduced_as(dtype, op, (cdp_dtype)0), pieces, n,
            call_count, (uint8_t *)out + at * size, n);
    }
    cdp__free(os, pieces);
    return CDP_OK;
#else
    (void)calls;
    (void)call_count;
    (void)dtype;
    (void)op;
    (void)out;
    (void)count;
    return cdp__fail(CDP_ERR_UNSUPPORTED,
        "cdp_call_reduce_many: this program was built with CDP_NO_REPRODUCIBLE; build it without");
#endif
}

CDP_API void cdp_call_free_many(cdp_call *calls, uint32_t count) {
    uint32_t i;
    for (i = 0; calls && i < count; ++i)
        cdp_call_free(&calls[i]);
}

/* ---- >>rpc/references: public functions for references --------------------------------------- */

/* Knows: handles. Promises: the use of a dropped handle is noticed. */

CDP_API cdp_status cdp_rref_create(
    cdp_rpc *rpc, const cdp_value *value, const char *label, cdp_rref *out) {
    cdp__rpc_value *v;
    cdp_status st = CDP_OK;
    char *name;
    uint32_t slot;
    if (!out) return cdp__missing("cdp_rref_create", "out");
    if (!rpc) return cdp__missing("cdp_rref_create", "rpc");
    if (!value) return cdp__missing("cdp_rref_create", "value");
    memset(out, 0, sizeof *out);
    if (cdp__rpc_gone(rpc, "cdp_rref_create")) return CDP_ERR_INVALID;
    if (cdp__rpc_args_check("cdp_rref_create", &value->plain) != CDP_OK) return CDP_ERR_INVALID;
    v = cdp__rpc_value_make(rpc);
    name = cdp__rpc_text_copy(rpc, label);
    if (!v || (label && !name)) {
        cdp__free(rpc->os, v);
        cdp__free(rpc->os, name);
        return cdp__fail_nomem("a value", sizeof *v);
    }
    v->settled = true;
    cdp__rpc_lock(rpc);
    if (rpc->phase != CDP__RPC_OPEN)
        st = cdp__fail(CDP_ERR_STATE, "cdp_rref_create: the rpc was shut down");
    else if (!cdp__rpc_reserve(rpc, 1))
        st = cdp__fail(CDP_ERR_BUSY,
            "cdp_rref_create: the table of references is full (max_rrefs of the desc is %u)",
            rpc->desc.max_rrefs);
    if (st == CDP_OK) st = cdp__rpc_value_keep(rpc, "cdp_rref_create", v, value);
    if (st == CDP_OK) {
        slot = cdp__ref_create(&rpc->refs, cdp__rpc_number(rpc));
        rpc->extra[slot].value = v;
        rpc->extra[slot].label = name;
        *out = cdp__rpc_rref(rpc, slot);
    } else {
        cdp__free(rpc->os, v);
        cdp__free(rpc->os, name);
    }
    cdp__rpc_leave(rpc);
    return st;
}

/* OK: the rpc of this reference can be used; else the reason is this thread's last error. */
CDP__PRIVATE cdp_status cdp__rref_usable(const char *name, cdp_rref rref) {
    if (!rref.rpc) return cdp__missing(name, "rref.rpc");
    if (!cdp__rpc_exists(rref.rpc))
        return cdp__fail(
            CDP_ERR_STATE, "%s: the rpc of this reference was destroyed, and the reference", name);
    return cdp__rpc_forked(rref.rpc, name) ? CDP_ERR_INVALID : CDP_OK;
}

CDP_API void cdp_rref_keep(cdp_rref rref) {
    uint32_t slot;
    if (!rref.rpc || cdp__rref_usable("cdp_rref_keep", rref) != CDP_OK) return;
    cdp__rpc_lock(rref.rpc);
    slot = cdp__rpc_slot(rref.rpc, "cdp_rref_keep", rref);
    if (slot) ++rref.rpc->refs.at[slot].handles;
    cdp_lock_release(&rref.rpc->lock);
}

CDP_API void cdp_rref_drop(cdp_rref rref) {
    uint32_t slot;
    if (!rref.rpc || cdp__rref_usable("cdp_rref_drop", rref) != CDP_OK) return;
    cdp__rpc_lock(rref.rpc);
    slot = cdp__rpc_slot(rref.rpc, "cdp_rref_drop", rref);
    if (slot) cdp__ref_drop(&rref.rpc->refs, slot);
    cdp__rpc_leave(rref.rpc);
}

CDP__PRIVATE cdp_status cdp__rref_copy(
    const char *name, cdp_rref rref, uint32_t timeout_ms, cdp_call *call, bool waits) {
    cdp__rpc_starting s;
    cdp_call_desc d;
    cdp_status st = cdp__rref_usable(name, rref);
    if (st != CDP_OK) return st;
    if (!call) return cdp__missing(name, "call");
    memset(&d, 0, sizeof d);
    memset(&s, 0, sizeof s);
    d.on = rref;
    d.timeout_ms = timeout_ms;
    s.name = name;
    s.desc = &d;
    s.call = call;
    s.waits = waits;
    s.flags = CDP__RPC_FETCH;
    return cdp__rpc_start_any(rref.rpc, &s);
}

CDP_API cdp_status cdp_rref_fetch(cdp_rref rref, uint32_t timeout_ms, cdp_call *call) {
    return cdp__rref_copy("cdp_rref_fetch", rref, timeout_ms, call, false);
}

CDP_API cdp_status cdp_rref_to_here(cdp_rref rref, uint32_t timeout_ms, cdp_call *call) {
    return cdp__rref_copy("cdp_rref_to_here", rref, timeout_ms, call, true);
}

CDP__PRIVATE bool cdp__rpc_value_ready(cdp_rpc *rpc, void *arg) {
    const uint32_t slot = *(uint32_t *)arg;
    return rpc->extra[slot].value->settled;
}

CDP_API cdp_status cdp_rref_local(
    cdp_rref rref, uint32_t type, uint32_t timeout_ms, cdp_value *out) {
    cdp_rpc *rpc = rref.rpc;
    const cdp__rpc_value *v;
    cdp_status st = CDP_OK;
    uint64_t until;
    uint32_t slot;
    if (!out) return cdp__missing("cdp_rref_local", "out");
    st = cdp__rref_usable("cdp_rref_local", rref);
    if (st != CDP_OK) return st;
    cdp__rpc_lock(rpc);
    slot = cdp__rpc_slot(rpc, "cdp_rref_local", rref);
    if (!slot) st = cdp_last_error()->status;
    if (slot && rpc->refs.at[slot].kind != CDP__REF_OWNER) {
        st = cdp__fail(CDP_ERR_STATE,
            "cdp_rref_local: the value is on rank %u (%s), this is rank %u (%s); use "
            "cdp_rref_to_here(), or a call with .on",
            rpc->refs.at[slot].rank, rpc->peers[rpc->refs.at[slot].rank].name, rpc->rank,
            rpc->peers[rpc->rank].name);
        slot = 0;
    }
    if (slot) {
        ++rpc->refs.at[slot].handles;
        cdp__rpc_raise(rpc, slot, cdp__rpc_inside() + 1);
        until = cdp__rpc_until(rpc, cdp__def(timeout_ms, rpc->desc.timeout_ms));
        st = cdp__rpc_wait(rpc, cdp__rpc_value_ready, &slot, until, until);
        v = rpc->extra[slot].value;
        if (st == CDP_PENDING)
            st = cdp__fail(CDP_ERR_TIMEOUT, "cdp_rref_local: the value was not made in time");
        else if (st == CDP_OK && v->failed)
            st = cdp__fail(
                v->failed, "cdp_rref_local: %s", v->why ? v->why : "its value was not made");
        else if (st == CDP_OK && type && v->value.type != type)
            st = cdp__fail(CDP_ERR_INVALID,
                "cdp_rref_local: the value has type %u, not %u; ask for the type of its cdp_value",
                v->value.type, type);
        if (st == CDP_OK)
            *out = v->value;
        else
            cdp__ref_drop(&rpc->refs, slot);
    }
    cdp__rpc_leave(rpc);
    return st;
}

CDP_API void cdp_rref_unpin(cdp_rref rref) {
    cdp_rref_drop(rref);
}

CDP__PRIVATE bool cdp__rpc_not_pending(cdp_rpc *rpc, void *arg) {
    const cdp__ref *r = &rpc->refs.at[*(uint32_t *)arg];
    return r->kind != CDP__REF_USER || !r->handles || r->state != CDP__REF_PENDING;
}

CDP_API cdp_status cdp_rref_confirmed(cdp_rref rref, uint32_t timeout_ms) {
    cdp_rpc *rpc = rref.rpc;
    cdp_status st = CDP_OK;
    uint32_t slot;
    st = cdp__rref_usable("cdp_rref_confirmed", rref);
    if (st != CDP_OK) return st;
    cdp__rpc_lock(rpc);
    slot = cdp__rpc_slot(rpc, "cdp_rref_confirmed", rref);
    if (!slot) st = cdp_last_error()->status;
    if (slot) {
        ++rpc->refs.at[slot].handles;
        if (!cdp__rpc_not_pending(rpc, &slot))
            st = timeout_ms ? cdp__rpc_wait(
                     rpc, cdp__rpc_not_pending, &slot, cdp__rpc_until(rpc, timeout_ms), CDP__NEVER)
                            : CDP_PENDING;
        /* another thread may have shut the rpc down, which drops what is left */
        slot = cdp__rpc_slot(rpc, "cdp_rref_confirmed", rref);
        if (!slot) st = cdp_last_error()->status;
    }
    if (slot) {
        if (rpc->refs.at[slot].state == CDP__REF_BROKEN)
            st = cdp__fail_peer(rpc->extra[slot].broken,
                cdp_world_rank_of(rpc->group, rpc->refs.at[slot].rank), 0,
                "the reference to a value of rank %u (%s) is broken: that rank is lost, has no "
                "such value any more, or its table of references is full",
                rpc->refs.at[slot].rank, rpc->peers[rpc->refs.at[slot].rank].name);
        cdp__ref_drop(&rpc->refs, slot);
    }
    cdp__rpc_leave(rpc);
    return st;
}

CDP_API cdp_status cdp_rref_info_of(cdp_rref rref, cdp_rref_info *out) {
    cdp_rpc *rpc = rref.rpc;
    cdp_status st;
    uint32_t slot;
    if (!out) return cdp__missing("cdp_rref_info_of", "out");
    memset(out, 0, sizeof *out);
    st = cdp__rref_usable("cdp_rref_info_of", rref);
    if (st != CDP_OK) return st;
    cdp__rpc_lock(rpc);
    slot = cdp__rpc_slot(rpc, "cdp_rref_info_of", rref);
    if (slot) {
        const cdp__ref *r = &rpc->refs.at[slot];
        out->is_owner = r->kind == CDP__REF_OWNER;
        out->rid = r->rid;
        out->fid = out->is_owner ? 0 : r->key;
        out->owner = r->rank;
        out->handles = r->handles;
        out->holds = out->is_owner ? 0 : r->count;
        out->forks = out->is_owner ? r->count : 0;
        out->label = rpc->extra[slot].label;
        out->parent = r->parent == CDP__REF_NONE ? r->rank : r->parent;
        out->status = cdp__rpc_slot_status(rpc, slot);
        if (out->is_owner) out->type = rpc->extra[slot].value->value.type;
    }
    cdp_lock_release(&rpc->lock);
    return slot ? CDP_OK : CDP_ERR_STATE;
}

/* ---- >>rpc/replies: public functions for answering requests ---------------------------------- */

/* Knows: requests that run or were kept. Promises: one answer per request, even after the rpc is
   destroyed. */

/* Checks that the request may be answered now. After OK the lock is held. */
CDP__PRIVATE cdp_status cdp__rpc_reply_begin(const char *name, cdp_rpc_request *request) {
    cdp__rpc_rq *rq = (cdp__rpc_rq *)(void *)request;
    cdp_rpc *rpc;
    if (!request) return cdp__missing(name, "request");
    if (cdp__ended(request))
        return cdp__fail(
            CDP_ERR_STATE, "%s: the rpc of this request was destroyed, and the request", name);
    rpc = request->rpc;
    if (cdp__rpc_forked(rpc, name)) return CDP_ERR_INVALID;
    cdp__rpc_lock(rpc);
    if (rq->stage == CDP__RPC_RUNNING || rq->stage == CDP__RPC_KEPT) return CDP_OK;
    cdp_lock_release(&rpc->lock);
    return cdp__fail(
        CDP_ERR_STATE, "%s: the request was replied to before; each has one reply", name);
}

/* After cdp_rpc_destroy() the answer is dropped. True: this is such a case. */
CDP__PRIVATE bool cdp__rpc_reply_late(cdp_rpc *rpc, cdp__rpc_rq *rq) {
    bool last;
    if (rpc->phase != CDP__RPC_SHUT || !rpc->kept) return false;
    last = !--rpc->kept;
    cdp__free(rpc->os, rq->buffer);
    cdp__free(rpc->os, rq->tensors);
    cdp__ended_add(rq);
    cdp__free(rpc->os, rq);
    cdp_lock_release(&rpc->lock);
    if (last) cdp__rpc_free(rpc);
    return true;
}

/* The results cannot be sent: reports that to the caller of the function, and to the program. */
CDP__PRIVATE cdp_status cdp__rpc_reply_failed(cdp_rpc *rpc, cdp__rpc_rq *rq, cdp_status st) {
    const cdp_error e = *cdp_last_error();
    cdp__rpc_answer_fail(rpc, rq, st, CDP_RAN_YES, 0, e.text);
    cdp__rpc_leave(rpc);
    return cdp__error_again(st, &e);
}

CDP_API cdp_status cdp_rpc_reply(cdp_rpc_request *request, const cdp_args *results) {
    cdp__rpc_rq *rq = (cdp__rpc_rq *)(void *)request;
    cdp_status st = cdp__rpc_reply_begin("cdp_rpc_reply", request);
    cdp_rpc *rpc;
    if (st != CDP_OK) return st;
    rpc = request->rpc;
    if (cdp__rpc_reply_late(rpc, rq)) return CDP_OK;
    st = cdp__rpc_results_check(rpc, "cdp_rpc_reply", results);
    if (st == CDP_OK && rq->makes) {
        cdp__rpc_value *v = rpc->extra[rq->makes].value;
        st = cdp__rpc_value_copy(rpc, v, results);
        if (st == CDP_OK) cdp__rpc_value_settle(rpc, v);
    }
    if (st == CDP_OK) st = cdp__rpc_answer(rpc, rq, rq->makes ? NULL : results);
    if (st != CDP_OK) return cdp__rpc_reply_failed(rpc, rq, st);
    cdp__rpc_leave(rpc);
    return CDP_OK;
}

CDP_API cdp_status cdp_rpc_reply_value(cdp_rpc_request *request, const cdp_value *value) {
    cdp__rpc_rq *rq = (cdp__rpc_rq *)(void *)request;
    cdp_status st = value ? cdp__rpc_reply_begin("cdp_rpc_reply_value", request)
                          : cdp__missing("cdp_rpc_reply_value", "value");
    cdp__rpc_value *v;
    cdp_rpc *rpc;
    bool lent;
    if (st != CDP_OK) return st;
    rpc = request->rpc;
    if (rpc->phase == CDP__RPC_SHUT && rpc->kept) {
        if (value->destroy) value->destroy(value->user, value->data);
        (void)cdp__rpc_reply_late(rpc, rq);
        return CDP_OK;
    }
    st = rq->makes ? cdp__rpc_args_check("cdp_rpc_reply_value", &value->plain) : CDP_OK;
    if (st != CDP_OK) return cdp__rpc_reply_failed(rpc, rq, st);
    if (rq->makes) {
        v = rpc->extra[rq->makes].value;
        st = cdp__rpc_value_keep(rpc, "cdp_rpc_reply_value", v, value);
        if (st != CDP_OK) return cdp__rpc_reply_failed(rpc, rq, st);
        cdp__rpc_value_settle(rpc, v);
        st = cdp__rpc_answer(rpc, rq, NULL);
        cdp__rpc_leave(rpc);
        return st;
    }
    st = cdp__rpc_results_check(rpc, "cdp_rpc_reply_value", &value->plain);
    v = st == CDP_OK ? cdp__rpc_value_make(rpc) : NULL;
    /* without `destroy`, the program would not learn when its memory is free */
    lent = value->destroy != NULL;
    if (v && lent) rpc->lends = &v->task;
    if (st == CDP_OK) st = v ? cdp__rpc_answer(rpc, rq, &value->plain) : CDP_ERR_NOMEM;
    lent = lent && !rpc->lends;
    rpc->lends = NULL;
    if (st != CDP_OK) {
        cdp__free(rpc->os, v);
        return cdp__rpc_reply_failed(rpc, rq, st);
    }
    v->value = *value;
    if (!lent) cdp__rpc_add_task(rpc, &v->task); /* its bytes were copied: destroy it */
    cdp__rpc_leave(rpc);
    return CDP_OK;
}

CDP_API cdp_status cdp_rpc_fail(cdp_rpc_request *request, int32_t code, const char *text) {
    cdp__rpc_rq *rq = (cdp__rpc_rq *)(void *)request;
    const cdp_status st = cdp__rpc_reply_begin("cdp_rpc_fail", request);
    cdp_rpc *rpc;
    if (st != CDP_OK) return st;
    rpc = request->rpc;
    if (cdp__rpc_reply_late(rpc, rq)) return CDP_OK;
    cdp__rpc_answer_fail(
        rpc, rq, CDP_ERR_REMOTE, CDP_RAN_YES, code, text ? text : "the function gave no reason");
    cdp__rpc_leave(rpc);
    return CDP_OK;
}

CDP_API bool cdp_rpc_cancelled(const cdp_rpc_request *request) {
    const cdp__rpc_rq *rq = (const cdp__rpc_rq *)(const void *)request;
    cdp_rpc *rpc;
    bool over;
    if (!request) return false;
    if (cdp__ended(request)) return true;
    rpc = request->rpc;
    if (cdp__rpc_forked(rpc, "cdp_rpc_cancelled")) return true;
    cdp__rpc_lock(rpc);
    over = rq->cancelled || rq->pub.deadline_ns <= cdp__now(rpc->os);
    cdp_lock_release(&rpc->lock);
    return over;
}

/* ---- >>rpc/gradients: public functions for contexts ------------------------------------------ */

/* Knows: contexts. Promises: a pass ends by its deadline on the rank that has begun it, and then
   fails on all others. */

CDP_API cdp_status cdp_ctx_begin(cdp_rpc *rpc, cdp_ctx **out) {
    cdp_ctx *ctx = NULL;
    cdp_status st = CDP_OK;
    if (!out) return cdp__missing("cdp_ctx_begin", "out");
    *out = NULL;
    if (!rpc) return cdp__missing("cdp_ctx_begin", "rpc");
    if (cdp__rpc_gone(rpc, "cdp_ctx_begin")) return CDP_ERR_INVALID;
    cdp__rpc_lock(rpc);
    if (rpc->phase != CDP__RPC_OPEN) {
        st = cdp__fail(CDP_ERR_STATE, "cdp_ctx_begin: the rpc was shut down");
    } else if (rpc->context_count >= rpc->desc.max_contexts) {
        st = cdp__fail(CDP_ERR_BUSY,
            "cdp_ctx_begin: this rank takes part in %u contexts (max_contexts of the desc); end "
            "one with cdp_ctx_end()",
            rpc->context_count);
    } else {
        ctx = cdp__ctx_make(rpc, cdp__rpc_number(rpc));
        if (!ctx) st = cdp__fail_nomem("a context", sizeof *ctx);
    }
    *out = ctx;
    cdp__rpc_leave(rpc);
    return st;
}

CDP_API uint64_t cdp_ctx_id(const cdp_ctx *ctx) {
    return ctx && !cdp__ctx_is_orphan(ctx) && !cdp__ended(ctx) ? ctx->id : 0;
}

/* OK: the rpc of this context can be used; else the reason is this thread's last error. */
CDP__PRIVATE cdp_status cdp__ctx_usable(const char *call, const cdp_ctx *ctx) {
    if (!ctx) return cdp__missing(call, "ctx");
    if (cdp__ctx_lives(ctx, call) != CDP_OK) return CDP_ERR_STATE;
    return cdp__rpc_forked(ctx->rpc, call) ? CDP_ERR_INVALID : CDP_OK;
}

CDP__PRIVATE bool cdp__ctx_answered(cdp_rpc *rpc, void *arg) {
    (void)rpc;
    return !((cdp_ctx *)arg)->answers;
}

/* Lock held. */
CDP__PRIVATE void cdp__ctx_notify_end(cdp_rpc *rpc, cdp_ctx *ctx) {
    uint32_t r;
    ctx->ended = true;
    for (r = 0; r < rpc->ranks; ++r) {
        if (ctx->with[r] != CDP__CTX_WITH || r == rpc->rank || rpc->lost[r]) continue;
        ctx->with[r] = CDP__CTX_ENDING;
        ++ctx->answers;
        cdp__rpc_control(rpc, r, CDP__RPC_CTX_END, ctx->id, 0, 0);
    }
}

CDP_API cdp_status cdp_ctx_end(cdp_ctx *ctx, uint32_t timeout_ms) {
    cdp_rpc *rpc;
    cdp_status st;
    uint64_t until;
    uint32_t r;
    if (!ctx) return CDP_OK;
    st = cdp__ctx_usable("cdp_ctx_end", ctx);
    if (st != CDP_OK) return st;
    rpc = ctx->rpc;
    cdp__rpc_lock(rpc);
    if (cdp__rpc_maker(ctx->id) != rpc->rank || cdp__rpc_here_of()->no_wait || *cdp__inside()
        || ctx->mine || ctx->ended) {
        cdp_lock_release(&rpc->lock);
        return cdp__fail(CDP_ERR_STATE,
            "cdp_ctx_end: only the rank that has begun a context ends it, once, outside callbacks "
            "and after its passes");
    }
    ++ctx->uses;
    cdp__ctx_notify_end(rpc, ctx);
    until = cdp__rpc_until(rpc, cdp__def(timeout_ms, rpc->desc.timeout_ms));
    st = cdp__rpc_wait(rpc, cdp__ctx_answered, ctx, until, until);
    if (st == CDP_PENDING) {
        for (r = 0; r < rpc->ranks && ctx->with[r] != CDP__CTX_ENDING;)
            ++r;
        st = cdp__fail_peer(CDP_ERR_TIMEOUT, cdp_world_rank_of(rpc->group, r % rpc->ranks), 0,
            "cdp_ctx_end: rank %u has not answered in time", r);
    }
    cdp__ctx_drop(rpc, ctx);
    cdp__ctx_unuse(rpc, ctx);
    cdp__rpc_leave(rpc);
    return st;
}

/* ---- the graph */

/* Checks a context. After OK the lock is held. */
CDP__PRIVATE cdp_status cdp__ctx_open(const char *call, cdp_ctx *ctx) {
    cdp_status st = cdp__ctx_usable(call, ctx);
    if (st != CDP_OK) return st;
    cdp__rpc_lock(ctx->rpc);
    st = cdp__ctx_check(call, ctx, NULL);
    if (st != CDP_OK) cdp_lock_release(&ctx->rpc->lock);
    return st;
}

CDP_API cdp_status cdp_ctx_value(cdp_ctx *ctx, uint64_t *value) {
    cdp_status st =
        value ? cdp__ctx_open("cdp_ctx_value", ctx) : cdp__missing("cdp_ctx_value", "out");
    if (st != CDP_OK) return st;
    *value = cdp__ctx_leaf(ctx->rpc, ctx, 0);
    if (!*value) st = cdp__fail_nomem("a value", sizeof(cdp__ctx_value));
    cdp_lock_release(&ctx->rpc->lock);
    return st;
}

CDP_API cdp_status cdp_ctx_param(cdp_ctx *ctx, cdp_rref param, uint64_t *value) {
    cdp_status st =
        value ? cdp__ctx_open("cdp_ctx_param", ctx) : cdp__missing("cdp_ctx_param", "out");
    cdp_rpc *rpc;
    uint32_t slot;
    if (st != CDP_OK) return st;
    rpc = ctx->rpc;
    *value = 0;
    slot = cdp__rpc_slot(rpc, "cdp_ctx_param", param);
    if (!slot) {
        st = cdp_last_error()->status;
    } else if (rpc->refs.at[slot].kind != CDP__REF_OWNER) {
        st = cdp__fail(CDP_ERR_INVALID,
            "cdp_ctx_param: the parameter is on rank %u, this is rank %u; call a function there "
            "that returns it",
            rpc->refs.at[slot].rank, rpc->rank);
    } else {
        *value = cdp__ctx_known(rpc, ctx, rpc->refs.at[slot].rid, 0);
        if (!*value) st = cdp__fail_nomem("a value", sizeof(cdp__ctx_value));
    }
    cdp_lock_release(&rpc->lock);
    return st;
}

CDP__PRIVATE cdp_status cdp__ctx_op_check(const cdp_ctx *ctx, const cdp_ctx_op_desc *d) {
    uint32_t i, k;
    if (!d) return cdp__missing("cdp_ctx_op", "desc");
    if (!d->backward) return cdp__missing("cdp_ctx_op", "desc.backward");
    if (d->input_count && !d->inputs) return cdp__missing("cdp_ctx_op", "desc.inputs");
    if (!d->outputs) return cdp__missing("cdp_ctx_op", "desc.outputs");
    if (!d->output_count)
        return cdp__fail(
            CDP_ERR_INVALID, "cdp_ctx_op: output_count is 0; an operation has outputs");
    for (i = 0; i < d->input_count; ++i)
        if (d->inputs[i] && !cdp__ctx_entry(ctx, d->inputs[i]))
            return cdp__fail(CDP_ERR_INVALID,
                "cdp_ctx_op: inputs[%u] is not a value of this rank in this context", i);
    for (i = 0; i < d->output_count; ++i) {
        const uint32_t entry = cdp__ctx_entry(ctx, d->outputs[i]);
        const uint32_t node = entry ? ctx->w.values[entry].node : 0;
        bool twice = false;
        for (k = 0; k < i; ++k)
            twice = twice || d->outputs[k] == d->outputs[i];
        if (!node || twice || ctx->nodes[node].backward || ctx->w.nodes[node].edges
            || ctx->values[entry].other)
            return cdp__fail(CDP_ERR_INVALID,
                "cdp_ctx_op: outputs[%u] must be a value of cdp_ctx_value(), listed once and an "
                "output of no other step",
                i);
        for (k = 0; k < d->input_count; ++k)
            if (d->inputs[k] == d->outputs[i])
                return cdp__fail(CDP_ERR_INVALID, "cdp_ctx_op: inputs[%u] is outputs[%u]", k, i);
    }
    return CDP_OK;
}

CDP_API cdp_status cdp_ctx_op(cdp_ctx *ctx, const cdp_ctx_op_desc *desc) {
    cdp_status st = cdp__ctx_open("cdp_ctx_op", ctx);
    uint32_t i, node = 0;
    if (st == CDP_OK) {
        st = cdp__ctx_op_check(ctx, desc);
        if (st == CDP_OK) {
            node = cdp__ctx_node_add(
                ctx->rpc, ctx, desc->inputs, desc->input_count, desc->output_count);
            if (!node) st = cdp__fail_nomem("a step", sizeof(cdp__ctx_node));
        }
        for (i = 0; node && i < desc->output_count; ++i) {
            const uint32_t entry = cdp__ctx_entry(ctx, desc->outputs[i]);
            ctx->w.values[entry].node = node;
            ctx->w.values[entry].output = i;
            ctx->nodes[node].outputs[i] = entry;
        }
        if (node) {
            ctx->nodes[node].out_count = desc->output_count;
            ctx->nodes[node].backward = desc->backward;
            ctx->nodes[node].user = desc->user;
            ctx->nodes[node].saved = desc->saved;
            ctx->nodes[node].release = desc->release;
        }
        cdp_lock_release(&ctx->rpc->lock);
    }
    if (st != CDP_OK && desc && desc->release) {
        const cdp_error e = *cdp_last_error();
        desc->release(desc->saved);
        return cdp__error_again(st, &e);
    }
    return st;
}

CDP_API cdp_status cdp_ctx_save(cdp_rpc_request *request, void *saved, void (*release)(void *saved),
    const uint64_t *inputs, uint32_t input_count) {
    cdp__rpc_rq *rq = (cdp__rpc_rq *)(void *)request;
    cdp_status st;
    uint32_t i;
    if (!request) return cdp__missing("cdp_ctx_save", "request");
    if (input_count && !inputs) return cdp__missing("cdp_ctx_save", "inputs");
    if (!request->ctx || !rq->f->backward || rq->made_node || rq->stage == CDP__RPC_REPLIED)
        return cdp__fail(CDP_ERR_STATE,
            "cdp_ctx_save: the call belongs to no context, its function has no backward, or it "
            "has saved or replied before");
    st = cdp__ctx_open("cdp_ctx_save", request->ctx);
    if (st != CDP_OK) return st;
    for (i = 0; i < input_count && st == CDP_OK; ++i)
        if (inputs[i] && !cdp__ctx_entry(request->ctx, inputs[i]))
            st = cdp__fail(CDP_ERR_INVALID,
                "cdp_ctx_save: inputs[%u] is not a value of this rank in this context", i);
    if (st == CDP_OK && !cdp__ctx_call_node(request->rpc, rq, inputs, input_count))
        st = cdp__fail_nomem("the record of a call", sizeof(cdp__ctx_node));
    if (st == CDP_OK) {
        request->ctx->nodes[rq->made_node].saved = saved;
        request->ctx->nodes[rq->made_node].release = release;
    }
    cdp_lock_release(&request->rpc->lock);
    return st;
}

/* ---- passes */

/* True if a backward function can run in this thread, or the pass has ended. */
CDP__PRIVATE bool cdp__ctx_next(cdp_rpc *rpc, void *arg) {
    const cdp_ctx *ctx = (const cdp_ctx *)arg;
    (void)rpc;
    return ctx->fires || ctx->over || ctx->failed || ctx->ended;
}

/* Checks the roots and their gradients. *ones: memory for gradients that the caller has left
   out. */
CDP__PRIVATE cdp_status cdp__ctx_roots(const cdp_ctx *ctx, const cdp_backward_desc *d,
    cdp_tensor *roots, uint64_t *values, uint64_t *most) {
    uint32_t i;
    if (!d || !d->roots || !d->root_count || d->root_count > CDP__RPC_TENSORS)
        return cdp__fail(CDP_ERR_INVALID, "cdp_ctx_backward needs 1 to 16 roots");
    for (i = 0; i < d->root_count; ++i) {
        const cdp_tensor *t = &d->roots[i];
        if (!cdp__ctx_entry(ctx, t->value))
            return cdp__fail(CDP_ERR_INVALID,
                "cdp_ctx_backward: roots[%u].value is not a value of this rank in this context", i);
        if (!cdp__reduce_exists(t->dtype, CDP_REDUCE_SUM) || t->dims > 8
            || cdp__rpc_tensor_bytes(t) > ctx->rpc->desc.max_message_bytes)
            return cdp__fail(CDP_ERR_INVALID,
                "cdp_ctx_backward: set dtype and shape of roots[%u], with at most 8 dims and "
                "max_message_bytes",
                i);
        if (d->grads
            && (!d->grads[i].data || d->grads[i].dtype != t->dtype
                || cdp__rpc_tensor_bytes(&d->grads[i]) != cdp__rpc_tensor_bytes(t)))
            return cdp__fail(CDP_ERR_INVALID,
                "cdp_ctx_backward: grads[%u] has no memory, or is not like its root", i);
        roots[i] = *t;
        roots[i].data = d->grads ? d->grads[i].data : NULL;
        values[i] = t->value;
        if (!d->grads) *most += cdp__rpc_filled(cdp__rpc_tensor_bytes(t));
    }
    return CDP_OK;
}

/* Fills a gradient with ones. */
CDP__PRIVATE void cdp__ctx_ones(cdp_tensor *t, uint8_t *at) {
    const uint64_t size = cdp_dtype_size(t->dtype), n = cdp__rpc_tensor_bytes(t) / size;
    uint64_t i;
    t->data = at;
    for (i = 0; i < n; ++i)
        cdp__dtype_one(t->dtype, at + i * size);
}

/* Runs a pass until it ends. Lock held; released meanwhile. */
CDP__PRIVATE cdp_status cdp__ctx_drive(cdp_rpc *rpc, cdp_ctx *ctx, uint64_t until_ns) {
    cdp_status st = CDP_OK;
    cdp__rpc_tidy(rpc);
    while (st == CDP_OK && !ctx->over && !ctx->failed && !ctx->ended) {
        cdp__rpc_rq *rq = ctx->fires;
        if (rq) {
            ctx->fires = rq->next;
            if (!rq->next) ctx->fires_end = &ctx->fires;
            cdp__rpc_help(rpc, rq, until_ns);
        } else {
            st = cdp__rpc_wait(rpc, cdp__ctx_next, ctx, until_ns, until_ns);
        }
    }
    if (st == CDP_PENDING)
        cdp__ctx_fail_here(rpc, ctx, CDP_ERR_TIMEOUT,
            "cdp_ctx_backward: the pass that rank %u (%s) has begun was not over in time",
            rpc->rank, rpc->peers[rpc->rank].name);
    else if (st != CDP_OK)
        cdp__ctx_fail_here(rpc, ctx, st, "%s", cdp_last_error()->text);
    while (ctx->fires) {
        cdp__rpc_rq *rq = ctx->fires;
        ctx->fires = rq->next;
        rq->stage = CDP__RPC_REPLIED;
        cdp__rpc_rq_close(rpc, rq);
    }
    ctx->fires_end = &ctx->fires;
    if (ctx->failed) return cdp__error_again(ctx->why.status, &ctx->why);
    if (!ctx->over)
        return cdp__fail(CDP_ERR_ABORTED,
            "cdp_ctx_backward: the context has ended, or its origin "
            "is lost");
    return CDP_OK;
}

CDP_API cdp_status cdp_ctx_backward(cdp_ctx *ctx, const cdp_backward_desc *desc) {
    cdp_tensor roots[CDP__RPC_TENSORS];
    uint64_t values[CDP__RPC_TENSORS], most = 0;
    uint8_t *ones = NULL, *at;
    cdp_status st = cdp__ctx_open("cdp_ctx_backward", ctx);
    cdp_rpc *rpc;
    uint32_t i;
    if (st != CDP_OK) return st;
    rpc = ctx->rpc;
    st = cdp__ctx_roots(ctx, desc, roots, values, &most);
    if (st == CDP_OK && (cdp__rpc_here_of()->no_wait || *cdp__inside()))
        st = cdp__fail(CDP_ERR_STATE,
            "cdp_ctx_backward: an INLINE function and a callback must not wait for a pass; begin "
            "it outside of them");
    if (st == CDP_OK && (ctx->mine || ctx->w.open))
        st = cdp__fail(CDP_ERR_STATE,
            "cdp_ctx_backward: a pass of this context is under way; begin one after the other");
    if (st == CDP_OK && most) ones = (uint8_t *)cdp__alloc(rpc->os, most);
    if (st == CDP_OK && ((most && !ones) || !cdp__ctx_reserve(rpc, ctx, 0, desc->root_count, 0, 0)))
        st = cdp__fail_nomem("roots of a pass", most);
    if (st != CDP_OK) {
        cdp__free(rpc->os, ones);
        cdp_lock_release(&rpc->lock);
        return st;
    }
    for (i = 0, at = ones; i < desc->root_count; ++i) {
        if (roots[i].data) continue;
        cdp__ctx_ones(&roots[i], at);
        at += cdp__rpc_filled(cdp__rpc_tensor_bytes(&roots[i]));
    }
    ++ctx->uses;
    ctx->mine = true;
    ctx->over = false;
    ctx->roots = roots;
    (void)cdp__wave_begin(&ctx->w, cdp__rpc_number(rpc), values, desc->root_count);
    st = cdp__ctx_drive(
        rpc, ctx, cdp__rpc_until(rpc, cdp__def(desc->timeout_ms, rpc->desc.timeout_ms)));
    ctx->mine = false;
    ctx->roots = NULL;
    cdp__free(rpc->os, ones);
    cdp__ctx_unuse(rpc, ctx);
    cdp__rpc_leave(rpc);
    return st;
}

CDP_API cdp_status cdp_ctx_grad(cdp_ctx *ctx, uint64_t value, cdp_tensor *out) {
    cdp_status st = out ? cdp__ctx_open("cdp_ctx_grad", ctx) : cdp__missing("cdp_ctx_grad", "out");
    uint32_t entry, node;
    if (st != CDP_OK) return st;
    memset(out, 0, sizeof *out);
    entry = cdp__ctx_entry(ctx, value);
    node = entry ? ctx->w.values[entry].node : 0;
    if (!node || ctx->nodes[node].backward || ctx->w.nodes[node].edges)
        st = cdp__fail(CDP_ERR_INVALID,
            "cdp_ctx_grad: the value is not one that cdp_ctx_value() or cdp_ctx_param() of this "
            "rank has made, or a step has made it");
    else if (ctx->values[entry].grad)
        *out = ctx->values[entry].grad->t;
    cdp_lock_release(&ctx->rpc->lock);
    return st;
}

CDP_API const uint32_t *cdp_ctx_grad_rows(cdp_ctx *ctx, uint64_t value) {
    const uint32_t *rows = NULL;
    uint32_t entry;
    if (!ctx || cdp__ctx_usable("cdp_ctx_grad_rows", ctx) != CDP_OK) return NULL;
    cdp__rpc_lock(ctx->rpc);
    entry = cdp__ctx_entry(ctx, value);
    if (entry && ctx->values[entry].grad) rows = ctx->values[entry].grad->rows;
    cdp_lock_release(&ctx->rpc->lock);
    return rows;
}

/* ---- >>rpc/update_rules: the settings of a remote optimizer; updates one element in double (pure)  */

/* Knows: settings, an element, its gradient, its state. Promises: the same bits as the same formula
   in a loop of the program. Rules that cdp_optim_update() has for F32 are for F64 here. */

typedef struct cdp__optim_rule {
    cdp_optim_kind kind;
    bool nesterov, amsgrad, centered, maximize;
    double lr, momentum, dampening, beta1, beta2, alpha, rho, eps, decay, lr_decay, initial;
} cdp__optim_rule;

CDP__PRIVATE double cdp__optim_sgd(const cdp__optim_rule *o, double t, double g, double *s) {
    if (o->momentum == 0) return o->lr * g;
    s[0] = t == 1 ? g : o->momentum * s[0] + (1 - o->dampening) * g;
    return o->lr * (o->nesterov ? g + o->momentum * s[0] : s[0]);
}

CDP__PRIVATE double cdp__optim_adam(const cdp__optim_rule *o, double t, double g, double *s) {
    double v;
    s[0] = o->beta1 * s[0] + (1 - o->beta1) * g;
    s[1] = o->beta2 * s[1] + (1 - o->beta2) * g * g;
    v = s[1];
    if (o->amsgrad) {
        s[2] = v > s[2] ? v : s[2];
        v = s[2];
    }
    return o->lr / (1 - pow(o->beta1, t)) * s[0] / (sqrt(v) / sqrt(1 - pow(o->beta2, t)) + o->eps);
}

CDP__PRIVATE double cdp__optim_adamax(const cdp__optim_rule *o, double t, double g, double *s) {
    const double a = (g < 0 ? -g : g) + o->eps;
    s[0] = o->beta1 * s[0] + (1 - o->beta1) * g;
    s[1] = o->beta2 * s[1] > a ? o->beta2 * s[1] : a;
    return o->lr / (1 - pow(o->beta1, t)) * s[0] / s[1];
}

/* Its state begins with `initial`, for every row. */
CDP__PRIVATE double cdp__optim_adagrad(const cdp__optim_rule *o, double t, double g, double *s) {
    s[0] += g * g;
    return o->lr / (1 + (t - 1) * o->lr_decay) * g / (sqrt(s[0]) + o->eps);
}

CDP__PRIVATE double cdp__optim_adadelta(const cdp__optim_rule *o, double g, double *s) {
    double d;
    s[0] = o->rho * s[0] + (1 - o->rho) * g * g;
    d = sqrt(s[1] + o->eps) / sqrt(s[0] + o->eps) * g;
    s[1] = o->rho * s[1] + (1 - o->rho) * d * d;
    return o->lr * d;
}

CDP__PRIVATE double cdp__optim_rmsprop(const cdp__optim_rule *o, double g, double *s) {
    double q;
    s[0] = o->alpha * s[0] + (1 - o->alpha) * g * g;
    if (o->centered) s[1] = o->alpha * s[1] + (1 - o->alpha) * g;
    q = sqrt(o->centered ? s[0] - s[1] * s[1] : s[0]) + o->eps;
    if (o->momentum == 0) return o->lr * g / q;
    s[2] = o->momentum * s[2] + g / q;
    return o->lr * s[2];
}

CDP__PRIVATE double cdp__optim_sign(double x) {
    if (x > 0) return 1;
    return x < 0 ? -1 : 0;
}

CDP__PRIVATE double cdp__optim_rprop(const cdp__optim_rule *o, double t, double g, double *s) {
    const double k = cdp__optim_sign(g * s[1]);
    if (t == 1) s[0] = o->lr;
    if (k > 0) s[0] *= 1.2;
    if (k < 0) s[0] *= .5;
    if (s[0] < 1e-6) s[0] = 1e-6;
    if (s[0] > 50) s[0] = 50;
    if (k < 0) g = 0;
    s[1] = g;
    return cdp__optim_sign(g) * s[0];
}

/* The new value of an element in step t (from 1). */
CDP__PRIVATE double cdp__optim_element(
    const cdp__optim_rule *o, double t, double w, double g, double s[3]) {
    if (o->maximize) g = -g;
    if (o->kind == CDP_OPTIM_ADAMW)
        w *= 1 - o->lr * o->decay;
    else if (o->decay != 0)
        g += o->decay * w;
    switch (o->kind) {
    case CDP_OPTIM_NONE:
    case CDP_OPTIM_OWN: break; /* a function of the program */
    case CDP_OPTIM_SGD: return w - cdp__optim_sgd(o, t, g, s);
    case CDP_OPTIM_ADAM:
    case CDP_OPTIM_ADAMW: return w - cdp__optim_adam(o, t, g, s);
    case CDP_OPTIM_ADAMAX: return w - cdp__optim_adamax(o, t, g, s);
    case CDP_OPTIM_ADAGRAD: return w - cdp__optim_adagrad(o, t, g, s);
    case CDP_OPTIM_ADADELTA: return w - cdp__optim_adadelta(o, g, s);
    case CDP_OPTIM_RMSPROP: return w - cdp__optim_rmsprop(o, g, s);
    case CDP_OPTIM_RPROP: return w - cdp__optim_rprop(o, t, g, s);
    }
    return w;
}

CDP__PRIVATE cdp__optim_rule cdp__optim_rule_of(const cdp_optim_desc *d) {
    const cdp__optim_default of = cdp__optim_default_of(d->kind);
    cdp__optim_rule o;
    memset(&o, 0, sizeof o);
    o.kind = d->kind;
    o.nesterov = d->nesterov;
    o.amsgrad = d->amsgrad;
    o.centered = d->centered;
    o.maximize = d->maximize;
    o.lr = cdp__optim_or(d->lr, of.lr);
    o.momentum = cdp__optim_or(d->momentum, 0);
    o.dampening = cdp__optim_or(d->dampening, 0);
    o.beta1 = cdp__optim_or(d->beta1, of.beta1);
    o.beta2 = cdp__optim_or(d->beta2, of.beta2);
    o.alpha = cdp__optim_or(d->alpha, of.alpha);
    o.rho = cdp__optim_or(d->rho, of.rho);
    o.eps = cdp__optim_or(d->eps, of.eps);
    o.decay = cdp__optim_or(d->weight_decay, of.weight_decay);
    o.lr_decay = cdp__optim_or(d->lr_decay, 0);
    o.initial = cdp__optim_or(d->initial, 0);
    return o;
}

#ifndef CDP_NO_TRAINING
/* A number of a rule as settings have it. */
CDP__PRIVATE double cdp__optim_given(double x) {
    return x == 0 ? CDP_OPTIM_ZERO : x;
}

/* The rule as cdp_optim_update() takes it. */
CDP__PRIVATE cdp_optim cdp__optim_settings(const cdp__optim_rule *o, uint64_t step) {
    cdp_optim s;
    memset(&s, 0, sizeof s);
    s.kind = o->kind;
    s.step = step;
    s.lr = cdp__optim_given(o->lr);
    s.momentum = cdp__optim_given(o->momentum);
    s.dampening = cdp__optim_given(o->dampening);
    s.beta1 = cdp__optim_given(o->beta1);
    s.beta2 = cdp__optim_given(o->beta2);
    s.alpha = cdp__optim_given(o->alpha);
    s.eps = cdp__optim_given(o->eps);
    s.weight_decay = cdp__optim_given(o->decay);
    s.lr_decay = cdp__optim_given(o->lr_decay);
    s.initial = cdp__optim_given(o->initial);
    s.nesterov = o->nesterov && o->kind == CDP_OPTIM_SGD;
    s.amsgrad = o->amsgrad;
    s.centered = o->centered;
    s.maximize = o->maximize;
    return s;
}
#endif /* CDP_NO_TRAINING */

#define CDP__OPTIM_NUMBERS 11u
#define CDP__OPTIM_BYTES (8u + 8u * CDP__OPTIM_NUMBERS)

CDP__PRIVATE void cdp__optim_put(uint8_t *at, const cdp__optim_rule *o) {
    const double x[CDP__OPTIM_NUMBERS] = {o->lr, o->momentum, o->dampening, o->beta1, o->beta2,
        o->alpha, o->rho, o->eps, o->decay, o->lr_decay, o->initial};
    uint64_t bits;
    uint32_t i;
    memset(at, 0, 8);
    at[0] = (uint8_t)o->kind;
    at[1] = o->nesterov;
    at[2] = o->amsgrad;
    at[3] = o->centered;
    at[4] = o->maximize;
    for (i = 0; i < CDP__OPTIM_NUMBERS; ++i) {
        memcpy(&bits, &x[i], 8);
        cdp__put_u64(at + 8 + 8 * i, bits);
    }
}

/* Decodes the rule of an optimizer. False: no peer of this version sends that. */
CDP__PRIVATE bool cdp__optim_get(const uint8_t *at, uint64_t bytes, cdp__optim_rule *o) {
    double x[CDP__OPTIM_NUMBERS];
    uint64_t bits;
    uint32_t i;
    memset(o, 0, sizeof *o);
    if (bytes != CDP__OPTIM_BYTES || at[0] < CDP_OPTIM_SGD || at[0] > CDP_OPTIM_RPROP) return false;
    for (i = 0; i < CDP__OPTIM_NUMBERS; ++i) {
        bits = cdp__get_u64(at + 8 + 8 * i);
        memcpy(&x[i], &bits, 8);
        if (!(x[i] >= -1e300 && x[i] <= 1e300)) return false;
    }
    o->kind = (cdp_optim_kind)at[0];
    o->nesterov = at[1] != 0;
    o->amsgrad = at[2] != 0;
    o->centered = at[3] != 0;
    o->maximize = at[4] != 0;
    o->lr = x[0];
    o->momentum = x[1];
    o->dampening = x[2];
    o->beta1 = x[3];
    o->beta2 = x[4];
    o->alpha = x[5];
    o->rho = x[6];
    o->eps = x[7];
    o->decay = x[8];
    o->lr_decay = x[9];
    o->initial = x[10];
    return true;
}

/* ---- >>rpc/optimizer: objects on owners, and the calls to them ------------------------------- */

/* Knows: parameters of this rank, cdp_optim_update(), references to objects of other ranks.
   Promises: a step writes a parameter once per gradient; an error names every owner that failed. */

typedef struct cdp__optim_param {
    cdp_rref rref;
    cdp_tensor t;
    void *state[3]; /* each as long as the parameter */
    uint64_t steps;
} cdp__optim_param;

typedef struct cdp__optim {
    cdp__optim_rule rule;
    const cdp_os *os;
    uint32_t count;
    cdp__optim_param params[CDP__RPC_RREFS];
} cdp__optim;

CDP__PRIVATE void cdp__optim_free(void *user, void *data) {
    cdp__optim *o = (cdp__optim *)data;
    uint32_t i, k;
    (void)user;
    for (i = 0; i < o->count; ++i) {
        for (k = 0; k < 3; ++k)
            cdp__free(o->os, o->params[i].state[k]);
        cdp_rref_drop(o->params[i].rref);
    }
    cdp__free(o->os, o);
}

CDP__PRIVATE double cdp__optim_load(const cdp_tensor *t, const void *data, uint64_t i) {
    return t->dtype == CDP_DTYPE_F64 ? ((const double *)data)[i] : (double)((const float *)data)[i];
}
CDP__PRIVATE void cdp__optim_store(const cdp_tensor *t, void *data, uint64_t i, double x) {
    if (t->dtype == CDP_DTYPE_F64)
        ((double *)data)[i] = x;
    else
        ((float *)data)[i] = (float)x;
}

/* Adds a parameter of this rank. Returns NULL or what is wrong with it. */
CDP__PRIVATE const char *cdp__optim_take(cdp__optim *o, cdp_rref rref) {
    cdp__optim_param *p = &o->params[o->count];
    uint64_t bytes, i;
    cdp_value v;
    uint32_t k;
    if (cdp_rref_local(rref, 0, 0, &v) != CDP_OK) return cdp_last_error()->text;
    p->rref = rref; /* its pin is removed with the object */
    ++o->count;
    if (!v.param)
        return "the value is no parameter: set param of cdp_value where it may be written to";
    if (v.plain.tensor_count != 1 || !v.plain.tensors || !v.plain.tensors->data)
        return "a parameter is a value whose plain is one tensor";
    p->t = *v.plain.tensors;
    if (p->t.dtype != CDP_DTYPE_F32 && p->t.dtype != CDP_DTYPE_F64)
        return "a parameter has another dtype than F32 and F64";
    bytes = cdp__rpc_tensor_bytes(&p->t);
    for (k = 0; k < 3; ++k) {
        p->state[k] = cdp__alloc_zero(o->os, bytes);
        if (!p->state[k]) return "out of memory for the state of a parameter";
    }
    if (o->rule.kind == CDP_OPTIM_ADAGRAD)
        for (i = 0; i < bytes / cdp_dtype_size(p->t.dtype); ++i)
            cdp__optim_store(&p->t, p->state[0], i, o->rule.initial);
    return NULL;
}

CDP__PRIVATE void cdp__optim_new(void *user, cdp_rpc_request *q) {
    cdp__optim *o = (cdp__optim *)cdp__alloc_zero(q->rpc->os, sizeof *o);
    const char *wrong = o ? NULL : "out of memory";
    cdp_value v;
    uint32_t i;
    (void)user;
    if (o) o->os = q->rpc->os;
    if (o && (!q->data || !cdp__optim_get((const uint8_t *)q->data, q->bytes, &o->rule)))
        wrong = "unknown settings";
    if (!q->remote) wrong = "it is made by cdp_dist_optim_create()";
    for (i = 0; !wrong && i < q->rref_count; ++i)
        wrong = cdp__optim_take(o, q->rrefs[i]);
    if (!wrong) {
        memset(&v, 0, sizeof v);
        v.data = o;
        v.destroy = cdp__optim_free;
        if (cdp_rpc_reply_value(q, &v) == CDP_OK) return;
    } else {
        (void)cdp_rpc_fail(q, 1, wrong);
    }
    if (o) cdp__optim_free(NULL, o);
}

/* The optimizer that a function is called on. NULL: it is called on another value, and was
   answered. */
CDP__PRIVATE cdp__optim *cdp__optim_of(cdp_rpc_request *q) {
    if (q->on && q->on->destroy == cdp__optim_free) return (cdp__optim *)q->on->data;
    (void)cdp_rpc_fail(q, 1, "it is called on a value that is no optimizer");
    return NULL;
}

/* Returns NULL, or why a gradient does not fit its parameter. */
CDP__PRIVATE const char *cdp__optim_misfit(
    const cdp__optim_rule *rule, const cdp_tensor *t, const cdp_tensor *g, const uint32_t *rows) {
    uint64_t i;
    if (g->dtype != t->dtype) return "a gradient has another dtype than its parameter";
    if (!rows)
        return cdp__rpc_tensor_bytes(g) == cdp__rpc_tensor_bytes(t)
            ? NULL
            : "a gradient is not as long as its parameter";
    if (rule->kind != CDP_OPTIM_SGD && rule->kind != CDP_OPTIM_ADAGRAD
        && rule->kind != CDP_OPTIM_ADAM)
        return "a gradient is of some rows, which only SGD, ADAGRAD and ADAM take";
    if (rule->decay != 0) return "a gradient is of some rows; weight_decay must be 0 then";
    if (g->dims != t->dims
        || memcmp(g->shape + 1, t->shape + 1, (g->dims - 1) * sizeof *g->shape) != 0)
        return "the rows of a gradient have another shape than those of its parameter";
    for (i = 0; i < g->shape[0]; ++i)
        if (rows[i] >= t->shape[0])
            return "a gradient is of a row that its parameter does not have";
    return NULL;
}

/* Updates a parameter element by element. `rows`: the rows of the gradient, each of `width`
   elements; NULL: all. */
CDP__PRIVATE void cdp__optim_elements(const cdp__optim_rule *rule, cdp__optim_param *p,
    const cdp_tensor *g, const uint32_t *rows, uint64_t n, uint64_t width) {
    const double t = (double)p->steps;
    uint64_t i;
    uint32_t k;
    for (i = 0; i < n; ++i) {
        const uint64_t at = rows ? rows[i / width] * width + i % width : i;
        double s[3];
        for (k = 0; k < 3; ++k)
            s[k] = cdp__optim_load(&p->t, p->state[k], at);
        cdp__optim_store(&p->t, p->t.data, at,
            cdp__optim_element(rule, t, cdp__optim_load(&p->t, p->t.data, at),
                cdp__optim_load(&p->t, g->data, i), s));
        for (k = 0; k < 3; ++k)
            cdp__optim_store(&p->t, p->state[k], at, s[k]);
    }
}

#ifndef CDP_NO_TRAINING
/* Updates a parameter of F32 by a rule that cdp_optim_update() has, row by row. */
CDP__PRIVATE cdp_status cdp__optim_rows(const cdp__optim_rule *rule, cdp__optim_param *p,
    const cdp_tensor *g, const uint32_t *rows, uint64_t n, uint64_t width) {
    const cdp_optim settings = cdp__optim_settings(rule, p->steps);
    cdp_status st = CDP_OK;
    cdp_optim_range r;
    uint64_t i, at;
    uint32_t k;
    memset(&r, 0, sizeof r);
    r.count = width;
    for (i = 0; st == CDP_OK && i < n; i += width) {
        at = rows ? rows[i / width] * width : i;
        r.param = (float *)p->t.data + at;
        r.grad = (const float *)g->data + i;
        for (k = 0; k < 3; ++k)
            r.state[k] = (float *)p->state[k] + at;
        st = cdp_optim_update(&settings, &r);
    }
    return st;
}

/* Whether cdp_optim_update() has this rule for parameters of this dtype. */
CDP__PRIVATE bool cdp__optim_by_rows(const cdp__optim_rule *rule, cdp_dtype dtype) {
    const cdp_optim settings = cdp__optim_settings(rule, 1);
    return dtype == CDP_DTYPE_F32
        && (rule->kind == CDP_OPTIM_SGD || cdp_optim_states(&settings) != 0);
}
#endif /* CDP_NO_TRAINING */

/* Updates a parameter. `rows`: the rows of the gradient; NULL: all. */
CDP__PRIVATE cdp_status cdp__optim_update(
    const cdp__optim_rule *rule, cdp__optim_param *p, const cdp_tensor *g, const uint32_t *rows) {
    const uint64_t n = cdp__rpc_tensor_bytes(g) / cdp_dtype_size(g->dtype);
    const uint64_t width = rows && n ? n / g->shape[0] : n;
    ++p->steps;
#ifndef CDP_NO_TRAINING
    if (cdp__optim_by_rows(rule, p->t.dtype)) return cdp__optim_rows(rule, p, g, rows, n, width);
#endif
    cdp__optim_elements(rule, p, g, rows, n, width);
    return CDP_OK;
}

CDP__PRIVATE void cdp__optim_step_here(void *user, cdp_rpc_request *q) {
    cdp__optim *o = cdp__optim_of(q);
    uint32_t i;
    (void)user;
    for (i = 0; o && i < o->count; ++i) {
        cdp__optim_param *p = &o->params[i];
        const uint32_t *rows;
        const char *wrong;
        uint64_t value;
        cdp_tensor g;
        if (cdp_ctx_param(q->ctx, p->rref, &value) != CDP_OK
            || cdp_ctx_grad(q->ctx, value, &g) != CDP_OK) {
            (void)cdp_rpc_fail(q, 1, cdp_last_error()->text);
            return;
        }
        if (!g.data) continue;
        rows = cdp_ctx_grad_rows(q->ctx, value);
        wrong = cdp__optim_misfit(&o->rule, &p->t, &g, rows);
        if (wrong) {
            (void)cdp_rpc_fail(q, 1, wrong);
            return;
        }
        if (cdp__optim_update(&o->rule, p, &g, rows) != CDP_OK) {
            (void)cdp_rpc_fail(q, 1, cdp_last_error()->text);
            return;
        }
    }
}

CDP__PRIVATE void cdp__optim_set_here(void *user, cdp_rpc_request *q) {
    cdp__optim *o = cdp__optim_of(q);
    uint64_t bits;
    double x;
    (void)user;
    if (!o || q->bytes != 16) return;
    bits = cdp__get_u64((const uint8_t *)q->data);
    memcpy(&x, &bits, 8);
    o->rule.lr = cdp__optim_or(x, o->rule.lr);
    bits = cdp__get_u64((const uint8_t *)q->data + 8);
    memcpy(&x, &bits, 8);
    o->rule.decay = cdp__optim_or(x, o->rule.decay);
}

CDP__PRIVATE void cdp__rpc_builtins(cdp_rpc *rpc) {
    static const struct {
        const char *name;
        void (*func)(void *user, cdp_rpc_request *q);
    } table[CDP__RPC_BUILTINS] = {{"cdp.optim.new", cdp__optim_new},
        {"cdp.optim.step", cdp__optim_step_here}, {"cdp.optim.set", cdp__optim_set_here}};
    uint32_t i;
    for (i = 0; i < CDP__RPC_BUILTINS; ++i) {
        rpc->builtins[i].name = table[i].name;
        rpc->builtins[i].func = table[i].func;
        rpc->builtins[i].max_running = 1;
    }
}

/* ---- for the program */

typedef struct cdp__optim_part {
    uint32_t owner;
    cdp_rref object;                 /* not with OWN */
    cdp_rref params[CDP__RPC_RREFS]; /* with OWN */
    uint32_t param_count;
    bool started;
    cdp_call call;
} cdp__optim_part;

struct cdp_dist_optim {
    cdp_rpc *rpc;
    const cdp_os *os; /* of the rpc, which may be destroyed before */
    uint32_t timeout_ms, count;
    uint32_t own;       /* with OWN: the function that makes a step */
    double settings[2]; /* with OWN: lr, weight_decay */
    cdp__optim_part *parts;
};

/* Refuses no optimizer, and one that was destroyed. */
CDP__PRIVATE cdp_status cdp__optim_alive(const cdp_dist_optim *o, const char *call) {
    if (!o) return cdp__missing(call, "optim");
    if (!cdp__ended(o)) return CDP_OK;
    return cdp__fail(CDP_ERR_STATE, "%s: this optimizer was destroyed", call);
}

/* Calls a function on all objects and waits for all. */
CDP__PRIVATE cdp_status cdp__optim_all(cdp_dist_optim *o, const char *call, uint32_t function,
    cdp_ctx *ctx, const void *data, uint64_t bytes) {
    cdp_status first = CDP_OK, st;
    char ranks[120] = "";
    uint32_t i, failed = 0, used = 0;
    cdp_error why;
    cdp_call_desc d;
    cdp_iov iov;
    if (cdp__rpc_may_wait() != CDP_OK) return CDP_ERR_STATE;
    memset(&why, 0, sizeof why);
    memset(&d, 0, sizeof d);
    iov.data = (void *)(uintptr_t)data;
    iov.bytes = bytes;
    d.function = function;
    d.timeout_ms = o->timeout_ms;
    d.ctx = ctx;
    d.args.iov = &iov;
    d.args.iov_count = bytes ? 1 : 0;
    for (i = 0; i < o->count; ++i) {
        cdp__optim_part *p = &o->parts[i];
        memset(&p->call, 0, sizeof p->call);
        d.on = p->object;
        d.to = p->owner;
        d.args.rrefs = p->params;
        d.args.rref_count = p->param_count;
        st = cdp_rpc_start(o->rpc, &d, &p->call);
        p->started = st == CDP_OK; /* from now on other threads write to the call */
        if (p->started) continue;
        p->call.status = st;
        p->call.error = *cdp_last_error();
    }
    for (i = 0; i < o->count; ++i) {
        cdp__optim_part *p = &o->parts[i];
        st = p->started ? cdp_call_wait(&p->call) : p->call.status;
        if (st != CDP_OK && !failed++) {
            first = st;
            why = p->call.error;
        }
        if (st != CDP_OK && used + 8 < sizeof ranks) {
            cdp__format(ranks + used, sizeof ranks - used, " %u", p->owner);
            used = (uint32_t)strlen(ranks);
        }
        cdp_call_free(&p->call);
    }
    if (!failed) return CDP_OK;
    return cdp__fail_peer(
        first, (uint32_t)why.peer, 0, "%s: failed on rank%s; first: %s", call, ranks, why.text);
}

/* Creates the next object: up to 16 parameters of the first owner that has some left. */
CDP__PRIVATE cdp_status cdp__optim_make(cdp_dist_optim *o, const cdp_optim_desc *d,
    const uint32_t *owners, bool *done, const uint8_t *settings) {
    cdp_rref rrefs[CDP__RPC_RREFS];
    cdp__optim_part *p = &o->parts[o->count];
    cdp_call_desc call;
    cdp_status st;
    cdp_iov iov;
    uint32_t i, n = 0;
    for (i = 0; i < d->param_count && n < CDP__RPC_RREFS; ++i) {
        if (done[i] || (n && owners[i] != p->owner)) continue;
        p->owner = owners[i];
        rrefs[n++] = d->params[i];
        done[i] = true;
    }
    if (o->own) {
        memcpy(p->params, rrefs, n * sizeof *rrefs);
        p->param_count = n;
        ++o->count;
        for (i = 0; i < n; ++i)
            cdp_rref_keep(rrefs[i]);
        return CDP_OK;
    }
    memset(&call, 0, sizeof call);
    iov.data = (void *)(uintptr_t)settings;
    iov.bytes = CDP__OPTIM_BYTES;
    call.to = p->owner;
    call.function = cdp_rpc_id("cdp.optim.new");
    call.timeout_ms = o->timeout_ms;
    call.label = "an optimizer";
    call.args.iov = &iov;
    call.args.iov_count = 1;
    call.args.rrefs = rrefs;
    call.args.rref_count = n;
    st = cdp_rpc_remote(o->rpc, &call, &p->object);
    if (st == CDP_OK) ++o->count;
    return st;
}

CDP__PRIVATE cdp_status cdp__optim_check(const cdp_optim_desc *d, cdp_dist_optim **out) {
    if (!out) return cdp__missing("cdp_dist_optim_create", "out");
    *out = NULL;
    if (!d) return cdp__missing("cdp_dist_optim_create", "desc");
    if (!d->rpc) return cdp__missing("cdp_dist_optim_create", "desc.rpc");
    if (cdp__rpc_gone(d->rpc, "cdp_dist_optim_create")) return CDP_ERR_INVALID;
    if (!d->params) return cdp__missing("cdp_dist_optim_create", "desc.params");
    if (!d->param_count)
        return cdp__fail(CDP_ERR_INVALID, "cdp_dist_optim_create: param_count is 0");
    if (d->kind < CDP_OPTIM_SGD || d->kind > CDP_OPTIM_OWN)
        return cdp__fail(CDP_ERR_INVALID, "cdp_dist_optim_create: set kind, not %d", (int)d->kind);
    if ((d->kind == CDP_OPTIM_OWN) != (d->own_function != 0))
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_dist_optim_create: set own_function to cdp_rpc_id(name) with CDP_OPTIM_OWN, and "
            "with no other kind");
    if (d->nesterov && (d->momentum <= 0 || d->dampening > 0))
        return cdp__fail(
            CDP_ERR_INVALID, "cdp_dist_optim_create: nesterov needs momentum, and no dampening");
    return d->kind == CDP_OPTIM_OWN ? CDP_OK : cdp__rpc_may_wait();
}

CDP_API cdp_status cdp_dist_optim_create(const cdp_optim_desc *desc, cdp_dist_optim **out) {
    cdp_status st = cdp__optim_check(desc, out);
    uint8_t settings[CDP__OPTIM_BYTES];
    static const uint8_t zeros[16] = {0};
    cdp__optim_rule rule;
    cdp_dist_optim *o;
    uint32_t *owners, i;
    bool *done;
    if (st != CDP_OK) return st;
    *out = NULL;
    o = (cdp_dist_optim *)cdp__alloc_zero(desc->rpc->os, sizeof *o);
    owners = (uint32_t *)cdp__alloc(desc->rpc->os, desc->param_count * sizeof *owners);
    done = (bool *)cdp__alloc_zero(desc->rpc->os, desc->param_count);
    if (o) {
        cdp__ended_remove(o);
        o->os = desc->rpc->os;
        o->parts =
            (cdp__optim_part *)cdp__alloc_zero(desc->rpc->os, desc->param_count * sizeof *o->parts);
    }
    if (!o || !owners || !done || !o->parts) {
        st = cdp__fail_nomem("an optimizer", desc->param_count * sizeof *o->parts);
    } else {
        o->rpc = desc->rpc;
        o->timeout_ms = desc->timeout_ms;
        o->own = desc->own_function;
        o->settings[0] = cdp__optim_or(desc->lr, 0);
        o->settings[1] = cdp__optim_or(desc->weight_decay, 0);
    }
    for (i = 0; st == CDP_OK && i < desc->param_count; ++i) {
        cdp_rref_info info;
        if (desc->params[i].rpc != desc->rpc)
            st = cdp__fail(CDP_ERR_INVALID,
                "cdp_dist_optim_create: params[%u] is no reference of this rpc", i);
        else
            st = cdp_rref_info_of(desc->params[i], &info);
        if (st == CDP_OK) owners[i] = info.owner;
    }
    if (st == CDP_OK && !o->own) {
        rule = cdp__optim_rule_of(desc);
        cdp__optim_put(settings, &rule);
    }
    for (i = 0; st == CDP_OK && i < desc->param_count; ++i)
        if (!done[i]) st = cdp__optim_make(o, desc, owners, done, settings);
    if (st == CDP_OK && !o->own)
        st = cdp__optim_all(
            o, "cdp_dist_optim_create", cdp_rpc_id("cdp.optim.set"), NULL, zeros, sizeof zeros);
    cdp__free(desc->rpc->os, owners);
    cdp__free(desc->rpc->os, done);
    if (st != CDP_OK) {
        const cdp_error e = *cdp_last_error();
        cdp_dist_optim_destroy(o);
        return cdp__error_again(st, &e);
    }
    *out = o;
    return CDP_OK;
}

CDP_API cdp_status cdp_dist_optim_step(cdp_dist_optim *optim, cdp_ctx *ctx) {
    const cdp_status st = cdp__optim_alive(optim, "cdp_dist_optim_step");
    if (st != CDP_OK) return st;
    if (!ctx) return cdp__missing("cdp_dist_optim_step", "ctx");
    if (optim->own)
        return cdp__optim_all(
            optim, "cdp_dist_optim_step", optim->own, ctx, optim->settings, sizeof optim->settings);
    return cdp__optim_all(optim, "cdp_dist_optim_step", cdp_rpc_id("cdp.optim.step"), ctx, NULL, 0);
}

CDP_API cdp_status cdp_dist_optim_set(cdp_dist_optim *optim, double lr, double weight_decay) {
    uint8_t data[16];
    uint64_t bits;
    const cdp_status st = cdp__optim_alive(optim, "cdp_dist_optim_set");
    if (st != CDP_OK) return st;
    if (optim->own) {
        optim->settings[0] = cdp__optim_or(lr, optim->settings[0]);
        optim->settings[1] = cdp__optim_or(weight_decay, optim->settings[1]);
        return CDP_OK;
    }
    memcpy(&bits, &lr, 8);
    cdp__put_u64(data, bits);
    memcpy(&bits, &weight_decay, 8);
    cdp__put_u64(data + 8, bits);
    return cdp__optim_all(
        optim, "cdp_dist_optim_set", cdp_rpc_id("cdp.optim.set"), NULL, data, sizeof data);
}

CDP_API void cdp_dist_optim_destroy(cdp_dist_optim *optim) {
    uint32_t i, k;
    if (!optim || cdp__ended(optim)) return;
    cdp__ended_add(optim);
    for (i = 0; i < optim->count; ++i) {
        cdp_rref_drop(optim->parts[i].object);
        for (k = 0; k < optim->parts[i].param_count; ++k)
            cdp_rref_drop(optim->parts[i].params[k]);
    }
    cdp__free(optim->os, optim->parts);
    cdp__free(optim->os, optim);
}

/* ---- >>rpc/create: creates an rpc ------------------------------------------------------------ */

/* Knows: the steps of creation. Promises: a failed creation leaves nothing behind. */

CDP_API cdp_status cdp_rpc_create(const cdp_rpc_desc *desc, cdp_rpc **out) {
    cdp_rpc *rpc;
    uint32_t *ranks, r;
    cdp_status st;
    if (!out) return cdp__missing("cdp_rpc_create", "out");
    *out = NULL;
    if (!desc) return cdp__missing("cdp_rpc_create", "desc");
    st = cdp__rpc_desc_check(desc);
    if (st != CDP_OK) return st;
    st = cdp_group_status(desc->group);
    if (st != CDP_OK) return st;
    rpc = (cdp_rpc *)cdp__alloc_zero(cdp_group_desc_of(desc->group)->os, sizeof *rpc);
    if (!rpc) return cdp__fail_nomem("an rpc", sizeof *rpc);
    rpc->desc = *desc;
    rpc->os = cdp_group_desc_of(desc->group)->os;
    rpc->rank = cdp_rank(desc->group);
    rpc->ranks = cdp_size(desc->group);
    cdp__rpc_defaults(rpc);
    cdp__rpc_builtins(rpc);
    st = cdp__rpc_memory(rpc);
    ranks = (uint32_t *)cdp__alloc(rpc->os, rpc->ranks * sizeof *ranks);
    if (!ranks && st == CDP_OK) st = cdp__fail_nomem("a list of ranks", rpc->ranks * 4u);
    for (r = 0; ranks && r < rpc->ranks; ++r)
        ranks[r] = r;
    if (st == CDP_OK) st = cdp_group_new(desc->group, ranks, rpc->ranks, &rpc->group);
    if (st == CDP_OK) st = cdp_group_new(desc->group, ranks, rpc->ranks, &rpc->sums);
    cdp__free(rpc->os, ranks);
    if (st == CDP_OK && !cdp__rpc_enlist(rpc))
        st = cdp__fail(CDP_ERR_BUSY,
            "cdp_rpc_create: this process has %u rpcs already; destroy one", CDP__RPCS_MAX);
    if (st == CDP_OK) st = cdp__rpc_exchange(rpc);
    if (st == CDP_OK) st = cdp__rpc_open(rpc);
    if (st != CDP_OK) {
        const cdp_error e = *cdp_last_error();
        if (rpc->lock.os) cdp__rpc_stop_workers(rpc);
        cdp__rpc_free_groups(rpc);
        cdp__rpc_delist(rpc);
        cdp__rpc_free_parts(rpc);
        cdp__rpc_free(rpc);
        return cdp__error_again(st, &e);
    }
    *out = rpc;
    return CDP_OK;
}

#endif /* CDP_RPC_IMPL_INCLUDED */
