/* rpc/facts.h - names, ranks that are alive, counts

   Knows: tables and lists. Promises: it changes nothing. */
#ifndef CDP_SRC_RPC_FACTS_H
#define CDP_SRC_RPC_FACTS_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../message/transport_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../text/format.h"
#include "../message/stream.h"
#include "worker_api.h"
#include "table.h"
#include "state.h"

CDP_API int32_t cdp_rpc_rank_of(const cdp_rpc *rpc, const char *name) {
    uint32_t r;
    if (!rpc || !cdp__rpc_exists(rpc)) return -1;
    for (r = 0; name && r < rpc->ranks; ++r)
        if (!strcmp(rpc->peers[r].name, name)) return (int32_t)r;
    return -1;
}

CDP_API const char *cdp_rpc_name_of(const cdp_rpc *rpc, uint32_t rank) {
    return rpc && cdp__rpc_exists(rpc) && rank < rpc->ranks ? rpc->peers[rank].name : NULL;
}

CDP_API bool cdp_rpc_alive(cdp_rpc *rpc, uint32_t rank) {
    bool alive;
    if (!rpc || cdp__rpc_gone(rpc, "cdp_rpc_alive") || rank >= rpc->ranks) return false;
    cdp__rpc_lock(rpc);
    alive = !(rpc->roll.done ? rpc->roll.sum_out : rpc->lost)[rank];
    cdp_lock_release(&rpc->lock);
    return alive;
}

/* The status of the value on its owner, else of the reference. */
CDP__PRIVATE cdp_status cdp__rpc_slot_status(const cdp_rpc *rpc, uint32_t slot) {
    const cdp__ref *r = &rpc->refs.at[slot];
    const cdp__rpc_value *v = rpc->extra[slot].value;
    if (r->kind == CDP__REF_OWNER) return v && v->settled ? v->failed : CDP_PENDING;
    if (r->state == CDP__REF_BROKEN) return rpc->extra[slot].broken;
    return r->state == CDP__REF_PENDING ? CDP_PENDING : CDP_OK;
}

CDP__PRIVATE void cdp__rpc_describe_time(const cdp_rpc *rpc, cdp__text *t, uint64_t deadline_ns) {
    const uint64_t now = cdp__now(rpc->os);
    if (deadline_ns == CDP__NEVER)
        cdp__text_add(t, ", no deadline\n");
    else
        cdp__text_add(t, ", %llu ms left\n",
            (unsigned long long)(deadline_ns > now ? (deadline_ns - now) / CDP__MS : 0));
}

CDP__PRIVATE void cdp__rpc_describe_calls(const cdp_rpc *rpc, cdp__text *t) {
    char name[16];
    uint32_t i;
    for (i = 1; i <= rpc->call_count; ++i) {
        const cdp__rpc_call *c = rpc->calls[i];
        if (!c->used) continue;
        cdp__text_add(t, "call of %s on rank %u (%s): %s%s",
            c->function ? cdp__rpc_function_name(rpc, c->function, name) : "a value", c->to,
            rpc->peers[c->to].name, c->left ? "waits for the answer" : "has not left",
            c->call ? "" : ", nobody waits for it");
        cdp__rpc_describe_time(rpc, t, c->deadline_ns);
    }
}

CDP__PRIVATE void cdp__rpc_describe_requests(const cdp_rpc *rpc, cdp__text *t) {
    static const char *const stages[] = {"has come",
        "waits until references are confirmed, or for its turn", "waits for the value",
        "waits for a thread", "runs", "was kept", "was replied to"};
    const cdp__rpc_rq *rq;
    for (rq = rpc->all; rq; rq = rq->after) {
        cdp__text_add(t, "request of rank %u (%s) for %s: %s%s", rq->pub.from,
            rpc->peers[rq->pub.from].name, rq->f ? rq->f->name : "a value", stages[rq->stage],
            rq->cancelled ? ", cancelled" : "");
        cdp__rpc_describe_time(rpc, t, rq->pub.deadline_ns);
    }
}

CDP__PRIVATE void cdp__rpc_describe_refs(const cdp_rpc *rpc, cdp__text *t) {
    uint32_t slot;
    for (slot = 1; slot < rpc->refs.room; ++slot) {
        const cdp__ref *r = &rpc->refs.at[slot];
        const char *label = rpc->extra[slot].label;
        if (r->kind != CDP__REF_OWNER && r->kind != CDP__REF_USER) continue;
        if (r->kind == CDP__REF_OWNER)
            cdp__text_add(t, "value %llx", (unsigned long long)r->rid);
        else
            cdp__text_add(t, "reference to value %llx of rank %u (%s)", (unsigned long long)r->rid,
                r->rank, rpc->peers[r->rank].name);
        cdp__text_add(t, "%s%s: %s, %u handles, %u %s\n", label ? ", label " : "",
            label ? label : "", cdp_status_name(cdp__rpc_slot_status(rpc, slot)), r->handles,
            r->count, r->kind == CDP__REF_OWNER ? "references of others" : "holds");
    }
}

CDP_API uint64_t cdp_rpc_describe(cdp_rpc *rpc, char *text, uint64_t room) {
    cdp__text t = cdp__text_of(text, room);
    uint32_t r;
    if (!rpc || cdp__rpc_gone(rpc, "cdp_rpc_describe")) return cdp__text_end(&t);
    cdp__rpc_lock(rpc);
    cdp__text_add(&t, "rpc %u, rank %u of %u (%s)%s\n", rpc->desc.number, rpc->rank, rpc->ranks,
        rpc->peers ? rpc->peers[rpc->rank].name : "", rpc->phase ? ", has shut down" : "");
    cdp__text_add(&t,
        "  %u workers, %u idle; timeout_ms %u, max_calls %u, max_queue %u, max_depth %u, "
        "max_rrefs %u, max_call_bytes %llu, max_message_bytes %llu, max_queue_bytes %llu\n",
        rpc->desc.workers, rpc->idle, rpc->desc.timeout_ms, rpc->desc.max_calls,
        rpc->desc.max_queue, rpc->desc.max_depth, rpc->desc.max_rrefs,
        (unsigned long long)rpc->desc.max_call_bytes,
        (unsigned long long)rpc->desc.max_message_bytes,
        (unsigned long long)rpc->desc.max_queue_bytes);
    for (r = 0; r < rpc->ranks; ++r)
        if (rpc->lost[r])
            cdp__text_add(
                &t, "rank %u (%s) is lost: %s\n", r, rpc->peers[r].name, rpc->peers[r].why.text);
    cdp__rpc_describe_calls(rpc, &t);
    cdp__rpc_describe_requests(rpc, &t);
    cdp__rpc_describe_refs(rpc, &t);
    cdp_lock_release(&rpc->lock);
    return cdp__text_end(&t);
}

#endif /* CDP_SRC_RPC_FACTS_H */
