/* ddp/hooks_sign.h - sends one bit of each value

   Knows: signSGD with error feedback (Karimireddy, Rebjock, Stich and Jaggi 2019). Promises: the
   same bits on every rank. */
#ifndef CDP_SRC_DDP_HOOKS_SIGN_H
#define CDP_SRC_DDP_HOOKS_SIGN_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../group/group_api.h"
#include "../group/collectives_api.h"
#include "hooks_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "../group/collective_calls.h"
#include "../dtype/numbers.h"
#include "hooks.h"
#include "hooks_topk.h"

#ifndef CDP_NO_HOOKS

/* The mean of n magnitudes; NaN if one of them is not finite. */
CDP__PRIVATE float cdp__sign_scale(const float *x, uint64_t n) {
    static const uint32_t nan_bits = 0x7fc00000u;
    double lanes[8] = {0}, sum = 0;
    float scale;
    uint64_t i;
    uint32_t k;
    if (cdp__is_wild(x, n)) {
        memcpy(&scale, &nan_bits, sizeof scale);
        return scale;
    }
    for (i = 0; i + 8 <= n; i += 8)
        for (k = 0; k < 8; ++k)
            lanes[k] += x[i + k] < 0 ? -(double)x[i + k] : (double)x[i + k];
    for (; i < n; ++i)
        sum += x[i] < 0 ? -(double)x[i] : (double)x[i];
    for (k = 0; k < 8; ++k)
        sum += lanes[k];
    return n ? (float)(sum / (double)n) : 0;
}

/* Up to 32 values: 1 for a negative one. */
CDP__PRIVATE uint32_t cdp__sign_pack(const float *x, uint64_t n) {
    uint32_t bits[32] = {0}, word = 0, i;
    memcpy(bits, x, (size_t)cdp__min(n, 32) * 4);
    for (i = 0; i < 32; ++i)
        word |= bits[i] >> 31 << i;
    return word;
}

/* Adds the signs of n values times `scale` to x. */
CDP__PRIVATE void cdp__sign_add(float *x, uint64_t n, const uint32_t *words, float scale) {
    float values[32];
    uint64_t at;
    uint32_t plus, i;
    memcpy(&plus, &scale, 4);
    for (at = 0; at < n; at += 32) {
        const uint32_t word = words[at / 32], used = (uint32_t)cdp__min(n - at, 32);
        for (i = 0; i < 32; ++i) {
            const uint32_t bits = plus ^ (word >> i & 1) << 31;
            memcpy(&values[i], &bits, 4);
        }
        for (i = 0; i < used; ++i)
            x[at + i] += values[i];
    }
}

/* Scratch memory holds what all ranks send: a scale, then the signs in words of 32 bits. */
CDP__PRIVATE cdp_status cdp__hook_sign(
    cdp__hook *h, cdp__slot *s, cdp_bucket *b, uint32_t stage, cdp_request *op) {
    const uint64_t n = b->count, words = 1 + (n + 31) / 32, world = cdp_size(b->group);
    float *x = (float *)b->data, *error, scale;
    uint32_t *all, *own;
    uint64_t i;
    if (!cdp__hook_memory(h, &s->scratch, &s->scratch_bytes, world * words * 4)
        || !cdp__hook_memory(h, &s->error, &s->error_bytes, n * 4))
        return cdp__fail_nomem("the signs of a bucket", (world * words + n) * 4);
    all = (uint32_t *)(void *)s->scratch;
    own = all + cdp_rank(b->group) * words;
    error = (float *)(void *)s->error;
    if (!stage) {
        cdp__pair_run(h->desc.no_error_feedback ? cdp__feed_none : cdp__feed_back, x, error, n);
        scale = cdp__sign_scale(x, n);
        memcpy(&own[0], &scale, 4);
        for (i = 0; i < n; i += 32)
            own[1 + i / 32] = cdp__sign_pack(x + i, n - i);
        cdp__sign_add(error, n, own + 1, -scale);
        cdp__hook_recover(h, s, b, error);
        *op = cdp__request_of(
            CDP_COLL_ALLGATHER, NULL, all, words, CDP_DTYPE_U32, CDP_REDUCE_DEFAULT, 0);
        return CDP_PENDING;
    }
    memset(x, 0, (size_t)n * 4);
    for (i = 0; i < world; ++i) {
        memcpy(&scale, &all[i * words], 4);
        cdp__sign_add(x, n, all + i * words + 1, scale);
    }
    cdp__divide_by(CDP_DTYPE_F32, x, n, b->divisor);
    return CDP_OK;
}

#endif /* CDP_NO_HOOKS */

#endif /* CDP_SRC_DDP_HOOKS_SIGN_H */
