/* channel/progress.h - receiving, and callbacks

   Knows: the channels of a world. Promises: messages of a rank are delivered in order, one at a
   time, without the lock. */
#ifndef CDP_SRC_CHANNEL_PROGRESS_H
#define CDP_SRC_CHANNEL_PROGRESS_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../base/error_api.h"
#include "channel_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/ended.h"
#include "../base/text.h"
#include "../base/bytes.h"
#include "../message/header.h"
#include "../message/stream.h"
#include "../message/port.h"
#include "../message/receive.h"
#include "../message/send.h"
#include "../group/state.h"
#include "../group/flows.h"
#include "channel.h"
#include "bodies.h"

#ifndef CDP_NO_CHANNELS

/* Delivers a complete message to the program, or handles an answer to an offer. The channel
   loses a peer that answers without an offer. */
CDP__PRIVATE void cdp__channel_deliver(cdp_channel *c, uint32_t p) {
    cdp__channel_peer *peer = &c->peers[p];
    const cdp__head h = peer->head;
    cdp_channel_message m;
    peer->reading = false;
    if (h.dtype != CDP__CHANNEL_INLINE && h.dtype != CDP__CHANNEL_OFFER) {
        cdp_error e;
        if (cdp__channel_answer(c, p, &h)) return;
        cdp__error(&e, CDP_ERR_MISMATCH, c->streams[p].peer,
            "rank %u answered a body that was not offered to it", c->streams[p].peer);
        cdp__channel_lose(c, p, &e);
        return;
    }
    memset(&m, 0, sizeof m);
    m.peer = p;
    m.kind = h.root;
    m.aux = h.round;
    m.a = h.seq;
    m.b = h.count;
    m.bytes = h.bytes;
    m.body = h.bytes ? peer->body : NULL;
    if (h.dtype == CDP__CHANNEL_OFFER) {
        m.handle = cdp__get_u64(peer->body);
        m.bytes = cdp__get_u64(peer->body + 8);
        m.body = NULL;
        if (!m.handle || !m.bytes) {
            (void)cdp__port_nonsense(c->streams[p].peer);
            cdp__channel_lose(c, p, cdp_last_error());
            return;
        }
    }
    cdp__channel_call(c);
    c->desc.deliver(c->desc.user, &m);
    cdp__channel_called(c);
}

/* ---- receiving */

/* A header has arrived: allocates memory for the body. */
CDP__PRIVATE bool cdp__channel_begin(cdp_channel *c, uint32_t p) {
    cdp__channel_peer *peer = &c->peers[p];
    const cdp__head *h = &peer->head;
    if (h->kind != CDP_COLL_SEND || h->type != CDP__MESSAGE_DATA || h->bytes > CDP_CHANNEL_BODY_MAX
        || (h->dtype == CDP__CHANNEL_OFFER) != (h->dtype && h->bytes == CDP__REMOTE_BYTES)) {
        (void)cdp__port_nonsense(c->streams[p].peer);
        return false;
    }
    peer->got = 0;
    if (h->bytes <= peer->room) return true;
    cdp__free(c->g->os, peer->body);
    peer->room = cdp__max(h->bytes, 256);
    peer->body = (uint8_t *)cdp__alloc(c->g->os, peer->room);
    if (peer->body) return true;
    peer->room = 0;
    (void)cdp__fail_nomem("a message of a channel", h->bytes);
    return false;
}

/* Reads messages of rank p. True if something moved. */
CDP__PRIVATE bool cdp__channel_read(cdp_channel *c, uint32_t p) {
    cdp__channel_peer *peer = &c->peers[p];
    cdp__stream *s = &c->streams[p];
    int64_t r = 1;
    if (!peer->reading) {
        r = cdp__stream_next(c->g->w, s, &peer->head);
        if (r > 0 && !cdp__channel_begin(c, p)) r = -1;
        peer->reading = r > 0;
    }
    while (r > 0 && s->body_left) {
        r = cdp__stream_read(c->g->w, s, peer->body + peer->got, s->body_left);
        if (r > 0) peer->got += (uint64_t)r;
        if (r > 0 && cdp__poll_over(c->g->w)) break;
    }
    if (r < 0) {
        const cdp_error why = *cdp_last_error();
        c->g->w->poll_until_ns = 0; /* all of it, whatever the budget */
        /* still receive bodies that arrived before the sender left */
        while (peer->bulk && cdp__flow_move(peer->bulk, 1)) {
        }
        cdp__channel_lose(c, p, &why);
        return true;
    }
    if (!peer->reading || s->body_left) return false;
    cdp__channel_deliver(c, p);
    return true;
}

/* ---- telling the program */

CDP__PRIVATE bool cdp__channel_on_offer(cdp_channel *c) {
    cdp__offer **at = &c->offers, *o;
    while (*at && !(*at)->over)
        at = &(*at)->next;
    if (!*at) return false;
    o = *at;
    *at = o->next;
    cdp__channel_call(c);
    if (o->receive && c->desc.fetched) c->desc.fetched(c->desc.user, o->peer, o->handle, o->status);
    if (!o->receive && c->desc.released)
        c->desc.released(c->desc.user, o->peer, o->handle, o->status);
    cdp__channel_called(c);
    cdp__free(c->g->os, o);
    return true;
}

CDP__PRIVATE bool cdp__channel_on_peer(cdp_channel *c, uint32_t p) {
    cdp__channel_peer *peer = &c->peers[p];
    cdp__stream *s = &c->streams[p];
    if (peer->lost && !peer->lost_reported) {
        peer->lost_reported = true;
        cdp__channel_call(c);
        if (c->desc.lost) c->desc.lost(c->desc.user, p, &peer->why);
        cdp__channel_called(c);
        return true;
    }
    if (!peer->starved || peer->lost) return false;
    if (s->sent - s->acked > c->g->w->window_bytes / 2) {
        /* ask once more: messages sent after the last request may have used up the credit */
        if (!s->asking && (s->asking = cdp__stream_send_control(c->g->w, s, CDP__MESSAGE_ASK)))
            (void)cdp__port_flush(c->g->w, s->peer);
        return false;
    }
    peer->starved = false;
    cdp__channel_call(c);
    if (c->desc.credit) c->desc.credit(c->desc.user, p);
    cdp__channel_called(c);
    return true;
}

CDP__PRIVATE bool cdp__channel_on_time(cdp_channel *c) {
    if (c->timer_ns == CDP__NEVER || cdp__now(c->g->os) < c->timer_ns) return false;
    c->timer_ns = CDP__NEVER;
    cdp__channel_call(c);
    if (c->desc.timer) c->desc.timer(c->desc.user);
    cdp__channel_called(c);
    return true;
}

/* Offers of a failed group end with its error, because the group moves no more bodies. */
CDP__PRIVATE void cdp__channel_group_failed(cdp_channel *c) {
    cdp__offer *o;
    for (o = c->offers; o; o = o->next) {
        if (o->over || c->g->health != CDP__FAILED || c->g->failure.settle_ns != CDP__NEVER)
            continue;
        o->over = true;
        o->status = c->g->failure.error.status;
    }
}

/* Advances one channel by one step. True: something happened, maybe with the lock released. */
CDP__PRIVATE bool cdp__channel_step(cdp_channel *c) {
    uint32_t p;
    if (c->g->health != CDP__HEALTHY) cdp__channel_group_failed(c);
    if (cdp__channel_on_offer(c) || cdp__channel_on_time(c)) return true;
    for (p = 0; p < c->g->desc.world_size; ++p) {
        if (p == c->g->desc.rank) continue;
        if (!c->peers[p].lost && cdp__channel_read(c, p)) return true;
        if (cdp__channel_on_peer(c, p)) return true;
    }
    return false;
}

/* Frees a channel, its streams and its offers. */
CDP__PRIVATE CDP__COLD void cdp__channel_free(cdp_channel *c) {
    cdp__world *w = c->g->w;
    cdp_channel **at = &w->channels;
    uint32_t p;
    while (*at && *at != c)
        at = &(*at)->next;
    if (*at) *at = c->next;
    cdp__world_record_closed(w, c->id);
    for (p = 0; c->streams && c->peers && p < c->g->desc.world_size; ++p) {
        if (c->peers[p].bulk) cdp__flow_drop(c->peers[p].bulk);
        if (c->streams[p].channel) cdp__stream_close(w, &c->streams[p], p != c->g->desc.rank);
        cdp__free(w->os, c->peers[p].body);
    }
    while (c->offers) {
        cdp__offer *o = c->offers;
        c->offers = o->next;
        cdp__free(w->os, o);
    }
    if (w->control_queued) cdp__world_send_queued(w);
    cdp__free(w->os, c->streams);
    cdp__free(w->os, c->peers);
    cdp__ended_add(c);
    cdp__free(w->os, c);
}

CDP__PRIVATE void cdp__channel_over(cdp_channel *c) {
    if (c->left_over && !c->calling && !c->waiting) cdp__channel_free(c);
}

/* Polls all channels of the world, until one callback has run. */
CDP__PRIVATE cdp__advance cdp__channels_poll(cdp__world *w) {
    cdp_channel *c;
    for (c = w->channels; c && !w->calling; c = c->next) {
        if (c->closing || !cdp__channel_step(c)) continue;
        cdp__channel_over(c);
        return CDP__MOVED;
    }
    return CDP__BLOCKED;
}

CDP__PRIVATE uint64_t cdp__channels_deadline(const cdp__world *w) {
    uint64_t at = CDP__NEVER;
    const cdp_channel *c;
    /* while a callback runs no timer can fire; its return wakes the sleeping thread */
    for (c = w->calling ? NULL : w->channels; c; c = c->next)
        at = cdp__min(at, c->timer_ns);
    return at;
}

#endif /* CDP_NO_CHANNELS */

#endif /* CDP_SRC_CHANNEL_PROGRESS_H */
