/* dtensor/scratch.h - memory that plans and layers use while they run

   Knows: plans and the root of their meshes. Promises: what does not run at one time uses the same
   memory; memory that a failed group may still access is not used again. */
#ifndef CDP_SRC_DTENSOR_SCRATCH_H
#define CDP_SRC_DTENSOR_SCRATCH_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../group/group_api.h"
#include "../base/compiler.h"
#include "mesh_api.h"
#include "plan_api.h"
#include "kit.h"
#include "grid.h"
#include "meshes.h"
#include "stages.h"

/* True while an asynchronous run is in flight. */
CDP__DT bool cdp__dt_running(const cdp_plan *p) {
    return p->turns && cdp__atomic_load_u32(&p->turns->pending, CDP__ACQUIRE) != 0;
}

/* Of a group that has failed, peers may still access the memory that it was given. */
CDP__DT bool cdp__dt_groups_fine(const cdp_plan *p) {
    bool fine = cdp_group_status(p->group) == CDP_OK;
    for (uint32_t k = 0; k < p->act_count && fine; ++k)
        fine = cdp_group_status(cdp__dt_act_group(p, &p->acts[k])) == CDP_OK;
    return fine;
}

CDP__DT bool cdp__dt_scratch_idle(const cdp__dt_scratch *s) {
    const cdp_plan *const p = s->user;
    return !s->held && (!p || (!cdp__dt_running(p) && (!p->turns || cdp__dt_groups_fine(p))));
}

/* Frees what no run uses, all of it or only what is smaller than `below` bytes. */
CDP__DT void cdp__dt_scratch_trim(cdp__dt_root *root, uint64_t below) {
    for (cdp__dt_scratch **at = &root->scratch; *at;) {
        cdp__dt_scratch *s = *at;
        if (s->bytes >= below || !cdp__dt_scratch_idle(s)) {
            at = &s->next;
            continue;
        }
        *at = s->next;
        cdp__dt_retire(root, s->link, s->at);
        cdp__dt_free(root->os, s);
    }
}

/* Finds so many bytes, at best some that are idle; makes them if there are none, or none that are
   idle and `idle` says that they must be. */
CDP__DT cdp_status cdp__dt_scratch_find(
    cdp__dt_root *root, uint64_t bytes, bool idle, cdp__dt_scratch **out) {
    *out = NULL;
    for (cdp__dt_scratch *s = root->scratch; s; s = s->next) {
        if (s->bytes < bytes || (idle && !cdp__dt_scratch_idle(s))) continue;
        if (!*out || s->bytes < (*out)->bytes) *out = s;
    }
    if (*out) return CDP_OK;
    cdp__dt_scratch_trim(root, bytes);
    cdp__dt_scratch *s = (cdp__dt_scratch *)cdp__dt_alloc(root->os, sizeof *s);
    uint8_t *at = s ? (uint8_t *)cdp__dt_group_memory(root->group, bytes) : NULL;
    if (!at) {
        cdp__dt_free(root->os, s);
        return cdp__dt_nomem("the scratch memory of a plan or layer", bytes);
    }
    s->at = at;
    s->bytes = bytes;
    s->next = root->scratch;
    root->scratch = s;
    *out = s;
    return CDP_OK;
}

/* Makes sure that a run of this plan alone finds memory. */
CDP__DT cdp_status cdp__dt_scratch_reserve(cdp_plan *p) {
    cdp__dt_scratch *s;
    return p->scratch_used ? cdp__dt_scratch_find(p->mesh->root, p->scratch_used, false, &s)
                           : CDP_OK;
}

/* Takes memory for a run. */
CDP__DT cdp_status cdp__dt_scratch_take(cdp_plan *p) {
    cdp__dt_scratch *s;
    p->scratch = NULL;
    if (!p->scratch_used) return CDP_OK;
    const cdp_status st = cdp__dt_scratch_find(p->mesh->root, p->scratch_used, true, &s);
    if (st != CDP_OK) return st;
    s->user = p;
    s->link = p->link;
    s->held = true;
    p->scratch = s->at;
    return CDP_OK;
}

/* A run has returned: others may have its memory, once it is not in flight. `gone`: so is the
   plan. */
CDP__DT void cdp__dt_scratch_give(cdp_plan *p, bool gone) {
    for (cdp__dt_scratch *s = p->mesh->root->scratch; s; s = s->next) {
        if (s->user != p) continue;
        s->held = s->held && !cdp__dt_groups_fine(p);
        if (!gone) continue;
        s->held = s->held || cdp__dt_running(p) || !cdp__dt_groups_fine(p);
        s->user = NULL;
    }
}

/* Takes memory for a call that ends before it returns, see cdp__dt_scratch_back(). */
CDP__DT cdp_status cdp__dt_scratch_lend(
    cdp__dt_root *root, cdp__dt_link *link, uint64_t bytes, cdp__dt_scratch **out) {
    const cdp_status st = cdp__dt_scratch_find(root, bytes, true, out);
    if (st != CDP_OK) return st;
    (*out)->user = NULL;
    (*out)->link = link;
    (*out)->held = true;
    return CDP_OK;
}

CDP__DT void cdp__dt_scratch_back(cdp__dt_scratch *s) {
    if (s) s->held = cdp_group_status(s->link->group) != CDP_OK;
}

#endif /* CDP_SRC_DTENSOR_SCRATCH_H */
