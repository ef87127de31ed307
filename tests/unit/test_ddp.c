/* Data parallel training over the hub: what gradients are afterwards, what is refused, what is
   told, what overlaps. */
#define CDP_IMPLEMENTATION
#include "cdp.h"
#include "ranks.h"

/* ---- a model: parameters of any sizes, gradients that are whole numbers ---- */

#define PARAMS_MAX 24u
#define STEPS_MAX 40u

typedef struct model {
    uint32_t count;
    cdp_param params[PARAMS_MAX];
    char names[PARAMS_MAX][24];
    void *expected[PARAMS_MAX]; /* what this rank's gradient should be */
} model;

static uint64_t model_bytes(const model *m, uint32_t i) {
    return m->params[i].count * cdp_dtype_size(m->params[i].dtype);
}

/* The same model on every rank that gives the same seed. `own`: how many of 4 parameters bring
   their own gradient array. */
static void model_open(model *m, uint64_t seed, uint32_t count, uint64_t largest, uint32_t own) {
    uint64_t state = seed;
    memset(m, 0, sizeof *m);
    m->count = count;
    for (uint32_t i = 0; i < count; ++i) {
        cdp_param *p = &m->params[i];
        snprintf(m->names[i], sizeof m->names[i], "layer%u.w", i);
        p->name = m->names[i];
        p->dtype = test_random(&state) % 3 ? CDP_DTYPE_F32 : CDP_DTYPE_F64;
        p->count = test_random(&state) % 5 ? 1 + test_random(&state) % largest : 0;
        p->data = calloc(p->count + 1, 8);
        p->grad = test_random(&state) % 4 < own ? calloc(p->count + 1, 8) : NULL;
        m->expected[i] = calloc(p->count + 1, 8);
    }
}

static void model_close(model *m) {
    for (uint32_t i = 0; i < m->count; ++i) {
        free(m->params[i].data);
        free(m->params[i].grad);
        free(m->expected[i]);
    }
}

static cdp_ddp *model_ddp(model *m, cdp_group *g, uint64_t first, uint64_t rest) {
    cdp_ddp_desc d;
    cdp_ddp *ddp = NULL;
    memset(&d, 0, sizeof d);
    d.group = g;
    d.params = m->params;
    d.param_count = m->count;
    d.first_bucket_bytes = first;
    d.bucket_bytes = rest;
    test_check(cdp_ddp_create(&d, &ddp) == CDP_OK, __FILE__, __LINE__, "rank %u: %s", cdp_rank(g),
        cdp_last_error()->text);
    T(!ddp || (cdp_ddp_param_count(ddp) == m->count && cdp_ddp_group(ddp) == g));
    return ddp;
}

/* Where the caller adds its gradients. */
static void *model_grad(const model *m, cdp_ddp *ddp, uint32_t i) {
    return m->params[i].grad ? m->params[i].grad : cdp_ddp_grad(ddp, i);
}

static double number_at(cdp_dtype t, const void *p, uint64_t k) {
    return t == CDP_DTYPE_F64 ? ((const double *)p)[k] : (double)((const float *)p)[k];
}
static void set_number(cdp_dtype t, void *p, uint64_t k, double v) {
    if (t == CDP_DTYPE_F64)
        ((double *)p)[k] = v;
    else
        ((float *)p)[k] = (float)v;
}

/* What rank r adds to element k of parameter i in a step. */
static double part_of(uint64_t seed, uint32_t step, uint32_t rank, uint32_t i, uint64_t k) {
    uint64_t state = seed * 31 + step * 1000003u + rank * 7919u + i * 104729u + k;
    return (double)(int64_t)(test_random(&state) % 129) - 64;
}

/* Random orders, different on every rank: the order of ready() must not matter. */
static void shuffled(uint32_t *order, uint32_t n, uint64_t *state) {
    for (uint32_t i = 0; i < n; ++i)
        order[i] = i;
    for (uint32_t i = n; i-- > 1;) {
        const uint32_t k = (uint32_t)(test_random(state) % (i + 1)), t = order[i];
        order[i] = order[k];
        order[k] = t;
    }
}

/* ---- a random program against the serial mean ---- */

typedef struct program {
    uint64_t seed;
    uint32_t params, steps, own;
    uint64_t largest, first, rest;
    bool keep; /* go on adding to means; exact only where the number of ranks is a power of two */
} program;

/* The same arithmetic for all ranks on one of them: acc[r] is rank r's gradient. */
static void serial_step(
    const program *p, uint32_t n, uint32_t rank, model *m, double **acc, uint32_t step, bool sync) {
    for (uint32_t i = 0; i < m->count; ++i)
        for (uint64_t k = 0; k < m->params[i].count; ++k) {
            double sum = 0;
            for (uint32_t r = 0; r < n; ++r) {
                double *a = &acc[i][r * m->params[i].count + k];
                *a += part_of(p->seed, step, r, i, k);
                sum += *a;
            }
            if (sync) {
                set_number(m->params[i].dtype, m->expected[i], k,
                    m->params[i].dtype == CDP_DTYPE_F64 ? sum / n
                                                        : (double)((float)sum / (float)n));
                for (uint32_t r = 0; r < n; ++r)
                    acc[i][r * m->params[i].count + k] =
                        number_at(m->params[i].dtype, m->expected[i], k);
            } else {
                set_number(
                    m->params[i].dtype, m->expected[i], k, acc[i][rank * m->params[i].count + k]);
            }
        }
}

static void program_backward(
    const program *p, model *m, cdp_ddp *ddp, uint32_t rank, uint32_t step, uint64_t *own_state) {
    uint32_t order[PARAMS_MAX];
    T_EQ(CDP_OK, cdp_ddp_backward_begin(ddp));
    shuffled(order, m->count, own_state);
    for (uint32_t o = 0; o < m->count; ++o) {
        const uint32_t i = order[o];
        const cdp_dtype t = m->params[i].dtype;
        void *grad = model_grad(m, ddp, i);
        for (uint64_t k = 0; k < m->params[i].count; ++k)
            set_number(t, grad, k, number_at(t, grad, k) + part_of(p->seed, step, rank, i, k));
        T_EQ(CDP_OK, cdp_ddp_ready(ddp, i));
    }
    T_EQ(CDP_OK, cdp_ddp_backward_end(ddp));
}

static void rank_program(cdp_group *g, void *arg) {
    const program *p = (const program *)arg;
    const uint32_t n = cdp_size(g), rank = cdp_rank(g);
    uint64_t same = p->seed, own = p->seed * 77 + rank;
    double *acc[PARAMS_MAX];
    model m;
    uint32_t synced = 0;
    model_open(&m, p->seed, p->params, p->largest, p->own);
    for (uint32_t i = 0; i < m.count; ++i)
        acc[i] = (double *)calloc(m.params[i].count * n + 1, sizeof *acc[i]);
    cdp_ddp *ddp = model_ddp(&m, g, p->first, p->rest);
    for (uint32_t step = 0; ddp && step < p->steps; ++step) {
        const bool sync = test_random(&same) % 2 || step + 1 == p->steps;
        T_EQ(CDP_OK, cdp_ddp_no_sync(ddp, !sync));
        program_backward(p, &m, ddp, rank, step, &own);
        serial_step(p, n, rank, &m, acc, step, sync);
        synced += sync;
        for (uint32_t i = 0; i < m.count; ++i)
            test_check(memcmp(m.expected[i], model_grad(&m, ddp, i), model_bytes(&m, i)) == 0,
                __FILE__, __LINE__, "seed %llu, rank %u/%u, step %u%s: gradient of parameter %u",
                (unsigned long long)p->seed, rank, n, step, sync ? "" : " (no_sync)", i);
        if ((!p->keep && sync) || test_random(&same) % 6 == 0) {
            cdp_ddp_zero_grad(ddp);
            for (uint32_t i = 0; i < m.count; ++i)
                memset(acc[i], 0, m.params[i].count * n * sizeof *acc[i]);
        }
    }
    if (ddp) T_EQ(synced, cdp_ddp_stats_of(ddp).steps);
    cdp_ddp_destroy(ddp);
    for (uint32_t i = 0; i < m.count; ++i)
        free(acc[i]);
    model_close(&m);
}

TEST(random_programs_equal_the_serial_mean) {
    static const uint32_t sizes[] = {1, 2, 3, 4, 5, 8};
    uint64_t state = 1;
    for (int run = 0; run < (TEST_SLOW ? 24 : 120); ++run) {
        cdp_group_desc like;
        program p;
        const uint32_t n = sizes[run % 6];
        memset(&like, 0, sizeof like);
        like.no_thread = test_random(&state) % 4 == 0;
        like.small_bytes = test_random(&state) % 2 ? 1 : 0;
        p.seed = test_random(&state);
        p.params = 1 + (uint32_t)(test_random(&state) % PARAMS_MAX);
        p.steps = 6;
        p.own = run % 5;
        p.largest = test_random(&state) % 2 ? 20 : 600;
        p.first = 1 + test_random(&state) % 500;
        p.rest = 1 + test_random(&state) % 3000;
        p.keep = n == 1 || n == 2 || n == 4 || n == 8;
        run_ranks(n, &like, test_random(&state) % 2 ? 5000 : 0, rank_program, &p);
    }
}

TEST(default_buckets) {
    program p = {7, 10, 3, 1, 50000, 0, 0, false};
    run_ranks(3, NULL, 0, rank_program, &p);
}

/* ---- creation ---- */

static void rank_starts_from_rank_0(cdp_group *g, void *arg) {
    const bool no_broadcast = *(const bool *)arg;
    cdp_ddp_desc d;
    cdp_ddp *ddp;
    model m;
    model_open(&m, 3, 12, 3000, 2);
    memset(&d, 0, sizeof d);
    d.group = g;
    d.params = m.params;
    d.param_count = m.count;
    d.no_broadcast = no_broadcast;
    for (uint32_t i = 0; i < m.count; ++i)
        for (uint64_t k = 0; k < m.params[i].count; ++k)
            set_number(
                m.params[i].dtype, m.params[i].data, k, 1000.0 * cdp_rank(g) + i + (double)k);
    T_EQ(CDP_OK, cdp_ddp_create(&d, &ddp));
    const double rank = no_broadcast ? cdp_rank(g) : 0;
    for (uint32_t i = 0; i < m.count; ++i)
        for (uint64_t k = 0; k < m.params[i].count; ++k)
            T(number_at(m.params[i].dtype, m.params[i].data, k) == 1000.0 * rank + i + (double)k);
    /* gradients begin as zero, each in a place of its own */
    for (uint32_t i = 0; i < m.count; ++i) {
        const uint8_t *a = (const uint8_t *)cdp_ddp_grad(ddp, i);
        T(a != NULL);
        T((uintptr_t)a % cdp_dtype_size(m.params[i].dtype) == 0);
        for (uint64_t k = 0; k < m.params[i].count; ++k)
            T(number_at(m.params[i].dtype, a, k) == 0);
        for (uint32_t j = 0; j < i; ++j) {
            const uint8_t *b = (const uint8_t *)cdp_ddp_grad(ddp, j);
            T(a + model_bytes(&m, i) <= b || b + model_bytes(&m, j) <= a);
        }
    }
    T(cdp_ddp_grad(ddp, m.count) == NULL);
    T(cdp_ddp_grad(NULL, 0) == NULL);
    cdp_ddp_destroy(ddp);
    model_close(&m);
}

TEST(everybody_starts_from_rank_0) {
    bool no_broadcast = false;
    run_ranks(4, NULL, 0, rank_starts_from_rank_0, &no_broadcast);
    no_broadcast = true;
    run_ranks(2, NULL, 0, rank_starts_from_rank_0, &no_broadcast);
}

/* What one rank may have different; the others have the plain model. */
typedef enum odd {
    ODD_NAME,
    ODD_COUNT,
    ODD_DTYPE,
    ODD_MORE,
    ODD_FEWER,
    ODD_ORDER,
    ODD_FIRST,
    ODD_COUNT_OF
} odd;
typedef struct odd_model {
    odd what;
    uint32_t who;
    const char *here, *there, *param; /* words of the message on every rank */
} odd_model;

static void rank_with_odd_model(cdp_group *g, void *arg) {
    const odd_model *o = (const odd_model *)arg;
    float data[6][4] = {{0}};
    cdp_param p[6];
    cdp_ddp_desc d;
    cdp_ddp *ddp = (cdp_ddp *)&d;
    static const char *const names[6] = {"embed", "attention", "norm", "head", "extra", "bias"};
    memset(p, 0, sizeof p);
    memset(&d, 0, sizeof d);
    for (int i = 0; i < 6; ++i) {
        p[i].name = names[i];
        p[i].data = data[i];
        p[i].count = 2;
    }
    d.group = g;
    d.params = p;
    d.param_count = 4;
    if (cdp_rank(g) == o->who) {
        if (o->what == ODD_NAME) p[2].name = "norm2";
        if (o->what == ODD_COUNT) p[1].count = 1;
        if (o->what == ODD_DTYPE) p[3].dtype = CDP_DTYPE_F64;
        if (o->what == ODD_MORE) d.param_count = 5;
        if (o->what == ODD_FEWER) d.param_count = 3;
        if (o->what == ODD_FIRST) p[0].count = 4;
        if (o->what == ODD_ORDER) {
            p[1].name = "norm";
            p[2].name = "attention";
        }
    }
    const uint64_t start = test_now_ns();
    T_EQ(CDP_ERR_MISMATCH, cdp_ddp_create(&d, &ddp));
    T_WITHIN(2000, test_now_ns() - start);
    T(ddp == NULL);
    T_TEXT(o->here, cdp_last_error()->text);
    T_TEXT(o->there, cdp_last_error()->text);
    T_TEXT(o->param, cdp_last_error()->text);
    T_EQ(CDP_ERR_MISMATCH, cdp_last_error()->status);
    T_EQ(o->who ? o->who : 1, cdp_last_error()->peer);
    T_EQ(CDP_OK, cdp_barrier(g)); /* nobody hangs, and the group still works */
}

TEST(different_models_are_named) {
    static const odd_model odds[] = {
        {ODD_NAME, 2, "'norm' f32[2]", "'norm2' f32[2]", "parameter 2"},
        {ODD_COUNT, 1, "'attention' f32[2]", "'attention' f32[1]", "parameter 1"},
        {ODD_DTYPE, 2, "'head' f32[2]", "'head' f64[2]", "parameter 3"},
        {ODD_MORE, 1, "'extra' f32[2]", "nothing (param_count is 4)", "parameter 4"},
        {ODD_FEWER, 2, "'head' f32[2]", "nothing (param_count is 3)", "parameter 3"},
        {ODD_ORDER, 1, "'attention' f32[2]", "'norm' f32[2]", "parameter 1"},
        {ODD_FIRST, 0, "'embed' f32[4]", "'embed' f32[2]", "parameter 0"},
        {ODD_MORE, 0, "'extra' f32[2]", "nothing (param_count is 4)", "parameter 4"},
        {ODD_FEWER, 0, "'head' f32[2]", "nothing (param_count is 3)", "parameter 3"},
    };
    for (size_t i = 0; i < sizeof odds / sizeof *odds; ++i) {
        odd_model o = odds[i];
        run_ranks(3, NULL, 0, rank_with_odd_model, &o);
    }
}

static void rank_brings_number_of_ranks(cdp_group *g, void *arg) {
    float x[4] = {0};
    cdp_param p[2];
    cdp_ddp_desc d;
    cdp_ddp *ddp;
    (void)arg;
    memset(p, 0, sizeof p);
    memset(&d, 0, sizeof d);
    p[0].data = x;
    p[1].data = x + 1;
    p[0].count = 1;           /* names are left out */
    p[1].count = cdp_rank(g); /* every rank a model of its own */
    d.group = g;
    d.params = p;
    d.param_count = 2;
    T_EQ(CDP_ERR_MISMATCH, cdp_ddp_create(&d, &ddp));
    T_TEXT("'param1' f32[0]", cdp_last_error()->text);
    T_TEXT("'param1' f32[1]", cdp_last_error()->text);
    T_EQ(1, cdp_last_error()->peer);
}

TEST(all_models_differ) {
    run_ranks(4, NULL, 0, rank_brings_number_of_ranks, NULL);
}

TEST(mistakes_in_creation) {
    cdp_group *g = group_of_one(NULL);
    float x[2] = {0};
    cdp_param p[2];
    cdp_ddp_desc d;
    cdp_ddp *ddp = (cdp_ddp *)&d;
    memset(p, 0, sizeof p);
    memset(&d, 0, sizeof d);
    REFUSED(CDP_ERR_INVALID, "desc", cdp_ddp_create(NULL, &ddp));
    REFUSED(CDP_ERR_INVALID, "out is NULL", cdp_ddp_create(&d, NULL));
    REFUSED(CDP_ERR_INVALID, "desc.group is NULL", cdp_ddp_create(&d, &ddp));
    T(ddp == NULL);
    d.group = g;
    REFUSED(CDP_ERR_INVALID, "no parameters", cdp_ddp_create(&d, &ddp));
    d.params = p;
    REFUSED(CDP_ERR_INVALID, "no parameters", cdp_ddp_create(&d, &ddp));
    d.param_count = 2;
    p[0].data = x;
    p[0].count = p[1].count = 1;
    p[1].name = "w";
    REFUSED(CDP_ERR_INVALID, "'w' (index 1) has no data", cdp_ddp_create(&d, &ddp));
    p[1].data = x + 1;
    p[1].dtype = CDP_DTYPE_I32;
    REFUSED(CDP_ERR_INVALID, "'w' (index 1) has dtype i32", cdp_ddp_create(&d, &ddp));
    p[1].dtype = CDP_DTYPE_F64;
    p[1].count = UINT64_MAX / 8 + 1;
    REFUSED(CDP_ERR_INVALID, "'w' (index 1) is larger", cdp_ddp_create(&d, &ddp));
    p[1].dtype = (cdp_dtype)99;
    p[1].count = 1;
    REFUSED(CDP_ERR_INVALID, "'w' (index 1) has dtype ?", cdp_ddp_create(&d, &ddp));
    cdp_group_destroy(g);
}

/* ---- misuse of a backward pass ---- */

typedef struct misuse {
    int what;
    uint32_t who;
    pthread_barrier_t created; /* on all ranks, before one of them breaks the group */
} misuse;

static void rank_misuses(cdp_group *g, void *arg) {
    misuse *u = (misuse *)arg;
    const bool me = cdp_rank(g) == u->who;
    model m;
    cdp_status st = CDP_OK;
    model_open(&m, 9, 8, 50, 1);
    cdp_ddp *ddp = model_ddp(&m, g, 1, 1);
    pthread_barrier_wait(&u->created);
    st = cdp_ddp_backward_begin(ddp);
    T(st == CDP_OK || !me); /* another rank may be that fast */
    for (uint32_t i = m.count; i-- > 0;) {
        if (me && u->what == 0 && (i == 5 || i == 2)) continue; /* never ready */
        const cdp_status r = cdp_ddp_ready(ddp, i);
        if (me && st == CDP_OK) T_EQ(CDP_OK, r);
        if (me && u->what == 1 && i == 6)
            REFUSED(CDP_ERR_STATE, "'layer6.w' (index 6) was marked ready twice",
                st = cdp_ddp_ready(ddp, i));
        if (me && u->what == 2 && i == 6)
            REFUSED(CDP_ERR_INVALID, "cdp_ddp_ready(8): it should be less than param_count, 8",
                st = cdp_ddp_ready(ddp, 8));
    }
    const uint64_t start = test_now_ns();
    st = cdp_ddp_backward_end(ddp);
    const char *text = cdp_last_error()->text;
    T_WITHIN(500, test_now_ns() - start);
    /* a rank that had all it needed may learn of it at the next call */
    if (u->what == 0 && (me || st != CDP_OK)) {
        T_EQ(CDP_ERR_STATE, st);
        char who[64];
        snprintf(who, sizeof who, "of rank %u ended although 2 of 8 parameters were never", u->who);
        T_TEXT(who, text);
        T_TEXT("'layer2.w' (index 2)", text);
        T_TEXT("'layer5.w' (index 5)", text);
        T_EQ(u->who, cdp_last_error()->peer);
        T_EQ(u->who, cdp_last_error()->origin);
    } else if (me) {
        T(st == CDP_ERR_STATE || st == CDP_ERR_INVALID);
        T_TEXT(u->what == 1
                ? "'layer6.w' (index 6) was marked ready twice in one backward pass of rank"
                : "cdp_ddp_ready(8)",
            text);
    }
    /* afterwards the group is broken on all ranks, for the same reason */
    st = cdp_ddp_backward_begin(ddp);
    if (st == CDP_OK) {
        for (uint32_t i = 0; i < m.count; ++i)
            (void)cdp_ddp_ready(ddp, i);
        st = cdp_ddp_backward_end(ddp);
    }
    test_check(st == (u->what == 2 ? CDP_ERR_INVALID : CDP_ERR_STATE), __FILE__, __LINE__,
        "misuse %d, rank %u: %s: %s", u->what, cdp_rank(g), cdp_status_name(st),
        cdp_last_error()->text);
    cdp_ddp_destroy(ddp);
    model_close(&m);
}

TEST(misuse_is_named_on_every_rank) {
    for (int what = 0; what < 3; ++what)
        for (uint32_t who = 0; who < 3; ++who) {
            misuse u;
            u.what = what;
            u.who = who;
            pthread_barrier_init(&u.created, NULL, 3);
            run_ranks(3, NULL, 0, rank_misuses, &u);
            pthread_barrier_destroy(&u.created);
        }
}

TEST(many_missing_parameters_are_cut) {
    cdp_group *g = group_of_one(NULL);
    model m;
    model_open(&m, 5, 20, 3, 0);
    cdp_ddp *ddp = model_ddp(&m, g, 0, 0);
    T_EQ(CDP_OK, cdp_ddp_backward_begin(ddp));
    REFUSED(
        CDP_ERR_STATE, "20 of 20 parameters were never marked ready", cdp_ddp_backward_end(ddp));
    T_TEXT("'layer4.w' (index 4) and 15 more", cdp_last_error()->text);
    cdp_ddp_destroy(ddp);
    cdp_group_destroy(g);
    model_close(&m);
}

TEST(calls_at_the_wrong_time) {
    cdp_group *g = group_of_one(NULL);
    model m;
    model_open(&m, 6, 3, 10, 0);
    cdp_ddp *ddp = model_ddp(&m, g, 0, 0);
    REFUSED(CDP_ERR_INVALID, " is NULL", cdp_ddp_backward_begin(NULL));
    REFUSED(CDP_ERR_INVALID, " is NULL", cdp_ddp_ready(NULL, 0));
    REFUSED(CDP_ERR_INVALID, " is NULL", cdp_ddp_backward_end(NULL));
    REFUSED(CDP_ERR_INVALID, " is NULL", cdp_ddp_no_sync(NULL, true));
    cdp_ddp_zero_grad(NULL);
    cdp_ddp_destroy(NULL);
    T_EQ(0, cdp_ddp_stats_of(NULL).steps);
    REFUSED(CDP_ERR_STATE, "no backward pass is open", cdp_ddp_ready(ddp, 1));
    REFUSED(CDP_ERR_STATE, "no backward pass is open", cdp_ddp_backward_end(ddp));
    T_EQ(CDP_OK, cdp_ddp_backward_begin(ddp));
    REFUSED(CDP_ERR_STATE, "cdp_ddp_backward_end first", cdp_ddp_backward_begin(ddp));
    REFUSED(CDP_ERR_STATE, "a backward pass is open", cdp_ddp_no_sync(ddp, true));
    for (uint32_t i = 0; i < m.count; ++i)
        T_EQ(CDP_OK, cdp_ddp_ready(ddp, i));
    T_EQ(CDP_OK, cdp_ddp_backward_end(ddp)); /* none of that spoiled it */
    REFUSED(CDP_ERR_STATE, "no backward pass is open", cdp_ddp_backward_end(ddp));
    /* a local pass may leave parameters out, and still refuses nonsense */
    T_EQ(CDP_OK, cdp_ddp_no_sync(ddp, true));
    T_EQ(CDP_OK, cdp_ddp_backward_begin(ddp));
    T_EQ(CDP_OK, cdp_ddp_ready(ddp, 2));
    T_EQ(CDP_OK, cdp_ddp_backward_end(ddp));
    T_EQ(CDP_OK, cdp_ddp_backward_begin(ddp));
    T_EQ(CDP_OK, cdp_ddp_ready(ddp, 2));
    REFUSED(CDP_ERR_STATE, "twice", cdp_ddp_ready(ddp, 2));
    REFUSED(CDP_ERR_STATE, "twice", cdp_ddp_backward_end(ddp));
    T_EQ(CDP_OK, cdp_ddp_no_sync(ddp, false)); /* which is no failure of the group */
    T_EQ(CDP_OK, cdp_ddp_backward_begin(ddp));
    for (uint32_t i = 0; i < m.count; ++i)
        T_EQ(CDP_OK, cdp_ddp_ready(ddp, i));
    T_EQ(CDP_OK, cdp_ddp_backward_end(ddp));
    T_EQ(2, cdp_ddp_stats_of(ddp).steps);
    cdp_ddp_destroy(ddp);
    cdp_group_destroy(g);
    model_close(&m);
}

/* ---- overlap and its figures ---- */

static void big_params(cdp_param *p, uint32_t n, uint64_t count) {
    memset(p, 0, n * sizeof *p);
    for (uint32_t i = 0; i < n; ++i) {
        p[i].count = count;
        p[i].data = calloc(count, sizeof(float));
    }
}

static void rank_overlaps(cdp_group *g, void *arg) {
    enum {
        N = 6
    };
    cdp_param p[N];
    cdp_ddp_desc d;
    cdp_ddp *ddp;
    bool overlapped = false;
    (void)arg;
    big_params(p, N, 100000);
    memset(&d, 0, sizeof d);
    d.group = g;
    d.params = p;
    d.param_count = N;
    d.first_bucket_bytes = d.bucket_bytes = 400000; /* one parameter each */
    T_EQ(CDP_OK, cdp_ddp_create(&d, &ddp));
    T_EQ(N, ddp->bucket_count);
    for (int step = 0; step < 3; ++step) {
        T_EQ(CDP_OK, cdp_barrier(g));
        T_EQ(CDP_OK, cdp_ddp_backward_begin(ddp));
        const uint64_t begin = test_now_ns();
        for (uint32_t i = N; i-- > 0;) {
            test_sleep_ms(20 * TEST_SLACK); /* a layer's work */
            T_EQ(CDP_OK, cdp_ddp_ready(ddp, i));
        }
        const uint64_t called = test_now_ns();
        T_EQ(CDP_OK, cdp_ddp_backward_end(ddp));
        const cdp_ddp_stats s = cdp_ddp_stats_of(ddp);
        bool all_before = true;
        /* done before anybody waited */
        for (uint32_t b = 0; b + 2 < N; ++b)
            all_before = all_before && ddp->buckets[b].end_ns && ddp->buckets[b].end_ns < called;
        /* in some step: a busy machine may stop a thread for longer than a layer takes */
        overlapped = overlapped || all_before;
        for (uint32_t b = 1; b < N; ++b)
            T(ddp->buckets[b].start_ns >= ddp->buckets[b - 1].end_ns);
        T_EQ(step + 1, s.steps);
        T_EQ(N, s.bucket_count);
        T_EQ(N * 400000, s.bytes_per_step);
        T(s.backward_ns >= (called - begin) / 2 && s.backward_ns <= (called - begin) * 2);
        T(s.comm_ns > 0 && s.exposed_ns <= s.comm_ns);
        T(s.hidden >= 0 && s.hidden <= 1);
        T(s.total_comm_ns >= s.comm_ns && s.total_backward_ns >= s.backward_ns
            && s.total_exposed_ns >= s.exposed_ns);
    }
    T(overlapped);
    cdp_ddp_destroy(ddp);
    for (uint32_t i = 0; i < N; ++i)
        free(p[i].data);
}

TEST(buckets_travel_while_backward_runs) {
    run_ranks(2, NULL, 0, rank_overlaps, NULL);
}

static void rank_launches_in_order(cdp_group *g, void *arg) {
    enum {
        N = 5
    };
    cdp_param p[N];
    cdp_ddp_desc d;
    cdp_ddp *ddp;
    (void)arg;
    big_params(p, N, 100);
    memset(&d, 0, sizeof d);
    d.group = g;
    d.params = p;
    d.param_count = N;
    d.first_bucket_bytes = d.bucket_bytes = 400;
    T_EQ(CDP_OK, cdp_ddp_create(&d, &ddp));
    const uint64_t issued = g->queue.issued;
    T_EQ(CDP_OK, cdp_ddp_backward_begin(ddp));
    /* the last bucket is complete first: it waits for its turn */
    T_EQ(CDP_OK, cdp_ddp_ready(ddp, 0));
    T_EQ(CDP_OK, cdp_ddp_ready(ddp, 2));
    T_EQ(0, g->queue.issued - issued);
    T_EQ(CDP_OK, cdp_ddp_ready(ddp, 4)); /* bucket 0 */
    T_EQ(1, g->queue.issued - issued);
    T_EQ(CDP_OK, cdp_ddp_ready(ddp, 3)); /* 1, and with it 2 */
    T_EQ(3, g->queue.issued - issued);
    T_EQ(CDP_OK, cdp_ddp_ready(ddp, 1)); /* 3, and with it 4 */
    T_EQ(5, g->queue.issued - issued);
    T_EQ(CDP_OK, cdp_ddp_backward_end(ddp));
    T_EQ(5, g->queue.issued - issued); /* and nothing else is sent */
    T_EQ(CDP_OK, cdp_ddp_no_sync(ddp, true));
    T_EQ(CDP_OK, cdp_ddp_backward_begin(ddp));
    for (uint32_t i = 0; i < N; ++i)
        T_EQ(CDP_OK, cdp_ddp_ready(ddp, i));
    T_EQ(CDP_OK, cdp_ddp_backward_end(ddp));
    T_EQ(5, g->queue.issued - issued); /* nothing at all under no_sync */
    cdp_ddp_destroy(ddp);
    for (uint32_t i = 0; i < N; ++i)
        free(p[i].data);
}

TEST(buckets_start_in_their_order) {
    run_ranks(3, NULL, 0, rank_launches_in_order, NULL);
}

/* ---- small worlds and empty parameters ---- */

TEST(one_rank_averages_with_itself) {
    program p = {11, 12, 8, 2, 300, 200, 500, true};
    run_ranks(1, NULL, 0, rank_program, &p);
}

static void rank_with_nothing(cdp_group *g, void *arg) {
    cdp_param p[3];
    cdp_ddp_desc d;
    cdp_ddp *ddp;
    (void)arg;
    memset(p, 0, sizeof p); /* three parameters without elements, data or names */
    memset(&d, 0, sizeof d);
    d.group = g;
    d.params = p;
    d.param_count = 3;
    T_EQ(CDP_OK, cdp_ddp_create(&d, &ddp));
    for (int step = 0; step < 2; ++step) {
        T_EQ(CDP_OK, cdp_ddp_backward_begin(ddp));
        for (uint32_t i = 0; i < 3; ++i)
            T_EQ(CDP_OK, cdp_ddp_ready(ddp, i));
        T_EQ(CDP_OK, cdp_ddp_backward_end(ddp));
    }
    T_EQ(0, cdp_ddp_stats_of(ddp).bytes_per_step);
    cdp_ddp_destroy(ddp);
}

TEST(parameters_without_elements) {
    run_ranks(1, NULL, 0, rank_with_nothing, NULL);
    run_ranks(3, NULL, 0, rank_with_nothing, NULL);
}

/* ---- failures ---- */

static void rank_loses_another(cdp_group *g, void *arg) {
    const int how = *(const int *)arg;
    model m;
    cdp_status st = CDP_OK;
    model_open(&m, 13, 6, 500, 0);
    cdp_ddp *ddp = model_ddp(&m, g, 1, 1);
    for (int step = 0; step < 10 && st == CDP_OK; ++step) {
        st = cdp_ddp_backward_begin(ddp);
        if (st != CDP_OK) break;
        for (uint32_t i = m.count; i-- > 0;) {
            if (cdp_rank(g) == 1 && step == 4 && i == 3) {
                if (how == 0)
                    cdp_group_abort(g, "loss is NaN");
                else
                    test_sleep_ms(2000);
            }
            (void)cdp_ddp_ready(ddp, i);
        }
        st = cdp_ddp_backward_end(ddp);
    }
    test_check(st == (how == 0 ? CDP_ERR_ABORTED : CDP_ERR_TIMEOUT), __FILE__, __LINE__,
        "rank %u: %s: %s", cdp_rank(g), cdp_status_name(st), cdp_last_error()->text);
    T_TEXT(how == 0 ? "loss is NaN" : "rank 1", cdp_last_error()->text);
    T_EQ(1, cdp_last_error()->peer);
    for (int i = 0; i < 3; ++i) { /* a pass that is open hides nothing */
        const cdp_status again = cdp_ddp_backward_begin(ddp);
        test_check(again == st, __FILE__, __LINE__, "rank %u: %s after %s: %s", cdp_rank(g),
            cdp_status_name(again), cdp_status_name(st), cdp_last_error()->text);
        T_EQ(1, cdp_last_error()->peer);
    }
    cdp_ddp_destroy(ddp); /* in the middle of a pass that was begun */
    model_close(&m);
}

TEST(training_ends_with_the_cause) {
    cdp_group_desc like;
    int how = 0;
    memset(&like, 0, sizeof like);
    like.os = counted_os();
    run_ranks(3, &like, 0, rank_loses_another, &how);
    T_EQ(0, counted.held);
    how = 1;
    like.timeout_ms = 700; /* longer than a machine stands still */
    run_ranks(3, &like, 0, rank_loses_another, &how);
    T_EQ(0, counted.held);
}

static void rank_destroys_in_flight(cdp_group *g, void *arg) {
    model m;
    (void)arg;
    model_open(&m, 14, 8, 2000, 0);
    cdp_ddp *ddp = model_ddp(&m, g, 1, 1);
    T_EQ(CDP_OK, cdp_ddp_backward_begin(ddp));
    for (uint32_t i = m.count; i-- > 2;)
        T_EQ(CDP_OK, cdp_ddp_ready(ddp, i));
    cdp_ddp_destroy(ddp); /* what is on its way ends first, on all ranks alike */
    T_EQ(CDP_OK, cdp_barrier(g));
    model_close(&m);
}

TEST(destroy_in_the_middle) {
    cdp_group_desc like;
    memset(&like, 0, sizeof like);
    like.os = counted_os();
    run_ranks(3, &like, 0, rank_destroys_in_flight, NULL);
    T_EQ(0, counted.held);
}

/* ---- memory ---- */

TEST(creation_survives_every_refusal) {
    const cdp_os *os = counted_os();
    cdp_group *g = group_of_one(os);
    const int64_t before = counted.held;
    int created = 0;
    model m;
    model_open(&m, 15, 6, 100, 2);
    for (int64_t fail = 1; fail < 200 && !created; ++fail) {
        cdp_ddp_desc d;
        cdp_ddp *ddp;
        memset(&d, 0, sizeof d);
        d.group = g;
        d.params = m.params;
        d.param_count = m.count;
        d.first_bucket_bytes = d.bucket_bytes = 64;
        counted.calls = 0;
        counted.fail_at = fail;
        const cdp_status st = cdp_ddp_create(&d, &ddp);
        counted.fail_at = 0;
        T(st == CDP_ERR_NOMEM || st == CDP_OK);
        T((st == CDP_OK) == (ddp != NULL));
        created = st == CDP_OK;
        if (!created) T_TEXT("out of memory", cdp_last_error()->text);
        T(created || fail < 100);
        cdp_ddp_destroy(ddp);
        if (!T_EQ(before, counted.held)) return;
    }
    T(created);
    model_close(&m);
    cdp_group_destroy(g);
    T_EQ(0, counted.held);
}

static void rank_steps_without_allocating(cdp_group *g, void *arg) {
    const program p = {16, 10, 0, 2, 800, 300, 1000, false};
    uint64_t own = cdp_rank(g);
    int64_t before = 0;
    model m;
    (void)arg;
    model_open(&m, p.seed, p.params, p.largest, p.own);
    cdp_ddp *ddp = model_ddp(&m, g, p.first, p.rest);
    for (uint32_t step = 0; step < 20; ++step) {
        T_EQ(CDP_OK, cdp_barrier(g));
        if (step == 2) before = counted.calls;
        T_EQ(CDP_OK, cdp_barrier(g));
        program_backward(&p, &m, ddp, cdp_rank(g), step, &own);
    }
    T_EQ(CDP_OK, cdp_barrier(g));
    T_EQ(before, counted.calls);
    T_EQ(CDP_OK, cdp_barrier(g));
    cdp_ddp_destroy(ddp);
    model_close(&m);
}

TEST(steps_allocate_nothing) {
    cdp_group_desc like;
    memset(&like, 0, sizeof like);
    like.os = counted_os();
    run_ranks(3, &like, 0, rank_steps_without_allocating, NULL);
    T_EQ(0, counted.held);
}

TEST(memory_that_overlaps_is_named) {
    cdp_group_desc gd = {.world_size = 1};
    float x[40] = {0};
    cdp_param p[3] = {{.name = "a", .data = x, .count = 4},
        {.name = "b", .data = x + 8, .count = 4}, {.name = "none", .data = x + 9}};
    cdp_buffer buffer = {.name = "mean", .data = x + 12, .count = 1};
    cdp_ddp_desc d = {.params = p, .param_count = 3, .buffers = &buffer, .buffer_count = 1};
    cdp_ddp *ddp;
    T_EQ(CDP_OK, cdp_group_create(&gd, &d.group));
    T_EQ(CDP_OK, cdp_ddp_create(&d, &ddp)); /* neighbours, and an empty one */
    cdp_ddp_destroy(ddp);
    p[1].data = x;
    T_EQ(CDP_ERR_INVALID, cdp_ddp_create(&d, &ddp));
    T_TEXT("parameter 'a' (index 0) and parameter 'b' (index 1) share 16 bytes; give each",
        cdp_last_error()->text);
    p[1].data = x + 8;
    p[1].grad = x + 3;
    T_EQ(CDP_ERR_INVALID, cdp_ddp_create(&d, &ddp));
    T_TEXT("parameter 'a' (index 0) and the gradient of parameter 'b' (index 1) share 4 bytes",
        cdp_last_error()->text);
    p[1].grad = x + 11;
    T_EQ(CDP_ERR_INVALID, cdp_ddp_create(&d, &ddp));
    p[1].grad = x + 20;
    buffer.data = x + 22;
    T_EQ(CDP_ERR_INVALID, cdp_ddp_create(&d, &ddp));
    T_TEXT("gradient of parameter 'b' (index 1) and buffer 'mean' (index 0) share 4 bytes",
        cdp_last_error()->text);
    buffer.data = (char *)x + 49;
    T_EQ(CDP_ERR_INVALID, cdp_ddp_create(&d, &ddp));
    T_TEXT("buffer 'mean' (index 0) is not aligned to its dtype f32; align it to 4 bytes",
        cdp_last_error()->text);
    cdp_group_destroy(d.group);
}

/* Gradients 256 on rank 0 and 1 on the others, as bf16; 2047 and 2 as f16. Their sums need more
   bits than the gradients, their means do not. */
static void rank_accumulates(cdp_group *g, void *arg) {
    const bool first = cdp_rank(g) == 0;
    static const uint16_t values[2][2] = {{0x3f80, 0x4380}, {0x4000, 0x67ff}};
    const uint64_t n = 40000;
    uint16_t *data[2], *grads[2];
    cdp_param p[2];
    cdp_ddp_desc d;
    cdp_ddp *ddp;
    (void)arg;
    memset(p, 0, sizeof p);
    memset(&d, 0, sizeof d);
    for (int i = 0; i < 2; ++i) {
        data[i] = (uint16_t *)calloc(n, 2);
        p[i].data = data[i];
        p[i].count = n;
        p[i].dtype = i ? CDP_DTYPE_F16 : CDP_DTYPE_BF16;
    }
    d.group = g;
    d.params = p;
    d.param_count = 2;
    d.accumulate = CDP_DTYPE_F64;
    T_EQ(CDP_ERR_INVALID, cdp_ddp_create(&d, &ddp));
    T_TEXT("accumulate is 2", cdp_last_error()->text);
    d.accumulate = CDP_DTYPE_F32;
    if (!T_EQ(CDP_OK, cdp_ddp_create(&d, &ddp))) return;
    T_EQ(CDP_OK, cdp_ddp_backward_begin(ddp));
    for (uint32_t i = 0; i < 2; ++i) {
        grads[i] = (uint16_t *)cdp_ddp_grad(ddp, i);
        for (uint64_t k = 0; k < n; ++k)
            grads[i][k] = values[i][first];
        T_EQ(CDP_OK, cdp_ddp_ready(ddp, i));
    }
    T_EQ(CDP_OK, cdp_ddp_backward_end(ddp));
    for (uint64_t k = 0; k < n; ++k)
        /* 260 / 5 = 52; 2055 / 5 = 411 */
        if (!T_EQ(0x4250, grads[0][k]) || !T_EQ(0x5e6c, grads[1][k])) break;
    cdp_ddp_destroy(ddp);
    free(data[0]);
    free(data[1]);
}
TEST(gradients_of_16_bits_accumulate_in_f32) {
    run_ranks(5, NULL, 0, rank_accumulates, NULL);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"random_programs_equal_the_serial_mean", random_programs_equal_the_serial_mean, 120},
        {"default_buckets", default_buckets, 30},
        {"everybody_starts_from_rank_0", everybody_starts_from_rank_0, 20},
        {"different_models_are_named", different_models_are_named, 30},
        {"all_models_differ", all_models_differ, 10},
        {"mistakes_in_creation", mistakes_in_creation, 10},
        {"misuse_is_named_on_every_rank", misuse_is_named_on_every_rank, 30},
        {"many_missing_parameters_are_cut", many_missing_parameters_are_cut, 10},
        {"calls_at_the_wrong_time", calls_at_the_wrong_time, 10},
        {"buckets_travel_while_backward_runs", buckets_travel_while_backward_runs, 20},
        {"buckets_start_in_their_order", buckets_start_in_their_order, 10},
        {"one_rank_averages_with_itself", one_rank_averages_with_itself, 10},
        {"parameters_without_elements", parameters_without_elements, 10},
        {"training_ends_with_the_cause", training_ends_with_the_cause, 20},
        {"destroy_in_the_middle", destroy_in_the_middle, 10},
        {"creation_survives_every_refusal", creation_survives_every_refusal, 10},
        {"memory_that_overlaps_is_named", memory_that_overlaps_is_named, 10},
        {"gradients_of_16_bits_accumulate_in_f32", gradients_of_16_bits_accumulate_in_f32, 20},
        {"steps_allocate_nothing", steps_allocate_nothing, 20},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
