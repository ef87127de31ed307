/* test_works.c - works: chained, cancelled, asked for errors; messages of all kinds; lengths and
   bytes; wrong arguments */
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"

#include "worlds.h"

static cdp_request allreduce_of(float *x, uint64_t count) {
    cdp_request rq;
    memset(&rq, 0, sizeof rq);
    rq.kind = CDP_COLL_ALLREDUCE;
    rq.out = x;
    rq.count = count;
    return rq;
}

/* ---- then ------------------------------------------------------------------------------------ */

typedef struct note { /* what a chained function does and saw */
    float *x;
    float factor;
    uint32_t sleep_ms, await;
    cdp_status answer, seen, waited;
    uint32_t calls;
    cdp_group *group;
    cdp_work started;
    char text[512];
} note;

static cdp_status noted(void *user, cdp_status status) {
    note *n = (note *)user;
    if (n->sleep_ms) test_sleep_ms(n->sleep_ms);
    await(n->await);
    n->seen = status;
    snprintf(n->text, sizeof n->text, "%s", status == CDP_OK ? "" : cdp_last_error()->text);
    if (n->x && status == CDP_OK) *n->x *= n->factor;
    if (n->group) { /* it may start things, and must not wait for them */
        const cdp_request rq = allreduce_of(n->x, 1);
        if (cdp_start(n->group, &rq, &n->started) == CDP_OK) n->waited = cdp_barrier(n->group);
        cdp_group_destroy(n->group); /* nothing happens */
    }
    __atomic_add_fetch(&n->calls, 1, __ATOMIC_SEQ_CST);
    if (n->answer != CDP_OK)
        return cdp_error_set(
            n->answer, -1, 0, "this function does not like rank %u", (unsigned)(n->factor));
    return CDP_OK;
}

static uint32_t calls_of(const note *n) {
    return __atomic_load_n(&n->calls, __ATOMIC_SEQ_CST);
}

/* sum, then times ten on every rank, then sum again, times ten again; and one more operation
   behind all that. One rank's functions are slow, so the ranks come to the chained operations at
   very different times. */
static void chain(uint32_t rank, cdp_group *w) {
    float x = (float)(rank + 1), y = 1;
    note first = {.x = &x, .factor = 10, .sleep_ms = rank == 1 ? 30 : 0}, second = first;
    const cdp_request rq = allreduce_of(&x, 1);
    cdp_work a, a10, b, b10, c;
    for (uint32_t i = 0; i < 3; ++i) {
        x = (float)(rank + 1);
        y = 1;
        OK(cdp_start(w, &rq, &a));
        OK(cdp_work_then(a, noted, &first, &a10));
        OK(cdp_start_after(w, &rq, a10, &b));
        OK(cdp_work_then(b, noted, &second, &b10));
        OK(cdp_allreduce_async(w, NULL, &y, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM, &c));
        T_EQ(a.seq + 1, b.seq); /* its place is taken at the call */
        T_EQ(b.seq + 1, c.seq);
        OK(cdp_work_wait(c));
        T(y == 3);
        OK(cdp_work_wait(b10));
        T(x == 6 * 10 * 3 * 10);
        T_EQ(i + 1, calls_of(&first));
        T_EQ(i + 1, calls_of(&second));
        OK(cdp_work_wait(a10));
        OK(cdp_work_test(b10));
    }
}

TEST(functions_and_operations_in_a_chain) {
    run(3, 20000, chain);
}

/* An operation of one group after that of another, which one rank is late to start. */
static void across(uint32_t rank, cdp_group *w) {
    const uint32_t both[2] = {0, 1};
    cdp_group *g;
    float x = 1, y = 1;
    const cdp_request ry = allreduce_of(&y, 1);
    cdp_work a, b;
    if (!OK(cdp_group_new(w, both, 2, &g))) return;
    if (rank == 1) test_sleep_ms(40);
    OK(cdp_allreduce_async(w, NULL, &x, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM, &a));
    OK(cdp_start_after(g, &ry, a, &b));
    if (rank == 0) T_EQ(CDP_PENDING, cdp_work_wait_for(b, 1));
    OK(cdp_work_wait(b));
    OK(cdp_work_test(a)); /* it was done before */
    T(x == 2 && y == 2);
    OK(cdp_barrier(w));
    cdp_group_destroy(g);
}

TEST(an_operation_after_that_of_another_group) {
    run(2, 20000, across);
}

/* What a function returns breaks the group, everywhere, with its text. */
static void unhappy(uint32_t rank, cdp_group *w) {
    float x = 1;
    note n = {.answer = rank == 1 ? CDP_ERR_INVALID : CDP_OK,
             .factor = 1,
             .await = rank == 1 ? 1 : 0},
         after = {.factor = 2};
    const cdp_request rq = allreduce_of(&x, 1);
    cdp_work a, b, c, d;
    OK(cdp_start(w, &rq, &a));
    OK(cdp_work_then(a, noted, &n, &b));
    OK(cdp_start_after(w, &rq, b, &c));
    OK(cdp_work_then(c, noted, &after, &d));
    OK(cdp_work_wait(a));
    if (rank == 0) come();
    T_EQ(CDP_ERR_INVALID, cdp_work_wait(c));
    T_TEXT("this function does not like rank 1", cdp_last_error()->text);
    T_EQ(1, cdp_last_error()->origin);
    T_EQ(CDP_ERR_INVALID, cdp_work_wait(d));
    for (uint32_t i = 0; i < 500 && !calls_of(&after); ++i, test_sleep_ms(1))
        (void)cdp_poll(w, 0);
    T_EQ(1, calls_of(&after));
    T_EQ(CDP_ERR_INVALID, after.seen);
    T_TEXT("this function does not like rank 1", after.text);
    OK(cdp_work_test(a)); /* it was done before all that */
}

TEST(an_error_of_a_function_breaks_the_group) {
    run(2, 20000, unhappy);
}

/* Functions may start operations, but not wait; on a finished work, too; and a destroyed group
   calls what it still owes. */
static void inside(uint32_t rank, cdp_group *w) {
    float x = (float)rank + 1, never = 0;
    note n = {.x = &x, .factor = 1, .group = w}, last = {.x = NULL};
    cdp_group *g;
    const uint32_t both[2] = {0, 1};
    cdp_work a, b;
    OK(cdp_barrier_async(w, &a));
    OK(cdp_work_wait(a));
    OK(cdp_work_then(a, noted, &n, &b));
    OK(cdp_work_wait(b));
    T_EQ(1, calls_of(&n));
    T_EQ(CDP_ERR_STATE, n.waited);
    OK(cdp_work_wait(n.started));
    T(x == 3);
    if (!OK(cdp_group_new(w, both, 2, &g))) return;
    if (rank == 0) {
        OK(cdp_recv_async(g, &never, 1, CDP_DTYPE_F32, 1, 5, &a));
        OK(cdp_work_then(a, noted, &last, NULL));
    }
    cdp_group_destroy(g);
    if (rank == 0) {
        T_EQ(1, last.calls);
        T_EQ(CDP_ERR_STATE, last.seen);
        T_TEXT("destroyed", last.text);
    }
    OK(cdp_barrier(w));
}

TEST(what_functions_may_do) {
    run(2, 20000, inside);
}

static uint64_t allocations;

static void *counting_alloc(void *user, uint64_t bytes) {
    __atomic_add_fetch(&allocations, 1, __ATOMIC_SEQ_CST);
    return cdp__os_alloc(user, bytes);
}

/* A pool of a size of one's own: full means refused, and nothing is allocated after the first
   use. */
TEST(the_pool_is_bounded) {
    cdp_os os = *cdp_os_default();
    os.alloc = counting_alloc;
    const cdp_group_desc d = {.world_size = 1, .max_pending = 3, .os = &os};
    cdp_group *g;
    cdp_work a, next[4];
    float x = 1;
    note n = {.x = &x, .factor = 2};
    if (!OK(cdp_group_create(&d, &g))) return;
    OK(cdp_barrier_async(g, &a));
    for (uint32_t round = 0; round < 300; ++round) {
        const uint64_t before = allocations;
        x = 1;
        for (uint32_t i = 0; i < 3; ++i)
            OK(cdp_work_then(a, noted, &n, &next[i]));
        T_EQ(CDP_ERR_STATE, cdp_work_then(a, noted, &n, &next[3]));
        T_TEXT("max_pending", cdp_last_error()->text);
        T_EQ(0, next[3].seq);
        T_EQ(CDP_PENDING, cdp_work_error(next[0], &(cdp_error){.status = CDP_OK}));
        for (uint32_t i = 0; i < 3; ++i)
            OK(cdp_work_wait(next[2 - i]));
        T(x == 8);
        OK(cdp_barrier_async(g, &a));
        OK(cdp_start_after(g, &(cdp_request){.kind = CDP_COLL_BARRIER}, next[0], &a));
        OK(cdp_work_wait(a));
        if (round) T_EQ(0, allocations - before);
    }
    OK(cdp_work_test(next[0]));
    cdp_group_destroy(g);
}

/* Whichever place is free between others that are taken, it is found, and no other is touched. */
TEST(a_free_place_between_others_is_found) {
    const cdp_group_desc d = {.world_size = 1, .max_pending = 5};
    cdp_group *g;
    cdp_work a, next[5], again;
    if (!OK(cdp_group_create(&d, &g))) return;
    for (uint32_t freed = 0; freed < 25; ++freed) {
        float x[6] = {1, 1, 1, 1, 1, 1};
        note n[6];
        OK(cdp_barrier_async(g, &a));
        for (uint32_t i = 0; i < 6; ++i)
            n[i] = (note){.x = &x[i], .factor = (float)(i + 2)};
        for (uint32_t i = 0; i < 5; ++i)
            OK(cdp_work_then(a, noted, &n[i], &next[i]));
        T_EQ(CDP_OK, cdp_work_cancel(next[freed % 5]));
        OK(cdp_work_then(a, noted, &n[5], &again));
        OK(cdp_work_wait(again));
        for (uint32_t i = 0; i < 5; ++i)
            if (i != freed % 5) OK(cdp_work_wait(next[i]));
        for (uint32_t i = 0; i < 6; ++i)
            T(x[i] == (i == freed % 5 ? 1 : (float)(i + 2)));
        OK(cdp_work_wait(a));
    }
    cdp_group_destroy(g);
}

typedef struct turn {
    uint32_t *calls, number; /* of all functions so far; of this one */
} turn;

static cdp_status numbered(void *user, cdp_status status) {
    turn *t = (turn *)user;
    T_EQ(CDP_OK, status);
    t->number = ++*t->calls;
    return CDP_OK;
}

/* Functions of one work run in the order of the calls of cdp_work_then(), wherever in the pool
   their places are, whether some were cancelled, and whether the work was done already. Functions
   of works that end later do not come in between. */
TEST(functions_of_one_work_run_in_the_order_of_the_calls) {
    enum {
        N = 7
    };
    const cdp_hub_desc h = {.world_size = 2};
    cdp_hub *own;
    cdp_group *g[2];
    float x = 1, y = 0;
    if (!OK(cdp_hub_create(&h, &own))) return;
    for (uint32_t r = 0; r < 2; ++r) {
        const cdp_group_desc d = {
            .rank = r, .world_size = 2, .hub = own, .max_pending = 2 * N + 3, .no_thread = true};
        if (!OK(cdp_group_create(&d, &g[r]))) return;
    }
    for (uint32_t round = 0; round < 40; ++round) {
        const bool done = round % 2, cancels = round % 3 == 0;
        const uint32_t gone = round % N;
        uint32_t calls = 0, want = 0;
        turn first[N], second[N];
        cdp_work work[2], next[N];
        for (uint32_t k = 0; k < 2; ++k)
            OK(cdp_recv_async(g[0], &y, 1, CDP_DTYPE_F32, 1, k, &work[k]));
        if (done) OK(cdp_send(g[1], &x, 1, CDP_DTYPE_F32, 0, 0));
        if (done) OK(cdp_work_wait(work[0]));
        for (uint32_t i = 0; i < N; ++i) {
            first[i] = second[i] = (turn){.calls = &calls};
            OK(cdp_work_then(work[1], numbered, &second[i], NULL));
            OK(cdp_work_then(work[0], numbered, &first[i], &next[i]));
        }
        T_EQ(0, calls); /* never inside the call */
        if (cancels) OK(cdp_work_cancel(next[gone]));
        if (!done) OK(cdp_send(g[1], &x, 1, CDP_DTYPE_F32, 0, 0));
        OK(cdp_work_wait(next[cancels && gone == N - 1 ? N - 2 : N - 1]));
        for (uint32_t i = 0; i < N; ++i)
            T_EQ(cancels && i == gone ? 0 : ++want, first[i].number);
        OK(cdp_send(g[1], &x, 1, CDP_DTYPE_F32, 0, 1));
        OK(cdp_work_wait(work[1]));
        OK(cdp_poll(g[0], 0));
        for (uint32_t i = 0; i < N; ++i)
            T_EQ(++want, second[i].number);
    }
    for (uint32_t r = 0; r < 2; ++r)
        cdp_group_destroy(g[r]);
    cdp_hub_destroy(own);
}

/* ---- cancel ---------------------------------------------------------------------------------- */

static void cancelled_messages(uint32_t rank, cdp_group *w) {
    int32_t x[6] = {0}, in[6] = {0};
    cdp_work work[6], c;
    cdp_error e;
    note n = {.x = NULL};
    for (int32_t i = 0; i < 6; ++i)
        x[i] = i + 1;
    if (rank == 0) {
        for (uint32_t i = 0; i < 4; ++i)
            OK(cdp_recv_async(w, &in[i], 1, CDP_DTYPE_I32, 1, 7, &work[i]));
        OK(cdp_work_then(work[2], noted, &n, &c));
        T_EQ(CDP_OK, cdp_work_cancel(work[0])); /* the first one, which waits for its message */
        T_EQ(CDP_OK, cdp_work_cancel(work[2])); /* and one behind */
        T_EQ(CDP_ERR_ABORTED, cdp_work_cancel(work[2]));
        T_EQ(CDP_ERR_ABORTED, cdp_work_test(work[0]));
        T_EQ(CDP_ERR_ABORTED, cdp_work_wait(work[2]));
        T_TEXT("cancelled", cdp_last_error()->text);
        T_EQ(CDP_ERR_ABORTED, cdp_work_error(work[2], &e));
        T_EQ(CDP_ERR_ABORTED, e.status);
        T_EQ(CDP_ERR_ABORTED, cdp_work_wait(c)); /* what hangs on it ends likewise */
        T_EQ(1, calls_of(&n));
        T_EQ(CDP_ERR_ABORTED, n.seen);
        T_EQ(CDP_PENDING, cdp_work_test(work[1]));
        OK(cdp_barrier(w));
        OK(cdp_work_wait(work[3]));
        OK(cdp_work_wait(work[1]));
        /* no message was lost, and they kept their order */
        T(in[0] == 0 && in[1] == 1 && in[2] == 0 && in[3] == 2);
        T_EQ(CDP_ERR_STATE, cdp_work_cancel(work[1]));
        OK(cdp_recv(w, &in[4], 1, CDP_DTYPE_I32, 1, 7));
        T_EQ(3, in[4]);
    } else {
        OK(cdp_barrier(w));
        for (uint32_t i = 0; i < 3; ++i)
            OK(cdp_send(w, &x[i], 1, CDP_DTYPE_I32, 0, 7));
    }
    OK(cdp_barrier(w));
}

TEST(a_receive_is_cancelled_quietly) {
    run(2, 20000, cancelled_messages);
}

/* Sends that wait behind a large one: none of their bytes is on its way. */
static void cancelled_sends(uint32_t rank, cdp_group *w) {
    enum {
        BIG = 12 << 20
    };
    uint8_t *big = (uint8_t *)calloc(BIG, 1);
    int32_t x[3] = {11, 22, 33};
    cdp_work work[4];
    if (rank == 0) {
        OK(cdp_send_async(w, big, BIG, CDP_DTYPE_U8, 1, 3, &work[3]));
        for (uint32_t i = 0; i < 3; ++i)
            OK(cdp_send_async(w, &x[i], 1, CDP_DTYPE_I32, 1, 3, &work[i]));
        T_EQ(CDP_OK, cdp_work_cancel(work[1]));
        /* it has begun: more than the window is still to be sent */
        T_EQ(CDP_ERR_STATE, cdp_work_cancel(work[3]));
        T_TEXT("begun", cdp_last_error()->text);
        OK(cdp_barrier(w));
        OK(cdp_work_wait(work[0]));
        OK(cdp_work_wait(work[2]));
        T_EQ(CDP_ERR_ABORTED, cdp_work_wait(work[1]));
    } else {
        OK(cdp_barrier(w));
        OK(cdp_recv(w, big, BIG, CDP_DTYPE_U8, 0, 3));
        OK(cdp_recv(w, &x[0], 1, CDP_DTYPE_I32, 0, 3));
        OK(cdp_recv(w, &x[1], 1, CDP_DTYPE_I32, 0, 3));
        T(x[0] == 11 && x[1] == 33);
    }
    OK(cdp_barrier(w));
    free(big);
}

TEST(a_send_is_cancelled_quietly) {
    run(2, 20000, cancelled_sends);
}

static void cancelled_functions(uint32_t rank, cdp_group *w) {
    note n = {.x = NULL}, m = {.x = NULL};
    cdp_work a, b, c;
    if (rank == 1) test_sleep_ms(30);
    OK(cdp_barrier_async(w, &a));
    OK(cdp_work_then(a, noted, &n, &b));
    OK(cdp_work_then(b, noted, &m, &c));
    if (rank == 0) {
        T_EQ(CDP_OK, cdp_work_cancel(b));
        T_EQ(CDP_ERR_ABORTED, cdp_work_wait(b));
        T_EQ(CDP_ERR_ABORTED, cdp_work_wait(c));
        T_EQ(CDP_ERR_ABORTED, m.seen);
    }
    OK(cdp_barrier(w));
    if (rank == 0)
        T_EQ(0, calls_of(&n));
    else
        OK(cdp_work_wait(c));
    OK(cdp_work_wait(a));
}

TEST(a_function_is_cancelled_quietly) {
    run(2, 20000, cancelled_functions);
}

static void cancelled_operation(uint32_t rank, cdp_group *w) {
    float x = 1;
    cdp_work a;
    if (rank == 2) {
        OK(cdp_allreduce_async(w, NULL, &x, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM, &a));
        T_EQ(CDP_OK, cdp_work_cancel(a));
        come();
    }
    await(1);
    cdp_status st =
        rank == 2 ? cdp_work_wait(a) : cdp_allreduce(w, NULL, &x, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM);
    /* what rank 2 had sent may have been enough for the first */
    while (rank != 2 && st == CDP_OK)
        st = cdp_barrier(w);
    T_EQ(CDP_ERR_ABORTED, st);
    T_TEXT("cancelled by rank 2", cdp_last_error()->text);
    T_EQ(2, cdp_last_error()->peer);
}

TEST(cancelling_an_operation_breaks_the_group) {
    run(3, 20000, cancelled_operation);
}

/* ---- threads --------------------------------------------------------------------------------- */

static void *waits(void *arg) {
    cdp_work *w = (cdp_work *)arg;
    T_EQ(CDP_ERR_STATE, cdp_work_wait(*w));
    T_TEXT("destroyed", cdp_last_error()->text);
    return NULL;
}

/* A thread that waits for an operation of a group that another thread destroys gets an error,
   and touches nothing of it. */
static void destroyed(uint32_t rank, cdp_group *w) {
    const uint32_t both[2] = {0, 1};
    cdp_group *g;
    cdp_work a;
    int32_t x;
    pthread_t t[2];
    if (!OK(cdp_group_new(w, both, 2, &g))) return;
    if (rank == 0) {
        OK(cdp_recv_async(g, &x, 1, CDP_DTYPE_I32, 1, 1, &a));
        for (uint32_t i = 0; i < 2; ++i)
            pthread_create(&t[i], NULL, waits, &a);
        test_sleep_ms(30);
    }
    cdp_group_destroy(g);
    if (rank == 0)
        for (uint32_t i = 0; i < 2; ++i)
            pthread_join(t[i], NULL);
    OK(cdp_barrier(w));
}

TEST(who_waits_for_a_destroyed_group_is_told) {
    run(2, 20000, destroyed);
}

/* ---- messages -------------------------------------------------------------------------------- */

/* Length in elements of the k-th message of a rank; what its elements are. */
static uint64_t length_of(uint32_t rank, uint32_t k) {
    if (k % 5 == 0) return 0;
    return k % 7 == 3 ? 1250000 : 1 + (rank * 31 + k * 17) % 300;
}
static int32_t element_of(uint32_t rank, uint32_t k, uint64_t i) {
    return (int32_t)(rank * 100000 + k * 1000 + (uint32_t)(i % 997));
}

static void expect(const int32_t *x, const cdp_message *m, uint32_t k, uint32_t tag) {
    T_EQ(tag, m->tag);
    T_EQ(CDP_DTYPE_I32, m->dtype);
    T_EQ(length_of(m->source, k), m->count);
    for (uint64_t i = 0; i < m->count; ++i)
        if (x[i] != element_of(m->source, k, i)) {
            test_check(false, __FILE__, __LINE__,
                "element %llu of message %u from rank %u is wrong", (unsigned long long)i, k,
                m->source);
            return;
        }
}

enum {
    MANY = 14,
    LARGEST = 1250000
};

/* Everybody but rank 0 sends messages of many lengths; rank 0 takes them from anybody, several
   at once, and each rank's come in the order in which that rank sent them. */
static void from_anybody(uint32_t rank, cdp_group *w) {
    const uint32_t n = cdp_size(w);
    if (rank) {
        int32_t *x = (int32_t *)malloc(LARGEST * sizeof *x);
        for (uint32_t k = 0; k < MANY; ++k) {
            for (uint64_t i = 0; i < length_of(rank, k); ++i)
                x[i] = element_of(rank, k, i);
            OK(cdp_send(w, x, length_of(rank, k), CDP_DTYPE_I32, 0, 9));
        }
        free(x);
    } else {
        enum {
            AT_ONCE = 3
        };
        int32_t *x[AT_ONCE];
        cdp_message got[AT_ONCE];
        cdp_work work[AT_ONCE];
        uint32_t next[RANKS_MAX] = {0}, started = 0;
        for (uint32_t i = 0; i < AT_ONCE; ++i)
            x[i] = (int32_t *)malloc(LARGEST * sizeof **x);
        for (uint32_t done = 0; done < (n - 1) * MANY && !test__now.failed_checks; ++done) {
            for (; started < done + AT_ONCE && started < (n - 1) * MANY; ++started)
                OK(cdp_recv_any_async(w, x[started % AT_ONCE], LARGEST, CDP_DTYPE_I32, CDP_ANY_RANK,
                    9, &got[started % AT_ONCE], &work[started % AT_ONCE]));
            if (!OK(cdp_work_wait(work[done % AT_ONCE]))) break;
            const uint32_t from = got[done % AT_ONCE].source;
            if (T(from > 0 && from < n))
                expect(x[done % AT_ONCE], &got[done % AT_ONCE], next[from]++, 9);
        }
        for (uint32_t i = 0; i < AT_ONCE; ++i)
            free(x[i]);
        for (uint32_t r = 1; r < n; ++r)
            T_EQ(MANY, next[r]);
    }
    OK(cdp_barrier(w));
}

TEST(receives_from_any_rank) {
    run(4, 30000, from_anybody);
}

/* Ranks come in turn; a receive from one rank goes before those from any; probe says what is
   there. */
static void in_turn(uint32_t rank, cdp_group *w) {
    int32_t x = (int32_t)rank, y = 0, z[4];
    cdp_message got, seen;
    cdp_work any;
    if (rank) {
        for (int32_t i = 0; i < 3; ++i) {
            x = (int32_t)rank * 10 + i;
            OK(cdp_send(w, &x, 1, CDP_DTYPE_I32, 0, 4));
        }
        OK(cdp_barrier(w));
        if (rank == 2) {
            OK(cdp_send(w, &x, 1, CDP_DTYPE_I32, 0, 5));
            OK(cdp_send(w, &x, 1, CDP_DTYPE_I32, 0, 5));
        }
        if (rank == 1) OK(cdp_send(w, (int32_t[]){1, 2, 3}, 3, CDP_DTYPE_I32, 0, 6));
    } else {
        T_EQ(CDP_PENDING, cdp_probe(w, 1, 77, &seen));
        OK(cdp_barrier(w)); /* all nine are on their way now */
        for (uint32_t i = 0; i < 9; ++i) {
            while (cdp_probe(w, i % 3 + 1, 4, &seen) == CDP_PENDING) {
            }
            T_EQ(i % 3 + 1, seen.source);
            T_EQ(1, seen.count);
            if (i < 6) {
                OK(cdp_recv_any(w, &y, 1, CDP_DTYPE_I32, CDP_ANY_RANK, 4, &got));
                T_EQ(i % 3 + 1, got.source);
                T_EQ(got.source * 10 + i / 3, y);
            } else {
                OK(cdp_recv(w, &y, 1, CDP_DTYPE_I32, i % 3 + 1, 4));
                T_EQ((i % 3 + 1) * 10 + 2, y);
            }
        }
        OK(cdp_recv_any_async(w, &y, 1, CDP_DTYPE_I32, CDP_ANY_RANK, 5, &got, &any));
        OK(cdp_recv(w, &x, 1, CDP_DTYPE_I32, 2, 5));
        /* the one that was left, or the first where it was already claimed */
        OK(cdp_work_wait(any));
        T_EQ(2, got.source);
        while (cdp_probe(w, CDP_ANY_RANK, 6, &seen) == CDP_PENDING) {
        }
        T(seen.source == 1 && seen.count == 3 && seen.dtype == CDP_DTYPE_I32);
        OK(cdp_recv_any(w, z, 4, CDP_DTYPE_I32, 1, 6, &got));
        T(got.source == 1 && got.count == 3 && z[0] == 1 && z[2] == 3);
    }
    OK(cdp_barrier(w));
}

TEST(ranks_come_in_turn) {
    run(4, 20000, in_turn);
}

/* Those who have left are not waited for; when nobody is left, no message can come. */
static void all_leave(uint32_t rank, cdp_group *w) {
    int32_t x = 0;
    cdp_message got;
    cdp_work work;
    OK(cdp_barrier(w));
    if (rank) {
        OK(cdp_send_async(w, &x, 1, CDP_DTYPE_I32, 0, 1, &work));
        OK(cdp_work_wait(work));
        if (rank == 2) test_sleep_ms(30);
        return; /* leaves */
    }
    OK(cdp_recv_any(w, &x, 1, CDP_DTYPE_I32, CDP_ANY_RANK, 1, &got));
    OK(cdp_recv_any(w, &x, 1, CDP_DTYPE_I32, CDP_ANY_RANK, 1, &got));
    T_EQ(CDP_ERR_PEER_LOST, cdp_recv_any(w, &x, 1, CDP_DTYPE_I32, CDP_ANY_RANK, 1, &got));
    T_TEXT("all other ranks have left; rank 1 sent fewest of them, 1", cdp_last_error()->text);
    T_EQ(1, cdp_last_error()->peer);
}

TEST(nobody_is_left_to_send) {
    run(3, 20000, all_leave);
}

static void nobody_sends(uint32_t rank, cdp_group *w) {
    int32_t x;
    cdp_message got;
    cdp_work work;
    if (rank == 0) {
        OK(cdp_recv_any_async(w, &x, 1, CDP_DTYPE_I32, CDP_ANY_RANK, 3, &got, &work));
        T_EQ(CDP_OK, cdp_work_cancel(work));
        T_EQ(CDP_ERR_ABORTED, cdp_work_wait(work));
        const uint64_t from = test_now_ns();
        T_EQ(CDP_ERR_TIMEOUT, cdp_recv_any(w, &x, 1, CDP_DTYPE_I32, CDP_ANY_RANK, 3, &got));
        T_TEXT("400 ms passed while waiting for a message with tag 3 from any rank",
            cdp_last_error()->text);
        T_WITHIN(1000, test_now_ns() - from);
        come();
    } else {
        await(1);
        while (cdp_barrier(w) == CDP_OK) {
        }
    }
}

TEST(nobody_sends_in_time) {
    run(2, 400, nobody_sends);
}

/* In a group of some ranks, which one of them breaks. */
static void any_and_abort(uint32_t rank, cdp_group *w) {
    const uint32_t all[3] = {2, 1, 0};
    cdp_group *g;
    int32_t x = 5;
    cdp_message got;
    if (!OK(cdp_group_new(w, all, 3, &g))) return;
    if (rank == 1) {
        OK(cdp_send(g, &x, 1, CDP_DTYPE_I32, 2, 0));
        OK(cdp_barrier(w));
        cdp_group_abort(g, "enough of this");
    } else if (rank == 0) {
        OK(cdp_recv_any(g, &x, 1, CDP_DTYPE_I32, CDP_ANY_RANK, 0, &got));
        T_EQ(1, got.source);
        OK(cdp_barrier(w));
        const uint64_t from = test_now_ns();
        T_EQ(CDP_ERR_ABORTED, cdp_recv_any(g, &x, 1, CDP_DTYPE_I32, CDP_ANY_RANK, 0, &got));
        T_TEXT("enough of this", cdp_last_error()->text);
        T_WITHIN(300, test_now_ns() - from);
    } else {
        OK(cdp_barrier(w));
    }
    OK(cdp_barrier(w));
    cdp_group_destroy(g);
}

TEST(any_rank_and_a_broken_group) {
    run(3, 20000, any_and_abort);
}

static void too_long(uint32_t rank, cdp_group *w) {
    int32_t x[9] = {0};
    cdp_message got;
    OK(cdp_barrier(w));
    if (rank == 0) {
        OK(cdp_send(w, x, 9, CDP_DTYPE_I32, 1, 2));
    } else {
        T_EQ(CDP_ERR_MISMATCH, cdp_recv_any(w, x, 8, CDP_DTYPE_I32, 0, 2, &got));
        T_TEXT("9 elements, but there is room for 8 only", cdp_last_error()->text);
    }
    T_EQ(CDP_ERR_MISMATCH, cdp_barrier(w));
}

TEST(a_message_longer_than_the_room) {
    run(2, 20000, too_long);
}

/* Around a ring, and all with all in one batch whose order is different on every rank. */
static void batches(uint32_t rank, cdp_group *w) {
    enum {
        COUNT = 700000
    };
    const uint32_t n = cdp_size(w);
    int32_t *out = (int32_t *)malloc(COUNT * sizeof *out),
            *in = (int32_t *)malloc(RANKS_MAX * COUNT * sizeof *in);
    cdp_transfer t[2 * RANKS_MAX];
    cdp_message got[RANKS_MAX];
    cdp_work work;
    uint32_t k = 0;
    memset(t, 0, sizeof t);
    for (int32_t i = 0; i < COUNT; ++i)
        out[i] = (int32_t)rank + i;
    OK(cdp_sendrecv(
        w, out, COUNT, (rank + 1) % n, in, COUNT, (rank + n - 1) % n, CDP_DTYPE_I32, 0));
    T(in[0] == (int32_t)((rank + n - 1) % n)
        && in[COUNT - 1] == (int32_t)((rank + n - 1) % n) + COUNT - 1);
    for (uint32_t i = 0; i < 2 * n; ++i) {
        const uint32_t p = (i * (rank + 1) + rank) % n;
        bool there = p == rank;
        for (uint32_t j = 0; j < k; ++j)
            there = there || (t[j].peer == p && t[j].receive == (i % 2 == rank % 2));
        if (there) continue;
        t[k].receive = i % 2 == rank % 2;
        t[k].data = t[k].receive ? in + p * COUNT : out;
        t[k].count = t[k].receive ? COUNT : 1000 + rank;
        t[k].got = t[k].receive ? &got[p] : NULL;
        t[k].dtype = CDP_DTYPE_I32;
        t[k].tag = 8;
        t[k++].peer = p;
    }
    for (uint32_t p = 0; p < n; ++p) /* what the pattern above left out */
        for (uint32_t r = 0; r < 2; ++r) {
            bool there = p == rank;
            for (uint32_t j = 0; j < k; ++j)
                there = there || (t[j].peer == p && t[j].receive == (r == 1));
            if (there) continue;
            t[k] = (cdp_transfer){.receive = r == 1,
                .data = r ? in + p * COUNT : out,
                .count = r ? COUNT : 1000 + rank,
                .dtype = CDP_DTYPE_I32,
                .peer = p,
                .tag = 8,
                .got = r ? &got[p] : NULL};
            ++k;
        }
    T_EQ(2 * (n - 1), k);
    t[k - 1].peer = n; /* one is wrong: none is started */
    T_EQ(CDP_ERR_INVALID, cdp_batch(w, t, k, &work));
    for (uint32_t p = 0; p < n; ++p) {
        bool send = false, receive = false;
        for (uint32_t j = 0; j + 1 < k; ++j) {
            send = send || (t[j].peer == p && !t[j].receive);
            receive = receive || (t[j].peer == p && t[j].receive);
        }
        if (p != rank && !(send && receive)) t[k - 1].peer = p;
    }
    for (uint32_t round = 0; round < 20; ++round) {
        OK(cdp_batch(w, t, k, &work));
        OK(cdp_work_wait(work));
        for (uint32_t p = 0; p < n; ++p)
            if (p != rank)
                T(got[p].source == p && got[p].count == 1000 + p && in[p * COUNT] == (int32_t)p
                    && in[p * COUNT + 999 + p] == (int32_t)(p + 999 + p));
    }
    OK(cdp_barrier(w));
    free(out);
    free(in);
}

TEST(batches_in_any_order) {
    run(4, 20000, batches);
}

/* Nothing is allocated for a message once lanes and pool are there. */
TEST(messages_allocate_nothing) {
    cdp_os os = *cdp_os_default();
    cdp_group *g[2];
    uint64_t before = 0;
    os.alloc = counting_alloc;
    const cdp_hub_desc h = {.world_size = 2, .os = &os};
    if (!OK(cdp_hub_create(&h, &hub))) return;
    for (uint32_t r = 0; r < 2; ++r) {
        const cdp_group_desc d = {
            .rank = r, .world_size = 2, .hub = hub, .os = &os, .no_thread = true};
        if (!OK(cdp_group_create(&d, &g[r]))) return;
    }
    for (int32_t i = 0; i < 500; ++i) { /* polled in turn by this thread */
        int32_t x = i, y = -1, z = -1;
        cdp_message got = {0, 0, 0, CDP_DTYPE_DEFAULT};
        cdp_work any, out[2], in;
        OK(cdp_recv_any_async(g[0], &y, 1, CDP_DTYPE_I32, CDP_ANY_RANK, 1, &got, &any));
        OK(cdp_recv_async(g[0], &z, 1, CDP_DTYPE_I32, 1, 2, &in));
        OK(cdp_send_async(g[1], &x, 1, CDP_DTYPE_I32, 0, 1, &out[0]));
        OK(cdp_send_async(g[1], &x, 1, CDP_DTYPE_I32, 0, 2, &out[1]));
        for (uint32_t k = 0;
             k < 100 && (cdp_work_test(any) == CDP_PENDING || cdp_work_test(in) == CDP_PENDING);
             ++k)
            (void)cdp_poll(g[1], 0);
        OK(cdp_work_test(any));
        OK(cdp_work_test(in));
        OK(cdp_work_test(out[0]));
        T(y == i && z == i && got.source == 1 && got.count == 1);
        if (i == 1) before = allocations;
    }
    T_EQ(0, allocations - before);
    cdp_group_destroy(g[0]);
    cdp_group_destroy(g[1]);
    cdp_hub_destroy(hub);
}

/* ---- objects --------------------------------------------------------------------------------- */

static uint64_t object_bytes(uint32_t rank, uint32_t round) {
    static const uint64_t sizes[] = {1, 0, 777, TEST_SLOW ? 600000 : 5 << 20, 3};
    if (round == 0) return 0;
    if (round == 1) return rank == 0 ? 1 : 0;
    return sizes[(rank + round) % 5];
}

/* What the bytes are: a long pattern, from another place on for each rank and round. */
static const uint8_t *object_pattern(uint32_t rank, uint32_t round) {
    static uint8_t pattern[(5 << 20) + 1000];
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&once);
    for (uint32_t i = pattern[1] ? (uint32_t)sizeof pattern : 0; i < sizeof pattern; ++i)
        pattern[i] = (uint8_t)(i * 7 + i / 251);
    pthread_mutex_unlock(&once);
    return pattern + rank * 31 + round;
}

static uint8_t *object_of(uint32_t rank, uint32_t round) {
    uint8_t *p = (uint8_t *)malloc(object_bytes(rank, round) + 1);
    memcpy(p, object_pattern(rank, round), object_bytes(rank, round));
    return p;
}

static bool is_object(const uint8_t *p, uint64_t bytes, uint32_t rank, uint32_t round) {
    return test_check(bytes == object_bytes(rank, round)
            && (!bytes || memcmp(p, object_pattern(rank, round), bytes) == 0),
        __FILE__, __LINE__, "the %llu bytes from rank %u in round %u are wrong",
        (unsigned long long)bytes, rank, round);
}

static void are_objects(const cdp_blob *b, uint32_t n, uint32_t round) {
    uint64_t at = 0;
    for (uint32_t r = 0; r < n; at += b->lengths[r++])
        if (!is_object(b->data ? (const uint8_t *)b->data + at : NULL, b->lengths[r], r, round))
            return;
    T_EQ(at, b->bytes);
}

static uint32_t held;
static void *hold(void *user, uint64_t bytes) {
    __atomic_add_fetch((uint32_t *)user, 1, __ATOMIC_SEQ_CST);
    return malloc(bytes);
}
static void let_go(void *user, void *p) {
    __atomic_sub_fetch((uint32_t *)user, 1, __ATOMIC_SEQ_CST);
    free(p);
}
static void *refuse(void *user, uint64_t bytes) {
    (void)user;
    (void)bytes;
    return NULL;
}

/* All four, of all lengths; memory from the os, from a function, and of one's own, differently
   on every rank. */
static void objects(uint32_t rank, cdp_group *w) {
    const uint32_t n = cdp_size(w);
    uint64_t lengths[RANKS_MAX], total;
    for (uint32_t round = 0; round < 6; ++round) {
        const uint32_t root = round % n;
        uint8_t *mine = object_of(rank, round), *all, *own = NULL;
        cdp_blob b;
        total = 0;
        for (uint32_t r = 0; r < n; ++r)
            total += object_bytes(r, round);
        all = (uint8_t *)malloc(total + 1);
        for (uint32_t what = 0; what < 4; ++what) {
            memset(&b, 0, sizeof b);
            memset(lengths, 0xff, sizeof lengths);
            b.lengths = lengths;
            if ((rank + round) % 3 == 1) {
                b.alloc = hold;
                b.release = let_go;
                b.user = &held;
            }
            if ((rank + round) % 3 == 2) {
                b.data = own = (uint8_t *)malloc(total + 1);
                b.room = total;
            }
            if (what == 0) {
                if (OK(cdp_allgather_bytes(w, mine, object_bytes(rank, round), &b)))
                    are_objects(&b, n, round);
            } else if (what == 1) {
                if (OK(cdp_gather_bytes(
                        w, mine, object_bytes(rank, round), root, rank == root ? &b : NULL))
                    && rank == root)
                    are_objects(&b, n, round);
            } else if (what == 2) {
                if (OK(cdp_broadcast_bytes(w, mine, object_bytes(rank, round), root, &b))
                    && rank != root)
                    is_object((uint8_t *)b.data, b.bytes, root, round);
            } else {
                uint64_t at = 0, parts[RANKS_MAX];
                for (uint32_t r = 0; r < n; at += parts[r++]) {
                    parts[r] = object_bytes(r, round);
                    memcpy(all + at, object_pattern(r, round), parts[r]);
                }
                if (OK(cdp_scatter_bytes(
                        w, rank == root ? all : NULL, rank == root ? parts : NULL, root, &b)))
                    is_object((uint8_t *)b.data, b.bytes, rank, round);
            }
            cdp_blob_free(w, &b);
            free(own);
            own = NULL;
        }
        free(all);
        free(mine);
    }
    OK(cdp_barrier(w));
    T_EQ(0, __atomic_load_n(&held, __ATOMIC_SEQ_CST));
}

TEST(bytes_of_any_length_1) {
    run(1, 30000, objects);
}
TEST(bytes_of_any_length_2) {
    run(2, 30000, objects);
}
TEST(bytes_of_any_length_5) {
    run(5, 30000, objects);
}

/* What does not fit anywhere is the same error everywhere, and the group goes on. */
static void objects_refused(uint32_t rank, cdp_group *w) {
    uint8_t mine[100] = {1}, room[250];
    uint64_t parts[3] = {UINT64_MAX, UINT64_MAX / 2, 5};
    cdp_blob b;
    memset(&b, 0, sizeof b);
    if (rank == 1) {
        b.data = room;
        b.room = 250;
    } /* 300 will come */
    T_EQ(CDP_ERR_INVALID, cdp_allgather_bytes(w, mine, 100, &b));
    T_TEXT("rank 1 is to get 300 bytes, but takes 250 at most", cdp_last_error()->text);
    T_EQ(1, cdp_last_error()->peer);
    memset(&b, 0, sizeof b);
    if (rank == 2) b.max_bytes = 299;
    T_EQ(CDP_ERR_INVALID, cdp_gather_bytes(w, mine, 100, 2, &b));
    T_TEXT("rank 2 is to get 300 bytes", cdp_last_error()->text);
    memset(&b, 0, sizeof b);
    if (rank == 2) {
        b.alloc = refuse;
        b.release = let_go;
    }
    T_EQ(CDP_ERR_NOMEM, cdp_broadcast_bytes(w, mine, 100, 0, &b));
    T_TEXT("rank 2 could not allocate", cdp_last_error()->text);
    T(b.data == NULL && !b.allocated);
    memset(&b, 0, sizeof b);
    T_EQ(CDP_ERR_INVALID, cdp_scatter_bytes(w, mine, rank == 0 ? parts : NULL, 0, &b));
    T_EQ(rank == 1 ? CDP_ERR_MISMATCH : CDP_ERR_MISMATCH,
        rank == 1 ? cdp_gather_bytes(w, mine, 1, 0, &b) : cdp_allgather_bytes(w, mine, 1, &b));
    T_TEXT(
        "rank 0 calls cdp_allgather_bytes with root 0, rank 1 calls cdp_gather_bytes with root 0",
        cdp_last_error()->text);
    T_EQ(CDP_ERR_MISMATCH, cdp_gather_bytes(w, mine, 1, rank == 2 ? 1 : 0, &b));
    OK(cdp_allgather_bytes(w, mine, 100, &b));
    T_EQ(300, b.bytes);
    cdp_blob_free(w, &b);
    cdp_blob_free(w, &b);
    OK(cdp_barrier(w));
}

TEST(bytes_that_do_not_fit) {
    run(3, 20000, objects_refused);
}

/* ---- wrong arguments ------------------------------------------------------------------------- */

/* The arguments of one call, right as they are; and which of them the call looks at. */
typedef struct arguments {
    cdp_group *g;
    void *in, *out, *all; /* `count` elements, and world_size times as many */
    uint64_t count;
    cdp_dtype dtype;
    cdp_reduce_op op;
    uint32_t root, peer;
    cdp_work *work;
    cdp_message *got;
    cdp_blob *blob;
    const uint64_t *counts;
    uint32_t n; /* of a list */
} arguments;

enum {
    GROUP = 1,
    IN = 2,
    OUT = 4,
    COUNT = 8,
    DTYPE = 16,
    REDUCE = 32,
    ROOT = 64,
    PEER = 128,
    WORK = 256,
    GOT = 512,
    BLOB = 1024,
    TO_ALL = 2048,
    FROM_ALL = 4096,
    NOT_IN_PLACE = 8192,
    LIST = 16384,
    BYTES = 32768,
    OVERLAP = 65536
};

static cdp_request request_of(const arguments *a, cdp_coll_kind kind) {
    return (cdp_request){.kind = kind,
        .in = a->in,
        .out = a->out,
        .count = a->count,
        .dtype = a->dtype,
        .op = a->op,
        .root = a->root};
}
static cdp_status wait_if(cdp_status st, const cdp_work *w) {
    return st == CDP_OK ? cdp_work_wait(*w) : st;
}

#define CALL(name, expression)                   \
    static cdp_status name(const arguments *a) { \
        return expression;                       \
    }
CALL(call_allreduce, cdp_allreduce(a->g, a->in, a->out, a->count, a->dtype, a->op))
CALL(call_allreduce_async,
    wait_if(cdp_allreduce_async(a->g, a->in, a->out, a->count, a->dtype, a->op, a->work), a->work))
CALL(call_broadcast, cdp_broadcast(a->g, a->out, a->count, a->dtype, a->root))
CALL(call_broadcast_async,
    wait_if(cdp_broadcast_async(a->g, a->out, a->count, a->dtype, a->root, a->work), a->work))
CALL(call_allgather, cdp_allgather(a->g, a->in, a->all, a->count, a->dtype))
CALL(call_allgather_async,
    wait_if(cdp_allgather_async(a->g, a->in, a->all, a->count, a->dtype, a->work), a->work))
CALL(call_reduce_to, cdp_reduce(a->g, a->in, a->out, a->count, a->dtype, a->op, a->root))
CALL(call_reduce_to_async,
    wait_if(cdp_reduce_async(a->g, a->in, a->out, a->count, a->dtype, a->op, a->root, a->work),
        a->work))
CALL(call_gather, cdp_gather(a->g, a->in, a->all, a->count, a->dtype, a->root))
CALL(call_gather_async,
    wait_if(cdp_gather_async(a->g, a->in, a->all, a->count, a->dtype, a->root, a->work), a->work))
CALL(call_scatter, cdp_scatter(a->g, a->all, a->out, a->count, a->dtype, a->root))
CALL(call_scatter_async,
    wait_if(cdp_scatter_async(a->g, a->all, a->out, a->count, a->dtype, a->root, a->work), a->work))
CALL(call_reduce_scatter, cdp_reduce_scatter(a->g, a->all, a->out, a->count, a->dtype, a->op))
CALL(call_reduce_scatter_async,
    wait_if(cdp_reduce_scatter_async(a->g, a->all, a->out, a->count, a->dtype, a->op, a->work),
        a->work))
CALL(call_alltoall, cdp_alltoall(a->g, a->all, (uint8_t *)a->out + 4096, a->count, a->dtype))
CALL(call_alltoall_async,
    wait_if(cdp_alltoall_async(a->g, a->all, (uint8_t *)a->out + 4096, a->count, a->dtype, a->work),
        a->work))
CALL(call_barrier, cdp_barrier(a->g))
CALL(call_barrier_async, wait_if(cdp_barrier_async(a->g, a->work), a->work))
CALL(call_monitored_barrier, cdp_monitored_barrier(a->g, 0))
CALL(call_sendrecv,
    cdp_sendrecv(a->g, a->in, a->count, a->peer, a->out, a->count,
        cdp_size(a->g) ? (cdp_rank(a->g) + cdp_size(a->g) - 1) % cdp_size(a->g) : 0, a->dtype, 1))
CALL(call_poll, cdp_poll(a->g, 0))
CALL(call_status, cdp_group_status(a->g))

static cdp_status call_send_recv(const arguments *a) { /* to the next, from the one before */
    const uint32_t n = cdp_size(a->g), from = n ? (cdp_rank(a->g) + n - 1) % n : 0;
    const cdp_status st = cdp_send_async(a->g, a->in, a->count, a->dtype, a->peer, 2, a->work);
    return st == CDP_OK ? cdp_recv(a->g, a->out, a->count, a->dtype, from, 2) : st;
}
static cdp_status call_recv_send(const arguments *a) {
    const uint32_t n = cdp_size(a->g), to = n ? (2 * cdp_rank(a->g) + n - a->peer) % n : 0;
    const cdp_status st = cdp_recv_async(a->g, a->out, a->count, a->dtype, a->peer, 3, a->work);
    if (st != CDP_OK) return st;
    const cdp_status sent = cdp_send(a->g, a->in, a->count, a->dtype, to, 3);
    return sent == CDP_OK ? cdp_work_wait(*a->work) : sent;
}
static cdp_status call_recv_any(const arguments *a) {
    const uint32_t n = cdp_size(a->g), to = n ? (2 * cdp_rank(a->g) + n - a->peer) % n : 0;
    const cdp_status st =
        cdp_recv_any_async(a->g, a->out, a->count, a->dtype, a->peer, 4, a->got, a->work);
    if (st != CDP_OK) return st;
    const cdp_status sent = cdp_send(a->g, a->in, a->count, a->dtype, to, 4);
    return sent == CDP_OK ? cdp_work_wait(*a->work) : sent;
}
static cdp_status call_probe(const arguments *a) {
    const cdp_status st = cdp_probe(a->g, a->peer, 99, a->got);
    return st == CDP_PENDING ? CDP_OK : st;
}
static cdp_status call_batch(const arguments *a) {
    const uint32_t n = cdp_size(a->g);
    const cdp_transfer t[2] = {
        {.data = a->in, .count = a->count, .dtype = a->dtype, .peer = a->peer, .tag = 5},
        {.receive = true,
            .data = a->out,
            .count = a->count,
            .dtype = a->dtype,
            .peer = n ? (2 * cdp_rank(a->g) + n - a->peer) % n : 0,
            .tag = 5}};
    return wait_if(cdp_batch(a->g, a->n ? t : NULL, 2, a->work), a->work);
}
static cdp_status call_start(const arguments *a) {
    const cdp_request rq = request_of(a, CDP_COLL_ALLREDUCE);
    return wait_if(cdp_start(a->g, a->n ? &rq : NULL, a->work), a->work);
}
static cdp_status call_start_after(const arguments *a) {
    const cdp_request rq = request_of(a, CDP_COLL_REDUCE);
    return wait_if(cdp_start_after(a->g, a->n ? &rq : NULL, (cdp_work){NULL, 0}, a->work), a->work);
}
static cdp_status call_start_all(const arguments *a) {
    const cdp_request rq[2] = {{.kind = CDP_COLL_BARRIER}, request_of(a, CDP_COLL_ALLREDUCE)};
    return wait_if(cdp_start_all(a->g, rq, a->n, a->work), a->work);
}
static cdp_status call_uneven(const arguments *a) {
    const cdp_request rq = {.kind = CDP_COLL_ALLGATHER,
        .in = a->in,
        .out = a->all,
        .dtype = a->dtype,
        .out_counts = a->counts};
    return wait_if(cdp_start(a->g, &rq, a->work), a->work);
}
static cdp_status blob_ended(const arguments *a, cdp_status st) {
    if (st == CDP_OK && a->blob) cdp_blob_free(a->g, a->blob);
    return st;
}
CALL(call_allgather_bytes, blob_ended(a, cdp_allgather_bytes(a->g, a->in, a->count, a->blob)))
CALL(call_gather_bytes, blob_ended(a, cdp_gather_bytes(a->g, a->in, a->count, a->root, a->blob)))
CALL(call_broadcast_bytes,
    blob_ended(a, cdp_broadcast_bytes(a->g, a->in, a->count, a->root, a->blob)))
CALL(call_scatter_bytes, blob_ended(a, cdp_scatter_bytes(a->g, a->in, a->counts, a->root, a->blob)))
static cdp_status call_group_new(const arguments *a) {
    const uint32_t ranks[3] = {0, 1, a->root == 1 ? 2 : a->root};
    cdp_group *made;
    const cdp_status st = cdp_group_new(a->g, a->n ? ranks : NULL, 3, &made);
    if (st == CDP_OK) cdp_group_destroy(made);
    return st;
}
static cdp_status call_group_split(const arguments *a) {
    cdp_group *made;
    const cdp_status st = cdp_group_split(a->g, 1, 0, a->n ? &made : NULL);
    if (st == CDP_OK) cdp_group_destroy(made);
    return st;
}

static const struct {
    const char *name;
    cdp_status (*call)(const arguments *a);
    uint32_t looks_at;
} calls[] = {
    {"allreduce", call_allreduce, GROUP | IN | OUT | COUNT | DTYPE | REDUCE | OVERLAP},
    {"allreduce_async", call_allreduce_async,
        GROUP | IN | OUT | COUNT | DTYPE | REDUCE | WORK | OVERLAP},
    {"broadcast", call_broadcast, GROUP | OUT | COUNT | DTYPE | ROOT},
    {"broadcast_async", call_broadcast_async, GROUP | OUT | COUNT | DTYPE | ROOT | WORK},
    {"allgather", call_allgather, GROUP | IN | TO_ALL | COUNT | DTYPE | OVERLAP},
    {"allgather_async", call_allgather_async, GROUP | IN | TO_ALL | COUNT | DTYPE | WORK | OVERLAP},
    {"reduce_to", call_reduce_to, GROUP | IN | OUT | COUNT | DTYPE | REDUCE | ROOT | OVERLAP},
    {"reduce_to_async", call_reduce_to_async,
        GROUP | IN | OUT | COUNT | DTYPE | REDUCE | ROOT | WORK | OVERLAP},
    {"gather", call_gather, GROUP | IN | TO_ALL | COUNT | DTYPE | ROOT | OVERLAP},
    {"gather_async", call_gather_async,
        GROUP | IN | TO_ALL | COUNT | DTYPE | ROOT | WORK | OVERLAP},
    {"scatter", call_scatter, GROUP | FROM_ALL | OUT | COUNT | DTYPE | ROOT | OVERLAP},
    {"scatter_async", call_scatter_async,
        GROUP | FROM_ALL | OUT | COUNT | DTYPE | ROOT | WORK | OVERLAP},
    {"reduce_scatter", call_reduce_scatter,
        GROUP | FROM_ALL | OUT | COUNT | DTYPE | REDUCE | OVERLAP},
    {"reduce_scatter_async", call_reduce_scatter_async,
        GROUP | FROM_ALL | OUT | COUNT | DTYPE | REDUCE | WORK | OVERLAP},
    {"alltoall", call_alltoall, GROUP | FROM_ALL | COUNT | DTYPE | NOT_IN_PLACE},
    {"alltoall_async", call_alltoall_async, GROUP | FROM_ALL | COUNT | DTYPE | WORK | NOT_IN_PLACE},
    {"barrier", call_barrier, GROUP},
    {"barrier_async", call_barrier_async, GROUP | WORK},
    {"monitored_barrier", call_monitored_barrier, GROUP},
    {"sendrecv", call_sendrecv, GROUP | IN | OUT | COUNT | DTYPE | PEER | OVERLAP | NOT_IN_PLACE},
    {"send", call_send_recv, GROUP | IN | COUNT | DTYPE | PEER | WORK | NOT_IN_PLACE},
    {"recv", call_recv_send, GROUP | OUT | COUNT | DTYPE | PEER | WORK},
    {"recv_any", call_recv_any, GROUP | OUT | COUNT | DTYPE | PEER | WORK | GOT},
    {"probe", call_probe, GROUP | PEER | GOT},
    {"batch", call_batch, GROUP | IN | OUT | COUNT | DTYPE | PEER | WORK | LIST | NOT_IN_PLACE},
    {"start", call_start, GROUP | IN | OUT | COUNT | DTYPE | REDUCE | WORK | LIST | OVERLAP},
    {"start_after", call_start_after,
        GROUP | IN | OUT | COUNT | DTYPE | REDUCE | ROOT | WORK | LIST | OVERLAP},
    {"start_all", call_start_all,
        GROUP | IN | OUT | COUNT | DTYPE | REDUCE | WORK | LIST | OVERLAP},
    {"uneven", call_uneven, GROUP | IN | TO_ALL | DTYPE | WORK},
    {"allgather_bytes", call_allgather_bytes, GROUP | BYTES | BLOB},
    {"gather_bytes", call_gather_bytes, GROUP | BYTES | BLOB | ROOT},
    {"broadcast_bytes", call_broadcast_bytes, GROUP | BYTES | ROOT},
    {"scatter_bytes", call_scatter_bytes, GROUP | BYTES | BLOB | ROOT},
    {"group_new", call_group_new, GROUP | ROOT | LIST},
    {"group_split", call_group_split, GROUP | LIST},
    {"poll", call_poll, GROUP},
    {"status", call_status, GROUP},
};

static cdp_group *a_destroyed_group;

/* Wrong number k of a call; false: there are no more. *applies: whether this call looks at it. */
static bool make_wrong(
    uint32_t k, uint32_t looks_at, arguments *a, bool *applies, cdp_status *want) {
    static const uint64_t much[3] = {1ull << 62, 1ull << 63, 1ull << 63};
    uint32_t at = 0;
    *want = CDP_ERR_INVALID;
    switch (k) {
    case 0:
        at = GROUP;
        a->g = NULL;
        break;
    case 1:
        at = GROUP;
        a->g = a_destroyed_group;
        *want = CDP_ERR_STATE;
        break;
    case 2:
        at = OUT;
        a->out = NULL;
        break;
    case 3:
        at = OUT;
        a->out = (uint8_t *)a->out + 1;
        break;
    case 4:
        at = IN;
        a->in = (uint8_t *)a->in + 1;
        break;
    case 5:
        at = OVERLAP;
        a->in = (uint8_t *)a->out + 4;
        if (looks_at & TO_ALL)
            a->all = (uint8_t *)a->in - 4;
        else if (looks_at & FROM_ALL)
            a->all = (uint8_t *)a->out + 4;
        break;
    case 6:
        at = COUNT;
        a->count = 1ull << 62;
        break;
    case 7:
        at = DTYPE;
        a->dtype = (cdp_dtype)CDP_DTYPE_COUNT;
        break;
    case 8:
        at = DTYPE;
        a->dtype = (cdp_dtype)-1;
        break;
    case 9:
        at = REDUCE;
        a->op = (cdp_reduce_op)CDP_REDUCE_COUNT;
        break;
    case 10:
        at = REDUCE;
        a->op = CDP_REDUCE_BOR;
        *want = CDP_ERR_UNSUPPORTED;
        break;
    case 11:
        at = REDUCE;
        a->dtype = CDP_DTYPE_I32;
        a->op = CDP_REDUCE_PREMUL_SUM;
        *want = CDP_ERR_UNSUPPORTED;
        break;
    case 12:
        at = REDUCE;
        a->dtype = CDP_DTYPE_BOOL;
        a->op = CDP_REDUCE_AVG;
        *want = CDP_ERR_UNSUPPORTED;
        break;
    case 13:
        at = ROOT;
        a->root = 3;
        break;
    case 14:
        at = ROOT;
        a->root = CDP_ANY_RANK;
        break;
    case 15:
        at = PEER;
        a->peer = 3;
        break;
    case 16:
        at = PEER;
        a->peer = cdp_rank(a->g);
        break;
    case 17:
        at = WORK;
        a->work = NULL;
        break;
    case 18:
        at = GOT;
        a->got = NULL;
        break;
    case 19:
        at = BLOB;
        a->blob = NULL;
        break;
    case 20:
        at = TO_ALL;
        a->all = NULL;
        break;
    case 21:
        at = TO_ALL;
        a->all = (uint8_t *)a->all + 2;
        break;
    case 22:
        at = FROM_ALL;
        a->all = (uint8_t *)a->all + 2;
        break;
    case 23:
        at = NOT_IN_PLACE;
        a->in = a->all = NULL;
        break;
    case 24:
        at = LIST;
        a->n = 0;
        break;
    case 25:
        at = BYTES;
        a->in = NULL;
        break;
    case 26:
        at = TO_ALL | FROM_ALL;
        a->count = UINT64_MAX / 3;
        a->counts = much;
        break;
    default: return false;
    }
    *applies = (looks_at & at) != 0;
    return true;
}

/* Every call with everything wrong that it looks at, on one rank after the other: an error at
   the call, in words, and then the right call works on all ranks. */
static void wrong(uint32_t rank, cdp_group *w) {
    static _Alignas(64) uint8_t in[3][4096], out[3][16384], all[3][4096];
    static uint64_t counts[3] = {4, 4, 4};
    uint32_t tried = 0;
    if (rank == 0) {
        const cdp_group_desc d = {.world_size = 1};
        if (!OK(cdp_group_create(&d, &a_destroyed_group))) return;
        /* what a destroyed one looks like, in memory that is still there */
        a_destroyed_group->magic = 0;
        come();
    }
    OK(cdp_barrier(w));
    await(1); /* ThreadSanitizer does not know what a barrier over sockets orders */
    for (uint32_t c = 0; c < sizeof calls / sizeof *calls && !test__now.failed_checks; ++c) {
        cdp_work work;
        cdp_message got;
        cdp_blob blob;
        arguments right, a;
        bool applies;
        cdp_status want;
        memset(&right, 0, sizeof right);
        right.g = w;
        right.in = in[rank];
        right.out = out[rank];
        right.all = all[rank];
        right.count = 4;
        right.dtype = CDP_DTYPE_F32;
        right.work = &work;
        right.got = &got;
        right.blob = &blob;
        right.counts = counts;
        right.n = 2;
        right.peer = (rank + 1) % 3;
        for (uint32_t k = 0; rank == c % 3; ++k) {
            a = right;
            a.root = rank; /* what a root alone looks at is looked at here */
            memset(&blob, 0, sizeof blob);
            if (!make_wrong(k, calls[c].looks_at, &a, &applies, &want)) break;
            if (!applies) continue;
            (void)cdp_error_set(CDP_OK, -1, 0, "%s", "");
            const cdp_status st = calls[c].call(&a);
            ++tried;
            test_check(
                st == want && strlen(cdp_last_error()->text) > 10 && cdp_last_error()->status == st,
                __FILE__, __LINE__, "%s with wrong argument %u: %s, not %s: \"%s\"", calls[c].name,
                k, cdp_status_name(st), cdp_status_name(want), cdp_last_error()->text);
        }
        right.root = 1;
        memset(&blob, 0, sizeof blob);
        const cdp_status st = calls[c].call(&right);
        test_check(st == CDP_OK, __FILE__, __LINE__, "%s on rank %u after wrong calls: %s: %s",
            calls[c].name, rank, cdp_status_name(st), cdp_last_error()->text);
    }
    test_check(tried > 50 || test__now.failed_checks, __FILE__, __LINE__,
        "only %u wrong calls were tried", tried);
    OK(cdp_barrier(w));
    come();
    if (rank == 0) {
        await(4);
        a_destroyed_group->magic = CDP__GROUP_MAGIC;
        cdp_group_destroy(a_destroyed_group);
    }
}

TEST(wrong_arguments_cost_nothing) {
    run(3, 20000, wrong);
}

static void wrong_works(uint32_t rank, cdp_group *w) {
    const cdp_work none = {NULL, 0};
    cdp_group *g;
    const cdp_group_desc d = {.world_size = 1};
    cdp_work work, next, gone;
    cdp_error e;
    const cdp_request rq = {.kind = CDP_COLL_BARRIER}, message = {.kind = CDP_COLL_SEND};
    OK(cdp_work_wait(none));
    OK(cdp_work_test(none));
    OK(cdp_work_wait_for(none, 1));
    OK(cdp_work_error(none, &e));
    T_EQ(CDP_ERR_INVALID, cdp_work_error(none, NULL));
    T_EQ(CDP_ERR_INVALID, cdp_work_then(none, noted, NULL, &next));
    T_EQ(CDP_ERR_INVALID, cdp_work_cancel(none));
    T_EQ(CDP_ERR_INVALID, cdp_start(w, &message, &work)); /* messages have calls of their own */
    if (!OK(cdp_group_create(&d, &g))) return;
    OK(cdp_start(g, &rq, &gone));
    T_EQ(CDP_ERR_INVALID, cdp_start_after(w, &rq, gone, &work));
    T_TEXT("another world", cdp_last_error()->text);
    T_EQ(CDP_ERR_INVALID, cdp_work_then(gone, NULL, NULL, &next));
    g->magic = 0;
    T_EQ(CDP_ERR_STATE, cdp_work_wait(gone));
    T_TEXT("destroyed", cdp_last_error()->text);
    T_EQ(CDP_ERR_STATE, cdp_work_wait_for(gone, 1));
    T_EQ(CDP_ERR_STATE, cdp_work_test(gone));
    T_EQ(CDP_ERR_STATE, cdp_work_error(gone, &e));
    T_EQ(CDP_ERR_STATE, cdp_work_then(gone, noted, NULL, &next));
    T_EQ(CDP_ERR_STATE, cdp_work_cancel(gone));
    T_EQ(CDP_ERR_STATE, cdp_start_after(w, &rq, gone, &work));
    cdp_group_abort(g, "nothing happens");
    cdp_group_destroy(g); /* nothing happens */
    g->magic = CDP__GROUP_MAGIC;
    OK(cdp_group_status(g));
    cdp_group_destroy(g);
    (void)rank;
    OK(cdp_barrier(w));
}

TEST(wrong_works_cost_nothing) {
    run(2, 20000, wrong_works);
}

/* ---- many tags ---- */

/* What both sides draw from one seed: messages from anybody to anybody with many tags, received
   in another order than they were sent in, by those who can. */
static void many_tags(uint32_t rank, cdp_group *w) {
    enum {
        MESSAGES = 3000,
        TAGS = 60,
        WINDOW = 40
    };
    const uint32_t n = cdp_size(w);
    uint64_t state = 4711;
    uint32_t sent[RANKS_MAX][RANKS_MAX][TAGS] = {{{0}}};
    for (uint32_t at = 0; at < MESSAGES && !test__now.failed_checks; at += WINDOW) {
        cdp_work work[WINDOW];
        uint32_t data[WINDOW][8], want[WINDOW], from_to_tag[WINDOW], mine = 0;
        for (uint32_t i = 0; i < WINDOW; ++i) {
            const uint32_t from = (uint32_t)(test_random(&state) % n),
                           to = (from + 1 + (uint32_t)(test_random(&state) % (n - 1))) % n,
                           tag = (uint32_t)(test_random(&state) % TAGS);
            const uint32_t k = sent[from][to][tag]++,
                           what = k * 1000000 + from * 10000 + to * 100 + tag;
            if (from == rank) {
                for (uint32_t j = 0; j < 8; ++j)
                    data[mine][j] = what + j;
                want[mine] = UINT32_MAX;
                from_to_tag[mine] = tag;
                OK(cdp_send_async(w, data[mine], 8, CDP_DTYPE_U32, to, tag, &work[mine]));
                ++mine;
            } else if (to == rank) {
                memset(data[mine], 0, sizeof data[mine]);
                want[mine] = what;
                from_to_tag[mine] = from << 16 | tag;
                if (i % 2)
                    OK(cdp_recv_async(w, data[mine], 8, CDP_DTYPE_U32, from, tag, &work[mine]));
                else
                    work[mine].seq = 0; /* received below: it may come before anybody asks */
                ++mine;
            }
        }
        for (uint32_t i = 0; i < mine; ++i) {
            if (want[i] != UINT32_MAX && !work[i].seq) continue;
            OK(cdp_work_wait(work[i]));
        }
        /* those of one rank and tag in order; where one was posted above already, it took the
           first */
        for (uint32_t i = 0; i < mine; ++i)
            if (want[i] != UINT32_MAX && !work[i].seq)
                OK(cdp_recv(
                    w, data[i], 8, CDP_DTYPE_U32, from_to_tag[i] >> 16, from_to_tag[i] & 0xffff));
        for (uint32_t i = 0; i < mine; ++i) {
            if (want[i] == UINT32_MAX) continue;
            bool found = false; /* the same rank's and tag's, in some order within this window */
            for (uint32_t j = 0; j < mine; ++j)
                found = found
                    || (want[j] != UINT32_MAX && from_to_tag[j] == from_to_tag[i]
                        && data[j][0] == want[i] && data[j][7] == want[i] + 7);
            test_check(
                found, __FILE__, __LINE__, "rank %u: message %u did not come", rank, want[i]);
        }
        if (n > 1) OK(cdp_barrier(w));
    }
    test_check(w->messages.count <= WINDOW, __FILE__, __LINE__, "%u places for %u messages at once",
        w->messages.count, (unsigned)WINDOW);
}

/* Small messages lie beside the stream that large ones take, as many as there is room for: they
   keep their order all the same, are found by who probes, and what nobody has asked for yet is
   in nobody's way. */
static void small_and_large(uint32_t rank, cdp_group *w) {
    enum {
        TAGS = 20,
        EACH = 5
    };
    static const uint64_t counts[EACH] = {2, 1500, 0, 1024, 1025};
    static int32_t data[TAGS][EACH][1500];
    cdp_work work[TAGS][EACH];
    cdp_message seen;
    for (uint32_t again = 0; again < 4; ++again) {
        const uint32_t first = again % 2 * TAGS; /* tags that are used again after others */
        int32_t sum = 0;
        for (uint32_t i = 0; rank == 0 && i < TAGS * EACH; ++i) {
            const uint32_t tag = i % TAGS, k = i / TAGS;
            for (uint64_t j = 0; j < counts[k]; ++j)
                data[tag][k][j] = (int32_t)(again * 1000000 + tag * 10000 + k * 2000 + j);
            OK(cdp_send_async(
                w, data[tag][k], counts[k], CDP_DTYPE_I32, 1, first + tag, &work[tag][k]));
        }
        OK(cdp_allreduce(w, NULL, &sum, 1, CDP_DTYPE_I32, CDP_REDUCE_SUM));
        for (uint32_t i = 0; rank == 1 && i < TAGS * EACH; ++i) {
            const uint32_t tag = TAGS - 1 - i % TAGS, k = i / TAGS;
            int32_t got[1500];
            bool right = true;
            while (cdp_probe(w, CDP_ANY_RANK, first + tag, &seen) == CDP_PENDING) {
            }
            T_EQ(counts[k], seen.count);
            if (i % 3)
                OK(cdp_recv_any(w, got, 1500, CDP_DTYPE_I32, CDP_ANY_RANK, first + tag, &seen));
            else
                OK(cdp_recv(w, got, counts[k], CDP_DTYPE_I32, 0, first + tag));
            for (uint64_t j = 0; j < counts[k]; ++j)
                right = right && got[j] == (int32_t)(again * 1000000 + tag * 10000 + k * 2000 + j);
            test_check(right, __FILE__, __LINE__, "message %u with tag %u is another one", k, tag);
        }
        for (uint32_t i = 0; rank == 0 && i < TAGS * EACH; ++i)
            OK(cdp_work_wait(work[i % TAGS][i / TAGS]));
        OK(cdp_barrier(w));
    }
}

TEST(small_messages_and_large_keep_their_order) {
    run(2, 30000, small_and_large);
}

TEST(few_places_for_many_tags) {
    run(3, 30000, many_tags);
}

static uint64_t kept;
static void *sized_alloc(void *user, uint64_t bytes) {
    uint64_t *p = (uint64_t *)cdp__os_alloc(user, bytes + 64);
    __atomic_add_fetch(&kept, bytes, __ATOMIC_SEQ_CST);
    p[0] = bytes;
    return p + 8;
}
static void sized_free(void *user, void *p) {
    if (!p) return;
    __atomic_sub_fetch(&kept, ((uint64_t *)p)[-8], __ATOMIC_SEQ_CST);
    cdp__os_release(user, (uint64_t *)p - 8);
}

/* Ten thousand tags: at most 320 bytes each, and their counts go on when they are used again. */
TEST(a_tag_that_is_not_in_use_is_cheap) {
    enum {
        TAGS = 10000
    };
    cdp_os os = *cdp_os_default();
    cdp_group *g[2];
    uint64_t before = 0;
    uint32_t x, y;
    cdp_message got;
    cdp_work out, in;
    os.alloc = sized_alloc;
    os.release = sized_free;
    const cdp_hub_desc h = {.world_size = 2, .os = &os};
    if (!OK(cdp_hub_create(&h, &hub))) return;
    for (uint32_t r = 0; r < 2; ++r) {
        const cdp_group_desc d = {
            .rank = r, .world_size = 2, .hub = hub, .os = &os, .no_thread = true};
        if (!OK(cdp_group_create(&d, &g[r]))) return;
    }
    for (uint32_t round = 0; round < 2; ++round)
        for (uint32_t t = 0; t < TAGS && !test__now.failed_checks; ++t) {
            x = round * TAGS + t;
            y = 0;
            if (t == 20 && round == 0) before = kept;
            OK(cdp_send_async(g[1], &x, 1, CDP_DTYPE_U32, 0, t, &out));
            if (t % 2) (void)cdp_poll(g[0], 0); /* it may be there before it is asked for */
            if (t % 3)
                OK(cdp_recv_async(g[0], &y, 1, CDP_DTYPE_U32, 1, t, &in));
            else
                OK(cdp_recv_any_async(g[0], &y, 1, CDP_DTYPE_U32, CDP_ANY_RANK, t, &got, &in));
            for (uint32_t k = 0; k < 100 && cdp_work_test(in) == CDP_PENDING; ++k)
                (void)cdp_poll(g[1], 0);
            OK(cdp_work_test(in));
            OK(cdp_work_test(out));
            T_EQ(x, y);
        }
    test_check(kept - before < 2 * TAGS * 320, __FILE__, __LINE__,
        "%llu bytes for a tag on each side", (unsigned long long)(kept - before) / TAGS / 2);
    printf("  %llu bytes for a tag that is not in use\n",
        (unsigned long long)(kept - before) / TAGS / 2);
    cdp_group_destroy(g[0]);
    cdp_group_destroy(g[1]);
    cdp_hub_destroy(hub);
    T_EQ(0, kept);
}

/* A small message is put beside the stream, and a large one behind it into the stream, while the
   receiver is between its look at the one and its look at the other. */
static int64_t (*hub_recv)(void *self, uint32_t peer, const cdp_iov *v, uint32_t n);
static cdp_group *sends_meanwhile;
static uint8_t small_one[100], large_one[20000];

static int64_t recv_a_little_later(void *self, uint32_t peer, const cdp_iov *v, uint32_t n) {
    cdp_group *g = sends_meanwhile;
    cdp_work w;
    sends_meanwhile = NULL;
    if (g) OK(cdp_send_async(g, small_one, sizeof small_one, CDP_DTYPE_U8, 1, 7, &w));
    if (g) OK(cdp_send_async(g, large_one, sizeof large_one, CDP_DTYPE_U8, 1, 7, &w));
    return hub_recv(self, peer, v, n);
}

TEST(a_message_behind_one_beside_the_stream_is_found) {
    const cdp_hub_desc h = {.world_size = 2};
    cdp_group_desc d = {.world_size = 2, .no_thread = true, .timeout_ms = 20000};
    cdp_transport t = {0};
    cdp_group *g[2];
    cdp_message m;
    cdp_work w;
    static uint8_t got[sizeof large_one];
    if (!OK(cdp_hub_create(&h, &hub)) || !OK(cdp__hub_attach(hub, 1, 2, &t))) return;
    hub_recv = t.recv;
    t.recv = recv_a_little_later;
    d.hub = hub;
    OK(cdp_group_create(&d, &g[0]));
    d.hub = NULL;
    d.rank = 1;
    d.transport = &t;
    OK(cdp_group_create(&d, &g[1]));
    for (uint32_t k = 1; k < 3; ++k) { /* with the first one the ring is made */
        if (k == 1) OK(cdp_send_async(g[0], small_one, sizeof small_one, CDP_DTYPE_U8, 1, 7, &w));
        small_one[99] = (uint8_t)k;
        large_one[sizeof large_one - 1] = (uint8_t)k;
        OK(cdp_recv_async(g[1], got, sizeof small_one, CDP_DTYPE_U8, 0, 7, &w));
        sends_meanwhile = k == 1 ? NULL : g[0];
        for (uint32_t i = 0; i < 100 && cdp_work_test(w) == CDP_PENDING; ++i)
            OK(cdp_poll(g[1], 0));
        OK(cdp_work_test(w));
    }
    T_EQ(2, got[99]);
    OK(cdp_probe(g[1], 0, 7, &m));
    T_EQ(sizeof large_one, m.count);
    OK(cdp_recv_any_async(g[1], got, sizeof got, CDP_DTYPE_U8, CDP_ANY_RANK, 7, &m, &w));
    for (uint32_t i = 0; i < 100 && cdp_work_test(w) == CDP_PENDING; ++i)
        OK(cdp_poll(g[1], 0));
    OK(cdp_work_test(w));
    T_EQ(2, got[sizeof got - 1]);
    cdp_group_destroy(g[0]);
    cdp_group_destroy(g[1]);
    cdp_hub_destroy(hub);
}

/* Two receives from any rank wait. The first one has looked in vain; before the second one looks
   for the first time, two messages are put beside the stream: the first one takes the first.

   How often rank 1 was listened to; when so many messages are sent: */
static uint32_t listened, sends_at, sends;

static int64_t recv_and_two_more(void *self, uint32_t peer, const cdp_iov *v, uint32_t n) {
    cdp_group *g = sends_meanwhile;
    cdp_work w;
    if (peer != 1 || ++listened != sends_at) return hub_recv(self, peer, v, n);
    sends_meanwhile = NULL;
    for (uint8_t k = 1; g && k <= sends; ++k)
        OK(cdp_send_async(g, &k, 1, CDP_DTYPE_U8, 2, 7, &w));
    return hub_recv(self, peer, v, n);
}

TEST(receives_from_any_rank_take_messages_in_their_order) {
    const cdp_hub_desc h = {.world_size = 3};
    cdp_group_desc d = {.world_size = 3, .no_thread = true, .timeout_ms = 20000};
    cdp_transport t = {0};
    cdp_group *g[3];
    cdp_message m[3];
    cdp_work w[3], sent;
    uint8_t got[3] = {9, 9, 9};
    if (!OK(cdp_hub_create(&h, &hub)) || !OK(cdp__hub_attach(hub, 2, 3, &t))) return;
    hub_recv = t.recv;
    t.recv = recv_and_two_more;
    for (d.rank = 0; d.rank < 3; ++d.rank) {
        d.hub = d.rank < 2 ? hub : NULL;
        d.transport = d.rank < 2 ? NULL : &t;
        if (!OK(cdp_group_create(&d, &g[d.rank]))) return;
    }
    /* with the first message the slots are made */
    OK(cdp_send_async(g[0], &got[1], 1, CDP_DTYPE_U8, 2, 7, &sent));
    for (uint32_t i = 0; i < 3; ++i) {
        if (i == 2) sends_meanwhile = g[0];
        sends = 2;
        sends_at = listened + 1; /* after rank 0, which sends, was listened to */
        OK(cdp_recv_any_async(g[2], &got[i], 1, CDP_DTYPE_U8, CDP_ANY_RANK, 7, &m[i], &w[i]));
        for (uint32_t k = 0; k < 20 && (i != 1 || k < 5); ++k)
            OK(cdp_poll(g[2], 0));
        T_EQ(i == 1 ? CDP_PENDING : CDP_OK, cdp_work_test(w[i]));
    }
    OK(cdp_work_test(w[1]));
    T_EQ(1, got[1]);
    T_EQ(2, got[2]);
    /* One waits, and a message comes after its last look and before that of a probe: it is not
       there for others. */
    OK(cdp_recv_any_async(g[2], &got[0], 1, CDP_DTYPE_U8, CDP_ANY_RANK, 7, &m[0], &w[0]));
    T_EQ(CDP_PENDING, cdp_probe(g[2], CDP_ANY_RANK, 7, &m[1]));
    listened = sends_at = 0;
    T_EQ(CDP_PENDING, cdp_probe(g[2], CDP_ANY_RANK, 7, &m[1]));
    sends_at = listened;
    listened = 0;
    sends_meanwhile = g[0];
    sends = 1;
    T_EQ(CDP_PENDING, cdp_probe(g[2], CDP_ANY_RANK, 7, &m[1]));
    T_EQ(sends_at, listened);
    OK(cdp_work_test(w[0]));
    T_EQ(1, got[0]);
    for (uint32_t r = 0; r < 3; ++r)
        cdp_group_destroy(g[r]);
    cdp_hub_destroy(hub);
}

/* Rank 1 waits for an operation and for a message. While it listens for the message, the operation
   of rank 0 arrives, which it had listened for before: it must look again before it sleeps. */

static int64_t recv_and_an_operation(void *self, uint32_t peer, const cdp_iov *v, uint32_t n) {
    cdp_group *g = sends_meanwhile;
    cdp_work w;
    if (++listened == 2 && g) OK(cdp_broadcast_async(g, large_one, 5000, CDP_DTYPE_F32, 0, &w));
    return hub_recv(self, peer, v, n);
}

TEST(what_is_stored_for_another_is_looked_at) {
    const cdp_hub_desc h = {.world_size = 2};
    cdp_group_desc d = {.world_size = 2, .no_thread = true, .timeout_ms = 20000};
    cdp_transport t = {0};
    cdp_group *g[2];
    cdp_work w[2];
    static uint8_t got[sizeof large_one];
    if (!OK(cdp_hub_create(&h, &hub)) || !OK(cdp__hub_attach(hub, 1, 2, &t))) return;
    hub_recv = t.recv;
    t.recv = recv_and_an_operation;
    d.hub = hub;
    OK(cdp_group_create(&d, &g[0]));
    d.hub = NULL;
    d.rank = 1;
    d.transport = &t;
    OK(cdp_group_create(&d, &g[1]));
    OK(cdp_recv_async(g[1], small_one, 1, CDP_DTYPE_U8, 0, 7, &w[0]));
    OK(cdp_broadcast_async(g[1], got, 5000, CDP_DTYPE_F32, 0, &w[1]));
    for (uint32_t k = 0; k < 10; ++k) /* the ring is made */
        OK(cdp_poll(g[1], 0));
    listened = 0;
    sends_meanwhile = g[0];
    while (listened < 2) {
        const cdp__advance a = cdp__world_poll(g[1]->w);
        T_EQ(listened < 2 ? CDP__BLOCKED : CDP__MOVED, a);
    }
    cdp_group_abort(g[0], "the end");
    cdp_group_destroy(g[0]);
    cdp_group_destroy(g[1]);
    cdp_hub_destroy(hub);
}

/* A thread polls with a budget while another one sleeps on behalf of all: it sleeps, too, and
   holds no lock meanwhile. */
static void polls_and_sleeps(uint32_t rank, cdp_group *w) {
    uint8_t x = 0;
    cdp_work work;
    OK(cdp_barrier(w));
    if (rank == 0) {
        uint64_t cpu_ns;
        OK(cdp_recv_async(w, &x, 1, CDP_DTYPE_U8, 1, 1, &work));
        test_sleep_ms(50); /* the progress thread sleeps by now */
        cpu_ns = test_cpu_ns();
        OK(cdp_poll(w, 500000));
        T(test_cpu_ns() - cpu_ns < 50000000u);
        come();
        OK(cdp_poll(w, 10000000)); /* ends with what is in flight */
        OK(cdp_work_test(work));
    } else {
        await(1);
        OK(cdp_send(w, &x, 1, CDP_DTYPE_U8, 0, 1));
    }
    OK(cdp_barrier(w));
}

TEST(who_polls_lets_others_sleep) {
    run(2, 20000, polls_and_sleeps);
}

/* Is a deadline of the group behind, and its cause being settled? */
static bool late_is_settled(cdp_group *w) {
    bool is;
    cdp__enter(w);
    is = w->failure.domain.state == CDP__FAILURE_SETTLING && w->health == CDP__HEALTHY;
    cdp__leave(w);
    return is;
}

/* A receive of rank 0, of `peer` or CDP_ANY_RANK, that is late: returns while why is being settled.
   That would last some milliseconds; the clock stands at the deadline, so until clock_go().
   Waits with a limit of time would not end before that, either. */
static cdp_status driven(cdp_work work) {
    (void)cdp_poll(work.group, 0);
    test_sleep_ms(1);
    return cdp_work_test(work);
}
/* As a message is started, with a deadline of its own. */
static cdp_status message_of(cdp_group *g, cdp_transfer *t, cdp_work *work) {
    const cdp_status st = cdp__message(g, t, work);
    if (st == CDP_OK) cdp__hand_over(work->group);
    return st;
}
static bool recv_is_late(
    cdp_group *w, void *data, uint64_t count, uint32_t peer, cdp_message *got, cdp_work *work) {
    cdp_transfer t = cdp__transfer_of(true, data, count, CDP_DTYPE_U8, peer, 3);
    cdp_status st = CDP_PENDING;
    t.got = got;
    t.timeout_ms = 150;
    clock_stop();
    if (!OK(message_of(w, &t, work))) return false;
    clock_goes_as_far_as(t.timeout_ms + 1);
    while (!late_is_settled(w) && st == CDP_PENDING)
        st = driven(*work);
    return T_EQ(CDP_PENDING, st);
}

/* A receive from any rank is late. While the cause is being settled, a message to another rank
   starts and ends at once: the receive still ends as late, and is not forgotten. */
static void late_and_a_message(uint32_t rank, cdp_group *w) {
    int32_t x = 0;
    cdp_message got;
    cdp_work work;
    if (rank == 0) {
        if (!recv_is_late(w, &x, 1, CDP_ANY_RANK, &got, &work)) return;
        OK(cdp_send(w, &x, 1, CDP_DTYPE_I32, 1, 4));
        await(1); /* or the failure may be there before the message is received */
        clock_go();
        T_EQ(CDP_ERR_TIMEOUT, cdp_work_wait_for(work, 3000 * TEST_SLACK));
        come();
    } else {
        OK(cdp_recv(w, &x, 1, CDP_DTYPE_I32, 0, 4));
        come();
        await(2);
    }
}

TEST(a_message_that_ends_at_once_does_not_end_settling) {
    run(2, 20000, late_and_a_message);
}

/* A function may answer with the status of a timeout: nothing is late then, and what stops the
   group is not taken back. */
static void answers_late(uint32_t rank, cdp_group *w) {
    float x = 1;
    note n = {.answer = CDP_ERR_TIMEOUT, .factor = 1};
    const cdp_request rq = allreduce_of(&x, 1);
    cdp_work a, b;
    OK(cdp_start(w, &rq, &a));
    n.factor = (float)rank;
    OK(cdp_work_then(a, noted, &n, &b));
    T_EQ(CDP_ERR_TIMEOUT, cdp_work_wait_for(b, 5000));
    T_EQ(CDP_ERR_TIMEOUT, cdp_barrier(w));
}

TEST(a_function_that_answers_timeout_breaks_the_group) {
    run(2, 20000, answers_late);
}

/* A rank that leaves while the cause of a timeout is settled tells the others of the timeout. */
static void leaves_late(uint32_t rank, cdp_group *w) {
    int32_t x = 0;
    cdp_work work;
    if (rank == 0) {
        (void)recv_is_late(w, &x, 1, 1, NULL, &work);
        come();
        clock_goes_on = true; /* it is destroyed as the next thing */
    } else {
        await(1);
        T_EQ(CDP_ERR_TIMEOUT, cdp_barrier(w));
        T_EQ(0, cdp_last_error()->origin);
        T_TEXT("150 ms", cdp_last_error()->text);
    }
}

TEST(who_leaves_while_settling_says_why) {
    run(2, 20000, leaves_late);
}

static bool is_healthy(cdp_group *g) {
    bool is;
    cdp__enter(g);
    is = g->health == CDP__HEALTHY;
    cdp__leave(g);
    return is;
}

/* A group loses a rank while the one that it fails with is late, and that one is destroyed: the
   wait for an operation of the first ends. */
static void loses_its_parent(uint32_t rank, cdp_group *w) {
    const uint32_t both[2] = {0, 1};
    cdp_group *whole, *part;
    cdp_work work, lost;
    int32_t x = 0, y = 0;
    if (!OK(cdp_group_new(w, both, 2, &whole)) || !OK(cdp_group_new(w, both, 2, &part))) return;
    cdp__group_share_failures(part, whole);
    OK(cdp_barrier(part)); /* who has met is told when one leaves */
    if (rank == 0) {
        (void)recv_is_late(whole, &x, 1, 1, NULL, &work);
        OK(cdp_allreduce_async(part, NULL, &y, 1, CDP_DTYPE_I32, CDP_REDUCE_SUM, &lost));
        come();
        while (is_healthy(part) && driven(lost) == CDP_PENDING) {
        }
        clock_goes_on = true;
        cdp_group_destroy(whole);
        T(cdp_work_wait_for(lost, 3000 * TEST_SLACK) < CDP_OK);
        cdp_group_destroy(part);
        come();
    } else {
        await(1);
        cdp_group_destroy(part);
        await(2);
        cdp_group_destroy(whole);
    }
}

TEST(a_group_that_loses_a_late_parent_fails) {
    run(2, 20000, loses_its_parent);
}

/* What a cancelled receive waited for is nobody's fault any more. */
static void cancels_a_wait(uint32_t rank, cdp_group *w) {
    int32_t x = 0;
    cdp_work work;
    uint32_t before = 0, after;
    if (rank == 0) {
        cdp_transfer t = cdp__transfer_of(true, &x, 1, CDP_DTYPE_I32, 1, 3);
        t.timeout_ms = 200;
        clock_stop();
        OK(message_of(w, &t, &work));
        clock_goes_as_far_as(100); /* after a quarter of the timeout it lasts */
        for (uint32_t i = 0; i < 5000 && !before; ++i) {
            T_EQ(CDP_PENDING, driven(work));
            cdp__enter(w);
            before = w->w->failure.waited;
            cdp__leave(w);
        }
        T_EQ(1, before);
        OK(cdp_work_cancel(work));
        cdp__enter(w);
        after = w->w->failure.waited;
        cdp__leave(w);
        T_EQ(0, after);
        clock_go();
        come();
    } else {
        await(1);
    }
    OK(cdp_barrier(w));
}

TEST(a_cancelled_receive_waits_for_nobody) {
    run(2, 20000, cancels_a_wait);
}

/* The receive from any rank has found a sender, and waits for the rest of the message. */
static bool is_taken(cdp_group *w) {
    bool is;
    cdp__enter(w);
    is = !cdp__any_first(w, 3);
    cdp__leave(w);
    return is;
}

/* A message of a late receive from any rank has begun to come while the cause is settled: it has
   as much time as settling takes, no more, and the receive ends well. Without progress threads both
   ranks poll in turn until rank 0 has taken it, and a socket holds less than the message: then only
   a part of it has come when rank 0 looks. */
static uint32_t polls_wanted, polls_done;
static void comes_late(uint32_t rank, cdp_group *w) {
    static uint8_t in[8 << 20], out[8 << 20];
    cdp_message got;
    cdp_work work;
    if (rank == 0) {
        polls_wanted = polls_done = 0; /* rank 1 comes here after this */
        if (!recv_is_late(w, in, sizeof in, CDP_ANY_RANK, &got, &work)) return;
        come();
        cdp_status st = CDP_PENDING;
        while (!is_taken(w) && st == CDP_PENDING) {
            const uint32_t n =
                no_thread ? __atomic_add_fetch(&polls_wanted, 1, __ATOMIC_SEQ_CST) : 0;
            while (__atomic_load_n(&polls_done, __ATOMIC_SEQ_CST) < n)
                test_sleep_ms(1);
            st = driven(work);
        }
        if (over_tcp && no_thread) {
            T_EQ(CDP_PENDING, st);
            T(late_is_settled(w));
        }
        come();
        while (st == CDP_PENDING)
            st = driven(work);
        T_EQ(CDP_OK, st);
        T_EQ(1, got.source);
        clock_go();
    } else {
        await(1);
        OK(cdp_send_async(w, out, sizeof out, CDP_DTYPE_U8, 0, 3, &work));
        while (no_thread && __atomic_load_n(&met, __ATOMIC_SEQ_CST) < 2) {
            test_sleep_ms(1);
            if (polls_done == __atomic_load_n(&polls_wanted, __ATOMIC_SEQ_CST)) continue;
            (void)cdp_poll(w, 0);
            __atomic_add_fetch(&polls_done, 1, __ATOMIC_SEQ_CST);
        }
        while (cdp_work_test(work) == CDP_PENDING)
            (void)cdp_poll(w, 1000);
    }
    OK(cdp_barrier(w));
}

TEST(a_message_that_comes_while_settling_is_taken) {
    run(2, 20000, comes_late);
}

/* All others are gone: one died, the other left in good order and had sent less. */
static void one_has_died(uint32_t rank, cdp_group *w) {
    int32_t x = 0;
    cdp_message got;
    if (rank == 0) {
        OK(cdp_recv_any(w, &x, 1, CDP_DTYPE_I32, CDP_ANY_RANK, 3, &got));
        cdp__enter(w);
        const uint32_t gone = w->any.first_gone;
        const bool lost = w->peers[1].lost, left = w->streams[2].left;
        w->streams[2].left = w->peers[1].lost = true;
        w->any.first_gone = 2;
        T_EQ(1, cdp__any_fewest(w, 3));
        w->peers[1].lost = false;
        w->streams[1].left = true; /* this one left, too: the other one sent less */
        T_EQ(2, cdp__any_fewest(w, 3));
        w->streams[1].left = false;
        w->streams[2].left = left;
        w->peers[1].lost = lost;
        w->any.first_gone = gone;
        cdp__leave(w);
    } else if (rank == 1) {
        OK(cdp_send(w, &x, 1, CDP_DTYPE_I32, 0, 3));
    }
    OK(cdp_barrier(w));
}

TEST(who_died_is_named_before_who_left) {
    run(3, 20000, one_has_died);
}

/* What a wait reports has arrived, and does not change any more. */
enum {
    ARRIVING = 8 << 20
};
static uint8_t arriving[2][ARRIVING];
static uint64_t arrived_bytes, arrived_parts;

static void has_arrived(void *user, uint64_t bytes) {
    const uint64_t there = cdp__min(bytes, ARRIVING);
    (void)user;
    if (!bytes || !T(there >= arrived_bytes)) return; /* 0: not known */
    if (there > arrived_bytes && there < ARRIVING) ++arrived_parts;
    T(memcmp(
          arriving[1] + arrived_bytes, arriving[0] + arrived_bytes, (size_t)(there - arrived_bytes))
        == 0);
    arrived_bytes = there;
}

static void arrives(uint32_t rank, cdp_group *w) {
    cdp_work work;
    for (uint32_t i = 0; i < ARRIVING; ++i)
        arriving[rank][i] = rank == 0 ? (uint8_t)(i * 5 ^ i >> 7) : 0;
    if (rank == 1) arrived_bytes = 0;
    if (rank == 0) come(); /* what it has written is read by the other one */
    await(1);
    OK(cdp_barrier(w));
    if (rank == 0) test_sleep_ms(20); /* until the other one waits */
    OK(cdp_broadcast_async(w, arriving[rank], ARRIVING, CDP_DTYPE_U8, 0, &work));
    if (rank == 1) {
        while (cdp__work_wait_arriving(work, 1000, has_arrived, NULL) == CDP_PENDING) {
        }
        has_arrived(NULL, UINT64_MAX);
    }
    OK(cdp_work_wait(work));
}

TEST(what_has_arrived_is_there) {
    arrived_parts = 0;
    run(2, 20000, arrives);
    T(arrived_parts > 0);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"what_has_arrived_is_there", what_has_arrived_is_there, 60},
        {"functions_and_operations_in_a_chain", functions_and_operations_in_a_chain, 60},
        {"an_operation_after_that_of_another_group", an_operation_after_that_of_another_group, 60},
        {"an_error_of_a_function_breaks_the_group", an_error_of_a_function_breaks_the_group, 60},
        {"what_functions_may_do", what_functions_may_do, 60},
        {"a_free_place_between_others_is_found", a_free_place_between_others_is_found, 20},
        {"functions_of_one_work_run_in_the_order_of_the_calls",
            functions_of_one_work_run_in_the_order_of_the_calls, 20},
        {"the_pool_is_bounded", the_pool_is_bounded, 60},
        {"a_receive_is_cancelled_quietly", a_receive_is_cancelled_quietly, 60},
        {"a_send_is_cancelled_quietly", a_send_is_cancelled_quietly, 60},
        {"a_function_is_cancelled_quietly", a_function_is_cancelled_quietly, 60},
        {"cancelling_an_operation_breaks_the_group", cancelling_an_operation_breaks_the_group, 60},
        {"who_waits_for_a_destroyed_group_is_told", who_waits_for_a_destroyed_group_is_told, 60},
        {"receives_from_any_rank", receives_from_any_rank, 120},
        {"ranks_come_in_turn", ranks_come_in_turn, 60},
        {"nobody_is_left_to_send", nobody_is_left_to_send, 60},
        {"nobody_sends_in_time", nobody_sends_in_time, 60},
        {"any_rank_and_a_broken_group", any_rank_and_a_broken_group, 60},
        {"a_message_longer_than_the_room", a_message_longer_than_the_room, 60},
        {"batches_in_any_order", batches_in_any_order, 60},
        {"messages_allocate_nothing", messages_allocate_nothing, 20},
        {"bytes_of_any_length_1", bytes_of_any_length_1, 60},
        {"bytes_of_any_length_2", bytes_of_any_length_2, 60},
        {"bytes_of_any_length_5", bytes_of_any_length_5, 120},
        {"bytes_that_do_not_fit", bytes_that_do_not_fit, 60},
        {"few_places_for_many_tags", few_places_for_many_tags, 60},
        {"small_messages_and_large_keep_their_order", small_messages_and_large_keep_their_order,
            120},
        {"a_tag_that_is_not_in_use_is_cheap", a_tag_that_is_not_in_use_is_cheap, 60},
        {"wrong_arguments_cost_nothing", wrong_arguments_cost_nothing, 60},
        {"wrong_works_cost_nothing", wrong_works_cost_nothing, 60},
        {"a_message_behind_one_beside_the_stream_is_found",
            a_message_behind_one_beside_the_stream_is_found, 20},
        {"receives_from_any_rank_take_messages_in_their_order",
            receives_from_any_rank_take_messages_in_their_order, 20},
        {"what_is_stored_for_another_is_looked_at", what_is_stored_for_another_is_looked_at, 20},
        {"who_polls_lets_others_sleep", who_polls_lets_others_sleep, 60},
        {"a_message_that_ends_at_once_does_not_end_settling",
            a_message_that_ends_at_once_does_not_end_settling, 60},
        {"a_function_that_answers_timeout_breaks_the_group",
            a_function_that_answers_timeout_breaks_the_group, 60},
        {"who_leaves_while_settling_says_why", who_leaves_while_settling_says_why, 60},
        {"a_group_that_loses_a_late_parent_fails", a_group_that_loses_a_late_parent_fails, 60},
        {"a_cancelled_receive_waits_for_nobody", a_cancelled_receive_waits_for_nobody, 60},
        {"a_message_that_comes_while_settling_is_taken",
            a_message_that_comes_while_settling_is_taken, 60},
        {"who_died_is_named_before_who_left", who_died_is_named_before_who_left, 60},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
