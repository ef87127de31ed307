/*  test_pipeline_choose.c - the schedule and the cut that are chosen, beside all there are

    Times are whole numbers, so that sums are exact. */
#define CDP_IMPLEMENTATION
#include "cdp_pipeline.h"

#include "test.h"
#include "ranks.h"

#include <math.h>

enum {
    LAYERS = 9,
    STAGES = 16
};

static uint64_t seed_of;
static uint32_t draw(uint32_t below) {
    seed_of = seed_of * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed_of >> 33) % below;
}

/* ---- all cuts ---- */

typedef struct search {
    const cdp_pipe_choice_desc *d;
    cdp_schedule *schedule; /* NULL: only the longest stage counts */
    uint32_t stages, cut[STAGES + 1];
    double best;
    uint64_t limit; /* of memory */
} search;

static double time_of(const cdp_pipe_layer *l) {
    return l->f_us + l->i_us + l->w_us;
}

static double longest(const search *k) {
    double top = 0;
    for (uint32_t s = 0; s < k->stages; ++s) {
        double sum = 0;
        for (uint32_t i = k->cut[s]; i < k->cut[s + 1]; ++i)
            sum += time_of(&k->d->layers[i]);
        top = sum > top ? sum : top;
    }
    return top;
}

static void costs_of(const search *k, cdp_pipe_cost *cost) {
    memset(cost, 0, k->stages * sizeof *cost);
    for (uint32_t s = 0; s < k->stages; ++s)
        for (uint32_t i = k->cut[s]; i < k->cut[s + 1]; ++i) {
            const cdp_pipe_layer *l = &k->d->layers[i];
            cost[s].f_us += l->f_us;
            cost[s].i_us += l->i_us;
            cost[s].w_us += l->w_us;
            cost[s].message_us = l->message_us;
        }
}

/* Of the rank that needs most, from the rows alone. */
static uint64_t bytes_of(const search *k) {
    uint64_t top = 0;
    for (uint32_t r = 0; r < k->d->ranks; ++r) {
        const cdp_act *acts;
        const uint32_t rows = cdp_schedule_rows(k->schedule, r, &acts);
        uint64_t weights = 0, live = 0, most = 0;
        for (uint32_t s = 0; s < k->stages; ++s)
            for (uint32_t i = k->cut[s]; i < k->cut[s + 1]; ++i)
                if (cdp_schedule_rank_of(k->schedule, s) == r)
                    weights += k->d->layers[i].weight_bytes;
        for (uint32_t n = 0; n < rows; ++n)
            for (uint32_t i = k->cut[acts[n].stage]; i < k->cut[acts[n].stage + 1]; ++i) {
                if (acts[n].kind == CDP_ACT_F) live += k->d->layers[i].kept_bytes;
                if (acts[n].kind == CDP_ACT_B || acts[n].kind == CDP_ACT_W)
                    live -= k->d->layers[i].kept_bytes;
                most = live > most ? live : most;
            }
        top = weights + most > top ? weights + most : top;
    }
    return top;
}

static void each_cut(search *k, uint32_t stage) {
    if (stage == k->stages) {
        cdp_pipe_cost cost[STAGES];
        cdp_pipe_preview p;
        p.step_us = longest(k);
        if (k->schedule) {
            if (bytes_of(k) > k->limit) return;
            costs_of(k, cost);
            OK(cdp_schedule_preview(k->schedule, cost, false, &p));
        }
        if (p.step_us < k->best) k->best = p.step_us;
        return;
    }
    const uint32_t left = k->stages - stage - 1; /* stages that need a layer each */
    for (uint32_t end = k->cut[stage] + 1; end + left <= k->d->layer_count; ++end) {
        if (!left) end = k->d->layer_count;
        k->cut[stage + 1] = end;
        each_cut(k, stage + 1);
    }
}

static void draw_layers(cdp_pipe_layer *layers, uint32_t count) {
    for (uint32_t i = 0; i < count; ++i)
        layers[i] = (cdp_pipe_layer){.f_us = 1 + draw(20),
            .i_us = 1 + draw(20),
            .w_us = draw(20),
            .message_us = draw(4),
            .weight_bytes = 10 + draw(50),
            .kept_bytes = 1 + draw(30)};
}

TEST(the_longest_stage_is_as_short_as_it_can_be) {
    cdp_pipe_layer layers[LAYERS];
    for (seed_of = 1; seed_of <= 200; ++seed_of) {
        const uint64_t seed = seed_of;
        double sum[LAYERS + 1] = {0}, best[(LAYERS + 1) * (LAYERS + 1)];
        uint32_t from[(LAYERS + 1) * (LAYERS + 1)];
        const uint32_t n = 1 + draw(LAYERS);
        const cdp_pipe_choice_desc d = {.layers = layers, .layer_count = n};
        draw_layers(layers, n);
        for (uint32_t i = 0; i < n; ++i)
            sum[i + 1] = sum[i] + time_of(&layers[i]);
        for (uint32_t stages = 1; stages <= n; ++stages) {
            search all = {.d = &d, .stages = stages, .best = 1e300}, one = {.d = &d};
            one.stages = stages;
            cdp__pipe_cut(sum, n, stages, best, from, one.cut);
            each_cut(&all, 0);
            T_EQ(0, one.cut[0]);
            T_EQ(n, one.cut[stages]);
            for (uint32_t s = 0; s < stages; ++s)
                T(one.cut[s] < one.cut[s + 1]);
            T_EQ((uint64_t)all.best, (uint64_t)longest(&one));
        }
        seed_of = seed;
    }
}

/* The best step of all schedules and all cuts. */
static double best_of_all(const cdp_pipe_choice_desc *d) {
    search k = {.d = d, .best = 1e300};
    k.limit = d->memory_bytes ? d->memory_bytes : UINT64_MAX;
    for (uint32_t kind = CDP_PIPE_1F1B; kind < CDP_PIPE_EVAL; ++kind)
        for (uint32_t v = 1; v <= d->most_stages_per_rank && v * d->ranks <= d->layer_count; ++v)
            for (uint32_t ahead = 0; ahead < d->ranks; ++ahead) {
                const cdp_schedule_desc s = {.kind = (cdp_pipe_kind)kind,
                    .ranks = d->ranks,
                    .micros = d->micros,
                    .stages_per_rank = v,
                    .ahead = ahead};
                if (cdp_schedule_create(&s, &k.schedule) != CDP_OK) continue;
                const cdp_schedule_info i = cdp_schedule_info_of(k.schedule);
                k.stages = i.stages;
                if (!d->whole || !i.split) each_cut(&k, 0);
                cdp_schedule_destroy(k.schedule);
            }
    return k.best;
}

/* What is said of a choice is true of it. */
static void holds(const cdp_pipe_choice_desc *d, const uint32_t *cuts, const cdp_pipe_cost *costs,
    const cdp_pipe_choice *c) {
    search k = {.d = d, .stages = c->stages};
    cdp_pipe_cost cost[STAGES];
    cdp_pipe_preview p;
    OK(cdp_schedule_create(&c->schedule, &k.schedule));
    T_EQ(c->stages, cdp_schedule_info_of(k.schedule).stages);
    memcpy(k.cut, cuts, (c->stages + 1) * sizeof *cuts);
    T_EQ(0, cuts[0]);
    T_EQ(d->layer_count, cuts[c->stages]);
    costs_of(&k, cost);
    T(memcmp(cost, costs, c->stages * sizeof *cost) == 0);
    OK(cdp_schedule_preview(k.schedule, cost, false, &p));
    T(p.step_us >= c->step_us && p.step_us <= c->step_us);
    T_EQ(bytes_of(&k), c->memory_bytes);
    T(!d->memory_bytes || c->memory_bytes <= d->memory_bytes);
    T(!d->whole || !cdp_schedule_info_of(k.schedule).split);
    cdp_schedule_destroy(k.schedule);
}

/* Cases that are small enough to try everything: how often is the choice the best there is? */
static void beside_all(bool limited, uint32_t cases) {
    cdp_pipe_layer layers[LAYERS];
    uint32_t best = 0, none = 0, missed = 0;
    double worst = 1;
    for (uint32_t n = 0; n < cases; ++n) {
        uint32_t cuts[STAGES + 1];
        cdp_pipe_cost costs[STAGES];
        cdp_pipe_choice c;
        cdp_pipe_choice_desc d = {.layers = layers,
            .layer_count = 4 + draw(LAYERS - 3),
            .ranks = 2 + draw(2),
            .micros = 2 + draw(5),
            .most_stages_per_rank = 2,
            .whole = draw(2)};
        draw_layers(layers, d.layer_count);
        if (limited) d.memory_bytes = 120 + draw(400);
        const double least = best_of_all(&d);
        const cdp_status st = cdp_schedule_choose(&d, cuts, costs, &c);
        if (st == CDP_ERR_UNSUPPORTED) {
            T(strstr(cdp_last_error()->text, "no schedule fits into") != NULL);
            T_EQ(0, c.stages);
            ++none;
            missed += least < 1e300;
            continue;
        }
        if (!OK(st)) return;
        holds(&d, cuts, costs, &c);
        T(c.step_us >= least);
        best += c.step_us <= least;
        if (c.step_us / least > worst) worst = c.step_us / least;
    }
    printf("# %u of %u are the best, %u fit nowhere, of which %u would; the worst takes %.3f\n",
        best, cases, none, missed, worst);
    T(none < cases / 2 && (limited || !none));
    T(missed <= none / 10);
    T(best >= (cases - none) * 8 / 10);
    T(worst <= 1.1);
}

TEST(choices_beside_all_there_are) {
    seed_of = 7;
    beside_all(false, TEST_SLOW ? 20 : 100);
}

TEST(choices_within_memory) {
    seed_of = 8;
    beside_all(true, TEST_SLOW ? 20 : 100);
}

TEST(equal_layers_are_dealt_out_evenly) {
    cdp_pipe_layer layers[12];
    uint32_t cuts[STAGES + 1];
    cdp_pipe_choice c;
    for (uint32_t i = 0; i < 12; ++i)
        layers[i] = (cdp_pipe_layer){.f_us = 10, .i_us = 10, .w_us = 10, .kept_bytes = 1};
    cdp_pipe_choice_desc d = {.layers = layers,
        .layer_count = 12,
        .ranks = 4,
        .micros = 8,
        .most_stages_per_rank = 1,
        .whole = true};
    OK(cdp_schedule_choose(&d, cuts, NULL, &c));
    T_EQ(4, c.stages);
    for (uint32_t s = 0; s <= 4; ++s)
        T_EQ(3 * s, cuts[s]);
    /* as fast as GPipe, and keeps fewer micro-batches; messages cost nothing, so none is ahead */
    T_EQ(CDP_PIPE_1F1B, c.schedule.kind);
    T_EQ(0, c.schedule.ahead);
    T_EQ(12, c.memory_bytes);
    d.whole = false;
    OK(cdp_schedule_choose(&d, cuts, NULL, &c));
    T_EQ(CDP_PIPE_ZERO_BUBBLE, c.schedule.kind);
    /* messages that take time are worth forwards ahead */
    for (uint32_t i = 0; i < 12; ++i)
        layers[i].message_us = 20;
    d.whole = true;
    OK(cdp_schedule_choose(&d, cuts, NULL, &c));
    T(c.schedule.kind == CDP_PIPE_GPIPE || c.schedule.ahead > 0);
}

TEST(choices_that_are_refused) {
    cdp_pipe_layer layers[LAYERS];
    uint32_t cuts[STAGES + 1];
    cdp_pipe_choice c;
    cdp_pipe_choice_desc d = {.layers = layers, .layer_count = 4, .ranks = 2, .micros = 4};
    seed_of = 9;
    draw_layers(layers, LAYERS);
    T_EQ(CDP_ERR_INVALID, cdp_schedule_choose(NULL, cuts, NULL, &c));
    T_EQ(CDP_ERR_INVALID, cdp_schedule_choose(&d, NULL, NULL, &c));
    T_EQ(CDP_ERR_INVALID, cdp_schedule_choose(&d, cuts, NULL, NULL));
    d.micros = 0;
    T_EQ(CDP_ERR_INVALID, cdp_schedule_choose(&d, cuts, NULL, &c));
    d.micros = 4;
    d.layer_count = 1;
    T_EQ(CDP_ERR_UNSUPPORTED, cdp_schedule_choose(&d, cuts, NULL, &c));
    T(strstr(cdp_last_error()->text, "1 layers for 2 ranks") != NULL);
    d.layer_count = 4;
    layers[3].w_us = NAN;
    T_EQ(CDP_ERR_INVALID, cdp_schedule_choose(&d, cuts, NULL, &c));
    T(strstr(cdp_last_error()->text, "layers[3]") != NULL);
    d.layers = NULL;
    T_EQ(CDP_ERR_INVALID, cdp_schedule_choose(&d, cuts, NULL, &c));
}

TEST(each_allocation_of_a_choice_may_fail) {
    cdp_pipe_layer layers[LAYERS];
    uint32_t cuts[STAGES + 1];
    cdp_pipe_choice c;
    const cdp_pipe_choice_desc d = {.layers = layers,
        .layer_count = 6,
        .ranks = 2,
        .micros = 4,
        .most_stages_per_rank = 2,
        .os = counted_os()};
    cdp_status st = CDP_ERR_NOMEM;
    int64_t n = 0;
    seed_of = 10;
    draw_layers(layers, LAYERS);
    while (st != CDP_OK && n < 1000) {
        counted.calls = 0;
        counted.fail_at = ++n;
        st = cdp_schedule_choose(&d, cuts, NULL, &c);
        T(st == CDP_OK || st == CDP_ERR_NOMEM);
        T_EQ(0, counted.held);
    }
    T(n > 20);
    counted.fail_at = 0;
}

int main(int argc, char **argv) {
    static const test_case cases[] = {{"the_longest_stage_is_as_short_as_it_can_be",
                                          the_longest_stage_is_as_short_as_it_can_be, 30},
        {"choices_beside_all_there_are", choices_beside_all_there_are, 60},
        {"choices_within_memory", choices_within_memory, 60},
        {"equal_layers_are_dealt_out_evenly", equal_layers_are_dealt_out_evenly, 30},
        {"choices_that_are_refused", choices_that_are_refused, 10},
        {"each_allocation_of_a_choice_may_fail", each_allocation_of_a_choice_may_fail, 30}};
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
