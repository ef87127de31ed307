/*  tensors.h - what the ranks of a group do in the scenarios "tensors": meshes, layers, rings, and
   redistributions of a tensor whose elements are their own indices, between layouts that the seed
   draws. Part of sim_main.c. */
#ifndef TENSORS_INCLUDED
#define TENSORS_INCLUDED

/* A shape of one or two dimensions for all ranks, some of whose factors may be 1. */
static void tensors_mesh_desc(const run *r, uint64_t *s, cdp_group *g, cdp_mesh_desc *d) {
    uint32_t first = (uint32_t)sim_between(s, 1, r->nodes);
    memset(d, 0, sizeof *d);
    while (r->nodes % first)
        ++first;
    d->group = g;
    d->ndim = 2;
    d->shape[0] = first;
    d->shape[1] = r->nodes / first;
}

static void tensors_layout(uint64_t *s, const cdp_mesh *mesh, uint32_t ndim, const uint64_t *shape,
    bool partial, cdp_layout *l) {
    memset(l, 0, sizeof *l);
    l->mesh = mesh;
    l->dtype = CDP_DTYPE_I64;
    l->ndim = ndim;
    memcpy(l->shape, shape, ndim * sizeof *shape);
    for (uint32_t by = 0; by < 2; ++by) {
        const uint64_t kind = sim_between(s, 0, partial ? 3 : 2);
        static const cdp_place_kind kinds[4] = {
            CDP_PLACE_REPLICATE, CDP_PLACE_SHARD, CDP_PLACE_SHARD, CDP_PLACE_PARTIAL};
        l->place[by].kind = kinds[kind];
        l->place[by].dim = (int32_t)sim_between(s, 0, ndim - 1);
        l->place[by].order = (uint32_t)sim_between(s, 0, 1);
    }
}

/* Every element is its index in the whole tensor. */
static void tensors_check(run *r, sim_node *node, const cdp_dtensor *t) {
    cdp_box box;
    const uint64_t n = cdp_layout_box(&t->layout, NULL, &box);
    for (uint64_t i = 0; i < n; ++i) {
        uint64_t rest = i, index = 0, step = 1;
        for (uint32_t d = t->layout.ndim; d-- > 0; step *= t->layout.shape[d]) {
            index += (box.start[d] + rest % box.size[d]) * step;
            rest /= box.size[d];
        }
        if (((int64_t *)t->data)[i] != (int64_t)index) {
            wrong(r, node, "element %llu of the box is %lld, not %llu", (unsigned long long)i,
                (long long)((int64_t *)t->data)[i], (unsigned long long)index);
            return;
        }
    }
}

static cdp_status tensors_move(
    run *r, sim_node *node, const cdp_dtensor *x, cdp_dtensor *y, bool async) {
    cdp_work work;
    cdp_status st;
    call_begin(r, node,
        2 * r->timeout_ms); /* the first run of a plan compares it: an operation of its own */
    if (async) {
        st = cdp_redistribute_async(x, y, &work);
        if (st == CDP_OK) st = cdp_work_wait(work);
    } else {
        st = cdp_redistribute(x, y);
    }
    call_end(r, node, "cdp_redistribute");
    return failed(r, node, st);
}

/* One tensor, through two or three layouts. */
static cdp_status tensors_round(run *r, sim_node *node, const cdp_mesh *mesh, uint64_t *s) {
    const cdp_fill ramp = {CDP_FILL_RAMP, 0, 1, 0, 0};
    const uint32_t ndim = (uint32_t)sim_between(s, 1, 3), hops = (uint32_t)sim_between(s, 1, 2);
    uint64_t shape[3];
    cdp_layout l;
    cdp_dtensor x, y;
    for (uint32_t d = 0; d < 3; ++d)
        shape[d] = sim_between(s, 0, r->tiny ? 3 : 12);
    if (!r->tiny && r->seed % 3 == 2) shape[ndim - 1] *= 9; /* rows that are received in place */
    tensors_layout(s, mesh, ndim, shape, true, &l);
    cdp_status st = failed(r, node, cdp_dtensor_create(&l, NULL, &x));
    if (st == CDP_OK) st = failed(r, node, cdp_dtensor_fill(&x, &ramp));
    for (uint32_t k = 0; k < hops && st == CDP_OK; ++k) {
        const bool async = sim_chance(s, 512);
        tensors_layout(s, mesh, ndim, shape, false, &l);
        st = failed(r, node, cdp_dtensor_create(&l, NULL, &y));
        if (st != CDP_OK) break;
        sim_doing(node, "redistribution");
        st = tensors_move(r, node, &x, &y, async);
        if (st == CDP_OK) tensors_check(r, node, &y);
        cdp_dtensor_free(&x);
        x = y;
    }
    cdp_dtensor_free(&x);
    return st;
}

/* What element `index` of a whole tensor must be. */
typedef int64_t tensors_value(const cdp_tp_desc *d, uint64_t index);

static void tensors_equal(run *r, sim_node *node, const cdp_dtensor *t, const cdp_tp_desc *d,
    tensors_value *value, const char *what) {
    cdp_box box;
    const uint64_t n = cdp_layout_box(&t->layout, NULL, &box);
    for (uint64_t i = 0; i < n; ++i) {
        uint64_t row = i, column = 0;
        if (t->layout.ndim == 2) {
            row = i / box.size[1];
            column = box.start[1] + i % box.size[1];
        }
        const uint64_t columns = t->layout.ndim == 2 ? t->layout.shape[1] : 1;
        const int64_t want = value(d, (box.start[0] + row) * columns + column);
        if (((int64_t *)t->data)[i] == want) continue;
        wrong(r, node, "%s: element %llu of the box is %lld, not %lld", what, (unsigned long long)i,
            (long long)((int64_t *)t->data)[i], (long long)want);
        return;
    }
}

/* x and w are their own indices, the gradient of y is 1. */
static int64_t tensors_y(const cdp_tp_desc *d, uint64_t index) {
    const uint64_t t = index / d->out_features, o = index % d->out_features;
    int64_t sum = 0;
    if (d->embedding) return (int64_t)index; /* id t is row t */
    for (uint64_t i = 0; i < d->in_features; ++i)
        sum += (int64_t)((t * d->in_features + i) * (o * d->in_features + i));
    return sum;
}

static int64_t tensors_dw(const cdp_tp_desc *d, uint64_t index) {
    int64_t sum = 0;
    if (d->embedding) return index / d->out_features < d->rows;
    for (uint64_t t = 0; t < d->rows; ++t)
        sum += (int64_t)(t * d->in_features + index % d->in_features);
    return sum;
}

static int64_t tensors_dx(const cdp_tp_desc *d, uint64_t index) {
    int64_t sum = 0;
    for (uint64_t o = 0; o < d->out_features; ++o)
        sum += (int64_t)(o * d->in_features + index % d->in_features);
    return sum;
}

static void tensors_layer_desc(uint64_t *s, cdp_mesh *line, cdp_place place[2], cdp_tp_desc *d) {
    memset(d, 0, sizeof *d);
    memset(place, 0, 2 * sizeof *place);
    d->mesh = line;
    d->style = (cdp_tp_style)sim_between(s, 0, 2);
    d->embedding = sim_chance(s, 300);
    d->rows = sim_between(s, 1, 5);
    d->in_features = sim_between(s, 1, 6) + (d->embedding ? d->rows : 0);
    d->out_features = sim_between(s, 1, 6);
    d->dtype = CDP_DTYPE_I64;
    d->gather_again = sim_chance(s, 300);
    for (uint32_t i = 0; i < 2; ++i)
        if (sim_chance(s, 500)) place[i].kind = CDP_PLACE_SHARD; /* rows */
    if (sim_chance(s, 500)) d->input = &place[0];
    if (sim_chance(s, 500)) d->output = &place[1];
}

/* Tensors of a layer: x, w, y, and the gradients of y, x, w. */
static cdp_status tensors_layer_open(run *r, sim_node *node, const cdp_tp *tp, cdp_dtensor t[6]) {
    const cdp_tp_layouts *l = cdp_tp_layouts_of(tp);
    const cdp_layout *const layouts[6] = {&l->x, &l->weight, &l->y, &l->y, &l->x, &l->weight};
    const cdp_fill ramp = {CDP_FILL_RAMP, 0, 1, 0, 0}, one = {CDP_FILL_VALUE, 1, 0, 0, 0};
    cdp_status st = CDP_OK;
    for (uint32_t i = 0; i < 6 && st == CDP_OK; ++i) {
        const cdp_fill zero = {CDP_FILL_ZERO, 0, 0, 0, 0};
        st = failed(r, node, cdp_dtensor_create(layouts[i], NULL, &t[i]));
        if (st == CDP_OK && i < 2) st = failed(r, node, cdp_dtensor_fill(&t[i], &ramp));
        if (st == CDP_OK && i >= 2)
            st = failed(r, node, cdp_dtensor_fill(&t[i], i == 3 ? &one : &zero));
    }
    return st;
}

/* A tensor-parallel layer on one row of the mesh, forward and backward. */
static cdp_status tensors_layer(run *r, sim_node *node, cdp_mesh *line, uint64_t *s) {
    cdp_place place[2];
    cdp_tp_desc d;
    cdp_tp *tp = NULL;
    cdp_dtensor t[6];
    memset(t, 0, sizeof t);
    tensors_layer_desc(s, line, place, &d);
    sim_doing(node, "tensor-parallel layer");
    cdp_status st = failed(r, node, cdp_tp_create(&d, &tp));
    if (st == CDP_OK) st = tensors_layer_open(r, node, tp, t);
    call_begin(r, node, 12 * r->timeout_ms);
    if (st == CDP_OK)
        st = failed(r, node, cdp_tp_forward(tp, t[0].data, t[1].data, NULL, t[2].data));
    if (st == CDP_OK) tensors_equal(r, node, &t[2], &d, tensors_y, "y");
    if (st == CDP_OK)
        st = failed(r, node,
            cdp_tp_backward(tp, t[0].data, t[1].data, t[3].data, t[4].data, t[5].data, NULL));
    call_end(r, node, "cdp_tp_forward and cdp_tp_backward");
    if (st == CDP_OK) tensors_equal(r, node, &t[5], &d, tensors_dw, "gradient of w");
    if (st == CDP_OK && !d.embedding)
        tensors_equal(r, node, &t[4], &d, tensors_dx, "gradient of x");
    for (uint32_t i = 0; i < 6; ++i)
        cdp_dtensor_free(&t[i]);
    cdp_tp_destroy(tp);
    return st;
}

static cdp_status tensors_block(void *user, uint32_t owner, const void *kv, void *grad) {
    if (((const int64_t *)kv)[0] != owner) *(uint32_t *)user = owner + 1;
    ((double *)grad)[0] += owner + 1;
    return CDP_OK;
}

/* Blocks around a row of the mesh, and their gradients home. */
static cdp_status tensors_ring(run *r, sim_node *node, cdp_mesh *line, uint64_t *s) {
    const uint32_t n = cdp_mesh_size(line, 0), me = cdp_mesh_coord(line, 0);
    cdp_cp_desc d;
    cdp_layout l;
    cdp_dtensor kv, grad;
    cdp_cp *cp = NULL;
    uint32_t bad = 0;
    memset(&d, 0, sizeof d);
    memset(&l, 0, sizeof l);
    memset(&kv, 0, sizeof kv);
    memset(&grad, 0, sizeof grad);
    d.mesh = line;
    d.length = n;
    d.heads = d.width = 1;
    d.dtype = CDP_DTYPE_F64;
    d.gather = sim_chance(s, 500);
    l.mesh = line;
    l.dtype = CDP_DTYPE_I64;
    l.ndim = 1;
    l.shape[0] = sim_between(s, 1, 200);
    sim_doing(node, "ring");
    cdp_status st = failed(r, node, cdp_cp_create(&d, &cp));
    if (st == CDP_OK) st = failed(r, node, cdp_dtensor_create(&l, NULL, &kv));
    if (st == CDP_OK) st = failed(r, node, cdp_dtensor_create(&l, NULL, &grad));
    if (st == CDP_OK) memset(kv.data, 0, l.shape[0] * 8);
    if (st == CDP_OK) ((int64_t *)kv.data)[0] = me;
    call_begin(r, node, (n + 4) * 2 * r->timeout_ms);
    if (st == CDP_OK)
        st = failed(r, node,
            cdp_cp_ring(cp, kv.data, l.shape[0] * 8, grad.data, l.shape[0], tensors_block, &bad));
    call_end(r, node, "cdp_cp_ring");
    if (st == CDP_OK && (bad || ((double *)grad.data)[0] != (double)(me + 1) * n))
        wrong(r, node, "the ring of %u brought a wrong block (%u) or gradient (%g)", n, bad,
            ((double *)grad.data)[0]);
    cdp_dtensor_free(&kv);
    cdp_dtensor_free(&grad);
    cdp_cp_destroy(cp);
    return st;
}

/* A layer or a ring on a row of the mesh along one of its dimensions. Where a rank may give up for
   lack of memory, on all ranks: those of other rows would meet the rank that left next, not it. */
static cdp_status tensors_parallel(run *r, sim_node *node, cdp_mesh *mesh, uint64_t *s) {
    cdp_mesh *line = NULL;
    const char *row = sim_chance(s, 500) ? "0" : "1";
    const bool all = r->fault_kind == F_NOMEM;
    cdp_status st =
        all ? cdp_mesh_flatten(mesh, "0,1", "all", &line) : cdp_mesh_sub(mesh, row, &line);
    if (failed(r, node, st) != CDP_OK) return st;
    st = sim_chance(s, 600) ? tensors_layer(r, node, line, s) : tensors_ring(r, node, line, s);
    cdp_mesh_destroy(line);
    return st;
}

static cdp_status tensors_program(run *r, sim_node *node, cdp_group *g) {
    uint64_t s = sim_stream(r->seed, 30);
    const uint64_t rounds = sim_between(&s, 1, r->tiny ? 2 : 4);
    cdp_mesh_desc d;
    cdp_mesh *mesh = NULL;
    tensors_mesh_desc(r, &s, g, &d);
    sim_doing(node, "cdp_mesh_create");
    call_begin(r, node, 2 * r->timeout_ms);
    cdp_status st = failed(r, node, cdp_mesh_create(&d, &mesh));
    call_end(r, node, "cdp_mesh_create");
    for (uint64_t i = 0; i < rounds && st == CDP_OK; ++i) {
        st = tensors_round(r, node, mesh, &s);
        if (st == CDP_OK && sim_chance(&s, 500)) st = tensors_parallel(r, node, mesh, &s);
    }
    sim_doing(node, "cdp_group_destroy");
    call_begin(r, node, 500);
    cdp_mesh_destroy(mesh);
    cdp_group_destroy(g);
    call_end(r, node, "cdp_group_destroy");
    return st;
}

#endif
