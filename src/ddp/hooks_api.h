/* ddp/hooks_api.h - what happens to gradients on their way */
#ifndef CDP_SRC_DDP_HOOKS_API_H
#define CDP_SRC_DDP_HOOKS_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../os/os_api.h"
#include "../group/group_api.h"
#include "../group/collectives_api.h"
#include "ddp_api.h"

#ifndef CDP_NO_DDP

/* A communication hook replaces the allreduce of each bucket: it gets the gradients of this rank,
   not divided, and leaves the result in their place. A hook works in stages. Each stage may ask for
   one collective operation, which the library starts: stage 0 runs when the bucket is full, the
   next stage when that operation has ended. Each stage has a group of its own, of all ranks, and
   takes the buckets in their order, so that all ranks start the operations of a group in one order
   although they reach them at different times. Stages are called from ready(), unused() and
   backward_end, by one thread at a time. */
typedef struct cdp_bucket {
    uint32_t index, bucket_count; /* the last bucket has index bucket_count - 1 */
    void *data;                   /* `count` values: the gradients of `params`, in that order */
    uint64_t count;
    cdp_dtype dtype;
    const uint32_t
        *params; /* `param_count` indices, see cdp_ddp_param(); sparse ones have 0 values */
    uint32_t param_count;
    cdp_real divisor; /* the hook divides the sum by this */
    cdp_ddp *ddp;
    cdp_group *group; /* where this stage's operation runs; a stage may set another group */
} cdp_bucket;

typedef struct cdp_hook {
    void *self;
    /* Required. Returns CDP_PENDING: start *op, which is zero at the call, and call stage + 1 when
       it has ended; its memory must stay valid until then. CDP_OK: the bucket holds the result. An
       error: the pass fails with it, and with this thread's last error if the stage has set one. */
    cdp_status (*stage)(void *self, cdp_bucket *bucket, uint32_t stage, cdp_request *op);
    /* The next four are optional. save: write at most `room` bytes of state, return how many bytes
       the state has. load: restore a saved state. */
    uint64_t (*save)(void *self, void *bytes, uint64_t room);
    cdp_status (*load)(void *self, const void *bytes, uint64_t count);
    /* With error feedback: the norm of what the last step did not send. */
    double (*error_norm)(void *self);
    void (*destroy)(void *self);
    uint32_t
        operations;    /* most operations of one bucket, 1 to 8 (default: 1); equal on all ranks */
    bool keeps_layout; /* has state per bucket: buckets are not rebuilt while it is set */
    bool device;       /* works on parameters in device memory, and on no others */
} cdp_hook;

/* Use `hook` from the next backward pass on, in place of the one before, which is destroyed. NULL:
   none. The same call on all ranks, between steps. Local, unless the hook has more operations than
   any before: then it is collective, and makes groups of all ranks (see cdp_group_new); if one rank
   has no memory, it fails on all. *hook is copied, and destroyed with the ddp or when another one
   is set; also if this call fails. With join_effective, buckets start only when the number of ranks
   with data is known. Errors: INVALID (NULL ddp, no stage function, more than 8 operations), STATE
   (a backward pass is open), UNSUPPORTED (a hook for the other kind of memory), NOMEM, or those of
   cdp_group_new. */
CDP_MUST_CHECK CDP_API cdp_status cdp_ddp_set_hook(cdp_ddp *ddp, const cdp_hook *hook);
/* The ddp's copy of its hook, for save, load and error_norm; NULL: it has none. */
CDP_API const cdp_hook *cdp_ddp_hook(const cdp_ddp *ddp);

#ifndef CDP_NO_HOOKS
/* Built-in hooks, with the mathematics of PyTorch's hooks of these names, for any dtype. Hooks that
   compress compute in f32; where values travel as numbers, f16 and bf16 travel as such. Memory, in
   buckets of f32, for each bucket in flight: FP16 and BF16 a half, POWERSGD its factors, QUANTIZE
   ranks / 4, QUANTIZE_4 ranks / 8, SIGN ranks / 32, TOPK 1 and the values of all ranks; one more if
   the dtype is not f32, and for POWERSGD_BATCHED. With error feedback, one for each bucket is kept.

   Infinities and NaN of one rank reach all: as they are, as NaN in the whole matrix (POWERSGD), or
   as NaN in all values that share a scale (QUANTIZE, SIGN). Error memory leaves them out; the log
   says so, once per step, for hooks in host memory. */
typedef enum cdp_hook_kind {
    CDP_HOOK_ALLREDUCE = 0,    /* divide, then sum */
    CDP_HOOK_FP16,             /* travels as f16; around `inner`, which sees f16 */
    CDP_HOOK_BF16,             /* travels as bf16, likewise */
    CDP_HOOK_POWERSGD,         /* each matrix (see cdp_param.rows) as a product of two thin ones */
    CDP_HOOK_POWERSGD_BATCHED, /* each bucket as one square matrix */
    CDP_HOOK_QUANTIZE,         /* 8 bits per value, one scale per bucket */
    CDP_HOOK_QUANTIZE_CHANNEL, /* 8 bits per value, one scale per 512 values */
    CDP_HOOK_TOPK,             /* the largest values; the others are added to the next step's */
    CDP_HOOK_NOOP,             /* nothing is sent and nothing is divided */
    /* divide and sum over all ranks until step `start`; then in `subgroup`, or not at all */
    CDP_HOOK_POST_LOCAL_SGD,
    /* one bit per value: the mean over ranks of signs times the mean magnitude of the bucket (Error
       Feedback Fixes SignSGD, Karimireddy and others 2019); what is lost is added to the next
       step's */
    CDP_HOOK_SIGN,
    CDP_HOOK_QUANTIZE_4, /* 4 bits per value, one scale per 512 values; host memory */
    CDP_HOOK_COUNT
} cdp_hook_kind;

typedef struct cdp_hook_desc {
    cdp_hook_kind kind;
    /* FP16, BF16: runs on the smaller numbers; copied, and owned by the new hook once that is
       created (default: ALLREDUCE) */
    const cdp_hook *inner;
    uint32_t rank; /* POWERSGD: columns of the thin matrices (default: 1) */
    /* POWERSGD: steps without compression first (default: 1000; at least 1). POST_LOCAL_SGD: steps
       over all ranks first (default: 0). */
    uint64_t start;
    double min_rate; /* POWERSGD: matrices that shrink less are not compressed (default: 2) */
    bool no_error_feedback; /* POWERSGD, TOPK, SIGN */
    bool no_warm_start;     /* POWERSGD: begin from random columns in each step */
    double epsilon;         /* POWERSGD: added to norms (default: 0; columns of zeros stay zero) */
    uint64_t seed;          /* POWERSGD: of random columns; equal on all ranks */
    double ratio;           /* TOPK: one value in so many is sent (default: 100) */
    cdp_group *subgroup;    /* POST_LOCAL_SGD; must outlive the hook */
    const cdp_os *os;       /* (default: cdp_os_default()) */
} cdp_hook_desc;

/* Make a hook for cdp_ddp_set_hook, which then owns it; else call out->destroy(out->self). Local.
   A hook serves one ddp. Errors: INVALID (the text names the member of the desc), NOMEM; `inner` is
   not destroyed then. */
CDP_MUST_CHECK CDP_API cdp_status cdp_hook_create(const cdp_hook_desc *desc, cdp_hook *out);
#endif /* CDP_NO_HOOKS */

#ifndef CDP_NO_AVERAGER
/* Averages of parameters now and then, in place of gradients at every step (with CDP_HOOK_NOOP or
   POST_LOCAL_SGD, or under no_sync). */
typedef struct cdp_average_level {
    uint64_t period;  /* steps */
    cdp_group *group; /* of some ranks, this one among them (default: all ranks) */
} cdp_average_level;

/* Owned by the caller, who sets all members but `step`, which counts from 0; equal on all ranks. */
typedef struct cdp_averager {
    cdp_ddp *ddp;
    uint64_t period; /* average every so many steps after warmup (default: 1) */
    uint64_t warmup; /* steps before the first average */
    uint64_t step;   /* steps so far; save it with the model */
    /* In place of `period`, averages over growing groups: of the levels whose period divides
       step - warmup, the one with the longest period applies. */
    const cdp_average_level *levels;
    uint32_t level_count;
} cdp_averager;

/* Call it after each optimizer step, on all ranks. If an average is due, all parameters become
   their mean over the group, also those without a gradient; then ++step. Errors: INVALID (no ddp,
   or levels missing), what a device returns, or the failure of the group that averages. */
CDP_MUST_CHECK CDP_API cdp_status cdp_averager_step(cdp_averager *averager);
#endif /* CDP_NO_AVERAGER */
#endif /* CDP_NO_DDP */

#endif /* CDP_SRC_DDP_HOOKS_API_H */
