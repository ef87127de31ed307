/* dtensor/sharers.h - layers that share their x

   Knows: what a layer has, and which layers use the x that it gathered. Promises: x is gathered
   once for all of them, and one sum of its gradients is sent, or the order of calls is refused; no
   layer touches one that was destroyed. */
#ifndef CDP_SRC_DTENSOR_SHARERS_H
#define CDP_SRC_DTENSOR_SHARERS_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../base/error_api.h"
#include "../os/os_api.h"
#include "../base/ended.h"
#include "layout_api.h"
#include "edge_api.h"
#include "tensor_parallel_api.h"
#include "cxx_api.h"
#include "kit.h"
#include "grid.h"
#include "meshes.h"
#include "scratch.h"
#include "tensors.h"
#include "edges.h"

#ifndef CDP_NO_TENSOR_OPS

struct cdp_tp {
    cdp_tp_desc desc;
    cdp_place input, output;
    const cdp_os *os;
    cdp__dt_root *root;
    cdp_tp_layouts l;
    cdp_edge *in, *out, *weight, *bias; /* the last two: sums of gradients, SEQUENCE alone */
    bool in_same, out_same;             /* x is used as it is; y is made as it is */
    bool gathered;                      /* `used` holds x of the last forward */
    void *used;
    void *made, *grad_used, *sums, *sums_out; /* in `room`, during a call */
    cdp__dt_scratch *room;
    uint64_t room_bytes;
    cdp_tp *of;             /* whose `in`, `used` and `sum` this layer uses; NULL: its own */
    cdp_tp *sharers, *next; /* those that use what this one has; the next of them */
    bool lost;              /* `of` was destroyed */
    const void *x;          /* what `used` is of */
    void *sum;              /* of the gradients of x; NULL: nobody shares x, or wants a gradient */
    uint32_t sharer_count, summed; /* of sharers, those that ran backward in this turn */
    uint32_t turn;  /* it ends with backward; of a sharer: that of `of` in which it ran backward */
    uint32_t begun; /* the turn in which backward has begun to add to gradients */
};

CDP__DT cdp_status cdp__dt_tp_wrong(const char *why) {
    return cdp_error_set(CDP_ERR_INVALID, -1, 0, "cdp_tp_create: %s", why);
}

/* The layer that gathers x. */
CDP__DT cdp_tp *cdp__dt_tp_gatherer(cdp_tp *tp) {
    return tp->of ? tp->of : tp;
}

/* Before memory is allocated, which may be that of a layer that was destroyed. */
CDP__DT cdp_status cdp__dt_tp_has_gatherer(const cdp_tp_desc *d) {
    if (!d->x_of || (!cdp__ended(d->x_of) && !d->x_of->lost)) return CDP_OK;
    return cdp_error_set(CDP_ERR_STATE, -1, 0,
        "cdp_tp_create: the layer desc.x_of, or the one that has its x, was destroyed");
}

/* The first member in which layers differ that want to share x; NULL: none. */
CDP__DT const char *cdp__dt_tp_differs(const cdp_tp *a, const cdp_tp *b) {
    const cdp_tp_desc *d = &a->desc, *e = &b->desc;
    if (d->mesh != e->mesh) return "mesh";
    if (d->style != e->style) return "style";
    if (d->embedding != e->embedding) return "embedding";
    if (d->rows != e->rows) return "rows";
    if (d->in_features != e->in_features) return "in_features";
    if (d->dtype != e->dtype) return "dtype";
    if (d->wire != e->wire) return "wire";
    if (d->gather_again != e->gather_again) return "gather_again";
    if (d->no_grad_x != e->no_grad_x) return "no_grad_x";
    if (d->grad_x_partial != e->grad_x_partial) return "grad_x_partial";
    return cdp_layout_same(&a->l.x, &b->l.x) ? NULL : "input";
}

/* Finds the layer whose x this one shares, and the memory for the sum of their gradients. */
CDP__DT cdp_status cdp__dt_tp_share(cdp_tp *tp) {
    cdp_tp *const of = cdp__dt_tp_gatherer(tp->desc.x_of);
    if (tp->desc.style != CDP_TP_COLUMN || tp->desc.embedding)
        return cdp__dt_tp_wrong("x_of is for COLUMN without a table");
    const char *differs = cdp__dt_tp_differs(tp, of);
    if (differs)
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_tp_create: %s differs from that of x_of; layers that share x have it alike",
            differs);
    const uint64_t bytes = cdp__dt_local_bytes(&tp->l.used) + 1;
    const bool room = tp->desc.mesh->all && !tp->desc.no_grad_x && !of->sum;
    if (room) of->sum = cdp__dt_group_memory(tp->desc.mesh->all->group, bytes);
    if (room && !of->sum) return cdp__dt_nomem("a tensor-parallel layer", bytes);
    tp->of = of;
    tp->in = of->in;
    return CDP_OK;
}

/* Counts a new layer among those that share x. */
CDP__DT void cdp__dt_tp_join(cdp_tp *tp) {
    cdp_tp *const of = tp->of;
    tp->turn = of ? 0 : 1;
    if (!of) return;
    tp->next = of->sharers;
    of->sharers = tp;
    ++of->sharer_count;
}

/* A layer that is destroyed leaves those that share x, and they leave it. */
CDP__DT void cdp__dt_tp_part_from(cdp_tp *tp) {
    cdp_tp **at = tp->of ? &tp->of->sharers : NULL;
    while (at && *at && *at != tp)
        at = &(*at)->next;
    if (at && *at) {
        *at = tp->next;
        --tp->of->sharer_count;
        if (tp->turn == tp->of->turn) --tp->of->summed;
    }
    for (cdp_tp *s = tp->sharers; s; s = s->next) {
        s->of = NULL;
        s->in = NULL;
        s->lost = true;
    }
}

CDP__DT cdp_status cdp__dt_tp_not_alone(const cdp_tp *tp, const char *call) {
    if (!tp->lost) return CDP_OK;
    return cdp_error_set(CDP_ERR_STATE, -1, 0,
        "%s: the layer x_of of this one was destroyed; destroy it after all that share its x",
        call);
}

/* A new turn: no gradient is summed. */
CDP__DT void cdp__dt_tp_anew(cdp_tp *tp) {
    ++tp->turn;
    tp->summed = 0;
}

/* A layer that gathers has x. */
CDP__DT void cdp__dt_tp_has(cdp_tp *tp, const void *x) {
    tp->gathered = true;
    tp->x = x;
    cdp__dt_tp_anew(tp);
}

CDP__DT void cdp__dt_tp_ran_back(cdp_tp *tp) {
    if (!tp->of) {
        cdp__dt_tp_anew(tp);
        return;
    }
    tp->turn = tp->of->turn;
    ++tp->of->summed;
}

/* Refuses a forward before that of x_of, or with another x. */
CDP__DT cdp_status cdp__dt_tp_forward_order(const cdp_tp *tp, const void *x) {
    if (!tp->of) return CDP_OK;
    if (!tp->of->gathered)
        return cdp_error_set(CDP_ERR_STATE, -1, 0,
            "cdp_tp_forward: the layer x_of has no x yet; call its forward before");
    if (tp->of->x == x) return CDP_OK;
    return cdp_error_set(CDP_ERR_INVALID, -1, 0,
        "cdp_tp_forward: x is not that of the last forward of x_of; pass the same array");
}

/* Backward of a layer that shares x adds to gradients from here on. */
CDP__DT void cdp__dt_tp_adds(cdp_tp *tp) {
    tp->begun = cdp__dt_tp_gatherer(tp)->turn;
}

/* Refuses a backward of x_of before that of a sharer, one of a sharer too many, and the second try
   of one that has failed: it would add to the sum again. */
CDP__DT cdp_status cdp__dt_tp_backward_order(const cdp_tp *tp) {
    if (tp->of && tp->turn == tp->of->turn)
        return cdp_error_set(CDP_ERR_STATE, -1, 0,
            "cdp_tp_backward: this layer ran backward already; that of x_of is next");
    if ((tp->of && tp->begun == tp->of->turn) || (tp->sharer_count && tp->begun == tp->turn))
        return cdp_error_set(CDP_ERR_STATE, -1, 0,
            "cdp_tp_backward: the last call failed after it had added to gradients, which layers "
            "that share x sum; clear the gradients, and begin again with the forward of x_of");
    if (tp->summed == tp->sharer_count) return CDP_OK;
    return cdp_error_set(CDP_ERR_STATE, -1, 0,
        "cdp_tp_backward: %u of the %u layers that share x ran backward; this one is the last",
        tp->summed, tp->sharer_count);
}

#endif /* CDP_NO_TENSOR_OPS */

#endif /* CDP_SRC_DTENSOR_SHARERS_H */
