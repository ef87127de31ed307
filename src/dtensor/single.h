/* dtensor/single.h - moves that are one collective of all ranks (pure)

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

typedef struct cdp__dt_single {
    cdp_coll_kind kind; /* NONE: the moves are not one collective */
    uint64_t count;     /* elements, as that collective counts them */
} cdp__dt_single;

/* The elements of a piece if the pieces of all nodes are equally large and follow one another in
   the row-major tensor; otherwise 0. */
CDP__DT uint64_t cdp__dt_pieces_in_order(const cdp__dt_side *s, uint32_t nodes) {
    const cdp__dt_region all = cdp__dt_whole(s);
    const uint64_t each = cdp__dt_volume(&all, s->ndim) / nodes;
    if (s->cells != nodes || s->count != nodes) return 0;
    for (uint32_t node = 0; node < nodes; ++node) {
        const cdp__dt_region piece = cdp__dt_region_of(s, node);
        if (cdp__dt_volume(&piece, s->ndim) != each) return 0;
        const cdp__dt_copy c = cdp__dt_copy_of(&piece, &all, &piece, s->ndim, 1);
        if (c.dims || c.from_at != node * each) return 0;
    }
    return each;
}

/* The collective that changes p->from into p->to. */
CDP__DT cdp__dt_single cdp__dt_single_of(const cdp__dt_pair *p) {
    const cdp__dt_region all = cdp__dt_whole(&p->from);
    const bool sums = p->from.terms == p->nodes && p->from.cells == 1;
    const bool replicated = p->to.cells == 1 && p->to.terms == 1;
    cdp__dt_single s = {CDP_COLL_NONE, 0};
    if (!p->product || p->nodes < 2 || p->from.count != p->nodes) return s;
    if (sums && replicated) {
        s.kind = CDP_COLL_ALLREDUCE;
        s.count = cdp__dt_volume(&all, p->from.ndim);
    } else if (sums && p->to.terms == 1) {
        s.kind = CDP_COLL_REDUCE_SCATTER;
        s.count = cdp__dt_pieces_in_order(&p->to, p->nodes);
    } else if (p->from.terms == 1 && replicated) {
        s.kind = CDP_COLL_ALLGATHER;
        s.count = cdp__dt_pieces_in_order(&p->from, p->nodes);
    }
    if (!s.count) s.kind = CDP_COLL_NONE;
    return s;
}

/* The elements that a node of `nodes` receives: it reduces one part, and receives the others. */
CDP__DT uint64_t cdp__dt_single_recv(const cdp__dt_single *s, uint32_t node, uint32_t nodes) {
    const uint64_t others = nodes - 1ull;
    if (s->kind != CDP_COLL_ALLREDUCE) return cdp__dt_times_most(others, s->count);
    const uint64_t part = s->count / nodes + (node < s->count % nodes);
    return cdp__dt_plus_most(cdp__dt_times_most(others, part), s->count - part);
}

/* The rounds in which all nodes hear from all others, if a node sends to one at a time. */
CDP__DT uint32_t cdp__dt_single_rounds(uint32_t nodes) {
    uint32_t rounds = 0;
    while ((uint64_t)1 << rounds < nodes)
        ++rounds;
    return rounds;
}

#endif /* CDP_SRC_DTENSOR_SINGLE_H */
