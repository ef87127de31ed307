/* test_rpc_room.c - what waits for room: a full queue, arguments that wait for memory, limits of
   bytes under way, an answer without memory, a rank that takes no messages. */
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"

#include "cdp_rpc.h"

#include "rpc_sides.h"

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
    counted.fail_at = counted.calls + 2; /* the first is for the lists of the value */
    OK(cdp_rpc_reply_value(q, &v));
    counted.fail_at = 0;
}

static void f_time(void *user, cdp_rpc_request *q) {
    (void)user;
    reply_i64(q, (int64_t)(q->deadline_ns - cdp_os_default()->now_ns(NULL)) / 1000000);
}

static const cdp_rpc_function own_functions[] = {
    {.name = "no_memory", .func = f_value_without_memory},
    {.name = "nothing", .func = f_nothing},
    {.name = "ordered", .func = f_time},
    KEPT_AND_COUNTED,
    {.name = "mul", .func = f_mul, .backward = b_mul},
    {.name = "weight_rref", .func = f_weight_rref},
    {.name = "weight_grad", .func = f_weight_grad},
};
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
    run_own(2, time_goes_on);
}

/* So does one whose long arguments wait for memory: it does not run after its time, also where
   nobody waits for it. */
static void waits_for_memory(side *s) {
    static uint8_t data[100000];
    static uint32_t place;
    cdp_call c = {0};
    if (s->rank == 0) {
        gather(&place);
        OK(cdp_rpc_start(
            s->rpc, CALL(.to = 1, F("nothing"), BYTES(data, sizeof data), .one_way = true), &c));
        cdp_call_free(&c);
    } else {
        const uint64_t until = test_now_ns() + 10000000000ull;
        bool here = false;
        cdp_lock_acquire(&s->rpc->lock);
        s->rpc->in_bytes += s->rpc->desc.max_queue_bytes; /* there is no memory */
        cdp_lock_release(&s->rpc->lock);
        gather(&place);
        while (!here && test_now_ns() < until) {
            (void)!cdp_rpc_serve(s->rpc, 1);
            cdp_lock_acquire(&s->rpc->lock);
            here = s->rpc->in != NULL;
            if (here) s->rpc->in->arrived_ns -= 61000000000u; /* a minute passes */
            cdp_lock_release(&s->rpc->lock);
        }
        cdp_lock_acquire(&s->rpc->lock);
        s->rpc->in_bytes -= s->rpc->desc.max_queue_bytes;
        cdp_lock_release(&s->rpc->lock);
        T(here);
    }
    meet(s, &place);
    while (s->rank == 1 && !cdp_rpc_stats_of(s->rpc).refused
        && !counted_of(&s->ran)) { /* the next message moves it on */
        OK(cdp_rpc_call(s->rpc, CALL(.to = 0, F("nothing")), &c));
        cdp_call_free(&c);
    }
    meet(s, &place);
    T_EQ(0, s->rank == 1 ? s->ran : 0);
    T_EQ(s->rank, cdp_rpc_stats_of(s->rpc).late);
}

static void waits_for_memory_body(side *s) {
    if (how == HUB_POLLED) {
        open_then(s, waits_for_memory);
        OK(cdp_rpc_shutdown(s->rpc, 20000));
        cdp_rpc_destroy(s->rpc);
    }
}

TEST(time_goes_on_while_arguments_wait_for_memory) {
    shut_by_body = true;
    run(2, waits_for_memory_body);
}

static void call_bytes(side *s) {
    static uint8_t data[RANKS_MAX][1000];
    static uint32_t place;
    cdp_call kept[2] = {{0}}, c = {0};
    OK(cdp_rpc_start(
        s->rpc, CALL(.to = next_of(s), F("keep"), BYTES(data[s->rank], 600)), &kept[0]));
    OK(cdp_rpc_start(
        s->rpc, CALL(.to = next_of(s), F("keep"), BYTES(data[s->rank], 400)), &kept[1]));
    serve_until(s, &s->kept_count, 2);
    T_EQ(1000, cdp_rpc_stats_of(s->rpc).call_bytes);
    T_EQ(2, cdp_rpc_stats_of(s->rpc).kept);
    REFUSED(CDP_ERR_BUSY, "are under way, with 1000 bytes",
        cdp_rpc_start(s->rpc, CALL(.to = next_of(s), F("keep"), BYTES(data[s->rank], 1)), &c));
    OK(cdp_rpc_call(s->rpc, CALL(.to = s->rank, F("nothing"), BYTES(data[s->rank], 1000)), &c));
    cdp_call_free(&c); /* each rank has its own bytes, and one call may have more than there are */
    OK(cdp_rpc_call(s->rpc, CALL(.to = s->rank, F("nothing"), BYTES(data[s->rank], 1000)), &c));
    cdp_call_free(&c);
    meet(s, &place);
    for (uint32_t i = 0; i < 2; ++i)
        OK(cdp_rpc_reply(s->kept[i], NULL));
    for (uint32_t i = 0; i < 2; ++i) {
        OK(cdp_call_wait(&kept[i]));
        cdp_call_free(&kept[i]);
    }
    T_EQ(0, cdp_rpc_stats_of(s->rpc).call_bytes);
    meet(s, &place);
}

TEST(bytes_of_arguments_under_way_are_limited) {
    like.max_call_bytes = 1000;
    like.fail_when_full = true;
    run_own(2, call_bytes);
}

/* One more waits until there is room. */
static void call_bytes_wait(side *s) {
    static uint8_t data[RANKS_MAX][900];
    cdp_call c[8] = {{0}};
    for (uint32_t i = 0; i < 8; ++i) {
        OK(cdp_rpc_start(
            s->rpc, CALL(.to = next_of(s), F("nothing"), BYTES(data[s->rank], 900)), &c[i]));
        T(cdp_rpc_stats_of(s->rpc).call_bytes <= 1000);
    }
    for (uint32_t i = 0; i < 8; ++i) {
        OK(cdp_call_wait(&c[i]));
        cdp_call_free(&c[i]);
    }
}

TEST(calls_wait_until_there_is_room_for_their_bytes) {
    like.max_call_bytes = 1000;
    run_own(2, call_bytes_wait);
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
    run_own(2, without_memory_body);
}

/* An answer too long for the window waits for rank 1, which does not take it. */
static uint8_t long_bytes[1 << 20];

static void f_long(void *user, cdp_rpc_request *q) {
    (void)user;
    reply(q, long_bytes, sizeof long_bytes);
    count(&side_of(q)->ran);
}

static const cdp_rpc_function long_functions[] = {{.name = "long", .func = f_long}};

static void leaves_unheard(side *s) {
    const cdp_rpc_desc d = desc_of(s);
    const uint64_t until = test_until_ns(10000);
    cdp_call c = {0};
    if (!OK(cdp_rpc_create(&d, &s->rpc))) return;
    OK(cdp_barrier(s->g));
    if (s->rank == 1) {
        OK(cdp_rpc_start(s->rpc, CALL(.to = 0, F("long")), &c));
        (void)!cdp_poll(s->g, 1000);
        stand_still();
        T(cdp_call_wait(&c) < CDP_OK); /* the other one has left */
        cdp_call_free(&c);
    } else {
        while (!counted_of(&still) && test_now_ns() < until)
            test_sleep_ms(1); /* before it answers, else rank 1 could take some of that */
        T(counted_of(&still));
        while (!counted_of(&s->ran) && test_now_ns() < until)
            (void)!cdp_rpc_serve(s->rpc, 1);
        REFUSED(CDP_ERR_TIMEOUT, "takes no messages", cdp_rpc_shutdown(s->rpc, 50));
        T_EQ(1, cdp_last_error()->peer);
        cdp_rpc_destroy(s->rpc);
        __atomic_store_n(&through, 1, __ATOMIC_SEQ_CST);
        return;
    }
    cdp_rpc_destroy(s->rpc);
}

TEST(a_rank_that_takes_no_messages_is_named) {
    like.functions = long_functions;
    like.function_count = 1;
    shut_by_body = true;
    polled(leaves_unheard);
    shut_by_body = false;
}

/* Ranks are served in turn: the calls of rank 2 run among the first ones, although many of rank 1
   came before. */
static struct { uint32_t gate, count, from[64]; } turns;

static void f_turn(void *user, cdp_rpc_request *q) {
    const uint64_t until = test_until_ns(20000);
    (void)user;
    turns.from[counted_of(&turns.count)] = q->from;
    count(&turns.count);
    while (!counted_of(&turns.gate) && test_now_ns() < until)
        test_sleep_ms(1);
}
static const cdp_rpc_function turn_functions[] = {
    {.name = "turn", .func = f_turn, .max_running = 1}};

static void turn_about(side *s) {
    enum {
        MANY = 40,
        FEW = 4
    };
    static uint32_t place;
    const uint64_t until = test_until_ns(20000);
    const uint32_t mine = s->rank == 1 ? MANY : FEW;
    cdp_call c[MANY] = {{0}};
    if (s->rank == 0) memset(&turns, 0, sizeof turns);
    gather(&place);
    for (uint32_t r = 1; r <= 2; ++r) {
        for (uint32_t i = 0; s->rank == r && i < mine; ++i)
            OK(cdp_rpc_start(s->rpc, CALL(F("turn"), .timeout_ms = 20000), &c[i]));
        while (s->rank == 0 && cdp_rpc_stats_of(s->rpc).calls_in < (r == 1 ? MANY : MANY + FEW)
            && test_now_ns() < until)
            test_sleep_ms(1);
        gather(&place);
    }
    if (s->rank == 0) {
        count(&turns.gate);
        serve_until(s, &turns.count, MANY + FEW);
        uint32_t few = 0;
        for (uint32_t i = 0; i < 2 * FEW + 2; ++i)
            few += turns.from[i] == 2;
        T_EQ(FEW, few);
    }
    for (uint32_t i = 0; s->rank && i < mine; ++i) {
        OK(cdp_call_wait(&c[i]));
        cdp_call_free(&c[i]);
    }
    meet(s, &place);
}
static void turn_body(side *s) {
    if (how != HUB_POLLED && how != TCP) turn_about(s);
}
TEST(ranks_are_served_in_turn) {
    run_with(turn_functions, 1, 3, turn_body);
}

/* ---- a call that is late because a limit of its rank was met names that limit ---- */

static void f_busy(void *user, cdp_rpc_request *q) {
    const uint64_t until = test_until_ns(10000);
    (void)user;
    while (!cdp_rpc_cancelled(q) && test_now_ns() < until) {
        if (how == HUB_POLLED) (void)!cdp_poll(side_of(q)->g, 0);
        test_sleep_ms(1);
    }
}

/* The error of a call that is late names the limit only if the call arrived there in time. Where
   this machine takes longer for that, the next attempt has more time; 0: that was the last one. */
static uint32_t more_time(uint32_t ms) {
    const uint32_t most = 100 * TEST_LATE;
    if (ms == most) return 0;
    return ms * 4 < most ? ms * 4 : most;
}

static void late(side *s, cdp_call_desc d, const char *held, const char *limit) {
    bool named = false;
    for (uint32_t ms = 50; ms && !named; ms = more_time(ms)) {
        cdp_call c = {0};
        d.timeout_ms = ms;
        if (!OK(cdp_rpc_start(s->rpc, &d, &c))) return;
        T_EQ(CDP_ERR_TIMEOUT, cdp_call_wait(&c));
        T(c.ran != CDP_RAN_YES);
        named = strstr(c.error.text, held) && strstr(c.error.text, limit);
        if (!named && !more_time(ms))
            T_TEXT(strstr(c.error.text, held) ? limit : held, c.error.text);
        cdp_call_free(&c);
    }
}

static void held_there(side *s) {
    static uint32_t place;
    const bool none = how == HUB_NO_WORKERS || how == HUB_POLLED;
    cdp_call busy = {0};
    cdp_rref r;
    if (s->rank == 0) {
        OK(cdp_rpc_start(s->rpc, CALL(.to = 1, F("busy")), &busy));
        test_sleep_ms(how == HUB_POLLED ? 0 : 20);
        late(s, (cdp_call_desc){.to = 1, F("nothing")}, "at last it waited for a",
            none ? "which has 0 workers" : "raise workers (1) of that rank");
        late(s, (cdp_call_desc){.to = 1, F("busy")}, "others of this function", "max_running (1)");
        OK(cdp_rpc_remote(s->rpc, CALL(.to = 1, F("nothing")), &r));
        late(s, (cdp_call_desc){.on = r, F("nothing")}, "at last",
            "waited there for its value (on)");
        cdp_rref_drop(r);
        OK(cdp_call_cancel(&busy));
        cdp_call_free(&busy);
    }
    if (none)
        meet(s, &place);
    else
        gather(&place); /* a thread that serves is one more that runs functions */
}

TEST(a_late_call_names_the_limit_that_it_waited_for) {
    static const cdp_rpc_function held_functions[] = {
        {.name = "nothing", .func = f_nothing}, {.name = "busy", .func = f_busy, .max_running = 1}};
    like.workers = 1;
    run_with(held_functions, 2, 2, held_there);
}

/* Arguments that wait for memory of the other rank. */
static void held_by_bytes(side *s) {
    static uint32_t place;
    static uint8_t data[100000];
    const bool none = how == HUB_NO_WORKERS || how == HUB_POLLED;
    cdp_call c = {0};
    if (s->rank == 1) {
        cdp_lock_acquire(&s->rpc->lock);
        s->rpc->in_bytes += s->rpc->desc.max_queue_bytes;
        cdp_lock_release(&s->rpc->lock);
    }
    meet(s, &place);
    if (s->rank == 0) {
        late(s, (cdp_call_desc){.to = 1, F("nothing"), BYTES(data, sizeof data)}, "memory there",
            "raise max_queue_bytes (268435456)");
    }
    if (none)
        meet(s, &place);
    else
        gather(&place);
    if (s->rank == 1) {
        cdp_lock_acquire(&s->rpc->lock);
        s->rpc->in_bytes -= s->rpc->desc.max_queue_bytes;
        cdp_lock_release(&s->rpc->lock);
        OK(cdp_rpc_call(s->rpc, CALL(.to = 0, F("nothing")), &c)); /* the next message */
        cdp_call_free(&c);
    }
    meet(s, &place);
}

TEST(a_late_call_whose_arguments_wait_for_memory_names_max_queue_bytes) {
    static const cdp_rpc_function held_functions[] = {{.name = "nothing", .func = f_nothing}};
    like.workers = 1;
    run_with(held_functions, 1, 2, held_by_bytes);
}

/* A function that is max_depth deep calls a rank whose only worker waits for that function. */
static void f_deep(void *user, cdp_rpc_request *q) {
    cdp_call c = {0};
    int64_t ms = i64_at(q->data, 0);
    (void)user;
    if (OK(cdp_rpc_call(q->rpc, CALL(.to = q->from, F("deepest"), BYTES(&ms, 8)), &c)))
        reply(q, c.data, c.bytes);
    cdp_call_free(&c);
}
static void deepest_done(void *user, cdp_call *c) {
    cdp_rpc_request *q = (cdp_rpc_request *)user;
    T_EQ(CDP_ERR_TIMEOUT, c->status);
    reply(q, c->error.text, strlen(c->error.text) + 1);
    cdp_call_free(c);
    free(c);
}
static void f_deepest(void *user, cdp_rpc_request *q) {
    cdp_call *c = (cdp_call *)calloc(1, sizeof *c);
    (void)user;
    if (!OK(cdp_rpc_start(q->rpc,
            CALL(.to = q->from, F("nothing"), .timeout_ms = (uint32_t)i64_at(q->data, 0),
                .done = deepest_done, .user = q),
            c)))
        free(c);
}

static void held_by_depth(side *s) {
    static uint32_t place;
    bool named = s->rank != 0;
    for (uint32_t ms = 50; ms && !named; ms = more_time(ms)) {
        int64_t time = ms;
        const char *const limit = "raise workers (1) of that rank, or max_depth";
        cdp_call c = {0};
        if (!OK(cdp_rpc_call(s->rpc, CALL(.to = 1, F("deep"), BYTES(&time, 8)), &c))) break;
        named = strstr((const char *)c.data, limit) != NULL;
        if (!named && !more_time(ms)) T_TEXT(limit, (const char *)c.data);
        cdp_call_free(&c);
    }
    gather(&place); /* in this world only workers run functions */
}
static void held_by_depth_body(side *s) {
    if (how == HUB || how == TCP) held_by_depth(s);
}

TEST(a_late_call_of_a_function_at_max_depth_names_max_depth) {
    static const cdp_rpc_function held_functions[] = {{.name = "nothing", .func = f_nothing},
        {.name = "deep", .func = f_deep},
        {.name = "deepest", .func = f_deepest, .flags = CDP_RPC_LATER}};
    like.workers = 1;
    like.max_depth = 1;
    run_with(held_functions, 3, 2, held_by_depth_body);
}

/* A call to this rank itself, whose workers are busy. */
static void held_here(side *s) {
    static uint32_t place;
    const uint64_t until = test_until_ns(10000);
    cdp_call busy = {0}, c = {0};
    OK(cdp_rpc_start(s->rpc, CALL(.to = s->rank, F("busy")), &busy));
    while (cdp_rpc_stats_of(s->rpc).queued && test_now_ns() < until)
        test_sleep_ms(1);
    OK(cdp_rpc_start(s->rpc, CALL(.to = s->rank, F("nothing"), .timeout_ms = 50), &c));
    while (cdp_call_test(&c) == CDP_PENDING && test_now_ns() < until) /* a wait would run it */
        test_sleep_ms(1);
    T_EQ(CDP_ERR_TIMEOUT, c.status);
    T_EQ(CDP_RAN_NO, c.ran);
    T_TEXT("raise workers (1) of that rank", c.error.text);
    cdp_call_free(&c);
    OK(cdp_call_cancel(&busy));
    cdp_call_free(&busy);
    gather(&place);
}
static void held_here_body(side *s) {
    if (how == HUB || how == TCP) held_here(s);
}

TEST(a_late_call_to_oneself_names_the_limit) {
    static const cdp_rpc_function held_functions[] = {
        {.name = "nothing", .func = f_nothing}, {.name = "busy", .func = f_busy}};
    like.workers = 1;
    run_with(held_functions, 2, 2, held_here_body);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"no_room_until_the_deadline", no_room_until_the_deadline, 60},
        {"a_call_that_waits_for_its_turn_says_what_time_is_left",
            a_call_that_waits_for_its_turn_says_what_time_is_left, 60},
        {"time_goes_on_while_arguments_wait_for_memory",
            time_goes_on_while_arguments_wait_for_memory, 60},
        {"bytes_of_arguments_under_way_are_limited", bytes_of_arguments_under_way_are_limited, 60},
        {"calls_wait_until_there_is_room_for_their_bytes",
            calls_wait_until_there_is_room_for_their_bytes, 60},
        {"an_answer_without_memory", an_answer_without_memory, 60},
        {"a_rank_that_takes_no_messages_is_named", a_rank_that_takes_no_messages_is_named, 60},
        {"ranks_are_served_in_turn", ranks_are_served_in_turn, 60},
        {"a_late_call_names_the_limit_that_it_waited_for",
            a_late_call_names_the_limit_that_it_waited_for, 60},
        {"a_late_call_whose_arguments_wait_for_memory_names_max_queue_bytes",
            a_late_call_whose_arguments_wait_for_memory_names_max_queue_bytes, 60},
        {"a_late_call_of_a_function_at_max_depth_names_max_depth",
            a_late_call_of_a_function_at_max_depth_names_max_depth, 60},
        {"a_late_call_to_oneself_names_the_limit", a_late_call_to_oneself_names_the_limit, 60}};
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
