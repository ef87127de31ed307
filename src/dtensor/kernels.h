/* dtensor/kernels.h - strided copies and reductions (pure)

   Knows: elements of a dtype, in arrays and in boxes of arrays. Promises: the arithmetic of
   >>dtype/reduce. */
#ifndef CDP_SRC_DTENSOR_KERNELS_H
#define CDP_SRC_DTENSOR_KERNELS_H

#include "../base/config.h"
#include "../base/types_api.h"
#include "../base/helpers.h"
#include "../dtype/dtype.h"
#include "../dtype/reduce.h"
#include "kit.h"

/* True if a PARTIAL layout of the dtype may have this reduction. */
CDP__DT bool cdp__dt_reduces(cdp_dtype t, cdp_reduce_op op) {
    return op <= CDP_REDUCE_PRODUCT && cdp__reduce_exists(t, op);
}

/* Elements [start, start + size) of each dimension; a box with room for one more dimension. */
typedef struct cdp__dt_region {
    uint64_t start[CDP__DT_DIMS], size[CDP__DT_DIMS];
} cdp__dt_region;

CDP__DT uint64_t cdp__dt_volume(const cdp__dt_region *r, uint32_t ndim) {
    uint64_t v = 1;
    for (uint32_t d = 0; d < ndim; ++d)
        v *= r->size[d];
    return v;
}

/* Intersects two regions. False if they have no common element. */
CDP__DT bool cdp__dt_intersect(
    const cdp__dt_region *a, const cdp__dt_region *b, uint32_t ndim, cdp__dt_region *out) {
    for (uint32_t d = 0; d < ndim; ++d) {
        const uint64_t low = cdp__max(a->start[d], b->start[d]);
        const uint64_t high = cdp__min(a->start[d] + a->size[d], b->start[d] + b->size[d]);
        if (low >= high) return false;
        out->start[d] = low;
        out->size[d] = high - low;
    }
    return true;
}

/* How a region is copied between two arrays: runs of contiguous bytes inside `dims` loops. */
typedef struct cdp__dt_copy {
    uint64_t from_at, to_at, run; /* bytes */
    uint32_t dims;
    uint64_t count[CDP__DT_DIMS], from_step[CDP__DT_DIMS], to_step[CDP__DT_DIMS];
} cdp__dt_copy;

/* How to copy `part`, which lies within both regions, between their row-major arrays; `elem`:
   bytes of an element. */
CDP__DT cdp__dt_copy cdp__dt_copy_of(const cdp__dt_region *part, const cdp__dt_region *from,
    const cdp__dt_region *to, uint32_t ndim, uint64_t elem) {
    cdp__dt_copy c;
    uint64_t from_step = elem, to_step = elem;
    memset(&c, 0, sizeof c);
    c.run = elem;
    for (uint32_t d = ndim; d-- > 0;) {
        const uint64_t n = part->size[d];
        c.from_at += (part->start[d] - from->start[d]) * from_step;
        c.to_at += (part->start[d] - to->start[d]) * to_step;
        if (n != 1 && c.dims == 0 && from_step == c.run && to_step == c.run) {
            c.run *= n;
        } else if (n != 1) {
            const uint32_t k = c.dims ? c.dims - 1 : 0;
            const bool joins = c.dims && from_step == c.from_step[k] * c.count[k]
                && to_step == c.to_step[k] * c.count[k];
            if (joins) {
                c.count[k] *= n;
            } else {
                c.count[c.dims] = n;
                c.from_step[c.dims] = from_step;
                c.to_step[c.dims++] = to_step;
            }
        }
        from_step *= from->size[d];
        to_step *= to->size[d];
    }
    return c;
}

/* Copies one row: `n` runs of `run` bytes. Runs of one element are copied without a call. */
CDP__DT void cdp__dt_copy_row(uint8_t *to, uint64_t to_step, const uint8_t *from,
    uint64_t from_step, uint64_t n, uint64_t run) {
    uint64_t i;
    if (run == 4) {
        for (i = 0; i < n; ++i)
            memcpy(to + i * to_step, from + i * from_step, 4);
    } else if (run == 8) {
        for (i = 0; i < n; ++i)
            memcpy(to + i * to_step, from + i * from_step, 8);
    } else if (run == 2) {
        for (i = 0; i < n; ++i)
            memcpy(to + i * to_step, from + i * from_step, 2);
    } else {
        for (i = 0; i < n; ++i)
            memcpy(to + i * to_step, from + i * from_step, (size_t)run);
    }
}

/* Advances the loops around a row; false after the last one. */
CDP__DT bool cdp__dt_copy_next(const cdp__dt_copy *c, uint64_t *at, uint64_t *from, uint64_t *to) {
    for (uint32_t d = 1; d < c->dims; ++d) {
        *from += c->from_step[d];
        *to += c->to_step[d];
        if (++at[d] < c->count[d]) return true;
        *from -= at[d] * c->from_step[d];
        *to -= at[d] * c->to_step[d];
        at[d] = 0;
    }
    return false;
}

CDP__DT void cdp__dt_copy_run(const cdp__dt_copy *c, void *to, const void *from) {
    uint8_t *out = (uint8_t *)to + c->to_at;
    const uint8_t *in = (const uint8_t *)from + c->from_at;
    uint64_t at[CDP__DT_DIMS] = {0}, f = 0, t = 0;
    if (!c->dims) {
        if (out != in) memcpy(out, in, (size_t)c->run);
        return;
    }
    do
        cdp__dt_copy_row(out + t, c->to_step[0], in + f, c->from_step[0], c->count[0], c->run);
    while (cdp__dt_copy_next(c, at, &f, &t));
}

/* The same, but combines with the elements at `to`. */
CDP__DT void cdp__dt_copy_combine(
    const cdp__dt_copy *c, cdp_dtype t, cdp_reduce_op op, void *to, const void *from) {
    const uint64_t rows = c->dims ? c->count[0] : 1, elem = cdp_dtype_size(t);
    uint8_t *out = (uint8_t *)to + c->to_at;
    const uint8_t *in = (const uint8_t *)from + c->from_at;
    uint64_t at[CDP__DT_DIMS] = {0}, f = 0, w = 0;
    do
        for (uint64_t i = 0; i < rows; ++i)
            cdp__reduce(t, op, false, out + w + i * c->to_step[0], in + f + i * c->from_step[0],
                c->run / elem);
    while (cdp__dt_copy_next(c, at, &f, &w));
}

CDP__DT uint64_t cdp__dt_copy_bytes(const cdp__dt_copy *c) {
    uint64_t n = c->run;
    for (uint32_t d = 0; d < c->dims; ++d)
        n *= c->count[d];
    return n;
}

#endif /* CDP_SRC_DTENSOR_KERNELS_H */
