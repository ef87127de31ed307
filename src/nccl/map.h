/* nccl/map.h - dtypes, reductions and errors in terms of NCCL (pure)

   Knows: the numbers that NCCL gives to dtypes, reductions and results. Promises: what NCCL does
   not support is reported. */
#ifndef CDP_SRC_NCCL_MAP_H
#define CDP_SRC_NCCL_MAP_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../dtype/dtype.h"
#include "../dtype/convert.h"
#include "load.h"

/* NCCL's number of a dtype, or -1 if this version has none. */
CDP__PRIVATE int cdp__nccl_type(cdp_dtype t, int version) {
    const cdp__dtype_row *row = cdp__dtype_row_of(t);
    return version < row->nccl_since ? -1 : row->nccl;
}

/* How many dtypes the kernels know: the floats that parameters may have. Counted from the table: if
   it has more or fewer, the array has a negative size. */
#define CDP__NCCL_FLOATS 4u
#define CDP__ROW(id, name, bytes, kind, set, form, wide, one, ops, grads, nccl, since) \
    +((CDP__##kind) == CDP__FLOAT && grads)
typedef char cdp__nccl_floats_fit[0 CDP__DTYPES(CDP__ROW) == CDP__NCCL_FLOATS ? 1 : -1];
#undef CDP__ROW

CDP__PRIVATE bool cdp__nccl_has_kernels(cdp_dtype t) {
    return cdp__dtype_is_float(t) && cdp__dtype_row_of(t)->grads;
}

/* The dtype of that number, and the number of such a dtype, in the order of the table. */
CDP__PRIVATE cdp_dtype cdp__nccl_float(uint32_t index) {
    uint32_t t = CDP_DTYPE_F32;
    while (!cdp__nccl_has_kernels((cdp_dtype)t) || index--)
        ++t;
    return (cdp_dtype)t;
}
CDP__PRIVATE uint32_t cdp__nccl_float_index(cdp_dtype t) {
    uint32_t i = 0;
    while (i + 1 < CDP__NCCL_FLOATS && cdp__nccl_float(i) != cdp__def(t, CDP_DTYPE_F32))
        ++i;
    return i;
}

/* NCCL's number of a reduction, or -1 if it has none; PREMUL_SUM is created per operation. BOOL
   is sent as bytes of 0 and 1, so "or" is the maximum and "and" the minimum. */
CDP__PRIVATE int cdp__nccl_reduction(cdp_dtype t, cdp_reduce_op op) {
    const cdp__dtype_row *row = cdp__dtype_row_of(t);
    if (!(row->ops >> op & 1) || row->nccl < 0) return -1;
    if (row->kind == CDP__TRUTH) {
        if (op == CDP_REDUCE_SUM || op == CDP_REDUCE_MAX) return CDP__NC_MAX;
        return op == CDP_REDUCE_PRODUCT || op == CDP_REDUCE_MIN ? CDP__NC_MIN : -1;
    }
    switch (op) {
    case CDP_REDUCE_SUM: return CDP__NC_SUM;
    case CDP_REDUCE_AVG: return CDP__NC_AVG;
    case CDP_REDUCE_MIN: return CDP__NC_MIN;
    case CDP_REDUCE_MAX: return CDP__NC_MAX;
    case CDP_REDUCE_PRODUCT: return CDP__NC_PRODUCT;
    case CDP_REDUCE_PREMUL_SUM: return CDP__NC_SUM;
    default: return -1;
    }
}

/* The factor of a PREMUL_SUM, as a number of the dtype. */
CDP__PRIVATE void cdp__nccl_scalar(cdp_dtype t, double factor, uint8_t out[8]) {
    cdp__convert(CDP_DTYPE_F64, &factor, t, out, 1);
}

/* Maps an error of NCCL to a cdp_status. */
CDP__PRIVATE cdp_status cdp__nccl_status(int result) {
    if (result == CDP__NC_REMOTE) return CDP_ERR_PEER_LOST;
    return result == CDP__NC_TIMEOUT ? CDP_ERR_TIMEOUT : CDP_ERR_IO;
}

#endif /* CDP_SRC_NCCL_MAP_H */
