/* failure/waits.h - which rank waits for which other rank

   Knows: operations and messages of all groups, and their positions. Promises: long waits become
   events of >>failure/blame, and its questions and answers become messages. */
#ifndef CDP_SRC_FAILURE_WAITS_H
#define CDP_SRC_FAILURE_WAITS_H

#include "../base/config.h"
#include "../message/transport_api.h"
#include "../group/group_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../message/header.h"
#include "records.h"
#include "chains.h"
#include "blame.h"
#include "../message/stream.h"
#include "../message/port.h"
#include "../message/receive.h"
#include "../collective/executor.h"
#include "../group/state.h"
#include "../group/ranks.h"

#define CDP__FAILURE_REPORTS 8u

/* True if a thread of the program waits for an operation of g, or for one that starts after it. */
CDP__PRIVATE bool cdp__group_awaited(const cdp_group *g) {
    const cdp_group *x;
    if (g->queue.waiters) return true;
    for (x = g->w->groups; x; x = x->next)
        if (x->queue.waiters && x->queue.used && cdp__group_head(x)->after.group == g) return true;
    return false;
}

/* Reports that a receive from any rank waits for rank p. `set` is a number that the waits of this
   receive for all ranks have in common. */
CDP__PRIVATE void cdp__wait_any_long(const cdp_group *g, uint64_t set, const cdp__position *at,
    uint32_t p, uint64_t since_ns, bool caller) {
    cdp__failure_event v;
    memset(&v, 0, sizeof v);
    v.type = CDP__FAILURE_BLOCKED;
    v.time_ns = cdp__now(g->os);
    v.at = *at;
    v.from = cdp__world_rank(g, p);
    v.set = set;
    v.since_ns = since_ns;
    v.caller = caller;
    /* a peer that was never reached has most likely left before */
    v.left = g->streams[p].left || (g->peers[p].lost && !cdp__peer_used(g, p));
    (void)cdp__failure_step(&g->w->failure, &v);
}

/* Reports a long wait for `peer`. `compare`: send it this rank's calls, too. */
CDP__PRIVATE void cdp__wait_long(
    cdp_group *g, const cdp__position *at, uint32_t peer, uint64_t since_ns, bool compare) {
    cdp__failure_event v;
    memset(&v, 0, sizeof v);
    v.type = CDP__FAILURE_BLOCKED;
    v.time_ns = cdp__now(g->os);
    v.at = *at;
    v.from = peer;
    v.since_ns = since_ns;
    v.caller = cdp__group_awaited(g);
    v.compare = compare;
    (void)cdp__failure_step(&g->w->failure, &v);
}

/* Of each rank that this one waits for: whether its host acknowledges what is sent. */
CDP__PRIVATE CDP__COLD void cdp__waits_unacked(cdp__world *w) {
    const cdp_transport *t = &w->transport;
    uint32_t i;
    bool changed = false;
    for (i = 0; i < w->failure.edge_room && t->failure.unacked && w->failure.waited; ++i) {
        cdp__failure_edge *e = &w->failure.edges[i];
        const bool unacked = e->used && e->peer != w->rank && t->failure.unacked(t->self, e->peer);
        changed |= unacked != e->unacked;
        e->unacked = unacked;
    }
    if (changed) cdp__failure_update(&w->failure);
}

/* Reports that a channel has reached this position. */
CDP__PRIVATE void cdp__wait_ended(cdp_group *g, uint64_t channel, uint64_t seq, uint32_t round) {
    cdp__failure_event v;
    memset(&v, 0, sizeof v);
    v.type = CDP__FAILURE_MOVING;
    v.time_ns = cdp__now(g->os);
    v.at.channel = channel;
    v.at.seq = seq;
    v.at.round = round;
    (void)cdp__failure_step(&g->w->failure, &v);
}

/* A rank that takes part in a new operation did not leave because of a failure. */
CDP__PRIVATE void cdp__rank_continued(cdp__world *w, uint32_t rank, uint64_t begun_ns) {
    cdp__failure_event v;
    memset(&v, 0, sizeof v);
    v.type = CDP__FAILURE_CONTINUED;
    v.from = rank;
    v.begun_ns = begun_ns;
    (void)cdp__failure_step(&w->failure, &v);
}

CDP__PRIVATE void cdp__group_continued(cdp_group *g, uint64_t begun_ns) {
    uint32_t i;
    for (i = 0; i < g->w->failure.report_room; ++i) {
        const cdp__failure_report *will = &g->w->failure.reports[i];
        if (will->used && cdp_rank_of_world(g, will->rank) < g->desc.world_size)
            cdp__rank_continued(g->w, will->rank, begun_ns);
    }
}

/* Adds the calls of the group up to number `seq`, which the receiver compares with its own. */
CDP__PRIVATE void cdp__wait_calls(const cdp__world *w, cdp__wait_message *m) {
    const cdp_group *g = cdp__group_of_channel(w, m->at.channel);
    uint64_t seq = m->at.seq;
    for (; g && seq && m->call_count < CDP__WAIT_CALLS; --seq) {
        if (cdp__past_at(g, seq)->call.seq != seq) return;
        m->calls[m->call_count++] = cdp__fingerprint_of(&cdp__past_at(g, seq)->call);
    }
}

CDP__PRIVATE void cdp__world_send_control(
    cdp__world *w, uint32_t peer, cdp__message_type type, const uint8_t *body, uint32_t bytes) {
    cdp__head h;
    memset(&h, 0, sizeof h);
    h.type = (uint8_t)type;
    h.channel = CDP__WORLD_CHANNEL;
    h.bytes = bytes;
    if (cdp__control_add(w, peer, &h, body)) (void)cdp__port_flush(w, peer);
}

CDP__PRIVATE CDP__COLD void cdp__world_answer(cdp__world *w) {
    uint8_t body[CDP__WAIT_BYTES];
    uint32_t p, what;
    for (p = 0; p < w->size && w->failure.outbox; ++p) {
        cdp__wait_message wait;
        cdp__answer_message answer;
        while ((what = cdp__failure_take(&w->failure, p, &wait, &answer)) != 0) {
            if (p == w->rank) continue;
            if (what == 1) cdp__wait_calls(w, &wait);
            if (what == 1)
                cdp__world_send_control(
                    w, p, CDP__MESSAGE_WAIT, body, cdp__wait_encode(&wait, body));
            else
                cdp__world_send_control(
                    w, p, CDP__MESSAGE_ENDPOINT, body, cdp__answer_encode(&answer, body));
        }
    }
    w->failure.outbox = false;
}

/* An operation or a message is done: ranks that wait for this one receive the new end of the
   chain. */
CDP__PRIVATE void cdp__wait_done(cdp_group *g, uint64_t channel, uint64_t next_seq) {
    cdp__wait_ended(g, channel, next_seq, 0);
    cdp__world_answer(g->w);
}

/* Reads from all ranks, for their WAIT and ENDPOINT messages. */
CDP__PRIVATE CDP__COLD void cdp__world_read_all(cdp__world *w) {
    const cdp_transport *t = &w->transport;
    uint32_t p;
    for (p = 0; p < w->size; ++p) {
        const cdp__port *port = &w->ports[p];
        const cdp__stream *s = port->rx_stream;
        if (p == w->rank || (s && s->body_left && port->rx_left)) continue;
        if (!s) s = cdp__stream_find(w, CDP__WORLD_CHANNEL, p);
        /* a rank that has left may have sent the reason, which is still unread */
        if (!port->used
            && (t->failure.linked ? !t->failure.linked(t->self, p) : !s || (!s->put && !s->got)))
            continue;
        (void)cdp__port_pump(w, p, NULL);
    }
}

/* True if this rank has already sent what rank `peer` of the world waits for at `at`. */
CDP__PRIVATE bool cdp__group_passed(const cdp_group *g, uint32_t peer, const cdp__position *at) {
    const cdp__exec *x = &g->exec;
    uint32_t i;
    if (g->queue.completed >= at->seq) return true;
    if (!x->running || x->task.call.seq != at->seq || x->round != at->round)
        return x->running && x->task.call.seq == at->seq && x->round > at->round;
    for (i = 0; i < x->transfer_count; ++i)
        if (x->transfers[i].s->peer == peer && !x->transfers[i].done) return false;
    return true;
}

CDP__PRIVATE bool cdp__world_passed(const cdp__world *w, int32_t peer, const cdp__position *at) {
    const cdp_group *g = cdp__group_of_channel(w, at->channel);
    uint32_t way;
    if (peer < 0 || !at->seq) return false; /* operations count from 1 */
    if (g) return cdp__group_passed(g, (uint32_t)peer, at);
    for (g = w->groups; g; g = g->next) {
        const cdp__flow *flow;
        for (flow = g->messages.flows; flow; flow = flow->next)
            for (way = 0; way < 2 && flow->s.peer == (uint32_t)peer; ++way)
                if (cdp__flow_channel(flow, way == 1) == at->channel)
                    return flow->first[way] ? flow->first[way]->call.seq > at->seq
                                            : flow->count[way] >= at->seq;
    }
    return false;
}

#endif /* CDP_SRC_FAILURE_WAITS_H */
