/* dtensor/products.h - plain loops over local arrays (pure)

   Knows: contiguous row-major arrays of f32, f64, i32 and i64. Promises: each element of a product
   is summed over k in ascending order, so a piece of a product has the same bits as in the
   whole. */
#ifndef CDP_SRC_DTENSOR_PRODUCTS_H
#define CDP_SRC_DTENSOR_PRODUCTS_H

#include "../base/config.h"
#include "../base/types_api.h"
#include "../base/helpers.h"
#include "../dtype/reduce.h"
#include "kit.h"
#include "kernels.h"
#include "philox.h"

#ifndef CDP_NO_TENSOR_OPS

/* Computes eight elements of a row of c at a time, because their sums are independent. */
#define CDP__DT_GEMM(NAME, T)                                                             \
    CDP__DT void NAME(bool ta, bool tb, uint64_t m, uint64_t n, uint64_t k, const T *a,   \
        const T *b, bool add, T *c) {                                                     \
        const uint64_t a_row = ta ? 1 : k, a_next = ta ? m : 1;                           \
        const uint64_t b_col = tb ? k : 1, b_next = tb ? 1 : n;                           \
        for (uint64_t i = 0; i < m; ++i)                                                  \
            for (uint64_t j = 0; j < n; j += 8) {                                         \
                const uint64_t some = cdp__min(n - j, 8);                                 \
                const T *x = a + i * a_row, *y = b + j * b_col;                           \
                T sum[8] = {0, 0, 0, 0, 0, 0, 0, 0};                                      \
                for (uint64_t s = 0; some == 8 && s < k; ++s)                             \
                    for (uint32_t d = 0; d < 8; ++d)                                      \
                        sum[d] = (T)(sum[d] + x[s * a_next] * y[s * b_next + d * b_col]); \
                for (uint64_t s = 0; some < 8 && s < k; ++s)                              \
                    for (uint64_t d = 0; d < some; ++d)                                   \
                        sum[d] = (T)(sum[d] + x[s * a_next] * y[s * b_next + d * b_col]); \
                for (uint64_t d = 0; d < some; ++d)                                       \
                    c[i * n + j + d] = (T)(add ? c[i * n + j + d] + sum[d] : sum[d]);     \
            }                                                                             \
    }
CDP__DT_GEMM(cdp__dt_gemm_f32, float)
CDP__DT_GEMM(cdp__dt_gemm_f64, double)
CDP__DT_GEMM(cdp__dt_gemm_i32, uint32_t)
CDP__DT_GEMM(cdp__dt_gemm_i64, uint64_t)
#undef CDP__DT_GEMM

CDP__DT bool cdp__dt_plain_dtype(cdp_dtype t) {
    return t == CDP_DTYPE_F32 || t == CDP_DTYPE_F64 || t == CDP_DTYPE_I32 || t == CDP_DTYPE_I64;
}

CDP__DT void cdp__dt_gemm(cdp_dtype t, bool ta, bool tb, uint64_t m, uint64_t n, uint64_t k,
    const void *a, const void *b, bool add, void *c) {
    if (t == CDP_DTYPE_F64)
        cdp__dt_gemm_f64(ta, tb, m, n, k, (const double *)a, (const double *)b, add, (double *)c);
    else if (t == CDP_DTYPE_I32)
        cdp__dt_gemm_i32(
            ta, tb, m, n, k, (const uint32_t *)a, (const uint32_t *)b, add, (uint32_t *)c);
    else if (t == CDP_DTYPE_I64)
        cdp__dt_gemm_i64(
            ta, tb, m, n, k, (const uint64_t *)a, (const uint64_t *)b, add, (uint64_t *)c);
    else
        cdp__dt_gemm_f32(ta, tb, m, n, k, (const float *)a, (const float *)b, add, (float *)c);
}

/* Adds n numbers to others. */
CDP__DT void cdp__dt_plus(cdp_dtype t, void *to, const void *from, uint64_t n) {
    cdp__reduce(t, CDP_REDUCE_SUM, false, to, from, n);
}

/* Every row of y [rows, n] plus bias[first .. first + n - 1]. */
CDP__DT void cdp__dt_add_bias(
    cdp_dtype t, void *y, uint64_t rows, uint64_t n, const void *bias, uint64_t first) {
    const uint64_t elem = cdp_dtype_size(t);
    for (uint64_t i = 0; i < rows; ++i)
        cdp__dt_plus(t, (uint8_t *)y + i * n * elem, (const uint8_t *)bias + first * elem, n);
}

/* sum[j] += y[0,j] + y[1,j] + ... */
CDP__DT void cdp__dt_add_rows(cdp_dtype t, void *sum, const void *y, uint64_t rows, uint64_t n) {
    for (uint64_t i = 0; i < rows; ++i)
        cdp__dt_plus(t, sum, (const uint8_t *)y + i * n * cdp_dtype_size(t), n);
}

/* Copies rows of a table by their ids. This rank has rows first .. first + held - 1; other ids
   give rows of zeros. */
CDP__DT void cdp__dt_look_up(const int32_t *ids, uint64_t n, const void *table, uint64_t first,
    uint64_t held, uint64_t row_bytes, void *out) {
    for (uint64_t i = 0; i < n; ++i) {
        uint8_t *to = (uint8_t *)out + i * row_bytes;
        /* a huge number if the id is below `first` */
        const uint64_t id = (uint64_t)(int64_t)ids[i] - first;
        if (id < held)
            memcpy(to, (const uint8_t *)table + id * row_bytes, (size_t)row_bytes);
        else
            memset(to, 0, (size_t)row_bytes);
    }
}

/* The reverse: adds rows of a gradient to those of the table. */
CDP__DT void cdp__dt_look_up_backward(cdp_dtype t, const int32_t *ids, uint64_t n, void *table,
    uint64_t first, uint64_t held, uint64_t width, const void *grad) {
    const uint64_t row_bytes = width * cdp_dtype_size(t);
    for (uint64_t i = 0; i < n; ++i) {
        const uint64_t id = (uint64_t)(int64_t)ids[i] - first;
        if (id >= held) continue;
        cdp__dt_plus(
            t, (uint8_t *)table + id * row_bytes, (const uint8_t *)grad + i * row_bytes, width);
    }
}

/* exp(x), the same bits everywhere: x = k log 2 + r, a series in r, times 2^k; 0 below -708, where
   f64 loses digits. */
CDP__DT double cdp__dt_exp(double x) {
    if (!(x > -708)) return x < 0 ? 0 : x; /* keeps NaN */
    if (x > 709.78271289338397) return (double)INFINITY;
    const double turns = x * 1.44269504088896340736;
    const int32_t k = (int32_t)(turns < 0 ? turns - 0.5 : turns + 0.5);
    const double r = (x - k * 0.693147180369123816490) - k * 1.90821492927058770002e-10;
    double sum = 1, scale;
    for (int32_t i = 14; i >= 1; --i)
        sum = 1 + sum * r / i;
    const uint64_t bits = (uint64_t)(k + 1022) << 52; /* 2^1024 would not be a number */
    memcpy(&scale, &bits, 8);
    return sum * scale * 2;
}

/* log(x) for x >= 0; -infinity for 0. */
CDP__DT double cdp__dt_ln(double x) {
    double twos = 0;
    if (x <= 0) return -1.0 / (x * x);
    if (!(x <= 1e300)) return x;
    for (; x > 1; x *= 0.5)
        twos += 0.69314718055994530942;
    return cdp__dt_log(x) + twos;
}

#endif /* CDP_NO_TENSOR_OPS */

#endif /* CDP_SRC_DTENSOR_PRODUCTS_H */
