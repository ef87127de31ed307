/* rpc/waits.h - threads that wait, threads that run functions

   Knows: workers, waits. Promises: one absolute deadline for each wait; a thread that waits inside
   a function runs functions of higher levels meanwhile, see rpc/levels.h. */
#ifndef CDP_SRC_RPC_WAITS_H
#define CDP_SRC_RPC_WAITS_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../message/transport_api.h"
#include "../channel/channel_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "../group/deferred.h"
#include "worker_api.h"
#include "levels.h"
#include "state.h"
#include "requests.h"
#include "intake.h"

/* The latest end of this thread's waits and calls, if it runs inside another wait. */
CDP__PRIVATE uint64_t cdp__rpc_cut(void) {
    const uint64_t until = cdp__rpc_here_of()->until_ns;
    return until && until != CDP__NEVER ? until + CDP__RPC_GRACE_NS : CDP__NEVER;
}

/* The deadline of a wait with this timeout_ms; 0 only checks. */
CDP__PRIVATE uint64_t cdp__rpc_until(const cdp_rpc *rpc, uint32_t timeout_ms) {
    return timeout_ms ? cdp__min(cdp__deadline(rpc->os, timeout_ms), cdp__rpc_cut()) : 0;
}

CDP__PRIVATE bool cdp__rpc_helps(const cdp_rpc *rpc) {
    const cdp__rpc_here *here = cdp__rpc_here_of();
    if (here->depth && rpc->desc.no_help) return false;
    return !rpc->cond || here->request;
}

/* Runs a function inside a wait that ends by bound_ns. Waits of that function end soon after it,
   see cdp__rpc_cut(). */
CDP__PRIVATE void cdp__rpc_help(cdp_rpc *rpc, cdp__rpc_rq *rq, uint64_t bound_ns) {
    cdp__rpc_here *here = cdp__rpc_here_of();
    const uint64_t outer = here->until_ns;
    here->until_ns = cdp__min(bound_ns, outer ? outer : CDP__NEVER);
    cdp__rpc_run(rpc, rq);
    here->until_ns = outer;
    cdp__rpc_tidy(rpc);
}

/* Records that the function running in this thread, if any, waits. */
CDP__PRIVATE void cdp__rpc_it_waits(const cdp_rpc *rpc) {
    cdp__rpc_rq *rq = cdp__rpc_here_of()->request;
    if (rq && rq->pub.rpc == rpc && rq->use) rq->use->waits = true;
}

/* Waits are refused here, and so is what starts something and then waits for it: before it starts,
   because what has started writes to the program's memory when it ends. */
CDP__PRIVATE cdp_status cdp__rpc_may_wait(void) {
    if (!cdp__rpc_here_of()->no_wait && !*cdp__inside()) return CDP_OK;
    return cdp__fail(CDP_ERR_STATE,
        "an INLINE function and a callback must not wait; start the call with cdp_rpc_start() and "
        "return, or register the function without CDP_RPC_INLINE");
}

/* Sets the last error: a function that is so deep may not wait for calls. */
CDP__PRIVATE cdp_status cdp__rpc_too_deep(const cdp_rpc *rpc) {
    return cdp__fail(CDP_ERR_BUSY,
        "max_depth of cdp_rpc_desc is %u: functions that so many calls are above start calls, but "
        "do not wait for them; reply later (CDP_RPC_LATER), or raise it (at most 255)",
        rpc->desc.max_depth);
}

/* Waits with the lock held, and releases it meanwhile. OK: over(rpc, arg) is true; PENDING:
   until_ns has come. Functions may begin meanwhile, before bound_ns. After until_ns at most one
   begins, so that waits with timeout 0 make progress, too. */
CDP__PRIVATE cdp_status cdp__rpc_wait(cdp_rpc *rpc, bool (*over)(cdp_rpc *rpc, void *arg),
    void *arg, uint64_t until_ns, uint64_t bound_ns) {
    const uint64_t outer = cdp__rpc_here_of()->until_ns;
    uint64_t seen = 0;
    cdp_status st = CDP_OK;
    bool ran = false;
    cdp__rpc_it_waits(rpc);
    if (over(rpc, arg)) return CDP_OK;
    if (outer) bound_ns = cdp__min(bound_ns, outer);
    if (until_ns != CDP__NEVER) until_ns = cdp__min(until_ns, cdp__rpc_cut());
    if (cdp__rpc_may_wait() != CDP_OK) return CDP_ERR_STATE;
    if (!rpc->channel) return cdp__fail(CDP_ERR_STATE, "the rpc has shut down");
    ++rpc->waiters;
    while (st >= 0 && !over(rpc, arg)) {
        const uint64_t now = cdp__rpc_time(rpc);
        const bool may = now < bound_ns && (now < until_ns || !ran);
        cdp__rpc_rq *rq = may && cdp__rpc_helps(rpc) ? cdp__rpc_next(rpc, now, bound_ns) : NULL;
        if (rq) {
            cdp__rpc_help(rpc, rq, bound_ns);
            ran = true;
            continue;
        }
        if (now >= until_ns) {
            st = CDP_PENDING;
            break;
        }
        cdp_lock_release(&rpc->lock);
        st = cdp_channel_wait_since(rpc->channel, &seen, until_ns);
        cdp__rpc_lock(rpc);
    }
    --rpc->waiters;
    if (rpc->phase == CDP__RPC_SHUT) rpc->changed = true; /* cdp_rpc_shutdown() waits for waits */
    if (over(rpc, arg)) return CDP_OK;
    return st < 0 ? st : CDP_PENDING;
}

CDP__PRIVATE void cdp__rpc_worker(void *arg) {
    cdp_rpc *rpc = (cdp_rpc *)arg;
    cdp__rpc_lock(rpc);
    while (!rpc->stop) {
        cdp__rpc_rq *rq = cdp__rpc_next(rpc, 0, CDP__NEVER);
        if (rq) {
            cdp__rpc_run(rpc, rq);
            cdp__rpc_leave(rpc);
            cdp__rpc_lock(rpc);
            continue;
        }
        ++rpc->idle;
        rpc->os->threads.cond_wait(rpc->os->user, rpc->cond, rpc->lock.mutex, CDP__NEVER);
        rpc->now_ns = 0;
        --rpc->idle;
    }
    cdp_lock_release(&rpc->lock);
}

#endif /* CDP_SRC_RPC_WAITS_H */
