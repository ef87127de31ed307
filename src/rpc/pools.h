/* rpc/pools.h - records of calls and requests, memory of long messages

   Knows: what was used once and is kept for the next use, what is remembered of calls. Promises: a
   record that ended is not taken for the one that uses its memory. */
#ifndef CDP_SRC_RPC_POOLS_H
#define CDP_SRC_RPC_POOLS_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/compiler.h"
#include "../base/ended.h"
#include "../base/basics.h"
#include "worker_api.h"
#include "calls_api.h"
#include "table.h"
#include "packets.h"
#include "state.h"

/* ---- what is remembered of calls */

/* A new one, under way; its number is not 0. */
CDP__PRIVATE uint64_t cdp__rpc_record_new(
    cdp_rpc *rpc, uint64_t call, uint32_t from, uint32_t to, uint32_t function, uint64_t start_ns) {
    cdp_rpc_record *r = &rpc->records[++rpc->record_count % CDP__RPC_RECORDS];
    memset(r, 0, sizeof *r);
    r->call = call;
    r->from = from;
    r->to = to;
    r->function = function;
    r->status = CDP_PENDING;
    r->start_ns = start_ns;
    return rpc->record_count;
}

/* NULL: it has made room for later ones. */
CDP__PRIVATE cdp_rpc_record *cdp__rpc_record_of(cdp_rpc *rpc, uint64_t number) {
    if (!number || rpc->record_count - number >= CDP__RPC_RECORDS) return NULL;
    return &rpc->records[number % CDP__RPC_RECORDS];
}

/* ---- records of calls and requests */

/* Makes a new record. */
CDP__PRIVATE bool cdp__rpc_call_more(cdp_rpc *rpc) {
    const uint32_t room = rpc->call_room ? rpc->call_room * 2 : 16;
    cdp__rpc_call **more = rpc->calls, *c;
    if (rpc->call_count + 1 >= rpc->call_room) {
        more = (cdp__rpc_call **)cdp__alloc_zero(rpc->os, room * sizeof *more);
        if (!more) return false;
        if (rpc->call_room) memcpy(more, rpc->calls, rpc->call_room * sizeof *more);
        cdp__free(rpc->os, rpc->calls);
        rpc->calls = more;
        rpc->call_room = room;
    }
    c = (cdp__rpc_call *)cdp__alloc_zero(rpc->os, sizeof *c);
    if (!c) return false;
    c->index = ++rpc->call_count;
    rpc->calls[c->index] = c;
    rpc->call_free = c->index;
    return true;
}

CDP__PRIVATE cdp__rpc_call *cdp__rpc_call_open(cdp_rpc *rpc) {
    cdp__rpc_call *c;
    uint32_t index, uses;
    if (!rpc->call_free && !cdp__rpc_call_more(rpc)) return NULL;
    index = rpc->call_free;
    c = rpc->calls[index];
    rpc->call_free = c->next_free;
    uses = c->uses + 1;
    memset(c, 0, sizeof *c);
    c->index = index;
    c->uses = uses;
    c->used = true;
    ++rpc->calls_used;
    return c;
}

CDP__PRIVATE void cdp__ctx_unuse(cdp_rpc *rpc, cdp_ctx *ctx) {
    --ctx->uses;
    if (ctx->ended && !ctx->uses) cdp__rpc_add_task(rpc, &ctx->task);
    rpc->changed = true;
}

CDP__PRIVATE void cdp__rpc_call_close(cdp_rpc *rpc, cdp__rpc_call *c) {
    cdp_ctx *ctx = c->ctx;
    c->ctx = NULL;
    if (ctx) cdp__ctx_unuse(rpc, ctx);
    c->used = false;
    c->next_free = rpc->call_free;
    rpc->call_free = c->index;
    --rpc->calls_used;
    rpc->changed = true;
}

CDP__PRIVATE uint64_t cdp__rpc_call_id(const cdp__rpc_call *c) {
    return (uint64_t)c->uses << 32 | c->index;
}

/* Finds a call. NULL: it has ended. */
CDP__PRIVATE cdp__rpc_call *cdp__rpc_call_find(const cdp_rpc *rpc, uint64_t id) {
    const uint32_t index = (uint32_t)id;
    cdp__rpc_call *c = index && index <= rpc->call_count ? rpc->calls[index] : NULL;
    return c && c->used && c->uses == (uint32_t)(id >> 32) ? c : NULL;
}

/* True if all earlier calls of its order were answered. */
CDP__PRIVATE bool cdp__rpc_turn(const cdp_rpc *rpc, const cdp__rpc_call *c) {
    uint32_t i;
    for (i = 1; c && c->order && i <= rpc->call_count; ++i) {
        const cdp__rpc_call *other = rpc->calls[i];
        if (other->used && !other->wire_over && other->order && other->order < c->order
            && other->to == c->to && other->order_on == c->order_on
            && (c->order_on || other->function == c->function))
            return false;
    }
    return true;
}

CDP__PRIVATE void cdp__rpc_record_call(cdp_rpc *rpc, cdp__rpc_call *c) {
    c->record =
        cdp__rpc_record_new(rpc, cdp__rpc_call_id(c), rpc->rank, c->to, c->function, c->start_ns);
    rpc->one_ways += c->one_way;
}

/* The call has ended for its caller; later messages do not change its record. */
CDP__PRIVATE void cdp__rpc_record_end(
    cdp_rpc *rpc, const cdp__rpc_call *c, cdp_status status, cdp_ran ran) {
    cdp_rpc_record *r = cdp__rpc_record_of(rpc, c->record);
    if (!r || r->end_ns) return;
    r->status = status;
    r->ran = ran;
    r->end_ns = cdp__rpc_time(rpc);
}

/* ---- memory of long messages */

/* Returns unused memory to the system. */
CDP__PRIVATE void cdp__rpc_area_drop(cdp_rpc *rpc, cdp__rpc_area *a) {
    if (!a->at || a->used) return;
    rpc->areas_kept -= a->room;
    cdp__free(rpc->os, a->at);
    a->at = NULL;
}

/* Returns NULL when out of memory. */
CDP__PRIVATE void *cdp__rpc_area_alloc(cdp_rpc *rpc, uint64_t bytes) {
    cdp__rpc_area *fit = NULL, *none = NULL;
    uint32_t i;
    if (bytes <= CDP__RPC_INLINE_MAX) return cdp__alloc(rpc->os, bytes);
    for (i = 0; i < CDP__RPC_AREAS; ++i) {
        cdp__rpc_area *a = &rpc->areas[i];
        if (!a->at) none = a;
        if (!a->at || a->used || a->room < bytes || a->room / 2 > bytes) continue;
        if (!fit || a->room < fit->room) fit = a;
    }
    if (fit) {
        rpc->areas_kept -= fit->room;
        fit->used = true;
        return fit->at;
    }
    for (i = 0; i < CDP__RPC_AREAS && !none; ++i) {
        cdp__rpc_area_drop(rpc, &rpc->areas[i]);
        if (!rpc->areas[i].at) none = &rpc->areas[i];
    }
    if (!none) return cdp__alloc(rpc->os, bytes);
    none->at = cdp__alloc(rpc->os, bytes);
    if (!none->at && rpc->areas_kept) {
        for (i = 0; i < CDP__RPC_AREAS; ++i)
            cdp__rpc_area_drop(rpc, &rpc->areas[i]);
        none->at = cdp__alloc(rpc->os, bytes);
    }
    none->room = bytes;
    none->used = none->at != NULL;
    return none->at;
}

/* Frees memory of cdp__rpc_area_alloc(), or any other memory. */
CDP__PRIVATE void cdp__rpc_area_free(cdp_rpc *rpc, void *p) {
    cdp__rpc_area *a = rpc->areas;
    while (p && a < rpc->areas + CDP__RPC_AREAS && a->at != p)
        ++a;
    if (!p || a == rpc->areas + CDP__RPC_AREAS) {
        cdp__free(rpc->os, p);
        return;
    }
    a->used = false;
    rpc->areas_kept += a->room;
    if (rpc->areas_kept > 2 * rpc->desc.max_message_bytes) cdp__rpc_area_drop(rpc, a);
}

CDP__PRIVATE cdp__rpc_rq *cdp__rpc_rq_open(cdp_rpc *rpc) {
    cdp__rpc_rq *rq = rpc->free_rqs;
    if (rq)
        rpc->free_rqs = rq->next;
    else
        rq = (cdp__rpc_rq *)cdp__alloc(rpc->os, sizeof *rq);
    if (!rq) return NULL;
    cdp__ended_remove(rq);
    memset(rq, 0, offsetof(cdp__rpc_rq, room));
    memset(rq->refs, 0, sizeof rq->refs);
    rq->counted = rq->passed_ns = rq->record = 0;
    rq->cancelled = rq->in_function = rq->nested = false;
    rq->level = 0;
    rq->pub.rpc = rpc;
    rq->pub.user = rpc->desc.user;
    rq->pub.rrefs = rq->refs;
    rq->after = rpc->all;
    if (rpc->all) rpc->all->before = rq;
    rpc->all = rq;
    ++rpc->rqs;
    rpc->moved_ns = cdp__rpc_time(rpc);
    return rq;
}

CDP__PRIVATE void cdp__rpc_rq_close(cdp_rpc *rpc, cdp__rpc_rq *rq) {
    if (rq->before)
        rq->before->after = rq->after;
    else
        rpc->all = rq->after;
    if (rq->after) rq->after->before = rq->before;
    rpc->in_bytes -= rq->counted;
    cdp__rpc_area_free(rpc, rq->buffer);
    cdp__free(rpc->os, rq->tensors);
    if (rq->pub.ctx) cdp__ctx_unuse(rpc, rq->pub.ctx);
    rq->next = rpc->free_rqs;
    rpc->free_rqs = rq;
    --rpc->rqs;
    rpc->moved_ns = cdp__rpc_time(rpc);
    rpc->changed = true;
}

CDP__PRIVATE void cdp__rpc_append(cdp__rpc_rq ***end, cdp__rpc_rq *rq) {
    rq->next = NULL;
    **end = rq;
    *end = &rq->next;
}

/* Adds a request to the queue for threads, in which ranks have turns: before it are at most as many
   requests of each other rank as of its own. */
CDP__PRIVATE void cdp__rpc_enqueue(cdp_rpc *rpc, cdp__rpc_rq *rq) {
    cdp__rpc_peer *peer = &rpc->peers[rq->pub.from];
    cdp__rpc_rq **at = &rpc->queue;
    rq->turn = peer->turn = cdp__max(peer->turn, rpc->turn) + 1;
    if (rpc->queue && rq->turn < rpc->last_turn) {
        while (*at && (*at)->turn <= rq->turn)
            at = &(*at)->next;
    } else {
        at = rpc->queue_end;
    }
    rpc->last_turn = cdp__max(rpc->last_turn, rq->turn);
    rq->next = *at;
    *at = rq;
    if (!rq->next) rpc->queue_end = &rq->next;
}

/* Removes a request from a list, if it is in it. True: it was. */
CDP__PRIVATE bool cdp__rpc_unlist(cdp__rpc_rq **list, cdp__rpc_rq ***end, cdp__rpc_rq *rq) {
    cdp__rpc_rq **at = list;
    while (*at && *at != rq)
        at = &(*at)->next;
    if (!*at) return false;
    *at = rq->next;
    if (end && !*at) *end = at;
    return true;
}

/* Makes room for `need` more references. False: out of memory, or max_rrefs is reached. */
CDP__PRIVATE bool cdp__rpc_reserve(cdp_rpc *rpc, uint32_t need) {
    const uint32_t most = rpc->desc.max_rrefs + 1;
    uint32_t room = rpc->refs.room ? rpc->refs.room : 32;
    uint32_t chains = 32, *heads;
    cdp__ref *at;
    cdp__rpc_extra *extra;
    if (rpc->refs.left >= need) return true;
    while (room < most && room - (rpc->refs.room ? rpc->refs.room - rpc->refs.left : 1) < need)
        room *= 2;
    room = (uint32_t)cdp__min(room, most);
    if (room <= rpc->refs.room) return false;
    at = (cdp__ref *)cdp__alloc(rpc->os, room * sizeof *at);
    while (chains < room)
        chains *= 2;
    heads = (uint32_t *)cdp__alloc(rpc->os, chains * sizeof *heads);
    extra = (cdp__rpc_extra *)cdp__alloc_zero(rpc->os, room * sizeof *extra);
    if (at && heads && extra) {
        cdp__ref *old_at = rpc->refs.at;
        uint32_t *old_heads = rpc->refs.heads;
        if (rpc->refs.room) memcpy(extra, rpc->extra, rpc->refs.room * sizeof *extra);
        cdp__refs_move(&rpc->refs, at, room, heads, chains);
        cdp__free(rpc->os, rpc->extra);
        rpc->extra = extra;
        cdp__free(rpc->os, old_at);
        cdp__free(rpc->os, old_heads);
        return rpc->refs.left >= need;
    }
    cdp__free(rpc->os, at);
    cdp__free(rpc->os, heads);
    cdp__free(rpc->os, extra);
    return false;
}

#endif /* CDP_SRC_RPC_POOLS_H */
