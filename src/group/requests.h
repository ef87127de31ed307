/* group/requests.h - checks of the arguments of calls

   Knows: requests, groups' sizes. Promises: a mistake is reported in one sentence, and nothing was
   started. */
#ifndef CDP_SRC_GROUP_REQUESTS_H
#define CDP_SRC_GROUP_REQUESTS_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "group_api.h"
#include "collectives_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "../base/bytes.h"
#include "../collective/kinds.h"
#include "../dtype/dtype.h"
#include "../collective/kinds.h"
#include "../message/header.h"
#include "state.h"
#include "device.h"

CDP__PRIVATE bool cdp__overlap(const void *a, const void *b, uint64_t a_bytes, uint64_t b_bytes) {
    const uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;
    return x < y + b_bytes && y < x + a_bytes;
}

/* Stores the number of elements of `in` and `out` on this rank; false if it exceeds 64 bits. */
CDP__PRIVATE bool cdp__request_lengths(
    const cdp_group *g, const cdp_request *rq, uint64_t *in, uint64_t *out) {
    const uint32_t n = g->desc.world_size;
    const cdp__kind *kind = cdp__kind_of(rq->kind);
    const bool root = g->desc.rank == rq->root, in_place = !rq->in || rq->in == rq->out;
    uint64_t in_all = 0, out_all = 0;
    uint32_t i;
    bool fits_in = rq->in_counts || cdp__mul_fits(rq->count, n, &in_all),
         fits_out = rq->out_counts || cdp__mul_fits(rq->count, n, &out_all);
    for (i = 0; i < n && rq->in_counts; ++i)
        fits_in = fits_in && (in_all += rq->in_counts[i]) >= rq->in_counts[i];
    for (i = 0; i < n && rq->out_counts; ++i)
        fits_out = fits_out && (out_all += rq->out_counts[i]) >= rq->out_counts[i];
    *in = cdp__extent_of(kind->in, rq->count, in_all, root);
    *out = cdp__extent_of(kind->out, rq->count, out_all, root);
    if (in_place) *out = cdp__max(*out, *in); /* `out` is the input, too */
    return (fits_in || !cdp__kind_parts_in(rq->kind))
        && (fits_out || !cdp__kind_parts_out(rq->kind));
}

/* Fills in the defaults. Members that an operation does not use are made equal on all ranks. */
CDP__PRIVATE cdp_status cdp__request_defaults(const cdp_group *g, cdp_request *rq) {
    const cdp_coll_kind k = rq->kind;
    if (!cdp__kind_is(k, CDP__KIND_STARTS))
        return cdp__fail(CDP_ERR_INVALID, "cdp_start: kind %d is no operation", (int)k);
    if (!rq->dtype) rq->dtype = CDP_DTYPE_F32;
    if (!rq->op) rq->op = CDP_REDUCE_SUM;
    if (!rq->timeout_ms) rq->timeout_ms = g->desc.timeout_ms;
    if (rq->factor == 0.0) rq->factor = 1.0;
    if ((uint32_t)rq->dtype >= CDP_DTYPE_COUNT)
        return cdp__fail(
            CDP_ERR_INVALID, "%s: dtype %d does not exist", cdp_coll_name(k), (int)rq->dtype);
    if ((uint32_t)rq->op >= CDP_REDUCE_COUNT)
        return cdp__fail(
            CDP_ERR_INVALID, "%s: reduction %d does not exist", cdp_coll_name(k), (int)rq->op);
    if (rq->accumulate && rq->accumulate != CDP_DTYPE_F32)
        return cdp__fail(CDP_ERR_INVALID,
            "%s: accumulate is %d; set it to CDP_DTYPE_F32, or leave it 0", cdp_coll_name(k),
            (int)rq->accumulate);
#ifdef CDP_FEW_DTYPES
    if (rq->accumulate && cdp__dtype_is_narrow(rq->dtype))
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "%s: there is no `accumulate`, because CDP_FEW_DTYPES was defined when cdp.h was "
            "compiled; leave it 0",
            cdp_coll_name(k));
#endif
    if (!cdp__kind_reduces(k)) rq->op = CDP_REDUCE_SUM;
    if (k == CDP_COLL_BARRIER) {
        rq->dtype = CDP_DTYPE_U8;
        rq->count = 0;
    }
    if (!cdp__kind_reduces(k) || !cdp__reduce_accumulates(rq->dtype, rq->op))
        rq->accumulate = CDP_DTYPE_DEFAULT;
    if (!cdp__kind_has_root(k) && !cdp__root_is_bucket(rq->root)) rq->root = 0;
    if (!cdp__kind_parts_in(k)) rq->in_counts = NULL;
    if (!cdp__kind_parts_out(k)) rq->out_counts = NULL;
    if (cdp__kind_exchanges(k)
        && (!rq->in_counts != !rq->out_counts
            || (rq->in_counts && rq->in_counts[g->desc.rank] != rq->out_counts[g->desc.rank])))
        return cdp__fail(CDP_ERR_INVALID,
            "%s: give both in_counts and out_counts, or neither; this rank's own part is equally "
            "long in both",
            cdp_coll_name(k));
    if (rq->in_counts) rq->count = rq->in_counts[g->desc.rank];
    if (rq->out_counts) rq->count = rq->out_counts[g->desc.rank];
    return CDP_OK;
}

/* Where this rank's part begins among all parts, in bytes. */
CDP__PRIVATE uintptr_t cdp__request_own_part(
    const cdp_group *g, const cdp_request *rq, const uint64_t *counts) {
    uint64_t before = counts ? 0 : rq->count * g->desc.rank;
    uint32_t i;
    for (i = 0; counts && i < g->desc.rank; ++i)
        before += counts[i];
    return (uintptr_t)(before * cdp_dtype_size(rq->dtype));
}

/* Recognises in-place calls in NCCL's form, too: the smaller buffer is this rank's own part of
   the larger one. On rank 0 this looks like in == out, so every rank accepts it. */
CDP__PRIVATE void cdp__request_in_place(const cdp_group *g, cdp_request *rq) {
    const bool root = g->desc.rank == rq->root || !cdp__kind_has_root(rq->kind);
    const bool parts_in = cdp__kind_parts_in(rq->kind), parts_out = cdp__kind_parts_out(rq->kind);
    if (!rq->in || !rq->out || !root || parts_in == parts_out) return;
    if (parts_out) {
        if ((uintptr_t)rq->in == (uintptr_t)rq->out + cdp__request_own_part(g, rq, rq->out_counts))
            rq->in = NULL;
        return;
    }
    if ((uintptr_t)rq->out != (uintptr_t)rq->in + cdp__request_own_part(g, rq, rq->in_counts))
        return;
    rq->out = (void *)(uintptr_t)rq->in;
    rq->in = NULL;
}

/* Checks a request for mistakes of the caller. *device: its buffers are in device memory. */
CDP__PRIVATE cdp_status cdp__request_check(const cdp_group *g, cdp_request *rq, bool *device) {
    const char *name = cdp_coll_name(rq->kind);
    const uint64_t size = cdp_dtype_size(rq->dtype ? rq->dtype : CDP_DTYPE_F32);
    uint64_t in, out;
    cdp_status st = cdp__request_defaults(g, rq);
    *device = false;
    if (st == CDP_OK) cdp__request_in_place(g, rq);
    if (st == CDP_OK && cdp__backend_of(g))
        st = cdp__device_claims(g, name, rq->in, rq->out, device);
    if (st != CDP_OK) return st;
    if (cdp__kind_reduces(rq->kind) && !*device && !cdp__reduce_exists(rq->dtype, rq->op))
        return cdp__fail(CDP_ERR_UNSUPPORTED, "%s: there is no %s of %s", name,
            cdp_reduce_name(rq->op), cdp_dtype_name(rq->dtype));
    if (rq->accumulate && *device)
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "%s: there is no `accumulate` in device memory; leave it 0, or reduce f32", name);
#ifdef CDP_NO_SCAN
    if (cdp__kind_is(rq->kind, CDP__KIND_PREFIX))
        return cdp__fail(
            CDP_ERR_UNSUPPORTED, "%s: CDP_NO_SCAN was defined when cdp.h was compiled", name);
#endif
    if (cdp__kind_is(rq->kind, CDP__KIND_PREFIX) && rq->op == CDP_REDUCE_AVG)
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "%s: there is no average, because every rank reduces another number of ranks; use SUM "
            "and divide by that number",
            name);
    if (cdp__kind_has_root(rq->kind) && rq->root >= g->desc.world_size)
        return cdp__fail(CDP_ERR_INVALID, "%s: root %u is not below world_size %u", name, rq->root,
            g->desc.world_size);
    if (!cdp__request_lengths(g, rq, &in, &out) || !cdp__mul_fits(in, size, &in)
        || !cdp__mul_fits(out, size, &out))
        return cdp__fail(CDP_ERR_INVALID, "%s: %llu x %s is more than 2^63 bytes", name,
            (unsigned long long)rq->count, cdp_dtype_name(rq->dtype));
    if (!cdp__kind_is(rq->kind, CDP__KIND_IN_PLACE) && (in || out)
        && (!rq->in || rq->in == rq->out))
        return cdp__fail(CDP_ERR_INVALID,
            "%s: it does not work in place; use separate memory for input and result", name);
    if (out && !rq->out)
        return cdp__fail(CDP_ERR_INVALID, "%s: out is NULL, but count is %llu", name,
            (unsigned long long)rq->count);
    if ((out && (uintptr_t)rq->out % size) || (in && (uintptr_t)rq->in % size))
        return cdp__fail(CDP_ERR_INVALID,
            "%s: the %s is not aligned to its dtype %s; align it to %u bytes", name,
            out && (uintptr_t)rq->out % size ? "result" : "input", cdp_dtype_name(rq->dtype),
            (uint32_t)size);
    if (in && out && rq->in && rq->in != rq->out && cdp__overlap(rq->in, rq->out, in, out))
        return cdp__fail(CDP_ERR_INVALID,
            "%s: input and result overlap; use separate memory, or pass NULL as the input to work "
            "in place",
            name);
    return CDP_OK;
}

#endif /* CDP_SRC_GROUP_REQUESTS_H */
