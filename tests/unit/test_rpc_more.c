/* test_rpc_more.c - what calls, references and an rpc do at their edges: no room until the
   deadline, threads that wait while others end, results that a program frees inside callbacks. */
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"

#include "cdp_rpc.h"

#include "rpc_sides.h"

/* Serves until *n is at least `want`. */
static void serve_until(side *s, const uint32_t *n, uint32_t want) {
    const uint64_t until = test_now_ns() + 20000000000ull;
    while (counted_of(n) < want && test_now_ns() < until)
        (void)!cdp_rpc_serve(s->rpc, 1);
    T(counted_of(n) >= want);
}

/* ---- functions of these tests ---- */

static uint8_t much[60000];
static void f_value_without_memory(void *user, cdp_rpc_request *q) {
    side *s = side_of(q);
    cdp_value v = counter_value(s, 1, iov_next());
    (void)user;
    for (uint32_t i = 0; i < 100 && !s->rpc->peers[q->from].queue; ++i) {
        cdp_call c = {0};
        OK(cdp_rpc_start(
            s->rpc, CALL(.to = q->from, F("nothing"), BYTES(much, 60000), .one_way = true), &c));
    }
    T(s->rpc->peers[q->from].queue != NULL);
    counted.fail_at = counted.calls + 1;
    OK(cdp_rpc_reply_value(q, &v));
    counted.fail_at = 0;
}
static void f_time(void *user, cdp_rpc_request *q) {
    (void)user;
    reply_i64(q, (int64_t)(q->deadline_ns - cdp_os_default()->now_ns(NULL)) / 1000000);
}
static void f_destroys(void *user, cdp_rpc_request *q);

static const cdp_rpc_function more_functions[] = {
    {.name = "no_memory", .func = f_value_without_memory},
    {.name = "nothing", .func = f_nothing},
    {.name = "ordered", .func = f_time},
    {.name = "destroys", .func = f_destroys},
    {.name = "destroys_inline", .func = f_destroys, .flags = CDP_RPC_INLINE},
    {.name = "keep", .func = f_keep, .flags = CDP_RPC_LATER | CDP_RPC_INLINE},
    {.name = "counter", .func = f_counter},
    {.name = "count", .func = f_count},
    {.name = "echo", .func = f_echo, .flags = CDP_RPC_INLINE},
    {.name = "lend", .func = f_lend},
    {.name = "fail", .func = f_fail},
};
static void more(uint32_t n, void (*func)(side *s)) {
    like.functions = more_functions;
    like.function_count = sizeof more_functions / sizeof *more_functions;
    run(n, func);
}

/* ---- calls ---- */

/* max_calls are under way until the deadline of the next one, to others and to oneself: it never
   left, and nothing of it stays behind. */
static void no_room(side *s) {
    static uint32_t place;
    cdp_call kept[2] = {{0}}, c = {0};
    cdp_rref r;
    OK(cdp_rpc_start(s->rpc, CALL(.to = s->rank, F("keep")), &kept[0]));
    OK(cdp_rpc_start(s->rpc, CALL(.to = next_of(s), F("keep")), &kept[1]));
    serve_until(s, &s->kept_count, 2);
    for (uint32_t i = 0; i < 2; ++i) {
        const uint32_t to = i ? s->rank : next_of(s);
        OK(cdp_rpc_start(s->rpc, CALL(.to = to, F("nothing"), .timeout_ms = 5), &c));
        T_EQ(CDP_ERR_TIMEOUT, cdp_call_wait(&c));
        T_EQ(CDP_RAN_NO, c.ran);
        cdp_call_free(&c);
        REFUSED(CDP_ERR_TIMEOUT, "1 calls to rank",
            cdp_rpc_remote(s->rpc, CALL(.to = to, F("counter"), .timeout_ms = 5), &r));
        T(!r.rpc);
    }
    T_EQ(2, cdp_rpc_stats_of(s->rpc).calls_out);
    T_EQ(0, cdp_rpc_stats_of(s->rpc).users + cdp_rpc_stats_of(s->rpc).owners);
    meet(s, &place);
    for (uint32_t i = 0; i < 2; ++i)
        OK(cdp_rpc_reply(s->kept[i], NULL));
    for (uint32_t i = 0; i < 2; ++i) {
        OK(cdp_call_wait(&kept[i]));
        cdp_call_free(&kept[i]);
    }
}
TEST(no_room_until_the_deadline) {
    like.max_calls = 1;
    run(2, no_room);
}

/* `done` frees its call, and the memory that the call lies in. */
typedef struct own_call {
    cdp_call call;
    side *s;
    uint8_t *sent;
} own_call;

static void free_in_done(void *user, cdp_call *ended) {
    own_call *o = (own_call *)user;
    side *s = o->s;
    T(ended == &o->call);
    T_EQ(CDP_OK, ended->status);
    T_EQ(100, ended->bytes);
    T_EQ(CDP_ERR_STATE, cdp_call_wait(ended));
    cdp_call_free(ended);
    T_EQ(0, ended->bytes);
    free(o->sent);
    memset(o, 0xee, sizeof *o);
    free(o);
    count(&s->ran);
}
static void frees_in_done(side *s) {
    for (uint32_t i = 0; i < 8; ++i) {
        own_call *o = (own_call *)calloc(1, sizeof *o);
        o->s = s;
        o->sent = (uint8_t *)calloc(1, 100);
        OK(cdp_rpc_start(s->rpc,
            CALL(.to = i % 2 ? s->rank : next_of(s), F("echo"), BYTES(o->sent, 100),
                .done = free_in_done, .user = o),
            &o->call));
    }
    serve_until(s, &s->ran, 8);
}
TEST(done_frees_its_call) {
    run(2, frees_in_done);
}

/* A call that waits for its turn has less time when it leaves, and says so. */
static void time_goes_on(side *s) {
    static uint32_t place;
    cdp_call c[2] = {{0}};
    if (s->rank == 0) {
        OK(cdp_rpc_start(s->rpc, CALL(.to = 1, F("ordered"), .in_order = true), &c[0]));
        OK(cdp_rpc_start(s->rpc, CALL(.to = 1, F("ordered"), .in_order = true), &c[1]));
        cdp_lock_acquire(&s->rpc->lock); /* half a minute passes */
        cdp__rpc_call_find(s->rpc, c[1].priv[CDP__CALL_ID])->deadline_ns -= 30000000000u;
        cdp_lock_release(&s->rpc->lock);
        for (uint32_t i = 0; i < 2; ++i)
            OK(cdp_call_wait(&c[i]));
        T(i64_at(c[0].data, 0) > 30000 || TEST_SLOW);
        T(i64_at(c[1].data, 0) <= 30001);
        for (uint32_t i = 0; i < 2; ++i)
            cdp_call_free(&c[i]);
    }
    meet(s, &place);
}
TEST(a_call_that_waits_for_its_turn_says_what_time_is_left) {
    more(2, time_goes_on);
}

/* ---- ends ---- */

/* An rpc is not destroyed by what it runs. */
static void f_destroys(void *user, cdp_rpc_request *q) {
    (void)user;
    cdp_rpc_destroy(q->rpc);
    T_EQ(CDP_ERR_STATE, cdp_last_error()->status);
    T_TEXT("a function or a callback must not destroy", cdp_last_error()->text);
    count(&side_of(q)->ran);
}
static void destroys_in_done(void *user, cdp_call *ended) {
    side *s = (side *)user;
    T_EQ(CDP_OK, ended->status);
    cdp_rpc_destroy(s->rpc);
    T_TEXT("a function or a callback must not destroy", cdp_last_error()->text);
}
static void destroyed_inside(side *s) {
    static const char *const names[] = {"destroys", "destroys_inline"};
    static uint32_t place;
    for (uint32_t i = 0; i < 2; ++i) {
        cdp_call c = {0};
        OK(cdp_rpc_call(s->rpc,
            CALL(.to = next_of(s), .function = cdp_rpc_id(names[i]), .done = destroys_in_done,
                .user = s),
            &c));
        cdp_call_free(&c);
    }
    serve_until(s, &s->ran, 2);
    meet(s, &place);
}
TEST(destroying_inside_a_function_is_refused) {
    more(2, destroyed_inside);
}

/* Threads that serve, or ask for a reference, while another one shuts the rpc down: they end with
   it, and not with an error. */
static void *serve_main(void *arg) {
    side *s = (side *)arg;
    count(&s->ran);
    OK(cdp_rpc_serve(s->rpc, 20000));
    return NULL;
}
static void served(side *s) {
    pthread_t t[3];
    static uint32_t place;
    for (uint32_t i = 0; i < 3; ++i)
        pthread_create(&t[i], NULL, serve_main, s);
    serve_until(s, &s->ran, 3);
    meet(s, &place);
    OK(cdp_rpc_shutdown(s->rpc, 20000));
    for (uint32_t i = 0; i < 3; ++i)
        pthread_join(t[i], NULL);
    gather(&place);
    cdp_rpc_destroy(s->rpc);
}
static void served_body(side *s) {
    open_then(s, served);
}
TEST(threads_that_serve_end_with_the_rpc) {
    for (uint32_t i = 0; i < 3; ++i) {
        shut_by_body = true;
        run(2, served_body);
    }
}

/* A reference is dropped as a leak while another thread waits until it is confirmed. */
static void *confirm_main(void *arg) {
    const cdp_rref *r = (const cdp_rref *)arg;
    REFUSED(CDP_ERR_STATE, "dropped", cdp_rref_confirmed(*r, 20000));
    return NULL;
}
static void leaks_while_asked(side *s) {
    static uint32_t place;
    int64_t x[2] = {1, 0};
    char text[160];
    cdp_rref r;
    pthread_t t;
    gather(&place);
    if (s->rank == 0) {
        OK(cdp_rpc_remote(s->rpc, CALL(.to = 1, F("counter"), BYTES(x, 16)), &r));
        pthread_create(&t, NULL, confirm_main, &r);
        const uint64_t until = test_now_ns() + 10000000000ull;
        while (!__atomic_load_n(&s->rpc->waiters, __ATOMIC_SEQ_CST) && test_now_ns() < until)
            test_sleep_ms(1);
        cdp_lock_acquire(&s->rpc->lock);
        T_EQ(1, cdp__rpc_drop_leaks(s->rpc, text));
        cdp_lock_release(&s->rpc->lock);
    }
    gather(&place);
    meet(s, &place); /* now rank 1 confirms */
    if (s->rank == 0) pthread_join(t, NULL);
    meet(s, &place);
    OK(cdp_rpc_shutdown(s->rpc, 20000));
    cdp_rpc_destroy(s->rpc);
    T_EQ(s->values.made, s->values.destroyed);
}
static void leaks_while_asked_body(side *s) {
    if (how == HUB_POLLED) open_then(s, leaks_while_asked);
}
TEST(a_leak_that_another_thread_asks_for) {
    shut_by_body = true;
    run(2, leaks_while_asked_body);
}

/* A request that is kept longer than its rpc: the value that it runs on is gone. */
static void outlives(side *s) {
    static uint32_t place;
    cdp_value v = counter_value(s, 1, iov_next());
    cdp_call c = {0};
    cdp_rref r;
    OK(cdp_rref_create(s->rpc, &v, NULL, &r));
    OK(cdp_rpc_start(s->rpc, CALL(.on = r, F("keep")), &c));
    serve_until(s, &s->kept_count, 1);
    T(s->kept[0]->on != NULL);
    gather(&place);
    cdp_rpc_destroy(s->rpc);
    T_EQ(1, s->values.destroyed);
    T(s->kept[0]->on == NULL);
    T(cdp_rpc_cancelled(s->kept[0]));
    T_EQ(CDP_ERR_STATE, c.status);
    OK(cdp_rpc_reply(s->kept[0], NULL));
}
static void outlives_body(side *s) {
    open_then(s, outlives);
}
TEST(a_kept_request_outlives_its_value) {
    shut_by_body = true;
    run(2, outlives_body);
}

/* ---- messages that end a link ---- */

/* A result that nobody waits for brings a reference: the link to its sender ends, and what the
   reference kept alive goes. */
static void lies_with_a_reference(side *s) {
    static uint32_t place;
    static uint64_t rid;
    cdp_value v;
    cdp_rref r = {0};
    if (s->rank == 0) {
        cdp_rref_info info = {0};
        v = counter_value(s, 1, iov_next());
        OK(cdp_rref_create(s->rpc, &v, NULL, &r));
        OK(cdp_rref_info_of(r, &info));
        rid = info.rid;
    }
    meet(s, &place);
    if (s->rank == 1) {
        uint8_t record[24];
        const cdp_channel_message m = {
            0, CDP__RPC_REPLY | 1u << 16, 0, 77, 0, record, sizeof record, 0};
        cdp__rpc_put_record(record, rid, (uint64_t)1 << 48 | 999999, 0);
        OK(cdp_channel_send(s->rpc->channel, &m));
    } else {
        serve_until(s, &s->lost, 1);
        T_EQ(0, s->values.destroyed);
        cdp_rref_drop(r);
        const uint64_t until = test_now_ns() + 10000000000ull;
        while (!__atomic_load_n(&s->values.destroyed, __ATOMIC_SEQ_CST) && test_now_ns() < until)
            (void)!cdp_rpc_serve(s->rpc, 1);
        T_EQ(1, s->values.destroyed);
        T_EQ(0, cdp_rpc_stats_of(s->rpc).owners);
    }
    gather(&place);
    cdp_rpc_destroy(s->rpc);
}
static void lies_body(side *s) {
    open_then(s, lies_with_a_reference);
}
TEST(references_of_a_liar_are_let_go) {
    shut_by_body = true;
    run(2, lies_body);
}

/* Out of memory for the answer to a call that makes a value: the value is kept once, and the rank
   that waits for it is lost. */
static uint32_t no_memory_place;
static void without_memory(side *s) {
    int64_t x[2] = {1, 0};
    cdp_rref r = {0};
    if (s->rank == 0) OK(cdp_rpc_remote(s->rpc, CALL(.to = 1, F("no_memory"), BYTES(x, 16)), &r));
    gather(&no_memory_place);
    if (s->rank == 1) {
        serve_until(s, &s->lost, 1);
        T_EQ(0, s->lost_rank);
        const uint64_t until = test_now_ns() + 10000000000ull;
        while (!__atomic_load_n(&s->values.destroyed, __ATOMIC_SEQ_CST) && test_now_ns() < until)
            (void)!cdp_rpc_serve(s->rpc, 1);
        T_EQ(1, s->values.destroyed); /* its only reference was rank 0's */
    }
    gather(&no_memory_place);
    cdp_rpc_destroy(s->rpc);
    T_EQ(s->values.made, s->values.destroyed);
}
static void without_memory_body(side *s) {
    if (how == HUB_POLLED) open_then(s, without_memory);
}
TEST(an_answer_without_memory) {
    shut_by_body = true;
    more(2, without_memory_body);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"no_room_until_the_deadline", no_room_until_the_deadline, 60},
        {"done_frees_its_call", done_frees_its_call, 60},
        {"a_call_that_waits_for_its_turn_says_what_time_is_left",
            a_call_that_waits_for_its_turn_says_what_time_is_left, 60},
        {"destroying_inside_a_function_is_refused", destroying_inside_a_function_is_refused, 60},
        {"threads_that_serve_end_with_the_rpc", threads_that_serve_end_with_the_rpc, 60},
        {"a_leak_that_another_thread_asks_for", a_leak_that_another_thread_asks_for, 60},
        {"a_kept_request_outlives_its_value", a_kept_request_outlives_its_value, 60},
        {"references_of_a_liar_are_let_go", references_of_a_liar_are_let_go, 60},
        {"an_answer_without_memory", an_answer_without_memory, 60},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
