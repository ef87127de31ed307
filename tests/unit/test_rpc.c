/* test_rpc.c - remote calls and references: the scenarios of torch.distributed.rpc's own tests that
   mean something in C, and what is ours alone. Each runs as threads of this program over memory
   (with workers, without, and polled), over TCP, and over shared memory; at the end of each world
   every allocation was given back. */
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"

#include "cdp_rpc.h"

#include "rpc_sides.h"

#include <sys/wait.h>

/* ---- names and start ---- */

static void names(side *s) {
    char name[16];
    for (uint32_t r = 0; r < ranks; ++r) {
        snprintf(name, sizeof name, "rank%u", r);
        T_TEXT(name, cdp_rpc_name_of(s->rpc, r));
        T_EQ(r, cdp_rpc_rank_of(s->rpc, name));
        T(cdp_rpc_alive(s->rpc, r));
    }
    T_EQ(-1, cdp_rpc_rank_of(s->rpc, "nobody"));
    T(cdp_rpc_name_of(s->rpc, ranks) == NULL);
}
TEST(worker_id) {
    run(3, names);
}

static void duplicate(side *s) {
    cdp_rpc_desc d = desc_of(s);
    d.name = s->rank == 1 ? "other" : "twin";
    REFUSED(
        CDP_ERR_MISMATCH, "ranks 0 and 2 are both called \"twin\"", cdp_rpc_create(&d, &s->rpc));
    T(s->rpc == NULL);
    d.name = NULL;
    if (OK(cdp_rpc_create(&d, &s->rpc))) {
        T_EQ(5, call_i64(s, next_of(s), "add", 2, 3));
        OK(cdp_rpc_shutdown(s->rpc, 0));
    }
    cdp_rpc_destroy(s->rpc);
}
TEST(duplicate_name) {
    shut_by_body = true;
    run(3, duplicate);
}

static void invalid_names(side *s) {
    static const char *const bad[] = {"", "*", "a b", "x\ny"};
    char longest[129];
    cdp_rpc_desc d = desc_of(s);
    for (uint32_t i = 0; i < 4; ++i) {
        d.name = bad[i];
        REFUSED(CDP_ERR_INVALID, "is not made of 1 to 127 letters", cdp_rpc_create(&d, &s->rpc));
    }
    memset(longest, 'x', 128);
    longest[128] = 0;
    d.name = longest;
    T_EQ(CDP_ERR_INVALID, cdp_rpc_create(&d, &s->rpc));
    longest[127] = 0;
    longest[0] = (char)('a' + s->rank);
    if (OK(cdp_rpc_create(&d, &s->rpc))) OK(cdp_rpc_shutdown(s->rpc, 0));
    cdp_rpc_destroy(s->rpc);
}
TEST(invalid_name) {
    shut_by_body = true;
    run(2, invalid_names);
}

static void twice(side *s) {
    const cdp_rpc_desc d = desc_of(s);
    for (uint32_t i = 0; i < 3; ++i) {
        if (!OK(cdp_rpc_create(&d, &s->rpc))) return;
        OK(cdp_barrier(s->g));
        T_EQ(5, call_i64(s, next_of(s), "whoami", 0, 0) / 1000 + 5 - s->rank);
        OK(cdp_rpc_shutdown(s->rpc, 0));
        REFUSED(CDP_ERR_STATE, "shut down before", cdp_rpc_shutdown(s->rpc, 0));
        OK(cdp_barrier(s->g));
        cdp_rpc_destroy(s->rpc);
    }
}
TEST(init_rpc_twice) {
    shut_by_body = true;
    run(2, twice);
}

static void alone(side *s) {
    cdp_rref r;
    cdp_call c = {0};
    int64_t x[2] = {40, 0};
    T_EQ(5, call_i64(s, 0, "add", 2, 3));
    T_EQ(7, call_i64(s, 0, "add_in_worker", 3, 4));
    OK(cdp_rpc_remote(s->rpc, CALL(.to = 0, F("counter"), BYTES(x, 16)), &r));
    OK(cdp_rref_to_here(r, 0, &c));
    T_EQ(40, i64_at(c.data, 0));
    cdp_call_free(&c);
    cdp_rref_drop(r);
}
TEST(world_size_one) {
    run(1, alone);
}

/* ---- calls ---- */

static void adds(side *s) {
    cdp_call c = {0};
    int64_t x = 8;
    for (uint32_t to = 0; to < ranks; ++to) { /* this rank, too */
        T_EQ(5, call_i64(s, to, "add", 2, 3));
        T_EQ(-1, call_i64(s, to, "add_in_worker", 2, -3));
        T_EQ(s->rank * 1000 + to, call_i64(s, to, "whoami", 0, 0));
        for (int i = 0; i < 20; ++i)
            T_EQ(i + 1, call_i64(s, to, "add", i, 1));
    }
    OK(cdp_rpc_call(s->rpc,
        CALL(.to = (uint32_t)cdp_rpc_rank_of(s->rpc, "rank1"), F("echo"), BYTES(&x, 8)), &c));
    T_EQ(8, i64_at(c.data, 0));
    cdp_call_free(&c);
    OK(cdp_rpc_call(s->rpc, CALL(.to = next_of(s), F("nothing")), &c));
    T_EQ(0, c.bytes); /* no return result */
    cdp_call_free(&c);
}
TEST(add) {
    run(3, adds);
}

static void many(side *s) {
    enum {
        N = 300
    };
    static cdp_call calls[RANKS_MAX][N];
    cdp_call *list[N];
    int64_t x[N];
    memset(calls[s->rank], 0, sizeof calls[0]);
    for (uint32_t i = 0; i < N; ++i) { /* more than max_calls: the rest waits */
        x[i] = i;
        list[i] = &calls[s->rank][i];
        OK(cdp_rpc_start(s->rpc,
            CALL(.to = next_of(s), F(i % 2 ? "add" : "add_in_worker"), BYTES(&x[i], 8)), list[i]));
    }
    OK(cdp_call_wait_all(list, N));
    for (uint32_t i = 0; i < N; ++i) {
        T_EQ(i, i64_at(list[i]->data, 0));
        T_EQ(CDP_OK, cdp_call_wait(list[i])); /* again */
        cdp_call_free(list[i]);
    }
}
TEST(multi_async_call) {
    like.max_calls = 64;
    run(3, many);
}

static void lengths(side *s) {
    static const uint64_t sizes[] = {
        1, 8, 31, 32, 33, 257, 4096, 65535, 65536, 65537, 300000, 1048576, 5000000};
    for (uint32_t i = 0; i < sizeof sizes / sizeof *sizes; ++i) {
        for (uint32_t inl = 0; inl < 2; ++inl) {
            uint8_t *data = (uint8_t *)malloc(sizes[i]);
            cdp_call c = {0};
            for (uint64_t k = 0; k < sizes[i]; ++k)
                data[k] = (uint8_t)(k * 13 + s->rank);
            if (OK(cdp_rpc_call(
                    s->rpc, CALL(.to = next_of(s), F("echo"), BYTES(data, sizes[i])), &c))) {
                T_EQ(sizes[i], c.bytes);
                T(!memcmp(c.data, data, sizes[i]));
                T_EQ(0, (uintptr_t)c.data % 8);
            }
            cdp_call_free(&c);
            free(data);
        }
    }
}
TEST(arguments_of_all_lengths) {
    run(2, lengths);
}
/* What does not fit the channel's copies is offered. */
TEST(arguments_of_all_lengths_in_a_narrow_window) {
    window = 4096;
    run(2, lengths);
    window = 65536;
    run(2, lengths);
    window = 0;
}

static void errors(side *s) {
    static const char escaped[] = "line\n\"quoted\" \\x41 100%s";
    cdp_call c = {0};
    T_EQ(CDP_ERR_REMOTE,
        cdp_rpc_call(s->rpc, CALL(.to = next_of(s), F("fail"), BYTES((char *)escaped, 24)), &c));
    T_EQ(42, c.code);
    T_EQ(CDP_RAN_YES, c.ran);
    T_TEXT("fail on rank", c.error.text);
    T_TEXT("failed with code 42: line?\"quoted\" \\x41 100%s", c.error.text);
    T_EQ(next_of(s), c.error.peer);
    T_EQ(CDP_ERR_REMOTE, cdp_call_wait(&c)); /* future_wait_twice */
    T_TEXT("code 42", cdp_last_error()->text);
    cdp_call_free(&c);
    T_EQ(CDP_ERR_UNSUPPORTED, cdp_rpc_call(s->rpc, CALL(.to = next_of(s), F("no_such")), &c));
    T_TEXT("no function of this name", c.error.text);
    T_EQ(CDP_RAN_NO, c.ran);
    cdp_call_free(&c);
    T_EQ(CDP_ERR_INVALID,
        cdp_rpc_call(s->rpc, CALL(.to = next_of(s), F("tiny"), BYTES((char *)escaped, 9)), &c));
    T_TEXT("max_bytes of the function is 8", c.error.text);
    T_EQ(CDP_RAN_NO, c.ran);
    cdp_call_free(&c);
    T_EQ(s->rank ? CDP_ERR_UNSUPPORTED : CDP_OK,
        cdp_rpc_call(s->rpc, CALL(.to = next_of(s), F("only_rank_0")), &c));
    if (s->rank) T_TEXT("may not call it (allow)", c.error.text);
    cdp_call_free(&c);
    OK(cdp_rpc_call(s->rpc, CALL(.to = next_of(s), F("twice")), &c));
    cdp_call_free(&c);
    OK(cdp_rpc_call(s->rpc, CALL(.to = next_of(s), F("waits_inline")), &c));
    cdp_call_free(&c);
}
TEST(py_function_exception) {
    run(2, errors);
}

static void mistakes(side *s) {
    cdp_call c = {0};
    cdp_rref r = {0};
    cdp_rref_info info;
    cdp_value v = {0};
    uint32_t which;
    uint64_t big = 8;
    cdp_call *one = &c;
    REFUSED(CDP_ERR_INVALID, " is NULL", cdp_rpc_start(NULL, NULL, NULL));
    REFUSED(CDP_ERR_INVALID, "to is 9; the group has ranks 0 to 1",
        cdp_rpc_call(s->rpc, CALL(.to = 9, F("add")), &c));
    REFUSED(CDP_ERR_INVALID, "set function of the desc", cdp_rpc_call(s->rpc, CALL(.to = 0), &c));
    REFUSED(CDP_ERR_INVALID, "args.iov[0] has no memory",
        cdp_rpc_call(s->rpc, CALL(.to = 0, F("add"), BYTES(NULL, 8)), &c));
    REFUSED(CDP_ERR_INVALID, "max_message_bytes of cdp_rpc_desc is 1000; send less",
        cdp_rpc_call(s->rpc, CALL(.to = 0, F("add"), BYTES(&big, 1001)), &c));
    REFUSED(CDP_ERR_INVALID, " is NULL", cdp_rref_create(NULL, &v, NULL, &r));
    REFUSED(CDP_ERR_INVALID, " is NULL", cdp_rref_create(s->rpc, NULL, NULL, &r));
    REFUSED(CDP_ERR_INVALID, " is NULL", cdp_rref_create(s->rpc, &v, NULL, NULL));
    REFUSED(CDP_ERR_INVALID, "was not started", cdp_call_wait(&c));
    REFUSED(CDP_ERR_INVALID, "was not started", cdp_call_test(&c));
    REFUSED(CDP_ERR_INVALID, "was not started", cdp_call_cancel(&c));
    REFUSED(CDP_ERR_INVALID, "was not started", cdp_call_wait_any(&one, 1, 0, &which));
    REFUSED(CDP_ERR_INVALID, " is NULL", cdp_rref_to_here(r, 0, &c));
    REFUSED(CDP_ERR_INVALID, " is NULL", cdp_rref_confirmed(r, 0));
    REFUSED(CDP_ERR_INVALID, " is NULL", cdp_rref_info_of(r, &info));
    REFUSED(CDP_ERR_INVALID, " is NULL", cdp_rpc_fail(NULL, 0, NULL));
    T(!cdp_rpc_cancelled(NULL));
    cdp_call_free(&c);
    cdp_call_free(NULL);
    cdp_rref_drop(r);
    cdp_rref_keep(r);
    cdp_rpc_destroy(NULL);
    OK(cdp_rpc_start(s->rpc, CALL(.to = next_of(s), F("whoami")), &c));
    REFUSED(CDP_ERR_STATE, "is under way; use another one",
        cdp_rpc_start(s->rpc, CALL(.to = next_of(s), F("nothing")), &c));
    OK(cdp_call_wait(&c));
    REFUSED(CDP_ERR_STATE, "give it to cdp_call_free()",
        cdp_rpc_start(s->rpc, CALL(.to = next_of(s), F("nothing")), &c));
    REFUSED(CDP_ERR_STATE, "has ended before", cdp_call_cancel(&c));
    cdp_call_free(&c);
    OK(cdp_rref_create(s->rpc, &v, "mine", &r));
    REFUSED(CDP_ERR_INVALID, "a one-way call takes no references",
        cdp_rpc_start(s->rpc, CALL(.to = next_of(s), F("nothing"), .one_way = true, RREF(r)), &c));
    REFUSED(CDP_ERR_INVALID, "has type 0, not 3", cdp_rref_local(r, 3, 0, &v));
    OK(cdp_rref_info_of(r, &info));
    T(info.is_owner && info.handles == 1 && info.forks == 0);
    T_TEXT("mine", info.label);
    cdp_rref_drop(r);
    REFUSED(CDP_ERR_STATE, "was dropped before", cdp_rref_info_of(r, &info));
    REFUSED(CDP_ERR_STATE, "was dropped before", cdp_rref_to_here(r, 0, &c));
    REFUSED(CDP_ERR_INVALID, "done, one_way and in_order",
        cdp_rpc_remote(s->rpc, CALL(.to = 0, F("add"), .one_way = true), &r));
    REFUSED(CDP_ERR_INVALID, " is NULL", cdp_call_wait_any(NULL, 0, 0, &which));
    r = (cdp_rref){0};
    REFUSED(CDP_ERR_INVALID, "args.rrefs is NULL",
        cdp_rpc_call(s->rpc, CALL(.to = 0, F("add"), .args = {.rref_count = 1}), &c));
}
TEST(every_mistake_gets_a_sentence) {
    like.max_message_bytes = 1000;
    run(2, mistakes);
}

/* ---- waiting and callbacks ---- */

static void waits(side *s) {
    cdp_call c[3] = {{0}};
    cdp_call *list[3] = {&c[0], &c[1], &c[2]};
    uint32_t which = 9;
    OK(cdp_rpc_start(s->rpc, CALL(.to = next_of(s), F("keep")), &c[0]));
    T_EQ(CDP_PENDING, cdp_call_test(&c[0]));
    T_EQ(CDP_PENDING, cdp_call_wait_any(list, 1, 5, &which));
    T_EQ(CDP_PENDING, cdp_call_wait_for(&c[0], 5));
    OK(cdp_rpc_start(s->rpc, CALL(.to = next_of(s), F("fail")), &c[1]));
    T_EQ(CDP_ERR_REMOTE, cdp_call_wait_any(list, 2, 10000, &which));
    T_EQ(1, which);
    OK(cdp_call_cancel(&c[0]));
    REFUSED(CDP_ERR_ABORTED, "cancelled by cdp_call_cancel()", cdp_call_wait(&c[0]));
    T_TEXT("cancelled", cdp_last_error()->text);
    T_EQ(CDP_ERR_REMOTE, cdp_call_wait(&c[1]));
    OK(cdp_rpc_call(s->rpc, CALL(.to = next_of(s), F("nothing")), &c[2]));
    T_EQ(CDP_ERR_ABORTED, cdp_call_wait_all(list, 3)); /* the first failure of the list */
    for (uint32_t i = 0; i < 3; ++i)
        cdp_call_free(&c[i]);
    const uint64_t until = test_until_ns(10000);
    while (!counted_of(&s->kept_count) && test_now_ns() < until)
        (void)!cdp_rpc_serve(s->rpc, 1);
    while (!cdp_rpc_cancelled(s->kept[0]) && test_now_ns() < until)
        (void)!cdp_rpc_serve(s->rpc, 1);
    OK(cdp_rpc_reply(s->kept[0], NULL)); /* nobody waits for it any more */
}
TEST(wait_all_exit_early) {
    run(2, waits);
}

typedef struct follow {
    side *s;
    cdp_call c;
    uint32_t steps;
    int64_t sum;
} follow;

static void follow_done(void *user, cdp_call *done) {
    follow *f = (follow *)user;
    cdp_call inner = {0};
    int64_t ms = 20000;
    T_EQ(CDP_OK, done->status);
    REFUSED(CDP_ERR_STATE, "must not wait",
        cdp_rpc_call(f->s->rpc, CALL(.to = f->s->rank, F("sleep"), BYTES(&ms, 8)), &inner));
    T_EQ(CDP_RAN_NO, inner.ran); /* nothing has started */
    cdp_call_free(&inner);
    f->sum = i64_at(done->data, 0);
    count(&f->steps);
}

static void callbacks(side *s) {
    for (uint32_t i = 0; i < 20; ++i) {
        follow f = {.s = s};
        int64_t x[2] = {i, 1};
        OK(cdp_rpc_start(s->rpc,
            CALL(.to = (s->rank + i) % ranks, F(i % 3 ? "add" : "add_in_worker"), BYTES(x, 16),
                .done = follow_done, .user = &f),
            &f.c));
        OK(cdp_call_wait(&f.c));
        T_EQ(1, f.steps); /* the wait returns after it */
        T_EQ(i + 1, f.sum);
        cdp_call_free(&f.c);
    }
}
TEST(callback_simple) {
    run(2, callbacks);
}

/* ---- reply later ---- */

static void batches(side *s) {
    cdp_call c[8] = {{0}};
    int64_t want = 8 * ranks;
    for (uint32_t round = 0; round < 3; ++round) {
        for (uint32_t i = 0; i < 8; ++i)
            OK(cdp_rpc_start(s->rpc, CALL(.to = 0, F("batch"), BYTES(&want, 8)), &c[i]));
        for (uint32_t i = 0; i < 8; ++i) {
            OK(cdp_call_wait(&c[i]));
            T_EQ(want, i64_at(c[i].data, 0));
            cdp_call_free(&c[i]);
        }
        OK(cdp_rpc_call(s->rpc, CALL(.to = 0, F("nothing")), &c[0]));
        cdp_call_free(&c[0]);
    }
}
TEST(async_function_multi_fanout) {
    run(3, batches);
}

static void nested(side *s) {
    T_EQ(12, call_i64(s, next_of(s), "chain", 12, 0));
}
TEST(nested_rpc) { /* one worker per rank, and all ranks call each other: waits run functions */
    like.workers = 1;
    run(3, nested);
}

/* ---- time ---- */

static void timeouts(side *s) {
    int64_t ms = 20000, two[2] = {0, 0}; /* it ends when it is cancelled */
    uint64_t from = test_now_ns();
    cdp_call c = {0};
    T_EQ(CDP_ERR_TIMEOUT,
        cdp_rpc_call(
            s->rpc, CALL(.to = next_of(s), F("sleep"), BYTES(&ms, 8), .timeout_ms = 30), &c));
    /* the other rank may refuse what it read late */
    T(strstr(c.error.text, "no answer within 30 ms")
        || strstr(c.error.text, "its time was over before it ran"));
    if (how == HUB || how >= TCP) T_WITHIN(83, test_now_ns() - from);
    T(c.ran != CDP_RAN_YES);
    cdp_call_free(&c);
    /* what is left travels, and shrinks */
    OK(cdp_rpc_call(
        s->rpc, CALL(.to = next_of(s), F("time_left"), BYTES(&ms, 8), .timeout_ms = 7000), &c));
    if (c.status == CDP_OK) {
        two[0] = i64_at(c.data, 0);
        two[1] = i64_at(c.data, 1);
        T(two[0] > 1000 && two[0] <= 7000);
        T(two[1] > 1000 && two[1] <= two[0] + 1);
    }
    cdp_call_free(&c);
    OK(cdp_rpc_call(
        s->rpc, CALL(.to = next_of(s), F("time_left"), BYTES(two, 16), .timeout_ms = 7000), &c));
    if (c.status == CDP_OK) T(i64_at(c.data, 1) > 40000); /* detached: the default */
    cdp_call_free(&c);
}
TEST(rpc_timeouts) {
    run(2, timeouts);
}

/* A request whose time is over before it is its turn does not run. */
static void late(side *s) {
    int64_t ms = 60000, none = 0;
    cdp_call first = {0}, second = {0};
    const uint32_t before = counted_of(&sides[1].ran);
    if (s->rank == 0) {
        OK(cdp_rpc_start(s->rpc, CALL(.to = 1, F("one_sleep"), BYTES(&ms, 8)), &first));
        /* long enough for the first to begin, also on a busy machine */
        T_EQ(CDP_ERR_TIMEOUT,
            cdp_rpc_call(s->rpc, CALL(.to = 1, F("one_sleep"), BYTES(&none, 8), .timeout_ms = 150),
                &second));
        OK(cdp_call_cancel(&first)); /* it has slept until now */
        cdp_call_free(&first);
        cdp_call_free(&second);
        /* the third runs when the second was passed over */
        OK(cdp_rpc_call(s->rpc, CALL(.to = 1, F("one_sleep"), BYTES(&none, 8)), &first));
        cdp_call_free(&first);
        T_EQ(before + 2, counted_of(&sides[1].ran));
    }
}
TEST(a_late_request_does_not_run) {
    run(2, late);
}

static void cancels(side *s) {
    int64_t ms = 20000, none = 0;
    cdp_call first = {0}, second = {0};
    if (s->rank == 0) {
        OK(cdp_rpc_start(s->rpc, CALL(.to = 1, F("one_sleep"), BYTES(&ms, 8)), &first));
        OK(cdp_rpc_start(s->rpc, CALL(.to = 1, F("one_sleep"), BYTES(&none, 8)), &second));
        test_sleep_ms(20);
        OK(cdp_call_cancel(&second));
        OK(cdp_call_cancel(&first));
        T_EQ(CDP_ERR_ABORTED, cdp_call_test(&first));
        T_EQ(CDP_ERR_ABORTED, cdp_call_test(&second));
        cdp_call_free(&first);
        cdp_call_free(&second);
        OK(cdp_rpc_call(s->rpc, CALL(.to = 1, F("nothing")), &first));
        cdp_call_free(&first);
    }
}
TEST(cancelled_calls) {
    const uint64_t from = test_now_ns();
    run(2, cancels);
    T_WITHIN(5000, test_now_ns() - from);
}

/* ---- limits ---- */

static void one_way(side *s) {
    cdp_call c = {0};
    for (uint32_t i = 0; i < 100; ++i) {
        OK(cdp_rpc_call(s->rpc, CALL(.to = next_of(s), F("nothing"), .one_way = true), &c));
        T_EQ(CDP_RAN_UNKNOWN, c.ran);
        cdp_call_free(&c);
    }
    OK(cdp_rpc_call(s->rpc, CALL(.to = next_of(s), F("no_such"), .one_way = true), &c));
    cdp_call_free(&c); /* nobody hears of it */
    const uint64_t until = test_until_ns(10000);
    while (counted_of(&s->ran) < 100 && test_now_ns() < until)
        (void)!cdp_rpc_serve(s->rpc, 1);
    T_EQ(100, counted_of(&s->ran));
}
TEST(one_way_calls) {
    like.max_calls = 16;
    run(2, one_way);
}

static void busy(side *s) {
    int64_t ms = 50;
    cdp_call c[5] = {{0}};
    if (s->rank == 0) {
        for (uint32_t i = 0; i < 4; ++i)
            OK(cdp_rpc_start(s->rpc, CALL(.to = 1, F("sleep"), BYTES(&ms, 8)), &c[i]));
        REFUSED(CDP_ERR_BUSY, "4 calls to rank 1 (rank1) are under way",
            cdp_rpc_start(s->rpc, CALL(.to = 1, F("nothing")), &c[4]));
        for (uint32_t i = 0; i < 4; ++i) {
            OK(cdp_call_wait(&c[i]));
            cdp_call_free(&c[i]);
        }
        OK(cdp_rpc_call(s->rpc, CALL(.to = 1, F("nothing")), &c[4]));
        cdp_call_free(&c[4]);
    }
}
TEST(a_full_queue_is_busy) {
    like.fail_when_full = true;
    like.max_queue = 4;
    run(2, busy);
}

/* Long arguments for which the receiver has no room yet wait at their sender. */
static void floods(side *s) {
    enum {
        N = 12,
        LONG = 1000000
    };
    static uint8_t data[RANKS_MAX][LONG];
    cdp_call c[N] = {{0}};
    memset(data[s->rank], (int)s->rank + 1, LONG);
    for (uint32_t i = 0; i < N; ++i)
        OK(cdp_rpc_start(
            s->rpc, CALL(.to = next_of(s), F("echo"), BYTES(data[s->rank], LONG)), &c[i]));
    for (uint32_t i = 0; i < N; ++i) {
        OK(cdp_call_wait(&c[i]));
        T(c[i].bytes == LONG && !memcmp(c[i].data, data[s->rank], LONG));
        cdp_call_free(&c[i]);
    }
}
TEST(long_arguments_wait_for_memory) {
    like.max_queue_bytes = 1500000;
    run(2, floods);
}

/* ---- shutdown and loss ---- */

static void uneven(side *s) {
    int64_t ms = 2;
    cdp_call c[30] = {{0}};
    if (s->rank) return; /* in shutdown already */
    for (uint32_t to = 1; to < 3; ++to) {
        for (uint32_t i = 0; i < 30; ++i)
            OK(cdp_rpc_start(s->rpc, CALL(.to = to, F("sleep"), BYTES(&ms, 8)), &c[i]));
        for (uint32_t i = 0; i < 30; ++i) {
            OK(cdp_call_wait(&c[i]));
            cdp_call_free(&c[i]);
        }
    }
}
TEST(graceful_shutdown_with_uneven_workload) {
    run(3, uneven);
}

static cdp_call last_calls[RANKS_MAX];
static void chains_at_the_end(side *s) {
    static int64_t ttl = 14;
    memset(&last_calls[s->rank], 0, sizeof last_calls[0]);
    OK(cdp_rpc_start(
        s->rpc, CALL(.to = next_of(s), F("chain"), BYTES(&ttl, 8)), &last_calls[s->rank]));
    OK(cdp_rpc_shutdown(s->rpc, 0));
    T_EQ(CDP_OK, last_calls[s->rank].status);
    if (last_calls[s->rank].status == CDP_OK) T_EQ(14, i64_at(last_calls[s->rank].data, 0));
    cdp_call_free(&last_calls[s->rank]);
    OK(cdp_rpc_serve(s->rpc, 10)); /* there is nothing to serve any more */
    REFUSED(CDP_ERR_STATE, "was shut down",
        cdp_rpc_start(s->rpc, CALL(.to = 0, F("add")), &last_calls[s->rank]));
    OK(cdp_barrier(s->g));
    cdp_rpc_destroy(s->rpc);
}
static void nested_shutdown(side *s) {
    open_then(s, chains_at_the_end);
}
TEST(multi_layer_nested_async_rpc) {
    shut_by_body = true;
    run(3, nested_shutdown);
}

/* A request that is never answered: shutdown ends, and names it, also on a rank that has nothing to
   do with it. */
static void never_answered(side *s) {
    static uint32_t ended, gone;
    cdp_call c = {0};
    if (s->rank == 0) OK(cdp_rpc_start(s->rpc, CALL(.to = 1, F("keep")), &c));
    if (s->rank == 1) {
        const uint64_t until = test_until_ns(10000);
        while (!counted_of(&s->kept_count) && test_now_ns() < until)
            (void)!cdp_rpc_serve(s->rpc, 5);
    }
    const uint64_t from = test_now_ns();
    T_EQ(CDP_ERR_TIMEOUT, cdp_rpc_shutdown(s->rpc, 60));
    T_TEXT("on rank 1 (rank1), keep, called by rank 0 (rank0), request ", cdp_last_error()->text);
    T_TEXT(", was kept and never replied to", cdp_last_error()->text);
    T_EQ(1, cdp_last_error()->peer);
    T_WITHIN(160, test_now_ns() - from);
    const uint32_t came = __atomic_fetch_add(&ended, 1, __ATOMIC_SEQ_CST);
    /* a rank that leaves is lost to the other one: rank 1 stays until rank 0 is gone */
    const uint64_t until = test_until_ns(20000);
    while (test_now_ns() < until
        && (counted_of(&ended) < (came / 3 + 1) * 3
            || (s->rank == 1 && counted_of(&gone) < came / 3 + 1)))
        test_sleep_ms(1);
    cdp_rpc_destroy(s->rpc);
    if (s->rank == 0) count(&gone);
    if (s->rank == 0) {
        T_EQ(CDP_ERR_STATE, c.status);
        T_EQ(CDP_RAN_UNKNOWN, c.ran);
    } else if (s->rank == 1 && s->kept_count) {
        T(cdp_rpc_cancelled(s->kept[0]));
        OK(cdp_rpc_reply(s->kept[0], NULL)); /* the request outlives the rpc */
    }
}
static void shutdown_blames(side *s) {
    open_then(s, never_answered);
}
TEST(shutdown_errors) {
    shut_by_body = true;
    run(3, shutdown_blames);
}

/* A message that was sent and never comes: shutdown ends by its deadline, and sleeps until then
   instead of adding up all the time. */
static void a_message_is_missing(side *s) {
    const uint64_t from = test_now_ns();
    static uint32_t place;
    if (s->rank == 0) {
        cdp_lock_acquire(&s->rpc->lock);
        ++s->rpc->peers[1].sent;
        cdp_lock_release(&s->rpc->lock);
    }
    T_EQ(CDP_ERR_TIMEOUT, cdp_rpc_shutdown(s->rpc, 400));
    T_WITHIN(400, test_now_ns() - from);
    T(s->rpc->sums->queue.issued > 4);
    T(s->rpc->sums->queue.issued < 60);
    gather(&place);
    cdp_rpc_destroy(s->rpc);
}
static void missing_body(side *s) {
    open_then(s, a_message_is_missing);
}
TEST(a_message_that_never_comes_lets_shutdown_sleep_and_end) {
    shut_by_body = true;
    run(3, missing_body);
}

/* Two ranks have lost each other, and messages on that link never came: the shutdown of all three
   is still a good one, as soon as both know. */
static void a_link_is_lost(side *s) {
    const uint32_t late = TEST_LATE;
    static uint32_t place;
    if (s->rank == 0) {
        cdp_lock_acquire(&s->rpc->lock);
        s->rpc->peers[2].sent += 3;
        cdp_lock_release(&s->rpc->lock);
        OK(cdp_channel_drop(s->rpc->channel, 2, "for the test"));
    }
    const uint64_t from = test_now_ns();
    OK(cdp_rpc_shutdown(s->rpc, 5000 * late));
    T(test_now_ns() - from < 4000000000ull * late);
    T_EQ(s->rank != 1, !cdp_rpc_alive(s->rpc, 2 - s->rank));
    gather(&place);
    cdp_rpc_destroy(s->rpc);
}
static void lost_link_body(side *s) {
    open_then(s, a_link_is_lost);
}
TEST(messages_of_a_lost_link_are_not_awaited) {
    shut_by_body = true;
    run(3, lost_link_body);
}

/* A rank ends its rpc while several requests wait in its queue: none of them is left in memory,
   nor is the rpc. */
static void a_full_queue(side *s) {
    static uint32_t place;
    cdp_call c[4] = {{0}};
    gather(&place);
    if (s->rank == 0) {
        for (uint32_t i = 0; i < 4; ++i)
            OK(cdp_rpc_start(s->rpc, CALL(.to = 1, F("nothing")), &c[i]));
        const uint64_t until = test_until_ns(how == HUB_NO_WORKERS ? 5000 : 25);
        while ((how != HUB_NO_WORKERS || cdp_rpc_stats_of(sides[1].rpc).queued < 4)
            && cdp_call_test(&c[3]) == CDP_PENDING && test_now_ns() < until)
            (void)!cdp_call_wait_for(&c[3], 1);
    }
    gather(&place);
    if (s->rank == 1 && how == HUB_NO_WORKERS) T_EQ(4, cdp_rpc_stats_of(s->rpc).queued);
    if (s->rank == 1) cdp_rpc_destroy(s->rpc);
    gather(&place);
    if (s->rank == 0) cdp_rpc_destroy(s->rpc);
    for (uint32_t i = 0; i < 4; ++i)
        cdp_call_free(&c[i]);
}
static void full_queue_body(side *s) {
    open_then(s, a_full_queue);
}
TEST(destroying_frees_requests_that_wait) {
    shut_by_body = true;
    run(2, full_queue_body);
}

/* Without workers: rank 0 waits some time for a rank that does not answer, and meanwhile runs a
   function of rank 2 that waits for the same rank. Its wait ends in time all the same. Rank 1
   serves nobody until all have come to the end. */
static void a_helping_wait(side *s) {
    static uint32_t place, waits;
    const uint32_t late = TEST_SLACK;
    cdp_call c = {0};
    gather(&place);
    if (s->rank == 0) {
        count(&waits);
        const uint64_t from = test_now_ns();
        T_EQ(CDP_ERR_TIMEOUT,
            cdp_rpc_call(s->rpc, CALL(.to = 1, F("nothing"), .timeout_ms = 75 * late), &c));
        T_WITHIN(125, test_now_ns() - from);
    }
    if (s->rank == 2) {
        const uint64_t until = test_until_ns(10000);
        while (!counted_of(&waits) && test_now_ns() < until)
            test_sleep_ms(1);
        T_EQ(CDP_ERR_REMOTE,
            cdp_rpc_call(s->rpc, CALL(.to = 0, F("asks_rank_1"), .timeout_ms = 200 * late), &c));
    }
    cdp_call_free(&c);
    gather(&place);
    cdp_rpc_destroy(s->rpc);
}
static void helping_body(side *s) {
    if (how == HUB_NO_WORKERS) open_then(s, a_helping_wait);
}
TEST(a_wait_ends_in_time_whatever_it_helps) {
    shut_by_body = true;
    run(3, helping_body);
}

/* One rank leaves without shutdown, while the others have calls and references there. */
static void one_leaves(side *s) {
    int64_t x[2] = {11, 0}, ms = 60000;
    cdp_call c = {0}, held = {0};
    cdp_rref r = {0}, other = {0};
    cdp_rpc_stats st;
    static uint32_t place;
    OK(cdp_rpc_remote(s->rpc, CALL(.to = 2, F("counter"), BYTES(x, 16)), &r));
    OK(cdp_rpc_remote(s->rpc, CALL(.to = 0, F("counter"), BYTES(x, 16)), &other));
    OK(cdp_rref_to_here(r, 0, &c));
    cdp_call_free(&c);
    OK(cdp_rref_confirmed(other, 10000));
    OK(cdp_rpc_call(s->rpc, CALL(.to = 1, F("sum_of"), RREF(r)), &c));
    cdp_call_free(&c);
    if (s->rank != 2) OK(cdp_rpc_start(s->rpc, CALL(.to = 2, F("keep"), BYTES(&ms, 8)), &held));
    OK(cdp_rpc_call(s->rpc, CALL(.to = s->rank, F("nothing")), &c));
    cdp_call_free(&c);
    meet(s, &place);
    if (s->rank == 2) {
        const uint64_t until = test_until_ns(10000);
        while (counted_of(&s->kept_count) < 2 && test_now_ns() < until)
            (void)!cdp_rpc_serve(s->rpc, 5);
        cdp_rpc_destroy(s->rpc);
        for (uint32_t i = 0; i < s->kept_count; ++i)
            OK(cdp_rpc_fail(s->kept[i], 1, "too late"));
        T_EQ(s->values.made, s->values.destroyed);
    } else {
        T_EQ(CDP_ERR_PEER_LOST, cdp_call_wait(&held));
        T_EQ(CDP_RAN_UNKNOWN, held.ran);
        T_EQ(2, cdp_last_error()->peer);
        T_EQ(CDP_ERR_PEER_LOST, cdp_rref_to_here(r, 0, &c));
        T_EQ(CDP_RAN_NO, c.ran);
        cdp_call_free(&c);
        T_EQ(CDP_ERR_PEER_LOST, cdp_rref_confirmed(r, 0));
        T_EQ(CDP_ERR_PEER_LOST, cdp_rpc_call(s->rpc, CALL(.to = 2, F("add")), &c));
        cdp_call_free(&c);
        T(!cdp_rpc_alive(s->rpc, 2));
        const uint64_t until = test_until_ns(10000);
        while (!counted_of(&s->lost) && test_now_ns() < until)
            (void)!cdp_rpc_serve(s->rpc, 1);
        T_EQ(2, s->lost_rank);
        /* the others go on: calls, long ones, and values */
        T_EQ(9, call_i64(s, 1 - s->rank, "add", 4, 5));
        static uint8_t data[RANKS_MAX][300000];
        OK(cdp_rpc_call(
            s->rpc, CALL(.to = 1 - s->rank, F("echo"), BYTES(data[s->rank], 300000)), &c));
        T_EQ(300000, c.bytes);
        cdp_call_free(&c);
        OK(cdp_rref_to_here(other, 0, &c));
        T_EQ(11, i64_at(c.data, 0));
        cdp_call_free(&c);
    }
    cdp_call_free(&held);
    if (s->rank == 2) return;
    cdp_rref_drop(r);
    cdp_rref_drop(other);
    OK(cdp_rpc_call(s->rpc, CALL(.to = 1 - s->rank, F("nothing")), &c));
    cdp_call_free(&c);
    const uint64_t until = test_until_ns(10000);
    do { /* what rank 2 held is free */
        (void)!cdp_rpc_serve(s->rpc, 5);
        st = cdp_rpc_stats_of(s->rpc);
    } while ((st.owners || st.forks || st.users) && test_now_ns() < until);
    T_EQ(0, st.owners + st.forks + st.users + st.holds);
    T_EQ(CDP_ERR_PEER_LOST, cdp_rpc_shutdown(s->rpc, 5000 * TEST_LATE));
    T_EQ(2, cdp_last_error()->peer);
    cdp_rpc_destroy(s->rpc);
    T_EQ(s->values.made, s->values.destroyed);
}
static void local_shutdown_body(side *s) {
    open_then(s, one_leaves);
}
TEST(local_shutdown) {
    shut_by_body = true;
    run(3, local_shutdown_body);
}

/* ---- references ---- */

static void to_here(side *s) {
    int64_t x[2] = {30, 20};
    cdp_rref r[5];
    cdp_call c = {0};
    for (uint32_t i = 0; i < 5; ++i) {
        x[0] = 30 + i;
        OK(cdp_rpc_remote(s->rpc,
            CALL(.to = (s->rank + i) % ranks, F("counter"), BYTES(x, 16), .label = "c"), &r[i]));
    }
    for (uint32_t i = 0; i < 5; ++i) {
        OK(cdp_rref_to_here(r[i], 0, &c));
        T_EQ(30 + i, i64_at(c.data, 0));
        cdp_call_free(&c);
        x[0] = 100; /* call_method_on_rref */
        OK(cdp_rpc_call(s->rpc, CALL(.on = r[i], F("count"), BYTES(x, 8)), &c));
        T_EQ(130 + i, i64_at(c.data, 0));
        cdp_call_free(&c);
        OK(cdp_rref_confirmed(r[i], 0));
        cdp_rref_drop(r[i]);
    }
}
TEST(builtin_remote_ret) {
    run(3, to_here);
}

static void fetches(side *s) {
    enum {
        N = 20
    };
    cdp_rref r;
    cdp_call c[N] = {{0}};
    int64_t x[2] = {6, 10};
    OK(cdp_rpc_remote(s->rpc, CALL(.to = next_of(s), F("counter"), BYTES(x, 16)), &r));
    for (uint32_t i = 0; i < N; ++i) /* before it is there */
        OK(cdp_rref_fetch(r, 0, &c[i]));
    for (uint32_t i = 0; i < N; ++i) {
        OK(cdp_call_wait(&c[i]));
        T_EQ(6, i64_at(c[i].data, 0));
        cdp_call_free(&c[i]);
    }
    cdp_rref_drop(r);
}
TEST(rref_get_future) {
    run(2, fetches);
}

/* A rank that sends nonsense loses the rank that it sent it to, and nobody else. */
static void one_lies(side *s) {
    static const cdp_channel_message lies[] = {{0, CDP__RPC_REPLY, 0, 77, 0, NULL, 0, 0},
        {0, 99, 0, 0, 0, NULL, 0, 0}, {0, CDP__RPC_DELETE, 0, 5, 6, NULL, 0, 0},
        {0, CDP__RPC_ACCEPT, 0, 5, 6, NULL, 0, 0}, {0, CDP__RPC_CALL | 2u << 8, 0, 1, 1, "x", 1, 0},
        {0, CDP__RPC_CALL | 40u << 16, 0, 1, 1, NULL, 0, 0}};
    static uint32_t place, lie;
    meet(s, &place);
    if (s->rank == 2) {
        OK(cdp_channel_send(s->rpc->channel, &lies[lie++ % (sizeof lies / sizeof *lies)]));
    }
    const uint64_t until = test_until_ns(10000);
    while (s->rank != 1 && !counted_of(&s->lost) && test_now_ns() < until)
        (void)!cdp_rpc_serve(s->rpc, 1);
    T_EQ(s->rank != 1, counted_of(&s->lost));
    if (s->rank != 1) T_EQ(2 - s->rank, s->lost_rank);
    T_EQ(7, call_i64(s, 1, "add", 3, 4)); /* all still have rank 1 */
    T_EQ(8, call_i64(s, 1, "add_in_worker", 3, 5));
    meet(s, &place);
    cdp_rpc_destroy(s->rpc);
}
static void liar(side *s) {
    open_then(s, one_lies);
}
TEST(a_liar_loses_its_own_link) {
    for (uint32_t i = 0; i < 2; ++i) {
        shut_by_body = true;
        run(3, liar);
    }
}

/* A rank is killed: the others lose it, release what it held, and go on with each other, also with
   long arguments. Real processes, over TCP and over shared memory. */
static int killed_main(uint32_t rank, uint16_t at, bool shared) {
    const cdp_tcp_desc t = {.group = {.rank = rank,
                                .world_size = 3,
                                .os = counted_os(),
                                .logger = {.level = CDP_LOG_SILENT}},
        .master_port = at,
        .init_timeout_ms = 20000,
        .no_shared_memory = !shared};
    static uint8_t data[300000];
    side s = {.rank = rank, .ranks = 3};
    int64_t x[2] = {5, 0};
    cdp_call c = {0};
    cdp_rref r[2];
    ranks = 3;
    how = shared ? SHARED : TCP;
    if (!OK(cdp_init(&t, &s.g))) return 1;
    const cdp_rpc_desc d = desc_of(&s);
    if (!OK(cdp_rpc_create(&d, &s.rpc))) return 1;
    for (uint32_t i = 0; i < 2; ++i) { /* on both others */
        OK(cdp_rpc_remote(
            s.rpc, CALL(.to = (rank + 1 + i) % 3, F("counter"), BYTES(x, 16)), &r[i]));
        OK(cdp_rref_to_here(r[i], 0, &c));
        cdp_call_free(&c);
    }
    OK(cdp_barrier(s.g));
    if (rank == 2) raise(SIGKILL);
    uint64_t until = test_until_ns(10000);
    while ((!counted_of(&s.lost) || cdp_rpc_stats_of(s.rpc).forks > 1) && test_now_ns() < until)
        (void)!cdp_rpc_serve(s.rpc, 1);
    T_EQ(2, s.lost_rank);
    T_EQ(1, cdp_rpc_stats_of(s.rpc).forks); /* of the other one that lives */
    T_EQ(1, s.values.made - (int32_t)cdp_rpc_stats_of(s.rpc).owners);
    T_EQ(CDP_ERR_PEER_LOST, cdp_rref_confirmed(r[1 - rank], 0));
    OK(cdp_rref_to_here(r[rank], 0, &c));
    T_EQ(5, i64_at(c.data, 0));
    cdp_call_free(&c);
    for (uint32_t i = 0; i < 5; ++i) {
        OK(cdp_rpc_call(s.rpc, CALL(.to = 1 - rank, F("echo"), BYTES(data, sizeof data)), &c));
        T_EQ(sizeof data, c.bytes);
        cdp_call_free(&c);
    }
    OK(cdp_rpc_call(s.rpc, CALL(.to = 1 - rank, F("nothing")), &c));
    cdp_call_free(&c);
    until = test_until_ns(10000);
    while (!counted_of(&s.ran) && test_now_ns() < until) /* the other one is done, too */
        (void)!cdp_rpc_serve(s.rpc, 1);
    T_EQ(CDP_ERR_PEER_LOST, cdp_rpc_shutdown(s.rpc, 3000 * TEST_LATE));
    T_EQ(2, cdp_last_error()->peer);
    cdp_rpc_destroy(s.rpc);
    T_EQ(s.values.made, s.values.destroyed);
    cdp_group_destroy(s.g);
    T_EQ(0, counted.held);
    return test__now.failed_checks != 0;
}

TEST(a_killed_rank) {
    for (uint32_t shared = 0; shared < 2; ++shared) {
        const uint16_t at = free_port();
        pid_t child[3];
        fflush(stdout);
        for (uint32_t rank = 0; rank < 3; ++rank)
            if ((child[rank] = fork()) == 0) _exit(killed_main(rank, at, shared));
        for (uint32_t rank = 0; rank < 3; ++rank) {
            int result = 0;
            waitpid(child[rank], &result, 0);
            if (rank < 2) T(WIFEXITED(result) && WEXITSTATUS(result) == 0);
        }
    }
}

/* Settings that must agree, and functions that run before their references are confirmed. */
static void f_early(void *user, cdp_rpc_request *q) {
    cdp_call c = {0};
    int64_t x = 0;
    (void)user;
    if (OK(cdp_rref_to_here(q->rrefs[0], 0, &c))) x = i64_at(c.data, 0);
    cdp_call_free(&c);
    reply_i64(q, x);
}

static void settings(side *s) {
    const cdp_rpc_function early[] = {{.name = "early", .func = f_early, .flags = CDP_RPC_EARLY},
        {.name = "counter", .func = f_counter}};
    const cdp_rpc_function same[] = {{.name = "a", .func = f_echo}, {.name = "a", .func = f_echo}};
    static uint32_t place;
    cdp_rpc_desc d = desc_of(s);
    d.max_message_bytes = 1000 + s->rank;
    REFUSED(CDP_ERR_MISMATCH, "max_message_bytes (1000 and 1001)", cdp_rpc_create(&d, &s->rpc));
    d = desc_of(s);
    d.number = 7 + s->rank;
    REFUSED(CDP_ERR_MISMATCH, "differ in version, number (7 and 8)", cdp_rpc_create(&d, &s->rpc));
    d = desc_of(s);
    d.functions = same;
    d.function_count = 2;
    REFUSED(CDP_ERR_INVALID, "have the same id", cdp_rpc_create(&d, &s->rpc));
    d.functions = early;
    if (!OK(cdp_rpc_create(&d, &s->rpc))) return;
    for (int64_t i = 0; i < 20; ++i) {
        int64_t x[2] = {i, 0};
        cdp_rref r;
        cdp_call c = {0};
        OK(cdp_rpc_remote(s->rpc, CALL(.to = (s->rank + 1) % 3, F("counter"), BYTES(x, 16)), &r));
        OK(cdp_rpc_call(s->rpc, CALL(.to = (s->rank + 2) % 3, F("early"), RREF(r)), &c));
        T_EQ(i, i64_at(c.data, 0));
        cdp_call_free(&c);
        cdp_rref_drop(r);
    }
    meet(s, &place);
    OK(cdp_rpc_shutdown(s->rpc, 0));
    cdp_rpc_destroy(s->rpc);
}
TEST(mismatched_options) {
    shut_by_body = true;
    run(3, settings);
}

/* Out of memory at every place of a small program: it says so, and gives everything back. */
TEST(out_of_memory_everywhere) {
    uint32_t good = 0, k;
    for (k = 1; k < 400 && good < 3 && !test__now.failed_checks; ++k) {
        cdp_group_desc g = {
            .world_size = 1, .no_thread = true, .logger = {.level = CDP_LOG_SILENT}};
        cdp_rpc_desc d = {
            .functions = functions, .function_count = sizeof functions / sizeof *functions};
        int64_t x[40] = {1, 0};
        cdp_call c = {0};
        cdp_rref r = {0};
        cdp_rpc *rpc;
        cdp_rpc_record record;
        side s = {.ranks = 1};
        bool all = false;
        ranks = 1;
        how = HUB_POLLED;
        d.user = &s;
        g.os = counted_os();
        OK(cdp_group_create(&g, &d.group));
        s.g = d.group;
        counted.fail_at = counted.calls + k;
        if (cdp_rpc_create(&d, &rpc) == CDP_OK) {
            s.rpc = rpc;
            all = cdp_rpc_call(rpc, CALL(F("add"), BYTES(x, sizeof x)), &c) == CDP_OK;
            if (cdp_rpc_records(rpc, &record, 1)) T_EQ(all, record.status == CDP_OK);
            cdp_call_free(&c);
            all = cdp_rpc_remote(rpc, CALL(F("counter"), BYTES(x, 16)), &r) == CDP_OK && all;
            if (r.rpc) all = cdp_rref_to_here(r, 1000, &c) == CDP_OK && all;
            cdp_call_free(&c);
            if (r.rpc) all = cdp_rpc_call(rpc, CALL(F("give_back"), RREF(r)), &c) == CDP_OK && all;
            cdp_call_free(&c);
            cdp_rref_drop(r);
            all = cdp_rpc_shutdown(rpc, 5000) == CDP_OK && all;
            cdp_rpc_destroy(rpc);
        }
        good = all ? good + 1 : 0;
        counted.fail_at = 0;
        T_EQ(s.values.made, s.values.destroyed);
        cdp_group_destroy(d.group);
        T_EQ(0, counted.held);
    }
    T(k > 15 && good == 3);
}

static void local_values(side *s) {
    cdp_value v, got;
    cdp_rref r, far;
    cdp_call c = {0};
    int64_t x[2] = {1, 0};
    v = counter_value(s, 40, iov_next());
    OK(cdp_rref_create(s->rpc, &v, NULL, &r));
    OK(cdp_rref_local(r, 5, 0, &got));
    T(got.data == v.data);
    ((counter *)got.data)->n = 41;
    cdp_rref_unpin(r);
    OK(cdp_rref_to_here(r, 0, &c)); /* local_rref_no_fork */
    T_EQ(41, i64_at(c.data, 0));
    cdp_call_free(&c);
    OK(cdp_rpc_call(
        s->rpc, CALL(.to = next_of(s), F("sum_of"), RREF(r)), &c)); /* pass_local_rrefs */
    T_EQ(41, i64_at(c.data, 0));
    cdp_call_free(&c);
    OK(cdp_rpc_remote(s->rpc, CALL(.to = next_of(s), F("counter"), BYTES(x, 16)), &far));
    REFUSED(CDP_ERR_STATE, "the value is on rank", cdp_rref_local(far, 5, 0, &got));
    cdp_rref_drop(far);
    cdp_rref_drop(r);
}
TEST(local_value) {
    run(2, local_values);
}

/* S1 to S4: a reference goes from its creator to its owner, to a third rank, and back in results,
   while it is not confirmed yet, and later. */
static void shares(side *s) {
    for (uint32_t round = 0; round < 3; ++round) {
        int64_t x[2] = {(int64_t)round, round == 1 ? 5 : 0};
        cdp_rref r, two[2];
        cdp_call c = {0};
        OK(cdp_rpc_remote(s->rpc, CALL(.to = next_of(s), F("counter"), BYTES(x, 16)), &r));
        if (round == 2) OK(cdp_rref_confirmed(r, 10000));
        two[0] = two[1] = r;
        for (uint32_t to = 0; to < ranks; ++to) { /* here, the owner, others */
            OK(cdp_rpc_call(
                s->rpc, CALL(.to = to, F("sum_of"), .args = {.rrefs = two, .rref_count = 2}), &c));
            T_EQ(2 * round, i64_at(c.data, 0));
            cdp_call_free(&c);
        }
        for (uint32_t to = 0; to < ranks; ++to) { /* rpc_return_rref */
            cdp_rref_info a, b;
            cdp_call here = {0};
            OK(cdp_rpc_call(s->rpc, CALL(.to = to, F("give_back"), RREF(r)), &c));
            if (!T_EQ(1, c.rref_count)) continue;
            OK(cdp_rref_info_of(r, &a));
            OK(cdp_rref_info_of(c.rrefs[0], &b));
            T(a.rid == b.rid && a.owner == b.owner);
            OK(cdp_rref_to_here(c.rrefs[0], 0, &here));
            T_EQ(round, i64_at(here.data, 0));
            cdp_call_free(&here);
            cdp_call_free(&c);
        }
        cdp_rref_drop(r);
    }
}
TEST(py_rref_args_user_share) {
    run(4, shares);
}

static void lends(side *s) {
    int64_t x = 77;
    cdp_call c = {0}, here = {0};
    cdp_rref r;
    OK(cdp_rpc_call(s->rpc, CALL(.to = next_of(s), F("lend"), BYTES(&x, 8)), &c));
    T_EQ(1, c.rref_count);
    r = c.rrefs[0];
    cdp_rref_keep(r); /* longer than the result */
    cdp_call_free(&c);
    OK(cdp_rref_confirmed(r, 0)); /* from its owner: no message */
    OK(cdp_rref_to_here(r, 0, &here));
    T_EQ(77, i64_at(here.data, 0));
    cdp_call_free(&here);
    cdp_rref_drop(r);
    /* rref_forward_chain: the value of a reference is a reference */
    x = 9;
    OK(cdp_rpc_remote(s->rpc, CALL(.to = next_of(s), F("forward"), BYTES(&x, 8)), &r));
    OK(cdp_rref_to_here(r, 0, &c));
    if (T_EQ(1, c.rref_count)) {
        OK(cdp_rref_to_here(c.rrefs[0], 0, &here));
        T_EQ(8, i64_at(here.data, 0));
        cdp_call_free(&here);
    }
    cdp_call_free(&c);
    cdp_rref_drop(r);
}
TEST(nested_rref) {
    run(3, lends);
}

static void failing_values(side *s) {
    static const char why[] = "no disk";
    cdp_rref r;
    cdp_call c = {0};
    OK(cdp_rpc_remote(
        s->rpc, CALL(.to = next_of(s), F("fail"), BYTES((char *)(uintptr_t)why, 7)), &r));
    T_EQ(CDP_ERR_REMOTE, cdp_rref_to_here(r, 0, &c));
    T_EQ(42, c.code);
    T_TEXT("no disk", c.error.text);
    cdp_call_free(&c);
    cdp_rref_drop(r);
    OK(cdp_rpc_remote(s->rpc, CALL(.to = next_of(s), F("no_such")), &r));
    OK(cdp_rref_confirmed(r, 10000)); /* it is there, and has failed */
    T_EQ(CDP_ERR_UNSUPPORTED, cdp_rref_to_here(r, 0, &c));
    T_TEXT("no function of this name", c.error.text);
    cdp_call_free(&c);
    cdp_rref_drop(r);
}
TEST(remote_with_exception) {
    run(2, failing_values);
}

/* rref_timeout: the wait ends, the value comes, and a second wait gets it. */
static void slow_values(side *s) {
    int64_t x[2] = {3, 100};
    cdp_rref r;
    cdp_call c = {0};
    OK(cdp_rpc_remote(s->rpc, CALL(.to = next_of(s), F("counter"), BYTES(x, 16)), &r));
    T_EQ(CDP_ERR_TIMEOUT, cdp_rref_to_here(r, 20, &c));
    cdp_call_free(&c);
    OK(cdp_rref_to_here(r, 10000, &c));
    T_EQ(3, i64_at(c.data, 0));
    cdp_call_free(&c);
    cdp_rref_drop(r);
}
TEST(rref_timeout) {
    run(2, slow_values);
}

static void debug_info(side *s) {
    cdp_value v = counter_value(s, 1, iov_next());
    int64_t x[2] = {1, 0};
    cdp_rref mine, far;
    cdp_call c = {0};
    static uint32_t place[4];
    OK(cdp_rref_create(s->rpc, &v, NULL, &mine));
    meet(s, &place[0]);
    T_EQ(1, cdp_rpc_stats_of(s->rpc).owners);
    meet(s, &place[3]);
    OK(cdp_rpc_remote(s->rpc, CALL(.to = next_of(s), F("counter"), BYTES(x, 16)), &far));
    OK(cdp_rref_to_here(far, 0, &c));
    cdp_call_free(&c);
    OK(cdp_rref_confirmed(far, 10000));
    meet(s, &place[1]);
    T_EQ(2, cdp_rpc_stats_of(s->rpc).owners);
    T_EQ(1, cdp_rpc_stats_of(s->rpc).users);
    T_EQ(1, cdp_rpc_stats_of(s->rpc).forks);
    T_EQ(0, cdp_rpc_stats_of(s->rpc).pending);
    meet(s, &place[2]);
    cdp_rref_drop(far);
    cdp_rref_drop(mine);
}
TEST(rref_context_debug_info) {
    run(2, debug_info);
}

static void leaks(side *s) {
    int64_t x[2] = {1, 0};
    cdp_rref r;
    OK(cdp_rpc_remote(
        s->rpc, CALL(.to = next_of(s), F("counter"), BYTES(x, 16), .label = "weights"), &r));
    REFUSED(CDP_ERR_STATE, "still had 1 references, the first one to a value of rank",
        cdp_rpc_shutdown(s->rpc, 0));
    T_TEXT("label weights", cdp_last_error()->text);
    T_EQ(1, s->leaked);
    OK(cdp_barrier(s->g));
    cdp_rref_drop(r); /* too late: nothing happens */
    cdp_rpc_destroy(s->rpc);
    T_EQ(s->values.made, s->values.destroyed);
}
static void leak_body(side *s) {
    open_then(s, leaks);
}
TEST(rref_leak) {
    shut_by_body = true;
    run(2, leak_body);
}

static void full_tables(side *s) {
    cdp_rref r[40];
    uint32_t n = 0, broken = 0;
    int64_t x[2] = {1, 0};
    cdp_call c = {0};
    cdp_status st = CDP_OK;
    if (s->rank == 0) {
        for (; n < 40 && st == CDP_OK; n += st == CDP_OK)
            st = cdp_rpc_remote(s->rpc, CALL(.to = 1, F("counter"), BYTES(x, 16)), &r[n]);
        T_EQ(20, n);
        REFUSED(CDP_ERR_BUSY, "max_rrefs of the desc is 20",
            cdp_rpc_remote(s->rpc, CALL(.to = 1, F("counter"), BYTES(x, 16)), &r[n]));
        for (uint32_t i = 0; i < n; ++i) { /* two entries each there */
            st = cdp_rref_confirmed(r[i], 10000);
            broken += st == CDP_ERR_BUSY;
            if (i == n - 1) {
                T_EQ(CDP_ERR_BUSY, cdp_rref_to_here(r[i], 0, &c));
                cdp_call_free(&c);
            }
        }
        T_EQ(10, broken);
        for (uint32_t i = 0; i < n; ++i)
            cdp_rref_drop(r[i]);
    }
}
TEST(full_tables_are_busy) {
    like.max_rrefs = 20;
    run(2, full_tables);
}

/* 4 ranks make, share, use and drop at random: at the end nothing is left anywhere. */
static void at_random(side *s) {
    enum {
        HELD = 8
    };
    static const char *const uses[] = {"sum_of", "give_back", "nothing"};
    uint64_t state = 12345 + s->rank;
    cdp_rref held[HELD] = {{0}};
    for (uint32_t i = 0; i < 150; ++i) {
        cdp_rref *at = &held[test_random(&state) % HELD];
        const uint32_t to = (uint32_t)(test_random(&state) % ranks);
        const uint32_t use = (uint32_t)(test_random(&state) % 4);
        int64_t x[2] = {1, 0};
        cdp_call c = {0};
        if (!at->rpc) {
            OK(cdp_rpc_remote(s->rpc, CALL(.to = to, F("counter"), BYTES(x, 16)), at));
        } else if (use == 3) {
            cdp_rref_drop(*at);
            at->rpc = NULL;
        } else {
            OK(cdp_rpc_call(s->rpc, CALL(.to = to, F(uses[use]), RREF(*at)), &c));
            if (use == 1 && c.rref_count) {
                cdp_rref_drop(*at);
                *at = c.rrefs[0];
                cdp_rref_keep(*at);
            }
            cdp_call_free(&c);
        }
    }
    for (uint32_t i = 0; i < HELD; ++i)
        cdp_rref_drop(held[i]);
}
TEST(references_at_random) {
    like.timeout_ms = 5000 * TEST_SLACK;
    run(4, at_random);
}

static void light(side *s) {
    cdp_call c = {0};
    for (uint32_t i = 0; i < 1000; ++i) {
        OK(cdp_rpc_call(s->rpc, CALL(.to = next_of(s), F("add")), &c));
        cdp_call_free(&c);
    }
}
TEST(stress_light_rpc) {
    run(2, light);
}

/* ---- gradients ---- */

/* L = a * b, element by element */
typedef struct product {
    double a[4], b[4];
} product;
static cdp_status b_product(void *user, cdp_backward *b) {
    const product *p = (const product *)user;
    const double *g = (const double *)b->grad_out[0].data;
    for (uint32_t i = 0; i < 2; ++i) {
        double *to = (double *)memory_of_backward(b, 32);
        b->grad_in[i] = f64s(to, 4, 0);
        for (uint32_t k = 0; k < 4; ++k)
            to[k] = g[k] * (i ? p->a[k] : p->b[k]);
    }
    return CDP_OK;
}
/* the product of two results, as a root */
static cdp_tensor multiply(cdp_ctx *ctx, product *p, const cdp_tensor *a, const cdp_tensor *b) {
    uint64_t in[2] = {a->value, b->value}, out = 0;
    memcpy(p->a, a->data, 32);
    memcpy(p->b, b->data, 32);
    OK(cdp_ctx_value(ctx, &out));
    OK(cdp_ctx_op(ctx,
        &(cdp_ctx_op_desc){.inputs = in,
            .input_count = 2,
            .outputs = &out,
            .output_count = 1,
            .backward = b_product,
            .user = p}));
    return f64s(NULL, 4, out);
}

static void expect_grad(side *s, cdp_ctx *ctx, uint32_t of, const double *expected) {
    cdp_call c = {0};
    if (OK(cdp_rpc_call(s->rpc, CALL(.to = of, F("weight_grad"), .ctx = ctx), &c))) {
        T_EQ(expected ? 1 : 0, c.tensor_count);
        if (expected && c.tensor_count) T(!memcmp(expected, c.tensors[0].data, 32));
    }
    cdp_call_free(&c);
}

/* y1 = w1 x, y2 = w2 (w1 x) through another rank, y3 unused; L = y1 y2. Twice: passes add up. */
static void serial(side *s) {
    static uint32_t place;
    const uint32_t n1 = next_of(s), n2 = (s->rank + 2) % ranks;
    double x[4] = {2, 3, -5, (double)s->rank + 1}, gx[4] = {0}, g1[4] = {0}, g2[4] = {0};
    cdp_call c[3] = {{0}};
    cdp_ctx *ctx;
    product p;
    uint64_t value = 0;
    weights_open(s);
    meet(s, &place);
    if (!OK(cdp_ctx_begin(s->rpc, &ctx)) || !OK(cdp_ctx_value(ctx, &value))) return;
    T_EQ(s->rank, cdp_ctx_id(ctx) >> 48);
    const cdp_tensor tx = f64s(x, 4, value);
    OK(mul(s, ctx, n1, "mul", 0, &tx, &c[0]));
    OK(mul(s, ctx, n1, "mul_chain", 1, &c[0].tensors[0], &c[1]));
    OK(mul(s, ctx, n2, "mul", 0, &c[0].tensors[0], &c[2]));
    const cdp_tensor root = multiply(ctx, &p, &c[0].tensors[0], &c[1].tensors[0]);
    const double *w1 = weights_of[n1].w, *w2 = weights_of[n2].w;
    for (uint32_t pass = 1; pass < 3; ++pass) {
        cdp_tensor g = {0};
        OK(cdp_ctx_backward(ctx, &(cdp_backward_desc){.roots = &root, .root_count = 1}));
        for (uint32_t i = 0; i < 4; ++i) {
            gx[i] = pass * 2 * w1[i] * w1[i] * w2[i] * x[i];
            g1[i] = pass * 2 * w1[i] * w2[i] * x[i] * x[i];
            g2[i] = pass * w1[i] * x[i] * w1[i] * x[i];
        }
        OK(cdp_ctx_grad(ctx, value, &g));
        T(g.data && !memcmp(g.data, gx, 32));
        expect_grad(s, ctx, n1, g1);
        expect_grad(s, ctx, n2, g2);
        expect_grad(s, ctx, s->rank, NULL); /* others' passes are in other contexts */
    }
    for (uint32_t i = 0; i < 3; ++i)
        cdp_call_free(&c[i]);
    OK(cdp_ctx_end(ctx, 0));
    meet(s, &place);
    weights_close(s);
}
TEST(gradients_equal_a_serial_program) {
    run(3, serial);
}

/* Several contexts of each rank at once, in each of them several passes. */
typedef struct trainer {
    side *s;
    uint32_t number;
} trainer;
static void *train(void *arg) {
    const trainer *t = (const trainer *)arg;
    side *s = t->s;
    for (uint32_t round = 0; round < 5; ++round) {
        const uint32_t to = (s->rank + t->number + round) % ranks;
        double x[4] = {1, t->number, round, 7}, gw[4], gx[4];
        cdp_call c[2] = {{0}};
        cdp_ctx *ctx;
        cdp_tensor g = {0};
        product p;
        uint64_t value = 0;
        if (!OK(cdp_ctx_begin(s->rpc, &ctx)) || !OK(cdp_ctx_value(ctx, &value))) return NULL;
        const cdp_tensor tx = f64s(x, 4, value);
        OK(mul(s, ctx, to, "mul", 0, &tx, &c[0]));
        OK(mul(s, ctx, to, "mul", 0, &tx, &c[1]));
        const cdp_tensor root = multiply(ctx, &p, &c[0].tensors[0], &c[1].tensors[0]);
        OK(cdp_ctx_backward(ctx, &(cdp_backward_desc){.roots = &root, .root_count = 1}));
        for (uint32_t i = 0; i < 4; ++i) {
            gx[i] = 2 * weights_of[to].w[i] * weights_of[to].w[i] * x[i];
            gw[i] = 2 * weights_of[to].w[i] * x[i] * x[i];
        }
        OK(cdp_ctx_grad(ctx, value, &g));
        T(g.data && !memcmp(g.data, gx, 32));
        expect_grad(s, ctx, to, gw);
        cdp_call_free(&c[0]);
        cdp_call_free(&c[1]);
        OK(cdp_ctx_end(ctx, 0));
    }
    return NULL;
}
static void trainers(side *s) {
    static uint32_t place;
    trainer t[4];
    pthread_t thread[4];
    weights_open(s);
    meet(s, &place);
    for (uint32_t i = 0; i < 4; ++i) {
        t[i] = (trainer){s, i};
        if (how == HUB_POLLED)
            train(&t[i]);
        else
            pthread_create(&thread[i], NULL, train, &t[i]);
    }
    for (uint32_t i = 0; i < 4 && how != HUB_POLLED; ++i)
        pthread_join(thread[i], NULL);
    meet(s, &place);
    weights_close(s);
}
TEST(async_dist_autograd) {
    run(3, trainers);
}

/* What fails: a backward function, or the deadline (`late`); then the context is refused on all its
   ranks. */
static void fails_once(side *s, bool late) {
    double x[4] = {1, 2, 3, 4};
    cdp_call c[2] = {{0}}, refused = {0};
    cdp_ctx *ctx;
    cdp_tensor g;
    product p;
    uint64_t value = 0;
    if (!OK(cdp_ctx_begin(s->rpc, &ctx)) || !OK(cdp_ctx_value(ctx, &value))) return;
    const cdp_tensor tx = f64s(x, 4, value);
    OK(mul(s, ctx, next_of(s), late ? "mul_sleeps" : "mul_fails", 0, &tx, &c[0]));
    OK(mul(s, ctx, (s->rank + 2) % ranks, "mul", 0, &c[0].tensors[0], &c[1]));
    const cdp_tensor root = multiply(ctx, &p, &c[0].tensors[0], &c[1].tensors[0]);
    const cdp_backward_desc d = {.roots = &root, .root_count = 1, .timeout_ms = late ? 50 : 0};
    REFUSED(late ? CDP_ERR_TIMEOUT : CDP_ERR_INVALID,
        late ? "was not over in time" : "a backward function on rank", cdp_ctx_backward(ctx, &d));
    REFUSED(CDP_ERR_STATE, "begin another one", cdp_ctx_backward(ctx, &d));
    REFUSED(CDP_ERR_STATE, "begin another one", cdp_ctx_grad(ctx, value, &g));
    T_EQ(CDP_ERR_STATE, mul(s, ctx, next_of(s), "mul", 0, &tx, &refused));
    cdp_call_free(&c[0]);
    cdp_call_free(&c[1]);
    OK(cdp_ctx_end(ctx, 0));
}

/* A rank without threads that sleeps for another one does not look at its own deadline: so they
   are late one after the other. */
static void failing(side *s) {
    static uint32_t place;
    weights_open(s);
    meet(s, &place);
    fails_once(s, false);
    for (uint32_t turn = 0; turn < ranks; ++turn) {
        meet(s, &place);
        if (s->rank == turn) fails_once(s, true);
    }
    meet(s, &place);
    weights_close(s);
}
TEST(backward_autograd_engine_error) {
    run(3, failing);
}

static void grad_mistakes(side *s) {
    static uint32_t place;
    double x[4] = {1, 2, 3, 4};
    cdp_ctx *ctx, *other;
    cdp_call c = {0};
    cdp_tensor g;
    uint64_t value = 0, out = 0;
    product p = {{0}, {0}};
    weights_open(s);
    meet(s, &place);
    OK(cdp_ctx_begin(s->rpc, &ctx));
    OK(cdp_ctx_begin(s->rpc, &other));
    OK(cdp_ctx_value(ctx, &value));
    OK(cdp_ctx_value(ctx, &out));
    cdp_tensor tx = f64s(x, 4, value);
    REFUSED(CDP_ERR_INVALID, "set ctx", mul(s, NULL, 0, "mul", 0, &tx, &c));
    REFUSED(CDP_ERR_INVALID, "does not have in this context", mul(s, other, 0, "mul", 0, &tx, &c));
    tx.dims = 9;
    REFUSED(CDP_ERR_INVALID, "has dtype", mul(s, ctx, 0, "mul", 0, &tx, &c));
    tx = f64s(NULL, 4, value);
    REFUSED(CDP_ERR_INVALID, "tensors[0] has no memory", mul(s, ctx, 0, "mul", 0, &tx, &c));
    REFUSED(CDP_ERR_INVALID, "1 to 16 roots", cdp_ctx_backward(ctx, &(cdp_backward_desc){0}));
    tx = f64s(x, 4, value + 77);
    REFUSED(CDP_ERR_INVALID, "roots[0].value is not a value",
        cdp_ctx_backward(ctx, &(cdp_backward_desc){.roots = &tx, .root_count = 1}));
    tx = f64s(x, 4, value);
    tx.dtype = (cdp_dtype)99;
    REFUSED(CDP_ERR_INVALID, "set dtype and shape of roots[0]",
        cdp_ctx_backward(ctx, &(cdp_backward_desc){.roots = &tx, .root_count = 1}));
    cdp_ctx_op_desc op = {.inputs = &value, .input_count = 1, .outputs = &out, .output_count = 1};
    REFUSED(CDP_ERR_INVALID, "desc.backward is NULL", cdp_ctx_op(ctx, &op));
    op.backward = b_product;
    op.user = &p;
    op.outputs = &value;
    REFUSED(CDP_ERR_INVALID, "inputs[0] is outputs[0]", cdp_ctx_op(ctx, &op));
    op.outputs = &out;
    op.input_count = 0;
    OK(cdp_ctx_op(ctx, &op));
    REFUSED(CDP_ERR_INVALID, "output of no other step", cdp_ctx_op(ctx, &op));
    REFUSED(CDP_ERR_INVALID, "or a step has made it", cdp_ctx_grad(ctx, out, &g));
    OK(cdp_ctx_grad(ctx, value, &g));
    T(!g.data);
    REFUSED(CDP_ERR_INVALID, " is NULL", cdp_ctx_value(NULL, &value));
    cdp_ctx *none = ctx;
    REFUSED(CDP_ERR_INVALID, "rpc is NULL", cdp_ctx_begin(NULL, &none));
    T(!none);
    tx = f64s(x, 4, value); /* without a function in between: the root is the value itself */
    OK(cdp_ctx_backward(ctx, &(cdp_backward_desc){.roots = &tx, .root_count = 1, .grads = &tx}));
    OK(cdp_ctx_grad(ctx, value, &g));
    T(g.data && !memcmp(g.data, x, 32));
    OK(cdp_ctx_end(other, 0));
    OK(cdp_ctx_end(ctx, 0));
    OK(cdp_ctx_end(NULL, 0));
    meet(s, &place);
    weights_close(s);
}
TEST(backward_invalid_args) {
    run(2, grad_mistakes);
}

/* Tensors without a context: every dtype that has a size, every number of dims, long ones. */
static void f_shapes(void *user, cdp_rpc_request *q) {
    const cdp_iov iov = {(void *)(uintptr_t)q->data, q->bytes};
    (void)user;
    OK(cdp_rpc_reply(q,
        &(cdp_args){
            .iov = &iov, .iov_count = 1, .tensors = q->tensors, .tensor_count = q->tensor_count}));
}
static void tensors(side *s) {
    const cdp_rpc_function back[] = {{.name = "shapes", .func = f_shapes}};
    static uint32_t place;
    cdp_rpc_desc d = desc_of(s);
    d.functions = back;
    d.function_count = 1;
    if (!OK(cdp_rpc_create(&d, &s->rpc))) return;
    uint8_t *const sevens =
        (uint8_t *)malloc(500000); /* 4 * 3^5 * 500 bytes, and where it begins */
    fill_sevens(sevens, 500000);
    for (uint32_t i = 0; i < 40; ++i) {
        uint8_t *const data = sevens + 8 * i; /* other bytes each time */
        cdp_tensor t[3];
        cdp_call c = {0};
        memset(t, 0, sizeof t);
        for (uint32_t k = 0; k < 3; ++k) {
            t[k].data = data + 64 * k;
            t[k].dtype = k == 1 ? CDP_DTYPE_F32 : CDP_DTYPE_U8;
            t[k].dims = (i + k) % 9;
            for (uint32_t j = 0; j < t[k].dims; ++j)
                t[k].shape[j] = j < 5 ? 3 : 1;
            if (t[k].dims == 8 && i % 10 == 0) t[k].shape[7] = 500;
        }
        for (uint32_t to = 0; to < ranks; ++to) {
            cdp_call_desc what = {.to = to, F("shapes"), BYTES(data, i)};
            what.args.tensors = t;
            what.args.tensor_count = 3;
            if (OK(cdp_rpc_call(s->rpc, &what, &c)) && T_EQ(3, c.tensor_count)) {
                T_EQ(i, c.bytes);
                T(!i || !memcmp(c.data, data, i));
                for (uint32_t k = 0; k < 3; ++k) {
                    const uint64_t n = cdp__rpc_tensor_bytes(&t[k]);
                    T_EQ(t[k].dims, c.tensors[k].dims);
                    T_EQ(n, cdp__rpc_tensor_bytes(&c.tensors[k]));
                    T(!memcmp(t[k].data, c.tensors[k].data, n));
                    T_EQ(0, (uintptr_t)c.tensors[k].data % 8);
                }
            }
            cdp_call_free(&c);
        }
    }
    free(sevens);
    meet(s, &place);
    OK(cdp_rpc_shutdown(s->rpc, 0));
    cdp_rpc_destroy(s->rpc);
}
TEST(py_tensors) {
    shut_by_body = true;
    run(2, tensors);
}

/* A rank is killed in its backward function: the others are told who, and go on. */
static int dying_main(uint32_t rank, uint16_t at, bool shared) {
    const cdp_tcp_desc t = {.group = {.rank = rank,
                                .world_size = 3,
                                .os = counted_os(),
                                .logger = {.level = CDP_LOG_SILENT}},
        .master_port = at,
        .init_timeout_ms = 20000,
        .no_shared_memory = !shared};
    side s = {.rank = rank, .ranks = 3};
    double x[4] = {1, 2, 3, 4};
    cdp_call c[3] = {{0}};
    cdp_ctx *ctx;
    product p;
    uint64_t value = 0;
    ranks = 3;
    how = shared ? SHARED : TCP;
    if (!OK(cdp_init(&t, &s.g))) return 1;
    const cdp_rpc_desc d = desc_of(&s);
    if (!OK(cdp_rpc_create(&d, &s.rpc))) return 1;
    weights_open(&s);
    OK(cdp_barrier(s.g));
    if (rank == 0) {
        OK(cdp_ctx_begin(s.rpc, &ctx));
        OK(cdp_ctx_value(ctx, &value));
        const cdp_tensor tx = f64s(x, 4, value);
        OK(mul(&s, ctx, 1, "mul", 0, &tx, &c[0]));
        OK(mul(&s, ctx, 2, "mul_dies", 0, &c[0].tensors[0], &c[1]));
        const cdp_tensor root = multiply(ctx, &p, &c[0].tensors[0], &c[1].tensors[0]);
        const uint64_t began = test_now_ns();
        T_EQ(CDP_ERR_PEER_LOST,
            cdp_ctx_backward(ctx, &(cdp_backward_desc){.roots = &root, .root_count = 1}));
        T_EQ(2, cdp_last_error()->peer);
        T_WITHIN(5000, test_now_ns() - began);
        OK(cdp_ctx_end(ctx, 5000 * TEST_LATE));
        OK(cdp_ctx_begin(s.rpc, &ctx)); /* another one works */
        OK(mul(&s, ctx, 1, "mul", 0,
            &(cdp_tensor){.data = x, .dtype = CDP_DTYPE_F64, .dims = 1, .shape = {4}}, &c[2]));
        OK(cdp_ctx_backward(ctx, &(cdp_backward_desc){.roots = &c[2].tensors[0], .root_count = 1}));
        OK(cdp_ctx_end(ctx, 5000 * TEST_LATE));
        cdp_call_free(&c[1]);
        OK(cdp_rpc_call(s.rpc, CALL(.to = 1, F("nothing")), &c[1]));
    } else {
        const uint64_t until = test_until_ns(20000);
        while (counted_of(&s.ran) < 1 + 1 && test_now_ns() < until)
            (void)!cdp_rpc_serve(s.rpc, 1);
    }
    for (uint32_t i = 0; i < 3; ++i)
        cdp_call_free(&c[i]);
    T_EQ(CDP_ERR_PEER_LOST, cdp_rpc_shutdown(s.rpc, 3000 * TEST_LATE));
    cdp_rpc_destroy(s.rpc);
    T_EQ(0, saved_live[rank]);
    cdp_group_destroy(s.g);
    T_EQ(0, counted.held);
    return test__now.failed_checks != 0;
}
TEST(backward_node_failure) {
    for (uint32_t shared = 0; shared < 2; ++shared) {
        const uint16_t at = free_port();
        pid_t child[3];
        fflush(stdout);
        for (uint32_t rank = 0; rank < 3; ++rank)
            if ((child[rank] = fork()) == 0) _exit(dying_main(rank, at, shared));
        for (uint32_t rank = 0; rank < 3; ++rank) {
            int result = 0;
            waitpid(child[rank], &result, 0);
            if (rank < 2) T(WIFEXITED(result) && WEXITSTATUS(result) == 0);
        }
    }
}

/* ---- the optimizer ---- */

/* The rules once more, each as a loop would have it. */
static void local_step(const cdp_optim_desc *d, double t, double *w, double g, double s[3]) {
    const double lr = d->lr, wd = d->weight_decay, mu = d->momentum;
    double b1 = .9, b2 = .999, q, k;
    if (d->maximize) g = -g;
    if (d->kind != CDP_OPTIM_ADAMW) g = wd != 0 ? g + wd * *w : g;
    switch (d->kind) {
    case CDP_OPTIM_NONE:
    case CDP_OPTIM_OWN: break;
    case CDP_OPTIM_SGD:
        if (mu == 0) {
            *w -= lr * g;
            break;
        }
        s[0] = t == 1 ? g : mu * s[0] + (1 - d->dampening) * g;
        *w -= lr * (d->nesterov ? g + mu * s[0] : s[0]);
        break;
    case CDP_OPTIM_ADAMW: *w *= 1 - lr * wd; /* fall through */
    case CDP_OPTIM_ADAM:
        s[0] = b1 * s[0] + (1 - b1) * g;
        s[1] = b2 * s[1] + (1 - b2) * g * g;
        s[2] = s[1] > s[2] ? s[1] : s[2];
        q = d->amsgrad ? s[2] : s[1];
        *w -= lr / (1 - pow(b1, t)) * s[0] / (sqrt(q) / sqrt(1 - pow(b2, t)) + 1e-8);
        break;
    case CDP_OPTIM_ADAMAX:
        s[0] = b1 * s[0] + (1 - b1) * g;
        s[1] = fmax(b2 * s[1], fabs(g) + 1e-8);
        *w -= lr / (1 - pow(b1, t)) * s[0] / s[1];
        break;
    case CDP_OPTIM_ADAGRAD:
        s[0] += g * g;
        *w -= lr / (1 + (t - 1) * d->lr_decay) * g / (sqrt(s[0]) + 1e-10);
        break;
    case CDP_OPTIM_ADADELTA:
        s[0] = .9 * s[0] + (1 - .9) * g * g;
        q = sqrt(s[1] + 1e-6) / sqrt(s[0] + 1e-6) * g;
        s[1] = .9 * s[1] + (1 - .9) * q * q;
        *w -= lr * q;
        break;
    case CDP_OPTIM_RMSPROP:
        s[0] = .99 * s[0] + (1 - .99) * g * g;
        s[1] = .99 * s[1] + (1 - .99) * g;
        q = sqrt(d->centered ? s[0] - s[1] * s[1] : s[0]) + 1e-8;
        s[2] = mu * s[2] + g / q;
        *w -= mu > 0 ? lr * s[2] : lr * g / q;
        break;
    case CDP_OPTIM_RPROP:
        if (t == 1) s[0] = lr;
        k = g * s[1];
        if (k > 0) s[0] = fmin(50, s[0] * 1.2);
        if (k < 0) s[0] = fmax(1e-6, s[0] * .5);
        if (k < 0) g = 0;
        if (g != 0) *w -= g > 0 ? s[0] : -s[0];
        s[1] = g;
        break;
    }
}

/* w of each rank, 3 steps of each rule, by one trainer after the other: as the same loop here. */
static void optimizers(side *s) {
    static const cdp_optim_desc kinds[] = {{.kind = CDP_OPTIM_SGD, .lr = .1},
        {.kind = CDP_OPTIM_SGD, .lr = .1, .momentum = .9, .weight_decay = .01},
        {.kind = CDP_OPTIM_SGD, .lr = .1, .momentum = .9, .nesterov = true, .maximize = true},
        {.kind = CDP_OPTIM_ADAM, .lr = .05},
        {.kind = CDP_OPTIM_ADAM, .lr = .05, .amsgrad = true, .weight_decay = .1},
        {.kind = CDP_OPTIM_ADAMW, .lr = .05, .weight_decay = .02},
        {.kind = CDP_OPTIM_ADAMAX, .lr = .05},
        {.kind = CDP_OPTIM_ADAGRAD, .lr = .05, .lr_decay = .1},
        {.kind = CDP_OPTIM_ADADELTA, .lr = .5}, {.kind = CDP_OPTIM_RMSPROP, .lr = .05},
        {.kind = CDP_OPTIM_RMSPROP, .lr = .05, .centered = true, .momentum = .5},
        {.kind = CDP_OPTIM_RPROP, .lr = .05}};
    static uint32_t place;
    static cdp_call ref[RANKS_MAX];
    weights_open(s);
    meet(s, &place);
    for (uint32_t turn = 0; turn < sizeof kinds / sizeof *kinds; ++turn) {
        if (turn % ranks == s->rank) {
            const uint32_t a = next_of(s), unused = (s->rank + 2) % ranks;
            double local[4], state[4][3] = {{0}}, before[4];
            cdp_rref params[2] = {{0}};
            cdp_optim_desc d = kinds[turn];
            cdp_dist_optim *optim;
            for (uint32_t i = 0; i < 2; ++i) {
                cdp_call_desc get = {.to = i ? unused : a, F("weight_rref")};
                memset(&ref[i], 0, sizeof ref[i]);
                OK(cdp_rpc_call(s->rpc, &get, &ref[i]));
                params[i] = ref[i].rrefs[0];
            }
            memcpy(local, weights_of[a].w, 32);
            memcpy(before, weights_of[unused].w, 32);
            d.rpc = s->rpc;
            d.params = params;
            d.param_count = 2;
            if (!OK(cdp_dist_optim_create(&d, &optim))) return;
            for (uint32_t step = 1; step < 4; ++step) {
                double x[4] = {1, -2, 3, step == 2 ? -1 : 1};
                cdp_call c = {0};
                cdp_ctx *ctx;
                uint64_t value;
                OK(cdp_ctx_begin(s->rpc, &ctx));
                OK(cdp_ctx_value(ctx, &value));
                const cdp_tensor tx = f64s(x, 4, value);
                OK(mul(s, ctx, a, "mul", 0, &tx, &c)); /* the gradient of w is x */
                OK(cdp_ctx_backward(
                    ctx, &(cdp_backward_desc){.roots = &c.tensors[0], .root_count = 1}));
                OK(cdp_dist_optim_step(optim, ctx));
                for (uint32_t i = 0; i < 4; ++i)
                    local_step(&d, step, &local[i], x[i], state[i]);
                cdp_call_free(&c);
                OK(cdp_ctx_end(ctx, 0));
            }
            /* the lock of its owner orders what its worker wrote before the look at it here */
            (void)cdp_rpc_stats_of(weights_of[a].owner->rpc);
            if (!T(!memcmp(local, weights_of[a].w, 32)))
                printf("  rule %u: %.17g, not %.17g\n", turn, weights_of[a].w[0], local[0]);
            T(!memcmp(before, weights_of[unused].w, 32)); /* dist_optim_none_grads */
            OK(cdp_dist_optim_set(optim, .5, 0));
            cdp_dist_optim_destroy(optim);
            cdp_call_free(&ref[0]);
            cdp_call_free(&ref[1]);
        }
        meet(s, &place);
    }
    meet(s, &place);
    weights_close(s);
}
TEST(dist_optim) {
    run(3, optimizers);
}

/* A pass in which this rank has far more nodes than the other one, which answers for them. */
static void many_nodes(side *s) {
    static uint32_t place;
    double x[4] = {1, 2, 3, 4};
    cdp_call c = {0};
    uint64_t value;
    cdp_tensor g = {0};
    cdp_ctx *ctx;
    weights_open(s);
    meet(s, &place);
    if (s->rank == 0 && OK(cdp_ctx_begin(s->rpc, &ctx))) {
        for (uint32_t i = 0; i < 100000; ++i)
            if (!OK(cdp_ctx_value(ctx, &value))) break;
        const cdp_tensor tx = f64s(x, 4, value);
        OK(mul(s, ctx, 1, "mul", 0, &tx, &c));
        OK(cdp_ctx_backward(ctx, &(cdp_backward_desc){.roots = c.tensors, .root_count = 1}));
        OK(cdp_ctx_grad(ctx, value, &g));
        T(g.data && !memcmp(g.data, weights_of[1].w, 32));
        cdp_call_free(&c);
        OK(cdp_ctx_end(ctx, 0));
    }
    meet(s, &place);
    weights_close(s);
}
TEST(answers_for_nodes_of_another_rank) {
    run(2, many_nodes);
}

/* ---- results that are read in place ---- */

static void in_place(side *s) {
    static const uint64_t sizes[] = {100, 65536, 65537, 300000, 6 << 20, 100000, 300001};
    static uint32_t place;
    const uint32_t n = sizeof sizes / sizeof *sizes;
    in_place_now[s->rank] = in_place_back[s->rank] = 0;
    meet(s, &place);
    for (uint32_t i = 0; i < 3 * n; ++i) {
        cdp_call c = {0}, gone = {0};
        uint64_t bytes = sizes[i % n];
        const uint32_t to = i < 2 * n ? next_of(s) : s->rank;
        OK(cdp_rpc_start(s->rpc, CALL(.to = to, F("in_place"), BYTES(&bytes, 8)), &gone));
        if (OK(cdp_rpc_call(s->rpc, CALL(.to = to, F("in_place"), BYTES(&bytes, 8)), &c))) {
            const uint8_t *at = (const uint8_t *)c.data;
            T_EQ(bytes, c.bytes);
            T(are_sevens(at, 8, bytes));
            T_EQ(bytes, (uint64_t)i64_at(at, 0));
        }
        if (i % 2) (void)cdp_call_cancel(&gone); /* nobody wants the result any more */
        (void)!cdp_call_wait(&gone);
        cdp_call_free(&gone);
        cdp_call_free(&c);
    }
    meet(s, &place);
    const uint64_t until = test_until_ns(10000);
    while (counted_of(&in_place_now[s->rank]) != counted_of(&in_place_back[s->rank])
        && test_now_ns() < until)
        (void)!cdp_rpc_serve(s->rpc, 1);
    T_EQ(counted_of(&in_place_now[s->rank]), counted_of(&in_place_back[s->rank]));
    meet(s, &place);
}
TEST(results_in_place) {
    run(2, in_place);
}

/* ---- a remote embedding ---- */

static void table_open(side *s) {
    table *t = &table_of[s->rank];
    for (uint32_t i = 0; i < TABLE_ROWS * TABLE_WIDTH; ++i)
        t->w[i] = (float)i;
    t->ill = 0;
    t->t = (cdp_tensor){
        .data = t->w, .dtype = CDP_DTYPE_F32, .dims = 2, .shape = {TABLE_ROWS, TABLE_WIDTH}};
    const cdp_value v = {.data = t, .param = true, .plain = {.tensors = &t->t, .tensor_count = 1}};
    OK(cdp_rref_create(s->rpc, &v, "a table", &t->rref));
    saved_live[s->rank] = 0;
}

static cdp_call lookup(side *s, cdp_ctx *ctx, uint32_t to, uint32_t *rows, uint32_t n) {
    cdp_call c = {0};
    OK(cdp_rpc_call(s->rpc, CALL(.to = to, F("lookup"), .ctx = ctx, BYTES(rows, 4 * n)), &c));
    return c;
}

/* Two lookups of one table, rows twice among them, and a pass over both: only these rows change,
   as one loop over the rows would change them. `passes`: of the same context. */
static void embed_step(side *s, uint32_t to, cdp_dist_optim *optim, uint32_t passes, float *w,
    const cdp_optim_desc *d, double t, double state[TABLE_ROWS * TABLE_WIDTH][3]) {
    uint32_t a[3] = {7, 999, 7}, b[2] = {7, 0};
    static const uint32_t order[] = {0, 7, 999};
    float ga[9], gb[6], sum[3][TABLE_WIDTH];
    cdp_ctx *ctx;
    cdp_call c[2];
    if (!OK(cdp_ctx_begin(s->rpc, &ctx))) return;
    c[0] = lookup(s, ctx, to, a, 3);
    c[1] = lookup(s, ctx, to, b, 2);
    if (!T_EQ(1, c[0].tensor_count) || !T_EQ(1, c[1].tensor_count)) return;
    T(((float *)c[0].tensors[0].data)[3] == w[2997]);
    for (uint32_t i = 0; i < 9; ++i)
        ga[i] = (float)(i + 1) / 3;
    for (uint32_t i = 0; i < 6; ++i)
        gb[i] = (float)(i + 1) / 7;
    for (uint32_t k = 0; k < TABLE_WIDTH; ++k) {
        sum[0][k] = gb[3 + k];
        sum[1][k] = ga[k] + ga[6 + k];
        sum[1][k] += gb[k];
        sum[2][k] = ga[3 + k];
    }
    cdp_tensor roots[2] = {c[0].tensors[0], c[1].tensors[0]}, grads[2] = {roots[0], roots[1]};
    grads[0].data = ga;
    grads[1].data = gb;
    for (uint32_t pass = 0; pass < passes; ++pass)
        OK(cdp_ctx_backward(
            ctx, &(cdp_backward_desc){.roots = roots, .root_count = 2, .grads = grads}));
    OK(cdp_dist_optim_step(optim, ctx));
    for (uint32_t r = 0; r < 3; ++r)
        for (uint32_t k = 0; k < TABLE_WIDTH; ++k) {
            const uint32_t at = order[r] * TABLE_WIDTH + k;
            const float g = passes == 2 ? sum[r][k] + sum[r][k] : sum[r][k];
            double x = w[at];
            for (uint32_t i = 0; i < 3; ++i)
                state[at][i] = (float)state[at][i];
            local_step(d, t, &x, g, state[at]);
            for (uint32_t i = 0; i < 3; ++i)
                state[at][i] = (float)state[at][i];
            w[at] = (float)x;
        }
    cdp_call_free(&c[0]);
    cdp_call_free(&c[1]);
    OK(cdp_ctx_end(ctx, 0));
}

/* Three steps on a table, here and in an array. */
static void embed_steps(side *s, uint32_t to, cdp_optim_desc d, float *w) {
    static double state[TABLE_ROWS * TABLE_WIDTH][3];
    cdp_dist_optim *optim;
    cdp_call ref = {0};
    OK(cdp_rpc_call(s->rpc, CALL(.to = to, F("table_rref")), &ref));
    d.rpc = s->rpc;
    d.params = ref.rrefs;
    d.param_count = 1;
    if (OK(cdp_dist_optim_create(&d, &optim))) {
        memcpy(w, table_of[to].w, sizeof table_of[to].w);
        memset(state, 0, sizeof state);
        for (uint32_t step = 1; step < 4; ++step)
            embed_step(s, to, optim, step == 3 ? 2 : 1, w, &d, step, state);
        cdp_dist_optim_destroy(optim);
    }
    cdp_call_free(&ref);
}

static void embeddings(side *s) {
    static const cdp_optim_desc kinds[] = {{.kind = CDP_OPTIM_SGD, .lr = .1},
        {.kind = CDP_OPTIM_ADAGRAD, .lr = .05}, {.kind = CDP_OPTIM_ADAM, .lr = .05}};
    static float w[TABLE_ROWS * TABLE_WIDTH];
    static uint32_t place;
    table_open(s);
    meet(s, &place);
    for (uint32_t kind = 0; kind < 3; ++kind) {
        const uint32_t to = kind == 1 ? 0 : 1; /* one's own table, too */
        if (s->rank == 0) embed_steps(s, to, kinds[kind], w);
        meet(s, &place); /* a thread of the other rank has written what is compared */
        if (s->rank == 0) T(!memcmp(w, table_of[to].w, sizeof w));
        meet(s, &place);
    }
    cdp_rref_drop(table_of[s->rank].rref);
}
TEST(embedding_bag_with_no_grad_tensors_sparse) {
    run(2, embeddings);
}

/* What does not fit: a row that is not there, a rule without rows, rows and a whole gradient, rows
   for a value that is no parameter there. */
static cdp_status b_rows_of_nothing(void *user, cdp_backward *b) {
    static const uint32_t rows[] = {1};
    (void)user;
    b->grad_in[0] = b->grad_out[0];
    b->grad_rows[0] = rows;
    return CDP_OK;
}
static void rows_for_a_call(side *s, uint32_t to) {
    uint32_t rows[1] = {3};
    uint64_t out;
    cdp_ctx *ctx;
    if (!OK(cdp_ctx_begin(s->rpc, &ctx))) return;
    cdp_call c = lookup(s, ctx, to, rows, 1);
    cdp_tensor root = c.tensors[0];
    OK(cdp_ctx_value(ctx, &out));
    OK(cdp_ctx_op(ctx,
        &(cdp_ctx_op_desc){.inputs = &root.value,
            .input_count = 1,
            .outputs = &out,
            .output_count = 1,
            .backward = b_rows_of_nothing}));
    root.value = out;
    REFUSED(CDP_ERR_INVALID, "no parameter of that rank",
        cdp_ctx_backward(ctx, &(cdp_backward_desc){.roots = &root, .root_count = 1}));
    cdp_call_free(&c);
    OK(cdp_ctx_end(ctx, 0));
}

static void embedding_mistakes(side *s) {
    static const cdp_optim_desc kinds[] = {{.kind = CDP_OPTIM_SGD}, {.kind = CDP_OPTIM_RMSPROP},
        {.kind = CDP_OPTIM_SGD, .weight_decay = .1}};
    static const char *const texts[] = {
        "does not have", "only SGD, ADAGRAD and ADAM", "weight_decay must be 0"};
    static uint32_t place;
    uint32_t a[2] = {7, 9}, b[1] = {7};
    table_open(s);
    meet(s, &place);
    for (uint32_t i = 0; i < 4 && s->rank == 0; ++i) {
        cdp_optim_desc d = kinds[i % 3];
        cdp_dist_optim *optim;
        cdp_call ref = {0}, c[2];
        cdp_ctx *ctx;
        table_of[1].ill = i == 0 ? 1 : 0;
        if (i == 3) table_of[1].ill = 2;
        OK(cdp_rpc_call(s->rpc, CALL(.to = 1, F("table_rref")), &ref));
        d.rpc = s->rpc;
        d.params = ref.rrefs;
        d.param_count = 1;
        OK(cdp_dist_optim_create(&d, &optim));
        if (!OK(cdp_ctx_begin(s->rpc, &ctx))) return;
        c[0] = lookup(s, ctx, 1, b, 1);
        c[1] = lookup(s, ctx, 1, a, 2);
        const cdp_tensor roots[2] = {c[0].tensors[0], c[1].tensors[0]};
        const cdp_backward_desc pass = {.roots = roots, .root_count = 2};
        if (i == 3) {
            REFUSED(
                CDP_ERR_MISMATCH, "some are rows, others are not", cdp_ctx_backward(ctx, &pass));
        } else {
            OK(cdp_ctx_backward(ctx, &pass));
            REFUSED(CDP_ERR_REMOTE, texts[i], cdp_dist_optim_step(optim, ctx));
        }
        cdp_call_free(&c[0]);
        cdp_call_free(&c[1]);
        OK(cdp_ctx_end(ctx, 0));
        cdp_dist_optim_destroy(optim);
        cdp_call_free(&ref);
    }
    if (s->rank == 0) {
        table_of[1].ill = 0;
        rows_for_a_call(s, 1);
        T(!cdp_ctx_grad_rows(NULL, 1));
    }
    meet(s, &place);
    for (uint32_t i = 0; i < TABLE_ROWS * TABLE_WIDTH; ++i)
        if (!T(table_of[s->rank].w[i] == (float)i)) break;
    cdp_rref_drop(table_of[s->rank].rref);
}
TEST(embedding_rows_that_do_not_fit) {
    run(2, embedding_mistakes);
}

static void optim_mistakes(side *s) {
    static uint32_t place;
    int64_t x[2] = {5, 0};
    cdp_rref r[2] = {{0}};
    cdp_dist_optim *optim;
    cdp_optim_desc d = {.rpc = s->rpc, .params = r, .param_count = 1};
    REFUSED(CDP_ERR_INVALID, " is NULL", cdp_dist_optim_create(&d, NULL));
    REFUSED(CDP_ERR_INVALID, "set kind", cdp_dist_optim_create(&d, &optim));
    d.kind = CDP_OPTIM_SGD;
    d.nesterov = true;
    REFUSED(CDP_ERR_INVALID, "nesterov needs momentum", cdp_dist_optim_create(&d, &optim));
    d.nesterov = false;
    REFUSED(CDP_ERR_INVALID, "params[0] is no reference", cdp_dist_optim_create(&d, &optim));
    OK(cdp_rpc_remote(s->rpc, CALL(.to = next_of(s), F("counter"), BYTES(x, 16)), &r[0]));
    REFUSED(CDP_ERR_REMOTE, "set param of cdp_value", cdp_dist_optim_create(&d, &optim));
    T(optim == NULL);
    cdp_value bytes = counter_value(s, 1, iov_next());
    bytes.param = true;
    OK(cdp_rref_create(s->rpc, &bytes, NULL, &r[1]));
    d.params = &r[1];
    REFUSED(CDP_ERR_REMOTE, "whose plain is one tensor", cdp_dist_optim_create(&d, &optim));
    cdp_rref_drop(r[1]);
    const cdp_tensor whole = {.data = x, .dtype = CDP_DTYPE_I64, .dims = 1, .shape = {2}};
    const cdp_value numbers = {.param = true, .plain = {.tensors = &whole, .tensor_count = 1}};
    OK(cdp_rref_create(s->rpc, &numbers, NULL, &r[1]));
    REFUSED(CDP_ERR_REMOTE, "another dtype than F32 and F64", cdp_dist_optim_create(&d, &optim));
    cdp_rref_drop(r[1]);
    cdp_call c = {0};
    T_EQ(CDP_ERR_REMOTE, cdp_rpc_call(s->rpc, CALL(.on = r[0], F("cdp.optim.step")), &c));
    cdp_call_free(&c);
    REFUSED(CDP_ERR_INVALID, " is NULL", cdp_dist_optim_step(NULL, NULL));
    cdp_dist_optim_destroy(NULL);
    cdp_rref_drop(r[0]);
    meet(s, &place);
}
TEST(dist_optim_exception_on_constructor) {
    run(2, optim_mistakes);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"worker_id", worker_id, 60},
        {"duplicate_name", duplicate_name, 60},
        {"invalid_name", invalid_name, 60},
        {"init_rpc_twice", init_rpc_twice, 60},
        {"world_size_one", world_size_one, 60},
        {"add", add, 60},
        {"multi_async_call", multi_async_call, 60},
        {"arguments_of_all_lengths", arguments_of_all_lengths, 60},
        {"arguments_of_all_lengths_in_a_narrow_window", arguments_of_all_lengths_in_a_narrow_window,
            120},
        {"py_function_exception", py_function_exception, 60},
        {"every_mistake_gets_a_sentence", every_mistake_gets_a_sentence, 60},
        {"wait_all_exit_early", wait_all_exit_early, 60},
        {"callback_simple", callback_simple, 60},
        {"async_function_multi_fanout", async_function_multi_fanout, 60},
        {"nested_rpc", nested_rpc, 60},
        {"rpc_timeouts", rpc_timeouts, 60},
        {"a_late_request_does_not_run", a_late_request_does_not_run, 60},
        {"cancelled_calls", cancelled_calls, 60},
        {"one_way_calls", one_way_calls, 60},
        {"a_full_queue_is_busy", a_full_queue_is_busy, 60},
        {"long_arguments_wait_for_memory", long_arguments_wait_for_memory, 60},
        {"graceful_shutdown_with_uneven_workload", graceful_shutdown_with_uneven_workload, 60},
        {"multi_layer_nested_async_rpc", multi_layer_nested_async_rpc, 60},
        {"shutdown_errors", shutdown_errors, 60},
        {"a_message_that_never_comes_lets_shutdown_sleep_and_end",
            a_message_that_never_comes_lets_shutdown_sleep_and_end, 60},
        {"destroying_frees_requests_that_wait", destroying_frees_requests_that_wait, 60},
        {"a_wait_ends_in_time_whatever_it_helps", a_wait_ends_in_time_whatever_it_helps, 60},
        {"messages_of_a_lost_link_are_not_awaited", messages_of_a_lost_link_are_not_awaited, 60},
        {"local_shutdown", local_shutdown, 60},
        {"builtin_remote_ret", builtin_remote_ret, 60},
        {"rref_get_future", rref_get_future, 60},
        {"a_liar_loses_its_own_link", a_liar_loses_its_own_link, 60},
        {"a_killed_rank", a_killed_rank, 60},
        {"mismatched_options", mismatched_options, 60},
        {"out_of_memory_everywhere", out_of_memory_everywhere, 60},
        {"local_value", local_value, 60},
        {"py_rref_args_user_share", py_rref_args_user_share, 60},
        {"nested_rref", nested_rref, 60},
        {"remote_with_exception", remote_with_exception, 60},
        {"rref_timeout", rref_timeout, 60},
        {"rref_context_debug_info", rref_context_debug_info, 60},
        {"rref_leak", rref_leak, 60},
        {"full_tables_are_busy", full_tables_are_busy, 60},
        {"references_at_random", references_at_random, 60},
        {"stress_light_rpc", stress_light_rpc, 60},
        {"gradients_equal_a_serial_program", gradients_equal_a_serial_program, 60},
        {"async_dist_autograd", async_dist_autograd, 60},
        {"backward_autograd_engine_error", backward_autograd_engine_error, 60},
        {"backward_invalid_args", backward_invalid_args, 60},
        {"py_tensors", py_tensors, 60},
        {"answers_for_nodes_of_another_rank", answers_for_nodes_of_another_rank, 60},
        {"results_in_place", results_in_place, 60},
        {"dist_optim", dist_optim, 60},
        {"embedding_bag_with_no_grad_tensors_sparse", embedding_bag_with_no_grad_tensors_sparse,
            60},
        {"embedding_rows_that_do_not_fit", embedding_rows_that_do_not_fit, 60},
        {"dist_optim_exception_on_constructor", dist_optim_exception_on_constructor, 60},
        {"backward_node_failure", backward_node_failure, 60},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
