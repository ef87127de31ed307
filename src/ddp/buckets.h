/* ddp/buckets.h - gradients and flags in bucket memory

   Knows: the layout of a bucket. Promises: gradients keep their values when buckets are rebuilt. */
#ifndef CDP_SRC_DDP_BUCKETS_H
#define CDP_SRC_DDP_BUCKETS_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../group/group_api.h"
#include "ddp_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../text/format.h"
#include "../base/text.h"
#include "bucket_plan.h"
#include "state.h"

#ifndef CDP_NO_DDP

CDP__PRIVATE uint32_t cdp__ddp_active_flags(const cdp_ddp *d, const cdp__bucket *b) {
    return d->desc.join && b == d->buckets ? cdp_size(d->group) : 0;
}

CDP__PRIVATE uint8_t *cdp__flag_at(const cdp__bucket *b, uint64_t i) {
    uint8_t *const first = b->flags ? b->flags : b->memory + cdp__bucket_bytes(b);
    return first + i * b->elem;
}

/* Copies `n` flags to device memory, or back. Does nothing if gradients are in host memory. */
CDP__PRIVATE void cdp__flags_move(cdp_ddp *d, cdp__bucket *b, uint64_t n, bool to_device) {
    uint8_t *const there = b->memory + cdp__bucket_bytes(b);
    const uint64_t bytes = n * b->elem;
    if (!b->flags || !n || !cdp__ddp_on_device(d)) return;
    if (to_device)
        cdp__ddp_copy(d, there, b->flags, bytes);
    else
        cdp__ddp_copy(d, b->flags, there, bytes);
}

CDP__PRIVATE void cdp__flag_set(const cdp__bucket *b, uint64_t i, bool on) {
    memset(cdp__flag_at(b, i), 0, (size_t)b->elem);
    if (on) cdp__dtype_one(b->dtype, cdp__flag_at(b, i));
}

CDP__PRIVATE bool cdp__flag_get(const cdp__bucket *b, uint64_t i) {
    static const uint8_t zero[8] = {0};
    return memcmp(cdp__flag_at(b, i), zero, (size_t)b->elem) != 0;
}

CDP__PRIVATE void cdp__ddp_free_buckets(cdp_ddp *d, cdp__bucket *buckets, uint32_t count) {
    uint32_t i;
    for (i = 0; buckets && i < count; ++i) {
        if (cdp__ddp_arena(d))
            buckets[i].memory = NULL; /* the caller's */
        else if (cdp__ddp_on_device(d) || !(cdp__ddp_has_group(d) || d->group_memory))
            cdp__ddp_free(d, buckets[i].memory);
        else if (cdp__ddp_has_group(d))
            cdp_group_free(d->group, buckets[i].memory);
        cdp__free(d->os, buckets[i].flags);
    }
    cdp__free(d->os, buckets);
}

/* Replaces d->buckets by empty buckets for parameters that become complete in this order. */
CDP__PRIVATE cdp_status cdp__ddp_plan(cdp_ddp *d, const uint32_t *order) {
    const uint32_t n = d->param_count;
    uint32_t *bucket_of = (uint32_t *)cdp__alloc(d->os, n * sizeof *bucket_of), i;
    cdp_param *plain = (cdp_param *)cdp__alloc(d->os, n * sizeof *plain);
    d->buckets = NULL;
    if (bucket_of && plain) {
        for (i = 0; i < n; ++i) {
            plain[n - 1 - i] = d->params[order[i]].user;
            plain[n - 1 - i].count = cdp__param_count(&d->params[order[i]]);
        }
        d->bucket_count = cdp__bucket_plan_make(
            plain, n, d->desc.bucket_list, d->desc.bucket_list_count, bucket_of);
        for (i = 0; i < n; ++i)
            d->params[order[i]].bucket = bucket_of[n - 1 - i];
        d->buckets = (cdp__bucket *)cdp__alloc_zero(d->os, d->bucket_count * sizeof *d->buckets);
    }
    cdp__free(d->os, bucket_of);
    cdp__free(d->os, plain);
    return d->buckets ? CDP_OK : cdp__fail_nomem("the bucket plan", n * sizeof(cdp_param));
}

/* Memory of a device is zero, that of the host is not yet. */
CDP__PRIVATE cdp_status cdp__ddp_alloc_bucket(cdp_ddp *d, cdp__bucket *b) {
    const uint64_t flags = (cdp__ddp_active_flags(d, b) + b->used_flags) * b->elem;
    const uint64_t bytes = b->room = cdp__bucket_bytes(b) + flags;
    bool ok = true;
    if (cdp__ddp_arena(d)) {
        b->room = 0;
        b->memory = cdp__ddp_arena(d);
        if (flags) b->flags = (uint8_t *)cdp__alloc_zero(d->os, flags);
        ok = b->flags || !flags;
    } else if (cdp__ddp_on_device(d)) {
        char purpose[32];
        cdp__format(purpose, sizeof purpose, "ddp bucket %u", (unsigned)(b - d->buckets));
        b->memory = (uint8_t *)cdp__ddp_alloc(d, bytes, purpose);
        if (flags) b->flags = (uint8_t *)cdp__alloc_zero(d->os, flags);
        ok = b->flags || !flags;
    } else {
        void *memory;
        if (cdp_group_alloc(d->group, bytes, &memory) == CDP_OK) b->memory = (uint8_t *)memory;
    }
    return b->memory && ok ? CDP_OK : cdp__fail_nomem("a gradient bucket", bytes);
}

/* Assigns each parameter its position in its bucket, and copies its gradient there. */
CDP__PRIVATE void cdp__ddp_fill_buckets(cdp_ddp *d, const uint32_t *order) {
    uint8_t *arena = cdp__ddp_arena(d);
    uint32_t at = 0, i;
    for (i = 0; i < d->bucket_count; ++i) {
        cdp__bucket *b = &d->buckets[i];
        d->stats.bytes_per_step += cdp__bucket_bytes(b);
        b->slots = d->slots + at;
        at += b->params;
        b->count = b->params = 0; /* counted again below */
    }
    CDP_ASSERT(at == d->param_count);
    for (i = 0; i < d->param_count; ++i) {
        const uint32_t index = arena ? i : order[i]; /* as they lie in the arena */
        cdp__param *p = &d->params[index];
        cdp__bucket *b = &d->buckets[p->bucket];
        uint8_t *const from = arena ? NULL : p->grad;
        if (arena && !b->count) b->memory = arena; /* parameters before it are empty */
        if (arena) arena += cdp__param_bytes(p);
        d->slots[(uint64_t)(b->slots - d->slots) + b->params++] = index;
        p->grad = b->memory + cdp__bucket_bytes(b);
        b->count += cdp__param_count(p);
        if (from) cdp__ddp_copy(d, p->grad, from, cdp__param_bytes(p));
    }
}

CDP__PRIVATE void cdp__ddp_zero_buckets(cdp_ddp *d) {
    uint32_t i;
    for (i = 0; i < d->bucket_count; ++i)
        cdp__ddp_zero(d, d->buckets[i].memory, cdp__bucket_bytes(&d->buckets[i]));
}

/* A rebuild failed: restores the old buckets. */
CDP__PRIVATE void cdp__ddp_restore_buckets(cdp_ddp *d, cdp__bucket *old, uint32_t count) {
    uint32_t i, k;
    cdp__ddp_free_buckets(d, d->buckets, d->bucket_count);
    d->buckets = old;
    d->bucket_count = count;
    for (i = 0; i < count; ++i)
        for (k = 0; k < old[i].params; ++k)
            d->params[old[i].slots[k]].bucket = i;
}

/* Makes new buckets for parameters that become complete in this order. */
CDP__PRIVATE CDP__COLD cdp_status cdp__ddp_place(cdp_ddp *d, const uint32_t *order) {
    cdp__bucket *old = d->buckets;
    const uint32_t old_count = d->bucket_count;
    cdp_status st = cdp__ddp_plan(d, order);
    uint32_t i;
    for (i = 0; i < d->param_count && st == CDP_OK; ++i) {
        cdp__bucket *b = &d->buckets[d->params[i].bucket];
        b->dtype = d->params[i].user.dtype;
        b->elem = d->params[i].elem;
        b->count += cdp__param_count(&d->params[i]);
        ++b->params;
    }
    if (st == CDP_OK && (d->desc.find_unused || d->desc.static_graph))
        d->buckets[d->bucket_count - 1].used_flags = d->param_count;
    for (i = 0; i < d->bucket_count && st == CDP_OK; ++i)
        st = cdp__ddp_alloc_bucket(d, &d->buckets[i]);
    if (st != CDP_OK) {
        cdp__ddp_restore_buckets(d, old, old_count);
        return st;
    }
    d->stats.bytes_per_step = 0;
    cdp__ddp_fill_buckets(d, order);
    d->stats.bucket_count = d->bucket_count;
    cdp__ddp_free_buckets(d, old, old_count);
    return d->failed;
}

#endif /* CDP_NO_DDP */

#endif /* CDP_SRC_DDP_BUCKETS_H */
