/* dtensor/attention.h - plain loops over the blocks of a ring

   Knows: queries, keys and values of some positions. Promises: the same attention over all
   positions as in one process, except for the order of sums; f64 between the blocks. */
#ifndef CDP_SRC_DTENSOR_ATTENTION_H
#define CDP_SRC_DTENSOR_ATTENTION_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../os/os_api.h"
#include "../message/transport_api.h"
#include "../group/group_api.h"
#include "../base/helpers.h"
#include "../dtype/convert.h"
#include "plan_api.h"
#include "context_parallel_api.h"
#include "cxx_api.h"
#include "kit.h"
#include "kernels.h"
#include "philox.h"
#include "grid.h"
#include "meshes.h"
#include "products.h"
#include "rings.h"

#ifndef CDP_NO_TENSOR_OPS

/* Constants of one call. Rows are positions of all sequences of the batch. */
typedef struct cdp__dt_heads {
    const cdp_cp *cp;
    const void *q, *out, *grad_out;
    const void *lse;
    double *grad_q;
    uint64_t start[2], size[2]; /* of the queries */
} cdp__dt_heads;

/* The position in the sequence of row i of a rank's piece. */
CDP__DT uint64_t cdp__dt_cp_at(const uint64_t start[2], const uint64_t size[2], uint64_t i) {
    return i < size[0] ? start[0] + i : start[1] + i - size[0];
}

CDP__DT double cdp__dt_dot(
    cdp_dtype t, const void *a, uint64_t at_a, const void *b, uint64_t at_b, uint64_t n) {
    double sum = 0;
    for (uint64_t i = 0; i < n; ++i)
        sum += cdp__number_get(t, a, at_a + i) * cdp__number_get(t, b, at_b + i);
    return sum;
}

/* Merges one weighted value into a running result; most: the largest score so far. */
CDP__DT void cdp__dt_attend(cdp_dtype t, double *state, double *out, uint64_t width, double score,
    const void *v, uint64_t at) {
    if (score > state[0]) {
        const double shrink = state[1] > 0 ? cdp__dt_exp(state[0] - score) : 0;
        for (uint64_t d = 0; d < width; ++d)
            out[d] *= shrink;
        state[1] *= shrink;
        state[0] = score;
    }
    const double weight = cdp__dt_exp(score - state[0]);
    state[1] += weight;
    for (uint64_t d = 0; d < width; ++d)
        out[d] += weight * cdp__number_get(t, v, at + d);
}

/* The loops of both directions: queries i, heads h, keys j of one owner. Offsets are in
   elements. */
typedef struct cdp__dt_spot {
    uint64_t query, q, k, v; /* query: number of query and head; q: of its vector */
} cdp__dt_spot;

typedef void cdp__dt_spot_use(
    const cdp__dt_heads *a, const cdp__dt_spot *s, const void *kv, void *grad);

CDP__DT cdp_status cdp__dt_spots(
    const cdp__dt_heads *a, uint32_t owner, const void *kv, void *grad, cdp__dt_spot_use *use) {
    const cdp_cp_desc *d = &a->cp->desc;
    const uint64_t rows = a->cp->rows, group = d->heads / d->kv_heads;
    uint64_t start[2], size[2];
    const uint64_t keys = cdp_cp_rows(d, owner, start, size);
    const uint64_t values = d->batch * keys * d->kv_heads * d->width; /* behind the keys */
    for (uint64_t i = 0; i < d->batch * rows; ++i) {
        const uint64_t at = cdp__dt_cp_at(a->start, a->size, i % rows);
        for (uint64_t h = 0; h < d->heads; ++h)
            for (uint64_t j = 0; j < keys; ++j) {
                cdp__dt_spot s;
                if (d->causal && cdp__dt_cp_at(start, size, j) > at) continue;
                s.query = i * d->heads + h;
                s.q = s.query * d->width;
                s.k = ((i / rows * keys + j) * d->kv_heads + h / group) * d->width;
                s.v = values + s.k;
                use(a, &s, kv, grad);
            }
    }
    return CDP_OK;
}

CDP__DT void cdp__dt_spot_forward(
    const cdp__dt_heads *a, const cdp__dt_spot *s, const void *kv, void *grad) {
    const cdp_cp_desc *d = &a->cp->desc;
    double *state = a->cp->state + s->query * (d->width + 2);
    (void)grad;
    const double score = d->scale * cdp__dt_dot(d->dtype, a->q, s->q, kv, s->k, d->width);
    cdp__dt_attend(d->dtype, state, state + 2, d->width, score, kv, s->v);
}

/* p = exp(score - lse); dv += p dout; ds = p (dout v - dout out) scale; dq += ds k; dk += ds q */
CDP__DT void cdp__dt_spot_backward(
    const cdp__dt_heads *a, const cdp__dt_spot *s, const void *kv, void *grad) {
    const cdp_cp_desc *d = &a->cp->desc;
    const cdp_dtype t = d->dtype;
    double *grad_q = a->cp->state + s->query * (d->width + 2);
    const double score = d->scale * cdp__dt_dot(t, a->q, s->q, kv, s->k, d->width);
    const double p = cdp__dt_exp(score - cdp__number_get(t, a->lse, s->query));
    const double own = grad_q[0]; /* dout out: the same for all keys */
    const double dp = cdp__dt_dot(t, a->grad_out, s->q, kv, s->v, d->width);
    const double ds = p * (dp - own) * d->scale;
    for (uint64_t i = 0; i < d->width; ++i) {
        grad_q[2 + i] += ds * cdp__number_get(t, kv, s->k + i);
        cdp__number_put(t, grad, s->k + i,
            cdp__number_get(t, grad, s->k + i) + ds * cdp__number_get(t, a->q, s->q + i));
        cdp__number_put(t, grad, s->v + i,
            cdp__number_get(t, grad, s->v + i) + p * cdp__number_get(t, a->grad_out, s->q + i));
    }
}

CDP__DT cdp_status cdp__dt_block_forward(void *user, uint32_t owner, const void *kv, void *grad) {
    return cdp__dt_spots((const cdp__dt_heads *)user, owner, kv, grad, cdp__dt_spot_forward);
}

CDP__DT cdp_status cdp__dt_block_backward(void *user, uint32_t owner, const void *kv, void *grad) {
    return cdp__dt_spots((const cdp__dt_heads *)user, owner, kv, grad, cdp__dt_spot_backward);
}

CDP__DT uint64_t cdp__dt_kv_elements(const cdp_cp *cp, uint64_t rows) {
    return cp->desc.batch * rows * cp->desc.kv_heads * cp->desc.width;
}

CDP__DT cdp_status cdp__dt_cp_memory(cdp_cp *cp) {
    const cdp_cp_desc *d = &cp->desc;
    const uint64_t elem = cdp_dtype_size(d->dtype);
    const uint64_t kv = 2 * cdp__dt_kv_elements(cp, cp->most_rows);
    const uint64_t state = d->batch * cp->rows * d->heads * (d->width + 2);
    cp->state = (double *)cdp__dt_alloc(cp->os, state * sizeof *cp->state);
    if (!cp->state) return cdp__dt_nomem("attention", state * sizeof *cp->state);
    if (!cp->group) return CDP_OK;
    cp->pack = cdp__dt_group_memory(cp->group, kv * elem + 1);
    cp->pack_grad = cdp__dt_group_memory(cp->group, kv * elem + 1);
    if (!cp->pack || !cp->pack_grad) return cdp__dt_nomem("attention", 2 * kv * elem);
    if (cp->n == 1) return CDP_OK;
    const uint32_t copies = d->gather ? cp->n : 1, kinds = d->gather ? 1 : 2;
    cdp_status st = CDP_OK;
    for (uint32_t i = 0; st == CDP_OK && i < kinds; ++i) {
        st = cdp__dt_room_for(cp, &cp->kv[i], kv * elem * copies);
        if (st == CDP_OK) st = cdp__dt_room_for(cp, &cp->grad[i], kv * elem * copies);
    }
    if (st == CDP_OK && d->gather) st = cdp__dt_gather_plans(cp, kv * elem, kv);
    return st;
}

CDP_API void cdp_cp_destroy(cdp_cp *cp) {
    if (!cp) return;
    cdp__dt_link *link = cp->desc.mesh->all;
    for (uint32_t i = 0; i < 2; ++i) {
        cdp__dt_bury(cp->root, link, cp->kv[i].at);
        cdp__dt_bury(cp->root, link, cp->grad[i].at);
    }
    cdp__dt_bury(cp->root, link, cp->pack);
    cdp__dt_bury(cp->root, link, cp->pack_grad);
    cdp_plan_destroy(cp->gather_plan);
    cdp_plan_destroy(cp->sum_plan);
    cdp__dt_free(cp->os, cp->state);
    cdp__dt_free(cp->os, cp);
}

CDP_API cdp_status cdp_cp_create(const cdp_cp_desc *desc, cdp_cp **out) {
    uint64_t start[2], size[2];
    if (!out) return cdp__dt_missing("cdp_cp_create", "out");
    *out = NULL;
    cdp_status st = cdp__dt_cp_check(desc);
    if (st != CDP_OK) return st;
    const cdp_os *os = desc->mesh->root->os;
    cdp_cp *cp = (cdp_cp *)cdp__dt_alloc(os, sizeof *cp);
    if (!cp) return cdp__dt_nomem("attention", sizeof *cp);
    cp->desc = *desc;
    cp->os = os;
    cp->root = desc->mesh->root;
    cp->group = desc->mesh->all ? desc->mesh->all->group : NULL;
    cp->n = desc->mesh->count;
    cp->me = desc->mesh->me;
    if (cp->desc.dtype == CDP_DTYPE_DEFAULT) cp->desc.dtype = CDP_DTYPE_F32;
    if (!cp->desc.batch) cp->desc.batch = 1;
    if (!cp->desc.kv_heads) cp->desc.kv_heads = cp->desc.heads;
    if (cp->desc.scale == 0) { /* 1 / sqrt(width): a reciprocal keeps it below 2^10 */
        cp->desc.scale = cdp__dt_sqrt(1.0 / (double)cp->desc.width);
    }
    cp->rows = cp->me == CDP__DT_NONE ? 0 : cdp_cp_rows(&cp->desc, cp->me, start, size);
    cp->most_rows = cdp_cp_rows(&cp->desc, 0, start, size);
    st = cdp__dt_cp_memory(cp);
    if (st != CDP_OK) {
        cdp_cp_destroy(cp);
        return st;
    }
    *out = cp;
    return CDP_OK;
}

/* Packs this rank's keys, then its values. */
CDP__DT void cdp__dt_cp_pack(cdp_cp *cp, const void *k, const void *v) {
    const uint64_t n = cdp__dt_kv_elements(cp, cp->rows) * cdp_dtype_size(cp->desc.dtype);
    if (!n) return;
    memcpy(cp->pack, k, (size_t)n);
    memcpy((uint8_t *)cp->pack + n, v, (size_t)n);
}

CDP__DT cdp_status cdp__dt_cp_ready(
    const cdp_cp *cp, const char *call, const cdp__dt_argument *arrays, uint32_t count) {
    if (!cp) return cdp__dt_missing(call, "cp");
    if (cp->rows) {
        const cdp_status st = cdp__dt_all_given(call, arrays, count);
        if (st != CDP_OK) return st;
    }
    if (!cp->root->group)
        return cdp_error_set(CDP_ERR_STATE, -1, 0, "cdp_cp: its mesh is on paper; it cannot run");
    return CDP_OK;
}

CDP_API cdp_status cdp_cp_attention(
    cdp_cp *cp, const void *q, const void *k, const void *v, void *out, void *lse) {
    cdp__dt_heads a;
    const cdp__dt_argument arrays[] = {{"q", q}, {"k", k}, {"v", v}, {"out", out}, {"lse", lse}};
    cdp_status st = cdp__dt_cp_ready(cp, "cdp_cp_attention", arrays, 5);
    if (st != CDP_OK || cp->me == CDP__DT_NONE) return st;
    const cdp_cp_desc *d = &cp->desc;
    const uint64_t queries = d->batch * cp->rows * d->heads, step = d->width + 2;
    memset(&a, 0, sizeof a);
    a.cp = cp;
    a.q = q;
    (void)cdp_cp_rows(d, cp->me, a.start, a.size);
    cdp__dt_cp_pack(cp, k, v);
    memset(cp->state, 0, (size_t)(queries * step * sizeof *cp->state));
    for (uint64_t i = 0; i < queries; ++i)
        cp->state[i * step] = -DBL_MAX; /* a score of -infinity weighs nothing beside it */
    st = cdp_cp_ring(cp, cp->pack,
        2 * cdp__dt_kv_elements(cp, cp->most_rows) * cdp_dtype_size(d->dtype), NULL, 0,
        cdp__dt_block_forward, &a);
    for (uint64_t i = 0; st == CDP_OK && i < queries; ++i) {
        const double *state = cp->state + i * step;
        cdp__number_put(d->dtype, lse, i, state[0] + cdp__dt_ln(state[1]));
        for (uint64_t x = 0; x < d->width; ++x) /* a NaN if every score was -infinity */
            cdp__number_put(d->dtype, out, i * d->width + x, state[2 + x] / state[1]);
    }
    return st;
}

CDP_API cdp_status cdp_cp_attention_backward(cdp_cp *cp, const void *q, const void *k,
    const void *v, const void *out, const void *lse, const void *grad_out, void *grad_q,
    void *grad_k, void *grad_v) {
    cdp__dt_heads a;
    const cdp__dt_argument arrays[] = {{"q", q}, {"k", k}, {"v", v}, {"out", out}, {"lse", lse},
        {"grad_out", grad_out}, {"grad_q", grad_q}, {"grad_k", grad_k}, {"grad_v", grad_v}};
    cdp_status st = cdp__dt_cp_ready(cp, "cdp_cp_attention_backward", arrays, 9);
    if (st != CDP_OK || cp->me == CDP__DT_NONE) return st;
    const cdp_cp_desc *d = &cp->desc;
    const uint64_t queries = d->batch * cp->rows * d->heads, step = d->width + 2;
    const uint64_t elem = cdp_dtype_size(d->dtype), own = cdp__dt_kv_elements(cp, cp->rows);
    const uint64_t most = 2 * cdp__dt_kv_elements(cp, cp->most_rows);
    memset(&a, 0, sizeof a);
    a.cp = cp;
    a.q = q;
    a.lse = lse;
    a.grad_out = grad_out;
    (void)cdp_cp_rows(d, cp->me, a.start, a.size);
    cdp__dt_cp_pack(cp, k, v);
    memset(cp->state, 0, (size_t)(queries * step * sizeof *cp->state));
    for (uint64_t i = 0; i < queries; ++i)
        cp->state[i * step] =
            cdp__dt_dot(d->dtype, grad_out, i * d->width, out, i * d->width, d->width);
    if (cp->root->counter) ++cp->root->counter->backward;
    st = cdp_cp_ring(cp, cp->pack, most * elem, cp->pack_grad, most, cdp__dt_block_backward, &a);
    if (cp->root->counter) --cp->root->counter->backward;
    for (uint64_t i = 0; st == CDP_OK && i < queries * d->width; ++i)
        cdp__number_put(d->dtype, grad_q, i, cp->state[i / d->width * step + 2 + i % d->width]);
    if (st != CDP_OK || !own) return st;
    memcpy(grad_k, cp->pack_grad, (size_t)(own * elem));
    memcpy(grad_v, (uint8_t *)cp->pack_grad + own * elem, (size_t)(own * elem));
    return CDP_OK;
}

CDP_API void cdp_cp_merge(
    float *out, float *lse, const float *out_b, const float *lse_b, uint64_t rows, uint64_t width) {
    for (uint64_t i = 0; i < rows; ++i) {
        const double a = (double)lse[i], b = (double)lse_b[i];
        const bool no_a = a == -(double)INFINITY, no_b = b == -(double)INFINITY; /* no key yet */
        const double most = a > b ? a : b;
        if (no_b) continue;
        const double x = no_a ? 0 : cdp__dt_exp(a - most), y = cdp__dt_exp(b - most);
        for (uint64_t d = i * width; d < (i + 1) * width; ++d)
            out[d] = (float)((x * (no_a ? 0 : (double)out[d]) + y * (double)out_b[d]) / (x + y));
        lse[i] = (float)(most + cdp__dt_ln(x + y));
    }
}

#endif /* CDP_NO_TENSOR_OPS */

#endif /* CDP_SRC_DTENSOR_ATTENTION_H */
