/* rpc/records.h - how much there is, and the last calls

   Knows: tables, lists, what is remembered of calls. Promises: it changes nothing. */
#ifndef CDP_SRC_RPC_RECORDS_H
#define CDP_SRC_RPC_RECORDS_H

#include "../base/config.h"
#include "../message/transport_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "worker_api.h"
#include "calls_api.h"
#include "table.h"
#include "state.h"

CDP__PRIVATE int cdp__rpc_longer(const void *a, const void *b) {
    uint64_t x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return (x > y) - (x < y);
}

/* How long the last calls of this rank took. */
CDP__PRIVATE void cdp__rpc_times(const cdp_rpc *rpc, cdp_rpc_stats *s) {
    uint64_t took[CDP__RPC_RECORDS], i, n = 0;
    for (i = 0; i < cdp__min(rpc->record_count, CDP__RPC_RECORDS); ++i) {
        const cdp_rpc_record *r = &rpc->records[(rpc->record_count - i) % CDP__RPC_RECORDS];
        if (r->from == rpc->rank && r->end_ns) took[n++] = r->end_ns - r->start_ns;
    }
    if (!n) return;
    qsort(took, (size_t)n, sizeof *took, cdp__rpc_longer);
    s->p50_ns = took[(n - 1) / 2];
    s->p99_ns = took[(n * 99 + 99) / 100 - 1];
    s->worst_ns = took[n - 1];
}

CDP__PRIVATE void cdp__rpc_count_requests(const cdp_rpc *rpc, cdp_rpc_stats *s) {
    const cdp__rpc_rq *rq;
    for (rq = rpc->all; rq; rq = rq->after) {
        if (rq->stage == CDP__RPC_REPLIED) continue;
        ++s->calls_in;
        s->queued += rq->stage < CDP__RPC_RUNNING;
        s->parked += rq->stage == CDP__RPC_PARKED;
        s->kept += rq->stage == CDP__RPC_KEPT;
    }
}

CDP_API cdp_rpc_stats cdp_rpc_stats_of(cdp_rpc *rpc) {
    const cdp_ctx *ctx;
    cdp_rpc_stats s;
    uint32_t i;
    memset(&s, 0, sizeof s);
    if (!rpc || cdp__rpc_gone(rpc, "cdp_rpc_stats_of")) return s;
    cdp__rpc_lock(rpc);
    s.calls_out = rpc->calls_used;
    s.refused = rpc->refused;
    s.contexts = rpc->context_count;
    s.owners = rpc->refs.used[CDP__REF_OWNER];
    s.users = rpc->refs.used[CDP__REF_USER];
    s.forks = rpc->refs.used[CDP__REF_FORK];
    s.holds = rpc->refs.used[CDP__REF_HOLD];
    s.workers = rpc->thread_count;
    s.workers_idle = rpc->idle;
    s.queue_bytes = rpc->in_bytes;
    s.bytes_out = rpc->bytes_out;
    s.bytes_in = rpc->bytes_in;
    s.one_way = rpc->one_ways;
    s.late = rpc->late;
    for (ctx = rpc->contexts; ctx; ctx = ctx->next)
        s.passes += !ctx->failed && (ctx->w.open || ctx->mine);
    for (i = 0; i < rpc->ranks; ++i)
        s.call_bytes += rpc->peers[i].flight[0].bytes + rpc->peers[i].flight[1].bytes;
    for (i = 1; i < rpc->refs.room; ++i)
        s.pending +=
            rpc->refs.at[i].kind == CDP__REF_USER && rpc->refs.at[i].state == CDP__REF_PENDING;
    cdp__rpc_count_requests(rpc, &s);
    cdp__rpc_times(rpc, &s);
    cdp_lock_release(&rpc->lock);
    return s;
}

CDP_API uint32_t cdp_rpc_records(cdp_rpc *rpc, cdp_rpc_record *out, uint32_t max) {
    uint32_t n, i;
    if (!rpc || !out || cdp__rpc_gone(rpc, "cdp_rpc_records")) return 0;
    cdp__rpc_lock(rpc);
    n = (uint32_t)cdp__min(cdp__min(rpc->record_count, CDP__RPC_RECORDS), max);
    for (i = 0; i < n; ++i)
        out[i] = rpc->records[(rpc->record_count - n + 1 + i) % CDP__RPC_RECORDS];
    cdp_lock_release(&rpc->lock);
    return n;
}

#endif /* CDP_SRC_RPC_RECORDS_H */
