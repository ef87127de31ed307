/* The same training steps as in test_ddp_parity.py, on ranks that are threads: prints every
   gradient after every step as "case step rank parameter bits...". Arguments "case:bits:bits..."
   are PyTorch's first right factors of PowerSGD. Then what samplers and bucket plans say. */
#define CDP_IMPLEMENTATION
#include "cdp.h"
#include "../unit/ranks.h"
#include <math.h>

enum {
    N = 3,
    LARGEST = 48,
    MOST = 32
};
static const uint64_t counts[N] = {48, 3, 6}, rows[N] = {6, 0, 2};
static pthread_mutex_t print = PTHREAD_MUTEX_INITIALIZER;

typedef enum what {
    PLAIN,
    WHOLE,
    UNUSED,
    STATIC,
    HOOK,
    JOIN,
    JOIN_EFFECTIVE,
    JOIN_BUFFERS,
    SPARSE
} what;
#define F32 CDP_DTYPE_F32
#define F64 CDP_DTYPE_F64
#define F16 CDP_DTYPE_F16
#define BF16 CDP_DTYPE_BF16

typedef struct setup {
    const char *name;
    what what;
    cdp_dtype dtype;
    cdp_hook_kind hook; /* of HOOK */
    uint32_t rank;
    bool wrapped; /* in FP16 */
    uint32_t first_q_count, first_q[MOST];
} setup;

static setup setups[] = {
    {"plain", PLAIN, F32, CDP_HOOK_NOOP, 0, 0, 0, {0}},
    {"plain_f64", PLAIN, F64, CDP_HOOK_NOOP, 0, 0, 0, {0}},
    {"plain_f16", PLAIN, F16, CDP_HOOK_NOOP, 0, 0, 0, {0}},
    {"whole", WHOLE, F32, CDP_HOOK_NOOP, 0, 0, 0, {0}},
    {"unused", UNUSED, F32, CDP_HOOK_NOOP, 0, 0, 0, {0}},
    {"unused_f64", UNUSED, F64, CDP_HOOK_NOOP, 0, 0, 0, {0}},
    {"static", STATIC, F32, CDP_HOOK_NOOP, 0, 0, 0, {0}},
    {"join", JOIN, F32, CDP_HOOK_NOOP, 0, 0, 0, {0}},
    {"join_effective", JOIN_EFFECTIVE, F32, CDP_HOOK_NOOP, 0, 0, 0, {0}},
    {"join_buffers", JOIN_BUFFERS, F32, CDP_HOOK_NOOP, 0, 0, 0, {0}},
    {"sparse", SPARSE, F32, CDP_HOOK_NOOP, 0, 0, 0, {0}},
    {"allreduce", HOOK, F32, CDP_HOOK_ALLREDUCE, 0, 0, 0, {0}},
    {"allreduce_f64", HOOK, F64, CDP_HOOK_ALLREDUCE, 0, 0, 0, {0}},
    {"allreduce_f16", HOOK, F16, CDP_HOOK_ALLREDUCE, 0, 0, 0, {0}},
    {"allreduce_bf16", HOOK, BF16, CDP_HOOK_ALLREDUCE, 0, 0, 0, {0}},
    {"fp16", HOOK, F32, CDP_HOOK_FP16, 0, 0, 0, {0}},
    {"fp16_f64", HOOK, F64, CDP_HOOK_FP16, 0, 0, 0, {0}},
    {"fp16_wrapper", HOOK, F32, CDP_HOOK_ALLREDUCE, 0, 1, 0, {0}},
    {"bf16", HOOK, F32, CDP_HOOK_BF16, 0, 0, 0, {0}},
    {"bf16_f64", HOOK, F64, CDP_HOOK_BF16, 0, 0, 0, {0}},
    {"noop", HOOK, F32, CDP_HOOK_NOOP, 0, 0, 0, {0}},
    {"post_local", HOOK, F32, CDP_HOOK_POST_LOCAL_SGD, 0, 0, 0, {0}},
    {"quantize", HOOK, F32, CDP_HOOK_QUANTIZE, 0, 0, 0, {0}},
    {"quantize_channel", HOOK, F32, CDP_HOOK_QUANTIZE_CHANNEL, 0, 0, 0, {0}},
    {"powersgd", HOOK, F32, CDP_HOOK_POWERSGD, 1, 0, 0, {0}},
    {"powersgd_rank2", HOOK, F32, CDP_HOOK_POWERSGD, 2, 0, 0, {0}},
    {"powersgd_f64", HOOK, F64, CDP_HOOK_POWERSGD, 1, 0, 0, {0}},
    {"powersgd_batched", HOOK, F32, CDP_HOOK_POWERSGD_BATCHED, 1, 0, 0, {0}},
};
#define SETUPS (sizeof setups / sizeof *setups)

static uint32_t mixed(int step, uint32_t rank, uint32_t i, uint32_t k) {
    return (uint32_t)((uint32_t)step * 7u + rank * 13u + i * 5u + k * 3u + 1u) * 2654435761u >> 8;
}

/* Any number for two ranks, where a sum has one value; whole numbers for more. */
static float value(const setup *s, int step, uint32_t rank, uint32_t i, uint32_t k) {
    const uint32_t v = mixed(step, rank, i, k);
    return s->what == WHOLE ? (float)(int32_t)(v % 65) - 32
                            : (float)((int32_t)v - 8388608) / 16777216.0f;
}

static bool used(const setup *s, int step, uint32_t rank, uint32_t i) {
    if (s->what == STATIC) return i != 2;
    if (s->what != UNUSED) return true;
    return !(step % 4 == 1 && (i == 2 || (i == 1 && rank == 1)))
        && !(step % 4 == 3 && i == 0 && rank == 0);
}

static void add(cdp_dtype t, void *grad, uint64_t k, double v) {
    float wide[CDP__BLOCK] = {0};
    uint16_t half[CDP__BLOCK];
    if (t == F64)
        ((double *)grad)[k] += v;
    else if (t == F32)
        ((float *)grad)[k] += (float)v;
    else {
        /* rounded, then added, then rounded: as two tensors of this dtype are */
        wide[0] = (float)v;
        cdp__narrow_block(t, wide, half);
        cdp__widen_block(t, half, wide);
        wide[0] += (float)cdp__number_get(t, grad, k);
        cdp__narrow_block(t, wide, half);
        ((uint16_t *)grad)[k] = half[0];
    }
}

static bool load_q(cdp_ddp *ddp, const setup *s) {
    uint32_t words[12 + MOST];
    const cdp_hook *h = cdp_ddp_hook(ddp);
    memset(words, 0, sizeof words);
    words[0] = s->hook; /* kind, step, random, slots; of the slot: bytes of error, of q */
    words[6] = 1;
    words[10] = 4 * s->first_q_count;
    memcpy(words + 12, s->first_q, 4 * s->first_q_count);
    return h->load(h->self, words, 48 + 4 * s->first_q_count) == CDP_OK;
}

static bool use_hook(cdp_ddp *ddp, const setup *s) {
    cdp_hook_desc h;
    cdp_hook hook, outer;
    memset(&h, 0, sizeof h);
    h.kind = s->hook;
    h.start = 2;
    h.rank = s->rank;
    if (cdp_hook_create(&h, &hook) != CDP_OK) return false;
    outer = hook;
    h.kind = CDP_HOOK_FP16;
    h.inner = &hook;
    if (s->wrapped && cdp_hook_create(&h, &outer) != CDP_OK) return false;
    return cdp_ddp_set_hook(ddp, &outer) == CDP_OK && (!s->first_q_count || load_q(ddp, s));
}

static void print_bits(cdp_dtype t, const void *p, uint64_t k) {
    if (t == F64) {
        uint64_t bits;
        memcpy(&bits, (const double *)p + k, 8);
        printf(" %016llx", (unsigned long long)bits);
    } else if (t == F32) {
        uint32_t bits;
        memcpy(&bits, (const float *)p + k, 4);
        printf(" %08x", bits);
    } else {
        printf(" %04x", ((const uint16_t *)p)[k]);
    }
}

static void print_grads(const setup *s, cdp_ddp *ddp, uint32_t ranks, uint32_t rank, int step) {
    pthread_mutex_lock(&print);
    for (uint32_t i = 0; i < N; ++i) {
        const void *grad = cdp_ddp_grad(ddp, i);
        float dense[LARGEST] = {0};
        if (s->what == SPARSE && i == 0) {
            const cdp_rows r = cdp_ddp_rows(ddp, i);
            for (uint64_t k = 0; k < r.count; ++k)
                memcpy(dense + r.rows[k] * r.width, (const float *)r.values + k * r.width,
                    r.width * 4);
            grad = dense;
        }
        printf("%s%u %d %u %u", s->name, ranks, step, rank, i);
        for (uint32_t k = 0; k < counts[i]; ++k)
            print_bits(s->dtype, grad, k);
        printf("\n");
    }
    pthread_mutex_unlock(&print);
}

/* As if it were parameter 9. */
static void print_buffer(
    const setup *s, uint32_t ranks, uint32_t rank, int step, const float mean[2]) {
    pthread_mutex_lock(&print);
    printf("%s%u %d %u 9", s->name, ranks, step, rank);
    for (uint32_t k = 0; k < 2; ++k)
        print_bits(F32, mean, k);
    printf("\n");
    pthread_mutex_unlock(&print);
}

/* An embedding that looks up three rows, one of them perhaps twice. */
static cdp_status ready_sparse(const setup *s, cdp_ddp *ddp, int step, uint32_t rank) {
    uint32_t at[3];
    float values[3 * 8];
    for (uint32_t k = 0; k < 3; ++k) {
        at[k] = mixed(step, rank, 9, k) % 6;
        for (uint32_t c = 0; c < 8; ++c)
            values[k * 8 + c] = value(s, step, rank, 0, k * 8 + c);
    }
    return cdp_ddp_ready_rows(ddp, 0, at, 3, values);
}

static void rank_runs(cdp_group *g, void *arg) {
    const setup *s = (const setup *)arg;
    const uint32_t rank = cdp_rank(g);
    static double data[8][N][LARGEST];
    const bool buffers = s->what == JOIN_BUFFERS,
               join = s->what == JOIN || s->what == JOIN_EFFECTIVE || buffers,
               adds = s->what == PLAIN || s->what == WHOLE;
    const int most = (rank != 0) != buffers ? 4 : 2, steps = join ? most : 6;
    float mean[2] = {0};
    cdp_buffer buffer;
    cdp_param p[N];
    cdp_ddp_desc d;
    cdp_ddp *ddp;
    memset(p, 0, sizeof p);
    memset(&d, 0, sizeof d);
    for (uint32_t i = 0; i < N; ++i) {
        p[i].data = data[rank][i];
        p[i].count = counts[i];
        p[i].rows = rows[i];
        p[i].dtype = s->dtype;
    }
    p[0].sparse = s->what == SPARSE;
    d.group = g;
    d.params = p;
    d.param_count = N;
    /* PyTorch divides before it sums; so does f16 by default */
    if (s->what != JOIN_EFFECTIVE && s->dtype != F16) d.predivide = cdp_size(g);
    memset(&buffer, 0, sizeof buffer);
    buffer.data = mean;
    buffer.count = 2;
    d.buffers = &buffer;
    d.buffer_count = buffers;
    d.find_unused = s->what == UNUSED;
    d.static_graph = s->what == STATIC;
    d.join = join;
    d.join_effective = s->what == JOIN_EFFECTIVE;
    if (!T_EQ(CDP_OK, cdp_ddp_create(&d, &ddp))) return;
    if (s->what == HOOK) T(use_hook(ddp, s));
    for (int step = 0; step < steps; ++step) {
        if (!adds) cdp_ddp_zero_grad(ddp); /* those two go on adding */
        T_EQ(CDP_OK, cdp_ddp_no_sync(ddp, adds && step % 3 == 1));
        if (buffers) {
            mean[0] = mean[1] = (float)((int)rank * 100 + step);
            T_EQ(CDP_OK, cdp_ddp_forward_begin(ddp));
            print_buffer(s, cdp_size(g), rank, step, mean);
        }
        T_EQ(CDP_OK, cdp_ddp_backward_begin(ddp));
        for (uint32_t i = N; i-- > 0;) {
            if (!used(s, step, rank, i)) continue;
            if (p[i].sparse) {
                T_EQ(CDP_OK, ready_sparse(s, ddp, step, rank));
                continue;
            }
            for (uint32_t k = 0; k < counts[i]; ++k)
                add(s->dtype, cdp_ddp_grad(ddp, i), k, (double)value(s, step, rank, i, k));
            T_EQ(CDP_OK, cdp_ddp_ready(ddp, i));
        }
        test_check(
            cdp_ddp_backward_end(ddp) == CDP_OK, __FILE__, __LINE__, "%s", cdp_last_error()->text);
        print_grads(s, ddp, cdp_size(g), rank, step);
    }
    if (d.join) T_EQ(CDP_OK, cdp_ddp_join(ddp));
    cdp_ddp_destroy(ddp);
}

/* ---- a small net: 4 inputs, 8 tanh units, 1 output, squared error; prints the loss of every
   step ---- */

enum {
    IN = 4,
    HID = 8,
    BATCH = 6,
    CURVE = 60
};
typedef struct net {
    float w1[HID * IN], b1[HID], w2[HID], b2[1];
} net;

static float even(uint32_t a, uint32_t b) {
    return (float)((int32_t)(mixed(0, a, b, a * b) % 2001) - 1000) / 1000.0f;
}

static float net_sample(const net *n, net *grad, const float x[IN], float want) {
    float h[HID], y = n->b2[0], err;
    for (uint32_t j = 0; j < HID; ++j) {
        float a = n->b1[j];
        for (uint32_t i = 0; i < IN; ++i)
            a += n->w1[j * IN + i] * x[i];
        h[j] = tanhf(a);
        y += n->w2[j] * h[j];
    }
    err = y - want;
    grad->b2[0] += 2 * err / BATCH;
    for (uint32_t j = 0; j < HID; ++j) {
        const float d = 2 * err / BATCH * n->w2[j] * (1 - h[j] * h[j]);
        grad->w2[j] += 2 * err / BATCH * h[j];
        grad->b1[j] += d;
        for (uint32_t i = 0; i < IN; ++i)
            grad->w1[j * IN + i] += d * x[i];
    }
    return err * err / BATCH;
}

typedef struct curve {
    const char *name;
    int hook; /* -1: none */
} curve;

static void rank_learns(cdp_group *g, void *arg) {
    const curve *c = (const curve *)arg;
    const uint32_t rank = cdp_rank(g);
    net n, grad;
    cdp_param p[4];
    cdp_ddp_desc d;
    cdp_ddp *ddp;
    float *const at = n.w1, *const grads = grad.w1;
    memset(&grad, 0, sizeof grad);
    memset(p, 0, sizeof p);
    memset(&d, 0, sizeof d);
    for (uint32_t k = 0; k < sizeof n / 4; ++k)
        at[k] = even(k, 3);
    p[0].data = n.w1;
    p[0].count = HID * IN;
    p[0].grad = grad.w1;
    p[1].data = n.b1;
    p[1].count = HID;
    p[1].grad = grad.b1;
    p[2].data = n.w2;
    p[2].count = HID;
    p[2].grad = grad.w2;
    p[3].data = n.b2;
    p[3].count = 1;
    p[3].grad = grad.b2;
    d.group = g;
    d.params = p;
    d.param_count = 4;
    if (!T_EQ(CDP_OK, cdp_ddp_create(&d, &ddp))) return;
    if (c->hook >= 0) {
        setup s = {c->name, HOOK, F32, (cdp_hook_kind)c->hook, 1, 0, 0, {0}};
        T(use_hook(ddp, &s));
    }
    for (int step = 0; step < CURVE; ++step) {
        float loss = 0;
        cdp_ddp_zero_grad(ddp);
        T_EQ(CDP_OK, cdp_ddp_backward_begin(ddp));
        for (uint32_t b = 0; b < BATCH; ++b) {
            float x[IN];
            for (uint32_t i = 0; i < IN; ++i)
                x[i] = even(rank * 50 + b, i + 7);
            loss += net_sample(&n, &grad, x, x[0] * x[1] + 0.5f * x[2]);
        }
        for (uint32_t i = 4; i-- > 0;)
            T_EQ(CDP_OK, cdp_ddp_ready(ddp, i));
        T_EQ(CDP_OK, cdp_ddp_backward_end(ddp));
        for (uint32_t k = 0; k < sizeof n / 4; ++k)
            at[k] -= 0.1f * grads[k];
        pthread_mutex_lock(&print);
        printf("%s%u %d %u 0", c->name, cdp_size(g), step, rank);
        print_bits(F32, &loss, 0);
        printf("\n");
        pthread_mutex_unlock(&print);
    }
    cdp_ddp_destroy(ddp);
}

static void print_samples(void) {
    static const uint64_t sizes[] = {1, 7, 10, 33};
    for (uint64_t c = 0; c < 4 * 4 * 4; ++c) {
        cdp_sampler s = {
            sizes[c % 4], (uint32_t)(1 + c / 4 % 4), 0, (c / 16) % 2, (c / 32) % 2, c, c % 3, NULL};
        for (s.rank = 0; s.rank < s.ranks; ++s.rank) {
            uint64_t got[64];
            T_EQ(CDP_OK, cdp_sampler_fill(&s, got));
            printf("sampler %u %u 0", (uint32_t)c, s.rank);
            for (uint64_t i = 0; i < cdp_sampler_count(&s); ++i)
                printf(" %llu", (unsigned long long)got[i]);
            printf("\n");
        }
    }
}

/* Random models: the bucket of each parameter, over the parameters in reverse order. */
static void print_buckets(void) {
    static const cdp_dtype dtypes[4] = {F32, F64, F16, BF16};
    uint32_t x = 12345;
#define NEXT (x = x * 1664525u + 1013904223u, x >> 8)
    for (uint32_t c = 0; c < 500; ++c) {
        cdp_param p[40];
        uint32_t bucket_of[40];
        const uint32_t n = 1 + NEXT % 40, most = 1 + NEXT % 3000, kinds = 1 + NEXT % 4;
        const uint64_t first = 1 + NEXT % 4000, rest = first + NEXT % 20000;
        memset(p, 0, sizeof p);
        for (uint32_t i = 0; i < n; ++i) {
            p[i].count = NEXT % most;
            p[i].dtype = dtypes[NEXT % kinds];
        }
        const uint64_t limits[2] = {first, rest};
        cdp__bucket_plan_make(p, n, limits, 2, bucket_of);
        printf("buckets %u 0 0", c);
        for (uint32_t i = 0; i < n; ++i)
            printf(" %u", bucket_of[i]);
        printf("\n");
    }
}

int main(int argc, char **argv) {
    static const curve curves[] = {
        {"curve", -1}, {"curve_fp16", CDP_HOOK_FP16}, {"curve_quantize", CDP_HOOK_QUANTIZE}};
    for (int i = 1; i < argc; ++i) {
        const char *colon = strchr(argv[i], ':');
        for (size_t k = 0; k < SETUPS && colon; ++k) {
            setup *s = &setups[k];
            if (strlen(s->name) != (size_t)(colon - argv[i])
                || strncmp(s->name, argv[i], strlen(s->name)) != 0)
                continue;
            for (const char *at = colon; at && s->first_q_count < MOST; at = strchr(at + 1, ':'))
                s->first_q[s->first_q_count++] = (uint32_t)strtoul(at + 1, NULL, 16);
        }
    }
    for (size_t k = 0; k < SETUPS; ++k)
        run_ranks(setups[k].what == WHOLE ? 4 : 2, NULL, 0, rank_runs, &setups[k]);
    for (size_t k = 0; k < 3; ++k) {
        curve c = curves[k];
        run_ranks(2, NULL, 0, rank_learns, &c);
    }
    print_samples();
    print_buckets();
    return test__now.failed_checks ? 1 : 0;
}
