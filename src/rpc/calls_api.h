/* rpc/calls_api.h - calls of functions on other ranks */
#ifndef CDP_SRC_RPC_CALLS_API_H
#define CDP_SRC_RPC_CALLS_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../base/error_api.h"
#include "../group/collectives_api.h"
#include "worker_api.h"

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

#endif /* CDP_SRC_RPC_CALLS_API_H */
