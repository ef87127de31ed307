/* dtensor/grid.h - layouts in terms of regions (pure)

   Knows: layouts as a mesh stores them, and the structs of meshes. Promises: the region of every
   rank. */
#ifndef CDP_SRC_DTENSOR_GRID_H
#define CDP_SRC_DTENSOR_GRID_H

#include "../base/config.h"
#include "../base/types_api.h"
#include "../os/os_api.h"
#include "../group/group_api.h"
#include "../base/helpers.h"
#include "../group/state.h"
#include "mesh_api.h"
#include "layout_api.h"
#include "plan_api.h"
#include "kit.h"
#include "kernels.h"
#include "chunks.h"
#include "counter.h"

/* A cut that the program has chosen: starts[i] of piece i, and the total at the end. */
typedef struct cdp__dt_cut {
    struct cdp__dt_cut *next, *next_hash; /* of the chains of its number, and of its hash */
    struct cdp__dt_cut *older, *newer;    /* that may be replaced */
    uint64_t hash, *starts;
    uint32_t dim, number;
    uint32_t plans; /* that use it */
    bool passing;   /* it may be replaced */
    bool replaced;  /* it was, and is no cut for new plans */
} cdp__dt_cut;

typedef struct cdp__dt_passing {
    cdp__dt_cut *oldest, *newest;
    uint32_t count;
} cdp__dt_passing;

/* The cuts of a mesh. */
typedef struct cdp__dt_cuts {
    cdp__dt_cut **by_hash, **by_number; /* `size` chains each, one behind the other in memory */
    uint32_t size, count;
    uint32_t last; /* number that was given */
    cdp__dt_passing passing[CDP_MESH_DIMS];
} cdp__dt_cuts;

/* Memory that messages or callbacks of a failed group may still access. It is freed after the
   group: first `memory` (may be NULL), then this record. */
typedef struct cdp__dt_retired {
    struct cdp__dt_retired *next;
    void *memory;
} cdp__dt_retired;

/* The group of one list of ranks, reference-counted. */
typedef struct cdp__dt_link {
    struct cdp__dt_link *next;
    cdp_group *group;
    cdp__dt_retired *retired;
    bool borrowed;
    uint32_t refs, count;
    uint32_t *ranks;
} cdp__dt_link;

/* Memory that plans and layers of a root use while they run, one after the other. */
typedef struct cdp__dt_scratch {
    struct cdp__dt_scratch *next;
    uint8_t *at;
    uint64_t bytes;
    cdp__dt_link *link; /* of its last user */
    cdp_plan *user;     /* the last one; NULL: it is gone, or was a layer */
    bool held;          /* a run has not returned, or its group has failed */
} cdp__dt_scratch;

/* State shared by meshes made from one another. */
typedef struct cdp__dt_root {
    uint32_t refs;
    const cdp_os *os;
    cdp_group *group; /* the caller's; NULL on paper */
    uint32_t size, rank;
    cdp__dt_link *links, *base; /* base: all ranks of the group, for plans between meshes */
    cdp__dt_scratch *scratch;
    cdp__dt_counter *counter;                    /* NULL: nothing is counted */
    uint32_t ndim, shape[CDP_MESH_DIMS], *ranks; /* of the first mesh */
} cdp__dt_root;

/* A plan that a mesh keeps, and its key: see >>dtensor/plan_words. */
#define CDP__DT_PLACE_WORDS 6u
#define CDP__DT_LAYOUT_WORDS (5u + CDP_TENSOR_DIMS + (2u + CDP__DT_PLACE_WORDS) * CDP_MESH_DIMS)
#define CDP__DT_KEY_WORDS (2u + 2u * CDP__DT_LAYOUT_WORDS)

typedef struct cdp__dt_kept {
    struct cdp__dt_kept *next;    /* of mesh `from`; the last used one is first */
    struct cdp__dt_kept *next_to; /* of mesh `to` */
    cdp_mesh *from, *to;
    cdp_plan *plan; /* and its spare ones: each run in flight has one of its own */
    uint64_t key[CDP__DT_KEY_WORDS];
} cdp__dt_kept;

struct cdp_mesh {
    cdp_mesh_desc desc; /* with defaults; names and ranks point into this struct */
    char names[CDP_MESH_DIMS][32];
    uint32_t count, me;             /* ranks; this one's position, or CDP__DT_NONE */
    uint32_t stride[CDP_MESH_DIMS]; /* of positions */
    uint32_t *ranks;
    uint64_t ranks_hash, name_hash[CDP_MESH_DIMS];
    cdp__dt_root *root;
    cdp__dt_link *link[CDP_MESH_DIMS], *all; /* groups; NULL on paper and outside */
    cdp__dt_cuts cuts;
    cdp__dt_kept *kept;    /* plans of cdp_redistribute() from this mesh */
    cdp__dt_kept *kept_to; /* those to this mesh, kept by their source */
    cdp_plan *retired;     /* no longer kept, but still running */
};

typedef enum cdp__dt_role {
    CDP__DT_SAME,
    CDP__DT_CUTS,
    CDP__DT_TERM
} cdp__dt_role;

typedef struct cdp__dt_side {
    uint32_t ndim; /* of regions */
    uint64_t shape[CDP__DT_DIMS];
    uint32_t dims; /* of the mesh */
    uint32_t size[CDP_MESH_DIMS], stride[CDP_MESH_DIMS];
    cdp__dt_role role[CDP_MESH_DIMS];
    uint32_t
        cuts; /* in the order of cutting: dimension of the mesh, of the region, block, starts */
    uint32_t cut_by[CDP_MESH_DIMS], cut_dim[CDP_MESH_DIMS];
    uint64_t block[CDP_MESH_DIMS];
    const uint64_t *own[CDP_MESH_DIMS];
    uint32_t count;                 /* number of positions */
    uint32_t cells, members, terms; /* members of a cell: copies x terms */
    uint32_t only;        /* the one node that holds all elements; CDP__DT_NONE: the mesh does */
    const uint32_t *node; /* node of each position; NULL: the position itself */
    const uint32_t *at;   /* position of each node, CDP__DT_NONE: outside; NULL: the same */
} cdp__dt_side;

CDP__DT uint32_t cdp__dt_digit(const cdp__dt_side *s, uint32_t position, uint32_t dim) {
    return position / s->stride[dim] % s->size[dim];
}

CDP__DT cdp__dt_region cdp__dt_whole(const cdp__dt_side *s) {
    cdp__dt_region r;
    memset(&r, 0, sizeof r);
    for (uint32_t d = 0; d < s->ndim; ++d)
        r.size[d] = s->shape[d];
    return r;
}

/* The region that the rank at a position holds. Empty pieces start at the end of the tensor. */
CDP__DT cdp__dt_region cdp__dt_region_of(const cdp__dt_side *s, uint32_t position) {
    cdp__dt_region r = cdp__dt_whole(s);
    uint64_t start;
    if (s->only != CDP__DT_NONE) return r;
    for (uint32_t k = 0; k < s->cuts; ++k) {
        const uint32_t d = s->cut_dim[k], by = s->cut_by[k];
        const uint32_t index = cdp__dt_digit(s, position, by);
        if (s->own[k]) {
            r.start[d] = s->own[k][index];
            r.size[d] = s->own[k][index + 1] - r.start[d];
        } else {
            r.size[d] = cdp__dt_chunk(r.size[d], s->block[k], s->size[by], index, &start);
            r.start[d] += start;
        }
        if (!r.size[d]) r.start[d] = s->shape[d];
    }
    return r;
}

/* The first position whose rank holds the element at `at`. */
CDP__DT uint32_t cdp__dt_position_of(const cdp__dt_side *s, const uint64_t *at) {
    cdp__dt_region r = cdp__dt_whole(s);
    uint32_t position = 0;
    uint64_t start;
    for (uint32_t k = 0; k < s->cuts; ++k) {
        const uint32_t d = s->cut_dim[k], by = s->cut_by[k];
        const uint64_t *own = s->own[k], offset = at[d] - r.start[d];
        uint32_t index = 0, above = s->size[by];
        while (own && above - index > 1) { /* the last piece that begins at or before the element */
            const uint32_t middle = index + (above - index) / 2;
            if (own[middle] <= at[d])
                index = middle;
            else
                above = middle;
        }
        if (!own) {
            const uint64_t piece = cdp__dt_chunk(r.size[d], s->block[k], s->size[by], 0, &start);
            index = piece ? (uint32_t)(offset / piece) : 0;
            r.size[d] = cdp__dt_chunk(r.size[d], s->block[k], s->size[by], index, &start);
            r.start[d] += start;
        }
        position += index * s->stride[by];
    }
    return position;
}

CDP__DT uint32_t cdp__dt_position(const cdp__dt_side *s, uint32_t node) {
    if (s->only != CDP__DT_NONE) return node == s->only ? 0 : CDP__DT_NONE;
    return s->at ? s->at[node] : node;
}

CDP__DT uint32_t cdp__dt_node(const cdp__dt_side *s, uint32_t position) {
    if (s->only != CDP__DT_NONE) return s->only;
    return s->node ? s->node[position] : position;
}

/* Combines the coordinates in the dimensions with (or without) role `role` to one number. */
CDP__DT uint32_t cdp__dt_squeeze(
    const cdp__dt_side *s, uint32_t position, cdp__dt_role role, bool with) {
    uint32_t n = 0;
    for (uint32_t d = 0; d < s->dims; ++d)
        if ((s->role[d] == role) == with) n = n * s->size[d] + cdp__dt_digit(s, position, d);
    return n;
}

/* The reverse: the position with these coordinates; its other coordinates are 0. */
CDP__DT uint32_t cdp__dt_spread(const cdp__dt_side *s, uint32_t n, cdp__dt_role role, bool with) {
    uint32_t position = 0;
    for (uint32_t d = s->dims; d-- > 0;)
        if ((s->role[d] == role) == with) {
            position += n % s->size[d] * s->stride[d];
            n /= s->size[d];
        }
    return position;
}

CDP__DT uint32_t cdp__dt_cell(const cdp__dt_side *s, uint32_t node) {
    const uint32_t position = cdp__dt_position(s, node);
    if (position == CDP__DT_NONE) return CDP__DT_NONE;
    return s->only != CDP__DT_NONE ? 0 : cdp__dt_squeeze(s, position, CDP__DT_CUTS, true);
}

CDP__DT cdp__dt_region cdp__dt_cell_region(const cdp__dt_side *s, uint32_t cell) {
    if (s->only != CDP__DT_NONE) return cdp__dt_whole(s);
    return cdp__dt_region_of(s, cdp__dt_spread(s, cell, CDP__DT_CUTS, true));
}

/* The number of a node among the members of its cell; below, the node of a member. */
CDP__DT uint32_t cdp__dt_member(const cdp__dt_side *s, uint32_t node) {
    if (s->only != CDP__DT_NONE) return 0;
    return cdp__dt_squeeze(s, cdp__dt_position(s, node), CDP__DT_CUTS, false);
}

CDP__DT uint32_t cdp__dt_member_node(const cdp__dt_side *s, uint32_t cell, uint32_t member) {
    if (s->only != CDP__DT_NONE) return s->only;
    return cdp__dt_node(s,
        cdp__dt_spread(s, cell, CDP__DT_CUTS, true)
            + cdp__dt_spread(s, member, CDP__DT_CUTS, false));
}

/* The number of the contribution that a node holds; below, the node that holds another
   contribution to the same replica. */
CDP__DT uint32_t cdp__dt_term(const cdp__dt_side *s, uint32_t node) {
    return cdp__dt_squeeze(s, cdp__dt_position(s, node), CDP__DT_TERM, true);
}

CDP__DT uint32_t cdp__dt_with_term(const cdp__dt_side *s, uint32_t node, uint32_t term) {
    uint32_t position = cdp__dt_position(s, node);
    position -= cdp__dt_spread(s, cdp__dt_term(s, node), CDP__DT_TERM, true);
    return cdp__dt_node(s, position + cdp__dt_spread(s, term, CDP__DT_TERM, true));
}

/* The sharding dimensions in the order in which they cut. */
CDP__DT uint32_t cdp__dt_sequence(
    const cdp_layout *l, uint32_t dims, uint32_t sequence[CDP_MESH_DIMS]) {
    uint32_t n = 0;
    for (uint32_t d = 0; d < dims; ++d) {
        uint32_t k = n;
        if (l->place[d].kind != CDP_PLACE_SHARD) continue;
        for (; k > 0 && l->place[sequence[k - 1]].order > l->place[d].order; --k)
            sequence[k] = sequence[k - 1];
        sequence[k] = d;
        ++n;
    }
    return n;
}

CDP__DT cdp__dt_cut **cdp__dt_cut_chain(const cdp__dt_cuts *t, uint32_t number) {
    return &t->by_number[number % t->size];
}

/* NULL: there is none of this number, or it was replaced and no plan uses it. */
CDP__DT cdp__dt_cut *cdp__dt_cut_find(const cdp_mesh *m, uint32_t number) {
    cdp__dt_cut *c = m->cuts.size ? *cdp__dt_cut_chain(&m->cuts, number) : NULL;
    while (c && c->number != number)
        c = c->next;
    return c;
}

CDP__DT const uint64_t *cdp__dt_cut_starts(const cdp_mesh *m, uint32_t number) {
    const cdp__dt_cut *c = cdp__dt_cut_find(m, number);
    return c ? c->starts : NULL;
}

CDP__DT cdp_dtype cdp__dt_dtype(const cdp_layout *l) {
    return l->dtype == CDP_DTYPE_DEFAULT ? CDP_DTYPE_F32 : l->dtype;
}

CDP__DT cdp_reduce_op cdp__dt_op(const cdp_place *p) {
    return p->op == CDP_REDUCE_DEFAULT ? CDP_REDUCE_SUM : p->op;
}

CDP__DT uint32_t cdp__dt_dim(const cdp_layout *l, uint32_t by) {
    const int32_t d = l->place[by].dim;
    return d < 0 ? (uint32_t)(d + (int32_t)l->ndim) : (uint32_t)d;
}

CDP__DT void cdp__dt_side_cut(
    cdp__dt_side *s, uint32_t by, uint32_t dim, uint64_t block, const uint64_t *own) {
    s->role[by] = CDP__DT_CUTS;
    s->cut_by[s->cuts] = by;
    s->cut_dim[s->cuts] = dim;
    s->block[s->cuts] = block ? block : 1;
    s->own[s->cuts++] = own;
}

/* Converts a valid layout to a side. `kept`: bits of mesh dimensions whose contributions stay
   separate, because the other layout has them, too. They cut an extra dimension after those of
   the tensor, with one element per contribution. */
CDP__DT cdp__dt_side cdp__dt_side_of(const cdp_layout *l, uint32_t kept) {
    const cdp_mesh *m = l->mesh;
    cdp__dt_side s;
    uint32_t sequence[CDP_MESH_DIMS], n, d;
    memset(&s, 0, sizeof s);
    s.ndim = l->ndim + (kept != 0);
    for (d = 0; d < l->ndim; ++d)
        s.shape[d] = l->shape[d];
    if (kept) s.shape[l->ndim] = 1;
    s.dims = m->desc.ndim;
    for (d = 0; d < s.dims; ++d) {
        s.size[d] = m->desc.shape[d];
        s.stride[d] = m->stride[d];
        if (l->place[d].kind == CDP_PLACE_PARTIAL) s.role[d] = CDP__DT_TERM;
    }
    n = cdp__dt_sequence(l, s.dims, sequence);
    for (uint32_t k = 0; k < n; ++k) {
        const cdp_place *p = &l->place[sequence[k]];
        cdp__dt_side_cut(&s, sequence[k], cdp__dt_dim(l, sequence[k]), p->block,
            p->cut ? cdp__dt_cut_starts(m, p->cut) : NULL);
    }
    for (d = 0; d < s.dims; ++d)
        if (kept >> d & 1) {
            s.shape[l->ndim] *= s.size[d];
            cdp__dt_side_cut(&s, d, l->ndim, 1, NULL);
        }
    s.count = m->count;
    s.only = CDP__DT_NONE;
    s.cells = s.terms = 1;
    for (d = 0; d < s.dims; ++d) {
        if (s.role[d] == CDP__DT_CUTS) s.cells *= s.size[d];
        if (s.role[d] == CDP__DT_TERM) s.terms *= s.size[d];
    }
    s.members = s.count / s.cells;
    return s;
}

/* The side of a tensor that one node holds completely. */
CDP__DT cdp__dt_side cdp__dt_side_only(const cdp_layout *l, uint32_t node) {
    cdp__dt_side s;
    memset(&s, 0, sizeof s);
    s.ndim = l->ndim;
    for (uint32_t d = 0; d < l->ndim; ++d)
        s.shape[d] = l->shape[d];
    s.only = node;
    s.count = s.cells = s.members = s.terms = 1;
    return s;
}

#endif /* CDP_SRC_DTENSOR_GRID_H */
