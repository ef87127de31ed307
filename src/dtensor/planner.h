/* dtensor/planner.h - which stages a plan has

   Knows: the cost of stages, and the moves of each, counted by kind. Promises: the fewest bytes, or
   the shortest predicted time. */
#ifndef CDP_SRC_DTENSOR_PLANNER_H
#define CDP_SRC_DTENSOR_PLANNER_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/error_api.h"
#include "../base/types_api.h"
#include "../os/os_api.h"
#include "../message/transport_api.h"
#include "../group/group_api.h"
#include "../group/messages_api.h"
#include "../base/helpers.h"
#include "mesh_api.h"
#include "layout_api.h"
#include "plan_api.h"
#include "cxx_api.h"
#include "kit.h"
#include "kernels.h"
#include "chunks.h"
#include "grid.h"
#include "cuts.h"
#include "moves.h"
#include "single.h"
#include "torch.h"
#include "spelling.h"
#include "stages.h"
#include "scratch.h"
#include "phases.h"
#include "acts.h"

CDP__DT cdp_net cdp__dt_net_of(const cdp_net *net) {
    cdp_net n;
    n.latency_us = cdp__dt_or(net->latency_us, 3);
    n.far_latency_us = cdp__dt_or(net->far_latency_us, 30);
    n.bytes_per_us = cdp__dt_or(net->bytes_per_us, 4000);
    n.far_bytes_per_us = cdp__dt_or(net->far_bytes_per_us, 1000);
    n.copy_bytes_per_us = cdp__dt_or(net->copy_bytes_per_us, 8000);
    n.reduce_bytes_per_us = cdp__dt_or(net->reduce_bytes_per_us, 4000);
    return n;
}

/* The largest amount of work of up to eight sampled nodes; equal on all ranks. */
CDP__DT cdp__dt_tally cdp__dt_tally_most(const cdp__dt_pair *p) {
    const uint32_t samples = p->nodes > 256 ? 2 : (uint32_t)cdp__min(p->nodes, 8);
    cdp__dt_tally most = cdp__dt_tally_of(p, 0);
    for (uint32_t k = 1; k < samples; ++k) {
        const uint32_t node = (uint32_t)((uint64_t)k * (p->nodes - 1) / (samples - 1));
        const cdp__dt_tally t = cdp__dt_tally_of(p, node);
        for (uint32_t i = 0; i < 8; ++i) {
            most.count[i] = (uint32_t)cdp__max(most.count[i], t.count[i]);
            most.elements[i] = cdp__max(most.elements[i], t.elements[i]);
        }
    }
    return most;
}

/* The latency and the bytes per us of what goes from host to host, or of what does not. */
typedef struct cdp__dt_pace {
    double latency, rate;
} cdp__dt_pace;

CDP__DT cdp__dt_pace cdp__dt_pace_of(const cdp_net *net, bool distant) {
    cdp__dt_pace pace = {net->latency_us, net->bytes_per_us};
    if (!distant) return pace;
    pace.latency = net->far_latency_us;
    pace.rate = net->far_bytes_per_us;
    return pace;
}

/* Predicts the time of a collective in which a rank receives `recv` elements, and reduces `terms`:
   in each half of an allreduce, messages one by one, of which each further one costs a quarter of
   the first, or fewer and larger ones in rounds. */
CDP__DT double cdp__dt_collective_us(cdp_coll_kind kind, uint32_t nodes, uint64_t recv,
    uint64_t terms, const cdp_net *net, cdp__dt_pace pace, uint64_t elem) {
    const double one_by_one = 1 + 0.25 * (2.0 * (nodes - 1) - 1);
    const double rounds = cdp__dt_single_rounds(nodes);
    const bool halves = kind == CDP_COLL_ALLREDUCE;
    double us = pace.latency * (halves ? 2 : 1) * (rounds < one_by_one ? rounds : one_by_one);
    us += (double)recv * (double)elem / pace.rate;
    return us + (double)terms * (double)elem / net->reduce_bytes_per_us;
}

CDP__DT double cdp__dt_single_us(
    const cdp__dt_stage *s, const cdp_net *net, cdp__dt_pace pace, uint64_t elem) {
    const uint32_t others = s->single.nodes - 1;
    const bool halves = s->single.kind == CDP_COLL_ALLREDUCE;
    const uint64_t part = halves ? (s->single.count + others) / s->single.nodes : s->single.count;
    return cdp__dt_collective_us(s->single.kind, s->single.nodes, s->cost.busiest,
        s->single.kind == CDP_COLL_ALLGATHER ? 0 : part * others, net, pace, elem);
}

/* True: messages go from host to host. A row of nodes is within one if its block of numbers is. */
CDP__DT bool cdp__dt_row_distant(const cdp__dt_pair *p, uint32_t nodes, uint32_t step) {
    return p->host_nodes % ((uint64_t)nodes * step) != 0;
}

CDP__DT bool cdp__dt_stage_distant(const cdp__dt_stage *s) {
    if (!s->single.kind) return s->pair.host_nodes != 0;
    return cdp__dt_row_distant(&s->pair, s->single.nodes, s->single.step);
}

/* Predicts the time of the calls of a sum of `most` elements. */
CDP__DT double cdp__dt_sum_us(
    const cdp__dt_pair *p, const cdp__dt_sum *s, uint64_t most, const cdp_net *net, uint64_t elem) {
    const cdp__dt_calls calls = cdp__dt_sum_calls(&p->from, s, 0, most);
    double us = 0;
    for (uint32_t k = 0; k < calls.count; ++k) {
        const cdp__dt_call *c = &calls.call[k];
        const uint32_t step = c->by == CDP__DT_NONE ? 1 : p->from.stride[c->by];
        const bool sums = c->kind == CDP_COLL_ALLREDUCE || c->kind == CDP_COLL_REDUCE_SCATTER;
        const uint64_t part = (c->count + c->nodes - 1) / c->nodes;
        us += cdp__dt_collective_us(c->kind, c->nodes, cdp__dt_call_recv(c),
            sums ? cdp__dt_times_most(part, c->nodes - 1ull) : 0, net,
            cdp__dt_pace_of(net, cdp__dt_row_distant(p, c->nodes, step)), elem);
    }
    return us;
}

/* Makes a stage the calls of a sum, if it is one. */
CDP__DT void cdp__dt_stage_sum(cdp__dt_stage *s) {
    uint32_t usable = 0;
    for (uint32_t by = 0; by < s->from.mesh->desc.ndim; ++by)
        if (cdp__dt_link_usable(s->from.mesh, by)) usable |= 1u << by;
    if (!s->zero) s->sum = cdp__dt_sum_find(&s->pair, usable);
    if (s->sum.terms) s->cost = cdp__dt_sum_cost(&s->pair.from, &s->sum, &s->sum_most);
}

/* Predicts the time of one stage. Each further message of a phase costs a quarter of the first. */
CDP__DT double cdp__dt_stage_us(const cdp__dt_stage *s, const cdp_net *net, uint64_t elem) {
    const cdp__dt_pace pace = cdp__dt_pace_of(net, cdp__dt_stage_distant(s));
    const double latency = pace.latency, rate = pace.rate;
    if (s->single.kind) return cdp__dt_single_us(s, net, pace, elem);
    if (s->sum.terms) return cdp__dt_sum_us(&s->pair, &s->sum, s->sum_most, net, elem);
    const cdp__dt_tally t = cdp__dt_tally_most(&s->pair);
    const uint64_t adds = t.elements[CDP__DT_TERM_RECV] * elem;
    const uint64_t moved = (s->cost.busiest + t.elements[CDP__DT_LOCAL]) * elem;
    const uint32_t a = t.count[CDP__DT_TERM_SEND] + t.count[CDP__DT_TERM_RECV];
    const uint32_t b = t.count[CDP__DT_SEND] + t.count[CDP__DT_RECV] + t.count[CDP__DT_OWN_SEND];
    double us = (double)s->cost.busiest * (double)elem / rate;
    if (a) us += latency * (1 + 0.25 * (a - 1));
    if (b) us += latency * (1 + 0.25 * (b - 1));
    us += (double)adds / net->reduce_bytes_per_us;
    return us + (double)moved / net->copy_bytes_per_us;
}

/* The layouts of a plan by dimensions: PyTorch's steps, with equal neighbours merged. */
CDP__DT uint32_t cdp__dt_merged(cdp_layout steps[CDP__DT_STEPS], uint32_t n) {
    uint32_t kept = n > 1 ? 2 : n;
    for (uint32_t k = 2; k < n; ++k) {
        const cdp_layout *a = &steps[kept - 2], *b = &steps[kept - 1], *c = &steps[k];
        const uint32_t x = cdp__dt_step_dim(a, b), y = cdp__dt_step_dim(b, c);
        bool same = x != CDP__DT_NONE && y != CDP__DT_NONE && x != y;
        if (same) {
            const cdp_place *p = &a->place[x], *q = &b->place[x];
            const cdp_place *r = &b->place[y], *s = &c->place[y];
            const bool exchange = p->kind == CDP_PLACE_SHARD && q->kind == CDP_PLACE_SHARD;
            same = p->kind == r->kind && q->kind == s->kind && !exchange;
        }
        if (same)
            steps[kept - 1] = *c;
        else
            steps[kept++] = *c;
    }
    return kept;
}

CDP__DT void cdp__dt_stages_drop(const cdp_os *os, cdp__dt_stage *stages, uint32_t count) {
    for (uint32_t k = 0; k < count; ++k)
        cdp__dt_free(os, stages[k].maps);
    cdp__dt_free(os, stages);
}

CDP__DT void cdp__dt_stages_free(cdp_plan *p) {
    cdp__dt_stages_drop(p->os, p->stages, p->stage_count);
    p->stages = NULL;
    p->stage_count = 0;
}

/* Makes stages through the layouts steps[0..n-1], and predicts their time. `calls`: those that are
   collectives run as such; else only a stage that is alone. */
CDP__DT cdp_status cdp__dt_stages(cdp_plan *p, const cdp_layout *steps, uint32_t n,
    uint32_t from_only, uint32_t to_only, bool calls, double *us) {
    const cdp_net net = cdp__dt_net_of(&p->desc.net);
    cdp_status st = CDP_OK;
    cdp__dt_stages_free(p);
    *us = 0;
    p->stages = (cdp__dt_stage *)cdp__dt_alloc(p->os, n * sizeof *p->stages);
    if (!p->stages) return cdp__dt_nomem("a plan", n * sizeof *p->stages);
    for (uint32_t k = 0; st == CDP_OK && k + 1 < n; ++k) {
        st = cdp__dt_stage_make(&p->stages[k], p->os, &steps[k], &steps[k + 1], from_only, to_only);
        ++p->stage_count;
        if (st == CDP_OK && (n == 2 || calls)) cdp__dt_stage_single(&p->stages[k]);
        if (st == CDP_OK && calls && !p->stages[k].single.kind) cdp__dt_stage_sum(&p->stages[k]);
        if (st == CDP_OK) *us += cdp__dt_stage_us(&p->stages[k], &net, p->elem);
    }
    return st;
}

/* True: mesh dimension `by` may scatter a sum as the target is cut there, and what follows is a
   layout. Pieces of a cut of its own are those of the whole tensor. */
CDP__DT bool cdp__dt_scatters(const cdp_layout *now, const cdp_layout *to, uint32_t by) {
    if (to->place[by].kind != CDP_PLACE_SHARD) return false;
    for (uint32_t d = 0; d < now->mesh->desc.ndim; ++d)
        if (now->place[d].kind == CDP_PLACE_SHARD && cdp__dt_dim(now, d) == cdp__dt_dim(to, by)
            && (now->place[d].cut || to->place[by].cut))
            return false;
    return true;
}

/* The layouts of a plan of collectives: sums that a reduce-scatter along one dimension makes, then
   the others, which end where they began; 1: there is no sum. What is left are moves. Of several
   dimensions of which one has means, only one sum is divided, and so all are one. */
CDP__DT cdp_status cdp__dt_sum_steps(const cdp_plan *p, const cdp_layout *from,
    const cdp_layout *to, cdp_layout steps[CDP__DT_STEPS], uint32_t *n) {
    uint32_t terms = 0, count = 0;
    bool means = false;
    cdp_layout next;
    steps[0] = *from;
    *n = 1;
    for (uint32_t by = 0; by < from->mesh->desc.ndim; ++by) {
        if (!cdp__dt_partial(from, by) || cdp__dt_partial(to, by)) continue;
        terms |= 1u << by;
        ++count;
        means = means || cdp__dt_op(&from->place[by]) == CDP_REDUCE_AVG;
    }
    for (uint32_t by = 0; by < from->mesh->desc.ndim && (count == 1 || !means); ++by) {
        cdp__dt_stage s;
        next = steps[*n - 1];
        if (!(terms >> by & 1) || !cdp__dt_scatters(&next, to, by)) continue;
        next.place[by] = to->place[by];
        const cdp_status st =
            cdp__dt_stage_make(&s, p->os, &steps[*n - 1], &next, CDP__DT_NONE, CDP__DT_NONE);
        if (st != CDP_OK) return st;
        cdp__dt_stage_single(&s);
        if (!s.single.kind) continue;
        terms &= ~(1u << by);
        steps[(*n)++] = next;
    }
    if (!terms) return CDP_OK;
    next = steps[*n - 1];
    for (uint32_t by = 0; by < from->mesh->desc.ndim; ++by)
        if (terms >> by & 1) cdp__dt_replicate(&next, by);
    steps[(*n)++] = next;
    return CDP_OK;
}

/* Adds the layouts from the last of steps[0..n-1] to the target: at once, or by dimension. Returns
   their number; 0: there is no other way, or there are too many. */
CDP__DT uint32_t cdp__dt_rest_steps(
    cdp_layout steps[CDP__DT_STEPS], uint32_t n, const cdp_layout *to, bool by_dim) {
    cdp_layout rest[CDP__DT_STEPS];
    uint32_t more = 2;
    if (cdp_layout_same(&steps[n - 1], to)) return by_dim ? 0 : n;
    rest[1] = *to;
    if (by_dim) more = cdp__dt_merged(rest, cdp__dt_torch_steps(&steps[n - 1], to, rest));
    if ((by_dim && more < 3) || n + more - 1 > CDP__DT_STEPS) return 0;
    for (uint32_t k = 1; k < more; ++k)
        steps[n++] = rest[k];
    return n;
}

/* True: the first `sums` stages are collectives, as they should be. */
CDP__DT bool cdp__dt_calls_possible(const cdp_plan *p, uint32_t sums) {
    for (uint32_t k = 0; k < sums; ++k)
        if (!p->stages[k].single.kind && !p->stages[k].sum.terms) return false;
    return true;
}

/* Collectives cost more than their messages. They must be so many times as fast to be chosen. */
#define CDP__DT_CALLS_PAY 1.25

/* Tries to make a sum of collectives, and keeps what is predicted to be faster than *us. */
CDP__DT cdp_status cdp__dt_sums_choose(
    cdp_plan *p, const cdp_layout *from, const cdp_layout *to, double *us) {
    cdp_layout steps[CDP__DT_STEPS];
    uint32_t sums;
    double other;
    cdp_status st = cdp__dt_sum_steps(p, from, to, steps, &sums);
    for (uint32_t by_dim = 0; st == CDP_OK && sums > 1 && by_dim < 2; ++by_dim) {
        const uint32_t n = cdp__dt_rest_steps(steps, sums, to, by_dim != 0);
        cdp__dt_stage *stages = p->stages;
        const uint32_t count = p->stage_count;
        if (!n) continue;
        p->stages = NULL;
        p->stage_count = 0;
        st = cdp__dt_stages(p, steps, n, CDP__DT_NONE, CDP__DT_NONE, true, &other);
        const bool all = st == CDP_OK && cdp__dt_calls_possible(p, sums - 1);
        const bool first = p->desc.kind == CDP_PLAN_COLLECTIVES && !p->calls;
        const bool pays = p->calls ? other < *us : other * CDP__DT_CALLS_PAY < *us;
        if (all && (first || pays)) {
            cdp__dt_stages_drop(p->os, stages, count);
            p->calls = true;
            *us = other;
            continue;
        }
        cdp__dt_stages_free(p);
        p->stages = stages;
        p->stage_count = count;
    }
    return st;
}

/* Chooses the stages, and fills in their cost for all ranks. */
CDP__DT cdp_status cdp__dt_plan_choose(cdp_plan *p, uint32_t from_only, uint32_t to_only) {
    const cdp_layout from = cdp__dt_plain(&p->desc.from), to = cdp__dt_plain(&p->desc.to);
    const bool steps_exist = cdp__dt_mesh_same(from.mesh, to.mesh)
        && cdp__dt_cuts_shared(&from, &to) && from_only == CDP__DT_NONE && to_only == CDP__DT_NONE;
    const bool by_dim = p->desc.kind == CDP_PLAN_BY_DIM || p->desc.kind == CDP_PLAN_TORCH;
    cdp_layout steps[CDP__DT_STEPS], pair[2];
    uint32_t n = 0;
    double us, other;
    pair[0] = from;
    pair[1] = to;
    if (by_dim && !steps_exist)
        return cdp_error_set(CDP_ERR_UNSUPPORTED, -1, 0,
            "plan: steps by dimension exist on one mesh only, of which all cuts must be; use "
            "CDP_PLAN_DIRECT");
    cdp_status st = cdp__dt_stages(p, pair, 2, from_only, to_only, false, &us);
    if (st != CDP_OK) return st;
    p->info.bound_bytes = cdp__dt_times_most(p->stages[0].cost.total, p->elem);
    p->info.torch_bytes = p->info.bound_bytes;
    if (steps_exist) {
        n = cdp__dt_torch_steps(&from, &to, steps);
        p->info.torch_bytes = 0;
        for (uint32_t k = 0; k + 1 < n; ++k)
            p->info.torch_bytes = cdp__dt_plus_most(
                p->info.torch_bytes, cdp__dt_torch_bytes(&steps[k], &steps[k + 1]));
        if (n > 1 && p->desc.kind != CDP_PLAN_TORCH) n = cdp__dt_merged(steps, n);
    }
    const bool one = p->desc.kind == CDP_PLAN_DIRECT || p->desc.kind == CDP_PLAN_COLLECTIVES;
    const bool tries = n > 2 && !one;
    if (tries) {
        st = cdp__dt_stages(p, steps, n, from_only, to_only, false, &other);
        if (st != CDP_OK) return st;
        if (by_dim || other < us)
            us = other;
        else
            st = cdp__dt_stages(p, pair, 2, from_only, to_only, false, &us);
    }
    const bool single = p->stage_count == 1 && p->stages[0].single.kind;
    const bool sums = p->desc.kind == CDP_PLAN_BEST || p->desc.kind == CDP_PLAN_COLLECTIVES;
    if (st == CDP_OK && steps_exist && sums && !single)
        st = cdp__dt_sums_choose(p, &from, &to, &us);
    if (st != CDP_OK) return st;
    p->info.predicted_us = us;
    for (uint32_t k = 0; k < p->stage_count; ++k) {
        p->info.total_bytes = cdp__dt_plus_most(
            p->info.total_bytes, cdp__dt_times_most(p->stages[k].cost.total, p->elem));
        p->info.most_recv_bytes += p->stages[k].cost.busiest * p->elem;
    }
    return st;
}

/* The collective that changes one placement into another; NONE: no message is needed. */
CDP__DT cdp_coll_kind cdp__dt_place_kind(const cdp_layout *a, const cdp_layout *b, uint32_t by) {
    const cdp_place_kind from = a->place[by].kind, to = b->place[by].kind;
    if (from == CDP_PLACE_PARTIAL && to == CDP_PLACE_SHARD) return CDP_COLL_REDUCE_SCATTER;
    if (from == CDP_PLACE_PARTIAL && to == CDP_PLACE_REPLICATE) return CDP_COLL_ALLREDUCE;
    if (from != CDP_PLACE_SHARD || to == CDP_PLACE_PARTIAL) return CDP_COLL_NONE;
    if (to == CDP_PLACE_REPLICATE) return CDP_COLL_ALLGATHER;
    return cdp__dt_place_same(a, b, by) ? CDP_COLL_NONE : CDP_COLL_ALLTOALL;
}

/* The kind of a plan that is one collective over some dimensions of the mesh; otherwise SEND. */
CDP__DT cdp_coll_kind cdp__dt_plan_kind(const cdp_plan *p) {
    const cdp_layout a = cdp__dt_plain(&p->desc.from), b = cdp__dt_plain(&p->desc.to);
    cdp_coll_kind kind = CDP_COLL_NONE;
    bool reduces = false, cuts = false;
    if (!p->info.steps) return CDP_COLL_NONE;
    if (!cdp__dt_mesh_same(a.mesh, b.mesh)) return CDP_COLL_SEND;
    for (uint32_t by = 0; by < a.mesh->desc.ndim; ++by) {
        const cdp_coll_kind one = cdp__dt_place_kind(&a, &b, by);
        reduces = reduces || a.place[by].kind == CDP_PLACE_PARTIAL;
        cuts = cuts || b.place[by].kind == CDP_PLACE_SHARD;
        if (one == CDP_COLL_NONE || kind == CDP_COLL_SEND) continue;
        kind = kind == CDP_COLL_NONE || kind == one ? one : CDP_COLL_SEND;
    }
    if (p->desc.from_one) return cuts ? CDP_COLL_SCATTER : CDP_COLL_BROADCAST;
    if (p->desc.to_one) return reduces ? CDP_COLL_REDUCE : CDP_COLL_GATHER;
    return kind == CDP_COLL_NONE ? CDP_COLL_SEND : kind;
}

/* The calls of a sum, of which an allreduce reduces and spreads. */
CDP__DT uint32_t cdp__dt_sum_rounds(const cdp__dt_stage *s) {
    const cdp__dt_calls calls = cdp__dt_sum_calls(&s->pair.from, &s->sum, 0, s->sum_most);
    uint32_t rounds = calls.count;
    for (uint32_t k = 0; k < calls.count; ++k)
        rounds += calls.call[k].kind == CDP_COLL_ALLREDUCE;
    return rounds;
}

/* Counts the phases in which ranks communicate: a stage without bytes has none. */
CDP__DT void cdp__dt_plan_steps(cdp_plan *p) {
    for (uint32_t k = 0; k < p->stage_count; ++k) {
        const cdp__dt_stage *s = &p->stages[k];
        const cdp__dt_region all = cdp__dt_whole(&s->pair.from);
        const uint64_t terms = (s->pair.from.terms - 1) * cdp__dt_volume(&all, s->pair.from.ndim);
        if (s->sum.terms) {
            p->info.steps += cdp__dt_sum_rounds(s);
            continue;
        }
        if (terms) ++p->info.steps;
        if (s->cost.total > terms) ++p->info.steps;
    }
}

/* The figures of this rank in a plan that has no phases, because a collective reduces. */
CDP__DT void cdp__dt_single_tally(cdp_plan *p) {
    const cdp__dt_single *s = &p->single;
    p->info.messages = (s->kind == CDP_COLL_ALLREDUCE ? 2 : 1) * (s->nodes - 1);
    p->info.recv_bytes = cdp__dt_times_most(cdp__dt_single_recv(s, p->node, s->count), p->elem);
    p->info.send_bytes = p->info.recv_bytes;
}

CDP__DT void cdp__dt_plan_tally(cdp_plan *p) {
    if (!p->phase_count && !p->acts) cdp__dt_single_tally(p);
    for (uint32_t k = 0; k < p->phase_count; ++k) {
        const cdp__dt_phase *ph = &p->phases[k];
        p->info.messages += ph->sends;
        for (uint32_t i = 0; i < ph->sends; ++i)
            p->info.send_bytes += ph->send[i].elements * p->elem;
        for (uint32_t i = 0; i < ph->recvs; ++i)
            p->info.recv_bytes += ph->recv[i].elements * p->elem;
    }
    p->info.scratch_bytes = p->scratch_used;
    if (!p->acts && p->phase_count == 1 && p->phases[0].sends + p->phases[0].recvs == 0) {
        const cdp__dt_phase *ph = &p->phases[0];
        const bool one = ph->locals == 1 && !ph->zero && p->in_bytes == p->out_bytes;
        p->identity = p->in_bytes == 0
            || (one && ph->here[0].copy.dims == 0 && ph->here[0].copy.run == p->in_bytes);
    }
}

/* True: the plan is a collective that reduces, and has no phases. Those of an allgather are for
   cdp_edge_forward_pieces(). */
CDP__DT bool cdp__dt_single_sums(const cdp_plan *p) {
    return p->single.kind != CDP_COLL_NONE && p->single.kind != CDP_COLL_ALLGATHER;
}

/* Builds this rank's part: phases, the list of messages, scratch memory. */
CDP__DT cdp_status cdp__dt_plan_build(cdp_plan *p) {
    uint64_t between = 0;
    uint32_t most = 0;
    cdp_status st = CDP_OK;
    cdp__dt_region box;
    uint64_t phases = p->stage_count;
    for (uint32_t k = 0; k < p->stage_count; ++k)
        phases += cdp__dt_windows(p, &p->stages[k]);
    p->phases = (cdp__dt_phase *)cdp__dt_alloc(p->os, phases * sizeof *p->phases);
    if (!p->phases) return cdp__dt_nomem("a plan", phases * sizeof *p->phases);
    if (p->calls) st = cdp__dt_acts_build(p);
    for (uint32_t k = 0; st == CDP_OK && k < p->stage_count; ++k) {
        if (p->calls)
            st = cdp__dt_stage_act(p, k, &between);
        else if (!cdp__dt_single_sums(p))
            st = cdp__dt_stage_build(p, k, &between);
    }
    for (uint32_t k = 0; k < p->phase_count; ++k)
        most = (uint32_t)cdp__max(most, p->phases[k].sends + p->phases[k].recvs);
    if (st != CDP_OK) return st;
    const cdp__dt_stage *last = &p->stages[p->stage_count - 1];
    p->in_bytes = cdp__dt_held(&p->stages[0].pair.from, p->node, &box) * p->elem;
    p->out_bytes = cdp__dt_held(&last->host_to, p->node, &box) * p->elem;
    cdp__dt_plan_tally(p);
    if (!p->group) return CDP_OK;
    p->list = (cdp_transfer *)cdp__dt_alloc(p->os, most * sizeof *p->list);
    if (!p->list) return cdp__dt_nomem("a plan", most * sizeof *p->list);
    st = cdp__dt_scratch_reserve(p);
    return st == CDP_OK ? cdp_group_reserve(p->group, most) : st;
}

/* Numbers the nodes: positions in the mesh or, if the meshes differ, ranks of the group. */
CDP__DT cdp_status cdp__dt_plan_nodes(cdp_plan *p, uint32_t *only) {
    cdp_mesh *m = (cdp_mesh *)(uintptr_t)p->desc.from.mesh;
    const bool same = cdp__dt_mesh_same(m, p->desc.to.mesh);
    p->mesh = m;
    p->os = m->root->os;
    *only = CDP__DT_NONE;
    if (same) {
        p->nodes = m->count;
        p->node = m->me;
        p->link = m->all;
        for (uint32_t i = 0; i < m->count; ++i)
            if (m->ranks[i] == p->desc.root) *only = i;
    } else {
        p->nodes = m->root->size;
        p->node = m->root->rank;
        p->link = m->root->base;
    }
    p->group = p->link ? p->link->group : NULL;
    const bool one = p->desc.to_one || p->desc.from_one;
    if (!same && (one || m->root->group != p->desc.to.mesh->root->group))
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "plan: the two meshes differ; they must be of one group, and to_one or from_one unset");
    if (one && *only == CDP__DT_NONE)
        return cdp_error_set(
            CDP_ERR_INVALID, -1, 0, "plan: root %u is not a rank of the mesh", p->desc.root);
    return CDP_OK;
}

CDP__DT cdp_status cdp__dt_plan_check(const cdp_plan_desc *d) {
    cdp_status st = cdp_layout_check(&d->from);
    if (st == CDP_OK) st = cdp_layout_check(&d->to);
    if (st != CDP_OK) return st;
    if (!cdp__dt_shape_same(&d->from, &d->to))
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "plan: from and to must have the same shape and dtype; the program casts and reshapes");
    if (d->from.mesh->root->group != d->to.mesh->root->group
        || d->from.mesh->root->size != d->to.mesh->root->size)
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "plan: the meshes are of two groups, of %u and of %u ranks; both must be of one group",
            d->from.mesh->root->size, d->to.mesh->root->size);
    for (uint32_t by = 0; by < CDP_MESH_DIMS; ++by) {
        const bool from = by < d->from.mesh->desc.ndim && d->from.place[by].kind != 0;
        const bool to = by < d->to.mesh->desc.ndim && d->to.place[by].kind != 0;
        if ((d->from_one && from) || (d->to_one && to))
            return cdp_error_set(CDP_ERR_INVALID, -1, 0,
                "plan: a tensor that one rank holds must be replicated in every mesh dimension");
    }
    if ((uint32_t)d->kind > CDP_PLAN_COLLECTIVES || (d->from_one && d->to_one))
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "plan: kind %u is none of cdp_plan_kind, or both from_one and to_one are set",
            (unsigned)d->kind);
    return CDP_OK;
}

/* The plan is one stage: what this rank does in its collective, if it is one. */
CDP__DT void cdp__dt_plan_single(cdp_plan *p) {
    const cdp__dt_stage *s = &p->stages[0];
    p->single = s->single;
    if (p->single.kind == CDP_COLL_NONE || p->node == CDP__DT_NONE) return;
    (void)cdp__dt_row_count(
        &s->pair, &p->single, cdp__dt_single_first(&p->single, p->node), &p->single.count);
    if (p->single.by != CDP__DT_NONE) p->row = p->mesh->link[p->single.by];
}

CDP__DT cdp_status cdp__dt_plan_fill(cdp_plan *p) {
    uint32_t only;
    cdp_status st = cdp__dt_plan_nodes(p, &only);
    p->dtype = cdp__dt_dtype(&p->desc.from);
    p->elem = cdp_dtype_size(p->dtype);
    if (st == CDP_OK)
        st = cdp__dt_plan_choose(
            p, p->desc.from_one ? only : CDP__DT_NONE, p->desc.to_one ? only : CDP__DT_NONE);
    if (st != CDP_OK) return st;
    if (p->stage_count == 1 && !p->calls) cdp__dt_plan_single(p);
    p->info.collective = p->single.kind;
    cdp__dt_plan_steps(p);
    p->kind = cdp__dt_plan_kind(p);
    return p->node == CDP__DT_NONE ? CDP_OK : cdp__dt_plan_build(p);
}

/* Adds this rank to the text of the error `st`; a mesh on paper has none. */
CDP__DT cdp_status cdp__dt_plan_refused(const cdp_plan_desc *d, cdp_status st) {
    const cdp_mesh *m = d->from.mesh;
    const cdp_error why = *cdp_last_error();
    if (st == CDP_OK || !cdp__dt_has_mesh(&d->from)) return st;
    if (!m->root->group || strncmp(why.text, "rank ", 5) == 0) return st;
    return cdp_error_set(
        st, why.peer, why.sys_errno, "rank %u/%u: %s", m->root->rank, m->root->size, why.text);
}

/* The plan is not made, compared or drawn any more: it needs no cuts. */
CDP__DT void cdp__dt_plan_release(cdp_plan *p) {
    if (!p->holds) return;
    p->holds = false;
    cdp__dt_cuts_release(&p->desc.from);
    cdp__dt_cuts_release(&p->desc.to);
}

CDP_API cdp_status cdp_plan_create(const cdp_plan_desc *desc, cdp_plan **out) {
    if (!out) return cdp__dt_missing("cdp_plan_create", "out");
    *out = NULL;
    if (!desc) return cdp__dt_missing("cdp_plan_create", "desc");
    cdp_status st = cdp__dt_plan_check(desc);
    if (st != CDP_OK) return cdp__dt_plan_refused(desc, st);
    const cdp_os *os = desc->from.mesh->root->os;
    cdp_plan *p = (cdp_plan *)cdp__dt_alloc(os, sizeof *p);
    cdp__ended_remove(p);
    if (!p) return cdp__dt_nomem("a plan", sizeof *p);
    p->desc = *desc;
    p->os = os;
    p->holds = true;
    cdp__dt_cuts_hold(&desc->from);
    cdp__dt_cuts_hold(&desc->to);
    st = cdp__dt_plan_fill(p);
    if (st != CDP_OK) {
        cdp_plan_destroy(p);
        return cdp__dt_plan_refused(desc, st);
    }
    *out = p;
    return CDP_OK;
}

CDP_API cdp_plan_info cdp_plan_info_of(const cdp_plan *p) {
    cdp_plan_info none;
    memset(&none, 0, sizeof none);
    return p && !cdp__ended(p) ? p->info : none;
}

#endif /* CDP_SRC_DTENSOR_PLANNER_H */
