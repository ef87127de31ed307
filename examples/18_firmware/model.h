/*  model.h - what the boards and the PC train: a network of 3 inputs, 8 hidden values and 1 output
    learns y = |a - b| + c / 2. All is float; compiled with -ffp-contract=off, it has the same bits
    on every machine. */
/* SPDX-License-Identifier: MIT-0 OR Unlicense */
#ifndef MODEL_INCLUDED
#define MODEL_INCLUDED

#include <string.h>

enum {
    MODEL_IN = 3,
    MODEL_HIDDEN = 8,
    MODEL_BATCH = 8,
    MODEL_STEPS = 250,
    /* where each parameter begins in model.v */
    MODEL_W1 = 0,
    MODEL_B1 = MODEL_W1 + MODEL_HIDDEN * MODEL_IN,
    MODEL_W2 = MODEL_B1 + MODEL_HIDDEN,
    MODEL_B2 = MODEL_W2 + MODEL_HIDDEN,
    MODEL_COUNT = MODEL_B2 + 1
};

typedef struct model {
    float v[MODEL_COUNT];
} model;

/* xorshift32; -1 .. 1 */
static float model_random(uint32_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return (float)(*state >> 8) / 8388608.0f - 1.0f;
}

static void model_init(model *m, uint32_t seed) {
    uint32_t i, state = seed;
    memset(m, 0, sizeof *m);
    for (i = 0; i < 4; ++i) /* the first numbers after a small seed are small */
        (void)model_random(&state);
    for (i = 0; i < MODEL_COUNT; ++i)
        if (i < MODEL_B1 || (i >= MODEL_W2 && i < MODEL_B2)) m->v[i] = model_random(&state);
}

/* Adds the gradient of one sample to `g`. Returns the sample's error. */
static float model_sample(const model *m, const float *x, float y, model *g) {
    float h[MODEL_HIDDEN], e = m->v[MODEL_B2] - y;
    uint32_t i, k;
    for (i = 0; i < MODEL_HIDDEN; ++i) {
        float s = m->v[MODEL_B1 + i];
        for (k = 0; k < MODEL_IN; ++k)
            s += m->v[MODEL_W1 + i * MODEL_IN + k] * x[k];
        h[i] = s > 0 ? s : 0;
        e += m->v[MODEL_W2 + i] * h[i];
    }
    g->v[MODEL_B2] += e;
    for (i = 0; i < MODEL_HIDDEN; ++i) {
        const float d = h[i] > 0 ? e * m->v[MODEL_W2 + i] : 0;
        g->v[MODEL_W2 + i] += e * h[i];
        g->v[MODEL_B1 + i] += d;
        for (k = 0; k < MODEL_IN; ++k)
            g->v[MODEL_W1 + i * MODEL_IN + k] += d * x[k];
    }
    return e;
}

/* Writes the mean gradient of a rank's own samples in one step to `g` and returns the mean of the
   squared errors. No two ranks and no two steps have the same samples. */
static float model_batch(const model *m, uint32_t step, uint32_t rank, model *g) {
    uint32_t state = 1 + step * 977 + rank * 7919, i, k;
    float loss = 0;
    memset(g, 0, sizeof *g);
    for (i = 0; i < 4; ++i)
        (void)model_random(&state);
    for (i = 0; i < MODEL_BATCH; ++i) {
        float x[MODEL_IN], diff, e;
        for (k = 0; k < MODEL_IN; ++k)
            x[k] = model_random(&state);
        diff = x[0] - x[1];
        e = model_sample(m, x, (diff < 0 ? -diff : diff) + x[2] / 2, g);
        loss += e * e;
    }
    for (i = 0; i < MODEL_COUNT; ++i)
        g->v[i] /= MODEL_BATCH;
    return loss / MODEL_BATCH;
}

/* One step of gradient descent for some of the parameters. */
static void model_step(float *w, const float *g, uint32_t count) {
    uint32_t i;
    for (i = 0; i < count; ++i)
        w[i] -= 0.1f * g[i];
}

#endif
