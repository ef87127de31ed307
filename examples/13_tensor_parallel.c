/*  13_tensor_parallel.c - a transformer whose layers are cut over ranks (tensor parallel), on
    batches that are cut over ranks, too (data parallel)

    You learn: tensor-parallel layers of cdp_dtensor.h on a mesh [dp, tp].

        gcc -O2 examples/13_tensor_parallel.c -o tensor_parallel -pthread -lm
        cdprun -n 4 ./tensor_parallel            2 x 2 ranks: the mesh is [dp, tp]
        ./tensor_parallel                        one process, the same model, the same batches
        cdprun -n 4 ./tensor_parallel --tp 4 --steps 60 text.txt

    The model is that of text_model.h: token and position embeddings, blocks of layer norm,
    causal attention, layer norm and a perceptron with GELU, a last norm and a score per byte.

      token table     rows are cut: each rank looks up its own, a sum puts them together
      q, k, v, up     column parallel: each rank computes some heads, some of the hidden values
      out, down       row parallel: sums of all ranks, one allreduce each
      head            column parallel: scores stay cut, and so does the cross entropy
      norms           every rank has them whole, and the same

    The mesh says who does what: layers live on its dimension "tp", and cdp_ddp averages gradients
    over the group of its dimension "dp". Afterwards every rank trains the whole model alone, and
    the losses are compared. What no rank adds up differently has the same bits: everything up to
    the first row-parallel product. The last line is the verdict. */
/* SPDX-License-Identifier: MIT-0 OR Unlicense */
#define CDP_IMPLEMENTATION
#include "../cdp_tcp.h"
#include "../cdp_dtensor.h"

#include "help.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VOCABULARY 256u
#define CONTEXT 16u
#define WIDTH 32u
#define HEADS 4u
#define DEPTH (WIDTH / HEADS)
#define BATCH 8u /* sequences of a step, over all ranks */
#define MAX_LAYERS 8u
#define SEED 7u

static uint32_t layers = 2, steps = 30, tp_ranks;

/* ---- parameters: tensors that lie on the dimension "tp" of the mesh ---- */

enum {
    NORM1_GAIN,
    NORM1_BIAS,
    QKV,
    OUT,
    NORM2_GAIN,
    NORM2_BIAS,
    UP,
    DOWN,
    BLOCK_PARAMS
};
enum {
    TOKEN,
    POSITION,
    LAST_GAIN,
    LAST_BIAS,
    HEAD,
    OTHER_PARAMS
};
#define MAX_PARAMS (OTHER_PARAMS + BLOCK_PARAMS * MAX_LAYERS)

typedef struct parameter {
    char name[16];
    cdp_dtensor value;
    uint64_t count; /* of this rank */
    float *grad, *first, *second;
} parameter;

/* What a block leaves for its backward pass. Rows are bytes of sequences. */
typedef struct block {
    cdp_tp *qkv, *out, *up, *down;
    float *in, *norm1, *qkv_of, *mix, *prob, *mid, *norm2, *hidden, *slope;
    float stat1[2 * BATCH * CONTEXT], stat2[2 * BATCH * CONTEXT];
} block;

typedef struct model {
    cdp_mesh *mesh, *tp; /* [dp, tp] and this rank's row of tp */
    cdp_ddp *ddp;
    uint64_t sequences, rows, heads, hidden; /* of this rank */
    parameter params[MAX_PARAMS];
    uint32_t count;
    block blocks[MAX_LAYERS];
    cdp_tp *token, *head;
    float *stream, *norm, *scores, *narrow, *wide, *losses, stat[2 * BATCH * CONTEXT];
    int32_t ids[BATCH * CONTEXT], targets[BATCH * CONTEXT];
} model;

static void worked(cdp_status status) {
    if (status == CDP_OK) return;
    (void)cdp_error_record_from_env(NULL);
    cdp_print_error(stderr);
    exit(1);
}

static float *floats(uint64_t n) {
    float *got = (float *)calloc(n ? n : 1, sizeof *got);
    if (!got) exit(1);
    return got;
}

static uint32_t in_block(uint32_t layer, uint32_t what) {
    return OTHER_PARAMS + layer * BLOCK_PARAMS + what;
}
static float *value_of(const model *m, uint32_t i) {
    return (float *)m->params[i].value.data;
}
static float *grad_of(const model *m, uint32_t i) {
    return m->params[i].grad;
}

/* A parameter with this layout. Its first values depend on the index in the whole tensor alone:
   they are the same for every mesh. `size` 0: gains, all ones; below 0: biases, zeros. */
static void add_parameter(
    model *m, uint32_t i, const char *name, const cdp_layout *layout, double size) {
    parameter *p = &m->params[i];
    cdp_fill fill = {.kind = CDP_FILL_UNIFORM, .a = -size, .b = size, .seed = SEED, .stream = i};
    if (size == 0) fill = (cdp_fill){.kind = CDP_FILL_VALUE, .a = 1};
    if (size < 0) fill = (cdp_fill){.kind = CDP_FILL_ZERO};
    snprintf(p->name, sizeof p->name, "%s", name);
    worked(cdp_dtensor_create(layout, NULL, &p->value));
    worked(cdp_dtensor_fill(&p->value, &fill));
    p->count = cdp_layout_box(layout, NULL, NULL);
    p->first = floats(p->count);
    p->second = floats(p->count);
    if (i >= m->count) m->count = i + 1;
}

static void add_vector(model *m, uint32_t i, const char *name, uint64_t rows, double size) {
    cdp_layout l = {.mesh = m->tp, .ndim = 2, .shape = {rows, WIDTH}};
    add_parameter(m, i, name, &l, size);
}

/* A layer, and its parameter. */
static cdp_tp *add_layer(model *m, uint32_t i, const char *name, cdp_tp_style style, bool table,
    uint64_t in, uint64_t out, uint64_t head, double size) {
    cdp_tp *tp;
    const cdp_tp_desc d = {.mesh = m->tp,
        .style = style,
        .embedding = table,
        .rows = m->rows,
        .in_features = in,
        .out_features = out,
        .head = head};
    worked(cdp_tp_create(&d, &tp));
    add_parameter(m, i, name, &cdp_tp_layouts_of(tp)->weight, size);
    return tp;
}

static void add_block(model *m, uint32_t l) {
    block *b = &m->blocks[l];
    const double keep = sqrt(3.0 / WIDTH), less = keep * 0.5 / sqrt(2.0 * layers);
    const uint64_t own = m->heads * DEPTH;
    char name[16];
    add_vector(m, in_block(l, NORM1_GAIN), "norm1.gain", 1, 0);
    add_vector(m, in_block(l, NORM1_BIAS), "norm1.bias", 1, -1);
    add_vector(m, in_block(l, NORM2_GAIN), "norm2.gain", 1, 0);
    add_vector(m, in_block(l, NORM2_BIAS), "norm2.bias", 1, -1);
    snprintf(name, sizeof name, "%u.qkv", l);
    /* q, k and v of a head are neighbours, so that a cut between heads cuts none of them */
    b->qkv = add_layer(
        m, in_block(l, QKV), name, CDP_TP_COLUMN, false, WIDTH, 3 * WIDTH, 3 * DEPTH, keep);
    b->out = add_layer(m, in_block(l, OUT), "out", CDP_TP_ROW, false, WIDTH, WIDTH, DEPTH, less);
    b->up = add_layer(m, in_block(l, UP), "up", CDP_TP_COLUMN, false, WIDTH, 4 * WIDTH, 1, keep);
    b->down =
        add_layer(m, in_block(l, DOWN), "down", CDP_TP_ROW, false, 4 * WIDTH, WIDTH, 1, less / 2);
    b->in = floats(m->rows * WIDTH);
    b->norm1 = floats(m->rows * WIDTH);
    b->qkv_of = floats(m->rows * 3 * own);
    b->mix = floats(m->rows * own);
    b->prob = floats(m->rows * m->heads * CONTEXT);
    b->mid = floats(m->rows * WIDTH);
    b->norm2 = floats(m->rows * WIDTH);
    b->hidden = floats(m->rows * m->hidden);
    b->slope = floats(m->rows * m->hidden);
}

/* Gradients lie in the buckets of cdp_ddp, which averages them over the dimension "dp". */
static void join_data_parallel(model *m) {
    static cdp_param params[MAX_PARAMS];
    for (uint32_t i = 0; i < m->count; ++i)
        params[i] = (cdp_param){
            .name = m->params[i].name, .data = value_of(m, i), .count = m->params[i].count};
    const cdp_ddp_desc desc = {
        .group = cdp_mesh_group(m->mesh, 0), .params = params, .param_count = m->count};
    worked(cdp_ddp_create(&desc, &m->ddp));
    for (uint32_t i = 0; i < m->count; ++i)
        m->params[i].grad = (float *)cdp_ddp_grad(m->ddp, i);
}

static void model_open(model *m, cdp_group *group, uint32_t tp) {
    cdp_mesh_desc d = {.group = group, .ndim = 2, .shape = {0, tp}, .names = {"dp", "tp"}};
    memset(m, 0, sizeof *m);
    worked(cdp_mesh_create(&d, &m->mesh));
    worked(cdp_mesh_sub(m->mesh, "tp", &m->tp));
    m->sequences = BATCH / cdp_mesh_size(m->mesh, 0);
    m->rows = m->sequences * CONTEXT;
    m->token = add_layer(m, TOKEN, "token", CDP_TP_ROW, true, VOCABULARY, WIDTH, 1, 0.9);
    m->head = add_layer(m, HEAD, "head", CDP_TP_COLUMN, false, WIDTH, VOCABULARY, 1, 0.03);
    add_vector(m, POSITION, "position", CONTEXT, 0.18);
    add_vector(m, LAST_GAIN, "norm.gain", 1, 0);
    add_vector(m, LAST_BIAS, "norm.bias", 1, -1);
    m->heads = HEADS / tp;
    m->hidden = 4 * WIDTH / tp;
    for (uint32_t l = 0; l < layers; ++l)
        add_block(m, l);
    m->stream = floats(m->rows * WIDTH);
    m->norm = floats(m->rows * WIDTH);
    m->scores = floats(m->rows * VOCABULARY);
    m->narrow = floats(m->rows * WIDTH);
    m->wide = floats(m->rows * 4 * WIDTH);
    m->losses = floats(m->rows);
    join_data_parallel(m);
}

static void model_close(model *m) {
    cdp_ddp_destroy(m->ddp);
    for (uint32_t i = 0; i < m->count; ++i) {
        cdp_dtensor_free(&m->params[i].value);
        free(m->params[i].first);
        free(m->params[i].second);
    }
    for (uint32_t l = 0; l < layers; ++l) {
        block *b = &m->blocks[l];
        float *const all[] = {
            b->in, b->norm1, b->qkv_of, b->mix, b->prob, b->mid, b->norm2, b->hidden, b->slope};
        for (size_t i = 0; i < sizeof all / sizeof *all; ++i)
            free(all[i]);
        cdp_tp_destroy(b->qkv);
        cdp_tp_destroy(b->out);
        cdp_tp_destroy(b->up);
        cdp_tp_destroy(b->down);
    }
    float *const all[] = {m->stream, m->norm, m->scores, m->narrow, m->wide, m->losses};
    for (size_t i = 0; i < sizeof all / sizeof *all; ++i)
        free(all[i]);
    cdp_tp_destroy(m->token);
    cdp_tp_destroy(m->head);
    cdp_mesh_destroy(m->tp);
    cdp_mesh_destroy(m->mesh);
}

/* ---- what every rank computes by itself ---- */

static void norm_forward(
    float *out, float *stat, const float *in, const float *gain, const float *bias, uint64_t rows) {
    for (uint64_t r = 0; r < rows; ++r, in += WIDTH, out += WIDTH, stat += 2) {
        float mean = 0, square = 0;
        for (uint32_t j = 0; j < WIDTH; ++j)
            mean += in[j] / WIDTH;
        for (uint32_t j = 0; j < WIDTH; ++j)
            square += (in[j] - mean) * (in[j] - mean) / WIDTH;
        stat[0] = mean;
        stat[1] = 1 / sqrtf(square + 1e-5f);
        for (uint32_t j = 0; j < WIDTH; ++j)
            out[j] = (in[j] - mean) * stat[1] * gain[j] + bias[j];
    }
}

/* Adds to din and to the gradients of gain and bias. */
static void norm_backward(float *din, float *dgain, float *dbias, const float *dout,
    const float *in, const float *stat, const float *gain, uint64_t rows) {
    for (uint64_t r = 0; r < rows; ++r) {
        const float *d = dout + r * WIDTH, *x = in + r * WIDTH, *s = stat + 2 * r;
        float sum = 0, dot = 0;
        for (uint32_t j = 0; j < WIDTH; ++j) {
            const float unit = (x[j] - s[0]) * s[1];
            sum += d[j] * gain[j] / WIDTH;
            dot += d[j] * gain[j] * unit / WIDTH;
            dgain[j] += d[j] * unit;
            dbias[j] += d[j];
        }
        for (uint32_t j = 0; j < WIDTH; ++j)
            din[r * WIDTH + j] += s[1] * (d[j] * gain[j] - sum - (x[j] - s[0]) * s[1] * dot);
    }
}

/* Values, and in `slope` their derivatives. */
static void gelu(float *x, float *slope, uint64_t n) {
    for (uint64_t i = 0; i < n; ++i) {
        const float v = x[i], c = 1.5957691216f;
        const float s = 1 / (1 + expf(-c * (v + 0.044715f * v * v * v)));
        slope[i] = s + v * s * (1 - s) * c * (1 + 3 * 0.044715f * v * v);
        x[i] = v * s;
    }
}

/* Where q (0), k (1) or v (2) of a head begins, in row `row`. */
static const float *part_of(
    const model *m, const float *qkv, uint64_t row, uint64_t head, uint32_t part) {
    return qkv + (row * m->heads + head) * 3 * DEPTH + part * DEPTH;
}

/* The heads of this rank. */
static void attention(const model *m, block *b) {
    for (uint64_t r = 0; r < m->rows; ++r)
        for (uint64_t h = 0; h < m->heads; ++h) {
            const uint64_t first = r / CONTEXT * CONTEXT;
            float *p = b->prob + (r * m->heads + h) * CONTEXT, sum = 0, most = -1e30f;
            float *out = b->mix + (r * m->heads + h) * DEPTH;
            for (uint64_t k = first; k <= r; ++k) {
                float dot = 0;
                for (uint32_t d = 0; d < DEPTH; ++d)
                    dot += part_of(m, b->qkv_of, r, h, 0)[d] * part_of(m, b->qkv_of, k, h, 1)[d];
                p[k - first] = dot / sqrtf(DEPTH);
                most = fmaxf(most, p[k - first]);
            }
            for (uint64_t k = first; k <= r; ++k)
                sum += p[k - first] = expf(p[k - first] - most);
            memset(out, 0, DEPTH * sizeof *out);
            for (uint64_t k = first; k <= r; ++k) {
                p[k - first] /= sum;
                for (uint32_t d = 0; d < DEPTH; ++d)
                    out[d] += p[k - first] * part_of(m, b->qkv_of, k, h, 2)[d];
            }
        }
}

static void attention_backward(const model *m, const block *b, const float *dmix, float *dqkv) {
    memset(dqkv, 0, m->rows * m->heads * 3 * DEPTH * sizeof *dqkv);
    for (uint64_t r = 0; r < m->rows; ++r)
        for (uint64_t h = 0; h < m->heads; ++h) {
            const uint64_t first = r / CONTEXT * CONTEXT;
            const float *p = b->prob + (r * m->heads + h) * CONTEXT;
            const float *dout = dmix + (r * m->heads + h) * DEPTH;
            float dp[CONTEXT], dot = 0;
            for (uint64_t k = first; k <= r; ++k) {
                dp[k - first] = 0;
                for (uint32_t d = 0; d < DEPTH; ++d)
                    dp[k - first] += dout[d] * part_of(m, b->qkv_of, k, h, 2)[d];
                dot += dp[k - first] * p[k - first];
            }
            for (uint64_t k = first; k <= r; ++k) {
                const float ds = p[k - first] * (dp[k - first] - dot) / sqrtf(DEPTH);
                float *dq = (float *)part_of(m, dqkv, r, h, 0);
                float *dk = (float *)part_of(m, dqkv, k, h, 1);
                float *dv = (float *)part_of(m, dqkv, k, h, 2);
                for (uint32_t d = 0; d < DEPTH; ++d) {
                    dq[d] += ds * part_of(m, b->qkv_of, k, h, 1)[d];
                    dk[d] += ds * part_of(m, b->qkv_of, r, h, 0)[d];
                    dv[d] += p[k - first] * dout[d];
                }
            }
        }
}

/* ---- the model ---- */

static void plus(float *to, const float *from, uint64_t n) {
    for (uint64_t i = 0; i < n; ++i)
        to[i] += from[i];
}

/* out = in + what the block adds; messages: an allreduce behind `out` and one behind `down`. */
static void block_forward(model *m, uint32_t l, float *out) {
    block *b = &m->blocks[l];
    const uint64_t n = m->rows * WIDTH;
    norm_forward(b->norm1, b->stat1, b->in, value_of(m, in_block(l, NORM1_GAIN)),
        value_of(m, in_block(l, NORM1_BIAS)), m->rows);
    worked(cdp_tp_forward(b->qkv, b->norm1, value_of(m, in_block(l, QKV)), NULL, b->qkv_of));
    attention(m, b);
    worked(cdp_tp_forward(b->out, b->mix, value_of(m, in_block(l, OUT)), NULL, b->mid));
    plus(b->mid, b->in, n);
    norm_forward(b->norm2, b->stat2, b->mid, value_of(m, in_block(l, NORM2_GAIN)),
        value_of(m, in_block(l, NORM2_BIAS)), m->rows);
    worked(cdp_tp_forward(b->up, b->norm2, value_of(m, in_block(l, UP)), NULL, b->hidden));
    gelu(b->hidden, b->slope, m->rows * m->hidden);
    worked(cdp_tp_forward(b->down, b->hidden, value_of(m, in_block(l, DOWN)), NULL, out));
    plus(out, b->mid, n);
}

/* m->stream: the gradient of the block's result, then of its input; messages: an allreduce in
   front of `up` and one in front of `qkv`. */
static void block_backward(model *m, uint32_t l) {
    block *b = &m->blocks[l];
    const uint32_t p = in_block(l, 0);
    worked(cdp_tp_backward(
        b->down, b->hidden, value_of(m, p + DOWN), m->stream, m->wide, grad_of(m, p + DOWN), NULL));
    for (uint64_t i = 0; i < m->rows * m->hidden; ++i)
        m->wide[i] *= b->slope[i];
    worked(cdp_tp_backward(
        b->up, b->norm2, value_of(m, p + UP), m->wide, m->narrow, grad_of(m, p + UP), NULL));
    norm_backward(m->stream, grad_of(m, p + NORM2_GAIN), grad_of(m, p + NORM2_BIAS), m->narrow,
        b->mid, b->stat2, value_of(m, p + NORM2_GAIN), m->rows);
    worked(cdp_tp_backward(
        b->out, b->mix, value_of(m, p + OUT), m->stream, m->narrow, grad_of(m, p + OUT), NULL));
    attention_backward(m, b, m->narrow, m->wide);
    worked(cdp_tp_backward(
        b->qkv, b->norm1, value_of(m, p + QKV), m->wide, m->narrow, grad_of(m, p + QKV), NULL));
    norm_backward(m->stream, grad_of(m, p + NORM1_GAIN), grad_of(m, p + NORM1_BIAS), m->narrow,
        b->in, b->stat1, value_of(m, p + NORM1_GAIN), m->rows);
    for (uint32_t i = 0; i < BLOCK_PARAMS; ++i)
        worked(cdp_ddp_ready(m->ddp, p + i));
}

/* The mean loss of this rank's sequences, in bits per byte. */
static double model_forward(model *m) {
    cdp_layout scores = cdp_tp_layouts_of(m->head)->y;
    double sum = 0;
    float *x = m->blocks[0].in;
    worked(cdp_count_begin(m->mesh, "embedding"));
    worked(cdp_tp_forward(m->token, m->ids, value_of(m, TOKEN), NULL, x));
    cdp_count_end(m->mesh);
    for (uint64_t r = 0; r < m->rows; ++r)
        plus(x + r * WIDTH, value_of(m, POSITION) + r % CONTEXT * WIDTH, WIDTH);
    worked(cdp_count_begin(m->mesh, "blocks"));
    for (uint32_t l = 0; l < layers; ++l)
        block_forward(m, l, l + 1 < layers ? m->blocks[l + 1].in : m->stream);
    cdp_count_end(m->mesh);
    norm_forward(
        m->norm, m->stat, m->stream, value_of(m, LAST_GAIN), value_of(m, LAST_BIAS), m->rows);
    worked(cdp_count_begin(m->mesh, "head"));
    worked(cdp_tp_forward(m->head, m->norm, value_of(m, HEAD), NULL, m->scores));
    worked(cdp_cross_entropy(
        &scores, m->scores, m->targets, m->losses, m->scores, 1.0 / (double)m->rows));
    cdp_count_end(m->mesh);
    for (uint64_t r = 0; r < m->rows; ++r)
        sum += (double)m->losses[r];
    return sum / (double)m->rows / log(2.0);
}

static void model_backward(model *m) {
    float *last = m->wide; /* a copy of what the last norm saw */
    memcpy(last, m->stream, m->rows * WIDTH * sizeof *last);
    memset(m->stream, 0, m->rows * WIDTH * sizeof *last);
    worked(cdp_ddp_backward_begin(m->ddp));
    worked(cdp_count_begin(m->mesh, "head"));
    worked(cdp_tp_backward(
        m->head, m->norm, value_of(m, HEAD), m->scores, m->narrow, grad_of(m, HEAD), NULL));
    cdp_count_end(m->mesh);
    norm_backward(m->stream, grad_of(m, LAST_GAIN), grad_of(m, LAST_BIAS), m->narrow, last, m->stat,
        value_of(m, LAST_GAIN), m->rows);
    worked(cdp_count_begin(m->mesh, "blocks"));
    for (uint32_t l = layers; l-- > 0;)
        block_backward(m, l);
    cdp_count_end(m->mesh);
    for (uint64_t r = 0; r < m->rows; ++r)
        plus(grad_of(m, POSITION) + r % CONTEXT * WIDTH, m->stream + r * WIDTH, WIDTH);
    worked(cdp_count_begin(m->mesh, "embedding"));
    worked(cdp_tp_backward(
        m->token, m->ids, value_of(m, TOKEN), m->stream, NULL, grad_of(m, TOKEN), NULL));
    cdp_count_end(m->mesh);
    for (uint32_t i = 0; i < OTHER_PARAMS; ++i)
        worked(cdp_ddp_ready(m->ddp, i));
    worked(cdp_ddp_backward_end(m->ddp));
}

static void adam(model *m, uint32_t step) {
    const float fix1 = 1 / (1 - powf(0.9f, (float)step + 1));
    const float fix2 = 1 / (1 - powf(0.99f, (float)step + 1));
    for (uint32_t i = 0; i < m->count; ++i) {
        parameter *p = &m->params[i];
        float *value = value_of(m, i);
        for (uint64_t k = 0; k < p->count; ++k) {
            p->first[k] = 0.9f * p->first[k] + 0.1f * p->grad[k];
            p->second[k] = 0.99f * p->second[k] + 0.01f * p->grad[k] * p->grad[k];
            value[k] -= 0.003f * p->first[k] * fix1 / (sqrtf(p->second[k] * fix2) + 1e-8f);
        }
    }
}

/* ---- training, and the comparison ---- */

static uint8_t text[1 << 20];
static uint64_t text_bytes;

static void read_text(const char *path) {
    static const char *const words[8] = {"one rank ", "holds ", "some columns, ", "the next ",
        "the rest; ", "sums ", "meet, ", "\n"};
    FILE *file = path ? fopen(path, "rb") : NULL;
    if (file) text_bytes = fread(text, 1, sizeof text, file);
    if (file) fclose(file);
    for (uint32_t i = 0; text_bytes < 4000; ++i) { /* no text: words in an order with some rule */
        const char *word = words[(i * i / 3 + i / 8) % 8];
        memcpy(text + text_bytes, word, strlen(word));
        text_bytes += strlen(word);
    }
}

/* Which sequences a step uses depends on the step alone; each dp rank takes its part. */
static void draw_batch(model *m, uint32_t step) {
    const uint64_t first = cdp_mesh_coord(m->mesh, 0) * m->sequences;
    for (uint64_t s = 0; s < m->sequences; ++s) {
        const uint64_t mixed = (step * BATCH + first + s + 1) * 0x9e3779b97f4a7c15u;
        const uint8_t *from = text + (mixed >> 20) % (text_bytes - CONTEXT - 1);
        for (uint32_t i = 0; i < CONTEXT; ++i) {
            m->ids[s * CONTEXT + i] = from[i];
            m->targets[s * CONTEXT + i] = from[i + 1];
        }
    }
}

/* One step; returns the mean loss of the whole batch. */
static double train_step(model *m, uint32_t step) {
    draw_batch(m, step);
    cdp_ddp_zero_grad(m->ddp);
    double loss = model_forward(m);
    model_backward(m);
    adam(m, step);
    cdp_group *dp = cdp_mesh_group(m->mesh, 0);
    worked(cdp_allreduce(dp, NULL, &loss, 1, CDP_DTYPE_F64, CDP_REDUCE_SUM));
    return loss / cdp_size(dp);
}

/* The first block up to the first sum over ranks, beside the same rows and heads of one process. */
static bool first_bits_equal(const model *m, const model *alone) {
    const uint64_t row = cdp_mesh_coord(m->mesh, 0) * m->rows;
    const uint64_t head = cdp_mesh_coord(m->mesh, 1) * m->heads;
    const block *a = &m->blocks[0], *b = &alone->blocks[0];
    const size_t wide = WIDTH * sizeof(float), deep = DEPTH * sizeof(float);
    bool equal = memcmp(a->in, b->in + row * WIDTH, m->rows * wide) == 0
        && memcmp(a->norm1, b->norm1 + row * WIDTH, m->rows * wide) == 0;
    for (uint64_t r = 0; r < m->rows; ++r) {
        const float *qkv = b->qkv_of + ((row + r) * HEADS + head) * 3 * DEPTH;
        const float *mix = b->mix + ((row + r) * HEADS + head) * DEPTH;
        equal = equal && memcmp(a->qkv_of + r * m->heads * 3 * DEPTH, qkv, m->heads * 3 * deep) == 0
            && memcmp(a->mix + r * m->heads * DEPTH, mix, m->heads * deep) == 0;
    }
    return equal;
}

/* Every parameter is the same, bit for bit, on all ranks that hold the same piece of it. */
static bool replicas_equal(model *m) {
    bool equal = true;
    for (uint32_t i = 0; i < m->count; ++i) {
        cdp_dtensor t = m->params[i].value;
        t.owned = false;
        t.layout.place[1] = t.layout.place[0];
        t.layout.place[0] = (cdp_place){.kind = CDP_PLACE_REPLICATE};
        t.layout.mesh = m->mesh;
        if (cdp_dtensor_check(&t, false) == CDP_OK) continue;
        cdp_print_error(stderr);
        equal = false;
    }
    return equal;
}

/* One allreduce behind the table, two per block; backward one in front of the head, two per
   block; the loss is one allgather. */
static bool counts_right(const model *m) {
    const uint64_t some = cdp_mesh_size(m->tp, 0) > 1;
    const cdp_comm_count f = cdp_counts(m->mesh, NULL, false), b = cdp_counts(m->mesh, NULL, true);
    return f.calls[CDP_COLL_ALLREDUCE] == some * (1 + 2 * layers)
        && b.calls[CDP_COLL_ALLREDUCE] == some * (1 + 2 * layers)
        && f.calls[CDP_COLL_ALLGATHER] == some && b.calls[CDP_COLL_ALLGATHER] == 0;
}

static bool verdict(bool good, const char *what, bool tell) {
    if (tell) printf("%s  %s\n", good ? "PASS" : "FAIL", what);
    return good;
}

static bool train(cdp_group *world, cdp_group *self) {
    static model m, alone;
    static char table[4000];
    const bool tell = cdp_rank(world) == 0;
    double loss = 0, first = 0, most = 0;
    bool bits = false, counts = false;
    model_open(&m, world, tp_ranks);
    model_open(&alone, self, 1);
    for (uint32_t step = 0; step < steps; ++step) {
        loss = train_step(&m, step);
        const double want = train_step(&alone, step), off = fabs(loss - want);
        if (step == 0) {
            first = loss;
            bits = first_bits_equal(&m, &alone);
            counts = counts_right(&m);
            (void)cdp_counts_draw(m.mesh, CDP_DRAW_TEXT, table, sizeof table);
        }
        most = fmax(most, off);
        if (tell && (step % 10 == 0 || step + 1 == steps))
            printf("step %3u: %.6f bits per byte; one process %.6f\n", step, loss, want);
    }
    if (tell) printf("\nmessages of the first step, rank 0:\n%s\n", table);
    uint32_t good = verdict(most <= 1e-4, "losses within 1e-4 of one process", tell);
    if (tell) printf("      the largest difference was %.2e\n", most);
    good += verdict(bits, "equal bits up to the first sum over ranks", tell);
    good += verdict(replicas_equal(&m), "equal bits of all replicas after training", tell);
    good += verdict(counts, "one sum for each pair of layers, forward and backward", tell);
    good += verdict(steps < 10 || loss < first - 0.5, "the loss fell", tell);
    model_close(&m);
    model_close(&alone);
    worked(cdp_allreduce(world, NULL, &good, 1, CDP_DTYPE_U32, CDP_REDUCE_MIN));
    if (tell) printf("%s\n", good == 5 ? "all checks passed" : "SOME CHECKS FAILED");
    return good == 5;
}

int main(int argc, char **argv) {
    if (help(argc, argv,
            "13_tensor_parallel: a transformer whose layers are cut over ranks, checked beside one "
            "process.\n"
            "usage: [cdprun -n 4] ./tensor_parallel [--steps N] [--layers N] [TEXT]"))
        return 0;
    cdp_group *world, *self;
    const char *path = NULL;
    for (int i = 1; i < argc; ++i) {
        if (strcmp(argv[i], "--steps") == 0 && i + 1 < argc)
            steps = (uint32_t)atoi(argv[++i]);
        else if (strcmp(argv[i], "--layers") == 0 && i + 1 < argc)
            layers = (uint32_t)atoi(argv[++i]);
        else if (strcmp(argv[i], "--tp") == 0 && i + 1 < argc)
            tp_ranks = (uint32_t)atoi(argv[++i]);
        else
            path = argv[i];
    }
    worked(cdp_init_from_env(&(cdp_tcp_desc){.alone_ok = true}, &world));
    const uint32_t n = cdp_size(world), me = cdp_rank(world);
    if (!tp_ranks) tp_ranks = n % 2 ? 1 : 2;
    if (layers < 1 || layers > MAX_LAYERS || n % tp_ranks || HEADS % tp_ranks
        || BATCH % (n / tp_ranks)) {
        fprintf(stderr,
            "tensor_parallel: 1 to 8 layers; tp must divide %u ranks and 4 heads, and "
            "the rest of the ranks 8 sequences\n",
            n);
        return 2;
    }
    read_text(path);
    worked(cdp_group_new(world, &me, 1, &self));
    const bool good = train(world, self);
    cdp_group_destroy(self);
    cdp_group_destroy(world);
    return good ? 0 : 1;
}
