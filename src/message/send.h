/* message/send.h - messages that leave a port

   Knows: ports, streams, slots. Promises: a message leaves whole, header and body together. */
#ifndef CDP_SRC_MESSAGE_SEND_H
#define CDP_SRC_MESSAGE_SEND_H

#include "../base/config.h"
#include "../base/types_api.h"
#include "transport_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "header.h"
#include "fabric.h"
#include "stream.h"
#include "port.h"
#include "receive.h"

/* Stores a small message in a slot. False: it must take the link. */
CDP__PRIVATE bool cdp__stream_put(
    cdp__world *w, cdp__stream *s, const cdp__head *h, const void *body) {
    const cdp_transport *t = &w->transport;
    cdp__eager_slots *memory;
    uint8_t head[CDP__SLOT_HEAD];
    if (h->bytes > CDP_SLOT_BYTES || s->left) return false;
    memory = cdp__stream_slots(w, s, true);
    if (!memory) return false;
    cdp__slot_head_encode(h, head);
    if (!cdp__eager_put(&w->ports[s->peer].slots, memory, s->channel, s->put, head, body, h->bytes))
        return false;
    ++s->put;
    t->slots.ring(t->self, s->peer);
    return true;
}

/* Checks that the port is free, and that the window has room for this message, or for at least
   CDP__PIECE_MIN of it, or a quarter of the window. Reduces h->bytes to that room. 1: ready; 0:
   later; < 0: lost. */
CDP__PRIVATE int64_t cdp__stream_ready(cdp__world *w, cdp__stream *s, cdp__head *h) {
    const uint64_t window = w->window_bytes, piece = cdp__min(CDP__PIECE_MIN, window / 4);
    const uint64_t least = CDP__HEAD_BYTES + cdp__min(h->bytes, piece);
    uint64_t room;
    int64_t r;
    if (w->ports[s->peer].tx_stream || !cdp__port_flush(w, s->peer)) {
        /* another message is half sent; still find out whether the link is broken */
        r = cdp__port_pump(w, s->peer, s);
        return r < 0 ? r : 0;
    }
    if (s->sent - s->acked + CDP__HEAD_BYTES + h->bytes > window) {
        r = cdp__port_pump(w, s->peer, s);
        if (r < 0) return r;
        /* it may have answered a request for credit, and only a part of the answer has left */
        if (!cdp__port_flush(w, s->peer)) return 0;
    }
    if (s->left) return cdp__stream_has_left(s);
    room = s->sent - s->acked < window ? window - (s->sent - s->acked) : 0;
    if (room < least) {
        s->asking = s->asking || cdp__stream_send_control(w, s, CDP__MESSAGE_ASK);
        (void)cdp__port_flush(w, s->peer);
        return 0;
    }
    h->bytes = (uint32_t)cdp__min(h->bytes, room - CDP__HEAD_BYTES);
    return 1;
}

/* Begins a message; cdp__stream_unsent() says what to send. The port must be ready. */
CDP__PRIVATE void cdp__stream_begin(cdp__world *w, cdp__stream *s, cdp__head *h) {
    cdp__port *port = &w->ports[s->peer];
    CDP_ASSERT(!port->tx_stream && !port->tx_head_left && !port->tx_left);
    h->channel = s->channel;
    h->ack = (uint32_t)s->taken;
    cdp__head_encode(h, port->tx_head);
    port->tx_head_left = CDP__HEAD_BYTES;
    port->tx_left = h->bytes;
    port->tx_stream = s;
    s->sent += CDP__HEAD_BYTES + h->bytes;
    ++s->put;
}

/* What is still to be sent of the message that was begun; `body` points to the unsent rest of its
   body. Header and body are sent together, so that a small message is one system call. Returns how
   many entries of v[2] it has filled in. */
CDP__PRIVATE uint32_t cdp__stream_unsent(
    const cdp__world *w, const cdp__stream *s, const void *body, cdp_iov *v) {
    cdp__port *port = &w->ports[s->peer];
    uint32_t n = 0;
    CDP_ASSERT(port->tx_stream == s);
    if (port->tx_head_left) {
        v[0].data = port->tx_head + (CDP__HEAD_BYTES - port->tx_head_left);
        v[n++].bytes = port->tx_head_left;
    }
    if (port->tx_left) {
        v[n].data = (void *)(uintptr_t)body;
        v[n++].bytes = cdp__step_bytes(w, port->tx_left);
    }
    return n;
}

/* The transport took `bytes` of it, > 0. Returns how many of the body. */
CDP__PRIVATE uint64_t cdp__stream_sent(cdp__world *w, cdp__stream *s, uint64_t bytes) {
    cdp__port *port = &w->ports[s->peer];
    const uint32_t head = (uint32_t)cdp__min(bytes, port->tx_head_left);
    port->used = true;
    port->tx_head_left -= head;
    port->tx_left -= bytes - head;
    if (!port->tx_head_left && !port->tx_left) port->tx_stream = NULL;
    return bytes - head;
}

/* Closes this rank's side of the stream: frees the slots with its messages and, if `tell`, sends
   LEAVE to the peer. The caller owns the stream's memory. */
CDP__PRIVATE void cdp__stream_close(cdp__world *w, cdp__stream *s, bool tell) {
    uint32_t i;
    cdp__stream_remove(w, s);
    for (i = 0; i < CDP_SLOTS && s->peer != w->rank; ++i) {
        if (!s->slot && cdp__stream_slot(w, s)) {
            s->slot = cdp__stream_slot(w, s);
            ++s->got;
        }
        if (s->slot) cdp__stream_slot_done(w, s);
    }
    if (tell) (void)cdp__stream_send_control(w, s, CDP__MESSAGE_LEAVE);
    cdp__free(w->os, s->early);
    cdp__free(w->os, s->failure);
    s->early = NULL;
    s->failure = NULL;
}

#endif /* CDP_SRC_MESSAGE_SEND_H */
