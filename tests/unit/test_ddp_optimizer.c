/* An optimizer that meets the buckets: equal parts, the parameters of a plain ddp with the same
   optimizer, saved state, 16 bits. */
#define CDP_IMPLEMENTATION
#include "cdp.h"
#include "ranks.h"
#include <math.h>

enum {
    N = 5,
    MOST = 301,
    STEPS = 6
};

/* Counts that no number of ranks divides; one parameter is empty, one smaller than most groups. */
static const uint64_t counts[N] = {301, 7, 0, 128, 1};

typedef struct model {
    cdp_ddp *ddp;
    cdp_optimizer *optimizer;
    cdp_optim optim;
    cdp_param params[N];
    float data[N][MOST], grads[N][MOST];
    uint16_t half[N][MOST];
} model;

typedef struct how {
    bool whole, deferred, own_arrays, find_unused, accumulates, bf16, same;
    cdp_real divisor;
    cdp_dtype reduce;
} how;

static void model_open(model *m, cdp_group *g, how h) {
    cdp_ddp_desc d;
    memset(m, 0, sizeof *m);
    memset(&d, 0, sizeof d);
    for (uint32_t i = 0; i < N; ++i) {
        m->params[i].count = counts[i];
        m->params[i].data = h.bf16 ? (void *)m->half[i] : (void *)m->data[i];
        if (h.bf16) m->params[i].dtype = CDP_DTYPE_BF16;
        if (h.own_arrays) m->params[i].grad = m->grads[i];
        for (uint32_t k = 0; k < counts[i]; ++k) {
            m->data[i][k] = (float)(i + k % 8);
            m->half[i][k] = (uint16_t)(0x3f80 + (k % 8));
        }
    }
    d.group = g;
    d.params = m->params;
    d.param_count = N;
    d.bucket_bytes = 512;
    d.find_unused = h.find_unused;
    d.divisor = h.divisor;
    T_EQ(CDP_OK, cdp_ddp_create(&d, &m->ddp));
}

static void model_optimize(model *m, how h) {
    cdp_optimizer_desc d;
    memset(&d, 0, sizeof d);
    d.ddp = m->ddp;
    d.optim = &m->optim;
    d.whole = h.whole;
    d.deferred = h.deferred;
    d.reduce_dtype = h.reduce;
    T_EQ(CDP_OK, cdp_optimizer_create(&d, &m->optimizer));
}

static void model_close(model *m) {
    cdp_optimizer_destroy(m->optimizer);
    cdp_ddp_destroy(m->ddp);
}

/* Whole numbers, so that every order of additions gives the same sum. */
static float value(uint32_t rank, uint32_t step, uint32_t i, uint32_t k) {
    return (float)((rank * 7 + step * 5 + i * 3 + k) % 11) - 5;
}

static cdp_status model_pass(model *m, uint32_t step, how h) {
    const uint32_t rank = h.same ? 0 : cdp_rank(cdp_ddp_group(m->ddp));
    T_EQ(CDP_OK, cdp_ddp_backward_begin(m->ddp));
    for (uint32_t i = N; i-- > 0;) {
        float *const wide = h.own_arrays ? m->grads[i] : (float *)cdp_ddp_grad(m->ddp, i);
        uint16_t *const narrow = (uint16_t *)cdp_ddp_grad(m->ddp, i);
        if (h.find_unused && i == 3 && step % 2) continue;
        for (uint32_t k = 0; k < counts[i]; ++k) {
            const float v = value(rank, step, i, k);
            uint32_t bits;
            memcpy(&bits, &v, 4);
            if (h.bf16)
                narrow[k] = (uint16_t)(bits >> 16);
            else
                wide[k] = h.accumulates ? wide[k] + v : v;
        }
        T_EQ(CDP_OK, cdp_ddp_ready(m->ddp, i));
    }
    return cdp_ddp_backward_end(m->ddp);
}

/* What a program writes itself: the whole state on every rank, after the pass. */
static void plain_step(model *m, float state[N][3][MOST], double scale, how h) {
    cdp_optim_range r;
    ++m->optim.step;
    for (uint32_t i = 0; i < N; ++i) {
        if (!cdp_ddp_used(m->ddp, i)) continue;
        memset(&r, 0, sizeof r);
        r.param = m->data[i];
        for (uint32_t k = 0; k < 3; ++k)
            r.state[k] = state[i][k];
        r.grad = h.own_arrays ? m->grads[i] : cdp_ddp_grad(m->ddp, i);
        r.grad_dtype = h.bf16 ? CDP_DTYPE_BF16 : CDP_DTYPE_F32;
        r.compute = h.bf16 ? m->half[i] : NULL;
        r.compute_dtype = h.bf16 ? CDP_DTYPE_BF16 : CDP_DTYPE_DEFAULT;
        r.count = counts[i];
        r.scale = scale;
        T_EQ(CDP_OK, cdp_optim_update(&m->optim, &r));
    }
}

/* The plain one begins with the f32 copies that the optimizer makes of 16 bits. */
static void widen_all(model *m) {
    for (uint32_t i = 0; i < N; ++i)
        T_EQ(CDP_OK,
            cdp_convert(m->half[i], CDP_DTYPE_BF16, m->data[i], CDP_DTYPE_F32, counts[i], NULL));
}

static void rank_compares(cdp_group *g, void *arg) {
    const how h = *(const how *)arg;
    static const cdp_optim optims[] = {{.kind = CDP_OPTIM_ADAMW, .lr = .01},
        {.kind = CDP_OPTIM_SGD, .momentum = .9}, {.kind = CDP_OPTIM_SGD}};
    model *plain = (model *)calloc(2, sizeof *plain), *other = plain + 1;
    float(*state)[3][MOST] = (float(*)[3][MOST])calloc(N, sizeof *state);
    for (uint32_t o = 0; o < sizeof optims / sizeof *optims; ++o) {
        memset(state, 0, N * sizeof *state);
        model_open(plain, g, h);
        model_open(other, g, h);
        plain->optim = other->optim = optims[o];
        if (h.bf16) widen_all(plain);
        model_optimize(other, h);
        for (uint32_t step = 0; step < STEPS; ++step) {
            if (h.accumulates) cdp_ddp_zero_grad(plain->ddp);
            if (h.accumulates && h.whole) cdp_ddp_zero_grad(other->ddp);
            T_EQ(CDP_OK, model_pass(plain, step, h));
            plain_step(plain, state, h.deferred ? .5 : 0, h);
            T_EQ(CDP_OK, model_pass(other, step, h));
            if (h.deferred) T_EQ(CDP_OK, cdp_optimizer_step(other->optimizer, .5));
            T_EQ(plain->optim.step, other->optim.step);
            if (h.bf16)
                T(!memcmp(plain->half, other->half, sizeof plain->half));
            else
                T(!memcmp(plain->data, other->data, sizeof plain->data));
            T_EQ(CDP_OK, cdp_ddp_verify(other->ddp));
        }
        if (h.bf16) {
            float master[MOST];
            T_EQ(CDP_OK,
                cdp_optimizer_gather(other->optimizer, CDP_OPTIMIZER_MASTER, 0,
                    cdp_rank(g) == 0 ? master : NULL, 0));
            if (cdp_rank(g) == 0) T(!memcmp(master, plain->data[0], counts[0] * sizeof *master));
        }
        model_close(plain);
        model_close(other);
    }
    free(state);
    free(plain);
}

static void compare(how h) {
    for (uint32_t n = 1; n <= 5; ++n)
        run_counted(n, rank_compares, &h);
}

TEST(parts_are_updated_as_the_whole) {
    const how overlapped = {0}, deferred = {.deferred = true};
    compare(overlapped);
    compare(deferred);
}
TEST(whole_models_are_updated_bucket_by_bucket) {
    const how overlapped = {.whole = true}, deferred = {.whole = true, .deferred = true};
    compare(overlapped);
    compare(deferred);
}
/* Gradients that were used up are zero, so a program may add to them at once. */
TEST(gradients_are_zero_after_an_update_of_parts) {
    how h = {.accumulates = true};
    compare(h);
    h.own_arrays = true;
    compare(h);
    h.deferred = true;
    compare(h);
}
TEST(unused_parameters_are_left_alone) {
    const how h = {.deferred = true, .find_unused = true},
              whole = {.whole = true, .deferred = true, .find_unused = true};
    compare(h);
    compare(whole);
}
TEST(a_divisor_holds_for_parts) {
    const how h = {.divisor = 3}, whole = {.divisor = 3, .whole = true};
    compare(h);
    compare(whole);
}
TEST(parameters_of_16_bits_have_f32_copies) {
    const how h = {.bf16 = true}, whole = {.bf16 = true, .whole = true},
              deferred = {.bf16 = true, .deferred = true};
    compare(h);
    compare(whole);
    compare(deferred);
}

/* Means of so few whole numbers over 1, 2 or 4 ranks have few enough bits for both dtypes. */
TEST(gradients_may_be_reduced_in_16_bits) {
    static const how hows[] = {{.reduce = CDP_DTYPE_BF16}, {.reduce = CDP_DTYPE_F16},
        {.reduce = CDP_DTYPE_BF16, .whole = true},
        {.reduce = CDP_DTYPE_F16, .deferred = true, .own_arrays = true},
        {.reduce = CDP_DTYPE_BF16, .whole = true, .deferred = true}};
    for (uint32_t k = 0; k < sizeof hows / sizeof *hows; ++k)
        for (uint32_t n = 1; n <= 4; n *= 2) {
            how h = hows[k];
            run_counted(n, rank_compares, &h);
        }
}

/* ---- which elements ---- */

static struct { uint64_t count[RANKS_MAX], first[RANKS_MAX][N], elements[RANKS_MAX][N]; } parts;

static void rank_lists_parts(cdp_group *g, void *arg) {
    const uint32_t rank = cdp_rank(g);
    const how h = {0};
    uint64_t at = 0;
    model *m = (model *)calloc(1, sizeof *m);
    (void)arg;
    model_open(m, g, h);
    m->optim.kind = CDP_OPTIM_SGD;
    model_optimize(m, h);
    parts.count[rank] = cdp_optimizer_count(m->optimizer);
    for (uint32_t i = 0; i < N; ++i) {
        const cdp_optimizer_part p = cdp_optimizer_part_of(m->optimizer, i);
        parts.first[rank][i] = p.first;
        parts.elements[rank][i] = p.count;
        T(p.at + p.count <= parts.count[rank]);
        at += p.count;
    }
    T_EQ(parts.count[rank], at);
    T_EQ(0, cdp_optimizer_part_of(m->optimizer, N).count);
    model_close(m);
    free(m);
}

TEST(parts_are_equal_and_cover_all_elements_once) {
    for (uint32_t n = 1; n <= 8; ++n) {
        run_ranks(n, NULL, 0, rank_lists_parts, NULL);
        for (uint32_t i = 0; i < N; ++i) {
            uint64_t at = 0;
            for (uint32_t r = 0; r < n; ++r) {
                if (parts.elements[r][i]) T_EQ(at, parts.first[r][i]);
                at += parts.elements[r][i];
            }
            T_EQ(counts[i], at);
        }
        for (uint32_t r = 1; r < n; ++r) /* two buckets, so two elements at most */
            T(parts.count[0] - parts.count[r] <= 2);
    }
}

/* ---- what is sent ---- */

static void rank_counts_bytes(cdp_group *g, void *arg) {
    static const how hows[3] = {
        {0}, {.deferred = true}, {.deferred = true, .reduce = CDP_DTYPE_BF16}};
    model *m = (model *)calloc(1, sizeof *m);
    uint64_t all = 0;
    (void)arg;
    for (uint32_t i = 0; i < N; ++i)
        all += counts[i] * 4;
    for (int k = 0; k < 3; ++k) {
        const uint64_t reduced = hows[k].reduce ? all / 2 : all;
        model_open(m, g, hows[k]);
        m->optim.kind = CDP_OPTIM_SGD;
        model_optimize(m, hows[k]);
        T_EQ(CDP_OK, model_pass(m, 0, hows[k]));
        T_EQ(hows[k].deferred ? reduced : 2 * all, cdp_ddp_stats_of(m->ddp).sent_bytes);
        if (hows[k].deferred) T_EQ(CDP_OK, cdp_optimizer_step(m->optimizer, 1));
        T_EQ(reduced + all, cdp_ddp_stats_of(m->ddp).sent_bytes);
        /* a reduce-scatter and an allgather of each bucket, and nothing else */
        for (uint32_t q = 0; q < (hows[k].deferred ? 0u : 1u); ++q) {
            const uint64_t issued = g->queue.issued;
            T_EQ(CDP_OK, model_pass(m, 1, hows[k]));
            T_EQ(cdp_ddp_stats_of(m->ddp).bucket_count, g->queue.issued - issued);
        }
        model_close(m);
    }
    free(m);
}

TEST(a_step_sends_what_an_allreduce_sends) {
    run_ranks(3, NULL, 0, rank_counts_bytes, NULL);
}

/* ---- clipping and overflow ---- */

static void rank_clips(cdp_group *g, void *arg) {
    const how h = *(const how *)arg;
    model *m = (model *)calloc(1, sizeof *m);
    const uint32_t n = cdp_size(g);
    cdp_norm norm;
    double all = 0;
    model_open(m, g, h);
    m->optim.kind = CDP_OPTIM_SGD;
    model_optimize(m, h);
    T_EQ(CDP_OK, model_pass(m, 0, h));
    for (uint32_t i = 0; i < N; ++i)
        for (uint32_t k = 0; k < counts[i]; ++k) {
            float sum = 0;
            for (uint32_t r = 0; r < n; ++r)
                sum += value(r, 0, i, k);
            sum /= (float)n;
            all += (double)sum * (double)sum;
        }
    T_EQ(CDP_OK, cdp_optimizer_norm(m->optimizer, &norm));
    T(fabs(norm.norm - sqrt(all)) <= 1e-14 * norm.norm && !norm.found_inf);
    if (!h.whole) REFUSED(CDP_ERR_STATE, "cdp_optimizer_norm", cdp_ddp_clip(m->ddp, 1, NULL));
    REFUSED(CDP_ERR_INVALID, "negative", cdp_optimizer_step(m->optimizer, -1));
    T_EQ(0, m->optim.step);
    cdp_ddp_zero_grad(m->ddp);
    T_EQ(CDP_OK, cdp_ddp_backward_begin(m->ddp));
    if (cdp_rank(g) == n - 1) ((float *)cdp_ddp_grad(m->ddp, 0))[300] = INFINITY;
    for (uint32_t i = N; i-- > 0;)
        T_EQ(CDP_OK, cdp_ddp_ready(m->ddp, i));
    T_EQ(CDP_OK, cdp_ddp_backward_end(m->ddp));
    T_EQ(CDP_OK, cdp_optimizer_norm(m->optimizer, &norm));
    T(norm.found_inf); /* on every rank, whoever has that element */
    model_close(m);
    free(m);
}

TEST(norms_and_overflow_are_equal_on_all_ranks) {
    how h = {.deferred = true};
    run_ranks(3, NULL, 0, rank_clips, &h);
    h.whole = true;
    run_ranks(3, NULL, 0, rank_clips, &h);
}

/* The loss of f16 parameters is scaled: steps that overflow are left out on all ranks until the
   scale fits, then parameters are those of a scale of 1. */
static void rank_scales(cdp_group *g, void *arg) {
    const how h = {.deferred = true};
    uint16_t half[64], *grad;
    float want[64], wide[64];
    cdp_optim optim = {.kind = CDP_OPTIM_SGD, .lr = .125}, plain = optim;
    cdp_scaler scaler = {0};
    cdp_param p;
    cdp_ddp_desc d;
    cdp_optimizer_desc o;
    cdp_ddp *ddp;
    cdp_optimizer *optimizer;
    uint32_t made = 0;
    (void)arg;
    memset(half, 0, sizeof half);
    memset(want, 0, sizeof want);
    memset(&p, 0, sizeof p);
    memset(&d, 0, sizeof d);
    memset(&o, 0, sizeof o);
    p.data = half;
    p.count = 64;
    p.dtype = CDP_DTYPE_F16;
    d.group = g;
    d.params = &p;
    d.param_count = 1;
    T_EQ(CDP_OK, cdp_ddp_create(&d, &ddp));
    o.ddp = ddp;
    o.optim = &optim;
    o.deferred = h.deferred;
    T_EQ(CDP_OK, cdp_optimizer_create(&o, &optimizer));
    for (uint32_t step = 0; step < 12; ++step) {
        const double scale = (double)cdp_scaler_scale(&scaler);
        cdp_norm norm;
        grad = (uint16_t *)cdp_ddp_grad(ddp, 0);
        T_EQ(CDP_OK, cdp_ddp_backward_begin(ddp));
        for (uint32_t k = 0; k < 64; ++k)
            wide[k] = value(cdp_rank(g), step, 0, k) * (float)scale;
        T_EQ(CDP_OK, cdp_convert(wide, CDP_DTYPE_F32, grad, CDP_DTYPE_F16, 64, NULL));
        T_EQ(CDP_OK, cdp_ddp_ready(ddp, 0));
        T_EQ(CDP_OK, cdp_ddp_backward_end(ddp));
        T_EQ(CDP_OK, cdp_optimizer_norm(optimizer, &norm));
        T_EQ(scale > 8192, norm.found_inf);
        if (norm.found_inf) {
            cdp_ddp_zero_grad(ddp);
        } else {
            cdp_optim_range r;
            memset(&r, 0, sizeof r);
            for (uint32_t k = 0; k < 64; ++k)
                wide[k] = (value(0, step, 0, k) + value(1, step, 0, k)) / 2;
            r.param = want;
            r.grad = wide;
            r.count = 64;
            r.compute = wide;
            r.compute_dtype = CDP_DTYPE_F16;
            plain.step = ++made;
            T_EQ(CDP_OK, cdp_optim_update(&plain, &r));
            T_EQ(CDP_OK, cdp_optimizer_step(optimizer, 1 / scale));
            T(!memcmp(wide, half, sizeof half));
        }
        T_EQ(made, optim.step);
        T_EQ(CDP_OK, cdp_scaler_update(&scaler, norm.found_inf));
    }
    T_EQ(3, scaler.skipped); /* 65536, 32768, 16384 */
    T_EQ(9, made);
    cdp_optimizer_destroy(optimizer);
    cdp_ddp_destroy(ddp);
}

TEST(a_scaled_loss_of_f16_recovers) {
    run_ranks(2, NULL, 0, rank_scales, NULL);
}

/* ---- ranks that run out of data, static graphs ---- */

static cdp_status shadow_step(cdp_ddp *ddp, cdp_join_when when, void *user) {
    cdp_optimizer *const o = *(cdp_optimizer **)user;
    cdp_norm norm;
    (void)ddp;
    if (when != CDP_JOIN_STEP) return CDP_OK;
    T_EQ(CDP_OK, cdp_optimizer_norm(o, &norm));
    return cdp_optimizer_step(o, 1);
}

static float uneven[2][RANKS_MAX][N][MOST];

/* Rank r has r + 1 steps; the others go on without it, and it keeps updating its part. */
static void rank_runs_out(cdp_group *g, void *arg) {
    const how h = *(const how *)arg;
    const uint32_t rank = cdp_rank(g);
    cdp_optimizer_desc o;
    model *m = (model *)calloc(1, sizeof *m);
    cdp_ddp_desc d;
    cdp_norm norm;
    memset(&d, 0, sizeof d);
    memset(&o, 0, sizeof o);
    for (uint32_t i = 0; i < N; ++i) {
        m->params[i].count = counts[i];
        m->params[i].data = m->data[i];
        if (h.own_arrays) m->params[i].grad = m->grads[i];
    }
    d.group = g;
    d.params = m->params;
    d.param_count = N;
    d.bucket_bytes = 512;
    d.join = true;
    d.join_effective = h.same;
    d.static_graph = h.accumulates;
    d.join_hook = shadow_step;
    d.user = &m->optimizer;
    T_EQ(CDP_OK, cdp_ddp_create(&d, &m->ddp));
    m->optim.kind = CDP_OPTIM_ADAM;
    o.ddp = m->ddp;
    o.optim = &m->optim;
    o.whole = h.whole;
    o.deferred = true;
    T_EQ(CDP_OK, cdp_optimizer_create(&o, &m->optimizer));
    for (uint32_t step = 0; step <= rank; ++step) {
        how pass = h;
        pass.accumulates = pass.same = false;
        T_EQ(CDP_OK, model_pass(m, step, pass));
        T_EQ(CDP_OK, cdp_optimizer_norm(m->optimizer, &norm));
        T_EQ(CDP_OK, cdp_optimizer_step(m->optimizer, 1));
    }
    T_EQ(CDP_OK, cdp_ddp_join(m->ddp));
    T_EQ(cdp_size(g), m->optim.step);
    T_EQ(CDP_OK, cdp_ddp_verify(m->ddp));
    memcpy(uneven[h.whole][rank], m->data, sizeof m->data);
    model_close(m);
    free(m);
}

TEST(ranks_without_data_update_their_parts) {
    for (int k = 0; k < 8; ++k) {
        how h = {.own_arrays = (k & 1) != 0, .same = (k & 2) != 0, .accumulates = (k & 4) != 0};
        h.whole = true;
        run_ranks(3, NULL, 0, rank_runs_out, &h);
        h.whole = false;
        run_ranks(3, NULL, 0, rank_runs_out, &h);
        T(uneven[0][0][0][0] != 0);
        for (uint32_t r = 0; r < 3; ++r)
            T(!memcmp(uneven[1][0], uneven[0][r], sizeof uneven[0][r]));
    }
}

/* ---- an optimizer of the program's own ---- */

typedef struct own {
    float momentum[1000];
    uint32_t calls, fail_at;
} own;

static cdp_status own_update(void *user, uint32_t index, const cdp_optimizer_part *part, void *data,
    const void *grad, double scale) {
    own *o = (own *)user;
    T(index < N && part->first + part->count <= counts[index]);
    if (++o->calls == o->fail_at) return CDP_ERR_IO;
    for (uint64_t k = 0; k < part->count; ++k) {
        float *m = &o->momentum[part->at + k];
        *m = *m * .5f + ((const float *)grad)[k] * (float)scale;
        ((float *)data)[k] -= .125f * *m;
    }
    return CDP_OK;
}

static void own_create(model *m, own *o, bool deferred) {
    cdp_optimizer_desc d;
    memset(&d, 0, sizeof d);
    d.ddp = m->ddp;
    d.update = own_update;
    d.user = o;
    d.deferred = deferred;
    T_EQ(CDP_OK, cdp_optimizer_create(&d, &m->optimizer));
}

static void rank_has_its_own(cdp_group *g, void *arg) {
    const how h = *(const how *)arg;
    model *plain = (model *)calloc(2, sizeof *plain), *other = plain + 1;
    own *state = (own *)calloc(2, sizeof *state);
    model_open(plain, g, h);
    model_open(other, g, h);
    own_create(other, state, h.deferred);
    for (uint32_t step = 0; step < 4; ++step) {
        uint64_t at = 0;
        T_EQ(CDP_OK, model_pass(plain, step, h));
        for (uint32_t i = 0; i < N; ++i) {
            const cdp_optimizer_part part = {0, counts[i], at};
            T_EQ(CDP_OK,
                own_update(&state[1], i, &part, plain->data[i], cdp_ddp_grad(plain->ddp, i),
                    h.deferred ? .5 : 1));
            at += counts[i];
        }
        T_EQ(CDP_OK, model_pass(other, step, h));
        if (h.deferred) T_EQ(CDP_OK, cdp_optimizer_step(other->optimizer, .5));
        T(!memcmp(plain->data, other->data, sizeof plain->data));
    }
    model_close(plain);
    model_close(other);
    free(state);
    free(plain);
}

TEST(an_optimizer_of_the_program_updates_parts) {
    for (uint32_t n = 1; n <= 4; ++n) {
        how h = {.deferred = false};
        run_ranks(n, NULL, 0, rank_has_its_own, &h);
        h.deferred = true;
        run_ranks(n, NULL, 0, rank_has_its_own, &h);
    }
}

/* One rank cannot update: all ranks end, and it knows why. */
static void rank_fails_to_update(cdp_group *g, void *arg) {
    const how h = *(const how *)arg;
    model *m = (model *)calloc(1, sizeof *m);
    own *state = (own *)calloc(1, sizeof *state);
    cdp_status st;
    model_open(m, g, h);
    state->fail_at = cdp_rank(g) == 1 ? 2 : 0;
    own_create(m, state, h.deferred);
    T_EQ(CDP_OK, cdp_ddp_backward_begin(m->ddp));
    for (uint32_t i = N; i-- > 0;)
        (void)cdp_ddp_ready(m->ddp, i);
    st = cdp_ddp_backward_end(m->ddp);
    /* a rank that is late finds the failure in the pass already */
    if (h.deferred && st == CDP_OK) st = cdp_optimizer_step(m->optimizer, 1);
    T(st < CDP_OK && st != CDP_ERR_TIMEOUT);
    T_TEXT(
        "rank 1/3: the update of an optimizer returned IO for parameter", cdp_last_error()->text);
    model_close(m);
    free(state);
    free(m);
}

TEST(an_update_that_fails_ends_the_step_on_all_ranks) {
    how h = {.deferred = false};
    run_ranks(3, NULL, 0, rank_fails_to_update, &h);
    h.deferred = true;
    run_ranks(3, NULL, 0, rank_fails_to_update, &h);
}

/* ---- saved state ---- */

static float saved[N][4][MOST], after[N][MOST];
static cdp_optim saved_optim;

/* Trains three steps, saves, and three more. */
static void rank_saves(cdp_group *g, void *arg) {
    const how h = *(const how *)arg;
    const uint32_t root = cdp_size(g) - 1;
    model *m = (model *)calloc(1, sizeof *m);
    model_open(m, g, h);
    m->optim.kind = CDP_OPTIM_ADAM;
    model_optimize(m, h);
    for (uint32_t step = 0; step < 3; ++step)
        T_EQ(CDP_OK, model_pass(m, 0, h));
    for (uint32_t i = 0; i < N; ++i)
        for (uint32_t k = 0; k < 2; ++k)
            T_EQ(CDP_OK,
                cdp_optimizer_gather(
                    m->optimizer, k, i, cdp_rank(g) == root ? saved[i][k] : NULL, root));
    if (cdp_rank(g) == root) {
        saved_optim = m->optim;
        for (uint32_t i = 0; i < N; ++i)
            memcpy(saved[i][2], m->data[i], sizeof saved[i][2]);
    }
    for (uint32_t step = 0; step < 3; ++step)
        T_EQ(CDP_OK, model_pass(m, 0, h));
    if (cdp_rank(g) == root)
        for (uint32_t i = 0; i < N; ++i)
            memcpy(after[i], m->data[i], sizeof after[i]);
    REFUSED(CDP_ERR_INVALID, "no state 2", cdp_optimizer_gather(m->optimizer, 2, 0, after[0], 0));
    REFUSED(CDP_ERR_INVALID, "no state 3", cdp_optimizer_gather(m->optimizer, 3, 0, after[0], 0));
    REFUSED(CDP_ERR_INVALID, "no rank", cdp_optimizer_gather(m->optimizer, 0, 0, after[0], 99));
    model_close(m);
    free(m);
}

static void rank_restores(cdp_group *g, void *arg) {
    const how h = *(const how *)arg;
    model *m = (model *)calloc(1, sizeof *m);
    model_open(m, g, h);
    m->optim = saved_optim;
    for (uint32_t i = 0; i < N; ++i)
        memcpy(m->data[i], saved[i][2], sizeof m->data[i]);
    model_optimize(m, h);
    for (uint32_t i = 0; i < N; ++i)
        for (uint32_t k = 0; k < 2; ++k)
            T_EQ(CDP_OK,
                cdp_optimizer_scatter(
                    m->optimizer, k, i, cdp_rank(g) == 0 ? saved[i][k] : NULL, 0));
    for (uint32_t step = 0; step < 3; ++step)
        T_EQ(CDP_OK, model_pass(m, 0, h));
    for (uint32_t i = 0; i < N; ++i)
        T(!memcmp(after[i], m->data[i], counts[i] * sizeof after[i][0]));
    model_close(m);
    free(m);
}

TEST(state_is_saved_by_4_ranks_and_read_by_others) {
    /* the same gradients on all ranks, so that their number makes no difference */
    how h = {.same = true};
    for (int whole = 0; whole < 2; ++whole) {
        h.whole = whole;
        run_ranks(4, NULL, 0, rank_saves, &h);
        for (uint32_t n = 1; n <= 5; ++n) {
            run_ranks(n, NULL, 0, rank_restores, &h);
            h.whole = !h.whole;
        }
    }
}

/* ---- mistakes ---- */

TEST(a_step_that_lacks_state_changes_nothing) {
    cdp_group *g = group_of_one(NULL);
    const how h = {.deferred = true};
    model *m = (model *)calloc(1, sizeof *m);
    model_open(m, g, h);
    m->optim.kind = CDP_OPTIM_SGD;
    model_optimize(m, h);
    T_EQ(CDP_OK, model_pass(m, 0, h));
    m->optim.momentum = .5;
    REFUSED(CDP_ERR_INVALID, "needs 1 arrays of state", cdp_optimizer_step(m->optimizer, 1));
    T_EQ(0, m->optim.step);
    T_EQ(CDP_OK, cdp_group_status(g));
    m->optim.momentum = 0;
    T_EQ(CDP_OK, cdp_optimizer_step(m->optimizer, 1));
    T_EQ(1, m->optim.step);
    model_close(m);
    cdp_group_destroy(g);
    free(m);
}

/* Also with `whole`, which asks no other rank: there may be no other os. */
TEST(a_norm_takes_memory_of_the_groups_os) {
    cdp_group *g = group_of_one(counted_os());
    const how h = {.whole = true, .deferred = true};
    model *m = (model *)calloc(1, sizeof *m);
    cdp_norm norm;
    int64_t calls;
    model_open(m, g, h);
    m->optim.kind = CDP_OPTIM_SGD;
    model_optimize(m, h);
    calls = counted.calls;
    T_EQ(CDP_OK, cdp_optimizer_norm(m->optimizer, &norm));
    T_EQ(2, counted.calls - calls);
    model_close(m);
    cdp_group_destroy(g);
    free(m);
}

static cdp_status makes_optimizer(cdp_group *g, void *arg) {
    cdp_optim sgd = {.kind = CDP_OPTIM_SGD, .lr = .1, .momentum = .5};
    cdp_ddp *const ddp = ((cdp_ddp **)arg)[cdp_rank(g)];
    const cdp_optimizer_desc d = {.ddp = ddp, .optim = &sgd};
    cdp_optimizer *o;
    const cdp_status st = cdp_optimizer_create(&d, &o);
    cdp_optimizer_destroy(o);
    return st;
}

static void optimizer_lacks_memory(cdp_group *g, void *arg) {
    cdp_ddp **const ddp = (cdp_ddp **)arg + cdp_rank(g);
    float w[64] = {0};
    const cdp_param p = {.data = w, .count = 64};
    const cdp_ddp_desc d = {.group = g, .params = &p, .param_count = 1};
    if (!OK(cdp_ddp_create(&d, ddp))) return;
    T(own_memory_is_told(g, makes_optimizer, arg) > 3);
    cdp_ddp_destroy(*ddp);
}

TEST(an_optimizer_for_which_one_rank_lacks_memory_is_refused_on_all) {
    static cdp_ddp *ddp[3];
    const cdp_group_desc like = {.timeout_ms = 3000, .os = counted_os()};
    run_ranks(3, &like, 0, optimizer_lacks_memory, ddp);
    T_EQ(0, counted.held);
}

/* Where one cuts the buckets, no other finds a mean on every rank. */
TEST(optimizers_of_one_ddp_do_not_mix) {
    cdp_group *g = group_of_one(NULL);
    const how h = {.deferred = false};
    model *m = (model *)calloc(1, sizeof *m);
    cdp_optimizer_desc d;
    cdp_optimizer *whole, *cutting;
    cdp_norm norm;
    model_open(m, g, h);
    m->optim.kind = CDP_OPTIM_SGD;
    memset(&d, 0, sizeof d);
    d.ddp = m->ddp;
    d.optim = &m->optim;
    T_EQ(CDP_OK, cdp_optimizer_create(&d, &cutting));
    d.whole = d.deferred = true;
    REFUSED(CDP_ERR_UNSUPPORTED, "another optimizer", cdp_optimizer_create(&d, &whole));
    cdp_optimizer_destroy(cutting);
    T_EQ(CDP_OK, cdp_optimizer_create(&d, &whole));
    d.whole = d.deferred = false;
    T_EQ(CDP_OK, cdp_optimizer_create(&d, &cutting));
    REFUSED(CDP_ERR_STATE, "another optimizer", cdp_optimizer_norm(whole, &norm));
    REFUSED(CDP_ERR_STATE, "another optimizer", cdp_optimizer_step(whole, 1));
    cdp_optimizer_destroy(cutting);
    T_EQ(CDP_OK, cdp_optimizer_step(whole, 1));
    cdp_optimizer_destroy(whole);
    model_close(m);
    cdp_group_destroy(g);
    free(m);
}

/* The group is gone first: the ddp goes on in another one, without the optimizer. */
TEST(an_optimizer_ends_after_its_group) {
    for (int deferred = 0; deferred < 2; ++deferred) {
        const how h = {.deferred = deferred != 0};
        cdp_group *g = group_of_one(NULL), *other = group_of_one(NULL);
        model *m = (model *)calloc(1, sizeof *m);
        model_open(m, g, h);
        m->optim.kind = CDP_OPTIM_SGD;
        model_optimize(m, h);
        T_EQ(counts[0], cdp_optimizer_part_of(m->optimizer, 0).count);
        cdp_group_destroy(g);
        T_EQ(0, cdp_optimizer_part_of(m->optimizer, 0).count);
        cdp_optimizer_destroy(m->optimizer);
        m->optimizer = NULL;
        T_EQ(CDP_OK, cdp_ddp_rebind(m->ddp, other));
        T_EQ(CDP_OK, model_pass(m, 0, h));
        for (uint32_t k = 0; k < counts[0]; ++k)
            T(value(0, 0, 0, k) == ((float *)cdp_ddp_grad(m->ddp, 0))[k]);
        T_EQ(CDP_OK, cdp_ddp_clip(m->ddp, 1, NULL));
        model_close(m);
        cdp_group_destroy(other);
        free(m);
    }
}

/* It is made where each rank is alone; then they go on together. */
static void rank_grows(cdp_group *g, void *arg) {
    const how h = {.whole = true, .deferred = true};
    const uint32_t last = cdp_size(g) - 1;
    cdp_group *one = group_of_one(NULL);
    model *m = (model *)calloc(1, sizeof *m);
    float state[MOST];
    (void)arg;
    model_open(m, one, h);
    m->optim.kind = CDP_OPTIM_SGD;
    m->optim.momentum = .5;
    model_optimize(m, h);
    T_EQ(CDP_OK, cdp_ddp_rebind(m->ddp, g));
    cdp_group_destroy(one);
    for (uint32_t k = 0; k < MOST; ++k)
        state[k] = (float)(cdp_rank(g) * 1000 + k);
    T_EQ(CDP_OK, cdp_optimizer_scatter(m->optimizer, 0, 0, state, last));
    memset(state, 0, sizeof state);
    T_EQ(CDP_OK, cdp_optimizer_gather(m->optimizer, 0, 0, state, cdp_rank(g)));
    for (uint32_t k = 0; k < MOST; ++k)
        T(state[k] == (float)(last * 1000 + k));
    model_close(m);
    free(m);
}

TEST(a_whole_optimizer_goes_on_in_a_larger_group) {
    run_ranks(4, NULL, 0, rank_grows, NULL);
}

TEST(mistakes_with_optimizers) {
    cdp_group *g = group_of_one(NULL);
    const how h = {.find_unused = true};
    model *m = (model *)calloc(1, sizeof *m);
    cdp_optimizer *o = NULL;
    cdp_optimizer_desc d;
    cdp_hook hook;
    cdp_hook_desc hd;
    cdp_norm norm;
    model_open(m, g, h);
    memset(&d, 0, sizeof d);
    REFUSED(CDP_ERR_INVALID, "out is NULL", cdp_optimizer_create(&d, NULL));
    REFUSED(CDP_ERR_INVALID, "desc is NULL", cdp_optimizer_create(NULL, &o));
    REFUSED(CDP_ERR_INVALID, "desc.ddp is NULL", cdp_optimizer_create(&d, &o));
    d.ddp = m->ddp;
    REFUSED(CDP_ERR_INVALID, "desc.optim is NULL", cdp_optimizer_create(&d, &o));
    d.optim = &m->optim;
    REFUSED(CDP_ERR_UNSUPPORTED, "set deferred", cdp_optimizer_create(&d, &o));
    d.deferred = true;
    d.reduce_dtype = CDP_DTYPE_F64;
    REFUSED(CDP_ERR_INVALID, "reduce_dtype is f64", cdp_optimizer_create(&d, &o));
    d.reduce_dtype = CDP_DTYPE_DEFAULT;
    REFUSED(CDP_ERR_INVALID, "kind 0 is not", cdp_optimizer_create(&d, &o));
    m->optim.kind = CDP_OPTIM_SGD;
    memset(&hd, 0, sizeof hd);
    T_EQ(CDP_OK, cdp_hook_create(&hd, &hook));
    T_EQ(CDP_OK, cdp_ddp_set_hook(m->ddp, &hook));
    REFUSED(CDP_ERR_UNSUPPORTED, "has a hook", cdp_optimizer_create(&d, &o));
    T_EQ(CDP_OK, cdp_ddp_set_hook(m->ddp, NULL));
    T_EQ(CDP_OK, cdp_optimizer_create(&d, &o));
    REFUSED(CDP_ERR_INVALID, "optimizer is NULL", cdp_optimizer_step(NULL, 1));
    REFUSED(CDP_ERR_INVALID, "parameter 5", cdp_optimizer_gather(o, 0, N, NULL, 0));
    T_EQ(CDP_OK, cdp_ddp_backward_begin(m->ddp));
    REFUSED(CDP_ERR_STATE, "a backward pass is open", cdp_optimizer_step(o, 1));
    cdp_optimizer_destroy(o); /* does nothing yet */
    T_TEXT("cdp_optimizer_destroy: a backward pass is open", cdp_last_error()->text);
    T_EQ(CDP_OK, cdp_ddp_backward_end(m->ddp));
    T_EQ(CDP_OK, cdp_ddp_set_hook(m->ddp, NULL));
    REFUSED(CDP_ERR_STATE, "has another hook", cdp_optimizer_norm(o, &norm));
    cdp_optimizer_destroy(o);
    /* destroyed after its ddp and its group */
    T_EQ(CDP_OK, cdp_optimizer_create(&d, &m->optimizer));
    cdp_ddp_destroy(m->ddp);
    cdp_group_destroy(g);
    cdp_optimizer_destroy(m->optimizer);
    cdp_optimizer_destroy(NULL);
    free(m);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"parts_are_updated_as_the_whole", parts_are_updated_as_the_whole, 60},
        {"whole_models_are_updated_bucket_by_bucket", whole_models_are_updated_bucket_by_bucket,
            60},
        {"gradients_are_zero_after_an_update_of_parts", gradients_are_zero_after_an_update_of_parts,
            60},
        {"unused_parameters_are_left_alone", unused_parameters_are_left_alone, 60},
        {"a_divisor_holds_for_parts", a_divisor_holds_for_parts, 60},
        {"parameters_of_16_bits_have_f32_copies", parameters_of_16_bits_have_f32_copies, 60},
        {"gradients_may_be_reduced_in_16_bits", gradients_may_be_reduced_in_16_bits, 60},
        {"a_scaled_loss_of_f16_recovers", a_scaled_loss_of_f16_recovers, 20},
        {"ranks_without_data_update_their_parts", ranks_without_data_update_their_parts, 60},
        {"an_optimizer_of_the_program_updates_parts", an_optimizer_of_the_program_updates_parts,
            20},
        {"an_update_that_fails_ends_the_step_on_all_ranks",
            an_update_that_fails_ends_the_step_on_all_ranks, 20},
        {"parts_are_equal_and_cover_all_elements_once", parts_are_equal_and_cover_all_elements_once,
            20},
        {"a_step_sends_what_an_allreduce_sends", a_step_sends_what_an_allreduce_sends, 20},
        {"norms_and_overflow_are_equal_on_all_ranks", norms_and_overflow_are_equal_on_all_ranks,
            20},
        {"state_is_saved_by_4_ranks_and_read_by_others",
            state_is_saved_by_4_ranks_and_read_by_others, 60},
        {"a_step_that_lacks_state_changes_nothing", a_step_that_lacks_state_changes_nothing, 20},
        {"a_norm_takes_memory_of_the_groups_os", a_norm_takes_memory_of_the_groups_os, 20},
        {"an_optimizer_for_which_one_rank_lacks_memory_is_refused_on_all",
            an_optimizer_for_which_one_rank_lacks_memory_is_refused_on_all, 30},
        {"optimizers_of_one_ddp_do_not_mix", optimizers_of_one_ddp_do_not_mix, 20},
        {"an_optimizer_ends_after_its_group", an_optimizer_ends_after_its_group, 20},
        {"a_whole_optimizer_goes_on_in_a_larger_group", a_whole_optimizer_goes_on_in_a_larger_group,
            20},
        {"mistakes_with_optimizers", mistakes_with_optimizers, 20}};
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
