/* group/group_calls.h - calls about a group: its log, its memory, its status, its end

   Knows: groups and their locks. Promises: an abort reaches peers before its call returns, or soon
   after it, by the thread of the library. */
#ifndef CDP_SRC_GROUP_GROUP_CALLS_H
#define CDP_SRC_GROUP_GROUP_CALLS_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/error_api.h"
#include "../message/transport_api.h"
#include "group_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "../message/stream.h"
#include "state.h"
#include "../failure/spread.h"
#include "running.h"
#include "progress.h"
#include "create.h"

#ifndef CDP_NO_LOG_STRINGS
CDP_API cdp_status cdp_group_set_log_level(cdp_group *g, cdp_log_level level) {
    const cdp_status st = cdp__alive(g, "cdp_group_set_log_level");
    cdp_group *x;
    if (st != CDP_OK) return st;
    if ((uint32_t)level > CDP_LOG_SILENT)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_group_set_log_level: level %d does not exist; set it to CDP_LOG_ERROR, _WARN, "
            "_INFO, _DEBUG or _SILENT",
            (int)level);
    if (g->desc.logger.level_at)
        return cdp__fail(CDP_ERR_STATE,
            "cdp_group_set_log_level: the level is read from level_at of the logger that the group "
            "was made with; change what that points to");
    cdp__enter(g);
    for (x = g->w->groups; x; x = x->next) {
        volatile uint32_t *const at = cdp__log_level_at(&x->desc.logger.level);
        if (at)
            cdp__atomic_store_u32(at, (uint32_t)level, CDP__RELAXED);
        else
            x->desc.logger.level = level;
    }
    cdp__leave(g);
    return CDP_OK;
}
#endif

/* Copies the group's failure to this thread's last error. Lock held. OK while SETTLING, because
   the cause is not final yet. */
CDP__PRIVATE cdp_status cdp__group_report(cdp_group *g) {
    if (g->health != CDP__FAILED) return CDP_OK;
    *cdp__error_slot() = g->failure.error;
    return g->failure.error.status;
}

CDP_API cdp_status cdp_group_alloc(cdp_group *g, uint64_t bytes, void **out) {
    const cdp_transport *t;
    cdp_status st;
    if (!out) return cdp__missing("cdp_group_alloc", "out");
    *out = NULL;
    st = cdp__alive(g, "cdp_group_alloc");
    if (st != CDP_OK) return st;
    t = &g->w->transport;
    cdp__enter(g);
    if (t->memory.alloc) *out = t->memory.alloc(t->self, bytes);
    cdp__leave(g);
    if (!*out) *out = cdp__alloc(g->os, bytes);
    return *out ? CDP_OK : cdp__fail_nomem("cdp_group_alloc", bytes);
}

CDP_API void cdp_group_free(cdp_group *g, void *ptr) {
    bool taken = false;
    if (!ptr || cdp__alive(g, "cdp_group_free") != CDP_OK) return;
    cdp__enter(g);
    if (g->w->transport.memory.release)
        taken = g->w->transport.memory.release(g->w->transport.self, ptr);
    cdp__leave(g);
    if (!taken) cdp__free(g->os, ptr);
}

CDP_API cdp_status cdp_group_status(cdp_group *g) {
    cdp_status st = cdp__alive(g, "cdp_group_status");
    if (st != CDP_OK) return st;
    cdp__enter(g);
    st = cdp__group_report(g);
    cdp__leave(g);
    return st;
}

/* Fails the group with an error that needs no settling, and begins to tell peers. Lock held. */
CDP__PRIVATE void cdp__group_break(cdp_group *g, const cdp_error *e) {
    /* `e` may be this thread's last error, which telling peers changes */
    const cdp_error kept = *e;
    if (g->health == CDP__FAILED) return;
    /* overrides a cause that is still being settled */
    cdp__group_break_for(g, &kept);
    cdp__progress_poll(g->w);
    if (g->w->cond) g->os->threads.cond_broadcast(g->os->user, g->w->cond);
    if (g->w->sleeping) g->w->transport.wake(g->w->transport.self);
    *cdp__error_slot() = kept;
}

/* cdp_group_abort() for a thread that may take the lock: peers are told before it returns. */
CDP__PRIVATE void cdp__group_abort_now(cdp_group *g, const char *reason) {
    cdp_error why;
    cdp__error(&why, CDP_ERR_ABORTED, g->w->rank, CDP__ABORTED "%s", reason);
    cdp__enter(g);
    cdp__group_break(g, &why);
    cdp__leave(g);
}

CDP_API void cdp_group_abort(cdp_group *g, const char *reason) {
    if (cdp__alive(g, "cdp_group_abort") != CDP_OK) return;
    if (!reason || !*reason) reason = "no reason given";
#ifndef CDP_NO_THREADS
    if (g->w->thread) {
        cdp__abort_leave(g, reason);
        return;
    }
#endif
    cdp__group_abort_now(g, reason);
}

CDP_API CDP__ONE_COPY cdp_status cdp_poll(cdp_group *g, uint32_t budget_us) {
    cdp__world *m;
    uint64_t until;
    cdp_status st = cdp__alive(g, "cdp_poll");
    if (st != CDP_OK) return st;
    m = g->w;
    until = m->os->now_ns(m->os->user) + budget_us * 1000ull;
    cdp__enter(g);
    /* even if nothing is in flight: another rank may have failed */
    cdp__world_poll_transport(m, until);
    cdp__progress_until(g, CDP__ALL_WORK, until, true);
    st = cdp__group_report(g);
    cdp__leave(g);
    return st;
}

#endif /* CDP_SRC_GROUP_GROUP_CALLS_H */
