/* checkpoint/save.h - a checkpoint on its way to disk

   Knows: the order in which files, names and folders become durable. Promises: a step exists from
   the rename of its folder on, and never before all of it is on disk; existing steps are not
   touched; an error is the same on all ranks. */
#ifndef CDP_SRC_CHECKPOINT_SAVE_H
#define CDP_SRC_CHECKPOINT_SAVE_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../os/os_api.h"
#include "../group/group_api.h"
#include "../group/collectives_api.h"
#include "../group/objects_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/hash.h"
#include "../base/text.h"
#include "../text/format.h"
#include "../text/json_write.h"
#include "checkpoint_api.h"
#include "sums.h"
#include "pieces.h"
#include "table.h"
#include "safetensors.h"
#include "description.h"
#include "plan.h"
#include "disk.h"
#include "steps.h"
#include "verdict.h"
#include "create.h"
#include "agree.h"

typedef struct cdp__ck_save {
    cdp_ckpt *c;
    cdp__ck_disk *d;
    cdp__ck_table t;
    uint64_t step, id;
    uint64_t tensor_files, tensor_sums;  /* of the table; blobs follow, on rank 0 alone */
    char name[64], folder[CDP__CK_PATH]; /* of the step; where it is written */
    uint8_t *blobs;                      /* rank 0: bytes of all blobs */
    uint64_t blob_bytes, blob_room;
    int32_t lock; /* descriptor */
} cdp__ck_save;

/* ---- blobs: rank 0 writes them ---- */

/* Adds one blob of one rank, whose bytes are at s->blobs + at. */
CDP__PRIVATE bool cdp__ck_blob_entry(
    cdp__ck_save *s, const cdp_ckpt_blob *b, uint32_t rank, uint64_t at, uint64_t bytes) {
    char name[CDP__CK_NAME + 1];
    cdp__text n = cdp__text_of(name, sizeof name);
    cdp__ck_entry e;
    memset(&e, 0, sizeof e);
    cdp__text_add(&n, "%s", b->name);
    if (b->per_rank) {
        cdp__text_add(&n, ".rank");
        cdp__ck_digits(&n, rank, 5);
    }
    (void)cdp__text_end(&n);
    e.name = cdp__ck_text(&s->t, name, strlen(name));
    e.blob = true;
    e.dtype = CDP_DTYPE_U8;
    e.ndim = 1;
    e.shape[0] = e.bytes = bytes;
    e.at = at;
    e.file = (uint32_t)s->tensor_files;
    if (e.name == UINT64_MAX || !cdp__ck_sums_new(&s->t, &e)) return false;
    cdp__ck_sum_slabs(
        &s->c->weights, s->blobs + at, 1, 0, bytes, s->t.slab, s->t.sums + e.first_sum);
    return cdp__ck_add_entry(&s->t, &e);
}

/* Rank 0 keeps what all ranks have of a blob. */
CDP__PRIVATE bool cdp__ck_blob_keep(
    cdp__ck_save *s, const cdp_ckpt_blob *b, const uint8_t *data, const uint64_t *lengths) {
    const uint32_t n = b->per_rank ? cdp_size(s->c->desc.group) : 1;
    uint32_t r;
    for (r = 0; r < n; ++r) {
        const uint64_t at = s->blob_bytes;
        uint8_t *const more =
            (uint8_t *)cdp__ck_room(&s->t, s->blobs, &s->blob_room, at + lengths[r], 1);
        if (!more) return false;
        s->blobs = more;
        if (lengths[r]) memcpy(more + at, data, (size_t)lengths[r]);
        data += lengths[r];
        s->blob_bytes += lengths[r];
        if (!cdp__ck_blob_entry(s, b, r, at, lengths[r])) return false;
    }
    return true;
}

CDP__PRIVATE cdp_status cdp__ck_blob_gather(cdp__ck_save *s, const cdp_ckpt_blob *b, bool *kept) {
    cdp_group *const g = s->c->desc.group;
    const bool root = cdp_rank(g) == 0, mine = b->per_rank || root;
    cdp_blob all;
    cdp_status st;
    memset(&all, 0, sizeof all);
    if (root) {
        all.lengths = (uint64_t *)cdp__alloc_zero(s->t.os, cdp_size(g) * sizeof *all.lengths);
        if (!all.lengths) *kept = cdp__ck_none(&s->t);
    }
    st = cdp_gather_bytes(g, mine ? b->data : NULL, mine ? b->bytes : 0, 0, &all);
    if (st == CDP_OK && root && *kept)
        *kept = cdp__ck_blob_keep(s, b, (const uint8_t *)all.data, all.lengths);
    cdp__free(s->t.os, all.lengths);
    cdp_blob_free(g, &all);
    return st;
}

/* Gathers all blobs on rank 0, and adds their file to its table. */
CDP__PRIVATE cdp_status cdp__ck_blobs(cdp__ck_save *s) {
    const cdp_ckpt_desc *const d = &s->c->desc;
    uint64_t twice = UINT64_MAX;
    bool kept = true;
    cdp_status st = CDP_OK;
    uint32_t i;
    for (i = 0; st == CDP_OK && i < d->blob_count; ++i)
        st = cdp__ck_blob_gather(s, &d->blobs[i], &kept);
    if (st != CDP_OK || cdp_rank(d->group) || !d->blob_count) return st;
    if (kept) kept = cdp__ck_file_new(&s->t) != NULL;
    if (kept) {
        const uint64_t name = cdp__ck_text(&s->t, CDP__CK_BLOBS, strlen(CDP__CK_BLOBS));
        s->t.files[s->tensor_files].name = name;
        s->t.files[s->tensor_files].bytes = s->blob_bytes;
        kept = name != UINT64_MAX && cdp__ck_index(&s->t, &twice);
    }
    if (kept) cdp__ck_plan_offsets(&s->t, s->tensor_files);
    if (twice != UINT64_MAX)
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_ckpt: two items or blobs have the name '%s'",
            cdp__ck_name(&s->t, &s->t.entries[twice]));
    return kept ? CDP_OK : cdp_error_set(CDP_ERR_NOMEM, -1, 0, "cdp_ckpt: out of memory for blobs");
}

/* ---- rank 0: folders and files ---- */

/* A second job that saves into the folder would remove what this one writes. */
CDP__PRIVATE cdp_status cdp__ck_lock(cdp__ck_save *s) {
    const cdp_os_files *const f = &s->d->os->files;
    char path[CDP__CK_PATH];
    int32_t err;
    cdp__ck_path(path, s->c->path, "lock");
    err = cdp__ck_open_file(s->d, path, CDP_FILE_WRITE | CDP_FILE_CREATE, &s->lock);
    if (err) return cdp__ck_io(err, "cannot create", path);
    /* a file system without locks protects nobody, and is no reason not to save */
    if (!f->lock_file || f->lock_file(s->d->os->user, s->lock, CDP_FILE_LOCK_ALONE) != -EAGAIN)
        return CDP_OK;
    return cdp_error_set(CDP_ERR_BUSY, -1, 0,
        "cdp_ckpt_save: another job saves into %s now; give each job a folder of its own",
        s->c->path);
}

CDP__PRIVATE void cdp__ck_unlock(cdp__ck_save *s) {
    int32_t err = 0;
    cdp__ck_close_file(s->d, s->lock, &err);
    s->lock = -1;
}

/* Creates a file with its header and its final length. */
CDP__PRIVATE cdp_status cdp__ck_begin_file(cdp__ck_save *s, uint32_t file) {
    const cdp__ck_file *const f = &s->t.files[file];
    uint8_t *const header = (uint8_t *)cdp__alloc(s->t.os, f->data_at);
    char path[CDP__CK_PATH];
    int32_t err;
    if (!header) return cdp_error_set(CDP_ERR_NOMEM, -1, 0, "cdp_ckpt: out of memory for a header");
    cdp__ck_fill_header(&s->t, file, header, f->data_at);
    cdp__ck_path(path, s->folder, s->t.text + f->name);
    err = cdp__ck_write_file(s->d, path, header, f->data_at, f->bytes);
    cdp__free(s->t.os, header);
    return err ? cdp__ck_io(err, "cannot write", path) : CDP_OK;
}

/* The index of the files whose names begin like those of item `first`, as Hugging Face has it. */
CDP__PRIVATE void cdp__ck_write_index(cdp__text *t, const cdp__ck_save *s, uint32_t first) {
    uint64_t total = 0, i;
    bool comma = false;
    for (i = 0; i < s->t.count; ++i)
        if (!s->t.entries[i].blob && cdp__ck_plan_first(&s->c->desc, s->t.entries[i].item) == first)
            total += s->t.entries[i].bytes;
    cdp__text_add(
        t, "{\"metadata\":{\"total_size\":%llu},\n\"weight_map\":{", (unsigned long long)total);
    for (i = 0; i < s->t.count; ++i) {
        const cdp__ck_entry *const e = &s->t.entries[i];
        if (e->blob || cdp__ck_plan_first(&s->c->desc, e->item) != first) continue;
        cdp__text_add(t, comma ? ",\n" : "\n");
        comma = true;
        cdp__json_string(t, cdp__ck_name(&s->t, e));
        cdp__text_char(t, ':');
        cdp__json_string(t, cdp__ck_file_name(&s->t, e));
    }
    cdp__text_add(t, "}}\n");
}

CDP__PRIVATE cdp_status cdp__ck_index_file(cdp__ck_save *s, uint32_t first) {
    cdp__text t = cdp__text_of(NULL, 0);
    char path[CDP__CK_PATH], *memory;
    int32_t err;
    cdp__ck_write_index(&t, s, first);
    memory = (char *)cdp__alloc(s->t.os, t.used + 1);
    if (!memory) return cdp_error_set(CDP_ERR_NOMEM, -1, 0, "cdp_ckpt: out of memory for an index");
    t = cdp__text_of(memory, t.used + 1);
    cdp__ck_write_index(&t, s, first);
    (void)cdp__format(path, sizeof path, "%s/%s.safetensors.index.json", s->folder,
        cdp__ck_item_file(&s->c->desc.items[first]));
    err = cdp__ck_write_file(s->d, path, memory, t.used, t.used);
    cdp__free(s->t.os, memory);
    return err ? cdp__ck_io(err, "cannot write", path) : CDP_OK;
}

/* Makes the folder of the job. Its own name is synced each time: an earlier save may have made it
   and ended before that. */
CDP__PRIVATE cdp_status cdp__ck_make_path(cdp__ck_save *s) {
    const int32_t r = s->d->os->files.make_folder(s->d->os->user, s->c->path);
    char parent[CDP__CK_PATH_MAX + 1];
    uint64_t n = strlen(s->c->path);
    int32_t err;
    if (r < 0 && r != -EEXIST) return cdp__ck_io(-r, "cannot make the folder", s->c->path);
    memcpy(parent, s->c->path, (size_t)n + 1);
    while (n > 1 && parent[n - 1] == '/') /* at the end */
        --n;
    while (n && parent[n - 1] != '/')
        --n;
    parent[n] = 0;
    err = cdp__ck_sync_folder(s->d, n ? parent : ".");
    if (err == EACCES && r < 0) err = 0; /* it is not ours, and neither is its name */
    return err ? cdp__ck_io(err, "cannot sync the folder above", s->c->path) : CDP_OK;
}

/* C1: the folder with the name that it has until it is complete, and the files. */
CDP__PRIVATE cdp_status cdp__ck_begin(cdp__ck_save *s) {
    const cdp_os_files *const f = &s->d->os->files;
    char path[CDP__CK_PATH];
    cdp_status st;
    int32_t r;
    uint32_t i;
    st = cdp__ck_make_path(s);
    if (st == CDP_OK) st = cdp__ck_lock(s);
    if (st != CDP_OK) return st;
    if (cdp__ck_complete(s->d, s->c->path, s->step, &r) || r == EBADMSG)
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_ckpt_save: step %llu exists in %s; remove it, or save another step",
            (unsigned long long)s->step, s->c->path);
    r = cdp__ck_remove_step(s->d, s->c->path, s->name); /* what is left of one that was removed */
    if (!r || r == ENOENT) r = cdp__ck_sweep_leftovers(s->d, s->c->path);
    if (r) return cdp__ck_io(r, "cannot remove what an earlier save left in", s->c->path);
    if (s->d->os->random(s->d->os->user, &s->id, sizeof s->id) != CDP_OK)
        return cdp_error_set(CDP_ERR_IO, -1, 0, "cdp_ckpt_save: there are no random numbers");
    (void)cdp__format(
        path, sizeof path, "%s/%s.tmp-%llx", s->c->path, s->name, (unsigned long long)s->id);
    memcpy(s->folder, path, sizeof path);
    r = f->make_folder(s->d->os->user, path);
    if (r < 0) return cdp__ck_io(-r, "cannot make the folder", path);
    for (i = 0; st == CDP_OK && i < s->t.file_count; ++i)
        st = cdp__ck_begin_file(s, i);
    for (i = 0; st == CDP_OK && i < s->c->desc.item_count; ++i)
        if (cdp__ck_plan_first(&s->c->desc, i) == i) st = cdp__ck_index_file(s, i);
    return st;
}

/* ---- all ranks: bytes ---- */

CDP__PRIVATE void cdp__ck_progress(cdp_ckpt *c, uint64_t bytes) {
    c->done += bytes;
    if (c->desc.progress) c->desc.progress(c->desc.user, c->done, c->total);
}

/* Writes and sums the share of this rank of one entry. */
CDP__PRIVATE int32_t cdp__ck_write_share(
    cdp__ck_save *s, const cdp__ck_entry *e, const cdp__ck_piece *p, int32_t fd) {
    const uint8_t *const data = (const uint8_t *)s->c->desc.items[e->item].tensor.data;
    const uint64_t elem = cdp__dtype_row_of(e->dtype)->bytes, most = CDP__CK_AT_ONCE / elem;
    uint64_t place = p->first;
    while (place < p->last) {
        const cdp__ck_run r = cdp__ck_run_at(p, place, cdp__min(p->last, place + most));
        const uint8_t *const from = data + r.place * elem;
        const int32_t err = cdp__ck_write(s->d, fd, e->at + r.at * elem, from, r.count * elem);
        if (err) return err;
        cdp__ck_sum_slabs(&s->c->weights, from, elem, r.at, r.count,
            cdp__ck_slab_elements(&s->t, e), s->t.sums + e->first_sum);
        s->c->info.bytes_written += r.count * elem;
        cdp__ck_progress(s->c, r.count * elem);
        place += r.count;
    }
    return 0;
}

/* C2, C3: one file. */
CDP__PRIVATE cdp_status cdp__ck_write_tensors(cdp__ck_save *s, uint32_t file, uint64_t *sync_ns) {
    const cdp_ckpt_desc *const d = &s->c->desc;
    const cdp_os *const os = s->d->os;
    char path[CDP__CK_PATH];
    int32_t fd = -1, err = 0;
    uint64_t i, began;
    cdp__ck_path(path, s->folder, s->t.text + s->t.files[file].name);
    for (i = 0; !err && i < s->t.count; ++i) {
        const cdp__ck_entry *const e = &s->t.entries[i];
        cdp__ck_piece p;
        if (e->file != file || e->blob) continue;
        p = cdp__ck_piece_of(
            &d->items[e->item].tensor.layout, NULL, cdp_rank(d->group), cdp_size(d->group));
        if (p.first == p.last) continue;
        if (fd < 0) err = cdp__ck_open_file(s->d, path, CDP_FILE_WRITE, &fd);
        if (err == ENOENT)
            return cdp_error_set(CDP_ERR_IO, -1, err,
                "cdp_ckpt_save: rank 0 has made %s, and this rank does not see it: all ranks must "
                "share the path",
                path);
        if (!err) err = cdp__ck_write_share(s, e, &p, fd);
    }
    began = os->now_ns(os->user);
    if (!err && fd >= 0) err = cdp__ck_sync(s->d, fd);
    *sync_ns += os->now_ns(os->user) - began;
    cdp__ck_close_file(s->d, fd, &err);
    return err ? cdp__ck_io(err, "cannot write", path) : CDP_OK;
}

CDP__PRIVATE cdp_status cdp__ck_write_all(cdp__ck_save *s) {
    const cdp_os *const os = s->d->os;
    const uint64_t began = os->now_ns(os->user);
    cdp_status st = CDP_OK;
    uint32_t i;
    if (cdp_rank(s->c->desc.group))
        (void)cdp__format(s->folder, sizeof s->folder, "%s/%s.tmp-%llx", s->c->path, s->name,
            (unsigned long long)s->id);
    for (i = 0; st == CDP_OK && i < s->tensor_files; ++i)
        st = cdp__ck_write_tensors(s, i, &s->c->info.sync_ns);
    s->c->info.write_ns = os->now_ns(os->user) - began - s->c->info.sync_ns;
    return st;
}

/* ---- rank 0: commit ---- */

CDP__PRIVATE cdp_status cdp__ck_write_blobs(cdp__ck_save *s) {
    const cdp__ck_file *const f = &s->t.files[s->tensor_files];
    char path[CDP__CK_PATH];
    int32_t fd, err;
    if (s->t.file_count == s->tensor_files) return CDP_OK;
    cdp__ck_path(path, s->folder, s->t.text + f->name);
    err = cdp__ck_open_file(s->d, path, CDP_FILE_WRITE, &fd);
    if (!err) err = cdp__ck_write(s->d, fd, f->data_at, s->blobs, s->blob_bytes);
    if (!err) err = cdp__ck_sync(s->d, fd);
    cdp__ck_close_file(s->d, fd, &err);
    return err ? cdp__ck_io(err, "cannot write", path) : CDP_OK;
}

/* C5 to C8: checkpoint.json, which says that everything else is there. */
CDP__PRIVATE cdp_status cdp__ck_write_description(cdp__ck_save *s) {
    cdp__text t = cdp__text_of(NULL, 0);
    uint64_t room, hash;
    char *memory;
    int32_t err;
    cdp__ck_write_body(&t, &s->t, s->c->desc.items);
    room = t.used + 64;
    memory = (char *)cdp__alloc(s->t.os, room);
    if (!memory)
        return cdp_error_set(CDP_ERR_NOMEM, -1, 0, "cdp_ckpt: out of memory for checkpoint.json");
    t = cdp__text_of(memory, room);
    cdp__ck_write_body(&t, &s->t, s->c->desc.items);
    hash = cdp__hash(CDP__HASH_START, memory, t.used);
    cdp__text_add(&t, CDP__CK_CHECK);
    cdp__ck_hex(&t, hash);
    cdp__text_add(&t, "\"}\n");
    err = cdp__ck_place_file(s->d, s->folder, CDP__CK_DESCRIPTION, memory, t.used);
    cdp__free(s->t.os, memory);
    return err ? cdp__ck_io(err, "cannot write checkpoint.json in", s->folder) : CDP_OK;
}

/* C9 to C14. */
CDP__PRIVATE cdp_status cdp__ck_publish(cdp__ck_save *s) {
    const cdp_os_files *const f = &s->d->os->files;
    char path[CDP__CK_PATH], latest[80];
    uint64_t length;
    int32_t err;
    cdp__ck_path(path, s->c->path, s->name);
    err = -f->rename_file(s->d->os->user, s->folder, path);
    if (err) return cdp__ck_io(err, "cannot rename the folder to", path);
    err = cdp__ck_sync_folder(s->d, s->c->path);
    if (err) return cdp__ck_io(err, "cannot sync", s->c->path);
    length = cdp__format(latest, sizeof latest, "%s\n", s->name);
    err = cdp__ck_place_file(s->d, s->c->path, "latest", latest, length);
    return err ? cdp__ck_io(err, "cannot write latest in", s->c->path) : CDP_OK;
}

CDP__PRIVATE cdp_status cdp__ck_commit(cdp__ck_save *s) {
    const cdp_os *const os = s->d->os;
    const uint64_t began = os->now_ns(os->user);
    cdp_status st = cdp__ck_write_blobs(s);
    if (st == CDP_OK) {
        const int32_t err = cdp__ck_sync_folder(s->d, s->folder); /* C4 */
        if (err) st = cdp__ck_io(err, "cannot sync", s->folder);
    }
    if (st == CDP_OK) st = cdp__ck_write_description(s);
    if (st == CDP_OK) st = cdp__ck_publish(s);
    s->c->info.commit_ns = os->now_ns(os->user) - began;
    return st;
}

/* ---- the call ---- */

/* Removes what a failed save has written, as far as that works: the next one tries again. */
CDP__PRIVATE void cdp__ck_undo(const cdp__ck_save *s) {
    const char *const name = strrchr(s->folder, '/');
    if (s->folder[0] && name) (void)cdp__ck_remove_step(s->d, s->c->path, name + 1);
}

CDP__PRIVATE cdp_status cdp__ck_save_plan(cdp__ck_save *s) {
    cdp_ckpt *const c = s->c;
    cdp_status st = cdp__ck_plan(&s->t, &c->desc);
    uint64_t i;
    if (st == CDP_OK) st = cdp__ck_plan_limits(&s->t);
    if (st == CDP_OK) st = cdp__ck_memory_check(c);
    st = cdp__ck_verdict(c->desc.group, st);
    if (st == CDP_OK) st = cdp__ck_agree(c, s->step, c->path);
    if (st == CDP_OK) st = cdp__ck_covered(c, &s->t);
    s->tensor_files = c->info.files = s->t.file_count;
    s->tensor_sums = s->t.sum_count;
    s->t.step = c->info.step = s->step;
    for (i = 0; st == CDP_OK && i < s->t.count; ++i) {
        const cdp__ck_entry *const e = &s->t.entries[i];
        const cdp__ck_piece p = cdp__ck_piece_of(&c->desc.items[e->item].tensor.layout, NULL,
            cdp_rank(c->desc.group), cdp_size(c->desc.group));
        c->info.total_bytes += e->bytes;
        c->total += (p.last - p.first) * cdp__dtype_row_of(e->dtype)->bytes;
    }
    return st;
}

CDP__PRIVATE cdp_status cdp__ck_save_run(cdp__ck_save *s) {
    cdp_group *const g = s->c->desc.group;
    const bool root = cdp_rank(g) == 0;
    cdp_status st = cdp__ck_save_plan(s);
    if (st != CDP_OK) return st;
    st = cdp__ck_verdict(g, cdp__ck_blobs(s));
    if (st == CDP_OK) st = cdp__ck_verdict(g, root ? cdp__ck_begin(s) : CDP_OK);
    if (st == CDP_OK) st = cdp_broadcast(g, &s->id, 1, CDP_DTYPE_U64, 0);
    if (st == CDP_OK) st = cdp__ck_verdict(g, cdp__ck_write_all(s));
    if (st == CDP_OK && s->tensor_sums)
        st = cdp_allreduce(g, NULL, s->t.sums, s->tensor_sums, CDP_DTYPE_U64, CDP_REDUCE_SUM);
    if (st == CDP_OK) st = cdp__ck_verdict(g, root ? cdp__ck_commit(s) : CDP_OK);
    if (root && st != CDP_OK) {
        const cdp_error why = *cdp_last_error();
        cdp__ck_undo(s);
        *cdp__error_slot() = why;
    }
    if (root && st == CDP_OK && s->c->desc.keep) /* what stays is removed after the next save */
        (void)cdp__ck_sweep_steps(
            s->d, s->c->path, s->step, s->c->desc.keep, s->c->desc.keep_every);
    return st;
}

CDP_API cdp_status cdp_ckpt_save(cdp_ckpt *c, uint64_t step) {
    cdp__ck_save *s;
    cdp_status st;
    const cdp_os *os;
    if (!c) return cdp_error_set(CDP_ERR_INVALID, -1, 0, CDP__MISSING, "cdp_ckpt_save", "ckpt");
    if (step > (uint64_t)INT64_MAX / 32)
        return cdp_error_set(CDP_ERR_INVALID, -1, 0, "cdp_ckpt_save: step %llu is too large",
            (unsigned long long)step);
    os = cdp_group_desc_of(c->desc.group)->os;
    s = (cdp__ck_save *)cdp__alloc_zero(os, sizeof *s);
    if (!s)
        return cdp__ck_verdict(
            c->desc.group, cdp_error_set(CDP_ERR_NOMEM, -1, 0, "cdp_ckpt_save: out of memory"));
    memset(&c->info, 0, sizeof c->info);
    c->done = c->total = c->disk.writes = 0;
    s->c = c;
    s->d = &c->disk;
    s->step = step;
    s->lock = -1;
    cdp__ck_table_open(&s->t, os);
    cdp__ck_step_name(s->name, step);
    st = cdp__ck_save_run(s);
    c->info.writes = c->disk.writes;
    cdp__ck_unlock(s);
    cdp__free(os, s->blobs);
    cdp__ck_table_close(&s->t);
    cdp__free(os, s);
    return st;
}

#endif /* CDP_SRC_CHECKPOINT_SAVE_H */
