/* rpc/worker_api.h - a rank that calls and is called */
#ifndef CDP_SRC_RPC_WORKER_API_H
#define CDP_SRC_RPC_WORKER_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../base/error_api.h"
#include "../group/group_api.h"

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

#endif /* CDP_SRC_RPC_WORKER_API_H */
