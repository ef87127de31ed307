/* checkpoint/pieces.h - which elements a rank holds, writes and reads

   Knows: layouts and the coordinates of a rank. Promises: of all ranks of a mesh, each element is
   in the share of exactly one; replicas have equal shares up to one element. */
#ifndef CDP_SRC_CHECKPOINT_PIECES_H
#define CDP_SRC_CHECKPOINT_PIECES_H

#include "../base/config.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../dtensor/mesh_api.h"
#include "../dtensor/layout_api.h"
#include "../dtensor/item_api.h"

/* The box of a rank as runs: stretches that are contiguous in the row-major tensor, and follow one
   another in the memory of the rank. A flat view has the same indices as what it is a view of. */
typedef struct cdp__ck_piece {
    cdp_box box;
    uint64_t shape[CDP_TENSOR_DIMS];
    uint32_t outer;       /* dimensions 0 .. outer - 1 count the runs */
    uint64_t count, run;  /* elements; of one run */
    uint64_t first, last; /* the share that this rank writes: elements of its memory */
} cdp__ck_piece;

typedef struct cdp__ck_run {
    uint64_t at, place, count; /* in the tensor; in the memory of the rank; elements */
} cdp__ck_run;

/* Completes a piece whose box and shape are set. */
CDP__PRIVATE void cdp__ck_piece_runs(cdp__ck_piece *p, uint32_t ndim) {
    uint32_t d;
    p->count = p->run = 1;
    p->outer = 0;
    for (d = 0; d < ndim; ++d)
        p->count *= p->box.size[d];
    for (d = ndim; d-- > 0;) {
        p->run *= p->box.size[d];
        if (p->box.size[d] == p->shape[d]) continue;
        p->outer = d;
        break;
    }
    p->first = 0;
    p->last = p->count;
}

/* Replica `copy` of `copies` writes its part of the piece. */
CDP__PRIVATE void cdp__ck_piece_share(cdp__ck_piece *p, uint64_t copy, uint64_t copies) {
    const uint64_t each = p->count / copies, more = p->count % copies;
    p->first = copy * each + cdp__min(copy, more);
    p->last = p->first + each + (copy < more);
}

/* What the rank at coord[] of the layout's mesh holds. Without a mesh: rank `rank` of `size`, each
   of which holds the whole tensor. coord NULL: this rank. */
CDP__PRIVATE cdp__ck_piece cdp__ck_piece_of(
    const cdp_layout *l, const uint32_t *coord, uint32_t rank, uint32_t size) {
    const cdp_mesh_desc *const m = l->mesh ? cdp_mesh_desc_of(l->mesh) : NULL;
    uint64_t copy = 0, copies = 1;
    cdp__ck_piece p;
    uint32_t d;
    memset(&p, 0, sizeof p);
    for (d = 0; d < l->ndim; ++d)
        p.shape[d] = p.box.size[d] = l->shape[d];
    if (!m) {
        cdp__ck_piece_runs(&p, l->ndim);
        cdp__ck_piece_share(&p, rank, size);
        return p;
    }
    if (!coord && cdp_mesh_coord(l->mesh, CDP_NO_DIM) == CDP_NO_DIM) {
        memset(&p, 0, sizeof p);
        return p;
    }
    (void)cdp_layout_box(l, coord, &p.box);
    cdp__ck_piece_runs(&p, l->ndim);
    for (d = 0; d < m->ndim; ++d) {
        if (l->place[d].kind != CDP_PLACE_REPLICATE) continue;
        copy = copy * m->shape[d] + (coord ? coord[d] : cdp_mesh_coord(l->mesh, d));
        copies *= m->shape[d];
    }
    cdp__ck_piece_share(&p, copy, copies);
    return p;
}

/* The same of an item. */
CDP__PRIVATE cdp__ck_piece cdp__ck_item_piece(const cdp_item *i, uint32_t rank, uint32_t size) {
    const cdp_layout *const l = &i->tensor.layout;
    cdp__ck_piece p;
    uint32_t d;
    if (!i->part) return cdp__ck_piece_of(l, NULL, rank, size);
    memset(&p, 0, sizeof p);
    p.shape[0] = 1;
    for (d = 0; d < l->ndim; ++d)
        p.shape[0] *= l->shape[d];
    p.box.start[0] = i->first;
    p.box.size[0] = i->count;
    cdp__ck_piece_runs(&p, 1);
    cdp__ck_piece_share(&p, i->copy, i->copies ? i->copies : 1);
    return p;
}

/* The run that contains element `place` of the memory of the rank, from there on, and at most up
   to `last`. place < last <= count. */
CDP__PRIVATE cdp__ck_run cdp__ck_run_at(const cdp__ck_piece *p, uint64_t place, uint64_t last) {
    const uint64_t within = place % p->run;
    uint64_t index = place / p->run, step = 1;
    cdp__ck_run r;
    uint32_t d;
    r.place = place;
    r.count = cdp__min(p->run - within, last - place);
    r.at = within;
    for (d = CDP_TENSOR_DIMS; d-- > 0;) {
        uint64_t along = p->box.start[d];
        if (d < p->outer) {
            along += index % p->box.size[d];
            index /= p->box.size[d];
        }
        r.at += along * step;
        step *= p->shape[d] ? p->shape[d] : 1; /* 0: the tensor has fewer dimensions */
    }
    return r;
}

#endif /* CDP_SRC_CHECKPOINT_PIECES_H */
