/* rpc/optimizer_api.h - updates where the parameters are */
#ifndef CDP_SRC_RPC_OPTIMIZER_API_H
#define CDP_SRC_RPC_OPTIMIZER_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../train/optimizers_api.h"
#include "worker_api.h"

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

#endif /* CDP_SRC_RPC_OPTIMIZER_API_H */
