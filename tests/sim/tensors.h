/*  tensors.h - what the ranks of a group do in the scenarios "tensors": meshes, and
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
    for (uint64_t i = 0; i < rounds && st == CDP_OK; ++i)
        st = tensors_round(r, node, mesh, &s);
    sim_doing(node, "cdp_group_destroy");
    call_begin(r, node, 500);
    cdp_mesh_destroy(mesh);
    cdp_group_destroy(g);
    call_end(r, node, "cdp_group_destroy");
    return st;
}

#endif
