/* failure/spread.h - how a failure becomes an error on all ranks

   Knows: groups, streams. Promises: local failures become events of >>failure/blame, and its
   decisions become errors and messages; every failed group reports its cause within a bounded
   time. This section decides nothing itself. */
#ifndef CDP_SRC_FAILURE_SPREAD_H
#define CDP_SRC_FAILURE_SPREAD_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/error_api.h"
#include "../message/transport_api.h"
#include "../group/group_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../text/format.h"
#include "../base/text.h"
#include "../message/header.h"
#include "records.h"
#include "chains.h"
#include "blame.h"
#include "../message/stream.h"
#include "../message/receive.h"
#include "../message/transfer.h"
#include "../collective/executor.h"
#include "../group/state.h"
#include "../group/ranks.h"
#include "../group/records.h"
#include "waits.h"
#include "report.h"

/* Makes a record of what this rank saw; `e` has status, peer, errno and a text without a prefix. */
CDP__PRIVATE void cdp__record_make(const cdp_group *g, cdp__failure_record *r, const cdp_error *e) {
    memset(r, 0, sizeof *r);
    r->status = e->status;
    r->peer = r->end.named = e->peer;
    r->end.last.waiter = r->end.last.target = -1;
    r->sys_errno = e->sys_errno;
    r->observer = (int32_t)g->w->rank;
    r->group_size = g->members ? g->desc.world_size : 0;
    r->at.channel = g->channel;
    r->timeout_ms = g->failure.late_ms;
    cdp__format(r->text, sizeof r->text, "%s", e->text);
}

/* Adds the call and the round of this rank to the record. */
CDP__PRIVATE void cdp__record_call(
    cdp__failure_record *r, const cdp__head *call, uint32_t round, uint32_t rounds) {
    r->call = cdp__fingerprint_of(call);
    r->at.seq = call->seq;
    r->at.round = round;
    r->rounds = rounds;
}

/* An event of `top`, or of a group that this rank does not have: NULL. The transition function
   decides; if it settles a cause, that becomes the error of all groups that fail together with
   `top`. `from`: the rank of the world that has sent the record. */
CDP__PRIVATE CDP__COLD void cdp__domain_step(cdp__world *w, cdp_group *top,
    cdp__failure_event_type type, uint32_t from, const cdp__failure_record *r, bool sure) {
    const bool again = top && top->health == CDP__FAILED;
    cdp__failure_event v;
    cdp_group *x;
    memset(&v, 0, sizeof v);
    v.type = type;
    v.time_ns = cdp__now(w->os);
    v.domain = top ? &top->failure.domain : NULL;
    v.from = from;
    v.record = r;
    v.sure = sure;
    if (type == CDP__FAILURE_REPORTED) {
        v.passed = cdp__world_passed(w, r->end.last.waiter, &r->end.last.at);
        if (top && cdp__past_at(top, r->call.seq)->call.seq == r->call.seq)
            v.own = cdp__fingerprint_of(&cdp__past_at(top, r->call.seq)->call);
    }
    if (cdp__failure_step(&w->failure, &v) & CDP__FAILURE_PUBLISH) {
        const cdp__failure_record *cause = &top->failure.domain.record;
        const bool here = cause->observer == (int32_t)w->rank;
        const char *file = top->failure.error.file;
        const uint32_t line = top->failure.error.line;
        for (x = w->groups; x; x = x->next) {
            if (cdp__group_top(x) != top) continue;
            cdp__failure_text(cause, w->rank, w->size, &x->failure.error);
            if (here && file) x->failure.error.file = file;
            x->failure.error.line = here ? line : 0;
            cdp__group_publish(x, cause);
        }
        if (!again && top->channel != CDP__WORLD_CHANNEL) cdp__group_report_outside(top);
    }
    cdp__world_answer(w);
}

CDP__PRIVATE bool cdp__world_adopt_first(cdp__world *w);

/* A lost rank may have left because of an earlier failure. So this rank offers its record to the
   transport: if that becomes the first record, no rank knows an earlier failure. */
CDP__PRIVATE void cdp__group_offer(cdp_group *g) {
    const cdp_transport *t = &g->w->transport;
    const cdp__failure_record *r = &g->failure.domain.record;
    if (g->health != CDP__SETTLING || g->channel != CDP__WORLD_CHANNEL || !t->failure.publish
        || r->status != CDP_ERR_PEER_LOST)
        return;
    g->failure.cause_bytes = cdp__failure_encode(r, g->failure.cause);
    t->failure.publish(t->self, g->failure.cause, g->failure.cause_bytes);
}

/* Reports a failure of g that this rank saw to the group that settles it (g or its parent).
   `late`: a deadline of g has passed. Only such a failure is undone if the late operation
   completes; a timeout that a callback of the program returns is not. */
CDP__PRIVATE CDP__COLD void cdp__group_observe(
    cdp_group *g, const cdp__failure_record *r, const cdp_error *e, bool late) {
    cdp_group *top = cdp__group_top(g);
    /* a failure that needs no settling overrides one that is being settled */
    const bool sure = r->status != CDP_ERR_PEER_LOST && r->status != CDP_ERR_TIMEOUT;
    /* a lost peer may keep back an operation whose late message has arrived */
    const bool lost =
        r->status == CDP_ERR_PEER_LOST && top->failure.domain.record.status == CDP_ERR_TIMEOUT;
    const cdp__failure_state most = sure || lost ? CDP__FAILURE_SETTLING : CDP__FAILURE_HEALTHY;
    /* a late operation goes on while its cause is settled, unless the caller broke the group */
    const bool stops = !late || top->failure.by_caller;
    if (g->health == CDP__FAILED || (g->health == CDP__SETTLING && !sure)) return;
    if (stops) g->health = CDP__SETTLING;
    /* A missed deadline is being settled at the same time. Its operation may still complete, but
       that must not undo this failure. */
    if (stops && top->failure.domain.state == CDP__FAILURE_SETTLING) top->health = CDP__SETTLING;
    if (top->failure.domain.state > most) return;
    if (top->channel == CDP__WORLD_CHANNEL && cdp__world_adopt_first(g->w)) return;
    if (stops) top->health = CDP__SETTLING;
    top->failure.error.file = e->file;
    top->failure.error.line = e->line;
    cdp__group_activate(top);
    cdp__domain_step(g->w, top, CDP__FAILURE_OBSERVED, g->w->rank, r, false);
    cdp__group_offer(top);
}

CDP__PRIVATE void cdp__group_fail(cdp_group *g, const cdp_error *e, bool late) {
    const cdp__exec *x = &g->exec;
    cdp__failure_record r;
    cdp__record_make(g, &r, e);
    if (x->running) cdp__record_call(&r, &x->task.call, x->round, x->rounds);
    cdp__group_observe(g, &r, e, late);
}

/* The caller breaks the group. This overrides a cause that is still being settled. */
CDP__PRIVATE void cdp__group_break_for(cdp_group *g, const cdp_error *e) {
    cdp_group *top = cdp__group_top(g);
    cdp__failure_record r;
    top->failure.by_caller = true;
    if (top->failure.domain.state != CDP__FAILURE_SETTLING) {
        cdp__group_fail(g, e, false);
        return;
    }
    g->health = top->health = CDP__SETTLING;
    cdp__record_make(g, &r, e);
    top->failure.error.file = e->file;
    top->failure.error.line = e->line;
    cdp__domain_step(g->w, top, CDP__FAILURE_OBSERVED, g->w->rank, &r, false);
}

/* The deadline of a call passed while transfer `t` was awaited. */
CDP__PRIVATE void cdp__group_late(
    cdp_group *g, const cdp__transfer *t, const cdp__head *call, uint64_t channel) {
    cdp__failure_record r;
    cdp_error e;
    cdp__error(&e, CDP_ERR_TIMEOUT, t->s->peer, "the deadline of %u ms passed", g->failure.late_ms);
    cdp__record_make(g, &r, &e);
    if (call == &g->exec.task.call)
        cdp__record_call(&r, call, g->exec.round, g->exec.rounds);
    else
        cdp__record_call(&r, call, 0, 1);
    r.at.channel = channel;
    r.moved = t->moved;
    r.expected = t->bytes;
    r.sending = !t->receive;
    r.text[0] = 0; /* the text is made from the fields above */
    cdp__group_observe(g, &r, &e, true);
}

/* Handles a failure record of rank `from` of the world, of a group of this rank or another one. */
CDP__PRIVATE void cdp__world_on_report(cdp__world *w, uint32_t from, const cdp__failure_record *r) {
    cdp_group *g = cdp__group_of_channel(w, r->domain);
    if (g && cdp__group_parent(g)) g = NULL; /* records are of groups that settle failures */
    if (g) cdp__group_activate(g);
    cdp__domain_step(w, g, CDP__FAILURE_REPORTED, from, r, false);
}

/* Result of reading the first failure record of all ranks, which some transports store. `guess`:
   also accept a record without a group, which the transport only guessed. */
typedef enum cdp__known_first {
    CDP__FIRST_NONE,
    CDP__FIRST_OTHER, /* it came from another rank and was handled */
    CDP__FIRST_OWN    /* this rank's own is the first */
} cdp__known_first;

CDP__PRIVATE cdp__known_first cdp__world_read_first(cdp__world *w, bool guess) {
    const cdp_transport *t = &w->transport;
    const cdp_group *g = cdp__group_of_channel(w, CDP__WORLD_CHANNEL);
    uint8_t body[CDP__FAILURE_MAX];
    cdp__failure_record r;
    const uint32_t bytes = t->failure.first ? t->failure.first(t->self, body, sizeof body) : 0;
    if (!bytes || !cdp__failure_decode(body, bytes, w->size, &r)) return CDP__FIRST_NONE;
    if (g && g->failure.cause_bytes == bytes && memcmp(g->failure.cause, body, bytes) == 0)
        return CDP__FIRST_OWN;
    if (!guess && !r.domain) return CDP__FIRST_NONE;
    r.domain = CDP__WORLD_CHANNEL;
    cdp__world_on_report(w, (uint32_t)r.observer, &r);
    return CDP__FIRST_OTHER;
}

CDP__PRIVATE bool cdp__world_adopt_first(cdp__world *w) {
    return cdp__world_read_first(w, false) == CDP__FIRST_OTHER;
}

/* Whether this rank received anything from `peer`, which then has finished starting. */
CDP__PRIVATE bool cdp__world_received_from(const cdp__world *w, uint32_t peer) {
    const cdp__stream *s;
    uint32_t i;
    for (i = 0; i < w->stream_rows; ++i)
        for (s = w->streams[i]; s; s = s->next)
            if (s->peer == peer && (s->got || s->early_used)) return true;
    return false;
}

/* A named rank that does not answer or refuses connections may still be starting: asks the
   transport which rank it waits for. */
CDP__PRIVATE void cdp__group_ask_starting(cdp_group *g) {
    const cdp_transport *t = &g->w->transport;
    const cdp__failure_record *r = &g->failure.domain.record;
    const bool lost = r->status == CDP_ERR_PEER_LOST;
    cdp__failure_edge *e = cdp__failure_blocker(&g->w->failure, r->at.channel);
    cdp__failure_event v;
    int32_t peer = r->end.named, named;
    if (!t->failure.starting || (!lost && (r->status != CDP_ERR_TIMEOUT || !e))) return;
    memset(&v, 0, sizeof v);
    v.type = CDP__FAILURE_STARTING;
    v.time_ns = cdp__now(g->os);
    v.domain = &g->failure.domain;
    if (!lost) peer = cdp__failure_follow(&g->w->failure, e).named;
    if (peer < 0 || peer == (int32_t)g->w->rank) return;
    if (!lost && cdp__world_received_from(g->w, (uint32_t)peer)) return;
    v.from = (uint32_t)peer;
    named = t->failure.starting(
        t->self, (uint32_t)peer, lost, v.time_ns + 2 * CDP__MS >= g->failure.domain.due_ns);
    if (named == -1 || named >= (int32_t)g->w->size) return;
    v.end.named = named < 0 ? -1 : named;
    if (named < 0) v.end.why = CDP__WHY_FIRST;
    (void)cdp__failure_step(&g->w->failure, &v);
}

/* Called while SETTLING: looks for an earlier cause. */
CDP__PRIVATE CDP__COLD void cdp__group_settle(cdp_group *g) {
    const bool lost = g->failure.domain.record.status == CDP_ERR_PEER_LOST;
    bool sure = false;
    if (g->channel == CDP__WORLD_CHANNEL && lost)
        sure = cdp__world_read_first(g->w, true) == CDP__FIRST_OWN;
    if (g->failure.domain.state != CDP__FAILURE_SETTLING) return;
    cdp__world_read_all(g->w);
    cdp__waits_unacked(g->w);
    cdp__world_answer(g->w);
    if (g->failure.domain.state != CDP__FAILURE_SETTLING) return;
    if (g->channel == CDP__WORLD_CHANNEL || !lost) cdp__group_ask_starting(g);
    cdp__domain_step(g->w, g, CDP__FAILURE_TIMER, g->w->rank, NULL, sure);
}

/* Decodes a FAILURE that rank `peer` of the world sent on this channel. False: it is damaged, and
   the group of the channel has failed. */
CDP__PRIVATE bool cdp__world_decode(cdp__world *w, uint64_t channel, uint32_t peer,
    const uint8_t *body, uint32_t bytes, cdp__failure_record *r) {
    cdp_group *g = cdp__group_of_channel(w, channel);
    const bool good = cdp__failure_decode(body, bytes, w->size, r);
    cdp_error e;
    uint32_t p;
    if (g && (!good || r->domain == cdp__group_top(g)->channel)) {
        p = cdp_rank_of_world(g, peer);
        CDP_ASSERT(p < g->desc.world_size);
        g->peers[p].used = true;
        /* after its timeout a peer may still send a correction */
        g->peers[p].answered = good && r->status != CDP_ERR_TIMEOUT;
    }
    if (good || !g) return good;
    cdp__error(&e, CDP_ERR_PEER_LOST, peer, "rank %u failed and sent no valid reason", peer);
    cdp__group_fail(g, &e, false);
    return false;
}

/* The error of a group that received `theirs` from p instead of a message of `call`. */
CDP__PRIVATE cdp_error cdp__group_mismatch(
    const cdp_group *g, uint32_t p, const cdp__head *call, const cdp__head *theirs) {
    const uint32_t other = cdp__world_rank(g, p);
    char here[128], there[128];
    cdp_error e;
    if (cdp__same_call(call, theirs))
        cdp__error(&e, CDP_ERR_MISMATCH, other,
            "rank %u sent %u bytes for round %u, which is not what this rank expects; it runs with "
            "other counts, other settings (small_bytes, piece_bytes) or another version",
            other, theirs->bytes, theirs->round + 1);
    else
        cdp__error(&e, CDP_ERR_MISMATCH, other,
            "ranks call different things: rank %u calls %s, rank %u calls %s", g->w->rank,
            cdp__call_text(call, here, sizeof here), other,
            cdp__call_text(theirs, there, sizeof there));
    return e;
}

/* This rank's own call to compare with `theirs`: the one with the same number, if still
   recorded. */
CDP__PRIVATE const cdp__head *cdp__group_call_like(const cdp_group *g, const cdp__head *theirs) {
    const cdp__head *past = &cdp__past_at(g, theirs->seq)->call;
    return past->seq == theirs->seq ? past : &g->exec.task.call;
}

CDP__PRIVATE void cdp__group_fail_mismatch(cdp_group *g, uint32_t p, const cdp__head *theirs) {
    const cdp__head *call = cdp__group_call_like(g, theirs);
    const cdp_error e = cdp__group_mismatch(g, p, call, theirs);
    cdp__failure_record r;
    cdp__record_make(g, &r, &e);
    cdp__record_call(&r, call, g->exec.round, g->exec.rounds);
    if (!cdp__same_call(call, theirs)) {
        r.end.why = CDP__WHY_CALLS;
        r.other = cdp__fingerprint_of(theirs);
        r.text[0] = 0;
    }
    cdp__group_observe(g, &r, &e, false);
}

/* True if the header belongs to an operation that this rank has begun, and names another call. */
CDP__PRIVATE bool cdp__group_differs(const cdp_group *g, const cdp__head *h) {
    return h->seq <= g->exec.task.call.seq && !cdp__same_call(&cdp__past_at(g, h->seq)->call, h);
}

/* The transport has lost p, because of `e`. A mismatching call that p sent before is the better
   explanation; a FAILURE would have been handled already. */
CDP__PRIVATE void cdp__group_lost(cdp_group *g, uint32_t p, const cdp_error *e) {
    cdp__head h;
    if (e->status == CDP_ERR_PEER_LOST && g->health == CDP__HEALTHY
        && cdp__stream_peek(g->w, &g->streams[p], &h) && cdp__group_differs(g, &h))
        cdp__group_fail_mismatch(g, p, &h);
    cdp__group_fail(g, e, false);
}

/* Reads from peers that this rank does not wait for: they may have failed, or made another call.
   The world's group calls this only during long waits: its transport reports failures. */
CDP__PRIVATE bool cdp__group_poll_peers(cdp_group *g) {
    uint32_t p;
    for (p = 0; p < g->desc.world_size && g->health == CDP__HEALTHY; ++p) {
        cdp__stream *s = &g->streams[p];
        cdp__head h;
        if (p == g->desc.rank || s->body_left
            || (g->channel == CDP__WORLD_CHANNEL && !cdp__group_linked(g, p)))
            continue;
        (void)cdp__port_pump(g->w, s->peer, NULL);
        if (g->health != CDP__HEALTHY) return true;
        if (!cdp__stream_peek(g->w, s, &h) || !cdp__group_differs(g, &h)) continue;
        cdp__group_fail_mismatch(g, p, &h);
        return true;
    }
    return g->health != CDP__HEALTHY;
}

/* Compares the calls in a WAIT with this rank's own. True if they differ: the sender waits in
   vain, and the group fails. */
CDP__PRIVATE bool cdp__world_differs(cdp__world *w, uint32_t peer, const cdp__wait_message *m) {
    cdp_group *g = cdp__group_of_channel(w, m->at.channel);
    uint32_t i, p;
    if (!g || g->health == CDP__FAILED) return false;
    p = cdp_rank_of_world(g, peer);
    for (i = 0; i < m->call_count && p < g->desc.world_size; ++i) {
        const cdp__head *own = &cdp__past_at(g, m->calls[i].seq)->call;
        const cdp__head theirs = cdp__fingerprint_head(&m->calls[i]);
        if (own->seq != theirs.seq || cdp__same_call(own, &theirs)) continue;
        cdp__group_fail_mismatch(g, p, &theirs);
        return true;
    }
    return false;
}

/* Rank `peer` waits for a group that this rank has destroyed. Where the two had exchanged nothing
   in it, nobody has told it so. */
CDP__PRIVATE void cdp__world_send_leave(cdp__world *w, uint32_t peer, uint64_t channel) {
    if (!cdp__world_closed(w, channel)) return;
    cdp__channel_send_control(w, peer, channel, CDP__MESSAGE_LEAVE);
    (void)cdp__port_flush(w, peer);
}

/* Handles a FAILURE, WAIT or ENDPOINT of rank `peer` of the world. False: it is invalid. */
CDP__PRIVATE CDP__COLD bool cdp__world_on_control(cdp__world *w, uint32_t peer, uint8_t type,
    uint64_t channel, const uint8_t *body, uint32_t bytes) {
    cdp__wait_message wait;
    cdp__answer_message answer;
    cdp__failure_record failure;
    cdp__failure_event v;
    if (type == CDP__MESSAGE_FAILURE) {
        if (cdp__world_decode(w, channel, peer, body, bytes, &failure))
            cdp__world_on_report(w, peer, &failure);
        return true;
    }
    memset(&v, 0, sizeof v);
    v.type = type == CDP__MESSAGE_WAIT ? CDP__FAILURE_WAITS : CDP__FAILURE_ANSWER;
    v.time_ns = cdp__now(w->os);
    v.from = peer;
    if (type == CDP__MESSAGE_WAIT) {
        if (!cdp__wait_decode(body, bytes, &wait)) return false;
        cdp__world_send_leave(w, peer, wait.at.channel);
        if (cdp__world_differs(w, peer, &wait) || !wait.probe) return true;
        v.at = wait.at;
        v.serial = wait.serial;
        v.probe = wait.probe;
        v.passed = cdp__world_passed(w, (int32_t)peer, &wait.at);
    } else {
        if (!cdp__answer_decode(body, bytes, w->size, &answer)) return false;
        v.at = answer.at;
        v.serial = answer.serial;
        v.end = answer.end;
        v.passed = cdp__world_passed(w, answer.end.last.waiter, &answer.end.last.at);
    }
    (void)cdp__failure_step(&w->failure, &v);
    return true; /* the answer is sent when nothing moves: see cdp__group_waits() */
}

/* Its peers have been told. Those that have not accepted the record by now do not get it. */
CDP__PRIVATE void cdp__group_reported(cdp_group *g) {
    if (g->failure.settle_ns == CDP__NEVER) return;
    g->failure.settle_ns = CDP__NEVER;
#ifndef CDP_NO_GROUPS
    g->w->untold = true;
#endif
    cdp__group_dump_failed(g);
    if (!cdp__group_parent(g))
        cdp__domain_step(g->w, g, CDP__FAILURE_DELIVERED, g->w->rank, NULL, false);
}

#endif /* CDP_SRC_FAILURE_SPREAD_H */
