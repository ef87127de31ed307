/*  11_pipeline.c - the model of text_model.h cut into stages, one on each rank, with
    micro-batches in flight (pipeline parallel)

    You learn: a schedule that is proved before it runs, and the driver that runs it
    (cdp_pipeline.h).

        gcc -O2 examples/11_pipeline.c -o pipeline -pthread -lm
        cdprun -n 4 ./pipeline                   four stages; 2 or 3 ranks: as many stages
        cdprun -n 2 ./pipeline --steps 60 --micro 16 text.txt
        ./pipeline --help

    Every rank holds some of the blocks; the first one also the embeddings, the last one also the
    output and the loss. A batch is cut into micro-batches. The schedule is 1F1B: when the pipeline
    is full, each stage does one forward, then one backward, so it keeps the activations of few
    micro-batches. Activations and gradients go from stage to stage while the stages compute.
    Gradients of parameters stay on their stage and are added in the order of the micro-batches.

    Rank 0 trains the whole model alone beside it, on the same micro-batches. Losses and, in the
    end, parameters must have the same bits. The last line is the verdict. */
/* SPDX-License-Identifier: MIT-0 OR Unlicense */
#define CDP_IMPLEMENTATION
#include "../cdp_tcp.h"

#include "../cdp_pipeline.h"

#include "help.h"
#include "options.h"
#include "text_model.h"

#define MAX_MICRO 64u
#define MAX_STAGES 64u

static struct { uint64_t steps, micro; } run_of = {30, 8};

static plan plan_of = {.layers = 4,
    .width = 32,
    .heads = 4,
    .context = 32,
    .batch = 32,
    .accumulate = 1,
    .seed = 1,
    .warmup = 10,
    .rate = 0.01};

/* ---- one stage ---- */

typedef struct stage {
    uint32_t number, count; /* of all stages */
    model m;                /* values and tensors */
    model slots[MAX_MICRO]; /* the same values with memory of their own, one for each micro-batch
                               between its forward and its backward */
    uint32_t slot_count;
    real *moments;      /* Adam's, first and second */
    real *grads, *sum;  /* of one micro-batch, and of all */
    uint8_t *bytes;     /* inputs, then targets */
    const corpus *text; /* every rank reads the same one */
    uint64_t step, done;
    double bits; /* the loss; on the last stage */
} stage;

static uint64_t share_of(void) {
    return plan_of.batch / run_of.micro;
}
static uint64_t tokens_of(void) {
    return share_of() * plan_of.context;
}
static bool is_first(const stage *s) {
    return s->number == 0;
}
static bool is_last(const stage *s) {
    return s->number + 1 == s->count;
}

/* Blocks of a stage: from this one on, up to that of the next stage. */
static uint64_t first_block(uint32_t number, uint32_t count) {
    return plan_of.layers * number / count;
}

/* Tensors have the order of the whole model; those of other stages have no rows here. So the
   values of a stage are one piece of the values of the whole model. */
static void stage_tensors(stage *s) {
    model *m = &s->m;
    const uint64_t w = plan_of.width, first = is_first(s), last = is_last(s);
    const uint64_t from = first_block(s->number, s->count);
    *m = (model){.layers = first_block(s->number + 1, s->count) - from,
        .width = w,
        .heads = plan_of.heads,
        .context = plan_of.context,
        .sequences = share_of()};
    m->tensors =
        (tensor *)need(PARAM_BLOCKS + m->layers * BLOCK_PARAMS + LAST_PARAMS, sizeof *m->tensors);
    model_add(m, "token", first * VOCABULARY, w);
    model_add(m, "position", first * plan_of.context, w);
    for (uint64_t l = 0; l < m->layers; ++l)
        model_add_block(m, l);
    model_add(m, "norm.gain", last, w);
    model_add(m, "norm.bias", last, w);
    model_add(m, "head", last * w, VOCABULARY);
    m->values = need_reals(m->value_count);
}

/* Where the values of this stage begin in those of the whole model. */
static uint64_t stage_offset(const stage *s, const model *whole) {
    const uint32_t block = block_param(first_block(s->number, s->count), 0);
    return is_first(s) ? 0 : whole->tensors[block].offset;
}

static void whole_create(model *whole) {
    model_create(whole, plan_of.layers, plan_of.width, plan_of.heads, plan_of.context, share_of());
    model_init(whole, plan_of.seed);
}

static void stage_open(
    stage *s, uint32_t number, uint32_t count, uint32_t slots, const corpus *text) {
    model whole;
    *s = (stage){.number = number, .count = count, .slot_count = slots, .text = text};
    stage_tensors(s);
    whole_create(&whole);
    memcpy(s->m.values, whole.values + stage_offset(s, &whole), s->m.value_count * sizeof(real));
    model_free(&whole);
    s->moments = need_reals(2 * s->m.value_count);
    s->grads = need_reals(s->m.value_count);
    s->sum = need_reals(s->m.value_count);
    s->bytes = (uint8_t *)need(2, tokens_of());
    for (uint32_t i = 0; i < slots; ++i) {
        model *m = &s->slots[i];
        *m = s->m;
        m->grads = (real **)need(m->tensor_count, sizeof *m->grads);
        model_reserve(m);
        for (uint32_t t = 0; t < m->tensor_count; ++t)
            m->grads[t] = s->grads + m->tensors[t].offset;
    }
}

static void stage_close(stage *s) {
    for (uint32_t i = 0; i < s->slot_count; ++i) {
        s->slots[i].values = NULL; /* the stage's */
        s->slots[i].tensors = NULL;
        model_free(&s->slots[i]);
    }
    free(s->moments);
    free(s->grads);
    free(s->sum);
    free(s->bytes);
    model_free(&s->m);
}

static void draw_micro(const corpus *text, uint64_t step, uint64_t number, uint8_t *bytes) {
    const uint64_t n = plan_of.context;
    for (uint64_t i = 0; i < share_of(); ++i) {
        const uint8_t *from =
            text->train + sequence_start(&plan_of, text, step, number * share_of() + i);
        memcpy(bytes + i * n, from, n);
        memcpy(bytes + tokens_of() + i * n, from + 1, n);
    }
}

/* ---- what a stage does ---- */

static uint64_t stream_bytes(void) {
    return tokens_of() * plan_of.width * sizeof(real);
}

static cdp_status forward(void *user, const cdp_pipe_micro *now) {
    stage *s = (stage *)user;
    model *m = &s->slots[now->slot];
    draw_micro(s->text, s->step, now->micro, s->bytes);
    if (is_first(s))
        embed(m, s->bytes, share_of());
    else
        memcpy(m->blocks[0].in, now->in[0], stream_bytes());
    blocks_forward(m, share_of());
    if (is_last(s)) {
        const uint64_t tokens = tokens_of() * run_of.micro;
        head_forward(m, share_of());
        s->bits +=
            model_loss(m, s->bytes + tokens_of(), share_of(), 1 / (real)tokens) / (double)tokens;
    } else {
        memcpy(now->out[0], m->last, stream_bytes());
    }
    ++s->done;
    return CDP_OK;
}

static cdp_status backward(void *user, const cdp_pipe_micro *now) {
    stage *s = (stage *)user;
    model *m = &s->slots[now->slot];
    memset(s->grads, 0, m->value_count * sizeof(real));
    if (is_last(s))
        head_backward(m, share_of());
    else
        memcpy(m->stream, now->grad_out[0], stream_bytes());
    blocks_backward(m, share_of());
    if (is_first(s)) {
        draw_micro(s->text, s->step, now->micro, s->bytes);
        embed_backward(m, s->bytes, share_of());
    } else {
        memcpy(now->grad_in[0], m->stream, stream_bytes());
    }
    for (uint64_t i = 0; i < m->value_count; ++i)
        s->sum[i] = now->micro ? s->sum[i] + s->grads[i] : s->grads[i];
    return CDP_OK;
}

/* One step of Adam. */
static void update_values(const model *m, real *moments, uint64_t step, const real *grads) {
    for (uint32_t i = 0; i < m->tensor_count; ++i) {
        const tensor *t = &m->tensors[i];
        real *first = moments + t->offset;
        adam(&plan_of, step, value_of(m, i), grads + t->offset, first, first + m->value_count,
            t->count, t->rows > 1);
    }
}

/* ---- rank 0: the whole model beside the stages ---- */

typedef struct alone {
    model m;
    real *moments, *grads, *sum; /* of one micro-batch, and of all */
} alone;

static void alone_open(alone *a) {
    whole_create(&a->m);
    a->moments = need_reals(2 * a->m.value_count);
    a->grads = need_reals(a->m.value_count);
    a->sum = need_reals(a->m.value_count);
    for (uint32_t i = 0; i < a->m.tensor_count; ++i)
        a->m.grads[i] = a->grads + a->m.tensors[i].offset;
}

static void alone_close(alone *a) {
    free(a->moments);
    free(a->grads);
    free(a->sum);
    model_free(&a->m);
}

static double alone_step(alone *a, const corpus *text, uint64_t step, uint8_t *bytes) {
    const uint64_t tokens = tokens_of() * run_of.micro;
    double bits = 0;
    for (uint64_t i = 0; i < run_of.micro; ++i) {
        draw_micro(text, step, i, bytes);
        memset(a->grads, 0, a->m.value_count * sizeof(real));
        model_forward(&a->m, bytes, share_of());
        bits +=
            model_loss(&a->m, bytes + tokens_of(), share_of(), 1 / (real)tokens) / (double)tokens;
        model_backward(&a->m, bytes, share_of());
        for (uint64_t k = 0; k < a->m.value_count; ++k)
            a->sum[k] = i ? a->sum[k] + a->grads[k] : a->grads[k];
    }
    update_values(&a->m, a->moments, step, a->sum);
    return bits;
}

static bool verdict(bool good, const char *what) {
    printf("%s  %s\n", good ? "PASS" : "FAIL", what);
    return good;
}

/* The stages' values, one after the other, are those of the whole model: collective; rank 0
   compares. */
static bool same_values(cdp_group *world, stage *s, const alone *a) {
    uint64_t counts[MAX_STAGES] = {0}, at = 0;
    bool same = true;
    counts[s->number] = s->m.value_count;
    if (!worked(cdp_allreduce(world, NULL, counts, s->count, CDP_DTYPE_U64, CDP_REDUCE_SUM)))
        exit(1);
    if (!is_first(s)) {
        if (!worked(cdp_send(world, s->m.values, counts[s->number], REAL_DTYPE, 0, 0))) exit(1);
        return true;
    }
    for (uint32_t i = 0; i < s->count; at += counts[i++]) {
        real *values = i ? need_reals(counts[i]) : s->m.values;
        if (i && !worked(cdp_recv(world, values, counts[i], REAL_DTYPE, i, 0))) exit(1);
        same = same && memcmp(values, a->m.values + at, counts[i] * sizeof(real)) == 0;
        if (i) free(values);
    }
    return same && at == a->m.value_count;
}

/* All steps. Rank 0 says in the end whether all is well. */
static bool train(cdp_group *world, cdp_pipeline *pipeline, stage *s) {
    alone a;
    uint64_t equal = 0;
    double first = 0, bits = 0;
    if (is_first(s)) alone_open(&a);
    for (s->step = 0; s->step < run_of.steps; ++s->step) {
        s->bits = 0;
        if (!worked(cdp_pipeline_step(pipeline))) exit(1);
        update_values(&s->m, s->moments, s->step, s->sum);
        if (!worked(cdp_broadcast(world, &s->bits, 1, CDP_DTYPE_F64, s->count - 1))) exit(1);
        if (!is_first(s)) continue;
        bits = s->bits;
        const double want = alone_step(&a, s->text, s->step, s->bytes);
        if (s->step == 0) first = bits;
        equal += memcmp(&bits, &want, sizeof bits) == 0;
        if (s->step % 10 == 0 || s->step + 1 == run_of.steps)
            printf(
                "step %3llu: %.12f bits per byte; one process %.12f\n", llu(s->step), bits, want);
    }
    const bool same = same_values(world, s, &a);
    if (!is_first(s)) return true;
    bool good =
        verdict(equal == run_of.steps, "the losses of all steps have the bits of one process");
    good = verdict(same, "so have the parameters of all stages in the end") && good;
    if (run_of.steps >= 10) good = verdict(bits < first - 0.5, "the loss fell") && good;
    printf("%s\n", good ? "all checks passed" : "SOME CHECKS FAILED");
    alone_close(&a);
    return good;
}

/* ---- main ---- */

static bool options_fit(uint32_t stages, reason *why) {
    if (run_of.micro < 1 || run_of.micro > MAX_MICRO || plan_of.batch % run_of.micro)
        return because(why, "--micro must be 1, 2, 4, 8, 16 or 32");
    if (stages > MAX_STAGES || plan_of.layers < stages || plan_of.layers > 64)
        return because(why, "%u ranks need --layers %u to 64; at most 64 ranks", stages, stages);
    if (plan_of.width < plan_of.heads || plan_of.width % plan_of.heads)
        return because(why, "--width must divide by %llu", llu(plan_of.heads));
    return true;
}

/* What the schedule costs on paper, if backward takes twice as long as forward. */
static bool say_schedule(const cdp_schedule *schedule, uint32_t stages) {
    cdp_pipe_cost cost[MAX_STAGES] = {{0}};
    cdp_pipe_preview paper;
    for (uint32_t i = 0; i < stages; ++i)
        cost[i] = (cdp_pipe_cost){.f_us = 1, .i_us = 1, .w_us = 1};
    if (!worked(cdp_schedule_preview(schedule, cost, false, &paper))) return false;
    printf("%u stages, %llu micro-batches of %llu sequences: bubble %.0f %% on paper, at most %u "
           "micro-batches kept\n",
        stages, llu(run_of.micro), llu(share_of()), 100 * paper.bubble, paper.peak);
    return true;
}

static bool train_in_stages(cdp_group *world, const corpus *text) {
    static stage s;
    const uint32_t rank = cdp_rank(world), n = cdp_size(world);
    const cdp_schedule_desc plan = {.ranks = n, .micros = (uint32_t)run_of.micro};
    const cdp_pipe_edge stream = {tokens_of() * plan_of.width, REAL_DTYPE};
    cdp_schedule *schedule;
    cdp_pipeline *pipeline = NULL;
    if (!worked(cdp_schedule_create(&plan, &schedule))) return false;
    stage_open(&s, rank, n, cdp_schedule_peak(schedule, rank), text);
    const cdp_pipe_stage mine = {.in = &stream,
        .out = &stream,
        .in_count = rank > 0,
        .out_count = rank + 1 < n,
        .forward = forward,
        .backward = backward,
        .user = &s};
    const cdp_pipeline_desc desc = {
        .group = world, .schedule = schedule, .stages = &mine, .stage_count = 1};
    const uint64_t from = first_block(rank, n), to = first_block(rank + 1, n);
    bool good = rank || say_schedule(schedule, n);
    good = worked(cdp_pipeline_create(&desc, &pipeline)) && good;
    if (pipeline) good = train(world, pipeline, &s) && good;
    if (good)
        printf("stage %u: blocks %llu to %llu%s%s, %llu parameters: %llu micro-batches\n", rank,
            llu(from), llu(to - 1), is_first(&s) ? ", embeddings" : "",
            is_last(&s) ? ", output and loss" : "", llu(s.m.value_count), llu(s.done));
    cdp_pipeline_destroy(pipeline);
    cdp_schedule_destroy(schedule);
    stage_close(&s);
    return good;
}

int main(int argc, char **argv) {
    const char *const usage =
        "11_pipeline: a transformer in stages, one on each rank, beside the same in one process.\n"
        "usage: [cdprun -n 4] ./pipeline [--steps N] [--micro N] [--layers N] [--width N] [TEXT]";
    const option options[] = {{"--steps", &run_of.steps, 1000000},
        {"--micro", &run_of.micro, MAX_MICRO}, {"--layers", &plan_of.layers, 64},
        {"--width", &plan_of.width, 4096}};
    corpus text = {0};
    cdp_group *world;
    reason why;
    bool single;
    if (help(argc, argv, usage)) return 0;
    const int at = read_options(argc, argv, options, 4);
    if (!at) {
        fprintf(stderr, "%s\n", usage);
        return 2;
    }
    plan_of.decay = run_of.steps;
    if (!join_world(&world, &single)) return 1;
    if (!options_fit(cdp_size(world), &why)
        || !corpus_gather(&text, argv + at, argc - at, argv[0], plan_of.context, &why)) {
        complain(&why);
        return 2;
    }
    const bool good = train_in_stages(world, &text);
    corpus_free(&text);
    cdp_group_destroy(world);
    return good ? 0 : 1;
}
