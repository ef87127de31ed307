/*  04_uneven_inputs.c - ranks that have different amounts of data

    You learn: join, which lets a rank that is out of data stay in step with the others.

        gcc -O2 examples/04_uneven_inputs.c -o uneven -pthread -lm
        ./cdprun -n 4 ./uneven

    Rank r has 40 + 30 r samples of y = 1 + 2 x. Without join, the others would wait in the middle
    of a step for the rank with the least data. With it, a rank without data contributes gradients
    of zero until no rank has any left, and then receives the model. Here the mean is taken over the
    ranks that still have data. */
/* SPDX-License-Identifier: MIT-0 OR Unlicense */
#define CDP_IMPLEMENTATION
#include "../cdp_tcp.h"
#include "help.h"
#include <stdio.h>

static float w[2]; /* the model: y = w0 + w1 x */

/* One step on sample number `at` of this rank. */
static cdp_status step(cdp_ddp *ddp, uint32_t rank, int at) {
    const float x = (float)((at * 7 + (int)rank * 3) % 10) / 10,
                error = w[0] + w[1] * x - (1 + 2 * x);
    float *g = (float *)cdp_ddp_grad(ddp, 0);
    cdp_status st = cdp_ddp_backward_begin(ddp);
    g[0] = error;
    g[1] = error * x;
    if (st == CDP_OK) st = cdp_ddp_ready(ddp, 0);
    if (st == CDP_OK) st = cdp_ddp_backward_end(ddp);
    w[0] -= 0.4f * g[0];
    w[1] -= 0.4f * g[1];
    return st;
}

int main(int argc, char **argv) {
    if (help(argc, argv,
            "04_uneven_inputs: ranks with different amounts of data train one line.\n"
            "usage: cdprun -n 4 ./uneven"))
        return 0;
    cdp_group *world;
    cdp_ddp *ddp;
    if (cdp_init_from_env(NULL, &world) != CDP_OK) return cdp_print_error(stderr);
    const uint32_t rank = cdp_rank(world);
    const int samples = 40 + 30 * (int)rank;
    const cdp_param param = {.name = "w", .data = w, .count = 2};
    const cdp_ddp_desc desc = {
        .group = world, .params = &param, .param_count = 1, .join = true, .join_effective = true};
    if (cdp_ddp_create(&desc, &ddp) != CDP_OK) return cdp_print_error(stderr);

    for (int epoch = 0; epoch < 3; ++epoch) {
        uint32_t fewest = cdp_size(world);
        for (int at = 0; at < samples; ++at) {
            if (step(ddp, rank, at) != CDP_OK) return cdp_print_error(stderr);
            const uint32_t active = cdp_ddp_stats_of(ddp).active_ranks;
            if (active < fewest) fewest = active;
        }
        /* out of data: until everybody is */
        if (cdp_ddp_join(ddp) != CDP_OK) return cdp_print_error(stderr);
        if (epoch == 2)
            printf(
                "rank %u used all of its %d samples, the last with %u ranks: y = %.3f + %.3f x\n",
                rank, samples, fewest, (double)w[0], (double)w[1]);
    }
    cdp_ddp_destroy(ddp);
    cdp_group_destroy(world);
    return 0;
}
