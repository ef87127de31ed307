/* test_rpc_hostile.c - ranks that lie about what others have: nobody but the liar is given up, and
   nothing of an honest rank is taken for a lie. And the loop of a program that has no threads. */
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"

#include "cdp_rpc.h"

#include "rpc_sides.h"

static void f_polls(void *user, cdp_rpc_request *q) {
    (void)user;
    REFUSED(CDP_ERR_STATE, "run inside of it already", cdp_rpc_poll(q->rpc, 0));
}

static void f_early_back(void *user, cdp_rpc_request *q) {
    const cdp_args back = {.rrefs = q->rrefs, .rref_count = 1};
    (void)user;
    T_EQ(CDP_ERR_PEER_LOST, cdp_rref_confirmed(q->rrefs[0], 0));
    T_TEXT("is broken: that rank is lost", cdp_last_error()->text);
    REFUSED(CDP_ERR_PEER_LOST, "cannot be shared", cdp_rpc_reply(q, &back));
}

static const cdp_rpc_function hostile_functions[] = {
    {.name = "add", .func = f_add, .flags = CDP_RPC_INLINE},
    {.name = "add_in_worker", .func = f_add},
    {.name = "nothing", .func = f_nothing},
    {.name = "polls", .func = f_polls, .flags = CDP_RPC_INLINE},
    {.name = "early_back", .func = f_early_back, .flags = CDP_RPC_EARLY},
    {.name = "forward", .func = f_forward},
    {.name = "counter", .func = f_counter},
    {.name = "lend", .func = f_lend},
    {.name = "sum_of", .func = f_sum_of},
    {.name = "mul", .func = f_mul, .backward = b_mul},
};
static void hostile(uint32_t n, void (*func)(side *s)) {
    like.functions = hostile_functions;
    like.function_count = sizeof hostile_functions / sizeof *hostile_functions;
    run(n, func);
}

/* ---- references ---- */

/* Rank 3 tells the owner, rank 0, that rank 1 has given it a reference with the number that rank 1
   gives to its next one. Rank 2, which gets that one, is not to blame. */
static void takes_a_number(side *s) {
    static uint64_t rid, fid;
    static uint32_t place;
    cdp_rref mine = {0};
    cdp_call c = {0};
    int64_t x = 30;
    if (s->rank == 1) {
        cdp_rref_info info = {0};
        OK(cdp_rpc_call(s->rpc, CALL(.to = 0, F("lend"), BYTES(&x, 8)), &c));
        OK(cdp_rref_info_of(c.rrefs[0], &info));
        rid = info.rid;
        fid = (uint64_t)1 << 48 | (s->rpc->ids + 1);
    }
    meet(s, &place);
    if (s->rank == 3) {
        const cdp_channel_message m = {.kind = CDP__RPC_FORK, .aux = 1, .a = rid, .b = fid};
        cdp__rpc_lock(s->rpc);
        T(cdp__rpc_reserve(s->rpc, 1));
        const uint32_t slot = cdp__ref_user(&s->rpc->refs, rid, fid, 0, CDP__REF_NONE);
        mine = cdp__rpc_rref(s->rpc, slot);
        ++s->rpc->peers[0].sent;
        OK(cdp_channel_send(s->rpc->channel, &m));
        cdp__rpc_leave(s->rpc);
        OK(cdp_rref_confirmed(mine, 10000 * TEST_LATE));
    }
    meet(s, &place);
    if (s->rank == 1) {
        cdp_call sum = {0};
        if (OK(cdp_rpc_call(s->rpc,
                CALL(.to = 2, F("sum_of"), .args = {.rrefs = c.rrefs, .rref_count = 1}), &sum)))
            T_EQ(30, i64_at(sum.data, 0));
        T_EQ(fid, (uint64_t)1 << 48 | s->rpc->ids); /* it was that number */
        cdp_call_free(&sum);
    }
    meet(s, &place);
    if (s->rank == 0) T(cdp_rpc_alive(s->rpc, 2) && cdp_rpc_alive(s->rpc, 1));
    if (s->rank == 2) T(cdp_rpc_alive(s->rpc, 0));
    cdp_call_free(&c);
    cdp_rref_drop(mine);
}
TEST(a_liar_takes_the_number_of_a_reference) {
    hostile(4, takes_a_number);
}

/* Ranks 0 and 2 have lost each other. What rank 1 gives rank 0 of rank 2, as an argument and as a
   result, is broken there, with that cause; rank 0 cannot give it back, and nobody else is given
   up. */
static void of_a_rank_lost_here(side *s) {
    static uint32_t place;
    int64_t x[2] = {1, 0};
    cdp_rref r = {0};
    cdp_call c = {0};
    gather(&place);
    if (s->rank == 0) OK(cdp_channel_drop(s->rpc->channel, 2, "for the test"));
    const uint64_t until = test_until_ns(10000);
    while (s->rank != 1 && cdp_rpc_alive(s->rpc, 2 - s->rank) && test_now_ns() < until)
        (void)!cdp_rpc_serve(s->rpc, 1);
    meet(s, &place);
    if (s->rank == 1) {
        OK(cdp_rpc_remote(s->rpc, CALL(.to = 2, F("counter"), BYTES(x, 16)), &r));
        OK(cdp_rref_confirmed(r, 10000 * TEST_LATE));
        T_EQ(CDP_ERR_PEER_LOST, cdp_rpc_call(s->rpc, CALL(.to = 0, F("early_back"), RREF(r)), &c));
        T_TEXT("early_back on rank 0", c.error.text);
        cdp_call_free(&c);
        T_EQ(CDP_ERR_PEER_LOST, cdp_rpc_call(s->rpc, CALL(.to = 0, F("sum_of"), RREF(r)), &c));
        T_EQ(CDP_RAN_NO, c.ran);
        cdp_call_free(&c);
    }
    if (s->rank == 0) { /* rank 1 makes it on rank 2 */
        OK(cdp_rpc_call(s->rpc, CALL(.to = 1, F("forward"), BYTES(x, 8)), &c));
        if (T_EQ(1, c.rref_count)) {
            cdp_call here = {0};
            T_EQ(CDP_ERR_PEER_LOST, cdp_rref_confirmed(c.rrefs[0], 10000 * TEST_LATE));
            T_EQ(CDP_ERR_PEER_LOST, cdp_rref_to_here(c.rrefs[0], 0, &here));
            cdp_call_free(&here);
        }
        cdp_call_free(&c);
    }
    meet(s, &place);
    if (s->rank != 1) T(cdp_rpc_alive(s->rpc, 1));
    if (s->rank == 1) T(cdp_rpc_alive(s->rpc, 0) && cdp_rpc_alive(s->rpc, 2));
    cdp_rref_drop(r);
    OK(cdp_rpc_shutdown(s->rpc, 5000 * TEST_LATE));
    gather(&place);
    cdp_rpc_destroy(s->rpc);
    T_EQ(s->values.made, s->values.destroyed);
}
static void of_a_rank_lost_here_body(side *s) {
    open_then(s, of_a_rank_lost_here);
}
TEST(a_reference_to_a_value_of_a_rank_that_is_lost_here) {
    shut_by_body = true;
    hostile(3, of_a_rank_lost_here_body);
}

/* ---- contexts ---- */

/* A rank that has no part in a context says that it failed; one that has blames a rank that there
   is not: they lose their links, and contexts of others go on. */
static uint32_t stranger;
static void fails_of_liars(side *s) {
    static uint64_t id;
    static uint32_t place, told;
    double x[4] = {1, 2, 3, 4};
    cdp_ctx *ctx = NULL;
    cdp_call c = {0};
    uint64_t value = 0;
    weights_open(s);
    meet(s, &place);
    if (s->rank == 0) {
        OK(cdp_ctx_begin(s->rpc, &ctx));
        OK(cdp_ctx_value(ctx, &value));
        const cdp_tensor t = f64s(x, 4, value);
        OK(mul(s, ctx, stranger ? 1 : 2, "mul", 0, &t, &c));
        id = cdp_ctx_id(ctx);
        cdp_call_free(&c);
    }
    meet(s, &place);
    if (s->rank == 2) {
        const cdp_channel_message m = {.kind = CDP__RPC_CTX_FAIL,
            .aux = (uint32_t)-CDP_ERR_MISMATCH,
            .a = id,
            .b = stranger ? 0 : 70000};
        OK(cdp_channel_send(s->rpc->channel, &m));
    }
    if (s->rank == 0) {
        const uint64_t until = test_until_ns(10000);
        while (!counted_of(&s->lost) && test_now_ns() < until)
            (void)!cdp_rpc_serve(s->rpc, 1);
        T_EQ(1, counted_of(&s->lost));
        T_EQ(2, s->lost_rank);
        const cdp_tensor t = f64s(x, 4, value);
        OK(mul(s, ctx, 1, "mul", 0, &t, &c));
        OK(cdp_ctx_backward(ctx, &(cdp_backward_desc){.roots = c.tensors, .root_count = 1}));
        cdp_call_free(&c);
        OK(cdp_ctx_end(ctx, 0));
        count(&told);
    } else {
        const uint64_t until = test_until_ns(20000);
        while (!counted_of(&told) && test_now_ns() < until)
            (void)!cdp_rpc_serve(s->rpc, 1);
    }
    gather(&place);
    if (s->rank == 0) told = 0;
    cdp_rref_drop(weight_rref[s->rank]);
    cdp_rpc_destroy(s->rpc);
}
static void fails_of_liars_body(side *s) {
    open_then(s, fails_of_liars);
}
TEST(a_failure_of_a_context_of_others) {
    for (stranger = 0; stranger < 2; ++stranger) {
        shut_by_body = true;
        hostile(3, fails_of_liars_body);
    }
}

/* While rank 0 runs a backward function, rank 2 sends the MARK that it should have sent before: the
   context fails, and rank 0 does not take its own next step for a lie. */
static cdp_ctx *late_ctx;
static uint64_t late_value;
static uint32_t late_now;
static cdp_status b_waits_for_failure(void *user, cdp_backward *b) {
    side *s = (side *)user;
    const uint64_t until = test_until_ns(10000);
    uint64_t value;
    count(&late_now);
    while (cdp_ctx_value(b->ctx, &value) == CDP_OK && test_now_ns() < until)
        (void)!cdp_rpc_serve(s->rpc, 1);
    return CDP_OK;
}
static cdp_status b_none(void *user, cdp_backward *b) {
    (void)user;
    (void)b;
    return CDP_OK;
}
static void steps_of_rank_0(side *s, cdp_call *c) {
    double x[4] = {1, 2, 3, 4};
    uint64_t v[3];
    OK(cdp_ctx_begin(s->rpc, &late_ctx));
    for (uint32_t i = 0; i < 3; ++i)
        OK(cdp_ctx_value(late_ctx, &v[i]));
    OK(cdp_ctx_op(late_ctx,
        &(cdp_ctx_op_desc){.inputs = &v[0],
            .input_count = 1,
            .outputs = &v[1],
            .output_count = 1,
            .backward = b_waits_for_failure,
            .user = s}));
    OK(cdp_ctx_op(late_ctx,
        &(cdp_ctx_op_desc){.inputs = &v[1],
            .input_count = 1,
            .outputs = &v[2],
            .output_count = 1,
            .backward = b_none}));
    late_value = v[2];
    const cdp_tensor t = f64s(x, 4, v[2]);
    OK(mul(s, late_ctx, 2, "mul", 0, &t, c));
}
static void late_mark(side *s) {
    static uint32_t place;
    cdp_call c = {0};
    if (s->rank == 0) late_now = 0;
    weights_open(s);
    meet(s, &place);
    if (s->rank == 0) {
        double x[4] = {1, 1, 1, 1};
        steps_of_rank_0(s, &c);
        const cdp_tensor root = f64s(x, 4, late_value - 1);
        REFUSED(CDP_ERR_INTERNAL, "in an order that cannot be",
            cdp_ctx_backward(late_ctx, &(cdp_backward_desc){.roots = &root, .root_count = 1}));
        cdp_call_free(&c);
        OK(cdp_ctx_end(late_ctx, 0));
    }
    if (s->rank == 2) {
        const uint64_t until = test_until_ns(10000);
        while (!counted_of(&late_now) && test_now_ns() < until)
            (void)!cdp_rpc_serve(s->rpc, 1);
        uint8_t pass[8];
        cdp__rpc_lock(sides[0].rpc);
        cdp__put_u64(pass, late_ctx->w.pass);
        cdp_lock_release(&sides[0].rpc->lock);
        const cdp_channel_message m = {.kind = CDP__RPC_MARK | CDP__RPC_CTX << 8,
            .aux = 1,
            .a = late_ctx->id,
            .b = late_value,
            .body = pass,
            .bytes = sizeof pass};
        cdp__rpc_lock(s->rpc);
        ++s->rpc->peers[0].sent;
        OK(cdp_channel_send(s->rpc->channel, &m));
        cdp__rpc_leave(s->rpc);
    }
    meet(s, &place);
    weights_close(s);
}
TEST(a_mark_that_comes_too_late) {
    hostile(3, late_mark);
}

/* Gradients that together are longer than max_queue_bytes come one after the other. */
static cdp_status b_passes(void *user, cdp_backward *b) {
    (void)user;
    for (uint32_t i = 0; i < b->in_count; ++i)
        b->grad_in[i] = b->grad_out[0];
    return CDP_OK;
}
static void long_gradients(side *s) {
    enum {
        LONG = 20000,
        PARTS = 6
    };
    static double x[RANKS_MAX][LONG];
    static uint32_t place;
    uint64_t value[PARTS];
    cdp_tensor t[PARTS], g;
    cdp_ctx *ctx;
    OK(cdp_ctx_begin(s->rpc, &ctx));
    for (uint32_t i = 0; i < PARTS; ++i) {
        OK(cdp_ctx_value(ctx, &value[i]));
        t[i] = f64s(x[s->rank], LONG, value[i]);
    }
    cdp_call c = {0};
    cdp_call_desc d = {.to = next_of(s), F("first"), .ctx = ctx};
    d.args.tensors = t;
    d.args.tensor_count = PARTS;
    OK(cdp_rpc_call(s->rpc, &d, &c));
    OK(cdp_ctx_backward(ctx, &(cdp_backward_desc){.roots = c.tensors, .root_count = 1}));
    for (uint32_t i = 0; i < PARTS; ++i) {
        if (!OK(cdp_ctx_grad(ctx, value[i], &g)) || !T(g.data != NULL)) break;
        T_EQ(1, ((const double *)g.data)[0]);
        T_EQ(1, ((const double *)g.data)[LONG - 1]);
    }
    cdp_call_free(&c);
    OK(cdp_ctx_end(ctx, 0));
    T_EQ(0, s->rpc->grad_bytes);
    meet(s, &place);
}
static void f_first(void *user, cdp_rpc_request *q) {
    (void)user;
    OK(cdp_rpc_reply(q, &(cdp_args){.tensors = q->tensors, .tensor_count = 1}));
}
TEST(gradients_wait_for_memory) {
    static const cdp_rpc_function first[] = {
        {.name = "first", .func = f_first, .backward = b_passes}};
    like.functions = first;
    like.function_count = 1;
    like.max_queue_bytes = 200000;
    run(2, long_gradients);
}

/* ---- a loop ---- */

static void one_done(void *user, cdp_call *c) {
    T_EQ(CDP_OK, c->status);
    count((uint32_t *)user);
}
static void frames(side *s) {
    enum {
        CALLS = 12
    };
    static uint32_t done[RANKS_MAX], all;
    const uint64_t until = test_until_ns(20000);
    int64_t x[2] = {3, 4};
    cdp_call c[CALLS] = {{0}}, last = {0};
    done[s->rank] = 0;
    OK(cdp_rpc_call(s->rpc, CALL(.to = s->rank, F("polls")), &last));
    cdp_call_free(&last);
    for (uint32_t i = 0; i < CALLS; ++i)
        OK(cdp_rpc_start(s->rpc,
            CALL(.to = i % ranks, F("add_in_worker"), BYTES(x, 16), .done = one_done,
                .user = &done[s->rank]),
            &c[i]));
    while (counted_of(&done[s->rank]) < CALLS && test_now_ns() < until)
        OK(cdp_rpc_poll(s->rpc, 0));
    const uint32_t came = __atomic_fetch_add(&all, 1, __ATOMIC_SEQ_CST);
    while (counted_of(&all) < (came / ranks + 1) * ranks && test_now_ns() < until)
        OK(cdp_rpc_poll(s->rpc, 50));
    for (uint32_t i = 0; i < CALLS; ++i) {
        if (T_EQ(CDP_OK, cdp_call_wait(&c[i]))) T_EQ(7, i64_at(c[i].data, 0));
        cdp_call_free(&c[i]);
    }
    REFUSED(CDP_ERR_INVALID, " is NULL", cdp_rpc_poll(NULL, 0));
}
TEST(functions_run_in_a_loop_that_polls) {
    hostile(3, frames);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"a_liar_takes_the_number_of_a_reference", a_liar_takes_the_number_of_a_reference, 60},
        {"a_reference_to_a_value_of_a_rank_that_is_lost_here",
            a_reference_to_a_value_of_a_rank_that_is_lost_here, 60},
        {"a_failure_of_a_context_of_others", a_failure_of_a_context_of_others, 60},
        {"a_mark_that_comes_too_late", a_mark_that_comes_too_late, 60},
        {"gradients_wait_for_memory", gradients_wait_for_memory, 60},
        {"functions_run_in_a_loop_that_polls", functions_run_in_a_loop_that_polls, 60},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
