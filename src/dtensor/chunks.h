/* dtensor/chunks.h - the sizes of pieces (pure)

   Knows: sizes and numbers of pieces. Promises: the chunk rule of cdp_layout. */
#ifndef CDP_SRC_DTENSOR_CHUNKS_H
#define CDP_SRC_DTENSOR_CHUNKS_H

#include "../base/config.h"
#include "../base/helpers.h"
#include "kit.h"
#include "kernels.h"

/* Piece `index` of `parts` of `size` elements, cut at multiples of `block`; returns its size. */
CDP__DT uint64_t cdp__dt_chunk(
    uint64_t size, uint64_t block, uint32_t parts, uint32_t index, uint64_t *start) {
    const uint64_t blocks = size / block + (size % block != 0);
    const uint64_t each = blocks / parts + (blocks % parts != 0);
    const uint64_t low = cdp__min(blocks, each * index);
    const uint64_t high = cdp__min(blocks, each * (index + 1ull));
    *start = low < blocks ? low * block : size;
    return (high < blocks ? high * block : size) - *start;
}

/* Piece `index` of `parts` balanced pieces of `box`: cut along the first dimension that is long
   enough, else along the longest. */
CDP__DT cdp__dt_region cdp__dt_slab(
    const cdp__dt_region *box, uint32_t ndim, uint64_t parts, uint64_t index) {
    cdp__dt_region r = *box;
    uint32_t best = 0;
    if (!ndim || parts <= 1) return r;
    for (uint32_t d = 1; d < ndim && box->size[best] < parts; ++d)
        if (box->size[d] > box->size[best]) best = d;
    const uint64_t each = box->size[best] / parts, more = box->size[best] % parts;
    r.start[best] += each * index + cdp__min(index, more);
    r.size[best] = each + (index < more);
    return r;
}

/* a + b, below a * b; or the largest number. */
CDP__DT uint64_t cdp__dt_plus_most(uint64_t a, uint64_t b) {
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

CDP__DT uint64_t cdp__dt_times_most(uint64_t a, uint64_t b) {
    return a && b > UINT64_MAX / a ? UINT64_MAX : a * b;
}

#endif /* CDP_SRC_DTENSOR_CHUNKS_H */
