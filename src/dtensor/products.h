/* dtensor/products.h - plain loops over local arrays (pure)

   Knows: contiguous row-major arrays of f32, f64, i32 and i64. Promises: each element of a product
   is summed over k in ascending order, so a piece of a product has the same bits as in the
   whole. */
#ifndef CDP_SRC_DTENSOR_PRODUCTS_H
#define CDP_SRC_DTENSOR_PRODUCTS_H

#include "../base/config.h"
#include "../base/types_api.h"
#include "../base/compiler.h"
#include "../base/helpers.h"
#include "../dtype/reduce.h"
#include "kit.h"
#include "kernels.h"
#include "philox.h"
#include "rows.h"

#ifndef CDP_NO_TENSOR_OPS

/* Columns of b that are multiplied together, as many bytes as eight sums of vectors take. */
#if defined(__AVX__) || defined(__aarch64__)
#define CDP__DT_PANEL_BYTES 64u
#else
#define CDP__DT_PANEL_BYTES 32u
#endif
#define CDP__DT_PANEL 128u /* rows of a, and products of a sum, per block: both stay in a cache */

/* c = a b, or c + a b: element (i, s) of a is a[i * a_row + s * a_next], element (s, j) of b is
   b[s * b_next + j * b_col], element (i, j) of c is c[i * c_row + j]. */
typedef struct cdp__dt_strides {
    uint64_t m, n, k, a_row, a_next, b_next, b_col, c_row;
    bool add;
} cdp__dt_strides;

/* NAME_four adds to four rows of sums: x is the first element of each row of a, b a panel. */
#define CDP__DT_GEMM(NAME, T)                                                                     \
    enum {                                                                                        \
        NAME##_width = CDP__DT_PANEL_BYTES / sizeof(T)                                            \
    };                                                                                            \
    CDP__DT void NAME##_four(uint64_t k, const T *const *x, uint64_t next, const T *b, T *sums) { \
        const T *x0 = x[0], *x1 = x[1], *x2 = x[2], *x3 = x[3];                                   \
        T s0[NAME##_width], s1[NAME##_width], s2[NAME##_width], s3[NAME##_width];                 \
        memcpy(s0, sums, sizeof s0);                                                              \
        memcpy(s1, sums + NAME##_width, sizeof s0);                                               \
        memcpy(s2, sums + 2 * NAME##_width, sizeof s0);                                           \
        memcpy(s3, sums + 3 * NAME##_width, sizeof s0);                                           \
        for (uint64_t s = 0; s < k; ++s, b += NAME##_width) {                                     \
            const uint64_t at = s * next;                                                         \
            const T a0 = x0[at], a1 = x1[at], a2 = x2[at], a3 = x3[at];                           \
            CDP__SHORT_LOOP                                                                       \
            for (uint32_t d = 0; d < NAME##_width; ++d) {                                         \
                s0[d] = (T)(s0[d] + a0 * b[d]);                                                   \
                s1[d] = (T)(s1[d] + a1 * b[d]);                                                   \
                s2[d] = (T)(s2[d] + a2 * b[d]);                                                   \
                s3[d] = (T)(s3[d] + a3 * b[d]);                                                   \
            }                                                                                     \
        }                                                                                         \
        memcpy(sums, s0, sizeof s0);                                                              \
        memcpy(sums + NAME##_width, s1, sizeof s0);                                               \
        memcpy(sums + 2 * NAME##_width, s2, sizeof s0);                                           \
        memcpy(sums + 3 * NAME##_width, s3, sizeof s0);                                           \
    }                                                                                             \
    CDP__DT void NAME##_panel(const cdp__dt_strides *p, uint64_t s, uint64_t depth, uint64_t j,   \
        uint64_t columns, const T *b, T *panel) {                                                 \
        if (columns < NAME##_width) memset(panel, 0, (size_t)depth *CDP__DT_PANEL_BYTES);         \
        for (uint64_t i = 0; p->b_col == 1 && i < depth; ++i)                                     \
            memcpy(panel + i * NAME##_width, b + (s + i) * p->b_next + j,                         \
                (size_t)columns * sizeof *b);                                                     \
        for (uint64_t d = 0; p->b_col != 1 && d < columns; ++d)                                   \
            for (uint64_t i = 0; i < depth; ++i)                                                  \
                panel[i * NAME##_width + d] = b[(s + i) * p->b_next + (j + d) * p->b_col];        \
    }                                                                                             \
    CDP__DT void NAME##_block(const cdp__dt_strides *p, uint64_t i, uint64_t rows, uint64_t j,    \
        const T *a, const T *b, T *c) {                                                           \
        T panel[CDP__DT_PANEL * NAME##_width], sums[CDP__DT_PANEL * NAME##_width];                \
        const uint64_t columns = cdp__min(p->n - j, NAME##_width);                                \
        memset(sums, 0, (size_t)(rows + 3) / 4 * 4 * CDP__DT_PANEL_BYTES);                        \
        for (uint64_t s = 0; s < p->k; s += CDP__DT_PANEL) {                                      \
            const uint64_t depth = cdp__min(p->k - s, CDP__DT_PANEL);                             \
            NAME##_panel(p, s, depth, j, columns, b, panel);                                      \
            for (uint64_t r = 0; r < rows; r += 4) {                                              \
                const T *x[4];                                                                    \
                for (uint64_t d = 0; d < 4; ++d) /* a row that is none repeats the last one */    \
                    x[d] = a + (i + cdp__min(r + d, rows - 1)) * p->a_row + s * p->a_next;        \
                NAME##_four(depth, x, p->a_next, panel, sums + r * NAME##_width);                 \
            }                                                                                     \
        }                                                                                         \
        for (uint64_t r = 0; r < rows; ++r) {                                                     \
            T *to = c + (i + r) * p->c_row + j;                                                   \
            const T *sum = sums + r * NAME##_width;                                               \
            for (uint64_t d = 0; d < columns; ++d)                                                \
                to[d] = (T)(p->add ? to[d] + sum[d] : sum[d]);                                    \
        }                                                                                         \
    }                                                                                             \
    CDP__DT void NAME(const cdp__dt_strides *p, const T *a, const T *b, T *c) {                   \
        for (uint64_t i = 0; i < p->m; i += CDP__DT_PANEL)                                        \
            for (uint64_t j = 0; j < p->n; j += NAME##_width)                                     \
                NAME##_block(p, i, cdp__min(p->m - i, CDP__DT_PANEL), j, a, b, c);                \
    }
CDP__DT_GEMM(cdp__dt_gemm_f32, float)
CDP__DT_GEMM(cdp__dt_gemm_f64, double)
CDP__DT_GEMM(cdp__dt_gemm_i32, uint32_t)
CDP__DT_GEMM(cdp__dt_gemm_i64, uint64_t)
#undef CDP__DT_GEMM

CDP__DT bool cdp__dt_plain_dtype(cdp_dtype t) {
    return t == CDP_DTYPE_F32 || t == CDP_DTYPE_F64 || t == CDP_DTYPE_I32 || t == CDP_DTYPE_I64;
}

CDP__DT void cdp__dt_gemm_of(
    cdp_dtype t, const cdp__dt_strides *p, const void *a, const void *b, void *c) {
    if (t == CDP_DTYPE_F64)
        cdp__dt_gemm_f64(p, (const double *)a, (const double *)b, (double *)c);
    else if (t == CDP_DTYPE_I32)
        cdp__dt_gemm_i32(p, (const uint32_t *)a, (const uint32_t *)b, (uint32_t *)c);
    else if (t == CDP_DTYPE_I64)
        cdp__dt_gemm_i64(p, (const uint64_t *)a, (const uint64_t *)b, (uint64_t *)c);
    else
        cdp__dt_gemm_f32(p, (const float *)a, (const float *)b, (float *)c);
}

/* As cdp_blas.gemm. */
CDP__DT void cdp__dt_gemm(cdp_dtype t, bool ta, bool tb, uint64_t m, uint64_t n, uint64_t k,
    const void *a, const void *b, bool add, void *c) {
    const cdp__dt_strides p = {m, n, k, ta ? 1 : k, ta ? m : 1, tb ? 1 : n, tb ? k : 1, n, add};
    cdp__dt_gemm_of(t, &p, a, b, c);
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
