/* checkpoint/reader.h - a checkpoint as one process reads it

   Knows: a folder and the table of what its files hold. Promises: reads nothing outside the files
   that the table names. */
#ifndef CDP_SRC_CHECKPOINT_READER_H
#define CDP_SRC_CHECKPOINT_READER_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../os/os_api.h"
#include "../os/whole.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/ended.h"
#include "../base/bytes.h"
#include "../base/text.h"
#include "../text/format.h"
#include "../dtensor/mesh_api.h"
#include "../dtensor/layout_api.h"
#include "checkpoint_api.h"
#include "reader_api.h"
#include "sums.h"
#include "pieces.h"
#include "table.h"
#include "safetensors.h"
#include "description.h"
#include "disk.h"
#include "steps.h"
#include "zip.h"
#include "torch.h"

#define CDP__CK_GAP 65536u      /* shorter gaps between runs are read, too */
#define CDP__CK_WINDOW 1048576u /* bytes that are read at once for short runs */

struct cdp_ckpt_reader {
    cdp__ck_disk disk;
    cdp__ck_table t;
    char folder[CDP__CK_PATH];
    bool step;                        /* it has a checkpoint.json */
    int32_t fd;                       /* of the file that was read last, or -1 */
    uint32_t file;                    /* which one that is */
    uint8_t *window;                  /* CDP__CK_WINDOW bytes, from the first short run on */
    uint64_t window_at, window_bytes; /* of file `window_file`, that the window has; or 0 */
    uint32_t window_file;
    cdp__ck_weights weights;
};

/* True if there is a reader, and it was not closed. */
CDP__PRIVATE bool cdp__ck_reader_lives(const cdp_ckpt_reader *r) {
    return r && !cdp__ended(r);
}

/* Refuses readers that were closed, and entries that are not there. */
CDP__PRIVATE cdp_status cdp__ck_reader_alive(
    const cdp_ckpt_reader *r, uint32_t index, const char *call) {
    if (cdp__ended(r)) return cdp__fail(CDP_ERR_STATE, "%s: this reader was closed", call);
    if (!r) return cdp__missing(call, "reader");
    if (index >= r->t.count)
        return cdp__fail(CDP_ERR_INVALID, "%s: there is no entry %u", call, index);
    return CDP_OK;
}

/* ---- opening ---- */

CDP__PRIVATE cdp_status cdp__ck_reader_bad(const cdp_ckpt_reader *r, const char *name) {
    const cdp_status st = r->t.status ? r->t.status : CDP_ERR_IO;
    return cdp_error_set(st, -1, st == CDP_ERR_IO ? EBADMSG : 0, "cdp_ckpt: %s/%s: %s", r->folder,
        name, r->t.why ? r->t.why : "it cannot be read");
}

/* Adds the tensors of one file of safetensors. */
CDP__PRIVATE cdp_status cdp__ck_reader_file(cdp_ckpt_reader *r, const char *name) {
    char path[CDP__CK_PATH], *json = NULL;
    uint8_t length[8];
    cdp_file_info info;
    cdp__ck_file *f;
    int32_t fd, err;
    uint64_t bytes = 0, i = r->t.count;
    bool ok = false;
    cdp__ck_path(path, r->folder, name);
    err = cdp__ck_open_file(&r->disk, path, 0, &fd);
    if (err) return cdp__ck_io(err, "cannot open", path);
    err = -r->disk.os->files.file_info(r->disk.os->user, fd, &info);
    if (!err) err = cdp__ck_read(&r->disk, fd, 0, length, 8);
    if (!err) bytes = cdp__get_u64(length);
    if (!err && (bytes > CDP__CK_HEADER_MAX || bytes > info.bytes - 8)) err = EBADMSG;
    if (!err && !(json = (char *)cdp__alloc(r->t.os, bytes))) err = ENOMEM;
    if (!err) err = cdp__ck_read(&r->disk, fd, 8, json, bytes);
    cdp__ck_close_file(&r->disk, fd, &err);
    if (err) {
        cdp__free(r->t.os, json);
        return cdp__ck_io(err, "cannot read the header of", path);
    }
    f = cdp__ck_file_new(&r->t);
    if (f) {
        f->name = cdp__ck_text(&r->t, name, strlen(name));
        f->data_at = bytes + 8;
        f->bytes = info.bytes;
        ok = f->name != UINT64_MAX
            && cdp__ck_read_header(&r->t, json, bytes, info.bytes - 8 - bytes);
    } else
        (void)cdp__ck_none(&r->t);
    cdp__free(r->t.os, json);
    for (; i < r->t.count; ++i)
        r->t.entries[i].blob = strcmp(name, CDP__CK_BLOBS) == 0;
    return ok ? CDP_OK : cdp__ck_reader_bad(r, name);
}

CDP__PRIVATE bool cdp__ck_ends(const char *text, const char *end) {
    const size_t n = strlen(text), m = strlen(end);
    return n > m && strcmp(text + n - m, end) == 0;
}

/* Looks for the next file of safetensors, in the order of names. */
typedef struct cdp__ck_next_file {
    char after[256], name[256];
    bool found;
} cdp__ck_next_file;

CDP__PRIVATE void cdp__ck_list_safetensors(void *user, const char *name) {
    cdp__ck_next_file *const n = (cdp__ck_next_file *)user;
    if (!cdp__ck_ends(name, ".safetensors") || strlen(name) >= sizeof n->name) return;
    if (strcmp(name, n->after) <= 0 || (n->found && strcmp(name, n->name) >= 0)) return;
    memcpy(n->name, name, strlen(name) + 1);
    n->found = true;
}

/* Adds all files of safetensors of the folder; *none: there is none. */
CDP__PRIVATE cdp_status cdp__ck_reader_files(cdp_ckpt_reader *r, bool *none) {
    cdp__ck_next_file n;
    cdp_status st = CDP_OK;
    memset(&n, 0, sizeof n);
    while (st == CDP_OK) {
        int32_t err;
        n.found = false;
        err = -r->disk.os->files.list_folder(
            r->disk.os->user, r->folder, cdp__ck_list_safetensors, &n);
        if (err && err != ENOENT) return cdp__ck_io(err, "cannot list", r->folder);
        if (!n.found) break;
        memcpy(n.after, n.name, sizeof n.after);
        st = cdp__ck_reader_file(r, n.name);
    }
    *none = !n.after[0];
    return st;
}

/* Reads what PyTorch has written into a folder; *none: nothing. */
CDP__PRIVATE cdp_status cdp__ck_reader_torch(cdp_ckpt_reader *r, bool *none) {
    char path[CDP__CK_PATH], *data;
    uint64_t bytes = 0;
    int32_t err;
    bool ok;
    cdp__ck_path(path, r->folder, CDP__CK_METADATA);
    err = cdp__ck_read_whole(&r->disk, path, CDP__CK_METADATA_MAX, &data, &bytes);
    *none = err == ENOENT || err == ENOTDIR;
    if (*none) return CDP_OK;
    if (err) return cdp__ck_io(err, "cannot read", path);
    ok = cdp__ck_read_metadata(&r->t, data, bytes);
    cdp__free(r->disk.os, data);
    return ok ? CDP_OK : cdp__ck_reader_bad(r, CDP__CK_METADATA);
}

/* Reads a folder that is one step. ENOENT in *err: it is none. */
CDP__PRIVATE cdp_status cdp__ck_reader_step(cdp_ckpt_reader *r, int32_t *err) {
    r->step = cdp__ck_describe(&r->disk, r->folder, &r->t, err);
    if (r->step || *err == ENOENT || *err == ENOTDIR) return CDP_OK;
    if (*err == EBADMSG) return cdp__ck_reader_bad(r, CDP__CK_DESCRIPTION);
    return cdp__ck_io(*err, "cannot read checkpoint.json in", r->folder);
}

CDP__PRIVATE cdp_status cdp__ck_reader_none(const char *path, uint64_t step) {
    if (step == CDP_CKPT_LATEST)
        return cdp_error_set(CDP_ERR_STATE, -1, 0,
            "cdp_ckpt: %s has neither a complete step nor files of safetensors or of "
            "torch.distributed.checkpoint",
            path);
    return cdp_error_set(CDP_ERR_STATE, -1, 0, "cdp_ckpt: there is no step %llu in %s",
        (unsigned long long)step, path);
}

/* Fills the table from `path`; `step` counts if that is a folder of steps. */
CDP__PRIVATE cdp_status cdp__ck_reader_fill(cdp_ckpt_reader *r, const char *path, uint64_t step) {
    char name[64];
    bool none = false;
    int32_t err = 0;
    cdp_status st;
    if (cdp__ck_ends(path, ".safetensors")) {
        const char *const slash = strrchr(path, '/');
        (void)cdp__format(r->folder, sizeof r->folder, "%s", slash ? path : ".");
        if (slash) r->folder[slash - path] = 0;
        return cdp__ck_reader_file(r, slash ? slash + 1 : path);
    }
    (void)cdp__format(r->folder, sizeof r->folder, "%s", path);
    st = cdp__ck_reader_step(r, &err);
    if (st != CDP_OK || r->step) return st;
    if (step == CDP_CKPT_LATEST) {
        err = cdp__ck_newest(&r->disk, path, UINT64_MAX, &step);
        if (err && err != ENOENT) return cdp__ck_io(err, "cannot list", path);
        if (err) {
            st = cdp__ck_reader_torch(r, &none);
            if (st == CDP_OK && none) st = cdp__ck_reader_files(r, &none);
            return st == CDP_OK && none ? cdp__ck_reader_none(path, step) : st;
        }
    }
    cdp__ck_step_name(name, step);
    cdp__ck_path(r->folder, path, name);
    st = cdp__ck_reader_step(r, &err);
    if (st == CDP_OK && r->step && r->t.step != step) { /* ranks would look for other folders */
        (void)cdp__ck_bad(&r->t, "it is of another step than the name of its folder");
        return cdp__ck_reader_bad(r, CDP__CK_DESCRIPTION);
    }
    return st == CDP_OK && !r->step ? cdp__ck_reader_none(path, step) : st;
}

CDP__PRIVATE cdp_status cdp__ck_reader_open(const char *path, const cdp_os *os,
    const cdp_os *memory, uint64_t step, cdp_ckpt_reader **out) {
    cdp_ckpt_reader *r;
    uint64_t twice;
    cdp_status st;
    *out = NULL;
    if (strlen(path) > CDP__CK_PATH_MAX)
        return cdp_error_set(
            CDP_ERR_INVALID, -1, 0, "cdp_ckpt: the path is longer than %u bytes", CDP__CK_PATH_MAX);
    if (!os->files.open_file || !os->files.list_folder || cdp__byte_order() != 1)
        return cdp_error_set(CDP_ERR_UNSUPPORTED, -1, 0,
            "cdp_ckpt: the os has no files, or this machine is not little-endian");
    r = (cdp_ckpt_reader *)cdp__alloc_zero(memory, sizeof *r);
    if (!r) return cdp_error_set(CDP_ERR_NOMEM, -1, 0, "cdp_ckpt: out of memory for a reader");
    cdp__ended_remove(r);
    r->disk.os = os;
    r->fd = -1;
    cdp__ck_table_open(&r->t, memory);
    cdp__ck_weights_fill(&r->weights);
    st = cdp__ck_reader_fill(r, path, step);
    if (st == CDP_OK && !cdp__ck_index(&r->t, &twice)) st = cdp__ck_reader_bad(r, "");
    if (st == CDP_OK)
        *out = r;
    else {
        const cdp_error why = *cdp_last_error();
        cdp_ckpt_close(r);
        *cdp__error_slot() = why;
    }
    return st;
}

CDP_API cdp_status cdp_ckpt_open(const char *path, const cdp_os *os, cdp_ckpt_reader **out) {
    if (!out) return cdp_error_set(CDP_ERR_INVALID, -1, 0, CDP__MISSING, "cdp_ckpt_open", "out");
    *out = NULL;
    if (!path) return cdp_error_set(CDP_ERR_INVALID, -1, 0, CDP__MISSING, "cdp_ckpt_open", "path");
    if (cdp__os_whole(os, "cdp_ckpt_open") != CDP_OK) return CDP_ERR_INVALID;
    if (!os) os = cdp_os_default();
    return cdp__ck_reader_open(path, os, os, CDP_CKPT_LATEST, out);
}

CDP_API void cdp_ckpt_close(cdp_ckpt_reader *r) {
    int32_t err = 0;
    const cdp_os *os;
    if (!cdp__ck_reader_lives(r)) return;
    cdp__ended_add(r);
    os = r->t.os;
    cdp__ck_close_file(&r->disk, r->fd, &err);
    cdp__free(os, r->window);
    cdp__ck_table_close(&r->t);
    cdp__free(os, r);
}

/* ---- reading ---- */

CDP__PRIVATE cdp_status cdp__ck_read_failed(
    const cdp_ckpt_reader *r, const cdp__ck_entry *e, int32_t err) {
    if (!r->t.why || err != EBADMSG)
        return cdp__ck_io(err, "cannot read", cdp__ck_file_name(&r->t, e));
    return cdp_error_set(r->t.status, -1, r->t.status == CDP_ERR_IO ? err : 0,
        "cdp_ckpt: cannot read '%s' from %s/%s: %s", cdp__ck_name(&r->t, e), r->folder,
        cdp__ck_file_name(&r->t, e), r->t.why);
}

CDP__PRIVATE int32_t cdp__ck_reader_fd(cdp_ckpt_reader *r, uint32_t file) {
    char path[CDP__CK_PATH];
    int32_t err = 0;
    if (r->fd >= 0 && r->file == file) return 0;
    cdp__ck_close_file(&r->disk, r->fd, &err);
    cdp__ck_path(path, r->folder, r->t.text + r->t.files[file].name);
    err = cdp__ck_open_file(&r->disk, path, 0, &r->fd);
    r->file = file;
    return err;
}

/* Reads runs from element `place` on, as many as fit into the window with the gaps between them.
   Returns 0 or an errno; *next: the element behind them. `to`: of element `place`. */
CDP__PRIVATE int32_t cdp__ck_read_window(cdp_ckpt_reader *r, const cdp__ck_entry *e,
    const cdp__ck_piece *p, uint64_t place, uint64_t last, uint64_t *next, uint8_t *to) {
    const uint64_t elem = cdp__dtype_row_of(e->dtype)->bytes, begin = place;
    const cdp__ck_run first = cdp__ck_run_at(p, place, last);
    uint64_t end = (first.at + first.count) * elem, at;
    int32_t err;
    if (!r->window) r->window = (uint8_t *)cdp__alloc(r->t.os, CDP__CK_WINDOW);
    if (!r->window) return ENOMEM;
    r->window_bytes = 0;
    for (at = place + first.count; at < last;) {
        const cdp__ck_run run = cdp__ck_run_at(p, at, last);
        const uint64_t stop = (run.at + run.count) * elem;
        if (run.at * elem - end > CDP__CK_GAP || stop - first.at * elem > CDP__CK_WINDOW) break;
        end = stop;
        at += run.count;
    }
    *next = at;
    err = cdp__ck_read(&r->disk, r->fd, e->at + first.at * elem, r->window, end - first.at * elem);
    while (!err && place < *next) {
        const cdp__ck_run run = cdp__ck_run_at(p, place, *next);
        memcpy(to + (place - begin) * elem, r->window + (run.at - first.at) * elem,
            (size_t)(run.count * elem));
        place += run.count;
    }
    return err;
}

/* What is done with elements that were read. */
typedef void cdp__ck_got(
    void *user, const cdp__ck_entry *e, const cdp__ck_piece *p, uint64_t place, uint64_t last);

/* A box of an entry, as a piece. */
CDP__PRIVATE cdp__ck_piece cdp__ck_piece_in(const cdp__ck_entry *e, const cdp_box *box) {
    cdp__ck_piece p;
    memset(&p, 0, sizeof p);
    memcpy(p.shape, e->shape, e->ndim * sizeof *p.shape);
    if (box) memcpy(p.box.start, box->start, e->ndim * sizeof *p.box.start);
    memcpy(p.box.size, box ? box->size : e->shape, e->ndim * sizeof *p.box.size);
    cdp__ck_piece_runs(&p, e->ndim);
    return p;
}

/* Copies bytes of a file, short ones by way of the window; none are read behind `end`. */
CDP__PRIVATE int32_t cdp__ck_read_bytes(
    cdp_ckpt_reader *r, uint32_t file, uint64_t at, uint64_t bytes, uint64_t end, void *to) {
    int32_t err = cdp__ck_reader_fd(r, file);
    if (err || bytes >= CDP__CK_GAP)
        return err ? err : cdp__ck_read(&r->disk, r->fd, at, to, bytes);
    if (!r->window) r->window = (uint8_t *)cdp__alloc(r->t.os, CDP__CK_WINDOW);
    if (!r->window) return ENOMEM;
    if (r->window_file != file || at < r->window_at
        || at + bytes > r->window_at + r->window_bytes) {
        const uint64_t n = cdp__min(end - at, CDP__CK_WINDOW);
        r->window_bytes = 0;
        err = cdp__ck_read(&r->disk, r->fd, at, r->window, n);
        if (err) return err;
        r->window_file = file;
        r->window_at = at;
        r->window_bytes = n;
    }
    memcpy(to, r->window + (at - r->window_at), (size_t)bytes);
    return 0;
}

/* Where elements `first` to `last` of a piece begin and end in the tensor. */
CDP__PRIVATE void cdp__ck_span(
    const cdp__ck_piece *p, uint64_t first, uint64_t last, uint64_t *begin, uint64_t *end) {
    const cdp__ck_run r = cdp__ck_run_at(p, last - 1, last);
    *begin = cdp__ck_run_at(p, first, last).at;
    *end = r.at + r.count;
}

/* The first place of a piece whose run ends behind element `at` of the tensor. */
CDP__PRIVATE uint64_t cdp__ck_place_behind(const cdp__ck_piece *p, uint64_t at) {
    uint64_t from = 0, to = p->count;
    while (from < to) {
        const uint64_t half = from + (to - from) / 2;
        const cdp__ck_run r = cdp__ck_run_at(p, half, p->count);
        if (r.at + r.count > at)
            to = half;
        else
            from = half + 1;
    }
    return from;
}

/* Reads what a block has of elements `first` to `last` of a piece: both have runs in the order of
   the tensor. Adds to *have how many these were. */
CDP__PRIVATE int32_t cdp__ck_read_block(cdp_ckpt_reader *r, const cdp__ck_entry *e,
    cdp__ck_block *b, const cdp__ck_piece *p, uint64_t first, uint64_t last, uint8_t *to,
    cdp__ck_got *got, void *user, uint64_t *have) {
    const uint64_t elem = cdp__dtype_row_of(e->dtype)->bytes, most = CDP__CK_AT_ONCE / elem;
    const cdp__ck_piece q = cdp__ck_piece_in(e, &b->box);
    uint64_t mine = first, theirs, span[4];
    int32_t err = 0;
    if (!q.count) return 0;
    cdp__ck_span(p, first, last, &span[0], &span[1]);
    cdp__ck_span(&q, 0, q.count, &span[2], &span[3]);
    if (span[0] >= span[3] || span[2] >= span[1]) return 0;
    theirs = cdp__ck_place_behind(&q, span[0]);
    if (b->archive) err = cdp__ck_reader_fd(r, b->file);
    if (!err && b->archive) err = cdp__ck_torch_open(&r->disk, &r->t, e, b, r->fd);
    while (!err && mine < last && theirs < q.count) {
        const cdp__ck_run x = cdp__ck_run_at(p, mine, last);
        const cdp__ck_run y = cdp__ck_run_at(&q, theirs, q.count);
        const uint64_t at = cdp__max(x.at, y.at);
        uint64_t stop = cdp__min(x.at + x.count, y.at + y.count);
        if (at < stop) {
            const uint64_t place = x.place + (at - x.at), n = cdp__min(stop - at, most);
            stop = at + n;
            err = cdp__ck_read_bytes(r, b->file, b->at + (y.place + (at - y.at)) * elem, n * elem,
                b->at + b->bytes, to + (place - first) * elem);
            if (!err && got) got(user, e, p, place, place + n);
            *have += n;
        }
        if (stop > x.at) mine += stop - x.at;
        if (stop > y.at) theirs += stop - y.at;
    }
    return err;
}

/* The same of all blocks of an entry. */
CDP__PRIVATE int32_t cdp__ck_read_blocks(cdp_ckpt_reader *r, const cdp__ck_entry *e,
    const cdp__ck_piece *p, uint64_t first, uint64_t last, uint8_t *to, cdp__ck_got *got,
    void *user) {
    uint64_t have = 0, i;
    int32_t err = 0;
    for (i = 0; !err && i < e->blocks; ++i) {
        cdp__ck_block *const b = &r->t.blocks[e->first_block + i];
        if (b->bytes) err = cdp__ck_read_block(r, e, b, p, first, last, to, got, user, &have);
    }
    return err || have == last - first ? err : EBADMSG;
}

/* Reads elements `first` to `last` of a piece to `to`, and calls got() for each stretch. */
CDP__PRIVATE int32_t cdp__ck_read_piece(cdp_ckpt_reader *r, const cdp__ck_entry *e,
    const cdp__ck_piece *p, uint64_t first, uint64_t last, void *to, cdp__ck_got *got, void *user) {
    const uint64_t elem = cdp__dtype_row_of(e->dtype)->bytes, most = CDP__CK_CALL / elem;
    uint8_t *const data = (uint8_t *)to;
    uint64_t place = first, next = 0;
    int32_t err;
    r->t.why = NULL; /* of an earlier error */
    if (first >= last) return 0;
    if (e->blocks) return cdp__ck_read_blocks(r, e, p, first, last, data, got, user);
    err = cdp__ck_reader_fd(r, e->file);
    while (!err && place < last) {
        const cdp__ck_run run = cdp__ck_run_at(p, place, cdp__min(last, place + most));
        if (p->run * elem >= CDP__CK_GAP || run.count == p->count) {
            next = place + run.count;
            err = cdp__ck_read(&r->disk, r->fd, e->at + run.at * elem,
                data + (place - first) * elem, run.count * elem);
        } else
            err = cdp__ck_read_window(r, e, p, place, last, &next, data + (place - first) * elem);
        if (!err && got) got(user, e, p, place, next);
        place = next;
    }
    return err;
}

CDP_API uint64_t cdp_ckpt_step_of(const cdp_ckpt_reader *r) {
    return cdp__ck_reader_lives(r) ? r->t.step : 0;
}

CDP_API uint32_t cdp_ckpt_count(const cdp_ckpt_reader *r) {
    return cdp__ck_reader_lives(r) ? (uint32_t)r->t.count : 0;
}

CDP_API uint32_t cdp_ckpt_find(const cdp_ckpt_reader *r, const char *name) {
    const bool asks = cdp__ck_reader_lives(r) && name;
    const cdp__ck_entry *const e = asks ? cdp__ck_look(&r->t, name) : NULL;
    return e ? (uint32_t)(e - r->t.entries) : UINT32_MAX;
}

CDP_API cdp_ckpt_entry cdp_ckpt_entry_at(const cdp_ckpt_reader *r, uint32_t index) {
    cdp_ckpt_entry out;
    memset(&out, 0, sizeof out);
    if (!cdp__ck_reader_lives(r) || index >= r->t.count) return out;
    out.name = cdp__ck_name(&r->t, &r->t.entries[index]);
    out.file = cdp__ck_file_name(&r->t, &r->t.entries[index]);
    out.dtype = r->t.entries[index].dtype;
    out.ndim = r->t.entries[index].ndim;
    memcpy(out.shape, r->t.entries[index].shape, sizeof out.shape);
    out.bytes = r->t.entries[index].bytes;
    out.blob = r->t.entries[index].blob;
    if (r->t.entries[index].layout) out.layout = r->t.text + r->t.entries[index].layout;
    return out;
}

CDP_API cdp_status cdp_ckpt_read(
    cdp_ckpt_reader *r, uint32_t index, const cdp_box *box, void *out) {
    const cdp__ck_entry *e;
    cdp__ck_piece p;
    const cdp_status st = cdp__ck_reader_alive(r, index, "cdp_ckpt_read");
    int32_t err;
    uint32_t d;
    if (st != CDP_OK) return st;
    e = &r->t.entries[index];
    for (d = 0; box && d < e->ndim; ++d)
        if (box->start[d] > e->shape[d] || box->size[d] > e->shape[d] - box->start[d])
            return cdp_error_set(CDP_ERR_INVALID, -1, 0,
                "cdp_ckpt_read: the box leaves '%s' in dimension %u", cdp__ck_name(&r->t, e),
                (unsigned)d);
    p = cdp__ck_piece_in(e, box);
    if (p.count && !out)
        return cdp_error_set(CDP_ERR_INVALID, -1, 0, CDP__MISSING, "cdp_ckpt_read", "out");
    err = cdp__ck_read_piece(r, e, &p, 0, p.count, out, NULL, NULL);
    return err ? cdp__ck_read_failed(r, e, err) : CDP_OK;
}

/* The error of a slab whose sum is wrong. */
CDP__PRIVATE cdp_status cdp__ck_damaged(
    const cdp_ckpt_reader *r, const cdp__ck_entry *e, uint64_t slab) {
    const uint64_t each = cdp__ck_slab_elements(&r->t, e);
    const uint64_t all = e->bytes / cdp__dtype_row_of(e->dtype)->bytes;
    return cdp_error_set(CDP_ERR_IO, -1, EBADMSG,
        "cdp_ckpt: '%s' in %s/%s is damaged: the sum of elements %llu to %llu (slab %llu) is not "
        "the one that was saved",
        cdp__ck_name(&r->t, e), r->folder, cdp__ck_file_name(&r->t, e),
        (unsigned long long)(slab * each),
        (unsigned long long)(cdp__min(slab * each + each, all) - 1), (unsigned long long)slab);
}

CDP__PRIVATE cdp_status cdp__ck_verify_run(cdp_ckpt_reader *r, const cdp__ck_entry *e) {
    const uint64_t elem = cdp__dtype_row_of(e->dtype)->bytes;
    const uint64_t each = cdp__ck_slab_elements(&r->t, e), all = e->bytes / elem;
    uint8_t *const data = (uint8_t *)cdp__alloc(r->t.os, cdp__min(r->t.slab, e->bytes));
    cdp_status st = CDP_OK;
    int32_t err = 0;
    uint64_t i;
    if (!data) return cdp_error_set(CDP_ERR_NOMEM, -1, 0, "cdp_ckpt_verify: out of memory");
    if (e->sums) err = cdp__ck_reader_fd(r, e->file);
    for (i = 0; st == CDP_OK && !err && i < e->sums; ++i) {
        const uint64_t n = cdp__min(each, all - i * each);
        err = cdp__ck_read(&r->disk, r->fd, e->at + i * each * elem, data, n * elem);
        if (!err
            && cdp__ck_sum(&r->weights, data, elem, i * each, n) != r->t.sums[e->first_sum + i])
            st = cdp__ck_damaged(r, e, i);
    }
    cdp__free(r->t.os, data);
    return err ? cdp__ck_io(err, "cannot read", cdp__ck_file_name(&r->t, e)) : st;
}

CDP_API cdp_status cdp_ckpt_verify(cdp_ckpt_reader *r, uint32_t index) {
    const cdp_status st = cdp__ck_reader_alive(r, index, "cdp_ckpt_verify");
    if (st != CDP_OK) return st;
    if (!r->step)
        return cdp_error_set(CDP_ERR_UNSUPPORTED, -1, 0,
            "cdp_ckpt_verify: %s has no checkpoint.json, and so no sums", r->folder);
    return cdp__ck_verify_run(r, &r->t.entries[index]);
}

#endif /* CDP_SRC_CHECKPOINT_READER_H */
