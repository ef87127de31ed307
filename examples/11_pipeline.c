/*  11_pipeline.c - the model of text_model.h cut into stages, one on each rank, with
    micro-batches and gradients that cross ranks (pipeline parallel)

    You learn: calls that call further ranks, and a backward pass that crosses ranks (cdp_ctx).

        gcc -O2 examples/11_pipeline.c -o pipeline -pthread -lm
        cdprun -n 4 ./pipeline                   four stages; 2 or 3 ranks: as many stages
        cdprun -n 2 ./pipeline --steps 60 --micro 16 text.txt

    Every rank holds some of the blocks; the first one also the embeddings, the last one also the
    output and the loss. Rank 0 cuts a batch into micro-batches and starts one call of the first
    stage for each. A stage computes its part, calls the next stage with what came out, and takes
    the next micro-batch meanwhile: no thread waits for the stages behind, a request is answered
    when their answer is there (CDP_RPC_LATER). So all stages work at once, each on another
    micro-batch, and activations go from stage to stage without passing rank 0.

    A context (cdp_ctx) records what each stage computed. One cdp_ctx_backward() on rank 0 then
    sends gradients the way back over all stages, one micro-batch behind the other. Gradients of
    parameters stay on their stage and are added in the order of the micro-batches, whenever they
    arrive; each stage updates its own parameters.

    Rank 0 trains the whole model alone beside it, on the same micro-batches. Losses and, in the
    end, parameters must have the same bits. The last line is the verdict. */
/* SPDX-License-Identifier: MIT-0 OR Unlicense */
#define CDP_IMPLEMENTATION
#include "../cdp_tcp.h"

#include "../cdp_rpc.h"

#include "help.h"
#include "text_model.h"

#define MAX_MICRO 16u /* a backward pass begins at 16 values at most */
#define MAX_STAGES 16u

static struct { uint64_t steps, micro; } run_of = {30, 8};

static plan plan_of = {.layers = 4,
    .width = 32,
    .heads = 4,
    .context = 32,
    .batch = 32,
    .accumulate = 1,
    .seed = 1,
    .warmup = 10,
    .rate = 0.01};

/* ---- one stage ---- */

typedef struct stage stage;

/* One micro-batch on its way through a stage: what the forward pass leaves for the backward
   pass. */
typedef struct slot {
    stage *of;
    model m;        /* values and tensors are the stage's, all other memory is its own */
    uint8_t *bytes; /* inputs, then targets */
    double bits;    /* its share of the loss; on the last stage */
    cdp_rpc_request *asked;
    cdp_call next; /* the call of the next stage */
} slot;

struct stage {
    uint32_t number, count; /* of all stages */
    model m;
    real *moments;      /* Adam's, first and second */
    cdp_rref parameter; /* all values of this stage as one tensor */
    cdp_tensor values;
    uint64_t done, step; /* micro-batches computed here; steps of Adam */
    slot slots[MAX_MICRO];
};

static uint64_t share_of(void) {
    return plan_of.batch / run_of.micro;
}
static uint64_t tokens_of(void) {
    return share_of() * plan_of.context;
}
static bool is_first(const stage *s) {
    return s->number == 0;
}
static bool is_last(const stage *s) {
    return s->number + 1 == s->count;
}

/* Blocks of a stage: from this one on, up to that of the next stage. */
static uint64_t first_block(uint32_t number, uint32_t count) {
    return plan_of.layers * number / count;
}

/* Tensors have the order of the whole model; those of other stages have no rows here. So the
   values of a stage are one piece of the values of the whole model. */
static void stage_tensors(stage *s) {
    model *m = &s->m;
    const uint64_t w = plan_of.width, first = is_first(s), last = is_last(s);
    const uint64_t from = first_block(s->number, s->count);
    *m = (model){.layers = first_block(s->number + 1, s->count) - from,
        .width = w,
        .heads = plan_of.heads,
        .context = plan_of.context,
        .sequences = share_of()};
    m->tensors =
        (tensor *)need(PARAM_BLOCKS + m->layers * BLOCK_PARAMS + LAST_PARAMS, sizeof *m->tensors);
    model_add(m, "token", first * VOCABULARY, w);
    model_add(m, "position", first * plan_of.context, w);
    for (uint64_t l = 0; l < m->layers; ++l)
        model_add_block(m, l);
    model_add(m, "norm.gain", last, w);
    model_add(m, "norm.bias", last, w);
    model_add(m, "head", last * w, VOCABULARY);
    m->values = need_reals(m->value_count);
}

/* Where the values of this stage begin in those of the whole model. */
static uint64_t stage_offset(const stage *s, const model *whole) {
    const uint32_t block = block_param(first_block(s->number, s->count), 0);
    return is_first(s) ? 0 : whole->tensors[block].offset;
}

static void whole_create(model *whole) {
    model_create(whole, plan_of.layers, plan_of.width, plan_of.heads, plan_of.context, share_of());
    model_init(whole, plan_of.seed);
}

static void stage_open(stage *s, uint32_t number, uint32_t count) {
    model whole;
    *s = (stage){.number = number, .count = count};
    stage_tensors(s);
    whole_create(&whole);
    memcpy(s->m.values, whole.values + stage_offset(s, &whole), s->m.value_count * sizeof(real));
    model_free(&whole);
    s->moments = need_reals(2 * s->m.value_count);
    s->values = (cdp_tensor){
        .data = s->m.values, .dtype = REAL_DTYPE, .dims = 1, .shape = {s->m.value_count}};
    for (uint64_t i = 0; i < run_of.micro; ++i) {
        slot *k = &s->slots[i];
        k->of = s;
        k->m = s->m;
        k->m.grads = (real **)need(s->m.tensor_count, sizeof *k->m.grads);
        model_reserve(&k->m);
        k->bytes = (uint8_t *)need(2, tokens_of());
    }
}

static void stage_close(stage *s) {
    for (uint64_t i = 0; i < run_of.micro; ++i) {
        slot *k = &s->slots[i];
        cdp_call_free(&k->next);
        k->m.values = NULL; /* the stage's */
        k->m.tensors = NULL;
        model_free(&k->m);
        free(k->bytes);
    }
    free(s->moments);
    model_free(&s->m);
}

/* ---- what a stage does for others ---- */

static cdp_tensor stream_of(real *at, uint64_t value) {
    return (cdp_tensor){.data = at,
        .dtype = REAL_DTYPE,
        .dims = 2,
        .shape = {tokens_of(), plan_of.width},
        .value = value};
}

/* From the gradient of what came out of the stage to that of what went in, and that of the
   stage's values. */
static cdp_status slot_backward(void *user, cdp_backward *b) {
    slot *k = (slot *)user;
    stage *s = k->of;
    model *m = &k->m;
    real *grads;
    void *memory;
    if (!b->grad_out[0].data) return CDP_OK; /* nothing depends on it */
    if (cdp_backward_alloc(b, m->value_count * sizeof *grads, &memory) != CDP_OK)
        return CDP_ERR_NOMEM;
    grads = (real *)memory;
    memset(grads, 0, m->value_count * sizeof *grads);
    for (uint32_t i = 0; i < m->tensor_count; ++i)
        m->grads[i] = grads + m->tensors[i].offset;
    if (is_last(s)) {
        const real of_loss = (real) * (const double *)b->grad_out[0].data;
        for (uint64_t i = 0; i < tokens_of() * VOCABULARY; ++i)
            m->logits[i] *= of_loss;
        head_backward(m, share_of());
    } else {
        memcpy(m->stream, b->grad_out[0].data, tokens_of() * m->width * sizeof(real));
    }
    blocks_backward(m, share_of());
    if (is_first(s))
        embed_backward(m, k->bytes, share_of());
    else
        b->grad_in[0] = stream_of(m->stream, 0);
    b->grad_in[1] = s->values;
    b->grad_in[1].data = grads;
    return CDP_OK;
}

/* Records the step; *out is what came out of it. */
static bool slot_record(slot *k, const cdp_rpc_request *q, cdp_tensor *out) {
    stage *s = k->of;
    uint64_t in[2] = {q->tensor_count ? q->tensors[0].value : 0, 0}, value;
    const cdp_ctx_op_desc desc = {.inputs = in,
        .input_count = 2,
        .outputs = &value,
        .output_count = 1,
        .backward = slot_backward,
        .user = k};
    if (cdp_ctx_param(q->ctx, s->parameter, &in[1]) != CDP_OK
        || cdp_ctx_value(q->ctx, &value) != CDP_OK || cdp_ctx_op(q->ctx, &desc) != CDP_OK)
        return false;
    *out = stream_of(k->m.last, value);
    if (is_last(s)) *out = (cdp_tensor){.data = &k->bits, .dtype = CDP_DTYPE_F64, .value = value};
    return true;
}

/* The stages behind have answered: a callback. */
static void slot_answered(void *user, cdp_call *call) {
    slot *k = (slot *)user;
    const cdp_args results = {.tensors = call->tensors, .tensor_count = call->tensor_count};
    if (call->status == CDP_OK)
        cdp_rpc_reply(k->asked, &results);
    else
        cdp_rpc_fail(k->asked, 1, call->error.text);
}

/* Is that what the stage before this one gives? */
static bool is_stream(const cdp_tensor *t) {
    return t->dtype == REAL_DTYPE && t->dims == 2 && t->shape[0] == tokens_of()
        && t->shape[1] == plan_of.width;
}

/* {which micro-batch, inputs, targets}, and what came out of the stage before this one. */
static void forward(void *user, cdp_rpc_request *q) {
    stage *s = (stage *)user;
    const uint64_t stream = tokens_of() * plan_of.width * sizeof(real);
    uint64_t number = MAX_MICRO;
    cdp_tensor out;
    if (q->bytes == 8 + 2 * tokens_of()) memcpy(&number, q->data, 8);
    if (number >= run_of.micro || !q->ctx || q->tensor_count != !is_first(s)
        || (q->tensor_count && !is_stream(&q->tensors[0]))) {
        cdp_rpc_fail(q, 1, "this is no micro-batch; start all ranks with the same options");
        return;
    }
    slot *k = &s->slots[number];
    model *m = &k->m;
    memcpy(k->bytes, (const uint8_t *)q->data + 8, 2 * tokens_of());
    k->asked = q;
    if (is_first(s))
        embed(m, k->bytes, share_of());
    else
        memcpy(m->blocks[0].in, q->tensors[0].data, stream);
    blocks_forward(m, share_of());
    if (is_last(s)) {
        const uint64_t tokens = tokens_of() * run_of.micro;
        head_forward(m, share_of());
        k->bits = model_loss(m, k->bytes + tokens_of(), share_of(), 1 / (real)tokens);
        k->bits /= (double)tokens;
    }
    ++s->done;
    cdp_iov iov = {.data = (void *)(uintptr_t)q->data, .bytes = q->bytes};
    cdp_call_desc next = {.to = s->number + 1,
        .function = cdp_rpc_id("forward"),
        .args = {.tensors = &out, .tensor_count = 1},
        .ctx = q->ctx,
        .done = slot_answered,
        .user = k};
    if (!slot_record(k, q, &out)) {
        cdp_rpc_fail(q, 1, cdp_last_error()->text);
    } else if (is_last(s)) {
        cdp_rpc_reply(q, &next.args);
    } else {
        cdp_call_free(&k->next);
        next.args.iov = &iov;
        next.args.iov_count = 1;
        if (cdp_rpc_start(q->rpc, &next, &k->next) != CDP_OK)
            cdp_rpc_fail(q, 1, cdp_last_error()->text);
    }
}

/* One step of Adam with the gradients of a context. */
static void update_values(const model *m, real *moments, uint64_t step, const real *grads) {
    for (uint32_t i = 0; i < m->tensor_count; ++i) {
        const tensor *t = &m->tensors[i];
        real *first = moments + t->offset;
        adam(&plan_of, step, value_of(m, i), grads + t->offset, first, first + m->value_count,
            t->count, t->rows > 1);
    }
}

static void update(void *user, cdp_rpc_request *q) {
    stage *s = (stage *)user;
    uint64_t value;
    cdp_tensor grads;
    if (!q->ctx || cdp_ctx_param(q->ctx, s->parameter, &value) != CDP_OK
        || cdp_ctx_grad(q->ctx, value, &grads) != CDP_OK)
        cdp_rpc_fail(q, 1, q->ctx ? cdp_last_error()->text : "this needs a context");
    else if (!grads.data)
        cdp_rpc_fail(q, 1, "no gradient has arrived here");
    else
        update_values(&s->m, s->moments, s->step++, (const real *)grads.data);
}

/* The values of this stage. */
static void values(void *user, cdp_rpc_request *q) {
    const cdp_args results = {.tensors = &((stage *)user)->values, .tensor_count = 1};
    cdp_rpc_reply(q, &results);
}

static void finish(void *user, cdp_rpc_request *q) {
    const stage *s = (const stage *)user;
    const uint64_t from = first_block(s->number, s->count);
    printf("stage %u: blocks %llu to %llu%s%s, %llu parameters: %llu micro-batches\n", s->number,
        llu(from), llu(from + s->m.layers - 1), is_first(s) ? ", embeddings" : "",
        is_last(s) ? ", output and loss" : "", llu(s->m.value_count), llu(s->done));
    fflush(stdout);
    cdp_rref_drop(s->parameter);
    (void)q;
}

/* ---- rank 0: batches, and the whole model beside them ---- */

typedef struct alone {
    model m;
    real *moments, *grads, *sum; /* of one micro-batch, and of all */
} alone;

static void alone_open(alone *a) {
    whole_create(&a->m);
    a->moments = need_reals(2 * a->m.value_count);
    a->grads = need_reals(a->m.value_count);
    a->sum = need_reals(a->m.value_count);
    for (uint32_t i = 0; i < a->m.tensor_count; ++i)
        a->m.grads[i] = a->grads + a->m.tensors[i].offset;
}

static void alone_close(alone *a) {
    free(a->moments);
    free(a->grads);
    free(a->sum);
    model_free(&a->m);
}

static void draw_micro(const corpus *text, uint64_t step, uint64_t number, uint8_t *bytes) {
    const uint64_t n = plan_of.context;
    for (uint64_t i = 0; i < share_of(); ++i) {
        const uint8_t *from =
            text->train + sequence_start(&plan_of, text, step, number * share_of() + i);
        memcpy(bytes + i * n, from, n);
        memcpy(bytes + tokens_of() + i * n, from + 1, n);
    }
}

static double alone_step(alone *a, const corpus *text, uint64_t step, uint8_t *bytes) {
    const uint64_t tokens = tokens_of() * run_of.micro;
    double bits = 0;
    for (uint64_t i = 0; i < run_of.micro; ++i) {
        draw_micro(text, step, i, bytes);
        memset(a->grads, 0, a->m.value_count * sizeof(real));
        model_forward(&a->m, bytes, share_of());
        bits +=
            model_loss(&a->m, bytes + tokens_of(), share_of(), 1 / (real)tokens) / (double)tokens;
        model_backward(&a->m, bytes, share_of());
        for (uint64_t k = 0; k < a->m.value_count; ++k)
            a->sum[k] = i ? a->sum[k] + a->grads[k] : a->grads[k];
    }
    update_values(&a->m, a->moments, step, a->sum);
    return bits;
}

/* Calls a function of all stages at once. */
static void all_stages(
    cdp_rpc *rpc, uint32_t stages, const char *name, cdp_ctx *ctx, cdp_call *calls) {
    for (uint32_t i = 0; i < stages; ++i) {
        const cdp_call_desc d = {.to = i, .function = cdp_rpc_id(name), .ctx = ctx};
        calls[i] = (cdp_call){0};
        if (!worked(cdp_rpc_start(rpc, &d, &calls[i]))) exit(1);
    }
    for (uint32_t i = 0; i < stages; ++i)
        if (!worked(cdp_call_wait(&calls[i]))) exit(1);
}

/* One batch through all stages, and back. Returns the loss. */
static double pipeline_step(
    cdp_rpc *rpc, uint32_t stages, const corpus *text, uint64_t step, uint8_t *message) {
    cdp_iov iov = {.data = message, .bytes = 8 + 2 * tokens_of()};
    cdp_call calls[MAX_MICRO] = {0}, updates[MAX_STAGES];
    cdp_tensor roots[MAX_MICRO];
    double bits = 0;
    cdp_ctx *ctx;
    if (!worked(cdp_ctx_begin(rpc, &ctx))) exit(1);
    for (uint64_t i = 0; i < run_of.micro; ++i) {
        const cdp_call_desc d = {.to = 0,
            .function = cdp_rpc_id("forward"),
            .args = {.iov = &iov, .iov_count = 1},
            .ctx = ctx};
        memcpy(message, &i, 8);
        draw_micro(text, step, i, message + 8);
        if (!worked(cdp_rpc_start(rpc, &d, &calls[i]))) exit(1);
    }
    for (uint64_t i = 0; i < run_of.micro; ++i) {
        if (!worked(cdp_call_wait(&calls[i]))) exit(1);
        roots[i] = calls[i].tensors[0];
        bits += *(const double *)roots[i].data;
    }
    const cdp_backward_desc back = {.roots = roots, .root_count = (uint32_t)run_of.micro};
    if (!worked(cdp_ctx_backward(ctx, &back))) exit(1);
    all_stages(rpc, stages, "update", ctx, updates);
    if (!worked(cdp_ctx_end(ctx, 0))) exit(1);
    for (uint64_t i = 0; i < run_of.micro; ++i)
        cdp_call_free(&calls[i]);
    return bits;
}

static bool verdict(bool good, const char *what) {
    printf("%s  %s\n", good ? "PASS" : "FAIL", what);
    return good;
}

/* The stages' values, one after the other, are those of the whole model. */
static bool same_values(cdp_rpc *rpc, uint32_t stages, const alone *a) {
    cdp_call calls[MAX_STAGES];
    uint64_t at = 0;
    bool same = true;
    all_stages(rpc, stages, "values", NULL, calls);
    for (uint32_t i = 0; i < stages; ++i) {
        const cdp_tensor *t = &calls[i].tensors[0];
        same = same && at + t->shape[0] <= a->m.value_count
            && memcmp(t->data, a->m.values + at, t->shape[0] * sizeof(real)) == 0;
        at += t->shape[0];
        cdp_call_free(&calls[i]);
    }
    return same && at == a->m.value_count;
}

static bool drive(cdp_rpc *rpc, uint32_t stages, const corpus *text) {
    uint8_t *message = (uint8_t *)need(8 + 2 * tokens_of(), 1);
    uint8_t *bytes = (uint8_t *)need(2, tokens_of());
    double first = 0, bits = 0;
    uint64_t equal = 0;
    cdp_call calls[MAX_STAGES];
    bool good;
    alone a;
    alone_open(&a);
    for (uint64_t step = 0; step < run_of.steps; ++step) {
        bits = pipeline_step(rpc, stages, text, step, message);
        const double want = alone_step(&a, text, step, bytes);
        if (step == 0) first = bits;
        equal += memcmp(&bits, &want, sizeof bits) == 0;
        if (step % 10 == 0 || step + 1 == run_of.steps)
            printf("step %3llu: %.12f bits per byte; one process %.12f\n", llu(step), bits, want);
        fflush(stdout);
    }
    const bool same = same_values(rpc, stages, &a);
    const bool gone = cdp_rpc_stats_of(rpc).contexts == 0;
    all_stages(rpc, stages, "finish", NULL, calls);
    printf("%u stages, %llu micro-batches of %llu sequences in a step\n", stages, llu(run_of.micro),
        llu(share_of()));
    good = verdict(equal == run_of.steps, "the losses of all steps have the bits of one process");
    good = verdict(same, "so have the parameters of all stages in the end") && good;
    if (run_of.steps >= 10) good = verdict(bits < first - 0.5, "the loss fell") && good;
    good = verdict(gone, "no context is left") && good;
    printf("%s\n", good ? "all checks passed" : "SOME CHECKS FAILED");
    alone_close(&a);
    free(message);
    free(bytes);
    return good;
}

/* ---- main ---- */

static bool read_options(int argc, char **argv, char **path) {
    for (int i = 1; i < argc; ++i) {
        uint64_t *to = NULL;
        if (strcmp(argv[i], "--steps") == 0) to = &run_of.steps;
        if (strcmp(argv[i], "--micro") == 0) to = &run_of.micro;
        if (strcmp(argv[i], "--layers") == 0) to = &plan_of.layers;
        if (strcmp(argv[i], "--width") == 0) to = &plan_of.width;
        if (argv[i][0] == '-' && (!to || i + 1 == argc)) return false;
        if (to)
            *to = strtoull(argv[++i], NULL, 10);
        else
            *path = argv[i];
    }
    plan_of.decay = run_of.steps;
    return true;
}

/* Longer arguments than 64 KiB could overtake each other, and micro-batches must not. */
static bool options_fit(uint32_t stages, reason *why) {
    if (run_of.micro < 1 || run_of.micro > MAX_MICRO || plan_of.batch % run_of.micro)
        return because(why, "--micro must be 1, 2, 4, 8 or 16");
    if (stages > MAX_STAGES || plan_of.layers < stages || plan_of.layers > 64)
        return because(why, "%u ranks need --layers %u to 64; at most 16 ranks", stages, stages);
    if (plan_of.width < plan_of.heads || plan_of.width % plan_of.heads
        || (tokens_of() * (plan_of.width * sizeof(real) + 2)) > 60000)
        return because(why,
            "--width must divide by %llu, and a micro-batch have at most 60000 bytes between two "
            "stages: take more of them",
            llu(plan_of.heads));
    return true;
}

static bool train_in_stages(cdp_group *world, char *path, const char *program) {
    static stage s;
    const cdp_rpc_function functions[] = {
        {.name = "forward", .func = forward, .user = &s, .flags = CDP_RPC_LATER, .max_running = 1},
        {.name = "update", .func = update, .user = &s, .max_running = 1},
        {.name = "values", .func = values, .user = &s},
        {.name = "finish", .func = finish, .user = &s}};
    const cdp_rpc_desc desc = {.group = world, .functions = functions, .function_count = 4};
    corpus text = {0};
    reason why;
    bool good = true;
    cdp_rpc *rpc = NULL;
    if (cdp_rank(world) == 0
        && !corpus_gather(&text, &path, path ? 1 : 0, program, plan_of.context, &why)) {
        complain(&why);
        return false;
    }
    stage_open(&s, cdp_rank(world), cdp_size(world));
    const cdp_value value = {.data = &s, .plain = {.tensors = &s.values, .tensor_count = 1}};
    if (!worked(cdp_rpc_create(&desc, &rpc))
        || !worked(cdp_rref_create(rpc, &value, "the values of a stage", &s.parameter))
        || !worked(cdp_barrier(world))) { /* every stage is ready */
        cdp_rpc_destroy(rpc);             /* ends the functions that use the stage, which lasts */
        corpus_free(&text);
        return false;
    }
    if (is_first(&s)) good = drive(rpc, s.count, &text);
    /* Until all ranks are here the other stages serve in this call. */
    good = worked(cdp_rpc_shutdown(rpc, CDP_NO_TIMEOUT)) && good;
    stage_close(&s); /* results of calls are freed before the rpc is */
    cdp_rpc_destroy(rpc);
    corpus_free(&text);
    return good;
}

int main(int argc, char **argv) {
    if (help(argc, argv,
            "11_pipeline: a transformer in stages, one on each rank, beside the same in one "
            "process.\n"
            "usage: [cdprun -n 4] ./pipeline [--steps N] [--micro N] [--layers N] [--width N] "
            "[TEXT]"))
        return 0;
    char *path = NULL;
    cdp_group *world;
    reason why;
    bool single;
    if (!read_options(argc, argv, &path)) {
        fprintf(stderr, "pipeline [--steps N] [--micro N] [--layers N] [--width N] [TEXT]\n");
        return 2;
    }
    if (!join_world(&world, &single)) return 1;
    if (!options_fit(cdp_size(world), &why)) {
        complain(&why);
        return 2;
    }
    const bool good = train_in_stages(world, path, argv[0]);
    cdp_group_destroy(world);
    return good ? 0 : 1;
}
