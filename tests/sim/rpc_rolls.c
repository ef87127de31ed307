/* rpc_rolls.c - ranks that shut down among survivors, in many orders, with the rules of cdp_rpc.h
   themselves

   Each seed draws 2 to 5 ranks, which end three turns each, and the order in which words arrive,
   ranks begin their turns, ranks die and links break, up to three of each. Words of one rank to
   another arrive in their order; of what a rank has said before it dies, any part arrives. What
   must hold: no run stands still; two ranks that have come to the end and are alive for each other
   have the same list and the same sum of each turn; where no link breaks, a rank that is alive for
   one that has come to the end, and has come there itself, says the same of it. (A link may break
   under the last words: no rule can then make both ends agree.) Without a fault all are alive. A
   planted mistake must be found.

       rpc_rolls [--seeds A..B] [--seed N] [KIND] */
#define CDP_IMPLEMENTATION
#include <stdbool.h>
typedef enum plant {
    PLANT_NOTHING,
    PLANT_ANY_LIST /* a turn is over with different lists */
} plant;
static plant planted;
#define CDP__RPC_PLANT(defect) (CDP__PLANT_##defect)
#define CDP__PLANT_ANY_LIST (planted == PLANT_ANY_LIST)
#define CDP__PLANT_NO_DEADLINE false
#define CDP__PLANT_TOLD_TWICE false
#define CDP__PLANT_NOT_CONFIRMED false
#define CDP__PLANT_NO_CREDIT false
#define CDP__PLANT_NO_LIMIT_OF_BYTES false
#define CDP__PLANT_ONE_SUM false
#define CDP__PLANT_NOT_COUNTED false
#define CDP__PLANT_BACK_EARLY false
#define CDP__PLANT_ADDED_TWICE false
#define CDP__PLANT_NOT_OF_THE_SEED false
#include "cdp_rpc.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    RANKS = 5,
    TURNS = 3,
    QUEUE = 64,
    WORD_BYTES = 600
};

enum {
    NONE,
    KILLS,
    CUTS,
    BOTH,
    KINDS
};
static const char *const names[KINDS] = {"none", "kills", "cuts", "both"};

typedef struct word {
    cdp__roll_kind kind;
    bool loss; /* no word: the link ends here */
    uint64_t turn;
    uint8_t body[WORD_BYTES];
} word;

typedef struct node {
    cdp__roll roll;
    cdp__roll_word words[RANKS];
    bool out[RANKS], sum_out[RANKS], lost[RANKS];
    bool dead;
    uint64_t sums[TURNS + 1];
} node;

static struct {
    uint32_t ranks;
    node node[RANKS];
    struct {
        word at[QUEUE];
        uint32_t from, to;
        bool closed; /* the sender has gone, or the link */
    } link[RANKS][RANKS];
    uint64_t random;
    char wrong[200];
} x;

static bool trace;
#include "worlds.h"

static uint32_t draw(uint32_t below) {
    x.random ^= x.random << 13;
    x.random ^= x.random >> 7;
    x.random ^= x.random << 17;
    return (uint32_t)(x.random >> 20) % below;
}
static void wrong(uint32_t rank, const char *what) {
    if (!x.wrong[0]) snprintf(x.wrong, sizeof x.wrong, "rank %u: %s", rank, what);
}

static word *put(uint32_t from, uint32_t to) {
    word *w = &x.link[from][to].at[x.link[from][to].to % QUEUE];
    if (x.link[from][to].closed) return NULL;
    if (x.link[from][to].to - x.link[from][to].from == QUEUE) wrong(from, "it says too much");
    ++x.link[from][to].to;
    memset(w, 0, sizeof *w);
    return w;
}
static void close_link(uint32_t from, uint32_t to) {
    word *w = put(from, to);
    if (w) w->loss = true;
    x.link[from][to].closed = true;
}

static void say(uint32_t rank, cdp__roll_kind kind) {
    node *n = &x.node[rank];
    for (uint32_t to = 0; to < x.ranks; ++to) {
        if (to == rank || n->lost[to]) continue;
        word *w = put(rank, to);
        if (w) {
            w->kind = kind;
            w->turn = n->roll.turn + (kind == CDP__ROLL_LAST);
            cdp__roll_put(&n->roll, &n->roll.mine, w->body);
        }
        if (n->out[to]) {
            close_link(rank, to);
            n->lost[to] = true;
        }
    }
}
static void say_again(uint32_t rank) {
    const cdp__roll *roll = &x.node[rank].roll;
    if (roll->turn && !roll->over) say(rank, CDP__ROLL_TURN);
}
static void lose(uint32_t rank, uint32_t peer) {
    node *n = &x.node[rank];
    n->lost[peer] = true;
    x.link[rank][peer].closed = true;
    if (cdp__roll_lost(&n->roll, peer)) say_again(rank);
}

static bool goes_on(uint32_t rank) {
    const node *n = &x.node[rank];
    return !n->dead && !n->roll.done && n->roll.cut_by < 0;
}

/* Begins the next turn, or leaves after the last one. */
static void advance(uint32_t rank) {
    node *n = &x.node[rank];
    cdp__roll_say mine;
    if (n->roll.turn) n->sums[n->roll.turn] = n->roll.sum.counts[0];
    if (n->roll.turn == TURNS) {
        n->roll.done = true;
        say(rank, CDP__ROLL_LAST);
        for (uint32_t to = 0; to < x.ranks; ++to)
            if (to != rank) close_link(rank, to);
        return;
    }
    memset(&mine, 0, sizeof mine);
    mine.counts[0] = 1ull << 8 * rank;
    mine.rank = rank;
    cdp__roll_begin(&n->roll, &mine);
    say(rank, CDP__ROLL_TURN);
}

static void arrive(uint32_t from, uint32_t to) {
    const word *w = &x.link[from][to].at[x.link[from][to].from++ % QUEUE];
    node *n = &x.node[to];
    const char *text;
    bool changed;
    if (n->lost[from] || !goes_on(to)) return;
    if (w->loss) {
        lose(to, from);
        return;
    }
    text = cdp__roll_got(&n->roll, from, w->kind, w->turn, w->body, &changed);
    if (text) wrong(to, text);
    if (changed) say_again(to);
    if (n->roll.cut_by >= 0) /* it ends with an error, and its links with it */
        for (uint32_t peer = 0; peer < x.ranks; ++peer)
            if (peer != to) close_link(to, peer);
}

static void kill_one(uint32_t rank) {
    if (!goes_on(rank)) return;
    x.node[rank].dead = true;
    for (uint32_t to = 0; to < x.ranks; ++to) {
        const uint32_t waits = x.link[rank][to].to - x.link[rank][to].from;
        if (to == rank) continue;
        if (waits && !x.link[rank][to].closed) x.link[rank][to].to -= draw(waits + 1);
        close_link(rank, to);
    }
}
static void cut_one(uint32_t a, uint32_t b) {
    if (a == b) return;
    close_link(a, b);
    close_link(b, a);
}

/* One step, drawn from those that can happen. False: there is none. */
static bool step(void) {
    const uint32_t all = x.ranks * x.ranks, from = draw(all);
    for (uint32_t i = 0; i < all; ++i) {
        const uint32_t a = (from + i) % all / x.ranks, b = (from + i) % all % x.ranks;
        const cdp__roll *roll = &x.node[a].roll;
        if (a == b && goes_on(a) && (!roll->turn || roll->over)) {
            advance(a);
            return true;
        }
        if (a != b && x.link[a][b].to != x.link[a][b].from) {
            arrive(a, b);
            return true;
        }
    }
    return false;
}

static void look(uint32_t kind) {
    for (uint32_t a = 0; a < x.ranks; ++a) {
        const node *n = &x.node[a];
        if (goes_on(a)) wrong(a, "it stands still");
        if (kind == NONE && (!n->roll.done || n->roll.outs)) wrong(a, "it ends badly, unharmed");
        for (uint32_t b = 0; b < x.ranks; ++b) {
            const node *m = &x.node[b];
            if (!n->roll.done || !m->roll.done) continue;
            if (n->sum_out[b] != m->sum_out[a] && kind <= KILLS)
                wrong(a, "alive for one, and not the other way");
            if (n->sum_out[b] || m->sum_out[a]) continue;
            if (memcmp(n->sum_out, m->sum_out, sizeof n->sum_out) != 0)
                wrong(a, "two that are alive for each other have different lists");
            if (memcmp(n->sums, m->sums, sizeof n->sums) != 0)
                wrong(a, "two that are alive for each other have different sums");
        }
    }
}

static bool run_one(uint64_t seed, uint32_t kind) {
    uint32_t faults;
    memset(&x, 0, sizeof x);
    x.random = (seed * 4 + kind) * 0x9e3779b97f4a7c15ull + 1;
    for (uint32_t i = 0; i < 8; ++i)
        (void)draw(2);
    x.ranks = 2 + draw(RANKS - 1);
    for (uint32_t r = 0; r < x.ranks; ++r) {
        node *n = &x.node[r];
        n->roll = (cdp__roll){.rank = r,
            .ranks = x.ranks,
            .cut_by = -1,
            .words = n->words,
            .out = n->out,
            .sum_out = n->sum_out};
    }
    faults = kind ? 1 + draw(3) : 0;
    do {
        if (!faults || draw(20)) continue;
        --faults;
        if (kind == KILLS || (kind == BOTH && draw(2)))
            kill_one(draw(x.ranks));
        else
            cut_one(draw(x.ranks), draw(x.ranks));
    } while (step() && !x.wrong[0]);
    look(kind);
    if (x.wrong[0] && !planted)
        printf("not ok %s seed %llu, %u ranks: %s\n", names[kind], (unsigned long long)seed,
            x.ranks, x.wrong);
    return !x.wrong[0];
}

static bool kind_end(uint32_t kind, uint32_t bad, uint64_t seeds) {
    printf("%s %s: %llu runs, %u failed\n", bad ? "not ok" : "ok", names[kind],
        (unsigned long long)seeds, bad);
    return !bad;
}

int main(int argc, char **argv) {
    static const world_plant plants[] = {{PLANT_ANY_LIST, BOTH, "any list", "different"}};
    const worlds w = {names, KINDS, 20000, run_one, x.wrong, kind_end, plants, 1, 20000};
    return worlds_main(argc, argv, &w);
}
