/* dtype/numbers.h - square root, division (pure)

   Knows: the float dtypes. Promises: the same bits on every machine. */
#ifndef CDP_SRC_DTYPE_NUMBERS_H
#define CDP_SRC_DTYPE_NUMBERS_H

#include "../base/config.h"
#include "../base/types_api.h"
#include "../base/compiler.h"
#include "../base/helpers.h"
#include "reduce.h"

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

/* Of an f32, correctly rounded: 53 bits are more than twice 24. */
CDP__PRIVATE CDP__EXACT_INLINE float cdp__sqrtf(float x) {
#ifdef CDP__SQRTF
    return CDP__SQRTF(x);
#else
    return x < 0 ? NAN : (float)cdp__sqrt((double)x);
#endif
}

/* Divides integers; multiplies floats by the reciprocal. */
CDP__PRIVATE void cdp__divide_by(cdp_dtype t, void *data, uint64_t n, cdp_real by) {
    if (by >= 1 && by < (cdp_real)4e9 && by == (cdp_real)(uint32_t)by)
        cdp__divide(t, data, n, (uint32_t)by);
    else
        cdp__scale(t, data, n, 1 / by);
}

#endif /* CDP_SRC_DTYPE_NUMBERS_H */
