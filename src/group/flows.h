/* group/flows.h - messages from one rank to another

   Knows: groups, transfers. Promises: the k-th send with a tag matches the k-th receive; tags are
   independent of each other and of collectives. */
#ifndef CDP_SRC_GROUP_FLOWS_H
#define CDP_SRC_GROUP_FLOWS_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../base/error_api.h"
#include "group_api.h"
#include "collectives_api.h"
#include "messages_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "../base/bytes.h"
#include "../base/hash.h"
#include "../message/header.h"
#include "../failure/records.h"
#include "../failure/chains.h"
#include "../message/stream.h"
#include "../message/port.h"
#include "../message/receive.h"
#include "../message/send.h"
#include "../message/transfer.h"
#include "../collective/executor.h"
#include "state.h"
#include "records.h"
#include "../failure/waits.h"
#include "../failure/spread.h"

/* A work has ended: wakes other callers, which may wait for it. */
CDP__PRIVATE void cdp__group_ended(cdp_group *g) {
    ++g->w->ended;
    if (g->w->callers > 1) g->os->threads.cond_broadcast(g->os->user, g->w->cond);
}

#ifndef CDP_NO_MESSAGES

/* The channel of all messages of a group with one tag. */
CDP__PRIVATE uint64_t cdp__message_channel(const cdp_group *g, uint32_t tag) {
    uint8_t id[12];
    cdp__put_u64(id, g->channel);
    cdp__put_u32(id + 8, tag);
    return cdp__hash(CDP__HASH_START, id, sizeof id) | 2;
}

/* Returns the flow, or NULL if this rank has not used it yet. */
CDP__PRIVATE cdp__flow *cdp__flow_find(const cdp_group *g, uint32_t rank, uint32_t tag) {
    cdp__stream *s = cdp__stream_find(g->w, cdp__message_channel(g, tag), cdp__world_rank(g, rank));
    return s && !s->unexpected ? (cdp__flow *)s : NULL;
}

/* A new flow from a channel to a rank of g. NULL: out of memory. */
CDP__PRIVATE cdp__flow *cdp__flow_make(
    cdp_group *g, uint64_t channel, uint32_t rank, uint32_t tag) {
    cdp__flow *flow;
    if (!cdp__streams_reserve(g->w, 1)) return NULL;
    flow = (cdp__flow *)cdp__alloc_zero(g->os, sizeof *flow);
    if (!flow) return NULL;
    flow->s.channel = channel;
    flow->s.peer = cdp__world_rank(g, rank);
    (void)cdp__stream_enter(g->w, &flow->s);
    flow->g = g;
    flow->tag = tag;
    flow->rank = rank;
    flow->next = g->messages.flows;
    g->messages.flows = flow;
    return flow;
}

/* The flow of messages with this tag, created on first use. NULL: out of memory. */
CDP__PRIVATE cdp__flow *cdp__flow_open(cdp_group *g, uint32_t rank, uint32_t tag) {
    cdp__flow *flow = cdp__flow_find(g, rank, tag);
    return flow ? flow : cdp__flow_make(g, cdp__message_channel(g, tag), rank, tag);
}

CDP__PRIVATE void cdp__flow_activate(cdp__flow *flow) {
    if (flow->active) return;
    flow->active = true;
    flow->next_active = flow->g->messages.active;
    flow->g->messages.active = flow;
}

/* ---- the pool of posts */

CDP__PRIVATE bool cdp__posts_grow(cdp_group *g) {
    const uint32_t room = (uint32_t)cdp__max(2 * g->messages.room, 16);
    cdp__post **posts;
    if (g->messages.count < g->messages.room) return true;
    if (room > 1u << CDP__POST_INDEX) return false;
    posts = (cdp__post **)cdp__alloc(g->os, room * sizeof *posts);
    if (!posts) return false;
    if (g->messages.count) memcpy(posts, g->messages.posts, g->messages.count * sizeof *posts);
    cdp__free(g->os, g->messages.posts);
    g->messages.posts = posts;
    g->messages.room = room;
    return true;
}

CDP__PRIVATE cdp__post *cdp__post_new(cdp_group *g) {
    cdp__post *post = NULL;
    if (cdp__posts_grow(g)) post = (cdp__post *)cdp__alloc_zero(g->os, sizeof *post);
    if (!post) return NULL;
    post->index = g->messages.count;
    g->messages.posts[g->messages.count++] = post;
    return post;
}

/* Takes the post that was free longest. NULL: out of memory. */
CDP__PRIVATE cdp__post *cdp__post_take(cdp_group *g) {
    cdp__post *post = g->messages.free;
    if (post) {
        g->messages.free = post->next;
        if (!g->messages.free) g->messages.last_free = NULL;
        post->next = NULL;
        post->taken = true;
        return post;
    }
    post = cdp__post_new(g);
    if (post) post->taken = true;
    return post;
}

CDP__PRIVATE void cdp__post_free(cdp_group *g, cdp__post *post) {
    post->next = NULL;
    if (g->messages.last_free)
        g->messages.last_free->next = post;
    else
        g->messages.free = post;
    g->messages.last_free = post;
}

/* The work of the post has ended, completed or cancelled: returns it to the pool. */
CDP__PRIVATE void cdp__post_give(cdp_group *g, cdp__post *post, bool cancelled) {
    post->cancelled = post->cancelled << 1 | (cancelled ? 1u : 0u);
    ++post->use;
    post->taken = false;
    cdp__post_free(g, post);
}

/* Makes room for `n` posts in the pool. False: out of memory. */
CDP__PRIVATE bool cdp__posts_reserve(cdp_group *g, uint32_t n) {
    if (n > 1u << CDP__POST_INDEX) return false;
    while (g->messages.count < n) {
        cdp__post *post = cdp__post_new(g);
        if (!post) return false;
        cdp__post_free(g, post);
    }
    return true;
}

/* ---- sends and receives */

CDP__PRIVATE void cdp__post_begin(cdp__flow *flow, cdp__post *post, bool receive) {
    cdp__transfer *x = &post->x;
    const uint64_t elem = cdp_dtype_size((cdp_dtype)post->call.dtype);
    cdp__transfer_reset(x);
    x->s = &flow->s;
    x->call = &post->call;
    x->receive = receive;
    x->bytes = x->limit = post->call.count * elem;
    x->elem = elem;
    x->piece_bytes = flow->g->desc.piece_bytes;
    x->expose_bytes = flow->g->desc.expose_bytes;
    /* only messages above the window are exposed; shorter ones are sent unasked, except those
       that may wait for their receiver */
    if (!post->rendezvous && !flow->owner)
        x->expose_bytes = cdp__max(x->expose_bytes, flow->g->w->window_bytes + 1);
    /* else the transport knows which peers are connected, so that they are told of a failure */
    if (!flow->g->w->transport.failure.linked) flow->g->peers[flow->rank].used = true;
    post->begun = true;
}

CDP__PRIVATE void cdp__post_begin_if(cdp__flow *flow, cdp__post *post, bool receive) {
    if (!post->begun) cdp__post_begin(flow, post, receive);
}

CDP__PRIVATE void cdp__post_complete(cdp__flow *flow, uint32_t way) {
    cdp_group *g = flow->g;
    cdp__post *post = flow->first[way];
    void (*done)(void *, uint64_t, uint64_t) = post->done;
    const uint64_t now = cdp__now(g->os), start_ns = post->start_ns;
    flow->first[way] = post->next;
    if (!post->next) flow->last[way] = NULL;
    if (post->got) post->got->count = post->call.count;
    if (g->w->failure.waited || g->w->failure.waiting)
        cdp__wait_done(g, cdp__flow_channel(flow, way == 1), post->call.seq + 1);
    if (g->w->failure.report_count) cdp__rank_continued(g->w, flow->s.peer, post->start_ns);
    cdp__post_remember(g, post, now);
    cdp__post_give(g, post, false);
    ++g->w->arrivals;
    if (done) done(post->user, start_ns, now);
    cdp__group_ended(g);
}

CDP__PRIVATE void cdp__post_report(cdp__flow *flow, const cdp__post *post, const cdp_error *e) {
    cdp__failure_record r;
    cdp__record_make(flow->g, &r, e);
    cdp__record_call(&r, &post->call, 0, 1);
    r.at.channel = cdp__flow_channel(flow, post->x.receive);
    cdp__group_observe(flow->g, &r, e, false);
}

/* The message failed because of `e`. A send may find that the peer is lost while the peer's last
   messages are still unread. */
CDP__PRIVATE void cdp__post_fail(cdp__flow *flow, const cdp__post *post, const cdp_error *e) {
    if (flow->failed) {
        flow->failed(flow, e);
        return;
    }
    if (!post->x.receive) (void)cdp__port_pump(flow->g->w, flow->s.peer, NULL);
    if (flow->g->health != CDP__HEALTHY) return;
    cdp__post_report(flow, post, e);
}

/* A receive of up to call.count elements adopts the true count of the message. */
CDP__PRIVATE bool cdp__post_accept(cdp__post *post) {
    cdp__transfer *x = &post->x;
    const cdp__head *h = &x->theirs;
    if (!post->got || x->moved || h->count > post->call.count) return false;
    post->call.count = h->count;
    x->bytes = x->limit = h->count * x->elem;
    return true;
}

/* The header differs from what this receive expects. True: the receive accepts it after all. */
CDP__PRIVATE bool cdp__post_mismatch(cdp__flow *flow, cdp__post *post) {
    cdp__transfer *x = &post->x;
    const cdp__head *h = &x->theirs;
    const uint32_t other = flow->s.peer;
    cdp_error e;
    if (cdp__post_accept(post) && cdp__transfer_fits(flow->g->w, x, h)) {
        x->remote = h->type == CDP__MESSAGE_REMOTE;
        x->done = !x->remote && !x->bytes;
        return true;
    }
    if (post->got && h->kind == CDP_COLL_SEND && h->dtype == post->call.dtype
        && h->count > post->call.count)
        cdp__error(&e, CDP_ERR_MISMATCH, other,
            "the message of rank %u has %llu elements, but there is room for %llu only; ask "
            "cdp_probe() before",
            other, (unsigned long long)h->count, (unsigned long long)post->call.count);
    else
        e = cdp__group_mismatch(flow->g, flow->rank, &post->call, h);
    cdp__post_fail(flow, post, &e);
    return false;
}

/* Advances the first send or receive of a flow. True if something moved. */
CDP__PRIVATE bool cdp__flow_move(cdp__flow *flow, uint32_t way) {
    cdp_group *g = flow->g;
    bool any = false;
    while (flow->first[way] && g->health == CDP__HEALTHY && !(any && cdp__poll_over(g->w))) {
        cdp__post *post = flow->first[way];
        int64_t r;
        if (!post->begun) cdp__post_begin(flow, post, way == 1);
        r = way == 1 ? cdp__transfer_receive(g->w, &post->x) : cdp__transfer_send(g->w, &post->x);
        if (g->health != CDP__HEALTHY) return true;
        if (r == CDP__TRANSFER_MISMATCH) {
            if (!cdp__post_mismatch(flow, post)) return true;
        } else if (r < 0) {
            const cdp_error e = *cdp_last_error();
            cdp__post_fail(flow, post, &e);
            return true;
        }
        any = any || r != 0;
        if (!post->x.done) return any;
        cdp__post_complete(flow, way);
    }
    return any;
}

/* Advances all flows. Sends are polled first, because peers may wait for them. */
CDP__PRIVATE cdp__advance cdp__flows_poll(cdp_group *g) {
    cdp__flow **at = &g->messages.active;
    bool any = false;
    while (*at && g->health == CDP__HEALTHY && !(any && cdp__poll_over(g->w))) {
        cdp__flow *flow = *at;
        if (cdp__flow_move(flow, 0)) any = true;
        if (cdp__flow_move(flow, 1)) any = true;
        while (*at != flow) /* a flow that became active meanwhile was inserted in front */
            at = &(*at)->next_active;
        if (flow->first[0] || flow->first[1]) {
            at = &flow->next_active;
        } else {
            *at = flow->next_active;
            flow->active = false;
        }
    }
    if (!g->messages.active && !g->queue.used) {
        g->timers.soonest_ns = CDP__NEVER;
        if (g->health == CDP__HEALTHY) return any ? CDP__MOVED : CDP__IDLE;
    }
    return any ? CDP__MOVED : CDP__BLOCKED;
}

/* Fails the group, and returns true, if the deadline of a message has passed. */
CDP__PRIVATE bool cdp__flows_due(cdp_group *g, uint64_t now) {
    cdp__flow *flow;
    uint32_t way;
    for (flow = g->messages.active; flow; flow = flow->next_active)
        for (way = 0; way < 2; ++way) {
            cdp__post *post = flow->first[way], *late = post;
            while (post && post->deadline_ns > now)
                post = post->next;
            if (!post) continue;
            g->failure.late_ms = post->timeout_ms;
            cdp__post_begin_if(flow, late, way == 1);
            cdp__group_late(g, &late->x, &late->call, cdp__flow_channel(flow, way == 1));
            return true;
        }
    return false;
}

/* Nothing moves: reads from peers that this rank only sends to, which may have failed. */
CDP__PRIVATE cdp__advance cdp__flows_stuck(cdp_group *g, uint64_t now) {
    cdp__flow *flow;
    if (now < g->timers.poll_peers_ns) return CDP__BLOCKED;
    g->timers.poll_peers_ns = now + CDP__POLL_PEERS_MS * CDP__MS;
    for (flow = g->messages.active; flow && g->health == CDP__HEALTHY; flow = flow->next_active)
        if (flow->first[0] && !flow->first[1] && !flow->s.body_left
            && cdp__port_pump(g->w, flow->s.peer, NULL) < 0 && g->health == CDP__HEALTHY) {
            const cdp_error e = *cdp_last_error();
            cdp__post_fail(flow, flow->first[0], &e);
        }
    if (g->health == CDP__HEALTHY && g->channel != CDP__WORLD_CHANNEL)
        (void)cdp__group_poll_peers(g);
    return g->health == CDP__HEALTHY ? CDP__BLOCKED : CDP__MOVED;
}

/* Updates the wait records of the oldest send and the oldest receive of a flow: if it has moved
   data since the last call, the old wait is over and a new one begins. */
CDP__PRIVATE void cdp__flow_waits(cdp__flow *flow) {
    uint32_t way;
    for (way = 0; way < 2; ++way) {
        cdp__post *post = flow->first[way];
        cdp__position at;
        if (!post) continue;
        memset(&at, 0, sizeof at);
        at.channel = cdp__flow_channel(flow, way == 1);
        at.seq = post->call.seq;
        if (post->reported_moved != post->x.moved + 1 && flow->g->w->failure.waited)
            cdp__wait_ended(flow->g, at.channel, at.seq, 0);
        cdp__wait_long(flow->g, &at, flow->s.peer, post->start_ns, false);
        post->reported_moved = post->x.moved + 1;
    }
}

/* Updates the wait records of all flows. Returns after which time to do that again. */
CDP__PRIVATE uint64_t cdp__flows_waits(cdp_group *g) {
    uint64_t period = CDP__NEVER;
    cdp__flow *flow;
    uint32_t way;
    for (flow = g->messages.active; flow; flow = flow->next_active) {
        cdp__flow_waits(flow);
        for (way = 0; way < 2; ++way)
            if (flow->first[way])
                period = cdp__min(period, cdp__failure_period_ns(flow->first[way]->timeout_ms));
    }
    return period;
}

/* Appends a send or a receive to the queue of its flow. Lock held. */
CDP__PRIVATE cdp_status cdp__flow_post(cdp__flow *flow, const cdp_transfer *t,
    void (*done)(void *, uint64_t, uint64_t), void *user, cdp_work *out) {
    const uint32_t way = t->receive ? 1 : 0;
    cdp_group *g = flow->g;
    cdp__post *post = cdp__post_take(g);
    const uint64_t now = cdp__now(g->os);
    if (!g->records.messages)
        g->records.messages =
            (cdp__past *)cdp__alloc_zero(g->os, g->desc.records * sizeof *g->records.messages);
    if (!post) return cdp__fail_nomem("a message", sizeof *post + sizeof *flow);
    memset(&post->call, 0, sizeof post->call);
    post->call.kind = CDP_COLL_SEND;
    post->call.dtype = (uint8_t)t->dtype;
    post->call.op = CDP_REDUCE_SUM;
    post->call.count = t->count;
    post->call.root = flow->tag;
    post->call.seq = ++flow->count[way];
    post->timeout_ms = (uint32_t)cdp__def(t->timeout_ms, g->desc.timeout_ms);
    post->start_ns = now;
    post->deadline_ns =
        post->timeout_ms == CDP_NO_TIMEOUT ? CDP__NEVER : now + post->timeout_ms * CDP__MS;
    post->got = t->receive ? t->got : NULL;
    post->done = done;
    post->user = user;
    post->begun = false;
    cdp__transfer_reset(&post->x);
    post->x.s = &flow->s;
    post->x.receive = t->receive;
    post->x.data = (uint8_t *)t->data;
    post->x.row = post->x.step = 0;
    if (t->row) {
        post->x.row = t->row * cdp_dtype_size(t->dtype);
        post->x.step = t->step * cdp_dtype_size(t->dtype);
    }
    post->rendezvous = t->rendezvous;
    if (flow->last[way])
        flow->last[way]->next = post;
    else
        flow->first[way] = post;
    flow->last[way] = post;
    out->group = g;
    out->seq = CDP__POST_BIT | post->use << CDP__POST_INDEX | post->index;
    post->reported_moved = 1;
    g->timers.wait_ns = cdp__min(g->timers.wait_ns, now + cdp__failure_period_ns(post->timeout_ms));
    g->timers.soonest_ns = cdp__min(g->timers.soonest_ns, post->deadline_ns);
    if (!flow->active && !g->exec.running)
        g->timers.poll_peers_ns = now + CDP__POLL_PEERS_MS * CDP__MS;
    cdp__flow_activate(flow);
    cdp__group_activate(g);
    return CDP_OK;
}

/* True if any bytes of the message were sent or received. */
CDP__PRIVATE bool cdp__post_moved(const cdp__flow *flow, const cdp__post *post, uint32_t way) {
    const cdp__stream *s = &flow->s;
    if (!post->begun || flow->first[way] != post) return false;
    if (post->x.moved || post->x.done || post->x.returned) return true;
    if (post->x.remote && (way || post->x.announced)) return true;
    if (!way) return flow->g->w->ports[s->peer].tx_stream == s;
    return s->body_left || s->early_used;
}

/* Cancels a message of which no bytes have moved, and removes it from its queue. Lock held. */
CDP__PRIVATE cdp_status cdp__post_cancel(cdp_group *g, uint64_t seq) {
    cdp__post *post = g->messages.posts[seq & ((1u << CDP__POST_INDEX) - 1)];
    cdp__flow *flow = (cdp__flow *)post->x.s;
    const uint32_t way = post->x.receive ? 1 : 0;
    cdp__post **at = &flow->first[way], *last = NULL;
    if (cdp__post_moved(flow, post, way))
        return cdp__fail(
            CDP_ERR_STATE, "cdp_work_cancel: the message has begun to move; wait for it");
    for (; *at && *at != post; at = &last->next)
        last = *at;
    CDP_ASSERT(*at == post);
    cdp__transfer_revoke(g->w, &post->x);
    *at = post->next;
    cdp__wait_ended(g, cdp__flow_channel(flow, way == 1), post->call.seq, 0);
    if (!post->next) flow->last[way] = last;
    for (; *at; at = &(*at)->next)
        --(*at)->call.seq;
    --flow->count[way];
    cdp__post_give(g, post, true);
    ++g->w->arrivals;
    return CDP_OK;
}

/* True if a message from rank p has arrived that no posted receive will take. */
CDP__PRIVATE bool cdp__flow_peek(const cdp_group *g, uint32_t p, uint32_t tag, cdp__head *h) {
    const uint64_t channel = cdp__message_channel(g, tag);
    cdp__stream *s = cdp__stream_find(g->w, channel, cdp__world_rank(g, p));
    cdp__stream none;
    if (s && !s->unexpected && ((cdp__flow *)s)->first[1]) return false;
    if (s) return cdp__stream_peek(g->w, s, h);
    /* a message in a slot can be found without a stream */
    memset(&none, 0, sizeof none);
    none.channel = channel;
    none.peer = cdp__world_rank(g, p);
    return cdp__stream_peek(g->w, &none, h);
}

/* Ends all sends and receives of a flow without notifying the peer; the caller owns their memory
   again. Lock held. */
CDP__PRIVATE void cdp__flow_stop(cdp__flow *flow) {
    cdp_group *g = flow->g;
    cdp__port *port = &g->w->ports[flow->s.peer];
    uint32_t way;
    if (port->tx_stream == &flow->s) {
        /* the receiver may need only these bytes; after a failure they belong to the caller */
        const cdp__transfer *x = flow->first[0] ? &flow->first[0]->x : NULL;
        if (x && g->health == CDP__HEALTHY)
            cdp__port_keep(g->w, flow->s.peer, x->data ? x->data + x->moved : NULL);
        cdp__port_abandon(port);
    }
    for (way = 0; way < 2; ++way) {
        while (flow->first[way]) {
            cdp__post *post = flow->first[way];
            cdp__transfer_revoke(g->w, &post->x);
            flow->first[way] = post->next;
            cdp__post_give(g, post, true);
        }
        flow->last[way] = NULL;
    }
}

/* Removes a flow whose group lives on. Lock held. */
CDP__PRIVATE void cdp__flow_drop(cdp__flow *flow) {
    cdp_group *g = flow->g;
    cdp__flow **at;
    cdp__flow_stop(flow);
    for (at = &g->messages.active; *at && *at != flow; at = &(*at)->next_active) {
    }
    if (*at) *at = flow->next_active;
    for (at = &g->messages.flows; *at && *at != flow; at = &(*at)->next) {
    }
    if (*at) *at = flow->next;
    cdp__stream_close(g->w, &flow->s, true);
    cdp__world_record_closed(g->w, flow->s.channel);
    cdp__free(g->os, flow);
}

/* Closes all flows of a group. Lock held. */
CDP__PRIVATE void cdp__flows_close(cdp_group *g, bool tell) {
    cdp__world *w = g->w;
    uint32_t i;
    while (g->messages.flows) {
        cdp__flow *flow = g->messages.flows;
        g->messages.flows = flow->next;
        cdp__flow_stop(flow);
        cdp__stream_close(w, &flow->s, tell);
        cdp__world_record_closed(w, flow->s.channel);
        cdp__free(w->os, flow);
    }
    for (i = 0; i < g->messages.count; ++i)
        cdp__free(w->os, g->messages.posts[i]);
    cdp__free(w->os, g->messages.posts);
    cdp__free(w->os, g->records.messages);
    g->messages.active = NULL;
    g->messages.posts = NULL;
    g->records.messages = NULL;
    g->messages.count = 0;
}

#else

/* In builds without messages no flow exists, so `active_flows` stays empty. */
CDP__PRIVATE cdp__advance cdp__flows_poll(cdp_group *g) {
    (void)g;
    return CDP__IDLE;
}
CDP__PRIVATE bool cdp__flows_due(cdp_group *g, uint64_t now) {
    (void)g;
    (void)now;
    return false;
}
CDP__PRIVATE cdp__advance cdp__flows_stuck(cdp_group *g, uint64_t now) {
    (void)g;
    (void)now;
    return CDP__BLOCKED;
}
CDP__PRIVATE cdp_status cdp__post_cancel(cdp_group *g, uint64_t seq) {
    (void)g;
    (void)seq;
    return CDP_ERR_STATE;
}
CDP__PRIVATE void cdp__flows_close(cdp_group *g, bool tell) {
    (void)g;
    (void)tell;
}

CDP__PRIVATE uint64_t cdp__flows_waits(cdp_group *g) {
    (void)g;
    return CDP__NEVER;
}

#endif /* CDP_NO_MESSAGES */

#endif /* CDP_SRC_GROUP_FLOWS_H */
