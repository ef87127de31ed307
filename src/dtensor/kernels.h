/* dtensor/kernels.h - reductions, conversions, strided copies (pure)

   Knows: elements of a dtype, in arrays and in boxes of arrays. Promises: the arithmetic that
   cdp_reduce_op documents. */
#ifndef CDP_SRC_DTENSOR_KERNELS_H
#define CDP_SRC_DTENSOR_KERNELS_H

#include "../base/config.h"
#include "../base/types_api.h"
#include "../base/basics.h"
#include "kit.h"

CDP__DT bool cdp__dt_is_float(cdp_dtype t) {
    return t <= CDP_DTYPE_F64 || t == CDP_DTYPE_F16 || t == CDP_DTYPE_BF16;
}

CDP__DT bool cdp__dt_reduces(cdp_dtype t, cdp_reduce_op op) {
    if (t > CDP_DTYPE_BOOL) return false;
    if (op == CDP_REDUCE_AVG) return t != CDP_DTYPE_BOOL;
    return op <= CDP_REDUCE_PRODUCT;
}

CDP__DT float cdp__dt_float_of_bits(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

CDP__DT uint32_t cdp__dt_bits_of_float(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

CDP__DT float cdp__dt_from_f16(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = h >> 10 & 31u;
    const uint32_t fraction = h & 0x3ffu;
    if (exponent == 31) return cdp__dt_float_of_bits(sign | 0x7f800000u | fraction << 13);
    if (exponent) return cdp__dt_float_of_bits(sign | (exponent + 112) << 23 | fraction << 13);
    const float tiny = (float)fraction * (1.0f / 16777216.0f);
    return sign ? -tiny : tiny;
}

CDP__DT uint16_t cdp__dt_to_f16(float f) {
    const uint32_t bits = cdp__dt_bits_of_float(f), mag = bits & 0x7fffffffu;
    const uint32_t sign = bits >> 16 & 0x8000u;
    uint32_t half;
    if (mag > 0x7f800000u) return (uint16_t)(sign | 0x7e00u);
    if (mag >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u);
    if (mag < 0x38800000u) { /* subnormal: counts steps of 2^-24 */
        const float steps = cdp__dt_float_of_bits(mag) * 16777216.0f;
        const uint32_t down = (uint32_t)steps;
        const float rest = steps - (float)down;
        half = down + (rest > 0.5f || (rest == 0.5f && (down & 1)));
    } else {
        half = (mag + 0xfffu + (mag >> 13 & 1u) - (112u << 23)) >> 13;
    }
    return (uint16_t)(sign | half);
}

CDP__DT float cdp__dt_from_bf16(uint16_t h) {
    return cdp__dt_float_of_bits((uint32_t)h << 16);
}

CDP__DT uint16_t cdp__dt_to_bf16(float f) {
    const uint32_t bits = cdp__dt_bits_of_float(f);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fc0u;
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

/* T: type of an element; W: unsigned type of the computation, so that integers wrap around. */
#define CDP__DT_COMBINE(NAME, T, W)                                                       \
    CDP__DT void cdp__dt_combine_##NAME(cdp_reduce_op op, T *a, const T *b, uint64_t n) { \
        uint64_t i;                                                                       \
        if (op == CDP_REDUCE_MIN) {                                                       \
            for (i = 0; i < n; ++i)                                                       \
                a[i] = b[i] < a[i] || b[i] != b[i] ? b[i] : a[i];                         \
        } else if (op == CDP_REDUCE_MAX) {                                                \
            for (i = 0; i < n; ++i)                                                       \
                a[i] = b[i] > a[i] || b[i] != b[i] ? b[i] : a[i];                         \
        } else if (op == CDP_REDUCE_PRODUCT) {                                            \
            for (i = 0; i < n; ++i)                                                       \
                a[i] = (T)((W)a[i] * (W)b[i]);                                            \
        } else {                                                                          \
            for (i = 0; i < n; ++i)                                                       \
                a[i] = (T)((W)a[i] + (W)b[i]);                                            \
        }                                                                                 \
    }
CDP__DT_COMBINE(f32, float, float)
CDP__DT_COMBINE(f64, double, double)
CDP__DT_COMBINE(i8, int8_t, uint32_t)
CDP__DT_COMBINE(u8, uint8_t, uint32_t)
CDP__DT_COMBINE(i16, int16_t, uint32_t)
CDP__DT_COMBINE(u16, uint16_t, uint32_t)
CDP__DT_COMBINE(i32, int32_t, uint32_t)
CDP__DT_COMBINE(u32, uint32_t, uint32_t)
CDP__DT_COMBINE(i64, int64_t, uint64_t)
CDP__DT_COMBINE(u64, uint64_t, uint64_t)
#undef CDP__DT_COMBINE

CDP__DT void cdp__dt_combine_half(
    cdp_dtype t, cdp_reduce_op op, uint16_t *a, const uint16_t *b, uint64_t n) {
    for (uint64_t i = 0; i < n; ++i) {
        const bool f16 = t == CDP_DTYPE_F16;
        float x = f16 ? cdp__dt_from_f16(a[i]) : cdp__dt_from_bf16(a[i]);
        const float y = f16 ? cdp__dt_from_f16(b[i]) : cdp__dt_from_bf16(b[i]);
        cdp__dt_combine_f32(op, &x, &y, 1);
        a[i] = f16 ? cdp__dt_to_f16(x) : cdp__dt_to_bf16(x);
    }
}

CDP__DT void cdp__dt_combine_bool(cdp_reduce_op op, uint8_t *a, const uint8_t *b, uint64_t n) {
    const bool both = op == CDP_REDUCE_MIN || op == CDP_REDUCE_PRODUCT;
    for (uint64_t i = 0; i < n; ++i)
        a[i] = both ? (uint8_t)(a[i] && b[i]) : (uint8_t)(a[i] || b[i]);
}

/* a[i] = a[i] op b[i] for n elements; AVG adds. */
CDP__DT void cdp__dt_combine(cdp_dtype t, cdp_reduce_op op, void *a, const void *b, uint64_t n) {
    switch (t) {
    case CDP_DTYPE_F64: cdp__dt_combine_f64(op, (double *)a, (const double *)b, n); break;
    case CDP_DTYPE_I8: cdp__dt_combine_i8(op, (int8_t *)a, (const int8_t *)b, n); break;
    case CDP_DTYPE_U8: cdp__dt_combine_u8(op, (uint8_t *)a, (const uint8_t *)b, n); break;
    case CDP_DTYPE_I16: cdp__dt_combine_i16(op, (int16_t *)a, (const int16_t *)b, n); break;
    case CDP_DTYPE_U16: cdp__dt_combine_u16(op, (uint16_t *)a, (const uint16_t *)b, n); break;
    case CDP_DTYPE_I32: cdp__dt_combine_i32(op, (int32_t *)a, (const int32_t *)b, n); break;
    case CDP_DTYPE_U32: cdp__dt_combine_u32(op, (uint32_t *)a, (const uint32_t *)b, n); break;
    case CDP_DTYPE_I64: cdp__dt_combine_i64(op, (int64_t *)a, (const int64_t *)b, n); break;
    case CDP_DTYPE_U64: cdp__dt_combine_u64(op, (uint64_t *)a, (const uint64_t *)b, n); break;
    case CDP_DTYPE_BOOL: cdp__dt_combine_bool(op, (uint8_t *)a, (const uint8_t *)b, n); break;
    case CDP_DTYPE_F16:
    case CDP_DTYPE_BF16: cdp__dt_combine_half(t, op, (uint16_t *)a, (const uint16_t *)b, n); break;
    default: cdp__dt_combine_f32(op, (float *)a, (const float *)b, n); break;
    }
}

/* Reads element i of an array as a double, or writes it (rounded to nearest even; integers:
   towards zero, within their range). For fills, casts and divisions: not fast. */
CDP__DT double cdp__dt_get(cdp_dtype t, const void *at, uint64_t i) {
    switch (t) {
    case CDP_DTYPE_F64: return ((const double *)at)[i];
    case CDP_DTYPE_I8: return (double)((const int8_t *)at)[i];
    case CDP_DTYPE_BOOL:
    case CDP_DTYPE_U8: return (double)((const uint8_t *)at)[i];
    case CDP_DTYPE_I16: return (double)((const int16_t *)at)[i];
    case CDP_DTYPE_U16: return (double)((const uint16_t *)at)[i];
    case CDP_DTYPE_I32: return (double)((const int32_t *)at)[i];
    case CDP_DTYPE_U32: return (double)((const uint32_t *)at)[i];
    case CDP_DTYPE_I64: return (double)((const int64_t *)at)[i];
    case CDP_DTYPE_U64: return (double)((const uint64_t *)at)[i];
    case CDP_DTYPE_F16: return (double)cdp__dt_from_f16(((const uint16_t *)at)[i]);
    case CDP_DTYPE_BF16: return (double)cdp__dt_from_bf16(((const uint16_t *)at)[i]);
    default: return (double)((const float *)at)[i];
    }
}

CDP__DT double cdp__dt_within(double v, double low, double high) {
    if (!(v > low)) return low;
    return v < high ? v : high;
}

CDP__DT void cdp__dt_put(cdp_dtype t, void *at, uint64_t i, double v) {
    switch (t) {
    case CDP_DTYPE_F64: ((double *)at)[i] = v; break;
    case CDP_DTYPE_I8: ((int8_t *)at)[i] = (int8_t)cdp__dt_within(v, -128, 127); break;
    case CDP_DTYPE_BOOL: ((uint8_t *)at)[i] = v != 0; break;
    case CDP_DTYPE_U8: ((uint8_t *)at)[i] = (uint8_t)cdp__dt_within(v, 0, 255); break;
    case CDP_DTYPE_I16: ((int16_t *)at)[i] = (int16_t)cdp__dt_within(v, -32768, 32767); break;
    case CDP_DTYPE_U16: ((uint16_t *)at)[i] = (uint16_t)cdp__dt_within(v, 0, 65535); break;
    case CDP_DTYPE_I32:
        ((int32_t *)at)[i] = (int32_t)cdp__dt_within(v, -2147483648.0, 2147483647.0);
        break;
    case CDP_DTYPE_U32: ((uint32_t *)at)[i] = (uint32_t)cdp__dt_within(v, 0, 4294967295.0); break;
    case CDP_DTYPE_I64:
        ((int64_t *)at)[i] =
            (int64_t)cdp__dt_within(v, -9223372036854774784.0, 9223372036854774784.0);
        break;
    case CDP_DTYPE_U64:
        ((uint64_t *)at)[i] = (uint64_t)cdp__dt_within(v, 0, 18446744073709549568.0);
        break;
    case CDP_DTYPE_F16: ((uint16_t *)at)[i] = cdp__dt_to_f16((float)v); break;
    case CDP_DTYPE_BF16: ((uint16_t *)at)[i] = cdp__dt_to_bf16((float)v); break;
    default: ((float *)at)[i] = (float)v; break;
    }
}

/* Divides n elements by `by`: integers towards zero, 16-bit floats as f32. */
CDP__DT void cdp__dt_divide(cdp_dtype t, void *at, uint64_t n, uint64_t by) {
    uint64_t i;
    if (t == CDP_DTYPE_I64) {
        for (i = 0; i < n; ++i)
            ((int64_t *)at)[i] /= (int64_t)by;
    } else if (t == CDP_DTYPE_U64) {
        for (i = 0; i < n; ++i)
            ((uint64_t *)at)[i] /= by;
    } else if (t <= CDP_DTYPE_F32) {
        for (i = 0; i < n; ++i)
            ((float *)at)[i] /= (float)by;
    } else if (t == CDP_DTYPE_F16 || t == CDP_DTYPE_BF16) {
        for (i = 0; i < n; ++i)
            cdp__dt_put(t, at, i, (double)((float)cdp__dt_get(t, at, i) / (float)by));
    } else {
        for (i = 0; i < n; ++i)
            cdp__dt_put(t, at, i, cdp__dt_get(t, at, i) / (double)by);
    }
}

/* Converts n elements to another dtype; f32 and bf16 directly. */
CDP__DT void cdp__dt_cast(cdp_dtype from, const void *in, cdp_dtype to, void *out, uint64_t n) {
    uint64_t i;
    if (from <= CDP_DTYPE_F32 && to == CDP_DTYPE_BF16) {
        for (i = 0; i < n; ++i)
            ((uint16_t *)out)[i] = cdp__dt_to_bf16(((const float *)in)[i]);
    } else if (from == CDP_DTYPE_BF16 && to <= CDP_DTYPE_F32) {
        for (i = 0; i < n; ++i)
            ((float *)out)[i] = cdp__dt_from_bf16(((const uint16_t *)in)[i]);
    } else {
        for (i = 0; i < n; ++i)
            cdp__dt_put(to, out, i, cdp__dt_get(from, in, i));
    }
}

/* Elements [start, start + size) of each dimension; a box with room for one more dimension. */
typedef struct cdp__dt_region {
    uint64_t start[CDP__DT_DIMS], size[CDP__DT_DIMS];
} cdp__dt_region;

CDP__DT uint64_t cdp__dt_volume(const cdp__dt_region *r, uint32_t ndim) {
    uint64_t v = 1;
    for (uint32_t d = 0; d < ndim; ++d)
        v *= r->size[d];
    return v;
}

/* Intersects two regions. False if they have no common element. */
CDP__DT bool cdp__dt_meet(
    const cdp__dt_region *a, const cdp__dt_region *b, uint32_t ndim, cdp__dt_region *out) {
    for (uint32_t d = 0; d < ndim; ++d) {
        const uint64_t low = cdp__dt_max(a->start[d], b->start[d]);
        const uint64_t high = cdp__dt_min(a->start[d] + a->size[d], b->start[d] + b->size[d]);
        if (low >= high) return false;
        out->start[d] = low;
        out->size[d] = high - low;
    }
    return true;
}

/* How a region is copied between two arrays: runs of contiguous bytes inside `dims` loops. */
typedef struct cdp__dt_copy {
    uint64_t from_at, to_at, run; /* bytes */
    uint32_t dims;
    uint64_t count[CDP__DT_DIMS], from_step[CDP__DT_DIMS], to_step[CDP__DT_DIMS];
} cdp__dt_copy;

/* How to copy `part`, which lies within both regions, between their row-major arrays; `elem`:
   bytes of an element. */
CDP__DT cdp__dt_copy cdp__dt_copy_of(const cdp__dt_region *part, const cdp__dt_region *from,
    const cdp__dt_region *to, uint32_t ndim, uint64_t elem) {
    cdp__dt_copy c;
    uint64_t from_step = elem, to_step = elem;
    memset(&c, 0, sizeof c);
    c.run = elem;
    for (uint32_t d = ndim; d-- > 0;) {
        const uint64_t n = part->size[d];
        c.from_at += (part->start[d] - from->start[d]) * from_step;
        c.to_at += (part->start[d] - to->start[d]) * to_step;
        if (n != 1 && c.dims == 0 && from_step == c.run && to_step == c.run) {
            c.run *= n;
        } else if (n != 1) {
            const uint32_t k = c.dims ? c.dims - 1 : 0;
            const bool joins = c.dims && from_step == c.from_step[k] * c.count[k]
                && to_step == c.to_step[k] * c.count[k];
            if (joins) {
                c.count[k] *= n;
            } else {
                c.count[c.dims] = n;
                c.from_step[c.dims] = from_step;
                c.to_step[c.dims++] = to_step;
            }
        }
        from_step *= from->size[d];
        to_step *= to->size[d];
    }
    return c;
}

/* Copies one row: `n` runs of `run` bytes. Runs of one element are copied without a call. */
CDP__DT void cdp__dt_copy_row(uint8_t *to, uint64_t to_step, const uint8_t *from,
    uint64_t from_step, uint64_t n, uint64_t run) {
    uint64_t i;
    if (run == 4) {
        for (i = 0; i < n; ++i)
            memcpy(to + i * to_step, from + i * from_step, 4);
    } else if (run == 8) {
        for (i = 0; i < n; ++i)
            memcpy(to + i * to_step, from + i * from_step, 8);
    } else if (run == 2) {
        for (i = 0; i < n; ++i)
            memcpy(to + i * to_step, from + i * from_step, 2);
    } else {
        for (i = 0; i < n; ++i)
            memcpy(to + i * to_step, from + i * from_step, (size_t)run);
    }
}

/* Advances the loops around a row; false after the last one. */
CDP__DT bool cdp__dt_copy_next(const cdp__dt_copy *c, uint64_t *at, uint64_t *from, uint64_t *to) {
    for (uint32_t d = 1; d < c->dims; ++d) {
        *from += c->from_step[d];
        *to += c->to_step[d];
        if (++at[d] < c->count[d]) return true;
        *from -= at[d] * c->from_step[d];
        *to -= at[d] * c->to_step[d];
        at[d] = 0;
    }
    return false;
}

CDP__DT void cdp__dt_copy_run(const cdp__dt_copy *c, void *to, const void *from) {
    uint8_t *out = (uint8_t *)to + c->to_at;
    const uint8_t *in = (const uint8_t *)from + c->from_at;
    uint64_t at[CDP__DT_DIMS] = {0}, f = 0, t = 0;
    if (!c->dims) {
        if (out != in) memcpy(out, in, (size_t)c->run);
        return;
    }
    do
        cdp__dt_copy_row(out + t, c->to_step[0], in + f, c->from_step[0], c->count[0], c->run);
    while (cdp__dt_copy_next(c, at, &f, &t));
}

/* The same, but combines with the elements at `to`. */
CDP__DT void cdp__dt_copy_combine(
    const cdp__dt_copy *c, cdp_dtype t, cdp_reduce_op op, void *to, const void *from) {
    const uint64_t rows = c->dims ? c->count[0] : 1, elem = cdp_dtype_size(t);
    uint8_t *out = (uint8_t *)to + c->to_at;
    const uint8_t *in = (const uint8_t *)from + c->from_at;
    uint64_t at[CDP__DT_DIMS] = {0}, f = 0, w = 0;
    do
        for (uint64_t i = 0; i < rows; ++i)
            cdp__dt_combine(
                t, op, out + w + i * c->to_step[0], in + f + i * c->from_step[0], c->run / elem);
    while (cdp__dt_copy_next(c, at, &f, &w));
}

CDP__DT uint64_t cdp__dt_copy_bytes(const cdp__dt_copy *c) {
    uint64_t n = c->run;
    for (uint32_t d = 0; d < c->dims; ++d)
        n *= c->count[d];
    return n;
}

#endif /* CDP_SRC_DTENSOR_KERNELS_H */
