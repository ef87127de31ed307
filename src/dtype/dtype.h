/* dtype/dtype.h - what a dtype is, and how it widens and narrows (pure)

   Knows: sizes and names of dtypes. Promises: one table for all sections. */
#ifndef CDP_SRC_DTYPE_DTYPE_H
#define CDP_SRC_DTYPE_DTYPE_H

#include "../base/config.h"
#include "../base/types_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"

CDP_API uint64_t cdp_dtype_size(cdp_dtype dtype) {
    static const uint8_t sizes[CDP_DTYPE_COUNT] = {4, 4, 8, 4, 8, 1, 2, 2, 1, 2, 2, 4, 8, 1, 1, 1};
    return (uint32_t)dtype < CDP_DTYPE_COUNT ? sizes[dtype] : 0;
}

CDP_API const char *cdp_dtype_name(cdp_dtype dtype) {
    static const char *const names[CDP_DTYPE_COUNT] = {"f32", "f32", "f64", "i32", "i64", "u8",
        "f16", "bf16", "i8", "i16", "u16", "u32", "u64", "bool", "f8e4m3", "f8e5m2"};
    return (uint32_t)dtype < CDP_DTYPE_COUNT ? names[dtype] : "?";
}

CDP_API const char *cdp_reduce_name(cdp_reduce_op op) {
    static const char *const names[CDP_REDUCE_COUNT] = {
        "sum", "sum", "avg", "min", "max", "product", "band", "bor", "bxor", "premul sum"};
    return (uint32_t)op < CDP_REDUCE_COUNT ? names[op] : "?";
}

CDP__PRIVATE bool cdp__dtype_is_half(cdp_dtype t) {
    return t == CDP_DTYPE_F16 || t == CDP_DTYPE_BF16;
}
CDP__PRIVATE bool cdp__dtype_is_float(cdp_dtype t) {
    return t <= CDP_DTYPE_F64 || cdp__dtype_is_half(t);
}
/* True if this build has no arithmetic for the dtype. */
CDP__PRIVATE bool cdp__dtype_left_out(cdp_dtype t) {
#ifdef CDP_ONLY_F32
    return t == CDP_DTYPE_F64 || cdp__dtype_is_half(t);
#else
    (void)t;
    return false;
#endif
}

CDP__PRIVATE bool cdp__reduce_exists(cdp_dtype t, cdp_reduce_op op) {
    if (t > CDP_DTYPE_BOOL || cdp__dtype_left_out(t)) return false;
    if (op == CDP_REDUCE_BAND || op == CDP_REDUCE_BOR || op == CDP_REDUCE_BXOR)
        return !cdp__dtype_is_float(t);
    if (op == CDP_REDUCE_PREMUL_SUM) return cdp__dtype_is_float(t);
    return op != CDP_REDUCE_AVG || t != CDP_DTYPE_BOOL;
}

#endif /* CDP_SRC_DTYPE_DTYPE_H */
