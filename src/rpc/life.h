/* rpc/life.h - creation, destruction

   Knows: the exchange of names and limits. Promises: creation fails on all ranks that take part in
   the exchange, or on none of them. */
#ifndef CDP_SRC_RPC_LIFE_H
#define CDP_SRC_RPC_LIFE_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../base/error_api.h"
#include "../os/os_api.h"
#include "../message/transport_api.h"
#include "../group/group_api.h"
#include "../group/collectives_api.h"
#include "../channel/channel_api.h"
#include "../base/compiler.h"
#include "../base/ended.h"
#include "../base/basics.h"
#include "../text/utf8.h"
#include "../text/format.h"
#include "../base/text.h"
#include "../os/threads.h"
#include "../os/linux.h"
#include "../os/child.h"
#include "../base/bytes.h"
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
#include "roll_call.h"
#include "contexts.h"
#include "calls.h"
#include "passes.h"
#include "intake.h"
#include "waits.h"

#define CDP__RPC_MAGIC 0x36637072u /* version 6 of the messages: shutdown among survivors */
#define CDP__RPC_CARD (24u + CDP__RPC_NAME)

CDP__PRIVATE cdp_status cdp__rpc_desc_check(const cdp_rpc_desc *d) {
    uint32_t i, k;
    if (!d->group) return cdp__missing("cdp_rpc_create", "desc.group");
    if (d->name && !cdp__rpc_name_fits(d->name))
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_rpc_create: the name \"%s\" is not made of 1 to 127 letters, digits and _ . : -",
            d->name);
    if (d->function_count && !d->functions) return cdp__missing("cdp_rpc_create", "desc.functions");
    for (i = 0; i < d->function_count; ++i) {
        const cdp_rpc_function *f = &d->functions[i];
        if (f->flags & ~(CDP_RPC_INLINE | CDP_RPC_LATER | CDP_RPC_EARLY))
            return cdp__fail(CDP_ERR_INVALID,
                "cdp_rpc_create: functions[%u] has flags 0x%x; there are CDP_RPC_INLINE, _LATER "
                "and "
                "_EARLY",
                i, f->flags);
        if (!cdp__rpc_name_fits(f->name) || !f->func || (f->allow_count && !f->allow))
            return cdp__fail(CDP_ERR_INVALID,
                "cdp_rpc_create: functions[%u] needs func, a name of 1 to 127 letters, digits and "
                "_ . : -, and allow if allow_count is set",
                i);
        for (k = 0; k < i; ++k)
            if (cdp__rpc_id_of(d->functions[k].name) == cdp__rpc_id_of(f->name))
                return cdp__fail(CDP_ERR_INVALID,
                    "cdp_rpc_create: functions \"%s\" and \"%s\" have the same id; rename one",
                    d->functions[k].name, f->name);
    }
    return CDP_OK;
}

/* Copies the functions of the desc, with their names and lists of ranks, into one piece. */
CDP__PRIVATE cdp_status cdp__rpc_copy_functions(cdp_rpc *rpc) {
    cdp_rpc_desc *d = &rpc->desc;
    uint64_t bytes = d->function_count * sizeof *d->functions;
    uint8_t *at;
    uint32_t i;
    for (i = 0; i < d->function_count; ++i)
        bytes += strlen(d->functions[i].name) + 1 + 4ull * d->functions[i].allow_count;
    rpc->functions = (cdp_rpc_function *)cdp__alloc(rpc->os, bytes);
    if (!rpc->functions) return cdp__fail_nomem("a list of functions", bytes);
    at = (uint8_t *)(rpc->functions + d->function_count);
    if (d->function_count)
        memcpy(rpc->functions, d->functions, (size_t)(at - (uint8_t *)rpc->functions));
    for (i = 0; i < d->function_count; ++i) {
        cdp_rpc_function *f = &rpc->functions[i];
        const uint64_t n = 4ull * f->allow_count;
        if (n) f->allow = (const uint32_t *)memcpy(at, f->allow, (size_t)n);
        at += n;
    }
    for (i = 0; i < d->function_count; ++i) {
        cdp_rpc_function *f = &rpc->functions[i];
        const uint64_t n = strlen(f->name) + 1;
        f->name = (const char *)memcpy(at, f->name, (size_t)n);
        at += n;
    }
    d->functions = rpc->functions;
    return CDP_OK;
}

CDP__PRIVATE void cdp__rpc_defaults(cdp_rpc *rpc) {
    cdp_rpc_desc *d = &rpc->desc;
    const bool threads = rpc->os->threads.start && !cdp_group_desc_of(d->group)->no_thread;
    d->timeout_ms = cdp__def(d->timeout_ms, 60000u);
    d->workers = d->no_workers || !threads ? 0 : cdp__def(d->workers, 4u);
    d->max_calls = cdp__def(d->max_calls, 256u);
    d->max_call_bytes = cdp__def(d->max_call_bytes, 64ull << 20);
    d->max_queue = cdp__def(d->max_queue, 4096u);
    d->max_depth = (uint32_t)cdp__min(cdp__def(d->max_depth, 255u), CDP__RPC_DEPTHS - 1);
    d->max_message_bytes = cdp__def(d->max_message_bytes, 64ull << 20);
    d->max_queue_bytes = cdp__def(d->max_queue_bytes, 256ull << 20);
    d->max_rrefs = cdp__def(d->max_rrefs, 65536u);
    d->max_contexts = cdp__def(d->max_contexts, 256u);
    if (d->max_rrefs > 0x7ffffffe) d->max_rrefs = 0x7ffffffe;
    rpc->share = d->max_queue / (rpc->ranks > 1 ? rpc->ranks - 1 : 1);
    if (!rpc->share) rpc->share = 1;
}

/* Allocates memory whose size never changes. */
CDP__PRIVATE cdp_status cdp__rpc_memory(cdp_rpc *rpc) {
    uint32_t r;
    rpc->peers = (cdp__rpc_peer *)cdp__alloc_zero(rpc->os, rpc->ranks * sizeof *rpc->peers);
    rpc->lost = (bool *)cdp__alloc_zero(rpc->os, rpc->ranks);
    rpc->uses =
        (cdp__rpc_use *)cdp__alloc_zero(rpc->os, rpc->desc.function_count * sizeof *rpc->uses);
    rpc->inline_max =
        cdp__min(CDP__RPC_INLINE_MAX, cdp_group_desc_of(rpc->desc.group)->window_bytes / 4);
    rpc->scratch = (uint8_t *)cdp__alloc(rpc->os, CDP__RPC_INLINE_MAX);
    rpc->records = (cdp_rpc_record *)cdp__alloc(rpc->os, CDP__RPC_RECORDS * sizeof *rpc->records);
    rpc->threads =
        (void **)cdp__alloc_zero(rpc->os, (rpc->desc.workers + 1) * sizeof *rpc->threads);
    if (!rpc->peers || !rpc->lost || !rpc->uses || !rpc->scratch || !rpc->threads || !rpc->records
        || !cdp__lock_open(&rpc->lock, rpc->os, true))
        return cdp__fail_nomem("an rpc", rpc->ranks * sizeof *rpc->peers + CDP__RPC_INLINE_MAX);
    for (r = 0; r < rpc->ranks; ++r)
        rpc->peers[r].queue_end = &rpc->peers[r].queue;
    rpc->queue_end = &rpc->queue;
    rpc->inline_end = &rpc->inline_queue;
    rpc->tasks_end = &rpc->tasks;
    rpc->in_end = &rpc->in;
    rpc->forks = cdp__forks_watch();
    rpc->timer_ns = CDP__NEVER;
    rpc->waves_end = &rpc->waves;
    rpc->refs.rank = rpc->rank;
    rpc->refs.first_use = cdp__rpc_first_use();
    rpc->refs.lost = rpc->lost;
    rpc->refs.act = cdp__rpc_act;
    rpc->refs.user = rpc;
    if (rpc->desc.survivors && cdp__rpc_roll_open(rpc) != CDP_OK) return cdp_last_error()->status;
    if (!cdp__rpc_reserve(rpc, 1)) return cdp__fail_nomem("a table of references", 4096);
    return cdp__rpc_copy_functions(rpc);
}

/* Compares the names and limits of all ranks. */
CDP__PRIVATE cdp_status cdp__rpc_cards(cdp_rpc *rpc, const uint8_t *cards) {
    uint32_t r, k;
    for (r = 0; r < rpc->ranks; ++r) {
        const uint8_t *card = cards + r * CDP__RPC_CARD;
        cdp__rpc_peer *peer = &rpc->peers[r];
        if (memcmp(card, cards, 8) != 0 || memcmp(card + 12, cards + 12, 12) != 0)
            return cdp__fail_peer(CDP_ERR_MISMATCH, cdp_world_rank_of(rpc->group, r), 0,
                "cdp_rpc_create: ranks 0 and %u differ in version, number (%u and %u), survivors "
                "(%u and %u) or max_message_bytes (%llu and %llu)",
                r, cdp__get_u32(cards + 4), cdp__get_u32(card + 4), cdp__get_u32(cards + 12),
                cdp__get_u32(card + 12), (unsigned long long)cdp__get_u64(cards + 16),
                (unsigned long long)cdp__get_u64(card + 16));
        peer->limit = (uint32_t)cdp__min(rpc->desc.max_calls, cdp__get_u32(card + 8));
        cdp__text_foreign_in(
            peer->name, sizeof peer->name, (const char *)card + 24, CDP__RPC_NAME - 1);
        for (k = 0; k < r; ++k)
            if (!strcmp(rpc->peers[k].name, peer->name))
                return cdp__fail_peer(CDP_ERR_MISMATCH, cdp_world_rank_of(rpc->group, r), 0,
                    "cdp_rpc_create: ranks %u and %u are both called \"%s\"; names must be unique",
                    k, r, peer->name);
    }
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__rpc_exchange(cdp_rpc *rpc) {
    uint8_t card[CDP__RPC_CARD], *cards;
    char own[16];
    const char *name = rpc->desc.name ? rpc->desc.name : own;
    cdp_status st;
    cdp__format(own, sizeof own, "rank%u", rpc->rank);
    memset(card, 0, sizeof card);
    cdp__put_u32(card, CDP__RPC_MAGIC);
    cdp__put_u32(card + 4, rpc->desc.number);
    cdp__put_u32(card + 8, rpc->share);
    cdp__put_u32(card + 12, rpc->desc.survivors);
    cdp__put_u64(card + 16, rpc->desc.max_message_bytes);
    memcpy(card + 24, name, strlen(name));
    cards = (uint8_t *)cdp__alloc(rpc->os, rpc->ranks * CDP__RPC_CARD);
    if (!cards) return cdp__fail_nomem("names of ranks", rpc->ranks * CDP__RPC_CARD);
    st = cdp_allgather(rpc->sums, card, cards, CDP__RPC_CARD, CDP_DTYPE_U8);
    if (st == CDP_OK) st = cdp__rpc_cards(rpc, cards);
    cdp__free(rpc->os, cards);
    return st;
}

CDP__PRIVATE cdp_status cdp__rpc_open(cdp_rpc *rpc) {
    cdp_channel_desc c;
    memset(&c, 0, sizeof c);
    c.group = rpc->group;
    c.number = rpc->desc.number;
    c.user = rpc;
    c.deliver = cdp__rpc_deliver;
    c.lost = cdp__rpc_peer_lost;
    c.credit = cdp__rpc_credit;
    c.released = cdp__rpc_released;
    c.fetched = cdp__rpc_fetched;
    c.timer = cdp__rpc_tick;
    /* before other threads read it without the lock */
    rpc->backward.name = "a backward function";
    rpc->backward.func = cdp__ctx_run_node;
    rpc->backward_use.known = true;
    if (rpc->desc.workers) {
        rpc->cond = rpc->os->threads.cond_create(rpc->os);
        if (!rpc->cond) return cdp__fail_nomem("a condition of workers", 64);
    }
    for (; rpc->thread_count < rpc->desc.workers; ++rpc->thread_count) {
        rpc->threads[rpc->thread_count] = rpc->os->threads.start(rpc->os, cdp__rpc_worker, rpc);
        if (!rpc->threads[rpc->thread_count])
            return cdp__fail(CDP_ERR_IO, "cdp_rpc_create: worker thread %u could not be started",
                rpc->thread_count);
    }
    cdp__rpc_lock(rpc); /* callbacks wait until rpc->channel is set */
    if (cdp_channel_open(&c, &rpc->channel) != CDP_OK) rpc->channel = NULL;
    cdp_lock_release(&rpc->lock);
    return rpc->channel ? CDP_OK : cdp_last_error()->status;
}

CDP__PRIVATE void cdp__rpc_stop_workers(cdp_rpc *rpc) {
    cdp__rpc_lock(rpc);
    rpc->stop = true;
    if (rpc->cond) rpc->os->threads.cond_broadcast(rpc->os->user, rpc->cond);
    cdp_lock_release(&rpc->lock);
    while (rpc->thread_count)
        rpc->os->threads.join(rpc->os, rpc->threads[--rpc->thread_count]);
}

/* Call without the lock: destroying a group waits for its callbacks, which may take the lock. */
CDP__PRIVATE void cdp__rpc_free_groups(cdp_rpc *rpc) {
    cdp_group_destroy(rpc->sums);
    cdp_group_destroy(rpc->group);
    rpc->sums = rpc->group = NULL;
}

/* Frees everything except the record itself, which kept requests still need. */
CDP__PRIVATE void cdp__rpc_free_parts(cdp_rpc *rpc) {
    const cdp_os *os = rpc->os;
    uint32_t i;
    for (i = 1; i <= rpc->call_count; ++i)
        cdp__free(os, rpc->calls[i]);
    while (rpc->free_rqs) {
        cdp__rpc_rq *next = rpc->free_rqs->next;
        cdp__ended_add(rpc->free_rqs);
        cdp__free(os, rpc->free_rqs);
        rpc->free_rqs = next;
    }
    for (i = 0; i < CDP__RPC_AREAS; ++i)
        cdp__rpc_area_drop(rpc, &rpc->areas[i]);
    if (rpc->cond) os->threads.cond_destroy(os, rpc->cond);
    cdp__free(os, rpc->calls);
    cdp__free(os, rpc->peers);
    cdp__free(os, rpc->lost);
    cdp__free(os, rpc->uses);
    cdp__free(os, rpc->scratch);
    cdp__free(os, rpc->records);
    cdp__free(os, rpc->threads);
    cdp__free(os, rpc->refs.at);
    cdp__free(os, rpc->refs.heads);
    cdp__free(os, rpc->extra);
    for (i = 0; i < CDP__RPC_CALLED; ++i)
        cdp__free(os, rpc->called[i].name);
    cdp__free(os, rpc->functions);
    cdp__rpc_roll_close(rpc);
}

CDP__PRIVATE void cdp__rpc_free(cdp_rpc *rpc) {
    cdp__lock_close(&rpc->lock);
    cdp__free(rpc->os, rpc);
}

/* ---- destruction */

/* Ends all values and references, on whichever rank their handles are. Lock held. */
CDP__PRIVATE void cdp__rpc_end_refs(cdp_rpc *rpc) {
    uint32_t slot;
    for (slot = 1; slot < rpc->refs.room; ++slot) {
        cdp__ref *r = &rpc->refs.at[slot];
        while (r->kind == CDP__REF_OWNER && (r->handles || r->count)) {
            r->handles = 1;
            r->count = 0;
            cdp__ref_drop(&rpc->refs, slot);
        }
    }
}

/* Nothing can be sent any more: what waits to be sent is dropped, and every rank is lost. */
CDP__PRIVATE void cdp__rpc_lose_all(cdp_rpc *rpc) {
    uint32_t i;
    for (i = 0; i < rpc->ranks; ++i)
        rpc->lost[i] = true;
    for (i = 0; i < rpc->ranks; ++i) {
        while (rpc->peers[i].offered) {
            cdp__rpc_out *o = rpc->peers[i].offered;
            rpc->peers[i].offered = o->next;
            cdp__rpc_out_drop(rpc, o);
        }
        cdp__rpc_lose(rpc, i);
    }
}

/* False: this thread must not destroy the rpc, or it was destroyed. */
CDP__PRIVATE bool cdp__rpc_may_end(cdp_rpc *rpc) {
    if (cdp__rpc_gone(rpc, "cdp_rpc_destroy")) return false;
    if (!cdp__rpc_here_of()->request && !cdp__rpc_here_of()->no_wait && !*cdp__inside())
        return true;
    (void)cdp__fail(CDP_ERR_STATE,
        "cdp_rpc_destroy: a function or a callback must not destroy an rpc; do it where nothing of "
        "it runs");
    return false;
}

CDP_API void cdp_rpc_destroy(cdp_rpc *rpc) {
    cdp__rpc_rq *rq;
    uint32_t i;
    if (!rpc || !cdp__rpc_may_end(rpc)) return;
    cdp__rpc_lock(rpc);
    rpc->phase = CDP__RPC_SHUT;
    rpc->leaving = true;
    for (i = 1; i <= rpc->call_count; ++i)
        if (rpc->calls[i]->used && rpc->calls[i]->call)
            cdp__rpc_abandon(rpc, rpc->calls[i], CDP_ERR_STATE);
    for (rq = rpc->all; rq; rq = rq->after)
        rq->cancelled = true;
    cdp__rpc_leave(rpc);
    cdp__rpc_stop_workers(rpc);
    cdp_channel_close(rpc->channel);
    cdp__rpc_lock(rpc);
    rpc->channel = NULL;
    cdp__rpc_lose_all(rpc);
    while (rpc->in)
        cdp__rpc_in_close(rpc, rpc->in);
    while (rpc->contexts) {
        if (cdp__rpc_maker(rpc->contexts->id) == rpc->rank) cdp__ctx_orphan(rpc->contexts);
        cdp__ctx_drop(rpc, rpc->contexts);
    }
    cdp__ctx_steps(rpc);
    cdp__rpc_tasks(rpc);
    cdp__rpc_end_refs(rpc);
    cdp__rpc_tasks(rpc);
    for (i = 1; i < rpc->refs.room; ++i)
        cdp__free(rpc->os, rpc->extra[i].label); /* of references that the program still has */
    rpc->refs.room = 0;
    rpc->kept = rpc->rqs + 1; /* the one more is for this function */
    for (rq = rpc->all; rq; rq = rq->after) {
        rq->pub.rref_count = 0;
        if (rq->pub.ctx) cdp__ctx_unuse(rpc, rq->pub.ctx);
        rq->pub.ctx = NULL;
        rq->pub.on = NULL;
        memset(&rq->pub.on_rref, 0, sizeof rq->pub.on_rref);
    }
    cdp__rpc_tasks(rpc);
    cdp_lock_release(&rpc->lock);
    cdp__rpc_free_groups(rpc);
    cdp__rpc_delist(
        rpc); /* from here on, calls and references of the program touch nothing of it */
    cdp__rpc_lock(rpc);
    cdp__rpc_free_parts(rpc);
    rpc->free_rqs = NULL;
    i = --rpc->kept;
    cdp_lock_release(&rpc->lock);
    if (!i) cdp__rpc_free(rpc);
}

#endif /* CDP_SRC_RPC_LIFE_H */
