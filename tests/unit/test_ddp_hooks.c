/* Hooks over all dtypes, wrapped, replaced, failing, and their memory; sparse rows; averages in
   circles; figures; what passes through a reduction unchanged. */
#define CDP_IMPLEMENTATION
#include "cdp.h"
#include "ranks.h"

enum {
    N = 4,
    ROWS = 6,
    WIDTH = 20,
    COUNT = ROWS * WIDTH
};

/* N parameters of 6 x 20 values, one bucket each unless told otherwise. */
typedef struct rig {
    cdp_group *g;
    cdp_ddp *ddp;
    _Alignas(8) double data[N][COUNT]; /* room for every dtype */
    cdp_param params[N];
    cdp_ddp_desc desc;
} rig;

static void rig_desc(rig *r, cdp_group *g, cdp_dtype dtype) {
    memset(r, 0, sizeof *r);
    r->g = r->desc.group = g;
    for (int i = 0; i < N; ++i) {
        r->params[i].data = r->data[i];
        r->params[i].count = COUNT;
        r->params[i].rows = ROWS;
        r->params[i].dtype = dtype;
    }
    r->desc.params = r->params;
    r->desc.param_count = N;
    r->desc.first_bucket_bytes = r->desc.bucket_bytes = 4;
}

static bool rig_open(rig *r) {
    return test_check(cdp_ddp_create(&r->desc, &r->ddp) == CDP_OK, __FILE__, __LINE__, "%s",
        cdp_last_error()->text);
}

static void put(cdp_dtype t, void *p, uint64_t k, double v) {
    float in[CDP__BLOCK] = {(float)v};
    uint16_t half[CDP__BLOCK];
    if (t == CDP_DTYPE_F64)
        ((double *)p)[k] = v;
    else if (t == CDP_DTYPE_F32)
        ((float *)p)[k] = (float)v;
    else {
        cdp__narrow_block(t, in, half);
        ((uint16_t *)p)[k] = half[0];
    }
}
static double get(cdp_dtype t, const void *p, uint64_t k) {
    return cdp__number_get(t, p, k);
}

typedef double (*value)(uint32_t rank, uint32_t i, uint32_t k);
static double wild(uint32_t rank, uint32_t i, uint32_t k) {
    uint64_t s = rank * 1000u + i * 100000u + k;
    return (double)(test_random(&s) >> 11) / 9007199254740992.0 * 2 - 1;
}
static double whole(uint32_t rank, uint32_t i, uint32_t k) {
    return (double)((rank * 7 + i * 3 + k) % 11) - 5;
}
/* Of rank 1, the same left factor on all ranks: nothing is lost by compression to rank 1. */
static double thin(uint32_t rank, uint32_t i, uint32_t k) {
    return (double)(rank + 1) * (double)(k / WIDTH + 1) * ((double)(k % WIDTH) - 3 + i) / 8;
}
static double mean_of(value f, uint32_t n, uint32_t i, uint32_t k) {
    double sum = f(0, i, k);
    for (uint32_t r = 1; r < n; ++r)
        sum += f(r, i, k);
    return sum / n;
}

static cdp_status rig_pass(rig *r, value f) {
    cdp_status st = cdp_ddp_backward_begin(r->ddp);
    for (uint32_t i = N; i-- > 0 && st == CDP_OK;) {
        for (uint32_t k = 0; k < COUNT; ++k)
            put(r->params[i].dtype, cdp_ddp_grad(r->ddp, i), k, f(cdp_rank(r->g), i, k));
        st = cdp_ddp_ready(r->ddp, i);
    }
    return r->ddp->in_backward ? cdp_ddp_backward_end(r->ddp) : st;
}

static void near_mean(rig *r, value f, double within, int line) {
    for (uint32_t i = 0; i < N; ++i)
        for (uint32_t k = 0; k < COUNT; ++k) {
            const double got = get(cdp_ddp_param(r->ddp, i)->dtype, cdp_ddp_grad(r->ddp, i), k),
                         want = mean_of(f, cdp_size(r->g), i, k);
            if (!test_check(fabs(got - want) <= within, __FILE__, line,
                    "rank %u, %s: gradient %u[%u] is %g, not %g", cdp_rank(r->g),
                    cdp_dtype_name(r->params[i].dtype), i, k, got, want))
                return;
        }
}

static cdp_hook made(cdp_hook_desc d) {
    cdp_hook h;
    memset(&h, 0, sizeof h);
    test_check(cdp_hook_create(&d, &h) == CDP_OK, __FILE__, __LINE__, "%s", cdp_last_error()->text);
    return h;
}

static cdp_hook of_kind(cdp_hook_kind kind, cdp_hook_kind inner, bool wrapped) {
    cdp_hook_desc d;
    cdp_hook in;
    memset(&d, 0, sizeof d);
    d.start = 1;
    d.ratio = 1; /* top-k of everything */
    d.kind = inner;
    if (!wrapped) return made(d);
    in = made(d);
    d.kind = kind;
    d.inner = &in;
    return made(d);
}

/* ---- dtypes and wrapping ---- */

static const cdp_dtype floats[4] = {CDP_DTYPE_F32, CDP_DTYPE_F64, CDP_DTYPE_F16, CDP_DTYPE_BF16};
/* how coarse a dtype is around 1, with what adds up; f64 goes through f32 */
static const double steps_of[4] = {1e-6, 1e-6, 2e-3, 2e-2};

static void rank_tries_dtypes(cdp_group *g, void *arg) {
    (void)arg;
    for (int t = 0; t < 5; ++t) { /* the last time all of them at once */
        double step = t < 4 ? steps_of[t] : steps_of[3];
        rig r;
        rig_desc(&r, g, t < 4 ? floats[t] : CDP_DTYPE_F32);
        for (int i = 0; i < N && t == 4; ++i)
            r.params[i].dtype = floats[i];
        r.desc.bucket_bytes = t == 4 ? 4 : COUNT * 4;
        if (!rig_open(&r)) return;
        for (int wrap = 0; wrap < 3; ++wrap) { /* replaced between steps all the time */
            const cdp_hook_kind outer = wrap == 1 ? CDP_HOOK_FP16 : CDP_HOOK_BF16;
            cdp_hook h;
            if (wrap) step = step > steps_of[wrap + 1] ? step : steps_of[wrap + 1];
#define WITH(kind, f, within)                                                                    \
    h = of_kind(outer, kind, wrap > 0);                                                          \
    T_EQ(CDP_OK, cdp_ddp_set_hook(r.ddp, &h));                                                   \
    for (int pass = 0; pass < 2; ++pass)                                                         \
        test_check(rig_pass(&r, f) == CDP_OK, __FILE__, __LINE__, "%s", cdp_last_error()->text); \
    near_mean(&r, f, within, __LINE__)
            WITH(CDP_HOOK_ALLREDUCE, wild, step);
            WITH(CDP_HOOK_FP16, wild, step > 2e-3 ? step : 2e-3);
            WITH(CDP_HOOK_BF16, wild, 2e-2);
            WITH(CDP_HOOK_QUANTIZE, wild, 1.1 / 255 + step);
            WITH(CDP_HOOK_QUANTIZE_CHANNEL, wild, 1.1 / 255 + step);
            WITH(CDP_HOOK_QUANTIZE_4, wild, 1.1 / 15 + step);
            WITH(CDP_HOOK_TOPK, wild, step);
            WITH(CDP_HOOK_POWERSGD, thin, 60 * step); /* numbers up to 20 */
            /* a bucket is no product of two vectors; only that it runs */
            WITH(CDP_HOOK_POWERSGD_BATCHED, thin, 100);
            WITH(CDP_HOOK_POST_LOCAL_SGD, wild, 2);
        }
        cdp_ddp_destroy(r.ddp);
    }
}

TEST(every_hook_takes_every_dtype) {
    if (!TEST_THREADS_WATCHED) run_ranks(2, NULL, 0, rank_tries_dtypes, NULL);
    run_ranks(3, NULL, 0, rank_tries_dtypes, NULL);
}

static void rank_counts_bytes(cdp_group *g, void *arg) {
    const uint64_t factors = (ROWS + WIDTH) * N;
    rig r;
    (void)arg;
    rig_desc(&r, g, CDP_DTYPE_F32);
    if (!rig_open(&r)) return;
    cdp_hook h = of_kind(CDP_HOOK_FP16, CDP_HOOK_POWERSGD, true); /* cast, then compress */
    T_EQ(3, h.operations);
    T(h.keeps_layout);
    T_EQ(CDP_OK, cdp_ddp_set_hook(r.ddp, &h));
    T_EQ(CDP_OK, rig_pass(&r, thin));
    T_EQ(COUNT * N * 2, cdp_ddp_stats_of(r.ddp).sent_bytes); /* the plain first step, as f16 */
    T_EQ(CDP_OK, rig_pass(&r, thin));
    T_EQ(factors * 2, cdp_ddp_stats_of(r.ddp).sent_bytes);
    h = of_kind(CDP_HOOK_FP16, CDP_HOOK_POWERSGD, false);
    T_EQ(CDP_OK, cdp_ddp_set_hook(r.ddp, &h));
    for (int pass = 0; pass < 2; ++pass)
        T_EQ(CDP_OK, rig_pass(&r, thin));
    T_EQ(factors * 4, cdp_ddp_stats_of(r.ddp).sent_bytes);
    cdp_ddp_destroy(r.ddp);
}

TEST(halves_travel_as_halves) {
    run_ranks(2, NULL, 0, rank_counts_bytes, NULL);
}

/* ---- numbers that are none ---- */

static double special(uint32_t rank, uint32_t i, uint32_t k) {
    static const double table[6][2] = {{NAN, 1}, {INFINITY, 1}, {1, -INFINITY},
        {INFINITY, -INFINITY}, {INFINITY, INFINITY}, {-0.0, -0.0}};
    (void)i;
    return table[k % 6][rank];
}

static void rank_passes_nan(cdp_group *g, void *arg) {
    static const cdp_hook_kind kinds[] = {CDP_HOOK_ALLREDUCE, CDP_HOOK_FP16, CDP_HOOK_BF16};
    (void)arg;
    for (int t = 0; t < 4; ++t) {
        rig r;
        rig_desc(&r, g, floats[t]);
        if (!rig_open(&r)) return;
        for (int h = 0; h < 4; ++h) {
            if (h) {
                const cdp_hook hook = of_kind(kinds[h - 1], kinds[h - 1], false);
                T_EQ(CDP_OK, cdp_ddp_set_hook(r.ddp, &hook));
            }
            T_EQ(CDP_OK, rig_pass(&r, special));
            for (uint32_t i = 0; i < N; ++i)
                for (uint32_t k = 0; k < COUNT; ++k) {
                    const double got = get(floats[t], cdp_ddp_grad(r.ddp, i), k),
                                 want = mean_of(special, 2, i, k);
                    test_check(
                        isnan(want) ? isnan(got) : got == want && signbit(got) == signbit(want),
                        __FILE__, __LINE__, "%s, hook %d, [%u]: %g, not %g",
                        cdp_dtype_name(floats[t]), h, k, got, want);
                }
        }
        cdp_ddp_destroy(r.ddp);
    }
}

TEST(nan_and_infinity_pass) {
    run_ranks(2, NULL, 0, rank_passes_nan, NULL);
}

/* What is not finite on one rank is not finite on all, whatever the hook does to values; and error
   memory forgets it, with one sentence. */
typedef struct wild_case {
    double value;
    bool everywhere; /* on rank 1: in all values, or in one */
} wild_case;

static _Atomic uint32_t sentences;
static void count_sentences(cdp_log_level level, const char *text, int32_t rank, void *user) {
    (void)level;
    (void)user;
    if (rank == 1 && strstr(text, "left out of the hook's error memory")) ++sentences;
}

static wild_case wild_now;
static double with_wild(uint32_t rank, uint32_t i, uint32_t k) {
    const bool here = rank == 1 && (wild_now.everywhere || (i == 1 && k == 7));
    return here ? wild_now.value : whole(rank, i, k);
}

static uint32_t count_wild(rig *r, cdp_dtype t) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < N; ++i)
        for (uint32_t k = 0; k < COUNT; ++k)
            n += !isfinite(get(t, cdp_ddp_grad(r->ddp, i), k));
    return n;
}

typedef struct wild_run {
    cdp_hook_kind kind;
    int first, end; /* of `floats` */
} wild_run;

static void rank_goes_wild(cdp_group *g, void *arg) {
    const wild_run *const run = (const wild_run *)arg;
    const cdp_hook_kind kind = run->kind;
    for (int t = run->first; t < run->end; ++t)
        for (int feedback = 0; feedback < 2; ++feedback) {
            cdp_hook_desc d = {.kind = kind, .ratio = 3};
            d.start = kind == CDP_HOOK_POST_LOCAL_SGD ? 100 : 1;
            rig r;
            rig_desc(&r, g, floats[t]);
            d.no_error_feedback = !feedback;
            const cdp_hook hook = made(d);
            if (!rig_open(&r)) return;
            T_EQ(CDP_OK, cdp_ddp_set_hook(r.ddp, &hook));
            for (int pass = 0; pass < 6; ++pass) {
                const bool bad = pass == 1 || pass == 3;
                T_EQ(CDP_OK, rig_pass(&r, bad ? with_wild : whole));
                const uint32_t n = count_wild(&r, floats[t]);
                test_check(bad ? n && !isfinite(get(floats[t], cdp_ddp_grad(r.ddp, 1), 7)) : n == 0,
                    __FILE__, __LINE__, "hook %d, %s, %g%s, pass %d: %u values are not finite",
                    kind, cdp_dtype_name(floats[t]), wild_now.value,
                    wild_now.everywhere ? " everywhere" : "", pass, n);
                if (bad && wild_now.everywhere && kind != CDP_HOOK_TOPK) T_EQ(N * COUNT, n);
                const cdp_hook *const now = cdp_ddp_hook(r.ddp);
                T_EQ(1, isfinite(now->error_norm(now->self)) != 0);
            }
            cdp_ddp_destroy(r.ddp);
        }
}

TEST(every_hook_passes_what_is_not_finite) {
    static const wild_case cases[] = {
        {NAN, false}, {NAN, true}, {INFINITY, false}, {-INFINITY, true}};
    const cdp_group_desc like = {.logger = {.func = count_sentences}};
    for (int kind = CDP_HOOK_ALLREDUCE; kind < CDP_HOOK_COUNT; ++kind)
        for (int c = 0; c < 4 && kind != CDP_HOOK_NOOP; ++c) {
            /* threads do the same with each dtype: those that are watched take turns with them */
            const int first = TEST_THREADS_WATCHED ? (kind + c) % 4 : 0;
            wild_run arg = {(cdp_hook_kind)kind, first, TEST_THREADS_WATCHED ? first + 1 : 4};
            wild_now = cases[c];
            sentences = 0;
            run_ranks(2, &like, 0, rank_goes_wild, &arg);
            /* two bad passes of each dtype with error feedback; top-k has sent a single value */
            const bool kept = kind == CDP_HOOK_POWERSGD || kind == CDP_HOOK_POWERSGD_BATCHED
                || kind == CDP_HOOK_SIGN || (kind == CDP_HOOK_TOPK && cases[c].everywhere);
            T_EQ(kept ? 2 * (arg.end - arg.first) : 0, sentences);
        }
}

/* ---- hooks that misbehave ---- */

typedef enum fault {
    FAILS,
    WRONG_SIZE,
    WRONG_DTYPE,
    SKIPS,
    NEVER_ENDS,
    NO_MEMORY
} fault;
typedef struct bad_hook {
    fault what;
    bool me;
} bad_hook;

static cdp_status bad_stage(void *self, cdp_bucket *b, uint32_t stage, cdp_request *op) {
    const bad_hook *h = (const bad_hook *)self;
    const bool bad = h->me && b->index == 2;
    if (stage && !(bad && h->what == NEVER_ENDS)) return CDP_OK;
    if (bad && h->what == FAILS) return CDP_ERR_UNSUPPORTED;
    if (bad && h->what == SKIPS) return CDP_OK;
    op->kind = CDP_COLL_ALLREDUCE;
    op->out = bad && h->what == NO_MEMORY ? NULL : b->data;
    op->count = b->count - (bad && h->what == WRONG_SIZE ? 1 : 0);
    op->dtype = bad && h->what == WRONG_DTYPE ? CDP_DTYPE_I32 : b->dtype;
    return CDP_PENDING; /* NEVER_ENDS: another operation, again and again; others never start it */
}

typedef struct fault_case {
    fault what;
    pthread_barrier_t *all;
} fault_case;

static void rank_has_a_bad_hook(cdp_group *g, void *arg) {
    const fault_case *f = (const fault_case *)arg;
    bad_hook bad = {f->what, cdp_rank(g) == 1};
    cdp_hook h;
    cdp_status st = CDP_OK;
    rig r;
    memset(&h, 0, sizeof h);
    h.self = &bad;
    h.stage = bad_stage;
    h.operations = 2;
    rig_desc(&r, g, CDP_DTYPE_F32);
    if (!rig_open(&r)) return;
    T_EQ(CDP_OK, cdp_ddp_set_hook(r.ddp, &h));
    pthread_barrier_wait(f->all);
    const uint64_t start = test_now_ns();
    for (int pass = 0; pass < 3 && st == CDP_OK; ++pass)
        st = rig_pass(&r, whole);
    T_WITHIN(f->what == SKIPS || f->what == NEVER_ENDS ? 2500 : 1500, test_now_ns() - start);
    T(st != CDP_OK);
    const cdp_error *e = cdp_last_error();
    test_check(e->rank >= 0 && (st == e->status), __FILE__, __LINE__, "fault %d, rank %u: %s: %s",
        (int)f->what, cdp_rank(g), cdp_status_name(st), e->text);
    if (f->what == FAILS) T_TEXT("a hook returned UNSUPPORTED for bucket 2", e->text);
    if (f->what == WRONG_SIZE || f->what == WRONG_DTYPE) T(st == CDP_ERR_MISMATCH);
    /* what the others do there is another call, although of the same size */
    if (f->what == SKIPS) {
        T_EQ(CDP_ERR_MISMATCH, st);
        T_TEXT("for bucket 2 of ddp 0", e->text);
        T_TEXT("for bucket 3 of ddp 0", e->text);
    }
    if (f->what == NEVER_ENDS) T(st == CDP_ERR_INVALID || st == CDP_ERR_TIMEOUT);
    T_EQ(st, cdp_group_status(g));
    pthread_barrier_wait(f->all);
    cdp_ddp_destroy(r.ddp);
}

TEST(hooks_that_misbehave_end_everywhere) {
    for (int what = FAILS; what <= NO_MEMORY; ++what) {
        pthread_barrier_t all;
        fault_case f = {(fault)what, &all};
        cdp_group_desc like;
        memset(&like, 0, sizeof like);
        like.timeout_ms = 700;
        pthread_barrier_init(&all, NULL, 3);
        run_ranks(3, &like, 0, rank_has_a_bad_hook, &f);
        pthread_barrier_destroy(&all);
    }
}

/* One rank fails in ready() and leaves at once: it need not wait, and the others learn why. */
static void rank_leaves_at_once(cdp_group *g, void *arg) {
    const fault_case *f = (const fault_case *)arg;
    bad_hook bad = {FAILS, cdp_rank(g) == 1};
    cdp_status st = CDP_OK;
    cdp_hook h;
    rig r;
    memset(&h, 0, sizeof h);
    h.self = &bad;
    h.stage = bad_stage;
    rig_desc(&r, g, CDP_DTYPE_F32);
    if (!rig_open(&r)) return;
    T_EQ(CDP_OK, cdp_ddp_set_hook(r.ddp, &h));
    pthread_barrier_wait(f->all);
    const uint64_t start = test_now_ns();
    st = cdp_ddp_backward_begin(r.ddp);
    for (uint32_t i = N; i-- > 0 && (st == CDP_OK || !bad.me);)
        st = cdp_ddp_ready(r.ddp, i);
    if (!bad.me) st = cdp_ddp_backward_end(r.ddp);
    T_EQ(CDP_ERR_UNSUPPORTED, st);
    T_TEXT("rank 1/3: a hook returned UNSUPPORTED for bucket 2", cdp_last_error()->text);
    cdp_ddp_destroy(r.ddp);
    T_WITHIN(1000, test_now_ns() - start);
}

TEST(who_fails_may_leave_at_once) {
    pthread_barrier_t all;
    fault_case f = {FAILS, &all};
    pthread_barrier_init(&all, NULL, 3);
    run_ranks(3, NULL, 0, rank_leaves_at_once, &f);
    pthread_barrier_destroy(&all);
}

/* A sum, and as many further operations of one value: each stage has a group of its own. */
static cdp_status long_stage(void *self, cdp_bucket *b, uint32_t stage, cdp_request *op) {
    float *const one = (float *)self;
    if (stage == 3) return CDP_OK;
    op->kind = CDP_COLL_ALLREDUCE;
    op->out = stage ? (void *)one : b->data;
    op->count = stage ? 1 : b->count;
    op->dtype = b->dtype;
    return CDP_PENDING;
}

static cdp_status sets_long_hook(cdp_group *g, void *arg) {
    static float one[RANKS_MAX];
    rig *const all = (rig *)arg;
    cdp_hook h;
    memset(&h, 0, sizeof h);
    h.self = &one[cdp_rank(g)];
    h.stage = long_stage;
    h.operations = 3;
    return cdp_ddp_set_hook(all[cdp_rank(g)].ddp, &h);
}

/* The same hook is set again until rank 1 has memory, and then works on all ranks. */
static void hook_lacks_memory(cdp_group *g, void *arg) {
    rig *const r = (rig *)arg + cdp_rank(g);
    cdp_status st;
    rig_desc(r, g, CDP_DTYPE_F32);
    if (!rig_open(r)) return;
    T(own_memory_is_told(g, sets_long_hook, arg) > 2);
    st = cdp_ddp_backward_begin(r->ddp);
    for (uint32_t i = N; i-- > 0 && st == CDP_OK;)
        st = cdp_ddp_ready(r->ddp, i);
    if (st == CDP_OK) st = cdp_ddp_backward_end(r->ddp);
    T_EQ(CDP_OK, st);
    cdp_ddp_destroy(r->ddp);
}

TEST(a_hook_for_which_one_rank_lacks_memory_is_refused_on_all) {
    static rig all[3];
    const cdp_group_desc like = {.timeout_ms = 3000, .os = counted_os()};
    run_ranks(3, &like, 0, hook_lacks_memory, all);
    T_EQ(0, counted.held);
}

/* ---- memory ---- */

static int64_t held_bytes;
static void *sized_alloc(void *user, uint64_t bytes) {
    uint64_t *p = (uint64_t *)cdp_os_default()->alloc(user, bytes + 64);
    if (!p) return NULL;
    p[0] = bytes;
    __atomic_add_fetch(&held_bytes, (int64_t)bytes, __ATOMIC_SEQ_CST);
    return p + 8;
}
static void sized_free(void *user, void *p) {
    if (!p) return;
    __atomic_sub_fetch(&held_bytes, (int64_t)((uint64_t *)p)[-8], __ATOMIC_SEQ_CST);
    cdp_os_default()->release(user, (uint64_t *)p - 8);
}
static const cdp_os *sized_os(void) {
    static cdp_os os;
    os = *cdp_os_default();
    os.alloc = sized_alloc;
    os.release = sized_free;
    return &os;
}

enum {
    MANY = 20,
    LARGE = TEST_SLOW ? 20000 : 50000
};
static int64_t held_now(cdp_group *g) { /* by all ranks, while none of them does anything */
    int64_t held;
    T_EQ(CDP_OK, cdp_barrier(g));
    test_sleep_ms(5);
    held = __atomic_load_n(&held_bytes, __ATOMIC_SEQ_CST);
    T_EQ(CDP_OK, cdp_barrier(g));
    return held;
}

static void rank_measures_hooks(cdp_group *g, void *arg) {
    /* Beyond the gradients, in hundredths of one bucket for each in flight; and for good in
       those of all gradients. */
    static const struct {
        cdp_hook_kind kind, inner;
        uint32_t in_flight, always;
    } table[] = {{CDP_HOOK_ALLREDUCE, CDP_HOOK_ALLREDUCE, 0, 0},
        {CDP_HOOK_FP16, CDP_HOOK_FP16, 50, 0}, {CDP_HOOK_QUANTIZE, CDP_HOOK_QUANTIZE, 50, 0},
        {CDP_HOOK_QUANTIZE_CHANNEL, CDP_HOOK_QUANTIZE_CHANNEL, 53, 0},
        {CDP_HOOK_QUANTIZE_4, CDP_HOOK_QUANTIZE_4, 28, 0}, {CDP_HOOK_TOPK, CDP_HOOK_TOPK, 110, 100},
        {CDP_HOOK_POWERSGD, CDP_HOOK_POWERSGD, 5, 105}, {CDP_HOOK_FP16, CDP_HOOK_QUANTIZE, 200, 0}};
    static float data[MANY][LARGE];
    const int64_t bucket = LARGE * 4, all = bucket * MANY;
    const int32_t waits = *(const int32_t *)arg;
    for (size_t t = 0; t < sizeof table / sizeof *table; ++t) {
        cdp_param p[MANY];
        cdp_ddp_desc d;
        cdp_hook_desc hd;
        cdp_hook inner, h;
        cdp_ddp *ddp;
        memset(p, 0, sizeof p);
        memset(&d, 0, sizeof d);
        memset(&hd, 0, sizeof hd);
        for (int i = 0; i < MANY; ++i) {
            p[i].data = data[i];
            p[i].count = LARGE;
            p[i].rows = 200;
        }
        d.group = g;
        d.params = p;
        d.param_count = MANY;
        d.first_bucket_bytes = d.bucket_bytes = 4;
        d.no_broadcast = true;
        const int64_t before = held_now(g);
        if (!T_EQ(CDP_OK, cdp_ddp_create(&d, &ddp))) return;
        hd.start = 1;
        hd.ratio = 100;
        hd.kind = table[t].inner;
        hd.os = g->os;
        inner = made(hd);
        h = inner;
        hd.kind = table[t].kind;
        hd.inner = &inner;
        if (table[t].kind != table[t].inner) h = made(hd);
        T_EQ(CDP_OK, cdp_ddp_set_hook(ddp, &h));
        for (int step = 0; step < 3; ++step) {
            T_EQ(CDP_OK, cdp_ddp_backward_begin(ddp));
            for (uint32_t i = MANY; i-- > 0;) {
                T_EQ(CDP_OK, cdp_ddp_ready(ddp, i));
                for (int k = 0; waits && k < 100000 && !ddp->buckets[MANY - 1 - i].done; ++k) {
                    T_EQ(CDP_OK, cdp__ddp_advance(ddp));
                    test_sleep_ms(0);
                }
            }
            T_EQ(CDP_OK, cdp_ddp_backward_end(ddp));
        }
        const int64_t own = (held_now(g) - before) / 2 - all, flying = waits ? 1 : MANY;
        const int64_t limit =
            bucket * flying * table[t].in_flight / 100 + all * table[t].always / 100 + all / 20;
        test_check(own >= 0 && own <= limit, __FILE__, __LINE__,
            "hook %d in %d: %lld bytes beyond the %lld of gradients, the limit is %lld",
            (int)table[t].inner, (int)table[t].kind, (long long)own, (long long)all,
            (long long)limit);
        cdp_ddp_destroy(ddp);
    }
}

TEST(memory_of_hooks) {
    for (int32_t waits = 1; waits >= 0; --waits) {
        cdp_group_desc like;
        memset(&like, 0, sizeof like);
        like.os = sized_os();
        run_ranks(2, &like, 0, rank_measures_hooks, &waits);
        T_EQ(0, held_bytes);
    }
}

/* ---- sparse rows ---- */

typedef struct rows_program {
    uint64_t seed;
    cdp_dtype dtype;
    bool find_unused, join, effective, hook;
} rows_program;

enum {
    SPARSE = 2,
    MATRIX = 30,
    ACROSS = 3,
    ROWS_STEPS = 8
};

static uint64_t mixed(uint64_t seed, uint64_t a, uint64_t b, uint64_t c) {
    uint64_t s = seed * 31 + a * 1000003u + b * 7919u + c * 104729u;
    return test_random(&s);
}
static uint32_t rows_of(const rows_program *p, uint32_t step, uint32_t rank, uint32_t i) {
    return (uint32_t)(mixed(p->seed, step, rank, i) % 7);
}
static uint32_t row_at(
    const rows_program *p, uint32_t step, uint32_t rank, uint32_t i, uint32_t k) {
    return (uint32_t)(mixed(p->seed, step, rank * 10 + i, 100 + k) % MATRIX);
}
static double number_of(
    const rows_program *p, uint32_t step, uint32_t rank, uint32_t i, uint32_t k) {
    return (double)(int64_t)(mixed(p->seed, step, rank * 10 + i, 1000 + k) % 17) - 8;
}
static uint32_t data_of(const rows_program *p, uint32_t rank) {
    return p->join ? (uint32_t)(mixed(p->seed, 1, rank, 77) % (ROWS_STEPS + 1)) : ROWS_STEPS;
}
static bool synced(const rows_program *p, uint32_t step) {
    return step == ROWS_STEPS - 1 || mixed(p->seed, step, 5, 5) % 3 != 0;
}

/* A whole matrix of sums, from plain loops; which rows anybody had. */
static uint32_t serial_rows(
    const rows_program *p, uint32_t n, uint32_t step, uint32_t i, double *sum, bool *had) {
    uint32_t active = 0, from = step;
    while (from > 0 && !synced(p, from - 1))
        --from; /* what accumulated before travels, too */
    memset(sum, 0, MATRIX * ACROSS * sizeof *sum);
    memset(had, 0, MATRIX * sizeof *had);
    for (uint32_t r = 0; r < n; ++r) {
        if (data_of(p, r) <= step) continue;
        ++active;
        for (uint32_t t = from; t <= step; ++t)
            for (uint32_t k = 0; k < rows_of(p, t, r, i); ++k) {
                const uint32_t row = row_at(p, t, r, i, k);
                had[row] = true;
                for (uint32_t c = 0; c < ACROSS; ++c)
                    sum[row * ACROSS + c] += number_of(p, t, r, i, k * ACROSS + c);
            }
    }
    return active;
}

static void check_rows(
    const rows_program *p, cdp_group *g, cdp_ddp *ddp, uint32_t step, uint32_t i) {
    double sum[MATRIX * ACROSS];
    bool had[MATRIX];
    const uint32_t active = serial_rows(p, cdp_size(g), step, i, sum, had);
    const cdp_rows got = cdp_ddp_rows(ddp, i);
    const double by = p->effective ? active : cdp_size(g);
    uint32_t want = 0;
    for (uint32_t r = 0; r < MATRIX; ++r)
        want += had[r];
    T_EQ(want, got.count);
    T_EQ(ACROSS, got.width);
    for (uint64_t k = 0; k < got.count; ++k) {
        const uint32_t row = got.rows[k];
        if (!T(row < MATRIX && had[row])) return;
        had[row] = false; /* each once */
        for (uint32_t c = 0; c < ACROSS; ++c) {
            volatile float f = (float)sum[row * ACROSS + c] / (float)by;
            volatile double d = sum[row * ACROSS + c] / by;
            const double mean = p->dtype == CDP_DTYPE_F64 ? d : (double)f;
            test_check(get(p->dtype, got.values, k * ACROSS + c) == mean, __FILE__, __LINE__,
                "seed %llu, rank %u, step %u, row %u: %g, not %g", (unsigned long long)p->seed,
                cdp_rank(g), step, row, get(p->dtype, got.values, k * ACROSS + c), mean);
        }
    }
}

static void rank_has_rows(cdp_group *g, void *arg) {
    const rows_program *p = (const rows_program *)arg;
    const uint32_t rank = cdp_rank(g);
    double table[SPARSE][MATRIX * ACROSS] = {{0}}, dense[5] = {0};
    cdp_param params[SPARSE + 1];
    cdp_ddp_desc d;
    cdp_ddp *ddp;
    memset(params, 0, sizeof params);
    memset(&d, 0, sizeof d);
    for (int i = 0; i < SPARSE; ++i) {
        params[i].data = table[i];
        params[i].count = MATRIX * ACROSS;
        params[i].rows = MATRIX;
        params[i].sparse = true;
        params[i].dtype = p->dtype;
    }
    params[SPARSE].data = dense;
    params[SPARSE].count = 5;
    d.group = g;
    d.params = params;
    d.param_count = SPARSE + 1;
    d.find_unused = p->find_unused;
    d.join = p->join;
    d.join_effective = p->effective;
    if (!test_check(
            cdp_ddp_create(&d, &ddp) == CDP_OK, __FILE__, __LINE__, "%s", cdp_last_error()->text))
        return;
    if (p->hook) {
        const cdp_hook h = of_kind(CDP_HOOK_QUANTIZE, CDP_HOOK_QUANTIZE, false);
        T_EQ(CDP_OK, cdp_ddp_set_hook(ddp, &h));
    }
    for (uint32_t step = 0; step < data_of(p, rank); ++step) {
        T_EQ(CDP_OK, cdp_ddp_no_sync(ddp, !synced(p, step)));
        T_EQ(CDP_OK, cdp_ddp_backward_begin(ddp));
        memset(cdp_ddp_grad(ddp, SPARSE), 0, 20);
        T_EQ(CDP_OK, cdp_ddp_ready(ddp, SPARSE));
        for (uint32_t i = SPARSE; i-- > 0;) {
            const uint32_t n = rows_of(p, step, rank, i);
            uint32_t rows[8];
            double values[8 * ACROSS];
            if (!n && p->find_unused) continue; /* as good as no rows */
            for (uint32_t k = 0; k < n; ++k)
                rows[k] = row_at(p, step, rank, i, k);
            for (uint32_t k = 0; k < n * ACROSS; ++k)
                put(p->dtype, values, k, number_of(p, step, rank, i, k));
            T_EQ(CDP_OK, cdp_ddp_ready_rows(ddp, i, rows, n, values));
        }
        test_check(
            cdp_ddp_backward_end(ddp) == CDP_OK, __FILE__, __LINE__, "%s", cdp_last_error()->text);
        for (uint32_t i = 0; i < SPARSE && synced(p, step); ++i)
            check_rows(p, g, ddp, step, i);
    }
    if (p->join) T_EQ(CDP_OK, cdp_ddp_join(ddp));
    cdp_ddp_destroy(ddp);
}

TEST(rows_are_the_serial_mean) {
    for (uint64_t seed = 1; seed <= (TEST_SLOW ? 16 : 80); ++seed) {
        rows_program p;
        p.seed = seed;
        p.dtype = floats[seed % 4 == 1];
        p.find_unused = seed / 2 % 2;
        p.join = seed / 4 % 2;
        p.effective = p.join && seed / 8 % 2;
        p.hook = seed / 16 % 2;
        run_ranks(1 + (uint32_t)(seed % 5), NULL, 0, rank_has_rows, &p);
    }
}

static cdp_group *alone(void) {
    cdp_group_desc d;
    cdp_group *g;
    memset(&d, 0, sizeof d);
    d.world_size = 1;
    T_EQ(CDP_OK, cdp_group_create(&d, &g));
    return g;
}

TEST(mistakes_with_rows) {
    cdp_group *g = alone();
    const uint32_t rows[2] = {3, ROWS};
    float values[2 * WIDTH] = {0};
    double norm;
    rig r;
    rig_desc(&r, g, CDP_DTYPE_F32);
    r.params[1].sparse = true;
    r.params[1].rows = 0;
    REFUSED(CDP_ERR_INVALID, "'param1' (index 1) is sparse, so it needs rows",
        cdp_ddp_create(&r.desc, &r.ddp));
    r.params[1].rows = ROWS;
    r.params[2].device = 1;
    REFUSED(
        CDP_ERR_UNSUPPORTED, "'param2' (index 2) is on device 1", cdp_ddp_create(&r.desc, &r.ddp));
    r.params[2].device = 0;
    for (int what = 0; what < 6; ++what) {
        rig_open(&r);
        T_EQ(CDP_OK, cdp_ddp_no_sync(r.ddp, true)); /* so that the group stays whole */
        REFUSED(CDP_ERR_STATE, "no backward pass is open",
            cdp_ddp_ready_rows(r.ddp, 1, rows, 1, values));
        T_EQ(CDP_OK, cdp_ddp_backward_begin(r.ddp));
        if (what == 0)
            REFUSED(CDP_ERR_INVALID, "'param1' (index 1) has 6 rows, not row 6",
                cdp_ddp_ready_rows(r.ddp, 1, rows, 2, values));
        if (what == 1)
            REFUSED(CDP_ERR_INVALID, "'param0' (index 0) is not sparse",
                cdp_ddp_ready_rows(r.ddp, 0, rows, 1, values));
        if (what == 2)
            REFUSED(CDP_ERR_INVALID, "'param1' (index 1) is sparse; give its rows",
                cdp_ddp_ready(r.ddp, 1));
        if (what == 3)
            REFUSED(CDP_ERR_INVALID,
                "cdp_ddp_ready_rows: ", cdp_ddp_ready_rows(r.ddp, 1, NULL, 1, values));
        if (what == 4)
            REFUSED(CDP_ERR_INVALID, "it should be less than param_count, 4",
                cdp_ddp_ready_rows(r.ddp, 9, rows, 1, values));
        if (what == 5) {
            T_EQ(CDP_OK, cdp_ddp_ready_rows(r.ddp, 1, rows, 1, values));
            REFUSED(CDP_ERR_STATE, "twice", cdp_ddp_ready_rows(r.ddp, 1, rows, 1, values));
        }
        T(cdp_ddp_backward_end(r.ddp) != CDP_OK);
        cdp_ddp_destroy(r.ddp);
    }
    T_EQ(0, cdp_ddp_rows(NULL, 0).count);
    rig_open(&r);
    T_EQ(0, cdp_ddp_rows(r.ddp, 0).width); /* not sparse */
    values[0] = 3;
    values[1] = 4;
    T_EQ(CDP_OK, cdp_ddp_backward_begin(r.ddp));
    for (uint32_t i = 0; i < N; ++i)
        T_EQ(CDP_OK,
            i == 1 ? cdp_ddp_ready_rows(r.ddp, i, rows, 1, values) : cdp_ddp_ready(r.ddp, i));
    T_EQ(CDP_OK, cdp_ddp_backward_end(r.ddp));
    T_EQ(CDP_OK, cdp_ddp_clip(r.ddp, 1, &norm)); /* rows belong to the norm */
    T(norm == 5 && fabsf(((float *)cdp_ddp_rows(r.ddp, 1).values)[0] - 0.6f) < 1e-5f);
    cdp_ddp_zero_grad(r.ddp);
    T_EQ(0, cdp_ddp_rows(r.ddp, 1).count);
    cdp_ddp_destroy(r.ddp);
    cdp_group_destroy(g);
}

typedef struct contradiction {
    int what;
    pthread_barrier_t *all;
} contradiction;

/* Marks that contradict each other, on rank 1: everybody is told the parameter and the rank. */
static void rank_contradicts_itself(cdp_group *g, void *arg) {
    static const char *const words[3] = {
        "'param2' (index 2) was marked unused and then ready in one backward pass of rank 1",
        "'param2' (index 2) was marked ready and then unused in one backward pass of rank 1",
        "'param2' (index 2) was marked unused twice in one backward pass of rank 1"};
    const contradiction *c = (const contradiction *)arg;
    const int what = c->what;
    cdp_status st = CDP_OK;
    rig r;
    rig_desc(&r, g, CDP_DTYPE_F32);
    r.desc.find_unused = true;
    rig_open(&r);
    pthread_barrier_wait(c->all); /* before one of them breaks the group */
    for (int pass = 0; pass < 3 && st == CDP_OK; ++pass) {
        st = cdp_ddp_backward_begin(r.ddp);
        for (uint32_t i = N; i-- > 0;) {
            const bool bad = cdp_rank(g) == 1 && i == 2;
            if (bad && what != 1) (void)cdp_ddp_unused(r.ddp, i);
            if (!bad || what != 2) (void)cdp_ddp_ready(r.ddp, i);
            if (bad && what != 0) (void)cdp_ddp_unused(r.ddp, i);
        }
        if (r.ddp->in_backward) st = cdp_ddp_backward_end(r.ddp);
    }
    T_EQ(CDP_ERR_STATE, st);
    T_TEXT(words[what], cdp_last_error()->text);
    T_EQ(1, cdp_last_error()->peer);
    T_EQ(1, cdp_last_error()->origin);
    cdp_ddp_destroy(r.ddp);
}

TEST(contradictions_are_named_everywhere) {
    for (int what = 0; what < 3; ++what) {
        pthread_barrier_t all;
        contradiction c = {what, &all};
        pthread_barrier_init(&all, NULL, 3);
        run_ranks(3, NULL, 0, rank_contradicts_itself, &c);
        pthread_barrier_destroy(&all);
    }
}

static void rank_with_long_names(cdp_group *g, void *arg) {
    char name[300];
    cdp_param p;
    cdp_ddp_desc d;
    cdp_ddp *ddp;
    const int what = *(const int *)arg;
    memset(name, 'x', sizeof name);
    strcpy(name + 200, ".decoder.layers.11.weight");
    if (what == 0 && cdp_rank(g) == 1) name[0] = 'y'; /* far from what a message shows */
    if (what == 1 && cdp_rank(g) == 1) strcpy(name + 200, ".decoder.layers.12.weight");
    memset(&p, 0, sizeof p);
    memset(&d, 0, sizeof d);
    p.name = name;
    d.group = g;
    d.params = &p;
    d.param_count = 1;
    REFUSED(CDP_ERR_MISMATCH, "xxx.decoder.layers.11.weight' f32[0] on rank 0",
        cdp_ddp_create(&d, &ddp));
    T_EQ(1, cdp_last_error()->peer);
    if (what == 1) T_TEXT("layers.12.weight' f32[0] on rank 1", cdp_last_error()->text);
}

TEST(long_names_differ_at_their_end) {
    for (int what = 0; what < 2; ++what)
        run_ranks(3, NULL, 0, rank_with_long_names, &what);
}

static void rank_drifts(cdp_group *g, void *arg) {
    rig r;
    (void)arg;
    rig_desc(&r, g, CDP_DTYPE_BF16);
    r.params[3].count = 5; /* no whole number of words */
    r.params[3].rows = 0;
    if (!rig_open(&r)) return;
    T_EQ(CDP_OK, cdp_ddp_verify(r.ddp));
    if (cdp_rank(g) == 2) ((uint16_t *)r.data[3])[4] ^= 1; /* the last bit of the last one */
    REFUSED(CDP_ERR_MISMATCH,
        "'param3' (index 3) is no longer the same on all ranks: rank 2 has other bits than rank 0",
        cdp_ddp_verify(r.ddp));
    if (cdp_rank(g) == 0) put(CDP_DTYPE_BF16, r.data[1], 0, 1);
    REFUSED(CDP_ERR_MISMATCH, "'param1' (index 1) is no longer the same on all ranks: rank 1 has",
        cdp_ddp_verify(r.ddp));
    if (cdp_rank(g) == 0) put(CDP_DTYPE_BF16, r.data[1], 0, 0);
    if (cdp_rank(g) == 2) ((uint16_t *)r.data[3])[4] ^= 1;
    T_EQ(CDP_OK, cdp_ddp_verify(r.ddp));
    REFUSED(CDP_ERR_INVALID, " is NULL", cdp_ddp_verify(NULL));
    T_EQ(CDP_OK, cdp_ddp_backward_begin(r.ddp));
    REFUSED(CDP_ERR_STATE, "a backward pass is open", cdp_ddp_verify(r.ddp));
    for (uint32_t i = 0; i < N; ++i)
        T_EQ(CDP_OK, cdp_ddp_ready(r.ddp, i));
    T_EQ(CDP_OK, cdp_ddp_backward_end(r.ddp));
    cdp_ddp_destroy(r.ddp);
}

TEST(parameters_that_drift_are_named) {
    run_ranks(3, NULL, 0, rank_drifts, NULL);
}

/* Small parameters and buffers travel together, large ones alone; none is lost between two
   messages. */
static void rank_starts_with_many(cdp_group *g, void *arg) {
    enum {
        P = 300,
        B = 200
    };
    /* floats: 17000 are more than is packed */
    static const uint64_t sizes[5] = {3, 0, 4000, 17000, 1};
    cdp_param p[P];
    cdp_buffer b[B];
    cdp_ddp_desc d;
    cdp_ddp *ddp;
    const float rank = (float)cdp_rank(g);
    uint64_t large = 0, issued;
    (void)arg;
    memset(p, 0, sizeof p);
    memset(b, 0, sizeof b);
    memset(&d, 0, sizeof d);
    for (uint32_t i = 0; i < P + B; ++i) {
        const uint64_t n = sizes[i % 5];
        float *x = (float *)malloc(n * 4 + 4);
        for (uint64_t k = 0; k < n; ++k)
            x[k] = rank * 1e6f + (float)i + (float)k / 32768;
        if (i < P) {
            p[i].data = x;
            p[i].count = n;
        } else {
            b[i - P].data = x;
            b[i - P].count = n;
        }
        large += n * 4 >= 65536;
    }
    d.group = g;
    d.params = p;
    d.param_count = P;
    d.buffers = b;
    d.buffer_count = B;
    issued = g->queue.issued;
    T_EQ(CDP_OK, cdp_ddp_create(&d, &ddp));
    T_EQ(1 + large + 2,
        g->queue.issued - issued); /* one comparison; small ones of 1.6 MB fit in two */
    /* everybody has what rank 0 had; then buffers again, and only these */
    for (int round = 0; round < 2; ++round) {
        for (uint32_t i = round ? P : 0; i < P + B; ++i)
            for (uint64_t k = 0; k < sizes[i % 5]; ++k) {
                float *x = (float *)(i < P ? p[i].data : b[i - P].data);
                if (!T(x[k] == (float)i + (float)k / 32768)) return;
                if (i >= P && !round && cdp_rank(g)) x[k] = -1;
            }
        issued = g->queue.issued;
        if (!round) T_EQ(CDP_OK, cdp_ddp_forward_begin(ddp));
        if (!round) T_EQ(B / 5 + 1, g->queue.issued - issued);
    }
    cdp_ddp_destroy(ddp);
    for (uint32_t i = 0; i < P + B; ++i)
        free(i < P ? p[i].data : b[i - P].data);
}

TEST(small_ones_travel_together) {
    run_ranks(3, NULL, 0, rank_starts_with_many, NULL);
}

/* ---- a hook with messages between peers: gossip ---- */

/* GossipGrad: in each step a rank averages with one peer, another one in each, so that after
   log2(n) steps it has heard of all. A pair is a group of two: the operation of the stage runs
   there. */
typedef struct gossip {
    cdp_group *pair[3]; /* with rank ^ 1, ^ 2, ^ 4 */
    uint32_t pairs, step;
} gossip;

static cdp_status gossip_stage(void *self, cdp_bucket *b, uint32_t stage, cdp_request *op) {
    gossip *g = (gossip *)self;
    if (stage) return CDP_OK; /* the bucket holds the mean of two */
    b->group = g->pair[g->step % g->pairs];
    op->kind = CDP_COLL_ALLREDUCE;
    op->out = b->data;
    op->count = b->count;
    op->dtype = b->dtype;
    op->op = CDP_REDUCE_AVG;
    if (b->index == b->bucket_count - 1) ++g->step;
    return CDP_PENDING;
}

static void rank_gossips(cdp_group *g, void *arg) {
    gossip s = {.pairs = cdp_size(g) == 8 ? 3 : 2};
    const cdp_hook h = {.self = &s, .stage = gossip_stage};
    const uint32_t me = cdp_rank(g);
    rig r;
    (void)arg;
    for (uint32_t k = 0; k < s.pairs; ++k) {
        const uint32_t peer = me ^ 1u << k,
                       pair[2] = {me < peer ? me : peer, me < peer ? peer : me};
        T_EQ(CDP_OK, cdp_group_new(g, pair, 2, &s.pair[k]));
    }
    rig_desc(&r, g, CDP_DTYPE_F32);
    if (!rig_open(&r)) return;
    T_EQ(CDP_OK, cdp_ddp_set_hook(r.ddp, &h));
    for (uint32_t step = 0; step < 2 * s.pairs; ++step) {
        const uint32_t peer = me ^ 1u << step % s.pairs;
        T_EQ(CDP_OK, rig_pass(&r, whole));
        T_EQ(step + 1, s.step);
        for (uint32_t i = 0; i < N; ++i)
            for (uint32_t k = 0; k < COUNT; ++k)
                if (!T(get(CDP_DTYPE_F32, cdp_ddp_grad(r.ddp, i), k)
                        == (whole(me, i, k) + whole(peer, i, k)) / 2))
                    return;
    }
    cdp_ddp_destroy(r.ddp);
    T_EQ(CDP_OK, cdp_barrier(g));
    for (uint32_t k = 0; k < s.pairs; ++k)
        cdp_group_destroy(s.pair[k]);
}

TEST(a_hook_averages_with_one_peer_after_the_other) {
    run_ranks(4, NULL, 0, rank_gossips, NULL);
    run_ranks(8, NULL, 0, rank_gossips, NULL);
}

/* ---- averages in growing circles ---- */

static void rank_averages_in_circles(cdp_group *g, void *arg) {
    const uint32_t rank = cdp_rank(g), low = rank / 2 * 2, pair[2] = {low, low + 1};
    cdp_average_level levels[3] = {{4, NULL}, {2, NULL}, {8, NULL}};
    cdp_averager a;
    rig r;
    (void)arg;
    rig_desc(&r, g, CDP_DTYPE_F32);
    if (!rig_open(&r) || !T_EQ(CDP_OK, cdp_group_new(g, pair, 2, &levels[1].group))) return;
    memset(&a, 0, sizeof a);
    a.ddp = r.ddp;
    a.warmup = 1;
    a.levels = levels;
    a.level_count = 2;
    for (int step = 0; step < 10; ++step) {
        float *x = (float *)r.data[2];
        x[5] = (float)rank;
        T_EQ(CDP_OK, cdp_averager_step(&a));
        const int since = step - 1;
        float want = (float)rank;
        if (since >= 0 && since % 2 == 0) want = (float)low + 0.5f;
        if (since >= 0 && since % 4 == 0) want = 1.5f;
        test_check(x[5] == want, __FILE__, __LINE__, "rank %u, step %d: %g, not %g", rank, step,
            (double)x[5], (double)want);
    }
    a.levels = NULL;
    REFUSED(CDP_ERR_INVALID, "levels is NULL", cdp_averager_step(&a));
    T_EQ(CDP_OK, cdp_barrier(g));
    cdp_group_destroy(levels[1].group);
    cdp_ddp_destroy(r.ddp);
}

TEST(averages_in_growing_circles) {
    run_ranks(4, NULL, 0, rank_averages_in_circles, NULL);
}

/* ---- several at once ---- */

static void rank_trains_two(cdp_group *g, void *arg) {
    rig a, b;
    (void)arg;
    rig_desc(&a, g, CDP_DTYPE_F32);
    rig_desc(&b, g, CDP_DTYPE_F64);
    b.desc.find_unused = true;
    if (!rig_open(&a) || !rig_open(&b)) return;
    for (int step = 0; step < 6; ++step) {
        rig *first = step % 2 ? &a : &b, *second = step % 2 ? &b : &a;
        T_EQ(CDP_OK, cdp_ddp_backward_begin(first->ddp)); /* the passes of both are open at once */
        T_EQ(CDP_OK, cdp_ddp_backward_begin(second->ddp));
        for (uint32_t i = N; i-- > 0;)
            for (int w = 0; w < 2; ++w) {
                rig *r = w ? second : first;
                for (uint32_t k = 0; k < COUNT; ++k)
                    put(r->params[i].dtype, cdp_ddp_grad(r->ddp, i), k,
                        whole(cdp_rank(g), i + (uint32_t)step, k));
                T_EQ(CDP_OK, cdp_ddp_ready(r->ddp, i));
            }
        T_EQ(CDP_OK, cdp_ddp_backward_end(second->ddp));
        T_EQ(CDP_OK, cdp_ddp_backward_end(first->ddp));
        for (uint32_t i = 0; i < N; ++i)
            for (uint32_t k = 0; k < COUNT; ++k) {
                const double want = mean_of(whole, cdp_size(g), i + (uint32_t)step, k);
                T(get(CDP_DTYPE_F32, cdp_ddp_grad(a.ddp, i), k) == (double)(float)want
                    && get(CDP_DTYPE_F64, cdp_ddp_grad(b.ddp, i), k) == want);
            }
    }
    cdp_ddp_destroy(a.ddp);
    cdp_ddp_destroy(b.ddp);
}

TEST(two_models_on_one_group) {
    run_ranks(4, NULL, 0, rank_trains_two, NULL);
}

/* ---- figures ---- */

static void rank_reads_figures(cdp_group *g, void *arg) {
    char text[4000];
    cdp_ddp_stats s;
    rig r;
    (void)arg;
    rig_desc(&r, g, CDP_DTYPE_F32);
    r.desc.find_unused = true;
    if (!rig_open(&r)) return;
    T(cdp_ddp_trace(r.ddp, CDP_TRACE_TEXT, text, sizeof text) < sizeof text);
    T_TEXT("iteration: 0\n", text);
    T_TEXT("prev_iteration_grad_ready_order_indices:\n", text);
    for (int step = 0; step < 5; ++step) {
        const bool left_out = step == 3; /* by everybody */
        T_EQ(CDP_OK, cdp_ddp_forward_begin(r.ddp));
        test_sleep_ms(3);
        T_EQ(CDP_OK, cdp_ddp_backward_begin(r.ddp));
        for (uint32_t k = 0; k < N; ++k) {
            const uint32_t i = (k + 2) % N;
            test_sleep_ms(2);
            if (i == 1 && left_out)
                T_EQ(CDP_OK, cdp_ddp_unused(r.ddp, i));
            else
                T_EQ(CDP_OK, cdp_ddp_ready(r.ddp, i));
        }
        T_EQ(CDP_OK, cdp_ddp_backward_end(r.ddp));
        s = cdp_ddp_stats_of(r.ddp);
        T_EQ(step < 3, s.can_set_static_graph); /* and never again after a change */
        T_EQ(left_out ? COUNT * 4 : 0, s.unused_bytes);
        T(s.forward_ns >= 3000000 && s.backward_ns >= 8000000 && s.overlap_ns <= s.backward_ns
            && s.overlap_ns > 0);
        T_EQ(s.total_forward_ns / (uint64_t)(step + 1), s.avg_forward_ns);
        T_EQ(s.total_backward_ns / (uint64_t)(step + 1), s.avg_backward_ns);
        T_EQ(s.total_comm_ns / (uint64_t)(step + 1), s.avg_comm_ns);
        T_EQ(s.total_overlap_ns / (uint64_t)(step + 1), s.avg_overlap_ns);
        for (uint32_t b = 0; b < N; ++b) {
            const cdp_bucket_stats x = cdp_ddp_bucket(r.ddp, b);
            T_EQ(COUNT * 4, x.bytes);
            T_EQ(CDP_DTYPE_F32, x.dtype);
            T_EQ(1, x.param_count);
            T_EQ(N - 1 - b, x.params[0]);
            T(x.ready_ns <= x.start_ns && x.start_ns <= x.end_ns
                && (x.ready_ns >= 2000000 || (left_out && x.params[0] == 1)));
        }
        T_EQ(0, cdp_ddp_bucket(r.ddp, N).bytes);
        T_EQ(0, cdp_ddp_bucket(NULL, 0).bytes);
    }
    T(cdp_ddp_trace(r.ddp, CDP_TRACE_TEXT, text, sizeof text) < sizeof text);
    T_TEXT("world_size: 2\n", text);
    T_TEXT("num_parameter_tensors: 4\ntotal_parameter_size_bytes: 1920\ndtypes: f32\n", text);
    T_TEXT("find_unused_parameters: 1\ngradient_as_bucket_view: 1\nstatic_graph: 0\n", text);
    T_TEXT(
        "iteration: 5\nactive_ranks: 2\nunused_parameter_size: 0\ncan_set_static_graph: 0\n", text);
    T_TEXT("bucket_sizes: 480 480 480 480\nper_bucket_param_indices: 3 2 1 "
           "0\nprev_iteration_grad_ready_order_indices: 2 3 0 1\n",
        text);
    T_TEXT("error: none\n", text);
    cdp_ddp_destroy(r.ddp);
}

TEST(figures) {
    run_ranks(2, NULL, 0, rank_reads_figures, NULL);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"every_hook_takes_every_dtype", every_hook_takes_every_dtype, 60},
        {"halves_travel_as_halves", halves_travel_as_halves, 20},
        {"nan_and_infinity_pass", nan_and_infinity_pass, 20},
        {"every_hook_passes_what_is_not_finite", every_hook_passes_what_is_not_finite, 60},
        {"hooks_that_misbehave_end_everywhere", hooks_that_misbehave_end_everywhere, 60},
        {"who_fails_may_leave_at_once", who_fails_may_leave_at_once, 20},
        {"a_hook_for_which_one_rank_lacks_memory_is_refused_on_all",
            a_hook_for_which_one_rank_lacks_memory_is_refused_on_all, 30},
        {"memory_of_hooks", memory_of_hooks, 120},
        {"rows_are_the_serial_mean", rows_are_the_serial_mean, 120},
        {"mistakes_with_rows", mistakes_with_rows, 20},
        {"contradictions_are_named_everywhere", contradictions_are_named_everywhere, 20},
        {"long_names_differ_at_their_end", long_names_differ_at_their_end, 20},
        {"parameters_that_drift_are_named", parameters_that_drift_are_named, 20},
        {"small_ones_travel_together", small_ones_travel_together, 20},
        {"a_hook_averages_with_one_peer_after_the_other",
            a_hook_averages_with_one_peer_after_the_other, 60},
        {"averages_in_growing_circles", averages_in_growing_circles, 20},
        {"two_models_on_one_group", two_models_on_one_group, 20},
        {"figures", figures, 20},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
