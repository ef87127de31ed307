/* dtype/norms.h - sums over the elements of an array, in f64 (pure)

   Knows: the float dtypes. Promises: the same bits for the same array, at the speed of memory. */
#ifndef CDP_SRC_DTYPE_NORMS_H
#define CDP_SRC_DTYPE_NORMS_H

#include "../base/config.h"
#include "../base/types_api.h"
#include "../base/compiler.h"
#include "../base/helpers.h"
#include "dtype.h"
#include "reduce.h"
#include "convert.h"

typedef enum cdp__norm_kind {
    CDP__NORM_SQUARES,
    CDP__NORM_SUM,
    CDP__NORM_MAX
} cdp__norm_kind;

/* Eight partial results, which the processor computes side by side: partial i is of elements i, i
   + 8, ... */
#define CDP__NORM_WAYS 8u
#define CDP__NORM_MAGNITUDE(x) ((x) < 0 ? -(x) : (x))
/* a NaN stays: it is not less than anything, and nothing is greater */
#define CDP__NORM_LARGER(a, x) ((a) >= (x) || (a) != (a) ? (a) : (x))
#define CDP__NORM_LOOP(name, T)                                                        \
    CDP__PRIVATE void name(cdp__norm_kind kind, const T *x, uint64_t n, double *sum) { \
        uint64_t i;                                                                    \
        uint32_t k;                                                                    \
        if (kind == CDP__NORM_SQUARES)                                                 \
            for (i = 0; i < n; i += CDP__NORM_WAYS)                                    \
                for (k = 0; k < CDP__NORM_WAYS; ++k)                                   \
                    sum[k] += (double)x[i + k] * (double)x[i + k];                     \
        else if (kind == CDP__NORM_SUM)                                                \
            for (i = 0; i < n; i += CDP__NORM_WAYS)                                    \
                for (k = 0; k < CDP__NORM_WAYS; ++k)                                   \
                    sum[k] += (double)CDP__NORM_MAGNITUDE(x[i + k]);                   \
        else                                                                           \
            for (i = 0; i < n; i += CDP__NORM_WAYS)                                    \
                for (k = 0; k < CDP__NORM_WAYS; ++k) {                                 \
                    const double v = (double)CDP__NORM_MAGNITUDE(x[i + k]);            \
                    sum[k] = CDP__NORM_LARGER(sum[k], v);                              \
                }                                                                      \
    }
CDP__NORM_LOOP(cdp__norm_f32, float)
CDP__NORM_LOOP(cdp__norm_f64, double)

/* Adds `n` elements, a multiple of CDP__NORM_WAYS, or one block of a narrow dtype. */
CDP__PRIVATE void cdp__norm_part(
    cdp_dtype t, cdp__norm_kind kind, const void *x, uint64_t n, double *sum) {
    float wide[CDP__BLOCK];
    if (t == CDP_DTYPE_F64) {
        cdp__norm_f64(kind, (const double *)x, n, sum);
        return;
    }
    if (cdp__dtype_is_narrow(t)) {
        cdp__widen_block(t, x, wide);
        x = wide;
    }
    cdp__norm_f32(kind, (const float *)x, n, sum);
}

/* Returns the sum of squares or magnitudes, or the largest magnitude, of a float dtype. */
CDP__PRIVATE double cdp__norm_of(cdp_dtype t, cdp__norm_kind kind, const void *x, uint64_t n) {
    const uint64_t size = cdp__dtype_row_of(t)->bytes, whole = n - n % CDP__BLOCK;
    const uint64_t step = cdp__dtype_is_narrow(t) ? CDP__BLOCK : cdp__max(whole, 1);
    double sum[CDP__NORM_WAYS] = {0, 0, 0, 0, 0, 0, 0, 0};
    uint64_t rest[CDP__BLOCK], at;
    uint32_t ways = CDP__NORM_WAYS, k;
    for (at = 0; at < whole; at += step)
        cdp__norm_part(t, kind, (const uint8_t *)x + at * size, step, sum);
    if (n > whole) {
        memset(rest, 0, sizeof rest);
        memcpy(rest, (const uint8_t *)x + whole * size, (size_t)((n - whole) * size));
        cdp__norm_part(t, kind, rest, CDP__BLOCK, sum);
    }
    while (ways /= 2)
        for (k = 0; k < ways; ++k)
            sum[k] = kind == CDP__NORM_MAX ? CDP__NORM_LARGER(sum[k], sum[k + ways])
                                           : sum[k] + sum[k + ways];
    return sum[0];
}

/* True if an element is infinite or NaN. `norm`: what cdp__norm_of() has returned. */
CDP__PRIVATE bool cdp__norm_found_inf(cdp_dtype t, double norm, const void *x, uint64_t n) {
    double largest;
    if (norm - norm == 0) return false;
    /* sums of floats of 32 bits and less never overflow an f64 */
    if (t != CDP_DTYPE_F64) return true;
    largest = cdp__norm_of(t, CDP__NORM_MAX, x, n);
    return largest - largest != 0;
}

#endif /* CDP_SRC_DTYPE_NORMS_H */
