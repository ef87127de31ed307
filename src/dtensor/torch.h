/* dtensor/torch.h - PyTorch's steps (pure)

   Knows: layouts. Promises: the sequence of layouts that PyTorch's greedy planner uses, one mesh
   dimension at a time, and the bytes that its padded collectives receive. */
#ifndef CDP_SRC_DTENSOR_TORCH_H
#define CDP_SRC_DTENSOR_TORCH_H

#include "../base/config.h"
#include "../base/types_api.h"
#include "../base/helpers.h"
#include "mesh_api.h"
#include "layout_api.h"
#include "kit.h"
#include "kernels.h"
#include "chunks.h"
#include "grid.h"

#define CDP__DT_STEPS (2u * CDP_MESH_DIMS + 1u)

/* True: the cuts of shards in mesh dimension `by` are equal. Numbers are those of one mesh. */
CDP__DT bool cdp__dt_own_same(const cdp_layout *a, const cdp_layout *b, uint32_t by) {
    const uint32_t x = a->place[by].cut, y = b->place[by].cut;
    if (a->mesh == b->mesh || !x || !y) return x == y;
    const uint64_t *p = cdp__dt_cut_starts(a->mesh, x), *q = cdp__dt_cut_starts(b->mesh, y);
    return p && q && memcmp(p, q, (a->mesh->desc.shape[by] + (size_t)1) * sizeof *p) == 0;
}

CDP__DT bool cdp__dt_place_same(const cdp_layout *a, const cdp_layout *b, uint32_t by) {
    const cdp_place *p = &a->place[by], *q = &b->place[by];
    if (p->kind != q->kind) return false;
    if (p->kind == CDP_PLACE_PARTIAL) return cdp__dt_op(p) == cdp__dt_op(q);
    if (p->kind == CDP_PLACE_REPLICATE) return true;
    return cdp__dt_dim(a, by) == cdp__dt_dim(b, by) && cdp__dt_own_same(a, b, by)
        && (p->block ? p->block : 1) == (q->block ? q->block : 1);
}

/* The mesh dimensions that cut tensor dimension `dim` before mesh dimension `by` does, as bits. */
CDP__DT uint32_t cdp__dt_cut_before(const cdp_layout *l, uint32_t by, uint32_t dim) {
    uint32_t sequence[CDP_MESH_DIMS], bits = 0;
    const uint32_t n = cdp__dt_sequence(l, l->mesh->desc.ndim, sequence);
    for (uint32_t k = 0; k < n && sequence[k] != by; ++k)
        if (cdp__dt_dim(l, sequence[k]) == dim) bits |= 1u << sequence[k];
    return bits;
}

CDP__DT bool cdp__dt_has_order(const cdp_layout *l) {
    for (uint32_t d = 0; d < l->mesh->desc.ndim; ++d)
        if (l->place[d].kind == CDP_PLACE_SHARD && l->place[d].order) return true;
    return false;
}

/* True if both layouts cut tensor dimension `dim` by the same mesh dimensions in the same order. */
CDP__DT bool cdp__dt_cuts_same(const cdp_layout *a, const cdp_layout *b, uint32_t dim) {
    uint32_t x[CDP_MESH_DIMS], y[CDP_MESH_DIMS];
    const uint32_t nx = cdp__dt_sequence(a, a->mesh->desc.ndim, x);
    const uint32_t ny = cdp__dt_sequence(b, b->mesh->desc.ndim, y);
    uint32_t i = 0, j = 0;
    for (;;) {
        while (i < nx && cdp__dt_dim(a, x[i]) != dim)
            ++i;
        while (j < ny && cdp__dt_dim(b, y[j]) != dim)
            ++j;
        if (i == nx || j == ny) return i == nx && j == ny;
        if (x[i] != y[j] || !cdp__dt_place_same(a, b, x[i])) return false;
        ++i;
        ++j;
    }
}

CDP__DT void cdp__dt_replicate(cdp_layout *l, uint32_t by) {
    cdp_place replicated;
    memset(&replicated, 0, sizeof replicated);
    l->place[by] = replicated; /* of a memset in place gcc 12 believes at -O3 that it is too long */
}

/* True if PyTorch's first pass replicates mesh dimension `by`. */
CDP__DT bool cdp__dt_undone_first(
    const cdp_layout *now, const cdp_layout *to, uint32_t by, bool ordered) {
    if (now->place[by].kind == CDP_PLACE_SHARD && ordered)
        return !cdp__dt_cuts_same(now, to, cdp__dt_dim(now, by));
    if (ordered || to->place[by].kind != CDP_PLACE_SHARD) return false;
    const uint32_t dim = cdp__dt_dim(to, by), below = (1u << by) - 1;
    uint32_t a = 0, b = 0;
    for (uint32_t d = 0; d < to->mesh->desc.ndim; ++d) {
        const bool x = now->place[d].kind == CDP_PLACE_SHARD && cdp__dt_dim(now, d) == dim;
        const bool y = to->place[d].kind == CDP_PLACE_SHARD && cdp__dt_dim(to, d) == dim;
        a |= (uint32_t)x << d;
        b |= (uint32_t)y << d;
    }
    return (a & below) != (b & below);
}

/* Fills steps[0] = from, ..., the last one = to; returns their number. Both are on one mesh. */
CDP__DT uint32_t cdp__dt_torch_steps(
    const cdp_layout *from, const cdp_layout *to, cdp_layout steps[CDP__DT_STEPS]) {
    const uint32_t dims = from->mesh->desc.ndim;
    const bool ordered = cdp__dt_has_order(from) || cdp__dt_has_order(to);
    uint32_t sequence[CDP_MESH_DIMS], n = 1, k, shards;
    cdp_layout now = *from;
    steps[0] = *from;
    shards = cdp__dt_sequence(from, dims, sequence);
    k = shards ? dims : 0;
    for (k = ordered ? shards : k; k-- > 0;) {
        const uint32_t by = ordered ? sequence[k] : k;
        const bool undo = cdp__dt_undone_first(&now, to, by, ordered);
        if (!undo && (ordered || cdp__dt_place_same(&now, to, by))) continue;
        if (undo && now.place[by].kind == CDP_PLACE_REPLICATE) continue;
        /* what is replicated becomes no sum again: a cut that shall be one does at once */
        if (undo && to->place[by].kind != CDP_PLACE_PARTIAL)
            cdp__dt_replicate(&now, by);
        else
            now.place[by] = to->place[by];
        steps[n++] = now;
    }
    if (ordered)
        for (k = 0; k < dims; ++k)
            if (cdp__dt_place_same(&now, to, k)) now.place[k] = to->place[k];
    shards = cdp__dt_sequence(to, dims, sequence);
    /* first the dimensions that do not shard in the target, then cuts in order */
    for (k = 0; k < dims; ++k) {
        const uint32_t by = k;
        if (ordered && to->place[by].kind == CDP_PLACE_SHARD) continue;
        if (cdp__dt_place_same(&now, to, by)) continue;
        now.place[by] = to->place[by];
        steps[n++] = now;
    }
    for (k = 0; k < shards; ++k) {
        if (cdp__dt_place_same(&now, to, sequence[k])) continue;
        now.place[sequence[k]] = to->place[sequence[k]];
        steps[n++] = now;
    }
    steps[n - 1] = n == 1 ? *from : *to;
    return n;
}

/* The mesh dimension in which two neighbouring steps differ. */
CDP__DT uint32_t cdp__dt_step_dim(const cdp_layout *a, const cdp_layout *b) {
    for (uint32_t d = 0; d < a->mesh->desc.ndim; ++d)
        if (!cdp__dt_place_same(a, b, d)) return d;
    return CDP__DT_NONE;
}

/* True if PyTorch communicates in this step: it is neither a local cut nor a dimension of one
   rank. */
CDP__DT bool cdp__dt_torch_talks(const cdp_layout *a, const cdp_layout *b) {
    const uint32_t by = cdp__dt_step_dim(a, b);
    if (by == CDP__DT_NONE || a->mesh->desc.shape[by] == 1) return false;
    if (b->place[by].kind == CDP_PLACE_PARTIAL) return false;
    return a->place[by].kind != CDP_PLACE_REPLICATE;
}

CDP__DT uint64_t cdp__dt_up(uint64_t size, uint64_t parts) {
    return size / parts + (size % parts != 0);
}

/* Bytes that PyTorch's collective for one step makes all ranks receive, padding included;
   UINT64_MAX if they have more than 64 bits. */
CDP__DT uint64_t cdp__dt_torch_bytes(const cdp_layout *a, const cdp_layout *b) {
    const uint32_t by = cdp__dt_step_dim(a, b);
    const uint64_t n = by == CDP__DT_NONE ? 1 : a->mesh->desc.shape[by];
    const uint64_t elem = cdp_dtype_size(a->dtype);
    uint64_t elements = 0;
    if (!cdp__dt_torch_talks(a, b)) return 0;
    const cdp__dt_side before = cdp__dt_side_of(a, 0), after = cdp__dt_side_of(b, 0);
    const bool reduces = a->place[by].kind == CDP_PLACE_PARTIAL;
    const bool cuts = b->place[by].kind == CDP_PLACE_SHARD;
    const uint32_t i = cdp__dt_dim(a, by), j = cdp__dt_dim(b, by);
    for (uint32_t k = 0; k < before.count; ++k) {
        const cdp__dt_region old = cdp__dt_region_of(&before, k);
        cdp__dt_region r = reduces ? old : cdp__dt_region_of(&after, k);
        if (!reduces) {
            if (cuts) r.size[j] = old.size[j];
            r.size[i] = cdp__dt_up(r.size[i], n);
        }
        if (cuts) r.size[j] = cdp__dt_up(r.size[j], n);
        elements = cdp__dt_plus_most(elements, cdp__dt_volume(&r, before.ndim));
    }
    /* an allreduce moves (n - 1) / n of its vector twice */
    if (reduces && !cuts) elements = 2 * (elements / n);
    return cdp__dt_times_most(cdp__dt_times_most(elements, n - 1), elem);
}

#endif /* CDP_SRC_DTENSOR_TORCH_H */
