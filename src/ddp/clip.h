/* ddp/clip.h - the norm of all gradients

   Knows: where gradients are. Promises: the same norm on all ranks. */
#ifndef CDP_SRC_DDP_CLIP_H
#define CDP_SRC_DDP_CLIP_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "ddp_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "../dtype/reduce.h"
#include "../dtype/numbers.h"
#include "../dtype/norms.h"
#include "state.h"

#ifndef CDP_NO_DDP

#ifndef CDP_NO_CLIP
/* Stores where the numbers of a gradient are, and returns their count. */
CDP__PRIVATE uint64_t cdp__clip_part(const cdp__param *p, void **part) {
    *part = p->sparse ? p->sparse->mean : cdp__param_grad(p);
    return p->sparse ? p->sparse->mean_used * cdp__sparse_width(&p->user) : p->user.count;
}

/* Adds the squares in the order of parameters, which gives the same sum on all ranks. */
CDP__PRIVATE cdp_status cdp__clip_squares(cdp_ddp *d, double *sum) {
    cdp_status st = CDP_OK;
    double g = 0;
    void *part;
    uint32_t i;
    *sum = 0;
    for (i = 0; i < d->param_count && st == CDP_OK; ++i) {
        const cdp__param *p = &d->params[i];
        const uint64_t n = cdp__clip_part(p, &part);
        if (cdp__ddp_on_device(d) && n) {
            st = d->device->sum_squares(d->device->self, p->user.dtype, part, n, &g);
            *sum += g;
        } else
            *sum += cdp__norm_of(p->user.dtype, CDP__NORM_SQUARES, part, n);
    }
    return st;
}

CDP_API cdp_status cdp_ddp_clip(cdp_ddp *d, double max_norm, double *norm) {
    double sum, by;
    void *part;
    cdp_status st = cdp__ddp_between(d, "cdp_ddp_clip");
    uint32_t i;
    if (st != CDP_OK) return st;
    if (!(max_norm >= 0))
        return cdp__fail(CDP_ERR_INVALID, "cdp_ddp_clip: max_norm is not a positive number");
    if (!cdp__ddp_leaves(d, CDP__DDP_MEAN))
        return cdp__fail(CDP_ERR_STATE,
            "cdp_ddp_clip: an optimizer leaves no mean of all gradients on a rank; set deferred in "
            "its desc, and call cdp_optimizer_norm");
    st = cdp__clip_squares(d, &sum);
    if (st != CDP_OK) return st;
    sum = cdp__sqrt(sum);
    if (norm) *norm = sum;
    if (max_norm == 0 || sum <= max_norm) return CDP_OK;
    by = max_norm / (sum + 1e-6);
    for (i = 0; i < d->param_count; ++i) {
        const cdp_dtype dtype = d->params[i].user.dtype;
        const uint64_t n = cdp__clip_part(&d->params[i], &part);
        if (!cdp__ddp_on_device(d))
            cdp__scale(dtype, part, n, by);
        else if (n && st == CDP_OK)
            st = d->device->scale(d->device->self, dtype, part, n, by);
    }
    return st;
}
#endif /* CDP_NO_CLIP */

#endif /* CDP_NO_DDP */

#endif /* CDP_SRC_DDP_CLIP_H */
