/* message/port.h - control messages of a link

   Knows: ports and their streams. Promises: control messages are whole, and leave before the next
   DATA. */
#ifndef CDP_SRC_MESSAGE_PORT_H
#define CDP_SRC_MESSAGE_PORT_H

#include "../base/config.h"
#include "../base/types_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "header.h"
#include "stream.h"

/* Makes room for `bytes` in the queue of control messages. False: out of memory, or the queue
   would exceed CDP__CONTROL_MAX. */
CDP__PRIVATE bool cdp__control_reserve(cdp__world *w, cdp__port *port, uint32_t bytes) {
    const uint32_t left = port->control_used - port->control_at;
    const uint64_t need = (uint64_t)left + bytes, room = cdp__max(2 * need, 4 * (uint64_t)bytes);
    uint8_t *p = port->control;
    if ((uint64_t)port->control_used + bytes <= port->control_room && left) return true;
    if (need > CDP__CONTROL_MAX) return false;
    if (2 * need <= port->control_room || (!left && need <= port->control_room)) {
        if (left) memmove(p, p + port->control_at, left);
    } else {
        p = (uint8_t *)cdp__alloc(w->os, room);
        if (!p) return false;
        if (left) memcpy(p, port->control + port->control_at, left);
        cdp__free(w->os, port->control);
        port->control = p;
        port->control_room = (uint32_t)room;
    }
    port->control_at = 0;
    port->control_used = left;
    return true;
}

/* Queues one whole message, sent as soon as no other message is half sent. False: out of memory. */
CDP__PRIVATE bool cdp__control_add(
    cdp__world *w, uint32_t peer, const cdp__head *h, const uint8_t *body) {
    cdp__port *port = &w->ports[peer];
    const uint32_t bytes = CDP__HEAD_BYTES + h->bytes;
    CDP_ASSERT(body || !h->bytes);
    if (port->dead) return true; /* the peer is lost: drop it */
    if (!cdp__control_reserve(w, port, bytes)) return false;
    cdp__head_encode(h, port->control + port->control_used);
    if (body) memcpy(port->control + port->control_used + CDP__HEAD_BYTES, body, h->bytes);
    port->control_used += bytes;
    w->control_queued = true;
    return true;
}

/* Queues a control message without a body. False: out of memory. */
CDP__PRIVATE CDP__ONE_COPY bool cdp__stream_send_control(
    cdp__world *w, const cdp__stream *s, cdp__message_type type) {
    cdp__head h;
    memset(&h, 0, sizeof h);
    h.type = (uint8_t)type;
    h.channel = s->channel;
    h.ack = (uint32_t)s->taken;
    return cdp__control_add(w, s->peer, &h, NULL);
}

/* Queues a control message for a channel that has no stream. */
CDP__PRIVATE void cdp__channel_send_control(
    cdp__world *w, uint32_t peer, uint64_t channel, cdp__message_type type) {
    cdp__head h;
    memset(&h, 0, sizeof h);
    h.type = (uint8_t)type;
    h.channel = channel;
    (void)cdp__control_add(w, peer, &h, NULL);
}

/* Sends queued control messages, and zeros for the rest of a body whose stream is gone. True if
   the port is free for the next message. */
CDP__PRIVATE bool cdp__port_flush(cdp__world *w, uint32_t peer) {
    static const uint8_t zeros[64] = {0};
    cdp__port *port = &w->ports[peer];
    while (!port->tx_stream && !port->dead) {
        cdp_iov v;
        int64_t r;
        const bool rest = port->tx_head_left || port->tx_left;
        if (!rest && port->control_at == port->control_used) return true;
        v.data = NULL;
        v.bytes = port->control_used - port->control_at;
        if (v.bytes) v.data = port->control + port->control_at;
        if (rest) {
            v.data = port->tx_head_left ? port->tx_head + (CDP__HEAD_BYTES - port->tx_head_left)
                                        : (uint8_t *)(uintptr_t)zeros;
            v.bytes =
                port->tx_head_left ? port->tx_head_left : cdp__min(port->tx_left, sizeof zeros);
        }
        v.bytes = cdp__step_bytes(w, v.bytes);
        r = w->transport.send(w->transport.self, peer, &v, 1);
        if (r < 0) { /* `dead` keeps later polls from trying again */
            port->dead = true;
            port->control_at = port->control_used = 0;
            port->tx_head_left = 0;
            port->tx_left = 0;
        }
        if (r <= 0) return false;
        if (!rest)
            port->control_at += (uint32_t)r;
        else if (port->tx_head_left)
            port->tx_head_left -= (uint32_t)r;
        else
            port->tx_left -= (uint64_t)r;
        if (cdp__poll_over(w)) return false;
    }
    return false;
}

/* Sends queued messages of all ports that have become free. */
CDP__PRIVATE void cdp__world_send_queued(cdp__world *w) {
    uint32_t i;
    w->control_queued = false;
    for (i = 0; i < w->size; ++i) {
        const cdp__port *port = &w->ports[i];
        const bool rest = !port->tx_stream && (port->tx_head_left || port->tx_left);
        if ((rest || port->control_at != port->control_used) && !cdp__port_flush(w, i))
            w->control_queued = true;
    }
}

/* The buffer of the half-sent message is about to be freed: copies the rest of header and `body`
   to the head of the queue. Without memory, zeros are sent in its place. */
CDP__PRIVATE void cdp__port_keep(cdp__world *w, uint32_t peer, const uint8_t *body) {
    cdp__port *port = &w->ports[peer];
    const uint64_t head = port->tx_head_left, rest = head + port->tx_left;
    const uint64_t left = port->control_used - port->control_at;
    uint8_t *p = NULL;
    if (rest + left <= CDP__CONTROL_MAX) p = (uint8_t *)cdp__alloc(w->os, rest + left);
    if (!p) return;
    if (head) memcpy(p, port->tx_head + (CDP__HEAD_BYTES - head), (size_t)head);
    if (port->tx_left) memcpy(p + head, body, (size_t)port->tx_left);
    if (left) memcpy(p + rest, port->control + port->control_at, (size_t)left);
    cdp__free(w->os, port->control);
    port->control = p;
    port->control_at = 0;
    port->control_used = port->control_room = (uint32_t)(rest + left);
    port->tx_head_left = 0;
    port->tx_left = 0;
    w->control_queued = true;
}

/* Answers a sender's request for credit, once at most half of the window is in use, and some of
   what came was read: the window of the sender may be smaller. */
CDP__PRIVATE void cdp__stream_answer(cdp__world *w, cdp__stream *s) {
    if (!s->asked || s->early_used > w->window_bytes / 2) return;
    if (s->early_used && s->taken == s->credited) return;
    /* out of memory: try again later */
    s->asked = !cdp__stream_send_control(w, s, CDP__MESSAGE_CREDIT);
    if (!s->asked) s->credited = s->taken;
    (void)cdp__port_flush(w, s->peer);
}

#endif /* CDP_SRC_MESSAGE_PORT_H */
