/*  test_works.c - works: chained, cancelled, asked for errors; messages of all kinds; lengths and bytes; wrong arguments */
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

/* ---- then -------------------------------------------------------------------------------------------------------------- */

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
    }
    __atomic_add_fetch(&n->calls, 1, __ATOMIC_SEQ_CST);
    if (n->answer != CDP_OK) return cdp_error_set(n->answer, -1, 0, "this function does not like rank %u", (unsigned)(n->factor));
    return CDP_OK;
}

static uint32_t calls_of(const note *n) { return __atomic_load_n(&n->calls, __ATOMIC_SEQ_CST); }

/* sum, then times ten on every rank, then sum again, times ten again; and one more operation behind all that. One rank's
   functions are slow, so the ranks come to the chained operations at very different times. */
static void chain(uint32_t rank, cdp_group *w) {
    float x = (float)(rank + 1), y = 1;
    note first = {.x = &x, .factor = 10, .sleep_ms = rank == 1 ? 30 : 0}, second = first;
    const cdp_request rq = allreduce_of(&x, 1);
    cdp_work a, a10, b, b10, c;
    for (uint32_t i = 0; i < 3; ++i) {
        x = (float)(rank + 1), y = 1;
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

TEST(functions_and_operations_in_a_chain) { run(3, 20000, chain); }

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

TEST(an_operation_after_that_of_another_group) { run(2, 20000, across); }

/* What a function returns breaks the group, everywhere, with its text. */
static void unhappy(uint32_t rank, cdp_group *w) {
    float x = 1;
    note n = {.answer = rank == 1 ? CDP_ERR_INVALID : CDP_OK, .factor = 1, .await = rank == 1 ? 1 : 0}, after = {.factor = 2};
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
    for (uint32_t i = 0; i < 500 && !calls_of(&after); ++i, test_sleep_ms(1)) (void)cdp_poll(w, 0);
    T_EQ(1, calls_of(&after));
    T_EQ(CDP_ERR_INVALID, after.seen);
    T_TEXT("this function does not like rank 1", after.text);
    OK(cdp_work_test(a)); /* it was done before all that */
}

TEST(an_error_of_a_function_breaks_the_group) { run(2, 20000, unhappy); }

/* Functions may start operations, but not wait; on a finished work, too; and a destroyed group calls what it still owes. */
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

TEST(what_functions_may_do) { run(2, 20000, inside); }

static uint64_t allocations;

static void *counting_alloc(void *user, uint64_t bytes) {
    __atomic_add_fetch(&allocations, 1, __ATOMIC_SEQ_CST);
    return cdp__os_alloc(user, bytes);
}

/* A pool of a size of one's own: full means refused, and nothing is allocated after the first use. */
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
        for (uint32_t i = 0; i < 3; ++i) OK(cdp_work_then(a, noted, &n, &next[i]));
        T_EQ(CDP_ERR_STATE, cdp_work_then(a, noted, &n, &next[3]));
        T_TEXT("max_pending", cdp_last_error()->text);
        T_EQ(0, next[3].seq);
        T_EQ(CDP_PENDING, cdp_work_error(next[0], &(cdp_error){.status = CDP_OK}));
        for (uint32_t i = 0; i < 3; ++i) OK(cdp_work_wait(next[2 - i]));
        T(x == 8);
        OK(cdp_barrier_async(g, &a));
        OK(cdp_start_after(g, &(cdp_request){.kind = CDP_COLL_BARRIER}, next[0], &a));
        OK(cdp_work_wait(a));
        if (round) T_EQ(0, allocations - before);
    }
    OK(cdp_work_test(next[0]));
    cdp_group_destroy(g);
}

/* ---- cancel ------------------------------------------------------------------------------------------------------------ */

static void cancelled_messages(uint32_t rank, cdp_group *w) {
    int32_t x[6] = {0}, in[6] = {0};
    cdp_work work[6], c;
    cdp_error e;
    note n = {.x = NULL};
    for (int32_t i = 0; i < 6; ++i) x[i] = i + 1;
    if (rank == 0) {
        for (uint32_t i = 0; i < 4; ++i) OK(cdp_recv_async(w, &in[i], 1, CDP_DTYPE_I32, 1, 7, &work[i]));
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
        T(in[0] == 0 && in[1] == 1 && in[2] == 0 && in[3] == 2); /* no message was lost, and they kept their order */
        T_EQ(CDP_ERR_STATE, cdp_work_cancel(work[1]));
        OK(cdp_recv(w, &in[4], 1, CDP_DTYPE_I32, 1, 7));
        T_EQ(3, in[4]);
    } else {
        OK(cdp_barrier(w));
        for (uint32_t i = 0; i < 3; ++i) OK(cdp_send(w, &x[i], 1, CDP_DTYPE_I32, 0, 7));
    }
    OK(cdp_barrier(w));
}

TEST(a_receive_is_cancelled_quietly) { run(2, 20000, cancelled_messages); }

/* Sends that wait behind a large one: none of their bytes is on its way. */
static void cancelled_sends(uint32_t rank, cdp_group *w) {
    enum { BIG = 12 << 20 };
    uint8_t *big = (uint8_t *)calloc(BIG, 1);
    int32_t x[3] = {11, 22, 33};
    cdp_work work[4];
    if (rank == 0) {
        OK(cdp_send_async(w, big, BIG, CDP_DTYPE_U8, 1, 3, &work[3]));
        for (uint32_t i = 0; i < 3; ++i) OK(cdp_send_async(w, &x[i], 1, CDP_DTYPE_I32, 1, 3, &work[i]));
        T_EQ(CDP_OK, cdp_work_cancel(work[1]));
        T_EQ(CDP_ERR_STATE, cdp_work_cancel(work[3])); /* it has begun: more than the window is still to be sent */
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

TEST(a_send_is_cancelled_quietly) { run(2, 20000, cancelled_sends); }

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
    if (rank == 0) T_EQ(0, calls_of(&n));
    else OK(cdp_work_wait(c));
    OK(cdp_work_wait(a));
}

TEST(a_function_is_cancelled_quietly) { run(2, 20000, cancelled_functions); }

static void cancelled_operation(uint32_t rank, cdp_group *w) {
    float x = 1;
    cdp_work a;
    if (rank == 2) {
        OK(cdp_allreduce_async(w, NULL, &x, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM, &a));
        T_EQ(CDP_OK, cdp_work_cancel(a));
        come();
    }
    await(1);
    cdp_status st = rank == 2 ? cdp_work_wait(a) : cdp_allreduce(w, NULL, &x, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM);
    while (rank != 2 && st == CDP_OK) st = cdp_barrier(w); /* what rank 2 had sent may have been enough for the first */
    T_EQ(CDP_ERR_ABORTED, st);
    T_TEXT("cancelled by rank 2", cdp_last_error()->text);
    T_EQ(2, cdp_last_error()->peer);
}

TEST(cancelling_an_operation_breaks_the_group) { run(3, 20000, cancelled_operation); }

/* ---- threads ----------------------------------------------------------------------------------------------------------- */

static void *waits(void *arg) {
    cdp_work *w = (cdp_work *)arg;
    T_EQ(CDP_ERR_STATE, cdp_work_wait(*w));
    T_TEXT("destroyed", cdp_last_error()->text);
    return NULL;
}

/* A thread that waits for an operation of a group that another thread destroys gets an error, and touches nothing of it. */
static void destroyed(uint32_t rank, cdp_group *w) {
    const uint32_t both[2] = {0, 1};
    cdp_group *g;
    cdp_work a;
    int32_t x;
    pthread_t t[2];
    if (!OK(cdp_group_new(w, both, 2, &g))) return;
    if (rank == 0) {
        OK(cdp_recv_async(g, &x, 1, CDP_DTYPE_I32, 1, 1, &a));
        for (uint32_t i = 0; i < 2; ++i) pthread_create(&t[i], NULL, waits, &a);
        test_sleep_ms(30);
    }
    cdp_group_destroy(g);
    if (rank == 0)
        for (uint32_t i = 0; i < 2; ++i) pthread_join(t[i], NULL);
    OK(cdp_barrier(w));
}

TEST(who_waits_for_a_destroyed_group_is_told) { run(2, 20000, destroyed); }

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"functions_and_operations_in_a_chain", functions_and_operations_in_a_chain, 60},
        {"an_operation_after_that_of_another_group", an_operation_after_that_of_another_group, 60},
        {"an_error_of_a_function_breaks_the_group", an_error_of_a_function_breaks_the_group, 60},
        {"what_functions_may_do", what_functions_may_do, 60},
        {"the_pool_is_bounded", the_pool_is_bounded, 60},
        {"a_receive_is_cancelled_quietly", a_receive_is_cancelled_quietly, 60},
        {"a_send_is_cancelled_quietly", a_send_is_cancelled_quietly, 60},
        {"a_function_is_cancelled_quietly", a_function_is_cancelled_quietly, 60},
        {"cancelling_an_operation_breaks_the_group", cancelling_an_operation_breaks_the_group, 60},
        {"who_waits_for_a_destroyed_group_is_told", who_waits_for_a_destroyed_group_is_told, 60},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
