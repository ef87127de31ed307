/* Runs scripts of the simulated world: small lists of what every rank calls and of the faults that
   meet it, each with the result that is expected of every rank.

   A script is a text file in tests/sim/scripts. It knows the public functions of the library and
   nothing else: a fault comes at a virtual time, after so many bytes on a link, or after so many
   operations of a rank. Where the exact moment decides, a script does not hit it but sweeps a
   range of moments, so that it stays meaningful when the library sends other bytes.

   The format, one directive a line, words separated by spaces. RANKS is a number, a list such as
   0,2, or *. TIME is a number with ns, us, ms or s, $t (see sweep), or a sum such as $t+5ms.

     # comment
     include FILE                   the lines of that file of the same folder
     world N [tcp | hub | store]    how many ranks, and what connects them (tcp); store: rank 0
                                    serves a store and calls nothing else, the others are clients
     hosts H0 H1 ...                which host each rank is on (each on its own)
     seconds TIME                   how long the world may take (10 min of virtual time)
     set RANKS NAME VALUE           a member of the desc: timeout, init_timeout (TIME), key (text),
                                    small_bytes, piece_bytes, connections, world_size, rank; serve
                                    (TIME): so long the store of a store world is open; frames
                                    (TIME): it starts by cdp_init_poll(), each call that long
     sweep FROM TO STEP             run the world once for every $t
     vary N                         run it also in N worlds with seeded delays, splits, preemption
     link RANKS RANKS [since TIME] [until TIME] [delay TIME] [resend TIME]
                                    [split BYTES] [buffer BYTES]
                                    from each of the first to each of the second ranks; resend: so
                                    long after a partition what it held back comes (0 to 200 ms)
     rank RANKS start TIME          the process starts then
     rank RANKS [at TIME] [repeat N] [on GROUP] [start] OPERATION
                                    one after the other; `start` does not wait for it
     strangers R N every TIME [saying TEXT]
                                    a process that is no rank makes N connections to rank R, one
                                    each TIME, sends TEXT, and keeps them until the ranks end
     at TIME FAULT                  kill R, stop R [for TIME], vanish R, isolate R [for TIME],
     after N ops of R FAULT         partition RANKS RANKS [for TIME], cut R R, nomem R [N] (the
     after N bytes from R to R FAULT N-th allocation from then on, 1)
     expect RANKS RESULT [blames RANKS | blames none] [from RANKS] [within TIME]
                                    RESULT: ok, any, fails, or names of statuses joined by |;
                                    blames: the error names one of these; from: or one of these
                                    reports it of itself; within: after the first fault. Several
                                    lines for a rank: one of them fits. Without a line, and where
                                    the faults of the script did not happen: ok
     known REASON                   some of its results are others than expected today, and why: it
                                    counts neither way, and as failed when it passes
     sometimes REASON               the same where chance decides (vary): it may pass, too

   OPERATION: allreduce N, broadcast N ROOT, allgather N, reduce N ROOT, gather N ROOT,
   scatter N ROOT, reduce_scatter N, alltoall N, barrier, send TO N, recv FROM N, recv_any N,
   sendrecv TO FROM N, batch (send TO N | recv FROM N)..., wait (for all that was started), group
   NAME RANKS, sleep TIME, abort, leave; of a store: store_set KEY, store_get KEY, store_check KEY
   yes|no. Ranks in operations may be written next, prev.

   scripts [NAME...] [--verbose]     run them all, or those whose file name contains NAME
   scripts --search FILE N [TEXT]    in FILE numbers may be ranges (10..500us): draw N scripts (or
                                     FROM..TO) from it and print the first that fails, saying TEXT
   scripts --reduce FILE [TEXT [PROGRAM]]
                                     delete lines and halve numbers as long as it fails, saying
                                     TEXT, and passes with PROGRAM: this one with other headers */
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"
#include "cdp_store.h"
#include "cdp.h"

#define SIM_MAX_FDS 2048 /* strangers need them */
#include "sim.h"
#include "hub_os.h"
#include "test.h"

#include <ctype.h>
#include <dirent.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_LINES 400u
#define MAX_WORDS 24u
#define MAX_BUFFERS 4096u
#define MAX_STARTED 256u
#define MAX_GROUPS 8u
#define SLACK_NS (1000 * SIM_MS) /* what a call may take beyond its deadline, besides 10 % */

/* ---- >>text: lines and words ----------------------------------------------------------------- */

typedef struct line {
    char *word[MAX_WORDS];
    uint32_t n, number;
} line;

typedef struct script {
    char name[100];
    char *text;
    line lines[MAX_LINES];
    uint32_t count, ranks, vary;
    uint32_t strangers; /* processes that are no ranks: the nodes behind the last rank */
    char backend[8];
    uint64_t sweep_from, sweep_to, sweep_step, limit_ns;
    char mistake[200]; /* in the text of the script */
} script;

static uint64_t the_t; /* $t */

static __attribute__((format(printf, 3, 4))) void mistake(
    script *s, const line *l, const char *f, ...) {
    char text[150];
    va_list ap;
    if (s->mistake[0]) return;
    va_start(ap, f);
    vsnprintf(text, sizeof text, f, ap);
    va_end(ap);
    snprintf(s->mistake, sizeof s->mistake, "line %u: %s", l->number, text);
}

static bool is(const line *l, uint32_t i, const char *word) {
    return i < l->n && strcmp(l->word[i], word) == 0;
}

static const char *word_of(const line *l, uint32_t i) {
    return i < l->n ? l->word[i] : "";
}

static uint64_t time_term(const char *w, const char **end) {
    char *unit;
    double v;
    if (strncmp(w, "$t", 2) == 0) {
        *end = w + 2;
        return the_t;
    }
    v = strtod(w, &unit);
    *end = unit + (unit[0] == 's' ? 1 : 2);
    if (unit[0] == 's') return (uint64_t)(v * 1e9);
    if (strncmp(unit, "ms", 2) == 0) return (uint64_t)(v * 1e6);
    if (strncmp(unit, "us", 2) == 0) return (uint64_t)(v * 1e3);
    if (strncmp(unit, "ns", 2) == 0) return (uint64_t)v;
    *end = NULL;
    return 0;
}

static uint64_t time_of(script *s, const line *l, uint32_t i) {
    const char *w = word_of(l, i), *end = w;
    uint64_t sum = 0;
    do {
        sum += time_term(w, &end);
        w = end ? end + 1 : w;
    } while (end && *end == '+');
    if (!end || *end) mistake(s, l, "word %u is no time", i + 1);
    return sum;
}

static uint64_t number_of(script *s, const line *l, uint32_t i) {
    char *end;
    const uint64_t v = strtoull(word_of(l, i), &end, 10);
    if (end == word_of(l, i) || *end) mistake(s, l, "word %u is no number", i + 1);
    return v;
}

/* A bit for each rank. `none` is no rank. */
static uint64_t ranks_of(script *s, const line *l, uint32_t i) {
    const char *w = word_of(l, i);
    uint64_t set = 0;
    char *end;
    if (strcmp(w, "*") == 0) return s->ranks >= 64 ? ~0ull : (1ull << s->ranks) - 1;
    if (strcmp(w, "none") == 0) return 0;
    for (; *w; w = *end == ',' ? end + 1 : end) {
        const uint64_t r = strtoull(w, &end, 10);
        if (end == w || r >= s->ranks || (*end && *end != ',')) {
            mistake(s, l, "word %u names no ranks of this world", i + 1);
            return 0;
        }
        set |= 1ull << r;
    }
    if (!set) mistake(s, l, "ranks are missing");
    return set;
}

static uint32_t rank_of(script *s, const line *l, uint32_t i) {
    const uint64_t set = ranks_of(s, l, i);
    if (set & (set - 1)) mistake(s, l, "word %u must be one rank", i + 1);
    return set ? (uint32_t)__builtin_ctzll(set) : 0;
}

static void line_split(script *s, char *text, uint32_t number) {
    line *l = &s->lines[s->count];
    char *w;
    memset(l, 0, sizeof *l);
    l->number = number;
    if (strncmp(text, "known ", 6) == 0 || strncmp(text, "sometimes ", 10) == 0) return;
    if (strchr(text, '#')) *strchr(text, '#') = 0;
    for (w = strtok(text, " \t\r"); w; w = strtok(NULL, " \t\r")) {
        if (l->n == MAX_WORDS)
            mistake(s, l, "too many words");
        else
            l->word[l->n++] = w;
    }
    if (!l->n) return;
    if (s->count + 1 == MAX_LINES)
        mistake(s, l, "too many lines");
    else
        ++s->count;
}

static void script_head(script *s) {
    uint32_t i;
    for (i = 0; i < s->count; ++i) {
        const line *l = &s->lines[i];
        if (is(l, 0, "world")) {
            s->ranks = (uint32_t)number_of(s, l, 1);
            snprintf(s->backend, sizeof s->backend, "%s", l->n > 2 ? l->word[2] : "tcp");
        } else if (is(l, 0, "sweep")) {
            s->sweep_from = time_of(s, l, 1);
            s->sweep_to = time_of(s, l, 2);
            s->sweep_step = time_of(s, l, 3);
        } else if (is(l, 0, "vary")) {
            s->vary = (uint32_t)number_of(s, l, 1);
        } else if (is(l, 0, "seconds")) {
            s->limit_ns = time_of(s, l, 1);
        } else if (is(l, 0, "strangers")) {
            ++s->strangers;
        }
    }
    if (s->ranks < 1 || s->ranks + s->strangers > SIM_MAX_NODES)
        snprintf(
            s->mistake, sizeof s->mistake, "`world` with 1 to %d ranks is missing", SIM_MAX_NODES);
}

/* Takes a copy of `text`. */
static script *script_parse(const char *name, const char *text) {
    script *s = (script *)calloc(1, sizeof *s);
    char *at, *next;
    uint32_t number = 0;
    if (!s) abort();
    snprintf(s->name, sizeof s->name, "%s", name);
    s->text = strdup(text);
    s->limit_ns = 600 * SIM_S;
    for (at = s->text; at; at = next) {
        next = strchr(at, '\n');
        if (next) *next++ = 0;
        line_split(s, at, ++number);
    }
    script_head(s);
    return s;
}

static void script_free(script *s) {
    free(s->text);
    free(s);
}

/* ---- >>ranks: what a rank of a script holds -------------------------------------------------- */

typedef struct started {
    cdp_work work;
    cdp_request rq; /* of a collective */
    cdp_group *group;
    uint64_t op;
} started;

typedef struct player {
    struct play *play;
    sim_node *node;
    cdp_group *world, *groups[MAX_GROUPS];
    char group_names[MAX_GROUPS][16];
    uint32_t group_count, buffer_count, started_count;
    cdp_store *store;
    void *buffers[MAX_BUFFERS];
    started started[MAX_STARTED];
    uint64_t op, call_until;
    bool ended, late;
    cdp_status status;
    cdp_error error;
    uint64_t ended_ns;
    char wrong[300];
} player;

typedef struct play {
    script *s;
    sim_world *world;
    player *players;
    cdp_hub *hub;
    cdp_os hub_os;
    uint32_t hub_left;
    bool one_host;
} play;

static __attribute__((format(printf, 2, 3))) void wrong(player *p, const char *f, ...) {
    va_list ap;
    if (p->wrong[0]) return;
    va_start(ap, f);
    vsnprintf(p->wrong, sizeof p->wrong, f, ap);
    va_end(ap);
    sim_say(p->node, "WRONG: %s", p->wrong);
}

/* Values from `set` lines: the last one for this rank counts. */
static const line *setting(const player *p, const char *name) {
    script *s = p->play->s;
    const line *found = NULL;
    uint32_t i;
    for (i = 0; i < s->count; ++i) {
        const line *l = &s->lines[i];
        if (is(l, 0, "set") && is(l, 2, name) && ranks_of(s, l, 1) >> p->node->id & 1) found = l;
    }
    return found;
}

static uint64_t setting_number(const player *p, const char *name, uint64_t other) {
    const line *l = setting(p, name);
    return l ? number_of(p->play->s, l, 3) : other;
}

static uint32_t setting_ms(const player *p, const char *name, uint32_t other) {
    const line *l = setting(p, name);
    return l ? (uint32_t)(time_of(p->play->s, l, 3) / SIM_MS) : other;
}

static void call_begin(player *p, uint32_t timeout_ms) {
    p->call_until = p->node->world->now + timeout_ms * SIM_MS * 11 / 10 + SLACK_NS;
}

static void call_end(player *p, const char *what) {
    const uint64_t now = p->node->world->now;
    if (now <= p->call_until || p->late) return;
    p->late = true;
    snprintf(p->wrong, sizeof p->wrong, "%s returned %llu ms after its deadline and the allowance",
        what, (unsigned long long)((now - p->call_until) / SIM_MS));
}

/* The first failure is what a user sees; what cleaning up says afterwards does not count. */
static cdp_status failed(player *p, cdp_status st) {
    if (st == CDP_OK || p->error.status != CDP_OK) return st;
    p->error = *cdp_last_error();
    if (p->error.status != st)
        wrong(p, "returned %s but cdp_last_error() says %s: %s", cdp_status_name(st),
            cdp_status_name(p->error.status), p->error.text);
    return st;
}

/* Memory of this rank: the library may hold it until the groups are gone. */
static int32_t *buffer(player *p, uint64_t count) {
    void *b = sim_alloc(p->node, count * 4 + 64);
    if (p->buffer_count == MAX_BUFFERS) abort();
    p->buffers[p->buffer_count++] = b;
    return (int32_t *)b;
}

/* ---- >>values: what is sent, and whether it arrived ------------------------------------------ */

static int32_t value_of(uint32_t world_rank, uint64_t i) {
    return (int32_t)(world_rank * 1000 + i % 97 + 1);
}

static void fill(int32_t *p, uint32_t world_rank, uint64_t from, uint64_t count) {
    uint64_t i;
    for (i = 0; i < count; ++i)
        p[i] = value_of(world_rank, from + i);
}

static int32_t sum_of(const cdp_group *g, uint64_t i) {
    int32_t sum = 0;
    uint32_t k;
    for (k = 0; k < cdp_size(g); ++k)
        sum += value_of(cdp_world_rank_of(g, k), i);
    return sum;
}

/* Element i of what this rank must have in `out`. */
static int32_t expected(const cdp_group *g, const cdp_request *q, uint64_t i) {
    const uint32_t me = cdp_rank(g);
    const uint32_t part = q->count ? (uint32_t)(i / q->count) : 0;
    const uint64_t at = q->count ? i % q->count : 0;
    switch (q->kind) {
    case CDP_COLL_BROADCAST: return value_of(cdp_world_rank_of(g, q->root), i);
    case CDP_COLL_ALLGATHER:
    case CDP_COLL_GATHER: return value_of(cdp_world_rank_of(g, part), at);
    case CDP_COLL_SCATTER: return value_of(cdp_world_rank_of(g, q->root), me * q->count + i);
    case CDP_COLL_REDUCE_SCATTER: return sum_of(g, me * q->count + i);
    case CDP_COLL_ALLTOALL: return value_of(cdp_world_rank_of(g, part), me * q->count + at);
    default: return sum_of(g, i);
    }
}

static bool many_out(cdp_coll_kind k) {
    return k == CDP_COLL_ALLGATHER || k == CDP_COLL_GATHER || k == CDP_COLL_ALLTOALL;
}

static bool only_root(cdp_coll_kind k) {
    return k == CDP_COLL_GATHER || k == CDP_COLL_REDUCE;
}

static void check(player *p, const started *s) {
    const cdp_request *q = &s->rq;
    const uint64_t n = many_out(q->kind) ? q->count * cdp_size(s->group) : q->count;
    uint64_t i;
    if (q->kind == CDP_COLL_BARRIER || (only_root(q->kind) && q->root != cdp_rank(s->group)))
        return;
    for (i = 0; i < n; ++i) {
        const int32_t got = ((const int32_t *)q->out)[i];
        if (got == expected(s->group, q, i)) continue;
        wrong(p, "operation %llu, %s: element %llu is %d", (unsigned long long)s->op,
            cdp_coll_name(q->kind), (unsigned long long)i, got);
        return;
    }
}

static void check_message(player *p, const int32_t *got, uint32_t world_rank, uint64_t count) {
    uint64_t i;
    for (i = 0; i < count; ++i) {
        if (got[i] == value_of(world_rank, i)) continue;
        wrong(p, "operation %llu: element %llu of the message from rank %u is %d",
            (unsigned long long)p->op, (unsigned long long)i, world_rank, got[i]);
        return;
    }
}

/* ---- >>operations: the calls of the library -------------------------------------------------- */

/* A collective of the script, or false. */
static bool collective(player *p, cdp_group *g, const line *l, uint32_t at, cdp_request *q) {
    static const struct {
        const char *name;
        cdp_coll_kind kind;
    } kinds[] = {{"allreduce", CDP_COLL_ALLREDUCE}, {"broadcast", CDP_COLL_BROADCAST},
        {"allgather", CDP_COLL_ALLGATHER}, {"reduce", CDP_COLL_REDUCE}, {"gather", CDP_COLL_GATHER},
        {"scatter", CDP_COLL_SCATTER}, {"reduce_scatter", CDP_COLL_REDUCE_SCATTER},
        {"alltoall", CDP_COLL_ALLTOALL}, {"barrier", CDP_COLL_BARRIER}};
    script *s = p->play->s;
    uint32_t i;
    memset(q, 0, sizeof *q);
    for (i = 0; i < sizeof kinds / sizeof *kinds && !is(l, at, kinds[i].name); ++i) {
    }
    if (i == sizeof kinds / sizeof *kinds) return false;
    q->kind = kinds[i].kind;
    q->dtype = CDP_DTYPE_I32;
    if (q->kind == CDP_COLL_BARRIER) return true;
    q->count = number_of(s, l, at + 1);
    if (l->n > at + 2) q->root = rank_of(s, l, at + 2);
    {
        const uint64_t all = q->count * cdp_size(g);
        int32_t *in = buffer(p, all);
        int32_t *out = buffer(p, all);
        fill(in, p->node->id, 0, all);
        if (q->kind == CDP_COLL_BROADCAST) fill(out, p->node->id, 0, q->count);
        q->in = q->kind == CDP_COLL_BROADCAST ? NULL : in;
        q->out = out;
    }
    return true;
}

static cdp_status collective_now(cdp_group *g, const cdp_request *q) {
    const cdp_dtype t = q->dtype;
    switch (q->kind) {
    case CDP_COLL_ALLREDUCE: return cdp_allreduce(g, q->in, q->out, q->count, t, CDP_REDUCE_SUM);
    case CDP_COLL_BROADCAST: return cdp_broadcast(g, q->out, q->count, t, q->root);
    case CDP_COLL_ALLGATHER: return cdp_allgather(g, q->in, q->out, q->count, t);
    case CDP_COLL_REDUCE: return cdp_reduce(g, q->in, q->out, q->count, t, CDP_REDUCE_SUM, q->root);
    case CDP_COLL_GATHER: return cdp_gather(g, q->in, q->out, q->count, t, q->root);
    case CDP_COLL_SCATTER: return cdp_scatter(g, q->in, q->out, q->count, t, q->root);
    case CDP_COLL_REDUCE_SCATTER:
        return cdp_reduce_scatter(g, q->in, q->out, q->count, t, CDP_REDUCE_SUM);
    case CDP_COLL_ALLTOALL: return cdp_alltoall(g, q->in, q->out, q->count, t);
    default: return cdp_barrier(g);
    }
}

static uint32_t peer_of(player *p, cdp_group *g, const line *l, uint32_t at) {
    const uint32_t n = cdp_size(g), me = cdp_rank(g);
    if (is(l, at, "next")) return (me + 1) % n;
    if (is(l, at, "prev")) return (me + n - 1) % n;
    return rank_of(p->play->s, l, at);
}

static started *started_new(player *p, cdp_group *g) {
    started *s = &p->started[p->started_count];
    if (p->started_count == MAX_STARTED) abort();
    memset(s, 0, sizeof *s);
    s->group = g;
    s->op = p->op;
    return s;
}

static cdp_status run_started(player *p) {
    cdp_status st = CDP_OK;
    uint32_t i;
    for (i = 0; i < p->started_count && st == CDP_OK; ++i) {
        st = cdp_work_wait(p->started[i].work);
        if (st == CDP_OK && p->started[i].rq.out) check(p, &p->started[i]);
    }
    p->started_count = 0;
    return st;
}

static cdp_status run_collective(player *p, cdp_group *g, const cdp_request *q, bool async) {
    started *s = started_new(p, g);
    cdp_status st;
    s->rq = *q;
    if (async) {
        st = cdp_start(g, q, &s->work);
        if (st == CDP_OK) ++p->started_count;
        return st;
    }
    st = collective_now(g, q);
    if (st == CDP_OK) check(p, s);
    return st;
}

static cdp_status run_batch(player *p, cdp_group *g, const line *l, uint32_t at, bool async) {
    cdp_transfer list[8];
    started *s = started_new(p, g);
    uint32_t n = 0;
    cdp_status st;
    memset(list, 0, sizeof list);
    for (; at + 2 < l->n && n < 8; at += 3, ++n) {
        cdp_transfer *t = &list[n];
        t->receive = is(l, at, "recv");
        t->peer = peer_of(p, g, l, at + 1);
        t->count = number_of(p->play->s, l, at + 2);
        t->dtype = CDP_DTYPE_I32;
        t->data = buffer(p, t->count);
        if (!t->receive) fill((int32_t *)t->data, p->node->id, 0, t->count);
    }
    st = cdp_batch(g, list, n, &s->work);
    if (st != CDP_OK) return st;
    ++p->started_count;
    if (async) return CDP_OK;
    st = run_started(p);
    for (at = 0; at < n && st == CDP_OK; ++at)
        if (list[at].receive)
            check_message(p, (const int32_t *)list[at].data, cdp_world_rank_of(g, list[at].peer),
                list[at].count);
    return st;
}

/* send TO N, recv FROM N, recv_any N, sendrecv TO FROM N. */
static cdp_status run_message(player *p, cdp_group *g, const line *l, uint32_t at, bool async) {
    script *s = p->play->s;
    const uint32_t peer = is(l, at, "recv_any") ? CDP_ANY_RANK : peer_of(p, g, l, at + 1);
    const uint64_t count = number_of(s, l, l->n - 1);
    const cdp_dtype t = CDP_DTYPE_I32;
    int32_t *in = buffer(p, count), *out = buffer(p, count);
    started *w = started_new(p, g);
    cdp_message *got = (cdp_message *)buffer(p, sizeof *got);
    uint32_t from = peer;
    cdp_status st;
    fill(out, p->node->id, 0, count);
    if (async) {
        if (is(l, at, "send"))
            st = cdp_send_async(g, out, count, t, peer, 0, &w->work);
        else if (is(l, at, "recv"))
            st = cdp_recv_async(g, in, count, t, peer, 0, &w->work);
        else
            st = cdp_recv_any_async(g, in, count, t, peer, 0, got, &w->work);
        if (st == CDP_OK) ++p->started_count;
        return st;
    }
    if (is(l, at, "send")) return cdp_send(g, out, count, t, peer, 0);
    if (is(l, at, "sendrecv")) {
        from = peer_of(p, g, l, at + 2);
        st = cdp_sendrecv(g, out, count, peer, in, count, from, t, 0);
    } else if (is(l, at, "recv")) {
        st = cdp_recv(g, in, count, t, peer, 0);
    } else {
        st = cdp_recv_any(g, in, count, t, peer, 0, got);
        from = got->source;
    }
    if (st == CDP_OK) check_message(p, in, cdp_world_rank_of(g, from), count);
    return st;
}

static cdp_status run_group(player *p, const line *l, uint32_t at) {
    const uint64_t set = ranks_of(p->play->s, l, at + 2);
    uint32_t ranks[SIM_MAX_NODES], n = 0, i;
    cdp_status st;
    for (i = 0; i < p->play->s->ranks; ++i)
        if (set >> i & 1) ranks[n++] = i;
    if (p->group_count == MAX_GROUPS) abort();
    snprintf(p->group_names[p->group_count], sizeof p->group_names[0], "%s", word_of(l, at + 1));
    st = cdp_group_new(p->world, ranks, n, &p->groups[p->group_count]);
    if (st == CDP_OK) ++p->group_count;
    return st;
}

static cdp_group *group_named(player *p, const line *l, uint32_t at) {
    uint32_t i;
    for (i = 0; i < p->group_count; ++i)
        if (is(l, at, p->group_names[i])) return p->groups[i];
    mistake(p->play->s, l, "there is no such group");
    return p->world;
}

static cdp_status run_store(player *p, const line *l, uint32_t at) {
    const char *keys[1];
    void *v = NULL;
    uint64_t bytes = 0;
    bool there = false;
    cdp_status st;
    keys[0] = word_of(l, at + 1);
    if (is(l, at, "store_set")) return cdp_store_set(p->store, keys[0], "1", 1);
    if (is(l, at, "store_get")) {
        st = cdp_store_get(p->store, keys[0], &v, &bytes, 0);
        if (st == CDP_OK) cdp_store_free(p->store, v);
        return st;
    }
    st = cdp_store_check(p->store, keys, 1, &there);
    if (st == CDP_OK && there != is(l, at + 2, "yes"))
        wrong(p, "the key %s is %sthere", keys[0], there ? "" : "not ");
    return st;
}

/* One operation; *leave: it was the last one. */
static cdp_status run_operation(player *p, const line *l, uint32_t at, bool *leave) {
    cdp_group *g = p->world;
    cdp_request q;
    bool async = false;
    cdp_status st = CDP_OK;
    if (is(l, at, "on")) {
        g = group_named(p, l, at + 1);
        at += 2;
    }
    if (is(l, at, "start")) {
        async = true;
        ++at;
    }
    sim_doing(p->node, "line %u: %s", l->number, word_of(l, at));
    call_begin(p, setting_ms(p, "timeout", 10000));
    if (is(l, at, "sleep"))
        sim_sleep(p->node, time_of(p->play->s, l, at + 1));
    else if (is(l, at, "abort"))
        cdp_group_abort(g, "the script says so");
    else if (is(l, at, "leave"))
        *leave = true;
    else if (is(l, at, "group"))
        st = run_group(p, l, at);
    else if (is(l, at, "wait"))
        st = run_started(p);
    else if (is(l, at, "batch"))
        st = run_batch(p, g, l, at + 1, async);
    else if (strncmp(word_of(l, at), "store_", 6) == 0)
        st = run_store(p, l, at);
    else if (strncmp(word_of(l, at), "send", 4) == 0 || strncmp(word_of(l, at), "recv", 4) == 0)
        st = run_message(p, g, l, at, async);
    else if (collective(p, g, l, at, &q))
        st = run_collective(p, g, &q, async);
    else
        mistake(p->play->s, l, "unknown operation %s", word_of(l, at));
    if (!is(l, at, "sleep")) call_end(p, word_of(l, at));
    return failed(p, st);
}

/* `rank RANKS start TIME`: the process, not an operation that is started. */
static bool is_process_start(const line *l) {
    const char c = *word_of(l, 3);
    return is(l, 0, "rank") && is(l, 2, "start") && (isdigit((unsigned char)c) || c == '$');
}

/* The lines of this rank in their order. */
static cdp_status run_lines(player *p) {
    script *s = p->play->s;
    bool leave = false;
    cdp_status st = CDP_OK;
    uint32_t i;
    for (i = 0; i < s->count && st == CDP_OK && !leave; ++i) {
        const line *l = &s->lines[i];
        uint32_t at = 2;
        uint64_t times = 1;
        if (!is(l, 0, "rank") || !(ranks_of(s, l, 1) >> p->node->id & 1)) continue;
        if (is_process_start(l)) continue;
        if (is(l, at, "at")) {
            const uint64_t until = p->node->world->start_ns + time_of(s, l, at + 1);
            if (until > p->node->world->now) sim_sleep(p->node, until - p->node->world->now);
            at += 2;
        }
        if (is(l, at, "repeat")) {
            times = number_of(s, l, at + 1);
            at += 2;
        }
        for (; times && st == CDP_OK && !leave; --times) {
            ++p->op;
            st = run_operation(p, l, at, &leave);
            if (st == CDP_OK) sim_op_done(p->node);
        }
    }
    return st;
}

/* ---- >>worlds: how ranks find each other ----------------------------------------------------- */

static void quiet(cdp_log_level level, const char *text, int32_t rank, void *user) {
    (void)rank;
    (void)level;
    sim_say((sim_node *)user, "log: %s", text);
}

static bool was_held_up(const play *y, uint32_t rank) {
    uint32_t i;
    for (i = 0; i < y->world->fault_count; ++i) {
        const sim_fault *f = &y->world->faults[i];
        if (f->happened && f->kind == SIM_FAULT_STOP && f->a == (int32_t)rank) return true;
    }
    return false;
}

/* Starts as a program does that has frames of this length. */
static cdp_status open_in_frames(player *p, const cdp_tcp_desc *t, uint32_t frame_ms) {
    cdp_starting *starting = NULL;
    cdp_status st = cdp_init_start(t, &starting);
    if (st != CDP_OK) return st;
    do {
        const uint64_t from_ns = p->node->world->now;
        st = cdp_init_poll(starting, frame_ms * 1000, &p->world);
        if (p->node->world->now - from_ns > (frame_ms + 30) * SIM_MS
            && !was_held_up(p->play, p->node->id))
            wrong(p, "cdp_init_poll with a budget of %u ms took %llu ms", frame_ms,
                (unsigned long long)((p->node->world->now - from_ns) / SIM_MS));
    } while (st == CDP_PENDING);
    return st;
}

static cdp_status open_tcp(player *p) {
    const uint32_t frame_ms = setting_ms(p, "frames", 0);
    cdp_tcp_desc t;
    cdp_status st;
    memset(&t, 0, sizeof t);
    t.group.rank = (uint32_t)setting_number(p, "rank", p->node->id);
    t.group.world_size = (uint32_t)setting_number(p, "world_size", p->play->s->ranks);
    t.master_addr = "node0";
    t.master_port = 29500;
    t.job_key = setting(p, "key") ? word_of(setting(p, "key"), 3) : NULL;
    t.trust_network = !p->play->one_host;
    t.init_timeout_ms = setting_ms(p, "init_timeout", 20000);
    t.group.timeout_ms = setting_ms(p, "timeout", 10000);
    t.group.small_bytes = setting_number(p, "small_bytes", 0);
    t.group.piece_bytes = setting_number(p, "piece_bytes", 0);
    t.connections = (uint32_t)setting_number(p, "connections", 0);
    t.group.os = &p->node->os;
    t.group.logger.func = quiet;
    t.group.logger.user = p->node;
    t.group.logger.level = CDP_LOG_DEBUG;
    sim_doing(p->node, "cdp_init");
    call_begin(p, t.init_timeout_ms);
    st = frame_ms ? open_in_frames(p, &t, frame_ms) : cdp_init(&t, &p->world);
    call_end(p, "cdp_init");
    return failed(p, st);
}

static cdp_status hub_open(play *y) {
    cdp_hub_desc h;
    memset(&h, 0, sizeof h);
    y->hub_os = hub_os_of(&y->world);
    h.world_size = y->s->ranks;
    h.os = &y->hub_os;
    return cdp_hub_create(&h, &y->hub);
}

static cdp_status open_hub(player *p) {
    play *y = p->play;
    cdp_group_desc d;
    cdp_status st = CDP_OK;
    if (!y->hub) st = hub_open(y);
    memset(&d, 0, sizeof d);
    d.rank = p->node->id;
    d.world_size = y->s->ranks;
    d.timeout_ms = setting_ms(p, "timeout", 10000);
    d.small_bytes = setting_number(p, "small_bytes", 0);
    d.piece_bytes = setting_number(p, "piece_bytes", 0);
    d.hub = y->hub;
    d.os = &p->node->os;
    d.logger.func = quiet;
    d.logger.user = p->node;
    d.logger.level = CDP_LOG_DEBUG;
    if (st == CDP_OK) st = cdp_group_create(&d, &p->world);
    return failed(p, st);
}

static cdp_status open_store(player *p) {
    cdp_tcp_store_desc d;
    char will[24];
    cdp_status st;
    memset(&d, 0, sizeof d);
    snprintf(will, sizeof will, "will/%u", p->node->id);
    d.host = "node0";
    d.port = 29500;
    d.timeout_ms = setting_ms(p, "timeout", 10000);
    d.connect_timeout_ms = setting_ms(p, "init_timeout", 20000);
    d.will_key = will;
    d.will_value.data = "gone";
    d.will_value.bytes = 4;
    d.os = &p->node->os;
    d.logger.func = quiet;
    d.logger.user = p->node;
    call_begin(p, d.connect_timeout_ms);
    st = cdp_tcp_store_create(&d, &p->store);
    call_end(p, "cdp_tcp_store_create");
    return failed(p, st);
}

/* Rank 0 of a store world: until every other rank has ended, or as long as `set 0 serve` says. */
static cdp_status serve(player *p) {
    play *y = p->play;
    cdp_store_server_desc d;
    cdp_store_server *server = NULL;
    cdp_status st;
    const uint64_t until = p->node->world->start_ns + setting_ms(p, "serve", 3600000) * SIM_MS;
    bool busy = true;
    memset(&d, 0, sizeof d);
    d.host = "0.0.0.0";
    d.port = 29500;
    d.trust_network = true;
    d.os = &p->node->os;
    d.logger.func = quiet;
    d.logger.user = p->node;
    st = failed(p, cdp_store_server_create(&d, &server));
    while (st == CDP_OK && busy && p->node->world->now < until) {
        uint32_t i;
        busy = false;
        for (i = 1; i < y->s->ranks; ++i)
            busy |= y->world->nodes[i].state != SIM_DONE && y->world->nodes[i].state != SIM_DEAD;
        st = cdp_store_server_poll(server, p->node->world->now + 1 * SIM_MS);
        if (st == CDP_ERR_TIMEOUT) st = CDP_OK;
    }
    cdp_store_server_destroy(server);
    return st;
}

static bool ranks_left(const play *y) {
    uint32_t i;
    for (i = 0; i < y->s->ranks; ++i)
        if (y->world->nodes[i].state == SIM_READY) return true;
    return false;
}

/* ---- >>strangers: connections that are no ranks' --------------------------------------------- */

/* The line of this stranger. */
static const line *stranger_line(const play *y, uint32_t node) {
    uint32_t i, left = node - y->s->ranks;
    for (i = 0; i < y->s->count; ++i)
        if (is(&y->s->lines[i], 0, "strangers") && !left--) return &y->s->lines[i];
    abort();
}

/* Where this rank listens, if it does. */
static bool rank_listens(const sim_world *w, uint32_t rank, cdp_addr *at) {
    uint32_t i;
    for (i = 0; i < w->sock_n; ++i) {
        const sim__sock *s = w->socks[i];
        if (s->state != SIM__LISTEN || s->gone || s->node->id != rank) continue;
        *at = sim_host_addr(w, s->node->host, s->local.port);
        return true;
    }
    return false;
}

/* Sends the text on connections fds[*said ...] that have been made. */
static void stranger_says(
    sim_node *node, const int32_t *fds, uint32_t n, uint32_t *said, const char *text) {
    cdp_iov v;
    memcpy(&v.data, &text, sizeof v.data);
    v.bytes = strlen(text);
    while (
        v.bytes && *said < n && node->os.net.send_iov(node->os.user, fds[*said], &v, 1) != -EAGAIN)
        ++*said;
}

static void stranger_main(sim_node *node, play *y) {
    script *s = y->s;
    const line *l = stranger_line(y, node->id);
    const uint32_t rank = rank_of(s, l, 1), count = (uint32_t)number_of(s, l, 2);
    const uint64_t every = time_of(s, l, 4);
    const char *text = is(l, 5, "saying") ? word_of(l, 6) : "";
    int32_t *fds = (int32_t *)sim_alloc(node, (count + 1) * sizeof *fds);
    uint32_t n = 0, said = 0, i;
    cdp_addr at;
    while (ranks_left(y)) {
        int32_t fd = -1;
        if (n < count && rank_listens(y->world, rank, &at))
            fd = node->os.net.connect_to(node->os.user, &at);
        if (fd >= 0) fds[n++] = fd;
        for (i = 0; i < 8; ++i) { /* as soon as the connection is there */
            sim_sleep(node, every / 8);
            stranger_says(node, fds, n, &said, text);
        }
    }
    sim_say(node, "made %u connections", n);
    while (n)
        node->os.net.close_fd(node->os.user, fds[--n]);
    sim_free(node, fds);
}

static void player_close(player *p) {
    play *y = p->play;
    sim_doing(p->node, "leaves");
    call_begin(p, 500);
    while (p->group_count)
        cdp_group_destroy(p->groups[--p->group_count]);
    cdp_group_destroy(p->world);
    cdp_store_destroy(p->store);
    call_end(p, "leaving");
    while (p->buffer_count)
        sim_free(p->node, p->buffers[--p->buffer_count]);
    if (strcmp(y->s->backend, "hub") == 0 && ++y->hub_left == y->s->ranks) {
        cdp_hub_destroy(y->hub);
        y->hub = NULL;
    }
}

static void player_main(sim_node *node, void *arg) {
    play *y = (play *)arg;
    player *p = &y->players[node->id];
    if (node->id >= y->s->ranks) {
        stranger_main(node, y);
        return;
    }
    p->node = node;
    p->play = y;
    if (strcmp(y->s->backend, "tcp") == 0)
        p->status = open_tcp(p);
    else if (strcmp(y->s->backend, "hub") == 0)
        p->status = open_hub(p);
    else
        p->status = node->id == 0 ? serve(p) : open_store(p);
    if (p->status == CDP_OK && (p->world || p->store)) p->status = run_lines(p);
    player_close(p);
    p->ended = true;
    p->ended_ns = node->world->now - node->world->start_ns;
    sim_say(node, "result: %s%s%s", cdp_status_name(p->status), p->status == CDP_OK ? "" : ": ",
        p->status == CDP_OK ? "" : p->error.text);
}

/* ---- >>faults: from lines to the world ------------------------------------------------------- */

/* Words from `at` on say what happens. */
static void fault_read(script *s, const line *l, uint32_t at, sim_fault *f) {
    static const struct {
        const char *name;
        sim_fault_kind kind;
    } kinds[] = {{"kill", SIM_FAULT_KILL}, {"stop", SIM_FAULT_STOP}, {"vanish", SIM_FAULT_VANISH},
        {"isolate", SIM_FAULT_PARTITION}, {"partition", SIM_FAULT_PARTITION},
        {"cut", SIM_FAULT_CUT_LINK}, {"nomem", SIM_FAULT_NOMEM}};
    const uint32_t last = sizeof kinds / sizeof *kinds;
    const uint64_t all = s->ranks >= 64 ? ~0ull : (1ull << s->ranks) - 1;
    uint32_t i;
    for (i = 0; i < last && !is(l, at, kinds[i].name); ++i) {
    }
    if (i == last) {
        mistake(s, l, "unknown fault %s", word_of(l, at));
        return;
    }
    f->kind = kinds[i].kind;
    f->for_ns = SIM_FOREVER;
    f->set_a = ranks_of(s, l, at + 1);
    f->a = f->b = f->set_a ? __builtin_ctzll(f->set_a) : 0;
    if (is(l, at, "isolate")) f->set_b = all & ~f->set_a;
    if (is(l, at, "partition")) f->set_b = ranks_of(s, l, at + 2);
    if (is(l, at, "cut")) f->b = (int32_t)rank_of(s, l, at + 2);
    if (is(l, at, "nomem")) f->at_count = l->n > at + 2 ? number_of(s, l, at + 2) : 1;
    if (l->n > at + 2 && is(l, l->n - 2, "for")) f->for_ns = time_of(s, l, l->n - 1);
}

static void fault_line(play *y, const line *l) {
    script *s = y->s;
    sim_fault f;
    uint32_t at = 2;
    memset(&f, 0, sizeof f);
    if (is(l, 0, "at")) {
        f.trigger = SIM_ON_TIME;
        f.at_ns = time_of(s, l, 1);
    } else {
        f.trigger_count = number_of(s, l, 1);
        f.watch = rank_of(s, l, 4);
        f.trigger = is(l, 2, "ops") ? SIM_ON_OPS : SIM_ON_BYTES;
        if (f.trigger == SIM_ON_BYTES) f.watch_to = rank_of(s, l, 6);
        at = f.trigger == SIM_ON_OPS ? 5 : 7;
    }
    fault_read(s, l, at, &f);
    if (!s->mistake[0]) sim_add_fault(y->world, &f);
}

static void link_line(play *y, const line *l) {
    script *s = y->s;
    const uint64_t from = ranks_of(s, l, 1), to = ranks_of(s, l, 2);
    sim_link_rule r;
    uint32_t i, k;
    memset(&r, 0, sizeof r);
    for (i = 3; i + 1 < l->n; i += 2) {
        if (is(l, i, "delay"))
            r.delay_ns = time_of(s, l, i + 1);
        else if (is(l, i, "resend"))
            r.resend_ns = time_of(s, l, i + 1);
        else if (is(l, i, "since"))
            r.since_ns = time_of(s, l, i + 1);
        else if (is(l, i, "until"))
            r.until_ns = time_of(s, l, i + 1);
        else if (is(l, i, "split"))
            r.split_bytes = (uint32_t)number_of(s, l, i + 1);
        else if (is(l, i, "buffer"))
            r.buffer_bytes = (uint32_t)number_of(s, l, i + 1);
        else
            mistake(s, l, "unknown word %s", l->word[i]);
    }
    for (i = 0; i < s->ranks; ++i)
        for (k = 0; k < s->ranks; ++k) {
            r.from = i;
            r.to = k;
            if (i != k && (from >> i & 1) && (to >> k & 1)) sim_add_link_rule(y->world, &r);
        }
}

static void world_lines(play *y) {
    script *s = y->s;
    uint32_t i, k;
    for (i = 0; i < s->count && !s->mistake[0]; ++i) {
        const line *l = &s->lines[i];
        if (is(l, 0, "link")) link_line(y, l);
        if (is(l, 0, "at") || is(l, 0, "after")) fault_line(y, l);
        for (k = 0; is(l, 0, "hosts") && k < s->ranks; ++k)
            y->world->nodes[k].host = (uint32_t)number_of(s, l, k + 1);
        for (k = 0; is_process_start(l) && k < s->ranks; ++k)
            if (ranks_of(s, l, 1) >> k & 1)
                y->world->nodes[k].task.wake_at = y->world->start_ns + time_of(s, l, 3);
    }
}

/* ---- >>judge: what came out, against what was expected --------------------------------------- */

static bool status_fits(const char *names, cdp_status st) {
    const char *name = cdp_status_name(st);
    const size_t n = strlen(name);
    if (strcmp(names, "any") == 0) return true;
    if (strcmp(names, "fails") == 0) return st != CDP_OK;
    for (; names; names = strchr(names, '|') ? strchr(names, '|') + 1 : NULL)
        if (strncasecmp(names, name, n) == 0 && (names[n] == 0 || names[n] == '|')) return true;
    return false;
}

static uint64_t first_fault(const play *y) {
    uint64_t at = SIM_FOREVER;
    uint32_t i;
    for (i = 0; i < y->world->fault_count; ++i)
        if (y->world->faults[i].happened && y->world->faults[i].happened_ns < at)
            at = y->world->faults[i].happened_ns;
    return at == SIM_FOREVER ? 0 : at - y->world->start_ns;
}

static bool has_fault(const play *y) {
    uint32_t i;
    for (i = 0; i < y->world->fault_count; ++i)
        if (y->world->faults[i].happened) return true;
    return false;
}

/* Is the rank's result what this `expect` line asks for? */
static bool fits(play *y, const line *l, const player *p) {
    script *s = y->s;
    uint64_t blames = 0, from = 0, within = SIM_FOREVER;
    bool any = true;
    uint32_t i;
    if (!status_fits(word_of(l, 2), p->status)) return false;
    for (i = 3; i + 1 < l->n; i += 2) {
        if (is(l, i, "blames")) {
            blames = ranks_of(s, l, i + 1);
            any = false;
        } else if (is(l, i, "from")) {
            from = ranks_of(s, l, i + 1);
            any = false;
        } else if (is(l, i, "within")) {
            within = time_of(s, l, i + 1);
        } else {
            mistake(s, l, "unknown word %s", l->word[i]);
        }
    }
    if (within != SIM_FOREVER && p->ended_ns > first_fault(y) + within) return false;
    if (p->status == CDP_OK || any) return true;
    if (!blames && !from) return p->error.peer < 0;
    if (p->error.peer >= 0 && (blames >> p->error.peer & 1)) return true;
    return p->error.origin >= 0 && (from >> p->error.origin & 1);
}

/* Several lines for a rank are alternatives; without one it must succeed. */
static bool is_expected(play *y, uint32_t rank) {
    script *s = y->s;
    const bool faultless = y->world->fault_count && !has_fault(y);
    bool any = false;
    uint32_t i;
    for (i = 0; !faultless && i < s->count; ++i) {
        const line *l = &s->lines[i];
        if (!is(l, 0, "expect") || !(ranks_of(s, l, 1) >> rank & 1)) continue;
        any = true;
        if (fits(y, l, &y->players[rank])) return true;
    }
    return !any && y->players[rank].status == CDP_OK;
}

/* False: `text` says what is wrong, beginning with a word for its kind. */
static bool judge_rank(play *y, uint32_t i, char *text, size_t size) {
    const player *p = &y->players[i];
    const sim_node *d = &y->world->nodes[i];
    if (!p->ended) return true; /* sim_run() has seen to it: killed, or stopped for good */
    if (p->wrong[0] && !(p->late && was_held_up(y, i))) {
        snprintf(text, size, "wrong: rank %u: %s (%s)", i, p->wrong, p->error.text);
        return false;
    }
    if (d->block_count || d->fd_count) {
        snprintf(text, size, "leak: rank %u left %llu allocations and %u descriptors", i,
            (unsigned long long)d->block_count, d->fd_count);
        return false;
    }
    if (is_expected(y, i)) return true;
    snprintf(text, size, "result of rank %u: %s, blames %d, reported by %d, after %.3f ms: %s", i,
        cdp_status_name(p->status), p->status == CDP_OK ? -1 : p->error.peer,
        p->status == CDP_OK ? -1 : p->error.origin, (double)p->ended_ns * 1e-6,
        p->status == CDP_OK ? "" : p->error.text);
    return false;
}

static bool judge(play *y, bool ok, char *text, size_t size) {
    uint32_t i;
    if (y->s->mistake[0]) {
        snprintf(text, size, "script: %s", y->s->mistake);
        return false;
    }
    if (!ok) {
        snprintf(text, size, "%s: %s", y->world->hang ? "hang" : "world", y->world->failure);
        return false;
    }
    for (i = 0; i < y->s->ranks; ++i)
        if (!judge_rank(y, i, text, size)) return false;
    return true;
}

/* ---- >>run ----------------------------------------------------------------------------------- */

static FILE *the_trace;
static uint32_t print_results; /* of so many worlds that fail */

static void results(const play *y) {
    uint32_t i;
    for (i = 0; i < y->s->ranks; ++i) {
        const player *p = &y->players[i];
        if (!p->ended)
            printf("    rank %u: did not end\n", i);
        else
            printf("    rank %u: %s at %.3f ms, blames %d: %s\n", i, cdp_status_name(p->status),
                (double)p->ended_ns * 1e-6, p->status == CDP_OK ? -1 : p->error.peer,
                p->status == CDP_OK ? "" : p->error.text);
    }
}

typedef struct result {
    uint32_t runs, bad, faulty; /* faulty: with a fault, or with no fault in the script */
    uint32_t grave;             /* of those that are bad: hangs, leaks and the like */
    char text[5000];            /* of the first that is wrong */
} result;

/* One world. seed 0: calm; else with noise from this seed. */
static bool world_run(script *s, uint64_t seed, result *r, char *text, size_t size) {
    play y;
    sim_desc d;
    bool ok;
    uint32_t i;
    memset(&y, 0, sizeof y);
    memset(&d, 0, sizeof d);
    y.s = s;
    y.players = (player *)calloc(s->ranks, sizeof *y.players);
    if (!y.players) abort();
    d.seed = seed;
    d.node_count = s->ranks + s->strangers;
    d.main = player_main;
    d.arg = &y;
    d.noise = seed ? sim_noise_wild(seed, false) : sim_noise_calm();
    d.noise.cost_ns = seed ? d.noise.cost_ns : 20;
    d.in_order = seed == 0;
    d.trace = the_trace;
    d.limit_ns = s->limit_ns;
    y.world = sim_open(&d);
    for (i = 0; i < s->ranks; ++i)
        y.players[i].node = &y.world->nodes[i];
    world_lines(&y);
    ok = !s->mistake[0] && sim_run(y.world);
    ok = judge(&y, ok, text, size);
    ++r->runs;
    r->faulty += has_fault(&y) || !y.world->fault_count;
    if (!ok && print_results) {
        results(&y);
        --print_results;
    }
    if (y.hub) cdp_hub_destroy(y.hub); /* its users were killed or stopped */
    sim_close(y.world);
    free(y.players);
    return ok;
}

/* Not only another result than was expected: no script may have this as its known failure. */
static bool is_grave(const char *text) {
    return strncmp(text, "result", 6) != 0 && strncmp(text, "wrong", 5) != 0;
}

static void script_run(script *s, result *r, bool first_only) {
    char text[4800];
    uint64_t seed;
    /* every moment and seed decide whom ranks blame; a sanitizer needs fewer to see each call */
    const uint64_t seeds = TEST_SLOW ? (s->vary + 3) / 4 : s->vary;
    const uint64_t step = s->sweep_step * (TEST_SLOW ? 3 : 1);
    memset(r, 0, sizeof *r);
    if (s->mistake[0]) {
        r->runs = r->bad = 1;
        snprintf(r->text, sizeof r->text, "script: %s", s->mistake);
        return;
    }
    the_t = s->sweep_from;
    do {
        for (seed = 0; seed <= seeds; ++seed) {
            if (world_run(s, seed, r, text, sizeof text)) continue;
            ++r->bad;
            if (is_grave(text) ? !r->grave++ : r->bad == 1)
                snprintf(r->text, sizeof r->text, "%s (t = %.3f ms, noise %llu)", text,
                    (double)the_t * 1e-6, (unsigned long long)seed);
            if (first_only) return;
        }
        the_t += step;
    } while (step && the_t <= s->sweep_to);
    if (r->bad || r->faulty) return;
    r->bad = 1;
    snprintf(r->text, sizeof r->text, "script: its faults happened in no world");
}

/* In a process of its own: a crash or an endless loop is a result, too. */
static void script_try(const char *name, const char *text, result *r, bool first_only) {
    int fd[2], status = 0;
    pid_t pid;
    memset(r, 0, sizeof *r);
    fflush(stdout);
    if (pipe(fd) != 0) abort();
    pid = fork();
    if (pid < 0) abort();
    if (pid == 0) {
        script *s = script_parse(name, text);
        alarm(60 * test__scale());
        script_run(s, r, first_only);
        fflush(stdout);
        _exit(write(fd[1], r, sizeof *r) == (ssize_t)sizeof *r ? 0 : 1);
    }
    close(fd[1]);
    {
        size_t got = 0;
        ssize_t n;
        while (got < sizeof *r && (n = read(fd[0], (char *)r + got, sizeof *r - got)) > 0)
            got += (size_t)n;
        close(fd[0]);
        waitpid(pid, &status, 0);
        if (got == sizeof *r && status == 0) return;
    }
    memset(r, 0, sizeof *r);
    r->runs = r->bad = 1;
    snprintf(r->text, sizeof r->text, "process: ended with status %#x (signal 14: no end in time)",
        (unsigned)status);
}

/* ---- >>reduce: the smallest script that still fails ------------------------------------------ */

typedef struct text_lines {
    char *at[MAX_LINES];
    uint32_t n;
} text_lines;

static void lines_of(const char *text, text_lines *l) {
    char *copy = strdup(text), *next;
    l->n = 0;
    for (; copy; copy = next) {
        next = strchr(copy, '\n');
        if (next) *next++ = 0;
        if (*copy && *copy != '#' && l->n < MAX_LINES) l->at[l->n++] = copy;
    }
}

static char *text_of(const text_lines *l) {
    size_t room = 1;
    uint32_t i;
    char *text;
    for (i = 0; i < l->n; ++i)
        room += strlen(l->at[i]) + 1;
    text = (char *)calloc(1, room);
    if (!text) abort();
    for (i = 0; i < l->n; ++i) {
        strcat(text, l->at[i]);
        strcat(text, "\n");
    }
    return text;
}

static const char *other_program; /* this program with other headers, in which it must pass */

static bool passes_elsewhere(const char *text) {
    char folder[] = "/tmp/cdp_scripts_XXXXXX", path[64], command[600];
    bool ok;
    FILE *f;
    if (!mkdtemp(folder)) abort();
    snprintf(path, sizeof path, "%s/a.txt", folder);
    f = fopen(path, "w");
    if (!f || fputs(text, f) < 0 || fclose(f) != 0) abort();
    snprintf(command, sizeof command, "%s --folder %s > /dev/null", other_program, folder);
    ok = system(command) == 0;
    remove(path);
    rmdir(folder);
    return ok;
}

static bool still_fails(const text_lines *l, const char *match) {
    static result r;
    char *text = text_of(l);
    script_try("reduced", text, &r, true);
    if (r.bad && other_program && !passes_elsewhere(text)) r.bad = 0;
    free(text);
    return r.bad && strncmp(r.text, "script:", 7) != 0 && strstr(r.text, match);
}

static bool may_go(const char *text) {
    return strncmp(text, "world", 5) != 0 && strncmp(text, "expect", 6) != 0
        && strncmp(text, "known", 5) != 0 && strncmp(text, "sometimes", 9) != 0;
}

/* Delete runs of lines, long ones first. */
static bool reduce_lines(text_lines *l, const char *match) {
    bool any = false;
    uint32_t size, at, i;
    for (size = l->n / 2; size; size /= 2)
        for (at = 0; at + size <= l->n;) {
            text_lines less = *l;
            less.n = 0;
            for (i = 0; i < l->n; ++i)
                if (i < at || i >= at + size || !may_go(l->at[i])) less.at[less.n++] = l->at[i];
            if (less.n < l->n && still_fails(&less, match)) {
                *l = less;
                any = true;
            } else {
                ++at;
            }
        }
    return any;
}

/* A rounder or smaller number in place of the one that begins at `word`; false: as it was. */
static bool number_smaller(const char *word, uint32_t way, char *out, size_t size) {
    char *end;
    const double v = strtod(word, &end);
    double step = 1, less;
    if (way == 0)
        less = 0;
    else if (way == 1)
        less = (double)(uint64_t)(v / 2);
    else {
        while (step * (way == 2 ? 10 : 100) <= v)
            step *= 10;
        less = (double)(uint64_t)(v / step + 0.5) * step;
    }
    if (less >= v) return false;
    snprintf(out, size, "%.9g%s", less, end);
    return true;
}

/* May the number in word `i` of this line become smaller? Not if it names a rank. */
static bool may_shrink(const char *text, uint32_t i) {
    if (strncmp(text, "at ", 3) == 0 || strncmp(text, "after ", 6) == 0) return i == 1;
    return strncmp(text, "sweep ", 6) != 0 && i >= 3;
}

static bool reduce_number(text_lines *l, uint32_t i, const char *match) {
    char *old = l->at[i], *w = strchr(old, ' ');
    uint32_t i_word = 0;
    for (; w; w = strchr(w + 1, ' ')) {
        uint32_t way;
        if (!may_shrink(old, ++i_word)) continue;
        if (!isdigit((unsigned char)w[1])) continue;
        for (way = 0; way < 4; ++way) {
            char word[64], less[64], *with, *end = strchr(w + 1, ' ');
            const size_t n = end ? (size_t)(end - w - 1) : strlen(w + 1);
            if (n >= sizeof word) break;
            memcpy(word, w + 1, n);
            word[n] = 0;
            if (strchr(word, ',') || !number_smaller(word, way, less, sizeof less)) continue;
            with = (char *)malloc(strlen(old) + 70);
            if (!with) abort();
            sprintf(with, "%.*s %s%s", (int)(w - old), old, less, end ? end : "");
            l->at[i] = with;
            if (still_fails(l, match)) return true;
            l->at[i] = old;
            free(with);
        }
    }
    return false;
}

static int reduce(const char *name, const char *text, const char *match) {
    text_lines l;
    bool any = true;
    uint32_t i;
    char *out;
    lines_of(text, &l);
    if (!still_fails(&l, match)) {
        printf("%s does not fail so\n", name);
        return 1;
    }
    while (any) {
        while (reduce_lines(&l, match)) {
        }
        any = false;
        for (i = 0; i < l.n; ++i) {
            uint32_t most = strncmp(l.at[i], "link", 4) == 0 ? 1 : 20;
            while (may_go(l.at[i]) && most-- && reduce_number(&l, i, match))
                any = true;
        }
    }
    out = text_of(&l);
    printf("%s", out);
    free(out);
    return 0;
}

/* ---- >>search: scripts drawn from ranges ----------------------------------------------------- */

/* Replace each word A..B or A..Bunit of a line by a number between. */
static void draw_line(const char *text, uint64_t *random, FILE *out) {
    const char *dots;
    char *end;
    while ((dots = strstr(text, "..")) != NULL) {
        const char *w = dots;
        uint64_t lo, hi;
        while (w > text && isdigit((unsigned char)w[-1]))
            --w;
        lo = strtoull(w, NULL, 10);
        hi = strtoull(dots + 2, &end, 10);
        fprintf(out, "%.*s%llu", (int)(w - text), text,
            (unsigned long long)(lo && hi / lo > 20 ? sim_log_between(random, lo, hi)
                                                    : sim_between(random, lo, hi)));
        text = end;
    }
    fprintf(out, "%s\n", text);
}

/* Lines `link * * ...` and `rank * start ...` become one for each link or rank. */
static void draw(const text_lines *l, uint32_t ranks, uint64_t seed, FILE *out) {
    uint64_t random = sim_stream(seed, 1);
    uint32_t i, a, b;
    char one[400];
    for (i = 0; i < l->n; ++i) {
        const char *at = l->at[i];
        const bool each_link = strncmp(at, "link * * ", 9) == 0 && strstr(at, "..");
        const bool each_rank = strncmp(at, "rank * start ", 13) == 0 && strstr(at, "..");
        for (a = 0; each_rank && a < ranks; ++a) {
            snprintf(one, sizeof one, "rank %u start %s", a, at + 13);
            draw_line(one, &random, out);
        }
        for (a = 0; each_link && a < ranks; ++a)
            for (b = 0; b < ranks; ++b) {
                snprintf(one, sizeof one, "link %u %u %s", a, b, at + 9);
                if (a != b) draw_line(one, &random, out);
            }
        if (!each_link && !each_rank) draw_line(at, &random, out);
    }
}

static int search(
    const char *name, const char *text, uint64_t from, uint64_t to, const char *match) {
    static result r;
    script *s = script_parse(name, text);
    const uint32_t ranks = s->ranks;
    text_lines l;
    uint64_t seed;
    lines_of(text, &l);
    script_free(s);
    for (seed = from; seed <= to; ++seed) {
        char *drawn = NULL;
        size_t size = 0;
        FILE *f = open_memstream(&drawn, &size);
        if (!f) abort();
        draw(&l, ranks, seed, f);
        fclose(f);
        script_try(name, drawn, &r, true);
        if (r.bad && (strstr(r.text, match) || strncmp(r.text, "script: line", 12) == 0)) {
            printf("# drawn %llu: %s\n%s", (unsigned long long)seed, r.text, drawn);
            return 0;
        }
        free(drawn);
    }
    printf("none of %llu fails\n", (unsigned long long)(to - from + 1));
    return 1;
}

/* ---- >>command line -------------------------------------------------------------------------- */

static char *file_read(const char *path) {
    FILE *f = fopen(path, "rb");
    char *text;
    long size;
    if (!f) {
        printf("%s: cannot be read\n", path);
        exit(2);
    }
    fseek(f, 0, SEEK_END);
    size = ftell(f);
    rewind(f);
    text = (char *)calloc(1, (size_t)size + 1);
    if (!text || fread(text, 1, (size_t)size, f) != (size_t)size) abort();
    fclose(f);
    return text;
}

static int by_name(const struct dirent **a, const struct dirent **b) {
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int is_script(const struct dirent *e) {
    const size_t n = strlen(e->d_name);
    return n > 4 && strcmp(e->d_name + n - 4, ".txt") == 0;
}

/* The reason that follows `word` at the beginning of a line, or NULL. */
static const char *reason_after(const char *text, const char *word, char *out, size_t size) {
    const size_t n = strlen(word);
    for (; text; text = strchr(text, '\n') ? strchr(text, '\n') + 1 : NULL) {
        if (strncmp(text, word, n) != 0) continue;
        snprintf(out, size, "%.*s", (int)strcspn(text + n, "\n"), text + n);
        return out;
    }
    return NULL;
}

/* Replaces each line `include NAME` by the file of that name in the folder. */
static char *with_includes(const char *folder, char *text) {
    static char *all; /* static: open_memstream keeps its address */
    char *at;
    static size_t size;
    FILE *out = open_memstream(&all, &size);
    if (!out) abort();
    for (at = text; at && *at;) {
        char *end = strchr(at, '\n');
        if (end) *end++ = 0;
        if (strncmp(at, "include ", 8) == 0) {
            char path[600], *part;
            snprintf(path, sizeof path, "%s/%s", folder, at + 8);
            part = file_read(path);
            fputs(part, out);
            free(part);
        } else {
            fprintf(out, "%s\n", at);
        }
        at = end;
    }
    fclose(out);
    free(text);
    return all;
}

typedef struct totals {
    uint32_t passed, failed, known, runs;
} totals;

static void run_file(const char *folder, const char *file, totals *t) {
    static result r;
    char path[600], known[400], *text;
    const char *reason;
    bool must;
    snprintf(path, sizeof path, "%s/%s", folder, file);
    text = with_includes(folder, file_read(path));
    reason = reason_after(text, "known ", known, sizeof known);
    must = reason != NULL;
    if (!must) reason = reason_after(text, "sometimes ", known, sizeof known);
    script_try(file, text, &r, false);
    free(text);
    t->runs += r.runs;
    if (reason && r.bad && !r.grave && !is_grave(r.text)) {
        ++t->known;
        printf("known: %s %s\n", file, reason);
        if (print_results) printf("     %u of %u worlds: %s\n", r.bad, r.runs, r.text);
        return;
    }
    if (!r.bad && !must) {
        ++t->passed;
        return;
    }
    ++t->failed;
    if (reason && !r.bad)
        printf("FAIL %s: it passes now: take its line `known` away\n", file);
    else
        printf("FAIL %s: %u of %u worlds; the first: %s\n     replay: scripts %s --verbose\n", file,
            r.bad, r.runs, r.text, file);
}

static int run_folder(const char *folder, char **names, int name_count) {
    struct dirent **list;
    totals t;
    const int n = scandir(folder, &list, is_script, by_name);
    int i, k;
    memset(&t, 0, sizeof t);
    if (n < 0) {
        printf("%s: cannot be read\n", folder);
        return 2;
    }
    for (i = 0; i < n; ++i) {
        bool wanted = name_count == 0;
        for (k = 0; k < name_count; ++k)
            wanted |= strstr(list[i]->d_name, names[k]) != NULL;
        if (wanted) run_file(folder, list[i]->d_name, &t);
        free(list[i]);
    }
    free(list);
    printf("%u worlds, %u scripts with known failures\n", t.runs, t.known);
    printf("%u passed, %u failed\n", t.passed, t.failed);
    return t.failed ? 1 : 0;
}

int main(int argc, char **argv) {
    const char *folder = "tests/sim/scripts";
    char *names[64];
    int i, n = 0;
    for (i = 1; i < argc; ++i) {
        const char *a = argv[i];
        if (strcmp(a, "--reduce") == 0 && i + 1 < argc) {
            if (i + 3 < argc) other_program = argv[i + 3];
            return reduce(argv[i + 1], file_read(argv[i + 1]), i + 2 < argc ? argv[i + 2] : "");
        }
        if (strcmp(a, "--search") == 0 && i + 2 < argc) {
            const char *dots = strstr(argv[i + 2], "..");
            const uint64_t from = dots ? strtoull(argv[i + 2], NULL, 10) : 1;
            return search(argv[i + 1], file_read(argv[i + 1]), from,
                strtoull(dots ? dots + 2 : argv[i + 2], NULL, 10), i + 3 < argc ? argv[i + 3] : "");
        }
        if (strcmp(a, "--folder") == 0 && i + 1 < argc)
            folder = argv[++i];
        else if (strcmp(a, "--results") == 0)
            print_results = 3;
        else if (strcmp(a, "--verbose") == 0) {
            the_trace = stdout;
            print_results = UINT32_MAX;
        } else if (n < 64)
            names[n++] = argv[i];
    }
    return run_folder(folder, names, n);
}
