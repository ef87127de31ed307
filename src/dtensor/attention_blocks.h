/* dtensor/attention_blocks.h - attention in a kernel of the program

   Knows: chunks of queries, keys and values, and a kernel. Promises: the kernel sees chunks of one
   sequence that follow one another in memory, of which it uses all, or a triangle; results of
   chunks are merged in f64. */
#ifndef CDP_SRC_DTENSOR_ATTENTION_BLOCKS_H
#define CDP_SRC_DTENSOR_ATTENTION_BLOCKS_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../base/helpers.h"
#include "../dtype/convert.h"
#include "context_parallel_api.h"
#include "kit.h"
#include "kernels.h"
#include "grid.h"
#include "rows.h"
#include "rings.h"

#ifndef CDP_NO_TENSOR_OPS

/* Constants of one call. Rows are positions of all sequences of the batch. */
typedef struct cdp__dt_heads {
    const cdp_cp *cp;
    const void *q, *out, *grad_out;
    const void *lse;
    uint64_t start[2], size[2]; /* of the queries */
} cdp__dt_heads;

/* A chunk of queries and a chunk of keys of one sequence. Offsets are in elements. */
typedef struct cdp__dt_chunks {
    cdp_attention_block block;
    uint64_t query, q, k, v; /* query: number of the first query and head; q: of its vector */
} cdp__dt_chunks;

typedef cdp_status cdp__dt_chunks_use(
    const cdp__dt_heads *a, const cdp__dt_chunks *c, const void *kv, void *grad);

CDP__DT const void *cdp__dt_element(const cdp_attention_block *b, const void *x, uint64_t at) {
    return (const uint8_t *)x + at * cdp_dtype_size(b->dtype);
}

CDP__DT void *cdp__dt_element_of(const cdp_attention_block *b, void *x, uint64_t at) {
    return (uint8_t *)x + at * cdp_dtype_size(b->dtype);
}

/* The bytes that results of a block take. */
CDP__DT uint64_t cdp__dt_block_bytes(const cdp_cp *cp) {
    return cp->rows * cp->desc.heads * (cp->desc.width + 1) * cdp_dtype_size(cp->desc.dtype);
}

/* Merges the results of a block: it is as if its keys were one key with the score lse. */
CDP__DT void cdp__dt_merge_block(
    const cdp__dt_heads *a, const cdp__dt_chunks *c, const void *out, const void *lse) {
    const cdp_attention_block *b = &c->block;
    const uint64_t w = b->width;
    for (uint64_t i = 0; i < b->rows * b->heads; ++i) {
        const double score = cdp__number_get(b->dtype, lse, i);
        double *state = a->cp->state + (c->query + i) * (w + 2), shrink = 1, weight = 1;
        if (score == -(double)INFINITY) continue; /* no key weighs anything */
        if (score > state[0]) {
            shrink = state[1] > 0 ? cdp__dt_exp(state[0] - score) : 0;
            state[0] = score;
        } else {
            weight = cdp__dt_exp(score - state[0]);
        }
        state[1] = state[1] * shrink + weight;
        for (uint64_t x = 0; x < w; ++x)
            state[2 + x] =
                state[2 + x] * shrink + weight * cdp__number_get(b->dtype, out, i * w + x);
    }
}

CDP__DT cdp_status cdp__dt_kernel_forward(
    const cdp__dt_heads *a, const cdp__dt_chunks *c, const void *kv, void *grad) {
    const cdp_attention_kernel *kernel = &a->cp->desc.kernel;
    const cdp_attention_block *b = &c->block;
    void *out = a->cp->tiles, *lse = cdp__dt_element_of(b, out, b->rows * b->heads * b->width);
    (void)grad;
    const cdp_status st = kernel->forward(kernel->user, b, cdp__dt_element(b, a->q, c->q),
        cdp__dt_element(b, kv, c->k), cdp__dt_element(b, kv, c->v), out, lse);
    if (st == CDP_OK) cdp__dt_merge_block(a, c, out, lse);
    return st;
}

CDP__DT cdp_status cdp__dt_kernel_backward(
    const cdp__dt_heads *a, const cdp__dt_chunks *c, const void *kv, void *grad) {
    const cdp_attention_kernel *kernel = &a->cp->desc.kernel;
    const cdp_attention_block *b = &c->block;
    const uint64_t w = b->width, n = b->rows * b->heads;
    void *grad_q = a->cp->tiles;
    memset(grad_q, 0, (size_t)(n * w * cdp_dtype_size(b->dtype)));
    const cdp_status st = kernel->backward(kernel->user, b, cdp__dt_element(b, a->q, c->q),
        cdp__dt_element(b, kv, c->k), cdp__dt_element(b, kv, c->v),
        cdp__dt_element(b, a->out, c->q), cdp__dt_element(b, a->lse, c->query),
        cdp__dt_element(b, a->grad_out, c->q), grad_q, cdp__dt_element_of(b, grad, c->k),
        cdp__dt_element_of(b, grad, c->v));
    for (uint64_t i = 0; st == CDP_OK && i < n * w; ++i)
        a->cp->state[(c->query + i / w) * (w + 2) + 2 + i % w] +=
            cdp__number_get(b->dtype, grad_q, i);
    return st;
}

/* Uses the chunks of one sequence: x of the queries and y of the keys. start, size: of all keys. */
CDP__DT cdp_status cdp__dt_chunks_pair(const cdp__dt_heads *a, uint64_t batch, uint32_t x,
    uint32_t y, const uint64_t start[2], const uint64_t size[2], const void *kv, void *grad,
    cdp__dt_chunks_use *use) {
    const cdp_cp_desc *d = &a->cp->desc;
    const uint64_t keys = size[0] + size[1];
    cdp__dt_chunks c;
    if (!a->size[x] || !size[y] || (d->causal && a->start[x] < start[y])) return CDP_OK;
    memset(&c, 0, sizeof c);
    c.block.dtype = d->dtype;
    c.block.rows = a->size[x];
    c.block.keys = size[y];
    c.block.heads = d->heads;
    c.block.kv_heads = d->kv_heads;
    c.block.width = d->width;
    c.block.scale = d->scale;
    c.block.causal = d->causal && a->start[x] == start[y];
    c.query = (batch * a->cp->rows + (x ? a->size[0] : 0)) * d->heads;
    c.q = c.query * d->width;
    c.k = (batch * keys + (y ? size[0] : 0)) * d->kv_heads * d->width;
    c.v = d->batch * keys * d->kv_heads * d->width + c.k; /* behind the keys */
    return use(a, &c, kv, grad);
}

CDP__DT cdp_status cdp__dt_chunks_run(
    const cdp__dt_heads *a, uint32_t owner, const void *kv, void *grad, cdp__dt_chunks_use *use) {
    uint64_t start[2], size[2];
    cdp_status st = CDP_OK;
    (void)cdp_cp_rows(&a->cp->desc, owner, start, size);
    for (uint64_t batch = 0; batch < a->cp->desc.batch; ++batch)
        for (uint32_t k = 0; st == CDP_OK && k < 4; ++k)
            st = cdp__dt_chunks_pair(a, batch, k / 2, k % 2, start, size, kv, grad, use);
    return st;
}

#endif /* CDP_NO_TENSOR_OPS */

#endif /* CDP_SRC_DTENSOR_ATTENTION_BLOCKS_H */
