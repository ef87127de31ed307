/* mpi/transport.h - MPI as a cdp_transport

   Knows: cdp_transport. Promises: its five required functions, and the hosts of ranks. */
#ifndef CDP_SRC_MPI_TRANSPORT_H
#define CDP_SRC_MPI_TRANSPORT_H

#include "../base/config.h"
#include "config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../base/error_api.h"
#include "../os/os_api.h"
#include "../message/transport_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "../os/linux.h"
#include "state.h"
#include "streams.h"

CDP__PRIVATE int64_t cdp__mpi_send(void *self, uint32_t peer, const cdp_iov *iov, uint32_t n) {
    cdp__mpi *m = (cdp__mpi *)self;
    cdp__mpi_peer *p = cdp__mpi_peer_of(m, peer);
    int64_t taken = 0;
    uint64_t at = 0; /* in iov[0] */
    if (!p) return cdp__fail_nomem("the state of a peer", sizeof *p);
    if (p->left) return cdp__fail_peer(CDP_ERR_PEER_LOST, peer, 0, "rank %u has left", peer);
    while (n) {
        cdp__mpi_segment *s;
        uint32_t bytes = 0;
        int r = cdp__mpi_room(m, peer);
        if (r <= 0) return r < 0 && !taken ? r : taken;
        s = p->out[p->sent % CDP_MPI_WINDOW];
        for (; n && bytes < CDP_MPI_SEGMENT; at = 0, ++iov, --n) {
            const uint64_t part = cdp__min(iov->bytes - at, (uint64_t)CDP_MPI_SEGMENT - bytes);
            memcpy(s->data + bytes, (const uint8_t *)iov->data + at, (size_t)part);
            bytes += (uint32_t)part;
            at += part;
            if (at < iov->bytes) break;
        }
        if (!bytes) return taken;
        r = cdp__mpi_put(m, peer, bytes);
        if (r < 0) return taken ? taken : r;
        taken += bytes;
    }
    return taken;
}

/* Copies from the segment being read, up to its end. */
CDP__PRIVATE uint64_t cdp__mpi_copy(cdp__mpi_peer *p, uint8_t *to, uint64_t room) {
    const cdp__mpi_segment *s = p->in[p->read % CDP_MPI_WINDOW];
    const uint64_t bytes = cdp__min(room, s->head.bytes - p->at);
    memcpy(to, s->data + p->at, (size_t)bytes);
    p->at += (uint32_t)bytes;
    if (p->at == s->head.bytes) {
        ++p->read;
        p->at = 0;
    }
    return bytes;
}

CDP__PRIVATE int64_t cdp__mpi_recv(void *self, uint32_t peer, const cdp_iov *iov, uint32_t n) {
    cdp__mpi *m = (cdp__mpi *)self;
    cdp__mpi_peer *p = m->peers[peer];
    int64_t got = 0;
    int r;
    if (!p || p->read == p->arrived) {
        r = cdp__mpi_look(m);
        if (r < 0) return r;
        p = m->peers[peer];
    }
    if (!p) return 0;
    for (uint32_t i = 0; i < n; ++i)
        for (uint64_t at = 0; at < iov[i].bytes && p->read < p->arrived;) {
            const uint64_t bytes = cdp__mpi_copy(p, (uint8_t *)iov[i].data + at, iov[i].bytes - at);
            at += bytes;
            got += (int64_t)bytes;
        }
    r = cdp__mpi_acknowledge(m, peer, false);
    if (r < 0 && !got) return r;
    if (!got && p->left && p->read == p->matched)
        return cdp__fail_peer(CDP_ERR_PEER_LOST, peer, 0, "rank %u has left", peer);
    return got;
}

/* Sleeps for at most `ns`, or until wake(). */
CDP__PRIVATE void cdp__mpi_nap(cdp__mpi *m, uint64_t ns) {
    const cdp_os *os = m->os;
    const uint64_t until = os->now_ns(os->user) + ns;
    if (!m->cond) {
        cdp__sleep_until(os, until);
        return;
    }
    os->threads.mutex_lock(os->user, m->mutex);
    if (!m->woken) os->threads.cond_wait(os->user, m->cond, m->mutex, until);
    os->threads.mutex_unlock(os->user, m->mutex);
}

CDP__PRIVATE bool cdp__mpi_woken(cdp__mpi *m) {
    const cdp_os *os = m->os;
    bool woken;
    if (m->cond) os->threads.mutex_lock(os->user, m->mutex);
    woken = m->woken;
    m->woken = false;
    if (m->cond) os->threads.mutex_unlock(os->user, m->mutex);
    return woken;
}

/* MPI cannot wake a thread, so this polls, with pauses that are a small part of the time waited
   so far. */
CDP__PRIVATE cdp_status cdp__mpi_wait(void *self, cdp_lock *lock, uint64_t deadline_ns) {
    cdp__mpi *m = (cdp__mpi *)self;
    const cdp_os *os = m->os;
    const uint64_t from = os->now_ns(os->user);
    for (;;) {
        const int r = cdp__mpi_look(m);
        const bool progressed = m->progressed;
        uint64_t now;
        m->progressed = false;
        if (r < 0) return (cdp_status)r;
        if (cdp__mpi_woken(m) || progressed) return CDP_OK;
        now = os->now_ns(os->user);
        if (now >= deadline_ns) return CDP_OK;
        if (lock) cdp_lock_release(lock);
        if (now - from < CDP__MPI_YIELDS_NS && os->threads.yield)
            os->threads.yield(os->user);
        else
            cdp__mpi_nap(m, cdp__min(deadline_ns - now, cdp__min((now - from) / 8, CDP__MPI_MS)));
        if (lock) cdp_lock_acquire(lock);
    }
}

CDP__PRIVATE void cdp__mpi_wake(void *self) {
    cdp__mpi *m = (cdp__mpi *)self;
    const cdp_os *os = m->os;
    if (m->cond) os->threads.mutex_lock(os->user, m->mutex);
    m->woken = true;
    if (!m->cond) return;
    os->threads.cond_broadcast(os->user, m->cond);
    os->threads.mutex_unlock(os->user, m->mutex);
}

CDP__PRIVATE uint32_t cdp__mpi_host(void *self, uint32_t peer) {
    return ((cdp__mpi *)self)->hosts[peer];
}

/* True if all messages to this peer have been sent. */
CDP__PRIVATE bool cdp__mpi_flushed(cdp__mpi_peer *p) {
    for (uint32_t i = 0; i < CDP_MPI_WINDOW; ++i) {
        int done = 0;
        if (MPI_Test(&p->sending[i], &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && !done)
            return false;
    }
    return true;
}

/* Tells the peers that this rank leaves. Waits until its messages are sent and the others leave,
   too. False: MPI still has messages of this rank. */
CDP__PRIVATE bool cdp__mpi_goodbye(cdp__mpi *m) {
    const cdp_os *os = m->os;
    const uint64_t from = os->now_ns(os->user);
    for (uint32_t i = 0; i < m->size; ++i)
        if (m->peers[i] && !m->peers[i]->left) (void)cdp__mpi_acknowledge(m, i, true);
    for (;;) {
        const uint64_t waited = os->now_ns(os->user) - from;
        bool flushed = true, alone = true;
        (void)cdp__mpi_look(m);
        for (uint32_t i = 0; i < m->size; ++i) {
            cdp__mpi_peer *p = m->peers[i];
            if (!p) continue;
            p->read = p->arrived; /* unread data is dropped */
            if (!cdp__mpi_flushed(p)) flushed = false;
            if (!p->left) alone = false;
        }
        if (flushed && (alone || waited > 100 * CDP__MPI_MS)) return true;
        if (waited > 1000 * CDP__MPI_MS) return false;
        cdp__mpi_nap(m, CDP__MPI_MS / 20);
    }
}

/* What *m refers to. */
CDP__PRIVATE void cdp__mpi_free(cdp__mpi *m) {
    for (uint32_t i = 0; m->peers && i < m->size; ++i) {
        cdp__mpi_peer *p = m->peers[i];
        for (uint32_t k = 0; p && k < CDP_MPI_WINDOW; ++k) {
            cdp__free(m->os, p->out[k]);
            cdp__free(m->os, p->in[k]);
        }
        cdp__free(m->os, p);
    }
    if (m->cond) m->os->threads.cond_destroy(m->os, m->cond);
    if (m->mutex) m->os->threads.mutex_destroy(m->os, m->mutex);
    cdp__free(m->os, m->peers);
    cdp__free(m->os, m->hosts);
}

/* Does not free memory that MPI may still read. */
CDP__PRIVATE void cdp__mpi_destroy(void *self) {
    cdp__mpi *m = (cdp__mpi *)self;
    const cdp_error kept = *cdp_last_error();
    int over = 0;
    MPI_Finalized(&over);
    if (!over && !cdp__mpi_goodbye(m)) return;
    if (!over) MPI_Comm_free(&m->comm);
    cdp__mpi_free(m);
    cdp__free(m->os, m);
    *cdp__error_slot() = kept;
}

#endif /* CDP_SRC_MPI_TRANSPORT_H */
