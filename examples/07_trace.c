/*  07_trace.c - one training step as a picture

    You learn: when each gradient was ready, when its bucket travelled, and how much of that was
    hidden behind the backward pass.

        gcc -O2 examples/07_trace.c -o trace -pthread -lm
        ./cdprun -n 2 ./trace [DIRECTORY]

    Every rank writes DIRECTORY/trace<rank>.json, for chrome://tracing or ui.perfetto.dev, and
    trace<rank>.svg. */
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
            "07_trace: one training step as a picture and as a trace, in FOLDER or here.\n"
            "usage: cdprun -n 4 ./trace [FOLDER]"))
        return 0;
    cdp_param params[LAYERS] = {{0}};
    char names[LAYERS][16];
    cdp_group *world;
    cdp_ddp *ddp;
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
    for (int step = 0; step < 3; ++step) { /* the first steps make connections */
        if (cdp_ddp_backward_begin(ddp) != CDP_OK) return cdp_print_error(stderr);
        for (uint32_t i = LAYERS; i-- > 0;) {
            layer((float *)cdp_ddp_grad(ddp, i), 2);
            cdp_ddp_ready(ddp, i);
        }
        if (cdp_ddp_backward_end(ddp) != CDP_OK) return cdp_print_error(stderr);
    }
    const cdp_ddp_stats s = cdp_ddp_stats_of(ddp);
    printf("rank %u: %.1f ms of backward, %.1f ms of communication, %.0f%% of it hidden\n", rank,
        (double)s.backward_ns / 1e6, (double)s.comm_ns / 1e6, 100 * s.hidden);
    const char *dir = argc > 1 ? argv[1] : ".";
    const int ok = save(ddp, CDP_TRACE_JSON, dir, rank) && save(ddp, CDP_TRACE_SVG, dir, rank);
    cdp_ddp_destroy(ddp);
    cdp_group_destroy(world);
    for (int i = 0; i < LAYERS; ++i)
        free(weights[i]);
    return ok ? 0 : 1;
}
