/* dtensor/edges.h - plans with the plans of their gradients

   Knows: a plan forward and a plan backward. Promises: backward is the adjoint of forward. */
#ifndef CDP_SRC_DTENSOR_EDGES_H
#define CDP_SRC_DTENSOR_EDGES_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../os/os_api.h"
#include "../message/transport_api.h"
#include "../group/group_api.h"
#include "../group/collectives_api.h"
#include "../group/works_api.h"
#include "../group/messages_api.h"
#include "../base/helpers.h"
#include "../dtype/reduce.h"
#include "../dtype/dtype.h"
#include "../dtype/convert.h"
#include "mesh_api.h"
#include "layout_api.h"
#include "plan_api.h"
#include "edge_api.h"
#include "cxx_api.h"
#include "kit.h"
#include "kernels.h"
#include "grid.h"
#include "torch.h"
#include "meshes.h"
#include "spelling.h"
#include "stages.h"
#include "scratch.h"
#include "planner.h"
#include "runner.h"

/* One direction: a plan, casts to and from the dtype of its messages, and a division of the
   result. */
typedef struct cdp__dt_way {
    cdp_plan *plan;
    cdp_dtype dtype, wire;
    uint64_t in_elements, out_elements, divisor;
    void *in_wire, *out_wire; /* NULL: no cast */
    void *out;                /* of an asynchronous run */
} cdp__dt_way;

struct cdp_edge {
    cdp_edge_desc desc;
    const cdp_os *os;
    cdp__dt_way forward, backward;
};

CDP__DT cdp_layout cdp__dt_gradient_of(const cdp_layout *l) {
    cdp_layout out = *l;
    for (uint32_t by = 0; by < l->mesh->desc.ndim; ++by)
        if (cdp__dt_partial(l, by)) cdp__dt_replicate(&out, by);
    return out;
}

CDP__DT cdp_status cdp__dt_edge_partial(const cdp_layout *l, bool gradient) {
    for (uint32_t by = 0; by < l->mesh->desc.ndim; ++by) {
        const cdp_reduce_op op = cdp__dt_op(&l->place[by]);
        if (!cdp__dt_partial(l, by) || op == CDP_REDUCE_SUM) continue;
        if (op == CDP_REDUCE_AVG && !gradient) continue;
        return cdp_error_set(CDP_ERR_UNSUPPORTED, -1, 0,
            "cdp_edge_create: PARTIAL (%s) has no linear gradient; reduce it with a plan first",
            cdp_reduce_name(op));
    }
    return CDP_OK;
}

CDP__DT cdp_status cdp__dt_way_make(cdp__dt_way *w, const cdp_layout *from, const cdp_layout *to,
    cdp_dtype wire, const cdp_net *net) {
    cdp_plan_desc d;
    memset(&d, 0, sizeof d);
    d.from = *from;
    d.to = *to;
    d.kind = CDP_PLAN_DIRECT;
    d.net = *net;
    w->dtype = cdp__dt_dtype(from);
    w->wire = wire == CDP_DTYPE_DEFAULT ? w->dtype : wire;
    if (w->wire != w->dtype && (!cdp__dtype_is_float(w->wire) || !cdp__dtype_is_float(w->dtype)))
        return cdp_error_set(CDP_ERR_UNSUPPORTED, -1, 0,
            "cdp_edge_create: %s cannot travel as %s; a wire dtype is for floats",
            cdp_dtype_name(w->dtype), cdp_dtype_name(wire));
    d.from.dtype = d.to.dtype = w->wire;
    cdp_status st = cdp_plan_create(&d, &w->plan);
    if (st != CDP_OK) return st;
    const uint64_t size = cdp_dtype_size(w->wire);
    w->in_elements = w->plan->in_bytes / size;
    w->out_elements = w->plan->out_bytes / size;
    w->divisor = 1;
    if (w->wire == w->dtype || !w->plan->group) return CDP_OK;
    st = cdp__dt_link_here(cdp__dt_run_link(w->plan));
    if (st != CDP_OK) return st;
    w->in_wire = cdp__dt_group_memory(w->plan->group, w->plan->in_bytes + 1);
    w->out_wire = cdp__dt_group_memory(w->plan->group, w->plan->out_bytes + 1);
    if (!w->in_wire || !w->out_wire)
        return cdp__dt_nomem("an edge", w->plan->in_bytes + w->plan->out_bytes);
    return CDP_OK;
}

CDP__DT void cdp__dt_way_free(cdp__dt_way *w) {
    if (!w->plan) return;
    if (cdp__dt_mesh_known(w->plan->mesh)) { /* else the group keeps them */
        cdp__dt_retire(w->plan->mesh->root, cdp__dt_run_link(w->plan), w->in_wire);
        cdp__dt_retire(w->plan->mesh->root, cdp__dt_run_link(w->plan), w->out_wire);
    }
    cdp_plan_destroy(w->plan);
}

CDP_API void cdp_edge_destroy(cdp_edge *e) {
    if (!e || cdp__dt_alive(e, "cdp_edge_destroy", "edge") != CDP_OK) return;
    cdp__ended_add(e);
    cdp__dt_way_free(&e->forward);
    cdp__dt_way_free(&e->backward);
    cdp__dt_free(e->os, e);
}

CDP__DT cdp_status cdp__dt_edge_fill(cdp_edge *e) {
    cdp_edge_desc *d = &e->desc;
    if (!d->grad_in.mesh) d->grad_in = cdp__dt_gradient_of(&d->to);
    if (!d->grad_out.mesh) d->grad_out = cdp__dt_gradient_of(&d->from);
    cdp_status st = cdp_layout_check(&d->grad_in);
    if (st == CDP_OK) st = cdp_layout_check(&d->grad_out);
    if (st == CDP_OK) st = cdp__dt_edge_partial(&d->from, false);
    if (st == CDP_OK) st = cdp__dt_edge_partial(&d->to, false);
    if (st == CDP_OK) st = cdp__dt_edge_partial(&d->grad_in, true);
    if (st == CDP_OK) st = cdp__dt_edge_partial(&d->grad_out, true);
    if (st == CDP_OK && !cdp__dt_shape_same(&d->from, &d->grad_in))
        st = cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_edge_create: grad_in must have the shape and dtype of `to`");
    if (st == CDP_OK) st = cdp__dt_way_make(&e->forward, &d->from, &d->to, d->wire, &d->net);
    if (st == CDP_OK)
        st = cdp__dt_way_make(&e->backward, &d->grad_in, &d->grad_out, d->grad_wire, &d->net);
    if (st != CDP_OK) return st;
    e->backward.divisor = e->forward.plan->stages[0].divisor;
    e->backward.plan->backward = true;
    return CDP_OK;
}

CDP_API cdp_status cdp_edge_create(const cdp_edge_desc *desc, cdp_edge **out) {
    if (!out) return cdp__dt_missing("cdp_edge_create", "out");
    *out = NULL;
    if (!desc) return cdp__dt_missing("cdp_edge_create", "desc");
    cdp_status st = cdp_layout_check(&desc->from);
    if (st == CDP_OK) st = cdp_layout_check(&desc->to);
    if (st != CDP_OK) return st;
    const cdp_os *os = desc->from.mesh->root->os;
    cdp_edge *e = (cdp_edge *)cdp__dt_alloc(os, sizeof *e);
    cdp__ended_remove(e);
    if (!e) return cdp__dt_nomem("an edge", sizeof *e);
    e->os = os;
    e->desc = *desc;
    st = cdp__dt_edge_fill(e);
    if (st != CDP_OK) {
        cdp_edge_destroy(e);
        return st;
    }
    *out = e;
    return CDP_OK;
}

/* Returns the input after the cast; below, the buffer of the result. */
CDP__DT const void *cdp__dt_way_in(cdp__dt_way *w, const void *in) {
    if (!w->in_wire || !in) return in;
    cdp__convert(w->dtype, in, w->wire, w->in_wire, w->in_elements);
    return w->in_wire;
}

CDP__DT void cdp__dt_way_out(const cdp__dt_way *w, void *out) {
    if (w->out_wire && out) cdp__convert(w->wire, w->out_wire, w->dtype, out, w->out_elements);
    if (w->divisor > 1 && out) cdp__divide(w->dtype, out, w->out_elements, (uint32_t)w->divisor);
}

/* Before a cast, which writes to memory of a group. */
CDP__DT cdp_status cdp__dt_way_here(const cdp__dt_way *w) {
    if (!w->in_wire || !cdp__dt_mesh_known(w->plan->mesh)) return CDP_OK;
    return cdp__dt_link_here(cdp__dt_run_link(w->plan));
}

CDP__DT cdp_status cdp__dt_way_run(cdp__dt_way *w, const void *in, void *out) {
    cdp_status st = cdp__dt_way_here(w);
    if (st != CDP_OK) return st;
    const void *from = cdp__dt_way_in(w, in);
    st = cdp_plan_run(w->plan, from, w->out_wire ? w->out_wire : out);
    if (st == CDP_OK) cdp__dt_way_out(w, out);
    return st;
}

CDP__DT cdp_status cdp__dt_way_done(void *user, cdp_status status) {
    const cdp__dt_way *w = (const cdp__dt_way *)user;
    if (status == CDP_OK) cdp__dt_way_out(w, w->out);
    return CDP_OK;
}

CDP__DT cdp_status cdp__dt_way_start(cdp__dt_way *w, const void *in, void *out, cdp_work *work) {
    cdp_work moved;
    if (!work) return cdp__dt_missing("cdp_edge", "work");
    memset(work, 0, sizeof *work);
    cdp_status st = cdp__dt_way_here(w);
    if (st != CDP_OK) return st;
    const void *from = cdp__dt_way_in(w, in);
    st = cdp_plan_run_async(w->plan, from, w->out_wire ? w->out_wire : out, &moved);
    *work = moved;
    if (st != CDP_OK || (!w->out_wire && w->divisor == 1)) return st;
    w->out = out;
    if (moved.seq) return cdp_work_then(moved, cdp__dt_way_done, w, work);
    return cdp__dt_way_done(w, CDP_OK);
}

CDP_API cdp_status cdp_edge_forward(cdp_edge *e, const void *x, void *y) {
    const cdp_status st = cdp__dt_alive(e, "cdp_edge_forward", "edge");
    return st == CDP_OK ? cdp__dt_way_run(&e->forward, x, y) : st;
}

CDP_API cdp_status cdp_edge_backward(cdp_edge *e, const void *grad_y, void *grad_x) {
    const cdp_status st = cdp__dt_alive(e, "cdp_edge_backward", "edge");
    return st == CDP_OK ? cdp__dt_way_run(&e->backward, grad_y, grad_x) : st;
}

CDP_API cdp_status cdp_edge_forward_async(cdp_edge *e, const void *x, void *y, cdp_work *work) {
    const cdp_status st = cdp__dt_alive(e, "cdp_edge_forward_async", "edge");
    return st == CDP_OK ? cdp__dt_way_start(&e->forward, x, y, work) : st;
}

CDP_API cdp_status cdp_edge_backward_async(
    cdp_edge *e, const void *grad_y, void *grad_x, cdp_work *work) {
    const cdp_status st = cdp__dt_alive(e, "cdp_edge_backward_async", "edge");
    return st == CDP_OK ? cdp__dt_way_start(&e->backward, grad_y, grad_x, work) : st;
}

CDP_API cdp_plan_info cdp_edge_info(const cdp_edge *e, bool backward) {
    if (!e || cdp__ended(e)) return cdp_plan_info_of(NULL);
    return cdp_plan_info_of(backward ? e->backward.plan : e->forward.plan);
}

CDP_API const cdp_edge_desc *cdp_edge_desc_of(const cdp_edge *e) {
    return e && !cdp__ended(e) ? &e->desc : NULL;
}

typedef struct cdp__dt_feed {
    cdp_status (*piece)(void *user, const cdp_box *box);
    void *user;
    uint32_t ndim;
    cdp_status status; /* of the first piece that failed */
} cdp__dt_feed;

CDP__DT void cdp__dt_feed_piece(cdp__dt_feed *f, const cdp__dt_region *region) {
    cdp_box box;
    if (f->status != CDP_OK) return;
    (void)cdp__dt_box_out(region, f->ndim, &box);
    f->status = f->piece(f->user, &box);
}

/* The number of receives in one batch: each batch takes one of the group's max_pending places. */
CDP__DT uint32_t cdp__dt_feed_step(const cdp_plan *p, const cdp__dt_phase *ph) {
    const uint32_t places = cdp_group_desc_of(p->group)->max_pending / 4;
    bool rows = false;
    for (uint32_t i = 0; i < ph->recvs; ++i)
        rows = rows || ph->recv[i].rows;
    if (!rows) return 0;
    return places ? ph->recvs / places + 1 : ph->recvs;
}

/* Posts receives one by one, so that each can be used while others are in flight. Only batches
   can receive into rows; if there are more receives than places for batches, several share one. */
CDP__DT cdp_status cdp__dt_feed_post(cdp_plan *p, const cdp__dt_phase *ph, cdp_work *works) {
    const uint32_t step = cdp__dt_feed_step(p, ph);
    cdp_status st = CDP_OK;
    uint32_t i, k;
    for (i = 0; st == CDP_OK && !step && i < ph->recvs; ++i) {
        cdp__dt_transfer(p, &p->list[0], &ph->recv[i], true);
        st = cdp_recv_async(p->group, p->list[0].data, p->list[0].count, p->dtype, p->list[0].peer,
            CDP__DT_TAG, &works[i]);
    }
    for (i = 0; st == CDP_OK && step && i < ph->recvs; i += k) {
        for (k = 0; k < step && i + k < ph->recvs; ++k) {
            cdp__dt_transfer(p, &p->list[k], &ph->recv[i + k], true);
            works[i + k].group = p->group;
            works[i + k].seq = 0; /* completes with the first one of its batch */
        }
        st = cdp_batch(p->group, p->list, k, &works[i]);
    }
    return st;
}

CDP__DT cdp_status cdp__dt_feed_run(cdp_plan *p, cdp__dt_feed *f, cdp_work *works) {
    const cdp__dt_phase *ph = &p->phases[0];
    cdp_work sent = {NULL, 0};
    cdp_status st;
    uint32_t i;
    cdp__dt_pack(p, ph);
    st = cdp__dt_feed_post(p, ph, works);
    for (i = 0; i < ph->sends; ++i)
        cdp__dt_transfer(p, &p->list[i], &ph->send[i], false);
    if (st == CDP_OK && ph->sends) st = cdp_batch(p->group, p->list, ph->sends, &sent);
    for (i = 0; st == CDP_OK && i < ph->locals; ++i) {
        cdp__dt_copy_piece(p, &ph->here[i]);
        cdp__dt_feed_piece(f, &ph->here[i].region);
    }
    for (i = 0; st == CDP_OK && i < ph->recvs; ++i) {
        if (works[i].seq) st = cdp_work_wait(works[i]);
        if (st != CDP_OK) break;
        cdp__dt_unpack(p, &ph->recv[i]);
        cdp__dt_feed_piece(f, &ph->recv[i].region);
    }
    if (st == CDP_OK && sent.seq) st = cdp_work_wait(sent);
    return st;
}

CDP__DT cdp_status cdp__dt_feed_whole(cdp_edge *e, const void *x, void *y, cdp__dt_feed *f) {
    cdp__dt_region own;
    const cdp_status st = cdp__dt_way_run(&e->forward, x, y);
    const cdp__dt_stage *s = &e->forward.plan->stages[0];
    if (st != CDP_OK || e->forward.plan->node == CDP__DT_NONE) return st;
    if (cdp__dt_held(&s->host_to, e->forward.plan->node, &own)) cdp__dt_feed_piece(f, &own);
    return f->status;
}

CDP_API cdp_status cdp_edge_forward_pieces(cdp_edge *e, const void *x, void *y,
    cdp_status (*piece)(void *user, const cdp_box *box), void *user) {
    cdp__dt_feed f;
    bool ready;
    cdp_status st = cdp__dt_alive(e, "cdp_edge_forward_pieces", "edge");
    if (st != CDP_OK) return st;
    if (!piece) return cdp__dt_missing("cdp_edge_forward_pieces", "piece");
    cdp_plan *p = e->forward.plan;
    f.piece = piece;
    f.user = user;
    f.ndim = e->desc.to.ndim;
    f.status = CDP_OK;
    if (p->acts || p->phase_count != 1 || p->phases[0].zero || e->forward.out_wire)
        return cdp__dt_feed_whole(e, x, y, &f);
    st = cdp__dt_run_begin(p, x, y, &ready);
    if (st != CDP_OK || !ready) return st;
    const uint64_t bytes = (p->phases[0].recvs + 1ull) * sizeof(cdp_work);
    cdp_work *works = (cdp_work *)cdp__dt_alloc(p->os, bytes);
    st = works ? cdp__dt_feed_run(p, &f, works) : cdp__dt_nomem("cdp_edge_forward_pieces", bytes);
    cdp__dt_free(p->os, works);
    cdp__dt_scratch_give(p, false);
    return st == CDP_OK ? f.status : st;
}

#endif /* CDP_SRC_DTENSOR_EDGES_H */
