/* test_rpc_many.c - one function on many ranks: every call ends with its own status, by one
   deadline, whatever becomes of the others. */
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"

#include "cdp_rpc.h"

#include "rpc_sides.h"

#define MANY 16u
#define MS 1000000ull

static uint32_t place;

/* {ms of rank 0, ms of rank 1, ...}: each rank sleeps its own */
static void f_sleep_own(void *user, cdp_rpc_request *q) {
    const uint64_t until = test_now_ns() + (uint64_t)i64_at(q->data, side_of(q)->rank) * MS;
    (void)user;
    while (test_now_ns() < until && !cdp_rpc_cancelled(q)) {
        if (how == HUB_POLLED) (void)!cdp_poll(side_of(q)->g, 0);
        test_sleep_ms(1);
    }
    reply_i64(q, side_of(q)->rank);
}
/* {rank}: fails there */
static void f_fails_on(void *user, cdp_rpc_request *q) {
    (void)user;
    if (side_of(q)->rank == (uint32_t)i64_at(q->data, 0))
        OK(cdp_rpc_fail(q, 7, "not here"));
    else
        reply_i64(q, side_of(q)->rank);
}
static void f_bytes(void *user, cdp_rpc_request *q) {
    (void)user;
    reply_i64(q, are_sevens((const uint8_t *)q->data, 0, q->bytes) ? (int64_t)q->bytes : -1);
}

static const cdp_rpc_function own_functions[] = {
    {.name = "whoami", .func = f_whoami},
    {.name = "whoami_inline", .func = f_whoami, .flags = CDP_RPC_INLINE},
    {.name = "nothing", .func = f_nothing},
    {.name = "sleep_own", .func = f_sleep_own},
    {.name = "fails_on", .func = f_fails_on},
    {.name = "bytes", .func = f_bytes},
    {.name = "only_rank_0", .func = f_nothing, .allow = only_rank_0, .allow_count = 1},
    KEPT_AND_COUNTED,
};

static void run_many(uint32_t n, void (*func)(side *s)) {
    place = 0; /* worlds of other sizes counted to other numbers */
    run_own(n, func);
}

/* Every rank asks all, then a list in another order in which one is twice; the results of the first
   lie side by side. */
static void each_answers(side *s) {
    int64_t all[MANY];
    uint32_t list[MANY + 1];
    cdp_call c[MANY + 1];
    memset(c, 0, sizeof c);
    for (uint32_t i = 0; i < ranks; ++i)
        c[i].into = (cdp_iov){&all[i], 8};
    if (OK(cdp_rpc_call_many(s->rpc, CALL(F("whoami")), NULL, ranks, c)))
        for (uint32_t i = 0; i < ranks; ++i)
            T_EQ(s->rank * 1000 + i, all[i]);
    cdp_call_free_many(c, ranks);
    for (uint32_t i = 0; i <= ranks; ++i)
        list[i] = (ranks - 1 - i) % ranks;
    list[ranks] = 0;
    OK(cdp_rpc_start_many(s->rpc, CALL(F("whoami_inline")), list, ranks + 1, c));
    if (OK(cdp_call_wait_many(c, ranks + 1)))
        for (uint32_t i = 0; i <= ranks; ++i)
            T_EQ(s->rank * 1000 + list[i], i64_at(c[i].data, 0));
    cdp_call_free_many(c, ranks + 1);
    OK(cdp_rpc_call_many(s->rpc, CALL(F("whoami")), NULL, 0, NULL));
    cdp_call_free_many(NULL, 1);
    meet(s, &place);
}

TEST(each_of_many_ranks_answers) {
    for (uint32_t n = 1; n <= 8 && !test__now.failed_checks; ++n)
        run_many(n, each_answers);
}

/* One fails: its status, text and rank are those of the whole, and the other results are there. */
static void one_fails(side *s) {
    int64_t bad = 1;
    cdp_call c[3] = {{0}};
    T_EQ(CDP_ERR_REMOTE,
        cdp_rpc_call_many(s->rpc, CALL(F("fails_on"), BYTES(&bad, 8)), NULL, ranks, c));
    T_TEXT("fails_on on rank 1 (rank1): failed with code 7: not here", cdp_last_error()->text);
    T_EQ(1, cdp_last_error()->peer);
    for (uint32_t i = 0; i < ranks; ++i) {
        T_EQ(i == 1 ? CDP_ERR_REMOTE : CDP_OK, c[i].status);
        T_EQ(CDP_RAN_YES, c[i].ran);
        if (i != 1 && T(c[i].data != NULL)) T_EQ(i, i64_at(c[i].data, 0));
    }
    T_EQ(7, c[1].code);
    T_EQ(CDP_ERR_REMOTE, cdp_call_wait_many(c, ranks)); /* the same again */
    T_EQ(1, cdp_last_error()->peer);
    cdp_call_free_many(c, ranks);
    if (s->rank) { /* the first one of the list is named, not the first one that ended */
        const uint32_t list[3] = {s->rank, 2, 1};
        T_EQ(CDP_ERR_UNSUPPORTED, cdp_rpc_call_many(s->rpc, CALL(F("only_rank_0")), list, 3, c));
        T_EQ(s->rank, cdp_last_error()->peer);
        cdp_call_free_many(c, 3);
    }
    meet(s, &place);
}

TEST(one_of_many_ranks_fails) {
    run_many(3, one_fails);
}

/* One is slower than the deadline: its call alone ends with TIMEOUT, and all end by then. */
static void one_is_slow(side *s) {
    int64_t ms[3] = {0, 0, 20000};
    cdp_call c[3] = {{0}};
    if (s->rank == 0) {
        const uint64_t from = test_now_ns(), limit = 150 * TEST_SLACK;
        T_EQ(CDP_ERR_TIMEOUT,
            cdp_rpc_call_many(s->rpc,
                CALL(F("sleep_own"), BYTES(ms, sizeof ms), .timeout_ms = (uint32_t)limit), NULL, 3,
                c));
        T_TEXT("sleep_own on rank 2 (rank2): no answer within ", cdp_last_error()->text);
        T_EQ(2, cdp_last_error()->peer);
        T(test_now_ns() - from >= limit * MS);
        T_WITHIN(limit + limit / 10 + 50, test_now_ns() - from);
        for (uint32_t i = 0; i < 2; ++i) {
            T_EQ(CDP_OK, c[i].status);
            if (c[i].data) T_EQ(i, i64_at(c[i].data, 0));
        }
        cdp_call_free_many(c, 3);
    }
    meet(s, &place);
}
static void one_is_slow_body(side *s) {
    if (how != HUB_POLLED && how != HUB_NO_WORKERS) one_is_slow(s); /* others serve in threads */
}

TEST(one_of_many_ranks_is_slow) {
    run_many(3, one_is_slow_body);
}

/* With one call at a time to each rank: rank 1 has no room until the deadline, and what is called
   on the other ranks runs meanwhile; none waits longer than the one deadline. */
static void count_done(void *user, cdp_call *c) {
    (void)c;
    count((uint32_t *)user);
}
static void one_has_no_room(side *s) {
    cdp_call kept = {0}, c[5] = {{0}};
    if (s->rank == 0) {
        static const uint32_t list[5] = {1, 0, 1, 2, 2};
        const uint64_t from = test_now_ns(), limit = 200 * TEST_SLACK;
        uint32_t ended = 0;
        OK(cdp_rpc_start(s->rpc, CALL(.to = 1, F("keep")), &kept));
        OK(cdp_rpc_start_many(s->rpc,
            CALL(F("nothing"), .timeout_ms = (uint32_t)limit, .done = count_done, .user = &ended),
            list, 5, c));
        T_EQ(CDP_ERR_TIMEOUT, cdp_call_wait_many(c, 5));
        T_TEXT("nothing on rank 1 (rank1): no answer within ", cdp_last_error()->text);
        T_WITHIN(limit + limit / 10 + 50, test_now_ns() - from);
        T_EQ(5, counted_of(&ended));
        for (uint32_t i = 0; i < 5; ++i) {
            T_EQ(list[i] == 1 ? CDP_ERR_TIMEOUT : CDP_OK, c[i].status);
            T_EQ(list[i] == 1 ? CDP_RAN_NO : CDP_RAN_YES, c[i].ran);
        }
        cdp_call_free_many(c, 5);
    } else {
        if (s->rank == 1) serve_until(s, &s->kept_count, 1);
    }
    meet(s, &place);
    if (s->rank == 1) OK(cdp_rpc_reply(s->kept[0], NULL));
    if (s->rank == 0) {
        OK(cdp_call_wait(&kept));
        cdp_call_free(&kept);
        OK(cdp_rpc_call_many(s->rpc, CALL(F("nothing")), NULL, ranks, c)); /* it has room again */
        cdp_call_free_many(c, ranks);
    }
    meet(s, &place);
}
static void with_limits_at_1(void) {
    like.max_calls = like.max_queue = like.workers = 1;
}

TEST(one_of_many_ranks_has_no_room) {
    with_limits_at_1();
    run_many(3, one_has_no_room);
}

/* A call to oneself does not wait until another rank has room, either: nothing else happens. */
static void only_itself(side *s) {
    static const uint32_t list[2] = {1, 0};
    cdp_call kept = {0}, c[2] = {{0}};
    if (s->rank == 0) {
        OK(cdp_rpc_start(s->rpc, CALL(.to = 1, F("keep")), &kept));
        OK(cdp_rpc_start_many(
            s->rpc, CALL(F("nothing"), .timeout_ms = 100 * TEST_SLACK), list, 2, c));
        T_EQ(CDP_ERR_TIMEOUT, cdp_call_wait(&c[0]));
        OK(cdp_call_wait(&c[1]));
        cdp_call_free_many(c, 2);
    } else {
        serve_until(s, &s->kept_count, 1);
    }
    meet(s, &place);
    if (s->rank == 1) OK(cdp_rpc_reply(s->kept[0], NULL));
    if (s->rank == 0) {
        OK(cdp_call_wait(&kept));
        cdp_call_free(&kept);
    }
    meet(s, &place);
}

TEST(a_call_to_oneself_runs_while_another_rank_has_no_room) {
    with_limits_at_1();
    run_many(2, only_itself);
}

/* Every rank calls all, twice over, with all limits at 1. */
static void all_call_all(side *s) {
    cdp_call c[16];
    uint32_t list[16];
    memset(c, 0, sizeof c);
    for (uint32_t i = 0; i < 2 * ranks; ++i)
        list[i] = i / 2;
    for (uint32_t round = 0; round < 5; ++round) {
        OK(cdp_rpc_call_many(s->rpc, CALL(F("whoami")), list, 2 * ranks, c));
        for (uint32_t i = 0; i < 2 * ranks; ++i)
            if (T(c[i].data != NULL)) T_EQ(s->rank * 1000 + list[i], i64_at(c[i].data, 0));
        cdp_call_free_many(c, 2 * ranks);
    }
    meet(s, &place);
}

TEST(all_ranks_call_all_with_limits_at_1) {
    with_limits_at_1();
    run_many(8, all_call_all);
    with_limits_at_1();
    run_many(1, all_call_all);
}

/* Where a start does not wait for room, the call ends with BUSY, and its `done` is called. */
static void note_done(void *user, cdp_call *c) {
    uint32_t *ended = (uint32_t *)user;
    T_EQ(c->status == CDP_OK ? CDP_OK : cdp_last_error()->status, c->status);
    count(&ended[c->status == CDP_ERR_BUSY]);
}
static void one_is_busy(side *s) {
    cdp_call kept = {0}, c[3] = {{0}};
    if (s->rank == 0) {
        for (uint32_t told = 0; told < 2; ++told) {
            uint32_t ended[2] = {0};
            cdp_call_desc d = {F("nothing"), .user = ended};
            if (told) d.done = note_done;
            if (!told) OK(cdp_rpc_start(s->rpc, CALL(.to = 1, F("keep")), &kept));
            T_EQ(CDP_ERR_BUSY, cdp_rpc_call_many(s->rpc, &d, NULL, 3, c));
            T_TEXT("it was not started on rank 1 (rank1): ", cdp_last_error()->text);
            T_EQ(1, cdp_last_error()->peer);
            for (uint32_t i = 0; i < 3; ++i) {
                T_EQ(i == 1 ? CDP_ERR_BUSY : CDP_OK, c[i].status);
                T_EQ(i == 1 ? CDP_RAN_NO : CDP_RAN_YES, c[i].ran);
            }
            T_EQ(CDP_ERR_BUSY, cdp_call_test(&c[1]));
            T_EQ(CDP_ERR_STATE, cdp_call_cancel(&c[1]));
            T_EQ(told ? 2 : 0, counted_of(&ended[0]));
            T_EQ(told, counted_of(&ended[1]));
            cdp_call_free_many(c, 3);
        }
    } else {
        if (s->rank == 1) serve_until(s, &s->kept_count, 1);
    }
    meet(s, &place);
    if (s->rank == 1) OK(cdp_rpc_reply(s->kept[0], NULL));
    if (s->rank == 0) {
        OK(cdp_call_wait(&kept));
        cdp_call_free(&kept);
    }
    meet(s, &place);
}

TEST(one_of_many_ranks_is_busy) {
    like.fail_when_full = true;
    like.max_calls = 1;
    run_many(3, one_is_busy);
}

/* Long arguments are read in place by all, and given back once. */
static void long_arguments(side *s) {
    const uint64_t bytes = 300000;
    uint32_t back = 0;
    uint8_t *data = (uint8_t *)malloc(bytes);
    cdp_call c[4] = {{0}};
    cdp_call_desc d = {F("bytes"), BYTES(data, bytes), .release_user = &back};
    const uint64_t until = test_until_ns(10000);
    d.release = (void (*)(void *))count;
    fill_sevens(data, bytes);
    OK(cdp_rpc_call_many(s->rpc, &d, NULL, ranks, c));
    for (uint32_t i = 0; i < ranks; ++i)
        if (T(c[i].data != NULL)) T_EQ(bytes, i64_at(c[i].data, 0));
    cdp_call_free_many(c, ranks);
    while (!counted_of(&back) && test_now_ns() < until)
        (void)!cdp_rpc_serve(s->rpc, 1);
    free(data);
    meet(s, &place);
    T_EQ(1, counted_of(&back));
}

TEST(many_ranks_read_one_argument_in_place) {
    run_many(4, long_arguments);
}

/* A callback starts calls on all ranks, does not wait for them, and frees its own call. */
typedef struct relay {
    side *s;
    cdp_call next[3];
    uint32_t ended;
} relay;
static void relay_ended(void *user, cdp_call *c) {
    T_EQ(CDP_OK, c->status);
    cdp_call_free(c);
    count(&((relay *)user)->ended);
}
static void relay_starts(void *user, cdp_call *c) {
    relay *r = (relay *)user;
    T_EQ(CDP_OK, c->status);
    REFUSED(CDP_ERR_STATE, "must not wait",
        cdp_rpc_call_many(r->s->rpc, CALL(F("whoami")), NULL, 3, r->next));
    OK(cdp_rpc_start_many(
        r->s->rpc, CALL(F("whoami"), .done = relay_ended, .user = r), NULL, 3, r->next));
}
static void started_in_a_callback(side *s) {
    relay r = {.s = s};
    cdp_call c = {0};
    OK(cdp_rpc_start(
        s->rpc, CALL(.to = next_of(s), F("whoami"), .done = relay_starts, .user = &r), &c));
    serve_until(s, &r.ended, 3);
    OK(cdp_call_wait(&c));
    cdp_call_free(&c);
    meet(s, &place);
}

TEST(a_callback_starts_calls_on_many_ranks) {
    run_many(3, started_in_a_callback);
}

/* Mistakes are refused at once: nothing is started, and nothing is told. */
static void refused(side *s) {
    static const uint32_t list[2] = {0, 9};
    uint32_t told = 0;
    const cdp_value value = {.data = s};
    cdp_rref r;
    cdp_call c[3] = {{0}}, under_way[2] = {{0}};
    cdp_call_desc d = {F("nothing"), .done = count_done, .user = &told, .release_user = &told};
    d.release = (void (*)(void *))count;
    REFUSED(CDP_ERR_INVALID, "cdp_rpc_start_many: ranks[1] is 9; the group has ranks 0 to 1",
        cdp_rpc_start_many(s->rpc, &d, list, 2, c));
    REFUSED(CDP_ERR_INVALID, "count is 3 without a list of ranks",
        cdp_rpc_start_many(s->rpc, &d, NULL, 3, c));
    REFUSED(CDP_ERR_INVALID, "cdp_rpc_call_many: calls is NULL",
        cdp_rpc_call_many(s->rpc, &d, NULL, 2, NULL));
    REFUSED(CDP_ERR_INVALID, "desc is NULL", cdp_rpc_call_many(s->rpc, NULL, NULL, 2, c));
    REFUSED(CDP_ERR_INVALID, "rpc is NULL", cdp_rpc_call_many(NULL, &d, NULL, 2, c));
    REFUSED(CDP_ERR_INVALID, "calls is NULL", cdp_call_wait_many(NULL, 2));
    d.function = 0;
    REFUSED(
        CDP_ERR_INVALID, "set function of the desc", cdp_rpc_start_many(s->rpc, &d, NULL, 2, c));
    T_EQ(CDP_ERR_INVALID, c[1].status);
    d.function = cdp_rpc_id("nothing");
    if (OK(cdp_rref_create(s->rpc, &value, NULL, &r))) {
        d.on = r;
        REFUSED(CDP_ERR_INVALID, "on of the desc is a value of one rank",
            cdp_rpc_start_many(s->rpc, &d, NULL, 2, c));
        cdp_rref_drop(r);
    }
    d.on = (cdp_rref){0};
    if (!s->rank) {
        own_fail_at = 1;
        REFUSED(CDP_ERR_NOMEM, "calls", cdp_rpc_start_many(s->rpc, &d, NULL, 2, c));
        T_EQ(0, own_fail_at);
    }
    T_EQ(0, counted_of(&told));
    meet(s, &place);
    OK(cdp_rpc_start_many(s->rpc, CALL(F("keep")), NULL, 2, under_way));
    REFUSED(CDP_ERR_STATE, "is under way",
        cdp_rpc_start_many(s->rpc, CALL(F("keep")), NULL, 2, under_way));
    serve_until(s, &s->kept_count, 2);
    meet(s, &place);
    for (uint32_t i = 0; i < 2; ++i)
        OK(cdp_rpc_reply(s->kept[i], NULL));
    OK(cdp_call_wait_many(under_way, 2));
    cdp_call_free_many(under_way, 2);
    meet(s, &place);
}

TEST(mistakes_in_calls_of_many_ranks) {
    run_many(2, refused);
}

/* A rank is gone before, or is killed while its function runs: PEER_LOST for its call alone. */
static void after_a_rank_has_left(side *s) {
    cdp_call c[3] = {{0}};
    const uint64_t until = test_until_ns(10000);
    meet(s, &place);
    if (s->rank == 2) {
        cdp_rpc_destroy(s->rpc);
        gather(&place);
        return;
    }
    while (cdp_rpc_alive(s->rpc, 2) && test_now_ns() < until)
        (void)!cdp_rpc_serve(s->rpc, 1);
    if (s->rank == 0) {
        T_EQ(CDP_ERR_PEER_LOST, cdp_rpc_call_many(s->rpc, CALL(F("whoami")), NULL, 3, c));
        T_EQ(2, cdp_last_error()->peer);
        T_EQ(CDP_RAN_NO, c[2].ran);
        T_EQ(CDP_OK, c[0].status);
        if (T_EQ(CDP_OK, c[1].status)) T_EQ(1, i64_at(c[1].data, 0));
        cdp_call_free_many(c, 3);
        OK(cdp_rpc_call(s->rpc, CALL(.to = 1, F("nothing")), &c[0]));
        cdp_call_free(&c[0]);
    } else {
        serve_until(s, &s->ran, 1);
    }
    gather(&place);
    cdp_rpc_destroy(s->rpc);
}
static void after_a_rank_has_left_body(side *s) {
    open_then(s, after_a_rank_has_left);
}

TEST(one_of_many_ranks_has_left) {
    shut_by_body = true;
    run_many(3, after_a_rank_has_left_body);
}

/* ---- results, combined */

/* {}: 1000 numbers of this rank, as bytes; {1}: as a tensor */
static void f_numbers(void *user, cdp_rpc_request *q) {
    int32_t x[1000];
    cdp_iov iov = {x, sizeof x};
    cdp_tensor t = {.data = x, .dtype = CDP_DTYPE_I32, .dims = 1, .shape = {1000}};
    cdp_args args = {.iov = &iov, .iov_count = 1};
    (void)user;
    for (int32_t k = 0; k < 1000; ++k)
        x[k] = k * (int32_t)(side_of(q)->rank + 1);
    if (q->bytes) args = (cdp_args){.tensors = &t, .tensor_count = 1};
    OK(cdp_rpc_reply(q, &args));
}
/* a half of 2048, and a small one of each other rank */
static void f_halves(void *user, cdp_rpc_request *q) {
    const uint16_t half = side_of(q)->rank ? 0x3c00 : 0x6800;
    (void)user;
    reply(q, &half, 2);
}
static const cdp_rpc_function numbered[] = {{.name = "numbers", .func = f_numbers},
    {.name = "halves", .func = f_halves, .flags = CDP_RPC_INLINE}, {.name = "fail", .func = f_fail},
    {.name = "nothing", .func = f_nothing}};

static void combine(side *s) {
    int32_t out[1000];
    uint16_t mean, all;
    cdp_call c[4] = {{0}};
    char one = 1;
    for (uint32_t tensor = 0; tensor < 2; ++tensor) {
        OK(cdp_rpc_call_many(s->rpc, CALL(F("numbers"), BYTES(&one, tensor)), NULL, ranks, c));
        OK(cdp_call_reduce_many(c, ranks, CDP_DTYPE_I32, CDP_REDUCE_DEFAULT, out, 1000));
        for (int32_t k = 0; k < 1000; ++k)
            T_EQ(6 * k, out[k]);
        OK(cdp_call_reduce_many(c, ranks, CDP_DTYPE_I32, CDP_REDUCE_MAX, out, 1000));
        for (int32_t k = 0; k < 1000; ++k)
            T_EQ(3 * k, out[k]);
        OK(cdp_call_reduce_many(c + 1, 1, CDP_DTYPE_I32, CDP_REDUCE_AVG, out, 1000));
        T_EQ(2 * 999, out[999]);
        out[0] = 7;
        REFUSED(CDP_ERR_MISMATCH, "calls[0] has 4000 bytes of dtype 3, and not the 3996 of dtype",
            cdp_call_reduce_many(c, ranks, CDP_DTYPE_I32, CDP_REDUCE_SUM, out, 999));
        T_EQ(7, out[0]);
        cdp_call_free_many(c, ranks);
    }
    OK(cdp_rpc_call_many(s->rpc, CALL(F("halves")), NULL, ranks, c));
    OK(cdp_call_reduce_many(c, ranks, CDP_DTYPE_F16, CDP_REDUCE_AVG, &mean, 1));
    const uint16_t mine = s->rank ? 0x3c00 : 0x6800;
    OK(cdp_allreduce(s->g, &mine, &all, 1, CDP_DTYPE_F16, CDP_REDUCE_AVG));
    T_EQ(all, mean);
    cdp_call_free_many(c, ranks);
}
TEST(results_of_many_ranks_are_combined) {
    run_with(numbered, 4, 3, combine);
}

static void combine_wrong(side *s) {
    cdp_call c[3] = {{0}};
    int64_t out = 5;
    if (s->rank) return;
    REFUSED(CDP_ERR_STATE, "calls[0] has not ended",
        cdp_call_reduce_many(c, 3, CDP_DTYPE_I64, CDP_REDUCE_SUM, &out, 1));
    (void)!cdp_rpc_call_many(s->rpc, CALL(F("fail")), NULL, 2, c);
    REFUSED(CDP_ERR_REMOTE, "fail on rank 0",
        cdp_call_reduce_many(c, 2, CDP_DTYPE_I64, CDP_REDUCE_SUM, &out, 1));
    cdp_call_free_many(c, 2);
    OK(cdp_rpc_call_many(s->rpc, CALL(F("nothing")), NULL, 2, c));
    REFUSED(CDP_ERR_MISMATCH, "has 0 bytes",
        cdp_call_reduce_many(c, 2, CDP_DTYPE_I64, CDP_REDUCE_SUM, &out, 1));
    OK(cdp_call_reduce_many(c, 2, CDP_DTYPE_I64, CDP_REDUCE_SUM, NULL, 0));
    REFUSED(CDP_ERR_INVALID, "0 calls",
        cdp_call_reduce_many(c, 0, CDP_DTYPE_I64, CDP_REDUCE_SUM, &out, 1));
    REFUSED(CDP_ERR_INVALID, "dtype 77",
        cdp_call_reduce_many(c, 2, (cdp_dtype)77, CDP_REDUCE_SUM, &out, 1));
    REFUSED(CDP_ERR_INVALID, "op 99",
        cdp_call_reduce_many(c, 2, CDP_DTYPE_I64, (cdp_reduce_op)99, &out, 1));
    REFUSED(CDP_ERR_UNSUPPORTED, "does not exist",
        cdp_call_reduce_many(c, 2, CDP_DTYPE_F32, CDP_REDUCE_BAND, &out, 1));
    REFUSED(CDP_ERR_INVALID, "out is NULL",
        cdp_call_reduce_many(c, 2, CDP_DTYPE_I64, CDP_REDUCE_SUM, NULL, 1));
    REFUSED(CDP_ERR_INVALID, "calls is NULL",
        cdp_call_reduce_many(NULL, 2, CDP_DTYPE_I64, CDP_REDUCE_SUM, &out, 1));
    T_EQ(5, out);
    cdp_call_free_many(c, 2);
}
TEST(mistakes_in_combining_results_write_nothing) {
    run_with(numbered, 4, 2, combine_wrong);
}

static void f_dies_on_2(void *user, cdp_rpc_request *q) {
    (void)user;
    if (side_of(q)->rank == 2) raise(SIGKILL);
    reply_i64(q, side_of(q)->rank);
}
static const cdp_rpc_function deadly[] = {
    {.name = "dies_on_2", .func = f_dies_on_2}, {.name = "nothing", .func = f_nothing}};

static void killed(side *s) {
    cdp_call c[3] = {{0}};
    if (s->rank == 0) {
        T_EQ(CDP_ERR_PEER_LOST, cdp_rpc_call_many(s->rpc, CALL(F("dies_on_2")), NULL, 3, c));
        T_TEXT("dies_on_2 on rank 2 (rank2): ", cdp_last_error()->text);
        T_EQ(2, cdp_last_error()->peer);
        for (uint32_t i = 0; i < 2; ++i)
            if (T_EQ(CDP_OK, c[i].status)) T_EQ(i, i64_at(c[i].data, 0));
        cdp_call_free_many(c, 3);
        OK(cdp_rpc_call(s->rpc, CALL(.to = 1, F("nothing")), &c[0]));
        cdp_call_free(&c[0]);
    } else {
        serve_until(s, &s->ran, 1);
    }
    cdp_rpc_destroy(s->rpc);
}

TEST(one_of_many_ranks_is_killed) {
    like.functions = deadly;
    like.function_count = 2;
    run_processes(killed);
    memset(&like, 0, sizeof like);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"each_of_many_ranks_answers", each_of_many_ranks_answers, 60},
        {"one_of_many_ranks_fails", one_of_many_ranks_fails, 60},
        {"one_of_many_ranks_is_slow", one_of_many_ranks_is_slow, 60},
        {"one_of_many_ranks_has_no_room", one_of_many_ranks_has_no_room, 60},
        {"a_call_to_oneself_runs_while_another_rank_has_no_room",
            a_call_to_oneself_runs_while_another_rank_has_no_room, 60},
        {"all_ranks_call_all_with_limits_at_1", all_ranks_call_all_with_limits_at_1, 60},
        {"one_of_many_ranks_is_busy", one_of_many_ranks_is_busy, 60},
        {"many_ranks_read_one_argument_in_place", many_ranks_read_one_argument_in_place, 60},
        {"a_callback_starts_calls_on_many_ranks", a_callback_starts_calls_on_many_ranks, 60},
        {"mistakes_in_calls_of_many_ranks", mistakes_in_calls_of_many_ranks, 60},
        {"one_of_many_ranks_has_left", one_of_many_ranks_has_left, 60},
        {"results_of_many_ranks_are_combined", results_of_many_ranks_are_combined, 60},
        {"mistakes_in_combining_results_write_nothing", mistakes_in_combining_results_write_nothing,
            60},
        {"one_of_many_ranks_is_killed", one_of_many_ranks_is_killed, 60}};
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
