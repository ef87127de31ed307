/* dtensor/chooser.h - the cheapest rules

   Knows: rules, and the cost of a redistribution. Promises: cdp_op_choose(). */
#ifndef CDP_SRC_DTENSOR_CHOOSER_H
#define CDP_SRC_DTENSOR_CHOOSER_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../os/os_api.h"
#include "../message/transport_api.h"
#include "../base/helpers.h"
#include "mesh_api.h"
#include "layout_api.h"
#include "rules_api.h"
#include "kit.h"
#include "kernels.h"
#include "grid.h"
#include "spelling.h"
#include "stages.h"
#include "planner.h"
#include "operators.h"
#include "operators_special.h"

#ifndef CDP_NO_TENSOR_OPS

#define CDP__DT_CANDIDATES 256u /* most rules of one mesh dimension, each with its blocks */
#define CDP__DT_COMBINATIONS 4096u

typedef struct cdp__dt_choice {
    const cdp_layout *have, *want;
    uint32_t in_count, dims, count[CDP_MESH_DIMS], at[CDP_MESH_DIMS];
    cdp_rule *rules[CDP_MESH_DIMS]; /* candidates of each dimension */
    cdp_layout out;                 /* mesh, dtype and shape of the result */
    cdp_net net;
    cdp_op_choice now, best;
    bool found;
} cdp__dt_choice;

/* Copies order, cut and blocks of `like` to the placements of `rule`, if `like` has the
   placements that `as` asks for. */
CDP__DT bool cdp__dt_adopt(
    cdp_rule *rule, const cdp_place *as, const cdp_place *like, uint32_t ndim, uint32_t in_count) {
    const int32_t own = as->dim < 0 ? as->dim + (int32_t)ndim : as->dim;
    const int32_t there = like->dim < 0 ? like->dim + (int32_t)ndim : like->dim;
    if (as->kind != CDP_PLACE_SHARD || like->kind != CDP_PLACE_SHARD || own != there) return false;
    const uint64_t unit = cdp__max(as->block, 1), block = cdp__max(like->block, 1);
    const uint64_t times = cdp__dt_multiple(unit, block) / unit;
    bool plain = true;
    if (!times) return false;
    for (uint32_t k = 0; k <= in_count; ++k)
        plain = plain && (k == in_count ? rule->out.block : rule->in[k].block) <= 1;
    for (uint32_t k = 0; k <= in_count; ++k) {
        cdp_place *p = k == in_count ? &rule->out : &rule->in[k];
        if (p->kind != CDP_PLACE_SHARD) continue;
        p->block = cdp__max(p->block, 1) * times;
        p->order = like->order;
        p->cut = plain ? like->cut : 0;
    }
    return true;
}

CDP__DT void cdp__dt_candidate(cdp__dt_choice *c, uint32_t by, const cdp_rule *rule) {
    for (uint32_t i = 0; i < c->count[by]; ++i)
        if (memcmp(&c->rules[by][i], rule, sizeof *rule) == 0) return;
    if (c->count[by] < CDP__DT_CANDIDATES) c->rules[by][c->count[by]++] = *rule;
}

/* Adds a rule as it is, and variants with the blocks that the inputs, and the wanted result,
   have. */
CDP__DT void cdp__dt_candidates(cdp__dt_choice *c, uint32_t by, const cdp_rule *rule) {
    cdp_rule r;
    for (uint32_t k = 0; k < c->in_count; ++k) {
        r = *rule;
        if (cdp__dt_adopt(&r, &rule->in[k], &c->have[k].place[by], c->have[k].ndim, c->in_count))
            cdp__dt_candidate(c, by, &r);
    }
    r = *rule;
    if (c->want && cdp__dt_adopt(&r, &rule->out, &c->want->place[by], c->want->ndim, c->in_count))
        cdp__dt_candidate(c, by, &r);
    cdp__dt_candidate(c, by, rule);
}

/* True if the placements can be combined: one kind of PARTIAL, nested blocks, no second cut
   beside one of the program. */
CDP__DT bool cdp__dt_places_fit(const cdp_layout *l) {
    cdp_reduce_op kind = CDP_REDUCE_DEFAULT;
    for (uint32_t a = 0; a < l->mesh->desc.ndim; ++a) {
        const cdp_place *p = &l->place[a];
        cdp_reduce_op op = cdp__dt_op(p);
        if (op == CDP_REDUCE_AVG) op = CDP_REDUCE_SUM;
        if (p->kind == CDP_PLACE_PARTIAL && kind != CDP_REDUCE_DEFAULT && kind != op) return false;
        if (p->kind == CDP_PLACE_PARTIAL && !cdp__dt_reduces(l->dtype, cdp__dt_op(p))) return false;
        if (p->kind == CDP_PLACE_PARTIAL) kind = op;
        for (uint32_t b = 0; b < l->mesh->desc.ndim; ++b) {
            const cdp_place *q = &l->place[b];
            const bool both = p->kind == CDP_PLACE_SHARD && q->kind == CDP_PLACE_SHARD;
            if (a == b || !both || cdp__dt_dim(l, a) != cdp__dt_dim(l, b)) continue;
            const bool first = p->order < q->order || (p->order == q->order && a < b);
            if (p->cut || (first && cdp__max(p->block, 1) % cdp__max(q->block, 1))) return false;
        }
    }
    return true;
}

/* True if `to` can be reached: a target is PARTIAL only where the source is, with the same op. A
   shard is not turned into a sum to satisfy a rule, because that is free now but costs more
   later. */
CDP__DT bool cdp__dt_reaches(const cdp_layout *from, const cdp_layout *to) {
    for (uint32_t by = 0; by < to->mesh->desc.ndim; ++by) {
        if (!cdp__dt_partial(to, by)) continue;
        const cdp_reduce_op op = cdp__dt_op(&to->place[by]);
        if (!cdp__dt_partial(from, by) || cdp__dt_op(&from->place[by]) != op) return false;
    }
    return true;
}

/* Adds the cost of changing a tensor from one layout to another; false: not possible. */
CDP__DT bool cdp__dt_add_cost(cdp__dt_choice *c, const cdp_layout *from, const cdp_layout *to) {
    cdp__dt_stage s;
    const cdp_layout a = cdp__dt_plain(from), b = cdp__dt_plain(to);
    const uint64_t elem = cdp_dtype_size(a.dtype);
    if (!cdp__dt_places_fit(&b) || !cdp__dt_reaches(&a, &b)) return false;
    if (cdp_layout_same(&a, &b)) return true;
    if (cdp__dt_stage_make(&s, a.mesh->root->os, &a, &b, CDP__DT_NONE, CDP__DT_NONE) != CDP_OK)
        return false;
    cdp__dt_stage_single(&s);
    c->now.bytes += s.cost.total * elem;
    c->now.predicted_us += cdp__dt_stage_us(&s, &c->net, elem);
    return true;
}

CDP__DT bool cdp__dt_choice_fits(const cdp__dt_choice *c) {
    const cdp_layout *t[CDP_OP_INPUTS + 1];
    bool fits = cdp__dt_places_fit(&c->now.out);
    for (uint32_t k = 0; k < c->in_count; ++k)
        t[k] = &c->now.in[k];
    t[c->in_count] = &c->now.out;
    for (uint32_t a = 0; a < c->dims; ++a)
        for (uint32_t b = 0; b < a; ++b)
            fits = fits && cdp__dt_rules_agree(t, c->in_count, a, b);
    return fits;
}

/* Computes the cost of the candidates at[], and keeps them if it is the lowest so far. */
CDP__DT bool cdp__dt_try(cdp__dt_choice *c) {
    bool possible;
    memset(&c->now, 0, sizeof c->now);
    for (uint32_t k = 0; k < c->in_count; ++k)
        c->now.in[k] = c->have[k];
    c->now.out = c->out;
    for (uint32_t by = 0; by < c->dims; ++by) {
        const cdp_rule *rule = &c->rules[by][c->at[by]];
        for (uint32_t k = 0; k < c->in_count; ++k)
            c->now.in[k].place[by] = rule->in[k];
        c->now.out.place[by] = rule->out;
        c->now.flags[by] = rule->flags;
    }
    possible = cdp__dt_choice_fits(c);
    for (uint32_t k = 0; possible && k < c->in_count; ++k)
        possible = cdp__dt_add_cost(c, &c->have[k], &c->now.in[k]);
    if (possible && c->want) possible = cdp__dt_add_cost(c, &c->now.out, c->want);
    const bool equal = c->found && c->now.bytes == c->best.bytes;
    const bool cheaper = !c->found || c->now.bytes < c->best.bytes
        || (equal && c->now.predicted_us < c->best.predicted_us);
    if (!possible || !cheaper) return false;
    c->best = c->now;
    c->found = true;
    return true;
}

/* Tries all combinations, the last dimension varying fastest. */
CDP__DT void cdp__dt_try_all(cdp__dt_choice *c) {
    for (;;) {
        uint32_t by = c->dims;
        (void)cdp__dt_try(c);
        while (by > 0 && ++c->at[by - 1] == c->count[by - 1])
            c->at[--by] = 0;
        if (!by) return;
    }
}

/* Finds the cheapest candidate of each dimension separately, with the inputs unchanged in the
   others. */
CDP__DT void cdp__dt_try_apart(cdp__dt_choice *c) {
    for (uint32_t by = 0; by < c->dims; ++by) {
        uint64_t least = UINT64_MAX;
        for (uint32_t i = 0; i < c->count[by]; ++i) {
            bool possible = true;
            c->now.bytes = 0;
            for (uint32_t k = 0; possible && k < c->in_count; ++k) {
                cdp_layout need = c->have[k];
                need.place[by] = c->rules[by][i].in[k];
                possible = cdp__dt_add_cost(c, &c->have[k], &need);
            }
            if (!possible || c->now.bytes >= least) continue;
            least = c->now.bytes;
            c->at[by] = i;
        }
    }
}

/* Improves one dimension after the other, until a round improves nothing. */
CDP__DT void cdp__dt_try_each(cdp__dt_choice *c) {
    bool better = true;
    (void)cdp__dt_try(c); /* everything replicated */
    cdp__dt_try_apart(c);
    if (!cdp__dt_try(c)) memset(c->at, 0, sizeof c->at);
    while (better) {
        better = false;
        for (uint32_t by = 0; by < c->dims; ++by) {
            uint32_t kept = c->at[by];
            for (c->at[by] = 0; c->at[by] < c->count[by]; ++c->at[by])
                if (cdp__dt_try(c)) {
                    kept = c->at[by];
                    better = true;
                }
            c->at[by] = kept;
        }
    }
}

CDP__DT cdp_status cdp__dt_choose(cdp__dt_choice *c, const cdp_op *op, cdp_rule *memory) {
    cdp__dt_rules r;
    uint64_t combinations = 1;
    memset(&r, 0, sizeof r);
    r.out = memory;
    r.max = CDP__DT_CANDIDATES;
    cdp_status st = cdp__dt_rules_of(op, c->have, c->in_count, &r, &c->out);
    if (st == CDP_OK && r.n > CDP__DT_CANDIDATES)
        st = cdp__dt_op_wrong("rules", "there are more than 256 of them", 0);
    if (st == CDP_OK && c->want && !cdp__dt_shape_same(c->want, &c->out))
        st = cdp__dt_op_wrong("want", "its shape or dtype is not that of the result", 0);
    if (st != CDP_OK) return st;
    for (uint32_t by = 0; by < c->dims; ++by) {
        c->rules[by] = memory + (by + 1) * CDP__DT_CANDIDATES;
        for (uint32_t i = 0; i < r.n; ++i)
            cdp__dt_candidates(c, by, &memory[i]);
        combinations *= c->count[by];
    }
    if (combinations <= CDP__DT_COMBINATIONS)
        cdp__dt_try_all(c);
    else
        cdp__dt_try_each(c);
    if (c->found) return CDP_OK;
    return cdp_error_set(CDP_ERR_UNSUPPORTED, -1, 0,
        "cdp_op_choose: no rule of the operator leads from these inputs to the wanted result; a "
        "result is PARTIAL only where its inputs make it so");
}

CDP_API cdp_status cdp_op_choose(const cdp_op *op, const cdp_layout *have, uint32_t in_count,
    const cdp_layout *want, const cdp_net *net, cdp_op_choice *out) {
    cdp__dt_choice c;
    cdp__dt_op_kind kind;
    cdp_net none;
    if (!out) return cdp__dt_missing("cdp_op_choose", "out");
    cdp_status st = cdp__dt_op_check(op, have, in_count, &kind);
    for (uint32_t k = 0; st == CDP_OK && k < in_count; ++k)
        st = cdp_layout_check(&have[k]);
    if (st == CDP_OK && want) st = cdp_layout_check(want);
    if (st != CDP_OK) return st;
    if (want && !cdp__dt_mesh_same(want->mesh, have->mesh))
        return cdp__dt_op_wrong(kind.name, "the wanted result is on another mesh", 0);
    memset(&none, 0, sizeof none);
    memset(&c, 0, sizeof c);
    c.have = have;
    c.want = want;
    c.in_count = in_count;
    c.dims = have->mesh->desc.ndim;
    c.net = cdp__dt_net_of(net ? net : &none);
    const cdp_os *os = have->mesh->root->os;
    const uint64_t bytes = (c.dims + 1ull) * CDP__DT_CANDIDATES * sizeof(cdp_rule);
    cdp_rule *memory = (cdp_rule *)cdp__dt_alloc(os, bytes);
    if (!memory) return cdp__dt_nomem("cdp_op_choose", bytes);
    st = cdp__dt_choose(&c, op, memory);
    cdp__dt_free(os, memory);
    if (st == CDP_OK) *out = c.best;
    return st;
}

#endif /* CDP_NO_TENSOR_OPS */

#endif /* CDP_SRC_DTENSOR_CHOOSER_H */
