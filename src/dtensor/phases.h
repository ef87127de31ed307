/* dtensor/phases.h - what one rank does in a stage

   Knows: the moves of a stage, by their kinds only. Promises: phases that need no further memory
   when they run, and of which contributions to sums share scratch memory. */
#ifndef CDP_SRC_DTENSOR_PHASES_H
#define CDP_SRC_DTENSOR_PHASES_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/error_api.h"
#include "../base/types_api.h"
#include "../os/os_api.h"
#include "../message/transport_api.h"
#include "../group/group_api.h"
#include "../group/messages_api.h"
#include "../base/helpers.h"
#include "mesh_api.h"
#include "layout_api.h"
#include "plan_api.h"
#include "cxx_api.h"
#include "kit.h"
#include "kernels.h"
#include "chunks.h"
#include "grid.h"
#include "cuts.h"
#include "moves.h"
#include "single.h"
#include "torch.h"
#include "spelling.h"
#include "stages.h"

typedef struct cdp__dt_tally {
    uint32_t count[8];
    uint64_t elements[8];
    uint32_t ndim;
} cdp__dt_tally;

CDP__DT void cdp__dt_tally_move(void *user, const cdp__dt_move *m) {
    cdp__dt_tally *t = (cdp__dt_tally *)user;
    ++t->count[m->kind];
    t->elements[m->kind] += cdp__dt_volume(&m->region, t->ndim);
}

CDP__DT cdp__dt_tally cdp__dt_tally_of(const cdp__dt_pair *p, uint32_t node) {
    cdp__dt_tally t;
    memset(&t, 0, sizeof t);
    t.ndim = p->to.ndim;
    cdp__dt_moves(p, node, cdp__dt_tally_move, &t);
    return t;
}

/* Contributions to a sum arrive in windows of about so many bytes, which use the same scratch
   memory one after the other. */
#ifndef CDP__DT_WINDOW_BYTES /* tests have small ones */
#define CDP__DT_WINDOW_BYTES (2u << 20)
#endif

/* Where a slab is that this rank reduces. */
typedef struct cdp__dt_slab_place {
    cdp__dt_memory in;
    bool there; /* in the target */
    uint64_t at;
} cdp__dt_slab_place;

/* State while the phases of one stage are filled in. */
typedef struct cdp__dt_build {
    cdp_plan *plan;
    const cdp__dt_stage *stage;
    cdp__dt_phase *terms, *copies;   /* terms: of this window */
    cdp__dt_slab_place *slab;        /* of each that this rank reduces, in the order of moves */
    uint32_t slabs, window, windows; /* slabs: so many have been opened */
    cdp__dt_memory from, to;         /* where the tensors of the stage are, and at which offset */
    uint64_t from_at, to_at;
    cdp__dt_region from_box, to_box; /* regions that this rank holds */
} cdp__dt_build;

CDP__DT uint64_t cdp__dt_reserve(cdp_plan *p, uint64_t bytes) {
    const uint64_t at = p->scratch_used;
    p->scratch_used += (bytes + 63) & ~(uint64_t)63;
    return at;
}

/* Adds a message from the tensor; packed unless it is contiguous there. */
CDP__DT void cdp__dt_build_send(cdp__dt_build *b, cdp__dt_phase *ph, const cdp__dt_move *m) {
    const uint32_t ndim = b->stage->pair.to.ndim;
    cdp__dt_piece *s = &ph->send[ph->sends], *last = ph->sends ? s - 1 : NULL;
    ++ph->sends;
    s->peer = m->peer;
    s->region = m->region;
    s->elements = cdp__dt_volume(&m->region, ndim);
    s->from = b->from;
    s->copy = cdp__dt_copy_of(&m->region, &b->from_box, &m->region, ndim, b->plan->elem);
    s->copy.from_at += b->from_at;
    s->direct = s->copy.dims == 0;
    s->at = s->copy.from_at;
    if (s->direct) return;
    s->to = CDP__DT_SCRATCH;
    s->again = last && !last->direct && last->from == s->from
        && memcmp(&last->region, &s->region, sizeof s->region) == 0;
    s->at = s->again ? last->at : cdp__dt_reserve(b->plan, s->elements * b->plan->elem);
    s->copy.to_at = s->at;
    if (!s->again) b->plan->info.copied_bytes += s->elements * b->plan->elem;
}

CDP__DT void cdp__dt_build_recv(cdp__dt_build *b, const cdp__dt_move *m) {
    const uint32_t ndim = b->stage->pair.to.ndim;
    cdp__dt_piece *r = &b->copies->recv[b->copies->recvs++];
    r->peer = m->peer;
    r->region = m->region;
    r->elements = cdp__dt_volume(&m->region, ndim);
    r->to = b->to;
    r->copy = cdp__dt_copy_of(&m->region, &m->region, &b->to_box, ndim, b->plan->elem);
    r->copy.to_at += b->to_at;
    r->direct = r->copy.dims == 0;
    r->rows = r->copy.dims == 1 && r->copy.run >= CDP__DT_ROW_BYTES;
    r->at = r->copy.to_at;
    if (r->direct || r->rows) return;
    r->from = CDP__DT_SCRATCH;
    r->at = r->copy.from_at = cdp__dt_reserve(b->plan, r->elements * b->plan->elem);
    b->plan->info.copied_bytes += r->elements * b->plan->elem;
}

CDP__DT void cdp__dt_build_local(cdp__dt_build *b, const cdp__dt_move *m, bool from_slab) {
    const cdp__dt_slab_place *f = from_slab ? &b->slab[b->slabs - 1] : NULL;
    if (f && f->there) return;
    cdp__dt_piece *l = &b->copies->here[b->copies->locals++];
    l->peer = m->peer;
    l->region = m->region;
    l->elements = cdp__dt_volume(&m->region, b->stage->pair.to.ndim);
    l->from = from_slab ? CDP__DT_SCRATCH : b->from;
    l->to = b->to;
    l->copy = cdp__dt_copy_of(&m->region, from_slab ? &m->region : &b->from_box, &b->to_box,
        b->stage->pair.to.ndim, b->plan->elem);
    l->copy.from_at += from_slab ? f->at : b->from_at;
    l->copy.to_at += b->to_at;
    b->plan->info.copied_bytes += l->elements * b->plan->elem;
}

/* Finds the place of a slab: in the target, if it is contiguous there. */
CDP__DT void cdp__dt_build_slab(void *user, const cdp__dt_move *m) {
    cdp__dt_build *b = (cdp__dt_build *)user;
    const uint32_t ndim = b->stage->pair.to.ndim;
    cdp__dt_region part;
    if (m->kind != CDP__DT_OWN) return;
    cdp__dt_slab_place *slab = &b->slab[b->slabs++];
    const bool here = !b->stage->zero && cdp__dt_intersect(&m->region, &b->to_box, ndim, &part)
        && memcmp(&part, &m->region, sizeof part) == 0;
    const cdp__dt_copy c = cdp__dt_copy_of(
        &m->region, &m->region, here ? &b->to_box : &m->region, ndim, b->plan->elem);
    slab->there = here && c.dims == 0;
    if (slab->there) {
        slab->in = b->to;
        slab->at = b->to_at + c.to_at;
    } else {
        slab->in = CDP__DT_SCRATCH;
        slab->at = cdp__dt_reserve(b->plan, cdp__dt_volume(&m->region, ndim) * b->plan->elem);
    }
}

/* The part of a region that this window has: some of its rows. False: none. *before: elements of
   the region that lie before them. */
CDP__DT bool cdp__dt_window_of(
    const cdp__dt_build *b, const cdp__dt_region *all, cdp__dt_region *part, uint64_t *before) {
    const uint32_t ndim = b->stage->pair.to.ndim;
    uint32_t d = 0;
    uint64_t start;
    *part = *all;
    *before = 0;
    if (b->windows == 1) return true;
    while (d + 1 < ndim && all->size[d] == 1)
        ++d;
    part->size[d] = cdp__dt_chunk(all->size[d], 1, b->windows, b->window, &start);
    part->start[d] += start;
    if (!part->size[d]) return false;
    *before = cdp__dt_volume(part, ndim) / part->size[d] * start;
    return true;
}

CDP__DT void cdp__dt_build_fold(
    cdp__dt_build *b, const cdp__dt_move *m, const cdp__dt_region *part, uint64_t before) {
    const uint32_t ndim = b->stage->pair.to.ndim;
    cdp__dt_fold *f = &b->terms->fold[b->terms->folds++];
    f->elements = cdp__dt_volume(part, ndim);
    f->to = b->slab[b->slabs - 1].in;
    f->at = b->slab[b->slabs - 1].at + before * b->plan->elem;
    f->own = m->peer;
    f->first = b->terms->recvs;
    f->from = b->from;
    f->copy = cdp__dt_copy_of(part, &b->from_box, part, ndim, b->plan->elem);
    f->copy.from_at += b->from_at;
    f->copy.to_at = f->at;
}

/* A message that is contiguous in memory. */
CDP__DT void cdp__dt_build_direct(const cdp__dt_build *b, cdp__dt_piece *x, const cdp__dt_move *m,
    cdp__dt_memory memory, uint64_t at) {
    x->peer = m->peer;
    x->region = m->region;
    x->elements = cdp__dt_volume(&m->region, b->stage->pair.to.ndim);
    x->from = x->to = memory;
    x->direct = true;
    x->at = at;
}

/* Moves of contributions, in one window. */
CDP__DT void cdp__dt_build_term(void *user, const cdp__dt_move *m) {
    cdp__dt_build *b = (cdp__dt_build *)user;
    cdp__dt_move part = *m;
    uint64_t before, bytes;
    if (m->kind == CDP__DT_OWN) ++b->slabs;
    if (m->kind != CDP__DT_OWN && m->kind != CDP__DT_TERM_SEND && m->kind != CDP__DT_TERM_RECV)
        return;
    if (!cdp__dt_window_of(b, &m->region, &part.region, &before)) return;
    bytes = cdp__dt_volume(&part.region, b->stage->pair.to.ndim) * b->plan->elem;
    if (m->kind == CDP__DT_OWN)
        cdp__dt_build_fold(b, m, &part.region, before);
    else if (m->kind == CDP__DT_TERM_SEND)
        cdp__dt_build_send(b, b->terms, &part);
    else
        cdp__dt_build_direct(b, &b->terms->recv[b->terms->recvs++], &part, CDP__DT_SCRATCH,
            cdp__dt_reserve(b->plan, bytes));
}

/* Moves of what was not reduced, or has been. */
CDP__DT void cdp__dt_build_move(void *user, const cdp__dt_move *m) {
    cdp__dt_build *b = (cdp__dt_build *)user;
    const cdp__dt_slab_place *slab;
    switch (m->kind) {
    case CDP__DT_OWN: ++b->slabs; break;
    case CDP__DT_LOCAL: cdp__dt_build_local(b, m, false); break;
    case CDP__DT_OWN_LOCAL: cdp__dt_build_local(b, m, true); break;
    case CDP__DT_SEND: cdp__dt_build_send(b, b->copies, m); break;
    case CDP__DT_RECV: cdp__dt_build_recv(b, m); break;
    case CDP__DT_OWN_SEND:
        slab = &b->slab[b->slabs - 1];
        cdp__dt_build_direct(b, &b->copies->send[b->copies->sends++], m, slab->in, slab->at);
        break;
    default: break;
    }
}

CDP__DT cdp_status cdp__dt_phase_alloc(cdp_plan *p, cdp__dt_phase *ph, uint32_t sends,
    uint32_t recvs, uint32_t locals, uint32_t folds) {
    const uint64_t pieces = (uint64_t)sends + recvs + locals;
    ph->send = (cdp__dt_piece *)cdp__dt_alloc(p->os, pieces * sizeof *ph->send);
    ph->fold = (cdp__dt_fold *)cdp__dt_alloc(p->os, folds * sizeof *ph->fold);
    if (!ph->send || !ph->fold) return cdp__dt_nomem("a plan", pieces * sizeof *ph->send);
    ph->recv = ph->send + sends;
    ph->here = ph->recv + recvs;
    return CDP_OK;
}

CDP__DT uint64_t cdp__dt_held(const cdp__dt_side *s, uint32_t node, cdp__dt_region *box) {
    const uint32_t at = cdp__dt_position(s, node);
    memset(box, 0, sizeof *box);
    if (at == CDP__DT_NONE) return 0;
    *box = cdp__dt_region_of(s, at);
    return cdp__dt_volume(box, s->ndim);
}

/* In how many windows the contributions of a stage arrive: the same number on all ranks. A plan
   has at most as many phases as an asynchronous run has turns. */
CDP__DT uint32_t cdp__dt_windows(const cdp_plan *p, const cdp__dt_stage *s) {
    const uint64_t bytes = cdp__dt_times_most(s->cost.busiest, p->elem);
    const uint32_t most = 2u * CDP__DT_STEPS / p->stage_count - 1u;
    if (s->pair.from.terms <= 1) return 0;
    return p->whole ? 1 : (uint32_t)cdp__min(bytes / CDP__DT_WINDOW_BYTES + 1, most);
}

/* Fills in the phases of contributions. What they have in scratch memory from `mark` on is used
   again by each. */
CDP__DT cdp_status cdp__dt_terms_build(
    cdp__dt_build *b, uint32_t k, const cdp__dt_tally *t, uint64_t *mark) {
    cdp_plan *p = b->plan;
    uint64_t most;
    cdp_status st = CDP_OK;
    if (!b->windows) return CDP_OK;
    b->slab = (cdp__dt_slab_place *)cdp__dt_alloc(p->os, t->count[CDP__DT_OWN] * sizeof *b->slab);
    if (!b->slab) return cdp__dt_nomem("a plan", t->count[CDP__DT_OWN] * sizeof *b->slab);
    cdp__dt_moves(&b->stage->pair, p->node, cdp__dt_build_slab, b);
    *mark = most = p->scratch_used;
    for (b->window = 0; st == CDP_OK && b->window < b->windows; ++b->window) {
        p->scratch_used = *mark;
        b->slabs = 0;
        b->terms = &p->phases[p->phase_count++];
        b->terms->stage = k;
        st = cdp__dt_phase_alloc(p, b->terms, t->count[CDP__DT_TERM_SEND],
            t->count[CDP__DT_TERM_RECV], 0, t->count[CDP__DT_OWN]);
        if (st == CDP_OK) cdp__dt_moves(&b->stage->pair, p->node, cdp__dt_build_term, b);
        most = cdp__max(most, p->scratch_used);
    }
    p->scratch_used = most;
    return st;
}

/* Fills in the phases of stage number `k`. Tensors between stages are in scratch memory. */
CDP__DT cdp_status cdp__dt_stage_build(cdp_plan *p, uint32_t k, uint64_t *between) {
    const cdp__dt_stage *s = &p->stages[k];
    const cdp__dt_tally t = cdp__dt_tally_of(&s->pair, p->node);
    cdp__dt_build b;
    memset(&b, 0, sizeof b);
    b.plan = p;
    b.stage = s;
    b.windows = cdp__dt_windows(p, s);
    b.from = k ? CDP__DT_SCRATCH : CDP__DT_IN;
    b.from_at = k ? *between : 0;
    const uint64_t held = cdp__dt_held(&s->host_to, p->node, &b.to_box) * p->elem;
    (void)cdp__dt_held(&s->pair.from, p->node, &b.from_box);
    b.to = k + 1 < p->stage_count ? CDP__DT_SCRATCH : CDP__DT_OUT;
    if (b.to == CDP__DT_SCRATCH) b.to_at = *between = cdp__dt_reserve(p, held);
    uint64_t mark = p->scratch_used;
    cdp_status st = cdp__dt_terms_build(&b, k, &t, &mark);
    const uint64_t most = p->scratch_used;
    p->scratch_used = mark;
    p->windows = p->windows || b.windows > 1;
    b.slabs = 0;
    b.copies = &p->phases[p->phase_count++];
    b.copies->stage = k;
    b.copies->zero = s->zero;
    b.copies->zero_in = b.to;
    b.copies->zero_at = b.to_at;
    b.copies->zero_bytes = held;
    if (st == CDP_OK)
        st = cdp__dt_phase_alloc(p, b.copies, t.count[CDP__DT_SEND] + t.count[CDP__DT_OWN_SEND],
            t.count[CDP__DT_RECV], t.count[CDP__DT_LOCAL] + t.count[CDP__DT_OWN_LOCAL], 0);
    if (st == CDP_OK) cdp__dt_moves(&s->pair, p->node, cdp__dt_build_move, &b);
    p->scratch_used = cdp__max(most, p->scratch_used);
    cdp__dt_free(p->os, b.slab);
    return st;
}

#endif /* CDP_SRC_DTENSOR_PHASES_H */
