/*  05_accumulate.c - a batch that does not fit into memory at once

    You learn: no_sync, which adds up the gradients of several small passes and sends them once.

        gcc -O2 examples/05_accumulate.c -o accumulate -pthread -lm
        ./cdprun -n 4 ./accumulate

    The same batch of 8 parts runs twice: first every part is sent, then only the last one. The
    gradients are the same numbers, for an eighth of the traffic. */
/* SPDX-License-Identifier: MIT-0 OR Unlicense */
#define CDP_IMPLEMENTATION
#include "../cdp_tcp.h"
#include "help.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

#define WIDTH 20000
#define PARTS 8

static float w[WIDTH], sum[WIDTH];

/* Adds the gradient of one part of this rank's batch to what is there. */
static void add_gradient(float *g, uint32_t rank, int part) {
    for (int i = 0; i < WIDTH; ++i)
        g[i] += (float)((i + part * 5 + (int)rank * 11) % 17 - 8);
}

static cdp_status backward(cdp_ddp *ddp, uint32_t rank, int part) {
    cdp_status st = cdp_ddp_backward_begin(ddp);
    add_gradient((float *)cdp_ddp_grad(ddp, 0), rank, part);
    if (st == CDP_OK) st = cdp_ddp_ready(ddp, 0);
    return st == CDP_OK ? cdp_ddp_backward_end(ddp) : st;
}

int main(int argc, char **argv) {
    if (help(argc, argv,
            "05_accumulate: a batch in several passes sends once and has the same gradients.\n"
            "usage: cdprun -n 4 ./accumulate"))
        return 0;
    cdp_group *world;
    cdp_ddp *ddp;
    uint64_t sent[2] = {0, 0};
    float difference = 0;
    if (cdp_init_from_env(NULL, &world) != CDP_OK) return cdp_print_error(stderr);
    const uint32_t rank = cdp_rank(world);
    const cdp_param param = {.name = "w", .data = w, .count = WIDTH};
    const cdp_ddp_desc desc = {.group = world, .params = &param, .param_count = 1};
    if (cdp_ddp_create(&desc, &ddp) != CDP_OK) return cdp_print_error(stderr);

    /* every part on its way: the mean of each, added up here */
    for (int part = 0; part < PARTS; ++part) {
        cdp_ddp_zero_grad(ddp);
        if (backward(ddp, rank, part) != CDP_OK) return cdp_print_error(stderr);
        for (int i = 0; i < WIDTH; ++i)
            sum[i] += ((const float *)cdp_ddp_grad(ddp, 0))[i];
        sent[0] += cdp_ddp_stats_of(ddp).sent_bytes;
    }

    cdp_ddp_zero_grad(ddp);
    /* the sum stays here until the last part, which sends it */
    for (int part = 0; part < PARTS; ++part) {
        if (cdp_ddp_no_sync(ddp, part + 1 < PARTS) != CDP_OK || backward(ddp, rank, part) != CDP_OK)
            return cdp_print_error(stderr);
    }
    sent[1] = cdp_ddp_stats_of(ddp).sent_bytes;

    for (int i = 0; i < WIDTH; ++i)
        difference = fmaxf(difference, fabsf(sum[i] - ((const float *)cdp_ddp_grad(ddp, 0))[i]));
    printf("rank %u: %llu bytes sent one by one, %llu accumulated; gradients differ by %s\n", rank,
        (unsigned long long)sent[0], (unsigned long long)sent[1],
        difference < 1e-4f ? "nothing" : "TOO MUCH");
    cdp_ddp_destroy(ddp);
    cdp_group_destroy(world);
    return difference < 1e-4f ? 0 : 1;
}
