/* dtensor/cuts.h - cuts that a program has chosen

   Knows: the cuts of a mesh. Promises: equal cuts have one number, and no number is given twice;
   cuts of pieces do not grow with calls, and which of them are replaced follows from calls that
   all ranks make; plans keep what they use. */
#ifndef CDP_SRC_DTENSOR_CUTS_H
#define CDP_SRC_DTENSOR_CUTS_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/error_api.h"
#include "../base/helpers.h"
#include "../base/ended.h"
#include "mesh_api.h"
#include "layout_api.h"
#include "kit.h"
#include "grid.h"

/* Why the mesh is no mesh: it is NULL, or was destroyed. */
CDP__DT cdp_status cdp__dt_mesh_alive(const cdp_mesh *m, const char *call) {
    return m ? cdp__dt_alive(cdp__dt_mesh_mark(m), call, "mesh") : cdp__dt_missing(call, "mesh");
}

/* NULL for a mesh that was destroyed. */
CDP__DT const cdp_mesh *cdp__dt_mesh_known(const cdp_mesh *m) {
    return cdp__dt_mesh_ended(m) ? NULL : m;
}

/* How many cuts of pieces a dimension of n ranks has: CDP_MESH_CUTS, fewer if they took more than
   4 MiB, but 64. */
CDP__DT uint32_t cdp__dt_cuts_most(uint32_t n) {
    const uint64_t fit = (4ull << 20) / ((n + 1ull) * 8);
    return (uint32_t)cdp__max(64, cdp__min(fit, CDP_MESH_CUTS));
}

CDP__DT void cdp__dt_cut_link(cdp__dt_cuts *t, cdp__dt_cut *c) {
    cdp__dt_cut **number = cdp__dt_cut_chain(t, c->number), **hash = &t->by_hash[c->hash % t->size];
    c->next = *number;
    *number = c;
    if (c->replaced) return;
    c->next_hash = *hash;
    *hash = c;
}

CDP__DT void cdp__dt_cut_unlink_hash(cdp__dt_cuts *t, const cdp__dt_cut *c) {
    cdp__dt_cut **at = &t->by_hash[c->hash % t->size];
    while (*at != c)
        at = &(*at)->next_hash;
    *at = c->next_hash;
}

/* Makes room for one more. */
CDP__DT cdp_status cdp__dt_cuts_grow(cdp__dt_cuts *t, const cdp_os *os) {
    const cdp__dt_cuts old = *t;
    if (t->count < t->size) return CDP_OK;
    const uint32_t size = old.size ? 2 * old.size : 64;
    const uint64_t bytes = 2ull * size * sizeof *t->by_hash;
    cdp__dt_cut **chains = (cdp__dt_cut **)cdp__dt_alloc(os, bytes);
    if (!chains) return cdp__dt_nomem("a table of cuts", bytes);
    t->size = size;
    t->by_hash = chains;
    t->by_number = chains + size;
    for (uint32_t i = 0; i < old.size; ++i)
        for (cdp__dt_cut *c = old.by_number[i], *next; c; c = next) {
            next = c->next;
            cdp__dt_cut_link(t, c);
        }
    cdp__dt_free(os, old.by_hash);
    return CDP_OK;
}

/* The list of the cuts that may be replaced: puts one at its new end, or takes one out. */
CDP__DT void cdp__dt_cut_pass(cdp__dt_cuts *t, cdp__dt_cut *c) {
    cdp__dt_passing *list = &t->passing[c->dim];
    c->passing = true;
    c->newer = NULL;
    c->older = list->newest;
    if (c->older) c->older->newer = c;
    if (!list->oldest) list->oldest = c;
    list->newest = c;
    ++list->count;
}

CDP__DT void cdp__dt_cut_stay(cdp__dt_cuts *t, cdp__dt_cut *c) {
    cdp__dt_passing *list = &t->passing[c->dim];
    if (!c->passing) return;
    c->passing = false;
    if (c->older) c->older->newer = c->newer;
    if (c->newer) c->newer->older = c->older;
    if (list->oldest == c) list->oldest = c->newer;
    if (list->newest == c) list->newest = c->older;
    --list->count;
}

/* Frees one that was replaced, and that no plan uses. */
CDP__DT void cdp__dt_cut_end(cdp__dt_cuts *t, const cdp_os *os, cdp__dt_cut *c) {
    cdp__dt_cut **at = cdp__dt_cut_chain(t, c->number);
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    --t->count;
    cdp__dt_free(os, c);
}

/* Whether plans use a cut may differ between ranks; so that does not decide what is replaced. */
CDP__DT void cdp__dt_cuts_trim(cdp_mesh *m, uint32_t dim) {
    cdp__dt_cuts *t = &m->cuts;
    while (t->passing[dim].count > cdp__dt_cuts_most(m->desc.shape[dim])) {
        cdp__dt_cut *c = t->passing[dim].oldest;
        cdp__dt_cut_stay(t, c);
        cdp__dt_cut_unlink_hash(t, c);
        c->replaced = true;
        if (!c->plans) cdp__dt_cut_end(t, m->root->os, c);
    }
}

CDP__DT void cdp__dt_cuts_free(cdp_mesh *m) {
    cdp__dt_cuts *t = &m->cuts;
    for (uint32_t i = 0; i < t->size; ++i)
        while (t->by_number[i])
            cdp__dt_cut_end(t, m->root->os, t->by_number[i]);
    cdp__dt_free(m->root->os, t->by_hash);
}

/* Fills in where the pieces start. */
CDP__DT cdp_status cdp__dt_cut_fill(cdp__dt_cut *c, uint32_t n, const uint64_t *sizes) {
    for (uint32_t i = 0; i < n; ++i) {
        c->starts[i + 1] = c->starts[i] + sizes[i];
        if (sizes[i] >> 62 || c->starts[i + 1] >> 62)
            return cdp_error_set(CDP_ERR_INVALID, -1, 0,
                "cdp_mesh_cut: sizes[%u] is %llu; the sum must stay below 2^62", i,
                (unsigned long long)sizes[i]);
    }
    c->hash = cdp__dt_hash(c->starts, n + 1ull);
    return CDP_OK;
}

CDP__DT cdp__dt_cut *cdp__dt_cut_equal(const cdp__dt_cuts *t, const cdp__dt_cut *c, uint32_t n) {
    cdp__dt_cut *old = t->size ? t->by_hash[c->hash % t->size] : NULL;
    while (old
        && (old->hash != c->hash || old->dim != c->dim
            || memcmp(old->starts, c->starts, (size_t)(n + 1ull) * sizeof *c->starts) != 0))
        old = old->next_hash;
    return old;
}

/* Finds the cut that equals *c, or makes *c a cut of the mesh; sets *c to it. */
CDP__DT cdp_status cdp__dt_cut_take(cdp_mesh *m, bool passing, cdp__dt_cut **c) {
    cdp__dt_cuts *t = &m->cuts;
    cdp__dt_cut *old = cdp__dt_cut_equal(t, *c, m->desc.shape[(*c)->dim]);
    if (old) {
        cdp__dt_free(m->root->os, *c);
        *c = old;
        passing = passing && old->passing;
        cdp__dt_cut_stay(t, old);
        if (passing) cdp__dt_cut_pass(t, old);
        return CDP_OK;
    }
    const cdp_status st = cdp__dt_cuts_grow(t, m->root->os);
    if (st != CDP_OK) return st;
    do
        ++t->last;
    while (!t->last || cdp__dt_cut_find(m, t->last));
    (*c)->number = t->last;
    ++t->count;
    cdp__dt_cut_link(t, *c);
    if (passing) cdp__dt_cut_pass(t, *c);
    return CDP_OK;
}

/* As cdp_mesh_cut(). passing: others may replace it. */
CDP__DT cdp_status cdp__dt_cut_of(
    cdp_mesh *m, uint32_t dim, const uint64_t *sizes, bool passing, uint32_t *number) {
    const uint32_t n = m->desc.shape[dim];
    const uint64_t bytes = sizeof(cdp__dt_cut) + (n + 1ull) * 8;
    cdp__dt_cut *c = (cdp__dt_cut *)cdp__dt_alloc(m->root->os, bytes);
    if (!c) return cdp__dt_nomem("a cut", bytes);
    c->dim = dim;
    c->starts = (uint64_t *)(void *)(c + 1);
    cdp_status st = cdp__dt_cut_fill(c, n, sizes);
    if (st == CDP_OK) st = cdp__dt_cut_take(m, passing, &c);
    if (st != CDP_OK) {
        cdp__dt_free(m->root->os, c);
        return st;
    }
    *number = c->number;
    cdp__dt_cuts_trim(m, dim);
    return CDP_OK;
}

/* The cut of a placement, NULL: it has none. */
CDP__DT cdp__dt_cut *cdp__dt_cut_placed(const cdp_layout *l, uint32_t by) {
    const cdp_place *p = &l->place[by];
    return p->kind == CDP_PLACE_SHARD && p->cut ? cdp__dt_cut_find(l->mesh, p->cut) : NULL;
}

/* True: the cuts of the layout exist, and none was replaced. */
CDP__DT bool cdp__dt_cuts_last(const cdp_layout *l) {
    for (uint32_t by = 0; by < l->mesh->desc.ndim; ++by) {
        const cdp__dt_cut *c = cdp__dt_cut_placed(l, by);
        if (c ? c->replaced : l->place[by].kind == CDP_PLACE_SHARD && l->place[by].cut != 0)
            return false;
    }
    return true;
}

/* True: numbers of the cuts of one layout mean the same on the mesh of the other. */
CDP__DT bool cdp__dt_cuts_shared(const cdp_layout *a, const cdp_layout *b) {
    for (uint32_t by = 0; a->mesh != b->mesh && by < a->mesh->desc.ndim; ++by)
        if (cdp__dt_cut_placed(a, by) || cdp__dt_cut_placed(b, by)) return false;
    return true;
}

/* A plan begins to use the cuts of a valid layout. */
CDP__DT void cdp__dt_cuts_hold(const cdp_layout *l) {
    for (uint32_t by = 0; by < l->mesh->desc.ndim; ++by) {
        cdp__dt_cut *c = cdp__dt_cut_placed(l, by);
        if (c) ++c->plans;
    }
}

CDP__DT void cdp__dt_cuts_release(const cdp_layout *l) {
    if (cdp__dt_mesh_ended(l->mesh)) return;
    cdp_mesh *m = (cdp_mesh *)(uintptr_t)l->mesh;
    for (uint32_t by = 0; by < m->desc.ndim; ++by) {
        cdp__dt_cut *c = cdp__dt_cut_placed(l, by);
        if (c && !--c->plans && c->replaced) cdp__dt_cut_end(&m->cuts, m->root->os, c);
    }
}

/* A collective call has used the layout: its cuts are the last ones to be replaced. */
CDP__DT void cdp__dt_cuts_touch(const cdp_layout *l) {
    cdp_mesh *m = (cdp_mesh *)(uintptr_t)l->mesh;
    for (uint32_t by = 0; by < m->desc.ndim; ++by) {
        cdp__dt_cut *c = cdp__dt_cut_placed(l, by);
        if (!c || !c->passing) continue;
        cdp__dt_cut_stay(&m->cuts, c);
        cdp__dt_cut_pass(&m->cuts, c);
    }
}

CDP_API cdp_status cdp_mesh_cut(cdp_mesh *m, uint32_t dim, const uint64_t *sizes, uint32_t *cut) {
    const cdp_status st = cdp__dt_mesh_alive(m, "cdp_mesh_cut");
    if (st != CDP_OK) return st;
    if (!sizes) return cdp__dt_missing("cdp_mesh_cut", "sizes");
    if (!cut) return cdp__dt_missing("cdp_mesh_cut", "cut");
    if (dim >= m->desc.ndim)
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_mesh_cut: there is no dimension %u; the mesh has %u dimensions", dim,
            m->desc.ndim);
    return cdp__dt_cut_of(m, dim, sizes, false, cut);
}

#endif /* CDP_SRC_DTENSOR_CUTS_H */
