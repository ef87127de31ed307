/* test_rpc_promises.c - what the declarations and the manual of cdp_rpc.h promise about calls that
   are refused, limits that meet, ranks that only serve, texts that blame, and what a program still
   holds when the rpc is gone. */
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"

#include "cdp_rpc.h"

#include "rpc_sides.h"

/* ---- what is refused has not started ---- */

/* Tries everything that starts calls and waits for them, where waits are refused. What had started
   would write to this stack later. */
static cdp_rref refused_rref;
static cdp_dist_optim *refused_optim;
static cdp_ctx *refused_ctx;
static void try_to_wait(cdp_rpc *rpc, uint32_t to) {
    cdp_dist_optim *none;
    cdp_call c[2];
    const uint64_t started = cdp_rpc_stats_of(rpc).calls_out;
    memset(c, 0, sizeof c);
    REFUSED(CDP_ERR_STATE, "must not wait", cdp_rpc_call(rpc, CALL(.to = to, F("nothing")), &c[0]));
    T_EQ(CDP_ERR_STATE, c[0].status);
    T_EQ(CDP_RAN_NO, c[0].ran);
    T(strstr(c[0].error.text, "must not wait") != NULL);
    REFUSED(CDP_ERR_STATE, "must not wait", cdp_rref_to_here(refused_rref, 0, &c[1]));
    REFUSED(CDP_ERR_STATE, "must not wait", cdp_dist_optim_step(refused_optim, refused_ctx));
    REFUSED(CDP_ERR_STATE, "must not wait", cdp_dist_optim_set(refused_optim, 1, 0));
    REFUSED(CDP_ERR_STATE, "must not wait",
        cdp_dist_optim_create(&(cdp_optim_desc){.rpc = rpc,
                                  .params = &refused_rref,
                                  .param_count = 1,
                                  .kind = CDP_OPTIM_SGD,
                                  .lr = 1},
            &none));
    T_EQ(started, cdp_rpc_stats_of(rpc).calls_out);
}
static void tries_when_done(void *user, cdp_call *c) {
    side *s = (side *)user;
    T_EQ(CDP_OK, c->status);
    try_to_wait(s->rpc, next_of(s));
    count(&s->ran);
}
static void f_tries_inline(void *user, cdp_rpc_request *q) {
    (void)user;
    try_to_wait(q->rpc, next_of(side_of(q)));
}
static const cdp_rpc_function refusing_functions[] = {
    {.name = "nothing", .func = f_nothing},
    {.name = "tries_inline", .func = f_tries_inline, .flags = CDP_RPC_INLINE},
};
static uint32_t refused_place;
static void refuses(side *s) {
    cdp_call c = {0};
    if (s->rank == 0) {
        weights_open(s);
        refused_rref = weight_rref[0];
        OK(cdp_ctx_begin(s->rpc, &refused_ctx));
        OK(cdp_dist_optim_create(&(cdp_optim_desc){.rpc = s->rpc,
                                     .params = &refused_rref,
                                     .param_count = 1,
                                     .kind = CDP_OPTIM_SGD,
                                     .lr = 1},
            &refused_optim));
        OK(cdp_rpc_call(s->rpc, CALL(.to = 0, F("tries_inline")), &c));
        cdp_call_free(&c);
        OK(cdp_rpc_start(
            s->rpc, CALL(.to = 1, F("nothing"), .done = tries_when_done, .user = s), &c));
        OK(cdp_call_wait(&c));
        cdp_call_free(&c);
        T_EQ(1, counted_of(&s->ran));
        cdp_dist_optim_destroy(refused_optim);
        OK(cdp_ctx_end(refused_ctx, 0));
        weights_close(s);
    }
    meet(s, &refused_place);
}
TEST(what_must_not_wait_starts_nothing) {
    like.functions = refusing_functions;
    like.function_count = 2;
    run(2, refuses);
}

/* ---- descriptors are copied */

/* A value whose lists, label and references are gone when this returns. */
static cdp_rref value_of_lists(side *s, int64_t *data, cdp_rref inner) {
    char label[] = "a label of the stack";
    cdp_iov iov[2] = {{data, 8}, {data + 1, 8}};
    cdp_tensor t = {.data = data + 2, .dtype = CDP_DTYPE_I64, .dims = 1, .shape = {2}};
    cdp_value v = {.plain = {.iov = iov,
                       .iov_count = 2,
                       .tensors = &t,
                       .tensor_count = 1,
                       .rrefs = &inner,
                       .rref_count = 1}};
    cdp_rref r;
    OK(cdp_rref_create(s->rpc, &v, label, &r));
    memset(iov, 0xaa, sizeof iov);
    memset(&t, 0xaa, sizeof t);
    memset(&v, 0xaa, sizeof v);
    memset(&inner, 0xaa, sizeof inner);
    memset(label, 'x', sizeof label - 1);
    return r;
}
static int64_t copied_data[RANKS_MAX][4];
static void look_at_copy(cdp_rref r, const int64_t *data) {
    cdp_call c = {0};
    if (OK(cdp_rref_to_here(r, 0, &c)) && T_EQ(16, c.bytes) && T_EQ(1, c.tensor_count)
        && T_EQ(1, c.rref_count)) {
        T(memcmp(c.data, data, 16) == 0);
        T_EQ(2, c.tensors[0].shape[0]);
        T(memcmp(c.tensors[0].data, data + 2, 16) == 0);
        T_EQ(CDP_OK, cdp_rref_confirmed(c.rrefs[0], 5000));
    }
    cdp_call_free(&c);
}
/* the same by a reply; its value holds a counter of this rank */
static void f_lists(void *user, cdp_rpc_request *q) {
    side *s = side_of(q);
    int64_t *data = copied_data[s->rank];
    cdp_iov iov[2] = {{data, 8}, {data + 1, 8}};
    cdp_tensor t = {.data = data + 2, .dtype = CDP_DTYPE_I64, .dims = 1, .shape = {2}};
    cdp_value inner = counter_value(s, 5, iov_next());
    cdp_rref r;
    (void)user;
    if (!OK(cdp_rref_create(q->rpc, &inner, NULL, &r))) return;
    cdp_value v = {.plain = {.iov = iov,
                       .iov_count = 2,
                       .tensors = &t,
                       .tensor_count = 1,
                       .rrefs = &r,
                       .rref_count = 1}};
    OK(cdp_rpc_reply_value(q, &v));
    cdp_rref_drop(r);
    memset(iov, 0xaa, sizeof iov);
    memset(&t, 0xaa, sizeof t);
    memset(&r, 0xaa, sizeof r);
}
static void copies(side *s) {
    static uint32_t place;
    int64_t *data = copied_data[s->rank];
    cdp_value inner = counter_value(s, 1, iov_next());
    char label[] = "another label", name[] = "nothing", *text = (char *)malloc(100000);
    uint32_t only = s->rank, *allow = (uint32_t *)malloc(4);
    cdp_rpc_function *f = (cdp_rpc_function *)calloc(2, sizeof *f);
    cdp_rpc_desc d = desc_of(s);
    cdp_rref_info info;
    cdp_rref in, r;
    cdp_call c = {0};
    for (uint32_t i = 0; i < 4; ++i)
        data[i] = 100 * s->rank + i;
    *allow = only;
    f[0] = (cdp_rpc_function){.name = name, .func = f_nothing, .allow = allow, .allow_count = 1};
    f[1] = (cdp_rpc_function){.name = "lists", .func = f_lists};
    d.functions = f;
    d.function_count = 2;
    if (!OK(cdp_rpc_create(&d, &s->rpc))) return;
    memset(f, 0xaa, 2 * sizeof *f);
    memset(name, 'x', sizeof name - 1);
    memset(allow, 0xaa, 4);
    free(f);
    free(allow);
    OK(cdp_barrier(s->g));
    OK(cdp_rpc_call(s->rpc, CALL(.to = s->rank, F("nothing")), &c));
    cdp_call_free(&c);
    T_EQ(CDP_ERR_UNSUPPORTED, cdp_rpc_call(s->rpc, CALL(.to = next_of(s), F("nothing")), &c));
    cdp_call_free(&c);
    OK(cdp_rref_create(s->rpc, &inner, NULL, &in));
    r = value_of_lists(s, data, in);
    cdp_rref_drop(in); /* the value has a handle of its own */
    look_at_copy(r, data);
    if (OK(cdp_rref_info_of(r, &info))) T_TEXT("a label of the stack", info.label);
    cdp_rref_drop(r);
    OK(cdp_rpc_remote(s->rpc, CALL(.to = next_of(s), F("lists"), .label = label), &r));
    memset(label, 'x', sizeof label - 1);
    cdp_rpc_describe(s->rpc, text, 100000);
    T_TEXT("another label", text);
    free(text);
    look_at_copy(r, copied_data[next_of(s)]);
    cdp_rref_drop(r);
    OK(cdp_rpc_remote(s->rpc, CALL(.to = s->rank, F("lists")), &r));
    look_at_copy(r, data);
    cdp_rref_drop(r);
    meet(s, &place);
    OK(cdp_rpc_shutdown(s->rpc, 5000 * TEST_LATE));
    cdp_rpc_destroy(s->rpc);
    T_EQ(s->values.made, s->values.destroyed);
}
TEST(descriptors_are_copied) {
    shut_by_body = true;
    run(2, copies);
}

/* ---- a value that was not made */

static void f_not_made(void *user, cdp_rpc_request *q) {
    (void)user;
    if (q->bytes) test_sleep_ms(50);
    OK(cdp_rpc_fail(q, 4, "no flour"));
}
static const cdp_rpc_function failing_functions[] = {
    {.name = "not_made", .func = f_not_made},
    {.name = "nothing", .func = f_nothing},
};
static void look_at_failure(const cdp_call *c, const char *begins) {
    T_EQ(CDP_ERR_REMOTE, c->status);
    T_EQ(CDP_RAN_NO, c->ran);
    T_EQ(4, c->code);
    T_TEXT(begins, c->error.text);
    T_TEXT("its value was not made: not_made failed with code 4: no flour", c->error.text);
}
static void not_made(side *s, uint32_t owner, int64_t late) {
    cdp_call c = {0};
    cdp_value v;
    cdp_rref r, none;
    char begins[64];
    const cdp_call_desc make = {.to = owner,
        F("not_made"),
        .args = {.iov = &(cdp_iov){&late, 8}, .iov_count = late ? 1 : 0}};
    OK(cdp_rpc_remote(s->rpc, &make, &r));
    (void)!cdp_rpc_call(s->rpc, CALL(.on = r, F("nothing")), &c);
    snprintf(begins, sizeof begins, "nothing on rank %u", owner);
    look_at_failure(&c, begins);
    cdp_call_free(&c);
    (void)!cdp_rref_to_here(r, 0, &c);
    snprintf(begins, sizeof begins, "the value on rank %u", owner);
    look_at_failure(&c, begins);
    cdp_call_free(&c);
    if (owner == s->rank)
        REFUSED(
            CDP_ERR_REMOTE, "not_made failed with code 4: no flour", cdp_rref_local(r, 0, 0, &v));
    cdp_rref_drop(r);
    OK(cdp_rpc_remote(s->rpc, CALL(.to = owner, F("no_such")), &none));
    T_EQ(CDP_ERR_UNSUPPORTED, cdp_rpc_call(s->rpc, CALL(.on = none, F("nothing")), &c));
    T_EQ(CDP_RAN_NO, c.ran);
    cdp_call_free(&c);
    cdp_rref_drop(none);
}
static void not_made_body(side *s) {
    static uint32_t place;
    for (uint32_t k = 0; k < 4; ++k)
        not_made(s, k % 2 ? next_of(s) : s->rank, k / 2);
    T_EQ(0, counted_of(&s->ran));
    meet(s, &place);
}
TEST(a_call_on_a_value_that_was_not_made_did_not_run) {
    like.functions = failing_functions;
    like.function_count = 2;
    run(2, not_made_body);
}

/* ---- limits that meet */

/* {depth}: calls the next rank with depth - 1, with arguments as long as its own */
static void f_down(void *user, cdp_rpc_request *q) {
    side *s = side_of(q);
    const int64_t depth = i64_at(q->data, 0);
    cdp_call c = {0};
    (void)user;
    if (!depth) return;
    uint8_t *args = (uint8_t *)calloc(1, q->bytes);
    memcpy(args, &(int64_t){depth - 1}, 8);
    if (cdp_rpc_call(q->rpc, CALL(.to = next_of(s), F("down"), BYTES(args, q->bytes)), &c)
        != CDP_OK)
        OK(cdp_rpc_fail(q, 1, c.error.text));
    cdp_call_free(&c);
    free(args);
}
static const cdp_rpc_function down_functions[] = {{.name = "down", .func = f_down}};
static uint32_t burst_calls, burst_depth, burst_bytes, burst_place;
static void bursts(side *s) {
    cdp_call *c = (cdp_call *)calloc(burst_calls, sizeof *c);
    uint8_t *args = (uint8_t *)calloc(1, burst_bytes);
    args[0] = (uint8_t)burst_depth;
    for (uint32_t i = 0; i < burst_calls; ++i)
        OK(cdp_rpc_start(
            s->rpc, CALL(.to = next_of(s), F("down"), BYTES(args, burst_bytes)), &c[i]));
    for (uint32_t i = 0; i < burst_calls; ++i) {
        OK(cdp_call_wait(&c[i]));
        cdp_call_free(&c[i]);
    }
    free(c);
    free(args);
    meet(s, &burst_place);
}
static void burst(uint32_t n, uint32_t calls, uint32_t depth, uint32_t bytes) {
    like.functions = down_functions;
    like.function_count = 1;
    like.timeout_ms = 10000 * TEST_LATE;
    burst_place = 0; /* worlds of other sizes were before */
    burst_calls = calls;
    burst_depth = depth;
    burst_bytes = bytes;
    run(n, bursts);
}
/* Each limit at 1, 2 and its default, beside each other one; all ranks call each other at once. */
TEST(ranks_that_call_each_other_do_not_starve) {
    for (uint32_t i = 0; i < 27 && !test__now.failed_checks; ++i) {
        like.workers = i % 3;
        like.max_calls = i / 3 % 3;
        like.max_queue = i / 9 % 3;
        burst(2, 12, 3, 8);
    }
}
TEST(default_limits_let_bursts_of_nested_calls_through) {
    burst(2, 300, 1, 8);
    burst(3, 1, 200, 8);
    burst(3, 40, 20, 8);
}
/* Long arguments, of which only one fits, of functions that wait for others with long ones. */
TEST(long_arguments_of_nested_calls_have_room) {
    for (uint32_t i = 0; i < 3 && !test__now.failed_checks; ++i) {
        like.workers = i;
        like.max_queue_bytes = like.max_call_bytes = 100000;
        burst(2, 4, 3, 80000);
    }
}

/* Rank 0's only worker waits in "outer" for a call of "once", before which another call of it came.
   No function here calls one that leads back to it. */
static uint32_t outer_runs, outer_place;
static void f_outer(void *user, cdp_rpc_request *q) {
    const uint64_t until = test_until_ns(10000);
    cdp_call c = {0};
    (void)user;
    count(&outer_runs);
    while (!cdp_rpc_stats_of(q->rpc).queued && test_now_ns() < until)
        test_sleep_ms(1);
    if (!OK(cdp_rpc_call(q->rpc, CALL(.to = next_of(side_of(q)), F("middle")), &c)))
        OK(cdp_rpc_fail(q, 1, "middle was late"));
    cdp_call_free(&c);
}
static void f_middle(void *user, cdp_rpc_request *q) {
    cdp_call c = {0};
    (void)user;
    if (cdp_rpc_call(q->rpc, CALL(.to = q->from, F("once")), &c) != CDP_OK)
        OK(cdp_rpc_fail(q, 1, c.error.text));
    cdp_call_free(&c);
}
static void calls_once(side *s) {
    const uint64_t until = test_until_ns(10000);
    cdp_call c[2] = {{0}};
    if (s->rank == 0) outer_runs = 0;
    gather(&outer_place);
    if (s->rank == 1) {
        OK(cdp_rpc_start(s->rpc, CALL(.to = 0, F("outer")), &c[0]));
        while (!counted_of(&outer_runs) && test_now_ns() < until)
            test_sleep_ms(1);
        OK(cdp_rpc_start(s->rpc, CALL(.to = 0, F("once")), &c[1]));
        for (uint32_t i = 0; i < 2; ++i) {
            OK(cdp_call_wait(&c[i]));
            cdp_call_free(&c[i]);
        }
    }
    gather(&outer_place); /* a thread that serves is one more that runs functions */
}
static void calls_once_body(side *s) {
    if (how != HUB_NO_WORKERS && how != HUB_POLLED) calls_once(s);
}
TEST(a_deep_call_passes_earlier_ones_where_one_runs_at_once) {
    static const cdp_rpc_function once_functions[] = {{.name = "outer", .func = f_outer},
        {.name = "middle", .func = f_middle},
        {.name = "once", .func = f_nothing, .max_running = 1}};
    like.workers = 1;
    like.timeout_ms = 500 * TEST_LATE;
    run_with(once_functions, 3, 2, calls_once_body);
}

/* ---- what a caller sees ---- */

static void f_on_rref(void *user, cdp_rpc_request *q) {
    cdp_rref_info info = {0};
    (void)user;
    if (q->on && OK(cdp_rref_info_of(q->on_rref, &info))) T(info.is_owner);
    T_EQ(q->on != NULL, q->on_rref.rpc != NULL);
    reply_i64(q, (int64_t)info.rid);
}
static const cdp_rpc_function seen_functions[] = {{.name = "on_rref", .func = f_on_rref},
    {.name = "counter", .func = f_counter}, {.name = "nothing", .func = f_nothing}};

/* Names that no rank has, one-way calls that are used again, a reference to the value of a call,
   and bytes of messages without a body. */
static void seen_by_the_caller(side *s) {
    static uint32_t place;
    int64_t x[2] = {3, 0};
    cdp_call c = {0};
    cdp_rref r;
    cdp_rref_info info;
    const cdp_rpc_stats before = cdp_rpc_stats_of(s->rpc);
    OK(cdp_rpc_call(s->rpc, CALL(.to = next_of(s), F("nothing")), &c));
    const cdp_rpc_stats after = cdp_rpc_stats_of(s->rpc);
    T(after.bytes_out >= before.bytes_out + 64);
    T(after.bytes_in >= before.bytes_in + 64);
    T_EQ(CDP_ERR_UNSUPPORTED, cdp_rpc_call(s->rpc, CALL(.to = next_of(s), F("nohting")), &c));
    T_TEXT("nohting on rank ", cdp_last_error()->text);
    T_TEXT("no function of this name is registered there", cdp_last_error()->text);
    for (uint32_t i = 0; i < 3; ++i) /* there is nothing to free between them */
        OK(cdp_rpc_call(s->rpc, CALL(.to = next_of(s), F("nothing"), .one_way = true), &c));
    OK(cdp_rpc_remote(s->rpc, CALL(.to = next_of(s), F("counter"), BYTES(x, 16)), &r));
    OK(cdp_rpc_call(s->rpc, CALL(.on = r, F("on_rref")), &c));
    OK(cdp_rref_info_of(r, &info));
    T_EQ((int64_t)info.rid, i64_at(c.data, 0));
    REFUSED(CDP_ERR_STATE, "has a result",
        cdp_rpc_start(s->rpc, CALL(.to = next_of(s), F("on_rref")), &c));
    cdp_call_free(&c);
    OK(cdp_rpc_call(s->rpc, CALL(.to = next_of(s), F("on_rref")), &c));
    T_EQ(0, i64_at(c.data, 0));
    cdp_call_free(&c);
    cdp_rref_drop(r);
    serve_until(s, &s->ran, 4);
    meet(s, &place);
}
TEST(names_references_and_bytes_as_the_caller_sees_them) {
    run_with(seen_functions, 3, 2, seen_by_the_caller);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"what_must_not_wait_starts_nothing", what_must_not_wait_starts_nothing, 60},
        {"descriptors_are_copied", descriptors_are_copied, 60},
        {"a_call_on_a_value_that_was_not_made_did_not_run",
            a_call_on_a_value_that_was_not_made_did_not_run, 60},
        {"ranks_that_call_each_other_do_not_starve", ranks_that_call_each_other_do_not_starve, 60},
        {"default_limits_let_bursts_of_nested_calls_through",
            default_limits_let_bursts_of_nested_calls_through, 60},
        {"long_arguments_of_nested_calls_have_room", long_arguments_of_nested_calls_have_room, 60},
        {"a_deep_call_passes_earlier_ones_where_one_runs_at_once",
            a_deep_call_passes_earlier_ones_where_one_runs_at_once, 60},
        {"names_references_and_bytes_as_the_caller_sees_them",
            names_references_and_bytes_as_the_caller_sees_them, 60},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
