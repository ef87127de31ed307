/* Are the stores what they say: one map, at which every call happens in one moment between its
   begin and its end?

   Clients call a store at random and write down when each call began and ended and what it said;
   then a checker looks for an order of all calls that one map could have answered so (Wing and
   Gong's search, with Lowe's memory of what was already tried). Where there is none, the store
   lied.

     sim_tcp, sim_hash, sim_file   clients in the simulated world, with seeded delays, splits,
                                   preemptions; over TCP with cut connections and killed and stopped
                                   clients, too
     threads, processes            of hash, custom and file stores in real time; some processes are
                                   killed

   What a call promises differs a little. Over TCP a set, append or multi_set ends when it is on its
   way: it happens by the end of the next call of that client that has an answer. get and multi_get
   wait, then read; a key that is removed in between reads as empty. Calls with several keys look at
   one after the other. In the other stores each call is one moment. Calls that failed may have
   happened at any time after their begin, or never.

   linear [--seeds A..B] [WORD...]    WORD: only cases whose names contain one */
#define CDP_IMPLEMENTATION
#include "cdp_store.h"

#include "sim.h"
#include "test.h"
#include <sys/wait.h>

/* ---- >>map: the sequential truth ------------------------------------------------------------- */

#define KEYS 3 /* the last one holds text, the others numbers */
#define TEXT 124
#define NEVER UINT64_MAX

typedef struct text {
    uint8_t bytes;
    char at[TEXT];
} text;

typedef struct map {
    bool there[KEYS];
    text value[KEYS];
} map;

/* What happens in one moment. */
typedef enum move_kind {
    M_SET,
    M_APPEND,
    M_ADD,
    M_CAS,
    M_DELETE,
    M_NUM,
    M_PRESENT,
    M_SOME_ABSENT,
    M_READ,
    M_READ_OR_EMPTY
} move_kind;

typedef struct move {
    move_kind kind;
    uint32_t session; /* moves of one session happen in their order */
    uint32_t keys;
    uint8_t key[3];
    text value[3];  /* what is set, appended, expected and desired, or was read */
    text answer;    /* of CAS */
    int64_t number; /* ADD: delta */
    int64_t result; /* of ADD, DELETE, NUM */
    bool blind;     /* the answer is not known */
    bool maybe;     /* perhaps it never happened */
    uint64_t begin, end;
} move;

static bool text_same(const text *a, const text *b) {
    return a->bytes == b->bytes && memcmp(a->at, b->at, a->bytes) == 0;
}

static text text_of(const char *s) {
    text t;
    memset(&t, 0, sizeof t);
    t.bytes = (uint8_t)strlen(s);
    memcpy(t.at, s, t.bytes);
    return t;
}

static text text_of_number(int64_t n) {
    char s[24];
    snprintf(s, sizeof s, "%lld", (long long)n);
    return text_of(s);
}

static int64_t number_of(const text *t) {
    int64_t n = 0;
    (void)cdp__number_parse((const uint8_t *)t->at, t->bytes, &n);
    return n;
}

static bool move_reads_only(const move *m) {
    return m->kind >= M_NUM;
}

/* Let it happen to the map. False: it could not have said what it said. */
static bool move_apply(map *a, const move *m) {
    const uint8_t k = m->key[0];
    bool all = true;
    int64_t n = 0;
    for (uint32_t i = 0; i < m->keys; ++i)
        all = all && a->there[m->key[i]];
    switch (m->kind) {
    case M_SET:
        for (uint32_t i = 0; i < m->keys; ++i) {
            a->there[m->key[i]] = true;
            a->value[m->key[i]] = m->value[i];
        }
        return true;
    case M_APPEND:
        if (!a->there[k]) a->value[k].bytes = 0;
        if (a->value[k].bytes + m->value[0].bytes > TEXT) abort();
        memcpy(a->value[k].at + a->value[k].bytes, m->value[0].at, m->value[0].bytes);
        a->value[k].bytes = (uint8_t)(a->value[k].bytes + m->value[0].bytes);
        a->there[k] = true;
        return true;
    case M_ADD:
        n = (a->there[k] ? number_of(&a->value[k]) : 0) + m->number;
        a->there[k] = true;
        a->value[k] = text_of_number(n);
        return m->blind || n == m->result;
    case M_CAS: {
        const bool equal = a->there[k] ? text_same(&a->value[k], &m->value[0]) : !m->value[0].bytes;
        if (equal) {
            a->there[k] = true;
            a->value[k] = m->value[1];
        }
        return m->blind || text_same(&m->answer, a->there[k] ? &a->value[k] : &m->value[0]);
    }
    case M_DELETE: a->there[k] = false; return m->blind || m->result == all;
    case M_NUM:
        for (uint32_t i = 0; i < KEYS; ++i)
            n += a->there[i];
        return n == m->result;
    case M_PRESENT: return all;
    case M_SOME_ABSENT: return !all;
    case M_READ_OR_EMPTY:
        if (!all) return !m->value[0].bytes;
        return text_same(&a->value[k], &m->value[0]);
    default:
        for (uint32_t i = 0; i < m->keys; ++i)
            all = all && text_same(&a->value[m->key[i]], &m->value[i]);
        return all;
    }
}

/* ---- >>check: is there an order? ------------------------------------------------------------- */

#define MAX_MOVES 6000
#define MAX_SESSIONS 2000
#define MAX_TRIED (1u << 20)

typedef struct history {
    uint32_t n, sessions;
    move moves[MAX_MOVES];
} history;

typedef enum answer {
    LINEAR,
    NOT_LINEAR,
    TOO_HARD
} answer;

typedef struct level {
    map state;
    uint32_t next;    /* the session to try next */
    uint32_t undo_to; /* how long the trail was before */
} level;

typedef struct search {
    const history *h;
    uint32_t *list[MAX_SESSIONS]; /* moves of each session, in order */
    uint32_t length[MAX_SESSIONS], at[MAX_SESSIONS];
    /* sessions by the begin of their first move; those below `lowest` are over */
    uint32_t by_begin[MAX_SESSIONS], lowest;
    uint32_t *trail, trail_n;             /* sessions that went on, so that it can be taken back */
    uint64_t place[MAX_SESSIONS], places; /* a sum that tells which moves have happened */
    uint64_t *tried;
    uint32_t *used, tried_n; /* places in `tried` */
    uint32_t left;           /* moves that must still happen */
} search;

static uint64_t mix(uint64_t x) {
    return test_random(&x);
}

static void go_on(search *s, uint32_t session) {
    s->left -= !s->h->moves[s->list[session][s->at[session]]].maybe;
    s->places += mix(s->place[session] + s->at[session]++);
    s->trail[s->trail_n++] = session;
}

static void go_back(search *s, uint32_t to) {
    while (s->trail_n > to) {
        const uint32_t session = s->trail[--s->trail_n];
        s->places -= mix(s->place[session] + --s->at[session]);
        s->left += !s->h->moves[s->list[session][s->at[session]]].maybe;
    }
}

static const move *next_of(const search *s, uint32_t session) {
    return s->at[session] < s->length[session] ? &s->h->moves[s->list[session][s->at[session]]]
                                               : NULL;
}

/* No move may happen that began after another one ended that has not happened. */
static uint64_t first_end(search *s) {
    uint64_t end = NEVER;
    uint32_t i;
    for (i = 0; i < s->h->sessions; ++i) {
        const move *m = next_of(s, s->by_begin[i]);
        /* the rest began even later */
        if (s->h->moves[s->list[s->by_begin[i]][0]].begin > end) break;
        if (m && m->end < end) end = m->end;
    }
    return end;
}

/* A move that only looks, and may look now, does no harm: it never has to be tried later. */
static void look_around(search *s, map *state) {
    bool again = true;
    while (again) {
        const uint64_t end = first_end(s);
        again = false;
        for (uint32_t i = 0; i < s->h->sessions; ++i) {
            const uint32_t session = s->by_begin[i];
            const move *m = next_of(s, session);
            if (s->h->moves[s->list[session][0]].begin > end) break;
            if (m && move_reads_only(m) && m->begin <= end && move_apply(state, m)) {
                go_on(s, session);
                again = true;
            }
        }
    }
}

/* False: it was here before. */
static bool remember(search *s, const map *state) {
    uint64_t h = mix(s->places);
    for (uint32_t k = 0; k < KEYS; ++k)
        h = mix(h
            ^ (state->there[k] ? cdp__hash(k, state->value[k].at, state->value[k].bytes) : k + 1));
    h |= !h;
    for (uint64_t i = h;; ++i) {
        uint64_t *slot = &s->tried[i % (2 * MAX_TRIED)];
        if (*slot == h) return false;
        if (*slot) continue;
        *slot = h;
        s->used[s->tried_n++] = (uint32_t)(i % (2 * MAX_TRIED));
        return true;
    }
}

static answer search_run(search *s) {
    level *levels = (level *)malloc((s->h->n + 2) * sizeof *levels);
    uint32_t depth = 0;
    answer result = NOT_LINEAR;
    memset(&levels[0], 0, sizeof levels[0]);
    look_around(s, &levels[0].state);
    while (s->left) {
        level *l = &levels[depth];
        const uint64_t end = first_end(s);
        uint32_t i;
        /* first what must have happened, then what may have: only if nothing else helps */
        for (i = l->next; i < 2 * s->h->sessions; ++i) {
            const uint32_t session = s->by_begin[i % s->h->sessions], before = s->trail_n;
            const move *m = next_of(s, session);
            level *up = &levels[depth + 1];
            if (!m || m->begin > end || move_reads_only(m) || m->maybe != (i >= s->h->sessions))
                continue;
            up->state = l->state;
            if (!move_apply(&up->state, m)) continue;
            go_on(s, session);
            look_around(s, &up->state);
            if (!remember(s, &up->state)) {
                go_back(s, before);
                continue;
            }
            up->undo_to = before;
            up->next = 0;
            l->next = i + 1;
            ++depth;
            break;
        }
        if (i < 2 * s->h->sessions) continue;
        if (!depth) break;
        go_back(s, l->undo_to);
        --depth;
        if (s->tried_n + s->h->sessions > MAX_TRIED) {
            result = TOO_HARD;
            break;
        }
    }
    free(levels);
    return s->left ? result : LINEAR;
}

static const history *sort_by;
static search *sort_in;
static int by_begin(const void *a, const void *b) {
    const uint64_t x = sort_by->moves[sort_in->list[*(const uint32_t *)a][0]].begin,
                   y = sort_by->moves[sort_in->list[*(const uint32_t *)b][0]].begin;
    return x < y ? -1 : x > y;
}

/* Every session must have a move, and its moves must end in their order. */
static answer linear_check(const history *h) {
    static search s;
    uint32_t *room = (uint32_t *)malloc((2 * h->n + 2) * sizeof *room), *p = room;
    uint64_t *tried = s.tried ? s.tried : (uint64_t *)calloc(2 * MAX_TRIED, sizeof *tried);
    uint32_t *used = s.used ? s.used : (uint32_t *)malloc(MAX_TRIED * sizeof *used);
    answer result;
    while (s.tried_n)
        tried[used[--s.tried_n]] = 0;
    memset(&s, 0, sizeof s);
    s.h = h;
    s.tried = tried;
    s.used = used;
    for (uint32_t i = 0; i < h->n; ++i) {
        s.length[h->moves[i].session]++;
        s.left += !h->moves[i].maybe;
    }
    for (uint32_t i = 0; i < h->sessions; ++i) {
        if (!s.length[i]) abort();
        s.list[i] = p;
        p += s.length[i];
        s.length[i] = 0;
        s.by_begin[i] = i;
        s.place[i] = mix(i + 77);
    }
    s.trail = p;
    for (uint32_t i = 0; i < h->n; ++i)
        s.list[h->moves[i].session][s.length[h->moves[i].session]++] = i;
    sort_by = h;
    sort_in = &s;
    qsort(s.by_begin, h->sessions, sizeof *s.by_begin, by_begin);
    result = search_run(&s);
    free(room);
    return result;
}

/* What of a history is about one key. Each key by itself must be linearizable where all together
   are. */
static void history_of_key(history *out, const history *h, uint8_t key) {
    uint32_t *names = (uint32_t *)calloc(h->sessions + 1, sizeof *names);
    out->n = out->sessions = 0;
    for (uint32_t i = 0; i < h->n; ++i) {
        const move *m = &h->moves[i];
        if (m->kind == M_NUM || (m->kind == M_SOME_ABSENT && m->keys > 1)) continue;
        for (uint32_t k = 0; k < m->keys; ++k) {
            bool again = m->key[k] != key;
            /* of a key set twice in one moment the last counts */
            for (uint32_t l = k + 1; l < m->keys; ++l)
                again = again || m->key[l] == key;
            if (again) continue;
            move *o = &out->moves[out->n++];
            *o = *m;
            o->keys = 1;
            o->key[0] = key;
            if (m->keys > 1) o->value[0] = m->value[k];
            if (!names[m->session]) names[m->session] = ++out->sessions;
            o->session = names[m->session] - 1;
        }
    }
    free(names);
}

static uint32_t key_by_key; /* how many histories were too hard as a whole */

static answer linear_check_hard(const history *h) {
    static history one;
    answer a = linear_check(h);
    if (a != TOO_HARD) return a;
    ++key_by_key;
    a = LINEAR;
    for (uint8_t k = 0; k < KEYS && a == LINEAR; ++k) {
        history_of_key(&one, h, k);
        a = linear_check(&one);
    }
    return a;
}

/* ---- >>itself: the checker against every order there is -------------------------------------- */

static bool brute(const history *h, uint32_t done, const map *state) {
    uint32_t left = 0;
    for (uint32_t i = 0; i < h->n; ++i)
        left += !(done >> i & 1) && !h->moves[i].maybe;
    if (!left) return true;
    for (uint32_t i = 0; i < h->n; ++i) {
        const move *m = &h->moves[i];
        bool may = !(done >> i & 1);
        map next = *state;
        for (uint32_t k = 0; k < h->n && may; ++k)
            if (k != i && !(done >> k & 1))
                may = h->moves[k].end >= m->begin && !(k < i && h->moves[k].session == m->session);
        if (may && move_apply(&next, m) && brute(h, done | 1u << i, &next)) return true;
    }
    return false;
}

/* Five to eight moves that really happened one after the other, with begins and ends around
   those moments; in every other history one answer is wrong, or one move comes at a wrong time. */
static void make_history(history *h, uint64_t seed) {
    uint64_t r = seed;
    map state;
    const uint32_t n = 5 + (uint32_t)(test_random(&r) % 4),
                   sessions = 1 + (uint32_t)(test_random(&r) % 4);
    uint64_t free_at[4] = {0};
    memset(&state, 0, sizeof state);
    memset(h, 0, sizeof *h - sizeof h->moves + n * sizeof *h->moves);
    for (uint32_t i = 0; i < n; ++i) {
        move *m = &h->moves[i];
        map before = state;
        m->session = (uint32_t)(test_random(&r) % sessions);
        m->kind = (move_kind)(test_random(&r) % (M_READ_OR_EMPTY + 1));
        m->keys = m->kind == M_NUM ? 0 : 1;
        m->key[0] = (uint8_t)(m->kind == M_APPEND ? 2 : test_random(&r) % 2);
        m->value[0] = text_of_number((int64_t)(test_random(&r) % 3));
        m->value[1] = text_of_number((int64_t)(test_random(&r) % 3));
        m->number = (int64_t)(test_random(&r) % 2);
        m->begin = 300 + 100 * i - test_random(&r) % 250;
        m->end = 301 + 100 * i + test_random(&r) % 250;
        /* perhaps too late then: a wrong history */
        if (m->begin <= free_at[m->session]) m->begin = free_at[m->session] + 1;
        if (m->end <= m->begin) m->end = m->begin + 1;
        free_at[m->session] = m->end;
        if (m->kind == M_PRESENT && !state.there[m->key[0]]) m->kind = M_SOME_ABSENT;
        if (m->kind == M_SOME_ABSENT && state.there[m->key[0]]) m->kind = M_PRESENT;
        if (m->kind == M_READ && !state.there[m->key[0]]) m->kind = M_READ_OR_EMPTY;
        if (m->kind >= M_READ)
            m->value[0] = state.there[m->key[0]] ? state.value[m->key[0]] : text_of("");
        m->result = m->kind == M_DELETE ? state.there[m->key[0]] : 0;
        if (m->kind == M_NUM) m->result = state.there[0] + state.there[1] + state.there[2];
        if (m->kind == M_ADD)
            m->result =
                (state.there[m->key[0]] ? number_of(&state.value[m->key[0]]) : 0) + m->number;
        m->blind = true;
        if (!move_apply(&state, m)) abort();
        m->answer = state.there[m->key[0]] ? state.value[m->key[0]] : m->value[0];
        m->blind = m->maybe = test_random(&r) % 8 == 0 && !move_reads_only(m);
        if (m->maybe) m->end = NEVER;
        if (m->maybe && test_random(&r) % 2) state = before;
        if (m->maybe) m->session = 4 + i;
    }
    h->n = n;
    if (test_random(&r) % 2) {
        move *m = &h->moves[test_random(&r) % n];
        if (m->kind >= M_READ)
            m->value[0] = text_of_number((int64_t)(test_random(&r) % 3));
        else if (m->kind == M_CAS)
            m->answer = text_of_number((int64_t)(test_random(&r) % 3));
        else if (m->kind == M_PRESENT)
            m->kind = M_SOME_ABSENT;
        else
            m->result += m->kind == M_DELETE ? 1 - 2 * m->result : 1;
    }
    uint32_t names[16], used = 0; /* sessions without gaps */
    memset(names, 255, sizeof names);
    for (uint32_t i = 0; i < n; ++i) {
        uint32_t *name = &names[h->moves[i].session];
        if (*name == UINT32_MAX) *name = used++;
        h->moves[i].session = *name;
    }
    h->sessions = used;
}

TEST(checker_itself) {
    static history h;
    map empty;
    uint32_t yes = 0, no = 0;
    memset(&empty, 0, sizeof empty);
    for (uint64_t seed = 1; seed <= 20000; ++seed) {
        make_history(&h, seed);
        const bool want = brute(&h, 0, &empty);
        const answer got = linear_check(&h);
        yes += want;
        no += !want;
        if (want)
            for (uint8_t k = 0; k < KEYS; ++k) {
                static history one;
                history_of_key(&one, &h, k);
                T(linear_check(&one) == LINEAR);
            }
        if (!test_check(got == (want ? LINEAR : NOT_LINEAR), __FILE__, __LINE__,
                "history of seed %llu: %d, but brute force says %d", (unsigned long long)seed,
                (int)got, want))
            return;
    }
    printf("  %u histories are linearizable, %u are not\n", yes, no);
    T(yes > 5000 && no > 3000);
}

/* ---- >>calls: what clients do, and how it is written down ------------------------------------ */

#define CLIENTS 6
#define CALLS 60

typedef struct call {
    cdp_store_op op;
    uint32_t session, keys;
    uint8_t key[3];
    text in[3], out[3];
    int64_t delta, number;
    bool ended;
    cdp_status status;
    uint64_t begin, end;
} call;

typedef struct record {
    uint64_t clock;    /* counts begins and ends; atomic */
    int64_t base_keys; /* that the store counts for itself */
    uint32_t clients;
    uint32_t calls[CLIENTS];
    bool finished[CLIENTS]; /* was not killed */
    call call[CLIENTS][CALLS];
} record;

/* Lies, to see that they are found. */
typedef enum lie {
    NO_LIE,
    EARLY_ADD,
    STALE_GET,
    LOST_APPEND,
    LOOSE_COMPARE_SET,
    FALSE_DELETE,
    BROKEN_SWAP,
    LIES
} lie;
static const char *const lie_names[LIES] = {"none", "add is answered before it is done",
    "get answers from a cache", "an append is lost", "compare_set in two steps",
    "delete says it was there", "swap does not compare"};

typedef struct client {
    record *log;
    uint32_t id, session;
    sim_node *node; /* NULL: a real thread */
    cdp_store *store;
    uint64_t random;
    lie lies;
    uint32_t wait_ms, write_ms;
    text cache[KEYS]; /* of STALE_GET */
    bool cached[KEYS];
    int64_t owed;    /* of EARLY_ADD: done at the next call */
    text last[KEYS]; /* what it has seen, to expect it */
} client;

static const char *const key_names[KEYS] = {"a", "b", "text"};

static bool waits(cdp_store_op op) {
    return op == CDP_STORE_GET || op == CDP_STORE_WAIT || op == CDP_STORE_MULTI_GET;
}
static bool writes(cdp_store_op op) {
    return !waits(op) && op != CDP_STORE_CHECK && op != CDP_STORE_NUM_KEYS;
}
static bool without_answer(cdp_store_op op) {
    return op == CDP_STORE_SET || op == CDP_STORE_APPEND || op == CDP_STORE_MULTI_SET;
}

static void call_choose(client *c, call *k, uint32_t number) {
    static const cdp_store_op ops[] = {CDP_STORE_SET, CDP_STORE_SET, CDP_STORE_SET, CDP_STORE_GET,
        CDP_STORE_GET, CDP_STORE_GET, CDP_STORE_ADD, CDP_STORE_ADD, CDP_STORE_ADD,
        CDP_STORE_COMPARE_SET, CDP_STORE_COMPARE_SET, CDP_STORE_WAIT, CDP_STORE_CHECK,
        CDP_STORE_CHECK, CDP_STORE_DELETE, CDP_STORE_DELETE, CDP_STORE_NUM_KEYS, CDP_STORE_APPEND,
        CDP_STORE_MULTI_GET, CDP_STORE_MULTI_SET};
    char s[32];
    memset(k, 0, sizeof *k);
    k->op = ops[test_random(&c->random) % (sizeof ops / sizeof *ops)];
    k->session = c->session;
    k->keys = k->op == CDP_STORE_NUM_KEYS ? 0 : 1;
    if (k->op == CDP_STORE_MULTI_GET || k->op == CDP_STORE_MULTI_SET || k->op == CDP_STORE_CHECK
        || k->op == CDP_STORE_WAIT)
        k->keys += (uint32_t)(test_random(&c->random) % 2);
    for (uint32_t i = 0; i < k->keys; ++i) {
        const uint32_t keys = k->op == CDP_STORE_ADD ? KEYS - 1 : KEYS;
        k->key[i] = KEYS - 1;
        if (k->op != CDP_STORE_APPEND) k->key[i] = (uint8_t)(test_random(&c->random) % keys);
        if (k->key[i] == KEYS - 1)
            snprintf(s, sizeof s, "%c%u", (char)('p' + c->id), number % 10);
        else
            snprintf(s, sizeof s, "%u", 1000 * (c->id + 1) + number * 10 + i);
        k->in[i] = text_of(s);
    }
    if (k->op == CDP_STORE_COMPARE_SET) {
        k->in[1] = k->in[0];
        k->in[0] = test_random(&c->random) % 4 ? c->last[k->key[0]] : text_of("");
    }
    if (k->op == CDP_STORE_ADD) k->delta = 1 + (int64_t)(test_random(&c->random) % 3);
    if (k->op == CDP_STORE_APPEND) k->in[0].bytes = 1;
}

static cdp_status call_run(client *c, call *k, cdp_store_op op) {
    cdp_store_request rq;
    cdp_bytes keys[3], values[3];
    memset(&rq, 0, sizeof rq);
    rq.op = op;
    rq.key_count = k->keys;
    rq.keys = keys;
    rq.values = values;
    rq.delta = k->delta;
    for (uint32_t i = 0; i < 3; ++i) {
        keys[i].data = key_names[i < k->keys ? k->key[i] : 0];
        keys[i].bytes = strlen((const char *)keys[i].data);
        values[i].data = k->in[i].at;
        values[i].bytes = k->in[i].bytes;
    }
    k->status = cdp_store_run(c->store, &rq, waits(op) ? c->wait_ms : c->write_ms);
    if (k->status != CDP_OK) return k->status;
    k->number = rq.number;
    for (uint32_t i = 0; rq.results && i < (op == CDP_STORE_MULTI_GET ? k->keys : 1); ++i) {
        if (rq.results[i].bytes > TEXT) abort();
        k->out[i].bytes = (uint8_t)rq.results[i].bytes;
        memcpy(k->out[i].at, rq.results[i].data, (size_t)rq.results[i].bytes);
        c->last[k->key[i]] = k->out[i];
    }
    cdp_store_request_free(c->store, &rq);
    return k->status;
}

/* A call as a store with a defect would do it. False: it has none here. */
static bool call_lie(client *c, call *k) {
    call other = *k;
    const uint8_t key = k->key[0];
    if (c->lies == EARLY_ADD && c->owed) {
        other.op = CDP_STORE_ADD;
        other.keys = 1;
        other.key[0] = 0;
        other.delta = c->owed;
        c->owed = 0;
        (void)call_run(c, &other, CDP_STORE_ADD);
        other = *k;
    }
    if (c->lies == EARLY_ADD && k->op == CDP_STORE_ADD && key == 0) {
        const int64_t delta = k->delta;
        k->delta = 0;
        if (call_run(c, k, CDP_STORE_ADD) == CDP_OK) {
            c->owed = delta;
            k->number += delta;
        }
        k->delta = delta;
        return true;
    }
    if (c->lies == STALE_GET && k->op == CDP_STORE_GET) {
        if (!c->cached[key] && call_run(c, k, CDP_STORE_GET) == CDP_OK) {
            c->cached[key] = true;
            c->cache[key] = k->out[0];
        } else if (c->cached[key]) {
            k->out[0] = c->cache[key];
            k->status = CDP_OK;
        }
        return true;
    }
    if (c->lies == LOST_APPEND && k->op == CDP_STORE_APPEND && test_random(&c->random) % 2) {
        k->status = CDP_OK;
        return true;
    }
    if (c->lies == LOOSE_COMPARE_SET && k->op == CDP_STORE_COMPARE_SET) {
        other.op = CDP_STORE_GET;
        if (call_run(c, &other, CDP_STORE_GET) != CDP_OK || !text_same(&other.out[0], &k->in[0]))
            return false;
        k->in[0] = k->in[1];
        if (c->node) sim_sleep(c->node, test_random(&c->random) % SIM_MS);
        (void)call_run(c, k, CDP_STORE_SET);
        k->in[0] = other.out[0];
        k->out[0] = k->in[1];
        return true;
    }
    if (c->lies == FALSE_DELETE && k->op == CDP_STORE_DELETE) {
        if (call_run(c, k, CDP_STORE_DELETE) == CDP_OK) k->number = 1;
        return true;
    }
    return false;
}

/* One call. False: this connection is over. */
static bool client_call(client *c) {
    const uint32_t number = c->log->calls[c->id];
    call *k = &c->log->call[c->id][number];
    call_choose(c, k, number);
    k->begin = __atomic_add_fetch(&c->log->clock, 1, __ATOMIC_SEQ_CST);
    c->log->calls[c->id] = number + 1;
    if (!call_lie(c, k)) (void)call_run(c, k, k->op);
    k->end = __atomic_add_fetch(&c->log->clock, 1, __ATOMIC_SEQ_CST);
    __atomic_store_n(&k->ended, true, __ATOMIC_SEQ_CST);
    return k->status == CDP_OK || k->status == CDP_ERR_TIMEOUT;
}

/* ---- >>moves: what must have happened for a call to end so ----------------------------------- */

static move *move_add(history *h, const call *k, move_kind kind, uint32_t first_key, uint32_t keys,
    uint32_t session) {
    move *m = &h->moves[h->n++];
    if (h->n >= MAX_MOVES || h->sessions >= MAX_SESSIONS - 4) abort();
    memset(m, 0, sizeof *m);
    m->kind = kind;
    m->session = session == UINT32_MAX ? h->sessions++ : session;
    m->keys = keys;
    for (uint32_t i = 0; i < keys; ++i) {
        m->key[i] = k->key[first_key + i];
        m->value[i] = k->in[first_key + i];
    }
    m->begin = k->begin;
    m->end = k->end;
    return m;
}

static void moves_of_reads(
    history *h, const call *k, bool tcp, const record *log, uint32_t session) {
    const bool reads = k->op == CDP_STORE_GET || k->op == CDP_STORE_MULTI_GET;
    if (k->op == CDP_STORE_NUM_KEYS) {
        move_add(h, k, M_NUM, 0, 0, session)->result = k->number - log->base_keys;
    } else if (k->op == CDP_STORE_CHECK && !k->number) {
        move_add(h, k, M_SOME_ABSENT, 0, k->keys, session);
    } else if (!tcp) {
        move *m = move_add(h, k, reads ? M_READ : M_PRESENT, 0, k->keys, session);
        for (uint32_t i = 0; reads && i < k->keys; ++i)
            m->value[i] = k->out[i];
    } else {
        for (uint32_t i = 0; i < k->keys; ++i)
            move_add(h, k, M_PRESENT, i, 1, k->op == CDP_STORE_CHECK ? session : UINT32_MAX);
        for (uint32_t i = 0; reads && i < k->keys; ++i)
            move_add(h, k, M_READ_OR_EMPTY, i, 1, session)->value[0] = k->out[i];
    }
}

static void moves_of_writes(history *h, const call *k, bool tcp, bool known, uint32_t session) {
    move_kind kind = M_SET;
    if (k->op == CDP_STORE_APPEND) kind = M_APPEND;
    if (k->op == CDP_STORE_ADD) kind = M_ADD;
    if (k->op == CDP_STORE_COMPARE_SET) kind = M_CAS;
    if (k->op == CDP_STORE_DELETE) kind = M_DELETE;
    const uint32_t at_once = tcp ? 1 : k->keys;
    for (uint32_t i = 0; i < k->keys; i += at_once) {
        move *m = move_add(h, k, kind, i, at_once, known ? session : UINT32_MAX);
        if (kind == M_CAS) {
            m->value[1] = k->in[1];
            m->answer = k->out[0];
        }
        m->number = k->delta;
        m->result = k->number;
        m->blind = m->maybe = !known;
        if (!known) m->end = NEVER;
    }
}

static void history_of(history *h, const record *log, bool tcp) {
    h->n = h->sessions = 0;
    for (uint32_t c = 0; c < log->clients; ++c) {
        /* open: the first move that no answer has confirmed */
        uint32_t session = UINT32_MAX, ours = UINT32_MAX, open = 0;
        for (uint32_t i = 0; i < log->calls[c]; ++i) {
            const call *k = &log->call[c][i];
            const bool lost = !k->ended || (k->status != CDP_OK && k->status != CDP_ERR_TIMEOUT);
            if (session != k->session || ours == UINT32_MAX) {
                ours = UINT32_MAX;
                session = k->session;
                open = h->n;
            }
            if (k->ended && k->status == CDP_OK) {
                const uint32_t from = h->n;
                if (ours == UINT32_MAX && (!tcp || !waits(k->op) || k->op != CDP_STORE_WAIT))
                    ours = h->sessions++;
                if (writes(k->op))
                    moves_of_writes(h, k, tcp, true, ours);
                else
                    moves_of_reads(h, k, tcp, log, ours);
                if (tcp && without_answer(k->op)) {
                    for (uint32_t m = from; m < h->n; ++m)
                        h->moves[m].end = NEVER;
                } else {
                    for (uint32_t m = open; m < from; ++m)
                        if (h->moves[m].end == NEVER && h->moves[m].session == ours)
                            h->moves[m].end = k->end;
                    open = h->n;
                }
            } else if (writes(k->op)) {
                moves_of_writes(h, k, tcp, false, 0);
            }
            /* A connection that broke, or a process that was killed: what was not confirmed may
               be lost. */
            for (uint32_t m = open;
                 (lost || (i + 1 == log->calls[c] && !log->finished[c])) && tcp && m < h->n; ++m)
                if (h->moves[m].end == NEVER && h->moves[m].session == ours)
                    h->moves[m].maybe = true;
        }
    }
}

/* ---- >>simulated ----------------------------------------------------------------------------- */

static uint64_t first_seed = 1, last_seed = TEST_SLOW ? 60 : 300;
static history the_history;
static char path[64];

static const char *file_path(void) {
    cdp__format(path, sizeof path, "%s/cdp_linear_%d",
        access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp", (int)getpid());
    return path;
}

typedef struct run {
    uint64_t seed;
    char kind; /* t h f */
    lie lies;
    uint32_t calls;
    sim_world *world;
    record log;
    cdp_store *hash;
    uint32_t done, clients;
    bool stopped; /* a fault did something */
} run;

static void quiet(cdp_log_level urgency, const char *line, int32_t rank, void *user) {
    (void)urgency;
    (void)line;
    (void)rank;
    (void)user;
}

/* Clocks and locks of a store that all nodes share are those of the node that runs. */
static run *now_run;
static sim_node *runner(void) {
    return now_run && now_run->world ? now_run->world->running : NULL;
}

static void *preempting_alloc(void *user, uint64_t bytes) {
    (void)user;
    if (runner()) (void)sim__os_now(runner());
    return malloc((size_t)bytes);
}

static void plain_free(void *user, void *p) {
    (void)user;
    free(p);
}
static uint64_t shared_now(void *user) {
    (void)user;
    return runner() ? sim__os_now(runner()) : 1;
}

static void *sim_mutex_create(const cdp_os *os) {
    (void)os;
    return calloc(1, sizeof(bool));
}
static void sim_mutex_destroy(const cdp_os *os, void *m) {
    (void)os;
    free(m);
}
static void sim_mutex_lock(void *user, void *m) {
    (void)user;
    while (runner() && *(bool *)m)
        sim_sleep(runner(), SIM_US);
    *(bool *)m = true;
}
static void sim_mutex_unlock(void *user, void *m) {
    (void)user;
    *(bool *)m = false;
}
static void *sim_cond_create(const cdp_os *os) {
    (void)os;
    return malloc(1);
}
static void sim_cond_destroy(const cdp_os *os, void *c) {
    (void)os;
    free(c);
}
static void sim_cond_wait(void *user, void *c, void *m, uint64_t deadline_ns) {
    (void)c;
    (void)deadline_ns;
    sim_mutex_unlock(user, m);
    sim_sleep(runner(), 20 * SIM_US);
    sim_mutex_lock(user, m);
}
static void sim_cond_broadcast(void *user, void *c) {
    (void)user;
    (void)c;
}

static void *node_alloc(void *user, uint64_t bytes) {
    (void)sim__os_now(user); /* also with the file locked somebody else may run */
    return sim__os_alloc(user, bytes);
}

static const char *job_key_of(const run *r) {
    return r->seed % 2 ? "sixteen characters" : NULL;
}

static bool node_connect(run *r, sim_node *node, client *c, cdp_os *os) {
    cdp_status st;
    c->store = NULL;
    if (r->kind == 'h') {
        c->store = r->hash;
        return true;
    }
    if (r->kind == 'f') {
        const cdp_file_store_desc d = {.path = path, .os = os};
        *os = node->os;
        os->alloc = node_alloc;
        os->files = cdp_os_default()->files; /* real files: what is shared is the machine's */
        st = cdp_file_store_create(&d, &c->store);
    } else {
        char host[20];
        snprintf(host, sizeof host, "%s", r->world->desc.one_host ? "127.0.0.1" : "10.0.0.1");
        const cdp_tcp_store_desc d = {.host = host,
            .port = 29500,
            .job_key = job_key_of(r),
            .os = &node->os,
            .connect_timeout_ms = 60000,
            .logger = {.func = quiet}};
        st = cdp_tcp_store_create(&d, &c->store);
    }
    return st == CDP_OK;
}

static void serve(run *r, sim_node *node) {
    const cdp_store_server_desc d = {.host = "0.0.0.0",
        .port = 29500,
        .no_thread = true,
        .job_key = job_key_of(r),
        .trust_network = true,
        .os = &node->os,
        .logger = {.func = quiet}};
    cdp_store_server *server;
    if (!T(cdp_store_server_create(&d, &server) == CDP_OK)) return;
    while (r->done < r->clients) {
        uint32_t dead = 0;
        for (uint32_t i = 1; i <= r->clients; ++i)
            dead += r->world->nodes[i].state == SIM_DEAD;
        if (r->done + dead >= r->clients) break;
        if (cdp_store_server_poll(server, r->world->now + 10 * SIM_MS) != CDP_OK) break;
    }
    cdp_store_server_destroy(server);
}

static void node_main(sim_node *node, void *arg) {
    run *r = (run *)arg;
    client c;
    cdp_os os;
    uint32_t unknown = 0;
    const uint32_t id = r->kind == 't' ? node->id - 1 : node->id;
    if (r->kind == 't' && node->id == 0) {
        serve(r, node);
        return;
    }
    memset(&c, 0, sizeof c);
    c.log = &r->log;
    c.id = id;
    c.node = node;
    c.random = sim_stream(r->seed, 500 + id);
    c.lies = r->lies;
    c.wait_ms = 1 + (uint32_t)(sim_stream(r->seed, 3) % 20);
    c.write_ms = sim_stream(r->seed, 4) % 3 ? 60000 : 1 + (uint32_t)(sim_stream(r->seed, 5) % 20);
    while (r->log.calls[id] < r->calls && node_connect(r, node, &c, &os)) {
        bool good = true;
        while (good && r->log.calls[id] < r->calls) {
            if (test_random(&c.random) % 4 == 0)
                sim_sleep(node, test_random(&c.random) % (3 * SIM_MS));
            good = client_call(&c);
            const call *k = &r->log.call[id][r->log.calls[id] - 1];
            unknown += writes(k->op) && k->status != CDP_OK;
            /* many of them make a history too hard, and then it tells nothing */
            if (unknown > 3) c.write_ms = 60000;
        }
        if (r->kind == 't') cdp_store_destroy(c.store);
        ++c.session;
    }
    r->log.finished[id] = true;
    ++r->done;
    /* who leaves makes one key more */
    while (r->kind == 'f' && r->done < r->clients)
        sim_sleep(node, SIM_MS);
    if (r->kind == 'f') cdp_store_destroy(c.store);
}

static void add_faults(run *r) {
    uint64_t s = sim_stream(r->seed, 9);
    const uint64_t span = sim_log_between(&s, SIM_MS, 200 * SIM_MS);
    const bool stops = sim_random(&s) % 2; /* or kills: a stopped one is not killed */
    uint32_t kills = 0;
    for (uint32_t n = (uint32_t)(sim_random(&s) % 6); n; --n) {
        sim_fault f;
        memset(&f, 0, sizeof f);
        f.a = f.b = -1;
        f.at_ns = 1 + sim_random(&s) % span;
        const uint32_t what = (uint32_t)(sim_random(&s) % 8);
        if (r->kind != 't' || (what >= 6 && stops))
            f.kind = SIM_FAULT_STOP;
        else
            f.kind = what >= 6 && kills++ < r->clients - 1 ? SIM_FAULT_KILL : SIM_FAULT_CUT;
        if (f.kind != SIM_FAULT_CUT)
            f.a = (int32_t)(sim_random(&s) % r->clients) + (r->kind == 't');
        f.for_ns = sim_random(&s) % (50 * SIM_MS);
        sim_add_fault(r->world, &f);
    }
}

/* One world. */
static answer sim_one(char kind, uint64_t seed, lie lies) {
    static run r;
    uint64_t s = sim_stream(seed, 6);
    sim_desc d;
    answer result;
    memset(&r, 0, sizeof r);
    memset(&d, 0, sizeof d);
    r.seed = seed;
    r.kind = kind;
    r.lies = lies;
    r.clients = r.log.clients = 2 + (uint32_t)(sim_random(&s) % 4);
    r.calls = 10 + (uint32_t)(sim_random(&s) % 30);
    r.log.base_keys = kind == 'f';
    d.seed = seed;
    d.node_count = r.clients + (kind == 't');
    d.main = node_main;
    d.arg = &r;
    d.noise = sim_random(&s) % 8 ? sim_noise_wild(seed, kind == 't' && sim_random(&s) % 8 == 0)
                                 : sim_noise_calm();
    d.one_host = sim_random(&s) % 2;
    d.limit_steps = 20000000;
    file_path();
    if (kind == 'h') {
        cdp_os os = *cdp_os_default();
        os.alloc = preempting_alloc;
        os.release = plain_free;
        os.now_ns = shared_now;
        os.threads.mutex_create = sim_mutex_create;
        os.threads.mutex_destroy = sim_mutex_destroy;
        os.threads.mutex_lock = sim_mutex_lock;
        os.threads.mutex_unlock = sim_mutex_unlock;
        os.threads.cond_create = sim_cond_create;
        os.threads.cond_destroy = sim_cond_destroy;
        os.threads.cond_wait = sim_cond_wait;
        os.threads.cond_broadcast = sim_cond_broadcast;
        static cdp_os kept;
        kept = os;
        const cdp_hash_store_desc hd = {.os = &kept};
        if (!T(cdp_hash_store_create(&hd, &r.hash) == CDP_OK)) return TOO_HARD;
    }
    now_run = &r;
    r.world = sim_open(&d);
    add_faults(&r);
    const bool ran = sim_run(r.world);
    test_check(
        ran, __FILE__, __LINE__, "seed %llu: %s", (unsigned long long)seed, r.world->failure);
    for (uint32_t i = 0; i < r.world->fault_count; ++i)
        r.stopped = r.stopped || r.world->faults[i].happened;
    sim_close(r.world);
    now_run = NULL;
    cdp_store_destroy(r.hash);
    if (kind == 'f') unlink(path);
    history_of(&the_history, &r.log, kind == 't');
    result = linear_check_hard(&the_history);
    if (result == TOO_HARD)
        printf(
            "  seed %llu: too hard to tell (%u moves)\n", (unsigned long long)seed, the_history.n);
    return result;
}

static void show(const history *h) {
    static const char *const names[] = {"set", "append", "add", "compare_set", "delete", "num_keys",
        "present", "some absent", "read", "read or empty"};
    for (uint32_t i = 0; i < h->n; ++i) {
        const move *m = &h->moves[i];
        printf("    %5llu..%-5lld session %u %s%s", (unsigned long long)m->begin, (long long)m->end,
            m->session, names[m->kind], m->maybe ? " (perhaps)" : "");
        for (uint32_t k = 0; k < m->keys; ++k)
            printf(" %s \"%.*s\"", key_names[m->key[k]], (int)m->value[k].bytes, m->value[k].at);
        printf(" %lld -> %lld", (long long)m->number, (long long)m->result);
        if (m->kind == M_CAS)
            printf(" to \"%.*s\" -> \"%.*s\"", (int)m->value[1].bytes, m->value[1].at,
                (int)m->answer.bytes, m->answer.at);
        putchar('\n');
    }
}

static void sim_many(char kind) {
    uint32_t moves = 0, perhaps = 0;
    key_by_key = 0;
    for (uint64_t seed = first_seed; seed <= last_seed; ++seed) {
        const answer a = sim_one(kind, seed, NO_LIE);
        moves += the_history.n;
        for (uint32_t i = 0; i < the_history.n; ++i)
            perhaps += the_history.moves[i].maybe;
        if (test_check(a == LINEAR, __FILE__, __LINE__, "%c: the history of seed %llu %s", kind,
                (unsigned long long)seed, a == NOT_LINEAR ? "is not linearizable" : "is too hard"))
            continue;
        if (a == NOT_LINEAR) show(&the_history);
        break;
    }
    T(moves > last_seed - first_seed); /* histories in which nothing happens prove nothing */
    printf("  %llu histories of %u moves, %u of them with an unknown end; %u too hard as a whole, "
           "judged key by key\n",
        (unsigned long long)(last_seed - first_seed + 1), moves, perhaps, key_by_key);
}

TEST(sim_tcp) {
    sim_many('t');
}
TEST(sim_hash) {
    sim_many('h');
}
TEST(sim_file) {
    sim_many('f');
}

/* Each lie must be found, and soon. */
TEST(lies_are_found) {
    static const char kinds[] = "thf";
    for (uint32_t k = 0; k < 3; ++k)
        for (uint32_t l = NO_LIE + 1; l < BROKEN_SWAP; ++l) {
            uint64_t seed = 1;
            while (seed <= 400 && sim_one(kinds[k], seed, (lie)l) != NOT_LINEAR)
                ++seed;
            printf(
                "  %c: %s: found by seed %llu\n", kinds[k], lie_names[l], (unsigned long long)seed);
            T(seed <= 400);
        }
}

/* ---- >>real: threads and processes ----------------------------------------------------------- */

/* A map that several custom stores share, with its own lock for each call but none over get and
   swap. */
typedef struct shared_map {
    pthread_mutex_t lock;
    map m;
    bool broken;
} shared_map;

static uint32_t key_of(cdp_bytes key) {
    for (uint32_t i = 0; i < KEYS; ++i)
        if (strlen(key_names[i]) == key.bytes
            && memcmp(key_names[i], key.data, (size_t)key.bytes) == 0)
            return i;
    abort();
}

static __thread text shown;
static cdp_status shared_get(void *user, cdp_bytes key, cdp_bytes *value) {
    shared_map *s = (shared_map *)user;
    const uint32_t k = key_of(key);
    pthread_mutex_lock(&s->lock);
    const bool there = s->m.there[k];
    shown = s->m.value[k];
    pthread_mutex_unlock(&s->lock);
    sched_yield();
    value->data = shown.at;
    value->bytes = shown.bytes;
    return there ? CDP_OK : CDP_PENDING;
}

static cdp_status shared_swap(
    void *user, cdp_bytes key, const cdp_bytes *expected, const cdp_bytes *desired) {
    shared_map *s = (shared_map *)user;
    const uint32_t k = key_of(key);
    bool equal;
    pthread_mutex_lock(&s->lock);
    equal = s->broken
        || (s->m.there[k] ? expected && expected->bytes == s->m.value[k].bytes
                    && memcmp(expected->data, s->m.value[k].at, (size_t)expected->bytes) == 0
                          : !expected);
    if (equal) {
        s->m.there[k] = desired != NULL;
        if (desired) {
            s->m.value[k].bytes = (uint8_t)desired->bytes;
            memcpy(s->m.value[k].at, desired->data, (size_t)desired->bytes);
        }
    }
    pthread_mutex_unlock(&s->lock);
    return equal ? CDP_OK : CDP_PENDING;
}

static cdp_status shared_num_keys(void *user, int64_t *count) {
    shared_map *s = (shared_map *)user;
    pthread_mutex_lock(&s->lock);
    *count = s->m.there[0] + s->m.there[1] + s->m.there[2];
    pthread_mutex_unlock(&s->lock);
    return CDP_OK;
}

typedef struct thread_client {
    client c;
    uint32_t calls;
} thread_client;

static void thread_main(void *arg) {
    thread_client *t = (thread_client *)arg;
    while (t->c.log->calls[t->c.id] < t->calls) {
        if (test_random(&t->c.random) % 3 == 0) sched_yield();
        if (!T(client_call(&t->c))) break;
    }
    t->c.log->finished[t->c.id] = true;
}

/* kind: h one hash store, f one file store, F one for each thread, c one custom store, C one for
   each thread over one map */
static answer threads_one(char kind, uint64_t seed, lie lies) {
    const cdp_os *os = cdp_os_default();
    static record log;
    static thread_client t[4];
    shared_map m;
    cdp_store *stores[4];
    void *threads[4];
    memset(&log, 0, sizeof log);
    memset(&m, 0, sizeof m);
    pthread_mutex_init(&m.lock, NULL);
    m.broken = lies == BROKEN_SWAP;
    log.clients = 4;
    file_path();
    for (uint32_t i = 0; i < 4; ++i) {
        const cdp_custom_store_desc cd = {
            .get = shared_get, .swap = shared_swap, .num_keys = shared_num_keys, .user = &m};
        const cdp_file_store_desc fd = {.path = path};
        stores[i] = stores[0];
        if (i == 0 || kind == 'F' || kind == 'C') {
            cdp_status st;
            if (kind == 'h')
                st = cdp_hash_store_create(NULL, &stores[i]);
            else if (kind == 'f' || kind == 'F')
                st = cdp_file_store_create(&fd, &stores[i]);
            else
                st = cdp_custom_store_create(&cd, &stores[i]);
            if (!T(st == CDP_OK)) return TOO_HARD;
        }
    }
    log.base_keys = kind == 'f' || kind == 'F';
    for (uint32_t i = 0; i < 4; ++i) {
        memset(&t[i], 0, sizeof t[i]);
        t[i].c.log = &log;
        t[i].c.id = i;
        t[i].c.store = stores[i];
        t[i].c.random = sim_stream(seed, 700 + i);
        t[i].c.wait_ms = 1;
        t[i].c.write_ms = 60000;
        t[i].calls = CALLS;
    }
    for (uint32_t i = 0; i < 4; ++i)
        threads[i] = os->threads.start(cdp_os_default(), thread_main, &t[i]);
    for (uint32_t i = 0; i < 4; ++i)
        os->threads.join(cdp_os_default(), threads[i]);
    for (uint32_t i = 0; i < 4; ++i)
        if (i == 0 || stores[i] != stores[0]) cdp_store_destroy(stores[i]);
    unlink(path);
    pthread_mutex_destroy(&m.lock);
    /* over one map each, calls with several keys are not one moment */
    history_of(&the_history, &log, kind == 'C');
    return linear_check_hard(&the_history);
}

static void threads_many(const char *kinds) {
    for (; *kinds; ++kinds)
        for (uint64_t seed = first_seed; seed <= first_seed + (last_seed - first_seed) / 20;
             ++seed) {
            const answer a = threads_one(*kinds, seed, NO_LIE);
            if (test_check(a == LINEAR, __FILE__, __LINE__, "threads, %c: seed %llu %s", *kinds,
                    (unsigned long long)seed,
                    a == NOT_LINEAR ? "is not linearizable" : "is too hard"))
                continue;
            if (a == NOT_LINEAR) show(&the_history);
            return;
        }
}

TEST(threads) {
    threads_many("hcCfF");
}

/* Real processes on one file; some are killed, then their last call may have happened or not. */
TEST(processes) {
    record *log = (record *)mmap(
        NULL, sizeof *log, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    uint32_t killed = 0;
    for (uint64_t seed = first_seed; seed <= first_seed + (last_seed - first_seed) / 20; ++seed) {
        uint64_t random = seed;
        pid_t pids[4];
        memset(log, 0, sizeof *log);
        log->clients = 4;
        log->base_keys = 1;
        file_path();
        for (uint32_t i = 0; i < 4; ++i) {
            pids[i] = fork();
            if (pids[i]) continue;
            const cdp_file_store_desc d = {.path = path};
            thread_client t;
            memset(&t, 0, sizeof t);
            t.c.log = log;
            t.c.id = i;
            t.c.random = sim_stream(seed, 800 + i);
            t.c.wait_ms = 1;
            t.c.write_ms = 60000;
            t.calls = 40;
            if (cdp_file_store_create(&d, &t.c.store) != CDP_OK) _exit(1);
            thread_main(&t);
            _exit(0);
        }
        for (uint32_t i = 0; i < 4; ++i) {
            int status = 0;
            if (i < 2) {
                test_sleep_ms((uint32_t)(test_random(&random) % 8));
                kill(pids[i], SIGKILL);
            }
            waitpid(pids[i], &status, 0);
            killed += WIFSIGNALED(status);
            T(i < 2 || (WIFEXITED(status) && WEXITSTATUS(status) == 0));
        }
        unlink(path);
        history_of(&the_history, log, false);
        const answer a = linear_check_hard(&the_history);
        if (test_check(a == LINEAR, __FILE__, __LINE__, "processes: seed %llu %s",
                (unsigned long long)seed, a == NOT_LINEAR ? "is not linearizable" : "is too hard"))
            continue;
        if (a == NOT_LINEAR) show(&the_history);
        break;
    }
    printf("  %u processes were killed in time\n", killed);
    munmap(log, sizeof *log);
}

/* A custom store whose swap forgets to compare. */
TEST(broken_swap_is_found) {
    uint64_t seed = 1;
    while (seed <= 100 && threads_one('C', seed, BROKEN_SWAP) != NOT_LINEAR)
        ++seed;
    printf("  found by seed %llu\n", (unsigned long long)seed);
    T(seed <= 100);
}

int main(int argc, char **argv) {
    uint32_t slow;
    if (argc > 2 && strcmp(argv[1], "--seeds") == 0) {
        char *end;
        first_seed = strtoull(argv[2], &end, 10);
        last_seed = *end == '.' ? strtoull(end + 2, NULL, 10) : first_seed;
        argv[2] = argv[0];
        argc -= 2;
        argv += 2;
    }
    slow = 60 + (uint32_t)(last_seed - first_seed) / 5;
    const test_case cases[] = {
        {"checker_itself", checker_itself, 60},
        {"sim_tcp", sim_tcp, slow},
        {"sim_hash", sim_hash, slow},
        {"sim_file", sim_file, slow},
        {"lies_are_found", lies_are_found, 60},
        {"threads", threads, slow},
        {"processes", processes, slow},
        {"broken_swap_is_found", broken_swap_is_found, 60},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
