/* group/progress.h - which thread makes progress

   Knows: the world's lock, its threads, its groups. Promises: at most one thread sleeps in
   transport.wait, and work in flight always has a thread that makes progress. */
#ifndef CDP_SRC_GROUP_PROGRESS_H
#define CDP_SRC_GROUP_PROGRESS_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/error_api.h"
#include "../os/os_api.h"
#include "../message/transport_api.h"
#include "group_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../os/linux.h"
#include "../message/stream.h"
#include "../message/port.h"
#include "state.h"
#include "../failure/waits.h"
#include "../failure/spread.h"
#include "running.h"
#include "deferred.h"
#include "abort.h"

/* A thread that waits for a work makes progress itself, so that a synchronous operation needs no
   hand-over between threads. The progress thread stands by while callers come and go. It takes
   over if work is in flight and no caller waits, or if no caller has waited for CDP__STAND_BY_MS
   (then it sleeps in the transport, for failures). */
#define CDP__STAND_BY_MS 2u /* after the last caller, until the progress thread takes over */
#define CDP__CALLER_MS 10u  /* how often it checks that a caller in a long wait is still there */
#define CDP__YIELDS 4u      /* times spin_us: how long other threads may run before sleeping */
#define CDP__YIELD_LONG_NS 300000u
/* polls of the awaited operation for each poll of all sockets and of the clock */
#define CDP__FAST_POLLS 8u
/* The thread that starts an operation polls so often: copies the input, sends the first bytes. */
#define CDP__FIRST_MOVES 3u

/* Yields the lock to a waiting thread: after a plain release, a mutex mostly goes back to the
   thread that has just released it. */
CDP__PRIVATE void cdp__progress_yield_lock(cdp__world *m) {
    uint32_t i;
    if (!cdp__atomic_load_u32(&m->lock_waiters, CDP__RELAXED)) return;
    cdp_lock_release(&m->lock);
    for (i = 0; i < 64 && cdp__atomic_load_u32(&m->lock_waiters, CDP__RELAXED); ++i)
        m->os->threads.yield(m->os->user);
    cdp_lock_acquire(&m->lock);
}

/* Takes the lock for a call of the program. */
CDP__PRIVATE void cdp__enter(cdp_group *g) {
    cdp__world *m = g->w;
#ifndef CDP_NO_THREADS /* no thread would yield to this one */
    (void)cdp__atomic_add_u32(&m->lock_waiters, 1, CDP__RELAXED);
#endif
    cdp__lock_take(&m->lock);
#ifndef CDP_NO_THREADS
    (void)cdp__atomic_sub_u32(&m->lock_waiters, 1, CDP__RELAXED);
#endif
    cdp__world_aborts(m);
}

CDP__PRIVATE void cdp__leave(cdp_group *g) {
    cdp__world *m = g->w;
    /* a sleeping thread does not see messages that this call has stored for it */
    if (m->sleeping && m->stored != m->stored_before) m->transport.wake(m->transport.self);
    cdp__lock_give(&m->lock);
}

/* True if there is work in flight. */
CDP__PRIVATE bool cdp__world_busy(const cdp__world *m) {
    return m->active || m->pending;
}

/* The budget of a poll ended with this group: the next poll begins with another one. */
CDP__PRIVATE void cdp__world_last(cdp__world *m, cdp_group *g) {
    cdp_group **at = &m->active;
    if (!g->next_active) return;
    while (*at != g)
        at = &(*at)->next_active;
    *at = g->next_active;
    g->next_active = NULL;
    while (*at)
        at = &(*at)->next_active;
    *at = g;
}

/* Polls every active group once. */
CDP__PRIVATE cdp__advance cdp__world_poll(cdp__world *m) {
    cdp__advance most = CDP__IDLE;
    cdp_group **at = &m->active;
    m->stored_before = m->stored;
    m->cut = false;
    cdp__world_aborts(m);
    if (m->control_queued) cdp__world_send_queued(m);
    while (*at) {
        cdp_group *g = *at;
        const cdp__advance p = cdp__group_poll(g);
        if (p > most) most = p;
        if (*at != g) { /* a group that became active meanwhile was inserted in front */
            most = CDP__MOVED;
            for (at = &m->active; *at != g; at = &(*at)->next_active) {
            }
        }
        if (p == CDP__IDLE) {
            *at = g->next_active;
            g->active = false;
        } else {
            at = &g->next_active;
        }
        if (!CDP__BUDGETS || !m->cut) continue;
        if (p != CDP__IDLE) cdp__world_last(m, g);
        break;
    }
    if (CDP__DEFERS && m->pending) {
        const cdp__advance p = cdp__deferred_poll(m);
        if (p > most) most = p;
    }
    if (m->channels && !m->fast_poll) {
        const cdp__advance p = m->channels_poll(m);
        if (p > most) most = p;
    }
    /* stored messages may be for groups that were polled before they arrived */
    return (CDP__BUDGETS && m->cut) || m->stored != m->stored_before ? CDP__MOVED : most;
}

CDP__PRIVATE void cdp__progress_poll(cdp__world *m) {
    while (cdp__world_poll(m) == CDP__MOVED)
        cdp__progress_yield_lock(m);
}

CDP__PRIVATE uint64_t cdp__world_deadline(const cdp__world *m) {
    const cdp_group *g;
    uint64_t at = CDP__DEFERS && m->pending ? cdp__deferred_deadline(m) : CDP__NEVER;
    for (g = m->active; g; g = g->next_active)
        at = cdp__min(at, cdp__group_deadline(g));
    if (m->channels) at = cdp__min(at, m->channels_deadline(m));
    return at;
}

/* transport.wait reports a failure of another rank, or has failed itself; the reason is this
   thread's last error. */
CDP__PRIVATE void cdp__world_wait_failed(cdp__world *m) {
    cdp_error e = *cdp_last_error();
    const bool news = e.status == CDP_ERR_ABORTED || e.status == CDP_ERR_PEER_LOST;
    cdp_group *g;
    if (news) e.status = CDP_ERR_PEER_LOST; /* the cause is settled first */
    /* records of peers may tell more than that of one lost rank */
    if (news) cdp__world_read_all(m);
    if (news && cdp__world_adopt_first(m)) return;
    for (g = m->groups; g; g = g->next)
        if (!news || g->channel == CDP__WORLD_CHANNEL) cdp__group_fail(g, &e, false);
}

CDP__PRIVATE void cdp__world_wait(cdp__world *m, cdp_lock *lock, uint64_t deadline_ns) {
    m->sleeping = true;
    if (m->transport.wait(m->transport.self, lock, deadline_ns) != CDP_OK)
        cdp__world_wait_failed(m);
    m->sleeping = false;
#ifndef CDP_NO_GROUPS
    if (m->untold) cdp__world_report_late(m);
#endif
}

/* At the beginning of a poll with a budget: lets the transport report what has arrived. */
CDP__PRIVATE void cdp__world_poll_transport(cdp__world *m, uint64_t until_ns) {
    if (m->sleeping) return;
    m->poll_until_ns = CDP__BUDGETS ? cdp__max(until_ns, 1) : 0;
    cdp__poll_extend(m);
    cdp__world_wait(m, NULL, 0);
    m->poll_until_ns = 0;
}

/* Sleeps in the transport or, if another thread sleeps there, on the condition variable. */
CDP__PRIVATE void cdp__progress_sleep(cdp__world *m, uint64_t deadline_ns) {
    deadline_ns = cdp__min(deadline_ns, cdp__world_deadline(m));
    if (m->sleeping) {
        if (m->cond) m->os->threads.cond_wait(m->os->user, m->cond, m->lock.mutex, deadline_ns);
        return;
    }
    cdp__world_wait(m, &m->lock, deadline_ns);
    if (m->cond && m->callers) /* another caller sleeps in the transport next */
        m->os->threads.cond_broadcast(m->os->user, m->cond);
    cdp__progress_yield_lock(m); /* the transport does not sleep while it has work of its own */
}

/* Waits within a budget. A sleep may end late, so the last of the time is spent polling. */
CDP__PRIVATE void cdp__progress_rest(cdp__world *m, uint64_t now, uint64_t deadline_ns) {
    const uint64_t late_us = m->os->net.late_us, late = late_us ? late_us * 1000 : CDP__MS;
    if (m->sleeping) {
        cdp__progress_sleep(m, deadline_ns); /* on the condition variable */
    } else if (deadline_ns - now > late) {
        cdp__progress_sleep(m, deadline_ns - late);
    } else {
        cdp__world_wait(m, NULL, 0);
        cdp__progress_yield_lock(m);
    }
}

/* Polls for a few microseconds before sleeping, because a wake-up costs more than most small
   operations. If polling has not paid off lately (more ranks than cores), most waits yield the
   core instead, likely to the awaited rank, unless that took long last time (another program
   uses the core). Returns true if another poll is worthwhile. */
CDP__PRIVATE bool cdp__progress_spin(cdp__world *m, const cdp_group_desc *desc, uint64_t now,
    uint64_t until_ns, uint32_t *looks, uint32_t *spun) {
    const bool out_of_luck = m->spin_luck < 0 && (m->waits & 31) != 0;
    if (desc->no_spin || m->sleeping) return false;
    if (!out_of_luck && now >= until_ns) return false;
    if (out_of_luck
        && (!m->os->threads.yield || m->waits < m->yield_again
            || now >= until_ns + CDP__YIELDS * desc->spin_us * 1000ull))
        return false;
    /* the caller polls the awaited operation; this polls all sockets */
    if (++*looks % (out_of_luck ? CDP__FAST_POLLS : 1) == 0) cdp__world_wait(m, NULL, 0);
    if (!out_of_luck) {
        ++*spun;
        return true;
    }
    cdp_lock_release(&m->lock);
    m->os->threads.yield(m->os->user);
    cdp_lock_acquire(&m->lock);
    if (m->os->now_ns(m->os->user) - now > CDP__YIELD_LONG_NS) m->yield_again = m->waits + 256;
    return true;
}

/* A thread that waits and polls meanwhile, in rounds: some fast polls, then full ones until nothing
   moves, then a pause. */
typedef struct cdp__progress {
    cdp_group *g;
    uint64_t seq; /* the operation of g that it waits for, or CDP__ALL_WORK */
    uint64_t deadline_ns;
    bool budget;         /* ends at the deadline even if something moves */
    bool fast;           /* its rounds have fast polls: not of the clock, nor of all sockets */
    cdp__advance polled; /* the result of the last poll */
    bool first;          /* no full poll of this round was made yet */
    uint32_t fast_left;  /* fast polls of this round */
    uint32_t polls, spun;
    uint64_t completed; /* g->queue.completed after the last pause */
    uint64_t spin_until_ns;
} cdp__progress;

CDP__PRIVATE void cdp__progress_round(cdp__progress *t) {
    const cdp__world *m = t->g->w;
    t->fast_left = t->fast && !m->sleeping && !m->pending ? CDP__FAST_POLLS : 0;
    t->first = true;
}

/* Begins to wait until operation `seq` of g is done, the group has failed and told its peers, or
   the deadline. The thread that waits then polls:

       while (cdp__progress_next(&t))
           t.polled = cdp__world_poll(g->w); */
CDP__PRIVATE void cdp__progress_begin(
    cdp__progress *t, cdp_group *g, uint64_t seq, uint64_t deadline_ns, bool budget) {
    cdp__world *m = g->w;
    memset(t, 0, sizeof *t);
    t->g = g;
    t->seq = seq;
    t->deadline_ns = deadline_ns;
    t->completed = g->queue.completed;
    t->budget = CDP__BUDGETS && budget;
    t->fast = !g->desc.no_spin && m->spin_luck >= 0 && !budget && seq != CDP__ALL_WORK;
    ++m->callers;
    ++m->waits;
    /* if the progress thread sleeps there, it will stand by */
    if (m->sleeping) m->transport.wake(m->transport.self);
    cdp__progress_round(t);
}

/* Nothing moves: spins, yields or sleeps. */
CDP__PRIVATE void cdp__progress_pause(cdp__progress *t, uint64_t now) {
    cdp__world *m = t->g->w;
    if (t->g->queue.completed != t->completed || !t->spin_until_ns)
        t->spin_until_ns = now + t->g->desc.spin_us * 1000ull;
    if (!cdp__progress_spin(m, &t->g->desc, now, t->spin_until_ns, &t->polls, &t->spun)) {
        if (t->spun && m->spin_luck > -8) --m->spin_luck;
        t->spun = 0;
        if (CDP__BUDGETS && t->budget)
            cdp__progress_rest(m, now, t->deadline_ns);
        else
            cdp__progress_sleep(m, t->deadline_ns);
    }
    t->completed = t->g->queue.completed;
}

/* The wait has ended: polling has paid off, if it spun until then. */
CDP__PRIVATE void cdp__progress_lucky(const cdp__progress *t) {
    cdp__world *m = t->g->w;
    if (t->spun && m->spin_luck < 8) m->spin_luck += 2;
}

/* Yields the lock or pauses before the next poll. False: the wait is over. */
CDP__PRIVATE bool cdp__progress_full(cdp__progress *t, bool pending) {
    cdp__world *m = t->g->w;
    const bool again =
        t->polled == CDP__MOVED && (pending || !t->budget || t->seq == CDP__ALL_WORK);
    m->fast_poll = false;
    if (CDP__BUDGETS && t->budget) m->poll_until_ns = 0;
    if (!t->first && again) {
        cdp__progress_yield_lock(m);
        if (CDP__BUDGETS && t->budget && cdp__now(m->os) >= t->deadline_ns) return false;
    } else if (!t->first) {
        const uint64_t now = pending ? cdp__now(m->os) : 0;
        if (!pending || now >= t->deadline_ns) return false;
        cdp__progress_pause(t, now);
        cdp__progress_round(t);
        m->fast_poll = t->fast_left != 0;
        if (m->fast_poll) {
            --t->fast_left;
            return true;
        }
    }
    t->first = false;
    if (CDP__BUDGETS && t->budget) m->poll_until_ns = cdp__max(t->deadline_ns, 1);
    return true;
}

CDP__PRIVATE void cdp__progress_end(const cdp__progress *t) {
    cdp__world *m = t->g->w;
    cdp__progress_lucky(t);
    --m->callers;
    if (m->callers)
        m->os->threads.cond_broadcast(m->os->user, m->cond); /* another caller takes over */
    else if (m->thread && cdp__world_busy(m))
        m->os->threads.cond_broadcast(m->os->user, m->park);
}

/* True: the thread polls next. False: the wait has ended. */
CDP__PRIVATE bool cdp__progress_next(cdp__progress *t) {
    const bool pending = cdp__work_status(t->g, t->seq) == CDP_PENDING;
    if (pending && t->fast_left) {
        --t->fast_left;
        t->g->w->fast_poll = true;
        return true;
    }
    if (cdp__progress_full(t, pending)) return true;
    cdp__progress_end(t);
    return false;
}

CDP__PRIVATE CDP__ONE_COPY void cdp__progress_until(
    cdp_group *g, uint64_t seq, uint64_t deadline_ns, bool budget) {
    cdp__progress t;
    cdp__progress_begin(&t, g, seq, deadline_ns, budget);
    while (cdp__progress_next(&t))
        t.polled = cdp__world_poll(g->w);
}

CDP__PRIVATE void cdp__progress_thread(void *arg) {
    cdp__world *m = (cdp__world *)arg;
    const cdp_os *os = m->os;
    uint64_t waits_before = 0;
    cdp_lock_acquire(&m->lock);
    while (!m->stop) {
        const uint64_t waits = m->waits + m->ended;
        /* stand by while callers make progress; not for long after short waits, since a peer that
           leaves meanwhile waits until this rank reads that */
        if (m->callers || m->sleeping || (!cdp__world_busy(m) && waits_before != waits)) {
            const bool still = m->callers && waits_before == waits;
            waits_before = waits;
            os->threads.cond_wait(os->user, m->park, m->lock.mutex,
                os->now_ns(os->user) + (still ? CDP__CALLER_MS : CDP__STAND_BY_MS) * CDP__MS);
        } else if (cdp__world_poll(m) == CDP__MOVED) {
            cdp__progress_yield_lock(m);
        } else {
            cdp__progress_sleep(m, CDP__NEVER);
        }
    }
    cdp_lock_release(&m->lock);
}

#endif /* CDP_SRC_GROUP_PROGRESS_H */
