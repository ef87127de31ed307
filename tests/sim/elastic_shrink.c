/* elastic_shrink.c - cdp_group_shrink() in a simulated world: ranks that die, stand still and are
   cut off, also while they shrink, and a store that decides

   Node 0 serves the store; each other node is a rank. The ranks add up who they are, step by step.
   After step 2 one of them goes without a word; after step 4 the others shrink though nobody has
   failed. Each seed draws one or more faults from the end of cdp_init() on. After each failure the
   ranks that are left shrink their group, again and again.

   In every world: all who get a group get the same one, in the order of their ranks, and the steps
   of its members; a rank that lives and can be reached is in it; an error is one that the header
   names, and has a reason; a rank that is called lost is; every call ends in time; nothing is left
   of memory and descriptors.

   Then a planted mistake, which some world must find.

       elastic_shrink [--seeds A..B] [--seed N] [--trace] [--plant N] [FAULT] */
#define CDP_IMPLEMENTATION
#include "elastic_plants.h"

#include "elastic_world.h"

enum {
    NODES = 13, /* with the store */
    STEPS = 8,
    GROUPS = 40,
    SETTLE_MS = 500, /* the default */
    OPERATION_MS = 3000
};

typedef enum fault_kind {
    F_NONE,
    F_DELAY,
    F_KILL, /* at any os call */
    F_PAIR,
    F_NODE, /* some of them at once */
    F_STOP,
    F_CUT,
    F_PART,
    F_ONE_WAY,
    F_SLOW_STORE,
    F_NO_STORE,
    F_NOMEM,
    F_PAUSE, /* all stand still, the store too, for longer than settle_ms, while they shrink */
    F_KINDS
} fault_kind;
static const char *const fault_names[F_KINDS] = {"none", "delay", "kill", "pair", "node", "stop",
    "cut", "part", "one_way", "slow_store", "no_store", "nomem", "pause"};

typedef struct member {
    sim_node *node;
    uint64_t random, ready_calls, ready_ns; /* when cdp_init() had returned */
    uint64_t said[GROUPS]; /* the step with which it shrank that group; 0: it has not */
    uint32_t groups;       /* how many it has had */
    uint32_t same;         /* how often in a row a failed group had shrunk to itself */
    bool ready, over, leaves;
    cdp_status status;
    char text[512];
} member;

static struct {
    sim_world *world;
    uint64_t seed;
    fault_kind kind;
    bool faulty, cuts, trust, paused;
    uint32_t nodes, min_ranks, left_out;
    uint64_t mask[GROUPS], arrived_ns; /* members of each group, as bits of nodes; 0: not known */
    member m[NODES];
    char wrong[900];
} x;

static struct { uint64_t worlds, groups, left_out, lost; } total;

static bool trace; /* of the last run of a seed */
#include "worlds.h"
#include "elastic_nodes.h"

static SIM_FORMAT(2, 3) void wrong(const member *m, const char *f, ...) {
    char text[600];
    va_list ap;
    if (x.wrong[0]) return;
    va_start(ap, f);
    vsnprintf(text, sizeof text, f, ap);
    va_end(ap);
    snprintf(
        x.wrong, sizeof x.wrong, "node %u, group %u: %s", (uint32_t)(m - x.m), m->groups, text);
}

/* A rank that lives may learn of the failure too late: see settle_ms. Not where others die: those
   that noticed it tell each rank that connects. */
static bool may_be_late(void) {
    return cuts_off() || x.kind == F_NOMEM || (x.kind == F_CUT && x.trust);
}

static void within(const member *m, const char *call, uint64_t began, uint64_t ms) {
    const uint64_t took = x.world->now - began;
    if (took > ms * SIM_MS * 11 / 10 && x.kind != F_STOP)
        wrong(m, "%s took %llu ms", call, (unsigned long long)(took / SIM_MS));
}

/* ---- a rank */

static bool gone(uint32_t node) {
    return !alive(node) || x.m[node].over || x.m[node].leaves;
}

/* Of group number m->groups - 1 this rank got `next`. */
static void check_group(member *m, const cdp_group *next, const uint64_t *steps) {
    const uint32_t number = m->groups - 1;
    uint64_t mask = 0, before = 0;
    for (uint32_t r = 0; r < cdp_size(next); ++r) {
        const uint32_t node = cdp_world_rank_of(next, r) + 1;
        mask |= 1ull << node;
        if (mask <= before) wrong(m, "the ranks are in another order than before");
        before = mask;
        if (steps[r] != x.m[node].said[number])
            wrong(m, "node %u shrinks at step %d, and is said to be at step %d", node,
                (int)x.m[node].said[number], (int)steps[r]);
    }
    if (cdp_world_rank_of(next, cdp_rank(next)) + 1 != m->node->id) wrong(m, "a wrong rank");
    if (x.mask[number + 1] && x.mask[number + 1] != mask)
        wrong(m, "a group of nodes %llx, and others got one of %llx (bits)",
            (unsigned long long)mask, (unsigned long long)x.mask[number + 1]);
    if (mask & ~x.mask[number]) wrong(m, "a member that was in none before");
    for (uint32_t i = 1; i < x.nodes && !x.mask[number + 1]; ++i)
        if ((x.mask[number] & ~mask) >> i & 1 && !gone(i) && !may_be_late())
            wrong(m, "node %u lives, and was left out", i);
    if (!x.mask[number + 1]) ++total.groups;
    x.mask[number + 1] = mask;
}

/* What `st` says of others must be so. */
static void check_blame(member *m, const cdp_group *g, cdp_status st) {
    const cdp_error *why = cdp_last_error();
    if (st != CDP_ERR_PEER_LOST || cuts_off() || x.kind == F_CUT || x.kind == F_NOMEM) return;
    if (why->peer < 0 || (uint32_t)why->peer >= x.nodes - 1)
        wrong(m, "a loss without a name: %s", why->text);
    else if (!gone((uint32_t)why->peer + 1) && !(g && cdp_size(g) == 1))
        wrong(m, "rank %d lives: %s", (int)why->peer, why->text);
}

/* Replaces *g. */
static cdp_status shrink(member *m, cdp_store *store, cdp_group **g, uint64_t *step) {
    const cdp_shrink_desc d = {
        .store = store, .min_ranks = x.min_ranks, .step = *step + 1, .trust_links = x.trust};
    const uint64_t began = x.world->now;
    uint64_t steps[NODES];
    cdp_group *next;
    cdp_status st;
    m->said[m->groups - 1] = *step + 1;
    if (!x.arrived_ns) x.arrived_ns = x.world->now;
    st = cdp_group_shrink(*g, &d, steps, &next);
    within(m, "cdp_group_shrink", began, 2 * OPERATION_MS + 1000);
    if (st != CDP_OK) return st;
    check_group(m, next, steps);
    for (uint32_t r = 0; r < cdp_size(next); ++r)
        if (steps[r] > *step + 1) *step = steps[r] - 1; /* a real one would receive the state */
    cdp_group_destroy(*g);
    *g = next;
    m->same = x.mask[m->groups] == x.mask[m->groups - 1] ? m->same + 1 : 0;
    ++m->groups;
    if (m->same < 4) return CDP_OK;
    /* what a program should do whose ranks live and lack a connection */
    return x.kind == F_CUT ? CDP_ERR_PEER_LOST : CDP_ERR_INTERNAL;
}

static cdp_status one_step(member *m, cdp_group *g, uint64_t *step) {
    uint64_t sum = 1ull << m->node->id;
    cdp_status st;
    sim_sleep(m->node, (1 + sim_random(&m->random) % 3000) * SIM_US);
    st = cdp_allreduce(g, NULL, &sum, 1, CDP_DTYPE_U64, CDP_REDUCE_SUM);
    if (st == CDP_OK && sum != x.mask[m->groups - 1])
        wrong(m, "step %d gives %llx", (int)*step, (unsigned long long)sum);
    if (st == CDP_OK) ++*step;
    return st;
}

static cdp_status work(member *m, cdp_store *store, cdp_group **g) {
    uint64_t step = 0;
    bool shrunk = false;
    cdp_status st = CDP_OK;
    while (st == CDP_OK && step < STEPS) {
        if (m->leaves && step == 2) return CDP_OK;
        if (step == 4 && !shrunk) {
            shrunk = true;
            st = shrink(m, store, g, &step);
            if (st != CDP_OK) break;
        }
        const uint64_t began = x.world->now;
        st = one_step(m, *g, &step);
        within(m, "cdp_allreduce", began, OPERATION_MS + 1000);
        if (st == CDP_OK) continue;
        check_blame(m, *g, st);
        if (!cdp__elastic_is_loss(st)) return st;
        st = shrink(m, store, g, &step);
    }
    return st;
}

static cdp_status live(member *m) {
    sim_node *node = m->node;
    cdp_store *store;
    cdp_group *g;
    cdp_status st = store_node_start(node, x.nodes - 1, OPERATION_MS, &store, &g);
    if (!store) return st;
    if (st == CDP_OK) {
        m->ready = true;
        m->ready_calls = node->calls;
        m->ready_ns = x.world->now;
        m->groups = 1;
        st = work(m, store, &g);
    }
    snprintf(m->text, sizeof m->text, "%s", st == CDP_OK ? "" : cdp_last_error()->text);
    if (st == CDP_OK) m->over = true;
    cdp_group_destroy(g);
    cdp_store_destroy(store);
    return st;
}

static uint32_t living(void) {
    uint32_t n = 0;
    for (uint32_t i = 1; i < x.nodes; ++i)
        n += !gone(i) && x.m[i].status == CDP_PENDING;
    return n;
}

/* Whether a rank may end so. */
static bool may_end(const member *m) {
    if (m->status == CDP_OK) return true;
    if (x.kind == F_NOMEM) return true; /* whatever a rank without memory does to the others */
    if (m->status == CDP_ERR_STATE && strstr(m->text, "the other ranks have decided without"))
        return may_be_late();
    if (m->status == CDP_ERR_TIMEOUT) return may_be_late() || living() < x.min_ranks;
    if (m->status == CDP_ERR_STORE || m->status == CDP_ERR_PEER_LOST)
        return cuts_off() || x.kind == F_CUT;
    return false;
}

static void rank_main(sim_node *node) {
    member *m = &x.m[node->id];
    const cdp_status st = live(m);
    m->status = st;
    if (!may_end(m)) wrong(m, "it ends with %s: %s", cdp_status_name(st), m->text);
    x.left_out += st == CDP_ERR_STATE;
    m->over = true;
    if (node->block_count) wrong(m, "%u blocks of memory are left", (uint32_t)node->block_count);
    if (node->fd_count) wrong(m, "%u descriptors are left", node->fd_count);
}

/* ---- the store */

static void node_main(sim_node *node, void *arg) {
    (void)arg;
    if (node->id)
        rank_main(node);
    else
        store_node_serve(node, NULL, NULL);
}

/* ---- worlds */

static void draw_world(uint64_t seed, fault_kind kind) {
    uint64_t s = sim_stream(seed, 77);
    memset(&x, 0, sizeof x);
    x.seed = seed;
    x.kind = kind;
    x.nodes = 3 + (uint32_t)(sim_random(&s) % 4);
    if (sim_chance(&s, 60)) x.nodes = NODES;
    x.min_ranks = 1 + (uint32_t)(sim_random(&s) % 2);
    x.trust = sim_chance(&s, 512);
    x.mask[0] = ((1ull << x.nodes) - 1) & ~1ull;
    for (uint32_t i = 1; i < x.nodes; ++i) {
        x.m[i].random = sim_stream(seed, 100 + i);
        x.m[i].status = CDP_PENDING;
    }
    if (x.nodes > 3) x.m[1 + sim_random(&s) % (x.nodes - 1)].leaves = true;
}

/* After each step of the world: F_PAUSE. They do not go on at the same moment. */
static void pause_all(sim_world *w) {
    if (x.kind != F_PAUSE || x.paused || !x.arrived_ns) return;
    if (w->now < x.arrived_ns + x.seed % 16 * 10 * SIM_US) return;
    x.paused = x.faulty = true;
    for (uint32_t i = 0; i < x.nodes; ++i)
        sim__stop(w, &w->nodes[i],
            (SETTLE_MS * 3 / 2 + x.seed * 37 % 1500 + sim_random(&x.m[i].random) % 150) * SIM_MS);
}

typedef struct outcome {
    uint64_t hash, length, ready_ns, from[NODES], calls[NODES], allocs[NODES];
} outcome;

static void note_outcome(outcome *out) {
    memset(out, 0, sizeof *out);
    out->hash = x.world->hash;
    out->length = x.world->now - x.world->start_ns;
    for (uint32_t i = 0; i < x.nodes; ++i) {
        const uint64_t at = i ? x.m[i].ready_ns - x.world->start_ns : 0;
        if (at > out->ready_ns) out->ready_ns = at;
        out->from[i] = x.m[i].ready_calls;
        out->calls[i] = x.world->nodes[i].calls;
        out->allocs[i] = x.world->nodes[i].alloc_calls;
    }
}

static bool world_run(
    uint64_t seed, fault_kind kind, const sim_fault *f, uint32_t faults, outcome *out) {
    sim_desc d = {.seed = seed,
        .main = node_main,
        .limit_ns = 900 * SIM_S,
        .threads = seed % 4 != 0,
        .clocks = true};
    bool ok;
    draw_world(seed, kind);
    x.faulty = faults > 0;
    d.node_count = x.nodes;
    d.looks = pause_all;
    d.trace = trace && (faults || kind <= F_DELAY) ? stderr : NULL;
    d.noise = kind == F_DELAY ? sim_noise_wild(seed, false) : sim_noise_calm();
    x.world = sim_open(&d);
    add_faults(f, faults, kind);
    ok = sim_run(x.world);
    if (!ok && !x.wrong[0]) snprintf(x.wrong, sizeof x.wrong, "%.800s", x.world->failure);
    for (uint32_t i = 1; i < x.nodes; ++i)
        total.lost += !alive(i);
    total.left_out += x.left_out;
    ++total.worlds;
    note_outcome(out);
    sim_close(x.world);
    return !x.wrong[0];
}

/* Faults of a world that was run without any before. Returns how many. */
static uint32_t draw_faults(uint64_t seed, fault_kind kind, const outcome *o, sim_fault *f) {
    uint64_t s = sim_stream(seed, 99);
    uint32_t n = 1;
    memset(f, 0, SIM_MAX_FAULTS * sizeof *f);
    for (uint32_t i = 0; i < SIM_MAX_FAULTS; ++i) {
        const uint32_t a = 1 + (uint32_t)(sim_random(&s) % (x.nodes - 1));
        f[i].kind = SIM_FAULT_KILL;
        f[i].a = (int32_t)a;
        f[i].at_ns = i ? f[i - 1].at_ns : o->ready_ns + sim_random(&s) % (o->length - o->ready_ns);
        f[i].for_ns = sim_log_between(&s, 50 * SIM_MS, 50 * SIM_S);
        if (kind == F_KILL || kind == F_PAIR || kind == F_STOP)
            f[i].at_count = o->from[a] + 1 + sim_random(&s) % (o->calls[a] - o->from[a]);
    }
    if (kind == F_PAIR) n = 2;
    if (kind == F_NODE) n = 2 + (uint32_t)(sim_random(&s) % 3);
    fault_of_kind(f, kind, o->allocs, &s);
    return n;
}

static bool seed_run(uint64_t seed, uint32_t kind) {
    sim_fault f[SIM_MAX_FAULTS];
    outcome o, again;
    uint32_t faults = 0;
    bool ok = world_run(seed, kind, NULL, 0, &o);
    if (ok && kind > F_DELAY && kind != F_PAUSE) {
        faults = draw_faults(seed, kind, &o, f);
        ok = world_run(seed, kind, f, faults, &o);
    } else if (ok && seed % 16 == 0) {
        ok = world_run(seed, kind, NULL, 0, &again);
        if (ok && again.hash != o.hash) {
            ok = false;
            snprintf(x.wrong, sizeof x.wrong, "the same seed made another run");
        }
    }
    if (!ok && !planted)
        printf("not ok %s seed %llu, %u nodes%s: %s\n", fault_names[kind], (unsigned long long)seed,
            x.nodes, faults ? "" : " (no fault yet)", x.wrong);
    return ok;
}

static bool kind_end(uint32_t kind, uint32_t bad, uint64_t seeds) {
    printf("%s %s: %llu seeds, %u failed; %llu groups were made, %llu ranks died, %llu were left "
           "out\n",
        bad ? "not ok" : "ok", fault_names[kind], (unsigned long long)seeds, bad,
        (unsigned long long)total.groups, (unsigned long long)total.lost,
        (unsigned long long)total.left_out);
    memset(&total, 0, sizeof total);
    return !bad;
}

int main(int argc, char **argv) {
    static const world_plant plants[] = {{PLANT_COUNTS_PAUSES, F_PAUSE,
        "the time of a standstill counts as silence of others", NULL}};
    const worlds w = {fault_names, F_KINDS, 25, seed_run, x.wrong, kind_end, plants, 1, 400};
    return worlds_main(argc, argv, &w);
}
