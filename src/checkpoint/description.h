/* checkpoint/description.h - checkpoint.json, without which a checkpoint does not exist

   Knows: the keys of the file. Promises: any bytes yield a table or a reason; a file that was cut
   or changed is noticed by the sum at its end. */
#ifndef CDP_SRC_CHECKPOINT_DESCRIPTION_H
#define CDP_SRC_CHECKPOINT_DESCRIPTION_H

#include "../base/config.h"
#include "../base/types_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/hash.h"
#include "../text/format.h"
#include "../text/json_write.h"
#include "../text/json_read.h"
#include "../dtensor/layout_api.h"
#include "../dtensor/item_api.h"
#include "table.h"
#include "safetensors.h"

#define CDP__CK_FORMAT "cdp checkpoint 1"
#define CDP__CK_CHECK ",\"check\":\"" /* before the sum of all bytes that stand before it */

CDP__PRIVATE void cdp__ck_hex(cdp__text *t, uint64_t v) {
    uint32_t shift;
    for (shift = 64; shift; shift -= 4)
        cdp__text_char(t, "0123456789abcdef"[v >> (shift - 4) & 15]);
}

/* How a tensor was cut, for people: "S0,R on 2x4", or "S0 on 2 of 60" where files have another
   shape than what was cut. Kept as text, because the program may change its items while they are
   written. */
CDP__PRIVATE bool cdp__ck_keep_layout(cdp__ck_table *t, cdp__ck_entry *e, const cdp_layout *l) {
    const cdp_mesh_desc *const m = l->mesh ? cdp_mesh_desc_of(l->mesh) : NULL;
    char places[256], all[256 + 16 * CDP_MESH_DIMS + 24 * CDP_TENSOR_DIMS];
    cdp__text text = cdp__text_of(all, sizeof all);
    uint32_t d;
    if (!m) return true;
    (void)cdp_layout_text(l, places, sizeof places);
    cdp__text_add(&text, "%s on ", places);
    for (d = 0; d < m->ndim; ++d)
        cdp__text_add(&text, d ? "x%u" : "%u", (unsigned)m->shape[d]);
    if (l->ndim != e->ndim || memcmp(l->shape, e->shape, e->ndim * sizeof *e->shape) != 0)
        for (d = 0; d < l->ndim; ++d)
            cdp__text_add(&text, d ? "x%llu" : " of %llu", (unsigned long long)l->shape[d]);
    (void)cdp__text_end(&text);
    e->layout = cdp__ck_text(t, all, strlen(all));
    return e->layout != UINT64_MAX;
}

CDP__PRIVATE void cdp__ck_write_entry(
    cdp__text *t, const cdp__ck_table *table, const cdp__ck_entry *e) {
    uint64_t i;
    cdp__text_add(t, "{\"name\":");
    cdp__json_string(t, cdp__ck_name(table, e));
    cdp__text_char(t, ',');
    cdp__ck_write_type(t, e);
    cdp__text_add(t, ",\"file\":%u,\"offset\":%llu", (unsigned)e->file, (unsigned long long)e->at);
    if (e->layout) cdp__text_add(t, ",\"layout\":\"%s\"", table->text + e->layout);
    cdp__text_add(t, ",\"sums\":\"");
    for (i = 0; i < e->sums; ++i)
        cdp__ck_hex(t, table->sums[e->first_sum + i]);
    cdp__text_add(t, "\"}");
}

/* Writes everything but the sum at the end. */
CDP__PRIVATE void cdp__ck_write_body(cdp__text *t, const cdp__ck_table *table) {
    uint64_t i, blobs;
    cdp__text_add(t, "{\"format\":\"" CDP__CK_FORMAT "\",\"step\":%llu,\"slab_bytes\":%llu",
        (unsigned long long)table->step, (unsigned long long)table->slab);
    cdp__text_add(t, ",\"files\":[");
    for (i = 0; i < table->file_count; ++i) {
        cdp__text_add(t, i ? ",{\"name\":" : "{\"name\":");
        cdp__json_string(t, table->text + table->files[i].name);
        cdp__text_add(t, ",\"bytes\":%llu}", (unsigned long long)table->files[i].bytes);
    }
    for (blobs = 0; blobs < 2; ++blobs) {
        bool first = true;
        cdp__text_add(t, blobs ? "],\n\"blobs\":[" : "],\n\"tensors\":[");
        for (i = 0; i < table->count; ++i) {
            if (table->entries[i].blob != (blobs != 0)) continue;
            cdp__text_add(t, first ? "\n" : ",\n");
            first = false;
            cdp__ck_write_entry(t, table, &table->entries[i]);
        }
    }
    cdp__text_add(t, "]\n");
}

/* ---- reading ---- */

CDP__PRIVATE bool cdp__ck_read_file(cdp__ck_table *t, cdp__json_reader *j) {
    cdp__ck_file *const f = cdp__ck_file_new(t);
    bool named = false;
    cdp__json_kind kind;
    if (!f) return cdp__ck_none(t);
    while ((kind = cdp__json_next(j)) == CDP__JSON_KEY) {
        if (cdp__ck_is(j, "name")) {
            if (cdp__json_next(j) != CDP__JSON_TEXT) return cdp__ck_bad(t, "a file has no name");
            f->name = cdp__ck_json_text(t, j);
            if (f->name == UINT64_MAX) return false;
            named = cdp__ck_name_fits(t->text + f->name) && !strpbrk(t->text + f->name, "/\\:");
        } else if (cdp__ck_is(j, "bytes")) {
            if (!cdp__ck_number(t, j, &f->bytes)) return false;
        } else if (!cdp__ck_skip(t, j, cdp__json_next(j)))
            return false;
    }
    if (kind != CDP__JSON_CLOSE) return cdp__ck_bad(t, j->why);
    return named || cdp__ck_bad(t, "a file has no name, or one with a path");
}

/* Reads the sums of an entry, whose size is known. */
CDP__PRIVATE bool cdp__ck_read_sums(
    cdp__ck_table *t, cdp__ck_entry *e, const uint8_t *hex, uint64_t digits) {
    uint64_t i;
    if (digits != 16 * cdp__ck_slab_count(t, e)) return cdp__ck_bad(t, "sums are missing");
    if (!cdp__ck_sums_new(t, e)) return false;
    for (i = 0; i < digits; ++i) {
        const int digit = cdp__hex_digit(hex[i]);
        uint64_t *const sum = &t->sums[e->first_sum + i / 16];
        if (digit < 0) return cdp__ck_bad(t, "a sum is no number");
        *sum = *sum << 4 | (uint64_t)digit;
    }
    return true;
}

CDP__PRIVATE bool cdp__ck_read_entry(cdp__ck_table *t, cdp__json_reader *j, cdp__ck_entry *e) {
    const uint8_t *sums = NULL;
    uint64_t digits = 0, file = UINT64_MAX;
    uint32_t have = 0;
    cdp__json_kind kind;
    while ((kind = cdp__json_next(j)) == CDP__JSON_KEY) {
        bool ok = true;
        if (cdp__ck_is(j, "name")) {
            have |= 1;
            ok = cdp__json_next(j) == CDP__JSON_TEXT ? cdp__ck_read_name(t, j, e)
                                                     : cdp__ck_bad(t, "an entry has no name");
        } else if (cdp__ck_is(j, "dtype")) {
            have |= 2;
            ok = cdp__ck_read_dtype(t, j, &e->dtype);
        } else if (cdp__ck_is(j, "shape")) {
            have |= 4;
            ok = cdp__ck_numbers(t, j, e->shape, CDP_TENSOR_DIMS, &e->ndim);
        } else if (cdp__ck_is(j, "file")) {
            ok = cdp__ck_number(t, j, &file);
        } else if (cdp__ck_is(j, "offset")) {
            have |= 8;
            ok = cdp__ck_number(t, j, &e->at);
        } else if (cdp__ck_is(j, "layout")) {
            ok = cdp__json_next(j) == CDP__JSON_TEXT || cdp__ck_bad(t, "a layout is no text");
            if (ok) e->layout = cdp__ck_json_text(t, j);
            ok = ok && e->layout != UINT64_MAX;
        } else if (cdp__ck_is(j, "sums")) {
            ok = cdp__json_next(j) == CDP__JSON_TEXT || cdp__ck_bad(t, "sums are no text");
            sums = j->text;
            digits = j->length;
        } else
            ok = cdp__ck_skip(t, j, cdp__json_next(j));
        if (!ok) return false;
    }
    if (kind != CDP__JSON_CLOSE) return cdp__ck_bad(t, j->why);
    if (have != 15 || !sums || file >= t->file_count)
        return cdp__ck_bad(t, "an entry lacks name, dtype, shape, file, offset or sums");
    if (e->blob && e->dtype != CDP_DTYPE_U8) return cdp__ck_bad(t, "a blob is not U8");
    if (!cdp__ck_entry_bytes(e->dtype, e->ndim, e->shape, &e->bytes))
        return cdp__ck_bad(t, "a tensor is too large");
    e->file = (uint32_t)file;
    if (e->at > t->files[file].bytes || e->bytes > t->files[file].bytes - e->at)
        return cdp__ck_bad(t, "a tensor is not in its file");
    return cdp__ck_read_sums(t, e, sums, digits);
}

/* Takes a list of dicts: files, tensors or blobs. */
CDP__PRIVATE bool cdp__ck_read_list(cdp__ck_table *t, cdp__json_reader *j, bool files, bool blobs) {
    cdp__json_kind kind = cdp__json_next(j);
    if (kind != CDP__JSON_LIST) return cdp__ck_bad(t, "a list is expected");
    while ((kind = cdp__json_next(j)) == CDP__JSON_DICT) {
        cdp__ck_entry e;
        memset(&e, 0, sizeof e);
        e.blob = blobs;
        if (files ? !cdp__ck_read_file(t, j)
                  : !cdp__ck_read_entry(t, j, &e) || !cdp__ck_add_entry(t, &e))
            return false;
    }
    return kind == CDP__JSON_CLOSE || cdp__ck_bad(t, j->why ? j->why : "a dict is expected");
}

CDP__PRIVATE bool cdp__ck_read_body(cdp__ck_table *t, cdp__json_reader *j) {
    cdp__json_kind kind = cdp__json_next(j);
    bool known = false;
    if (kind != CDP__JSON_DICT) return cdp__ck_bad(t, "it is no JSON dict");
    while ((kind = cdp__json_next(j)) == CDP__JSON_KEY) {
        bool ok;
        if (cdp__ck_is(j, "format")) {
            known = cdp__json_next(j) == CDP__JSON_TEXT && cdp__ck_is(j, CDP__CK_FORMAT);
            ok = known || cdp__ck_bad(t, "its format is not \"" CDP__CK_FORMAT "\"");
        } else if (cdp__ck_is(j, "step")) {
            ok = cdp__ck_number(t, j, &t->step);
        } else if (cdp__ck_is(j, "slab_bytes")) {
            ok = cdp__ck_number(t, j, &t->slab);
            if (ok && (t->slab < 8 || t->slab > UINT64_MAX / 4))
                ok = cdp__ck_bad(t, "slab_bytes is out of range");
            if (ok && t->count) ok = cdp__ck_bad(t, "slab_bytes is behind tensors");
        } else if (cdp__ck_is(j, "files") || cdp__ck_is(j, "tensors") || cdp__ck_is(j, "blobs")) {
            const bool files = cdp__ck_is(j, "files"), blobs = cdp__ck_is(j, "blobs");
            ok = cdp__ck_read_list(t, j, files, blobs);
        } else
            ok = cdp__ck_skip(t, j, cdp__json_next(j));
        if (!ok) return false;
    }
    if (kind != CDP__JSON_CLOSE || cdp__json_next(j) != CDP__JSON_END)
        return cdp__ck_bad(t, j->why);
    return known || cdp__ck_bad(t, "its format is not \"" CDP__CK_FORMAT "\"");
}

/* Whether the sum at the end of the file is that of the bytes before. */
CDP__PRIVATE bool cdp__ck_checked(const char *data, uint64_t bytes) {
    const uint64_t mark = sizeof CDP__CK_CHECK - 1, tail = mark + 16 + 3; /* "}\n and its quote */
    char want[20];
    cdp__text t = cdp__text_of(want, sizeof want);
    if (bytes < tail || memcmp(data + bytes - tail, CDP__CK_CHECK, (size_t)mark) != 0) return false;
    cdp__ck_hex(&t, cdp__hash(CDP__HASH_START, data, bytes - tail));
    return memcmp(data + bytes - tail + mark, want, 16) == 0;
}

/* Reads a whole checkpoint.json into an empty table. */
CDP__PRIVATE bool cdp__ck_read_description(cdp__ck_table *t, const char *data, uint64_t bytes) {
    cdp__json_reader j = cdp__json_open(data, bytes);
    if (!cdp__ck_checked(data, bytes))
        return cdp__ck_bad(t, "checkpoint.json is not whole, or was changed");
    return cdp__ck_read_body(t, &j);
}

#endif /* CDP_SRC_CHECKPOINT_DESCRIPTION_H */
