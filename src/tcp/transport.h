/* tcp/transport.h - the mesh as a cdp_transport

   Knows: the mesh and the interface of transports. Promises: what cdp_transport asks for. */
#ifndef CDP_SRC_TCP_TRANSPORT_H
#define CDP_SRC_TCP_TRANSPORT_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../os/os_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "../os/loop.h"
#include "../message/fabric.h"
#include "memory.h"
#include "link.h"
#include "mesh.h"
#include "link_streams.h"
#include "link_connecting.h"

/* Copies small pieces into one, which is cheaper than a system call with several pieces. False:
   they are too long. */
CDP__PRIVATE bool cdp__iov_join(const cdp_iov *iov, uint32_t n, uint8_t *to, cdp_iov *one) {
    uint64_t bytes = 0;
    uint32_t i;
    for (i = 0; i < n; ++i)
        bytes += iov[i].bytes;
    if (bytes > CDP__TX_BYTES) return false;
    one->data = to;
    one->bytes = bytes;
    for (i = 0; i < n; to += iov[i++].bytes)
        if (iov[i].bytes) memcpy(to, iov[i].data, (size_t)iov[i].bytes);
    return true;
}

CDP__PRIVATE int64_t cdp__mesh_send(void *self, uint32_t peer, const cdp_iov *iov, uint32_t n) {
    cdp__link *l = &((cdp__mesh *)self)->links[peer];
    uint8_t joined[CDP__TX_BYTES];
    cdp_iov one;
    int64_t r = 0;
    cdp__link_need(l);
    if (cdp__link_shared(l) && l->state == CDP__LINK_UP) {
        r = cdp__line_move(&l->shared->line, iov, n, true);
        if (r >= 0) return r;
        cdp__link_nonsense(l);
    }
    if (n > 1 && cdp__iov_join(iov, n, joined, &one)) {
        iov = &one;
        n = 1;
    }
    if (l->state == CDP__LINK_UP) r = cdp__link_put(l, iov, n);
    if (r < 0) { /* data that the peer sent earlier may still be in the socket */
        l->io.ready |= CDP_IO_READ;
        cdp__link_read_ahead(l);
        /* the system reports an error once; then the socket looks closed */
        if (cdp__bundle_at(l, 0)->end_timer.next && r != -EPIPE)
            cdp__bundle_drop(l, CDP_ERR_PEER_LOST, (int32_t)-r);
        cdp__link_lose(l, CDP_ERR_PEER_LOST, (int32_t)-r);
    }
    return l->state == CDP__LINK_LOST ? (int64_t)cdp__link_explain(l) : r;
}

/* Reads buffered data first. A large read goes straight to its destination; small pieces go
   through the buffer. */
CDP__PRIVATE int64_t cdp__mesh_recv(void *self, uint32_t peer, const cdp_iov *iov, uint32_t n) {
    cdp__link *l = &((cdp__mesh *)self)->links[peer];
    int64_t moved = 0;
    uint32_t i;
    cdp__link_need(l);
    /* includes data written before the link was lost */
    if (cdp__link_shared(l) && l->state >= CDP__LINK_UP) {
        moved = l->nonsense ? 0 : cdp__line_move(&l->shared->line, iov, n, false);
        if (moved < 0) cdp__link_nonsense(l);
        return moved <= 0 && l->state == CDP__LINK_LOST ? (int64_t)cdp__link_explain(l) : moved;
    }
    if (l->state == CDP__LINK_UP && l->rx_at == l->rx_used) {
        l->rx_at = l->rx_used = 0;
        if (n == 1 && iov[0].bytes >= CDP__RX_BYTES / 2) {
            moved = cdp__link_get(l, iov);
            l->wanted = moved == 0;
            if (moved > 0) cdp__link_received(l);
            if (moved >= 0) return moved;
            cdp__link_broke(l, moved);
            return cdp__link_explain(l);
        }
        l->io.ready |= CDP_IO_READ;
        cdp__link_read_ahead(l);
    }
    for (i = 0; i < n && l->rx_at < l->rx_used; ++i) {
        const uint32_t bytes = (uint32_t)cdp__min(iov[i].bytes, l->rx_used - l->rx_at);
        memcpy(iov[i].data, l->rx + l->rx_at, bytes);
        l->rx_at += bytes;
        moved += bytes;
    }
    l->wanted = moved == 0;
    return moved == 0 && cdp__link_ended(l) ? (int64_t)cdp__link_explain(l) : moved;
}

/* Copies the part of `iov` that covers its first `bytes`. Returns the number of pieces. */
CDP__PRIVATE uint32_t cdp__iov_clip(const cdp_iov *iov, uint32_t n, uint64_t bytes, cdp_iov *out) {
    uint32_t i;
    for (i = 0; i < n && bytes; ++i) {
        out[i].data = iov[i].data;
        out[i].bytes = cdp__min(iov[i].bytes, bytes);
        bytes -= out[i].bytes;
    }
    return i;
}

/* cdp__mesh_send or cdp__mesh_recv over several connections: moves bytes of the current block
   over its connection. Nothing is sent before all connections are up. */
CDP__PRIVATE int64_t cdp__bundle_move(
    cdp__mesh *m, uint32_t peer, const cdp_iov *iov, uint32_t n, bool send) {
    cdp__link *first = &m->links[peer],
              *l = cdp__bundle_at(first, cdp__bundle_turn(first, first->moved[send]));
    const uint64_t left = CDP__BLOCK_BYTES - first->moved[send] % CDP__BLOCK_BYTES;
    cdp_iov v[CDP__IOV_MAX];
    uint32_t i;
    int64_t r;
    if (cdp__link_shared(first) && first->state >= CDP__LINK_UP)
        return send ? cdp__mesh_send(m, peer, iov, n) : cdp__mesh_recv(m, peer, iov, n);
    if (!first->whole && l->state != CDP__LINK_LOST) {
        bool whole = true;
        /* others follow when the first is up: with shared memory they are not needed */
        for (i = 0; i < m->desc.connections && (!i || first->state >= CDP__LINK_UP); ++i) {
            cdp__link_need(cdp__bundle_at(first, i));
            whole = whole && cdp__bundle_at(first, i)->state == CDP__LINK_UP;
        }
        first->whole = whole;
        if (send && !whole && l->state != CDP__LINK_LOST) return 0;
    }
    n = cdp__iov_clip(iov, n, left, v);
    i = peer + l->index * m->desc.group.world_size;
    r = send ? cdp__mesh_send(m, i, v, n) : cdp__mesh_recv(m, i, v, n);
    /* this connection has ended; the others of the link show whether the peer has left */
    if (r < 0 && first->whole && first->end_timer.next) return 0;
    if (r > 0) first->moved[send] += (uint64_t)r;
    /* watches the connection for its end until its next block */
    if (!send && r == (int64_t)left && l->io.next) cdp__loop_again(&m->loop, &l->io);
    return r;
}

CDP__PRIVATE int64_t cdp__bundle_send(void *self, uint32_t peer, const cdp_iov *iov, uint32_t n) {
    return cdp__bundle_move((cdp__mesh *)self, peer, iov, n, true);
}
CDP__PRIVATE int64_t cdp__bundle_recv(void *self, uint32_t peer, const cdp_iov *iov, uint32_t n) {
    return cdp__bundle_move((cdp__mesh *)self, peer, iov, n, false);
}

/* The segment that contains these bytes; NULL: none. */
CDP__PRIVATE cdp__segment *cdp__mesh_segment(const cdp__mesh *m, const void *data, uint64_t bytes) {
    uint32_t i;
    for (i = 0; m->segments && i < CDP_SEGMENTS; ++i) {
        const uint64_t off = (uint64_t)((uintptr_t)data - (uintptr_t)m->segments[i].at);
        if (off < m->segments[i].bytes && bytes <= m->segments[i].bytes - off)
            return &m->segments[i];
    }
    return NULL;
}

CDP__PRIVATE void *cdp__mesh_alloc(void *self, uint64_t bytes) {
    cdp__mesh *m = (cdp__mesh *)self;
    const cdp_os *os = m->os;
    cdp__segment *g = NULL;
    uint32_t i;
    if (!cdp__mesh_shares(m) || m->desc.group.expose_bytes == UINT64_MAX || bytes > INT64_MAX)
        return NULL;
    if (!m->segments
        && !(m->segments = (cdp__segment *)cdp__alloc_zero(os, CDP_SEGMENTS * sizeof *g)))
        return NULL;
    bytes = cdp__max((bytes + 63) / 64 * 64, 64);
    for (i = 0; i < CDP_SEGMENTS; ++i) {
        if (m->segments[i].bytes - m->segments[i].used >= bytes) break;
        if (!m->segments[i].at && !g) g = &m->segments[i];
    }
    if (i < CDP_SEGMENTS) {
        g = &m->segments[i];
    } else {
        if (!g || (g->fd = os->shared.create(os->user, cdp__max(bytes, CDP__SEGMENT_BYTES))) < 0)
            return NULL;
        if (!(g->at = (uint8_t *)os->shared.map(os->user, g->fd, true, &g->bytes))) {
            os->net.close_fd(os->user, g->fd);
            g->bytes = 0;
            return NULL;
        }
    }
    ++g->live;
    g->used += bytes;
    return g->at + (g->used - bytes);
}

/* Frees a segment. Peers unmap it at their next poll; it stays mapped there until then. */
CDP__PRIVATE void cdp__segment_close(cdp__mesh *m, cdp__segment *g) {
    const uint32_t i = (uint32_t)(g - m->segments);
    cdp__shared *s;
    for (s = m->sharing; s; s = s->next)
        cdp__shared_withdraw(s, i);
    if (m->os->shared.empty) m->os->shared.empty(m->os->user, g->at, g->bytes);
    m->os->shared.unmap(m->os->user, g->at, g->bytes);
    m->os->net.close_fd(m->os->user, g->fd);
    memset(g, 0, sizeof *g);
}

CDP__PRIVATE bool cdp__mesh_release(void *self, void *ptr) {
    cdp__segment *g = cdp__mesh_segment((cdp__mesh *)self, ptr, 1);
    if (g && --g->live == 0) cdp__segment_close((cdp__mesh *)self, g);
    return g != NULL;
}

#ifndef CDP_NO_SHARED_MEMORY

/* True if the peer should read this memory directly. Data just written is in this core's cache,
   so below CDP__FRESH_BYTES the ring is faster, unless the data is in a segment. */
CDP__PRIVATE bool cdp__mesh_readable(
    const cdp__mesh *m, uint32_t reads, uint64_t bytes, bool fresh) {
    if (!(reads & CDP__READS_ANY)) return false;
    return !fresh || bytes >= cdp__def(m->desc.group.expose_bytes, CDP__FRESH_BYTES);
}

CDP__PRIVATE bool cdp__mesh_expose(
    void *self, uint32_t peer, const void *data, uint64_t bytes, bool fresh, uint64_t *token) {
    cdp__mesh *m = (cdp__mesh *)self;
    cdp__shared *s = m->links[peer].shared;
    const cdp__segment *g;
    uint32_t reads, place;
    if (m->links[peer].state != CDP__LINK_UP || !s) return false;
    reads = cdp__atomic_load_u32(&s->theirs->reads, CDP__ACQUIRE);
    g = reads & CDP__READS_SEGMENTS ? cdp__mesh_segment(m, data, bytes) : NULL;
    place = g ? (uint32_t)(g - m->segments) : 0;
    if (g && !s->passed_on[place] && !cdp__shared_pass(s, place, g->fd)) g = NULL;
    if (g)
        return cdp__line_expose(
            &s->line, data, bytes, place + 1, (uint64_t)((const uint8_t *)data - g->at), token);
    return cdp__mesh_readable(m, reads, bytes, fresh)
        && cdp__line_expose(&s->line, data, bytes, 0, 0, token);
}

CDP__PRIVATE bool cdp__mesh_try_revoke(void *self, uint32_t peer, uint64_t token) {
    return cdp__line_try_revoke(&((cdp__mesh *)self)->links[peer].shared->line, token);
}

/* Does not wait for the reader, which is another process: it checks the state after reading. */
CDP__PRIVATE void cdp__mesh_revoke(void *self, uint32_t peer, uint64_t token) {
    const bool ended = cdp__line_revoke(&((cdp__mesh *)self)->links[peer].shared->line, token);
    CDP_ASSERT(ended);
    (void)ended;
}

CDP__PRIVATE const void *cdp__mesh_map(void *self, uint32_t peer, uint64_t token, uint64_t bytes) {
    const cdp__link *l = &((cdp__mesh *)self)->links[peer];
    cdp__shared *s = l->shared;
    const void *at = NULL;
    cdp__exposure e;
    if (!s || !cdp__line_read_begin(&s->line, token, &e)) return NULL;
    if (!e.segment || e.bytes != bytes) return NULL;
    if (l->state != CDP__LINK_LOST) at = cdp__shared_map(s, e.segment - 1, e.off, bytes);
    /* mapping failed: do not try segments again */
    if (!at) (void)cdp__atomic_and_u32(&s->mine->reads, ~CDP__READS_SEGMENTS, CDP__RELAXED);
    return at;
}

CDP__PRIVATE bool cdp__mesh_unmap(void *self, uint32_t peer, uint64_t token) {
    return cdp__line_read_end(&((cdp__mesh *)self)->links[peer].shared->line, token);
}

CDP__PRIVATE int64_t cdp__mesh_get(
    void *self, uint32_t peer, uint64_t token, uint64_t offset, void *dst, uint64_t bytes) {
    const cdp__link *l = &((cdp__mesh *)self)->links[peer];
    cdp__shared *s = l->shared;
    cdp__exposure e;
    int32_t r = -EPERM;
    if (!s || !cdp__line_read_begin(&s->line, token, &e)) return 0;
    if (offset > e.bytes || bytes > e.bytes - offset) return 0;
    if (s->pid) r = cdp__shared_read(s, s->pid, e.at + offset, dst, bytes);
    if (!cdp__line_read_end(&s->line, token)) return 0;
    if (r == 0) return (int64_t)bytes;
    if (l->state == CDP__LINK_LOST) return cdp__link_explain(l);
    if (r == -ESRCH)
        return cdp__fail_peer(CDP_ERR_PEER_LOST, peer, ESRCH,
            "cannot read what rank %u has exposed to this one: its process has ended", peer);
    /* reading was permitted when the link was made, but is no longer */
    (void)cdp__atomic_and_u32(&s->mine->reads, ~CDP__READS_ANY, CDP__RELAXED);
    return CDP_ERR_IO;
}

/* The eager slots. As with the ring, messages stored before the link was lost can still be read. */
CDP__PRIVATE void *cdp__mesh_slots(void *self, uint32_t peer, bool outgoing) {
    const cdp__link *l = &((cdp__mesh *)self)->links[peer];
    if (!l->shared || l->state < CDP__LINK_UP) return NULL;
    if (!outgoing) return &l->shared->line.in->eager.slots;
    return l->state == CDP__LINK_UP ? &l->shared->line.out->eager.slots : NULL;
}

CDP__PRIVATE void cdp__mesh_doorbell(void *self, uint32_t peer) {
    cdp__line_ring(&((cdp__mesh *)self)->links[peer].shared->line, CDP__BELL_DATA);
}

#endif /* CDP_NO_SHARED_MEMORY */

#endif /* CDP_SRC_TCP_TRANSPORT_H */
