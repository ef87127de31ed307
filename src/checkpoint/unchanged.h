/* checkpoint/unchanged.h - files that have not changed since the newest step

   Knows: sums of what is saved, and the newest step in the folder. Promises: all ranks leave out
   the same files; where the older step cannot be read, all are written. */
#ifndef CDP_SRC_CHECKPOINT_UNCHANGED_H
#define CDP_SRC_CHECKPOINT_UNCHANGED_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../os/os_api.h"
#include "../group/group_api.h"
#include "../group/collectives_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../dtype/dtype.h"
#include "checkpoint_api.h"
#include "sums.h"
#include "pieces.h"
#include "table.h"
#include "disk.h"
#include "steps.h"
#include "verdict.h"
#include "create.h"
#include "save.h"
#include "write.h"

/* Sums what this rank would write of an entry. */
CDP__PRIVATE void cdp__ck_sum_share(cdp__ck_save *s, uint64_t entry) {
    const cdp__ck_entry *const e = &s->t.entries[entry];
    const cdp__ck_share *const h = &s->shares[entry];
    const uint64_t elem = cdp__dtype_row_of(e->dtype)->bytes;
    const uint64_t slab = cdp__ck_slab_elements(&s->t, e);
    uint64_t place = h->p.first;
    while (place < h->p.last) {
        const cdp__ck_run r = cdp__ck_run_at(&h->p, place, h->p.last);
        cdp__ck_sum_slabs(&s->c->weights, h->at + (place - h->first) * elem, elem, r.at, r.count,
            slab, s->t.sums + e->first_sum);
        place += r.count;
    }
}

CDP__PRIVATE bool cdp__ck_same_entry(const cdp__ck_table *t, const cdp__ck_entry *e,
    const cdp__ck_table *old, const cdp__ck_entry *was) {
    return !was->blob && was->dtype == e->dtype && was->ndim == e->ndim && was->at == e->at
        && was->sums == e->sums && memcmp(was->shape, e->shape, e->ndim * sizeof *e->shape) == 0
        && strcmp(cdp__ck_file_name(old, was), cdp__ck_file_name(t, e)) == 0
        && memcmp(old->sums + was->first_sum, t->sums + e->first_sum,
               (size_t)(e->sums * sizeof *t->sums))
        == 0;
}

#define CDP__CK_HELD 64u /* files of an older step that are open at once */

/* Whether the older step has a file of this name and length on disk, which then stays open: the
   step may be removed before the file is linked. Of many files the first ones alone stay open. */
CDP__PRIVATE bool cdp__ck_is_there(cdp__ck_save *s, cdp__ck_file *f, uint32_t *held) {
    const cdp_os *const os = s->disk.os;
    char path[CDP__CK_PATH];
    cdp_file_info info;
    int32_t fd, err;
    cdp__ck_path(path, s->from, s->t.text + f->name);
    err = cdp__ck_open_file(&s->disk, path, 0, &fd);
    if (err) return false;
    err = -os->files.file_info(os->user, fd, &info);
    if (!err && info.regular && info.bytes == f->bytes && *held < CDP__CK_HELD) {
        f->held = fd + 1;
        ++*held;
        return true;
    }
    cdp__ck_close_file(&s->disk, fd, &err);
    return !err && info.regular && info.bytes == f->bytes;
}

/* Marks the files that the older step has; entries of a file are all of it. */
CDP__PRIVATE void cdp__ck_mark_same(cdp__ck_save *s, const cdp__ck_table *old, uint8_t *marks) {
    uint64_t i;
    uint32_t held = 0;
    if (old->slab != s->t.slab) return;
    memset(marks, 1, (size_t)s->tensor_files);
    for (i = 0; i < s->tensor_count; ++i) {
        const cdp__ck_entry *const e = &s->t.entries[i];
        const cdp__ck_entry *const was = cdp__ck_look(old, cdp__ck_name(&s->t, e));
        if (!was || !cdp__ck_same_entry(&s->t, e, old, was)) marks[e->file] = 0;
    }
    for (i = 0; i < s->tensor_files; ++i)
        if (marks[i]) marks[i] = cdp__ck_is_there(s, &s->t.files[i], &held);
}

/* Rank 0: marks what is the same in the newest step; nothing, if that cannot be read. */
CDP__PRIVATE void cdp__ck_mark(cdp__ck_save *s, uint8_t *marks) {
    cdp__ck_table old;
    uint64_t step;
    int32_t err;
    char name[64];
    if (cdp__ck_newest(&s->disk, s->c->path, UINT64_MAX, &step)) return;
    cdp__ck_step_name(name, step);
    cdp__ck_path(s->from, s->c->path, name);
    cdp__ck_table_open(&old, s->disk.os);
    if (cdp__ck_describe(&s->disk, s->from, &old, &err)) cdp__ck_mark_same(s, &old, marks);
    cdp__ck_table_close(&old);
}

/* Nothing of a marked file is written or copied. Its sums are counted once, by rank 0, those of
   others again while they are written. */
CDP__PRIVATE void cdp__ck_leave_out(cdp__ck_save *s, const uint8_t *marks) {
    uint64_t i;
    for (i = 0; i < s->tensor_files; ++i) {
        s->t.files[i].linked = marks[i] != 0;
        s->info.linked_files += marks[i];
    }
    for (i = 0; i < s->tensor_count; ++i) {
        const cdp__ck_entry *const e = &s->t.entries[i];
        cdp__ck_piece *const p = &s->shares[i].p;
        const bool linked = marks[e->file] != 0;
        if (!linked || cdp_rank(s->group))
            memset(s->t.sums + e->first_sum, 0, (size_t)(e->sums * sizeof *s->t.sums));
        if (!linked) continue;
        s->info.linked_bytes += e->bytes;
        s->rest -= (p->last - p->first) * cdp__dtype_row_of(e->dtype)->bytes;
        p->last = p->first;
    }
    s->progress.total = s->rest;
}

/* Leaves out what has not changed. Collective, before blobs are added. */
CDP__PRIVATE cdp_status cdp__ck_unchanged(cdp__ck_save *s) {
    uint8_t *const marks = (uint8_t *)cdp__alloc_zero(s->t.os, s->tensor_files + 1);
    cdp_status st = CDP_OK;
    uint64_t i;
    if (!marks) st = cdp_error_set(CDP_ERR_NOMEM, -1, 0, "cdp_ckpt: out of memory");
    st = cdp__ck_verdict(s->group, st);
    for (i = 0; st == CDP_OK && i < s->tensor_count; ++i)
        cdp__ck_sum_share(s, i);
    if (st == CDP_OK && s->tensor_sums)
        st =
            cdp_allreduce(s->group, NULL, s->t.sums, s->tensor_sums, CDP_DTYPE_U64, CDP_REDUCE_SUM);
    if (st == CDP_OK && cdp_rank(s->group) == 0) cdp__ck_mark(s, marks);
    if (st == CDP_OK && s->tensor_files)
        st = cdp_broadcast(s->group, marks, s->tensor_files, CDP_DTYPE_U8, 0);
    if (st == CDP_OK) cdp__ck_leave_out(s, marks);
    cdp__free(s->t.os, marks);
    return st;
}

#endif /* CDP_SRC_CHECKPOINT_UNCHANGED_H */
