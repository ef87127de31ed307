/* dtensor/fill.h - values that depend only on the index in the whole tensor

   Knows: indices in the whole tensor. Promises: values that do not depend on mesh or layout. */
#ifndef CDP_SRC_DTENSOR_FILL_H
#define CDP_SRC_DTENSOR_FILL_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../message/transport_api.h"
#include "../base/helpers.h"
#include "../dtype/dtype.h"
#include "../dtype/convert.h"
#include "mesh_api.h"
#include "layout_api.h"
#include "dtensor_api.h"
#include "kit.h"
#include "kernels.h"
#include "philox.h"
#include "grid.h"
#include "stages.h"
#include "tensors.h"

CDP__DT double cdp__dt_fill_value(const cdp_fill *f, uint64_t index, bool wide) {
    const double b = f->b;
    switch (f->kind) {
    case CDP_FILL_VALUE: return f->a;
    case CDP_FILL_UNIFORM: {
        const double high = f->a == 0 && b == 0 ? 1 : b;
        return f->a + (high - f->a) * cdp__dt_uniform(f->seed, f->stream, index, wide);
    }
    case CDP_FILL_NORMAL:
        return f->a + (b == 0 ? 1 : b) * cdp__dt_normal(f->seed, f->stream, index, wide);
    case CDP_FILL_RAMP: return f->a + b * (double)index;
    case CDP_FILL_MASK: return cdp__dt_uniform(f->seed, f->stream, index, false) < f->a ? 1 : 0;
    default: return 0;
    }
}

/* Fills data[at] .. with elements `first`, first + 1, ... of the whole tensor. Ramps of 64-bit
   integers are exact. */
CDP__DT void cdp__dt_fill_run(
    cdp_dtype t, void *data, uint64_t at, uint64_t n, uint64_t first, const cdp_fill *f) {
    const bool whole = t == CDP_DTYPE_I64 || t == CDP_DTYPE_U64;
    for (uint64_t i = 0; i < n; ++i) {
        if (whole && f->kind == CDP_FILL_RAMP)
            ((uint64_t *)data)[at + i] =
                (uint64_t)(int64_t)f->a + (uint64_t)(int64_t)f->b * (first + i);
        else
            cdp__number_put(t, data, at + i, cdp__dt_fill_value(f, first + i, t == CDP_DTYPE_F64));
    }
}

/* Fills every element with the identity of a reduction. */
CDP__DT void cdp__dt_fill_identity(cdp_dtype t, void *data, uint64_t n, cdp_reduce_op op) {
    for (uint64_t i = 0; i < n; ++i) {
        if (op == CDP_REDUCE_MIN || op == CDP_REDUCE_MAX)
            cdp__number_limit(t, data, i, op == CDP_REDUCE_MIN);
        else
            cdp__number_put(t, data, i, op == CDP_REDUCE_PRODUCT);
    }
}

/* True if this rank holds no contribution to a filled tensor, only the identity of *op. */
CDP__DT bool cdp__dt_fill_idle(const cdp_layout *l, cdp_reduce_op *op) {
    for (uint32_t by = 0; by < l->mesh->desc.ndim; ++by) {
        *op = cdp__dt_op(&l->place[by]);
        if (cdp__dt_partial(l, by) && *op != CDP_REDUCE_AVG && cdp_mesh_coord(l->mesh, by) != 0)
            return true;
    }
    return false;
}

CDP_API cdp_status cdp_dtensor_fill(cdp_dtensor *t, const cdp_fill *f) {
    cdp_reduce_op op;
    cdp_status st = cdp__dt_tensor_check(t, "cdp_dtensor_fill");
    if (st != CDP_OK) return st;
    if (!f) return cdp__dt_missing("cdp_dtensor_fill", "fill");
    if ((uint32_t)f->kind > CDP_FILL_MASK)
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_dtensor_fill: fill.kind %u is none of cdp_fill_kind", (unsigned)f->kind);
    const cdp_dtype d = cdp__dt_dtype(&t->layout);
    const bool random = f->kind == CDP_FILL_UNIFORM || f->kind == CDP_FILL_NORMAL;
    if (random && !cdp__dtype_is_float(d))
        return cdp_error_set(CDP_ERR_UNSUPPORTED, -1, 0,
            "cdp_dtensor_fill: %s cannot hold these values; use a float dtype", cdp_dtype_name(d));
    const cdp_mesh *m = t->layout.mesh;
    const uint64_t bytes = cdp__dt_local_bytes(&t->layout);
    if (!bytes) return CDP_OK;
    if (f->kind == CDP_FILL_ZERO) memset(t->data, 0, (size_t)bytes);
    if (cdp__dt_fill_idle(&t->layout, &op)) {
        cdp__dt_fill_identity(d, t->data, bytes / cdp_dtype_size(d), op);
        return CDP_OK;
    }
    if (f->kind == CDP_FILL_ZERO) return CDP_OK;
    const cdp__dt_side s = cdp__dt_side_of(&t->layout, 0);
    const cdp__dt_region own = cdp__dt_region_of(&s, m->me), all = cdp__dt_whole(&s);
    const cdp__dt_copy c = cdp__dt_copy_of(&own, &all, &own, s.ndim, 1); /* in elements */
    const uint64_t rows = c.dims ? c.count[0] : 1;
    uint64_t at[CDP__DT_DIMS] = {0}, whole = c.from_at, mine = 0;
    do
        for (uint64_t i = 0; i < rows; ++i)
            cdp__dt_fill_run(
                d, t->data, mine + i * c.to_step[0], c.run, whole + i * c.from_step[0], f);
    while (cdp__dt_copy_next(&c, at, &whole, &mine));
    return CDP_OK;
}

#endif /* CDP_SRC_DTENSOR_FILL_H */
