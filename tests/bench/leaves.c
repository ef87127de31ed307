/* One rank of a measurement that `make bench-leaves` starts with cdprun: a step of a global batch
   whose mean has the same bits on any number of ranks (cdp_leaves), beside one of the same
   micro-batches that a ddp accumulates (cdp_ddp_no_sync). The two take turns.

   leaves [--leaves M] [--params P] [--values N] [--work W] [--steps S]
       --leaves  micro-batches of a step, over all ranks (default: 8)
       --params  arrays of gradients (default: 25), --values: of all together (default: 1000000)
       --work    additions and products for each value of a micro-batch's gradient (default: 4)

   Rank 0 prints one line: medians of both in ms, and their ratio. */
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST = 1000
};

static struct {
    uint32_t leaves, params, work, steps;
    uint64_t values;
} options = {8, 25, 4, 21, 1000000};

typedef struct side {
    cdp_ddp *ddp;
    cdp_leaves *leaves; /* NULL: the ddp accumulates */
    uint64_t took[MOST];
} side;

static uint64_t now(void) {
    return cdp_os_default()->now_ns(NULL);
}

static int by_size(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static cdp_status micro_batch(cdp_ddp *ddp, uint64_t number) {
    const uint64_t count = options.values / options.params;
    cdp_status st = CDP_OK;
    for (uint32_t i = options.params; i-- > 0 && st == CDP_OK;) {
        float *g = (float *)cdp_ddp_grad(ddp, i);
        for (uint64_t k = 0; k < count; ++k) {
            float x = (float)(number + k % 7);
            for (uint32_t w = 0; w < options.work; ++w)
                x = x * 0.999f + 0.001f;
            g[k] += x;
        }
        st = cdp_ddp_ready(ddp, i);
    }
    return st;
}

static cdp_status step_of_leaves(side *s) {
    cdp_status st = CDP_PENDING;
    while (st == CDP_PENDING) {
        uint64_t leaf;
        st = cdp_leaves_begin(s->leaves, &leaf);
        if (st == CDP_OK) st = micro_batch(s->ddp, leaf);
        if (st == CDP_OK) st = cdp_leaves_end(s->leaves);
    }
    return st;
}

static cdp_status step_of_ddp(side *s, cdp_group *world) {
    const uint64_t n = cdp_size(world), r = cdp_rank(world), end = options.leaves * (r + 1) / n;
    cdp_status st = CDP_OK;
    cdp_ddp_zero_grad(s->ddp);
    for (uint64_t leaf = options.leaves * r / n; leaf < end && st == CDP_OK; ++leaf) {
        st = cdp_ddp_no_sync(s->ddp, leaf + 1 < end);
        if (st == CDP_OK) st = cdp_ddp_backward_begin(s->ddp);
        if (st == CDP_OK) st = micro_batch(s->ddp, leaf);
        if (st == CDP_OK) st = cdp_ddp_backward_end(s->ddp);
    }
    return st;
}

static void read_options(int argc, char **argv) {
    for (int i = 1; i + 1 < argc; i += 2) {
        const uint64_t value = strtoull(argv[i + 1], NULL, 10);
        if (strcmp(argv[i], "--leaves") == 0) options.leaves = (uint32_t)value;
        if (strcmp(argv[i], "--params") == 0) options.params = (uint32_t)value;
        if (strcmp(argv[i], "--values") == 0) options.values = value;
        if (strcmp(argv[i], "--work") == 0) options.work = (uint32_t)value;
        if (strcmp(argv[i], "--steps") == 0) options.steps = (uint32_t)value;
    }
}

static cdp_status open_side(side *s, cdp_group *world, const cdp_param *params, bool leaves) {
    const cdp_ddp_desc d = {
        .group = world, .params = params, .param_count = options.params, .bucket_bytes = 1 << 20};
    cdp_leaves_desc l = {.leaves = options.leaves};
    cdp_status st = cdp_ddp_create(&d, &s->ddp);
    l.ddp = s->ddp;
    return st == CDP_OK && leaves ? cdp_leaves_create(&l, &s->leaves) : st;
}

static cdp_status measure(side sides[2], cdp_group *world) {
    cdp_status st = CDP_OK;
    for (uint32_t step = 0; step < options.steps + 2 && st == CDP_OK; ++step)
        for (int k = 0; k < 2 && st == CDP_OK; ++k) {
            uint64_t begun;
            st = cdp_barrier(world);
            begun = now();
            if (st == CDP_OK) st = k ? step_of_leaves(&sides[k]) : step_of_ddp(&sides[k], world);
            if (st == CDP_OK) st = cdp_barrier(world);
            if (step >= 2) sides[k].took[step - 2] = now() - begun;
        }
    return st;
}

int main(int argc, char **argv) {
    static side sides[2];
    cdp_group *world;
    cdp_param *params;
    float *data;
    read_options(argc, argv);
    if (options.steps < 1 || options.steps > MOST || options.params < 1) return 2;
    if (cdp_init_from_env(NULL, &world) != CDP_OK) return cdp_print_error(stderr);
    params = (cdp_param *)calloc(options.params, sizeof *params);
    data = (float *)calloc(options.values, sizeof *data);
    if (!params || !data) return 1;
    for (uint32_t i = 0; i < options.params; ++i) {
        params[i].count = options.values / options.params;
        params[i].data = data + i * params[i].count;
    }
    for (int k = 0; k < 2; ++k)
        if (open_side(&sides[k], world, params, k == 1) != CDP_OK) return cdp_print_error(stderr);
    if (measure(sides, world) != CDP_OK) return cdp_print_error(stderr);
    if (cdp_rank(world) == 0) {
        double ms[2];
        for (int k = 0; k < 2; ++k) {
            qsort(sides[k].took, options.steps, sizeof *sides[k].took, by_size);
            ms[k] = (double)sides[k].took[options.steps / 2] / 1e6;
        }
        printf(
            "%u ranks, %u micro-batches of %llu values: ddp %.2f ms, leaves %.2f ms, ratio %.2f\n",
            cdp_size(world), options.leaves, (unsigned long long)options.values, ms[0], ms[1],
            ms[1] / ms[0]);
    }
    for (int k = 0; k < 2; ++k) {
        cdp_leaves_destroy(sides[k].leaves);
        cdp_ddp_destroy(sides[k].ddp);
    }
    cdp_group_destroy(world);
    free(params);
    free(data);
    return 0;
}
