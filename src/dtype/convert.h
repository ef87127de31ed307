/* dtype/convert.h - conversion between all dtypes (pure)

   Knows: the values of each dtype. Promises: one rounding, the same bits on every machine. */
#ifndef CDP_SRC_DTYPE_CONVERT_H
#define CDP_SRC_DTYPE_CONVERT_H

#include "../base/config.h"
#include "../base/types_api.h"
#include "../base/compiler.h"
#include "../base/helpers.h"
#include "dtype.h"
#include "reduce.h"

/* A block of elements on its way from one dtype to another: as f32, f64, or integers of 64 bits.
   Blocks have a constant length, which gcc -O2 vectorises; an incomplete one is padded. */
typedef union cdp__carrier {
    float f[CDP__BLOCK];
    double d[CDP__BLOCK];
    int64_t i[CDP__BLOCK];
    uint64_t u[CDP__BLOCK];
} cdp__carrier;
typedef enum cdp__carried {
    CDP__AS_F32,
    CDP__AS_F64,
    CDP__AS_I64,
    CDP__AS_U64
} cdp__carried;

CDP__PRIVATE cdp__carried cdp__carried_as(cdp_dtype t) {
    const cdp__dtype_row *row = cdp__dtype_row_of(t);
    if (row->kind == CDP__FLOAT) return row->bytes == 8 ? CDP__AS_F64 : CDP__AS_F32;
    return row->kind == CDP__SIGNED ? CDP__AS_I64 : CDP__AS_U64;
}

#define CDP__EACH(to, value)         \
    for (i = 0; i < CDP__BLOCK; ++i) \
        to[i] = value;
#define CDP__LOAD(to, T)               \
    {                                  \
        const T *from = (const T *)in; \
        CDP__EACH(to, from[i]);        \
    }

CDP__PRIVATE void cdp__carry_in(cdp_dtype t, const void *in, cdp__carrier *c) {
    const cdp__dtype_row *row = cdp__dtype_row_of(t);
    uint32_t i;
    if (row->narrow)
        cdp__widen_block(t, in, c->f);
    else if (row->kind == CDP__FLOAT)
        memcpy(c, in, (size_t)CDP__BLOCK * row->bytes);
    else if (row->kind == CDP__TRUTH) {
        const uint8_t *from = (const uint8_t *)in;
        CDP__EACH(c->u, from[i] != 0);
    } else if (row->bytes == 1 && row->kind == CDP__SIGNED)
        CDP__LOAD(c->i, int8_t)
    else if (row->bytes == 2 && row->kind == CDP__SIGNED)
        CDP__LOAD(c->i, int16_t)
    else if (row->bytes == 4 && row->kind == CDP__SIGNED)
        CDP__LOAD(c->i, int32_t)
    else if (row->bytes == 1)
        CDP__LOAD(c->u, uint8_t)
    else if (row->bytes == 2)
        CDP__LOAD(c->u, uint16_t)
    else if (row->bytes == 4)
        CDP__LOAD(c->u, uint32_t)
    else
        memcpy(c, in, sizeof *c);
}

/* The integers that the integers of a dtype are limited to. */
CDP__PRIVATE int64_t cdp__between(int64_t v, int64_t low, int64_t high) {
    const int64_t w = v < low ? low : v;
    return w > high ? high : w;
}
#define CDP__STORE(T, from, value) \
    {                              \
        T *to = (T *)out;          \
        CDP__EACH(to, (T)value);   \
    }

CDP__PRIVATE void cdp__carry_out(cdp_dtype t, const cdp__carrier *c, void *out) {
    const cdp__dtype_row *row = cdp__dtype_row_of(t);
    uint32_t i;
    if (row->narrow)
        cdp__narrow_block(t, c->f, out);
    else if (row->kind == CDP__FLOAT)
        memcpy(out, c, (size_t)CDP__BLOCK * row->bytes);
    else if (row->kind == CDP__TRUTH)
        CDP__STORE(uint8_t, c->u, (c->u[i] != 0))
    else if (row->bytes == 1 && row->kind == CDP__SIGNED)
        CDP__STORE(int8_t, c->i, cdp__between(c->i[i], INT8_MIN, INT8_MAX))
    else if (row->bytes == 2 && row->kind == CDP__SIGNED)
        CDP__STORE(int16_t, c->i, cdp__between(c->i[i], INT16_MIN, INT16_MAX))
    else if (row->bytes == 4 && row->kind == CDP__SIGNED)
        CDP__STORE(int32_t, c->i, cdp__between(c->i[i], INT32_MIN, INT32_MAX))
    else if (row->bytes == 1)
        CDP__STORE(uint8_t, c->u, cdp__min(c->u[i], UINT8_MAX))
    else if (row->bytes == 2)
        CDP__STORE(uint16_t, c->u, cdp__min(c->u[i], UINT16_MAX))
    else if (row->bytes == 4)
        CDP__STORE(uint32_t, c->u, cdp__min(c->u[i], UINT32_MAX))
    else
        memcpy(out, c, sizeof *c);
}

#ifndef CDP_ONLY_F32 /* then only integers are converted, for their means */
/* Rounds to f32 "to odd": an inexact result gets an odd last bit. Rounding that once more, to fewer
   bits, gives what one rounding of the exact value gives. */
CDP__PRIVATE float cdp__odd_of_f64(double v) {
    float f = (float)v;
    const double back = (double)f;
    uint32_t bits;
    if (back == v || v != v) return f;
    memcpy(&bits, &f, 4);
    if ((back < 0 ? -back : back) > (v < 0 ? -v : v)) --bits; /* towards zero */
    bits |= 1u;
    memcpy(&f, &bits, 4);
    return f;
}
CDP__PRIVATE float cdp__odd_of_u64(uint64_t v) {
    float up = 1;
    while (v >> 24) {
        v = v >> 8 | ((v & 0xff) != 0);
        up *= 256;
    }
    return (float)v * up;
}
CDP__PRIVATE float cdp__odd_of_i64(int64_t v) {
    return v < 0 ? -cdp__odd_of_u64(0 - (uint64_t)v) : cdp__odd_of_u64((uint64_t)v);
}

/* The integer that a float is truncated to: the nearest one that exists, 0 for a NaN. */
CDP__PRIVATE int64_t cdp__i64_of(double v) {
    if (v != v) return 0;
    if (v >= 9223372036854775808.0) return INT64_MAX;
    return v < -9223372036854775808.0 ? INT64_MIN : (int64_t)v;
}
CDP__PRIVATE uint64_t cdp__u64_of(double v) {
    if (!(v > 0)) return 0;
    return v >= 18446744073709551616.0 ? UINT64_MAX : (uint64_t)v;
}

/* Changes how a block is carried. `odd`: it is rounded once more afterwards. */
CDP__PRIVATE void cdp__carry_f32(cdp__carrier *c, cdp__carried from, bool odd) {
    const cdp__carrier was = *c;
    uint32_t i;
    if (from == CDP__AS_F64 && odd)
        CDP__EACH(c->f, cdp__odd_of_f64(was.d[i]))
    else if (from == CDP__AS_F64)
        CDP__EACH(c->f, (float)was.d[i])
    else if (from == CDP__AS_I64 && odd)
        CDP__EACH(c->f, cdp__odd_of_i64(was.i[i]))
    else if (from == CDP__AS_I64)
        CDP__EACH(c->f, (float)was.i[i])
    else if (odd)
        CDP__EACH(c->f, cdp__odd_of_u64(was.u[i]))
    else
        CDP__EACH(c->f, (float)was.u[i])
}
CDP__PRIVATE void cdp__carry_f64(cdp__carrier *c, cdp__carried from) {
    const cdp__carrier was = *c;
    uint32_t i;
    if (from == CDP__AS_F32)
        CDP__EACH(c->d, (double)was.f[i])
    else if (from == CDP__AS_I64)
        CDP__EACH(c->d, (double)was.i[i])
    else
        CDP__EACH(c->d, (double)was.u[i])
}
#endif
CDP__PRIVATE void cdp__carry_int(cdp__carrier *c, cdp__carried from, bool has_sign) {
    uint32_t i;
#ifndef CDP_ONLY_F32
    if (from == CDP__AS_F32) cdp__carry_f64(c, from);
    if (from <= CDP__AS_F64 && has_sign)
        CDP__EACH(c->i, cdp__i64_of(c->d[i]))
    else if (from <= CDP__AS_F64)
        CDP__EACH(c->u, cdp__u64_of(c->d[i]))
    if (from <= CDP__AS_F64) return;
#endif
    (void)from;
    if (has_sign)
        CDP__EACH(c->i, (int64_t)cdp__min(c->u[i], INT64_MAX))
    else
        CDP__EACH(c->u, c->i[i] < 0 ? 0 : (uint64_t)c->i[i])
}
#ifndef CDP_ONLY_F32
/* To bool: 1 for everything but 0, NaNs included. */
CDP__PRIVATE void cdp__carry_truth(cdp__carrier *c, cdp__carried from) {
    uint32_t i;
    if (from == CDP__AS_F32) cdp__carry_f64(c, from);
    if (from <= CDP__AS_F64) CDP__EACH(c->u, c->d[i] != 0)
}
#endif
#undef CDP__EACH
#undef CDP__LOAD
#undef CDP__STORE

CDP__PRIVATE void cdp__carry(cdp__carrier *c, cdp_dtype from, cdp_dtype to) {
    const cdp__carried was = cdp__carried_as(from), is = cdp__carried_as(to);
#ifdef CDP_ONLY_F32
    if (was != is) cdp__carry_int(c, was, is == CDP__AS_I64);
#else
    if (cdp__dtype_row_of(to)->kind == CDP__TRUTH)
        cdp__carry_truth(c, was);
    else if (was == is)
        return;
    else if (is == CDP__AS_F32)
        cdp__carry_f32(c, was, cdp__dtype_row_of(to)->narrow);
    else if (is == CDP__AS_F64)
        cdp__carry_f64(c, was);
    else
        cdp__carry_int(c, was, is == CDP__AS_I64);
#endif
}

/* Converts `n` elements that are no complex numbers. Floats are rounded once, to nearest even; to
   integers, towards zero, and what is out of range becomes the nearest number that is not, a NaN
   0. */
CDP__PRIVATE void cdp__convert_parts(
    cdp_dtype from, const void *in, cdp_dtype to, void *out, uint64_t n) {
    const uint64_t from_size = cdp__dtype_row_of(from)->bytes;
    const uint64_t to_size = cdp__dtype_row_of(to)->bytes;
    const uint8_t *src = (const uint8_t *)in;
    uint8_t *dst = (uint8_t *)out;
    uint64_t rest[CDP__BLOCK];
    cdp__carrier c;
    for (; n >= CDP__BLOCK; n -= CDP__BLOCK) {
        cdp__carry_in(from, src, &c);
        cdp__carry(&c, from, to);
        cdp__carry_out(to, &c, dst);
        src += CDP__BLOCK * from_size;
        dst += CDP__BLOCK * to_size;
    }
    if (!n) return;
    memset(rest, 0, sizeof rest);
    memcpy(rest, src, (size_t)(n * from_size));
    cdp__carry_in(from, rest, &c);
    cdp__carry(&c, from, to);
    cdp__carry_out(to, &c, rest);
    memcpy(dst, rest, (size_t)(n * to_size));
}

/* Copies every `from_step`th part to every `to_step`th place. */
CDP__PRIVATE void cdp__copy_parts(uint8_t *to, uint64_t to_step, const uint8_t *from,
    uint64_t from_step, uint64_t bytes, uint64_t n) {
    uint64_t i;
    for (i = 0; i < n; ++i)
        memcpy(to + i * to_step * bytes, from + i * from_step * bytes, (size_t)bytes);
}

/* Converts `n` elements. Of a complex number, another dtype gets the real part; a number becomes a
   complex one without imaginary part. */
CDP__PRIVATE void cdp__convert(
    cdp_dtype from, const void *in, cdp_dtype to, void *out, uint64_t n) {
    const uint32_t parts = cdp__dtype_parts(from), other = cdp__dtype_parts(to);
    const cdp_dtype a = cdp__dtype_part(from), b = cdp__dtype_part(to);
    const uint64_t a_size = cdp__dtype_row_of(a)->bytes, b_size = cdp__dtype_row_of(b)->bytes;
    uint64_t one[CDP__BLOCK], two[CDP__BLOCK], at, k;
    if (parts == other) {
        cdp__convert_parts(a, in, b, out, n * parts);
        return;
    }
    for (at = 0; at < n; at += k) {
        uint8_t *dst = (uint8_t *)out + at * b_size * other;
        k = cdp__min(n - at, CDP__BLOCK);
        cdp__copy_parts(
            (uint8_t *)one, 1, (const uint8_t *)in + at * a_size * parts, parts, a_size, k);
        cdp__convert_parts(a, one, b, two, k);
        memset(dst, 0, (size_t)(k * b_size * other));
        cdp__copy_parts(dst, other, (const uint8_t *)two, 1, b_size, k);
    }
}

/* Reads element i as an f64, or writes it. For a few elements. */
CDP__PRIVATE double cdp__number_get(cdp_dtype t, const void *at, uint64_t i) {
    double v;
    if (t == CDP_DTYPE_F64) return ((const double *)at)[i];
    if (t == CDP_DTYPE_F32 || t == CDP_DTYPE_DEFAULT) return (double)((const float *)at)[i];
    cdp__convert(t, (const uint8_t *)at + i * cdp__dtype_row_of(t)->bytes, CDP_DTYPE_F64, &v, 1);
    return v;
}
CDP__PRIVATE void cdp__number_put(cdp_dtype t, void *at, uint64_t i, double v) {
    if (t == CDP_DTYPE_F64)
        ((double *)at)[i] = v;
    else if (t == CDP_DTYPE_F32 || t == CDP_DTYPE_DEFAULT)
        ((float *)at)[i] = (float)v;
    else
        cdp__convert(CDP_DTYPE_F64, &v, t, (uint8_t *)at + i * cdp__dtype_row_of(t)->bytes, 1);
}

/* Stores the number that MAX (`high` false) or MIN never chooses over another one. */
CDP__PRIVATE void cdp__number_limit(cdp_dtype t, void *at, uint64_t i, bool high) {
    const double bound = high ? (double)INFINITY : -(double)INFINITY;
    const bool truth = cdp__dtype_row_of(t)->kind == CDP__TRUTH;
    double got;
    cdp__number_put(t, at, i, truth ? high : bound);
    got = cdp__number_get(t, at, i);
    if (got != got) cdp__number_put(t, at, i, high ? 448 : -448); /* f8e4m3 has no infinity */
}

#endif /* CDP_SRC_DTYPE_CONVERT_H */
