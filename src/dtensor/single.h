/* dtensor/single.h - moves that are one collective of all ranks, or of the ranks along one
   dimension of their mesh (pure)

   Knows: two sides. Promises: the same answer on all ranks; a collective of contiguous memory, in
   the order of the nodes. */
#ifndef CDP_SRC_DTENSOR_SINGLE_H
#define CDP_SRC_DTENSOR_SINGLE_H

#include "../base/config.h"
#include "../base/types_api.h"
#include "../base/helpers.h"
#include "mesh_api.h"
#include "kit.h"
#include "kernels.h"
#include "chunks.h"
#include "grid.h"
#include "moves.h"

/* A collective of `nodes` nodes, whose numbers are `step` apart. All nodes of the mesh take part,
   each in one such row. */
typedef struct cdp__dt_single {
    cdp_coll_kind kind; /* NONE: the moves are not one collective */
    uint32_t by;        /* dimension of the mesh; CDP__DT_NONE: one row has all nodes */
    uint32_t nodes, step;
    uint64_t count; /* elements, as that collective counts them; the most of all rows */
    uint64_t total; /* elements that the nodes of all rows receive */
} cdp__dt_single;

/* The number of a node in its row; below, the first node of that row. */
CDP__DT uint32_t cdp__dt_single_index(const cdp__dt_single *s, uint32_t node) {
    return node / s->step % s->nodes;
}

CDP__DT uint32_t cdp__dt_single_first(const cdp__dt_single *s, uint32_t node) {
    return node - cdp__dt_single_index(s, node) * s->step;
}

/* Elements for the collective s->kind of the row that begins at node `first`. False: what its nodes
   have are not equal pieces that follow one another in what they shall have, or the reverse. */
CDP__DT bool cdp__dt_row_count(
    const cdp__dt_pair *p, const cdp__dt_single *s, uint32_t first, uint64_t *count) {
    const bool gathers = s->kind == CDP_COLL_ALLGATHER;
    const uint64_t parts = s->kind == CDP_COLL_ALLREDUCE ? 1 : s->nodes;
    const cdp__dt_side *whole = gathers ? &p->to : &p->from, *cut = gathers ? &p->from : &p->to;
    const cdp__dt_region all = cdp__dt_region_of(whole, first);
    const uint64_t volume = cdp__dt_volume(&all, whole->ndim), each = volume / parts;
    *count = each;
    for (uint32_t i = 0; i < s->nodes; ++i) {
        const cdp__dt_region same = cdp__dt_region_of(whole, first + i * s->step);
        const cdp__dt_region piece = cdp__dt_region_of(cut, first + i * s->step);
        if (memcmp(&same, &all, sizeof same) != 0) return false;
        if (cdp__dt_volume(&piece, cut->ndim) * parts != volume) return false;
        if (!volume) continue;
        const cdp__dt_copy c = cdp__dt_copy_of(&piece, &all, &piece, cut->ndim, 1);
        if (c.dims || c.from_at != (parts == 1 ? 0 : i * each)) return false;
    }
    return true;
}

/* The collective of a dimension whose nodes have roles `from` and shall have roles `to`. */
CDP__DT cdp_coll_kind cdp__dt_role_kind(cdp__dt_role from, cdp__dt_role to) {
    if (from == CDP__DT_TERM && to == CDP__DT_SAME) return CDP_COLL_ALLREDUCE;
    if (from == CDP__DT_TERM && to == CDP__DT_CUTS) return CDP_COLL_REDUCE_SCATTER;
    if (from == CDP__DT_CUTS && to == CDP__DT_SAME) return CDP_COLL_ALLGATHER;
    return CDP_COLL_NONE;
}

/* A row of all nodes, if all dimensions change. A target may be cut by some of them alone; then
   its pieces do not fit. */
CDP__DT cdp__dt_single cdp__dt_single_whole(const cdp__dt_pair *p) {
    cdp__dt_single s = {CDP_COLL_NONE, CDP__DT_NONE, p->nodes, 1, 0, 0};
    const bool sums = p->from.terms == p->nodes && p->from.cells == 1;
    const bool replicated = p->to.cells == 1 && p->to.terms == 1;
    if (sums && p->to.terms == 1)
        s.kind = cdp__dt_role_kind(CDP__DT_TERM, replicated ? CDP__DT_SAME : CDP__DT_CUTS);
    else if (p->from.terms == 1 && p->from.cells == p->nodes && replicated)
        s.kind = CDP_COLL_ALLGATHER;
    return s;
}

/* The rows along the only dimension that changes. */
CDP__DT cdp__dt_single cdp__dt_single_along(const cdp__dt_pair *p) {
    cdp__dt_single s = {CDP_COLL_NONE, CDP__DT_NONE, 0, 0, 0, 0};
    for (uint32_t d = 0; d < p->from.dims; ++d) {
        if (p->from.size[d] == 1 || p->from.role[d] == p->to.role[d]) continue;
        if (s.by != CDP__DT_NONE) s.kind = CDP_COLL_NONE;
        if (s.by != CDP__DT_NONE) return s;
        s.by = d;
        s.kind = cdp__dt_role_kind(p->from.role[d], p->to.role[d]);
        s.nodes = p->from.size[d];
        s.step = p->from.stride[d];
    }
    return s;
}

/* Fills in what all rows have together; NONE if there is a row that is no such collective. */
CDP__DT void cdp__dt_single_rows(const cdp__dt_pair *p, cdp__dt_single *s) {
    const uint64_t others = s->nodes - 1ull;
    const uint64_t times = s->kind == CDP_COLL_ALLREDUCE ? 2 * others : s->nodes * others;
    for (uint32_t node = 0; s->kind && node < p->nodes; ++node) {
        uint64_t count;
        if (cdp__dt_single_first(s, node) != node) continue;
        if (!cdp__dt_row_count(p, s, node, &count)) s->kind = CDP_COLL_NONE;
        s->count = cdp__max(s->count, count);
        s->total = cdp__dt_plus_most(s->total, cdp__dt_times_most(times, count));
    }
    if (!s->count) s->kind = CDP_COLL_NONE;
}

/* The collective that changes p->from into p->to. */
CDP__DT cdp__dt_single cdp__dt_single_of(const cdp__dt_pair *p) {
    cdp__dt_single s = {CDP_COLL_NONE, CDP__DT_NONE, 0, 0, 0, 0};
    if (!p->product || p->nodes < 2 || p->from.count != p->nodes) return s;
    s = cdp__dt_single_whole(p);
    cdp__dt_single_rows(p, &s);
    if (s.kind == CDP_COLL_NONE) {
        s = cdp__dt_single_along(p);
        cdp__dt_single_rows(p, &s);
    }
    if (s.kind == CDP_COLL_NONE) s.count = 0;
    return s;
}

/* The elements that a node receives: it reduces one part, and receives the others. `count`: that of
   its row. */
CDP__DT uint64_t cdp__dt_single_recv(const cdp__dt_single *s, uint32_t node, uint64_t count) {
    const uint32_t index = cdp__dt_single_index(s, node);
    const uint64_t others = s->nodes - 1ull;
    if (s->kind != CDP_COLL_ALLREDUCE) return cdp__dt_times_most(others, count);
    const uint64_t part = count / s->nodes + (index < count % s->nodes);
    return cdp__dt_plus_most(cdp__dt_times_most(others, part), count - part);
}

/* The rounds in which all nodes hear from all others, if a node sends to one at a time. */
CDP__DT uint32_t cdp__dt_single_rounds(uint32_t nodes) {
    uint32_t rounds = 0;
    while ((uint64_t)1 << rounds < nodes)
        ++rounds;
    return rounds;
}

#endif /* CDP_SRC_DTENSOR_SINGLE_H */
