/* pipeline.c - what the driver of cdp_pipeline.h costs beside the schedule on paper

       pipeline [STEPS [SLEEP_US]]         default: 11 steps, stages that sleep for 2000 us

   1. The driver's own cost of an action: callbacks do nothing, one rank, so no messages; and the
      same with a message of 4 bytes for each action between two ranks, beside bare messages that go
      to and fro as often. Median of the steps.
   2. Stages sleep for a known time, on 2 and 4 ranks: the median step over the preview. The preview
      has the times that the sleeps took (a system never wakes up early) and half the time of a
      message that goes to and fro, both measured in this run.

   Ranks are threads of one process. */
#define CDP_IMPLEMENTATION
#include "cdp_pipeline.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    RANKS = 4,
    STAGES = 8,
    MOST_STEPS = 1000,
    TURNS = 400, /* of a message */
    BYTES = 64 << 10
};

static uint32_t steps = 11, sleep_us = 2000;

static struct {
    cdp_schedule *schedule;
    cdp_schedule_info info;
    uint32_t elements; /* of a tensor, f32 */
    bool sleeps;
    double slept_us[STAGES]; /* of all rows of a stage */
    uint64_t sleeps_of[STAGES];
    double message_us;
    double begin_us[RANKS][MOST_STEPS], end_us[RANKS][MOST_STEPS];
} run;

static double now_us(void) {
    return (double)cdp_os_default()->now_ns(NULL) / 1e3;
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void need(cdp_status st) {
    if (st == CDP_OK) return;
    (void)cdp_print_error(stderr);
    exit(1);
}

static cdp_status compute(void *user, const cdp_pipe_micro *m) {
    const struct timespec t = {0, sleep_us * 1000L};
    const double from = now_us();
    (void)user;
    if (!run.sleeps) return CDP_OK;
    nanosleep(&t, NULL);
    run.slept_us[m->stage] += now_us() - from;
    ++run.sleeps_of[m->stage];
    return CDP_OK;
}

/* Half the time of a message to and fro between ranks 0 and 1: median. */
static void measure_message(cdp_group *g) {
    static char bytes[2][BYTES];
    static double took[TURNS];
    const uint32_t r = cdp_rank(g);
    for (uint32_t i = 0; i < TURNS && r < 2 && cdp_size(g) > 1; ++i) {
        const double from = now_us();
        if (r == 0) need(cdp_send(g, bytes[0], run.elements, CDP_DTYPE_F32, 1, 7));
        need(cdp_recv(g, bytes[r], run.elements, CDP_DTYPE_F32, 1 - r, 7));
        if (r == 1) need(cdp_send(g, bytes[1], run.elements, CDP_DTYPE_F32, 0, 7));
        if (r == 0) took[i] = (now_us() - from) / 2;
    }
    if (r == 0) qsort(took, TURNS, sizeof *took, by_value);
    if (r == 0) run.message_us = took[TURNS / 2];
    need(cdp_barrier(g));
}

static void *rank_main(void *p) {
    cdp_group *g = (cdp_group *)p;
    const cdp_pipe_edge edge = {run.elements, CDP_DTYPE_F32};
    const uint32_t r = cdp_rank(g);
    cdp_pipe_stage stages[STAGES];
    uint32_t own = 0;
    memset(stages, 0, sizeof stages);
    for (uint32_t s = 0; s < run.info.stages; ++s) {
        if (cdp_schedule_rank_of(run.schedule, s) != r) continue;
        stages[own++] = (cdp_pipe_stage){.in = &edge,
            .out = &edge,
            .in_count = s > 0,
            .out_count = s + 1 < run.info.stages,
            .forward = compute,
            .backward = compute,
            .backward_input = compute,
            .backward_weights = compute};
    }
    const cdp_pipeline_desc d = {
        .group = g, .schedule = run.schedule, .stages = stages, .stage_count = own};
    cdp_pipeline *pipeline;
    need(cdp_pipeline_create(&d, &pipeline));
    measure_message(g);
    need(cdp_pipeline_step(pipeline)); /* it allocates */
    for (uint32_t i = 0; i < steps; ++i) {
        need(cdp_barrier(g));
        run.begin_us[r][i] = now_us();
        need(cdp_pipeline_step(pipeline));
        run.end_us[r][i] = now_us();
    }
    need(cdp_barrier(g));
    cdp_pipeline_destroy(pipeline);
    return NULL;
}

/* The median of the steps, from the first rank's begin to the last one's end. */
static double median_step(uint32_t ranks) {
    static double took[MOST_STEPS];
    for (uint32_t i = 0; i < steps; ++i) {
        double from = run.begin_us[0][i], to = run.end_us[0][i];
        for (uint32_t r = 1; r < ranks; ++r) {
            if (run.begin_us[r][i] < from) from = run.begin_us[r][i];
            if (run.end_us[r][i] > to) to = run.end_us[r][i];
        }
        took[i] = to - from;
    }
    qsort(took, steps, sizeof *took, by_value);
    return took[steps / 2];
}

static double measure(const cdp_schedule_desc *d, uint32_t elements, bool sleeps) {
    cdp_hub_desc h;
    cdp_hub *hub;
    cdp_group *groups[RANKS];
    pthread_t threads[RANKS];
    memset(&run, 0, sizeof run);
    memset(&h, 0, sizeof h);
    need(cdp_schedule_create(d, &run.schedule));
    run.info = cdp_schedule_info_of(run.schedule);
    run.elements = elements;
    run.sleeps = sleeps;
    h.world_size = d->ranks;
    need(cdp_hub_create(&h, &hub));
    for (uint32_t r = 0; r < d->ranks; ++r) {
        const cdp_group_desc g = {.rank = r, .world_size = d->ranks, .hub = hub};
        need(cdp_group_create(&g, &groups[r]));
    }
    for (uint32_t r = 0; r < d->ranks; ++r)
        if (pthread_create(&threads[r], NULL, rank_main, groups[r]) != 0) abort();
    for (uint32_t r = 0; r < d->ranks; ++r)
        pthread_join(threads[r], NULL);
    for (uint32_t r = 0; r < d->ranks; ++r)
        cdp_group_destroy(groups[r]);
    cdp_hub_destroy(hub);
    return median_step(d->ranks);
}

static void own_cost(void) {
    static const uint32_t micros[] = {64, 512, 4096};
    for (uint32_t i = 0; i < 3; ++i) {
        const cdp_schedule_desc d = {
            .kind = CDP_PIPE_INTERLEAVED, .ranks = 1, .stages_per_rank = 4, .micros = micros[i]};
        const double took = measure(&d, 1, false);
        printf("1 rank, no messages, %6u actions: %8.3f us an action\n", (unsigned)run.info.rows,
            took / (double)run.info.rows);
        cdp_schedule_destroy(run.schedule);
    }
    const cdp_schedule_desc d = {.kind = CDP_PIPE_1F1B, .ranks = 2, .micros = 256};
    const double took = measure(&d, 1, false);
    printf(
        "2 ranks, a message each, %u actions of a rank: %.3f us an action; a bare message %.3f\n",
        (unsigned)run.info.rows / 2, took / (double)(run.info.rows / 2), run.message_us);
    cdp_schedule_destroy(run.schedule);
}

static void beside_paper(const char *name, cdp_pipe_kind kind, uint32_t ranks, uint32_t v) {
    const cdp_schedule_desc d = {
        .kind = kind, .ranks = ranks, .stages_per_rank = v, .micros = 2 * ranks};
    cdp_pipe_cost cost[STAGES];
    cdp_pipe_preview paper;
    const double took = measure(&d, BYTES / 4, true);
    memset(cost, 0, sizeof cost);
    for (uint32_t s = 0; s < run.info.stages; ++s) {
        const double us = run.slept_us[s] / (double)run.sleeps_of[s];
        cost[s].f_us = us;
        cost[s].i_us = run.info.split ? us : us / 2; /* a B sleeps once, as an I and a W do */
        cost[s].w_us = run.info.split ? us : us / 2;
        cost[s].message_us = run.message_us;
    }
    need(cdp_schedule_preview(run.schedule, cost, false, &paper));
    printf(
        "%-12s %u ranks, %u stages: step %9.1f us, on paper %9.1f (a message %5.1f): ratio %.3f\n",
        name, ranks, run.info.stages, took, paper.step_us, run.message_us, took / paper.step_us);
    cdp_schedule_destroy(run.schedule);
}

int main(int argc, char **argv) {
    if (argc > 1) steps = (uint32_t)atoi(argv[1]);
    if (argc > 2) sleep_us = (uint32_t)atoi(argv[2]);
    if (argc > 3 || steps < 1 || steps > MOST_STEPS || sleep_us > 900000) {
        fprintf(stderr, "pipeline [STEPS [SLEEP_US]]\n");
        return 2;
    }
    printf("# %u steps each, sleeps of %u us, messages of %u bytes where stages sleep\n", steps,
        sleep_us, BYTES);
    own_cost();
    for (uint32_t ranks = 2; ranks <= RANKS; ranks *= 2) {
        beside_paper("GPipe", CDP_PIPE_GPIPE, ranks, 1);
        beside_paper("1F1B", CDP_PIPE_1F1B, ranks, 1);
        beside_paper("interleaved", CDP_PIPE_INTERLEAVED, ranks, 2);
        beside_paper("zero bubble", CDP_PIPE_ZERO_BUBBLE, ranks, 1);
        beside_paper("ZBV", CDP_PIPE_ZBV, ranks, 2);
    }
    return 0;
}
