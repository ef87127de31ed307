/* checkpoint/table.h - what lies where in the files of a checkpoint

   Knows: names, shapes, files, offsets, sums. Promises: names are unique; memory is freed as a
   whole. */
#ifndef CDP_SRC_CHECKPOINT_TABLE_H
#define CDP_SRC_CHECKPOINT_TABLE_H

#include "../base/config.h"
#include "../base/types_api.h"
#include "../os/os_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/bytes.h"
#include "../base/hash.h"
#include "../base/text.h"
#include "../text/utf8.h"
#include "../text/json_read.h"
#include "../dtype/dtype.h"
#include "../dtensor/mesh_api.h"
#include "../dtensor/layout_api.h"

#ifndef CDP__CK_SLAB
#define CDP__CK_SLAB (4u << 20) /* bytes with a sum of their own; tests have smaller ones */
#endif
#define CDP__CK_NAME 511u /* longest name, in bytes */

typedef struct cdp__ck_entry {
    uint64_t name;            /* byte of `text` */
    uint64_t begin, layout;   /* bytes of `text`: begin of file names, while saving; 0: no layout */
    uint64_t at, bytes;       /* in the file */
    uint64_t first_sum, sums; /* of `sums`; 0: the files have none */
    uint64_t first_block, blocks; /* of `blocks`; 0: it lies at one place */
    uint64_t shape[CDP_TENSOR_DIMS];
    cdp_dtype dtype;
    uint32_t ndim, file, item; /* item: of the desc, while saving */
    bool blob;
} cdp__ck_entry;

typedef struct cdp__ck_file {
    uint64_t name, data_at, bytes; /* data_at: length of the header with its own length */
    bool synced;                   /* by this rank, while saving */
    bool linked;                   /* while saving: it has its bytes of an earlier step */
    int32_t held; /* and, on rank 0, this descriptor of that step's file, plus 1; 0: none */
} cdp__ck_file;

/* A box of a tensor that lies somewhere in files, row-major. */
typedef struct cdp__ck_block {
    cdp_box box;
    uint64_t at, bytes; /* in the file */
    uint64_t archive;   /* not 0: an archive of so many bytes is there, which has the elements */
    uint32_t file;
} cdp__ck_block;

typedef struct cdp__ck_table {
    const cdp_os *os;
    cdp__ck_entry *entries;
    cdp__ck_file *files;
    cdp__ck_block *blocks;
    char *text;
    uint64_t *sums;
    uint32_t *slots; /* open addressing: entry + 1, by name */
    uint64_t count, room, file_count, file_room, text_used, text_room, sum_count, sum_room, mask;
    uint64_t block_count, block_room;
    uint64_t step, slab; /* slab: bytes */
    uint64_t looks;      /* comparisons of files that somebody else wrote */
    const char *why;     /* why bytes cannot be read */
    cdp_status status;   /* of that: IO, UNSUPPORTED, NOMEM */
} cdp__ck_table;

CDP__PRIVATE void cdp__ck_table_open(cdp__ck_table *t, const cdp_os *os) {
    memset(t, 0, sizeof *t);
    t->os = os;
    t->slab = CDP__CK_SLAB;
}

CDP__PRIVATE void cdp__ck_table_close(cdp__ck_table *t) {
    cdp__free(t->os, t->entries);
    cdp__free(t->os, t->files);
    cdp__free(t->os, t->blocks);
    cdp__free(t->os, t->text);
    cdp__free(t->os, t->sums);
    cdp__free(t->os, t->slots);
}

/* Notes the first reason why bytes cannot be read. */
CDP__PRIVATE bool cdp__ck_bad(cdp__ck_table *t, const char *why) {
    if (!t->why) {
        t->why = why;
        t->status = CDP_ERR_IO;
    }
    return false;
}

CDP__PRIVATE bool cdp__ck_none(cdp__ck_table *t) {
    if (!t->why) {
        t->why = "out of memory";
        t->status = CDP_ERR_NOMEM;
    }
    return false;
}

/* Makes room for `need` things of `each` bytes in `at`, which may move. */
CDP__PRIVATE void *cdp__ck_room(
    cdp__ck_table *t, void *at, uint64_t *room, uint64_t need, uint64_t each) {
    uint64_t more = *room ? *room : 64;
    void *bigger;
    if (need <= *room) return at;
    while (more < need)
        more *= 2;
    bigger = cdp__alloc(t->os, more * each);
    if (!bigger) {
        (void)cdp__ck_none(t);
        return NULL;
    }
    if (*room) memcpy(bigger, at, (size_t)(*room * each));
    cdp__free(t->os, at);
    *room = more;
    return bigger;
}

/* Room for `bytes` bytes and a zero at the end of the texts; NULL: out of memory. */
CDP__PRIVATE char *cdp__ck_text_room(cdp__ck_table *t, uint64_t bytes) {
    char *const text = (char *)cdp__ck_room(t, t->text, &t->text_room, t->text_used + bytes + 1, 1);
    if (!text) return NULL;
    t->text = text;
    return text + t->text_used;
}

/* Stores a text; UINT64_MAX: out of memory. */
CDP__PRIVATE uint64_t cdp__ck_text(cdp__ck_table *t, const char *text, uint64_t bytes) {
    char *const to = cdp__ck_text_room(t, bytes);
    const uint64_t at = t->text_used;
    if (!to) return UINT64_MAX;
    memcpy(to, text, (size_t)bytes);
    to[bytes] = 0;
    t->text_used += bytes + 1;
    return at;
}

/* The last text of a JSON reader, decoded; UINT64_MAX: out of memory. */
CDP__PRIVATE uint64_t cdp__ck_json_text(cdp__ck_table *t, const cdp__json_reader *j) {
    char *const to = cdp__ck_text_room(t, j->length);
    const uint64_t at = t->text_used;
    uint64_t n;
    if (!to) return UINT64_MAX;
    n = cdp__json_decode(j, to);
    to[n] = 0;
    t->text_used += n + 1;
    return at;
}

CDP__PRIVATE const char *cdp__ck_name(const cdp__ck_table *t, const cdp__ck_entry *e) {
    return t->text + e->name;
}

CDP__PRIVATE const char *cdp__ck_file_name(const cdp__ck_table *t, const cdp__ck_entry *e) {
    return t->text + t->files[e->file].name;
}

CDP__PRIVATE cdp__ck_entry *cdp__ck_entry_new(cdp__ck_table *t) {
    cdp__ck_entry *const all =
        (cdp__ck_entry *)cdp__ck_room(t, t->entries, &t->room, t->count + 1, sizeof *all);
    if (!all || t->count >= UINT32_MAX / 4) return NULL;
    t->entries = all;
    memset(&all[t->count], 0, sizeof *all);
    return &all[t->count++];
}

CDP__PRIVATE cdp__ck_file *cdp__ck_file_new(cdp__ck_table *t) {
    cdp__ck_file *const all =
        (cdp__ck_file *)cdp__ck_room(t, t->files, &t->file_room, t->file_count + 1, sizeof *all);
    if (!all || t->file_count >= UINT32_MAX / 4) return NULL;
    t->files = all;
    memset(&all[t->file_count], 0, sizeof *all);
    return &all[t->file_count++];
}

CDP__PRIVATE bool cdp__ck_add_block(cdp__ck_table *t, const cdp__ck_block *from) {
    cdp__ck_block *const all = (cdp__ck_block *)cdp__ck_room(
        t, t->blocks, &t->block_room, t->block_count + 1, sizeof *all);
    if (!all) return false;
    t->blocks = all;
    all[t->block_count++] = *from;
    return true;
}

/* The number of elements of a slab, and of slabs of an entry. */
CDP__PRIVATE uint64_t cdp__ck_slab_elements(const cdp__ck_table *t, const cdp__ck_entry *e) {
    return cdp__max(t->slab / cdp__dtype_row_of(e->dtype)->bytes, 1);
}
CDP__PRIVATE uint64_t cdp__ck_slab_count(const cdp__ck_table *t, const cdp__ck_entry *e) {
    const uint64_t each = cdp__ck_slab_elements(t, e) * cdp__dtype_row_of(e->dtype)->bytes;
    return e->bytes / each + (e->bytes % each != 0);
}

/* Gives an entry room for its sums, which are 0. */
CDP__PRIVATE bool cdp__ck_sums_new(cdp__ck_table *t, cdp__ck_entry *e) {
    const uint64_t n = cdp__ck_slab_count(t, e);
    uint64_t *const all =
        (uint64_t *)cdp__ck_room(t, t->sums, &t->sum_room, t->sum_count + n, sizeof *all);
    if (!all) return false;
    t->sums = all;
    if (n) memset(all + t->sum_count, 0, (size_t)(n * sizeof *all));
    e->first_sum = t->sum_count;
    e->sums = n;
    t->sum_count += n;
    return true;
}

/* The size of an entry from dtype and shape; false: it does not fit 63 bits. */
CDP__PRIVATE bool cdp__ck_entry_bytes(
    cdp_dtype dtype, uint32_t ndim, const uint64_t *shape, uint64_t *bytes) {
    uint64_t n = cdp__dtype_row_of(dtype)->bytes;
    bool empty = false;
    uint32_t d;
    for (d = 0; d < ndim; ++d) {
        empty = empty || !shape[d];
        if (shape[d] && !cdp__mul_fits(n, shape[d], &n)) return false;
    }
    *bytes = empty ? 0 : n;
    return true;
}

CDP__PRIVATE uint64_t cdp__ck_slot(const cdp__ck_table *t, const char *name) {
    uint64_t at = cdp__mix(cdp__hash(CDP__HASH_START, name, strlen(name))) & t->mask;
    while (t->slots[at] && strcmp(cdp__ck_name(t, &t->entries[t->slots[at] - 1]), name) != 0)
        at = (at + 1) & t->mask;
    return at;
}

/* Makes the index of names; false: out of memory, or a name is there twice (*twice). */
CDP__PRIVATE bool cdp__ck_index(cdp__ck_table *t, uint64_t *twice) {
    uint64_t size = 16, i;
    *twice = UINT64_MAX;
    while (size < 2 * t->count)
        size *= 2;
    cdp__free(t->os, t->slots);
    t->slots = (uint32_t *)cdp__alloc_zero(t->os, size * sizeof *t->slots);
    if (!t->slots) return cdp__ck_none(t);
    t->mask = size - 1;
    for (i = 0; i < t->count; ++i) {
        const uint64_t at = cdp__ck_slot(t, cdp__ck_name(t, &t->entries[i]));
        if (t->slots[at]) {
            *twice = i;
            return cdp__ck_bad(t, "a name is there twice");
        }
        t->slots[at] = (uint32_t)i + 1;
    }
    return true;
}

/* NULL: there is none of that name. */
CDP__PRIVATE cdp__ck_entry *cdp__ck_look(const cdp__ck_table *t, const char *name) {
    const uint32_t at = t->slots ? t->slots[cdp__ck_slot(t, name)] : 0;
    return at ? &t->entries[at - 1] : NULL;
}

/* Whether a text is UTF-8 without control characters and may be a name. */
CDP__PRIVATE bool cdp__ck_name_fits(const char *name) {
    const uint64_t bytes = strlen(name);
    const uint8_t *at = (const uint8_t *)name, *const end = at + bytes;
    if (!bytes || bytes > CDP__CK_NAME || strcmp(name, "__metadata__") == 0) return false;
    while (at < end) {
        const bool mark = *at == '?';
        const uint32_t c = cdp__utf8_next(&at, end);
        if (c < 32 || (c == '?' && !mark)) return false;
    }
    return true;
}

/* Writes a number with at least so many digits. */
CDP__PRIVATE void cdp__ck_digits(cdp__text *t, uint64_t v, uint32_t digits) {
    uint64_t least = 10;
    for (; --digits; least *= 10)
        if (v < least) break;
    for (; digits; --digits)
        cdp__text_char(t, '0');
    cdp__text_number(t, v, false, 10);
}

#endif /* CDP_SRC_CHECKPOINT_TABLE_H */
