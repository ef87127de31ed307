/*  30_threads.c - one model, four threads, a batch that is split among them

    You learn: what PyTorch's DataParallel does, in one process: cdp_spawn with threads.

        gcc -O2 examples/30_threads.c -o threads -pthread -lm
        ./threads --threads 4

    There is one array of weights. In each step every thread computes the gradients of its part of
    the batch; cdp_reduce adds them up in the gradient of the model, and one thread updates the
    weights. The program trains once more without threads, and compares. */
/* SPDX-License-Identifier: MIT-0 OR Unlicense */
#define CDP_IMPLEMENTATION
#include "../cdp_launch.h"
#include "help.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BATCH 96u
#define WIDTH 8u
#define STEPS 300

/* The model: weights, their gradients, and the loss of the last step. All threads see it. */
typedef struct model {
    float w[WIDTH], grad[WIDTH + 1]; /* the last one: the loss */
} model;

/* Sample i of a step: powers of x, and what is to be learned of them. */
static float sample(int step, uint32_t i, float *x) {
    const float at = (float)((step * 37 + (int)i * 11) % 100) / 50 - 1;
    x[0] = 1;
    for (uint32_t k = 1; k < WIDTH; ++k)
        x[k] = x[k - 1] * at;
    return sinf(3 * at);
}

/* The function that is split: adds up gradients and loss of samples from .. until - 1. */
static void forward_backward(const model *m, int step, uint32_t from, uint32_t until, float *grad) {
    memset(grad, 0, (WIDTH + 1) * sizeof *grad);
    for (uint32_t i = from; i < until; ++i) {
        float x[WIDTH], error = -sample(step, i, x);
        for (uint32_t k = 0; k < WIDTH; ++k)
            error += m->w[k] * x[k];
        for (uint32_t k = 0; k < WIDTH; ++k)
            grad[k] += 2 * error * x[k] / BATCH;
        grad[WIDTH] += error * error / BATCH;
    }
}

static void update(model *m) {
    for (uint32_t k = 0; k < WIDTH; ++k)
        m->w[k] -= 0.3f * m->grad[k];
}

/* Each thread: its part of every batch. */
static cdp_status train(void *user, cdp_group *threads) {
    model *m = (model *)user;
    const uint32_t n = cdp_size(threads), me = cdp_rank(threads);
    const uint32_t from = BATCH * me / n, until = BATCH * (me + 1) / n;
    cdp_status st = CDP_OK;
    for (int step = 0; step < STEPS && st == CDP_OK; ++step) {
        float part[WIDTH + 1];
        forward_backward(m, step, from, until, part);
        /* when this returns on thread 0, all threads have read the weights of this step */
        st = cdp_reduce(threads, part, m->grad, WIDTH + 1, CDP_DTYPE_F32, CDP_REDUCE_SUM, 0);
        if (st == CDP_OK && me == 0) update(m);
        if (st == CDP_OK) st = cdp_barrier(threads); /* the new weights are there for all */
    }
    return st;
}

int main(int argc, char **argv) {
    static model together, alone;
    const cdp_spawn_desc desc = {.threads = true};
    uint32_t threads = 4;
    float most = 0;
    if (help(argc, argv,
            "30_threads: one model and a batch that is split among threads.\n"
            "usage: ./threads [--threads N]    N: 1 to 64 (default: 4)"))
        return 0;
    if (argc == 3 && strcmp(argv[1], "--threads") == 0) threads = (uint32_t)atoi(argv[2]);
    if (argc == 2 || argc > 3 || threads < 1 || threads > 64) {
        fprintf(stderr, "30_threads: give --threads and a number from 1 to 64, or nothing\n");
        return 2;
    }
    if (cdp_spawn(train, &together, threads, &desc) != CDP_OK) return cdp_print_error(stderr);
    for (int step = 0; step < STEPS; ++step) {
        forward_backward(&alone, step, 0, BATCH, alone.grad);
        update(&alone);
    }
    for (uint32_t k = 0; k < WIDTH; ++k)
        most = fmaxf(most, fabsf(together.w[k] - alone.w[k]));
    printf("%u threads: loss %.5f after %d steps; weights differ by at most %.1e from those of one "
           "thread\n",
        threads, (double)together.grad[WIDTH], STEPS, (double)most);
    if (!(most < 1e-4f)) printf("wrong: they should be equal, but for rounding\n");
    if (!(together.grad[WIDTH] < 0.02f)) printf("wrong: the model has not learned\n");
    if (!(most < 1e-4f) || !(together.grad[WIDTH] < 0.02f)) return 1;
    printf("right: the same model\n");
    return 0;
}
