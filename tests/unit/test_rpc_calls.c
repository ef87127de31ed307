/* test_rpc_calls.c - remote calls: order, works, what waits that run functions promise, what every
   queue holds at an end, and the scenarios of torch.distributed.rpc's own tests that test_rpc.c
   does not have. */
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"

#include "cdp_rpc.h"

#include "rpc_sides.h"

/* Another rank's request of "keep" is here. */
static void wait_until_kept(side *s) {
    const uint64_t until = test_until_ns(10000);
    while (!counted_of(&s->kept_count) && test_now_ns() < until)
        (void)!cdp_rpc_serve(s->rpc, 1);
}

/* ---- waits that run functions ---- */

/* A call has ended, and `done` has not run yet: a wait for it begins no function, which might wait
   for long. */
static void told(void *user, cdp_call *c) {
    (void)c;
    count((uint32_t *)user);
}
static void waits_for_the_ended(side *s) {
    uint32_t times = 0;
    cdp_call waits = {0}, ended = {0};
    OK(cdp_rpc_start(s->rpc, CALL(.to = s->rank, F("nothing")), &waits));
    OK(cdp_rpc_start(
        s->rpc, CALL(.to = s->rank, F("nothing"), .done = told, .user = &times), &ended));
    const cdp_status cancelled = cdp_call_cancel(&ended); /* STATE: a worker was faster */
    T_EQ(cancelled == CDP_OK ? CDP_ERR_ABORTED : CDP_OK, cdp_call_wait(&ended));
    T_EQ(1, counted_of(&times));
    if (how == HUB_NO_WORKERS || how == HUB_POLLED) T_EQ(0, counted_of(&s->ran));
    OK(cdp_call_wait(&waits));
    cdp_call_free(&waits);
    cdp_call_free(&ended);
}
TEST(a_wait_for_a_call_that_has_ended_runs_nothing) {
    run(1, waits_for_the_ended);
}

/* calls `sleep` of rank 3 */
static void f_asks_a_sleeper(void *user, cdp_rpc_request *q) {
    cdp_call c = {0};
    (void)user;
    if (cdp_rpc_call(q->rpc, CALL(.to = 3, F("sleep"), BYTES((void *)(uintptr_t)q->data, 8)), &c)
        == CDP_OK)
        OK(cdp_rpc_reply(q, NULL));
    else
        OK(cdp_rpc_fail(q, 1, cdp_last_error()->text));
    cdp_call_free(&c);
}

static const cdp_rpc_function own_functions[] = {
    {.name = "asks_a_sleeper", .func = f_asks_a_sleeper}, {.name = "sleep", .func = f_sleep},
    {.name = "nothing", .func = f_nothing}, {.name = "counter", .func = f_counter}};

/* Without workers: rank 0 waits for short times for a rank that does not answer. What rank 2 wants
   of it takes longer and has time: it is left to the long wait that follows, and does not fail. A
   value that a short wait needs is made in it, whatever time it has. */
static void short_waits(side *s) {
    static uint32_t place, answered;
    int64_t ms = 300, x[2] = {7, 0};
    cdp_call c = {0};
    cdp_rref r;
    gather(&place);
    if (s->rank == 0) {
        for (uint32_t i = 0; i < 4; ++i) {
            const uint64_t from = test_now_ns();
            T_EQ(CDP_ERR_TIMEOUT,
                cdp_rpc_call(s->rpc, CALL(.to = 1, F("nothing"), .timeout_ms = 60), &c));
            T_WITHIN(116, test_now_ns() - from);
            cdp_call_free(&c);
        }
        OK(cdp_rpc_remote(s->rpc, CALL(.to = 0, F("counter"), BYTES(x, 16)), &r));
        OK(cdp_rref_to_here(r, 100 * TEST_LATE, &c));
        T_EQ(7, i64_at(c.data, 0));
        cdp_call_free(&c);
        cdp_rref_drop(r);
    }
    if (s->rank == 2) {
        test_sleep_ms(30);
        OK(cdp_rpc_call(s->rpc, CALL(.to = 0, F("asks_a_sleeper"), BYTES(&ms, 8)), &c));
        cdp_call_free(&c);
        count(&answered);
    }
    if (s->rank == 1) gather(&place); /* it serves nobody before */
    if (s->rank != 1) {
        const uint64_t until = test_until_ns(10000);
        while (!counted_of(&answered) && test_now_ns() < until)
            (void)!cdp_rpc_serve(s->rpc, 50);
        gather(&place);
    }
    cdp_rpc_destroy(s->rpc);
}
static void short_body(side *s) {
    if (how == HUB_NO_WORKERS) open_then(s, short_waits);
}
TEST(a_short_wait_leaves_functions_that_wait_to_longer_ones) {
    like.functions = own_functions;
    like.function_count = sizeof own_functions / sizeof *own_functions;
    shut_by_body = true;
    run(4, short_body);
}

/* ---- order ---- */

static pthread_mutex_t seen_mutex = PTHREAD_MUTEX_INITIALIZER;
static int64_t seen[RANKS_MAX][64];
static uint32_t seen_count[RANKS_MAX], at_once[RANKS_MAX], worst[RANKS_MAX];
static uint32_t cancelled_one[RANKS_MAX]; /* this rank has cancelled what it wanted to */

/* {n, ms}: notes n, takes a while; ms -1: until its caller has cancelled a later call */
static void f_note(void *user, cdp_rpc_request *q) {
    side *s = side_of(q);
    (void)user;
    pthread_mutex_lock(&seen_mutex);
    if (++at_once[s->rank] > worst[s->rank]) worst[s->rank] = at_once[s->rank];
    if (seen_count[s->rank] < 64) seen[s->rank][seen_count[s->rank]++] = i64_at(q->data, 0);
    pthread_mutex_unlock(&seen_mutex);
    if (i64_at(q->data, 1) >= 0) {
        test_sleep_ms((uint32_t)i64_at(q->data, 1));
    } else {
        const uint64_t until = test_until_ns(5000);
        while (!counted_of(&cancelled_one[q->from]) && test_now_ns() < until)
            test_sleep_ms(1);
    }
    pthread_mutex_lock(&seen_mutex);
    --at_once[s->rank];
    pthread_mutex_unlock(&seen_mutex);
    if (!q->one_way) reply_i64(q, i64_at(q->data, 0));
}
static const cdp_rpc_function order_functions[] = {{.name = "note", .func = f_note},
    {.name = "counter", .func = f_counter}, {.name = "nothing", .func = f_nothing},
    {.name = "keep", .func = f_keep, .flags = CDP_RPC_LATER}};

/* Calls in order run one after the other, long ones and short ones, here and elsewhere, on a value
   or not; one that ends without running lets the next one go. The first runs until the tenth is
   cancelled: starting and cancelling runs no function in this thread, so they cannot block. */
static void orders(side *s) {
    enum {
        N = 12
    };
    static uint8_t bulk[RANKS_MAX][N][200000];
    static uint32_t place;
    cdp_call c[N] = {{0}};
    int64_t start[2] = {1, 0};
    cdp_rref r;
    for (uint32_t turn = 0; turn < 4; ++turn) { /* to the next rank, to itself; with a value */
        const uint32_t to = turn & 1 ? s->rank : next_of(s);
        meet(s, &place);
        seen_count[s->rank] = worst[s->rank] = 0;
        __atomic_store_n(&cancelled_one[s->rank], 0, __ATOMIC_SEQ_CST);
        meet(s, &place);
        OK(cdp_rpc_remote(s->rpc, CALL(.to = to, F("counter"), BYTES(start, 16)), &r));
        for (uint32_t i = 0; i < N; ++i) {
            const int64_t ms = i % 3 ? 0 : 2, head[2] = {i, i ? ms : -1};
            cdp_call_desc d = {.to = to,
                F("note"),
                .in_order = true,
                .one_way = i == 5,
                BYTES(bulk[s->rank][i], i % 2 ? 16 : sizeof bulk[0][0])};
            memcpy(bulk[s->rank][i], head, 16);
            if (turn >= 2) d.on = r;
            OK(cdp_rpc_start(s->rpc, &d, &c[i]));
        }
        OK(cdp_call_cancel(&c[9]));
        count(&cancelled_one[s->rank]);
        for (uint32_t i = 0; i < N; ++i) {
            T_EQ(i == 9 ? CDP_ERR_ABORTED : CDP_OK, cdp_call_wait(&c[i]));
            if (i == 9) T_EQ(CDP_RAN_NO, c[i].ran);
            cdp_call_free(&c[i]);
        }
        cdp_rref_drop(r);
        meet(s, &place);
        T_EQ(N - 1, seen_count[s->rank]);
        T_EQ(1, worst[s->rank]);
        for (uint32_t i = 0; i < seen_count[s->rank]; ++i)
            T_EQ(i < 9 ? i : i + 1, seen[s->rank][i]);
        meet(s, &place);
    }
    OK(cdp_rpc_start(s->rpc, CALL(.to = next_of(s), F("keep"), .in_order = true), &c[0]));
    T_EQ(CDP_ERR_TIMEOUT,
        cdp_rpc_call(
            s->rpc, CALL(.to = next_of(s), F("keep"), .in_order = true, .timeout_ms = 30), &c[1]));
    T_EQ(CDP_RAN_NO, c[1].ran);
    T_TEXT("never left this rank", c[1].error.text);
    cdp_call_free(&c[1]);
    wait_until_kept(s);
    meet(s, &place);
    OK(cdp_rpc_reply(s->kept[0], NULL));
    OK(cdp_call_wait(&c[0]));
    cdp_call_free(&c[0]);
    REFUSED(CDP_ERR_INVALID, "one_way and in_order of the desc must not be set",
        cdp_rpc_remote(s->rpc, CALL(.to = 0, F("counter"), .in_order = true), &r));
    meet(s, &place);
}
static void order_body(side *s) {
    open_then(s, orders);
    const uint64_t until = test_until_ns(5000);
    while (cdp_rpc_stats_of(s->rpc).owners && test_now_ns() < until)
        (void)!cdp_rpc_serve(s->rpc, 1);
    OK(cdp_rpc_shutdown(s->rpc, 0));
    OK(cdp_barrier(s->g));
    cdp_rpc_destroy(s->rpc);
}
TEST(calls_in_order_run_one_after_the_other) {
    like.functions = order_functions;
    like.function_count = sizeof order_functions / sizeof *order_functions;
    shut_by_body = true;
    run(2, order_body);
}

/* Two references to one value, which came in two messages: calls in order on either one run one
   after the other. The owner sent both, so it is their parent. */
static void order_of_value(side *s) {
    static uint32_t place;
    cdp_call c[2] = {{0}}, back = {0};
    cdp_rref_info info;
    cdp_rref r;
    int64_t start[2] = {1, 0}, note[2][2] = {{0, 60}, {1, 0}};
    seen_count[s->rank] = worst[s->rank] = 0;
    meet(s, &place);
    if (s->rank == 0) {
        OK(cdp_rpc_remote(s->rpc, CALL(.to = 1, F("counter"), BYTES(start, 16)), &r));
        OK(cdp_rpc_call(s->rpc, CALL(.to = 1, F("give_back"), RREF(r)), &back));
        if (!T_EQ(1, back.rref_count)) return;
        const cdp_rref same[2] = {r, back.rrefs[0]};
        for (uint32_t i = 0; i < 2; ++i) {
            OK(cdp_rref_info_of(same[i], &info));
            T_EQ(1, info.parent);
            OK(cdp_rpc_start(s->rpc,
                CALL(.on = same[i], F("note"), .in_order = true, BYTES(note[i], 16)), &c[i]));
        }
        for (uint32_t i = 0; i < 2; ++i) {
            OK(cdp_call_wait(&c[i]));
            cdp_call_free(&c[i]);
        }
        cdp_call_free(&back);
        cdp_rref_drop(r);
    }
    meet(s, &place);
    if (s->rank == 1) {
        T_EQ(1, worst[1]);
        T_EQ(2, seen_count[1]);
        T_EQ(0, seen[1][0]);
    }
    meet(s, &place);
}
TEST(the_order_of_calls_is_that_of_the_value) {
    static const cdp_rpc_function some[] = {{.name = "note", .func = f_note},
        {.name = "counter", .func = f_counter}, {.name = "give_back", .func = f_give_back}};
    like.functions = some;
    like.function_count = sizeof some / sizeof *some;
    run(2, order_of_value);
}

/* ---- time that is over ---- */

static uint32_t late_done;
/* outlives its own deadline, then calls another rank and itself */
static void f_late(void *user, cdp_rpc_request *q) {
    (void)user;
    while (cdp_os_default()->now_ns(NULL) < q->deadline_ns)
        test_sleep_ms(5);
    test_sleep_ms(20); /* the caller's clock is the same, its deadline is not to the nanosecond */
    for (uint32_t i = 0; i < 2; ++i) {
        cdp_call c = {0};
        T_EQ(CDP_ERR_TIMEOUT, cdp_rpc_call(q->rpc, CALL(.to = i, F("nothing")), &c));
        if (i == 1) T_TEXT("no answer within 0 ms", c.error.text);
        T(i == 1 || !strstr(c.error.text, "left this rank"));
        cdp_call_free(&c);
    }
    (void)!cdp_rpc_reply(q, NULL);
    count(&late_done);
}
static void late_calls(side *s) {
    static uint32_t place;
    cdp_call c = {0};
    const uint32_t before = counted_of(&late_done);
    meet(s, &place);
    if (s->rank == 0) {
        const uint32_t ms = 30 * TEST_LATE; /* until then it must have begun */
        T_EQ(CDP_ERR_TIMEOUT, cdp_rpc_call(s->rpc, CALL(.to = 0, F("late"), .timeout_ms = ms), &c));
        cdp_call_free(&c);
        const uint64_t until = test_until_ns(5000);
        while (counted_of(&late_done) == before && test_now_ns() < until)
            (void)!cdp_rpc_serve(s->rpc, 1);
        T_EQ(before + 1, counted_of(&late_done));
    }
    meet(s, &place);
}
TEST(a_function_after_its_deadline_starts_calls) {
    static const cdp_rpc_function some[] = {
        {.name = "late", .func = f_late}, {.name = "nothing", .func = f_nothing}};
    like.functions = some;
    like.function_count = 2;
    run(2, late_calls);
}

/* waits without an end for a call that does not end with its own */
static void f_waits_on(void *user, cdp_rpc_request *q) {
    cdp_call c = {0}, *list = &c;
    uint32_t which;
    (void)user;
    OK(cdp_rpc_start(
        q->rpc, CALL(.to = 1, F("nothing"), .detached = true, .timeout_ms = 3000), &c));
    T_EQ(CDP_PENDING, cdp_call_wait_for(&c, CDP_NO_TIMEOUT));
    T_EQ(CDP_PENDING, cdp_call_wait_any(&list, 1, CDP_NO_TIMEOUT, &which));
    OK(cdp_call_cancel(&c));
    cdp_call_free(&c);
    OK(cdp_rpc_reply(q, NULL));
}
/* Without workers: the function runs in the short wait of its own rank, which ends in time. */
static void waits_inside(side *s) {
    static uint32_t place;
    cdp_call c[2] = {{0}};
    gather(&place);
    if (s->rank == 0) {
        const uint64_t from = test_now_ns();
        OK(cdp_rpc_start(
            s->rpc, CALL(.to = 0, F("waits_on"), .timeout_ms = 110 * TEST_SLACK), &c[0]));
        T_EQ(CDP_ERR_TIMEOUT,
            cdp_rpc_call(
                s->rpc, CALL(.to = 1, F("nothing"), .timeout_ms = 30 * TEST_SLACK), &c[1]));
        T_WITHIN(150, test_now_ns() - from);
        OK(cdp_call_wait(&c[0]));
        cdp_call_free(&c[0]);
        cdp_call_free(&c[1]);
    }
    gather(&place); /* rank 1 serves nobody before */
    cdp_rpc_destroy(s->rpc);
}
static void waits_inside_body(side *s) {
    if (how == HUB_NO_WORKERS) open_then(s, waits_inside);
}
TEST(waits_without_an_end_inside_a_wait_end_with_it) {
    static const cdp_rpc_function some[] = {
        {.name = "waits_on", .func = f_waits_on}, {.name = "nothing", .func = f_nothing}};
    like.functions = some;
    like.function_count = 2;
    shut_by_body = true;
    run(2, waits_inside_body);
}

/* ---- works ---- */

typedef struct then_seen {
    uint32_t calls;
    cdp_status status;
} then_seen;
static cdp_status on_then(void *user, cdp_status status) {
    then_seen *t = (then_seen *)user;
    t->status = status;
    count(&t->calls);
    return CDP_OK;
}

/* rpc_async(..).then(..), callback_chain, callback_with_error: a call as a work of the group, with
   functions and operations after it. */
static void works(side *s) {
    static uint32_t place;
    int64_t x[2] = {2, 3}, sum = (int64_t)s->rank + 1;
    cdp_call c[3] = {{0}};
    cdp_work w[3], then[3], late;
    then_seen saw[3] = {{0}};
    REFUSED(CDP_ERR_INVALID, "was not started", cdp_call_work(&c[0], &late));
    OK(cdp_rpc_start(s->rpc, CALL(.to = next_of(s), F("add"), BYTES(x, 16)), &c[0]));
    OK(cdp_rpc_start(s->rpc, CALL(.to = next_of(s), F("fail"), BYTES(x, 8)), &c[1]));
    OK(cdp_rpc_start(s->rpc, CALL(.to = next_of(s), F("keep")), &c[2]));
    REFUSED(CDP_ERR_INVALID, " is NULL", cdp_call_work(&c[0], NULL));
    for (uint32_t i = 0; i < 3; ++i) {
        OK(cdp_call_work(&c[i], &w[i]));
        OK(cdp_work_then(w[i], on_then, &saw[i], &then[i]));
    }
    REFUSED(CDP_ERR_STATE, "has a work already", cdp_call_work(&c[2], &late));
    T_EQ(CDP_PENDING, cdp_work_test(w[2]));
    REFUSED(CDP_ERR_STATE, "that with cdp_call_cancel()", cdp_work_cancel(w[2]));
    OK(cdp_call_wait(&c[0]));
    OK(cdp_work_wait(w[0]));
    OK(cdp_work_wait(then[0]));
    T_EQ(1, counted_of(&saw[0].calls));
    T_EQ(CDP_OK, saw[0].status);
    T_EQ(CDP_ERR_REMOTE, cdp_call_wait(&c[1]));
    T_EQ(CDP_ERR_ABORTED, cdp_work_wait(w[1])); /* what it failed with stands in the call */
    T_EQ(CDP_ERR_ABORTED, cdp_work_wait(then[1]));
    T_EQ(CDP_ERR_ABORTED, saw[1].status);
    OK(cdp_call_cancel(&c[2]));
    T_EQ(CDP_ERR_ABORTED, cdp_work_wait(then[2]));
    T_EQ(1, counted_of(&saw[2].calls));
    OK(cdp_call_work(&c[0], &late)); /* it has ended: so has its work */
    T_EQ(CDP_OK, cdp_work_test(late));
    OK(cdp_call_work(&c[1], &late));
    T_EQ(CDP_ERR_ABORTED, cdp_work_test(late));
    for (uint32_t i = 0; i < 3; ++i)
        cdp_call_free(&c[i]);
    meet(s, &place); /* waits for works run no functions */
    /* an operation of the group that begins when the call has been answered */
    const cdp_request r = {.kind = CDP_COLL_ALLREDUCE,
        .out = &sum,
        .count = 1,
        .dtype = CDP_DTYPE_I64,
        .op = CDP_REDUCE_SUM};
    OK(cdp_rpc_start(s->rpc, CALL(.to = next_of(s), F("add"), BYTES(x, 16)), &c[0]));
    OK(cdp_call_work(&c[0], &w[0]));
    OK(cdp_start_after(s->g, &r, w[0], &late));
    OK(cdp_work_wait(late));
    T_EQ(CDP_OK, cdp_call_test(&c[0]));
    T_EQ(ranks * (ranks + 1) / 2, sum);
    cdp_call_free(&c[0]);
    wait_until_kept(s);
    meet(s, &place);
    OK(cdp_rpc_reply(s->kept[0], NULL));
}
TEST(callback_chain) {
    run(3, works);
}

/* A call that is under way when its rpc is destroyed: its work ends, too. */
static void works_at_the_end(side *s) {
    static uint32_t place;
    cdp_call c = {0};
    cdp_work w, then;
    then_seen saw = {0};
    OK(cdp_rpc_start(s->rpc, CALL(.to = next_of(s), F("keep")), &c));
    OK(cdp_call_work(&c, &w));
    OK(cdp_work_then(w, on_then, &saw, &then));
    wait_until_kept(s);
    gather(&place);
    cdp_rpc_destroy(s->rpc);
    T_EQ(1, counted_of(&saw.calls));
    T(saw.status == CDP_ERR_ABORTED || saw.status == CDP_ERR_STATE);
    T(c.status == CDP_ERR_STATE || c.status == CDP_ERR_PEER_LOST);
    cdp_call_free(&c);
    OK(cdp_rpc_reply(s->kept[0], NULL));
}
static void works_end_body(side *s) {
    open_then(s, works_at_the_end);
}
TEST(works_of_calls_end_with_the_rpc) {
    shut_by_body = true;
    run(2, works_end_body);
}

/* A function that follows a call asks for it while the rpc is destroyed. */
typedef struct asks {
    cdp_call call;
    uint32_t asked;
} asks;
static cdp_status on_then_ask(void *user, cdp_status status) {
    asks *a = (asks *)user;
    (void)status;
    test_sleep_ms(30);
    T(cdp_call_test(&a->call) != CDP_PENDING);
    count(&a->asked);
    return CDP_OK;
}
static void asks_at_the_end(side *s) {
    static uint32_t place;
    asks a[4];
    memset(a, 0, sizeof a);
    for (uint32_t i = 0; i < 4; ++i) {
        cdp_work w, then;
        OK(cdp_rpc_start(s->rpc, CALL(.to = next_of(s), F("keep")), &a[i].call));
        OK(cdp_call_work(&a[i].call, &w));
        OK(cdp_work_then(w, on_then_ask, &a[i], &then));
    }
    const uint64_t until = test_until_ns(10000);
    while (counted_of(&s->kept_count) < 4 && test_now_ns() < until)
        (void)!cdp_rpc_serve(s->rpc, 1);
    gather(&place);
    cdp_rpc_destroy(s->rpc);
    for (uint32_t i = 0; i < 4; ++i) {
        T_EQ(1, counted_of(&a[i].asked));
        cdp_call_free(&a[i].call);
        OK(cdp_rpc_reply(s->kept[i], NULL));
    }
}
static void asks_body(side *s) {
    open_then(s, asks_at_the_end);
}
TEST(functions_after_calls_ask_while_the_rpc_is_destroyed) {
    shut_by_body = true;
    run(2, asks_body);
}

/* References that are dropped while the link to their owner is busy go there as lists: what waits
   for the link does not grow with each of them. */
static void busy_link(side *s) {
    enum {
        N = 1500
    };
    static uint8_t bulk[60000];
    static cdp_rref held[N];
    static uint32_t place;
    cdp_value v = counter_value(s, 1, iov_next());
    cdp_rref r;
    OK(cdp_rref_create(s->rpc, &v, NULL, &r));
    for (uint32_t i = 0; s->rank == 1 && i < N; ++i) {
        cdp_call c = {0};
        int64_t x = 7;
        OK(cdp_rpc_call(s->rpc, CALL(.to = 0, F("lend"), BYTES(&x, 8)), &c));
        if (!T_EQ(1, c.rref_count)) return;
        held[i] = c.rrefs[0];
        cdp_rref_keep(held[i]);
        cdp_call_free(&c);
    }
    meet(s, &place);
    gather(&place); /* rank 0 lets nothing advance until they meet again */
    if (s->rank == 1) {
        uint32_t n = 0, lists = 0;
        for (uint32_t i = 0; i < 2000 && !s->rpc->peers[0].queue; ++i) {
            cdp_call c = {0};
            OK(cdp_rpc_call(s->rpc,
                CALL(.to = 0, F("nothing"), .one_way = true, BYTES(bulk, sizeof bulk)), &c));
            cdp_call_free(&c);
        }
        T(s->rpc->peers[0].queue != NULL);
        for (uint32_t i = 0; i < N; ++i)
            cdp_rref_drop(held[i]);
        for (const cdp__rpc_out *o = s->rpc->peers[0].queue; o; o = o->next) {
            ++n;
            lists += o->p.kind == CDP__RPC_DELETE;
        }
        T_EQ((N + 255) / 256, lists);
        T(n < 20);
        T_EQ(0, cdp_rpc_stats_of(s->rpc).users);
    }
    gather(&place);
    const uint64_t until = test_until_ns(10000);
    while (cdp_rpc_stats_of(s->rpc).forks && test_now_ns() < until)
        (void)!cdp_rpc_serve(s->rpc, 1);
    T_EQ(1, cdp_rpc_stats_of(s->rpc).owners);
    cdp_rref_drop(r);
    meet(s, &place);
}
static const cdp_rpc_function busy_functions[] = {
    {.name = "nothing", .func = f_nothing}, {.name = "lend", .func = f_lend}};
static void gone_quietly(side *s) {
    (void)s;
}
static void busy_body(side *s) {
    open_then(s, how == HUB_POLLED ? busy_link : gone_quietly);
    OK(cdp_rpc_shutdown(s->rpc, 5000 * TEST_LATE));
    OK(cdp_barrier(s->g));
    cdp_rpc_destroy(s->rpc);
    T_EQ(s->values.made, s->values.destroyed);
}
TEST(references_dropped_on_a_busy_link_go_as_lists) {
    like.functions = busy_functions;
    like.function_count = 2;
    like.max_calls = like.max_queue = 8192;
    shut_by_body = true;
    run(2, busy_body);
}

/* ---- arguments that are not copied ---- */

typedef struct lent {
    side *s;
    uint8_t *data;
    uint64_t bytes;
    uint32_t released;
} lent;
static void on_release(void *user) {
    lent *l = (lent *)user;
    memset(l->data, 0xee, l->bytes); /* it is the program's again */
    count(&l->released);
}
/* returns the sum of its bytes, after as many ms as the first one says */
static void f_sum_bytes(void *user, cdp_rpc_request *q) {
    int64_t sum = 0;
    (void)user;
    test_sleep_ms(*(const uint8_t *)q->data);
    for (uint64_t i = 0; i < q->bytes; ++i)
        sum += ((const uint8_t *)q->data)[i];
    reply_i64(q, sum);
}
static const cdp_rpc_function lent_functions[] = {
    {.name = "sum_bytes", .func = f_sum_bytes}, {.name = "nothing", .func = f_nothing}};

static void wait_until_released(side *s, lent *l) {
    const uint64_t until = test_until_ns(10000);
    while (!counted_of(&l->released) && test_now_ns() < until)
        (void)!cdp_rpc_serve(s->rpc, 1);
    T_EQ(1, counted_of(&l->released));
}

/* Long and short arguments, to others and to oneself, calls that end well, too late, or are
   cancelled: each memory comes back once, and what the function got is what was in it. */
static void lends_arguments(side *s) {
    static const uint64_t sizes[] = {100, 70000, 3000000};
    static uint32_t place;
    for (uint32_t i = 0; i < 24; ++i) {
        lent l = {.s = s, .bytes = sizes[i % 3]};
        const uint32_t to = i / 3 % 2 ? s->rank : next_of(s);
        const uint32_t end = i / 6; /* well, too late, cancelled, well */
        int64_t sum = 0;
        cdp_call c = {0};
        l.data = (uint8_t *)malloc(l.bytes);
        for (uint64_t k = 0; k < l.bytes; ++k)
            l.data[k] = (uint8_t)(k * 7 + i);
        l.data[0] = end == 1 ? 60 : 0;
        for (uint64_t k = 0; k < l.bytes; ++k)
            sum += l.data[k];
        OK(cdp_rpc_start(s->rpc,
            CALL(.to = to, F("sum_bytes"), BYTES(l.data, l.bytes), .release = on_release,
                .release_user = &l, .timeout_ms = end == 1 ? 15 : 0),
            &c));
        if (end == 2) (void)cdp_call_cancel(&c);
        const cdp_status st = cdp_call_wait(&c);
        if (end == 0 || end == 3) T_EQ(CDP_OK, st);
        if (st == CDP_OK) T_EQ(sum, i64_at(c.data, 0));
        cdp_call_free(&c);
        wait_until_released(s, &l);
        free(l.data);
    }
    lent l = {.s = s};
    cdp_call c = {0};
    REFUSED(CDP_ERR_INVALID, "the group has ranks",
        cdp_rpc_start(
            s->rpc, CALL(.to = 77, F("nothing"), .release = on_release, .release_user = &l), &c));
    T_EQ(0, l.released); /* nothing was started */
    meet(s, &place);
}
TEST(arguments_that_are_not_copied_come_back_once) {
    like.functions = lent_functions;
    like.function_count = 2;
    run(2, lends_arguments);
}

/* They come back too where the rank that was to read them is lost, and at destruction. */
static void lends_to_the_lost(side *s) {
    static uint32_t place;
    lent l[2] = {{.s = s, .bytes = 3000000}, {.s = s, .bytes = 3000000}};
    cdp_call c[2] = {{0}};
    for (uint32_t i = 0; i < 2; ++i)
        l[i].data = (uint8_t *)calloc(1, l[i].bytes);
    gather(&place);
    if (s->rank == 0) {
        for (uint32_t i = 0; i < 2; ++i)
            OK(cdp_rpc_start(s->rpc,
                CALL(.to = 1 + i, F("sum_bytes"), BYTES(l[i].data, l[i].bytes),
                    .release = on_release, .release_user = &l[i]),
                &c[i]));
        if (how == HUB_POLLED) /* rank 2 has not looked for it yet */
            T(s->rpc->peers[2].offered && s->rpc->peers[2].offered->lent == l[1].data);
        cdp_channel_drop(s->rpc->channel, 1, "for the test");
        T_EQ(CDP_ERR_PEER_LOST, cdp_call_wait(&c[0]));
        wait_until_released(s, &l[0]);
    }
    if (s->rank == 0) cdp_rpc_destroy(s->rpc);
    gather(&place);
    if (s->rank != 0) cdp_rpc_destroy(s->rpc);
    if (s->rank == 0) T_EQ(1, l[1].released);
    for (uint32_t i = 0; i < 2; ++i) {
        free(l[i].data);
        cdp_call_free(&c[i]);
    }
}
static void lends_lost_body(side *s) {
    open_then(s, lends_to_the_lost);
}
TEST(arguments_that_are_not_copied_come_back_from_the_lost) {
    like.functions = lent_functions;
    like.function_count = 2;
    shut_by_body = true;
    run(3, lends_lost_body);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"a_wait_for_a_call_that_has_ended_runs_nothing",
            a_wait_for_a_call_that_has_ended_runs_nothing, 60},
        {"a_short_wait_leaves_functions_that_wait_to_longer_ones",
            a_short_wait_leaves_functions_that_wait_to_longer_ones, 60},
        {"calls_in_order_run_one_after_the_other", calls_in_order_run_one_after_the_other, 60},
        {"the_order_of_calls_is_that_of_the_value", the_order_of_calls_is_that_of_the_value, 60},
        {"a_function_after_its_deadline_starts_calls", a_function_after_its_deadline_starts_calls,
            60},
        {"waits_without_an_end_inside_a_wait_end_with_it",
            waits_without_an_end_inside_a_wait_end_with_it, 60},
        {"callback_chain", callback_chain, 60},
        {"functions_after_calls_ask_while_the_rpc_is_destroyed",
            functions_after_calls_ask_while_the_rpc_is_destroyed, 60},
        {"works_of_calls_end_with_the_rpc", works_of_calls_end_with_the_rpc, 60},
        {"arguments_that_are_not_copied_come_back_once",
            arguments_that_are_not_copied_come_back_once, 60},
        {"arguments_that_are_not_copied_come_back_from_the_lost",
            arguments_that_are_not_copied_come_back_from_the_lost, 60},
        {"references_dropped_on_a_busy_link_go_as_lists",
            references_dropped_on_a_busy_link_go_as_lists, 60},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
