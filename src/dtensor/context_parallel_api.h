/* dtensor/context_parallel_api.h - attention over a cut sequence */
#ifndef CDP_SRC_DTENSOR_CONTEXT_PARALLEL_API_H
#define CDP_SRC_DTENSOR_CONTEXT_PARALLEL_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "mesh_api.h"

#ifndef CDP_NO_TENSOR_OPS

/* A part of attention: queries of one sequence, [rows, heads, width], to keys and values of it,
   [keys, kv_heads, width]. Query head h uses key head h / (heads / kv_heads). Scores are
   scale x q k. */
typedef struct cdp_attention_block {
    cdp_dtype dtype;     /* of all arrays: f32 or f64 */
    uint64_t rows, keys; /* 1 or more */
    uint64_t heads, kv_heads, width;
    double scale;
    bool causal; /* query i attends to keys 0 to i, rows == keys; false: to all keys */
} cdp_attention_block;

/* The loops of attention in a kernel of your own, which may use threads or a library. forward
   writes out [rows, heads, width], normalised over the keys of the block, and lse [rows, heads],
   the log of the sums of exponentials of scores; -infinity if these are 0: out is not read then.
   backward adds to grad_q, grad_k and grad_v. Its out, grad_out and lse are those of the whole
   sequence: the weight of a key is exp(score - lse). NULL: plain loops. Blocks of a call come one
   after the other, from the thread that calls. After an error, blocks of this call are left out,
   the call returns it on this rank, and gradients to which this rank should have added are NaN on
   theirs. */
typedef struct cdp_attention_kernel {
    cdp_status (*forward)(void *user, const cdp_attention_block *block, const void *q,
        const void *k, const void *v, void *out, void *lse);
    cdp_status (*backward)(void *user, const cdp_attention_block *block, const void *q,
        const void *k, const void *v, const void *out, const void *lse, const void *grad_out,
        void *grad_q, void *grad_k, void *grad_v);
    void *user;
} cdp_attention_kernel;

/* Each rank holds some positions of a sequence: their queries stay, keys and values of all
   others come to it. Plain: positions follow the chunk rule. Causal: the sequence is divided into
   2n chunks, and rank i holds chunks i and 2n-1-i, in this order, so that all have equal work. */
typedef struct cdp_cp_desc {
    cdp_mesh *mesh;    /* of one dimension */
    uint64_t length;   /* of the whole sequence; causal: a multiple of 2n */
    bool causal;       /* a query attends to its own and to earlier positions */
    bool gather;       /* gather all keys and values at once, instead of passing them on */
    uint64_t batch;    /* sequences (default: 1) */
    uint64_t heads;    /* of queries */
    uint64_t kv_heads; /* of keys and values; divides heads (default: heads) */
    uint64_t width;    /* of a head */
    double scale;      /* of scores (default: 1 / sqrt(width)) */
    cdp_dtype dtype;   /* f32 (default) or f64 */
    cdp_attention_kernel kernel; /* (default: plain loops) */
} cdp_cp_desc;

typedef struct cdp_cp cdp_cp;

/* Make the buffers of such an attention. Local. Errors: INVALID (a sentence names the member: a
   length that does not divide, heads that do not), UNSUPPORTED (dtype), NOMEM. */
CDP_MUST_CHECK CDP_API cdp_status cdp_cp_create(const cdp_cp_desc *desc, cdp_cp **out);
/* Local; NULL is allowed. A second call does nothing but set cdp_last_error() (STATE). */
CDP_API void cdp_cp_destroy(cdp_cp *cp);

/* Which positions the rank at coordinate `coord` holds: [start, start + size) twice, in this
   order; plain: the second is empty. Returns how many; 0 if desc is not valid. Pure. */
CDP_API uint64_t cdp_cp_rows(
    const cdp_cp_desc *desc, uint32_t coord, uint64_t start[2], uint64_t size[2]);

/* Attention of this rank's queries to the whole sequence, in plain loops or desc.kernel. q and out:
   [batch, positions, heads, width]; k and v: [batch, positions, kv_heads, width]; lse (log of the
   sums of exponentials, which backward needs): [batch, positions, heads]. Gradients are written.
   While a block is computed the next one travels. Nothing is allocated. Collective. Errors:
   INVALID (an array is NULL), STATE (on paper), that of the kernel, the failure of the group. */
CDP_MUST_CHECK CDP_API cdp_status cdp_cp_attention(
    cdp_cp *cp, const void *q, const void *k, const void *v, void *out, void *lse);
CDP_MUST_CHECK CDP_API cdp_status cdp_cp_attention_backward(cdp_cp *cp, const void *q,
    const void *k, const void *v, const void *out, const void *lse, const void *grad_out,
    void *grad_q, void *grad_k, void *grad_v);

/* The ring by itself, for kernels of one's own. kv: this rank's keys and values, any bytes,
   `bytes` on every rank (of the largest piece where they differ). block() is called for each
   rank's, its own first, then those of the ranks before it. grad (NULL: none): one buffer of the
   dtype for each kv, `grad_count` elements, cleared at first; block() adds to it, it travels on
   with the next kv, and the sum of all ranks comes back to its owner in `grad`. An error of
   block() is returned after the ring has ended; it is not called again then, and gradients to which
   this rank should have added are NaN on theirs. Collective. */
typedef cdp_status cdp_cp_block(void *user, uint32_t owner, const void *kv, void *grad);
/* One turn of that ring, with block() called once for every rank. */
CDP_MUST_CHECK CDP_API cdp_status cdp_cp_ring(cdp_cp *cp, const void *kv, uint64_t bytes,
    void *grad, uint64_t grad_count, cdp_cp_block *block, void *user);

/* Merge two attention results over different keys: out [rows, width] and lse [rows] become those
   over both. Each lse is the log of the sum of exponentials of its scores, -infinity if it saw no
   key. Pure. */
CDP_API void cdp_cp_merge(
    float *out, float *lse, const float *out_b, const float *lse_b, uint64_t rows, uint64_t width);

#endif /* CDP_NO_TENSOR_OPS */

#endif /* CDP_SRC_DTENSOR_CONTEXT_PARALLEL_API_H */
