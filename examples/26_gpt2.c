/*  26_gpt2.c - GPT-2 with 124 million parameters, in processes that have no room for it

    You learn: a model that one process cannot train fits several ones, cut by cdp_fsdp.h.

        gcc -O2 examples/26_gpt2.c -o gpt2 -pthread -lm
        cdprun -n 4 ./gpt2 --memory 1400                   1400 MB of addresses for each process
        (ulimit -v 1433600; cdprun -n 4 ./gpt2)            the same, by the shell
        cdprun -n 4 ./gpt2 --layers 2 --width 64           small, without a limit

    The layers and sizes are those of GPT-2 small: 50257 tokens, 1024 positions, 12 blocks of width
    768 with biases, the table of tokens also as the head. Values start at random, and so are the
    tokens: all that can be learned is the batch, which is the same in each step.

    Values, gradients and Adam's two moments take 16 bytes for each parameter: 1991 MB. First rank 0
    tries it alone, with a group of one rank, and learns what is missing. Then all ranks train
    together, and each has a quarter, and what it gathers. A unit is a block; the first unit has the
    tables and the last layer norm, which are used at both ends: `uses` is 2, so its gradient
    travels once.

    The verdict: every rank needs the bytes that cdp_fsdp_preview() has said; the loss starts near
    ln 50257 and falls. Where rank 0 could do it alone: its losses are those of all. Where it could
    not: paper has said so.                                                                    */
/* SPDX-License-Identifier: MIT-0 OR Unlicense */
#define CDP_IMPLEMENTATION
#include "../cdp_tcp.h"
#include "../cdp_fsdp.h"

#define VOCABULARY 50257u
#include "text_model.h"
#include "options.h"

#ifndef _WIN32
#include <sys/resource.h>
#endif

enum {
    POSITIONS = 1024,
    MOST_STEPS = 100
};

/* The parameters: unit 0, then for each block: */
enum {
    TOKENS,
    PLACES,
    LAST_NORM,
    LAST_NORM_BIAS,
    ENDS
};
enum {
    NORM1,
    NORM1_BIAS,
    QKV,
    QKV_BIAS,
    OUT,
    OUT_BIAS,
    NORM2,
    NORM2_BIAS,
    UP,
    UP_BIAS,
    DOWN,
    DOWN_BIAS,
    PARTS
};

typedef struct run {
    cdp_group *group;
    model *model;
    uint64_t seed, steps;
    uint32_t batches; /* of all ranks in a step */
    cdp_optim optim;
    cdp_fsdp *shards;
    cdp_fsdp_stats paper, used;
    double loss[MOST_STEPS];
    bool fits;
    char why[512];
} run;

static uint32_t part_of(uint64_t layer, uint32_t part) {
    return ENDS + (uint32_t)layer * PARTS + part;
}
static uint32_t unit_of(uint32_t tensor) {
    return tensor < ENDS ? 0 : 1 + (tensor - ENDS) / PARTS;
}

/* ---- the model ---- */

/* Places in a unit, which is one stretch. */
static void add_unit(
    model *m, const char *const *names, const uint64_t (*shape)[2], uint32_t n, uint64_t unit) {
    uint64_t at = 0;
    for (uint32_t i = 0; i < n; ++i) {
        char name[24];
        if (unit)
            snprintf(name, sizeof name, "%u.%s", (unsigned)unit - 1, names[i]);
        else
            snprintf(name, sizeof name, "%s", names[i]);
        tensor *t = model_add(m, name, shape[i][0], shape[i][1]);
        t->offset = at;
        at += t->count;
    }
}

static void describe(model *m) {
    static const char *const ends[ENDS] = {"tokens", "positions", "norm.gain", "norm.bias"};
    static const char *const parts[PARTS] = {"norm1.gain", "norm1.bias", "qkv", "qkv.bias", "out",
        "out.bias", "norm2.gain", "norm2.bias", "up", "up.bias", "down", "down.bias"};
    const uint64_t w = m->width;
    const uint64_t ends_shape[ENDS][2] = {{VOCABULARY, w}, {POSITIONS, w}, {1, w}, {1, w}};
    const uint64_t shape[PARTS][2] = {{1, w}, {1, w}, {w, 3 * w}, {1, 3 * w}, {w, w}, {1, w},
        {1, w}, {1, w}, {w, 4 * w}, {1, 4 * w}, {4 * w, w}, {1, w}};
    m->tensors = (tensor *)need(ENDS + m->layers * PARTS, sizeof *m->tensors);
    add_unit(m, ends, ends_shape, ENDS, 0);
    for (uint64_t l = 0; l < m->layers; ++l)
        add_unit(m, parts, shape, PARTS, l + 1);
    m->grads = (real **)need(m->tensor_count, sizeof *m->grads);
    model_reserve(m);
}

/* out = in x weight + bias, which are parameters i and i + 1. */
static void linear(const model *m, real *out, real *in, uint32_t i) {
    const tensor *t = &m->tensors[i];
    for (size_t r = 0; r < m->context; ++r)
        memcpy(out + r * t->cols, value_of(m, i + 1), t->cols * sizeof *out);
    matmul(matrix_of(out, m->context, t->cols), matrix_of(in, m->context, t->rows), weight_of(m, i),
        true);
}
static void linear_backward(const model *m, real *din, real *dout, real *in, uint32_t i) {
    const tensor *t = &m->tensors[i];
    const matrix d = matrix_of(dout, m->context, t->cols);
    matmul(grad_of(m, i), turned(matrix_of(in, m->context, t->rows)), d, true);
    for (size_t r = 0; r < m->context; ++r)
        for (size_t j = 0; j < t->cols; ++j)
            m->grads[i + 1][j] += dout[r * t->cols + j];
    matmul(matrix_of(din, m->context, t->rows), d, turned(weight_of(m, i)), false);
}

static void norm(const model *m, real *out, real *stat, const real *in, uint32_t i) {
    layer_norm(out, stat, in, value_of(m, i), value_of(m, i + 1), m->context, m->width);
}
static void norm_backward(
    const model *m, real *din, const real *dout, const real *in, const real *stat, uint32_t i) {
    layer_norm_backward(
        din, m->grads[i], m->grads[i + 1], dout, in, stat, value_of(m, i), m->context, m->width);
}

static void add(real *to, const real *what, size_t count) {
    for (size_t i = 0; i < count; ++i)
        to[i] += what[i];
}

static void block(const model *m, uint64_t layer, real *out) {
    block_memory *b = &m->blocks[layer];
    const uint32_t at = part_of(layer, 0);
    norm(m, b->norm1, b->stat1, b->in, at + NORM1);
    linear(m, b->qkv, b->norm1, at + QKV);
    attention(m, b, 1);
    linear(m, b->mid, b->mix, at + OUT);
    add(b->mid, b->in, m->context * m->width);
    norm(m, b->norm2, b->stat2, b->mid, at + NORM2);
    linear(m, b->act, b->norm2, at + UP);
    gelu(b->act, b->slope, m->context * m->width * 4);
    linear(m, out, b->act, at + DOWN);
    add(out, b->mid, m->context * m->width);
}

/* m->stream holds the gradient of the block's output and leaves with that of its input. */
static void block_back(const model *m, uint64_t layer) {
    block_memory *b = &m->blocks[layer];
    const uint32_t at = part_of(layer, 0);
    linear_backward(m, m->wide, m->stream, b->act, at + DOWN);
    for (size_t i = 0; i < m->context * m->width * 4; ++i)
        m->wide[i] *= b->slope[i];
    linear_backward(m, m->narrow, m->wide, b->norm2, at + UP);
    norm_backward(m, m->stream, m->narrow, b->mid, b->stat2, at + NORM2);
    linear_backward(m, m->narrow, m->stream, b->mix, at + OUT);
    attention_backward(m, b, m->wide, m->narrow, 1);
    linear_backward(m, m->narrow, m->wide, b->norm1, at + QKV);
    norm_backward(m, m->stream, m->narrow, b->in, b->stat1, at + NORM1);
}

static uint32_t token_at(const run *r, uint32_t batch, uint64_t place) {
    return (uint32_t)(draw(r->seed ^ 0x746f6b656eu, batch, place) % VOCABULARY);
}

/* A row of the table for each token of the batch, and of the positions. */
static void first_rows(const run *r, uint32_t batch, real *out) {
    const model *m = r->model;
    for (size_t i = 0; i < m->context; ++i) {
        const real *token = value_of(m, TOKENS) + token_at(r, batch, i) * m->width;
        memcpy(out + i * m->width, token, m->width * sizeof *out);
    }
    add(out, value_of(m, PLACES), m->context * m->width);
}
static void first_rows_back(const run *r, uint32_t batch) {
    const model *m = r->model;
    for (size_t i = 0; i < m->context; ++i)
        add(m->grads[TOKENS] + token_at(r, batch, i) * m->width, m->stream + i * m->width,
            m->width);
    add(m->grads[PLACES], m->stream, m->context * m->width);
}

/* The mean of -ln p(next token). The logits become their own gradient. */
static double loss_of(const run *r, uint32_t batch) {
    const model *m = r->model;
    double loss = 0;
    for (size_t i = 0; i < m->context; ++i) {
        real *row = m->logits + i * VOCABULARY, top = row[0], sum = 0;
        const uint32_t next = token_at(r, batch, i + 1);
        const real wanted = row[next];
        for (size_t j = 1; j < VOCABULARY; ++j)
            top = row[j] > top ? row[j] : top;
        for (size_t j = 0; j < VOCABULARY; ++j)
            sum += row[j] = REAL_EXP(row[j] - top);
        for (size_t j = 0; j < VOCABULARY; ++j)
            row[j] /= sum * (real)m->context;
        row[next] -= 1 / (real)m->context;
        loss += log((double)sum) - (double)(wanted - top);
    }
    return loss / (double)m->context;
}

/* The table is the head, too. */
static double head(const run *r, uint32_t batch) {
    const model *m = r->model;
    const matrix logits = matrix_of(m->logits, m->context, VOCABULARY);
    norm(m, m->norm, m->stat, m->last, LAST_NORM);
    matmul(logits, matrix_of(m->norm, m->context, m->width), turned(weight_of(m, TOKENS)), false);
    const double loss = loss_of(r, batch);
    matmul(grad_of(m, TOKENS), turned(logits), matrix_of(m->norm, m->context, m->width), true);
    matmul(matrix_of(m->narrow, m->context, m->width), logits, weight_of(m, TOKENS), false);
    memset(m->stream, 0, m->context * m->width * sizeof *m->stream);
    norm_backward(m, m->stream, m->narrow, m->last, m->stat, LAST_NORM);
    return loss;
}

/* ---- FSDP ---- */

/* Elements of one parameter. Each follows from its place alone, so cuts do not matter. */
static void first_values(void *user, uint32_t tensor, uint64_t first, uint64_t count, float *out) {
    const run *r = (const run *)user;
    const char *const name = r->model->tensors[tensor].name;
    double width = .02 * sqrt(3.);
    if (has_suffix(name, ".out") || has_suffix(name, ".down"))
        width /= sqrt(2. * (double)r->model->layers);
    for (uint64_t k = 0; k < count; ++k)
        if (has_suffix(name, ".gain") || has_suffix(name, ".bias"))
            out[k] = has_suffix(name, ".gain");
        else
            out[k] = (float)(width * (2 * draw_unit(r->seed, tensor, first + k) - 1));
}

/* False with r->why: there is no room. */
static bool open_shards(run *r) {
    const model *m = r->model;
    cdp_fsdp_param *params = (cdp_fsdp_param *)need(m->tensor_count, sizeof *params);
    cdp_fsdp_unit *units = (cdp_fsdp_unit *)need(m->layers + 1, sizeof *units);
    cdp_fsdp_desc desc = {.group = r->group,
        .params = params,
        .param_count = m->tensor_count,
        .units = units,
        .unit_count = (uint32_t)m->layers + 1,
        .optim = &r->optim,
        .fill = first_values,
        .user = r,
        .divisor = r->batches,
        .max_norm = 1};
    r->optim = (cdp_optim){.kind = CDP_OPTIM_ADAMW, .lr = 1e-3, .beta2 = .95};
    units[0] = (cdp_fsdp_unit){.name = "ends", .keep = true, .uses = 2};
    for (uint32_t i = 0; i < m->tensor_count; ++i)
        params[i] = (cdp_fsdp_param){.name = m->tensors[i].name,
            .unit = unit_of(i),
            .ndim = 2,
            .shape = {m->tensors[i].rows, m->tensors[i].cols}};
    cdp_status st = cdp_fsdp_preview(&desc, cdp_rank(r->group), &r->paper);
    if (st == CDP_OK) st = cdp_fsdp_create(&desc, &r->shards);
    free(params);
    free(units);
    if (st == CDP_ERR_NOMEM) snprintf(r->why, sizeof r->why, "%s", cdp_last_error()->text);
    r->fits = st == CDP_OK;
    return st == CDP_ERR_NOMEM ? false : worked(st);
}

static bool use(run *r, uint32_t unit, bool backward) {
    model *m = r->model;
    const uint32_t first = unit ? part_of(unit - 1, 0) : 0;
    if (!worked(cdp_fsdp_need(r->shards, unit))) return false;
    m->values = (float *)(uintptr_t)cdp_fsdp_data(r->shards, first);
    for (uint32_t i = first; backward && i < m->tensor_count && unit_of(i) == unit; ++i)
        if (!(m->grads[i] = cdp_fsdp_grad(r->shards, i))) return worked(cdp_last_error()->status);
    return true;
}

static bool forward_backward(run *r, uint32_t batch, double *loss) {
    model *m = r->model;
    const uint32_t layers = (uint32_t)m->layers;
    if (!use(r, 0, false)) return false;
    first_rows(r, batch, m->blocks[0].in);
    if (!worked(cdp_fsdp_done(r->shards, 0))) return false;
    for (uint32_t l = 0; l < layers; ++l) {
        if (!use(r, l + 1, false)) return false;
        block(m, l, l + 1 < layers ? m->blocks[l + 1].in : m->last);
        if (!worked(cdp_fsdp_done(r->shards, l + 1))) return false;
    }
    if (!use(r, 0, true)) return false;
    *loss += head(r, batch);
    if (!worked(cdp_fsdp_ready(r->shards, 0))) return false;
    for (uint32_t l = layers; l-- > 0;) {
        if (!use(r, l + 1, true)) return false;
        block_back(m, l);
        if (!worked(cdp_fsdp_ready(r->shards, l + 1))) return false;
    }
    if (!use(r, 0, true)) return false;
    first_rows_back(r, batch);
    return worked(cdp_fsdp_ready(r->shards, 0));
}

static bool train(run *r, const char *who) {
    const uint32_t rank = cdp_rank(r->group), ranks = cdp_size(r->group);
    for (uint64_t step = 0; step < r->steps; ++step) {
        double loss = 0;
        for (uint32_t batch = rank; batch < r->batches; batch += ranks)
            if (!forward_backward(r, batch, &loss)) return false;
        if (!worked(cdp_fsdp_backward_end(r->shards, 0, NULL)) || !worked(cdp_fsdp_step(r->shards))
            || !worked(cdp_allreduce(r->group, NULL, &loss, 1, CDP_DTYPE_F64, CDP_REDUCE_SUM)))
            return false;
        r->loss[step] = loss / r->batches;
        if (rank == 0) printf("%s: step %llu, loss %.4f\n", who, llu(step), r->loss[step]);
        if (rank == 0) fflush(stdout);
    }
    r->used = cdp_fsdp_stats_of(r->shards);
    return true;
}

static uint64_t megabytes(uint64_t bytes) {
    return (bytes + 999999) / 1000000;
}

static bool run_on(run *r, const char *who) {
    const bool opened = open_shards(r);
    const bool ok = opened ? train(r, who) : r->why[0] != 0;
    if (!r->fits && r->why[0] && cdp_rank(r->group) == 0)
        printf("%s: no room for %llu MB: %s\n", who, llu(megabytes(r->paper.total_bytes)), r->why);
    cdp_fsdp_destroy(r->shards);
    r->shards = NULL;
    return ok;
}

/* ---- limits, verdict ---- */

/* In MB; 0: none. */
static uint64_t limit_memory(uint64_t wanted) {
#ifdef _WIN32
    (void)wanted;
    return 0;
#else
    struct rlimit now = {0, 0};
    (void)getrlimit(RLIMIT_AS, &now);
    if (wanted) now.rlim_cur = (rlim_t)wanted * 1000000;
    if (wanted && setrlimit(RLIMIT_AS, &now)) perror("setrlimit");
    return now.rlim_cur == RLIM_INFINITY ? 0 : (uint64_t)now.rlim_cur / 1000000;
#endif
}

static double largest_difference(const run *a, const run *b) {
    double most = 0;
    for (uint64_t i = 0; i < a->steps; ++i)
        most = fmax(most, fabs(a->loss[i] - b->loss[i]) / b->loss[i]);
    return most;
}

static bool verdict(const run *alone, const run *all, uint64_t limit) {
    const double ln = log((double)VOCABULARY), first = all->loss[0],
                 last = all->loss[all->steps - 1];
    const uint64_t paper = megabytes(alone->paper.total_bytes);
    bool ok = all->fits && fabs(first - ln) < .5 && (all->steps == 1 || last < first)
        && all->used.total_bytes == all->paper.total_bytes;
    if (alone->fits) {
        const double far = largest_difference(alone, all);
        printf("losses of one process and of all differ by %.1e at most\n", far);
        ok = ok && far < 1e-4;
    } else
        ok = ok && limit && paper > limit;
    printf("%llu parameters; loss %.4f, then %.4f (a guess: %.4f)\n", llu(all->model->value_count),
        first, last, ln);
    printf("one process needs %llu MB, each of %u has %llu: shards %llu, Adam %llu, slots %llu, "
           "gradients %llu",
        llu(paper), cdp_size(all->group), llu(megabytes(all->used.total_bytes)),
        llu(megabytes(all->used.shard_bytes)), llu(megabytes(all->used.state_bytes)),
        llu(megabytes(all->used.slot_bytes)), llu(megabytes(all->used.gradient_bytes)));
    if (limit) printf("; the limit is %llu", llu(limit));
    printf("\n%s\n", ok ? "all checks passed" : "FAILED");
    return ok;
}

static int usage(const char *program, int code) {
    fprintf(code ? stderr : stdout,
        "usage: %s [--memory MB] [--steps N] [--layers N] [--width N] [--heads N] [--context N]\n"
        "Trains GPT-2 (124 million parameters) with random weights: rank 0 alone, if it has room\n"
        "for that, then all ranks. --memory: of each process, addresses included (default: no\n"
        "limit). --steps: 1 to %d (default 3). Defaults: 12 layers, width 768, 12 heads, 32 "
        "tokens\n"
        "of context. Start it with cdprun -n 4, or alone.\n",
        program, (int)MOST_STEPS);
    return code;
}

static bool read_arguments(int argc, char **argv, model *m, uint64_t *memory, uint64_t *steps) {
    const option options[] = {{"--memory", memory, (1u << 30) - 1}, {"--steps", steps, MOST_STEPS},
        {"--layers", &m->layers, 1000}, {"--width", &m->width, 16384},
        {"--heads", &m->heads, 16384}, {"--context", &m->context, POSITIONS}};
    return read_options(argc, argv, options, 6) == argc && m->width % m->heads == 0;
}

static bool try_alone(run *r, cdp_group *world) {
    bool ok = worked(cdp_group_split(world, cdp_rank(world) ? CDP_NO_COLOR : 0, 0, &r->group));
    if (ok && r->group) ok = run_on(r, "alone");
    cdp_group_destroy(r->group);
    return ok && worked(cdp_barrier(world));
}

int main(int argc, char **argv) {
    static run alone, all;
    model m = {.layers = 12, .width = 768, .heads = 12, .context = 32, .sequences = 1};
    uint64_t memory = 0, steps = 3;
    /* mapped memory of other ranks counts as addresses, too: it is read without */
    const cdp_tcp_desc tcp = {.alone_ok = true, .group = {.expose_bytes = UINT64_MAX}};
    cdp_group *world;
    if (argc > 1 && !strcmp(argv[1], "--help")) return usage(argv[0], 0);
    if (!read_arguments(argc, argv, &m, &memory, &steps)) return usage(argv[0], 2);
    const uint64_t limit = limit_memory(memory);
    if (!worked(cdp_init_from_env(&tcp, &world))) return 1;
    describe(&m);
    alone = (run){.model = &m, .seed = 1, .steps = steps, .batches = cdp_size(world)};
    all = alone;
    all.group = world;
    bool ok = try_alone(&alone, world) && run_on(&all, "all");
    m.values = NULL; /* of the shards */
    if (ok && cdp_rank(world) == 0) ok = verdict(&alone, &all, limit);
    model_free(&m);
    cdp_group_destroy(world);
    return ok && all.fits ? 0 : 1;
}
