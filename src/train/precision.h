/* train/precision.h - conversion between dtypes, and the scale of a loss (pure)

   Knows: the table of dtypes. Promises: the same bits on every machine. */
#ifndef CDP_SRC_TRAIN_PRECISION_H
#define CDP_SRC_TRAIN_PRECISION_H

#include "precision_api.h"
#include "../base/compiler.h"
#include "../base/hash.h"
#include "../base/helpers.h"
#include "../base/text.h"
#include "../dtype/convert.h"

#ifndef CDP_NO_TRAINING

/* What rounding an f32 to a narrow dtype drops: so many bits of a regular number; and the exponent
   of the least regular one, below which more bits are dropped. */
typedef struct cdp__rounding {
    uint32_t drop, least;
} cdp__rounding;

CDP__PRIVATE cdp__rounding cdp__rounding_to(cdp_dtype t) {
    static const cdp__rounding f16 = {13, 113}, bf16 = {16, 1}, e4m3 = {20, 121}, e5m2 = {21, 113};
    if (t == CDP_DTYPE_F16) return f16;
    if (t == CDP_DTYPE_BF16) return bf16;
    return t == CDP_DTYPE_F8E4M3 ? e4m3 : e5m2;
}

/* The bits of an f32 without its sign, rounded: a random number is added to those that are
   dropped. */
CDP__PRIVATE uint32_t cdp__round_bits(cdp__rounding r, uint32_t mag, uint64_t random) {
    const uint32_t exponent = mag >> 23, shown = exponent ? exponent : 1;
    const uint32_t drop = r.drop + (shown < r.least ? r.least - shown : 0);
    const uint32_t mask = drop < 24 ? (1u << drop) - 1 : 0;
    const uint64_t part = (mag & 0x7fffffu) | (exponent ? 0x800000u : 0u);
    if (exponent == 255) return mag;
    if (drop < 24) return (mag + ((uint32_t)random & mask)) & ~mask;
    /* it lies between 0 and the least number that is not */
    if (drop > 56 || (random & ((1ull << drop) - 1)) >= part) return 0;
    return (r.least + r.drop - 23) << 23;
}

/* Rounds a block to numbers that the dtype has. */
CDP__PRIVATE void cdp__round_block(cdp_dtype t, const cdp_round *round, uint64_t at, float *block) {
    const uint64_t key = cdp__mix(round->seed + cdp__mix(round->step + 0x9e3779b97f4a7c15ull));
    const cdp__rounding r = cdp__rounding_to(t);
    uint32_t i, bits;
    for (i = 0; i < CDP__BLOCK; ++i) {
        const uint64_t random = cdp__mix(key + (round->first + at + i) * 0x9e3779b97f4a7c15ull);
        memcpy(&bits, &block[i], 4);
        bits = cdp__round_bits(r, bits & 0x7fffffffu, random) | (bits & 0x80000000u);
        memcpy(&block[i], &bits, 4);
    }
}

/* f32 to a narrow dtype; `n` is at most a block. */
CDP__PRIVATE void cdp__narrow_some(cdp_dtype t, const cdp_round *round, uint64_t at,
    const float in[CDP__BLOCK], void *out, uint64_t n) {
    float rounded[CDP__BLOCK];
    uint64_t whole[CDP__BLOCK / 4];
    memcpy(rounded, in, sizeof rounded);
    if (round) cdp__round_block(t, round, at, rounded);
    cdp__narrow_block(t, rounded, whole);
    memcpy(out, whole, (size_t)(n * cdp__dtype_row_of(t)->bytes));
}

CDP_API cdp_status cdp_convert(const void *in, cdp_dtype from, void *out, cdp_dtype to,
    uint64_t count, const cdp_round *round) {
    const uint64_t from_size = cdp__dtype_row_of(from)->bytes, size = cdp__dtype_row_of(to)->bytes;
    float block[CDP__BLOCK];
    uint64_t at, n;
    from = (cdp_dtype)cdp__def(from, CDP_DTYPE_F32);
    to = (cdp_dtype)cdp__def(to, CDP_DTYPE_F32);
    if (count && !in) return cdp__missing("cdp_convert", "in");
    if (count && !out) return cdp__missing("cdp_convert", "out");
    if (!from_size || !size)
        return cdp__fail(
            CDP_ERR_INVALID, "cdp_convert: dtype %d does not exist", (int)(from_size ? to : from));
    if (cdp__dtype_left_out(from) || cdp__dtype_left_out(to))
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "cdp_convert: this build has no arithmetic of %s; do not define CDP_FEW_DTYPES",
            cdp_dtype_name(cdp__dtype_left_out(from) ? from : to));
    if (round && !cdp__dtype_is_narrow(to))
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "cdp_convert: `round` is for f16, bf16 and f8, not for %s; leave it NULL",
            cdp_dtype_name(to));
    if (!round) cdp__convert(from, in, to, out, count);
    memset(block, 0, sizeof block);
    for (at = 0; round && at < count; at += n) {
        n = cdp__min(count - at, CDP__BLOCK);
        cdp__convert(from, (const uint8_t *)in + at * from_size, CDP_DTYPE_F32, block, n);
        cdp__narrow_some(to, round, at, block, (uint8_t *)out + at * size, n);
    }
    return CDP_OK;
}

#define CDP__SCALE_FIRST 65536.0f
#define CDP__SCALE_LEAST 6.103515625e-5f /* 2^-14 */

CDP_API float cdp_scaler_scale(const cdp_scaler *s) {
    return s && s->scale != 0 ? s->scale : CDP__SCALE_FIRST;
}

CDP_API cdp_status cdp_scaler_update(cdp_scaler *s, bool found_inf) {
    double growth, backoff;
    float next;
    if (!s) return cdp__missing("cdp_scaler_update", "scaler");
    growth = s->growth != 0 ? s->growth : 2;
    backoff = s->backoff != 0 ? s->backoff : 0.5;
    if (!(growth > 1 && backoff > 0 && backoff < 1))
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_scaler_update: growth must be above 1, and backoff between 0 and 1");
    s->scale = cdp_scaler_scale(s);
    s->tracker = found_inf ? 0 : s->tracker + 1;
    if (found_inf) ++s->skipped;
    if (!found_inf && s->tracker < cdp__def(s->interval, 2000u)) return CDP_OK;
    s->tracker = 0;
    next = s->scale * (float)(found_inf ? backoff : growth);
    if (next < CDP__SCALE_LEAST)
        return cdp__fail(CDP_ERR_STATE,
            "cdp_scaler_update: gradients are infinite or NaN at a scale of 2^-14, too; look for "
            "NaN in the data and in the loss");
    if (next - next == 0) s->scale = next;
    return CDP_OK;
}

#endif /* CDP_NO_TRAINING */

#endif /* CDP_SRC_TRAIN_PRECISION_H */
