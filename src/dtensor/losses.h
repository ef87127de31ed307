/* dtensor/losses.h - cross entropy of logits that are cut along the classes

   Knows: one row of logits, in pieces. Promises: cdp_cross_entropy(); every rank combines the same
   numbers in the same order. */
#ifndef CDP_SRC_DTENSOR_LOSSES_H
#define CDP_SRC_DTENSOR_LOSSES_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../message/transport_api.h"
#include "../group/collectives_api.h"
#include "../base/helpers.h"
#include "../dtype/convert.h"
#include "mesh_api.h"
#include "layout_api.h"
#include "tensor_parallel_api.h"
#include "kit.h"
#include "kernels.h"
#include "counter.h"
#include "grid.h"
#include "tensors.h"
#include "products.h"

#ifndef CDP_NO_TENSOR_OPS

typedef struct cdp__dt_loss {
    const cdp_layout *l;
    const void *x;
    const int32_t *targets;
    uint64_t rows, first, held; /* held: this rank has classes first .. first + held - 1 */
    cdp_dtype dtype;
    uint32_t n;
    double *own, *all; /* per row: maximum, sum of exponentials from there, the target's logit */
} cdp__dt_loss;

CDP__DT cdp_status cdp__dt_loss_check(
    const cdp_layout *l, const void *x, const int32_t *targets, const void *losses) {
    cdp_status st = cdp_layout_check(l);
    if (st != CDP_OK) return st;
    const cdp_dtype t = cdp__dt_dtype(l);
    const cdp_place *p = &l->place[0];
    if (t != CDP_DTYPE_F32 && t != CDP_DTYPE_F64)
        return cdp_error_set(CDP_ERR_UNSUPPORTED, -1, 0,
            "cdp_cross_entropy: logits of %s; use f32 or f64", cdp_dtype_name(t));
    const bool cut = p->kind == CDP_PLACE_SHARD && l->ndim == 2 && cdp__dt_dim(l, 0) == 1;
    if (l->ndim != 2 || l->mesh->desc.ndim != 1 || !(cut || p->kind == CDP_PLACE_REPLICATE))
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_cross_entropy: logits must be [rows, classes] on a mesh of one dimension, S1 or "
            "R");
    if (!x && cdp__dt_local_bytes(l)) return cdp__dt_missing("cdp_cross_entropy", "piece");
    if (!targets) return cdp__dt_missing("cdp_cross_entropy", "targets");
    if (!losses) return cdp__dt_missing("cdp_cross_entropy", "losses");
    for (uint64_t i = 0; i < l->shape[0]; ++i)
        if (targets[i] >= 0 && (uint64_t)targets[i] >= l->shape[1])
            return cdp_error_set(CDP_ERR_INVALID, -1, 0,
                "cdp_cross_entropy: targets[%llu] is %d; there are %llu classes",
                (unsigned long long)i, targets[i], (unsigned long long)l->shape[1]);
    return CDP_OK;
}

/* The larger number; a NaN if one of them is. */
CDP__DT double cdp__dt_larger(double a, double b) {
    return a > b || a != a ? a : b;
}

CDP__DT void cdp__dt_loss_row(const cdp__dt_loss *s, uint64_t row) {
    double *out = s->own + 3 * row;
    const uint64_t at = row * s->held, target = (uint64_t)(int64_t)s->targets[row] - s->first;
    double most = -(double)INFINITY, sum = 0;
    for (uint64_t j = 0; j < s->held; ++j)
        most = cdp__dt_larger(most, cdp__number_get(s->dtype, s->x, at + j));
    for (uint64_t j = 0; most != -(double)INFINITY && j < s->held; ++j)
        sum += cdp__dt_exp(cdp__number_get(s->dtype, s->x, at + j) - most);
    out[0] = most;
    out[1] = sum;
    out[2] = target < s->held ? cdp__number_get(s->dtype, s->x, at + target) : 0;
}

/* Merges the numbers of all ranks for a row: in[r] is `stride` numbers after in[r-1]. The
   sum of a row of which every logit is -infinity is a NaN. */
CDP__DT void cdp__dt_loss_merge(const double *in, uint64_t stride, uint32_t n, double out[3]) {
    out[0] = -(double)INFINITY;
    out[1] = out[2] = 0;
    for (uint32_t r = 0; r < n; ++r)
        out[0] = cdp__dt_larger(out[0], in[r * stride]);
    if (out[0] == -(double)INFINITY) out[1] = out[0] - out[0];
    for (uint32_t r = 0; r < n; ++r) {
        if (in[r * stride] != -(double)INFINITY)
            out[1] += in[r * stride + 1] * cdp__dt_exp(in[r * stride] - out[0]);
        out[2] += in[r * stride + 2];
    }
}

CDP__DT void cdp__dt_loss_finish(const cdp__dt_loss *s, void *losses, void *grad, double scale) {
    for (uint64_t i = 0; i < s->rows; ++i) {
        const bool counts = s->targets[i] >= 0;
        const uint64_t target = (uint64_t)(int64_t)s->targets[i] - s->first;
        double row[3];
        cdp__dt_loss_merge(s->all + 3 * i, 3 * s->rows, s->n, row);
        cdp__number_put(s->dtype, losses, i, counts ? cdp__dt_ln(row[1]) + row[0] - row[2] : 0);
        for (uint64_t j = 0; grad && j < s->held; ++j) {
            const double x = cdp__number_get(s->dtype, s->x, i * s->held + j) - row[0];
            const double g = cdp__dt_exp(x) / row[1] - (j == target ? 1 : 0);
            cdp__number_put(s->dtype, grad, i * s->held + j, counts ? g * scale : 0);
        }
    }
}

CDP_API cdp_status cdp_cross_entropy(const cdp_layout *logits, const void *piece,
    const int32_t *targets, void *losses, void *grad, double scale) {
    cdp__dt_loss s;
    cdp_box box;
    cdp_status st = cdp__dt_loss_check(logits, piece, targets, losses);
    if (st != CDP_OK) return st;
    const cdp_mesh *m = logits->mesh;
    if (m->me == CDP__DT_NONE) return CDP_OK;
    (void)cdp_layout_box(logits, NULL, &box);
    memset(&s, 0, sizeof s);
    s.l = logits;
    s.x = piece;
    s.targets = targets;
    s.rows = logits->shape[0];
    s.first = box.start[1];
    s.held = box.size[0] ? box.size[1] : 0;
    s.dtype = cdp__dt_dtype(logits);
    s.n = logits->place[0].kind == CDP_PLACE_SHARD ? m->count : 1;
    const bool talks = s.n > 1 && m->all;
    if (s.n > 1 && !m->all)
        return cdp_error_set(CDP_ERR_STATE, -1, 0, "cdp_cross_entropy: its mesh is on paper");
    const uint64_t bytes = 3 * s.rows * 8 * (s.n + 1ull);
    s.own = (double *)cdp__dt_alloc(m->root->os, bytes);
    if (!s.own) return cdp__dt_nomem("cdp_cross_entropy", bytes);
    s.all = talks ? s.own + 3 * s.rows : s.own;
    for (uint64_t i = 0; i < s.rows; ++i)
        cdp__dt_loss_row(&s, i);
    if (talks) {
        cdp__dt_count(m->root->counter, CDP_COLL_ALLGATHER, 3 * s.rows * 8 * (s.n - 1ull), false);
        st = cdp_allgather(m->all->group, s.own, s.all, 3 * s.rows, CDP_DTYPE_F64);
    }
    if (st == CDP_OK) cdp__dt_loss_finish(&s, losses, grad, scale);
    cdp__dt_free(m->root->os, s.own);
    return st;
}

#endif /* CDP_NO_TENSOR_OPS */

#endif /* CDP_SRC_DTENSOR_LOSSES_H */
