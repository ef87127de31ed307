/*  gpt_model.h - a GPT of any size that predicts the next byte of a text, written out by hand

    27_gpt.c trains it. Nothing here calls cdp: this is what a program has before it is given
    several ranks, but for two things. A model comes in units (the tables, each block, the end), so
    that a rank may have some of them; and a block may be cut: part `part` of `parts` has some of
    the heads and of the hidden values, and what all parts add up is asked from `sum`.

    Layers, names and order of values are those of GPT-2, with two differences: a token is a byte,
    and lm_head has values of its own. Weights are [out, in], as those of torch.nn.Linear.

    Contents (search for ">>"): parameters, memory, layers, units.                              */
/* SPDX-License-Identifier: MIT-0 OR Unlicense */
#ifndef GPT_MODEL_INCLUDED
#define GPT_MODEL_INCLUDED

#include "text_model.h"

/* ---- >>parameters ---------------------------------------------------------------------------- */

enum {
    WTE, /* of the first unit */
    WPE,
    TABLES
};
enum {
    LN1, /* of a block; the bias follows what it belongs to */
    QKV = LN1 + 2,
    PROJ = QKV + 2,
    LN2 = PROJ + 2,
    UP = LN2 + 2,
    DOWN = UP + 2,
    PARTS = DOWN + 2
};
enum {
    LN_LAST, /* of the last unit */
    HEAD = LN_LAST + 2,
    ENDS
};

typedef struct gpt {
    uint64_t layers, width, heads, context;
    uint64_t part, parts;                           /* of each block, which this rank has */
    bool (*sum)(void *user, real *x, size_t count); /* over the parts; false: it failed */
    void *user;
} gpt;

/* A parameter as three dimensions, of which `cut` parts divide the second: q, k and v have their
   heads there, rows or columns of the other weights lie there. */
typedef struct gpt_param {
    char name[40];
    uint64_t outer, mid, inner; /* of the whole model */
    uint64_t shape[2];          /* the same in files */
    bool cut;
    uint64_t number; /* in the whole model */
    double width;    /* values begin uniform in +-width; 0: as zeros, below 0: as ones */
} gpt_param;

static uint64_t unit_count(const gpt *g) {
    return g->layers + 2;
}

static gpt_param gpt_param_of(const char *name, uint64_t mid, uint64_t inner, double width) {
    gpt_param p = {.outer = 1, .mid = mid, .inner = inner, .shape = {mid, inner}, .width = width};
    snprintf(p.name, sizeof p.name, "%s", name);
    return p;
}

/* The first unit, or the last one. Returns how many parameters it has. */
static uint32_t gpt_ends_of(const gpt *g, bool last, gpt_param *p) {
    const uint64_t w = g->width;
    const double width = .02 * sqrt(3.); /* a standard deviation of .02 */
    if (!last) {
        p[WTE] = gpt_param_of("wte.weight", VOCABULARY, w, width);
        p[WPE] = gpt_param_of("wpe.weight", g->context, w, width);
        return TABLES;
    }
    p[LN_LAST] = gpt_param_of("ln_f.weight", w, 1, -1);
    p[LN_LAST + 1] = gpt_param_of("ln_f.bias", w, 1, 0);
    p[HEAD] = gpt_param_of("lm_head.weight", VOCABULARY, w, width);
    return ENDS;
}

/* A weight [out, in] of which rows (q, k and v: of each third) or columns are cut. */
static gpt_param gpt_weight_of(
    const char *name, uint64_t thirds, uint64_t out, uint64_t in, bool columns, double width) {
    gpt_param p = gpt_param_of(name, out, in, width);
    if (columns) {
        p.outer = out;
        p.mid = in;
        p.inner = 1;
    }
    p.outer *= thirds;
    p.shape[0] *= thirds;
    p.cut = true;
    return p;
}

static uint32_t gpt_block_of(const gpt *g, uint64_t layer, gpt_param *p) {
    const uint64_t w = g->width;
    const double width = .02 * sqrt(3.), less = width / sqrt(2. * (double)g->layers);
    p[LN1] = gpt_param_of("ln_1.weight", w, 1, -1);
    p[LN1 + 1] = gpt_param_of("ln_1.bias", w, 1, 0);
    p[QKV] = gpt_weight_of("attn.c_attn.weight", 3, w, w, false, width);
    p[QKV + 1] = gpt_weight_of("attn.c_attn.bias", 3, w, 1, false, 0);
    p[PROJ] = gpt_weight_of("attn.c_proj.weight", 1, w, w, true, less);
    p[PROJ + 1] = gpt_param_of("attn.c_proj.bias", w, 1, 0);
    p[LN2] = gpt_param_of("ln_2.weight", w, 1, -1);
    p[LN2 + 1] = gpt_param_of("ln_2.bias", w, 1, 0);
    p[UP] = gpt_weight_of("mlp.c_fc.weight", 1, 4 * w, w, false, width);
    p[UP + 1] = gpt_weight_of("mlp.c_fc.bias", 1, 4 * w, 1, false, 0);
    p[DOWN] = gpt_weight_of("mlp.c_proj.weight", 1, w, 4 * w, true, less);
    p[DOWN + 1] = gpt_param_of("mlp.c_proj.bias", w, 1, 0);
    for (uint32_t i = 0; i < PARTS; ++i) {
        char name[sizeof p->name];
        snprintf(name, sizeof name, "h.%u.%.24s", (unsigned)layer, p[i].name);
        memcpy(p[i].name, name, sizeof name);
    }
    return PARTS;
}

/* The parameters of a unit, at most PARTS. Returns how many. */
static uint32_t gpt_unit_of(const gpt *g, uint64_t unit, gpt_param *p) {
    const uint32_t n =
        unit && unit <= g->layers ? gpt_block_of(g, unit - 1, p) : gpt_ends_of(g, unit != 0, p);
    for (uint32_t i = 0; i < n; ++i)
        p[i].number = unit * PARTS + i;
    return n;
}

/* Elements of it that a part has. */
static uint64_t gpt_mid(const gpt *g, const gpt_param *p) {
    return p->cut ? p->mid / g->parts : p->mid;
}
static uint64_t gpt_elements(const gpt *g, const gpt_param *p) {
    return p->outer * gpt_mid(g, p) * p->inner;
}

/* Of the largest unit. */
static uint64_t gpt_most_elements(const gpt *g) {
    uint64_t most = 0;
    for (uint64_t unit = 0; unit < unit_count(g); ++unit) {
        gpt_param p[PARTS];
        uint64_t all = 0;
        for (uint32_t i = gpt_unit_of(g, unit, p); i-- > 0;)
            all += gpt_elements(g, &p[i]);
        most = all > most ? all : most;
    }
    return most;
}

/* The first values of elements of this part. Each follows from its place in the whole model alone:
   however that is divided, it begins with the same values. */
static void gpt_fill(
    const gpt *g, const gpt_param *p, uint64_t seed, uint64_t first, uint64_t count, float *out) {
    const uint64_t mid = gpt_mid(g, p), start = p->cut ? g->part * mid : 0;
    for (uint64_t k = first; k < first + count; ++k) {
        const uint64_t row = k / p->inner, whole = row / mid * p->mid + start + row % mid;
        const double u = 2 * draw_unit(seed, p->number, whole * p->inner + k % p->inner) - 1;
        out[k - first] = p->width < 0 ? 1 : (float)(p->width * u);
    }
}

/* ---- >>memory -------------------------------------------------------------------------------- */

/* Values of a unit and, for its backward pass, gradients, which are added to. */
typedef struct gpt_unit {
    const real *value[PARTS];
    real *grad[PARTS];
} gpt_unit;

/* What forward of some blocks leaves for backward, for one micro-batch; and what all of them share
   (`scratch`). `inside`: the model as attention sees it, with the heads of this part. */
typedef struct gpt_memory {
    model inside; /* its layers: how many there are here; inside.last: what leaves the last one */
    uint8_t *in, *targets;
} gpt_memory;

static void gpt_reserve_block(const gpt *g, block_memory *b, uint64_t rows) {
    const uint64_t w = g->width, own = w / g->parts;
    b->in = need_reals(rows * w);
    b->norm1 = need_reals(rows * w);
    b->qkv = need_reals(rows * own * 3);
    b->mix = need_reals(rows * own);
    b->mid = need_reals(rows * w);
    b->norm2 = need_reals(rows * w);
    b->act = need_reals(rows * own * 4);
    b->slope = need_reals(rows * own * 4);
    b->prob = need_reals(rows * g->heads / g->parts * g->context);
    b->stat1 = need_reals(rows * 2);
    b->stat2 = need_reals(rows * 2);
}

/* For `blocks` of the blocks, and for what comes behind the last one if there is an `end`. */
static void gpt_reserve(
    const gpt *g, gpt_memory *m, uint64_t sequences, uint64_t blocks, bool end) {
    const uint64_t rows = sequences * g->context, w = g->width;
    model *in = &m->inside;
    *in = (model){.layers = blocks,
        .width = w / g->parts,
        .heads = g->heads / g->parts,
        .context = g->context,
        .sequences = sequences};
    in->blocks = (block_memory *)need(blocks, sizeof *in->blocks);
    for (uint64_t l = 0; l < blocks; ++l)
        gpt_reserve_block(g, &in->blocks[l], rows);
    in->last = need_reals(rows * w);
    in->norm = need_reals(end ? rows * w : 0);
    in->stat = need_reals(end ? rows * 2 : 0);
    in->logits = need_reals(end ? rows * VOCABULARY : 0);
    m->in = (uint8_t *)need(rows, 1);
    m->targets = (uint8_t *)need(rows, 1);
}

/* The same for what is used within a pass alone, by all micro-batches. */
static void gpt_reserve_scratch(const gpt *g, model *scratch, uint64_t sequences) {
    const uint64_t rows = sequences * g->context;
    *scratch = (model){.sequences = sequences};
    scratch->stream = need_reals(rows * g->width);
    scratch->narrow = need_reals(rows * g->width);
    scratch->wide = need_reals(rows * g->width / g->parts * 4);
    scratch->square = need_reals(g->context * g->context);
}

static void gpt_share(gpt_memory *m, const model *scratch) {
    m->inside.stream = scratch->stream;
    m->inside.narrow = scratch->narrow;
    m->inside.wide = scratch->wide;
    m->inside.square = scratch->square;
}

static void gpt_release(gpt_memory *m) {
    gpt_share(m, &(model){0});
    model_free(&m->inside);
    free(m->in);
    free(m->targets);
}

/* ---- >>layers -------------------------------------------------------------------------------- */

static void plus(real *to, const real *what, size_t count) {
    for (size_t i = 0; i < count; ++i)
        to[i] += what[i];
}

static void plus_rows(real *to, const real *row, size_t rows, size_t cols) {
    for (size_t r = 0; r < rows; ++r)
        plus(to + r * cols, row, cols);
}

static matrix values_of(const real *at, size_t rows, size_t cols) {
    return matrix_of((real *)(uintptr_t)at, rows, cols); /* which matmul only reads */
}

/* y[rows, out] = x[rows, in] weight[out, in], without the bias. */
static void linear(real *y, const real *x, const real *weight, size_t rows, size_t out, size_t in) {
    matmul(
        matrix_of(y, rows, out), values_of(x, rows, in), turned(values_of(weight, out, in)), false);
}

/* dx is written; gradients of parameter i of the unit, and of its bias, are added to. */
static void linear_backward(const gpt_unit *u, uint32_t i, real *dx, real *dy, const real *x,
    size_t rows, size_t out, size_t in) {
    const matrix d = matrix_of(dy, rows, out);
    matmul(matrix_of(u->grad[i], out, in), turned(d), values_of(x, rows, in), true);
    matmul(matrix_of(dx, rows, in), d, values_of(u->value[i], out, in), false);
}

static void bias_backward(real *grad, const real *dy, size_t rows, size_t out) {
    for (size_t r = 0; r < rows; ++r)
        plus(grad, dy + r * out, out);
}

/* ---- >>units --------------------------------------------------------------------------------- */

/* From b->in to `out`. */
static bool gpt_block(const gpt *g, const gpt_unit *u, gpt_memory *m, uint64_t layer, real *out) {
    block_memory *b = &m->inside.blocks[layer];
    const size_t rows = m->inside.sequences * g->context, w = g->width, own = w / g->parts;
    const real *const *v = u->value;
    layer_norm(b->norm1, b->stat1, b->in, v[LN1], v[LN1 + 1], rows, w);
    linear(b->qkv, b->norm1, v[QKV], rows, 3 * own, w);
    plus_rows(b->qkv, v[QKV + 1], rows, 3 * own);
    attention(&m->inside, b, m->inside.sequences);
    linear(b->mid, b->mix, v[PROJ], rows, w, own);
    if (!g->sum(g->user, b->mid, rows * w)) return false;
    plus_rows(b->mid, v[PROJ + 1], rows, w);
    plus(b->mid, b->in, rows * w);
    layer_norm(b->norm2, b->stat2, b->mid, v[LN2], v[LN2 + 1], rows, w);
    linear(b->act, b->norm2, v[UP], rows, 4 * own, w);
    plus_rows(b->act, v[UP + 1], rows, 4 * own);
    gelu(b->act, b->slope, rows * 4 * own);
    linear(out, b->act, v[DOWN], rows, w, 4 * own);
    if (!g->sum(g->user, out, rows * w)) return false;
    plus_rows(out, v[DOWN + 1], rows, w);
    plus(out, b->mid, rows * w);
    return true;
}

/* `stream` has the gradient of what the block gave, and then of what it got. */
static bool gpt_block_backward(
    const gpt *g, const gpt_unit *u, gpt_memory *m, uint64_t layer, real *stream) {
    block_memory *b = &m->inside.blocks[layer];
    const size_t rows = m->inside.sequences * g->context, w = g->width, own = w / g->parts;
    real *const narrow = m->inside.narrow, *const wide = m->inside.wide;
    bias_backward(u->grad[DOWN + 1], stream, rows, w);
    linear_backward(u, DOWN, wide, stream, b->act, rows, w, 4 * own);
    for (size_t i = 0; i < rows * 4 * own; ++i)
        wide[i] *= b->slope[i];
    bias_backward(u->grad[UP + 1], wide, rows, 4 * own);
    linear_backward(u, UP, narrow, wide, b->norm2, rows, 4 * own, w);
    if (!g->sum(g->user, narrow, rows * w)) return false;
    layer_norm_backward(
        stream, u->grad[LN2], u->grad[LN2 + 1], narrow, b->mid, b->stat2, u->value[LN2], rows, w);
    bias_backward(u->grad[PROJ + 1], stream, rows, w);
    linear_backward(u, PROJ, narrow, stream, b->mix, rows, w, own);
    attention_backward(&m->inside, b, wide, narrow, m->inside.sequences);
    bias_backward(u->grad[QKV + 1], wide, rows, 3 * own);
    linear_backward(u, QKV, narrow, wide, b->norm1, rows, 3 * own, w);
    if (!g->sum(g->user, narrow, rows * w)) return false;
    layer_norm_backward(
        stream, u->grad[LN1], u->grad[LN1 + 1], narrow, b->in, b->stat1, u->value[LN1], rows, w);
    return true;
}

/* The first unit: bytes become rows of the tables. */
static void gpt_tables(const gpt *g, const gpt_unit *u, const gpt_memory *m, real *out) {
    const size_t rows = m->inside.sequences * g->context, w = g->width;
    for (size_t r = 0; r < rows; ++r) {
        memcpy(out + r * w, u->value[WTE] + m->in[r] * w, w * sizeof *out);
        plus(out + r * w, u->value[WPE] + r % g->context * w, w);
    }
}

static void gpt_tables_backward(
    const gpt *g, const gpt_unit *u, const gpt_memory *m, const real *stream) {
    const size_t rows = m->inside.sequences * g->context, w = g->width;
    for (size_t r = 0; r < rows; ++r) {
        plus(u->grad[WTE] + m->in[r] * w, stream + r * w, w);
        plus(u->grad[WPE] + r % g->context * w, stream + r * w, w);
    }
}

/* The last unit, from inside.last. Returns the sum of losses in bits; the logits become their own
   gradient, times `scale`. */
static double gpt_end(const gpt *g, const gpt_unit *u, gpt_memory *m, real scale) {
    model *in = &m->inside;
    const size_t rows = in->sequences * g->context;
    layer_norm(
        in->norm, in->stat, in->last, u->value[LN_LAST], u->value[LN_LAST + 1], rows, g->width);
    linear(in->logits, in->norm, u->value[HEAD], rows, VOCABULARY, g->width);
    return model_loss(in, m->targets, in->sequences, scale);
}

static void gpt_end_backward(const gpt *g, const gpt_unit *u, gpt_memory *m, real *stream) {
    model *in = &m->inside;
    const size_t rows = in->sequences * g->context;
    linear_backward(u, HEAD, in->narrow, in->logits, in->norm, rows, VOCABULARY, g->width);
    memset(stream, 0, rows * g->width * sizeof *stream);
    layer_norm_backward(stream, u->grad[LN_LAST], u->grad[LN_LAST + 1], in->narrow, in->last,
        in->stat, u->value[LN_LAST], rows, g->width);
}

#endif /* GPT_MODEL_INCLUDED */
