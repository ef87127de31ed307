/* channel/channel.h - ordered messages to each rank

   Knows: streams, flows (for offered bodies), the world's lock. Promises: messages of a rank are
   delivered in order, one at a time, without the lock; losing one rank fails no group and no
   other rank. */
#ifndef CDP_SRC_CHANNEL_CHANNEL_H
#define CDP_SRC_CHANNEL_CHANNEL_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../base/error_api.h"
#include "../message/transport_api.h"
#include "../group/group_api.h"
#include "channel_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/ended.h"
#include "../base/text.h"
#include "../base/bytes.h"
#include "../base/hash.h"
#include "../message/header.h"
#include "../message/stream.h"
#include "../message/port.h"
#include "../message/send.h"
#include "../message/transfer.h"
#include "../group/state.h"
#include "../group/flows.h"
#include "../group/deferred.h"
#include "../group/progress.h"

#ifndef CDP_NO_CHANNELS

#define CDP__CHANNEL_INLINE 0u /* `dtype` of a message's header: the body follows */
#define CDP__CHANNEL_OFFER 1u  /* a handle and a length follow */
#define CDP__CHANNEL_FETCH 2u  /* answers an offer; `a` is its handle */
#define CDP__CHANNEL_REFUSE 3u /* answers an offer; `a` is its handle */

typedef struct cdp__offer {
    struct cdp__offer *next;
    cdp_channel *channel;
    uint64_t handle;
    uint32_t peer;
    void *data;
    uint64_t bytes;
    bool receive; /* a body that this rank fetches */
    bool moving;  /* its transfer has begun */
    bool over;    /* `status` must be reported to the program */
    cdp_status status;
} cdp__offer;

/* A channel's state for one rank. */
typedef struct cdp__channel_peer {
    cdp__head head; /* header of the message being read */
    bool reading;
    uint8_t *body;
    uint64_t room, got;
    bool starved; /* a send was refused for lack of credit */
    bool lost, lost_reported;
    cdp_error why;
    cdp__flow *bulk; /* moves offered bodies; created with the first one */
} cdp__channel_peer;

struct cdp_channel {
    cdp_group *g;
    cdp_channel *next; /* in world->channels */
    uint64_t id;
    cdp__stream *streams; /* one per rank */
    cdp__channel_peer *peers;
    cdp__offer *offers;
    uint64_t handles; /* number of handles given out */
    uint64_t timer_ns;
    uint64_t called;        /* counts callbacks */
    uint32_t waiting;       /* threads in cdp_channel_wait() */
    bool calling;           /* a callback is running */
    uint64_t poll_until_ns; /* during a callback: that of the world before it */
    bool closing;           /* no new callback may begin */
    bool left_over;         /* closed inside a callback: the last thread that uses it frees it */
    cdp_channel_desc desc;
};

CDP__PRIVATE uint64_t cdp__channel_id(const cdp_group *g, uint32_t number, uint32_t what) {
    uint8_t id[16];
    cdp__put_u64(id, g->channel);
    cdp__put_u32(id + 8, number);
    cdp__put_u32(id + 12, 0x6368616eu + what);
    return cdp__hash(CDP__HASH_START, id, sizeof id) | 2;
}

/* A body that the peer has read counts as fetched, although the peer has left by the time that this
   rank finds its answer. */
CDP__PRIVATE void cdp__channel_settle(cdp__flow *bulk) {
    cdp__post *post = bulk->first[0];
    if (!post || !post->x.remote || !post->x.announced || bulk->s.exposed) return;
    if (bulk->g->health != CDP__HEALTHY) return; /* its offers have ended with the group's error */
    if (cdp__transfer_await(bulk->g->w, &post->x) > 0 && post->x.done) cdp__post_complete(bulk, 0);
}

/* The channel loses rank p; the reason is this thread's last error. Sends LEAVE, so that p does
   not wait: this rank reads no more of its messages. */
CDP__PRIVATE CDP__COLD void cdp__channel_lose(cdp_channel *c, uint32_t p, const cdp_error *why) {
    cdp__channel_peer *peer = &c->peers[p];
    cdp__offer *o;
    if (peer->lost) return;
    peer->lost = true;
    peer->why = *why;
    c->streams[p].dropping = true;
    if (!c->streams[p].left)
        (void)cdp__stream_send_control(c->g->w, &c->streams[p], CDP__MESSAGE_LEAVE);
    if (peer->bulk) {
        cdp__channel_settle(peer->bulk);
        cdp__flow_stop(peer->bulk); /* the caller owns the bodies in flight again */
        peer->bulk->s.dropping = true;
    }
    for (o = c->offers; o; o = o->next) {
        if (o->peer != p || o->over) continue;
        o->over = true;
        o->status = CDP_ERR_PEER_LOST;
    }
}

/* A transfer of an offered body has failed: only this channel loses the rank. */
CDP__PRIVATE void cdp__channel_flow_failed(cdp__flow *flow, const cdp_error *why) {
    cdp__channel_lose(flow->owner, flow->rank, why);
}

/* ---- callbacks */

/* Releases the lock for a callback of c; cdp__channel_called() takes it again. */
CDP__PRIVATE CDP__ONE_COPY void cdp__channel_call(cdp_channel *c) {
    cdp__world *w = c->g->w;
    c->calling = true;
    c->poll_until_ns = w->poll_until_ns; /* of this thread's poll, not of others meanwhile */
    w->calling = c->g;
    w->poll_until_ns = 0;
    *cdp__inside() = true;
    cdp_lock_release(&w->lock);
}

CDP__PRIVATE void cdp__channel_called(cdp_channel *c) {
    cdp__world *w = c->g->w;
    cdp__enter(c->g); /* takes precedence over threads that only poll */
    *cdp__inside() = false;
    w->poll_until_ns = c->poll_until_ns;
    w->calling = NULL;
    c->calling = false;
    ++c->called;
    cdp__world_wake(w);
}

/* ---- sending */

CDP__PRIVATE cdp_status cdp__channel_peer_check(
    const cdp_channel *c, const char *call, uint32_t peer) {
    if (peer >= c->g->desc.world_size || peer == c->g->desc.rank)
        return cdp__fail(
            CDP_ERR_INVALID, "%s: %u is no other rank of the channel's group", call, peer);
    if (!c->peers[peer].lost) return CDP_OK;
    return cdp__fail_peer(CDP_ERR_PEER_LOST, c->streams[peer].peer, c->peers[peer].why.sys_errno,
        "%s: rank %u is lost: %s", call, c->streams[peer].peer, c->peers[peer].why.text);
}

/* Queues one message; its body is copied. Lock held. */
CDP__PRIVATE cdp_status cdp__channel_put(
    cdp_channel *c, uint32_t p, cdp__head *h, const void *body) {
    cdp__world *w = c->g->w;
    cdp__stream *s = &c->streams[p];
    h->type = CDP__MESSAGE_DATA;
    h->kind = CDP_COLL_SEND;
    h->channel = s->channel;
    h->ack = (uint32_t)s->taken;
    if (s->sent - s->acked + CDP__HEAD_BYTES + h->bytes > w->window_bytes) {
        c->peers[p].starved = true;
        s->asking = s->asking || cdp__stream_send_control(w, s, CDP__MESSAGE_ASK);
        (void)cdp__port_flush(w, s->peer);
        return CDP_PENDING;
    }
    if (cdp__stream_put(w, s, h, body)) return CDP_OK;
    if (!cdp__control_add(w, s->peer, h, (const uint8_t *)body))
        return cdp__fail_nomem("a message of a channel", h->bytes);
    s->sent += CDP__HEAD_BYTES + h->bytes;
    ++s->put;
    (void)cdp__port_flush(w, s->peer);
    return CDP_OK;
}

CDP__PRIVATE cdp__head cdp__channel_head(const cdp_channel_message *m) {
    cdp__head h;
    memset(&h, 0, sizeof h);
    h.root = m->kind;
    h.round = m->aux;
    h.seq = m->a;
    h.count = m->b;
    h.bytes = (uint32_t)m->bytes;
    return h;
}

/* Releases the lock. Wakes the sleeping thread if messages were queued that it must send. */
CDP__PRIVATE cdp_status cdp__channel_leave(cdp_channel *c, cdp_status st) {
    if (c->g->w->control_queued && c->g->w->sleeping)
        c->g->w->transport.wake(c->g->w->transport.self);
    cdp__leave(c->g);
    return st;
}

/* Refuses no channel, and one that was closed. */
CDP__PRIVATE cdp_status cdp__channel_alive(const cdp_channel *c, const char *call) {
    if (!c) return cdp__missing(call, "channel");
    return cdp__ended(c) ? cdp__fail(CDP_ERR_STATE, "%s: this channel was closed", call) : CDP_OK;
}

CDP_API cdp_status cdp_channel_send(cdp_channel *c, const cdp_channel_message *m) {
    cdp__head h;
    cdp_status st = cdp__channel_alive(c, "cdp_channel_send");
    if (st != CDP_OK) return st;
    if (!m) return cdp__missing("cdp_channel_send", "message");
    if (m->bytes && !m->body) return cdp__missing("cdp_channel_send", "message.body");
    if (m->bytes > c->g->w->window_bytes / 4)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_channel_send: a body of %llu bytes; at most %u are copied, use "
            "cdp_channel_offer()",
            (unsigned long long)m->bytes, (unsigned)(c->g->w->window_bytes / 4));
    h = cdp__channel_head(m);
    cdp__enter(c->g);
    st = cdp__channel_peer_check(c, "cdp_channel_send", m->peer);
    if (st == CDP_OK) st = cdp__channel_put(c, m->peer, &h, m->body);
    return cdp__channel_leave(c, st);
}

CDP__PRIVATE cdp__offer *cdp__offer_make(
    cdp_channel *c, uint32_t peer, void *data, uint64_t bytes) {
    cdp__offer *o = (cdp__offer *)cdp__alloc_zero(c->g->os, sizeof *o);
    if (!o) {
        (void)cdp__fail_nomem("an offered body", sizeof *o);
        return NULL;
    }
    o->channel = c;
    o->peer = peer;
    o->data = data;
    o->bytes = bytes;
    return o;
}

CDP_API cdp_status cdp_channel_offer(
    cdp_channel *c, const cdp_channel_message *m, uint64_t *handle) {
    uint8_t body[CDP__REMOTE_BYTES];
    cdp__offer *o = NULL;
    cdp__head h;
    cdp_status st = cdp__channel_alive(c, "cdp_channel_offer");
    if (st != CDP_OK) return st;
    if (!m) return cdp__missing("cdp_channel_offer", "message");
    if (!handle) return cdp__missing("cdp_channel_offer", "handle");
    if (!m->body) return cdp__missing("cdp_channel_offer", "message.body");
    if (!m->bytes) return cdp__missing("cdp_channel_offer", "message.bytes");
    h = cdp__channel_head(m);
    h.dtype = CDP__CHANNEL_OFFER;
    h.bytes = CDP__REMOTE_BYTES;
    cdp__enter(c->g);
    st = cdp__channel_peer_check(c, "cdp_channel_offer", m->peer);
    if (st == CDP_OK && !(o = cdp__offer_make(c, m->peer, (void *)(uintptr_t)m->body, m->bytes)))
        st = CDP_ERR_NOMEM;
    if (st == CDP_OK) {
        cdp__put_u64(body, c->handles + 1);
        cdp__put_u64(body + 8, m->bytes);
        st = cdp__channel_put(c, m->peer, &h, body);
    }
    if (st == CDP_OK) {
        c->streams[m->peer].slack += CDP__HEAD_BYTES;
        o->handle = *handle = ++c->handles;
        o->next = c->offers;
        c->offers = o;
    } else {
        cdp__free(c->g->os, o);
    }
    return cdp__channel_leave(c, st);
}

#endif /* CDP_NO_CHANNELS */

#endif /* CDP_SRC_CHANNEL_CHANNEL_H */
