/* group/world.h - what the groups of one transport share

   Knows: ports, the lock, threads. Promises: a world that was only partly created is released
   completely. */
#ifndef CDP_SRC_GROUP_WORLD_H
#define CDP_SRC_GROUP_WORLD_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../base/error_api.h"
#include "../os/os_api.h"
#include "../message/transport_api.h"
#include "group_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "../os/threads.h"
#include "../os/linux.h"
#include "../os/child.h"
#include "../failure/chains.h"
#include "../message/stream.h"
#include "../failure/waits.h"
#include "../failure/spread.h"

CDP__PRIVATE int64_t cdp__alone_move(void *self, uint32_t peer, const cdp_iov *v, uint32_t n) {
    (void)self;
    (void)v;
    (void)n;
    return cdp__fail_peer(CDP_ERR_INTERNAL, peer, 0, "a group of one rank has no peer");
}
CDP__PRIVATE cdp_status cdp__alone_wait(void *self, cdp_lock *lock, uint64_t deadline_ns) {
    (void)self;
    (void)lock;
    (void)deadline_ns;
    return CDP_OK;
}
CDP__PRIVATE void cdp__alone_nothing(void *self) {
    (void)self;
}

CDP__PRIVATE void cdp__group_desc_defaults(cdp_group_desc *d) {
    d->timeout_ms = cdp__def(d->timeout_ms, 600000);
    d->small_bytes = cdp__def(d->small_bytes, 64 * 1024);
    d->piece_bytes = cdp__min(cdp__def(d->piece_bytes, 1024 * 1024), 1u << 30);
    d->expose_bytes = cdp__def(d->expose_bytes, 64 * 1024);
    d->spin_us = cdp__def(d->spin_us, 20);
    d->max_pending = (uint32_t)cdp__min(cdp__def(d->max_pending, 64), 65535);
    d->records = cdp__def(d->records, 32);
    d->stage_bytes = cdp__max(cdp__def(d->stage_bytes, CDP__STAGE_BYTES), 256) & ~63ull;
    d->window_bytes = cdp__def(d->window_bytes, CDP__WINDOW);
    d->operations = (uint32_t)cdp__min(cdp__def(d->operations, 64), 65535);
    d->waits = (uint32_t)cdp__min(cdp__def(d->waits, 32), 65535);
    d->choices = NULL;
    d->choice_count = 0;
    if (!d->os) d->os = cdp_os_default();
}

#ifdef CDP_NO_THREADS
CDP__PRIVATE void cdp__world_stop(cdp__world *m) {
    (void)m;
}
#else
CDP__PRIVATE void cdp__world_stop(cdp__world *m) {
    const cdp_os *os = m->os;
    if (!m->thread) return;
    cdp_lock_acquire(&m->lock);
    m->stop = true;
    os->threads.cond_broadcast(os->user, m->park);
    m->transport.wake(m->transport.self);
    cdp_lock_release(&m->lock);
    os->threads.join(os, m->thread);
    m->thread = NULL;
}
#endif

/* Accepts a world that was only partly created. */
CDP__PRIVATE void cdp__world_destroy(cdp__world *m) {
    const cdp_os *os = m->os;
    /* why creation failed: destroying may set other errors */
    const cdp_error kept = *cdp_last_error();
    uint32_t i;
    cdp__world_stop(m);
    if (m->transport.destroy) m->transport.destroy(m->transport.self);
    for (i = 0; i < m->stream_rows; ++i)
        while (m->streams[i]) { /* unexpected streams */
            cdp__stream *s = m->streams[i];
            m->streams[i] = s->next;
            cdp__free(os, s->early);
            cdp__free(os, s->failure);
            cdp__free(os, s);
        }
    while (m->made) {
        cdp__made *made = m->made;
        m->made = made->next;
        cdp__free(os, made);
    }
    for (i = 0; m->ports && i < m->size; ++i) {
        cdp__free(os, m->ports[i].control);
        cdp__free(os, m->ports[i].failure);
    }
    if (m->cond) os->threads.cond_destroy(os, m->cond);
    if (m->park) os->threads.cond_destroy(os, m->park);
    cdp__lock_close(&m->lock);
    cdp__free(os, (void *)(uintptr_t)m->choosing.rows);
    cdp__free(os, m->streams);
    cdp__free(os, m->ports);
    cdp__free(os, m->failure.edges);
    cdp__free(os, m->failure.waiters);
    cdp__free(os, m->failure.reports);
    cdp__free(os, m->stage);
    cdp__free(os, m);
    *cdp__error_slot() = kept;
}

/* The desc's defaults are filled in. */
CDP__PRIVATE cdp__world *cdp__world_create(const cdp_group_desc *d, const cdp_transport *t) {
    const cdp_os *os = d->os;
    const uint32_t rank = d->rank, size = d->world_size;
    /* callers may be threads even without a progress thread */
    const bool threads = os->threads.start && os->threads.mutex_create;
    cdp__world *m = (cdp__world *)cdp__alloc_zero(os, sizeof *m);
    if (!m) return NULL;
    m->os = os;
    m->forks = cdp__forks_watch();
    m->rank = rank;
    m->size = size;
    m->on_control = cdp__world_on_control;
    m->ports = (cdp__port *)cdp__alloc_zero(os, size * sizeof *m->ports);
    m->failure.rank = rank;
    m->failure.world_size = size;
    m->failure.edge_room = m->failure.waiter_room = size + d->waits;
    m->failure.report_room = size < 2 ? 2 : (uint32_t)cdp__min(size, CDP__FAILURE_REPORTS);
    m->failure.edges =
        (cdp__failure_edge *)cdp__alloc_zero(os, m->failure.edge_room * sizeof *m->failure.edges);
    m->failure.waiters = (cdp__failure_waiter *)cdp__alloc_zero(
        os, m->failure.waiter_room * sizeof *m->failure.waiters);
    m->failure.reports = (cdp__failure_report *)cdp__alloc_zero(
        os, m->failure.report_room * sizeof *m->failure.reports);
    m->stage_bytes = d->stage_bytes;
    m->window_bytes = d->window_bytes;
    m->stage = (uint8_t *)cdp__alloc(os, m->stage_bytes);
    m->cond = threads ? os->threads.cond_create(os) : NULL;
    m->park = threads ? os->threads.cond_create(os) : NULL;
    if (!m->ports || !m->stage || !m->failure.edges || !m->failure.waiters || !m->failure.reports
        || (threads && (!m->cond || !m->park)) || !cdp__streams_reserve(m, size)
        || !cdp__lock_open(&m->lock, os, threads)) {
        cdp__world_destroy(m);
        return NULL;
    }
    m->transport = *t; /* from here on the world owns it */
    return m;
}

#endif /* CDP_SRC_GROUP_WORLD_H */
