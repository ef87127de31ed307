/* What DDP refuses and how it says so, what it costs in memory, uneven inputs that end in an
   error, hooks and their mathematics, sharded optimizers, samplers, pictures. Gradients over
   random programs: test_ddp_model.c. */
#define CDP_IMPLEMENTATION
#include "cdp.h"
#include "ranks.h"
#include <float.h>

enum {
    N = 4,
    COUNT = 48
};

/* N parameters of 6 x 8 values, one bucket each, unless told otherwise. */
typedef struct rig {
    cdp_group *g;
    cdp_ddp *ddp;
    float data[N][COUNT];
    cdp_param params[N];
    cdp_ddp_desc desc;
} rig;

static void rig_desc(rig *r, cdp_group *g) {
    static const char *const names[N] = {"embed", "attention", "norm", "head"};
    memset(r, 0, sizeof *r);
    r->g = r->desc.group = g;
    for (int i = 0; i < N; ++i) {
        r->params[i].name = names[i];
        r->params[i].data = r->data[i];
        r->params[i].count = COUNT;
        r->params[i].rows = 6;
    }
    r->desc.params = r->params;
    r->desc.param_count = N;
    r->desc.first_bucket_bytes = r->desc.bucket_bytes = 4;
}

static void rig_open(rig *r) {
    test_check(cdp_ddp_create(&r->desc, &r->ddp) == CDP_OK, __FILE__, __LINE__, "%s",
        cdp_last_error()->text);
}

static float *grad(rig *r, uint32_t i) {
    return (float *)cdp_ddp_grad(r->ddp, i);
}

/* One pass in which parameter i gets gradient value(i, k) on this rank. */
static cdp_status rig_pass(rig *r, float (*value)(uint32_t rank, uint32_t i, uint32_t k)) {
    cdp_status st = cdp_ddp_backward_begin(r->ddp);
    for (uint32_t i = N; i-- > 0 && st == CDP_OK;) {
        for (uint32_t k = 0; k < COUNT; ++k)
            grad(r, i)[k] = value(cdp_rank(r->g), i, k);
        st = cdp_ddp_ready(r->ddp, i);
    }
    /* which reports a failure of ready() again */
    return r->ddp->in_backward ? cdp_ddp_backward_end(r->ddp) : st;
}

static float whole(uint32_t rank, uint32_t i, uint32_t k) {
    return (float)((rank * 7 + i * 3 + k) % 11) - 5;
}
static float wild(uint32_t rank, uint32_t i, uint32_t k) {
    uint64_t s = rank * 1000u + i * 100u + k;
    return (float)((double)(test_random(&s) >> 11) / 9007199254740992.0 * 2 - 1);
}
static double mean_of(
    float (*value)(uint32_t, uint32_t, uint32_t), uint32_t n, uint32_t i, uint32_t k) {
    double sum = 0;
    for (uint32_t r = 0; r < n; ++r)
        sum += (double)value(r, i, k);
    return sum / n;
}

/* ---- misuse ---- */

TEST(mistakes_are_sentences) {
    cdp_group *g = group_of_one(NULL);
    cdp_buffer odd = {"count", NULL, 3, CDP_DTYPE_I64};
    cdp_hook hook;
    rig r;
    rig_desc(&r, g);
    r.desc.join_throw = true;
    REFUSED(CDP_ERR_INVALID, "need join", cdp_ddp_create(&r.desc, &r.ddp));
    r.desc.join_throw = false;
    r.desc.join = r.desc.join_effective = true;
    r.desc.divisor = 2;
    REFUSED(CDP_ERR_INVALID, "leave divisor 0", cdp_ddp_create(&r.desc, &r.ddp));
    rig_desc(&r, g);
    r.desc.predivide = -1;
    REFUSED(CDP_ERR_INVALID, "must be positive", cdp_ddp_create(&r.desc, &r.ddp));
    rig_desc(&r, g);
    r.desc.buffer_count = 1;
    REFUSED(CDP_ERR_INVALID, "there are no buffers", cdp_ddp_create(&r.desc, &r.ddp));
    r.desc.buffers = &odd;
    REFUSED(CDP_ERR_INVALID, "buffer 'count' (index 0)", cdp_ddp_create(&r.desc, &r.ddp));
    rig_desc(&r, g);
    r.params[2].rows = 7;
    REFUSED(CDP_ERR_INVALID, "'norm' (index 2) has 48 values, which 7 rows do not divide",
        cdp_ddp_create(&r.desc, &r.ddp));
    rig_desc(&r, g);
    rig_open(&r);
    REFUSED(CDP_ERR_INVALID, "needs a ddp", cdp_ddp_forward_begin(NULL));
    REFUSED(CDP_ERR_INVALID, "needs a ddp", cdp_ddp_unused(NULL, 0));
    REFUSED(CDP_ERR_INVALID, "needs a ddp", cdp_ddp_join(NULL));
    REFUSED(CDP_ERR_INVALID, "needs a ddp", cdp_ddp_clip(NULL, 1, NULL));
    REFUSED(CDP_ERR_INVALID, "needs a ddp", cdp_ddp_set_hook(NULL, NULL));
    REFUSED(CDP_ERR_INVALID, "set join in the desc", cdp_ddp_join(r.ddp));
    REFUSED(CDP_ERR_STATE, "no backward pass is open", cdp_ddp_unused(r.ddp, 0));
    memset(&hook, 0, sizeof hook);
    REFUSED(CDP_ERR_INVALID, "no stage function", cdp_ddp_set_hook(r.ddp, &hook));
    T(cdp_ddp_hook(r.ddp) == NULL && cdp_ddp_hook(NULL) == NULL);
    T(cdp_ddp_param(r.ddp, N) == NULL && cdp_ddp_param(r.ddp, 1)->dtype == CDP_DTYPE_F32);
    T(!cdp_ddp_is_no_sync(r.ddp) && !cdp_ddp_is_no_sync(NULL));
    hook.stage = cdp__hook_stage;
    hook.operations = 9;
    REFUSED(CDP_ERR_INVALID, "at most 8 operations", cdp_ddp_set_hook(r.ddp, &hook));
    T_EQ(CDP_OK, cdp_ddp_no_sync(r.ddp, true));
    T(cdp_ddp_is_no_sync(r.ddp));
    T_EQ(CDP_OK, cdp_ddp_backward_begin(r.ddp));
    REFUSED(CDP_ERR_STATE, "call cdp_ddp_backward_end first", cdp_ddp_forward_begin(r.ddp));
    REFUSED(CDP_ERR_STATE, "call cdp_ddp_backward_end first", cdp_ddp_set_hook(r.ddp, NULL));
    REFUSED(CDP_ERR_STATE, "a backward pass is open", cdp_ddp_clip(r.ddp, 1, NULL));
    REFUSED(CDP_ERR_INVALID, "'norm' (index 2): set find_unused", cdp_ddp_unused(r.ddp, 2));
    REFUSED(CDP_ERR_INVALID, "set find_unused", cdp_ddp_backward_end(r.ddp));
    cdp_ddp_destroy(r.ddp);
    r.desc.join = true;
    rig_open(&r);
    T_EQ(CDP_OK, cdp_ddp_backward_begin(r.ddp));
    REFUSED(CDP_ERR_STATE, "call cdp_ddp_backward_end first", cdp_ddp_join(r.ddp));
    cdp_ddp_destroy(r.ddp);
    cdp_group_destroy(g);
}

static void rank_with_odd_settings(cdp_group *g, void *arg) {
    const int what = *(const int *)arg;
    const bool odd = cdp_rank(g) == 2;
    cdp_buffer buffers[2] = {{"mean", NULL, 0, CDP_DTYPE_F32}, {"steps", NULL, 0, CDP_DTYPE_I64}};
    static const char *const words[5] = {"find_unused of rank 2 is not that of rank 0",
        "join of rank 2 is not", "bucket sizes, divisor or predivide of rank 2",
        "is buffer 'steps' i64[0] on rank 0 but buffer 'steps' i32[0] on rank 2",
        "'attention' f32[48] in 6 rows on rank 0 but 'attention' f32[48] in 8 rows on rank 2"};
    rig r;
    rig_desc(&r, g);
    r.desc.buffers = buffers;
    r.desc.buffer_count = 2;
    if (what == 0) r.desc.find_unused = odd;
    if (what == 1) r.desc.join = odd;
    if (what == 2) r.desc.bucket_bytes += odd;
    if (what == 3 && odd) buffers[1].dtype = CDP_DTYPE_I32;
    if (what == 4 && odd) r.params[1].rows = 8;
    REFUSED(CDP_ERR_MISMATCH, words[what], cdp_ddp_create(&r.desc, &r.ddp));
    T_EQ(2, cdp_last_error()->peer);
}

TEST(different_settings_are_named) {
    for (int what = 0; what < 5; ++what)
        run_ranks(3, NULL, 0, rank_with_odd_settings, &what);
}

static void rank_breaks_static_graph(cdp_group *g, void *arg) {
    const int what = *(const int *)arg;
    const bool me = cdp_rank(g) == 1;
    cdp_status st = CDP_OK;
    rig r;
    rig_desc(&r, g);
    r.desc.static_graph = true;
    rig_open(&r);
    for (int pass = 0; pass < 2 && st == CDP_OK; ++pass) {
        const bool bad = me && pass == 1;
        st = cdp_ddp_backward_begin(r.ddp);
        for (uint32_t i = 0; i < N - 1 && st == CDP_OK; ++i) { /* "head" has no gradient */
            const int calls = 2 - (bad && what == 0 && i == 1) + (bad && what == 1 && i == 2);
            for (int c = 0; c < calls && st == CDP_OK; ++c)
                st = cdp_ddp_ready(r.ddp, i);
        }
        if (bad && what == 2) (void)cdp_ddp_ready(r.ddp, 3);
        if (bad && what == 3) (void)cdp_ddp_unused(r.ddp, 0);
        st = cdp_ddp_backward_end(r.ddp);
    }
    if (st == CDP_OK) st = cdp_barrier(g); /* a rank that had all it needed learns of it later */
    T_EQ(CDP_ERR_STATE, st);
    static const char *const words[4] = {"never marked ready as often as in the first synchronized "
                                         "pass (static graph): 'attention' (index 1)",
        "'norm' (index 2) was marked ready 2 times in the first synchronized pass of rank 1",
        "'head' (index 3) was marked ready 0 times in the first synchronized pass of rank 1",
        "'embed' (index 0) was marked ready 2 times"};
    T_TEXT(words[what], cdp_last_error()->text);
    cdp_ddp_destroy(r.ddp);
}

TEST(a_graph_that_is_not_static_is_named) {
    for (int what = 0; what < 4; ++what)
        run_ranks(3, NULL, 0, rank_breaks_static_graph, &what);
}

static void rank_runs_out(cdp_group *g, void *arg) {
    const uint32_t mine = cdp_rank(g) == 1 || cdp_rank(g) == 3 ? 2 : 4;
    cdp_status st = CDP_OK;
    uint32_t step = 0;
    rig r;
    (void)arg;
    rig_desc(&r, g);
    r.desc.join = r.desc.join_throw = true;
    rig_open(&r);
    for (; step < mine && st == CDP_OK; ++step)
        st = rig_pass(&r, whole);
    if (mine == 2) T_EQ(CDP_OK, st);
    if (st == CDP_OK) st = cdp_ddp_join(r.ddp);
    T_EQ(mine == 2 ? 2 : 3, step); /* everybody at the same step */
    T_EQ(CDP_ERR_STATE, st);
    T_TEXT("2 of 4 ranks ran out of data before the others (join_throw): rank 1, 3",
        cdp_last_error()->text);
    T_EQ(CDP_OK, cdp_barrier(g)); /* the group is whole */
    for (step = 0; step < 2; ++step)
        T_EQ(CDP_OK, rig_pass(&r, whole)); /* and training may go on */
    T_EQ(CDP_OK, cdp_ddp_join(r.ddp));     /* even inputs are no error */
    cdp_ddp_destroy(r.ddp);
}

TEST(early_end_is_an_error_everywhere_with_join_throw) {
    run_ranks(4, NULL, 0, rank_runs_out, NULL);
}

/* ---- messages and memory ---- */

static void rank_counts_operations(cdp_group *g, void *arg) {
    rig r;
    (void)arg;
    rig_desc(&r, g);
    r.desc.join = r.desc.find_unused = true;
    rig_open(&r);
    const uint64_t before = g->issued;
    T_EQ(CDP_OK, rig_pass(&r, whole));
    /* the buckets and nothing else, although join and unused parameters are possible */
    T_EQ(N, g->issued - before);
    T_EQ(COUNT * 4 * N + 4 * (cdp_size(g) + N), cdp_ddp_stats_of(r.ddp).sent_bytes);
    T_EQ(cdp_size(g), cdp_ddp_stats_of(r.ddp).active_ranks);
    const uint64_t then = g->issued;
    T_EQ(CDP_OK, cdp_ddp_join(r.ddp));
    T_EQ(1, g->issued - then); /* one more first bucket, and everybody knows */
    cdp_ddp_destroy(r.ddp);
}

TEST(flags_travel_inside_buckets) {
    run_ranks(3, NULL, 0, rank_counts_operations, NULL);
}

static int64_t held_bytes;
static void *sized_alloc(void *user, uint64_t bytes) {
    uint64_t *p = (uint64_t *)cdp_os_default()->alloc(user, bytes + 64);
    if (!p) return NULL;
    p[0] = bytes;
    held_bytes += (int64_t)bytes;
    return p + 8;
}
static void sized_free(void *user, void *p) {
    if (!p) return;
    held_bytes -= (int64_t)((uint64_t *)p)[-8];
    cdp_os_default()->release(user, (uint64_t *)p - 8);
}

TEST(buckets_are_the_gradients) {
    enum {
        MANY = 40
    };
    static float data[100000];
    cdp_param p[MANY];
    cdp_ddp_desc d;
    cdp_os os = *cdp_os_default();
    os.alloc = sized_alloc;
    os.release = sized_free;
    cdp_group *g = group_of_one(&os);
    cdp_ddp *ddp[3];
    memset(p, 0, sizeof p);
    memset(&d, 0, sizeof d);
    for (int i = 0; i < MANY; ++i) {
        p[i].data = data;
        p[i].count = 100000;
    }
    d.group = g;
    d.params = p;
    d.param_count = MANY;
    d.find_unused = d.join = d.rebuild = true;
    for (int k = 0; k < 3; ++k) { /* several on one group */
        const int64_t before = held_bytes, gradients = (int64_t)MANY * 400000;
        T_EQ(CDP_OK, cdp_ddp_create(&d, &ddp[k]));
        test_check(
            held_bytes - before >= gradients && held_bytes - before < gradients + gradients / 100,
            __FILE__, __LINE__, "%lld bytes of gradients take %lld", (long long)gradients,
            (long long)(held_bytes - before));
        for (int step = 0; step < 3; ++step) {
            T_EQ(CDP_OK, cdp_ddp_backward_begin(ddp[k]));
            for (uint32_t i = 0; i < MANY; ++i)
                T_EQ(CDP_OK, cdp_ddp_ready(ddp[k], i));
            T_EQ(CDP_OK, cdp_ddp_backward_end(ddp[k]));
        }
        T(cdp_ddp_stats_of(ddp[k]).rebuilt);
        T(held_bytes - before < gradients + gradients / 100);
        /* what one rank does not use has to be kept */
        T_EQ(CDP_OK, cdp_ddp_backward_begin(ddp[k]));
        for (uint32_t i = 0; i + 1 < MANY; ++i)
            T_EQ(CDP_OK, cdp_ddp_ready(ddp[k], i));
        T_EQ(CDP_OK, cdp_ddp_backward_end(ddp[k]));
        T_EQ(1, cdp_ddp_stats_of(ddp[k]).unused_count);
        T(held_bytes - before < gradients + 400000 + gradients / 100);
    }
    for (int k = 0; k < 3; ++k)
        cdp_ddp_destroy(ddp[k]);
    cdp_group_destroy(g);
    T_EQ(0, held_bytes);
}

static void rank_rebuilds(cdp_group *g, void *arg) {
    static const uint32_t order[N] = {1, 3, 0, 2};
    cdp_hook_desc d;
    cdp_hook hook;
    rig r;
    (void)arg;
    rig_desc(&r, g);
    r.desc.rebuild = true;
    r.desc.first_bucket_bytes = r.desc.bucket_bytes = 2 * COUNT * 4;
    rig_open(&r);
    memset(&d, 0, sizeof d);
    d.kind = CDP_HOOK_TOPK; /* has state per bucket */
    T_EQ(CDP_OK, cdp_hook_create(&d, &hook));
    T_EQ(CDP_OK, cdp_ddp_set_hook(r.ddp, &hook));
    for (int pass = 0; pass < 4; ++pass) {
        if (pass == 2) T_EQ(CDP_OK, cdp_ddp_set_hook(r.ddp, NULL));
        T_EQ(CDP_OK, cdp_ddp_forward_begin(r.ddp));
        T_EQ(pass >= 2, cdp_ddp_stats_of(r.ddp).rebuilt);
        T_EQ(CDP_OK, cdp_ddp_backward_begin(r.ddp));
        for (uint32_t i = 0; i < N; ++i) {
            const uint32_t at = cdp_rank(g) == 0 ? order[i] : i; /* rank 0's order counts */
            for (uint32_t k = 0; k < COUNT; ++k)
                grad(&r, at)[k] = whole(cdp_rank(g), at, k);
            T_EQ(CDP_OK, cdp_ddp_ready(r.ddp, at));
        }
        T_EQ(CDP_OK, cdp_ddp_backward_end(r.ddp));
        for (uint32_t i = 0; i < N && pass >= 2; ++i)
            for (uint32_t k = 0; k < COUNT; ++k)
                T((double)grad(&r, i)[k] == (double)(float)mean_of(whole, 2, i, k));
    }
    T(grad(&r, 3) == grad(&r, 1) + COUNT && grad(&r, 2) == grad(&r, 0) + COUNT);
    cdp_ddp_destroy(r.ddp);
}

TEST(buckets_follow_the_order_of_rank_0_when_no_hook_needs_them) {
    run_ranks(2, NULL, 0, rank_rebuilds, NULL);
}

/* ---- hooks ---- */

static cdp_hook made(cdp_hook_desc d) {
    cdp_hook h;
    test_check(cdp_hook_create(&d, &h) == CDP_OK, __FILE__, __LINE__, "%s", cdp_last_error()->text);
    return h;
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

/* What a hook of one step without state should leave, from its published formula. */
static float expected(cdp_hook_kind kind, uint32_t n, uint32_t i, uint32_t k) {
    const cdp_dtype t = kind == CDP_HOOK_FP16 ? CDP_DTYPE_F16 : CDP_DTYPE_BF16;
    float sum = 0;
    for (uint32_t r = 0; r < n; ++r) {
        const float x = wild(r, i, k);
        if (kind == CDP_HOOK_FP16 || kind == CDP_HOOK_BF16) {
            const float part = rounded(t, rounded(t, x) / (float)n);
            sum = r ? rounded(t, sum + part) : part;
        } else if (kind == CDP_HOOK_QUANTIZE || kind == CDP_HOOK_QUANTIZE_CHANNEL) {
            float low = 0, high = 0;
            for (uint32_t j = 0; j < COUNT; ++j) {
                low = fminf(low, wild(r, i, j));
                high = fmaxf(high, wild(r, i, j));
            }
            const float s = (high - low) / 255.0f, z = 0 - rintf(low / s),
                        q = fminf(fmaxf(rintf(x / s) + z, 0), 255);
            sum += s * (q - z);
        } else {
            sum = r ? sum + x / (float)n : x / (float)n;
        }
    }
    return kind == CDP_HOOK_QUANTIZE || kind == CDP_HOOK_QUANTIZE_CHANNEL ? sum / (float)n : sum;
}

static void rank_uses_formulas(cdp_group *g, void *arg) {
    static const cdp_hook_kind kinds[] = {CDP_HOOK_ALLREDUCE, CDP_HOOK_FP16, CDP_HOOK_BF16,
        CDP_HOOK_QUANTIZE, CDP_HOOK_QUANTIZE_CHANNEL};
    /* processors that compute with more bits than asked for */
    const float slack = FLT_EVAL_METHOD == 0 ? 0 : 0.02f;
    static const uint64_t bytes[] = {
        COUNT * 4 * N, COUNT * 2 * N, COUNT * 2 * N, (COUNT + 8) * N, (512 + 8) * N};
    rig r;
    (void)arg;
    rig_desc(&r, g);
    rig_open(&r);
    for (int h = 0; h < 5; ++h) {
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
    cdp__quantize_range(a, 3, range);
    T(fabsf(range[0] - 0.0156862754f) < 1e-9f && range[1] == 64);
    cdp__quantize_range(b, 2, range);
    T(fabsf(range[0] - 0.0117647f) < 1e-6f && range[1] == 0);
    cdp__quantize_range(c, 4, range);
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
        CDP_HOOK_FP16, CDP_HOOK_POST_LOCAL_SGD, CDP_HOOK_POWERSGD + 100, CDP_HOOK_QUANTIZE};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; ++i) {
        int kind = kinds[i];
        run_ranks(2, NULL, 0, rank_saves_state, &kind);
    }
}

static void rank_trains_locally(cdp_group *g, void *arg) {
    cdp_averager average;
    cdp_hook_desc d;
    rig r;
    (void)arg;
    rig_desc(&r, g);
    rig_open(&r);
    memset(&d, 0, sizeof d);
    d.kind = CDP_HOOK_POST_LOCAL_SGD;
    d.start = 2;
    const cdp_hook hook = made(d);
    T_EQ(CDP_OK, cdp_ddp_set_hook(r.ddp, &hook));
    memset(&average, 0, sizeof average);
    average.ddp = r.ddp;
    average.warmup = 3;
    average.period = 2;
    REFUSED(CDP_ERR_INVALID, "needs an averager", cdp_averager_step(NULL));
    for (int step = 0; step < 8; ++step) {
        T_EQ(CDP_OK, rig_pass(&r, whole));
        for (uint32_t k = 0; k < COUNT; ++k)
            T((double)grad(&r, 1)[k]
                == (step < 2 ? (double)(float)mean_of(whole, 2, 1, k)
                             : (double)whole(cdp_rank(g), 1, k)));
        r.data[0][0] = (float)cdp_rank(g);
        const uint64_t before = g->issued;
        T_EQ(CDP_OK, cdp_averager_step(&average));
        const bool due = step == 3 || step == 5 || step == 7;
        T_EQ(due ? N : 0, g->issued - before);
        T(r.data[0][0] == (due ? 0.5f : (float)cdp_rank(g)));
    }
    cdp_ddp_destroy(r.ddp);
}

TEST(local_training_and_averages) {
    run_ranks(2, NULL, 0, rank_trains_locally, NULL);
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
    REFUSED(CDP_ERR_INVALID, "desc or out is NULL", cdp_hook_create(NULL, &h));
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

/* ---- optimizers, samplers ---- */

static void add_rank(void *user, uint32_t i, const cdp_param *p, const void *g) {
    (void)g;
    for (uint64_t k = 0; k < p->count; ++k)
        ((float *)p->data)[k] = (float)(100 * *(uint32_t *)user + i);
}

static void rank_owns_a_shard(cdp_group *g, void *arg) {
    uint32_t owner[N] = {1, 0, 2, 1}, rank = cdp_rank(g);
    rig r;
    (void)arg;
    rig_desc(&r, g);
    rig_open(&r);
    T_EQ(CDP_OK, cdp_zero_step(r.ddp, owner, add_rank, &rank));
    for (uint32_t i = 0; i < N; ++i)
        T(r.data[i][0] == (float)(100 * owner[i] + i) && r.data[i][COUNT - 1] == r.data[i][0]);
    owner[2] = 3;
    REFUSED(CDP_ERR_INVALID, "parameter 2 belongs to rank 3",
        cdp_zero_step(r.ddp, owner, add_rank, &rank));
    cdp_ddp_destroy(r.ddp);
}

TEST(sharded_optimizer) {
    static const uint64_t first[3] = {3, 5, 2}, second[3] = {5, 7, 1};
    uint64_t totals[2] = {0, 0};
    uint32_t owner[3];
    cdp_zero_partition(first, 3, 2, totals, owner); /* rank 0: 5; rank 1: 3, 2 */
    T(owner[0] == 1 && owner[1] == 0 && owner[2] == 1);
    cdp_zero_partition(second, 3, 2, totals, owner); /* rank 0: 7; rank 1: 5, 1 */
    T(owner[0] == 1 && owner[1] == 0 && owner[2] == 1);
    run_ranks(3, NULL, 0, rank_owns_a_shard, NULL);
}

static void sampled(uint64_t size, uint32_t n, bool shuffle, bool drop_last, uint64_t seed,
    uint64_t epoch, const uint64_t *want, uint64_t per_rank, int line) {
    for (uint32_t rank = 0; rank < n; ++rank) {
        const cdp_sampler s = {size, n, rank, shuffle, drop_last, seed, epoch, NULL, 0};
        uint64_t got[16];
        test_check(cdp_sampler_count(&s) == per_rank, __FILE__, line, "%llu samples",
            (unsigned long long)cdp_sampler_count(&s));
        test_check(
            cdp_sampler_fill(&s, got) == CDP_OK, __FILE__, line, "%s", cdp_last_error()->text);
        for (uint64_t i = 0; i < per_rank; ++i)
            test_check(got[i] == want[rank * per_rank + i], __FILE__, line,
                "rank %u, sample %llu: %llu", rank, (unsigned long long)i,
                (unsigned long long)got[i]);
    }
}
#define SAMPLED(size, n, shuffle, drop, seed, epoch, per_rank, ...)              \
    do {                                                                         \
        static const uint64_t want_[] = {__VA_ARGS__};                           \
        sampled(size, n, shuffle, drop, seed, epoch, want_, per_rank, __LINE__); \
    } while (0)

TEST(samplers) {
    cdp__mt m;
    cdp__mt_seed(&m, 0);
    T_EQ(2357136044u, cdp__mt_next(&m));
    T_EQ(2546248239u, cdp__mt_next(&m));
    SAMPLED(10, 1, true, false, 0, 0, 10, 4, 1, 7, 5, 3, 9, 0, 8, 6, 2);
    SAMPLED(10, 1, true, false, 0, 1, 10, 5, 6, 1, 2, 0, 8, 9, 3, 7, 4); /* seed + epoch */
    SAMPLED(10, 4, true, false, 0, 0, 3, 4, 3, 6, 1, 9, 2, 7, 0, 4, 5, 8, 1);
    SAMPLED(10, 4, true, true, 0, 0, 2, 4, 3, 1, 9, 7, 0, 5, 8);
    SAMPLED(10, 4, false, false, 0, 0, 3, 0, 4, 8, 1, 5, 9, 2, 6, 0, 3, 7, 1);
    SAMPLED(2, 5, false, false, 0, 0, 1, 0, 1, 0, 1, 0);
    const cdp_sampler none = {0, 2, 0, false, false, 0, 0, NULL, 0};
    uint64_t at;
    REFUSED(CDP_ERR_INVALID, "needs a size", cdp_sampler_fill(&none, &at));
    T_EQ(0, cdp_sampler_count(NULL));
}

/* The ranks of a job change within an epoch: each sample comes once, and the permutation is that of
   the epoch. `dropped`: samples that the last number of ranks does not divide. */
static void sampled_by_changing_ranks(uint64_t size, bool shuffle, bool drop_last) {
    static const uint32_t ranks[6] = {4, 3, 5, 1, 2, 5}, batch = 2;
    uint64_t all[200], got[200], consumed = 0, left = 1;
    uint32_t times[200] = {0}, step = 0, n = 0;
    const cdp_sampler one = {size, 1, 0, shuffle, drop_last, 7, 3, NULL, 0};
    T_EQ(CDP_OK, cdp_sampler_fill(&one, all));
    for (; left; ++step) {
        uint64_t taken = 0;
        n = ranks[step % 6];
        for (uint32_t r = 0; r < n; ++r) {
            const cdp_sampler s = {size, n, r, shuffle, drop_last, 7, 3, NULL, consumed};
            left = cdp_sampler_count(&s);
            T_EQ(CDP_OK, cdp_sampler_fill(&s, got));
            for (uint64_t i = 0; i < left && i < batch; ++i, ++taken) {
                T_EQ(all[(consumed + r + i * n) % size], got[i]);
                ++times[got[i]];
            }
        }
        consumed += taken;
    }
    for (uint64_t i = 0; i < size; ++i) {
        T_EQ(consumed / size + (i < consumed % size), times[all[i]]); /* repeated at the end */
    }
    T(drop_last ? consumed <= size && size - consumed < n : consumed >= size);
}

TEST(samplers_go_on_with_other_ranks) {
    for (uint64_t size = 1; size < 120; size += 7)
        for (uint32_t how = 0; how < 4; ++how)
            sampled_by_changing_ranks(size, how & 1, how & 2);
    const cdp_sampler done = {10, 3, 0, false, false, 0, 0, NULL, 11};
    T_EQ(0, cdp_sampler_count(&done));
}

static float ones(uint32_t rank, uint32_t i, uint32_t k) {
    (void)rank;
    (void)i;
    (void)k;
    return 2;
}

TEST(clipping) {
    cdp_group *g = group_of_one(NULL);
    double norm = 0;
    rig r;
    rig_desc(&r, g);
    rig_open(&r);
    T_EQ(CDP_OK, rig_pass(&r, ones));
    T_EQ(CDP_OK, cdp_ddp_clip(r.ddp, 0, &norm)); /* only measured */
    T(fabs(norm - 2 * sqrt(N * COUNT)) < 1e-9);
    T(grad(&r, 0)[0] == 2);
    T_EQ(CDP_OK, cdp_ddp_clip(r.ddp, norm * 2, NULL));
    T(grad(&r, 0)[0] == 2);
    T_EQ(CDP_OK, cdp_ddp_clip(r.ddp, norm / 4, NULL));
    T(fabsf(grad(&r, 3)[COUNT - 1] - 0.5f) < 1e-6f);
    REFUSED(CDP_ERR_INVALID, "positive", cdp_ddp_clip(r.ddp, -1, NULL));
    cdp_ddp_destroy(r.ddp);
    cdp_group_destroy(g);
}

/* ---- pictures ---- */

static uint32_t times(const char *text, const char *part) {
    uint32_t n = 0;
    for (; (text = strstr(text, part)) != NULL; ++text)
        ++n;
    return n;
}

TEST(a_step_as_a_picture) {
    cdp_group *g = group_of_one(NULL);
    char small[10], *text;
    rig r;
    rig_desc(&r, g);
    r.params[1].name = "a<\"b\"&c>\n";
    rig_open(&r);
    T_EQ(1, cdp_ddp_trace(r.ddp, CDP_TRACE_JSON, small, sizeof small)); /* nothing yet */
    T_EQ(CDP_OK, rig_pass(&r, whole));
    for (int f = 0; f < 2; ++f) {
        const uint64_t need =
            cdp_ddp_trace(r.ddp, f ? CDP_TRACE_SVG : CDP_TRACE_JSON, small, sizeof small);
        T_EQ(9, strlen(small));
        text = (char *)malloc(need);
        T_EQ(need, cdp_ddp_trace(r.ddp, f ? CDP_TRACE_SVG : CDP_TRACE_JSON, text, need));
        T_EQ(need, strlen(text) + 1);
        T_EQ(0, memcmp(text, small, 9));
        T_EQ(N, times(text, f ? ">bucket " : "\"bucket "));
        T_EQ(1, times(text, "a__b__c__"));
        T_EQ(times(text, "{"), times(text, "}"));
        T_EQ(1, times(text, f ? "</svg>" : "]}\n"));
        T_EQ(times(text, "<rect "), times(text, "</rect>"));
        free(text);
    }
    cdp_ddp_destroy(r.ddp);
    cdp_group_destroy(g);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"mistakes_are_sentences", mistakes_are_sentences, 10},
        {"different_settings_are_named", different_settings_are_named, 20},
        {"a_graph_that_is_not_static_is_named", a_graph_that_is_not_static_is_named, 20},
        {"early_end_is_an_error_everywhere_with_join_throw",
            early_end_is_an_error_everywhere_with_join_throw, 20},
        {"flags_travel_inside_buckets", flags_travel_inside_buckets, 20},
        {"buckets_are_the_gradients", buckets_are_the_gradients, 60},
        {"buckets_follow_the_order_of_rank_0_when_no_hook_needs_them",
            buckets_follow_the_order_of_rank_0_when_no_hook_needs_them, 20},
        {"hooks_have_the_published_mathematics", hooks_have_the_published_mathematics, 20},
        {"quantization_vectors", quantization_vectors, 10},
        {"powersgd", powersgd, 20},
        {"errors_are_fed_back", errors_are_fed_back, 20},
        {"numbers_without_a_library", numbers_without_a_library, 20},
        {"topk_threshold", topk_threshold, 20},
        {"hook_state_is_saved_and_loaded", hook_state_is_saved_and_loaded, 20},
        {"local_training_and_averages", local_training_and_averages, 20},
        {"stages_have_groups_of_their_own", stages_have_groups_of_their_own, 30},
        {"mistakes_of_hooks", mistakes_of_hooks, 20},
        {"sharded_optimizer", sharded_optimizer, 20},
        {"samplers", samplers, 20},
        {"samplers_go_on_with_other_ranks", samplers_go_on_with_other_ranks, 20},
        {"clipping", clipping, 20},
        {"a_step_as_a_picture", a_step_as_a_picture, 20},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
