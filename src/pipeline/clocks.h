/* pipeline/clocks.h - when the rows of all ranks ran, on one clock

   Knows: times of rows on each rank. Promises: where all ranks read the same clock, times are not
   changed by comparing. */
#ifndef CDP_SRC_PIPELINE_CLOCKS_H
#define CDP_SRC_PIPELINE_CLOCKS_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/error_api.h"
#include "../os/os_api.h"
#include "../group/group_api.h"
#include "../group/collectives_api.h"
#include "../group/clocks.h"
#include "../base/compiler.h"
#include "../base/helpers.h"
#include "schedule_api.h"
#include "driver_api.h"
#include "table.h"
#include "schedule.h"
#include "state.h"
#include "driver.h"

/* The times of the rows of all ranks, one rank after the other. */
CDP__PRIVATE cdp_status cdp__pipe_share_times(
    cdp_pipeline *p, uint64_t zero, const cdp_pipe_times *out) {
    const cdp__pipe_table *t = p->table;
    for (uint64_t row = 0; row < p->rows; ++row) {
        const uint64_t at = t->first[p->rank] + row;
        out->start_us[at] = (double)(p->times[2 * row] - zero) / 1e3;
        out->end_us[at] = (double)(p->times[2 * row + 1] - zero) / 1e3;
    }
    for (uint32_t r = 0; r < t->ranks; ++r) {
        const uint64_t at = t->first[r], rows = t->first[r + 1] - at;
        cdp_status st = cdp_broadcast(p->desc.group, out->start_us + at, rows, CDP_DTYPE_F64, r);
        if (st == CDP_OK)
            st = cdp_broadcast(p->desc.group, out->end_us + at, rows, CDP_DTYPE_F64, r);
        if (st != CDP_OK) return st;
    }
    return CDP_OK;
}

CDP_API cdp_status cdp_pipeline_times(cdp_pipeline *pipeline, const cdp_pipe_times *out) {
    cdp_pipeline *p = pipeline;
    uint64_t ready, begin;
    int64_t add = 0;
    cdp_status st = cdp__pipe_alive(p, "cdp_pipeline_times");
    if (st != CDP_OK) return st;
    if (!out || !out->start_us || !out->end_us)
        return cdp__pipe_missing("cdp_pipeline_times", "out, out->start_us or out->end_us");
    ready = p->timed && !p->running;
    st = cdp_allreduce(p->desc.group, NULL, &ready, 1, CDP_DTYPE_U64, CDP_REDUCE_MIN);
    if (st != CDP_OK) return st;
    if (!ready)
        return cdp_error_set(CDP_ERR_STATE, -1, 0,
            "cdp_pipeline_times: a rank has not ended a step yet: call cdp_pipeline_step first");
    st = cdp__clock_compare(p->desc.group, p->os, &add);
    if (st != CDP_OK) return st;
    begin = p->begin_ns + (uint64_t)add;
    st = cdp_allreduce(p->desc.group, NULL, &begin, 1, CDP_DTYPE_U64, CDP_REDUCE_MIN);
    return st == CDP_OK ? cdp__pipe_share_times(p, begin - (uint64_t)add, out) : st;
}

#endif /* CDP_SRC_PIPELINE_CLOCKS_H */
