/* fsdp_worlds.c - sharded training in a simulated world: a rank fails at any moment

   Node 0 serves the store; each other node is a rank. The ranks create a cdp_fsdp, with copies of
   shards in every other world, and train some steps; values follow from the number of steps. Each
   seed draws at which call to the system a rank fails, from the end of cdp_init() on: it is killed
   (kill, and in two places at once or in the change: twice), stopped, cut off from the others for a
   while, or without memory once.

   In every world: all who live have right values, or an error, which names the rank that was
   killed; every call ends in time; nothing is left of memory and descriptors. Afterwards those who
   live meet in another group, call cdp_fsdp_rebind(), and go on to the last step with right values:
   nothing is lost if the shard of who is gone had a copy. Without copies all may say which shard is
   gone.

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
    EPOCHS = 3, /* most groups, one after the other */
    OPERATION_MS = 3000
};

typedef enum fault_kind {
    F_NONE,
    F_DELAY,
    F_KILL,
    F_TWICE,
    F_STOP,
    F_PARTITION,
    F_NOMEM,
    F_KINDS
} fault_kind;
static const char *const fault_names[F_KINDS] = {
    "none", "delay", "kill", "twice", "stop", "partition", "nomem"};

typedef struct member {
    uint64_t ready_calls, ready_allocs, ready_ns, end_ns;
    uint64_t first_calls, second_allocs; /* when it has left the first group, the second one */
    uint32_t steps;
    bool created; /* it has a cdp_fsdp from the first group */
    bool over;
    cdp_status status;
} member;

static struct {
    sim_world *world;
    uint32_t nodes, copies, epochs;
    fault_kind kind;
    bool faulty;
    uint32_t gone[EPOCHS]; /* nodes that are not in this group: bit i is node i */
    member m[NODES];
    char wrong[900];
} x;
static struct { uint64_t worlds, died, told, failed, went_on, lost, died_in[STEPS + 1]; } total;

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
static void check_values(const sim_node *node, cdp_fsdp *f, uint32_t unit) {
    const uint32_t step = (uint32_t)cdp_fsdp_turn(f);
    const float *const v = (const float *)cdp_fsdp_data(f, unit);
    for (uint32_t k = 0; k < ELEMENTS; ++k)
        if (v[k] != (float)(unit * 100 + k % 7) - (float)step) {
            wrong(node, "step %u: element %u of unit %u is %g", step, k, unit, (double)v[k]);
            return;
        }
}

static cdp_status forward(const sim_node *node, cdp_fsdp *f) {
    cdp_status st = CDP_OK;
    for (uint32_t u = 0; u < UNITS && st == CDP_OK; ++u) {
        st = cdp_fsdp_need(f, u);
        if (st != CDP_OK) return st;
        check_values(node, f, u);
        st = cdp_fsdp_done(f, u);
    }
    return st;
}

static cdp_status one_step(const sim_node *node, cdp_fsdp *f) {
    cdp_status st = forward(node, f);
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

/* What a rank has from one group to the next. */
typedef struct trainer {
    cdp_fsdp_param params[UNITS];
    cdp_optim sgd;
    cdp_fsdp *f;
} trainer;

static cdp_status create(trainer *t, cdp_group *g, bool receive) {
    const cdp_fsdp_desc d = {.group = g,
        .params = t->params,
        .param_count = UNITS,
        .optim = &t->sgd,
        .fill = first_values,
        .receive = receive,
        .copies = x.copies};
    memset(t->params, 0, sizeof t->params);
    t->sgd.kind = CDP_OPTIM_SGD;
    t->sgd.lr = 1;
    for (uint32_t u = 0; u < UNITS; ++u) {
        t->params[u].unit = u;
        t->params[u].ndim = 1;
        t->params[u].shape[0] = ELEMENTS;
    }
    return cdp_fsdp_create(&d, &t->f);
}

/* Up to the last step, and a look at its values. */
static cdp_status train(const sim_node *node, trainer *t, member *m) {
    cdp_status st = CDP_OK;
    while (st == CDP_OK && cdp_fsdp_turn(t->f) < STEPS) {
        const uint64_t began = x.world->now;
        st = one_step(node, t->f);
        if (x.world->now - began > 2 * OPERATION_MS * SIM_MS && x.kind != F_STOP)
            wrong(node, "step %u took %llu ms", (uint32_t)cdp_fsdp_turn(t->f),
                (unsigned long long)((x.world->now - began) / SIM_MS));
        m->steps = (uint32_t)cdp_fsdp_turn(t->f);
    }
    return st == CDP_OK ? forward(node, t->f) : st;
}

/* The first group, in which something fails. */
static void check_first_end(const sim_node *node, cdp_status st) {
    const cdp_error *e = cdp_last_error();
    bool names = false;
    if (st == CDP_OK) return;
    for (uint32_t i = 1; i < x.nodes; ++i)
        names = names || ((x.gone[EPOCHS - 1] >> i & 1) && e->peer == (int32_t)i - 1);
    total.told += names;
    ++total.failed;
    if (!x.faulty
        || ((x.kind == F_KILL || x.kind == F_TWICE) && (st != CDP_ERR_PEER_LOST || !names)))
        wrong(node, "step %u ends with %s, peer %d: %s", x.m[node->id].steps, cdp_status_name(st),
            (int)e->peer, e->text);
}

/* May a shard be gone? Without copies with its rank, or where a rank had not come so far. */
static bool may_be_lost(void) {
    bool may = !x.copies && x.gone[EPOCHS - 1];
    for (uint32_t i = 1; i < x.nodes; ++i)
        may = may || !x.m[i].created;
    return may;
}

/* A later group: cdp_fsdp_rebind(), and the steps that are left. */
static cdp_status go_on(const sim_node *node, trainer *t, cdp_group *g, member *m) {
    cdp_status st = t->f ? cdp_fsdp_rebind(t->f, g, CDP_FSDP_AGREE) : create(t, g, true);
    return st == CDP_OK ? train(node, t, m) : st;
}

static void check_last_end(const sim_node *node, cdp_status st) {
    if (st == CDP_OK)
        ++total.went_on;
    else if (st == CDP_ERR_STATE && may_be_lost())
        ++total.lost;
    else
        wrong(node, "it does not go on: %s: %s", cdp_status_name(st), cdp_last_error()->text);
}

/* A later group, of all that are not gone. */
static cdp_status meet(sim_node *node, cdp_store *store, uint32_t epoch, cdp_group **out) {
    const uint32_t gone = x.gone[epoch], below = (1u << node->id) - 2;
    char host[20], name[20];
    cdp_tcp_desc t = {.store = store,
        .master_addr = host,
        .job = name,
        .trust_network = true,
        .group = {
            .timeout_ms = OPERATION_MS, .os = &node->os, .logger = {.level = CDP_LOG_SILENT}}};
    snprintf(host, sizeof host, "10.0.0.%u", node->id + 1);
    snprintf(name, sizeof name, "epoch%u", epoch);
    t.group.world_size = x.nodes - 1 - (uint32_t)__builtin_popcount(gone);
    t.group.rank = node->id - 1 - (uint32_t)__builtin_popcount(gone & below);
    t.init_timeout_ms = epoch * 30000; /* others may wait for that in the one before */
    return cdp_init(&t, out);
}

static void lives(sim_node *node, member *m, cdp_store **out) {
    trainer t;
    cdp_group *g;
    cdp_status st = store_node_start(node, x.nodes - 1, OPERATION_MS, out, &g);
    cdp_store *const store = *out;
    memset(&t, 0, sizeof t);
    if (st != CDP_OK) wrong(node, "it does not begin: %s", cdp_last_error()->text);
    m->ready_calls = node->calls;
    m->ready_allocs = node->alloc_calls;
    m->ready_ns = x.world->now - x.world->start_ns;
    if (st == CDP_OK) st = create(&t, g, false);
    m->created = t.f != NULL;
    if (st == CDP_OK) st = train(node, &t, m);
    m->end_ns = x.world->now - x.world->start_ns;
    check_first_end(node, st);
    m->first_calls = node->calls;
    for (uint32_t epoch = 1; epoch < x.epochs && !(x.gone[epoch] >> node->id & 1); ++epoch) {
        cdp_group *next = NULL;
        st = meet(node, store, epoch, &next);
        if (epoch == 2) cdp_group_destroy(g); /* it may go before, or after */
        if (st == CDP_OK) st = go_on(node, &t, next, m);
        if (epoch + 1 == x.epochs) check_last_end(node, st);
        if (epoch == 1) cdp_group_destroy(g);
        if (epoch == 1) m->second_allocs = node->alloc_calls;
        g = next;
    }
    m->status = st;
    cdp_fsdp_destroy(t.f);
    cdp_group_destroy(g);
}

static void rank_main(sim_node *node) {
    member *m = &x.m[node->id];
    cdp_store *store = NULL;
    lives(node, m, &store);
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
    uint64_t from[NODES], first[NODES], calls[NODES], from_allocs[NODES], allocs[NODES], ready_ns,
        to_ns;
} outcome;

static bool world_run(
    uint64_t seed, fault_kind kind, const sim_fault *faults, uint32_t count, outcome *out) {
    sim_desc d = {.seed = seed,
        .main = node_main,
        .limit_ns = 300 * SIM_S,
        .threads = seed % 4 != 0,
        .clocks = true};
    memset(&x, 0, sizeof x);
    x.nodes = 3 + (uint32_t)(seed % (NODES - 2));
    x.copies = kind == F_TWICE ? 2 : (uint32_t)(seed / 2 % 2);
    x.kind = kind;
    x.faulty = faults != NULL;
    x.epochs = kind == F_TWICE || kind == F_NOMEM ? 3 : 2;
    if (kind <= F_DELAY) x.epochs = 1;
    for (uint32_t i = 0; i < count && kind <= F_STOP; ++i)
        for (uint32_t e = i + 1; e < EPOCHS; ++e)
            x.gone[e] |= 1u << faults[i].a;
    d.node_count = x.nodes;
    d.trace = trace && (faults || kind <= F_DELAY) ? stderr : NULL;
    d.noise = kind == F_DELAY ? sim_noise_wild(seed, false) : sim_noise_calm();
    x.world = sim_open(&d);
    for (uint32_t i = 0; i < count; ++i)
        sim_add_fault(x.world, &faults[i]);
    if (!sim_run(x.world) && !x.wrong[0])
        snprintf(x.wrong, sizeof x.wrong, "%.800s", x.world->failure);
    out->ready_ns = x.m[1].ready_ns;
    for (uint32_t i = 1; i < x.nodes; ++i) {
        out->from[i] = x.m[i].ready_calls;
        out->first[i] = x.m[i].first_calls;
        out->calls[i] = x.world->nodes[i].calls;
        out->to_ns = cdp__max(out->to_ns, x.m[i].end_ns);
        out->from_allocs[i] = x.m[i].ready_allocs;
        out->allocs[i] = x.m[i].second_allocs;
        total.died += x.world->nodes[i].state == SIM_DEAD;
        total.died_in[x.m[i].steps] += x.world->nodes[i].state == SIM_DEAD;
        if (!faults && !x.wrong[0] && x.m[i].steps != STEPS)
            wrong(&x.world->nodes[i], "it has ended %u steps", x.m[i].steps);
    }
    ++total.worlds;
    sim_close(x.world);
    return !x.wrong[0];
}

/* Draws what happens to `victim`; late: perhaps in a later group. */
static sim_fault draw(fault_kind kind, const outcome *o, uint32_t victim, bool late, uint64_t *s) {
    const uint64_t to = late ? o->calls[victim] : o->first[victim];
    sim_fault f;
    memset(&f, 0, sizeof f);
    f.kind = SIM_FAULT_KILL;
    f.a = (int32_t)victim;
    f.at_count = o->from[victim] + 1 + sim_random(s) % (to - o->from[victim]);
    if (kind == F_STOP) {
        f.kind = SIM_FAULT_STOP;
        f.for_ns = sim_log_between(s, SIM_MS, 20 * SIM_S);
    } else if (kind == F_PARTITION) {
        f.kind = SIM_FAULT_PARTITION;
        f.set_a = 1ull << victim;
        f.set_b = ((1ull << x.nodes) - 2) & ~f.set_a;
        f.at_count = 0;
        f.at_ns = o->ready_ns + sim_random(s) % (o->to_ns - o->ready_ns);
        f.for_ns = sim_random(s) % 2 ? sim_log_between(s, SIM_MS, 4 * SIM_S) : 10 * SIM_S;
    } else if (kind == F_NOMEM) {
        f.kind = SIM_FAULT_NOMEM;
        f.at_count = o->from_allocs[victim] + 1
            + sim_random(s) % (o->allocs[victim] - o->from_allocs[victim]);
    }
    return f;
}

static bool seed_run(uint64_t seed, uint32_t kind) {
    uint64_t s = sim_stream(seed, 99);
    const uint32_t count = kind == F_TWICE && seed % (NODES - 2) ? 2 : 1; /* somebody lives */
    sim_fault f[2];
    outcome o = {.to_ns = 0};
    bool ok = world_run(seed, (fault_kind)kind, NULL, 0, &o);
    if (ok && kind > F_DELAY) {
        const uint32_t first = (uint32_t)(sim_random(&s) % (x.nodes - 1));
        for (uint32_t i = 0; i < count; ++i)
            f[i] = draw((fault_kind)kind, &o, 1 + (first + i) % (x.nodes - 1), i > 0, &s);
        ok = world_run(seed, (fault_kind)kind, f, count, &o);
    }
    if (!ok)
        printf("not ok %s seed %llu, %u nodes: %s\n", fault_names[kind], (unsigned long long)seed,
            x.nodes, x.wrong);
    return ok;
}

static bool kind_end(uint32_t kind, uint32_t bad, uint64_t seeds) {
    if (kind > F_DELAY && seeds > 20 && (!total.went_on || !total.failed))
        ++bad; /* nothing was tried */
    for (uint32_t step = 0; step < STEPS; ++step)
        if (kind == F_KILL && seeds > 50 && !total.died_in[step]) ++bad;
    printf("%s %s: %llu seeds, %u failed; %llu ranks died; %llu had an error, %llu named them; "
           "%llu went "
           "on, %llu said that a shard is gone\n",
        bad ? "not ok" : "ok", fault_names[kind], (unsigned long long)seeds, bad,
        (unsigned long long)total.died, (unsigned long long)total.failed,
        (unsigned long long)total.told, (unsigned long long)total.went_on,
        (unsigned long long)total.lost);
    memset(&total, 0, sizeof total);
    return !bad;
}

int main(int argc, char **argv) {
    const worlds w = {fault_names, F_KINDS, 100, seed_run, x.wrong, kind_end, NULL, 0, 0};
    return worlds_main(argc, argv, &w);
}
