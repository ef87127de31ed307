/*  DDP on device memory, on the stand-in of this folder, beside DDP on memory of the processor, which has tests of its own: with
    whole numbers both must give the same bits. */
#define _GNU_SOURCE
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"

#include "cdp_nccl.h"

#include "cards.h"

enum { PARAMS_MAX = 8, COUNT_MAX = 400 };

static uint64_t bits_of(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
    uint64_t state = ((a * 1000003u + b) * 1000003u + c) * 1000003u + d;
    return test_random(&state);
}

/* Whole multiples of 6 as a number of this type: their means over 1 to 4 ranks are whole, too. */
static void number(void *at, uint64_t i, cdp_dtype dtype, int v) {
    const float f = (float)v;
    uint32_t u;
    memcpy(&u, &f, 4);
    switch (dtype) {
    case CDP_DTYPE_F64: ((double *)at)[i] = v; break;
    case CDP_DTYPE_BF16: ((uint16_t *)at)[i] = (uint16_t)(u >> 16); break;
    case CDP_DTYPE_F16: ((uint16_t *)at)[i] = v ? (uint16_t)((u >> 16 & 0x8000) | ((((u >> 23 & 255) - 112) << 10) | (u >> 13 & 0x3ff))) : 0; break;
    default: ((float *)at)[i] = f; break;
    }
}
static int whole(const void *at, uint64_t i, cdp_dtype dtype) { /* back again; exact for what number() made and sums of it */
    uint32_t u;
    float f;
    if (dtype == CDP_DTYPE_F64) return (int)((const double *)at)[i];
    if (dtype == CDP_DTYPE_F32) return (int)((const float *)at)[i];
    u = ((const uint16_t *)at)[i];
    if (dtype == CDP_DTYPE_F16) u = u & 0x7fff ? ((u & 0x8000) << 16) | (((u >> 10 & 31) + 112) << 23) | ((u & 0x3ff) << 13) : 0;
    else u <<= 16;
    memcpy(&f, &u, 4);
    return (int)f;
}

typedef struct model {
    uint64_t seed;
    uint32_t params;
    uint64_t counts[PARAMS_MAX];
    cdp_dtype dtypes[PARAMS_MAX];
    bool own_grad, find_unused, static_graph, rebuild, join, buffers, late;
    double divisor, predivide;
    uint64_t bucket_bytes;
    int hook; /* -1: none */
    int steps;
} model;

/* One of the two: its memory, and its ddp. */
typedef struct side {
    bool device;
    card *c;
    const model *m;
    cdp_ddp *ddp;
    void *data[PARAMS_MAX], *grad[PARAMS_MAX], *buffer;
} side;

static void *mem_new(const side *s, const void *from, uint64_t bytes) {
    void *p;
    if (s->device) return gpu_new(from, bytes + 1);
    p = malloc(bytes + 1);
    memcpy(p, from, bytes);
    return p;
}
static void mem_free(const side *s, void *p) {
    if (s->device) GPU(cudaFree(p));
    else free(p);
}
/* In the order of the caller's stream. */
static void mem_put(const side *s, void *to, const void *from, uint64_t bytes) {
    if (s->device && bytes) {
        if (s->m->late) GPU(cudaLaunchHostFunc(s->c->stream, host_nap, (void *)1));
        GPU(cudaMemcpyAsync(to, from, bytes, GPU_TO_DEVICE, s->c->stream));
    } else if (bytes) {
        memcpy(to, from, bytes);
    }
}
static void mem_get(const side *s, void *to, const void *from, uint64_t bytes) {
    if (s->device && bytes) {
        GPU(cudaMemcpyAsync(to, from, bytes, GPU_TO_HOST, s->c->stream));
        GPU(cudaStreamSynchronize(s->c->stream));
    } else if (bytes) {
        memcpy(to, from, bytes);
    }
}

static uint64_t bytes_of(const model *m, uint32_t i) { return m->counts[i] * cdp_dtype_size(m->dtypes[i]); }
static void *grad_of(const side *s, uint32_t i) { return s->m->own_grad && i % 2 ? s->grad[i] : cdp_ddp_grad(s->ddp, i); }

static bool side_open(side *s, card *c, const model *m, bool device) {
    cdp_param p[PARAMS_MAX];
    cdp_buffer b;
    cdp_ddp_desc d;
    static const double zeros[COUNT_MAX];
    memset(s, 0, sizeof *s), memset(p, 0, sizeof p), memset(&d, 0, sizeof d), memset(&b, 0, sizeof b);
    s->device = device;
    s->c = c;
    s->m = m;
    for (uint32_t i = 0; i < m->params; ++i) {
        double values[COUNT_MAX];
        for (uint64_t k = 0; k < m->counts[i]; ++k) number(values, k, m->dtypes[i], (int)(bits_of(m->seed, c->rank, i, k) % 100));
        s->data[i] = mem_new(s, values, bytes_of(m, i));
        s->grad[i] = m->own_grad && i % 2 ? mem_new(s, zeros, bytes_of(m, i)) : NULL;
        p[i].data = s->data[i];
        p[i].grad = s->grad[i];
        p[i].count = m->counts[i];
        p[i].dtype = m->dtypes[i];
    }
    float running[4] = {(float)c->rank, 1, 2, 3};
    s->buffer = mem_new(s, running, sizeof running);
    b.data = s->buffer;
    b.count = 4;
    d.group = c->g;
    d.params = p;
    d.param_count = m->params;
    d.first_bucket_bytes = d.bucket_bytes = m->bucket_bytes;
    d.find_unused = m->find_unused;
    d.static_graph = m->static_graph;
    d.rebuild = m->rebuild;
    d.join = m->join;
    d.divisor = m->divisor;
    d.predivide = m->predivide;
    d.buffers = m->buffers ? &b : NULL;
    d.buffer_count = m->buffers;
    if (!OK(cdp_ddp_create(&d, &s->ddp))) return false;
    if (m->hook >= 0) {
        cdp_hook hook;
        cdp_hook_desc h;
        memset(&h, 0, sizeof h);
        h.kind = (cdp_hook_kind)m->hook;
        if (!OK(device ? cdp_nccl_hook_create(c->g, h.kind, &hook) : cdp_hook_create(&h, &hook))) return false;
        OK(cdp_ddp_set_hook(s->ddp, &hook));
    }
    return true;
}
static void side_close(side *s) {
    cdp_ddp_destroy(s->ddp);
    if (s->device) GPU(cudaStreamSynchronize(s->c->stream));
    for (uint32_t i = 0; i < s->m->params; ++i) {
        mem_free(s, s->data[i]);
        if (s->grad[i]) mem_free(s, s->grad[i]);
    }
    mem_free(s, s->buffer);
}

/* The gradients of one pass are added to what is there; in an order of this rank's own. */
static bool pass(side *s, int step, int micro, bool sync) {
    const model *const m = s->m;
    uint64_t state = m->seed * 31 + (uint64_t)step * 7 + (m->static_graph ? 0 : s->c->rank);
    uint32_t order[PARAMS_MAX];
    OK(cdp_ddp_no_sync(s->ddp, !sync));
    if (m->buffers) OK(cdp_ddp_forward_begin(s->ddp));
    if (!OK(cdp_ddp_backward_begin(s->ddp))) return false;
    for (uint32_t i = 0; i < m->params; ++i) order[i] = i;
    for (uint32_t i = m->params; i > 1; --i) {
        const uint32_t k = (uint32_t)(test_random(&state) % i), t = order[i - 1];
        order[i - 1] = order[k], order[k] = t;
    }
    for (uint32_t n = 0; n < m->params; ++n) {
        const uint32_t i = order[n];
        double now[COUNT_MAX], next[COUNT_MAX];
        if (m->find_unused && bits_of(m->seed, (uint64_t)step, s->c->rank, i) % 3 == 0) {
            if (bits_of(m->seed, 5, (uint64_t)step, i) % 2) OK(cdp_ddp_unused(s->ddp, i));
            continue;
        }
        mem_get(s, now, grad_of(s, i), bytes_of(m, i));
        for (uint64_t k = 0; k < m->counts[i]; ++k)
            number(next, k, m->dtypes[i], (micro ? whole(now, k, m->dtypes[i]) : 0) + 12 * (int)(bits_of(m->seed, s->c->rank * 100 + (uint64_t)step, i * 10 + (uint64_t)micro, k) % 9) - 48);
        mem_put(s, grad_of(s, i), next, bytes_of(m, i));
        if (!OK(cdp_ddp_ready(s->ddp, i))) return false;
    }
    return OK(cdp_ddp_backward_end(s->ddp));
}

static bool same(side *host, side *dev, const char *what, int step) {
    const model *const m = host->m;
    for (uint32_t i = 0; i < m->params; ++i)
        for (int data = 0; data < 2; ++data) {
            double a[COUNT_MAX], b[COUNT_MAX];
            mem_get(host, a, data ? host->data[i] : grad_of(host, i), bytes_of(m, i));
            mem_get(dev, b, data ? dev->data[i] : grad_of(dev, i), bytes_of(m, i));
            if (memcmp(a, b, bytes_of(m, i)) != 0) {
                uint64_t k = 0;
                while (whole(a, k, m->dtypes[i]) == whole(b, k, m->dtypes[i]) && k + 1 < m->counts[i]) ++k;
                return NOTE("seed %llu, rank %u of %u, %s %d: %s of param%u (%s) differ at %llu: %d on the host, %d on the device", (unsigned long long)m->seed, host->c->rank, host->c->n, what, step,
                            data ? "values" : "gradients", i, cdp_dtype_name(m->dtypes[i]), (unsigned long long)k, whole(a, k, m->dtypes[i]), whole(b, k, m->dtypes[i]));
            }
        }
    return true;
}

static void model_of_rank(card *c) {
    const model *const m = (const model *)c->arg;
    side host, dev;
    const bool open = side_open(&host, c, m, false) && side_open(&dev, c, m, true);
    if (open && same(&host, &dev, "creation", 0)) {
        for (int step = 0; step < m->steps && !test__now.failed_checks; ++step) {
            const int micro = m->find_unused || m->static_graph ? 1 : 1 + (int)(bits_of(m->seed, 9, 9, (uint64_t)step) % 3);
            bool good = true;
            for (int k = 0; k < micro && good; ++k) good = pass(&host, step, k, k + 1 == micro) && pass(&dev, step, k, k + 1 == micro);
            if (!good || !same(&host, &dev, "step", step)) break;
            if (m->buffers) {
                float a[4], b[4];
                mem_get(&host, a, host.buffer, sizeof a), mem_get(&dev, b, dev.buffer, sizeof b);
                T(memcmp(a, b, sizeof a) == 0 && a[0] == 0);
            }
            if (step % 3 == 2) {
                double hn = 0, dn = 0;
                OK(cdp_ddp_clip(host.ddp, 0, &hn)), OK(cdp_ddp_clip(dev.ddp, 0, &dn));
                test_check(hn - dn < 1e-6 * (hn + 1) && dn - hn < 1e-6 * (hn + 1), __FILE__, __LINE__, "norms %g and %g", hn, dn);
            }
            if (step % 4 == 3) {
                cdp_ddp_zero_grad(host.ddp), cdp_ddp_zero_grad(dev.ddp);
                if (!m->own_grad && !same(&host, &dev, "zero_grad", step)) break;
            }
        }
        if (!test__now.failed_checks) OK(cdp_ddp_verify(dev.ddp));
    }
    if (open) {
        T(cdp_ddp_stats_of(dev.ddp).steps == cdp_ddp_stats_of(host.ddp).steps || test__now.failed_checks);
        side_close(&host), side_close(&dev);
    }
    OK(cdp_barrier(c->g));
}

static model model_of(uint64_t seed) {
    static const cdp_dtype types[] = {CDP_DTYPE_F32, CDP_DTYPE_F32, CDP_DTYPE_F64, CDP_DTYPE_F16, CDP_DTYPE_BF16};
    uint64_t state = seed;
    model m;
    memset(&m, 0, sizeof m);
    m.seed = seed;
    m.params = 1 + (uint32_t)(test_random(&state) % PARAMS_MAX);
    for (uint32_t i = 0; i < m.params; ++i) {
        m.counts[i] = test_random(&state) % 8 ? test_random(&state) % COUNT_MAX : 0;
        m.dtypes[i] = test_random(&state) % 2 ? CDP_DTYPE_F32 : types[test_random(&state) % 5];
    }
    m.bucket_bytes = 64 + test_random(&state) % 2000;
    m.own_grad = test_random(&state) % 3 == 0;
    m.buffers = test_random(&state) % 3 == 0;
    m.rebuild = test_random(&state) % 3 == 0;
    m.find_unused = test_random(&state) % 4 == 0;
    m.static_graph = !m.find_unused && test_random(&state) % 4 == 0;
    m.late = test_random(&state) % 4 == 0;
    m.divisor = test_random(&state) % 3 ? 0 : 2;
    m.predivide = test_random(&state) % 4 ? 0 : 2;
    m.hook = test_random(&state) % 3 ? -1 : (int)(test_random(&state) % 4);
    if (m.hook == 3) m.hook = CDP_HOOK_NOOP;
    if (m.hook == CDP_HOOK_FP16 || m.hook == CDP_HOOK_BF16) { /* the same numbers in any order are what is compared */
        for (uint32_t i = 0; i < m.params; ++i) m.dtypes[i] = m.dtypes[i] == CDP_DTYPE_F16 || m.dtypes[i] == CDP_DTYPE_BF16 ? CDP_DTYPE_F32 : m.dtypes[i];
    }
    m.steps = 4;
    return m;
}

static void models(uint64_t from, uint64_t count) {
    for (uint64_t seed = from; seed < from + count && !test__now.failed_checks; ++seed) {
        model m = model_of(seed);
        standin_set("seed", (long)seed);
        on_cards(1 + (uint32_t)(seed % 4), model_of_rank, &m);
        clean();
        if (test__now.failed_checks)
            NOTE("that was seed %llu: %u parameters, buckets of %llu, own_grad %d, buffers %d, rebuild %d, find_unused %d, static_graph %d, hook %d, divisor %g, predivide %g", (unsigned long long)seed, m.params,
                 (unsigned long long)m.bucket_bytes, m.own_grad, m.buffers, m.rebuild, m.find_unused, m.static_graph, m.hook, m.divisor, m.predivide);
    }
}
static uint64_t model_count = TEST_SLOW ? 15 : 60;
TEST(like_the_host) { models(1, model_count); }

TEST(every_hook) {
    static const int kinds[] = {CDP_HOOK_ALLREDUCE, CDP_HOOK_FP16, CDP_HOOK_BF16, CDP_HOOK_NOOP};
    for (int k = 0; k < 4; ++k) {
        model m = model_of(1000);
        m.hook = kinds[k];
        m.find_unused = m.static_graph = false;
        for (uint32_t i = 0; i < m.params; ++i) m.dtypes[i] = CDP_DTYPE_F32;
        on_cards(2, model_of_rank, &m);
        clean();
    }
}

/* Ranks with 1, 3 and 5 steps. */
static void join_of_rank(card *c) {
    const model *const m = (const model *)c->arg;
    const int steps = 1 + 2 * (int)c->rank;
    side host, dev;
    if (side_open(&host, c, m, false) && side_open(&dev, c, m, true)) {
        for (int step = 0; step < steps; ++step) T(pass(&host, step, 0, true));
        OK(cdp_ddp_join(host.ddp));
        for (int step = 0; step < steps; ++step) T(pass(&dev, step, 0, true));
        OK(cdp_ddp_join(dev.ddp));
        if (steps == 5) same(&host, &dev, "join", steps);
        side_close(&host), side_close(&dev);
    }
}
TEST(join) {
    model m = model_of(77);
    m.join = true;
    m.find_unused = m.static_graph = m.own_grad = false;
    m.hook = -1;
    on_cards(3, join_of_rank, &m);
    clean();
}

/* The model of one rank is changed behind our back. */
static void verify_of_rank(card *c) {
    model m = model_of(5);
    side dev;
    m.hook = -1;
    m.params = 2;
    m.counts[0] = m.counts[1] = 50;
    if (side_open(&dev, c, &m, true)) {
        OK(cdp_ddp_verify(dev.ddp));
        if (c->rank == 1) GPU(cudaMemsetAsync(dev.data[1], 7, 4, c->stream));
        FAILS(CDP_ERR_MISMATCH, "param1", cdp_ddp_verify(dev.ddp));
        double norm = 0;
        OK(cdp_ddp_clip(dev.ddp, 1, &norm));
        T(norm == 0);
        side_close(&dev);
    }
    OK(cdp_barrier(c->g));
}
TEST(verify) {
    on_cards(2, verify_of_rank, NULL);
    clean();
}

/* Clipping changes the gradients as on the host. */
static void clip_of_rank(card *c) {
    model m = model_of(6);
    side dev;
    float g[16], norm_f;
    double norm = 0;
    m.hook = -1, m.params = 1, m.counts[0] = 16, m.dtypes[0] = CDP_DTYPE_F32, m.own_grad = m.find_unused = m.static_graph = m.buffers = false, m.divisor = m.predivide = 0;
    if (side_open(&dev, c, &m, true)) {
        T(pass(&dev, 0, 0, true));
        mem_get(&dev, g, grad_of(&dev, 0), sizeof g);
        double want = 0;
        for (int i = 0; i < 16; ++i) want += (double)g[i] * g[i];
        const double before = (double)g[3];
        OK(cdp_ddp_clip(dev.ddp, 1, &norm));
        T(norm * norm - want < 1e-3 * want && want - norm * norm < 1e-3 * want);
        mem_get(&dev, g, grad_of(&dev, 0), sizeof g);
        norm_f = (float)(before / norm);
        T(g[3] - norm_f < 1e-5f && norm_f - g[3] < 1e-5f);
        side_close(&dev);
    }
}
TEST(clip) {
    on_cards(2, clip_of_rank, NULL);
    clean();
}

static void refusals_of_rank(card *c) {
    cdp_param p[2];
    cdp_ddp_desc d;
    cdp_ddp *ddp = NULL;
    cdp_hook hook;
    cdp_hook_desc h;
    float host[8] = {0};
    void *dev = gpu_new(NULL, 64);
    memset(p, 0, sizeof p), memset(&d, 0, sizeof d), memset(&h, 0, sizeof h);
    d.group = c->g, d.params = p, d.param_count = 2;
    p[0].data = dev, p[0].count = 8;
    p[1].data = host, p[1].count = 8, p[1].name = "the_odd_one";
    FAILS(CDP_ERR_INVALID, "the_odd_one", cdp_ddp_create(&d, &ddp));
    p[1].data = dev, p[1].grad = host;
    FAILS(CDP_ERR_INVALID, "the_odd_one", cdp_ddp_create(&d, &ddp));
    p[1].grad = NULL, p[1].sparse = true, p[1].rows = 8;
    FAILS(CDP_ERR_UNSUPPORTED, "", cdp_ddp_create(&d, &ddp));
    FAILS(CDP_ERR_UNSUPPORTED, "", cdp_nccl_hook_create(c->g, CDP_HOOK_TOPK, &hook));
    d.param_count = 1;
    if (OK(cdp_ddp_create(&d, &ddp))) {
        h.kind = CDP_HOOK_QUANTIZE; /* one that reads with the processor */
        if (OK(cdp_hook_create(&h, &hook))) T(cdp_ddp_set_hook(ddp, &hook) < 0);
        cdp_ddp_destroy(ddp);
    }
    T(cdp_group_status(c->g) == CDP_OK);
    OK(cdp_barrier(c->g));
    GPU(cudaFree(dev));
}
TEST(refusals) {
    on_cards(2, refusals_of_rank, NULL);
    clean();
}

/* No room for the buckets on one of the devices: an error everywhere, and the group goes on. */
static void no_memory_of_rank(card *c) {
    cdp_param p;
    cdp_ddp_desc d;
    cdp_ddp *ddp = NULL;
    void *rest = NULL, *dev = gpu_new(NULL, 20 << 20);
    memset(&p, 0, sizeof p), memset(&d, 0, sizeof d);
    d.group = c->g, d.params = &p, d.param_count = 1;
    p.data = dev, p.count = 5 << 20;
    if (c->rank == 1) GPU(cudaMalloc(&rest, 100 << 20)); /* of 128 */
    const cdp_status st = cdp_ddp_create(&d, &ddp);
    test_check(st == CDP_ERR_NOMEM, __FILE__, __LINE__, "rank %u: %s %s", c->rank, cdp_status_name(st), cdp_last_error()->text);
    cdp_ddp_destroy(ddp);
    OK(cdp_barrier(c->g));
    T(cdp_group_status(c->g) == CDP_OK);
    GPU(cudaFree(rest)), GPU(cudaFree(dev));
}
TEST(no_memory) {
    on_cards(2, no_memory_of_rank, NULL);
    clean();
}

/* A rank stops in the middle of a step: the others get an error at the deadline, and their devices go on. */
static void stuck_of_rank(card *c) {
    model m = model_of(8);
    side dev;
    m.hook = -1, m.find_unused = m.static_graph = false;
    if (side_open(&dev, c, &m, true)) {
        OK(cdp_ddp_backward_begin(dev.ddp));
        if (c->rank == 0) {
            for (uint32_t i = 0; i < m.params; ++i) (void)cdp_ddp_ready(dev.ddp, i);
            cdp_status st = cdp_ddp_backward_end(dev.ddp);
            const uint64_t start = test_now_ns();
            while (st == CDP_OK && test_now_ns() - start < 20000000000u) {
                test_sleep_ms(5);
                st = cdp_group_status(c->g);
            }
            test_check(st == CDP_ERR_TIMEOUT, __FILE__, __LINE__, "%s: %s", cdp_status_name(st), cdp_last_error()->text);
        } else {
            while (cdp_group_status(c->g) == CDP_OK) test_sleep_ms(5);
        }
        GPU(cudaStreamSynchronize(c->stream));
        side_close(&dev);
    }
}
TEST(stuck_rank) {
    cards all;
    memset(&all, 0, sizeof all);
    all.n = 2, all.func = stuck_of_rank, all.group.timeout_ms = 700, all.group.logger.level = CDP_LOG_SILENT;
    cards_run(&all);
    clean();
}

int main(int argc, char **argv) {
    static const test_case cases[] = {{"like_the_host", like_the_host, 200}, {"every_hook", every_hook, 60}, {"join", join, 60}, {"verify", verify, 60}, {"clip", clip, 60},
                                      {"refusals", refusals, 60}, {"no_memory", no_memory, 60}, {"stuck_rank", stuck_rank, 60}};
    libraries_at_hand(argv, "");
    const char *const missing = gpu_load();
    if (missing || !standin_set) {
        printf("  the stand-in does not load: %s\nnot ok load\n0 passed, 1 failed\n", missing ? missing : "this is no stand-in");
        return 1;
    }
    printf("on the stand-in for CUDA and NCCL, no GPU is involved\n");
    if (argc > 2 && strcmp(argv[1], "models") == 0) { /* models COUNT: more of them, by hand */
        model_count = (uint64_t)atol(argv[2]);
        argc = 2;
        argv[1] = (char *)(uintptr_t) "like_the_host";
    }
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
