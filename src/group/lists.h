/* group/lists.h - collectives over separate arrays

   Knows: requests. Promises: the operation is the one of packed parts, and a mistake is reported
   before anything was started. */
#ifndef CDP_SRC_GROUP_LISTS_H
#define CDP_SRC_GROUP_LISTS_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "group_api.h"
#include "collectives_api.h"
#include "lists_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "../base/bytes.h"
#include "../collective/kinds.h"
#include "../dtype/dtype.h"
#include "state.h"
#include "deferred.h"
#include "device.h"
#include "requests.h"
#include "collective_calls.h"

#ifndef CDP_NO_OBJECTS

#define CDP__LIST_ALIGN 64u /* where packed results begin, whatever stands before them */

/* The arrays of one side of a call. */
typedef struct cdp__list {
    const char *name;
    const void *const *at; /* NULL: this rank uses no list on this side */
    const uint64_t *counts;
    uint64_t bytes; /* of all parts */
} cdp__list;

CDP__PRIVATE uint64_t cdp__list_part(const cdp__list *l, const cdp_request *rq, uint32_t r) {
    return (l->counts ? l->counts[r] : rq->count) * cdp_dtype_size(rq->dtype);
}

CDP__PRIVATE cdp_status cdp__lists_in_host(
    const cdp_group *g, const cdp_request *rq, const void *at, const char *what) {
    const char *name = cdp_coll_name(rq->kind);
    bool device;
    const cdp_status st = cdp__device_claims(g, name, at, NULL, &device);
    if (st != CDP_OK || !device) return st;
    return cdp__fail(CDP_ERR_UNSUPPORTED,
        "%s: %s points to device memory, of which there are no lists; pack the parts and use "
        "cdp_start()",
        name, what);
}

/* Checks the arrays of one side, and adds up their bytes. */
CDP__PRIVATE cdp_status cdp__list_measure(
    const cdp_group *g, const cdp_request *rq, cdp__list *l, uint64_t *total) {
    const char *name = cdp_coll_name(rq->kind);
    uint64_t part;
    uint32_t r;
    cdp_status st = CDP_OK;
    for (r = 0; r < g->desc.world_size && st == CDP_OK; ++r) {
        const uint64_t count = l->counts ? l->counts[r] : rq->count;
        if (!cdp__mul_fits(count, cdp_dtype_size(rq->dtype), &part)
            || *total + part > (uint64_t)INT64_MAX || *total + part < part)
            return cdp__fail(
                CDP_ERR_INVALID, "%s: the parts of %s are more than 2^63 bytes", name, l->name);
        if (part && !l->at[r])
            return cdp__fail(CDP_ERR_INVALID, "%s: %s[%u] is NULL, but that part has %llu elements",
                name, l->name, r, (unsigned long long)count);
        *total += part;
        l->bytes += part;
        st = cdp__lists_in_host(g, rq, l->at[r], l->name);
    }
    return st;
}

/* Which lists this rank needs, and whether they are there. */
CDP__PRIVATE cdp_status cdp__lists_check(
    const cdp_group *g, cdp_request *rq, cdp__list *in, cdp__list *out, uint64_t *total) {
    const bool mine = !cdp__kind_has_root(rq->kind) || g->desc.rank == rq->root;
    const bool parts_in = cdp__kind_parts_in(rq->kind), parts_out = cdp__kind_parts_out(rq->kind);
    const char *name = cdp_coll_name(rq->kind);
    cdp_status st = CDP_OK;
    if (!parts_in && !parts_out)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_collective_lists: %s has no parts for single ranks; use cdp_start()", name);
    if (!parts_in || !mine) in->at = NULL;
    if (!parts_out || !mine) out->at = NULL;
    if (mine && parts_in && !in->at) return cdp__missing(name, "ins");
    if (mine && parts_out && !out->at) return cdp__missing(name, "outs");
    if (in->at) st = cdp__list_measure(g, rq, in, total);
    if (out->at && st == CDP_OK) st = cdp__list_measure(g, rq, out, total);
    if (st != CDP_OK) return st;
    if (!in->at) st = cdp__lists_in_host(g, rq, rq->in, "in");
    if (!out->at && st == CDP_OK) st = cdp__lists_in_host(g, rq, rq->out, "out");
    return st;
}

/* Copies the parts of a list to packed memory, or back. */
CDP__PRIVATE void cdp__list_copy(
    const cdp_group *g, const cdp_request *rq, const cdp__list *l, uint8_t *at, bool back) {
    uint32_t r;
    for (r = 0; l->at && r < g->desc.world_size; ++r) {
        const size_t bytes = (size_t)cdp__list_part(l, rq, r);
        if (bytes && back) memcpy((void *)(uintptr_t)l->at[r], at, bytes);
        if (bytes && !back) memcpy(at, l->at[r], bytes);
        at += bytes;
    }
}

CDP_API cdp_status cdp_collective_lists(
    cdp_group *g, const cdp_request *request, const void *const *ins, void *const *outs) {
    cdp__list in = {"ins", ins, NULL, 0}, out = {"outs", (const void *const *)outs, NULL, 0};
    cdp_request rq;
    cdp_work w = {NULL, 0};
    uint64_t total = CDP__LIST_ALIGN;
    uint8_t *memory, *taken;
    cdp_status st = cdp__must_not_wait();
    if (st == CDP_OK) st = cdp__alive(g, "cdp_collective_lists");
    if (st == CDP_OK && !request) st = cdp__missing("cdp_collective_lists", "request");
    if (st != CDP_OK) return st;
    rq = *request;
    st = cdp__request_defaults(g, &rq);
    in.counts = rq.in_counts;
    out.counts = rq.out_counts;
    if (st == CDP_OK) st = cdp__lists_check(g, &rq, &in, &out, &total);
    if (st != CDP_OK) return st;
    memory = (uint8_t *)cdp__alloc(g->os, total);
    if (!memory) return cdp__fail_nomem("the packed parts of a list", total);
    taken = memory + (in.bytes + CDP__LIST_ALIGN - 1) / CDP__LIST_ALIGN * CDP__LIST_ALIGN;
    if (out.at) rq.out = taken;
    if (in.at) rq.in = memory;
    cdp__list_copy(g, &rq, &in, memory, false);
    if (out.at && !rq.in && out.at[g->desc.rank])
        memcpy(taken + cdp__request_own_part(g, &rq, out.counts), out.at[g->desc.rank],
            (size_t)cdp__list_part(&out, &rq, g->desc.rank));
    st = cdp_start(g, &rq, &w);
    if (st == CDP_OK) st = cdp_work_wait(w);
    if (st == CDP_OK) cdp__list_copy(g, &rq, &out, taken, true);
    cdp__free(g->os, memory);
    return st;
}

#endif /* CDP_NO_OBJECTS */

#endif /* CDP_SRC_GROUP_LISTS_H */
