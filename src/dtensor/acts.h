/* dtensor/acts.h - the steps of a plan that is several collectives

   Knows: stages that are collectives, and phases of those that are not. Promises: tensors between
   stages are in scratch memory; a step that is a call needs no other. */
#ifndef CDP_SRC_DTENSOR_ACTS_H
#define CDP_SRC_DTENSOR_ACTS_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../base/helpers.h"
#include "mesh_api.h"
#include "plan_api.h"
#include "kit.h"
#include "chunks.h"
#include "grid.h"
#include "moves.h"
#include "single.h"
#include "sums.h"
#include "stages.h"
#include "phases.h"

CDP__DT cdp_status cdp__dt_acts_build(cdp_plan *p) {
    const uint64_t bytes = CDP__DT_TURNS * sizeof *p->acts;
    p->acts = (cdp__dt_act *)cdp__dt_alloc(p->os, bytes);
    return p->acts ? CDP_OK : cdp__dt_nomem("a plan", bytes);
}

CDP__DT void cdp__dt_acts_free(cdp_plan *p) {
    for (uint32_t k = 0; k < p->act_count; ++k)
        cdp__dt_free(p->os, p->acts[k].counts);
    cdp__dt_free(p->os, p->acts);
    p->acts = NULL;
    p->act_count = 0;
}

/* Where the tensors of a stage are. */
typedef struct cdp__dt_ends {
    cdp__dt_memory from, to;
    uint64_t from_at, to_at;
} cdp__dt_ends;

CDP__DT cdp__dt_act *cdp__dt_act_add(cdp_plan *p, uint32_t by, const cdp__dt_ends *e) {
    cdp__dt_act *a = &p->acts[p->act_count++];
    a->phase = CDP__DT_NONE;
    a->by = by;
    a->from = e->from;
    a->from_at = e->from_at;
    a->to = e->to;
    a->to_at = e->to_at;
    return a;
}

/* The counts of the ranks' shares, if they differ. */
CDP__DT cdp_status cdp__dt_act_counts(cdp_plan *p, cdp__dt_act *a, const cdp__dt_call *c) {
    uint64_t start;
    if (c->count % c->nodes == 0) return CDP_OK;
    a->counts = (uint64_t *)cdp__dt_alloc(p->os, c->nodes * sizeof *a->counts);
    if (!a->counts) return cdp__dt_nomem("a plan", c->nodes * sizeof *a->counts);
    for (uint32_t k = 0; k < c->nodes; ++k)
        a->counts[k] = cdp__dt_share(c->count, c->nodes, k, &start);
    return CDP_OK;
}

/* What a call adds to the figures of this rank. */
CDP__DT void cdp__dt_act_tally(cdp_plan *p, const cdp__dt_call *c) {
    const uint32_t others = c->nodes - 1;
    const uint64_t got = cdp__dt_call_recv(c);
    uint64_t start, sent = got;
    const uint64_t own = cdp__dt_share(c->count, c->nodes, c->index, &start);
    if (c->kind == CDP_COLL_REDUCE_SCATTER) sent = c->count - own;
    if (c->kind == CDP_COLL_ALLGATHER) sent = cdp__dt_times_most(others, own);
    p->info.recv_bytes = cdp__dt_plus_most(p->info.recv_bytes, cdp__dt_times_most(got, p->elem));
    p->info.send_bytes = cdp__dt_plus_most(p->info.send_bytes, cdp__dt_times_most(sent, p->elem));
    ++p->info.calls;
    p->info.messages += c->kind == CDP_COLL_ALLREDUCE ? 2 * others : others;
}

/* One call of a sum. The first one that reduces reads the source; all others are in place. */
CDP__DT cdp_status cdp__dt_sum_act(cdp_plan *p, const cdp__dt_stage *s, const cdp__dt_call *c,
    const cdp__dt_ends *e, bool *first) {
    const uint32_t divisor = (uint32_t)s->divisor;
    uint64_t start;
    cdp__dt_act *a = cdp__dt_act_add(p, c->by, e);
    const uint64_t own = cdp__dt_share(c->count, c->nodes, c->index, &start);
    const bool reduces = c->kind == CDP_COLL_ALLREDUCE || c->kind == CDP_COLL_REDUCE_SCATTER;
    const bool scatters = c->kind == CDP_COLL_REDUCE_SCATTER;
    const bool gathers = c->kind == CDP_COLL_ALLGATHER;
    a->kind = c->kind;
    a->op = s->op;
    a->count = scatters || gathers ? own : c->count;
    if (!reduces || !*first) a->from = a->to;
    if (!reduces || !*first) a->from_at = a->to_at;
    a->from_at += (c->at + (gathers ? start : 0)) * p->elem;
    a->to_at += (c->at + (scatters ? start : 0)) * p->elem;
    if (c->kind == CDP_COLL_ALLREDUCE && divisor > 1) {
        if (divisor == c->nodes)
            a->op = CDP_REDUCE_AVG;
        else
            a->divisor = divisor;
    }
    if (reduces) *first = false;
    cdp__dt_act_tally(p, c);
    return scatters || gathers ? cdp__dt_act_counts(p, a, c) : CDP_OK;
}

/* A stage that is one collective. */
CDP__DT void cdp__dt_single_act(cdp_plan *p, const cdp__dt_stage *s, const cdp__dt_ends *e) {
    const cdp__dt_single *one = &s->single;
    cdp__dt_call c;
    uint64_t count;
    (void)cdp__dt_row_count(&s->pair, one, cdp__dt_single_first(one, p->node), &count);
    if (!count) return;
    cdp__dt_act *a = cdp__dt_act_add(p, one->by, e);
    a->kind = one->kind;
    a->op = s->op;
    a->count = count;
    c.kind = one->kind;
    c.by = one->by;
    c.nodes = one->nodes;
    c.index = cdp__dt_single_index(one, p->node);
    c.at = 0;
    c.count = one->kind == CDP_COLL_ALLREDUCE ? count : count * one->nodes;
    cdp__dt_act_tally(p, &c);
}

/* Adds what this rank does in stage number `k`. *between: where the tensor before it is. */
CDP__DT cdp_status cdp__dt_stage_act(cdp_plan *p, uint32_t k, uint64_t *between) {
    const cdp__dt_stage *s = &p->stages[k];
    const bool last = k + 1 == p->stage_count;
    cdp_status st = CDP_OK;
    cdp__dt_region box;
    bool first = true;
    cdp__dt_ends e = {k ? CDP__DT_SCRATCH : CDP__DT_IN, last ? CDP__DT_OUT : CDP__DT_SCRATCH,
        k ? *between : 0, 0};
    if (!s->single.kind && !s->sum.terms) {
        const uint32_t before = p->phase_count;
        st = cdp__dt_stage_build(p, k, between);
        for (uint32_t i = before; i < p->phase_count; ++i)
            cdp__dt_act_add(p, CDP__DT_NONE, &e)->phase = i;
        return st;
    }
    if (!last)
        e.to_at = *between = cdp__dt_reserve(p, cdp__dt_held(&s->host_to, p->node, &box) * p->elem);
    if (s->single.kind) {
        cdp__dt_single_act(p, s, &e);
        return CDP_OK;
    }
    const uint64_t n = cdp__dt_held(&s->pair.from, p->node, &box);
    const cdp__dt_calls calls = cdp__dt_sum_calls(&s->pair.from, &s->sum, p->node, n);
    for (uint32_t i = 0; st == CDP_OK && i < calls.count; ++i)
        st = cdp__dt_sum_act(p, s, &calls.call[i], &e, &first);
    return st;
}

#endif /* CDP_SRC_DTENSOR_ACTS_H */
