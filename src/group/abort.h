/* group/abort.h - a group that its program breaks, also from a signal handler

   Knows: groups, failures. Promises: where the library has a thread, the caller takes no lock and
   allocates nothing. It leaves a reason, and whoever next has the lock of the world carries it out:
   the thread of the library, a thread that waits, or the next call. */
#ifndef CDP_SRC_GROUP_ABORT_H
#define CDP_SRC_GROUP_ABORT_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/error_api.h"
#include "../os/os_api.h"
#include "../message/transport_api.h"
#include "group_api.h"
#include "../base/compiler.h"
#include "../base/helpers.h"
#include "../base/text.h"
#include "../os/words.h"
#include "../message/stream.h"
#include "state.h"
#include "../failure/spread.h"
#include "deferred.h"

#ifdef CDP_NO_THREADS
CDP__PRIVATE void cdp__world_aborts(cdp__world *m) {
    (void)m; /* the caller had the lock, see cdp_group_abort() */
}
#else
#define CDP__ABORT_WAIT_MS 20u /* for the thread of the library; it looks every 10 ms */

/* Carries out what cdp_group_abort() left. The lock is held. */
CDP__PRIVATE CDP__COLD void cdp__world_abort(cdp__world *m) {
    cdp_group *g;
    cdp_error e;
    for (g = m->groups; g; g = g->next) {
        if (cdp__atomic_load_u32(&g->abort.state, CDP__ACQUIRE) != CDP__ABORT_ASKED) continue;
        cdp__error(&e, CDP_ERR_ABORTED, m->rank, CDP__ABORTED "%s", g->abort.reason);
        if (g->health != CDP__FAILED) cdp__group_break_for(g, &e);
        cdp__atomic_store_u32(&g->abort.state, CDP__ABORT_DONE, CDP__RELEASE);
    }
    cdp__world_wake(m);
}

CDP__PRIVATE void cdp__world_aborts(cdp__world *m) {
    const uint32_t asked = cdp__atomic_load_u32(&m->aborts, CDP__ACQUIRE);
    if (asked == m->aborts_seen) return;
    m->aborts_seen = asked;
    cdp__world_abort(m);
}

CDP__PRIVATE void cdp__abort_ask(cdp_group *g, const char *reason) {
    uint32_t i;
    for (i = 0; i + 1 < sizeof g->abort.reason && reason[i]; ++i)
        g->abort.reason[i] = reason[i];
    g->abort.reason[i] = 0;
    cdp__atomic_store_u32(&g->abort.state, CDP__ABORT_ASKED, CDP__RELEASE);
    (void)cdp__atomic_add_u32(&g->w->aborts, 1, CDP__ACQ_REL);
}

/* Wakes the thread of the library and gives it time to tell the others. A handler may have
   interrupted the thread that has the lock: so not for ever. */
CDP__PRIVATE void cdp__abort_wait(cdp_group *g) {
    const cdp_os *os = g->os;
    const uint64_t until = os->now_ns(os->user) + CDP__ABORT_WAIT_MS * CDP__MS;
    g->w->transport.wake(g->w->transport.self);
    while (cdp__atomic_load_u32(&g->abort.state, CDP__ACQUIRE) != CDP__ABORT_DONE) {
        const uint64_t now = os->now_ns(os->user);
        if (now >= until) return;
        os->sleep_until(os->user, now + CDP__MS / 10);
    }
}

/* The first reason wins. */
CDP__PRIVATE void cdp__abort_leave(cdp_group *g, const char *reason) {
    uint32_t none = CDP__ABORT_NONE;
    if (!cdp__atomic_cas_u32(&g->abort.state, &none, CDP__ABORT_WRITES, CDP__ACQ_REL, CDP__ACQUIRE))
        return;
    cdp__abort_ask(g, reason);
    cdp__abort_wait(g);
}
#endif

#endif /* CDP_SRC_GROUP_ABORT_H */
