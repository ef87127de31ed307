/* checkpoint/steps.h - the steps in a folder

   Knows: names of folders: "step-00000123" is a checkpoint if it has a valid checkpoint.json,
   "step-00000123.tmp-" with a number was never finished, "step-00000123.tmp-swept" was one that is
   not kept. Promises: nothing but such folders, and files in them, is removed. */
#ifndef CDP_SRC_CHECKPOINT_STEPS_H
#define CDP_SRC_CHECKPOINT_STEPS_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../os/os_api.h"
#include "../os/whole.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "../text/format.h"
#include "checkpoint_api.h"
#include "reader_api.h"
#include "table.h"
#include "description.h"
#include "disk.h"

#define CDP__CK_DESCRIPTION "checkpoint.json"
#define CDP__CK_BLOBS "blobs.safetensors"
#define CDP__CK_DESCRIPTION_MAX (1u << 30) /* bytes */
#define CDP__CK_SWEPT_END ".tmp-swept"

CDP__PRIVATE void cdp__ck_step_name(char out[64], uint64_t step) {
    cdp__text t = cdp__text_of(out, 64);
    cdp__text_add(&t, "step-");
    cdp__ck_digits(&t, step, 8);
    (void)cdp__text_end(&t);
}

/* What a name in the folder is. */
typedef enum cdp__ck_kind {
    CDP__CK_OTHER,
    CDP__CK_STEP,
    CDP__CK_SWEPT,
    CDP__CK_LEFTOVER
} cdp__ck_kind;

CDP__PRIVATE cdp__ck_kind cdp__ck_kind_of(const char *name, uint64_t *step) {
    char own[64];
    const char *at = name + 5;
    *step = 0;
    if (strncmp(name, "step-", 5) != 0) return CDP__CK_OTHER;
    for (; *at >= '0' && *at <= '9' && *step < UINT64_MAX / 20; ++at)
        *step = *step * 10 + (uint64_t)(*at - '0');
    cdp__ck_step_name(own, *step);
    if (strncmp(own, name, strlen(own)) != 0 || (uint64_t)(at - name) != strlen(own))
        return CDP__CK_OTHER;
    if (!*at) return CDP__CK_STEP;
    if (strcmp(at, CDP__CK_SWEPT_END) == 0) return CDP__CK_SWEPT;
    return strncmp(at, ".tmp-", 5) == 0 ? CDP__CK_LEFTOVER : CDP__CK_OTHER;
}

/* Looks for the highest step below `below`, and for a folder that was never finished. */
typedef struct cdp__ck_listing {
    cdp__ck_kind kind; /* CDP__CK_STEP or CDP__CK_SWEPT: of steps that are kept, or are not */
    uint64_t below, step;
    bool found, left, file;
    char leftover[128], after[128]; /* or, of any folder, its first file after this one */
} cdp__ck_listing;

CDP__PRIVATE void cdp__ck_list_step(void *user, const char *name) {
    cdp__ck_listing *const l = (cdp__ck_listing *)user;
    uint64_t step;
    const cdp__ck_kind kind = cdp__ck_kind_of(name, &step);
    if (kind == CDP__CK_LEFTOVER && strlen(name) < sizeof l->leftover) {
        memcpy(l->leftover, name, strlen(name) + 1);
        l->left = true;
    }
    if (kind != l->kind || step >= l->below || (l->found && step < l->step)) return;
    l->step = step;
    l->found = true;
}

CDP__PRIVATE int32_t cdp__ck_list_kind(const cdp__ck_disk *d, const char *path, cdp__ck_kind kind,
    uint64_t below, cdp__ck_listing *l) {
    int32_t r;
    memset(l, 0, sizeof *l);
    l->kind = kind;
    l->below = below;
    r = d->os->files.list_folder(d->os->user, path, cdp__ck_list_step, l);
    return r < 0 ? -r : 0;
}

CDP__PRIVATE int32_t cdp__ck_list(
    const cdp__ck_disk *d, const char *path, uint64_t below, cdp__ck_listing *l) {
    return cdp__ck_list_kind(d, path, CDP__CK_STEP, below, l);
}

/* Reads the checkpoint.json of a folder into a table. False: it has no valid one, and *err is the
   errno (ENOENT: none at all) or EBADMSG. */
CDP__PRIVATE bool cdp__ck_describe(
    cdp__ck_disk *d, const char *folder, cdp__ck_table *t, int32_t *err) {
    char path[CDP__CK_PATH], *data;
    uint64_t bytes = 0, twice;
    bool ok;
    cdp__ck_path(path, folder, CDP__CK_DESCRIPTION);
    *err = cdp__ck_read_whole(d, path, CDP__CK_DESCRIPTION_MAX, &data, &bytes);
    if (*err) return false;
    ok = cdp__ck_read_description(t, data, bytes) && cdp__ck_index(t, &twice);
    cdp__free(d->os, data);
    if (!ok) *err = t->status == CDP_ERR_NOMEM ? ENOMEM : EBADMSG;
    return ok;
}

/* Whether a step exists. EBADMSG: its checkpoint.json is damaged, or another step's. */
CDP__PRIVATE bool cdp__ck_complete(cdp__ck_disk *d, const char *path, uint64_t step, int32_t *err) {
    char name[64], folder[CDP__CK_PATH];
    cdp__ck_table t;
    bool ok;
    cdp__ck_step_name(name, step);
    cdp__ck_path(folder, path, name);
    cdp__ck_table_open(&t, d->os);
    ok = cdp__ck_describe(d, folder, &t, err);
    if (ok && t.step != step) {
        *err = EBADMSG;
        ok = false;
    }
    cdp__ck_table_close(&t);
    return ok;
}

/* The newest complete step below `below`. ENOENT: there is none. */
CDP__PRIVATE int32_t cdp__ck_newest(
    cdp__ck_disk *d, const char *path, uint64_t below, uint64_t *step) {
    cdp__ck_listing l;
    for (;;) {
        int32_t err = cdp__ck_list(d, path, below, &l);
        if (err) return err;
        if (!l.found) return ENOENT;
        if (cdp__ck_complete(d, path, l.step, &err)) {
            *step = l.step;
            return 0;
        }
        if (err != ENOENT && err != EBADMSG) return err;
        below = l.step;
    }
}

CDP__PRIVATE void cdp__ck_list_file(void *user, const char *name) {
    cdp__ck_listing *const l = (cdp__ck_listing *)user;
    if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0) return;
    if (strcmp(name, l->after) <= 0 || strlen(name) >= sizeof l->leftover) return;
    if (l->file && strcmp(name, l->leftover) > 0) return;
    memcpy(l->leftover, name, strlen(name) + 1);
    l->file = true;
}

/* Removes a folder that is no step, or as much of it as can be removed. After a power cut some of
   it may be there again. */
CDP__PRIVATE int32_t cdp__ck_remove_folder(
    const cdp__ck_disk *d, const char *path, const char *name) {
    char folder[CDP__CK_PATH], file[CDP__CK_PATH];
    cdp__ck_listing l;
    int32_t r, err = 0;
    cdp__ck_path(folder, path, name);
    memset(&l, 0, sizeof l);
    for (;;) {
        l.file = false;
        r = d->os->files.list_folder(d->os->user, folder, cdp__ck_list_file, &l);
        if (r < 0) return -r;
        if (!l.file) break;
        cdp__ck_path(file, folder, l.leftover);
        r = -d->os->files.remove_file(d->os->user, file);
        if (!err) err = r;
        memcpy(l.after, l.leftover, sizeof l.after);
    }
    return err ? err : -d->os->files.remove_folder(d->os->user, folder);
}

CDP__PRIVATE void cdp__ck_swept_name(char out[80], uint64_t step) {
    char name[64];
    cdp__ck_step_name(name, step);
    (void)cdp__format(out, 80, "%s" CDP__CK_SWEPT_END, name);
}

/* Removes a step where nothing is renamed: a folder without checkpoint.json is no step. */
CDP__PRIVATE int32_t cdp__ck_unmake_step(
    const cdp__ck_disk *d, const char *path, const char *name) {
    char folder[CDP__CK_PATH], file[CDP__CK_PATH];
    int32_t err;
    cdp__ck_path(folder, path, name);
    cdp__ck_path(file, folder, CDP__CK_DESCRIPTION);
    err = -d->os->files.remove_file(d->os->user, file);
    if (!err || err == ENOENT) err = cdp__ck_sync_folder(d, folder); /* it may be gone unsynced */
    return err && err != ENOENT ? err : cdp__ck_remove_folder(d, path, name);
}

/* Removes a step, which first becomes a leftover for good: no cut leaves a part of it as a step. */
CDP__PRIVATE int32_t cdp__ck_remove_step(const cdp__ck_disk *d, const char *path, uint64_t step) {
    char name[64], swept[80], from[CDP__CK_PATH], to[CDP__CK_PATH];
    int32_t err;
    cdp__ck_step_name(name, step);
    if (d->no_rename) return cdp__ck_unmake_step(d, path, name);
    cdp__ck_swept_name(swept, step);
    cdp__ck_path(from, path, name);
    cdp__ck_path(to, path, swept);
    err = -d->os->files.rename_file(d->os->user, from, to);
    if (!err) err = cdp__ck_sync_folder(d, path);
    return err ? err : cdp__ck_remove_folder(d, path, swept);
}

/* Removes a rest of an earlier save; it may be gone already. */
CDP__PRIVATE cdp_status cdp__ck_remove_rest(
    const cdp__ck_disk *d, const char *path, const char *name) {
    const int32_t err = cdp__ck_remove_folder(d, path, name);
    if (!err || err == ENOENT) return CDP_OK;
    return cdp_error_set(CDP_ERR_IO, -1, err,
        "cdp_ckpt_save: cannot remove %s/%s, which an earlier save left: it is no checkpoint; make "
        "it and what is in it removable, or move it away",
        path, name);
}

/* Removes what is left of steps that were swept, as far as that goes: where a program has put a
   folder into one of them, or a reader has a file open, a save succeeds all the same. */
CDP__PRIVATE void cdp__ck_sweep_again(const cdp__ck_disk *d, const char *path) {
    cdp__ck_listing l;
    uint64_t below = UINT64_MAX;
    while (cdp__ck_list_kind(d, path, CDP__CK_SWEPT, below, &l) == 0 && l.found) {
        char name[80];
        below = l.step;
        cdp__ck_swept_name(name, l.step);
        (void)cdp__ck_remove_folder(d, path, name);
    }
}

/* Removes what earlier saves did not finish. */
CDP__PRIVATE cdp_status cdp__ck_sweep_leftovers(const cdp__ck_disk *d, const char *path) {
    cdp__ck_listing l;
    int32_t err;
    cdp__ck_sweep_again(d, path);
    while ((err = cdp__ck_list(d, path, 0, &l)) == 0 && l.left)
        if (cdp__ck_remove_rest(d, path, l.leftover) != CDP_OK) return cdp_last_error()->status;
    return err ? cdp__ck_io(err, "cannot list", path) : CDP_OK;
}

/* Removes steps beyond the newest `keep`, but not `saved`, nor multiples of `every`. One that
   cannot be removed now is tried again when the next step is saved. */
CDP__PRIVATE void cdp__ck_sweep_steps(
    cdp__ck_disk *d, const char *path, uint64_t saved, uint32_t keep, uint64_t every) {
    uint64_t below = UINT64_MAX;
    uint32_t kept = 0;
    cdp__ck_listing l;
    while (cdp__ck_list(d, path, below, &l) == 0 && l.found) {
        int32_t why = 0;
        const bool whole = cdp__ck_complete(d, path, l.step, &why), half = why == ENOENT;
        below = l.step;
        if (!half && (l.step == saved || kept < keep || (every && l.step % every == 0))) {
            if (whole) ++kept; /* what is damaged stays, and does not count */
            continue;
        }
        (void)cdp__ck_remove_step(d, path, l.step);
    }
}

CDP_API cdp_status cdp_ckpt_newest(const char *path, const cdp_os *os, uint64_t *step) {
    cdp__ck_disk d;
    int32_t err;
    if (!path || !step)
        return cdp_error_set(
            CDP_ERR_INVALID, -1, 0, CDP__MISSING, "cdp_ckpt_newest", path ? "step" : "path");
    *step = 0;
    if (cdp__os_whole(os, "cdp_ckpt_newest") != CDP_OK) return CDP_ERR_INVALID;
    memset(&d, 0, sizeof d);
    d.os = os ? os : cdp_os_default();
    if (strlen(path) > CDP__CK_PATH_MAX || !d.os->files.list_folder)
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_ckpt_newest: path is longer than %u bytes, or the os cannot list folders",
            CDP__CK_PATH_MAX);
    err = cdp__ck_newest(&d, path, UINT64_MAX, step);
    if (err == ENOENT)
        return cdp_error_set(
            CDP_ERR_STATE, -1, 0, "cdp_ckpt: there is no complete step in %s", path);
    return err ? cdp__ck_io(err, "cannot list", path) : CDP_OK;
}

#endif /* CDP_SRC_CHECKPOINT_STEPS_H */
