/* dtensor/kept.h - plans that a mesh keeps for cdp_redistribute()

   Knows: plans and the meshes that they lie between. Promises: a kept plan ends with either of its
   meshes; runs that are in flight at one time never share a plan; which layouts are kept is the
   same on all ranks, whatever runs are in flight on one of them. */
#ifndef CDP_SRC_DTENSOR_KEPT_H
#define CDP_SRC_DTENSOR_KEPT_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/ended.h"
#include "../group/group_api.h"
#include "mesh_api.h"
#include "layout_api.h"
#include "plan_api.h"
#include "kit.h"
#include "grid.h"
#include "cuts.h"
#include "meshes.h"
#include "spelling.h"
#include "stages.h"
#include "scratch.h"
#include "planner.h"
#include "plan_words.h"
#include "runner.h"

#include <string.h>

#define CDP__DT_KEPT 64u /* pairs of layouts; the one that was used longest ago goes first */

/* Destroys the plans in the list that are not running; the others stay in it. */
CDP__DT void cdp__dt_plans_reap(cdp_plan **list, bool all) {
    while (*list) {
        cdp_plan *p = *list;
        if (!all && cdp__dt_running(p)) {
            list = &p->spare;
            continue;
        }
        *list = p->spare;
        cdp_plan_destroy(p);
    }
}

/* Ends what is kept for one pair of layouts, which the source's list no longer holds. */
CDP__DT void cdp__dt_kept_end(cdp__dt_kept *k) {
    cdp__dt_kept **at = &k->to->kept_to;
    cdp_plan **last = &k->plan;
    while (*at != k)
        at = &(*at)->next_to;
    *at = k->next_to;
    for (; *last; last = &(*last)->spare)
        cdp__dt_plan_release(*last);
    *last = k->from->retired;
    k->from->retired = k->plan;
    cdp__dt_plans_reap(&k->from->retired, false);
    cdp__dt_free(k->from->root->os, k);
}

/* Ends all pairs of layouts from or to a mesh. */
CDP__DT void cdp__dt_kept_clear(cdp_mesh *m) {
    while (m->kept) {
        cdp__dt_kept *k = m->kept;
        m->kept = k->next;
        cdp__dt_kept_end(k);
    }
    while (m->kept_to) {
        cdp__dt_kept *k = m->kept_to, **at = &k->from->kept;
        while (*at != k)
            at = &(*at)->next;
        *at = k->next;
        cdp__dt_kept_end(k);
    }
}

CDP_API void cdp_mesh_drop_plans(cdp_mesh *m) {
    if (!cdp__dt_mesh_known(m)) return;
    cdp__dt_kept_clear(m);
    cdp__dt_scratch_trim(m->root, UINT64_MAX);
}

CDP_API void cdp_mesh_destroy(cdp_mesh *m) {
    if (!m || cdp__dt_mesh_alive(m, "cdp_mesh_destroy") != CDP_OK) return;
    cdp__dt_kept_clear(m);
    cdp__dt_plans_reap(&m->retired, true);
    cdp__dt_mesh_free(m);
}

/* Ends the pair of layouts that was used longest ago if there are too many. */
CDP__DT void cdp__dt_kept_trim(cdp_mesh *m) {
    cdp__dt_kept **at = &m->kept;
    for (uint32_t n = 0; *at && n < CDP__DT_KEPT; ++n)
        at = &(*at)->next;
    cdp__dt_plans_reap(&m->retired, false);
    if (!*at) return;
    cdp__dt_kept *last = *at;
    *at = NULL;
    cdp__dt_kept_end(last);
}

CDP__DT cdp_status cdp__dt_kept_make(
    const cdp_plan_desc *desc, const uint64_t *key, cdp_plan **out) {
    cdp_mesh *m = (cdp_mesh *)(uintptr_t)desc->from.mesh;
    cdp__dt_kept *k = (cdp__dt_kept *)cdp__dt_alloc(m->root->os, sizeof *k);
    if (!k) return cdp__dt_nomem("a plan", sizeof *k);
    const cdp_status st = cdp_plan_create(desc, &k->plan);
    if (st != CDP_OK) {
        cdp__dt_free(m->root->os, k);
        return st;
    }
    memcpy(k->key, key, sizeof k->key);
    k->from = m;
    k->to = (cdp_mesh *)(uintptr_t)desc->to.mesh;
    k->next = m->kept;
    m->kept = k;
    k->next_to = k->to->kept_to;
    k->to->kept_to = k;
    *out = k->plan;
    cdp__dt_kept_trim(m);
    return CDP_OK;
}

/* A plan of these that is not running. A spare one is made without a word to the other ranks: what
   ranks compare was compared when the first one ran. */
CDP__DT cdp_status cdp__dt_kept_idle(cdp__dt_kept *k, const cdp_plan_desc *desc, cdp_plan **out) {
    cdp_plan *p = k->plan;
    while (p && cdp__dt_running(p))
        p = p->spare;
    if (!p && cdp_group_status(cdp__dt_run_link(k->plan)->group) != CDP_OK)
        p = k->plan; /* it says why */
    *out = p;
    if (p) return CDP_OK;
    const cdp_status st = cdp_plan_create(desc, &p);
    if (st != CDP_OK) return st;
    p->compared = k->plan->compared;
    p->spare = k->plan->spare;
    k->plan->spare = p;
    *out = p;
    return CDP_OK;
}

CDP__DT bool cdp__dt_place_written_same(const cdp_place *a, const cdp_place *b) {
    return a->kind == b->kind && a->dim == b->dim && a->op == b->op && a->order == b->order
        && a->cut == b->cut && a->block == b->block;
}

/* True: two layouts are written with the same numbers, on the same mesh. No number is given
   to two cuts. */
CDP__DT bool cdp__dt_written_same(const cdp_layout *a, const cdp_layout *b) {
    if (a->mesh != b->mesh || a->dtype != b->dtype || a->ndim != b->ndim) return false;
    for (uint32_t d = 0; d < a->ndim; ++d)
        if (a->shape[d] != b->shape[d]) return false;
    for (uint32_t by = 0; by < a->mesh->desc.ndim; ++by)
        if (!cdp__dt_place_written_same(&a->place[by], &b->place[by])) return false;
    return true;
}

/* A plan that was kept for layouts that are written like these two, which were checked then; *out
   is NULL if there is none. Layouts that only mean the same are found by cdp__dt_kept_plan(). */
CDP__DT cdp_status cdp__dt_kept_found(
    const cdp_layout *from, const cdp_layout *to, cdp_plan **out) {
    cdp_mesh *m = (cdp_mesh *)(uintptr_t)from->mesh;
    *out = NULL;
    if (!m || cdp__dt_mesh_ended(m)) return CDP_OK;
    for (cdp__dt_kept **at = &m->kept; *at; at = &(*at)->next) {
        cdp__dt_kept *k = *at;
        const cdp_plan_desc *d = &k->plan->desc;
        if (d->from_one || d->to_one || !cdp__dt_written_same(&d->from, from)
            || !cdp__dt_written_same(&d->to, to))
            continue;
        if (!cdp__dt_cuts_last(from) || !cdp__dt_cuts_last(to)) return CDP_OK;
        *at = k->next;
        cdp__dt_cuts_touch(from);
        cdp__dt_cuts_touch(to);
        k->next = m->kept;
        m->kept = k;
        return cdp__dt_kept_idle(k, d, out);
    }
    return CDP_OK;
}

/* The plan for `desc`, kept or new. */
CDP__DT cdp_status cdp__dt_kept_plan(const cdp_plan_desc *desc, cdp_plan **out) {
    uint64_t key[CDP__DT_KEY_WORDS];
    const cdp_status st = cdp__dt_plan_check(desc);
    if (st != CDP_OK) return cdp__dt_plan_refused(desc, st);
    cdp__dt_cuts_touch(&desc->from);
    cdp__dt_cuts_touch(&desc->to);
    cdp_mesh *m = (cdp_mesh *)(uintptr_t)desc->from.mesh;
    cdp__dt_plan_words(desc, 0, key);
    for (cdp__dt_kept **at = &m->kept; *at; at = &(*at)->next) {
        cdp__dt_kept *k = *at;
        if (k->to != desc->to.mesh || memcmp(k->key, key, sizeof key) != 0) continue;
        *at = k->next;
        k->next = m->kept;
        m->kept = k;
        return cdp__dt_kept_idle(k, desc, out);
    }
    return cdp__dt_kept_make(desc, key, out);
}

#endif /* CDP_SRC_DTENSOR_KEPT_H */
