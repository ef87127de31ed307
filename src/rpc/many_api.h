/* rpc/many_api.h - calls of one function on many ranks */
#ifndef CDP_SRC_RPC_MANY_API_H
#define CDP_SRC_RPC_MANY_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "worker_api.h"
#include "calls_api.h"

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

#endif /* CDP_SRC_RPC_MANY_API_H */
