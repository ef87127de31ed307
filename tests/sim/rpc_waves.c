/* rpc_waves.c - every order in which the messages of a backward pass can arrive, explored with the
   transition functions of cdp_rpc.h themselves

   Each rank has a table of its own; a value that another rank uses is an import there. A state is
   what the counters of all nodes hold, the sums of gradients, the messages under way and which
   ranks are dead. From each state every message under way arrives, in any order; where a rank may
   die, it does so at every point, and every other one notices it at any later time. When a pass
   has ended, every node that the roots reach has fired once with the number of ways that lead to
   it, no other one has, and no message is under way; where nothing can happen any more, the pass
   has ended, or some rank that lives has noticed that it cannot. Planted mistakes must be found.
   Where one rank lies and answers before it may, no message between the others is taken for a lie:
   the context fails, and no honest rank is given up.

       rpc_waves              the graphs of the table below, 20000 random ones, the planted mistakes
       rpc_waves COUNT SEED   COUNT random graphs, the first with this seed */
#define CDP_IMPLEMENTATION
#include "cdp_rpc.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    RANKS = 4,
    NODES = 10,
    EDGES = 48,
    LOCAL = 64,
    MESSAGES = 60,
    STATE_BYTES = 1600
};

typedef enum plant {
    NOTHING,
    EARLY_DONE,    /* a node answers its first MARK before those that it sends are answered */
    EARLY_FIRE,    /* a node fires with the first gradient */
    DONE_LOST,     /* a MARK of a node that was visited before is not answered */
    COUNTED_TWICE, /* a gradient is added twice where a node gets two */
    LOSS_UNSEEN,   /* the loss of a rank is not noticed by a node that waits for it */
    PLANTS,
    LIAR /* rank 1 answers MARK before those that it sends are answered; nothing is to be found */
} plant;
static const char *const plant_names[PLANTS] = {"nothing", "DONE before what follows is done",
    "fires with its first gradient", "a MARK is not answered", "a gradient is added twice",
    "a lost rank is waited for"};

typedef struct graph {
    uint32_t ranks, nodes, edges, roots, kills;
    uint8_t at[NODES];
    uint8_t edge[EDGES][2]; /* gradients flow from the first node to the second one */
    uint8_t root[2];
    uint32_t states; /* expected; 0: not known */
    const char *name;
} graph;

enum {
    FIRE = 20, /* beside the kinds of cdp__wave_what */
    COUNTED
};
typedef struct message {
    uint8_t kind, from, to, node, value_rank, value, sum;
} message;
/* what changes of a node, and of a rank */
typedef struct moving {
    uint8_t marked, got, deficit, parent, parent_node, state, sum, fired;
} moving;
typedef struct state {
    moving node[RANKS][LOCAL];
    uint32_t marks[RANKS]; /* bits: records of values sent, whose receiver has sent its MARK */
    uint8_t open[RANKS], entered[RANKS];
    uint8_t ended, failed, dead, noticed[RANKS], messages;
    message message[MESSAGES];
} state;

static struct {
    cdp__waves t;
    cdp__wave_node nodes[LOCAL];
    cdp__wave_edge edges[LOCAL];
    cdp__wave_value values[LOCAL];
    cdp__wave_receiver receivers[LOCAL];
} table[RANKS];

static struct {
    const graph *g;
    uint64_t value[NODES];
    uint32_t expected[RANKS][LOCAL]; /* ways that lead to each node */
    plant plant;
    const char *wrong;
    state *s;
    uint32_t rank;
    uint8_t *bytes;
    uint64_t *at;
    uint32_t *chains, mask, count, count_room;
    uint64_t used, room;
} x;

static void wrong(const char *why) {
    if (!x.wrong) x.wrong = why;
}

/* ---- the tables of a graph */

static uint64_t import(uint32_t rank, uint32_t node) {
    cdp__waves *t = &table[rank].t;
    const uint64_t far_value = x.value[node];
    if (x.g->at[node] == rank) return far_value;
    for (uint32_t v = 1; v <= t->value_count; ++v) {
        const cdp__wave_node *n = &t->nodes[t->values[v].node];
        if (n->edges == 1 && t->edges[n->first].value == far_value) return (uint64_t)rank << 48 | v;
    }
    cdp__wave_record_sent(&table[x.g->at[node]].t, (uint32_t)far_value, rank);
    return cdp__wave_add_value(t, cdp__wave_add_node(t, &far_value, 1), 0);
}

static void act(void *unused, const cdp__wave_act *a);

static void expect(uint32_t rank, uint64_t value, uint32_t ways) {
    const cdp__waves *t = &table[rank].t;
    const uint32_t node = t->values[(uint32_t)value].node;
    x.expected[rank][node] += ways;
    for (uint32_t i = 0; i < t->nodes[node].edges; ++i)
        expect(
            t->edges[t->nodes[node].first + i].to, t->edges[t->nodes[node].first + i].value, ways);
}

static void build(const graph *g) {
    uint64_t roots[2], inputs[EDGES];
    x.g = g;
    memset(table, 0, sizeof table);
    memset(x.expected, 0, sizeof x.expected);
    for (uint32_t r = 0; r < RANKS; ++r) {
        cdp__waves *t = &table[r].t;
        t->nodes = table[r].nodes;
        t->edges = table[r].edges;
        t->values = table[r].values;
        t->receivers = table[r].receivers;
        t->rank = r;
        t->act = act;
    }
    for (uint32_t i = 0; i < g->nodes; ++i) {
        uint32_t count = 0;
        for (uint32_t e = 0; e < g->edges; ++e)
            if (g->edge[e][0] == i) inputs[count++] = import(g->at[i], g->edge[e][1]);
        cdp__waves *t = &table[g->at[i]].t;
        x.value[i] = cdp__wave_add_value(t, cdp__wave_add_node(t, inputs, count), 0);
    }
    for (uint32_t i = 0; i < g->roots; ++i)
        roots[i] = import(0, g->root[i]);
    for (uint32_t i = 0; i < g->roots; ++i)
        expect(0, roots[i], 1);
}

/* ---- states */

static int message_order(const void *a, const void *b) {
    return memcmp(a, b, sizeof(message));
}

static uint32_t state_bytes(state *s, uint8_t *out) {
    uint8_t *p = out;
    qsort(s->message, s->messages, sizeof(message), message_order);
    for (uint32_t r = 0; r < x.g->ranks; ++r) {
        const uint32_t n = (table[r].t.node_count + 1) * (uint32_t)sizeof(moving);
        memcpy(p, s->node[r], n);
        p += n;
    }
    memcpy(p, s->marks, offsetof(state, message) - offsetof(state, marks));
    p += offsetof(state, message) - offsetof(state, marks);
    memcpy(p, s->message, s->messages * sizeof(message));
    return (uint32_t)(p - out) + s->messages * (uint32_t)sizeof(message);
}

static void state_of(const uint8_t *p, state *s) {
    memset(s, 0, sizeof *s);
    for (uint32_t r = 0; r < x.g->ranks; ++r) {
        const uint32_t n = (table[r].t.node_count + 1) * (uint32_t)sizeof(moving);
        memcpy(s->node[r], p, n);
        p += n;
    }
    memcpy(s->marks, p, offsetof(state, message) - offsetof(state, marks));
    p += offsetof(state, message) - offsetof(state, marks);
    memcpy(s->message, p, s->messages * sizeof(message));
}

#include "states.h"

static void state_add(state *s) {
    (void)state_number(s);
}

static void load(state *s, uint32_t rank) {
    cdp__waves *t = &table[rank].t;
    x.s = s;
    x.rank = rank;
    t->open = s->open[rank];
    t->epoch = 1;
    t->pass = s->entered[rank] ? 7 : 0;
    if (!s->entered[rank]) t->epoch = 0;
    if (t->receiver_count >= 32) wrong("too many values are sent for this program");
    for (uint32_t i = 1; i <= t->receiver_count; ++i)
        t->receivers[i].epoch = s->marks[rank] >> i & 1;
    for (uint32_t i = 0; i <= t->node_count; ++i) {
        const moving *m = &s->node[rank][i];
        cdp__wave_node *n = &t->nodes[i];
        n->marked = m->marked;
        n->got = m->got;
        n->deficit = m->deficit;
        n->parent = m->parent;
        n->parent_node = m->parent_node;
        n->state = m->state;
        n->epoch = m->state != CDP__WAVE_IDLE ? 1 : 0;
    }
}

static void save(void) {
    const cdp__waves *t = &table[x.rank].t;
    x.s->open[x.rank] = (uint8_t)t->open;
    x.s->entered[x.rank] = t->pass == 7;
    x.s->marks[x.rank] = 0;
    for (uint32_t i = 1; i <= t->receiver_count; ++i)
        if (t->receivers[i].epoch) x.s->marks[x.rank] |= 1u << i;
    for (uint32_t i = 0; i <= t->node_count; ++i) {
        moving *m = &x.s->node[x.rank][i];
        const cdp__wave_node *n = &t->nodes[i];
        m->marked = (uint8_t)n->marked;
        m->got = (uint8_t)n->got;
        m->deficit = (uint8_t)n->deficit;
        m->parent = (uint8_t)n->parent;
        m->parent_node = (uint8_t)n->parent_node;
        m->state = n->state;
    }
}

static void put(uint32_t kind, uint32_t to, uint32_t node, uint64_t value, uint32_t sum) {
    const message m = {(uint8_t)kind, (uint8_t)x.rank, (uint8_t)to, (uint8_t)node,
        (uint8_t)cdp__wave_home(value), (uint8_t)value, (uint8_t)sum};
    if (x.s->noticed[x.rank] >> to & 1) {
        x.s->failed = 1; /* the module fails the context: it cannot send to a rank that is lost */
        return;
    }
    if (x.s->messages == MESSAGES) {
        wrong("too many messages for this program");
        return;
    }
    x.s->message[x.s->messages++] = m;
}

static void act(void *unused, const cdp__wave_act *a) {
    (void)unused;
    switch (a->what) {
    case CDP__WAVE_SEND_MARK: put(a->what, a->to, a->node, a->value, 0); break;
    case CDP__WAVE_SEND_GRAD:
        put(a->what, a->to, a->node, a->value, a->node ? x.s->node[x.rank][a->node].sum : 1);
        break;
    case CDP__WAVE_SEND_DONE: put(a->what, a->to, a->node, 0, 0); break;
    case CDP__WAVE_FIRE: put(FIRE, x.rank, a->node, 0, 0); break;
    case CDP__WAVE_COUNTED: put(COUNTED, x.rank, 0, 0, 0); break;
    case CDP__WAVE_ENDED: x.s->ended = 1; break;
    }
}

/* ---- steps */

static void planted_mark(const message *m, uint32_t before) {
    state *s = x.s;
    cdp__waves *t = &table[x.rank].t;
    cdp__wave_node *n = &t->nodes[t->values[m->value].node];
    if (x.plant == DONE_LOST && n->marked == 2 && s->messages > before) --s->messages;
    const bool early = x.plant == EARLY_DONE || (x.plant == LIAR && x.rank == 1);
    if (early && n->marked == 1 && n->deficit) {
        n->deficit = 0;
        cdp__wave_answer(t, n);
    }
}

static void deliver(const message *m) {
    cdp__waves *t = &table[m->to].t;
    const uint64_t value = (uint64_t)m->value_rank << 48 | m->value;
    const uint32_t before = x.s->messages;
    cdp__wave_how how = CDP__WAVE_OK;
    uint32_t entry;
    switch (m->kind) {
    case CDP__WAVE_SEND_MARK:
        how = cdp__wave_got_mark(t, m->from, m->node, 7, value);
        planted_mark(m, before);
        break;
    case CDP__WAVE_SEND_GRAD: {
        cdp__wave_node *n = &t->nodes[t->values[m->value].node];
        moving *v = &x.s->node[x.rank][t->values[m->value].node];
        if (x.plant == EARLY_FIRE) n->marked = n->got + 1;
        how = cdp__wave_got_grad(t, m->from, m->node, 7, value, &entry);
        v->sum = (uint8_t)(v->sum + m->sum);
        if (x.plant == COUNTED_TWICE && n->marked == 2 && n->got == 2)
            v->sum = (uint8_t)(v->sum + m->sum);
        break;
    }
    case CDP__WAVE_SEND_DONE: how = cdp__wave_got_done(t, m->from, 7, m->node); break;
    case FIRE:
        ++x.s->node[x.rank][m->node].fired;
        cdp__wave_fired(t, m->node);
        break;
    default: cdp__wave_grads(t); break;
    }
    if (x.plant == LIAR && how == CDP__WAVE_DISORDER)
        x.s->failed = 1;
    else if (x.plant == LIAR && (m->from == 1 || m->to == 1))
        return;
    else if (how != CDP__WAVE_OK)
        wrong("a message is taken for a lie");
}

static bool dead(const state *s, uint32_t rank) {
    return s->dead >> rank & 1;
}

static void arrive(const state *from, uint32_t i, state *s) {
    const message m = from->message[i];
    *s = *from;
    s->message[i] = s->message[--s->messages];
    if (dead(from, m.to) || (from->noticed[m.to] >> m.from & 1)) return;
    load(s, m.to);
    deliver(&m);
    save();
}

static void notice(const state *from, uint32_t rank, uint32_t peer, state *s) {
    *s = *from;
    s->noticed[rank] |= (uint8_t)(1u << peer);
    if (s->open[rank] && x.plant != LOSS_UNSEEN) s->failed = 1;
}

static void die(const state *from, uint32_t rank, state *s) {
    uint32_t n = 0;
    *s = *from;
    s->dead |= (uint8_t)(1u << rank);
    for (uint32_t i = 0; i < s->messages; ++i) /* what it sent to itself */
        if (s->message[i].from != rank || s->message[i].to != rank) s->message[n++] = s->message[i];
    s->messages = (uint8_t)n;
}

/* ---- what must hold */

static void check_ended(const state *s) {
    for (uint32_t i = 0; i < s->messages && !s->dead; ++i)
        wrong("the pass has ended, and a message is under way");
    for (uint32_t r = 0; r < x.g->ranks; ++r)
        for (uint32_t n = 1; n <= table[r].t.node_count && !dead(s, r); ++n) {
            const moving *m = &s->node[r][n];
            if (m->fired != (x.expected[r][n] > 0))
                wrong("a node fired that should not, or has not, or twice");
            if (m->sum != (uint8_t)x.expected[r][n]) wrong("a node has a wrong sum of gradients");
        }
    for (uint32_t r = 0; r < x.g->ranks; ++r)
        if (s->open[r] && !dead(s, r)) wrong("the pass has ended, and nodes are open");
}

static bool over(const state *s) {
    if (s->ended && x.plant != LIAR) check_ended(s);
    return s->ended || s->failed || dead(s, 0);
}

/* Every step from a state. False: there is none. */
static bool steps(const state *from, void (*add)(state *s), const uint64_t *only) {
    uint32_t n = 0, kind;
    state s;
    for (kind = 0; kind < 3; ++kind)
        for (uint32_t r = 0; r < (kind ? x.g->ranks : from->messages); ++r)
            for (uint32_t peer = 0; peer < (kind == 1 ? x.g->ranks : 1); ++peer) {
                if (kind == 1
                    && (r == peer || dead(from, r) || !dead(from, peer)
                        || (from->noticed[r] >> peer & 1)))
                    continue;
                if (kind == 2 && (from->dead || !x.g->kills)) continue;
                if (only && n++ != *only) continue;
                if (!only) ++n;
                if (kind == 0) arrive(from, r, &s);
                if (kind == 1) notice(from, r, peer, &s);
                if (kind == 2) die(from, r, &s);
                add(&s);
                if (kind == 0 && from->dead && dead(from, from->message[r].from)) {
                    s = *from; /* what a dead rank has sent may be lost, too */
                    s.message[r] = s.message[--s.messages];
                    if (!only) add(&s);
                }
            }
    return n > 0;
}

static bool quiet(const state *s) {
    for (uint32_t r = 0; r < x.g->ranks; ++r)
        for (uint32_t peer = 0; peer < x.g->ranks; ++peer)
            if (r != peer && !dead(s, r) && dead(s, peer) && !(s->noticed[r] >> peer & 1))
                return false;
    return !s->messages;
}

static void begin(state *s) {
    uint64_t roots[2];
    memset(s, 0, sizeof *s);
    for (uint32_t i = 0; i < x.g->roots; ++i)
        roots[i] = import(0, x.g->root[i]);
    load(s, 0);
    if (!cdp__wave_begin(&table[0].t, 7, roots, x.g->roots)) wrong("a pass cannot begin");
    save();
}

/* Returns how many states there are, 0 where something is wrong. */
static uint32_t explore(const graph *g, plant planted) {
    uint32_t at = 1;
    state s;
    memset(&x, 0, sizeof x);
    x.plant = planted;
    x.count_room = 2000000;
    x.room = 600u * 1000000;
    x.mask = (1u << 22) - 1;
    x.bytes = (uint8_t *)malloc(x.room);
    x.at = (uint64_t *)calloc(x.count_room, sizeof *x.at);
    x.chains = (uint32_t *)calloc(x.mask + 1u, sizeof *x.chains);
    if (!x.bytes || !x.at || !x.chains) abort();
    build(g);
    begin(&s);
    state_add(&s);
    for (; at <= x.count && !x.wrong; ++at) {
        state from;
        state_of(x.bytes + x.at[at - 1], &from);
        if (over(&from)) continue;
        if (quiet(&from) && planted != LIAR)
            wrong("nothing happens any more, and the pass has not ended");
        (void)steps(&from, state_add, NULL);
    }
    if (x.wrong && (!planted || planted == LIAR))
        printf("  %s\n", x.wrong);
    else if (x.wrong)
        printf("  found after %u states: %s\n", at, x.wrong);
    free(x.bytes);
    free(x.at);
    free(x.chains);
    return x.wrong ? 0 : x.count;
}

/* ---- random graphs */

static uint64_t random_state;
static uint32_t below(uint32_t n) {
    random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)((random_state >> 33) % n);
}

static graph random_graph(uint64_t seed) {
    graph g;
    memset(&g, 0, sizeof g);
    random_state = seed * 77777 + 1;
    (void)below(2);
    g.nodes = 2 + below(8);
    g.ranks = 1 + below(RANKS);
    g.kills = below(2);
    for (uint32_t i = 0; i < g.nodes; ++i) {
        g.at[i] = (uint8_t)below(g.ranks);
        for (uint32_t p = 0; i && p < below(4); ++p)
            for (uint32_t k = 1 + below(2), to = below(i); k && g.edges < EDGES / 2; --k) {
                g.edge[g.edges][0] = (uint8_t)i;
                g.edge[g.edges++][1] = (uint8_t)to;
            }
    }
    g.roots = 1 + below(2);
    g.root[0] = (uint8_t)below(g.nodes);
    g.root[1] = (uint8_t)below(g.nodes);
    return g;
}

static state *next_state;
static void take(state *s) {
    *next_state = *s;
}

static bool walk(uint64_t seed) {
    const graph g = random_graph(seed);
    state now, next;
    memset(&x, 0, sizeof x);
    build(&g);
    begin(&now);
    next_state = &next;
    while (!x.wrong && !over(&now)) {
        uint64_t which = below(now.messages + 3 * RANKS);
        if (quiet(&now)) wrong("nothing happens any more, and the pass has not ended");
        if (which < now.messages || !below(8) || !now.messages) {
            next = now;
            (void)steps(&now, take, &which);
            now = next;
        }
    }
    if (x.wrong) printf("  seed %llu: %s\n", (unsigned long long)seed, x.wrong);
    return !x.wrong;
}

static uint32_t walks(uint32_t count, uint64_t first) {
    uint32_t failed = 0;
    for (uint32_t i = 0; i < count; ++i)
        failed += !walk(first + i);
    printf("%s %u random graphs, any order of delivery, in half of them a rank dies\n",
        failed ? "not ok" : "ok", count);
    return failed;
}

int main(int argc, char **argv) {
    static const graph graphs[] = {
        {.name = "a chain over three ranks",
            .states = 37,
            .ranks = 3,
            .nodes = 4,
            .edges = 3,
            .roots = 1,
            .at = {0, 1, 2, 0},
            .edge = {{1, 0}, {2, 1}, {3, 2}},
            .root = {3}},
        {.name = "a value used twice",
            .states = 161,
            .ranks = 2,
            .nodes = 3,
            .edges = 4,
            .roots = 1,
            .at = {1, 0, 0},
            .edge = {{1, 0}, {1, 0}, {2, 1}, {2, 0}},
            .root = {2}},
        {.name = "a diamond over three ranks, an unused branch",
            .states = 409,
            .ranks = 3,
            .nodes = 5,
            .edges = 5,
            .roots = 1,
            .at = {0, 1, 2, 0, 1},
            .edge = {{1, 0}, {2, 0}, {3, 1}, {3, 2}, {4, 0}},
            .root = {3}},
        {.name = "two roots",
            .states = 824,
            .ranks = 2,
            .nodes = 4,
            .edges = 4,
            .roots = 2,
            .at = {1, 0, 1, 0},
            .edge = {{1, 0}, {2, 0}, {2, 1}, {3, 2}},
            .root = {3, 1}},
        {.name = "a way over both others, and none",
            .states = 175,
            .ranks = 3,
            .nodes = 4,
            .edges = 4,
            .roots = 1,
            .at = {0, 2, 1, 0},
            .edge = {{1, 0}, {2, 1}, {3, 2}, {3, 0}},
            .root = {3}},
        {.name = "there and back, a rank dies",
            .states = 363,
            .ranks = 3,
            .nodes = 4,
            .edges = 3,
            .roots = 1,
            .kills = 1,
            .at = {0, 1, 2, 0},
            .edge = {{1, 0}, {2, 1}, {3, 2}},
            .root = {3}},
        {.name = "a diamond, a rank dies",
            .states = 3459,
            .ranks = 3,
            .nodes = 4,
            .edges = 4,
            .roots = 1,
            .kills = 1,
            .at = {1, 1, 2, 0},
            .edge = {{1, 0}, {2, 0}, {3, 1}, {3, 2}},
            .root = {3}},
    };
    uint32_t passed = 0, failures = 0;
    if (argc == 3) return walks((uint32_t)atoi(argv[1]), strtoull(argv[2], NULL, 10)) != 0;
    for (uint32_t i = 0; i < sizeof graphs / sizeof *graphs; ++i) {
        const uint32_t n = explore(&graphs[i], NOTHING);
        const bool ok = n && (!graphs[i].states || n == graphs[i].states);
        printf("%s %s: %u states, expected %u\n", ok ? "ok" : "not ok", graphs[i].name, n,
            graphs[i].states);
        ++*(ok ? &passed : &failures);
    }
    for (uint32_t i = 0; i < sizeof graphs / sizeof *graphs; ++i) {
        const uint32_t n = explore(&graphs[i], LIAR);
        printf("%s %s, rank 1 lies: %u states\n", n ? "ok" : "not ok", graphs[i].name, n);
        ++*(n ? &passed : &failures);
    }
    ++*(walks(20000, 1) ? &failures : &passed);
    for (plant p = EARLY_DONE; p < PLANTS; p = (plant)(p + 1)) {
        const bool ok = explore(&graphs[p == LOSS_UNSEEN ? 6 : 2], p) == 0;
        printf("%s planted: %s\n", ok ? "ok" : "not ok", plant_names[p]);
        ++*(ok ? &passed : &failures);
    }
    printf("%u passed, %u failed\n", passed, failures);
    return failures != 0;
}
