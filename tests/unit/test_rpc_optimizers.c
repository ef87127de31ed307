/* test_rpc_optimizers.c - distributed optimizers: their steps equal those of a serial program,
   also for the rows of a remote embedding; mistakes in creating and using them.
   rpc_scenarios.txt says which test has which scenario of torch.distributed.rpc. */
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"

#include "cdp_rpc.h"

#include "rpc_sides.h"

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
        if (t == 1) s[0] = d->initial;
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

static const cdp_optim_desc kinds[] = {{.kind = CDP_OPTIM_SGD, .lr = .1},
    {.kind = CDP_OPTIM_SGD, .lr = .1, .momentum = .9, .weight_decay = .01},
    {.kind = CDP_OPTIM_SGD, .lr = .1, .momentum = .9, .nesterov = true, .maximize = true},
    {.kind = CDP_OPTIM_ADAM, .lr = .05},
    {.kind = CDP_OPTIM_ADAM, .lr = .05, .amsgrad = true, .weight_decay = .1},
    {.kind = CDP_OPTIM_ADAMW, .lr = .05, .weight_decay = .02},
    {.kind = CDP_OPTIM_ADAMAX, .lr = .05}, {.kind = CDP_OPTIM_ADAGRAD, .lr = .05, .lr_decay = .1},
    {.kind = CDP_OPTIM_ADADELTA, .lr = .5}, {.kind = CDP_OPTIM_RMSPROP, .lr = .05},
    {.kind = CDP_OPTIM_RMSPROP, .lr = .05, .centered = true, .momentum = .5},
    {.kind = CDP_OPTIM_RPROP, .lr = .05}};

/* w of each rank, 3 steps of each rule, by one trainer after the other: as the same loop here. */
static void optimizers(side *s) {
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

/* A step of cdp_optim_update(), which must be near that of the rule in double. */
static void float_step(const cdp_optim_desc *d, uint64_t t, float *w, const float *g,
    float *const state[3], uint64_t n) {
    const cdp_optim o = {.kind = d->kind,
        .step = t,
        .lr = d->lr,
        .momentum = d->momentum,
        .weight_decay = d->weight_decay,
        .lr_decay = d->lr_decay,
        .initial = d->initial,
        .nesterov = d->nesterov,
        .amsgrad = d->amsgrad,
        .centered = d->centered,
        .maximize = d->maximize};
    const uint32_t last = d->kind == CDP_OPTIM_RMSPROP && !d->centered ? 1 : 2;
    cdp_optim_range r = {.param = w, .grad = g, .count = n};
    double wide[400], s[400][3];
    for (uint64_t i = 0; i < n; ++i) {
        wide[i] = w[i];
        s[i][0] = state[0][i];
        s[i][1] = state[1][i];
        s[i][2] = state[last][i];
        local_step(d, (double)t, &wide[i], g[i], s[i]);
    }
    memcpy(r.state, state, sizeof r.state);
    OK(cdp_optim_update(&o, &r));
    for (uint64_t i = 0; i < n; ++i)
        if (!T(fabs(w[i] - wide[i]) <= 1e-5 * (1 + fabs(wide[i])))) break;
}

/* Two lookups of one table, rows twice among them, and a pass over both: only these rows change,
   as cdp_optim_update() changes each. `passes`: of the same context. */
static void embed_step(side *s, uint32_t to, cdp_dist_optim *optim, uint32_t passes, float *w,
    const cdp_optim_desc *d, uint64_t t, float state[3][TABLE_ROWS * TABLE_WIDTH]) {
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
    for (uint32_t r = 0; r < 3; ++r) {
        const uint32_t at = order[r] * TABLE_WIDTH;
        float *const of_row[3] = {state[0] + at, state[1] + at, state[2] + at};
        for (uint32_t k = 0; k < TABLE_WIDTH && passes == 2; ++k)
            sum[r][k] += sum[r][k];
        float_step(d, t, w + at, sum[r], of_row, TABLE_WIDTH);
    }
    cdp_call_free(&c[0]);
    cdp_call_free(&c[1]);
    OK(cdp_ctx_end(ctx, 0));
}

/* Three steps on a table, here and in an array. */
static void embed_steps(side *s, uint32_t to, cdp_optim_desc d, float *w) {
    static float state[3][TABLE_ROWS * TABLE_WIDTH];
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
    static const cdp_optim_desc optims[] = {{.kind = CDP_OPTIM_SGD, .lr = .1},
        {.kind = CDP_OPTIM_ADAGRAD, .lr = .05}, {.kind = CDP_OPTIM_ADAM, .lr = .05}};
    static float w[TABLE_ROWS * TABLE_WIDTH];
    static uint32_t place;
    table_open(s);
    meet(s, &place);
    for (uint32_t kind = 0; kind < 3; ++kind) {
        const uint32_t to = kind == 1 ? 0 : 1; /* one's own table, too */
        if (s->rank == 0) embed_steps(s, to, optims[kind], w);
        meet(s, &place); /* a thread of the other rank has written what is compared */
        if (s->rank == 0) T(!memcmp(w, table_of[to].w, sizeof w));
        meet(s, &place);
    }
    cdp_rref_drop(table_of[s->rank].rref);
}
TEST(embedding_bag_with_no_grad_tensors_sparse) {
    run(2, embeddings);
}

/* ---- parameters of F32 ---- */

static cdp_status b_same(void *user, cdp_backward *b) {
    (void)user;
    b->grad_in[0] = b->grad_out[0];
    return CDP_OK;
}
static const uint32_t some_rows[2][2] = {{0, 2}, {2, 1}};
static cdp_status b_some_rows(void *user, cdp_backward *b) {
    b->grad_in[0] = b->grad_out[0];
    b->grad_rows[0] = (const uint32_t *)user;
    return CDP_OK;
}

/* A step of an optimizer whose parameter has this gradient; of some rows, if `rows` is given. */
static void step_with(
    side *s, cdp_dist_optim *optim, cdp_rref param, cdp_tensor g, const uint32_t *rows) {
    cdp_tensor root = g;
    uint64_t value;
    cdp_ctx *ctx;
    if (!OK(cdp_ctx_begin(s->rpc, &ctx))) return;
    OK(cdp_ctx_param(ctx, param, &value));
    OK(cdp_ctx_value(ctx, &root.value));
    OK(cdp_ctx_op(ctx,
        &(cdp_ctx_op_desc){.inputs = &value,
            .input_count = 1,
            .outputs = &root.value,
            .output_count = 1,
            .backward = rows ? b_some_rows : b_same,
            .user = (void *)(uintptr_t)rows}));
    OK(cdp_ctx_backward(ctx, &(cdp_backward_desc){.roots = &root, .root_count = 1, .grads = &g}));
    OK(cdp_dist_optim_step(optim, ctx));
    OK(cdp_ctx_end(ctx, 0));
}

/* More elements than a block of cdp_optim_update() has. */
static void f32_parameters(side *s) {
    enum {
        N = 300
    };
    for (uint32_t turn = 0; turn < sizeof kinds / sizeof *kinds; ++turn) {
        cdp_optim_desc d = kinds[turn];
        float w[N], here[N], g[N], state[3][N] = {{0}};
        float *const states[3] = {state[0], state[1], state[2]};
        cdp_tensor t = {.data = w, .dtype = CDP_DTYPE_F32, .dims = 1, .shape = {N}}, tg = t;
        const cdp_value v = {.param = true, .plain = {.tensors = &t, .tensor_count = 1}};
        cdp_dist_optim *optim;
        cdp_rref param;
        if (d.kind != CDP_OPTIM_SGD && !cdp_optim_states(&(cdp_optim){.kind = d.kind})) continue;
        OK(cdp_rref_create(s->rpc, &v, NULL, &param));
        d.rpc = s->rpc;
        d.params = &param;
        d.param_count = 1;
        if (!OK(cdp_dist_optim_create(&d, &optim))) return;
        tg.data = g;
        for (uint32_t i = 0; i < N; ++i)
            w[i] = here[i] = (float)(i % 17) / 3 - 2;
        for (uint32_t step = 1; step < 4; ++step) {
            for (uint32_t i = 0; i < N; ++i)
                g[i] = (float)((i * step) % 23) / 7 - 1.5f;
            step_with(s, optim, param, tg, NULL);
            float_step(&d, step, here, g, states, N);
            if (!T(!memcmp(here, w, sizeof w))) printf("  rule %u, step %u\n", turn, step);
        }
        cdp_dist_optim_destroy(optim);
        cdp_rref_drop(param);
    }
}
TEST(f32_parameters_have_the_bits_of_cdp_optim_update) {
    run(1, f32_parameters);
}

/* A row whose first gradient comes in the second step; of both dtypes. */
static void late_rows(side *s) {
    for (uint32_t wide = 0; wide < 2; ++wide) {
        double w[3] = {0}, g[2] = {1, 1};
        float narrow[3] = {0}, narrow_g[2] = {1, 1};
        cdp_tensor t = {.data = wide ? (void *)w : (void *)narrow,
            .dtype = wide ? CDP_DTYPE_F64 : CDP_DTYPE_F32,
            .dims = 2,
            .shape = {3, 1}};
        cdp_tensor tg = t;
        const cdp_value v = {.param = true, .plain = {.tensors = &t, .tensor_count = 1}};
        cdp_rref param;
        cdp_dist_optim *optim;
        OK(cdp_rref_create(s->rpc, &v, NULL, &param));
        const cdp_optim_desc d = {.rpc = s->rpc,
            .kind = CDP_OPTIM_ADAGRAD,
            .lr = 1,
            .initial = 3,
            .params = &param,
            .param_count = 1};
        if (!OK(cdp_dist_optim_create(&d, &optim))) return;
        tg.data = wide ? (void *)g : (void *)narrow_g;
        tg.shape[0] = 2;
        for (uint32_t step = 0; step < 2; ++step)
            step_with(s, optim, param, tg, some_rows[step]);
        for (uint32_t i = 0; i < 2; ++i) /* 1 / sqrt(3 + 1), in either step */
            T(fabs((wide ? w[i] : (double)narrow[i]) + .5) < 1e-6);
        cdp_dist_optim_destroy(optim);
        cdp_rref_drop(param);
    }
}
TEST(adagrad_begins_with_initial_for_rows_of_a_later_step) {
    run(1, late_rows);
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
    static const cdp_optim_desc optims[] = {{.kind = CDP_OPTIM_SGD}, {.kind = CDP_OPTIM_RMSPROP},
        {.kind = CDP_OPTIM_SGD, .weight_decay = .1}};
    static const char *const texts[] = {
        "does not have", "only SGD, ADAGRAD and ADAM", "weight_decay must be 0"};
    static uint32_t place;
    uint32_t a[2] = {7, 9}, b[1] = {7};
    table_open(s);
    meet(s, &place);
    for (uint32_t i = 0; i < 4 && s->rank == 0; ++i) {
        cdp_optim_desc d = optims[i % 3];
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
        {"dist_optim", dist_optim, 60},
        {"embedding_bag_with_no_grad_tensors_sparse", embedding_bag_with_no_grad_tensors_sparse,
            60},
        {"f32_parameters_have_the_bits_of_cdp_optim_update",
            f32_parameters_have_the_bits_of_cdp_optim_update, 60},
        {"adagrad_begins_with_initial_for_rows_of_a_later_step",
            adagrad_begins_with_initial_for_rows_of_a_later_step, 60},
        {"embedding_rows_that_do_not_fit", embedding_rows_that_do_not_fit, 60},
        {"dist_optim_exception_on_constructor", dist_optim_exception_on_constructor, 60},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
