/* checkpoint/safetensors.h - headers of safetensors files

   Knows: the format of Hugging Face: the little-endian, row-major bytes of tensors behind a header
   in JSON. Promises: any bytes yield entries inside the file or a reason. */
#ifndef CDP_SRC_CHECKPOINT_SAFETENSORS_H
#define CDP_SRC_CHECKPOINT_SAFETENSORS_H

#include "../base/config.h"
#include "../base/types_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/bytes.h"
#include "../text/format.h"
#include "../dtype/dtype.h"
#include "../text/json_write.h"
#include "../text/json_read.h"
#include "table.h"

#define CDP__CK_HEADER_MAX 100000000u /* bytes, as the format says */
#define CDP__CK_ALIGN 4096u           /* data begin at a multiple of it */

/* Writes the name of a dtype in the format: that of the table in capitals, and F8_E4M3 for f8e4m3.
   False: the format has no complex numbers. */
CDP__PRIVATE bool cdp__ck_dtype_word(cdp_dtype t, char out[16]) {
    const cdp__dtype_row *const row = cdp__dtype_row_of(t);
    const char *at = row->name;
    uint32_t n = 0;
    if (!row->bytes || row->kind == CDP__COMPLEX) return false;
    for (; *at && n < 14; ++at) {
        if (*at == 'e') out[n++] = '_';
        out[n++] = (char)(*at >= 'a' && *at <= 'z' ? *at - 'a' + 'A' : *at);
    }
    out[n] = 0;
    return true;
}

CDP__PRIVATE cdp_dtype cdp__ck_dtype_of(const char *word) {
    char other[16];
    uint32_t i;
    for (i = 1; i < CDP_DTYPE_COUNT; ++i)
        if (cdp__ck_dtype_word((cdp_dtype)i, other) && strcmp(other, word) == 0)
            return (cdp_dtype)i;
    return CDP_DTYPE_COUNT;
}

/* "dtype" and "shape" of an entry, as both formats have them. */
CDP__PRIVATE void cdp__ck_write_type(cdp__text *t, const cdp__ck_entry *e) {
    char word[16] = "";
    uint32_t d;
    (void)cdp__ck_dtype_word(e->dtype, word);
    cdp__text_add(t, "\"dtype\":\"%s\",\"shape\":[", word);
    for (d = 0; d < e->ndim; ++d)
        cdp__text_add(t, d ? ",%llu" : "%llu", (unsigned long long)e->shape[d]);
    cdp__text_char(t, ']');
}

/* Writes the JSON of the header of file `file`; offsets count from the end of the header, and
   entries of one file are neighbours. */
CDP__PRIVATE void cdp__ck_write_header(cdp__text *t, const cdp__ck_table *table, uint32_t file) {
    uint64_t at = 0, i;
    cdp__text_add(t, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (i = 0; i < table->count; ++i) {
        const cdp__ck_entry *const e = &table->entries[i];
        if (e->file != file) continue;
        cdp__text_char(t, ',');
        cdp__json_string(t, cdp__ck_name(table, e));
        cdp__text_add(t, ":{");
        cdp__ck_write_type(t, e);
        cdp__text_add(t, ",\"data_offsets\":[%llu,%llu]}", (unsigned long long)at,
            (unsigned long long)(at + e->bytes));
        at += e->bytes;
    }
    cdp__text_char(t, '}');
}

/* Length of the header of a file with the 8 bytes of its own length, padded. */
CDP__PRIVATE uint64_t cdp__ck_header_bytes(const cdp__ck_table *table, uint32_t file) {
    cdp__text t = cdp__text_of(NULL, 0);
    cdp__ck_write_header(&t, table, file);
    return (t.used + 8 + CDP__CK_ALIGN - 1) / CDP__CK_ALIGN * CDP__CK_ALIGN;
}

/* Fills `to`, of cdp__ck_header_bytes() bytes. */
CDP__PRIVATE void cdp__ck_fill_header(
    const cdp__ck_table *table, uint32_t file, uint8_t *to, uint64_t bytes) {
    cdp__text t = cdp__text_of((char *)to + 8, bytes - 8);
    cdp__ck_write_header(&t, table, file);
    cdp__put_u64(to, bytes - 8);
    memset(to + 8 + t.used, ' ', (size_t)(bytes - 8 - t.used));
}

/* ---- reading ---- */

/* Skips the value that begins with a piece of this kind. */
CDP__PRIVATE bool cdp__ck_skip(cdp__ck_table *t, cdp__json_reader *j, cdp__json_kind kind) {
    uint32_t depth = 0;
    for (;;) {
        if (kind == CDP__JSON_BAD || kind == CDP__JSON_END)
            return cdp__ck_bad(t, j->why ? j->why : "it ends too early");
        if (kind == CDP__JSON_DICT || kind == CDP__JSON_LIST) ++depth;
        if (kind == CDP__JSON_CLOSE) --depth;
        if (!depth && kind != CDP__JSON_KEY) return true;
        kind = cdp__json_next(j);
    }
}

/* Whether the last key or text is this one. */
CDP__PRIVATE bool cdp__ck_is(const cdp__json_reader *j, const char *word) {
    return !j->escapes && j->length == strlen(word)
        && memcmp(j->text, word, (size_t)j->length) == 0;
}

/* Takes a list of at most `max` whole numbers; *count: how many. */
CDP__PRIVATE bool cdp__ck_numbers(
    cdp__ck_table *t, cdp__json_reader *j, uint64_t *out, uint32_t max, uint32_t *count) {
    cdp__json_kind kind = cdp__json_next(j);
    *count = 0;
    if (kind != CDP__JSON_LIST) return cdp__ck_bad(t, "a list of numbers is expected");
    while ((kind = cdp__json_next(j)) == CDP__JSON_WHOLE) {
        if (j->whole < 0) return cdp__ck_bad(t, "a number is negative");
        if (*count == max) return cdp__ck_bad(t, "a list of numbers is too long");
        out[(*count)++] = (uint64_t)j->whole;
    }
    return kind == CDP__JSON_CLOSE || cdp__ck_bad(t, "a list of numbers has something else in it");
}

CDP__PRIVATE bool cdp__ck_number(cdp__ck_table *t, cdp__json_reader *j, uint64_t *out) {
    if (cdp__json_next(j) != CDP__JSON_WHOLE || j->whole < 0)
        return cdp__ck_bad(t, "a number is expected");
    *out = (uint64_t)j->whole;
    return true;
}

CDP__PRIVATE bool cdp__ck_read_dtype(cdp__ck_table *t, cdp__json_reader *j, cdp_dtype *out) {
    char word[16];
    if (cdp__json_next(j) != CDP__JSON_TEXT) return cdp__ck_bad(t, "a dtype is expected");
    if (j->escapes || j->length >= sizeof word) return cdp__ck_bad(t, "a dtype is no word");
    memcpy(word, j->text, (size_t)j->length);
    word[j->length] = 0;
    *out = cdp__ck_dtype_of(word);
    if (*out != CDP_DTYPE_COUNT) return true;
    (void)cdp__ck_bad(t, "a tensor has a dtype that is not known here");
    t->status = CDP_ERR_UNSUPPORTED;
    return false;
}

/* Takes the name of an entry, which is the last text. */
CDP__PRIVATE bool cdp__ck_read_name(cdp__ck_table *t, cdp__json_reader *j, cdp__ck_entry *e) {
    if (j->length > 8 * CDP__CK_NAME) return cdp__ck_bad(t, "a name is too long");
    e->name = cdp__ck_json_text(t, j);
    if (e->name == UINT64_MAX) return false;
    return cdp__ck_name_fits(t->text + e->name)
        || cdp__ck_bad(t, "a name is empty, too long or not UTF-8");
}

CDP__PRIVATE bool cdp__ck_add_entry(cdp__ck_table *t, const cdp__ck_entry *from) {
    cdp__ck_entry *const e = cdp__ck_entry_new(t);
    if (!e) return cdp__ck_none(t);
    *e = *from;
    return true;
}

/* Takes what is behind the name of a tensor. */
CDP__PRIVATE bool cdp__ck_read_tensor(
    cdp__ck_table *t, cdp__json_reader *j, cdp__ck_entry *e, uint64_t data_bytes) {
    uint64_t offsets[2] = {0, 0};
    uint32_t have = 0, n;
    cdp__json_kind kind = cdp__json_next(j);
    if (kind != CDP__JSON_DICT) return cdp__ck_bad(t, "a tensor is no dict");
    while ((kind = cdp__json_next(j)) == CDP__JSON_KEY) {
        bool ok;
        if (cdp__ck_is(j, "dtype")) {
            have |= 1;
            ok = cdp__ck_read_dtype(t, j, &e->dtype);
        } else if (cdp__ck_is(j, "shape")) {
            have |= 2;
            ok = cdp__ck_numbers(t, j, e->shape, CDP_TENSOR_DIMS, &e->ndim);
        } else if (cdp__ck_is(j, "data_offsets")) {
            have |= 4;
            ok = cdp__ck_numbers(t, j, offsets, 2, &n);
            if (ok && n != 2) ok = cdp__ck_bad(t, "data_offsets are not two numbers");
        } else
            ok = cdp__ck_skip(t, j, cdp__json_next(j));
        if (!ok) return false;
    }
    if (kind != CDP__JSON_CLOSE) return cdp__ck_bad(t, j->why);
    if (have != 7) return cdp__ck_bad(t, "a tensor lacks dtype, shape or data_offsets");
    if (!cdp__ck_entry_bytes(e->dtype, e->ndim, e->shape, &e->bytes))
        return cdp__ck_bad(t, "a tensor is too large");
    if (offsets[0] > offsets[1] || offsets[1] > data_bytes || offsets[1] - offsets[0] != e->bytes)
        return cdp__ck_bad(
            t, "the offsets of a tensor are not those of its shape, or not in the file");
    e->at = t->files[e->file].data_at + offsets[0];
    return true;
}

/* Adds the tensors of a header, the last file of the table: `json` is what follows the 8 bytes of
   its length, data_bytes how many bytes follow that. */
CDP__PRIVATE bool cdp__ck_read_header(
    cdp__ck_table *t, const void *json, uint64_t bytes, uint64_t data_bytes) {
    cdp__json_reader j = cdp__json_open(json, bytes);
    uint64_t sum = 0;
    cdp__json_kind kind = cdp__json_next(&j);
    if (kind != CDP__JSON_DICT) return cdp__ck_bad(t, "the header is no JSON dict");
    while ((kind = cdp__json_next(&j)) == CDP__JSON_KEY) {
        cdp__ck_entry e;
        if (cdp__ck_is(&j, "__metadata__")) {
            if (!cdp__ck_skip(t, &j, cdp__json_next(&j))) return false;
            continue;
        }
        memset(&e, 0, sizeof e);
        e.file = (uint32_t)t->file_count - 1;
        if (!cdp__ck_read_name(t, &j, &e) || !cdp__ck_read_tensor(t, &j, &e, data_bytes)
            || !cdp__ck_add_entry(t, &e))
            return false;
        sum += e.bytes; /* each is at most data_bytes, and there are fewer than 2^32 */
        if (sum > data_bytes) return cdp__ck_bad(t, "tensors overlap");
    }
    if (kind != CDP__JSON_CLOSE) return cdp__ck_bad(t, j.why);
    if (cdp__json_next(&j) != CDP__JSON_END) return cdp__ck_bad(t, j.why);
    return sum == data_bytes || cdp__ck_bad(t, "bytes of the file belong to no tensor");
}

#endif /* CDP_SRC_CHECKPOINT_SAFETENSORS_H */
