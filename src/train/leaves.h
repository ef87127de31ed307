/* train/leaves.h - the same bits on any number of ranks

   Knows: nodes of the tree, buckets of a ddp as a hook sees them. Promises: values are added as the
   tree of >>train/leaves_tree has them, and divided once, at its root. */
#ifndef CDP_SRC_TRAIN_LEAVES_H
#define CDP_SRC_TRAIN_LEAVES_H

#include "leaves_api.h"
#include "../os/os_api.h"
#include "../group/collectives_api.h"
#include "../group/vote.h"
#include "../ddp/hooks_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/ended.h"
#include "../base/text.h"
#include "../dtype/dtype.h"
#include "../dtype/reduce.h"
#include "../group/state.h"
#include "../group/collective_calls.h"
#include "../ddp/group_access.h"
#include "../ddp/state.h"
#include "leaves_tree.h"

#ifndef CDP_NO_DDP
#ifndef CDP_NO_TRAINING

/* A range of gradients that travels at once: a bucket, or the array of a job without a ddp. */
typedef struct cdp__leaf_range {
    uint64_t offset; /* bytes, in each slot */
    uint64_t count;
    uint8_t *scratch; /* nodes to send, where there are several; then those received */
    uint64_t scratch_bytes;
} cdp__leaf_range;

struct cdp_leaves {
    cdp_leaves_desc desc;
    cdp_group *group;
    const cdp_os *os;
    uint64_t first, count; /* this rank's micro-batches */
    uint64_t done;         /* of these, in this global batch */
    bool open;             /* one has begun */
    bool released;         /* the program has destroyed it */
    bool unhooked;         /* no ddp calls it */
    cdp__leaf_stack kept;  /* nodes of the finished ones; their values are in slots */
    uint8_t **slots;
    uint32_t slot_count;
    uint64_t slot_bytes;
    uint64_t *offsets; /* bytes in a slot, of each parameter */
    cdp__leaf_range *ranges;
    uint32_t range_count;
    cdp__leaf_node *nodes; /* those of all ranks, in the order of leaves */
    uint32_t *starts;      /* rank r has nodes starts[r] to starts[r + 1] - 1 */
    uint64_t *counts[2];   /* elements to and from each rank */
};

CDP__PRIVATE void cdp__leaves_free(cdp_leaves *l) {
    uint32_t i;
    for (i = 0; l->slots && i < l->slot_count; ++i)
        cdp__free(l->os, l->slots[i]);
    for (i = 0; l->ranges && i < l->range_count; ++i)
        cdp__free(l->os, l->ranges[i].scratch);
    cdp__free(l->os, l->slots);
    cdp__free(l->os, l->offsets);
    cdp__free(l->os, l->ranges);
    cdp__free(l->os, l->nodes);
    cdp__free(l->os, l->starts);
    cdp__free(l->os, l->counts[0]);
    cdp__free(l->os, l->counts[1]);
    cdp__free(l->os, l);
}

/* The ddp has another hook, or ends. */
CDP__PRIVATE void cdp__leaves_unhook(void *self) {
    cdp_leaves *l = (cdp_leaves *)self;
    l->unhooked = true;
    if (l->released) cdp__leaves_free(l);
}

/* Adds `count` values of the next micro-batch to the nodes `s`, whose values are at values[]. A
   leaf that stays apart is where it was: at values[depth - 1]. */
CDP__PRIVATE void cdp__leaves_add(const cdp_leaves *l, cdp__leaf_stack *s, uint8_t **values,
    uint8_t *leaf, uint64_t count, cdp_dtype dtype) {
    const cdp__leaf_node node = {l->first + l->done, 0};
    uint32_t top = s->depth, added = cdp__leaf_push(s, node, l->desc.leaves);
    for (values[top] = leaf; added; --added, --top)
        cdp__reduce(dtype, CDP_REDUCE_SUM, false, values[top - 1], values[top], count);
}

/* Keeps a gradient that no later pass of this global batch sends: values at `offset` of slots. */
CDP__PRIVATE void cdp__leaves_keep(cdp_leaves *l, const cdp__leaf_stack *before, uint64_t offset,
    void *grad, uint64_t count, cdp_dtype dtype) {
    uint8_t *values[CDP__LEAF_DEPTH + 1];
    cdp__leaf_stack s = *before;
    uint32_t i;
    for (i = 0; i < s.depth; ++i)
        values[i] = l->slots[i] + offset;
    cdp__leaves_add(l, &s, values, (uint8_t *)grad, count, dtype);
    if (s.depth > before->depth)
        memcpy(l->slots[before->depth] + offset, grad, (size_t)(count * cdp_dtype_size(dtype)));
}

/* Takes the gradients of the micro-batch that has ended, which is not this rank's last one. */
CDP__PRIVATE void cdp__leaves_take(cdp_leaves *l) {
    const cdp__leaf_stack before = l->kept;
    const cdp__leaf_node node = {l->first + l->done, 0};
    cdp_ddp *d = l->desc.ddp;
    uint32_t i;
    for (i = 0; d && i < d->param_count; ++i)
        cdp__leaves_keep(l, &before, l->offsets[i], cdp__param_grad(&d->params[i]),
            d->params[i].user.count, d->params[i].user.dtype);
    if (!d) cdp__leaves_keep(l, &before, 0, l->desc.grads, l->desc.count, l->desc.dtype);
    (void)cdp__leaf_push(&l->kept, node, l->desc.leaves);
}

CDP__PRIVATE uint64_t cdp__leaves_part(const cdp__leaf_range *v, uint64_t ranks, uint64_t r) {
    return cdp__leaf_first(v->count, ranks, r);
}

/* Elements of the part that rank r adds. */
CDP__PRIVATE uint64_t cdp__leaves_len(const cdp__leaf_range *v, uint64_t ranks, uint64_t r) {
    return cdp__leaves_part(v, ranks, r + 1) - cdp__leaves_part(v, ranks, r);
}

/* Scratch memory: first the nodes that this rank sends, if they do not lie in one piece. */
CDP__PRIVATE uint64_t cdp__leaves_packed(const cdp_leaves *l, const cdp__leaf_range *v) {
    const uint32_t rank = cdp_rank(l->group), mine = l->starts[rank + 1] - l->starts[rank];
    return mine > 1 ? mine * v->count : 0;
}

/* Writes parts of all nodes, those of rank 0 first. */
CDP__PRIVATE void cdp__leaves_pack(
    const cdp__leaf_range *v, uint8_t **values, uint32_t nodes, uint32_t ranks, uint64_t size) {
    uint8_t *to = v->scratch;
    uint32_t r, k;
    for (r = 0; r < ranks; ++r)
        for (k = 0; k < nodes; ++k) {
            const uint64_t bytes = cdp__leaves_len(v, ranks, r) * size;
            memcpy(to, values[k] + cdp__leaves_part(v, ranks, r) * size, (size_t)bytes);
            to += bytes;
        }
}

CDP__PRIVATE cdp_status cdp__leaves_scratch(
    const cdp_leaves *l, cdp__leaf_range *v, uint64_t size) {
    const uint32_t n = cdp_size(l->group);
    const uint64_t received = l->starts[n] * cdp__leaves_len(v, n, cdp_rank(l->group)),
                   bytes = cdp__max((cdp__leaves_packed(l, v) + received) * size, 1);
    if (v->scratch_bytes >= bytes) return CDP_OK;
    cdp__free(l->os, v->scratch);
    v->scratch = (uint8_t *)cdp__alloc(l->os, bytes);
    v->scratch_bytes = v->scratch ? bytes : 0;
    return v->scratch ? CDP_OK : cdp__fail_nomem("nodes of a bucket", bytes);
}

/* Adds the last micro-batch, and asks for the exchange of nodes. */
CDP__PRIVATE cdp_status cdp__leaves_send(
    cdp_leaves *l, cdp__leaf_range *v, void *grad, cdp_dtype dtype, cdp_request *op) {
    const uint32_t n = cdp_size(l->group), rank = cdp_rank(l->group);
    const uint64_t size = cdp_dtype_size(dtype), own = cdp__leaves_len(v, n, rank);
    uint8_t *values[CDP__LEAF_DEPTH + 1];
    cdp__leaf_stack s = l->kept;
    cdp_status st;
    uint32_t i;
    if (!v->count) return CDP_OK;
    for (i = 0; i < s.depth; ++i)
        values[i] = l->slots[i] + v->offset;
    cdp__leaves_add(l, &s, values, (uint8_t *)grad, v->count, dtype);
    if (n == 1) {
        if (values[0] != grad) memcpy(grad, values[0], (size_t)(v->count * size));
        cdp__divide(dtype, grad, v->count, l->desc.leaves);
        return CDP_OK;
    }
    st = cdp__leaves_scratch(l, v, size);
    if (st != CDP_OK) return st;
    if (s.depth > 1) cdp__leaves_pack(v, values, s.depth, n, size);
    for (i = 0; i < n; ++i) {
        l->counts[0][i] = s.depth * cdp__leaves_len(v, n, i);
        l->counts[1][i] = (l->starts[i + 1] - l->starts[i]) * own;
    }
    *op = cdp__request_of(CDP_COLL_ALLTOALL, s.depth > 1 ? v->scratch : values[0],
        v->scratch + cdp__leaves_packed(l, v) * size, s.depth * v->count, dtype, CDP_REDUCE_DEFAULT,
        0);
    op->in_counts = l->counts[0];
    op->out_counts = l->counts[1];
    return CDP_PENDING;
}

/* Adds the nodes of all ranks in this rank's part, and asks for the parts of the others. */
CDP__PRIVATE void cdp__leaves_join(
    cdp_leaves *l, const cdp__leaf_range *v, void *grad, cdp_dtype dtype, cdp_request *op) {
    const uint32_t n = cdp_size(l->group), rank = cdp_rank(l->group);
    const uint64_t size = cdp_dtype_size(dtype), own = cdp__leaves_len(v, n, rank);
    uint8_t *const mine = (uint8_t *)grad + cdp__leaves_part(v, n, rank) * size;
    uint8_t *from = v->scratch + cdp__leaves_packed(l, v) * size, *values[CDP__LEAF_DEPTH + 1];
    cdp__leaf_stack s;
    uint32_t i;
    s.depth = 0;
    for (i = 0; i < l->starts[n]; ++i, from += own * size) {
        uint32_t top = s.depth, added = cdp__leaf_push(&s, l->nodes[i], l->desc.leaves);
        for (values[top] = from; added; --added, --top)
            cdp__reduce(dtype, CDP_REDUCE_SUM, false, values[top - 1], values[top], own);
    }
    CDP_ASSERT(s.depth == 1);
    memcpy(mine, values[0], (size_t)(own * size));
    cdp__divide(dtype, mine, own, l->desc.leaves);
    for (i = 0; i < n; ++i)
        l->counts[1][i] = cdp__leaves_len(v, n, i);
    *op = cdp__request_of(CDP_COLL_ALLGATHER, NULL, grad, own, dtype, CDP_REDUCE_DEFAULT, 0);
    op->out_counts = l->counts[1];
}

CDP__PRIVATE cdp_status cdp__leaves_stage(
    void *self, cdp_bucket *b, uint32_t stage, cdp_request *op) {
    cdp_leaves *l = (cdp_leaves *)self;
    cdp__leaf_range *v = &l->ranges[b->index];
    if (!l->open)
        return cdp__fail(CDP_ERR_STATE,
            "cdp_leaves: this pass has begun without cdp_leaves_begin(), which says which "
            "micro-batch it is");
    if (!stage) return cdp__leaves_send(l, v, b->data, b->dtype, op);
    if (stage > 1) return CDP_OK;
    cdp__leaves_join(l, v, b->data, b->dtype, op);
    return CDP_PENDING;
}

/* ---- creation ---- */

CDP__PRIVATE CDP__COLD cdp_status cdp__leaves_check_ddp(const cdp_ddp *d) {
    const cdp_status st = cdp__ddp_between(d, "cdp_leaves_create");
    uint32_t i;
    if (st != CDP_OK) return st;
    if (d->desc.join)
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "cdp_leaves_create: the ddp has `join`; every micro-batch of a global batch is needed");
    for (i = 0; i < d->param_count; ++i) {
        const cdp_param *p = &d->params[i].user;
        if (p->sparse || (p->dtype != CDP_DTYPE_F32 && p->dtype != CDP_DTYPE_F64))
            return cdp__fail(CDP_ERR_UNSUPPORTED,
                "cdp_leaves_create: parameter '%s' is %s; use f32 or f64, and dense gradients",
                p->name, p->sparse ? "sparse" : cdp_dtype_name(p->dtype));
    }
    return CDP_OK;
}

/* Leaves, bytes of gradients and dtype are those of rank 0. Collective. */
CDP__PRIVATE cdp_status cdp__leaves_compare(const cdp_leaves_desc *d) {
    static const char *const what[] = {"leaves", "bytes of gradients", "as dtype"};
    uint64_t mine[3] = {d->leaves, 0, d->ddp ? 0 : (uint64_t)d->dtype}, first[3];
    cdp_status st;
    uint32_t i;
    if (!d->ddp) mine[1] = d->count * cdp_dtype_size(d->dtype);
    for (i = 0; d->ddp && i < d->ddp->param_count; ++i)
        mine[1] += cdp__param_bytes(&d->ddp->params[i]);
    memcpy(first, mine, sizeof first);
    st = cdp_broadcast(d->group, first, 3, CDP_DTYPE_U64, 0);
    for (i = 0; st == CDP_OK && i < 3; ++i)
        if (mine[i] != first[i])
            st = cdp__fail(CDP_ERR_MISMATCH,
                "cdp_leaves_create: rank %u has %llu %s, rank 0 has %llu; make them equal",
                cdp_rank(d->group), (unsigned long long)mine[i], what[i],
                (unsigned long long)first[i]);
    return st;
}

/* Sets d->group, unless nothing can be told to other ranks. */
CDP__PRIVATE CDP__COLD cdp_status cdp__leaves_check(cdp_leaves_desc *d) {
    cdp_status st = CDP_OK;
    if (d->ddp) {
        d->group = cdp__ddp_lives(d->ddp) ? d->ddp->group : NULL;
        st = cdp__leaves_check_ddp(d->ddp);
    } else if (!d->group) {
        return cdp__missing("cdp_leaves_create", "desc.ddp or desc.group");
    }
    if (st == CDP_OK) st = cdp__alive(d->group, "cdp_leaves_create");
    if (st == CDP_ERR_STATE) d->group = NULL;
    if (st != CDP_OK) return st;
    if (!d->ddp && !d->grads && d->count) return cdp__missing("cdp_leaves_create", "desc.grads");
    d->dtype = d->dtype == CDP_DTYPE_DEFAULT ? CDP_DTYPE_F32 : d->dtype;
    if (d->dtype != CDP_DTYPE_F32 && d->dtype != CDP_DTYPE_F64)
        return cdp__fail(CDP_ERR_UNSUPPORTED, "cdp_leaves_create: desc.dtype is %s; use f32 or f64",
            cdp_dtype_name(d->dtype));
    return CDP_OK;
}

CDP__PRIVATE CDP__COLD cdp_status cdp__leaves_check_count(const cdp_leaves_desc *d) {
    const uint32_t n = cdp_size(d->group);
    if (d->leaves >= n && d->leaves <= 0x80000000u) return CDP_OK;
    return cdp__fail(CDP_ERR_INVALID,
        "cdp_leaves_create: desc.leaves is %u, and there are %u ranks; possible are %u ranks, "
        "or any smaller number, and 1 to 2147483648 leaves",
        d->leaves, n, (unsigned)cdp__min(cdp__min(d->leaves, 0x80000000u), 65535));
}

/* Lists the nodes of all ranks, and how many slots this rank needs before its last leaf. */
CDP__PRIVATE cdp_status cdp__leaves_plan(cdp_leaves *l) {
    const uint32_t n = cdp_size(l->group), rank = cdp_rank(l->group);
    const uint64_t leaves = l->desc.leaves;
    cdp__leaf_stack s;
    uint32_t r, pass;
    l->first = cdp__leaf_first(leaves, n, rank);
    l->count = cdp__leaf_first(leaves, n, rank + 1ull) - l->first;
    l->slot_count = cdp__leaf_nodes(leaves, l->first, l->first + l->count - 1, &s);
    l->starts = (uint32_t *)cdp__alloc_zero(l->os, (n + 1ull) * sizeof *l->starts);
    l->counts[0] = (uint64_t *)cdp__alloc_zero(l->os, n * sizeof **l->counts);
    l->counts[1] = (uint64_t *)cdp__alloc_zero(l->os, n * sizeof **l->counts);
    if (!l->starts || !l->counts[0] || !l->counts[1])
        return cdp__fail_nomem("leaves", n * 2ull * sizeof **l->counts);
    for (pass = 0; pass < 2; ++pass) { /* counts, then writes */
        for (r = 0; r < n; ++r) {
            (void)cdp__leaf_nodes(
                leaves, cdp__leaf_first(leaves, n, r), cdp__leaf_first(leaves, n, r + 1ull), &s);
            if (pass) memcpy(l->nodes + l->starts[r], s.nodes, s.depth * sizeof *s.nodes);
            l->starts[r + 1] = l->starts[r] + s.depth;
        }
        if (pass) continue;
        l->nodes = (cdp__leaf_node *)cdp__alloc(l->os, l->starts[n] * sizeof *l->nodes);
        if (!l->nodes) return cdp__fail_nomem("leaves", l->starts[n] * sizeof *l->nodes);
    }
    return CDP_OK;
}

/* Where gradients lie in a slot: as in buckets. */
CDP__PRIVATE cdp_status cdp__leaves_lay_out(cdp_leaves *l) {
    const cdp_ddp *d = l->desc.ddp;
    uint32_t i, k;
    l->range_count = d ? d->bucket_count : 1;
    l->ranges =
        (cdp__leaf_range *)cdp__alloc_zero(l->os, cdp__max(l->range_count, 1) * sizeof *l->ranges);
    l->offsets = (uint64_t *)cdp__alloc_zero(
        l->os, cdp__max(d ? d->param_count : 0, 1) * sizeof *l->offsets);
    if (!l->ranges || !l->offsets) return cdp__fail_nomem("leaves", sizeof *l->ranges);
    if (!d) {
        l->ranges[0].count = l->desc.count;
        l->slot_bytes = l->desc.count * cdp_dtype_size(l->desc.dtype);
    }
    for (i = 0; d && i < d->bucket_count; ++i) {
        const cdp__bucket *b = &d->buckets[i];
        l->slot_bytes = (l->slot_bytes + 63) & ~(uint64_t)63;
        l->ranges[i].offset = l->slot_bytes;
        l->ranges[i].count = b->count;
        for (k = 0; k < b->params; ++k) {
            l->offsets[b->slots[k]] = l->slot_bytes;
            l->slot_bytes += cdp__param_bytes(&d->params[b->slots[k]]);
        }
    }
    l->slots = (uint8_t **)cdp__alloc_zero(l->os, cdp__max(l->slot_count, 1) * sizeof *l->slots);
    if (!l->slots) return cdp__fail_nomem("leaves", l->slot_count * sizeof *l->slots);
    for (i = 0; i < l->slot_count; ++i) {
        l->slots[i] = (uint8_t *)cdp__alloc(l->os, cdp__max(l->slot_bytes, 1));
        if (!l->slots[i]) return cdp__fail_nomem("gradients of micro-batches", l->slot_bytes);
    }
    /* a hook that fails for lack of memory ends all ranks; without a ddp they would wait */
    if (!d && cdp_size(l->group) > 1)
        return cdp__leaves_scratch(l, &l->ranges[0], cdp_dtype_size(l->desc.dtype));
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__leaves_set_hook(cdp_leaves *l) {
    cdp_hook hook;
    if (!l->desc.ddp) {
        l->unhooked = true;
        return CDP_OK;
    }
    memset(&hook, 0, sizeof hook);
    hook.self = l;
    hook.stage = cdp__leaves_stage;
    hook.destroy = cdp__leaves_unhook;
    hook.operations = 2;
    hook.keeps_layout = true;
    return cdp_ddp_set_hook(l->desc.ddp, &hook);
}

/* The part of creation that all ranks begin. */
CDP__PRIVATE CDP__COLD cdp_status cdp__leaves_make(cdp_leaves *l, const cdp_leaves_desc *d) {
    cdp_status st = cdp__leaves_compare(d);
    if (st == CDP_OK) st = cdp__leaves_check_count(d);
    if (st == CDP_OK) st = cdp__leaves_plan(l);
    if (st == CDP_OK) st = cdp__leaves_lay_out(l);
    return cdp__vote(d->group, st, "cdp_leaves_create");
}

CDP_API cdp_status cdp_leaves_create(const cdp_leaves_desc *desc, cdp_leaves **out) {
    cdp_leaves_desc d;
    cdp_leaves *l;
    cdp_status st;
    if (!out) return cdp__missing("cdp_leaves_create", "out");
    *out = NULL;
    if (!desc) return cdp__missing("cdp_leaves_create", "desc");
    d = *desc;
    CDP__NOT_COLD();
    st = cdp__leaves_check(&d);
    if (!d.group) return st;
    l = st == CDP_OK ? (cdp_leaves *)cdp__alloc_zero(cdp__group_os(d.group), sizeof *l) : NULL;
    if (st == CDP_OK && !l) st = cdp__fail_nomem("leaves", sizeof *l);
    if (l) {
        l->desc = d;
        l->group = d.group;
        l->os = cdp__group_os(d.group);
    }
    st = cdp__vote(d.group, st, "cdp_leaves_create");
    if (st == CDP_OK) st = cdp__leaves_make(l, &d);
    if (st != CDP_OK) {
        if (l) cdp__leaves_free(l);
        return st;
    }
    l->released = true; /* a refused hook is destroyed, and this with it */
    st = cdp__leaves_set_hook(l);
    if (st != CDP_OK) return st;
    l->released = false;
    cdp__ended_remove(l);
    *out = l;
    return CDP_OK;
}

CDP_API void cdp_leaves_destroy(cdp_leaves *l) {
    if (!l || cdp__ended(l)) return;
    cdp__ended_add(l);
    l->released = true;
    if (l->unhooked)
        cdp__leaves_free(l);
    else if (cdp_ddp_set_hook(l->desc.ddp, NULL) != CDP_OK)
        return; /* refused in a pass: the ddp frees it then */
}

/* ---- a global batch ---- */

CDP__PRIVATE cdp_status cdp__leaves_usable(const cdp_leaves *l, const char *call) {
    if (!l) return cdp__missing(call, "leaves");
    if (cdp__ended(l)) return cdp__fail(CDP_ERR_STATE, "%s: these leaves were destroyed", call);
    if (cdp__ended(l->group))
        return cdp__fail(CDP_ERR_STATE, "%s: the group of these leaves was destroyed", call);
    if (cdp__is_child(l->group->w->forks)) return cdp__alive(l->group, call);
    if (l->desc.ddp && l->unhooked)
        return cdp__fail(CDP_ERR_STATE,
            "%s: the ddp was destroyed or has another hook; create leaves again", call);
    return CDP_OK;
}

CDP_API void cdp_leaves_range(const cdp_leaves *l, uint64_t *first, uint64_t *count) {
    const bool known = l && !cdp__ended(l);
    if (first) *first = known ? l->first : 0;
    if (count) *count = known ? l->count : 0;
}

CDP_API cdp_status cdp_leaves_begin(cdp_leaves *l, uint64_t *leaf) {
    cdp_status st = cdp__leaves_usable(l, "cdp_leaves_begin");
    if (st != CDP_OK) return st;
    if (l->open)
        return cdp__fail(CDP_ERR_STATE,
            "cdp_leaves_begin: micro-batch %llu has not ended; call cdp_leaves_end()",
            (unsigned long long)(l->first + l->done));
    if (!l->done) l->kept.depth = 0;
    if (l->desc.ddp) {
        st = cdp_ddp_no_sync(l->desc.ddp, l->done + 1 < l->count);
        if (st != CDP_OK) return st;
        cdp_ddp_zero_grad(l->desc.ddp);
        st = cdp_ddp_backward_begin(l->desc.ddp);
    } else if (l->desc.count) {
        memset(l->desc.grads, 0, (size_t)l->slot_bytes);
    }
    if (st != CDP_OK) return st;
    l->open = true;
    if (leaf) *leaf = l->first + l->done;
    return CDP_OK;
}

/* The last micro-batch without a ddp. */
CDP__PRIVATE cdp_status cdp__leaves_exchange(cdp_leaves *l) {
    cdp__leaf_range *v = &l->ranges[0];
    cdp_request rq;
    cdp_work work = {NULL, 0};
    cdp_status st = cdp__leaves_send(l, v, l->desc.grads, l->desc.dtype, &rq);
    if (st != CDP_PENDING) return st;
    st = cdp_start(l->group, &rq, &work);
    if (st == CDP_OK) st = cdp_work_wait(work);
    if (st != CDP_OK) return st;
    cdp__leaves_join(l, v, l->desc.grads, l->desc.dtype, &rq);
    st = cdp_start(l->group, &rq, &work);
    return st == CDP_OK ? cdp_work_wait(work) : st;
}

CDP_API cdp_status cdp_leaves_end(cdp_leaves *l) {
    cdp_status st = cdp__leaves_usable(l, "cdp_leaves_end");
    const bool last = st == CDP_OK && l->done + 1 == l->count;
    if (st != CDP_OK) return st;
    if (!l->open)
        return cdp__fail(
            CDP_ERR_STATE, "cdp_leaves_end: no micro-batch is open; call cdp_leaves_begin()");
    if (l->desc.ddp)
        st = cdp_ddp_backward_end(l->desc.ddp);
    else if (last)
        st = cdp__leaves_exchange(l);
    l->open = false;
    if (st != CDP_OK || last) {
        l->done = 0;
        return st;
    }
    cdp__leaves_take(l);
    ++l->done;
    return CDP_PENDING;
}

#endif /* CDP_NO_TRAINING */
#endif /* CDP_NO_DDP */

#endif /* CDP_SRC_TRAIN_LEAVES_H */
