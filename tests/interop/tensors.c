/* Tensors of cdp_dtensor.h on meshes whose ranks are threads, for ctypes: compiled into a library
   of its own by test_tensors.sh. The structs stand in test_tensors.py, too. */
#define CDP_IMPLEMENTATION
#include "cdp_dtensor.h"
#include "../unit/ranks.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint32_t failed;

static bool fine(cdp_status st, const char *what) {
    if (st == CDP_OK) return true;
    pthread_mutex_lock(&lock);
    ++failed;
    printf("  %s: %s\n", what, cdp_last_error()->text);
    pthread_mutex_unlock(&lock);
    return false;
}

#undef OK
#define OK(CALL) fine(CALL, #CALL)

/* Runs f(group, arg) on each of some ranks; returns how many calls failed. */
static uint32_t on_ranks(uint32_t ranks, void (*f)(cdp_group *g, void *arg), void *arg) {
    failed = 0;
    run_ranks(ranks, NULL, 0, f, arg);
    fflush(stdout);
    return failed;
}

static cdp_mesh *mesh_of(cdp_group *g, uint32_t ndim, const uint32_t *shape) {
    cdp_mesh_desc d = {.group = g, .ndim = ndim};
    cdp_mesh *m = NULL;
    for (uint32_t i = 0; i < ndim; ++i)
        d.shape[i] = shape[i];
    return OK(cdp_mesh_create(&d, &m)) ? m : NULL;
}

/* ---- a tensor is moved ---- */

typedef enum way {
    WAY_PLAN, /* twice: the second run compares nothing */
    WAY_ASYNC,
    WAY_TENSORS, /* cdp_redistribute() */
    WAY_FULL     /* cdp_dtensor_full(): `to` and its mesh are not used */
} way;

/* from_mesh, to_mesh: sizes of dimensions; to_dims 0: the same mesh. in, out: local pieces of each
   rank, NULL where it holds nothing. */
typedef struct move {
    uint32_t ranks, dtype, kind, way, ndim, from_dims, to_dims;
    uint32_t from_mesh[CDP_MESH_DIMS], to_mesh[CDP_MESH_DIMS];
    uint64_t shape[CDP_TENSOR_DIMS];
    const char *from, *to;
    void *const *in, *const *out;
} move;

static bool layout_of(const move *c, const cdp_mesh *m, const char *places, cdp_layout *l) {
    memset(l, 0, sizeof *l);
    l->mesh = m;
    l->dtype = (cdp_dtype)c->dtype;
    l->ndim = c->ndim;
    memcpy(l->shape, c->shape, sizeof l->shape);
    return OK(cdp_layout_parse(l, places));
}

static void run_plan(const move *c, const cdp_plan_desc *d, const void *in, void *out) {
    cdp_plan *p;
    cdp_work work;
    if (!OK(cdp_plan_create(d, &p))) return;
    for (uint32_t k = 0; k < 2; ++k) {
        if (c->way == WAY_PLAN)
            OK(cdp_plan_run(p, in, out));
        else if (OK(cdp_plan_run_async(p, in, out, &work)) && work.group)
            OK(cdp_work_wait(work));
    }
    cdp_plan_destroy(p);
}

static void run_tensors(const cdp_plan_desc *d, void *in, void *out) {
    cdp_dtensor x, y;
    if (!OK(cdp_dtensor_create(&d->from, in, &x)) || !OK(cdp_dtensor_create(&d->to, out, &y)))
        return;
    OK(cdp_redistribute(&x, &y));
    cdp_dtensor_free(&x);
    cdp_dtensor_free(&y);
}

static void move_main(cdp_group *g, void *arg) {
    const move *c = (const move *)arg;
    void *in = c->in[cdp_rank(g)], *out = c->out[cdp_rank(g)];
    cdp_plan_desc d = {.kind = (cdp_plan_kind)c->kind};
    cdp_mesh *from = mesh_of(g, c->from_dims, c->from_mesh);
    cdp_mesh *to = c->to_dims ? mesh_of(g, c->to_dims, c->to_mesh) : from;
    cdp_dtensor x;
    bool ok = from && to && layout_of(c, from, c->from, &d.from);
    if (ok && c->way == WAY_FULL) {
        x.layout = d.from;
        x.data = in;
        x.owned = false;
        OK(cdp_dtensor_full(&x, out, CDP_EACH));
        ok = false;
    }
    if (ok && layout_of(c, to, c->to, &d.to)) {
        if (c->way == WAY_TENSORS)
            run_tensors(&d, in, out);
        else
            run_plan(c, &d, in, out);
    }
    if (to != from) cdp_mesh_destroy(to);
    cdp_mesh_destroy(from);
}

uint32_t tensors_move(move *c) {
    return on_ranks(c->ranks, move_main, c);
}

/* ---- losses ---- */

/* logits: whole; losses, grad: those of each rank, grad with the classes that it has. */
typedef struct loss {
    uint32_t ranks, dtype;
    uint64_t rows, classes;
    double scale;
    const char *places;
    void *const *logits, *const *losses, *const *grad;
    const int32_t *targets;
} loss;

static void loss_main(cdp_group *g, void *arg) {
    const loss *c = (const loss *)arg;
    const uint32_t me = cdp_rank(g);
    cdp_mesh *m = mesh_of(g, 0, NULL);
    cdp_layout l = {
        .mesh = m, .dtype = (cdp_dtype)c->dtype, .ndim = 2, .shape = {c->rows, c->classes}};
    if (!m || !OK(cdp_layout_parse(&l, c->places))) return;
    OK(cdp_cross_entropy(&l, c->logits[me], c->targets, c->losses[me], c->grad[me], c->scale));
    cdp_mesh_destroy(m);
}

uint32_t tensors_loss(loss *c) {
    return on_ranks(c->ranks, loss_main, c);
}

/* ---- attention ---- */

/* Arrays of each rank: those of cdp_cp_attention() and cdp_cp_attention_backward(). */
typedef struct attention {
    uint32_t ranks, dtype, causal, gather;
    uint64_t batch, length, heads, kv_heads, width;
    double scale;
    void *const *q, *const *k, *const *v, *const *grad_out;
    void *const *out, *const *lse, *const *grad_q, *const *grad_k, *const *grad_v;
} attention;

static void attention_main(cdp_group *g, void *arg) {
    const attention *c = (const attention *)arg;
    const uint32_t me = cdp_rank(g);
    cdp_mesh *m = mesh_of(g, 0, NULL);
    cdp_cp_desc d = {.mesh = m,
        .length = c->length,
        .causal = c->causal != 0,
        .gather = c->gather != 0,
        .batch = c->batch,
        .heads = c->heads,
        .kv_heads = c->kv_heads,
        .width = c->width,
        .scale = c->scale,
        .dtype = (cdp_dtype)c->dtype};
    cdp_cp *cp;
    if (!m || !OK(cdp_cp_create(&d, &cp))) return;
    OK(cdp_cp_attention(cp, c->q[me], c->k[me], c->v[me], c->out[me], c->lse[me]));
    OK(cdp_cp_attention_backward(cp, c->q[me], c->k[me], c->v[me], c->out[me], c->lse[me],
        c->grad_out[me], c->grad_q[me], c->grad_k[me], c->grad_v[me]));
    cdp_cp_destroy(cp);
    cdp_mesh_destroy(m);
}

uint32_t tensors_attention(attention *c) {
    return on_ranks(c->ranks, attention_main, c);
}

/* ---- layers ---- */

/* All arrays are whole; results are those of rank 0. input, output: NULL: those of the style. */
typedef struct layer {
    uint32_t ranks, dtype, style, embedding, again;
    uint64_t rows, in_features, out_features, head;
    const char *input, *output;
    const void *x, *w, *bias, *grad_y; /* bias may be NULL */
    void *y, *grad_x, *grad_w, *grad_bias;
} layer;

/* This rank's piece of a tensor; full NULL: zeros. */
static bool piece(cdp_dtensor *t, const cdp_layout *l, const void *full) {
    const cdp_fill zeros = {.kind = CDP_FILL_ZERO};
    if (!OK(cdp_dtensor_create(l, NULL, t))) return false;
    return full ? OK(cdp_distribute(t, full, CDP_EACH)) : OK(cdp_dtensor_fill(t, &zeros));
}

static void whole(cdp_dtensor *t, void *full) {
    OK(cdp_dtensor_full(t, full, 0));
    cdp_dtensor_free(t);
}

static void layer_pieces(const layer *c, cdp_tp *tp, bool root) {
    const cdp_tp_layouts *l = cdp_tp_layouts_of(tp);
    cdp_dtensor x, w, bias, y, dx, dw, db, dy;
    if (!piece(&x, &l->x, c->x) || !piece(&w, &l->weight, c->w) || !piece(&bias, &l->bias, c->bias)
        || !piece(&y, &l->y, NULL) || !piece(&dy, &l->y, c->grad_y) || !piece(&dx, &l->x, NULL)
        || !piece(&dw, &l->weight, NULL) || !piece(&db, &l->bias, NULL))
        return;
    OK(cdp_tp_forward(tp, x.data, w.data, c->bias ? bias.data : NULL, y.data));
    OK(cdp_tp_backward(tp, x.data, w.data, dy.data, c->embedding ? NULL : dx.data, dw.data,
        c->bias ? db.data : NULL));
    whole(&y, root ? c->y : NULL);
    whole(&dw, root ? c->grad_w : NULL);
    if (c->embedding)
        cdp_dtensor_free(&dx);
    else
        whole(&dx, root ? c->grad_x : NULL);
    whole(&db, root ? c->grad_bias : NULL);
    cdp_dtensor_free(&x);
    cdp_dtensor_free(&w);
    cdp_dtensor_free(&bias);
    cdp_dtensor_free(&dy);
}

static cdp_place place_of(const char *text) {
    cdp_place p = {.kind = CDP_PLACE_REPLICATE};
    if (text && text[0] == 'S') {
        p.kind = CDP_PLACE_SHARD;
        p.dim = text[1] - '0';
    }
    return p;
}

static void layer_main(cdp_group *g, void *arg) {
    const layer *c = (const layer *)arg;
    const cdp_place input = place_of(c->input), output = place_of(c->output);
    cdp_mesh *m = mesh_of(g, 0, NULL);
    cdp_tp_desc d = {.mesh = m,
        .style = (cdp_tp_style)c->style,
        .embedding = c->embedding != 0,
        .rows = c->rows,
        .in_features = c->in_features,
        .out_features = c->out_features,
        .head = c->head,
        .dtype = (cdp_dtype)c->dtype,
        .gather_again = c->again != 0,
        .input = c->input ? &input : NULL,
        .output = c->output ? &output : NULL};
    cdp_tp *tp;
    if (!m || !OK(cdp_tp_create(&d, &tp))) return;
    layer_pieces(c, tp, cdp_rank(g) == 0);
    cdp_tp_destroy(tp);
    cdp_mesh_destroy(m);
}

uint32_t tensors_layer(layer *c) {
    return on_ranks(c->ranks, layer_main, c);
}

/* The number of a dtype; 0 if there is none of this name. */
uint32_t tensors_dtype(const char *name) {
    for (uint32_t t = 1; t < 64; ++t)
        if (strcmp(cdp_dtype_name((cdp_dtype)t), name) == 0) return t;
    return 0;
}
