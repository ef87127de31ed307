/* checkpoint/disk.h - files and folders

   Knows: files of a cdp_os. Promises: nothing that was reported as written is left to be written;
   a file gets its name only after its bytes are on disk. Functions return 0 or a positive errno. */
#ifndef CDP_SRC_CHECKPOINT_DISK_H
#define CDP_SRC_CHECKPOINT_DISK_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../os/os_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "../text/format.h"

#define CDP__CK_PATH 1200u         /* room of a path */
#define CDP__CK_PATH_MAX 512u      /* longest desc.path, so that file names fit behind it */
#define CDP__CK_AT_ONCE (8u << 20) /* bytes between two looks at who waits */
#define CDP__CK_CALL (512u << 10)  /* bytes of one call: they stay in the cache for their sum */

/* What is counted while a checkpoint is saved or loaded. */
typedef struct cdp__ck_disk {
    const cdp_os *os;
    bool no_sync, no_rename;
    uint64_t writes, reads, read_bytes;
} cdp__ck_disk;

CDP__PRIVATE void cdp__ck_path(char out[CDP__CK_PATH], const char *folder, const char *name) {
    (void)cdp__format(out, CDP__CK_PATH, "%s/%s", folder, name);
}

CDP__PRIVATE cdp_status cdp__ck_io(int32_t err, const char *what, const char *path) {
    return cdp_error_set(CDP_ERR_IO, -1, err, "cdp_ckpt: %s %s", what, path);
}

CDP__PRIVATE int32_t cdp__ck_open_file(
    const cdp__ck_disk *d, const char *path, uint32_t how, int32_t *fd) {
    *fd = d->os->files.open_file(d->os->user, path, how);
    return *fd < 0 ? -*fd : 0;
}

/* Keeps the first error. */
CDP__PRIVATE void cdp__ck_close_file(const cdp__ck_disk *d, int32_t fd, int32_t *err) {
    const int32_t closed = fd >= 0 ? d->os->files.close_file(d->os->user, fd) : 0;
    if (closed < 0 && !*err) *err = -closed;
}

CDP__PRIVATE int32_t cdp__ck_write(
    cdp__ck_disk *d, int32_t fd, uint64_t at, const void *from, uint64_t bytes) {
    const uint8_t *data = (const uint8_t *)from;
    while (bytes) {
        const int64_t n =
            d->os->files.write_at(d->os->user, fd, at, data, cdp__min(bytes, CDP__CK_CALL));
        ++d->writes;
        if (n <= 0) return n ? (int32_t)-n : EIO;
        at += (uint64_t)n;
        data += n;
        bytes -= (uint64_t)n;
    }
    return 0;
}

/* EBADMSG: the file ends before. */
CDP__PRIVATE int32_t cdp__ck_read(
    cdp__ck_disk *d, int32_t fd, uint64_t at, void *to, uint64_t bytes) {
    uint8_t *data = (uint8_t *)to;
    while (bytes) {
        const int64_t n =
            d->os->files.read_at(d->os->user, fd, at, data, cdp__min(bytes, CDP__CK_CALL));
        ++d->reads;
        if (n <= 0) return n ? (int32_t)-n : EBADMSG;
        d->read_bytes += (uint64_t)n;
        at += (uint64_t)n;
        data += n;
        bytes -= (uint64_t)n;
    }
    return 0;
}

/* A failed sync is final: what it lost is not known, and a second one may report success. */
CDP__PRIVATE int32_t cdp__ck_sync(const cdp__ck_disk *d, int32_t fd) {
    const int32_t r = d->no_sync ? 0 : d->os->files.sync_file(d->os->user, fd);
    return r < 0 ? -r : 0;
}

CDP__PRIVATE int32_t cdp__ck_sync_folder(const cdp__ck_disk *d, const char *path) {
    const int32_t r = d->no_sync ? 0 : d->os->files.sync_folder(d->os->user, path);
    return r < 0 ? -r : 0;
}

/* Writes a new file of `length` bytes that begins with these; `sync`: nothing is written to it
   later on. */
CDP__PRIVATE int32_t cdp__ck_write_file(cdp__ck_disk *d, const char *path, const void *data,
    uint64_t bytes, uint64_t length, bool sync) {
    int32_t fd,
        err = cdp__ck_open_file(d, path, CDP_FILE_WRITE | CDP_FILE_CREATE | CDP_FILE_EMPTY, &fd);
    if (err) return err;
    if (length > bytes) err = -d->os->files.cut_file(d->os->user, fd, length);
    if (!err) err = cdp__ck_write(d, fd, 0, data, bytes);
    if (!err && sync) err = cdp__ck_sync(d, fd);
    cdp__ck_close_file(d, fd, &err);
    return err;
}

CDP__PRIVATE int32_t cdp__ck_copy_bytes(cdp__ck_disk *d, int32_t from, int32_t to, uint64_t bytes) {
    uint8_t *const buffer = (uint8_t *)cdp__alloc(d->os, CDP__CK_CALL);
    int32_t err = buffer ? 0 : ENOMEM;
    uint64_t at, n;
    for (at = 0; !err && at < bytes; at += n) {
        n = cdp__min(bytes - at, CDP__CK_CALL);
        err = cdp__ck_read(d, from, at, buffer, n);
        if (!err) err = cdp__ck_write(d, to, at, buffer, n);
    }
    cdp__free(d->os, buffer);
    return err;
}

/* Gives a file of `bytes` bytes a second name; where that does not work, copies it, unsynced.
   `held`: it is open for reading, and may have lost its name (-1: it is not). */
CDP__PRIVATE int32_t cdp__ck_link_file(
    cdp__ck_disk *d, const char *from, const char *to, uint64_t bytes, int32_t held) {
    const cdp_os_files *const f = &d->os->files;
    int32_t in = held, out = -1, err = 0;
    if (f->link_file && f->link_file(d->os->user, from, to) == 0) return 0;
    /* a server may have made the link, and its answer is lost: to empty `to` would empty `from` */
    if (f->link_file) err = -f->remove_file(d->os->user, to);
    if (err && err != ENOENT) return err;
    err = held < 0 ? cdp__ck_open_file(d, from, 0, &in) : 0;
    if (err) return err;
    err = cdp__ck_open_file(d, to, CDP_FILE_WRITE | CDP_FILE_CREATE | CDP_FILE_EMPTY, &out);
    if (!err) err = cdp__ck_copy_bytes(d, in, out, bytes);
    cdp__ck_close_file(d, out, &err);
    if (held < 0) cdp__ck_close_file(d, in, &err);
    return err;
}

/* Puts a file into its place in a folder: readers see the old one, or the whole new one (without
   rename: or a part of it). A power cut may leave either, or one without bytes. */
CDP__PRIVATE int32_t cdp__ck_place_file(
    cdp__ck_disk *d, const char *folder, const char *name, const void *data, uint64_t bytes) {
    char path[CDP__CK_PATH], other[CDP__CK_PATH];
    int32_t err;
    cdp__ck_path(path, folder, name);
    if (d->no_rename) return cdp__ck_write_file(d, path, data, bytes, bytes, false);
    (void)cdp__format(other, sizeof other, "%s.tmp", path);
    err = cdp__ck_write_file(d, other, data, bytes, bytes, false);
    return err ? err : -d->os->files.rename_file(d->os->user, other, path);
}

/* Reads a whole file of at most `max` bytes into memory of the os; there is a zero behind it. */
CDP__PRIVATE int32_t cdp__ck_read_whole(
    cdp__ck_disk *d, const char *path, uint64_t max, char **data, uint64_t *bytes) {
    cdp_file_info info;
    int32_t fd, err = cdp__ck_open_file(d, path, 0, &fd);
    *data = NULL;
    if (err) return err;
    err = -d->os->files.file_info(d->os->user, fd, &info);
    if (!err && (!info.regular || info.bytes > max)) err = EBADMSG;
    if (!err) {
        *bytes = info.bytes;
        *data = (char *)cdp__alloc(d->os, info.bytes + 1);
        if (!*data) err = ENOMEM;
    }
    if (!err) err = cdp__ck_read(d, fd, 0, *data, *bytes);
    if (!err) (*data)[*bytes] = 0;
    cdp__ck_close_file(d, fd, &err);
    if (err) {
        cdp__free(d->os, *data);
        *data = NULL;
    }
    return err;
}

#endif /* CDP_SRC_CHECKPOINT_DISK_H */
