/* again.c - destroy and start again at the same address, in a simulated world

   The ranks start, add up the number of the start, and leave, again and again. Each seed draws who
   is late, before it leaves and before it starts. Each kind of world has another place where the
   ranks meet, or another way in which a start ends:

       own       rank 0 serves the store
       foreign   node 0 serves it, for all starts
       meeting   rank 0 serves the store, and publishes its address in that of node 0
       aborted   a rank aborts the group of each start; own or foreign
       spoiled   in each start a rank comes with other settings first; own or foreign
       sizes     the last rank is in every second start alone; own or foreign
       killed    the processes are killed, and as each one ends, another one gets its rank; own or
                 foreign

   In every world: all ranks of a start are those of one start, each has as many starts as it asked
   for, and whatever fails, fails before its deadline, with no innocent called a second process;
   nothing is left of memory and descriptors. Then planted mistakes, which some world must find.

       again [--seeds A..B] [--seed N] [--trace] [--plant N] [KIND] */
#include <stdint.h>

typedef enum plant {
    PLANT_NOTHING,
    PLANT_JOINS_WHAT_HAS_BEGUN,
    PLANT_JOINS_WHAT_HAS_FAILED,
    PLANT_NEVER_TAKES_OVER
} plant;
static plant planted;

#define CDP__START_PLANT(mistake) (planted == PLANT_##mistake)
#define CDP_IMPLEMENTATION
#include "cdp_store.h"
#include "own.h"

#include "cdp_tcp.h"
#include "sim.h"

enum {
    RANKS = 5,
    NODES = 1 + 2 * RANKS, /* the store, the ranks, and who gets the rank of a killed one */
    STARTS = 4,
    INIT_MS = 20000,
    LATE_MS = 3000 /* at most, in two places */
};

typedef enum world_kind {
    K_OWN,
    K_FOREIGN,
    K_MEETING,
    K_ABORTED,
    K_SPOILED,
    K_SIZES,
    K_KILLED,
    K_KINDS
} world_kind;
static const char *const kind_names[K_KINDS] = {
    "own", "foreign", "meeting", "aborted", "spoiled", "sizes", "killed"};

typedef struct member {
    uint64_t random;
    uint32_t starts, failures;
    uint64_t over_ns;
    bool over;
} member;

static struct {
    sim_world *world;
    world_kind kind;
    uint32_t ranks, victim, late; /* late: this rank is the late one; RANKS: any */
    bool foreign;                 /* node 0 serves the store */
    uint8_t hosts[NODES];
    member m[NODES];
    char wrong[900];
} x;

static struct { uint64_t starts, failures; } total;

static bool trace;
#include "store_node.h"
#include "worlds.h"

static SIM_FORMAT(2, 3) void wrong(uint32_t node, const char *f, ...) {
    char text[700];
    va_list ap;
    if (x.wrong[0]) return;
    va_start(ap, f);
    vsnprintf(text, sizeof text, f, ap);
    va_end(ap);
    snprintf(x.wrong, sizeof x.wrong, "node %u, start %u: %s", node, x.m[node].starts, text);
}

static void rest(sim_node *node, uint64_t ms) {
    node->os.sleep_until(node->os.user, node->os.now_ns(node->os.user) + ms * SIM_MS);
}

/* Mostly nobody is late, and then one rank is, or some are by little. */
static void be_late(sim_node *node, uint32_t rank) {
    member *m = &x.m[node->id];
    const uint64_t kind = sim_random(&m->random) % 4;
    if (x.late < RANKS && x.late != rank) return;
    if (kind == 0) rest(node, sim_random(&m->random) % LATE_MS);
    if (kind == 1) rest(node, sim_random(&m->random) % 30);
}

static bool dead(uint32_t node) {
    return x.world->nodes[node].state == SIM_DEAD;
}

static cdp_tcp_desc desc_of(sim_node *node, uint32_t rank, cdp_store *meeting) {
    cdp_tcp_desc d = {.group = {.rank = rank,
                          .world_size = x.ranks,
                          .timeout_ms = 10000,
                          .os = &node->os,
                          .logger = {.level = trace ? CDP_LOG_DEBUG : CDP_LOG_SILENT}},
        .master_addr = x.foreign && x.kind != K_MEETING ? "10.0.0.1" : "10.0.0.2",
        .master_port = 29500,
        .external_store = x.foreign && x.kind != K_MEETING,
        .trust_network = true,
        .init_timeout_ms = INIT_MS,
        .store = meeting};
    if (x.kind == K_MEETING) d.master_port = 0;
    return d;
}

/* An attempt to start. `spoil`: with settings that the others do not have. */
static cdp_group *start(sim_node *node, uint32_t rank, cdp_store *meeting, bool spoil) {
    member *m = &x.m[node->id];
    cdp_tcp_desc d = desc_of(node, rank, meeting);
    const uint64_t began = x.world->now;
    cdp_group *g = NULL;
    cdp_status st;
    if (x.kind == K_SIZES && m->starts % 2) --d.group.world_size;
    if (spoil) d.group.piece_bytes = 4096;
    st = cdp_init(&d, &g);
    if (x.world->now - began > (INIT_MS + INIT_MS / 10) * SIM_MS)
        wrong(node->id, "cdp_init() took %llu ms",
            (unsigned long long)((x.world->now - began) / SIM_MS));
    if (st == CDP_OK) {
        if (spoil) wrong(node->id, "it has started with settings that others do not have");
        return g;
    }
    ++m->failures;
    if (strstr(cdp_last_error()->text, "two processes")
        || (st == CDP_ERR_TIMEOUT && x.kind != K_KILLED)
        || (x.kind != K_SPOILED && x.kind != K_KILLED))
        wrong(node->id, "%s: %s", cdp_status_name(st), cdp_last_error()->text);
    return NULL;
}

/* Starts, be it at the twelfth attempt. */
static cdp_group *begin(sim_node *node, uint32_t rank, cdp_store *meeting) {
    member *m = &x.m[node->id];
    bool spoil = x.kind == K_SPOILED && (x.victim + m->starts) % x.ranks == rank;
    cdp_group *g = NULL;
    for (uint32_t i = 0; !g && i < 12; ++i) {
        be_late(node, rank);
        g = start(node, rank, meeting, spoil);
        spoil = false;
    }
    if (!g) wrong(node->id, "it could not start: %s", cdp_last_error()->text);
    return g;
}

/* One start of this rank, and its end. */
static void work(sim_node *node, uint32_t rank, cdp_store *meeting) {
    member *m = &x.m[node->id];
    cdp_group *g = begin(node, rank, meeting);
    uint64_t sum = m->starts + 1;
    uint32_t n;
    cdp_status st;
    if (!g) return;
    n = cdp_size(g);
    st = cdp_allreduce(g, NULL, &sum, 1, CDP_DTYPE_U64, CDP_REDUCE_SUM);
    if (st == CDP_OK && sum != (uint64_t)n * (m->starts + 1))
        wrong(node->id, "%u ranks of different starts have met: the sum is %u", n, (uint32_t)sum);
    if (st != CDP_OK && x.kind != K_ABORTED)
        wrong(node->id, "%s: %s", cdp_status_name(st), cdp_last_error()->text);
    if (x.kind == K_ABORTED && (x.victim + m->starts) % n == rank) cdp_group_abort(g, "enough");
    be_late(node, rank);
    cdp_group_destroy(g);
    ++m->starts;
    ++total.starts;
}

/* The process starts once, and works until it is killed. That which gets its rank has done its
   work when all others are such processes. */
static void work_until_killed(sim_node *node, uint32_t rank) {
    const bool second = node->id > x.ranks;
    for (uint32_t i = 0; i < 12 && !x.wrong[0]; ++i) {
        cdp_group *g = second ? begin(node, rank, NULL) : start(node, rank, NULL, false);
        cdp_status st = g ? CDP_OK : CDP_ERR_STATE;
        uint64_t sum = 0;
        while (st == CDP_OK && sum != x.ranks) {
            sum = second;
            st = cdp_allreduce(g, NULL, &sum, 1, CDP_DTYPE_U64, CDP_REDUCE_SUM);
            if (sum != x.ranks) rest(node, 5);
        }
        total.starts += g != NULL;
        cdp_group_destroy(g);
        while (!second)
            rest(node, 100);
        if (st == CDP_OK) return;
    }
    wrong(node->id, "it did not meet the others");
}

/* True when all other ranks have had as many starts as this one. */
static bool others_follow(uint32_t node) {
    for (uint32_t i = 1; i < x.ranks; ++i)
        if (x.m[i].starts < x.m[node].starts) return false;
    return true;
}

static void rank_main(sim_node *node, uint32_t rank) {
    const uint32_t starts = x.kind == K_KILLED ? 0 : STARTS;
    member *m = &x.m[node->id];
    cdp_store *meeting = NULL;
    if (x.kind == K_MEETING
        && cdp_tcp_store_create(
               &(cdp_tcp_store_desc){.host = "10.0.0.1", .port = 29500, .os = &node->os}, &meeting)
            != CDP_OK)
        wrong(node->id, "%s", cdp_last_error()->text);
    while (m->starts < starts && !x.wrong[0]) {
        if (x.kind == K_SIZES && m->starts % 2 && rank + 1 == x.ranks) {
            ++m->starts; /* it has no part in this one */
            while (!others_follow(node->id) && !x.wrong[0])
                rest(node, 10);
            continue;
        }
        work(node, rank, meeting);
    }
    if (x.kind == K_KILLED) work_until_killed(node, rank);
    if (meeting) cdp_store_destroy(meeting);
    m->over = true;
    total.failures += m->failures;
    if (node->block_count) wrong(node->id, "%u blocks are left", (uint32_t)node->block_count);
    if (node->fd_count) wrong(node->id, "%u descriptors are left", node->fd_count);
}

static bool all_over(void) {
    for (uint32_t i = 1; i <= (x.kind == K_KILLED ? 2 : 1) * x.ranks; ++i)
        if (!x.m[i].over && !dead(i) && !x.world->lost[i]) return false;
    return true;
}

static bool served_enough(void) {
    return all_over() || x.wrong[0];
}

static void node_main(sim_node *node, void *arg) {
    (void)arg;
    if (!node->id) {
        if (x.foreign) store_node_serve(node, served_enough, NULL);
        return;
    }
    if (node->id > x.ranks) { /* gets the rank of a process that is killed */
        while (!dead(node->id - x.ranks) && !x.wrong[0])
            rest(node, 1);
        rank_main(node, node->id - x.ranks - 1);
        return;
    }
    rank_main(node, node->id - 1);
}

static void draw_world(uint64_t seed, world_kind kind) {
    uint64_t s = sim_stream(seed, 77);
    memset(&x, 0, sizeof x);
    x.kind = kind;
    x.ranks = 2 + (uint32_t)(sim_random(&s) % (RANKS - 1));
    if (kind == K_SIZES && x.ranks < 3) x.ranks = 3;
    x.foreign = kind == K_FOREIGN || kind == K_MEETING || (kind > K_MEETING && seed % 2);
    x.victim = (uint32_t)(sim_random(&s) % x.ranks);
    x.late = (uint32_t)(seed % (x.ranks + 1));
    if (x.late == x.ranks) x.late = RANKS;
    for (uint32_t i = 1; i < NODES; ++i) {
        x.m[i].random = sim_stream(seed, 100 + i);
        x.hosts[i] = (uint8_t)(i > x.ranks ? i - x.ranks : i);
    }
}

static bool seed_run(uint64_t seed, uint32_t kind) {
    sim_desc d = {.seed = seed,
        .main = node_main,
        .limit_ns = 900 * SIM_S,
        .hosts = x.hosts,
        .threads = seed % 4 != 0,
        .memory = seed % 3 == 0,
        .clocks = true};
    uint64_t s = sim_stream(seed, 99), at;
    draw_world(seed, (world_kind)kind);
    d.node_count = 1 + x.ranks * (kind == K_KILLED ? 2 : 1);
    d.trace = trace ? stderr : NULL;
    d.noise = seed % 2 ? sim_noise_calm() : sim_noise_wild(seed, false);
    x.world = sim_open(&d);
    at = sim_log_between(&s, SIM_MS / 10, 4 * SIM_S);
    for (uint32_t i = 1; i <= x.ranks && kind == K_KILLED; ++i) {
        const sim_fault f = {.kind = SIM_FAULT_KILL,
            .a = (int32_t)i,
            .at_ns = at + sim_random(&s) % sim_log_between(&s, SIM_MS / 10, SIM_S)};
        sim_add_fault(x.world, &f);
    }
    if (!sim_run(x.world) && !x.wrong[0])
        snprintf(x.wrong, sizeof x.wrong, "%.800s", x.world->failure);
    sim_close(x.world);
    if (x.wrong[0] && !planted)
        printf("not ok %s seed %llu, %u ranks%s: %s\n", kind_names[kind], (unsigned long long)seed,
            x.ranks, x.foreign ? ", foreign store" : "", x.wrong);
    return !x.wrong[0];
}

static bool kind_end(uint32_t kind, uint32_t bad, uint64_t seeds) {
    printf("%s %s: %llu seeds, %u failed; %llu starts of ranks, %llu attempts failed before\n",
        bad ? "not ok" : "ok", kind_names[kind], (unsigned long long)seeds, bad,
        (unsigned long long)total.starts, (unsigned long long)total.failures);
    memset(&total, 0, sizeof total);
    return !bad;
}

int main(int argc, char **argv) {
    static const world_plant plants[] = {
        {PLANT_JOINS_WHAT_HAS_BEGUN, K_OWN, "a rank joins a job that has begun", NULL},
        {PLANT_JOINS_WHAT_HAS_BEGUN, K_FOREIGN, "the same in the store of others", NULL},
        {PLANT_JOINS_WHAT_HAS_FAILED, K_SPOILED, "a rank joins a start that has failed", NULL},
        {PLANT_NEVER_TAKES_OVER, K_KILLED, "a rank whose process has ended stays taken", NULL}};
    const worlds w = {kind_names, K_KINDS, 40, seed_run, x.wrong, kind_end, plants, 4, 400};
    return worlds_main(argc, argv, &w);
}
