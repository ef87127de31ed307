/* dtype/slices.h - combines the slices of all ranks along one tree (pure)

   Knows: the arithmetic of each dtype. Promises: the same bits for the same slices, however they
   are cut; where a wider dtype is asked for, one rounding. */
#ifndef CDP_SRC_DTYPE_SLICES_H
#define CDP_SRC_DTYPE_SLICES_H

#include "../base/config.h"
#include "../base/types_api.h"
#include "../base/compiler.h"
#include "../base/helpers.h"
#include "dtype.h"
#include "reduce.h"
#include "convert.h"

#ifndef CDP_NO_REPRODUCIBLE

/* The slices of all ranks, in the order of the ranks. */
typedef struct cdp__slices {
    const uint8_t *data;
    uint64_t stride; /* bytes from one slice to the next */
    uint32_t count;
    uint32_t pairs;  /* of the first ranks, which fold as in recursive doubling */
    cdp_dtype dtype; /* no complex number: its parts are combined */
    cdp_dtype as;    /* the dtype of the partial results */
    bool rounds;     /* every partial result is rounded to `dtype` */
    cdp__kernel kernel;
} cdp__slices;

/* Returns where a block of a rank's slice lies as `as`: there, or in *c. */
CDP__PRIVATE const void *cdp__slices_leaf(
    const cdp__slices *s, uint32_t rank, uint64_t at, uint64_t n, cdp__carrier *c) {
    const uint64_t size = cdp__dtype_row_of(s->dtype)->bytes;
    const uint8_t *from = s->data + rank * s->stride + at * size;
    uint64_t rest[CDP__BLOCK];
    if (n == CDP__BLOCK && s->as == s->dtype) return from;
    if (n < CDP__BLOCK) {
        memset(rest, 0, sizeof rest);
        memcpy(rest, from, (size_t)(n * size));
        from = (const uint8_t *)rest;
    }
    if (s->as != s->dtype)
        cdp__carry_in(s->dtype, from, c);
    else
        memcpy(c, from, (size_t)(CDP__BLOCK * size));
    return c;
}

/* The block of a node of the tree, which combines 2^level ranks (after folding) from node *
   2^level on. One carrier per level is on the stack. */
CDP__PRIVATE const void *cdp__slices_node(
    const cdp__slices *s, uint32_t node, uint32_t level, uint64_t at, uint64_t n, cdp__carrier *c) {
    const void *left, *right;
    cdp__carrier other;
    if (!level && node >= s->pairs) return cdp__slices_leaf(s, node + s->pairs, at, n, c);
    if (level) {
        left = cdp__slices_node(s, 2 * node, level - 1, at, n, c);
        right = cdp__slices_node(s, 2 * node + 1, level - 1, at, n, &other);
    } else {
        left = cdp__slices_leaf(s, 2 * node, at, n, c);
        right = cdp__slices_leaf(s, 2 * node + 1, at, n, &other);
    }
    if (left != c) memcpy(c, left, (size_t)(CDP__BLOCK * cdp__dtype_row_of(s->as)->bytes));
    s->kernel(c, right, CDP__BLOCK / CDP__STRIP);
    if (s->rounds) {
        cdp__narrow_block(s->dtype, c->f, &other);
        cdp__widen_block(s->dtype, &other, c->f);
    }
    return c;
}

/* Stores the mean of a block of 64-bit integers, whose sum may need more bits than that: `high` and
   `low` are its two halves. */
CDP__PRIVATE void cdp__slices_mean_64(
    const cdp__slices *s, uint64_t at, uint64_t n, uint64_t *mean) {
    const bool has_sign = s->dtype == CDP_DTYPE_I64;
    const uint64_t by = s->count;
    uint64_t low[CDP__STRIP], high[CDP__STRIP], i;
    uint32_t r;
    memset(low, 0, sizeof low);
    memset(high, 0, sizeof high);
    for (r = 0; r < s->count; ++r) {
        const uint8_t *from = s->data + r * s->stride + at * 8;
        for (i = 0; i < n; ++i) {
            uint64_t x;
            memcpy(&x, from + i * 8, 8);
            low[i] += x;
            high[i] += (uint64_t)(low[i] < x) - (has_sign ? x >> 63 : 0);
        }
    }
    for (i = 0; i < n; ++i) {
        const bool negative = has_sign && high[i] >> 63;
        const uint64_t lo = negative ? 0 - low[i] : low[i];
        const uint64_t hi = negative ? ~high[i] + (lo == 0) : high[i];
        /* a division of two steps, because hi is less than the divisor, which has 32 bits */
        const uint64_t upper = hi << 32 | lo >> 32;
        const uint64_t lower = upper % by << 32 | (lo & 0xffffffffu);
        const uint64_t q = ((upper / by) << 32 | lower / by) + (lower % by > (by - 1) / 2);
        mean[i] = negative ? 0 - q : q;
    }
}

/* Combines the slices, of `n` elements each, into `out`, which may be no slice. AVG divides by
   their number. `as`: the dtype of cdp__reduced_as(); if it is not `t`, the result is rounded
   once. */
CDP__PRIVATE void cdp__slices_combine(cdp_dtype t, cdp_reduce_op op, cdp_dtype as, const void *data,
    uint64_t stride, uint32_t count, void *out, uint64_t n) {
    const bool bits = (CDP__OPS_BITS >> op & 1) != 0 && t != CDP_DTYPE_BOOL;
    const cdp_dtype of = bits ? CDP_DTYPE_U8 : t;
    const uint64_t bytes = n * cdp__dtype_row_of(t)->bytes;
    uint8_t *to = (uint8_t *)out;
    uint32_t level = 0;
    uint64_t rest[CDP__BLOCK], size, at, len;
    cdp__slices s;
    cdp__carrier c;
    while (2u << level <= count)
        ++level;
    s.data = (const uint8_t *)data;
    s.count = count;
    s.pairs = count - (1u << level);
    s.dtype = cdp__dtype_part(of);
    s.rounds = as == t && cdp__dtype_is_narrow(t);
    s.as = s.dtype;
    if (s.rounds || as != t) {
        const cdp__carried carried = cdp__carried_as(s.dtype);
        s.as = carried == CDP__AS_F32 ? CDP_DTYPE_F32 : CDP_DTYPE_I64;
        if (carried == CDP__AS_U64) s.as = CDP_DTYPE_U64;
    }
    s.kernel = cdp__kernel_of(s.as == s.dtype ? of : s.as, op, false);
    s.stride = stride * cdp__dtype_row_of(t)->bytes;
    size = cdp__dtype_row_of(s.dtype)->bytes;
    n = bytes / size;
    for (at = 0; at < n; at += len) {
        const void *result = &c;
        len = cdp__min(n - at, CDP__BLOCK);
        if (op == CDP_REDUCE_AVG && size == 8 && !cdp__dtype_is_float(s.dtype)) {
            len = cdp__min(len, CDP__STRIP);
            cdp__slices_mean_64(&s, at, len, c.u);
        } else {
            result = cdp__slices_node(&s, 0, level, at, len, &c);
            if (op == CDP_REDUCE_AVG) cdp__divide(s.as, &c, CDP__BLOCK, count);
        }
        if (s.as != s.dtype) {
            cdp__carry_out(s.dtype, &c, rest);
            result = rest;
        }
        memcpy(to + at * size, result, (size_t)(len * size));
    }
}

#endif /* CDP_NO_REPRODUCIBLE */

#endif /* CDP_SRC_DTYPE_SLICES_H */
