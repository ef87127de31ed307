/* test_rpc.c - remote calls: names, start, arguments, errors, waits, deadlines, limits, lost ranks,
   results in place. Scenarios of torch.distributed.rpc's own tests that mean something in C, and
   what is ours alone. Each runs as threads of this program over memory (with workers, without, and
   polled), over TCP, and over shared memory; at the end of each world every allocation was given
   back. */
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"

#include "cdp_rpc.h"

#include "rpc_sides.h"

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
            for (uint64_t k = 0; k < sizes[i] && k < 256; ++k)
                data[k] = (uint8_t)(k * 13 + s->rank);
            for (uint64_t k = 256, n; k < sizes[i]; k += n) { /* and again */
                n = sizes[i] - k < k ? sizes[i] - k : k;
                memcpy(data + k, data, n);
            }
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

/* A start of the call `c` that is refused: the call says so, too. */
#define NOT_STARTED(expected, says, start)   \
    do {                                     \
        memset(&c.error, 0, sizeof c.error); \
        REFUSED(expected, says, start);      \
        T_EQ(expected, c.status);            \
        T_EQ(CDP_RAN_NO, c.ran);             \
        T_EQ(expected, c.error.status);      \
        T_TEXT(says, c.error.text);          \
    } while (0)

static void mistakes(side *s) {
    cdp_call c = {0};
    cdp_rref r = {0};
    cdp_rref_info info;
    cdp_value v = {0};
    uint32_t which;
    uint64_t big = 8;
    cdp_call *one = &c;
    REFUSED(CDP_ERR_INVALID, " is NULL", cdp_rpc_start(NULL, NULL, NULL));
    NOT_STARTED(CDP_ERR_INVALID, "to is 9; the group has ranks 0 to 1",
        cdp_rpc_call(s->rpc, CALL(.to = 9, F("add")), &c));
    NOT_STARTED(
        CDP_ERR_INVALID, "set function of the desc", cdp_rpc_call(s->rpc, CALL(.to = 0), &c));
    NOT_STARTED(CDP_ERR_INVALID, "args.iov[0] has no memory",
        cdp_rpc_call(s->rpc, CALL(.to = 0, F("add"), BYTES(NULL, 8)), &c));
    NOT_STARTED(CDP_ERR_INVALID, "max_message_bytes of cdp_rpc_desc is 1000; send less",
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
    NOT_STARTED(CDP_ERR_INVALID, "a one-way call takes no references",
        cdp_rpc_start(s->rpc, CALL(.to = next_of(s), F("nothing"), .one_way = true, RREF(r)), &c));
    REFUSED(CDP_ERR_INVALID, "has type 0, not 3", cdp_rref_local(r, 3, 0, &v));
    OK(cdp_rref_info_of(r, &info));
    T(info.is_owner && info.handles == 1 && info.forks == 0);
    T_TEXT("mine", info.label);
    cdp_rref_drop(r);
    REFUSED(CDP_ERR_STATE, "was dropped before", cdp_rref_info_of(r, &info));
    NOT_STARTED(CDP_ERR_STATE, "was dropped before", cdp_rref_to_here(r, 0, &c));
    REFUSED(CDP_ERR_INVALID, "done, one_way and in_order",
        cdp_rpc_remote(s->rpc, CALL(.to = 0, F("add"), .one_way = true), &r));
    REFUSED(CDP_ERR_INVALID, " is NULL", cdp_call_wait_any(NULL, 0, 0, &which));
    r = (cdp_rref){0};
    NOT_STARTED(CDP_ERR_INVALID, "args.rrefs is NULL",
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

/* ---- lost ranks, liars, other settings, no memory ---- */

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
   long arguments. */
static void killed(side *s) {
    static uint8_t data[300000];
    const uint32_t rank = s->rank;
    int64_t x[2] = {5, 0};
    cdp_call c = {0};
    cdp_rref r[2];
    for (uint32_t i = 0; i < 2; ++i) { /* on both others */
        OK(cdp_rpc_remote(
            s->rpc, CALL(.to = (rank + 1 + i) % 3, F("counter"), BYTES(x, 16)), &r[i]));
        OK(cdp_rref_to_here(r[i], 0, &c));
        cdp_call_free(&c);
    }
    OK(cdp_barrier(s->g));
    if (rank == 2) raise(SIGKILL);
    uint64_t until = test_until_ns(10000);
    while ((!counted_of(&s->lost) || cdp_rpc_stats_of(s->rpc).forks > 1) && test_now_ns() < until)
        (void)!cdp_rpc_serve(s->rpc, 1);
    T_EQ(2, s->lost_rank);
    T_EQ(1, cdp_rpc_stats_of(s->rpc).forks); /* of the other one that lives */
    T_EQ(1, s->values.made - (int32_t)cdp_rpc_stats_of(s->rpc).owners);
    T_EQ(CDP_ERR_PEER_LOST, cdp_rref_confirmed(r[1 - rank], 0));
    OK(cdp_rref_to_here(r[rank], 0, &c));
    T_EQ(5, i64_at(c.data, 0));
    cdp_call_free(&c);
    for (uint32_t i = 0; i < 5; ++i) {
        OK(cdp_rpc_call(s->rpc, CALL(.to = 1 - rank, F("echo"), BYTES(data, sizeof data)), &c));
        T_EQ(sizeof data, c.bytes);
        cdp_call_free(&c);
    }
    OK(cdp_rpc_call(s->rpc, CALL(.to = 1 - rank, F("nothing")), &c));
    cdp_call_free(&c);
    until = test_until_ns(10000);
    while (!counted_of(&s->ran) && test_now_ns() < until) /* the other one is done, too */
        (void)!cdp_rpc_serve(s->rpc, 1);
    T_EQ(CDP_ERR_PEER_LOST, cdp_rpc_shutdown(s->rpc, 3000 * TEST_LATE));
    T_EQ(2, cdp_last_error()->peer);
    cdp_rpc_destroy(s->rpc);
    T_EQ(s->values.made, s->values.destroyed);
}

TEST(a_killed_rank) {
    run_processes(killed);
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
        {"a_liar_loses_its_own_link", a_liar_loses_its_own_link, 60},
        {"a_killed_rank", a_killed_rank, 60},
        {"mismatched_options", mismatched_options, 60},
        {"out_of_memory_everywhere", out_of_memory_everywhere, 60},
        {"stress_light_rpc", stress_light_rpc, 60},
        {"results_in_place", results_in_place, 60},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
