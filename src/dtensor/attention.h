/* dtensor/attention.h - products of tiles of the blocks of a ring

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
#include "rows.h"
#include "products.h"
#include "rings.h"
#include "attention_blocks.h"

#ifndef CDP_NO_TENSOR_OPS

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

#define CDP__DT_TILE 64u /* queries, and keys, that are multiplied together */

/* weights: scores become weights, beside the largest score and the sum of weights so far, which are
   state[0] and state[1]; returns what former sums are multiplied by. mix: to = to factor + x. */
#define CDP__DT_ATTEND(S, T)                                                          \
    CDP__DT double cdp__dt_weights_##S(T *x, uint64_t n, T scale, double *state) {    \
        cdp__dt_times_all_##S(x, n, scale);                                           \
        const double most = (double)cdp__dt_most_##S(x, n), before = state[0];        \
        double shrink = 1;                                                            \
        if (most > before) {                                                          \
            state[0] = most;                                                          \
            shrink = state[1] > 0 ? cdp__dt_exp(before - most) : 0;                   \
        }                                                                             \
        cdp__dt_exps_##S(x, x, n, (T)state[0]);                                       \
        state[1] = state[1] * shrink + cdp__dt_total_##S(x, n);                       \
        return shrink;                                                                \
    }                                                                                 \
    CDP__DT void cdp__dt_mix_##S(double *to, double factor, const T *x, uint64_t n) { \
        for (uint64_t i = 0; i < n; ++i)                                              \
            to[i] = to[i] * factor + (double)x[i];                                    \
    }                                                                                 \
    /* p = exp(score - lse); ds = p (dp - own) scale, in place of dp */               \
    CDP__DT void cdp__dt_slopes_##S(T *p, T *ds, uint64_t n, T scale, T lse, T own) { \
        cdp__dt_times_all_##S(p, n, scale);                                           \
        cdp__dt_exps_##S(p, p, n, lse);                                               \
        for (uint64_t i = 0; i < n; ++i)                                              \
            ds[i] = p[i] * (ds[i] - own) * scale;                                     \
    }
CDP__DT_ATTEND(f32, float)
CDP__DT_ATTEND(f64, double)
#undef CDP__DT_ATTEND

CDP__DT void cdp__dt_mix(cdp_dtype t, double *to, double factor, const void *x, uint64_t n) {
    if (t == CDP_DTYPE_F32)
        cdp__dt_mix_f32(to, factor, (const float *)x, n);
    else
        cdp__dt_mix_f64(to, factor, (const double *)x, n);
}

/* Some queries of one head and some keys of one owner, all of which they attend to. Offsets are in
   elements. */
typedef struct cdp__dt_tile {
    uint64_t query, q, k, v; /* query: number of the first query and head; q: of its vector */
    uint64_t rows, keys;
} cdp__dt_tile;

typedef void cdp__dt_tile_use(
    const cdp__dt_heads *a, const cdp__dt_tile *s, const void *kv, void *grad);

CDP__DT void *cdp__dt_tile_memory(const cdp_cp *cp, uint64_t which) {
    return (uint8_t *)cp->tiles
        + which * CDP__DT_TILE * CDP__DT_TILE * cdp_dtype_size(cp->desc.dtype);
}

/* One row of scores per query: the products of rows `x` with rows `y`. */
CDP__DT void cdp__dt_tile_scores(const cdp__dt_heads *a, const cdp__dt_tile *s, const void *x,
    const void *y, uint64_t y_at, void *scores) {
    const cdp_cp_desc *d = &a->cp->desc;
    const uint64_t elem = cdp_dtype_size(d->dtype);
    const cdp__dt_strides p = {s->rows, s->keys, d->width, d->heads * d->width, 1, 1,
        d->kv_heads * d->width, CDP__DT_TILE, false};
    cdp__dt_gemm_of(
        d->dtype, &p, (const uint8_t *)x + s->q * elem, (const uint8_t *)y + y_at * elem, scores);
}

/* The sums of rows of keys or values, by weights: a row per query. */
CDP__DT void cdp__dt_tile_sums(const cdp__dt_heads *a, const cdp__dt_tile *s, const void *weights,
    const void *kv, uint64_t at, void *sums) {
    const cdp_cp_desc *d = &a->cp->desc;
    const cdp__dt_strides p = {
        s->rows, d->width, s->keys, CDP__DT_TILE, 1, d->kv_heads * d->width, 1, d->width, false};
    cdp__dt_gemm_of(
        d->dtype, &p, weights, (const uint8_t *)kv + at * cdp_dtype_size(d->dtype), sums);
}

/* Adds to rows of a gradient of keys or values: sums of rows of queries, by weights. */
CDP__DT void cdp__dt_tile_add(const cdp__dt_heads *a, const cdp__dt_tile *s, const void *weights,
    const void *x, void *grad, uint64_t at) {
    const cdp_cp_desc *d = &a->cp->desc;
    const uint64_t elem = cdp_dtype_size(d->dtype);
    const cdp__dt_strides p = {s->keys, d->width, s->rows, 1, CDP__DT_TILE, d->heads * d->width, 1,
        d->kv_heads * d->width, true};
    cdp__dt_gemm_of(
        d->dtype, &p, weights, (const uint8_t *)x + s->q * elem, (uint8_t *)grad + at * elem);
}

CDP__DT double *cdp__dt_tile_state(const cdp__dt_heads *a, const cdp__dt_tile *s, uint64_t row) {
    const cdp_cp_desc *d = &a->cp->desc;
    return a->cp->state + (s->query + row * d->heads) * (d->width + 2);
}

CDP__DT void cdp__dt_tile_forward(
    const cdp__dt_heads *a, const cdp__dt_tile *s, const void *kv, void *grad) {
    const cdp_cp_desc *d = &a->cp->desc;
    const uint64_t elem = cdp_dtype_size(d->dtype);
    uint8_t *weights = (uint8_t *)cdp__dt_tile_memory(a->cp, 0);
    uint8_t *sums = (uint8_t *)cdp__dt_tile_memory(a->cp, 2);
    double shrink[CDP__DT_TILE];
    (void)grad;
    cdp__dt_tile_scores(a, s, a->q, kv, s->k, weights);
    for (uint64_t i = 0; i < s->rows; ++i) {
        void *row = weights + i * CDP__DT_TILE * elem;
        double *state = cdp__dt_tile_state(a, s, i);
        shrink[i] = d->dtype == CDP_DTYPE_F32
            ? cdp__dt_weights_f32((float *)row, s->keys, (float)d->scale, state)
            : cdp__dt_weights_f64((double *)row, s->keys, d->scale, state);
    }
    cdp__dt_tile_sums(a, s, weights, kv, s->v, sums);
    for (uint64_t i = 0; i < s->rows; ++i)
        cdp__dt_mix(d->dtype, cdp__dt_tile_state(a, s, i) + 2, shrink[i],
            sums + i * d->width * elem, d->width);
}

/* p = exp(score - lse); dv += p dout; ds = p (dout v - dout out) scale; dq += ds k; dk += ds q */
CDP__DT void cdp__dt_tile_backward(
    const cdp__dt_heads *a, const cdp__dt_tile *s, const void *kv, void *grad) {
    const cdp_cp_desc *d = &a->cp->desc;
    const uint64_t elem = cdp_dtype_size(d->dtype);
    uint8_t *p = (uint8_t *)cdp__dt_tile_memory(a->cp, 0);
    uint8_t *ds = (uint8_t *)cdp__dt_tile_memory(a->cp, 1);
    uint8_t *sums = (uint8_t *)cdp__dt_tile_memory(a->cp, 2);
    cdp__dt_tile_scores(a, s, a->q, kv, s->k, p);
    cdp__dt_tile_scores(a, s, a->grad_out, kv, s->v, ds);
    for (uint64_t i = 0; i < s->rows; ++i) {
        const uint64_t at = i * CDP__DT_TILE * elem;
        const double own = cdp__dt_tile_state(a, s, i)[0]; /* dout out: the same for all keys */
        const double lse = cdp__number_get(d->dtype, a->lse, s->query + i * d->heads);
        if (d->dtype == CDP_DTYPE_F32)
            cdp__dt_slopes_f32((float *)(void *)(p + at), (float *)(void *)(ds + at), s->keys,
                (float)d->scale, (float)lse, (float)own);
        else
            cdp__dt_slopes_f64((double *)(void *)(p + at), (double *)(void *)(ds + at), s->keys,
                d->scale, lse, own);
    }
    cdp__dt_tile_add(a, s, p, a->grad_out, grad, s->v);
    cdp__dt_tile_add(a, s, ds, a->q, grad, s->k);
    cdp__dt_tile_sums(a, s, ds, kv, s->k, sums);
    for (uint64_t i = 0; i < s->rows; ++i)
        cdp__dt_mix(
            d->dtype, cdp__dt_tile_state(a, s, i) + 2, 1, sums + i * d->width * elem, d->width);
}

/* One head of one sequence, and the keys of one owner. */
typedef struct cdp__dt_cover {
    const cdp__dt_heads *a;
    uint64_t start[2], size[2]; /* of the keys */
    uint64_t batch, head, keys;
    const void *kv;
    void *grad;
    cdp__dt_tile_use *use;
} cdp__dt_cover;

CDP__DT void cdp__dt_cover_tile(
    const cdp__dt_cover *c, uint64_t i, uint64_t rows, uint64_t j, uint64_t keys) {
    const cdp_cp_desc *d = &c->a->cp->desc;
    const uint64_t query = (c->batch * c->a->cp->rows + i) * d->heads + c->head;
    const uint64_t shared = d->heads / d->kv_heads;
    const uint64_t k = ((c->batch * c->keys + j) * d->kv_heads + c->head / shared) * d->width;
    const uint64_t values = d->batch * c->keys * d->kv_heads * d->width; /* behind the keys */
    const cdp__dt_tile s = {query, query * d->width, k, values + k, rows, keys};
    c->use(c->a, &s, c->kv, c->grad);
}

/* Covers queries i and keys j by tiles; causal: those keys alone that are not after a query,
   because a weight of 0 does not hide a value that is not finite. */
CDP__DT void cdp__dt_cover_run(
    const cdp__dt_cover *c, uint64_t i, uint64_t rows, uint64_t j, uint64_t keys) {
    uint64_t common = keys;
    if (c->a->cp->desc.causal) {
        const uint64_t first = cdp__dt_cp_at(c->a->start, c->a->size, i);
        const uint64_t last = cdp__dt_cp_at(c->a->start, c->a->size, i + rows - 1);
        while (common && cdp__dt_cp_at(c->start, c->size, j + common - 1) > first)
            --common;
        if (common < keys && rows > 1 && cdp__dt_cp_at(c->start, c->size, j + common) <= last) {
            cdp__dt_cover_run(c, i, rows / 2, j + common, keys - common);
            cdp__dt_cover_run(c, i + rows / 2, rows - rows / 2, j + common, keys - common);
        }
    }
    if (common) cdp__dt_cover_tile(c, i, rows, j, common);
}

CDP__DT cdp_status cdp__dt_tiles(
    const cdp__dt_heads *a, uint32_t owner, const void *kv, void *grad, cdp__dt_tile_use *use) {
    const cdp_cp_desc *d = &a->cp->desc;
    const uint64_t rows = a->cp->rows;
    cdp__dt_cover c;
    memset(&c, 0, sizeof c);
    c.a = a;
    c.kv = kv;
    c.grad = grad;
    c.use = use;
    c.keys = cdp_cp_rows(d, owner, c.start, c.size);
    for (; c.batch < d->batch; ++c.batch)
        for (c.head = 0; c.head < d->heads; ++c.head)
            for (uint64_t j = 0; j < c.keys; j += CDP__DT_TILE)
                for (uint64_t i = 0; i < rows; i += CDP__DT_TILE)
                    cdp__dt_cover_run(&c, i, cdp__min(rows - i, CDP__DT_TILE), j,
                        cdp__min(c.keys - j, CDP__DT_TILE));
    return CDP_OK;
}

CDP__DT cdp_status cdp__dt_block_forward(void *user, uint32_t owner, const void *kv, void *grad) {
    const cdp__dt_heads *a = (const cdp__dt_heads *)user;
    if (a->cp->desc.kernel.forward)
        return cdp__dt_chunks_run(a, owner, kv, grad, cdp__dt_kernel_forward);
    return cdp__dt_tiles(a, owner, kv, grad, cdp__dt_tile_forward);
}

CDP__DT cdp_status cdp__dt_block_backward(void *user, uint32_t owner, const void *kv, void *grad) {
    const cdp__dt_heads *a = (const cdp__dt_heads *)user;
    if (a->cp->desc.kernel.backward)
        return cdp__dt_chunks_run(a, owner, kv, grad, cdp__dt_kernel_backward);
    return cdp__dt_tiles(a, owner, kv, grad, cdp__dt_tile_backward);
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
    const bool own = d->kernel.forward || d->kernel.backward;
    const uint64_t tiles = cdp__max(
        CDP__DT_TILE * (2 * CDP__DT_TILE + d->width) * elem, own ? cdp__dt_block_bytes(cp) : 0);
    cp->tiles = cdp__dt_alloc(cp->os, tiles);
    if (!cp->tiles) return cdp__dt_nomem("attention", tiles);
    if (!cp->group) return CDP_OK;
    cdp_status st = cdp__dt_link_here(d->mesh->all);
    if (st != CDP_OK) return st;
    cp->pack = cdp__dt_group_memory(cp->group, kv * elem + 1);
    cp->pack_grad = cdp__dt_group_memory(cp->group, kv * elem + 1);
    if (!cp->pack || !cp->pack_grad) return cdp__dt_nomem("attention", 2 * kv * elem);
    if (cp->n == 1) return CDP_OK;
    const uint32_t copies = d->gather ? cp->n : 1, kinds = d->gather ? 1 : 2;
    for (uint32_t i = 0; st == CDP_OK && i < kinds; ++i) {
        st = cdp__dt_room_for(cp, &cp->kv[i], kv * elem * copies);
        if (st == CDP_OK) st = cdp__dt_room_for(cp, &cp->grad[i], kv * elem * copies);
    }
    if (st == CDP_OK && d->gather) st = cdp__dt_gather_plans(cp, kv * elem, kv);
    return st;
}

CDP_API void cdp_cp_destroy(cdp_cp *cp) {
    if (!cp || cdp__dt_alive(cp, "cdp_cp_destroy", "cp") != CDP_OK) return;
    cdp__ended_add(cp);
    const bool ended = cdp__dt_mesh_ended(cp->desc.mesh); /* then the group keeps them */
    cdp__dt_link *link = ended ? NULL : cp->desc.mesh->all;
    for (uint32_t i = 0; !ended && i < 2; ++i) {
        cdp__dt_retire(cp->root, link, cp->kv[i].at);
        cdp__dt_retire(cp->root, link, cp->grad[i].at);
    }
    if (!ended) cdp__dt_retire(cp->root, link, cp->pack);
    if (!ended) cdp__dt_retire(cp->root, link, cp->pack_grad);
    cdp_plan_destroy(cp->gather_plan);
    cdp_plan_destroy(cp->sum_plan);
    cdp__dt_free(cp->os, cp->state);
    cdp__dt_free(cp->os, cp->tiles);
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
    cdp__ended_remove(cp);
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
    cdp_status st = cdp__dt_alive(cp, call, "cp");
    if (st == CDP_OK && cp->rows) st = cdp__dt_all_given(call, arrays, count);
    return st == CDP_OK ? cdp__dt_cp_runs(cp, call) : st;
}

CDP_API cdp_status cdp_cp_attention(
    cdp_cp *cp, const void *q, const void *k, const void *v, void *out, void *lse) {
    cdp__dt_heads a;
    const cdp__dt_argument arrays[] = {{"q", q}, {"k", k}, {"v", v}, {"out", out}, {"lse", lse}};
    cdp_status st = cdp__dt_cp_ready(cp, "cdp_cp_attention", arrays, 5);
    if (st != CDP_OK || cp->me == CDP__DT_NONE) return st;
    const cdp_cp_desc *d = &cp->desc;
    const uint64_t queries = d->batch * cp->rows * d->heads, step = d->width + 2;
    const double least = d->dtype == CDP_DTYPE_F32 ? -(double)FLT_MAX : -DBL_MAX;
    memset(&a, 0, sizeof a);
    a.cp = cp;
    a.q = q;
    (void)cdp_cp_rows(d, cp->me, a.start, a.size);
    cdp__dt_cp_pack(cp, k, v);
    memset(cp->state, 0, (size_t)(queries * step * sizeof *cp->state));
    for (uint64_t i = 0; i < queries; ++i)
        cp->state[i * step] = least; /* a score of -infinity weighs nothing beside it */
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
    a.out = out;
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
