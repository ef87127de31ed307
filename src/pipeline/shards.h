/* pipeline/shards.h - weights of stages that are divided over ranks

   Knows: which rows of this rank follow each other on one stage. Promises: ranks with equal
   schedules make equal calls in one order; weights are here from the first row of such a run until
   its last one. */
#ifndef CDP_SRC_PIPELINE_SHARDS_H
#define CDP_SRC_PIPELINE_SHARDS_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/error_api.h"
#include "../base/compiler.h"
#include "schedule_api.h"
#include "driver_api.h"
#include "table.h"
#include "state.h"

CDP__PRIVATE cdp_status cdp__pipe_check_shards(const cdp_pipe_stage *s, uint32_t stage) {
    const cdp_pipe_shards *k = &s->shards;
    const char *lacks = NULL;
    if (!k->unit_count) return CDP_OK;
    if (!k->fsdp) lacks = "fsdp";
    if (!k->need) lacks = "need";
    if (!k->done) lacks = "done";
    if (!k->ready) lacks = "ready";
    if (!k->abort) lacks = "abort";
    if (!lacks) return CDP_OK;
    return cdp_error_set(CDP_ERR_INVALID, -1, 0,
        "cdp_pipeline_create: stage %u has .shards.unit_count %u and lacks .shards.%s", stage,
        k->unit_count, lacks);
}

CDP__PRIVATE bool cdp__pipe_has_shards(const cdp_pipeline *p) {
    for (uint32_t i = 0; i < p->stage_count; ++i)
        if (p->stages[i].shards.unit_count) return true;
    return false;
}

/* Is there a row beside this one, `step` rows on, of the same stage? */
CDP__PRIVATE bool cdp__pipe_goes_on(const cdp_pipeline *p, uint64_t row, int step) {
    const uint64_t other = step < 0 ? row - 1 : row + 1;
    if (step < 0 ? !row : other == p->rows) return false;
    return cdp__pipe_row(p, other)->stage == cdp__pipe_row(p, row)->stage;
}

/* Before a row: the weights of its stage are here. */
CDP__PRIVATE cdp_status cdp__pipe_unshard(cdp_pipeline *p, uint64_t row) {
    const cdp_act *a = cdp__pipe_row(p, row);
    const cdp_pipe_shards *k = &p->stages[p->nth[a->stage]].shards;
    if (cdp__pipe_goes_on(p, row, -1)) return CDP_OK;
    for (uint32_t i = 0; i < k->unit_count; ++i) {
        const cdp_status st = k->need(k->fsdp, k->first_unit + i);
        if (st != CDP_OK) return cdp__pipe_threw(p, a, st);
    }
    return CDP_OK;
}

/* After a row: its weights may go, and complete gradients leave, those of the last unit first. */
CDP__PRIVATE cdp_status cdp__pipe_reshard(cdp_pipeline *p, uint64_t row) {
    const cdp_act *a = cdp__pipe_row(p, row);
    const cdp_pipe_shards *k = &p->stages[p->nth[a->stage]].shards;
    const bool complete = p->turns[2 * p->nth[a->stage] + 1] == row && !p->table->forward_only;
    if (cdp__pipe_goes_on(p, row, 1)) return CDP_OK;
    for (uint32_t i = k->unit_count; i-- > 0;) {
        const uint32_t unit = k->first_unit + i;
        const cdp_status st = complete ? k->ready(k->fsdp, unit) : k->done(k->fsdp, unit);
        if (st != CDP_OK) return cdp__pipe_threw(p, a, st);
    }
    return CDP_OK;
}

#endif /* CDP_SRC_PIPELINE_SHARDS_H */
