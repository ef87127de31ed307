/* Sharded training: where units are cut, against all places; the numbers of one process, bit for
   bit, over random models; memory as on paper; mistakes and failures in sentences. */
#define CDP_IMPLEMENTATION
#include "cdp.h"
#include "cdp_fsdp.h"
#include "ranks.h"
#include <math.h>

enum {
    PARAMS = 12,
    UNITS = 6,
    MOST = 96
};

/* ---- cuts ---- */

static uint64_t count_of(const cdp_fsdp_param *p) {
    uint64_t n = 1;
    for (uint32_t d = 0; d < p->ndim; ++d)
        n *= p->shape[d];
    return n;
}
static uint64_t row_of(const cdp_fsdp_param *p) {
    uint64_t n = 1;
    if (p->grain != CDP_GRAIN_ROW) return p->grain;
    for (uint32_t d = 1; d < p->ndim; ++d)
        n *= p->shape[d];
    return n ? n : 1;
}

/* The allowed place nearest to rank * total / ranks, by looking at all of them. */
static uint64_t nearest(
    const cdp_fsdp_param *params, uint32_t n, bool frozen, uint64_t ranks, uint64_t rank) {
    uint64_t total = 0, at = 0, best = 0, far = UINT64_MAX;
    for (uint32_t i = 0; i < n; ++i)
        if (params[i].unit == 0 && params[i].frozen == frozen) total += count_of(&params[i]);
    for (uint32_t i = 0; i < n; ++i) {
        const uint64_t count = count_of(&params[i]);
        if (params[i].unit != 0 || params[i].frozen != frozen) continue;
        for (uint64_t k = 0; k <= count; ++k) {
            const uint64_t here = (at + k) * ranks, ideal = rank * total;
            const uint64_t away = here < ideal ? ideal - here : here - ideal;
            if (k % row_of(&params[i]) && k != count) continue;
            if (away < far) {
                far = away;
                best = at + k;
            }
        }
        at += count;
    }
    return best;
}

static uint32_t random_to(uint64_t *state, uint32_t n) {
    return (uint32_t)(test_random(state) % n);
}

static cdp_fsdp_param random_param(uint64_t *state, uint32_t units) {
    static const uint64_t grains[] = {
        CDP_GRAIN_ROW, CDP_GRAIN_ROW, CDP_GRAIN_ANY, CDP_GRAIN_WHOLE, 5};
    cdp_fsdp_param p;
    memset(&p, 0, sizeof p);
    p.unit = random_to(state, units);
    p.ndim = random_to(state, 4);
    for (uint32_t d = 0; d < p.ndim; ++d)
        p.shape[d] = (1 + random_to(state, d > 0 ? 4u : 6u)) * (random_to(state, 9) > 0);
    p.grain = grains[random_to(state, 5)];
    p.frozen = random_to(state, 5) == 0;
    return p;
}

TEST(cuts_are_the_nearest_allowed_places) {
    uint64_t state = 38;
    for (uint32_t model = 0; model < 300; ++model) {
        cdp_fsdp_param params[8];
        cdp_fsdp_desc d;
        const uint32_t n = 1 + random_to(&state, 8), units = 1 + random_to(&state, 2);
        memset(&d, 0, sizeof d);
        for (uint32_t i = 0; i < n; ++i)
            params[i] = random_param(&state, units);
        params[0].unit = units - 1;
        d.params = params;
        d.param_count = n;
        for (uint32_t ranks = 1; ranks <= 64; ++ranks)
            for (uint32_t frozen = 0; frozen < 2; ++frozen) {
                uint64_t total = 0, largest = 1, reached = 0;
                for (uint32_t i = 0; i < n; ++i)
                    if (params[i].unit == 0 && params[i].frozen == (frozen == 1)) {
                        const uint64_t count = count_of(&params[i]), row = row_of(&params[i]);
                        total += count;
                        if (largest < (row < count ? row : count))
                            largest = row < count ? row : count;
                    }
                for (uint32_t r = 0; r < ranks; ++r) {
                    uint64_t start, end;
                    if (!T_EQ(CDP_OK, cdp_fsdp_range(&d, 0, frozen == 1, ranks, r, &start, &end)))
                        return;
                    if (!T_EQ(reached, start)) return;
                    if (!T_EQ(nearest(params, n, frozen == 1, ranks, r), start)) return;
                    T((end - start) * ranks <= total + largest * ranks);
                    reached = end;
                }
                T_EQ(total, reached);
            }
    }
}

/* A model of 124 million parameters, for 8 ranks and for as many as there may be. */
TEST(a_large_model_fits_on_paper) {
    static cdp_fsdp_param params[14];
    cdp_fsdp_desc d;
    cdp_fsdp_stats s;
    cdp_optim adam = {.kind = CDP_OPTIM_ADAM};
    uint64_t all = 0, from, to, reached = 0;
    memset(&d, 0, sizeof d);
    for (uint32_t i = 0; i < 14; ++i) {
        params[i].unit = i;
        params[i].ndim = 2;
        params[i].shape[0] = i < 12 ? 9229 : 1024;
        if (i == 12) params[i].shape[0] = 50257;
        params[i].shape[1] = 768;
        all += params[i].shape[0] * 768;
    }
    params[13].unit = 12;
    d.params = params;
    d.param_count = 14;
    d.optim = &adam;
    d.paper_ranks = 8;
    T_EQ(CDP_OK, cdp_fsdp_preview(&d, 3, &s));
    T(fabs((double)s.shard_bytes / ((double)all * 8 / 8) - 1) < 0.01);
    T(fabs((double)s.state_bytes / ((double)all * 8 / 8) - 1) < 0.01);
    T_EQ(2 * 9229ull * 768 * 4 + (50257ull + 1024) * 768 * 4, s.slot_bytes);
    T_EQ(2 * (50257ull + 1024) * 768 * 4, s.gradient_bytes);
    T_EQ(13, s.reductions);
    T_EQ(12 * 2 - 2 + 1, s.gathers);
    T(s.largest_share < 1.01);
    d.paper_ranks = 65535;
    T_EQ(CDP_OK, cdp_fsdp_preview(&d, 65534, &s));
    T(s.largest_share > 1);
    for (uint32_t r = 0; r < 65535; r += r < 100 || r > 65400 ? 1 : 97) {
        T_EQ(CDP_OK, cdp_fsdp_range(&d, 12, false, 65535, r, &from, &to));
        T(from >= reached && to >= from && from % 768 == 0);
        reached = to;
    }
    T_EQ((50257ull + 1024) * 768, reached);
}

/* Experts that are units of their own: 3000 in two sizes, in turn. */
TEST(many_units_fit_on_paper) {
    enum {
        MANY = 3000
    };
    static cdp_fsdp_param params[MANY];
    cdp_fsdp_desc d;
    cdp_fsdp_stats s;
    memset(&d, 0, sizeof d);
    for (uint32_t i = 0; i < MANY; ++i) {
        params[i].unit = i;
        params[i].ndim = 1;
        params[i].shape[0] = 100 + i % 2;
    }
    d.params = params;
    d.param_count = MANY;
    d.paper_ranks = 8;
    T_EQ(CDP_OK, cdp_fsdp_preview(&d, 7, &s));
    T_EQ(2 * 4 * (100 + 101), s.slot_bytes);
    T_EQ(2 * MANY - 4, s.gathers);
}

/* As many units as there may be: nothing looks at all of them for each of them. */
TEST(as_many_units_as_there_may_be_are_planned_at_once) {
    const uint32_t n = 2 * CDP_FSDP_UNITS;
    cdp_fsdp_param *params = (cdp_fsdp_param *)calloc(n, sizeof *params);
    cdp_fsdp_desc d;
    cdp_fsdp_stats s;
    memset(&d, 0, sizeof d);
    for (uint32_t i = 0; i < n; ++i) {
        params[i].unit = i / 2;
        params[i].ndim = 1;
        params[i].shape[0] = 4 + i / 2 % 3; /* three sizes of units */
    }
    d.params = params;
    d.param_count = n;
    d.paper_ranks = 4;
    T_EQ(CDP_OK, cdp_fsdp_preview(&d, 1, &s));
    T_EQ(2 * 2 * (4 + 5 + 6) * 4, s.slot_bytes);
    T_EQ(2 * CDP_FSDP_UNITS - 3 * 2, s.gathers);
    T_EQ(CDP_FSDP_UNITS, s.reductions);
    free(params);
}

/* At a byte each microsecond, operations take as long as a step has bytes. */
static void times_follow_from_bytes(
    const cdp_fsdp_desc *d, uint32_t ranks, uint32_t rank, const cdp_fsdp_stats *paper) {
    const cdp_fsdp_speed speed = {.bytes_per_us = 1};
    cdp_fsdp_times t;
    T_EQ(CDP_OK, cdp_fsdp_preview_times(d, rank, &speed, &t));
    T_EQ(ranks > 1 ? paper->gather_bytes + paper->reduce_bytes + 16 : 0, (uint64_t)t.comm_us);
    T(t.exposed_us >= 0 && t.exposed_us <= t.comm_us && t.step_us == t.exposed_us);
}

/* Units of 32 bytes, half of which come from the other rank. */
TEST(waiting_is_known_on_paper) {
    static cdp_fsdp_param params[3];
    const double us[3] = {100, 100, 100}, little[3] = {10, 10, 10}, odd[3] = {1, -1, 1};
    cdp_fsdp_speed speed = {.bytes_per_us = 1, .unit_us = us};
    cdp_fsdp_times t;
    cdp_fsdp_desc d;
    memset(&d, 0, sizeof d);
    for (uint32_t i = 0; i < 3; ++i) {
        params[i].unit = i;
        params[i].ndim = 1;
        params[i].shape[0] = 8;
        params[i].grain = CDP_GRAIN_ANY;
    }
    d.params = params;
    d.param_count = 3;
    d.paper_ranks = 2;
    /* The first gather, the last reduction and the end are waited for. Unit 0 is gathered again. */
    T_EQ(CDP_OK, cdp_fsdp_preview_times(&d, 0, &speed, &t));
    T_EQ(4 * 16 + 3 * 16 + 16, (uint64_t)t.comm_us);
    T_EQ(3 * 16, (uint64_t)t.exposed_us);
    T_EQ(900 + 3 * 16, (uint64_t)t.step_us);
    T(fabs(t.hidden - (1 - 48. / 128)) < 1e-12);
    speed.latency_us = 4; /* of each of eight operations */
    T_EQ(CDP_OK, cdp_fsdp_preview_times(&d, 1, &speed, &t));
    T_EQ(4 * 20 + 3 * 20 + 20, (uint64_t)t.comm_us);
    T_EQ(3 * 20, (uint64_t)t.exposed_us);
    speed.latency_us = 0;
    /* Forward waits 6 us for each of two units more, backward 12 us for unit 0, whose gather comes
       after a reduction. */
    speed.unit_us = little;
    T_EQ(CDP_OK, cdp_fsdp_preview_times(&d, 0, &speed, &t));
    T_EQ(16 + 6 + 6 + 12 + 2 * 16, (uint64_t)t.exposed_us);
    T_EQ(3 * 30 + 72, (uint64_t)t.step_us);
    /* Every gather is waited for, two of them with the reduction before; one unit is here still. */
    d.no_prefetch = true;
    speed.unit_us = us;
    T_EQ(CDP_OK, cdp_fsdp_preview_times(&d, 0, &speed, &t));
    T_EQ(3 * 16 + 2 * 32 + 2 * 16, (uint64_t)t.exposed_us);
    d.paper_ranks = 1;
    T_EQ(CDP_OK, cdp_fsdp_preview_times(&d, 0, &speed, &t));
    T(t.step_us == 900 && t.comm_us == 0 && t.exposed_us == 0 && t.hidden == 0);
    speed.unit_us = odd;
    T_EQ(CDP_ERR_INVALID, cdp_fsdp_preview_times(&d, 0, &speed, &t));
    T_TEXT("speed->unit_us[1] is negative or NaN", cdp_last_error()->text);
    T(t.step_us == 0);
    speed.unit_us = us;
    speed.bytes_per_us = 0;
    T_EQ(CDP_ERR_INVALID, cdp_fsdp_preview_times(&d, 0, &speed, &t));
    T_TEXT("bytes_per_us", cdp_last_error()->text);
    T_EQ(CDP_ERR_INVALID, cdp_fsdp_preview_times(&d, 1, &speed, &t));
    T_EQ(CDP_ERR_INVALID, cdp_fsdp_preview_times(&d, 0, NULL, &t));
    T_EQ(CDP_ERR_INVALID, cdp_fsdp_preview_times(&d, 0, &speed, NULL));
}

/* More sizes than are counted at once, and parameters that are not in the order of units. */
static void rank_has_many_sizes(cdp_group *g, void *arg) {
    enum {
        SIZES = 100,
        EACH = 3
    };
    cdp_fsdp_param *params = (cdp_fsdp_param *)calloc(SIZES * EACH, sizeof *params);
    cdp_fsdp_desc d;
    cdp_fsdp_stats paper;
    cdp_fsdp *f = NULL;
    uint64_t slots = 0;
    memset(&d, 0, sizeof d);
    for (uint32_t i = 0; i < SIZES * EACH; ++i) {
        params[i].unit = *(const bool *)arg ? i : SIZES * EACH - 1 - i;
        params[i].ndim = 1;
        params[i].shape[0] = 1 + i % SIZES;
        if (i < SIZES) slots += 2 * (1 + i) * 4; /* this one and the next, of three */
    }
    d.group = g;
    d.params = params;
    d.param_count = SIZES * EACH;
    T_EQ(CDP_OK, cdp_fsdp_preview(&d, cdp_rank(g), &paper));
    times_follow_from_bytes(&d, cdp_size(g), cdp_rank(g), &paper);
    T_EQ(slots, paper.slot_bytes);
    T_EQ(SIZES * (1 + 2 + 1), paper.gathers);
    T_EQ(CDP_OK, cdp_fsdp_create(&d, &f));
    T_EQ(slots, cdp_fsdp_stats_of(f).slot_bytes);
    T_EQ(paper.total_bytes, cdp_fsdp_stats_of(f).total_bytes);
    cdp_fsdp_destroy(f);
    free(params);
}
TEST(more_sizes_than_are_counted_at_once_are_planned) {
    for (uint32_t sorted = 0; sorted < 2; ++sorted) {
        bool is = sorted == 1;
        run_counted(2, rank_has_many_sizes, &is);
    }
}

/* ---- the numbers of one process ---- */

typedef struct how {
    cdp_fsdp_stage stage;
    uint64_t seed;
    uint32_t prefetch, passes, replicas;
    bool no_prefetch, no_sync, recompute, twice, own_update;
    cdp_dtype compute; /* 0: f32 */
} how;

typedef struct model {
    uint32_t params, units;
    cdp_fsdp_param param[PARAMS];
    cdp_fsdp_unit unit[UNITS];
    float init[PARAMS][MOST], value[PARAMS][MOST], grad[PARAMS][MOST], state[PARAMS][2][MOST];
    cdp_optim optim, serial;
    uint32_t updates;
} model;

static void model_make(model *m, how h) {
    uint64_t state = h.seed * 977 + 5;
    memset(m, 0, sizeof *m);
    m->units = 1 + random_to(&state, UNITS);
    m->params = m->units + random_to(&state, PARAMS - m->units + 1);
    for (uint32_t i = 0; i < m->params; ++i) {
        m->param[i] = random_param(&state, m->units);
        if (i < m->units) m->param[i].unit = i;
        if (i == 0) m->param[i].frozen = false;
        m->param[i].init = m->init[i];
        for (uint32_t k = 0; k < MOST; ++k)
            m->init[i][k] = m->value[i][k] = (float)((i * 5 + k) % 9) - 4;
    }
    for (uint32_t u = 0; u < m->units; ++u) {
        m->unit[u].keep = random_to(&state, 4) == 0;
        m->unit[u].uses = h.twice && u % 2 ? 2 : 1;
    }
    m->optim.kind = CDP_OPTIM_SGD;
    m->optim.lr = .125;
    m->optim.momentum = .5;
    m->serial = m->optim;
}

/* A whole number that depends on the parameter's value, so that a stale one is seen. */
static float gradient(
    uint32_t rank, uint32_t step, uint32_t pass, uint32_t i, uint32_t k, float x) {
    return (float)((rank * 7 + step * 5 + pass * 2 + i * 3 + k) % 11) - 5 + (x > 0 ? 1.0f : -1.0f);
}

static cdp_status own_update(void *user, const cdp_fsdp_piece *p) {
    const model *m = (const model *)user;
    cdp_optim o = m->optim;
    cdp_optim_range r = {.param = p->data,
        .state = {p->state[0]},
        .grad = p->grad,
        .count = p->count,
        .scale = p->scale};
    o.step = p->step;
    T(p->first + p->count <= count_of(&m->param[p->param]));
    return cdp_optim_update(&o, &r);
}

/* All ranks' gradients, added in one process. */
static void serial_step(model *m, uint32_t ranks, uint32_t step, how h) {
    ++m->serial.step;
    for (uint32_t i = 0; i < m->params; ++i) {
        const uint32_t n = (uint32_t)count_of(&m->param[i]);
        cdp_optim_range r = {
            .param = m->value[i], .state = {m->state[i][0]}, .grad = m->grad[i], .count = n};
        if (m->param[i].frozen) continue;
        for (uint32_t k = 0; k < n; ++k) {
            float sum = 0;
            for (uint32_t rank = 0; rank < ranks; ++rank)
                for (uint32_t pass = 0; pass < h.passes; ++pass)
                    sum +=
                        gradient(rank, step, pass, i, k, m->value[i][k]) * (h.twice ? 2.0f : 1.0f);
            m->grad[i][k] = sum / (float)ranks;
        }
        T_EQ(CDP_OK, cdp_optim_update(&m->serial, &r));
    }
}

static bool data_is_right(cdp_fsdp *f, const model *m, uint32_t unit, cdp_dtype compute) {
    bool right = true;
    for (uint32_t i = 0; i < m->params; ++i) {
        const uint32_t n = (uint32_t)count_of(&m->param[i]);
        const void *data = cdp_fsdp_data(f, i);
        if (m->param[i].unit != unit || !n) continue;
        if (!T(data != NULL)) return false;
        for (uint32_t k = 0; k < n && right; ++k) {
            uint16_t rounded;
            if (compute) {
                T_EQ(CDP_OK,
                    cdp_convert(&m->value[i][k], CDP_DTYPE_F32, &rounded, compute, 1, NULL));
                right = T_EQ(rounded, ((const uint16_t *)data)[k]);
            } else
                right = T(((const float *)data)[k] == m->value[i][k]);
        }
    }
    return right;
}

static void add_gradients(
    cdp_fsdp *f, const model *m, uint32_t unit, uint32_t rank, uint32_t step, uint32_t pass) {
    for (uint32_t i = 0; i < m->params; ++i) {
        const uint32_t n = (uint32_t)count_of(&m->param[i]);
        float *grad;
        if (m->param[i].unit != unit || !n) continue;
        grad = cdp_fsdp_grad(f, i);
        T((grad == NULL) == m->param[i].frozen);
        for (uint32_t k = 0; grad && k < n; ++k)
            grad[k] += gradient(rank, step, pass, i, k, m->value[i][k]);
    }
}

static void one_pass(
    cdp_fsdp *f, const model *m, uint32_t rank, uint32_t step, uint32_t pass, how h) {
    for (uint32_t u = 0; u < m->units; ++u) {
        T_EQ(CDP_OK, cdp_fsdp_need(f, u));
        if (!data_is_right(f, m, u, h.compute)) return;
        T_EQ(CDP_OK, cdp_fsdp_done(f, u));
    }
    for (uint32_t u = m->units; u-- > 0;)
        for (uint32_t use = 0; use < (h.twice ? 2u : 1u); ++use) {
            T_EQ(CDP_OK, cdp_fsdp_need(f, u));
            if (h.recompute) { /* the forward function again */
                T_EQ(CDP_OK, cdp_fsdp_need(f, u));
                if (!data_is_right(f, m, u, h.compute)) return;
                T_EQ(CDP_OK, cdp_fsdp_done(f, u));
            }
            if (!data_is_right(f, m, u, h.compute)) return;
            add_gradients(f, m, u, rank, step, pass);
            T_EQ(CDP_OK, cdp_fsdp_ready(f, u));
        }
}

static void train(cdp_group *whole_group, cdp_group *g, cdp_group *replicate, uint32_t rank,
    uint32_t ranks, how h) {
    model *m = (model *)malloc(sizeof *m);
    cdp_fsdp *f = NULL;
    cdp_fsdp_desc d;
    cdp_fsdp_stats paper, run;
    float whole[MOST];
    int64_t allocations = 0;
    model_make(m, h);
    memset(&d, 0, sizeof d);
    d.group = g;
    d.replicate = replicate;
    d.norm_group = whole_group;
    d.params = m->param;
    d.param_count = m->params;
    d.units = m->unit;
    d.unit_count = m->units;
    d.stage = h.stage;
    d.prefetch = h.prefetch;
    d.no_prefetch = h.no_prefetch;
    d.compute = h.compute;
    if (h.own_update) {
        d.update = own_update;
        d.user = m;
        d.states = 1;
    } else
        d.optim = &m->optim;
    if (!T_EQ(CDP_OK, cdp_fsdp_create(&d, &f))) printf("    %s\n", cdp_last_error()->text);
    T_EQ(CDP_OK, cdp_fsdp_preview(&d, cdp_rank(g), &paper));
    times_follow_from_bytes(&d, cdp_size(g), cdp_rank(g), &paper);
    for (uint32_t step = 0; step < 4 && f; ++step) {
        cdp_fsdp_info info;
        double squares = 0;
        for (uint32_t pass = 0; pass < h.passes; ++pass) {
            T_EQ(CDP_OK, cdp_fsdp_no_sync(f, h.no_sync && pass + 1 < h.passes));
            one_pass(f, m, rank, step, pass, h);
        }
        T_EQ(CDP_OK, cdp_fsdp_backward_end(f, 0, &info));
        serial_step(m, ranks, step, h);
        for (uint32_t i = 0; i < m->params; ++i)
            for (uint32_t k = 0; k < count_of(&m->param[i]) && !m->param[i].frozen; ++k)
                squares += (double)m->grad[i][k] * (double)m->grad[i][k];
        T(fabs(info.norm - sqrt(squares)) <= 1e-12 * info.norm);
        T(!info.found_inf && !info.skipped && info.scale == 1);
        T_EQ(CDP_OK, cdp_fsdp_step(f));
        if (step == 2) allocations = (int64_t)cdp_fsdp_stats_of(f).total_bytes;
    }
    run = cdp_fsdp_stats_of(f);
    T_EQ(allocations, run.total_bytes);
    if (!h.no_sync && !h.twice) { /* as the text of preview says */
        T_EQ(paper.shard_bytes, run.shard_bytes);
        T_EQ(paper.copy_bytes, run.copy_bytes);
        T_EQ(paper.state_bytes, run.state_bytes);
        T_EQ(paper.slot_bytes, run.slot_bytes);
        T_EQ(paper.gradient_bytes, run.gradient_bytes);
        T_EQ(paper.total_bytes, run.total_bytes);
        if (h.passes == 1) {
            T_EQ(paper.gathers, run.gathers);
            T_EQ(paper.gather_bytes, run.gather_bytes);
            T_EQ(paper.reductions, run.reductions);
            T_EQ(paper.reduce_bytes, run.reduce_bytes);
            if (!h.no_prefetch) T_EQ(0, run.misses);
        }
    }
    for (uint32_t i = 0; i < m->params; ++i) { /* saved whole, on each rank in turn */
        const uint32_t n = (uint32_t)count_of(&m->param[i]), root = i % cdp_size(g);
        T_EQ(CDP_OK, cdp_fsdp_save(f, i, CDP_FSDP_VALUES, whole, root));
        if (cdp_rank(g) == root) T(!memcmp(whole, m->value[i], n * sizeof *whole));
        if (m->param[i].frozen) continue;
        T_EQ(CDP_OK, cdp_fsdp_save(f, i, 0, whole, root));
        if (cdp_rank(g) == root) T(!memcmp(whole, m->state[i][0], n * sizeof *whole));
    }
    cdp_fsdp_destroy(f);
    free(m);
}

static void rank_trains(cdp_group *g, void *arg) {
    const how h = *(const how *)arg;
    if (h.replicas) {
        cdp_group *shard = NULL, *replicate = NULL;
        const uint32_t rank = cdp_rank(g), each = cdp_size(g) / h.replicas;
        T_EQ(CDP_OK, cdp_group_split(g, rank / each, rank, &shard));
        T_EQ(CDP_OK, cdp_group_split(g, rank % each, rank, &replicate));
        train(h.seed % 2 ? g : NULL, shard, replicate, rank, cdp_size(g), h);
        cdp_group_destroy(replicate);
        cdp_group_destroy(shard);
    } else
        train(NULL, g, NULL, cdp_rank(g), cdp_size(g), h);
}

static void run_all_worlds(how h, uint32_t seeds) {
    for (uint32_t n = 1; n <= 5; ++n)
        for (h.seed = 1; h.seed <= seeds; ++h.seed)
            run_counted(n, rank_trains, &h);
}

TEST(random_models_train_as_in_one_process) {
    how h = {.passes = 1};
    run_all_worlds(h, 12);
    h.prefetch = 3;
    run_all_worlds(h, 4);
    h.no_prefetch = true;
    run_all_worlds(h, 4);
}
TEST(all_stages_give_the_same_numbers) {
    how h = {.passes = 1, .stage = CDP_FSDP_GRADIENTS};
    run_all_worlds(h, 4);
    h.stage = CDP_FSDP_OPTIMIZER;
    run_all_worlds(h, 4);
}
TEST(micro_batches_are_added_with_and_without_no_sync) {
    how h = {.passes = 3};
    run_all_worlds(h, 4);
    h.no_sync = true;
    run_all_worlds(h, 4);
}
TEST(units_are_recomputed_and_used_twice) {
    how h = {.passes = 1, .recompute = true};
    run_all_worlds(h, 4);
    h.twice = true;
    run_all_worlds(h, 4);
    h.passes = 2;
    h.no_sync = true;
    run_all_worlds(h, 2);
}
TEST(an_optimizer_of_the_program_sees_pieces) {
    const how h = {.passes = 1, .own_update = true};
    run_all_worlds(h, 4);
}
TEST(bf16_and_f16_are_gathered_from_f32_masters) {
    how h = {.passes = 1, .compute = CDP_DTYPE_BF16};
    run_all_worlds(h, 4);
    h.own_update = true;
    run_all_worlds(h, 2);
    h.compute = CDP_DTYPE_F16;
    run_all_worlds(h, 4);
    h.own_update = false;
    run_all_worlds(h, 4);
}
TEST(hybrid_shards_are_copied_between_groups) {
    how h = {.passes = 2};
    for (h.seed = 1; h.seed <= 4; ++h.seed) {
        h.replicas = 2;
        run_counted(4, rank_trains, &h);
        run_counted(6, rank_trains, &h);
        h.replicas = 3;
        run_counted(6, rank_trains, &h);
    }
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"cuts_are_the_nearest_allowed_places", cuts_are_the_nearest_allowed_places, 60},
        {"a_large_model_fits_on_paper", a_large_model_fits_on_paper, 60},
        {"many_units_fit_on_paper", many_units_fit_on_paper, 20},
        {"as_many_units_as_there_may_be_are_planned_at_once",
            as_many_units_as_there_may_be_are_planned_at_once, 30},
        {"waiting_is_known_on_paper", waiting_is_known_on_paper, 20},
        {"more_sizes_than_are_counted_at_once_are_planned",
            more_sizes_than_are_counted_at_once_are_planned, 30},
        {"random_models_train_as_in_one_process", random_models_train_as_in_one_process, 120},
        {"all_stages_give_the_same_numbers", all_stages_give_the_same_numbers, 120},
        {"micro_batches_are_added_with_and_without_no_sync",
            micro_batches_are_added_with_and_without_no_sync, 120},
        {"units_are_recomputed_and_used_twice", units_are_recomputed_and_used_twice, 120},
        {"an_optimizer_of_the_program_sees_pieces", an_optimizer_of_the_program_sees_pieces, 60},
        {"bf16_and_f16_are_gathered_from_f32_masters", bf16_and_f16_are_gathered_from_f32_masters,
            60},
        {"hybrid_shards_are_copied_between_groups", hybrid_shards_are_copied_between_groups, 60},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
