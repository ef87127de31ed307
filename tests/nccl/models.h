/* models.h - random DDP programs on device memory, beside the same on memory of the processor,
   which has tests of its own: with whole numbers both must give the same bits. For the stand-in
   (test_nccl.c) and for real GPUs (tests/gpu). Include after cards.h. */
#ifndef MODELS_INCLUDED
#define MODELS_INCLUDED

enum {
    PARAMS_MAX = 8,
    COUNT_MAX = 400
};

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
    case CDP_DTYPE_F16:
        ((uint16_t *)at)[i] = v
            ? (uint16_t)((u >> 16 & 0x8000) | ((((u >> 23 & 255) - 112) << 10) | (u >> 13 & 0x3ff)))
            : 0;
        break;
    default: ((float *)at)[i] = f; break;
    }
}
static void not_a_number(void *at, uint64_t i, cdp_dtype dtype) {
    switch (dtype) {
    case CDP_DTYPE_F64: ((uint64_t *)at)[i] = 0x7ff8ull << 48; break;
    case CDP_DTYPE_BF16: ((uint16_t *)at)[i] = 0x7fc0; break;
    case CDP_DTYPE_F16: ((uint16_t *)at)[i] = 0x7e00; break;
    default: ((uint32_t *)at)[i] = 0x7fc00000; break;
    }
}
static bool is_nan(const void *at, uint64_t i, cdp_dtype dtype) {
    switch (dtype) {
    case CDP_DTYPE_F64: return (((const uint64_t *)at)[i] << 1) > 0x7ffull << 53;
    case CDP_DTYPE_BF16: return (((const uint16_t *)at)[i] & 0x7fff) > 0x7f80;
    case CDP_DTYPE_F16: return (((const uint16_t *)at)[i] & 0x7fff) > 0x7c00;
    default: return (((const uint32_t *)at)[i] & 0x7fffffff) > 0x7f800000;
    }
}
/* back again; exact for what number() made and sums of it */
static int whole(const void *at, uint64_t i, cdp_dtype dtype) {
    uint32_t u;
    float f;
    if (dtype == CDP_DTYPE_F64) return (int)((const double *)at)[i];
    if (dtype == CDP_DTYPE_F32) return (int)((const float *)at)[i];
    u = ((const uint16_t *)at)[i];
    if (dtype == CDP_DTYPE_F16)
        u = u & 0x7fff ? ((u & 0x8000) << 16) | (((u >> 10 & 31) + 112) << 23) | ((u & 0x3ff) << 13)
                       : 0;
    else
        u <<= 16;
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
    double ratio;
    uint64_t start;
    bool forget; /* no error feedback */
    bool wild;   /* in steps 1 and 2, NaN on rank 0 in one value and in many */
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
    if (s->device) {
        p = gpu_new(NULL, bytes + 1);
        if (bytes && gpu_cudaMemcpy(p, from, bytes, GPU_TO_DEVICE)) abort();
        return p;
    }
    p = malloc(bytes + 1);
    memcpy(p, from, bytes);
    return p;
}
static void mem_free(const side *s, void *p) {
    if (s->device)
        GPU(cudaFree(p));
    else
        free(p);
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

static uint64_t bytes_of(const model *m, uint32_t i) {
    return m->counts[i] * cdp_dtype_size(m->dtypes[i]);
}
static void *grad_of(const side *s, uint32_t i) {
    return s->m->own_grad && i % 2 ? s->grad[i] : cdp_ddp_grad(s->ddp, i);
}

static bool side_open(side *s, card *c, const model *m, bool device) {
    cdp_param p[PARAMS_MAX];
    cdp_buffer b;
    cdp_ddp_desc d;
    static const double zeros[COUNT_MAX];
    memset(s, 0, sizeof *s);
    memset(p, 0, sizeof p);
    memset(&d, 0, sizeof d);
    memset(&b, 0, sizeof b);
    s->device = device;
    s->c = c;
    s->m = m;
    for (uint32_t i = 0; i < m->params; ++i) {
        double values[COUNT_MAX];
        for (uint64_t k = 0; k < m->counts[i]; ++k)
            number(values, k, m->dtypes[i], (int)(bits_of(m->seed, c->rank, i, k) % 100));
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
        h.ratio = m->ratio;
        h.start = m->start;
        h.no_error_feedback = m->forget;
        if (!OK(device ? cdp_nccl_hook_create(c->g, &h, &hook) : cdp_hook_create(&h, &hook)))
            return false;
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
    for (uint32_t i = 0; i < m->params; ++i)
        order[i] = i;
    for (uint32_t i = m->params; i > 1; --i) {
        const uint32_t k = (uint32_t)(test_random(&state) % i), t = order[i - 1];
        order[i - 1] = order[k];
        order[k] = t;
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
            number(next, k, m->dtypes[i],
                (micro ? whole(now, k, m->dtypes[i]) : 0)
                    + 12
                        * (int)(bits_of(m->seed, s->c->rank * 100 + (uint64_t)step,
                                    i * 10 + (uint64_t)micro, k)
                            % 9)
                    - 48);
        for (uint64_t k = 0; m->wild && !s->c->rank && (step == 1 || step == 2) && k < m->counts[i];
             k += step == 1 ? COUNT_MAX : 2)
            not_a_number(next, k, m->dtypes[i]);
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
            for (uint64_t k = 0; m->wild && k < m->counts[i]; ++k) /* any NaN is like any other */
                if (is_nan(a, k, m->dtypes[i]) && is_nan(b, k, m->dtypes[i])) {
                    number(a, k, m->dtypes[i], 1);
                    number(b, k, m->dtypes[i], 1);
                }
            if (memcmp(a, b, bytes_of(m, i)) != 0) {
                uint64_t k = 0;
                while (
                    whole(a, k, m->dtypes[i]) == whole(b, k, m->dtypes[i]) && k + 1 < m->counts[i])
                    ++k;
                return NOTE("seed %llu, rank %u of %u, %s %d: %s of param%u (%s) differ at %llu: "
                            "%d on the host, %d on the device",
                    (unsigned long long)m->seed, host->c->rank, host->c->n, what, step,
                    data ? "values" : "gradients", i, cdp_dtype_name(m->dtypes[i]),
                    (unsigned long long)k, whole(a, k, m->dtypes[i]), whole(b, k, m->dtypes[i]));
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
            const int micro = m->find_unused || m->static_graph || m->wild
                ? 1
                : 1 + (int)(bits_of(m->seed, 9, 9, (uint64_t)step) % 3);
            bool good = true;
            for (int k = 0; k < micro && good; ++k)
                good = pass(&host, step, k, k + 1 == micro) && pass(&dev, step, k, k + 1 == micro);
            if (!good || !same(&host, &dev, "step", step)) break;
            if (m->buffers) {
                float a[4], b[4];
                mem_get(&host, a, host.buffer, sizeof a);
                mem_get(&dev, b, dev.buffer, sizeof b);
                T(memcmp(a, b, sizeof a) == 0 && a[0] == 0);
            }
            if (step % 3 == 2 && !m->wild) {
                double hn = 0, dn = 0;
                OK(cdp_ddp_clip(host.ddp, 0, &hn));
                OK(cdp_ddp_clip(dev.ddp, 0, &dn));
                test_check(hn - dn < 1e-6 * (hn + 1) && dn - hn < 1e-6 * (hn + 1), __FILE__,
                    __LINE__, "norms %g and %g", hn, dn);
            }
            if (step % 4 == 3) {
                cdp_ddp_zero_grad(host.ddp);
                cdp_ddp_zero_grad(dev.ddp);
                if (!m->own_grad && !same(&host, &dev, "zero_grad", step)) break;
            }
        }
        if (!test__now.failed_checks) OK(cdp_ddp_verify(dev.ddp));
    }
    if (open) {
        T(cdp_ddp_stats_of(dev.ddp).steps == cdp_ddp_stats_of(host.ddp).steps
            || test__now.failed_checks);
        side_close(&host);
        side_close(&dev);
    }
    OK(cdp_barrier(c->g));
}

static model model_of(uint64_t seed) {
    static const cdp_dtype types[] = {
        CDP_DTYPE_F32, CDP_DTYPE_F32, CDP_DTYPE_F64, CDP_DTYPE_F16, CDP_DTYPE_BF16};
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
    /* the same numbers in any order are what is compared */
    if (m.hook == CDP_HOOK_FP16 || m.hook == CDP_HOOK_BF16) {
        for (uint32_t i = 0; i < m.params; ++i)
            m.dtypes[i] = m.dtypes[i] == CDP_DTYPE_F16 || m.dtypes[i] == CDP_DTYPE_BF16
                ? CDP_DTYPE_F32
                : m.dtypes[i];
    }
    m.steps = 4;
    return m;
}

#endif
