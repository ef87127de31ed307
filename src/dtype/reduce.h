/* dtype/reduce.h - one arithmetic for every reduction (pure)

   Knows: the arithmetic of each dtype. Promises: the same bits for the same operands in the same
   order. */
#ifndef CDP_SRC_DTYPE_REDUCE_H
#define CDP_SRC_DTYPE_REDUCE_H

#include "../base/config.h"
#include "../base/types_api.h"
#include "../base/compiler.h"
#include "../base/helpers.h"
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
/* of BOOL: every byte but 0 is true, and results are 0 or 1 */
#define CDP__BOTH_TRUE(l, r) (CDP__LOW(l, r) != 0)
#define CDP__ANY_TRUE(l, r) (((l) | (r)) != 0)
#define CDP__ONE_TRUE(l, r) (((l) != 0) != ((r) != 0))

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
/* Integers are divided to the nearest one, a half away from zero. */
#define CDP__NEAREST_U(a, by) ((a) / (by) + ((a) % (by) > ((by)-1) / 2))
#define CDP__NEAREST_I(a, by) (CDP__NEAREST_U(a, by) - ((a) % (by) < -(((by)-1) / 2)))
#define CDP__KERNEL_MEAN(name, T, BY_T, NEAREST)                         \
    CDP__PRIVATE void name(void *acc_, const void *x, uint64_t strips) { \
        T *acc = (T *)acc_;                                              \
        BY_T by;                                                         \
        uint32_t i;                                                      \
        memcpy(&by, x, sizeof by);                                       \
        for (; strips; --strips, acc += CDP__STRIP)                      \
            for (i = 0; i < CDP__STRIP; ++i)                             \
                acc[i] = (T)NEAREST((BY_T)acc[i], by);                   \
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
#define CDP__KERNELS_INT(bits, BY_T)                                           \
    CDP__KERNEL(cdp__add_##bits, uint##bits##_t, CDP__ADD)                     \
    CDP__KERNEL(cdp__mul_##bits, uint##bits##_t, CDP__MUL)                     \
    CDP__KERNEL(cdp__low_i##bits, int##bits##_t, CDP__LOW)                     \
    CDP__KERNEL(cdp__low_u##bits, uint##bits##_t, CDP__LOW)                    \
    CDP__KERNEL(cdp__high_i##bits, int##bits##_t, CDP__HIGH)                   \
    CDP__KERNEL(cdp__high_u##bits, uint##bits##_t, CDP__HIGH)                  \
    CDP__KERNEL_MEAN(cdp__divide_i##bits, int##bits##_t, BY_T, CDP__NEAREST_I) \
    CDP__KERNEL_MEAN(cdp__divide_u##bits, uint##bits##_t, u##BY_T, CDP__NEAREST_U)

CDP__KERNELS_FLOAT(f32, float, CDP__ADD_F32, CDP__MUL_F32)
#ifndef CDP_ONLY_F32
CDP__KERNELS_FLOAT(f64, double, CDP__ADD_F64, CDP__MUL_F64)
#endif
CDP__KERNELS_INT(8, int32_t)
CDP__KERNELS_INT(16, int32_t)
CDP__KERNELS_INT(32, int32_t)
CDP__KERNELS_INT(64, int64_t)
CDP__KERNEL(cdp__and_8, uint8_t, CDP__AND)
CDP__KERNEL(cdp__or_8, uint8_t, CDP__OR)
CDP__KERNEL(cdp__xor_8, uint8_t, CDP__XOR)

CDP__KERNEL(cdp__and_bool, uint8_t, CDP__BOTH_TRUE)
CDP__KERNEL(cdp__or_bool, uint8_t, CDP__ANY_TRUE)
CDP__KERNEL(cdp__xor_bool, uint8_t, CDP__ONE_TRUE)

/* Products of complex numbers; x and acc are their parts. */
#define CDP__KERNEL_COMPLEX(name, T, NOT)                                          \
    CDP__PRIVATE void name(                                                        \
        void *CDP__RESTRICT acc_, const void *CDP__RESTRICT x_, uint64_t strips) { \
        T *acc = (T *)acc_;                                                        \
        const T *x = (const T *)x_;                                                \
        uint32_t i;                                                                \
        for (; strips; --strips, acc += CDP__STRIP, x += CDP__STRIP)               \
            for (i = 0; i < CDP__STRIP; i += 2) {                                  \
                const T real = acc[i] * x[i] - acc[i + 1] * x[i + 1];              \
                const T other = acc[i] * x[i + 1] + acc[i + 1] * x[i];             \
                acc[i] = real == real ? real : NOT;                                \
                acc[i + 1] = other == other ? other : NOT;                         \
            }                                                                      \
    }
#ifndef CDP_FEW_DTYPES
CDP__KERNEL_COMPLEX(cdp__mul_c32, float, NAN)
#endif
#if !defined(CDP_ONLY_F32) && !defined(CDP_FEW_DTYPES)
CDP__KERNEL_COMPLEX(cdp__mul_c64, double, (double)NAN)
#endif

/* The kernels of a dtype, in this order. Bitwise operations treat all integers as bytes. */
enum {
    CDP__DO_ADD,
    CDP__DO_MULTIPLY,
    CDP__DO_LOW,
    CDP__DO_HIGH,
    CDP__DO_LOW_SWAP,
    CDP__DO_HIGH_SWAP,
    CDP__DO_DIVIDE,
    CDP__DO_SCALE,
    CDP__DO_AND,
    CDP__DO_OR,
    CDP__DO_XOR,
    CDP__DO_COUNT
};
static const cdp__kernel cdp__set_bool[CDP__DO_COUNT] = {cdp__or_bool, cdp__and_bool, cdp__and_bool,
    cdp__or_bool, cdp__and_bool, cdp__or_bool, NULL, NULL, cdp__and_bool, cdp__or_bool,
    cdp__xor_bool};

#define CDP__SET_FLOAT(s)                                                                    \
    static const cdp__kernel cdp__set_##s[CDP__DO_COUNT] = {cdp__add_##s, cdp__mul_##s,      \
        cdp__low_##s, cdp__high_##s, cdp__low_swap_##s, cdp__high_swap_##s, cdp__divide_##s, \
        cdp__scale_##s, NULL, NULL, NULL};
#define CDP__SET_INT(s, bits)                                                         \
    static const cdp__kernel cdp__set_##s##bits[CDP__DO_COUNT] = {cdp__add_##bits,    \
        cdp__mul_##bits, cdp__low_##s##bits, cdp__high_##s##bits, cdp__low_##s##bits, \
        cdp__high_##s##bits, cdp__divide_##s##bits, NULL, cdp__and_8, cdp__or_8, cdp__xor_8};
#define CDP__SET_COMPLEX(f, c)                                                                \
    static const cdp__kernel cdp__set_##c[CDP__DO_COUNT] = {cdp__add_##f, cdp__mul_##c, NULL, \
        NULL, NULL, NULL, cdp__divide_##f, cdp__scale_##f, NULL, NULL, NULL};

/* The sets of this build. NULL: it leaves out the dtype, so that nobody asks for its kernels. */
CDP__SET_FLOAT(f32)
#ifdef CDP_ONLY_F32
#define cdp__set_f64 NULL
#else
CDP__SET_FLOAT(f64)
#endif
CDP__SET_INT(i, 32)
CDP__SET_INT(i, 64)
CDP__SET_INT(u, 8)
#ifdef CDP_FEW_DTYPES
#define cdp__set_i8 NULL
#define cdp__set_i16 NULL
#define cdp__set_u16 NULL
#define cdp__set_u32 NULL
#define cdp__set_u64 NULL
#define cdp__set_c32 NULL
#else
CDP__SET_INT(i, 8)
CDP__SET_INT(i, 16)
CDP__SET_INT(u, 16)
CDP__SET_INT(u, 32)
CDP__SET_INT(u, 64)
CDP__SET_COMPLEX(f32, c32)
#endif
#if defined(CDP_ONLY_F32) || defined(CDP_FEW_DTYPES)
#define cdp__set_c64 NULL
#else
CDP__SET_COMPLEX(f64, c64)
#endif

CDP__PRIVATE cdp__kernel cdp__kernel_at(cdp_dtype t, uint32_t what) {
#define CDP__ROW(id, name, bytes, kind, set, form, wide, one, ops, grads, nccl, since) \
    cdp__set_##set,
    static const cdp__kernel *const table[CDP_DTYPE_COUNT] = {cdp__set_f32, CDP__DTYPES(CDP__ROW)};
#undef CDP__ROW
    return table[t][what];
}

/* The kernel for a reduction; `swap`: x is the left operand. */
CDP__PRIVATE cdp__kernel cdp__kernel_of(cdp_dtype t, cdp_reduce_op op, bool swap) {
    switch (op) {
    case CDP_REDUCE_PRODUCT: return cdp__kernel_at(t, CDP__DO_MULTIPLY);
    case CDP_REDUCE_MIN: return cdp__kernel_at(t, swap ? CDP__DO_LOW_SWAP : CDP__DO_LOW);
    case CDP_REDUCE_MAX: return cdp__kernel_at(t, swap ? CDP__DO_HIGH_SWAP : CDP__DO_HIGH);
    case CDP_REDUCE_BAND: return cdp__kernel_at(t, CDP__DO_AND);
    case CDP_REDUCE_BOR: return cdp__kernel_at(t, CDP__DO_OR);
    case CDP_REDUCE_BXOR: return cdp__kernel_at(t, CDP__DO_XOR);
    /* an average is a sum that is divided at the end; PREMUL_SUM, one that is scaled before */
    default: return cdp__kernel_at(t, CDP__DO_ADD);
    }
}

/* Convert narrow floats to f32 and back, CDP__BLOCK at a time. All cases are computed and a mask
   selects one, so that the loops vectorise. No case computes with subnormal f32 numbers, which
   some programs let the processor treat as zero. */
typedef void (*cdp__converter)(const void *CDP__RESTRICT in, void *CDP__RESTRICT out);
#define CDP__PICK(cond, yes, no) \
    (((yes) & (0u - (uint32_t)(cond))) | ((no) & ((uint32_t)(cond)-1u)))

CDP__PRIVATE void cdp__widen_bf16(const void *CDP__RESTRICT in_, void *CDP__RESTRICT out_) {
    const uint16_t *in = (const uint16_t *)in_;
    uint32_t *out = (uint32_t *)out_;
    uint32_t i;
    for (i = 0; i < CDP__BLOCK; ++i)
        out[i] = (uint32_t)in[i] << 16;
}

CDP__PRIVATE void cdp__narrow_bf16(const void *CDP__RESTRICT in_, void *CDP__RESTRICT out_) {
    const float *in = (const float *)in_;
    uint16_t *out = (uint16_t *)out_;
    uint32_t i;
    for (i = 0; i < CDP__BLOCK; ++i) {
        uint32_t bits;
        memcpy(&bits, &in[i], 4);
        out[i] = (uint16_t)CDP__PICK((bits & 0x7fffffffu) > 0x7f800000u, 0x7fc0u,
            (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
    }
}

/* LEAST: the least regular number; below it, numbers are multiples of STEP. BIAS: how much larger
   the exponent is in f32. From SPECIAL on, exponents are increased by MORE: infinities, NaNs. */
#define CDP__WIDEN_FLOAT(name, T, SIGN, SHIFT, LEAST, STEP, BIAS, SPECIAL, MORE)               \
    CDP__PRIVATE void name(const void *CDP__RESTRICT in_, void *CDP__RESTRICT out_) {          \
        const T *in = (const T *)in_;                                                          \
        float *out = (float *)out_;                                                            \
        uint32_t i;                                                                            \
        for (i = 0; i < CDP__BLOCK; ++i) {                                                     \
            const uint32_t sign = (uint32_t)(in[i] & (1u << (SIGN))) << (31 - (SIGN));         \
            const uint32_t mag = in[i] & ((1u << (SIGN)) - 1);                                 \
            const float tiny = (float)(int32_t)mag * (STEP);                                   \
            uint32_t bits, tiny_bits;                                                          \
            memcpy(&tiny_bits, &tiny, 4);                                                      \
            bits = (mag << (SHIFT)) + CDP__PICK(mag >= (SPECIAL), (MORE) << 23, (BIAS) << 23); \
            bits = CDP__PICK(mag < (LEAST), tiny_bits, bits) | sign;                           \
            memcpy(&out[i], &bits, 4);                                                         \
        }                                                                                      \
    }
/* Rounds to nearest even. LEAST: the bits of the least regular number; adding ROUND, whose bits are
   ROUND_BITS, rounds smaller ones to a multiple of their step. From LARGE on (bits) the result is
   OVERFLOW. */
#define CDP__NARROW_FLOAT(                                                            \
    name, T, SIGN, SHIFT, BIAS, LEAST, ROUND, ROUND_BITS, LARGE, OVERFLOW, NOT)       \
    CDP__PRIVATE void name(const void *CDP__RESTRICT in_, void *CDP__RESTRICT out_) { \
        const float *in = (const float *)in_;                                         \
        T *out = (T *)out_;                                                           \
        uint32_t i;                                                                   \
        for (i = 0; i < CDP__BLOCK; ++i) {                                            \
            uint32_t bits, mag, tiny_bits, result;                                    \
            float tiny;                                                               \
            memcpy(&bits, &in[i], 4);                                                 \
            mag = bits & 0x7fffffffu;                                                 \
            memcpy(&tiny, &mag, 4);                                                   \
            tiny += (ROUND);                                                          \
            memcpy(&tiny_bits, &tiny, 4);                                             \
            result = mag + ((1u << ((SHIFT)-1)) - 1) + (mag >> (SHIFT)&1u);           \
            result = (result - ((BIAS) << 23)) >> (SHIFT);                            \
            result = CDP__PICK(mag < (LEAST), tiny_bits - (ROUND_BITS), result);      \
            result = CDP__PICK(mag >= (LARGE), OVERFLOW, result);                     \
            result = CDP__PICK(mag > 0x7f800000u, NOT, result);                       \
            out[i] = (T)(result | (bits >> (31 - (SIGN)) & (1u << (SIGN))));          \
        }                                                                             \
    }
CDP__WIDEN_FLOAT(
    cdp__widen_f16, uint16_t, 15, 13, 0x400u, 5.9604644775390625e-8f, 112u, 0x7c00u, 224u)
CDP__NARROW_FLOAT(cdp__narrow_f16, uint16_t, 15, 13, 112u, 0x38800000u, 0.5f, 0x3f000000u,
    0x477ff000u, 0x7c00u, 0x7e00u) /* from 65520 on, the nearest f16 is infinity */
#ifndef CDP_FEW_DTYPES
CDP__WIDEN_FLOAT(cdp__widen_f8e5m2, uint8_t, 7, 21, 4u, 1.52587890625e-5f, 112u, 0x7cu, 224u)
CDP__NARROW_FLOAT(cdp__narrow_f8e5m2, uint8_t, 7, 21, 112u, 0x38800000u, 128.0f, 0x43000000u,
    0x47700000u, 0x7cu, 0x7fu) /* from 61440 on */
/* Without infinities: 0x7f is NaN, and so is what rounds to more than 448. */
CDP__WIDEN_FLOAT(cdp__widen_f8e4m3, uint8_t, 7, 20, 8u, 0.001953125f, 120u, 0x7fu, 240u)
CDP__NARROW_FLOAT(cdp__narrow_f8e4m3, uint8_t, 7, 20, 120u, 0x3c800000u, 16384.0f, 0x46800000u,
    0x43e80001u, 0x7fu, 0x7fu)
#else /* never asked for */
#define cdp__widen_f8e5m2 NULL
#define cdp__narrow_f8e5m2 NULL
#define cdp__widen_f8e4m3 NULL
#define cdp__narrow_f8e4m3 NULL
#endif

/* The function that widens a block of a narrow dtype, or narrows it; else NULL. */
CDP__PRIVATE cdp__converter cdp__converter_of(cdp_dtype t, bool widen) {
#define cdp__widen_same NULL
#define cdp__narrow_same NULL
#define CDP__ROW(id, name, bytes, kind, set, form, wide, one, ops, grads, nccl, since) \
    {cdp__narrow_##form, cdp__widen_##form},
    static const cdp__converter table[CDP_DTYPE_COUNT][2] = {{NULL, NULL}, CDP__DTYPES(CDP__ROW)};
#undef CDP__ROW
#undef cdp__widen_same
#undef cdp__narrow_same
    return table[t][widen];
}

CDP__PRIVATE void cdp__widen_block(cdp_dtype t, const void *in, float *out) {
    cdp__converter_of(t, true)(in, out);
}
CDP__PRIVATE void cdp__narrow_block(cdp_dtype t, const float *in, void *out) {
    cdp__converter_of(t, false)(in, out);
}

/* Runs a kernel over n elements of dtype t, which is not narrow; `scalar`: x is one number. An
   incomplete strip is padded. */
CDP__PRIVATE void cdp__kernel_run(
    cdp_dtype t, cdp__kernel k, void *acc, const void *x, uint64_t n, bool scalar) {
    const uint64_t size = cdp__dtype_row_of(t)->bytes, whole = n & ~(uint64_t)(CDP__STRIP - 1);
    const size_t rest = (size_t)((n - whole) * size);
    uint64_t pad[2][CDP__STRIP];
    uint8_t *a = (uint8_t *)acc + whole * size;
    if (whole) k(acc, x, whole / CDP__STRIP);
    if (!rest) return;
    memset(pad, 0, sizeof pad);
    memcpy(pad[0], a, rest);
    if (!scalar) memcpy(pad[1], (const uint8_t *)x + whole * size, rest);
    k(pad[0], scalar ? x : pad[1], 1);
    memcpy(a, pad[0], rest);
}

/* The same for a narrow dtype, which is converted block by block; one number x is an f32. */
CDP__PRIVATE void cdp__kernel_run_narrow(
    cdp_dtype t, cdp__kernel k, void *acc, const void *x, uint64_t n, bool scalar) {
    const uint64_t size = cdp__dtype_row_of(t)->bytes;
    uint16_t pad[2][CDP__BLOCK];
    float wide[2][CDP__BLOCK];
    uint64_t at, part;
    for (at = 0; at < n; at += part) {
        uint8_t *to = (uint8_t *)acc + at * size;
        const uint8_t *from = (const uint8_t *)x + (scalar ? 0 : at * size);
        void *a = to;
        const void *b = from;
        part = cdp__min(n - at, CDP__BLOCK);
        if (part < CDP__BLOCK) {
            memset(pad, 0, sizeof pad);
            memcpy(pad[0], to, (size_t)(part * size));
            a = pad[0];
            if (!scalar) {
                memcpy(pad[1], from, (size_t)(part * size));
                b = pad[1];
            }
        }
        cdp__widen_block(t, a, wide[0]);
        if (!scalar) cdp__widen_block(t, b, wide[1]);
        k(wide[0], scalar ? x : wide[1], CDP__BLOCK / CDP__STRIP);
        cdp__narrow_block(t, wide[0], a);
        if (a != to) memcpy(to, a, (size_t)(part * size));
    }
}

CDP__PRIVATE void cdp__kernel_apply(
    cdp_dtype t, cdp__kernel k, void *acc, const void *x, uint64_t n, bool scalar) {
    if (cdp__dtype_is_narrow(t))
        cdp__kernel_run_narrow(t, k, acc, x, n, scalar);
    else
        cdp__kernel_run(cdp__dtype_part(t), k, acc, x, n * cdp__dtype_parts(t), scalar);
}

/* acc = acc OP x for n elements; with `swap`, acc = x OP acc. */
CDP__PRIVATE void cdp__reduce(
    cdp_dtype t, cdp_reduce_op op, bool swap, void *acc, const void *x, uint64_t n) {
    const cdp__kernel k = cdp__kernel_of(t, op, swap);
    const bool bits = (CDP__OPS_BITS >> op & 1) != 0 && t != CDP_DTYPE_BOOL;
    cdp__kernel_apply(
        bits ? CDP_DTYPE_U8 : t, k, acc, x, bits ? n * cdp__dtype_row_of(t)->bytes : n, false);
}

CDP__PRIVATE void cdp__divide(cdp_dtype t, void *data, uint64_t n, uint32_t by) {
    const float f = (float)by;
    const cdp_real d = (cdp_real)by;
    const uint64_t u = by;
    const cdp__dtype_row *row = cdp__dtype_row_of(cdp__dtype_part(t));
    const void *x = row->bytes == 8 ? (const void *)&u : (const void *)&by;
    if (row->kind == CDP__FLOAT) x = row->bytes == 8 ? (const void *)&d : (const void *)&f;
    cdp__kernel_apply(t, cdp__kernel_at(t, CDP__DO_DIVIDE), data, x, n, true);
}

CDP__PRIVATE void cdp__scale(cdp_dtype t, void *data, uint64_t n, cdp_real by) {
    const float f = (float)by;
    cdp__kernel_apply(t, cdp__kernel_at(t, CDP__DO_SCALE), data,
        cdp__dtype_row_of(cdp__dtype_part(t))->bytes == 8 ? (const void *)&by : (const void *)&f, n,
        true);
}

#endif /* CDP_SRC_DTYPE_REDUCE_H */
