/*  06_compress.c - gradients that travel in fewer bytes

    You learn: communication hooks: how many bytes each of them saves, and what it costs in loss.

        gcc -O2 examples/06_compress.c -o compress -pthread -lm
        ./cdprun -n 4 ./compress

    A network of one hidden layer learns a function of 32 numbers, once for each hook, from the same
    start and with the same data. Rank 0 prints how many bytes a rank handed to collective
    operations in each step, and the loss at the end. */
/* SPDX-License-Identifier: MIT-0 OR Unlicense */
#define CDP_IMPLEMENTATION
#include "../cdp_tcp.h"
#include "help.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

#define INPUTS 32
#define HIDDEN 128
#define BATCH 8
#define STEPS 600

static float w1[HIDDEN * INPUTS], b1[HIDDEN], w2[HIDDEN];
static uint32_t state;

static float uniform(void) { /* -1 .. 1 */
    state = state * 1664525u + 1013904223u;
    return (float)(state >> 8) / 8388608.0f - 1;
}

static void start(void) {
    state = 1; /* the same on every rank and for every hook */
    for (int i = 0; i < HIDDEN * INPUTS; ++i)
        w1[i] = uniform() * 0.3f;
    for (int i = 0; i < HIDDEN; ++i) {
        w2[i] = uniform() * 0.1f;
        b1[i] = 0;
    }
}

/* Adds the gradients of one sample; returns its loss. */
static float learn(cdp_ddp *ddp) {
    float x[INPUTS], h[HIDDEN], y = 0, target = 0;
    float *g1 = (float *)cdp_ddp_grad(ddp, 0), *gb = (float *)cdp_ddp_grad(ddp, 1),
          *g2 = (float *)cdp_ddp_grad(ddp, 2);
    for (int i = 0; i < INPUTS; ++i)
        target += (x[i] = uniform()) * (float)(i % 5 - 2) * 0.2f;
    target = sinf(target);
    for (int j = 0; j < HIDDEN; ++j) {
        h[j] = b1[j];
        for (int i = 0; i < INPUTS; ++i)
            h[j] += w1[j * INPUTS + i] * x[i];
        h[j] = tanhf(h[j]);
        y += w2[j] * h[j];
    }
    const float error = (y - target) / BATCH;
    for (int j = 0; j < HIDDEN; ++j) {
        const float back = error * w2[j] * (1 - h[j] * h[j]);
        g2[j] += error * h[j];
        gb[j] += back;
        for (int i = 0; i < INPUTS; ++i)
            g1[j * INPUTS + i] += back * x[i];
    }
    return (y - target) * (y - target);
}

/* A whole training; the loss over its last quarter. */
static cdp_status train(cdp_group *world, const cdp_hook *hook, uint64_t *bytes, float *loss) {
    const cdp_param params[] = {
        {.name = "w1", .data = w1, .count = HIDDEN * INPUTS, .rows = HIDDEN},
        {.name = "b1", .data = b1, .count = HIDDEN}, {.name = "w2", .data = w2, .count = HIDDEN}};
    const cdp_ddp_desc desc = {.group = world, .params = params, .param_count = 3};
    cdp_ddp *ddp;
    cdp_status st;
    start();
    st = cdp_ddp_create(&desc, &ddp);
    if (st != CDP_OK) return st;
    st = cdp_ddp_set_hook(ddp, hook);
    *loss = 0;
    state = 100 + cdp_rank(world);
    for (int step = 0; step < STEPS && st == CDP_OK; ++step) {
        cdp_ddp_zero_grad(ddp);
        st = cdp_ddp_backward_begin(ddp);
        for (int k = 0; k < BATCH; ++k) {
            const float one = learn(ddp);
            if (step >= STEPS * 3 / 4) *loss += one / (BATCH * STEPS / 4);
        }
        for (uint32_t i = 3; i-- > 0 && st == CDP_OK;)
            st = cdp_ddp_ready(ddp, i);
        if (st == CDP_OK) st = cdp_ddp_backward_end(ddp);
        for (uint32_t i = 0; i < 3; ++i)
            for (uint64_t k = 0; k < params[i].count; ++k)
                ((float *)params[i].data)[k] -= 0.5f * ((const float *)cdp_ddp_grad(ddp, i))[k];
    }
    *bytes = cdp_ddp_stats_of(ddp).sent_bytes;
    cdp_ddp_destroy(ddp); /* and with it the hook */
    return st == CDP_OK ? cdp_allreduce(world, NULL, loss, 1, CDP_DTYPE_F32, CDP_REDUCE_AVG) : st;
}

int main(int argc, char **argv) {
    if (help(argc, argv,
            "06_compress: gradients in fewer bytes: which hooks still learn.\n"
            "usage: cdprun -n 4 ./compress"))
        return 0;
    static const struct {
        const char *name;
        cdp_hook_desc desc;
    } hooks[] = {
        {"none", {.kind = CDP_HOOK_ALLREDUCE}},
        {"f16", {.kind = CDP_HOOK_FP16}},
        {"bf16", {.kind = CDP_HOOK_BF16}},
        {"8 bits", {.kind = CDP_HOOK_QUANTIZE}},
        {"8 bits, rows", {.kind = CDP_HOOK_QUANTIZE_CHANNEL}},
        {"top 1 of 50", {.kind = CDP_HOOK_TOPK, .ratio = 50}},
        {"PowerSGD 1", {.kind = CDP_HOOK_POWERSGD, .start = 10, .rank = 1}},
        {"PowerSGD 4", {.kind = CDP_HOOK_POWERSGD, .start = 10, .rank = 4}},
    };
    cdp_group *world;
    uint64_t bytes;
    float loss, plain = 0;
    if (cdp_init_from_env(NULL, &world) != CDP_OK) return cdp_print_error(stderr);
    if (cdp_rank(world) == 0) printf("%-14s %12s %10s\n", "hook", "bytes/step", "loss");
    for (unsigned i = 0; i < sizeof hooks / sizeof *hooks; ++i) {
        cdp_hook hook;
        if (cdp_hook_create(&hooks[i].desc, &hook) != CDP_OK
            || train(world, &hook, &bytes, &loss) != CDP_OK)
            return cdp_print_error(stderr);
        if (i == 0) plain = loss;
        if (cdp_rank(world) == 0)
            printf("%-14s %12llu %10.5f%s\n", hooks[i].name, (unsigned long long)bytes,
                (double)loss,
                loss < plain + 0.02f && plain < 0.02f ? "  learned" : "  DID NOT LEARN");
    }
    cdp_group_destroy(world);
    return 0;
}
