/* checkpoint/background.h - saving: in the call, in a thread of its own, or in frames

   Knows: who drives a save, and when the program's memory is its own again. Promises: one save at a
   time; how it ended reaches the program at the next call, on all ranks. */
#ifndef CDP_SRC_CHECKPOINT_BACKGROUND_H
#define CDP_SRC_CHECKPOINT_BACKGROUND_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/error_api.h"
#include "../os/os_api.h"
#include "../group/group_api.h"
#include "../group/collectives_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "../os/linux.h"
#include "checkpoint_api.h"
#include "table.h"
#include "plan.h"
#include "disk.h"
#include "steps.h"
#include "verdict.h"
#include "create.h"
#include "agree.h"
#include "save.h"
#include "write.h"
#include "unchanged.h"
#include "run.h"

/* ---- before and after ---- */

CDP__PRIVATE cdp_status cdp__ck_save_plan(cdp__ck_save *s) {
    cdp_ckpt *const c = s->c;
    cdp_status st = cdp__ck_plan(&s->t, &c->desc);
    uint64_t i;
    if (st == CDP_OK) st = cdp__ck_plan_limits(&s->t);
    if (st == CDP_OK) st = cdp__ck_memory_check(c);
    st = cdp__ck_verdict(c->desc.group, st);
    if (st == CDP_OK) st = cdp__ck_agree(c, s->step, c->path);
    if (st == CDP_OK) st = cdp__ck_covered(c, &s->t);
    if (st != CDP_OK) return st;
    s->tensor_files = s->info.files = s->t.file_count;
    s->tensor_sums = s->t.sum_count;
    s->t.step = s->info.step = s->step;
    for (i = 0; i < s->t.count; ++i)
        s->info.total_bytes += s->t.entries[i].bytes;
    if (!cdp__ck_shares(s)) st = cdp_error_set(CDP_ERR_NOMEM, -1, 0, "cdp_ckpt: out of memory");
    st = cdp__ck_verdict(c->desc.group, st);
    if (st == CDP_OK && c->desc.incremental) st = cdp__ck_unchanged(s);
    s->info.predicted_us = cdp__ck_predict(&c->desc, s->info.total_bytes - s->info.linked_bytes);
    return st;
}

CDP__PRIVATE void cdp__ck_save_close(cdp__ck_save *s) {
    const cdp_os *const os = s->t.os;
    const cdp_error kept = *cdp_last_error();
    if (s->thread) os->threads.join(os, s->thread);
    cdp__ck_let_go(s);
    if (s->group != s->c->desc.group) cdp_group_destroy(s->group);
    if (s->cond) os->threads.cond_destroy(os, s->cond);
    cdp__lock_close(&s->lock);
    cdp__free(os, s->blobs);
    cdp__free(os, s->shares);
    cdp__ck_table_close(&s->t);
    cdp__free(os, s);
    *cdp__error_slot() = kept;
}

/* Ends a save that has ended, and says how. */
CDP__PRIVATE cdp_status cdp__ck_save_end(cdp__ck_save *s) {
    const cdp_status st = s->status;
    s->info.stage_bytes = s->stage_bytes;
    s->info.stall_ns = s->stall_ns;
    s->c->info = s->info;
    s->c->saving = NULL;
    if (st != CDP_OK) *cdp__error_slot() = s->error;
    cdp__ck_save_close(s);
    return st;
}

CDP__PRIVATE void cdp__ck_thread(void *arg) {
    cdp__ck_save *const s = (cdp__ck_save *)arg;
    (void)cdp__ck_run_save(s, CDP__NEVER);
    cdp__lock_take(&s->lock);
    s->ended = true;
    cdp__ck_signal(s);
    cdp__lock_give(&s->lock);
}

/* True: it has ended. */
CDP__PRIVATE bool cdp__ck_until(cdp__ck_save *s, uint64_t deadline) {
    const cdp_os *const os = s->t.os;
    bool ended;
    if (!s->thread) return cdp__ck_run_save(s, deadline);
    cdp__lock_take(&s->lock);
    while (!s->ended && os->now_ns(os->user) < deadline)
        os->threads.cond_wait(os->user, s->cond, s->lock.mutex, deadline);
    ended = s->ended;
    cdp__lock_give(&s->lock);
    return ended;
}

/* Before any other call: how an earlier save ended, on all ranks. */
CDP__PRIVATE cdp_status cdp__ck_enter(cdp_ckpt *c, const char *call) {
    uint32_t runs, any = 0;
    bool told;
    cdp_status st = CDP_OK;
    if (!c->asynced) return CDP_OK;
    runs = c->saving && !cdp__ck_until(c->saving, 0);
    st = cdp_allreduce(c->desc.group, &runs, &any, 1, CDP_DTYPE_U32, CDP_REDUCE_MAX);
    if (st != CDP_OK) return st;
    if (any)
        return cdp_error_set(CDP_ERR_BUSY, -1, 0,
            "%s: an earlier save is still being written; call cdp_ckpt_wait() before", call);
    told = c->saving && c->saving->told;
    return cdp__ck_verdict_of(
        c->desc.group, c->saving ? cdp__ck_save_end(c->saving) : CDP_OK, told);
}

/* Plans a save and gathers blobs; *out is NULL after a failure. All ranks return the same. */
CDP__PRIVATE cdp_status cdp__ck_save_open(
    cdp_ckpt *c, uint64_t step, const char *call, cdp__ck_save **out) {
    cdp__ck_save *s;
    cdp_status st = cdp__ck_alive(c, call);
    const cdp_os *os;
    *out = NULL;
    if (st != CDP_OK) return st;
    if (step > (uint64_t)INT64_MAX / 32)
        return cdp_error_set(
            CDP_ERR_INVALID, -1, 0, "%s: step %llu is too large", call, (unsigned long long)step);
    st = cdp__ck_enter(c, call);
    if (st != CDP_OK) return st;
    os = cdp_group_desc_of(c->desc.group)->os;
    s = (cdp__ck_save *)cdp__alloc_zero(os, sizeof *s);
    st = s ? CDP_OK : cdp_error_set(CDP_ERR_NOMEM, -1, 0, "%s: out of memory", call);
    if (st != CDP_OK) return cdp__ck_verdict(c->desc.group, st);
    s->c = c;
    s->group = c->desc.group;
    s->disk = c->disk;
    s->step = step;
    s->lock_file = s->file = -1;
    s->claimed = CDP__CK_NOTHING;
    cdp__ck_table_open(&s->t, os);
    cdp__ck_step_name(s->name, step);
    st = cdp__ck_save_plan(s);
    if (st == CDP_OK) st = cdp__ck_verdict(c->desc.group, cdp__ck_blobs(s));
    if (st == CDP_OK)
        *out = s;
    else
        cdp__ck_save_close(s);
    return st;
}

/* ---- in the background ---- */

/* What a save in the background has for itself. */
CDP__PRIVATE cdp_status cdp__ck_apart(cdp__ck_save *s, bool threads) {
    const cdp_ckpt_desc *const d = &s->c->desc;
    const uint32_t n = cdp_size(d->group);
    cdp_group *own = NULL;
    uint32_t *const ranks = (uint32_t *)cdp__alloc(s->t.os, n * sizeof *ranks), r;
    cdp_status st;
    if (!ranks) return cdp_error_set(CDP_ERR_NOMEM, -1, 0, "cdp_ckpt_save_async: out of memory");
    for (r = 0; r < n; ++r)
        ranks[r] = r;
    st = cdp_group_new(d->group, ranks, n, &own);
    cdp__free(s->t.os, ranks);
    if (st != CDP_OK) return st;
    s->group = own;
    if (!cdp__lock_open(&s->lock, s->t.os, threads)) st = CDP_ERR_NOMEM;
    if (st == CDP_OK && threads) {
        s->cond = s->t.os->threads.cond_create(s->t.os);
        if (!s->cond) st = CDP_ERR_NOMEM;
    }
    return st == CDP_OK
        ? st
        : cdp_error_set(CDP_ERR_NOMEM, -1, 0, "cdp_ckpt_save_async: out of memory for a lock");
}

/* Waits until at most `most` bytes are neither written nor copied, or, with `live`, until no chunk
   is being written from the program's memory. TIMEOUT: of the group. */
CDP__PRIVATE cdp_status cdp__ck_stage_wait(cdp__ck_save *s, uint64_t most, bool live) {
    const cdp_os *const os = s->t.os;
    const uint32_t timeout = cdp_group_desc_of(s->c->desc.group)->timeout_ms;
    const uint64_t deadline = cdp__deadline(os, timeout);
    bool waits;
    cdp__lock_take(&s->lock);
    while ((waits = live ? s->live : s->rest > most) && os->now_ns(os->user) < deadline) {
        if (s->thread)
            os->threads.cond_wait(os->user, s->cond, s->lock.mutex, deadline);
        else
            (void)cdp__ck_run_save(s, 0);
    }
    cdp__lock_give(&s->lock);
    if (!waits) return CDP_OK;
    return cdp_error_set(CDP_ERR_TIMEOUT, -1, 0,
        "cdp_ckpt_staged: %u ms were too short for what must be written first; set a longer "
        "timeout of the group, or a larger stage_bytes",
        (unsigned)timeout);
}

/* The most memory for copies. */
CDP__PRIVATE uint64_t cdp__ck_stage_most(const cdp__ck_save *s) {
    return s->c->desc.stage_bytes ? s->c->desc.stage_bytes : UINT64_MAX;
}

/* Makes room for copies of so many bytes; false: there is no memory. */
CDP__PRIVATE bool cdp__ck_stage_memory(cdp__ck_save *s, uint64_t need) {
    cdp_ckpt *const c = s->c;
    if (need <= c->stage_room) return true;
    cdp__free(s->t.os, c->stage);
    c->stage = cdp__alloc(s->t.os, need);
    c->stage_room = c->stage ? need : 0;
    return c->stage != NULL;
}

/* Makes room for copies of what is left; without it, waits until that is written. */
CDP__PRIVATE cdp_status cdp__ck_stage_room(cdp__ck_save *s) {
    uint64_t need;
    const cdp_status st = cdp__ck_stage_wait(s, cdp__ck_stage_most(s), false);
    if (st != CDP_OK) return st;
    cdp__lock_take(&s->lock);
    need = s->rest;
    cdp__lock_give(&s->lock);
    return cdp__ck_stage_memory(s, need) ? CDP_OK : cdp__ck_stage_wait(s, 0, false);
}

/* After OK the program may change its memory. */
CDP__PRIVATE cdp_status cdp__ck_stage(cdp__ck_save *s) {
    cdp_status st;
    if (s->staged) return CDP_OK;
    if (!s->copied) {
        st = cdp__ck_stage_room(s);
        if (st != CDP_OK) return st;
        cdp__lock_take(&s->lock);
        if (s->rest) s->stage_bytes = cdp__ck_copy_shares(s, (uint8_t *)s->c->stage);
        cdp__lock_give(&s->lock);
        s->copied = true;
    }
    st = cdp__ck_stage_wait(s, 0, true); /* a chunk of at most 8 MiB */
    s->staged = st == CDP_OK;
    return st;
}

/* Without threads a rank that waits until something is written needs frames of all ranks, which
   need not come. So all have their memory for copies from the start, or none saves; and where
   copies would not fit stage_bytes on some rank, all write in the call (*now). */
CDP__PRIVATE cdp_status cdp__ck_frames(cdp__ck_save *s, bool threads, uint32_t *now) {
    cdp_group *const g = s->c->desc.group;
    uint32_t mine = !threads && s->rest > cdp__ck_stage_most(s);
    cdp_status st = CDP_OK;
    if (!threads && !mine && !cdp__ck_stage_memory(s, s->rest))
        st = cdp_error_set(CDP_ERR_NOMEM, -1, 0,
            "cdp_ckpt_save_async: out of memory for a copy of %llu bytes; set stage_bytes, or call "
            "cdp_ckpt_save()",
            (unsigned long long)s->rest);
    st = cdp__ck_verdict(g, st);
    if (st == CDP_OK) st = cdp_allreduce(g, &mine, now, 1, CDP_DTYPE_U32, CDP_REDUCE_MAX);
    return st;
}

/* Begins to write. A copy that fits is made before, so that both do not share the memory. */
CDP__PRIVATE cdp_status cdp__ck_launch(cdp__ck_save *s, bool threads, bool now) {
    const cdp_os *const os = s->t.os;
    const bool late = s->c->desc.late;
    cdp_status st = CDP_OK;
    if (!late && s->rest <= cdp__ck_stage_most(s) && cdp__ck_stage_memory(s, s->rest))
        st = cdp__ck_stage(s);
    if (threads) s->thread = os->threads.start(os, cdp__ck_thread, s);
    /* without a thread it is written here; others wait meanwhile */
    if (threads ? !s->thread : now) (void)cdp__ck_run_save(s, CDP__NEVER);
    return st == CDP_OK && !late ? cdp__ck_stage(s) : st;
}

/* ---- calls ---- */

CDP_API cdp_status cdp_ckpt_save(cdp_ckpt *c, uint64_t step) {
    cdp__ck_save *s;
    const cdp_status st = cdp__ck_save_open(c, step, "cdp_ckpt_save", &s);
    if (st != CDP_OK) return st;
    (void)cdp__ck_run_save(s, CDP__NEVER);
    return cdp__ck_save_end(s);
}

CDP_API cdp_status cdp_ckpt_save_async(cdp_ckpt *c, uint64_t step) {
    const cdp_os *os;
    uint64_t began;
    cdp__ck_save *s;
    uint32_t now = 0;
    bool threads;
    cdp_status st = cdp__ck_alive(c, "cdp_ckpt_save_async");
    if (st != CDP_OK) return st;
    os = cdp_group_desc_of(c->desc.group)->os;
    began = os->now_ns(os->user);
    threads = os->threads.start && !cdp_group_desc_of(c->desc.group)->no_thread;
    st = cdp__ck_save_open(c, step, "cdp_ckpt_save_async", &s);
    if (st != CDP_OK) return st;
    st = cdp__ck_verdict(c->desc.group, cdp__ck_apart(s, threads));
    if (st == CDP_OK) st = cdp__ck_frames(s, threads, &now);
    if (st != CDP_OK) {
        cdp__ck_save_close(s);
        return st;
    }
    c->asynced = true;
    c->saving = s;
    st = cdp__ck_launch(s, threads, now != 0);
    s->stall_ns += os->now_ns(os->user) - began;
    return st;
}

CDP_API cdp_status cdp_ckpt_staged(cdp_ckpt *c) {
    const cdp_os *os;
    uint64_t began;
    cdp_status st = cdp__ck_alive(c, "cdp_ckpt_staged");
    if (st != CDP_OK) return st;
    if (!c->saving || c->saving->staged) return CDP_OK;
    os = c->saving->t.os;
    began = os->now_ns(os->user);
    st = cdp__ck_stage(c->saving);
    c->saving->stall_ns += os->now_ns(os->user) - began;
    return st;
}

CDP_API cdp_status cdp_ckpt_wait(cdp_ckpt *c, uint32_t timeout_ms) {
    const cdp_os *os;
    uint64_t began;
    const cdp_status st = cdp__ck_alive(c, "cdp_ckpt_wait");
    bool ended;
    if (st != CDP_OK) return st;
    if (!c->saving) return CDP_OK;
    os = c->saving->t.os;
    began = os->now_ns(os->user);
    ended = cdp__ck_until(c->saving, cdp__deadline(os, timeout_ms));
    c->saving->stall_ns += os->now_ns(os->user) - began;
    return ended ? cdp__ck_save_end(c->saving) : CDP_PENDING;
}

CDP_API void cdp_ckpt_destroy(cdp_ckpt *c) {
    const cdp_os *os;
    if (!c || cdp__ended(c) || cdp__is_child(c->forks)) return;
    cdp__ended_add(c);
    os = c->memory;
    if (c->saving) {
        const cdp_error kept = *cdp_last_error();
        (void)cdp__ck_until(c->saving, CDP__NEVER);
        (void)cdp__ck_save_end(c->saving);
        *cdp__error_slot() = kept;
    }
    cdp__free(os, c->stage);
    cdp__free(os, c);
}

#endif /* CDP_SRC_CHECKPOINT_BACKGROUND_H */
