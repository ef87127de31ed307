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

/* A fill as it is carried out. low, high: the numbers of the dtype at both ends of the interval of
   UNIFORM, both within it. */
typedef struct cdp__dt_filler {
    const cdp_fill *fill;
    cdp_dtype dtype;
    double end, low, high; /* end: b, or its default */
} cdp__dt_filler;

/* The float of the dtype beside `x`, which is one itself. */
CDP__DT double cdp__dt_beside(cdp_dtype t, double x, bool up) {
    uint8_t narrow = 0;
    uint16_t half = 0;
    uint32_t single = 0;
    uint64_t wide = 0;
    void *const raw[4] = {&narrow, &half, &single, &wide};
    const uint32_t size = (uint32_t)cdp_dtype_size(t), k = size == 8 ? 3 : size / 2;
    const bool away = (x > 0) == up;
    cdp__number_put(t, raw[k], 0, x);
    if (x == 0) { /* the least positive number, or the same with the sign */
        narrow = up ? 1 : 0x81;
        half = up ? 1 : 0x8001;
        single = up ? 1 : 0x80000001u;
        wide = up ? 1 : 0x8000000000000001u;
    } else { /* bits of floats count up from zero, on either side */
        narrow = (uint8_t)(away ? narrow + 1 : narrow - 1);
        half = (uint16_t)(away ? half + 1 : half - 1);
        single = away ? single + 1 : single - 1;
        wide = away ? wide + 1 : wide - 1;
    }
    return cdp__number_get(t, raw[k], 0);
}

/* The number of the dtype that is nearest to x; the last finite one if it is beyond. */
CDP__DT double cdp__dt_nearest(cdp_dtype t, double x) {
    uint64_t room = 0;
    cdp__number_put(t, &room, 0, x);
    const double got = cdp__number_get(t, &room, 0);
    if (got - got == 0) return got;
    cdp__number_limit(t, &room, 0, x > 0);
    const double last = cdp__number_get(t, &room, 0);
    return last - last == 0 ? last : cdp__dt_beside(t, last, x < 0);
}

/* Sets the ends of the interval. */
CDP__DT cdp_status cdp__dt_filler_of(cdp__dt_filler *f, const cdp_fill *fill, cdp_dtype t) {
    const double a = fill->a, b = a == 0 && fill->b == 0 ? 1 : fill->b;
    memset(f, 0, sizeof *f);
    f->fill = fill;
    f->dtype = t;
    if (fill->kind == CDP_FILL_MASK && !(a >= 0 && a <= 1))
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_dtensor_fill: a is the probability of a mask and must be between 0 and 1");
    if (fill->kind != CDP_FILL_UNIFORM) return CDP_OK;
    f->end = b;
    if (a - a == 0 && b - b == 0 && a < b) {
        f->low = cdp__dt_nearest(t, a);
        f->high = cdp__dt_nearest(t, b);
        if (f->low < a) f->low = cdp__dt_beside(t, f->low, true);
        if (f->high >= b) f->high = cdp__dt_beside(t, f->high, false);
        if (f->low <= f->high) return CDP_OK;
    }
    return cdp_error_set(CDP_ERR_INVALID, -1, 0,
        "cdp_dtensor_fill: no number of %s is in [a, b); choose a < b further apart, both finite",
        cdp_dtype_name(t));
}

/* A number of the interval; what would be rounded out of it becomes the last one within. */
CDP__DT double cdp__dt_fill_uniform(const cdp__dt_filler *f, uint64_t index) {
    const cdp_fill *fill = f->fill;
    const double a = fill->a, width = f->end - a;
    const double u = cdp__dt_uniform(fill->seed, fill->stream, index, f->dtype == CDP_DTYPE_F64);
    const double x = width <= DBL_MAX ? a + width * u : a * (1 - u) + f->end * u;
    if (x < f->low) return f->low;
    return x > f->high ? f->high : x;
}

CDP__DT double cdp__dt_fill_value(const cdp__dt_filler *filler, uint64_t index) {
    const cdp_fill *f = filler->fill;
    const double b = f->b;
    const bool wide = filler->dtype == CDP_DTYPE_F64;
    switch (f->kind) {
    case CDP_FILL_VALUE: return f->a;
    case CDP_FILL_UNIFORM: return cdp__dt_fill_uniform(filler, index);
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
    const cdp__dt_filler *filler, void *data, uint64_t at, uint64_t n, uint64_t first) {
    const cdp_fill *f = filler->fill;
    const cdp_dtype t = filler->dtype;
    const bool whole = t == CDP_DTYPE_I64 || t == CDP_DTYPE_U64;
    const uint64_t a = (uint64_t)cdp__i64_of(f->a), b = (uint64_t)cdp__i64_of(f->b);
    for (uint64_t i = 0; i < n; ++i) {
        if (whole && f->kind == CDP_FILL_RAMP)
            ((uint64_t *)data)[at + i] = a + b * (first + i);
        else
            cdp__number_put(t, data, at + i, cdp__dt_fill_value(filler, first + i));
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
    if (st == CDP_OK) st = cdp__dt_link_here(t->layout.mesh->all);
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
    cdp__dt_filler filler;
    st = cdp__dt_filler_of(&filler, f, d);
    if (st != CDP_OK) return st;
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
                &filler, t->data, mine + i * c.to_step[0], c.run, whole + i * c.from_step[0]);
    while (cdp__dt_copy_next(&c, at, &whole, &mine));
    return CDP_OK;
}

#endif /* CDP_SRC_DTENSOR_FILL_H */
