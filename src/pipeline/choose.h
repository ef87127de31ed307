/* pipeline/choose.h - which schedule, and which layers are a stage

   Knows: built-in schedules, costs of layers. Promises: the longest stage of a first cut is as
   short as any cut can make it; a move of a border is kept only where it is better. */
#ifndef CDP_SRC_PIPELINE_CHOOSE_H
#define CDP_SRC_PIPELINE_CHOOSE_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/error_api.h"
#include "../os/os_api.h"
#include "../os/whole.h"
#include "../message/transport_api.h"
#include "../base/compiler.h"
#include "../base/helpers.h"
#include "schedule_api.h"
#include "table.h"
#include "kinds.h"
#include "pace.h"
#include "schedule.h"

#define CDP__PIPE_LAYERS 1024u
#define CDP__PIPE_TRIED 20000000u /* rows on paper for each schedule, while borders move */

typedef struct cdp__pipe_chooser {
    const cdp_pipe_choice_desc *desc;
    const cdp_os *os;
    void *memory;
    double *sum, *best;          /* of layers before each one; see cdp__pipe_cut() */
    uint32_t *from, *cut, *kept; /* kept: the best cut of all schedules */
    cdp_pipe_cost *cost;         /* of each stage */
    cdp_pipe_choice found;       /* stages 0: nothing yet */
} cdp__pipe_chooser;

/* ---- dynamic programming ---- */

/* Cuts n layers into `stages` pieces, so that the longest one is as short as possible: cut[0 ..
   stages]. sum[i]: the time of i layers. best, from: (stages + 1) x (n + 1), of the first j layers
   in k pieces: the longest one, and where the last one begins. */
CDP__PRIVATE void cdp__pipe_cut(
    const double *sum, uint32_t n, uint32_t stages, double *best, uint32_t *from, uint32_t *cut) {
    const uint64_t wide = n + 1ull;
    for (uint32_t j = 0; j <= n; ++j) {
        best[wide + j] = sum[j];
        from[wide + j] = 0;
    }
    for (uint32_t k = 2; k <= stages; ++k) {
        for (uint32_t j = k; j <= n; ++j) {
            double least = -1;
            for (uint32_t i = k - 1; i < j; ++i) {
                double longest = sum[j] - sum[i];
                if (best[(k - 1) * wide + i] > longest) longest = best[(k - 1) * wide + i];
                if (least >= 0 && longest >= least) continue;
                least = longest;
                from[k * wide + j] = i;
            }
            best[k * wide + j] = least;
        }
    }
    cut[stages] = n;
    for (uint32_t k = stages; k > 0; --k)
        cut[k - 1] = from[k * wide + cut[k]];
}

/* ---- what a cut is worth ---- */

typedef struct cdp__pipe_worth {
    double step_us;
    uint64_t bytes;
} cdp__pipe_worth;

CDP__PRIVATE void cdp__pipe_stage_costs(cdp__pipe_chooser *k, uint32_t stages) {
    for (uint32_t s = 0; s < stages; ++s) {
        cdp_pipe_cost *c = &k->cost[s];
        memset(c, 0, sizeof *c);
        for (uint32_t i = k->cut[s]; i < k->cut[s + 1]; ++i) {
            c->f_us += k->desc->layers[i].f_us;
            c->i_us += k->desc->layers[i].i_us;
            c->w_us += k->desc->layers[i].w_us;
            c->message_us = k->desc->layers[i].message_us;
        }
    }
}

CDP__PRIVATE uint64_t cdp__pipe_stage_bytes(
    const cdp__pipe_chooser *k, uint32_t stage, bool weights) {
    uint64_t bytes = 0;
    for (uint32_t i = k->cut[stage]; i < k->cut[stage + 1]; ++i)
        bytes += weights ? k->desc->layers[i].weight_bytes : k->desc->layers[i].kept_bytes;
    return bytes;
}

/* Weights, and what a rank keeps at its peak. */
CDP__PRIVATE uint64_t cdp__pipe_rank_bytes(
    const cdp__pipe_chooser *k, const cdp__pipe_table *t, uint32_t rank) {
    uint64_t now = 0, top = 0, weights = 0;
    for (uint32_t s = 0; s < t->stages; ++s)
        if (t->place[s] == rank) weights += cdp__pipe_stage_bytes(k, s, true);
    for (uint64_t i = t->first[rank]; i < t->first[rank + 1]; ++i) {
        const cdp_act *a = &t->acts[i];
        if (a->kind != CDP_ACT_F && !cdp__pipe_is_last(a)) continue;
        const uint64_t bytes = cdp__pipe_stage_bytes(k, a->stage, false);
        now = a->kind == CDP_ACT_F ? now + bytes : now - bytes;
        top = cdp__max(top, now);
    }
    return weights + top;
}

CDP__PRIVATE cdp__pipe_worth cdp__pipe_worth_of(
    cdp__pipe_chooser *k, const cdp_schedule *s, const cdp__pipe_walk *w) {
    const cdp__pipe_table *t = &s->table;
    cdp__pipe_worth worth;
    cdp__pipe_pace pace = cdp__pipe_pace_of(s, w);
    cdp__pipe_stage_costs(k, t->stages);
    pace.cost = k->cost;
    (void)cdp__pipe_run_rows(&pace);
    worth.step_us = 0;
    worth.bytes = 0;
    for (uint32_t r = 0; r < t->ranks; ++r) {
        const uint64_t bytes = cdp__pipe_rank_bytes(k, t, r);
        worth.bytes = cdp__max(worth.bytes, bytes);
        if (pace.free[r] > worth.step_us) worth.step_us = pace.free[r];
    }
    return worth;
}

/* First what fits into memory, then what is faster, then what needs less memory. */
CDP__PRIVATE bool cdp__pipe_is_better(
    const cdp_pipe_choice_desc *d, cdp__pipe_worth a, cdp__pipe_worth b) {
    const uint64_t limit = d->memory_bytes ? d->memory_bytes : UINT64_MAX;
    const uint64_t over_a = a.bytes > limit ? a.bytes : 0, over_b = b.bytes > limit ? b.bytes : 0;
    const double least = 1e-9 * b.step_us; /* sums in another order differ by less */
    if (over_a != over_b) return over_a < over_b;
    if (a.step_us < b.step_us - least) return true;
    return a.step_us <= b.step_us + least && a.bytes < b.bytes;
}

/* Moves border `a` by `by_a` layers, and `b` by `by_b`; those between them, too, if both go the
   same way. False: a stage would have no layer; then nothing was moved. */
CDP__PRIVATE bool cdp__pipe_shift(
    cdp__pipe_chooser *k, uint32_t a, uint32_t b, int32_t by_a, int32_t by_b) {
    for (uint32_t i = a; i <= b; ++i) {
        const int32_t by = i == a ? by_a : by_b;
        if (i == a || i == b || by_a == by_b) k->cut[i] = (uint32_t)((int32_t)k->cut[i] + by);
    }
    if (k->cut[a - 1] < k->cut[a] && k->cut[b] < k->cut[b + 1]
        && (a == b || (k->cut[a] < k->cut[a + 1] && k->cut[b - 1] < k->cut[b])))
        return true;
    for (uint32_t i = a; i <= b; ++i) {
        const int32_t by = i == a ? by_a : by_b;
        if (i == a || i == b || by_a == by_b) k->cut[i] = (uint32_t)((int32_t)k->cut[i] - by);
    }
    return false;
}

/* Moves one border or two, or a run of them, by one layer, as long as that is better. */
CDP__PRIVATE void cdp__pipe_move_borders(
    cdp__pipe_chooser *k, const cdp_schedule *s, const cdp__pipe_walk *w, cdp__pipe_worth *worth) {
    const uint32_t stages = s->table.stages;
    uint64_t tries = CDP__PIPE_TRIED / s->table.first[s->table.ranks] + 1;
    for (bool moved = true; moved;) {
        moved = false;
        for (uint32_t a = 1; a < stages; ++a) {
            for (uint32_t n = 0; n < 4 * (stages - a) && tries > 0; ++n) {
                const uint32_t b = a + n / 4;
                const int32_t by_a = n & 1 ? 1 : -1, by_b = n & 2 ? -by_a : by_a;
                if ((a == b && by_a != by_b) || !cdp__pipe_shift(k, a, b, by_a, by_b)) continue;
                const cdp__pipe_worth now = cdp__pipe_worth_of(k, s, w);
                --tries;
                if (cdp__pipe_is_better(k->desc, now, *worth)) {
                    *worth = now;
                    moved = true;
                } else {
                    (void)cdp__pipe_shift(k, a, b, -by_a, -by_b);
                }
            }
        }
    }
}

/* ---- all schedules ---- */

/* Tries one schedule; one whose sizes do not fit is passed over. */
CDP__PRIVATE cdp_status cdp__pipe_try(cdp__pipe_chooser *k, const cdp_schedule_desc *d) {
    const cdp_pipe_choice_desc *desc = k->desc;
    cdp_schedule *s;
    cdp__pipe_walk w;
    cdp__pipe_worth worth, best;
    cdp_status st = cdp_schedule_create(d, &s);
    if (st == CDP_ERR_UNSUPPORTED) return CDP_OK;
    if (st != CDP_OK) return st;
    const uint32_t stages = s->table.stages;
    st = cdp__pipe_walk_open(s, "cdp_schedule_choose", &w);
    if (st == CDP_OK) {
        cdp__pipe_cut(k->sum, desc->layer_count, stages, k->best, k->from, k->cut);
        worth = cdp__pipe_worth_of(k, s, &w);
        cdp__pipe_move_borders(k, s, &w, &worth);
        best.step_us = k->found.step_us;
        best.bytes = k->found.memory_bytes;
        if (!k->found.stages || cdp__pipe_is_better(desc, worth, best)) {
            k->found.schedule = *d;
            k->found.stages = stages;
            k->found.step_us = worth.step_us;
            k->found.memory_bytes = worth.bytes;
            memcpy(k->kept, k->cut, (size_t)((stages + 1ull) * sizeof *k->kept));
        }
        cdp__pipe_free(s->os, w.memory);
    }
    cdp_schedule_destroy(s);
    return st;
}

CDP__PRIVATE cdp_status cdp__pipe_try_all(cdp__pipe_chooser *k, uint32_t most) {
    const cdp_pipe_choice_desc *d = k->desc;
    cdp_schedule_desc s;
    cdp_status st = CDP_OK;
    memset(&s, 0, sizeof s);
    s.ranks = d->ranks;
    s.micros = d->micros;
    s.os = k->os;
    for (uint32_t kind = CDP_PIPE_1F1B; kind < CDP_PIPE_EVAL; ++kind) {
        s.kind = (cdp_pipe_kind)kind;
        if (d->whole && cdp__pipe_row_kinds(s.kind) > 2) continue;
        for (uint32_t v = 1; v <= most && st == CDP_OK; ++v) {
            const uint32_t ahead = kind == CDP_PIPE_1F1B ? d->ranks - 1 : 0;
            s.stages_per_rank = v;
            if ((uint64_t)d->ranks * v > d->layer_count) break;
            for (s.ahead = 0; s.ahead <= ahead && st == CDP_OK; ++s.ahead)
                st = cdp__pipe_try(k, &s);
        }
    }
    return st;
}

CDP__PRIVATE cdp_status cdp__pipe_chooser_open(cdp__pipe_chooser *k, uint32_t stages) {
    const uint64_t n = k->desc->layer_count + 1ull, all = (stages + 1ull) * n;
    const uint64_t bytes = (n + all) * sizeof(double) + stages * sizeof *k->cost
        + (all + 2 * (stages + 1ull)) * sizeof *k->cut;
    k->memory = cdp__pipe_alloc(k->os, bytes);
    if (!k->memory) return cdp__pipe_nomem("cdp_schedule_choose", bytes);
    k->sum = (double *)k->memory;
    k->best = k->sum + n;
    k->cost = (cdp_pipe_cost *)(void *)(k->best + all);
    k->from = (uint32_t *)(void *)(k->cost + stages);
    k->cut = k->from + all;
    k->kept = k->cut + stages + 1;
    for (uint32_t i = 0; i + 1 < n; ++i) {
        const cdp_pipe_layer *l = &k->desc->layers[i];
        k->sum[i + 1] = k->sum[i] + l->f_us + l->i_us + l->w_us;
    }
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__pipe_check_choice(const cdp_pipe_choice_desc *d) {
    if (!d->layers) return cdp__pipe_missing("cdp_schedule_choose", "desc.layers");
    if (!d->ranks || !d->micros)
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_schedule_choose: desc.ranks and desc.micros must be at least 1");
    if (d->layer_count < d->ranks || d->layer_count > CDP__PIPE_LAYERS)
        return cdp_error_set(CDP_ERR_UNSUPPORTED, -1, 0,
            "cdp_schedule_choose: %u layers for %u ranks; at least one for each rank, at most %u",
            d->layer_count, d->ranks, CDP__PIPE_LAYERS);
    for (uint32_t i = 0; i < d->layer_count; ++i)
        if (!cdp__pipe_is_time(d->layers[i].f_us) || !cdp__pipe_is_time(d->layers[i].i_us)
            || !cdp__pipe_is_time(d->layers[i].w_us) || !cdp__pipe_is_time(d->layers[i].message_us))
            return cdp_error_set(CDP_ERR_INVALID, -1, 0,
                "cdp_schedule_choose: layers[%u] has a time that is negative or no number", i);
    return CDP_OK;
}

CDP_API cdp_status cdp_schedule_choose(
    const cdp_pipe_choice_desc *desc, uint32_t *cuts, cdp_pipe_cost *costs, cdp_pipe_choice *out) {
    cdp__pipe_chooser k;
    memset(&k, 0, sizeof k);
    if (out) memset(out, 0, sizeof *out);
    if (!desc || !cuts || !out)
        return cdp__pipe_missing("cdp_schedule_choose", "desc, cuts or out");
    if (cdp__os_whole(desc->os, "cdp_schedule_choose") != CDP_OK) return CDP_ERR_INVALID;
    cdp_status st = cdp__pipe_check_choice(desc);
    if (st != CDP_OK) return st;
    const uint32_t most = (uint32_t)cdp__min(
        cdp__def(desc->most_stages_per_rank, 4u), desc->layer_count / desc->ranks);
    k.desc = desc;
    k.os = desc->os ? desc->os : cdp_os_default();
    if (!k.os) return cdp__pipe_missing("cdp_schedule_choose", "desc.os");
    st = cdp__pipe_chooser_open(&k, desc->ranks * most);
    if (st == CDP_OK) st = cdp__pipe_try_all(&k, most);
    if (st == CDP_OK && desc->memory_bytes && k.found.memory_bytes > desc->memory_bytes)
        st = cdp_error_set(CDP_ERR_UNSUPPORTED, -1, 0,
            "cdp_schedule_choose: no schedule fits into %llu bytes for each rank; one needs %llu",
            (unsigned long long)desc->memory_bytes, (unsigned long long)k.found.memory_bytes);
    if (st == CDP_OK) {
        *out = k.found;
        memcpy(cuts, k.kept, (size_t)((k.found.stages + 1ull) * sizeof *cuts));
        memcpy(k.cut, k.kept, (size_t)((k.found.stages + 1ull) * sizeof *cuts));
        cdp__pipe_stage_costs(&k, k.found.stages);
        if (costs) memcpy(costs, k.cost, (size_t)(k.found.stages * sizeof *costs));
    }
    cdp__pipe_free(k.os, k.memory);
    return st;
}

#endif /* CDP_SRC_PIPELINE_CHOOSE_H */
