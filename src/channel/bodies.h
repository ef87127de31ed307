/* channel/bodies.h - bodies that stay with the sender

   Knows: offers, flows. Promises: an offered body is returned to the caller exactly once. */
#ifndef CDP_SRC_CHANNEL_BODIES_H
#define CDP_SRC_CHANNEL_BODIES_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../group/collectives_api.h"
#include "../group/messages_api.h"
#include "channel_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "../message/header.h"
#include "../message/stream.h"
#include "../message/port.h"
#include "../group/state.h"
#include "../group/flows.h"
#include "../group/progress.h"
#include "channel.h"

#ifndef CDP_NO_CHANNELS

CDP__PRIVATE void cdp__offer_moved(void *user, uint64_t start_ns, uint64_t end_ns) {
    cdp__offer *o = (cdp__offer *)user;
    (void)start_ns;
    (void)end_ns;
    o->over = true;
    o->status = CDP_OK;
}

/* The flow that moves bodies to and from rank p, created on first use. NULL: out of memory. */
CDP__PRIVATE cdp__flow *cdp__channel_bulk(cdp_channel *c, uint32_t p) {
    cdp__channel_peer *peer = &c->peers[p];
    if (peer->bulk) return peer->bulk;
    peer->bulk =
        cdp__flow_make(c->g, cdp__channel_id(c->g, c->desc.number, 1), p, CDP__TAG_BARRIER);
    if (peer->bulk) {
        peer->bulk->owner = c;
        peer->bulk->failed = cdp__channel_flow_failed;
    }
    return peer->bulk;
}

/* Begins to send or receive the body of an offer. */
CDP__PRIVATE cdp_status cdp__offer_move(cdp__offer *o) {
    cdp_channel *c = o->channel;
    cdp__flow *flow = cdp__channel_bulk(c, o->peer);
    cdp_transfer t;
    cdp_work work;
    memset(&t, 0, sizeof t);
    t.receive = o->receive;
    t.data = o->data;
    t.count = o->bytes;
    t.dtype = CDP_DTYPE_U8;
    t.timeout_ms = CDP_NO_TIMEOUT;
    o->moving = true;
    if (!flow) return cdp__fail_nomem("the transfer of an offered body", sizeof *flow);
    return cdp__flow_post(flow, &t, cdp__offer_moved, o, &work);
}

CDP__PRIVATE bool cdp__channel_answer(cdp_channel *c, uint32_t p, const cdp__head *h) {
    cdp__offer *o = c->offers;
    while (o && (o->receive || o->peer != p || o->handle != h->seq || o->moving || o->over))
        o = o->next;
    if (!o) return false;
    c->streams[p].slack -= CDP__HEAD_BYTES;
    if (h->dtype == CDP__CHANNEL_FETCH) {
        if (h->count != o->bytes) return false;
        o->status = cdp__offer_move(o);
        if (o->status != CDP_OK) cdp__channel_lose(c, p, cdp_last_error());
        return true;
    }
    o->over = true;
    o->status = CDP_ERR_ABORTED;
    return h->dtype == CDP__CHANNEL_REFUSE;
}

/* Sends FETCH or REFUSE. These answers may exceed the window: they are no longer than the offer. */
CDP__PRIVATE cdp_status cdp__channel_reply(
    cdp_channel *c, uint32_t p, uint8_t what, uint64_t handle, uint64_t bytes) {
    cdp__stream *s = &c->streams[p];
    cdp__head h;
    memset(&h, 0, sizeof h);
    h.type = CDP__MESSAGE_DATA;
    h.kind = CDP_COLL_SEND;
    h.dtype = what;
    h.channel = s->channel;
    h.ack = (uint32_t)s->taken;
    h.seq = handle;
    h.count = bytes;
    if (!cdp__control_add(c->g->w, s->peer, &h, NULL))
        return cdp__fail_nomem("the answer to an offer", sizeof h);
    s->sent += CDP__HEAD_BYTES;
    ++s->put;
    (void)cdp__port_flush(c->g->w, s->peer);
    return CDP_OK;
}

CDP_API cdp_status cdp_channel_fetch(
    cdp_channel *c, uint32_t peer, uint64_t handle, void *to, uint64_t bytes) {
    cdp__offer *o = NULL;
    cdp_status st = cdp__channel_alive(c, "cdp_channel_fetch");
    if (st != CDP_OK) return st;
    if (!handle) return cdp__missing("cdp_channel_fetch", "handle");
    if (!to) return cdp__missing("cdp_channel_fetch", "to");
    if (!bytes) return cdp__missing("cdp_channel_fetch", "bytes");
    cdp__enter(c->g);
    st = cdp__channel_peer_check(c, "cdp_channel_fetch", peer);
    if (st == CDP_OK && !(o = cdp__offer_make(c, peer, to, bytes))) st = CDP_ERR_NOMEM;
    if (st == CDP_OK) {
        o->receive = true;
        o->handle = handle;
        o->next = c->offers;
        c->offers = o;
        st = cdp__offer_move(o);
        if (st == CDP_OK) st = cdp__channel_reply(c, peer, CDP__CHANNEL_FETCH, handle, bytes);
        /* the receive cannot be withdrawn any more */
        if (st != CDP_OK) cdp__channel_lose(c, peer, cdp_last_error());
        st = CDP_OK;
    }
    return cdp__channel_leave(c, st);
}

CDP_API cdp_status cdp_channel_refuse(cdp_channel *c, uint32_t peer, uint64_t handle) {
    cdp_status st = cdp__channel_alive(c, "cdp_channel_refuse");
    if (st != CDP_OK) return st;
    if (!handle) return cdp__missing("cdp_channel_refuse", "handle");
    cdp__enter(c->g);
    st = cdp__channel_peer_check(c, "cdp_channel_refuse", peer);
    if (st == CDP_OK) st = cdp__channel_reply(c, peer, CDP__CHANNEL_REFUSE, handle, 0);
    return cdp__channel_leave(c, st);
}

#endif /* CDP_NO_CHANNELS */

#endif /* CDP_SRC_CHANNEL_BODIES_H */
