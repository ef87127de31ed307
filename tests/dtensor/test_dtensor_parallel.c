/*  test_dtensor_parallel.c - tensor-parallel layers, losses, attention over a cut sequence, counts
    and local functions, against one process; ranks are threads of this program */
#define CDP_IMPLEMENTATION
#include "cdp_dtensor.h"

#include <math.h>

#include "../unit/said.h"
#include "../unit/ranks.h"

#define RUN(n, func, arg) run_counted(n, func, arg)

static cdp_mesh *line_of(cdp_group *g) {
    const cdp_mesh_desc d = {.group = g, .names = {"tp"}};
    cdp_mesh *m = NULL;
    OK(cdp_mesh_create(&d, &m));
    return m;
}

static int64_t number(uint64_t salt, uint64_t i) {
    uint64_t state = salt * 1000003 + i * 7919;
    (void)test_random(&state);
    return (int64_t)(test_random(&state) % 19) - 9;
}

/* A whole array of integers as i64, and the piece of it that a layout gives this rank. */
static void whole_of(uint64_t salt, uint64_t n, int64_t *out) {
    for (uint64_t i = 0; i < n; ++i)
        out[i] = number(salt, i);
}

static void piece_of(const cdp_layout *l, const int64_t *whole, int64_t *out) {
    cdp_layout as = *l;
    as.dtype = CDP_DTYPE_I64;
    cdp_dtensor t = {.layout = as, .data = out};
    OK(cdp_distribute(&t, whole, CDP_EACH));
}

/* The piece is what the whole says; other ranks' pieces are their own matter. */
static bool piece_is(const cdp_layout *l, const int64_t *whole, const int64_t *piece) {
    int64_t want[4096];
    const uint64_t n = cdp_layout_box(l, NULL, NULL);
    piece_of(l, whole, want);
    return n == 0 || memcmp(want, piece, n * sizeof *want) == 0;
}

/* ---- layers with integers: forward and backward equal those of the whole ---- */

typedef struct layer_case {
    cdp_tp_style style;
    bool embedding, again;
    const char *input, *output; /* NULL: as the style says */
    uint64_t rows, in, out, head;
} layer_case;

typedef struct layer_whole {
    int64_t x[1024], w[1024], bias[64], y[1024], dy[1024], dx[1024], dw[1024], db[64];
    int32_t ids[64];
} layer_whole;

/* The layer in one process, by the definition. */
static void layer_alone(const layer_case *c, layer_whole *a) {
    whole_of(1, c->rows * c->in, a->x);
    whole_of(2, c->in * c->out, a->w);
    whole_of(3, c->out, a->bias);
    whole_of(4, c->rows * c->out, a->dy);
    memset(a->y, 0, sizeof a->y);
    memset(a->dx, 0, sizeof a->dx);
    memset(a->dw, 0, sizeof a->dw);
    memset(a->db, 0, sizeof a->db);
    for (uint64_t t = 0; t < c->rows; ++t) {
        a->ids[t] = (int32_t)((uint64_t)(number(5, t) + 9) % c->in);
        for (uint64_t o = 0; o < c->out; ++o) {
            const int64_t g = a->dy[t * c->out + o];
            int64_t *y = &a->y[t * c->out + o];
            if (c->embedding) {
                *y = a->w[(uint64_t)a->ids[t] * c->out + o];
                a->dw[(uint64_t)a->ids[t] * c->out + o] += g;
                continue;
            }
            *y = a->bias[o];
            a->db[o] += g;
            for (uint64_t i = 0; i < c->in; ++i) {
                *y += a->x[t * c->in + i] * a->w[o * c->in + i];
                a->dx[t * c->in + i] += g * a->w[o * c->in + i];
                a->dw[o * c->in + i] += g * a->x[t * c->in + i];
            }
        }
    }
    int64_t forward = 0, x = 0, w = 0; /* <A x, dy> = <x, A' dy>, in x and in w alike */
    for (uint64_t i = 0; i < c->rows * c->out; ++i)
        forward += (a->y[i] - (c->embedding ? 0 : a->bias[i % c->out])) * a->dy[i];
    for (uint64_t i = 0; i < c->rows * c->in; ++i)
        x += a->x[i] * a->dx[i];
    for (uint64_t i = 0; i < c->in * c->out; ++i)
        w += a->w[i] * a->dw[i];
    T(w == forward && (c->embedding || x == forward));
}

static cdp_place place_of(const char *text) {
    cdp_place p = {.kind = CDP_PLACE_REPLICATE};
    if (text && text[0] == 'S') {
        p.kind = CDP_PLACE_SHARD;
        p.dim = text[1] - '0';
    }
    if (text && text[0] == 'P') p.kind = CDP_PLACE_PARTIAL;
    return p;
}

/* Makes a whole x the contribution of a rank to the sum that it is. */
static void contribution_of(uint64_t n, uint32_t rank, uint32_t ranks, int64_t *p) {
    for (uint64_t i = 0; i < n; ++i) {
        int64_t others = 0;
        for (uint32_t r = 1; r < ranks; ++r)
            others += number(6 + r, i);
        p[i] = rank ? number(6 + rank, i) : p[i] - others;
    }
}

static void layer_run(cdp_group *g, void *arg) {
    const layer_case *c = (const layer_case *)arg;
    cdp_mesh *m = line_of(g);
    const cdp_place input = place_of(c->input), output = place_of(c->output);
    cdp_tp_desc d = {.mesh = m,
        .style = c->style,
        .embedding = c->embedding,
        .rows = c->rows,
        .in_features = c->in,
        .out_features = c->out,
        .head = c->head,
        .dtype = CDP_DTYPE_I64,
        .gather_again = c->again,
        .input = c->input ? &input : NULL,
        .output = c->output ? &output : NULL};
    static layer_whole shared[RANKS_MAX];
    layer_whole *a = &shared[cdp_rank(g)], *p = (layer_whole *)calloc(1, sizeof *p);
    cdp_tp *tp = NULL;
    layer_alone(c, a);
    if (!p || !OK(cdp_tp_create(&d, &tp))) abort();
    const cdp_tp_layouts *l = cdp_tp_layouts_of(tp);
    cdp_layout x_of = l->x; /* and of its gradient */
    if (input.kind == CDP_PLACE_PARTIAL) x_of.place[0].kind = CDP_PLACE_REPLICATE;
    if (c->embedding) {
        cdp_dtensor ids = {.layout = l->x, .data = p->ids};
        OK(cdp_distribute(&ids, a->ids, CDP_EACH));
    } else {
        piece_of(&x_of, a->x, p->x);
    }
    if (input.kind == CDP_PLACE_PARTIAL)
        contribution_of(c->rows * c->in, cdp_rank(g), cdp_size(g), p->x);
    const void *x = c->embedding ? (void *)p->ids : (void *)p->x;
    piece_of(&l->weight, a->w, p->w);
    piece_of(&l->bias, a->bias, p->bias);
    piece_of(&l->y, a->dy, p->dy);
    OK(cdp_tp_forward(tp, x, p->w, p->bias, p->y));
    T(piece_is(&l->y, a->y, p->y));
    OK(cdp_tp_backward(tp, x, p->w, p->dy, c->embedding ? NULL : p->dx, p->dw, p->db));
    if (!c->embedding) T(piece_is(&x_of, a->dx, p->dx) && piece_is(&l->bias, a->db, p->db));
    if (!T(piece_is(&l->weight, a->dw, p->dw)))
        printf("  style %u input %s output %s\n", c->style, c->input ? c->input : "-",
            c->output ? c->output : "-");
    /* gradients of parameters are added to; that of x is written; NULL is left out */
    OK(cdp_tp_backward(tp, x, p->w, p->dy, c->embedding ? NULL : p->dx, p->dw, NULL));
    if (!c->embedding) T(piece_is(&x_of, a->dx, p->dx));
    for (uint64_t i = 0; i < c->in * c->out; ++i)
        a->dw[i] *= 2;
    T(piece_is(&l->weight, a->dw, p->dw));
    cdp_tp_destroy(tp);
    free(p);
    cdp_mesh_destroy(m);
}

TEST(layers_equal_one_process) {
    static const char *const places[] = {NULL, "R", "S0", "S1"};
    uint32_t done = 0;
    for (uint32_t n = 1; n <= 4; ++n)
        for (uint32_t style = 0; style < 3; ++style)
            for (uint32_t i = 0; i < 32 && !test__now.failed_checks; ++i) {
                layer_case c = {.style = (cdp_tp_style)style,
                    .input = places[i % 4],
                    .output = places[i / 4 % 4],
                    .rows = 6,
                    .in = 7,
                    .out = 5,
                    .again = i % 3 == 0};
                if (i >= 16) { /* a head of 2; fewer features than ranks */
                    c.in = 8;
                    c.out = style == CDP_TP_COLUMN ? 6 : 3;
                    c.rows = 1 + i % 5;
                    c.head = 2;
                }
                RUN(n, layer_run, &c);
                ++done;
            }
    printf("  %u layers\n", done);
}

TEST(tables_equal_one_process) {
    static const char *const inputs[] = {NULL, "R", "S0"},
                             *const outputs[] = {NULL, "R", "S0", "S1"};
    for (uint32_t n = 1; n <= 4; ++n)
        for (uint32_t style = 0; style < 3; ++style)
            for (uint32_t i = 0; i < 12 && !test__now.failed_checks; ++i) {
                layer_case c = {.style = (cdp_tp_style)style,
                    .embedding = true,
                    .input = inputs[i % 3],
                    .output = outputs[i / 3],
                    .rows = 9,
                    .in = i % 2 ? 7 : 2,
                    .out = 6}; /* 2 rows: some ranks have none */
                RUN(n, layer_run, &c);
            }
}

/* ---- layers together: a table, a perceptron, and a head that shares the table ---- */

enum {
    NET_ROWS = 6,
    NET_VOCABULARY = 7,
    NET_WIDTH = 4,
    NET_HIDDEN = 10
};

typedef struct net {
    int32_t ids[NET_ROWS];
    int64_t table[NET_VOCABULARY * NET_WIDTH], up[NET_HIDDEN * NET_WIDTH], up_bias[NET_HIDDEN],
        down[NET_WIDTH * NET_HIDDEN], down_bias[NET_WIDTH];
    int64_t dtable[NET_VOCABULARY * NET_WIDTH], dup[NET_HIDDEN * NET_WIDTH], dup_bias[NET_HIDDEN],
        ddown[NET_WIDTH * NET_HIDDEN], ddown_bias[NET_WIDTH];
    int64_t x[NET_ROWS * NET_WIDTH], h[NET_ROWS * NET_HIDDEN], y[NET_ROWS * NET_WIDTH],
        logits[NET_ROWS * NET_VOCABULARY], dlogits[NET_ROWS * NET_VOCABULARY];
    int64_t dy[NET_ROWS * NET_WIDTH], dh[NET_ROWS * NET_HIDDEN], dx[NET_ROWS * NET_WIDTH];
} net;

/* out[m, n] += a[m, k] b, where b is [k, n], or [n, k] if `turned`; a is [k, m] if `first`. */
static void times(int64_t *out, const int64_t *a, const int64_t *b, uint32_t m, uint32_t n,
    uint32_t k, bool first, bool turned) {
    for (uint32_t i = 0; i < m; ++i)
        for (uint32_t j = 0; j < n; ++j)
            for (uint32_t x = 0; x < k; ++x)
                out[i * n + j] +=
                    a[first ? x * m + i : i * k + x] * b[turned ? j * k + x : x * n + j];
}

static void net_alone(net *a) {
    memset(a, 0, sizeof *a);
    whole_of(11, NET_VOCABULARY * NET_WIDTH, a->table);
    whole_of(12, NET_HIDDEN * NET_WIDTH, a->up);
    whole_of(13, NET_HIDDEN, a->up_bias);
    whole_of(14, NET_WIDTH * NET_HIDDEN, a->down);
    whole_of(15, NET_WIDTH, a->down_bias);
    whole_of(16, NET_ROWS * NET_VOCABULARY, a->dlogits);
    for (uint32_t t = 0; t < NET_ROWS; ++t) {
        a->ids[t] = (int32_t)(t * 5 % NET_VOCABULARY);
        for (uint32_t i = 0; i < NET_WIDTH; ++i) {
            a->x[t * NET_WIDTH + i] = a->table[(uint32_t)a->ids[t] * NET_WIDTH + i];
            a->y[t * NET_WIDTH + i] = a->down_bias[i];
        }
        for (uint32_t i = 0; i < NET_HIDDEN; ++i)
            a->h[t * NET_HIDDEN + i] = a->up_bias[i];
    }
    times(a->h, a->x, a->up, NET_ROWS, NET_HIDDEN, NET_WIDTH, false, true);
    for (uint32_t i = 0; i < NET_ROWS * NET_HIDDEN; ++i)
        a->h[i] = a->h[i] > 0 ? a->h[i] : 0;
    times(a->y, a->h, a->down, NET_ROWS, NET_WIDTH, NET_HIDDEN, false, true);
    times(a->logits, a->y, a->table, NET_ROWS, NET_VOCABULARY, NET_WIDTH, false, true);
    times(a->dy, a->dlogits, a->table, NET_ROWS, NET_WIDTH, NET_VOCABULARY, false, false);
    times(a->dtable, a->dlogits, a->y, NET_VOCABULARY, NET_WIDTH, NET_ROWS, true, false);
    times(a->dh, a->dy, a->down, NET_ROWS, NET_HIDDEN, NET_WIDTH, false, false);
    times(a->ddown, a->dy, a->h, NET_WIDTH, NET_HIDDEN, NET_ROWS, true, false);
    for (uint32_t i = 0; i < NET_ROWS * NET_HIDDEN; ++i)
        if (!a->h[i]) a->dh[i] = 0;
    times(a->dx, a->dh, a->up, NET_ROWS, NET_WIDTH, NET_HIDDEN, false, false);
    times(a->dup, a->dh, a->x, NET_HIDDEN, NET_WIDTH, NET_ROWS, true, false);
    for (uint32_t t = 0; t < NET_ROWS; ++t) {
        for (uint32_t i = 0; i < NET_WIDTH; ++i) {
            a->ddown_bias[i] += a->dy[t * NET_WIDTH + i];
            a->dtable[(uint32_t)a->ids[t] * NET_WIDTH + i] += a->dx[t * NET_WIDTH + i];
        }
        for (uint32_t i = 0; i < NET_HIDDEN; ++i)
            a->dup_bias[i] += a->dh[t * NET_HIDDEN + i];
    }
}

static cdp_tp *net_layer(cdp_mesh *m, cdp_tp_style style, bool table, uint64_t in, uint64_t out,
    const cdp_place *input, const cdp_place *output) {
    const cdp_tp_desc d = {.mesh = m,
        .style = style,
        .embedding = table,
        .rows = NET_ROWS,
        .in_features = in,
        .out_features = out,
        .input = input,
        .output = output,
        .dtype = CDP_DTYPE_I64};
    cdp_tp *tp = NULL;
    OK(cdp_tp_create(&d, &tp));
    return tp;
}

/* Forward and backward of the four layers, on the pieces of this rank. */
static void net_run(cdp_tp *const l[4], const net *a, net *p) {
    const cdp_tp_layouts *up = cdp_tp_layouts_of(l[1]), *down = cdp_tp_layouts_of(l[2]);
    piece_of(&cdp_tp_layouts_of(l[0])->weight, a->table, p->table);
    piece_of(&up->weight, a->up, p->up);
    piece_of(&up->bias, a->up_bias, p->up_bias);
    piece_of(&down->weight, a->down, p->down);
    piece_of(&down->bias, a->down_bias, p->down_bias);
    piece_of(&cdp_tp_layouts_of(l[3])->y, a->dlogits, p->dlogits);
    const uint64_t hidden = cdp_layout_box(&up->y, NULL, NULL);
    OK(cdp_tp_forward(l[0], a->ids, p->table, NULL, p->x));
    OK(cdp_tp_forward(l[1], p->x, p->up, p->up_bias, p->h));
    for (uint64_t i = 0; i < hidden; ++i)
        p->h[i] = p->h[i] > 0 ? p->h[i] : 0;
    OK(cdp_tp_forward(l[2], p->h, p->down, p->down_bias, p->y));
    OK(cdp_tp_forward(l[3], p->y, p->table, NULL, p->logits));
    OK(cdp_tp_backward(l[3], p->y, p->table, p->dlogits, p->dy, p->dtable, NULL));
    OK(cdp_tp_backward(l[2], p->h, p->down, p->dy, p->dh, p->ddown, p->ddown_bias));
    for (uint64_t i = 0; i < hidden; ++i)
        if (!p->h[i]) p->dh[i] = 0;
    OK(cdp_tp_backward(l[1], p->x, p->up, p->dh, p->dx, p->dup, p->dup_bias));
    OK(cdp_tp_backward(l[0], a->ids, p->table, p->dx, NULL, p->dtable, NULL));
    T(piece_is(&cdp_tp_layouts_of(l[3])->y, a->logits, p->logits));
    T(piece_is(&cdp_tp_layouts_of(l[0])->weight, a->dtable, p->dtable));
    T(piece_is(&up->weight, a->dup, p->dup) && piece_is(&up->bias, a->dup_bias, p->dup_bias));
    T(piece_is(&down->weight, a->ddown, p->ddown));
    T(piece_is(&down->bias, a->ddown_bias, p->ddown_bias));
}

static void net_rank(cdp_group *g, void *arg) {
    const cdp_place rows = {.kind = CDP_PLACE_SHARD}, all = {.kind = CDP_PLACE_REPLICATE};
    const cdp_place *between = *(const bool *)arg ? &rows : NULL; /* sequence parallel */
    cdp_mesh *m = line_of(g);
    net *a = (net *)malloc(sizeof *a), *p = (net *)calloc(1, sizeof *p);
    if (!a || !p) abort();
    cdp_tp *const l[4] = {net_layer(m, CDP_TP_ROW, true, NET_VOCABULARY, NET_WIDTH, &all, between),
        net_layer(m, CDP_TP_COLUMN, false, NET_WIDTH, NET_HIDDEN, between, NULL),
        net_layer(m, CDP_TP_ROW, false, NET_HIDDEN, NET_WIDTH, NULL, between),
        net_layer(m, CDP_TP_COLUMN, false, NET_WIDTH, NET_VOCABULARY, between, NULL)};
    /* the table and the head cut the same rows of one array */
    T(cdp_layout_same(&cdp_tp_layouts_of(l[0])->weight, &cdp_tp_layouts_of(l[3])->weight));
    net_alone(a);
    net_run(l, a, p);
    for (uint32_t i = 0; i < 4; ++i)
        cdp_tp_destroy(l[i]);
    free(a);
    free(p);
    cdp_mesh_destroy(m);
}

TEST(tied_table_and_perceptron) {
    for (uint32_t n = 1; n <= 5; ++n)
        for (uint32_t sequence = 0; sequence < 2; ++sequence) {
            bool cut = sequence != 0;
            RUN(n, net_rank, &cut);
        }
}

/* ---- counts: one operation forward and one backward for each pair of layers ---- */

typedef struct mlp {
    bool sequence;
    uint64_t allreduce, allgather, reduce_scatter; /* expected, forward and backward each */
} mlp;

/* What the counts of a multilayer perceptron are, and how they are drawn. */
static void mlp_counts(cdp_mesh *m, const mlp *want) {
    for (uint32_t back = 0; back < 2; ++back) {
        const cdp_comm_count c = cdp_counts(m, "block0/mlp", back);
        T_EQ(want->allreduce, c.calls[CDP_COLL_ALLREDUCE]);
        T_EQ(want->allgather, c.calls[CDP_COLL_ALLGATHER]);
        T_EQ(want->reduce_scatter, c.calls[CDP_COLL_REDUCE_SCATTER]);
        T_EQ(0, c.calls[CDP_COLL_ALLTOALL] + c.calls[CDP_COLL_SEND]);
        if (want->allgather) T_EQ(36 * 8, c.bytes[CDP_COLL_ALLGATHER]);
    }
    T_EQ(1, cdp_counts(m, NULL, true).calls[CDP_COLL_BARRIER]);
    T_EQ(0, cdp_counts(m, NULL, false).calls[CDP_COLL_BARRIER]);
    T_EQ(7, cdp_counts(m, "block0", true).bytes[CDP_COLL_BARRIER]);
    T_EQ(0, cdp_counts(m, "block", true).bytes[CDP_COLL_BARRIER]); /* no label of that name */
    char text[4000];
    T(cdp_counts_draw(m, CDP_DRAW_TEXT, text, sizeof text) < sizeof text);
    T_TEXT("block0/mlp", text);
    T_TEXT(want->sequence ? "1 reduce_scatter" : "1 allreduce", text);
    T(cdp_counts_draw(m, CDP_DRAW_JSON, text, sizeof text) < sizeof text);
    T_TEXT("{\"path\": \"block0/mlp\", \"forward\": {\"all", text);
    REFUSED(CDP_ERR_INVALID, "holds a '/'", cdp_count_begin(m, "a/b"));
    REFUSED(CDP_ERR_INVALID, "holds a '/'", cdp_count_begin(m, ""));
    REFUSED(CDP_ERR_INVALID, "cdp_count_begin: label is NULL", cdp_count_begin(m, NULL));
    for (uint32_t i = 0; i < 16; ++i)
        OK(cdp_count_begin(m, "x"));
    REFUSED(CDP_ERR_INVALID, "too deep", cdp_count_begin(m, "x"));
    for (uint32_t i = 0; i < 20; ++i)
        cdp_count_end(m);
    cdp_counts_clear(m);
    T_EQ(0, cdp_counts(m, NULL, true).calls[CDP_COLL_BARRIER]);
}

static void mlp_run(cdp_group *g, void *arg) {
    const mlp *want = (const mlp *)arg;
    cdp_mesh *m = line_of(g);
    const cdp_place rows = {.kind = CDP_PLACE_SHARD}, *edge = want->sequence ? &rows : NULL;
    const cdp_tp_desc da = {.mesh = m,
        .style = CDP_TP_COLUMN,
        .rows = 8,
        .in_features = 6,
        .out_features = 12,
        .input = edge,
        .dtype = CDP_DTYPE_I64};
    const cdp_tp_desc db = {.mesh = m,
        .style = CDP_TP_ROW,
        .rows = 8,
        .in_features = 12,
        .out_features = 6,
        .output = edge,
        .dtype = CDP_DTYPE_I64};
    int64_t x[48] = {1}, wa[72] = {2}, h[96], wb[72] = {3}, y[48], dx[48], dh[96], dwa[72] = {0},
            dwb[72] = {0}, db1[12] = {0}, db2[6] = {0};
    cdp_tp *a, *b;
    OK(cdp_tp_create(&da, &a));
    OK(cdp_tp_create(&db, &b));
    OK(cdp_count_begin(m, "block0"));
    OK(cdp_count_begin(m, "mlp"));
    OK(cdp_tp_forward(a, x, wa, db1, h));
    OK(cdp_tp_forward(b, h, wb, db2, y));
    OK(cdp_tp_backward(b, h, wb, y, dh, dwb, db2));
    OK(cdp_tp_backward(a, x, wa, dh, dx, dwa, db1));
    cdp_count_end(m);
    OK(cdp_count_begin(m, "attention"));
    cdp_count_backward(m, true);
    cdp_count_note(m, CDP_COLL_BARRIER, 7);
    cdp_count_backward(m, false);
    cdp_count_end(m);
    cdp_count_end(m);
    mlp_counts(m, want);
    cdp_tp_destroy(a);
    cdp_tp_destroy(b);
    cdp_mesh_destroy(m);
}

/* Whichever request for memory fails: a layer that is made has all it needs. */
static void starved_run(cdp_group *g, void *arg) {
    cdp_mesh *m = line_of(g);
    cdp_tp_desc d = {.mesh = m,
        .style = CDP_TP_COLUMN,
        .rows = 8,
        .in_features = 6,
        .out_features = 12,
        .dtype = CDP_DTYPE_I64};
    cdp_tp *of = NULL;
    bool done = false;
    (void)arg;
    for (int64_t at = 1; !done && T(at < 100); ++at) {
        cdp_tp *tp = NULL;
        counted.fail_at = counted.calls + at;
        const cdp_status st = cdp_tp_create(&d, &tp);
        done = counted.calls < counted.fail_at;
        T_EQ(done ? CDP_OK : CDP_ERR_NOMEM, st);
        counted.fail_at = 0;
        cdp_tp_destroy(tp);
        if (done && !d.x_of && OK(cdp_tp_create(&d, &of))) { /* the same for one that shares x */
            d.x_of = of;
            done = false;
            at = 0;
        }
    }
    cdp_tp_destroy(of);
    cdp_mesh_destroy(m);
}

TEST(layers_without_memory) {
    RUN(1, starved_run, NULL);
}

/* What layers need during a call is in the scratch memory of their mesh, once for all of them. */
static void shared_run(cdp_group *g, void *arg) {
    enum {
        N = 12,
        LAYERS = 9
    };
    static const cdp_tp_style styles[] = {CDP_TP_COLUMN, CDP_TP_ROW, CDP_TP_SEQUENCE};
    cdp_mesh *m = line_of(g);
    cdp_tp *tp[LAYERS];
    float x[N * N] = {1}, w[N * N] = {2}, y[N * N], dx[N * N], dw[N * N] = {0}, db[N] = {0};
    uint64_t bytes = 0, most = 0;
    (void)arg;
    for (uint32_t k = 0; k < LAYERS; ++k) {
        const cdp_tp_desc d = {
            .mesh = m, .style = styles[k % 3], .rows = N, .in_features = N, .out_features = N};
        OK(cdp_tp_create(&d, &tp[k]));
        most = cdp__max(most, tp[k]->room_bytes);
    }
    for (uint32_t turn = 0; turn < 2; ++turn) {
        for (uint32_t k = 0; k < LAYERS; ++k) {
            OK(cdp_tp_forward(tp[k], x, w, NULL, y));
            OK(cdp_tp_backward(tp[k], x, w, y, dx, dw, db));
            T(!tp[k]->made && !tp[k]->grad_used && !tp[k]->sums);
        }
        for (const cdp__dt_scratch *s = m->root->scratch; s; s = s->next) {
            T(!s->held);
            bytes += s->bytes;
        }
        T(bytes >= most && bytes <= 3 * most);
        cdp_mesh_drop_plans(m);
        T(!m->root->scratch);
        bytes = 0;
    }
    for (uint32_t k = 0; k < LAYERS; ++k)
        cdp_tp_destroy(tp[k]);
    cdp_mesh_destroy(m);
}

TEST(layers_share_what_a_call_needs) {
    RUN(3, shared_run, NULL);
}

TEST(counts_by_label) {
    mlp plain = {.allreduce = 1}, sequence = {true, 0, 1, 1};
    RUN(4, mlp_run, &plain);
    RUN(4, mlp_run, &sequence);
}

/* Gradients that are summed, distributions and gathers have their own names. */
static void kinds_run(cdp_group *g, void *arg) {
    static const char *const pairs[][2] = {
        {"P", "R"}, {"P", "S0"}, {"S0", "R"}, {"S0", "S1"}, {"R", "S0"}, {"S0", "S0"}};
    static const cdp_coll_kind kinds[] = {CDP_COLL_ALLREDUCE, CDP_COLL_REDUCE_SCATTER,
        CDP_COLL_ALLGATHER, CDP_COLL_ALLTOALL, CDP_COLL_NONE, CDP_COLL_NONE};
    cdp_mesh *m = line_of(g);
    float full[64];
    (void)arg;
    OK(cdp_count_begin(m, "moves"));
    for (uint32_t k = 0; k < 6; ++k) {
        cdp_layout from = {.mesh = m, .ndim = 2, .shape = {8, 8}}, to = from;
        cdp_dtensor x, y;
        OK(cdp_layout_parse(&from, pairs[k][0]));
        OK(cdp_layout_parse(&to, pairs[k][1]));
        OK(cdp_dtensor_create(&from, NULL, &x));
        OK(cdp_dtensor_create(&to, NULL, &y));
        const cdp_fill ramp = {.kind = CDP_FILL_RAMP, .b = 1};
        OK(cdp_dtensor_fill(&x, &ramp));
        cdp_counts_clear(m);
        OK(cdp_redistribute(&x, &y));
        const cdp_comm_count c = cdp_counts(m, NULL, false);
        for (uint32_t i = 0; i < CDP_COLL_COUNT; ++i)
            T_EQ(i == (uint32_t)kinds[k] && i != CDP_COLL_NONE, c.calls[i]);
        if (k == 2) {
            cdp_counts_clear(m);
            OK(cdp_dtensor_full(&x, full, 0));
            OK(cdp_distribute(&x, full, 0));
            T_EQ(1, cdp_counts(m, "moves", false).calls[CDP_COLL_GATHER]);
            T_EQ(1, cdp_counts(m, "moves", false).calls[CDP_COLL_SCATTER]);
        }
        cdp_dtensor_free(&x);
        cdp_dtensor_free(&y);
    }
    cdp_count_end(m);
    cdp_mesh_destroy(m);
}

TEST(operations_have_names) {
    RUN(4, kinds_run, NULL);
}

/* A rank without rows passes no memory, and still takes part; a first layer needs no gradient. */
static void empty_run(cdp_group *g, void *arg) {
    cdp_mesh *m = line_of(g);
    const cdp_place rows = {.kind = CDP_PLACE_SHARD};
    cdp_tp_desc d = {.mesh = m,
        .rows = 2,
        .in_features = 3,
        .out_features = 4,
        .input = &rows,
        .output = &rows,
        .dtype = CDP_DTYPE_I64};
    const bool has = cdp_rank(g) < 2;
    int64_t x[3] = {1, 2, 3}, w[12] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, y[12], dx[12];
    (void)arg;
    for (uint32_t first = 0; first < 2; ++first) {
        cdp_tp *tp;
        d.no_grad_x = first != 0;
        OK(cdp_tp_create(&d, &tp));
        OK(cdp_count_begin(m, "layer"));
        cdp_counts_clear(m);
        OK(cdp_tp_forward(tp, has ? x : NULL, w, NULL, has ? y : NULL));
        OK(cdp_tp_backward(
            tp, has ? x : NULL, w, has ? y : NULL, has && !first ? dx : NULL, NULL, NULL));
        T_EQ(first ? 0 : 1, cdp_counts(m, "layer", true).calls[CDP_COLL_REDUCE_SCATTER]);
        T_EQ(1, cdp_counts(m, "layer", true).calls[CDP_COLL_ALLTOALL]);
        cdp_count_end(m);
        cdp_tp_destroy(tp);
    }
    OK(cdp_barrier(g));
    cdp_mesh_destroy(m);
}

TEST(ranks_without_rows_take_part) {
    RUN(4, empty_run, NULL);
}

/* ---- misuse ---- */

static cdp_status gemm_that_fails(void *user, cdp_dtype dtype, bool ta, bool tb, uint64_t m,
    uint64_t n, uint64_t k, const void *a, const void *b, bool add, void *c) {
    const void *const unused[] = {&dtype, &ta, &tb, &m, &n, &k, a, b, &add, c};
    (void)unused;
    ++*(uint32_t *)user;
    return cdp_error_set(CDP_ERR_NOMEM, -1, 0, "the library of products has no memory");
}

/* Four ranks on paper, in a line and in a square. */
static void paper_meshes(cdp_mesh **line, cdp_mesh **square) {
    const cdp_mesh_desc four = {.paper_ranks = 4};
    const cdp_mesh_desc two_by_two = {.paper_ranks = 4, .ndim = 2, .shape = {2, 2}};
    OK(cdp_mesh_create(&four, line));
    OK(cdp_mesh_create(&two_by_two, square));
}

/* x may be a sum that no rank has yet. Its gradient is that of each contribution. */
TEST(layers_of_a_sum_equal_one_process) {
    static const char *const outputs[] = {NULL, "R", "S0", "S1"};
    for (uint32_t n = 1; n <= 4; ++n)
        for (uint32_t style = 0; style < 3; ++style)
            for (uint32_t i = 0; i < 8 && !test__now.failed_checks; ++i) {
                layer_case c = {.style = (cdp_tp_style)style,
                    .input = "P",
                    .output = outputs[i % 4],
                    .rows = 1 + i,
                    .in = 7,
                    .out = 5,
                    .again = i % 3 == 0};
                RUN(n, layer_run, &c);
            }
}

/* Two layers that share the gather of x and the sum of its gradient, beside two that do not. */
static void shared_gather_run(cdp_group *g, void *arg) {
    static const uint64_t outs[2] = {6, 5};
    enum {
        ROWS = 7,
        IN = 4
    };
    const cdp_place rows = {.kind = CDP_PLACE_SHARD};
    cdp_mesh *m = line_of(g);
    cdp_tp *own[2], *sharing[2];
    cdp_edge *gather;
    int64_t whole[64], x[64], full[64], w[64], dy[64], y[2][64], dw[2][64], dx[3][64], sum[64];
    (void)arg;
    for (uint32_t k = 0; k < 2; ++k) {
        cdp_tp_desc d = {.mesh = m, .rows = ROWS, .in_features = IN, .out_features = outs[k]};
        d.dtype = CDP_DTYPE_I64;
        d.grad_x_partial = true;
        OK(cdp_tp_create(&d, &sharing[k]));
        d.grad_x_partial = false;
        d.input = &rows;
        OK(cdp_tp_create(&d, &own[k]));
    }
    cdp_edge_desc e = {.from = cdp_tp_layouts_of(own[0])->x, .to = cdp_tp_layouts_of(own[0])->used};
    e.grad_in = e.to;
    e.grad_in.place[0].kind = CDP_PLACE_PARTIAL;
    OK(cdp_edge_create(&e, &gather));
    whole_of(1, ROWS * IN, whole);
    piece_of(&e.from, whole, x);
    memset(sum, 0, sizeof sum);
    memset(dw, 0, sizeof dw);
    OK(cdp_count_begin(m, "shared"));
    OK(cdp_edge_forward(gather, x, full));
    for (uint32_t k = 0; k < 2; ++k) {
        const cdp_tp_layouts *l = cdp_tp_layouts_of(sharing[k]);
        whole_of(2 + k, IN * outs[k], whole);
        piece_of(&l->weight, whole, w);
        whole_of(4 + k, ROWS * outs[k], whole);
        piece_of(&l->y, whole, dy);
        OK(cdp_tp_forward(sharing[k], full, w, NULL, y[0]));
        OK(cdp_tp_backward(sharing[k], full, w, dy, dx[2], dw[0], NULL));
        for (uint32_t i = 0; i < ROWS * IN; ++i)
            sum[i] += dx[2][i];
    }
    OK(cdp_edge_backward(gather, sum, dx[2]));
    const uint64_t messages = cdp_size(g) > 1;
    uint64_t calls[2] = {0, 0};
    for (uint32_t i = 0; i < CDP_COLL_COUNT; ++i) {
        calls[0] += cdp_counts(m, "shared", false).calls[i];
        calls[1] += cdp_counts(m, "shared", true).calls[i];
    }
    T_EQ(messages, calls[0]);
    T_EQ(messages, calls[1]);
    cdp_count_end(m);
    memset(dw, 0, sizeof dw);
    for (uint32_t k = 0; k < 2; ++k) {
        const cdp_tp_layouts *l = cdp_tp_layouts_of(own[k]);
        whole_of(2 + k, IN * outs[k], whole);
        piece_of(&l->weight, whole, w);
        whole_of(4 + k, ROWS * outs[k], whole);
        piece_of(&l->y, whole, dy);
        OK(cdp_tp_forward(own[k], x, w, NULL, y[1]));
        OK(cdp_tp_backward(own[k], x, w, dy, dx[k], dw[1], NULL));
    }
    const uint64_t ny = cdp_layout_box(&cdp_tp_layouts_of(own[1])->y, NULL, NULL);
    T(memcmp(y[0], y[1], ny * sizeof **y) == 0); /* of the second layer */
    for (uint64_t i = 0; i < cdp_layout_box(&e.from, NULL, NULL); ++i)
        T(dx[2][i] == dx[0][i] + dx[1][i]);
    for (uint32_t k = 0; k < 2; ++k) {
        cdp_tp_destroy(own[k]);
        cdp_tp_destroy(sharing[k]);
    }
    cdp_edge_destroy(gather);
    cdp_mesh_destroy(m);
}

TEST(layers_share_a_gather_and_a_sum) {
    for (uint32_t n = 1; n <= 4; ++n)
        RUN(n, shared_gather_run, NULL);
}

/* ---- layers that share x: q, k and v; gate and up ---- */

enum {
    SHARERS = 3
};

typedef struct share_case {
    const char *input;
    bool again, no_grad_x;
    uint64_t rows, in, head;
    uint32_t layers;
} share_case;

typedef struct share_data {
    layer_whole whole[SHARERS], piece[SHARERS];
    int64_t x[1024], dx[1024];
} share_data;

/* The layers of a case: the first gathers x, the others have it. */
static void share_layers(
    cdp_mesh *m, const share_case *c, cdp_tp *tp[SHARERS], share_data *p, uint64_t *x_elements) {
    static const uint64_t outs[SHARERS] = {6, 2, 10}; /* fewer heads than ranks, too */
    const cdp_place input = place_of(c->input);
    cdp_tp_desc d = {.mesh = m,
        .rows = c->rows,
        .in_features = c->in,
        .head = c->head,
        .dtype = CDP_DTYPE_I64,
        .gather_again = c->again,
        .no_grad_x = c->no_grad_x,
        .input = c->input ? &input : NULL};
    memset(p->dx, 0, sizeof p->dx);
    for (uint32_t k = 0; k < c->layers; ++k) {
        const layer_case one = {.rows = c->rows, .in = c->in, .out = outs[k]};
        layer_alone(&one, &p->whole[k]);
        d.out_features = outs[k];
        if (!OK(cdp_tp_create(&d, &tp[k]))) abort();
        d.x_of = tp[k]; /* the first one, or one that has x from there */
        const cdp_tp_layouts *l = cdp_tp_layouts_of(tp[k]);
        piece_of(&l->weight, p->whole[k].w, p->piece[k].w);
        piece_of(&l->bias, p->whole[k].bias, p->piece[k].bias);
        piece_of(&l->y, p->whole[k].dy, p->piece[k].dy);
        for (uint64_t i = 0; i < c->rows * c->in; ++i)
            p->dx[i] += p->whole[k].dx[i];
    }
    const cdp_layout *x = &cdp_tp_layouts_of(tp[0])->x;
    cdp_layout x_of = *x;
    if (input.kind == CDP_PLACE_PARTIAL) x_of.place[0].kind = CDP_PLACE_REPLICATE;
    piece_of(&x_of, p->whole[0].x, p->x);
    if (input.kind == CDP_PLACE_PARTIAL)
        contribution_of(c->rows * c->in, cdp_rank(m->all->group), m->count, p->x);
    *x_elements = cdp_layout_box(x, NULL, NULL);
}

static uint64_t calls_of(cdp_mesh *m, bool backward) {
    const cdp_comm_count c = cdp_counts(m, "shared", backward);
    uint64_t calls = 0;
    for (uint32_t i = 0; i < CDP_COLL_COUNT; ++i)
        calls += c.calls[i];
    return calls;
}

/* Forward and backward of all of them, and how many operations they are. */
static void share_pass(cdp_mesh *m, const share_case *c, cdp_tp *const tp[SHARERS], share_data *p,
    const int64_t *x, int64_t *dx) {
    const bool cut = m->count > 1 && c->input && c->input[0] != 'R';
    cdp_counts_clear(m);
    OK(cdp_count_begin(m, "shared"));
    for (uint32_t k = 0; k < c->layers; ++k)
        OK(cdp_tp_forward(tp[k], x, p->piece[k].w, p->piece[k].bias, p->piece[k].y));
    T_EQ(cut, calls_of(m, false));
    for (uint32_t k = c->layers; k-- > 0;)
        OK(cdp_tp_backward(tp[k], x, p->piece[k].w, p->piece[k].dy, k ? NULL : dx, p->piece[k].dw,
            p->piece[k].db));
    T_EQ((cut && c->again) + (m->count > 1 && !c->no_grad_x), calls_of(m, true));
    T_EQ(cut, calls_of(m, false));
    cdp_count_end(m);
}

static void share_run(cdp_group *g, void *arg) {
    const share_case *c = (const share_case *)arg;
    cdp_mesh *m = line_of(g);
    share_data *p = (share_data *)calloc(1, sizeof *p);
    int64_t *dx = (int64_t *)calloc(1024, sizeof *dx);
    cdp_tp *tp[SHARERS];
    uint64_t n;
    if (!p || !dx) abort();
    share_layers(m, c, tp, p, &n);
    cdp_layout dx_of = cdp_tp_layouts_of(tp[0])->x;
    if (c->input && c->input[0] == 'P') dx_of.place[0].kind = CDP_PLACE_REPLICATE;
    for (int64_t turn = 1; turn <= 3; ++turn) { /* sums do not stay for the next turn */
        share_pass(m, c, tp, p, n ? p->x : NULL, n && !c->no_grad_x ? dx : NULL);
        if (!c->no_grad_x) T(piece_is(&dx_of, p->dx, dx));
        for (uint32_t k = 0; k < c->layers; ++k) {
            const cdp_tp_layouts *l = cdp_tp_layouts_of(tp[k]);
            T(piece_is(&l->y, p->whole[k].y, p->piece[k].y));
            if (turn < 3) continue; /* gradients of parameters are added to */
            for (uint64_t i = 0; i < 1024; ++i)
                p->whole[k].dw[i] *= turn;
            for (uint64_t i = 0; i < 64; ++i)
                p->whole[k].db[i] *= turn;
            T(piece_is(&l->weight, p->whole[k].dw, p->piece[k].dw));
            T(piece_is(&l->bias, p->whole[k].db, p->piece[k].db));
        }
    }
    for (uint32_t k = c->layers; k-- > 0;)
        cdp_tp_destroy(tp[k]);
    free(p);
    free(dx);
    cdp_mesh_destroy(m);
}

TEST(layers_that_share_x_equal_one_process) {
    static const char *const inputs[] = {"S0", "P", "R", "S1", NULL};
    uint32_t done = 0;
    for (uint32_t n = 1; n <= 8; ++n)
        for (uint32_t i = 0; i < 20 && !test__now.failed_checks; ++i) {
            share_case c = {.input = inputs[i % 5],
                .again = i % 2 != 0,
                .no_grad_x = i % 7 == 6,
                .rows = 1 + (i * 3 + n) % 11,
                .in = 3 + i % 6,
                .head = 1 + i % 2,
                .layers = 2 + i / 10};
            RUN(n, share_run, &c);
            ++done;
        }
    printf("  %u sets of layers\n", done);
}

/* What a Llama block sends under sequence parallelism: q, k, v, o, gate, up, down. */
static void llama_run(cdp_group *g, void *arg) {
    enum {
        ROWS = 8,
        WIDTH = 6,
        LAYERS = 7
    };
    static const uint64_t outs[LAYERS] = {6, 2, 2, 6, 12, 12, 6};
    const bool first = *(const bool *)arg;
    const cdp_place cut = {.kind = CDP_PLACE_SHARD};
    cdp_mesh *m = line_of(g);
    cdp_tp *tp[LAYERS];
    int64_t x[ROWS * 12] = {1}, w[144] = {2}, y[ROWS * 12] = {3}, dx[ROWS * 12], dw[144];
    for (uint32_t k = 0; k < LAYERS; ++k) {
        const bool row = k == 3 || k == 6;
        cdp_tp_desc d = {.mesh = m,
            .style = row ? CDP_TP_ROW : CDP_TP_COLUMN,
            .rows = ROWS,
            .in_features = k == 6 ? 12 : WIDTH,
            .out_features = outs[k],
            .input = row ? NULL : &cut,
            .output = row ? &cut : NULL,
            .dtype = CDP_DTYPE_I64,
            .no_grad_x = first && k < 3};
        if (k == 1 || k == 2) d.x_of = tp[0];
        if (k == 5) d.x_of = tp[4];
        OK(cdp_tp_create(&d, &tp[k]));
    }
    OK(cdp_count_begin(m, "shared"));
    for (uint32_t k = 0; k < LAYERS; ++k)
        OK(cdp_tp_forward(tp[k], x, w, NULL, y));
    for (uint32_t k = LAYERS; k-- > 0;)
        OK(cdp_tp_backward(tp[k], x, w, y, dx, dw, NULL));
    for (uint32_t back = 0; back < 2; ++back) {
        const cdp_comm_count c = cdp_counts(m, "shared", back);
        const uint64_t scatters = back && first ? 1 : 2, bytes = ROWS * WIDTH / 4 * 3 * 8;
        T_EQ(2, c.calls[CDP_COLL_ALLGATHER]);
        T_EQ(scatters, c.calls[CDP_COLL_REDUCE_SCATTER]);
        T_EQ(2 + scatters, calls_of(m, back));
        T_EQ(2 * bytes, c.bytes[CDP_COLL_ALLGATHER]);
        T_EQ(scatters * bytes, c.bytes[CDP_COLL_REDUCE_SCATTER]);
    }
    cdp_count_end(m);
    for (uint32_t k = LAYERS; k-- > 0;)
        cdp_tp_destroy(tp[k]);
    cdp_mesh_destroy(m);
}

TEST(a_llama_block_gathers_twice_each_way) {
    for (uint32_t i = 0; i < 2; ++i) {
        bool first = i == 1; /* the block's x needs no gradient */
        RUN(4, llama_run, &first);
    }
}

/* Calls out of order are refused before anything is sent; those in order go on after them. */
static void share_order_run(cdp_group *g, void *arg) {
    const share_case c = {.input = "S0", .rows = 9, .in = 4, .head = 1, .layers = 3};
    cdp_mesh *m = line_of(g);
    share_data *p = (share_data *)calloc(1, sizeof *p);
    int64_t *dx = (int64_t *)calloc(1024, sizeof *dx), w[64] = {0}, y[64];
    cdp_tp *tp[SHARERS];
    uint64_t n, calls = 0;
    (void)arg;
    if (!p || !dx) abort();
    share_layers(m, &c, tp, p, &n);
    REFUSED(CDP_ERR_STATE, "x_of has no x yet", cdp_tp_forward(tp[1], p->x, w, NULL, y));
    share_pass(m, &c, tp, p, p->x, dx);
    cdp_counts_clear(m);
    OK(cdp_count_begin(m, "shared"));
    REFUSED(CDP_ERR_INVALID, "pass the same array", cdp_tp_forward(tp[2], p->dx, w, NULL, y));
    REFUSED(CDP_ERR_STATE, "0 of the 2 layers that share x ran",
        cdp_tp_backward(tp[0], p->x, w, y, dx, NULL, NULL));
    T_EQ(0, calls_of(m, true));
    OK(cdp_tp_backward(tp[2], p->x, w, y, NULL, NULL, NULL));
    REFUSED(CDP_ERR_STATE, "that of x_of is next",
        cdp_tp_backward(tp[2], p->x, w, y, NULL, NULL, NULL));
    REFUSED(CDP_ERR_STATE, "1 of the 2 layers that share x ran",
        cdp_tp_backward(tp[0], p->x, w, y, dx, NULL, NULL));
    share_pass(m, &c, tp, p, p->x, dx); /* forward of x_of begins anew */
    T(piece_is(&cdp_tp_layouts_of(tp[0])->x, p->dx, dx));
    for (uint32_t k = 0; k < 3; ++k) /* a call that added, and failed then, has no second try */
        OK(cdp_tp_forward(tp[k], p->x, p->piece[k].w, p->piece[k].bias, p->piece[k].y));
    tp[1]->begun = tp[0]->turn;
    REFUSED(CDP_ERR_STATE, "begin again with the forward of x_of",
        cdp_tp_backward(tp[1], p->x, w, y, NULL, NULL, NULL));
    tp[1]->begun = 0;
    OK(cdp_tp_backward(tp[1], p->x, w, y, NULL, NULL, NULL));
    OK(cdp_tp_backward(tp[2], p->x, w, y, NULL, NULL, NULL));
    tp[0]->begun = tp[0]->turn;
    REFUSED(CDP_ERR_STATE, "begin again with the forward of x_of",
        cdp_tp_backward(tp[0], p->x, w, y, dx, NULL, NULL));
    share_pass(m, &c, tp, p, p->x, dx);
    T(piece_is(&cdp_tp_layouts_of(tp[0])->x, p->dx, dx));
    if (cdp_rank(g) == 0) { /* a product fails on one rank, and no rank waits */
        tp[1]->desc.blas.gemm = gemm_that_fails;
        tp[1]->desc.blas.user = &calls;
    }
    const cdp_status want = cdp_rank(g) == 0 ? CDP_ERR_NOMEM : CDP_OK;
    T_EQ(want, cdp_tp_backward(tp[1], p->x, w, y, NULL, p->piece[1].dw, NULL));
    tp[1]->desc.blas.gemm = NULL;
    cdp_tp_destroy(tp[2]); /* one fewer shares x */
    OK(cdp_tp_backward(tp[0], p->x, w, y, dx, NULL, NULL));
    cdp_tp_destroy(tp[0]); /* too early */
    REFUSED(CDP_ERR_STATE, "x_of of this one was destroyed",
        cdp_tp_backward(tp[1], p->x, w, y, NULL, NULL, NULL));
    REFUSED(
        CDP_ERR_STATE, "x_of of this one was destroyed", cdp_tp_forward(tp[1], p->x, w, NULL, y));
    T(!cdp_tp_edge(tp[1], false));
    cdp_tp_destroy(tp[1]);
    T_EQ(CDP_OK, cdp_group_status(g));
    cdp_count_end(m);
    free(p);
    free(dx);
    cdp_mesh_destroy(m);
}

TEST(layers_that_share_x_run_in_order) {
    RUN(3, share_order_run, NULL);
}

TEST(layers_that_cannot_share_x_are_refused) {
    const cdp_place cut = {.kind = CDP_PLACE_SHARD};
    cdp_mesh *m, *square;
    cdp_tp *of, *tp;
    paper_meshes(&m, &square);
    cdp_tp_desc like = {.mesh = m, .rows = 4, .in_features = 4, .out_features = 4, .input = &cut};
    OK(cdp_tp_create(&like, &of));
    like.x_of = of;
    OK(cdp_tp_create(&like, &tp)); /* on paper: layouts and costs */
    T(cdp_tp_edge(tp, false) == cdp_tp_edge(of, false));
    cdp_tp_destroy(tp);
    cdp_tp_desc d = like;
    d.rows = 5;
    REFUSED(CDP_ERR_INVALID, "cdp_tp_create: rows differs", cdp_tp_create(&d, &tp));
    d = like;
    d.in_features = 3;
    REFUSED(CDP_ERR_INVALID, "in_features differs", cdp_tp_create(&d, &tp));
    d = like;
    d.dtype = CDP_DTYPE_F64;
    REFUSED(CDP_ERR_INVALID, "dtype differs", cdp_tp_create(&d, &tp));
    d = like;
    d.wire = CDP_DTYPE_BF16;
    REFUSED(CDP_ERR_INVALID, "wire differs", cdp_tp_create(&d, &tp));
    d = like;
    d.gather_again = true;
    REFUSED(CDP_ERR_INVALID, "gather_again differs", cdp_tp_create(&d, &tp));
    d = like;
    d.no_grad_x = true;
    REFUSED(CDP_ERR_INVALID, "no_grad_x differs", cdp_tp_create(&d, &tp));
    d = like;
    d.input = NULL;
    REFUSED(CDP_ERR_INVALID, "input differs", cdp_tp_create(&d, &tp));
    d.grad_x_partial = true;
    REFUSED(CDP_ERR_INVALID, "grad_x_partial differs", cdp_tp_create(&d, &tp));
    d = like;
    d.style = CDP_TP_ROW;
    REFUSED(CDP_ERR_INVALID, "x_of is for COLUMN", cdp_tp_create(&d, &tp));
    d.style = CDP_TP_COLUMN;
    d.mesh = NULL;
    REFUSED(CDP_ERR_INVALID, "desc.mesh is NULL", cdp_tp_create(&d, &tp));
    cdp_tp_destroy(of);
    REFUSED(CDP_ERR_STATE, "has its x, was destroyed", cdp_tp_create(&like, &tp));
    cdp_mesh_destroy(m);
    cdp_mesh_destroy(square);
}

TEST(bad_layers_are_refused) {
    cdp_mesh *two, *m;
    cdp_tp *tp;
    uint32_t calls = 0;
    paper_meshes(&m, &two);
    cdp_tp_desc d = {.mesh = two, .rows = 4, .in_features = 4, .out_features = 4};
    REFUSED(CDP_ERR_INVALID, "2 dimensions; take one of them", cdp_tp_create(&d, &tp));
    d.mesh = m;
    d.rows = 0;
    REFUSED(CDP_ERR_INVALID, "set all three", cdp_tp_create(&d, &tp));
    d.rows = 4;
    d.dtype = CDP_DTYPE_BF16;
    REFUSED(CDP_ERR_UNSUPPORTED, "set blas.gemm", cdp_tp_create(&d, &tp));
    d.dtype = CDP_DTYPE_I32;
    d.wire = CDP_DTYPE_BF16;
    REFUSED(CDP_ERR_INVALID, "dtype is no float", cdp_tp_create(&d, &tp));
    d.wire = CDP_DTYPE_DEFAULT;
    cdp_place p = {.kind = CDP_PLACE_PARTIAL};
    d.output = &p;
    REFUSED(CDP_ERR_INVALID, "output is PARTIAL", cdp_tp_create(&d, &tp));
    d.output = NULL;
    d.input = &p;
    d.embedding = true;
    REFUSED(CDP_ERR_INVALID, "ids are no sum", cdp_tp_create(&d, &tp));
    d.embedding = false;
    p.op = CDP_REDUCE_MAX;
    REFUSED(CDP_ERR_UNSUPPORTED, "no linear gradient", cdp_tp_create(&d, &tp));
    d.grad_x_partial = true;
    REFUSED(CDP_ERR_INVALID, "with a replicated input", cdp_tp_create(&d, &tp));
    d.input = NULL;
    d.style = CDP_TP_ROW;
    REFUSED(CDP_ERR_INVALID, "with a replicated input", cdp_tp_create(&d, &tp));
    d.style = CDP_TP_COLUMN;
    d.grad_x_partial = false;
    d.output = &p;
    p.op = CDP_REDUCE_DEFAULT;
    p.kind = CDP_PLACE_SHARD;
    p.dim = 2;
    REFUSED(CDP_ERR_INVALID, "shards dimension 2", cdp_tp_create(&d, &tp));
    d.output = NULL;
    d.style = (cdp_tp_style)9;
    REFUSED(CDP_ERR_INVALID, "cdp_tp_style", cdp_tp_create(&d, &tp));
    d.style = CDP_TP_COLUMN;
    OK(cdp_tp_create(&d, &tp)); /* on paper: layouts and costs, no run */
    T_EQ(0, cdp_edge_info(cdp_tp_edge(tp, false), false).total_bytes);
    T(cdp_edge_info(cdp_tp_edge(tp, false), true).total_bytes > 0);
    REFUSED(CDP_ERR_STATE, "on paper", cdp_tp_forward(tp, &d, &d, NULL, &d));
    cdp_tp_destroy(tp);
    cdp_tp_destroy(NULL);
    REFUSED(CDP_ERR_INVALID, "NULL", cdp_tp_create(NULL, &tp));
    cdp_mesh_destroy(m);
    cdp_mesh_destroy(two);
    (void)calls;
}

static void bad_runs(cdp_group *g, void *arg) {
    cdp_mesh *m = line_of(g);
    int64_t x[16] = {0}, w[16] = {0}, y[16];
    int32_t ids[4] = {0, 1, 77, 3};
    uint32_t calls = 0;
    cdp_tp *tp;
    (void)arg;
    cdp_tp_desc d = {.mesh = m,
        .rows = 4,
        .in_features = 4,
        .out_features = 4,
        .dtype = CDP_DTYPE_I64,
        .blas = {gemm_that_fails, &calls},
        .style = CDP_TP_ROW};
    OK(cdp_tp_create(&d, &tp));
    REFUSED(CDP_ERR_INVALID, "cdp_tp_forward: w is NULL", cdp_tp_forward(tp, x, NULL, NULL, y));
    REFUSED(CDP_ERR_INVALID, "cdp_tp_backward: grad_y is NULL",
        cdp_tp_backward(tp, x, w, NULL, NULL, w, NULL));
    REFUSED(CDP_ERR_INVALID, "set .no_grad_x", cdp_tp_backward(tp, x, w, y, NULL, w, NULL));
    REFUSED(CDP_ERR_NOMEM, "library of products", cdp_tp_forward(tp, x, w, NULL, y));
    T_EQ(1, calls);
    if (cdp_rank(g) == 0) tp->desc.blas.gemm = NULL; /* it fails on one rank, and no rank waits */
    const cdp_status want = cdp_rank(g) == 0 ? CDP_OK : CDP_ERR_NOMEM;
    T_EQ(want, cdp_tp_forward(tp, x, w, NULL, y));
    T_EQ(want, cdp_tp_backward(tp, x, w, y, x, w, NULL));
    T_EQ(CDP_OK, cdp_group_status(g));
    cdp_tp_destroy(tp);
    d.embedding = true;
    d.style = CDP_TP_SEQUENCE; /* only one rank has the bad id, and no rank waits */
    const cdp_place all = {.kind = CDP_PLACE_REPLICATE}, rows = {.kind = CDP_PLACE_SHARD};
    d.output = &all;
    d.input = &rows;
    OK(cdp_tp_create(&d, &tp));
    const cdp_status st = cdp_tp_forward(tp, ids + 2 * cdp_rank(g), w, NULL, y);
    T_EQ(cdp_rank(g) == 1 ? CDP_ERR_INVALID : CDP_OK, st);
    if (st != CDP_OK) T_TEXT("ids[0] is 77; the table has 4 rows", cdp_last_error()->text);
    T_EQ(CDP_OK, cdp_group_status(g));
    cdp_tp_destroy(tp);
    cdp_mesh_destroy(m);
}

TEST(a_bad_id_blocks_nobody) {
    RUN(2, bad_runs, NULL);
}

static cdp_status count_block(void *user, uint32_t owner, const void *kv, void *grad) {
    uint32_t *seen = (uint32_t *)user;
    T_EQ(owner * 1000 + 7, ((const uint32_t *)kv)[1]);
    *seen |= 1u << owner;
    if (grad) ((double *)grad)[0] += owner + 1;
    return owner == 2 ? cdp_error_set(CDP_ERR_INVALID, -1, 0, "block 2 is not liked") : CDP_OK;
}

/* Ranks that describe different layers, or pass blocks of different sizes, are told so. */
static void different_run(cdp_group *g, void *arg) {
    cdp_mesh *m = line_of(g);
    const uint32_t me = cdp_rank(g);
    int64_t x[32] = {0}, w[16] = {0}, y[32];
    uint32_t seen = 0, kv[4] = {0, me * 1000 + 7, 0, 0};
    cdp_tp *tp;
    cdp_cp *cp;
    (void)arg;
    const cdp_tp_desc d = {.mesh = m,
        .style = CDP_TP_ROW,
        .rows = me == 1 ? 5u : 4u,
        .in_features = 4,
        .out_features = 4,
        .dtype = CDP_DTYPE_I64};
    OK(cdp_tp_create(&d, &tp));
    REFUSED(CDP_ERR_MISMATCH, "from.shape[0] is 4 on rank 0 and 5 on rank 1",
        cdp_tp_forward(tp, x, w, NULL, y));
    T_EQ(CDP_OK, cdp_group_status(g)); /* it stays usable */
    cdp_tp_destroy(tp);
    const cdp_cp_desc c = {.mesh = m, .length = 4, .heads = 1, .width = 1};
    OK(cdp_cp_create(&c, &cp));
    T(cdp_cp_ring(cp, kv, me == 2 ? 16 : 12, NULL, 0, count_block, &seen) != CDP_OK);
    T(cdp_group_status(cdp_mesh_group(m, 0)) != CDP_OK || me != 2);
    cdp_cp_destroy(cp);
    cdp_mesh_destroy(m);
}

TEST(different_layers_are_told) {
    const uint64_t before = cdp_os_default()->now_ns(cdp_os_default()->user);
    RUN(3, different_run, NULL);
    T_WITHIN(20000, cdp_os_default()->now_ns(cdp_os_default()->user) - before);
}

/* ---- losses ---- */

typedef struct loss_case {
    uint64_t rows, classes;
    bool replicated, narrow;
} loss_case;

static void loss_run(cdp_group *g, void *arg) {
    const loss_case *c = (const loss_case *)arg;
    cdp_mesh *m = line_of(g);
    cdp_layout l = {.mesh = m, .dtype = CDP_DTYPE_F64, .ndim = 2, .shape = {c->rows, c->classes}};
    double x[600], own[600], losses[20], grad[600], want[20];
    int32_t targets[20];
    OK(cdp_layout_parse(&l, c->replicated ? "R" : "S1"));
    for (uint64_t i = 0; i < c->rows * c->classes; ++i)
        x[i] = (double)number(8, i) * 0.7 + (i % 5 == 0 ? 100 : 0);
    for (uint64_t i = 0; i < c->rows; ++i)
        targets[i] = i % 4 == 3 ? -1 : (int32_t)((i * 5 + 1) % c->classes);
    cdp_dtensor t = {.layout = l, .data = own};
    OK(cdp_distribute(&t, x, CDP_EACH));
    cdp_box box;
    (void)cdp_layout_box(&l, NULL, &box);
    OK(cdp_cross_entropy(&l, own, targets, losses, grad, 0.5));
    for (uint64_t i = 0; i < c->rows; ++i) {
        double most = -1e300, sum = 0;
        for (uint64_t j = 0; j < c->classes; ++j)
            most = fmax(most, x[i * c->classes + j]);
        for (uint64_t j = 0; j < c->classes; ++j)
            sum += exp(x[i * c->classes + j] - most);
        want[i] = targets[i] < 0 ? 0 : log(sum) + most - x[i * c->classes + (uint64_t)targets[i]];
        T(fabs(want[i] - losses[i]) < 1e-12 * (1 + fabs(want[i])));
        for (uint64_t j = 0; box.size[0] && j < box.size[1]; ++j) {
            const uint64_t k = box.start[1] + j;
            double d = exp(x[i * c->classes + k] - most) / sum - (k == (uint64_t)targets[i]);
            d = targets[i] < 0 ? 0 : d * 0.5;
            T(fabs(d - grad[i * box.size[1] + j]) < 1e-13);
        }
    }
    OK(cdp_cross_entropy(&l, own, targets, want, own, 0.5)); /* the gradient in place */
    T(memcmp(want, losses, c->rows * sizeof *want) == 0);
    if (box.size[0]) T(memcmp(own, grad, box.size[0] * box.size[1] * sizeof *own) == 0);
    double first[20]; /* all ranks have equal bits */
    memcpy(first, losses, sizeof first);
    OK(cdp_broadcast(g, first, c->rows, CDP_DTYPE_F64, 0));
    T(memcmp(first, losses, c->rows * sizeof *first) == 0);
    targets[1] = (int32_t)c->classes;
    REFUSED(CDP_ERR_INVALID, "targets[1] is", cdp_cross_entropy(&l, own, targets, want, NULL, 1));
    REFUSED(CDP_ERR_INVALID, "cdp_cross_entropy: losses is NULL",
        cdp_cross_entropy(&l, own, targets, NULL, NULL, 1));
    l.dtype = CDP_DTYPE_I32;
    REFUSED(CDP_ERR_UNSUPPORTED, "f32 or f64", cdp_cross_entropy(&l, own, targets, want, NULL, 1));
    l.dtype = CDP_DTYPE_F32;
    OK(cdp_layout_parse(&l, "S0"));
    REFUSED(CDP_ERR_INVALID, "S1 or R", cdp_cross_entropy(&l, own, targets, want, NULL, 1));
    cdp_mesh_destroy(m);
}

TEST(loss_parallel) {
    static const loss_case cases[] = {{9, 30, false, false}, {9, 30, true, false},
        {5, 7, false, false}, {5, 2, false, false} /* fewer classes than ranks */};
    for (uint32_t n = 1; n <= 4; ++n)
        for (uint32_t k = 0; k < 4; ++k)
            RUN(n, loss_run, (void *)(uintptr_t)&cases[k]);
}

/* Row by row: one logit is not finite, or all are; `class` is the last rank's last one. */
static void losses_not_finite(cdp_group *g, void *arg) {
    enum {
        ROWS = 6
    };
    const double bad[ROWS] = {NAN, INFINITY, -INFINITY, -INFINITY, 0, -INFINITY};
    const uint32_t n = cdp_size(g), last = 4 * n - 1;
    const int32_t targets[ROWS] = {0, 0, 0, (int32_t)last, 1, 2};
    cdp_mesh *m = line_of(g);
    cdp_layout l = {.mesh = m, .dtype = *(const cdp_dtype *)arg, .ndim = 2, .shape = {ROWS, 4 * n}};
    double x[ROWS * 4], losses[ROWS], grad[ROWS * 4];
    OK(cdp_layout_parse(&l, "S1"));
    for (uint64_t i = 0; i < ROWS; ++i)
        for (uint64_t j = 0; j < 4; ++j) {
            const bool whole = i == 5 || (i == 2 && cdp_rank(g) > 0); /* a piece of -infinities */
            const bool is_bad = whole || (cdp_rank(g) == n - 1 && j == 3);
            cdp__number_put(l.dtype, x, i * 4 + j, is_bad ? bad[i] : 0.25 * (double)j);
        }
    OK(cdp_cross_entropy(&l, x, targets, losses, grad, 1));
    for (uint64_t i = 0; i < ROWS; ++i) {
        const double loss = cdp__number_get(l.dtype, losses, i);
        double sum = 0;
        for (uint64_t j = 0; j < 4; ++j)
            sum += cdp__number_get(l.dtype, grad, i * 4 + j);
        if (i == 3) T(loss > 0 && isinf(loss));
        if (i == 0 || i == 1 || i == 5) T(isnan(loss) && isnan(sum));
        if (i == 2 || i == 4) T(isfinite(loss) && loss > 0.5 && isfinite(sum));
    }
    cdp_mesh_destroy(m);
}

TEST(losses_of_numbers_that_are_not_finite) {
    for (uint32_t n = 1; n <= 3; ++n)
        for (uint32_t d = CDP_DTYPE_F32; d <= CDP_DTYPE_F64; ++d) {
            cdp_dtype dtype = (cdp_dtype)d;
            RUN(n, losses_not_finite, &dtype);
        }
}

/* The same as the plain loops, counted; fails if it is told to. */
typedef struct own_loss {
    uint32_t calls;
    bool fails;
} own_loss;
static cdp_status own_exponentials(void *user, cdp_dtype t, uint64_t rows, uint64_t classes,
    const void *x, void *e, double *most, double *sum) {
    own_loss *own = (own_loss *)user;
    T_EQ(CDP_DTYPE_F32, t);
    ++own->calls;
    for (uint64_t i = 0; i < rows; ++i) {
        most[i] = -INFINITY;
        sum[i] = 0;
        for (uint64_t j = i * classes; j < (i + 1) * classes; ++j)
            most[i] = fmax(most[i], ((const float *)x)[j]);
        for (uint64_t j = i * classes; j < (i + 1) * classes; ++j) {
            const double p = exp(((const float *)x)[j] - most[i]);
            sum[i] += p;
            if (e) ((float *)e)[j] = (float)p;
        }
    }
    return own->fails ? cdp_error_set(CDP_ERR_IO, -1, 0, "the kernel does not like it") : CDP_OK;
}

/* Long rows of f32, whose lengths are no multiples of anything, beside doubles; a kernel of one's
   own gets the same; one that fails on one rank blocks nobody. */
static void loss_long(cdp_group *g, void *arg) {
    enum {
        ROWS = 3,
        CLASSES = 1037
    };
    cdp_mesh *m = line_of(g);
    cdp_layout l = {.mesh = m, .ndim = 2, .shape = {ROWS, CLASSES}};
    static const int32_t targets[ROWS] = {0, CLASSES - 1, 500};
    float *x = (float *)calloc(4 * ROWS * CLASSES, sizeof *x), losses[2][ROWS];
    float *own = x + ROWS * CLASSES, *grad[2] = {own + ROWS * CLASSES, own + 2 * ROWS * CLASSES};
    own_loss state = {0, false};
    const cdp_loss_kernel kernel = {own_exponentials, &state};
    cdp_box box;
    (void)arg;
    if (!x || !OK(cdp_layout_parse(&l, "S1"))) abort();
    for (uint64_t i = 0; i < ROWS * CLASSES; ++i)
        x[i] = (float)number(8, i) * 1.7f + (i == 1500 ? 90.0f : 0.0f);
    cdp_dtensor t = {.layout = l, .data = own};
    OK(cdp_distribute(&t, x, CDP_EACH));
    (void)cdp_layout_box(&l, NULL, &box);
    OK(cdp_cross_entropy(&l, own, targets, losses[0], grad[0], 65536));
    OK(cdp_cross_entropy_with(&l, own, targets, losses[1], grad[1], 65536, &kernel));
    T_EQ(1, state.calls);
    for (uint64_t i = 0; i < ROWS; ++i) {
        const float *row = x + i * CLASSES;
        double most = -1e300, sum = 0;
        for (uint64_t j = 0; j < CLASSES; ++j)
            most = fmax(most, (double)row[j]);
        for (uint64_t j = 0; j < CLASSES; ++j)
            sum += exp((double)row[j] - most);
        const double want = log(sum) + most - (double)row[targets[i]];
        for (uint32_t k = 0; k < 2; ++k) {
            T(fabs(want - (double)losses[k][i]) < 1e-6 * (1 + fabs(want)));
            for (uint64_t j = 0; j < box.size[1]; ++j) {
                const uint64_t at = box.start[1] + j;
                const double is_target = at == (uint64_t)targets[i];
                const double d = (exp((double)row[at] - most) / sum - is_target) * 65536;
                T(fabs(d - (double)grad[k][i * box.size[1] + j])
                    <= 1e-5 * fabs(d) + is_target * 0.01 + 1e-33);
            }
        }
    }
    state.fails = cdp_rank(g) == 0;
    const cdp_status st = cdp_cross_entropy_with(&l, own, targets, losses[1], NULL, 1, &kernel);
    T_EQ(state.fails ? CDP_ERR_IO : CDP_OK, st);
    if (state.fails) T_TEXT("does not like it", cdp_last_error()->text);
    T_EQ(CDP_OK, cdp_group_status(g));
    free(x);
    cdp_mesh_destroy(m);
}

TEST(losses_of_long_rows) {
    for (uint32_t n = 1; n <= 3; ++n)
        RUN(n, loss_long, NULL);
}

/* ---- attention over a cut sequence ---- */

typedef struct cp_case {
    uint64_t length, batch, heads, kv_heads, width;
    bool causal, gather;
    uint32_t own; /* bits: forward, backward in a kernel of our own */
} cp_case;

#define CP_ROOM 4096u
typedef struct cp_arrays {
    double q[CP_ROOM], k[CP_ROOM], v[CP_ROOM], out[CP_ROOM], lse[CP_ROOM], dout[CP_ROOM],
        dq[CP_ROOM], dk[CP_ROOM], dv[CP_ROOM];
} cp_arrays;

static double real_of(uint64_t salt, uint64_t i) {
    return (double)number(salt, i) / 8 + (double)number(salt + 50, i) / 1000;
}

/* Attention by the definition, forward and backward. */
static void attention_alone(const cp_case *c, cp_arrays *a) {
    const uint64_t n = c->length, w = c->width, group = c->heads / c->kv_heads;
    const double scale = 1 / sqrt((double)w);
    double p[128];
    memset(a, 0, sizeof *a);
    for (uint64_t i = 0; i < c->batch * n * c->heads * w; ++i) {
        a->q[i] = real_of(1, i);
        a->dout[i] = real_of(4, i);
    }
    for (uint64_t i = 0; i < c->batch * n * c->kv_heads * w; ++i) {
        a->k[i] = real_of(2, i);
        a->v[i] = real_of(3, i);
    }
    for (uint64_t i = 0; i < c->batch * n; ++i)
        for (uint64_t h = 0; h < c->heads; ++h) {
            const double *q = a->q + (i * c->heads + h) * w, *g = a->dout + (i * c->heads + h) * w;
            double *out = a->out + (i * c->heads + h) * w, *dq = a->dq + (i * c->heads + h) * w;
            const uint64_t keys = c->causal ? i % n + 1 : n;
            double most = -1e300, sum = 0, own = 0;
            for (uint64_t j = 0; j < keys; ++j) {
                const uint64_t at = ((i / n * n + j) * c->kv_heads + h / group) * w;
                p[j] = 0;
                for (uint64_t d = 0; d < w; ++d)
                    p[j] += q[d] * a->k[at + d] * scale;
                most = fmax(most, p[j]);
            }
            for (uint64_t j = 0; j < keys; ++j)
                sum += p[j] = exp(p[j] - most);
            a->lse[i * c->heads + h] = most + log(sum);
            for (uint64_t j = 0; j < keys; ++j)
                for (uint64_t d = 0; d < w; ++d)
                    out[d] +=
                        p[j] / sum * a->v[((i / n * n + j) * c->kv_heads + h / group) * w + d];
            for (uint64_t d = 0; d < w; ++d)
                own += g[d] * out[d];
            for (uint64_t j = 0; j < keys; ++j) {
                const uint64_t at = ((i / n * n + j) * c->kv_heads + h / group) * w;
                double dp = 0;
                for (uint64_t d = 0; d < w; ++d)
                    dp += g[d] * a->v[at + d];
                const double ds = p[j] / sum * (dp - own) * scale;
                for (uint64_t d = 0; d < w; ++d) {
                    a->dv[at + d] += p[j] / sum * g[d];
                    dq[d] += ds * a->k[at + d];
                    a->dk[at + d] += ds * q[d];
                }
            }
        }
}

/* The positions of one rank out of a whole array of `row` numbers per position. */
static void cp_take(const cp_case *c, const uint64_t start[2], const uint64_t size[2],
    const double *whole, uint64_t row, double *out) {
    for (uint64_t b = 0; b < c->batch; ++b)
        for (uint32_t part = 0; part < 2; ++part) {
            memcpy(
                out, whole + (b * c->length + start[part]) * row, size[part] * row * sizeof *out);
            out += size[part] * row;
        }
}

static bool cp_near(const double *want, const double *got, uint64_t n) {
    for (uint64_t i = 0; i < n; ++i)
        if (!(fabs(want[i] - got[i]) <= 1e-12 * (1 + fabs(want[i])))) return false;
    return true;
}

/* A kernel by the definition, in doubles. */
typedef struct own_attention {
    uint64_t blocks, triangles;
    bool fails;
} own_attention;

/* exp(scores of one query and head); returns their sum. */
static double own_weights(const cdp_attention_block *b, uint64_t i, uint64_t h, const double *q,
    const double *k, double *p) {
    const uint64_t group = b->heads / b->kv_heads, keys = b->causal ? i + 1 : b->keys;
    double sum = 0;
    for (uint64_t j = 0; j < b->keys; ++j) {
        double score = 0;
        for (uint64_t d = 0; d < b->width; ++d)
            score += q[(i * b->heads + h) * b->width + d]
                * k[(j * b->kv_heads + h / group) * b->width + d];
        p[j] = j < keys ? exp(score * b->scale) : 0;
        sum += p[j];
    }
    return sum;
}

static cdp_status own_called(void *user, const cdp_attention_block *b) {
    own_attention *own = (own_attention *)user;
    ++own->blocks;
    own->triangles += b->causal;
    T(b->dtype == CDP_DTYPE_F64 && b->rows && b->keys && (!b->causal || b->rows == b->keys));
    return own->fails ? cdp_error_set(CDP_ERR_IO, -1, 0, "no more attention") : CDP_OK;
}

static cdp_status own_forward(void *user, const cdp_attention_block *b, const void *q,
    const void *k, const void *v, void *out, void *lse) {
    double p[128];
    for (uint64_t x = 0; x < b->rows * b->heads; ++x) {
        const uint64_t h = x % b->heads, group = b->heads / b->kv_heads;
        const double sum = own_weights(b, x / b->heads, h, (const double *)q, (const double *)k, p);
        ((double *)lse)[x] = log(sum);
        for (uint64_t d = 0; d < b->width; ++d) {
            double *to = (double *)out + x * b->width + d;
            *to = 0;
            for (uint64_t j = 0; j < b->keys; ++j)
                *to +=
                    p[j] / sum * ((const double *)v)[(j * b->kv_heads + h / group) * b->width + d];
        }
    }
    return own_called(user, b);
}

static cdp_status own_backward(void *user, const cdp_attention_block *b, const void *q,
    const void *k, const void *v, const void *out, const void *lse, const void *grad_out,
    void *grad_q, void *grad_k, void *grad_v) {
    double p[128];
    for (uint64_t x = 0; x < b->rows * b->heads; ++x) {
        const uint64_t h = x % b->heads, group = b->heads / b->kv_heads, w = b->width;
        const double *g = (const double *)grad_out + x * w, *o = (const double *)out + x * w;
        (void)own_weights(b, x / b->heads, h, (const double *)q, (const double *)k, p);
        for (uint64_t j = 0; j < b->keys; ++j) {
            const uint64_t at = (j * b->kv_heads + h / group) * w;
            const double share = p[j] / exp(((const double *)lse)[x]);
            double slope = 0;
            for (uint64_t d = 0; d < w; ++d)
                slope += g[d] * (((const double *)v)[at + d] - o[d]);
            slope *= share * b->scale;
            for (uint64_t d = 0; d < w; ++d) {
                ((double *)grad_q)[x * w + d] += slope * ((const double *)k)[at + d];
                ((double *)grad_k)[at + d] += slope * ((const double *)q)[x * w + d];
                ((double *)grad_v)[at + d] += share * g[d];
            }
        }
    }
    return own_called(user, b);
}

static void cp_run(cdp_group *g, void *arg) {
    const cp_case *c = (const cp_case *)arg;
    cdp_mesh *m = line_of(g);
    own_attention kernel = {0, 0, false};
    cdp_cp_desc d = {.mesh = m,
        .length = c->length,
        .causal = c->causal,
        .gather = c->gather,
        .batch = c->batch,
        .heads = c->heads,
        .kv_heads = c->kv_heads,
        .width = c->width,
        .dtype = CDP_DTYPE_F64};
    cp_arrays *all = (cp_arrays *)malloc(sizeof *all), *own = (cp_arrays *)malloc(sizeof *own),
              *want = (cp_arrays *)malloc(sizeof *want);
    cdp_cp *cp = NULL;
    uint64_t start[2], size[2];
    d.kernel.user = &kernel;
    if (c->own & 1) d.kernel.forward = own_forward;
    if (c->own & 2) d.kernel.backward = own_backward;
    if (!all || !own || !want || !OK(cdp_cp_create(&d, &cp))) abort();
    attention_alone(c, all);
    const uint64_t rows = cdp_cp_rows(&d, cdp_rank(g), start, size) * c->batch;
    const uint64_t qw = c->heads * c->width, kw = c->kv_heads * c->width;
    cp_take(c, start, size, all->q, qw, own->q);
    cp_take(c, start, size, all->k, kw, own->k);
    cp_take(c, start, size, all->v, kw, own->v);
    cp_take(c, start, size, all->dout, qw, own->dout);
    for (uint32_t turn = 0; turn < 2; ++turn) { /* again: the buffers are used once more */
        OK(cdp_cp_attention(cp, own->q, own->k, own->v, own->out, own->lse));
        OK(cdp_cp_attention_backward(
            cp, own->q, own->k, own->v, own->out, own->lse, own->dout, own->dq, own->dk, own->dv));
    }
    cp_take(c, start, size, all->out, qw, want->out);
    cp_take(c, start, size, all->lse, c->heads, want->lse);
    cp_take(c, start, size, all->dq, qw, want->dq);
    cp_take(c, start, size, all->dk, kw, want->dk);
    cp_take(c, start, size, all->dv, kw, want->dv);
    T(cp_near(want->out, own->out, rows * qw));
    T(cp_near(want->lse, own->lse, rows * c->heads));
    T(cp_near(want->dq, own->dq, rows * qw));
    T(cp_near(want->dk, own->dk, rows * kw));
    T(cp_near(want->dv, own->dv, rows * kw));
    T((kernel.blocks != 0) == (c->own != 0 && rows != 0));
    if (c->own == 3 && c->causal) /* a triangle for each chunk, of both directions and turns */
        T_EQ(2 * 2 * 2 * c->batch, kernel.triangles);
    cdp_cp_destroy(cp);
    free(all);
    free(own);
    free(want);
    cdp_mesh_destroy(m);
}

TEST(ring_gather_and_one_process) {
    static const cp_case cases[] = {{12, 2, 2, 2, 3, false, false, 0},
        {7, 1, 2, 1, 2, false, false, 0}, {24, 1, 2, 2, 4, true, false, 0},
        {24, 2, 4, 2, 2, true, false, 0}, {120, 1, 2, 1, 8, true, false, 0},
        {101, 1, 1, 1, 5, false, false, 0} /* several tiles */,
        {2, 1, 1, 1, 5, false, false, 0} /* fewer positions than ranks */};
    uint32_t done = 0;
    for (uint32_t n = 1; n <= 4; ++n)
        for (uint32_t k = 0; k < 7; ++k)
            for (uint32_t gather = 0; gather < 2 && !test__now.failed_checks; ++gather) {
                cp_case c = cases[k];
                c.gather = gather != 0;
                RUN(n, cp_run, &c);
                ++done;
            }
    printf("  %u rings and gathers\n", done);
}

/* Either direction, or both, in a kernel of one's own. */
TEST(attention_in_a_kernel_of_ones_own) {
    static const cp_case cases[] = {{12, 2, 2, 2, 3, false, false, 0},
        {7, 1, 2, 1, 2, false, false, 0}, {24, 2, 4, 2, 2, true, false, 0},
        {120, 1, 2, 1, 8, true, false, 0},
        {2, 1, 1, 1, 5, false, false, 0} /* fewer positions than ranks */};
    for (uint32_t n = 1; n <= 4; ++n)
        for (uint32_t k = 0; k < 5; ++k)
            for (uint32_t how = 0; how < 4 && !test__now.failed_checks; ++how) {
                cp_case c = cases[k];
                c.gather = how == 3;
                c.own = how == 3 ? 3 : how + 1;
                RUN(n, cp_run, &c);
            }
}

/* Rank 1's kernel fails: it says so; the others have their results, and no part of a gradient. */
static void attention_fails(cdp_group *g, void *arg) {
    cdp_mesh *m = line_of(g);
    own_attention own = {0, 0, cdp_rank(g) == 1};
    const cdp_cp_desc d = {.mesh = m,
        .length = 6,
        .heads = 1,
        .width = 2,
        .gather = *(const bool *)arg,
        .dtype = CDP_DTYPE_F64,
        .kernel = {own_forward, own_backward, &own}};
    double x[4] = {1, 2, 3, 4}, out[4], lse[2], dq[4], dk[4], dv[4];
    cdp_cp *cp;
    if (!OK(cdp_cp_create(&d, &cp))) abort();
    cdp_status st = cdp_cp_attention(cp, x, x, x, out, lse);
    T_EQ(own.fails ? CDP_ERR_IO : CDP_OK, st);
    if (own.fails) T_TEXT("no more attention", cdp_last_error()->text);
    if (own.fails) T_EQ(1, own.blocks);
    own.fails = false;
    OK(cdp_cp_attention(cp, x, x, x, out, lse));
    own.fails = cdp_rank(g) == 1;
    st = cdp_cp_attention_backward(cp, x, x, x, out, lse, x, dq, dk, dv);
    T_EQ(own.fails ? CDP_ERR_IO : CDP_OK, st);
    for (uint32_t i = 0; i < 4 && !own.fails; ++i)
        T(dq[i] - dq[i] == 0 && dk[i] != dk[i] && dv[i] != dv[i]);
    T_EQ(CDP_OK, cdp_group_status(g));
    cdp_cp_destroy(cp);
    cdp_mesh_destroy(m);
}

TEST(a_kernel_of_attention_that_fails) {
    bool gather = false;
    RUN(3, attention_fails, &gather);
    gather = true;
    RUN(3, attention_fails, &gather);
}

TEST(positions_of_ranks) {
    for (uint32_t n = 1; n < 7; ++n) {
        const cdp_mesh_desc md = {.paper_ranks = n};
        cdp_mesh *m;
        OK(cdp_mesh_create(&md, &m));
        for (uint64_t length = 0; length < 40; ++length)
            for (uint32_t causal = 0; causal < 2; ++causal) {
                const cdp_cp_desc d = {
                    .mesh = m, .length = length, .causal = causal != 0, .heads = 1, .width = 1};
                uint64_t seen = 0, start[2], size[2], work = 0;
                for (uint32_t r = 0; r < n; ++r) {
                    uint64_t own = 0;
                    const uint64_t rows = cdp_cp_rows(&d, r, start, size);
                    T_EQ(rows, size[0] + size[1]);
                    for (uint32_t part = 0; part < 2; ++part)
                        for (uint64_t i = start[part]; i < start[part] + size[part]; ++i) {
                            T(!(seen >> i & 1));
                            seen |= 1ull << i;
                            own += i + 1;
                        }
                    if (causal && r) T_EQ(work, own); /* equal numbers of keys to look at */
                    work = own;
                }
                const bool divides = !causal || length % (2 * n) == 0;
                T_EQ(divides ? (1ull << length) - 1 : 0, seen);
            }
        T_EQ(0, cdp_cp_rows(NULL, 0, (uint64_t[2]){0}, (uint64_t[2]){0}));
        cdp_mesh_destroy(m);
    }
}

TEST(merge_formula) {
    const uint64_t rows = 5, width = 3, keys = 9;
    for (uint64_t cut = 0; cut <= keys; ++cut) { /* keys before and after the cut */
        float out[2][15] = {{0}}, lse[2][5], all[15] = {0}, all_lse[5];
        for (uint64_t i = 0; i < rows; ++i) {
            double sum[3] = {0}, v[3][3] = {{0}};
            for (uint64_t j = 0; j < keys; ++j)
                for (uint32_t k = 0; k < 3; ++k) {
                    const double p = exp(real_of(i + 1, j));
                    if (k < 2 && (j < cut) != (k == 0)) continue;
                    sum[k] += p;
                    for (uint64_t d = 0; d < width; ++d)
                        v[k][d] += p * real_of(9, j * width + d);
                }
            for (uint64_t d = 0; d < width; ++d) {
                for (uint32_t k = 0; k < 2; ++k)
                    out[k][i * width + d] = sum[k] > 0 ? (float)(v[k][d] / sum[k]) : 0;
                all[i * width + d] = (float)(v[2][d] / sum[2]);
            }
            for (uint32_t k = 0; k < 2; ++k)
                lse[k][i] = sum[k] > 0 ? (float)log(sum[k]) : -INFINITY;
            all_lse[i] = (float)log(sum[2]);
        }
        cdp_cp_merge(out[0], lse[0], out[1], lse[1], rows, width);
        for (uint64_t i = 0; i < rows * width; ++i)
            T(fabsf(out[0][i] - all[i]) < 1e-5f);
        for (uint64_t i = 0; i < rows; ++i)
            T(fabsf(lse[0][i] - all_lse[i]) < 1e-5f);
    }
}

/* One key, then one query, is not finite on the last rank; what does not depend on it stays. */
static void attention_not_finite(cdp_group *g, void *arg) {
    const bool gather = *(const bool *)arg;
    const uint32_t n = cdp_size(g);
    const bool last = cdp_rank(g) == n - 1;
    cdp_mesh *m = line_of(g);
    cdp_cp *cp;
    const cdp_cp_desc d = {.mesh = m, .length = 2 * n, .heads = 1, .width = 2, .gather = gather};
    OK(cdp_cp_create(&d, &cp));
    static const float bad[3] = {NAN, INFINITY, -INFINITY};
    for (uint32_t b = 0; b < 3; ++b) {
        float q[4] = {1, 1, 1, 1}, k[4] = {1, 2, 3, 4}, v[4] = {1, 2, 3, 4}, out[4], lse[2];
        float dq[4], dk[4], dv[4];
        if (last) k[0] = bad[b];
        OK(cdp_cp_attention(cp, q, k, v, out, lse));
        for (uint32_t i = 0; i < 4; ++i) /* a key of -infinity weighs nothing */
            T(b == 2 ? isfinite(out[i]) && out[i] >= 1 : isnan(out[i]));
        OK(cdp_cp_attention_backward(cp, q, k, v, out, lse, q, dq, dk, dv));
        if (b < 2) T(isnan(dq[0]) && isnan(dk[1]) && isnan(dv[3]));
        if (last) k[0] = 1;
        if (last) q[0] = bad[b]; /* -infinity: every score of this query is */
        OK(cdp_cp_attention(cp, q, k, v, out, lse));
        T(last ? isnan(out[0]) && isnan(out[1]) : isfinite(out[0]) && isfinite(out[1]));
        T(isfinite(out[2]) && isfinite(out[3]) && isfinite(lse[1]));
    }
    cdp_cp_destroy(cp);
    cdp_mesh_destroy(m);
}

/* A key and a value that are not finite reach no earlier query; f32 is near f64. */
static void attention_causal(cdp_group *g, void *arg) {
    enum {
        LENGTH = 192,
        WIDTH = 4,
        SIZE = LENGTH * WIDTH
    };
    static float x[9][SIZE], lse[LENGTH];
    static double y[9][SIZE], lse_y[LENGTH];
    cdp_mesh *m = line_of(g);
    cdp_cp *cp, *other;
    cdp_cp_desc d = {.mesh = m, .length = LENGTH, .heads = 1, .width = WIDTH, .causal = true};
    (void)arg;
    OK(cdp_cp_create(&d, &cp));
    d.dtype = CDP_DTYPE_F64;
    OK(cdp_cp_create(&d, &other));
    for (uint32_t k = 0; k < 4; ++k)
        for (uint32_t i = 0; i < SIZE; ++i)
            y[k][i] = (double)(x[k][i] = (float)real_of(k + 1, i));
    OK(cdp_cp_attention(cp, x[0], x[1], x[2], x[4], lse));
    OK(cdp_cp_attention_backward(cp, x[0], x[1], x[2], x[4], lse, x[3], x[5], x[6], x[7]));
    OK(cdp_cp_attention(other, y[0], y[1], y[2], y[4], lse_y));
    OK(cdp_cp_attention_backward(other, y[0], y[1], y[2], y[4], lse_y, y[3], y[5], y[6], y[7]));
    for (uint32_t k = 4; k < 8; ++k)
        for (uint32_t i = 0; i < SIZE; ++i)
            T(fabs((double)x[k][i] - y[k][i]) <= 2e-5 * (1 + fabs(y[k][i])));
    for (uint32_t at = 1; at < LENGTH; at += 37) {
        memcpy(x[8], x[2], sizeof x[8]);
        x[8][at * WIDTH] = at % 2 ? NAN : INFINITY;
        OK(cdp_cp_attention(cp, x[0], x[1], x[8], x[4], lse));
        OK(cdp_cp_attention_backward(cp, x[0], x[1], x[8], x[4], lse, x[3], x[5], x[6], x[7]));
        for (uint32_t i = 0; i < LENGTH; ++i) {
            T(isfinite(x[4][i * WIDTH]) == (i < at) && isfinite(lse[i]));
            T(i >= at || isfinite(x[5][i * WIDTH]));
        }
    }
    cdp_cp_destroy(cp);
    cdp_cp_destroy(other);
    cdp_mesh_destroy(m);
}

TEST(later_positions_do_not_reach_earlier_ones) {
    RUN(1, attention_causal, NULL);
}

TEST(attention_to_numbers_that_are_not_finite) {
    for (uint32_t n = 1; n <= 3; ++n)
        for (uint32_t k = 0; k < 2; ++k) {
            bool gather = k != 0;
            RUN(n, attention_not_finite, &gather);
        }
    float out = 1, lse = 0, bad[] = {NAN, NAN, -INFINITY, INFINITY};
    cdp_cp_merge(&out, &lse, &bad[0], &bad[1], 1, 1);
    T(isnan(out) && isnan(lse));
    out = 1;
    lse = 0;
    cdp_cp_merge(&out, &lse, &bad[0], &bad[2], 1, 1); /* no key */
    T(out == 1 && lse == 0);
    cdp_cp_merge(&out, &lse, &out, &bad[3], 1, 1);
    T(isnan(out));
    T(isinf(cdp__dt_exp(1000)) && fabs(cdp__dt_exp(709.7) / exp(709.7) - 1) < 1e-13);
}

/* Exponentials and largest numbers of rows of every length beside those of single numbers. */
TEST(rows_of_exponentials) {
    float x[200], e[200];
    double y[200], d[200];
    static const float odd[] = {NAN, INFINITY, -INFINITY, 88.72f, 88.73f, -87.3f, -87.4f, -3e38f};
    for (uint32_t i = 0; i < 200; ++i) {
        x[i] = (float)i * 0.7f - 70;
        y[i] = (double)x[i] * 7;
    }
    for (uint32_t n = 0; n <= 200; ++n) {
        cdp__dt_exps_f32(e, x, n, 1.0f);
        cdp__dt_exps_f64(d, y, n, 1.0);
        double sum = 0;
        for (uint32_t i = 0; i < n; ++i) {
            const double f = exp((double)(x[i] - 1.0f)), g = exp(y[i] - 1);
            T(fabs((double)e[i] - f) <= 1.3e-7 * f && fabs(d[i] - g) <= 4e-16 * g);
            sum += y[i];
        }
        T(cdp__dt_most_f32(x, n) == (n ? x[n - 1] : -INFINITY));
        T(cdp__dt_most_f64(y, n) == (n ? y[n - 1] : -INFINITY));
        T(fabs(cdp__dt_total_f64(y, n) - sum) < 1e-9);
    }
    for (uint32_t k = 0; k < sizeof odd / sizeof *odd; ++k)
        for (uint32_t at = 0; at < 200; at += 23) {
            float z[200] = {0};
            z[at] = odd[k];
            cdp__dt_exps_f32(e, z, 200, 0);
            const double want = odd[k] < -87.34f ? 0 : (double)expf(odd[k]);
            T(isnan(want)
                    ? isnan(e[at])
                    : fabs((double)e[at] - want) <= 1.3e-7 * want || (isinf(want) && isinf(e[at])));
            T(e[at ? 0 : 1] == 1);
            T(k ? cdp__dt_most_f32(z, 200) == fmaxf(odd[k], 0) : isnan(cdp__dt_most_f32(z, 200)));
        }
}

TEST(functions_of_our_own) {
    for (int32_t i = -7000; i <= 7000; ++i) {
        const double x = i / 10.0 + i * 1e-7;
        T(fabs(cdp__dt_exp(x) - exp(x)) <= 4e-16 * exp(x) * (1 + fabs(x) / 300));
        T(fabs(cdp__dt_ln(exp(x / 10)) - x / 10) <= 1e-13 * (1 + fabs(x)));
    }
    T(cdp__dt_exp(0) == 1 && cdp__dt_exp(-1e300) == 0 && cdp__dt_ln(1) == 0);
    T(isinf(cdp__dt_ln(0)));
}

/* Any bytes; the gradient comes home; an error of a block ends no ring. */
static void ring_run(cdp_group *g, void *arg) {
    cdp_mesh *m = line_of(g);
    const bool gather = *(const bool *)arg;
    const cdp_cp_desc d = {
        .mesh = m, .length = 12, .heads = 1, .width = 1, .dtype = CDP_DTYPE_F64, .gather = gather};
    const uint32_t n = cdp_size(g), me = cdp_rank(g), kv[3] = {0, me * 1000 + 7, 0};
    uint32_t seen = 0;
    double grad[2];
    cdp_cp *cp;
    OK(cdp_cp_create(&d, &cp));
    const cdp_status st = cdp_cp_ring(cp, kv, sizeof kv, grad, 2, count_block, &seen);
    T_EQ(n > 2 ? CDP_ERR_INVALID : CDP_OK, st);
    if (n <= 2) T(grad[0] == (double)(me + 1) * n && seen == (1u << n) - 1);
    T_EQ(CDP_OK, cdp_group_status(g));
    seen = 0;
    T_EQ(st, cdp_cp_ring(cp, kv, sizeof kv, NULL, 0, count_block, &seen));
    REFUSED(CDP_ERR_INVALID, "block is NULL", cdp_cp_ring(cp, kv, 12, NULL, 0, NULL, NULL));
    REFUSED(CDP_ERR_INVALID, "cdp_cp_attention: q is NULL",
        cdp_cp_attention(cp, NULL, kv, kv, grad, grad));
    REFUSED(CDP_ERR_INVALID, "cdp_cp_attention_backward: grad_k is NULL",
        cdp_cp_attention_backward(cp, kv, kv, kv, grad, grad, grad, grad, NULL, grad));
    cdp_cp_destroy(cp);
    cdp_mesh_destroy(m);
}

TEST(rings_of_any_bytes) {
    for (uint32_t gather = 0; gather < 2; ++gather)
        for (uint32_t n = 1; n <= 4; ++n) {
            bool how = gather != 0;
            RUN(n, ring_run, &how);
        }
}

TEST(bad_attention_is_refused) {
    cdp_mesh *m, *two;
    cdp_cp *cp;
    paper_meshes(&m, &two);
    cdp_cp_desc d = {.mesh = m, .length = 12, .causal = true, .heads = 4, .width = 2};
    REFUSED(CDP_ERR_INVALID, "12 does not divide into 2 x 4 chunks", cdp_cp_create(&d, &cp));
    d.length = 16;
    d.kv_heads = 3;
    REFUSED(CDP_ERR_INVALID, "multiple of kv_heads", cdp_cp_create(&d, &cp));
    d.kv_heads = 2;
    d.dtype = CDP_DTYPE_F16;
    REFUSED(CDP_ERR_UNSUPPORTED, "attention of f16", cdp_cp_create(&d, &cp));
    d.scale = -1;
    REFUSED(CDP_ERR_INVALID, "scale is negative", cdp_cp_create(&d, &cp));
    d.scale = 0;
    d.dtype = CDP_DTYPE_F32;
    d.mesh = two;
    REFUSED(CDP_ERR_INVALID, "several dimensions", cdp_cp_create(&d, &cp));
    d.mesh = m;
    d.heads = 0;
    REFUSED(CDP_ERR_INVALID, "heads or width", cdp_cp_create(&d, &cp));
    d.heads = 4;
    OK(cdp_cp_create(&d, &cp));
    REFUSED(CDP_ERR_STATE, "on paper", cdp_cp_attention(cp, &d, &d, &d, &d, &d));
    cdp_cp_destroy(cp);
    cdp_cp_destroy(NULL);
    cdp_mesh_destroy(m);
    cdp_mesh_destroy(two);
}

/* ---- functions of local arrays ---- */

static cdp_status double_rows(void *user, const cdp_dtensor *in, cdp_dtensor *out) {
    ++*(uint32_t *)user;
    const uint64_t n = cdp_layout_box(&in->layout, NULL, NULL);
    for (uint64_t i = 0; out && i < n; ++i)
        ((int64_t *)out->data)[i] = 2 * ((const int64_t *)in->data)[i];
    return CDP_OK;
}

static void map_run(cdp_group *g, void *arg) {
    cdp_mesh *m = line_of(g), *other = line_of(g);
    cdp_layout rows = {.mesh = m, .dtype = CDP_DTYPE_I64, .ndim = 2, .shape = {6, 5}}, columns;
    const cdp_fill ramp = {.kind = CDP_FILL_RAMP, .b = 1};
    cdp_dtensor x, y;
    int64_t full[30];
    uint32_t calls = 0;
    (void)arg;
    OK(cdp_layout_parse(&rows, "S0"));
    columns = rows;
    OK(cdp_layout_parse(&columns, "S1"));
    OK(cdp_dtensor_create(&columns, NULL, &x));
    OK(cdp_dtensor_create(&rows, NULL, &y));
    OK(cdp_dtensor_fill(&x, &ramp));
    cdp_local_map_desc d = {.in = &x,
        .in_count = 1,
        .need = &rows,
        .out = &y,
        .out_count = 1,
        .func = double_rows,
        .user = &calls};
    REFUSED(CDP_ERR_INVALID, "in[0] lies as S1, the function needs S0", cdp_local_map(&d));
    T_EQ(0, calls);
    d.redistribute = true;
    OK(cdp_local_map(&d));
    OK(cdp_dtensor_full(&y, full, CDP_EACH));
    for (int64_t i = 0; i < 30; ++i)
        T_EQ(2 * i, full[i]);
    d.redistribute = false; /* as it lies */
    d.need = &columns;
    d.out_count = 0; /* no tensor comes out */
    d.out = NULL;
    OK(cdp_local_map(&d));
    d.need = NULL;
    OK(cdp_local_map(&d));
    T_EQ(3, calls);
    columns.mesh = other; /* the same ranks: the same data */
    d.need = &columns;
    OK(cdp_local_map(&d));
    d.func = NULL;
    REFUSED(CDP_ERR_INVALID, "func", cdp_local_map(&d));
    cdp_dtensor_free(&x);
    cdp_dtensor_free(&y);
    cdp_mesh_destroy(m);
    cdp_mesh_destroy(other);
}

TEST(local_maps) {
    RUN(3, map_run, NULL);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"layers_equal_one_process", layers_equal_one_process, 60},
        {"tables_equal_one_process", tables_equal_one_process, 60},
        {"tied_table_and_perceptron", tied_table_and_perceptron, 30},
        {"layers_without_memory", layers_without_memory, 20},
        {"layers_share_what_a_call_needs", layers_share_what_a_call_needs, 20},
        {"counts_by_label", counts_by_label, 20},
        {"operations_have_names", operations_have_names, 20},
        {"ranks_without_rows_take_part", ranks_without_rows_take_part, 20},
        {"layers_of_a_sum_equal_one_process", layers_of_a_sum_equal_one_process, 60},
        {"layers_share_a_gather_and_a_sum", layers_share_a_gather_and_a_sum, 30},
        {"layers_that_share_x_equal_one_process", layers_that_share_x_equal_one_process, 60},
        {"a_llama_block_gathers_twice_each_way", a_llama_block_gathers_twice_each_way, 20},
        {"layers_that_share_x_run_in_order", layers_that_share_x_run_in_order, 20},
        {"layers_that_cannot_share_x_are_refused", layers_that_cannot_share_x_are_refused, 10},
        {"bad_layers_are_refused", bad_layers_are_refused, 10},
        {"different_layers_are_told", different_layers_are_told, 60},
        {"a_bad_id_blocks_nobody", a_bad_id_blocks_nobody, 20},
        {"loss_parallel", loss_parallel, 30},
        {"losses_of_long_rows", losses_of_long_rows, 60},
        {"losses_of_numbers_that_are_not_finite", losses_of_numbers_that_are_not_finite, 20},
        {"later_positions_do_not_reach_earlier_ones", later_positions_do_not_reach_earlier_ones,
            60},
        {"attention_to_numbers_that_are_not_finite", attention_to_numbers_that_are_not_finite, 20},
        {"ring_gather_and_one_process", ring_gather_and_one_process, 60},
        {"attention_in_a_kernel_of_ones_own", attention_in_a_kernel_of_ones_own, 60},
        {"a_kernel_of_attention_that_fails", a_kernel_of_attention_that_fails, 20},
        {"positions_of_ranks", positions_of_ranks, 10},
        {"merge_formula", merge_formula, 10},
        {"rows_of_exponentials", rows_of_exponentials, 60},
        {"functions_of_our_own", functions_of_our_own, 10},
        {"rings_of_any_bytes", rings_of_any_bytes, 30},
        {"bad_attention_is_refused", bad_attention_is_refused, 10},
        {"local_maps", local_maps, 20},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
