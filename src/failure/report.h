/* failure/report.h - reports a failure to the peers

   Knows: groups that have failed, and their streams. Promises: every peer that can be reached in
   time receives the record, after any half-sent message; messages of peers are read until then,
   so that no reset overtakes the record. */
#ifndef CDP_SRC_FAILURE_REPORT_H
#define CDP_SRC_FAILURE_REPORT_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../base/log_api.h"
#include "../message/transport_api.h"
#include "../group/group_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "../message/header.h"
#include "records.h"
#include "chains.h"
#include "../message/stream.h"
#include "../message/port.h"
#include "../message/receive.h"
#include "../message/send.h"
#include "../message/transfer.h"
#include "../collective/executor.h"
#include "../group/state.h"
#include "../group/ranks.h"

/* Breaks the group, and prepares a FAILURE for every peer that it has exchanged messages with. */
CDP__PRIVATE void cdp__group_publish(cdp_group *g, const cdp__failure_record *r) {
    const uint64_t now = cdp__now(g->os);
    const uint64_t share_ms = cdp__failure_share_ns(r, CDP__REPORT_MS) / CDP__MS;
    uint64_t answer_ms = CDP__ANSWER_MS;
    uint32_t p;
    if (r->status == CDP_ERR_TIMEOUT) answer_ms = cdp__max(answer_ms, share_ms);
    cdp__group_revoke(g);
    g->failure.cause_bytes = cdp__failure_encode(r, g->failure.cause);
    for (p = 0; p < g->desc.world_size; ++p) {
        cdp__peer *peer = &g->peers[p];
        if (p == g->desc.rank) continue;
        /* in a group of some ranks all peers are told: the transport only reports failures of
           the world */
        peer->used =
            cdp__peer_used(g, p) || cdp__group_linked(g, p) || g->channel != CDP__WORLD_CHANNEL;
        peer->report_due = peer->used;
        g->streams[p].dropping = true;
    }
    g->health = CDP__FAILED;
    g->failure.settle_ns = now + CDP__REPORT_MS * CDP__MS;
    g->failure.answer_ns = now + answer_ms * CDP__MS;
    if (g->channel == CDP__WORLD_CHANNEL && g->w->transport.failure.publish)
        g->w->transport.failure.publish(
            g->w->transport.self, g->failure.cause, g->failure.cause_bytes);
    if (cdp__backend_of(g)) g->backend->failed(g->backend->self, &g->failure.error);
    cdp__group_activate(g);
    cdp__log(&g->desc.logger, CDP_LOG_DEBUG, g->desc.rank, "%s", g->failure.error.text);
}

/* Sends the record to ranks outside the group, as this rank's last will: it may leave soon. */
CDP__PRIVATE void cdp__group_report_outside(cdp_group *g) {
    const cdp_transport *t = &g->w->transport;
    cdp__head h;
    uint32_t p;
    memset(&h, 0, sizeof h);
    h.type = CDP__MESSAGE_FAILURE;
    h.channel = CDP__WORLD_CHANNEL;
    h.bytes = g->failure.cause_bytes;
    for (p = 0; p < g->w->size && t->failure.linked; ++p) {
        cdp__stream *s = cdp__stream_find(g->w, CDP__WORLD_CHANNEL, p);
        if (!s || cdp_rank_of_world(g, p) < g->desc.world_size || !t->failure.linked(t->self, p))
            continue;
        h.ack = (uint32_t)s->taken;
        if (!cdp__control_add(g->w, p, &h, g->failure.cause)) continue;
        s->sent += CDP__HEAD_BYTES + h.bytes;
        (void)cdp__port_flush(g->w, p);
    }
}

/* Reads and drops what p still sends, up to its FAILURE. A process that exits with unread data
   resets its connections, and that reset could overtake the FAILURE that it has sent. */
CDP__PRIVATE void cdp__group_drain(cdp_group *g, uint32_t p) {
    if (!g->peers[p].answered && cdp__port_pump(g->w, g->streams[p].peer, NULL) < 0)
        g->peers[p].answered = true;
}

/* While a failure settles: reads from all peers, which may have sent the cause. */
CDP__PRIVATE void cdp__group_drain_all(cdp_group *g) {
    uint32_t p;
    for (p = 0; p < g->desc.world_size && g->health == CDP__SETTLING; ++p)
        if (cdp__peer_used(g, p)) cdp__group_drain(g, p);
}

/* Sends the rest of a message, until the transport accepts no more: only then does the transport
   report new room. */
CDP__PRIVATE CDP__COLD int64_t cdp__group_finish_one(
    cdp__world *w, cdp__stream *s, cdp__transfer *t) {
    cdp_iov v[2];
    int64_t r;
    do {
        r = w->transport.send(w->transport.self, s->peer, v,
            cdp__stream_unsent(w, s, t->data ? t->data + t->moved : NULL, v));
        if (r > 0) t->moved += cdp__stream_sent(w, s, (uint64_t)r);
    } while (r > 0 && w->ports[s->peer].tx_stream == s && !cdp__poll_over(w));
    return r;
}

/* Completes a half-sent message of this group to p with its true bytes, because the receiver's
   operation may need only these. The buffer is still valid: failed works stay PENDING until
   telling has ended. > 0: complete, or there was none. */
CDP__PRIVATE int64_t cdp__group_finish(cdp_group *g, uint32_t p) {
    cdp__stream *s = &g->streams[p];
    cdp__exec *x = &g->exec;
    uint32_t i;
    int64_t r = 1;
    for (i = 0; i < x->transfer_count && g->w->ports[s->peer].tx_stream == s && r > 0; ++i) {
        cdp__transfer *t = &x->transfers[i];
        if (t->receive || t->s != s) continue;
        r = cdp__group_finish_one(g->w, s, t);
    }
    return g->w->ports[s->peer].tx_stream == s && r > 0 ? 0 : r;
}

/* The same for half-sent messages of flows. */
CDP__PRIVATE int64_t cdp__flows_finish(cdp_group *g, uint32_t p) {
    const uint32_t peer = g->streams[p].peer;
    cdp__flow *flow;
    int64_t r = 1;
    for (flow = g->messages.active; flow && r > 0; flow = flow->next_active) {
        cdp__transfer *t = flow->first[0] ? &flow->first[0]->x : NULL;
        if (!t || g->w->ports[peer].tx_stream != &flow->s) continue;
        r = cdp__group_finish_one(g->w, &flow->s, t);
        if (g->w->ports[peer].tx_stream == &flow->s && r > 0) r = 0;
    }
    return r;
}

/* Sends the FAILURE to p. */
CDP__PRIVATE void cdp__group_send_cause(cdp_group *g, uint32_t p) {
    cdp__stream *s = &g->streams[p];
    cdp__head h;
    int64_t r = cdp__group_finish(g, p);
    if (r > 0) r = cdp__flows_finish(g, p);
    if (r < 0) {
        g->peers[p].answered = true; /* p is lost: there is nothing more to send or to wait for */
        g->peers[p].report_due = false;
    }
    if (r <= 0) return;
    memset(&h, 0, sizeof h);
    h.type = CDP__MESSAGE_FAILURE;
    h.channel = g->channel;
    h.ack = (uint32_t)s->taken;
    h.bytes = g->failure.cause_bytes;
    if (!cdp__control_add(g->w, s->peer, &h, g->failure.cause)) return;
    s->sent += CDP__HEAD_BYTES + h.bytes;
    g->peers[p].report_due = false;
    (void)cdp__port_flush(g->w, s->peer);
}

/* True while the FAILURE for p is not sent completely. */
CDP__PRIVATE bool cdp__group_report_unsent(cdp_group *g, uint32_t p) {
    const uint32_t peer = g->streams[p].peer;
    if (g->peers[p].report_due) return true;
    return !g->peers[p].answered && !cdp__port_flush(g->w, peer)
        && g->w->ports[peer].control_at != g->w->ports[peer].control_used;
}

/* The group has failed. True while there is time and a peer has not received the FAILURE, or may
   still answer with its own one (reading it empties the connection, see cdp__group_drain). Peers
   answer at once or never, so answers are awaited for CDP__ANSWER_MS only. */
CDP__PRIVATE bool cdp__group_reporting(cdp_group *g, uint64_t now) {
    bool more = false;
    uint32_t p;
    if (g->failure.settle_ns == CDP__NEVER) return false;
    if (now >= g->failure.answer_ns)
        g->failure.answer_ns = 0; /* over: answer_ns must not be a deadline any longer */
    for (p = 0; p < g->desc.world_size && now < g->failure.settle_ns; ++p) {
        cdp__peer *peer = &g->peers[p];
        /* connected only now */
        if (p != g->desc.rank && !peer->used && cdp__group_linked(g, p))
            peer->used = peer->report_due = true;
        if (peer->used) cdp__group_drain(g, p);
    }
    /* a second loop, because a record that was just read may correct the one to be sent */
    for (p = 0; p < g->desc.world_size && now < g->failure.settle_ns; ++p) {
        const cdp__peer *peer = &g->peers[p];
        if (!peer->used) continue;
        if (peer->report_due) cdp__group_send_cause(g, p);
        if (cdp__group_report_unsent(g, p) || (!peer->answered && now < g->failure.answer_ns))
            more = true;
    }
    return more;
}

#ifndef CDP_NO_GROUPS
/* The same for a peer that is connected only after that time: its operation would wait until its
   deadline. A message to it of which nothing was sent is taken back, since its memory belongs to
   the caller again; after a part of one, nothing may follow. */
CDP__PRIVATE void cdp__group_report_late(cdp_group *g, uint32_t p) {
    const uint32_t peer = g->streams[p].peer;
    cdp__port *port = &g->w->ports[peer];
    const cdp__flow *flow = g->messages.active;
    while (flow && port->tx_stream != &flow->s)
        flow = flow->next_active;
    if ((flow || port->tx_stream == &g->streams[p]) && port->tx_head_left == CDP__HEAD_BYTES)
        cdp__port_abandon(port);
    if (!port->tx_stream) cdp__group_send_cause(g, p);
}

/* Links have come up, perhaps. Tells those peers of failed groups that could not be told before. */
CDP__PRIVATE CDP__COLD void cdp__world_report_late(cdp__world *w) {
    cdp_group *g;
    uint32_t p;
    w->untold = false;
    for (g = w->groups; g; g = g->next) {
        if (g->health != CDP__FAILED || g->failure.settle_ns != CDP__NEVER) continue;
        for (p = 0; p < g->desc.world_size; ++p) {
            cdp__peer *peer = &g->peers[p];
            if (p == g->desc.rank || (peer->used && !peer->report_due)) continue;
            if (cdp__group_linked(g, p)) {
                peer->used = peer->report_due = true;
                cdp__group_report_late(g, p);
            }
            w->untold |= peer->report_due || !peer->used;
        }
    }
}
#endif

#endif /* CDP_SRC_FAILURE_REPORT_H */
