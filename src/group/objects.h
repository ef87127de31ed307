/* group/objects.h - bytes of any length from every rank

   Knows: byte strings whose lengths only their owners know. Promises: lengths are exchanged first,
   memory for the result is allocated once, and a failure leaks nothing. */
#ifndef CDP_SRC_GROUP_OBJECTS_H
#define CDP_SRC_GROUP_OBJECTS_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "group_api.h"
#include "collectives_api.h"
#include "objects_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "state.h"
#include "deferred.h"
#include "requests.h"
#include "collective_calls.h"

#ifndef CDP_NO_OBJECTS

typedef enum cdp__object_kind {
    CDP__OBJECT_ALLGATHER = 1,
    CDP__OBJECT_GATHER,
    CDP__OBJECT_BROADCAST,
    CDP__OBJECT_SCATTER
} cdp__object_kind;

/* Fields that all ranks exchange first: kind, root, length of the rank's bytes, limit of what it
   accepts, whether it allocates the result. */
#define CDP__OBJECT_FIELDS 5u

typedef struct cdp__objects {
    cdp_group *g;
    cdp__object_kind kind;
    uint32_t root;
    const void *data;
    uint64_t bytes;
    cdp_blob *blob;
    uint64_t *said, *lengths; /* of all ranks: the exchanged fields; the lengths */
} cdp__objects;

CDP__PRIVATE const char *cdp__object_name(uint64_t kind) {
    static const char *const names[] = {
        "?", "cdp_allgather_bytes", "cdp_gather_bytes", "cdp_broadcast_bytes", "cdp_scatter_bytes"};
    return names[kind <= CDP__OBJECT_SCATTER ? kind : 0];
}

/* The number of bytes that rank r receives. */
CDP__PRIVATE uint64_t cdp__objects_share(const cdp__objects *o, uint32_t r, uint64_t total) {
    if (o->kind == CDP__OBJECT_SCATTER) return o->lengths[r];
    return o->kind == CDP__OBJECT_ALLGATHER || (r == o->root) == (o->kind == CDP__OBJECT_GATHER)
        ? total
        : 0;
}

/* Checks the exchanged numbers. All ranks check equal numbers in the same order, so they return
   the same error. */
CDP__PRIVATE cdp_status cdp__objects_judge(const cdp__objects *o, uint64_t *total) {
    const char *name = cdp__object_name((uint64_t)o->kind);
    const uint32_t n = o->g->desc.world_size;
    uint32_t r;
    for (*total = 0, r = 0; r < n; ++r) {
        if (*total + o->lengths[r] < *total)
            return cdp__fail(
                CDP_ERR_INVALID, "%s: the bytes of all ranks are more than 2^64", name);
        *total += o->lengths[r];
    }
    for (r = 0; r < n; ++r) {
        const uint64_t *said = o->said + (uint64_t)r * CDP__OBJECT_FIELDS,
                       share = cdp__objects_share(o, r, *total);
        if (share > said[3])
            return cdp__fail_peer(CDP_ERR_INVALID, cdp__world_rank(o->g, r), 0,
                "%s: rank %u is to get %llu bytes, but takes %llu at most; give it more room, or "
                "raise its max_bytes",
                name, r, (unsigned long long)share, (unsigned long long)said[3]);
    }
    return CDP_OK;
}

/* Exchanges the fields with all ranks. */
CDP__PRIVATE cdp_status cdp__objects_exchange(cdp__objects *o, const uint64_t *lengths) {
    cdp_group *g = o->g;
    const uint32_t n = g->desc.world_size;
    const cdp_blob *b = o->blob;
    const uint64_t limit = b ? cdp__def(b->max_bytes, 1ull << 30) : 0;
    uint64_t *mine = o->said + (uint64_t)g->desc.rank * CDP__OBJECT_FIELDS;
    uint32_t r;
    cdp_status st;
    mine[0] = (uint64_t)o->kind;
    mine[1] = o->root;
    mine[2] = o->bytes;
    mine[3] = b && b->data ? cdp__min(b->room, limit) : limit;
    mine[4] = b && !b->data;
    st = cdp_allgather(g, NULL, o->said, CDP__OBJECT_FIELDS, CDP_DTYPE_U64);
    if (st != CDP_OK) return st;
    for (r = 0; r < n; ++r) {
        const uint64_t *said = o->said + (uint64_t)r * CDP__OBJECT_FIELDS;
        if (said[0] != o->said[0] || said[1] != o->said[1])
            return cdp__fail_peer(CDP_ERR_MISMATCH, cdp__world_rank(g, r), 0,
                "ranks call different things: rank 0 calls %s with root %llu, rank %u calls %s "
                "with root %llu",
                cdp__object_name(o->said[0]), (unsigned long long)o->said[1], r,
                cdp__object_name(said[0]), (unsigned long long)said[1]);
        o->lengths[r] = o->kind != CDP__OBJECT_BROADCAST || r == o->root ? said[2] : 0;
    }
    if (o->kind != CDP__OBJECT_SCATTER) return CDP_OK;
    if (g->desc.rank == o->root) memcpy(o->lengths, lengths, n * sizeof *lengths);
    return cdp_broadcast(g, o->lengths, n, CDP_DTYPE_U64, o->root);
}

/* Allocates the result. If any rank allocates, all ranks exchange whether it succeeded, before
   any bytes are sent. */
CDP__PRIVATE cdp_status cdp__objects_memory(cdp__objects *o, uint64_t share, bool *owned) {
    cdp_group *g = o->g;
    const uint32_t n = g->desc.world_size;
    uint8_t *fine = (uint8_t *)o->said; /* reuses that memory: the fields are no longer needed */
    cdp_blob *b = o->blob;
    bool any = false;
    uint32_t r;
    cdp_status st;
    for (r = 0; r < n; ++r)
        any = any || o->said[(uint64_t)r * CDP__OBJECT_FIELDS + 4];
    if (!any) return CDP_OK;
    *owned = share && !b->data;
    if (*owned) b->data = b->alloc ? b->alloc(b->user, share) : cdp__alloc(g->os, share);
    fine[g->desc.rank] = !*owned || b->data;
    st = cdp_allgather(g, NULL, fine, 1, CDP_DTYPE_U8);
    for (r = 0; r < n && st == CDP_OK; ++r)
        if (!fine[r])
            st = cdp__fail_peer(CDP_ERR_NOMEM, cdp__world_rank(g, r), 0,
                "%s: rank %u could not allocate the bytes that it was to get",
                cdp__object_name((uint64_t)o->kind), r);
    return st;
}

CDP__PRIVATE cdp_status cdp__objects_move(const cdp__objects *o) {
    static const cdp_coll_kind kinds[] = {
        CDP_COLL_NONE, CDP_COLL_ALLGATHER, CDP_COLL_GATHER, CDP_COLL_BROADCAST, CDP_COLL_SCATTER};
    void *out = o->blob ? o->blob->data : NULL;
    const void *in = o->data;
    if (o->kind == CDP__OBJECT_BROADCAST && o->g->desc.rank == o->root)
        out = (void *)(uintptr_t)in; /* the root only reads it */
    if (o->kind == CDP__OBJECT_BROADCAST) in = NULL;
    return cdp__collective(o->g, kinds[o->kind], in, out, o->lengths[o->root], CDP_DTYPE_U8,
        CDP_REDUCE_DEFAULT, o->root, o->lengths);
}

CDP__PRIVATE void cdp__blob_drop(cdp_group *g, cdp_blob *b) {
    if (b->data && b->release)
        b->release(b->user, b->data);
    else
        cdp__free(g->os, b->data);
    b->data = NULL;
    b->allocated = false;
}

/* Checks for mistakes of the caller, before anything is exchanged. */
CDP__PRIVATE cdp_status cdp__objects_check(const cdp__objects *o, const uint64_t *lengths) {
    const char *name = cdp__object_name((uint64_t)o->kind);
    const cdp_group *g = o->g;
    const cdp_blob *b = o->blob;
    cdp_status st = cdp__must_not_wait();
    uint64_t bytes = o->bytes;
    uint32_t r;
    if (st == CDP_OK) st = cdp__alive(g, name);
    if (st != CDP_OK) return st;
    if (o->root >= g->desc.world_size)
        return cdp__fail(CDP_ERR_INVALID, "%s: root %u is not below world_size %u", name, o->root,
            g->desc.world_size);
    if (!b
        && (o->kind == CDP__OBJECT_ALLGATHER || o->kind == CDP__OBJECT_SCATTER
            || (g->desc.rank == o->root) == (o->kind == CDP__OBJECT_GATHER)))
        return cdp__missing(name, "all");
    if (b && !b->alloc != !b->release)
        return cdp__fail(
            CDP_ERR_INVALID, "%s: set both alloc and release in the blob, or neither", name);
    if (b && !b->data && b->room)
        return cdp__fail(CDP_ERR_INVALID, "%s: the blob has room but no data", name);
    if (o->kind == CDP__OBJECT_SCATTER && g->desc.rank == o->root && !lengths)
        return cdp__fail(CDP_ERR_INVALID, "%s: root needs the lengths of all parts", name);
    for (r = 0; o->kind == CDP__OBJECT_SCATTER && g->desc.rank == o->root && r < g->desc.world_size;
         ++r)
        bytes += lengths[r];
    if (bytes && !o->data)
        return cdp__fail(CDP_ERR_INVALID, "%s: data is NULL, but there are %llu bytes", name,
            (unsigned long long)bytes);
    if (b && b->data && o->data && cdp__overlap(o->data, b->data, bytes, b->room))
        return cdp__fail(
            CDP_ERR_INVALID, "%s: the data and the blob overlap; use separate memory", name);
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__objects_run(cdp__object_kind kind, cdp_group *g, const void *data,
    uint64_t bytes, const uint64_t *lengths, uint32_t root, cdp_blob *blob) {
    cdp__objects o;
    uint64_t total = 0, share, n;
    bool owned = false;
    cdp_status st;
    memset(&o, 0, sizeof o);
    o.g = g;
    o.kind = kind;
    o.root = root;
    o.data = data;
    o.bytes =
        kind == CDP__OBJECT_SCATTER || (kind == CDP__OBJECT_BROADCAST && g && g->desc.rank != root)
        ? 0
        : bytes;
    o.blob = (kind == CDP__OBJECT_GATHER && g && g->desc.rank != root)
            || (kind == CDP__OBJECT_BROADCAST && g && g->desc.rank == root)
        ? NULL
        : blob;
    st = cdp__objects_check(&o, lengths);
    if (st != CDP_OK) return st;
    n = g->desc.world_size;
    o.said = (uint64_t *)cdp__alloc_zero(g->os, (CDP__OBJECT_FIELDS + 1) * n * sizeof *o.said);
    if (!o.said) return cdp__fail_nomem("lengths", (CDP__OBJECT_FIELDS + 1) * n * sizeof *o.said);
    o.lengths = o.said + CDP__OBJECT_FIELDS * n;
    st = cdp__objects_exchange(&o, lengths);
    if (st == CDP_OK) st = cdp__objects_judge(&o, &total);
    share = st == CDP_OK ? cdp__objects_share(&o, g->desc.rank, total) : 0;
    if (st == CDP_OK) st = cdp__objects_memory(&o, share, &owned);
    if (st == CDP_OK && total) st = cdp__objects_move(&o);
    if (st != CDP_OK && owned) cdp__blob_drop(g, o.blob);
    if (st == CDP_OK && o.blob) {
        o.blob->bytes = share;
        o.blob->allocated = owned;
        if (o.blob->lengths) memcpy(o.blob->lengths, o.lengths, (size_t)(n * sizeof *o.lengths));
    }
    cdp__free(g->os, o.said);
    return st;
}

CDP_API cdp_status cdp_allgather_bytes(
    cdp_group *g, const void *data, uint64_t bytes, cdp_blob *all) {
    return cdp__objects_run(CDP__OBJECT_ALLGATHER, g, data, bytes, NULL, 0, all);
}

CDP_API cdp_status cdp_gather_bytes(
    cdp_group *g, const void *data, uint64_t bytes, uint32_t root, cdp_blob *all) {
    return cdp__objects_run(CDP__OBJECT_GATHER, g, data, bytes, NULL, root, all);
}

CDP_API cdp_status cdp_broadcast_bytes(
    cdp_group *g, const void *data, uint64_t bytes, uint32_t root, cdp_blob *got) {
    return cdp__objects_run(CDP__OBJECT_BROADCAST, g, data, bytes, NULL, root, got);
}

CDP_API cdp_status cdp_scatter_bytes(
    cdp_group *g, const void *data, const uint64_t *lengths, uint32_t root, cdp_blob *mine) {
    return cdp__objects_run(CDP__OBJECT_SCATTER, g, data, 0, lengths, root, mine);
}

CDP_API void cdp_blob_free(cdp_group *g, cdp_blob *b) {
    if (!g || !b || !b->allocated) return;
    if (!b->release && cdp__alive(g, "cdp_blob_free") != CDP_OK) return;
    cdp__blob_drop(g, b);
    b->bytes = 0;
}

#endif /* CDP_NO_OBJECTS */

#endif /* CDP_SRC_GROUP_OBJECTS_H */
