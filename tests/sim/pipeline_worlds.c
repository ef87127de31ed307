/* pipeline_worlds.c - pipelines in a simulated world: a rank fails at any moment

   Node 0 serves the store; each other node is a rank of a pipeline of a kind that the seed draws.
   Every callback checks what has come, and makes what its neighbours expect. Each seed draws at
   which call to the system a rank is killed, stopped or cut off from the others for a while, from
   the end of cdp_init() on, or at which allocation it gets no memory, or which of its callbacks
   fails.

   In every world: all who live end all steps with right values, or have an error, which names the
   rank that was killed, or the stage whose callback has failed, and the micro-batch of this one;
   every step ends in time; nothing is left of memory and descriptors.

       pipeline_worlds [--seeds A..B] [--seed N] [--trace] [FAULT] */
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"
#include "cdp_pipeline.h"

#include "sim.h"

typedef enum plant {
    PLANT_NOTHING
} plant;
static plant planted;
static bool trace;
#include "worlds.h"
#include "store_node.h"

enum {
    NODES = 5, /* with the store */
    CHUNKS = 2,
    STEPS = 3,
    ELEMENTS = 30,
    STEP_MS = 3000
};

typedef enum fault_kind {
    F_NONE,
    F_DELAY,
    F_THROW,
    F_KILL,
    F_STOP,
    F_PARTITION,
    F_NOMEM,
    F_KINDS
} fault_kind;
static const char *const fault_names[F_KINDS] = {
    "none", "delay", "throw", "kill", "stop", "partition", "nomem"};

typedef struct member {
    uint64_t ready_calls, ready_allocs, ready_ns, end_ns;
    uint32_t steps, calls; /* of callbacks */
} member;

static struct {
    sim_world *world;
    uint32_t nodes, victim, throws_at; /* the victim's callback of this number, from 1 */
    fault_kind kind;
    bool faulty;
    cdp_schedule_desc schedule;
    member m[NODES];
    char wrong[900];
} x;
static struct { uint64_t worlds, died, told, ended; } total;

static SIM_FORMAT(2, 3) void wrong(const sim_node *node, const char *f, ...) {
    char text[700];
    va_list ap;
    if (x.wrong[0]) return;
    va_start(ap, f);
    vsnprintf(text, sizeof text, f, ap);
    va_end(ap);
    snprintf(x.wrong, sizeof x.wrong, "node %u: %s", node->id, text);
}

/* ---- callbacks ---- */

static float value_of(uint32_t stage, uint32_t micro, uint32_t step) {
    return (float)(1000 * step + 10 * micro + stage);
}

static void check(const sim_node *node, const cdp_pipe_micro *m, const void *tensor, float want) {
    const float *const v = (const float *)tensor;
    for (uint32_t k = 0; k < ELEMENTS; ++k)
        if (v[k] != want + (float)k) {
            wrong(node, "stage %u, micro-batch %u: element %u is %g, not %g", m->stage, m->micro, k,
                (double)v[k], (double)want + k);
            return;
        }
}
static void fill(void *tensor, float with) {
    for (uint32_t k = 0; k < ELEMENTS; ++k)
        ((float *)tensor)[k] = with + (float)k;
}

static cdp_status callback(void *user, const cdp_pipe_micro *m) {
    const sim_node *const node = (const sim_node *)user;
    member *const me = &x.m[node->id];
    const uint32_t step = me->steps, stages = (x.nodes - 1) * x.schedule.stages_per_rank;
    if (++me->calls == x.throws_at && node->id == x.victim)
        return cdp_error_set(CDP_ERR_IO, -1, 0, "no more data");
    if (m->kind == CDP_ACT_F) {
        if (m->stage) check(node, m, m->in[0], value_of(m->stage - 1, m->micro, step));
        if (m->stage + 1 < stages) fill(m->out[0], value_of(m->stage, m->micro, step));
    } else if (m->kind != CDP_ACT_W) {
        if (m->stage + 1 < stages)
            check(node, m, m->grad_out[0], -value_of(m->stage + 1, m->micro, step));
        if (m->stage) fill(m->grad_in[0], -value_of(m->stage, m->micro, step));
    }
    return CDP_OK;
}

/* ---- a rank ---- */

static void check_end(const sim_node *node, cdp_status st) {
    const cdp_error *e = cdp_last_error();
    const bool names = strstr(e->text, "micro-batch") || strstr(e->text, "cdp_pipeline_create");
    bool right = x.faulty;
    total.ended += st == CDP_OK;
    if (st == CDP_OK) return;
    if (x.kind == F_KILL)
        right = right && st == CDP_ERR_PEER_LOST && e->peer == (int32_t)x.victim - 1;
    if (x.kind == F_THROW)
        right = right && names && strstr(e->text, "failed in")
            && st == (node->id == x.victim ? CDP_ERR_IO : CDP_ERR_ABORTED);
    if (!right)
        wrong(node, "step %u ends with %s, peer %d: %s", x.m[node->id].steps, cdp_status_name(st),
            (int)e->peer, e->text);
    ++total.told;
}

static cdp_status create(
    sim_node *node, cdp_group *g, const cdp_schedule *schedule, cdp_pipeline **out) {
    static const cdp_pipe_edge edge = {ELEMENTS, CDP_DTYPE_F32};
    const uint32_t stages = cdp_schedule_info_of(schedule).stages;
    cdp_pipe_stage own[CHUNKS];
    cdp_pipeline_desc d = {.group = g, .schedule = schedule, .stages = own, .timeout_ms = STEP_MS};
    memset(own, 0, sizeof own);
    for (uint32_t s = 0; s < stages; ++s) {
        if (cdp_schedule_rank_of(schedule, s) != node->id - 1) continue;
        own[d.stage_count++] = (cdp_pipe_stage){.in = &edge,
            .out = &edge,
            .in_count = s > 0,
            .out_count = s + 1 < stages,
            .forward = callback,
            .backward = callback,
            .backward_input = callback,
            .backward_weights = callback,
            .user = node};
    }
    return cdp_pipeline_create(&d, out);
}

static cdp_status train(sim_node *node, cdp_group *g, member *m) {
    cdp_schedule_desc d = x.schedule;
    cdp_schedule *schedule = NULL;
    cdp_pipeline *pipeline = NULL;
    cdp_status st;
    d.os = &node->os;
    st = cdp_schedule_create(&d, &schedule);
    if (st != CDP_OK) { /* alone without memory: the others learn of it by the group's end */
        total.told += st == CDP_ERR_NOMEM;
        if (st != CDP_ERR_NOMEM) wrong(node, "no schedule: %s", cdp_last_error()->text);
        return st;
    }
    st = create(node, g, schedule, &pipeline);
    while (st == CDP_OK && m->steps < STEPS) {
        const uint64_t began = x.world->now;
        st = cdp_pipeline_step(pipeline);
        if (x.world->now - began > 2 * STEP_MS * SIM_MS && x.kind != F_STOP)
            wrong(node, "step %u took %llu ms", m->steps,
                (unsigned long long)((x.world->now - began) / SIM_MS));
        m->steps += st == CDP_OK;
    }
    m->end_ns = x.world->now - x.world->start_ns;
    check_end(node, st);
    cdp_pipeline_destroy(pipeline);
    cdp_schedule_destroy(schedule);
    return st;
}

static void rank_main(sim_node *node) {
    member *m = &x.m[node->id];
    cdp_store *store = NULL;
    cdp_group *g = NULL;
    cdp_status st = store_node_start(node, x.nodes - 1, STEP_MS, &store, &g);
    if (st != CDP_OK) wrong(node, "it does not begin: %s", cdp_last_error()->text);
    m->ready_calls = node->calls;
    m->ready_allocs = node->alloc_calls;
    m->ready_ns = x.world->now - x.world->start_ns;
    if (st == CDP_OK) st = train(node, g, m);
    cdp_group_destroy(g);
    cdp_store_destroy(store);
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

/* ---- a world ---- */

typedef struct outcome {
    uint64_t from[NODES], calls[NODES], from_allocs[NODES], allocs[NODES], ready_ns, to_ns;
    uint32_t callbacks[NODES];
} outcome;

static void draw_schedule(uint64_t seed) {
    static const struct {
        cdp_pipe_kind kind;
        uint32_t chunks;
    } kinds[] = {{CDP_PIPE_GPIPE, 1}, {CDP_PIPE_1F1B, 1}, {CDP_PIPE_INTERLEAVED, 2},
        {CDP_PIPE_ZERO_BUBBLE, 1}, {CDP_PIPE_ZBV, 2}};
    const uint32_t which = (uint32_t)(seed / 3 % (sizeof kinds / sizeof kinds[0]));
    x.schedule.kind = kinds[which].kind;
    x.schedule.stages_per_rank = kinds[which].chunks;
    x.schedule.ranks = x.nodes - 1;
    x.schedule.micros = 2 * x.schedule.ranks;
}

static bool world_run(
    uint64_t seed, fault_kind kind, const sim_fault *f, uint32_t throws_at, outcome *out) {
    sim_desc d = {.seed = seed,
        .main = node_main,
        .limit_ns = 300 * SIM_S,
        .threads = seed % 4 != 0,
        .clocks = true};
    memset(&x, 0, sizeof x);
    x.nodes = 3 + (uint32_t)(seed % (NODES - 2));
    x.kind = kind;
    x.faulty = f != NULL;
    x.victim = f ? (uint32_t)f->a : 0;
    x.throws_at = throws_at;
    draw_schedule(seed);
    d.node_count = x.nodes;
    d.trace = trace && (f || kind <= F_DELAY) ? stderr : NULL;
    d.noise = kind == F_DELAY ? sim_noise_wild(seed, false) : sim_noise_calm();
    x.world = sim_open(&d);
    if (f && kind > F_THROW) sim_add_fault(x.world, f);
    if (!sim_run(x.world) && !x.wrong[0])
        snprintf(x.wrong, sizeof x.wrong, "%.800s", x.world->failure);
    out->ready_ns = x.m[1].ready_ns;
    for (uint32_t i = 1; i < x.nodes; ++i) {
        out->from[i] = x.m[i].ready_calls;
        out->calls[i] = x.world->nodes[i].calls;
        out->to_ns = cdp__max(out->to_ns, x.m[i].end_ns);
        out->from_allocs[i] = x.m[i].ready_allocs;
        out->allocs[i] = x.world->nodes[i].alloc_calls;
        out->callbacks[i] = x.m[i].calls;
        total.died += x.world->nodes[i].state == SIM_DEAD;
        if (!f && !x.wrong[0] && x.m[i].steps != STEPS)
            wrong(&x.world->nodes[i], "it has ended %u steps", x.m[i].steps);
    }
    ++total.worlds;
    sim_close(x.world);
    return !x.wrong[0];
}

static sim_fault draw(fault_kind kind, const outcome *o, uint64_t *s) {
    const uint32_t victim = 1 + (uint32_t)(sim_random(s) % (x.nodes - 1));
    sim_fault f;
    memset(&f, 0, sizeof f);
    f.kind = SIM_FAULT_KILL;
    f.a = (int32_t)victim;
    f.at_count = o->from[victim] + 1 + sim_random(s) % (o->calls[victim] - o->from[victim]);
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
    outcome o = {.to_ns = 0};
    bool ok = world_run(seed, (fault_kind)kind, NULL, 0, &o);
    if (ok && kind > F_DELAY) {
        const sim_fault f = draw((fault_kind)kind, &o, &s);
        const uint32_t at = 1 + (uint32_t)(sim_random(&s) % o.callbacks[f.a]);
        ok = world_run(seed, (fault_kind)kind, &f, kind == F_THROW ? at : 0, &o);
    }
    if (!ok)
        printf("not ok %s seed %llu, %u nodes: %s\n", fault_names[kind], (unsigned long long)seed,
            x.nodes, x.wrong);
    return ok;
}

static bool kind_end(uint32_t kind, uint32_t bad, uint64_t seeds) {
    if (kind > F_DELAY && seeds > 20 && !total.told) ++bad; /* nothing was tried */
    printf(
        "%s %s: %llu seeds, %u failed; %llu ranks died, %llu had an error, %llu ended all steps\n",
        bad ? "not ok" : "ok", fault_names[kind], (unsigned long long)seeds, bad,
        (unsigned long long)total.died, (unsigned long long)total.told,
        (unsigned long long)total.ended);
    memset(&total, 0, sizeof total);
    return !bad;
}

int main(int argc, char **argv) {
    const worlds w = {fault_names, F_KINDS, 100, seed_run, x.wrong, kind_end, NULL, 0, 0};
    return worlds_main(argc, argv, &w);
}
