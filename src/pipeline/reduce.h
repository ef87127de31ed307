/* pipeline/reduce.h - gradients that other ranks hold, too; losses

   Knows: the ddp of a stage, the group of the first and the last stage. Promises: reductions start
   when the last micro-batch has passed, and all of them have ended when the step ends. */
#ifndef CDP_SRC_PIPELINE_REDUCE_H
#define CDP_SRC_PIPELINE_REDUCE_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/error_api.h"
#include "../base/types_api.h"
#include "../group/group_api.h"
#include "../group/collectives_api.h"
#include "../ddp/ddp_api.h"
#include "../base/compiler.h"
#include "../base/helpers.h"
#include "driver_api.h"
#include "table.h"
#include "schedule.h"
#include "state.h"

/* ---- tied gradients ---- */

/* `stages`: the `own` ones of `rank`, complete. */
CDP__PRIVATE cdp_status cdp__pipe_check_tied(
    const cdp__pipe_table *t, const cdp_pipe_stage *stages, uint32_t own, uint32_t rank) {
    uint32_t nth = 0;
    for (uint32_t s = 0; s < t->stages; ++s) {
        if (t->place[s] != rank) continue;
        const cdp_pipe_stage *k = &stages[nth++];
        if (k->tied_count && s && s + 1 < t->stages)
            return cdp_error_set(CDP_ERR_INVALID, -1, 0,
                "cdp_pipeline_create: stage %u has tied gradients; only the first stage and the "
                "last one can",
                s);
        for (uint32_t i = 0; i < k->tied_count; ++i)
            if (!k->tied || !k->tied[i].grad)
                return cdp_error_set(CDP_ERR_INVALID, -1, 0,
                    "cdp_pipeline_create: tied gradient %u of stage %u is NULL", i, s);
    }
    if (own < 2 || t->place[0] != rank || t->place[t->stages - 1] != rank) return CDP_OK;
    const cdp_pipe_stage *first = &stages[0], *last = &stages[own - 1];
    for (uint32_t i = 0; i < first->tied_count && i < last->tied_count; ++i)
        if (first->tied[i].grad != last->tied[i].grad)
            return cdp_error_set(CDP_ERR_INVALID, -1, 0,
                "cdp_pipeline_create: tied gradient %u has two memories on one rank: stages 0 and "
                "%u must add to the same one",
                i, t->stages - 1);
    return CDP_OK;
}

/* The group of the first and the last stage, where they are on two ranks. */
CDP__PRIVATE cdp_status cdp__pipe_open_tie(cdp_pipeline *p) {
    uint32_t ranks[2];
    ranks[0] = p->table->place[0];
    ranks[1] = p->table->place[p->table->stages - 1];
    if (p->table->forward_only || ranks[0] == ranks[1]) return CDP_OK;
    if (p->rank != ranks[0] && p->rank != ranks[1]) return CDP_OK;
    p->holder = &p->stages[p->rank == ranks[0] ? 0 : p->stage_count - 1];
    if (!p->holder->tied_count) p->holder = NULL;
    if (!p->holder) return CDP_OK;
    const uint64_t bytes = p->holder->tied_count * sizeof *p->tied;
    p->tied = (cdp_work *)cdp__pipe_alloc(p->os, bytes);
    if (!p->tied) return cdp__pipe_nomem("cdp_pipeline_create", bytes);
#ifdef CDP_NO_GROUPS
    return cdp_error_set(CDP_ERR_UNSUPPORTED, -1, 0,
        "cdp_pipeline_create: tied gradients need what CDP_NO_GROUPS leaves out");
#else
    return cdp_group_new(p->desc.group, ranks, 2, &p->tie);
#endif
}

CDP__PRIVATE cdp_status cdp__pipe_sum_tied(cdp_pipeline *p) {
    cdp_status st = CDP_OK;
    if (p->summing || !p->holder) return CDP_OK;
    p->summing = true;
    for (uint32_t i = 0; i < p->holder->tied_count && st == CDP_OK; ++i) {
        const cdp_pipe_tied *k = &p->holder->tied[i];
        cdp_request rq;
        memset(&rq, 0, sizeof rq);
        rq.kind = CDP_COLL_ALLREDUCE;
        rq.out = k->grad;
        rq.count = k->count;
        rq.dtype = k->dtype;
        rq.op = CDP_REDUCE_SUM;
        rq.timeout_ms = cdp__pipe_left_ms(p);
        st = cdp_start(p->tie, &rq, &p->tied[i]);
    }
    return st;
}

/* ---- copies of a stage ---- */

CDP__PRIVATE bool cdp__pipe_has_copies(const cdp_pipe_stage *s) {
#ifdef CDP_NO_DDP
    (void)s;
    return false;
#else
    return s->ddp != NULL;
#endif
}

/* Before the last row of a stage. */
CDP__PRIVATE cdp_status cdp__pipe_reduce_begin(const cdp_pipe_stage *s) {
#ifndef CDP_NO_DDP
    if (s->ddp) return cdp_ddp_backward_begin(s->ddp);
#endif
    (void)s;
    return CDP_OK;
}

/* After it: what can travel already does. */
CDP__PRIVATE cdp_status cdp__pipe_reduce_ready(cdp_pipeline *p, const cdp_pipe_stage *s) {
    cdp_status st = CDP_OK;
#ifndef CDP_NO_DDP
    uint32_t i = s->ddp && !s->marks ? cdp_ddp_param_count(s->ddp) : 0;
    while (i-- > 0 && st == CDP_OK)
        st = cdp_ddp_ready(s->ddp, i);
#endif
    return st == CDP_OK && s == p->holder && !cdp__pipe_has_copies(s) ? cdp__pipe_sum_tied(p) : st;
}

/* The end of the pass of a stage. */
CDP__PRIVATE cdp_status cdp__pipe_reduce_stage(
    cdp_pipeline *p, const cdp_pipe_stage *s, bool wait) {
#ifndef CDP_NO_DDP
#ifndef CDP_NO_FRAMES
    if (!wait) {
        const cdp_status st = p->ending ? CDP_OK : cdp_ddp_backward_end_start(s->ddp);
        p->ending = true;
        return st == CDP_OK ? cdp_ddp_poll(s->ddp, 0) : st;
    }
#endif
    return cdp_ddp_backward_end(s->ddp);
#else
    (void)s;
#endif
    (void)p;
    (void)wait;
    return CDP_OK;
}

/* All ranks of the pipeline end: gradients of a stage of this one are not what they should be. */
CDP__PRIVATE CDP__COLD cdp_status cdp__pipe_unreduced(cdp_pipeline *p, cdp_status st) {
    const cdp_error was = *cdp_last_error();
    char room[300];
    cdp__format(
        room, sizeof room, "the gradients of rank %u could not be reduced: %s", p->rank, was.text);
    p->running = false;
    cdp_group_abort(p->desc.group, room);
    cdp__pipe_abort_others(p, room);
    return cdp_error_set(st, was.peer, was.sys_errno, "cdp_pipeline_step: %s", room);
}

/* After the last row of this rank. */
CDP__PRIVATE cdp_status cdp__pipe_reduce_end(cdp_pipeline *p, bool wait) {
    cdp_status st;
    if (p->table->forward_only) return CDP_OK;
    for (; p->reduced < p->stage_count; ++p->reduced) {
        const cdp_pipe_stage *s = &p->stages[p->reduced];
        st = cdp__pipe_has_copies(s) ? cdp__pipe_reduce_stage(p, s, wait) : CDP_OK;
        if (st == CDP_PENDING) return st;
        if (st != CDP_OK) return cdp__pipe_unreduced(p, st);
        p->ending = false;
    }
    st = cdp__pipe_sum_tied(p);
    if (st != CDP_OK) return cdp__pipe_unreduced(p, st);
    for (uint32_t i = 0; p->holder && i < p->holder->tied_count && st == CDP_OK; ++i)
        st = cdp__pipe_wait(p, p->tied[i], wait);
    return st;
}

/* ---- losses ---- */

CDP_API cdp_status cdp_pipeline_losses(cdp_pipeline *pipeline, double *each, double *sum) {
    const cdp_pipeline *p = pipeline;
    if (sum) *sum = 0;
    cdp_status st = cdp__pipe_alive(p, "cdp_pipeline_losses");
    if (st == CDP_OK && !sum) st = cdp__pipe_missing("cdp_pipeline_losses", "sum");
    if (st != CDP_OK) return st;
    if (p->running)
        return cdp_error_set(
            CDP_ERR_STATE, -1, 0, "cdp_pipeline_losses: a step is running: poll it");
    const cdp__pipe_table *t = p->table;
    st = cdp_broadcast(p->desc.group, p->losses, t->micros, CDP_DTYPE_F64, t->place[t->stages - 1]);
    for (uint32_t i = 0; i < t->micros && st == CDP_OK; ++i) {
        *sum += p->losses[i];
        if (each) each[i] = p->losses[i];
    }
    return st;
}

#endif /* CDP_SRC_PIPELINE_REDUCE_H */
