/* test_rpc_references.c - references that are fetched, passed on, confirmed, refused, leaked,
   held in a circle, and calls on the values that they refer to. rpc_scenarios.txt says which
   test has which scenario of torch.distributed.rpc. */
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"

#include "cdp_rpc.h"

#include "rpc_sides.h"

static void f_is_confirmed(void *user, cdp_rpc_request *q);
/* on a counter: keeps the request; the next call on it answers both */
static void f_pairs(void *user, cdp_rpc_request *q) {
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    side *s = side_of(q);
    cdp_rpc_request *pair[2] = {NULL, q};
    int64_t n = 0;
    (void)user;
    pthread_mutex_lock(&mutex);
    if (s->kept_count) {
        pair[0] = s->kept[--s->kept_count];
        n = ++((counter *)q->on->data)->n;
    } else {
        s->kept[s->kept_count++] = q;
    }
    pthread_mutex_unlock(&mutex);
    for (uint32_t i = 0; i < 2 && pair[0]; ++i)
        reply_i64(pair[i], n);
}

/* on a counter: waits until it is cancelled */
static void f_stays(void *user, cdp_rpc_request *q) {
    const uint64_t until = test_until_ns(10000);
    (void)user;
    while (!cdp_rpc_cancelled(q) && test_now_ns() < until) {
        if (how == HUB_POLLED) (void)!cdp_poll(side_of(q)->g, 0);
        test_sleep_ms(1);
    }
}

/* a value that is a tensor of 2 x 2 */
typedef struct square {
    float x[4];
    cdp_tensor t;
} square;

static square squares[RANKS_MAX];

static void f_square(void *user, cdp_rpc_request *q) {
    square *v = &squares[side_of(q)->rank];
    (void)user;
    for (uint32_t i = 0; i < 4; ++i)
        v->x[i] = (float)i;
    v->t = (cdp_tensor){.data = v->x, .dtype = CDP_DTYPE_F32, .dims = 2, .shape = {2, 2}};
    OK(cdp_rpc_reply_value(
        q, &(cdp_value){.data = v, .plain = {.tensors = &v->t, .tensor_count = 1}}));
}

/* on it: adds 1 to each element, returns the first row */
static void f_first_row(void *user, cdp_rpc_request *q) {
    square *v = (square *)q->on->data;
    cdp_tensor row = v->t;
    (void)user;
    for (uint32_t i = 0; i < 4; ++i)
        v->x[i] += 1;
    row.shape[0] = 1;
    OK(cdp_rpc_reply(q, &(cdp_args){.tensors = &row, .tensor_count = 1}));
}

/* the value that its reference refers to, as a value of this rank */
static void f_same(void *user, cdp_rpc_request *q) {
    cdp_call c = {0};
    (void)user;
    if (OK(cdp_rref_to_here(q->rrefs[0], 0, &c))) reply_i64(q, i64_at(c.data, 0));
    cdp_call_free(&c);
}

/* keeps its reference in a value of this rank, for as long as that lives */
static void holder_end(void *user, void *data) {
    cdp_rref *r = (cdp_rref *)data;
    cdp_rref_drop(*r);
    free(r);
    __atomic_add_fetch(&((side *)user)->values.destroyed, 1, __ATOMIC_SEQ_CST);
}

static void f_holds(void *user, cdp_rpc_request *q) {
    side *s = side_of(q);
    cdp_rref *r = (cdp_rref *)malloc(sizeof *r);
    cdp_rref mine;
    (void)user;
    *r = q->rrefs[0];
    cdp_rref_keep(*r);
    __atomic_add_fetch(&s->values.made, 1, __ATOMIC_SEQ_CST);
    const cdp_value v = {.data = r, .destroy = holder_end, .user = s};
    if (!OK(cdp_rref_create(q->rpc, &v, "a circle", &mine))) return;
    OK(cdp_rpc_reply(q, &(cdp_args){.rrefs = &mine, .rref_count = 1}));
    cdp_rref_drop(mine);
}

/* on a counter: makes another one, which is so much larger */
static void f_grow(void *user, cdp_rpc_request *q) {
    cdp_value v;
    (void)user;
    if (!T(q->remote && q->on)) return;
    v = counter_value(side_of(q), ((counter *)q->on->data)->n + i64_at(q->data, 0), iov_next());
    OK(cdp_rpc_reply_value(q, &v));
}
/* returns what "grow" makes of the counter that its reference refers to */
static void f_grow_far(void *user, cdp_rpc_request *q) {
    int64_t more = 100;
    cdp_rref r;
    (void)user;
    if (!OK(cdp_rpc_remote(q->rpc, CALL(.on = q->rrefs[0], F("grow"), BYTES(&more, 8)), &r)))
        return;
    OK(cdp_rpc_reply(q, &(cdp_args){.rrefs = &r, .rref_count = 1}));
    cdp_rref_drop(r);
}

static const cdp_rpc_function own_functions[] = {
    {.name = "grow", .func = f_grow},
    {.name = "grow_far", .func = f_grow_far},
    {.name = "nothing", .func = f_nothing},
    KEPT_AND_COUNTED,
    {.name = "is_confirmed", .func = f_is_confirmed},
    {.name = "mul", .func = f_mul, .backward = b_mul},
    {.name = "weight_rref", .func = f_weight_rref},
    {.name = "pairs", .func = f_pairs, .flags = CDP_RPC_LATER},
    {.name = "stays", .func = f_stays},
    {.name = "square", .func = f_square},
    {.name = "first_row", .func = f_first_row},
    {.name = "same", .func = f_same},
    {.name = "holds", .func = f_holds},
    {.name = "weight_grad", .func = f_weight_grad},
};
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

/* user_rrefs_confirmed: soon true where the reference was made; user_rrefs_confirmed_remote: true
   inside the function that gets it. */
static void f_is_confirmed(void *user, cdp_rpc_request *q) {
    (void)user;
    reply_i64(q, cdp_rref_confirmed(q->rrefs[0], 0));
}

static void confirmed(side *s) {
    const uint32_t owner = next_of(s), third = (s->rank + 2) % ranks;
    int64_t x[2] = {4, 0};
    cdp_call c = {0};
    cdp_rref r;
    OK(cdp_rpc_remote(s->rpc, CALL(.to = owner, F("counter"), BYTES(x, 16)), &r));
    for (uint32_t i = 0; i < 2; ++i) { /* its owner, and a rank that gets it from this one */
        OK(cdp_rpc_call(s->rpc, CALL(.to = i ? owner : third, F("is_confirmed"), RREF(r)), &c));
        T_EQ(CDP_OK, i64_at(c.data, 0));
        cdp_call_free(&c);
    }
    OK(cdp_rref_confirmed(r, 20000));
    OK(cdp_rref_confirmed(r, 0));
    cdp_rref_drop(r);
}

TEST(user_rrefs_confirmed) {
    run_own(3, confirmed);
}

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

static void later_on_a_value(side *s) {
    int64_t x[2] = {5, 0};
    cdp_call c[6] = {{0}};
    cdp_rref r;
    if (s->rank) return;
    OK(cdp_rpc_remote(s->rpc, CALL(.to = 1, F("counter"), BYTES(x, 16)), &r));
    for (uint32_t i = 0; i < 6; i += 2) { /* the second one answers the first */
        for (uint32_t k = 0; k < 2; ++k)
            OK(cdp_rpc_start(s->rpc, CALL(.on = r, F("pairs")), &c[i + k]));
        for (uint32_t k = 0; k < 2; ++k) {
            OK(cdp_call_wait(&c[i + k]));
            T_EQ(6 + i / 2, i64_at(c[i + k].data, 0));
            cdp_call_free(&c[i + k]);
        }
    }
    cdp_rref_drop(r);
}

TEST(async_class_rref_proxy) {
    run_own(2, later_on_a_value);
}

static void late_on_a_value(side *s) {
    int64_t x[2] = {5, 0};
    cdp_call c = {0};
    cdp_rref r;
    OK(cdp_rpc_remote(s->rpc, CALL(.to = next_of(s), F("counter"), BYTES(x, 16)), &r));
    T_EQ(CDP_ERR_TIMEOUT,
        cdp_rpc_call(s->rpc, CALL(.on = r, F("stays"), .timeout_ms = 20), &c)); /* sync */
    /* not in which words: the owner may refuse it, because it came late itself */
    cdp_call_free(&c);
    OK(cdp_rpc_start(s->rpc, CALL(.on = r, F("stays"), .timeout_ms = 20), &c)); /* async */
    T_EQ(CDP_ERR_TIMEOUT, cdp_call_wait(&c));
    cdp_call_free(&c);
    OK(cdp_rpc_call(s->rpc, CALL(.on = r, F("count"), BYTES(x, 8)), &c));
    T_EQ(10, i64_at(c.data, 0));
    cdp_call_free(&c);
    cdp_rref_drop(r);
}

TEST(rref_proxy_timeout) {
    run_own(2, late_on_a_value);
}

static void tensor_on_owner(side *s) {
    cdp_call c = {0};
    cdp_rref r;
    OK(cdp_rpc_remote(s->rpc, CALL(.to = next_of(s), F("square")), &r));
    for (uint32_t i = 1; i < 4; ++i) {
        OK(cdp_rpc_call(s->rpc, CALL(.on = r, F("first_row")), &c));
        if (T_EQ(1, c.tensor_count) && T_EQ(1, c.tensors[0].shape[0]))
            T_EQ(1 + i, ((const float *)c.tensors[0].data)[1]);
        cdp_call_free(&c);
        OK(cdp_rref_to_here(r, 0, &c));
        if (T_EQ(1, c.tensor_count)) T_EQ(3 + i, ((const float *)c.tensors[0].data)[3]);
        cdp_call_free(&c);
    }
    cdp_rref_drop(r);
}

TEST(rref_proxy_tensor) {
    run_own(2, tensor_on_owner);
}

static void passed(side *s) {
    int64_t got = 0;
    cdp_call c = {0};
    cdp_rref r[2], made;
    for (uint32_t i = 0; i < 2; ++i) {
        const cdp_value v = counter_value(s, 40 + 10 * i, iov_next());
        OK(cdp_rref_create(s->rpc, &v, NULL, &r[i]));
    }
    OK(cdp_rpc_call(s->rpc, CALL(.to = next_of(s), F("same"), RREF(r[0])), &c));
    got += i64_at(c.data, 0);
    cdp_call_free(&c);
    OK(cdp_rpc_start(s->rpc, CALL(.to = next_of(s), F("same"), RREF(r[1])), &c));
    OK(cdp_call_wait(&c));
    got += i64_at(c.data, 0);
    cdp_call_free(&c);
    T_EQ(90, got);
    OK(cdp_rpc_remote(s->rpc, CALL(.to = next_of(s), F("same"), RREF(r[1])), &made));
    OK(cdp_rref_to_here(made, 0, &c));
    T_EQ(50, i64_at(c.data, 0));
    cdp_call_free(&c);
    cdp_rref_drop(made);
    cdp_rref_drop(r[0]);
    cdp_rref_drop(r[1]);
}

TEST(pass_local_rrefs) {
    run_own(2, passed);
}

/* Two values that each keep a reference to the other one live until shutdown, which names what is
   left and ends both: on the rank that comes first, and on the other one if it did not end it
   there. */
static void circle(side *s) {
    int64_t x[2] = {1, 0};
    cdp_call c[2] = {{0}};
    cdp_rref r;
    static uint32_t place, found;
    if (s->rank == 0) found = 0;
    if (s->rank == 0) {
        cdp_rref *first = (cdp_rref *)calloc(1, sizeof *first), mine;
        s->values.made = 1;
        const cdp_value v = {.data = first, .destroy = holder_end, .user = s};
        OK(cdp_rref_create(s->rpc, &v, "a circle", &mine));
        OK(cdp_rpc_call(s->rpc, CALL(.to = 1, F("holds"), RREF(mine)), &c[0]));
        *first = c[0].rrefs[0]; /* the value keeps the reference to the one that keeps it */
        cdp_rref_keep(*first);
        cdp_call_free(&c[0]);
        cdp_rref_drop(mine);
        OK(cdp_rpc_remote(s->rpc, CALL(.to = 1, F("counter"), BYTES(x, 16)), &r));
        cdp_rref_drop(r);
        T_EQ(0, s->values.destroyed);
    }
    meet(s, &place);
    if (cdp_rpc_shutdown(s->rpc, 0) != CDP_OK) {
        T_TEXT("still had 1 references", cdp_last_error()->text);
        T_EQ(CDP_ERR_STATE, cdp_last_error()->status);
        T_EQ(1, s->leaked);
        count(&found);
    }
    gather(&place);
    T(counted_of(&found) >= 1);
    cdp_rpc_destroy(s->rpc);
    T_EQ(s->values.made, s->values.destroyed);
}

static void circle_body(side *s) {
    open_then(s, circle);
}

TEST(circular_references_end_with_the_rpc) {
    shut_by_body = true;
    run_own(2, circle_body);
}

/* ---- calls on a value whose result stays with it: rref.remote().method(x) */

static int64_t here_of(cdp_rref r) {
    int64_t n = -1;
    cdp_call c = {0};
    if (OK(cdp_rref_to_here(r, 0, &c))) n = i64_at(c.data, 0);
    cdp_call_free(&c);
    return n;
}
static cdp_rref grown(cdp_rref r, int64_t more) {
    cdp_rref made = {0};
    OK(cdp_rpc_remote(r.rpc, CALL(.on = r, F("grow"), BYTES(&more, 8), .label = "grown"), &made));
    return made;
}

static void grows(side *s) {
    int64_t x[2] = {10, 30};
    cdp_rref first, second, third;
    cdp_rref_info info;
    cdp_call c = {0};
    OK(cdp_rpc_remote(s->rpc, CALL(.to = next_of(s), F("counter"), BYTES(x, 16)), &first));
    second = grown(first, 5); /* none of them is made yet */
    third = grown(second, 7);
    cdp_rref_drop(first); /* the values live until the functions have replied */
    cdp_rref_drop(second);
    T_EQ(22, here_of(third));
    OK(cdp_rref_info_of(third, &info));
    T_EQ(next_of(s), info.owner);
    T_EQ(CDP_OK, info.status);
    T_TEXT("grown", info.label);
    /* the rank behind the owner has got the reference, and asks the owner */
    OK(cdp_rpc_call(s->rpc, CALL(.to = (s->rank + 2) % ranks, F("grow_far"), RREF(third)), &c));
    if (T_EQ(1, c.rref_count)) T_EQ(122, here_of(c.rrefs[0]));
    cdp_call_free(&c);
    cdp_rref_drop(third);
}

static void grows_at_home(side *s) {
    cdp_value v = counter_value(s, 3, iov_next());
    cdp_rref first, second;
    OK(cdp_rref_create(s->rpc, &v, NULL, &first));
    second = grown(first, 4);
    cdp_rref_drop(first);
    OK(cdp_rref_local(second, 5, 0, &v));
    T_EQ(7, ((counter *)v.data)->n);
    cdp_rref_unpin(second);
    cdp_rref_drop(second);
    grows(s);
}

TEST(a_call_on_a_value_makes_a_value) {
    run_own(2, grows_at_home);
    run_own(3, grows_at_home);
}

static void grows_from_nothing(side *s) {
    cdp_rref first, second, third;
    cdp_call c = {0};
    for (uint32_t i = 0; i < 2; ++i) {
        const uint32_t to = i ? s->rank : next_of(s);
        char why[] = "no room";
        OK(cdp_rpc_remote(s->rpc, CALL(.to = to, F("fail"), BYTES(why, sizeof why - 1)), &first));
        second = grown(first, 1);
        third = grown(second, 1);
        T_EQ(CDP_ERR_REMOTE, cdp_rref_to_here(third, 0, &c));
        T_EQ(CDP_RAN_NO, c.ran);
        T_EQ(42, c.code);
        T_TEXT("its value was not made: fail failed with code 42: no room", c.error.text);
        T(!strstr(c.error.text, "grow"));
        cdp_call_free(&c);
        cdp_rref_drop(first);
        cdp_rref_drop(second);
        cdp_rref_drop(third);
    }
}

TEST(a_call_on_a_value_that_was_not_made_makes_none) {
    run_own(2, grows_from_nothing);
}

/* A row of values that depend on each other is as long as there is room for calls: also where the
   first one fails. */
#define ROW 2000u
static void long_row(side *s) {
    static uint32_t place;
    static bool fails;
    for (uint32_t i = 0; i < 2; ++i) {
        cdp_rref last, next;
        cdp_call c = {0};
        if (s->rank == 0) {
            OK(cdp_rpc_remote(s->rpc, CALL(.to = 1, F("keep")), &last));
            for (uint32_t k = 0; k < ROW; ++k) {
                next = grown(last, 1);
                cdp_rref_drop(last);
                last = next;
            }
            OK(cdp_rref_fetch(last, 20000 * TEST_LATE, &c));
            fails = i == 0;
        } else {
            serve_until(s, &s->kept_count, i + 1);
        }
        meet(s, &place);
        if (s->rank == 1) {
            const cdp_value v = counter_value(s, 1, iov_next());
            if (fails) counter_destroy(v.user, v.data);
            if (fails)
                OK(cdp_rpc_fail(s->kept[i], 3, "at the beginning"));
            else
                OK(cdp_rpc_reply_value(s->kept[i], &v));
        } else {
            T_EQ(fails ? CDP_ERR_REMOTE : CDP_OK, cdp_call_wait(&c));
            if (fails)
                T_TEXT("at the beginning", c.error.text);
            else
                T_EQ(1 + ROW, i64_at(c.data, 0));
            cdp_call_free(&c);
            cdp_rref_drop(last);
        }
        meet(s, &place);
    }
}

TEST(a_long_row_of_values_on_values) {
    like.max_calls = ROW + 10;
    like.max_queue = ROW + 10;
    run_own(2, long_row);
}

/* The owner dies: before it has confirmed the value, while the function runs, and before the
   call. */
static void owner_dies(side *s) {
    static uint32_t place;
    int64_t x[2] = {1, 0}, more = 1;
    cdp_rref on, r[2];
    cdp_call c[2] = {{0}};
    if (s->rank == 0) {
        OK(cdp_rpc_remote(s->rpc, CALL(.to = 1, F("counter"), BYTES(x, 16)), &on));
        OK(cdp_rref_confirmed(on, 20000));
        OK(cdp_rpc_remote(s->rpc, CALL(.on = on, F("keep"), BYTES(&more, 8)), &r[0]));
        r[1] = grown(r[0], 1); /* it waits for the function above */
        for (uint32_t i = 0; i < 2; ++i)
            OK(cdp_rref_fetch(r[i], 20000, &c[i]));
        OK(cdp_rref_confirmed(r[1], 20000));
        T_EQ(3, cdp_rpc_stats_of(s->rpc).users);
    } else {
        serve_until(s, &s->kept_count, 1);
    }
    meet(s, &place);
    if (s->rank == 1) {
        cdp_rpc_destroy(s->rpc);
        OK(cdp_rpc_reply(s->kept[0], NULL));
        return;
    }
    for (uint32_t i = 0; i < 2; ++i) {
        T_EQ(CDP_ERR_PEER_LOST, cdp_call_wait(&c[i]));
        cdp_call_free(&c[i]);
        T_EQ(CDP_ERR_PEER_LOST, cdp_rref_confirmed(r[i], 0));
        cdp_rref_drop(r[i]);
    }
    REFUSED(CDP_ERR_PEER_LOST, "a reference to a value of rank 1 cannot be shared",
        cdp_rpc_start(s->rpc, CALL(.to = 0, F("nothing"), RREF(on)), &c[0]));
    T_EQ(CDP_ERR_PEER_LOST, c[0].status);
    T_EQ(CDP_RAN_NO, c[0].ran);
    T_EQ(CDP_ERR_PEER_LOST, c[0].error.status);
    T_TEXT("a reference to a value of rank 1 cannot be shared", c[0].error.text);
    r[0] = grown(on, 1);
    T_EQ(CDP_ERR_PEER_LOST, cdp_rref_confirmed(r[0], 0));
    T_EQ(CDP_ERR_PEER_LOST, cdp_rref_to_here(r[0], 0, &c[0]));
    T_EQ(CDP_RAN_NO, c[0].ran);
    cdp_call_free(&c[0]);
    cdp_rref_drop(r[0]);
    cdp_rref_drop(on);
    T_EQ(0, cdp_rpc_stats_of(s->rpc).users + cdp_rpc_stats_of(s->rpc).holds);
    T_EQ(0, cdp_rpc_stats_of(s->rpc).calls_out);
    cdp_rpc_destroy(s->rpc);
}

static void owner_dies_body(side *s) {
    open_then(s, owner_dies);
}

TEST(values_on_values_of_an_owner_that_dies) {
    shut_by_body = true;
    run_own(2, owner_dies_body);
}

/* The owner has not confirmed the value yet, so the call has not left: rank 1 stands still. */
static void owner_never_confirms(side *s) {
    static uint32_t place;
    int64_t x[2] = {1, 0};
    cdp_rref on, made;
    gather(&place);
    if (s->rank == 0) {
        OK(cdp_rpc_remote(s->rpc, CALL(.to = 1, F("counter"), BYTES(x, 16)), &on));
        made = grown(on, 1);
        T_EQ(CDP_PENDING, cdp_rref_confirmed(made, 0));
        cdp_channel_drop(s->rpc->channel, 1, "for the test");
        T_EQ(CDP_ERR_PEER_LOST, cdp_rref_confirmed(made, 15000));
        cdp_rref_drop(on);
        cdp_rref_drop(made);
        T_EQ(0, cdp_rpc_stats_of(s->rpc).users + cdp_rpc_stats_of(s->rpc).calls_out);
    }
    gather(&place);
    cdp_rpc_destroy(s->rpc);
}
static void owner_never_confirms_body(side *s) {
    if (how == HUB_POLLED) open_then(s, owner_never_confirms);
}

TEST(a_value_on_a_value_that_is_never_confirmed) {
    shut_by_body = true;
    run_own(2, owner_never_confirms_body);
}

/* The rank that has asked for the values dies: its references go, and the values with them. */
static void asker_dies(side *s) {
    static uint32_t place;
    int64_t x[2] = {1, 0};
    cdp_rref on, made;
    const uint64_t until = test_until_ns(10000);
    if (s->rank == 0) {
        OK(cdp_rpc_remote(s->rpc, CALL(.to = 1, F("counter"), BYTES(x, 16)), &on));
        OK(cdp_rpc_remote(s->rpc, CALL(.on = on, F("keep")), &made));
        OK(cdp_rref_confirmed(grown(made, 1), 20000));
    } else {
        serve_until(s, &s->kept_count, 1);
    }
    meet(s, &place);
    if (s->rank == 1) {
        const cdp_value v = counter_value(s, 1, iov_next());
        serve_until(s, &s->lost, 1);
        OK(cdp_rpc_reply_value(s->kept[0], &v));
        while (cdp_rpc_stats_of(s->rpc).owners && test_now_ns() < until)
            (void)!cdp_rpc_serve(s->rpc, 1);
        T_EQ(0, cdp_rpc_stats_of(s->rpc).owners + cdp_rpc_stats_of(s->rpc).forks);
    }
    cdp_rpc_destroy(s->rpc);
    T_EQ(s->values.made, s->values.destroyed);
}

static void asker_dies_body(side *s) {
    open_then(s, asker_dies);
}

TEST(values_on_values_for_a_rank_that_dies) {
    shut_by_body = true;
    run_own(2, asker_dies_body);
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

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"user_rrefs_confirmed", user_rrefs_confirmed, 60},
        {"references_of_a_liar_are_let_go", references_of_a_liar_are_let_go, 60},
        {"a_kept_request_outlives_its_value", a_kept_request_outlives_its_value, 60},
        {"async_class_rref_proxy", async_class_rref_proxy, 60},
        {"rref_proxy_timeout", rref_proxy_timeout, 60},
        {"rref_proxy_tensor", rref_proxy_tensor, 60},
        {"pass_local_rrefs", pass_local_rrefs, 60},
        {"circular_references_end_with_the_rpc", circular_references_end_with_the_rpc, 60},
        {"a_call_on_a_value_makes_a_value", a_call_on_a_value_makes_a_value, 60},
        {"a_call_on_a_value_that_was_not_made_makes_none",
            a_call_on_a_value_that_was_not_made_makes_none, 60},
        {"a_long_row_of_values_on_values", a_long_row_of_values_on_values, 60},
        {"values_on_values_of_an_owner_that_dies", values_on_values_of_an_owner_that_dies, 60},
        {"a_value_on_a_value_that_is_never_confirmed", a_value_on_a_value_that_is_never_confirmed,
            60},
        {"values_on_values_for_a_rank_that_dies", values_on_values_for_a_rank_that_dies, 60},
        {"builtin_remote_ret", builtin_remote_ret, 60},
        {"rref_get_future", rref_get_future, 60},
        {"local_value", local_value, 60},
        {"py_rref_args_user_share", py_rref_args_user_share, 60},
        {"nested_rref", nested_rref, 60},
        {"remote_with_exception", remote_with_exception, 60},
        {"rref_timeout", rref_timeout, 60},
        {"rref_context_debug_info", rref_context_debug_info, 60},
        {"rref_leak", rref_leak, 60},
        {"full_tables_are_busy", full_tables_are_busy, 60},
        {"references_at_random", references_at_random, 60},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
