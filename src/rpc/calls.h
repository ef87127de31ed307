/* rpc/calls.h - calls of this rank

   Knows: records of calls. Promises: a call ends once, by its deadline; `ran` is NO only if the
   function did not run and never will. */
#ifndef CDP_SRC_RPC_CALLS_H
#define CDP_SRC_RPC_CALLS_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/error_api.h"
#include "../message/transport_api.h"
#include "../group/group_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../text/format.h"
#include "../base/text.h"
#include "../group/deferred.h"
#include "../group/progress.h"
#include "worker_api.h"
#include "calls_api.h"
#include "table.h"
#include "forks.h"
#include "packets.h"
#include "state.h"
#include "pools.h"
#include "send.h"
#include "contexts.h"

enum {
    CDP__CALL_RPC,
    CDP__CALL_ID,                /* while it is under way */
    CDP__CALL_OS = CDP__CALL_ID, /* afterwards */
    CDP__CALL_STAGE,
    CDP__CALL_MEMORY,
    CDP__CALL_TENSORS,
    CDP__CALL_WORK,
    CDP__CALL_ROOM,
    CDP__CALL_WORDS = 10
};
#define CDP__CALL_UNDER_WAY 1u
#define CDP__CALL_ENDED 2u

/* Completes the work of a call. */
CDP__PRIVATE void cdp__rpc_end_work(cdp_rpc *rpc, cdp_call *call) {
    const uint64_t seq = call->priv[CDP__CALL_WORK];
    if (!seq) return;
    cdp__enter(rpc->group);
    cdp__deferred_close(&rpc->group->deferred.entries[seq & 0xffff], call->status != CDP_OK);
    cdp__world_wake(rpc->group->w);
    cdp__leave(rpc->group);
    call->priv[CDP__CALL_WORK] = 0;
}

/* The program owns its call again. */
CDP__PRIVATE void cdp__rpc_publish(cdp_rpc *rpc, cdp_call *call) {
    cdp__rpc_end_work(rpc, call);
    /* what cdp_call_free() needs if the rpc is destroyed before */
    call->priv[CDP__CALL_OS] = (uint64_t)(uintptr_t)rpc->os;
    call->priv[CDP__CALL_STAGE] = CDP__CALL_ENDED;
    rpc->changed = true;
}

CDP__PRIVATE void cdp__rpc_call_over(cdp_rpc *rpc, cdp__rpc_call *c) {
    if (c->call || c->done_call || !c->wire_over) return;
    cdp__rpc_call_close(rpc, c);
}

/* Tells the program that its call has ended; then it owns the call again. Takes the lock. */
CDP__PRIVATE void cdp__rpc_tell(
    cdp_rpc *rpc, cdp_call *call, void (*done)(void *user, cdp_call *call), void *user) {
    cdp__rpc_here *here = cdp__rpc_here_of();
    if (call->status != CDP_OK) *cdp__error_slot() = call->error;
    here->done = call;
    done(user, call);
    if (CDP__RPC_PLANT(TOLD_TWICE)) done(user, call);
    cdp__rpc_lock(rpc);
    if (here->done) cdp__rpc_publish(rpc, call);
    here->done = NULL;
}

CDP__PRIVATE void cdp__rpc_done(cdp_rpc *rpc, cdp__rpc_task *task) {
    cdp__rpc_call *c = (cdp__rpc_call *)task;
    cdp__rpc_tell(rpc, c->done_call, c->done, c->done_user);
    c->done_call = NULL;
    cdp__rpc_call_over(rpc, c);
    cdp_lock_release(&rpc->lock);
}

/* Ends the call for the program. For a failure, this thread's last error is copied. */
CDP__PRIVATE void cdp__rpc_end(
    cdp_rpc *rpc, cdp__rpc_call *c, cdp_status status, cdp_ran ran, int32_t code) {
    cdp_call *call = c->call;
    if (!call) return;
    cdp__rpc_record_end(rpc, c, status, ran);
    rpc->late += status == CDP_ERR_TIMEOUT;
    c->call = NULL;
    call->status = status;
    call->ran = ran;
    call->code = code;
    if (status != CDP_OK) {
        call->error = *cdp_last_error();
        call->error.status = status;
        call->error.rank = (int32_t)cdp_world_rank_of(rpc->group, rpc->rank);
    }
    if (!c->done) {
        cdp__rpc_publish(rpc, call);
        return;
    }
    c->done_call = call;
    c->task.run = cdp__rpc_done;
    cdp__rpc_add_task(rpc, &c->task);
}

/* No more messages of this call will arrive. */
CDP__PRIVATE void cdp__rpc_wire_over(cdp_rpc *rpc, cdp__rpc_call *c) {
    const uint32_t on = c->on;
    if (c->wire_over) return;
    cdp__rpc_record_end(rpc, c, CDP_OK, CDP_RAN_UNKNOWN); /* nobody waited for it */
    c->wire_over = true;
    --rpc->peers[c->to].flight[c->nested].calls;
    rpc->peers[c->to].flight[c->nested].bytes -= c->bytes;
    rpc->moved_ns = cdp__rpc_time(rpc);
    rpc->changed = true;
    c->on = 0;
    if (c->order) rpc->confirmed = true; /* the next call of the order may have its turn */
    if (on) cdp__ref_off_wire(&rpc->refs, on);
    cdp__rpc_call_over(rpc, c);
}

/* Sets the last error, with the beginning that all texts about a call have. */
CDP__PRIVATE CDP__PRINTF(4, 5) void cdp__rpc_set_error(
    cdp_rpc *rpc, const cdp__rpc_call *c, cdp_status status, const char *format, ...) {
    char name[16], text[CDP__RPC_TEXT + 1];
    cdp__text t = cdp__text_of(text, sizeof text);
    va_list ap;
    va_start(ap, format);
    cdp__text_add_v(&t, format, ap);
    va_end(ap);
    (void)cdp__fail_peer(status, cdp_world_rank_of(rpc->group, c->to), 0, "%s on rank %u (%s): %s",
        c->function ? cdp__rpc_function_name(rpc, c->function, name) : "the value", c->to,
        rpc->peers[c->to].name, text);
}

/* Room for a result: for references, and then, or where the program wants it, for its contents.
   NULL: out of memory. */
CDP__PRIVATE uint8_t *cdp__rpc_result_room(
    cdp_rpc *rpc, cdp_call *call, uint32_t rrefs, uint32_t tensors, uint64_t bytes) {
    const uint64_t need = rrefs * sizeof(cdp_rref) + (call->into.data ? 0 : bytes);
    uint8_t *at = (uint8_t *)&call->priv[CDP__CALL_ROOM];
    if (tensors) {
        call->tensors = (cdp_tensor *)cdp__alloc(rpc->os, tensors * sizeof *call->tensors);
        call->priv[CDP__CALL_TENSORS] = (uint64_t)(uintptr_t)call->tensors;
        if (!call->tensors) return NULL;
        call->tensor_count = tensors;
    }
    if (need > 8 * (CDP__CALL_WORDS - CDP__CALL_ROOM)) {
        at = (uint8_t *)cdp__alloc(rpc->os, need);
        call->priv[CDP__CALL_MEMORY] = (uint64_t)(uintptr_t)at;
        if (!at) return NULL;
    }
    call->rrefs = rrefs ? (cdp_rref *)(void *)at : NULL;
    call->rref_count = rrefs;
    return call->into.data ? (uint8_t *)call->into.data : at + rrefs * sizeof(cdp_rref);
}

/* Where the program wants the result, there is room for it; else the call has failed. */
CDP__PRIVATE bool cdp__rpc_result_fits(cdp_rpc *rpc, cdp__rpc_call *c, uint64_t bytes) {
    if (!c->call->into.data || bytes <= c->call->into.bytes) return true;
    cdp__rpc_set_error(rpc, c, CDP_ERR_INVALID,
        "its result has %llu bytes, into of the cdp_call has room for %llu",
        (unsigned long long)bytes, (unsigned long long)c->call->into.bytes);
    cdp__rpc_end(rpc, c, CDP_ERR_INVALID, CDP_RAN_YES, 0);
    return false;
}

/* The contents of a result are in `area`; its tensors are described by `like`. */
CDP__PRIVATE void cdp__rpc_result_in(
    cdp_call *call, const cdp_tensor *like, uint8_t *area, uint64_t bytes) {
    uint8_t *at = cdp__rpc_tensors_in(call->tensors, like, call->tensor_count, area);
    call->bytes = bytes - (uint64_t)(at - area);
    call->data = call->bytes ? at : NULL;
}

/* A call to this rank itself has a result: handles it like one from another rank. */
CDP__PRIVATE void cdp__rpc_own_reply(cdp_rpc *rpc, cdp__rpc_call *c, const cdp_args *args) {
    const uint32_t rrefs = args ? args->rref_count : 0;
    const uint64_t bytes = cdp__rpc_args_bytes(args);
    uint8_t *at = NULL;
    uint32_t i;
    if (!c->call || !cdp__rpc_result_fits(rpc, c, bytes)) return;
    at = cdp__rpc_result_room(rpc, c->call, rrefs, args ? args->tensor_count : 0, bytes);
    if (!at) {
        cdp__rpc_set_error(rpc, c, CDP_ERR_NOMEM, "out of memory: its result needs %llu bytes",
            (unsigned long long)bytes);
        cdp__rpc_end(rpc, c, CDP_ERR_NOMEM, CDP_RAN_YES, 0);
        return;
    }
    for (i = 0; i < rrefs; ++i) {
        c->call->rrefs[i] = args->rrefs[i];
        ++rpc->refs.at[(uint32_t)args->rrefs[i].slot].handles;
    }
    cdp__rpc_gather(at, args);
    cdp__rpc_copied(rpc, bytes);
    cdp__rpc_result_in(c->call, args ? args->tensors : NULL, at, bytes);
    cdp__rpc_end(rpc, c, CDP_OK, CDP_RAN_YES, 0);
}

/* References of a message that is not used. */
CDP__PRIVATE void cdp__rpc_untake(cdp_rpc *rpc, const uint32_t *slots, uint32_t count) {
    uint32_t i;
    for (i = 0; i < count; ++i)
        if (slots[i]) cdp__ref_drop(&rpc->refs, slots[i]);
}

/* A result has come; its references were taken over already. `owned`: the body is ours. True:
   it is the call's now. */
CDP__PRIVATE bool cdp__rpc_reply_received(cdp_rpc *rpc, cdp__rpc_call *c, const cdp__rpc_packet *p,
    const uint32_t *slots, uint8_t *owned) {
    cdp_tensor like[CDP__RPC_TENSORS];
    uint8_t *at;
    uint32_t i;
    bool kept = false;
    for (i = 0; i < p->tensors; ++i) {
        like[i] = cdp__rpc_get_shape(p->shapes + i * CDP__RPC_SHAPE);
        if (like[i].value)
            like[i].value = cdp__ctx_import(rpc, c->ctx, p->slot, c->to, like[i].value);
    }
    if (!c->call || !cdp__rpc_result_fits(rpc, c, p->area_bytes)) {
        cdp__rpc_untake(rpc, slots, p->rrefs);
        return false;
    }
    kept = owned && !p->rrefs && !c->call->into.data;
    at = cdp__rpc_result_room(rpc, c->call, p->rrefs, p->tensors, kept ? 0 : p->area_bytes);
    if (!at) {
        cdp__rpc_untake(rpc, slots, p->rrefs);
        cdp__rpc_set_error(rpc, c, CDP_ERR_NOMEM, "out of memory: its result needs %llu bytes",
            (unsigned long long)p->area_bytes);
        cdp__rpc_end(rpc, c, CDP_ERR_NOMEM, CDP_RAN_YES, 0);
        return false;
    }
    for (i = 0; i < p->rrefs; ++i) {
        memset(&c->call->rrefs[i], 0, sizeof(cdp_rref));
        if (slots[i]) c->call->rrefs[i] = cdp__rpc_rref(rpc, slots[i]);
    }
    if (kept) {
        at = (uint8_t *)(uintptr_t)p->area;
        c->call->priv[CDP__CALL_MEMORY] = (uint64_t)(uintptr_t)owned;
    } else if (p->area_bytes) {
        memcpy(at, p->area, (size_t)p->area_bytes);
        cdp__rpc_copied(rpc, p->area_bytes);
    }
    cdp__rpc_result_in(c->call, like, at, p->area_bytes);
    cdp__rpc_end(rpc, c, CDP_OK, CDP_RAN_YES, 0);
    return kept;
}

/* The owner reports that the call failed, or refuses it. */
CDP__PRIVATE void cdp__rpc_failure_received(cdp_rpc *rpc, cdp__rpc_call *c, cdp_status status,
    cdp_ran ran, int32_t code, const char *text) {
    if (!c->call) return;
    if (status == CDP_ERR_REMOTE && ran == CDP_RAN_YES)
        cdp__rpc_set_error(rpc, c, status, "failed with code %d: %s", code, text);
    else
        cdp__rpc_set_error(rpc, c, status, "%s", text);
    cdp__rpc_end(rpc, c, status, ran, code);
}

/* Removes the message of a call that has not been sent from a queue. */
CDP__PRIVATE bool cdp__rpc_take_back(cdp_rpc *rpc, cdp__rpc_out **list, uint64_t id) {
    cdp__rpc_out **at = list, *o;
    while (*at && ((*at)->p.kind != CDP__RPC_CALL || (*at)->p.a != id))
        at = &(*at)->next;
    o = *at;
    if (!o) return false;
    *at = o->next;
    cdp__rpc_out_drop(rpc, o);
    return true;
}

/* The request of a call to this rank itself whose function has not begun, and will not if it is
   cancelled now; NULL: there is none. */
CDP__PRIVATE const cdp__rpc_rq *cdp__rpc_still_here(const cdp_rpc *rpc, const cdp__rpc_call *c) {
    const uint64_t id = cdp__rpc_call_id(c);
    const cdp__rpc_rq *rq = c->to == rpc->rank ? rpc->all : NULL;
    while (rq && (rq->pub.from != rpc->rank || rq->call != id))
        rq = rq->after;
    return rq && rq->stage < CDP__RPC_RUNNING ? rq : NULL;
}

/* What a request that has not begun waits for. */
CDP__PRIVATE cdp__rpc_why cdp__rpc_waits_for(
    const cdp_rpc *rpc, const cdp__rpc_rq *rq, uint64_t *limit) {
    *limit = 0;
    if (rq->stage == CDP__RPC_CONFIRMING) return CDP__RPC_FOR_RREFS;
    if (rq->stage == CDP__RPC_PARKED) return CDP__RPC_FOR_VALUE;
    if (rq->stage != CDP__RPC_QUEUED || !rq->f) return CDP__RPC_NOT_HELD;
    if (rq->f->max_running && rq->use->running >= rq->f->max_running) {
        *limit = rq->f->max_running;
        return CDP__RPC_FOR_RUNNING;
    }
    *limit = rpc->desc.workers;
    return CDP__RPC_FOR_THREAD;
}

/* The longest time before its deadline at which the caller is told what a request waits for; also
   at most an eighth of the time that it has. */
#define CDP__RPC_NOTIFY_NS 250000000u

/* When to tell the caller: it may give the request up before an answer of this rank arrives.
   0: never. */
CDP__PRIVATE uint64_t cdp__rpc_notify_at(cdp_rpc *rpc, uint32_t flags, uint64_t ends) {
    const uint64_t now = cdp__rpc_time(rpc);
    if ((flags & (CDP__RPC_ONE_WAY | CDP__RPC_REMOTE)) != 0 || ends <= now) return 0;
    return ends - cdp__min((ends - now) / 8, CDP__RPC_NOTIFY_NS);
}

/* Not worth the link if there is no memory for it. */
CDP__PRIVATE void cdp__rpc_notify(
    cdp_rpc *rpc, uint32_t from, uint64_t call, cdp__rpc_why why, uint64_t limit) {
    cdp__rpc_packet p;
    memset(&p, 0, sizeof p);
    p.kind = CDP__RPC_HELD;
    p.a = call;
    p.aux = (uint32_t)why;
    p.b = limit;
    (void)!cdp__rpc_post(rpc, from, &p, NULL);
}

#define CDP__RPC_HELD_TEXT 128u

/* The end of a sentence about a call that was late. restarted: a function that was max_depth calls
   deep has started it, so its level is 0 again. */
CDP__PRIVATE const char *cdp__rpc_held_text(
    char text[CDP__RPC_HELD_TEXT], cdp__rpc_why why, uint64_t limit, bool restarted) {
    switch (why) {
    case CDP__RPC_FOR_THREAD:
        cdp__format(text, CDP__RPC_HELD_TEXT,
            limit ? "; at last it waited for a free thread there: raise workers (%llu) of that "
                    "rank%s"
                  : "; at last it waited for a thread there, which has %llu workers: add some, or "
                    "call cdp_rpc_serve()%s",
            (unsigned long long)limit, restarted ? ", or max_depth of the one that calls" : "");
        return text;
    case CDP__RPC_FOR_RUNNING:
        cdp__format(text, CDP__RPC_HELD_TEXT,
            "; at last it waited there for others of this function: raise its max_running (%llu)",
            (unsigned long long)limit);
        return text;
    case CDP__RPC_FOR_VALUE: return "; at last it waited there for its value (on) to be made";
    case CDP__RPC_FOR_RREFS:
        return "; at last it waited there for references among its arguments to be confirmed";
    case CDP__RPC_FOR_BYTES:
        cdp__format(text, CDP__RPC_HELD_TEXT,
            "; at last its arguments waited for memory there: raise max_queue_bytes (%llu) of that "
            "rank",
            (unsigned long long)limit);
        return text;
    case CDP__RPC_NOT_HELD:
    case CDP__RPC_WHYS: break;
    }
    return "";
}

/* What a call that has left waits for, as far as this rank was told. */
CDP__PRIVATE const char *cdp__rpc_held_there(
    const cdp_rpc *rpc, const cdp__rpc_call *c, char text[CDP__RPC_HELD_TEXT]) {
    const cdp__rpc_rq *rq = cdp__rpc_still_here(rpc, c);
    uint64_t limit = c->held_limit;
    const cdp__rpc_why why = rq ? cdp__rpc_waits_for(rpc, rq, &limit) : c->held;
    return cdp__rpc_held_text(text, why, limit, c->nested && !c->level);
}

CDP__PRIVATE const char *cdp__rpc_ran_text(
    const cdp_rpc *rpc, const cdp__rpc_call *c, cdp_ran ran) {
    if (ran != CDP_RAN_NO) return "whether it ran is not known";
    return c->to == rpc->rank ? "it had not begun" : "the call never left this rank";
}

/* What a call that has not left this rank waits for. */
CDP__PRIVATE const char *cdp__rpc_held(const cdp_rpc *rpc, const cdp__rpc_call *c) {
    const uint64_t id = cdp__rpc_call_id(c);
    const cdp__rpc_out *o = rpc->waiting;
    if (c->no_room)
        return c->nested ? ": as many calls from functions as max_calls, its part of max_queue "
                           "there or max_call_bytes allow were under way"
                         : ": as many calls as max_calls, its part of max_queue there or "
                           "max_call_bytes allow were under way";
    while (o && (o->p.kind != CDP__RPC_CALL || o->p.a != id))
        o = o->next;
    if (!o) return ": that rank took no messages";
    if (o->in_order) return ": an earlier call of its order (in_order) has not been answered";
    return ": a reference in it was not confirmed";
}

/* Ends a call that the program does not wait for any longer; status is TIMEOUT, ABORTED, STATE, or
   BUSY (max_depth). */
CDP__PRIVATE void cdp__rpc_abandon(cdp_rpc *rpc, cdp__rpc_call *c, cdp_status status) {
    cdp__rpc_peer *peer = &rpc->peers[c->to];
    const uint64_t id = cdp__rpc_call_id(c);
    const bool never_left = !c->left; /* for a call to this rank: there is no request of it yet */
    cdp_ran ran = CDP_RAN_UNKNOWN;
    char text[CDP__RPC_HELD_TEXT];
    const char *held = never_left ? cdp__rpc_held(rpc, c) : cdp__rpc_held_there(rpc, c, text);
    if (never_left && c->to != rpc->rank) {
        (void)(cdp__rpc_take_back(rpc, &rpc->waiting, id)
            || cdp__rpc_take_back(rpc, &peer->queue, id));
        for (peer->queue_end = &peer->queue; *peer->queue_end;)
            peer->queue_end = &(*peer->queue_end)->next;
    }
    if (never_left || cdp__rpc_still_here(rpc, c)) ran = CDP_RAN_NO;
    if (status == CDP_ERR_TIMEOUT)
        cdp__rpc_set_error(rpc, c, status, "no answer within %llu ms%s; %s%s",
            (unsigned long long)(c->deadline_ns > c->start_ns
                    ? (c->deadline_ns - c->start_ns) / CDP__MS
                    : 0),
            c->cut ? "; the wait that ran the calling function had to end then" : "",
            cdp__rpc_ran_text(rpc, c, ran), held);
    else if (status == CDP_ERR_BUSY)
        cdp__rpc_set_error(rpc, c, status,
            "the function that waits for it is max_depth (%u) calls deep, and must not wait; %s",
            rpc->desc.max_depth, cdp__rpc_ran_text(rpc, c, ran));
    else
        cdp__rpc_set_error(rpc, c, status, "%s",
            status == CDP_ERR_ABORTED ? "cancelled by cdp_call_cancel()"
                                      : "this rank's rpc was destroyed");
    cdp__rpc_end(rpc, c, status, ran, 0);
    if (never_left)
        cdp__rpc_wire_over(rpc, c);
    else if (c->to != rpc->rank)
        cdp__rpc_control(rpc, c->to, CDP__RPC_CANCEL, id, 0, 0);
}

/* Ends a call because its rank is lost, its long body was refused, or a reference in it broke. */
CDP__PRIVATE void cdp__rpc_call_failed(
    cdp_rpc *rpc, cdp__rpc_call *c, cdp_status status, cdp_ran ran, const char *why) {
    if (c->call) {
        cdp__rpc_set_error(rpc, c, status, "%s", why);
        cdp__rpc_end(rpc, c, status, ran, 0);
    }
    cdp__rpc_record_end(rpc, c, status, ran);
    cdp__rpc_wire_over(rpc, c);
}

#endif /* CDP_SRC_RPC_CALLS_H */
