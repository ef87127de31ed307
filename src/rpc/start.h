/* rpc/start.h - calls begin

   Knows: descs of calls. Promises: invalid calls are refused at once, with nothing started. */
#ifndef CDP_SRC_RPC_START_H
#define CDP_SRC_RPC_START_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/error_api.h"
#include "../group/group_api.h"
#include "../base/compiler.h"
#include "../base/kept_error.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "../group/deferred.h"
#include "worker_api.h"
#include "calls_api.h"
#include "alive.h"
#include "table.h"
#include "forks.h"
#include "levels.h"
#include "packets.h"
#include "state.h"
#include "pools.h"
#include "send.h"
#include "contexts.h"
#include "calls.h"
#include "requests.h"
#include "intake.h"
#include "waits.h"

/* Memory of the program that must be returned to it. */
typedef struct cdp__rpc_lender {
    cdp__rpc_task task;
    void (*release)(void *user);
    void *user;
} cdp__rpc_lender;

CDP__PRIVATE void cdp__rpc_lender_end(cdp_rpc *rpc, cdp__rpc_task *task) {
    cdp__rpc_lender *l = (cdp__rpc_lender *)task;
    l->release(l->user);
    cdp__free(rpc->os, l);
}

/* A call being prepared; filled in step by step. */
typedef struct cdp__rpc_starting {
    const char *name; /* of the public function */
    const cdp_call_desc *desc;
    cdp_call *call;  /* NULL: cdp_rpc_remote() */
    uint32_t to, on; /* on: slot, 0: none */
    uint32_t flags;
    uint64_t deadline_ns, start_ns;
    uint64_t bytes;          /* of its arguments */
    cdp__rpc_lender *lender; /* of the memory of its arguments, or NULL */
    bool waits;              /* the public function waits for the call, too */
    bool cut;                /* its time was shortened, see cdp__rpc_cut() */
    uint32_t makes;          /* slot of the reference that the call makes */
    bool nested;             /* a function starts it */
    int32_t level;
} cdp__rpc_starting;

CDP__PRIVATE cdp_status cdp__rpc_start_check(cdp_rpc *rpc, cdp__rpc_starting *s) {
    const cdp_call_desc *d = s->desc;
    uint64_t bytes;
    if (rpc->phase != CDP__RPC_OPEN)
        return cdp__fail(CDP_ERR_STATE, "%s: the rpc was shut down; create another one", s->name);
    s->to = d->to;
    if (d->on.rpc || d->on.slot) {
        s->on = cdp__rpc_slot(rpc, s->name, d->on);
        if (!s->on) return cdp_last_error()->status;
        s->to = rpc->refs.at[s->on].rank;
        s->flags |= CDP__RPC_ON;
    }
    if (s->to >= rpc->ranks)
        return cdp__fail(CDP_ERR_INVALID, "%s: to is %u; the group has ranks 0 to %u", s->name,
            s->to, rpc->ranks - 1);
    if (!d->function && !(s->flags & CDP__RPC_FETCH))
        return cdp__fail(
            CDP_ERR_INVALID, "%s: set function of the desc to cdp_rpc_id(name)", s->name);
    if (d->one_way && (d->args.rref_count || (s->flags & CDP__RPC_REMOTE)))
        return cdp__fail(CDP_ERR_INVALID,
            "%s: a one-way call takes no references and makes none; clear one_way", s->name);
    if (cdp__rpc_args_check(s->name, &d->args) != CDP_OK) return CDP_ERR_INVALID;
    bytes = cdp__rpc_args_bytes(&d->args);
    if (bytes > rpc->desc.max_message_bytes)
        return cdp__fail(CDP_ERR_INVALID,
            "%s: arguments of %llu bytes; max_message_bytes of cdp_rpc_desc is %llu; send less, or "
            "raise it on all ranks",
            s->name, (unsigned long long)bytes, (unsigned long long)rpc->desc.max_message_bytes);
    if (cdp__ctx_lives(d->ctx, s->name) != CDP_OK) return CDP_ERR_STATE;
    if (d->ctx && d->ctx->rpc != rpc)
        return cdp__fail(
            CDP_ERR_INVALID, "%s: ctx belongs to another rpc; begin one of this one", s->name);
    if (d->ctx && (s->flags & (CDP__RPC_REMOTE | CDP__RPC_FETCH)))
        return cdp__fail(CDP_ERR_INVALID, "%s: a reference is made outside contexts", s->name);
    if (d->ctx && !cdp__ctx_reserve_sent(rpc, d->ctx)) return CDP_ERR_NOMEM;
    if (cdp__ctx_check(s->name, d->ctx, &d->args) != CDP_OK) return cdp_last_error()->status;
    return cdp__rpc_rrefs_check(rpc, s->name, &d->args);
}

CDP__PRIVATE void cdp__rpc_start_time(cdp_rpc *rpc, cdp__rpc_starting *s) {
    const cdp__rpc_here *here = cdp__rpc_here_of();
    const cdp__rpc_rq *outer = here->request;
    s->start_ns = cdp__rpc_time(rpc);
    s->deadline_ns = cdp__def(s->desc->timeout_ms, rpc->desc.timeout_ms) == CDP_NO_TIMEOUT
        ? CDP__NEVER
        : s->start_ns + cdp__def(s->desc->timeout_ms, rpc->desc.timeout_ms) * CDP__MS;
    if (outer && outer->pub.rpc == rpc && !s->desc->detached)
        s->deadline_ns = cdp__min(s->deadline_ns, outer->pub.deadline_ns);
    if (!here->no_wait && !s->desc->detached && cdp__rpc_cut() < s->deadline_ns) {
        s->deadline_ns = cdp__rpc_cut();
        s->cut = true;
    }
}

/* True if no other call from inside functions to that rank has this level. */
CDP__PRIVATE bool cdp__rpc_alone(const cdp_rpc *rpc, const cdp__rpc_starting *s) {
    uint32_t i;
    for (i = 1; i <= rpc->call_count; ++i) {
        const cdp__rpc_call *c = rpc->calls[i];
        if (c->used && !c->wire_over && c->nested && c->to == s->to && c->level == s->level)
            return false;
    }
    return true;
}

/* Sets the last error to what a call that finds no room waits for. */
CDP__PRIVATE cdp_status cdp__rpc_set_room_error(
    const cdp_rpc *rpc, const cdp__rpc_starting *s, cdp_status status, const char *end) {
    const cdp__rpc_peer *peer = &rpc->peers[s->to];
    const cdp__rpc_flight *f = &peer->flight[s->nested];
    return cdp__fail_peer(status, cdp_world_rank_of(rpc->group, s->to), 0,
        "%s: %u calls to rank %u (%s)%s are under way, with %llu bytes of arguments; %u is the "
        "smaller one of max_calls here and its part of max_queue there, max_call_bytes is %llu; %s",
        s->name, f->calls, s->to, peer->name, s->nested ? " from functions" : "",
        (unsigned long long)f->bytes, peer->limit, (unsigned long long)rpc->desc.max_call_bytes,
        end);
}

CDP__PRIVATE bool cdp__rpc_has_room(cdp_rpc *rpc, void *arg) {
    const cdp__rpc_starting *s = (const cdp__rpc_starting *)arg;
    const cdp__rpc_peer *peer = &rpc->peers[s->to];
    const cdp__rpc_flight *f = &peer->flight[s->nested];
    if (rpc->lost[s->to] || rpc->phase != CDP__RPC_OPEN || CDP__RPC_PLANT(NO_CREDIT)) return true;
    if (cdp__flight_fits(f, s->bytes, false, peer->limit, rpc->desc.max_call_bytes)) return true;
    return s->nested && cdp__rpc_alone(rpc, s);
}

/* What decides whether there is room for a call. */
CDP__PRIVATE void cdp__rpc_start_measure(const cdp_rpc *rpc, cdp__rpc_starting *s) {
    s->bytes = cdp__rpc_args_bytes(&s->desc->args);
    s->nested = cdp__rpc_inside() >= 0;
    s->level =
        cdp__level_of(cdp__rpc_inside(), (s->flags & CDP__RPC_REMOTE) != 0, rpc->desc.max_depth);
}

/* False: a call that this thread starts is BUSY where it finds no room. */
CDP__PRIVATE bool cdp__rpc_waits_for_room(const cdp_rpc *rpc) {
    return !rpc->desc.fail_when_full && !cdp__rpc_here_of()->no_wait && !*cdp__inside()
        && cdp__level_waits(cdp__rpc_inside(), rpc->desc.max_depth);
}

/* Waits until a call may be sent. PENDING: its time is over, and it was not sent. */
CDP__PRIVATE cdp_status cdp__rpc_start_room(cdp_rpc *rpc, cdp__rpc_starting *s) {
    cdp_status st;
    cdp__rpc_start_measure(rpc, s);
    if (cdp__rpc_has_room(rpc, s)) return CDP_OK;
    if (!cdp__rpc_waits_for_room(rpc))
        return cdp__rpc_set_room_error(rpc, s, CDP_ERR_BUSY, "wait for one of them");
    st = cdp__rpc_wait(rpc, cdp__rpc_has_room, s, s->deadline_ns, s->deadline_ns);
    if (st != CDP_OK) return st;
    return cdp__rpc_start_check(rpc, s); /* the state may have changed meanwhile */
}

/* Starts a call to another rank: sends it, or queues it until its references are confirmed. */
CDP__PRIVATE cdp_status cdp__rpc_start_far(cdp_rpc *rpc, cdp__rpc_starting *s, cdp__rpc_call *c) {
    const cdp_args *args = &s->desc->args;
    const bool waits = s->on && rpc->refs.at[s->on].state == CDP__REF_PENDING;
    const bool turn = cdp__rpc_turn(rpc, c);
    cdp__rpc_packet p;
    cdp_status st;
    memset(&p, 0, sizeof p);
    p.kind = CDP__RPC_CALL;
    p.flags = s->flags;
    p.aux = s->desc->function;
    p.a = cdp__rpc_call_id(c);
    p.b = cdp__rpc_call_b(rpc, c);
    if (s->on) {
        p.rid = rpc->refs.at[s->on].rid;
        p.fid = rpc->refs.at[s->on].key;
    }
    if (s->makes) {
        p.makes_rid = rpc->refs.at[s->makes].rid;
        p.makes_fid = c->remote_fid = rpc->refs.at[s->makes].key;
    }
    if (c->ctx) {
        p.flags |= CDP__RPC_CTX;
        p.slot = c->ctx->id;
        (void)cdp__ctx_record_sent(rpc, c->ctx, args, s->to); /* room was reserved before */
    }
    if (rpc->lost[s->to]) {
        cdp__rpc_call_failed(rpc, c, CDP_ERR_PEER_LOST, CDP_RAN_NO, rpc->peers[s->to].why.text);
        return CDP_OK;
    }
    if (s->on && rpc->refs.at[s->on].state == CDP__REF_BROKEN) {
        const cdp_status broken = rpc->extra[s->on].broken;
        if (s->makes) /* the value is never created */
            (void)cdp__ref_got_ack(&rpc->refs, s->to, c->remote_fid,
                broken == CDP_ERR_BUSY ? CDP__REF_FULL : CDP__REF_GONE);
        cdp__rpc_call_failed(
            rpc, c, broken, CDP_RAN_NO, "the reference is broken: its owner never confirmed it");
        return CDP_OK;
    }
    rpc->lends = s->lender ? &s->lender->task : NULL;
    st = args->rref_count || waits || !turn
        ? cdp__rpc_post_rrefs(rpc, s->to, &p, args, s->on, !turn)
        : cdp__rpc_post(rpc, s->to, &p, args);
    if (!rpc->lends) s->lender = NULL;
    rpc->lends = NULL;
    if (st == CDP_OK && s->on && !c->wire_over) {
        c->on = s->on;
        cdp__ref_on_wire(&rpc->refs, s->on);
    }
    return st;
}

/* Starts a call to this rank itself: the same without a link. */
CDP__PRIVATE cdp_status cdp__rpc_start_here(cdp_rpc *rpc, cdp__rpc_starting *s, cdp__rpc_call *c) {
    const cdp_args *args = &s->desc->args;
    const uint64_t bytes = cdp__rpc_args_bytes(args);
    cdp__rpc_rq *rq = cdp__rpc_rq_open(rpc);
    uint8_t *area;
    uint32_t i;
    if (!rq) return cdp__fail_nomem("a request", sizeof *rq);
    area = cdp__rpc_rq_room(rpc, rq, bytes);
    if (!area || !cdp__rpc_rq_args(rpc, rq, args->tensors, args->tensor_count, area, bytes)) {
        cdp__rpc_rq_close(rpc, rq);
        return cdp__fail_nomem("arguments", bytes);
    }
    cdp__rpc_gather(area, args);
    cdp__rpc_copied(rpc, bytes);
    if (s->desc->ctx) rq->ctx_number = s->desc->ctx->id;
    rq->pub.from = rpc->rank;
    rq->pub.function = s->desc->function;
    rq->pub.one_way = s->desc->one_way;
    rq->pub.remote = s->makes != 0;
    rq->pub.deadline_ns = s->deadline_ns;
    rq->pub.rref_count = args->rref_count;
    rq->call = cdp__rpc_call_id(c);
    rq->level = c->level;
    rq->nested = c->nested;
    rq->record = c->record;
    rq->flags = s->flags;
    for (i = 0; i < args->rref_count; ++i) {
        rq->refs[i] = args->rrefs[i];
        ++rpc->refs.at[(uint32_t)args->rrefs[i].slot].handles;
    }
    rq->on = s->on;
    rq->makes = s->makes;
    if (s->on) ++rpc->refs.at[s->on].handles;
    if (s->makes) ++rpc->refs.at[s->makes].handles;
    c->left = true;
    cdp__rpc_begin(rpc, rq);
    return CDP_OK;
}

/* Creates the entry of the reference that a call makes. */
CDP__PRIVATE cdp_status cdp__rpc_start_makes(cdp_rpc *rpc, cdp__rpc_starting *s) {
    cdp__rpc_value *v;
    char *label;
    uint64_t rid;
    if (!cdp__rpc_reserve(rpc, 1 + s->desc->args.rref_count))
        return cdp__fail(CDP_ERR_BUSY,
            "%s: the table of references is full (max_rrefs of the desc is %u)", s->name,
            rpc->desc.max_rrefs);
    if (!(s->flags & CDP__RPC_REMOTE)) return CDP_OK;
    label = cdp__rpc_text_copy(rpc, s->desc->label);
    v = s->to == rpc->rank ? cdp__rpc_value_make(rpc) : NULL;
    if ((s->desc->label && !label) || (s->to == rpc->rank && !v)) {
        cdp__free(rpc->os, label);
        cdp__free(rpc->os, v);
        return cdp__fail_nomem("a reference", sizeof *v);
    }
    rid = cdp__rpc_number(rpc);
    if (s->to != rpc->rank) {
        s->makes = cdp__ref_remote(&rpc->refs, rid, cdp__rpc_number(rpc), s->to);
        if (rpc->lost[s->to]) rpc->extra[s->makes].broken = CDP_ERR_PEER_LOST;
    } else {
        s->makes = cdp__ref_create(&rpc->refs, rid);
        rpc->extra[s->makes].value = v;
    }
    rpc->extra[s->makes].label = label;
    return CDP_OK;
}

/* Undoes a start that has failed. */
CDP__PRIVATE void cdp__rpc_start_undo(
    cdp_rpc *rpc, cdp__rpc_starting *s, cdp__rpc_call *c, cdp_status status) {
    if (c) {
        c->call = NULL;
        c->done = NULL;
        cdp__rpc_record_end(rpc, c, status, CDP_RAN_NO);
        cdp__rpc_wire_over(rpc, c);
    }
    if (s->call) {
        s->call->priv[CDP__CALL_RPC] = 0;
        s->call->priv[CDP__CALL_ID] = 0;
        s->call->priv[CDP__CALL_STAGE] = 0;
    }
    if (!s->makes) return;
    if (s->to != rpc->rank && rpc->refs.at[s->makes].state == CDP__REF_PENDING)
        (void)cdp__ref_got_ack(&rpc->refs, s->to, rpc->refs.at[s->makes].key, CDP__REF_FULL);
    cdp__ref_drop(&rpc->refs, s->makes);
    s->makes = 0;
}

CDP__PRIVATE cdp_status cdp__rpc_start_checked(cdp_rpc *rpc, cdp__rpc_starting *s) {
    cdp__rpc_call *c;
    cdp_status st, room;
    if (!s->start_ns) cdp__rpc_start_time(rpc, s);
    room = cdp__rpc_start_room(rpc, s);
    if (room == CDP_PENDING && !s->call)
        return cdp__rpc_set_room_error(
            rpc, s, CDP_ERR_TIMEOUT, "so it was until its deadline; it never left this rank");
    if (room < 0) return room;
    st = cdp__rpc_start_makes(rpc, s);
    if (st != CDP_OK) return st;
    c = cdp__rpc_call_open(rpc);
    if (!c) {
        st = cdp__fail_nomem("a call", sizeof *c);
        cdp__rpc_start_undo(rpc, s, NULL, st);
        return st;
    }
    c->to = s->to;
    c->function = s->desc->function;
    cdp__rpc_remember_name(rpc, c->function);
    c->start_ns = s->start_ns;
    c->deadline_ns = s->deadline_ns;
    c->one_way = s->desc->one_way;
    c->cut = s->cut;
    c->nested = s->nested;
    c->level = s->level;
    c->no_room = room == CDP_PENDING;
    if (s->desc->in_order) {
        c->order = ++rpc->orders;
        c->order_on = s->on ? rpc->refs.at[s->on].rid : 0;
    }
    c->ctx = s->desc->ctx;
    if (c->ctx) ++c->ctx->uses;
    c->call = s->call;
    c->done = s->desc->done;
    c->done_user = s->desc->user;
    c->bytes = s->bytes;
    ++rpc->peers[s->to].flight[c->nested].calls;
    rpc->peers[s->to].flight[c->nested].bytes += s->bytes;
    cdp__rpc_record_call(rpc, c);
    if (s->call) {
        s->call->priv[CDP__CALL_RPC] = (uint64_t)(uintptr_t)rpc;
        s->call->priv[CDP__CALL_ID] = cdp__rpc_call_id(c);
        s->call->priv[CDP__CALL_STAGE] = CDP__CALL_UNDER_WAY;
        if (s->deadline_ns != CDP__NEVER) cdp__rpc_timer(rpc, s->deadline_ns);
    }
    if (room == CDP_PENDING) {
        cdp__rpc_abandon(rpc, c, CDP_ERR_TIMEOUT);
        return CDP_OK;
    }
    st = s->to == rpc->rank ? cdp__rpc_start_here(rpc, s, c) : cdp__rpc_start_far(rpc, s, c);
    if (st != CDP_OK) {
        const cdp_error e = *cdp_last_error();
        cdp__rpc_start_undo(rpc, s, c, st);
        return cdp__error_again(st, &e);
    }
    if (s->desc->one_way && c->used && c->call == s->call && s->call)
        cdp__rpc_end(rpc, c, CDP_OK, CDP_RAN_UNKNOWN, 0);
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__rpc_start_call(cdp_rpc *rpc, cdp__rpc_starting *s) {
    cdp_status st = cdp__rpc_start_check(rpc, s);
    cdp__rpc_lender *l = NULL;
    if (st == CDP_OK && s->desc->release) {
        l = (cdp__rpc_lender *)cdp__alloc_zero(rpc->os, sizeof *l);
        if (!l) return cdp__fail_nomem("a call", sizeof *l);
        l->task.run = cdp__rpc_lender_end;
        l->release = s->desc->release;
        l->user = s->desc->release_user;
    }
    s->lender = l;
    if (st == CDP_OK) st = cdp__rpc_start_checked(rpc, s);
    l = s->lender; /* NULL: a message uses the memory */
    if (l && st == CDP_OK) cdp__rpc_add_task(rpc, &l->task);
    if (l && st != CDP_OK) cdp__free(rpc->os, l);
    return st;
}

/* Checks that the call may be started. */
CDP__PRIVATE cdp_status cdp__rpc_call_ready(const char *name, cdp_call *call) {
    if (call->priv[CDP__CALL_STAGE] == CDP__CALL_UNDER_WAY)
        return cdp__fail(CDP_ERR_STATE, "%s: this cdp_call is under way; use another one", name);
    if (call->priv[CDP__CALL_STAGE] == CDP__CALL_ENDED
        && (call->bytes || call->rref_count || call->priv[CDP__CALL_MEMORY]
            || call->priv[CDP__CALL_TENSORS]))
        return cdp__fail(CDP_ERR_STATE,
            "%s: this cdp_call has a result; give it to cdp_call_free() before it is used again",
            name);
    if ((call->into.bytes && !call->into.data) || ((uintptr_t)call->into.data & 7))
        return cdp__fail(CDP_ERR_INVALID,
            "%s: into of the cdp_call is not memory that is aligned to 8 bytes; or the cdp_call "
            "was "
            "not set to {0} before its first use",
            name);
    memset(call, 0, offsetof(cdp_call, into));
    memset(call->priv, 0, sizeof call->priv);
    call->status = CDP_PENDING;
    return CDP_OK;
}

/* Not OK: a function that starts a call must not wait for it here. */
CDP__PRIVATE cdp_status cdp__rpc_may_wait_for_call(const cdp_rpc *rpc) {
    const cdp_status st = cdp__rpc_may_wait();
    if (st != CDP_OK || cdp__level_waits(cdp__rpc_inside(), rpc->desc.max_depth)) return st;
    return cdp__rpc_too_deep(rpc);
}

/* The call was not started, as the last error says. */
CDP__PRIVATE void cdp__rpc_start_failed(cdp_call *call, cdp_status status) {
    call->status = status;
    call->ran = CDP_RAN_NO;
    call->error = *cdp_last_error();
}

CDP__PRIVATE cdp_status cdp__rpc_start_any(cdp_rpc *rpc, cdp__rpc_starting *s) {
    cdp_status st = CDP_ERR_INVALID;
    if (!cdp__rpc_gone(rpc, s->name)) st = cdp__rpc_call_ready(s->name, s->call);
    if (st != CDP_OK) return st;
    if (s->desc->one_way) s->flags |= CDP__RPC_ONE_WAY;
    cdp__rpc_lock(rpc);
    st = s->waits ? cdp__rpc_may_wait_for_call(rpc) : CDP_OK;
    if (st == CDP_OK) st = cdp__rpc_start_call(rpc, s);
    if (st != CDP_OK) cdp__rpc_start_failed(s->call, st);
    cdp__rpc_leave(rpc);
    return st == CDP_OK && s->waits ? cdp_call_wait(s->call) : st;
}

CDP__PRIVATE cdp_status cdp__rpc_start_named(
    const char *name, cdp_rpc *rpc, const cdp_call_desc *desc, cdp_call *call, bool waits) {
    cdp__rpc_starting s;
    if (!rpc) return cdp__missing(name, "rpc");
    if (!desc) return cdp__missing(name, "desc");
    if (!call) return cdp__missing(name, "call");
    memset(&s, 0, sizeof s);
    s.name = name;
    s.desc = desc;
    s.call = call;
    s.waits = waits;
    return cdp__rpc_start_any(rpc, &s);
}

CDP_API cdp_status cdp_rpc_start(cdp_rpc *rpc, const cdp_call_desc *desc, cdp_call *call) {
    return cdp__rpc_start_named("cdp_rpc_start", rpc, desc, call, false);
}

CDP_API cdp_status cdp_rpc_call(cdp_rpc *rpc, const cdp_call_desc *desc, cdp_call *call) {
    return cdp__rpc_start_named("cdp_rpc_call", rpc, desc, call, true);
}

CDP_API cdp_status cdp_rpc_remote(cdp_rpc *rpc, const cdp_call_desc *desc, cdp_rref *out) {
    cdp__rpc_starting s;
    cdp_status st;
    if (!out) return cdp__missing("cdp_rpc_remote", "out");
    if (!rpc) return cdp__missing("cdp_rpc_remote", "rpc");
    if (!desc) return cdp__missing("cdp_rpc_remote", "desc");
    memset(out, 0, sizeof *out);
    if (cdp__rpc_gone(rpc, "cdp_rpc_remote")) return CDP_ERR_INVALID;
    if (desc->done || desc->one_way || desc->in_order)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_rpc_remote: done, one_way and in_order of the desc must not be set; use "
            "cdp_rref_confirmed()");
    memset(&s, 0, sizeof s);
    s.name = "cdp_rpc_remote";
    s.desc = desc;
    s.flags = CDP__RPC_REMOTE;
    cdp__rpc_lock(rpc);
    st = cdp__rpc_start_call(rpc, &s);
    if (st == CDP_OK) *out = cdp__rpc_rref(rpc, s.makes);
    cdp__rpc_leave(rpc);
    return st;
}

#endif /* CDP_SRC_RPC_START_H */
