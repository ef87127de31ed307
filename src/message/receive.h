/* message/receive.h - messages that arrive at a port

   Knows: ports, streams, slots. Promises: bytes of streams that no call reads now are stored,
   within the window; the reader of a stream gets its bytes in order. */
#ifndef CDP_SRC_MESSAGE_RECEIVE_H
#define CDP_SRC_MESSAGE_RECEIVE_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../os/os_api.h"
#include "transport_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "header.h"
#include "fabric.h"
#include "stream.h"
#include "port.h"

/* Makes room for `more` bytes in `early`. */
CDP__PRIVATE bool cdp__stream_room(const cdp_os *os, cdp__stream *s, uint64_t more) {
    uint64_t room = cdp__max(s->early_room, 1024);
    uint8_t *p;
    if (s->early_used + more <= s->early_room) return true;
    while (room < s->early_used + more)
        room *= 2;
    p = (uint8_t *)cdp__alloc(os, room);
    if (!p) return false;
    if (s->early_used) {
        const uint64_t first = cdp__min(s->early_used, s->early_room - s->early_at);
        memcpy(p, s->early + s->early_at, (size_t)first);
        memcpy(p + first, s->early, (size_t)(s->early_used - first));
    }
    cdp__free(os, s->early);
    s->early = p;
    s->early_room = room;
    s->early_at = 0;
    return true;
}

/* Appends to `early`, which has room. */
CDP__PRIVATE void cdp__early_put(cdp__stream *s, const uint8_t *from, uint64_t bytes) {
    const uint64_t at = (s->early_at + s->early_used) % s->early_room;
    const uint64_t first = cdp__min(bytes, s->early_room - at);
    memcpy(s->early + at, from, (size_t)first);
    memcpy(s->early, from + first, (size_t)(bytes - first));
    s->early_used += bytes;
}

/* Copies the first bytes of `early`, and removes them if `take` is set. */
CDP__PRIVATE void cdp__early_copy(cdp__stream *s, uint8_t *to, uint64_t bytes, bool take) {
    const uint64_t first = cdp__min(bytes, s->early_room - s->early_at);
    CDP_ASSERT(bytes <= s->early_used);
    memcpy(to, s->early + s->early_at, (size_t)first);
    memcpy(to + first, s->early, (size_t)(bytes - first));
    if (!take) return;
    s->early_at = (s->early_at + bytes) % s->early_room;
    s->early_used -= bytes;
}

/* Applies the control fields of a received header to its stream. False: the peer sent an
   impossible value. */
CDP__PRIVATE bool cdp__stream_control(cdp__world *w, cdp__stream *s, const cdp__head *h) {
    const uint32_t more = h->ack - (uint32_t)s->acked;
    const bool slack = h->type == CDP__MESSAGE_LEAVE || h->type == CDP__MESSAGE_LIMIT;
    if (slack) {
        s->left = true;
        ++w->stored;
        return true;
    }
    if (more > s->sent - s->acked) return false;
    if (more) s->asking = false;
    s->acked += more;
    if (more || h->type == CDP__MESSAGE_READ || h->type == CDP__MESSAGE_REFUSED) ++w->stored;
    if (h->type == CDP__MESSAGE_ASK) s->asked = true;
    if (h->type == CDP__MESSAGE_REFUSED) s->refused = s->exposed;
    if (h->type == CDP__MESSAGE_READ || h->type == CDP__MESSAGE_REFUSED) s->exposed = false;
    cdp__stream_answer(w, s);
    return true;
}

CDP__PRIVATE bool cdp__type_is_control(uint8_t type) {
    return type >= CDP__MESSAGE_CREDIT;
}

/* Handles a complete header. False: it is invalid. */
CDP__PRIVATE bool cdp__port_head(cdp__world *w, uint32_t peer) {
    cdp__port *port = &w->ports[peer];
    cdp__stream *s;
    cdp__head h;
    port->rx_head_got = 0;
    port->rx_left = 0;
    port->failure_got = 0;
    if (!cdp__head_decode(port->rx_head, &h)) return false;
    if (h.type >= CDP__MESSAGE_WAIT) {
        port->rx_stream = NULL;
        port->rx_control = true;
        port->rx_left = h.bytes;
        return h.bytes > 0;
    }
    s = port->rx_stream && port->rx_stream->channel == h.channel
        ? port->rx_stream
        : cdp__stream_find(w, h.channel, peer);
    if (!s && (!cdp__type_is_control(h.type) || h.type == CDP__MESSAGE_ASK))
        s = cdp__stream_unexpected(w, h.channel, peer);
    port->rx_stream = s;
    if (h.type == CDP__MESSAGE_LIMIT) port->over_limit = 2;
    /* tell the peer that its messages are dropped */
    if (!s && !port->nomem && !cdp__type_is_control(h.type))
        cdp__channel_send_control(
            w, peer, h.channel, port->over_limit ? CDP__MESSAGE_LIMIT : CDP__MESSAGE_LEAVE);
    if (s && !cdp__stream_control(w, s, &h)) return false;
    if (cdp__type_is_control(h.type)) return true;
    port->rx_left = h.bytes;
    port->rx_control = h.type == CDP__MESSAGE_FAILURE;
    port->rx_fresh = s && !port->rx_control;
    return !s
        || s->early_used + CDP__HEAD_BYTES + h.bytes <= CDP__WINDOW + CDP__WINDOW_SLACK + s->slack;
}

/* Receives the body of a FAILURE, WAIT or ENDPOINT. 1: moved; 0: later; < 0: failed. A WAIT only
   asks, and an ENDPOINT only makes a text better: without memory, both are dropped. */
CDP__PRIVATE int64_t cdp__port_body(cdp__world *w, uint32_t peer) {
    cdp__port *port = &w->ports[peer];
    cdp_iov v;
    int64_t r;
    if (!port->failure && !(port->failure = (uint8_t *)cdp__alloc(w->os, CDP__FAILURE_MAX))) {
        port->rx_control = port->rx_head[5] == CDP__MESSAGE_FAILURE;
        if (!port->rx_control) return 1;
        return cdp__fail_nomem("the body of a failure", CDP__FAILURE_MAX);
    }
    CDP_ASSERT(port->failure_got + port->rx_left <= CDP__FAILURE_MAX);
    v.data = port->failure + port->failure_got;
    v.bytes = port->rx_left;
    r = v.bytes ? w->transport.recv(w->transport.self, peer, &v, 1) : 1;
    if (r <= 0 || !v.bytes) return r;
    port->failure_got += (uint32_t)r;
    port->rx_left -= (uint64_t)r;
    return 1;
}

/* A body is complete: handles it. A FAILURE whose channel is open no longer, or not yet, tells why
   the peer may leave soon; where it is not open yet, the body is stored until it is. */
CDP__PRIVATE void cdp__port_on_control(cdp__world *w, uint32_t peer) {
    cdp__port *port = &w->ports[peer];
    cdp__stream *s = port->rx_stream; /* of a FAILURE whose channel is open; the others have none */
    const uint32_t bytes = port->failure_got;
    const uint64_t channel = s && !s->unexpected ? s->channel : 0;
    port->rx_control = false;
    port->failure_got = 0;
    if (s) {
        s->taken += CDP__HEAD_BYTES + bytes;
        ++w->arrivals;
    }
    if (!w->on_control(w, peer, port->rx_head[5], channel, port->failure, bytes))
        port->broken = true;
    if (s && s->unexpected && !s->failure) {
        s->failure = port->failure;
        s->failure_bytes = bytes;
        port->failure = NULL;
    }
}

/* Stores the received bytes of the current message, or drops them. 1: moved; 0: later; < 0:
   failed. */
CDP__PRIVATE int64_t cdp__port_store(cdp__world *w, uint32_t peer) {
    cdp__port *port = &w->ports[peer];
    cdp__stream *s = port->rx_stream;
    const bool drop = !s || s->dropping;
    cdp_iov v;
    int64_t r;
    uint64_t at;
    if (port->rx_control) {
        r = cdp__port_body(w, peer);
        if (r > 0 && !port->rx_left) cdp__port_on_control(w, peer);
        return r;
    }
    if (port->rx_fresh && !drop) {
        if (!cdp__stream_room(w->os, s, CDP__HEAD_BYTES + port->rx_left))
            return cdp__fail_nomem("data that came early", CDP__HEAD_BYTES + port->rx_left);
        cdp__early_put(s, port->rx_head, CDP__HEAD_BYTES);
        ++w->stored;
    }
    port->rx_fresh = false;
    ++w->arrivals;
    if (!port->rx_left) return 1;
    v.data = w->stage;
    v.bytes = cdp__min(port->rx_left, w->stage_bytes);
    if (!drop) {
        if (!cdp__stream_room(w->os, s, port->rx_left))
            return cdp__fail_nomem("data that came early", port->rx_left);
        at = (s->early_at + s->early_used) % s->early_room;
        v.data = s->early + at;
        v.bytes = cdp__min(port->rx_left, (at < s->early_at ? s->early_at : s->early_room) - at);
    }
    v.bytes = cdp__step_bytes(w, v.bytes);
    r = w->transport.recv(w->transport.self, peer, &v, 1);
    if (r <= 0) return r;
    port->rx_left -= (uint64_t)r;
    if (drop) return 1;
    s->early_used += (uint64_t)r;
    ++w->stored;
    return 1;
}

/* The limit of unexpected streams was reached at rank `where`. Messages were lost, so this port
   reads nothing more. */
CDP__PRIVATE cdp_status cdp__port_limit_error(uint32_t where, uint32_t peer) {
    return cdp__fail_peer(CDP_ERR_MISMATCH, peer, 0,
        "other ranks use more than %u groups and tags at once that rank %u has not asked for yet; "
        "let it make these groups and ask for these messages earlier, or the others wait for it",
        CDP__UNEXPECTED, where);
}

CDP__PRIVATE cdp_status cdp__port_nonsense(uint32_t peer) {
    return cdp__fail_peer(CDP_ERR_MISMATCH, peer, 0,
        "rank %u sent something that is no message; the connection is damaged or speaks another "
        "version",
        peer);
}

/* True if the message being received belongs to `want` and no earlier bytes of it are stored. */
CDP__PRIVATE bool cdp__port_has(const cdp__port *port, const cdp__stream *want) {
    if (!want || port->rx_control || port->rx_stream != want || want->early_used) return false;
    return port->rx_fresh || port->rx_left;
}

/* Reads headers, and stores messages of other streams than `want`. 1: the next bytes of the link
   belong to `want`; 0: no data now. */
CDP__PRIVATE int64_t cdp__port_pump(cdp__world *w, uint32_t peer, const cdp__stream *want) {
    cdp__port *port = &w->ports[peer];
    for (;;) {
        cdp_iov v;
        int64_t r;
        if (cdp__port_has(port, want)) return 1;
        if (port->rx_control || port->rx_fresh || port->rx_left) {
            r = cdp__port_store(w, peer);
            if (r <= 0 || cdp__poll_over(w)) return r <= 0 ? r : 0;
            continue;
        }
        if (port->nomem)
            return cdp__fail_nomem("a stream of messages that came early", sizeof(cdp__stream));
        if (port->over_limit)
            return cdp__port_limit_error(port->over_limit == 1 ? w->rank : peer, peer);
        if (port->broken) return cdp__port_nonsense(peer);
        v.data = port->rx_head + port->rx_head_got;
        v.bytes = CDP__HEAD_BYTES - port->rx_head_got;
        r = w->transport.recv(w->transport.self, peer, &v, 1);
        if (r <= 0) return r;
        port->used = true;
        port->rx_head_got += (uint32_t)r;
        if (port->rx_head_got == CDP__HEAD_BYTES && !cdp__port_head(w, peer)) {
            port->broken = true;
            port->rx_control = port->rx_fresh = false;
            port->rx_left = 0; /* the length in an invalid header means nothing */
        }
    }
}

CDP__PRIVATE cdp__eager_slots *cdp__stream_slots(
    const cdp__world *w, const cdp__stream *s, bool out) {
    const cdp_transport *t = &w->transport;
    if (!CDP__IN_PLACE || !t->slots.memory) return NULL;
    return (cdp__eager_slots *)t->slots.memory(t->self, s->peer, out);
}

/* True if a slot holds a message of this peer. */
CDP__PRIVATE bool cdp__port_slots_wait(const cdp__world *w, uint32_t peer) {
    const cdp_transport *t = &w->transport;
    const cdp__eager_slots *memory = NULL;
    uint32_t i;
    if (CDP__IN_PLACE && t->slots.memory)
        memory = (const cdp__eager_slots *)t->slots.memory(t->self, peer, false);
    for (i = 0; i < CDP_SLOTS && memory; ++i)
        if (cdp__atomic_load_u32(&memory->place[i].serial, CDP__ACQUIRE)
            != w->ports[peer].slots.got[i])
            return true;
    return false;
}

/* The slot that holds the stream's next message, or NULL. */
CDP__PRIVATE const cdp__eager_slot *cdp__stream_slot(const cdp__world *w, const cdp__stream *s) {
    const cdp__eager_slots *memory = cdp__stream_slots(w, s, false);
    return memory ? cdp__eager_find(&w->ports[s->peer].slots, memory, s->channel, s->got) : NULL;
}

/* The body in a slot has been read: frees the slot. */
CDP__PRIVATE void cdp__stream_slot_done(cdp__world *w, cdp__stream *s) {
    s->slot = NULL;
    cdp__eager_taken(
        &w->ports[s->peer].slots, cdp__stream_slots(w, s, false), s->channel, s->got - 1);
}

/* Decodes the header of a message in a slot. False: it is invalid. */
CDP__PRIVATE bool cdp__stream_slot_head(const cdp__eager_slot *slot, cdp__head *h) {
    uint8_t head[CDP__SLOT_HEAD];
    const uint32_t bytes = cdp__eager_head(slot, head);
    cdp__slot_head_decode(head, h);
    h->channel = slot->channel;
    h->bytes = bytes;
    return bytes != UINT32_MAX;
}

CDP__PRIVATE int64_t cdp__stream_has_left(const cdp__stream *s) {
    return cdp__fail_peer(CDP_ERR_PEER_LOST, s->peer, 0, "rank %u has left the group", s->peer);
}

/* Takes the header of the next message. 1: *h is set, read its body now; 0: later; < 0: the peer
   is lost or has left. */
CDP__PRIVATE int64_t cdp__stream_next(cdp__world *w, cdp__stream *s, cdp__head *h) {
    cdp__port *port = &w->ports[s->peer];
    const cdp__eager_slot *slot = cdp__stream_slot(w, s);
    uint8_t bytes[CDP__HEAD_BYTES];
    bool good;
    CDP_ASSERT(!s->body_left && !s->slot);
    if (!slot) {
        const int64_t r = s->early_used ? 1 : cdp__port_pump(w, s->peer, s);
        /* messages stored in slots before these bytes were sent, or the link broke, are visible
           now */
        slot = cdp__stream_slot(w, s);
        if (!slot && r < 0) return r;
        if (!slot && r == 0) return s->left ? cdp__stream_has_left(s) : 0;
    }
    if (slot) {
        good = cdp__stream_slot_head(slot, h);
        s->slot = slot;
        s->slot_at = 0;
    } else if (s->early_used) {
        cdp__early_copy(s, bytes, CDP__HEAD_BYTES, true);
        good = cdp__head_decode(bytes, h);
        s->taken += CDP__HEAD_BYTES;
    } else {
        good = cdp__head_decode(port->rx_head, h);
        port->rx_fresh = false;
        s->taken += CDP__HEAD_BYTES;
    }
    ++s->got;
    s->body_left = h->bytes;
    if (slot && !h->bytes) cdp__stream_slot_done(w, s);
    return good ? 1 : cdp__port_nonsense(s->peer);
}

/* Copies the header of the next message without taking it. Only finds messages that are stored
   or in a slot: pump the port first. */
CDP__PRIVATE bool cdp__stream_peek(const cdp__world *w, cdp__stream *s, cdp__head *h) {
    const cdp__eager_slot *slot = cdp__stream_slot(w, s);
    uint8_t bytes[CDP__HEAD_BYTES];
    if (s->body_left) return false;
    if (slot) return cdp__stream_slot_head(slot, h);
    if (s->early_used < CDP__HEAD_BYTES) return false;
    cdp__early_copy(s, bytes, CDP__HEAD_BYTES, false);
    return cdp__head_decode(bytes, h);
}

/* Reads up to `bytes` of the current body. Returns how many; 0: later; < 0: lost. */
CDP__PRIVATE int64_t cdp__stream_read(cdp__world *w, cdp__stream *s, void *to, uint64_t bytes) {
    cdp__port *port = &w->ports[s->peer];
    cdp_iov v;
    int64_t r;
    bytes = cdp__min(bytes, s->body_left);
    if (CDP__IN_PLACE && s->slot) {
        memcpy(to, s->slot->data + s->slot_at, (size_t)bytes);
        s->slot_at += (uint32_t)bytes;
        s->body_left -= bytes;
        if (!s->body_left) cdp__stream_slot_done(w, s);
        return (int64_t)bytes;
    }
    if (s->early_used) {
        r = (int64_t)cdp__min(bytes, s->early_used);
        cdp__early_copy(s, (uint8_t *)to, (uint64_t)r, true);
    } else {
        r = cdp__port_pump(w, s->peer, s);
        if (r == 0 && s->left) return cdp__stream_has_left(s);
        if (r <= 0) return r;
        CDP_ASSERT(!port->rx_fresh);
        v.data = to;
        v.bytes = cdp__min(bytes, port->rx_left);
        r = w->transport.recv(w->transport.self, s->peer, &v, 1);
        if (r <= 0) return r;
        port->rx_left -= (uint64_t)r;
    }
    s->body_left -= (uint64_t)r;
    s->taken += (uint64_t)r;
    if (s->asked) cdp__stream_answer(w, s);
    return r;
}

#endif /* CDP_SRC_MESSAGE_RECEIVE_H */
