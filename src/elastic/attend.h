/* elastic/attend.h - who polls for alarms and decisions, and when

   Knows: the thread of this header and, with no_thread, the calls of the program. Promises: the
   thread polls within CDP__ELASTIC_SLICE_MS; without it each call does, but not more than once
   in CDP__ELASTIC_REST_NS. */
#ifndef CDP_SRC_ELASTIC_ATTEND_H
#define CDP_SRC_ELASTIC_ATTEND_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/error_api.h"
#include "../group/group_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "epoch.h"
#include "turn.h"
#include "store.h"
#include "turns.h"

/* The thread of this header. */
CDP__PRIVATE void cdp__elastic_main(void *arg) {
    cdp_elastic *e = (cdp_elastic *)arg;
    cdp__elastic_lock(e);
    while (!e->stop) {
        cdp_status st;
        if (cdp__elastic_idle(e)) {
            e->os->threads.cond_wait(e->os->user, e->cond, e->mutex, CDP__NEVER);
            continue;
        }
        cdp__elastic_unlock(e);
        st = cdp__elastic_tick(e, cdp__elastic_now_ns(e) + CDP__ELASTIC_SLICE_MS * CDP__MS);
        cdp__elastic_lock(e);
        if (st < 0) cdp__elastic_fail(e);
    }
    cdp__elastic_unlock(e);
}

/* One poll without a thread; the program made no call for away_ns before it. A turn leaves out
   processes that do not arrive within settle_ms, so the longest such time is kept until settle_ms
   later, for the error that explains this. */
CDP__PRIVATE void cdp__elastic_visit(cdp_elastic *e, uint64_t until_ns, uint64_t away_ns) {
    const bool arrived = e->place.phase == CDP__ELASTIC_ARRIVED;
    const uint64_t now = cdp__elastic_now_ns(e);
    if (!arrived && (away_ns >= e->away_ns || now - e->back_ns >= e->desc.settle_ms * CDP__MS)) {
        e->away_ns = away_ns;
        e->back_ns = now;
    }
#ifndef CDP_NO_FRAMES
    if (e->closing && cdp_group_leave(e->closing, 0) == CDP_OK) e->closing = NULL;
#endif
    /* the others, inside its operations, learn from the group that it was aborted */
    if (arrived && e->group) (void)cdp_poll(e->group, 0);
    if (cdp__elastic_tick(e, until_ns) < 0) cdp__elastic_fail(e);
    e->looked_ns = cdp__elastic_now_ns(e);
}

/* Without a thread, calls of the program poll, at most one in CDP__ELASTIC_REST_NS. So an alarm is
   seen that much later at most, and in steps of microseconds most calls only read the clock.
   `until_ns`: how long to wait; 0: not at all. */
CDP__PRIVATE void cdp__elastic_attend(cdp_elastic *e, uint64_t until_ns) {
    uint64_t now;
    if (!e->no_thread) return;
    now = cdp__elastic_now_ns(e);
    if (!until_ns && now - e->looked_ns < CDP__ELASTIC_REST_NS) return;
    cdp__elastic_visit(e, until_ns, now - e->looked_ns);
}

/* Called before a function of the program. Polls, and begins a new time away: the time until the
   function returns is the program's. */
CDP__PRIVATE void cdp__elastic_before_callback(cdp_elastic *e) {
    if (e->no_thread) cdp__elastic_visit(e, 0, 0);
}

/* Called after that function has returned. Keeps this thread's last error. */
CDP__PRIVATE void cdp__elastic_after_callback(cdp_elastic *e) {
    const cdp_error why = *cdp_last_error();
    cdp__elastic_attend(e, 0);
    *cdp__error_slot() = why;
}

/* Waits until the place of this process may have changed. Lock held; released while waiting. */
CDP__PRIVATE void cdp__elastic_sleep(cdp_elastic *e, uint64_t deadline_ns) {
    if (e->no_thread)
        cdp__elastic_attend(
            e, cdp__min(deadline_ns, cdp__elastic_now_ns(e) + CDP__ELASTIC_LOOK_MS * CDP__MS));
    else
        e->os->threads.cond_wait(e->os->user, e->cond, e->mutex, deadline_ns);
}

#endif /* CDP_SRC_ELASTIC_ATTEND_H */
