/* Prefix reductions against a plain loop, and the table of kinds that they are two rows of. */
#define CDP_IMPLEMENTATION
#include "cdp.h"
#include "ranks.h"
#include "kind_rows.h"

#include <math.h>

enum {
    MOST = 100000
};
static const uint64_t counts[] = {0, 1, 7, 1000, MOST};

typedef struct what {
    cdp_reduce_op op;
    bool exclusive, in_place, async;
    uint64_t count;
} what;

static int32_t input(uint32_t rank, uint64_t i) {
    return (int32_t)((rank * 31 + i * 7) % 5) - 1;
}
static int32_t two(cdp_reduce_op op, int32_t a, int32_t b) {
    if (op == CDP_REDUCE_MAX) return a > b ? a : b;
    return op == CDP_REDUCE_PRODUCT ? a * b : a + b;
}
/* of the first `ranks` ranks */
static int32_t prefix(cdp_reduce_op op, uint32_t ranks, uint64_t i) {
    int32_t v = input(0, i);
    for (uint32_t r = 1; r < ranks; ++r)
        v = two(op, v, input(r, i));
    return v;
}

static cdp_status scan(cdp_group *g, const what *w, const int32_t *in, int32_t *out) {
    cdp_work work;
    cdp_status st;
    if (!w->async)
        return w->exclusive ? cdp_exscan(g, in, out, w->count, CDP_DTYPE_I32, w->op)
                            : cdp_scan(g, in, out, w->count, CDP_DTYPE_I32, w->op);
    st = w->exclusive ? cdp_exscan_async(g, in, out, w->count, CDP_DTYPE_I32, w->op, &work)
                      : cdp_scan_async(g, in, out, w->count, CDP_DTYPE_I32, w->op, &work);
    return st == CDP_OK ? cdp_work_wait(work) : st;
}

static void rank_scans(cdp_group *g, void *arg) {
    const what *w = (const what *)arg;
    const uint32_t r = cdp_rank(g);
    int32_t *in = (int32_t *)calloc(w->count + 1, 4), *out = (int32_t *)calloc(w->count + 1, 4);
    for (uint64_t i = 0; i < w->count; ++i) {
        in[i] = input(r, i);
        out[i] = w->in_place ? in[i] : -77;
    }
    out[w->count] = -78;
    T_EQ(CDP_OK, scan(g, w, w->in_place ? NULL : in, out));
    for (uint64_t i = 0; i < w->count; ++i) {
        int32_t want = w->in_place ? in[i] : -77; /* rank 0 of an exclusive scan */
        if (r || !w->exclusive) want = prefix(w->op, r + !w->exclusive, i);
        if (!test_check(out[i] == want, __FILE__, __LINE__,
                "%u ranks, %s%s of %llu, op %d: rank %u has %d at %llu, not %d", cdp_size(g),
                w->exclusive ? "exscan" : "scan", w->in_place ? " in place" : "",
                (unsigned long long)w->count, (int)w->op, r, out[i], (unsigned long long)i, want))
            break;
        T_EQ(input(r, i), in[i]);
    }
    T_EQ(-78, out[w->count]);
    free(in);
    free(out);
}

TEST(prefixes_are_those_of_a_loop) {
    static const cdp_reduce_op ops[] = {CDP_REDUCE_SUM, CDP_REDUCE_MAX, CDP_REDUCE_PRODUCT};
    for (uint32_t n = 1; n <= 7; ++n)
        for (uint32_t k = 0; k < 5 * 8; ++k) {
            what w = {ops[(n + k) % 3], k % 2, k / 2 % 2, k / 4 % 2, counts[k / 8]};
            run_ranks(n, NULL, 0, rank_scans, &w);
        }
}

/* Each rank's factor; what is in place on rank 0 of an exclusive scan is not even scaled. */
static void rank_scales(cdp_group *g, void *arg) {
    const uint32_t r = cdp_rank(g);
    (void)arg;
    for (int k = 0; k < 8; ++k) {
        static const uint64_t n = 70000;
        const bool ex = k % 2, in_place = k / 2 % 2;
        float *in = (float *)malloc(n * 4), *out = (float *)malloc(n * 4);
        cdp_request rq;
        cdp_work work;
        memset(&rq, 0, sizeof rq);
        rq.kind = ex ? CDP_COLL_EXSCAN : CDP_COLL_SCAN;
        rq.op = CDP_REDUCE_PREMUL_SUM;
        rq.factor = r + 1;
        rq.count = k / 4 ? n : 9;
        rq.in = in_place ? NULL : in;
        rq.out = out;
        for (uint64_t i = 0; i < n; ++i) {
            in[i] = (float)(r + 1);
            out[i] = in_place ? in[i] : -7;
        }
        T_EQ(CDP_OK, cdp_start(g, &rq, &work));
        T_EQ(CDP_OK, cdp_work_wait(work));
        for (uint64_t i = 0; i < rq.count; i += rq.count - 1) {
            float want = 0;
            for (uint32_t q = 0; q < r + !ex; ++q)
                want += (float)((q + 1) * (q + 1));
            if (ex && !r) want = in_place ? 1 : -7;
            T_EQ(want, out[i]);
        }
        free(in);
        free(out);
    }
}

TEST(factors_of_ranks) {
    run_ranks(4, NULL, 0, rank_scales, NULL);
}

static void rank_errs(cdp_group *g, void *arg) {
    float x = 1, y = 0;
    (void)arg;
    T_EQ(CDP_ERR_UNSUPPORTED, cdp_scan(g, &x, &y, 1, CDP_DTYPE_F32, CDP_REDUCE_AVG));
    T_TEXT("scan: there is no average", cdp_last_error()->text);
    T_EQ(CDP_ERR_INVALID, cdp_exscan(g, &x, NULL, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    T_EQ(CDP_OK, cdp_group_status(g));
    /* rank 0 only sends, so its own call may be done before rank 1 compares */
    if (!cdp_rank(g)) {
        const cdp_status st = cdp_exscan(g, &x, &y, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM);
        T(st == CDP_OK || st == CDP_ERR_MISMATCH);
        return;
    }
    T_EQ(CDP_ERR_MISMATCH, cdp_scan(g, &x, &y, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    T_TEXT(" scan #1 of 1 x f32 sum, recursive doubling", cdp_last_error()->text);
    T_TEXT(" exscan #1 of 1 x f32 sum, recursive doubling", cdp_last_error()->text);
}

TEST(mistakes) {
    const cdp_group_desc like = {.logger = {.level = CDP_LOG_SILENT}};
    run_ranks(2, &like, 0, rank_errs, NULL);
}

/* Element 0 has the same bits alone and in a long vector. */
static void rank_repeats(cdp_group *g, void *arg) {
    static const uint64_t n = MOST;
    float *x = (float *)malloc(n * 4), alone[2], mine[2] = {0.1f + (float)cdp_rank(g) * 1.7f, 0};
    (void)arg;
    for (int ex = 0; ex < 2; ++ex) {
        for (uint64_t i = 0; i < n; ++i)
            x[i] = mine[0];
        if (ex) {
            T_EQ(CDP_OK, cdp_exscan(g, mine, alone, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM));
            T_EQ(CDP_OK, cdp_exscan(g, NULL, x, n, CDP_DTYPE_F32, CDP_REDUCE_SUM));
        } else {
            T_EQ(CDP_OK, cdp_scan(g, mine, alone, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM));
            T_EQ(CDP_OK, cdp_scan(g, NULL, x, n, CDP_DTYPE_F32, CDP_REDUCE_SUM));
        }
        for (uint64_t i = 0; i < n && (cdp_rank(g) || !ex); i += 9999)
            T_EQ(0, memcmp(alone, x + i, 4));
    }
    free(x);
}

TEST(reproducible_bits) {
    const cdp_group_desc like = {.reproducible = true};
    run_ranks(7, &like, 0, rank_repeats, NULL);
}

TEST(every_kind_has_its_rows) {
    check_kind_rows();
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"prefixes_are_those_of_a_loop", prefixes_are_those_of_a_loop, 120},
        {"factors_of_ranks", factors_of_ranks, 20},
        {"mistakes", mistakes, 20},
        {"reproducible_bits", reproducible_bits, 20},
        {"every_kind_has_its_rows", every_kind_has_its_rows, 10},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
