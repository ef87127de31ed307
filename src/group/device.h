/* group/device.h - operations that a backend runs

   Knows: the functions of a cdp_backend. Promises: an operation on memory that the backend owns is
   passed to the backend, and completes like any other work. */
#ifndef CDP_SRC_GROUP_DEVICE_H
#define CDP_SRC_GROUP_DEVICE_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/error_api.h"
#include "group_api.h"
#include "collectives_api.h"
#include "messages_api.h"
#include "backend_api.h"
#include "../base/compiler.h"
#include "../base/ended.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "state.h"
#include "progress.h"
#include "group_calls.h"

#ifndef CDP_NO_BACKEND
CDP_API cdp_status cdp_group_set_backend(cdp_group *g, const cdp_backend *backend) {
    cdp_backend *own;
    const cdp_status st = cdp__alive(g, "cdp_group_set_backend");
    if (st != CDP_OK) return st;
    if (!backend) return cdp__missing("cdp_group_set_backend", "backend");
    if (g->backend)
        return cdp__fail(CDP_ERR_STATE, "cdp_group_set_backend: this group has a backend already");
    own = (cdp_backend *)cdp__alloc(g->os, sizeof *own);
    if (!own) return cdp__fail_nomem("a backend", sizeof *own);
    *own = *backend;
    cdp__enter(g);
    g->backend = own;
    g->backed = true;
    if (g->health == CDP__FAILED) own->failed(own->self, &g->failure.error);
    cdp__leave(g);
    return CDP_OK;
}

CDP_API void cdp_group_clear_backend(cdp_group *g) {
    if (!g) return;
    cdp__enter(g);
    cdp__free(g->os, (void *)(uintptr_t)g->backend);
    g->backend = NULL;
    cdp__leave(g);
}
#endif /* CDP_NO_BACKEND */

CDP_API const cdp_backend *cdp_group_backend(const cdp_group *g) {
#ifdef CDP_NO_BACKEND
    (void)g;
    return NULL;
#else
    return g && !cdp__ended(g) ? g->backend : NULL;
#endif
}

CDP_API CDP__ONE_COPY void cdp_group_fail(cdp_group *g) {
    if (!g) return;
    cdp__enter(g);
    cdp__group_break(g, cdp_last_error());
    cdp__leave(g);
}

/* Stores whether the buffers are in device memory. It is an error if one of them is and one is
   not. */
CDP__PRIVATE cdp_status cdp__device_claims(
    const cdp_group *g, const char *name, const void *in, const void *out, bool *device) {
    const cdp_backend *b = cdp__backend_of(g);
    const int i = b && in ? b->owns(b->self, in) : 0, o = b && out ? b->owns(b->self, out) : 0;
    *device = i > 0 || o > 0;
    if (i < 0 || o < 0) return (cdp_status)(i < 0 ? i : o);
    if (!in || !out || i == o) return CDP_OK;
    return cdp__fail(CDP_ERR_INVALID,
        "%s: the input is in %s memory but the result in %s memory; both must be in the same", name,
        i ? "device" : "host", o ? "device" : "host");
}

/* The backend failed: the group fails for the reason that is the last error. */
CDP__PRIVATE cdp_status cdp__device_failed(cdp_group *g, cdp_status st) {
    cdp_status now;
    cdp_group_fail(g);
    now = cdp_group_status(g);
    return now != CDP_OK ? now : st;
}

/* Handles the result of the backend's start or transfer. */
CDP__PRIVATE cdp_status cdp__device_begun(
    cdp_group *g, cdp_status st, uint64_t number, cdp_work *out) {
    if (st == CDP_OK) {
        out->group = g;
        out->seq = CDP__DEVICE_BIT | number;
        return CDP_OK;
    }
    return number ? cdp__device_failed(g, st) : st;
}

CDP__PRIVATE cdp_status cdp__device_start(
    cdp_group *g, const cdp_request *rqs, uint32_t n, cdp_work *out) {
    uint64_t number = 0;
    cdp_status st = cdp_group_status(g);
    if (st != CDP_OK) return st;
    st = g->backend->start(g->backend->self, rqs, n, &number);
    return cdp__device_begun(g, st, number, out);
}

CDP__PRIVATE cdp_status cdp__device_transfer(
    cdp_group *g, const cdp_transfer *list, uint32_t n, cdp_work *out) {
    uint64_t number = 0;
    cdp_status st = cdp_group_status(g);
    uint32_t i;
    for (i = 0; i < n && st == CDP_OK; ++i) {
        if (list[i].peer == CDP_ANY_RANK || list[i].got)
            st = cdp__fail(CDP_ERR_UNSUPPORTED,
                "device memory: a receive must say from which rank and how much; use cdp_recv()");
        if (list[i].row)
            st = cdp__fail(CDP_ERR_UNSUPPORTED,
                "device memory: a receive into rows; receive contiguous memory and copy it");
    }
    if (st != CDP_OK) return st;
    st = g->backend->transfer(g->backend->self, list, n, &number);
    return cdp__device_begun(g, st, number, out);
}

/* Waits for a work of the backend; see cdp_backend.wait for the deadline. */
CDP__PRIVATE cdp_status cdp__device_wait(cdp_work w, uint64_t deadline_ns) {
    cdp_group *g = w.group;
    cdp_status st = cdp_group_status(g);
    if (st != CDP_OK) return st;
    if (!cdp__backend_of(g))
        return cdp__fail(CDP_ERR_STATE, "this work's group has no backend any more");
    st = g->backend->wait(g->backend->self, w.seq & ~CDP__DEVICE_BIT, deadline_ns);
    if (st >= CDP_OK || st == CDP_ERR_INVALID || st == CDP_ERR_STATE) return st;
    return cdp__device_failed(g, st);
}

CDP__PRIVATE bool cdp__work_on_device(cdp_work w) {
#ifdef CDP_NO_BACKEND
    (void)w;
    return false;
#else
    return (w.seq & (CDP__DEFERRED_BIT | CDP__DEVICE_BIT)) == CDP__DEVICE_BIT;
#endif
}

CDP__PRIVATE cdp_status cdp__device_cannot(const char *call) {
    return cdp__fail(CDP_ERR_UNSUPPORTED,
        "%s: not with device memory; order it by the device's streams, or copy to host memory",
        call);
}

#endif /* CDP_SRC_GROUP_DEVICE_H */
