/*  07_trace.c - one training step as a picture, and a job that is watched

    You learn: when each gradient was ready, when its bucket travelled, and how much of that was
    hidden behind the backward pass; which rank the others wait for.

        gcc -O2 examples/07_trace.c -o trace -pthread -lm
        ./cdprun -n 4 ./trace [DIRECTORY [STEPS [LATE]]]

    Every rank writes DIRECTORY/trace<rank>.json, for chrome://tracing or ui.perfetto.dev, and
    trace<rank>.svg. Rank 0 prints a line of JSON for each step of the job, and of its own, names
    the rank that is often late, and writes step.svg: the last step of all ranks on one clock.
    With LATE this rank computes for twice as long: try `./trace . 20 2`. */
/* SPDX-License-Identifier: MIT-0 OR Unlicense */
#define CDP_IMPLEMENTATION
#include "../cdp_tcp.h"
#include "help.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define LAYERS 12
#define COUNT 200000

static float *weights[LAYERS];

static void layer(float *g, int rounds) { /* something that takes its time */
    for (int r = 0; r < rounds; ++r)
        for (int i = 0; i < COUNT; ++i)
            g[i] = sinf(g[i] + (float)i);
}

static void print_line(void *user, bool job, const char *json, uint64_t bytes) {
    (void)user;
    printf("%s %.*s\n", job ? "job: " : "rank:", (int)bytes, json);
}

static cdp_status watch(cdp_ddp *ddp, uint32_t rank, cdp_report **report) {
    const cdp_report_desc desc = {.ddp = ddp,
        .every = 1, /* an allgather of 72 bytes, for which nobody waits */
        .line = rank == 0 ? print_line : NULL,
        .each_step = rank == 0};
    return cdp_report_create(&desc, report);
}

static int write_text(const char *dir, const char *name, const char *text, uint64_t bytes) {
    char path[1000];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    const int ok = f && fwrite(text, 1, bytes, f) == bytes;
    if (f && fclose(f) == 0 && ok) printf("wrote %s\n", path);
    return ok;
}

/* The last step of all ranks; all of them must call it. */
static int save_all(cdp_report *report, const char *dir, uint32_t rank) {
    const uint64_t room = 1 << 20;
    uint64_t bytes = 0;
    char *text = (char *)malloc(room);
    int ok = cdp_report_svg(report, text, room, &bytes) == CDP_OK && bytes < room;
    if (ok && rank == 0) ok = write_text(dir, "step.svg", text, bytes);
    free(text);
    return ok;
}

static void name_straggler(const cdp_report *report) {
    const cdp_straggler s = cdp_report_straggler(report);
    if (s.found)
        printf("rank %u was the last one in %u of %u steps, by %.1f ms\n", s.rank, s.often, s.of,
            s.late_ms);
    else
        printf("no rank was often late\n");
}

static int save(cdp_ddp *ddp, cdp_trace_format format, const char *dir, uint32_t rank) {
    const uint64_t size = cdp_ddp_trace(ddp, format, NULL, 0); /* how much it is */
    char path[1000], *text = (char *)malloc(size + 1);
    snprintf(
        path, sizeof path, "%s/trace%u.%s", dir, rank, format == CDP_TRACE_SVG ? "svg" : "json");
    cdp_ddp_trace(ddp, format, text, size + 1);
    FILE *f = fopen(path, "w");
    const int ok = f && fwrite(text, 1, size, f) == size;
    if (f && fclose(f) == 0 && ok) printf("rank %u wrote %s\n", rank, path);
    free(text);
    return ok;
}

int main(int argc, char **argv) {
    if (help(argc, argv,
            "07_trace: one training step as a picture and as a trace, in FOLDER or here, and lines "
            "of\n"
            "JSON for STEPS steps (default: 6). Rank LATE computes for twice as long.\n"
            "usage: cdprun -n 4 ./trace [FOLDER [STEPS [LATE]]]"))
        return 0;
    cdp_param params[LAYERS] = {{0}};
    char names[LAYERS][16];
    cdp_group *world;
    cdp_ddp *ddp;
    cdp_report *report;
    if (cdp_init_from_env(NULL, &world) != CDP_OK) return cdp_print_error(stderr);
    const uint32_t rank = cdp_rank(world);
    for (int i = 0; i < LAYERS; ++i) {
        snprintf(names[i], sizeof names[i], "layer%d", i);
        weights[i] = (float *)calloc(COUNT, sizeof(float));
        params[i] = (cdp_param){.name = names[i], .data = weights[i], .count = COUNT};
    }
    const cdp_ddp_desc desc = {.group = world,
        .params = params,
        .param_count = LAYERS,
        .first_bucket_bytes = 1 << 20,
        .bucket_bytes = 2 << 20};
    if (cdp_ddp_create(&desc, &ddp) != CDP_OK) return cdp_print_error(stderr);
    if (watch(ddp, rank, &report) != CDP_OK) return cdp_print_error(stderr);
    const int steps = argc > 2 ? atoi(argv[2]) : 6, late = argc > 3 ? atoi(argv[3]) : -1;
    if (steps < 1) return 2;
    for (int step = 0; step < steps; ++step) { /* the first steps make connections */
        const cdp_report_figures figures = {.loss = 1.0 / (step + 1), .samples = 32};
        if (cdp_ddp_backward_begin(ddp) != CDP_OK) return cdp_print_error(stderr);
        for (uint32_t i = LAYERS; i-- > 0;) {
            layer((float *)cdp_ddp_grad(ddp, i), (int)rank == late ? 4 : 2);
            cdp_ddp_ready(ddp, i);
        }
        if (cdp_ddp_backward_end(ddp) != CDP_OK) return cdp_print_error(stderr);
        if (cdp_report_step(report, &figures) != CDP_OK) return cdp_print_error(stderr);
    }
    const cdp_ddp_stats s = cdp_ddp_stats_of(ddp);
    printf("rank %u: %.1f ms of backward, %.1f ms of communication, %.0f%% of it hidden\n", rank,
        (double)s.backward_ns / 1e6, (double)s.comm_ns / 1e6, 100 * s.hidden);
    const char *dir = argc > 1 ? argv[1] : ".";
    int ok = save(ddp, CDP_TRACE_JSON, dir, rank) && save(ddp, CDP_TRACE_SVG, dir, rank);
    if (rank == 0) name_straggler(report);
    ok = save_all(report, dir, rank) && ok;
    cdp_report_destroy(report);
    cdp_ddp_destroy(ddp);
    cdp_group_destroy(world);
    for (int i = 0; i < LAYERS; ++i)
        free(weights[i]);
    return ok ? 0 : 1;
}
