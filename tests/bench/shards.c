/* One rank of the measurement of sharded training that shards.sh starts: blocks of a transformer
   whose passes take a known time, as on an accelerator (it sleeps), and whose gradients are
   written into memory as a layer does.

   shards [--tcp] [--blocks L] [--width C] [--forward-ms F] [--steps S]
       RANK, WORLD_SIZE, MASTER_* in the environment, as usual. --tcp: not through shared memory

   Rank 0 prints one line: the median step, how long calls of cdp_fsdp.h were in it (a step without
   its sleeps and without what writes gradients), and how many bytes of memory the processes need
   since before the model was made: the mean of all ranks. Memory that two processes see counts half
   in each. AdamW updates, outside of what is measured. */
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"
#include "cdp_fsdp.h"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum {
    MATRICES = 4,
    MOST_BLOCKS = 96,
    MOST_STEPS = 1000,
    WARM = 3
};

static struct {
    uint64_t blocks, width, steps;
    double forward_ms;
    bool tcp;
} options = {8, 512, 20, 10, false};

static cdp_fsdp_param params[MATRICES * MOST_BLOCKS];
static double computed_ms; /* of this step */

static double now_ms(void) {
    return (double)cdp_os_default()->now_ns(NULL) / 1e6;
}

static void need(cdp_status st) {
    if (st == CDP_OK) return;
    (void)cdp_print_error(stderr);
    exit(1);
}

static void compute(double ms) {
    const double from = now_ms();
    const uint64_t ns = (uint64_t)(ms * 1e6);
    const struct timespec t = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    nanosleep(&t, NULL);
    computed_ms += now_ms() - from;
}

static void backward(cdp_fsdp *f, uint32_t block) {
    compute(2 * options.forward_ms);
    for (uint32_t i = MATRICES * block; i < MATRICES * (block + 1); ++i) {
        float *const grad = cdp_fsdp_grad(f, i); /* may wait */
        const double from = now_ms();
        const uint64_t count = params[i].shape[0] * params[i].shape[1];
        if (!grad) need(cdp_last_error()->status);
        for (uint64_t k = 0; k < count; ++k)
            grad[k] += 1e-3f;
        computed_ms += now_ms() - from;
    }
}

/* Milliseconds of forward, backward, and the end of backward. */
static double passes(cdp_fsdp *f) {
    const double from = now_ms();
    const uint32_t blocks = (uint32_t)options.blocks;
    computed_ms = 0;
    for (uint32_t u = 0; u < blocks; ++u) {
        need(cdp_fsdp_need(f, u));
        compute(options.forward_ms);
        (void)cdp_fsdp_done(f, u);
    }
    for (uint32_t u = blocks; u-- > 0;) {
        need(cdp_fsdp_need(f, u));
        backward(f, u);
        need(cdp_fsdp_ready(f, u));
    }
    need(cdp_fsdp_backward_end(f, 0, NULL));
    return now_ms() - from;
}

/* Bytes of this process; of what it shares, its part. */
static uint64_t memory_in_use(void) {
    FILE *const file = fopen("/proc/self/smaps_rollup", "r");
    char line[200];
    unsigned long long kb = 0;
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "Pss: %llu", &kb) == 1) break;
    if (file) fclose(file);
    return (uint64_t)kb * 1024;
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void describe(void) {
    static const uint64_t shapes[MATRICES][2] = {{3, 1}, {1, 1}, {4, 1}, {1, 4}};
    for (uint32_t i = 0; i < MATRICES * options.blocks; ++i) {
        params[i].unit = i / MATRICES;
        params[i].ndim = 2;
        for (int k = 0; k < 2; ++k)
            params[i].shape[k] = shapes[i % MATRICES][k] * options.width;
    }
}

static void measure(cdp_group *world) {
    static double step_ms[MOST_STEPS], exposed_ms[MOST_STEPS];
    const uint64_t steps = options.steps, before = memory_in_use();
    cdp_optim adamw = {.kind = CDP_OPTIM_ADAMW, .lr = 1e-3};
    const cdp_fsdp_desc d = {.group = world,
        .params = params,
        .param_count = (uint32_t)(MATRICES * options.blocks),
        .optim = &adamw};
    cdp_fsdp *f;
    double used = 0;
    need(cdp_fsdp_create(&d, &f));
    for (uint64_t i = 0; i < steps + WARM; ++i) {
        double took;
        need(cdp_barrier(world));
        took = passes(f);
        need(cdp_fsdp_step(f));
        if (i < WARM) continue;
        step_ms[i - WARM] = took;
        exposed_ms[i - WARM] = took - computed_ms;
    }
    need(cdp_barrier(world));
    used = (double)memory_in_use() - (double)before; /* nothing is given back between steps */
    need(cdp_allreduce(world, NULL, &used, 1, CDP_DTYPE_F64, CDP_REDUCE_AVG));
    qsort(step_ms, steps, sizeof *step_ms, by_value);
    qsort(exposed_ms, steps, sizeof *exposed_ms, by_value);
    if (cdp_rank(world) == 0)
        printf("%s step %.2f ms, exposed %.3f ms, memory %.1f MB\n", options.tcp ? "tcp" : "memory",
            step_ms[steps / 2], exposed_ms[steps / 2], used / 1e6);
    cdp_fsdp_destroy(f);
}

int main(int argc, char **argv) {
    cdp_tcp_desc tcp;
    cdp_group *world;
    for (int i = 1; i < argc; ++i) {
        const char *const name = argv[i];
        const double value = i + 1 < argc ? strtod(argv[i + 1], NULL) : 0;
        if (!strcmp(name, "--tcp")) {
            options.tcp = true;
            continue;
        }
        ++i;
        if (!strcmp(name, "--blocks") && value >= 1 && value <= MOST_BLOCKS)
            options.blocks = (uint64_t)value;
        else if (!strcmp(name, "--width") && value >= 1)
            options.width = (uint64_t)value;
        else if (!strcmp(name, "--forward-ms") && value >= 0)
            options.forward_ms = value;
        else if (!strcmp(name, "--steps") && value >= 1 && value <= MOST_STEPS)
            options.steps = (uint64_t)value;
        else {
            fprintf(stderr, "shards: what is '%s'?\n", name);
            return 2;
        }
    }
    describe();
    need(cdp_tcp_desc_from_env(&tcp));
    tcp.no_shared_memory = options.tcp;
    need(cdp_init(&tcp, &world));
    measure(world);
    cdp_group_destroy(world);
    return 0;
}
