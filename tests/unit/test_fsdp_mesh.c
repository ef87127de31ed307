/* Sharded training on a mesh: a model that tensor parallelism has cut is cut again over the data
   dimension, and copied over a third one; the numbers of one process, bit for bit. */
#define CDP_IMPLEMENTATION
#include "cdp.h"
#include "cdp_dtensor.h"
#include "cdp_fsdp.h"
#include "ranks.h"
#include <math.h>

/* y = W2 relu(W1 x) + b. Ranks of the tensor dimension have rows of W1, the same columns of W2, and
   all of b. */
enum {
    IN = 4,
    HIDDEN = 7,
    OUT = 3,
    STEPS = 3,
    W1 = 0,
    W2 = 1,
    BIAS = 2
};

typedef struct net {
    uint32_t from, hidden; /* which part of HIDDEN */
    float w1[HIDDEN * IN], w2[OUT * HIDDEN], b[OUT];
} net;

static float first_value(uint32_t param, uint32_t row, uint32_t column) {
    return (float)((param * 5 + row * 3 + column * 2) % 7) - 3;
}

static void net_fill(void *user, uint32_t param, uint64_t first, uint64_t count, float *out) {
    const net *n = (const net *)user;
    for (uint64_t k = first; k < first + count; ++k, ++out)
        if (param == W1)
            *out = first_value(param, n->from + (uint32_t)(k / IN), (uint32_t)(k % IN));
        else if (param == W2)
            *out =
                first_value(param, (uint32_t)(k / n->hidden), n->from + (uint32_t)(k % n->hidden));
        else
            *out = first_value(param, (uint32_t)k, 0);
}

static net net_of(uint32_t part, uint32_t parts) {
    net n;
    memset(&n, 0, sizeof n);
    n.from = HIDDEN * part / parts;
    n.hidden = HIDDEN * (part + 1) / parts - n.from;
    net_fill(&n, W1, 0, n.hidden * IN, n.w1);
    net_fill(&n, W2, 0, OUT * n.hidden, n.w2);
    net_fill(&n, BIAS, 0, OUT, n.b);
    return n;
}

static float input(uint32_t batch, uint32_t step, uint32_t i) {
    return (float)((batch * 5 + step * 3 + i * 2) % 5) - 2;
}

/* This part's share of W2 relu(W1 x). */
static void forward(
    uint32_t hidden, const float *w1, const float *w2, const float *x, float *h, float *y) {
    for (uint32_t j = 0; j < hidden; ++j) {
        h[j] = 0;
        for (uint32_t i = 0; i < IN; ++i)
            h[j] += w1[j * IN + i] * x[i];
        if (h[j] < 0) h[j] = 0;
    }
    for (uint32_t o = 0; o < OUT; ++o) {
        y[o] = 0;
        for (uint32_t j = 0; j < hidden; ++j)
            y[o] += w2[o * hidden + j] * h[j];
    }
}

/* Adds gradients of sum |y - 1|: whole numbers in the first step, few bits in the others. */
static void backward(uint32_t hidden, const float *w2, const float *x, const float *h,
    const float *y, float *d1, float *d2, float *db) {
    for (uint32_t o = 0; o < OUT; ++o) {
        const float dy = y[o] > 1 ? 1.0f : -1.0f;
        db[o] += dy;
        for (uint32_t j = 0; j < hidden; ++j) {
            d2[o * hidden + j] += dy * h[j];
            for (uint32_t i = 0; i < IN && h[j] > 0; ++i)
                d1[j * IN + i] += dy * w2[o * hidden + j] * x[i];
        }
    }
}

static double squares_of(const float *x, uint32_t n) {
    double sum = 0;
    for (uint32_t k = 0; k < n; ++k)
        sum += (double)x[k] * (double)x[k];
    return sum;
}

/* One step of the whole model; the norm of its mean gradient. */
static double serial_step(net *n, uint32_t batches, uint32_t step, float lr) {
    net d;
    memset(&d, 0, sizeof d);
    for (uint32_t batch = 0; batch < batches; ++batch) {
        float x[IN], h[HIDDEN], y[OUT];
        for (uint32_t i = 0; i < IN; ++i)
            x[i] = input(batch, step, i);
        forward(HIDDEN, n->w1, n->w2, x, h, y);
        for (uint32_t o = 0; o < OUT; ++o)
            y[o] += n->b[o];
        backward(HIDDEN, n->w2, x, h, y, d.w1, d.w2, d.b);
    }
    for (uint32_t k = 0; k < HIDDEN * IN; ++k)
        n->w1[k] -= lr * (d.w1[k] /= (float)batches);
    for (uint32_t k = 0; k < OUT * HIDDEN; ++k)
        n->w2[k] -= lr * (d.w2[k] /= (float)batches);
    for (uint32_t k = 0; k < OUT; ++k)
        n->b[k] -= lr * (d.b[k] /= (float)batches);
    return sqrt(
        squares_of(d.w1, HIDDEN * IN) + squares_of(d.w2, OUT * HIDDEN) + squares_of(d.b, OUT));
}

/* The same on a rank: units 0 (W1) and 1 (W2, b). */
static void sharded_step(
    cdp_fsdp *f, cdp_group *tensor, uint32_t hidden, uint32_t batch, uint32_t step) {
    float x[IN], h[HIDDEN], y[OUT];
    const float *w1, *w2, *b;
    for (uint32_t i = 0; i < IN; ++i)
        x[i] = input(batch, step, i);
    T_EQ(CDP_OK, cdp_fsdp_need(f, 0));
    T_EQ(CDP_OK, cdp_fsdp_need(f, 1));
    w1 = (const float *)cdp_fsdp_data(f, W1);
    w2 = (const float *)cdp_fsdp_data(f, W2);
    b = (const float *)cdp_fsdp_data(f, BIAS);
    forward(hidden, w1, w2, x, h, y);
    T_EQ(CDP_OK, cdp_allreduce(tensor, NULL, y, OUT, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    for (uint32_t o = 0; o < OUT; ++o)
        y[o] += b[o];
    backward(
        hidden, w2, x, h, y, cdp_fsdp_grad(f, W1), cdp_fsdp_grad(f, W2), cdp_fsdp_grad(f, BIAS));
    T_EQ(CDP_OK, cdp_fsdp_ready(f, 1));
    T_EQ(CDP_OK, cdp_fsdp_ready(f, 0));
}

/* Each rank gets what tensor parallelism gives it, in turn. */
static void compare(cdp_fsdp *f, cdp_group *data, const net *all, uint32_t from, uint32_t hidden) {
    float w1[HIDDEN * IN], w2[OUT * HIDDEN], b[OUT];
    for (uint32_t root = 0; root < cdp_size(data); ++root) {
        T_EQ(CDP_OK, cdp_fsdp_save(f, W1, CDP_FSDP_VALUES, w1, root));
        T_EQ(CDP_OK, cdp_fsdp_save(f, W2, CDP_FSDP_VALUES, w2, root));
        T_EQ(CDP_OK, cdp_fsdp_save(f, BIAS, CDP_FSDP_VALUES, b, root));
    }
    T(!memcmp(w1, all->w1 + from * IN, hidden * IN * sizeof *w1));
    for (uint32_t o = 0; o < OUT; ++o)
        T(!memcmp(w2 + o * hidden, all->w2 + o * HIDDEN + from, hidden * sizeof *w2));
    T(!memcmp(b, all->b, sizeof b));
}

typedef struct grid {
    uint32_t copies, data, tensor;
} grid;

static void rank_trains(cdp_group *whole_group, void *arg) {
    const grid *g = (const grid *)arg;
    const cdp_mesh_desc md = {.group = whole_group,
        .ndim = 3,
        .shape = {g->copies, g->data, g->tensor},
        .names = {"copies", "data", "tensor"}};
    cdp_optim sgd = {.kind = CDP_OPTIM_SGD, .lr = .125};
    cdp_fsdp_param params[3];
    cdp_fsdp_desc d;
    cdp_mesh *mesh = NULL;
    cdp_fsdp *f = NULL;
    cdp_group *tensor;
    net all = net_of(0, 1), own;
    T_EQ(CDP_OK, cdp_mesh_create(&md, &mesh));
    tensor = cdp_mesh_group(mesh, 2);
    own = net_of(cdp_rank(tensor), g->tensor);
    memset(params, 0, sizeof params);
    memset(&d, 0, sizeof d);
    for (uint32_t i = 0; i < 3; ++i) {
        params[i].unit = i > 0;
        params[i].ndim = i < BIAS ? 2 : 1;
        params[i].shape[0] = i == W1 ? own.hidden : OUT;
        params[i].shape[1] = i == W1 ? IN : own.hidden;
    }
    params[BIAS].copy = cdp_rank(tensor) > 0;
    d.group = cdp_mesh_group(mesh, 1);
    d.replicate = g->copies > 1 ? cdp_mesh_group(mesh, 0) : NULL;
    d.norm_group = whole_group;
    d.params = params;
    d.param_count = 3;
    d.optim = &sgd;
    d.fill = net_fill;
    d.user = &own;
    if (!T_EQ(CDP_OK, cdp_fsdp_create(&d, &f))) printf("    %s\n", cdp_last_error()->text);
    for (uint32_t step = 0; step < STEPS && f; ++step) {
        const uint32_t batch =
            cdp_rank(cdp_mesh_group(mesh, 0)) * g->data + cdp_rank(cdp_mesh_group(mesh, 1));
        cdp_fsdp_info info;
        double norm;
        sharded_step(f, tensor, own.hidden, batch, step);
        T_EQ(CDP_OK, cdp_fsdp_backward_end(f, 0, &info));
        norm = serial_step(&all, g->copies * g->data, step, .125f);
        T(norm > 1 && fabs(info.norm - norm) < 1e-12 * norm);
        T_EQ(CDP_OK, cdp_fsdp_step(f));
    }
    if (f) compare(f, d.group, &all, own.from, own.hidden);
    cdp_fsdp_destroy(f);
    cdp_mesh_destroy(mesh);
}

TEST(shards_on_top_of_tensor_parallel_train_as_in_one_process) {
    static const grid grids[] = {{1, 1, 2}, {1, 2, 1}, {1, 2, 2}, {1, 2, 3}, {1, 4, 2}};
    for (uint32_t i = 0; i < sizeof grids / sizeof *grids; ++i) {
        grid g = grids[i];
        run_counted(g.data * g.tensor, rank_trains, &g);
    }
}
TEST(copies_of_such_shards_train_as_in_one_process) {
    static const grid grids[] = {{2, 1, 2}, {2, 2, 1}, {2, 2, 2}, {4, 1, 3}};
    for (uint32_t i = 0; i < sizeof grids / sizeof *grids; ++i) {
        grid g = grids[i];
        run_counted(g.copies * g.data * g.tensor, rank_trains, &g);
    }
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"shards_on_top_of_tensor_parallel_train_as_in_one_process",
            shards_on_top_of_tensor_parallel_train_as_in_one_process, 60},
        {"copies_of_such_shards_train_as_in_one_process",
            copies_of_such_shards_train_as_in_one_process, 60},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
