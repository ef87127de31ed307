/*  Groups with cdp_nccl.h, on the stand-in of this folder: what is claimed here is claimed of the library's logic, not of a GPU.
    tests/gpu has the programs for a real one. */
#define _GNU_SOURCE
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"

#include "cdp_nccl.h"

#include "cards.h"

#include <pthread.h>
#include <sys/wait.h>

static const char *program;

/* ---- every operation, against the links ---- */

typedef struct combination {
    cdp_coll_kind kind;
    cdp_dtype dtype;
    cdp_reduce op;
    bool in_place;
    uint64_t count;
    uint32_t root;
} combination;

static bool reduces(cdp_coll_kind k) { return k == CDP_COLL_ALLREDUCE || k == CDP_COLL_REDUCE || k == CDP_COLL_REDUCE_SCATTER; }
static bool is_float(cdp_dtype d) { return d == CDP_DTYPE_F32 || d == CDP_DTYPE_F64 || d == CDP_DTYPE_F16 || d == CDP_DTYPE_BF16; }
static bool is_f8(cdp_dtype d) { return d == CDP_DTYPE_F8E4M3 || d == CDP_DTYPE_F8E5M2; }

/* Small whole numbers, whose sums and products are exact in every format. */
static void fill(void *at, uint64_t count, cdp_dtype dtype, uint64_t seed, bool product) {
    uint64_t state = seed * 77773u + 1;
    for (uint64_t i = 0; i < count; ++i) {
        const uint64_t raw = test_random(&state);
        const int v = product ? 1 + (int)(raw % 2) : (int)(raw % 17) - 8;
        const float f = (float)v;
        uint32_t u;
        memcpy(&u, &f, 4);
        switch (dtype) {
        case CDP_DTYPE_F32: ((float *)at)[i] = f; break;
        case CDP_DTYPE_F64: ((double *)at)[i] = v; break;
        case CDP_DTYPE_BF16: ((uint16_t *)at)[i] = (uint16_t)(u >> 16); break;
        case CDP_DTYPE_F16: ((uint16_t *)at)[i] = v ? (uint16_t)((u >> 16 & 0x8000) | ((((u >> 23 & 255) - 112) << 10) | (u >> 13 & 0x3ff))) : 0; break;
        case CDP_DTYPE_BOOL: ((uint8_t *)at)[i] = raw & 1; break;
        case CDP_DTYPE_F8E4M3: ((uint8_t *)at)[i] = (uint8_t)(v ? 0x38 : 0); break; /* 1 or 0 */
        case CDP_DTYPE_F8E5M2: ((uint8_t *)at)[i] = (uint8_t)(v ? 0x3c : 0); break;
        default: memcpy((char *)at + i * cdp_dtype_size(dtype), &raw, (size_t)cdp_dtype_size(dtype)); break;
        }
    }
}

static double f16_value(uint16_t h) {
    const int e = h >> 10 & 31;
    const double m = e ? 1024 + (h & 1023) : h & 1023, v = m * (e ? (double)(1u << e) : 2) / 33554432.0;
    return h & 0x8000 ? -v : v;
}
static double value(const void *at, uint64_t i, cdp_dtype d) {
    uint32_t u;
    float f;
    if (d == CDP_DTYPE_F64) return ((const double *)at)[i];
    if (d == CDP_DTYPE_F16) return f16_value(((const uint16_t *)at)[i]);
    if (d == CDP_DTYPE_F32) return ((const float *)at)[i];
    u = (uint32_t)((const uint16_t *)at)[i] << 16;
    memcpy(&f, &u, 4);
    return f;
}

/* The mean over a number of ranks that is no power of two: NCCL multiplies by its inverse. */
static bool nearly(const void *a, const void *b, uint64_t count, cdp_dtype d) {
    const double eps = d == CDP_DTYPE_BF16 ? 0.02 : d == CDP_DTYPE_F16 ? 0.004 : 1e-6;
    for (uint64_t i = 0; i < count; ++i) {
        const double x = value(a, i, d), y = value(b, i, d);
        if (x - y > eps * 8 || y - x > eps * 8) return false;
    }
    return true;
}

static cdp_request request_of(const combination *k, void *in, void *out) {
    cdp_request rq;
    memset(&rq, 0, sizeof rq);
    rq.kind = k->kind;
    rq.in = k->in_place || k->kind == CDP_COLL_BROADCAST ? NULL : in;
    rq.out = out;
    rq.count = k->count;
    rq.dtype = k->dtype;
    rq.op = reduces(k->kind) ? k->op : CDP_REDUCE_DEFAULT;
    rq.root = k->root;
    if (k->op == CDP_REDUCE_PREMUL_SUM) rq.factor = 0.5;
    return rq;
}

/* The same operation on device memory and, as the reference, on memory of the processor. True: it exists on the device. */
static bool compare(card *c, const combination *k) {
    const uint64_t elem = cdp_dtype_size(k->dtype), parts = k->count * c->n, room = (parts * elem + 63) / 64 * 64 + 64;
    uint8_t *const in = (uint8_t *)calloc(1, room), *const out = (uint8_t *)malloc(room), *const got = (uint8_t *)malloc(room);
    const bool root = k->root == c->rank, leaves = k->kind == CDP_COLL_REDUCE || k->kind == CDP_COLL_GATHER; /* others' output: undefined */
    const uint64_t result = k->kind == CDP_COLL_ALLGATHER || k->kind == CDP_COLL_GATHER || k->kind == CDP_COLL_ALLTOALL ? parts : k->count;
    const uint64_t from = k->in_place && (k->kind == CDP_COLL_REDUCE_SCATTER || (k->kind == CDP_COLL_SCATTER && root)) ? c->rank * k->count * elem : 0;
    void *d_in, *d_out;
    cdp_request rq;
    cdp_work w;
    fill(in, parts, k->dtype, c->rank + 100 * k->count, k->op == CDP_REDUCE_PRODUCT);
    memset(out, 0x5a, room);
    if (k->in_place || k->kind == CDP_COLL_BROADCAST) memcpy(out, in, parts * elem);
    d_in = gpu_new(in, room);
    d_out = gpu_new(out, room);
    rq = request_of(k, d_in, d_out);
    const cdp_status on_device = cdp_start(c->g, &rq, &w);
    char why[512];
    snprintf(why, sizeof why, "%s", cdp_last_error()->text);
    if (on_device == CDP_OK) {
        OK(cdp_work_wait(w));
        GPU(cudaMemcpyAsync(got, d_out, room, GPU_TO_HOST, c->stream));
        GPU(cudaStreamSynchronize(c->stream));
        rq = request_of(k, in, out);
        if (!is_f8(k->dtype) || !reduces(k->kind)) {
            OK(cdp_start(c->g, &rq, &w));
            OK(cdp_work_wait(w));
        } else { /* nobody but a GPU reduces these */
            memcpy(out, got, room);
        }
        const bool inexact = k->op == CDP_REDUCE_AVG && is_float(k->dtype) && (c->n & (c->n - 1));
        const bool same = (leaves && !root) || (inexact ? nearly(out + from, got + from, result, k->dtype) : memcmp(out + from, got + from, result * elem) == 0);
        test_check(same, __FILE__, __LINE__, "rank %u of %u: %s of %llu x %s %s root %u%s differs from that over the links", c->rank, c->n, cdp_coll_name(k->kind),
                   (unsigned long long)k->count, cdp_dtype_name(k->dtype), cdp_reduce_name(k->op), k->root, k->in_place ? " in place" : "");
        test_check(memcmp(got + parts * elem, out + parts * elem, room - parts * elem) == 0 || k->kind == CDP_COLL_BROADCAST, __FILE__, __LINE__, "%s wrote behind its output", cdp_coll_name(k->kind));
    } else {
        test_check(on_device == CDP_ERR_UNSUPPORTED, __FILE__, __LINE__, "%s of %s %s: %s", cdp_coll_name(k->kind), cdp_dtype_name(k->dtype), cdp_reduce_name(k->op), why);
    }
    GPU(cudaFree(d_in)), GPU(cudaFree(d_out));
    free(in), free(out), free(got);
    return on_device == CDP_OK;
}

static bool exists_on_device(const combination *k) {
    if (!reduces(k->kind)) return true;
    if (k->dtype == CDP_DTYPE_I16 || k->dtype == CDP_DTYPE_U16) return false;
    if (k->op == CDP_REDUCE_BAND || k->op == CDP_REDUCE_BOR || k->op == CDP_REDUCE_BXOR) return false;
    if (k->op == CDP_REDUCE_PREMUL_SUM) return is_float(k->dtype) || is_f8(k->dtype);
    return !(k->dtype == CDP_DTYPE_BOOL && k->op == CDP_REDUCE_AVG);
}

static void table_of_rank(card *c) {
    static const cdp_coll_kind kinds[] = {CDP_COLL_ALLREDUCE, CDP_COLL_REDUCE, CDP_COLL_REDUCE_SCATTER, CDP_COLL_BROADCAST, CDP_COLL_ALLGATHER, CDP_COLL_GATHER, CDP_COLL_SCATTER, CDP_COLL_ALLTOALL};
    static const uint64_t counts[] = {1, 37, 0};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; ++i)
        for (int dtype = CDP_DTYPE_F32; dtype < CDP_DTYPE_COUNT; ++dtype)
            for (int op = CDP_REDUCE_SUM; op < (reduces(kinds[i]) ? CDP_REDUCE_COUNT : CDP_REDUCE_SUM + 1); ++op)
                for (int k = 0; k < 6; ++k) {
                    combination m = {kinds[i], (cdp_dtype)dtype, (cdp_reduce)op, k % 2 == 1, counts[k / 2], (uint32_t)(dtype + k) % c->n};
                    if (m.in_place && m.kind == CDP_COLL_ALLTOALL) continue;
                    if (k >= 2 && dtype > CDP_DTYPE_BF16 && op > CDP_REDUCE_SUM) continue; /* the others at one length */
                    const bool there = compare(c, &m);
                    if (there != exists_on_device(&m) && m.op != CDP_REDUCE_PREMUL_SUM)
                        NOTE("%s of %s %s %s", cdp_coll_name(m.kind), cdp_dtype_name(m.dtype), cdp_reduce_name(m.op), there ? "should not exist" : cdp_last_error()->text);
                    if (test__now.failed_checks > 5) return;
                }
}

static void table(uint32_t n) {
    standin_set("delay_us", 0);
    standin_set("lazy", 40);
    on_cards(n, table_of_rank, NULL);
    standin_set("delay_us", 200);
    standin_set("lazy", 4);
    clean();
}
TEST(table_1) { table(1); }
TEST(table_2) { table(2); }
TEST(table_3) { table(3); }
TEST(table_4) { table(4); }

/* 8-bit floats: what the others cannot be compared with. */
static void eight_bits_of_rank(card *c) {
    static const struct {
        cdp_dtype dtype;
        uint8_t one, sum[5];
    } t[] = {{CDP_DTYPE_F8E4M3, 0x38, {0, 0x38, 0x40, 0x44, 0x48}}, {CDP_DTYPE_F8E5M2, 0x3c, {0, 0x3c, 0x40, 0x42, 0x44}}};
    for (int i = 0; i < 2; ++i) {
        uint8_t bytes[9];
        memset(bytes, t[i].one, 9);
        void *const d = gpu_new(bytes, 9);
        OK(cdp_allreduce(c->g, NULL, d, 9, t[i].dtype, CDP_REDUCE_SUM));
        GPU(cudaMemcpyAsync(bytes, d, 9, GPU_TO_HOST, c->stream));
        GPU(cudaStreamSynchronize(c->stream));
        T(bytes[0] == t[i].sum[c->n] && bytes[8] == t[i].sum[c->n]);
        GPU(cudaFree(d));
    }
}
TEST(eight_bits) {
    for (uint32_t n = 1; n < 5; ++n) on_cards(n, eight_bits_of_rank, NULL);
    clean();
}

/* ---- parts of different lengths, messages, several as one ---- */

static void uneven_of_rank(card *c) {
    uint64_t counts[RANKS_MAX], back[RANKS_MAX], sum = 0, mine, at = 0;
    float host[64], *in, *out;
    cdp_work w;
    cdp_request rq;
    for (uint32_t r = 0; r < c->n; ++r) {
        counts[r] = r * 2; /* rank 0 has nothing */
        if (r < c->rank) at += counts[r];
        sum += counts[r];
    }
    mine = counts[c->rank];
    for (uint32_t i = 0; i < 64; ++i) host[i] = (float)(100 * c->rank + i);
    in = (float *)gpu_new(host, sizeof host);
    out = (float *)gpu_new(NULL, sizeof host);
    memset(&rq, 0, sizeof rq);
    rq.kind = CDP_COLL_ALLGATHER;
    rq.in = in;
    rq.out = out;
    rq.out_counts = counts;
    OK(cdp_start(c->g, &rq, &w));
    memset(back, 0xff, sizeof back);
    OK(cdp_work_wait(w));
    GPU(cudaMemcpyAsync(host, out, sum * 4, GPU_TO_HOST, c->stream)), GPU(cudaStreamSynchronize(c->stream));
    for (uint32_t r = 0, k = 0; r < c->n; ++r)
        for (uint32_t i = 0; i < counts[r]; ++i) T(host[k++] == (float)(100 * r + i));
    rq.kind = CDP_COLL_REDUCE_SCATTER; /* the input has `sum` elements on every rank */
    rq.in_counts = counts;
    rq.out_counts = NULL;
    OK(cdp_start(c->g, &rq, &w));
    OK(cdp_work_wait(w));
    GPU(cudaMemcpyAsync(host, out, 64, GPU_TO_HOST, c->stream)), GPU(cudaStreamSynchronize(c->stream));
    for (uint32_t i = 0; i < mine; ++i) T(host[i] == (float)(100 * (c->n * (c->n - 1) / 2) + c->n * (at + i)));
    rq.kind = CDP_COLL_ALLTOALL; /* rank i sends 1 + i + j to j */
    for (uint32_t r = 0; r < c->n; ++r) counts[r] = back[r] = 1 + c->rank + r;
    rq.in_counts = counts;
    rq.out_counts = back;
    OK(cdp_start(c->g, &rq, &w));
    OK(cdp_work_wait(w));
    GPU(cudaMemcpyAsync(host, out, sizeof host, GPU_TO_HOST, c->stream)), GPU(cudaStreamSynchronize(c->stream));
    for (uint32_t r = 0, k = 0; r < c->n; ++r) {
        uint32_t first = 0;
        for (uint32_t j = 0; j < c->rank; ++j) first += 1 + r + j;
        for (uint32_t i = 0; i < back[r]; ++i) T(host[k++] == (float)(100 * r + first + i));
    }
    for (int gather = 0; gather < 2; ++gather) { /* from and to root 1 */
        for (uint32_t r = 0; r < c->n; ++r) counts[r] = r + 1;
        memset(&rq, 0, sizeof rq);
        rq.kind = gather ? CDP_COLL_GATHER : CDP_COLL_SCATTER;
        rq.root = 1;
        rq.in = in;
        rq.out = out;
        if (gather) rq.out_counts = counts;
        else rq.in_counts = counts;
        OK(cdp_start(c->g, &rq, &w));
        OK(cdp_work_wait(w));
        GPU(cudaMemcpyAsync(host, out, sizeof host, GPU_TO_HOST, c->stream)), GPU(cudaStreamSynchronize(c->stream));
        if (!gather) {
            for (uint32_t i = 0; i <= c->rank; ++i) T(host[i] == (float)(100 + c->rank * (c->rank + 1) / 2 + i));
        } else if (c->rank == 1) {
            for (uint32_t r = 0, k = 0; r < c->n; ++r)
                for (uint32_t i = 0; i <= r; ++i) T(host[k++] == (float)(100 * r + i));
        }
    }
    GPU(cudaFree(in)), GPU(cudaFree(out));
}
TEST(uneven) {
    on_cards(3, uneven_of_rank, NULL);
    clean();
}

static void messages_of_rank(card *c) {
    float host[8], *d, *e;
    const uint32_t next = (c->rank + 1) % c->n, before = (c->rank + c->n - 1) % c->n;
    cdp_transfer list[2 * RANKS_MAX];
    cdp_work w;
    cdp_message m;
    for (int i = 0; i < 8; ++i) host[i] = (float)(10 * c->rank + (uint32_t)i);
    d = (float *)gpu_new(host, sizeof host);
    e = (float *)gpu_new(NULL, 8 * RANKS_MAX * sizeof(float));
    for (int round = 0; round < 5; ++round) {
        OK(cdp_sendrecv(c->g, d, 8, next, e, 8, before, CDP_DTYPE_F32, (uint32_t)round));
        GPU(cudaMemcpyAsync(host, e, sizeof host, GPU_TO_HOST, c->stream)), GPU(cudaStreamSynchronize(c->stream));
        T(host[0] == (float)(10 * before) && host[7] == (float)(10 * before + 7));
        GPU(cudaMemset(e, 0, sizeof host)), GPU(cudaDeviceSynchronize());
    }
    if (c->rank == 0) OK(cdp_send(c->g, d, 3, CDP_DTYPE_F32, 1, 7));
    if (c->rank == 1) {
        OK(cdp_recv_async(c->g, e, 3, CDP_DTYPE_F32, 0, 7, &w));
        OK(cdp_work_wait_for(w, 20000));
        gpu_get(host, e, 12);
        T(host[2] == 2);
    }
    memset(list, 0, sizeof list); /* everybody to everybody, one batch, sends first */
    uint32_t n = 0;
    for (int receive = 0; receive < 2; ++receive)
        for (uint32_t r = 0; r < c->n; ++r) {
            if (r == c->rank) continue;
            list[n].receive = receive != 0;
            list[n].data = receive ? e + 8 * r : d;
            list[n].count = 8;
            list[n++].peer = r;
        }
    OK(cdp_batch(c->g, list, n, &w));
    OK(cdp_work_wait(w));
    for (uint32_t r = 0; r < c->n; ++r) {
        if (r == c->rank) continue;
        GPU(cudaMemcpyAsync(host, e + 8 * r, sizeof host, GPU_TO_HOST, c->stream)), GPU(cudaStreamSynchronize(c->stream));
        T(host[0] == (float)(10 * r) && host[7] == (float)(10 * r + 7));
    }
    FAILS(CDP_ERR_UNSUPPORTED, "from which rank", cdp_recv_any(c->g, e, 8, CDP_DTYPE_F32, CDP_ANY_RANK, 1, &m));
    FAILS(CDP_ERR_INVALID, "", cdp_send(c->g, d, 1, CDP_DTYPE_F32, c->rank, 1));
    OK(cdp_barrier(c->g));
    GPU(cudaFree(d)), GPU(cudaFree(e));
}
TEST(messages) {
    on_cards(3, messages_of_rank, NULL);
    clean();
}

static void several_of_rank(card *c) {
    enum { N = 7 };
    cdp_request rq[N];
    cdp_work w;
    float host[N], *d[N];
    memset(rq, 0, sizeof rq);
    for (int i = 0; i < N; ++i) {
        host[0] = (float)(i + (int)c->rank);
        d[i] = (float *)gpu_new(host, 4);
        rq[i].kind = i % 3 == 2 ? CDP_COLL_BROADCAST : CDP_COLL_ALLREDUCE;
        rq[i].op = i % 3 ? CDP_REDUCE_MAX : CDP_REDUCE_SUM;
        if (i % 3 == 2) rq[i].op = CDP_REDUCE_DEFAULT;
        rq[i].root = i % 3 == 2 ? 1 : 0;
        rq[i].out = d[i];
        rq[i].count = 1;
    }
    OK(cdp_start_all(c->g, rq, N, &w));
    OK(cdp_work_wait(w));
    for (int i = 0; i < N; ++i) {
        GPU(cudaMemcpyAsync(&host[i], d[i], 4, GPU_TO_HOST, c->stream)), GPU(cudaStreamSynchronize(c->stream));
        const float n = (float)c->n;
        T(host[i] == (i % 3 == 2 ? (float)i + 1 : i % 3 == 1 ? (float)i + n - 1 : n * (float)i + n * (n - 1) / 2));
    }
    rq[3].out = host; /* memory of the processor among it */
    FAILS(CDP_ERR_INVALID, "", cdp_start_all(c->g, rq, N, &w));
    OK(cdp_barrier(c->g));
    T(cdp_group_status(c->g) == CDP_OK);
    for (int i = 0; i < N; ++i) GPU(cudaFree(d[i]));
}
TEST(several_as_one) {
    on_cards(3, several_of_rank, NULL);
    clean();
}

/* ---- order ---- */

enum { CHAIN = 64 };

/* Input that comes late in the caller's stream, and output that is read there: `rounds` times. Returns how often it was wrong. */
static int chain(card *c, int rounds, bool all_waits) {
    float *h, *d, *e, *back;
    int wrong = 0;
    GPU(cudaMallocHost((void **)&h, CHAIN * 4)), GPU(cudaMallocHost((void **)&back, CHAIN * 4));
    d = (float *)gpu_new(NULL, CHAIN * 4);
    e = (float *)gpu_new(NULL, CHAIN * 4);
    for (int i = 0; i < rounds; ++i) {
        cdp_work w;
        for (int k = 0; k < CHAIN; ++k) h[k] = (float)(i + k) + (float)c->rank;
        put_late(d, h, CHAIN * 4, c->stream, 2);
        OK(cdp_allreduce_async(c->g, d, e, CHAIN, CDP_DTYPE_F32, CDP_REDUCE_SUM, &w));
        if (all_waits || i % 2) OK(cdp_work_wait(w));
        else OK(cdp_work_wait_for(w, 60000));
        GPU(cudaMemcpyAsync(back, e, CHAIN * 4, GPU_TO_HOST, c->stream));
        GPU(cudaMemsetAsync(d, 0x77, CHAIN * 4, c->stream)), GPU(cudaMemsetAsync(e, 0x77, CHAIN * 4, c->stream));
        GPU(cudaStreamSynchronize(c->stream));
        for (int k = 0; k < CHAIN; ++k)
            if (back[k] != (float)(c->n * (uint32_t)(i + k) + c->n * (c->n - 1) / 2)) {
                ++wrong;
                break;
            }
    }
    GPU(cudaDeviceSynchronize());
    GPU(cudaFree(d)), GPU(cudaFree(e)), GPU(cudaFreeHost(h)), GPU(cudaFreeHost(back));
    return wrong;
}
static void chain_of_rank(card *c) { T_EQ(0, chain(c, 20, *(bool *)c->arg)); }
TEST(order) {
    for (int all = 0; all < 2; ++all) {
        bool waits = all == 1;
        on_cards(2, chain_of_rank, &waits);
    }
    cards zero;
    bool waits = true;
    memset(&zero, 0, sizeof zero);
    zero.n = 2, zero.zero_stream = true, zero.func = chain_of_rank, zero.arg = &waits;
    cards_run(&zero);
    clean();
}

/* The proof that `order` can fail: without any one of the waits between streams results are wrong. */
typedef struct planted {
    int wrong;
    long drop;
    pthread_barrier_t all;
} planted;
static void planted_of_rank(card *c) {
    planted *const p = (planted *)c->arg;
    for (int i = 0; i < 15; ++i) {
        pthread_barrier_wait(&p->all);
        if (c->rank == 0) standin_set("drop_wait", p->drop);
        pthread_barrier_wait(&p->all);
        const int wrong = chain(c, 1, true);
        __atomic_add_fetch(&p->wrong, wrong, __ATOMIC_SEQ_CST);
        pthread_barrier_wait(&p->all);
        standin_set("drop_wait", 0);
    }
}
TEST(order_can_fail) {
    if (TEST_OWN_THREADS) {
        test_skip("ThreadSanitizer reports the planted races themselves");
        return;
    }
    for (long drop = -1; drop <= 2; ++drop) { /* one operation of one rank has two waits: on the way in, and on the way out */
        planted p;
        memset(&p, 0, sizeof p);
        p.drop = drop;
        pthread_barrier_init(&p.all, NULL, 1);
        on_cards(1, planted_of_rank, &p);
        pthread_barrier_destroy(&p.all);
        if (drop == 0) T_EQ(0, p.wrong);
        else test_check(p.wrong > 0, __FILE__, __LINE__, "without wait %ld nothing was wrong", drop);
    }
    clean();
}

/* The host never waits where it is not asked to. */
static void host_is_free_of_rank(card *c) {
    float *d = (float *)gpu_new(NULL, 4);
    cdp_work w[20];
    const uint64_t start = test_now_ns();
    GPU(cudaLaunchHostFunc(c->stream, host_nap, (void *)400));
    for (int i = 0; i < 20; ++i) OK(cdp_allreduce_async(c->g, NULL, d, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM, &w[i]));
    T_EQ(CDP_PENDING, cdp_work_test(w[0]));
    for (int i = 0; i < 20; ++i) OK(cdp_work_wait(w[i]));
    OK(cdp_allreduce(c->g, NULL, d, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    const uint64_t took = test_now_ns() - start;
    test_check(took < 390000000u || TEST_SLOW, __FILE__, __LINE__, "the host waited for the device: %.0f ms", (double)took / 1e6);
    T_EQ(CDP_PENDING, cdp_work_wait_for(w[19], 1));
    OK(cdp_work_wait_for(w[19], 60000));
    OK(cdp_work_test(w[0])), OK(cdp_work_test(w[19]));
    OK(cdp_work_wait_for(w[3], 0));
    GPU(cudaDeviceSynchronize()), GPU(cudaFree(d));
}
static void host_waits_of_rank(card *c) {
    float *d = (float *)gpu_new(NULL, 4);
    const uint64_t start = test_now_ns();
    GPU(cudaLaunchHostFunc(c->stream, host_nap, (void *)100));
    OK(cdp_allreduce(c->g, NULL, d, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    T(test_now_ns() - start > 90000000u);
    GPU(cudaFree(d));
}
TEST(waits) {
    cards all;
    on_cards(2, host_is_free_of_rank, NULL);
    memset(&all, 0, sizeof all);
    all.n = 2, all.func = host_waits_of_rank, all.desc.blocking_wait = true;
    cards_run(&all);
    clean();
}

/* Another stream of the caller from some operation on. */
static void streams_of_rank(card *c) {
    void *other;
    GPU(cudaStreamCreateWithFlags(&other, GPU_NON_BLOCKING));
    void *const first = c->stream;
    for (int i = 0; i < 6; ++i) {
        c->stream = i % 2 ? other : first;
        cdp_nccl_set_stream(c->g, c->stream);
        T_EQ(0, chain(c, 2, true));
    }
    c->stream = first;
    cdp_nccl_set_stream(c->g, first);
    GPU(cudaStreamDestroy(other));
    T_EQ(0, chain(c, 1, true));
}
TEST(other_streams) {
    on_cards(2, streams_of_rank, NULL);
    clean();
}

/* Memory that goes back in stream order right after the wait; many in flight at once. */
static void lifetimes_of_rank(card *c) {
    enum { N = 40 };
    void *h;
    cdp_work w;
    GPU(cudaMallocHost(&h, 4 * N));
    for (int i = 0; i < N; ++i) {
        void *d;
        GPU(cudaMallocAsync(&d, 4, c->stream));
        ((float *)h)[i] = (float)i;
        GPU(cudaMemcpyAsync(d, (float *)h + i, 4, GPU_TO_DEVICE, c->stream));
        OK(cdp_allreduce_async(c->g, NULL, d, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM, &w));
        OK(cdp_work_wait(w));
        GPU(cudaMemcpyAsync((float *)h + i, d, 4, GPU_TO_HOST, c->stream));
        GPU(cudaFreeAsync(d, c->stream));
    }
    GPU(cudaStreamSynchronize(c->stream));
    for (int i = 0; i < N; ++i) T(((float *)h)[i] == (float)(c->n * (uint32_t)i));
    GPU(cudaFreeHost(h));
}
TEST(lifetimes) {
    on_cards(3, lifetimes_of_rank, NULL);
    clean();
}

/* ---- what a group with a backend says and refuses ---- */

static cdp_status never(void *user, cdp_status st) {
    (void)user;
    return st;
}

static void refusals_of_rank(card *c) {
    static __thread char text[65536];
    float host[8] = {0}, *d = (float *)gpu_new(NULL, 64), *far, *managed, *pinned;
    cdp_nccl_desc desc;
    cdp_work w, w2;
    cdp_request rq;
    memset(&desc, 0, sizeof desc);
    T(cdp_nccl_version(c->g) == 22907 && cdp_nccl_comm(c->g) && cdp_nccl_stream(c->g) && cdp_nccl_stream(c->g) != c->stream);
    T(cdp_group_backend(c->g) != NULL);
    cdp_describe(c->g, text, sizeof text);
    T_TEXT("NCCL", text);
    FAILS(CDP_ERR_STATE, "", cdp_nccl_attach(c->g, &desc));
    FAILS(CDP_ERR_STATE, "", cdp_group_set_backend(c->g, cdp_group_backend(c->g)));
    /* memory of the processor on one side */
    FAILS(CDP_ERR_INVALID, "", cdp_allreduce(c->g, host, d, 8, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    FAILS(CDP_ERR_INVALID, "", cdp_allreduce(c->g, d, host, 8, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    FAILS(CDP_ERR_INVALID, "", cdp_allreduce(c->g, NULL, NULL, 8, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    FAILS(CDP_ERR_UNSUPPORTED, "", cdp_allreduce(c->g, NULL, d, 8, CDP_DTYPE_I16, CDP_REDUCE_SUM));
    FAILS(CDP_ERR_UNSUPPORTED, "", cdp_allreduce(c->g, NULL, d, 8, CDP_DTYPE_I32, CDP_REDUCE_BAND));
    FAILS(CDP_ERR_INVALID, "", cdp_broadcast(c->g, d, 8, CDP_DTYPE_F32, 99));
    FAILS(CDP_ERR_INVALID, "", cdp_allreduce(c->g, NULL, d, 8, (cdp_dtype)99, CDP_REDUCE_SUM));
    /* another device's memory; another device is current */
    GPU(cudaSetDevice(1 - (int)c->device));
    far = (float *)gpu_new(NULL, 64);
    FAILS(CDP_ERR_INVALID, "device", cdp_allreduce(c->g, NULL, d, 8, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    GPU(cudaSetDevice((int)c->device));
    FAILS(CDP_ERR_INVALID, "device", cdp_allreduce(c->g, NULL, far, 8, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    /* what works of the device cannot do */
    OK(cdp_allreduce_async(c->g, NULL, d, 8, CDP_DTYPE_F32, CDP_REDUCE_SUM, &w));
    FAILS(CDP_ERR_UNSUPPORTED, "", cdp_work_then(w, never, NULL, &w2));
    FAILS(CDP_ERR_UNSUPPORTED, "", cdp_work_cancel(w));
    memset(&rq, 0, sizeof rq);
    rq.kind = CDP_COLL_ALLREDUCE, rq.out = d, rq.count = 1;
    FAILS(CDP_ERR_UNSUPPORTED, "", cdp_start_after(c->g, &rq, w, &w2));
    OK(cdp_work_wait_for(w, 60000));
    w.seq += 1000;
    FAILS(CDP_ERR_INVALID, "", cdp_work_wait(w));
    /* managed memory is the device's, pinned memory the processor's */
    GPU(cudaMallocManaged((void **)&managed, 64, 1)), GPU(cudaMallocHost((void **)&pinned, 64));
    managed[0] = pinned[0] = 1;
    const long ops = standin_calls("ncclAllReduce");
    OK(cdp_allreduce(c->g, NULL, pinned, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    T(pinned[0] == (float)c->n);
    OK(cdp_barrier(c->g));
    T_EQ(ops, standin_calls("ncclAllReduce"));
    OK(cdp_barrier(c->g));
    OK(cdp_allreduce(c->g, NULL, managed, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    GPU(cudaStreamSynchronize(c->stream));
    T(managed[0] == (float)c->n);
    T(standin_calls("ncclAllReduce") > ops);
    T(cdp_group_status(c->g) == CDP_OK);
    GPU(cudaDeviceSynchronize());
    GPU(cudaFree(d)), GPU(cudaFree(far)), GPU(cudaFreeHost(managed)), GPU(cudaFreeHost(pinned));
}
TEST(refusals) {
    cdp_group *alone;
    cdp_group_desc d;
    void *p = &p;
    cdp_hook hook;
    on_cards(2, refusals_of_rank, NULL);
    memset(&d, 0, sizeof d);
    d.world_size = 1;
    OK(cdp_group_create(&d, &alone)); /* functions of a group without */
    T(cdp_nccl_version(alone) == 0 && !cdp_nccl_comm(alone) && !cdp_nccl_stream(alone) && !cdp_group_backend(alone));
    FAILS(CDP_ERR_INVALID, "cdp_nccl_attach", cdp_nccl_alloc(alone, 64, &p));
    FAILS(CDP_ERR_INVALID, "cdp_nccl_attach", cdp_nccl_hook_create(alone, CDP_HOOK_FP16, &hook));
    cdp_nccl_free(alone, NULL);
    cdp_nccl_set_stream(alone, NULL);
    T(cdp_nccl_attach(NULL, NULL) == CDP_ERR_INVALID);
    T(cdp_group_set_backend(alone, NULL) == CDP_ERR_INVALID);
    void *const dev = gpu_new(NULL, 8); /* device memory, but nothing attached: not a crash */
    GPU(cudaFree(dev));
    cdp_group_destroy(alone);
    clean();
}

static void memory_of_rank(card *c) {
    float *a = NULL, *b = NULL;
    OK(cdp_nccl_alloc(c->g, 1000, (void **)&a));
    OK(cdp_nccl_alloc(c->g, 0, (void **)&b));
    GPU(cudaMemsetAsync(a, 0, 1000, c->stream));
    OK(cdp_allreduce(c->g, NULL, a, 250, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    GPU(cudaStreamSynchronize(c->stream));
    cdp_nccl_free(c->g, a), cdp_nccl_free(c->g, b), cdp_nccl_free(c->g, NULL);
    FAILS(CDP_ERR_NOMEM, "", cdp_nccl_alloc(c->g, (uint64_t)1 << 40, (void **)&a));
    T(cdp_group_status(c->g) == CDP_OK);
}
TEST(memory) {
    cards all;
    on_cards(2, memory_of_rank, NULL);
    memset(&all, 0, sizeof all);
    all.n = 2, all.func = memory_of_rank, all.desc.no_register = true;
    cards_run(&all);
    clean();
}

/* ---- graphs ---- */

static void capture_of_rank(card *c) {
    void *graph = NULL, *exec = NULL;
    float host[4], *h, *d = (float *)gpu_new(NULL, 16), *e = (float *)gpu_new(NULL, 16);
    cdp_work w[3];
    GPU(cudaMallocHost((void **)&h, 16));
    OK(cdp_barrier(c->g));
    OK(cdp_allreduce(c->g, NULL, e, 4, CDP_DTYPE_F32, CDP_REDUCE_SUM)); /* one outside before */
    if (!OK(cdp_barrier(c->g))) return;
    GPU(cudaStreamBeginCapture(c->stream, 1)); /* other ranks capture, too, in this process: each thread for itself */
    GPU(cudaMemcpyAsync(d, h, 16, GPU_TO_DEVICE, c->stream));
    for (int i = 0; i < 3; ++i) {
        OK(cdp_allreduce_async(c->g, i % 2 ? e : d, i % 2 ? d : e, 4, CDP_DTYPE_F32, CDP_REDUCE_SUM, &w[i]));
        OK(cdp_work_wait(w[i]));
    }
    FAILS(CDP_ERR_STATE, "captur", cdp_work_wait_for(w[2], 10));
    GPU(cudaMemcpyAsync(h, e, 16, GPU_TO_HOST, c->stream));
    T_EQ(0, gpu_cudaStreamEndCapture(c->stream, &graph));
    FAILS(CDP_ERR_STATE, "captur", cdp_work_wait(w[2]));
    FAILS(CDP_ERR_STATE, "captur", cdp_work_wait_for(w[0], 10));
    if (!graph || gpu_cudaGraphInstantiate(&exec, graph, 0) != 0) {
        NOTE("rank %u: nothing was captured", c->rank);
        return;
    }
    OK(cdp_barrier(c->g));
    for (int i = 0; i < 10; ++i) {
        for (int k = 0; k < 4; ++k) h[k] = (float)(i + k);
        GPU(cudaGraphLaunch(exec, c->stream));
        if (i % 3 == 0) OK(cdp_allreduce(c->g, NULL, d, 4, CDP_DTYPE_F32, CDP_REDUCE_SUM)); /* and others between them */
        GPU(cudaStreamSynchronize(c->stream));
        for (int k = 0; k < 4; ++k) T(h[k] == (float)(c->n * c->n * c->n) * (float)(i + k));
    }
    OK(cdp_barrier(c->g));
    T(cdp_group_status(c->g) == CDP_OK);
    gpu_get(host, d, 16);
    GPU(cudaGraphExecDestroy(exec)), GPU(cudaGraphDestroy(graph));
    GPU(cudaFree(d)), GPU(cudaFree(e)), GPU(cudaFreeHost(h));
}
TEST(graphs) {
    cards all;
    for (int watched = 0; watched < 2; ++watched) { /* a watchdog must leave a capture alone */
        memset(&all, 0, sizeof all);
        all.n = 2, all.func = capture_of_rank, all.desc.watchdog_ms = watched ? 1 : 0;
        cards_run(&all);
    }
    clean();
}

/* In global mode no other thread may ask for anything: neither the watchdog, nor the progress thread, nor a caller's test. */
static bool tests_go_on;
static cdp_work tested;
static void *tester(void *unused) {
    (void)unused;
    while (__atomic_load_n(&tests_go_on, __ATOMIC_SEQ_CST)) {
        const cdp_status st = cdp_work_test(tested);
        T(st == CDP_OK || st == CDP_PENDING);
    }
    return NULL;
}
static void global_capture_of_rank(card *c) {
    void *graph = NULL, *exec = NULL;
    pthread_t t;
    float h = 0, *d = (float *)gpu_new(&h, 4);
    OK(cdp_allreduce_async(c->g, NULL, d, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM, &tested));
    GPU(cudaLaunchHostFunc(c->stream, host_nap, (void *)50));
    __atomic_store_n(&tests_go_on, true, __ATOMIC_SEQ_CST);
    T_EQ(0, pthread_create(&t, NULL, tester, NULL));
    for (int i = 0; i < 3; ++i) {
        cdp_work w;
        GPU(cudaStreamBeginCapture(c->stream, 0));
        OK(cdp_allreduce_async(c->g, NULL, d, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM, &w));
        test_sleep_ms(20);
        OK(cdp_work_wait(w));
        T_EQ(0, gpu_cudaStreamEndCapture(c->stream, &graph));
        if (!graph || gpu_cudaGraphInstantiate(&exec, graph, 0) != 0) break;
        GPU(cudaGraphLaunch(exec, c->stream));
        GPU(cudaStreamSynchronize(c->stream));
        GPU(cudaGraphExecDestroy(exec)), GPU(cudaGraphDestroy(graph));
    }
    __atomic_store_n(&tests_go_on, false, __ATOMIC_SEQ_CST);
    pthread_join(t, NULL);
    GPU(cudaDeviceSynchronize()), GPU(cudaFree(d));
}
TEST(graphs_and_other_threads) {
    cards all;
    memset(&all, 0, sizeof all);
    all.n = 1, all.func = global_capture_of_rank, all.desc.watchdog_ms = 1;
    cards_run(&all);
    clean();
}

/* ---- failures ---- */

typedef struct failing {
    uint32_t silent;        /* this rank does not call */
    cdp_status want;
    const char *part;
    bool abort, test_only;
    cdp_nccl_desc desc;
    uint32_t timeout_ms;
    uint64_t within_ms;
} failing;

static cdp_group *group_of_zero;
static void *abort_soon(void *unused) {
    (void)unused;
    test_sleep_ms(100);
    cdp_group_abort(group_of_zero, "enough of it");
    return NULL;
}

static void failing_of_rank(card *c) {
    const failing *const f = (const failing *)c->arg;
    float *d = (float *)gpu_new(NULL, 4 * 1000);
    cdp_status st = CDP_OK;
    cdp_work w;
    pthread_t t;
    const uint64_t start = test_now_ns();
    OK(cdp_barrier(c->g));
    if (c->rank == 0 && f->abort) {
        group_of_zero = c->g;
        T_EQ(0, pthread_create(&t, NULL, abort_soon, NULL));
    }
    if (c->rank != f->silent) {
        st = cdp_allreduce_async(c->g, NULL, d, 1000, CDP_DTYPE_F32, CDP_REDUCE_SUM, &w);
        if (st == CDP_OK && !f->test_only) st = cdp_work_wait_for(w, 30000);
        while (f->test_only && (st == CDP_OK || st == CDP_PENDING) && test_now_ns() - start < 30000000000u) {
            test_sleep_ms(5);
            st = cdp_work_test(w);
        }
    } else {
        while ((st = cdp_group_status(c->g)) == CDP_OK && test_now_ns() - start < 30000000000u) test_sleep_ms(5);
    }
    const uint64_t took = test_now_ns() - start;
    test_check(st == f->want, __FILE__, __LINE__, "rank %u got %s: %s", c->rank, cdp_status_name(st), cdp_last_error()->text);
    if (f->part && st < 0) T_TEXT(f->part, cdp_last_error()->text);
    T_WITHIN(f->within_ms, took);
    if (c->rank == 0 && f->abort) pthread_join(t, NULL);
    /* the stream is alive: what hung was ended */
    const uint64_t then = test_now_ns();
    GPU(cudaStreamSynchronize(c->stream));
    T_WITHIN(1000, test_now_ns() - then);
    T(cdp_allreduce(c->g, NULL, d, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM) == f->want);
    for (int i = 0; i < 100 && cdp_nccl_comm(c->g) && !f->desc.keep; ++i) test_sleep_ms(10);
    T(cdp_nccl_comm(c->g) == NULL || f->desc.keep);
    for (int i = 0; i < 100 && standin_left("comms") && !f->desc.keep; ++i) test_sleep_ms(10);
    GPU(cudaFree(d));
}

static void fail_as(failing f, uint32_t n) {
    cards all;
    memset(&all, 0, sizeof all);
    all.n = n;
    all.func = failing_of_rank;
    all.arg = &f;
    all.desc = f.desc;
    all.group.timeout_ms = f.timeout_ms;
    all.group.logger.level = CDP_LOG_SILENT;
    cards_run(&all);
    clean();
}

TEST(aborted) {
    for (uint32_t silent = 0; silent < 3; ++silent) {
        failing f;
        memset(&f, 0, sizeof f);
        f.silent = silent, f.want = CDP_ERR_ABORTED, f.part = "enough of it", f.abort = true, f.within_ms = 1000;
        fail_as(f, silent ? 3 : 2);
    }
}

TEST(deadline) { /* rank 1 does not call */
    for (int k = 0; k < 5; ++k) {
        failing f;
        memset(&f, 0, sizeof f);
        f.silent = 1, f.want = CDP_ERR_TIMEOUT, f.timeout_ms = 500, f.within_ms = 1500;
        f.part = "rank 1";
        f.test_only = k == 1;
        f.desc.watchdog_ms = k == 2 ? 20 : 0;
        f.desc.no_check = k >= 3; /* then nobody knows who is late */
        f.desc.no_vigil = k == 4;
        if (f.desc.no_check) f.part = NULL;
        fail_as(f, 2);
    }
}

static void mismatch_of_rank(card *c) {
    float *d = (float *)gpu_new(NULL, 4000);
    cdp_work w;
    cdp_status st = cdp_allreduce_async(c->g, NULL, d, c->rank == 1 ? 77 : 78, CDP_DTYPE_F32, CDP_REDUCE_SUM, &w);
    if (st == CDP_OK) st = cdp_work_wait_for(w, 30000);
    test_check(st == CDP_ERR_MISMATCH, __FILE__, __LINE__, "rank %u: %s %s", c->rank, cdp_status_name(st), cdp_last_error()->text);
    T_TEXT("77", cdp_last_error()->text);
    T_TEXT("78", cdp_last_error()->text);
    const uint64_t start = test_now_ns();
    GPU(cudaStreamSynchronize(c->stream));
    T_WITHIN(1000, test_now_ns() - start);
    GPU(cudaFree(d));
}
TEST(mismatch) {
    cards all;
    for (int first = 0; first < 2; ++first) {
        memset(&all, 0, sizeof all);
        all.n = 3, all.func = mismatch_of_rank, all.desc.check_first = first == 1, all.group.logger.level = CDP_LOG_SILENT;
        all.group.timeout_ms = 10000;
        cards_run(&all);
    }
    clean();
}

static void async_error_of_rank(card *c) {
    float *d = (float *)gpu_new(NULL, 4);
    cdp_work w;
    cdp_status st;
    OK(cdp_allreduce_async(c->g, NULL, d, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM, &w));
    OK(cdp_work_wait_for(w, 60000));
    OK(cdp_barrier(c->g));
    if (c->rank == 0) {
        OK(cdp_allreduce_async(c->g, NULL, d, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM, &w)); /* rank 1 never calls this one */
        standin_async_error(0, 6);
        st = cdp_work_wait_for(w, 30000);
        test_check(st == CDP_ERR_IO || st == CDP_ERR_PEER_LOST, __FILE__, __LINE__, "%s: %s", cdp_status_name(st), cdp_last_error()->text);
        T_TEXT("NCCL", cdp_last_error()->text);
    } else {
        const uint64_t start = test_now_ns();
        while ((st = cdp_group_status(c->g)) == CDP_OK && test_now_ns() - start < 30000000000u) test_sleep_ms(5);
        T(st < 0);
    }
    GPU(cudaStreamSynchronize(c->stream)), GPU(cudaFree(d));
}
TEST(asynchronous_error) {
    cards all;
    memset(&all, 0, sizeof all);
    all.n = 2, all.func = async_error_of_rank, all.group.logger.level = CDP_LOG_SILENT;
    cards_run(&all);
    clean();
}

/* A device that broke (somebody's kernel): an error, not a hang. */
static void sick_of_rank(card *c) {
    float *d = (float *)gpu_new(NULL, 4);
    cdp_work w;
    cdp_status st = CDP_OK;
    OK(cdp_barrier(c->g));
    if (c->rank == 0) {
        GPU(cudaMemsetAsync((char *)d + (1 << 20), 0, 4, c->stream)); /* not allocated */
        gpu_cudaStreamSynchronize(c->stream);
    }
    for (int i = 0; i < 100 && st >= 0; ++i) {
        st = cdp_allreduce_async(c->g, NULL, d, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM, &w);
        if (st == CDP_OK) st = cdp_work_wait_for(w, 1000);
    }
    T(st < 0);
    if (c->rank == 0) T(st == CDP_ERR_IO || st == CDP_ERR_INVALID);
    gpu_cudaFree(d);
}
TEST(sick_device) {
    cards all;
    memset(&all, 0, sizeof all);
    all.n = 2, all.func = sick_of_rank, all.group.logger.level = CDP_LOG_SILENT, all.group.timeout_ms = 3000;
    cards_run(&all);
    standin_forget_faults(); /* the planted one */
    clean();
}

/* Each function of the libraries fails once: no hang, no crash, nothing left, and no rank that believes in success alone. */
static void any_failure_of_rank(card *c) {
    cdp_group *part = NULL;
    cdp_nccl_desc desc;
    cdp_hook hook;
    void *mem = NULL, *d = gpu_new(NULL, 256);
    cdp_work w;
    cdp_status st;
    memset(&desc, 0, sizeof desc);
    desc.stream = c->stream;
    st = cdp_nccl_attach(c->g, &desc);
    if (st == CDP_OK) st = cdp_nccl_alloc(c->g, 1024, &mem);
    if (st == CDP_OK) st = cdp_allreduce_async(c->g, NULL, d, 64, CDP_DTYPE_F32, CDP_REDUCE_AVG, &w);
    if (st == CDP_OK) st = cdp_work_wait(w);
    if (st == CDP_OK) st = cdp_work_wait_for(w, 2000);
    if (st == CDP_OK) st = cdp_broadcast(c->g, d, 64, CDP_DTYPE_F32, 1);
    if (st == CDP_OK) st = cdp_group_split(c->g, 0, c->rank, &part);
    if (st == CDP_OK) st = cdp_allreduce(part, NULL, d, 64, CDP_DTYPE_F32, CDP_REDUCE_SUM);
    if (st == CDP_OK && cdp_nccl_hook_create(c->g, CDP_HOOK_FP16, &hook) == CDP_OK) hook.destroy(hook.self);
    if (st < 0) T(cdp_last_error()->text[0] != 0);
    if (st < 0) {
        cdp_group_abort(c->g, "this rank cannot go on");
        if (part) cdp_group_abort(part, "this rank cannot go on");
    }
    gpu_cudaStreamSynchronize(c->stream);
    cdp_nccl_free(c->g, mem);
    cdp_group_destroy(part);
    gpu_cudaDeviceSynchronize();
    gpu_cudaFree(d);
    __atomic_add_fetch((int *)c->arg, st < 0, __ATOMIC_SEQ_CST);
}
TEST(any_function_fails) {
    static const struct {
        const char *name;
        int code;
    } calls[] = {{"cudaGetDeviceCount", 100}, {"cudaGetDevice", 1}, {"cudaDeviceGetAttribute", 1}, {"cudaStreamCreateWithPriority", 2}, {"cudaStreamWaitEvent", 400},
                 {"cudaStreamIsCapturing", 400}, {"cudaEventCreateWithFlags", 2}, {"cudaEventRecord", 400}, {"cudaEventQuery", 700}, {"cudaPointerGetAttributes", 1},
                 {"cudaThreadExchangeStreamCaptureMode", 1}, {"ncclGetVersion", 1}, {"ncclGetUniqueId", 2}, {"ncclCommInitRankConfig", 2}, {"ncclCommGetAsyncError", 3},
                 {"ncclGroupStart", 3}, {"ncclGroupEnd", 1}, {"ncclAllReduce", 1}, {"ncclBroadcast", 1}, {"ncclCommSplit", 2}, {"ncclCommFinalize", 1}, {"ncclCommDestroy", 2},
                 {"ncclMemAlloc", 1}, {"ncclMemFree", 1}, {"ncclCommRegister", 3}, {"ncclCommDeregister", 3}, {"ncclRedOpCreatePreMulSum", 3}};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; ++i)
        for (int nth = 1; nth <= 3; ++nth) {
            cards all;
            int failed = 0;
            const uint64_t start = test_now_ns();
            memset(&all, 0, sizeof all);
            all.n = 2, all.func = any_failure_of_rank, all.no_attach = true, all.arg = &failed;
            all.group.timeout_ms = 3000, all.group.logger.level = CDP_LOG_SILENT;
            standin_fail(calls[i].name, nth, calls[i].code);
            cards_run(&all);
            standin_fail(calls[i].name, 0, 0);
            const uint64_t took = test_now_ns() - start;
            if (took > 3500000000ull * TEST_SLACK) NOTE("call %d of %s fails: it took %.1f s", nth, calls[i].name, (double)took / 1e9);
            const uint32_t before = test__now.failed_checks;
            clean();
            if (test__now.failed_checks != before) {
                NOTE("that was when call %d of %s failed (%d ranks failed)", nth, calls[i].name, failed);
                if (test__now.failed_checks > 8) return;
            }
        }
}

/* ---- groups made from it ---- */

static void split_of_rank(card *c) {
    cdp_group *half = NULL, *list = NULL;
    const uint32_t color = c->rank == 3 ? CDP_NO_COLOR : c->rank % 2, all[] = {0, 1, 2, 3};
    float host = (float)(1 << c->rank), *d = (float *)gpu_new(&host, 4);
    OK(cdp_group_split(c->g, color, 10 - c->rank, &half));
    T((half == NULL) == (c->rank == 3));
    if (half) {
        T(cdp_nccl_comm(half) && cdp_nccl_comm(half) != cdp_nccl_comm(c->g) && cdp_nccl_version(half));
        if (c->rank != 1) T_EQ(c->rank == 2 ? 0 : 1, cdp_rank(half));
        OK(cdp_allreduce(half, NULL, d, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    }
    GPU(cudaMemcpyAsync(&host, d, 4, GPU_TO_HOST, c->stream)), GPU(cudaStreamSynchronize(c->stream));
    T(host == (c->rank == 3 ? 8 : c->rank == 1 ? 2 : 5));
    OK(cdp_allreduce(c->g, NULL, d, 1, CDP_DTYPE_F32, CDP_REDUCE_MAX));
    GPU(cudaMemcpyAsync(&host, d, 4, GPU_TO_HOST, c->stream)), GPU(cudaStreamSynchronize(c->stream));
    T(host == 8);
    OK(cdp_group_new(c->g, all, 4, &list)); /* made from a list: has none, but may get one */
    T(!cdp_group_backend(list));
    cdp_nccl_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.stream = c->stream;
    OK(cdp_nccl_attach(list, &desc));
    OK(cdp_allreduce(list, NULL, d, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    GPU(cudaMemcpyAsync(&host, d, 4, GPU_TO_HOST, c->stream)), GPU(cudaStreamSynchronize(c->stream));
    T(host == 32);
    OK(cdp_barrier(c->g));
    cdp_group_destroy(list), cdp_group_destroy(half);
    GPU(cudaFree(d));
}
TEST(split) {
    on_cards(4, split_of_rank, NULL);
    clean();
}

/* The communicator of the survivors, made from the one that broke. */
static void shrink_of_rank(card *c) {
    cdp_group *rest = NULL;
    cdp_nccl_desc desc;
    const uint32_t survivors[] = {0, 2};
    float host = (float)c->rank + 1, *d = (float *)gpu_new(&host, 4);
    cdp_work w;
    OK(cdp_barrier(c->g));
    if (c->rank != 1) {
        cdp_status st = cdp_allreduce_async(c->g, NULL, d, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM, &w);
        if (st == CDP_OK) st = cdp_work_wait_for(w, 30000);
        T(st < 0);
        GPU(cudaStreamSynchronize(c->stream));
        memset(&desc, 0, sizeof desc);
        desc.stream = c->stream;
        desc.from = c->g;
        OK(cdp_group_new(c->g, survivors, 2, &rest));
        const long before = standin_calls("ncclCommShrink");
        if (OK(cdp_nccl_attach(rest, &desc))) {
            T(standin_calls("ncclCommShrink") > before);
            host = (float)c->rank + 1;
            GPU(cudaMemcpyAsync(d, &host, 4, GPU_TO_DEVICE, c->stream));
            OK(cdp_allreduce(rest, NULL, d, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM));
            GPU(cudaMemcpyAsync(&host, d, 4, GPU_TO_HOST, c->stream)), GPU(cudaStreamSynchronize(c->stream));
            T(host == 4);
        }
        cdp_group_destroy(rest);
    } else {
        test_sleep_ms(50);
        cdp_group_abort(c->g, "rank 1 is broken");
        test_sleep_ms(50);
    }
    GPU(cudaFree(d));
}
TEST(shrink) {
    cards all;
    memset(&all, 0, sizeof all);
    all.n = 3, all.func = shrink_of_rank, all.desc.keep = true, all.group.logger.level = CDP_LOG_SILENT;
    cards_run(&all);
    clean();
}

/* Two ranks, then three: the new one joins the communicator of the old ones. */
static void grow_of_rank(card *c) {
    cdp_group *two = NULL;
    cdp_nccl_desc desc;
    const uint32_t first[] = {0, 1};
    float host = (float)c->rank + 1, *d = (float *)gpu_new(&host, 4);
    memset(&desc, 0, sizeof desc);
    desc.stream = c->stream;
    if (c->rank < 2) {
        OK(cdp_group_new(c->g, first, 2, &two));
        OK(cdp_nccl_attach(two, &desc));
        OK(cdp_allreduce(two, NULL, d, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM));
        GPU(cudaStreamSynchronize(c->stream));
    }
    desc.grow = true;
    desc.from = two;
    const long before = standin_calls("ncclCommGrow");
    if (OK(cdp_nccl_attach(c->g, &desc))) {
        T(standin_calls("ncclCommGrow") > before);
        OK(cdp_allreduce(c->g, NULL, d, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM));
        GPU(cudaMemcpyAsync(&host, d, 4, GPU_TO_HOST, c->stream)), GPU(cudaStreamSynchronize(c->stream));
        T(host == 9);
    }
    OK(cdp_barrier(c->g));
    cdp_group_destroy(two);
    GPU(cudaFree(d));
}
TEST(grow) {
    cards all;
    memset(&all, 0, sizeof all);
    all.n = 3, all.func = grow_of_rank, all.no_attach = true;
    cards_run(&all);
    clean();
}

/* ---- leaving ---- */

static void nothing_of_rank(card *c) {
    float *d = (float *)gpu_new(NULL, 4);
    OK(cdp_allreduce(c->g, NULL, d, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    GPU(cudaStreamSynchronize(c->stream)), GPU(cudaFree(d));
}
TEST(leave_one_by_one) { /* nobody's leaving waits for another's */
    cards all;
    memset(&all, 0, sizeof all);
    all.n = 3, all.func = nothing_of_rank, all.one_by_one = true;
    const uint64_t start = test_now_ns();
    cards_run(&all);
    T_WITHIN(2000, test_now_ns() - start);
    clean();
}

static void leave_of_rank(card *c) { /* with operations in flight that cannot end any more */
    float *d = (float *)gpu_new(NULL, 4);
    cdp_work w;
    OK(cdp_barrier(c->g));
    if (c->rank == 0) OK(cdp_allreduce_async(c->g, NULL, d, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM, &w));
    test_sleep_ms(20);
    *(void **)((char *)c->arg + c->rank * sizeof(void *)) = d;
}
TEST(destroy_in_flight) {
    for (int i = 0; i < 5; ++i) {
        cards all;
        void *memory[2] = {NULL, NULL};
        memset(&all, 0, sizeof all);
        all.n = 2, all.func = leave_of_rank, all.arg = memory, all.group.logger.level = CDP_LOG_SILENT;
        const uint64_t start = test_now_ns();
        cards_run(&all);
        T_WITHIN(2000, test_now_ns() - start);
        for (int k = 0; k < 2; ++k) gpu_cudaFree(memory[k]);
    }
    clean();
}

/* Abort at random moments of a busy group, attach included: 100 ms, and nothing left. */
typedef struct storm {
    cdp_group *g[RANKS_MAX];
    pthread_t t;
    uint32_t after_us;
} storm;
static void storm_of_rank(card *c) {
    storm *const s = (storm *)c->arg;
    cdp_nccl_desc desc;
    float *d = (float *)gpu_new(NULL, 64);
    cdp_work w;
    memset(&desc, 0, sizeof desc);
    desc.stream = c->stream;
    s->g[c->rank] = c->g;
    if (c->rank == 0) {
        cdp_status st = cdp_nccl_attach(c->g, &desc);
        while (st == CDP_OK) {
            st = cdp_allreduce_async(c->g, NULL, d, 16, CDP_DTYPE_F32, CDP_REDUCE_SUM, &w);
            if (st == CDP_OK) st = cdp_work_wait_for(w, 5000);
        }
        T(st < 0);
    } else {
        cdp_status st = cdp_nccl_attach(c->g, &desc);
        while (st == CDP_OK) st = cdp_allreduce(c->g, NULL, d, 16, CDP_DTYPE_F32, CDP_REDUCE_SUM);
        T(st < 0);
    }
    T(cdp_last_error()->status == CDP_ERR_ABORTED);
    const uint64_t start = test_now_ns();
    GPU(cudaStreamSynchronize(c->stream));
    T_WITHIN(1000, test_now_ns() - start);
    GPU(cudaFree(d));
}
static void *storm_abort(void *p) {
    storm *const s = (storm *)p;
    while (!__atomic_load_n(&s->g[0], __ATOMIC_SEQ_CST)) usleep(100);
    usleep(s->after_us);
    const uint64_t start = test_now_ns();
    cdp_group_abort(s->g[0], "storm");
    T_WITHIN(100, test_now_ns() - start);
    return NULL;
}
static void storm_over(void *p) { pthread_join(((storm *)p)->t, NULL); }
TEST(abort_anywhere) {
    uint64_t seed = 7;
    for (int i = 0; i < (TEST_SLOW ? 15 : 60); ++i) {
        cards all;
        storm s;
        memset(&all, 0, sizeof all), memset(&s, 0, sizeof s);
        s.after_us = (uint32_t)(test_random(&seed) % 12000);
        standin_set("slow_init", (long)(test_random(&seed) % 3));
        all.n = 2, all.func = storm_of_rank, all.no_attach = true, all.arg = &s, all.group.logger.level = CDP_LOG_SILENT;
        T_EQ(0, pthread_create(&s.t, NULL, storm_abort, &s));
        all.between = storm_over;
        cards_run(&all);
        clean();
        if (test__now.failed_checks) {
            NOTE("that was after %u us", s.after_us);
            break;
        }
    }
    standin_set("slow_init", 0);
}

/* ---- other libraries, and processes: this program again, with another library path ---- */

/* `which`: the kind of child, and its words */
static void run_child(const char *which, const char *folder, const char *settings, const char *expect) {
    char command[PATH_MAX * 2 + 300], line[600], all[4000] = "";
    snprintf(command, sizeof command, "STANDIN_FOLDER=x STANDIN='%s' LD_LIBRARY_PATH='%s' '%s' --child %s 2>&1", settings, libraries_folder(program, folder), program, which);
    FILE *const f = popen(command, "r");
    if (!T(f != NULL)) return;
    while (fgets(line, sizeof line, f)) strncat(all, line, sizeof all - strlen(all) - 1);
    const int rc = pclose(f);
    test_check(rc == 0 && strstr(all, expect) != NULL, __FILE__, __LINE__, "%s with %s %s: exit code %d, \"%s\" expected in: %s", which, folder, settings, rc, expect, all);
}

/* Prints what attach said; every rank must say the same, and the group must work without. */
static void child_attach_of_rank(card *c) {
    cdp_nccl_desc desc;
    float host = 1;
    memset(&desc, 0, sizeof desc);
    desc.stream = c->stream;
    const cdp_status st = cdp_nccl_attach(c->g, &desc);
    printf("rank %u: %s %s\n", c->rank, cdp_status_name(st), st == CDP_OK ? "" : cdp_last_error()->text);
    OK(cdp_allreduce(c->g, NULL, &host, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    T(host == 2);
    if (st == CDP_OK) {
        printf("version %u\n", cdp_nccl_version(c->g));
        cdp_group *part = NULL;
        void *d = gpu_new(NULL, 64), *mem = NULL;
        OK(cdp_allreduce(c->g, NULL, d, 4, CDP_DTYPE_F32, CDP_REDUCE_SUM));
        OK(cdp_alltoall(c->g, d, (char *)d + 32, 1, CDP_DTYPE_F32));
        OK(cdp_nccl_alloc(c->g, 64, &mem));
        cdp_nccl_free(c->g, mem);
        OK(cdp_group_split(c->g, 0, 0, &part));
        if (c->rank == 0 && cdp_nccl_version(c->g) < 22400) FAILS(CDP_ERR_UNSUPPORTED, "2.18", cdp_allreduce(c->g, NULL, d, 4, CDP_DTYPE_F8E4M3, CDP_REDUCE_SUM));
        memset(&desc, 0, sizeof desc);
        if (cdp_nccl_version(c->g) < 22700) { /* features of newer versions, refused by name */
            cdp_group *again = NULL;
            const uint32_t both[] = {0, 1};
            OK(cdp_group_new(c->g, both, 2, &again));
            desc.stream = c->stream, desc.from = c->g, desc.grow = true;
            FAILS(CDP_ERR_UNSUPPORTED, "ncclCommGrow", cdp_nccl_attach(again, &desc));
            desc.grow = false;
            FAILS(CDP_ERR_UNSUPPORTED, "ncclCommShrink", cdp_nccl_attach(again, &desc));
            OK(cdp_barrier(again));
            cdp_group_destroy(again);
        }
        GPU(cudaStreamSynchronize(c->stream));
        cdp_group_destroy(part);
        GPU(cudaFree(d));
    }
}

static void child_ranks(bool with_gpu) {
    cards all;
    memset(&all, 0, sizeof all);
    all.n = 2, all.func = child_attach_of_rank, all.no_attach = true, all.zero_stream = !with_gpu;
    cards_run(&all);
}

/* Without any library: only the group itself is there. */
typedef struct bare {
    cdp_nccl_desc desc;
    cdp_status st;
    char text[512];
} bare;
static void bare_of_rank(cdp_group *g, void *arg) {
    bare *const b = (bare *)arg + cdp_rank(g);
    float host = 1;
    b->st = cdp_nccl_attach(g, &b->desc);
    snprintf(b->text, sizeof b->text, "%s", cdp_last_error()->text);
    OK(cdp_allreduce(g, NULL, &host, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    T(host == 2);
}
static void child_bare(const char *cudart, const char *nccl) {
    bare b[RANKS_MAX];
    memset(b, 0, sizeof b);
    for (int r = 0; r < 2; ++r) {
        b[r].desc.cudart = *cudart ? cudart : NULL;
        b[r].desc.nccl = *nccl ? nccl : NULL;
    }
    run_ranks(2, NULL, 0, bare_of_rank, b);
    T(b[0].st == b[1].st);
    printf("%s %s\n", cdp_status_name(b[0].st), b[0].text);
}

TEST(libraries) {
    run_child("bare /nowhere/libcudart.so ''", "", "", "UNSUPPORTED"); /* the real ones may be installed: so by name */
    run_child("bare /nowhere/libcudart.so ''", "", "", "/nowhere/libcudart.so");
    run_child("bare '' /nowhere/libnccl.so", "", "", "/nowhere/libnccl.so");
    run_child("bare '' libcuda.so.1", "", "", "ncclGetVersion"); /* some other library */
    run_child("bare", "2.10", "", "UNSUPPORTED");
    run_child("bare", "2.10", "", "too old");
    run_child("bare", "", "devices=0", "device");
    run_child("bare", "", "driver=0", "driver");
    run_child("bare", "", "runtime=11000", "11.8");
    run_child("attach", "2.18", "", "version 21805");
    run_child("attach", "2.27", "", "version 22703");
    run_child("attach", "", "runtime=12040", "version 22907");
}

/* ---- a process that dies ---- */

static int child_rank(const char *port, uint32_t rank, uint32_t n, bool dies) {
    cdp_group *g = NULL;
    cdp_nccl_desc desc;
    void *d;
    cdp_work w;
    char url[64];
    snprintf(url, sizeof url, "%s", port);
    setenv("MASTER_ADDR", "127.0.0.1", 1), setenv("MASTER_PORT", url, 1);
    char number[16];
    snprintf(number, sizeof number, "%u", rank), setenv("RANK", number, 1);
    snprintf(number, sizeof number, "%u", n), setenv("WORLD_SIZE", number, 1);
    if (gpu_load() || cdp_init_from_env(NULL, &g) != CDP_OK) return cdp_print_error(stdout);
    memset(&desc, 0, sizeof desc);
    if (gpu_cudaSetDevice((int)rank % 2) || cdp_nccl_attach(g, &desc) != CDP_OK) return cdp_print_error(stdout);
    d = gpu_new(NULL, 4000);
    cdp_status st = cdp_allreduce(g, NULL, d, 1000, CDP_DTYPE_F32, CDP_REDUCE_SUM);
    if (st == CDP_OK) st = (cdp_status)gpu_cudaDeviceSynchronize();
    if (st != CDP_OK) return cdp_print_error(stdout);
    if (dies) {
        st = cdp_allreduce_async(g, NULL, d, 10, CDP_DTYPE_F32, CDP_REDUCE_SUM, &w); /* others wait for more */
        test_sleep_ms(100);
        printf("rank %u dies\n", rank), fflush(stdout);
        raise(SIGKILL);
    }
    st = cdp_allreduce_async(g, NULL, d, 10, CDP_DTYPE_F32, CDP_REDUCE_SUM, &w);
    if (st == CDP_OK) st = cdp_allreduce_async(g, NULL, d, 20, CDP_DTYPE_F32, CDP_REDUCE_SUM, &w);
    if (st == CDP_OK) st = cdp_work_wait_for(w, 30000);
    printf("rank %u: %s %s\n", rank, cdp_status_name(st), cdp_last_error()->text);
    const uint64_t start = test_now_ns();
    gpu_cudaStreamSynchronize(NULL);
    const bool quick = test_now_ns() - start < 2000000000u;
    cdp_group_destroy(g);
    gpu_cudaFree(d);
    fflush(stdout);
    return quick ? 0 : 5;
}

TEST(killed_process) {
    char command[PATH_MAX * 2 + 200], line[800], all[6000] = "";
    const uint32_t port = 20000 + (uint32_t)getpid() % 20000;
    FILE *f[3];
    const uint64_t start = test_now_ns();
    for (int r = 0; r < 3; ++r) {
        snprintf(command, sizeof command, "exec '%s' --rank %u %d 3 %d 2>&1", program, port, r, r == 1);
        f[r] = popen(command, "r");
        if (!T(f[r] != NULL)) return;
    }
    for (int r = 0; r < 3; ++r) {
        while (fgets(line, sizeof line, f[r])) strncat(all, line, sizeof all - strlen(all) - 1);
        const int rc = pclose(f[r]);
        test_check(r == 1 ? rc != 0 : rc == 0, __FILE__, __LINE__, "rank %d ended with %d: %s", r, rc, all);
    }
    T_TEXT("rank 0: PEER_LOST", all);
    T_TEXT("rank 2: PEER_LOST", all);
    T_WITHIN(6000, test_now_ns() - start);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"table_1", table_1, 120}, {"table_2", table_2, 120}, {"table_3", table_3, 120}, {"table_4", table_4, 120}, {"eight_bits", eight_bits, 60},
        {"uneven", uneven, 60}, {"messages", messages, 60}, {"several_as_one", several_as_one, 60}, {"order", order, 60}, {"order_can_fail", order_can_fail, 60},
        {"waits", waits, 60}, {"other_streams", other_streams, 60}, {"lifetimes", lifetimes, 60}, {"refusals", refusals, 60}, {"memory", memory, 60},
        {"graphs", graphs, 60}, {"graphs_and_other_threads", graphs_and_other_threads, 60}, {"aborted", aborted, 60}, {"deadline", deadline, 60},
        {"mismatch", mismatch, 60}, {"asynchronous_error", asynchronous_error, 60}, {"sick_device", sick_device, 60}, {"split", split, 60}, {"shrink", shrink, 60},
        {"grow", grow, 60}, {"leave_one_by_one", leave_one_by_one, 60}, {"destroy_in_flight", destroy_in_flight, 60}, {"abort_anywhere", abort_anywhere, 120}, {"any_function_fails", any_function_fails, 120},
        {"libraries", libraries, 60}, {"killed_process", killed_process, 60}};
    program = argv[0];
    if (argc >= 3 && strcmp(argv[1], "--child") == 0) {
        const bool attach = strcmp(argv[2], "attach") == 0;
        if (attach && gpu_load()) return 3;
        test__now.name = argv[2];
        if (attach) child_ranks(true);
        else child_bare(argc > 3 ? argv[3] : "", argc > 4 ? argv[4] : "");
        return test__now.failed_checks != 0;
    }
    libraries_at_hand(argv, "");
    if (argc == 6 && strcmp(argv[1], "--rank") == 0) return child_rank(argv[2], (uint32_t)atoi(argv[3]), (uint32_t)atoi(argv[4]), atoi(argv[5]) != 0);
    const char *const missing = gpu_load();
    if (missing || !standin_set) {
        printf("  the stand-in does not load: %s\nnot ok load\n0 passed, 1 failed\n", missing ? missing : "this is no stand-in");
        return 1;
    }
    printf("on the stand-in for CUDA and NCCL, no GPU is involved\n");
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
