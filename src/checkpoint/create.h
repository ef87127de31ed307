/* checkpoint/create.h - a cdp_ckpt, and what it would write

   Knows: the desc. Promises: what it refuses has no effect. */
#ifndef CDP_SRC_CHECKPOINT_CREATE_H
#define CDP_SRC_CHECKPOINT_CREATE_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../os/os_api.h"
#include "../os/whole.h"
#include "../group/group_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/ended.h"
#include "../base/bytes.h"
#include "../base/text.h"
#include "../os/child.h"
#include "checkpoint_api.h"
#include "sums.h"
#include "pieces.h"
#include "table.h"
#include "plan.h"
#include "disk.h"

typedef struct cdp__ck_progress {
    uint64_t done, total; /* bytes */
} cdp__ck_progress;

struct cdp_ckpt {
    cdp_ckpt_desc desc;
    char path[CDP__CK_PATH_MAX + 1];
    const cdp_os *memory; /* of the group, which may be destroyed before */
    uint32_t forks;       /* see cdp__is_child() */
    cdp__ck_disk disk;
    cdp_ckpt_info info;
    cdp__ck_progress progress;
    struct cdp__ck_save *saving; /* in the background */
    bool asynced;                /* it was, once: the same on all ranks */
    bool path_synced;            /* rank 0: the name of the folder of the job is on disk */
    void *stage;                 /* copies of what is being written; kept for the next save */
    uint64_t stage_room;
    cdp__ck_weights weights;
};

/* Refuses no checkpoint, one that was destroyed or is of the parent, and one without its group. */
CDP__PRIVATE cdp_status cdp__ck_alive(const cdp_ckpt *c, const char *call) {
    if (!c) return cdp__missing(call, "ckpt");
    if (cdp__ended(c)) return cdp__fail(CDP_ERR_STATE, "%s: this cdp_ckpt was destroyed", call);
    if (cdp__is_child(c->forks)) return cdp__child_refuses(CDP_ERR_STATE, call, "cdp_ckpt");
    if (!cdp_group_desc_of(c->desc.group))
        return cdp__fail(
            CDP_ERR_STATE, "%s: the group of this cdp_ckpt was destroyed before it", call);
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__ck_speed_check(const cdp_ckpt_desc *d, const char *call) {
    if (d->disk_bytes_per_us >= 0 && d->disk_bytes_per_us <= 1e15) return CDP_OK;
    return cdp__fail(CDP_ERR_INVALID,
        "%s: desc.disk_bytes_per_us is negative or no number; bytes in a microsecond, such as 750",
        call);
}

/* How long the disk needs for so many bytes of all ranks. */
CDP__PRIVATE double cdp__ck_predict(const cdp_ckpt_desc *d, uint64_t bytes) {
    return (double)bytes / (d->disk_bytes_per_us > 0 ? d->disk_bytes_per_us : 750);
}

CDP__PRIVATE cdp_status cdp__ck_desc_check(const cdp_ckpt_desc *d, const cdp_os *os) {
    const cdp_os_files *const f = &os->files;
    if (cdp__os_whole(d->os, "cdp_ckpt_create") != CDP_OK) return CDP_ERR_INVALID;
    if (cdp__ck_speed_check(d, "cdp_ckpt_create") != CDP_OK) return CDP_ERR_INVALID;
    if (!d->path) return cdp__missing("cdp_ckpt_create", "desc.path");
    if (!*d->path || strlen(d->path) > CDP__CK_PATH_MAX)
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_ckpt_create: desc.path is empty, or longer than %u bytes", CDP__CK_PATH_MAX);
    if ((d->item_count && !d->items) || (d->blob_count && !d->blobs))
        return cdp_error_set(CDP_ERR_INVALID, -1, 0, CDP__MISSING, "cdp_ckpt_create",
            d->item_count && !d->items ? "desc.items" : "desc.blobs");
    if (!f->open_file || !f->rename_file || !f->sync_file || !f->make_folder || !f->remove_folder
        || !f->list_folder || !f->sync_folder)
        return cdp_error_set(CDP_ERR_UNSUPPORTED, -1, 0,
            "cdp_ckpt_create: the os has no files, or cannot sync them or list folders: set all "
            "of cdp_os.files");
    if (cdp__byte_order() != 1)
        return cdp_error_set(CDP_ERR_UNSUPPORTED, -1, 0,
            "cdp_ckpt_create: files are little-endian, this machine is not");
    return CDP_OK;
}

CDP_API cdp_status cdp_ckpt_create(const cdp_ckpt_desc *desc, cdp_ckpt **out) {
    const cdp_os *os;
    cdp_ckpt *c;
    cdp_status st;
    if (!out) return cdp_error_set(CDP_ERR_INVALID, -1, 0, CDP__MISSING, "cdp_ckpt_create", "out");
    *out = NULL;
    if (!desc || !desc->group)
        return cdp_error_set(
            CDP_ERR_INVALID, -1, 0, CDP__MISSING, "cdp_ckpt_create", desc ? "desc.group" : "desc");
    if (!cdp_group_desc_of(desc->group))
        return cdp__fail(CDP_ERR_STATE, "cdp_ckpt_create: the group was destroyed");
    os = cdp_group_desc_of(desc->group)->os;
    st = cdp__ck_desc_check(desc, desc->os ? desc->os : os);
    if (st != CDP_OK) return st;
    c = (cdp_ckpt *)cdp__alloc_zero(os, sizeof *c);
    if (!c)
        return cdp_error_set(CDP_ERR_NOMEM, -1, 0, "out of memory: a cdp_ckpt needs %llu bytes",
            (unsigned long long)sizeof *c);
    cdp__ended_remove(c);
    c->forks = cdp__forks_watch();
    c->memory = os;
    c->desc = *desc;
    memcpy(c->path, desc->path, strlen(desc->path) + 1);
    c->desc.path = c->path;
    c->disk.os = desc->os ? desc->os : os;
    c->disk.no_sync = desc->no_sync;
    c->disk.no_rename = desc->no_rename;
    cdp__ck_weights_fill(&c->weights);
    *out = c;
    return CDP_OK;
}

CDP__PRIVATE void cdp__ck_progressed(const cdp_ckpt_desc *d, cdp__ck_progress *p, uint64_t bytes) {
    p->done += bytes;
    if (d->progress) d->progress(d->user, p->done, p->total);
}

CDP_API cdp_ckpt_info cdp_ckpt_info_of(const cdp_ckpt *c) {
    cdp_ckpt_info none;
    memset(&none, 0, sizeof none);
    return c && !cdp__ended(c) ? c->info : none;
}

/* Adds what this rank writes of an entry. */
CDP__PRIVATE void cdp__ck_preview_entry(
    const cdp_ckpt_desc *d, const cdp__ck_entry *e, cdp_ckpt_info *out) {
    const uint64_t elem = cdp__dtype_row_of(e->dtype)->bytes;
    const uint32_t rank = d->group ? cdp_rank(d->group) : 0;
    const uint32_t size = d->group ? cdp_size(d->group) : 1;
    const cdp__ck_piece p = cdp__ck_item_piece(&d->items[e->item], rank, size);
    uint64_t place = p.first;
    out->total_bytes += e->bytes;
    out->bytes_written += (p.last - p.first) * elem;
    while (place < p.last) {
        const cdp__ck_run r = cdp__ck_run_at(&p, place, p.last);
        out->writes += (r.count * elem + CDP__CK_CALL - 1) / CDP__CK_CALL;
        place += r.count;
    }
}

CDP_API cdp_status cdp_ckpt_preview(const cdp_ckpt_desc *desc, cdp_ckpt_info *out) {
    const cdp_os *os = NULL;
    cdp__ck_table t;
    cdp_status st;
    uint64_t i;
    if (!desc || !out)
        return cdp_error_set(
            CDP_ERR_INVALID, -1, 0, CDP__MISSING, "cdp_ckpt_preview", desc ? "out" : "desc");
    memset(out, 0, sizeof *out);
    if (cdp__ck_speed_check(desc, "cdp_ckpt_preview") != CDP_OK) return CDP_ERR_INVALID;
    if (desc->group) os = cdp_group_desc_of(desc->group)->os;
    if (cdp__os_whole(desc->os, "cdp_ckpt_preview") != CDP_OK) return CDP_ERR_INVALID;
    if (!os) os = desc->os ? desc->os : cdp_os_default();
    if (desc->item_count && !desc->items)
        return cdp_error_set(CDP_ERR_INVALID, -1, 0, CDP__MISSING, "cdp_ckpt_preview", "items");
    cdp__ck_table_open(&t, os);
    st = cdp__ck_plan(&t, desc);
    if (st == CDP_OK) st = cdp__ck_plan_limits(&t);
    for (i = 0; st == CDP_OK && i < t.count; ++i)
        cdp__ck_preview_entry(desc, &t.entries[i], out);
    out->files = t.file_count;
    out->predicted_us = cdp__ck_predict(desc, out->total_bytes);
    cdp__ck_table_close(&t);
    return st;
}

#endif /* CDP_SRC_CHECKPOINT_CREATE_H */
