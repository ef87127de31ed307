/* dtensor/tensors.h - a layout and a pointer

   Knows: tensors, and plans that the mesh keeps for them. Promises: the same redistribution is
   planned only once. */
#ifndef CDP_SRC_DTENSOR_TENSORS_H
#define CDP_SRC_DTENSOR_TENSORS_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../message/transport_api.h"
#include "../group/group_api.h"
#include "../group/collectives_api.h"
#include "../base/helpers.h"
#include "mesh_api.h"
#include "layout_api.h"
#include "plan_api.h"
#include "dtensor_api.h"
#include "cxx_api.h"
#include "kit.h"
#include "kernels.h"
#include "grid.h"
#include "meshes.h"
#include "stages.h"
#include "planner.h"
#include "runner.h"
#include "kept.h"

CDP__DT cdp_status cdp__dt_tensor_check(const cdp_dtensor *t, const char *call) {
    if (!t) return cdp__dt_missing(call, "tensor");
    cdp_status st = cdp_layout_check(&t->layout);
    if (st == CDP_OK && !t->data && cdp_layout_box(&t->layout, NULL, NULL))
        st = cdp__dt_missing(call, "tensor.data");
    return st;
}

CDP__DT uint64_t cdp__dt_local_bytes(const cdp_layout *l) {
    return cdp_layout_box(l, NULL, NULL) * cdp_dtype_size(l->dtype);
}

CDP_API cdp_status cdp_dtensor_create(const cdp_layout *layout, void *data, cdp_dtensor *out) {
    if (!out) return cdp__dt_missing("cdp_dtensor_create", "out");
    memset(out, 0, sizeof *out);
    cdp_status st = cdp_layout_check(layout);
    if (st == CDP_OK && !data) st = cdp__dt_link_here(layout->mesh->all);
    if (st != CDP_OK) return st;
    const cdp__dt_root *root = layout->mesh->root;
    const uint64_t bytes = cdp__dt_local_bytes(layout);
    out->layout = *layout;
    out->layout.dtype = cdp__dt_dtype(layout);
    out->data = data;
    if (data || !bytes) return CDP_OK;
    out->data = root->group ? cdp__dt_group_memory(root->group, bytes)
                            : root->os->alloc(root->os->user, bytes);
    if (!out->data) return cdp__dt_nomem("a tensor", bytes);
    out->owned = true;
    return CDP_OK;
}

CDP_API void cdp_dtensor_free(cdp_dtensor *t) {
    if (!t) return;
    if (t->owned && !cdp__dt_has_mesh(&t->layout)) { /* nobody knows whose memory it is */
        (void)cdp__dt_mesh_refused(&t->layout, "cdp_dtensor_free");
        return;
    }
    cdp__dt_root *root = t->owned ? t->layout.mesh->root : NULL;
    if (t->owned && root->group)
        cdp__dt_retire(root, t->layout.mesh->all, t->data);
    else if (t->owned)
        cdp__dt_free(root->os, t->data);
    t->data = NULL;
    t->owned = false;
}

/* The plan that moves one tensor into another. */
CDP__DT cdp_status cdp__dt_plan_between(
    const cdp_dtensor *from, const cdp_dtensor *to, const char *call, cdp_plan **out) {
    cdp_plan_desc d;
    cdp_status st = CDP_OK;
    *out = NULL;
    if (from && to && from->data && to->data)
        st = cdp__dt_kept_found(&from->layout, &to->layout, out);
    if (st != CDP_OK || *out) return st;
    st = cdp__dt_tensor_check(from, call);
    if (st == CDP_OK) st = cdp__dt_tensor_check(to, call);
    if (st != CDP_OK) return st;
    memset(&d, 0, sizeof d);
    d.from = from->layout;
    d.to = to->layout;
    return cdp__dt_kept_plan(&d, out);
}

CDP_API cdp_status cdp_redistribute(const cdp_dtensor *from, cdp_dtensor *to) {
    cdp_plan *plan;
    const cdp_status st = cdp__dt_plan_between(from, to, "cdp_redistribute", &plan);
    return st == CDP_OK ? cdp_plan_run(plan, from->data, to->data) : st;
}

CDP_API cdp_status cdp_redistribute_async(
    const cdp_dtensor *from, cdp_dtensor *to, cdp_work *work) {
    cdp_plan *plan;
    const cdp_status st = cdp__dt_plan_between(from, to, "cdp_redistribute_async", &plan);
    return st == CDP_OK ? cdp_plan_run_async(plan, from->data, to->data, work) : st;
}

/* The layout of the same tensor, replicated on all ranks. */
CDP__DT cdp_layout cdp__dt_replicated(const cdp_layout *l) {
    cdp_layout out = *l;
    memset(out.place, 0, sizeof out.place);
    return out;
}

CDP__DT bool cdp__dt_any_partial(const cdp_layout *l) {
    for (uint32_t by = 0; by < l->mesh->desc.ndim; ++by)
        if (cdp__dt_partial(l, by)) return true;
    return false;
}

CDP_API cdp_status cdp_distribute(cdp_dtensor *t, const void *full, uint32_t source) {
    cdp_plan_desc d;
    cdp_plan *plan;
    cdp_status st = cdp__dt_tensor_check(t, "cdp_distribute");
    if (st == CDP_OK) st = cdp__dt_link_here(t->layout.mesh->all);
    if (st != CDP_OK) return st;
    if (cdp__dt_any_partial(&t->layout))
        return cdp_error_set(CDP_ERR_UNSUPPORTED, -1, 0,
            "cdp_distribute: a PARTIAL tensor cannot be cut from a whole one; use "
            "cdp_dtensor_fill");
    if (source == CDP_EACH) {
        const cdp__dt_side s = cdp__dt_side_of(&t->layout, 0);
        const cdp__dt_region all = cdp__dt_whole(&s);
        if (t->layout.mesh->me == CDP__DT_NONE || !cdp__dt_local_bytes(&t->layout)) return CDP_OK;
        if (!full) return cdp__dt_missing("cdp_distribute", "full");
        const cdp__dt_region own = cdp__dt_region_of(&s, t->layout.mesh->me);
        const cdp__dt_copy c =
            cdp__dt_copy_of(&own, &all, &own, s.ndim, cdp_dtype_size(t->layout.dtype));
        cdp__dt_copy_run(&c, t->data, full);
        return CDP_OK;
    }
    memset(&d, 0, sizeof d);
    d.from = cdp__dt_replicated(&t->layout);
    d.to = t->layout;
    d.from_one = true;
    d.root = source;
    st = cdp__dt_kept_plan(&d, &plan);
    return st == CDP_OK ? cdp_plan_run(plan, full, t->data) : st;
}

CDP_API cdp_status cdp_dtensor_full(const cdp_dtensor *t, void *full, uint32_t root) {
    cdp_plan_desc d;
    cdp_plan *plan;
    cdp_status st = cdp__dt_tensor_check(t, "cdp_dtensor_full");
    if (st != CDP_OK) return st;
    memset(&d, 0, sizeof d);
    d.from = t->layout;
    d.to = cdp__dt_replicated(&t->layout);
    d.to_one = root != CDP_EACH;
    d.root = root != CDP_EACH ? root : 0;
    st = cdp__dt_kept_plan(&d, &plan);
    return st == CDP_OK ? cdp_plan_run(plan, t->data, full) : st;
}

#endif /* CDP_SRC_DTENSOR_TENSORS_H */
