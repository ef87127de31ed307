/* rpc/call_waits.h - a call under way

   Knows: a call of the program, and its record. Promises: a wait returns the status that the call
   has ended with; its memory is freed once. */
#ifndef CDP_SRC_RPC_CALL_WAITS_H
#define CDP_SRC_RPC_CALL_WAITS_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/error_api.h"
#include "../message/transport_api.h"
#include "../group/collectives_api.h"
#include "../base/compiler.h"
#include "../base/kept_error.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "../message/deferred.h"
#include "../group/deferred.h"
#include "../group/progress.h"
#include "worker_api.h"
#include "calls_api.h"
#include "references_api.h"
#include "alive.h"
#include "state.h"
#include "pools.h"
#include "calls.h"
#include "levels.h"
#include "intake.h"
#include "waits.h"

CDP__PRIVATE bool cdp__call_over(cdp_rpc *rpc, void *arg) {
    (void)rpc;
    return ((cdp_call *)arg)->priv[CDP__CALL_STAGE] == CDP__CALL_ENDED;
}

CDP__PRIVATE cdp_status cdp__call_result(const cdp_call *call) {
    return call->status == CDP_OK ? CDP_OK : cdp__error_again(call->status, &call->error);
}

/* True if the rpc of the call was destroyed, which has ended the call. */
CDP__PRIVATE bool cdp__call_outlived(const cdp_call *call) {
    cdp_rpc *rpc = call ? (cdp_rpc *)(uintptr_t)call->priv[CDP__CALL_RPC] : NULL;
    /* as long as the rpc exists, its lock protects the stage */
    return rpc && !cdp__rpc_exists(rpc) && call->priv[CDP__CALL_STAGE] == CDP__CALL_ENDED;
}

/* As long as the rpc exists, other threads may end the call. */
CDP__PRIVATE bool cdp__call_has_ended(const cdp_call *call) {
    cdp_rpc *rpc = (cdp_rpc *)(uintptr_t)call->priv[CDP__CALL_RPC];
    bool ended;
    if (!rpc || !cdp__rpc_exists(rpc) || cdp__is_child(rpc->forks))
        return call->priv[CDP__CALL_STAGE] == CDP__CALL_ENDED;
    cdp__rpc_lock(rpc);
    ended = call->priv[CDP__CALL_STAGE] == CDP__CALL_ENDED;
    cdp_lock_release(&rpc->lock);
    return ended;
}

/* The rpc of a call; NULL: the call was never started, or the rpc was destroyed. */
CDP__PRIVATE cdp_rpc *cdp__call_rpc(const char *name, const cdp_call *call) {
    cdp_rpc *rpc = call ? (cdp_rpc *)(uintptr_t)call->priv[CDP__CALL_RPC] : NULL;
    if (rpc && cdp__rpc_exists(rpc)) return cdp__rpc_forked(rpc, name) ? NULL : rpc;
    (void)cdp__fail(CDP_ERR_INVALID, "%s: %s", name,
        rpc ? "the rpc of this cdp_call was destroyed" : "this cdp_call was not started");
    return NULL;
}

/* The latest end of the call, on the clock of os->now_ns; 0: it has ended, but perhaps `done` has
   not run yet. */
CDP__PRIVATE uint64_t cdp__call_deadline(cdp_rpc *rpc, const cdp_call *call) {
    const cdp__rpc_call *c = call->priv[CDP__CALL_STAGE] == CDP__CALL_UNDER_WAY
        ? cdp__rpc_call_find(rpc, call->priv[CDP__CALL_ID])
        : NULL;
    return c && c->call == call ? c->deadline_ns : 0;
}

/* The function that wants to wait is too deep: its call ends now, so that nothing writes to memory
   that the function leaves. */
CDP__PRIVATE void cdp__call_not_waited(cdp_rpc *rpc, cdp_call *call) {
    cdp__rpc_call *c = call->priv[CDP__CALL_STAGE] == CDP__CALL_UNDER_WAY
        ? cdp__rpc_call_find(rpc, call->priv[CDP__CALL_ID])
        : NULL;
    if (c && c->call == call) cdp__rpc_abandon(rpc, c, CDP_ERR_BUSY);
}

CDP__PRIVATE cdp_status cdp__call_wait_until(
    const char *name, cdp_call *call, bool bounded, uint32_t timeout_ms) {
    cdp_rpc *rpc;
    cdp_status st = CDP_OK;
    if (cdp__call_outlived(call)) return cdp__call_result(call);
    rpc = cdp__call_rpc(name, call);
    if (!rpc) return CDP_ERR_INVALID;
    cdp__rpc_lock(rpc);
    if (!bounded && !cdp__level_waits(cdp__rpc_inside(), rpc->desc.max_depth))
        cdp__call_not_waited(rpc, call);
    st = cdp__rpc_wait(rpc, cdp__call_over, call,
        bounded ? cdp__rpc_until(rpc, timeout_ms) : CDP__NEVER, cdp__call_deadline(rpc, call));
    cdp__rpc_leave(rpc);
    return st == CDP_OK ? cdp__call_result(call) : st;
}

CDP_API cdp_status cdp_call_wait(cdp_call *call) {
    return cdp__call_wait_until("cdp_call_wait", call, false, 0);
}

CDP_API cdp_status cdp_call_wait_for(cdp_call *call, uint32_t timeout_ms) {
    return cdp__call_wait_until("cdp_call_wait_for", call, true, timeout_ms);
}

CDP_API cdp_status cdp_call_test(cdp_call *call) {
    cdp_rpc *rpc;
    bool over;
    if (cdp__call_outlived(call)) return cdp__call_result(call);
    rpc = cdp__call_rpc("cdp_call_test", call);
    if (!rpc) return CDP_ERR_INVALID;
    cdp__rpc_lock(rpc);
    over = cdp__call_over(rpc, call);
    cdp_lock_release(&rpc->lock);
    return over ? cdp__call_result(call) : CDP_PENDING;
}

/* Waits for each call of a list, or of an array. */
CDP__PRIVATE cdp_status cdp__call_wait_each(
    cdp_call *const *list, cdp_call *array, uint32_t count) {
    cdp_status first = CDP_OK, st;
    cdp_error e;
    uint32_t i;
    for (i = 0; i < count; ++i) {
        st = cdp_call_wait(list ? list[i] : &array[i]);
        if (st == CDP_OK || first != CDP_OK) continue;
        first = st;
        e = *cdp_last_error();
    }
    return first == CDP_OK ? CDP_OK : cdp__error_again(first, &e);
}

CDP_API cdp_status cdp_call_wait_all(cdp_call *const *calls, uint32_t count) {
    if (count && !calls) return cdp__missing("cdp_call_wait_all", "calls");
    return cdp__call_wait_each(calls, NULL, count);
}

typedef struct cdp__calls {
    cdp_call *const *at;
    uint32_t count, which;
} cdp__calls;

CDP__PRIVATE bool cdp__call_any_over(cdp_rpc *rpc, void *arg) {
    cdp__calls *c = (cdp__calls *)arg;
    for (c->which = 0; c->which < c->count; ++c->which)
        if (cdp__call_over(rpc, c->at[c->which])) return true;
    return false;
}

CDP_API cdp_status cdp_call_wait_any(
    cdp_call *const *calls, uint32_t count, uint32_t timeout_ms, uint32_t *which) {
    cdp__calls c;
    cdp_rpc *rpc;
    cdp_status st;
    uint64_t bound_ns = CDP__NEVER;
    uint32_t i;
    if (!calls) return cdp__missing("cdp_call_wait_any", "calls");
    if (!count) return cdp__missing("cdp_call_wait_any", "count");
    if (!which) return cdp__missing("cdp_call_wait_any", "which");
    for (i = 0; i < count; ++i) {
        if (cdp__call_outlived(calls[i])) {
            *which = i;
            return cdp__call_result(calls[i]);
        }
        rpc = cdp__call_rpc("cdp_call_wait_any", calls[i]);
        if (!rpc) return CDP_ERR_INVALID;
        if (rpc != cdp__call_rpc("cdp_call_wait_any", calls[0]))
            return cdp__fail(CDP_ERR_INVALID,
                "cdp_call_wait_any: calls[0] and calls[%u] belong to different rpcs", i);
    }
    c.at = calls;
    c.count = count;
    rpc = cdp__call_rpc("cdp_call_wait_any", calls[0]);
    cdp__rpc_lock(rpc);
    for (i = 0; i < count; ++i)
        bound_ns = cdp__min(bound_ns, cdp__call_deadline(rpc, calls[i]));
    st = cdp__rpc_wait(rpc, cdp__call_any_over, &c, cdp__rpc_until(rpc, timeout_ms), bound_ns);
    cdp__rpc_leave(rpc);
    if (st != CDP_OK) return st;
    *which = c.which;
    return cdp__call_result(calls[c.which]);
}

CDP_API cdp_status cdp_call_cancel(cdp_call *call) {
    static const char *const ended = "cdp_call_cancel: the call has ended before";
    cdp_rpc *rpc;
    cdp__rpc_call *c;
    cdp_status st = CDP_OK;
    if (cdp__call_outlived(call)) return cdp__fail(CDP_ERR_STATE, "%s", ended);
    rpc = cdp__call_rpc("cdp_call_cancel", call);
    if (!rpc) return CDP_ERR_INVALID;
    cdp__rpc_lock(rpc);
    c = call->priv[CDP__CALL_STAGE] == CDP__CALL_UNDER_WAY
        ? cdp__rpc_call_find(rpc, call->priv[CDP__CALL_ID])
        : NULL;
    if (c && c->call == call) {
        const uint64_t id = cdp__rpc_call_id(c);
        cdp__rpc_abandon(rpc, c, CDP_ERR_ABORTED);
        if (c->to == rpc->rank) cdp__rpc_got_cancel(rpc, rpc->rank, id);
    } else {
        st = cdp__fail(CDP_ERR_STATE, "%s", ended);
    }
    cdp__rpc_leave(rpc);
    return st;
}

CDP_API cdp_status cdp_call_work(cdp_call *call, cdp_work *out) {
    cdp_rpc *rpc = cdp__call_rpc("cdp_call_work", call);
    cdp__deferred *entry;
    cdp_status st = CDP_OK;
    if (!rpc || !out) return rpc ? cdp__missing("cdp_call_work", "out") : CDP_ERR_INVALID;
    memset(out, 0, sizeof *out);
    cdp__rpc_lock(rpc);
    if (call->priv[CDP__CALL_WORK])
        st = cdp__fail(CDP_ERR_STATE, "cdp_call_work: this call has a work already; use that one");
    if (st == CDP_OK) {
        cdp__enter(rpc->group);
        st = cdp__deferred_open(rpc->group, CDP__DEFERRED_CALL, out, &entry);
        cdp__leave(rpc->group);
    }
    if (st == CDP_OK) call->priv[CDP__CALL_WORK] = out->seq;
    if (st == CDP_OK && cdp__call_over(rpc, call)) cdp__rpc_end_work(rpc, call);
    cdp__rpc_leave(rpc);
    return st;
}

/* Frees the memory of a call whose rpc was destroyed, and its references with that. */
CDP__PRIVATE void cdp__call_free_outlived(cdp_call *call) {
    const cdp_os *os = (const cdp_os *)(uintptr_t)call->priv[CDP__CALL_OS];
    cdp__free(os, (void *)(uintptr_t)call->priv[CDP__CALL_MEMORY]);
    cdp__free(os, (void *)(uintptr_t)call->priv[CDP__CALL_TENSORS]);
    memset(call, 0, sizeof *call);
}

CDP_API void cdp_call_free(cdp_call *call) {
    cdp__rpc_here *here = cdp__rpc_here_of();
    const bool in_done = call && here->done == call;
    bool used;
    cdp_rpc *rpc;
    uint32_t i;
    if (!call || (!in_done && call->priv[CDP__CALL_STAGE] != CDP__CALL_ENDED)) return;
    rpc = (cdp_rpc *)(uintptr_t)call->priv[CDP__CALL_RPC];
    if (cdp__call_outlived(call)) {
        cdp__call_free_outlived(call);
        return;
    }
    used = call->rref_count || call->priv[CDP__CALL_MEMORY] || call->priv[CDP__CALL_TENSORS];
    if (used && cdp__rpc_forked(rpc, "cdp_call_free")) return;
    if (in_done) {
        here->done = NULL;
        cdp__rpc_lock(rpc);
        cdp__rpc_end_work(rpc, call);
        cdp_lock_release(&rpc->lock);
    }
    for (i = 0; i < call->rref_count; ++i)
        cdp_rref_drop(call->rrefs[i]);
    if (call->priv[CDP__CALL_MEMORY]) {
        cdp__rpc_lock(rpc);
        cdp__rpc_area_free(rpc, (void *)(uintptr_t)call->priv[CDP__CALL_MEMORY]);
        cdp_lock_release(&rpc->lock);
    }
    cdp__free(rpc->os, (void *)(uintptr_t)call->priv[CDP__CALL_TENSORS]);
    memset(call, 0, sizeof *call);
}

#endif /* CDP_SRC_RPC_CALL_WAITS_H */
