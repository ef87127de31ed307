/*  test_pipeline_run.c - pipelines over ranks: the bits of one process, and failures that are named

    All numbers are integers that wrap, so sums do not depend on their order. */
#define CDP_IMPLEMENTATION
#include "cdp_pipeline.h"

#include "test.h"
#include "ranks.h"

#include <pthread.h>

enum {
    STAGES = 16,
    MICROS = 16,
    TENSORS = 3,
    MOST = 40000 /* elements of a tensor: its message is longer than those that are sent early */
};

/* ---- a model: stage s makes each tensor of border s + 1 from those of border s ---- */

typedef struct border {
    uint32_t count;
    cdp_pipe_edge tensors[TENSORS];
} border;

typedef struct model {
    cdp_schedule *schedule;
    cdp_pipe_kind kind;
    uint32_t p, v, m, stages, step;
    border borders[STAGES + 1]; /* the first one is the data, the last one the result */
    uint64_t weights[STAGES][TENSORS];
    uint64_t grads[STAGES][TENSORS]; /* added over micro-batches: each stage by its rank alone */
    uint64_t results[MICROS];        /* a hash of what came out */
    bool own_memory, frames;
    uint32_t bad_stage, bad_micro; /* where a callback fails, or its rank dies */
    cdp_act_kind bad_kind;
    bool dies;
    uint32_t sleep_ms;
    pthread_barrier_t opened;
    uint32_t failed, said; /* ranks that failed, and that said what the test wants */
    int64_t allocations;
} model;

static uint64_t seed_of;
static uint32_t draw(uint32_t below) {
    seed_of = seed_of * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed_of >> 33) % below;
}

static uint64_t input_of(const model *k, uint32_t micro, uint32_t tensor, uint64_t j) {
    return (j + 1) * (micro + 3) * (tensor + 7) + k->step;
}

/* A stage on one rank. */
typedef struct part {
    model *k;
    cdp_group *group;
    uint32_t stage, calls, rows;     /* callbacks of this step, and how many there will be */
    uint64_t *data[MICROS][TENSORS]; /* of the first stage */
    uint64_t *own[4][MICROS][TENSORS];
    bool firsts, lasts;
    cdp_ddp *ddp; /* NULL: there are no copies of the stage */
    double weights[TENSORS];
} part;

static const uint64_t *input(part *s, const cdp_pipe_micro *m, uint32_t t) {
    return (const uint64_t *)(s->stage ? m->in[t] : s->data[m->micro][t]);
}

static uint64_t value(
    const part *s, const uint64_t *const *in, const border *from, uint32_t t, uint64_t j) {
    const uint32_t k = t % from->count;
    return s->k->weights[s->stage][t] * in[k][j % from->tensors[k].count] + j;
}

/* Once for each row. */
static cdp_status trouble(part *s, const cdp_pipe_micro *m) {
    model *k = s->k;
    if (s->group) {
        T_EQ(s->calls == 0, m->first);
        T_EQ(s->calls + 1 == s->rows, m->last);
    }
    ++s->calls;
    if (m->stage != k->bad_stage || m->micro != k->bad_micro || m->kind != k->bad_kind)
        return CDP_OK;
    if (k->sleep_ms) {
        const struct timespec t = {k->sleep_ms / 1000, k->sleep_ms % 1000 * 1000000L};
        nanosleep(&t, NULL);
        return CDP_OK;
    }
    if (k->dies) {
        cdp_group_destroy(s->group);
        pthread_exit(NULL);
    }
    return cdp_error_set(CDP_ERR_IO, -1, 0, "no more data");
}

static void inputs_of(part *s, const cdp_pipe_micro *m, const uint64_t **in) {
    for (uint32_t t = 0; t < s->k->borders[s->stage].count; ++t)
        in[t] = input(s, m, t);
}

static cdp_status forward(void *user, const cdp_pipe_micro *m) {
    part *s = (part *)user;
    const border *from = &s->k->borders[s->stage], *to = from + 1;
    const bool last = s->stage + 1 == s->k->stages;
    const uint64_t *in[TENSORS];
    uint64_t sum = 0;
    inputs_of(s, m, in);
    T(m->stage == s->stage);
    T(m->slot < cdp_schedule_peak(s->k->schedule, cdp_schedule_rank_of(s->k->schedule, s->stage)));
    for (uint32_t t = 0; t < to->count; ++t) {
        for (uint64_t j = 0; j < to->tensors[t].count; ++j) {
            const uint64_t v = value(s, in, from, t, j);
            if (last)
                sum = sum * 31 + v;
            else
                ((uint64_t *)m->out[t])[j] = v;
        }
    }
    if (last) s->k->results[m->micro] = sum;
    if (m->first) s->firsts = true;
    if (m->last) s->lasts = true;
    return trouble(s, m);
}

/* The gradient of what comes out; the loss of the last stage is half the sum of squares. */
static uint64_t grad_of(
    part *s, const cdp_pipe_micro *m, const uint64_t *const *in, uint32_t t, uint64_t j) {
    if (s->stage + 1 == s->k->stages) return value(s, in, &s->k->borders[s->stage], t, j);
    return ((const uint64_t *)m->grad_out[t])[j];
}

static cdp_status backward_input(void *user, const cdp_pipe_micro *m) {
    part *s = (part *)user;
    const border *from = &s->k->borders[s->stage], *to = from + 1;
    const uint64_t *in[TENSORS];
    inputs_of(s, m, in);
    for (uint32_t t = 0; s->stage && t < from->count; ++t)
        memset(m->grad_in[t], 0, from->tensors[t].count * 8);
    for (uint32_t t = 0; s->stage && t < to->count; ++t) {
        const uint32_t k = t % from->count;
        for (uint64_t j = 0; j < to->tensors[t].count; ++j)
            ((uint64_t *)m->grad_in[k])[j % from->tensors[k].count] +=
                s->k->weights[s->stage][t] * grad_of(s, m, in, t, j);
    }
    return trouble(s, m);
}

/* The gradients of a stage are complete: its copies take their mean, while other stages compute. */
static cdp_status reduce(part *s) {
    double *grads = (double *)cdp_ddp_grad(s->ddp, 0);
    cdp_status st = cdp_ddp_backward_begin(s->ddp);
    for (uint32_t t = 0; t < TENSORS; ++t)
        grads[t] = (double)(s->k->grads[s->stage][t] % 1000003);
    if (st == CDP_OK) cdp_ddp_ready(s->ddp, 0);
    return st == CDP_OK ? cdp_ddp_backward_end(s->ddp) : st;
}

static cdp_status backward_weights(void *user, const cdp_pipe_micro *m) {
    part *s = (part *)user;
    const border *from = &s->k->borders[s->stage], *to = from + 1;
    const uint64_t *in[TENSORS];
    inputs_of(s, m, in);
    for (uint32_t t = 0; t < to->count; ++t) {
        const uint32_t k = t % from->count;
        for (uint64_t j = 0; j < to->tensors[t].count; ++j)
            s->k->grads[s->stage][t] += grad_of(s, m, in, t, j) * in[k][j % from->tensors[k].count];
    }
    if (m->last) s->lasts = true;
    if (m->last && s->ddp) OK(reduce(s));
    return m->kind == CDP_ACT_W ? trouble(s, m) : CDP_OK;
}

static cdp_status backward(void *user, const cdp_pipe_micro *m) {
    const cdp_status st = backward_input(user, m);
    return st == CDP_OK ? backward_weights(user, m) : st;
}

static void *memory_of(void *user, cdp_pipe_role role, uint32_t micro, uint32_t tensor) {
    return ((part *)user)->own[role][micro][tensor];
}

/* ---- the same in one process ---- */

static uint64_t *tensor(const border *b, uint32_t t) {
    return (uint64_t *)calloc(b->tensors[t].count ? b->tensors[t].count : 1, 8);
}

static void serial(model *k, uint64_t grads[STAGES][TENSORS], uint64_t *results) {
    uint64_t *at[STAGES + 1][TENSORS], *back[STAGES + 1][TENSORS];
    model copy = *k;
    memset(copy.grads, 0, sizeof copy.grads);
    for (uint32_t i = 0; i < k->m; ++i) {
        static part s;
        for (uint32_t b = 0; b <= k->stages; ++b)
            for (uint32_t t = 0; t < k->borders[b].count; ++t) {
                at[b][t] = tensor(&k->borders[b], t);
                back[b][t] = tensor(&k->borders[b], t);
            }
        for (uint32_t t = 0; t < k->borders[0].count; ++t)
            for (uint64_t j = 0; j < k->borders[0].tensors[t].count; ++j)
                at[0][t][j] = input_of(k, i, t, j);
        for (uint32_t x = 0; x < 2 * k->stages; ++x) {
            const bool up = x < k->stages;
            const uint32_t n = up ? x : 2 * k->stages - 1 - x;
            cdp_pipe_micro m = {.kind = up ? CDP_ACT_F : CDP_ACT_B, .stage = n, .micro = i};
            m.in = (void *const *)at[n];
            m.out = (void *const *)at[n + 1];
            m.grad_in = (void *const *)back[n];
            m.grad_out = (void *const *)back[n + 1];
            s.k = &copy;
            s.stage = n;
            memcpy(s.data[i], at[0], sizeof at[0]);
            copy.bad_stage = UINT32_MAX;
            if (up)
                OK(forward(&s, &m));
            else if (k->kind != CDP_PIPE_EVAL)
                OK(backward(&s, &m));
        }
        for (uint32_t b = 0; b <= k->stages; ++b)
            for (uint32_t t = 0; t < k->borders[b].count; ++t) {
                free(at[b][t]);
                free(back[b][t]);
            }
    }
    memcpy(grads, copy.grads, sizeof copy.grads);
    memcpy(results, copy.results, sizeof copy.results);
}

/* ---- one rank ---- */

static void part_open(part *s, model *k, cdp_group *g, uint32_t stage) {
    memset(s, 0, sizeof *s);
    s->k = k;
    s->group = g;
    s->stage = stage;
    for (uint32_t i = 0; i < k->m; ++i) {
        for (uint32_t t = 0; t < TENSORS; ++t) {
            const border *in = &k->borders[stage], *out = in + 1;
            if (t < in->count && !stage) s->data[i][t] = tensor(in, t);
            for (uint32_t role = 0; role < 4 && k->own_memory; ++role) {
                const border *b = role == CDP_PIPE_IN || role == CDP_PIPE_GRAD_IN ? in : out;
                if (t < b->count) s->own[role][i][t] = tensor(b, t);
            }
        }
    }
}

static void part_close(part *s) {
    for (uint32_t i = 0; i < MICROS; ++i)
        for (uint32_t t = 0; t < TENSORS; ++t) {
            free(s->data[i][t]);
            for (uint32_t role = 0; role < 4; ++role)
                free(s->own[role][i][t]);
        }
}

static void part_fill(part *s) {
    const border *b = &s->k->borders[0];
    const cdp_act *acts;
    const uint32_t rank = cdp_schedule_rank_of(s->k->schedule, s->stage);
    s->firsts = s->lasts = false;
    s->calls = s->rows = 0;
    for (uint32_t n = cdp_schedule_rows(s->k->schedule, rank, &acts); n-- > 0;)
        s->rows += acts[n].stage == s->stage;
    for (uint32_t i = 0; i < s->k->m && !s->stage; ++i)
        for (uint32_t t = 0; t < b->count; ++t)
            for (uint64_t j = 0; j < b->tensors[t].count; ++j)
                s->data[i][t][j] = input_of(s->k, i, t, j);
}

static cdp_status one_step(model *k, cdp_pipeline *p) {
    cdp_status st;
    if (!k->frames) return cdp_pipeline_step(p);
    st = cdp_pipeline_start(p);
    T(st != CDP_OK || cdp_pipeline_step(p) == CDP_ERR_STATE);
    if (st == CDP_OK) do
            st = cdp_pipeline_poll(p, 100);
        while (st == CDP_PENDING);
    T_EQ(CDP_ERR_STATE, cdp_pipeline_poll(p, 1));
    return st;
}

/* What a rank keeps also when its thread ends early. */
static struct {
    part parts[STAGES];
    cdp_pipe_stage stages[STAGES];
    uint32_t count;
    cdp_pipeline *pipeline;
    cdp_error error;
    cdp_status status;
    uint64_t took_ms;
} kept[RANKS_MAX];

static uint64_t now_ms(void) {
    return cdp_os_default()->now_ns(cdp_os_default()->user) / 1000000;
}

static cdp_status rank_open(model *k, cdp_group *g, uint32_t timeout_ms) {
    const uint32_t r = cdp_world_rank_of(g, cdp_rank(g));
    border lists[STAGES + 1]; /* gone when this function returns, and overwritten before */
    memcpy(lists, k->borders, sizeof lists);
    kept[r].count = 0;
    for (uint32_t s = 0; s < k->stages; ++s) {
        const border *in = &lists[s], *out = in + 1;
        if (cdp_schedule_rank_of(k->schedule, s) != cdp_rank(g)) continue;
        part *at = &kept[r].parts[kept[r].count];
        part_open(at, k, g, s);
        kept[r].stages[kept[r].count++] = (cdp_pipe_stage){.in = s ? in->tensors : NULL,
            .in_count = s ? in->count : 0,
            .out = s + 1 < k->stages ? out->tensors : NULL,
            .out_count = s + 1 < k->stages ? out->count : 0,
            .forward = forward,
            .backward = backward,
            .backward_input = backward_input,
            .backward_weights = backward_weights,
            .memory = k->own_memory ? memory_of : NULL,
            .user = at};
    }
    const cdp_pipeline_desc d = {.group = g,
        .schedule = k->schedule,
        .stages = kept[r].stages,
        .stage_count = kept[r].count,
        .timeout_ms = timeout_ms,
        .tag = 100};
    const cdp_status st = cdp_pipeline_create(&d, &kept[r].pipeline);
    memset(lists, 0xee, sizeof lists);
    return st;
}

static void rank_close(uint32_t r) {
    cdp_pipeline_destroy(kept[r].pipeline);
    kept[r].pipeline = NULL;
    for (uint32_t i = 0; i < kept[r].count; ++i)
        part_close(&kept[r].parts[i]);
    kept[r].count = 0;
}

enum {
    STEPS = 3
};

static void train(cdp_group *g, void *arg) {
    model *k = (model *)arg;
    const uint32_t r = cdp_rank(g);
    OK(rank_open(k, g, 0));
    for (uint32_t n = 0; n < STEPS; ++n) {
        OK(cdp_barrier(g));
        if (r == 0) k->step = n;
        if (r == 0) memset(k->grads, 0, sizeof k->grads);
        OK(cdp_barrier(g));
        for (uint32_t i = 0; i < kept[r].count; ++i)
            part_fill(&kept[r].parts[i]);
        OK(one_step(k, kept[r].pipeline));
        for (uint32_t i = 0; i < kept[r].count; ++i)
            T(kept[r].parts[i].firsts && kept[r].parts[i].lasts);
    }
    OK(cdp_barrier(g));
    rank_close(r);
}

static void draw_model(model *k, uint32_t most) {
    static const cdp_pipe_kind kinds[] = {CDP_PIPE_1F1B, CDP_PIPE_GPIPE, CDP_PIPE_INTERLEAVED,
        CDP_PIPE_BFS, CDP_PIPE_ZERO_BUBBLE, CDP_PIPE_ZBV, CDP_PIPE_DUALPIPEV, CDP_PIPE_EVAL};
    cdp_schedule_desc d = {0};
    memset(k, 0, sizeof *k);
    k->bad_stage = UINT32_MAX;
    k->kind = d.kind = kinds[draw(8)];
    k->p = d.ranks = 1 + draw(4);
    k->v = d.kind < CDP_PIPE_INTERLEAVED ? 1 : 1 + draw(3);
    if (d.kind == CDP_PIPE_ZBV || d.kind == CDP_PIPE_DUALPIPEV) k->v = 2;
    d.stages_per_rank = k->v;
    k->m = d.micros = k->p * (2 + draw(2));
    if (d.kind < CDP_PIPE_INTERLEAVED) d.micros = k->m = 1 + draw(9);
    d.ahead = draw(3);
    k->stages = k->p * k->v;
    for (uint32_t b = 0; b <= k->stages; ++b) {
        k->borders[b].count = 1 + draw(TENSORS);
        for (uint32_t t = 0; t < k->borders[b].count; ++t)
            k->borders[b].tensors[t] = (cdp_pipe_edge){1 + draw(most), CDP_DTYPE_U64};
    }
    for (uint32_t s = 0; s < k->stages; ++s)
        for (uint32_t t = 0; t < TENSORS; ++t)
            k->weights[s][t] = 3 + draw(1000);
    OK(cdp_schedule_create(&d, &k->schedule));
}

static void equals_serial(model *k, const cdp_group_desc *like) {
    uint64_t grads[STAGES][TENSORS], results[MICROS];
    run_ranks(k->p, like, 0, train, k);
    serial(k, grads, results);
    T(memcmp(results, k->results, k->m * sizeof *results) == 0);
    if (!T(memcmp(grads, k->grads, sizeof grads) == 0))
        fprintf(stderr, "kind %d, %u x %u x %u\n", k->kind, k->p, k->v, k->m);
    cdp_schedule_destroy(k->schedule);
}

TEST(a_pipeline_has_the_bits_of_one_process) {
    model k;
    for (seed_of = 1; seed_of <= (TEST_SLOW ? 10 : 60); ++seed_of) {
        const uint64_t seed = seed_of;
        draw_model(&k, 200);
        k.own_memory = draw(2);
        equals_serial(&k, NULL);
        seed_of = seed;
    }
}

TEST(long_tensors) {
    model k;
    for (seed_of = 101; seed_of <= (TEST_SLOW ? 102 : 108); ++seed_of) {
        const uint64_t seed = seed_of;
        draw_model(&k, MOST);
        k.own_memory = draw(2);
        equals_serial(&k, NULL);
        seed_of = seed;
    }
}

TEST(in_frames_without_threads) {
    const cdp_group_desc like = {.no_thread = true};
    model k;
    for (seed_of = 201; seed_of <= (TEST_SLOW ? 203 : 220); ++seed_of) {
        const uint64_t seed = seed_of;
        draw_model(&k, 300);
        k.frames = true;
        equals_serial(&k, &like);
        seed_of = seed;
    }
}

/* ---- copies of a pipeline ---- */

/* Ranks 0 and 1 are one pipeline, 2 and 3 the other one; a stage and its copy reduce. */
static void train_copies(cdp_group *g, void *arg) {
    const uint32_t r = cdp_rank(g), copy = r / 2;
    model *k = (model *)arg + copy;
    cdp_group *pipe, *copies;
    double results[2];
    OK(cdp_group_split(g, copy, r, &pipe));
    OK(cdp_group_split(g, r % 2, r, &copies));
    OK(rank_open(k, pipe, 0));
    for (uint32_t i = 0; i < kept[r].count; ++i) {
        part *s = &kept[r].parts[i];
        const cdp_param param = {.data = s->weights, .count = TENSORS, .dtype = CDP_DTYPE_F64};
        const cdp_ddp_desc d = {.group = copies, .params = &param, .param_count = 1};
        OK(cdp_ddp_create(&d, &s->ddp));
        part_fill(s);
    }
    OK(cdp_pipeline_step(kept[r].pipeline));
    OK(cdp_barrier(g));
    for (uint32_t i = 0; i < kept[r].count; ++i) {
        const part *s = &kept[r].parts[i];
        const double *grads = (const double *)cdp_ddp_grad(s->ddp, 0);
        for (uint32_t t = 0; t < TENSORS; ++t) {
            const uint64_t a = ((model *)arg)[0].grads[s->stage][t] % 1000003;
            const uint64_t b = ((model *)arg)[1].grads[s->stage][t] % 1000003;
            T(grads[t] == (double)(a + b) / 2);
        }
        cdp_ddp_destroy(s->ddp);
    }
    /* the loss of the last stage, on all ranks */
    const bool last = cdp_schedule_rank_of(k->schedule, k->stages - 1) == cdp_rank(pipe);
    results[0] = last ? (double)(k->results[0] % 1000003) : -1;
    OK(cdp_broadcast(
        pipe, results, 1, CDP_DTYPE_F64, cdp_schedule_rank_of(k->schedule, k->stages - 1)));
    T(results[0] == (double)(k->results[0] % 1000003));
    OK(cdp_barrier(g));
    rank_close(r);
    cdp_group_destroy(pipe);
    cdp_group_destroy(copies);
}

TEST(copies_of_a_stage_reduce_when_it_is_complete) {
    static const cdp_pipe_kind kinds[] = {CDP_PIPE_1F1B, CDP_PIPE_GPIPE, CDP_PIPE_INTERLEAVED,
        CDP_PIPE_BFS, CDP_PIPE_ZERO_BUBBLE, CDP_PIPE_ZBV, CDP_PIPE_DUALPIPEV};
    for (uint32_t i = 0; i < sizeof kinds / sizeof *kinds; ++i) {
        static model k[2];
        uint64_t grads[STAGES][TENSORS], results[MICROS];
        seed_of = 301;
        draw_model(&k[0], 60);
        cdp_schedule_destroy(k[0].schedule);
        const cdp_schedule_desc d = {.kind = kinds[i],
            .ranks = 2,
            .micros = 6,
            .stages_per_rank = kinds[i] >= CDP_PIPE_INTERLEAVED ? 2 : 1};
        memset(&k[0].borders[0], 0, sizeof k[0].borders);
        k[0].kind = kinds[i];
        k[0].p = 2;
        k[0].m = 6;
        k[0].stages = 2 * d.stages_per_rank;
        for (uint32_t b = 0; b <= k[0].stages; ++b)
            k[0].borders[b] = (border){1, {{20 + b, CDP_DTYPE_U64}}};
        for (uint32_t s = 0; s < STAGES; ++s)
            k[0].weights[s][0] = 5 + s;
        OK(cdp_schedule_create(&d, &k[0].schedule));
        k[1] = k[0];
        k[1].step = 17; /* other data */
        run_ranks(4, NULL, 0, train_copies, k);
        for (uint32_t c = 0; c < 2; ++c) {
            serial(&k[c], grads, results);
            T(memcmp(grads, k[c].grads, sizeof grads) == 0);
        }
        T(memcmp(k[0].grads, k[1].grads, sizeof grads) != 0);
        cdp_schedule_destroy(k[0].schedule);
    }
}

/* ---- memory ---- */

static void without_allocations(cdp_group *g, void *arg) {
    model *k = (model *)arg;
    const uint32_t r = cdp_rank(g);
    OK(rank_open(k, g, 0));
    for (uint32_t n = 0; n < 12; ++n) {
        OK(cdp_barrier(g));
        if (n == 2 && r == 0) k->allocations = __atomic_load_n(&counted.calls, __ATOMIC_SEQ_CST);
        OK(cdp_barrier(g));
        for (uint32_t i = 0; i < kept[r].count; ++i)
            part_fill(&kept[r].parts[i]);
        OK(cdp_pipeline_step(kept[r].pipeline));
    }
    OK(cdp_barrier(g));
    if (r == 0) k->allocations = __atomic_load_n(&counted.calls, __ATOMIC_SEQ_CST) - k->allocations;
    OK(cdp_barrier(g));
    rank_close(r);
}

/* A stream takes memory when a message first comes early on it, which may happen in any step, but
   not often: one allocation for each message of a step would be hundreds. */
TEST(later_steps_allocate_nothing) {
    const cdp_schedule_desc d = {.kind = CDP_PIPE_1F1B, .ranks = 4, .micros = 8};
    model k;
    seed_of = 9;
    draw_model(&k, 400);
    cdp_schedule_destroy(k.schedule);
    k.kind = d.kind;
    k.p = 4;
    k.v = 1;
    k.m = 8;
    k.stages = 4;
    for (uint32_t b = 0; b <= 4; ++b)
        k.borders[b] = (border){2, {{100, CDP_DTYPE_U64}, {33, CDP_DTYPE_U64}, {0, CDP_DTYPE_F32}}};
    OK(cdp_schedule_create(&d, &k.schedule));
    run_counted(4, without_allocations, &k);
    if (!T(k.allocations <= 40)) fprintf(stderr, "%d allocations\n", (int)k.allocations);
    cdp_schedule_destroy(k.schedule);
}

/* ---- failures ---- */

static void fixed_model(model *k, cdp_pipe_kind kind) {
    const cdp_schedule_desc d = {.kind = kind, .ranks = 4, .micros = 8};
    memset(k, 0, sizeof *k);
    k->kind = kind;
    k->p = k->stages = 4;
    k->v = 1;
    k->m = 8;
    k->bad_stage = UINT32_MAX;
    for (uint32_t b = 0; b <= 4; ++b)
        k->borders[b] = (border){1, {{50, CDP_DTYPE_U64}, {0, CDP_DTYPE_F32}, {0, CDP_DTYPE_F32}}};
    OK(cdp_schedule_create(&d, &k->schedule));
}

static void ends_badly(cdp_group *g, void *arg) {
    model *k = (model *)arg;
    const uint32_t r = cdp_rank(g);
    OK(rank_open(k, g, k->sleep_ms ? k->sleep_ms / 3 : 0));
    pthread_barrier_wait(&k->opened); /* no failure reaches a creation */
    for (uint32_t i = 0; i < kept[r].count; ++i)
        part_fill(&kept[r].parts[i]);
    const uint64_t from = now_ms();
    kept[r].status = cdp_pipeline_step(kept[r].pipeline);
    kept[r].took_ms = now_ms() - from;
    kept[r].error = *cdp_last_error();
    if (kept[r].status == CDP_OK) return;
    T_EQ(CDP_ERR_STATE, cdp_pipeline_poll(kept[r].pipeline, 0)); /* the step has ended */
}

/* Every row of a rank: one rank of the four fails there. */
static void each_row(bool dies) {
    model k;
    for (uint32_t bad = 0; bad < 4; ++bad) {
        for (uint32_t row = 0; row < 16; row += TEST_SLOW ? 7 : 1) {
            const cdp_act *acts;
            char want[100];
            world w;
            fixed_model(&k, CDP_PIPE_1F1B);
            T_EQ(16, cdp_schedule_rows(k.schedule, bad, &acts));
            k.bad_stage = acts[row].stage;
            k.bad_micro = acts[row].micro;
            k.bad_kind = (cdp_act_kind)acts[row].kind;
            k.dies = dies;
            pthread_barrier_init(&k.opened, NULL, 4);
            T(world_open(&w, 4, NULL, 0));
            world_threads(&w, ends_badly, &k);
            snprintf(want, sizeof want, "stage %u on rank %u failed in %u%c%u, micro-batch %u",
                (unsigned)acts[row].stage, bad, (unsigned)acts[row].stage, "?FBIW"[acts[row].kind],
                acts[row].micro, acts[row].micro);
            if (dies) {
                snprintf(want, sizeof want, "rank %u (stage %u) is not known", bad, bad);
                w.group[bad] = NULL;
            }
            for (uint32_t r = 0; r < 4; ++r) {
                /* a rank whose part was complete may end its step */
                const bool ended = kept[r].status == CDP_OK;
                if (r != bad && !ended) {
                    T_EQ(dies ? CDP_ERR_PEER_LOST : CDP_ERR_ABORTED, kept[r].status);
                    if (!T(strstr(kept[r].error.text, want) != NULL))
                        fprintf(stderr, "row %u: want %s: %s\n", row, want, kept[r].error.text);
                    T(strstr(kept[r].error.text, "micro-batch") != NULL);
                    T(kept[r].took_ms < 5000u * TEST_SLACK);
                } else if (r == bad && !dies) {
                    T_EQ(CDP_ERR_IO, kept[r].status);
                    T(strstr(kept[r].error.text, "no more data") != NULL);
                }
                rank_close(r);
            }
            world_close(&w);
            pthread_barrier_destroy(&k.opened);
            cdp_schedule_destroy(k.schedule);
        }
    }
}

TEST(a_callback_that_fails_is_named_by_all) {
    each_row(false);
}

TEST(a_rank_that_dies_is_named_by_all) {
    each_row(true);
}

/* At every row of rank 2: the others name it, though most of them wait for one that waits, too. */
TEST(a_stage_that_stalls_is_named_at_the_deadline) {
    for (uint32_t row = 0; row < 16; row += TEST_SLOW ? 9 : 3) {
        const cdp_act *acts;
        model k;
        world w;
        fixed_model(&k, CDP_PIPE_1F1B);
        (void)cdp_schedule_rows(k.schedule, 2, &acts);
        k.bad_stage = 2;
        k.bad_micro = acts[row].micro;
        k.bad_kind = (cdp_act_kind)acts[row].kind;
        k.sleep_ms = TEST_SLOW ? 4500 : 900; /* three deadlines */
        pthread_barrier_init(&k.opened, NULL, 4);
        T(world_open(&w, 4, NULL, 0));
        world_threads(&w, ends_badly, &k);
        pthread_barrier_destroy(&k.opened);
        for (uint32_t r = 0; r < 4; ++r) {
            const cdp_error *e = &kept[r].error;
            rank_close(r);
            if (r == 2 || kept[r].status == CDP_OK) continue; /* its part was complete */
            T_EQ(CDP_ERR_TIMEOUT, kept[r].status);
            T_EQ(2, e->peer);
            T(kept[r].took_ms >= k.sleep_ms / 3 && kept[r].took_ms < 800 * TEST_SLACK);
            if (!T(strstr(e->text, "rank 2 (stage 2) is not known to have done more than before")))
                fprintf(stderr, "row %u, rank %u: %s\n", row, r, e->text);
        }
        world_close(&w);
        cdp_schedule_destroy(k.schedule);
    }
}

static cdp_status no_work(void *user, const cdp_pipe_micro *micro) {
    (void)user;
    (void)micro;
    return CDP_OK;
}

/* No schedule, or one that was destroyed, on one rank: the others are told at once. */
static void lacks_a_schedule(cdp_group *g, void *arg) {
    const cdp_schedule_desc sd = {.kind = CDP_PIPE_GPIPE, .ranks = 2, .micros = 2};
    const cdp_pipe_edge between = {.count = 1, .dtype = CDP_DTYPE_F32};
    const bool last = cdp_rank(g) == 1;
    const cdp_pipe_stage stage = {.forward = no_work,
        .backward = no_work,
        .in = last ? &between : NULL,
        .in_count = last,
        .out = last ? NULL : &between,
        .out_count = !last};
    cdp_pipeline_desc d = {.group = g, .stages = &stage, .stage_count = 1};
    cdp_schedule *s = NULL;
    cdp_pipeline *p = NULL;
    uint64_t one = 1;
    (void)arg;
    for (int gone = 0; gone < 2; ++gone) {
        OK(cdp_schedule_create(&sd, &s));
        d.schedule = cdp_rank(g) == 1 && !gone ? NULL : s;
        if (cdp_rank(g) == 1 && gone) cdp_schedule_destroy(s);
        const cdp_status st = cdp_pipeline_create(&d, &p);
        T(!p);
        if (last) {
            T_EQ(gone ? CDP_ERR_STATE : CDP_ERR_INVALID, st);
        } else {
            T_EQ(CDP_ERR_MISMATCH, st);
            T(strstr(cdp_last_error()->text, "rank 1 refused") != NULL);
        }
        OK(cdp_allreduce(g, NULL, &one, 1, CDP_DTYPE_U64, CDP_REDUCE_MAX));
        cdp_schedule_destroy(s);
    }
}

TEST(one_rank_lacks_a_schedule) {
    run_ranks(2, NULL, 0, lacks_a_schedule, NULL);
}

static void differs(cdp_group *g, void *arg) {
    model *k = (model *)arg;
    const uint32_t r = cdp_rank(g);
    model own = *k;
    uint64_t one = 1;
    cdp_schedule *other = NULL;
    const cdp_schedule_desc d = {.kind = CDP_PIPE_GPIPE, .ranks = 4, .micros = 8};
    OK(cdp_schedule_create(&d, &other));
    if (r == 2) own.schedule = other;
    T_EQ(CDP_ERR_MISMATCH, rank_open(&own, g, 0));
    /* 1F1B has F0 F1 F2 F3 B0 on rank 0 */
    if (!T(strstr(cdp_last_error()->text, "row 4 of rank 0 is 0F4 on rank 2, 0B0 on rank 0")))
        fprintf(stderr, "%s\n", cdp_last_error()->text);
    T(kept[r].pipeline == NULL);
    rank_close(r);
    own.schedule = k->schedule;
    if (r == 1) own.borders[2].tensors[0].count = 51;
    T_EQ(CDP_ERR_MISMATCH, rank_open(&own, g, 0));
    T(strstr(cdp_last_error()->text, "the out of stage 1 on rank 1 is not the in of stage 2 on"));
    rank_close(r);
    own = *k;
    if (r == 3) own.borders[3].tensors[0].dtype = (cdp_dtype)99;
    T_EQ(r == 3 ? CDP_ERR_UNSUPPORTED : CDP_ERR_MISMATCH, rank_open(&own, g, 0));
    if (r != 3) T(strstr(cdp_last_error()->text, "rank 3 refused") != NULL);
    rank_close(r);
    OK(cdp_allreduce(g, NULL, &one, 1, CDP_DTYPE_U64, CDP_REDUCE_SUM));
    T_EQ(4, one);
    OK(rank_open(k, g, 0));
    rank_close(r);
    cdp_schedule_destroy(other);
}

TEST(ranks_that_differ) {
    model k;
    fixed_model(&k, CDP_PIPE_1F1B);
    run_ranks(4, NULL, 0, differs, &k);
    cdp_schedule_destroy(k.schedule);
}

TEST(descs_that_are_refused) {
    const cdp_schedule_desc d = {.ranks = 1, .micros = 1}, two = {.ranks = 2, .micros = 1};
    const cdp_group_desc one = {.world_size = 1};
    cdp_pipe_stage stage = {.forward = forward};
    cdp_pipeline_desc p = {.stages = &stage, .stage_count = 1};
    cdp_pipeline *out = (cdp_pipeline *)&out;
    cdp_schedule *s, *wide;
    cdp_group *g;
    OK(cdp_schedule_create(&d, &s));
    OK(cdp_schedule_create(&two, &wide));
    OK(cdp_group_create(&one, &g));
    T_EQ(CDP_ERR_INVALID, cdp_pipeline_create(NULL, &out));
    T_EQ(CDP_ERR_INVALID, cdp_pipeline_create(&p, NULL));
    T_EQ(CDP_ERR_INVALID, cdp_pipeline_create(&p, &out));
    T(out == NULL);
    p.group = g;
    p.schedule = wide;
    T_EQ(CDP_ERR_INVALID, cdp_pipeline_create(&p, &out));
    p.schedule = s;
    T_EQ(CDP_ERR_INVALID, cdp_pipeline_create(&p, &out));
    T(strstr(cdp_last_error()->text, "stage 0 lacks .backward") != NULL);
    stage.backward = backward;
    stage.out_count = 1;
    T_EQ(CDP_ERR_INVALID, cdp_pipeline_create(&p, &out));
    stage.out_count = 0;
    p.stage_count = 2;
    T_EQ(CDP_ERR_INVALID, cdp_pipeline_create(&p, &out));
    p.stage_count = 1;
    p.tag = INT32_MAX;
    T_EQ(CDP_ERR_UNSUPPORTED, cdp_pipeline_create(&p, &out));
    p.tag = 0;
    OK(cdp_pipeline_create(&p, &out));
    T_EQ(CDP_ERR_STATE, cdp_pipeline_poll(out, 0));
    cdp_pipeline_destroy(out);
    cdp_pipeline_destroy(NULL);
    T_EQ(CDP_ERR_INVALID, cdp_pipeline_step(NULL));
    T_EQ(CDP_ERR_INVALID, cdp_pipeline_start(NULL));
    T_EQ(CDP_ERR_INVALID, cdp_pipeline_poll(NULL, 0));
    cdp_group_destroy(g);
    cdp_schedule_destroy(s);
    cdp_schedule_destroy(wide);
}

/* A rank takes a message by sender and tag alone: forward and backward, all have their own. */
TEST(each_message_has_a_tag_of_its_own) {
    const cdp_schedule_desc d = {.kind = CDP_PIPE_1F1B, .ranks = 3, .micros = 5};
    uint32_t sent[30] = {0};
    cdp_pipeline p;
    cdp_schedule *s;
    OK(cdp_schedule_create(&d, &s));
    memset(&p, 0, sizeof p);
    p.table = &s->table;
    p.desc.tag = 7;
    T_EQ(30, 2 * cdp__pipe_cells(p.table));
    for (uint64_t message = 0; message < 30; ++message) {
        const uint32_t tag = cdp__pipe_tag(&p, message) - 7;
        if (T(tag < 30)) ++sent[tag];
    }
    for (uint32_t i = 0; i < 30; ++i)
        T_EQ(1, sent[i]);
    cdp_schedule_destroy(s);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"a_pipeline_has_the_bits_of_one_process", a_pipeline_has_the_bits_of_one_process, 60},
        {"long_tensors", long_tensors, 60},
        {"in_frames_without_threads", in_frames_without_threads, 60},
        {"copies_of_a_stage_reduce_when_it_is_complete",
            copies_of_a_stage_reduce_when_it_is_complete, 60},
        {"later_steps_allocate_nothing", later_steps_allocate_nothing, 30},
        {"a_callback_that_fails_is_named_by_all", a_callback_that_fails_is_named_by_all, 120},
        {"a_rank_that_dies_is_named_by_all", a_rank_that_dies_is_named_by_all, 120},
        {"a_stage_that_stalls_is_named_at_the_deadline",
            a_stage_that_stalls_is_named_at_the_deadline, 30},
        {"one_rank_lacks_a_schedule", one_rank_lacks_a_schedule, 20},
        {"ranks_that_differ", ranks_that_differ, 30},
        {"descs_that_are_refused", descs_that_are_refused, 30},
        {"each_message_has_a_tag_of_its_own", each_message_has_a_tag_of_its_own, 30}};
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
