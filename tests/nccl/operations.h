/* operations.h - what the ranks of a test do with device memory, compared with the same over the
   links of the processor: for the stand-in (test_nccl.c) and for real GPUs (tests/gpu). Include
   after cards.h. */
#ifndef OPERATIONS_INCLUDED
#define OPERATIONS_INCLUDED

/* ---- every operation, against the links ---- */

typedef struct combination {
    cdp_coll_kind kind;
    cdp_dtype dtype;
    cdp_reduce_op op;
    bool in_place;
    uint64_t count;
    uint32_t root;
} combination;

static bool reduces(cdp_coll_kind k) {
    return k == CDP_COLL_ALLREDUCE || k == CDP_COLL_REDUCE || k == CDP_COLL_REDUCE_SCATTER;
}
static bool is_float(cdp_dtype d) {
    return d == CDP_DTYPE_F32 || d == CDP_DTYPE_F64 || d == CDP_DTYPE_F16 || d == CDP_DTYPE_BF16;
}
static bool is_f8(cdp_dtype d) {
    return d == CDP_DTYPE_F8E4M3 || d == CDP_DTYPE_F8E5M2;
}

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
        case CDP_DTYPE_F16:
            ((uint16_t *)at)[i] = v ? (uint16_t)((u >> 16 & 0x8000)
                                      | ((((u >> 23 & 255) - 112) << 10) | (u >> 13 & 0x3ff)))
                                    : 0;
            break;
        case CDP_DTYPE_BOOL: ((uint8_t *)at)[i] = raw & 1; break;
        case CDP_DTYPE_F8E4M3: ((uint8_t *)at)[i] = (uint8_t)(v ? 0x38 : 0); break; /* 1 or 0 */
        case CDP_DTYPE_F8E5M2: ((uint8_t *)at)[i] = (uint8_t)(v ? 0x3c : 0); break;
        default:
            memcpy((char *)at + i * cdp_dtype_size(dtype), &raw, (size_t)cdp_dtype_size(dtype));
            break;
        }
    }
}

static double f16_value(uint16_t h) {
    const int e = h >> 10 & 31;
    const double m = e ? 1024 + (h & 1023) : h & 1023,
                 v = m * (e ? (double)(1u << e) : 2) / 33554432.0;
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

/* The mean over a number of ranks that is no power of two: NCCL multiplies by its inverse. Means of
   integers: NCCL cuts them, the processor rounds them. */
static bool nearly(const void *a, const void *b, uint64_t count, cdp_dtype d) {
    double eps = 1e-6;
    if (d == CDP_DTYPE_BF16) eps = 0.02;
    if (d == CDP_DTYPE_F16) eps = 0.004;
    for (uint64_t i = 0; i < count && !is_float(d); ++i) {
        const uint64_t bytes = cdp_dtype_size(d);
        uint64_t x = 0, y = 0; /* of which the low bytes count, as on this machine */
        memcpy(&x, (const uint8_t *)a + i * bytes, bytes);
        memcpy(&y, (const uint8_t *)b + i * bytes, bytes);
        if (((x - y + 1) << (64 - 8 * bytes)) > (2ull << (64 - 8 * bytes))) return false;
    }
    for (uint64_t i = 0; i < count && is_float(d); ++i) {
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

/* Integers of which no sum wraps: the processor adds in a wider dtype for a mean, NCCL does not. */
static void small(uint8_t *at, uint64_t count, uint64_t bytes) {
    for (uint64_t i = 0; i < count * bytes; ++i)
        at[i] = i % bytes ? 0 : at[i] & 15;
}

/* The same operation on device memory and, as the reference, on memory of the processor. True:
   it exists on the device. */
static bool compare(card *c, const combination *k) {
    const uint64_t elem = cdp_dtype_size(k->dtype), parts = k->count * c->n,
                   room = (parts * elem + 63) / 64 * 64 + 64;
    uint8_t *const in = (uint8_t *)calloc(1, room), *const out = (uint8_t *)malloc(room),
                   *const got = (uint8_t *)malloc(room);
    /* others' output: undefined */
    const bool root = k->root == c->rank,
               leaves = k->kind == CDP_COLL_REDUCE || k->kind == CDP_COLL_GATHER;
    const uint64_t result =
        k->kind == CDP_COLL_ALLGATHER || k->kind == CDP_COLL_GATHER || k->kind == CDP_COLL_ALLTOALL
        ? parts
        : k->count;
    const uint64_t from =
        k->in_place && (k->kind == CDP_COLL_REDUCE_SCATTER || (k->kind == CDP_COLL_SCATTER && root))
        ? c->rank * k->count * elem
        : 0;
    void *d_in, *d_out;
    cdp_request rq;
    cdp_work w;
    fill(in, parts, k->dtype, c->rank + 100 * k->count, k->op == CDP_REDUCE_PRODUCT);
    if (k->op == CDP_REDUCE_AVG && !is_float(k->dtype)) small(in, parts, elem);
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
        const bool inexact =
            k->op == CDP_REDUCE_AVG && (!is_float(k->dtype) || (c->n & (c->n - 1)));
        const bool same = (leaves && !root)
            || (inexact ? nearly(out + from, got + from, result, k->dtype)
                        : memcmp(out + from, got + from, result * elem) == 0);
        test_check(same, __FILE__, __LINE__,
            "rank %u of %u: %s of %llu x %s %s root %u%s differs from that over the links", c->rank,
            c->n, cdp_coll_name(k->kind), (unsigned long long)k->count, cdp_dtype_name(k->dtype),
            cdp_reduce_name(k->op), k->root, k->in_place ? " in place" : "");
        test_check(memcmp(got + parts * elem, out + parts * elem, room - parts * elem) == 0
                || k->kind == CDP_COLL_BROADCAST,
            __FILE__, __LINE__, "%s wrote behind its output", cdp_coll_name(k->kind));
    } else {
        test_check(on_device == CDP_ERR_UNSUPPORTED, __FILE__, __LINE__, "%s of %s %s: %s",
            cdp_coll_name(k->kind), cdp_dtype_name(k->dtype), cdp_reduce_name(k->op), why);
    }
    GPU(cudaFree(d_in));
    GPU(cudaFree(d_out));
    free(in);
    free(out);
    free(got);
    return on_device == CDP_OK;
}

static bool has_eight_bits(const card *c) {
    return cdp_nccl_version(c->g) >= 22400 && cdp__nccl_of(c->g)->capability >= 90;
}

static bool exists_on_device(const card *c, const combination *k) {
    if (!reduces(k->kind)) return true;
    if (is_f8(k->dtype) && !has_eight_bits(c)) return false;
    if (k->dtype == CDP_DTYPE_I16 || k->dtype == CDP_DTYPE_U16) return false;
    if (k->op == CDP_REDUCE_BAND || k->op == CDP_REDUCE_BOR || k->op == CDP_REDUCE_BXOR)
        return false;
    if (k->op == CDP_REDUCE_PREMUL_SUM) return is_float(k->dtype) || is_f8(k->dtype);
    return !(k->dtype == CDP_DTYPE_BOOL && k->op == CDP_REDUCE_AVG);
}

/* Ranks that share a GPU take turns on it, which takes milliseconds for each operation: then at
   one length only. */
static bool table_brief;
static void table_of_rank(card *c) {
    static const cdp_coll_kind kinds[] = {CDP_COLL_ALLREDUCE, CDP_COLL_REDUCE,
        CDP_COLL_REDUCE_SCATTER, CDP_COLL_BROADCAST, CDP_COLL_ALLGATHER, CDP_COLL_GATHER,
        CDP_COLL_SCATTER, CDP_COLL_ALLTOALL};
    static const uint64_t counts[] = {1, 37, 0};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; ++i)
        for (int dtype = CDP_DTYPE_F32; dtype <= CDP_DTYPE_F8E5M2; ++dtype)
            for (int op = CDP_REDUCE_SUM;
                 op < (reduces(kinds[i]) ? CDP_REDUCE_COUNT : CDP_REDUCE_SUM + 1); ++op)
                for (int k = 0; k < 6; ++k) {
                    combination m = {kinds[i], (cdp_dtype)dtype, (cdp_reduce_op)op, k % 2 == 1,
                        counts[k / 2], (uint32_t)(dtype + k) % c->n};
                    if ((m.in_place && m.kind == CDP_COLL_ALLTOALL) || (table_brief && k / 2 != 1))
                        continue;
                    /* the others at one length */
                    if (k >= 2 && dtype > CDP_DTYPE_BF16 && op > CDP_REDUCE_SUM) continue;
                    const bool there = compare(c, &m);
                    if (there != exists_on_device(c, &m))
                        NOTE("%s of %s %s %s", cdp_coll_name(m.kind), cdp_dtype_name(m.dtype),
                            cdp_reduce_name(m.op),
                            there ? "should not exist" : cdp_last_error()->text);
                    if (test__now.failed_checks > 5) return;
                }
}

/* 8-bit floats: what the others cannot be compared with. */
static void eight_bits_of_rank(card *c) {
    static const struct {
        cdp_dtype dtype;
        uint8_t one, sum[5];
    } t[] = {{CDP_DTYPE_F8E4M3, 0x38, {0, 0x38, 0x40, 0x44, 0x48}},
        {CDP_DTYPE_F8E5M2, 0x3c, {0, 0x3c, 0x40, 0x42, 0x44}}};
    cdp_request rq;
    cdp_work w;
    memset(&rq, 0, sizeof rq);
    rq.kind = CDP_COLL_ALLREDUCE;
    rq.op = CDP_REDUCE_PREMUL_SUM;
    rq.factor = 0.5;
    for (int i = 0; i < 2; ++i) {
        uint8_t bytes[9];
        memset(bytes, t[i].one, 9);
        void *const d = gpu_new(bytes, 9);
        OK(cdp_allreduce(c->g, NULL, d, 9, t[i].dtype, CDP_REDUCE_SUM));
        GPU(cudaMemcpyAsync(bytes, d, 9, GPU_TO_HOST, c->stream));
        GPU(cudaStreamSynchronize(c->stream));
        T(bytes[0] == t[i].sum[c->n] && bytes[8] == t[i].sum[c->n]);
        memset(bytes, t[i].sum[2], 9); /* twos, halved before the sum */
        GPU(cudaMemcpyAsync(d, bytes, 9, GPU_TO_DEVICE, c->stream));
        rq.out = d;
        rq.count = 9;
        rq.dtype = t[i].dtype;
        OK(cdp_start(c->g, &rq, &w));
        OK(cdp_work_wait(w));
        GPU(cudaMemcpyAsync(bytes, d, 9, GPU_TO_HOST, c->stream));
        GPU(cudaStreamSynchronize(c->stream));
        T(bytes[0] == t[i].sum[c->n] && bytes[8] == t[i].sum[c->n]);
        GPU(cudaFree(d));
    }
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
    for (uint32_t i = 0; i < 64; ++i)
        host[i] = (float)(100 * c->rank + i);
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
    GPU(cudaMemcpyAsync(host, out, sum * 4, GPU_TO_HOST, c->stream));
    GPU(cudaStreamSynchronize(c->stream));
    for (uint32_t r = 0, k = 0; r < c->n; ++r)
        for (uint32_t i = 0; i < counts[r]; ++i)
            T(host[k++] == (float)(100 * r + i));
    rq.kind = CDP_COLL_REDUCE_SCATTER; /* the input has `sum` elements on every rank */
    rq.in_counts = counts;
    rq.out_counts = NULL;
    OK(cdp_start(c->g, &rq, &w));
    OK(cdp_work_wait(w));
    GPU(cudaMemcpyAsync(host, out, 64, GPU_TO_HOST, c->stream));
    GPU(cudaStreamSynchronize(c->stream));
    for (uint32_t i = 0; i < mine; ++i)
        T(host[i] == (float)(100 * (c->n * (c->n - 1) / 2) + c->n * (at + i)));
    rq.kind = CDP_COLL_ALLTOALL; /* rank i sends 1 + i + j to j */
    for (uint32_t r = 0; r < c->n; ++r)
        counts[r] = back[r] = 1 + c->rank + r;
    rq.in_counts = counts;
    rq.out_counts = back;
    OK(cdp_start(c->g, &rq, &w));
    OK(cdp_work_wait(w));
    GPU(cudaMemcpyAsync(host, out, sizeof host, GPU_TO_HOST, c->stream));
    GPU(cudaStreamSynchronize(c->stream));
    for (uint32_t r = 0, k = 0; r < c->n; ++r) {
        uint32_t first = 0;
        for (uint32_t j = 0; j < c->rank; ++j)
            first += 1 + r + j;
        for (uint32_t i = 0; i < back[r]; ++i)
            T(host[k++] == (float)(100 * r + first + i));
    }
    for (int gather = 0; gather < 2; ++gather) { /* from and to root 1 */
        for (uint32_t r = 0; r < c->n; ++r)
            counts[r] = r + 1;
        memset(&rq, 0, sizeof rq);
        rq.kind = gather ? CDP_COLL_GATHER : CDP_COLL_SCATTER;
        rq.root = 1;
        rq.in = in;
        rq.out = out;
        if (gather)
            rq.out_counts = counts;
        else
            rq.in_counts = counts;
        OK(cdp_start(c->g, &rq, &w));
        OK(cdp_work_wait(w));
        GPU(cudaMemcpyAsync(host, out, sizeof host, GPU_TO_HOST, c->stream));
        GPU(cudaStreamSynchronize(c->stream));
        if (!gather) {
            for (uint32_t i = 0; i <= c->rank; ++i)
                T(host[i] == (float)(100 + c->rank * (c->rank + 1) / 2 + i));
        } else if (c->rank == 1) {
            for (uint32_t r = 0, k = 0; r < c->n; ++r)
                for (uint32_t i = 0; i <= r; ++i)
                    T(host[k++] == (float)(100 * r + i));
        }
    }
    GPU(cudaFree(in));
    GPU(cudaFree(out));
}
static void messages_of_rank(card *c) {
    float host[8], *d, *e;
    const uint32_t next = (c->rank + 1) % c->n, before = (c->rank + c->n - 1) % c->n;
    cdp_transfer list[2 * RANKS_MAX];
    cdp_work w;
    cdp_message m;
    for (int i = 0; i < 8; ++i)
        host[i] = (float)(10 * c->rank + (uint32_t)i);
    d = (float *)gpu_new(host, sizeof host);
    e = (float *)gpu_new(NULL, 8 * RANKS_MAX * sizeof(float));
    for (int round = 0; round < 5; ++round) {
        OK(cdp_sendrecv(c->g, d, 8, next, e, 8, before, CDP_DTYPE_F32, 0));
        GPU(cudaMemcpyAsync(host, e, sizeof host, GPU_TO_HOST, c->stream));
        GPU(cudaStreamSynchronize(c->stream));
        T(host[0] == (float)(10 * before) && host[7] == (float)(10 * before + 7));
        GPU(cudaMemset(e, 0, sizeof host));
        GPU(cudaDeviceSynchronize());
    }
    if (c->rank == 0) OK(cdp_send(c->g, d, 3, CDP_DTYPE_F32, 1, 0));
    if (c->rank == 1) {
        OK(cdp_recv_async(c->g, e, 3, CDP_DTYPE_F32, 0, 0, &w));
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
        GPU(cudaMemcpyAsync(host, e + 8 * r, sizeof host, GPU_TO_HOST, c->stream));
        GPU(cudaStreamSynchronize(c->stream));
        T(host[0] == (float)(10 * r) && host[7] == (float)(10 * r + 7));
    }
    FAILS(CDP_ERR_UNSUPPORTED, "from which rank",
        cdp_recv_any(c->g, e, 8, CDP_DTYPE_F32, CDP_ANY_RANK, 1, &m));
    FAILS(CDP_ERR_INVALID, "", cdp_send(c->g, d, 1, CDP_DTYPE_F32, c->rank, 1));
    /* and nothing was started */
    FAILS(CDP_ERR_UNSUPPORTED, "tag 7", cdp_send(c->g, d, 1, CDP_DTYPE_F32, next, 7));
    list[1].tag = 1;
    FAILS(CDP_ERR_UNSUPPORTED, "tag 1", cdp_batch(c->g, list, n, &w));
    list[1].tag = 0;
    list[n - 1].row = list[n - 1].step = 4;
    FAILS(CDP_ERR_UNSUPPORTED, "into rows", cdp_batch(c->g, list, n, &w));
    FAILS(CDP_ERR_UNSUPPORTED, "tag 2",
        cdp_sendrecv(c->g, d, 8, next, e, 8, before, CDP_DTYPE_F32, 2));
    OK(cdp_sendrecv(c->g, d, 8, next, e, 8, before, CDP_DTYPE_F32, 0));
    OK(cdp_barrier(c->g));
    GPU(cudaFree(d));
    GPU(cudaFree(e));
}
static void several_of_rank(card *c) {
    enum {
        N = 7
    };
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
        GPU(cudaMemcpyAsync(&host[i], d[i], 4, GPU_TO_HOST, c->stream));
        GPU(cudaStreamSynchronize(c->stream));
        const float n = (float)c->n;
        float want = n * (float)i + n * (n - 1) / 2;
        if (i % 3 == 1) want = (float)i + n - 1;
        if (i % 3 == 2) want = (float)i + 1;
        T(host[i] == want);
    }
    rq[3].out = host; /* memory of the processor among it */
    FAILS(CDP_ERR_INVALID, "", cdp_start_all(c->g, rq, N, &w));
    OK(cdp_barrier(c->g));
    T(cdp_group_status(c->g) == CDP_OK);
    for (int i = 0; i < N; ++i)
        GPU(cudaFree(d[i]));
}
/* ---- order ---- */

enum {
    CHAIN = 64
};

/* Input that comes late in the caller's stream, and output that is read there: `rounds` times.
   Returns how often it was wrong. */
static int chain(card *c, int rounds, bool all_waits) {
    float *h, *d, *e, *back;
    int wrong = 0;
    GPU(cudaMallocHost((void **)&h, CHAIN * 4));
    GPU(cudaMallocHost((void **)&back, CHAIN * 4));
    d = (float *)gpu_new(NULL, CHAIN * 4);
    e = (float *)gpu_new(NULL, CHAIN * 4);
    for (int i = 0; i < rounds; ++i) {
        cdp_work w;
        for (int k = 0; k < CHAIN; ++k)
            h[k] = (float)(i + k) + (float)c->rank;
        put_late(d, h, CHAIN * 4, c->stream, 2);
        OK(cdp_allreduce_async(c->g, d, e, CHAIN, CDP_DTYPE_F32, CDP_REDUCE_SUM, &w));
        if (all_waits || i % 2)
            OK(cdp_work_wait(w));
        else
            OK(cdp_work_wait_for(w, 60000));
        GPU(cudaMemcpyAsync(back, e, CHAIN * 4, GPU_TO_HOST, c->stream));
        GPU(cudaMemsetAsync(d, 0x77, CHAIN * 4, c->stream));
        GPU(cudaMemsetAsync(e, 0x77, CHAIN * 4, c->stream));
        GPU(cudaStreamSynchronize(c->stream));
        for (int k = 0; k < CHAIN; ++k)
            if (back[k] != (float)(c->n * (uint32_t)(i + k) + c->n * (c->n - 1) / 2)) {
                ++wrong;
                break;
            }
    }
    GPU(cudaDeviceSynchronize());
    GPU(cudaFree(d));
    GPU(cudaFree(e));
    GPU(cudaFreeHost(h));
    GPU(cudaFreeHost(back));
    return wrong;
}
TEST_API void chain_of_rank(card *c) {
    T_EQ(0, chain(c, 20, *(bool *)c->arg));
}
/* Memory that goes back in stream order right after the wait; many in flight at once. */
static void lifetimes_of_rank(card *c) {
    enum {
        N = 40
    };
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
    for (int i = 0; i < N; ++i)
        T(((float *)h)[i] == (float)(c->n * (uint32_t)i));
    GPU(cudaFreeHost(h));
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
    /* other ranks capture, too, in this process: each thread for itself */
    GPU(cudaStreamBeginCapture(c->stream, 1));
    GPU(cudaMemcpyAsync(d, h, 16, GPU_TO_DEVICE, c->stream));
    for (int i = 0; i < 3; ++i) {
        OK(cdp_allreduce_async(
            c->g, i % 2 ? e : d, i % 2 ? d : e, 4, CDP_DTYPE_F32, CDP_REDUCE_SUM, &w[i]));
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
        for (int k = 0; k < 4; ++k)
            h[k] = (float)(i + k);
        GPU(cudaGraphLaunch(exec, c->stream));
        /* and others between them */
        if (i % 3 == 0) OK(cdp_allreduce(c->g, NULL, d, 4, CDP_DTYPE_F32, CDP_REDUCE_SUM));
        GPU(cudaStreamSynchronize(c->stream));
        for (int k = 0; k < 4; ++k)
            T(h[k] == (float)(c->n * c->n * c->n) * (float)(i + k));
    }
    OK(cdp_barrier(c->g));
    T(cdp_group_status(c->g) == CDP_OK);
    gpu_get(host, d, 16);
    GPU(cudaGraphExecDestroy(exec));
    GPU(cudaGraphDestroy(graph));
    GPU(cudaFree(d));
    GPU(cudaFree(e));
    GPU(cudaFreeHost(h));
}

#endif
