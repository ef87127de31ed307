/* dtensor/moves.h - which rank sends what to which (pure)

   Knows: two sides. Promises: every rank computes its own sends and receives without messages; the
   bytes of all ranks are the minimum. */
#ifndef CDP_SRC_DTENSOR_MOVES_H
#define CDP_SRC_DTENSOR_MOVES_H

#include "../base/config.h"
#include "../base/helpers.h"
#include "mesh_api.h"
#include "kit.h"
#include "kernels.h"
#include "chunks.h"
#include "grid.h"

typedef struct cdp__dt_pair {
    cdp__dt_side from, to;
    uint32_t nodes;
    /* both sides number their positions alike, so counts have closed formulas */
    bool product;
    uint32_t host_nodes; /* so many consecutive nodes share a host; 0: all */
} cdp__dt_pair;

typedef enum cdp__dt_move_kind {
    CDP__DT_LOCAL,     /* phase B: from the source array to the target array */
    CDP__DT_SEND,      /* phase B: from the source array to a peer */
    CDP__DT_RECV,      /* phase B: from a peer to the target array */
    CDP__DT_OWN,       /* phase A: this rank is to reduce the region; opens a slab */
    CDP__DT_TERM_SEND, /* phase A: this rank's contribution to a peer */
    CDP__DT_TERM_RECV, /* phase A: a contribution to the last slab */
    CDP__DT_OWN_LOCAL, /* phase B: from the last slab to the target array */
    CDP__DT_OWN_SEND   /* phase B: from the last slab to a peer */
} cdp__dt_move_kind;

typedef struct cdp__dt_move {
    cdp__dt_move_kind kind;
    uint32_t peer; /* OWN: this rank's own term */
    cdp__dt_region region;
} cdp__dt_move;

typedef void cdp__dt_emit(void *user, const cdp__dt_move *move);

CDP__DT void cdp__dt_emit_move(cdp__dt_emit *emit, void *user, cdp__dt_move_kind kind,
    uint32_t peer, const cdp__dt_region *region) {
    cdp__dt_move m;
    m.kind = kind;
    m.peer = peer;
    m.region = *region;
    emit(user, &m);
}

/* The number of members of target cell `t`, below member `before`, that are members of source
   cell `c`. */
CDP__DT uint32_t cdp__dt_common_product(
    const cdp__dt_pair *p, uint32_t t, uint32_t c, uint32_t before) {
    const uint32_t tp = cdp__dt_spread(&p->to, t, CDP__DT_CUTS, true);
    const uint32_t cp = cdp__dt_spread(&p->from, c, CDP__DT_CUTS, true);
    uint32_t inner[CDP_MESH_DIMS + 1], n = 0, d, free_size = 1;
    inner[p->to.dims] = 1;
    for (d = p->to.dims; d-- > 0;) {
        const bool by_to = p->to.role[d] == CDP__DT_CUTS, by_from = p->from.role[d] == CDP__DT_CUTS;
        if (by_to && by_from && cdp__dt_digit(&p->to, tp, d) != cdp__dt_digit(&p->from, cp, d))
            return 0;
        inner[d] = inner[d + 1] * (by_to || by_from ? 1 : p->to.size[d]);
        if (!by_to) free_size *= p->to.size[d];
    }
    if (before >= free_size) return inner[0];
    const uint32_t at = cdp__dt_spread(&p->to, before, CDP__DT_CUTS, false);
    for (d = 0; d < p->to.dims; ++d) {
        const uint32_t digit = cdp__dt_digit(&p->to, at, d);
        if (p->to.role[d] == CDP__DT_CUTS) continue;
        if (p->from.role[d] != CDP__DT_CUTS) {
            n += digit * inner[d + 1];
            continue;
        }
        const uint32_t fixed = cdp__dt_digit(&p->from, cp, d);
        if (fixed < digit) return n + inner[d + 1];
        if (fixed > digit) return n;
    }
    return n;
}

CDP__DT uint32_t cdp__dt_common(const cdp__dt_pair *p, uint32_t t, uint32_t c, uint32_t before) {
    uint32_t n = 0;
    if (p->product) return cdp__dt_common_product(p, t, c, before);
    for (uint32_t k = 0; k < before && k < p->to.members; ++k)
        n += cdp__dt_cell(&p->from, cdp__dt_member_node(&p->to, t, k)) == c;
    return n;
}

/* The holder that sends to the `i`-th rank that needs the element: if possible, one on the same
   host. */
CDP__DT uint32_t cdp__dt_holder(
    const cdp__dt_pair *p, uint32_t c, uint32_t t, uint32_t i, uint32_t node) {
    const uint32_t members = p->from.members, h = p->host_nodes;
    uint32_t nearby = 0, k;
    for (k = 0; h && k < members; ++k)
        nearby += cdp__dt_member_node(&p->from, c, k) / h == node / h;
    if (!nearby) return cdp__dt_member_node(&p->from, c, (i + t) % members);
    uint32_t skip = (i + t) % nearby;
    for (k = 0; k < members; ++k) {
        const uint32_t holder = cdp__dt_member_node(&p->from, c, k);
        if (holder / h == node / h && skip-- == 0) return holder;
    }
    return CDP__DT_NONE;
}

CDP__DT void cdp__dt_plain_receives(
    const cdp__dt_pair *p, uint32_t node, cdp__dt_emit *emit, void *user) {
    const uint32_t t = cdp__dt_cell(&p->to, node), own = cdp__dt_cell(&p->from, node);
    cdp__dt_region part, target;
    if (t == CDP__DT_NONE) return;
    const uint32_t k = cdp__dt_member(&p->to, node);
    target = cdp__dt_cell_region(&p->to, t);
    for (uint32_t c = 0; c < p->from.cells; ++c) {
        const cdp__dt_region source = cdp__dt_cell_region(&p->from, c);
        if (!cdp__dt_intersect(&source, &target, p->to.ndim, &part)) continue;
        if (c == own) {
            cdp__dt_emit_move(emit, user, CDP__DT_LOCAL, node, &part);
            continue;
        }
        const uint32_t i = k - cdp__dt_common(p, t, c, k);
        cdp__dt_emit_move(emit, user, CDP__DT_RECV, cdp__dt_holder(p, c, t, i, node), &part);
    }
}

CDP__DT void cdp__dt_plain_sends(
    const cdp__dt_pair *p, uint32_t node, cdp__dt_emit *emit, void *user) {
    const uint32_t c = cdp__dt_cell(&p->from, node), holders = p->from.members;
    cdp__dt_region part;
    if (c == CDP__DT_NONE) return;
    const cdp__dt_region source = cdp__dt_cell_region(&p->from, c);
    const uint32_t mine = cdp__dt_member(&p->from, node);
    for (uint32_t t = 0; t < p->to.cells; ++t) {
        const cdp__dt_region target = cdp__dt_cell_region(&p->to, t);
        if (!cdp__dt_intersect(&source, &target, p->to.ndim, &part)) continue;
        for (uint32_t k = 0, i = 0; k < p->to.members; ++k) {
            const uint32_t peer = cdp__dt_member_node(&p->to, t, k);
            if (cdp__dt_cell(&p->from, peer) == c) continue;
            const bool serves = p->host_nodes ? cdp__dt_holder(p, c, t, i, peer) == node
                                              : (i + t) % holders == mine;
            if (serves) cdp__dt_emit_move(emit, user, CDP__DT_SEND, peer, &part);
            ++i;
        }
    }
}

/* The owners of the common elements of source cell c and target cell t: `count` nodes. The first
   `parts` of them, rotated by `turn`, get a slab each. */
typedef struct cdp__dt_owners {
    uint32_t c, t, count, parts;
    bool needed; /* they are members of t; otherwise of c only */
} cdp__dt_owners;

CDP__DT cdp__dt_owners cdp__dt_owners_of(const cdp__dt_pair *p, uint32_t c, uint32_t t) {
    cdp__dt_owners o;
    o.c = c;
    o.t = t;
    o.count = cdp__dt_common(p, t, c, p->to.members);
    o.needed = o.count > 0;
    if (!o.needed) o.count = p->from.members;
    const bool whole = !p->to.ndim || (!o.needed && p->to.cells >= o.count);
    o.parts = whole ? 1 : o.count;
    return o;
}

/* The slab of owner number `a`; false if it is empty. */
CDP__DT bool cdp__dt_owner_slab(const cdp__dt_pair *p, const cdp__dt_owners *o, uint32_t a,
    const cdp__dt_region *part, cdp__dt_region *slab) {
    const uint32_t index = (a + o->t + o->c) % o->count;
    if (index >= o->parts) return false;
    *slab = cdp__dt_slab(part, p->to.ndim, o->parts, index);
    return cdp__dt_volume(slab, p->to.ndim) != 0;
}

/* Finds the next owner, from member number *k on, which begins at 0. Stores its node in *node, and
   the number of the member after it in *k. False: there are no more owners. */
CDP__DT bool cdp__dt_owner_next(
    const cdp__dt_pair *p, const cdp__dt_owners *o, uint32_t *k, uint32_t *node) {
    const cdp__dt_side *s = o->needed ? &p->to : &p->from;
    while (*k < s->members) {
        *node = cdp__dt_member_node(s, o->needed ? o->t : o->c, (*k)++);
        if (!o->needed || cdp__dt_cell(&p->from, *node) == o->c) return true;
    }
    return false;
}

/* Emits the moves of the owner of a slab. */
CDP__DT void cdp__dt_own(const cdp__dt_pair *p, uint32_t t, uint32_t node,
    const cdp__dt_region *slab, cdp__dt_emit *emit, void *user) {
    const uint32_t own = cdp__dt_term(&p->from, node);
    cdp__dt_emit_move(emit, user, CDP__DT_OWN, own, slab);
    for (uint32_t term = 0; term < p->from.terms; ++term)
        if (term != own)
            cdp__dt_emit_move(
                emit, user, CDP__DT_TERM_RECV, cdp__dt_with_term(&p->from, node, term), slab);
    for (uint32_t k = 0; k < p->to.members; ++k) {
        const uint32_t peer = cdp__dt_member_node(&p->to, t, k);
        cdp__dt_emit_move(
            emit, user, peer == node ? CDP__DT_OWN_LOCAL : CDP__DT_OWN_SEND, peer, slab);
    }
}

CDP__DT void cdp__dt_term_sends(
    const cdp__dt_pair *p, uint32_t node, cdp__dt_emit *emit, void *user) {
    const uint32_t c = cdp__dt_cell(&p->from, node);
    cdp__dt_region part, slab;
    if (c == CDP__DT_NONE) return;
    const cdp__dt_region source = cdp__dt_cell_region(&p->from, c);
    const uint32_t term = cdp__dt_term(&p->from, node);
    for (uint32_t t = 0; t < p->to.cells; ++t) {
        const cdp__dt_region target = cdp__dt_cell_region(&p->to, t);
        if (!cdp__dt_intersect(&source, &target, p->to.ndim, &part)) continue;
        const cdp__dt_owners o = cdp__dt_owners_of(p, c, t);
        uint32_t owner = 0;
        for (uint32_t k = 0, a = 0; cdp__dt_owner_next(p, &o, &k, &owner); ++a) {
            if (!cdp__dt_owner_slab(p, &o, a, &part, &slab)) continue;
            if (owner == node)
                cdp__dt_own(p, t, node, &slab, emit, user);
            else if (cdp__dt_with_term(&p->from, owner, term) == node)
                cdp__dt_emit_move(emit, user, CDP__DT_TERM_SEND, owner, &slab);
        }
    }
}

CDP__DT void cdp__dt_term_receives(
    const cdp__dt_pair *p, uint32_t node, cdp__dt_emit *emit, void *user) {
    const uint32_t t = cdp__dt_cell(&p->to, node);
    cdp__dt_region part, slab;
    if (t == CDP__DT_NONE) return;
    const cdp__dt_region target = cdp__dt_cell_region(&p->to, t);
    for (uint32_t c = 0; c < p->from.cells; ++c) {
        const cdp__dt_region source = cdp__dt_cell_region(&p->from, c);
        if (!cdp__dt_intersect(&source, &target, p->to.ndim, &part)) continue;
        const cdp__dt_owners o = cdp__dt_owners_of(p, c, t);
        uint32_t owner = 0;
        for (uint32_t k = 0, a = 0; cdp__dt_owner_next(p, &o, &k, &owner); ++a)
            if (owner != node && cdp__dt_owner_slab(p, &o, a, &part, &slab))
                cdp__dt_emit_move(emit, user, CDP__DT_RECV, owner, &slab);
    }
}

/* Emits all moves of `node`. */
CDP__DT void cdp__dt_moves(const cdp__dt_pair *p, uint32_t node, cdp__dt_emit *emit, void *user) {
    if (p->from.terms > 1) {
        cdp__dt_term_sends(p, node, emit, user);
        cdp__dt_term_receives(p, node, emit, user);
    } else {
        cdp__dt_plain_sends(p, node, emit, user);
        cdp__dt_plain_receives(p, node, emit, user);
    }
}

/* The elements that a node receives while contributions are reduced and copied. */
CDP__DT uint64_t cdp__dt_reduced_recv(const cdp__dt_pair *p, uint32_t node) {
    const uint32_t c = cdp__dt_cell(&p->from, node), own = cdp__dt_cell(&p->to, node);
    const bool all =
        p->from.cells > 1 || !p->product; /* else a node owns slabs of its own target alone */
    cdp__dt_region part, slab;
    uint64_t got = 0;
    if (own != CDP__DT_NONE) {
        const cdp__dt_region target = cdp__dt_cell_region(&p->to, own);
        got = cdp__dt_volume(&target, p->to.ndim);
    }
    if (c == CDP__DT_NONE) return got;
    const cdp__dt_region source = cdp__dt_cell_region(&p->from, c);
    for (uint32_t t = all ? 0 : own; t < p->to.cells && (all || t == own); ++t) {
        const cdp__dt_region target = cdp__dt_cell_region(&p->to, t);
        if (!cdp__dt_intersect(&source, &target, p->to.ndim, &part)) continue;
        const cdp__dt_owners o = cdp__dt_owners_of(p, c, t);
        if (o.needed && t != own) continue;
        const uint32_t a = o.needed ? cdp__dt_common(p, t, c, cdp__dt_member(&p->to, node))
                                    : cdp__dt_member(&p->from, node);
        if (!cdp__dt_owner_slab(p, &o, a, &part, &slab)) continue;
        got += (p->from.terms - 1) * cdp__dt_volume(&slab, p->to.ndim);
        if (t == own) got -= cdp__dt_volume(&slab, p->to.ndim);
    }
    return got;
}

/* The most that one node receives. Where contributions are cut, too, and it would take more than
   2^18 looks at pieces, it is the mean, rounded up. */
CDP__DT uint64_t cdp__dt_reduced_most(const cdp__dt_pair *p, uint64_t total) {
    uint64_t most = 0;
    const bool alone = p->product && p->from.cells == 1;
    if (!alone && (uint64_t)p->nodes * p->to.cells > (1u << 18))
        return (total + p->nodes - 1) / p->nodes;
    for (uint32_t node = 0; node < p->nodes; ++node)
        most = cdp__max(most, cdp__dt_reduced_recv(p, node));
    return most;
}

/* Elements that all ranks receive together, and the most that one receives. */
typedef struct cdp__dt_cost {
    uint64_t total, busiest;
} cdp__dt_cost;

CDP__DT cdp__dt_cost cdp__dt_cost_of(const cdp__dt_pair *p) {
    const uint64_t terms = p->from.terms;
    cdp__dt_cost cost = {0, 0};
    uint64_t shared = 0;
    cdp__dt_region part;
    for (uint32_t k = 0; k < p->to.count; ++k) {
        const uint32_t node = cdp__dt_node(&p->to, k), c = cdp__dt_cell(&p->from, node);
        const cdp__dt_region target = cdp__dt_region_of(&p->to, k);
        const uint64_t need = cdp__dt_volume(&target, p->to.ndim);
        uint64_t have = 0;
        if (c != CDP__DT_NONE) {
            const cdp__dt_region source = cdp__dt_cell_region(&p->from, c);
            if (cdp__dt_intersect(&source, &target, p->to.ndim, &part))
                have = cdp__dt_volume(&part, p->to.ndim);
        }
        if (terms > 1 && have) { /* counted once for each common member of both cells */
            const uint32_t t = cdp__dt_cell(&p->to, node), m = cdp__dt_member(&p->to, node);
            if (cdp__dt_common(p, t, c, m) == 0) shared += have;
        }
        cost.total = cdp__dt_plus_most(cost.total, terms > 1 ? need : need - have);
        cost.busiest = cdp__max(cost.busiest, need - have);
    }
    if (terms
        > 1) { /* need counts m copies of each element: the bound is (terms - 1) + m - shared */
        const cdp__dt_region all = cdp__dt_whole(&p->from);
        const uint64_t sums = cdp__dt_times_most(terms - 1, cdp__dt_volume(&all, p->from.ndim));
        cost.total = cdp__dt_plus_most(cost.total - shared, sums);
        cost.busiest = cdp__dt_reduced_most(p, cost.total);
    }
    return cost;
}

#endif /* CDP_SRC_DTENSOR_MOVES_H */
