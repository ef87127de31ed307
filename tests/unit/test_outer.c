/* Training over slow networks: the outer step against a plain loop, fragments, delays, quantized
   differences, and ranks that leave or join. */
#define CDP_IMPLEMENTATION
#include "cdp.h"
#include "test.h"
#include "ranks.h"
#include <math.h>

enum {
    PARAMS = 3,
    VALUES = 3000,
    RANKS = 3
};
static const uint64_t lengths[PARAMS] = {1000, 1, 1999};

typedef struct job {
    cdp_outer_desc desc; /* settings */
    cdp_hook_kind wire;  /* ALLREDUCE: none */
    uint32_t steps;
    float data[RANKS][VALUES];
    uint64_t sent[RANKS], rounds[RANKS];
    cdp_outer *outer[RANKS]; /* kept: not destroyed */
    bool keep;
} job;

/* What a step of training adds to value k of rank r: multiples of 1/8, so that sums are exact. */
static float gain(uint32_t r, uint32_t step, uint32_t k) {
    return (float)((r * 31 + step * 7 + k * 13) % 33) / 8 - 2;
}

static void job_params(job *j, uint32_t r, cdp_param *p) {
    float *at = j->data[r];
    memset(p, 0, PARAMS * sizeof *p);
    for (uint32_t i = 0; i < PARAMS; at += lengths[i++]) {
        p[i].data = at;
        p[i].count = lengths[i];
    }
}

static cdp_status job_create(job *j, cdp_group *g, uint32_t r, cdp_outer **out) {
    cdp_outer_desc d = j->desc;
    cdp_hook_desc hd = {.kind = j->wire, .os = g->os};
    cdp_param p[PARAMS];
    cdp_hook wire;
    job_params(j, r, p);
    d.group = g;
    d.params = p;
    d.param_count = PARAMS;
    if (j->wire != CDP_HOOK_ALLREDUCE) {
        T_EQ(CDP_OK, cdp_hook_create(&hd, &wire));
        d.wire = &wire;
    }
    return cdp_outer_create(&d, out);
}

static void train(cdp_group *g, void *arg) {
    job *j = arg;
    const uint32_t r = cdp_rank(g);
    cdp_outer *o;
    test_check(job_create(j, g, r, &o) == CDP_OK, __FILE__, __LINE__, "%s", cdp_last_error()->text);
    for (uint32_t s = 0; s < j->steps; ++s) {
        for (uint32_t k = 0; k < VALUES; ++k)
            j->data[r][k] += gain(r, s, k);
        T_EQ(CDP_OK, cdp_outer_step(o));
    }
    j->sent[r] = cdp_outer_stats_of(o).sent_bytes;
    j->rounds[r] = cdp_outer_stats_of(o).rounds;
    j->outer[r] = o;
    if (!j->keep) cdp_outer_destroy(o);
}

static void job_begin(job *j, uint64_t period, uint32_t fragments, uint64_t delay, double alpha) {
    memset(j, 0, sizeof *j);
    j->desc.period = period;
    j->desc.fragments = fragments;
    j->desc.delay = delay;
    j->desc.alpha = alpha;
    for (uint32_t r = 0; r < RANKS; ++r) /* creation makes them equal */
        for (uint32_t k = 0; k < VALUES; ++k)
            j->data[r][k] = (float)k / 16 + (float)r;
}

/* The same in one thread, in double. */
static void plain(const job *j, uint32_t n, double (*data)[VALUES]) {
    static double saved[VALUES], momentum[VALUES], delta[VALUES];
    const uint64_t interval = j->desc.period / j->desc.fragments;
    const double lr = j->desc.lr != 0 ? j->desc.lr : 0.7, mu = j->desc.momentum < 0 ? 0 : 0.9;
    uint64_t rounds = 0;
    for (uint32_t k = 0; k < VALUES; ++k) {
        saved[k] = (double)k / 16;
        momentum[k] = 0;
        for (uint32_t r = 0; r < n; ++r)
            data[r][k] = saved[k];
    }
    for (uint32_t s = 0; s < j->steps; ++s) {
        const uint32_t f = (uint32_t)(rounds % j->desc.fragments);
        const uint64_t first = cdp__outer_first(VALUES, j->desc.fragments, f),
                       end = cdp__outer_first(VALUES, j->desc.fragments, f + 1);
        for (uint32_t r = 0; r < n; ++r)
            for (uint32_t k = 0; k < VALUES; ++k)
                data[r][k] += (double)gain(r, s, k);
        if (s % interval + 1 == interval - j->desc.delay)
            for (uint64_t k = first; k < end; ++k) {
                delta[k] = 0;
                for (uint32_t r = 0; r < n; ++r)
                    delta[k] += (saved[k] - data[r][k]) / n;
            }
        if (s % interval + 1 != interval) continue;
        ++rounds;
        for (uint64_t k = first; k < end; ++k) {
            momentum[k] = mu * momentum[k] + delta[k];
            saved[k] -= lr * (mu > 0 ? delta[k] + mu * momentum[k] : delta[k]);
            for (uint32_t r = 0; r < n; ++r)
                data[r][k] = saved[k] + j->desc.alpha * (data[r][k] - saved[k]);
        }
    }
}

static double apart(const job *j, uint32_t n) {
    static double want[RANKS][VALUES];
    double most = 0;
    plain(j, n, want);
    for (uint32_t r = 0; r < n; ++r)
        for (uint32_t k = 0; k < VALUES; ++k)
            most = fmax(most, fabs(want[r][k] - (double)j->data[r][k]) / (1 + fabs(want[r][k])));
    return most;
}

TEST(fragments_tile_all_values) {
    for (uint32_t fragments = 1; fragments < 9; ++fragments) {
        T_EQ(0, cdp__outer_first(VALUES, fragments, 0));
        T_EQ(VALUES, cdp__outer_first(VALUES, fragments, fragments));
        for (uint32_t f = 0; f < fragments; ++f)
            T(cdp__outer_first(VALUES, fragments, f) <= cdp__outer_first(VALUES, fragments, f + 1));
    }
    T_EQ(UINT64_MAX / 4, cdp__outer_first(UINT64_MAX / 4, 3, 3));
}

TEST(without_momentum_it_is_the_mean_of_parameters) {
    static job j;
    job_begin(&j, 4, 1, 0, 0);
    j.desc.lr = 1;
    j.desc.momentum = CDP_OPTIM_ZERO;
    j.steps = 4;
    run_ranks(2, NULL, 0, train, &j);
    for (uint32_t k = 0; k < VALUES; ++k) {
        float sum = 0;
        for (uint32_t r = 0; r < 2; ++r)
            for (uint32_t s = 0; s < 4; ++s)
                sum += gain(r, s, k);
        T(j.data[0][k] == (float)k / 16 + sum / 2 && j.data[1][k] == j.data[0][k]);
    }
    T_EQ(1, j.rounds[0]);
    T_EQ(VALUES * 4, j.sent[0]);
}

TEST(outer_steps_are_those_of_a_plain_loop) {
    static const struct {
        uint64_t period, delay;
        uint32_t fragments, ranks;
        double alpha;
    } cases[] = {{4, 0, 1, 1, 0}, {4, 0, 1, 3, 0}, {1, 0, 1, 2, 0}, {6, 0, 2, 3, 0},
        {6, 1, 2, 3, 0}, {6, 2, 2, 3, 0.5}, {6, 1, 3, 2, 1}, {8, 3, 2, 2, 0.25}};
    static job j;
    for (uint32_t c = 0; c < sizeof cases / sizeof *cases; ++c) {
        job_begin(&j, cases[c].period, cases[c].fragments, cases[c].delay, cases[c].alpha);
        j.steps = 25;
        run_ranks(cases[c].ranks, NULL, 0, train, &j);
        const double off = apart(&j, cases[c].ranks);
        test_check(off < 2e-6, __FILE__, __LINE__, "case %u is off by %g", c, off);
        for (uint32_t r = 1; r < cases[c].ranks && cases[c].period == 1; ++r)
            T(memcmp(j.data[0], j.data[r], sizeof j.data[0]) == 0);
        T_EQ(25 / (cases[c].period / cases[c].fragments), j.rounds[0]);
    }
}

TEST(quantized_differences_are_near_and_small) {
    static const struct {
        cdp_hook_kind kind;
        double within;
        uint64_t bytes; /* of 3000 values in one fragment, per round */
    } cases[] = {
        {CDP_HOOK_QUANTIZE_CHANNEL, 0.1, 6 * (512 + 8)}, {CDP_HOOK_QUANTIZE_4, 1.5, 6 * (256 + 8)}};
    static job j;
    for (uint32_t c = 0; c < 2; ++c) {
        job_begin(&j, 5, 1, 1, 0);
        j.wire = cases[c].kind;
        j.steps = 20;
        run_ranks(3, NULL, 0, train, &j);
        T(apart(&j, 3) < cases[c].within && apart(&j, 3) > 1e-5);
        T_EQ(4 * cases[c].bytes, j.sent[0]);
        T(memcmp(j.data[0], j.data[1], sizeof j.data[0]) == 0);
        T(memcmp(j.data[0], j.data[2], sizeof j.data[0]) == 0);
    }
}

/* ---- ranks that leave or join ---- */

typedef struct change {
    job j;
    uint32_t leaves_at; /* the step after which rank 2 is gone */
    pthread_barrier_t created;
    float before[RANKS][VALUES], saved[RANKS][VALUES], momentum[RANKS][VALUES];
} change;

static void until_one_leaves(cdp_group *g, void *arg) {
    change *c = arg;
    const uint32_t r = cdp_rank(g);
    cdp_outer *o;
    cdp_status st = CDP_OK;
    T_EQ(CDP_OK, job_create(&c->j, g, r, &o));
    pthread_barrier_wait(&c->created);
    for (uint32_t s = 0; s < 40 && st == CDP_OK && (r != 2 || s < c->leaves_at); ++s) {
        for (uint32_t k = 0; k < VALUES; ++k)
            c->j.data[r][k] += gain(r, s, k);
        st = cdp_outer_step(o);
    }
    if (r == 2) {
        cdp_group_abort(g, "rank 2 leaves");
        cdp_outer_destroy(o);
        return;
    }
    test_check(st == CDP_ERR_ABORTED, __FILE__, __LINE__, "rank %u: %s", r, cdp_status_name(st));
    T_EQ(CDP_ERR_STATE, cdp_outer_step(o));
    T_TEXT("cdp_outer_rebind", cdp_last_error()->text);
    c->j.outer[r] = o;
}

/* Rank 2 is a newcomer, which has other parameters. */
static void goes_on(cdp_group *g, void *arg) {
    change *c = arg;
    const uint32_t r = cdp_rank(g);
    const cdp_status st =
        r == 2 ? job_create(&c->j, g, r, &c->j.outer[r]) : cdp_outer_rebind(c->j.outer[r], g);
    cdp_outer *o = c->j.outer[r];
    test_check(st == CDP_OK, __FILE__, __LINE__, "%s", cdp_last_error()->text);
    memcpy(c->before[r], c->j.data[r], sizeof c->before[r]);
    for (uint32_t s = 0; s < 6; ++s) {
        for (uint32_t k = 0; k < VALUES; ++k)
            c->j.data[r][k] += gain(r, s, k);
        T_EQ(CDP_OK, cdp_outer_step(o));
    }
    c->j.rounds[r] = cdp_outer_stats_of(o).rounds;
    memcpy(c->saved[r], o->saved, sizeof c->saved[r]);
    memcpy(c->momentum[r], o->momentum, sizeof c->momentum[r]);
    cdp_outer_destroy(o);
}

static void check_change(uint32_t leaves_at, uint64_t delay, bool ahead) {
    static change c;
    uint64_t rounds;
    world w;
    memset(&c, 0, sizeof c);
    job_begin(&c.j, 6, 2, delay, 0);
    c.leaves_at = leaves_at;
    if (!world_open(&w, 3, NULL, 0)) return;
    pthread_barrier_init(&c.created, NULL, 3);
    world_threads(&w, until_one_leaves, &c);
    pthread_barrier_destroy(&c.created);
    if (!c.j.outer[0] || !c.j.outer[1]) return;
    rounds = cdp__max(c.j.outer[0]->stats.rounds, c.j.outer[1]->stats.rounds);
    if (ahead) { /* as if rank 1 alone had got a fragment in time */
        c.j.outer[1]->saved[7] += 1;
        c.j.outer[1]->stats.rounds = ++rounds;
    }
    const float trained = c.j.data[1][7];
    const bool foremost = c.j.outer[1]->stats.rounds == rounds;
    run_ranks(3, NULL, 0, goes_on, &c);
    world_close(&w);
    for (uint32_t r = 0; r < RANKS; ++r) {
        T_EQ(rounds + 2, c.j.rounds[r]);
        T(memcmp(c.saved[0], c.saved[r], sizeof c.saved[0]) == 0);
        T(memcmp(c.momentum[0], c.momentum[r], sizeof c.saved[0]) == 0);
    }
    /* what rank 1 had trained alone stays; a newcomer begins with what was agreed on */
    if (foremost) T(c.before[1][7] == trained);
    if (ahead) T(c.before[0][7] == c.before[2][7]);
}

TEST(a_rank_leaves_at_any_step_and_another_one_joins) {
    for (uint32_t at = 0; at < 10; ++at) {
        check_change(at, 0, false);
        check_change(at, 2, false);
    }
}

TEST(ranks_take_what_the_foremost_one_agreed_on) {
    check_change(8, 1, true);
}

/* A rank that comes before the first round, as rank 0. */
static void comes_first(cdp_group *g, void *arg) {
    job *j = arg;
    const uint32_t r = (cdp_rank(g) + RANKS - 1) % RANKS; /* its row */
    const cdp_status st =
        r == RANKS - 1 ? job_create(j, g, r, &j->outer[r]) : cdp_outer_rebind(j->outer[r], g);
    test_check(st == CDP_OK, __FILE__, __LINE__, "%s", cdp_last_error()->text);
}

TEST(before_the_first_round_a_newcomer_takes_what_the_others_have) {
    static job j;
    world w, later;
    cdp_outer *o;
    job_begin(&j, 500, 1, 0, 0);
    j.steps = 3;
    j.keep = true;
    if (!world_open(&w, RANKS - 1, NULL, 0) || !world_open(&later, RANKS, NULL, 0)) return;
    world_threads(&w, train, &j);
    for (uint32_t r = 0; r + 1 < RANKS; ++r)
        cdp_group_destroy(w.group[r]); /* before the outer goes on */
    const float trained = j.data[1][7];
    world_threads(&later, comes_first, &j);
    T(j.data[1][7] == trained);
    T(j.data[2][7] == 7.0f / 16); /* as rank 0 created them */
    cdp_outer_destroy(j.outer[0]);
    for (uint32_t r = 0; r < RANKS; ++r) {
        cdp_group_destroy(later.group[r]);
        later.group[r] = NULL;
    }
    /* calls with a group that was destroyed change nothing */
    j.desc.group = w.group[0];
    T_EQ(CDP_ERR_STATE, cdp_outer_rebind(j.outer[1], w.group[0]));
    T(j.outer[1]->group);
    T_EQ(CDP_ERR_STATE, cdp_outer_create(&j.desc, &o));
    cdp_outer_destroy(j.outer[1]);
    cdp_outer_destroy(j.outer[2]);
    world_close(&later);
    cdp_hub_destroy(w.hub);
}

/* ---- saved state ---- */

enum {
    HOOK_BYTES = 40000
};

typedef struct saved_run {
    job j;
    uint32_t at; /* it is saved after so many steps */
    bool goes_on;
    float agreed[2][VALUES], own[RANKS][VALUES], end[RANKS][VALUES];
    uint8_t hook[RANKS][HOOK_BYTES];
    uint64_t hook_bytes[RANKS], steps;
} saved_run;

static void run_saves(saved_run *s, cdp_outer *o, cdp_group *g) {
    const uint32_t r = cdp_rank(g), root = cdp_size(g) - 1;
    const cdp_hook *wire = cdp_outer_hook(o);
    for (uint32_t state = 0; state < 2; ++state) {
        float *at = s->agreed[state];
        for (uint32_t i = 0; i < PARAMS; at += lengths[i++])
            T_EQ(CDP_OK, cdp_outer_gather(o, state, i, r == root ? at : NULL, root));
    }
    memcpy(s->own[r], s->j.data[r], sizeof s->own[r]);
    if (wire) s->hook_bytes[r] = wire->save(wire->self, s->hook[r], HOOK_BYTES);
    T(s->hook_bytes[r] <= HOOK_BYTES);
    if (r == root) s->steps = cdp_outer_stats_of(o).steps;
}

static cdp_outer *run_restores(saved_run *s, cdp_group *g) {
    const uint32_t r = cdp_rank(g);
    const cdp_hook_desc hd = {.kind = s->j.wire, .os = g->os};
    cdp_outer_desc d = s->j.desc;
    cdp_param p[PARAMS];
    cdp_hook wire;
    cdp_outer *o;
    job_params(&s->j, r, p);
    d.group = g;
    d.params = p;
    d.param_count = PARAMS;
    d.steps = r == 0 ? s->steps : 0;
    if (s->j.wire != CDP_HOOK_ALLREDUCE) {
        T_EQ(CDP_OK, cdp_hook_create(&hd, &wire));
        T_EQ(CDP_OK, wire.load(wire.self, s->hook[r], s->hook_bytes[r]));
        d.wire = &wire;
    }
    if (!T_EQ(CDP_OK, cdp_outer_create(&d, &o))) return NULL;
    for (uint32_t state = 0; state < 2; ++state) {
        const float *at = s->agreed[state];
        for (uint32_t i = 0; i < PARAMS; at += lengths[i++])
            T_EQ(CDP_OK, cdp_outer_scatter(o, state, i, r == 0 ? at : NULL, 0));
    }
    memcpy(s->j.data[r], s->own[r], sizeof s->own[r]);
    return o;
}

static void run_of_two(cdp_group *g, void *arg) {
    saved_run *s = arg;
    const uint32_t r = cdp_rank(g);
    cdp_outer *o = NULL;
    if (s->goes_on)
        o = run_restores(s, g);
    else
        T_EQ(CDP_OK, job_create(&s->j, g, r, &o));
    for (uint32_t step = s->goes_on ? s->at : 0; o && step < s->j.steps; ++step) {
        if (step == s->at && !s->goes_on) run_saves(s, o, g);
        for (uint32_t k = 0; k < VALUES; ++k)
            s->j.data[r][k] += gain(r, step, k) * 1.01f;
        T_EQ(CDP_OK, cdp_outer_step(o));
    }
    s->j.rounds[r] = cdp_outer_stats_of(o).rounds;
    cdp_outer_destroy(o);
}

TEST(a_run_that_goes_on_from_saved_state_has_the_same_bits) {
    static const struct {
        uint64_t period, delay;
        uint32_t fragments, at;
        double alpha;
        cdp_hook_kind wire;
    } cases[] = {{4, 0, 1, 8, 0, CDP_HOOK_ALLREDUCE},
        {5, 2, 1, 7, 0, CDP_HOOK_ALLREDUCE}, /* between rounds */
        {6, 2, 2, 9, 0.5, CDP_HOOK_QUANTIZE_4}, {4, 1, 2, 6, 0, CDP_HOOK_SIGN},
        {3, 0, 1, 6, 0, CDP_HOOK_TOPK}};
    static saved_run s;
    for (uint32_t c = 0; c < sizeof cases / sizeof *cases; ++c) {
        memset(&s, 0, sizeof s);
        job_begin(&s.j, cases[c].period, cases[c].fragments, cases[c].delay, cases[c].alpha);
        s.j.wire = cases[c].wire;
        s.j.steps = 21;
        s.at = cases[c].at;
        run_ranks(RANKS, NULL, 0, run_of_two, &s);
        T_EQ(s.at, s.steps);
        T_EQ(s.j.wire == CDP_HOOK_ALLREDUCE, !s.hook_bytes[0]);
        memcpy(s.end, s.j.data, sizeof s.end);
        job_begin(&s.j, cases[c].period, cases[c].fragments, cases[c].delay, cases[c].alpha);
        s.j.wire = cases[c].wire;
        s.j.steps = 21;
        s.goes_on = true;
        run_ranks(RANKS, NULL, 0, run_of_two, &s);
        test_check(memcmp(s.end, s.j.data, sizeof s.end) == 0, __FILE__, __LINE__,
            "case %u: other bits", c);
        T_EQ(21 / (cases[c].period / cases[c].fragments), s.j.rounds[0]);
    }
}

static void refuses_state(cdp_group *g, void *arg) {
    float x[4] = {0};
    const cdp_param p = {.data = x, .count = 4};
    cdp_outer_desc d = {.group = g, .params = &p, .param_count = 1, .period = 4, .delay = 2};
    cdp_outer *o;
    (void)arg;
    for (d.steps = 0; d.steps < 12; ++d.steps) /* a fragment is on its way after 2 and 3 of 4 */
        if (d.steps % 4 < 2) {
            T_EQ(CDP_OK, cdp_outer_create(&d, &o));
            cdp_outer_destroy(o);
        } else {
            REFUSED(CDP_ERR_INVALID, "multiple of period / fragments, which is 4",
                cdp_outer_create(&d, &o));
            T(!o);
        }
    d.steps = 0;
    T_EQ(CDP_OK, cdp_outer_create(&d, &o));
    T(!cdp_outer_hook(o) && !cdp_outer_hook(NULL));
    REFUSED(CDP_ERR_INVALID, "outer", cdp_outer_gather(NULL, 0, 0, x, 0));
    REFUSED(CDP_ERR_INVALID, "parameter 1", cdp_outer_gather(o, 0, 1, x, 0));
    REFUSED(CDP_ERR_INVALID, "state 2", cdp_outer_scatter(o, 2, 0, x, 0));
    REFUSED(CDP_ERR_INVALID, "root 1 is no rank of 1", cdp_outer_scatter(o, 0, 0, x, 1));
    REFUSED(CDP_ERR_INVALID, "values", cdp_outer_gather(o, CDP_OUTER_MOMENTUM, 0, NULL, 0));
    T_EQ(CDP_OK, cdp_outer_step(o));
    T_EQ(CDP_OK, cdp_outer_gather(o, 0, 0, x, 0));
    T_EQ(CDP_OK, cdp_outer_step(o));
    REFUSED(CDP_ERR_STATE, "on its way after step 2", cdp_outer_gather(o, 0, 0, x, 0));
    REFUSED(CDP_ERR_STATE, "period / fragments, which is 4", cdp_outer_scatter(o, 0, 0, x, 0));
    T_EQ(CDP_OK, cdp_outer_step(o));
    T_EQ(CDP_OK, cdp_outer_step(o));
    T_EQ(CDP_OK, cdp_outer_scatter(o, 0, 0, x, 0));
    cdp_group_abort(o->group, "over");
    REFUSED(CDP_ERR_ABORTED, "over", cdp_outer_scatter(o, 0, 0, x, 0));
    REFUSED(CDP_ERR_STATE, "cdp_outer_rebind", cdp_outer_gather(o, 0, 0, x, 0));
    cdp_outer_destroy(o);
    T(!cdp_outer_hook(o));
    REFUSED(CDP_ERR_STATE, "destroyed", cdp_outer_scatter(o, 0, 0, x, 0));
}

static void count_all(cdp_group *g, void *arg) {
    train(g, arg);
}

TEST(all_memory_comes_back) {
    static job j;
    job_begin(&j, 6, 2, 1, 0.5);
    j.wire = CDP_HOOK_QUANTIZE_4;
    j.steps = 17; /* one fragment is on its way at the end */
    run_counted(2, count_all, &j);
}

/* ---- mistakes ---- */

static void refuses(cdp_group *g, void *arg) {
    static float x[4];
    cdp_param p = {.data = x, .count = 4};
    cdp_outer_desc d = {0};
    cdp_outer *o;
    (void)arg;
    T_EQ(CDP_ERR_INVALID, cdp_outer_create(&d, NULL));
    T_EQ(CDP_ERR_INVALID, cdp_outer_create(NULL, &o));
    REFUSED(CDP_ERR_INVALID, "desc.group", cdp_outer_create(&d, &o));
    d.group = g;
    d.param_count = 1;
    REFUSED(CDP_ERR_INVALID, "desc.params", cdp_outer_create(&d, &o));
    d.params = &p;
    p.data = NULL;
    REFUSED(CDP_ERR_INVALID, "data", cdp_outer_create(&d, &o));
    p.data = x;
    p.dtype = CDP_DTYPE_BF16;
    REFUSED(CDP_ERR_UNSUPPORTED, "bf16", cdp_outer_create(&d, &o));
    p.dtype = CDP_DTYPE_F32;
    d.fragments = 3;
    REFUSED(CDP_ERR_INVALID, "must divide desc.period", cdp_outer_create(&d, &o));
    d.fragments = 2;
    d.delay = 250;
    REFUSED(CDP_ERR_INVALID, "desc.delay is 250", cdp_outer_create(&d, &o));
    d.delay = 0;
    d.alpha = 1.5;
    REFUSED(CDP_ERR_INVALID, "alpha 0 to 1", cdp_outer_create(&d, &o));
    d.alpha = 0;
    T_EQ(CDP_OK, cdp_outer_create(&d, &o));
    REFUSED(CDP_ERR_INVALID, "group", cdp_outer_rebind(o, NULL));
    cdp_outer_destroy(o);
    cdp_outer_destroy(o);
    REFUSED(CDP_ERR_STATE, "destroyed", cdp_outer_step(o));
    REFUSED(CDP_ERR_STATE, "destroyed", cdp_outer_rebind(o, g));
    T_EQ(CDP_ERR_INVALID, cdp_outer_step(NULL));
    T_EQ(CDP_ERR_INVALID, cdp_outer_rebind(NULL, g));
    T_EQ(0, cdp_outer_stats_of(NULL).steps);
    cdp_outer_destroy(NULL);
}

static void differs(cdp_group *g, void *arg) {
    float x[4] = {0};
    const cdp_param p = {.data = x, .count = 4};
    cdp_outer_desc d = {.group = g, .params = &p, .param_count = 1};
    cdp_outer *o;
    (void)arg;
    d.period = 10 + cdp_rank(g);
    REFUSED(CDP_ERR_MISMATCH, "rank 1 has another period", cdp_outer_create(&d, &o));
    T_EQ(CDP_OK, cdp_barrier(g));
}

static cdp_status creates(cdp_group *g, void *arg) {
    float x[4] = {0};
    const cdp_param p = {.data = x, .count = 4};
    const cdp_outer_desc d = {.group = g, .params = &p, .param_count = 1};
    cdp_outer *o;
    const cdp_status st = cdp_outer_create(&d, &o);
    (void)arg;
    cdp_outer_destroy(o);
    return st;
}

static void fails_alone(cdp_group *g, void *arg) {
    float x[4] = {0};
    const cdp_param p = {.data = x, .count = 4};
    cdp_outer_desc d = {.group = g, .params = &p, .param_count = 1};
    cdp_outer *o;
    (void)arg;
    T(own_memory_is_told(g, creates, NULL) > 6);
    d.alpha = cdp_rank(g) == 1 ? 2 : 0;
    REFUSED(CDP_ERR_INVALID, "alpha 0 to 1", cdp_outer_create(&d, &o));
    if (cdp_rank(g) != 1) T_TEXT("has failed on rank 1", cdp_last_error()->text);
    T_EQ(CDP_OK, cdp_barrier(g));
}

TEST(what_one_rank_lacks_at_creation_is_told_to_all) {
    const cdp_group_desc like = {.timeout_ms = 3000, .os = counted_os()};
    run_ranks(3, &like, 0, fails_alone, NULL);
    T_EQ(0, counted.held);
}

/* A wire that fails on one rank: the others learn of it. */
static cdp_status fails(void *self, cdp_bucket *b, uint32_t stage, cdp_request *op) {
    (void)stage;
    op->kind = CDP_COLL_ALLREDUCE;
    op->out = b->data;
    op->count = b->count;
    return self ? CDP_ERR_UNSUPPORTED : CDP_PENDING;
}

static void has_a_bad_wire(cdp_group *g, void *arg) {
    float x[4] = {0};
    const cdp_param p = {.data = x, .count = 4};
    const cdp_hook wire = {.self = cdp_rank(g) ? g : NULL, .stage = fails};
    cdp_outer_desc d = {.group = g, .params = &p, .param_count = 1, .period = 1, .wire = &wire};
    cdp_outer *o;
    T_EQ(CDP_OK, cdp_outer_create(&d, &o));
    pthread_barrier_wait((pthread_barrier_t *)arg); /* the failure must not end creation */
    T_EQ(CDP_ERR_UNSUPPORTED, cdp_outer_step(o));
    cdp_outer_destroy(o);
}

TEST(mistakes_are_named) {
    pthread_barrier_t created;
    run_counted(1, refuses, NULL);
    run_counted(2, differs, NULL);
    run_counted(1, refuses_state, NULL);
    pthread_barrier_init(&created, NULL, 2);
    run_counted(2, has_a_bad_wire, &created);
    pthread_barrier_destroy(&created);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"fragments_tile_all_values", fragments_tile_all_values, 10},
        {"without_momentum_it_is_the_mean_of_parameters",
            without_momentum_it_is_the_mean_of_parameters, 30},
        {"outer_steps_are_those_of_a_plain_loop", outer_steps_are_those_of_a_plain_loop, 60},
        {"quantized_differences_are_near_and_small", quantized_differences_are_near_and_small, 30},
        {"a_rank_leaves_at_any_step_and_another_one_joins",
            a_rank_leaves_at_any_step_and_another_one_joins, 120},
        {"ranks_take_what_the_foremost_one_agreed_on", ranks_take_what_the_foremost_one_agreed_on,
            30},
        {"before_the_first_round_a_newcomer_takes_what_the_others_have",
            before_the_first_round_a_newcomer_takes_what_the_others_have, 30},
        {"a_run_that_goes_on_from_saved_state_has_the_same_bits",
            a_run_that_goes_on_from_saved_state_has_the_same_bits, 30},
        {"all_memory_comes_back", all_memory_comes_back, 30},
        {"what_one_rank_lacks_at_creation_is_told_to_all",
            what_one_rank_lacks_at_creation_is_told_to_all, 30},
        {"mistakes_are_named", mistakes_are_named, 30},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
