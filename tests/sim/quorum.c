/* quorum.c - every order of messages of small worlds in which servers keep one key together

   quorum [--most STATES [--world N]]

   Two clients change one key that 2 to 4 servers keep (src/elastic/quorum.h). Each request may be
   carried out at any later time, also after its connection broke, or never; each answer may be late
   or lost; a server may die; a client may stop at any moment, for a while or for good. The search
   visits every state that can be reached within the limits of a world (table `worlds`), or as many
   as STATES, after walks by chance. In each
   state: no two values follow one value ("never two histories"); a change that a client was told of
   is in the history once, one that was refused is never in it; an operation that began after
   another one had ended sees at least what that one saw. And whoever is left can go on: from each
   state in which a majority of the servers lives and is connected to a client, the operation of
   that client ends if nothing else happens. Then planted mistakes, each of which must be found. */
#include <stdint.h>

typedef enum plant {
    PLANT_NOTHING,
    PLANT_HALF,             /* half of the servers count as a majority */
    PLANT_FIRST_VALUE,      /* a client takes up any accepted value, not the newest */
    PLANT_READS_ANY,        /* a read ends with a value that a majority may not have */
    PLANT_BREAKS_PROMISES,  /* asks a server again that has promised a higher ballot */
    PLANT_SAME_BALLOT,      /* two clients use the same ballot, twice */
    PLANT_FORGETS_ATTEMPTS, /* a second attempt does not look whether the first one counted */
    PLANT_NEEDS_ALL,        /* waits for all servers */
    PLANT_ASKS_TOO_MUCH,    /* asks all to accept, also one that is known to have promised more */
    PLANT_AMNESIA,          /* a server that died comes back with nothing */
    PLANTS
} plant;
static const char *const plant_names[PLANTS] = {"nothing", "half is a majority", "first value",
    "reads anything", "breaks promises", "same ballot", "forgets attempts", "needs all servers",
    "asks too much", "a server forgets"};
static plant planted;

#define CDP__QUORUM_PLANT(defect) (planted == PLANT_##defect)
#define CDP__QUORUM_WRITERS 2u
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"
#include "own.h"

#include "cdp_elastic.h"

#include "test.h"

#define SERVERS 4
#define CLIENTS 2
#define VERSIONS 8

typedef struct record {
    cdp__quorum_head head;
    uint32_t value;
} record;

typedef struct request { /* in the order in which the server gets them */
    record expected, desired;
    bool probe, wanted, executed; /* wanted: a client waits for the answer; else there is none */
} request;

typedef struct client {
    cdp__quorum q;
    request line[SERVERS][2]; /* wanted ones last; a later one is not sent before an answer */
    uint8_t length[SERVERS];
    record seen[SERVERS]; /* the record that belongs to q.at[i].head */
    uint32_t read, wish, value;
    uint64_t floor; /* the version that others knew of when this operation began */
    uint8_t attempts, ops;
    bool reads, over;
} client;

typedef struct state {
    record server[SERVERS];
    client c[CLIENTS];
    uint64_t chain[VERSIONS]; /* tag of the change to each version, as clients were told */
    uint64_t refused[8], swapped[8];
    uint64_t known; /* the highest version that any client was told of */
    uint8_t refusals, swaps, deaths, breaks;
    bool dead[SERVERS];
} state;

typedef struct world {
    const char *name;
    uint8_t servers, deaths, breaks, attempts, ops, readers; /* readers: bits of clients */
} world;

static const world worlds[] = {
    {"2 servers, two changes", 2, 0, 0, 2, 1, 0},
    {"2 servers, a broken connection", 2, 0, 1, 2, 1, 0},
    {"3 servers, a change and a read, one dies", 3, 1, 0, 1, 1, 2},
    {"3 servers, two changes", 3, 0, 0, 2, 1, 0},
    {"3 servers, two changes, one dies", 3, 1, 0, 1, 1, 0},
    {"3 servers, a change and a read, a broken connection", 3, 0, 1, 1, 1, 2},
    {"4 servers, a change and a read", 4, 0, 0, 1, 1, 2},
};

static const world *w;
static uint64_t visited, solos;
static char found[200];
static uint64_t *table;
static uint64_t table_size;
static uint64_t limit; /* of states */

/* how the state was reached: "e01" client 0's request carried out by server 1, "a" its answer, "l"
   its connection lost, "d" server dies */
static char path[4000];
static uint32_t depth;
static char found_path[4000];

static void fault(const char *what) {
    if (found[0]) return;
    snprintf(found, sizeof found, "%s", what);
    memcpy(found_path, path, sizeof path);
    found_path[4 * depth] = 0;
}

static void going(char what, uint32_t id, uint32_t i) {
    char *at = path + 4 * depth++;
    if (4 * depth >= sizeof path) abort();
    at[0] = what;
    at[1] = (char)('0' + id);
    at[2] = (char)('0' + i);
    at[3] = ' ';
}

/* ---- what clients were told ---- */

static void told_chain(state *s, const cdp__quorum_head *h) {
    for (uint64_t i = 0; i < CDP__QUORUM_WRITERS && i < h->version; ++i) {
        const uint64_t v = h->version - i;
        if (v >= VERSIONS) continue;
        if (s->chain[v] && s->chain[v] != h->writers[i]) fault("two histories");
        s->chain[v] = h->writers[i];
        for (uint64_t u = 1; u < VERSIONS; ++u)
            if (u != v && s->chain[u] == h->writers[i]) fault("a change counts twice");
        for (uint32_t r = 0; r < s->refusals; ++r)
            if (s->refused[r] == h->writers[i]) fault("a refused change counts");
    }
    if (h->version > s->known) s->known = h->version;
}

/* The client has used another key meanwhile. */
static void forget(client *c) {
    for (uint32_t i = 0; i < w->servers; ++i) {
        memset(&c->q.at[i].head, 0, sizeof c->q.at[i].head);
        c->q.at[i].known = false;
    }
    memset(c->seen, 0, sizeof c->seen);
}

static void begin_read(state *s, client *c) {
    forget(c);
    c->reads = true;
    c->floor = s->known;
    cdp__quorum_begin(&c->q, 0);
}

static void begin_swap(state *s, client *c, uint32_t id) {
    c->reads = false;
    c->floor = s->known;
    c->read = c->value;
    c->wish = c->value + 1;
    if (c->ops) forget(c);
    cdp__quorum_begin(&c->q, 100u * (id + 1) + ++c->ops);
}

static void told(state *s, client *c, uint32_t id) {
    const cdp__quorum *q = &c->q;
    if (q->outcome == CDP__QUORUM_UNKNOWN) {
        c->over = true;
        return;
    }
    if (q->next.version < c->floor) fault("a client sees less than another one before");
    told_chain(s, &q->next);
    if (q->outcome == CDP__QUORUM_DIFFERS) {
        s->refused[s->refusals++] = q->tag;
        for (uint64_t v = 1; v < VERSIONS; ++v)
            if (s->chain[v] == q->tag) fault("a change that counts was refused");
    }
    if (q->outcome == CDP__QUORUM_VALUE && c->value != q->next.version)
        fault("the value is not the number of changes");
    if (q->outcome == CDP__QUORUM_SWAPPED) ++s->swaps;
    if (w->readers >> id & 1 ? c->ops++ == 0 : c->ops < w->ops) {
        if (w->readers >> id & 1)
            begin_read(s, c); /* once more */
        else
            begin_swap(s, c, id);
    } else {
        c->over = true;
    }
}

/* ---- the program around the state machine, as in quorum_store.h ---- */

static void drop_requests(client *c) {
    for (uint32_t i = 0; i < w->servers; ++i) {
        if (c->length[i] == 2) c->length[i] = 1; /* was not sent */
        if (c->length[i] && c->line[i][0].executed) c->length[i] = 0;
        if (c->length[i]) c->line[i][0].wanted = false;
        if (c->q.at[i].state == CDP__QUORUM_ASKED) c->q.at[i].state = CDP__QUORUM_IDLE;
    }
}

static void ask(client *c) {
    for (uint32_t i = 0; i < w->servers; ++i) {
        cdp__quorum_server *at = &c->q.at[i];
        request *r = &c->line[i][c->length[i]];
        if (at->lost || at->state != CDP__QUORUM_IDLE || c->length[i] == 2) continue;
        memset(r, 0, sizeof *r);
        r->probe = c->q.phase == CDP__QUORUM_READ || !at->known;
        r->wanted = true;
        if (!r->probe) {
            r->expected = c->seen[i];
            r->desired = c->seen[i];
            r->desired.head = cdp__quorum_wanted(&c->q, i);
            if (c->q.phase == CDP__QUORUM_ACCEPT) r->desired.value = c->value;
        }
        ++c->length[i];
        at->state = CDP__QUORUM_ASKED;
    }
}

static void advance(state *s, uint32_t id, bool bounded) {
    client *c = &s->c[id];
    while (!c->over) {
        const cdp__quorum_verdict v = cdp__quorum_verdict_of(&c->q);
        if (v == CDP__QUORUM_WAITS) {
            ask(c);
            return;
        }
        drop_requests(c);
        if (v == CDP__QUORUM_LOST) {
            c->over = true;
        } else if (v == CDP__QUORUM_PROMISED) {
            c->value = c->seen[c->q.from].value;
            cdp__quorum_decide(&c->q, c->value == c->read, true);
            if (c->q.fresh) c->value = c->wish;
        } else if (v == CDP__QUORUM_DONE) {
            if (c->q.phase == CDP__QUORUM_READ) c->value = c->seen[c->q.from].value;
            told(s, c, id);
        } else if (bounded && c->attempts >= w->attempts) {
            c->over = true; /* stops for good */
        } else {
            ++c->attempts;
            cdp__quorum_again(&c->q);
        }
    }
    drop_requests(c);
}

static bool same_record(const record *a, const record *b) {
    return memcmp(a, b, sizeof *a) == 0;
}

/* The server carries out the first request of a line that it has not carried out yet. */
static bool execute(state *s, uint32_t id, uint32_t i) {
    client *c = &s->c[id];
    request *r = &c->line[i][0];
    record *at = &s->server[i];
    if (!c->length[i] || r->executed || s->dead[i]) return false;
    if (!r->probe && same_record(at, &r->expected)) *at = r->desired;
    r->executed = true;
    r->desired = *at; /* the answer */
    if (r->wanted) return true;
    c->line[i][0] = c->line[i][1];
    memset(&c->line[i][1], 0, sizeof c->line[i][1]);
    --c->length[i];
    return true;
}

static bool answer(state *s, uint32_t id, uint32_t i, bool bounded) {
    client *c = &s->c[id];
    const request r = c->line[i][0];
    if (c->over || !c->length[i] || !r.executed || !r.wanted || c->q.at[i].lost) return false;
    c->length[i] = 0;
    memset(&c->line[i][0], 0, sizeof r);
    c->seen[i] = r.desired;
    cdp__quorum_answer(&c->q, i, &r.desired.head);
    advance(s, id, bounded);
    return true;
}

static bool lose(state *s, uint32_t id, uint32_t i) {
    client *c = &s->c[id];
    if (c->over || c->q.at[i].lost) return false;
    if (!s->dead[i] && s->breaks >= w->breaks) return false;
    s->breaks += !s->dead[i];
    c->q.at[i].lost = true;
    if (c->length[i] == 2) c->length[i] = 1;
    if (c->length[i] && c->line[i][0].executed) c->length[i] = 0;
    if (c->length[i]) c->line[i][0].wanted = false; /* may still be carried out */
    advance(s, id, true);
    return true;
}

static bool die(state *s, uint32_t i) {
    if (s->dead[i] || s->deaths >= w->deaths) return false;
    ++s->deaths;
    if (planted == PLANT_AMNESIA) {
        memset(&s->server[i], 0, sizeof s->server[i]);
        return true;
    }
    s->dead[i] = true;
    return true;
}

/* ---- one client alone ---- */

static void solo(const state *from, uint32_t id) {
    static state s;
    uint32_t reached = 0, rounds, i;
    const plant was = planted;
    if (from->c[id].over) return;
    for (i = 0; i < w->servers; ++i)
        reached += !from->dead[i] && !from->c[id].q.at[i].lost;
    if (reached < w->servers / 2u + 1) return;
    s = *from;
    ++solos;
    for (rounds = 0; rounds < 60 && !s.c[id].over; ++rounds)
        for (i = 0; i < w->servers && !s.c[id].over; ++i) {
            if (s.dead[i]) {
                s.c[id].q.at[i].lost = true;
                advance(&s, id, false);
                continue;
            }
            (void)execute(&s, id, i);
            (void)answer(&s, id, i, false);
        }
    planted = was;
    if (!s.c[id].over) fault("a client does not go on although a majority answers");
    if (cdp__quorum_verdict_of(&s.c[id].q) == CDP__QUORUM_LOST)
        fault("a client gives up although a majority answers");
}

/* ---- the search ---- */

static uint64_t print_of(const void *data, size_t bytes) {
    const uint8_t *p = (const uint8_t *)data;
    uint64_t h = 0x9e3779b97f4a7c15u, v;
    for (; bytes >= 8; bytes -= 8, p += 8) {
        memcpy(&v, p, 8);
        h = (h ^ v) * 0xff51afd7ed558ccdu;
        h ^= h >> 32;
    }
    for (; bytes; --bytes)
        h = (h ^ *p++) * 0x100000001b3u;
    return h ? h : 1;
}

/* Of what can still matter; equal for states in which the servers have changed places. */
static uint64_t print_of_state(const state *s) {
    uint64_t sum = print_of(s->chain, sizeof *s - offsetof(state, chain) - sizeof s->dead);
    for (uint32_t id = 0; id < CLIENTS; ++id) {
        client c = s->c[id];
        if (c.over) memset(&c.q, 0, sizeof c.q);
        if (c.over) c.read = c.wish = c.value = c.attempts = 0;
        if (c.over) c.floor = 0;
        memset(c.line, 0, sizeof c.line);
        memset(c.length, 0, sizeof c.length);
        memset(c.seen, 0, sizeof c.seen);
        memset(c.q.at, 0, sizeof c.q.at);
        c.q.from = 0;
        if (c.q.phase != CDP__QUORUM_ACCEPT) memset(&c.q.next, 0, sizeof c.q.next);
        if (c.q.phase != CDP__QUORUM_ACCEPT) c.q.outcome = c.q.fresh = 0;
        sum = sum * 31 + print_of(&c, sizeof c);
    }
    for (uint32_t i = 0; i < w->servers; ++i) {
        uint64_t one = print_of(&s->server[i], sizeof s->server[i]) + s->dead[i];
        for (uint32_t id = 0; id < CLIENTS; ++id) {
            const client *c = &s->c[id];
            for (uint32_t k = 0; k < c->length[i]; ++k)
                one = one * 31 + print_of(&c->line[i][k], sizeof c->line[i][k]);
            one = one * 31 + c->length[i];
            if (c->over) continue;
            one = one * 31 + print_of(&c->q.at[i], sizeof c->q.at[i]);
            one = one * 31 + print_of(&c->seen[i], sizeof c->seen[i]);
        }
        sum += print_of(&one, sizeof one);
    }
    return sum ? sum : 1;
}

/* False: it was there. */
static bool visit(const state *s) {
    const uint64_t h = print_of_state(s);
    uint64_t at = h & (table_size - 1);
    while (table[at] && table[at] != h)
        at = (at + 1) & (table_size - 1);
    if (table[at]) return false;
    table[at] = h;
    ++visited;
    return true;
}

static void search(const state *s) {
    state *n;
    if (found[0] || visited >= limit || !visit(s)) return;
    for (uint32_t id = 0; id < CLIENTS; ++id)
        solo(s, id);
    n = (state *)malloc(sizeof *n);
    if (!n) abort();
    for (uint32_t id = 0; id < CLIENTS; ++id)
        for (uint32_t i = 0; i < w->servers; ++i) {
            *n = *s;
            going('e', id, i);
            if (execute(n, id, i)) search(n);
            path[4 * depth - 4] = 'a';
            *n = *s;
            if (answer(n, id, i, true)) search(n);
            path[4 * depth - 4] = 'l';
            *n = *s;
            if (lose(n, id, i)) search(n);
            --depth;
        }
    for (uint32_t i = 0; i < w->servers; ++i) {
        *n = *s;
        going('d', 0, i);
        if (die(n, i)) search(n);
        --depth;
    }
    free(n);
}

/* One event that is possible now, by chance; false: there is none, or a fault was found. */
static bool stroll(state *s, uint64_t *dice) {
    const uint32_t kinds = 3 * CLIENTS * w->servers + w->servers;
    const uint32_t from = (uint32_t)(test_random(dice) % kinds);
    for (uint32_t k = 0; k < kinds; ++k) {
        const uint32_t what = (from + k * 7) % kinds; /* 7 divides none of them */
        const uint32_t i = what % w->servers, id = what / w->servers % CLIENTS;
        const uint32_t kind = what / w->servers / CLIENTS;
        going("ealld"[kind], id, i);
        if (kind == 0 && execute(s, id, i)) return true;
        if (kind == 1 && answer(s, id, i, true)) return true;
        /* seldom, or few walks would get far */
        if (kind == 2 && test_random(dice) % 8 == 0 && lose(s, id, i)) return true;
        if (kind == 3 && test_random(dice) % 8 == 0 && die(s, i)) return true;
        --depth;
    }
    return false;
}

/* Goes farther than the search: clients try more often, and make more changes. */
static void walk(const state *start, uint64_t seed) {
    static state s;
    const world *const was = w;
    world deep = *w;
    deep.attempts = 5;
    deep.ops = 3;
    w = &deep;
    uint64_t dice = seed * 0x9e3779b97f4a7c15u + 1;
    s = *start;
    depth = 0;
    while (!found[0] && stroll(&s, &dice)) {
        ++visited;
        for (uint32_t id = 0; id < CLIENTS; ++id)
            solo(&s, id);
    }
    depth = 0;
    w = was;
}

/* True if a search of so many states, or one of the walks before, has found a fault. */
static bool explore(const world *what, uint64_t most, uint64_t walks) {
    static state s;
    w = what;
    visited = solos = 0;
    found[0] = 0;
    memset(&s, 0, sizeof s);
    for (uint32_t id = 0; id < CLIENTS; ++id) {
        s.c[id].q.count = w->servers;
        s.c[id].q.proposer = id + 1;
        begin_read(&s, &s.c[id]);
        advance(&s, id, true);
    }
    for (uint64_t i = 0; i < walks; ++i)
        walk(&s, i);
    if (found[0]) return true;
    visited = 0;
    limit = most;
    table_size = 1;
    while (table_size < 2 * most)
        table_size *= 2;
    table = (uint64_t *)calloc(table_size, sizeof *table);
    if (!table) abort();
    search(&s);
    free(table);
    return found[0] != 0;
}

#define COUNT(a) (sizeof(a) / sizeof(a)[0])

int main(int argc, char **argv) {
    uint64_t most = 120000, walks = 4000;
    uint32_t ran = 0, failed = 0;
    size_t only = COUNT(worlds);
    if (argc > 2 && strcmp(argv[1], "--most") == 0) most = strtoull(argv[2], NULL, 10);
    if (argc > 2) walks = most / 50;
    if (argc > 4 && strcmp(argv[3], "--world") == 0) only = (size_t)atoi(argv[4]);
    for (size_t i = 0; i < COUNT(worlds); ++i) {
        if (only < COUNT(worlds) && only != i) continue;
        const bool bad = explore(&worlds[i], most, walks);
        failed += bad;
        ++ran;
        printf("%s  %-55s %8llu states, %s, %llu times alone  %s\n", bad ? "FAIL" : "ok  ",
            worlds[i].name, (unsigned long long)visited, visited < most ? "all " : "part",
            (unsigned long long)solos, found);
        if (bad) printf("%s\n", found_path);
        fflush(stdout);
    }
    for (planted = PLANT_HALF; only == COUNT(worlds) && planted < PLANTS;
         planted = (plant)(planted + 1)) {
        bool seen = false;
        for (size_t i = 0; !seen && i < COUNT(worlds); ++i)
            seen = explore(&worlds[i], most / 3, 2 * walks);
        failed += !seen;
        ++ran;
        printf("%s  planted: %-46s %8llu states  %s\n", seen ? "ok  " : "FAIL",
            plant_names[planted], (unsigned long long)visited, seen ? found : "not found");
        fflush(stdout);
    }
    printf("%u passed, %u failed\n", ran - failed, failed);
    return failed != 0;
}
