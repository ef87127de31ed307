/* rpc/requests.h - calls that run here

   Knows: requests, values of this rank. Promises: a function runs at most once for each request,
   without the lock; every request is answered once. */
#ifndef CDP_SRC_RPC_REQUESTS_H
#define CDP_SRC_RPC_REQUESTS_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../base/error_api.h"
#include "../message/transport_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../text/format.h"
#include "../base/text.h"
#include "worker_api.h"
#include "calls_api.h"
#include "references_api.h"
#include "table.h"
#include "forks.h"
#include "levels.h"
#include "packets.h"
#include "state.h"
#include "pools.h"
#include "send.h"
#include "calls.h"
#include "passes.h"

CDP__PRIVATE void cdp__rpc_advance(cdp_rpc *rpc, cdp__rpc_rq *rq);
CDP__PRIVATE void cdp__rpc_refuse(
    cdp_rpc *rpc, cdp__rpc_rq *rq, cdp_status status, cdp_ran ran, int32_t code, const char *text);

/* ---- values */

/* Frees what the library has of a value: before `plain` points to it, and when the value ends. */
CDP__PRIVATE void cdp__rpc_value_free_lists(cdp_rpc *rpc, cdp__rpc_value *v) {
    cdp__free(rpc->os, v->area);
    cdp__free(rpc->os, v->iov);
    cdp__free(rpc->os, v->tensors);
    cdp__free(rpc->os, v->rrefs);
    v->area = NULL;
    v->iov = NULL;
    v->tensors = NULL;
    v->rrefs = NULL;
}

CDP__PRIVATE void cdp__rpc_value_end(cdp_rpc *rpc, cdp__rpc_task *task) {
    cdp__rpc_value *v = (cdp__rpc_value *)task;
    uint32_t i;
    if (v->value.destroy) v->value.destroy(v->value.user, v->value.data);
    for (i = 0; v->rrefs && i < v->value.plain.rref_count; ++i)
        cdp_rref_drop(v->rrefs[i]);
    cdp__rpc_value_free_lists(rpc, v);
    cdp__free(rpc->os, v->why);
    cdp__free(rpc->os, v);
}

/* Returns NULL when out of memory. */
CDP__PRIVATE cdp__rpc_value *cdp__rpc_value_make(cdp_rpc *rpc) {
    cdp__rpc_value *v = (cdp__rpc_value *)cdp__alloc_zero(rpc->os, sizeof *v);
    if (!v) {
        (void)cdp__fail_nomem("a value", sizeof *v);
        return NULL;
    }
    v->task.run = cdp__rpc_value_end;
    v->parked_end = &v->parked;
    return v;
}

/* Memory for lists like those of `args`, with `iovs` pieces. The references are checked. After an
   error there is none. */
CDP__PRIVATE cdp_status cdp__rpc_value_lists(
    cdp_rpc *rpc, cdp__rpc_value *v, const cdp_args *args, uint32_t iovs) {
    const uint64_t n = iovs * sizeof *v->iov, t = args->tensor_count * sizeof *v->tensors,
                   r = args->rref_count * sizeof *v->rrefs;
    uint32_t i;
    if (n) v->iov = (cdp_iov *)cdp__alloc(rpc->os, n);
    if (t) v->tensors = (cdp_tensor *)cdp__alloc(rpc->os, t);
    if (r) v->rrefs = (cdp_rref *)cdp__alloc(rpc->os, r);
    if ((n && !v->iov) || (t && !v->tensors) || (r && !v->rrefs)) {
        cdp__rpc_value_free_lists(rpc, v);
        return cdp__fail_nomem("a value", n + t + r);
    }
    if (t) memcpy(v->tensors, args->tensors, (size_t)t);
    for (i = 0; i < args->rref_count; ++i) {
        v->rrefs[i] = args->rrefs[i];
        ++rpc->refs.at[(uint32_t)args->rrefs[i].slot].handles;
    }
    return CDP_OK;
}

/* `plain` of the value is like `args`, in memory of the library. */
CDP__PRIVATE void cdp__rpc_value_plain(cdp__rpc_value *v, const cdp_args *args, uint32_t iovs) {
    v->value.plain = *args;
    v->value.plain.iov = v->iov;
    v->value.plain.iov_count = iovs;
    v->value.plain.tensors = v->tensors;
    v->value.plain.rrefs = v->rrefs;
}

/* The value is that of the program: the lists of its `plain` are copied, what they point to is
   not. Lock held. After an error nothing has changed. */
CDP__PRIVATE cdp_status cdp__rpc_value_keep(
    cdp_rpc *rpc, const char *call, cdp__rpc_value *v, const cdp_value *value) {
    const cdp_args *plain = &value->plain;
    cdp_status st = cdp__rpc_rrefs_check(rpc, call, plain);
    if (st == CDP_OK) st = cdp__rpc_value_lists(rpc, v, plain, plain->iov_count);
    if (st != CDP_OK) return st;
    if (v->iov) memcpy(v->iov, plain->iov, plain->iov_count * sizeof *v->iov);
    v->value = *value;
    cdp__rpc_value_plain(v, plain, plain->iov_count);
    return CDP_OK;
}

/* Makes a copy of results the value. */
CDP__PRIVATE cdp_status cdp__rpc_value_copy(cdp_rpc *rpc, cdp__rpc_value *v, const cdp_args *args) {
    const uint64_t bytes = cdp__rpc_args_bytes(args);
    const cdp_args none = {NULL, 0, NULL, 0, NULL, 0};
    uint8_t *at;
    uint32_t i;
    cdp_status st;
    if (!args) args = &none;
    v->area = (uint8_t *)cdp__alloc(rpc->os, bytes);
    if (!v->area) return cdp__fail_nomem("a value", bytes);
    st = cdp__rpc_value_lists(rpc, v, args, 1);
    if (st != CDP_OK) return st;
    cdp__rpc_gather(v->area, args);
    at = cdp__rpc_tensors_in(v->tensors, args->tensors, args->tensor_count, v->area);
    for (i = 0; i < args->tensor_count; ++i)
        v->tensors[i].value = 0;
    v->iov->data = at;
    v->iov->bytes = bytes - (uint64_t)(at - v->area);
    v->value.data = at;
    cdp__rpc_value_plain(v, args, 1);
    return CDP_OK;
}

/* The value exists, or creating it has failed: requests that wait for it continue. One that fails
   settles the value that it was to make, and so on: those of the inner calls of this function are
   left to the outermost one, because values of one rank can depend on each other in a long row. */
CDP__PRIVATE void cdp__rpc_value_settle(cdp_rpc *rpc, cdp__rpc_value *v) {
    const bool outermost = !rpc->unparked_end;
    cdp__rpc_rq *rq;
    v->settled = true;
    rpc->changed = true;
    if (outermost) rpc->unparked_end = &rpc->unparked;
    for (rq = v->parked; rq; rq = rq->next)
        rq->stage = CDP__RPC_NEW;
    *rpc->unparked_end = v->parked;
    if (v->parked) rpc->unparked_end = v->parked_end;
    v->parked = NULL;
    v->parked_end = &v->parked;
    while (outermost && rpc->unparked) {
        rq = rpc->unparked;
        rpc->unparked = rq->next;
        if (!rq->next) rpc->unparked_end = &rpc->unparked;
        cdp__rpc_advance(rpc, rq);
    }
    if (outermost) rpc->unparked_end = NULL;
}

/* The request does not make its value. What fails later for that reason names its function, not
   the one that was to run on the value. */
CDP__PRIVATE void cdp__rpc_value_fail(
    cdp_rpc *rpc, const cdp__rpc_rq *rq, cdp_status status, int32_t code, const char *text) {
    cdp__rpc_value *v = rpc->extra[rq->makes].value;
    const cdp__rpc_value *on = rq->on ? rpc->extra[rq->on].value : NULL;
    char name[16];
    v->failed = status;
    v->code = code;
    v->why = (char *)cdp__alloc(rpc->os, CDP__RPC_TEXT + 1);
    if (v->why && on && on->settled && on->failed)
        cdp__format(v->why, CDP__RPC_TEXT + 1, "%s", text); /* that names the first one */
    else if (v->why && status == CDP_ERR_REMOTE)
        cdp__format(v->why, CDP__RPC_TEXT + 1, "its value was not made: %s failed with code %d: %s",
            cdp__rpc_function_name(rpc, rq->pub.function, name), code, text);
    else if (v->why)
        cdp__format(v->why, CDP__RPC_TEXT + 1, "its value was not made: %s: %s",
            cdp__rpc_function_name(rpc, rq->pub.function, name), text);
    cdp__rpc_value_settle(rpc, v);
}

/* ---- answers */

/* The request is over; its record ends when its function has returned, too. */
CDP__PRIVATE void cdp__rpc_replied(cdp_rpc *rpc, cdp__rpc_rq *rq, cdp_status status) {
    cdp_rpc_record *record = cdp__rpc_record_of(rpc, rq->record);
    const uint32_t on = rq->on, makes = rq->makes;
    uint32_t i;
    if (record) {
        record->replied_ns = cdp__rpc_time(rpc);
        if (record->from != rpc->rank || !record->end_ns) record->status = status;
    }
    rq->stage = CDP__RPC_REPLIED;
    rq->on = rq->makes = 0;
    for (i = 0; i < rq->pub.rref_count; ++i)
        if (rq->refs[i].rpc) cdp__ref_drop(&rpc->refs, (uint32_t)rq->refs[i].slot);
    if (on) cdp__ref_drop(&rpc->refs, on);
    if (makes) cdp__ref_drop(&rpc->refs, makes);
    if (!rq->in_function) cdp__rpc_rq_close(rpc, rq);
}

/* Call before the answer is sent: the caller counts its calls in flight, and this one is over
   then. */
CDP__PRIVATE void cdp__rpc_uncount(cdp_rpc *rpc, const cdp__rpc_rq *rq) {
    if (rq->pub.from != rpc->rank) --rpc->peers[rq->pub.from].requests[rq->nested];
}

CDP__PRIVATE void cdp__rpc_send_fail(cdp_rpc *rpc, uint32_t to, uint64_t call, cdp_status status,
    cdp_ran ran, int32_t code, const char *text) {
    cdp__rpc_packet p;
    cdp_args args;
    cdp_iov iov;
    memset(&p, 0, sizeof p);
    memset(&args, 0, sizeof args);
    p.kind = CDP__RPC_FAIL;
    p.a = call;
    p.aux = (uint32_t) - (int32_t)status;
    p.b = (uint64_t)ran << 32 | (uint32_t)code;
    iov.data = (void *)(uintptr_t)text;
    iov.bytes = cdp__min(strlen(text), CDP__RPC_TEXT);
    args.iov = &iov;
    args.iov_count = 1;
    cdp__rpc_must_post(rpc, to, &p, &args);
}

/* Answers a request with a failure; it must not have been answered before. */
CDP__PRIVATE void cdp__rpc_answer_fail(
    cdp_rpc *rpc, cdp__rpc_rq *rq, cdp_status status, cdp_ran ran, int32_t code, const char *text) {
    cdp__rpc_call *c;
    cdp__rpc_packet p;
    const bool silent = (rq->flags & (CDP__RPC_ONE_WAY | CDP__RPC_REMOTE)) != 0;
    cdp__rpc_uncount(rpc, rq);
    if (rq->makes) cdp__rpc_value_fail(rpc, rq, status, code, text);
    if (rq->pub.from == rpc->rank) {
        c = cdp__rpc_call_find(rpc, rq->call);
        if (c && !silent) cdp__rpc_failure_received(rpc, c, status, ran, code, text);
        if (c) cdp__rpc_wire_over(rpc, c);
    } else if (silent) {
        memset(&p, 0, sizeof p);
        p.kind = CDP__RPC_REPLY;
        p.a = rq->call;
        cdp__rpc_must_post(rpc, rq->pub.from, &p, NULL);
    } else {
        cdp__rpc_send_fail(rpc, rq->pub.from, rq->call, status, ran, code, text);
    }
    cdp__rpc_replied(rpc, rq, status);
}

/* Answers a request whose function does not run. */
CDP__PRIVATE void cdp__rpc_refuse(
    cdp_rpc *rpc, cdp__rpc_rq *rq, cdp_status status, cdp_ran ran, int32_t code, const char *text) {
    cdp_rpc_record *record = cdp__rpc_record_of(rpc, rq->record);
    ++rpc->refused;
    rpc->late += status == CDP_ERR_TIMEOUT;
    if (record) record->ran = ran;
    cdp__rpc_answer_fail(rpc, rq, status, ran, code, text);
}

/* They can be sent; else the reason is this thread's last error. */
CDP__PRIVATE cdp_status cdp__rpc_results_check(
    cdp_rpc *rpc, const char *name, const cdp_args *results) {
    const cdp_status st = cdp__rpc_args_check(name, results);
    const uint64_t bytes = st == CDP_OK ? cdp__rpc_args_bytes(results) : 0;
    if (st != CDP_OK) return st;
    if (bytes > rpc->desc.max_message_bytes)
        return cdp__fail(CDP_ERR_INVALID,
            "%s: results of %llu bytes; max_message_bytes of cdp_rpc_desc is %llu; reply less, or "
            "raise it on all ranks",
            name, (unsigned long long)bytes, (unsigned long long)rpc->desc.max_message_bytes);
    return cdp__rpc_rrefs_check(rpc, name, results);
}

/* Sends the reply with the results. After an error nothing was sent. */
CDP__PRIVATE cdp_status cdp__rpc_answer(cdp_rpc *rpc, cdp__rpc_rq *rq, const cdp_args *args) {
    const bool silent = (rq->flags & (CDP__RPC_ONE_WAY | CDP__RPC_REMOTE)) != 0;
    cdp_tensor tensors[CDP__RPC_TENSORS];
    cdp__rpc_packet p;
    cdp_args results;
    cdp_status st = CDP_OK;
    memset(&p, 0, sizeof p);
    if (silent || (rq->cancelled && rq->pub.from != rpc->rank)) args = NULL;
    if (args && rq->pub.ctx && args->tensor_count) {
        results = *args;
        results.tensors = tensors;
        st = cdp__ctx_results(rpc, rq, args, tensors);
        if (st != CDP_OK) return st;
        args = &results;
        p.flags = CDP__RPC_CTX;
        p.slot = rq->pub.ctx->id;
    }
    if (rq->pub.from == rpc->rank) {
        cdp__rpc_call *c = cdp__rpc_call_find(rpc, rq->call);
        if (c && !silent) cdp__rpc_own_reply(rpc, c, args);
        if (c) cdp__rpc_wire_over(rpc, c);
    } else {
        p.kind = CDP__RPC_REPLY;
        p.a = rq->call;
        if (args && args->rref_count && !cdp__rpc_reserve(rpc, args->rref_count))
            return cdp__fail(CDP_ERR_BUSY, "the table of references is full (max_rrefs %u)",
                rpc->desc.max_rrefs);
        if (silent) /* nothing of it can fail for the program: the value is there */
            cdp__rpc_must_post(rpc, rq->pub.from, &p, NULL);
        else if (args && args->rref_count)
            st = cdp__rpc_post_rrefs(rpc, rq->pub.from, &p, args, 0, false);
        else
            st = cdp__rpc_post(rpc, rq->pub.from, &p, args);
        if (st != CDP_OK) return st;
        cdp__rpc_uncount(rpc, rq);
    }
    cdp__rpc_replied(rpc, rq, CDP_OK);
    return CDP_OK;
}

/* ---- before the function runs */

/* The state of the references among the arguments: LIVE if all are, PENDING, or BROKEN. */
CDP__PRIVATE cdp__ref_state cdp__rpc_confirmed(const cdp_rpc *rpc, const cdp__rpc_rq *rq) {
    cdp__ref_state worst = CDP__REF_LIVE;
    uint32_t i;
    for (i = 0; i < rq->pub.rref_count; ++i) {
        const cdp__ref *r = &rpc->refs.at[(uint32_t)rq->refs[i].slot];
        if (!rq->refs[i].rpc || r->state == CDP__REF_BROKEN) return CDP__REF_BROKEN;
        if (r->state == CDP__REF_PENDING) worst = CDP__REF_PENDING;
    }
    return worst;
}

/* Sends a value that was asked for and exists. */
CDP__PRIVATE void cdp__rpc_answer_fetch(cdp_rpc *rpc, cdp__rpc_rq *rq) {
    const cdp_args *plain = &rpc->extra[rq->on].value->value.plain;
    cdp_status st = cdp__rpc_results_check(rpc, "the value's plain", plain);
    if (st == CDP_OK) st = cdp__rpc_answer(rpc, rq, plain);
    if (st != CDP_OK) cdp__rpc_refuse(rpc, rq, st, CDP_RAN_NO, 0, cdp_last_error()->text);
}

/* What a call of this level waits for is run by threads that may run such calls: the request that
   is to make the value in `slot`, if it has not begun, and those that make what that one waits
   for. */
CDP__PRIVATE void cdp__rpc_raise(cdp_rpc *rpc, uint32_t slot, int32_t level) {
    cdp__rpc_rq *rq;
    while (slot) {
        for (rq = rpc->all; rq && rq->makes != slot;)
            rq = rq->after;
        if (!rq || rq->stage >= CDP__RPC_RUNNING || rq->level >= level) return;
        rq->level = level;
        slot = rq->on;
    }
}

/* Moves a request from stage NEW to its next stage. */
CDP__PRIVATE void cdp__rpc_advance(cdp_rpc *rpc, cdp__rpc_rq *rq) {
    const bool early = (rq->f && (rq->f->flags & CDP_RPC_EARLY)) || CDP__RPC_PLANT(NOT_CONFIRMED);
    const bool own = rq->pub.from == rpc->rank && !rq->node;
    const bool turn = !own || cdp__rpc_turn(rpc, cdp__rpc_call_find(rpc, rq->call));
    const cdp__ref_state state = early ? CDP__REF_LIVE : cdp__rpc_confirmed(rpc, rq);
    cdp__rpc_value *v = rq->on ? rpc->extra[rq->on].value : NULL;
    if (state == CDP__REF_BROKEN) {
        cdp__rpc_refuse(rpc, rq, CDP_ERR_PEER_LOST, CDP_RAN_NO, 0,
            "a reference among its arguments is broken: the owner of the value is lost, or the "
            "value is gone");
    } else if (state == CDP__REF_PENDING || !turn) {
        rq->stage = CDP__RPC_CONFIRMING;
        rq->next = rpc->confirming;
        rpc->confirming = rq;
    } else if (v && !v->settled) {
        rq->stage = CDP__RPC_PARKED;
        cdp__rpc_raise(rpc, rq->on, rq->level);
        cdp__rpc_append(&v->parked_end, rq);
    } else if (v && v->failed) {
        cdp__rpc_refuse(
            rpc, rq, v->failed, CDP_RAN_NO, v->code, v->why ? v->why : "its value was not made");
    } else if (rq->flags & CDP__RPC_FETCH) {
        cdp__rpc_answer_fetch(rpc, rq);
    } else {
        rq->stage = CDP__RPC_QUEUED;
        if (v) {
            rq->on_value = v->value;
            rq->pub.on = &rq->on_value;
            rq->pub.on_rref = cdp__rpc_rref(rpc, rq->on);
        }
        if (rq->f->flags & CDP_RPC_INLINE)
            cdp__rpc_append(&rpc->inline_end, rq);
        else
            cdp__rpc_enqueue(rpc, rq);
        rpc->changed = true;
    }
}

/* Checks all requests and messages that wait for confirmed references, or for their turn. */
CDP__PRIVATE void cdp__rpc_look_again(cdp_rpc *rpc) {
    cdp__rpc_rq *rq = rpc->confirming;
    cdp__rpc_out *o = rpc->waiting, *keep = NULL;
    rpc->confirming = NULL;
    rpc->waiting = NULL;
    while (rq) {
        cdp__rpc_rq *next = rq->next;
        rq->stage = CDP__RPC_NEW;
        cdp__rpc_advance(rpc, rq);
        rq = next;
    }
    while (o) {
        cdp__rpc_out *next = o->next;
        const uint32_t on = o->on;
        if (on && rpc->refs.at[on].state != CDP__REF_PENDING) {
            o->broken = o->broken || rpc->refs.at[on].state == CDP__REF_BROKEN;
            o->on = 0;
        }
        if (o->in_order && cdp__rpc_turn(rpc, cdp__rpc_call_find(rpc, o->p.a))) o->in_order = false;
        if (o->broken || rpc->lost[o->to]) {
            const cdp__rpc_packet p = o->p;
            const uint32_t to = o->to;
            cdp__rpc_call *c = p.kind == CDP__RPC_CALL ? cdp__rpc_call_find(rpc, p.a) : NULL;
            cdp__rpc_out_drop(rpc, o);
            if (c && c->remote_fid) /* the value is never created */
                (void)cdp__ref_got_ack(&rpc->refs, to, c->remote_fid, CDP__REF_GONE);
            if (c)
                cdp__rpc_call_failed(rpc, c, CDP_ERR_PEER_LOST, CDP_RAN_NO,
                    "a reference in it broke before it left: the owner of the value is lost");
            else if (p.kind == CDP__RPC_REPLY)
                cdp__rpc_send_fail(rpc, to, p.a, CDP_ERR_PEER_LOST, CDP_RAN_YES, 0,
                    "a reference in the result broke: the owner of the value is lost");
        } else if (o->waits || o->on || o->in_order) {
            o->next = keep;
            keep = o;
        } else {
            cdp__rpc_queue_out(rpc, o);
        }
        o = next;
    }
    while (keep) { /* messages that were added meanwhile stay behind them */
        cdp__rpc_out *next = keep->next;
        keep->next = rpc->waiting;
        rpc->waiting = keep;
        keep = next;
    }
}

/* ---- running a function */

/* The longest time for which waits pass over a request; also at most a quarter of the time that
   the request has. */
#define CDP__RPC_PASS_NS 1000000000u

/* True if a thread in a wait that ends by bound_ns may run this request meanwhile. A function that
   runs there must itself stop waiting soon after bound_ns. So a function that is known to wait, or
   that has never run, is left to a wait with more time, unless the deadline of a request that needs
   its value is within this wait. It is left for a limited time, because there may be no other
   wait. */
CDP__PRIVATE bool cdp__rpc_may(
    const cdp_rpc *rpc, cdp__rpc_rq *rq, uint64_t now, uint64_t bound_ns) {
    uint64_t ends = rq->pub.deadline_ns, enough;
    const cdp__rpc_rq *parked;
    if (rq->f->max_running && rq->use->running >= rq->f->max_running) return false;
    if (bound_ns == CDP__NEVER || (rq->use->known && !rq->use->waits)) return true;
    for (parked = rq->makes ? rpc->extra[rq->makes].value->parked : NULL; parked;
         parked = parked->next)
        ends = cdp__min(ends, parked->pub.deadline_ns);
    if (ends <= bound_ns + CDP__RPC_GRACE_NS) return true;
    enough = cdp__min((ends - now) / 4, CDP__RPC_PASS_NS);
    if (bound_ns >= now + enough) return true;
    if (!rq->passed_ns) rq->passed_ns = now;
    return now - rq->passed_ns >= enough;
}

/* Functions with max_running 1 run in the order of the queue: true if no earlier request of the
   same function is in it that is as deep. */
CDP__PRIVATE bool cdp__rpc_first(const cdp_rpc *rpc, const cdp__rpc_rq *rq) {
    const cdp__rpc_rq *at = rpc->queue;
    if (rq->f->max_running != 1) return true;
    while (at != rq && (at->f != rq->f || !cdp__level_follows(rq->level, at->level)))
        at = at->next;
    return at == rq;
}

/* Removes from the queue the next request that may run in a wait that ends by bound_ns. NULL:
   none. */
CDP__PRIVATE cdp__rpc_rq *cdp__rpc_next(cdp_rpc *rpc, uint64_t now, uint64_t bound_ns) {
    cdp__rpc_rq *rq = rpc->queue;
    while (rq
        && !(cdp__level_runs(cdp__rpc_inside(), rq->level) && cdp__rpc_may(rpc, rq, now, bound_ns)
            && cdp__rpc_first(rpc, rq)))
        rq = rq->next;
    if (rq) (void)cdp__rpc_unlist(&rpc->queue, &rpc->queue_end, rq);
    if (rq) rpc->turn = cdp__max(rpc->turn, rq->turn);
    return rq;
}

/* Runs the function of a request, with the lock released. */
CDP__PRIVATE void cdp__rpc_run(cdp_rpc *rpc, cdp__rpc_rq *rq) {
    cdp__rpc_here *here = cdp__rpc_here_of();
    cdp__rpc_rq *outer = here->request;
    const int32_t level = here->level;
    const uint32_t no_wait = (rq->f->flags & CDP_RPC_INLINE) ? 1 : 0;
    const uint64_t now = cdp__rpc_time(rpc);
    const bool late = rq->pub.deadline_ns <= now;
    cdp_rpc_record *record = cdp__rpc_record_of(rpc, rq->record);
    if (rq->cancelled || late) {
        cdp__rpc_refuse(rpc, rq, rq->cancelled ? CDP_ERR_ABORTED : CDP_ERR_TIMEOUT, CDP_RAN_NO, 0,
            rq->cancelled ? "cancelled before it ran" : "its time was over before it ran");
        return;
    }
    if (record) {
        record->run_ns = now;
        record->ran = CDP_RAN_YES;
    }
    rq->stage = CDP__RPC_RUNNING;
    rq->in_function = true;
    ++rq->use->running;
    cdp_lock_release(&rpc->lock);
    here->request = rq;
    here->level = rq->level + 1;
    ++here->depth;
    here->no_wait += no_wait;
    rq->f->func(rq->f->user, &rq->pub);
    here->no_wait -= no_wait;
    --here->depth;
    here->level = level;
    here->request = outer;
    cdp__rpc_lock(rpc);
    rq->in_function = false;
    --rq->use->running;
    rq->use->known = true;
    rpc->changed = true;
    if (rq->stage == CDP__RPC_REPLIED) {
        cdp__rpc_rq_close(rpc, rq);
    } else if (rq->f->flags & CDP_RPC_LATER) {
        rq->stage = CDP__RPC_KEPT;
    } else {
        if (rq->makes) cdp__rpc_value_settle(rpc, rpc->extra[rq->makes].value);
        if (cdp__rpc_answer(rpc, rq, NULL) != CDP_OK)
            cdp__rpc_answer_fail(rpc, rq, CDP_ERR_NOMEM, CDP_RAN_YES, 0, "out of memory");
    }
}

/* ---- incoming requests */

/* Returns NULL, or why this function does not run for this rank, with *status. */
CDP__PRIVATE const char *cdp__rpc_admit(
    cdp_rpc *rpc, cdp__rpc_rq *rq, cdp_status *status, char text[96]) {
    const cdp_rpc_function *f = NULL;
    uint32_t i;
    for (i = 0; i < rpc->desc.function_count && !f; ++i)
        if (cdp__rpc_id_of(rpc->desc.functions[i].name) == rq->pub.function) {
            f = &rpc->desc.functions[i];
            rq->use = &rpc->uses[i];
        }
    for (i = 0; i < CDP__RPC_BUILTINS && !f; ++i)
        if (cdp__rpc_id_of(rpc->builtins[i].name) == rq->pub.function) {
            f = &rpc->builtins[i];
            rq->use = &rpc->builtin_uses[i];
        }
    *status = CDP_ERR_UNSUPPORTED;
    if (!f)
        return "no function of this name is registered there; add it to the functions of its "
               "cdp_rpc_desc";
    rq->f = f;
    for (i = 0; i < f->allow_count && f->allow[i] != rq->pub.from; ++i) {
    }
    if (f->allow_count && i == f->allow_count) return "this rank may not call it (allow)";
    *status = CDP_ERR_INVALID;
    if (f->max_bytes && rq->area_bytes > f->max_bytes) {
        cdp__format(text, 96, "its arguments have %llu bytes, max_bytes of the function is %llu",
            (unsigned long long)rq->area_bytes, (unsigned long long)f->max_bytes);
        return text;
    }
    if (f->max_tensors && rq->pub.tensor_count > f->max_tensors) {
        cdp__format(text, 96, "its arguments have %u tensors, max_tensors of the function is %u",
            rq->pub.tensor_count, f->max_tensors);
        return text;
    }
    if (f->max_rrefs && rq->pub.rref_count > f->max_rrefs) {
        cdp__format(text, 96, "its arguments have %u references, max_rrefs of the function is %u",
            rq->pub.rref_count, f->max_rrefs);
        return text;
    }
    *status = CDP_ERR_STATE;
    if (rpc->phase != CDP__RPC_OPEN) return "that rank has shut down";
    return NULL;
}

/* Allocates memory for arguments of a request. NULL: out of memory. */
CDP__PRIVATE uint8_t *cdp__rpc_rq_room(cdp_rpc *rpc, cdp__rpc_rq *rq, uint64_t bytes) {
    if (bytes <= sizeof rq->room) return (uint8_t *)rq->room;
    rq->buffer = (uint8_t *)cdp__alloc(rpc->os, bytes);
    return rq->buffer;
}

/* The contents of the arguments are in `area`; the tensors are described by `like`. False: out
   of memory. */
CDP__PRIVATE bool cdp__rpc_rq_args(cdp_rpc *rpc, cdp__rpc_rq *rq, const cdp_tensor *like,
    uint32_t tensors, uint8_t *area, uint64_t bytes) {
    uint8_t *at = area;
    rq->area_bytes = bytes;
    if (tensors) {
        rq->tensors = (cdp_tensor *)cdp__alloc(rpc->os, tensors * sizeof *rq->tensors);
        if (!rq->tensors) return false;
        at = cdp__rpc_tensors_in(rq->tensors, like, tensors, area);
        rq->pub.tensors = rq->tensors;
        rq->pub.tensor_count = tensors;
    }
    rq->pub.bytes = bytes - (uint64_t)(at - area);
    rq->pub.data = rq->pub.bytes ? at : NULL;
    return true;
}

/* Stores the arguments that a message contains. Returns NULL or what is wrong. */
CDP__PRIVATE const char *cdp__rpc_rq_got(
    cdp_rpc *rpc, cdp__rpc_rq *rq, const cdp__rpc_packet *p, uint8_t **owned) {
    cdp_tensor like[CDP__RPC_TENSORS];
    uint8_t *area = (uint8_t *)(uintptr_t)p->area;
    uint32_t i;
    for (i = 0; i < p->tensors; ++i)
        like[i] = cdp__rpc_get_shape(p->shapes + i * CDP__RPC_SHAPE);
    if (*owned) {
        rq->buffer = *owned;
        rq->counted = p->bytes;
        *owned = NULL;
    } else {
        area = cdp__rpc_rq_room(rpc, rq, p->area_bytes);
        if (!area) return "out of memory for arguments of it";
        if (p->area_bytes) memcpy(area, p->area, (size_t)p->area_bytes);
    }
    return cdp__rpc_rq_args(rpc, rq, like, p->tensors, area, p->area_bytes)
        ? NULL
        : "out of memory for arguments of it";
}

/* Begins a request that is filled in: it runs, waits or is refused. */
CDP__PRIVATE void cdp__rpc_begin(cdp_rpc *rpc, cdp__rpc_rq *rq) {
    char text[96];
    cdp_status status = CDP_OK;
    const char *why = (rq->flags & CDP__RPC_FETCH) ? NULL : cdp__rpc_admit(rpc, rq, &status, text);
    if (!why && rq->ctx_number) why = cdp__ctx_enter(rpc, rq, &status);
    if (rq->pub.deadline_ns != CDP__NEVER) {
        if (rq->pub.from != rpc->rank)
            rq->report_ns = cdp__rpc_notify_at(rpc, rq->flags, rq->pub.deadline_ns);
        cdp__rpc_timer(rpc, rq->report_ns ? rq->report_ns : rq->pub.deadline_ns);
    }
    if (why)
        cdp__rpc_refuse(rpc, rq, status, CDP_RAN_NO, 0, why);
    else
        cdp__rpc_advance(rpc, rq);
}

#endif /* CDP_SRC_RPC_REQUESTS_H */
