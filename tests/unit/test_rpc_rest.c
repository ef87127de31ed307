/* test_rpc_rest.c - the scenarios of torch.distributed.rpc's own tests that need functions which
   test_rpc.c and test_rpc_scenarios.c do not have, and mistakes of programs in backward passes.
   rpc_scenarios.txt says which test has which scenario. */
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"

#include "cdp_rpc.h"

#include "rpc_sides.h"

/* ---- functions */

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

/* a, b, and a constant -> {a + b: 4 of F64}, {2 a: 2 x 2 of F64, another shape} */
static void f_two(void *user, cdp_rpc_request *q) {
    double sum[4], twice[4];
    (void)user;
    if (!T_EQ(3, q->tensor_count)) return;
    const double *a = (const double *)q->tensors[0].data, *b = (const double *)q->tensors[1].data;
    for (uint32_t i = 0; i < 4; ++i) {
        sum[i] = a[i] + b[i] + ((const double *)q->tensors[2].data)[i];
        twice[i] = 2 * a[i];
    }
    cdp_tensor out[2] = {f64s(sum, 4, 0), f64s(twice, 2, 0)};
    out[1].dims = 2;
    out[1].shape[1] = 2;
    OK(cdp_rpc_reply(q, &(cdp_args){.tensors = out, .tensor_count = 2}));
}
static cdp_status b_two(void *user, cdp_backward *b) {
    const double *sum = (const double *)b->grad_out[0].data;
    const double *twice = (const double *)b->grad_out[1].data;
    (void)user;
    T_EQ(3, b->in_count);
    T(!twice || (b->grad_out[1].dims == 2 && b->grad_out[1].shape[1] == 2));
    for (uint32_t i = 0; i < 2; ++i) {
        double *to = (double *)cdp_backward_alloc(b, 32);
        for (uint32_t k = 0; k < 4; ++k)
            to[k] = (sum ? sum[k] : 0) + (twice && !i ? 2 * twice[k] : 0);
        b->grad_in[i] = f64s(to, 4, 0);
    }
    return CDP_OK;
}
/* on a counter n, in a context, with x: the pass of n x runs here */
static cdp_status b_times(void *user, cdp_backward *b) {
    double *to = (double *)cdp_backward_alloc(b, 32);
    for (uint32_t k = 0; k < 4; ++k)
        to[k] = ((const double *)b->grad_out[0].data)[k] * (double)((counter *)user)->n;
    b->grad_in[0] = f64s(to, 4, 0);
    return CDP_OK;
}
static void f_pass_here(void *user, cdp_rpc_request *q) {
    uint64_t out = 0;
    (void)user;
    OK(cdp_ctx_value(q->ctx, &out));
    OK(cdp_ctx_op(q->ctx,
        &(cdp_ctx_op_desc){.inputs = &q->tensors[0].value,
            .input_count = 1,
            .outputs = &out,
            .output_count = 1,
            .backward = b_times,
            .user = q->on->data}));
    const cdp_tensor root = f64s(NULL, 4, out);
    OK(cdp_ctx_backward(q->ctx, &(cdp_backward_desc){.roots = &root, .root_count = 1}));
}

/* in the backward function of a step: another rank begins a pass of the same context */
static cdp_status b_asks_for_another(void *user, cdp_backward *b) {
    side *s = (side *)user;
    double x[4] = {1, 2, 3, 4};
    uint64_t value = 0;
    cdp_call c = {0};
    T_EQ(1, cdp_rpc_stats_of(s->rpc).passes);
    OK(cdp_ctx_value(b->ctx, &value));
    const cdp_tensor in = f64s(x, 4, value);
    cdp_call_desc d = {.to = next_of(s), F("begins_too"), .ctx = b->ctx};
    d.args.tensors = &in;
    d.args.tensor_count = 1;
    OK(cdp_rpc_call(s->rpc, &d, &c));
    cdp_call_free(&c);
    return CDP_OK;
}
static cdp_status b_nothing(void *user, cdp_backward *b) {
    (void)user;
    b->grad_in[0] = b->grad_out[0];
    return CDP_OK;
}
static void f_begins_too(void *user, cdp_rpc_request *q) {
    uint64_t out = 0;
    (void)user;
    OK(cdp_ctx_value(q->ctx, &out));
    OK(cdp_ctx_op(q->ctx,
        &(cdp_ctx_op_desc){.inputs = &q->tensors[0].value,
            .input_count = 1,
            .outputs = &out,
            .output_count = 1,
            .backward = b_nothing}));
    const cdp_tensor root = f64s(NULL, 4, out);
    REFUSED(CDP_ERR_STATE, "two backward passes of one context at once",
        cdp_ctx_backward(q->ctx, &(cdp_backward_desc){.roots = &root, .root_count = 1}));
}

static const cdp_rpc_function rest_functions[] = {
    {.name = "begins_too", .func = f_begins_too},
    {.name = "weight_rref", .func = f_weight_rref},
    {.name = "counter", .func = f_counter},
    {.name = "count", .func = f_count},
    {.name = "pairs", .func = f_pairs, .flags = CDP_RPC_LATER},
    {.name = "stays", .func = f_stays},
    {.name = "square", .func = f_square},
    {.name = "first_row", .func = f_first_row},
    {.name = "same", .func = f_same},
    {.name = "holds", .func = f_holds},
    {.name = "two", .func = f_two, .backward = b_two},
    {.name = "pass_here", .func = f_pass_here},
    {.name = "mul", .func = f_mul, .backward = b_mul},
    {.name = "weight_grad", .func = f_weight_grad},
};
static void rest(uint32_t n, void (*func)(side *s)) {
    like.functions = rest_functions;
    like.function_count = sizeof rest_functions / sizeof *rest_functions;
    run(n, func);
}

/* ---- references */

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
    rest(2, later_on_a_value);
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
    rest(2, late_on_a_value);
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
    rest(2, tensor_on_owner);
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
    rest(2, passed);
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
    rest(2, circle_body);
}

/* ---- gradients */

/* Two roots of other shapes from one call with a constant, there and back over all ranks, again and
   again in one context. */
static void outputs(side *s) {
    enum {
        PASSES = 50
    };
    double a[4] = {1, 2, 3, 4}, b[4] = {5, 6, 7, 8}, k[4] = {9, 9, 9, 9};
    uint64_t value[2] = {0, 0};
    cdp_call c[4] = {{0}};
    cdp_ctx *ctx;
    cdp_tensor g;
    OK(cdp_ctx_begin(s->rpc, &ctx));
    OK(cdp_ctx_value(ctx, &value[0]));
    OK(cdp_ctx_value(ctx, &value[1]));
    cdp_tensor in[3] = {f64s(a, 4, value[0]), f64s(b, 4, value[1]), f64s(k, 4, 0)};
    for (uint32_t i = 0; i < 4; ++i) { /* a := a + b + k, on one rank after the other */
        cdp_call_desc d = {.to = (s->rank + i) % ranks, F("two"), .ctx = ctx};
        d.args.tensors = in;
        d.args.tensor_count = 3;
        if (!OK(cdp_rpc_call(s->rpc, &d, &c[i])) || !T_EQ(2, c[i].tensor_count)) return;
        T_EQ(2, c[i].tensors[1].dims);
        in[0] = c[i].tensors[0];
    }
    for (uint32_t pass = 1; pass <= PASSES && !test__now.failed_checks; ++pass)
        OK(cdp_ctx_backward(ctx, &(cdp_backward_desc){.roots = c[3].tensors, .root_count = 2}));
    OK(cdp_ctx_grad(ctx, value[0], &g));
    T(g.data && ((const double *)g.data)[2] == 3 * PASSES); /* 1 + 2 */
    OK(cdp_ctx_grad(ctx, value[1], &g));
    T(g.data && ((const double *)g.data)[2] == 10 * PASSES); /* of the last one 1, of others 3 */
    for (uint32_t i = 0; i < 4; ++i)
        cdp_call_free(&c[i]);
    OK(cdp_ctx_end(ctx, 0));
}
TEST(backward_multiple_output_tensors) {
    rest(3, outputs);
}

/* The owner of a value runs the pass, called through a reference, on its own rank and on others. */
static void pass_on_owner(side *s) {
    double x[4] = {1, 2, 3, 4};
    int64_t n[2] = {7, 0};
    for (uint32_t to = 0; to < ranks; ++to) {
        uint64_t value = 0;
        cdp_call c = {0};
        cdp_ctx *ctx;
        cdp_tensor g;
        cdp_rref r;
        OK(cdp_rpc_remote(s->rpc, CALL(.to = to, F("counter"), BYTES(n, 16)), &r));
        OK(cdp_ctx_begin(s->rpc, &ctx));
        OK(cdp_ctx_value(ctx, &value));
        const cdp_tensor in = f64s(x, 4, value);
        cdp_call_desc d = {.on = r, F("pass_here"), .ctx = ctx};
        d.args.tensors = &in;
        d.args.tensor_count = 1;
        OK(cdp_rpc_call(s->rpc, &d, &c));
        cdp_call_free(&c);
        OK(cdp_ctx_grad(ctx, value, &g));
        T(g.data && ((const double *)g.data)[3] == 7);
        OK(cdp_ctx_end(ctx, 0));
        cdp_rref_drop(r);
    }
}
TEST(user_rref_backward) {
    rest(2, pass_on_owner);
}

static void two_passes(side *s) {
    uint64_t value[2] = {0, 0};
    cdp_ctx *ctx;
    OK(cdp_ctx_begin(s->rpc, &ctx));
    OK(cdp_ctx_value(ctx, &value[0]));
    OK(cdp_ctx_value(ctx, &value[1]));
    OK(cdp_ctx_op(ctx,
        &(cdp_ctx_op_desc){.inputs = &value[0],
            .input_count = 1,
            .outputs = &value[1],
            .output_count = 1,
            .backward = b_asks_for_another,
            .user = s}));
    const cdp_tensor root = f64s(NULL, 4, value[1]);
    REFUSED(CDP_ERR_STATE, "two backward passes of one context at once",
        cdp_ctx_backward(ctx, &(cdp_backward_desc){.roots = &root, .root_count = 1}));
    T_EQ(0, cdp_rpc_stats_of(s->rpc).passes);
    OK(cdp_ctx_end(ctx, 0));
}
static void one_of_two_passes(side *s) {
    static uint32_t place;
    if (s->rank == 0) two_passes(s);
    meet(s, &place);
}
TEST(two_passes_of_a_context) {
    rest(2, one_of_two_passes);
}

/* Three trainers step the parameter of rank 0 at once: the numbers are such that every order of
   steps gives the same bits, and a step that was lost or done twice gives others. */
static void all_step(side *s) {
    enum {
        STEPS = 6
    };
    static uint32_t place;
    double x[4] = {1, 2, 4, 8};
    weights_open(s);
    meet(s, &place);
    if (s->rank) {
        cdp_call ref = {0};
        char text[3000];
        cdp_dist_optim *optim;
        OK(cdp_rpc_call(s->rpc, CALL(.to = 0, F("weight_rref")), &ref));
        cdp_optim_desc d = {.rpc = s->rpc, .kind = CDP_OPTIM_SGD, .lr = .5, .param_count = 1};
        d.params = ref.rrefs;
        if (!OK(cdp_dist_optim_create(&d, &optim))) return;
        T(cdp_rpc_describe(s->rpc, text, sizeof text) > 0);
        T_TEXT("reference to value", text);
        T_TEXT("of rank 0 (rank0), label an optimizer: OK, 1 handles, 0 holds", text);
        for (uint32_t i = 0; i < STEPS; ++i) {
            uint64_t value = 0;
            cdp_call c = {0};
            cdp_ctx *ctx;
            OK(cdp_ctx_begin(s->rpc, &ctx));
            OK(cdp_ctx_value(ctx, &value));
            const cdp_tensor in = f64s(x, 4, value);
            OK(mul(s, ctx, 0, "mul", 0, &in, &c));
            OK(cdp_ctx_backward(ctx, &(cdp_backward_desc){.roots = c.tensors, .root_count = 1}));
            OK(cdp_dist_optim_step(optim, ctx));
            cdp_call_free(&c);
            OK(cdp_ctx_end(ctx, 0));
        }
        cdp_dist_optim_destroy(optim);
        cdp_call_free(&ref);
    }
    meet(s, &place);
    for (uint32_t i = 0; i < 4 && s->rank == 0; ++i)
        T(weights_of[0].w[i] == 3 + i - .5 * 3 * STEPS * x[i]);
    weights_close(s);
}
TEST(trainers_that_step_at_once) {
    if (TEST_THREADS_WATCHED) {
        test_skip("a step changes weights that a backward pass of another trainer reads: no lock "
                  "orders them, as the manual says");
        return;
    }
    rest(4, all_step);
}

/* ---- mistakes in backward passes: each gets a sentence, and the rpc is good for the next one */

static int64_t mistake; /* which one b_mistaken makes */
static cdp_status b_mistaken(void *user, cdp_backward *b) {
    static const uint32_t rows[] = {1};
    (void)user;
    b->grad_in[0] = b->grad_out[0];
    if (mistake == 0) b->grad_in[0].dtype = (cdp_dtype)99;
    if (mistake == 1) b->grad_in[0].dims = 9;
    if (mistake == 2) b->grad_in[0].shape[0] = 1001;
    if (mistake == 3) b->grad_in[0].dims = 0;
    if (mistake == 3) b->grad_rows[0] = rows;
    if (mistake == 4) b->grad_in[0].shape[0] = 3;
    return CDP_OK;
}
static cdp_status b_identity(void *user, cdp_backward *b) {
    (void)user;
    b->grad_in[0] = b->grad_out[0];
    return CDP_OK;
}
static void mistaken_passes(side *s) {
    static const char *const texts[] = {"without a dtype that can be added, or with 9 dims",
        "without a dtype that can be added, or with 9 dims", "longer than max_message_bytes",
        "rows of a gradient without dims", "two gradients of one value differ on rank"};
    static uint32_t place;
    double x[4] = {1, 2, 3, 4};
    for (uint32_t i = 0; i < 5 && s->rank == 0; ++i) {
        uint64_t value, out[2];
        cdp_tensor roots[2], g;
        cdp_ctx *ctx;
        if (!OK(cdp_ctx_begin(s->rpc, &ctx)) || !OK(cdp_ctx_value(ctx, &value))) return;
        for (uint32_t k = 0; k < 2; ++k) {
            OK(cdp_ctx_value(ctx, &out[k]));
            roots[k] = f64s(x, 4, out[k]);
            OK(cdp_ctx_op(ctx,
                &(cdp_ctx_op_desc){.inputs = &value,
                    .input_count = 1,
                    .outputs = &out[k],
                    .output_count = 1,
                    .backward = k ? b_mistaken : b_identity}));
        }
        mistake = i;
        T_EQ(i == 4 ? CDP_ERR_MISMATCH : CDP_ERR_INVALID,
            cdp_ctx_backward(ctx, &(cdp_backward_desc){.roots = roots, .root_count = 2}));
        T_TEXT(texts[i], cdp_last_error()->text);
        REFUSED(CDP_ERR_STATE, "begin another one",
            cdp_ctx_backward(ctx, &(cdp_backward_desc){.roots = roots, .root_count = 1}));
        REFUSED(CDP_ERR_STATE, "begin another one", cdp_ctx_grad(ctx, value, &g));
        OK(cdp_ctx_end(ctx, 0));
    }
    meet(s, &place);
}
TEST(mistakes_of_backward_functions_get_a_sentence) {
    like.max_message_bytes = 8000;
    run(2, mistaken_passes);
}

/* What must not be done in a callback, and what only the origin of a context may do. */
typedef struct inside {
    cdp_ctx *ctx;
    cdp_tensor root;
    bool told;
} inside;
static void inside_done(void *user, cdp_call *c) {
    inside *in = (inside *)user;
    (void)c;
    REFUSED(CDP_ERR_STATE, "must not wait for a pass; begin it outside",
        cdp_ctx_backward(in->ctx, &(cdp_backward_desc){.roots = &in->root, .root_count = 1}));
    REFUSED(
        CDP_ERR_STATE, "only the rank that has begun a context ends it", cdp_ctx_end(in->ctx, 0));
    in->told = true;
}
static void f_ends_context(void *user, cdp_rpc_request *q) {
    (void)user;
    REFUSED(
        CDP_ERR_STATE, "only the rank that has begun a context ends it", cdp_ctx_end(q->ctx, 0));
    reply_i64(q, 1);
}
static const cdp_rpc_function context_functions[] = {
    {.name = "nothing", .func = f_nothing}, {.name = "ends_context", .func = f_ends_context}};
static void contexts_in_callbacks(side *s) {
    static uint32_t place;
    double x[4] = {1, 2, 3, 4};
    cdp_call c = {0};
    inside in;
    uint64_t value;
    memset(&in, 0, sizeof in);
    if (!OK(cdp_ctx_begin(s->rpc, &in.ctx)) || !OK(cdp_ctx_value(in.ctx, &value))) return;
    in.root = f64s(x, 4, value);
    OK(cdp_rpc_call(
        s->rpc, CALL(.to = next_of(s), F("nothing"), .done = inside_done, .user = &in), &c));
    T(in.told);
    cdp_call_free(&c);
    OK(cdp_rpc_call(s->rpc, CALL(.to = next_of(s), F("ends_context"), .ctx = in.ctx), &c));
    cdp_call_free(&c);
    OK(cdp_ctx_backward(in.ctx, &(cdp_backward_desc){.roots = &in.root, .root_count = 1}));
    OK(cdp_ctx_end(in.ctx, 0));
    meet(s, &place);
}
TEST(contexts_are_not_ended_in_callbacks_or_by_others) {
    like.functions = context_functions;
    like.function_count = 2;
    run(2, contexts_in_callbacks);
}

/* A context that the program has not ended ends with the rpc, which says so. */
static void forgets_a_context(side *s) {
    const cdp_rpc_desc d = desc_of(s);
    cdp_call c = {0};
    cdp_ctx *ctx;
    if (!OK(cdp_rpc_create(&d, &s->rpc))) return;
    OK(cdp_barrier(s->g));
    OK(cdp_ctx_begin(s->rpc, &ctx));
    OK(cdp_rpc_call(s->rpc, CALL(.to = next_of(s), F("nothing"), .ctx = ctx), &c));
    cdp_call_free(&c);
    REFUSED(CDP_ERR_STATE, "still had 1 contexts; end them with cdp_ctx_end()",
        cdp_rpc_shutdown(s->rpc, 0));
    T_EQ(0, cdp_rpc_stats_of(s->rpc).contexts);
    cdp_rpc_destroy(s->rpc);
}
TEST(a_context_that_nobody_ends_is_reported) {
    shut_by_body = true;
    run(2, forgets_a_context);
}

/* Rank 1 stands still when it has said so: it polls nothing until the other one is through. */
static uint32_t still, through;
static void stand_still(void) {
    const uint64_t until = test_until_ns(20000);
    __atomic_store_n(&still, 1, __ATOMIC_SEQ_CST);
    while (!counted_of(&through) && test_now_ns() < until)
        test_sleep_ms(1);
}
static void polled(void (*func)(side *s)) {
    still = through = 0;
    how = HUB_POLLED;
    run_one(2, func);
    memset(&like, 0, sizeof like);
}

static void ends_unheard(side *s) {
    static uint32_t place;
    cdp_call c = {0};
    cdp_ctx *ctx;
    if (s->rank == 1) {
        while (!counted_of(&s->ran))
            (void)!cdp_rpc_serve(s->rpc, 1);
        (void)!cdp_rpc_serve(s->rpc, 5);
        stand_still();
    } else if (OK(cdp_ctx_begin(s->rpc, &ctx))) {
        OK(cdp_rpc_call(s->rpc, CALL(.to = 1, F("nothing"), .ctx = ctx), &c));
        cdp_call_free(&c);
        while (!counted_of(&still))
            test_sleep_ms(1);
        REFUSED(
            CDP_ERR_TIMEOUT, "cdp_ctx_end: rank 1 has not answered in time", cdp_ctx_end(ctx, 50));
        T_EQ(1, cdp_last_error()->peer);
        __atomic_store_n(&through, 1, __ATOMIC_SEQ_CST);
    }
    meet(s, &place);
}
TEST(the_end_of_a_context_that_is_not_answered_names_the_rank) {
    polled(ends_unheard);
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
        while (!counted_of(&s->ran) && test_now_ns() < until)
            (void)!cdp_rpc_serve(s->rpc, 1);
        while (!counted_of(&still) && test_now_ns() < until)
            test_sleep_ms(1);
        T(counted_of(&still));
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

/* What a function says of its failure is printed where it was called. */
static void fails_with_odd_text(side *s) {
    static const char odd[] = "caf\xc3\xa9 \xff \x1b[2J \xc2\x9b";
    static uint32_t place;
    cdp_call c = {0};
    REFUSED(CDP_ERR_REMOTE, "caf\xc3\xa9 ? ?[2J ?",
        cdp_rpc_call(s->rpc,
            CALL(.to = next_of(s), F("fail"), BYTES((void *)(uintptr_t)odd, sizeof odd - 1)), &c));
    T(!strchr(cdp_last_error()->text, 0x1b));
    cdp_call_free(&c);
    meet(s, &place);
}
TEST(texts_of_failures_are_printable) {
    run(2, fails_with_odd_text);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"async_class_rref_proxy", async_class_rref_proxy, 60},
        {"rref_proxy_timeout", rref_proxy_timeout, 60},
        {"rref_proxy_tensor", rref_proxy_tensor, 60},
        {"pass_local_rrefs", pass_local_rrefs, 60},
        {"circular_references_end_with_the_rpc", circular_references_end_with_the_rpc, 60},
        {"backward_multiple_output_tensors", backward_multiple_output_tensors, 60},
        {"user_rref_backward", user_rref_backward, 60},
        {"two_passes_of_a_context", two_passes_of_a_context, 60},
        {"trainers_that_step_at_once", trainers_that_step_at_once, 60},
        {"mistakes_of_backward_functions_get_a_sentence",
            mistakes_of_backward_functions_get_a_sentence, 60},
        {"contexts_are_not_ended_in_callbacks_or_by_others",
            contexts_are_not_ended_in_callbacks_or_by_others, 60},
        {"a_context_that_nobody_ends_is_reported", a_context_that_nobody_ends_is_reported, 60},
        {"the_end_of_a_context_that_is_not_answered_names_the_rank",
            the_end_of_a_context_that_is_not_answered_names_the_rank, 60},
        {"a_rank_that_takes_no_messages_is_named", a_rank_that_takes_no_messages_is_named, 60},
        {"texts_of_failures_are_printable", texts_of_failures_are_printable, 60},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
