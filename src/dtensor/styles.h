/* dtensor/styles.h - layers whose parameters are cut

   Knows: one linear layer or table, and the two edges around its product. Promises: forward and
   backward are those of the whole layer; each parameter's gradient has the layout of the
   parameter. */
#ifndef CDP_SRC_DTENSOR_STYLES_H
#define CDP_SRC_DTENSOR_STYLES_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../base/error_api.h"
#include "../os/os_api.h"
#include "../message/transport_api.h"
#include "../group/group_api.h"
#include "../base/helpers.h"
#include "../base/kept_error.h"
#include "../dtype/dtype.h"
#include "../group/state.h"
#include "layout_api.h"
#include "edge_api.h"
#include "tensor_parallel_api.h"
#include "cxx_api.h"
#include "kit.h"
#include "kernels.h"
#include "counter.h"
#include "grid.h"
#include "cuts.h"
#include "meshes.h"
#include "scratch.h"
#include "tensors.h"
#include "edges.h"
#include "operators.h"
#include "products.h"
#include "sharers.h"

#ifndef CDP_NO_TENSOR_OPS

CDP__DT cdp_status cdp__dt_tp_check(const cdp_tp_desc *d) {
    if (!d->mesh) return cdp__dt_missing("cdp_tp_create", "desc.mesh");
    if (cdp__dt_mesh_ended(d->mesh)) return cdp__dt_mesh_alive(d->mesh, "cdp_tp_create");
    if (d->mesh->desc.ndim != 1)
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_tp_create: the mesh has %u dimensions; take one of them by cdp_mesh_sub()",
            d->mesh->desc.ndim);
    if ((uint32_t)d->style > CDP_TP_SEQUENCE)
        return cdp__dt_tp_wrong("style is none of cdp_tp_style");
    if (!d->rows || !d->in_features || !d->out_features)
        return cdp__dt_tp_wrong("rows, in_features or out_features is 0; set all three");
    if (d->embedding && d->in_features > 0x7fffffffu)
        return cdp__dt_tp_wrong("in_features of a table must fit an i32 id");
    if (d->output && d->output->kind == CDP_PLACE_PARTIAL)
        return cdp__dt_tp_wrong("output is PARTIAL; use R, or S0 to keep some of the rows");
    if (d->grad_x_partial
        && (d->style != CDP_TP_COLUMN || (d->input && d->input->kind != CDP_PLACE_REPLICATE)))
        return cdp__dt_tp_wrong("grad_x_partial is for COLUMN with a replicated input");
    if (d->embedding && d->input && d->input->kind == CDP_PLACE_PARTIAL)
        return cdp__dt_tp_wrong("input is PARTIAL, but ids are no sum");
    if (!cdp__dtype_is_float(d->dtype) && d->wire != CDP_DTYPE_DEFAULT)
        return cdp__dt_tp_wrong("wire is set, but dtype is no float");
    if (d->embedding ? cdp_dtype_size(d->dtype) > 0 : d->blas.gemm || cdp__dt_plain_dtype(d->dtype))
        return CDP_OK;
    return cdp_error_set(CDP_ERR_UNSUPPORTED, -1, 0,
        "cdp_tp_create: there is no plain product of %s; set blas.gemm", cdp_dtype_name(d->dtype));
}

CDP__DT cdp_layout cdp__dt_tp_layout(const cdp_tp *tp, uint32_t ndim, uint64_t a, uint64_t b) {
    cdp_layout l;
    memset(&l, 0, sizeof l);
    l.mesh = tp->desc.mesh;
    l.dtype = tp->desc.dtype;
    l.ndim = ndim;
    l.shape[0] = a;
    if (ndim > 1) l.shape[1] = b;
    return l;
}

/* The layouts from the table at cdp_tp_style. */
CDP__DT void cdp__dt_tp_layouts(cdp_tp *tp) {
    const cdp_tp_desc *d = &tp->desc;
    const uint64_t in = d->in_features, out = d->out_features;
    const uint64_t head = cdp__max(d->head, 1);
    const cdp_place rows = cdp__dt_shard(0, 0), last = cdp__dt_shard(1, head);
    cdp_tp_layouts *l = &tp->l;
    l->used =
        d->embedding ? cdp__dt_tp_layout(tp, 1, d->rows, 0) : cdp__dt_tp_layout(tp, 2, d->rows, in);
    if (d->embedding) l->used.dtype = CDP_DTYPE_I32;
    l->made = cdp__dt_tp_layout(tp, 2, d->rows, out);
    l->weight =
        d->embedding ? cdp__dt_tp_layout(tp, 2, in, out) : cdp__dt_tp_layout(tp, 2, out, in);
    l->bias = cdp__dt_tp_layout(tp, 1, out, 0);
    l->x = l->used;
    l->y = l->made;
    if (d->style == CDP_TP_COLUMN) {
        l->made.place[0] = l->y.place[0] = last;
        l->weight.place[0] = d->embedding ? last : cdp__dt_shard(0, head);
        l->bias.place[0] = cdp__dt_shard(0, head);
    } else if (d->style == CDP_TP_ROW) {
        l->weight.place[0] = d->embedding ? cdp__dt_shard(0, head) : last;
        if (!d->embedding) l->used.place[0] = l->x.place[0] = last;
        l->made.place[0] = cdp__dt_sum_of(CDP_REDUCE_SUM);
    } else {
        l->used.place[0] = l->x.place[0] = l->made.place[0] = l->y.place[0] = rows;
    }
    if (d->input) l->x.place[0] = *d->input;
    if (d->output) l->y.place[0] = *d->output;
}

/* Makes an edge; its gradient arrives as a sum over all ranks if `sum` is set. */
CDP__DT cdp_status cdp__dt_tp_edge(
    const cdp_tp *tp, const cdp_layout *from, const cdp_layout *to, bool sum, cdp_edge **out) {
    cdp_edge_desc e;
    memset(&e, 0, sizeof e);
    e.from = *from;
    e.to = *to;
    if (cdp__dtype_is_float(from->dtype)) e.wire = e.grad_wire = tp->desc.wire;
    if (sum) {
        e.grad_in = *to;
        e.grad_in.place[0] = cdp__dt_sum_of(CDP_REDUCE_SUM);
        if (tp->desc.grad_x_partial) e.grad_out = e.grad_in;
    }
    return cdp_edge_create(&e, out);
}

CDP__DT cdp_status cdp__dt_tp_edges(cdp_tp *tp) {
    const cdp_tp_desc *d = &tp->desc;
    const cdp_tp_layouts *l = &tp->l;
    const bool sum = d->style == CDP_TP_COLUMN && !d->embedding;
    const uint32_t n = d->mesh->count;
    cdp_status st = cdp_layout_check(&l->x);
    if (st == CDP_OK) st = cdp_layout_check(&l->y);
    if (st == CDP_OK) st = cdp_layout_check(&l->weight);
    if (st == CDP_OK && d->x_of) st = cdp__dt_tp_share(tp);
    if (st == CDP_OK && !tp->of) st = cdp__dt_tp_edge(tp, &l->x, &l->used, sum && n > 1, &tp->in);
    if (st == CDP_OK) st = cdp__dt_tp_edge(tp, &l->made, &l->y, false, &tp->out);
    if (st != CDP_OK) return st;
    tp->in_same = cdp_layout_same(&l->x, &l->used);
    tp->out_same = cdp_layout_same(&l->made, &l->y);
    if (d->style != CDP_TP_SEQUENCE || n == 1) return CDP_OK;
    st = cdp__dt_tp_edge(tp, &l->weight, &l->weight, true, &tp->weight);
    if (st == CDP_OK && !d->embedding)
        st = cdp__dt_tp_edge(tp, &l->bias, &l->bias, true, &tp->bias);
    return st;
}

/* The arrays of a call follow one another; returns the place of the next one. */
CDP__DT void *cdp__dt_tp_part(uint8_t *room, uint64_t *at, const cdp_layout *l) {
    void *const part = room ? room + *at : NULL;
    *at += (cdp__dt_local_bytes(l) + 64) / 64 * 64;
    return part;
}

/* Places the arrays of a call in its memory. Returns how many bytes they have. */
CDP__DT uint64_t cdp__dt_tp_place(cdp_tp *tp, uint8_t *room) {
    const cdp_edge_desc *e = cdp_edge_desc_of(tp->in);
    const bool wanted = !tp->desc.no_grad_x && !tp->desc.embedding && !tp->of;
    uint64_t at = 0;
    if (!tp->out_same) tp->made = cdp__dt_tp_part(room, &at, &tp->l.made);
    if (wanted && !cdp_layout_same(&e->grad_in, &e->grad_out))
        tp->grad_used = cdp__dt_tp_part(room, &at, &tp->l.used);
    if (tp->weight) tp->sums = cdp__dt_tp_part(room, &at, &tp->l.weight);
    if (tp->weight) tp->sums_out = cdp__dt_tp_part(room, &at, &tp->l.weight);
    return at;
}

/* Takes the memory of a call, and gives it back. */
CDP__DT cdp_status cdp__dt_tp_take(cdp_tp *tp) {
    tp->room = NULL;
    if (!tp->room_bytes) return CDP_OK;
    const cdp_status st =
        cdp__dt_scratch_lend(tp->root, tp->desc.mesh->all, tp->room_bytes, &tp->room);
    if (st == CDP_OK) (void)cdp__dt_tp_place(tp, tp->room->at);
    return st;
}
CDP__DT void cdp__dt_tp_give(cdp_tp *tp) {
    cdp__dt_scratch_back(tp->room);
    tp->room = NULL;
    tp->made = tp->grad_used = tp->sums = tp->sums_out = NULL;
}

/* Makes sure that the plans of an edge find memory beside that of a call. */
CDP__DT cdp_status cdp__dt_tp_beside(const cdp_tp *tp, const cdp_edge *e) {
    const cdp_plan *const plans[2] = {e ? e->forward.plan : NULL, e ? e->backward.plan : NULL};
    cdp__dt_scratch *s;
    cdp_status st = CDP_OK;
    for (uint32_t i = 0; st == CDP_OK && i < 2; ++i)
        if (plans[i] && plans[i]->scratch_used)
            st = cdp__dt_scratch_find(tp->root, plans[i]->scratch_used, true, &s);
    return st;
}

/* Allocates the memory that the layer keeps, and that of a call, which layers share. */
CDP__DT cdp_status cdp__dt_tp_memory(cdp_tp *tp) {
    const cdp_edge *const edges[4] = {tp->in, tp->out, tp->weight, tp->bias};
    const uint64_t used = cdp__dt_local_bytes(&tp->l.used) + 1;
    if (!tp->desc.mesh->all) return CDP_OK;
    tp->room_bytes = cdp__dt_tp_place(tp, NULL);
    const bool gathers = !tp->in_same && !tp->of;
    if (gathers) tp->used = cdp__dt_group_memory(tp->desc.mesh->all->group, used);
    if (gathers && !tp->used) return cdp__dt_nomem("a tensor-parallel layer", used);
    cdp_status st = cdp__dt_tp_take(tp);
    for (uint32_t i = 0; st == CDP_OK && i < 4; ++i)
        st = cdp__dt_tp_beside(tp, edges[i]);
    cdp__dt_tp_give(tp);
    return st;
}

CDP_API void cdp_tp_destroy(cdp_tp *tp) {
    if (!tp || cdp__dt_alive(tp, "cdp_tp_destroy", "tp") != CDP_OK) return;
    cdp__ended_add(tp);
    if (!cdp__dt_mesh_ended(tp->desc.mesh)) { /* else the group keeps them */
        cdp__dt_link *link = tp->desc.mesh ? tp->desc.mesh->all : NULL;
        cdp__dt_retire(tp->root, link, tp->used);
        cdp__dt_retire(tp->root, link, tp->sum);
    }
    if (!tp->of) cdp_edge_destroy(tp->in);
    cdp__dt_tp_part_from(tp);
    cdp_edge_destroy(tp->out);
    cdp_edge_destroy(tp->weight);
    cdp_edge_destroy(tp->bias);
    cdp__dt_free(tp->os, tp);
}

CDP_API cdp_status cdp_tp_create(const cdp_tp_desc *desc, cdp_tp **out) {
    cdp_tp_desc d;
    if (!out) return cdp__dt_missing("cdp_tp_create", "out");
    *out = NULL;
    if (!desc) return cdp__dt_missing("cdp_tp_create", "desc");
    d = *desc;
    if (d.dtype == CDP_DTYPE_DEFAULT) d.dtype = CDP_DTYPE_F32;
    cdp_status st = cdp__dt_tp_check(&d);
    if (st == CDP_OK) st = cdp__dt_tp_has_gatherer(&d);
    if (st != CDP_OK) return st;
    const cdp_os *os = d.mesh->root->os;
    cdp_tp *tp = (cdp_tp *)cdp__dt_alloc(os, sizeof *tp);
    cdp__ended_remove(tp);
    if (!tp) return cdp__dt_nomem("a tensor-parallel layer", sizeof *tp);
    tp->desc = d;
    tp->os = os;
    tp->root = d.mesh->root;
    cdp__dt_tp_layouts(tp);
    tp->desc.input = tp->desc.output = NULL; /* copied to the layouts */
    st = cdp__dt_tp_edges(tp);
    tp->desc.x_of = NULL; /* it is tp->of */
    if (st == CDP_OK) st = cdp__dt_tp_memory(tp);
    if (st != CDP_OK) {
        cdp_tp_destroy(tp);
        return st;
    }
    cdp__dt_tp_join(tp);
    *out = tp;
    return CDP_OK;
}

CDP_API const cdp_tp_layouts *cdp_tp_layouts_of(const cdp_tp *tp) {
    return tp && !cdp__ended(tp) ? &tp->l : NULL;
}

CDP_API cdp_edge *cdp_tp_edge(const cdp_tp *tp, bool behind) {
    if (!tp || cdp__ended(tp)) return NULL;
    return behind ? tp->out : tp->in;
}

CDP__DT cdp_status cdp__dt_product(const cdp_tp *tp, bool ta, bool tb, uint64_t m, uint64_t n,
    uint64_t k, const void *a, const void *b, bool add, void *c) {
    const cdp_blas *blas = &tp->desc.blas;
    if (blas->gemm) return blas->gemm(blas->user, tp->desc.dtype, ta, tb, m, n, k, a, b, add, c);
    cdp__dt_gemm(tp->desc.dtype, ta, tb, m, n, k, a, b, add, c);
    return CDP_OK;
}

/* Reports ids outside the table. The layer runs on, so that no rank waits for another. */
CDP__DT cdp_status cdp__dt_tp_ids(const cdp_tp *tp, const int32_t *ids, uint64_t n) {
    for (uint64_t i = 0; i < n; ++i)
        if (ids[i] < 0 || (uint64_t)ids[i] >= tp->desc.in_features)
            return cdp_error_set(CDP_ERR_INVALID, -1, 0,
                "cdp_tp_forward: ids[%llu] is %d; the table has %llu rows", (unsigned long long)i,
                ids[i], (unsigned long long)tp->desc.in_features);
    return CDP_OK;
}

/* Computes made = used w^T, or copies rows of the table. */
CDP__DT cdp_status cdp__dt_tp_make(
    const cdp_tp *tp, const void *used, const void *w, const void *bias, void *made) {
    cdp_box x, y, table;
    (void)cdp_layout_box(&tp->l.used, NULL, &x);
    (void)cdp_layout_box(&tp->l.made, NULL, &y);
    (void)cdp_layout_box(&tp->l.weight, NULL, &table);
    if (tp->desc.embedding) {
        cdp__dt_look_up((const int32_t *)used, x.size[0], w, table.start[0], table.size[0],
            table.size[1] * cdp_dtype_size(tp->desc.dtype), made);
        return cdp__dt_tp_ids(tp, (const int32_t *)used, x.size[0]);
    }
    const cdp_status st =
        cdp__dt_product(tp, false, true, x.size[0], y.size[1], x.size[1], used, w, false, made);
    if (bias && tp->desc.style != CDP_TP_ROW) /* with the layout of the bias */
        cdp__dt_add_bias(tp->desc.dtype, made, y.size[0], y.size[1], bias, 0);
    return st;
}

/* `y_name`: what the caller calls y. */
CDP__DT cdp_status cdp__dt_tp_ready(const cdp_tp *tp, const char *call, const void *x,
    const void *w, const char *y_name, const void *y) {
    cdp_status st = cdp__dt_alive(tp, call, "tp");
    if (st == CDP_OK) st = cdp__dt_tp_not_alone(tp, call);
    if (st == CDP_OK) st = cdp__dt_mesh_alive(tp->desc.mesh, call);
    if (st == CDP_OK) st = cdp__dt_link_here(tp->desc.mesh->all);
    if (st != CDP_OK) return st;
    if (!tp->root->group)
        return cdp_error_set(CDP_ERR_STATE, -1, 0, "cdp_tp: its mesh is on paper; it cannot run");
    if (tp->desc.mesh->me == CDP__DT_NONE) return CDP_OK;
    if (!x && cdp__dt_local_bytes(&tp->l.x)) return cdp__dt_missing(call, "x");
    if (!w && cdp__dt_local_bytes(&tp->l.weight)) return cdp__dt_missing(call, "w");
    if (!y && cdp__dt_local_bytes(&tp->l.y)) return cdp__dt_missing(call, y_name);
    return CDP_OK;
}

/* The first error of a matrix product. Messages of a layer continue after it, so that no rank waits
   for another; the call returns the error at its end. */
typedef struct cdp__dt_fault {
    cdp_status status;
    cdp_error why;
} cdp__dt_fault;

CDP__DT void cdp__dt_fault_keep(cdp__dt_fault *f, cdp_status st) {
    if (st == CDP_OK || f->status != CDP_OK) return;
    f->status = st;
    f->why = *cdp_last_error();
}

/* The result of a call of a layer: the failure `st` of its messages, if any, else the first error
   of its matrix products. */
CDP__DT cdp_status cdp__dt_verdict(const cdp__dt_fault *f, cdp_status st) {
    if (st != CDP_OK || f->status == CDP_OK) return st;
    return cdp__error_again(f->status, &f->why);
}

/* Runs the messages of the forward pass, and the computation between them. */
CDP__DT cdp_status cdp__dt_tp_ahead(
    cdp_tp *tp, const void *x, const void *w, const void *bias, void *y, cdp__dt_fault *fault) {
    cdp_status st = CDP_OK;
    if (!tp->in_same && !tp->of) st = cdp_edge_forward(tp->in, x, tp->used);
    if (st != CDP_OK) return st;
    if (!tp->of) cdp__dt_tp_has(tp, x);
    const void *used = tp->in_same ? x : cdp__dt_tp_gatherer(tp)->used;
    cdp__dt_fault_keep(fault, cdp__dt_tp_make(tp, used, w, bias, tp->out_same ? y : tp->made));
    if (!tp->out_same) st = cdp_edge_forward(tp->out, tp->made, y);
    if (st == CDP_OK && bias && tp->desc.style == CDP_TP_ROW && !tp->desc.embedding) {
        cdp_box box;
        (void)cdp_layout_box(&tp->l.y, NULL, &box);
        if (box.size[0] && box.size[1])
            cdp__dt_add_bias(tp->desc.dtype, y, box.size[0], box.size[1], bias, box.start[1]);
    }
    return st;
}

CDP_API cdp_status cdp_tp_forward(
    cdp_tp *tp, const void *x, const void *w, const void *bias, void *y) {
    cdp__dt_fault fault;
    cdp_status st = cdp__dt_tp_ready(tp, "cdp_tp_forward", x, w, "y", y);
    if (st != CDP_OK || tp->desc.mesh->me == CDP__DT_NONE) return st;
    memset(&fault, 0, sizeof fault);
    st = cdp__dt_tp_forward_order(tp, x);
    if (st == CDP_OK) st = cdp__dt_tp_take(tp);
    if (st == CDP_OK) st = cdp__dt_tp_ahead(tp, x, w, bias, y, &fault);
    cdp__dt_tp_give(tp);
    return cdp__dt_verdict(&fault, st);
}

/* Computes the gradient of the weight; SEQUENCE sums it over the ranks. */
CDP__DT cdp_status cdp__dt_tp_weight(
    const cdp_tp *tp, const void *used, const void *grad, void *grad_w, cdp__dt_fault *fault) {
    const cdp_dtype t = tp->desc.dtype;
    const uint64_t bytes = cdp__dt_local_bytes(&tp->l.weight);
    cdp_box x, y, w;
    cdp_status st;
    (void)cdp_layout_box(&tp->l.used, NULL, &x);
    (void)cdp_layout_box(&tp->l.made, NULL, &y);
    (void)cdp_layout_box(&tp->l.weight, NULL, &w);
    void *to = tp->weight ? tp->sums : grad_w;
    if (tp->weight) memset(to, 0, (size_t)bytes);
    if (tp->desc.embedding)
        cdp__dt_look_up_backward(
            t, (const int32_t *)used, x.size[0], to, w.start[0], w.size[0], w.size[1], grad);
    else
        cdp__dt_fault_keep(fault,
            cdp__dt_product(
                tp, true, false, y.size[1], x.size[1], y.size[0], grad, used, true, to));
    if (!tp->weight) return CDP_OK;
    st = cdp_edge_backward(tp->weight, tp->sums, tp->sums_out);
    if (st == CDP_OK) cdp__dt_plus(t, grad_w, tp->sums_out, bytes / cdp_dtype_size(t));
    return st;
}

/* Computes the gradient of the bias; SEQUENCE sums it over the ranks. */
CDP__DT cdp_status cdp__dt_tp_bias(const cdp_tp *tp, const void *grad, void *grad_bias) {
    const cdp_dtype t = tp->desc.dtype;
    cdp_box y;
    (void)cdp_layout_box(&tp->l.made, NULL, &y);
    if (!tp->bias) {
        cdp__dt_add_rows(t, grad_bias, grad, y.size[0], y.size[1]);
        return CDP_OK;
    }
    const uint64_t out = tp->desc.out_features; /* a rank without rows takes part, too */
    memset(tp->sums, 0, (size_t)(out * cdp_dtype_size(t)));
    cdp__dt_add_rows(t, tp->sums, grad, y.size[0], y.size[1]);
    const cdp_status st = cdp_edge_backward(tp->bias, tp->sums, tp->sums_out);
    if (st == CDP_OK) cdp__dt_plus(t, grad_bias, tp->sums_out, out);
    return st;
}

/* Computes the gradient of x, and sends it through the input edge; that of layers that share x is
   summed before. */
CDP__DT cdp_status cdp__dt_tp_input(
    cdp_tp *tp, const void *w, const void *grad, void *grad_x, cdp__dt_fault *fault) {
    const cdp_edge_desc *e = cdp_edge_desc_of(tp->in);
    const cdp_tp *const g = cdp__dt_tp_gatherer(tp);
    const bool same = !g->sum && cdp_layout_same(&e->grad_in, &e->grad_out);
    void *to = same ? grad_x : tp->grad_used;
    cdp_box x, y;
    (void)cdp_layout_box(&tp->l.used, NULL, &x);
    (void)cdp_layout_box(&tp->l.made, NULL, &y);
    if (g->sum) to = g->sum;
    cdp__dt_fault_keep(fault,
        cdp__dt_product(
            tp, false, false, y.size[0], x.size[1], y.size[1], grad, w, g->summed > 0, to));
    return same || tp->of ? CDP_OK : cdp_edge_backward(tp->in, to, grad_x);
}

/* Runs all messages of the backward pass, and the computations between them. */
CDP__DT cdp_status cdp__dt_tp_back(cdp_tp *tp, const void *x, const void *w, const void *grad_y,
    void *grad_x, void *grad_w, void *grad_bias, cdp__dt_fault *fault) {
    const void *grad = tp->out_same ? grad_y : tp->made;
    cdp_status st = CDP_OK;
    if (!tp->out_same) st = cdp_edge_backward(tp->out, grad_y, tp->made);
    cdp_tp *const g = cdp__dt_tp_gatherer(tp);
    const bool again = (tp->desc.gather_again && !g->summed) || !g->gathered;
    if (st == CDP_OK && again && !tp->in_same) {
        g->x = x; /* a layer that shares it goes forward with no other one */
        st = cdp_edge_forward(tp->in, x, g->used);
    }
    if (st == CDP_OK) cdp__dt_tp_adds(tp);
    const bool weight = st == CDP_OK && grad_w;
    if (weight) st = cdp__dt_tp_weight(tp, tp->in_same ? x : g->used, grad, grad_w, fault);
    const bool bias = st == CDP_OK && grad_bias && !tp->desc.embedding;
    if (bias) st = cdp__dt_tp_bias(tp, grad, grad_bias);
    const bool input = !tp->desc.no_grad_x && !tp->desc.embedding;
    if (st == CDP_OK && input) st = cdp__dt_tp_input(tp, w, grad, grad_x, fault);
    if (st == CDP_OK) cdp__dt_tp_ran_back(tp);
    return st;
}

CDP_API cdp_status cdp_tp_backward(cdp_tp *tp, const void *x, const void *w, const void *grad_y,
    void *grad_x, void *grad_w, void *grad_bias) {
    cdp__dt_fault fault;
    cdp_status st = cdp__dt_tp_ready(tp, "cdp_tp_backward", x, w, "grad_y", grad_y);
    if (st != CDP_OK || tp->desc.mesh->me == CDP__DT_NONE) return st;
    const bool wanted = !tp->desc.no_grad_x && !tp->desc.embedding && !tp->of;
    if (wanted && !grad_x && cdp__dt_local_bytes(&tp->l.x)) /* a rank without rows has no memory */
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_tp_backward: grad_x is NULL; set .no_grad_x if it is not wanted");
    st = cdp__dt_tp_backward_order(tp);
    if (st != CDP_OK) return st;
    cdp__dt_counter *c = tp->root->counter;
    memset(&fault, 0, sizeof fault);
    if (c) ++c->backward;
    st = cdp__dt_tp_take(tp);
    if (st == CDP_OK) st = cdp__dt_tp_back(tp, x, w, grad_y, grad_x, grad_w, grad_bias, &fault);
    cdp__dt_tp_give(tp);
    if (c) --c->backward;
    return cdp__dt_verdict(&fault, st);
}

#endif /* CDP_NO_TENSOR_OPS */

#endif /* CDP_SRC_DTENSOR_STYLES_H */
