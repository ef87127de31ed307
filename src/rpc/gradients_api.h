/* rpc/gradients_api.h - backward passes over several ranks */
#ifndef CDP_SRC_RPC_GRADIENTS_API_H
#define CDP_SRC_RPC_GRADIENTS_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "worker_api.h"
#include "handler_api.h"

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

#endif /* CDP_SRC_RPC_GRADIENTS_API_H */
