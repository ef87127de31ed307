/* launch/agent.h - an agent: starts workers, watches them, starts them again, ends them

   Knows: phases and limits of time. Promises: no step waits longer than it was told; a worker is
   asked before it is killed; nothing of a process group is left. */
#ifndef CDP_SRC_LAUNCH_AGENT_H
#define CDP_SRC_LAUNCH_AGENT_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "launch_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "../text/format.h"
#include "../store/auth.h"
#include "../os/words.h"
#include "../os/processes.h"
#include "facts.h"
#include "console.h"
#include "stream.h"
#include "timer.h"
#include "state.h"
#include "environment.h"
#include "output.h"
#include "ends.h"
#include "health.h"
#include "attempt.h"

CDP__PRIVATE void cdp__agent_enter(cdp_agent *a, cdp__agent_phase phase, uint32_t ms) {
    a->phase = phase;
    a->deadline_ns = ms == CDP_NO_TIMEOUT ? CDP__NEVER : cdp__agent_now(a) + ms * CDP__MS;
}

CDP__PRIVATE void cdp__agent_signal_all(cdp_agent *a, int32_t sig) {
    uint32_t i;
    a->sent |= 1ull << (sig & 63);
    for (i = 0; i < a->desc.workers; ++i)
        if (a->workers[i].p.pid && !a->workers[i].p.ended)
            cdp__process_signal(a->workers[i].p.pid, sig);
}

CDP__PRIVATE void cdp__agent_ask_all(cdp_agent *a) {
    cdp__agent_signal_all(a, CDP__PROCESS_ASK);
    cdp__agent_enter(a, CDP__AGENT_TERM, a->desc.kill_ms);
}

CDP__PRIVATE void cdp__agent_reap_one(cdp_agent *a, uint32_t i) {
    cdp__agent_worker *const w = &a->workers[i];
    const int32_t r = cdp__process_ended(w->p.pid, &w->p.end);
    if (r == 0) return;
    w->p.ended = true;
    w->p.end_ns = cdp__agent_now(a);
    w->end_us = cdp__os_date_us();
    if (r < 0) {
        w->lost = true;
        w->p.end.exit_code = -1;
        w->p.end.sig = 0;
    }
    w->p.by_us = r > 0 && w->p.end.sig && (a->sent >> (w->p.end.sig & 63) & 1) != 0;
    cdp__agent_carry(a, i, 16);
    /* what it left behind; a group that has members keeps its number */
    if (r > 0) cdp__process_signal(w->p.pid, CDP__PROCESS_KILL);
    cdp__agent_tell(a, CDP_AGENT_WORKER_ENDED, i);
}

/* Looks at all workers; returns how many run. */
CDP__PRIVATE uint32_t cdp__agent_reap(cdp_agent *a) {
    uint32_t i, running = 0;
    for (i = 0; i < a->desc.workers; ++i) {
        cdp__agent_worker *const w = &a->workers[i];
        if (w->p.ended) continue;
        cdp__agent_reap_one(a, i);
        running += !w->p.ended;
        if (!cdp__launch_blame(&w->p) || w->lost) continue;
        if (a->first < 0 && a->phase == CDP__AGENT_RUN)
            a->first = i;
        else if (a->first >= 0
            && ((!w->expired[0] && cdp__launch_overtaken(&a->workers[a->first].p, &w->p))
                || (a->phase == CDP__AGENT_RUN
                    && cdp__launch_blame(&w->p) > cdp__launch_blame(&a->workers[a->first].p))))
            a->first = i;
    }
    return running;
}

/* No worker runs any more. */
CDP__PRIVATE cdp_status cdp__agent_over(cdp_agent *a) {
    bool lost = false, well = true;
    uint32_t i;
    for (i = 0; i < a->desc.workers; ++i) {
        cdp__agent_worker *const w = &a->workers[i];
        int which;
        cdp__agent_carry(a, i, 4096);
        for (which = 0; which < 2; ++which)
            if (!w->stuck[which]) cdp__launch_stream_end(w->out[which]);
    }
    if (cdp__agent_unread(a)) return CDP_OK; /* this is called again */
    for (i = 0; i < a->desc.workers; ++i) {
        const cdp__agent_worker *const w = &a->workers[i];
        cdp__agent_tail_read(a, i, 0);
        cdp__agent_tail_read(a, i, 1);
        lost = lost || w->lost;
        well = well && w->p.ended && w->p.end.exit_code == 0 && !w->p.end.sig;
    }
    cdp__agent_first_by_time(a);
    if (a->first >= 0 && !a->stopping && !lost && a->attempt < a->desc.max_restarts) {
        ++a->attempt;
        return cdp__agent_attempt(a);
    }
    a->phase = CDP__AGENT_OVER;
    if (a->first >= 0)
        a->state = CDP_AGENT_FAILED;
    else if (lost)
        a->state = CDP_AGENT_UNKNOWN;
    else
        a->state = a->stopping && !well ? CDP_AGENT_STOPPED : CDP_AGENT_SUCCEEDED;
    if (a->late && a->first < 0) a->state = CDP_AGENT_STOPPED;
    cdp__agent_tell(a, CDP_AGENT_ENDED, -1);
    return a->desc.result_file ? cdp_agent_save(a, a->desc.result_file) : CDP_OK;
}

/* Kills the workers whose timers have expired; their ends are failures like every other crash.
   After a failure, too: the others may have for ever to end by themselves. */
CDP__PRIVATE void cdp__agent_look_at_timers(cdp_agent *a, uint64_t now) {
    uint32_t i;
    if (a->phase > CDP__AGENT_GRACE || now < a->timers_ns) return;
    a->timers_ns = now + CDP__TIMER_LOOK_MS * CDP__MS;
    for (i = 0; i < a->desc.workers; ++i) {
        cdp__agent_worker *const w = &a->workers[i];
        if (!w->p.ended && !w->expired[0] && cdp__timer_expired(a->os, w->timer_file, w->expired))
            cdp__process_signal(w->p.pid, CDP__PROCESS_KILL);
    }
}

/* One look at everything. */
CDP__PRIVATE cdp_status cdp__agent_look(cdp_agent *a) {
    const uint64_t now = cdp__agent_now(a);
    uint32_t i, running;
    if (a->phase == CDP__AGENT_OVER) return CDP_OK;
    for (i = 0; i < a->desc.workers; ++i)
        cdp__agent_carry(a, i, 16);
    running = cdp__agent_reap(a);
    cdp__agent_flush(a); /* a program may never let a step wait */
    cdp__agent_look_at_timers(a, now);
    if (a->first >= 0 && a->phase == CDP__AGENT_RUN) {
        a->state = CDP_AGENT_UNHEALTHY;
        cdp__agent_enter(a, CDP__AGENT_GRACE, a->desc.grace_ms);
    }
    if (running == 0) return cdp__agent_over(a);
    if (now >= a->timeout_ns && !a->late) {
        a->late = a->stopping = true;
        if (a->phase < CDP__AGENT_TERM) cdp__agent_ask_all(a);
    }
    if (now < a->deadline_ns) return CDP_OK;
    if (a->phase == CDP__AGENT_GRACE) {
        cdp__agent_ask_all(a);
    } else if (a->phase == CDP__AGENT_TERM) {
        cdp__agent_signal_all(a, CDP__PROCESS_KILL);
        cdp__agent_enter(a, CDP__AGENT_KILL, CDP__AGENT_KILL_MS);
    } else if (a->phase == CDP__AGENT_KILL) {
        return cdp__agent_over(a); /* one in the kernel that does not die: left to the system */
    }
    return CDP_OK;
}

/* Until something can be read, a limit comes, or the next look is due. */
CDP__PRIVATE void cdp__agent_sleep(cdp_agent *a, uint64_t until_ns) {
    uint64_t at = cdp__agent_now(a), ms = a->desc.poll_ms;
    uint32_t i, n = 0;
    if (cdp__agent_unread(a)) { /* pipes may be full, so they do not wake this */
        cdp__process_wait(NULL, 0, 10);
        return;
    }
    if (a->deadline_ns < until_ns) until_ns = a->deadline_ns;
    if (a->timeout_ns < until_ns && !a->late) until_ns = a->timeout_ns;
    if (until_ns <= at) return;
    ms = cdp__min(ms, (until_ns - at) / CDP__MS + 1);
    for (i = 0; i < a->desc.workers; ++i) {
        const cdp__agent_worker *const w = &a->workers[i];
        a->watched[n++] = w->out[0]->fd;
        a->watched[n++] = w->out[1]->fd;
        /* all of its pipes are at their end: it is about to be gone */
        if (!w->p.ended && w->out[0]->fd < 0 && w->out[1]->fd < 0) ms = cdp__min(ms, 5);
        /* progress text waits to be shown */
        if (cdp__min(w->out[0]->due_ns, w->out[1]->due_ns) != CDP__NEVER)
            ms = cdp__min(ms, CDP__LAUNCH_HOLD_MS);
    }
    cdp__process_wait(a->watched, n, (uint32_t)ms);
}

CDP_API cdp_status cdp_agent_step(cdp_agent *a, uint32_t wait_ms) {
    cdp_agent_state was;
    uint64_t until;
    uint32_t attempt;
    cdp_status st = cdp__agent_alive(a, "cdp_agent_step");
    if (st != CDP_OK) return st;
    was = a->state;
    attempt = a->attempt;
    until = cdp__agent_now(a) + wait_ms * CDP__MS;
    st = cdp__agent_look(a);
    (void)cdp__agent_health(a);
    while (st == CDP_OK && a->state == was && a->attempt == attempt && a->phase != CDP__AGENT_OVER
        && cdp__agent_now(a) < until) {
        cdp__agent_sleep(a, until);
        st = cdp__agent_look(a);
        (void)cdp__agent_health(a);
    }
    return st;
}

/* The sentence of a job that has ended. */
CDP__PRIVATE cdp_status cdp__agent_verdict(cdp_agent *a) {
    const char *message;
    char end[96];
    cdp__text t = cdp__text_of(end, sizeof end);
    cdp__agent_worker *w;
    if (a->state == CDP_AGENT_SUCCEEDED) return CDP_OK;
    if (a->state == CDP_AGENT_STOPPED)
        return cdp__fail(CDP_ERR_ABORTED, "cdp_agent_wait: %s",
            a->late ? "the workers have not ended within timeout_ms, and were ended"
                    : "the workers were asked to end by cdp_agent_stop()");
    if (a->state == CDP_AGENT_UNKNOWN)
        return cdp__fail(CDP_ERR_STATE,
            "cdp_agent_wait: how a worker ended is not known, because something else in this "
            "process has waited for it (waitpid(-1), or SIGCHLD is ignored)");
    if (a->first < 0) { /* the workers could not start again */
        *cdp__error_slot() = a->why;
        return a->why.status;
    }
    w = &a->workers[a->first];
    cdp__launch_end_text(&t, &w->p, "the agent");
    message = cdp__agent_message(a, w);
    return cdp__fail(CDP_ERR_REMOTE, "cdp_agent_wait: rank %u failed first on %s, %s%s%s",
        cdp__agent_rank(a, (uint32_t)a->first), a->host, end, *message ? ": " : "", message);
}

CDP_API cdp_status cdp_agent_wait(cdp_agent *a, uint32_t timeout_ms) {
    uint64_t until = CDP__NEVER;
    const cdp_status alive = cdp__agent_alive(a, "cdp_agent_wait");
    if (alive != CDP_OK) return alive;
    if (timeout_ms && timeout_ms != CDP_NO_TIMEOUT)
        until = cdp__agent_now(a) + timeout_ms * CDP__MS;
    while (a->phase != CDP__AGENT_OVER) {
        const uint64_t now = cdp__agent_now(a);
        const uint64_t left = until == CDP__NEVER ? 1000 : (until - now) / CDP__MS + 1;
        cdp_status st;
        if (now >= until)
            return cdp__fail(
                CDP_ERR_TIMEOUT, "cdp_agent_wait: the workers still run after %u ms", timeout_ms);
        st = cdp_agent_step(a, (uint32_t)cdp__min(left, 1000));
        if (st != CDP_OK) return st;
    }
    return cdp__agent_verdict(a);
}

CDP_API void cdp_agent_stop(cdp_agent *a) {
    if (!cdp__agent_lives(a) || a->phase == CDP__AGENT_OVER) return;
    a->stopping = true;
    if (a->phase < CDP__AGENT_TERM) cdp__agent_ask_all(a);
}

CDP_API cdp_agent_state cdp_agent_state_of(const cdp_agent *a) {
    return a && !cdp__ended(a) ? a->state : CDP_AGENT_INIT;
}

CDP_API void cdp_agent_destroy(cdp_agent *a) {
    uint32_t i;
    const cdp_os *os;
    if (!cdp__agent_lives(a)) return;
    cdp__ended_add(a);
    os = a->os;
    if (a->workers && a->phase != CDP__AGENT_OVER) cdp__agent_kill_all(a);
    for (i = 0; a->workers && i < a->desc.workers; ++i) {
        cdp__agent_worker_clear(a, i);
        cdp__free(os, a->workers[i].out[0]);
        cdp__free(os, a->workers[i].out[1]);
    }
    cdp__launch_console_close(&a->console);
    cdp__process_close(a->port_held);
    cdp__wipe(a->key, sizeof a->key);
    cdp__free(os, a->workers);
    cdp__free(os, a->ends);
    cdp__free(os, a->map);
    cdp__free(os, a->watched);
    cdp__free(os, a);
}

#endif /* CDP_SRC_LAUNCH_AGENT_H */
