/* channel/life.h - opening, waiting, closing

   Knows: channels, streams. Promises: no callback runs after its channel was closed. */
#ifndef CDP_SRC_CHANNEL_LIFE_H
#define CDP_SRC_CHANNEL_LIFE_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/error_api.h"
#include "../group/group_api.h"
#include "channel_api.h"
#include "../base/compiler.h"
#include "../base/kept_error.h"
#include "../base/basics.h"
#include "../base/ended.h"
#include "../base/text.h"
#include "../message/stream.h"
#include "../group/state.h"
#include "../group/deferred.h"
#include "../group/progress.h"
#include "channel.h"
#include "progress.h"

#ifndef CDP_NO_CHANNELS

/* Enters the channel's streams into the table; they take over unexpected streams of the same
   channel. Lock held. */
CDP__PRIVATE cdp_status cdp__channel_enter(cdp_channel *c) {
    cdp__world *w = c->g->w;
    const uint32_t n = c->g->desc.world_size;
    uint32_t p;
    c->streams = (cdp__stream *)cdp__alloc_zero(w->os, n * sizeof *c->streams);
    c->peers = (cdp__channel_peer *)cdp__alloc_zero(w->os, n * sizeof *c->peers);
    if (!c->streams || !c->peers || !cdp__streams_reserve(w, n))
        return cdp__fail_nomem("a channel", n * (sizeof *c->streams + sizeof *c->peers));
    for (p = 0; p < n; ++p) {
        cdp__stream *s = &c->streams[p];
        const cdp__stream *came = cdp__stream_find(w, c->id, cdp__world_rank(c->g, p));
        if (came && !came->unexpected)
            return cdp__fail(CDP_ERR_INVALID,
                "cdp_channel_open: channel %u of this group is open already", c->desc.number);
        s->channel = c->id;
        s->peer = cdp__world_rank(c->g, p);
        (void)cdp__stream_enter(w, s);
    }
    c->next = w->channels;
    w->channels = c;
    w->channels_poll = cdp__channels_poll;
    w->channels_deadline = cdp__channels_deadline;
    return CDP_OK;
}

CDP_API cdp_status cdp_channel_open(const cdp_channel_desc *desc, cdp_channel **out) {
    cdp_channel *c;
    cdp_status st;
    if (!out) return cdp__missing("cdp_channel_open", "out");
    *out = NULL;
    if (!desc) return cdp__missing("cdp_channel_open", "desc");
    if (!desc->deliver) return cdp__missing("cdp_channel_open", "desc.deliver");
    st = cdp__alive(desc->group, "cdp_channel_open");
    if (st != CDP_OK) return st;
    c = (cdp_channel *)cdp__alloc_zero(desc->group->os, sizeof *c);
    if (!c) return cdp__fail_nomem("a channel", sizeof *c);
    cdp__ended_remove(c);
    c->desc = *desc;
    c->g = desc->group;
    c->id = cdp__channel_id(c->g, desc->number, 0);
    c->timer_ns = CDP__NEVER;
    cdp__enter(c->g);
    st = cdp__channel_enter(c);
    if (st != CDP_OK) {
        const cdp_error e = *cdp_last_error();
        cdp_group *g = c->g;
        if (c->streams && st == CDP_ERR_INVALID) c->streams[0].channel = 0;
        cdp__channel_free(c);
        cdp__leave(g);
        return cdp__error_again(st, &e);
    }
    *out = c;
    cdp__leave(c->g);
    return CDP_OK;
}

CDP_API void cdp_channel_timer(cdp_channel *c, uint64_t at_ns) {
    if (!c || cdp__ended(c)) return;
    cdp__enter(c->g);
    c->timer_ns = at_ns;
    if (c->g->w->sleeping) c->g->w->transport.wake(c->g->w->transport.self);
    cdp__leave(c->g);
}

/* Makes progress until more than `before` callbacks have run, the channel closes, or the
   deadline. Lock held. */
CDP__PRIVATE void cdp__channel_advance(cdp_channel *c, uint64_t before, uint64_t until_ns) {
    cdp__world *w = c->g->w;
    cdp__progress t;
    memset(&t, 0, sizeof t);
    t.g = c->g;
    t.deadline_ns = until_ns;
    t.completed = c->g->queue.completed;
    if (w->sleeping) w->transport.wake(w->transport.self); /* the progress thread stands by */
    for (;;) {
        uint64_t now;
        cdp__progress_yield_lock(w);
        cdp__progress_poll(w);
        now = cdp__now(w->os);
        if (c->called != before || c->closing || now >= until_ns) break;
        cdp__progress_pause(&t, now);
    }
    cdp__progress_lucky(&t);
}

CDP_API cdp_status cdp_channel_wait(cdp_channel *c, uint32_t timeout_ms) {
    const cdp_status st = cdp__channel_alive(c, "cdp_channel_wait");
    uint64_t seen;
    if (st != CDP_OK) return st;
    cdp__enter(c->g);
    seen = c->called;
    cdp__leave(c->g);
    return cdp_channel_wait_since(c, &seen, cdp__deadline(c->g->w->os, timeout_ms));
}

CDP_API void cdp_channel_wake(cdp_channel *c) {
    if (!c || cdp__ended(c)) return;
    cdp__enter(c->g);
    ++c->called;
    cdp__world_wake(c->g->w);
    cdp__leave(c->g);
}

CDP_API cdp_status cdp_channel_drop(cdp_channel *c, uint32_t peer, const char *reason) {
    /* restored below, because this call does not fail */
    const cdp_error before = *cdp_last_error();
    const cdp_status st = cdp__channel_alive(c, "cdp_channel_drop");
    cdp_error why;
    if (st != CDP_OK) return st;
    if (!reason) return cdp__missing("cdp_channel_drop", "reason");
    if (peer >= c->g->desc.world_size || peer == c->g->desc.rank)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_channel_drop: rank %u is no other rank of the channel's group of %u", peer,
            c->g->desc.world_size);
    cdp__enter(c->g);
    cdp__error(&why, CDP_ERR_PEER_LOST, c->streams[peer].peer, "rank %u was given up: %s",
        c->streams[peer].peer, reason);
    cdp__channel_lose(c, peer, &why);
    if (c->g->w->sleeping) cdp__world_wake(c->g->w);
    cdp__leave(c->g);
    *cdp__error_slot() = before;
    return CDP_OK;
}

CDP_API cdp_status cdp_channel_wait_since(cdp_channel *c, uint64_t *seen, uint64_t until_ns) {
    cdp__world *w;
    cdp_group *g;
    uint64_t before;
    cdp_status st = cdp__must_not_wait();
    if (st == CDP_OK) st = cdp__channel_alive(c, "cdp_channel_wait_since");
    if (st != CDP_OK) return st;
    if (!seen) return cdp__missing("cdp_channel_wait_since", "seen");
    g = c->g;
    w = g->w;
    cdp__enter(g);
    before = *seen;
    ++c->waiting;
    ++w->callers;
    ++w->waits;
    if (c->called == before) cdp__channel_advance(c, before, until_ns);
    *seen = c->called;
    st = c->called != before ? CDP_OK : CDP_PENDING;
    if (st == CDP_PENDING && c->closing)
        st = cdp__fail(CDP_ERR_STATE, "cdp_channel_wait: the channel was closed meanwhile");
    --w->callers;
    --c->waiting;
    cdp__channel_over(c);
    if (w->cond) w->os->threads.cond_broadcast(w->os->user, w->cond);
    cdp__leave(g);
    return st;
}

CDP_API void cdp_channel_close(cdp_channel *c) {
    cdp__world *w;
    cdp_group *g;
    if (!c || cdp__ended(c)) return;
    g = c->g;
    w = g->w;
    cdp__enter(g);
    c->closing = true;
    c->timer_ns = CDP__NEVER;
    if (!*cdp__inside()) {
        while (c->calling || c->waiting) {
            cdp__world_wake(w);
            w->os->threads.cond_wait(
                w->os->user, w->cond, w->lock.mutex, cdp__now(w->os) + 10 * CDP__MS);
        }
    }
    c->left_over = true;
    if (c->waiting) cdp__world_wake(w);
    cdp__channel_over(c);
    cdp__leave(g);
}

#endif /* CDP_NO_CHANNELS */

#endif /* CDP_SRC_CHANNEL_LIFE_H */
