/* checkpoint/write.h - the bytes of this rank on their way to disk, or to a copy

   Knows: shares of this rank and the place of the writer. Promises: each byte is written once, from
   memory of the program that it may not change yet, or from the one copy; the writer goes on while
   memory is copied. */
#ifndef CDP_SRC_CHECKPOINT_WRITE_H
#define CDP_SRC_CHECKPOINT_WRITE_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../os/os_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "../os/linux.h"
#include "../dtype/dtype.h"
#include "checkpoint_api.h"
#include "sums.h"
#include "pieces.h"
#include "table.h"
#include "disk.h"
#include "create.h"
#include "save.h"

#define CDP__CK_NOTHING UINT64_MAX /* no entry is claimed */

/* Notes what this rank writes, while the program's layouts and pointers may be read. */
CDP__PRIVATE bool cdp__ck_shares(cdp__ck_save *s) {
    const cdp_ckpt_desc *const d = &s->c->desc;
    uint64_t i;
    s->shares = (cdp__ck_share *)cdp__alloc(s->t.os, s->t.count * sizeof *s->shares);
    if (!s->shares) return false;
    for (i = 0; i < s->t.count; ++i) {
        cdp__ck_entry *const e = &s->t.entries[i];
        cdp__ck_share *const h = &s->shares[i];
        const cdp_layout *const l = &d->items[e->item].tensor.layout;
        const uint64_t elem = cdp__dtype_row_of(e->dtype)->bytes;
        h->p = cdp__ck_item_piece(&d->items[e->item], cdp_rank(d->group), cdp_size(d->group));
        h->first = h->p.first;
        h->copied = false;
        h->at = (const uint8_t *)d->items[e->item].tensor.data;
        if (h->at) h->at += h->first * elem;
        s->rest += (h->p.last - h->p.first) * elem;
        if (cdp_rank(d->group) == 0 && !cdp__ck_keep_layout(&s->t, e, l)) return false;
    }
    s->tensor_count = s->t.count;
    s->place = s->tensor_count ? s->shares[0].p.first : 0;
    s->progress.total = s->rest;
    return true;
}

/* ---- the writer ---- */

/* A stretch that is written with one call. */
typedef struct cdp__ck_chunk {
    const cdp__ck_entry *e;
    cdp__ck_run run;
    const uint8_t *from;
} cdp__ck_chunk;

CDP__PRIVATE void cdp__ck_signal(cdp__ck_save *s) {
    if (s->cond) s->t.os->threads.cond_broadcast(s->t.os->user, s->cond);
}

/* Moves to the next entry of which something is left. False: there is none. */
CDP__PRIVATE bool cdp__ck_forward(cdp__ck_save *s) {
    while (s->entry < s->tensor_count && s->place == s->shares[s->entry].p.last)
        if (++s->entry < s->tensor_count) s->place = s->shares[s->entry].p.first;
    return s->entry < s->tensor_count;
}

/* Takes the next chunk. False: all are taken. */
CDP__PRIVATE bool cdp__ck_next(cdp__ck_save *s, cdp__ck_chunk *k) {
    const cdp__ck_share *h;
    uint64_t elem;
    bool left;
    cdp__lock_take(&s->lock);
    while ((left = cdp__ck_forward(s)) && s->entry == s->claimed) /* for as long as a copy takes */
        s->t.os->threads.cond_wait(s->t.os->user, s->cond, s->lock.mutex, CDP__NEVER);
    if (left) {
        h = &s->shares[s->entry];
        k->e = &s->t.entries[s->entry];
        elem = cdp__dtype_row_of(k->e->dtype)->bytes;
        k->run =
            cdp__ck_run_at(&h->p, s->place, cdp__min(h->p.last, s->place + CDP__CK_AT_ONCE / elem));
        k->from = h->at + (s->place - h->first) * elem;
        s->busy = true;
        s->live = !h->copied;
        s->place += k->run.count;
        s->rest -= k->run.count * elem;
    }
    cdp__lock_give(&s->lock);
    return left;
}

/* The chunk is written; after a failure nothing is left to write, nor to copy. */
CDP__PRIVATE void cdp__ck_written(cdp__ck_save *s, cdp_status st) {
    cdp__lock_take(&s->lock);
    s->busy = s->live = false;
    if (st != CDP_OK) {
        s->entry = s->tensor_count;
        s->rest = 0;
    }
    cdp__ck_signal(s);
    cdp__lock_give(&s->lock);
}

/* C3: syncs and closes the file that was written. */
CDP__PRIVATE cdp_status cdp__ck_end_file(cdp__ck_save *s, bool sync) {
    const cdp_os *const os = s->disk.os;
    const uint64_t began = os->now_ns(os->user);
    char path[CDP__CK_PATH];
    int32_t err = 0;
    if (s->file < 0) return CDP_OK;
    if (sync) err = cdp__ck_sync(&s->disk, s->file);
    s->t.files[s->file_index].synced = sync;
    s->info.sync_ns += os->now_ns(os->user) - began;
    cdp__ck_close_file(&s->disk, s->file, &err);
    s->file = -1;
    cdp__ck_path(path, s->folder, s->t.text + s->t.files[s->file_index].name);
    return err ? cdp__ck_io(err, "cannot write", path) : CDP_OK;
}

/* Makes a file the one that is written. */
CDP__PRIVATE cdp_status cdp__ck_file_of(cdp__ck_save *s, uint32_t file) {
    char path[CDP__CK_PATH];
    int32_t err;
    if (s->file >= 0 && s->file_index == file) return CDP_OK;
    if (cdp__ck_end_file(s, true) != CDP_OK) return cdp_last_error()->status;
    cdp__ck_path(path, s->folder, s->t.text + s->t.files[file].name);
    s->file_index = file;
    err = cdp__ck_open_file(&s->disk, path, CDP_FILE_WRITE, &s->file);
    if (err == EACCES && s->t.files[file].linked) /* somebody protects old steps; for its sync */
        err = cdp__ck_open_file(&s->disk, path, 0, &s->file);
    if (err == ENOENT)
        return cdp_error_set(CDP_ERR_IO, -1, err,
            "cdp_ckpt_save: rank 0 has made %s, and this rank does not see it: all ranks must "
            "share the path",
            path);
    return err ? cdp__ck_io(err, "cannot write", path) : CDP_OK;
}

/* Rank 0 has written headers: files of which it writes nothing else are synced, too. */
CDP__PRIVATE cdp_status cdp__ck_sync_headers(cdp__ck_save *s) {
    cdp_status st = cdp__ck_end_file(s, true);
    uint32_t i;
    if (cdp_rank(s->group)) return st;
    for (i = 0; st == CDP_OK && i < s->tensor_files; ++i) {
        if (s->t.files[i].synced) continue;
        st = cdp__ck_file_of(s, i);
        if (st == CDP_OK) st = cdp__ck_end_file(s, true);
    }
    return st;
}

/* Writes a chunk, and sums each part of it while the cache has it. */
CDP__PRIVATE cdp_status cdp__ck_write_chunk(cdp__ck_save *s, const cdp__ck_chunk *k) {
    const uint64_t elem = cdp__dtype_row_of(k->e->dtype)->bytes, bytes = k->run.count * elem;
    const uint64_t slab = cdp__ck_slab_elements(&s->t, k->e);
    const cdp_status st = cdp__ck_file_of(s, k->e->file);
    uint64_t i, n;
    if (st != CDP_OK) return st;
    for (i = 0; i < k->run.count; i += n) {
        const uint64_t at = k->run.at + i;
        const uint8_t *const from = k->from + i * elem;
        int32_t err;
        n = cdp__min(k->run.count - i, CDP__CK_CALL / elem);
        cdp__ck_sum_slabs(&s->c->weights, from, elem, at, n, slab, s->t.sums + k->e->first_sum);
        err = cdp__ck_write(&s->disk, s->file, k->e->at + at * elem, from, n * elem);
        if (err) {
            char path[CDP__CK_PATH];
            cdp__ck_path(path, s->folder, cdp__ck_file_name(&s->t, k->e));
            return cdp__ck_io(err, "cannot write", path);
        }
    }
    s->info.bytes_written += bytes;
    cdp__ck_progressed(&s->c->desc, &s->progress, bytes);
    return CDP_OK;
}

/* C2, C3: writes one chunk of this rank. PENDING: there may be more. */
CDP__PRIVATE cdp_status cdp__ck_write_some(cdp__ck_save *s) {
    const cdp_os *const os = s->disk.os;
    cdp__ck_chunk k;
    cdp_status st;
    if (!s->began_ns) s->began_ns = os->now_ns(os->user);
    if (cdp__ck_next(s, &k)) {
        st = cdp__ck_write_chunk(s, &k);
        cdp__ck_written(s, st);
        if (st == CDP_OK) return CDP_PENDING;
        (void)cdp__ck_end_file(s, false);
        return st;
    }
    st = cdp__ck_sync_headers(s);
    s->info.write_ns = os->now_ns(os->user) - s->began_ns - s->info.sync_ns;
    return st;
}

/* ---- copies ---- */

/* Copies what no chunk took yet to `to`: the last entries first, because the writer goes on with
   the first ones. The lock is held. Returns how many bytes. */
CDP__PRIVATE uint64_t cdp__ck_copy_shares(cdp__ck_save *s, uint8_t *to) {
    uint64_t used = 0, k;
    for (k = s->tensor_count; k > s->entry;) {
        cdp__ck_share *const h = &s->shares[--k];
        const uint64_t elem = cdp__dtype_row_of(s->t.entries[k].dtype)->bytes;
        const uint64_t first = k == s->entry ? s->place : h->p.first;
        const uint64_t bytes = (h->p.last - first) * elem;
        if (!bytes || h->copied) continue;
        s->claimed = k;
        cdp__lock_give(&s->lock);
        memcpy(to + used, h->at + (first - h->first) * elem, (size_t)bytes);
        cdp__lock_take(&s->lock);
        h->at = to + used;
        h->first = first;
        h->copied = true;
        used += bytes;
        s->claimed = CDP__CK_NOTHING;
        cdp__ck_signal(s);
    }
    return used;
}

#endif /* CDP_SRC_CHECKPOINT_WRITE_H */
