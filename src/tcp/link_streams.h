/* tcp/link_streams.h - several connections as one link, and the bytes on them

   Knows: the connections of a link, their ends, records with a code. Promises: the error names the
   connection that was lost first; data that the peer sent is read before a link ends. */
#ifndef CDP_SRC_TCP_LINK_STREAMS_H
#define CDP_SRC_TCP_LINK_STREAMS_H

#include "../base/version.h"
#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../base/log_api.h"
#include "../os/os_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../os/words.h"
#include "../text/format.h"
#include "../base/text.h"
#include "../os/loop.h"
#include "../base/bytes.h"
#include "../message/header.h"
#include "../message/fabric.h"
#include "../message/stream.h"
#include "../store/addr.h"
#include "handshake.h"
#include "paths.h"
#include "mac.h"
#include "memory.h"
#include "link.h"
#include "mesh.h"

/* Several connections as one link: block k of the bytes to a peer uses connection k %
   connections. So both sides know which connection carries the next byte, and nothing needs to
   be reordered. If one connection is lost, the link is lost. */
#ifndef CDP__BLOCK_BYTES
#define CDP__BLOCK_BYTES (128u * 1024u)
#endif
#define CDP__ENDED_MS 2000u /* how long to read the others when one has ended */

CDP__PRIVATE void cdp__link_read_ahead(cdp__link *l);

CDP__PRIVATE cdp__link *cdp__bundle_at(const cdp__link *l, uint32_t i) {
    return &l->mesh->links[l->peer + i * l->mesh->desc.group.world_size];
}

CDP__PRIVATE uint32_t cdp__bundle_turn(const cdp__link *first, uint64_t at) {
    return (uint32_t)(at / CDP__BLOCK_BYTES % first->mesh->desc.connections);
}

/* Drops data that still arrives on an unused connection, until the peer closes it. */
CDP__PRIVATE CDP__COLD void cdp__link_discard(cdp__link *l) {
    uint8_t dropped[512];
    cdp_iov v;
    int64_t r = 1;
    v.data = dropped;
    v.bytes = sizeof dropped;
    while (r > 0 && l->io.next && (l->io.ready & CDP_IO_READ))
        r = cdp__io_recv(&l->mesh->loop, &l->io, &v, 1);
    if (r < 0 && l->state == CDP__LINK_LOST)
        cdp__loop_remove(&l->mesh->loop, &l->io);
    else if (r < 0)
        cdp__link_drop(l, CDP_ERR_STATE, 0);
}

CDP__PRIVATE void cdp__link_send_cause(cdp__link *l);

CDP__PRIVATE void cdp__link_parting(cdp__io *io) {
    cdp__link *l = (cdp__link *)io->user;
    if (l->cause_unsent && l->state == CDP__LINK_UP) cdp__link_send_cause(l);
    cdp__link_discard(l);
}

/* Ends the sending side of an intact connection. The connection is closed when the peer has ended
   its side, too. */
CDP__PRIVATE void cdp__link_end_sending(cdp__link *l) {
    l->mesh->os->net.end_sending(l->mesh->os->user, l->io.fd);
    l->io.func = cdp__link_parting;
    l->io.ready |= CDP_IO_READ;
    cdp__link_discard(l);
}

/* When one connection to a peer breaks, all connections to that peer end. The others only stop
   sending at first: closing a socket with unread data sends a reset, and a peer that sees this
   reset before the first break would report the wrong connection. */
CDP__PRIVATE CDP__COLD void cdp__bundle_drop(cdp__link *l, cdp_status status, int32_t err) {
    uint32_t i;
    cdp__loop_timer_clear(&cdp__bundle_at(l, 0)->end_timer);
    for (i = 0; i < l->mesh->desc.connections; ++i) {
        cdp__link *s = cdp__bundle_at(l, i);
        s->addr = l->addr;
        s->refusal = l->refusal;
        s->broken = l->index;
        if (s->state == CDP__LINK_LOST) { /* it ended before the reason was known */
            s->status = status;
            s->lost_errno = err;
        } else if (s != l && s->state == CDP__LINK_UP && !cdp__link_shared(s)
            && l->mesh->os->net.end_sending) {
            cdp__link_forget(s, status, err);
            cdp__link_end_sending(s);
        } else {
            cdp__link_drop(s, status, err);
        }
    }
}

CDP__PRIVATE void cdp__bundle_ended(cdp__timer *t);

CDP__PRIVATE void cdp__bundle_await_end(cdp__link *first) {
    const cdp_os *os = first->mesh->os;
    first->received_before = first->moved[0];
    cdp__loop_timer_set(&first->mesh->loop, &first->end_timer,
        os->now_ns(os->user) + CDP__ENDED_MS * CDP__MS, cdp__bundle_ended, first);
}

/* Timer: one connection has ended, the others have not. A peer that leaves ends them all, but
   its last data may still be in flight on slower connections, or be unread here. */
CDP__PRIVATE void cdp__bundle_ended(cdp__timer *t) {
    cdp__link *first = (cdp__link *)t->user,
              *turn = cdp__bundle_at(first, cdp__bundle_turn(first, first->moved[0]));
    uint32_t i = 0;
    cdp__link_read_ahead(turn);
    if (first->received_before != first->moved[0] || turn->rx_at < turn->rx_used) {
        cdp__bundle_await_end(first);
        return;
    }
    while (cdp__bundle_at(first, i)->state != CDP__LINK_LOST)
        ++i;
    cdp__bundle_drop(cdp__bundle_at(first, i), CDP_ERR_PEER_LOST, 0);
}

/* One of several connections has ended. That alone has no clear meaning: the peer may have left,
   or may have lost another connection. If all have ended, the first one is named. */
CDP__PRIVATE void cdp__bundle_one_ended(cdp__link *l) {
    cdp__link *first = cdp__bundle_at(l, 0);
    uint32_t i, ended = 0, broken = l->index;
    l->broken = l->index;
    cdp__link_drop(l, CDP_ERR_PEER_LOST, 0);
    for (i = 0; i < l->mesh->desc.connections; ++i) {
        const cdp__link *s = cdp__bundle_at(l, i);
        if (s->state == CDP__LINK_LOST) ++ended;
        if (s->state == CDP__LINK_LOST && s != l) broken = s->broken;
    }
    l->broken = broken;
    if (ended == l->mesh->desc.connections)
        cdp__loop_timer_clear(&first->end_timer);
    else if (!first->end_timer.next)
        cdp__bundle_await_end(first);
}

CDP__PRIVATE void cdp__link_lose(cdp__link *l, cdp_status status, int32_t err) {
    cdp__link *first = cdp__bundle_at(l, 0), *turn;
    if (l->state == CDP__LINK_LOST) return;
    if (l->mesh->desc.connections > 1 && !cdp__link_shared(first) && l->state == CDP__LINK_UP
        && status == CDP_ERR_PEER_LOST && !err) {
        cdp__bundle_one_ended(l);
        return;
    }
    turn = cdp__bundle_at(l, cdp__bundle_turn(first, first->moved[0]));
    if (turn != l) { /* earlier data of the peer may explain the loss */
        turn->io.ready |= CDP_IO_READ;
        cdp__link_read_ahead(turn);
    }
    if (l->state != CDP__LINK_LOST) cdp__bundle_drop(l, status, err);
}

/* The peer's address, and which of several connections broke. Returns `at`. */
CDP__PRIVATE const char *cdp__link_text(const cdp__link *l, char at[112]) {
    cdp__addr_text(&l->addr, at, 80);
    if (l->mesh->desc.connections > 1)
        cdp__format(at + strlen(at), 32, " (connection %u of %u)", l->broken + 1,
            l->mesh->desc.connections);
    return at;
}

/* Sets this thread's last error to the reason why the link is lost. */
CDP__PRIVATE cdp_status cdp__link_explain(const cdp__link *l) {
    char at[112];
    if (l->status == CDP_ERR_NOMEM) return cdp__fail_nomem("a link", CDP__RX_BYTES);
#ifndef CDP_NO_MAC
    if (l->lost_errno == EBADMSG && cdp__bundle_at(l, l->broken)->mac)
        return cdp__fail_peer(CDP_ERR_IO, l->peer, EBADMSG,
            "record %llu from rank %u at %s does not match its authentication code: it was "
            "changed, repeated or left out on the way; nothing more is read from there",
            (unsigned long long)cdp__bundle_at(l, l->broken)->mac->number[0] + 1, l->peer,
            cdp__link_text(l, at));
#endif
    if (l->nonsense)
        return cdp__fail_peer(CDP_ERR_MISMATCH, l->peer, 0,
            "rank %u wrote nonsense into the memory that it shares with this rank: something in "
            "its process overwrites what is not its own",
            l->peer);
    if (l->status == CDP_ERR_MISMATCH && l->refusal)
        return cdp__fail_peer(CDP_ERR_MISMATCH, l->peer, 0,
            "rank %u at %s refused the connection: %s", l->peer, cdp__link_text(l, at),
            cdp__refusal_text(l->refusal));
    if (l->status == CDP_ERR_MISMATCH)
        return cdp__fail_peer(CDP_ERR_MISMATCH, l->peer, 0,
            "what listens at %s is not rank %u of this job", cdp__link_text(l, at), l->peer);
    if (l->lost_errno == ECONNREFUSED)
        return cdp__fail_peer(CDP_ERR_PEER_LOST, l->peer, ECONNREFUSED,
            "rank %u does not listen at %s any more: its process has ended, or has left the group",
            l->peer, cdp__link_text(l, at));
    if (!l->lost_errno)
        return cdp__fail_peer(CDP_ERR_PEER_LOST, l->peer, 0,
            "rank %u at %s closed its connection: its process has ended, or has left the group",
            l->peer, cdp__link_text(l, at));
    return cdp__fail_peer(CDP_ERR_PEER_LOST, l->peer, l->lost_errno,
        "lost the connection to rank %u at %s", l->peer, cdp__link_text(l, at));
}

/* Sends or receives the rest of a 64-byte handshake message. 1: complete; 0: call again when the
   socket is ready; else a negative errno, or as cdp_os.net.recv_iov. */
CDP__PRIVATE int32_t cdp__hello_move(
    cdp__mesh *m, cdp__io *io, uint8_t hello[CDP__HELLO_BYTES], uint32_t *done, bool receive) {
    while (*done < CDP__HELLO_BYTES) {
        cdp_iov v;
        int64_t r;
        v.data = hello + *done;
        v.bytes = CDP__HELLO_BYTES - *done;
        r = receive ? cdp__io_recv(&m->loop, io, &v, 1) : cdp__io_send(&m->loop, io, &v, 1);
        if (r <= 0) return (int32_t)r;
        *done += (uint32_t)r;
    }
    return 1;
}

CDP__PRIVATE int32_t cdp__hello_send(
    cdp__mesh *m, cdp__io *io, uint8_t hello[CDP__HELLO_BYTES], uint32_t *sent) {
    return cdp__hello_move(m, io, hello, sent, false);
}

CDP__PRIVATE int32_t cdp__hello_recv(
    cdp__mesh *m, cdp__io *io, uint8_t hello[CDP__HELLO_BYTES], uint32_t *got) {
    return cdp__hello_move(m, io, hello, got, true);
}

/* True if this rank can share memory with other ranks of its host. */
CDP__PRIVATE bool cdp__mesh_shares(const cdp__mesh *m) {
#ifdef CDP_NO_SHARED_MEMORY
    (void)m;
    return false;
#else
    return !m->desc.no_shared_memory && m->os->shared.create && m->loop.wake_fd[1] >= 0;
#endif
}

CDP__PRIVATE void cdp__hello_fill(
    const cdp__mesh *m, uint8_t out[CDP__HELLO_BYTES], uint32_t type, const cdp__link *l) {
    cdp__hello h;
    memset(&h, 0, sizeof h);
    h.type = type;
    h.version = CDP_WIRE_VERSION;
    h.order = (uint8_t)cdp__byte_order();
    h.mac = m->desc.mac;
    h.world_size = m->desc.group.world_size;
    h.from = m->desc.group.rank;
    h.to = l->peer;
    h.index = l->index;
    memcpy(h.job, m->job, CDP__JOB_BYTES);
    h.memory[0] = type == CDP__HELLO && !l->index && cdp__mesh_shares(m);
    cdp__hello_encode(&h, out);
}

/* Sends bytes over TCP, in records if the link has a mac. Results as in cdp_os. */
CDP__PRIVATE int64_t cdp__link_put(cdp__link *l, const cdp_iov *iov, uint32_t n) {
#ifndef CDP_NO_MAC
    if (l->mac) return cdp__mac_send(l->mac, &l->mesh->loop, &l->io, iov, n);
#endif
    return cdp__io_send(&l->mesh->loop, &l->io, iov, n);
}

CDP__PRIVATE int64_t cdp__link_get(cdp__link *l, const cdp_iov *iov) {
#ifndef CDP_NO_MAC
    if (l->mac) return cdp__mac_recv(l->mac, &l->mesh->loop, &l->io, iov);
#endif
    return cdp__io_recv(&l->mesh->loop, &l->io, iov, 1);
}

/* Receives like cdp__io_drain(). A function of its own, because a combined one would make every
   call slower. */
CDP__PRIVATE int64_t cdp__link_drain(cdp__link *l, const cdp_iov *iov) {
#ifndef CDP_NO_MAC
    if (l->mac) return cdp__mac_recv(l->mac, &l->mesh->loop, &l->io, iov);
#endif
    return cdp__io_drain(&l->mesh->loop, &l->io, iov);
}

/* Starts records on a connection with these nonces and this CHOSEN, if the job uses a mac.
   False: out of memory, the link is lost. */
CDP__PRIVATE bool cdp__link_guard(
    cdp__link *l, uint8_t nonce[2][16], const uint8_t chosen[CDP__HELLO_BYTES], bool listener) {
#ifndef CDP_NO_MAC
    if (!l->mesh->desc.mac) return true;
    l->mac = cdp__mac_open(l->mesh->os, l->mesh->key, nonce, chosen, listener);
    if (!l->mac) cdp__link_lose(l, CDP_ERR_NOMEM, 0);
    return l->mac != NULL;
#else
    (void)l;
    (void)nonce;
    (void)chosen;
    (void)listener;
    return true;
#endif
}

CDP__PRIVATE void cdp__link_unguard(cdp__link *l) {
#ifndef CDP_NO_MAC
    cdp__mac_close(l->mesh->os, l->mac);
    l->mac = NULL;
#else
    (void)l;
#endif
}

/* Sends the cause of the job's failure over a link on which nothing else was sent, so a FAILURE on
   the world's channel needs no stream. A socket may accept only a part of it: then `telling` is
   set, and this is called again. */
CDP__PRIVATE void cdp__link_send_cause(cdp__link *l) {
    uint8_t bytes[CDP__HEAD_BYTES + CDP__FAILURE_MAX];
    const uint32_t all = CDP__HEAD_BYTES + l->mesh->cause_bytes;
    cdp__head h;
    cdp_iov v;
    int64_t r = 1;
    memset(&h, 0, sizeof h);
    h.type = CDP__MESSAGE_FAILURE;
    h.channel = CDP__WORLD_CHANNEL;
    h.bytes = l->mesh->cause_bytes;
    if (!h.bytes) return;
    memcpy(bytes + CDP__HEAD_BYTES, l->mesh->cause, h.bytes);
    cdp__head_encode(&h, bytes);
    while (r > 0 && l->cause_sent < all) {
        v.data = bytes + l->cause_sent;
        v.bytes = all - l->cause_sent;
        r = cdp__link_shared(l) ? cdp__line_move(&l->shared->line, &v, 1, true)
                                : cdp__link_put(l, &v, 1);
        if (r > 0) l->cause_sent += (uint32_t)r;
    }
    l->cause_unsent = r == 0 && !cdp__link_shared(l);
}

CDP__PRIVATE void cdp__link_nonsense(cdp__link *l) {
    if (l->state != CDP__LINK_LOST) cdp__link_lose(l, CDP_ERR_MISMATCH, 0);
    l->nonsense = true;
}

/* Handles the failed receive `r`. A record that does not match ends receiving only: this rank
   can still send, so it sends the cause to the peer before it closes the connection. */
CDP__PRIVATE void cdp__link_broke(cdp__link *l, int64_t r) {
#ifndef CDP_NO_MAC
    if (l->mac && l->mac->changed) {
        l->lost_errno = EBADMSG;
        l->broken = l->index;
        return;
    }
#endif
    cdp__link_lose(l, CDP_ERR_PEER_LOST, r == CDP_IO_EOF ? 0 : (int32_t)-r);
}

/* True if no more data can arrive over this link. */
CDP__PRIVATE bool cdp__link_ended(const cdp__link *l) {
#ifndef CDP_NO_MAC
    if (l->mac && l->mac->changed) return true;
#endif
    return l->state == CDP__LINK_LOST;
}

/* Sharing memory with this rank of the host failed: TCP is used. Logged once. */
CDP__PRIVATE void cdp__mesh_no_memory(cdp__mesh *m, uint32_t peer, int32_t err) {
    (void)peer;
    (void)err; /* unused without log texts */
    cdp__log(&m->desc.group.logger, m->memory_warned ? CDP_LOG_DEBUG : CDP_LOG_WARN,
        m->desc.group.rank,
        "no shared memory with rank %u, although it is on this machine (errno %d, %s): their bytes "
        "go over TCP, which is slower; no_shared_memory says that this is meant",
        peer, (int)err, err ? cdp__os_error_text(err) : "the other rank could not");
    m->memory_warned = true;
}

/* Bytes of the peer have come over the connection. So it had not just left when memory could not be
   shared with it: that is logged. */
CDP__PRIVATE void cdp__link_received(cdp__link *l) {
    const int32_t err = l->apart;
    l->silent = 0;
    l->apart = 0;
    if (err) cdp__mesh_no_memory(l->mesh, l->peer, err);
}

/* Reads ahead while no call asks for data: small messages of the peer keep moving, and the end
   of the connection is noticed. */
CDP__PRIVATE void cdp__link_read_ahead(cdp__link *l) {
    while (l->state == CDP__LINK_UP && (l->io.ready & CDP_IO_READ) && l->rx_used < CDP__RX_BYTES) {
        cdp_iov v;
        int64_t r;
        if (l->rx_at) memmove(l->rx, l->rx + l->rx_at, l->rx_used - l->rx_at);
        l->rx_used -= l->rx_at;
        l->rx_at = 0;
        v.data = l->rx + l->rx_used;
        v.bytes = CDP__RX_BYTES - l->rx_used;
        r = v.bytes ? cdp__link_drain(l, &v) : 0;
        if (r > 0 && cdp__link_shared(l)) {
            cdp__link_nonsense(l);
            return;
        }
        /* data read earlier stays readable */
        if (r < 0) cdp__link_broke(l, r);
        if (r <= 0) return;
        cdp__link_received(l);
        l->rx_used += (uint32_t)r;
    }
}

/* How large a ring of this rank is, each way: a multiple of 64. */
CDP__PRIVATE uint64_t cdp__ring_room(const cdp_tcp_desc *desc) {
    const uint32_t peers = desc->group.world_size - 1;
    uint64_t usual = CDP__RING_BYTES;
    if (desc->group.no_thread) usual = cdp__max(usual, CDP__FRAME_RING_BYTES / cdp__max(peers, 1));
    return (cdp__def(desc->ring_bytes, usual) + 63) / 64 * 64;
}

/* The peer waits for shared memory under this name: creates and passes it. Writes the proof for
   CHOSEN into `proof`. */
CDP__PRIVATE void cdp__link_offer(
    cdp__link *l, const uint8_t name[CDP__NAME_BYTES], uint8_t proof[CDP__NAME_BYTES]) {
    cdp__mesh *m = l->mesh;
    const cdp_os *os = m->os;
    const uint64_t room = cdp__ring_room(&m->desc);
    const int32_t pass = os->shared.pass_open(os->user, name, false);
    int32_t fds[2],
        err = fds[0] = pass < 0 ? pass : os->shared.create(os->user, cdp__shared_size(room));
    cdp__shared *s = err < 0 ? NULL : cdp__shared_open(os, fds[0], true);
    if (s) {
        s->pass = pass;
        fds[1] = m->loop.wake_fd[1];
        err = os->random(os->user, proof, CDP__NAME_BYTES) == CDP_OK ? 0 : -EIO;
        proof[0] |= 1; /* a proof must not be zero */
        memcpy(s->pair->proof, proof, CDP__NAME_BYTES);
        s->pair->layout = CDP__LAYOUT;
        cdp__shared_prove(s, proof);
        if (!err) err = os->shared.pass(os->user, pass, fds, 2, true);
    } else {
        if (pass >= 0) os->net.close_fd(os->user, pass);
        err = err < 0 ? err : -ENOMEM;
    }
    if (err >= 0) {
        l->shared = s;
        return;
    }
    cdp__shared_close(s);
    memset(proof, 0, CDP__NAME_BYTES);
    l->apart = -err;
}

#endif /* CDP_SRC_TCP_LINK_STREAMS_H */
