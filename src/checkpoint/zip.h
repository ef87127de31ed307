/* checkpoint/zip.h - archives whose members are not compressed

   Knows: the list at the end of a zip archive that lies in a part of a file. Promises: any bytes
   yield members inside the archive or a reason. Functions return 0 or a positive errno. */
#ifndef CDP_SRC_CHECKPOINT_ZIP_H
#define CDP_SRC_CHECKPOINT_ZIP_H

#include "../base/config.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/bytes.h"
#include "table.h"
#include "disk.h"

/* Bytes of a list. An archive of one tensor has some 600; a file of many archives is read in time
   that is bounded by their number. */
#define CDP__CK_ZIP_LIST_MAX (1u << 20)

typedef struct cdp__ck_zip {
    cdp__ck_disk *disk;
    cdp__ck_table *t;   /* memory, and why it cannot be read */
    uint64_t at, bytes; /* of the archive in its file */
    int32_t fd;
    uint8_t *list;
    uint64_t list_bytes;
} cdp__ck_zip;

CDP__PRIVATE uint32_t cdp__ck_u16(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8;
}

CDP__PRIVATE int32_t cdp__ck_zip_bad(cdp__ck_zip *z, const char *why) {
    (void)cdp__ck_bad(z->t, why);
    return EBADMSG;
}

/* Reads bytes that must lie in the archive. */
CDP__PRIVATE int32_t cdp__ck_zip_read(cdp__ck_zip *z, uint64_t at, void *to, uint64_t bytes) {
    if (at > z->bytes || bytes > z->bytes - at)
        return cdp__ck_zip_bad(z, "a zip archive is shorter than it says");
    return cdp__ck_read(z->disk, z->fd, z->at + at, to, bytes);
}

/* Where the list is, of an archive of more than 4 GiB. */
CDP__PRIVATE int32_t cdp__ck_zip_large(cdp__ck_zip *z, uint64_t *from, uint64_t *size) {
    uint8_t where[20], end[56];
    int32_t err = z->bytes < 42 ? EBADMSG : cdp__ck_zip_read(z, z->bytes - 42, where, sizeof where);
    if (!err && cdp__get_u32(where) != 0x07064b50u) err = EBADMSG;
    if (!err) err = cdp__ck_zip_read(z, cdp__get_u64(where + 8), end, sizeof end);
    if (!err && cdp__get_u32(end) != 0x06064b50u) err = EBADMSG;
    if (err) (void)cdp__ck_zip_bad(z, "a large zip archive has no list");
    if (err) return err;
    *size = cdp__get_u64(end + 40);
    *from = cdp__get_u64(end + 48);
    return 0;
}

/* Reads the list of members. cdp__ck_zip_close() in any case. */
CDP__PRIVATE int32_t cdp__ck_zip_open(cdp__ck_zip *z) {
    uint8_t end[22];
    uint64_t from, size;
    int32_t err;
    if (z->bytes < sizeof end) return cdp__ck_zip_bad(z, "a zip archive is too short");
    err = cdp__ck_zip_read(z, z->bytes - sizeof end, end, sizeof end);
    if (err) return err;
    if (cdp__get_u32(end) != 0x06054b50u)
        return cdp__ck_zip_bad(z, "a zip archive does not end with its list");
    size = cdp__get_u32(end + 12);
    from = cdp__get_u32(end + 16);
    if (size == UINT32_MAX || from == UINT32_MAX || cdp__ck_u16(end + 10) == 0xffff)
        err = cdp__ck_zip_large(z, &from, &size);
    if (!err && (size > CDP__CK_ZIP_LIST_MAX || size > z->bytes))
        err = cdp__ck_zip_bad(z, "the list of a zip archive is too long");
    if (err) return err;
    z->list = (uint8_t *)cdp__alloc(z->t->os, size);
    if (!z->list) {
        (void)cdp__ck_none(z->t);
        return ENOMEM;
    }
    z->list_bytes = size;
    return cdp__ck_zip_read(z, from, z->list, size);
}

CDP__PRIVATE void cdp__ck_zip_close(cdp__ck_zip *z) {
    cdp__free(z->t->os, z->list);
    z->list = NULL;
}

/* The numbers of a member that fit no 32 bits: they stand in this order in a field of their own. */
CDP__PRIVATE bool cdp__ck_zip_wide(const uint8_t *field, uint32_t bytes, uint64_t *const v[3]) {
    uint32_t i, at = 4, n;
    for (;; field += n, bytes -= n) {
        if (bytes < 4) return false;
        n = cdp__ck_u16(field + 2) + 4;
        if (n > bytes) return false;
        if (cdp__ck_u16(field) == 1) break;
    }
    for (i = 0; i < 3; ++i) {
        if (*v[i] != UINT32_MAX) continue;
        if (at + 8 > n) return false;
        *v[i] = cdp__get_u64(field + at);
        at += 8;
    }
    return true;
}

/* Where a member lies in the file, of which `h` is in the list. */
CDP__PRIVATE int32_t cdp__ck_zip_member(
    cdp__ck_zip *z, const uint8_t *h, uint64_t *at, uint64_t *bytes) {
    uint64_t whole = cdp__get_u32(h + 24), stored = cdp__get_u32(h + 20);
    uint64_t from = cdp__get_u32(h + 42);
    uint64_t *const v[3] = {&whole, &stored, &from};
    uint8_t head[30];
    int32_t err;
    if (cdp__ck_u16(h + 10)) return cdp__ck_zip_bad(z, "a member of a zip archive is compressed");
    if ((whole == UINT32_MAX || stored == UINT32_MAX || from == UINT32_MAX)
        && !cdp__ck_zip_wide(h + 46 + cdp__ck_u16(h + 28), cdp__ck_u16(h + 30), v))
        return cdp__ck_zip_bad(z, "a large member of a zip archive has no size");
    err = cdp__ck_zip_read(z, from, head, sizeof head);
    if (err) return err;
    if (cdp__get_u32(head) != 0x04034b50u || whole != stored)
        return cdp__ck_zip_bad(z, "a member of a zip archive has no header");
    from += sizeof head + cdp__ck_u16(head + 26) + cdp__ck_u16(head + 28);
    if (from > z->bytes || whole > z->bytes - from)
        return cdp__ck_zip_bad(z, "a member of a zip archive is not in it");
    *at = z->at + from;
    *bytes = whole;
    return 0;
}

/* Finds the member of this name, below any folder. ENOENT: there is none. */
CDP__PRIVATE int32_t cdp__ck_zip_find(
    cdp__ck_zip *z, const char *name, uint64_t length, uint64_t *at, uint64_t *bytes) {
    uint64_t i = 0;
    while (z->list_bytes - i >= 46) {
        const uint8_t *const h = z->list + i, *const own = h + 46;
        const uint32_t n = cdp__ck_u16(h + 28);
        const uint64_t all = 46 + (uint64_t)n + cdp__ck_u16(h + 30) + cdp__ck_u16(h + 32);
        const uint8_t *slash;
        if (cdp__get_u32(h) != 0x02014b50u || all > z->list_bytes - i)
            return cdp__ck_zip_bad(z, "the list of a zip archive is damaged");
        slash = n ? (const uint8_t *)memchr(own, '/', n) : NULL;
        if (slash && (uint64_t)(own + n - slash - 1) == length
            && memcmp(slash + 1, name, (size_t)length) == 0)
            return cdp__ck_zip_member(z, h, at, bytes);
        i += all;
    }
    return ENOENT;
}

#endif /* CDP_SRC_CHECKPOINT_ZIP_H */
