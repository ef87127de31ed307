/* dtensor/rows.h - exponentials, largest numbers and sums of rows (pure)

   Knows: contiguous f32 and f64. Promises: NaN and infinity come out as they do of exp(), of a
   comparison and of a sum; loops of a constant number of elements, which compilers vectorise. */
#ifndef CDP_SRC_DTENSOR_ROWS_H
#define CDP_SRC_DTENSOR_ROWS_H

#include "../base/config.h"
#include "../base/compiler.h"
#include "../base/helpers.h"
#include "kit.h"

#ifndef CDP_NO_TENSOR_OPS

#define CDP__DT_ROW 64u   /* elements whose exponentials are computed in one loop */
#define CDP__DT_LANES 16u /* sums that do not depend on each other */

/* The series of e^r for |r| <= log(2) / 2, to the digits of the type. */
CDP__DT float cdp__dt_exp_f32_series(float r) {
    float e = 1.98412698e-4f; /* 1 / 7! */
    e = e * r + 1.38888889e-3f;
    e = e * r + 8.33333333e-3f;
    e = e * r + 4.16666667e-2f;
    e = e * r + 1.66666667e-1f;
    e = e * r + 0.5f;
    e = e * r + 1;
    return e * r + 1;
}
CDP__DT double cdp__dt_exp_f64_series(double r) {
    double e = 1.6059043836821613e-10; /* 1 / 13! */
    e = e * r + 2.08767569878681e-09;
    e = e * r + 2.505210838544172e-08;
    e = e * r + 2.755731922398589e-07;
    e = e * r + 2.7557319223985893e-06;
    e = e * r + 2.48015873015873e-05;
    e = e * r + 0.0001984126984126984;
    e = e * r + 0.001388888888888889;
    e = e * r + 0.008333333333333333;
    e = e * r + 0.041666666666666664;
    e = e * r + 0.16666666666666666;
    e = e * r + 0.5;
    e = e * r + 1;
    return e * r + 1;
}
/* e^x of a number in the range of T: x = k log 2 + r, a series in r, times 2^k in two factors,
   because 2^128 is no float. LN2 and REST: log 2 in two parts. */
#define CDP__DT_EXP(S, T, U, LN2, REST, BIAS, DIGITS)                                              \
    CDP__DT T cdp__dt_exp_##S##_within(T x) {                                                      \
        const int32_t k = (int32_t)(x * (T)1.44269504088896340736 + (T)(BIAS + 2.5)) - (BIAS + 2); \
        const T r = (x - (T)k * LN2) - (T)k * REST;                                                \
        const U some = (U)(k / 2 + BIAS) << DIGITS, rest = (U)(k - k / 2 + BIAS) << DIGITS;        \
        T a, b;                                                                                    \
        memcpy(&a, &some, sizeof a);                                                               \
        memcpy(&b, &rest, sizeof b);                                                               \
        return cdp__dt_exp_##S##_series(r) * a * b;                                                \
    }
CDP__DT_EXP(f32, float, uint32_t, 0.693145752f, 1.42860677e-6f, 127, 23)
CDP__DT_EXP(f64, double, uint64_t, 0.693147180369123816490, 1.90821492927058770002e-10, 1023, 52)
#undef CDP__DT_EXP

/* exps: to[i] = exp(x[i] - less); `to` may be x. Below LOW, where T loses digits, it is 0; from
   HIGH on it is infinite. One choice a loop, because compilers vectorise no others. most: the
   largest number, a NaN if one is, -infinity of none. total: the sum. */
#define CDP__DT_ROWS(S, T, LOW, HIGH)                                                       \
    CDP__DT void cdp__dt_exps_some_##S(T *to, const T *from, T less) {                      \
        T v[CDP__DT_ROW], x[CDP__DT_ROW];                                                   \
        CDP__SHORT_LOOP                                                                     \
        for (uint32_t i = 0; i < CDP__DT_ROW; ++i) {                                        \
            v[i] = from[i] - less;                                                          \
        }                                                                                   \
        CDP__SHORT_LOOP                                                                     \
        for (uint32_t i = 0; i < CDP__DT_ROW; ++i) {                                        \
            x[i] = v[i] > LOW ? v[i] : LOW;                                                 \
        }                                                                                   \
        CDP__SHORT_LOOP                                                                     \
        for (uint32_t i = 0; i < CDP__DT_ROW; ++i) {                                        \
            x[i] = x[i] < HIGH ? x[i] : HIGH;                                               \
        }                                                                                   \
        CDP__SHORT_LOOP                                                                     \
        for (uint32_t i = 0; i < CDP__DT_ROW; ++i) {                                        \
            x[i] = cdp__dt_exp_##S##_within(x[i]);                                          \
        }                                                                                   \
        CDP__SHORT_LOOP                                                                     \
        for (uint32_t i = 0; i < CDP__DT_ROW; ++i) {                                        \
            x[i] = v[i] < LOW ? 0 : x[i];                                                   \
        }                                                                                   \
        CDP__SHORT_LOOP                                                                     \
        for (uint32_t i = 0; i < CDP__DT_ROW; ++i) {                                        \
            x[i] = v[i] != v[i] ? v[i] : x[i];                                              \
        }                                                                                   \
        memcpy(to, x, sizeof x);                                                            \
    }                                                                                       \
    CDP__DT void cdp__dt_exps_##S(T *to, const T *x, uint64_t n, T less) {                  \
        const uint64_t rest = n % CDP__DT_ROW;                                              \
        T some[CDP__DT_ROW] = {0};                                                          \
        for (uint64_t i = 0; i + CDP__DT_ROW <= n; i += CDP__DT_ROW)                        \
            cdp__dt_exps_some_##S(to + i, x + i, less);                                     \
        if (!rest) return;                                                                  \
        memcpy(some, x + n - rest, (size_t)rest * sizeof *x);                               \
        cdp__dt_exps_some_##S(some, some, less);                                            \
        memcpy(to + n - rest, some, (size_t)rest * sizeof *x);                              \
    }                                                                                       \
    CDP__DT T cdp__dt_most_##S(const T *x, uint64_t n) {                                    \
        T lane[CDP__DT_LANES], most = -(T)INFINITY;                                         \
        uint64_t i = 0;                                                                     \
        for (uint32_t d = 0; d < CDP__DT_LANES; ++d)                                        \
            lane[d] = most;                                                                 \
        for (; i + CDP__DT_LANES <= n; i += CDP__DT_LANES) {                                \
            const T *from = x + i;                                                          \
            CDP__SHORT_LOOP                                                                 \
            for (uint32_t d = 0; d < CDP__DT_LANES; ++d) {                                  \
                lane[d] = ((from[d] > lane[d]) | (from[d] != from[d])) ? from[d] : lane[d]; \
            }                                                                               \
        }                                                                                   \
        for (; i < n; ++i)                                                                  \
            lane[0] = ((x[i] > lane[0]) | (x[i] != x[i])) ? x[i] : lane[0];                 \
        for (uint32_t d = 0; d < CDP__DT_LANES; ++d)                                        \
            most = ((lane[d] > most) | (lane[d] != lane[d])) ? lane[d] : most;              \
        return most;                                                                        \
    }                                                                                       \
    CDP__DT double cdp__dt_total_##S(const T *x, uint64_t n) {                              \
        double sum = 0;                                                                     \
        for (uint64_t i = 0, end; i < n; i = end) {                                         \
            T lane[CDP__DT_LANES] = {0};                                                    \
            end = cdp__min(n, i + 4 * CDP__DT_ROW);                                         \
            for (; i + CDP__DT_LANES <= end; i += CDP__DT_LANES) {                          \
                const T *from = x + i;                                                      \
                CDP__SHORT_LOOP                                                             \
                for (uint32_t d = 0; d < CDP__DT_LANES; ++d) {                              \
                    lane[d] += from[d];                                                     \
                }                                                                           \
            }                                                                               \
            for (; i < end; ++i)                                                            \
                lane[i % CDP__DT_LANES] += x[i];                                            \
            for (uint32_t d = 0; d < CDP__DT_LANES; ++d)                                    \
                sum += (double)lane[d];                                                     \
        }                                                                                   \
        return sum;                                                                         \
    }                                                                                       \
    CDP__DT void cdp__dt_times_all_##S(T *x, uint64_t n, T factor) {                        \
        for (uint64_t i = 0; i < n; ++i)                                                    \
            x[i] *= factor;                                                                 \
    }
CDP__DT_ROWS(f32, float, -87.3365448f, 89.0f)
CDP__DT_ROWS(f64, double, -708.0, 710.0)
#undef CDP__DT_ROWS

CDP__DT double cdp__dt_exp(double x) {
    if (!(x >= -708)) return x < 0 ? 0 : x; /* keeps NaN */
    return cdp__dt_exp_f64_within(x < 710 ? x : 710);
}

#endif /* CDP_NO_TENSOR_OPS */

#endif /* CDP_SRC_DTENSOR_ROWS_H */
