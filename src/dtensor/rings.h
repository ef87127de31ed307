/* dtensor/rings.h - keys and values pass from rank to rank

   Knows: blocks of bytes, one per rank, and a function that uses them. Promises: every rank sees
   every block, its own first, while the next one travels; what it adds to a block's gradient
   reaches the block's owner, added in the order of the ring. */
#ifndef CDP_SRC_DTENSOR_RINGS_H
#define CDP_SRC_DTENSOR_RINGS_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../base/error_api.h"
#include "../os/os_api.h"
#include "../message/transport_api.h"
#include "../group/group_api.h"
#include "../group/collectives_api.h"
#include "../group/messages_api.h"
#include "../base/helpers.h"
#include "../base/kept_error.h"
#include "../dtype/convert.h"
#include "../group/state.h"
#include "plan_api.h"
#include "context_parallel_api.h"
#include "cxx_api.h"
#include "kit.h"
#include "chunks.h"
#include "counter.h"
#include "grid.h"
#include "cuts.h"
#include "meshes.h"
#include "stages.h"
#include "runner.h"
#include "operators.h"

#ifndef CDP_NO_TENSOR_OPS

#define CDP__DT_RING_KV (CDP__DT_TAG + 1u)
#define CDP__DT_RING_GRAD (CDP__DT_TAG + 2u)

/* Memory that grows on demand and is kept. */
typedef struct cdp__dt_room {
    uint8_t *at;
    uint64_t bytes;
} cdp__dt_room;

struct cdp_cp {
    cdp_cp_desc desc;
    const cdp_os *os;
    cdp__dt_root *root;
    cdp_group *group;
    uint32_t n, me;
    cdp__dt_room kv[2], grad[2]; /* of the ring; gather: kv[0] and grad[0] hold all blocks */
    cdp_plan *gather_plan, *sum_plan;
    uint64_t plan_bytes, plan_count;
    double *state; /* of attention: results, then sums, per query and head */
    void *tiles; /* of attention: scores, their gradients, sums of one tile; results of a kernel */
    void *pack, *pack_grad;
    uint64_t rows, most_rows;
};

CDP__DT cdp_status cdp__dt_cp_wrong(const char *why) {
    return cdp_error_set(CDP_ERR_INVALID, -1, 0, "cdp_cp_create: %s", why);
}

CDP__DT cdp_status cdp__dt_cp_check(const cdp_cp_desc *d) {
    if (!d) return cdp__dt_missing("cdp_cp_create", "desc");
    if (!d->mesh) return cdp__dt_missing("cdp_cp_create", "desc.mesh");
    if (cdp__dt_mesh_ended(d->mesh)) return cdp__dt_mesh_alive(d->mesh, "cdp_cp_create");
    if (d->mesh->desc.ndim != 1)
        return cdp__dt_cp_wrong(
            "the mesh has several dimensions; take one of them by cdp_mesh_sub()");
    if (!d->heads || !d->width) return cdp__dt_cp_wrong("heads or width is 0; set both");
    if (!(d->scale >= 0 && d->scale <= DBL_MAX))
        return cdp__dt_cp_wrong("scale is negative or not finite; 0 means 1 / sqrt(width)");
    if (d->kv_heads && d->heads % d->kv_heads)
        return cdp__dt_cp_wrong("heads must be a multiple of kv_heads");
    if (d->causal && d->length % (2ull * d->mesh->count))
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_cp_create: a causal length of %llu does not divide into 2 x %u chunks; pad it",
            (unsigned long long)d->length, d->mesh->count);
    const cdp_dtype t = d->dtype;
    if (t == CDP_DTYPE_DEFAULT || t == CDP_DTYPE_F32 || t == CDP_DTYPE_F64) return CDP_OK;
    return cdp_error_set(CDP_ERR_UNSUPPORTED, -1, 0,
        "cdp_cp_create: attention of %s; use f32 or f64", cdp_dtype_name(t));
}

CDP_API uint64_t cdp_cp_rows(
    const cdp_cp_desc *d, uint32_t coord, uint64_t start[2], uint64_t size[2]) {
    start[0] = start[1] = size[0] = size[1] = 0;
    if (!d || !cdp__dt_mesh_known(d->mesh) || coord >= d->mesh->count) return 0;
    const uint32_t n = d->mesh->count;
    if (!d->causal) {
        size[0] = cdp__dt_chunk(d->length, 1, n, coord, &start[0]);
        return size[0];
    }
    const uint64_t chunk = d->length / (2ull * n);
    if (chunk * 2 * n != d->length) return 0;
    size[0] = size[1] = chunk;
    start[0] = coord * chunk;
    start[1] = (2ull * n - 1 - coord) * chunk;
    return 2 * chunk;
}

CDP__DT cdp_status cdp__dt_room_for(cdp_cp *cp, cdp__dt_room *room, uint64_t bytes) {
    if (room->at && room->bytes >= bytes) return CDP_OK;
    cdp__dt_retire(cp->root, cp->desc.mesh->all, room->at);
    room->bytes = bytes;
    room->at = (uint8_t *)cdp__dt_group_memory(cp->group, bytes + 1);
    return room->at ? CDP_OK : cdp__dt_nomem("a ring", bytes);
}

/* Sends a message to the next rank, and receives one from the previous rank. */
CDP__DT cdp_status cdp__dt_ring_pass(cdp_cp *cp, const void *out, void *in, uint64_t count,
    cdp_dtype t, uint32_t tag, cdp_work *work) {
    cdp_transfer pair[2];
    memset(pair, 0, sizeof pair);
    pair[0].receive = true;
    pair[0].data = in;
    pair[0].peer = (cp->me + cp->n - 1) % cp->n;
    pair[1].data = (void *)(uintptr_t)out;
    pair[1].peer = (cp->me + 1) % cp->n;
    for (uint32_t i = 0; i < 2; ++i) {
        pair[i].count = count;
        pair[i].dtype = t;
        pair[i].tag = tag;
    }
    cdp__dt_count(cp->root->counter, CDP_COLL_SEND, count * cdp_dtype_size(t), false);
    return cdp_batch(cp->group, pair, 2, work);
}

/* One call of a ring, or of a gather that replaces it. */
typedef struct cdp__dt_ring {
    cdp_cp_block *block;
    void *user;
    const void *kv;
    uint64_t bytes;
    void *grad;
    uint64_t count;
    cdp_dtype dtype;   /* of grad */
    cdp_status status; /* of the first block that failed */
    cdp_error why;
} cdp__dt_ring;

/* Once a block has failed, gradients are NaN: no other rank takes a part of a sum for all of it. */
CDP__DT void cdp__dt_ring_block(cdp__dt_ring *r, uint32_t owner, const void *kv, void *grad) {
    if (r->status == CDP_OK) {
        r->status = r->block(r->user, owner, kv, grad);
        if (r->status != CDP_OK) r->why = *cdp_last_error();
    }
    for (uint64_t i = 0; grad && r->status != CDP_OK && i < r->count; ++i)
        cdp__number_put(r->dtype, grad, i, NAN);
}

CDP__DT cdp_status cdp__dt_ring_run(cdp_cp *cp, cdp__dt_ring *r) {
    const uint32_t n = cp->n;
    const cdp_dtype t = cp->desc.dtype;
    const void *kv = r->kv;
    uint8_t *grad = r->grad ? cp->grad[0].at : NULL;
    cdp_work moving, back;
    cdp_status st = CDP_OK;
    if (grad) memset(grad, 0, (size_t)(r->count * cdp_dtype_size(t)));
    for (uint32_t s = 0; st == CDP_OK && s < n; ++s) {
        const bool last = s + 1 == n;
        uint8_t *next = cp->kv[s % 2].at;
        if (!last)
            st = cdp__dt_ring_pass(cp, kv, next, r->bytes, CDP_DTYPE_U8, CDP__DT_RING_KV, &moving);
        if (st != CDP_OK) break;
        cdp__dt_ring_block(r, (cp->me + n - s) % n, kv, grad);
        if (grad) { /* to the rank that uses this block next; after the last step, to its owner */
            uint8_t *other = last ? (uint8_t *)r->grad : cp->grad[(s + 1) % 2].at;
            st = cdp__dt_ring_pass(cp, grad, other, r->count, t, CDP__DT_RING_GRAD, &back);
            if (st == CDP_OK) st = cdp_work_wait(back);
            grad = other;
        }
        if (st == CDP_OK && !last) st = cdp_work_wait(moving);
        kv = next;
    }
    return st;
}

/* Makes plans that gather blocks of `bytes`, and that sum gradients of `count` elements. */
CDP__DT cdp_status cdp__dt_gather_plans(cdp_cp *cp, uint64_t bytes, uint64_t count) {
    cdp_plan_desc d;
    cdp_status st = CDP_OK;
    if (!cp->gather_plan || cp->plan_bytes != bytes) {
        memset(&d, 0, sizeof d);
        cdp_plan_destroy(cp->gather_plan);
        cp->gather_plan = NULL;
        d.from.mesh = cp->desc.mesh;
        d.from.dtype = CDP_DTYPE_U8;
        d.from.ndim = 1;
        d.from.shape[0] = bytes * cp->n;
        d.to = d.from;
        d.from.place[0] = cdp__dt_shard(0, 0);
        st = cdp_plan_create(&d, &cp->gather_plan);
        cp->plan_bytes = bytes;
    }
    if (st != CDP_OK || !count || (cp->sum_plan && cp->plan_count == count)) return st;
    memset(&d, 0, sizeof d);
    cdp_plan_destroy(cp->sum_plan);
    cp->sum_plan = NULL;
    d.from.mesh = cp->desc.mesh;
    d.from.dtype = cp->desc.dtype;
    d.from.ndim = 1;
    d.from.shape[0] = count * cp->n;
    d.to = d.from;
    d.from.place[0] = cdp__dt_sum_of(CDP_REDUCE_SUM);
    d.to.place[0] = cdp__dt_shard(0, 0);
    cp->plan_count = count;
    return cdp_plan_create(&d, &cp->sum_plan);
}

/* Gathers all blocks at once, and uses them in the order of the ring. */
CDP__DT cdp_status cdp__dt_ring_gather(cdp_cp *cp, cdp__dt_ring *r) {
    const uint64_t size = r->count * cdp_dtype_size(cp->desc.dtype);
    cdp_status st = cdp__dt_gather_plans(cp, r->bytes, r->grad ? r->count : 0);
    if (st == CDP_OK) st = cdp_plan_run(cp->gather_plan, r->kv, cp->kv[0].at);
    if (st != CDP_OK) return st;
    if (r->grad) memset(cp->grad[0].at, 0, (size_t)(size * cp->n));
    for (uint32_t s = 0; s < cp->n; ++s) {
        const uint32_t owner = (cp->me + cp->n - s) % cp->n;
        cdp__dt_ring_block(r, owner, cp->kv[0].at + owner * r->bytes,
            r->grad ? cp->grad[0].at + owner * size : NULL);
    }
    return r->grad ? cdp_plan_run(cp->sum_plan, cp->grad[0].at, r->grad) : CDP_OK;
}

CDP__DT cdp_status cdp__dt_ring_alone(const cdp_cp *cp, cdp__dt_ring *r) {
    if (r->grad) memset(r->grad, 0, (size_t)(r->count * cdp_dtype_size(cp->desc.dtype)));
    cdp__dt_ring_block(r, 0, r->kv, r->grad);
    return CDP_OK;
}

/* Its mesh is there, and has a group. */
CDP__DT cdp_status cdp__dt_cp_runs(const cdp_cp *cp, const char *call) {
    cdp_status st = cdp__dt_mesh_alive(cp->desc.mesh, call);
    if (st == CDP_OK) st = cdp__dt_link_here(cp->desc.mesh->all);
    if (st != CDP_OK || cp->root->group) return st;
    return cdp_error_set(CDP_ERR_STATE, -1, 0, "cdp_cp: its mesh is on paper; it cannot run");
}

CDP_API cdp_status cdp_cp_ring(cdp_cp *cp, const void *kv, uint64_t bytes, void *grad,
    uint64_t grad_count, cdp_cp_block *block, void *user) {
    cdp__dt_ring r;
    cdp_status st = cdp__dt_alive(cp, "cdp_cp_ring", "cp");
    if (st != CDP_OK) return st;
    if (!kv) return cdp__dt_missing("cdp_cp_ring", "kv");
    if (!block) return cdp__dt_missing("cdp_cp_ring", "block");
    st = cdp__dt_cp_runs(cp, "cdp_cp_ring");
    if (st != CDP_OK) return st;
    if (cp->desc.mesh->me == CDP__DT_NONE) return CDP_OK;
    memset(&r, 0, sizeof r);
    r.kv = kv;
    r.bytes = bytes;
    r.grad = grad;
    r.count = grad ? grad_count : 0;
    r.dtype = cp->desc.dtype;
    r.block = block;
    r.user = user;
    const uint64_t size = r.count * cdp_dtype_size(cp->desc.dtype);
    const uint32_t copies = cp->desc.gather ? cp->n : 1, kinds = cp->desc.gather ? 1 : 2;
    for (uint32_t i = 0; st == CDP_OK && i < kinds && cp->n > 1; ++i) {
        st = cdp__dt_room_for(cp, &cp->kv[i], bytes * copies);
        if (st == CDP_OK && grad) st = cdp__dt_room_for(cp, &cp->grad[i], size * copies);
    }
    if (st != CDP_OK) return st;
    if (cp->n == 1)
        st = cdp__dt_ring_alone(cp, &r);
    else if (cp->desc.gather)
        st = cdp__dt_ring_gather(cp, &r);
    else
        st = cdp__dt_ring_run(cp, &r);
    if (st != CDP_OK || r.status == CDP_OK) return st;
    return cdp__error_again(r.status, &r.why);
}

#endif /* CDP_NO_TENSOR_OPS */

#endif /* CDP_SRC_DTENSOR_RINGS_H */
