/* test_rpc_scenarios.c - the scenarios of torch.distributed.rpc's own tests that test_rpc.c and
   test_rpc_calls.c do not have, by their names there; and beside them what ends, breaks or comes
   too late. */
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"

#include "cdp_rpc.h"

#include "rpc_sides.h"

/* ---- functions of these scenarios ---- */

/* works on 100 x 100 numbers */
static void f_heavy(void *user, cdp_rpc_request *q) {
    static const uint32_t n = 100;
    double *a = (double *)calloc(2 * n * n, sizeof *a), sum = 0;
    (void)user;
    for (uint32_t i = 0; i < n * n; ++i)
        a[i] = 1;
    for (uint32_t i = 0; i < n; ++i)
        for (uint32_t j = 0; j < n; ++j)
            for (uint32_t k = 0; k < n; ++k)
                a[n * n + i * n + j] += a[i * n + k] * a[k * n + j];
    for (uint32_t i = 0; i < n * n; ++i)
        sum += a[n * n + i];
    free(a);
    reply_i64(q, (int64_t)sum);
}

/* keeps the request, and answers it when a call of its own has ended */
typedef struct chained {
    cdp_rpc_request *q;
    cdp_call c;
} chained;
static void chained_done(void *user, cdp_call *done) {
    chained *h = (chained *)user;
    if (done->status == CDP_OK)
        reply_i64(h->q, 1 + i64_at(done->data, 0));
    else
        OK(cdp_rpc_fail(h->q, 5, done->error.text));
}
static chained chains[RANKS_MAX][256];
static uint32_t chains_used[RANKS_MAX];
static void f_later_chain(void *user, cdp_rpc_request *q) {
    side *s = side_of(q);
    const int64_t ttl = i64_at(q->data, 0) - 1;
    chained *h = &chains[s->rank][__atomic_fetch_add(&chains_used[s->rank], 1, __ATOMIC_SEQ_CST)];
    int64_t x = ttl;
    (void)user;
    memset(h, 0, sizeof *h);
    h->q = q;
    OK(cdp_rpc_start(q->rpc,
        CALL(.to = (s->rank + 1) % ranks, .function = cdp_rpc_id(ttl > 0 ? "later_chain" : "add"),
            BYTES(&x, 8), .done = chained_done, .user = h),
        &h->c));
}
/* keeps the request; another call fails all that were kept */
static void f_fail_kept(void *user, cdp_rpc_request *q) {
    side *s = side_of(q);
    (void)user;
    for (uint32_t i = 0; i < s->kept_count; ++i)
        OK(cdp_rpc_fail(s->kept[i], 6, "raised later"));
    __atomic_store_n(&s->kept_count, 0, __ATOMIC_SEQ_CST);
}
/* a reference to a reference, ttl deep */
static void f_deep(void *user, cdp_rpc_request *q) {
    int64_t ttl = i64_at(q->data, 0) - 1;
    cdp_rref r;
    (void)user;
    if (!OK(cdp_rpc_remote(q->rpc,
            CALL(.to = (side_of(q)->rank + 1) % ranks,
                .function = cdp_rpc_id(ttl ? "deep" : "counter"), BYTES(&ttl, 8)),
            &r)))
        return;
    OK(cdp_rpc_reply(q, &(cdp_args){.rrefs = &r, .rref_count = 1}));
    cdp_rref_drop(r);
}
/* a new counter of this rank, and a reference to it, after 60 ms */
static void f_slow_lend(void *user, cdp_rpc_request *q) {
    test_sleep_ms(60);
    f_lend(user, q);
}
static const cdp_rpc_function scenario_functions[] = {
    {.name = "add", .func = f_add, .flags = CDP_RPC_INLINE}, {.name = "nothing", .func = f_nothing},
    {.name = "echo", .func = f_echo, .flags = CDP_RPC_INLINE}, {.name = "fail", .func = f_fail},
    {.name = "sleep", .func = f_sleep}, {.name = "heavy", .func = f_heavy},
    {.name = "later_chain", .func = f_later_chain, .flags = CDP_RPC_LATER},
    {.name = "keep", .func = f_keep, .flags = CDP_RPC_LATER | CDP_RPC_INLINE},
    {.name = "fail_kept", .func = f_fail_kept, .flags = CDP_RPC_INLINE},
    {.name = "chain", .func = f_chain}, {.name = "counter", .func = f_counter},
    {.name = "count", .func = f_count}, {.name = "sum_of", .func = f_sum_of},
    {.name = "give_back", .func = f_give_back}, {.name = "lend", .func = f_lend},
    {.name = "slow_lend", .func = f_slow_lend}, {.name = "deep", .func = f_deep},
    {.name = "two_tensors", .func = f_nothing, .max_tensors = 2, .max_rrefs = 1},
    {.name = "mul", .func = f_mul, .backward = b_mul},
    {.name = "mul_fails", .func = f_mul, .backward = b_fails},
    {.name = "weight_grad", .func = f_weight_grad}, {.name = "weight_rref", .func = f_weight_rref}};

static void scenario(uint32_t n, void (*func)(side *s)) {
    like.functions = scenario_functions;
    like.function_count = sizeof scenario_functions / sizeof *scenario_functions;
    memset(chains_used, 0, sizeof chains_used);
    run(n, func);
}

/* ---- names and start ---- */

static void to_wrong_ranks(side *s) {
    cdp_call c = {0};
    REFUSED(CDP_ERR_INVALID, "to is 4294967295; the group has ranks 0 to 2",
        cdp_rpc_call(s->rpc, CALL(.to = UINT32_MAX, F("add")), &c));
    REFUSED(CDP_ERR_INVALID, "to is 3; the group has ranks 0 to 2",
        cdp_rpc_call(s->rpc, CALL(.to = 3, F("add")), &c));
    T_EQ(3, call_i64(s, next_of(s), "add", 1, 2));
}
TEST(send_to_rank) {
    scenario(3, to_wrong_ranks);
}

/* reinit: here a second rpc beside the first is no mistake; the two know nothing of each other. */
static void again(side *s) {
    const cdp_rpc_desc d = desc_of(s);
    cdp_rpc *other = NULL, *first = s->rpc;
    if (!OK(cdp_rpc_create(&d, &other))) return;
    T_EQ(3, call_i64(s, next_of(s), "add", 1, 2));
    s->rpc = other;
    T_EQ(4, call_i64(s, next_of(s), "add", 2, 2));
    OK(cdp_rpc_shutdown(other, 0));
    cdp_rpc_destroy(other);
    s->rpc = first;
    T_EQ(5, call_i64(s, next_of(s), "add", 3, 2));
}
TEST(reinit) {
    scenario(2, again);
}

/* init_pg_then_rpc, init_rpc_then_pg: collectives of a group and calls at the same time. */
static void both(side *s) {
    int64_t x[2] = {1, 2};
    for (uint32_t i = 0; i < 20; ++i) {
        int64_t sum = s->rank;
        cdp_call c = {0};
        OK(cdp_rpc_start(s->rpc, CALL(.to = next_of(s), F("add"), BYTES(x, 16)), &c));
        OK(cdp_allreduce(s->g, NULL, &sum, 1, CDP_DTYPE_I64, CDP_REDUCE_SUM));
        T_EQ(3, sum);
        OK(cdp_call_wait(&c));
        cdp_call_free(&c);
    }
}
TEST(init_rpc_then_pg) {
    scenario(3, both);
}

static void workers(side *s) {
    char text[4000], few[20];
    cdp_call c = {0};
    static uint32_t place;
    OK(cdp_rpc_start(
        s->rpc, CALL(.to = next_of(s), F("keep"), .timeout_ms = 9000 * TEST_SLACK), &c));
    const uint64_t until = test_until_ns(10000);
    while (!counted_of(&s->kept_count) && test_now_ns() < until)
        (void)!cdp_rpc_serve(s->rpc, 1);
    meet(s, &place);
    T(cdp_rpc_describe(s->rpc, text, sizeof text) < sizeof text);
    T_TEXT(how == HUB || how >= TCP ? "3 workers" : "0 workers", text);
    T_TEXT("max_calls 256", text);
    T_TEXT("call of keep on rank", text);
    T_TEXT("waits for the answer", text);
    T_TEXT("for keep: was kept", text);
    T(cdp_rpc_describe(s->rpc, few, sizeof few) > 100); /* of the whole text */
    T_EQ(sizeof few - 1, strlen(few));
    T_EQ(0, cdp_rpc_describe(NULL, text, sizeof text));
    meet(s, &place);
    OK(cdp_rpc_reply(s->kept[0], NULL));
    OK(cdp_call_wait(&c));
    cdp_call_free(&c);
}
TEST(set_and_get_num_worker_threads) {
    like.workers = 3;
    scenario(2, workers);
}

/* ---- calls ---- */

static void heavies(side *s) {
    cdp_call c[20] = {{0}};
    for (uint32_t i = 0; i < 20; ++i)
        OK(cdp_rpc_start(s->rpc, CALL(.to = (s->rank + i) % ranks, F("heavy")), &c[i]));
    for (uint32_t i = 0; i < 20; ++i) {
        OK(cdp_call_wait(&c[i]));
        T_EQ(1000000, i64_at(c[i].data, 0));
        cdp_call_free(&c[i]);
    }
}
TEST(stress_heavy_rpc) {
    scenario(2, heavies);
}

/* deadlock: one rank waits for a slow call of its own while the others make a group. */
static void slow_one(side *s) {
    const uint32_t all[] = {0, 1, 2};
    int64_t ms = 60;
    cdp_group *g = NULL;
    cdp_call c = {0};
    if (s->rank == 0) OK(cdp_rpc_start(s->rpc, CALL(.to = 0, F("sleep"), BYTES(&ms, 8)), &c));
    if (s->rank == 0) OK(cdp_call_wait(&c));
    cdp_call_free(&c);
    OK(cdp_group_new(s->g, all, 3, &g));
    OK(cdp_barrier(g));
    cdp_group_destroy(g);
}
TEST(deadlock) {
    scenario(3, slow_one);
}

/* ---- waiting ---- */

static void wait_alls(side *s) {
    cdp_call c[20] = {{0}}, *list[20];
    int64_t x[2] = {1, 2}, ms = 5000;
    for (uint32_t round = 0; round < 4; ++round) { /* none, all, one of them fails; one is late */
        for (uint32_t i = 0; i < 20; ++i) {
            const bool fails = round == 1 || (round == 2 && i == 11);
            const bool late = round == 3 && i == 4;
            const char *name = fails ? "fail" : "add";
            const cdp_call_desc d = {.to = next_of(s),
                .function = cdp_rpc_id(late ? "sleep" : name),
                .timeout_ms = late ? 30 : 0,
                BYTES(late ? &ms : x, 8)};
            list[i] = &c[i];
            OK(cdp_rpc_start(s->rpc, &d, list[i]));
        }
        const cdp_status expected[] = {CDP_OK, CDP_ERR_REMOTE, CDP_ERR_REMOTE, CDP_ERR_TIMEOUT};
        T_EQ(expected[round], cdp_call_wait_all(list, 20));
        for (uint32_t i = 0; i < 20; ++i) { /* future_done, future_done_exception */
            T(cdp_call_test(list[i]) != CDP_PENDING);
            T_EQ(round == 0, cdp_call_test(list[i]) == CDP_OK && round == 0);
            cdp_call_free(list[i]);
        }
    }
}
TEST(wait_all_with_partial_exception) {
    scenario(2, wait_alls);
}

/* ---- callbacks ---- */

/* callback_multi: ten functions on one call; each gets the result. */
typedef struct tenth {
    cdp_call *c;
    uint32_t calls;
    int64_t sum;
} tenth;
static cdp_status on_tenth(void *user, cdp_status status) {
    tenth *t = (tenth *)user;
    if (T_EQ(CDP_OK, status)) t->sum = i64_at(t->c->data, 0);
    count(&t->calls);
    return CDP_OK;
}
static void ten(side *s) {
    int64_t x[2] = {30, 12};
    cdp_call c = {0};
    tenth t[10];
    cdp_work w, next[10];
    memset(t, 0, sizeof t);
    OK(cdp_rpc_start(s->rpc, CALL(.to = next_of(s), F("add"), BYTES(x, 16)), &c));
    OK(cdp_call_work(&c, &w));
    for (uint32_t i = 0; i < 10; ++i) {
        t[i].c = &c;
        OK(cdp_work_then(w, on_tenth, &t[i], &next[i]));
    }
    for (uint32_t i = 0; i < 10; ++i) {
        OK(cdp_work_wait(next[i]));
        T_EQ(1, counted_of(&t[i].calls));
        T_EQ(42, t[i].sum);
    }
    cdp_call_free(&c);
}
TEST(callback_multi) {
    scenario(2, ten);
}

/* ---- reply later ---- */

/* async_function_chained, _nested, callback_in_rpc, future_in_rpc: functions that answer when
   callbacks of their own calls run, on top of each other over all ranks. */
static void later(side *s) {
    static uint32_t place;
    int64_t ttl = 9;
    cdp_call c = {0};
    for (uint32_t i = 0; i < 3; ++i) {
        OK(cdp_rpc_call(s->rpc, CALL(.to = next_of(s), F("later_chain"), BYTES(&ttl, 8)), &c));
        T_EQ(9, i64_at(c.data, 0));
        cdp_call_free(&c);
    }
    meet(s, &place);
    for (uint32_t i = 0; i < chains_used[s->rank]; ++i)
        cdp_call_free(&chains[s->rank][i].c);
    chains_used[s->rank] = 0;
}
TEST(async_function_nested) {
    scenario(3, later);
}

static void raises_later(side *s) {
    cdp_call c[3] = {{0}};
    static uint32_t place;
    meet(s, &place);
    for (uint32_t i = 0; i < 3; ++i)
        OK(cdp_rpc_start(s->rpc, CALL(.to = next_of(s), F("keep")), &c[i]));
    OK(cdp_rpc_call(s->rpc, CALL(.to = next_of(s), F("fail_kept")), &(cdp_call){0}));
    for (uint32_t i = 0; i < 3; ++i) {
        T_EQ(CDP_ERR_REMOTE, cdp_call_wait(&c[i]));
        T_TEXT("raised later", c[i].error.text);
        T_EQ(6, c[i].code);
        cdp_call_free(&c[i]);
    }
}
TEST(async_function_raise) {
    scenario(2, raises_later);
}

/* ---- time ---- */

static void defaults(side *s) {
    int64_t ms = 400;
    cdp_call c[10] = {{0}};
    for (uint32_t i = 0; i < 10; ++i)
        OK(cdp_rpc_start(s->rpc, CALL(.to = next_of(s), F("sleep"), BYTES(&ms, 8)), &c[i]));
    for (uint32_t i = 0; i < 10; ++i) {
        T_EQ(CDP_ERR_TIMEOUT, cdp_call_wait(&c[i]));
        T_TEXT("no answer within 20 ms", c[i].error.text);
        cdp_call_free(&c[i]);
    }
    ms = 40; /* its own time beats the default */
    OK(cdp_rpc_call(
        s->rpc, CALL(.to = next_of(s), F("sleep"), BYTES(&ms, 8), .timeout_ms = 20000), &c[0]));
    cdp_call_free(&c[0]);
    OK(cdp_rpc_call(s->rpc,
        CALL(.to = next_of(s), F("sleep"), BYTES(&ms, 8), .timeout_ms = CDP_NO_TIMEOUT), &c[0]));
    cdp_call_free(&c[0]);
}
TEST(default_timeout_used) {
    like.timeout_ms = 20;
    scenario(2, defaults);
}

/* ---- references ---- */

/* py_rref_args: a call at the owner of two values takes both. rref_type, owner_equality. */
static void two_of_its_own(side *s) {
    int64_t x[2] = {20, 0}, y[2] = {22, 0};
    cdp_rref r[2];
    cdp_rref_info a, b;
    cdp_call c = {0};
    OK(cdp_rpc_remote(s->rpc, CALL(.to = next_of(s), F("counter"), BYTES(x, 16)), &r[0]));
    OK(cdp_rpc_remote(s->rpc, CALL(.to = next_of(s), F("counter"), BYTES(y, 16)), &r[1]));
    OK(cdp_rpc_call(
        s->rpc, CALL(.to = next_of(s), F("sum_of"), .args = {.rrefs = r, .rref_count = 2}), &c));
    T_EQ(42, i64_at(c.data, 0));
    cdp_call_free(&c);
    OK(cdp_rref_confirmed(r[0], 10000));
    OK(cdp_rref_info_of(r[0], &a));
    OK(cdp_rref_info_of(r[1], &b));
    T(a.rid != b.rid && a.owner == b.owner && a.owner == next_of(s));
    T_EQ(CDP_OK, a.status);
    T(!a.is_owner);
    /* rref_proxy_non_exist: what is not there is named; rref_proxy_reuse */
    T_EQ(CDP_ERR_UNSUPPORTED, cdp_rpc_call(s->rpc, CALL(.on = r[0], F("no_such")), &c));
    T_TEXT("no function of this name", c.error.text);
    cdp_call_free(&c);
    x[0] = 1;
    for (int64_t i = 0; i < 10; ++i) {
        OK(cdp_rpc_call(s->rpc, CALL(.on = r[0], F("count"), BYTES(x, 8)), &c));
        T_EQ(21 + i, i64_at(c.data, 0));
        cdp_call_free(&c);
    }
    cdp_rref_drop(r[0]);
    cdp_rref_drop(r[1]);
}
TEST(py_rref_args) {
    scenario(3, two_of_its_own);
}

/* return_local_rrefs: changes at the owner are seen by whoever fetches later. */
static void changes(side *s) {
    int64_t x = 10;
    cdp_call c = {0}, here = {0};
    OK(cdp_rpc_call(s->rpc, CALL(.to = next_of(s), F("lend"), BYTES(&x, 8)), &c));
    for (int64_t i = 11; i < 14; ++i) {
        x = 1;
        OK(cdp_rpc_call(s->rpc, CALL(.on = c.rrefs[0], F("count"), BYTES(&x, 8)), &here));
        cdp_call_free(&here);
        OK(cdp_rref_to_here(c.rrefs[0], 0, &here));
        T_EQ(i, i64_at(here.data, 0));
        cdp_call_free(&here);
    }
    cdp_call_free(&c);
}
TEST(return_local_rrefs) {
    scenario(2, changes);
}

/* rref_forward_chain: eight references, each is the value of the one before. */
static void forward(side *s) {
    int64_t ttl = 8;
    cdp_rref r;
    cdp_call c = {0};
    OK(cdp_rpc_remote(s->rpc, CALL(.to = next_of(s), F("deep"), BYTES(&ttl, 8)), &r));
    for (uint32_t i = 0; i < 8; ++i) {
        OK(cdp_rref_to_here(r, 0, &c));
        if (!T_EQ(1, c.rref_count)) return;
        cdp_rref_drop(r);
        r = c.rrefs[0];
        cdp_rref_keep(r);
        cdp_call_free(&c);
    }
    OK(cdp_rref_to_here(r, 0, &c));
    T_EQ(0, i64_at(c.data, 0));
    cdp_call_free(&c);
    cdp_rref_drop(r);
}
TEST(rref_forward_chain) {
    scenario(3, forward);
}

/* nested_rref_stress: twenty at once, each a list of references on a third rank. */
static void nested_many(side *s) {
    enum {
        N = 20
    };
    cdp_rref r[N];
    cdp_call c = {0}, here = {0};
    for (uint32_t i = 0; i < N; ++i) {
        int64_t ttl = 1;
        OK(cdp_rpc_remote(s->rpc, CALL(.to = next_of(s), F("deep"), BYTES(&ttl, 8)), &r[i]));
    }
    for (uint32_t i = 0; i < N; ++i) {
        OK(cdp_rref_to_here(r[i], 0, &c));
        if (T_EQ(1, c.rref_count)) OK(cdp_rref_to_here(c.rrefs[0], 0, &here));
        T_EQ(0, i64_at(here.data, 0));
        cdp_call_free(&here);
        cdp_call_free(&c);
        cdp_rref_drop(r[i]);
    }
}
TEST(nested_rref_stress) {
    scenario(3, nested_many);
}

static void after_shutdown(side *s) {
    int64_t x[2] = {1, 0};
    cdp_rref r;
    cdp_call c = {0};
    OK(cdp_rpc_remote(s->rpc, CALL(.to = s->rank, F("counter"), BYTES(x, 16)), &r));
    OK(cdp_rref_to_here(r, 0, &c));
    cdp_call_free(&c);
    OK(cdp_rpc_shutdown(s->rpc, 0));
    REFUSED(CDP_ERR_STATE, "was shut down", cdp_rref_to_here(r, 0, &c));
    REFUSED(CDP_ERR_STATE, "was shut down",
        cdp_rpc_call(s->rpc, CALL(.to = next_of(s), F("sum_of"), RREF(r)), &c));
    REFUSED(CDP_ERR_STATE, "was shut down",
        cdp_rref_create(s->rpc, &(cdp_value){.type = 1}, NULL, &(cdp_rref){0}));
    cdp_rref_drop(r);
    OK(cdp_barrier(s->g));
    cdp_rpc_destroy(s->rpc);
    T_EQ(s->values.made, s->values.destroyed);
}
static void after_shutdown_body(side *s) {
    open_then(s, after_shutdown);
}
TEST(use_rref_after_shutdown) {
    shut_by_body = true;
    scenario(2, after_shutdown_body);
}

/* A reference in the reply to a call that timed out, or was cancelled; one in a call that is
   refused; one that is dropped while it is being fetched: none is left anywhere. */
static void too_late(side *s) {
    static uint32_t place;
    int64_t x = 5;
    cdp_call c[2] = {{0}};
    cdp_rref r;
    cdp_rpc_stats st;
    meet(s, &place);
    OK(cdp_rpc_start(
        s->rpc, CALL(.to = next_of(s), F("slow_lend"), BYTES(&x, 8), .timeout_ms = 20), &c[0]));
    OK(cdp_rpc_start(s->rpc, CALL(.to = next_of(s), F("slow_lend"), BYTES(&x, 8)), &c[1]));
    const cdp_status st_late = cdp_call_wait(&c[0]);
    /* OK: all stood still until there was an answer, too */
    T(st_late == CDP_ERR_TIMEOUT || st_late == CDP_OK);
    (void)cdp_call_cancel(&c[1]);
    cdp_call_free(&c[0]);
    cdp_call_free(&c[1]);
    OK(cdp_rpc_call(s->rpc, CALL(.to = next_of(s), F("lend"), BYTES(&x, 8)), &c[0]));
    r = c[0].rrefs[0];
    T_EQ(CDP_ERR_UNSUPPORTED,
        cdp_rpc_call(s->rpc, CALL(.to = (s->rank + 2) % ranks, F("no_such"), RREF(r)), &c[1]));
    cdp_call_free(&c[1]);
    T_EQ(CDP_ERR_INVALID,
        cdp_rpc_call(s->rpc,
            CALL(.to = (s->rank + 2) % ranks, F("two_tensors"),
                .args = {.rrefs = (cdp_rref[2]){r, r}, .rref_count = 2}),
            &c[1]));
    T_TEXT("have 2 references, max_rrefs of the function is 1", c[1].error.text);
    cdp_call_free(&c[1]);
    OK(cdp_rref_fetch(r, 0, &c[1]));
    cdp_call_free(&c[0]); /* its only handle goes while it is being fetched */
    OK(cdp_call_wait(&c[1]));
    T_EQ(5, i64_at(c[1].data, 0));
    cdp_call_free(&c[1]);
    meet(s, &place);
    const uint64_t until = test_until_ns(10000);
    do {
        (void)!cdp_rpc_serve(s->rpc, 2);
        st = cdp_rpc_stats_of(s->rpc);
    } while (st.owners + st.users + st.forks + st.holds && test_now_ns() < until);
    T_EQ(0, st.owners + st.users + st.forks + st.holds);
    meet(s, &place);
}
TEST(references_that_come_too_late_are_dropped) {
    scenario(3, too_late);
}

/* A thousand references to one value go to another rank and are dropped there. */
static void thousand(side *s) {
    cdp_value v = counter_value(s, 3, iov_next());
    cdp_rref r;
    OK(cdp_rref_create(s->rpc, &v, NULL, &r));
    for (uint32_t i = 0; i < 1000; ++i) {
        cdp_call c = {0};
        OK(cdp_rpc_call(s->rpc, CALL(.to = next_of(s), F("nothing"), RREF(r)), &c));
        cdp_call_free(&c);
    }
    cdp_rref_drop(r);
}
TEST(a_thousand_forks) {
    scenario(2, thousand);
}

/* A call that makes a value, with a reference in it that breaks before the call has left: whoever
   waits for that value is told at once. */
static void breaks_before_it_left(side *s) {
    static uint32_t place;
    int64_t x[2] = {1, 0};
    cdp_rref far, made;
    cdp_call c = {0};
    gather(&place);
    if (s->rank == 0) { /* rank 2 does not confirm: it lets nothing advance */
        OK(cdp_rpc_remote(s->rpc, CALL(.to = 2, F("counter"), BYTES(x, 16)), &far));
        OK(cdp_rpc_remote(s->rpc,
            CALL(.to = 1, F("counter"),
                .args = {.iov = &(cdp_iov){x, 16}, .iov_count = 1, .rrefs = &far, .rref_count = 1}),
            &made));
        T_EQ(CDP_PENDING, cdp_rref_confirmed(made, 0));
        OK(cdp_rref_fetch(made, 20000, &c));
        T_EQ(1, cdp_rpc_stats_of(s->rpc).holds);
        const uint64_t from = test_now_ns();
        cdp_channel_drop(s->rpc->channel, 2, "for the test");
        T_EQ(CDP_ERR_PEER_LOST, cdp_rref_confirmed(made, 15000));
        T_EQ(CDP_ERR_PEER_LOST, cdp_call_wait(&c));
        T_EQ(CDP_RAN_NO, c.ran);
        T_WITHIN(1000, test_now_ns() - from);
        cdp_call_free(&c);
        cdp_rref_drop(made);
        cdp_rref_drop(far);
        T_EQ(0, cdp_rpc_stats_of(s->rpc).users);
    }
    gather(&place);
    cdp_rpc_destroy(s->rpc);
}
static void breaks_body(side *s) {
    if (how == HUB_POLLED) open_then(s, breaks_before_it_left);
}
TEST(a_reference_that_breaks_before_its_call_left) {
    shut_by_body = true;
    scenario(3, breaks_body);
}

/* ---- limits ---- */

/* One byte, one tensor, one reference too many, on each path. */
static void too_much(side *s) {
    static uint8_t data[RANKS_MAX][1001];
    cdp_tensor t[17];
    cdp_rref r, many[17];
    cdp_call c = {0};
    cdp_value v = {.type = 1};
    for (uint32_t i = 0; i < 17; ++i)
        t[i] = (cdp_tensor){.data = data[s->rank], .dtype = CDP_DTYPE_U8};
    OK(cdp_rref_create(s->rpc, &v, NULL, &r));
    for (uint32_t i = 0; i < 17; ++i)
        many[i] = r;
    for (uint32_t to = 0; to < ranks; ++to) {
        OK(cdp_rpc_call(s->rpc, CALL(.to = to, F("echo"), BYTES(data[s->rank], 1000)), &c));
        T_EQ(1000, c.bytes);
        cdp_call_free(&c);
        REFUSED(CDP_ERR_INVALID, "arguments of 1001 bytes; max_message_bytes",
            cdp_rpc_call(s->rpc, CALL(.to = to, F("echo"), BYTES(data[s->rank], 1001)), &c));
        REFUSED(CDP_ERR_INVALID, "17 tensors in one message; at most 16",
            cdp_rpc_call(
                s->rpc, CALL(.to = to, F("echo"), .args = {.tensors = t, .tensor_count = 17}), &c));
        REFUSED(CDP_ERR_INVALID, "17 references in one message; at most 16",
            cdp_rpc_call(
                s->rpc, CALL(.to = to, F("echo"), .args = {.rrefs = many, .rref_count = 17}), &c));
        REFUSED(CDP_ERR_INVALID, "args.rrefs is NULL",
            cdp_rpc_call(s->rpc, CALL(.to = to, F("echo"), .args = {.rref_count = 1}), &c));
        T_EQ(CDP_ERR_INVALID,
            cdp_rpc_call(s->rpc,
                CALL(.to = to, F("two_tensors"), .args = {.tensors = t, .tensor_count = 3}), &c));
        T_TEXT("have 3 tensors, max_tensors of the function is 2", c.error.text);
        T_EQ(CDP_RAN_NO, c.ran);
        cdp_call_free(&c);
    }
    cdp_rref_drop(r);
}
TEST(one_too_many_is_refused) {
    like.max_message_bytes = 1000;
    scenario(2, too_much);
}

/* Ten thousand calls under way at once. */
static void ten_thousand(side *s) {
    enum {
        N = 10000
    };
    static cdp_call calls[2][N];
    static uint32_t place;
    memset(calls[s->rank], 0, sizeof calls[0]);
    for (uint32_t i = 0; i < N; ++i) {
        int64_t x = i;
        if (!OK(cdp_rpc_start(
                s->rpc, CALL(.to = next_of(s), F("add"), BYTES(&x, 8)), &calls[s->rank][i])))
            break;
    }
    for (uint32_t i = 0; i < N; ++i) {
        if (!OK(cdp_call_wait(&calls[s->rank][i]))) break;
        T_EQ(i, i64_at(calls[s->rank][i].data, 0));
        cdp_call_free(&calls[s->rank][i]);
    }
    meet(s, &place);
}
TEST(ten_thousand_calls) {
    like.max_calls = like.max_queue = 16384;
    scenario(2, ten_thousand);
}

/* Functions on top of each other as deep as max_depth lets them wait; one more is refused by name.
   */
static void deep(side *s) {
    cdp_call c = {0};
    for (int64_t ttl = like.max_depth + 1; s->rank == 0 && ttl < like.max_depth + 3; ++ttl) {
        const bool fits = ttl == like.max_depth + 1;
        const cdp_status st =
            cdp_rpc_call(s->rpc, CALL(.to = 1, F("chain_or_not"), BYTES(&ttl, 8)), &c);
        T_EQ(fits ? CDP_OK : CDP_ERR_REMOTE, st);
        if (!fits && like.max_depth < 4) T_TEXT("max_depth of cdp_rpc_desc is", c.error.text);
        cdp_call_free(&c);
    }
}

/* Without help, functions that wait hold their threads: calls on top of each other end by their
   deadline, and nothing is left. */
static void no_help(side *s) {
    int64_t ttl = 8;
    cdp_call c = {0};
    const uint64_t from = test_now_ns();
    if (s->rank == 0) {
        const cdp_status st = cdp_rpc_call(
            s->rpc, CALL(.to = 1, F("chain_or_not"), BYTES(&ttl, 8), .timeout_ms = 120), &c);
        T(st == CDP_ERR_TIMEOUT || st == CDP_ERR_REMOTE);
        T_WITHIN(200, test_now_ns() - from);
        cdp_call_free(&c);
    }
}
static void f_chain_or_not(void *user, cdp_rpc_request *q) {
    int64_t ttl = i64_at(q->data, 0) - 1;
    cdp_call c = {0};
    (void)user;
    if (ttl
        && cdp_rpc_call(
               q->rpc, CALL(.to = 1 - side_of(q)->rank, F("chain_or_not"), BYTES(&ttl, 8)), &c)
            != CDP_OK)
        OK(cdp_rpc_fail(q, 1, cdp_last_error()->text));
    else
        reply_i64(q, ttl);
    cdp_call_free(&c);
}
static const cdp_rpc_function chain_or_not[] = {{.name = "chain_or_not", .func = f_chain_or_not}};
TEST(nesting_is_bounded) {
    static const uint32_t depths[] = {1, 2, 24};
    for (uint32_t i = 0; i < 3; ++i) {
        like.functions = chain_or_not;
        like.function_count = 1;
        like.max_depth = depths[i];
        run(2, deep);
    }
}
TEST(threads_that_do_not_help_hold_nothing_for_ever) {
    like.functions = chain_or_not;
    like.function_count = 1;
    like.workers = 2;
    like.no_help = true;
    run(2, no_help);
}

/* One rank floods another; calls of a third to it are answered meanwhile. */
static void flood(side *s) {
    enum {
        N = 400
    };
    static uint8_t data[20000];
    static cdp_call calls[N];
    static uint32_t place;
    memset(calls, 0, s->rank ? 0 : sizeof calls);
    meet(s, &place);
    for (uint32_t i = 0; s->rank == 0 && i < N; ++i)
        OK(cdp_rpc_start(s->rpc, CALL(.to = 1, F("echo"), BYTES(data, sizeof data)), &calls[i]));
    for (uint32_t i = 0; s->rank == 2 && i < 50; ++i) {
        const uint64_t from = test_now_ns();
        T_EQ(3, call_i64(s, 1, "add", 1, 2));
        T_WITHIN(500, test_now_ns() - from);
    }
    for (uint32_t i = 0; s->rank == 0 && i < N; ++i) {
        OK(cdp_call_wait(&calls[i]));
        cdp_call_free(&calls[i]);
    }
    meet(s, &place);
}
TEST(a_flood_leaves_room_for_others) {
    scenario(3, flood);
}

/* ---- mistakes ---- */

/* Those of creation: each gets one sentence, and nothing is left behind. */
static void create_mistakes(side *s) {
    static const cdp_rpc_function bad[] = {{.name = "no_func"}, {.func = f_nothing},
        {.name = "a b", .func = f_nothing},
        {.name = "allowed", .func = f_nothing, .allow_count = 1}};
    cdp_rpc_desc d = desc_of(s);
    REFUSED(CDP_ERR_INVALID, "desc is NULL", cdp_rpc_create(NULL, &s->rpc));
    REFUSED(CDP_ERR_INVALID, "out is NULL", cdp_rpc_create(&d, NULL));
    d.group = NULL;
    REFUSED(CDP_ERR_INVALID, "desc.group is NULL", cdp_rpc_create(&d, &s->rpc));
    d = desc_of(s);
    d.functions = NULL;
    REFUSED(CDP_ERR_INVALID, "functions is NULL", cdp_rpc_create(&d, &s->rpc));
    for (uint32_t i = 0; i < 4; ++i) {
        d.functions = &bad[i];
        d.function_count = 1;
        REFUSED(CDP_ERR_INVALID, "functions[0] needs func, a name", cdp_rpc_create(&d, &s->rpc));
    }
    T(s->rpc == NULL);
    REFUSED(CDP_ERR_INVALID, " is NULL", cdp_rpc_shutdown(NULL, 0));
    REFUSED(CDP_ERR_INVALID, " is NULL", cdp_rpc_serve(NULL, 0));
    T(!cdp_rpc_alive(NULL, 0));
    T_EQ(-1, cdp_rpc_rank_of(NULL, "x"));
    T(cdp_rpc_name_of(NULL, 0) == NULL);
    T_EQ(0, cdp_rpc_stats_of(NULL).owners);
}
TEST(every_mistake_of_creation_gets_a_sentence) {
    shut_by_body = true;
    scenario(2, create_mistakes);
}

/* What is wrong only inside a function: replies. */
static void f_bad_replies(void *user, cdp_rpc_request *q) {
    static uint8_t data[1001];
    const cdp_iov iov = {data, 1001};
    cdp_tensor t = {.dtype = CDP_DTYPE_F32, .dims = 9};
    uint64_t value = 3;
    (void)user;
    switch (i64_at(q->data, 0)) {
    case 0:
        REFUSED(CDP_ERR_INVALID,
            "results of 1001 bytes; max_message_bytes of cdp_rpc_desc is 1000; reply less",
            cdp_rpc_reply(q, &(cdp_args){.iov = &iov, .iov_count = 1}));
        break;
    case 1:
        REFUSED(CDP_ERR_INVALID, "tensors[0] has dtype",
            cdp_rpc_reply(q, &(cdp_args){.tensors = &t, .tensor_count = 1}));
        break;
    case 2:
        REFUSED(CDP_ERR_INVALID, "there is no reference in this cdp_rref",
            cdp_rpc_reply(q, &(cdp_args){.rrefs = &(cdp_rref){0}, .rref_count = 1}));
        break;
    case 3:
        REFUSED(CDP_ERR_INVALID, " is NULL", cdp_rpc_reply_value(q, NULL));
        REFUSED(CDP_ERR_INVALID, " is NULL", cdp_ctx_save(NULL, NULL, NULL, NULL, 0));
        REFUSED(CDP_ERR_INVALID, "inputs is NULL", cdp_ctx_save(q, NULL, NULL, NULL, 1));
        REFUSED(CDP_ERR_STATE, "belongs to no context", cdp_ctx_save(q, NULL, NULL, &value, 1));
        REFUSED(CDP_ERR_STATE, "must not shut down", cdp_rpc_shutdown(q->rpc, 0));
        reply_i64(q, 4);
        REFUSED(CDP_ERR_STATE, "replied to before", cdp_rpc_fail(q, 1, "again"));
        break;
    default: break;
    }
}
/* Makes a counter when its rank allows it; at the latest after 10 s. */
static bool may_make[RANKS_MAX];
static void f_when_allowed(void *user, cdp_rpc_request *q) {
    const uint64_t until = test_now_ns() + 10000000000ull;
    while (!__atomic_load_n(&may_make[side_of(q)->rank], __ATOMIC_ACQUIRE) && test_now_ns() < until)
        test_sleep_ms(1);
    f_counter(user, q);
}
static const cdp_rpc_function mistaken_functions[] = {
    {.name = "bad_replies", .func = f_bad_replies, .flags = CDP_RPC_LATER},
    {.name = "nothing", .func = f_nothing}, {.name = "counter", .func = f_counter},
    {.name = "when_allowed", .func = f_when_allowed}, {.name = "fail", .func = f_fail}};

static void call_mistakes(side *s, cdp_rpc *other) {
    cdp_call c = {0}, d = {0}, *two[2] = {&c, &d};
    cdp_rref r = {0}, foreign;
    cdp_value v = {.type = 1}, got;
    uint32_t which;
    int64_t x[2] = {1, 0};
    REFUSED(CDP_ERR_INVALID, " is NULL", cdp_rpc_remote(s->rpc, NULL, &r));
    REFUSED(CDP_ERR_INVALID, "calls is NULL", cdp_call_wait_all(NULL, 2));
    OK(cdp_call_wait_all(NULL, 0));
    OK(cdp_rpc_call(s->rpc, CALL(.to = s->rank, F("nothing")), &c));
    OK(cdp_rpc_call(other, CALL(.to = s->rank, F("nothing")), &d));
    REFUSED(CDP_ERR_INVALID, "belong to different rpcs", cdp_call_wait_any(two, 2, 1000, &which));
    cdp_call_free(&c);
    cdp_call_free(&d);
    OK(cdp_rref_create(other, &v, NULL, &foreign));
    REFUSED(CDP_ERR_INVALID, "belongs to another rpc",
        cdp_rpc_call(s->rpc, CALL(.to = s->rank, F("nothing"), RREF(foreign)), &c));
    REFUSED(CDP_ERR_INVALID, "belongs to another rpc",
        cdp_rpc_call(s->rpc, CALL(.on = foreign, F("nothing")), &c));
    cdp_rref_drop(foreign);
    REFUSED(CDP_ERR_INVALID, " is NULL", cdp_rref_local(r, 0, 0, &got));
    /* made in time, but not for the first look; and never */
    __atomic_store_n(&may_make[s->rank], how != HUB && how < TCP, __ATOMIC_RELEASE);
    OK(cdp_rpc_remote(s->rpc, CALL(.to = s->rank, F("when_allowed"), BYTES(x, 8)), &r));
    if (how == HUB || how >= TCP) {
        REFUSED(CDP_ERR_TIMEOUT, "was not made in time", cdp_rref_local(r, 0, 5, &got));
    }
    __atomic_store_n(&may_make[s->rank], true, __ATOMIC_RELEASE);
    OK(cdp_rref_local(r, 5, 10000, &got));
    cdp_rref_unpin(r);
    cdp_rref_drop(r);
    OK(cdp_rpc_remote(s->rpc, CALL(.to = s->rank, F("fail"), BYTES(x, 8)), &r));
    REFUSED(CDP_ERR_REMOTE, "its value was not made", cdp_rref_local(r, 0, 10000, &got));
    cdp_rref_drop(r);
    for (int64_t i = 0; i < 4; ++i) {
        T_EQ(i < 3 ? CDP_ERR_INVALID : CDP_OK,
            cdp_rpc_call(s->rpc, CALL(.to = next_of(s), F("bad_replies"), BYTES(&i, 8)), &c));
        T_EQ(CDP_RAN_YES, c.ran);
        cdp_call_free(&c);
    }
}
static void ctx_mistakes(side *s, cdp_rpc *other) {
    cdp_ctx *ctx, *two, *foreign;
    cdp_rref far;
    cdp_call c = {0};
    cdp_tensor g, t;
    uint64_t value = 0, wrong;
    double x[4] = {1, 2, 3, 4};
    int64_t n[2] = {1, 0};
    REFUSED(CDP_ERR_INVALID, " is NULL", cdp_ctx_begin(s->rpc, NULL));
    OK(cdp_ctx_begin(s->rpc, &ctx));
    OK(cdp_ctx_begin(s->rpc, &two));
    REFUSED(CDP_ERR_BUSY, "max_contexts of the desc", cdp_ctx_begin(s->rpc, &foreign));
    OK(cdp_ctx_begin(other, &foreign));
    REFUSED(CDP_ERR_INVALID, "ctx belongs to another rpc",
        cdp_rpc_call(s->rpc, CALL(.to = s->rank, F("nothing"), .ctx = foreign), &c));
    REFUSED(CDP_ERR_INVALID, "is made outside contexts",
        cdp_rpc_remote(s->rpc, CALL(.to = s->rank, F("counter"), .ctx = ctx), &far));
    REFUSED(CDP_ERR_INVALID, " is NULL", cdp_ctx_value(ctx, NULL));
    REFUSED(CDP_ERR_INVALID, " is NULL", cdp_ctx_param(ctx, (cdp_rref){0}, NULL));
    REFUSED(CDP_ERR_INVALID, " is NULL", cdp_ctx_grad(ctx, value, NULL));
    OK(cdp_rpc_remote(s->rpc, CALL(.to = next_of(s), F("counter"), BYTES(n, 16)), &far));
    REFUSED(CDP_ERR_INVALID, "the parameter is on rank", cdp_ctx_param(ctx, far, &value));
    cdp_rref_drop(far);
    OK(cdp_ctx_value(ctx, &value));
    wrong = value + 9;
    REFUSED(CDP_ERR_INVALID, "inputs[0] is not a value of this rank",
        cdp_ctx_op(ctx,
            &(cdp_ctx_op_desc){.inputs = &wrong,
                .input_count = 1,
                .outputs = &value,
                .output_count = 1,
                .backward = b_fails}));
    t = f64s(x, 4, value);
    g = f64s(x, 3, 0);
    REFUSED(CDP_ERR_INVALID, "is not like its root",
        cdp_ctx_backward(ctx, &(cdp_backward_desc){.roots = &t, .root_count = 1, .grads = &g}));
    OK(cdp_ctx_end(foreign, 0));
    OK(cdp_ctx_end(two, 0));
    OK(cdp_ctx_end(ctx, 0));
    REFUSED(CDP_ERR_INVALID, " is NULL",
        cdp_dist_optim_create(&(cdp_optim_desc){.rpc = s->rpc}, &(cdp_dist_optim *){NULL}));
    REFUSED(CDP_ERR_INVALID, " is NULL", cdp_dist_optim_set(NULL, 1, 0));
}
static void mistakes(side *s) {
    static uint32_t place;
    const cdp_rpc_desc d = desc_of(s);
    cdp_rpc *other;
    cdp_ctx *late;
    if (!OK(cdp_rpc_create(&d, &other))) return;
    call_mistakes(s, other);
    ctx_mistakes(s, other);
    meet(s, &place);
    OK(cdp_rpc_shutdown(other, 0));
    REFUSED(CDP_ERR_STATE, "was shut down", cdp_ctx_begin(other, &late));
    cdp_rpc_destroy(other);
}
TEST(every_mistake_of_calls_and_contexts_gets_a_sentence) {
    like.functions = mistaken_functions;
    like.function_count = sizeof mistaken_functions / sizeof *mistaken_functions;
    like.max_message_bytes = 1000;
    like.max_contexts = 2;
    run(2, mistakes);
}

/* ---- gradients ---- */

/* autograd_context: two hundred numbers differ, and are gone afterwards; error_in_context. */
static void contexts(side *s) {
    static uint32_t place;
    uint64_t last = 0;
    double x[4] = {1, 2, 3, 4};
    weights_open(s);
    meet(s, &place);
    for (uint32_t i = 0; i < 200; ++i) {
        cdp_ctx *ctx;
        cdp_call c = {0};
        uint64_t value;
        if (!OK(cdp_ctx_begin(s->rpc, &ctx))) return;
        T(cdp_ctx_id(ctx) > last && cdp_ctx_id(ctx) >> 48 == s->rank);
        last = cdp_ctx_id(ctx);
        if (i % 20 == 0) {
            OK(cdp_ctx_value(ctx, &value));
            const cdp_tensor t = f64s(x, 4, value);
            T_EQ(CDP_ERR_UNSUPPORTED, mul(s, ctx, next_of(s), "no_such", 0, &t, &c));
            cdp_call_free(&c);
            OK(mul(s, ctx, next_of(s), "mul", 0, &t, &c)); /* the context is good still */
            OK(cdp_ctx_backward(
                ctx, &(cdp_backward_desc){.roots = &c.tensors[0], .root_count = 1}));
            cdp_call_free(&c);
        }
        OK(cdp_ctx_end(ctx, 0));
    }
    meet(s, &place);
    weights_close(s);
}
TEST(autograd_context) {
    scenario(2, contexts);
}

/* multiple_backward_with_errors: fifty passes that fail, then a good one. */
static void fifty(side *s) {
    static uint32_t place;
    double x[4] = {1, 2, 3, 4};
    weights_open(s);
    meet(s, &place);
    for (uint32_t i = 0; i < 51; ++i) {
        cdp_ctx *ctx;
        cdp_call c = {0};
        cdp_tensor g;
        uint64_t value;
        if (!OK(cdp_ctx_begin(s->rpc, &ctx)) || !OK(cdp_ctx_value(ctx, &value))) return;
        const cdp_tensor t = f64s(x, 4, value);
        OK(mul(s, ctx, next_of(s), i < 50 ? "mul_fails" : "mul", 0, &t, &c));
        const cdp_backward_desc d = {.roots = &c.tensors[0], .root_count = 1};
        if (i < 50) {
            REFUSED(CDP_ERR_INVALID, "a backward function on rank", cdp_ctx_backward(ctx, &d));
        } else {
            OK(cdp_ctx_backward(ctx, &d));
            OK(cdp_ctx_grad(ctx, value, &g));
            T(g.data && !memcmp(g.data, weights_of[next_of(s)].w, 32));
        }
        cdp_call_free(&c);
        OK(cdp_ctx_end(ctx, 0));
    }
    meet(s, &place);
    weights_close(s);
}
TEST(multiple_backward_with_errors) {
    scenario(2, fifty);
}

/* dist_optim_exception: a step that fails names its owner, and the other one was made. */
static void one_step_fails(side *s) {
    static uint32_t place;
    static cdp_call ref[2];
    double before[2][4], x[4] = {1, 1, 1, 1};
    cdp_rref params[2];
    cdp_dist_optim *optim;
    cdp_ctx *ctx;
    cdp_call c[2] = {{0}};
    uint64_t value;
    weights_open(s);
    meet(s, &place);
    if (s->rank == 0) {
        for (uint32_t i = 0; i < 2; ++i) {
            memset(&ref[i], 0, sizeof ref[i]);
            OK(cdp_rpc_call(s->rpc, CALL(.to = 1 + i, F("weight_rref")), &ref[i]));
            params[i] = ref[i].rrefs[0];
            memcpy(before[i], weights_of[1 + i].w, 32);
        }
        if (!OK(cdp_dist_optim_create(&(cdp_optim_desc){.rpc = s->rpc,
                                          .kind = CDP_OPTIM_SGD,
                                          .lr = 1,
                                          .params = params,
                                          .param_count = 2},
                &optim)))
            return;
        OK(cdp_ctx_begin(s->rpc, &ctx));
        OK(cdp_ctx_value(ctx, &value));
        const cdp_tensor t = f64s(x, 4, value);
        OK(mul(s, ctx, 1, "mul", 0, &t, &c[0]));
        OK(cdp_ctx_backward(ctx, &(cdp_backward_desc){.roots = &c[0].tensors[0], .root_count = 1}));
        cdp_channel_drop(s->rpc->channel, 2, "for the test");
        T_EQ(CDP_ERR_PEER_LOST, cdp_dist_optim_step(optim, ctx));
        T_TEXT("rank 2", cdp_last_error()->text);
        (void)cdp_rpc_stats_of(sides[1].rpc); /* its lock orders what its worker wrote */
        for (uint32_t i = 0; i < 4; ++i)
            T(weights_of[1].w[i] == before[0][i] - 1);
        T(!memcmp(before[1], weights_of[2].w, 32));
        cdp_dist_optim_destroy(optim);
        cdp_call_free(&c[0]);
        cdp_call_free(&ref[0]);
        cdp_call_free(&ref[1]);
        (void)cdp_ctx_end(ctx, 1000);
    }
    meet(s, &place);
    cdp_rref_drop(weight_rref[s->rank]);
    cdp_rpc_destroy(s->rpc);
    T_EQ(0, saved_live[s->rank]);
}
static void one_step_body(side *s) {
    open_then(s, one_step_fails);
}
TEST(dist_optim_exception) {
    shut_by_body = true;
    scenario(3, one_step_body);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"send_to_rank", send_to_rank, 60},
        {"reinit", reinit, 60},
        {"init_rpc_then_pg", init_rpc_then_pg, 60},
        {"set_and_get_num_worker_threads", set_and_get_num_worker_threads, 60},
        {"stress_heavy_rpc", stress_heavy_rpc, 60},
        {"deadlock", deadlock, 60},
        {"wait_all_with_partial_exception", wait_all_with_partial_exception, 60},
        {"callback_multi", callback_multi, 60},
        {"async_function_nested", async_function_nested, 60},
        {"async_function_raise", async_function_raise, 60},
        {"default_timeout_used", default_timeout_used, 60},
        {"py_rref_args", py_rref_args, 60},
        {"return_local_rrefs", return_local_rrefs, 60},
        {"rref_forward_chain", rref_forward_chain, 60},
        {"nested_rref_stress", nested_rref_stress, 60},
        {"use_rref_after_shutdown", use_rref_after_shutdown, 60},
        {"references_that_come_too_late_are_dropped", references_that_come_too_late_are_dropped,
            60},
        {"a_thousand_forks", a_thousand_forks, 60},
        {"a_reference_that_breaks_before_its_call_left",
            a_reference_that_breaks_before_its_call_left, 60},
        {"one_too_many_is_refused", one_too_many_is_refused, 60},
        {"ten_thousand_calls", ten_thousand_calls, 60},
        {"nesting_is_bounded", nesting_is_bounded, 60},
        {"threads_that_do_not_help_hold_nothing_for_ever",
            threads_that_do_not_help_hold_nothing_for_ever, 60},
        {"a_flood_leaves_room_for_others", a_flood_leaves_room_for_others, 60},
        {"every_mistake_of_creation_gets_a_sentence", every_mistake_of_creation_gets_a_sentence,
            60},
        {"every_mistake_of_calls_and_contexts_gets_a_sentence",
            every_mistake_of_calls_and_contexts_gets_a_sentence, 60},
        {"autograd_context", autograd_context, 60},
        {"multiple_backward_with_errors", multiple_backward_with_errors, 60},
        {"dist_optim_exception", dist_optim_exception, 60},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
