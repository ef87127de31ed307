/* ddp/optimizer_api.h - an optimizer that meets the buckets of a ddp */
#ifndef CDP_SRC_DDP_OPTIMIZER_API_H
#define CDP_SRC_DDP_OPTIMIZER_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../train/optimizers_api.h"
#include "ddp_api.h"
#include "norm_api.h"

#if !defined(CDP_NO_DDP) && !defined(CDP_NO_TRAINING)

/* The elements of one parameter that a rank updates: a contiguous range, or none (count 0). */
typedef struct cdp_optimizer_part {
    uint64_t first, count;
    /* elements of this rank's parts before this one: where its state is, if an optimizer of the
       program's own keeps all of it in one array of cdp_optimizer_count() elements */
    uint64_t at;
} cdp_optimizer_part;

typedef struct cdp_optimizer_desc {
    cdp_ddp *ddp; /* required */
    /* Required without `update`. The program's own, and may change between passes (lr, for one; not
       to what needs more state, see cdp_optim_states()); it must outlive the optimizer. `step`
       counts updates made, from 0: each update adds 1 first. */
    cdp_optim *optim;
    /* An optimizer of the program's own, in place of `optim`: updates `part` of parameter `index`,
       which begins at `data`, with its mean gradient times `scale`. A status other than CDP_OK
       ends the pass with that failure. Called by one thread at a time, see cdp_hook. */
    cdp_status (*update)(void *user, uint32_t index, const cdp_optimizer_part *part, void *data,
        const void *grad, double scale);
    void *user;
    /* Every rank keeps all state and updates the whole model. Otherwise each updates an equal range
       of each bucket and keeps the state of that range alone (ZeRO, stage 1: Rajbhandari and others
       2020). */
    bool whole;
    /* Parameters are updated by cdp_optimizer_step() after the pass, not bucket by bucket in it.
       Needed for a norm, a clip or a scaled loss, and with find_unused, static_graph or join. */
    bool deferred;
    /* Gradients of f32 are reduced as F16 or BF16, half the bytes, and are f32 again for the
       update; with .accumulate of the ddp they are added in f32 and rounded once. Others travel as
       they are. */
    cdp_dtype reduce_dtype;
} cdp_optimizer_desc;

typedef struct cdp_optimizer cdp_optimizer;

/* Make an optimizer of all parameters of a ddp but its sparse ones, which stay the program's. As
   soon as a bucket is full its mean is reduced; each rank updates its part, and ranks gather what
   the others have updated, while backward still runs: no more bytes than the allreduce without it.
   After cdp_ddp_backward_end() all ranks have the same, updated parameters. Passes under no_sync
   update nothing.

   Unless `whole` is set, gradients are zero after an update; between the pass and
   cdp_optimizer_step() only the rank's own parts hold the mean, so use cdp_optimizer_norm(), not
   cdp_ddp_clip(). Ranges follow from the buckets, which are not rebuilt any more (.rebuild); in
   each bucket a rank has at most one element more than another.

   Mixed precision: of f16 and bf16, `optim` keeps a f32 copy of each element that the rank updates,
   at first equal to the parameter; it updates this and rounds the result to the parameter. So the
   parameters of the ddp are the working copies, and they and their gradients travel in 16 bits;
   .accumulate adds them in f32. Buffers have the dtype that the program gives them. With f16 scale
   the loss, see cdp_scaler.

   Collective, between passes, with equal descs on all ranks; takes the place of the ddp's hook
   (unless both `whole` and `deferred` are set), so there must be none. Destroy it before the group.
   Errors: INVALID (the text names the member of the desc, or the setting of `optim`), STATE (a pass
   is open), UNSUPPORTED (a parameter of f64 with `optim`; a hook is set; device memory;
   find_unused, static_graph or join without deferred; another optimizer that cuts buckets;
   CDP_NO_GROUPS), NOMEM (of any rank, on all of them), the group's failure. */
CDP_MUST_CHECK CDP_API cdp_status cdp_optimizer_create(
    const cdp_optimizer_desc *desc, cdp_optimizer **out);
/* Local, between passes, before or after its ddp is destroyed; NULL is allowed. Gradients are
   then means on all ranks again. In an open pass it does nothing but set cdp_last_error(). */
CDP_API void cdp_optimizer_destroy(cdp_optimizer *optimizer);

/* What this rank updates: the part of one parameter (count 0 for NULL, a sparse parameter, one that
   does not exist, or after the group was destroyed), and all parts together. */
CDP_API cdp_optimizer_part cdp_optimizer_part_of(const cdp_optimizer *optimizer, uint32_t index);
CDP_API uint64_t cdp_optimizer_count(const cdp_optimizer *optimizer);

#ifndef CDP_NO_CLIP
/* The norm of the mean, of all parameters that the optimizer updates, and whether one of its
   elements is infinite or NaN; the same on all ranks. Collective unless `whole` is set; between
   cdp_ddp_backward_end() and cdp_optimizer_step(). Errors: INVALID (NULL; not deferred), STATE (a
   pass is open, the ddp has another hook now, or with `whole` another optimizer cuts its buckets),
   those of cdp_grads_norm(). */
CDP_MUST_CHECK CDP_API cdp_status cdp_optimizer_norm(cdp_optimizer *optimizer, cdp_norm *out);
#endif
/* With `deferred`: update all parameters with the mean times `scale` (1: as it is), for instance
       double scale = 1 / cdp_scaler_scale(&s), norm = n.norm * scale;
       if (norm > limit) scale *= limit / (norm + 1e-6);
   Parameters that no rank used are left alone. To leave out a step, do not call it on any rank, and
   set gradients to zero. Collective. With join, ranks without data call the same in join_hook
   (CDP_JOIN_STEP). Errors: those of cdp_optimizer_norm() and of cdp_optim_update(), INVALID
   (`scale` is negative or NaN; `optim` needs more state than at creation), what `update`
   returns. */
CDP_MUST_CHECK CDP_API cdp_status cdp_optimizer_step(cdp_optimizer *optimizer, double scale);

#define CDP_OPTIMIZER_MASTER 3u
/* Save and restore: the state of one parameter is gathered in `values` of rank `root`, or taken
   from there; as many f32 as the parameter has elements, on other ranks unused. `state`: 0 to
   cdp_optim_states() - 1, or CDP_OPTIMIZER_MASTER, the f32 copies of a parameter of 16 bits. A file
   of these and of *optim is read by any number of ranks. Collective, between passes. With `whole`
   all ranks have it: gathering copies it on `root`, and restoring broadcasts it. Errors: INVALID
   (NULL; no such rank, parameter or state; `optim` is not set), STATE (a pass is open), the
   group's failure. */
CDP_MUST_CHECK CDP_API cdp_status cdp_optimizer_gather(
    cdp_optimizer *optimizer, uint32_t state, uint32_t index, float *values, uint32_t root);
CDP_MUST_CHECK CDP_API cdp_status cdp_optimizer_scatter(
    cdp_optimizer *optimizer, uint32_t state, uint32_t index, const float *values, uint32_t root);

#endif

#endif /* CDP_SRC_DDP_OPTIMIZER_API_H */
