/* dtensor/local_maps.h - functions of local arrays

   Knows: the layouts of inputs, and those that a function needs. Promises: cdp_local_map(). */
#ifndef CDP_SRC_DTENSOR_LOCAL_MAPS_H
#define CDP_SRC_DTENSOR_LOCAL_MAPS_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../os/os_api.h"
#include "../message/transport_api.h"
#include "../base/helpers.h"
#include "layout_api.h"
#include "dtensor_api.h"
#include "local_map_api.h"
#include "kit.h"
#include "spelling.h"
#include "tensors.h"

#ifndef CDP_NO_TENSOR_OPS

CDP__DT cdp_status cdp__dt_map_lies(const cdp_dtensor *t, const cdp_layout *need, uint32_t k) {
    char is[128], must[128];
    (void)cdp_layout_text(&t->layout, is, sizeof is);
    (void)cdp_layout_text(need, must, sizeof must);
    return cdp_error_set(CDP_ERR_INVALID, -1, 0,
        cdp__dt_mesh_same(t->layout.mesh, need->mesh)
            ? "cdp_local_map: in[%u] lies as %s, the function needs %s; set .redistribute or move "
              "it"
            : "cdp_local_map: in[%u] lies as %s of another mesh, the function needs %s of its own; "
              "set .redistribute or move it",
        k, is, must);
}

/* An input with the layout that the function needs: itself, or a new tensor. */
CDP__DT cdp_status cdp__dt_map_input(const cdp_local_map_desc *d, uint32_t k, cdp_dtensor *out) {
    const cdp_layout *need = d->need ? &d->need[k] : NULL;
    cdp_status st = cdp__dt_tensor_check(&d->in[k], "cdp_local_map");
    *out = d->in[k];
    out->owned = false;
    if (st != CDP_OK || !need || !need->mesh) return st;
    st = cdp_layout_check(need);
    if (st != CDP_OK || cdp_layout_same(&d->in[k].layout, need)) return st;
    if (!d->redistribute) return cdp__dt_map_lies(&d->in[k], need, k);
    st = cdp_dtensor_create(need, NULL, out);
    return st == CDP_OK ? cdp_redistribute(&d->in[k], out) : st;
}

CDP_API cdp_status cdp_local_map(const cdp_local_map_desc *d) {
    cdp_dtensor *in;
    const cdp_os *os = NULL;
    if (!d) return cdp__dt_missing("cdp_local_map", "desc");
    if (!d->func) return cdp__dt_missing("cdp_local_map", "desc.func");
    if (d->in_count && !d->in) return cdp__dt_missing("cdp_local_map", "desc.in");
    if (d->out_count && !d->out) return cdp__dt_missing("cdp_local_map", "desc.out");
    if (!d->in_count) return d->func(d->user, NULL, d->out);
    cdp_status st = cdp_layout_check(&d->in[0].layout);
    for (uint32_t k = 0; st == CDP_OK && k < d->out_count; ++k)
        st = cdp__dt_tensor_check(&d->out[k], "cdp_local_map");
    if (st != CDP_OK) return st;
    os = d->in[0].layout.mesh->root->os;
    in = (cdp_dtensor *)cdp__dt_alloc(os, d->in_count * sizeof *in);
    if (!in) return cdp__dt_nomem("cdp_local_map", d->in_count * sizeof *in);
    for (uint32_t k = 0; st == CDP_OK && k < d->in_count; ++k)
        st = cdp__dt_map_input(d, k, &in[k]);
    if (st == CDP_OK) st = d->func(d->user, in, d->out);
    for (uint32_t k = 0; k < d->in_count; ++k)
        cdp_dtensor_free(&in[k]);
    cdp__dt_free(os, in);
    return st;
}

#endif /* CDP_NO_TENSOR_OPS */

#endif /* CDP_SRC_DTENSOR_LOCAL_MAPS_H */
