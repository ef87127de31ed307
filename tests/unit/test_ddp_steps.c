/* One training step in detail: which parameters share a bucket, means of f16, which parameters
   were used, buffers of ranks that run out of data, ready() from several threads. */
#define CDP_IMPLEMENTATION
#include "cdp.h"
#include "ranks.h"

static cdp_ddp *opened(const cdp_ddp_desc *desc) {
    cdp_ddp *ddp = NULL;
    test_check(cdp_ddp_create(desc, &ddp) == CDP_OK, __FILE__, __LINE__, "rank %u: %s",
        cdp_rank(desc->group), cdp_last_error()->text);
    return ddp;
}

static cdp_ddp_desc described(cdp_group *g, const cdp_param *params, uint32_t count) {
    cdp_ddp_desc d;
    memset(&d, 0, sizeof d);
    d.group = g;
    d.params = params;
    d.param_count = count;
    return d;
}

static cdp_group *alone(void) {
    cdp_group_desc d;
    cdp_group *g = NULL;
    memset(&d, 0, sizeof d);
    d.world_size = 1;
    T_EQ(CDP_OK, cdp_group_create(&d, &g));
    return g;
}

/* ---- buckets ---- */

/* An explicit size is that of the first bucket, too, as with PyTorch's bucket_cap_mb. */
TEST(an_explicit_bucket_size_is_that_of_the_first_one) {
    enum {
        N = 8,
        MIB = 1 << 20
    };
    /* bucket_bytes, first_bucket_bytes, and the bytes of each bucket in units of 512 KiB */
    static const struct {
        uint64_t bytes, first;
        uint32_t count, units[N];
    } of[4] = {{2 * MIB, 0, 2, {4, 4}}, {2 * MIB, MIB, 3, {2, 4, 2}}, {0, 0, 2, {2, 6}},
        {0, 3 * MIB, 2, {6, 2}}};
    static float data[N][MIB / 8];
    cdp_param params[N];
    cdp_group *g = alone();
    memset(params, 0, sizeof params);
    for (uint32_t i = 0; i < N; ++i) {
        params[i].data = data[i];
        params[i].count = MIB / 8;
    }
    for (uint32_t k = 0; k < 4; ++k) {
        cdp_ddp_desc d = described(g, params, N);
        d.bucket_bytes = of[k].bytes;
        d.first_bucket_bytes = of[k].first;
        cdp_ddp *ddp = opened(&d);
        if (!T_EQ(of[k].count, cdp_ddp_stats_of(ddp).bucket_count)) return;
        for (uint32_t b = 0; b < of[k].count; ++b)
            T_EQ(of[k].units[b] * (MIB / 2), cdp_ddp_bucket(ddp, b).bytes);
        cdp_ddp_destroy(ddp);
    }
    cdp_group_destroy(g);
}

/* Eight parameters of 512 KiB: sizes of the buckets in these units. */
static void bucket_sizes(const cdp_ddp_desc *like, const uint32_t *units, uint32_t n, int line) {
    cdp_ddp *ddp = opened(like);
    test_check(cdp_ddp_stats_of(ddp).bucket_count == n, __FILE__, line, "%u buckets",
        (unsigned)cdp_ddp_stats_of(ddp).bucket_count);
    for (uint32_t b = 0; b < n; ++b)
        test_check(cdp_ddp_bucket(ddp, b).bytes == (uint64_t)units[b] << 19, __FILE__, line,
            "bucket %u has %llu bytes", b, (unsigned long long)cdp_ddp_bucket(ddp, b).bytes);
    cdp_ddp_destroy(ddp);
}

TEST(sizes_of_buckets_are_a_list_and_parameters_may_be_delayed) {
    enum {
        N = 8,
        COUNT = 1 << 17
    };
    static const uint64_t list[3] = {1 << 19, 1 << 20, 3 << 19};
    static const uint32_t listed[4] = {1, 2, 3, 2}, late[4] = {1, 2, 3, 2}, last[2] = {6, 2};
    static float data[N][COUNT];
    cdp_param params[N];
    cdp_group *g = alone();
    cdp_ddp *ddp = NULL;
    memset(params, 0, sizeof params);
    for (uint32_t i = 0; i < N; ++i) {
        params[i].data = data[i];
        params[i].count = COUNT;
    }
    cdp_ddp_desc d = described(g, params, N);
    d.bucket_list = list;
    d.bucket_list_count = 3;
    d.bucket_bytes = 1; /* the list stands in its place */
    bucket_sizes(&d, listed, 4, __LINE__);
    params[7].delayed = params[3].delayed = true; /* 6; 5 and 4; 2, 1 and 0; then 7 and 3 */
    bucket_sizes(&d, late, 4, __LINE__);
    d.bucket_list_count = 0;
    d.bucket_bytes = 3 << 20;
    bucket_sizes(&d, last, 2, __LINE__);
    d.bucket_list_count = 1;
    d.bucket_list = NULL;
    REFUSED(CDP_ERR_INVALID, "desc.bucket_list is NULL", cdp_ddp_create(&d, &ddp));
    cdp_group_destroy(g);
}

static void rank_delays_a_parameter(cdp_group *g, void *arg) {
    static float data[3][3][100];
    const uint32_t me = cdp_rank(g);
    const uint64_t list[2] = {4, 8 + me * (arg != NULL)};
    cdp_param params[3];
    memset(params, 0, sizeof params);
    for (uint32_t i = 0; i < 3; ++i) {
        params[i].data = data[me][i];
        params[i].count = 100;
        params[i].delayed = i == 2;
    }
    cdp_ddp_desc d = described(g, params, 3);
    cdp_ddp *ddp = NULL;
    d.bucket_list = list;
    d.bucket_list_count = 2;
    if (arg) {
        REFUSED(CDP_ERR_MISMATCH, "bucket sizes", cdp_ddp_create(&d, &ddp));
        return;
    }
    ddp = opened(&d);
    for (uint32_t step = 0; step < 3; ++step) {
        T_EQ(CDP_OK, cdp_ddp_backward_begin(ddp));
        for (uint32_t i = 3; i-- > 0;) {
            for (uint32_t k = 0; k < 100; ++k)
                ((float *)cdp_ddp_grad(ddp, i))[k] = (float)(me * 30 + i + k + step);
            T_EQ(CDP_OK, cdp_ddp_ready(ddp, i));
        }
        T_EQ(CDP_OK, cdp_ddp_backward_end(ddp));
        for (uint32_t i = 0; i < 3; ++i)
            for (uint32_t k = 0; k < 100; ++k)
                T_EQ(30 + i + k + step, (uint32_t)((float *)cdp_ddp_grad(ddp, i))[k]);
    }
    cdp_ddp_destroy(ddp);
}

TEST(a_delayed_parameter_has_the_mean_and_lists_are_compared) {
    int other;
    run_ranks(3, NULL, 0, rank_delays_a_parameter, NULL);
    run_ranks(3, NULL, 0, rank_delays_a_parameter, &other);
}

/* ---- functions of the program that fail ---- */

static cdp_status hook_fails(cdp_ddp *ddp, void *user) {
    (void)user;
    return cdp_rank(cdp_ddp_group(ddp)) == 1 ? CDP_ERR_IO : CDP_OK;
}

static cdp_status join_hook_fails(cdp_ddp *ddp, cdp_join_when when, void *user) {
    (void)ddp;
    return when == *(cdp_join_when *)user ? CDP_ERR_IO : CDP_OK;
}

static cdp_status item_fails(void *user) {
    (void)user;
    return CDP_ERR_IO;
}

/* Rank 1 fails without a text: all ranks end at once, with its status. */
static void rank_has_functions_that_fail(cdp_group *g, void *arg) {
    const uint32_t which = *(uint32_t *)arg; /* 0 and 1: of CDP_JOIN_; 2: an item; 3: buffers */
    cdp_join_when when = (cdp_join_when)which;
    float data[4] = {0}, more = 1;
    cdp_param p = {.data = data, .count = 4};
    cdp_ddp_desc d = described(g, &p, 1);
    cdp_status st = CDP_OK;
    cdp_joinable items[2];
    memset(items, 0, sizeof items);
    d.buffer_hook = which == 3 ? hook_fails : NULL;
    d.join = which < 3;
    d.join_hook = which < 2 ? join_hook_fails : NULL;
    d.user = &when;
    cdp_ddp *ddp = opened(&d);
    items[0].ddp = ddp;
    items[1].step = item_fails;
    if (which < 3 && cdp_rank(g) == 1) st = cdp_ddp_join_all(items, which == 2 ? 2 : 1);
    for (uint32_t step = 0; step < 3 && st == CDP_OK; ++step) {
        (void)!cdp_ddp_backward_begin(ddp);
        (void)cdp_ddp_ready(ddp, 0);
        st = cdp_ddp_backward_end(ddp);
    }
    T_EQ(CDP_ERR_IO, st);
    T_TEXT("without saying why", cdp_last_error()->text);
    T_EQ(CDP_ERR_IO, cdp_group_status(g));
    T_EQ(CDP_ERR_IO, cdp_allreduce(g, NULL, &more, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    cdp_ddp_destroy(ddp);
}

TEST(a_function_of_the_program_that_fails_ends_all_ranks) {
    for (uint32_t which = 0; which < 4; ++which)
        run_ranks(2, NULL, 0, rank_has_functions_that_fail, &which);
}

static uint64_t plan_cpu_ns(uint32_t n) {
    cdp_param *params = (cdp_param *)calloc(n, sizeof *params);
    uint32_t *bucket_of = (uint32_t *)calloc(n, sizeof *bucket_of);
    for (uint32_t i = 0; i < n; ++i) {
        params[i].count = 64;
        params[i].dtype = i % 3 ? CDP_DTYPE_F32 : CDP_DTYPE_F64;
    }
    const uint64_t start = test_cpu_ns();
    const uint64_t one = 1;
    T(cdp__bucket_plan_make(params, n, &one, 1, bucket_of) == n);
    const uint64_t took = test_cpu_ns() - start;
    for (uint32_t i = 0; i < n; ++i)
        if (!T_EQ(n - 1 - i, bucket_of[i])) break;
    free(params);
    free(bucket_of);
    return took;
}

/* Twenty times as many parameters take twenty times as long, not four hundred times. */
TEST(many_parameters_are_planned_in_linear_time) {
    const uint64_t few = plan_cpu_ns(20000), many = plan_cpu_ns(400000);
    printf("  20,000 parameters %.2f ms, 400,000 parameters %.2f ms\n", (double)few / 1e6,
        (double)many / 1e6);
    T_WITHIN(200, many);
}

/* ---- memory ---- */

static struct { uint64_t held, peak; } bytes;

static void *measured_alloc(void *user, uint64_t n) {
    uint8_t *p = (uint8_t *)cdp_os_default()->alloc(user, n + 64); /* aligned to 64 bytes */
    if (!p) return NULL;
    memcpy(p, &n, sizeof n);
    bytes.held += n;
    if (bytes.held > bytes.peak) bytes.peak = bytes.held;
    return p + 64;
}
static void measured_release(void *user, void *p) {
    uint64_t n;
    if (!p) return;
    memcpy(&n, (uint8_t *)p - 64, sizeof n);
    bytes.held -= n;
    cdp_os_default()->release(user, (uint8_t *)p - 64);
}

/* What the head of cdp.h says under MEMORY. */
TEST(memory_is_the_gradients_and_a_quarter_kilobyte_per_parameter) {
    enum {
        N = 200,
        COUNT = 20000
    };
    const uint64_t gradients = (uint64_t)N * COUNT * 4, lists = 256 * N + 4096;
    float *data = (float *)calloc((size_t)N * COUNT, 4);
    cdp_param params[N];
    cdp_group_desc gd;
    cdp_group *g = NULL;
    cdp_os os = *cdp_os_default();
    os.alloc = measured_alloc;
    os.release = measured_release;
    memset(&gd, 0, sizeof gd);
    gd.world_size = 1;
    gd.no_thread = true;
    gd.os = &os;
    T_EQ(CDP_OK, cdp_group_create(&gd, &g));
    memset(params, 0, sizeof params);
    for (uint32_t i = 0; i < N; ++i) {
        params[i].data = data + (size_t)i * COUNT; /* too large to be broadcast together */
        params[i].count = COUNT;
    }
    cdp_ddp_desc d = described(g, params, N);
    d.rebuild = true;
    const uint64_t before = bytes.held;
    cdp_ddp *ddp = opened(&d);
    const uint64_t held = bytes.held - before;
    printf("  %llu bytes of gradients, %.0f bytes per parameter beside them\n",
        (unsigned long long)gradients, (double)(held - gradients) / N);
    T(held >= gradients && held <= gradients + lists);
    bytes.peak = bytes.held;
    for (uint32_t step = 0; step < 3; ++step) {
        T_EQ(CDP_OK, cdp_ddp_backward_begin(ddp));
        for (uint32_t i = 0; i < N; ++i)
            T_EQ(CDP_OK, cdp_ddp_ready(ddp, i));
        T_EQ(CDP_OK, cdp_ddp_backward_end(ddp));
    }
    T(cdp_ddp_stats_of(ddp).rebuilt);
    T(bytes.peak - before <= 2 * gradients + 2 * lists);
    T(bytes.held - before <= gradients + lists + 65536); /* the group's queue may have grown */
    cdp_ddp_destroy(ddp);
    cdp_group_destroy(g);
    T_EQ(0, bytes.held);
    free(data);
}

/* ---- sparse parameters ---- */

TEST(a_sparse_parameter_has_no_dense_gradient) {
    float table[40] = {0}, bias[4] = {0};
    cdp_param params[2];
    cdp_group *g = alone();
    memset(params, 0, sizeof params);
    params[0].name = "embed";
    params[0].data = table;
    params[0].count = 40;
    params[0].rows = 10;
    params[0].sparse = true;
    params[1].data = bias;
    params[1].count = 4;
    const cdp_ddp_desc d = described(g, params, 2);
    cdp_ddp *ddp = opened(&d);
    T(cdp_ddp_grad(ddp, 0) == NULL);
    T_TEXT("'embed' (index 0) is sparse", cdp_last_error()->text);
    T(cdp_ddp_grad(ddp, 1) != NULL);
    T(cdp_ddp_grad(ddp, 2) == NULL);
    T_TEXT("it should be less than param_count, 2", cdp_last_error()->text);
    T_EQ(CDP_OK, cdp_ddp_backward_begin(ddp));
    T_EQ(CDP_OK, cdp_ddp_ready(ddp, 1));
    T_EQ(CDP_OK, cdp_ddp_ready_rows(ddp, 0, NULL, 0, NULL));
    T_EQ(CDP_OK, cdp_ddp_backward_end(ddp));
    cdp_ddp_destroy(ddp);
    cdp_group_destroy(g);
}

static void rank_has_rows_without_allocating(cdp_group *g, void *arg) {
    static float table[4][2][64 * 8];
    const float values[16 * 8] = {0};
    uint32_t rows[16];
    int64_t before = 0;
    cdp_param params[2];
    (void)arg;
    memset(params, 0, sizeof params);
    for (uint32_t i = 0; i < 2; ++i) {
        params[i].data = table[cdp_rank(g)][i];
        params[i].count = 64 * 8;
        params[i].rows = 64;
        params[i].sparse = true;
    }
    const cdp_ddp_desc d = described(g, params, 2);
    cdp_ddp *ddp = opened(&d);
    /* a group has 16 places for operations, each of which keeps memory for parts */
    for (uint32_t step = 0; step < 40; ++step) {
        T_EQ(CDP_OK, cdp_barrier(g));
        if (step == 20) before = counted.calls;
        T_EQ(CDP_OK, cdp_barrier(g));
        T_EQ(CDP_OK, cdp_ddp_backward_begin(ddp));
        for (uint32_t i = 0; i < 2; ++i) {
            for (uint32_t k = 0; k < 16; ++k)
                rows[k] = (k * 3 + cdp_rank(g) * 11) % 64;
            T_EQ(CDP_OK, cdp_ddp_ready_rows(ddp, i, rows, 16 - step % 4, values));
        }
        T_EQ(CDP_OK, cdp_ddp_backward_end(ddp));
    }
    T_EQ(CDP_OK, cdp_barrier(g));
    T_EQ(before, counted.calls);
    T_EQ(CDP_OK, cdp_barrier(g));
    cdp_ddp_destroy(ddp);
}

TEST(steps_with_rows_allocate_nothing) {
    cdp_group_desc like;
    memset(&like, 0, sizeof like);
    like.os = counted_os();
    run_ranks(3, &like, 0, rank_has_rows_without_allocating, NULL);
    T_EQ(0, counted.held);
}

/* ---- f16 ---- */

static void half_put(uint16_t *p, uint32_t k, double v) {
    float wide[CDP__BLOCK] = {(float)v};
    uint16_t half[CDP__BLOCK];
    cdp__narrow_block(CDP_DTYPE_F16, wide, half);
    p[k] = half[0];
}
static double half_get(const uint16_t *p, uint32_t k) {
    uint16_t half[CDP__BLOCK] = {p[k]};
    float wide[CDP__BLOCK];
    cdp__widen_block(CDP_DTYPE_F16, half, wide);
    return (double)wide[0];
}

#define TINY 5.9604644775390625e-8 /* 2^-24, the smallest f16 */

/* Each rank brings value[k] plus its number times slope[k]; afterwards the gradient is mean[k]. */
typedef struct halves {
    uint32_t n;
    double divisor, predivide;
    double value[4], slope[4], mean[4];
} halves;

static void rank_means_halves(cdp_group *g, void *arg) {
    const halves *h = (const halves *)arg;
    uint16_t data[4] = {0};
    cdp_param param;
    memset(&param, 0, sizeof param);
    param.data = data;
    param.count = 4;
    param.dtype = CDP_DTYPE_F16;
    cdp_ddp_desc d = described(g, &param, 1);
    d.divisor = h->divisor;
    d.predivide = h->predivide;
    cdp_ddp *ddp = opened(&d);
    uint16_t *grad = (uint16_t *)cdp_ddp_grad(ddp, 0);
    for (uint32_t k = 0; k < 4; ++k)
        half_put(grad, k, h->value[k] + h->slope[k] * cdp_rank(g));
    T_EQ(CDP_OK, cdp_ddp_backward_begin(ddp));
    T_EQ(CDP_OK, cdp_ddp_ready(ddp, 0));
    T_EQ(CDP_OK, cdp_ddp_backward_end(ddp));
    for (uint32_t k = 0; k < 4; ++k) {
        const double got = half_get(grad, k);
        test_check(got == h->mean[k], __FILE__, __LINE__,
            "rank %u/%u: mean %u is %g, not %g (divisor %g, predivide %g)", cdp_rank(g), h->n, k,
            got, h->mean[k], h->divisor, h->predivide);
    }
    cdp_ddp_destroy(ddp);
}

/* Sums of f16 beyond 65504 are infinite, so gradients are divided first: the mean of large ones is
   finite. What that costs: below 2^-24 times the number of ranks, a mean may round to zero, as in
   PyTorch; .predivide = 1 divides afterwards. */
TEST(means_of_f16_do_not_overflow) {
    static const halves all[] = {
        {2, 0, 0, {60000, -60000, 65504, 1}, {0, 0, 0, 1}, {60000, -60000, 65504, 1.5}},
        {4, 0, 0, {60000, -65504, 2, 3}, {0, 0, 2, 0}, {60000, -65504, 5, 3}},
        /* infinite without it: the sum is */
        {2, 0, 1, {60000, -60000, 2, 1}, {0, 0, 2, 1}, {INFINITY, -INFINITY, 3, 1.5}},
        /* an explicit divisor counts for it, too; 1 asks for the sum itself */
        {2, 4, 0, {60000, 4, 2, 1}, {0, 0, 2, 1}, {30000, 2, 1.5, 0.75}},
        {2, 1, 0, {60000, 4, 2, 1}, {0, 0, 2, 1}, {INFINITY, 8, 6, 3}},
    };
    for (uint32_t k = 0; k < sizeof all / sizeof *all; ++k) {
        halves h = all[k];
        run_ranks(h.n, NULL, 0, rank_means_halves, &h);
    }
}

TEST(means_of_f16_below_the_normal_range) {
    static const halves all[] = {
        /* halves of an odd multiple of 2^-24 round to even before they are added */
        {2, 0, 0, {TINY, 2 * TINY, 3 * TINY, 1024 * TINY}, {0, 0, 0, 0},
            {0, 2 * TINY, 4 * TINY, 1024 * TINY}},
        {4, 0, 0, {4 * TINY, 8 * TINY, 1 * TINY, 2 * TINY}, {0, 4 * TINY, 0, 0},
            {4 * TINY, 14 * TINY, 0, 0}},
        /* divided afterwards, sums are exact here */
        {2, 0, 1, {TINY, 2 * TINY, 3 * TINY, 1024 * TINY}, {0, 0, 0, 0},
            {TINY, 2 * TINY, 3 * TINY, 1024 * TINY}},
    };
    for (uint32_t k = 0; k < sizeof all / sizeof *all; ++k) {
        halves h = all[k];
        run_ranks(h.n, NULL, 0, rank_means_halves, &h);
    }
}

/* ---- which parameters were used ---- */

/* In pass `step` rank r uses parameter i when this says so; parameter 3 is never used. */
static bool uses(uint32_t step, uint32_t rank, uint32_t i) {
    return i < 3 && (i == 0 || (step + rank) % 4 == i);
}

static void rank_asks_what_was_used(cdp_group *g, void *arg) {
    const uint32_t n = cdp_size(g), me = cdp_rank(g);
    float data[4][3] = {{0}};
    cdp_param params[4];
    (void)arg;
    memset(params, 0, sizeof params);
    for (uint32_t i = 0; i < 4; ++i) {
        params[i].data = data[i];
        params[i].count = 3;
    }
    cdp_ddp_desc d = described(g, params, 4);
    d.find_unused = true;
    cdp_ddp *ddp = opened(&d);
    for (uint32_t i = 0; i < 5; ++i)
        T(!cdp_ddp_used(ddp, i)); /* no pass so far */
    for (uint32_t step = 0; step < 8; ++step) {
        T_EQ(CDP_OK, cdp_ddp_backward_begin(ddp));
        for (uint32_t i = 4; i-- > 0;)
            if (uses(step, me, i)) T_EQ(CDP_OK, cdp_ddp_ready(ddp, i));
        T_EQ(CDP_OK, cdp_ddp_backward_end(ddp));
        for (uint32_t i = 0; i < 5; ++i) {
            bool any = false;
            for (uint32_t r = 0; r < n; ++r)
                any = any || uses(step, r, i);
            test_check(cdp_ddp_used(ddp, i) == any, __FILE__, __LINE__,
                "rank %u, step %u: parameter %u is %sused", me, step, i, any ? "" : "not ");
        }
    }
    cdp_ddp_destroy(ddp);
    /* without find_unused every parameter is used */
    d.find_unused = false;
    ddp = opened(&d);
    T_EQ(CDP_OK, cdp_ddp_backward_begin(ddp));
    for (uint32_t i = 0; i < 4; ++i)
        T_EQ(CDP_OK, cdp_ddp_ready(ddp, i));
    T_EQ(CDP_OK, cdp_ddp_backward_end(ddp));
    for (uint32_t i = 0; i < 5; ++i)
        T(cdp_ddp_used(ddp, i) == (i < 4));
    T(!cdp_ddp_used(NULL, 0));
    cdp_ddp_destroy(ddp);
}

TEST(used_parameters_are_known_on_every_rank) {
    for (uint32_t n = 1; n <= 3; ++n)
        run_ranks(n, NULL, 0, rank_asks_what_was_used, NULL);
}

/* ---- buffers of ranks that run out of data ---- */

/* Rank r has 4 - r batches and brings its own number in every step. */
static void rank_brings_buffers(cdp_group *g, void *arg) {
    const uint32_t n = cdp_size(g), me = cdp_rank(g), steps = 4 - me;
    float data[2] = {0};
    int64_t mean[2] = {0};
    cdp_param param;
    cdp_buffer buffer;
    (void)arg;
    memset(&param, 0, sizeof param);
    memset(&buffer, 0, sizeof buffer);
    param.data = data;
    param.count = 2;
    buffer.data = mean;
    buffer.count = 2;
    buffer.dtype = CDP_DTYPE_I64;
    cdp_ddp_desc d = described(g, &param, 1);
    d.buffers = &buffer;
    d.buffer_count = 1;
    d.join = true;
    cdp_ddp *ddp = opened(&d);
    for (uint32_t step = 0; step < steps; ++step) {
        uint32_t highest = 0;
        for (uint32_t r = 0; r < n; ++r)
            if (4 - r > step) highest = r;
        mean[0] = mean[1] = me * 100 + step;
        T_EQ(CDP_OK, cdp_ddp_forward_begin(ddp));
        T_EQ(highest * 100 + step, mean[0]);
        T_EQ(highest * 100 + step, mean[1]);
        T_EQ(CDP_OK, cdp_ddp_backward_begin(ddp));
        T_EQ(CDP_OK, cdp_ddp_ready(ddp, 0));
        T_EQ(CDP_OK, cdp_ddp_backward_end(ddp));
        mean[0] = mean[1] = me * 1000;
    }
    T_EQ(CDP_OK, cdp_ddp_join(ddp));
    T_EQ(0, mean[0]); /* rank 0 had data last */
    cdp_ddp_destroy(ddp);
}

TEST(buffers_come_from_the_highest_rank_active_now) {
    for (uint32_t n = 1; n <= 4; ++n)
        run_ranks(n, NULL, 0, rank_brings_buffers, NULL);
}

/* ---- ready() from several threads ---- */

enum {
    THREADS = 3,
    PARAMS = 60,
    VALUES = 33
};

/* A rank whose backward pass runs in several threads. */
typedef struct busy {
    cdp_ddp *ddp;
    uint32_t rank, step;
    float *own; /* gradients in the caller's own arrays; NULL: in the buckets */
} busy;
typedef struct busy_thread {
    busy *of;
    uint32_t number;
    cdp_status status;
} busy_thread;

static float busy_value(uint32_t rank, uint32_t step, uint32_t i, uint32_t k) {
    return (float)((rank * 7 + step * 5 + i * 3 + k) % 64);
}

/* Parameter 0 is sparse; every seventh other one is left out. */
static cdp_status busy_param(busy *b, uint32_t i) {
    float values[VALUES];
    const uint32_t row = b->rank;
    float *at = values;
    if (i) at = b->own ? b->own + i * VALUES : (float *)cdp_ddp_grad(b->ddp, i);
    for (uint32_t k = 0; k < VALUES; ++k)
        at[k] = busy_value(b->rank, b->step, i, k);
    if (!i) return cdp_ddp_ready_rows(b->ddp, 0, &row, 1, values);
    return i % 7 ? cdp_ddp_ready(b->ddp, i) : cdp_ddp_unused(b->ddp, i);
}

static void *busy_main(void *p) {
    busy_thread *t = (busy_thread *)p;
    for (uint32_t i = PARAMS; i-- > 0 && t->status == CDP_OK;)
        if ((i + t->of->step) % THREADS == t->number) t->status = busy_param(t->of, i);
    return NULL;
}

static void busy_backward(busy *b) {
    busy_thread t[THREADS];
    pthread_t id[THREADS];
    for (uint32_t k = 0; k < THREADS; ++k) {
        t[k].of = b;
        t[k].number = k;
        t[k].status = CDP_OK;
        if (pthread_create(&id[k], NULL, busy_main, &t[k]) != 0) abort();
    }
    for (uint32_t k = 0; k < THREADS; ++k) {
        pthread_join(id[k], NULL);
        T_EQ(CDP_OK, t[k].status);
    }
}

static void busy_check(const busy *b, uint32_t n) {
    const cdp_rows rows = cdp_ddp_rows(b->ddp, 0);
    T_EQ(n, rows.count);
    for (uint32_t i = 0; i < PARAMS; ++i) {
        const float *at = b->own ? b->own + i * VALUES : (const float *)cdp_ddp_grad(b->ddp, i);
        T(cdp_ddp_used(b->ddp, i) == (!i || i % 7 != 0));
        for (uint32_t k = 0; k < VALUES; ++k) {
            float sum = 0;
            for (uint32_t r = 0; r < n; ++r)
                sum += busy_value(r, b->step, i, k);
            if (!i) {
                const float *values = (const float *)rows.values + rows.rows[k % n] * VALUES;
                sum = busy_value(rows.rows[k % n], b->step, 0, k);
                if (!T(values[k] == sum / (float)n)) return;
            } else if (i % 7 && !T(at[k] == sum / (float)n)) {
                return;
            }
        }
    }
}

typedef struct busy_setup {
    bool own, hook;
} busy_setup;

static void rank_is_busy(cdp_group *g, void *arg) {
    const busy_setup *s = (const busy_setup *)arg;
    float *data = (float *)calloc(2 * PARAMS * VALUES + RANKS_MAX * VALUES, sizeof *data);
    cdp_param params[PARAMS];
    cdp_hook_desc h;
    cdp_hook hook;
    busy b;
    memset(params, 0, sizeof params);
    memset(&b, 0, sizeof b);
    memset(&h, 0, sizeof h);
    b.rank = cdp_rank(g);
    if (s->own) b.own = data + PARAMS * VALUES;
    for (uint32_t i = 0; i < PARAMS; ++i) {
        params[i].data = data + i * VALUES;
        params[i].count = VALUES;
        if (i && s->own) params[i].grad = b.own + i * VALUES;
    }
    params[0].sparse = true;
    params[0].rows = cdp_size(g);
    params[0].count = cdp_size(g) * VALUES;
    params[0].data = data + 2 * PARAMS * VALUES;
    cdp_ddp_desc d = described(g, params, PARAMS);
    d.find_unused = true;
    d.bucket_bytes = 3 * VALUES * 4;
    b.ddp = opened(&d);
    T_EQ(CDP_OK, cdp_hook_create(&h, &hook)); /* divide, then sum */
    if (s->hook)
        T_EQ(CDP_OK, cdp_ddp_set_hook(b.ddp, &hook));
    else
        hook.destroy(hook.self);
    for (b.step = 0; b.step < 60 && !test__now.failed_checks; ++b.step) {
        if (!T_EQ(CDP_OK, cdp_ddp_backward_begin(b.ddp))) break;
        busy_backward(&b);
        if (!T_EQ(CDP_OK, cdp_ddp_backward_end(b.ddp))) break;
        busy_check(&b, cdp_size(g));
    }
    cdp_ddp_destroy(b.ddp);
    free(data);
}

TEST(several_threads_of_a_rank_report_gradients) {
    cdp_group_desc like;
    memset(&like, 0, sizeof like);
    for (uint32_t k = 0; k < 8; ++k) {
        busy_setup s;
        s.own = k & 1;
        s.hook = k & 2;
        like.no_thread = k & 4;
        run_ranks(2, &like, 0, rank_is_busy, &s);
    }
}

/* One parameter from two threads at once: exactly one of them is refused. */
static uint32_t refused;
static void *reports_again(void *p) {
    const cdp_status st = cdp_ddp_ready((cdp_ddp *)p, 1);
    if (st == CDP_ERR_STATE) __atomic_add_fetch(&refused, 1, __ATOMIC_SEQ_CST);
    return NULL;
}
TEST(one_of_two_threads_with_one_parameter_is_refused) {
    float data[4] = {0};
    cdp_param params[2];
    pthread_t id[2];
    memset(params, 0, sizeof params);
    params[0].data = data;
    params[1].data = data + 2;
    params[0].count = params[1].count = 2;
    for (uint32_t run = 0; run < 200; ++run) {
        cdp_group *g = alone();
        const cdp_ddp_desc d = described(g, params, 2);
        cdp_ddp *ddp = opened(&d);
        refused = 0;
        T_EQ(CDP_OK, cdp_ddp_backward_begin(ddp));
        for (uint32_t k = 0; k < 2; ++k)
            if (pthread_create(&id[k], NULL, reports_again, ddp) != 0) abort();
        for (uint32_t k = 0; k < 2; ++k)
            pthread_join(id[k], NULL);
        T_EQ(1, refused);
        REFUSED(CDP_ERR_STATE, "marked ready twice", cdp_ddp_backward_end(ddp));
        cdp_ddp_destroy(ddp);
        cdp_group_destroy(g);
        if (test__now.failed_checks) return;
    }
}

/* A function given to cdp_work_then() may report a gradient: also inside another ready() that lets
   communication advance. */
typedef struct later {
    cdp_ddp *ddp;
    uint32_t index;
} later;
static cdp_status reports_later(void *user, cdp_status st) {
    const later *l = (const later *)user;
    return st == CDP_OK ? cdp_ddp_ready(l->ddp, l->index) : st;
}
static void rank_reports_later(cdp_group *g, void *arg) {
    enum {
        N = 6
    };
    float data[N][4] = {{0}}, number[N] = {0};
    cdp_work done[N], work;
    cdp_param params[N];
    later l[N];
    (void)arg;
    memset(params, 0, sizeof params);
    for (uint32_t i = 0; i < N; ++i) {
        params[i].data = data[i];
        params[i].count = 4;
    }
    cdp_ddp_desc d = described(g, params, N);
    d.bucket_bytes = 16;
    cdp_ddp *ddp = opened(&d);
    for (uint32_t step = 0; step < 20; ++step) {
        T_EQ(CDP_OK, cdp_ddp_backward_begin(ddp));
        for (uint32_t i = 0; i < N; ++i) {
            ((float *)cdp_ddp_grad(ddp, i))[0] = (float)(step + i);
            l[i].ddp = ddp;
            l[i].index = i;
        }
        for (uint32_t i = N; i-- > 0;) {
            memset(&done[i], 0, sizeof done[i]);
            if (i % 2) {
                T_EQ(CDP_OK,
                    cdp_allreduce_async(
                        g, NULL, &number[i], 1, CDP_DTYPE_F32, CDP_REDUCE_SUM, &work));
                T_EQ(CDP_OK, cdp_work_then(work, reports_later, &l[i], &done[i]));
            } else {
                T_EQ(CDP_OK, cdp_ddp_ready(ddp, i));
            }
        }
        for (uint32_t i = 1; i < N; i += 2)
            T_EQ(CDP_OK, cdp_work_wait(done[i]));
        T_EQ(CDP_OK, cdp_ddp_backward_end(ddp));
        for (uint32_t i = 0; i < N; ++i)
            T(((float *)cdp_ddp_grad(ddp, i))[0] == (float)(step + i));
    }
    cdp_ddp_destroy(ddp);
}
TEST(functions_of_works_report_gradients) {
    cdp_group_desc like;
    memset(&like, 0, sizeof like);
    for (uint32_t k = 0; k < 2; ++k) {
        like.no_thread = k;
        run_ranks(1, &like, 0, rank_reports_later, NULL);
    }
}

/* ---- another group ---- */

enum {
    REBOUND = 7
};

typedef struct rebinding {
    bool find_unused, static_graph, rebuild, join, rows, fails;
} rebinding;

typedef struct rebound {
    float data[REBOUND][6], own[6], buffer[2];
    cdp_param params[REBOUND];
    cdp_buffer buffers[1];
    cdp_ddp_desc desc;
} rebound;

static void rebound_open(rebound *r, cdp_group *g, const rebinding *how) {
    memset(r, 0, sizeof *r);
    for (uint32_t i = 0; i < REBOUND; ++i) {
        r->params[i].data = r->data[i];
        r->params[i].count = 6;
    }
    r->params[2].grad = r->own;
    r->params[4].rows = 3;
    r->params[4].sparse = how->rows;
    r->buffers[0].data = r->buffer;
    r->buffers[0].count = 2;
    r->desc = described(g, r->params, REBOUND);
    r->desc.buffers = r->buffers;
    r->desc.buffer_count = 1;
    r->desc.bucket_bytes = 60;
    r->desc.find_unused = how->find_unused;
    r->desc.static_graph = how->static_graph;
    r->desc.rebuild = how->rebuild;
    r->desc.join = how->join;
}

/* One pass; what depends on the ddp goes into `out`. */
static void rebound_step(cdp_ddp *ddp, rebound *r, uint32_t who, uint32_t step, float *out) {
    static const uint32_t row[2] = {2, 0};
    cdp_rows rows;
    r->buffer[0] = (float)(who + step);
    T_EQ(CDP_OK, cdp_ddp_backward_begin(ddp));
    for (uint32_t i = 0; i < REBOUND; ++i) {
        const uint32_t at = (i * 3 + 1) % REBOUND; /* another order than that of the list */
        float g[6];
        for (uint32_t k = 0; k < 6; ++k)
            g[k] = (float)(1 + who * 7 + at) / (float)(3 + k + step);
        if (r->desc.find_unused && at == 5 && (who + step) % 2)
            T_EQ(CDP_OK, cdp_ddp_unused(ddp, at));
        else if (r->params[at].sparse)
            T_EQ(CDP_OK, cdp_ddp_ready_rows(ddp, at, row, 2, g));
        else {
            memcpy(r->params[at].grad ? r->params[at].grad : cdp_ddp_grad(ddp, at), g, sizeof g);
            T_EQ(CDP_OK, cdp_ddp_ready(ddp, at));
        }
    }
    T_EQ(CDP_OK, cdp_ddp_backward_end(ddp));
    for (uint32_t i = 0; i < REBOUND; ++i, out += 6) {
        const void *from = r->params[i].grad ? r->params[i].grad : NULL;
        memset(out, 0, 24);
        if (!from && !r->params[i].sparse) from = cdp_ddp_grad(ddp, i);
        rows = cdp_ddp_rows(ddp, i);
        if (r->params[i].sparse) from = rows.values;
        memcpy(out, from, r->params[i].sparse ? 4 * rows.count * rows.width : 24);
    }
    memcpy(out, r->buffer, 8);
}

static cdp_group *part_of(cdp_group *g, uint32_t n) {
    const uint32_t ranks[4] = {3, 0, 2, 1};
    cdp_group *part = NULL;
    if (n == 4 || cdp_rank(g) != ranks[n]) T_EQ(CDP_OK, cdp_group_new(g, ranks, n, &part));
    return part;
}

/* Ranks 3, 0 and 2 train in a group; rank 1 comes, and they go on in a group of four, three and
   four. Beside it a ddp that is new in each of these groups: the same bits. */
static void rank_rebinds(cdp_group *g, void *arg) {
    const rebinding *how = (const rebinding *)arg;
    const uint32_t who = cdp_rank(g), sizes[4] = {3, 4, 3, 4};
    float got[6 * REBOUND + 2], want[6 * REBOUND + 2];
    cdp_group *before = NULL;
    rebound a, b;
    cdp_ddp *ddp = NULL;
    rebound_open(&a, NULL, how);
    for (uint32_t round = 0; round < 4; ++round) {
        cdp_group *part = part_of(g, sizes[round]);
        cdp_ddp *fresh;
        if (who == 1 && sizes[round] == 3) {
            cdp_ddp_destroy(ddp);
            ddp = NULL;
            cdp_group_destroy(before);
            before = NULL;
            continue;
        }
        a.desc.group = part;
        a.desc.no_broadcast = round > 0;
        if (ddp)
            T_EQ(CDP_OK, cdp_ddp_rebind(ddp, part));
        else
            ddp = opened(&a.desc);
        cdp_group_destroy(before);
        before = part;
        T(cdp_ddp_group(ddp) == part);
        T_EQ(0, cdp_ddp_stats_of(ddp).steps);
        rebound_open(&b, part, how);
        b.desc.no_broadcast = true;
        fresh = opened(&b.desc);
        for (uint32_t step = 0; step < 4; ++step) {
            rebound_step(ddp, &a, who, step, got);
            rebound_step(fresh, &b, who, step, want);
            T(memcmp(got, want, sizeof got) == 0);
        }
        T_EQ(cdp_ddp_stats_of(fresh).bucket_count, cdp_ddp_stats_of(ddp).bucket_count);
        cdp_ddp_destroy(fresh);
        if (!how->fails || round == 3) continue;
        /* somebody is lost in the middle of a pass */
        T_EQ(CDP_OK, cdp_ddp_backward_begin(ddp));
        T_EQ(CDP_OK, cdp_ddp_ready(ddp, 6));
        (void)cdp_group_abort(part, "somebody is lost");
    }
    cdp_ddp_destroy(ddp);
    cdp_group_destroy(before);
}

TEST(a_ddp_goes_on_in_another_group) {
    static const rebinding how[] = {{.fails = false}, {.find_unused = true}, {.static_graph = true},
        {.rebuild = true}, {.join = true}, {.rows = true}, {.fails = true},
        {.rebuild = true, .rows = true, .find_unused = true, .fails = true}};
    for (uint32_t i = 0; i < sizeof how / sizeof *how; ++i)
        run_counted(4, rank_rebinds, (void *)(uintptr_t)&how[i]);
}

static cdp_status no_stage(void *self, cdp_bucket *b, uint32_t stage, cdp_request *op) {
    (void)self;
    (void)b;
    (void)stage;
    (void)op;
    return CDP_OK;
}

TEST(mistakes_in_another_group) {
    static const rebinding how;
    cdp_group *g = alone(), *other = alone();
    const cdp_hook hook = {.stage = no_stage}, two = {.stage = no_stage, .operations = 2};
    const cdp_group_desc d = {.world_size = 1, .os = counted_os()};
    cdp_group *counting, *last = alone();
    rebound r;
    cdp_ddp *ddp;
    rebound_open(&r, g, &how);
    ddp = opened(&r.desc);
    REFUSED(CDP_ERR_INVALID, " is NULL", cdp_ddp_rebind(NULL, g));
    REFUSED(CDP_ERR_INVALID, "group is NULL", cdp_ddp_rebind(ddp, NULL));
    T_EQ(CDP_OK, cdp_group_create(&d, &counting));
    REFUSED(CDP_ERR_INVALID, "another cdp_os", cdp_ddp_rebind(ddp, counting));
    T_EQ(CDP_OK, cdp_ddp_backward_begin(ddp));
    REFUSED(CDP_ERR_STATE, "a backward pass is open", cdp_ddp_rebind(ddp, other));
    T(cdp_ddp_group(ddp) == g);
    (void)cdp_group_abort(g, "it fails");
    T_EQ(CDP_OK, cdp_ddp_rebind(ddp, other));
    T_EQ(CDP_OK, cdp_ddp_set_hook(ddp, &hook));
    REFUSED(CDP_ERR_UNSUPPORTED, "a hook was set", cdp_ddp_rebind(ddp, g));
    /* a hook that was removed leaves nothing of the former group */
    T_EQ(CDP_OK, cdp_ddp_set_hook(ddp, &two));
    T_EQ(CDP_OK, cdp_ddp_set_hook(ddp, NULL));
    T_EQ(CDP_OK, cdp_ddp_rebind(ddp, last));
    T(!ddp->groups[1]);
    cdp_ddp_destroy(ddp);
    cdp_group_destroy(counting);
    cdp_group_destroy(g);
    cdp_group_destroy(other);
    cdp_group_destroy(last);
}

/* Each allocation fails once; then it works in a later group, or ends in good order. */
TEST(another_group_without_memory) {
    static const rebinding how = {.rows = true};
    const cdp_group_desc d = {.world_size = 1, .os = counted_os()};
    cdp_status st = CDP_ERR_NOMEM;
    for (int64_t n = 1; n < 100 && st != CDP_OK; ++n) {
        cdp_group *g[3];
        rebound r;
        for (uint32_t i = 0; i < 3; ++i)
            T_EQ(CDP_OK, cdp_group_create(&d, &g[i]));
        rebound_open(&r, g[0], &how);
        cdp_ddp *ddp = opened(&r.desc);
        counted.fail_at = counted.calls + n;
        st = cdp_ddp_rebind(ddp, g[1]);
        counted.fail_at = 0;
        if (st != CDP_OK) {
            T_EQ(CDP_ERR_NOMEM, st);
            T(cdp_ddp_backward_begin(ddp) != CDP_OK);
            if (n % 2) T_EQ(CDP_OK, cdp_ddp_rebind(ddp, g[2]));
        }
        cdp_ddp_destroy(ddp);
        for (uint32_t i = 0; i < 3; ++i)
            cdp_group_destroy(g[i]);
    }
    T_EQ(CDP_OK, st);
    T_EQ(0, counted.held);
}

static void rank_differs(cdp_group *g, void *arg) {
    static const rebinding how;
    const uint32_t who = cdp_rank(g);
    cdp_group *part = part_of(g, 3);
    cdp_ddp *ddp = NULL;
    rebound r;
    (void)arg;
    rebound_open(&r, part, &how);
    if (part) ddp = opened(&r.desc);
    r.desc.group = g;
    r.params[1].count = 5;
    if (part)
        T_EQ(CDP_ERR_MISMATCH, cdp_ddp_rebind(ddp, g));
    else {
        r.desc.no_broadcast = true;
        T_EQ(CDP_ERR_MISMATCH, cdp_ddp_create(&r.desc, &ddp));
    }
    T_TEXT("ranks have different models: parameter 1", cdp_last_error()->text);
    T(who != 1 || !ddp);
    cdp_ddp_destroy(ddp);
    cdp_group_destroy(part);
}

TEST(another_group_has_another_model) {
    run_counted(4, rank_differs, NULL);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"an_explicit_bucket_size_is_that_of_the_first_one",
            an_explicit_bucket_size_is_that_of_the_first_one, 20},
        {"sizes_of_buckets_are_a_list_and_parameters_may_be_delayed",
            sizes_of_buckets_are_a_list_and_parameters_may_be_delayed, 20},
        {"a_function_of_the_program_that_fails_ends_all_ranks",
            a_function_of_the_program_that_fails_ends_all_ranks, 20},
        {"a_delayed_parameter_has_the_mean_and_lists_are_compared",
            a_delayed_parameter_has_the_mean_and_lists_are_compared, 20},
        {"many_parameters_are_planned_in_linear_time", many_parameters_are_planned_in_linear_time,
            20},
        {"memory_is_the_gradients_and_a_quarter_kilobyte_per_parameter",
            memory_is_the_gradients_and_a_quarter_kilobyte_per_parameter, 20},
        {"a_sparse_parameter_has_no_dense_gradient", a_sparse_parameter_has_no_dense_gradient, 10},
        {"steps_with_rows_allocate_nothing", steps_with_rows_allocate_nothing, 20},
        {"means_of_f16_do_not_overflow", means_of_f16_do_not_overflow, 20},
        {"means_of_f16_below_the_normal_range", means_of_f16_below_the_normal_range, 20},
        {"used_parameters_are_known_on_every_rank", used_parameters_are_known_on_every_rank, 20},
        {"buffers_come_from_the_highest_rank_active_now",
            buffers_come_from_the_highest_rank_active_now, 20},
        {"several_threads_of_a_rank_report_gradients", several_threads_of_a_rank_report_gradients,
            60},
        {"one_of_two_threads_with_one_parameter_is_refused",
            one_of_two_threads_with_one_parameter_is_refused, 30},
        {"functions_of_works_report_gradients", functions_of_works_report_gradients, 20},
        {"a_ddp_goes_on_in_another_group", a_ddp_goes_on_in_another_group, 60},
        {"mistakes_in_another_group", mistakes_in_another_group, 20},
        {"another_group_without_memory", another_group_without_memory, 20},
        {"another_group_has_another_model", another_group_has_another_model, 20},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
