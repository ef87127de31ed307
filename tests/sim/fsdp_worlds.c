/* fsdp_worlds.c - sharded training in a simulated world: a rank dies at any moment

   Node 0 serves the store; each other node is a rank. The ranks create a cdp_fsdp, with copies of
   shards in every other world, and train some steps; values follow from the number of steps. Each
   seed draws at which call to the system a rank is killed, from the end of cdp_init() on.

   In every world: all who live have right values, or an error that names the rank that died; every
   call ends in time; nothing is left of memory and descriptors.

       fsdp_worlds [--seeds A..B] [--seed N] [--trace] [FAULT] */
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"
#include "cdp_fsdp.h"

#include "sim.h"

typedef enum plant {
    PLANT_NOTHING
} plant;
static plant planted;
static bool trace;
#include "worlds.h"
#include "store_node.h"

enum {
    NODES = 6, /* with the store */
    STEPS = 4,
    UNITS = 3,
    ELEMENTS = 40,
    OPERATION_MS = 3000
};

typedef enum fault_kind {
    F_NONE,
    F_DELAY,
    F_KILL,
    F_KINDS
} fault_kind;
static const char *const fault_names[F_KINDS] = {"none", "delay", "kill"};

typedef struct member {
    uint64_t ready_calls;
    uint32_t steps;
    bool over;
    cdp_status status;
} member;

static struct {
    sim_world *world;
    uint32_t nodes, copies, victim;
    bool faulty;
    member m[NODES];
    char wrong[900];
} x;
static struct { uint64_t worlds, died, told; } total;

static SIM_FORMAT(2, 3) void wrong(const sim_node *node, const char *f, ...) {
    char text[700];
    va_list ap;
    if (x.wrong[0]) return;
    va_start(ap, f);
    vsnprintf(text, sizeof text, f, ap);
    va_end(ap);
    snprintf(x.wrong, sizeof x.wrong, "node %u: %s", node->id, text);
}

static void first_values(void *user, uint32_t param, uint64_t first, uint64_t count, float *out) {
    (void)user;
    for (uint64_t k = 0; k < count; ++k)
        out[k] = (float)(param * 100 + (first + k) % 7);
}

/* Gradients are 1 on each rank, so each step takes 1 away. */
static void check_values(const sim_node *node, cdp_fsdp *f, uint32_t unit, uint32_t step) {
    const float *const v = (const float *)cdp_fsdp_data(f, unit);
    for (uint32_t k = 0; k < ELEMENTS; ++k)
        if (v[k] != (float)(unit * 100 + k % 7) - (float)step) {
            wrong(node, "step %u: element %u of unit %u is %g", step, k, unit, (double)v[k]);
            return;
        }
}

static cdp_status one_step(const sim_node *node, cdp_fsdp *f, uint32_t step) {
    cdp_status st = CDP_OK;
    for (uint32_t u = 0; u < UNITS && st == CDP_OK; ++u) {
        st = cdp_fsdp_need(f, u);
        if (st != CDP_OK) return st;
        check_values(node, f, u, step);
        st = cdp_fsdp_done(f, u);
    }
    for (uint32_t u = UNITS; u-- > 0 && st == CDP_OK;) {
        float *grad = NULL;
        st = cdp_fsdp_need(f, u);
        if (st == CDP_OK && !(grad = cdp_fsdp_grad(f, u))) st = cdp_last_error()->status;
        for (uint32_t k = 0; k < ELEMENTS && st == CDP_OK; ++k)
            grad[k] += 1;
        if (st == CDP_OK) st = cdp_fsdp_ready(f, u);
    }
    if (st == CDP_OK) st = cdp_fsdp_backward_end(f, 0, NULL);
    return st == CDP_OK ? cdp_fsdp_step(f) : st;
}

static cdp_status train(const sim_node *node, cdp_group *g, member *m) {
    cdp_fsdp_param params[UNITS];
    cdp_optim sgd = {.kind = CDP_OPTIM_SGD, .lr = 1};
    const cdp_fsdp_desc d = {.group = g,
        .params = params,
        .param_count = UNITS,
        .optim = &sgd,
        .fill = first_values,
        .copies = x.copies};
    cdp_fsdp *f = NULL;
    cdp_status st;
    memset(params, 0, sizeof params);
    for (uint32_t u = 0; u < UNITS; ++u) {
        params[u].unit = u;
        params[u].ndim = 1;
        params[u].shape[0] = ELEMENTS;
    }
    st = cdp_fsdp_create(&d, &f);
    for (; m->steps < STEPS && st == CDP_OK; ++m->steps) {
        const uint64_t began = x.world->now;
        st = one_step(node, f, m->steps);
        if (x.world->now - began > 2 * OPERATION_MS * SIM_MS)
            wrong(node, "step %u took %llu ms", m->steps,
                (unsigned long long)((x.world->now - began) / SIM_MS));
        if (st != CDP_OK) break;
    }
    if (st != CDP_OK) {
        const cdp_error *e = cdp_last_error();
        if (!x.faulty || st != CDP_ERR_PEER_LOST || e->peer != (int32_t)x.victim - 1)
            wrong(node, "step %u ends with %s, peer %d: %s", m->steps, cdp_status_name(st),
                (int)e->peer, e->text);
        else
            ++total.told;
    }
    cdp_fsdp_destroy(f);
    return st;
}

static void rank_main(sim_node *node) {
    member *m = &x.m[node->id];
    cdp_store *store;
    cdp_group *g;
    cdp_status st = store_node_start(node, x.nodes - 1, OPERATION_MS, &store, &g);
    if (st != CDP_OK) wrong(node, "it does not begin: %s", cdp_last_error()->text);
    m->ready_calls = node->calls;
    if (st == CDP_OK) st = train(node, g, m);
    m->status = st;
    cdp_group_destroy(g);
    cdp_store_destroy(store);
    m->over = true;
    if (node->block_count) wrong(node, "%u blocks of memory are left", (uint32_t)node->block_count);
    if (node->fd_count) wrong(node, "%u descriptors are left", node->fd_count);
}

static void node_main(sim_node *node, void *arg) {
    (void)arg;
    if (node->id)
        rank_main(node);
    else
        store_node_serve(node, NULL, NULL);
}

typedef struct outcome {
    uint64_t from[NODES], calls[NODES];
} outcome;

static bool world_run(uint64_t seed, fault_kind kind, const sim_fault *f, outcome *out) {
    sim_desc d = {.seed = seed,
        .main = node_main,
        .limit_ns = 300 * SIM_S,
        .threads = seed % 4 != 0,
        .clocks = true};
    memset(&x, 0, sizeof x);
    x.nodes = 3 + (uint32_t)(seed % (NODES - 2));
    x.copies = seed % 2;
    x.faulty = f != NULL;
    x.victim = f ? (uint32_t)f->a : 0;
    d.node_count = x.nodes;
    d.trace = trace && (f || kind <= F_DELAY) ? stderr : NULL;
    d.noise = kind == F_DELAY ? sim_noise_wild(seed, false) : sim_noise_calm();
    x.world = sim_open(&d);
    if (f) sim_add_fault(x.world, f);
    if (!sim_run(x.world) && !x.wrong[0])
        snprintf(x.wrong, sizeof x.wrong, "%.800s", x.world->failure);
    for (uint32_t i = 1; i < x.nodes; ++i) {
        out->from[i] = x.m[i].ready_calls;
        out->calls[i] = x.world->nodes[i].calls;
        total.died += x.world->nodes[i].state == SIM_DEAD;
        if (!f && !x.wrong[0] && x.m[i].steps != STEPS)
            wrong(&x.world->nodes[i], "it has ended %u steps", x.m[i].steps);
    }
    ++total.worlds;
    sim_close(x.world);
    return !x.wrong[0];
}

static bool seed_run(uint64_t seed, uint32_t kind) {
    uint64_t s = sim_stream(seed, 99);
    sim_fault f;
    outcome o;
    bool ok = world_run(seed, (fault_kind)kind, NULL, &o);
    memset(&f, 0, sizeof f);
    if (ok && kind == F_KILL) {
        f.kind = SIM_FAULT_KILL;
        f.a = 1 + (int32_t)(sim_random(&s) % (x.nodes - 1));
        f.at_count = o.from[f.a] + 1 + sim_random(&s) % (o.calls[f.a] - o.from[f.a]);
        ok = world_run(seed, (fault_kind)kind, &f, &o);
    }
    if (!ok)
        printf("not ok %s seed %llu, %u nodes: %s\n", fault_names[kind], (unsigned long long)seed,
            x.nodes, x.wrong);
    return ok;
}

static bool kind_end(uint32_t kind, uint32_t bad, uint64_t seeds) {
    printf("%s %s: %llu seeds, %u failed; %llu ranks died, others named them %llu times\n",
        bad ? "not ok" : "ok", fault_names[kind], (unsigned long long)seeds, bad,
        (unsigned long long)total.died, (unsigned long long)total.told);
    memset(&total, 0, sizeof total);
    return !bad;
}

int main(int argc, char **argv) {
    const worlds w = {fault_names, F_KINDS, 100, seed_run, x.wrong, kind_end, NULL, 0, 0};
    return worlds_main(argc, argv, &w);
}
