/* store/file.h - a file of records that its users append to under a lock

   Knows: the file, its lock, this process's copy of the keys and values. Promises: a process that
   is killed at any point leaves a file that the others can use. */
#ifndef CDP_SRC_STORE_FILE_H
#define CDP_SRC_STORE_FILE_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../base/error_api.h"
#include "../os/os_api.h"
#include "../os/whole.h"
#include "interface_api.h"
#include "../message/transport_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "../os/linux.h"
#include "../os/child.h"
#include "desc_api.h"
#include "cxx_api.h"
#include "record.h"
#include "number.h"
#include "kv.h"
#include "request.h"
#include "hash_store.h"
#include "custom.h"

#ifndef CDP_NO_FILE_STORE
/* A user of the file is one store object in one process. Every request opens the file, locks it and
   closes it again, as PyTorch does: the lock of a process that dies is released, and the children
   of a fork do not share one. Each user keeps a copy of the keys and values up to the last record
   that it read, and the next request reads only what follows. */
typedef struct cdp__file_store {
    cdp__polling polling;
    const cdp_os *os;
    char *path; /* allocated with this struct, right after it */
    uint32_t world_size;
    bool private_file;
    bool torn;   /* a reader found an incomplete record at `at` */
    bool busy;   /* another user holds the lock */
    uint64_t at; /* bytes of the file that the copy contains */
    /* descriptor of the file that was read, or -1. It stays open so that the system does not give
       the numbers below to another file */
    int32_t pin;
    uint64_t device, number; /* of that file, see cdp_file_info */
    cdp__kv kv;              /* the copy; its keys have the prefixes that they have in the file */
    uint8_t key[1 + CDP_STORE_MAX_KEY_BYTES];
} cdp__file_store;

typedef enum cdp__file_mode {
    CDP__FILE_READ,
    CDP__FILE_WRITE,
    CDP__FILE_LEAVE
} cdp__file_mode;

#define CDP__FILE_PIECE 65536u
#define CDP__FILE_LEAVE_NS (100 * CDP__MS)

CDP__PRIVATE cdp_status cdp__file_fail(const cdp__file_store *f, int err, const char *what) {
    return cdp__fail_peer(CDP_ERR_IO, -1, err, "the file store %s: %s", f->path, what);
}

CDP__PRIVATE void cdp__file_close_fd(const cdp__file_store *f, int32_t fd) {
    if (fd >= 0) (void)f->os->files.close_file(f->os->user, fd);
}

/* Forgets the copy. From now on `fd` is the file that the copy is made from; -1: there is none.
   `info` may be NULL if `fd` is the same file as before. */
CDP__PRIVATE void cdp__file_reset(cdp__file_store *f, int32_t fd, const cdp_file_info *info) {
    const uint64_t seed = f->kv.seed;
    cdp__kv_close(&f->kv);
    cdp__kv_open(&f->kv, f->os, seed, UINT64_MAX);
    if (f->pin != fd) cdp__file_close_fd(f, f->pin);
    f->pin = fd;
    if (info) {
        f->device = info->device;
        f->number = info->number;
    }
    f->at = 0;
}

/* Ends a request. */
CDP__PRIVATE void cdp__file_close(cdp__file_store *f, int32_t fd) {
    if (fd < 0) return;
    /* Closing may not release the lock: the pin stays open, and so do copies in forked children. */
    (void)f->os->files.lock_file(f->os->user, fd, CDP_FILE_UNLOCK);
    if (fd != f->pin) cdp__file_close_fd(f, fd);
}

CDP__PRIVATE cdp_status cdp__file_apply(cdp__file_store *f, const cdp__record *r) {
    cdp__kv_entry *e;
    if (!r->removal) return cdp__kv_set(&f->kv, r->key, r->value, &e);
    (void)cdp__kv_delete(&f->kv, r->key);
    return CDP_OK;
}

/* Applies the records in the n bytes at p, which the file of `size` bytes has at f->at. *need:
   bytes of the next record, which may be more than are left of n. */
CDP__PRIVATE cdp_status cdp__file_apply_all(
    cdp__file_store *f, const uint8_t *p, uint64_t n, uint64_t size, uint64_t *need) {
    const uint64_t start = f->at;
    while (f->at < size) {
        cdp__record r;
        const uint64_t used = f->at - start;
        const cdp__record_result result = cdp__record_next(p + used, n - used, size - f->at, &r);
        f->torn = result == CDP__RECORD_TORN;
        *need = r.bytes;
        /* Fewer than 4 bytes may belong to another program's file: refuse it, do not cut it. */
        if (result == CDP__RECORD_BAD || (f->torn && size < 4))
            return cdp__fail(CDP_ERR_STORE,
                "%s is not the file of a store, or is damaged: there is no record at byte %llu; "
                "choose another path, or remove the file when no process uses it",
                f->path, (unsigned long long)f->at);
        if (result != CDP__RECORD_WHOLE) return CDP_OK;
        if (cdp__file_apply(f, &r) != CDP_OK) return CDP_ERR_NOMEM;
        f->at += r.bytes;
    }
    return CDP_OK;
}

/* Copies exactly n bytes of the file, from the byte f->at on. */
CDP__PRIVATE cdp_status cdp__file_copy(cdp__file_store *f, int32_t fd, uint8_t *p, uint64_t n) {
    uint64_t done = 0;
    while (done < n) {
        const int64_t r = f->os->files.read_at(f->os->user, fd, f->at + done, p + done, n - done);
        if (r <= 0) return cdp__file_fail(f, r ? (int)-r : EIO, "cannot read");
        done += (uint64_t)r;
    }
    return CDP_OK;
}

/* Reads what other users appended since the last request. The caller holds the lock. */
CDP__PRIVATE cdp_status cdp__file_read(cdp__file_store *f, int32_t fd, uint64_t size) {
    uint64_t room = cdp__min(CDP__FILE_PIECE, size - f->at), need = 0;
    uint8_t *p = NULL;
    cdp_status status = CDP_OK;
    f->torn = false;
    while (f->at < size && !f->torn && status == CDP_OK) {
        const uint64_t n = cdp__min(room, size - f->at);
        if (!p && !(p = (uint8_t *)cdp__alloc(f->os, room)))
            return cdp__fail_nomem("a record of a file store", room);
        status = cdp__file_copy(f, fd, p, n);
        if (status == CDP_OK) status = cdp__file_apply_all(f, p, n, size, &need);
        if (need > room) {
            cdp__free(f->os, p);
            p = NULL;
            room = cdp__min(need, size - f->at);
        }
    }
    cdp__free(f->os, p);
    return status;
}

CDP__PRIVATE cdp_status cdp__file_lock(cdp__file_store *f, int32_t fd, cdp__file_mode mode) {
    const int32_t r = f->os->files.lock_file(
        f->os->user, fd, mode == CDP__FILE_READ ? CDP_FILE_LOCK_SHARED : CDP_FILE_LOCK_ALONE);
    f->busy = r == -EAGAIN;
    if (r == 0) return CDP_OK;
    return f->busy ? CDP_PENDING
                   : cdp__file_fail(f, -r, "cannot lock it; does its file system have flock()?");
}

/* Refuses a file that is a link, or that other users could change; see private_file. */
CDP__PRIVATE cdp_status cdp__file_allowed(const cdp__file_store *f, const cdp_file_info *info) {
    if (!info->regular)
        return cdp__fail(CDP_ERR_INVALID, "the file store %s is no regular file", f->path);
    if (!f->private_file || !info->foreign) return CDP_OK;
    return cdp__fail(CDP_ERR_INVALID,
        "the file store %s belongs to user %u and has mode %u%u%u: it must belong to this user, "
        "and others must not be allowed to write to it; remove it, or choose another path",
        f->path, info->owner, info->mode >> 6 & 7, info->mode >> 3 & 7, info->mode & 7);
}

CDP__PRIVATE bool cdp__file_same(const cdp__file_store *f, const cdp_file_info *info) {
    return f->pin >= 0 && info->device == f->device && info->number == f->number;
}

/* Locks the open file `fd`, starts a new copy if it is not the file that the copy is of, reads what
   is new, and cuts off an incomplete record. *gone: another user removed the file just before it
   was locked; open it again. */
CDP__PRIVATE cdp_status cdp__file_refresh(
    cdp__file_store *f, int32_t fd, cdp__file_mode mode, bool *gone) {
    const cdp_os_files *files = &f->os->files;
    void *user = f->os->user;
    cdp_file_info info;
    cdp_status status;
    int32_t r = files->file_info(user, fd, &info);
    *gone = false;
    f->busy = false;
    if (r != 0) return cdp__file_fail(f, -r, "cannot read its size");
    status = cdp__file_allowed(f, &info);
    if (status != CDP_OK) return status;
    if (mode == CDP__FILE_READ && !info.removed && cdp__file_same(f, &info) && info.bytes == f->at)
        return CDP_OK; /* The copy is complete: no lock is needed. */
    status = cdp__file_lock(f, fd, mode);
    if (status != CDP_OK) return status;
    r = files->file_info(user, fd, &info);
    if (r != 0) return cdp__file_fail(f, -r, "cannot read its size");
    *gone = info.removed;
    if (*gone) return CDP_OK;
    if (!cdp__file_same(f, &info) || info.bytes < f->at) {
        /* Not the file in which this user was counted; its caller drops the error. */
        if (mode == CDP__FILE_LEAVE) return CDP_ERR_STATE;
        cdp__file_reset(f, fd, &info);
    }
    status = cdp__file_read(f, fd, info.bytes);
    if (status != CDP_OK || !f->torn || mode == CDP__FILE_READ) return status;
    r = files->cut_file(user, fd, f->at);
    if (r != 0) return cdp__file_fail(f, -r, "cannot cut off the incomplete record at its end");
    f->torn = false;
    return CDP_OK;
}

/* *out: the file, locked and read; -1 if there is no file (READ and LEAVE only). PENDING: another
   user has the lock, or removed the file; try again later. */
CDP__PRIVATE cdp_status cdp__file_enter(cdp__file_store *f, cdp__file_mode mode, int32_t *out) {
    static const uint32_t how[] = {0, CDP_FILE_WRITE | CDP_FILE_CREATE, CDP_FILE_WRITE};
    cdp_status status;
    bool gone;
    int32_t fd = f->os->files.open_file(
        f->os->user, f->path, how[mode] | (f->private_file ? CDP_FILE_PRIVATE : 0));
    *out = -1;
    if (fd == -ELOOP && f->private_file)
        return cdp__fail_peer(CDP_ERR_INVALID, -1, ELOOP,
            "the file store %s is a symbolic link, which another user may have put there; remove "
            "it, or choose another path",
            f->path);
    if (fd == -ENOENT && mode != CDP__FILE_WRITE) {
        cdp__file_reset(f, -1, NULL);
        return CDP_OK;
    }
    if (fd < 0)
        return cdp__file_fail(f, -fd,
            mode == CDP__FILE_READ ? "cannot open it"
                                   : "cannot open it for writing; all users must be allowed to");
    status = cdp__file_refresh(f, fd, mode, &gone);
    if (status == CDP_OK && !gone) {
        *out = fd;
        return CDP_OK;
    }
    cdp__file_close(f, fd);
    return status == CDP_OK ? CDP_PENDING : status;
}

/* Appends n bytes after the last record: all of them or, after a failure, none. The caller holds
   the lock. */
CDP__PRIVATE cdp_status cdp__file_append(
    cdp__file_store *f, int32_t fd, const uint8_t *p, uint64_t n) {
    const cdp_os_files *files = &f->os->files;
    uint64_t done = 0;
    int32_t err = 0;
    while (done < n && !err) {
        const int64_t r = files->write_at(f->os->user, fd, f->at + done, p + done, n - done);
        if (r > 0) done += (uint64_t)r;
        if (r <= 0) err = r ? (int32_t)-r : EIO;
    }
    if (!err) return CDP_OK;
    if (files->cut_file(f->os->user, fd, f->at) != 0)
        return cdp__file_fail(
            f, err, "cannot write; the next user that writes will cut off what was written");
    return cdp__file_fail(f, err, "cannot write, nothing of it was kept; is the disk full?");
}

CDP__PRIVATE const cdp__kv_entry *cdp__file_find(cdp__file_store *f, cdp_bytes key) {
    cdp_bytes full;
    f->key[0] = '/';
    cdp__record_copy(f->key + 1, key);
    full.data = f->key;
    full.bytes = key.bytes + 1;
    return cdp__kv_get(&f->kv, full);
}

/* Appends one record for each key of a request. The prefix of a removal is "-/"; each value begins
   with `old` (cdp_store_append() writes the whole value again). */
CDP__PRIVATE cdp_status cdp__file_write(cdp__file_store *f, int32_t fd, const cdp_store_request *rq,
    const char *prefix, cdp_bytes old, const cdp_bytes *values) {
    uint64_t bytes = 0, i;
    uint8_t *p, *end;
    cdp_status status;
    for (i = 0; i < rq->key_count; ++i)
        bytes += cdp__record_bytes(prefix, rq->keys[i], old.bytes + values[i].bytes);
    end = p = (uint8_t *)cdp__alloc(f->os, bytes);
    if (!p) return cdp__fail_nomem("a record of a file store", bytes);
    for (i = 0; i < rq->key_count; ++i)
        end = cdp__record_put(end, prefix, rq->keys[i], old, values[i]);
    CDP_ASSERT((uint64_t)(end - p) == bytes);
    status = cdp__file_append(f, fd, p, bytes);
    cdp__free(f->os, p);
    return status;
}

CDP__PRIVATE cdp_status cdp__file_change(cdp__file_store *f, int32_t fd, cdp_store_request *rq) {
    const cdp__kv_entry *e = rq->op == CDP_STORE_MULTI_SET ? NULL : cdp__file_find(f, rq->keys[0]);
    const char *prefix = "/";
    const cdp_bytes *values = rq->values;
    cdp_bytes old, none, text;
    char digits[24];
    int64_t sum = 0;
    cdp_status status;
    memset(&none, 0, sizeof none);
    old = text = none;
    if (e) {
        old.data = e->value;
        old.bytes = e->value_bytes;
    }
    if (rq->op == CDP_STORE_DELETE) {
        if (!e) return CDP_OK;
        prefix = "-/";
        values = &none;
    } else if (rq->op == CDP_STORE_ADD) {
        if (e && !cdp__number_parse(e->value, e->value_bytes, &sum))
            return cdp__store_no_number(rq->keys[0]);
        sum = (int64_t)((uint64_t)sum + (uint64_t)rq->delta);
        text.data = digits;
        text.bytes = cdp__number_text(sum, digits);
        values = &text;
    } else if (rq->op == CDP_STORE_COMPARE_SET) {
        const bool equal = cdp__store_expected(rq, e ? &old : NULL);
        const cdp_bytes found = e ? old : rq->values[0];
        if (!cdp__store_answer(f->os, rq, equal ? rq->values[1] : found))
            return cdp__fail_nomem("a value", old.bytes);
        if (!equal) return CDP_OK;
        values = &rq->values[1];
    }
    if (rq->op == CDP_STORE_APPEND && old.bytes + values->bytes > CDP_STORE_MAX_VALUE_BYTES)
        return cdp__store_too_long(
            rq->keys[0], old.bytes + values->bytes, CDP_STORE_MAX_VALUE_BYTES);
    status = cdp__file_write(f, fd, rq, prefix, rq->op == CDP_STORE_APPEND ? old : none, values);
    rq->number = rq->op == CDP_STORE_ADD ? sum : 1;
    if (status != CDP_OK) rq->number = 0;
    if (status != CDP_OK)
        cdp__store_request_drop_results(f->os, rq, cdp__store_request_result_count(rq));
    return status;
}

CDP__PRIVATE cdp_status cdp__file_answer(cdp__file_store *f, cdp_store_request *rq) {
    const uint64_t n = cdp__store_request_result_count(rq);
    uint64_t i;
    for (i = 0; i < rq->key_count; ++i)
        if (!cdp__file_find(f, rq->keys[i])) return CDP_PENDING;
    if (!cdp__store_request_make_results(f->os, rq))
        return cdp__fail_nomem("the results of a request", n * sizeof(cdp_bytes));
    for (i = 0; i < n; ++i) {
        const cdp__kv_entry *e = cdp__file_find(f, rq->keys[i]);
        cdp_bytes value;
        value.data = e->value;
        value.bytes = e->value_bytes;
        if (cdp__store_request_put_result(f->os, rq, i, value)) continue;
        cdp__store_request_drop_results(f->os, rq, n);
        return cdp__fail_nomem("a value", value.bytes);
    }
    return CDP_OK;
}

/* A reader that found an incomplete record cuts it off, because PyTorch does not. Without
   permission to write it leaves the record. */
CDP__PRIVATE void cdp__file_repair(cdp__file_store *f) {
    const cdp_error before = *cdp_last_error();
    int32_t fd;
    if (f->torn && cdp__file_enter(f, CDP__FILE_LEAVE, &fd) == CDP_OK) cdp__file_close(f, fd);
    f->torn = false;
    *cdp__error_slot() = before;
}

CDP__PRIVATE cdp_status cdp__file_attempt(cdp__polling *t, cdp_store_request *rq) {
    cdp__file_store *f = (cdp__file_store *)t;
    const bool reads = rq->op == CDP_STORE_GET || rq->op == CDP_STORE_WAIT
        || rq->op == CDP_STORE_MULTI_GET || rq->op == CDP_STORE_CHECK
        || rq->op == CDP_STORE_NUM_KEYS || rq->op == CDP_STORE_LIST_KEYS;
    int32_t fd;
    cdp_status status = cdp__file_enter(f, reads ? CDP__FILE_READ : CDP__FILE_WRITE, &fd);
    if (status != CDP_OK) return status;
    if (rq->op == CDP_STORE_NUM_KEYS)
        rq->number = (int64_t)f->kv.present_count;
    else if (rq->op == CDP_STORE_LIST_KEYS)
        status = cdp__kv_list(&f->kv, "/", rq);
    else
        status = reads ? cdp__file_answer(f, rq) : cdp__file_change(f, fd, rq);
    cdp__file_close(f, fd);
    cdp__file_repair(f);
    if (rq->op != CDP_STORE_CHECK || status < 0) return status;
    rq->number = status == CDP_OK;
    return CDP_OK;
}

CDP__PRIVATE bool cdp__file_busy(cdp__file_store *f) {
    bool busy;
    cdp_lock_acquire(&f->polling.lock);
    busy = f->busy;
    cdp_lock_release(&f->polling.lock);
    return busy;
}

/* The value of a counter of users in the file, 0 if there is none. */
CDP__PRIVATE int64_t cdp__file_number(const cdp__file_store *f, const char *name) {
    const cdp__kv_entry *e;
    cdp_bytes key;
    int64_t n = 0;
    key.data = name;
    key.bytes = strlen(name);
    e = cdp__kv_get(&f->kv, key);
    return e && cdp__number_parse(e->value, e->value_bytes, &n) ? n : 0;
}

CDP__PRIVATE uint8_t *cdp__file_put_number(uint8_t *p, const char *name, int64_t n) {
    cdp_bytes key, text, none;
    char digits[24];
    memset(&none, 0, sizeof none);
    key.data = name;
    key.bytes = strlen(name);
    text.data = digits;
    text.bytes = cdp__number_text(n, digits);
    return cdp__record_put(p, "", key, text, none);
}

/* Adds this user to the counters in the file or, if `leave`, removes it from them. The last user
   removes the file while it holds the lock; a user that opened the file before then finds it
   removed and opens the path again. (Older versions of PyTorch count only users that leave.) If the
   last user was killed before it removed the file, the next user that comes empties it. */
CDP__PRIVATE cdp_status cdp__file_register(cdp__file_store *f, bool leave) {
    uint8_t records[128], *p = records;
    int64_t here, left;
    bool over;
    int32_t fd, r;
    cdp_status status = cdp__file_enter(f, leave ? CDP__FILE_LEAVE : CDP__FILE_WRITE, &fd);
    if (status != CDP_OK || fd < 0) return status;
    here = cdp__file_number(f, "refcount/") + (leave ? -1 : 0);
    left = cdp__file_number(f, "cleanup/") + leave;
    over = f->world_size && here <= 0 && left >= (int64_t)f->world_size;
    if (leave) p = cdp__file_put_number(p, "cleanup/", left);
    if (!leave) here = over ? 1 : here + 1;
    p = cdp__file_put_number(p, "refcount/", here);
    if (over && !leave) {
        r = f->os->files.cut_file(f->os->user, fd, 0);
        if (r != 0)
            status = cdp__file_fail(f, -r, "cannot empty it");
        else
            cdp__file_reset(f, f->pin, NULL);
    }
    if (status == CDP_OK) status = cdp__file_append(f, fd, records, (uint64_t)(p - records));
    if (over && leave) {
        r = f->os->files.remove_file(f->os->user, f->path);
        if (r != 0) status = cdp__file_fail(f, -r, "cannot remove it");
    }
    cdp__file_close(f, fd);
    return status;
}

CDP__PRIVATE cdp_status cdp__file_register_until(
    cdp__file_store *f, bool leave, uint64_t deadline_ns) {
    uint32_t attempts;
    for (attempts = 0;; ++attempts) {
        const uint64_t now = f->os->now_ns(f->os->user);
        const cdp_status status = cdp__file_register(f, leave);
        if (status != CDP_PENDING || now >= deadline_ns) return status;
        cdp__polling_pause(f->os, attempts, now, deadline_ns);
    }
}

CDP__PRIVATE void cdp__file_free(cdp__file_store *f) {
    cdp__file_close_fd(f, f->pin);
    cdp__kv_close(&f->kv);
    cdp__lock_close(&f->polling.lock);
    cdp__free(f->os, f);
}

CDP__PRIVATE void cdp__file_destroy(void *self) {
    cdp__file_store *f = (cdp__file_store *)self;
    const cdp_error before = *cdp_last_error();
    /* a child of fork() is not counted among the users */
    if (!cdp__is_child(f->polling.forks))
        (void)cdp__file_register_until(f, true, f->os->now_ns(f->os->user) + CDP__FILE_LEAVE_NS);
    *cdp__error_slot() = before; /* Destroying a store reports no error. */
    cdp__file_free(f);
}

/* Creates the object; cdp__file_register() then adds it to the users of the file. */
CDP__PRIVATE CDP__COLD cdp_status cdp__file_make(
    const cdp_file_store_desc *desc, cdp__file_store **out) {
    const cdp_os *os = desc && desc->os ? desc->os : cdp_os_default();
    const uint64_t path_bytes = desc && desc->path ? strlen(desc->path) + 1 : 0;
    cdp__file_store *f;
    uint64_t seed = 0;
    if (path_bytes < 2) return cdp__missing("cdp_file_store_create", "desc.path");
    if (cdp__os_whole(os, "cdp_file_store_create") != CDP_OK) return CDP_ERR_INVALID;
    if (!os->files.open_file)
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "the file store %s: this cdp_os has no files; set its member `files`, or use another "
            "store",
            desc->path);
    f = (cdp__file_store *)cdp__alloc_zero(os, sizeof *f + path_bytes);
    if (!f) return cdp__fail_nomem("a file store", sizeof *f + path_bytes);
    f->os = os;
    f->path = (char *)(f + 1);
    memcpy(f->path, desc->path, (size_t)path_bytes);
    f->world_size = desc->world_size;
    f->private_file = desc->private_file;
    f->pin = -1;
    if (os->random(os->user, &seed, sizeof seed) != CDP_OK) seed = os->now_ns(os->user);
    cdp__kv_open(&f->kv, os, seed, UINT64_MAX);
    cdp__store_made(&f->polling.store, cdp__file_destroy);
    f->polling.inherited = true;
    if (cdp__polling_open(&f->polling, os, desc->timeout_ms, cdp__file_attempt)) {
        *out = f;
        return CDP_OK;
    }
    cdp__file_free(f);
    return cdp__fail_nomem("a lock", sizeof(cdp_lock));
}

CDP__PRIVATE cdp_status cdp__file_locked(const cdp__file_store *f) {
    return cdp__fail(CDP_ERR_TIMEOUT,
        "the file store %s was locked all the time; resume or end the process that holds the lock",
        f->path);
}

CDP_API cdp_status cdp_file_store_create(const cdp_file_store_desc *desc, cdp_store **out) {
    cdp__file_store *f = NULL;
    cdp_status status;
    if (!out) return cdp__missing("cdp_file_store_create", "out");
    *out = NULL;
    CDP__NOT_COLD();
    status = cdp__file_make(desc, &f);
    if (status != CDP_OK) return status;
    status = cdp__file_register_until(f, false, cdp__deadline(f->os, f->polling.store.timeout_ms));
    if (status == CDP_OK) {
        *out = &f->polling.store;
        return CDP_OK;
    }
    if (status == CDP_PENDING) status = cdp__file_locked(f);
    cdp__file_free(f);
    return status;
}
#endif

#endif /* CDP_SRC_STORE_FILE_H */
