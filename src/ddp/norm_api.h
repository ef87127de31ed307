/* ddp/norm_api.h - the norm of gradients over any mesh */
#ifndef CDP_SRC_DDP_NORM_API_H
#define CDP_SRC_DDP_NORM_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../group/group_api.h"

#if !defined(CDP_NO_DDP) && !defined(CDP_NO_CLIP)
/* This rank's part of one gradient. Every element of a gradient counts once: a rank counts its
   piece of a gradient that is cut over ranks; of a gradient that several ranks hold as a copy,
   one of them counts, and the others set `copy`. Reduce partial sums first. cdp_norm_item_of() of
   cdp_dtensor.h makes it from a tensor's layout. */
typedef struct cdp_norm_item {
    void *grad;      /* host memory */
    uint64_t count;  /* elements; 0: this rank holds nothing of this gradient */
    cdp_dtype dtype; /* f32, f64, f16 or bf16 (default: f32) */
    bool copy;       /* another rank counts it */
} cdp_norm_item;

typedef struct cdp_norm_desc {
    cdp_group *group; /* all ranks that hold a part of the model; NULL: this rank alone */
    /* all gradients of the model, in one order on all ranks: of a pipeline, those of all stages,
       with count 0 where another stage has them; the first stage that holds a tied one counts */
    const cdp_norm_item *items;
    uint32_t count; /* of items */
    double p;       /* 1, 2 or INFINITY (default: 2) */
} cdp_norm_desc;

typedef struct cdp_norm {
    double norm;
    bool found_inf; /* an element of any rank is infinite or NaN */
} cdp_norm;

/* Compute the norm of all gradients together. Collective over desc->group: one operation of
   desc->count + 1 numbers; every rank gets the same bits. `each` (may be NULL): desc->count
   numbers, the norm of each gradient. Sums are f64, in the order of elements and items. A sum of
   squares of f64 may be infinite though found_inf is false. Errors: INVALID, UNSUPPORTED (another
   dtype; in a group also CDP_ONLY_F32), STATE (the group was destroyed), NOMEM, those of
   cdp_allreduce(). */
CDP_MUST_CHECK CDP_API cdp_status cdp_grads_norm(
    const cdp_norm_desc *desc, double *each, cdp_norm *out);

/* Multiply every item, copies included, by `factor`. Local. With the factor min(1, max_norm /
   (norm + 1e-6)) this clips as PyTorch does, and copies stay equal. Errors: INVALID,
   UNSUPPORTED. */
CDP_MUST_CHECK CDP_API cdp_status cdp_grads_scale(const cdp_norm_desc *desc, double factor);
#endif

#endif /* CDP_SRC_DDP_NORM_API_H */
