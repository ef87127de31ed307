/* train/optimizers.h - updates of parameters (pure)

   Knows: PyTorch's order of operations. Promises: each operation is rounded to f32, or, with fma,
   each pair of them; an element's result does not depend on its neighbours. */
#ifndef CDP_SRC_TRAIN_OPTIMIZERS_H
#define CDP_SRC_TRAIN_OPTIMIZERS_H

#include "optimizers_api.h"
#include "../base/compiler.h"
#include "../base/helpers.h"
#include "../base/text.h"
#include "../dtype/convert.h"
#include "../dtype/numbers.h"
#include "optimizer_defaults.h"
#include "precision.h"

#ifndef CDP_NO_TRAINING

/* The numbers that a step computes with, rounded from double once. */
typedef struct cdp__update_numbers {
    float scale, decay, shrink, lr, momentum, fresh, beta1, beta2, take1, take2, root, eps;
    bool first, has_decay, has_momentum, nesterov, amsgrad, centered, maximize;
} cdp__update_numbers;

/* Blocks have a constant length, which gcc -O2 vectorises; not so loops with square roots, which
   are therefore loops of their own. */
typedef struct cdp__update_block {
    float p[CDP__BLOCK], g[CDP__BLOCK], s[3][CDP__BLOCK], r[CDP__BLOCK];
} cdp__update_block;

/* a * b + c, rounded once. The product is exact in double; where the sum is not, its last bit is
   made odd, so that rounding it to float rounds the exact value (Boldo and Melquiond 2008). */
CDP__PRIVATE CDP__EXACT float cdp__fused(float a, float b, float c) {
    const double product = (double)a * (double)b, add = (double)c, sum = product + add;
    const double back = sum - product, lost = (product - (sum - back)) + (add - back);
    double odd = sum;
    uint64_t bits;
    if (lost == 0 || sum - sum != 0) return (float)sum;
    memcpy(&bits, &sum, 8);
    if (!(bits & 1)) bits += (lost > 0) == (sum > 0) ? 1 : (uint64_t)-1;
    memcpy(&odd, &bits, 8);
    return (float)odd;
}

CDP__PRIVATE CDP__EXACT_INLINE float cdp__madd(float a, float b, float c, bool fused) {
    const float product = a * b; /* a statement of its own: no compiler fuses it by default */
    return fused ? cdp__fused(a, b, c) : product + c;
}

/* Each pass below is one loop without branches, which vectorises. */
#define CDP__EACH_OF(target, value)    \
    for (i = 0; i < CDP__BLOCK; ++i) { \
        target[i] = value;             \
    }

/* Adds the decay of weights to the gradients. */
CDP__PRIVATE CDP__EXACT_INLINE void cdp__update_decay(
    const cdp__update_numbers *n, cdp__update_block *b, bool fused) {
    const float decay = n->decay;
    uint32_t i;
    if (n->maximize) CDP__EACH_OF(b->g, -b->g[i])
    if (n->has_decay) CDP__EACH_OF(b->g, cdp__madd(decay, b->p[i], b->g[i], fused))
}

/* Moves an average towards the gradients, from the nearer end, as PyTorch's lerp. */
CDP__PRIVATE CDP__EXACT_INLINE void cdp__update_average(
    float *average, const float *g, float take, bool fused) {
    const float back = take - 1;
    uint32_t i;
    if (take < 0.5f)
        CDP__EACH_OF(average, cdp__madd(take, g[i] - average[i], average[i], fused))
    else
        CDP__EACH_OF(average, cdp__madd(back, g[i] - average[i], g[i], fused))
}

CDP__PRIVATE CDP__EXACT_INLINE void cdp__update_sgd(
    const cdp__update_numbers *n, cdp__update_block *b, bool fused) {
    const float mu = n->momentum, fresh = n->fresh, lr = n->lr;
    float *const s = b->s[0];
    uint32_t i;
    cdp__update_decay(n, b, fused);
    if (n->has_momentum) {
        if (n->first)
            CDP__EACH_OF(s, b->g[i])
        else
            CDP__EACH_OF(s, cdp__madd(fresh, b->g[i], s[i] * mu, fused))
        if (n->nesterov)
            CDP__EACH_OF(b->g, cdp__madd(mu, s[i], b->g[i], fused))
        else
            CDP__EACH_OF(b->g, s[i])
    }
    CDP__EACH_OF(b->p, cdp__madd(lr, b->g[i], b->p[i], fused))
}

CDP__PRIVATE CDP__EXACT_INLINE void cdp__update_adam(
    const cdp__update_numbers *n, cdp__update_block *b, bool fused) {
    const float take2 = n->take2, beta2 = n->beta2, shrink = n->shrink;
    const float lr = n->lr, root = n->root, eps = n->eps;
    float *const m = b->s[0], *const v = b->s[1], *const most = b->s[2];
    uint32_t i;
    CDP__EACH_OF(b->p, b->p[i] * shrink)
    cdp__update_decay(n, b, fused);
    cdp__update_average(m, b->g, n->take1, fused);
    CDP__EACH_OF(v, cdp__madd(take2 * b->g[i], b->g[i], v[i] * beta2, fused))
    if (n->amsgrad) CDP__EACH_OF(most, CDP__HIGH_F(most[i], v[i]))
    CDP__EACH_OF(b->r, cdp__sqrtf(n->amsgrad ? most[i] : v[i]))
    CDP__EACH_OF(b->p, b->p[i] + (lr * m[i]) / (b->r[i] / root + eps))
}

CDP__PRIVATE CDP__EXACT_INLINE void cdp__update_adagrad(
    const cdp__update_numbers *n, cdp__update_block *b, bool fused) {
    const float lr = n->lr, eps = n->eps, initial = n->fresh;
    float *const s = b->s[0];
    uint32_t i;
    cdp__update_decay(n, b, fused);
    if (n->first) CDP__EACH_OF(s, initial)
    CDP__EACH_OF(s, cdp__madd(b->g[i], b->g[i], s[i], fused))
    CDP__EACH_OF(b->r, cdp__sqrtf(s[i]))
    CDP__EACH_OF(b->p, b->p[i] + (lr * b->g[i]) / (b->r[i] + eps))
}

CDP__PRIVATE CDP__EXACT_INLINE void cdp__update_rmsprop(
    const cdp__update_numbers *n, cdp__update_block *b, bool fused) {
    const float take = n->take1, alpha = n->beta1, mu = n->momentum, lr = n->lr, eps = n->eps;
    float *const v = b->s[0], *const c = b->s[1], *const m = b->s[2];
    uint32_t i;
    cdp__update_decay(n, b, fused);
    CDP__EACH_OF(v, cdp__madd(take * b->g[i], b->g[i], v[i] * alpha, fused))
    CDP__EACH_OF(b->r, v[i])
    if (n->centered) {
        cdp__update_average(c, b->g, take, fused);
        CDP__EACH_OF(b->r, cdp__madd(-c[i], c[i], v[i], fused))
    }
    CDP__EACH_OF(b->r, cdp__sqrtf(b->r[i]))
    if (n->has_momentum) {
        CDP__EACH_OF(m, cdp__madd(m[i], mu, b->g[i] / (b->r[i] + eps), false))
        CDP__EACH_OF(b->p, cdp__madd(lr, m[i], b->p[i], fused))
    } else
        CDP__EACH_OF(b->p, b->p[i] + (lr * b->g[i]) / (b->r[i] + eps))
}
#undef CDP__EACH_OF

CDP__PRIVATE CDP__EXACT void cdp__update_block_update(
    cdp_optim_kind kind, bool fma, const cdp__update_numbers *k, cdp__update_block *b) {
    switch (kind) {
    case CDP_OPTIM_SGD: fma ? cdp__update_sgd(k, b, true) : cdp__update_sgd(k, b, false); break;
    case CDP_OPTIM_ADAM:
    case CDP_OPTIM_ADAMW: fma ? cdp__update_adam(k, b, true) : cdp__update_adam(k, b, false); break;
    case CDP_OPTIM_ADAGRAD:
        fma ? cdp__update_adagrad(k, b, true) : cdp__update_adagrad(k, b, false);
        break;
    case CDP_OPTIM_RMSPROP:
        fma ? cdp__update_rmsprop(k, b, true) : cdp__update_rmsprop(k, b, false);
        break;
    default: break;
    }
}

/* x to a whole power. */
CDP__PRIVATE double cdp__power(double x, uint64_t n) {
    double y = 1;
    for (; n; n >>= 1, x *= x)
        if (n & 1) y *= x;
    return y;
}

CDP__PRIVATE cdp__update_numbers cdp__update_numbers_of(const cdp_optim *o, double scale) {
    const cdp__optim_default d = cdp__optim_default_of(o->kind);
    const bool adam = o->kind == CDP_OPTIM_ADAM || o->kind == CDP_OPTIM_ADAMW;
    const double lr = cdp__optim_or(o->lr, d.lr);
    const double beta1 = adam ? cdp__optim_or(o->beta1, d.beta1) : cdp__optim_or(o->alpha, d.alpha);
    const double beta2 = cdp__optim_or(o->beta2, d.beta2);
    const double momentum = cdp__optim_or(o->momentum, 0);
    const double decay = cdp__optim_or(o->weight_decay, d.weight_decay);
    double rate = lr;
    cdp__update_numbers k;
    memset(&k, 0, sizeof k);
    if (adam) rate = lr / (1 - cdp__power(beta1, o->step));
    if (o->kind == CDP_OPTIM_ADAGRAD)
        rate = lr / (1 + (double)(o->step - 1) * cdp__optim_or(o->lr_decay, 0));
    k.scale = scale != 0 ? (float)scale : 1;
    k.has_decay = decay != 0 && o->kind != CDP_OPTIM_ADAMW;
    k.decay = (float)decay;
    k.shrink = o->kind == CDP_OPTIM_ADAMW ? (float)(1 - lr * decay) : 1;
    k.lr = (float)-rate;
    k.momentum = (float)momentum;
    k.has_momentum = momentum != 0;
    k.fresh = o->kind == CDP_OPTIM_ADAGRAD ? (float)cdp__optim_or(o->initial, 0)
                                           : (float)(1 - cdp__optim_or(o->dampening, 0));
    k.beta1 = (float)beta1;
    k.beta2 = (float)beta2;
    k.take1 = (float)(1 - beta1);
    k.take2 = (float)(1 - beta2);
    k.root = (float)cdp__sqrt(1 - cdp__power(beta2, o->step));
    k.eps = (float)cdp__optim_or(o->eps, d.eps);
    k.first = o->step == 1;
    k.nesterov = o->nesterov;
    k.amsgrad = o->amsgrad;
    k.centered = o->centered;
    k.maximize = o->maximize;
    return k;
}

/* The kept arrays of an optimizer, one bit each. */
CDP__PRIVATE uint32_t cdp__update_kept(const cdp_optim *o) {
    const bool momentum = cdp__optim_or(o->momentum, 0) != 0;
    switch (o->kind) {
    case CDP_OPTIM_SGD: return momentum ? 1 : 0;
    case CDP_OPTIM_ADAM:
    case CDP_OPTIM_ADAMW: return o->amsgrad ? 7 : 3;
    case CDP_OPTIM_ADAGRAD: return 1;
    case CDP_OPTIM_RMSPROP: return 1u | (o->centered ? 2u : 0) | (momentum ? 4u : 0);
    default: return 0;
    }
}

CDP_API uint32_t cdp_optim_states(const cdp_optim *o) {
    uint32_t kept = o ? cdp__update_kept(o) : 0, n = 0;
    for (; kept; kept &= kept - 1)
        ++n;
    return n;
}

CDP__PRIVATE cdp_status cdp__update_check(const cdp_optim *o, const cdp_optim_range *r) {
    const cdp_dtype dtypes[2] = {r->grad_dtype, r->compute ? r->compute_dtype : CDP_DTYPE_DEFAULT};
    uint32_t i;
    if (!cdp__update_kept(o) && o->kind != CDP_OPTIM_SGD)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_optim_update: kind %d is not SGD, ADAM, ADAMW, ADAGRAD or RMSPROP", (int)o->kind);
    if (!o->step)
        return cdp__fail(CDP_ERR_INVALID, "cdp_optim_update: step is 0; the first one is 1");
    if (o->nesterov
        && (o->kind != CDP_OPTIM_SGD || !cdp__update_kept(o)
            || cdp__optim_or(o->dampening, 0) != 0))
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_optim_update: nesterov is for SGD with momentum and without dampening");
    if (!(r->scale >= 0))
        return cdp__fail(CDP_ERR_INVALID, "cdp_optim_update: range.scale is negative or NaN");
    if (r->count && !r->param) return cdp__missing("cdp_optim_update", "range.param");
    if (r->count && !r->grad) return cdp__missing("cdp_optim_update", "range.grad");
    for (i = 0; i < cdp_optim_states(o) && r->count; ++i)
        if (!r->state[i])
            return cdp__fail(CDP_ERR_INVALID, "cdp_optim_update: range.state[%u] is NULL", i);
    for (i = 0; i < 2; ++i)
        if (!cdp__dtype_is_float(dtypes[i]) || cdp__dtype_left_out(dtypes[i]))
            return cdp__fail(CDP_ERR_UNSUPPORTED, "cdp_optim_update: range.%s is %s",
                i ? "compute_dtype" : "grad_dtype", cdp_dtype_name(dtypes[i]));
    if (r->round && (!r->compute || !cdp__dtype_is_narrow(r->compute_dtype)))
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "cdp_optim_update: range.round is for a copy of f16, bf16 or f8; leave it NULL");
    return CDP_OK;
}

/* Reads a block's elements, or writes what became of them. */
CDP__PRIVATE void cdp__update_load(const cdp_optim_range *r, uint32_t kept, uint64_t at, uint64_t n,
    float scale, cdp__update_block *b) {
    const uint64_t size = cdp__dtype_row_of(r->grad_dtype)->bytes;
    uint32_t i, given = 0;
    memcpy(b->p, r->param + at, (size_t)n * sizeof *b->p);
    if (cdp__def(r->grad_dtype, CDP_DTYPE_F32) == CDP_DTYPE_F32)
        memcpy(b->g, (const float *)r->grad + at, (size_t)n * sizeof *b->g);
    else
        cdp__convert(r->grad_dtype, (const uint8_t *)r->grad + at * size, CDP_DTYPE_F32, b->g, n);
    for (i = 0; i < CDP__BLOCK; ++i)
        b->g[i] *= scale;
    for (i = 0; i < 3; ++i)
        if (kept >> i & 1) memcpy(b->s[i], r->state[given++] + at, (size_t)n * sizeof *b->p);
}

CDP__PRIVATE void cdp__update_store(
    const cdp_optim_range *r, uint32_t kept, uint64_t at, uint64_t n, const cdp__update_block *b) {
    uint8_t *copy = (uint8_t *)r->compute;
    uint32_t i, given = 0;
    memcpy(r->param + at, b->p, (size_t)n * sizeof *b->p);
    for (i = 0; i < 3; ++i)
        if (kept >> i & 1) memcpy(r->state[given++] + at, b->s[i], (size_t)n * sizeof *b->p);
    if (!copy) return;
    copy += at * cdp__dtype_row_of(r->compute_dtype)->bytes;
    if (r->round)
        cdp__narrow_some(r->compute_dtype, r->round, at, b->p, copy, n);
    else
        cdp__convert(CDP_DTYPE_F32, b->p, r->compute_dtype, copy, n);
}

CDP_API cdp_status cdp_optim_update(const cdp_optim *o, const cdp_optim_range *r) {
    cdp__update_numbers k;
    cdp__update_block b;
    cdp_status st;
    uint64_t at, n;
    if (!o) return cdp__missing("cdp_optim_update", "optim");
    if (!r) return cdp__missing("cdp_optim_update", "range");
    st = cdp__update_check(o, r);
    if (st != CDP_OK) return st;
    k = cdp__update_numbers_of(o, r->scale);
    memset(&b, 0, sizeof b);
    for (at = 0; at < r->count; at += n) {
        n = cdp__min(r->count - at, CDP__BLOCK);
        cdp__update_load(r, cdp__update_kept(o), at, n, k.scale, &b);
        cdp__update_block_update(o->kind, o->fma, &k, &b);
        cdp__update_store(r, cdp__update_kept(o), at, n, &b);
    }
    return CDP_OK;
}

#endif /* CDP_NO_TRAINING */

#endif /* CDP_SRC_TRAIN_OPTIMIZERS_H */
