/* ddp/hooks_topk.h - sends only the largest values

   Knows: magnitudes of floats as bits. Promises: selects exactly k values; of equal ones, the
   first. */
#ifndef CDP_SRC_DDP_HOOKS_TOPK_H
#define CDP_SRC_DDP_HOOKS_TOPK_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../group/group_api.h"
#include "../group/collectives_api.h"
#include "hooks_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "../dtype/reduce.h"
#include "../group/collective_calls.h"
#include "../dtype/numbers.h"
#include "hooks.h"

#ifndef CDP_NO_HOOKS

/* A kernel over two arrays of CDP__BLOCK values. */
typedef void (*cdp__pair_kernel)(float *CDP__RESTRICT a, float *CDP__RESTRICT b);

/* Runs a kernel over n values; an incomplete block is copied to a full one. */
CDP__PRIVATE void cdp__pair_run(cdp__pair_kernel k, float *a, float *b, uint64_t n) {
    float rest[2][CDP__BLOCK] = {{0}};
    for (; n >= CDP__BLOCK; n -= CDP__BLOCK, a += CDP__BLOCK, b += CDP__BLOCK)
        k(a, b);
    if (!n) return;
    memcpy(rest[0], a, (size_t)n * sizeof *a);
    memcpy(rest[1], b, (size_t)n * sizeof *b);
    k(rest[0], rest[1]);
    memcpy(a, rest[0], (size_t)n * sizeof *a);
    memcpy(b, rest[1], (size_t)n * sizeof *b);
}

/* Error feedback before compression: x += error, and error = x. */
CDP__PRIVATE void cdp__feed_back(float *CDP__RESTRICT x, float *CDP__RESTRICT error) {
    uint32_t i;
    for (i = 0; i < CDP__BLOCK; ++i) {
        const float sum = x[i] + error[i];
        x[i] = sum;
        error[i] = sum;
    }
}

/* Without error feedback, before compression: error = x. */
CDP__PRIVATE void cdp__feed_none(float *CDP__RESTRICT x, float *CDP__RESTRICT error) {
    memcpy(error, x, CDP__BLOCK * sizeof *x);
}

/* Error feedback after compression: error -= x. */
CDP__PRIVATE void cdp__feed_left(float *CDP__RESTRICT x, float *CDP__RESTRICT error) {
    uint32_t i;
    for (i = 0; i < CDP__BLOCK; ++i)
        error[i] -= x[i];
}

/* size = bits of |x|, which order like the magnitudes, with NaN as the largest. */
CDP__PRIVATE void cdp__magnitudes(float *CDP__RESTRICT x, float *CDP__RESTRICT size) {
    uint32_t i;
    for (i = 0; i < CDP__BLOCK; ++i) {
        uint32_t bits;
        memcpy(&bits, &x[i], 4);
        bits &= CDP__SIZE_BITS;
        memcpy(&size[i], &bits, 4);
    }
}

/* The k-th largest of n magnitudes (k from 0; floats as bits without their sign). A radix
   selection: counts digits of 9, 11 and 11 bits. n must be below 2^32. */
CDP__PRIVATE uint32_t cdp__topk_threshold(const uint32_t *x, uint64_t n, uint64_t k) {
    static const uint32_t above[3] = {0, 22, 11}, shift[3] = {22, 11, 0};
    uint32_t counts[2048], found = 0, step, d;
    uint64_t i;
    CDP_ASSERT(!(n >> 32));
    for (step = 0; step < 3 && n; ++step) {
        memset(counts, 0, sizeof counts);
        for (i = 0; i < n; ++i)
            if (!step || x[i] >> above[step] == found >> above[step])
                ++counts[x[i] >> shift[step] & 2047];
        for (d = 2047; counts[d] <= k; --d)
            k -= counts[d];
        found |= d << shift[step];
    }
    return found;
}

/* Writes (index, value) of the k largest values to `own`, and removes these values from `error`. */
CDP__PRIVATE void cdp__topk_select(
    const float *x, const uint32_t *size, uint64_t n, uint64_t k, uint32_t *own, float *error) {
    const uint32_t limit = k ? cdp__topk_threshold(size, n, k - 1) : 0;
    uint64_t i, above = 0, at = 0;
    for (i = 0; i < n; ++i)
        above += size[i] > limit;
    for (i = 0; i < n && at < k; ++i) {
        if (size[i] < limit || (size[i] == limit && above >= k)) continue;
        if (size[i] == limit) ++above;
        own[2 * at] = (uint32_t)i;
        memcpy(&own[2 * at + 1], &x[i], 4);
        error[i] = 0;
        ++at;
    }
    CDP_ASSERT(at == k);
}

/* Scratch memory holds the (index, value) pairs of all ranks, then magnitudes. */
CDP__PRIVATE cdp_status cdp__hook_topk(
    cdp__hook *h, cdp__slot *s, cdp_bucket *b, uint32_t stage, cdp_request *op) {
    const uint64_t n = b->count, k = cdp__min(n, (uint64_t)((double)n / h->desc.ratio) + 1),
                   world = cdp_size(b->group);
    float *x = (float *)b->data, *error;
    uint32_t *pairs, *size;
    uint64_t i;
    if (n >> 32)
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "top-k: a bucket has more than 2^32 values; make bucket_bytes smaller");
    if (!cdp__hook_memory(h, &s->scratch, &s->scratch_bytes, world * k * 8 + n * 4)
        || !cdp__hook_memory(h, &s->error, &s->error_bytes, n * 4))
        return cdp__fail_nomem("a sparse bucket", n * 8);
    pairs = (uint32_t *)(void *)s->scratch;
    size = pairs + world * k * 2;
    error = (float *)(void *)s->error;
    if (!stage) {
        cdp__pair_run(h->desc.no_error_feedback ? cdp__feed_none : cdp__feed_back, x, error, n);
        cdp__pair_run(cdp__magnitudes, x, (float *)(void *)size, n);
        cdp__topk_select(x, size, n, k, pairs + cdp_rank(b->group) * k * 2, error);
        cdp__hook_recover(h, s, b, error);
        *op = cdp__request_of(
            CDP_COLL_ALLGATHER, NULL, pairs, 2 * k, CDP_DTYPE_U32, CDP_REDUCE_DEFAULT, 0);
        return CDP_PENDING;
    }
    memset(x, 0, (size_t)n * 4);
    for (i = 0; i < world * k; ++i) {
        float v;
        memcpy(&v, &pairs[2 * i + 1], 4);
        if (pairs[2 * i] < n) x[pairs[2 * i]] += v;
    }
    cdp__divide_by(CDP_DTYPE_F32, x, n, b->divisor);
    return CDP_OK;
}

#endif /* CDP_NO_HOOKS */

#endif /* CDP_SRC_DDP_HOOKS_TOPK_H */
