/* checkpoint/save.h - a checkpoint on its way to disk

   Knows: what a save is, and what rank 0 does for it: blobs, folders, and the order in which files,
   names and folders become durable. Promises: a step exists from the rename of its folder on (with
   no_rename: from its checkpoint.json on), and never before all of it is on disk; existing steps
   are not touched. */
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
#include "../os/linux.h"
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

/* What this rank writes of an entry: a range of its memory, or of a copy. */
typedef struct cdp__ck_share {
    cdp__ck_piece p;
    const uint8_t *at; /* of element `first` of the memory of this rank */
    uint64_t first;
    bool copied;
} cdp__ck_share;

/* States of a save; each is left by one step. */
typedef enum cdp__ck_phase {
    CDP__CK_DO_BEGIN,  /* rank 0 makes the files */
    CDP__CK_DO_NAME,   /* the others learn the name of the folder */
    CDP__CK_DO_WRITE,  /* all ranks write and sync their shares */
    CDP__CK_DO_SUMS,   /* sums of all ranks are added */
    CDP__CK_DO_COMMIT, /* rank 0 makes the step durable */
    CDP__CK_DO_SWEEP,  /* and removes older ones */
    CDP__CK_DO_VOTED,  /* all ranks know whether one of them failed */
    CDP__CK_DO_TOLD,   /* and why */
    CDP__CK_DO_UNDO,   /* after a failure */
    CDP__CK_DO_ENDED
} cdp__ck_phase;

/* A save. What it needs of the program's items is copied at the call; a thread may go on with the
   rest. `lock` guards the place of the writer, the places of shares, and `ended`. */
typedef struct cdp__ck_save {
    cdp_ckpt *c;      /* what does not change after its creation */
    cdp_group *group; /* that of the cdp_ckpt; in the background one of its own */
    cdp__ck_disk disk;
    cdp__ck_table t;
    cdp__ck_share *shares;
    cdp_ckpt_info info;
    cdp__ck_progress progress;
    uint64_t step, id;
    uint64_t tensor_count, tensor_files, tensor_sums; /* blobs follow, on rank 0 alone */
    char name[64], folder[CDP__CK_PATH];              /* of the step; where it is written */
    char from[CDP__CK_PATH];                          /* rank 0: the step that has linked files */
    uint8_t *blobs;                                   /* rank 0: bytes of all blobs */
    uint64_t blob_bytes, blob_room;
    int32_t lock_file; /* descriptor */

    cdp__ck_phase phase, next; /* next: after a vote that found no failure */
    cdp_work work;             /* an operation in flight, if `flying` */
    bool flying;
    uint32_t failed, first; /* this rank if it failed, and the lowest one that did; UINT32_MAX */
    cdp__ck_word word;
    cdp_status status; /* how it ended, and why */
    cdp_error error;
    bool told; /* by the rank that failed, to all */

    cdp_lock lock;
    void *cond, *thread;
    bool ended, busy, live;         /* busy: a chunk is being written, `live`: from no copy */
    uint64_t entry, place, claimed; /* the next chunk; an entry that is being copied */
    uint64_t rest;                  /* bytes that no chunk took yet */
    int32_t file;                   /* descriptor that is written, of file `file_index` */
    uint32_t file_index;
    uint64_t began_ns; /* writing */

    /* copied: what was left; staged: the program may change its memory. These are of its thread */
    bool copied, staged;
    uint64_t stage_bytes, stall_ns;
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
    const cdp_os_files *const f = &s->disk.os->files;
    char path[CDP__CK_PATH];
    int32_t err;
    cdp__ck_path(path, s->c->path, "lock");
    err = cdp__ck_open_file(&s->disk, path, CDP_FILE_WRITE | CDP_FILE_CREATE, &s->lock_file);
    if (err) return cdp__ck_io(err, "cannot create", path);
    /* a file system without locks protects nobody, and is no reason not to save */
    if (!f->lock_file
        || f->lock_file(s->disk.os->user, s->lock_file, CDP_FILE_LOCK_ALONE) != -EAGAIN)
        return CDP_OK;
    return cdp_error_set(CDP_ERR_BUSY, -1, 0,
        "cdp_ckpt_save: another job saves into %s now; give each job a folder of its own",
        s->c->path);
}

/* Gives the lock back before the file is closed: a process that was forked meanwhile has the same
   file open, and would have the lock as long as it lives. */
CDP__PRIVATE void cdp__ck_unlock(cdp__ck_save *s) {
    const cdp_os_files *const f = &s->disk.os->files;
    int32_t err = 0;
    if (s->lock_file >= 0 && f->lock_file)
        (void)f->lock_file(s->disk.os->user, s->lock_file, CDP_FILE_UNLOCK);
    cdp__ck_close_file(&s->disk, s->lock_file, &err);
    s->lock_file = -1;
}

/* Closes the earlier step's files that were opened when they were found to be unchanged. */
CDP__PRIVATE void cdp__ck_let_go(cdp__ck_save *s) {
    int32_t err = 0;
    uint32_t i;
    for (i = 0; s->t.files && i < s->t.file_count; ++i) {
        if (s->t.files[i].held) cdp__ck_close_file(&s->disk, s->t.files[i].held - 1, &err);
        s->t.files[i].held = 0;
    }
}

/* A file that has not changed is that of the earlier step, which nothing writes to any more; if it
   was removed meanwhile, its bytes are copied. */
CDP__PRIVATE cdp_status cdp__ck_take_file(cdp__ck_save *s, const cdp__ck_file *f) {
    char from[CDP__CK_PATH], to[CDP__CK_PATH];
    int32_t err;
    cdp__ck_path(from, s->from, s->t.text + f->name);
    cdp__ck_path(to, s->folder, s->t.text + f->name);
    err = cdp__ck_link_file(&s->disk, from, to, f->bytes, f->held - 1);
    return err ? cdp__ck_io(err, "cannot link or copy", from) : CDP_OK;
}

/* Creates a file with its header and its final length; it is synced when it is whole. */
CDP__PRIVATE cdp_status cdp__ck_begin_file(cdp__ck_save *s, uint32_t file) {
    const cdp__ck_file *const f = &s->t.files[file];
    uint8_t *header;
    char path[CDP__CK_PATH];
    int32_t err;
    if (f->linked) return cdp__ck_take_file(s, f);
    header = (uint8_t *)cdp__alloc(s->t.os, f->data_at);
    if (!header) return cdp_error_set(CDP_ERR_NOMEM, -1, 0, "cdp_ckpt: out of memory for a header");
    cdp__ck_fill_header(&s->t, file, header, f->data_at);
    cdp__ck_path(path, s->folder, s->t.text + f->name);
    err = cdp__ck_write_file(&s->disk, path, header, f->data_at, f->bytes, false);
    cdp__free(s->t.os, header);
    return err ? cdp__ck_io(err, "cannot write", path) : CDP_OK;
}

/* The index of the files whose names begin with this text, as Hugging Face has it. */
CDP__PRIVATE void cdp__ck_write_index(cdp__text *t, const cdp__ck_save *s, uint64_t begin) {
    uint64_t total = 0, i;
    bool comma = false;
    for (i = 0; i < s->t.count; ++i)
        if (!s->t.entries[i].blob && s->t.entries[i].begin == begin) total += s->t.entries[i].bytes;
    cdp__text_add(
        t, "{\"metadata\":{\"total_size\":%llu},\n\"weight_map\":{", (unsigned long long)total);
    for (i = 0; i < s->t.count; ++i) {
        const cdp__ck_entry *const e = &s->t.entries[i];
        if (e->blob || e->begin != begin) continue;
        cdp__text_add(t, comma ? ",\n" : "\n");
        comma = true;
        cdp__json_string(t, cdp__ck_name(&s->t, e));
        cdp__text_char(t, ':');
        cdp__json_string(t, cdp__ck_file_name(&s->t, e));
    }
    cdp__text_add(t, "}}\n");
}

CDP__PRIVATE cdp_status cdp__ck_index_file(cdp__ck_save *s, uint64_t begin) {
    cdp__text t = cdp__text_of(NULL, 0);
    char path[CDP__CK_PATH], *memory;
    int32_t err;
    cdp__ck_write_index(&t, s, begin);
    memory = (char *)cdp__alloc(s->t.os, t.used + 1);
    if (!memory) return cdp_error_set(CDP_ERR_NOMEM, -1, 0, "cdp_ckpt: out of memory for an index");
    t = cdp__text_of(memory, t.used + 1);
    cdp__ck_write_index(&t, s, begin);
    (void)cdp__format(
        path, sizeof path, "%s/%s.safetensors.index.json", s->folder, s->t.text + begin);
    err = cdp__ck_write_file(&s->disk, path, memory, t.used, t.used, true);
    cdp__free(s->t.os, memory);
    return err ? cdp__ck_io(err, "cannot write", path) : CDP_OK;
}

/* Makes the folder of the job. Its own name is synced once by each cdp_ckpt: an earlier job may
   have made it and ended before that. */
CDP__PRIVATE cdp_status cdp__ck_make_path(cdp__ck_save *s) {
    const int32_t r = s->disk.os->files.make_folder(s->disk.os->user, s->c->path);
    char parent[CDP__CK_PATH_MAX + 1];
    uint64_t n = strlen(s->c->path);
    int32_t err;
    if (r < 0 && r != -EEXIST) return cdp__ck_io(-r, "cannot make the folder", s->c->path);
    if (r < 0 && s->c->path_synced) return CDP_OK;
    memcpy(parent, s->c->path, (size_t)n + 1);
    while (n > 1 && parent[n - 1] == '/') /* at the end */
        --n;
    while (n && parent[n - 1] != '/')
        --n;
    parent[n] = 0;
    err = cdp__ck_sync_folder(&s->disk, n ? parent : ".");
    if (err == EACCES && r < 0) err = 0; /* it is not ours, and neither is its name */
    if (err) return cdp__ck_io(err, "cannot sync the folder above", s->c->path);
    s->c->path_synced = true;
    return CDP_OK;
}

/* The name that the folder has until it is complete. */
CDP__PRIVATE void cdp__ck_set_folder(cdp__ck_save *s) {
    if (s->disk.no_rename)
        cdp__ck_path(s->folder, s->c->path, s->name);
    else
        (void)cdp__format(s->folder, sizeof s->folder, "%s/%s.tmp-%llx", s->c->path, s->name,
            (unsigned long long)s->id);
}

/* Whether checkpoint.json of this step was cut, or changed: one that is whole, but of another
   version or step, is somebody's. */
CDP__PRIVATE bool cdp__ck_was_cut(cdp__ck_save *s) {
    char folder[CDP__CK_PATH], path[CDP__CK_PATH], *data;
    uint64_t bytes = 0;
    cdp__ck_path(folder, s->c->path, s->name);
    cdp__ck_path(path, folder, CDP__CK_DESCRIPTION);
    if (cdp__ck_read_whole(&s->disk, path, CDP__CK_DESCRIPTION_MAX, &data, &bytes)) return false;
    const bool cut = !cdp__ck_checked(data, bytes);
    cdp__free(s->disk.os, data);
    return cut;
}

/* C1: the folder with that name, and the files. */
CDP__PRIVATE cdp_status cdp__ck_begin(cdp__ck_save *s) {
    const cdp_os_files *const f = &s->disk.os->files;
    char path[CDP__CK_PATH];
    cdp_status st;
    int32_t r;
    uint32_t i;
    st = cdp__ck_make_path(s);
    if (st == CDP_OK) st = cdp__ck_lock(s);
    if (st != CDP_OK) return st;
    if (cdp__ck_complete(&s->disk, s->c->path, s->step, &r)
        || (r == EBADMSG && !(s->disk.no_rename && cdp__ck_was_cut(s))))
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_ckpt_save: step %llu exists in %s; remove it, or save another step",
            (unsigned long long)s->step, s->c->path);
    if (r != ENOENT && r != EBADMSG) { /* it may be a good one, which another save leaves alone */
        cdp__ck_path(path, s->c->path, s->name);
        return cdp__ck_io(r, "cannot read checkpoint.json in", path);
    }
    st = cdp__ck_remove_rest(&s->disk, s->c->path, s->name); /* of a step that was removed, or not
                                                                finished */
    if (st == CDP_OK) st = cdp__ck_sweep_leftovers(&s->disk, s->c->path);
    if (st != CDP_OK) return st;
    if (s->disk.os->random(s->disk.os->user, &s->id, sizeof s->id) != CDP_OK)
        return cdp_error_set(CDP_ERR_IO, -1, 0, "cdp_ckpt_save: there are no random numbers");
    cdp__ck_set_folder(s);
    r = f->make_folder(s->disk.os->user, s->folder);
    if (r < 0) return cdp__ck_io(-r, "cannot make the folder", s->folder);
    for (i = 0; st == CDP_OK && i < s->t.file_count; ++i)
        st = cdp__ck_begin_file(s, i);
    cdp__ck_let_go(s);
    for (i = 0; st == CDP_OK && i < s->tensor_count; ++i) /* files with one begin are neighbours */
        if (!i || s->t.entries[i].begin != s->t.entries[i - 1].begin)
            st = cdp__ck_index_file(s, s->t.entries[i].begin);
    return st;
}

/* ---- rank 0: commit ---- */

CDP__PRIVATE cdp_status cdp__ck_write_blobs(cdp__ck_save *s) {
    const cdp__ck_file *const f = &s->t.files[s->tensor_files];
    char path[CDP__CK_PATH];
    int32_t fd, err;
    if (s->t.file_count == s->tensor_files) return CDP_OK;
    cdp__ck_path(path, s->folder, s->t.text + f->name);
    err = cdp__ck_open_file(&s->disk, path, CDP_FILE_WRITE, &fd);
    if (!err) err = cdp__ck_write(&s->disk, fd, f->data_at, s->blobs, s->blob_bytes);
    if (!err) err = cdp__ck_sync(&s->disk, fd);
    cdp__ck_close_file(&s->disk, fd, &err);
    return err ? cdp__ck_io(err, "cannot write", path) : CDP_OK;
}

/* C4, C5: checkpoint.json, which says that everything else is there. */
CDP__PRIVATE cdp_status cdp__ck_write_description(cdp__ck_save *s) {
    cdp__text t = cdp__text_of(NULL, 0);
    uint64_t room, hash;
    char *memory, path[CDP__CK_PATH];
    int32_t err;
    cdp__ck_write_body(&t, &s->t);
    room = t.used + 64;
    memory = (char *)cdp__alloc(s->t.os, room);
    if (!memory)
        return cdp_error_set(CDP_ERR_NOMEM, -1, 0, "cdp_ckpt: out of memory for checkpoint.json");
    t = cdp__text_of(memory, room);
    cdp__ck_write_body(&t, &s->t);
    hash = cdp__hash(CDP__HASH_START, memory, t.used);
    cdp__text_add(&t, CDP__CK_CHECK);
    cdp__ck_hex(&t, hash);
    cdp__text_add(&t, "\"}\n");
    cdp__ck_path(path, s->folder, CDP__CK_DESCRIPTION);
    err = cdp__ck_write_file(&s->disk, path, memory, t.used, t.used, true);
    cdp__free(s->t.os, memory);
    return err ? cdp__ck_io(err, "cannot write", path) : CDP_OK;
}

/* C7 to C9: the folder has the name of the step, which is durable then. `latest` needs no sync. */
CDP__PRIVATE cdp_status cdp__ck_publish(cdp__ck_save *s) {
    const cdp_os_files *const f = &s->disk.os->files;
    char path[CDP__CK_PATH], latest[80];
    uint64_t length;
    int32_t err;
    cdp__ck_path(path, s->c->path, s->name);
    err = s->disk.no_rename ? 0 : -f->rename_file(s->disk.os->user, s->folder, path);
    if (err) return cdp__ck_io(err, "cannot rename the folder to", path);
    err = cdp__ck_sync_folder(&s->disk, s->c->path);
    if (err) return cdp__ck_io(err, "cannot sync", s->c->path);
    length = cdp__format(latest, sizeof latest, "%s\n", s->name);
    err = cdp__ck_place_file(&s->disk, s->c->path, "latest", latest, length);
    return err ? cdp__ck_io(err, "cannot write latest in", s->c->path) : CDP_OK;
}

/* C6: all names in the folder. */
CDP__PRIVATE cdp_status cdp__ck_sync_names(const cdp__ck_save *s) {
    const int32_t err = cdp__ck_sync_folder(&s->disk, s->folder);
    return err ? cdp__ck_io(err, "cannot sync", s->folder) : CDP_OK;
}

CDP__PRIVATE cdp_status cdp__ck_commit(cdp__ck_save *s) {
    const cdp_os *const os = s->disk.os;
    const uint64_t began = os->now_ns(os->user);
    cdp_status st = cdp__ck_write_blobs(s);
    if (st == CDP_OK && s->disk.no_rename) st = cdp__ck_sync_names(s); /* before the step exists */
    if (st == CDP_OK) st = cdp__ck_write_description(s);
    if (st == CDP_OK) st = cdp__ck_sync_names(s);
    if (st == CDP_OK) st = cdp__ck_publish(s);
    s->info.commit_ns = os->now_ns(os->user) - began;
    return st;
}

/* Removes what a failed save has written, as far as that works: the next one tries again. A step
   that exists stays: another rank may have heard of no failure. */
CDP__PRIVATE void cdp__ck_undo(cdp__ck_save *s) {
    const char *const name = strrchr(s->folder, '/');
    int32_t why = ENOENT;
    if (!s->folder[0] || !name) return;
    if (s->disk.no_rename && cdp__ck_complete(&s->disk, s->c->path, s->step, &why)) return;
    if (why == ENOENT || (why == EBADMSG && cdp__ck_was_cut(s)))
        (void)cdp__ck_remove_folder(&s->disk, s->c->path, name + 1);
}

#endif /* CDP_SRC_CHECKPOINT_SAVE_H */
