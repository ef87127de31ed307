/* checkpoint/plan.h - which item stands where in which file

   Knows: names, dtypes and shapes of items. Promises: every rank computes the same table alone;
   elements are aligned to their size. */
#ifndef CDP_SRC_CHECKPOINT_PLAN_H
#define CDP_SRC_CHECKPOINT_PLAN_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../os/os_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "../text/format.h"
#include "../dtype/dtype.h"
#include "../dtensor/layout_api.h"
#include "../dtensor/item_api.h"
#include "checkpoint_api.h"
#include "table.h"
#include "safetensors.h"

#define CDP__CK_FILE_BYTES 5000000000u

CDP__PRIVATE cdp_dtype cdp__ck_item_dtype(const cdp_item *i) {
    return i->tensor.layout.dtype ? i->tensor.layout.dtype : CDP_DTYPE_F32;
}
CDP__PRIVATE const char *cdp__ck_item_file(const cdp_item *i) {
    return i->file ? i->file : "model";
}

/* The shape of an item in files. */
CDP__PRIVATE uint32_t cdp__ck_item_shape(const cdp_item *i, const uint64_t **shape) {
    *shape = i->ndim ? i->shape : i->tensor.layout.shape;
    return i->ndim ? i->ndim : i->tensor.layout.ndim;
}

CDP__PRIVATE cdp_status cdp__ck_item_layout(const cdp_item *i) {
    const cdp_layout *const l = &i->tensor.layout;
    uint64_t all = 1;
    uint32_t d;
    for (d = 0; i->part && d < l->ndim; ++d)
        all *= l->shape[d];
    if (i->part
        && (l->mesh || i->count > all || i->first > all - i->count
            || i->copy >= cdp__max(i->copies, 1)))
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_ckpt: item '%s': elements %llu to %llu of %llu, copy %u of %u: a part must be in "
            "the tensor, which has no mesh",
            i->name, (unsigned long long)i->first, (unsigned long long)(i->first + i->count),
            (unsigned long long)all, (unsigned)i->copy, (unsigned)cdp__max(i->copies, 1));
    if (!l->mesh) return CDP_OK;
    if (cdp_layout_check(l) != CDP_OK) return cdp_last_error()->status;
    for (d = 0; d < cdp_mesh_desc_of(l->mesh)->ndim; ++d)
        if (l->place[d].kind == CDP_PLACE_PARTIAL)
            return cdp_error_set(CDP_ERR_INVALID, -1, 0,
                "cdp_ckpt: item '%s' is PARTIAL; redistribute it first", i->name);
    return CDP_OK;
}

/* Whether an item can be saved and loaded. */
CDP__PRIVATE cdp_status cdp__ck_item_check(const cdp_item *i, uint32_t index) {
    const uint64_t *shape;
    const uint32_t ndim = cdp__ck_item_shape(i, &shape), flat = i->tensor.layout.ndim;
    const char *const file = cdp__ck_item_file(i);
    uint64_t bytes, view;
    char word[16];
    if (!i->name || !cdp__ck_name_fits(i->name))
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_ckpt: items[%u].name is not 1 to %u bytes of UTF-8 without control characters",
            (unsigned)index, CDP__CK_NAME);
    if (!cdp__ck_name_fits(file) || strlen(file) > 100 || strpbrk(file, "/\\:")
        || strcmp(file, "blobs") == 0)
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_ckpt: item '%s': file '%s' cannot be part of a file name", i->name, file);
    if (!cdp__ck_dtype_word(cdp__ck_item_dtype(i), word))
        return cdp_error_set(CDP_ERR_UNSUPPORTED, -1, 0,
            "cdp_ckpt: item '%s' is %s, which safetensors does not have; save it as pairs of "
            "floats",
            i->name, cdp__dtype_row_of(cdp__ck_item_dtype(i))->name);
    if (ndim > CDP_TENSOR_DIMS || flat > CDP_TENSOR_DIMS
        || !cdp__ck_entry_bytes(cdp__ck_item_dtype(i), ndim, shape, &bytes)
        || !cdp__ck_entry_bytes(cdp__ck_item_dtype(i), flat, i->tensor.layout.shape, &view)
        || bytes != view)
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_ckpt: item '%s': its shape has another number of elements than its tensor, more "
            "than %u dimensions, or more than 63 bits",
            i->name, CDP_TENSOR_DIMS);
    return cdp__ck_item_layout(i);
}

/* Adds an item to the table, without a place. */
CDP__PRIVATE bool cdp__ck_plan_item(
    cdp__ck_table *t, const cdp_item *i, uint32_t index, uint64_t begin) {
    cdp__ck_entry e;
    const uint64_t *shape;
    memset(&e, 0, sizeof e);
    e.begin = begin;
    e.ndim = cdp__ck_item_shape(i, &shape);
    memcpy(e.shape, shape, e.ndim * sizeof *shape);
    e.dtype = cdp__ck_item_dtype(i);
    e.item = index;
    if (!cdp__ck_entry_bytes(e.dtype, e.ndim, e.shape, &e.bytes)) return false;
    e.name = cdp__ck_text(t, i->name, strlen(i->name));
    return e.name != UINT64_MAX && cdp__ck_sums_new(t, &e) && cdp__ck_add_entry(t, &e);
}

/* Begins a file: its name is set when it is known how many there are. */
CDP__PRIVATE bool cdp__ck_plan_file(cdp__ck_table *t, cdp__ck_entry *e) {
    if (!cdp__ck_file_new(t)) return cdp__ck_none(t);
    e->file = (uint32_t)t->file_count - 1;
    return true;
}

/* Names the files from `first` on: "model-00001-of-00003.safetensors". */
CDP__PRIVATE bool cdp__ck_plan_names(cdp__ck_table *t, uint64_t first, const char *begin) {
    const uint64_t count = t->file_count - first;
    uint64_t i;
    for (i = 0; i < count; ++i) {
        char name[160];
        cdp__text n = cdp__text_of(name, sizeof name);
        cdp__text_add(&n, "%s-", begin);
        cdp__ck_digits(&n, i + 1, 5);
        cdp__text_add(&n, "-of-");
        cdp__ck_digits(&n, count, 5);
        cdp__text_add(&n, ".safetensors");
        (void)cdp__text_end(&n);
        t->files[first + i].name = cdp__ck_text(t, name, strlen(name));
        if (t->files[first + i].name == UINT64_MAX) return false;
    }
    return true;
}

/* Adds the items whose files begin like those of item `like`: elements of 8 bytes first. */
CDP__PRIVATE bool cdp__ck_plan_group(
    cdp__ck_table *t, const cdp_ckpt_desc *d, uint32_t like, uint64_t file_bytes) {
    const char *const begin = cdp__ck_item_file(&d->items[like]);
    const uint64_t first = t->file_count, text = cdp__ck_text(t, begin, strlen(begin));
    uint64_t size, used = 0;
    if (text == UINT64_MAX) return false;
    for (size = 8; size; size /= 2) {
        uint32_t i;
        for (i = like; i < d->item_count; ++i) {
            const cdp_item *const item = &d->items[i];
            cdp__ck_entry *e;
            if (cdp__dtype_row_of(cdp__ck_item_dtype(item))->bytes != size
                || strcmp(cdp__ck_item_file(item), begin) != 0)
                continue;
            if (!cdp__ck_plan_item(t, item, i, text)) return false;
            e = &t->entries[t->count - 1];
            if (t->file_count == first
                || (used && e->bytes > file_bytes - cdp__min(used, file_bytes))) {
                if (!cdp__ck_plan_file(t, e)) return false;
                used = 0;
            }
            e->file = (uint32_t)t->file_count - 1;
            e->at = used;
            used += e->bytes;
            t->files[e->file].bytes = used;
        }
    }
    return cdp__ck_plan_names(t, first, begin);
}

/* Sets lengths of headers, which follow from the entries, and offsets in files. */
CDP__PRIVATE void cdp__ck_plan_offsets(cdp__ck_table *t, uint64_t first_file) {
    uint64_t i;
    for (i = first_file; i < t->file_count; ++i) {
        t->files[i].data_at = cdp__ck_header_bytes(t, (uint32_t)i);
        t->files[i].bytes += t->files[i].data_at;
    }
    for (i = 0; i < t->count; ++i)
        if (t->entries[i].file >= first_file)
            t->entries[i].at += t->files[t->entries[i].file].data_at;
}

/* The first item whose files have the same begin. */
CDP__PRIVATE uint32_t cdp__ck_plan_first(const cdp_ckpt_desc *d, uint32_t index) {
    uint32_t i = 0;
    while (strcmp(cdp__ck_item_file(&d->items[i]), cdp__ck_item_file(&d->items[index])) != 0)
        ++i;
    return i;
}

/* Makes the table of all items. */
CDP__PRIVATE cdp_status cdp__ck_plan(cdp__ck_table *t, const cdp_ckpt_desc *d) {
    const uint64_t file_bytes = d->file_bytes ? d->file_bytes : CDP__CK_FILE_BYTES;
    uint64_t twice;
    uint32_t i;
    for (i = 0; i < d->item_count; ++i)
        if (cdp__ck_item_check(&d->items[i], i) != CDP_OK) return cdp_last_error()->status;
    for (i = 0; i < d->item_count; ++i)
        if (cdp__ck_plan_first(d, i) == i && !cdp__ck_plan_group(t, d, i, file_bytes))
            return cdp_error_set(CDP_ERR_NOMEM, -1, 0, "cdp_ckpt: out of memory for the plan");
    cdp__ck_plan_offsets(t, 0);
    if (cdp__ck_index(t, &twice)) return CDP_OK;
    if (twice == UINT64_MAX)
        return cdp_error_set(CDP_ERR_NOMEM, -1, 0, "cdp_ckpt: out of memory for the plan");
    return cdp_error_set(CDP_ERR_INVALID, -1, 0, "cdp_ckpt: two items have the name '%s'",
        cdp__ck_name(t, &t->entries[twice]));
}

/* What was planned is too much for a header. */
CDP__PRIVATE cdp_status cdp__ck_plan_limits(const cdp__ck_table *t) {
    uint64_t i;
    for (i = 0; i < t->file_count; ++i)
        if (t->files[i].data_at > CDP__CK_HEADER_MAX)
            return cdp_error_set(CDP_ERR_INVALID, -1, 0,
                "cdp_ckpt: the header of %s has %llu bytes, at most %u are allowed; make "
                "file_bytes smaller",
                t->text + t->files[i].name, (unsigned long long)t->files[i].data_at,
                CDP__CK_HEADER_MAX);
    return CDP_OK;
}

#endif /* CDP_SRC_CHECKPOINT_PLAN_H */
