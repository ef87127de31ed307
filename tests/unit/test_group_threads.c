/* test_group_threads.c - groups over the hub whose ranks are threads: collectives of every kind
   at the same time, the same bits everywhere, aborts, late ranks, what waiting costs, means,
   sums in f32 */
#define CDP_IMPLEMENTATION
#include "cdp.h"
#include "ranks.h"
#include <sys/wait.h>

#include <math.h>
#include <sys/resource.h>

/* ---- memory ---- */

/* ================================================ ranks are threads
   ================================================ */

typedef struct every_call {
    uint64_t largest;
} every_call;

static void rank_every_call(cdp_group *g, void *arg) {
    const every_call *e = (const every_call *)arg;
    const uint32_t n = cdp_size(g), rank = cdp_rank(g);
    call c;
    for (uint32_t k = 0; call_number(k, n, e->largest, &c); ++k) {
        call_memory m;
        cdp_status st = CDP_ERR_INTERNAL;
        call_fill(&c, n, rank, &m);
        const void *in = c.in_place ? NULL : m.in;
        if (c.kind == CDP_COLL_ALLREDUCE) st = cdp_allreduce(g, in, m.out, c.count, c.dtype, c.op);
        if (c.kind == CDP_COLL_ALLGATHER) st = cdp_allgather(g, in, m.out, c.count, c.dtype);
        if (c.kind == CDP_COLL_BROADCAST) st = cdp_broadcast(g, m.out, c.count, c.dtype, c.root);
        if (c.kind == CDP_COLL_BARRIER) st = cdp_barrier(g);
        if (!test_check(st == CDP_OK, __FILE__, __LINE__, "%s: %s", cdp_status_name(st),
                cdp_last_error()->text))
            return;
        call_check(&c, n, rank, &m);
    }
}

TEST(threads_every_call_blocking) {
    every_call e = {TEST_SLOW ? 7000 : 70000};
    for (int s = 0; s < WORLD_SIZES; ++s)
        run_ranks(world_sizes[s], NULL, 0, rank_every_call, &e);
}

TEST(threads_every_call_small_rings_no_spin) {
    every_call e = {1500};
    cdp_group_desc like;
    memset(&like, 0, sizeof like);
    like.no_spin = true;
    like.piece_bytes = 333;
    like.small_bytes = 1;
    run_ranks(3, &like, 1024, rank_every_call, &e);
    like.no_thread = true;
    like.no_spin = false;
    like.small_bytes = 1u << 30;
    run_ranks(5, &like, 512, rank_every_call, &e);
}

/* Many in flight; waited for in an order of its own on every rank, some twice, some only tested. */
static void rank_async(cdp_group *g, void *arg) {
    enum {
        COUNT = 130
    };
    const uint32_t n = cdp_size(g), rank = cdp_rank(g);
    uint64_t same = *(uint64_t *)arg, own = rank + 1;
    call calls[COUNT];
    call_memory m[COUNT];
    cdp_work work[COUNT];
    uint32_t order[COUNT];
    for (uint32_t k = 0; k < COUNT; ++k) {
        calls[k] = call_random(&same, n, k % 10 ? 500 : 30000);
        call_fill(&calls[k], n, rank, &m[k]);
        const cdp_request rq = call_request(&calls[k], &m[k]);
        const call *c = &calls[k];
        cdp_status st;
        if (k % 2)
            st = cdp_start(g, &rq, &work[k]);
        else if (c->kind == CDP_COLL_ALLREDUCE)
            st = cdp_allreduce_async(g, rq.in, rq.out, c->count, c->dtype, c->op, &work[k]);
        else if (c->kind == CDP_COLL_ALLGATHER)
            st = cdp_allgather_async(g, rq.in, rq.out, c->count, c->dtype, &work[k]);
        else if (c->kind == CDP_COLL_BROADCAST)
            st = cdp_broadcast_async(g, rq.out, c->count, c->dtype, c->root, &work[k]);
        else
            st = cdp_barrier_async(g, &work[k]);
        if (!T_EQ(CDP_OK, st)) return;
        order[k] = k;
        if (test_random(&own) % 20 == 0) test_sleep_ms(1);
    }
    for (uint32_t k = COUNT; k-- > 1;) {
        const uint32_t i = (uint32_t)(test_random(&own) % (k + 1)), t = order[k];
        order[k] = order[i];
        order[i] = t;
    }
    for (uint32_t k = 0; k < COUNT; ++k) {
        const cdp_work w = work[order[k]];
        if (test_random(&own) % 4 == 0)
            while (cdp_work_test(w) == CDP_PENDING)
                test_sleep_ms(1);
        else
            T_EQ(CDP_OK, cdp_work_wait(w));
        if (test_random(&own) % 4 == 0) T_EQ(CDP_OK, cdp_work_wait(w));
        T_EQ(CDP_OK, cdp_work_test(w));
        call_check(&calls[order[k]], n, rank, &m[order[k]]);
    }
}

TEST(threads_many_in_flight) {
    for (int s = 0; s < WORLD_SIZES; ++s) {
        uint64_t seed = 31 + (uint64_t)s;
        cdp_group_desc like;
        memset(&like, 0, sizeof like);
        run_ranks(world_sizes[s], &like, 0, rank_async, &seed);
        like.no_thread = true;
        run_ranks(world_sizes[s], &like, 2000, rank_async, &seed);
    }
}

/* Several threads of one rank wait for different operations of one group at once. */
typedef struct waiter {
    pthread_t id;
    cdp_work work;
    cdp_status got;
} waiter;

static void *waiter_main(void *p) {
    waiter *w = (waiter *)p;
    w->got = cdp_work_wait(w->work);
    return NULL;
}

static void rank_with_waiters(cdp_group *g, void *arg) {
    float x[6][2000];
    waiter w[6];
    (void)arg;
    for (int round = 0; round < 40; ++round) {
        for (int i = 0; i < 6; ++i) {
            for (int k = 0; k < 2000; ++k)
                x[i][k] = (float)(i + (int)cdp_rank(g));
            T_EQ(CDP_OK,
                cdp_allreduce_async(
                    g, NULL, x[i], 2000, CDP_DTYPE_F32, CDP_REDUCE_MAX, &w[i].work));
        }
        for (int i = 6; i-- > 0;)
            pthread_create(&w[i].id, NULL, waiter_main, &w[i]);
        for (int i = 0; i < 6; ++i)
            pthread_join(w[i].id, NULL);
        for (int i = 0; i < 6; ++i)
            T(w[i].got == CDP_OK && x[i][0] == (float)(i + (int)cdp_size(g) - 1)
                && x[i][1999] == x[i][0]);
    }
}

TEST(threads_several_waiters_per_rank) {
    run_ranks(3, NULL, 0, rank_with_waiters, NULL);
}

/* ---- the same bits everywhere ---- */

typedef struct bits_case {
    cdp_dtype dtype;
    cdp_reduce_op op;
    uint64_t count;
    uint64_t first_hash;
    int runs;
} bits_case;

/* Any floats: NaNs of both signs and several payloads, infinities, zeros of both signs,
   denormals. */
static void wild_floats(cdp_dtype dtype, void *at, uint64_t count, uint32_t rank) {
    uint64_t state = 77 + rank;
    for (uint64_t i = 0; i < count; ++i) {
        const uint64_t r = test_random(&state), kind = r >> 60;
        if (dtype == CDP_DTYPE_F32) {
            const uint32_t odd[4] = {0x7fc00000u | (uint32_t)(r & 0xfff),
                0xffc00000u | (uint32_t)(r & 0xfff), 0x7f800000u, 0x80000000u};
            uint32_t bits = 0x3f000000u + (uint32_t)(r & 0x81ffffffu);
            if (kind < 6) bits = (uint32_t)(r & 0x807fffffu);
            if (kind < 4) bits = odd[kind];
            memcpy((uint8_t *)at + 4 * i, &bits, 4);
        } else {
            const uint64_t odd[4] = {0x7ff8000000000000u | (r & 0xfff),
                0xfff8000000000000u | (r & 0xfff), 0xfff0000000000000u, 0x8000000000000000u};
            const uint64_t bits =
                kind < 4 ? odd[kind] : 0x3fe0000000000000u + (r & 0x800fffffffffffffu);
            memcpy((uint8_t *)at + 8 * i, &bits, 8);
        }
    }
}

static void rank_bits(cdp_group *g, void *arg) {
    bits_case *b = (bits_case *)arg;
    const uint32_t n = cdp_size(g);
    const uint64_t bytes = b->count * cdp_dtype_size(b->dtype);
    void *x = aligned_alloc(64, (bytes + 63) / 64 * 64);
    uint64_t hash[RANKS_MAX];
    for (int run = 0; run < 2; ++run) { /* and again on the next run */
        wild_floats(b->dtype, x, b->count, cdp_rank(g));
        T_EQ(CDP_OK, cdp_allreduce(g, NULL, x, b->count, b->dtype, b->op));
        hash[cdp_rank(g)] = cdp__hash(CDP__HASH_START, x, bytes);
        T_EQ(CDP_OK, cdp_allgather(g, NULL, hash, 1, CDP_DTYPE_I64));
        for (uint32_t r = 1; r < n; ++r)
            test_check(hash[r] == hash[0], __FILE__, __LINE__,
                "rank %u: %u ranks, %s %s, %llu elements: rank %u has other bits than rank 0",
                cdp_rank(g), n, cdp_dtype_name(b->dtype), cdp_reduce_name(b->op),
                (unsigned long long)b->count, r);
        if (cdp_rank(g) == 0 && b->runs++) T(hash[0] == b->first_hash);
        if (cdp_rank(g) == 0) b->first_hash = hash[0];
        T_EQ(CDP_OK, cdp_barrier(g));
    }
    free(x);
}

TEST(same_bits_on_every_rank_and_every_run) {
    static const uint64_t counts[] = {1, 3, 63, 64, 65, 1000, 40001};
    for (uint32_t n = 2; n <= 8; n += TEST_SLOW ? 3 : 1)
        for (int d = CDP_DTYPE_F32; d <= CDP_DTYPE_F64; ++d)
            for (int op = CDP_REDUCE_SUM; op <= CDP_REDUCE_MAX; ++op)
                for (int s = 0; s < 7; ++s) {
                    bits_case b = {(cdp_dtype)d, (cdp_reduce_op)op, counts[s], 0, 0};
                    run_ranks(n, NULL, 0, rank_bits, &b);
                    if (s == 6 && n < 5) run_ranks(n, NULL, 3001, rank_bits, &b);
                }
}

static void rank_sums_are_close(cdp_group *g, void *arg) {
    enum {
        COUNT = 20000
    };
    const uint32_t n = cdp_size(g);
    float *x = (float *)malloc(COUNT * sizeof *x);
    double *want = (double *)calloc(COUNT, sizeof *want);
    (void)arg;
    for (uint32_t r = 0; r < n; ++r) {
        uint64_t state = r + 1;
        for (int i = 0; i < COUNT; ++i) {
            const float v = (float)(int64_t)test_random(&state) / 1e18f;
            want[i] += (double)v;
            if (r == cdp_rank(g)) x[i] = v;
        }
    }
    T_EQ(CDP_OK, cdp_allreduce(g, NULL, x, COUNT, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    for (int i = 0; i < COUNT; ++i)
        T(fabs((double)x[i] - want[i]) < 1e-5 * n);
    free(x);
    free(want);
}

TEST(sums_of_any_floats_are_close) {
    run_ranks(2, NULL, 0, rank_sums_are_close, NULL);
    run_ranks(7, NULL, 0, rank_sums_are_close, NULL);
}

/* ---- failures, with threads ---- */

typedef struct abort_plan {
    cdp_group *group;
    uint32_t after_us;
    uint64_t at_ns;
} abort_plan;

static void *abort_main(void *p) {
    abort_plan *a = (abort_plan *)p;
    const struct timespec t = {0, (long)a->after_us * 1000};
    nanosleep(&t, NULL);
    __atomic_store_n(&a->at_ns, test_now_ns(), __ATOMIC_SEQ_CST);
    cdp_group_abort(a->group, "somebody pressed the button");
    return NULL;
}

static void rank_until_aborted(cdp_group *g, void *arg) {
    abort_plan *a = (abort_plan *)arg;
    float *x = (float *)calloc(50000, sizeof *x);
    uint64_t state = 3;
    cdp_status st = CDP_OK;
    while (st == CDP_OK) {
        cdp_work work[3] = {{NULL, 0}, {NULL, 0}, {NULL, 0}};
        const uint64_t r = test_random(&state), count = r % 50000;
        if (r % 3 == 0)
            st = cdp_allreduce(g, NULL, x, count, CDP_DTYPE_F32, CDP_REDUCE_MAX);
        else if (r % 3 == 1)
            st = cdp_barrier(g);
        else
            for (int i = 0; i < 3 && st == CDP_OK; ++i)
                st = cdp_broadcast_async(
                    g, x, count, CDP_DTYPE_F32, (uint32_t)i % cdp_size(g), &work[i]);
        /* also when a later start failed: until then x is the library's */
        for (int i = 0; i < 3; ++i) {
            const cdp_status ended = cdp_work_wait(work[i]);
            if (st == CDP_OK) st = ended;
        }
    }
    const uint64_t now = test_now_ns(), at = __atomic_load_n(&a->at_ns, __ATOMIC_SEQ_CST);
    test_check(st == CDP_ERR_ABORTED, __FILE__, __LINE__, "rank %u: %s: %s", cdp_rank(g),
        cdp_status_name(st), cdp_last_error()->text);
    T_TEXT("somebody pressed the button", cdp_last_error()->text);
    T_EQ(cdp_rank(a->group), cdp_last_error()->origin);
    T_WITHIN(100, now - at);
    T_EQ(CDP_ERR_ABORTED, cdp_barrier(g));
    free(x);
}

TEST(abort_at_random_moments) {
    uint64_t state = 41;
    const int runs = TEST_SLOW ? 60 : 400;
    for (int run = 0; run < runs; ++run) {
        cdp_group_desc like;
        abort_plan a;
        pthread_t t;
        world w;
        const uint32_t n = 2 + (uint32_t)(test_random(&state) % 4);
        memset(&like, 0, sizeof like);
        memset(&a, 0, sizeof a);
        like.os = counted_os();
        like.no_thread = test_random(&state) % 2;
        if (!world_open(&w, n, &like, test_random(&state) % 2 ? 3000 : 0)) return;
        a.group = w.group[test_random(&state) % n];
        a.after_us = (uint32_t)(test_random(&state) % 3000);
        pthread_create(&t, NULL, abort_main, &a);
        world_threads(&w, rank_until_aborted, &a);
        pthread_join(t, NULL);
        world_close(&w);
        if (!T_EQ(0, counted.held)) return;
    }
}

static void rank_waits_for_nobody(cdp_group *g, void *arg) {
    const abort_plan *a = (const abort_plan *)arg;
    if (cdp_rank(g) != 0) return; /* the other one never comes */
    T_EQ(CDP_ERR_ABORTED, cdp_barrier(g));
    T_WITHIN(100, test_now_ns() - __atomic_load_n(&a->at_ns, __ATOMIC_SEQ_CST));
}

TEST(abort_while_waiting) {
    for (int no_thread = 0; no_thread < 2; ++no_thread)
        for (uint32_t who = 0; who < 2; ++who) {
            cdp_group_desc like;
            abort_plan a;
            pthread_t t;
            world w;
            memset(&like, 0, sizeof like);
            like.no_thread = no_thread;
            if (!world_open(&w, 2, &like, 0)) return;
            memset(&a, 0, sizeof a);
            a.group = w.group[who];
            a.after_us = 50000;
            pthread_create(&t, NULL, abort_main, &a);
            world_threads(&w, rank_waits_for_nobody, &a);
            pthread_join(t, NULL);
            world_close(&w);
        }
}

/* Longer than a machine stands still: or a rank that has begun too late is blamed. */
enum {
    LATE_MS = 600
};

/* Rank `arg` never comes; the others must all blame it. */
static void rank_one_is_late(cdp_group *g, void *arg) {
    const uint32_t late = *(const uint32_t *)arg, rank = cdp_rank(g);
    float x[5] = {0};
    if (rank == late) {
        test_sleep_ms(2 * LATE_MS + 100);
        return;
    }
    const uint64_t start = test_now_ns();
    T_EQ(CDP_ERR_TIMEOUT, cdp_allreduce(g, NULL, x, 5, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    const uint64_t took = test_now_ns() - start;
    T_WITHIN(LATE_MS + LATE_MS / 10, took);
    test_check(cdp_last_error()->peer == (int32_t)late, __FILE__, __LINE__,
        "rank %u of %u blames rank %d, late is rank %u: %s", rank, cdp_size(g),
        cdp_last_error()->peer, late, cdp_last_error()->text);
}

TEST(late_rank_is_named_by_its_neighbour) {
    cdp_group_desc like;
    uint32_t late = 1;
    memset(&like, 0, sizeof like);
    like.timeout_ms = LATE_MS;
    run_ranks(2, &like, 0, rank_one_is_late, &late);
    late = 0;
    run_ranks(2, &like, 0, rank_one_is_late, &late);
}

TEST(late_rank_is_named_by_everybody) {
    cdp_group_desc like;
    memset(&like, 0, sizeof like);
    like.timeout_ms = LATE_MS;
    for (uint32_t late = 0; late < 4; ++late) {
        like.small_bytes = late % 2 ? 1 : 0; /* ring, then recursive doubling */
        run_ranks(4, &like, 0, rank_one_is_late, &late);
    }
}

static void rank_leaves_when_done(cdp_group *g, void *arg) {
    float x[100] = {0};
    uint64_t state = cdp_rank(g) + 1;
    (void)arg;
    for (int i = 0; i < 20; ++i) {
        if (test_random(&state) % 8 == 0) test_sleep_ms(1);
        T_EQ(CDP_OK, cdp_allreduce(g, NULL, x, 100, CDP_DTYPE_F32, CDP_REDUCE_SUM));
        T_EQ(CDP_OK, cdp_barrier(g));
    }
}

typedef struct leaver {
    world *w;
    uint32_t rank;
    pthread_t id;
} leaver;

static void *leaver_main(void *p) {
    leaver *l = (leaver *)p;
    rank_leaves_when_done(l->w->group[l->rank], NULL);
    cdp_group_destroy(l->w->group[l->rank]); /* at once, whatever the others are doing */
    l->w->group[l->rank] = NULL;
    return NULL;
}

TEST(leaving_at_once_after_the_last_operation) {
    for (int run = 0; run < 60; ++run) {
        leaver l[5];
        world w;
        cdp_group_desc like;
        memset(&like, 0, sizeof like);
        like.no_thread = run % 2;
        if (!world_open(&w, 5, &like, 0)) return;
        for (uint32_t r = 0; r < 5; ++r) {
            l[r].w = &w;
            l[r].rank = r;
            pthread_create(&l[r].id, NULL, leaver_main, &l[r]);
        }
        for (uint32_t r = 0; r < 5; ++r)
            pthread_join(l[r].id, NULL);
        world_close(&w);
    }
}

static void rank_one_leaves_early(cdp_group *g, void *arg) {
    const uint32_t rank = cdp_rank(g);
    world *w = (world *)arg;
    T_EQ(CDP_OK, cdp_barrier(g));
    if (rank == 1) {
        test_sleep_ms(30);
        cdp_group_destroy(g);
        w->group[1] = NULL;
        return;
    }
    const uint64_t start = test_now_ns();
    const cdp_status st = cdp_barrier(g);
    T_EQ(CDP_ERR_PEER_LOST, st);
    T_WITHIN(130, test_now_ns() - start);
    test_check(cdp_last_error()->peer == 1, __FILE__, __LINE__, "rank %u blames rank %d: %s", rank,
        cdp_last_error()->peer, cdp_last_error()->text);
}

TEST(leaving_early_is_noticed) {
    for (uint32_t n = 2; n < 6; ++n) {
        world w;
        if (!world_open(&w, n, NULL, 0)) return;
        world_threads(&w, rank_one_leaves_early, &w);
        world_close(&w);
    }
}

/* ---- what waiting costs ---- */

static double cpu_ms(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1e3
        + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e3;
}

static void rank_comes_late(cdp_group *g, void *arg) {
    const double *before = (const double *)arg;
    cdp_work work;
    if (cdp_rank(g) == 2) test_sleep_ms(1000);
    if (cdp_rank(g) == 1) { /* one rank leaves the waiting to its progress thread */
        T_EQ(CDP_OK, cdp_barrier_async(g, &work));
        test_sleep_ms(1000);
        T_EQ(CDP_OK, cdp_work_wait(work));
    } else {
        T_EQ(CDP_OK, cdp_barrier(g));
    }
    if (cdp_rank(g) == 0) {
        const double used = cpu_ms() - *before;
        test_check(used < 30 * TEST_SLACK, __FILE__, __LINE__,
            "a second of waiting took %.1f ms of processor time", used);
    }
}

/* A group that was made and never used: nobody was told that a rank has destroyed it, so a rank
   that waits asks. */
static void leaves_what_nobody_used(cdp_group *g, void *arg) {
    const uint32_t all[4] = {0, 1, 2, 3};
    uint32_t x = 1;
    cdp_group *part;
    (void)arg;
    if (!T_EQ(CDP_OK, cdp_group_new(g, all, 4, &part))) return;
    T_EQ(CDP_OK, cdp_barrier(g));
    if (cdp_rank(g) != 3) {
        T_EQ(CDP_ERR_PEER_LOST, cdp_allreduce(part, NULL, &x, 1, CDP_DTYPE_U32, CDP_REDUCE_SUM));
        T_TEXT("rank 3 has left the group", cdp_last_error()->text);
    }
    cdp_group_destroy(part);
    T_EQ(CDP_OK, cdp_barrier(g));
}
TEST(leaving_a_group_that_was_never_used_is_noticed) {
    run_ranks(4, NULL, 0, leaves_what_nobody_used, NULL);
}

TEST(waiting_costs_no_processor_time) {
    for (int no_thread = 0; no_thread < 2; ++no_thread) {
        cdp_group_desc like;
        memset(&like, 0, sizeof like);
        like.no_thread = no_thread;
        double before = cpu_ms();
        run_ranks(3, &like, 0, rank_comes_late, &before);
    }
}

TEST(idle_groups_cost_no_processor_time) {
    world w;
    if (!world_open(&w, 8, NULL, 0)) return;
    const double before = cpu_ms();
    test_sleep_ms(500);
    T(cpu_ms() - before < 15 * TEST_SLACK);
    world_close(&w);
}

/* Work advances in the progress thread while the caller does something else. */
static void rank_computes_meanwhile(cdp_group *g, void *arg) {
    float *x = (float *)calloc(1000000, sizeof *x);
    cdp_work work;
    (void)arg;
    T_EQ(CDP_OK, cdp_barrier(g));
    T_EQ(CDP_OK, cdp_allreduce_async(g, NULL, x, 1000000, CDP_DTYPE_F32, CDP_REDUCE_SUM, &work));
    test_sleep_ms(200 * TEST_SLACK);
    cdp_lock_acquire(&g->w->lock);
    T(g->queue.completed >= work.seq); /* nobody waited */
    cdp_lock_release(&g->w->lock);
    T_EQ(CDP_OK, cdp_work_wait(work));
    free(x);
}

TEST(progress_without_waiting) {
    run_ranks(3, NULL, 0, rank_computes_meanwhile, NULL);
}

static void rank_allocates_nothing(cdp_group *g, void *arg) {
    enum {
        COUNT = 40
    };
    static call_memory m[4][COUNT];
    uint64_t state = 51;
    call calls[COUNT];
    int64_t before = 0;
    (void)arg;
    for (int k = 0; k < COUNT; ++k)
        calls[k] = call_random(&state, 4, 5000);
    for (int run = 0; run < 4; ++run) {
        cdp_work work[COUNT];
        T_EQ(CDP_OK, cdp_barrier(g));
        if (run == 1) before = counted.calls;
        T_EQ(CDP_OK, cdp_barrier(g));
        for (int k = 0; k < COUNT; ++k) {
            call_memory *mem = &m[cdp_rank(g)][k];
            call_fill(&calls[k], 4, cdp_rank(g), mem);
            const cdp_request rq = call_request(&calls[k], mem);
            T_EQ(CDP_OK, cdp_start(g, &rq, &work[k]));
        }
        for (int k = 0; k < COUNT; ++k) {
            T_EQ(CDP_OK, cdp_work_wait(work[k]));
            call_check(&calls[k], 4, cdp_rank(g), &m[cdp_rank(g)][k]);
        }
    }
    T_EQ(CDP_OK, cdp_barrier(g));
    test_check(counted.calls - before <= allocations_at_most(), __FILE__, __LINE__,
        "%lld allocations", (long long)(counted.calls - before));
}

TEST(threads_allocate_nothing_after_warm_up) {
    cdp_group_desc like;
    memset(&like, 0, sizeof like);
    like.os = counted_os();
    run_ranks(4, &like, 0, rank_allocates_nothing, NULL);
    T_EQ(0, counted.held);
}

static void rank_calls_what_used_to_allocate(cdp_group *g, void *arg) {
    uint64_t counts[4] = {3, 0, 5, 2};
    int64_t before = 0;
    float all[10];
    (void)arg;
    for (int run = 0; run < 200; ++run) {
        cdp_request rq;
        cdp_work work;
        T_EQ(CDP_OK, cdp_barrier(g));
        if (run == 100) before = counted.calls;
        T_EQ(CDP_OK, cdp_barrier(g));
        memset(&rq, 0, sizeof rq);
        rq.kind = CDP_COLL_ALLGATHER;
        rq.out = all;
        rq.out_counts = counts;
        T_EQ(CDP_OK, cdp_start(g, &rq, &work));
        T_EQ(CDP_OK, cdp_work_wait(work));
        T_EQ(CDP_OK, cdp_monitored_barrier(g, 20000));
    }
    T_EQ(CDP_OK, cdp_barrier(g));
    test_check(counted.calls - before <= allocations_at_most(), __FILE__, __LINE__,
        "%lld allocations", (long long)(counted.calls - before));
    T_EQ(CDP_OK, cdp_barrier(g));
}

TEST(uneven_parts_and_monitored_barriers_allocate_nothing) {
    cdp_group_desc like;
    memset(&like, 0, sizeof like);
    like.os = counted_os();
    run_ranks(4, &like, 0, rank_calls_what_used_to_allocate, NULL);
    T_EQ(0, counted.held);
}
/* ---- means ----------------------------------------------------------------------------------- */

static void means_of_rank(cdp_group *g, void *arg) {
    const int32_t sign = cdp_rank(g) ? 1 : -1;
    uint16_t f16[3] = {
        0x7bff, 0x0001, (uint16_t)(cdp_rank(g) ? 0x7e00 : 0x3c00)}; /* 65504 ... NaN */
    int8_t i8[4] = {127, -128, (int8_t)(cdp_rank(g) ? 2 : 1), (int8_t)(cdp_rank(g) ? -2 : -1)};
    uint8_t u8[2] = {255, (uint8_t)cdp_rank(g)}, e4m3 = 0x7e, truth = cdp_rank(g) ? 2 : 1;
    int32_t i32[2] = {INT32_MAX, sign}, part = 0;
    uint32_t u32 = UINT32_MAX;
    (void)arg;
    T_EQ(CDP_OK, cdp_allreduce(g, NULL, f16, 3, CDP_DTYPE_F16, CDP_REDUCE_AVG));
    T(f16[0] == 0x7bff && f16[1] == 1 && (f16[2] & 0x7fff) > 0x7c00);
    T_EQ(CDP_OK, cdp_allreduce(g, NULL, &e4m3, 1, CDP_DTYPE_F8E4M3, CDP_REDUCE_AVG));
    T_EQ(0x7e, e4m3); /* 448 */
    T_EQ(CDP_OK, cdp_allreduce(g, NULL, i8, 4, CDP_DTYPE_I8, CDP_REDUCE_AVG));
    T(i8[0] == 127 && i8[1] == -128 && i8[2] == 2 && i8[3] == -2);
    T_EQ(CDP_OK, cdp_allreduce(g, NULL, u8, 2, CDP_DTYPE_U8, CDP_REDUCE_AVG));
    T(u8[0] == 255 && u8[1] == 1);
    T_EQ(CDP_OK, cdp_reduce(g, NULL, &u32, 1, CDP_DTYPE_U32, CDP_REDUCE_AVG, 1));
    T_EQ(UINT32_MAX, u32);
    T_EQ(CDP_OK, cdp_reduce_scatter(g, i32, &part, 1, CDP_DTYPE_I32, CDP_REDUCE_AVG));
    T_EQ(cdp_rank(g) ? 0 : INT32_MAX, part);
    T(i32[0] == INT32_MAX && i32[1] == sign);
    T_EQ(CDP_OK, cdp_allreduce(g, NULL, &truth, 1, CDP_DTYPE_BOOL, CDP_REDUCE_BAND));
    T_EQ(1, truth);
}
TEST(means_do_not_overflow_and_are_rounded_once) {
    run_ranks(2, NULL, 0, means_of_rank, NULL);
}

static void wide_means_of_rank(cdp_group *g, void *arg) {
    const bool last = cdp_rank(g) == 2;
    int64_t i64[4] = {INT64_MAX, INT64_MIN, last ? 1 : 0, last ? -2 : 0};
    uint64_t u64[2] = {UINT64_MAX, last ? 2 : 0};
    (void)arg;
    T_EQ(CDP_OK, cdp_allreduce(g, NULL, i64, 4, CDP_DTYPE_I64, CDP_REDUCE_AVG));
    T(i64[0] == INT64_MAX && i64[1] == INT64_MIN && i64[2] == 0 && i64[3] == -1);
    T_EQ(CDP_OK, cdp_allreduce(g, NULL, u64, 2, CDP_DTYPE_U64, CDP_REDUCE_AVG));
    T(u64[0] == UINT64_MAX && u64[1] == 1);
}
TEST(means_of_64_bits_do_not_wrap) {
    run_ranks(3, NULL, 0, wide_means_of_rank, NULL);
}

/* ---- a child of fork() ----------------------------------------------------------------------- */

static void rank_has_a_child(cdp_group *g, void *arg) {
    float x = 1;
    int status = -1;
    const pid_t child = fork();
    (void)arg;
    if (child == 0) {
        bool refused;
        alarm(10); /* the threads of the other rank are not here */
        refused = cdp_allreduce(g, NULL, &x, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM) == CDP_ERR_STATE
            && strstr(cdp_last_error()->text, "this process is a child, by fork()") != NULL
            && cdp_barrier(g) == CDP_ERR_STATE && cdp_group_status(g) == CDP_ERR_STATE;
        cdp_group_destroy(g);
        cdp_group_destroy(g);
        _exit(refused ? 0 : 1);
    }
    T(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    T_EQ(CDP_OK, cdp_allreduce(g, NULL, &x, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    T(x == 2);
}
TEST(a_child_leaves_its_parents_group_alone) {
    run_ranks(2, NULL, 0, rank_has_a_child, NULL);
}

/* ---- accumulate ------------------------------------------------------------------------------ */

/* 256 on rank 0, 1 on the others: a sum in bf16 loses what one in f32 keeps; `n` of them. */
static void sum_in_f32(cdp_group *g, cdp_coll_kind kind, uint64_t n) {
    const uint32_t rank = cdp_rank(g), size = cdp_size(g);
    /* bits of 256 and those after it: 258, 260, ... */
    const uint16_t one = 0x3f80, large = 0x4380, left = 0x1234;
    uint16_t *in = (uint16_t *)malloc(n * size * 2), *out = (uint16_t *)malloc(n * size * 2);
    uint16_t want = (uint16_t)(large + (size - 1) / 2);
    cdp_request rq;
    cdp_work w;
    for (uint64_t i = 0; i < n * size; ++i) {
        in[i] = rank ? one : large;
        out[i] = left;
    }
    memset(&rq, 0, sizeof rq);
    rq.kind = kind;
    rq.in = in;
    rq.out = out;
    rq.count = n;
    rq.dtype = CDP_DTYPE_BF16;
    rq.accumulate = CDP_DTYPE_F32;
    T_EQ(CDP_OK, cdp_start(g, &rq, &w));
    T_EQ(CDP_OK, cdp_work_wait(w));
    if (kind == CDP_COLL_REDUCE && rank) want = left;
    /* ranks 0 to `rank`, or to the one before; a tie goes to the even one */
    if (kind == CDP_COLL_SCAN) want = (uint16_t)(large + (rank == 3 ? 2 : rank / 2));
    if (kind == CDP_COLL_EXSCAN) want = rank ? (uint16_t)(large + (rank - 1) / 2) : left;
    if (kind == CDP_COLL_EXSCAN && rank == 4) want = (uint16_t)(large + 2);
    for (uint64_t i = 0; i < n; ++i)
        if (!T_EQ(want, out[i])) break;
    free(in);
    free(out);
}

static void rank_sums_in_f32(cdp_group *g, void *arg) {
    static const uint64_t counts[] = {1, 300, 70001};
    (void)arg;
    for (uint32_t i = 0; i < 3; ++i) {
        sum_in_f32(g, CDP_COLL_ALLREDUCE, counts[i]);
        sum_in_f32(g, CDP_COLL_REDUCE, counts[i]);
        sum_in_f32(g, CDP_COLL_REDUCE_SCATTER, counts[i]);
        sum_in_f32(g, CDP_COLL_SCAN, counts[i]);
        sum_in_f32(g, CDP_COLL_EXSCAN, counts[i]);
    }
}
TEST(sums_of_16_bits_accumulate_in_f32) {
    run_ranks(5, NULL, 0, rank_sums_in_f32, NULL);
}

static void rank_accumulates_alone(cdp_group *g, void *arg) {
    uint16_t x[2] = {0, 0};
    cdp_request rq;
    cdp_work w;
    (void)arg;
    memset(&rq, 0, sizeof rq);
    rq.kind = CDP_COLL_ALLREDUCE;
    rq.out = x;
    rq.count = 2;
    rq.dtype = CDP_DTYPE_F16;
    rq.accumulate = CDP_DTYPE_F64;
    T_EQ(CDP_ERR_INVALID, cdp_start(g, &rq, &w));
    T_TEXT("allreduce: accumulate is 2; set it to CDP_DTYPE_F32, or leave it 0",
        cdp_last_error()->text);
    rq.accumulate = cdp_rank(g) ? CDP_DTYPE_F32 : CDP_DTYPE_DEFAULT;
    T_EQ(CDP_OK, cdp_start(g, &rq, &w));
    T_EQ(CDP_ERR_MISMATCH, cdp_work_wait(w));
    T_TEXT("f16 sum accumulated in f32", cdp_last_error()->text);
}
TEST(ranks_that_accumulate_differently_are_named) {
    run_ranks(2, NULL, 0, rank_accumulates_alone, NULL);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"a_child_leaves_its_parents_group_alone", a_child_leaves_its_parents_group_alone, 30},
        {"means_of_64_bits_do_not_wrap", means_of_64_bits_do_not_wrap, 20},
        {"sums_of_16_bits_accumulate_in_f32", sums_of_16_bits_accumulate_in_f32, 20},
        {"ranks_that_accumulate_differently_are_named", ranks_that_accumulate_differently_are_named,
            20},
        {"means_do_not_overflow_and_are_rounded_once", means_do_not_overflow_and_are_rounded_once,
            10},
        {"threads_every_call_blocking", threads_every_call_blocking, 120},
        {"threads_every_call_small_rings_no_spin", threads_every_call_small_rings_no_spin, 60},
        {"threads_many_in_flight", threads_many_in_flight, 60},
        {"threads_several_waiters_per_rank", threads_several_waiters_per_rank, 30},
        {"same_bits_on_every_rank_and_every_run", same_bits_on_every_rank_and_every_run, 120},
        {"sums_of_any_floats_are_close", sums_of_any_floats_are_close, 30},
        {"abort_at_random_moments", abort_at_random_moments, 120},
        {"abort_while_waiting", abort_while_waiting, 30},
        {"late_rank_is_named_by_its_neighbour", late_rank_is_named_by_its_neighbour, 20},
        {"late_rank_is_named_by_everybody", late_rank_is_named_by_everybody, 30},
        {"leaving_at_once_after_the_last_operation", leaving_at_once_after_the_last_operation, 60},
        {"leaving_early_is_noticed", leaving_early_is_noticed, 30},
        {"leaving_a_group_that_was_never_used_is_noticed",
            leaving_a_group_that_was_never_used_is_noticed, 30},
        {"waiting_costs_no_processor_time", waiting_costs_no_processor_time, 30},
        {"idle_groups_cost_no_processor_time", idle_groups_cost_no_processor_time, 10},
        {"progress_without_waiting", progress_without_waiting, 10},
        {"threads_allocate_nothing_after_warm_up", threads_allocate_nothing_after_warm_up, 30},
        {"uneven_parts_and_monitored_barriers_allocate_nothing",
            uneven_parts_and_monitored_barriers_allocate_nothing, 30},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
