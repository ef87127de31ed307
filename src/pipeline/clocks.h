/* pipeline/clocks.h - when the rows of all ranks ran, on one clock

   Knows: messages to and fro. Promises: where all ranks read the same clock, times are not changed
   by comparing. */
#ifndef CDP_SRC_PIPELINE_CLOCKS_H
#define CDP_SRC_PIPELINE_CLOCKS_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/error_api.h"
#include "../os/os_api.h"
#include "../group/group_api.h"
#include "../group/collectives_api.h"
#include "../group/messages_api.h"
#include "../base/compiler.h"
#include "../base/helpers.h"
#include "schedule_api.h"
#include "driver_api.h"
#include "table.h"
#include "schedule.h"
#include "driver.h"

#define CDP__PIPE_TURNS 8u

CDP__PRIVATE uint64_t cdp__pipe_now(const cdp_pipeline *p) {
    return p->os->now_ns(p->os->user);
}

/* What to add to the clock of this rank, modulo 2^64, to get that of rank 0: collective. Nothing,
   if rank 0 always read its clock between two readings here. */
CDP__PRIVATE cdp_status cdp__pipe_compare_clock(cdp_pipeline *p, uint64_t *add) {
    cdp_group *g = p->desc.group;
    uint64_t best = UINT64_MAX, there = 0;
    bool same = true;
    *add = 0;
    for (uint32_t r = 1; r < p->table->ranks; ++r) {
        for (uint32_t i = 0; i < CDP__PIPE_TURNS && (p->rank == 0 || p->rank == r); ++i) {
            const uint32_t peer = p->rank ? 0 : r;
            cdp_status st = CDP_OK;
            const uint64_t from = cdp__pipe_now(p);
            if (p->rank) st = cdp_send(g, &from, 1, CDP_DTYPE_U64, peer, p->desc.tag);
            if (st == CDP_OK) st = cdp_recv(g, &there, 1, CDP_DTYPE_U64, peer, p->desc.tag);
            if (p->rank == 0) there = cdp__pipe_now(p);
            if (st == CDP_OK && p->rank == 0)
                st = cdp_send(g, &there, 1, CDP_DTYPE_U64, peer, p->desc.tag);
            if (st != CDP_OK) return st;
            const uint64_t took = cdp__pipe_now(p) - from;
            if (there - from > took) same = false;
            if (took >= best) continue;
            best = took;
            *add = there - (from + took / 2);
        }
    }
    if (same || p->rank == 0) *add = 0;
    return CDP_OK;
}

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
    uint64_t ready, add, begin;
    if (!p) return cdp__pipe_missing("cdp_pipeline_times", "pipeline");
    if (!out || !out->start_us || !out->end_us)
        return cdp__pipe_missing("cdp_pipeline_times", "out, out->start_us or out->end_us");
    ready = p->timed && !p->running;
    cdp_status st = cdp_allreduce(p->desc.group, NULL, &ready, 1, CDP_DTYPE_U64, CDP_REDUCE_MIN);
    if (st != CDP_OK) return st;
    if (!ready)
        return cdp_error_set(CDP_ERR_STATE, -1, 0,
            "cdp_pipeline_times: a rank has not ended a step yet: call cdp_pipeline_step first");
    st = cdp__pipe_compare_clock(p, &add);
    if (st != CDP_OK) return st;
    begin = p->begin_ns + add;
    st = cdp_allreduce(p->desc.group, NULL, &begin, 1, CDP_DTYPE_U64, CDP_REDUCE_MIN);
    return st == CDP_OK ? cdp__pipe_share_times(p, begin - add, out) : st;
}

#endif /* CDP_SRC_PIPELINE_CLOCKS_H */
