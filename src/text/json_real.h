/* text/json_real.h - real numbers as decimal text (pure)

   Knows: binary and decimal fractions. Promises: the shortest text that reads back as the same
   number, in every locale. */
#ifndef CDP_SRC_TEXT_JSON_REAL_H
#define CDP_SRC_TEXT_JSON_REAL_H

#include "../base/config.h"
#include "../base/compiler.h"
#include "format.h"

#include <stdlib.h>

/* `v` > 0 as x * 10^*exponent with x from 1 up to 10, about. */
CDP__PRIVATE double cdp__real_scale(double v, int32_t *exponent) {
    static const double powers[9] = {1e1, 1e2, 1e4, 1e8, 1e16, 1e32, 1e64, 1e128, 1e256};
    int32_t i;
    *exponent = 0;
    for (i = 8; i >= 0; --i)
        if (v >= powers[i]) {
            v /= powers[i];
            *exponent += 1 << i;
        }
    if (*exponent) return v;
    for (i = 8; i >= 0; --i)
        if (v * powers[i] < 10) {
            v *= powers[i];
            *exponent -= 1 << i;
        }
    return v;
}

/* Whether the digits, times 10^exponent, are read as `v`. */
CDP__PRIVATE bool cdp__real_is(double v, uint64_t digits, int32_t exponent) {
    char text[40];
    double back;
    (void)cdp__format(text, sizeof text, "%llue%d", (unsigned long long)digits, (int)exponent);
    back = strtod(text, NULL);
    return back <= v && back >= v;
}

/* The fewest digits of `v` > 0 that are read as `v`; it is digits * 10^*exponent. */
CDP__PRIVATE uint64_t cdp__real_digits(double v, int32_t *exponent) {
    int32_t at, count;
    const double x = cdp__real_scale(v, &at);
    double power = 1;
    uint64_t best = 0, step;
    for (count = 0; count < 17; ++count, power *= 10) {
        best = (uint64_t)(x * power + 0.5);
        *exponent = at - count;
        if (cdp__real_is(v, best, *exponent)) return best;
    }
    /* scaling has rounded: one of the next numbers of 17 digits it is */
    for (step = 1; step < 2000; ++step) {
        if (cdp__real_is(v, best + step, *exponent)) return best + step;
        if (cdp__real_is(v, best - step, *exponent)) return best - step;
    }
    return best;
}

/* `v` > 0 with seven digits, of which zeros at the end are left out. */
CDP__PRIVATE uint64_t cdp__real_seven(double v, int32_t *exponent) {
    uint64_t digits = (uint64_t)(cdp__real_scale(v, exponent) * 1e6 + 0.5);
    for (*exponent -= 6; digits && digits % 10 == 0; ++*exponent)
        digits /= 10;
    return digits;
}

/* Writes a number of JSON that is no whole number for its readers; null for what is not finite.
   `seven`: at most seven digits of it, which takes a fifth of the time. */
CDP__PRIVATE CDP__COLD void cdp__json_real(cdp__text *t, double v, bool seven) {
    char digits[24];
    int32_t exponent = 0, point, i, n;
    uint64_t all = 0;
    if (!(v - v >= 0)) {
        cdp__text_bytes(t, "null", 4);
        return;
    }
    if (v < 0) cdp__text_char(t, '-');
    v = v < 0 ? -v : v;
    if (v > 0) all = seven ? cdp__real_seven(v, &exponent) : cdp__real_digits(v, &exponent);
    n = (int32_t)cdp__format(digits, sizeof digits, "%llu", (unsigned long long)all);
    point = n + exponent; /* of the digits, this many stand before the point */
    if (point < -5 || point > 17) {
        cdp__text_add(t, "%c.%se%d", digits[0], n > 1 ? digits + 1 : "0", (int)point - 1);
        return;
    }
    if (point <= 0) cdp__text_bytes(t, "0.", 2);
    for (i = point; i < 0; ++i)
        cdp__text_char(t, '0');
    for (i = 0; i < n || i < point; ++i) {
        if (i && i == point) cdp__text_char(t, '.');
        cdp__text_char(t, i < n ? digits[i] : '0');
    }
    if (point >= n) cdp__text_bytes(t, ".0", 2);
}

#endif /* CDP_SRC_TEXT_JSON_REAL_H */
