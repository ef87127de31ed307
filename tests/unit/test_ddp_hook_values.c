/* The mathematics of hooks: each against its published formula, error feedback, saved state, stages
   in groups of their own, mistakes. Hooks over all dtypes: test_ddp_hooks.c. */
#define CDP_IMPLEMENTATION
#include "cdp.h"
#include "ranks.h"
#include <float.h>
#include "ddp_rig.h"

static float wild(uint32_t rank, uint32_t i, uint32_t k) {
    uint64_t s = rank * 1000u + i * 100u + k;
    return (float)((double)(test_random(&s) >> 11) / 9007199254740992.0 * 2 - 1);
}

static uint16_t half_of(cdp_dtype t, float x) {
    float in[CDP__BLOCK] = {x};
    uint16_t out[CDP__BLOCK];
    cdp__narrow_block(t, in, out);
    return out[0];
}

static float wide_of(cdp_dtype t, uint16_t x) {
    uint16_t in[CDP__BLOCK] = {x};
    float out[CDP__BLOCK];
    cdp__widen_block(t, in, out);
    return out[0];
}

static float rounded(cdp_dtype t, float x) {
    return wide_of(t, half_of(t, x));
}

static bool quantizes(cdp_hook_kind kind) {
    return kind == CDP_HOOK_QUANTIZE || kind == CDP_HOOK_QUANTIZE_CHANNEL
        || kind == CDP_HOOK_QUANTIZE_4;
}

/* What a hook of one step without state should leave, from its published formula. */
static float expected(cdp_hook_kind kind, uint32_t n, uint32_t i, uint32_t k) {
    const cdp_dtype t = kind == CDP_HOOK_FP16 ? CDP_DTYPE_F16 : CDP_DTYPE_BF16;
    float sum = 0;
    for (uint32_t r = 0; r < n; ++r) {
        const float x = wild(r, i, k);
        if (kind == CDP_HOOK_FP16 || kind == CDP_HOOK_BF16) {
            const float part = rounded(t, rounded(t, x) / (float)n);
            sum = r ? rounded(t, sum + part) : part;
        } else if (quantizes(kind)) {
            const float top = kind == CDP_HOOK_QUANTIZE_4 ? 15 : 255;
            float low = 0, high = 0;
            for (uint32_t j = 0; j < COUNT; ++j) {
                low = fminf(low, wild(r, i, j));
                high = fmaxf(high, wild(r, i, j));
            }
            const float s = (high - low) / top, z = 0 - rintf(low / s),
                        q = fminf(fmaxf(rintf(x / s) + z, 0), top);
            sum += s * (q - z);
        } else {
            sum = r ? sum + x / (float)n : x / (float)n;
        }
    }
    return quantizes(kind) ? sum / (float)n : sum;
}

static void rank_uses_formulas(cdp_group *g, void *arg) {
    static const cdp_hook_kind kinds[] = {CDP_HOOK_ALLREDUCE, CDP_HOOK_FP16, CDP_HOOK_BF16,
        CDP_HOOK_QUANTIZE, CDP_HOOK_QUANTIZE_CHANNEL, CDP_HOOK_QUANTIZE_4};
    /* processors that compute with more bits than asked for */
    const float slack = FLT_EVAL_METHOD == 0 ? 0 : 0.02f;
    static const uint64_t bytes[] = {
        COUNT * 4 * N, COUNT * 2 * N, COUNT * 2 * N, (COUNT + 8) * N, (512 + 8) * N, (256 + 8) * N};
    rig r;
    (void)arg;
    rig_desc(&r, g);
    rig_open(&r);
    for (int h = 0; h < 6; ++h) {
        cdp_hook_desc d;
        memset(&d, 0, sizeof d);
        d.kind = kinds[h];
        const cdp_hook hook = made(d);
        T_EQ(CDP_OK, cdp_ddp_set_hook(r.ddp, &hook)); /* replaced between steps */
        T_EQ(CDP_OK, rig_pass(&r, wild));
        T_EQ(bytes[h], cdp_ddp_stats_of(r.ddp).sent_bytes);
        for (uint32_t i = 0; i < N; ++i)
            for (uint32_t k = 0; k < COUNT; ++k) {
                const float want = expected(kinds[h], 2, i, k);
                test_check(fabsf(grad(&r, i)[k] - want) <= slack, __FILE__, __LINE__,
                    "hook %d, gradient %u[%u]: %.9g, not %.9g", h, i, k, (double)grad(&r, i)[k],
                    (double)want);
            }
    }
    cdp_ddp_destroy(r.ddp);
}

TEST(hooks_have_the_published_mathematics) {
    run_ranks(2, NULL, 0, rank_uses_formulas, NULL);
}

TEST(quantization_vectors) {
    static const float a[3] = {-1, 0, 3}, b[2] = {1, 3}, c[4] = {0, 0, 0, 0};
    float range[2];
    cdp__quantize_range(a, 3, 255, range);
    T(fabsf(range[0] - 0.0156862754f) < 1e-9f && range[1] == 64);
    cdp__quantize_range(b, 2, 255, range);
    T(fabsf(range[0] - 0.0117647f) < 1e-6f && range[1] == 0);
    cdp__quantize_range(a, 3, 15, range);
    T(fabsf(range[0] - 0.266666681f) < 1e-8f && range[1] == 4);
    cdp__quantize_range(c, 4, 255, range);
    T(range[0] == 1.1920929e-07f && range[1] == 0);
}

/* A parameter that is exactly of rank 1 on every rank, with one right factor: rank-1 compression
   loses nothing. */
static float thin(uint32_t rank, uint32_t i, uint32_t k) {
    return (float)(rank + 1) * (float)(k / 8 + 1) * ((float)(k % 8) - 3 + (float)i);
}

static void rank_uses_powersgd(cdp_group *g, void *arg) {
    const cdp_hook_kind kind = *(const cdp_hook_kind *)arg;
    const uint32_t n = cdp_size(g);
    cdp_hook_desc d;
    rig r;
    double first = 0, last = 0;
    rig_desc(&r, g);
    rig_open(&r);
    memset(&d, 0, sizeof d);
    d.kind = kind;
    d.start = 2;
    d.rank = 1;
    cdp_hook hook = made(d);
    T_EQ(CDP_OK, cdp_ddp_set_hook(r.ddp, &hook));
    for (int step = 0; step < 5; ++step) {
        T_EQ(CDP_OK, rig_pass(&r, thin));
        for (uint32_t i = 0; i < N && kind == CDP_HOOK_POWERSGD; ++i)
            for (uint32_t k = 0; k < COUNT; ++k) {
                const double want = mean_of(thin, n, i, k);
                /* not compressed yet */
                if (step < 2) T(fabs((double)grad(&r, i)[k] - want) < 1e-4);
            }
        if (kind == CDP_HOOK_POWERSGD && step >= 2)
            T_EQ((6 + 8) * 4 * N, cdp_ddp_stats_of(r.ddp).sent_bytes);
        if (kind == CDP_HOOK_POWERSGD_BATCHED && step >= 2)
            T_EQ((7 + 7) * 4 * N, cdp_ddp_stats_of(r.ddp).sent_bytes);
        /* What is left out stays with the rank: sent + error = own + error before. Over ranks,
           the errors sum up to what the mean lacks. */
        for (uint32_t i = 0; i < N && step == 2 && kind == CDP_HOOK_POWERSGD; ++i)
            for (uint32_t k = 0; k < COUNT; ++k)
                test_check(fabs((double)grad(&r, i)[k] - mean_of(thin, n, i, k))
                        < 1e-3 * (1 + fabs(mean_of(thin, n, i, k))),
                    __FILE__, __LINE__, "%u[%u]: %g, not %g", i, k, (double)grad(&r, i)[k],
                    mean_of(thin, n, i, k));
        last = cdp_ddp_hook(r.ddp)->error_norm(hook.self);
        if (step == 2) first = last;
        T(last == last && (step < 2 ? last == 0 : true));
    }
    T(first >= 0);
    for (uint32_t i = 0; i < N; ++i) { /* the same bits everywhere */
        float same[COUNT];
        T_EQ(CDP_OK, cdp_allreduce(g, grad(&r, i), same, COUNT, CDP_DTYPE_F32, CDP_REDUCE_MAX));
        T(memcmp(same, grad(&r, i), sizeof same) == 0);
    }
    cdp_ddp_destroy(r.ddp);
}

TEST(powersgd) {
    cdp_hook_kind kind = CDP_HOOK_POWERSGD;
    run_ranks(3, NULL, 0, rank_uses_powersgd, &kind);
    kind = CDP_HOOK_POWERSGD_BATCHED;
    run_ranks(2, NULL, 0, rank_uses_powersgd, &kind);
}

/* With error feedback, what is sent over many steps adds up to what should have been sent. */
static void rank_feeds_errors_back(cdp_group *g, void *arg) {
    const cdp_hook_kind kind = *(const cdp_hook_kind *)arg;
    enum {
        STEPS = 60
    };
    static const double want_within[2] = {0.35, 0.35};
    double sum[N][COUNT] = {{0}};
    cdp_hook_desc d;
    rig r;
    rig_desc(&r, g);
    rig_open(&r);
    memset(&d, 0, sizeof d);
    d.kind = kind;
    d.start = 1;
    d.ratio = 8;
    d.min_rate = 1;
    const cdp_hook hook = made(d);
    T_EQ(CDP_OK, cdp_ddp_set_hook(r.ddp, &hook));
    for (int step = 0; step < STEPS; ++step) {
        T_EQ(CDP_OK, rig_pass(&r, wild));
        for (uint32_t i = 0; i < N; ++i)
            for (uint32_t k = 0; k < COUNT; ++k)
                sum[i][k] += (double)grad(&r, i)[k];
    }
    for (uint32_t i = 0; i < N; ++i)
        for (uint32_t k = 0; k < COUNT; ++k)
            test_check(fabs(sum[i][k] / STEPS - mean_of(wild, cdp_size(g), i, k))
                    < want_within[kind == CDP_HOOK_TOPK],
                __FILE__, __LINE__, "kind %d: mean of %d steps of %u[%u] is %g, not %g", (int)kind,
                STEPS, i, k, sum[i][k] / STEPS, mean_of(wild, cdp_size(g), i, k));
    T(cdp_ddp_hook(r.ddp)->error_norm(hook.self) > 0);
    cdp_ddp_destroy(r.ddp);
}

TEST(errors_are_fed_back) {
    cdp_hook_kind kind = CDP_HOOK_TOPK;
    run_ranks(2, NULL, 0, rank_feeds_errors_back, &kind);
    kind = CDP_HOOK_POWERSGD;
    run_ranks(2, NULL, 0, rank_feeds_errors_back, &kind);
    kind = CDP_HOOK_SIGN;
    run_ranks(2, NULL, 0, rank_feeds_errors_back, &kind);
}

/* Signs times the mean magnitude of each rank's bucket, divided; what is lost comes next. */
static void rank_sends_signs(cdp_group *g, void *arg) {
    const uint32_t n = cdp_size(g);
    cdp_hook_desc d;
    rig r;
    (void)arg;
    memset(&d, 0, sizeof d);
    d.kind = CDP_HOOK_SIGN;
    rig_desc(&r, g);
    rig_open(&r);
    const cdp_hook h = made(d);
    T_EQ(CDP_OK, cdp_ddp_set_hook(r.ddp, &h));
    float error[8][N][COUNT] = {{{0}}}; /* of every rank */
    for (int step = 0; step < 3; ++step) {
        T_EQ(CDP_OK, rig_pass(&r, whole));
        for (uint32_t i = 0; i < N; ++i) {
            float want[COUNT] = {0};
            for (uint32_t q = 0; q < n; ++q) {
                double size = 0;
                for (uint32_t k = 0; k < COUNT; ++k)
                    size += fabs((double)(error[q][i][k] += (float)whole(q, i, k)));
                const float scale = (float)(size / COUNT);
                for (uint32_t k = 0; k < COUNT; ++k) {
                    const float sent = signbit(error[q][i][k]) ? -scale : scale;
                    want[k] += sent;
                    error[q][i][k] -= sent;
                }
            }
            for (uint32_t k = 0; k < COUNT; ++k)
                test_check(fabsf(grad(&r, i)[k] - want[k] / (float)n) < 1e-4f, __FILE__, __LINE__,
                    "step %d: %u[%u] is %g, not %g", step, i, k, (double)grad(&r, i)[k],
                    (double)(want[k] / (float)n));
        }
    }
    cdp_ddp_destroy(r.ddp);
}

TEST(signs_with_a_scale) {
    for (uint32_t n = 1; n < 5; ++n)
        run_ranks(n, NULL, 0, rank_sends_signs, NULL);
}

TEST(numbers_without_a_library) {
    uint64_t state = 7;
    for (int i = 0; i < 100000; ++i) {
        const double x =
            ldexp((double)(test_random(&state) >> 11), (int)(test_random(&state) % 400) - 200);
        const float v = (float)((double)(int64_t)(test_random(&state) % 8193) / 4 - 1024
            + (i % 2 ? (double)(test_random(&state) % 1000) / 1000 : 0));
        if (!T(fabs(cdp__sqrt(x) - sqrt(x)) <= 3e-16 * sqrt(x))) return;
        if (fabsf(v) <= 1024 && !T(cdp__round_even(v) == rintf(v))) return;
    }
    T(cdp__sqrt(0) == 0 && cdp__sqrt(4) == 2 && cdp__sqrt((double)INFINITY) == (double)INFINITY);
    T(cdp__round_even(NAN) == -1024 && cdp__round_even(INFINITY) == 1024);
}

TEST(topk_threshold) { /* few values, many, and all bits that a magnitude may have, NaN included */
    uint64_t state = 5;
    for (int round = 0; round < 600; ++round) {
        uint32_t x[40], sorted[40];
        const uint32_t n = 1 + (uint32_t)(test_random(&state) % 40);
        for (uint32_t i = 0; i < n; ++i) {
            const uint32_t any = (uint32_t)test_random(&state) & 0x7fffffffu;
            x[i] = any;
            if (round % 3 == 0) x[i] = any % 9;
            if (round % 3 == 2) x[i] = 0x40000000u + (any & 0x3fffu);
            sorted[i] = x[i];
        }
        for (uint32_t i = 0; i < n; ++i)
            for (uint32_t j = i + 1; j < n; ++j)
                if (sorted[j] > sorted[i]) {
                    const uint32_t t = sorted[i];
                    sorted[i] = sorted[j];
                    sorted[j] = t;
                }
        const uint32_t k = (uint32_t)(test_random(&state) % n);
        T(cdp__topk_threshold(x, n, k) == sorted[k]);
    }
    T_EQ(0, cdp__topk_threshold(NULL, 0, 0));
}

/* Two runs: one of 6 steps, and one whose state is taken over after 3 by another hook. */
static void rank_saves_state(cdp_group *g, void *arg) {
    const cdp_hook_kind kind = (cdp_hook_kind)(*(const int *)arg % 100);
    float straight[N][COUNT];
    cdp_hook_desc d;
    rig r;
    rig_desc(&r, g);
    memset(&d, 0, sizeof d);
    d.start = kind == CDP_HOOK_POST_LOCAL_SGD ? 4 : 1; /* after the state was taken over */
    d.ratio = 5;
    d.no_warm_start = *(const int *)arg >= 100; /* columns drawn anew in each step */
    for (int run = 0; run < 2; ++run) {
        cdp_hook_desc inner = d;
        cdp_hook hook, wrapped;
        uint8_t *bytes;
        rig_open(&r);
        for (int part = 0; part < 2; ++part) {
            inner.kind = kind;
            hook = made(inner);
            if (kind == CDP_HOOK_FP16) { /* the state of what is wrapped travels, too */
                inner.kind = CDP_HOOK_TOPK;
                wrapped = made(inner);
                inner.kind = kind;
                inner.inner = &wrapped;
                if (hook.destroy) hook.destroy(hook.self);
                hook = made(inner);
                inner.inner = NULL;
            }
            if (part == 1 && run == 1) {
                const cdp_hook *old = cdp_ddp_hook(r.ddp);
                const uint64_t count = old->save(old->self, NULL, 0);
                bytes = (uint8_t *)malloc(count);
                T_EQ(count, old->save(old->self, bytes, count));
                T_EQ(CDP_ERR_INVALID, hook.load(hook.self, bytes, count - 4));
                T_EQ(CDP_ERR_INVALID, hook.load(hook.self, bytes, 8));
                T_EQ(CDP_OK, hook.load(hook.self, bytes, count));
                bytes[0] ^= 1;
                T_EQ(CDP_ERR_INVALID, hook.load(hook.self, bytes, count));
                free(bytes);
            }
            if (part == 0 || run == 1)
                T_EQ(CDP_OK, cdp_ddp_set_hook(r.ddp, &hook));
            else
                hook.destroy(hook.self);
            for (int step = 0; step < 3; ++step)
                T_EQ(CDP_OK, rig_pass(&r, wild));
        }
        for (uint32_t i = 0; i < N; ++i) {
            if (run == 0)
                memcpy(straight[i], grad(&r, i), sizeof straight[i]);
            else
                T(memcmp(straight[i], grad(&r, i), sizeof straight[i]) == 0);
        }
        cdp_ddp_destroy(r.ddp);
    }
}

TEST(hook_state_is_saved_and_loaded) {
    static const int kinds[] = {CDP_HOOK_TOPK, CDP_HOOK_POWERSGD, CDP_HOOK_POWERSGD_BATCHED,
        CDP_HOOK_FP16, CDP_HOOK_POST_LOCAL_SGD, CDP_HOOK_POWERSGD + 100, CDP_HOOK_QUANTIZE,
        CDP_HOOK_SIGN};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; ++i) {
        int kind = kinds[i];
        run_ranks(2, NULL, 0, rank_saves_state, &kind);
    }
}

static cdp_status one_too_many(void *self, cdp_bucket *b, uint32_t stage, cdp_request *op) {
    (void)self;
    (void)stage;
    op->kind = CDP_COLL_ALLREDUCE;
    op->out = b->data;
    op->count = b->count;
    return CDP_PENDING;
}

static void rank_has_a_wrong_hook(cdp_group *g, void *arg) {
    cdp_hook h;
    rig r;
    memset(&h, 0, sizeof h);
    h.stage = one_too_many;
    h.operations = 2;
    rig_desc(&r, g);
    rig_open(&r);
    T_EQ(CDP_OK, cdp_ddp_set_hook(r.ddp, &h));
    REFUSED(CDP_ERR_INVALID, "asks for operation 3", rig_pass(&r, whole));
    pthread_barrier_wait((pthread_barrier_t *)arg); /* nobody leaves before all have seen it */
    cdp_ddp_destroy(r.ddp);
}

/* The second operation of the first bucket starts while the last buckets are still being
   computed. */
static void rank_overlaps_stages(cdp_group *g, void *arg) {
    cdp_hook_desc d;
    rig r;
    (void)arg;
    memset(&d, 0, sizeof d);
    d.kind = CDP_HOOK_QUANTIZE;
    const cdp_hook h = made(d);
    rig_desc(&r, g);
    rig_open(&r);
    T_EQ(CDP_OK, cdp_ddp_set_hook(r.ddp, &h));
    T_EQ(CDP_OK, cdp_ddp_backward_begin(r.ddp));
    for (uint32_t i = N; i-- > 1;) {
        for (uint32_t k = 0; k < COUNT; ++k)
            grad(&r, i)[k] = wild(cdp_rank(g), i, k);
        T_EQ(CDP_OK, cdp_ddp_ready(r.ddp, i));
    }
    for (int tries = 0; tries < 5000 && !r.ddp->buckets[0].done; ++tries) {
        test_sleep_ms(1);
        T_EQ(CDP_OK, cdp__ddp_advance(r.ddp)); /* what ready() does */
    }
    T(r.ddp->buckets[0].done); /* although parameter 0 is not ready anywhere yet */
    T_EQ(CDP_OK, cdp_barrier(g));
    for (uint32_t k = 0; k < COUNT; ++k)
        grad(&r, 0)[k] = wild(cdp_rank(g), 0, k);
    T_EQ(CDP_OK, cdp_ddp_ready(r.ddp, 0));
    T_EQ(CDP_OK, cdp_ddp_backward_end(r.ddp));
    for (uint32_t i = 0; i < N; ++i)
        for (uint32_t k = 0; k < COUNT; ++k)
            T(fabs((double)grad(&r, i)[k] - mean_of(wild, cdp_size(g), i, k)) < 0.02);
    cdp_ddp_destroy(r.ddp);
}

/* One rank forgets a parameter; the others wait in a later stage of an earlier bucket, and are
   told all the same. */
static void rank_forgets(cdp_group *g, void *arg) {
    cdp_hook_desc d;
    cdp_status st;
    rig r;
    memset(&d, 0, sizeof d);
    d.kind = CDP_HOOK_QUANTIZE;
    const cdp_hook h = made(d);
    rig_desc(&r, g);
    rig_open(&r);
    T_EQ(CDP_OK, cdp_ddp_set_hook(r.ddp, &h));
    /* all are made, before one of them breaks the group */
    pthread_barrier_wait((pthread_barrier_t *)arg);
    st = cdp_ddp_backward_begin(r.ddp);
    T(st == CDP_OK || cdp_rank(g) != 1);
    const uint64_t start = test_now_ns();
    for (uint32_t i = N; i-- > 0;)
        if (cdp_rank(g) != 1 || i != 1) (void)cdp_ddp_ready(r.ddp, i);
    st = cdp_ddp_backward_end(r.ddp);
    T_EQ(CDP_ERR_STATE, st);
    T_TEXT("'attention' (index 1)", cdp_last_error()->text);
    T_WITHIN(1000, test_now_ns() - start);
    cdp_ddp_destroy(r.ddp);
}

TEST(stages_have_groups_of_their_own) {
    pthread_barrier_t made_all;
    pthread_barrier_init(&made_all, NULL, 3);
    run_ranks(3, NULL, 0, rank_forgets, &made_all);
    pthread_barrier_destroy(&made_all);
    run_ranks(3, NULL, 0, rank_overlaps_stages, NULL);
    pthread_barrier_init(&made_all, NULL, 2);
    run_ranks(2, NULL, 0, rank_has_a_wrong_hook, &made_all);
    pthread_barrier_destroy(&made_all);
}

TEST(mistakes_of_hooks) {
    cdp_group *g = group_of_one(NULL);
    cdp_hook_desc d;
    cdp_hook h, inner;
    rig r;
    memset(&d, 0, sizeof d);
    REFUSED(CDP_ERR_INVALID, "desc is NULL", cdp_hook_create(NULL, &h));
    d.kind = (cdp_hook_kind)99;
    REFUSED(CDP_ERR_INVALID, "kind 99", cdp_hook_create(&d, &h));
    d.kind = CDP_HOOK_TOPK;
    d.ratio = 0.5;
    REFUSED(CDP_ERR_INVALID, "ratio at least 1", cdp_hook_create(&d, &h));
    d.ratio = 0;
    h = made(d);
    inner = h;
    d.inner = &inner;
    REFUSED(CDP_ERR_INVALID, "only FP16 and BF16", cdp_hook_create(&d, &h));
    d.kind = CDP_HOOK_FP16;
    h = made(d);
    T(h.keeps_layout);
    rig_desc(&r, g);
    rig_open(&r);
    T_EQ(CDP_OK, cdp_ddp_set_hook(r.ddp, &h));
    T_EQ(CDP_OK, rig_pass(&r, whole)); /* top-k sees f16 */
    cdp_ddp_destroy(r.ddp);
    cdp_group_destroy(g);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"hooks_have_the_published_mathematics", hooks_have_the_published_mathematics, 20},
        {"quantization_vectors", quantization_vectors, 10}, {"powersgd", powersgd, 20},
        {"errors_are_fed_back", errors_are_fed_back, 20},
        {"numbers_without_a_library", numbers_without_a_library, 20},
        {"topk_threshold", topk_threshold, 20}, {"signs_with_a_scale", signs_with_a_scale, 20},
        {"hook_state_is_saved_and_loaded", hook_state_is_saved_and_loaded, 20},
        {"stages_have_groups_of_their_own", stages_have_groups_of_their_own, 30},
        {"mistakes_of_hooks", mistakes_of_hooks, 20}};
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
