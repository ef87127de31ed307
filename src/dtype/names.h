/* dtype/names.h - public functions of dtypes and reductions (pure)

   Knows: the table of dtypes. Promises: an answer for every value. */
#ifndef CDP_SRC_DTYPE_NAMES_H
#define CDP_SRC_DTYPE_NAMES_H

#include "../base/config.h"
#include "../base/types_api.h"
#include "dtype.h"

CDP_API uint64_t cdp_dtype_size(cdp_dtype dtype) {
    return cdp__dtype_row_of(dtype)->bytes;
}

CDP_API const char *cdp_dtype_name(cdp_dtype dtype) {
    return cdp__dtype_row_of(dtype)->name;
}

CDP_API const char *cdp_reduce_name(cdp_reduce_op op) {
    static const char *const names[CDP_REDUCE_COUNT] = {
        "sum", "sum", "avg", "min", "max", "product", "band", "bor", "bxor", "premul sum"};
    return (uint32_t)op < CDP_REDUCE_COUNT ? names[op] : "?";
}

#endif /* CDP_SRC_DTYPE_NAMES_H */
