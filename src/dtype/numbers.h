/* dtype/numbers.h - square root, division, conversion (pure)

   Knows: the float dtypes. Promises: the same bits on every machine. */
#ifndef CDP_SRC_DTYPE_NUMBERS_H
#define CDP_SRC_DTYPE_NUMBERS_H

#include "../base/config.h"
#include "../base/types_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "reduce.h"

CDP__PRIVATE double cdp__float_get(cdp_dtype t, const void *p, uint64_t i) {
    uint16_t half[CDP__BLOCK] = {0};
    float wide[CDP__BLOCK];
    if (t == CDP_DTYPE_F64) return ((const double *)p)[i];
    if (t == CDP_DTYPE_F32) return (double)((const float *)p)[i];
    half[0] = ((const uint16_t *)p)[i];
    cdp__widen_block(t, half, wide);
    return (double)wide[0];
}

CDP__PRIVATE double cdp__sqrt(double x) {
    uint64_t bits;
    double y;
    uint32_t i;
    const bool regular = x > 0 && x - x == 0; /* no zero, infinity, or NaN */
    memcpy(&bits, &x, 8);
    bits = (bits >> 1) + 0x1ff8000000000000ull; /* half the exponent: some percent off */
    memcpy(&y, &bits, 8);
    for (i = 0; i < 5; ++i)
        y = 0.5 * (y + x / y);
    return regular ? y : x;
}

/* Divides integers; multiplies floats by the reciprocal. */
CDP__PRIVATE void cdp__divide_by(cdp_dtype t, void *data, uint64_t n, cdp_real by) {
    if (by >= 1 && by < (cdp_real)4e9 && by == (cdp_real)(uint32_t)by)
        cdp__divide(t, data, n, (uint32_t)by);
    else
        cdp__scale(t, data, n, 1 / by);
}

/* Converts CDP__BLOCK values of a float dtype to f32. */
CDP__PRIVATE void cdp__cast_in(
    cdp_dtype from, const void *CDP__RESTRICT in, float *CDP__RESTRICT wide) {
    const double *d = (const double *)in;
    uint32_t i;
    if (from == CDP_DTYPE_F64)
        for (i = 0; i < CDP__BLOCK; ++i)
            wide[i] = (float)d[i];
    else if (from == CDP_DTYPE_F32)
        memcpy(wide, in, CDP__BLOCK * sizeof *wide);
    else
        cdp__widen_block(from, (const uint16_t *)in, wide);
}

/* Converts them back. */
CDP__PRIVATE void cdp__cast_out(
    cdp_dtype to, const float *CDP__RESTRICT wide, void *CDP__RESTRICT out) {
    double *d = (double *)out;
    uint32_t i;
    if (to == CDP_DTYPE_F64)
        for (i = 0; i < CDP__BLOCK; ++i)
            d[i] = (double)wide[i];
    else if (to == CDP_DTYPE_F32)
        memcpy(out, wide, CDP__BLOCK * sizeof *wide);
    else
        cdp__narrow_block(to, wide, (uint16_t *)out);
}

/* Converts `n` values of one float dtype to another, through f32. Works in blocks of constant
   length, which gcc -O2 vectorises; an incomplete block is padded. */
CDP__PRIVATE void cdp__cast(cdp_dtype from, const void *in, cdp_dtype to, void *out, uint64_t n) {
    const uint64_t from_size = cdp_dtype_size(from), to_size = cdp_dtype_size(to);
    const uint8_t *src = (const uint8_t *)in;
    uint8_t *dst = (uint8_t *)out;
    double rest[CDP__BLOCK];
    float wide[CDP__BLOCK];
    for (; n >= CDP__BLOCK; n -= CDP__BLOCK) {
        cdp__cast_in(from, src, wide);
        cdp__cast_out(to, wide, dst);
        src += CDP__BLOCK * from_size;
        dst += CDP__BLOCK * to_size;
    }
    if (!n) return;
    memset(rest, 0, sizeof rest);
    memcpy(rest, src, (size_t)(n * from_size));
    cdp__cast_in(from, rest, wide);
    cdp__cast_out(to, wide, rest);
    memcpy(dst, rest, (size_t)(n * to_size));
}

#endif /* CDP_SRC_DTYPE_NUMBERS_H */
