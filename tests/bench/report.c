/* One rank of a measurement that `make bench-report` starts with cdprun: what watching a job
   (cdp_report) costs. Steps of a ddp that computes nothing, without a report, with a line of the
   job every 10 steps, and with a line of each step and rank besides; the three take turns, block
   by block.

   report [--values N] [--steps S] [--blocks B] [--step-ms MS]
       --values  of all gradients (default: 1000000)
       --steps   of a block (default: 100), --blocks: of each (default: 11)
       --step-ms what a step of a model takes (default: 20)

   Rank 0 prints a line for each: the median of blocks of the processor time of all ranks for a
   step, in us; what a report adds to it; and that as a share of the processor time that all ranks
   have in MS milliseconds. */
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    SIDES = 3,
    PARAMS = 25,
    MOST = 1000
};

static struct { uint64_t values, steps, blocks, step_ms; } options = {1000000, 100, 11, 20};

typedef struct side {
    cdp_ddp *ddp;
    cdp_report *report;
    double us[MOST]; /* of a step, all ranks together */
} side;

static uint64_t lines;

static void line(void *user, bool job, const char *json, uint64_t bytes) {
    FILE *to = (FILE *)user;
    (void)job;
    fwrite(json, 1, (size_t)bytes, to);
    fputc('\n', to);
    ++lines;
}

static double used(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static cdp_status step_of(side *s, uint64_t number) {
    const cdp_report_figures figures = {.loss = 1.0 / (double)(number + 1), .samples = 32};
    cdp_status st = cdp_ddp_backward_begin(s->ddp);
    for (uint32_t i = PARAMS; i-- > 0 && st == CDP_OK;)
        st = cdp_ddp_ready(s->ddp, i);
    if (st == CDP_OK) st = cdp_ddp_backward_end(s->ddp);
    if (st == CDP_OK && s->report) st = cdp_report_step(s->report, &figures);
    return st;
}

static cdp_status block_of(side *s, cdp_group *world, uint64_t block) {
    cdp_status st = cdp_barrier(world);
    double us = used();
    for (uint64_t i = 0; i < options.steps && st == CDP_OK; ++i)
        st = step_of(s, i);
    if (st == CDP_OK) st = cdp_barrier(world);
    us = (used() - us) / (double)options.steps;
    if (st == CDP_OK) st = cdp_allreduce(world, &us, &us, 1, CDP_DTYPE_F64, CDP_REDUCE_SUM);
    if (block) s->us[block - 1] = us; /* the first one warms up */
    return st;
}

static cdp_status open_side(
    side *s, cdp_group *world, const cdp_param *params, int kind, FILE *to) {
    const cdp_ddp_desc d = {
        .group = world, .params = params, .param_count = PARAMS, .bucket_bytes = 1 << 20};
    cdp_report_desc r = {.line = line, .user = to, .each_step = kind == 2};
    cdp_status st = cdp_ddp_create(&d, &s->ddp);
    r.ddp = s->ddp;
    return st == CDP_OK && kind ? cdp_report_create(&r, &s->report) : st;
}

static void read_options(int argc, char **argv) {
    for (int i = 1; i + 1 < argc; i += 2) {
        const uint64_t value = strtoull(argv[i + 1], NULL, 10);
        if (strcmp(argv[i], "--values") == 0) options.values = value;
        if (strcmp(argv[i], "--steps") == 0) options.steps = value;
        if (strcmp(argv[i], "--blocks") == 0 && value < MOST) options.blocks = value;
        if (strcmp(argv[i], "--step-ms") == 0) options.step_ms = value;
    }
}

static void print(side *sides, uint32_t ranks) {
    static const char *const names[SIDES] = {"no report", "lines of the job", "and of each step"};
    const double all = (double)options.step_ms * 1e3 * ranks;
    for (int k = 0; k < SIDES; ++k) {
        qsort(sides[k].us, (size_t)options.blocks, sizeof *sides[k].us, by_size);
        const double us = sides[k].us[options.blocks / 2];
        const double more = us - sides[0].us[options.blocks / 2];
        printf("%u ranks, %-16s  %8.1f us", ranks, names[k], us);
        if (k)
            printf("  %+6.1f us  %.3f %% of %d ms", more, more / all * 100, (int)options.step_ms);
        printf("\n");
    }
}

int main(int argc, char **argv) {
    static side sides[SIDES];
    cdp_param params[PARAMS];
    cdp_group *world;
    FILE *to = fopen("/dev/null", "w");
    read_options(argc, argv);
    memset(params, 0, sizeof params);
    float *data = (float *)calloc((size_t)options.values, sizeof *data);
    if (!data || !to || cdp_init_from_env(NULL, &world) != CDP_OK) return cdp_print_error(stderr);
    for (uint32_t i = 0; i < PARAMS; ++i) {
        params[i].data = data + i * (options.values / PARAMS);
        params[i].count = options.values / PARAMS;
        params[i].dtype = CDP_DTYPE_F32;
    }
    cdp_status st = CDP_OK;
    for (int k = 0; k < SIDES && st == CDP_OK; ++k)
        st = open_side(&sides[k], world, params, k, to);
    for (uint64_t block = 0; block <= options.blocks && st == CDP_OK; ++block)
        for (int k = 0; k < SIDES && st == CDP_OK; ++k)
            st = block_of(&sides[k], world, block);
    if (st != CDP_OK) return cdp_print_error(stderr);
    if (cdp_rank(world) == 0) print(sides, cdp_size(world));
    for (int k = 0; k < SIDES; ++k) {
        cdp_report_destroy(sides[k].report);
        cdp_ddp_destroy(sides[k].ddp);
    }
    cdp_group_destroy(world);
    fclose(to);
    free(data);
    return 0;
}
