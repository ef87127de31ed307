/* checkpoint/agree.h - the items of all ranks are the same, and each element has one writer

   Knows: items and their pieces on this rank. Promises: an error names the item, and is the same
   on all ranks. */
#ifndef CDP_SRC_CHECKPOINT_AGREE_H
#define CDP_SRC_CHECKPOINT_AGREE_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../group/group_api.h"
#include "../group/collectives_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/hash.h"
#include "../base/text.h"
#include "../dtensor/item_api.h"
#include "../dtensor/meshes.h"
#include "checkpoint_api.h"
#include "pieces.h"
#include "table.h"
#include "plan.h"
#include "disk.h"
#include "create.h"
#include "verdict.h"

enum {
    CDP__CK_WORDS = 10
};

CDP__PRIVATE uint64_t cdp__ck_text_hash(uint64_t h, const char *text) {
    return cdp__hash(h, text, text ? strlen(text) + 1 : 0);
}

CDP__PRIVATE uint64_t cdp__ck_item_hash(const cdp_item *i) {
    const uint64_t *shape;
    const uint32_t ndim = cdp__ck_item_shape(i, &shape);
    uint64_t words[2 + CDP_TENSOR_DIMS] = {0};
    words[0] = (uint64_t)cdp__ck_item_dtype(i);
    words[1] = ndim;
    memcpy(words + 2, shape, ndim * sizeof *shape);
    return cdp__ck_text_hash(
        cdp__ck_text_hash(cdp__dt_hash(words, 2 + CDP_TENSOR_DIMS), i->name), cdp__ck_item_file(i));
}

CDP__PRIVATE uint64_t cdp__ck_blob_hash(const cdp_ckpt_blob *b) {
    return cdp__ck_text_hash(CDP__HASH_START + b->per_rank, b->name);
}

/* The error is that of rank 0, which has rank 0's names. */
CDP__PRIVATE cdp_status cdp__ck_differs(
    const cdp_ckpt *c, uint32_t what, uint32_t rank, const uint64_t values[2]) {
    static const char *const names[CDP__CK_WORDS] = {"the step", "the number of items",
        "the number of blobs", "file_bytes", "the path", "partial", "no_sync", "no_verify",
        "incremental", "no_rename"};
    const cdp_ckpt_desc *const d = &c->desc;
    const uint32_t item = what - CDP__CK_WORDS;
    const bool blob = item >= d->item_count;
    if (what < CDP__CK_WORDS)
        return cdp_error_set(CDP_ERR_MISMATCH, (int32_t)cdp_world_rank_of(d->group, rank), 0,
            "cdp_ckpt: %s is not the same on ranks 0 and %u (%llu, %llu)", names[what],
            (unsigned)rank, (unsigned long long)values[0], (unsigned long long)values[1]);
    return cdp_error_set(CDP_ERR_MISMATCH, (int32_t)cdp_world_rank_of(d->group, rank), 0,
        "cdp_ckpt: %s %u, '%s' on rank 0, is another one on rank %u: name, shape, dtype, file and "
        "order must be the same",
        blob ? "blob" : "item", (unsigned)(blob ? item - d->item_count : item),
        blob ? d->blobs[item - d->item_count].name : d->items[item].name, (unsigned)rank);
}

/* Compares step, options, items and blobs over all ranks. */
CDP__PRIVATE cdp_status cdp__ck_agree(cdp_ckpt *c, uint64_t step, const char *path) {
    const cdp_ckpt_desc *const d = &c->desc;
    const cdp_os *const os = cdp_group_desc_of(d->group)->os;
    const uint64_t n = (uint64_t)d->item_count + d->blob_count;
    uint64_t first[CDP__CK_WORDS], values[2] = {0, 0}, *words, i;
    uint32_t rank, word;
    cdp_status st;
    first[0] = step;
    first[1] = d->item_count;
    first[2] = d->blob_count;
    first[3] = d->file_bytes;
    first[4] = cdp__ck_text_hash(CDP__HASH_START, path);
    first[5] = d->partial;
    first[6] = d->no_sync;
    first[7] = d->no_verify;
    first[8] = d->incremental;
    first[9] = d->no_rename;
    st = cdp__dt_agree(d->group, os, first, CDP__CK_WORDS, &rank, &word, values);
    if (st != CDP_OK) return st;
    if (rank != CDP__DT_NONE)
        return cdp__ck_verdict(d->group, cdp__ck_differs(c, word, rank, values));
    words = (uint64_t *)cdp__alloc(os, n * sizeof *words);
    st = words ? CDP_OK
               : cdp_error_set(CDP_ERR_NOMEM, -1, 0, "cdp_ckpt: out of memory for %llu items",
                   (unsigned long long)n);
    st = cdp__ck_verdict(d->group, st);
    for (i = 0; st == CDP_OK && i < n; ++i)
        words[i] = i < d->item_count ? cdp__ck_item_hash(&d->items[i])
                                     : cdp__ck_blob_hash(&d->blobs[i - d->item_count]);
    if (st == CDP_OK) st = cdp__dt_agree(d->group, os, words, (uint32_t)n, &rank, &word, values);
    cdp__free(os, words);
    if (st != CDP_OK || rank == CDP__DT_NONE) return st;
    return cdp__ck_verdict(d->group, cdp__ck_differs(c, CDP__CK_WORDS + word, rank, values));
}

/* Checks that shares of all ranks are each tensor once; entries that are no item's do not count. */
CDP__PRIVATE cdp_status cdp__ck_covered(cdp_ckpt *c, const cdp__ck_table *t) {
    const cdp_ckpt_desc *const d = &c->desc;
    uint64_t *const shares = (uint64_t *)cdp__alloc_zero(t->os, 2 * t->count * sizeof *shares);
    uint64_t i;
    cdp_status st =
        shares ? CDP_OK : cdp_error_set(CDP_ERR_NOMEM, -1, 0, "cdp_ckpt: out of memory");
    st = cdp__ck_verdict(d->group, st);
    for (i = 0; st == CDP_OK && i < t->count; ++i) {
        const uint32_t item = t->entries[i].item;
        if (item != UINT32_MAX) {
            const cdp__ck_piece p =
                cdp__ck_item_piece(&d->items[item], cdp_rank(d->group), cdp_size(d->group));
            shares[i] = p.last - p.first;
        }
    }
    if (st == CDP_OK && t->count)
        st = cdp_allreduce(
            d->group, shares, shares + t->count, t->count, CDP_DTYPE_U64, CDP_REDUCE_SUM);
    for (i = 0; st == CDP_OK && i < t->count; ++i) {
        const cdp__ck_entry *const e = &t->entries[i];
        const uint64_t got = shares[t->count + i], elem = cdp__dtype_row_of(e->dtype)->bytes;
        if (e->item == UINT32_MAX || got * elem == e->bytes) continue;
        st = cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_ckpt: item '%s' has %llu elements, and ranks hold %llu, copies not counted: its "
            "mesh must have all ranks that hold a copy or a piece, and parts must not overlap",
            cdp__ck_name(t, e), (unsigned long long)(e->bytes / elem), (unsigned long long)got);
    }
    cdp__free(t->os, shares);
    return st;
}

/* Whether memory is there for all that this rank holds, and blobs have names. */
CDP__PRIVATE cdp_status cdp__ck_memory_check(const cdp_ckpt *c) {
    const cdp_ckpt_desc *const d = &c->desc;
    uint32_t i;
    for (i = 0; i < d->item_count; ++i) {
        const cdp_item *const item = &d->items[i];
        if (!item->tensor.data
            && cdp__ck_item_piece(item, cdp_rank(d->group), cdp_size(d->group)).count)
            return cdp_error_set(
                CDP_ERR_INVALID, -1, 0, "cdp_ckpt: item '%s' has no data", item->name);
    }
    for (i = 0; i < d->blob_count; ++i) {
        const cdp_ckpt_blob *const b = &d->blobs[i];
        if (!b->name || !cdp__ck_name_fits(b->name) || strlen(b->name) > CDP__CK_NAME - 16)
            return cdp_error_set(CDP_ERR_INVALID, -1, 0,
                "cdp_ckpt: blobs[%u].name is not 1 to %u bytes of UTF-8 without control "
                "characters",
                (unsigned)i, CDP__CK_NAME - 16);
        if (!b->data && (b->bytes || b->room))
            return cdp_error_set(
                CDP_ERR_INVALID, -1, 0, "cdp_ckpt: blob '%s' has no data", b->name);
    }
    return CDP_OK;
}

#endif /* CDP_SRC_CHECKPOINT_AGREE_H */
