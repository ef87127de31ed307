/* train/optimizers_api.h - updates of parameters */
#ifndef CDP_SRC_TRAIN_OPTIMIZERS_API_H
#define CDP_SRC_TRAIN_OPTIMIZERS_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "precision_api.h"

typedef enum cdp_optim_kind {
    CDP_OPTIM_NONE = 0,
    CDP_OPTIM_SGD,      /* lr .01, momentum 0, dampening 0 */
    CDP_OPTIM_ADAM,     /* lr .001, beta1 .9, beta2 .999, eps 1e-8 */
    CDP_OPTIM_ADAMW,    /* as ADAM, weight_decay .01 */
    CDP_OPTIM_ADAMAX,   /* lr .002, betas and eps as ADAM */
    CDP_OPTIM_ADAGRAD,  /* lr .01, eps 1e-10 */
    CDP_OPTIM_ADADELTA, /* lr 1, rho .9, eps 1e-6 */
    CDP_OPTIM_RMSPROP,  /* lr .01, alpha .99, eps 1e-8 */
    CDP_OPTIM_RPROP,    /* lr .01; factors .5 and 1.2, steps 1e-6 to 50 */
    CDP_OPTIM_OWN       /* a function of the program, in cdp_rpc.h */
} cdp_optim_kind;
#define CDP_OPTIM_ZERO (-1.0) /* where 0 would mean the default */

#ifndef CDP_NO_TRAINING
/* The settings of an optimizer. */
typedef struct cdp_optim {
    cdp_optim_kind kind; /* required: SGD, ADAM, ADAMW, ADAGRAD or RMSPROP */
    uint64_t step;       /* required: from 1; of the updates made, not of those left out */
    double lr, momentum, dampening, beta1, beta2, alpha, eps; /* (defaults: of the kind) */
    double weight_decay, lr_decay, initial;                   /* (default: 0) */
    bool nesterov; /* SGD; needs momentum and no dampening */
    bool amsgrad;  /* ADAM and ADAMW */
    bool centered; /* RMSPROP */
    bool maximize;
    bool fma; /* products and sums are rounded once, together, as PyTorch's kernels do on x86 */
} cdp_optim;

/* Any part of a parameter: a whole one, a bucket's range, a shard. */
typedef struct cdp_optim_range {
    float *param;    /* required */
    float *state[3]; /* as many as cdp_optim_states() says; zeros before the first step */
    const void *grad;
    cdp_dtype grad_dtype; /* any float (default: f32) */
    uint64_t count;       /* elements */
    double scale;  /* gradients are multiplied by it: 1 / cdp_scaler_scale(), and the factor of
                             a clip, if that is not 0 (default: 1) */
    void *compute; /* a copy of another dtype for the forward pass, written by the update; or
                                NULL */
    cdp_dtype compute_dtype; /* any float */
    const cdp_round *round;  /* of the copy, see cdp_convert(); or NULL */
} cdp_optim_range;

/* Arrays of f32, each as long as the parameter, that the optimizer keeps between steps: 0 to 3. */
CDP_API uint32_t cdp_optim_states(const cdp_optim *optim);
/* Updates parameters: f32, in PyTorch's order of operations, each rounded to f32, constants
   computed in double and rounded once. So results are those of a plain loop, on every machine and
   for every cut. With `fma`, SGD has PyTorch's bits; tests/interop/test_optimizers.sh compares
   all. Any thread, for parts that do not overlap. Errors: INVALID: a missing array, a kind that is
   not listed, step 0, or settings that exclude each other; UNSUPPORTED: a dtype that is no float,
   or that this build leaves out. */
CDP_MUST_CHECK CDP_API cdp_status cdp_optim_update(
    const cdp_optim *optim, const cdp_optim_range *range);
#endif /* CDP_NO_TRAINING */

#endif /* CDP_SRC_TRAIN_OPTIMIZERS_API_H */
