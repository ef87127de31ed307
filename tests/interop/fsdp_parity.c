/* The same training as in test_fsdp_parity.py, with parameters cut over ranks that are threads:
   prints "ranks stage loss step value", then "ranks stage param index element value"; of a training
   whose numbers f32 holds exactly, "ranks stage exact index element value". */
#define CDP_IMPLEMENTATION
#include "cdp.h"
#include "cdp_fsdp.h"
#include "../unit/ranks.h"
#include <math.h>

enum {
    IN = 7,
    HIDDEN = 11,
    OUT = 3,
    BATCH = 4,
    STEPS = 20,
    PARAMS = 4,
    LARGEST = IN * HIDDEN
};
static const uint64_t shapes[PARAMS][2] = {{HIDDEN, IN}, {HIDDEN, 1}, {OUT, HIDDEN}, {OUT, 1}};
static pthread_mutex_t print = PTHREAD_MUTEX_INITIALIZER;

static float drawn(uint32_t a, uint32_t b, uint32_t c) {
    const uint32_t x = (a * 7919u + b * 104729u + c * 1299709u + 1) * 2654435761u >> 8;
    return ((float)x - 8388608.0f) / 16777216.0f;
}

static void first_values(void *user, uint32_t param, uint64_t first, uint64_t count, float *out) {
    (void)user;
    for (uint64_t k = 0; k < count; ++k)
        out[k] = drawn(1000 + param, 0, (uint32_t)(first + k));
}

/* y = W2 tanh(W1 x + b1) + b2; the loss is the mean of squares of y - t. Unit 0 has W1 and b1. */
static double one_pass(cdp_fsdp *f, uint32_t rank, uint32_t step) {
    float h[BATCH][HIDDEN], dy[BATCH][OUT], dh[BATCH][HIDDEN], *grad[PARAMS];
    const float *p[PARAMS];
    double loss = 0;
    T_EQ(CDP_OK, cdp_fsdp_need(f, 0));
    for (uint32_t i = 0; i < 2; ++i)
        p[i] = (const float *)cdp_fsdp_data(f, i);
    for (uint32_t s = 0; s < BATCH; ++s)
        for (uint32_t j = 0; j < HIDDEN; ++j) {
            h[s][j] = p[1][j];
            for (uint32_t i = 0; i < IN; ++i)
                h[s][j] += p[0][j * IN + i] * drawn(step, rank * BATCH + s, i);
            h[s][j] = tanhf(h[s][j]);
        }
    T_EQ(CDP_OK, cdp_fsdp_done(f, 0));
    T_EQ(CDP_OK, cdp_fsdp_need(f, 1));
    for (uint32_t i = 2; i < PARAMS; ++i) {
        p[i] = (const float *)cdp_fsdp_data(f, i);
        grad[i] = cdp_fsdp_grad(f, i);
    }
    memset(dh, 0, sizeof dh);
    for (uint32_t s = 0; s < BATCH; ++s)
        for (uint32_t o = 0; o < OUT; ++o) {
            float y = p[3][o] - drawn(step, rank * BATCH + s, 100 + o);
            for (uint32_t j = 0; j < HIDDEN; ++j)
                y += p[2][o * HIDDEN + j] * h[s][j];
            loss += (double)y * (double)y / (BATCH * OUT);
            dy[s][o] = 2 * y / (BATCH * OUT);
            grad[3][o] += dy[s][o];
            for (uint32_t j = 0; j < HIDDEN; ++j) {
                grad[2][o * HIDDEN + j] += dy[s][o] * h[s][j];
                dh[s][j] += dy[s][o] * p[2][o * HIDDEN + j];
            }
        }
    T_EQ(CDP_OK, cdp_fsdp_ready(f, 1));
    T_EQ(CDP_OK, cdp_fsdp_need(f, 0));
    grad[0] = cdp_fsdp_grad(f, 0);
    grad[1] = cdp_fsdp_grad(f, 1);
    for (uint32_t s = 0; s < BATCH; ++s)
        for (uint32_t j = 0; j < HIDDEN; ++j) {
            const float d = dh[s][j] * (1 - h[s][j] * h[s][j]);
            grad[1][j] += d;
            for (uint32_t i = 0; i < IN; ++i)
                grad[0][j * IN + i] += d * drawn(step, rank * BATCH + s, i);
        }
    T_EQ(CDP_OK, cdp_fsdp_ready(f, 0));
    return loss;
}

static void print_params(
    cdp_fsdp *f, uint32_t ranks, uint32_t rank, cdp_fsdp_stage stage, const char *what) {
    float whole[LARGEST];
    for (uint32_t i = 0; i < PARAMS; ++i) {
        T_EQ(CDP_OK, cdp_fsdp_save(f, i, CDP_FSDP_VALUES, whole, 0));
        for (uint64_t k = 0; rank == 0 && k < shapes[i][0] * shapes[i][1]; ++k)
            printf("%u %u %s %u %u %.9g\n", ranks, (uint32_t)stage, what, i, (uint32_t)k,
                (double)whole[k]);
    }
}

static cdp_fsdp *create(cdp_group *g, cdp_fsdp_stage stage, cdp_optim *optim, double max_norm) {
    cdp_fsdp_param params[PARAMS];
    cdp_fsdp_desc d = {.group = g,
        .params = params,
        .param_count = PARAMS,
        .stage = stage,
        .optim = optim,
        .fill = first_values,
        .max_norm = max_norm};
    cdp_fsdp *f = NULL;
    memset(params, 0, sizeof params);
    for (uint32_t i = 0; i < PARAMS; ++i) {
        params[i].unit = i / 2;
        params[i].ndim = 2;
        params[i].shape[0] = shapes[i][0];
        params[i].shape[1] = shapes[i][1];
    }
    if (!max_norm) d.fill = NULL; /* zeros */
    T_EQ(CDP_OK, cdp_fsdp_create(&d, &f));
    return f;
}

/* The loss is the sum of all parameters times whole numbers, which gradients are then. */
static void trains_exactly(cdp_group *g, cdp_fsdp_stage stage) {
    const uint32_t rank = cdp_rank(g);
    cdp_optim sgd = {.kind = CDP_OPTIM_SGD, .lr = .125};
    cdp_fsdp *f = create(g, stage, &sgd, 0);
    for (uint32_t step = 0; step < STEPS && f; ++step) {
        for (uint32_t u = 0; u < 2; ++u) {
            T_EQ(CDP_OK, cdp_fsdp_need(f, u));
            T_EQ(CDP_OK, cdp_fsdp_done(f, u));
        }
        for (uint32_t u = 2; u-- > 0;) {
            T_EQ(CDP_OK, cdp_fsdp_need(f, u));
            for (uint32_t i = 2 * u; i < 2 * u + 2; ++i) {
                float *const grad = cdp_fsdp_grad(f, i);
                for (uint32_t k = 0; grad && k < shapes[i][0] * shapes[i][1]; ++k)
                    grad[k] += floorf(16 * drawn(step, rank * PARAMS + i, k));
            }
            T_EQ(CDP_OK, cdp_fsdp_ready(f, u));
        }
        T_EQ(CDP_OK, cdp_fsdp_backward_end(f, 0, NULL));
        T_EQ(CDP_OK, cdp_fsdp_step(f));
    }
    if (f) print_params(f, cdp_size(g), rank, stage, "exact");
    cdp_fsdp_destroy(f);
}

static void rank_trains(cdp_group *g, void *arg) {
    const cdp_fsdp_stage stage = *(const cdp_fsdp_stage *)arg;
    const uint32_t rank = cdp_rank(g), ranks = cdp_size(g);
    cdp_optim adamw = {.kind = CDP_OPTIM_ADAMW, .lr = 1e-2, .weight_decay = 1e-2};
    cdp_fsdp *f = create(g, stage, &adamw, .25);
    if (!f) return;
    for (uint32_t step = 0; step < STEPS; ++step) {
        double loss = one_pass(f, rank, step);
        T_EQ(CDP_OK, cdp_fsdp_backward_end(f, 0, NULL));
        T_EQ(CDP_OK, cdp_fsdp_step(f));
        T_EQ(CDP_OK, cdp_allreduce(g, NULL, &loss, 1, CDP_DTYPE_F64, CDP_REDUCE_AVG));
        pthread_mutex_lock(&print);
        if (rank == 0) printf("%u %u loss %u %.9g\n", ranks, (uint32_t)stage, step, loss);
        pthread_mutex_unlock(&print);
    }
    print_params(f, ranks, rank, stage, "param");
    cdp_fsdp_destroy(f);
    trains_exactly(g, stage);
}

int main(void) {
    for (uint32_t n = 1; n <= 4; ++n)
        for (uint32_t s = 0; s < 3; ++s) {
            cdp_fsdp_stage stage = (cdp_fsdp_stage)s;
            run_ranks(n, NULL, 0, rank_trains, &stage);
        }
    return test__now.failed_checks ? 1 : 0;
}
