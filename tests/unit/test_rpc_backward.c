/* test_rpc_backward.c - backward passes over ranks and the contexts that record them: gradients
   equal those of a serial program; ranks that fail or die, several outputs, update rules,
   contexts that end early, twice or never, mistakes of backward functions. rpc_scenarios.txt
   says which test has which scenario of torch.distributed.rpc. */
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"

#include "cdp_rpc.h"

#include "rpc_sides.h"

static void f_own_step(void *user, cdp_rpc_request *q);
static void f_passes_on(void *user, cdp_rpc_request *q);
static void f_ends_it(void *user, cdp_rpc_request *q);
static void f_backward_here(void *user, cdp_rpc_request *q);
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
        double *to = (double *)memory_of_backward(b, 32);
        for (uint32_t k = 0; k < 4; ++k)
            to[k] = (sum ? sum[k] : 0) + (twice && !i ? 2 * twice[k] : 0);
        b->grad_in[i] = f64s(to, 4, 0);
    }
    return CDP_OK;
}

/* on a counter n, in a context, with x: the pass of n x runs here */
static cdp_status b_times(void *user, cdp_backward *b) {
    double *to = (double *)memory_of_backward(b, 32);
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

/* x, on a weight: multiplies it with the value that the call runs on */
static void f_mul_on(void *user, cdp_rpc_request *q) {
    double y[4];
    saved_x *saved = (saved_x *)calloc(1, sizeof *saved);
    uint64_t param;
    (void)user;
    if (!T(saved && q->on && q->tensor_count == 1 && !q->rref_count)) return;
    const double *w = (const double *)q->on->plain.tensors[0].data;
    memcpy(saved->x, q->tensors[0].data, sizeof saved->x);
    saved->rank = side_of(q)->rank;
    __atomic_add_fetch(&saved_live[saved->rank], 1, __ATOMIC_SEQ_CST);
    for (uint32_t i = 0; i < 4; ++i)
        y[i] = w[i] * saved->x[i];
    OK(cdp_ctx_param(q->ctx, q->on_rref, &param));
    OK(cdp_ctx_save(q, saved, saved_x_free, &param, 1));
    const cdp_tensor out = f64s(y, 4, 0);
    OK(cdp_rpc_reply(q, &(cdp_args){.tensors = &out, .tensor_count = 1}));
}

/* A call with `on` needs no reference among its arguments to use the value as a parameter. */
static void param_on(side *s) {
    static uint32_t place;
    double x[4] = {1, -2, 3, 4};
    cdp_call get = {0}, y = {0}, g = {0};
    cdp_ctx *ctx = NULL;
    uint64_t value = 0;
    weights_open(s);
    meet(s, &place);
    for (uint32_t to = 0; s->rank == 0 && to < 2; ++to) {
        OK(cdp_rpc_call(s->rpc, CALL(.to = to, F("weight_rref")), &get));
        OK(cdp_ctx_begin(s->rpc, &ctx));
        OK(cdp_ctx_value(ctx, &value));
        const cdp_tensor in = f64s(x, 4, value);
        cdp_call_desc d = {.on = get.rrefs[0], F("mul_on"), .ctx = ctx};
        d.args.tensors = &in;
        d.args.tensor_count = 1;
        if (OK(cdp_rpc_call(s->rpc, &d, &y))) {
            OK(cdp_ctx_backward(
                ctx, &(cdp_backward_desc){.roots = y.tensors, .root_count = y.tensor_count}));
            OK(cdp_rpc_call(s->rpc, CALL(.to = to, F("weight_grad"), .ctx = ctx), &g));
            T_EQ(1, g.tensor_count);
            for (uint32_t i = 0; g.tensor_count && i < 4; ++i)
                T_EQ((int64_t)x[i], (int64_t)((const double *)g.tensors[0].data)[i]);
        }
        cdp_call_free(&g);
        cdp_call_free(&y);
        OK(cdp_ctx_end(ctx, 20000));
        cdp_call_free(&get);
    }
    meet(s, &place);
    weights_close(s);
}

static const cdp_rpc_function own_functions[] = {
    {.name = "mul_on", .func = f_mul_on, .backward = b_mul},
    {.name = "nothing", .func = f_nothing},
    KEPT_AND_COUNTED,
    {.name = "passes_on", .func = f_passes_on},
    {.name = "ends_it", .func = f_ends_it, .flags = CDP_RPC_LATER},
    {.name = "backward_here", .func = f_backward_here},
    {.name = "own_step", .func = f_own_step, .max_running = 1},
    {.name = "mul", .func = f_mul, .backward = b_mul},
    {.name = "weight_rref", .func = f_weight_rref},
    {.name = "begins_too", .func = f_begins_too},
    {.name = "two", .func = f_two, .backward = b_two},
    {.name = "pass_here", .func = f_pass_here},
    {.name = "weight_grad", .func = f_weight_grad},
};
TEST(a_parameter_is_the_value_that_the_call_runs_on) {
    run_own(2, param_on);
}

/* A context is ended by one thread while another one shuts the rpc down. */
static void *end_main(void *arg) {
    OK(cdp_ctx_end((cdp_ctx *)arg, 20000));
    return NULL;
}

static void ends_twice(side *s) {
    static uint32_t place;
    cdp_call c = {0};
    cdp_ctx *ctx = NULL;
    pthread_t t;
    if (s->rank == 0) {
        OK(cdp_ctx_begin(s->rpc, &ctx));
        OK(cdp_rpc_call(s->rpc, CALL(.to = 1, F("nothing"), .ctx = ctx), &c));
        cdp_call_free(&c);
    } else {
        serve_until(s, &s->ran, 1);
        (void)!cdp_rpc_serve(s->rpc, 1);
    }
    gather(&place);
    if (s->rank == 0) {
        pthread_create(&t, NULL, end_main, ctx);
        until_one_waits(s);
        cdp_lock_acquire(&s->rpc->lock);
        T_EQ(0, cdp__rpc_end_contexts(s->rpc));
        cdp_lock_release(&s->rpc->lock);
    }
    gather(&place);
    meet(s, &place); /* now rank 1 answers */
    if (s->rank == 0) pthread_join(t, NULL);
    meet(s, &place);
    OK(cdp_rpc_shutdown(s->rpc, 20000));
    cdp_rpc_destroy(s->rpc);
}

static void ends_twice_body(side *s) {
    if (how == HUB_POLLED) open_then(s, ends_twice);
}

TEST(a_context_that_two_threads_end) {
    shut_by_body = true;
    run_own(2, ends_twice_body);
}

/* w -= lr * gradient, for every parameter that has one */
static void f_own_step(void *user, cdp_rpc_request *q) {
    double set[2];
    (void)user;
    if (!T_EQ(sizeof set, q->bytes) || !T_EQ(2, q->rref_count)) return;
    memcpy(set, q->data, sizeof set);
    if (set[1] != 0) {
        OK(cdp_rpc_fail(q, 9, "no decay here"));
        return;
    }
    for (uint32_t i = 0; i < q->rref_count; ++i) {
        cdp_value v;
        cdp_tensor g;
        uint64_t number;
        if (!OK(cdp_rref_local(q->rrefs[i], 0, 0, &v))) return;
        if (OK(cdp_ctx_param(q->ctx, q->rrefs[i], &number)) && OK(cdp_ctx_grad(q->ctx, number, &g))
            && g.data) {
            double *w = (double *)v.plain.tensors[0].data;
            for (uint32_t k = 0; k < 4; ++k)
                w[k] -= set[0] * ((const double *)g.data)[k];
            count(&side_of(q)->ran);
        }
        cdp_rref_unpin(q->rrefs[i]);
    }
}

static void own_rule(side *s) {
    static uint32_t place;
    const uint32_t to = next_of(s);
    double x[4] = {1, -2, 3, 4}, w[4];
    cdp_optim_desc d = {.rpc = s->rpc,
        .kind = CDP_OPTIM_OWN,
        .param_count = 4,
        .lr = .5,
        .own_function = cdp_rpc_id("own_step")};
    cdp_rref params[4];
    cdp_dist_optim *optim;
    cdp_call get[2] = {{0}}, c = {0};
    cdp_ctx *ctx;
    uint64_t number;
    weights_open(s);
    meet(s, &place);
    if (s->rank == 0) {
        for (uint32_t i = 0; i < 2; ++i) {
            OK(cdp_rpc_call(s->rpc, CALL(.to = i, F("weight_rref")), &get[i]));
            params[i] = params[2 + i] = get[i].rrefs[0]; /* each twice: two for each owner */
        }
        d.params = params;
        d.own_function = 0;
        REFUSED(CDP_ERR_INVALID, "set own_function", cdp_dist_optim_create(&d, &optim));
        d.own_function = cdp_rpc_id("own_step");
        d.kind = CDP_OPTIM_SGD;
        REFUSED(CDP_ERR_INVALID, "set own_function", cdp_dist_optim_create(&d, &optim));
        d.kind = CDP_OPTIM_OWN;
        if (!OK(cdp_dist_optim_create(&d, &optim))) return;
        memcpy(w, weights_of[to].w, sizeof w);
        OK(cdp_ctx_begin(s->rpc, &ctx));
        OK(cdp_ctx_value(ctx, &number));
        const cdp_tensor t = f64s(x, 4, number);
        OK(mul(s, ctx, to, "mul", 0, &t, &c));
        OK(cdp_ctx_backward(ctx, &(cdp_backward_desc){.roots = &c.tensors[0], .root_count = 1}));
        OK(cdp_dist_optim_step(optim, ctx));
        for (uint32_t k = 0; k < 4; ++k)
            w[k] = (w[k] - .5 * x[k]) - .5 * x[k];
        (void)cdp_rpc_stats_of(weights_of[to].owner->rpc); /* its lock orders what was written */
        T(!memcmp(w, weights_of[to].w, sizeof w));
        T_EQ(0, sides[0].ran); /* no gradient there */
        OK(cdp_dist_optim_set(optim, CDP_OPTIM_ZERO, 1));
        REFUSED(CDP_ERR_REMOTE, "failed on rank 0 1; first: own_step on rank 0",
            cdp_dist_optim_step(optim, ctx));
        T(!memcmp(w, weights_of[to].w, sizeof w));
        cdp_dist_optim_destroy(optim);
        d.own_function = cdp_rpc_id("nobody has it");
        OK(cdp_dist_optim_create(&d, &optim));
        T_EQ(CDP_ERR_UNSUPPORTED, cdp_dist_optim_step(optim, ctx));
        cdp_dist_optim_destroy(optim);
        cdp_call_free(&c);
        OK(cdp_ctx_end(ctx, 0));
        for (uint32_t i = 0; i < 2; ++i)
            cdp_call_free(&get[i]);
    }
    meet(s, &place);
    weights_close(s);
}

TEST(an_update_rule_of_the_program) {
    run_own(2, own_rule);
}

/* worker_ids_recorded, context_cleanup: of a context with gradients, without tensors, and through
   nested calls; every rank that a call reached takes part, and after the end none does. */
static void f_passes_on(void *user, cdp_rpc_request *q) {
    cdp_call c = {0};
    (void)user;
    OK(cdp_rpc_call(q->rpc, CALL(.to = next_of(side_of(q)), F("nothing"), .ctx = q->ctx), &c));
    cdp_call_free(&c);
}

static void cleaned(side *s) {
    static const char *const names[] = {"nothing", "mul", "passes_on"};
    static uint32_t place;
    double x[4] = {1, 2, 3, 4};
    weights_open(s);
    meet(s, &place);
    for (uint32_t turn = 0; turn < 3 * ranks; ++turn) {
        if (turn % ranks == s->rank) {
            const uint32_t kind = turn / ranks;
            cdp_tensor t = f64s(x, 4, 0);
            cdp_call c = {0};
            cdp_ctx *ctx;
            OK(cdp_ctx_begin(s->rpc, &ctx));
            if (kind == 1) OK(cdp_ctx_value(ctx, &t.value));
            OK(mul(s, ctx, next_of(s), names[kind], 0, &t, &c));
            for (uint32_t r = 0; r < ranks; ++r)
                T_EQ(r == s->rank || r == next_of(s) || kind == 2,
                    cdp_rpc_stats_of(sides[r].rpc).contexts);
            cdp_call_free(&c);
            OK(cdp_ctx_end(ctx, 0));
            for (uint32_t r = 0; r < ranks; ++r)
                T_EQ(0, cdp_rpc_stats_of(sides[r].rpc).contexts);
        }
        meet(s, &place);
    }
    weights_close(s);
}

TEST(context_cleanup) {
    run_own(3, cleaned);
}

/* backward_without_rpc: a graph of this rank alone. clean_context_during_backward: another rank
   ends the context in the middle of a pass, which fails then; nothing is left. */
typedef struct layers {
    side *s;
    uint32_t fired, stop_at;
} layers;

static cdp_ctx *to_be_ended;

static void f_ends_it(void *user, cdp_rpc_request *q) {
    (void)user;
    OK(cdp_ctx_end(to_be_ended, 0));
    OK(cdp_rpc_reply(q, NULL));
}

static cdp_status b_layer(void *user, cdp_backward *b) {
    layers *l = (layers *)user;
    double *g = (double *)memory_of_backward(b, 32);
    if (++l->fired == l->stop_at) {
        cdp_call c = {0};
        OK(cdp_rpc_call(l->s->rpc, CALL(.to = 0, F("ends_it")), &c));
        cdp_call_free(&c);
    }
    for (uint32_t k = 0; k < 4; ++k)
        g[k] = 2 * ((const double *)b->grad_out[0].data)[k];
    b->grad_in[0] = f64s(g, 4, 0);
    return CDP_OK;
}

static cdp_status through_layers(cdp_ctx *ctx, layers *l, uint64_t *first) {
    uint64_t from, to = 0;
    OK(cdp_ctx_value(ctx, &from));
    *first = from;
    for (uint32_t i = 0; i < 20; ++i, from = to) {
        OK(cdp_ctx_value(ctx, &to));
        OK(cdp_ctx_op(ctx,
            &(cdp_ctx_op_desc){.inputs = &from,
                .input_count = 1,
                .outputs = &to,
                .output_count = 1,
                .backward = b_layer,
                .user = l}));
    }
    const cdp_tensor root = f64s(NULL, 4, to);
    return cdp_ctx_backward(ctx, &(cdp_backward_desc){.roots = &root, .root_count = 1});
}

static void f_backward_here(void *user, cdp_rpc_request *q) {
    layers l = {.s = side_of(q), .stop_at = 10};
    uint64_t first;
    (void)user;
    T_EQ(CDP_ERR_ABORTED, through_layers(q->ctx, &l, &first));
    T_EQ(10, l.fired);
    count(&l.s->ran);
}

static void cleaned_during_backward(side *s) {
    static uint32_t place;
    layers l = {.s = s};
    cdp_call c = {0};
    uint64_t first;
    cdp_tensor g;
    cdp_ctx *ctx;
    OK(cdp_ctx_begin(s->rpc, &ctx));
    OK(through_layers(ctx, &l, &first));
    T_EQ(20, l.fired);
    OK(cdp_ctx_grad(ctx, first, &g));
    T(g.data && ((const double *)g.data)[3] == 1048576);
    OK(cdp_ctx_end(ctx, 0));
    meet(s, &place);
    if (s->rank == 0) {
        OK(cdp_ctx_begin(s->rpc, &to_be_ended));
        OK(cdp_rpc_call(s->rpc, CALL(.to = 1, F("backward_here"), .ctx = to_be_ended), &c));
        cdp_call_free(&c);
    }
    meet(s, &place);
    T_EQ(s->rank, s->ran);
    T_EQ(0, cdp_rpc_stats_of(s->rpc).contexts);
}

TEST(clean_context_during_backward) {
    run_own(2, cleaned_during_backward);
}

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
    run_own(3, outputs);
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
    run_own(2, pass_on_owner);
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
    run_own(2, one_of_two_passes);
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
    run_own(4, all_step);
}

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
    static const char *const texts[] = {"left a wrong grad_in[0]: its dtype cannot be added",
        "left a wrong grad_in[0]: it has more than 8 dims",
        "left a wrong grad_in[0]: it is longer than max_message_bytes",
        "left a wrong grad_in[0]: it has rows, but no dims",
        "two gradients of one value differ on rank"};
    static uint32_t place;
    double x[4] = {1, 2, 3, 4};
    char later[sizeof cdp_last_error()->text + 100]; /* longer than a text that is cut off */
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
        snprintf(later, sizeof later,
            "cdp_ctx_value: this context has failed; begin another one; why: %s",
            cdp_last_error()->text);
        T_EQ(CDP_ERR_STATE, cdp_ctx_value(ctx, &value));
        T_EQ(0, strcmp(later, cdp_last_error()->text)); /* two whole sentences */
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
static void dying(side *s) {
    const uint32_t rank = s->rank;
    double x[4] = {1, 2, 3, 4};
    cdp_call c[3] = {{0}};
    cdp_ctx *ctx;
    product p;
    uint64_t value = 0;
    weights_open(s);
    OK(cdp_barrier(s->g));
    if (rank == 0) {
        OK(cdp_ctx_begin(s->rpc, &ctx));
        OK(cdp_ctx_value(ctx, &value));
        const cdp_tensor tx = f64s(x, 4, value);
        OK(mul(s, ctx, 1, "mul", 0, &tx, &c[0]));
        OK(mul(s, ctx, 2, "mul_dies", 0, &c[0].tensors[0], &c[1]));
        const cdp_tensor root = multiply(ctx, &p, &c[0].tensors[0], &c[1].tensors[0]);
        const uint64_t began = test_now_ns();
        T_EQ(CDP_ERR_PEER_LOST,
            cdp_ctx_backward(ctx, &(cdp_backward_desc){.roots = &root, .root_count = 1}));
        T_EQ(2, cdp_last_error()->peer);
        T_WITHIN(5000, test_now_ns() - began);
        OK(cdp_ctx_end(ctx, 5000 * TEST_LATE));
        OK(cdp_ctx_begin(s->rpc, &ctx)); /* another one works */
        OK(mul(s, ctx, 1, "mul", 0,
            &(cdp_tensor){.data = x, .dtype = CDP_DTYPE_F64, .dims = 1, .shape = {4}}, &c[2]));
        OK(cdp_ctx_backward(ctx, &(cdp_backward_desc){.roots = &c[2].tensors[0], .root_count = 1}));
        OK(cdp_ctx_end(ctx, 5000 * TEST_LATE));
        cdp_call_free(&c[1]);
        OK(cdp_rpc_call(s->rpc, CALL(.to = 1, F("nothing")), &c[1]));
    } else {
        const uint64_t until = test_until_ns(20000);
        while (counted_of(&s->ran) < 1 + 1 && test_now_ns() < until)
            (void)!cdp_rpc_serve(s->rpc, 1);
    }
    for (uint32_t i = 0; i < 3; ++i)
        cdp_call_free(&c[i]);
    T_EQ(CDP_ERR_PEER_LOST, cdp_rpc_shutdown(s->rpc, 3000 * TEST_LATE));
    cdp_rpc_destroy(s->rpc);
    T_EQ(0, saved_live[rank]);
}
TEST(backward_node_failure) {
    run_processes(dying);
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

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"a_parameter_is_the_value_that_the_call_runs_on",
            a_parameter_is_the_value_that_the_call_runs_on, 60},
        {"a_context_that_two_threads_end", a_context_that_two_threads_end, 60},
        {"an_update_rule_of_the_program", an_update_rule_of_the_program, 60},
        {"context_cleanup", context_cleanup, 60},
        {"clean_context_during_backward", clean_context_during_backward, 60},
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
        {"gradients_equal_a_serial_program", gradients_equal_a_serial_program, 60},
        {"async_dist_autograd", async_dist_autograd, 60},
        {"backward_autograd_engine_error", backward_autograd_engine_error, 60},
        {"backward_invalid_args", backward_invalid_args, 60},
        {"py_tensors", py_tensors, 60},
        {"answers_for_nodes_of_another_rank", answers_for_nodes_of_another_rank, 60},
        {"backward_node_failure", backward_node_failure, 60},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
