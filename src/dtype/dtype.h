/* dtype/dtype.h - the table of dtypes (pure)

   Knows: the properties of each dtype. Promises: one row per dtype, which all modules read; what a
   row does not allow is refused. */
#ifndef CDP_SRC_DTYPE_DTYPE_H
#define CDP_SRC_DTYPE_DTYPE_H

#include "../base/config.h"
#include "../base/types_api.h"
#include "../base/compiler.h"
#include "../base/helpers.h"

#define CDP__OP(op) (1u << CDP_REDUCE_##op)
#define CDP__OPS_ORDERED \
    (CDP__OP(SUM) | CDP__OP(AVG) | CDP__OP(MIN) | CDP__OP(MAX) | CDP__OP(PRODUCT))
#define CDP__OPS_BITS (CDP__OP(BAND) | CDP__OP(BOR) | CDP__OP(BXOR))
#define CDP__OPS_FLOAT (CDP__OPS_ORDERED | CDP__OP(PREMUL_SUM))
#define CDP__OPS_COMPLEX (CDP__OPS_FLOAT & ~(CDP__OP(MIN) | CDP__OP(MAX)))
#define CDP__OPS_INT (CDP__OPS_ORDERED | CDP__OPS_BITS)
#define CDP__OPS_BOOL (CDP__OPS_INT & ~CDP__OP(AVG))

typedef enum cdp__number_kind {
    CDP__FLOAT,
    CDP__SIGNED,
    CDP__UNSIGNED,
    CDP__TRUTH,
    CDP__COMPLEX
} cdp__number_kind;

/* One row per dtype, in the order of cdp_dtype. To add one: its name in cdp_dtype, its row here,
   its set or form in >>dtype/reduce if it needs a new one, its line in the README's list of element
   types, and its values in tests/unit/test_reduce.c. Columns:
     id      CDP_DTYPE_id
     name    for people
     bytes   of one element
     kind    CDP__kind; COMPLEX: two parts, each a float of half the bytes
     set     the kernels that compute with it, cdp__set_set in >>dtype/reduce
     form    how it is widened to f32 and narrowed again: the functions cdp__widen_form and
             cdp__narrow_form there; `same`: it is not
     wide    the dtype in which AVG is computed: wide enough for any sum of 65535 ranks, if one is
     one     the bits of 1; of complex numbers, of its real part
     ops     CDP__OPS_ops, the reductions that exist
     grads   1: parameters and gradients may have it, in DDP, random fills and hooks
     nccl    its ncclDataType_t, -1 if NCCL has none; and the first version of NCCL that has it */
#define CDP__DTYPES(X)                                                           \
    X(F32, "f32", 4, FLOAT, f32, same, F32, 0x3f800000u, FLOAT, 1, 7, 0)         \
    X(F64, "f64", 8, FLOAT, f64, same, F64, 0x3ff0000000000000u, FLOAT, 1, 8, 0) \
    X(I32, "i32", 4, SIGNED, i32, same, I64, 1, INT, 0, 2, 0)                    \
    X(I64, "i64", 8, SIGNED, i64, same, I64, 1, INT, 0, 4, 0)                    \
    X(U8, "u8", 1, UNSIGNED, u8, same, U32, 1, INT, 0, 1, 0)                     \
    X(F16, "f16", 2, FLOAT, f32, f16, F32, 0x3c00, FLOAT, 1, 6, 0)               \
    X(BF16, "bf16", 2, FLOAT, f32, bf16, F32, 0x3f80, FLOAT, 1, 9, 0)            \
    X(I8, "i8", 1, SIGNED, i8, same, I32, 1, INT, 0, 0, 0)                       \
    X(I16, "i16", 2, SIGNED, i16, same, I32, 1, INT, 0, -1, 0)                   \
    X(U16, "u16", 2, UNSIGNED, u16, same, U32, 1, INT, 0, -1, 0)                 \
    X(U32, "u32", 4, UNSIGNED, u32, same, U64, 1, INT, 0, 3, 0)                  \
    X(U64, "u64", 8, UNSIGNED, u64, same, U64, 1, INT, 0, 5, 0)                  \
    X(BOOL, "bool", 1, TRUTH, bool, same, BOOL, 1, BOOL, 0, 1, 0)                \
    X(F8E4M3, "f8e4m3", 1, FLOAT, f32, f8e4m3, F32, 0x38, FLOAT, 0, 10, 22400)   \
    X(F8E5M2, "f8e5m2", 1, FLOAT, f32, f8e5m2, F32, 0x3c, FLOAT, 0, 11, 22400)   \
    X(CF32, "cf32", 8, COMPLEX, c32, same, CF32, 0x3f800000u, COMPLEX, 0, -1, 0) \
    X(CF64, "cf64", 16, COMPLEX, c64, same, CF64, 0x3ff0000000000000u, COMPLEX, 0, -1, 0)

typedef struct cdp__dtype_row {
    const char *name;
    uint64_t one;
    int32_t nccl_since;
    uint16_t ops; /* bit r: reduction r exists */
    uint8_t bytes, kind, wide;
    bool narrow, grads;
    int8_t nccl;
} cdp__dtype_row;

enum {
    CDP__FORM_same,
    CDP__FORM_f16,
    CDP__FORM_bf16,
    CDP__FORM_f8e4m3,
    CDP__FORM_f8e5m2
};

/* The rows have the order of cdp_dtype, and none is missing: else the array has a negative size. */
#define CDP__ROW(id, name, bytes, kind, set, form, wide, one, ops, grads, nccl, since) char at_##id;
typedef struct cdp__dtype_rows {
    char at_default;
    CDP__DTYPES(CDP__ROW)
} cdp__dtype_rows;
#undef CDP__ROW
#define CDP__ROW(id, name, bytes, kind, set, form, wide, one, ops, grads, nccl, since) \
    &&offsetof(cdp__dtype_rows, at_##id) == (size_t)CDP_DTYPE_##id
typedef char cdp__dtype_rows_fit
    [sizeof(cdp__dtype_rows) == (size_t)CDP_DTYPE_COUNT CDP__DTYPES(CDP__ROW) ? 1 : -1];
#undef CDP__ROW

/* The row of a dtype; a row without name and bytes for a value that is no dtype. */
CDP__PRIVATE const cdp__dtype_row *cdp__dtype_row_of(cdp_dtype t) {
#define CDP__ROW(id, name, bytes, kind, set, form, wide, one, ops, grads, nccl, since)   \
    {name, one, since, (uint16_t)(CDP__OPS_##ops), bytes, CDP__##kind, CDP_DTYPE_##wide, \
        CDP__FORM_##form != 0, grads != 0, nccl},
    static const cdp__dtype_row rows[CDP_DTYPE_COUNT + 1] = {
        {"f32", 0x3f800000u, 0, CDP__OPS_FLOAT, 4, CDP__FLOAT, CDP_DTYPE_F32, false, true, 7},
        CDP__DTYPES(CDP__ROW){"?", 0, 0, 0, 0, CDP__UNSIGNED, 0, false, false, -1}};
#undef CDP__ROW
    return &rows[cdp__min((uint32_t)t, CDP_DTYPE_COUNT)];
}

CDP__PRIVATE bool cdp__dtype_is_float(cdp_dtype t) {
    return cdp__dtype_row_of(t)->kind == CDP__FLOAT;
}
/* 2 for complex numbers, else 1; and the dtype of a part. */
CDP__PRIVATE uint32_t cdp__dtype_parts(cdp_dtype t) {
    return cdp__dtype_row_of(t)->kind == CDP__COMPLEX ? 2 : 1;
}
CDP__PRIVATE cdp_dtype cdp__dtype_part(cdp_dtype t) {
    if (cdp__dtype_row_of(t)->kind != CDP__COMPLEX) return t;
    return cdp__dtype_row_of(t)->bytes == 16 ? CDP_DTYPE_F64 : CDP_DTYPE_F32;
}
/* True for floats that are computed as f32; a build without them has no such code. */
CDP__PRIVATE bool cdp__dtype_is_narrow(cdp_dtype t) {
#ifdef CDP_ONLY_F32
    (void)t;
    return false;
#else
    return cdp__dtype_row_of(t)->narrow;
#endif
}
/* True if parameters and gradients may have this dtype. */
CDP__PRIVATE bool cdp__dtype_has_grads(cdp_dtype t) {
    return cdp__dtype_row_of(t)->grads;
}
/* True if this build has no arithmetic for the dtype. */
CDP__PRIVATE bool cdp__dtype_left_out(cdp_dtype t) {
#if defined(CDP_ONLY_F32)
    const uint8_t kind = cdp__dtype_row_of(t)->kind;
    return (kind == CDP__FLOAT || kind == CDP__COMPLEX) && t > CDP_DTYPE_F32;
#elif defined(CDP_FEW_DTYPES)
    const cdp__dtype_row *row = cdp__dtype_row_of(t);
    if (row->kind == CDP__SIGNED) return row->bytes < 4;
    if (row->kind == CDP__UNSIGNED) return row->bytes > 1;
    return row->kind == CDP__COMPLEX || (row->narrow && row->bytes == 1);
#else
    (void)t;
    return false;
#endif
}

CDP__PRIVATE bool cdp__reduce_exists(cdp_dtype t, cdp_reduce_op op) {
#ifdef CDP_FEW_DTYPES /* nothing is computed in a wider dtype */
    if (op == CDP_REDUCE_AVG && t && t != (cdp_dtype)cdp__dtype_row_of(t)->wide) return false;
#endif
    return !cdp__dtype_left_out(t) && (cdp__dtype_row_of(t)->ops >> op & 1) != 0;
}

/* True if cdp_request.accumulate makes a difference: a float is rounded at every step. */
CDP__PRIVATE bool cdp__reduce_accumulates(cdp_dtype t, cdp_reduce_op op) {
    return cdp__dtype_is_narrow(t)
        && (op == CDP_REDUCE_SUM || op == CDP_REDUCE_PRODUCT || op == CDP_REDUCE_PREMUL_SUM);
}
/* The dtype of a reduction's partial results. `accumulate`: 0, or F32 where it makes a
   difference. */
CDP__PRIVATE cdp_dtype cdp__reduced_as(cdp_dtype t, cdp_reduce_op op, cdp_dtype accumulate) {
#ifdef CDP_FEW_DTYPES
    (void)op;
    (void)accumulate;
    return t;
#else
    if (accumulate) return accumulate;
    if (op != CDP_REDUCE_AVG || cdp__dtype_left_out(t)) return t;
    return (cdp_dtype)cdp__dtype_row_of(t)->wide;
#endif
}
/* True for means whose sums fit no dtype. */
CDP__PRIVATE bool cdp__reduce_is_widest(cdp_dtype t, cdp_reduce_op op) {
#ifdef CDP_NO_REPRODUCIBLE
    (void)t;
    (void)op;
    return false;
#else
    return op == CDP_REDUCE_AVG && (t == CDP_DTYPE_I64 || t == CDP_DTYPE_U64);
#endif
}

/* Stores the number 1 as an element of the dtype. */
CDP__PRIVATE void cdp__dtype_one(cdp_dtype t, void *out) {
    const cdp__dtype_row *row = cdp__dtype_row_of(t);
    const uint8_t b1 = (uint8_t)row->one;
    const uint16_t b2 = (uint16_t)row->one;
    const uint32_t b4 = (uint32_t)row->one;
    const void *from = &row->one;
    const uint32_t bytes = row->bytes / cdp__dtype_parts(t);
    if (bytes == 1) from = &b1;
    if (bytes == 2) from = &b2;
    if (bytes == 4) from = &b4;
    memset(out, 0, row->bytes);
    memcpy(out, from, bytes);
}

#endif /* CDP_SRC_DTYPE_DTYPE_H */
