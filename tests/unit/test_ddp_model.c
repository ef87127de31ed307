/* DDP against a serial model: random programs of forward and backward passes on 1 to 8 ranks, each
   rank a fibre of this one thread, and after every step every gradient, buffer and parameter
   equals, bit for bit, what a plain loop over all ranks computes from whole numbers.

       test_ddp_model [FROM..TO]      the programs with these seeds; a failing one is printed with
                                      its seed */
#define CDP_IMPLEMENTATION
#include "cdp.h"
#include "sim/sim.h"
#include "test.h"

#define RANKS 8u
#define PARAMS 6u
#define COUNT 5u
#define BUFFERS 2u
#define STEPS 10u
#define EPOCHS 2u

/* ---- fibres: an os in which waiting means letting another rank run ---- */

typedef struct fibre {
    sim__context context;
    void *stack;
    bool done;
} fibre;

static fibre fibres[RANKS];
static sim__context scheduler;
static uint32_t running;
static uint64_t clock_ns = 1000, turns;

static void os_sleep_until(void *user, uint64_t deadline_ns) {
    (void)user;
    (void)deadline_ns;
    sim__switch(&fibres[running].context, &scheduler);
}
static uint64_t os_now(void *user) {
    (void)user;
    return clock_ns += 10;
}
static const cdp_os *os_of_fibres(void) {
    static cdp_os os;
    os = *cdp_os_default();
    os.sleep_until = os_sleep_until;
    os.now_ns = os_now;
    os.threads.start = NULL;
    os.threads.mutex_create = NULL;
    os.threads.cond_create = NULL;
    return &os;
}

static void (*fibre_func)(uint32_t rank);
static void fibre_main(void) {
    fibre_func(running);
    fibres[running].done = true;
    for (;;)
        sim__switch(&fibres[running].context, &scheduler);
}

/* Run func(0) .. func(n - 1), changing between them at random. False when they would never end. */
static bool fibres_run(uint32_t n, void (*func)(uint32_t rank), uint64_t *state) {
    uint32_t left = n;
    fibre_func = func;
    for (uint32_t i = 0; i < n; ++i) {
        if (!fibres[i].stack) fibres[i].stack = malloc(SIM_STACK_BYTES);
        sim__context_make(&fibres[i].context, fibres[i].stack, SIM_STACK_BYTES, fibre_main);
        fibres[i].done = false;
    }
    for (turns = 0; left && turns < 2000000; ++turns) {
        running = (uint32_t)(test_random(state) % n);
        while (fibres[running].done)
            running = (running + 1) % n;
        sim__switch(&scheduler, &fibres[running].context);
        left -= fibres[running].done;
    }
    return left == 0;
}

/* ---- a program ---- */

typedef enum hook_kind {
    HOOK_NONE,
    HOOK_ALLREDUCE,
    HOOK_STAGES,
    HOOK_STAGES_FROZEN,
    HOOK_NOOP
} hook_kind;

typedef struct step {
    bool sync, zero;
    uint32_t forwards;
    hook_kind hook; /* from this step on */
} step;

typedef struct program {
    uint64_t seed;
    uint32_t n, params, buffers, epochs;
    bool find_unused, static_graph, rebuild, join, effective, own_operations, no_buffer_broadcast,
        buffer_hook;
    double divisor, predivide;
    uint64_t first, rest, count[PARAMS];
    cdp_dtype dtype[PARAMS];
    bool own[PARAMS];
    uint32_t static_calls[RANKS][PARAMS]; /* how often ready() is called in each pass; 0: unused */
    uint32_t steps[EPOCHS][RANKS];        /* how much data a rank has */
    step step[EPOCHS][STEPS];
} program;

static uint64_t mix(uint64_t seed, uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
    uint64_t state = seed * 31 + a * 1000003u + b * 7919u + c * 104729u + d * 611953u;
    return test_random(&state);
}

static bool power_of_2(uint32_t n) {
    return (n & (n - 1)) == 0;
}

static void program_make(program *p, uint64_t seed) {
    uint64_t s = seed * 0x9e3779b97f4a7c15u;
#define R(k) ((uint32_t)(test_random(&s) % (k)))
    memset(p, 0, sizeof *p);
    p->seed = seed;
    p->n = 1 + R(RANKS);
    p->params = 1 + R(PARAMS);
    p->buffers = R(2) ? R(BUFFERS + 1) : 0;
    p->find_unused = R(2);
    p->static_graph = R(3) == 0;
    p->rebuild = R(2);
    p->join = R(2);
    p->effective = p->join && R(2);
    p->own_operations = p->join && R(2);
    p->no_buffer_broadcast = R(5) == 0;
    p->buffer_hook = R(5) == 0;
    if (!p->effective && R(3) == 0) p->divisor = R(2) ? 1 : p->n;
    if (R(3) == 0) p->predivide = R(2) ? 2 : 4;
    p->first = 1 + R(30);
    p->rest = 1 + R(60);
    p->epochs = 1 + R(EPOCHS);
    for (uint32_t i = 0; i < p->params; ++i) {
        p->count[i] = R(COUNT + 1);
        p->dtype[i] = R(3) ? CDP_DTYPE_F32 : CDP_DTYPE_F64;
        p->own[i] = R(4) == 0;
        for (uint32_t r = 0; r < p->n; ++r)
            p->static_calls[r][i] = R(4) ? 1 + R(3) * R(2) : 0;
    }
    /* whole means stay exact when they are added to */
    const bool exact = power_of_2(p->n) && !p->join && p->divisor == 0;
    for (uint32_t e = 0; e < p->epochs; ++e) {
        const uint32_t even = R(STEPS + 1);
        hook_kind hook = HOOK_NONE;
        for (uint32_t r = 0; r < p->n; ++r)
            p->steps[e][r] = p->join && R(3) ? R(STEPS + 1) : even;
        for (uint32_t t = 0; t < STEPS; ++t) {
            step *x = &p->step[e][t];
            x->sync = R(3) != 0;
            x->zero = exact ? R(5) == 0 : t == 0 || p->step[e][t - 1].sync;
            x->forwards = p->own_operations ? 1 + R(2) : R(3);
            if (t == 0 || (!p->join && R(4) == 0)) hook = (hook_kind)R(5);
            /* it divides first */
            if (hook == HOOK_ALLREDUCE && (!power_of_2(p->n) || p->effective)) hook = HOOK_STAGES;
            if (hook == HOOK_NOOP && (p->join || !exact)) hook = HOOK_NONE;
            x->hook = hook;
        }
    }
#undef R
}

/* Is parameter i used by a rank in a pass, and how often is it reported? */
static uint32_t calls_of(const program *p, uint32_t e, uint32_t t, uint32_t r, uint32_t i) {
    const uint64_t luck = mix(p->seed, e * STEPS + t, r, i, 1);
    if (!p->step[e][t].sync) return luck % 4 ? 1 : 0;
    if (p->static_graph) return p->static_calls[r][i];
    /* by this rank, or by all */
    return p->find_unused && (luck % 3 == 0 || mix(p->seed, e * STEPS + t, i, 0, 3) % 3 == 0) ? 0
                                                                                              : 1;
}

static double part_of(
    const program *p, uint32_t e, uint32_t t, uint32_t r, uint32_t i, uint64_t k) {
    return (double)(int64_t)(mix(p->seed, e * STEPS + t, r, i, 2 + k) % 65) - 32;
}

static double number_at(cdp_dtype t, const void *p, uint64_t k) {
    return t == CDP_DTYPE_F64 ? ((const double *)p)[k] : (double)((const float *)p)[k];
}
static void set_number(cdp_dtype t, void *p, uint64_t k, double v) {
    if (t == CDP_DTYPE_F64)
        ((double *)p)[k] = v;
    else
        ((float *)p)[k] = (float)v;
}

/* ---- the serial model ---- */

typedef struct model {
    double grad[RANKS][PARAMS][COUNT], param[RANKS][PARAMS][COUNT];
    int64_t buffer[RANKS][BUFFERS];
    bool touched[RANKS][PARAMS];
    bool due, equal;
    uint32_t root;
} model;

/* What all ranks should hold after each step of each epoch, and after join: made first, compared
   by each rank. */
static struct {
    program p;
    model after[EPOCHS][STEPS + 1], now;
    uint32_t active[EPOCHS][STEPS];
} world;

static double quotient(cdp_dtype t, double v, double by) {
    const bool whole = by == (double)(uint32_t)by;
    /* volatile: no more bits than asked for on any processor */
    volatile double reciprocal = 1 / by, d = whole ? v / by : v * reciprocal;
    volatile float f = (float)(1 / by), g = (float)by;
    f = whole ? (float)v / g : (float)v * f;
    return t == CDP_DTYPE_F64 ? d : (double)f;
}

/* `root`: the highest rank that has data in this step; p->n: none has any. */
static void model_buffers(const program *p, model *m, uint32_t root) {
    if (!m->due) return;
    m->due = false;
    for (uint32_t r = 0; r < p->n; ++r)
        for (uint32_t b = 0; b < p->buffers; ++b)
            if (p->buffer_hook)
                m->buffer[r][b] += 7;
            else if (root < p->n)
                m->buffer[r][b] = m->buffer[root][b];
}

static void model_reduce(const program *p, model *m, const step *x, uint32_t e, uint32_t t,
    uint32_t i, uint64_t k, uint32_t active) {
    double sum = 0;
    const double fixed = p->divisor != 0 ? p->divisor : p->n;
    double by = p->effective ? active : fixed;
    if (p->predivide != 0 && x->hook == HOOK_NONE) by /= p->predivide;
    for (uint32_t r = 0; r < p->n; ++r)
        if (p->steps[e][r] > t)
            sum += p->predivide != 0 && x->hook == HOOK_NONE ? m->grad[r][i][k] / p->predivide
                                                             : m->grad[r][i][k];
    for (uint32_t r = 0; r < p->n; ++r)
        if (x->hook != HOOK_NOOP) m->grad[r][i][k] = quotient(p->dtype[i], sum, by);
}

static void model_step(const program *p, model *m, uint32_t e, uint32_t t) {
    const step *x = &p->step[e][t];
    uint32_t active = 0, highest = p->n;
    for (uint32_t r = 0; r < p->n; ++r)
        if (p->steps[e][r] > t) {
            ++active;
            highest = r;
        }
    world.active[e][t] = active;
    if (!active) return;
    for (uint32_t f = 0; f < x->forwards || f == 0; ++f) {
        if (x->sync && (f < x->forwards || x->forwards == 0))
            model_buffers(p, m, p->join ? highest : 0);
        for (uint32_t r = 0; r < p->n; ++r)
            for (uint32_t b = 0; b < p->buffers && f < x->forwards; ++b)
                if (p->steps[e][r] > t) m->buffer[r][b] += (r + 1) * (t + 1) + b;
    }
    for (uint32_t i = 0; i < p->params; ++i) {
        bool used = false;
        for (uint32_t r = 0; r < p->n; ++r) {
            if (p->steps[e][r] <= t) continue;
            const bool got = calls_of(p, e, t, r, i) > 0;
            for (uint64_t k = 0; k < p->count[i]; ++k) {
                if (x->zero) m->grad[r][i][k] = 0;
                if (got) m->grad[r][i][k] += part_of(p, e, t, r, i, k);
            }
            used = used || got || m->touched[r][i];
            if (!x->sync) m->touched[r][i] = m->touched[r][i] || got;
        }
        if (!x->sync) continue;
        for (uint64_t k = 0; k < p->count[i]; ++k) {
            if (used || (!p->find_unused && !p->static_graph))
                model_reduce(p, m, x, e, t, i, k, active);
            for (uint32_t r = 0; r < p->n; ++r)
                if (p->steps[e][r] > t) m->param[r][i][k] += t + 1;
        }
        for (uint32_t r = 0; r < p->n; ++r)
            m->touched[r][i] = false;
    }
    if (!x->sync) return;
    m->due = (p->buffers && !p->no_buffer_broadcast) || p->buffer_hook;
    if (!p->join) return;
    m->equal = active == p->n;
    for (uint32_t r = 0; r < p->n; ++r)
        if (p->steps[e][r] > t) m->root = r;
}

static void model_join(const program *p, model *m) {
    model_buffers(p, m, p->n); /* of the step in which everybody turns out to have no data */
    for (uint32_t r = 0; r < p->n; ++r) {
        for (uint32_t b = 0; b < p->buffers; ++b)
            m->buffer[r][b] = m->buffer[m->root][b];
        memset(m->touched[r], 0, sizeof m->touched[r]);
        if (!m->equal) memcpy(m->param[r], m->param[m->root], sizeof m->param[r]);
        memset(m->grad[r], 0, sizeof m->grad[r]); /* the program zeroes them, too */
    }
    m->equal = true;
}

static void model_run(void) {
    const program *p = &world.p;
    model *m = &world.now;
    memset(m, 0, sizeof *m);
    m->due = (p->buffers && !p->no_buffer_broadcast) || p->buffer_hook;
    m->equal = true;
    for (uint32_t e = 0; e < p->epochs; ++e) {
        for (uint32_t t = 0; t < STEPS; ++t) {
            model_step(p, m, e, t);
            world.after[e][t] = *m;
        }
        if (p->join) model_join(p, m);
        world.after[e][STEPS] = *m;
    }
}

/* ---- a hook of several stages ---- */

static cdp_status stages(void *self, cdp_bucket *b, uint32_t stage, cdp_request *op) {
    const uint64_t size = cdp_dtype_size(b->dtype), half = b->count / 2;
    (void)self;
    if (stage < 1 + b->index % 2) { /* buckets differ in how many operations they have */
        op->kind = CDP_COLL_ALLREDUCE;
        op->out = (uint8_t *)b->data + (stage ? half * size : 0);
        op->count = stage ? b->count - half : half;
        if (b->index % 2 == 0) op->count = b->count;
        op->dtype = b->dtype;
        return CDP_PENDING;
    }
    for (uint64_t k = 0; k < b->count; ++k)
        set_number(
            b->dtype, b->data, k, quotient(b->dtype, number_at(b->dtype, b->data, k), b->divisor));
    return CDP_OK;
}

static cdp_status program_hook(cdp_ddp *ddp, hook_kind kind) {
    cdp_hook h;
    cdp_hook_desc d;
    memset(&h, 0, sizeof h);
    memset(&d, 0, sizeof d);
    if (kind == HOOK_NONE) return cdp_ddp_set_hook(ddp, NULL);
    h.stage = stages;
    h.operations = 2;
    h.keeps_layout = kind == HOOK_STAGES_FROZEN;
    d.kind = kind == HOOK_NOOP ? CDP_HOOK_NOOP : CDP_HOOK_ALLREDUCE;
    if ((kind == HOOK_NOOP || kind == HOOK_ALLREDUCE) && cdp_hook_create(&d, &h) != CDP_OK)
        return CDP_ERR_NOMEM;
    return cdp_ddp_set_hook(ddp, &h);
}

/* ---- one rank of the program ---- */

typedef struct rank_state {
    uint32_t rank;
    uint64_t random;
    __attribute__((aligned(8))) double data[PARAMS][COUNT];
    __attribute__((aligned(8))) double grads[PARAMS][COUNT];
    __attribute__((aligned(8))) int64_t buffer[BUFFERS];
    cdp_ddp *ddp;
} rank_state;

static cdp_group *groups[RANKS + 1][RANKS];
static rank_state ranks[RANKS];

static bool good(cdp_status st, const char *what, uint32_t e, uint32_t t) {
    return test_check(st == CDP_OK, __FILE__, __LINE__, "seed %llu, epoch %u, step %u: %s: %s",
        (unsigned long long)world.p.seed, e, t, what, cdp_last_error()->text);
}

/* Half of the ranks do what they can in frames. */
static bool frames(rank_state *s) {
    return test_random(&s->random) % 2;
}

static cdp_status until_done(rank_state *s) {
    cdp_status st;
    while ((st = cdp_ddp_poll(s->ddp, 0)) == CDP_PENDING)
        os_sleep_until(NULL, 0);
    return st;
}

static cdp_status creates(rank_state *s, const cdp_ddp_desc *d) {
    cdp_status st;
    if (!frames(s)) return cdp_ddp_create(d, &s->ddp);
    st = cdp_ddp_create_start(d, &s->ddp);
    return st == CDP_OK ? until_done(s) : st;
}

static cdp_status ends(rank_state *s) {
    cdp_status st;
    if (!frames(s)) return cdp_ddp_backward_end(s->ddp);
    st = cdp_ddp_backward_end_start(s->ddp);
    return st == CDP_OK ? until_done(s) : st;
}

static bool compare(const rank_state *s, const model *m, uint32_t e, uint32_t t, bool grads) {
    const program *p = &world.p;
    bool ok = true;
    for (uint32_t i = 0; i < p->params && ok; ++i)
        for (uint64_t k = 0; k < p->count[i] && ok; ++k) {
            const double got = number_at(
                p->dtype[i], p->own[i] ? (const void *)s->grads[i] : cdp_ddp_grad(s->ddp, i), k);
            const double data = number_at(p->dtype[i], s->data[i], k);
            ok =
                (!grads
                    || test_check(got == m->grad[s->rank][i][k], __FILE__, __LINE__,
                        "seed %llu, rank %u/%u, epoch %u, step %u: gradient %u[%llu] is %g, not %g",
                        (unsigned long long)p->seed, s->rank, p->n, e, t, i, (unsigned long long)k,
                        got, m->grad[s->rank][i][k]))
                && test_check(data == m->param[s->rank][i][k], __FILE__, __LINE__,
                    "seed %llu, rank %u/%u, epoch %u, step %u: parameter %u is %g, not %g",
                    (unsigned long long)p->seed, s->rank, p->n, e, t, i, data,
                    m->param[s->rank][i][k]);
        }
    for (uint32_t b = 0; b < p->buffers && ok; ++b)
        ok = test_check(s->buffer[b] == m->buffer[s->rank][b], __FILE__, __LINE__,
            "seed %llu, rank %u/%u, epoch %u, step %u: buffer %u is %lld, not %lld",
            (unsigned long long)p->seed, s->rank, p->n, e, t, b, (long long)s->buffer[b],
            (long long)m->buffer[s->rank][b]);
    return ok;
}

static cdp_status join_hook(cdp_ddp *ddp, cdp_join_when when, void *user) {
    rank_state *s = (rank_state *)user;
    __attribute__((aligned(8))) int64_t zero = 0;
    (void)ddp;
    return world.p.own_operations && when != CDP_JOIN_LAST
        ? cdp_allreduce(groups[world.p.n][s->rank], NULL, &zero, 1, CDP_DTYPE_I64, CDP_REDUCE_SUM)
        : CDP_OK;
}

static cdp_status buffer_hook(cdp_ddp *ddp, void *user) {
    rank_state *s = (rank_state *)user;
    (void)ddp;
    for (uint32_t b = 0; b < world.p.buffers; ++b)
        s->buffer[b] += 7;
    return cdp_barrier(groups[world.p.n][s->rank]);
}

static bool own_operation(rank_state *s, uint32_t e, uint32_t t) {
    __attribute__((aligned(8))) int64_t sum = 1;
    return !world.p.own_operations || !world.p.step[e][t].sync
        || (good(cdp_allreduce(
                     groups[world.p.n][s->rank], NULL, &sum, 1, CDP_DTYPE_I64, CDP_REDUCE_SUM),
                "own operation", e, t)
            && T_EQ(world.active[e][t], sum));
}

static bool backward(rank_state *s, uint32_t e, uint32_t t) {
    const program *p = &world.p;
    uint32_t todo[PARAMS], left = 0;
    if (!good(cdp_ddp_backward_begin(s->ddp), "backward_begin", e, t)) return false;
    for (uint32_t i = 0; i < p->params; ++i) {
        void *grad = p->own[i] ? (void *)s->grads[i] : cdp_ddp_grad(s->ddp, i);
        todo[i] = calls_of(p, e, t, s->rank, i);
        for (uint64_t k = 0; k < p->count[i] && todo[i]; ++k)
            set_number(p->dtype[i], grad, k,
                number_at(p->dtype[i], grad, k) + part_of(p, e, t, s->rank, i, k));
        /* or left to be found */
        if (!todo[i] && p->step[e][t].sync && test_random(&s->random) % 2
            && !good(cdp_ddp_unused(s->ddp, i), "unused", e, t))
            return false;
        left += todo[i];
    }
    while (left) {
        const uint32_t i = (uint32_t)(test_random(&s->random) % p->params);
        if (!todo[i]) continue;
        if (!good(cdp_ddp_ready(s->ddp, i), "ready", e, t)) return false;
        --todo[i];
        --left;
    }
    return good(ends(s), "backward_end", e, t);
}

static bool rank_step(rank_state *s, uint32_t e, uint32_t t) {
    const program *p = &world.p;
    const step *x = &p->step[e][t];
    if ((t == 0 || x->hook != p->step[e][t - 1].hook)
        && !good(program_hook(s->ddp, x->hook), "set_hook", e, t))
        return false;
    if (!good(cdp_ddp_no_sync(s->ddp, !x->sync), "no_sync", e, t)) return false;
    for (uint32_t f = 0; f < x->forwards; ++f) {
        if (!good(cdp_ddp_forward_begin(s->ddp), "forward_begin", e, t)) return false;
        for (uint32_t b = 0; b < p->buffers; ++b)
            s->buffer[b] += (s->rank + 1) * (t + 1) + b;
    }
    if (!own_operation(s, e, t)) return false;
    if (x->zero) cdp_ddp_zero_grad(s->ddp);
    if (!backward(s, e, t) || !own_operation(s, e, t)) return false;
    for (uint32_t i = 0; i < p->params && x->sync; ++i)
        for (uint64_t k = 0; k < p->count[i]; ++k)
            set_number(p->dtype[i], s->data[i], k, number_at(p->dtype[i], s->data[i], k) + t + 1);
    if (x->sync && p->join && !T_EQ(world.active[e][t], cdp_ddp_stats_of(s->ddp).active_ranks))
        return false;
    return compare(s, &world.after[e][t], e, t, true);
}

static void rank_epochs(rank_state *s) {
    const program *p = &world.p;
    for (uint32_t e = 0; e < p->epochs; ++e) {
        for (uint32_t t = 0; t < p->steps[e][s->rank]; ++t)
            if (!rank_step(s, e, t)) return;
        if (p->join) { /* where this rank had no step, the hook is still to be that of the epoch */
            if (!p->steps[e][s->rank]
                && !good(program_hook(s->ddp, p->step[e][0].hook), "set_hook", e, 0))
                return;
            if (!good(cdp_ddp_join(s->ddp), "join", e, STEPS)) return;
            cdp_ddp_zero_grad(s->ddp);
        }
        if (p->join && !compare(s, &world.after[e][STEPS], e, STEPS, true)) return;
    }
}

static void rank_main(uint32_t rank) {
    const program *p = &world.p;
    rank_state *s = &ranks[rank];
    cdp_param params[PARAMS];
    cdp_buffer buffers[BUFFERS];
    cdp_ddp_desc d;
    memset(s, 0, sizeof *s);
    memset(params, 0, sizeof params);
    memset(buffers, 0, sizeof buffers);
    memset(&d, 0, sizeof d);
    s->rank = rank;
    s->random = p->seed * 100 + rank;
    for (uint32_t i = 0; i < p->params; ++i) {
        params[i].data = s->data[i];
        params[i].grad = p->own[i] ? s->grads[i] : NULL;
        params[i].count = p->count[i];
        params[i].dtype = p->dtype[i];
    }
    for (uint32_t b = 0; b < p->buffers; ++b) {
        buffers[b].data = &s->buffer[b];
        buffers[b].count = 1;
        buffers[b].dtype = CDP_DTYPE_I64;
    }
    d.group = groups[p->n][rank];
    d.params = params;
    d.param_count = p->params;
    d.buffers = buffers;
    d.buffer_count = p->buffers;
    d.no_buffer_broadcast = p->no_buffer_broadcast;
    d.buffer_hook = p->buffer_hook ? buffer_hook : NULL;
    d.first_bucket_bytes = p->first;
    d.bucket_bytes = p->rest;
    d.divisor = p->divisor;
    d.predivide = p->predivide;
    d.find_unused = p->find_unused;
    d.static_graph = p->static_graph;
    d.rebuild = p->rebuild;
    d.join = p->join;
    d.join_effective = p->effective;
    d.join_hook = join_hook;
    d.user = s;
    if (good(creates(s, &d), "create", 0, 0)) rank_epochs(s);
    cdp_ddp_destroy(s->ddp);
}

static void groups_open(void) {
    for (uint32_t n = 1; n <= RANKS; ++n) {
        cdp_hub_desc h;
        cdp_hub *hub;
        memset(&h, 0, sizeof h);
        h.world_size = n;
        h.ring_bytes = 4096;
        h.os = os_of_fibres();
        if (cdp_hub_create(&h, &hub) != CDP_OK) abort();
        for (uint32_t r = 0; r < n; ++r) {
            cdp_group_desc d;
            memset(&d, 0, sizeof d);
            d.rank = r;
            d.world_size = n;
            d.hub = hub;
            d.no_thread = d.no_spin = true;
            d.timeout_ms = CDP_NO_TIMEOUT;
            d.os = os_of_fibres();
            if (cdp_group_create(&d, &groups[n][r]) != CDP_OK) abort();
        }
    }
}

static uint64_t first_seed = 1, last_seed = TEST_SLOW ? 300 : 6000;

TEST(random_programs_equal_the_serial_model) {
    uint64_t schedule = first_seed, kinds[4] = {0}, seed;
    groups_open();
    for (seed = first_seed; seed <= last_seed && !test__now.failed_checks; ++seed) {
        const program *p = &world.p;
        program_make(&world.p, seed);
        model_run();
        if (!fibres_run(p->n, rank_main, &schedule))
            test_check(
                false, __FILE__, __LINE__, "seed %llu: it does not end", (unsigned long long)seed);
        kinds[0] += p->join;
        kinds[1] += p->static_graph;
        kinds[2] += p->find_unused;
        kinds[3] += p->rebuild;
    }
    printf(
        "  %llu programs: %llu with join, %llu static, %llu with unused parameters, %llu rebuilt\n",
        (unsigned long long)(seed - first_seed), (unsigned long long)kinds[0],
        (unsigned long long)kinds[1], (unsigned long long)kinds[2], (unsigned long long)kinds[3]);
    T(seed - first_seed > 0);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"random_programs_equal_the_serial_model", random_programs_equal_the_serial_model, 600}};
    char *dots = argc > 1 ? strstr(argv[1], "..") : NULL;
#if TEST_OWN_THREADS
    printf("SKIP test_ddp_model: ThreadSanitizer does not know these fibres, and there is one "
           "thread\n0 passed, 0 failed\n");
    return 0;
#endif
    if (dots) {
        first_seed = strtoull(argv[1], NULL, 10);
        last_seed = strtoull(dots + 2, NULL, 10);
        argc = 1;
    }
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
