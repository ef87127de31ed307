/* dtype/reduce.h - one arithmetic for every reduction (pure)

   Knows: the arithmetic of each dtype. Promises: the same bits for the same operands in the same
   order. */
#ifndef CDP_SRC_DTYPE_REDUCE_H
#define CDP_SRC_DTYPE_REDUCE_H

#include "../base/config.h"
#include "../base/types_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "dtype.h"

/* acc[i] = acc[i] OP x[i], or x[i] OP acc[i] if x comes from the lower rank: the order of the
   operands is part of the result (NaN, signed zero) and must be the same on all ranks. Kernels
   work on blocks of constant length, because gcc -O2 vectorises a loop only if it needs neither
   a remainder nor an overlap check; an incomplete block is padded. */
#define CDP__BLOCK 256u
#define CDP__STRIP 32u
/* Combines `strips` strips of CDP__STRIP elements each. For divide and scale, `x` points to one
   number. */
typedef void (*cdp__kernel)(void *acc, const void *x, uint64_t strips);

#define CDP__ADD(l, r) ((l) + (r))
#define CDP__MUL(l, r) (1u * (l) * (r)) /* not as int, where small types would overflow */
/* An addition of two different NaNs returns either, depending on the compiler; these macros
   return the same NaN for every result that is not a number. */
#define CDP__ADD_F32(l, r) ((l) + (r) == (l) + (r) ? (l) + (r) : NAN)
#define CDP__ADD_F64(l, r) ((l) + (r) == (l) + (r) ? (l) + (r) : (double)NAN)
#define CDP__MUL_F32(l, r) ((l) * (r) == (l) * (r) ? (l) * (r) : NAN)
#define CDP__MUL_F64(l, r) ((l) * (r) == (l) * (r) ? (l) * (r) : (double)NAN)
#define CDP__LOW(l, r) ((r) < (l) ? (r) : (l))
#define CDP__HIGH(l, r) ((r) > (l) ? (r) : (l))
#define CDP__OR_NAN(good, x) ((good) ? (x) : NAN)
#define CDP__LOW_F(l, r) ((l) <= (r) ? (l) : CDP__OR_NAN((r) < (l), r))
#define CDP__HIGH_F(l, r) ((l) >= (r) ? (l) : CDP__OR_NAN((r) > (l), r))
#define CDP__SWAP_LOW(a, x) CDP__LOW_F(x, a)
#define CDP__SWAP_HIGH(a, x) CDP__HIGH_F(x, a)
#define CDP__AND(l, r) ((l) & (r))
#define CDP__OR(l, r) ((l) | (r))
#define CDP__XOR(l, r) ((l) ^ (r))

#define CDP__KERNEL(name, T, EXPR)                                                 \
    CDP__PRIVATE void name(                                                        \
        void *CDP__RESTRICT acc_, const void *CDP__RESTRICT x_, uint64_t strips) { \
        T *acc = (T *)acc_;                                                        \
        const T *x = (const T *)x_;                                                \
        uint32_t i;                                                                \
        for (; strips; --strips, acc += CDP__STRIP, x += CDP__STRIP)               \
            for (i = 0; i < CDP__STRIP; ++i)                                       \
                acc[i] = (T)EXPR(acc[i], x[i]);                                    \
    }
/* BY_T is the type of the number of ranks, which may not fit 8 bits. */
#define CDP__KERNEL_BY(name, T, BY_T, OP)                                \
    CDP__PRIVATE void name(void *acc_, const void *x, uint64_t strips) { \
        T *acc = (T *)acc_;                                              \
        BY_T by;                                                         \
        uint32_t i;                                                      \
        memcpy(&by, x, sizeof by);                                       \
        for (; strips; --strips, acc += CDP__STRIP)                      \
            for (i = 0; i < CDP__STRIP; ++i)                             \
                acc[i] = (T)(acc[i] OP by);                              \
    }
#define CDP__KERNELS_FLOAT(s, T, ADD, MUL)             \
    CDP__KERNEL(cdp__add_##s, T, ADD)                  \
    CDP__KERNEL(cdp__mul_##s, T, MUL)                  \
    CDP__KERNEL(cdp__low_##s, T, CDP__LOW_F)           \
    CDP__KERNEL(cdp__high_##s, T, CDP__HIGH_F)         \
    CDP__KERNEL(cdp__low_swap_##s, T, CDP__SWAP_LOW)   \
    CDP__KERNEL(cdp__high_swap_##s, T, CDP__SWAP_HIGH) \
    CDP__KERNEL_BY(cdp__divide_##s, T, T, /)           \
    CDP__KERNEL_BY(cdp__scale_##s, T, T, *)
/* Unsigned integers: sums and products wrap, with the same bits as those of signed integers. */
#define CDP__KERNELS_INT(bits, BY_T)                            \
    CDP__KERNEL(cdp__add_##bits, uint##bits##_t, CDP__ADD)      \
    CDP__KERNEL(cdp__mul_##bits, uint##bits##_t, CDP__MUL)      \
    CDP__KERNEL(cdp__low_i##bits, int##bits##_t, CDP__LOW)      \
    CDP__KERNEL(cdp__low_u##bits, uint##bits##_t, CDP__LOW)     \
    CDP__KERNEL(cdp__high_i##bits, int##bits##_t, CDP__HIGH)    \
    CDP__KERNEL(cdp__high_u##bits, uint##bits##_t, CDP__HIGH)   \
    CDP__KERNEL_BY(cdp__divide_i##bits, int##bits##_t, BY_T, /) \
    CDP__KERNEL_BY(cdp__divide_u##bits, uint##bits##_t, u##BY_T, /)

CDP__KERNELS_FLOAT(f32, float, CDP__ADD_F32, CDP__MUL_F32)
#ifdef CDP_ONLY_F32
#define CDP__F64 f32 /* never asked for */
#define CDP__PAD CDP__STRIP
#else
CDP__KERNELS_FLOAT(f64, double, CDP__ADD_F64, CDP__MUL_F64)
#define CDP__F64 f64
#define CDP__PAD (CDP__BLOCK / 4)
#endif
CDP__KERNELS_INT(8, int32_t)
CDP__KERNELS_INT(16, int32_t)
CDP__KERNELS_INT(32, int32_t)
CDP__KERNELS_INT(64, int64_t)
CDP__KERNEL(cdp__and_8, uint8_t, CDP__AND)
CDP__KERNEL(cdp__or_8, uint8_t, CDP__OR)
CDP__KERNEL(cdp__xor_8, uint8_t, CDP__XOR)

/* The kernel for a reduction; `swap`: x is the left operand. Bitwise operations treat all dtypes
   as bytes; 16-bit floats are reduced as f32. */
CDP__PRIVATE cdp__kernel cdp__kernel_of(cdp_dtype t, cdp_reduce_op op, bool swap) {
#define CDP__ROW_OF(s) CDP__ROW_FLOAT(s)
#define CDP__ROW_FLOAT(s)                                                           \
    {                                                                               \
        cdp__add_##s, cdp__mul_##s, cdp__low_##s, cdp__high_##s, cdp__low_swap_##s, \
            cdp__high_swap_##s, cdp__divide_##s, cdp__scale_##s                     \
    }
#define CDP__ROW_INT(s, bits)                                                      \
    {                                                                              \
        cdp__add_##bits, cdp__mul_##bits, cdp__low_##s##bits, cdp__high_##s##bits, \
            cdp__low_##s##bits, cdp__high_##s##bits, cdp__divide_##s##bits, NULL   \
    }
    static const cdp__kernel table[CDP_DTYPE_COUNT - 1][8] = {CDP__ROW_FLOAT(f32),
        CDP__ROW_OF(CDP__F64), CDP__ROW_INT(i, 32), CDP__ROW_INT(i, 64), CDP__ROW_INT(u, 8),
        CDP__ROW_FLOAT(f32), CDP__ROW_FLOAT(f32), CDP__ROW_INT(i, 8), CDP__ROW_INT(i, 16),
        CDP__ROW_INT(u, 16), CDP__ROW_INT(u, 32), CDP__ROW_INT(u, 64),
        {cdp__or_8, cdp__and_8, cdp__and_8, cdp__or_8, cdp__and_8, cdp__or_8, NULL, NULL}};
#undef CDP__ROW_FLOAT
#undef CDP__ROW_OF
#undef CDP__ROW_INT
    switch (op) {
    case CDP_REDUCE_PRODUCT: return table[t - 1][1];
    case CDP_REDUCE_MIN: return table[t - 1][swap ? 4 : 2];
    case CDP_REDUCE_MAX: return table[t - 1][swap ? 5 : 3];
    /* the final division: until then, an average is a sum */
    case CDP_REDUCE_AVG: return table[t - 1][6];
    /* the scaling: after it, PREMUL_SUM is a sum */
    case CDP_REDUCE_PREMUL_SUM: return table[t - 1][7];
    case CDP_REDUCE_BAND: return cdp__and_8;
    case CDP_REDUCE_BOR: return cdp__or_8;
    case CDP_REDUCE_BXOR: return cdp__xor_8;
    default: return table[t - 1][0];
    }
}

/* Convert 16-bit floats to f32 and back, CDP__BLOCK at a time. All cases are computed and a mask
   selects one, so that the loops vectorise. No case computes with subnormal f32 numbers, which
   some programs let the processor treat as zero. */
#define CDP__PICK(cond, yes, no) \
    (((yes) & (0u - (uint32_t)(cond))) | ((no) & ((uint32_t)(cond)-1u)))
CDP__PRIVATE void cdp__widen_block(
    cdp_dtype t, const uint16_t *CDP__RESTRICT in, float *CDP__RESTRICT out) {
    uint32_t i;
    if (t == CDP_DTYPE_BF16) {
        for (i = 0; i < CDP__BLOCK; ++i) {
            const uint32_t bits = (uint32_t)in[i] << 16;
            memcpy(&out[i], &bits, 4);
        }
        return;
    }
    for (i = 0; i < CDP__BLOCK; ++i) {
        const uint32_t sign = (uint32_t)(in[i] & 0x8000u) << 16, mag = in[i] & 0x7fffu;
        /* 2^-24: exact below 2^-14, where f16 numbers are subnormal */
        const float tiny = (float)(int32_t)mag * 5.9604644775390625e-8f;
        uint32_t bits, tiny_bits;
        memcpy(&tiny_bits, &tiny, 4);
        bits = (mag << 13) + CDP__PICK(mag >= 0x7c00u, 224u << 23, 112u << 23);
        bits = CDP__PICK(mag < 0x400u, tiny_bits, bits) | sign;
        memcpy(&out[i], &bits, 4);
    }
}

CDP__PRIVATE void cdp__narrow_block(
    cdp_dtype t, const float *CDP__RESTRICT in, uint16_t *CDP__RESTRICT out) {
    uint32_t i;
    if (t == CDP_DTYPE_BF16) {
        for (i = 0; i < CDP__BLOCK; ++i) {
            uint32_t bits;
            memcpy(&bits, &in[i], 4);
            out[i] = (uint16_t)CDP__PICK((bits & 0x7fffffffu) > 0x7f800000u, 0x7fc0u,
                (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
        }
        return;
    }
    for (i = 0; i < CDP__BLOCK; ++i) {
        uint32_t bits, mag, tiny_bits, half;
        float tiny;
        memcpy(&bits, &in[i], 4);
        mag = bits & 0x7fffffffu;
        memcpy(&tiny, &mag, 4);
        tiny += 0.5f; /* rounds to a multiple of 2^-24, the step of subnormal f16 numbers */
        memcpy(&tiny_bits, &tiny, 4);
        half = (mag + 0xfffu + (mag >> 13 & 1u) - (112u << 23)) >> 13;
        half = CDP__PICK(mag < 0x38800000u, tiny_bits - 0x3f000000u, half);
        /* from 65520 on, the nearest f16 is infinity */
        half = CDP__PICK(mag >= 0x477ff000u, 0x7c00u, half);
        half = CDP__PICK(mag > 0x7f800000u, 0x7e00u, half);
        out[i] = (uint16_t)(half | (bits >> 16 & 0x8000u));
    }
}

/* Runs a kernel over n elements of dtype t; `scalar`: x is one number (f32 for 16-bit floats).
   16-bit floats are converted block by block; other dtypes are padded only in an incomplete
   strip. */
CDP__PRIVATE void cdp__kernel_run(
    cdp_dtype t, cdp__kernel k, void *acc, const void *x, uint64_t n, bool scalar) {
    const bool half = cdp__dtype_is_half(t) && !cdp__dtype_left_out(t);
    const uint64_t size = cdp_dtype_size(t), unit = half ? CDP__BLOCK : CDP__STRIP;
    uint64_t pad[2][CDP__PAD];
    float wide[2][CDP__BLOCK];
    uint64_t at, part;
    for (at = 0; at < n; at += part) {
        uint8_t *a = (uint8_t *)acc + at * size;
        const uint8_t *b = (const uint8_t *)x + (scalar ? 0 : at * size);
        uint8_t *to = a;
        part = unit == CDP__STRIP ? (n - at) & ~(uint64_t)(CDP__STRIP - 1)
                                  : cdp__min(n - at, CDP__BLOCK);
        if (part < unit) {
            part = n - at;
            memset(pad[0], 0, (size_t)(unit * size));
            memcpy(pad[0], a, (size_t)(part * size));
            a = (uint8_t *)pad[0];
            if (!scalar) {
                memset(pad[1], 0, (size_t)(unit * size));
                memcpy(pad[1], b, (size_t)(part * size));
                b = (const uint8_t *)pad[1];
            }
        }
        if (half) {
            cdp__widen_block(t, (const uint16_t *)(const void *)a, wide[0]);
            if (!scalar) cdp__widen_block(t, (const uint16_t *)(const void *)b, wide[1]);
            k(wide[0], scalar ? (const void *)b : (const void *)wide[1], CDP__BLOCK / CDP__STRIP);
            cdp__narrow_block(t, wide[0], (uint16_t *)(void *)a);
        } else {
            k(a, b, cdp__max(part / CDP__STRIP, 1));
        }
        if (a != to) memcpy(to, a, (size_t)(part * size));
    }
}

/* acc = acc OP x for n elements; with `swap`, acc = x OP acc. */
CDP__PRIVATE void cdp__reduce(
    cdp_dtype t, cdp_reduce_op op, bool swap, void *acc, const void *x, uint64_t n) {
    const bool bits = op == CDP_REDUCE_BAND || op == CDP_REDUCE_BOR || op == CDP_REDUCE_BXOR;
    if (op == CDP_REDUCE_AVG || op == CDP_REDUCE_PREMUL_SUM) op = CDP_REDUCE_SUM;
    cdp__kernel_run(bits ? CDP_DTYPE_U8 : t, cdp__kernel_of(t, op, swap), acc, x,
        bits ? n * cdp_dtype_size(t) : n, false);
}

CDP__PRIVATE void cdp__divide(cdp_dtype t, void *data, uint64_t n, uint32_t by) {
    const float f = (float)by;
    const cdp_real d = (cdp_real)by;
    const uint64_t u = by;
    const void *x = cdp_dtype_size(t) == 8 ? (const void *)&u : (const void *)&by;
    if (cdp__dtype_is_float(t)) x = t == CDP_DTYPE_F64 ? (const void *)&d : (const void *)&f;
    cdp__kernel_run(t, cdp__kernel_of(t, CDP_REDUCE_AVG, false), data, x, n, true);
}

CDP__PRIVATE void cdp__scale(cdp_dtype t, void *data, uint64_t n, cdp_real by) {
    const float f = (float)by;
    cdp__kernel_run(t, cdp__kernel_of(t, CDP_REDUCE_PREMUL_SUM, false), data,
        t == CDP_DTYPE_F64 ? (const void *)&by : (const void *)&f, n, true);
}

#endif /* CDP_SRC_DTYPE_REDUCE_H */
