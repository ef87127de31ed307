/*  test_pipeline_mesh.c - data x pipeline x tensor parallel: the bits of one process

    A stage is |W x + b|. Ranks of a tensor group have columns of W; over the data ranks W and b
    are divided by cdp_fsdp.h. All numbers are small integers, so sums are exact. The last
    micro-batch has fewer samples than the others. */
#define CDP_IMPLEMENTATION
#include "cdp_pipeline.h"
#include "cdp_fsdp.h"

#include "test.h"
#include "ranks.h"

#include <math.h>
#include <pthread.h>

enum {
    WIDTH = 4,
    SAMPLES = 3, /* of a micro-batch; the last one has fewer */
    FEWER = 1,
    MOST_MICROS = 8,
    MOST_STAGES = 8,
    MOST_DATA = 2,
    STEPS = 4,
    BAD_STEP = 1, /* in which a gradient overflows */
    WEIGHTS = WIDTH * WIDTH
};

typedef struct net {
    float w[MOST_STAGES][WEIGHTS], b[MOST_STAGES][WIDTH];
} net;

typedef struct job {
    cdp_schedule *schedule, *forward_only;
    cdp_pipe_kind kind;
    uint32_t data, ranks, tensor, stages, micros;
    uint32_t step, prefetch;
    cdp_fsdp_stage divides;
    bool keep;
    /* where callbacks fail: a rank of all, in its last row; UINT32_MAX: nowhere */
    uint32_t bad_rank;
    pthread_barrier_t ended; /* nobody leaves before all have ended: that would tell them, too */
} job;

static float first_value(uint32_t stage, uint32_t k) {
    return (float)((stage * 5 + k * 2 + k / 3) % 3) - 1;
}
static float input_of(uint32_t step, uint32_t copy, uint32_t micro, uint32_t sample, uint32_t k) {
    return (float)((step * 3 + copy * 7 + micro * 5 + sample * 2 + k) % 4) - 1;
}
static float target_of(uint32_t micro, uint32_t sample, uint32_t k) {
    return (float)((micro + sample * 2 + k) % 3) + 1;
}
static uint32_t samples_of(const job *k, uint32_t micro) {
    return micro + 1 == k->micros ? FEWER : SAMPLES;
}

/* ---- a layer, columns `from` to `to` of W, which lie one after the other in rows ---- */

static void multiply(const float *w, uint32_t from, uint32_t to, const float *x, float *z) {
    for (uint32_t r = 0; r < WIDTH; ++r) {
        z[r] = 0;
        for (uint32_t c = from; c < to; ++c)
            z[r] += w[r * (to - from) + c - from] * x[c];
    }
}

static float sign_of(float z) {
    return z < 0 ? -1.0f : 1.0f;
}

static void add_bias(const float *b, float *z) {
    for (uint32_t r = 0; r < WIDTH; ++r)
        z[r] += b[r];
}

static void absolute(const float *z, float *y) {
    for (uint32_t r = 0; r < WIDTH; ++r)
        y[r] = sign_of(z[r]) * z[r];
}

/* dx[from .. to) = W' (sign(z) dy), zeros elsewhere */
static void back_input(
    const float *w, uint32_t from, uint32_t to, const float *z, const float *dy, float *dx) {
    for (uint32_t c = 0; c < WIDTH; ++c) {
        dx[c] = 0;
        for (uint32_t r = 0; r < WIDTH && c >= from && c < to; ++r)
            dx[c] += w[r * (to - from) + c - from] * sign_of(z[r]) * dy[r];
    }
}

static void back_weights(uint32_t from, uint32_t to, const float *x, const float *z,
    const float *dy, float *dw, float *db) {
    for (uint32_t r = 0; r < WIDTH; ++r) {
        const float dz = sign_of(z[r]) * dy[r];
        db[r] += dz;
        for (uint32_t c = from; c < to; ++c)
            dw[r * (to - from) + c - from] += dz * x[c];
    }
}

/* Changes a value by one against its gradient, and keeps it small. */
static float updated(float value, float grad) {
    const float v = value - (float)((grad > 0) - (grad < 0));
    if (v > 1) return -1;
    return v < -1 ? 1 : v;
}

/* ---- the same in one process ---- */

/* The loss of a copy, and its gradients, which are added. */
static double serial_copy(const job *k, const net *n, uint32_t copy, net *grads) {
    double loss = 0;
    for (uint32_t i = 0; i < k->micros; ++i)
        for (uint32_t j = 0; j < samples_of(k, i); ++j) {
            float x[MOST_STAGES + 1][WIDTH], z[MOST_STAGES][WIDTH], dy[WIDTH], dx[WIDTH];
            for (uint32_t e = 0; e < WIDTH; ++e)
                x[0][e] = input_of(k->step, copy, i, j, e);
            for (uint32_t s = 0; s < k->stages; ++s) {
                multiply(n->w[s], 0, WIDTH, x[s], z[s]);
                add_bias(n->b[s], z[s]);
                absolute(z[s], x[s + 1]);
            }
            for (uint32_t e = 0; e < WIDTH; ++e) {
                dy[e] = target_of(i, j, e);
                loss += x[k->stages][e] * dy[e];
            }
            for (uint32_t s = k->stages; s-- > 0 && grads;) {
                back_weights(0, WIDTH, x[s], z[s], dy, grads->w[s], grads->b[s]);
                back_input(n->w[s], 0, WIDTH, z[s], dy, dx);
                memcpy(dy, dx, sizeof dy);
            }
        }
    return loss;
}

static void net_begin(net *n) {
    for (uint32_t s = 0; s < MOST_STAGES; ++s) {
        for (uint32_t e = 0; e < WEIGHTS; ++e)
            n->w[s][e] = first_value(s, e);
        for (uint32_t e = 0; e < WIDTH; ++e)
            n->b[s][e] = first_value(s, WEIGHTS + e) + 1;
    }
}

/* A step of all copies: the norm of the mean gradient. */
static double serial_step(const job *k, net *n) {
    static CDP__THREAD_LOCAL net d;
    double squares = 0;
    memset(&d, 0, sizeof d);
    for (uint32_t c = 0; c < k->data; ++c)
        (void)serial_copy(k, n, c, &d);
    for (uint32_t s = 0; s < k->stages; ++s) {
        for (uint32_t e = 0; e < WEIGHTS; ++e) {
            const double g = d.w[s][e] / (double)k->data;
            squares += g * g;
            if (k->step != BAD_STEP) n->w[s][e] = updated(n->w[s][e], d.w[s][e]);
        }
        for (uint32_t e = 0; e < WIDTH; ++e) {
            const double g = d.b[s][e] / (double)k->data;
            squares += g * g;
            if (k->step != BAD_STEP) n->b[s][e] = updated(n->b[s][e], d.b[s][e]);
        }
    }
    return sqrt(squares);
}

/* ---- a stage on one rank ---- */

typedef struct part {
    job *k;
    uint32_t copy, stage, rank, step;
    uint32_t from, to; /* columns of W */
    uint32_t w, b;     /* parameters of `fsdp` */
    cdp_fsdp *fsdp;
    cdp_group *tensor;
    float kept[MOST_MICROS * MOST_STAGES][SAMPLES][WIDTH]; /* z, in slots */
    float in[MOST_MICROS][SAMPLES][WIDTH];                 /* of the first stage */
} part;

static const float *inputs(part *s, const cdp_pipe_micro *m) {
    return s->stage ? (const float *)m->in[0] : s->in[m->micro][0];
}

static cdp_status forward(void *user, const cdp_pipe_micro *m) {
    part *s = (part *)user;
    const float *x = inputs(s, m), *w = (const float *)cdp_fsdp_data(s->fsdp, s->w),
                *b = (const float *)cdp_fsdp_data(s->fsdp, s->b);
    float(*z)[WIDTH] = s->kept[m->slot], y[WIDTH];
    const uint32_t n = samples_of(s->k, m->micro);
    if (!T(w && b)) return cdp_error_set(CDP_ERR_STATE, -1, 0, "weights are not here");
    for (uint32_t j = 0; j < n; ++j)
        multiply(w, s->from, s->to, x + j * WIDTH, z[j]);
    const cdp_status st =
        cdp_allreduce(s->tensor, NULL, z[0], n * WIDTH, CDP_DTYPE_F32, CDP_REDUCE_SUM);
    for (uint32_t j = 0; j < n; ++j) {
        add_bias(b, z[j]);
        absolute(z[j], y);
        for (uint32_t e = 0; e < WIDTH && m->loss; ++e)
            *m->loss += y[e] * target_of(m->micro, j, e);
        if (!m->loss) memcpy((float *)m->out[0] + j * WIDTH, y, sizeof y);
    }
    return st;
}

static float grad_of(const part *s, const cdp_pipe_micro *m, uint32_t j, uint32_t e) {
    if (s->stage + 1 == s->k->stages) return target_of(m->micro, j, e);
    return ((const float *)m->grad_out[0])[j * WIDTH + e];
}

static cdp_status of_input(void *user, const cdp_pipe_micro *m) {
    part *s = (part *)user;
    const float *w = (const float *)cdp_fsdp_data(s->fsdp, s->w);
    const uint32_t n = samples_of(s->k, m->micro);
    if (!s->stage) return CDP_OK;
    if (!T(w != NULL)) return cdp_error_set(CDP_ERR_STATE, -1, 0, "weights are not here");
    for (uint32_t j = 0; j < n; ++j) {
        float dy[WIDTH];
        for (uint32_t e = 0; e < WIDTH; ++e)
            dy[e] = grad_of(s, m, j, e);
        back_input(w, s->from, s->to, s->kept[m->slot][j], dy, (float *)m->grad_in[0] + j * WIDTH);
    }
    return cdp_allreduce(s->tensor, NULL, m->grad_in[0], n * WIDTH, CDP_DTYPE_F32, CDP_REDUCE_SUM);
}

static cdp_status of_weights(void *user, const cdp_pipe_micro *m) {
    part *s = (part *)user;
    const float *x = inputs(s, m);
    float *dw = cdp_fsdp_grad(s->fsdp, s->w), *db = cdp_fsdp_grad(s->fsdp, s->b);
    if (!dw || !db) return cdp_last_error()->status;
    for (uint32_t j = 0; j < samples_of(s->k, m->micro); ++j) {
        float dy[WIDTH];
        for (uint32_t e = 0; e < WIDTH; ++e)
            dy[e] = grad_of(s, m, j, e);
        back_weights(s->from, s->to, x + j * WIDTH, s->kept[m->slot][j], dy, dw, db);
    }
    if (m->last && s->rank == s->k->bad_rank)
        return cdp_error_set(CDP_ERR_IO, -1, 0, "no more data");
    if (s->step == BAD_STEP && s->rank == 0 && m->last) db[0] += HUGE_VALF;
    return CDP_OK;
}

static cdp_status backward(void *user, const cdp_pipe_micro *m) {
    const cdp_status st = of_input(user, m);
    return st == CDP_OK ? of_weights(user, m) : st;
}

/* ---- a rank ---- */

typedef struct rank {
    job *k;
    uint32_t number, copy, place, column, own;
    cdp_group *pipe, *data, *tensor;
    part parts[MOST_STAGES];
    cdp_pipe_stage stages[MOST_STAGES];
    cdp_fsdp *fsdp;
    cdp_pipeline *trains, *judges;
} rank;

static cdp_status update(void *user, const cdp_fsdp_piece *p) {
    (void)user;
    for (uint64_t e = 0; e < p->count; ++e)
        p->data[e] = updated(p->data[e], p->grad[e]);
    return CDP_OK;
}

/* Parameters 2 i and 2 i + 1, in units of these numbers, are W and b of the i-th stage here. */
static void fill(void *user, uint32_t param, uint64_t first, uint64_t count, float *out) {
    const part *s = &((const rank *)user)->parts[param / 2];
    const uint32_t columns = s->to - s->from;
    for (uint64_t e = first; e < first + count; ++e)
        *out++ = param % 2 ? first_value(s->stage, WEIGHTS + (uint32_t)e) + 1
                           : first_value(s->stage,
                               (uint32_t)(e / columns) * WIDTH + s->from + (uint32_t)(e % columns));
}

static void divide(rank *r, cdp_group *all) {
    cdp_fsdp_param params[2 * MOST_STAGES];
    cdp_fsdp_unit units[2 * MOST_STAGES];
    memset(params, 0, sizeof params);
    memset(units, 0, sizeof units);
    for (uint32_t i = 0; i < 2 * r->own; ++i) {
        params[i].unit = i;
        params[i].ndim = i % 2 ? 1 : 2;
        params[i].shape[0] = WIDTH;
        params[i].shape[1] = WIDTH / r->k->tensor;
        params[i].copy = i % 2 && r->column;
        units[i].keep = r->k->keep;
    }
    const cdp_fsdp_desc d = {.group = r->data,
        .norm_group = all,
        .params = params,
        .param_count = 2 * r->own,
        .units = units,
        .unit_count = 2 * r->own,
        .stage = r->k->divides,
        .update = update,
        .fill = fill,
        .user = r,
        .skip_nonfinite = true,
        .prefetch = r->k->prefetch,
        .no_prefetch = r->k->prefetch == 0};
    OK(cdp_fsdp_create(&d, &r->fsdp));
}

static void stage_open(rank *r, uint32_t stage) {
    static const cdp_pipe_edge edge = {SAMPLES * WIDTH, CDP_DTYPE_F32};
    const uint32_t i = r->own++, columns = WIDTH / r->k->tensor;
    part *s = &r->parts[i];
    s->k = r->k;
    s->copy = r->copy;
    s->stage = stage;
    s->rank = r->number;
    s->from = r->column * columns;
    s->to = s->from + columns;
    s->w = 2 * i;
    s->b = 2 * i + 1;
    s->tensor = r->tensor;
    r->stages[i] = (cdp_pipe_stage){.in = &edge,
        .in_count = stage > 0,
        .out = &edge,
        .out_count = stage + 1 < r->k->stages,
        .forward = forward,
        .backward = backward,
        .backward_input = of_input,
        .backward_weights = of_weights,
        .groups = &s->tensor,
        .group_count = 1,
        .user = s};
}

static void rank_open(rank *r, job *k, cdp_group *all) {
    memset(r, 0, sizeof *r);
    r->k = k;
    r->number = cdp_rank(all);
    r->column = r->number % k->tensor;
    r->place = r->number / k->tensor % k->ranks;
    r->copy = r->number / k->tensor / k->ranks;
    OK(cdp_group_split(all, r->copy * k->tensor + r->column, r->place, &r->pipe));
    OK(cdp_group_split(all, r->place * k->tensor + r->column, r->copy, &r->data));
    OK(cdp_group_split(all, r->copy * k->ranks + r->place, r->column, &r->tensor));
    for (uint32_t s = 0; s < k->stages; ++s)
        if (cdp_schedule_rank_of(k->schedule, s) == r->place) stage_open(r, s);
    divide(r, all);
    for (uint32_t i = 0; i < r->own; ++i) {
        r->parts[i].fsdp = r->fsdp;
        r->stages[i].shards = (cdp_pipe_shards){
            r->fsdp, 2 * i, 2, cdp_fsdp_need, cdp_fsdp_done, cdp_fsdp_ready, cdp_fsdp_abort};
    }
    cdp_pipeline_desc d = {
        .group = r->pipe, .schedule = k->schedule, .stages = r->stages, .stage_count = r->own};
    OK(cdp_pipeline_create(&d, &r->trains));
    d.schedule = k->forward_only;
    OK(cdp_pipeline_create(&d, &r->judges));
}

static void rank_close(rank *r) {
    cdp_pipeline_destroy(r->judges);
    cdp_pipeline_destroy(r->trains);
    cdp_fsdp_destroy(r->fsdp);
    cdp_group_destroy(r->tensor);
    cdp_group_destroy(r->data);
    cdp_group_destroy(r->pipe);
}

static void rank_feed(rank *r, uint32_t step) {
    for (uint32_t n = 0; n < r->own; ++n) {
        part *s = &r->parts[n];
        s->step = step;
        for (uint32_t i = 0; i < r->k->micros; ++i)
            for (uint32_t j = 0; j < SAMPLES; ++j)
                for (uint32_t e = 0; e < WIDTH; ++e)
                    s->in[i][j][e] = input_of(step, s->copy, i, j, e);
    }
}

/* Evaluation: the loss of one process. */
static void judge(rank *r, const job *now, const net *n) {
    double sum = 0;
    OK(cdp_pipeline_step(r->judges));
    OK(cdp_pipeline_losses(r->judges, NULL, &sum));
    const double want = serial_copy(now, n, r->copy, NULL);
    if (!T(sum >= want && sum <= want)) fprintf(stderr, "loss %g, want %g\n", sum, want);
}

static void compare(rank *r, const net *n) {
    for (uint32_t i = 0; i < cdp_fsdp_piece_count(r->fsdp); ++i) {
        const cdp_fsdp_piece p = cdp_fsdp_piece_at(r->fsdp, i);
        const part *s = &r->parts[p.param / 2];
        const uint32_t columns = s->to - s->from;
        bool same = true;
        for (uint64_t e = 0; e < p.count; ++e) {
            const uint32_t at = (uint32_t)(p.first + e);
            const float want = p.param % 2
                ? n->b[s->stage][at]
                : n->w[s->stage][at / columns * WIDTH + s->from + at % columns];
            same = same && p.data[e] >= want && p.data[e] <= want;
        }
        T(same);
    }
}

static void train(cdp_group *all, void *arg) {
    job *k = (job *)arg;
    static CDP__THREAD_LOCAL rank r;
    static CDP__THREAD_LOCAL net as_one; /* as one process has it */
    net *n = &as_one;
    rank_open(&r, k, all);
    net_begin(n);
    for (uint32_t step = 0; step < STEPS; ++step) {
        job now = *k;
        cdp_fsdp_info info;
        double sum = 0;
        now.step = step;
        rank_feed(&r, step);
        if (step % 2) judge(&r, &now, n);
        OK(cdp_pipeline_step(r.trains));
        OK(cdp_pipeline_losses(r.trains, NULL, &sum));
        const double want = serial_copy(&now, n, r.copy, NULL), norm = serial_step(&now, n);
        T(sum >= want && sum <= want);
        OK(cdp_fsdp_backward_end(r.fsdp, 0, &info));
        T_EQ(step == BAD_STEP, info.found_inf); /* on all ranks, of all stages */
        T_EQ(step == BAD_STEP, info.skipped);
        if (step != BAD_STEP && !T(norm > 0 && fabs(info.norm - norm) <= 1e-12 * norm))
            fprintf(stderr, "norm %g, want %g\n", info.norm, norm);
        OK(cdp_fsdp_step(r.fsdp));
        compare(&r, n);
    }
    OK(cdp_barrier(all));
    rank_close(&r);
}

static uint64_t seed_of;
static uint32_t draw(uint32_t below) {
    seed_of = seed_of * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed_of >> 33) % below;
}

static void make(job *k, cdp_pipe_kind kind, uint32_t data, uint32_t ranks, uint32_t tensor) {
    uint32_t v = kind < CDP_PIPE_INTERLEAVED ? 1 : 1 + draw(2);
    if (kind == CDP_PIPE_ZBV || kind == CDP_PIPE_DUALPIPEV) v = 2;
    cdp_schedule_desc d = {
        .kind = kind, .ranks = ranks, .stages_per_rank = v, .micros = ranks * (2 + draw(2))};
    uint32_t place[MOST_STAGES];
    memset(k, 0, sizeof *k);
    if (kind < CDP_PIPE_INTERLEAVED) d.micros = 1 + draw(MOST_MICROS);
    if (d.micros > MOST_MICROS) d.micros = MOST_MICROS;
    k->kind = kind;
    k->data = data;
    k->ranks = ranks;
    k->tensor = tensor;
    k->stages = ranks * v;
    k->micros = d.micros;
    k->prefetch = draw(3);
    k->divides = (cdp_fsdp_stage)draw(3);
    k->keep = draw(2);
    k->bad_rank = UINT32_MAX;
    OK(cdp_schedule_create(&d, &k->schedule));
    for (uint32_t s = 0; s < k->stages; ++s)
        place[s] = cdp_schedule_rank_of(k->schedule, s);
    /* forward alone, on the places that this schedule has */
    static CDP__THREAD_LOCAL cdp_act acts[MOST_STAGES][MOST_STAGES * MOST_MICROS];
    const cdp_act *rows[MOST_STAGES];
    uint32_t counts[MOST_STAGES];
    for (uint32_t r = 0; r < ranks; ++r) {
        counts[r] = 0;
        rows[r] = acts[r];
        for (uint32_t s = 0; s < k->stages; ++s)
            for (uint32_t i = 0; i < k->micros && place[s] == r; ++i)
                acts[r][counts[r]++] =
                    (cdp_act){.kind = CDP_ACT_F, .stage = (uint16_t)s, .micro = i};
    }
    const cdp_schedule_desc eval = {
        .ranks = ranks, .rows = rows, .row_counts = counts, .place = place, .stages = k->stages};
    OK(cdp_schedule_create(&eval, &k->forward_only));
}

static void drop(job *k) {
    cdp_schedule_destroy(k->schedule);
    cdp_schedule_destroy(k->forward_only);
}

static const cdp_pipe_kind kinds[] = {CDP_PIPE_1F1B, CDP_PIPE_GPIPE, CDP_PIPE_INTERLEAVED,
    CDP_PIPE_BFS, CDP_PIPE_ZERO_BUBBLE, CDP_PIPE_ZBV, CDP_PIPE_DUALPIPEV};

/* Each kind on some meshes of at most eight ranks. */
TEST(each_kind_on_meshes_has_the_bits_of_one_process) {
    static const uint32_t meshes[][3] = {{2, 2, 2}, {2, 4, 1}, {1, 3, 2}, {2, 1, 2}, {2, 3, 1}};
    static job k;
    for (uint32_t i = 0; i < sizeof kinds / sizeof *kinds; ++i)
        for (uint32_t j = 0; j < (TEST_SLOW ? 1 : sizeof meshes / sizeof *meshes); ++j) {
            seed_of = 10 * i + j + 1;
            make(&k, kinds[i], meshes[j][0], meshes[j][1], meshes[j][2]);
            run_ranks(meshes[j][0] * meshes[j][1] * meshes[j][2], NULL, 0, train, &k);
            drop(&k);
        }
}

/* ---- failures ---- */

static void fails(cdp_group *all, void *arg) {
    job *k = (job *)arg;
    static CDP__THREAD_LOCAL rank r;
    cdp_fsdp_info info;
    rank_open(&r, k, all);
    OK(cdp_barrier(all));
    rank_feed(&r, 0);
    const uint64_t from = test_now_ns();
    cdp_status st = cdp_pipeline_step(r.trains);
    if (st == CDP_OK) st = cdp_fsdp_backward_end(r.fsdp, 0, &info); /* its part was complete */
    const cdp_error e = *cdp_last_error();
    T(st != CDP_OK);
    if (!T(strstr(e.text, "no more data") != NULL)) fprintf(stderr, "%u: %s\n", r.number, e.text);
    T(test_now_ns() - from < 5000000000u * (uint64_t)TEST_SLACK);
    pthread_barrier_wait(&k->ended);
    rank_close(&r);
}

/* Ranks wait for the one that fails in each of its groups: none waits for its deadline. */
TEST(a_failure_reaches_data_and_tensor_ranks) {
    static job k;
    for (uint32_t bad = 0; bad < 8; bad += TEST_SLOW ? 5 : 1) {
        seed_of = 900 + bad;
        make(&k, kinds[bad % 7], 2, 2, 2);
        k.bad_rank = bad;
        pthread_barrier_init(&k.ended, NULL, 8);
        run_ranks(8, NULL, 0, fails, &k);
        pthread_barrier_destroy(&k.ended);
        drop(&k);
    }
}

static void refuses(cdp_group *all, void *arg) {
    job *k = (job *)arg;
    static CDP__THREAD_LOCAL rank r;
    cdp_pipeline *p;
    rank_open(&r, k, all);
    T_EQ(CDP_ERR_UNSUPPORTED, cdp_pipeline_start(r.trains));
    T(strstr(cdp_last_error()->text, "call cdp_pipeline_step") != NULL);
    const cdp_pipeline_desc d = {
        .group = r.pipe, .schedule = k->schedule, .stages = r.stages, .stage_count = r.own};
    r.stages[0].shards.ready = NULL;
    T_EQ(CDP_ERR_INVALID, cdp_pipeline_create(&d, &p));
    T(strstr(cdp_last_error()->text, "lacks .shards.ready") != NULL);
    r.stages[0].shards.fsdp = NULL;
    r.stages[0].shards.ready = cdp_fsdp_ready;
    T_EQ(CDP_ERR_INVALID, cdp_pipeline_create(&d, &p));
    T(strstr(cdp_last_error()->text, "lacks .shards.fsdp") != NULL);
    r.stages[0].shards.fsdp = r.fsdp;
    r.stages[0].groups = NULL;
    T_EQ(CDP_ERR_INVALID, cdp_pipeline_create(&d, &p));
    T(strstr(cdp_last_error()->text, "stage 0 has .group_count 1 and lacks .groups[0]") != NULL);
    rank_close(&r);
}

TEST(shards_that_are_refused) {
    static job k;
    seed_of = 1;
    make(&k, CDP_PIPE_1F1B, 1, 1, 1);
    run_ranks(1, NULL, 0, refuses, &k);
    drop(&k);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {{"each_kind_on_meshes_has_the_bits_of_one_process",
                                          each_kind_on_meshes_has_the_bits_of_one_process, 120},
        {"a_failure_reaches_data_and_tensor_ranks", a_failure_reaches_data_and_tensor_ranks, 120},
        {"shards_that_are_refused", shards_that_are_refused, 30}};
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
