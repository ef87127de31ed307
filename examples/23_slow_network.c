/*  23_slow_network.c - train over a slow network, with a fraction of the bytes of DDP

    You learn: DiLoCo. Ranks train alone for some steps, and then send only what they learned, as
    4 bits per number.

        gcc -O2 examples/23_slow_network.c -o slow_network -pthread -lm
        cdprun -n 2 ./slow_network [loss.svg [steps [period [folder or file [first]]]]]

    The same model trains twice on the same sequences: with DDP, which sends all gradients in every
    step, and with cdp_outer_step(). The first `first` steps of both are DDP, as in the paper (a
    model that is well on its way loses less), and their bytes do not count. Rank 0 prints the bytes
    of both and their loss on held-out text, and draws both curves. `tests/bench/slow_wire.sh` runs
    this over a wire of 50 Mbit/s and 80 ms. */
/* SPDX-License-Identifier: MIT-0 OR Unlicense */
#define CDP_IMPLEMENTATION
#include "../cdp_tcp.h"

#include "help.h"
#include "loss_curve.h"
#include "text_model.h"

typedef struct trainer {
    plan plan;
    const corpus *text;
    cdp_group *world;
    model model;
    cdp_ddp *ddp;     /* one of these two is NULL */
    cdp_outer *outer; /* DiLoCo */
    real *moments, *own_grads;
    uint64_t share; /* sequences of a step on this rank */
    uint8_t *inputs, *targets;
    uint64_t sent; /* bytes */
    curve held;
} trainer;

/* What both ways of training have in common: every rank has the whole model. */
static void trainer_fill(trainer *t, const plan *p, const corpus *text, cdp_group *world) {
    *t = (trainer){.plan = *p, .text = text, .world = world};
    t->share = p->batch / cdp_size(world);
    model_create(&t->model, p->layers, p->width, p->heads, p->context, t->share);
    model_init(&t->model, p->seed);
    t->moments = need_reals(2 * t->model.value_count);
    t->inputs = (uint8_t *)need(t->share, p->context);
    t->targets = (uint8_t *)need(t->share, p->context);
}

static void trainer_close(trainer *t) {
    cdp_ddp_destroy(t->ddp);
    cdp_outer_destroy(t->outer);
    model_free(&t->model);
    free(t->moments);
    free(t->own_grads);
    free(t->inputs);
    free(t->targets);
    curve_free(&t->held);
}

static bool trainer_open_ddp(trainer *t, const cdp_param *params) {
    model *m = &t->model;
    const cdp_ddp_desc desc = {.group = t->world, .params = params, .param_count = m->tensor_count};
    if (!worked(cdp_ddp_create(&desc, &t->ddp))) return false;
    for (uint32_t i = 0; i < m->tensor_count; ++i)
        m->grads[i] = (real *)cdp_ddp_grad(t->ddp, i);
    m->ddp = t->ddp;
    return true;
}

/* Gradients stay on this rank. */
static bool trainer_open_outer(trainer *t, const cdp_param *params, uint64_t period) {
    model *m = &t->model;
    const cdp_hook_desc four_bits = {.kind = CDP_HOOK_QUANTIZE_4};
    cdp_hook wire;
    if (!worked(cdp_hook_create(&four_bits, &wire))) return false;
    const cdp_outer_desc desc = {.group = t->world,
        .params = params,
        .param_count = m->tensor_count,
        .period = period,
        .lr = 1,
        .momentum = 0.3, /* 0.9 needs thousands of steps */
        .wire = &wire};
    t->own_grads = need_reals(m->value_count);
    for (uint32_t i = 0; i < m->tensor_count; ++i)
        m->grads[i] = t->own_grads + m->tensors[i].offset;
    return worked(cdp_outer_create(&desc, &t->outer)); /* which owns `wire` */
}

static bool trainer_open(trainer *t, uint64_t period) {
    model *m = &t->model;
    cdp_param *params = (cdp_param *)need(m->tensor_count, sizeof *params);
    for (uint32_t i = 0; i < m->tensor_count; ++i)
        params[i] = (cdp_param){.name = m->tensors[i].name,
            .data = value_of(m, i),
            .count = m->tensors[i].count,
            .dtype = REAL_DTYPE};
    const bool ok = period ? trainer_open_outer(t, params, period) : trainer_open_ddp(t, params);
    free(params);
    return ok;
}

static void draw_sequences(trainer *t, uint64_t step) {
    const uint64_t n = t->plan.context, first = cdp_rank(t->world) * t->share;
    for (uint64_t i = 0; i < t->share; ++i) {
        const uint8_t *from = t->text->train + sequence_start(&t->plan, t->text, step, first + i);
        memcpy(t->inputs + i * n, from, n);
        memcpy(t->targets + i * n, from + 1, n);
    }
}

static bool trainer_step(trainer *t, uint64_t step) {
    model *m = &t->model;
    draw_sequences(t, step);
    model_forward(m, t->inputs, t->share);
    (void)model_loss(m, t->targets, t->share, 1 / (real)(t->share * t->plan.context));
    if (t->ddp) {
        cdp_ddp_zero_grad(t->ddp);
        if (!worked(cdp_ddp_backward_begin(t->ddp))) return false;
    } else {
        memset(t->own_grads, 0, (size_t)m->value_count * sizeof(real));
    }
    model_backward(m, t->inputs, t->share);
    if (t->ddp && !worked(cdp_ddp_backward_end(t->ddp))) return false;
    for (uint32_t i = 0; i < m->tensor_count; ++i) {
        real *first = t->moments + m->tensors[i].offset, *second = first + m->value_count;
        adam(&t->plan, step, value_of(m, i), m->grads[i], first, second, m->tensors[i].count,
            m->tensors[i].rows > 1);
    }
    if (t->ddp) t->sent += cdp_ddp_stats_of(t->ddp).sent_bytes;
    return !t->outer || worked(cdp_outer_step(t->outer));
}

/* Bits per byte on held-out text: the mean of the ranks' models, each on a part of it. */
static bool trainer_score(trainer *t, uint64_t step) {
    const uint64_t n = t->plan.context, all = (t->text->held_bytes - 1) / n, windows = 16;
    double bits = 0;
    uint64_t rows = 0;
    for (uint64_t k = 0; k < windows; ++k) {
        for (uint64_t i = 0; i < t->share; ++i) {
            const uint8_t *from =
                t->text->held + draw(99, k, cdp_rank(t->world) * t->share + i) % all * n;
            memcpy(t->inputs + i * n, from, n);
            memcpy(t->targets + i * n, from + 1, n);
        }
        model_forward(&t->model, t->inputs, t->share);
        bits += model_loss(&t->model, t->targets, t->share, 0);
        rows += t->share * n;
    }
    bits /= (double)rows;
    if (!worked(cdp_allreduce(t->world, NULL, &bits, 1, CDP_DTYPE_F64, CDP_REDUCE_AVG)))
        return false;
    curve_add(&t->held, step, bits);
    return true;
}

/* Bytes count from here on. Period 0: DDP goes on. */
static bool trainer_part(trainer *t, uint64_t period) {
    t->sent = 0;
    if (!period) return true;
    cdp_ddp_destroy(t->ddp);
    t->ddp = t->model.ddp = NULL;
    return trainer_open(t, period);
}

/* Period 0: DDP. */
static bool train(trainer *t, uint64_t steps, uint64_t period, uint64_t first, double *seconds) {
    const cdp_os *os = cdp_os_default();
    const uint64_t begun = os->now_ns(os->user);
    bool ok = trainer_open(t, first ? 0 : period);
    for (uint64_t step = 0; ok && step < steps; ++step) {
        if (first && step == first) ok = trainer_part(t, period);
        ok = ok && trainer_step(t, step);
        if (ok && ((step + 1) % 32 == 0 || step + 1 == steps)) ok = trainer_score(t, step + 1);
    }
    *seconds = (double)(os->now_ns(os->user) - begun) / 1e9;
    if (t->outer) t->sent = cdp_outer_stats_of(t->outer).sent_bytes;
    return ok;
}

static bool draw_both(const char *file, const trainer *ddp, const trainer *outer) {
    const trainer *of[2] = {outer, ddp};
    char names[2][80], title[80];
    reason why;
    for (int k = 0; k < 2; ++k)
        snprintf(names[k], sizeof names[k], "%s: %.3f, %.0f kB sent", k ? "DDP" : "DiLoCo",
            of[k]->held.bits[of[k]->held.count - 1], (double)of[k]->sent / 1e3);
    snprintf(title, sizeof title, "Held-out text, %u ranks", cdp_size(ddp->world));
    page p = draw_two(&outer->held, names[0], &ddp->held, names[1], title);
    const bool ok = file_write(file, p.at, p.bytes, &why);
    if (!ok) complain(&why);
    free(p.at);
    return ok;
}

static bool compare(cdp_group *world, char **words, uint64_t steps, uint64_t period, uint64_t first,
    const corpus *text) {
    const plan p = {.layers = 2,
        .width = 32,
        .heads = 4,
        .context = 32,
        .batch = 16 * cdp_size(world),
        .seed = 1,
        .warmup = 20,
        .decay = steps,
        .rate = 0.006};
    trainer ddp, outer;
    double seconds[2] = {0, 0};
    trainer_fill(&ddp, &p, text, world);
    trainer_fill(&outer, &p, text, world);
    bool ok = train(&ddp, steps, 0, first, &seconds[0])
        && train(&outer, steps, period, first, &seconds[1]);
    if (ok && cdp_rank(world) == 0) {
        const double a = ddp.held.bits[ddp.held.count - 1],
                     b = outer.held.bits[outer.held.count - 1];
        if (first) printf("Both begin with %llu steps of DDP, which do not count:\n", llu(first));
        printf("DDP:    %.3f bits per byte after %llu steps, %.1f s, %llu bytes sent by rank 0\n",
            a, llu(steps), seconds[0], llu(ddp.sent));
        printf("DiLoCo: %.3f bits per byte (%+.1f %%), %.1f s, %llu bytes: %.0f times fewer\n", b,
            100 * (b / a - 1), seconds[1], llu(outer.sent),
            outer.sent ? (double)ddp.sent / (double)outer.sent : 0);
        if (words[0] && *words[0]) ok = draw_both(words[0], &ddp, &outer);
    }
    trainer_close(&ddp);
    trainer_close(&outer);
    return ok;
}

int main(int argc, char **argv) {
    char *words[5] = {NULL, NULL, NULL, NULL, NULL};
    cdp_group *world = NULL;
    corpus text = {0};
    reason why;
    bool alone;
    if (help(argc, argv,
            "Trains a small transformer with DDP, and again with DiLoCo, which sends 4 bits of "
            "each\n"
            "parameter every PERIOD steps; compares bytes and losses.\n\n"
            "usage: cdprun -n 2 ./slow_network [loss.svg [STEPS [PERIOD [FOLDER OR FILE "
            "[FIRST]]]]]\n\n"
            "The first FIRST of the steps are DDP in both ways, and not counted.\n"
            "Default: no picture, 160 steps, period 8, the text of this repository, 0."))
        return 0;
    for (int i = 1; i < argc && i < 6; ++i)
        words[i - 1] = argv[i];
    const uint64_t steps = words[1] ? strtoull(words[1], NULL, 10) : 160,
                   period = words[2] ? strtoull(words[2], NULL, 10) : 8,
                   first = words[4] ? strtoull(words[4], NULL, 10) : 0;
    if (steps < period || period < 1 || first > steps - period) {
        fprintf(
            stderr, "slow_network: steps must be at least FIRST + PERIOD, and PERIOD at least 1\n");
        return 2;
    }
    if (!join_world(&world, &alone)) return 1;
    if (alone) {
        fprintf(stderr, "slow_network: it compares ranks: cdprun -n 2 ./slow_network\n");
        return 2;
    }
    const uint32_t named = words[3] && *words[3] ? 1 : 0;
    bool ok = corpus_gather(&text, &words[3], named, argv[0], 32, &why);
    if (!ok) complain(&why);
    ok = ok && compare(world, words, steps, period, first, &text);
    corpus_free(&text);
    cdp_group_destroy(world);
    return ok ? 0 : 1;
}
