/* What test_pipeline_parity.py compares with PyTorch's torch.distributed.pipelining. Prints

       table KIND P V M RANK: ACTION,ACTION,...    rows of built-in schedules
       loss KIND MICRO VALUE                       of one step of four or two stages over two ranks
       grad KIND STAGE INDEX VALUE                 weights, then biases

   A stage is tanh(W x + b); ranks are threads. */
#define CDP_IMPLEMENTATION
#include "cdp_pipeline.h"
#include "../unit/ranks.h"
#include <math.h>

enum {
    WIDTH = 4,
    SAMPLES = 2, /* of a micro-batch */
    MICROS = 4,
    STAGES = 4,
    VALUES = WIDTH * WIDTH + WIDTH
};

static float drawn(uint32_t a, uint32_t b, uint32_t c) {
    const uint32_t x = (a * 7919u + b * 104729u + c * 1299709u + 1) * 2654435761u >> 8;
    return ((float)x - 8388608.0f) / 16777216.0f;
}

static const struct {
    const char *name;
    cdp_pipe_kind kind;
    uint32_t v; /* 0: 1 to 4 */
} kinds[] = {{"1F1B", CDP_PIPE_1F1B, 1}, {"GPipe", CDP_PIPE_GPIPE, 1},
    {"Interleaved1F1B", CDP_PIPE_INTERLEAVED, 0}, {"LoopedBFS", CDP_PIPE_BFS, 0},
    {"InterleavedZeroBubble", CDP_PIPE_ZERO_BUBBLE, 0}, {"ZBVZeroBubble", CDP_PIPE_ZBV, 2},
    {"DualPipeV", CDP_PIPE_DUALPIPEV, 2}};

/* ---- tables ---- */

static void print_table(uint32_t i, uint32_t p, uint32_t v, uint32_t m) {
    const cdp_schedule_desc d = {
        .kind = kinds[i].kind, .ranks = p, .stages_per_rank = v, .micros = m};
    cdp_schedule *s;
    if (cdp_schedule_create(&d, &s) != CDP_OK) return; /* a size that this kind does not have */
    for (uint32_t r = 0; r < p; ++r) {
        const cdp_act *a;
        const uint32_t rows = cdp_schedule_rows(s, r, &a);
        printf("table %s %u %u %u %u: ", kinds[i].name, p, v, m, r);
        for (uint32_t k = 0; k < rows; ++k)
            printf("%u%c%u%s", (unsigned)a[k].stage, "?FBIW"[a[k].kind], a[k].micro,
                k + 1 < rows ? "," : "\n");
    }
    cdp_schedule_destroy(s);
}

static void print_tables(void) {
    for (uint32_t i = 0; i < sizeof kinds / sizeof *kinds; ++i)
        for (uint32_t p = 2; p <= 8; p += p < 4 ? 1 : 4)
            for (uint32_t v = 1; v <= 4; ++v)
                for (uint32_t m = 1; m <= 3 * p; ++m)
                    if (v == kinds[i].v || !kinds[i].v) print_table(i, p, v, m);
}

/* ---- a step ---- */

typedef struct part {
    uint32_t stage, stages;
    float value[VALUES], grad[VALUES];
    float in[MICROS][SAMPLES][WIDTH], out[MICROS][SAMPLES][WIDTH], dz[MICROS][SAMPLES][WIDTH];
} part;

static struct {
    cdp_schedule *schedule;
    uint32_t stages;
    part parts[STAGES];
    double losses[MICROS];
} run;

static cdp_status forward(void *user, const cdp_pipe_micro *m) {
    part *s = (part *)user;
    for (uint32_t j = 0; j < SAMPLES; ++j)
        for (uint32_t r = 0; r < WIDTH; ++r) {
            float *in = s->in[m->micro][j], z = s->value[WIDTH * WIDTH + r];
            for (uint32_t c = 0; c < WIDTH; ++c) {
                in[c] = s->stage ? ((const float *)m->in[0])[j * WIDTH + c]
                                 : drawn(0, m->micro * SAMPLES + j, c);
                z += s->value[r * WIDTH + c] * in[c];
            }
            const float y = tanhf(z), off = y - drawn(1, m->micro * SAMPLES + j, r);
            s->out[m->micro][j][r] = y;
            if (m->loss)
                *m->loss += (double)off * (double)off / (SAMPLES * WIDTH);
            else
                ((float *)m->out[0])[j * WIDTH + r] = y;
        }
    return CDP_OK;
}

static cdp_status of_input(void *user, const cdp_pipe_micro *m) {
    part *s = (part *)user;
    for (uint32_t j = 0; j < SAMPLES; ++j) {
        float *dz = s->dz[m->micro][j];
        for (uint32_t r = 0; r < WIDTH; ++r) {
            const float y = s->out[m->micro][j][r], off = y - drawn(1, m->micro * SAMPLES + j, r);
            const float dy = s->stage + 1 == s->stages
                ? 2 * off / (SAMPLES * WIDTH * MICROS)
                : ((const float *)m->grad_out[0])[j * WIDTH + r];
            dz[r] = dy * (1 - y * y);
        }
        for (uint32_t c = 0; c < WIDTH && s->stage; ++c) {
            float *dx = (float *)m->grad_in[0] + j * WIDTH + c;
            *dx = 0;
            for (uint32_t r = 0; r < WIDTH; ++r)
                *dx += s->value[r * WIDTH + c] * dz[r];
        }
    }
    return CDP_OK;
}

static cdp_status of_weights(void *user, const cdp_pipe_micro *m) {
    part *s = (part *)user;
    for (uint32_t j = 0; j < SAMPLES; ++j)
        for (uint32_t r = 0; r < WIDTH; ++r) {
            const float dz = s->dz[m->micro][j][r];
            s->grad[WIDTH * WIDTH + r] += dz;
            for (uint32_t c = 0; c < WIDTH; ++c)
                s->grad[r * WIDTH + c] += dz * s->in[m->micro][j][c];
        }
    return CDP_OK;
}

static cdp_status backward(void *user, const cdp_pipe_micro *m) {
    const cdp_status st = of_input(user, m);
    return st == CDP_OK ? of_weights(user, m) : st;
}

static void rank_steps(cdp_group *g, void *arg) {
    static const cdp_pipe_edge edge = {SAMPLES * WIDTH, CDP_DTYPE_F32};
    cdp_pipe_stage stages[STAGES];
    cdp_pipeline *p;
    uint32_t own = 0;
    double sum;
    (void)arg;
    for (uint32_t s = 0; s < run.stages; ++s) {
        part *k = &run.parts[s];
        if (cdp_schedule_rank_of(run.schedule, s) != cdp_rank(g)) continue;
        memset(k, 0, sizeof *k);
        k->stage = s;
        k->stages = run.stages;
        for (uint32_t e = 0; e < VALUES; ++e)
            k->value[e] = drawn(1000 + s, e, 0);
        stages[own++] = (cdp_pipe_stage){.in = &edge,
            .in_count = s > 0,
            .out = &edge,
            .out_count = s + 1 < run.stages,
            .forward = forward,
            .backward = backward,
            .backward_input = of_input,
            .backward_weights = of_weights,
            .user = k};
    }
    const cdp_pipeline_desc d = {
        .group = g, .schedule = run.schedule, .stages = stages, .stage_count = own};
    OK(cdp_pipeline_create(&d, &p));
    OK(cdp_pipeline_step(p));
    OK(cdp_pipeline_losses(p, cdp_rank(g) ? NULL : run.losses, &sum));
    cdp_pipeline_destroy(p);
}

static void print_step(uint32_t i) {
    const uint32_t v = kinds[i].v == 1 ? 1 : 2;
    const cdp_schedule_desc d = {
        .kind = kinds[i].kind, .ranks = 2, .stages_per_rank = v, .micros = MICROS};
    run.stages = 2 * v;
    OK(cdp_schedule_create(&d, &run.schedule));
    run_ranks(2, NULL, 0, rank_steps, NULL);
    for (uint32_t k = 0; k < MICROS; ++k)
        printf("loss %s %u %.9g\n", kinds[i].name, k, run.losses[k]);
    for (uint32_t s = 0; s < run.stages; ++s)
        for (uint32_t e = 0; e < VALUES; ++e)
            printf("grad %s %u %u %.9g\n", kinds[i].name, s, e, (double)run.parts[s].grad[e]);
    cdp_schedule_destroy(run.schedule);
}

int main(void) {
    print_tables();
    for (uint32_t i = 0; i < sizeof kinds / sizeof *kinds; ++i)
        print_step(i);
    return test__now.failed_checks ? 1 : 0;
}
