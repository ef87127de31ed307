/* dtensor/losses.h - cross entropy of logits that are cut along the classes

   Knows: one row of logits, in pieces. Promises: cdp_cross_entropy(); every rank combines the same
   numbers in the same order. */
#ifndef CDP_SRC_DTENSOR_LOSSES_H
#define CDP_SRC_DTENSOR_LOSSES_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../base/error_api.h"
#include "../message/transport_api.h"
#include "../group/collectives_api.h"
#include "../base/helpers.h"
#include "../base/kept_error.h"
#include "../dtype/convert.h"
#include "mesh_api.h"
#include "layout_api.h"
#include "tensor_parallel_api.h"
#include "kit.h"
#include "kernels.h"
#include "counter.h"
#include "grid.h"
#include "tensors.h"
#include "rows.h"
#include "products.h"

#ifndef CDP_NO_TENSOR_OPS

typedef struct cdp__dt_loss {
    const cdp_layout *l;
    const void *x;
    const int32_t *targets;
    uint64_t rows, first, held; /* held: this rank has classes first .. first + held - 1 */
    cdp_dtype dtype;
    uint32_t n;
    const cdp_loss_kernel *kernel;
    /* The largest logit of each row; then of each the sum of exponentials from there; then its
       target's logit. `all`: of each rank. */
    double *own, *all;
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

/* The exponentials of some elements of a row, from its largest number on; `e` NULL: their sum
   alone. */
#define CDP__DT_LOSS_SUM(S, T)                                                        \
    CDP__DT double cdp__dt_loss_sum_##S(const T *x, T *e, uint64_t n, double *most) { \
        T some[CDP__DT_ROW];                                                          \
        const T from = cdp__dt_most_##S(x, n);                                        \
        double sum = 0;                                                               \
        *most = (double)from;                                                         \
        if (from == -(T)INFINITY) {                                                   \
            if (e) memset(e, 0, (size_t)n * sizeof *e);                               \
            return 0;                                                                 \
        }                                                                             \
        for (uint64_t i = 0, k; i < n; i += k) {                                      \
            T *to = e ? e + i : some;                                                 \
            k = cdp__min(n - i, CDP__DT_ROW);                                         \
            cdp__dt_exps_##S(to, x + i, k, from);                                     \
            sum += cdp__dt_total_##S(to, k);                                          \
        }                                                                             \
        return sum;                                                                   \
    }
CDP__DT_LOSS_SUM(f32, float)
CDP__DT_LOSS_SUM(f64, double)
#undef CDP__DT_LOSS_SUM

/* cdp_loss_kernel.exponentials in plain loops. */
CDP__DT cdp_status cdp__dt_loss_exponentials(void *user, cdp_dtype t, uint64_t rows,
    uint64_t classes, const void *x, void *e, double *most, double *sum) {
    (void)user;
    for (uint64_t i = 0; i < rows; ++i) {
        const uint64_t at = i * classes;
        if (t == CDP_DTYPE_F32)
            sum[i] = cdp__dt_loss_sum_f32(
                (const float *)x + at, e ? (float *)e + at : NULL, classes, &most[i]);
        else
            sum[i] = cdp__dt_loss_sum_f64(
                (const double *)x + at, e ? (double *)e + at : NULL, classes, &most[i]);
    }
    return CDP_OK;
}

/* The numbers of this rank's classes; the exponentials go to `grad`, which may be the logits. */
CDP__DT cdp_status cdp__dt_loss_rows(const cdp__dt_loss *s, void *grad) {
    double *most = s->own, *sum = most + s->rows, *logit = sum + s->rows;
    for (uint64_t i = 0; i < s->rows; ++i) {
        const uint64_t target = (uint64_t)(int64_t)s->targets[i] - s->first;
        most[i] = -(double)INFINITY;
        sum[i] = 0;
        logit[i] = target < s->held ? cdp__number_get(s->dtype, s->x, i * s->held + target) : 0;
    }
    if (!s->held) return CDP_OK;
    return s->kernel->exponentials(
        s->kernel->user, s->dtype, s->rows, s->held, s->x, grad, most, sum);
}

/* Merges the numbers of all ranks for a row: in[r * 3 * rows], and so on, are those of rank r. The
   sum of a row of which every logit is -infinity is a NaN. */
CDP__DT void cdp__dt_loss_merge(const double *in, uint64_t rows, uint32_t n, double out[3]) {
    const uint64_t next = 3 * rows;
    out[0] = -(double)INFINITY;
    out[1] = out[2] = 0;
    for (uint32_t r = 0; r < n; ++r)
        out[0] = cdp__dt_larger(out[0], in[r * next]);
    if (out[0] == -(double)INFINITY) out[1] = out[0] - out[0];
    for (uint32_t r = 0; r < n; ++r) {
        const double *row = in + r * next;
        if (row[0] != -(double)INFINITY) out[1] += row[rows] * cdp__dt_exp(row[0] - out[0]);
        out[2] += row[2 * rows];
    }
}

/* grad holds exponentials e: scale (e factor - 1 at the target), where `factor` makes shares of the
   whole sum of them. */
CDP__DT void cdp__dt_loss_grad(
    const cdp__dt_loss *s, uint64_t row, void *grad, double factor, double scale) {
    const uint64_t at = row * s->held, elem = cdp_dtype_size(s->dtype);
    const uint64_t target = (uint64_t)(int64_t)s->targets[row] - s->first;
    const bool here = target < s->held;
    const double e = here ? cdp__number_get(s->dtype, grad, at + target) : 0;
    if (s->targets[row] < 0)
        memset((uint8_t *)grad + at * elem, 0, (size_t)(s->held * elem));
    else if (s->dtype == CDP_DTYPE_F32)
        cdp__dt_times_all_f32((float *)grad + at, s->held, (float)(factor * scale));
    else
        cdp__dt_times_all_f64((double *)grad + at, s->held, factor * scale);
    if (here) cdp__number_put(s->dtype, grad, at + target, (e * factor - 1) * scale);
}

CDP__DT void cdp__dt_loss_finish(const cdp__dt_loss *s, void *losses, void *grad, double scale) {
    for (uint64_t i = 0; i < s->rows; ++i) {
        const bool counts = s->targets[i] >= 0;
        double row[3];
        cdp__dt_loss_merge(s->all + i, s->rows, s->n, row);
        cdp__number_put(s->dtype, losses, i, counts ? cdp__dt_ln(row[1]) + row[0] - row[2] : 0);
        if (!grad) continue;
        /* the exponentials of a piece that has only -infinity are 0 */
        const bool none = s->own[i] == -(double)INFINITY;
        const double share = none ? 1 : cdp__dt_exp(s->own[i] - row[0]);
        cdp__dt_loss_grad(s, i, grad, share / row[1], scale);
    }
}

CDP_API cdp_status cdp_cross_entropy_with(const cdp_layout *logits, const void *piece,
    const int32_t *targets, void *losses, void *grad, double scale, const cdp_loss_kernel *kernel) {
    static const cdp_loss_kernel plain = {cdp__dt_loss_exponentials, NULL};
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
    s.kernel = kernel && kernel->exponentials ? kernel : &plain;
    s.n = logits->place[0].kind == CDP_PLACE_SHARD ? m->count : 1;
    const bool talks = s.n > 1 && m->all;
    if (s.n > 1 && !m->all)
        return cdp_error_set(CDP_ERR_STATE, -1, 0, "cdp_cross_entropy: its mesh is on paper");
    const uint64_t bytes = 3 * s.rows * 8 * (s.n + 1ull);
    s.own = (double *)cdp__dt_alloc(m->root->os, bytes);
    if (!s.own) return cdp__dt_nomem("cdp_cross_entropy", bytes);
    s.all = talks ? s.own + 3 * s.rows : s.own;
    const cdp_status own = cdp__dt_loss_rows(&s, grad);
    const cdp_error why = *cdp_last_error();
    for (uint64_t i = 0; i < s.rows && own != CDP_OK; ++i)
        s.own[i] = NAN; /* no other rank takes a part of a row for a result */
    if (talks) {
        cdp__dt_count(m->root->counter, CDP_COLL_ALLGATHER, 3 * s.rows * 8 * (s.n - 1ull), false);
        st = cdp_allgather(m->all->group, s.own, s.all, 3 * s.rows, CDP_DTYPE_F64);
    }
    if (st == CDP_OK && own == CDP_OK) cdp__dt_loss_finish(&s, losses, grad, scale);
    cdp__dt_free(m->root->os, s.own);
    if (st != CDP_OK || own == CDP_OK) return st;
    return cdp__error_again(own, &why);
}

CDP_API cdp_status cdp_cross_entropy(const cdp_layout *logits, const void *piece,
    const int32_t *targets, void *losses, void *grad, double scale) {
    return cdp_cross_entropy_with(logits, piece, targets, losses, grad, scale, NULL);
}

#endif /* CDP_NO_TENSOR_OPS */

#endif /* CDP_SRC_DTENSOR_LOSSES_H */
