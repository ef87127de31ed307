/* test_works.c - works: chained, cancelled, asked for errors; what a group does while it settles */
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

/* ---- wrong arguments ------------------------------------------------------------------------- */

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

/* Rank 1 waits for an operation and for a message. While it listens for the message, the operation
   of rank 0 arrives, which it had listened for before: it must look again before it sleeps. */

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
        const uint32_t gone = w->any.first_ended;
        const bool lost = w->peers[1].lost, left = w->streams[2].left;
        w->streams[2].left = w->peers[1].lost = true;
        w->any.first_ended = 2;
        T_EQ(1, cdp__any_fewest(w, 3));
        w->peers[1].lost = false;
        w->streams[1].left = true; /* this one left, too: the other one sent less */
        T_EQ(2, cdp__any_fewest(w, 3));
        w->streams[1].left = false;
        w->streams[2].left = left;
        w->peers[1].lost = lost;
        w->any.first_ended = gone;
        cdp__leave(w);
    } else if (rank == 1) {
        OK(cdp_send(w, &x, 1, CDP_DTYPE_I32, 0, 3));
    }
    OK(cdp_barrier(w));
}

TEST(who_died_is_named_before_who_left) {
    run(3, 20000, one_has_died);
}

static void barrier_of_any_request(uint32_t rank, cdp_group *w) {
    const cdp_request rq = {.kind = CDP_COLL_BARRIER, .count = 3 * rank, .dtype = CDP_DTYPE_F64};
    cdp_work a;
    if (rank) {
        OK(cdp_start(w, &rq, &a));
        OK(cdp_work_wait(a));
    } else {
        OK(cdp_barrier(w));
    }
}

TEST(a_barrier_has_neither_values_nor_a_dtype) {
    run(3, 5000, barrier_of_any_request);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"a_barrier_has_neither_values_nor_a_dtype", a_barrier_has_neither_values_nor_a_dtype, 20},
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
        {"messages_allocate_nothing", messages_allocate_nothing, 20},
        {"wrong_works_cost_nothing", wrong_works_cost_nothing, 60},
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
