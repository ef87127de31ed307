/* cdp_store.h: every operation on every kind of store. One table of requests and one random
   program with a model beside it run over hash, custom, file and TCP stores, over prefixes of
   each and over prefixes in prefixes. */
#define CDP_IMPLEMENTATION
#include "cdp_store.h"
#include "test.h"

#define OK(call) ended((call), CDP_OK, #call, __LINE__)
#define ST(call, status) ended((call), (status), #call, __LINE__)
#define TEXT(part) T_TEXT(part, cdp_last_error()->text)

static const char *now_kind = "";

static bool ended(cdp_status got, cdp_status want, const char *what, int line) {
    return test_check(got == want, __FILE__, line, "%s: %s: %s: %s", now_kind, what,
        cdp_status_name(got), got < 0 ? cdp_last_error()->text : "");
}

/* ---- a store as a user would write it: an array, two functions, and the optional ones ---- */

typedef struct my_entry {
    bool there;
    char key[9000];
    uint64_t key_bytes, value_bytes;
    char *value;
} my_entry;

typedef struct my_store {
    my_entry entries[64];
    uint32_t destroyed;
    uint32_t refuse; /* so many swaps fail, as if somebody else had been faster */
    uint32_t gets;
} my_store;

static my_entry *my_find(my_store *s, cdp_bytes key) {
    for (uint32_t i = 0; i < 64; ++i)
        if (s->entries[i].there && s->entries[i].key_bytes == key.bytes
            && memcmp(s->entries[i].key, key.data ? key.data : "", (size_t)key.bytes) == 0)
            return &s->entries[i];
    return NULL;
}

static cdp_status my_get(void *user, cdp_bytes key, cdp_bytes *value) {
    my_entry *e = my_find((my_store *)user, key);
    ++((my_store *)user)->gets;
    if (!e) return CDP_PENDING;
    value->data = e->value;
    value->bytes = e->value_bytes;
    return CDP_OK;
}

static cdp_status my_swap(
    void *user, cdp_bytes key, const cdp_bytes *expected, const cdp_bytes *desired) {
    my_store *s = (my_store *)user;
    my_entry *e = my_find(s, key);
    char *value = NULL;
    if (s->refuse && s->refuse--) return CDP_PENDING;
    if (!e != !expected) return CDP_PENDING;
    if (e
        && (e->value_bytes != expected->bytes
            || memcmp(e->value, expected->data, (size_t)e->value_bytes) != 0))
        return CDP_PENDING;
    if (desired) {
        value = (char *)malloc((size_t)desired->bytes + 1);
        if (desired->bytes) memcpy(value, desired->data, (size_t)desired->bytes);
    }
    for (uint32_t i = 0; desired && !e && i < 64; ++i)
        if (!s->entries[i].there) e = &s->entries[i];
    if (!e) return desired ? cdp_error_set(CDP_ERR_NOMEM, -1, 0, "my store has 64 keys") : CDP_OK;
    free(e->there ? e->value : NULL);
    e->there = desired != NULL;
    e->value = value;
    e->value_bytes = desired ? desired->bytes : 0;
    e->key_bytes = key.bytes;
    if (key.bytes) memcpy(e->key, key.data, (size_t)key.bytes);
    return CDP_OK;
}

static cdp_status my_num_keys(void *user, int64_t *count) {
    *count = 0;
    for (uint32_t i = 0; i < 64; ++i)
        *count += ((my_store *)user)->entries[i].there;
    return CDP_OK;
}

static void my_destroy(void *user) {
    my_store *s = (my_store *)user;
    ++s->destroyed;
    for (uint32_t i = 0; i < 64; ++i)
        if (s->entries[i].there) free(s->entries[i].value);
}

/* ---- the kinds ---- */

typedef struct kind {
    const char *name;
    char base; /* h c f t */
    uint32_t prefixes;
} kind;

static const kind kinds[] = {
    {"hash", 'h', 0},
    {"prefix/hash", 'h', 1},
    {"prefix/prefix/hash", 'h', 2},
    {"custom", 'c', 0},
    {"prefix/custom", 'c', 1},
    {"prefix/prefix/custom", 'c', 2},
    {"tcp", 't', 0},
    {"prefix/tcp", 't', 1},
    {"prefix/prefix/tcp", 't', 2},
#ifndef CDP_NO_FILE_STORE
    {"file", 'f', 0},
    {"prefix/file", 'f', 1},
    {"prefix/prefix/file", 'f', 2},
#endif
};
#define KINDS (sizeof kinds / sizeof *kinds)

typedef struct world {
    cdp_store *s; /* what is tested */
    cdp_store *stack[3];
    uint32_t depth;
    my_store *mine;
    cdp_store_server *server;
    char path[64];
} world;

static bool world_open(world *w, const kind *k, const cdp_os *os) {
    bool ok = true;
    memset(w, 0, sizeof *w);
    now_kind = k->name;
    if (k->base == 'h') {
        const cdp_hash_store_desc d = {.os = os};
        ok = OK(cdp_hash_store_create(&d, &w->s));
    } else if (k->base == 'c') {
        w->mine = (my_store *)calloc(1, sizeof *w->mine);
        const cdp_custom_store_desc d = {.get = my_get,
            .swap = my_swap,
            .num_keys = my_num_keys,
            .destroy = my_destroy,
            .user = w->mine,
            .os = os};
        ok = OK(cdp_custom_store_create(&d, &w->s));
    } else if (k->base == 't') {
        const cdp_store_server_desc sd = {.os = os};
        ok = OK(cdp_store_server_create(&sd, &w->server));
        const cdp_tcp_store_desc d = {.host = "127.0.0.1",
            .port = ok ? cdp_store_server_port(w->server) : (uint16_t)0,
            .os = os};
        ok = ok && OK(cdp_tcp_store_create(&d, &w->s));
#ifndef CDP_NO_FILE_STORE
    } else {
        static uint32_t number;
        cdp__format(w->path, sizeof w->path, "/tmp/cdp_kinds_%d_%u", (int)getpid(), ++number);
        const cdp_file_store_desc d = {.path = w->path, .world_size = 1, .os = os};
        ok = OK(cdp_file_store_create(&d, &w->s));
#endif
    }
    w->stack[0] = w->s;
    for (w->depth = 1; ok && w->depth <= k->prefixes; ++w->depth) {
        ok = OK(cdp_prefix_store_create(w->s, w->depth == 1 ? "outer" : "in", &w->s));
        w->stack[w->depth] = w->s;
    }
    return ok;
}

static void world_close(world *w) {
    for (uint32_t i = w->depth; i > 0; --i)
        cdp_store_destroy(w->stack[i - 1]);
    cdp_store_server_destroy(w->server);
    if (w->mine) T(w->mine->destroyed == 1);
    free(w->mine);
    if (*w->path) T(access(w->path, F_OK) != 0); /* the last one removes the file */
    now_kind = "";
}

/* ---- the table ---- */

/* keys, values and results: lists with | between; ~ is a zero byte; keys NULL: none. */
typedef struct row {
    cdp_store_op op;
    const char *keys, *values;
    int64_t delta;
    cdp_status status;
    int64_t number; /* of ADD, CHECK, DELETE, NUM_KEYS (how many more than at first) */
    const char *results;
} row;

#define SET CDP_STORE_SET
#define GET CDP_STORE_GET
#define ADD CDP_STORE_ADD
#define CAS CDP_STORE_COMPARE_SET
#define WAIT CDP_STORE_WAIT
#define CHECK CDP_STORE_CHECK
#define DEL CDP_STORE_DELETE
#define NUM CDP_STORE_NUM_KEYS
#define APPEND CDP_STORE_APPEND
#define MGET CDP_STORE_MULTI_GET
#define MSET CDP_STORE_MULTI_SET
#define GOOD CDP_OK
#define LATE CDP_ERR_TIMEOUT
#define WRONG CDP_ERR_INVALID

static const row rows[] = {
    {NUM, NULL, NULL, 0, GOOD, 0, NULL}, {CHECK, "k", NULL, 0, GOOD, 0, NULL},
    {GET, "k", NULL, 0, LATE, 0, NULL}, {SET, "k", "one", 0, GOOD, 0, NULL},
    {GET, "k", NULL, 0, GOOD, 0, "one"}, {CHECK, "k", NULL, 0, GOOD, 1, NULL},
    {NUM, NULL, NULL, 0, GOOD, 1, NULL},
    {SET, "k", "", 0, GOOD, 0, NULL}, /* an empty value is a value */
    {GET, "k", NULL, 0, GOOD, 0, ""}, {CHECK, "k", NULL, 0, GOOD, 1, NULL},
    {SET, "k", "a~b~~", 0, GOOD, 0, NULL}, {GET, "k", NULL, 0, GOOD, 0, "a~b~~"},
    {SET, "", "empty key", 0, GOOD, 0, NULL}, {GET, "", NULL, 0, GOOD, 0, "empty key"},
    {SET, "~", "zero key", 0, GOOD, 0, NULL}, {SET, "~~", "two", 0, GOOD, 0, NULL},
    {MGET, "~|~~|", NULL, 0, GOOD, 0, "zero key|two|empty key"},
    {NUM, NULL, NULL, 0, GOOD, 4, NULL}, {DEL, "~~", NULL, 0, GOOD, 1, NULL},
    {DEL, "~~", NULL, 0, GOOD, 0, NULL}, /* gone already */
    {CHECK, "~|~~", NULL, 0, GOOD, 0, NULL}, {CHECK, "~|", NULL, 0, GOOD, 1, NULL},
    {WAIT, "~||k", NULL, 0, GOOD, 0, NULL}, {WAIT, "~|never", NULL, 0, LATE, 0, NULL},
    {WAIT, "k|k", NULL, 0, GOOD, 0, NULL}, {WAIT, "never|never", NULL, 0, LATE, 0, NULL},
    {MGET, "k|never", NULL, 0, LATE, 0, NULL}, {DEL, "", NULL, 0, GOOD, 1, NULL},
    {DEL, "~", NULL, 0, GOOD, 1, NULL}, {NUM, NULL, NULL, 0, GOOD, 1, NULL},
    {ADD, "n", NULL, 5, GOOD, 5, NULL}, /* absent counts as 0 */
    {ADD, "n", NULL, -7, GOOD, -2, NULL}, {GET, "n", NULL, 0, GOOD, 0, "-2"},
    {ADD, "n", NULL, 0, GOOD, -2, NULL}, {SET, "n", " 7", 0, GOOD, 0, NULL},
    {ADD, "n", NULL, 1, GOOD, 8, NULL}, /* as C++'s stoll reads numbers */
    {SET, "n", "12abc", 0, GOOD, 0, NULL}, {ADD, "n", NULL, 1, GOOD, 13, NULL},
    {GET, "n", NULL, 0, GOOD, 0, "13"}, {SET, "n", "9223372036854775807", 0, GOOD, 0, NULL},
    {ADD, "n", NULL, 1, GOOD, INT64_MIN, NULL}, {DEL, "n", NULL, 0, GOOD, 1, NULL},
    /* absent, something expected: what was expected, and nothing stored */
    {CAS, "c", "x|first", 0, GOOD, 0, "x"}, {CHECK, "c", NULL, 0, GOOD, 0, NULL},
    {CAS, "c", "|first", 0, GOOD, 0, "first"}, {CAS, "c", "first|second", 0, GOOD, 0, "second"},
    {CAS, "c", "first|third", 0, GOOD, 0, "second"}, {CAS, "c", "|fourth", 0, GOOD, 0, "second"},
    {CAS, "c", "second|", 0, GOOD, 0, ""}, {CAS, "c", "x|y", 0, GOOD, 0, ""},
    {CAS, "c", "|z~z", 0, GOOD, 0, "z~z"}, /* an empty value matches an empty expectation */
    {CAS, "c", "z|no", 0, GOOD, 0, "z~z"}, {CAS, "c", "z~z|yes", 0, GOOD, 0, "yes"},
    {GET, "c", NULL, 0, GOOD, 0, "yes"},
    {APPEND, "l", "ab", 0, GOOD, 0, NULL}, /* absent counts as empty */
    {APPEND, "l", "", 0, GOOD, 0, NULL}, {APPEND, "l", "c~", 0, GOOD, 0, NULL},
    {GET, "l", NULL, 0, GOOD, 0, "abc~"}, {APPEND, "m", "", 0, GOOD, 0, NULL},
    {CHECK, "m", NULL, 0, GOOD, 1, NULL}, {MSET, "p|q|r", "1||3", 0, GOOD, 0, NULL},
    {MGET, "r|p|q|p", NULL, 0, GOOD, 0, "3|1||1"},
    {MSET, "p|p", "x|y", 0, GOOD, 0, NULL}, /* the later one wins */
    {GET, "p", NULL, 0, GOOD, 0, "y"}, {NUM, NULL, NULL, 0, GOOD, 7, NULL},
    {CDP_STORE_NONE, NULL, NULL, 0, WRONG, 0, NULL},
    {CDP_STORE_OP_COUNT, NULL, NULL, 0, WRONG, 0, NULL}, {GET, "k|k", NULL, 0, WRONG, 0, NULL},
    {GET, NULL, NULL, 0, WRONG, 0, NULL}, {NUM, "k", NULL, 0, WRONG, 0, NULL},
    {SET, "k", NULL, 0, WRONG, 0, NULL}, {NUM, NULL, NULL, 0, GOOD, 7, NULL},
    {SET, "n", "text", 0, GOOD, 0, NULL},
    {ADD, "n", NULL, 1, WRONG, 0, NULL}, /* the last one: a TCP server hangs up */
};

static uint32_t cut(const char *text, char *room, cdp_bytes *out) {
    uint32_t n = 0;
    out[0].data = room;
    out[0].bytes = 0;
    if (!text) return 0;
    for (;; ++text) {
        if (*text && *text != '|') {
            *room++ = *text == '~' ? 0 : *text;
            ++out[n].bytes;
            continue;
        }
        ++n;
        if (!*text) return n;
        out[n].data = room;
        out[n].bytes = 0;
    }
}

static bool same(cdp_bytes a, cdp_bytes b) {
    return a.bytes == b.bytes && (!a.bytes || memcmp(a.data, b.data, (size_t)a.bytes) == 0);
}

static void run_row(world *w, char base, uint32_t i, int64_t first) {
    const row *r = &rows[i];
    char k[100], v[100], x[100];
    cdp_bytes keys[8], values[8], results[8];
    cdp_store_request rq;
    cdp_status want = r->op == ADD && r->status == WRONG && base == 't' ? CDP_ERR_STORE : r->status,
               got;
    memset(&rq, 0, sizeof rq);
    rq.op = r->op;
    rq.key_count = cut(r->keys, k, keys);
    rq.keys = keys;
    rq.values = cut(r->values, v, values) ? values : NULL;
    rq.delta = r->delta;
    got = cdp_store_run(w->s, &rq, want == LATE ? 20 : 20000);
    test_check(got == want, __FILE__, __LINE__, "%s row %u: %s: %s", now_kind, i,
        cdp_status_name(got), got < 0 ? cdp_last_error()->text : "");
    if (got < 0) T(strlen(cdp_last_error()->text) > 15 && !rq.results);
    if (got != CDP_OK) return;
    if (r->op == ADD || r->op == CHECK || r->op == DEL)
        test_check(rq.number == r->number, __FILE__, __LINE__, "%s row %u: %lld", now_kind, i,
            (long long)rq.number);
    if (r->op == NUM)
        test_check(rq.number - first == r->number, __FILE__, __LINE__, "%s row %u: %lld keys",
            now_kind, i, (long long)(rq.number - first));
    const uint32_t n = cut(r->results, x, results);
    T((n != 0) == (rq.results != NULL));
    for (uint32_t j = 0; j < n && rq.results; ++j) {
        test_check(same(rq.results[j], results[j]), __FILE__, __LINE__,
            "%s row %u: result %u differs", now_kind, i, j);
        T(((const char *)rq.results[j].data)[rq.results[j].bytes] == 0);
    }
    cdp_store_request_free(w->s, &rq);
}

TEST(table) {
    for (uint32_t k = 0; k < KINDS; ++k) {
        world w;
        int64_t first = 0;
        if (world_open(&w, &kinds[k], NULL) && OK(cdp_store_num_keys(w.s, &first)))
            for (uint32_t i = 0; i < sizeof rows / sizeof *rows; ++i)
                run_row(&w, kinds[k].base, i, first);
        world_close(&w);
    }
}

/* ---- a random program, with a model ---- */

#define MODEL_KEYS 7
#define MODEL_ROOM (3u << 20)

typedef struct model {
    bool there[MODEL_KEYS];
    char *value[MODEL_KEYS];
    uint64_t bytes[MODEL_KEYS];
} model;

static cdp_bytes model_key(uint32_t i) {
    static const char texts[] = "a\0b\0c~\0";
    static char longest[8192];
    cdp_bytes b = {.data = texts + (i < 4 ? 2 * i : 0), .bytes = 1};
    if (i == 3) b.bytes = 0;
    if (i == 4) {
        b.data = texts;
        b.bytes = 2;
    } /* "a" and a zero */
    if (i == 5) {
        b.data = "outer/in/a";
        b.bytes = 10;
    }
    if (i == 6) {
        memset(longest, 'k', sizeof longest);
        b.data = longest;
        b.bytes = 8191 - 9; /* with "outer/" and "in/" in front */
    }
    return b;
}

static void model_set(model *m, uint32_t i, uint64_t at, cdp_bytes v) {
    if (v.bytes) memcpy(m->value[i] + at, v.data, (size_t)v.bytes);
    m->bytes[i] = at + v.bytes;
    m->there[i] = true;
}

static bool model_is(const model *m, uint32_t i, cdp_bytes v) {
    const cdp_bytes mine = {.data = m->value[i], .bytes = m->bytes[i]};
    return same(mine, v);
}

static cdp_bytes random_value(uint64_t *random, char *room) {
    cdp_bytes v = {.data = room, .bytes = test_random(random) % 12};
    const uint64_t kind_of = test_random(random) % 400;
    if (kind_of == 0) v.bytes = 1u << 20;
    if (kind_of > 200)
        v.bytes = (uint64_t)sprintf(room, "%lld", (long long)(test_random(random) % 1000) - 500);
    else
        for (uint64_t i = 0; i < v.bytes; ++i)
            room[i] = (char)(test_random(random) >> 60 ? test_random(random) : 0);
    return v;
}

/* Whether the request, just ended, did to the store what it does to the model. */
static bool model_step(
    model *m, const cdp_store_request *rq, const uint32_t *which, int64_t first) {
    int64_t n = 0;
    bool all = true;
    const uint32_t i = which[0];
    for (uint32_t j = 0; j < rq->key_count; ++j)
        all = all && m->there[which[j]];
    switch (rq->op) {
    case SET: model_set(m, i, 0, rq->values[0]); return rq->status == CDP_OK;
    case APPEND:
        model_set(m, i, m->there[i] ? m->bytes[i] : 0, rq->values[0]);
        return rq->status == CDP_OK;
    case MSET:
        for (uint32_t j = 0; j < rq->key_count; ++j)
            model_set(m, which[j], 0, rq->values[j]);
        return rq->status == CDP_OK;
    case GET:
    case MGET:
        if (!all) return rq->status == LATE;
        for (uint32_t j = 0; j < rq->key_count && rq->status == CDP_OK; ++j)
            all = all && model_is(m, which[j], rq->results[j]);
        return all && rq->status == CDP_OK;
    case WAIT: return rq->status == (all ? CDP_OK : LATE);
    case CHECK: return rq->status == CDP_OK && rq->number == all;
    case DEL: m->there[i] = false; return rq->status == CDP_OK && rq->number == all;
    case NUM:
        for (uint32_t j = 0; j < MODEL_KEYS; ++j)
            n += m->there[j];
        return rq->status == CDP_OK && rq->number - first == n;
    case ADD: {
        char text[24];
        if (m->there[i]) {
            m->value[i][m->bytes[i]] = 0;
            n = strtoll(m->value[i], NULL, 10);
        }
        n += rq->delta;
        const cdp_bytes v = {.data = text, .bytes = (uint64_t)sprintf(text, "%lld", (long long)n)};
        model_set(m, i, 0, v);
        return rq->status == CDP_OK && rq->number == n;
    }
    default: {
        const bool equal = m->there[i] ? model_is(m, i, rq->values[0]) : rq->values[0].bytes == 0;
        if (rq->status != CDP_OK) return false;
        if (equal) model_set(m, i, 0, rq->values[1]);
        return m->there[i] ? model_is(m, i, rq->results[0]) : same(rq->results[0], rq->values[0]);
    }
    }
}

static bool model_number(const model *m, uint32_t i) {
    int64_t n;
    return !m->there[i] || cdp__number_parse((const uint8_t *)m->value[i], m->bytes[i], &n);
}

static void random_program(world *w, uint64_t seed, uint32_t steps, model *m, char *const room[3]) {
    uint64_t random = seed;
    int64_t first = 0;
    OK(cdp_store_num_keys(w->s, &first));
    memset(m->there, 0, sizeof m->there);
    for (uint32_t step = 0; step < steps; ++step) {
        cdp_store_request rq;
        cdp_bytes keys[3], values[3];
        uint32_t which[3];
        memset(&rq, 0, sizeof rq);
        rq.op = (cdp_store_op)(1 + test_random(&random) % CDP_STORE_MULTI_SET);
        rq.keys = keys;
        rq.values = values;
        rq.key_count = rq.op != NUM;
        if (rq.op == MSET || rq.op == MGET || rq.op == WAIT || rq.op == CHECK)
            rq.key_count = (uint32_t)(test_random(&random) % 4);
        rq.delta = (int64_t)(test_random(&random) % 100) - 50;
        for (uint32_t j = 0; j < 3; ++j) {
            which[j] = (uint32_t)(test_random(&random) % MODEL_KEYS);
            keys[j] = model_key(which[j]);
            values[j] = random_value(&random, room[j]);
        }
        if (rq.op == CAS && test_random(&random) % 2 && m->there[which[0]]) {
            values[0].data = m->value[which[0]];
            values[0].bytes = m->bytes[which[0]];
        }
        if (rq.op == ADD && !model_number(m, which[0])) continue;
        if (rq.op == APPEND && m->there[which[0]] && m->bytes[which[0]] > (1u << 20)) continue;
        (void)!cdp_store_run(
            w->s, &rq, 1 + (rq.op == GET || rq.op == WAIT || rq.op == MGET ? 0 : 20000));
        /* a short wait may be too short on a busy machine: only a second look counts */
        if (rq.op == GET || rq.op == WAIT || rq.op == MGET) {
            bool all = true;
            for (uint32_t j = 0; j < rq.key_count; ++j)
                all = all && m->there[which[j]];
            if (all && rq.status == LATE) (void)!cdp_store_run(w->s, &rq, 20000);
        }
        if (!test_check(model_step(m, &rq, which, first), __FILE__, __LINE__,
                "%s: seed %llu, step %u: op %d on key %u: %s", now_kind, (unsigned long long)seed,
                step, (int)rq.op, which[0], cdp_status_name(rq.status)))
            return;
        if (rq.status == CDP_OK) cdp_store_request_free(w->s, &rq);
    }
}

TEST(random_programs) {
    model m;
    char *room[3];
    for (uint32_t i = 0; i < MODEL_KEYS; ++i)
        m.value[i] = (char *)malloc(MODEL_ROOM);
    for (uint32_t i = 0; i < 3; ++i)
        room[i] = (char *)malloc(1u << 20);
    for (uint32_t k = 0; k < KINDS; ++k)
        for (uint64_t seed = 1; seed <= 3; ++seed) {
            world w;
            if (world_open(&w, &kinds[k], NULL))
                random_program(&w, seed * 1000 + k, TEST_SLOW ? 150 : 600, &m, room);
            world_close(&w);
        }
    for (uint32_t i = 0; i < MODEL_KEYS; ++i)
        free(m.value[i]);
    for (uint32_t i = 0; i < 3; ++i)
        free(room[i]);
}

/* ---- bad input ---- */

TEST(bad_input) {
    static char long_key[8300], big[CDP_STORE_MAX_VALUE_BYTES + 1];
    static const char *const keys[2] = {"k", NULL};
    memset(long_key, 'k', sizeof long_key - 1);
    for (uint32_t k = 0; k < KINDS; ++k) {
        const uint32_t most =
            8191 - (kinds[k].prefixes > 0 ? 6 : 0) - (kinds[k].prefixes > 1 ? 3 : 0);
        world w;
        cdp_store *none;
        void *value = NULL;
        uint64_t bytes;
        int64_t n;
        bool there;
        cdp_bytes values[2] = {{"v", 1}, {NULL, 1}};
        if (!world_open(&w, &kinds[k], NULL)) continue;
        ST(cdp_store_set(w.s, NULL, "x", 1), CDP_ERR_INVALID);
        TEXT("cdp_store_set: key is NULL");
        ST(cdp_store_set(w.s, "k", NULL, 1), CDP_ERR_INVALID);
        TEXT("cdp_store_set: value is NULL (key \"k\")");
        ST(cdp_store_get(w.s, NULL, &value, &bytes, 1), CDP_ERR_INVALID);
        ST(cdp_store_get(w.s, "k", NULL, &bytes, 1), CDP_ERR_INVALID);
        TEXT("value is NULL");
        ST(cdp_store_add(w.s, NULL, 1, &n), CDP_ERR_INVALID);
        ST(cdp_store_append(w.s, "k", NULL, 3), CDP_ERR_INVALID);
        ST(cdp_store_delete(w.s, NULL, &there), CDP_ERR_INVALID);
        ST(cdp_store_num_keys(w.s, NULL), CDP_ERR_INVALID);
        TEXT("count is NULL");
        ST(cdp_store_compare_set(w.s, "k", NULL, 1, "x", 1, &value, &bytes), CDP_ERR_INVALID);
        ST(cdp_store_compare_set(w.s, "k", "x", 1, NULL, 1, &value, &bytes), CDP_ERR_INVALID);
        ST(cdp_store_compare_set(w.s, "k", "x", 1, "x", 1, NULL, &bytes), CDP_ERR_INVALID);
        ST(cdp_store_wait(w.s, NULL, 1, 1), CDP_ERR_INVALID);
        ST(cdp_store_wait(w.s, keys, 2, 1), CDP_ERR_INVALID);
        TEXT("cdp_store_wait: keys[1] is NULL");
        ST(cdp_store_check(w.s, keys, 1, NULL), CDP_ERR_INVALID);
        ST(cdp_store_check(w.s, keys, 2, &there), CDP_ERR_INVALID);
        ST(cdp_store_multi_get(w.s, keys, 1, NULL, &value, 1), CDP_ERR_INVALID);
        ST(cdp_store_multi_get(w.s, keys, 1, values, NULL, 1), CDP_ERR_INVALID);
        ST(cdp_store_multi_set(w.s, keys, NULL, 1), CDP_ERR_INVALID);
        ST(cdp_store_multi_set(w.s, keys, values, 2), CDP_ERR_INVALID);
        ST(cdp_store_run(w.s, NULL, 1), CDP_ERR_INVALID);
        ST(cdp_prefix_store_create(w.s, "p", NULL), CDP_ERR_INVALID);
        ST(cdp_prefix_store_create(w.s, NULL, &none), CDP_ERR_INVALID);
        long_key[most] = 0;
        OK(cdp_store_set(w.s, long_key, "v", 1));
        OK(cdp_store_get(w.s, long_key, &value, &bytes, 0));
        T(bytes == 1 && value && *(char *)value == 'v');
        cdp_store_free(w.s, value);
        long_key[most] = 'k';
        long_key[most + 1] = 0;
        ST(cdp_store_set(w.s, long_key, "v", 1), CDP_ERR_INVALID);
        TEXT("at most 8191 are allowed");
        long_key[most + 1] = 'k';
        OK(cdp_store_set(w.s, "big", big, CDP_STORE_MAX_VALUE_BYTES));
        ST(cdp_store_set(w.s, "big", big, CDP_STORE_MAX_VALUE_BYTES + 1), CDP_ERR_INVALID);
        TEXT("\"");
        TEXT("big\" has 8388609 bytes");
        if (kinds[k].base != 't') { /* a server hangs up */
            ST(cdp_store_append(w.s, "big", "x", 1), CDP_ERR_INVALID);
            TEXT("big\" has 8388609 bytes");
        }
        OK(cdp_store_get(w.s, "big", &value, &bytes, 0)); /* nothing happened to what was there */
        T(bytes == CDP_STORE_MAX_VALUE_BYTES);
        cdp_store_free(w.s, value);
        OK(cdp_store_check(w.s, keys, 1, &there)); /* none of the refused calls did anything */
        T(!there);
        world_close(&w);
    }
}

static cdp_status plain_start(void *self, cdp_store_request *rq) {
    (void)self;
    return rq->status = CDP_OK;
}
static cdp_status plain_wait(void *self, cdp_store_request *rq, uint64_t deadline_ns) {
    (void)self;
    (void)deadline_ns;
    return rq->status;
}
static void plain_cancel(void *self, cdp_store_request *rq) {
    (void)self;
    (void)rq;
}
static void plain_destroy(void *self) {
    ++*(int64_t *)self;
}

TEST(stores_that_are_none) {
    cdp_store dead, *s;
    cdp_hash_store_desc hd;
    cdp_custom_store_desc cd;
    int64_t n;
    memset(&dead, 0, sizeof dead);
    memset(&hd, 0, sizeof hd);
    memset(&cd, 0, sizeof cd);
    ST(cdp_store_set(NULL, "k", "x", 1), CDP_ERR_INVALID);
    TEXT("store is NULL");
    ST(cdp_store_num_keys(NULL, &n), CDP_ERR_INVALID);
    TEXT("store is NULL");
    ST(cdp_store_run(&dead, NULL, 1), CDP_ERR_INVALID);
    TEXT("request is NULL");
    ST(cdp_store_wait(NULL, NULL, 0, 1), CDP_ERR_INVALID);
    TEXT("store is NULL");
    ST(cdp_store_set(&dead, "k", "x", 1), CDP_ERR_STATE);
    TEXT("never made, or was destroyed");
    cdp_store_destroy(NULL);
    cdp_store_destroy(&dead);
    dead.os = cdp_os_default(); /* the plain interface, filled in by hand */
    dead.self = &n;
    dead.start = plain_start;
    dead.wait = plain_wait;
    dead.cancel = plain_cancel;
    dead.destroy = plain_destroy;
    n = 0;
    OK(cdp_store_set(&dead, "k", "x", 1));
    cdp_store_destroy(&dead);
    T_EQ(1, n);
    ST(cdp_store_set(&dead, "k", "x", 1), CDP_ERR_STATE); /* too late */
    cdp_store_destroy(&dead);
    T_EQ(1, n);
    cdp_store_set_timeout(NULL, 1);
    T_EQ(0, cdp_store_timeout(NULL));
    ST(cdp_hash_store_create(&hd, NULL), CDP_ERR_INVALID);
    ST(cdp_prefix_store_create(NULL, "p", &s), CDP_ERR_INVALID);
    T(!s);
    ST(cdp_custom_store_create(NULL, &s), CDP_ERR_INVALID);
    ST(cdp_custom_store_create(&cd, &s), CDP_ERR_INVALID);
    cd.get = my_get;
    ST(cdp_custom_store_create(&cd, &s), CDP_ERR_INVALID);
    ST(cdp_custom_store_create(&cd, NULL), CDP_ERR_INVALID);
}

/* ---- time ---- */

TEST(timeouts) {
    for (uint32_t k = 0; k < KINDS; ++k) {
        world w;
        void *value;
        uint64_t start;
        if (!world_open(&w, &kinds[k], NULL)) continue;
        T_EQ(300000, cdp_store_timeout(w.s));
        start = test_now_ns();
        ST(cdp_store_get(w.s, "never", &value, NULL, 60), CDP_ERR_TIMEOUT);
        T(test_now_ns() - start >= 59 * CDP__MS);
        T_WITHIN(120, test_now_ns() - start);
        TEXT("never\" timed out after 0.06 s");
        /* of calls without one; also when it is the prefix that is asked */
        cdp_store_set_timeout(w.s, 30);
        T_EQ(30, cdp_store_timeout(w.stack[0]));
        T_EQ(30, cdp_store_timeout(w.s));
        start = test_now_ns();
        ST(cdp_store_get(w.s, "never", &value, NULL, 0), CDP_ERR_TIMEOUT);
        T(test_now_ns() - start >= 29 * CDP__MS);
        T_WITHIN(90, test_now_ns() - start);
        cdp_store_set_timeout(w.stack[0], 0);
        T_EQ(300000, cdp_store_timeout(w.s));
        world_close(&w);
    }
}

#ifndef CDP_NO_THREADS
typedef struct setter {
    cdp_store *s;
    uint32_t rounds;
} setter;

static void late_setter(void *arg) {
    const setter *a = (const setter *)arg;
    test_sleep_ms(30);
    OK(cdp_store_set(a->s, "late", "now", 3));
}

static void adder(void *arg) {
    const setter *a = (const setter *)arg;
    for (uint32_t i = 0; i < a->rounds; ++i) {
        OK(cdp_store_add(a->s, "sum", 1, NULL));
        OK(cdp_store_append(a->s, "log", "x", 1));
    }
}

TEST(several_threads) {
    const cdp_os *os = cdp_os_default();
    for (uint32_t k = 0; k < KINDS; ++k) {
        world w;
        void *value = NULL, *threads[4];
        uint64_t bytes;
        int64_t sum;
        setter a;
        /* a waiting client holds up the others, so the setter has its own */
        cdp_store *second = NULL;
        if (!world_open(&w, &kinds[k], NULL)) continue;
        a.s = w.s;
        a.rounds = 50;
        for (uint32_t i = 0; i < 4; ++i)
            threads[i] = os->threads.start(cdp_os_default(), adder, &a);
        for (uint32_t i = 0; i < 4; ++i)
            os->threads.join(cdp_os_default(), threads[i]);
        OK(cdp_store_add(w.s, "sum", 0, &sum));
        T_EQ(200, sum);
        OK(cdp_store_get(w.s, "log", &value, &bytes, 0));
        T_EQ(200, bytes);
        cdp_store_free(w.s, value);
        if (kinds[k].base == 't' && kinds[k].prefixes == 0) {
            const cdp_tcp_store_desc d = {
                .host = "127.0.0.1", .port = cdp_store_server_port(w.server)};
            OK(cdp_tcp_store_create(&d, &second));
            a.s = second;
        }
        if (kinds[k].base != 't' || second) {
            threads[0] = os->threads.start(cdp_os_default(), late_setter, &a);
            OK(cdp_store_get(w.s, "late", &value, &bytes, 20000));
            T(bytes == 3 && value && memcmp(value, "now", 3) == 0);
            cdp_store_free(w.s, value);
            os->threads.join(cdp_os_default(), threads[0]);
        }
        cdp_store_destroy(second);
        world_close(&w);
    }
}
#endif

/* ---- what is special about a custom store ---- */

static cdp_status broken_get(void *user, cdp_bytes key, cdp_bytes *value) {
    (void)user;
    (void)key;
    (void)value;
    return cdp_error_set(CDP_ERR_IO, -1, EIO, "my disk");
}

TEST(custom_store) {
    my_store *mine = (my_store *)calloc(1, sizeof *mine);
    cdp_custom_store_desc d = {.get = my_get, .swap = my_swap, .user = mine};
    cdp_store *s;
    int64_t n = 0;
    void *value;
    uint64_t bytes;
    static const char *const keys[2] = {"p", "q"};
    const cdp_bytes values[2] = {{"1", 1}, {"2", 1}};
    OK(cdp_custom_store_create(&d, &s)); /* the two functions alone */
    OK(cdp_store_set(s, "k", "v", 1));
    ST(cdp_store_num_keys(s, &n), CDP_ERR_UNSUPPORTED);
    TEXT("cannot count");
    mine->refuse = 3; /* a swap that fails because somebody else was faster is tried again */
    OK(cdp_store_add(s, "n", 4, &n));
    T_EQ(4, n);
    mine->refuse = 2;
    OK(cdp_store_append(s, "k", "w", 1));
    mine->refuse = 2;
    OK(cdp_store_multi_set(s, keys, values, 2));
    mine->refuse = 1;
    OK(cdp_store_compare_set(s, "k", "vw", 2, "x", 1, &value, &bytes));
    T(bytes == 1 && *(char *)value == 'x');
    cdp_store_free(s, value);
    mine->refuse = 1;
    OK(cdp_store_delete(s, "k", NULL));
    T(!my_find(mine, (cdp_bytes){"k", 1}) && my_find(mine, (cdp_bytes){"q", 1}));
    mine->refuse = UINT32_MAX; /* and not for ever */
    cdp_store_set_timeout(s, 20);
    ST(cdp_store_set(s, "k", "v", 1), CDP_ERR_TIMEOUT);
    cdp_store_destroy(s);
    my_destroy(mine);
    free(mine);
    d.get = broken_get;
    d.destroy = NULL;
    OK(cdp_custom_store_create(&d, &s));
    ST(cdp_store_set(s, "k", "v", 1), CDP_ERR_IO);
    TEXT("my disk");
    ST(cdp_store_get(s, "k", &value, &bytes, 1), CDP_ERR_IO);
    cdp_store_destroy(s);
}

TEST(a_wait_reads_keys_of_a_custom_store_until_they_are_there) {
    static const char *const keys[4] = {"a", "b", "c", "d"};
    my_store *mine = (my_store *)calloc(1, sizeof *mine);
    const cdp_custom_store_desc d = {.get = my_get, .swap = my_swap, .user = mine};
    cdp_bytes k[4];
    cdp_store_request rq;
    cdp_store *s;
    memset(&rq, 0, sizeof rq);
    OK(cdp_custom_store_create(&d, &s));
    for (int i = 0; i < 4; ++i) {
        k[i].data = keys[i];
        k[i].bytes = 1;
        if (i < 2) OK(cdp_store_set(s, keys[i], "v", 1));
    }
    rq.op = CDP_STORE_WAIT;
    rq.keys = k;
    rq.key_count = 4;
    mine->gets = 0;
    T_EQ(CDP_PENDING, cdp__store_begin(s, &rq));
    T_EQ(3, mine->gets);
    for (uint32_t i = 0; i < 5; ++i)
        T_EQ(CDP_PENDING, s->wait(s->self, &rq, 0));
    T_EQ(8, mine->gets);
    OK(cdp_store_set(s, "d", "v", 1));
    OK(cdp_store_set(s, "c", "v", 1));
    mine->gets = 0;
    T_EQ(CDP_OK, s->wait(s->self, &rq, 0));
    T_EQ(2, mine->gets);
    cdp_store_destroy(s);
    my_destroy(mine);
    free(mine);
}

/* ---- memory ---- */

static uint64_t alloc_calls, alloc_fail_at, alloc_live;

static void *failing_alloc(void *user, uint64_t bytes) {
    (void)user;
    if (++alloc_calls == alloc_fail_at) return NULL;
    ++alloc_live;
    return cdp_os_default()->alloc(NULL, bytes);
}

static void counting_free(void *user, void *p) {
    (void)user;
    if (p) --alloc_live;
    cdp_os_default()->release(NULL, p);
}

/* A call that says NOMEM says why. */
static bool ok_or_nomem(cdp_status st) {
    if (st == CDP_OK) return true;
    return T_EQ(CDP_ERR_NOMEM, st) && T_EQ(CDP_ERR_NOMEM, cdp_last_error()->status)
        && T(strstr(cdp_last_error()->text, "memory") != NULL);
}

/* Each allocation fails in turn: every call says NOMEM or succeeds, and nothing leaks. */
TEST(no_memory) {
    cdp_os os = *cdp_os_default();
    os.alloc = failing_alloc;
    os.release = counting_free;
    for (uint32_t k = 0; k < KINDS; ++k) {
        if (kinds[k].base == 't') continue; /* test_store has that */
        bool more = true;
        for (alloc_fail_at = 1; more && alloc_fail_at < 200; ++alloc_fail_at) {
            cdp_store *inner = NULL, *s = NULL;
            cdp_status st;
            char path[64];
            static const char *const keys[2] = {"k", "n"};
            const cdp_bytes values[2] = {{"1", 1}, {"2", 1}};
            cdp_bytes got[2];
            void *value = NULL;
            uint64_t bytes;
            my_store *mine = (my_store *)calloc(1, sizeof *mine);
            alloc_calls = alloc_live = 0;
            (void)cdp_error_set(CDP_ERR_STATE, -1, 0, "the error of an earlier call");
            cdp__format(path, sizeof path, "/tmp/cdp_kinds_mem_%d", (int)getpid());
            if (kinds[k].base == 'h') {
                const cdp_hash_store_desc d = {.os = &os};
                st = cdp_hash_store_create(&d, &inner);
            } else if (kinds[k].base == 'c') {
                const cdp_custom_store_desc d = {.get = my_get,
                    .swap = my_swap,
                    .num_keys = my_num_keys,
                    .user = mine,
                    .os = &os};
                st = cdp_custom_store_create(&d, &inner);
            } else {
                st = CDP_ERR_NOMEM;
#ifndef CDP_NO_FILE_STORE
                const cdp_file_store_desc d = {.path = path, .world_size = 1, .os = &os};
                st = cdp_file_store_create(&d, &inner);
#endif
            }
            s = inner;
            if (st == CDP_OK && kinds[k].prefixes) st = cdp_prefix_store_create(inner, "p", &s);
#define TRY(call) \
    if (st == CDP_OK) ok_or_nomem(st = (call))
            TRY(cdp_store_set(s, "k", "v", 1));
            TRY(cdp_store_append(s, "k", "w", 1));
            TRY(cdp_store_add(s, "n", 1, NULL));
            TRY(cdp_store_multi_set(s, keys, values, 2));
            TRY(cdp_store_get(s, "k", &value, &bytes, 0));
            cdp_store_free(s, value);
            value = NULL;
            TRY(cdp_store_compare_set(s, "k", "1", 1, "x", 1, &value, &bytes));
            cdp_store_free(s, value);
            value = NULL;
            TRY(cdp_store_multi_get(s, keys, 2, got, &value, 0));
            cdp_store_free(s, value);
            TRY(cdp_store_delete(s, "k", NULL));
            more = alloc_calls >= alloc_fail_at;
            if (s != inner) cdp_store_destroy(s);
            cdp_store_destroy(inner);
            test_check(alloc_live == 0, __FILE__, __LINE__,
                "%s: %llu blocks leaked, failing at %llu", kinds[k].name,
                (unsigned long long)alloc_live, (unsigned long long)alloc_fail_at);
            my_destroy(mine);
            free(mine);
            unlink(path);
        }
        T(alloc_fail_at > 5);
    }
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"table", table, 60},
        {"random_programs", random_programs, 120},
        {"bad_input", bad_input, 60},
        {"stores_that_are_none", stores_that_are_none, 10},
        {"timeouts", timeouts, 60},
#ifndef CDP_NO_THREADS
        {"several_threads", several_threads, 60},
#endif
        {"custom_store", custom_store, 20},
        {"a_wait_reads_keys_of_a_custom_store_until_they_are_there",
            a_wait_reads_keys_of_a_custom_store_until_they_are_there, 20},
        {"no_memory", no_memory, 60},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
