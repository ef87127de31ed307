/* rpc/send.h - messages on their way out

   Knows: messages, their references. Promises: messages to one rank are sent in the order in which
   they were posted, unless they wait for a reference or are long; a message that is never sent
   keeps its references on this rank. */
#ifndef CDP_SRC_RPC_SEND_H
#define CDP_SRC_RPC_SEND_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../base/error_api.h"
#include "../channel/channel_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "../base/bytes.h"
#include "../message/header.h"
#include "worker_api.h"
#include "calls_api.h"
#include "table.h"
#include "forks.h"
#include "levels.h"
#include "packets.h"
#include "state.h"
#include "pools.h"

CDP__PRIVATE void cdp__rpc_give_up(cdp_rpc *rpc, uint32_t rank, const char *reason) {
    rpc->peers[rank].dropped = true;
    (void)cdp_channel_drop(rpc->channel, rank, reason);
}

CDP__PRIVATE uint8_t *cdp__rpc_body(cdp__rpc_out *o) {
    return (uint8_t *)(o + 1);
}

/* Frees a message that is sent or dropped. */
CDP__PRIVATE void cdp__rpc_out_free(cdp_rpc *rpc, cdp__rpc_out *o) {
    if (o->back) cdp__rpc_add_task(rpc, o->back);
    cdp__rpc_area_free(rpc, o);
}

CDP__PRIVATE cdp_channel_message cdp__rpc_message(
    const cdp__rpc_packet *p, uint32_t to, const void *body) {
    cdp_channel_message m;
    memset(&m, 0, sizeof m);
    m.peer = to;
    m.kind = cdp__rpc_kind_of(p);
    m.aux = p->aux;
    m.a = p->a;
    m.b = p->b;
    m.bytes = p->bytes;
    m.body = p->bytes ? body : NULL;
    return m;
}

/* What a header says of a deadline. */
CDP__PRIVATE uint32_t cdp__rpc_time_left(cdp_rpc *rpc, uint64_t deadline_ns) {
    const uint64_t now = cdp__rpc_time(rpc);
    uint64_t ms;
    if (deadline_ns == CDP__NEVER) return CDP_NO_TIMEOUT;
    ms = deadline_ns > now ? (deadline_ns - now + CDP__MS - 1) / CDP__MS : 0;
    return (uint32_t)cdp__min(ms, CDP_NO_TIMEOUT - 1);
}

/* What a message of a call says of its time and level. */
CDP__PRIVATE uint64_t cdp__rpc_call_b(cdp_rpc *rpc, const cdp__rpc_call *c) {
    return (uint64_t)c->nested << 48 | (uint64_t)c->level << 32
        | cdp__rpc_time_left(rpc, c->deadline_ns);
}

/* The request has left this rank: from now on it is not certain that it did not run. */
CDP__PRIVATE void cdp__rpc_left(cdp_rpc *rpc, uint32_t to, const cdp__rpc_packet *p) {
    cdp__rpc_call *c = p->kind == CDP__RPC_CALL ? cdp__rpc_call_find(rpc, p->a) : NULL;
    cdp_rpc_record *r = c ? cdp__rpc_record_of(rpc, c->record) : NULL;
    if (p->kind != CDP__RPC_ROLL && (p->kind != CDP__RPC_ACCEPT || !CDP__RPC_PLANT(NOT_COUNTED)))
        ++rpc->peers[to].sent;
    rpc->bytes_out += CDP__HEAD_BYTES + p->bytes;
    cdp__rpc_copied(rpc, p->bytes);
    if (c) c->left = true;
    if (r) r->sent_ns = cdp__rpc_time(rpc);
}

/* Sends queued messages to a peer, as far as the channel has room. */
CDP__PRIVATE void cdp__rpc_flush(cdp_rpc *rpc, uint32_t to) {
    cdp__rpc_peer *peer = &rpc->peers[to];
    while (peer->queue && !rpc->lost[to]) {
        cdp__rpc_out *o = peer->queue;
        const cdp__rpc_call *c =
            o->p.kind == CDP__RPC_CALL ? cdp__rpc_call_find(rpc, o->p.a) : NULL;
        cdp_channel_message m;
        cdp_status st;
        const bool offer = o->p.bytes > rpc->inline_max;
        if (c) o->p.b = cdp__rpc_call_b(rpc, c); /* it has waited */
        m = cdp__rpc_message(&o->p, to, o->lent ? o->lent : cdp__rpc_body(o));
        st = offer ? cdp_channel_offer(rpc->channel, &m, &o->handle)
                   : cdp_channel_send(rpc->channel, &m);
        if (st == CDP_ERR_NOMEM) cdp__rpc_give_up(rpc, to, "out of memory for a message to it");
        if (st != CDP_OK) return;
        cdp__rpc_left(rpc, to, &o->p);
        if (o == peer->list) peer->list = NULL;
        peer->queue = o->next;
        if (!o->next) peer->queue_end = &peer->queue;
        if (offer && o->back && CDP__RPC_PLANT(BACK_EARLY)) {
            cdp__rpc_add_task(rpc, o->back);
            o->back = NULL;
        }
        if (offer) {
            o->next = peer->offered;
            peer->offered = o;
        } else {
            cdp__rpc_out_free(rpc, o);
        }
    }
}

CDP__PRIVATE void cdp__rpc_queue_out(cdp_rpc *rpc, cdp__rpc_out *o) {
    cdp__rpc_peer *peer = &rpc->peers[o->to];
    o->next = NULL;
    *peer->queue_end = o;
    peer->queue_end = &o->next;
    cdp__rpc_flush(rpc, o->to);
}

/* Bytes of the tensors, each padded to 8 bytes, and of the other data. */
CDP__PRIVATE uint64_t cdp__rpc_args_bytes(const cdp_args *args) {
    uint64_t n = 0;
    uint32_t i;
    for (i = 0; args && i < args->tensor_count; ++i) {
        const uint64_t one = cdp__rpc_tensor_bytes(&args->tensors[i]);
        n = one > UINT64_MAX / 4 - n ? UINT64_MAX / 4 : n + cdp__rpc_filled(one);
    }
    for (i = 0; args && i < args->iov_count; ++i)
        n = args->iov[i].bytes > UINT64_MAX / 2 - n ? UINT64_MAX / 2 : n + args->iov[i].bytes;
    return n;
}

CDP__PRIVATE void cdp__rpc_gather(uint8_t *to, const cdp_args *args) {
    uint32_t i;
    for (i = 0; args && i < args->tensor_count; ++i) {
        const uint64_t n = cdp__rpc_tensor_bytes(&args->tensors[i]);
        if (n) memcpy(to, args->tensors[i].data, (size_t)n);
        memset(to + n, 0, (size_t)(cdp__rpc_filled(n) - n));
        to += cdp__rpc_filled(n);
    }
    for (i = 0; args && i < args->iov_count; ++i) {
        if (args->iov[i].bytes) memcpy(to, args->iov[i].data, (size_t)args->iov[i].bytes);
        to += args->iov[i].bytes;
    }
}

/* Points the tensors of `args` to their contents in `area`. Returns where the bytes after them
   begin. */
CDP__PRIVATE uint8_t *cdp__rpc_tensors_in(
    cdp_tensor *out, const cdp_tensor *like, uint32_t count, uint8_t *area) {
    uint32_t i;
    for (i = 0; i < count; ++i) {
        out[i] = like[i];
        out[i].data = area;
        area += cdp__rpc_filled(cdp__rpc_tensor_bytes(&like[i]));
    }
    return area;
}

/* Writes the part of a message before its references. Returns the position after it. */
CDP__PRIVATE uint8_t *cdp__rpc_put_head(uint8_t *at, const cdp__rpc_packet *p) {
    if (p->flags & CDP__RPC_ON) {
        cdp__put_u64(at, p->rid);
        cdp__put_u64(at + 8, p->fid);
        at += 16;
    }
    if (p->flags & CDP__RPC_REMOTE) {
        cdp__put_u64(at, p->makes_rid);
        cdp__put_u64(at + 8, p->makes_fid);
        at += 16;
    }
    if (p->flags & CDP__RPC_CTX) {
        cdp__put_u64(at, p->slot);
        at += 8;
    }
    return at;
}

/* Writes the part after the references. */
CDP__PRIVATE void cdp__rpc_put_args(uint8_t *at, const cdp__rpc_packet *p, const cdp_args *args) {
    const bool tags = (p->flags & CDP__RPC_CTX) && p->kind <= CDP__RPC_REPLY;
    uint32_t i;
    for (i = 0; i < p->tensors; ++i, at += CDP__RPC_SHAPE)
        cdp__rpc_put_shape(at, &args->tensors[i], tags ? args->tensors[i].value : 0);
    cdp__rpc_gather(at, args);
}

/* Posts a message without references. OK: it is sent or queued. */
CDP__PRIVATE cdp_status cdp__rpc_post(
    cdp_rpc *rpc, uint32_t to, cdp__rpc_packet *p, const cdp_args *args) {
    uint64_t head;
    cdp__rpc_out *o;
    bool lend;
    if (rpc->lost[to]) return CDP_OK; /* the peer is lost */
    p->tensors = args ? args->tensor_count : 0;
    head = cdp__rpc_head_bytes(p);
    p->bytes = head + cdp__rpc_args_bytes(args);
    if (!rpc->peers[to].queue && p->bytes <= rpc->inline_max) {
        const bool direct = !head && args && args->iov_count == 1;
        const void *body = direct ? args->iov[0].data : rpc->scratch;
        cdp_channel_message m;
        cdp_status st;
        if (!direct) cdp__rpc_put_args(cdp__rpc_put_head(rpc->scratch, p), p, args);
        m = cdp__rpc_message(p, to, body);
        st = cdp_channel_send(rpc->channel, &m);
        if (st == CDP_OK) cdp__rpc_left(rpc, to, p);
        if (st == CDP_OK || st == CDP_ERR_PEER_LOST) return CDP_OK;
        if (st != CDP_PENDING) return st;
    }
    lend = rpc->lends && p->bytes > rpc->inline_max && !head && args->iov_count == 1;
    o = (cdp__rpc_out *)cdp__rpc_area_alloc(rpc, sizeof *o + (lend ? 0 : p->bytes));
    if (!o) return cdp__fail_nomem("a message of a call", sizeof *o + p->bytes);
    memset(o, 0, sizeof *o);
    o->p = *p;
    o->to = to;
    if (lend) {
        o->lent = args->iov[0].data;
        o->back = rpc->lends;
        rpc->lends = NULL;
    } else {
        cdp__rpc_put_args(cdp__rpc_put_head(cdp__rpc_body(o), p), p, args);
    }
    cdp__rpc_queue_out(rpc, o);
    return CDP_OK;
}

/* Posts a message that the protocol requires: if memory runs out, the peer is given up. */
CDP__PRIVATE void cdp__rpc_must_post(
    cdp_rpc *rpc, uint32_t to, cdp__rpc_packet *p, const cdp_args *args) {
    if (cdp__rpc_post(rpc, to, p, args) != CDP_OK)
        cdp__rpc_give_up(rpc, to, "out of memory for a message to it");
}

/* While the queue to a rank is not empty, messages about references are combined into one. They
   may then overtake other messages, which the table allows. False: send it by itself. */
CDP__PRIVATE bool cdp__rpc_listed(
    cdp_rpc *rpc, uint32_t to, cdp__rpc_kind kind, uint64_t a, uint64_t b) {
    cdp__rpc_peer *peer = &rpc->peers[to];
    cdp__rpc_out *o = peer->list;
    uint8_t *at;
    if (!cdp__rpc_is_list(kind) || !peer->queue) return false;
    if (o && o->p.kind == kind && o->p.bytes < CDP__RPC_LIST) {
        at = cdp__rpc_body(o) + o->p.bytes;
        cdp__put_u64(at, a);
        cdp__put_u64(at + 8, b);
        o->p.bytes += 16;
        return true;
    }
    o = (cdp__rpc_out *)cdp__alloc(rpc->os, sizeof *o + CDP__RPC_LIST);
    if (!o) return false;
    memset(o, 0, sizeof *o);
    o->p.kind = kind;
    o->p.a = a;
    o->p.b = b;
    o->to = to;
    peer->list = o;
    cdp__rpc_queue_out(rpc, o);
    return true;
}

CDP__PRIVATE void cdp__rpc_control(
    cdp_rpc *rpc, uint32_t to, cdp__rpc_kind kind, uint64_t a, uint64_t b, uint32_t aux) {
    cdp__rpc_packet p;
    if (cdp__rpc_listed(rpc, to, kind, a, b)) return;
    memset(&p, 0, sizeof p);
    p.kind = kind;
    p.a = a;
    p.b = b;
    p.aux = aux;
    cdp__rpc_must_post(rpc, to, &p, NULL);
}

/* ---- messages with references */

/* The slot of a handle; 0: the handle was dropped, see this thread's last error. */
CDP__PRIVATE uint32_t cdp__rpc_slot(cdp_rpc *rpc, const char *call, cdp_rref rref) {
    const uint32_t slot = (uint32_t)rref.slot;
    if (rref.rpc == rpc && slot && slot < rpc->refs.room) {
        const cdp__ref *r = &rpc->refs.at[slot];
        if (r->uses == (uint32_t)(rref.slot >> 32) && r->handles
            && (r->kind == CDP__REF_OWNER || r->kind == CDP__REF_USER))
            return slot;
    }
    if (rref.rpc != rpc)
        (void)cdp__fail(CDP_ERR_INVALID, "%s: %s", call,
            rref.rpc ? "the reference belongs to another rpc; use one of this rpc"
                     : "there is no reference in this cdp_rref");
    else
        (void)cdp__fail(CDP_ERR_STATE,
            "%s: the reference was dropped before; keep it with cdp_rref_keep() as long as you "
            "use it",
            call);
    return 0;
}

CDP__PRIVATE cdp_rref cdp__rpc_rref(cdp_rpc *rpc, uint32_t slot) {
    cdp_rref r;
    r.rpc = rpc;
    r.slot = (uint64_t)rpc->refs.at[slot].uses << 32 | slot;
    return r;
}

/* Tensors are described fully, and bytes have memory; else the reason is this thread's last error.
   Before anything else looks at them. */
CDP__PRIVATE cdp_status cdp__rpc_args_check(const char *call, const cdp_args *args) {
    uint32_t i;
    for (i = 0; args && i < args->iov_count; ++i)
        if (!args->iov || (args->iov[i].bytes && !args->iov[i].data))
            return cdp__fail(CDP_ERR_INVALID, "%s: args.iov[%u] has no memory", call, i);
    if (!args || !args->tensor_count) return CDP_OK;
    if (!args->tensors || args->tensor_count > CDP__RPC_TENSORS)
        return cdp__fail(CDP_ERR_INVALID, "%s: %u tensors in one message; at most %u travel", call,
            args->tensor_count, CDP__RPC_TENSORS);
    for (i = 0; i < args->tensor_count; ++i) {
        const cdp_tensor *t = &args->tensors[i];
        if (!cdp_dtype_size(t->dtype) || t->dims > 8)
            return cdp__fail(CDP_ERR_INVALID,
                "%s: tensors[%u] has dtype %d and %u dims; set a dtype and at most 8", call, i,
                (int)t->dtype, t->dims);
        if (!t->data && cdp__rpc_tensor_bytes(t))
            return cdp__fail(CDP_ERR_INVALID, "%s: tensors[%u] has no memory", call, i);
    }
    return CDP_OK;
}

/* Checks that all references can be used; if not, sets this thread's last error. */
CDP__PRIVATE cdp_status cdp__rpc_rrefs_check(cdp_rpc *rpc, const char *call, const cdp_args *args) {
    uint32_t i;
    if (args && args->rref_count > CDP__RPC_RREFS)
        return cdp__fail(CDP_ERR_INVALID, "%s: %u references in one message; at most %u travel",
            call, args->rref_count, CDP__RPC_RREFS);
    if (args && args->rref_count && !args->rrefs) return cdp__missing(call, "args.rrefs");
    for (i = 0; args && i < args->rref_count; ++i) {
        const uint32_t slot = cdp__rpc_slot(rpc, call, args->rrefs[i]);
        if (!slot) return cdp_last_error()->status;
        if (rpc->refs.at[slot].state == CDP__REF_BROKEN)
            return cdp__fail_peer(rpc->extra[slot].broken, rpc->refs.at[slot].rank, 0,
                "%s: a reference to a value of rank %u cannot be shared: that rank is lost, or "
                "never confirmed it",
                call, rpc->refs.at[slot].rank);
    }
    return CDP_OK;
}

/* Drops a message that will not be sent: its references stay here. */
CDP__PRIVATE void cdp__rpc_out_drop(cdp_rpc *rpc, cdp__rpc_out *o) {
    uint32_t i;
    for (i = 0; i < o->children; ++i) {
        const uint32_t hold = cdp__refs_find(&rpc->refs, CDP__REF_HOLD, o->child[i]);
        if (hold) rpc->extra[hold].out = NULL;
        cdp__ref_unshare(&rpc->refs, o->child[i]);
    }
    cdp__rpc_out_free(rpc, o);
}

/* Posts a message that contains references, or that waits for `on` or for its turn. The
   references were checked, and there is room. */
CDP__PRIVATE cdp_status cdp__rpc_post_rrefs(cdp_rpc *rpc, uint32_t to, cdp__rpc_packet *p,
    const cdp_args *args, uint32_t on, bool in_order) {
    cdp__rpc_out *o;
    uint8_t *at;
    uint32_t i;
    if (rpc->lost[to]) return CDP_OK;
    p->rrefs = args ? args->rref_count : 0;
    p->tensors = args ? args->tensor_count : 0;
    p->bytes = cdp__rpc_head_bytes(p) + cdp__rpc_args_bytes(args);
    o = (cdp__rpc_out *)cdp__rpc_area_alloc(rpc, sizeof *o + p->bytes);
    if (!o) return cdp__fail_nomem("a message of a call", sizeof *o + p->bytes);
    memset(o, 0, sizeof *o);
    o->p = *p;
    o->to = to;
    at = cdp__rpc_put_head(cdp__rpc_body(o), p);
    for (i = 0; i < p->rrefs; ++i, at += CDP__RPC_RECORD) {
        const uint32_t slot = (uint32_t)args->rrefs[i].slot;
        const uint64_t child = cdp__rpc_number(rpc);
        cdp__rpc_put_record(at, rpc->refs.at[slot].rid, child, rpc->refs.at[slot].rank);
        o->child[o->children++] = child;
        if (cdp__ref_share(&rpc->refs, slot, child, to) != CDP__REF_PENDING) continue;
        ++o->waits;
        rpc->extra[cdp__refs_find(&rpc->refs, CDP__REF_HOLD, child)].out = o;
    }
    cdp__rpc_put_args(at, p, args);
    if (on && rpc->refs.at[on].state == CDP__REF_PENDING) o->on = on;
    o->in_order = in_order;
    if (!o->waits && !o->on && !in_order) {
        cdp__rpc_queue_out(rpc, o);
        return CDP_OK;
    }
    o->next = rpc->waiting;
    rpc->waiting = o;
    return CDP_OK;
}

/* Carries out an action of the table. */
CDP__PRIVATE void cdp__rpc_act(void *user, const cdp__ref_act *a) {
    cdp_rpc *rpc = (cdp_rpc *)user;
    cdp__rpc_extra *x = &rpc->extra[a->slot];
    switch (a->what) {
    case CDP__REF_SEND_REMOTE_ACK:
        cdp__rpc_control(rpc, a->to, CDP__RPC_REMOTE_ACK, a->rid, a->fid, (uint32_t)a->how);
        break;
    case CDP__REF_SEND_FORK:
        cdp__rpc_control(rpc, a->to, CDP__RPC_FORK, a->rid, a->fid, a->parent);
        break;
    case CDP__REF_SEND_FORK_ACK:
        cdp__rpc_control(rpc, a->to, CDP__RPC_FORK_ACK, a->rid, a->fid, (uint32_t)a->how);
        break;
    case CDP__REF_SEND_ACCEPT: cdp__rpc_control(rpc, a->to, CDP__RPC_ACCEPT, 0, a->fid, 0); break;
    case CDP__REF_SEND_DELETE:
        cdp__rpc_control(rpc, a->to, CDP__RPC_DELETE, a->rid, a->fid, 0);
        break;
    case CDP__REF_SHARE_NEVER:
    case CDP__REF_SHARE_NOW:
        if (!x->out) break;
        if (a->what == CDP__REF_SHARE_NEVER) x->out->broken = true;
        --x->out->waits;
        x->out = NULL;
        rpc->confirmed = true;
        break;
    case CDP__REF_NOW_BROKEN:
        x->broken = a->how == CDP__REF_FULL ? CDP_ERR_BUSY : CDP_ERR_PEER_LOST;
        rpc->confirmed = rpc->changed = true;
        break;
    case CDP__REF_NOW_LIVE: rpc->confirmed = rpc->changed = true; break;
    case CDP__REF_NOW_ENDED:
        if (x->value) cdp__rpc_add_task(rpc, &x->value->task);
        cdp__free(rpc->os, x->label);
        memset(x, 0, sizeof *x);
        break;
    case CDP__REF_WHATS: break;
    }
}

#endif /* CDP_SRC_RPC_SEND_H */
