/*  test_table.c - every operation x reduction x dtype x count x number of ranks against a serial reference

    test_table [seed N] [all]     a sample of the table that differs by seed; `all`: ten times as many cases

    Values are small whole numbers, so that every dtype has exact answers; the reference computes in double and knows
    nothing of the library's kernels. Each case runs in one of several ways: blocking, asynchronous, several started at
    once, in place or not, in even or uneven parts. */
#define CDP_IMPLEMENTATION
#include "cdp.h"

#include "test.h"

#include <pthread.h>

#define RANKS_MAX 16u
#define GUARD 32u

static uint64_t seed = 1;
static uint32_t times = 3;
static cdp_hub *hub;
static uint32_t size, cases_run;
static bool no_thread;

/* ---- numbers as bytes of a dtype -------------------------------------------------------------------------------------- */

static uint16_t half_of(double v) { /* of whole numbers that a half holds exactly */
    uint16_t bits = v < 0 ? 0x8000u : 0;
    int exponent = 0;
    v = v < 0 ? -v : v;
    if (v == 0) return bits;
    while (v >= 2) v /= 2, ++exponent;
    while (v < 1) v *= 2, --exponent;
    return (uint16_t)(bits | (uint16_t)((exponent + 15) << 10) | (uint16_t)((v - 1) * 1024));
}

static double of_half(uint16_t h) {
    const int exponent = (h >> 10 & 31) - 15;
    double v = (h & 0x7fff) == 0 ? 0 : 1 + (h & 1023) / 1024.0;
    for (int i = 0; i < exponent; ++i) v *= 2;
    for (int i = 0; i > exponent; --i) v /= 2;
    return h & 0x8000 ? -v : v;
}

static void put(cdp_dtype t, void *at, uint64_t i, double v) {
    const float f = (float)v;
    uint32_t bits;
    uint16_t h;
    memcpy(&bits, &f, 4);
    switch (t) {
    case CDP_DTYPE_F32: ((float *)at)[i] = f; break;
    case CDP_DTYPE_F64: ((double *)at)[i] = v; break;
    case CDP_DTYPE_F16: h = half_of(v), memcpy((char *)at + 2 * i, &h, 2); break;
    case CDP_DTYPE_BF16: h = (uint16_t)(bits >> 16), memcpy((char *)at + 2 * i, &h, 2); break;
    case CDP_DTYPE_I8: ((int8_t *)at)[i] = (int8_t)v; break;
    case CDP_DTYPE_I16: ((int16_t *)at)[i] = (int16_t)v; break;
    case CDP_DTYPE_I32: ((int32_t *)at)[i] = (int32_t)v; break;
    case CDP_DTYPE_I64: ((int64_t *)at)[i] = (int64_t)v; break;
    case CDP_DTYPE_U8:
    case CDP_DTYPE_BOOL: ((uint8_t *)at)[i] = (uint8_t)v; break;
    case CDP_DTYPE_U16: ((uint16_t *)at)[i] = (uint16_t)v; break;
    case CDP_DTYPE_U32: ((uint32_t *)at)[i] = (uint32_t)v; break;
    default: ((uint64_t *)at)[i] = (uint64_t)v; break;
    }
}

static double get(cdp_dtype t, const void *at, uint64_t i) {
    uint32_t bits;
    float f;
    switch (t) {
    case CDP_DTYPE_F32: return (double)((const float *)at)[i];
    case CDP_DTYPE_F64: return ((const double *)at)[i];
    case CDP_DTYPE_F16: return of_half(((const uint16_t *)at)[i]);
    case CDP_DTYPE_BF16:
        bits = (uint32_t)((const uint16_t *)at)[i] << 16;
        memcpy(&f, &bits, 4);
        return (double)f;
    case CDP_DTYPE_I8: return ((const int8_t *)at)[i];
    case CDP_DTYPE_I16: return ((const int16_t *)at)[i];
    case CDP_DTYPE_I32: return ((const int32_t *)at)[i];
    case CDP_DTYPE_I64: return (double)((const int64_t *)at)[i];
    case CDP_DTYPE_U8:
    case CDP_DTYPE_BOOL: return ((const uint8_t *)at)[i];
    case CDP_DTYPE_U16: return ((const uint16_t *)at)[i];
    case CDP_DTYPE_U32: return ((const uint32_t *)at)[i];
    default: return (double)((const uint64_t *)at)[i];
    }
}

static bool is_float(cdp_dtype t) { return t == CDP_DTYPE_F32 || t == CDP_DTYPE_F64 || t == CDP_DTYPE_F16 || t == CDP_DTYPE_BF16; }
static bool is_signed(cdp_dtype t) { return is_float(t) || t == CDP_DTYPE_I8 || t == CDP_DTYPE_I16 || t == CDP_DTYPE_I32 || t == CDP_DTYPE_I64; }

/* What exists, in the words of the documentation. */
static bool exists(cdp_dtype t, cdp_reduce op) {
    if (op == CDP_REDUCE_BAND || op == CDP_REDUCE_BOR || op == CDP_REDUCE_BXOR) return !is_float(t);
    if (op == CDP_REDUCE_PREMUL_SUM) return is_float(t);
    return !(t == CDP_DTYPE_BOOL && op == CDP_REDUCE_AVG);
}

/* ---- cases ------------------------------------------------------------------------------------------------------------ */

typedef struct spec {
    cdp_coll_kind kind;
    cdp_dtype dtype;
    cdp_reduce op;
    uint64_t count, counts[RANKS_MAX], table[RANKS_MAX][RANKS_MAX]; /* uneven: part of each rank; alltoall: from, to */
    uint32_t root, way;
    bool in_place, uneven;
    uint32_t salt;
} spec;

/* Rank r's element i of its input. Products stay small, averages and bytes fit, whatever the number of ranks. */
static double value(const spec *s, uint32_t r, uint64_t i) {
    const uint64_t h = (i * 2654435761u + r * 40503u + s->salt * 97u) >> 3;
    if (s->dtype == CDP_DTYPE_BOOL) return (double)(h % 2);
    if (s->op == CDP_REDUCE_PRODUCT) return h % 5 == 0 ? (is_signed(s->dtype) && h % 2 ? -1 : 2 - (double)(r > 4)) : 1;
    return (double)(h % 8) - (is_signed(s->dtype) ? 4 : 0);
}

static double reduced(const spec *s, uint64_t i) {
    double v = value(s, 0, i); /* rank 0 has the factor 1 */
    for (uint32_t r = 1; r < size; ++r) {
        const double x = value(s, r, i) * (s->op == CDP_REDUCE_PREMUL_SUM ? (double)(1 + r % 2) : 1);
        if (s->op == CDP_REDUCE_MIN) v = x < v ? x : v;
        else if (s->op == CDP_REDUCE_MAX) v = x > v ? x : v;
        else if (s->op == CDP_REDUCE_PRODUCT) v *= x;
        else if (s->op == CDP_REDUCE_BAND) v = (double)((int64_t)v & (int64_t)x);
        else if (s->op == CDP_REDUCE_BOR) v = (double)((int64_t)v | (int64_t)x);
        else if (s->op == CDP_REDUCE_BXOR) v = (double)((int64_t)v ^ (int64_t)x);
        else v += x;
    }
    if (s->dtype == CDP_DTYPE_BOOL && s->op != CDP_REDUCE_BXOR && v > 1) v = 1; /* a sum is an "or" */
    if (s->op == CDP_REDUCE_AVG) {
        if (s->dtype == CDP_DTYPE_F16 || s->dtype == CDP_DTYPE_BF16) return v / size; /* compared with some room */
        if (s->dtype == CDP_DTYPE_F32) return (double)((float)v / (float)size);
        v = s->dtype == CDP_DTYPE_F64 ? v / size : (double)((int64_t)v / (int64_t)size);
    }
    return v;
}

static uint64_t offset(const spec *s, uint32_t r) { /* of part r where each rank has one */
    uint64_t at = 0;
    for (uint32_t i = 0; i < r; ++i) at += s->uneven ? s->counts[i] : s->count;
    return at;
}
static uint64_t part(const spec *s, uint32_t r) { return s->uneven ? s->counts[r] : s->count; }

static spec make_spec(uint64_t *dice, uint32_t n) {
    static const uint64_t counts[] = {0, 1, 2, 3, 7, 63, 64, 65, 255, 256, 257, 1000, 5000};
    spec s;
    memset(&s, 0, sizeof s);
    s.kind = (cdp_coll_kind)(1 + test_random(dice) % (CDP_COLL_SEND - 1));
    s.dtype = (cdp_dtype)(1 + test_random(dice) % (CDP_DTYPE_COUNT - 1));
    do s.op = (cdp_reduce)(1 + test_random(dice) % (CDP_REDUCE_COUNT - 1));
    while (!exists(s.dtype, s.op));
    s.count = counts[test_random(dice) % (sizeof counts / sizeof *counts)];
    if (test_random(dice) % 12 == 0) s.count = 30000 + test_random(dice) % 9;
    s.root = (uint32_t)(test_random(dice) % n);
    s.way = (uint32_t)(test_random(dice) % 3);
    s.in_place = test_random(dice) % 3 == 0 && s.kind != CDP_COLL_ALLTOALL;
    s.uneven = test_random(dice) % 3 == 0 && (s.kind == CDP_COLL_ALLGATHER || s.kind == CDP_COLL_GATHER || s.kind == CDP_COLL_SCATTER || s.kind == CDP_COLL_REDUCE_SCATTER || s.kind == CDP_COLL_ALLTOALL);
    s.salt = (uint32_t)test_random(dice);
    for (uint32_t i = 0; i < n; ++i) {
        s.counts[i] = test_random(dice) % 4 ? test_random(dice) % (s.count + 3) : 0;
        for (uint32_t k = 0; k < n; ++k) s.table[i][k] = test_random(dice) % 3 ? test_random(dice) % (s.count % 300 + 2) : 0;
    }
    return s;
}

typedef struct buffers {
    char *in, *out;
    uint64_t in_count, out_count; /* elements */
} buffers;

static void sizes_of(const spec *s, uint32_t r, buffers *b) {
    const uint64_t all = offset(s, size), own = part(s, r);
    const bool root = r == s->root;
    b->in_count = b->out_count = s->kind == CDP_COLL_BARRIER ? 0 : s->count;
    if (s->kind == CDP_COLL_ALLGATHER || s->kind == CDP_COLL_GATHER) b->in_count = own, b->out_count = s->kind == CDP_COLL_ALLGATHER || root ? all : own;
    if (s->kind == CDP_COLL_SCATTER) b->in_count = all, b->out_count = root && s->in_place ? all : own;
    if (s->kind == CDP_COLL_REDUCE_SCATTER) b->in_count = all, b->out_count = s->in_place ? all : own;
    if (s->kind == CDP_COLL_ALLTOALL) {
        b->in_count = b->out_count = s->uneven ? 0 : size * s->count;
        for (uint32_t i = 0; i < size && s->uneven; ++i) b->in_count += s->table[r][i], b->out_count += s->table[i][r];
    }
}

/* In place: where in `out` the input lies. */
static uint64_t input_at(const spec *s, uint32_t r) {
    if (s->kind == CDP_COLL_ALLGATHER || (s->kind == CDP_COLL_GATHER && r == s->root)) return offset(s, r);
    return 0;
}

static void prepare(const spec *s, uint32_t r, buffers *b) {
    const uint64_t e = cdp_dtype_size(s->dtype);
    const bool has_input = s->kind != CDP_COLL_BROADCAST && (s->kind != CDP_COLL_SCATTER || r == s->root);
    sizes_of(s, r, b);
    b->in = (char *)malloc(b->in_count * e + GUARD);
    b->out = (char *)malloc(b->out_count * e + GUARD);
    memset(b->in, 0, b->in_count * e);
    memset(b->out, 0x11, b->out_count * e + GUARD);
    memset(b->in + b->in_count * e, 0x11, GUARD);
    for (uint64_t i = 0; has_input && i < b->in_count; ++i) put(s->dtype, b->in, i, value(s, r, i));
    if (has_input && s->in_place && b->in_count) memcpy(b->out + input_at(s, r) * e, b->in, b->in_count * e);
    for (uint64_t i = 0; s->kind == CDP_COLL_BROADCAST && r == s->root && i < s->count; ++i) put(s->dtype, b->out, i, value(s, r, i));
}

static cdp_request request_of(const spec *s, uint32_t r, const buffers *b, uint64_t counts[2][RANKS_MAX]) {
    cdp_request rq;
    memset(&rq, 0, sizeof rq);
    rq.kind = s->kind;
    rq.in = s->in_place || s->kind == CDP_COLL_BROADCAST || s->kind == CDP_COLL_BARRIER ? NULL : b->in;
    rq.out = b->out;
    rq.count = s->count;
    rq.dtype = s->dtype;
    rq.op = s->op;
    rq.root = s->root;
    rq.factor = 1 + r % 2;
    for (uint32_t i = 0; i < size && s->uneven; ++i) {
        counts[0][i] = s->kind == CDP_COLL_ALLTOALL ? s->table[r][i] : s->counts[i];
        counts[1][i] = s->kind == CDP_COLL_ALLTOALL ? s->table[i][r] : s->counts[i];
    }
    if (s->uneven) rq.in_counts = counts[0], rq.out_counts = counts[1];
    return rq;
}

/* The blocking function of its own that a call has, where parts are even. */
static cdp_status call(cdp_group *g, const cdp_request *q, bool async) {
    cdp_work w = {NULL, 0};
    cdp_status st;
    switch (q->kind) {
    case CDP_COLL_ALLREDUCE: st = async ? cdp_allreduce_async(g, q->in, q->out, q->count, q->dtype, q->op, &w) : cdp_allreduce(g, q->in, q->out, q->count, q->dtype, q->op); break;
    case CDP_COLL_BROADCAST: st = async ? cdp_broadcast_async(g, q->out, q->count, q->dtype, q->root, &w) : cdp_broadcast(g, q->out, q->count, q->dtype, q->root); break;
    case CDP_COLL_ALLGATHER: st = async ? cdp_allgather_async(g, q->in, q->out, q->count, q->dtype, &w) : cdp_allgather(g, q->in, q->out, q->count, q->dtype); break;
    case CDP_COLL_REDUCE: st = async ? cdp_reduce_to_async(g, q->in, q->out, q->count, q->dtype, q->op, q->root, &w) : cdp_reduce_to(g, q->in, q->out, q->count, q->dtype, q->op, q->root); break;
    case CDP_COLL_GATHER: st = async ? cdp_gather_async(g, q->in, q->out, q->count, q->dtype, q->root, &w) : cdp_gather(g, q->in, q->out, q->count, q->dtype, q->root); break;
    case CDP_COLL_SCATTER: st = async ? cdp_scatter_async(g, q->in, q->out, q->count, q->dtype, q->root, &w) : cdp_scatter(g, q->in, q->out, q->count, q->dtype, q->root); break;
    case CDP_COLL_REDUCE_SCATTER: st = async ? cdp_reduce_scatter_async(g, q->in, q->out, q->count, q->dtype, q->op, &w) : cdp_reduce_scatter(g, q->in, q->out, q->count, q->dtype, q->op); break;
    case CDP_COLL_ALLTOALL: st = async ? cdp_alltoall_async(g, q->in, q->out, q->count, q->dtype, &w) : cdp_alltoall(g, q->in, q->out, q->count, q->dtype); break;
    default: st = async ? cdp_barrier_async(g, &w) : cdp_barrier(g); break;
    }
    return st == CDP_OK && async ? cdp_work_wait(w) : st;
}

/* ---- what must be there afterwards ------------------------------------------------------------------------------------- */

/* Element i of rank r's result; false: it may be anything, or must be as before (`same`). */
static bool expected(const spec *s, uint32_t r, uint64_t i, double *v, bool *same) {
    uint64_t at = i;
    uint32_t p = 0;
    *same = false;
    switch (s->kind) {
    case CDP_COLL_ALLREDUCE: *v = reduced(s, i); return true;
    case CDP_COLL_BROADCAST: *v = value(s, s->root, i); return true;
    case CDP_COLL_REDUCE:
        *same = r != s->root;
        *v = reduced(s, i);
        return r == s->root;
    case CDP_COLL_ALLGATHER:
    case CDP_COLL_GATHER:
        *same = s->kind == CDP_COLL_GATHER && r != s->root;
        while (p + 1 < size && at >= part(s, p)) at -= part(s, p++);
        *v = value(s, p, at);
        return !*same;
    case CDP_COLL_SCATTER: *v = value(s, s->root, s->in_place && r == s->root ? i : offset(s, r) + i); return true;
    case CDP_COLL_REDUCE_SCATTER:
        if (s->in_place && (i < offset(s, r) || i >= offset(s, r) + part(s, r))) return false;
        *v = reduced(s, s->in_place ? i : offset(s, r) + i);
        return true;
    default: { /* alltoall */
        uint64_t before = 0;
        for (p = 0; p + 1 < size && at >= (s->uneven ? s->table[p][r] : s->count); ++p) at -= s->uneven ? s->table[p][r] : s->count;
        for (uint32_t k = 0; k < r; ++k) before += s->uneven ? s->table[p][k] : s->count;
        *v = value(s, p, before + at);
        return true;
    }
    }
}

static void verify(const spec *s, uint32_t r, const buffers *b, const char *before) {
    const uint64_t e = cdp_dtype_size(s->dtype);
    const bool has_input = s->kind != CDP_COLL_BROADCAST && (s->kind != CDP_COLL_SCATTER || r == s->root);
    uint64_t wrong = 0, first = 0;
    for (uint64_t i = 0; i < b->out_count; ++i) {
        double v = 0, got;
        bool same, ok;
        if (!expected(s, r, i, &v, &same)) {
            ok = !same || memcmp(b->out + i * e, before + i * e, e) == 0;
        } else {
            got = get(s->dtype, b->out, i);
            ok = got == v;
            if (s->op == CDP_REDUCE_AVG && s->dtype == CDP_DTYPE_F16) ok = got - v < 0.005 && v - got < 0.005;
            if (s->op == CDP_REDUCE_AVG && s->dtype == CDP_DTYPE_BF16) ok = got - v < 0.03 && v - got < 0.03;
        }
        if (!ok && !wrong++) first = i;
    }
    for (uint64_t i = 0; has_input && !s->in_place && i < b->in_count; ++i)
        if (get(s->dtype, b->in, i) != value(s, r, i)) ++wrong; /* inputs are only read */
    for (uint32_t i = 0; i < GUARD; ++i) wrong += b->out[b->out_count * e + i] != 0x11 || b->in[b->in_count * e + i] != 0x11;
    test_check(!wrong, __FILE__, __LINE__, "rank %u/%u: %s of %llu x %s %s, root %u%s%s, way %u: %llu wrong, first element %llu", r, size, cdp_coll_name(s->kind), (unsigned long long)s->count,
               cdp_dtype_name(s->dtype), cdp_reduce_name(s->op), s->root, s->in_place ? ", in place" : "", s->uneven ? ", uneven" : "", s->way, (unsigned long long)wrong, (unsigned long long)first);
}

/* A batch of cases; those of way 2 that stand together are started as one. */
#define BATCH 40u
static spec batch[BATCH];

static void *rank_main(void *arg) {
    const uint32_t r = (uint32_t)(uintptr_t)arg;
    const cdp_group_desc d = {.rank = r, .world_size = size, .hub = hub, .no_thread = no_thread, .timeout_ms = 60000, .small_bytes = 4096, .logger = {.level = CDP_LOG_SILENT}};
    cdp_group *g;
    if (!test_check(cdp_group_create(&d, &g) == CDP_OK, __FILE__, __LINE__, "%s", cdp_last_error()->text)) return NULL;
    for (uint32_t i = 0, n; i < BATCH && !test__now.failed_checks; i += n) {
        buffers b[BATCH];
        char *before[BATCH];
        cdp_request rq[BATCH];
        uint64_t counts[BATCH][2][RANKS_MAX];
        cdp_status st;
        for (n = 0; i + n < BATCH && (n == 0 || (batch[i].way == 2 && batch[i + n].way == 2)); ++n) {
            const uint64_t bytes = (prepare(&batch[i + n], r, &b[n]), b[n].out_count * cdp_dtype_size(batch[i + n].dtype));
            before[n] = (char *)malloc(bytes + 1);
            memcpy(before[n], b[n].out, bytes);
            rq[n] = request_of(&batch[i + n], r, &b[n], counts[n]);
        }
        if (batch[i].way == 2 || batch[i].uneven || batch[i].op == CDP_REDUCE_PREMUL_SUM) { /* a function has no place for the factor */
            cdp_work w;
            st = n > 1 ? cdp_start_all(g, rq, n, &w) : cdp_start(g, rq, &w);
            if (st == CDP_OK) st = cdp_work_wait(w);
        } else {
            st = call(g, rq, batch[i].way == 1);
        }
        test_check(st == CDP_OK, __FILE__, __LINE__, "rank %u/%u: %s: %s", r, size, cdp_status_name(st), cdp_last_error()->text);
        for (uint32_t k = 0; k < n; ++k) {
            if (st == CDP_OK) verify(&batch[i + k], r, &b[k], before[k]);
            free(before[k]);
            free(b[k].in);
            free(b[k].out);
        }
        if (st != CDP_OK) break;
    }
    cdp_group_destroy(g);
    return NULL;
}

static void table_of(uint32_t n, uint32_t batches) {
    uint64_t dice = seed * 1000 + n;
    for (uint32_t i = 0; i < batches * times && !test__now.failed_checks; ++i) {
        const cdp_hub_desc h = {.world_size = n};
        pthread_t t[RANKS_MAX];
        size = n;
        no_thread = i % 2;
        for (uint32_t k = 0; k < BATCH; ++k) batch[k] = make_spec(&dice, n);
        cases_run += BATCH;
        if (!T(cdp_hub_create(&h, &hub) == CDP_OK)) return;
        for (uint32_t r = 0; r < n; ++r) pthread_create(&t[r], NULL, rank_main, (void *)(uintptr_t)r);
        for (uint32_t r = 0; r < n; ++r) pthread_join(t[r], NULL);
        cdp_hub_destroy(hub);
        if (test__now.failed_checks) printf("  (seed %llu, %u ranks, batch %u)\n", (unsigned long long)seed, n, i);
    }
}

TEST(table_on_1_rank) { table_of(1, 20); }
TEST(table_on_2_ranks) { table_of(2, 40); }
TEST(table_on_3_ranks) { table_of(3, 40); }
TEST(table_on_4_ranks) { table_of(4, 30); }
TEST(table_on_5_ranks) { table_of(5, 25); }
TEST(table_on_7_ranks) { table_of(7, 15); }
TEST(table_on_8_ranks) { table_of(8, 12); }
TEST(table_on_11_ranks) { table_of(11, 8); }
TEST(table_on_16_ranks) { table_of(16, 5); }

/* What does not exist is refused at the call, and costs nothing. */
TEST(table_of_refusals) {
    const cdp_group_desc d = {.world_size = 1};
    cdp_group *g;
    uint64_t x = 0, refused = 0;
    if (!T(cdp_group_create(&d, &g) == CDP_OK)) return;
    for (int t = 1; t < CDP_DTYPE_COUNT; ++t)
        for (int op = 1; op < CDP_REDUCE_COUNT; ++op) {
            const cdp_status want = exists((cdp_dtype)t, (cdp_reduce)op) ? CDP_OK : CDP_ERR_UNSUPPORTED;
            refused += want != CDP_OK;
            T_EQ(want, cdp_allreduce(g, NULL, &x, 1, (cdp_dtype)t, (cdp_reduce)op));
            T_EQ(want, cdp_reduce_to(g, NULL, &x, 1, (cdp_dtype)t, (cdp_reduce)op, 0));
            T_EQ(want, cdp_reduce_scatter(g, NULL, &x, 1, (cdp_dtype)t, (cdp_reduce)op));
        }
    T_EQ(4 * 3 + 8 * 1 + 1 * 2, refused); /* floats: bits; integers: premul sum; bool: premul sum, avg */
    T_EQ(CDP_ERR_INVALID, cdp_alltoall(g, NULL, &x, 1, CDP_DTYPE_U64));
    T_TEXT("in place", cdp_last_error()->text);
    T_EQ(CDP_ERR_INVALID, cdp_gather(g, NULL, &x, 1, CDP_DTYPE_U64, 1));
    T_TEXT("root 1", cdp_last_error()->text);
    cdp_group_destroy(g);
}

/* ---- halves ------------------------------------------------------------------------------------------------------------- */

static double exact_half(uint16_t h, bool bf) { /* by definition */
    const int bits = bf ? 7 : 10, bias = bf ? 127 : 15, exponent = h >> bits & (bf ? 255 : 31);
    const double fraction = (double)(h & ((1 << bits) - 1)) / (1 << bits);
    double v = exponent ? 1 + fraction : fraction;
    for (int i = exponent ? exponent : 1; i < bias; ++i) v /= 2;
    for (int i = bias; i < exponent; ++i) v *= 2;
    return h & 0x8000 ? -v : v;
}

TEST(every_half_there_and_back) {
    for (int bf = 0; bf < 2; ++bf) {
        const cdp_dtype t = bf ? CDP_DTYPE_BF16 : CDP_DTYPE_F16;
        const uint16_t inf = bf ? 0x7f80 : 0x7c00;
        for (uint32_t base = 0; base < 65536 && !test__now.failed_checks; base += CDP__BLOCK) {
            uint16_t in[CDP__BLOCK], back[CDP__BLOCK];
            float wide[CDP__BLOCK];
            for (uint32_t i = 0; i < CDP__BLOCK; ++i) in[i] = (uint16_t)(base + i);
            cdp__widen_block(t, in, wide);
            cdp__narrow_block(t, wide, back);
            for (uint32_t i = 0; i < CDP__BLOCK; ++i) {
                const uint16_t mag = in[i] & 0x7fff;
                const double w = (double)wide[i];
                const bool ok = mag > inf ? w != w && (back[i] & 0x7fff) > inf : (mag == inf ? w * 0 != 0 && (w > 0) == (in[i] < 0x8000) : w == exact_half(in[i], bf)) && back[i] == in[i];
                test_check(ok, __FILE__, __LINE__, "%s %04x is %g, and %04x again", cdp_dtype_name(t), in[i], w, back[i]);
            }
        }
    }
}

/* Between two neighbours the nearer wins, and the even one when both are as near. */
TEST(halves_round_to_nearest_even) {
    for (int bf = 0; bf < 2; ++bf) {
        const cdp_dtype t = bf ? CDP_DTYPE_BF16 : CDP_DTYPE_F16;
        const uint16_t inf = bf ? 0x7f80 : 0x7c00;
        for (uint32_t h = 0; h + 1 < inf && !test__now.failed_checks; ++h) {
            const double low = exact_half((uint16_t)h, bf), high = exact_half((uint16_t)(h + 1), bf), step = high - low;
            float wide[CDP__BLOCK] = {0};
            uint16_t out[CDP__BLOCK];
            wide[0] = (float)(low + step / 4);
            wide[1] = (float)(low + step / 2);
            wide[2] = (float)(low + step * 3 / 4);
            wide[3] = -wide[1];
            cdp__narrow_block(t, wide, out);
            test_check(out[0] == h && out[1] == h + (h & 1) && out[2] == h + 1 && out[3] == (out[1] | 0x8000u), __FILE__, __LINE__, "%s between %04x and the next: %04x %04x %04x", cdp_dtype_name(t), h, out[0], out[1], out[2]);
            if (bf && h < 0x100) h += 3; /* f32 has no finer steps among the smallest of them */
        }
    }
    const float far[4] = {65519.996f, 65520.0f, 1e9f, -1e9f};
    float wide[CDP__BLOCK] = {0};
    uint16_t out[CDP__BLOCK];
    memcpy(wide, far, sizeof far);
    cdp__narrow_block(CDP_DTYPE_F16, wide, out);
    T(out[0] == 0x7bff && out[1] == 0x7c00 && out[2] == 0x7c00 && out[3] == 0xfc00);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"table_on_1_rank", table_on_1_rank, 60},       {"table_on_2_ranks", table_on_2_ranks, 120},   {"table_on_3_ranks", table_on_3_ranks, 120}, {"table_on_4_ranks", table_on_4_ranks, 120},
        {"table_on_5_ranks", table_on_5_ranks, 120},    {"table_on_7_ranks", table_on_7_ranks, 120},   {"table_on_8_ranks", table_on_8_ranks, 120}, {"table_on_11_ranks", table_on_11_ranks, 120},
        {"table_on_16_ranks", table_on_16_ranks, 120},  {"table_of_refusals", table_of_refusals, 20}, {"every_half_there_and_back", every_half_there_and_back, 20},
        {"halves_round_to_nearest_even", halves_round_to_nearest_even, 20},
    };
    int rest = 1, code;
    for (int i = 1; i < argc; ++i) {
        if (strcmp(argv[i], "seed") == 0 && i + 1 < argc) seed = strtoull(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "all") == 0) times = 30;
        else argv[rest++] = argv[i];
    }
    code = test_main(rest, argv, cases, sizeof cases / sizeof *cases);
    fprintf(stderr, "%u cases, seed %llu\n", cases_run, (unsigned long long)seed);
    return code;
}
