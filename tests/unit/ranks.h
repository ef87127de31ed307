/* ranks.h - groups for tests: N ranks of one hub, as threads or polled in turn; an os that
   counts and fails on demand; collective calls as data, with inputs that follow from a seed and
   a serial reference. Include after cdp.h. */
#ifndef RANKS_INCLUDED
#define RANKS_INCLUDED

#include "said.h"

#define RANKS_MAX 16u

/* ---- an os that counts what is held, and refuses request number `fail_at` ---- */

static struct { int64_t calls, held, fail_at; /* fail_at 0: never */ } counted;

/* The same for requests of this thread, counted down: 1 refuses the next one, 0 none. */
static CDP__THREAD_LOCAL int64_t own_fail_at;

static bool counted_refuses(void) {
    const int64_t call = __atomic_add_fetch(&counted.calls, 1, __ATOMIC_SEQ_CST);
    if (own_fail_at && --own_fail_at == 0) return true;
    return call == __atomic_load_n(&counted.fail_at, __ATOMIC_SEQ_CST);
}
/* While other threads may ask for memory: `requests` from now on, one is refused; 0: none is.
   Returns its number. */
TEST_API int64_t counted_fails_after(int64_t requests) {
    const int64_t now = __atomic_load_n(&counted.calls, __ATOMIC_SEQ_CST);
    const int64_t at = requests ? now + requests : 0;
    __atomic_store_n(&counted.fail_at, at, __ATOMIC_SEQ_CST);
    return at;
}
static void *counted_hold(void *p) {
    if (p) __atomic_add_fetch(&counted.held, 1, __ATOMIC_SEQ_CST);
    return p;
}
static void counted_drop(void) {
    __atomic_sub_fetch(&counted.held, 1, __ATOMIC_SEQ_CST);
}

static void *counted_alloc(void *user, uint64_t bytes) {
    return counted_refuses() ? NULL : counted_hold(cdp_os_default()->alloc(user, bytes));
}
static void counted_free(void *user, void *p) {
    if (p) counted_drop();
    cdp_os_default()->release(user, p);
}
TEST_API const cdp_os *counted_os(void) {
    static cdp_os os;
    os = *cdp_os_default();
    os.alloc = counted_alloc;
    os.release = counted_free;
    /* locks, conditions and threads of the default os take their memory from here, too */
    counted.calls = counted.held = counted.fail_at = 0;
    return &os;
}

/* How many allocations may be counted where operations should make none. A rank that others hold
   up may see a longer queue than in the warm-up, or ask after a second why (MEMORY in cdp.h says
   so): on a busy machine or under a sanitizer that happens; one for each operation would be
   hundreds. */
TEST_API int64_t allocations_at_most(void) {
    return TEST_SLOW || test__scale_now() > 1 || test__load() > 1.25 ? 40 : 0;
}

/* ---- ranks ---- */

typedef struct world {
    uint32_t n;
    cdp_hub *hub;
    cdp_group *group[RANKS_MAX];
} world;

/* `like`: everything but rank, size and hub; may be NULL. */
TEST_API cdp_group_desc rank_desc(const world *w, uint32_t rank, const cdp_group_desc *like) {
    cdp_group_desc d;
    memset(&d, 0, sizeof d);
    if (like) d = *like;
    d.rank = rank;
    d.world_size = w->n;
    d.hub = w->hub;
    if (!d.timeout_ms) d.timeout_ms = 60000;
    return d;
}

TEST_API bool world_open(world *w, uint32_t n, const cdp_group_desc *like, uint64_t ring_bytes) {
    cdp_hub_desc h;
    memset(w, 0, sizeof *w);
    memset(&h, 0, sizeof h);
    h.world_size = w->n = n;
    h.ring_bytes = ring_bytes;
    h.os = like ? like->os : NULL;
    if (!T_EQ(CDP_OK, cdp_hub_create(&h, &w->hub))) return false;
    for (uint32_t r = 0; r < n; ++r) {
        const cdp_group_desc d = rank_desc(w, r, like);
        if (!T_EQ(CDP_OK, cdp_group_create(&d, &w->group[r]))) return false;
    }
    return true;
}

TEST_API void world_close(world *w) {
    for (uint32_t r = 0; r < w->n; ++r)
        cdp_group_destroy(w->group[r]);
    cdp_hub_destroy(w->hub);
}

#ifndef CDP_NO_THREADS
#include <pthread.h>

typedef struct rank_thread {
    pthread_t id;
    cdp_group *group;
    void (*func)(cdp_group *g, void *arg);
    void *arg;
} rank_thread;

static void *rank_thread_main(void *p) {
    rank_thread *t = (rank_thread *)p;
    t->func(t->group, t->arg);
    return NULL;
}

/* func(group of rank r, arg) in a thread for every rank; the groups stay. */
TEST_API void world_threads(world *w, void (*func)(cdp_group *g, void *arg), void *arg) {
    rank_thread t[RANKS_MAX];
    for (uint32_t r = 0; r < w->n; ++r) {
        t[r].group = w->group[r];
        t[r].func = func;
        t[r].arg = arg;
        if (pthread_create(&t[r].id, NULL, rank_thread_main, &t[r]) != 0) abort();
    }
    for (uint32_t r = 0; r < w->n; ++r)
        pthread_join(t[r].id, NULL);
}

TEST_API void run_ranks(uint32_t n, const cdp_group_desc *like, uint64_t ring_bytes,
    void (*func)(cdp_group *g, void *arg), void *arg) {
    world w;
    if (world_open(&w, n, like, ring_bytes)) world_threads(&w, func, arg);
    world_close(&w);
}

/* The same over memory that is counted: all of it comes back. */
TEST_API void run_counted(uint32_t n, void (*func)(cdp_group *g, void *arg), void *arg) {
    const cdp_group_desc like = {.os = counted_os()};
    run_ranks(n, &like, 0, func, arg);
    T_EQ(0, counted.held);
}

/* `create` is a collective that allocates: where request number k of rank 1 is refused, all ranks
   get NOMEM, which names that rank, and the group stays usable. Returns the first k that is
   enough. */
TEST_API int64_t own_memory_is_told(
    cdp_group *g, cdp_status (*create)(cdp_group *g, void *arg), void *arg) {
    cdp_status st = CDP_ERR_NOMEM;
    int64_t k = 0;
    while (st == CDP_ERR_NOMEM && k < 100) {
        ++k;
        own_fail_at = cdp_rank(g) == 1 ? k : 0;
        st = create(g, arg);
        own_fail_at = 0;
        if (st == CDP_OK) break;
        T_EQ(CDP_ERR_NOMEM, st);
        if (cdp_rank(g) != 1) T_TEXT("has failed on rank 1: ", cdp_last_error()->text);
        T_EQ(CDP_OK, cdp_barrier(g));
    }
    T_EQ(CDP_OK, st);
    return k;
}
#endif

/* ---- collective calls as data ---- */

typedef struct call {
    cdp_coll_kind kind;
    cdp_dtype dtype;
    cdp_reduce_op op;
    uint32_t root;
    uint64_t count;
    bool in_place;
    uint64_t seed;
} call;

#define CANARY 64u

/* Memory of one rank for one call: [CANARY | in | CANARY | out | CANARY]. */
typedef struct call_memory {
    void *block; /* what is freed */
    uint8_t *all, *in, *out;
    uint64_t in_bytes, out_bytes;
} call_memory;

/* Element i of rank r: any bits for integers, small whole numbers for floats, whose sums are
   exact in every order. */
TEST_API uint64_t call_raw(const call *c, uint32_t rank, uint64_t i) {
    uint64_t state = c->seed * 1000003u + rank * 7919u + i;
    return test_random(&state);
}

TEST_API void call_put(const call *c, void *at, uint64_t i, uint64_t raw) {
    switch (c->dtype) {
    case CDP_DTYPE_F64: ((double *)at)[i] = (double)(int64_t)(raw % 201) - 100; break;
    case CDP_DTYPE_I32: ((int32_t *)at)[i] = (int32_t)(uint32_t)raw; break;
    case CDP_DTYPE_I64: /* sums of a thousand fit */
        ((int64_t *)at)[i] = (int64_t)(raw >> 10) - ((int64_t)1 << 53);
        break;
    case CDP_DTYPE_U8: ((uint8_t *)at)[i] = (uint8_t)raw; break;
    default: ((float *)at)[i] = (float)(int64_t)(raw % 201) - 100; break;
    }
}

/* Means of integers are rounded to the nearest, a half away from zero. */
TEST_API int64_t call_nearest(int64_t sum, uint32_t n) {
    const int64_t left = sum % (int64_t)n;
    if (2 * (left < 0 ? -left : left) < (int64_t)n) return sum / (int64_t)n;
    return sum / (int64_t)n + (left < 0 ? -1 : 1);
}

#define CALL_REDUCE(T_, U_, SUM_OF)                    \
    do {                                               \
        T_ low = 0, high = 0, v, whole;                \
        U_ sum = 0;                                    \
        for (uint32_t r = 0; r < n; ++r) {             \
            call_put(c, &v, 0, call_raw(c, r, i));     \
            sum = (U_)(sum + (U_)v);                   \
            low = r == 0 || v < low ? v : low;         \
            high = r == 0 || v > high ? v : high;      \
        }                                              \
        whole = (T_)sum;                               \
        v = whole;                                     \
        if (c->op == CDP_REDUCE_MIN) v = low;          \
        if (c->op == CDP_REDUCE_MAX) v = high;         \
        if (c->op == CDP_REDUCE_AVG) v = (T_)(SUM_OF); \
        memcpy(at, &v, sizeof v);                      \
    } while (0)

/* Element i of the reduction over n ranks, to `at`. */
TEST_API void call_reduce(const call *c, uint32_t n, uint64_t i, void *at) {
    switch (c->dtype) {
    case CDP_DTYPE_F64: CALL_REDUCE(double, double, whole / (double)n); break;
    case CDP_DTYPE_I32: CALL_REDUCE(int32_t, int64_t, call_nearest(sum, n)); break;
    case CDP_DTYPE_I64: CALL_REDUCE(int64_t, int64_t, call_nearest(sum, n)); break;
    case CDP_DTYPE_U8: CALL_REDUCE(uint8_t, int64_t, call_nearest(sum, n)); break;
    default: CALL_REDUCE(float, float, whole / (float)n); break;
    }
}

TEST_API void call_fill(const call *c, uint32_t n, uint32_t rank, call_memory *m) {
    const uint64_t elem = cdp_dtype_size(c->dtype), own = c->count * elem;
    const bool in_out = c->in_place || c->kind == CDP_COLL_BROADCAST;
    m->in_bytes = (own + 63) / 64 * 64;
    m->out_bytes = ((c->kind == CDP_COLL_ALLGATHER ? n : 1) * own + 63) / 64 * 64;
    m->block = malloc(3 * CANARY + m->in_bytes + m->out_bytes + 64);
    if (!m->block) abort();
    m->all = (uint8_t *)(((uintptr_t)m->block + 63) / 64 * 64); /* no function all systems have */
    memset(m->all, 0xa5, 3 * CANARY + m->in_bytes + m->out_bytes);
    m->in = m->all + CANARY;
    m->out = m->in + m->in_bytes + CANARY;
    if (c->kind == CDP_COLL_BROADCAST && rank != c->root) return;
    const uint64_t place = c->kind == CDP_COLL_ALLGATHER ? rank * own : 0;
    uint8_t *at = in_out ? m->out + place : m->in;
    for (uint64_t i = 0; i < c->count; ++i)
        call_put(c, at, i, call_raw(c, rank, i));
}

TEST_API cdp_request call_request(const call *c, const call_memory *m) {
    cdp_request rq;
    memset(&rq, 0, sizeof rq);
    rq.kind = c->kind;
    rq.in = c->in_place || c->kind == CDP_COLL_BROADCAST ? NULL : m->in;
    rq.out = m->out;
    rq.count = c->count;
    rq.dtype = c->dtype;
    rq.op = c->op;
    rq.root = c->root;
    return rq;
}

TEST_API bool call_canaries(const call *c, uint32_t n, uint32_t rank, const call_memory *m) {
    const uint64_t elem = cdp_dtype_size(c->dtype), own = c->count * elem,
                   used = c->kind == CDP_COLL_ALLGATHER ? n * own : own;
    bool ok = true;
    uint8_t want[8];
    for (uint64_t i = 0; i < CANARY; ++i)
        ok = ok && m->all[i] == 0xa5 && m->in[m->in_bytes + i] == 0xa5;
    for (uint64_t i = used; i < m->out_bytes + CANARY; ++i)
        ok = ok && m->out[i] == 0xa5;
    /* the input is as it was */
    for (uint64_t i = 0; i < c->count && !c->in_place && c->kind != CDP_COLL_BROADCAST; ++i) {
        call_put(c, want, 0, call_raw(c, rank, i));
        ok = ok && memcmp(want, m->in + i * elem, elem) == 0;
    }
    return ok;
}

/* The result on one rank is what it should be; frees the memory. */
TEST_API bool call_check(const call *c, uint32_t n, uint32_t rank, call_memory *m) {
    const uint64_t elem = cdp_dtype_size(c->dtype), parts = c->kind == CDP_COLL_ALLGATHER ? n : 1;
    uint64_t wrong = 0, first = 0;
    uint8_t want[8];
    for (uint64_t p = 0; p < parts && c->kind != CDP_COLL_BARRIER; ++p)
        for (uint64_t i = 0; i < c->count; ++i) {
            if (c->kind == CDP_COLL_ALLREDUCE)
                call_reduce(c, n, i, want);
            else
                call_put(c, want, 0,
                    call_raw(c, c->kind == CDP_COLL_ALLGATHER ? (uint32_t)p : c->root, i));
            if (memcmp(want, m->out + (p * c->count + i) * elem, elem) != 0 && wrong++ == 0)
                first = p * c->count + i;
        }
    const bool canaries = call_canaries(c, n, rank, m);
    free(m->block);
    return test_check(!wrong && canaries, __FILE__, __LINE__,
        "rank %u/%u: %s of %llu x %s %s root %u%s: %llu elements wrong, first %llu; %s", rank, n,
        cdp_coll_name(c->kind), (unsigned long long)c->count, cdp_dtype_name(c->dtype),
        cdp_reduce_name(c->op), c->root, c->in_place ? " in place" : "", (unsigned long long)wrong,
        (unsigned long long)first,
        canaries ? "nothing else was touched" : "memory around was touched");
}

/* Call number k of all the combinations that are tested for n ranks; false when there are no
   more. */
TEST_API bool call_number(uint32_t k, uint32_t n, uint64_t largest, call *c) {
    const uint64_t sizes[8] = {0, 1, 2, n - 1, n, n + 1, largest < 1000 ? largest : 1000, largest};
    memset(c, 0, sizeof *c);
    c->seed = k + 1;
    c->in_place = k % 2;
    c->count = sizes[k / 2 % 8];
    c->dtype = (cdp_dtype)(CDP_DTYPE_F32 + k / 16 % 5);
    k /= 80;
    if (k < 4) {
        c->kind = CDP_COLL_ALLREDUCE;
        c->op = (cdp_reduce_op)(CDP_REDUCE_SUM + k);
    } else if (k == 4) {
        c->kind = CDP_COLL_ALLGATHER;
    } else if (k == 5) {
        c->kind = CDP_COLL_BROADCAST;
        c->root = (uint32_t)(c->seed % n);
    } else {
        c->kind = CDP_COLL_BARRIER;
        c->count = 0;
    }
    return k < 6 || (k == 6 && c->seed % 80 == 1);
}

/* A random one. */
TEST_API call call_random(uint64_t *state, uint32_t n, uint64_t largest) {
    call c;
    (void)call_number((uint32_t)(test_random(state) % 481), n, largest, &c);
    c.seed = test_random(state);
    if (c.kind != CDP_COLL_BARRIER && test_random(state) % 2)
        c.count = test_random(state) % (largest + 1);
    return c;
}

/* A group of one rank. */
TEST_API cdp_group *group_of_one(const cdp_os *os) {
    const cdp_group_desc d = {.world_size = 1, .os = os};
    cdp_group *g;
    T_EQ(CDP_OK, cdp_group_create(&d, &g));
    return g;
}

TEST_API const uint32_t world_sizes[] = {1, 2, 3, 4, 5, 7, 8};

#define WORLD_SIZES 7

#endif
