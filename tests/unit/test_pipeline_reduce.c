/*  test_pipeline_reduce.c - gradients of copies of stages, and tied ones; losses on all ranks

    A stage multiplies by one number. All numbers are small integers, so sums are exact. The last
    micro-batch has fewer samples than the others. */
#define CDP_IMPLEMENTATION
#include "cdp_pipeline.h"

#include "test.h"
#include "ranks.h"

#include <math.h>
#include <pthread.h>

enum {
    SAMPLES = 5, /* of a micro-batch; the last one has fewer */
    FEWER = 2,
    MICROS = 6,
    STAGES = 4,
    COPIES = 2
};

typedef struct job {
    cdp_schedule *schedule;
    uint32_t stages, bad_copy;
    int32_t bad_rank; /* fails in its last row; -1: none */
    bool frames, marks, copies, tie;
    double grads[COPIES][STAGES]; /* of the step, as each stage has it in the end */
    double norms[COPIES][2], losses[COPIES][2];
    cdp_error errors[COPIES][2];
    cdp_status status[COPIES][2];
    uint64_t took_ms;
    pthread_barrier_t ended; /* nobody leaves before all have ended: that would tell them, too */
} job;

typedef struct part {
    job *k;
    uint32_t copy, stage, rank;
    double weight, *grad;
    double in[MICROS][SAMPLES]; /* of the first stage */
    cdp_ddp *ddp;
    double own; /* the gradient, where there is no ddp */
} part;

static double weight_of(uint32_t stages, uint32_t stage) {
    return stage + 1 == stages ? 2 : 2 + stage; /* the first one and the last one are tied */
}
static double input_of(uint32_t copy, uint32_t micro, uint32_t sample) {
    return 1 + (copy * 7 + micro * 3 + sample * 2) % 5;
}
static double target_of(uint32_t micro, uint32_t sample) {
    return 1 + (micro + sample) % 3;
}
static uint32_t samples_of(uint32_t micro) {
    return micro + 1 == MICROS ? FEWER : SAMPLES;
}

static const double *inputs(const part *s, const cdp_pipe_micro *m) {
    return s->stage ? (const double *)m->in[0] : s->in[m->micro];
}

static cdp_status forward(void *user, const cdp_pipe_micro *m) {
    part *s = (part *)user;
    const double *in = inputs(s, m);
    T((m->loss != NULL) == (s->stage + 1 == s->k->stages));
    for (uint32_t i = 0; i < samples_of(m->micro); ++i) {
        if (m->loss)
            *m->loss += s->weight * in[i] * target_of(m->micro, i);
        else
            ((double *)m->out[0])[i] = s->weight * in[i];
    }
    return CDP_OK;
}

static double grad_of(const part *s, const cdp_pipe_micro *m, uint32_t i) {
    return s->stage + 1 == s->k->stages ? target_of(m->micro, i)
                                        : ((const double *)m->grad_out[0])[i];
}

static cdp_status of_input(void *user, const cdp_pipe_micro *m) {
    part *s = (part *)user;
    for (uint32_t i = 0; i < samples_of(m->micro) && s->stage; ++i)
        ((double *)m->grad_in[0])[i] = s->weight * grad_of(s, m, i);
    return CDP_OK;
}

static cdp_status of_weights(void *user, const cdp_pipe_micro *m) {
    part *s = (part *)user;
    const double *in = inputs(s, m);
    if (m->last && (int32_t)s->rank == s->k->bad_rank && s->copy == s->k->bad_copy)
        return cdp_error_set(CDP_ERR_IO, -1, 0, "no more data");
    for (uint32_t i = 0; i < samples_of(m->micro); ++i)
        *s->grad += in[i] * grad_of(s, m, i);
    if (m->last && s->k->marks) OK(cdp_ddp_ready(s->ddp, 0));
    return CDP_OK;
}

static cdp_status backward(void *user, const cdp_pipe_micro *m) {
    const cdp_status st = of_input(user, m);
    return st == CDP_OK ? of_weights(user, m) : st;
}

/* ---- the same in one process ---- */

static double serial(uint32_t stages, uint32_t copy, double *grads) {
    double loss = 0, all = 1;
    memset(grads, 0, STAGES * sizeof *grads);
    for (uint32_t s = 0; s < stages; ++s)
        all *= weight_of(stages, s);
    for (uint32_t i = 0; i < MICROS; ++i)
        for (uint32_t j = 0; j < samples_of(i); ++j) {
            const double result = all * input_of(copy, i, j) * target_of(i, j);
            loss += result;
            for (uint32_t s = 0; s < stages; ++s)
                grads[s] += result / weight_of(stages, s);
        }
    return loss;
}

/* What each stage has in the end. */
static void expected(const job *k, uint32_t copy, double *grads) {
    double of[COPIES][STAGES];
    for (uint32_t c = 0; c < COPIES; ++c)
        (void)serial(k->stages, c, of[c]);
    for (uint32_t s = 0; s < k->stages; ++s)
        grads[s] = k->copies ? (of[0][s] + of[1][s]) / 2 : of[copy][s];
    if (k->tie) grads[0] = grads[k->stages - 1] = grads[0] + grads[k->stages - 1];
}

/* ---- one rank: 0 and 1 are one pipeline, 2 and 3 its copy ---- */

static uint64_t now_ms(void) {
    return cdp_os_default()->now_ns(cdp_os_default()->user) / 1000000;
}

static cdp_status one_step(job *k, cdp_pipeline *p) {
    double sum;
    if (!k->frames) return cdp_pipeline_step(p);
    cdp_status st = cdp_pipeline_start(p);
    T_EQ(CDP_ERR_STATE, cdp_pipeline_losses(p, NULL, &sum));
    if (st == CDP_OK) do
            st = cdp_pipeline_poll(p, 100);
        while (st == CDP_PENDING);
    return st;
}

/* The norm of the whole model: the first one of tied gradients counts. */
static void clip(job *k, cdp_group *pipe, part *parts, uint32_t own, uint32_t copy) {
    cdp_norm_item items[STAGES];
    cdp_norm norm;
    memset(items, 0, sizeof items);
    for (uint32_t s = 0; s < k->stages; ++s)
        items[s].dtype = CDP_DTYPE_F64;
    for (uint32_t i = 0; i < own; ++i) {
        items[parts[i].stage].grad = parts[i].grad;
        items[parts[i].stage].count = 1;
        items[parts[i].stage].copy = k->tie && parts[i].stage + 1 == k->stages;
    }
    const cdp_norm_desc d = {.group = pipe, .items = items, .count = k->stages};
    OK(cdp_grads_norm(&d, NULL, &norm));
    k->norms[copy][cdp_rank(pipe)] = norm.norm;
}

static void part_open(part *s, job *k, uint32_t copy, uint32_t stage, cdp_group *copies) {
    memset(s, 0, sizeof *s);
    s->k = k;
    s->copy = copy;
    s->stage = stage;
    s->rank = cdp_schedule_rank_of(k->schedule, stage);
    s->weight = weight_of(k->stages, stage);
    s->grad = &s->own;
    for (uint32_t i = 0; i < MICROS; ++i)
        for (uint32_t j = 0; j < SAMPLES; ++j)
            s->in[i][j] = input_of(copy, i, j);
    if (!k->copies) return;
    const cdp_param param = {.data = &s->weight, .count = 1, .dtype = CDP_DTYPE_F64};
    const cdp_ddp_desc d = {.group = copies, .params = &param, .param_count = 1};
    OK(cdp_ddp_create(&d, &s->ddp));
    s->grad = (double *)cdp_ddp_grad(s->ddp, 0);
}

enum {
    STEPS = 2
};

static void train(cdp_group *g, void *arg) {
    static const cdp_pipe_edge edge = {SAMPLES, CDP_DTYPE_F64};
    job *k = (job *)arg;
    part parts[STAGES];
    cdp_pipe_stage stages[STAGES];
    cdp_pipe_tied tied[STAGES];
    cdp_group *pipe, *copies;
    cdp_pipeline *p;
    const uint32_t copy = cdp_rank(g) / 2, r = cdp_rank(g) % 2;
    uint32_t own = 0;
    double each[MICROS], sum = 0;
    OK(cdp_group_split(g, copy, r, &pipe));
    OK(cdp_group_split(g, r, copy, &copies));
    memset(stages, 0, sizeof stages);
    for (uint32_t s = 0; s < k->stages; ++s) {
        const bool first = s == 0, last = s + 1 == k->stages;
        if (cdp_schedule_rank_of(k->schedule, s) != r) continue;
        part_open(&parts[own], k, copy, s, copies);
        /* in a V both have one memory */
        if (k->tie && last && own && parts[0].stage == 0) parts[own].grad = parts[0].grad;
        tied[own] = (cdp_pipe_tied){parts[own].grad, 1, CDP_DTYPE_F64};
        stages[own] = (cdp_pipe_stage){.in = &edge,
            .in_count = !first,
            .out = &edge,
            .out_count = !last,
            .forward = forward,
            .backward = backward,
            .backward_input = of_input,
            .backward_weights = of_weights,
            .ddp = parts[own].ddp,
            .marks = k->marks,
            .tied = &tied[own],
            .tied_count = k->tie && (first || last),
            .user = &parts[own]};
        ++own;
    }
    const cdp_pipeline_desc d = {
        .group = pipe, .schedule = k->schedule, .stages = stages, .stage_count = own};
    OK(cdp_pipeline_create(&d, &p));
    OK(cdp_barrier(g));
    const uint64_t from = now_ms();
    for (uint32_t n = 0; n < STEPS; ++n) {
        for (uint32_t i = 0; i < own; ++i)
            *parts[i].grad = 0;
        k->status[copy][r] = one_step(k, p);
        k->errors[copy][r] = *cdp_last_error();
        if (k->status[copy][r] != CDP_OK || k->bad_rank >= 0) break;
        T_EQ(CDP_ERR_INVALID, cdp_pipeline_losses(p, each, NULL));
        OK(cdp_pipeline_losses(p, each, &sum));
        k->losses[copy][r] = sum;
        for (uint32_t i = 0; i < MICROS; ++i)
            sum -= each[i];
        T(sum <= 0 && sum >= 0);
        for (uint32_t i = 0; i < own; ++i)
            k->grads[copy][parts[i].stage] = *parts[i].grad;
        clip(k, pipe, parts, own, copy);
    }
    __atomic_fetch_add(&k->took_ms, now_ms() - from, __ATOMIC_SEQ_CST);
    pthread_barrier_wait(&k->ended);
    cdp_pipeline_destroy(p);
    for (uint32_t i = 0; i < own; ++i)
        cdp_ddp_destroy(parts[i].ddp);
    cdp_group_destroy(pipe);
    cdp_group_destroy(copies);
}

static void make(job *k, cdp_pipe_kind kind) {
    const uint32_t v = kind >= CDP_PIPE_INTERLEAVED && kind != CDP_PIPE_ZERO_BUBBLE ? 2 : 1;
    const cdp_schedule_desc d = {.kind = kind, .ranks = 2, .micros = MICROS, .stages_per_rank = v};
    memset(k, 0, sizeof *k);
    k->bad_rank = -1;
    pthread_barrier_init(&k->ended, NULL, 4);
    k->stages = 2 * v;
    OK(cdp_schedule_create(&d, &k->schedule));
}

static void check(const job *k) {
    for (uint32_t c = 0; c < COPIES; ++c) {
        double want[STAGES], local[STAGES], squares = 0;
        const double loss = serial(k->stages, c, local);
        expected(k, c, want);
        T(memcmp(want, k->grads[c], k->stages * sizeof *want) == 0);
        for (uint32_t s = 0; s < k->stages; ++s)
            if (!k->tie || s + 1 < k->stages) squares += want[s] * want[s];
        for (uint32_t r = 0; r < 2; ++r) {
            T_EQ(CDP_OK, k->status[c][r]);
            T(k->losses[c][r] >= loss && k->losses[c][r] <= loss);
            T(fabs(k->norms[c][r] - sqrt(squares)) <= 1e-15 * sqrt(squares));
        }
    }
}

static const cdp_pipe_kind kinds[] = {CDP_PIPE_1F1B, CDP_PIPE_GPIPE, CDP_PIPE_INTERLEAVED,
    CDP_PIPE_BFS, CDP_PIPE_ZERO_BUBBLE, CDP_PIPE_ZBV, CDP_PIPE_DUALPIPEV};

/* Every kind, with copies and tied gradients, or one of them, or none. */
static void all_kinds(bool frames, bool marks, const cdp_group_desc *like) {
    for (uint32_t i = 0; i < sizeof kinds / sizeof *kinds; ++i) {
        const bool v = kinds[i] == CDP_PIPE_ZBV || kinds[i] == CDP_PIPE_DUALPIPEV;
        for (uint32_t what = marks ? 1 : 0; what < 4; what += marks ? 2 : 1) {
            job k;
            make(&k, kinds[i]);
            k.frames = frames;
            k.marks = marks;
            k.copies = what & 1;
            k.tie = what & 2;
            /* one memory for both would be in two ddps */
            if (!(v && k.copies && k.tie)) {
                run_ranks(4, like, 0, train, &k);
                check(&k);
            }
            cdp_schedule_destroy(k.schedule);
        }
    }
}

TEST(copies_and_tied_gradients) {
    all_kinds(false, false, NULL);
}

TEST(backward_may_mark_what_is_ready) {
    all_kinds(false, true, NULL);
}

TEST(copies_and_tied_gradients_in_frames) {
    const cdp_group_desc like = {.no_thread = true};
    all_kinds(true, false, NULL);
    all_kinds(true, false, &like);
}

/* ---- failures ---- */

/* Rank 0 fails in its last row, when rank 1 waits for the sum of tied gradients already. */
TEST(who_waits_for_a_sum_is_told_of_a_failure) {
    for (uint32_t what = 1; what < 4; ++what) {
        job k;
        make(&k, CDP_PIPE_1F1B);
        k.copies = what & 1;
        k.tie = what & 2;
        k.bad_rank = 0;
        k.bad_copy = 1;
        run_ranks(4, NULL, 0, train, &k);
        for (uint32_t c = 0; c < COPIES; ++c)
            for (uint32_t r = 0; r < 2; ++r) {
                /* rank 1 of a pipeline without ties has done its part */
                const bool reached = (k.copies || c == 1) && (k.tie || r == 0);
                if (reached) T(k.status[c][r] != CDP_OK);
                if (k.status[c][r] == CDP_OK || (!k.copies && c == 0)) continue;
                if (!T(strstr(k.errors[c][r].text, "no more data") != NULL))
                    fprintf(stderr, "%s\n", k.errors[c][r].text);
            }
        T(k.took_ms < 20000u * TEST_SLACK);
        cdp_schedule_destroy(k.schedule);
    }
}

typedef struct late {
    cdp_schedule *schedule;
    pthread_barrier_t ended;
} late;

static cdp_status nothing(void *user, const cdp_pipe_micro *m) {
    if (user && m->last) test_sleep_ms(600u * (uint32_t)TEST_SLACK);
    return CDP_OK;
}

/* The last stage is late in its last row, so that the first one waits for its tied gradients until
   the deadline; the one between them has done its part. */
static void waits_for_a_sum(cdp_group *g, void *arg) {
    static const cdp_pipe_edge edge = {1, CDP_DTYPE_F64};
    late *k = (late *)arg;
    const uint32_t r = cdp_rank(g);
    double grad = 0;
    cdp_pipe_tied tied = {&grad, 1, CDP_DTYPE_F64};
    cdp_pipe_stage stage = {.in = &edge,
        .out = &edge,
        .in_count = r > 0,
        .out_count = r < 2,
        .forward = nothing,
        .backward_input = nothing,
        .backward_weights = nothing,
        .tied = &tied,
        .tied_count = r != 1,
        .user = r == 2 ? k : NULL};
    const cdp_pipeline_desc d = {.group = g,
        .schedule = k->schedule,
        .stages = &stage,
        .stage_count = 1,
        .timeout_ms = 300u * TEST_SLACK};
    cdp_pipeline *p;
    OK(cdp_pipeline_create(&d, &p));
    const cdp_status st = cdp_pipeline_step(p);
    if (r == 0) {
        T_EQ(CDP_ERR_TIMEOUT, st);
        T_EQ(2, cdp_last_error()->peer);
        T(cdp_group_status(g) != CDP_OK);
    }
    pthread_barrier_wait(&k->ended);
    if (r > 0) { /* rank 0 comes to no other step, and the others do not wait for it */
        const uint64_t from = now_ms();
        T_EQ(CDP_ERR_ABORTED, cdp_pipeline_step(p));
        T(strstr(cdp_last_error()->text, "waiting for rank 2") != NULL);
        T(now_ms() - from < 150u * TEST_SLACK);
    }
    pthread_barrier_wait(&k->ended);
    cdp_pipeline_destroy(p);
}

TEST(a_sum_that_is_late_breaks_the_group_of_all) {
    const cdp_schedule_desc s = {.kind = CDP_PIPE_ZERO_BUBBLE, .ranks = 3, .micros = 3};
    late k;
    pthread_barrier_init(&k.ended, NULL, 3);
    OK(cdp_schedule_create(&s, &k.schedule));
    run_ranks(3, NULL, 0, waits_for_a_sum, &k);
    cdp_schedule_destroy(k.schedule);
    pthread_barrier_destroy(&k.ended);
}

static void differs(cdp_group *g, void *arg) {
    static double grads[2];
    static const cdp_pipe_edge edge = {SAMPLES, CDP_DTYPE_F64};
    const job *k = (const job *)arg;
    const uint32_t r = cdp_rank(g);
    cdp_pipe_tied tied[2] = {{&grads[r], 1 + r, CDP_DTYPE_F64}, {NULL, 1, CDP_DTYPE_F64}};
    cdp_pipe_stage stage = {.in = &edge,
        .out = &edge,
        .in_count = r,
        .out_count = 1 - r,
        .forward = forward,
        .backward = backward,
        .tied = tied,
        .tied_count = 1};
    const cdp_pipeline_desc d = {
        .group = g, .schedule = k->schedule, .stages = &stage, .stage_count = 1};
    cdp_pipeline *p;
    T_EQ(CDP_ERR_MISMATCH, cdp_pipeline_create(&d, &p));
    T(strstr(cdp_last_error()->text, "tied gradients of stage 0 on rank 0 are not those of"));
    tied[0].count = 1;
    stage.tied_count = 2;
    T_EQ(CDP_ERR_INVALID, cdp_pipeline_create(&d, &p));
    T(strstr(cdp_last_error()->text, "tied gradient 1 of stage") != NULL);
    stage.tied_count = r;
    T_EQ(CDP_ERR_MISMATCH, cdp_pipeline_create(&d, &p));
    stage.tied_count = 1;
    OK(cdp_pipeline_create(&d, &p));
    cdp_pipeline_destroy(p);
}

TEST(ties_that_differ) {
    job k;
    make(&k, CDP_PIPE_1F1B);
    run_ranks(2, NULL, 0, differs, &k);
    cdp_schedule_destroy(k.schedule);
}

TEST(ties_that_are_refused) {
    static const cdp_pipe_edge edge = {SAMPLES, CDP_DTYPE_F64};
    const cdp_schedule_desc s = {
        .kind = CDP_PIPE_INTERLEAVED, .ranks = 1, .stages_per_rank = 3, .micros = 1};
    const cdp_group_desc one = {.world_size = 1};
    double grads[2] = {0, 0};
    cdp_pipe_tied tied[2] = {{&grads[0], 1, CDP_DTYPE_F64}, {&grads[1], 1, CDP_DTYPE_F64}};
    cdp_pipe_stage stages[3];
    cdp_pipeline_desc d = {.stages = stages, .stage_count = 3};
    cdp_schedule *schedule;
    cdp_pipeline *p;
    double sum;
    for (uint32_t i = 0; i < 3; ++i)
        stages[i] = (cdp_pipe_stage){.in = &edge,
            .out = &edge,
            .in_count = i > 0,
            .out_count = i < 2,
            .forward = forward,
            .backward = backward};
    OK(cdp_schedule_create(&s, &schedule));
    d.schedule = schedule;
    OK(cdp_group_create(&one, &d.group));
    stages[1].tied = tied;
    stages[1].tied_count = 1;
    T_EQ(CDP_ERR_INVALID, cdp_pipeline_create(&d, &p));
    T(strstr(cdp_last_error()->text, "only the first stage and the last one") != NULL);
    stages[1].tied_count = 0;
    stages[0].tied = &tied[0];
    stages[2].tied = &tied[1];
    stages[0].tied_count = stages[2].tied_count = 1;
    T_EQ(CDP_ERR_INVALID, cdp_pipeline_create(&d, &p));
    T(strstr(cdp_last_error()->text, "two memories on one rank") != NULL);
    stages[2].tied = &tied[0];
    OK(cdp_pipeline_create(&d, &p));
    T_EQ(CDP_ERR_INVALID, cdp_pipeline_losses(NULL, NULL, &sum));
    cdp_pipeline_destroy(p);
    cdp_group_destroy(d.group);
    cdp_schedule_destroy(schedule);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {{"copies_and_tied_gradients", copies_and_tied_gradients, 60},
        {"backward_may_mark_what_is_ready", backward_may_mark_what_is_ready, 60},
        {"copies_and_tied_gradients_in_frames", copies_and_tied_gradients_in_frames, 60},
        {"who_waits_for_a_sum_is_told_of_a_failure", who_waits_for_a_sum_is_told_of_a_failure, 60},
        {"a_sum_that_is_late_breaks_the_group_of_all", a_sum_that_is_late_breaks_the_group_of_all,
            30},
        {"ties_that_differ", ties_that_differ, 30},
        {"ties_that_are_refused", ties_that_are_refused, 30}};
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
