/* group/message_calls.h - sends and receives

   Knows: flows, receives from any rank. Promises: a call that returns an error at once has started
   nothing. */
#ifndef CDP_SRC_GROUP_MESSAGE_CALLS_H
#define CDP_SRC_GROUP_MESSAGE_CALLS_H

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
#include "../message/header.h"
#include "../failure/records.h"
#include "../failure/chains.h"
#include "../message/deferred.h"
#include "../message/stream.h"
#include "../message/receive.h"
#include "state.h"
#include "../failure/waits.h"
#include "../failure/spread.h"
#include "flows.h"
#include "deferred.h"
#include "progress.h"
#include "group_calls.h"
#include "device.h"
#include "requests.h"
#include "queue.h"

#ifndef CDP_NO_MESSAGES

CDP__PRIVATE CDP__ONE_COPY cdp_transfer cdp__transfer_of(
    bool receive, const void *data, uint64_t count, cdp_dtype dtype, uint32_t peer, uint32_t tag) {
    cdp_transfer t;
    memset(&t, 0, sizeof t);
    t.receive = receive;
    t.data = (void *)(uintptr_t)data;
    t.count = count;
    t.dtype = dtype;
    t.peer = peer;
    t.tag = tag;
    return t;
}

CDP__PRIVATE cdp_status cdp__transfer_check_rows(const cdp_transfer *t, uint64_t size) {
    uint64_t bytes;
    if (!t->row && !t->step) return CDP_OK;
    if (!t->receive)
        return cdp__fail(CDP_ERR_INVALID, "cdp_batch: a send of rows; pack them before");
    if (!t->row || t->step < t->row)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_batch: rows of %llu elements that begin %llu apart; row must be at least 1 and "
            "step at least row",
            (unsigned long long)t->row, (unsigned long long)t->step);
    if (!cdp__mul_fits(t->step, size, &bytes)
        || !cdp__mul_fits(t->count / t->row + 1, bytes, &bytes))
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_batch: %llu elements in rows %llu apart are more "
            "than 2^63 bytes",
            (unsigned long long)t->count, (unsigned long long)t->step);
    return CDP_OK;
}

/* Checks a transfer for mistakes of the caller, and fills in the defaults. */
CDP__PRIVATE cdp_status cdp__transfer_check(const cdp_group *g, cdp_transfer *t, const void *out) {
    const char *name = t->receive ? "cdp_recv" : "cdp_send";
    uint64_t bytes, size;
    const cdp_status st = cdp__alive(g, name);
    if (st != CDP_OK) return st;
    if (!out) return cdp__missing(name, "work");
    if (!t->dtype) t->dtype = CDP_DTYPE_F32;
    size = cdp_dtype_size(t->dtype);
    if (t->peer >= g->desc.world_size && !(t->receive && t->peer == CDP_ANY_RANK))
        return cdp__fail(CDP_ERR_INVALID, "%s: rank %u is not below world_size %u", name, t->peer,
            g->desc.world_size);
    if (t->peer == g->desc.rank)
        return cdp__fail(CDP_ERR_INVALID, "%s: rank %u is this rank; copy the data", name, t->peer);
    if (t->peer == CDP_ANY_RANK && g->desc.world_size == 1)
        return cdp__fail(CDP_ERR_INVALID, "%s: there is no other rank in this group", name);
    if (t->tag == CDP__TAG_BARRIER)
        return cdp__fail(CDP_ERR_INVALID,
            "%s: tag %u is reserved; use a smaller one (no tag means 'any tag')", name, t->tag);
    if (!size)
        return cdp__fail(CDP_ERR_INVALID, "%s: dtype %d does not exist", name, (int)t->dtype);
    if (!cdp__mul_fits(t->count, size, &bytes))
        return cdp__fail(CDP_ERR_INVALID, "%s: %llu x %s is more than 2^63 bytes", name,
            (unsigned long long)t->count, cdp_dtype_name(t->dtype));
    if (bytes && !t->data)
        return cdp__fail(CDP_ERR_INVALID, "%s: data is NULL, but count is %llu", name,
            (unsigned long long)t->count);
    if (bytes && (uintptr_t)t->data % size)
        return cdp__fail(CDP_ERR_INVALID,
            "%s: the data is not aligned to its dtype %s; align it to %u bytes", name,
            cdp_dtype_name(t->dtype), (uint32_t)size);
    return cdp__transfer_check_rows(t, size);
}

/* Posts a message with checked arguments, without polling it. Lock held. */
CDP__PRIVATE cdp_status cdp__message_post(cdp_group *g, const cdp_transfer *t,
    void (*done)(void *, uint64_t, uint64_t), void *user, cdp_work *out) {
    cdp_status st = cdp__group_report(g);
    cdp__flow *flow;
    flow = st == CDP_OK ? cdp__flow_open(g, t->peer, t->tag) : NULL;
    if (st == CDP_OK && !flow) st = cdp__fail_nomem("a message", sizeof *flow);
    if (st == CDP_OK) st = cdp__flow_post(flow, t, done, user, out);
    if (st != CDP_OK) return st;
    if (t->receive && t->got) {
        t->got->source = t->peer;
        t->got->tag = t->tag;
        t->got->dtype = t->dtype;
    }
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__message_locked(cdp_group *g, const cdp_transfer *t,
    void (*done)(void *, uint64_t, uint64_t), void *user, cdp_work *out) {
    const cdp_status st = cdp__message_post(g, t, done, user, out);
    if (st == CDP_OK) cdp__first_moves(g);
    return st;
}

/* ---- receives from any rank: pending works until a message with that tag has arrived */

/* Reads from all links of g, and records which ranks have left or died, since these send no more
   messages. Lock held. */
CDP__PRIVATE void cdp__any_read(cdp_group *g) {
    uint32_t p, left = 0, died = 0, went = 0; /* `died` and `went` are ranks plus 1 */
    for (p = 0; p < g->desc.world_size && g->health == CDP__HEALTHY; ++p) {
        cdp__peer *peer = &g->peers[p];
        if (p == g->desc.rank) continue;
        if (!peer->lost && cdp__port_pump(g->w, g->streams[p].peer, NULL) < 0) {
            const cdp_error e = *cdp_last_error();
            if (e.status != CDP_ERR_PEER_LOST) cdp__group_fail(g, &e, false);
            peer->lost = true;
        }
        if (!peer->lost && !g->streams[p].left) ++left;
        if (!died && peer->lost && !g->streams[p].left) died = p + 1;
        if (!went && g->streams[p].left) went = p + 1;
        if (cdp__port_slots_wait(g->w, g->streams[p].peer)) ++g->w->arrivals;
    }
    if (g->health == CDP__HEALTHY && g->channel != CDP__WORLD_CHANNEL)
        (void)cdp__group_poll_peers(g);
    g->any.links_read = left ? g->w->polls : 0;
    if (!g->any.first_ended) g->any.first_ended = died ? died : went;
}

/* The rank whose message a receive from `from` (or any rank) with this tag takes: the next rank
   in turn with a message that no posted receive will take. UINT32_MAX: none. Lock held. */
CDP__PRIVATE uint32_t cdp__any_find(const cdp_group *g, uint32_t from, uint32_t tag, cdp__head *h) {
    const uint32_t n = g->desc.world_size;
    uint32_t i;
    for (i = 0; i < n; ++i) {
        const uint32_t p = (g->any.turn + i) % n;
        if (p == g->desc.rank || (from != CDP_ANY_RANK && from != p)) continue;
        if (cdp__flow_peek(g, p, tag, h)) return p;
    }
    return UINT32_MAX;
}

CDP__PRIVATE void cdp__any_done(void *user, uint64_t start_ns, uint64_t end_ns) {
    (void)start_ns;
    (void)end_ns;
    cdp__deferred_close((cdp__deferred *)user, false);
}

/* True if a message with this tag is being received: more messages may follow it, even if its
   sender has left. */
CDP__PRIVATE bool cdp__any_busy(const cdp_group *g, uint32_t tag) {
    const cdp__flow *flow;
    for (flow = g->messages.active; flow; flow = flow->next_active)
        if (flow->tag == tag && flow->first[1]) return true;
    return false;
}

/* Reports that this rank waits for all ranks that could send, each for its next message with
   this tag. */
CDP__PRIVATE void cdp__any_long(cdp__deferred *s) {
    cdp_group *g = s->of;
    const bool caller = cdp__group_awaited(s->owner);
    const uint64_t told = 2 * (g->w->arrivals + 1) + (caller ? 1 : 0);
    uint32_t p;
    if (s->reported_ns == told) return;
    s->reported_ns = told;
    for (p = 0; p < g->desc.world_size; ++p) {
        const cdp__flow *flow = p == g->desc.rank ? NULL : cdp__flow_find(g, p, s->want.tag);
        cdp__position at;
        if (p == g->desc.rank) continue;
        memset(&at, 0, sizeof at);
        at.channel = cdp__way_channel(s->set, cdp__world_rank(g, p), g->w->rank);
        at.seq = flow ? flow->count[1] + 1 : 1;
        if (flow && flow->first[1]) at.seq = flow->first[1]->call.seq;
        cdp__wait_any_long(g, s->set, &at, p, s->start_ns, caller);
    }
}

/* Reports the wait if it is long, or if another rank waits for this one. */
CDP__PRIVATE void cdp__any_waits(cdp__deferred *s, uint64_t now) {
    cdp__world *w = s->of->w;
    if (now >= s->wait_ns || w->failure.waiting) cdp__any_long(s);
    if (now >= s->wait_ns) s->wait_ns = now + cdp__failure_period_ns(s->want.timeout_ms);
    if (w->failure.outbox) cdp__world_answer(w);
    if (w->failure.waited) cdp__world_read_all(w);
}

/* The deadline of the receive has passed: the group fails. */
CDP__PRIVATE void cdp__any_late(cdp__deferred *s) {
    cdp_group *g = s->of;
    cdp__failure_record r;
    cdp_error e;
    s->reported_ns = 0;
    cdp__any_long(s);
    g->failure.late_ms = s->want.timeout_ms;
    cdp__error(&e, CDP_ERR_TIMEOUT, -1,
        "the deadline of %u ms passed while waiting for a message with tag %u from any rank",
        g->failure.late_ms, s->want.tag);
    cdp__record_make(g, &r, &e);
    r.at.channel = s->set;
    cdp__group_observe(g, &r, &e, true);
}

/* The number of messages with this tag that rank p has sent to this one. */
CDP__PRIVATE uint64_t cdp__any_count(const cdp_group *g, uint32_t p, uint32_t tag) {
    const cdp__flow *flow = cdp__flow_find(g, p, tag);
    return flow ? flow->count[1] : 0;
}

/* Chooses a rank to blame when all others are gone: the one that sent fewest messages with this
   tag or, among equals, the one that went first. If that rank died, ranks that left in good
   order are not chosen. */
CDP__PRIVATE uint32_t cdp__any_fewest(const cdp_group *g, uint32_t tag) {
    uint32_t p, best = g->any.first_ended - 1;
    const bool died = g->peers[best].lost && !g->streams[best].left;
    for (p = 0; p < g->desc.world_size; ++p) {
        if (p == g->desc.rank || (died && g->streams[p].left)) continue;
        if (cdp__any_count(g, p, tag) < cdp__any_count(g, best, tag)) best = p;
    }
    return best;
}

/* All other ranks are gone, so the group fails. The blame goes to the cause that one of them
   reported or, without one, to the rank that sent fewest messages. */
CDP__PRIVATE void cdp__any_alone(const cdp__deferred *s) {
    cdp_group *g = s->of;
    const uint32_t fewest = cdp__any_fewest(g, s->want.tag);
    const uint64_t sent = cdp__any_count(g, fewest, s->want.tag);
    const uint32_t first = cdp__world_rank(g, fewest);
    cdp__failure_record r;
    cdp_error e;
    CDP_ASSERT(g->any.first_ended);
    cdp__error(&e, CDP_ERR_PEER_LOST, -1,
        "a message with tag %u from any rank cannot come any more: all other ranks have left; "
        "rank %u sent fewest of them, %llu",
        s->want.tag, first, (unsigned long long)sent);
    cdp__record_make(g, &r, &e);
    r.end.named = (int32_t)first;
    cdp__group_observe(g, &r, &e, false);
}

/* The oldest receive from any rank with this tag, or NULL. */
CDP__PRIVATE cdp__deferred *cdp__any_first(const cdp_group *g, uint32_t tag) {
    cdp__deferred *s = g->w->pending;
    while (s && (s->kind != CDP__DEFERRED_ANY || s->of != g || s->want.tag != tag))
        s = s->next;
    return s;
}

/* Turns a receive from any rank into one from rank p, which has sent a message, with the same
   deadline. If that has passed, the cause is still being settled, and the message may still
   complete the receive. */
CDP__PRIVATE void cdp__any_take(cdp__deferred *s, uint32_t p) {
    cdp_group *g = s->of;
    s->want.peer = p;
    g->any.turn = (p + 1) % g->desc.world_size;
    cdp__deferred_end_wait(s);
    if (cdp__message_post(g, &s->want, cdp__any_done, s, &s->after) != CDP_OK) {
        const cdp_error e = *cdp_last_error();
        cdp__group_fail(g, &e, false);
        return;
    }
    g->messages.posts[s->after.seq & ((1u << CDP__POST_INDEX) - 1)]->deadline_ns = s->deadline_ns;
    g->timers.soonest_ns = cdp__min(g->timers.soonest_ns, s->deadline_ns);
    cdp__first_moves(g);
}

CDP__PRIVATE bool cdp__any_poll(cdp__deferred *s, uint64_t now) {
    cdp_group *g = s->of;
    cdp__head f;
    uint32_t p;
    if (g->health != CDP__HEALTHY) {
        cdp__deferred_unlist(s);
        return true;
    }
    if (g->any.links_read != g->w->polls) cdp__any_read(g);
    p = s->arrivals == g->w->arrivals ? UINT32_MAX
                                      : cdp__any_find(g, CDP_ANY_RANK, s->want.tag, &f);
    if (p != UINT32_MAX) {
        /* the oldest receive takes it, even if it did not see the message when it was polled:
           otherwise two messages of a rank could change their order */
        cdp__any_take(cdp__any_first(g, s->want.tag), p);
        return true;
    }
    s->arrivals = g->w->arrivals;
    if (now >= s->deadline_ns && !cdp__group_settling(g)) {
        cdp__any_late(s);
    } else if (!g->any.links_read && g->any.first_ended && !cdp__any_busy(g, s->want.tag)) {
        cdp__any_alone(s);
    } else {
        cdp__any_waits(s, now);
    }
    return g->health != CDP__HEALTHY;
}

/* Starts a message. Fills in the defaults of *t. */
CDP__PRIVATE cdp_status cdp__message(cdp_group *g, cdp_transfer *t, cdp_work *out) {
    cdp_status st = cdp__transfer_check(g, t, out);
    cdp__deferred *s;
    bool device = false;
    if (out) {
        out->group = NULL;
        out->seq = 0;
    }
    if (st == CDP_OK && cdp__backend_of(g))
        st = cdp__device_claims(g, "a message", t->data, NULL, &device);
    if (st == CDP_OK && device) return cdp__device_transfer(g, t, 1, out);
    if (st != CDP_OK) return st;
    cdp__enter(g);
    st = cdp__group_report(cdp__group_top(g));
    if (st == CDP_OK && t->peer != CDP_ANY_RANK) {
        st = cdp__message_locked(g, t, NULL, NULL, out);
    } else if (st == CDP_OK) {
        st = cdp__deferred_open(cdp__group_top(g), CDP__DEFERRED_ANY, out, &s);
        if (st == CDP_OK) {
            s->of = g;
            s->want = *t;
            s->want.timeout_ms = cdp__def(t->timeout_ms, g->desc.timeout_ms);
            s->deadline_ns = cdp__deadline(g->os, s->want.timeout_ms);
            s->set = cdp__message_channel(g, t->tag);
            s->start_ns = cdp__now(g->os);
            s->wait_ns = s->start_ns + cdp__failure_period_ns(s->want.timeout_ms);
            s->poll = cdp__any_poll;
            s->arrivals = g->w->arrivals - 1;
            cdp__deferred_enlist(s);
        }
    }
    cdp__leave(g);
    return st;
}

CDP__PRIVATE cdp_status cdp__message_async(cdp_group *g, bool receive, const void *data,
    uint64_t count, cdp_dtype dtype, uint32_t peer, uint32_t tag, cdp_message *got,
    cdp_work *work) {
    cdp_transfer t = cdp__transfer_of(receive, data, count, dtype, peer, tag);
    cdp_status st;
    t.got = got;
    st = cdp__message(g, &t, work);
    if (st == CDP_OK) cdp__hand_over(work->group);
    return st;
}

CDP__PRIVATE cdp_status cdp__message_wait(cdp_group *g, bool receive, const void *data,
    uint64_t count, cdp_dtype dtype, uint32_t peer, uint32_t tag, cdp_message *got) {
    cdp_transfer t = cdp__transfer_of(receive, data, count, dtype, peer, tag);
    cdp_work work;
    cdp_status st = cdp__must_not_wait();
    if (st != CDP_OK) return st;
    t.got = got;
    st = cdp__message(g, &t, &work);
    return st == CDP_OK ? cdp_work_wait(work) : st;
}

CDP_API cdp_status cdp_send(
    cdp_group *g, const void *data, uint64_t count, cdp_dtype dtype, uint32_t to, uint32_t tag) {
    return cdp__message_wait(g, false, data, count, dtype, to, tag, NULL);
}

CDP_API cdp_status cdp_send_async(cdp_group *g, const void *data, uint64_t count, cdp_dtype dtype,
    uint32_t to, uint32_t tag, cdp_work *work) {
    return cdp__message_async(g, false, data, count, dtype, to, tag, NULL, work);
}

CDP_API cdp_status cdp_recv(
    cdp_group *g, void *data, uint64_t count, cdp_dtype dtype, uint32_t from, uint32_t tag) {
    return cdp__message_wait(g, true, data, count, dtype, from, tag, NULL);
}

CDP_API cdp_status cdp_recv_async(cdp_group *g, void *data, uint64_t count, cdp_dtype dtype,
    uint32_t from, uint32_t tag, cdp_work *work) {
    return cdp__message_async(g, true, data, count, dtype, from, tag, NULL, work);
}

CDP_API cdp_status cdp_recv_any(cdp_group *g, void *data, uint64_t room, cdp_dtype dtype,
    uint32_t from, uint32_t tag, cdp_message *got) {
    return got ? cdp__message_wait(g, true, data, room, dtype, from, tag, got)
               : cdp__missing("cdp_recv_any", "got");
}

CDP_API cdp_status cdp_recv_any_async(cdp_group *g, void *data, uint64_t room, cdp_dtype dtype,
    uint32_t from, uint32_t tag, cdp_message *got, cdp_work *work) {
    return got ? cdp__message_async(g, true, data, room, dtype, from, tag, got, work)
               : cdp__missing("cdp_recv_any_async", "got");
}

CDP_API cdp_status cdp_probe(cdp_group *g, uint32_t from, uint32_t tag, cdp_message *got) {
    cdp_transfer t = cdp__transfer_of(true, NULL, 0, CDP_DTYPE_U8, from, tag);
    cdp_status st = cdp__transfer_check(g, &t, got);
    cdp__deferred *s;
    cdp__head f;
    uint32_t p;
    if (st != CDP_OK) return st;
    if (!g->w->thread) (void)cdp_poll(g, 0);
    cdp__enter(g);
    cdp__any_read(g);
    p = cdp__any_find(g, from, tag, &f);
    /* a message that a receive from any rank will take is not reported to the caller */
    while (p != UINT32_MAX && g->health == CDP__HEALTHY && (s = cdp__any_first(g, tag)) != NULL) {
        cdp__any_take(s, p);
        p = cdp__any_find(g, from, tag, &f);
    }
    st = cdp__group_report(cdp__group_top(g));
    if (st == CDP_OK && p == UINT32_MAX) st = CDP_PENDING;
    if (st == CDP_OK) {
        got->source = p;
        got->tag = tag;
        got->count = f.count;
        got->dtype = (cdp_dtype)f.dtype;
    }
    cdp__leave(g);
    return st;
}

CDP__PRIVATE void cdp__batch_done(void *user, uint64_t start_ns, uint64_t end_ns) {
    cdp__deferred *s = (cdp__deferred *)user;
    (void)start_ns;
    (void)end_ns;
    if (--s->left == 0) cdp__deferred_close(s, false);
}

CDP_API cdp_status cdp_group_reserve(cdp_group *g, uint32_t messages) {
    bool room;
    const cdp_status st = cdp__alive(g, "cdp_group_reserve");
    if (st != CDP_OK) return st;
    cdp__enter(g);
    room = cdp__posts_reserve(g, messages);
    cdp__leave(g);
    return room ? CDP_OK : cdp__fail_nomem("messages in flight", messages * sizeof(cdp__post));
}

CDP_API cdp_status cdp_batch(cdp_group *g, const cdp_transfer *list, uint32_t n, cdp_work *out) {
    cdp__deferred *s;
    uint32_t i, devices = 0;
    bool device = false;
    cdp_status st = cdp__alive(g, "cdp_batch");
    if (st != CDP_OK) return st;
    if (!out) return cdp__missing("cdp_batch", "out");
    if (!list) return cdp__missing("cdp_batch", "list");
    if (!n) return cdp__missing("cdp_batch", "n");
    out->group = NULL;
    out->seq = 0;
    for (i = 0; i < n && st == CDP_OK; ++i) {
        cdp_transfer t = list[i];
        st = t.peer == CDP_ANY_RANK ? cdp__fail(CDP_ERR_INVALID,
                 "cdp_batch: a receive from any rank cannot be part of a batch; use "
                 "cdp_recv_any_async()")
                                    : cdp__transfer_check(g, &t, out);
        if (st == CDP_OK && cdp__backend_of(g))
            st = cdp__device_claims(g, "a message", t.data, NULL, &device);
        devices += device ? 1 : 0;
    }
    if (st == CDP_OK && devices)
        return devices == n ? cdp__device_transfer(g, list, n, out)
                            : cdp__fail(CDP_ERR_INVALID,
                                "cdp_batch: %u of %u messages are in device memory; start "
                                "them in a batch of their own",
                                devices, n);
    if (st != CDP_OK) return st;
    cdp__enter(g);
    st = cdp__group_report(cdp__group_top(g));
    if (st == CDP_OK) st = cdp__deferred_open(cdp__group_top(g), CDP__DEFERRED_BATCH, out, &s);
    if (st == CDP_OK) s->left = n;
    for (i = 0; i < n && st == CDP_OK; ++i) {
        cdp_transfer t = list[i];
        cdp_work work;
        (void)cdp__transfer_check(g, &t, out);
        st = cdp__message_locked(g, &t, cdp__batch_done, s, &work);
        /* a part of it was started already */
        if (st != CDP_OK && i)
            cdp__group_break(g, cdp_last_error());
        else if (st != CDP_OK)
            cdp__deferred_close(s, true);
    }
    if (st != CDP_OK) {
        out->group = NULL;
        out->seq = 0;
    }
    cdp__leave(g);
    if (st == CDP_OK) cdp__hand_over(g);
    return st;
}

CDP_API cdp_status cdp_sendrecv(cdp_group *g, const void *out, uint64_t out_count, uint32_t to,
    void *in, uint64_t in_count, uint32_t from, cdp_dtype dtype, uint32_t tag) {
    cdp_transfer t[2];
    cdp_work work;
    cdp_status st = cdp__must_not_wait();
    if (st == CDP_OK) st = cdp__alive(g, "cdp_sendrecv");
    if (st != CDP_OK) return st;
    if (to == g->desc.rank || from == g->desc.rank)
        return cdp__fail(
            CDP_ERR_INVALID, "cdp_sendrecv: rank %u is this rank; copy the data", g->desc.rank);
    if (in && out
        && cdp__overlap(in, out, in_count * cdp_dtype_size(cdp__def(dtype, CDP_DTYPE_F32)),
            out_count * cdp_dtype_size(cdp__def(dtype, CDP_DTYPE_F32))))
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_sendrecv: what is sent and what is received overlap; use separate memory");
    t[0] = cdp__transfer_of(true, in, in_count, dtype, from, tag);
    t[1] = cdp__transfer_of(false, out, out_count, dtype, to, tag);
    st = cdp_batch(g, t, 2, &work);
    return st == CDP_OK ? cdp_work_wait(work) : st;
}

#endif /* CDP_NO_MESSAGES */

#endif /* CDP_SRC_GROUP_MESSAGE_CALLS_H */
