/* pipeline/state.h - what a pipeline has, and how its step fails

   Knows: rows of this rank, works of a group. Promises: every operation that it starts itself has
   the deadline of the step; a failure reaches all groups of the step. */
#ifndef CDP_SRC_PIPELINE_STATE_H
#define CDP_SRC_PIPELINE_STATE_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/error_api.h"
#include "../base/types_api.h"
#include "../os/os_api.h"
#include "../group/group_api.h"
#include "../group/collectives_api.h"
#include "../group/messages_api.h"
#include "../ddp/ddp_api.h"
#include "../base/compiler.h"
#include "../base/ended.h"
#include "../base/helpers.h"
#include "../text/format.h"
#include "schedule_api.h"
#include "driver_api.h"
#include "table.h"
#include "schedule.h"
#include "places.h"

struct cdp_pipeline {
    cdp_pipeline_desc desc;
    const cdp_os *os;
    const cdp__pipe_table *table;
    uint32_t rank, stage_count, widest; /* widest: most tensors of an edge of this rank */
    cdp_pipe_stage *stages;
    uint8_t *kept;              /* the lists that they point to */
    uint32_t *nth;              /* of each stage: its number on this rank */
    uint32_t *slots;            /* of each cell */
    uint64_t *turns;            /* of each stage of this rank: its first row, and its last one */
    void **pointers;            /* see cdp__pipe_list() */
    uint8_t *memory;            /* of tensors that the program brings no memory for */
    cdp_work *receives, *sends; /* `widest` for each row */
    uint64_t rows, at, posted, ended; /* rows; the next one; receives started; sends that ended */
    uint64_t *times;                  /* of each row: when its callback began and ended, in ns */
    double *losses;                   /* of each micro-batch, where the last stage is */
    cdp_group *tie;         /* of the ranks that hold tied gradients; NULL: this one does not */
    cdp_work *tied;         /* sums of the tied gradients */
    cdp_pipe_stage *holder; /* has them; NULL: no sum is needed here */
    uint32_t reduced;       /* the copies of so many stages have reduced */
    uint64_t begin_ns, deadline_ns;
    bool running, timed;  /* timed: a step has ended, so `times` are complete */
    bool ending, summing; /* a reduction is ended in frames; sums of tied gradients have started */
};

CDP__PRIVATE const cdp_act *cdp__pipe_row(const cdp_pipeline *p, uint64_t row) {
    return &p->table->acts[p->table->first[p->rank] + row];
}

/* ---- errors ---- */

/* The first row of a rank that it is not known to have run. */
CDP__PRIVATE void cdp__pipe_add_suspect(cdp__text *text, const cdp_pipeline *p, uint32_t suspect) {
    const cdp__pipe_table *t = p->table;
    uint64_t *known = (uint64_t *)cdp__pipe_alloc(p->os, t->ranks * sizeof *known);
    if (!known) return;
    known[p->rank] = p->at;
    cdp__pipe_spread_known(t, known);
    const uint64_t row = known[suspect];
    if (t->first[suspect] + row < t->first[suspect + 1]) {
        const cdp_act *a = &t->acts[t->first[suspect] + row];
        cdp__text_add(text, "; rank %u (stage %u) is not known to have done more than before ",
            suspect, (unsigned)a->stage);
        cdp__pipe_add_act(text, a);
        cdp__text_add(text, ", micro-batch %u", a->micro);
    }
    cdp__pipe_free(p->os, known);
}

/* What an abort was about, without the groups that it has come through. */
CDP__PRIVATE const char *cdp__pipe_reason(const char *text) {
    static const char mark[] = CDP__ABORTED;
    const char *reason = text;
    for (; *text; ++text)
        if (!strncmp(text, mark, sizeof mark - 1)) reason = text + sizeof mark - 1;
    return reason;
}

/* Ranks that wait for this one in the other groups of the step are told why it does not come. */
CDP__PRIVATE void cdp__pipe_abort_others(cdp_pipeline *p, const char *why) {
    if (p->tie) cdp_group_abort(p->tie, why);
    for (uint32_t i = 0; i < p->stage_count; ++i) {
        const cdp_pipe_stage *s = &p->stages[i];
        if (s->shards.unit_count) s->shards.abort(s->shards.fsdp, why);
        for (uint32_t k = 0; k < s->group_count; ++k)
            cdp_group_abort(s->groups[k], why);
#ifndef CDP_NO_DDP
        if (s->ddp && !p->table->forward_only) cdp_group_abort(cdp_ddp_group(s->ddp), why);
#endif
    }
}

/* Communication has failed while this rank was at a row. */
CDP__PRIVATE CDP__COLD cdp_status cdp__pipe_failed(cdp_pipeline *p, cdp_status st) {
    const cdp_error was = *cdp_last_error();
    char room[300];
    cdp__text text = cdp__text_of(room, sizeof room);
    const uint32_t suspect =
        was.peer < 0 ? UINT32_MAX : cdp_rank_of_world(p->desc.group, (uint32_t)was.peer);
    p->running = false;
    if (p->at < p->rows) {
        cdp__text_add(&text, "stage %u at ", (unsigned)cdp__pipe_row(p, p->at)->stage);
        cdp__pipe_add_act(&text, cdp__pipe_row(p, p->at));
        cdp__text_add(&text, ", micro-batch %u", cdp__pipe_row(p, p->at)->micro);
    } else {
        cdp__text_add(&text, "after its last row");
    }
    if (suspect < p->table->ranks && suspect != p->rank) cdp__pipe_add_suspect(&text, p, suspect);
    /* of a rank that is lost the group learns itself */
    if (st != CDP_ERR_PEER_LOST) cdp_group_abort(p->desc.group, cdp__pipe_reason(was.text));
    cdp__pipe_abort_others(p, cdp__pipe_reason(was.text));
    return cdp_error_set(st, was.peer, was.sys_errno, "cdp_pipeline_step: %s: %s", room, was.text);
}

/* A callback has returned an error: all ranks end. */
CDP__PRIVATE CDP__COLD cdp_status cdp__pipe_threw(
    cdp_pipeline *p, const cdp_act *a, cdp_status st) {
    const cdp_error was = *cdp_last_error();
    char room[200];
    cdp__text text = cdp__text_of(room, sizeof room);
    const char *const why = cdp__pipe_reason(was.text);
    const bool told = was.status == st && why != was.text; /* another one has failed */
    const uint32_t world = cdp_world_rank_of(p->desc.group, p->rank);
    cdp__text_add(&text, "stage %u on rank %u ", (unsigned)a->stage, p->rank);
    if (world != p->rank) cdp__text_add(&text, "(of the job: %u) ", world);
    cdp__text_add(&text, "failed in ");
    cdp__pipe_add_act(&text, a);
    cdp__text_add(
        &text, ", micro-batch %u: %s", a->micro, was.status == st ? why : cdp_status_name(st));
    p->running = false;
    cdp_group_abort(p->desc.group, told ? why : room);
    cdp__pipe_abort_others(p, told ? why : room);
    return cdp_error_set(st, was.status == st ? was.peer : -1, 0, "cdp_pipeline_step: %s", room);
}

/* Refuses no pipeline, one that was destroyed, and one whose schedule was. */
CDP__PRIVATE cdp_status cdp__pipe_alive(const cdp_pipeline *p, const char *call) {
    if (!p) return cdp__pipe_missing(call, "pipeline");
    if (!cdp__ended(p)) return cdp__pipe_schedule_lives(p->desc.schedule, call, "schedule");
    return cdp_error_set(CDP_ERR_STATE, -1, 0, "%s: this pipeline was destroyed", call);
}

/* The deadline of an operation of this step. */
CDP__PRIVATE uint32_t cdp__pipe_left_ms(const cdp_pipeline *p) {
    if (p->deadline_ns == UINT64_MAX) return CDP_NO_TIMEOUT;
    const uint64_t now = p->os->now_ns(p->os->user);
    const uint64_t left_ns = p->deadline_ns > now ? p->deadline_ns - now : 0;
    return (uint32_t)cdp__min(left_ns / 1000000 + 1, CDP_NO_TIMEOUT - 1);
}

/* Has a work ended? `wait`: not before it has. */
CDP__PRIVATE cdp_status cdp__pipe_wait(cdp_pipeline *p, cdp_work work, bool wait) {
    cdp_status st = work.seq ? cdp_work_test(work) : CDP_OK;
    if (st == CDP_PENDING && wait) st = cdp_work_wait(work);
    return st == CDP_OK || st == CDP_PENDING ? st : cdp__pipe_failed(p, st);
}

#endif /* CDP_SRC_PIPELINE_STATE_H */
