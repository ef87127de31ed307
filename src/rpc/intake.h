/* rpc/intake.h - handles messages of peers

   Knows: every kind of message. Promises: a message that no peer of this version sends ends only
   the link to its sender; references in a message are taken over before anything else is
   checked. */
#ifndef CDP_SRC_RPC_INTAKE_H
#define CDP_SRC_RPC_INTAKE_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/error_api.h"
#include "../message/transport_api.h"
#include "../message/header.h"
#include "../channel/channel_api.h"
#include "../base/compiler.h"
#include "../base/status.h"
#include "../base/basics.h"
#include "../text/utf8.h"
#include "../base/bytes.h"
#include "worker_api.h"
#include "calls_api.h"
#include "table.h"
#include "forks.h"
#include "levels.h"
#include "packets.h"
#include "state.h"
#include "pools.h"
#include "send.h"
#include "roll_call.h"
#include "contexts.h"
#include "calls.h"
#include "passes.h"
#include "requests.h"

/* Takes the references of a message. A text: what is wrong with them, and none is taken. */
CDP__PRIVATE const char *cdp__rpc_take(
    cdp_rpc *rpc, uint32_t from, const cdp__rpc_packet *p, uint32_t *slots) {
    uint32_t i;
    (void)cdp__rpc_reserve(rpc, p->rrefs + 2); /* without room, the table refuses each reference */
    for (i = 0; i < p->rrefs; ++i) {
        const uint8_t *r = p->records + i * CDP__RPC_RECORD;
        slots[i] = 0;
        if (!cdp__ref_take(&rpc->refs, from, cdp__get_u32(r + 16), cdp__get_u64(r),
                cdp__get_u64(r + 8), &slots[i])) {
            cdp__rpc_untake(rpc, slots, i);
            return "a fork that is there already";
        }
    }
    return NULL;
}

/* Finds the value that the request runs on, and creates the entry of the one that it makes.
   Returns NULL or what is wrong. */
CDP__PRIVATE const char *cdp__rpc_target(cdp_rpc *rpc, cdp__rpc_rq *rq, const cdp__rpc_packet *p) {
    uint32_t slot;
    if (p->flags & CDP__RPC_ON) {
        slot = cdp__refs_fork(&rpc->refs, p->fid, rq->pub.from);
        if (!slot || rpc->refs.at[slot].rid != p->rid)
            return "a call on a reference that it does not have";
        rq->on = rpc->refs.at[slot].of;
        ++rpc->refs.at[rq->on].handles;
    }
    if (p->flags & CDP__RPC_REMOTE) {
        cdp__rpc_value *v = cdp__rpc_value_make(rpc);
        if (!v) return "out of memory for a value that it wants";
        if (!cdp__ref_got_remote(&rpc->refs, rq->pub.from, p->makes_rid, p->makes_fid, &slot)) {
            cdp__free(rpc->os, v);
            return "a value that is there already";
        }
        if (!slot) {
            cdp__free(rpc->os, v);
            return NULL;
        }
        ++rpc->refs.at[slot].handles;
        rpc->extra[slot].value = v;
        rq->makes = slot;
    }
    return NULL;
}

CDP__PRIVATE const char *cdp__rpc_got_call(
    cdp_rpc *rpc, uint32_t from, const cdp__rpc_packet *p, uint8_t **owned, bool cancelled) {
    cdp__rpc_peer *peer = &rpc->peers[from];
    const uint64_t now = cdp__rpc_time(rpc);
    uint32_t slots[CDP__RPC_RREFS], i;
    const char *wrong = cdp__rpc_take(rpc, from, p, slots);
    const bool nested = p->b >> 48 & 1;
    bool room;
    cdp__rpc_rq *rq;
    if (wrong) return wrong;
    room = peer->requests[nested] < rpc->share + (nested ? CDP__RPC_LEVELS : 0);
    rq = room ? cdp__rpc_rq_open(rpc) : NULL;
    if (!rq) {
        cdp__rpc_untake(rpc, slots, p->rrefs);
        return room ? "out of memory for a call of it" : "more calls at once than were agreed upon";
    }
    ++peer->requests[nested];
    rq->nested = nested;
    rq->level = (int32_t)(p->b >> 32 & 0xffff);
    rq->pub.from = from;
    rq->pub.function = p->aux;
    rq->pub.one_way = (p->flags & CDP__RPC_ONE_WAY) != 0;
    rq->pub.remote = (p->flags & CDP__RPC_REMOTE) != 0;
    rq->pub.deadline_ns =
        (uint32_t)p->b == CDP_NO_TIMEOUT ? CDP__NEVER : now + (uint32_t)p->b * CDP__MS;
    rq->pub.rrefs = rq->refs;
    rq->pub.rref_count = p->rrefs;
    rq->record = cdp__rpc_record_new(rpc, p->a, from, rpc->rank, p->aux, now);
    rq->call = p->a;
    rq->flags = p->flags;
    rq->cancelled = cancelled;
    for (i = 0; i < p->rrefs; ++i)
        if (slots[i]) rq->refs[i] = cdp__rpc_rref(rpc, slots[i]);
    wrong = cdp__rpc_target(rpc, rq, p);
    if (!wrong) wrong = cdp__rpc_rq_got(rpc, rq, p, owned);
    if (p->flags & CDP__RPC_CTX) rq->ctx_number = p->slot;
    if (wrong) {
        rq->cancelled = true;
        cdp__rpc_refuse(rpc, rq, CDP_ERR_ABORTED, CDP_RAN_NO, 0, wrong);
        return wrong;
    }
    if ((p->flags & CDP__RPC_REMOTE) && !rq->makes)
        cdp__rpc_refuse(rpc, rq, CDP_ERR_BUSY, CDP_RAN_NO, 0, "the table of references is full");
    else
        cdp__rpc_begin(rpc, rq);
    return NULL;
}

CDP__PRIVATE const char *cdp__rpc_got_answer(
    cdp_rpc *rpc, uint32_t from, const cdp__rpc_packet *p, uint8_t **owned) {
    uint32_t slots[CDP__RPC_RREFS];
    char text[CDP__RPC_TEXT + 1];
    const char *wrong = NULL;
    cdp__rpc_call *c = cdp__rpc_call_find(rpc, p->a);
    if (p->kind == CDP__RPC_REPLY) wrong = cdp__rpc_take(rpc, from, p, slots);
    if (wrong) return wrong;
    if (!c || c->to != from || !c->left || c->wire_over) {
        cdp__rpc_untake(rpc, slots, p->kind == CDP__RPC_REPLY ? p->rrefs : 0);
        return "an answer to no call";
    }
    if (p->kind == CDP__RPC_REPLY) {
        if (cdp__rpc_reply_received(rpc, c, p, slots, *owned)) *owned = NULL;
    } else {
        const uint32_t ran = (uint32_t)(p->b >> 32);
        if (!cdp__status_is_error((int32_t)(0u - p->aux)) || ran > CDP_RAN_YES)
            return "an unknown status";
        cdp__text_foreign(text, sizeof text, p->body, p->bytes);
        cdp__rpc_failure_received(
            rpc, c, (cdp_status) - (int32_t)p->aux, (cdp_ran)ran, (int32_t)(uint32_t)p->b, text);
    }
    cdp__rpc_wire_over(rpc, c);
    return NULL;
}

/* Removes a request from the list in which it waits. False: it runs, or is kept. */
CDP__PRIVATE bool cdp__rpc_unstage(cdp_rpc *rpc, cdp__rpc_rq *rq) {
    cdp__rpc_value *v = rq->on ? rpc->extra[rq->on].value : NULL;
    bool found = false;
    if (rq->stage == CDP__RPC_CONFIRMING) found = cdp__rpc_unlist(&rpc->confirming, NULL, rq);
    if (rq->stage == CDP__RPC_PARKED) found = cdp__rpc_unlist(&v->parked, &v->parked_end, rq);
    if (rq->stage == CDP__RPC_QUEUED)
        found = cdp__rpc_unlist(&rpc->queue, &rpc->queue_end, rq)
            || cdp__rpc_unlist(&rpc->inline_queue, &rpc->inline_end, rq);
    rq->stage = found ? CDP__RPC_NEW : rq->stage;
    return found;
}

CDP__PRIVATE void cdp__rpc_got_cancel(cdp_rpc *rpc, uint32_t from, uint64_t call) {
    cdp__rpc_rq *rq = rpc->all;
    cdp__rpc_in *came;
    for (came = rpc->in; came; came = came->next)
        if (came->m.peer == from && came->m.a == call) came->cancelled = true;
    while (rq && (rq->pub.from != from || rq->call != call || rq->stage == CDP__RPC_REPLIED))
        rq = rq->after;
    if (!rq) return; /* it is answered already */
    if (cdp__rpc_unstage(rpc, rq))
        cdp__rpc_refuse(rpc, rq, CDP_ERR_ABORTED, CDP_RAN_NO, 0, "cancelled before it ran");
    else
        rq->cancelled = true;
}

/* The call may have ended meanwhile. */
CDP__PRIVATE void cdp__rpc_got_held(cdp_rpc *rpc, uint32_t from, const cdp__rpc_packet *p) {
    cdp__rpc_call *c = cdp__rpc_call_find(rpc, p->a);
    if (!c || c->to != from) return;
    c->held = (cdp__rpc_why)p->aux;
    c->held_limit = p->b;
}

/* Handles a list of ACCEPT or DELETE. */
CDP__PRIVATE bool cdp__rpc_got_list(cdp_rpc *rpc, uint32_t from, const cdp__rpc_packet *p) {
    uint64_t a = p->a, b = p->b, i;
    bool honest = true;
    for (i = 0; honest; i += 16) {
        honest = p->kind == CDP__RPC_ACCEPT ? cdp__ref_got_accept(&rpc->refs, from, b)
                                            : cdp__ref_got_delete(&rpc->refs, from, a, b);
        if (i >= p->bytes) break;
        a = cdp__get_u64(p->body + i);
        b = cdp__get_u64(p->body + i + 8);
    }
    return honest;
}

/* Handles a complete message. *owned: its body, if this rank may keep it. Returns NULL or what
   is wrong. */
CDP__PRIVATE const char *cdp__rpc_got(
    cdp_rpc *rpc, uint32_t from, const cdp__rpc_packet *p, uint8_t **owned, bool cancelled) {
    bool honest = true;
    if (p->kind != CDP__RPC_ROLL) ++rpc->peers[from].received;
    rpc->bytes_in += CDP__HEAD_BYTES + p->bytes;
    switch (p->kind) {
    case CDP__RPC_CALL: return cdp__rpc_got_call(rpc, from, p, owned, cancelled);
    case CDP__RPC_REPLY:
    case CDP__RPC_FAIL: return cdp__rpc_got_answer(rpc, from, p, owned);
    case CDP__RPC_CANCEL: cdp__rpc_got_cancel(rpc, from, p->a); break;
    case CDP__RPC_REMOTE_ACK:
    case CDP__RPC_FORK_ACK:
        honest = cdp__ref_got_ack(&rpc->refs, from, p->b, (cdp__ref_how)p->aux);
        break;
    case CDP__RPC_FORK:
        (void)cdp__rpc_reserve(rpc, 1);
        honest = cdp__ref_got_fork(&rpc->refs, from, p->a, p->b);
        break;
    case CDP__RPC_ACCEPT:
    case CDP__RPC_DELETE: honest = cdp__rpc_got_list(rpc, from, p); break;
    case CDP__RPC_MARK:
    case CDP__RPC_GRAD:
    case CDP__RPC_DONE: return cdp__ctx_got_wave(rpc, from, p);
    case CDP__RPC_JOIN:
    case CDP__RPC_CTX_FAIL:
    case CDP__RPC_CTX_END:
    case CDP__RPC_CTX_ENDED: return cdp__ctx_got_member(rpc, from, p);
    case CDP__RPC_HELD: cdp__rpc_got_held(rpc, from, p); break;
    case CDP__RPC_ROLL: return cdp__rpc_got_roll(rpc, from, p);
    case CDP__RPC_KINDS: break;
    }
    return honest ? NULL : "a reference that it does not have";
}

/* ---- long bodies */

CDP__PRIVATE void cdp__rpc_in_close(cdp_rpc *rpc, cdp__rpc_in *came) {
    cdp__rpc_in **at = &rpc->in;
    while (*at != came)
        at = &(*at)->next;
    *at = came->next;
    if (!*at) rpc->in_end = at;
    --rpc->peers[came->m.peer].arriving;
    cdp__rpc_area_free(rpc, came->body);
    cdp__free(rpc->os, came);
}

/* Which sum the bytes of a message count to; NULL: none. */
CDP__PRIVATE uint64_t *cdp__rpc_in_sum(cdp_rpc *rpc, const cdp__rpc_in *came) {
    const uint32_t kind = came->m.kind & 0xff;
    if (kind == CDP__RPC_CALL) return &rpc->in_bytes;
    return kind == CDP__RPC_GRAD ? &rpc->grad_bytes : NULL;
}

/* True if there is memory for a long argument or a gradient, of which there are `held` bytes. */
CDP__PRIVATE bool cdp__rpc_bytes_fit(const cdp_rpc *rpc, const cdp__rpc_in *one, uint64_t held) {
    const bool nested = (one->m.kind & 0xff) == CDP__RPC_CALL && (one->m.b >> 48 & 1);
    const int32_t level = (int32_t)(one->m.b >> 32 & 0xffff);
    const cdp__rpc_rq *rq;
    const cdp__rpc_in *came;
    uint64_t deep = 0;
    for (rq = rpc->all; nested && rq; rq = rq->after)
        if (rq->nested && rq->level >= level) deep += rq->counted;
    for (came = rpc->in; nested && came; came = came->next)
        if (came->body && (came->m.kind & 0xff) == CDP__RPC_CALL && (came->m.b >> 48 & 1)
            && (int32_t)(came->m.b >> 32 & 0xffff) >= level)
            deep += came->m.bytes;
    return cdp__bytes_fit(held, deep, nested, one->m.bytes, rpc->desc.max_queue_bytes);
}

/* Fetches offered bodies while there is memory for them. Results are always fetched: each call has
   one. Arguments and gradients do not wait for each other, since a pass may run inside a
   function. */
CDP__PRIVATE void cdp__rpc_fetch_more(cdp_rpc *rpc) {
    cdp__rpc_in *came = rpc->in, *next;
    for (; came; came = next) {
        const bool result = (came->m.kind & 0xff) != CDP__RPC_CALL;
        uint64_t *sum = cdp__rpc_in_sum(rpc, came);
        next = came->next;
        if (came->body || rpc->lost[came->m.peer]) continue;
        if (sum && !cdp__rpc_bytes_fit(rpc, came, *sum) && !CDP__RPC_PLANT(NO_LIMIT_OF_BYTES))
            continue;
        came->body = (uint8_t *)cdp__rpc_area_alloc(rpc, came->m.bytes);
        if (!came->body) {
            const bool grad = (came->m.kind & 0xff) == CDP__RPC_GRAD;
            cdp__rpc_call *c = result && !grad ? cdp__rpc_call_find(rpc, came->m.a) : NULL;
            cdp_ctx *ctx = grad ? cdp__ctx_find(rpc, came->m.a) : NULL;
            if (ctx) cdp__ctx_fail_here(rpc, ctx, CDP_ERR_NOMEM, "out of memory for a gradient");
            ++rpc->peers[came->m.peer].received;
            (void)!cdp_channel_refuse(rpc->channel, came->m.peer, came->m.handle);
            if (c && c->to == came->m.peer)
                cdp__rpc_call_failed(
                    rpc, c, CDP_ERR_NOMEM, CDP_RAN_YES, "out of memory for its result");
            cdp__rpc_in_close(rpc, came);
            continue;
        }
        if (sum) *sum += came->m.bytes;
        if (cdp_channel_fetch(rpc->channel, came->m.peer, came->m.handle, came->body, came->m.bytes)
            != CDP_OK)
            cdp__rpc_give_up(rpc, came->m.peer, "its message could not be fetched");
    }
}

CDP__PRIVATE const char *cdp__rpc_offered(cdp_rpc *rpc, const cdp_channel_message *m) {
    cdp__rpc_peer *peer = &rpc->peers[m->peer];
    cdp__rpc_in *came;
    const uint64_t most =
        2ull * rpc->share + CDP__RPC_LEVELS + peer->flight[0].calls + peer->flight[1].calls;
    if ((m->kind & 0xff) != CDP__RPC_GRAD && peer->arriving >= most)
        return "more calls at once than were agreed upon";
    if ((m->kind & 0xff) == CDP__RPC_REPLY) { /* memory for one result of each call */
        cdp__rpc_call *c = cdp__rpc_call_find(rpc, m->a);
        if (!c || c->to != m->peer || !c->left || c->wire_over || c->result_comes)
            return "an answer to no call";
        c->result_comes = true;
    }
    came = (cdp__rpc_in *)cdp__alloc_zero(rpc->os, sizeof *came);
    if (!came) return "out of memory for a message of it";
    came->m = *m;
    came->arrived_ns = cdp__rpc_time(rpc);
    if ((m->kind & 0xff) == CDP__RPC_CALL && (uint32_t)m->b != CDP_NO_TIMEOUT) {
        const uint64_t ends = came->arrived_ns + (uint64_t)(uint32_t)m->b * CDP__MS;
        came->report_ns = cdp__rpc_notify_at(rpc, m->kind >> 8 & 0xff, ends);
        if (came->report_ns) cdp__rpc_timer(rpc, came->report_ns);
    }
    ++peer->arriving;
    *rpc->in_end = came;
    rpc->in_end = &came->next;
    return NULL;
}

/* ---- callbacks of the channel; the lock is not held */

/* Continues with everything that has become possible. */
CDP__PRIVATE void cdp__rpc_tidy(cdp_rpc *rpc) {
    while (rpc->confirmed || rpc->waves) {
        cdp__ctx_steps(rpc);
        if (!rpc->confirmed) break;
        rpc->confirmed = false;
        cdp__rpc_look_again(rpc);
    }
    if (rpc->tasks || rpc->inline_queue) cdp__rpc_timer(rpc, 0);
    if (rpc->queue && rpc->idle) rpc->os->threads.cond_broadcast(rpc->os->user, rpc->cond);
}

CDP__PRIVATE void cdp__rpc_leave(cdp_rpc *rpc) {
    bool wake;
    cdp__rpc_tidy(rpc);
    wake = rpc->changed && rpc->waiters && rpc->channel;
    rpc->changed = false;
    if (wake) cdp_channel_wake(rpc->channel);
    cdp_lock_release(&rpc->lock);
}

/* It is no part of the function that waits in this thread. */
CDP__PRIVATE void cdp__rpc_run_task(cdp_rpc *rpc, cdp__rpc_task *task) {
    cdp__rpc_here *here = cdp__rpc_here_of();
    cdp__rpc_rq *outer = here->request;
    const int32_t level = here->level;
    cdp_lock_release(&rpc->lock);
    here->request = NULL;
    here->level = 0;
    ++here->no_wait;
    task->run(rpc, task);
    --here->no_wait;
    here->level = level;
    here->request = outer;
    cdp__rpc_lock(rpc);
}

/* Runs tasks and INLINE functions. The lock is released meanwhile. */
CDP__PRIVATE void cdp__rpc_tasks(cdp_rpc *rpc) {
    while (rpc->tasks || rpc->inline_queue || rpc->confirmed) {
        cdp__rpc_task *task = rpc->tasks;
        cdp__rpc_rq *rq = rpc->inline_queue;
        if (rpc->confirmed) {
            rpc->confirmed = false;
            cdp__rpc_look_again(rpc);
        } else if (rq) {
            rpc->inline_queue = rq->next;
            if (!rq->next) rpc->inline_end = &rpc->inline_queue;
            cdp__rpc_run(rpc, rq);
        } else {
            rpc->tasks = task->next;
            if (!task->next) rpc->tasks_end = &rpc->tasks;
            cdp__rpc_run_task(rpc, task);
        }
    }
}

CDP__PRIVATE void cdp__rpc_leave_callback(cdp_rpc *rpc) {
    cdp__rpc_tasks(rpc);
    cdp__rpc_fetch_more(rpc);
    cdp__rpc_tidy(rpc);
    rpc->changed = false; /* waits check again after every callback */
    cdp_lock_release(&rpc->lock);
}

CDP__PRIVATE void cdp__rpc_deliver(void *user, const cdp_channel_message *m) {
    cdp_rpc *rpc = (cdp_rpc *)user;
    cdp__rpc_packet p;
    uint8_t *owned = NULL;
    const char *wrong;
    cdp__rpc_lock(rpc);
    wrong = cdp__rpc_read(m, rpc->rank, rpc->ranks, rpc->desc.max_message_bytes, &p);
    if (!wrong && p.kind == CDP__RPC_GRAD && !rpc->peers[m->peer].marks--) {
        rpc->peers[m->peer].marks = 0;
        wrong = "a gradient that was not announced";
    }
    if (!wrong)
        wrong =
            m->handle ? cdp__rpc_offered(rpc, m) : cdp__rpc_got(rpc, m->peer, &p, &owned, false);
    if (wrong) cdp__rpc_give_up(rpc, m->peer, wrong);
    cdp__rpc_leave_callback(rpc);
}

/* The time of a request goes on while its arguments wait for memory. */
CDP__PRIVATE void cdp__rpc_waited(cdp_rpc *rpc, const cdp__rpc_in *came, cdp__rpc_packet *p) {
    const uint64_t ms = (cdp__rpc_time(rpc) - came->arrived_ns) / CDP__MS;
    if (p->kind != CDP__RPC_CALL || (uint32_t)p->b == CDP_NO_TIMEOUT) return;
    p->b -= cdp__min(ms, (uint32_t)p->b);
}

CDP__PRIVATE void cdp__rpc_fetched(void *user, uint32_t from, uint64_t handle, cdp_status status) {
    cdp_rpc *rpc = (cdp_rpc *)user;
    cdp__rpc_packet p;
    cdp__rpc_in *came;
    const char *wrong = NULL;
    cdp__rpc_lock(rpc);
    for (came = rpc->in; came && (came->m.peer != from || came->m.handle != handle || !came->body);)
        came = came->next;
    if (came) {
        uint64_t *sum = cdp__rpc_in_sum(rpc, came);
        uint8_t *owned = came->body;
        came->body = NULL;
        came->m.handle = 0;
        came->m.body = owned;
        if (status != CDP_OK) ++rpc->peers[from].received;
        if (status == CDP_OK)
            wrong = cdp__rpc_read(&came->m, rpc->rank, rpc->ranks, rpc->desc.max_message_bytes, &p);
        if (status == CDP_OK && !wrong) {
            cdp__rpc_waited(rpc, came, &p);
            wrong = cdp__rpc_got(rpc, from, &p, &owned, came->cancelled);
        }
        if (owned && sum) *sum -= came->m.bytes;
        cdp__rpc_area_free(rpc, owned);
        cdp__rpc_in_close(rpc, came);
    }
    if (wrong) cdp__rpc_give_up(rpc, from, wrong);
    cdp__rpc_leave_callback(rpc);
}

CDP__PRIVATE void cdp__rpc_released(void *user, uint32_t to, uint64_t handle, cdp_status status) {
    cdp_rpc *rpc = (cdp_rpc *)user;
    cdp__rpc_out **at, *o;
    cdp__rpc_lock(rpc);
    at = &rpc->peers[to].offered;
    while (*at && (*at)->handle != handle)
        at = &(*at)->next;
    o = *at;
    if (o) *at = o->next;
    if (o && status == CDP_OK) {
        cdp__rpc_out_free(rpc, o);
    } else if (o) {
        cdp__rpc_call *c = o->p.kind == CDP__RPC_CALL ? cdp__rpc_call_find(rpc, o->p.a) : NULL;
        const bool refused = status == CDP_ERR_ABORTED;
        const uint64_t fid = c ? c->remote_fid : 0;
        cdp__rpc_out_drop(rpc, o);
        if (fid) (void)cdp__ref_got_ack(&rpc->refs, to, fid, CDP__REF_FULL);
        if (c && !rpc->lost[to])
            cdp__rpc_call_failed(rpc, c, refused ? CDP_ERR_BUSY : status,
                refused ? CDP_RAN_NO : CDP_RAN_UNKNOWN,
                refused ? "that rank has no memory for its arguments"
                        : "its arguments could not be sent");
    }
    cdp__rpc_leave_callback(rpc);
}

CDP__PRIVATE void cdp__rpc_credit(void *user, uint32_t peer) {
    cdp_rpc *rpc = (cdp_rpc *)user;
    cdp__rpc_lock(rpc);
    cdp__rpc_flush(rpc, peer);
    cdp__rpc_leave_callback(rpc);
}

/* ---- a peer is lost */

CDP__PRIVATE void cdp__rpc_notify_lost(cdp_rpc *rpc, cdp__rpc_task *task) {
    cdp__rpc_peer *peer = (cdp__rpc_peer *)task;
    if (rpc->desc.lost) rpc->desc.lost(rpc->desc.user, (uint32_t)(peer - rpc->peers), &peer->why);
}

/* A peer is lost: ends everything that waits for it. Lock held. */
CDP__PRIVATE void cdp__rpc_lose(cdp_rpc *rpc, uint32_t rank) {
    cdp__rpc_peer *peer = &rpc->peers[rank];
    cdp__rpc_rq *rq, *after;
    cdp__rpc_in *came, *next;
    uint32_t i;
    rpc->lost[rank] = true;
    for (i = 1; i <= rpc->call_count; ++i) {
        cdp__rpc_call *c = rpc->calls[i];
        if (c->used && c->to == rank && !c->wire_over)
            cdp__rpc_call_failed(
                rpc, c, CDP_ERR_PEER_LOST, c->left ? CDP_RAN_UNKNOWN : CDP_RAN_NO, peer->why.text);
    }
    while (peer->queue) {
        cdp__rpc_out *o = peer->queue;
        peer->queue = o->next;
        cdp__rpc_out_drop(rpc, o);
    }
    peer->list = NULL;
    peer->queue_end = &peer->queue;
    for (came = rpc->in; came; came = next) {
        next = came->next;
        if (came->m.peer == rank && !came->body) cdp__rpc_in_close(rpc, came);
    }
    for (rq = rpc->all; rq; rq = after) {
        after = rq->after;
        if (rq->pub.from != rank || rq->stage == CDP__RPC_REPLIED) continue;
        rq->cancelled = true;
        if (!cdp__rpc_unstage(rpc, rq)) continue;
        cdp__rpc_refuse(rpc, rq, CDP_ERR_PEER_LOST, CDP_RAN_NO, 0, "its caller is lost");
        after = rpc->all; /* other requests may have ended, too: start over */
    }
    cdp__ref_lost(&rpc->refs, rank);
    cdp__ctx_lose(rpc, rank);
    rpc->confirmed = rpc->changed = true;
}

CDP__PRIVATE void cdp__rpc_peer_lost(void *user, uint32_t rank, const cdp_error *why) {
    cdp_rpc *rpc = (cdp_rpc *)user;
    cdp__rpc_lock(rpc);
    rpc->peers[rank].why = *why;
    rpc->peers[rank].task.run = cdp__rpc_notify_lost;
    if (cdp__rpc_tells_lost(rpc, rank)) cdp__rpc_add_task(rpc, &rpc->peers[rank].task);
    cdp__rpc_lose(rpc, rank);
    cdp__rpc_roll_lost(rpc, rank);
    cdp__rpc_leave_callback(rpc);
}

/* ---- time */

/* Refuses a request whose time was over while it waited. It is in no list any more. */
CDP__PRIVATE void cdp__rpc_refuse_late(
    cdp_rpc *rpc, cdp__rpc_rq *rq, cdp__rpc_why why, uint64_t limit) {
    char held[CDP__RPC_HELD_TEXT], text[CDP__RPC_HELD_TEXT + 40];
    cdp__format(text, sizeof text, "its time was over before it ran%s",
        cdp__rpc_held_text(held, why, limit, rq->nested && !rq->level));
    cdp__rpc_refuse(rpc, rq, CDP_ERR_TIMEOUT, CDP_RAN_NO, 0, text);
}

/* Tells callers whose arguments still wait for memory; returns when to do so again. */
CDP__PRIVATE uint64_t cdp__rpc_notify_offers(cdp_rpc *rpc, uint64_t now) {
    uint64_t next = CDP__NEVER;
    cdp__rpc_in *came;
    for (came = rpc->in; came; came = came->next) {
        if (came->body || !came->report_ns) continue;
        if (came->report_ns <= now) {
            cdp__rpc_notify(
                rpc, came->m.peer, came->m.a, CDP__RPC_FOR_BYTES, rpc->desc.max_queue_bytes);
            came->report_ns = 0;
        } else {
            next = cdp__min(next, came->report_ns);
        }
    }
    return next;
}

/* Ends calls and requests that are late, and sets the timer to the next deadline. Lock held. */
CDP__PRIVATE void cdp__rpc_expire(cdp_rpc *rpc) {
    const uint64_t now = cdp__rpc_time(rpc);
    uint64_t next = CDP__NEVER;
    cdp__rpc_rq *rq, *after;
    cdp__rpc_why why;
    uint64_t limit;
    uint32_t i;
    for (i = 1; i <= rpc->call_count; ++i) {
        cdp__rpc_call *c = rpc->calls[i];
        if (!c->used || !c->call || CDP__RPC_PLANT(NO_DEADLINE)) continue;
        if (c->deadline_ns <= now)
            cdp__rpc_abandon(rpc, c, CDP_ERR_TIMEOUT);
        else
            next = cdp__min(next, c->deadline_ns);
    }
    for (rq = rpc->all; rq; rq = after) {
        after = rq->after;
        if (rq->stage == CDP__RPC_REPLIED || rq->stage == CDP__RPC_RUNNING
            || rq->stage == CDP__RPC_KEPT)
            continue;
        why = cdp__rpc_waits_for(rpc, rq, &limit);
        if (rq->pub.deadline_ns > now) {
            if (rq->report_ns && rq->report_ns <= now) {
                cdp__rpc_notify(rpc, rq->pub.from, rq->call, why, limit);
                rq->report_ns = 0;
            }
            next = cdp__min(next, rq->report_ns ? rq->report_ns : rq->pub.deadline_ns);
        } else if (cdp__rpc_unstage(rpc, rq)) {
            cdp__rpc_refuse_late(rpc, rq, why, limit);
            after = rpc->all;
        }
    }
    next = cdp__min(next, cdp__rpc_notify_offers(rpc, now));
    if (next != CDP__NEVER) cdp__rpc_timer(rpc, next);
}

CDP__PRIVATE void cdp__rpc_tick(void *user) {
    cdp_rpc *rpc = (cdp_rpc *)user;
    cdp__rpc_lock(rpc);
    rpc->timer_ns = CDP__NEVER;
    cdp__rpc_expire(rpc);
    cdp__rpc_leave_callback(rpc);
}

#endif /* CDP_SRC_RPC_INTAKE_H */
