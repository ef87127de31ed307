/* checkpoint/run.h - a save as a machine that a call, a thread or frames drive

   Knows: what follows what. Promises: a step does one thing and starts at most one operation of the
   group; all ranks end with the same status and text, unless the group failed. */
#ifndef CDP_SRC_CHECKPOINT_RUN_H
#define CDP_SRC_CHECKPOINT_RUN_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/error_api.h"
#include "../os/os_api.h"
#include "../group/group_api.h"
#include "../group/collectives_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "../text/format.h"
#include "checkpoint_api.h"
#include "disk.h"
#include "steps.h"
#include "verdict.h"
#include "create.h"
#include "save.h"
#include "write.h"

/* The group failed, or this rank could not start an operation. */
CDP__PRIVATE void cdp__ck_give_up(cdp__ck_save *s, cdp_status st) {
    s->status = st;
    s->error = *cdp_last_error();
    s->phase = CDP__CK_DO_UNDO;
}

CDP__PRIVATE void cdp__ck_flies(cdp__ck_save *s, cdp_status started, cdp__ck_phase then) {
    s->flying = started == CDP_OK;
    s->phase = then;
    if (started != CDP_OK) cdp__ck_give_up(s, started);
}

/* All ranks bring their status; the save goes on with `next` if none of them failed. */
CDP__PRIVATE void cdp__ck_vote(cdp__ck_save *s, cdp_status mine, cdp__ck_phase next) {
    s->failed = mine == CDP_OK ? UINT32_MAX : cdp_rank(s->group);
    if (mine != CDP_OK) cdp__ck_word_fill(&s->word, s->group, cdp_last_error(), false);
    s->next = next;
    cdp__ck_flies(s,
        cdp_allreduce_async(
            s->group, &s->failed, &s->first, 1, CDP_DTYPE_U32, CDP_REDUCE_MIN, &s->work),
        CDP__CK_DO_VOTED);
}

CDP__PRIVATE void cdp__ck_voted(cdp__ck_save *s) {
    if (s->first == UINT32_MAX)
        s->phase = s->next;
    else
        cdp__ck_flies(s,
            cdp_broadcast_async(
                s->group, &s->word, sizeof s->word, CDP_DTYPE_U8, s->first, &s->work),
            CDP__CK_DO_TOLD);
}

CDP__PRIVATE void cdp__ck_add_sums(cdp__ck_save *s) {
    s->phase = CDP__CK_DO_COMMIT;
    if (s->tensor_sums)
        cdp__ck_flies(s,
            cdp_allreduce_async(
                s->group, NULL, s->t.sums, s->tensor_sums, CDP_DTYPE_U64, CDP_REDUCE_SUM, &s->work),
            CDP__CK_DO_COMMIT);
}

CDP__PRIVATE void cdp__ck_write_step(cdp__ck_save *s) {
    cdp_status st;
    if (cdp_rank(s->group) && !s->folder[0]) cdp__ck_set_folder(s);
    st = cdp__ck_write_some(s);
    if (st != CDP_PENDING) cdp__ck_vote(s, st, CDP__CK_DO_SUMS);
}

/* After the last vote: older steps beyond `keep` go; what stays is removed after the next save. */
CDP__PRIVATE void cdp__ck_end(cdp__ck_save *s, bool root) {
    const cdp_ckpt_desc *const d = &s->c->desc;
    (void)cdp__ck_end_file(s, false);
    cdp__ck_written(s, CDP_ERR_STATE); /* nothing is left to copy */
    if (root && s->status == CDP_OK && d->keep)
        cdp__ck_sweep_steps(&s->disk, s->c->path, s->step, d->keep, d->keep_every);
    if (root && s->status != CDP_OK) cdp__ck_undo(s);
    cdp__ck_unlock(s);
    s->info.writes = s->disk.writes;
    s->phase = CDP__CK_DO_ENDED;
}

CDP__PRIVATE void cdp__ck_step(cdp__ck_save *s) {
    const bool root = cdp_rank(s->group) == 0;
    switch (s->phase) {
    case CDP__CK_DO_BEGIN:
        cdp__ck_vote(s, root ? cdp__ck_begin(s) : CDP_OK, CDP__CK_DO_NAME);
        break;
    case CDP__CK_DO_NAME:
        cdp__ck_flies(s, cdp_broadcast_async(s->group, &s->id, 1, CDP_DTYPE_U64, 0, &s->work),
            CDP__CK_DO_WRITE);
        break;
    case CDP__CK_DO_WRITE: cdp__ck_write_step(s); break;
    case CDP__CK_DO_SUMS: cdp__ck_add_sums(s); break;
    case CDP__CK_DO_COMMIT:
        cdp__ck_vote(s, root ? cdp__ck_commit(s) : CDP_OK, CDP__CK_DO_SWEEP);
        break;
    case CDP__CK_DO_VOTED: cdp__ck_voted(s); break;
    case CDP__CK_DO_TOLD:
        s->told = true;
        cdp__ck_give_up(s, cdp__ck_word_take(&s->word));
        break;
    case CDP__CK_DO_SWEEP:
    case CDP__CK_DO_UNDO: cdp__ck_end(s, root); break;
    case CDP__CK_DO_ENDED: break;
    }
}

/* Waits for the operation in flight. False: the deadline passed. */
CDP__PRIVATE bool cdp__ck_landed(cdp__ck_save *s, uint64_t deadline) {
    const uint64_t now = s->t.os->now_ns(s->t.os->user);
    cdp_status st;
    if (deadline == CDP__NEVER)
        st = cdp_work_wait(s->work);
    else if (deadline <= now)
        st = cdp_work_test(s->work);
    else
        st = cdp_work_wait_for(
            s->work, (uint32_t)cdp__min((deadline - now) / CDP__MS + 1, CDP_NO_TIMEOUT - 1));
    if (st == CDP_PENDING) return false;
    s->flying = false;
    if (st != CDP_OK) cdp__ck_give_up(s, st);
    return true;
}

/* Goes on until the end (true) or the deadline; at least one step is done, if one can be. */
CDP__PRIVATE bool cdp__ck_run_save(cdp__ck_save *s, uint64_t deadline) {
    const cdp_os *const os = s->t.os;
    do {
        if (s->flying && !cdp__ck_landed(s, deadline)) return false;
        cdp__ck_step(s);
    } while (s->phase != CDP__CK_DO_ENDED
        && (deadline == CDP__NEVER || os->now_ns(os->user) < deadline));
    return s->phase == CDP__CK_DO_ENDED;
}

#endif /* CDP_SRC_CHECKPOINT_RUN_H */
