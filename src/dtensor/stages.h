/* dtensor/stages.h - the data of a plan

   Knows: pairs of layouts. Promises: the cost of a stage for all ranks. */
#ifndef CDP_SRC_DTENSOR_STAGES_H
#define CDP_SRC_DTENSOR_STAGES_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../os/os_api.h"
#include "../message/transport_api.h"
#include "../group/group_api.h"
#include "../group/messages_api.h"
#include "../base/helpers.h"
#include "../group/state.h"
#include "mesh_api.h"
#include "layout_api.h"
#include "plan_api.h"
#include "kit.h"
#include "kernels.h"
#include "chunks.h"
#include "grid.h"
#include "moves.h"
#include "single.h"
#include "sums.h"
#include "torch.h"
#include "spelling.h"

typedef enum cdp__dt_memory {
    CDP__DT_IN,
    CDP__DT_OUT,
    CDP__DT_SCRATCH
} cdp__dt_memory;

/* Rows at least this long are received in place. Shorter ones are cheaper to receive together
   and then to copy. */
#define CDP__DT_ROW_BYTES 64u

/* One message, or one local copy. */
typedef struct cdp__dt_piece {
    uint32_t peer;           /* node */
    cdp__dt_memory from, to; /* what the offsets of copy refer to */
    bool direct;             /* the message is contiguous in the tensor: not packed or unpacked */
    bool rows;               /* received into rows of the tensor: not unpacked */
    bool again;              /* already packed for the previous piece */
    uint64_t elements, at;   /* at: offset of the message in its memory */
    cdp__dt_copy copy;
    cdp__dt_region region;
} cdp__dt_piece;

/* A slab that this rank reduces, or a window of one: its own contribution, and those received from
   piece `first` on. */
typedef struct cdp__dt_fold {
    uint64_t at, elements;
    uint32_t own, first;
    cdp__dt_memory from, to; /* to: where the slab is */
    cdp__dt_copy copy;       /* of the own contribution */
} cdp__dt_fold;

typedef struct cdp__dt_phase {
    cdp__dt_piece *send, *recv, *here;
    cdp__dt_fold *fold;
    uint32_t sends, recvs, locals, folds;
    bool zero; /* clear the target first */
    uint64_t zero_at, zero_bytes;
    cdp__dt_memory zero_in;
    uint32_t stage;
} cdp__dt_phase;

typedef struct cdp__dt_stage {
    cdp_layout from, to;
    cdp__dt_pair pair;
    cdp__dt_side host_to; /* the target's arrays: larger than pair.to's where PARTIAL is filled */
    bool zero;
    cdp_reduce_op op;
    uint64_t divisor;
    uint32_t *maps; /* position of each node in either mesh, where these differ */
    cdp__dt_cost cost;
    cdp__dt_single single; /* the collective that the stage is */
    cdp__dt_sum sum;       /* the collectives that it is, one after the other */
    uint64_t sum_most;     /* elements, of one rank */
} cdp__dt_stage;

/* One phase of an asynchronous run: its messages in sequence, ordered by peer. */
typedef struct cdp__dt_wide {
    uint64_t *send_count, *recv_count; /* bytes, per node */
    uint64_t *send_at, *recv_at;       /* of each piece */
    uint8_t *out, *in;
    uint64_t out_bytes, in_bytes;
} cdp__dt_wide;

/* The most phases, or steps, of a plan. */
#define CDP__DT_TURNS (4u * CDP__DT_STEPS)

typedef struct cdp__dt_turn {
    struct cdp__dt_turns *all;
    uint32_t phase;
} cdp__dt_turn;

/* A step of a plan that is several collectives, and messages between or after them. Offsets are
   bytes. */
typedef struct cdp__dt_act {
    uint32_t phase; /* number of the phase; CDP__DT_NONE: the step is a call */
    uint32_t by;    /* of the row that calls, a dimension of the mesh; CDP__DT_NONE: all ranks */
    cdp_coll_kind kind;
    cdp_reduce_op op;
    cdp__dt_memory from, to;
    uint64_t from_at, to_at;
    uint64_t count, *counts; /* as in cdp_request */
    uint32_t divisor;        /* of what the call has summed */
} cdp__dt_act;

/* State of callbacks of works. It outlives its plan if a callback is still to be called, with a
   failure, when the group is destroyed; `plan` is only used after a success. */
typedef struct cdp__dt_turns {
    cdp__dt_retired retirement; /* first member: frees this struct then */
    cdp_plan *plan;
    uint32_t pending; /* callbacks to come; if any, the plan is running */
    cdp__dt_turn turn[CDP__DT_TURNS];
} cdp__dt_turns;

struct cdp_plan {
    cdp_plan_desc desc;
    const cdp_os *os;
    cdp_mesh *mesh;
    cdp__dt_link *link; /* NULL: on paper, or this rank takes no part */
    cdp_group *group;   /* of link */
    uint32_t node, nodes;
    cdp_dtype dtype;
    uint64_t elem, in_bytes, out_bytes;
    cdp__dt_stage *stages;
    cdp__dt_phase *phases;
    uint32_t stage_count, phase_count;
    bool calls;        /* its stages are collectives where they can be */
    cdp__dt_act *acts; /* what a run does, in place of all phases; NULL: those */
    uint32_t act_count;
    /* the collective that a run is, with the count of this rank; kind NONE: it runs the phases */
    cdp__dt_single single;
    cdp__dt_link *row; /* that runs it, if it is one along a dimension of the mesh; else NULL */
    cdp_transfer *list;
    uint8_t *scratch;
    uint64_t scratch_used;
    bool whole, windows; /* windows: some phases have windows of slabs; whole: none shall */
    cdp_plan_info info;
    bool holds;                        /* the cuts of its layouts */
    bool compared, identity, backward; /* backward: counted as such */
    cdp_coll_kind kind;                /* counted as this */
    struct cdp__dt_wide *wide;         /* of asynchronous runs */
    cdp__dt_turns *turns;              /* likewise; NULL before the first one */
    struct cdp_plan *spare;            /* another plan of the same layouts, see cdp__dt_kept */
    const void *in;
    void *out;
};

/* True: plans may use the group of a dimension. One of the caller may be of another world. */
CDP__DT bool cdp__dt_link_usable(const cdp_mesh *m, uint32_t dim) {
    return !m->link[dim] || !m->link[dim]->borrowed;
}

/* The ranks that a run communicates with, and their group. */
CDP__DT cdp__dt_link *cdp__dt_run_link(const cdp_plan *p) {
    return p->row ? p->row : p->link;
}

CDP__DT cdp_group *cdp__dt_act_group(const cdp_plan *p, const cdp__dt_act *a) {
    return a->by == CDP__DT_NONE ? p->group : p->mesh->link[a->by]->group;
}

CDP__DT bool cdp__dt_partial(const cdp_layout *l, uint32_t by) {
    return l->place[by].kind == CDP_PLACE_PARTIAL;
}

/* Simplifies what cuts one dimension of the tensor: orders are 0 where cuts go from left to right,
   else 0, 1, ...; the first one has no block and no cut of its own where its pieces are those of
   the chunk rule. */
CDP__DT void cdp__dt_plain_cuts(cdp_layout *l, uint32_t dim) {
    uint32_t sequence[CDP_MESH_DIMS], by[CDP_MESH_DIMS], n = 0;
    const uint32_t all = cdp__dt_sequence(l, l->mesh->desc.ndim, sequence);
    bool plain = true;
    for (uint32_t k = 0; k < all; ++k)
        if (cdp__dt_dim(l, sequence[k]) == dim) by[n++] = sequence[k];
    for (uint32_t k = 1; k < n; ++k)
        plain = plain && by[k - 1] < by[k];
    for (uint32_t k = 0; k < n; ++k) {
        l->place[by[k]].dim = (int32_t)dim;
        l->place[by[k]].order = plain ? 0 : k;
        if (l->place[by[k]].block == 1) l->place[by[k]].block = 0;
    }
    if (!n) return;
    cdp_place *p = &l->place[by[0]];
    const uint32_t ranks = l->mesh->desc.shape[by[0]];
    const uint64_t *own = p->cut ? cdp__dt_cut_starts(l->mesh, p->cut) : NULL;
    uint64_t start, other;
    for (uint32_t i = 0; (own || p->block) && i < ranks; ++i) {
        const uint64_t size = cdp__dt_chunk(l->shape[dim], 1, ranks, i, &start);
        const uint64_t is =
            own ? own[i + 1] - own[i] : cdp__dt_chunk(l->shape[dim], p->block, ranks, i, &other);
        if (is != size) return;
    }
    p->block = 0;
    if (own) p->cut = 0;
}

/* The simplest layout with the same meaning: dimensions of a single rank neither shard nor
   reduce. */
CDP__DT cdp_layout cdp__dt_plain(const cdp_layout *l) {
    cdp_layout out = *l;
    out.dtype = cdp__dt_dtype(l);
    for (uint32_t by = 0; by < l->mesh->desc.ndim; ++by)
        if (l->mesh->desc.shape[by] == 1 && !out.place[by].cut) cdp__dt_replicate(&out, by);
    for (uint32_t dim = 0; dim < l->ndim; ++dim)
        cdp__dt_plain_cuts(&out, dim);
    return out;
}

/* Which PARTIAL dimensions of the target are kept; in *expand, which SHARD dimensions become
   PARTIAL. */
CDP__DT cdp_status cdp__dt_target_partial(
    const cdp_layout *from, const cdp_layout *to, bool product, uint32_t *kept, uint32_t *expand) {
    *kept = *expand = 0;
    for (uint32_t by = 0; by < to->mesh->desc.ndim; ++by) {
        if (!cdp__dt_partial(to, by)) continue;
        const cdp_reduce_op op = cdp__dt_op(&to->place[by]);
        if (product && cdp__dt_partial(from, by) && cdp__dt_op(&from->place[by]) == op)
            *kept |= 1u << by;
        else if (product && from->place[by].kind == CDP_PLACE_SHARD && op == CDP_REDUCE_SUM)
            *expand |= 1u << by;
        else
            return cdp_error_set(CDP_ERR_UNSUPPORTED, -1, 0,
                "plan: the target is PARTIAL (%s) in mesh dimension %u, where the source is "
                "neither "
                "that nor, for a sum, SHARD",
                cdp_reduce_name(op), by);
    }
    return CDP_OK;
}

/* The target of the moves. The contribution of each rank to a sum is the piece that it would
   hold if the dimension sharded after all others, surrounded by zeros. */
CDP__DT cdp_layout cdp__dt_expanded(const cdp_layout *from, const cdp_layout *to, uint32_t expand) {
    cdp_layout l = *to;
    for (uint32_t by = 0; by < to->mesh->desc.ndim; ++by) {
        if (!(expand >> by & 1)) continue;
        l.place[by] = from->place[by];
        l.place[by].order = UINT32_MAX;
        if (from->mesh != to->mesh) l.place[by].cut = 0; /* any pieces will do */
        for (uint32_t d = 0; d < to->mesh->desc.ndim; ++d)
            if (d != by && l.place[d].kind == CDP_PLACE_SHARD
                && cdp__dt_dim(&l, d) == cdp__dt_dim(&l, by))
                l.place[by].cut = 0;
    }
    return l;
}

/* If the meshes differ, nodes are ranks of their group: makes tables of positions. */
CDP__DT cdp_status cdp__dt_stage_maps(cdp__dt_stage *s, const cdp_os *os) {
    const cdp_mesh *a = s->from.mesh, *b = s->to.mesh;
    const uint32_t n = a->root->size;
    s->maps = (uint32_t *)cdp__dt_alloc(os, 2ull * n * sizeof *s->maps);
    if (!s->maps) return cdp__dt_nomem("a plan between meshes", 2ull * n * sizeof *s->maps);
    for (uint32_t i = 0; i < 2 * n; ++i)
        s->maps[i] = CDP__DT_NONE;
    for (uint32_t i = 0; i < a->count; ++i)
        s->maps[a->ranks[i]] = i;
    for (uint32_t i = 0; i < b->count; ++i)
        s->maps[n + b->ranks[i]] = i;
    s->pair.from.at = s->maps;
    s->pair.from.node = a->ranks;
    s->pair.to.at = s->host_to.at = s->maps + n;
    s->pair.to.node = s->host_to.node = b->ranks;
    s->pair.nodes = n;
    return CDP_OK;
}

/* Finds out whether the only stage of a plan is one collective. A mean of some dimensions and a sum
   of others is none. Nor is what takes more bytes than messages do: sums along a dimension of three
   or more ranks of a tensor that another dimension replicates. Each row would compute them, perhaps
   in another order, and replicas would differ. Nor are rows that leave their hosts at uneven
   places: messages take the replica that is nearest. */
CDP__DT void cdp__dt_stage_single(cdp__dt_stage *s) {
    const cdp__dt_single one = cdp__dt_single_of(&s->pair);
    if (s->zero || (s->divisor != 1 && s->divisor != one.nodes)) return;
    if (one.kind == CDP_COLL_NONE || one.total != s->cost.total) return;
    if (one.by != CDP__DT_NONE && !cdp__dt_link_usable(s->from.mesh, one.by)) return;
    const uint32_t host = s->pair.host_nodes;
    if (one.by != CDP__DT_NONE && host && host % (one.nodes * one.step) && one.step % host) return;
    s->single = one;
    if (s->divisor != 1) s->op = CDP_REDUCE_AVG;
    s->cost.busiest = cdp__dt_single_recv(&s->single, 0, s->single.count);
}

/* `from_only`, `to_only`: the one node that holds the tensor, or CDP__DT_NONE. */
CDP__DT cdp_status cdp__dt_stage_make(cdp__dt_stage *s, const cdp_os *os, const cdp_layout *from,
    const cdp_layout *to, uint32_t from_only, uint32_t to_only) {
    const bool one_mesh = cdp__dt_mesh_same(from->mesh, to->mesh);
    uint32_t kept, expand;
    memset(s, 0, sizeof *s);
    s->from = *from;
    s->to = *to;
    s->pair.product = one_mesh && from_only == CDP__DT_NONE && to_only == CDP__DT_NONE;
    cdp_status st = cdp__dt_target_partial(from, to, s->pair.product, &kept, &expand);
    if (st != CDP_OK) return st;
    const cdp_layout target = cdp__dt_expanded(from, to, expand);
    s->pair.from = from_only == CDP__DT_NONE ? cdp__dt_side_of(from, kept)
                                             : cdp__dt_side_only(from, from_only);
    s->pair.to =
        to_only == CDP__DT_NONE ? cdp__dt_side_of(&target, kept) : cdp__dt_side_only(to, to_only);
    s->host_to = to_only == CDP__DT_NONE ? cdp__dt_side_of(to, kept) : s->pair.to;
    s->zero = expand != 0;
    s->pair.nodes = from->mesh->count;
    s->pair.host_nodes = from->mesh->desc.host_ranks;
    if (s->pair.host_nodes >= s->pair.nodes) s->pair.host_nodes = 0;
    s->op = CDP_REDUCE_SUM;
    s->divisor = 1;
    for (uint32_t by = 0; by < from->mesh->desc.ndim; ++by) {
        if (!cdp__dt_partial(from, by) || kept >> by & 1) continue;
        s->op = cdp__dt_op(&from->place[by]);
        if (s->op == CDP_REDUCE_AVG) s->divisor *= from->mesh->desc.shape[by];
        if (s->op == CDP_REDUCE_AVG) s->op = CDP_REDUCE_SUM;
    }
    if (!one_mesh) st = cdp__dt_stage_maps(s, os);
    if (st != CDP_OK) return st;
    s->cost = cdp__dt_cost_of(&s->pair);
    return st;
}

#endif /* CDP_SRC_DTENSOR_STAGES_H */
