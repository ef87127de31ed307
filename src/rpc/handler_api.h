/* rpc/handler_api.h - inside a function that is called */
#ifndef CDP_SRC_RPC_HANDLER_API_H
#define CDP_SRC_RPC_HANDLER_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "worker_api.h"

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

#endif /* CDP_SRC_RPC_HANDLER_API_H */
