/* ddp/norm.h - the norm of gradients over any mesh

   Knows: items, a group. Promises: each element counts once; the same bits on all ranks. */
#ifndef CDP_SRC_DDP_NORM_H
#define CDP_SRC_DDP_NORM_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../os/os_api.h"
#include "../group/group_api.h"
#include "../group/collectives_api.h"
#include "norm_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "../dtype/dtype.h"
#include "../dtype/reduce.h"
#include "../dtype/norms.h"
#include "../dtype/numbers.h"
#include "../group/state.h"

#if !defined(CDP_NO_DDP) && !defined(CDP_NO_CLIP)

CDP__PRIVATE cdp_dtype cdp__norm_dtype(const cdp_norm_item *item) {
    return item->dtype ? item->dtype : CDP_DTYPE_F32;
}

CDP__PRIVATE cdp_status cdp__norm_check(const char *function, const cdp_norm_desc *desc) {
    uint32_t i;
    if (!desc) return cdp__fail(CDP_ERR_INVALID, CDP__MISSING, function, "desc");
    if (desc->count && !desc->items)
        return cdp__fail(CDP_ERR_INVALID, CDP__MISSING, function, "desc.items");
    for (i = 0; i < desc->count; ++i) {
        const cdp_norm_item *item = &desc->items[i];
        const cdp_dtype t = cdp__norm_dtype(item);
        if ((uint32_t)t >= CDP_DTYPE_COUNT || !cdp__dtype_has_grads(t) || cdp__dtype_left_out(t))
            return cdp__fail(CDP_ERR_UNSUPPORTED,
                "%s: items[%u].dtype is %d (%s); gradients are f32, f64, f16 or bf16", function, i,
                (int)t, cdp_dtype_name(t));
        if (item->count && (!item->grad || (uintptr_t)item->grad % cdp_dtype_size(t)))
            return cdp__fail(CDP_ERR_INVALID,
                "%s: items[%u].grad is NULL or not aligned to %u bytes, but its count is %llu",
                function, i, (uint32_t)cdp_dtype_size(t), (unsigned long long)item->count);
    }
    return CDP_OK;
}

/* Stores what this rank counts: one number per item, then whether one of them is not finite. */
CDP__PRIVATE void cdp__norm_count(const cdp_norm_desc *desc, cdp__norm_kind kind, double *q) {
    uint32_t i;
    q[desc->count] = 0;
    for (i = 0; i < desc->count; ++i) {
        const cdp_norm_item *item = &desc->items[i];
        const cdp_dtype t = cdp__norm_dtype(item);
        q[i] = item->copy ? 0 : cdp__norm_of(t, kind, item->grad, item->count);
        if (cdp__norm_found_inf(t, q[i], item->grad, item->count)) q[desc->count] = 1;
    }
}

/* `os`: of its memory; NULL: there is none. */
CDP__PRIVATE cdp_status cdp__grads_norm(
    const cdp_os *os, const cdp_norm_desc *desc, double *each, cdp_norm *out) {
    cdp__norm_kind kind = CDP__NORM_SQUARES;
    double *q, all = 0;
    uint32_t i;
    cdp_status st;
    if (!out) return cdp__fail(CDP_ERR_INVALID, CDP__MISSING, "cdp_grads_norm", "out");
    memset(out, 0, sizeof *out);
    st = cdp__norm_check("cdp_grads_norm", desc);
    if (st != CDP_OK) return st;
    if (desc->p == 1) kind = CDP__NORM_SUM;
    if (desc->p > 2 && desc->p - desc->p != 0) kind = CDP__NORM_MAX;
    if (desc->p != 0 && desc->p != 2 && kind == CDP__NORM_SQUARES)
        return cdp__fail(CDP_ERR_INVALID, "cdp_grads_norm: p is not 1, 2 or INFINITY");
    q = !os ? NULL : (double *)cdp__alloc(os, (desc->count + 1ull) * sizeof *q);
    if (!q) return cdp__fail_nomem("the norms of gradients", (desc->count + 1ull) * sizeof *q);
    cdp__norm_count(desc, kind, q);
    if (desc->group)
        st = cdp_allreduce(desc->group, NULL, q, desc->count + 1ull, CDP_DTYPE_F64,
            kind == CDP__NORM_MAX ? CDP_REDUCE_MAX : CDP_REDUCE_SUM);
    for (i = 0; i < desc->count && st == CDP_OK; ++i) {
        all = kind == CDP__NORM_MAX ? CDP__NORM_LARGER(all, q[i]) : all + q[i];
        if (each) each[i] = kind == CDP__NORM_SQUARES ? cdp__sqrt(q[i]) : q[i];
    }
    if (st == CDP_OK) {
        out->norm = kind == CDP__NORM_SQUARES ? cdp__sqrt(all) : all;
        out->found_inf = q[desc->count] != 0;
    }
    cdp__free(os, q);
    return st;
}

CDP_API cdp_status cdp_grads_norm(const cdp_norm_desc *desc, double *each, cdp_norm *out) {
    cdp_status st = CDP_OK;
    if (out) memset(out, 0, sizeof *out);
    if (desc && desc->group) st = cdp__alive(desc->group, "cdp_grads_norm");
    if (st != CDP_OK) return st;
    return cdp__grads_norm(
        desc && desc->group ? desc->group->os : cdp_os_default(), desc, each, out);
}

CDP_API cdp_status cdp_grads_scale(const cdp_norm_desc *desc, double factor) {
    const cdp_status st = cdp__norm_check("cdp_grads_scale", desc);
    uint32_t i;
    for (i = 0; i < (st == CDP_OK ? desc->count : 0); ++i)
        cdp__scale(cdp__norm_dtype(&desc->items[i]), desc->items[i].grad, desc->items[i].count,
            (cdp_real)factor);
    return st;
}

#endif

#endif /* CDP_SRC_DDP_NORM_H */
