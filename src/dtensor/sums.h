/* dtensor/sums.h - sums that are several collectives, along dimensions of the mesh (pure)

   Knows: two sides that differ only where the source is PARTIAL. Promises: every element is summed
   once; the same calls, in the same order, on all ranks of a row. */
#ifndef CDP_SRC_DTENSOR_SUMS_H
#define CDP_SRC_DTENSOR_SUMS_H

#include "../base/config.h"
#include "../base/types_api.h"
#include "../base/helpers.h"
#include "mesh_api.h"
#include "kit.h"
#include "chunks.h"
#include "grid.h"
#include "moves.h"
#include "single.h"

/* A sum over some dimensions, of a tensor that others replicate. Each replica sums a slice, and
   gathers the others. */
typedef struct cdp__dt_sum {
    uint32_t terms, copies; /* bits of dimensions of the mesh; terms 0: this is no such sum */
    bool whole;             /* all dimensions are terms: one call of all ranks */
} cdp__dt_sum;

/* One call: `count` elements of the local array from `at` on, of which the ranks of an allgather or
   reduce-scatter have a share each. */
typedef struct cdp__dt_call {
    cdp_coll_kind kind;
    uint32_t by; /* dimension of the mesh; CDP__DT_NONE: all ranks */
    uint32_t nodes, index;
    uint64_t at, count;
} cdp__dt_call;

#define CDP__DT_CALLS (2u * CDP_MESH_DIMS) /* at most, of one sum */

typedef struct cdp__dt_calls {
    cdp__dt_call call[CDP__DT_CALLS];
    uint32_t count;
} cdp__dt_calls;

/* The elements of share `index`; *start: those before it. */
CDP__DT uint64_t cdp__dt_share(uint64_t n, uint32_t nodes, uint32_t index, uint64_t *start) {
    const uint64_t each = n / nodes, more = n % nodes;
    *start = each * index + cdp__min(index, more);
    return each + (index < more);
}

/* The elements that a node receives in a call. */
CDP__DT uint64_t cdp__dt_call_recv(const cdp__dt_call *c) {
    uint64_t start;
    const uint64_t own = cdp__dt_share(c->count, c->nodes, c->index, &start);
    const uint64_t terms = cdp__dt_times_most(c->nodes - 1ull, own);
    switch (c->kind) {
    case CDP_COLL_ALLREDUCE: return cdp__dt_plus_most(terms, c->count - own);
    case CDP_COLL_REDUCE_SCATTER: return terms;
    default: return c->count - own; /* of an allgather */
    }
}

CDP__DT void cdp__dt_call_add(cdp__dt_calls *out, cdp_coll_kind kind, const cdp__dt_side *side,
    uint32_t by, uint32_t node, uint64_t at, uint64_t count) {
    const bool all = by == CDP__DT_NONE;
    if (!count) return;
    cdp__dt_call *c = &out->call[out->count++];
    c->kind = kind;
    c->by = by;
    c->nodes = all ? side->count : side->size[by];
    c->index = all ? node : cdp__dt_digit(side, node, by);
    c->at = at;
    c->count = count;
}

/* The last of these dimensions. */
CDP__DT uint32_t cdp__dt_last_dim(uint32_t bits) {
    uint32_t by = CDP_MESH_DIMS - 1;
    while (by && !(bits >> by & 1))
        --by;
    return by;
}

/* The calls of a node that has n elements: replicas take slices; all but the last dimension of
   terms scatter, that one reduces; then all are gathered in the reverse order. */
CDP__DT cdp__dt_calls cdp__dt_sum_calls(
    const cdp__dt_side *side, const cdp__dt_sum *s, uint32_t node, uint64_t n) {
    const uint32_t last = s->whole ? CDP__DT_NONE : cdp__dt_last_dim(s->terms);
    uint32_t outer[CDP_MESH_DIMS], levels = 0;
    uint64_t at[CDP_MESH_DIMS + 1] = {0}, count[CDP_MESH_DIMS + 1], start;
    cdp__dt_calls out;
    memset(&out, 0, sizeof out);
    count[0] = n;
    for (uint32_t turn = 0; turn < 2 && !s->whole; ++turn)
        for (uint32_t by = 0; by < side->dims; ++by) {
            const uint32_t bits = turn ? s->terms : s->copies;
            if (!(bits >> by & 1) || (turn && by == last)) continue;
            if (turn)
                cdp__dt_call_add(
                    &out, CDP_COLL_REDUCE_SCATTER, side, by, node, at[levels], count[levels]);
            outer[levels] = by;
            count[levels + 1] =
                cdp__dt_share(count[levels], side->size[by], cdp__dt_digit(side, node, by), &start);
            at[levels + 1] = at[levels] + start;
            ++levels;
        }
    cdp__dt_call_add(&out, CDP_COLL_ALLREDUCE, side, last, node, at[levels], count[levels]);
    while (levels-- > 0)
        cdp__dt_call_add(
            &out, CDP_COLL_ALLGATHER, side, outer[levels], node, at[levels], count[levels]);
    return out;
}

/* What all nodes receive; in *most, the most elements that one has. */
CDP__DT cdp__dt_cost cdp__dt_sum_cost(
    const cdp__dt_side *side, const cdp__dt_sum *s, uint64_t *most) {
    cdp__dt_cost cost = {0, 0};
    *most = 0;
    for (uint32_t node = 0; node < side->count; ++node) {
        const cdp__dt_region r = cdp__dt_region_of(side, node);
        const uint64_t n = cdp__dt_volume(&r, side->ndim);
        const cdp__dt_calls calls = cdp__dt_sum_calls(side, s, node, n);
        uint64_t got = 0;
        for (uint32_t k = 0; k < calls.count; ++k)
            got = cdp__dt_plus_most(got, cdp__dt_call_recv(&calls.call[k]));
        cost.total = cdp__dt_plus_most(cost.total, got);
        cost.busiest = cdp__max(cost.busiest, got);
        *most = cdp__max(*most, n);
    }
    return cost;
}

/* Finds out whether a stage is such a sum. `usable`: bits of the dimensions that have a group. */
CDP__DT cdp__dt_sum cdp__dt_sum_find(const cdp__dt_pair *p, uint32_t usable) {
    cdp__dt_sum s = {0, 0, false}, none = {0, 0, false};
    uint32_t cuts = 0;
    if (!p->product || p->from.count != p->nodes) return none;
    for (uint32_t by = 0; by < p->from.dims; ++by) {
        const cdp__dt_role from = p->from.role[by], to = p->to.role[by];
        if (p->from.size[by] == 1) continue;
        if (from != to && (from != CDP__DT_TERM || to != CDP__DT_SAME)) return none;
        if (from == CDP__DT_CUTS) cuts |= 1u << by;
        if (from == CDP__DT_SAME) s.copies |= 1u << by;
        if (from == CDP__DT_TERM) s.terms |= 1u << by;
    }
    for (uint32_t node = 0; cuts && node < p->nodes; ++node) {
        const cdp__dt_region a = cdp__dt_region_of(&p->from, node);
        const cdp__dt_region b = cdp__dt_region_of(&p->to, node);
        if (memcmp(&a, &b, sizeof a) != 0) return none;
    }
    s.whole = !cuts && !s.copies;
    return s.whole || !((s.terms | s.copies) & ~usable) ? s : none;
}

#endif /* CDP_SRC_DTENSOR_SUMS_H */
