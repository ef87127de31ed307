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
#include "../dtype/reduce.h"
#include "load.h"

/* NCCL's number of a dtype, or -1 if it has none. */
CDP__PRIVATE int cdp__nccl_type(cdp_dtype t, int version) {
    static const int8_t map[CDP_DTYPE_COUNT] = {7, 7, 8, 2, 4, 1, 6, 9, 0, -1, -1, 3, 5, 1, 10, 11};
    return t > CDP_DTYPE_BOOL && version < 22400 ? -1 : map[t];
}

/* NCCL's number of a reduction, or -1 if it has none; PREMUL_SUM is created per operation. BOOL
   is sent as bytes of 0 and 1, so "or" is the maximum and "and" the minimum. */
CDP__PRIVATE int cdp__nccl_reduction(cdp_dtype t, cdp_reduce_op op) {
    if (t == CDP_DTYPE_BOOL) {
        if (op == CDP_REDUCE_SUM || op == CDP_REDUCE_MAX) return CDP__NC_MAX;
        return op == CDP_REDUCE_PRODUCT || op == CDP_REDUCE_MIN ? CDP__NC_MIN : -1;
    }
    switch (op) {
    case CDP_REDUCE_SUM: return CDP__NC_SUM;
    case CDP_REDUCE_AVG: return CDP__NC_AVG;
    case CDP_REDUCE_MIN: return CDP__NC_MIN;
    case CDP_REDUCE_MAX: return CDP__NC_MAX;
    case CDP_REDUCE_PRODUCT: return CDP__NC_PRODUCT;
    case CDP_REDUCE_PREMUL_SUM:
        return cdp__dtype_is_float(t) || t > CDP_DTYPE_BOOL ? CDP__NC_SUM : -1;
    default: return -1;
    }
}

/* Converts to an 8-bit float, rounding to nearest even; values that are too large become the
   largest one. Simple, not fast: converts one value. */
CDP__PRIVATE uint8_t cdp__nccl_f8(double x, bool e4m3) {
    const int bits = e4m3 ? 3 : 2, last = e4m3 ? 126 : 123;
    const double size = x < 0 ? -x : x;
    double least = 0;
    int v, k, best = -1;
    for (v = 0; v <= last && x == x; ++v) {
        double g = v >> bits ? (v & ((1 << bits) - 1)) + (1 << bits) : v, off;
        for (k = (e4m3 ? 7 : 15) + bits - (v >> bits ? v >> bits : 1); k > 0; --k)
            g /= 2;
        for (; k < 0; ++k)
            g *= 2;
        off = g < size ? size - g : g - size;
        if (best < 0 || off < least || (off == least && !(v & 1))) {
            best = v;
            least = off;
        }
    }
    if (best < 0) return 127;
    return (uint8_t)(x < 0 ? best | 128 : best);
}

/* The factor of a PREMUL_SUM, as a number of the dtype. */
CDP__PRIVATE void cdp__nccl_scalar(cdp_dtype t, double factor, uint8_t out[8]) {
    float f[CDP__BLOCK] = {0};
    uint16_t narrow[CDP__BLOCK];
    f[0] = (float)factor;
    if (t == CDP_DTYPE_F64)
        memcpy(out, &factor, 8);
    else if (t > CDP_DTYPE_BOOL)
        out[0] = cdp__nccl_f8(factor, t == CDP_DTYPE_F8E4M3);
    else if (t <= CDP_DTYPE_F32)
        memcpy(out, f, 4);
    else {
        cdp__narrow_block(t, f, narrow);
        memcpy(out, narrow, 2);
    }
}

/* Maps an error of NCCL to a cdp_status. */
CDP__PRIVATE cdp_status cdp__nccl_status(int result) {
    if (result == CDP__NC_REMOTE) return CDP_ERR_PEER_LOST;
    return result == CDP__NC_TIMEOUT ? CDP_ERR_TIMEOUT : CDP_ERR_IO;
}

#endif /* CDP_SRC_NCCL_MAP_H */
