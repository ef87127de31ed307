/* rpc/contexts.h - values, nodes and gradients of a context

   Knows: contexts that this rank takes part in. Promises: a context has one record here from its
   first call until its origin ends it or is lost, and its memory until nothing uses it; the
   first failure reaches every rank of it through its origin. */
#ifndef CDP_SRC_RPC_CONTEXTS_H
#define CDP_SRC_RPC_CONTEXTS_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../base/error_api.h"
#include "../group/group_api.h"
#include "../base/compiler.h"
#include "../base/ended.h"
#include "../base/basics.h"
#include "../text/format.h"
#include "../base/text.h"
#include "worker_api.h"
#include "alive.h"
#include "waves.h"
#include "packets.h"
#include "state.h"
#include "pools.h"
#include "send.h"

CDP__PRIVATE void cdp__ctx_sums_free(cdp_rpc *rpc, cdp__ctx_sum **list) {
    while (*list) {
        cdp__ctx_sum *next = (*list)->next;
        cdp__free(rpc->os, *list);
        *list = next;
    }
}

/* Runs without the lock, because memory that the program has saved is released. */
CDP__PRIVATE void cdp__ctx_free(cdp_rpc *rpc, cdp__rpc_task *task) {
    cdp_ctx *ctx = (cdp_ctx *)task;
    uint32_t i;
    for (i = 1; i <= ctx->w.node_count; ++i) {
        if (ctx->nodes[i].release) ctx->nodes[i].release(ctx->nodes[i].saved);
        cdp__free(rpc->os, ctx->nodes[i].outputs);
    }
    for (i = 1; i <= ctx->w.value_count; ++i) {
        cdp__ctx_sums_free(rpc, &ctx->values[i].sums);
        cdp__ctx_sums_free(rpc, &ctx->values[i].grad);
    }
    cdp__free(rpc->os, ctx->w.nodes);
    cdp__free(rpc->os, ctx->w.edges);
    cdp__free(rpc->os, ctx->w.values);
    cdp__free(rpc->os, ctx->w.receivers);
    cdp__free(rpc->os, ctx->nodes);
    cdp__free(rpc->os, ctx->values);
    cdp__free(rpc->os, ctx->with);
    cdp__free(rpc->os, ctx);
}

CDP__PRIVATE cdp_ctx *cdp__ctx_find(const cdp_rpc *rpc, uint64_t id) {
    cdp_ctx *ctx = rpc->contexts;
    while (ctx && ctx->id != id)
        ctx = ctx->next;
    return ctx;
}

/* Removes a context from this rank's list. Its memory stays until nothing uses it. */
CDP__PRIVATE void cdp__ctx_drop(cdp_rpc *rpc, cdp_ctx *ctx) {
    cdp_ctx **at = &rpc->contexts;
    while (*at && *at != ctx)
        at = &(*at)->next;
    if (!*at) return; /* its origin was lost meanwhile */
    *at = ctx->next;
    --rpc->context_count;
    ctx->ended = true;
    cdp__ended_add(ctx);
    ++ctx->uses;
    cdp__ctx_unuse(rpc, ctx);
}

/* Enlarges an array; copies the old contents. */
CDP__PRIVATE bool cdp__ctx_grow(
    cdp_rpc *rpc, void *array, uint32_t room, uint32_t more, uint64_t size) {
    void *old, *now = cdp__alloc_zero(rpc->os, more * size);
    memcpy(&old, array, sizeof old);
    if (!now) return false;
    if (room) memcpy(now, old, (size_t)(room * size));
    cdp__free(rpc->os, old);
    memcpy(array, &now, sizeof now);
    return true;
}

CDP__PRIVATE uint32_t cdp__ctx_more(uint32_t room, uint32_t need) {
    uint32_t more = room ? room : 16;
    while (more < need)
        more *= 2;
    return more;
}

/* Makes room for so many more of each. False: out of memory. */
CDP__PRIVATE bool cdp__ctx_reserve(cdp_rpc *rpc, cdp_ctx *ctx, uint32_t nodes, uint32_t edges,
    uint32_t values, uint32_t receivers) {
    cdp__waves *w = &ctx->w;
    const uint32_t n = cdp__ctx_more(ctx->node_room, w->node_count + nodes + 1);
    const uint32_t e = cdp__ctx_more(ctx->edge_room, w->edge_count + edges + 1);
    const uint32_t v = cdp__ctx_more(ctx->value_room, w->value_count + values + 1);
    const uint32_t g = cdp__ctx_more(ctx->receiver_room, w->receiver_count + receivers + 1);
    if (n > ctx->node_room) {
        if (!cdp__ctx_grow(rpc, &w->nodes, ctx->node_room, n, sizeof *w->nodes)
            || !cdp__ctx_grow(rpc, &ctx->nodes, ctx->node_room, n, sizeof *ctx->nodes))
            return false;
        ctx->node_room = n;
    }
    if (e > ctx->edge_room) {
        if (!cdp__ctx_grow(rpc, &w->edges, ctx->edge_room, e, sizeof *w->edges)) return false;
        ctx->edge_room = e;
    }
    if (v > ctx->value_room) {
        if (!cdp__ctx_grow(rpc, &w->values, ctx->value_room, v, sizeof *w->values)
            || !cdp__ctx_grow(rpc, &ctx->values, ctx->value_room, v, sizeof *ctx->values))
            return false;
        ctx->value_room = v;
    }
    if (g > ctx->receiver_room) {
        if (!cdp__ctx_grow(rpc, &w->receivers, ctx->receiver_room, g, sizeof *w->receivers))
            return false;
        ctx->receiver_room = g;
    }
    return true;
}

/* ---- failures */

CDP__PRIVATE void cdp__ctx_post_fail(cdp_rpc *rpc, const cdp_ctx *ctx, uint32_t to) {
    cdp__rpc_packet p;
    cdp_args args;
    cdp_iov iov;
    memset(&p, 0, sizeof p);
    memset(&args, 0, sizeof args);
    p.kind = CDP__RPC_CTX_FAIL;
    p.a = ctx->id;
    p.aux = (uint32_t) - (int32_t)ctx->why.status;
    p.b = (uint64_t)(uint32_t)ctx->why.peer;
    iov.data = (void *)(uintptr_t)ctx->why.text;
    iov.bytes = cdp__min(strlen(ctx->why.text), CDP__RPC_TEXT);
    args.iov = &iov;
    args.iov_count = 1;
    cdp__rpc_must_post(rpc, to, &p, &args);
}

/* Records the first failure of the context. `from`: the rank that reported it; `peer`: the world
   rank to blame. */
CDP__PRIVATE void cdp__ctx_fail(
    cdp_rpc *rpc, cdp_ctx *ctx, cdp_status status, int32_t peer, uint32_t from, const char *text) {
    const uint32_t origin = cdp__rpc_maker(ctx->id);
    const cdp_error before = *cdp_last_error();
    uint32_t r;
    if (ctx->failed || ctx->ended) return;
    (void)cdp__fail_peer(status, peer, 0, "%s", text);
    ctx->why = *cdp_last_error();
    ctx->why.peer = peer;
    *cdp__error_slot() = before;
    ctx->failed = true;
    rpc->changed = true;
    for (r = 1; r <= ctx->w.value_count; ++r)
        cdp__ctx_sums_free(rpc, &ctx->values[r].sums);
    if (origin != rpc->rank) {
        if (from != origin) cdp__ctx_post_fail(rpc, ctx, origin);
        return;
    }
    for (r = 0; r < rpc->ranks; ++r)
        if (ctx->with[r] == CDP__CTX_WITH && r != from) cdp__ctx_post_fail(rpc, ctx, r);
}

/* Fails a context because of an error on this rank. */
CDP__PRIVATE CDP__PRINTF(4, 5) void cdp__ctx_fail_here(
    cdp_rpc *rpc, cdp_ctx *ctx, cdp_status status, const char *format, ...) {
    char text[CDP__RPC_TEXT + 1];
    cdp__text t = cdp__text_of(text, sizeof text);
    va_list ap;
    va_start(ap, format);
    cdp__text_add_v(&t, format, ap);
    va_end(ap);
    cdp__ctx_fail(
        rpc, ctx, status, (int32_t)cdp_world_rank_of(rpc->group, rpc->rank), rpc->rank, text);
}

/* ---- messages of passes */

/* Allocates a record for a gradient like `t`, of some rows or of all. NULL: out of memory. */
CDP__PRIVATE cdp__ctx_sum *cdp__ctx_room_for(cdp_rpc *rpc, const cdp_tensor *t, bool rows) {
    const uint64_t bytes = cdp__rpc_filled(cdp__rpc_tensor_bytes(t));
    const uint64_t head = cdp__rpc_filled(sizeof(cdp__ctx_sum));
    const uint64_t more = rows ? t->shape[0] * sizeof(uint32_t) : 0;
    cdp__ctx_sum *sum = (cdp__ctx_sum *)cdp__alloc(rpc->os, head + bytes + more);
    if (!sum) return NULL;
    memset(sum, 0, sizeof *sum);
    sum->t = *t;
    sum->t.value = 0;
    sum->t.data = (uint8_t *)sum + head;
    if (rows) sum->rows = (uint32_t *)(void *)((uint8_t *)sum + head + bytes);
    return sum;
}

/* Copies a gradient to a new record. NULL: out of memory. */
CDP__PRIVATE cdp__ctx_sum *cdp__ctx_copy(cdp_rpc *rpc, const cdp_tensor *t, const uint32_t *rows,
    uint32_t rank, uint32_t node, uint32_t edge) {
    const uint64_t bytes = cdp__rpc_tensor_bytes(t);
    cdp__ctx_sum *sum = cdp__ctx_room_for(rpc, t, rows != NULL);
    if (!sum) return NULL;
    sum->rank = rank;
    sum->node = node;
    sum->edge = edge;
    if (bytes) memcpy(sum->t.data, t->data, (size_t)bytes);
    if (rows) memcpy(sum->rows, rows, (size_t)(t->shape[0] * sizeof *rows));
    return sum;
}

CDP__PRIVATE const cdp_tensor *cdp__ctx_sent(
    const cdp_ctx *ctx, const cdp__wave_act *a, const uint32_t **rows) {
    const uint32_t *input_of;
    uint32_t input;
    *rows = NULL;
    /* in other messages the node may be one of another rank */
    if (a->what != CDP__WAVE_SEND_GRAD) return NULL;
    input_of = a->node ? ctx->nodes[a->node].input_of : NULL;
    input = input_of ? input_of[a->edge] : a->edge;
    if (!ctx->sending[input].data) return NULL;
    if (ctx->sending_rows) *rows = ctx->sending_rows[input];
    return &ctx->sending[input];
}

/* A message to a node of this rank becomes a step in a list. */
CDP__PRIVATE void cdp__ctx_local(cdp_rpc *rpc, cdp_ctx *ctx, const cdp__wave_act *a) {
    const uint32_t *rows;
    const cdp_tensor *t = cdp__ctx_sent(ctx, a, &rows);
    cdp__rpc_wave *w = (cdp__rpc_wave *)cdp__alloc_zero(rpc->os, sizeof *w);
    if (w && t) w->sum = cdp__ctx_copy(rpc, t, rows, rpc->rank, a->node, a->edge);
    if (!w || (t && !w->sum)) {
        cdp__free(rpc->os, w);
        cdp__ctx_fail_here(rpc, ctx, CDP_ERR_NOMEM, "out of memory for a gradient");
        return;
    }
    w->ctx = ctx;
    ++ctx->uses;
    w->act = *a;
    *rpc->waves_end = w;
    rpc->waves_end = &w->next;
}

CDP__PRIVATE void cdp__ctx_remote(cdp_rpc *rpc, cdp_ctx *ctx, const cdp__wave_act *a) {
    static const cdp__rpc_kind kinds[] = {CDP__RPC_MARK, CDP__RPC_GRAD, CDP__RPC_DONE};
    const uint32_t *rows;
    const cdp_tensor *t = cdp__ctx_sent(ctx, a, &rows);
    cdp__rpc_packet p;
    cdp_args args;
    memset(&p, 0, sizeof p);
    memset(&args, 0, sizeof args);
    p.kind = kinds[a->what];
    p.a = ctx->id;
    p.aux = a->node;
    p.b = p.kind == CDP__RPC_DONE ? ctx->w.pass : a->value;
    if (p.kind != CDP__RPC_DONE) p.flags = CDP__RPC_CTX;
    p.slot = ctx->w.pass;
    args.tensors = t;
    args.tensor_count = t ? 1 : 0;
    if (cdp__rpc_post(rpc, a->to, &p, &args) != CDP_OK)
        cdp__ctx_fail_here(rpc, ctx, CDP_ERR_NOMEM, "out of memory for a gradient");
}

/* Carries out an action of the waves. */
CDP__PRIVATE void cdp__ctx_act(void *user, const cdp__wave_act *a) {
    cdp_ctx *ctx = (cdp_ctx *)user;
    cdp_rpc *rpc = ctx->rpc;
    if (a->what == CDP__WAVE_ENDED) {
        ctx->over = true;
        rpc->changed = true;
    } else if (ctx->failed || ctx->ended) {
        return;
    } else if (a->what >= CDP__WAVE_FIRE || a->to == rpc->rank) {
        cdp__ctx_local(rpc, ctx, a);
    } else if (rpc->lost[a->to]) {
        cdp__ctx_fail(rpc, ctx, CDP_ERR_PEER_LOST, (int32_t)cdp_world_rank_of(rpc->group, a->to),
            rpc->rank, rpc->peers[a->to].why.text);
    } else {
        cdp__ctx_remote(rpc, ctx, a);
    }
}

/* ---- records of contexts */

/* Returns NULL when out of memory. */
CDP__PRIVATE cdp_ctx *cdp__ctx_make(cdp_rpc *rpc, uint64_t id) {
    cdp_ctx *ctx = (cdp_ctx *)cdp__alloc_zero(rpc->os, sizeof *ctx);
    if (!ctx) return NULL;
    cdp__ended_remove(ctx);
    ctx->rpc = rpc;
    ctx->id = id;
    ctx->task.run = cdp__ctx_free;
    ctx->fires_end = &ctx->fires;
    ctx->w.rank = rpc->rank;
    ctx->w.act = cdp__ctx_act;
    ctx->w.user = ctx;
    ctx->with = (uint8_t *)cdp__alloc_zero(rpc->os, rpc->ranks);
    if (!ctx->with || !cdp__ctx_reserve(rpc, ctx, 8, 8, 8, 8)) {
        cdp__ctx_free(rpc, &ctx->task);
        return NULL;
    }
    cdp__ctx_adopt(ctx);
    ctx->next = rpc->contexts;
    rpc->contexts = ctx;
    ++rpc->context_count;
    return ctx;
}

/* The entry of a value of this context; 0: this rank does not have it. */
CDP__PRIVATE uint32_t cdp__ctx_entry(const cdp_ctx *ctx, uint64_t value) {
    return value ? cdp__wave_entry(&ctx->w, value) : 0;
}

/* Adds a node with one output and one input, or none. 0: out of memory. */
CDP__PRIVATE uint64_t cdp__ctx_leaf(cdp_rpc *rpc, cdp_ctx *ctx, uint64_t goes_to) {
    uint64_t value;
    uint32_t node;
    if (!cdp__ctx_reserve(rpc, ctx, 1, 1, 1, 0)) return 0;
    node = cdp__wave_add_node(&ctx->w, &goes_to, goes_to ? 1 : 0);
    value = cdp__wave_add_value(&ctx->w, node, 0);
    ctx->nodes[node].value = (uint32_t)value;
    return value;
}

CDP__PRIVATE uint32_t *cdp__ctx_chain(cdp_ctx *ctx, uint64_t other) {
    return &ctx->chains[(other * 0x9e3779b97f4a7c15ull) >> 58];
}

/* This rank's own value for a value of another rank, or for a parameter; created on first use.
   `goes_to`: where its gradients go, or 0. Returns 0 when out of memory. */
CDP__PRIVATE uint64_t cdp__ctx_known(cdp_rpc *rpc, cdp_ctx *ctx, uint64_t other, uint64_t goes_to) {
    uint32_t *chain = cdp__ctx_chain(ctx, other), at = *chain;
    uint64_t value;
    for (; at; at = ctx->values[at].next) {
        const bool leaf = !ctx->w.nodes[ctx->w.values[at].node].edges;
        if (ctx->values[at].other == other && leaf == !goes_to)
            return (uint64_t)rpc->rank << 48 | at;
    }
    value = cdp__ctx_leaf(rpc, ctx, goes_to);
    if (!value) return 0;
    at = (uint32_t)value;
    ctx->values[at].other = other;
    ctx->values[at].next = *chain;
    *chain = at;
    return value;
}

/* This rank's value for one received from rank `from`. 0: it does not take part in the
   computation here. */
CDP__PRIVATE uint64_t cdp__ctx_import(
    cdp_rpc *rpc, cdp_ctx *ctx, uint64_t id, uint32_t from, uint64_t value) {
    uint64_t here;
    if (!ctx || ctx->id != id || ctx->failed || ctx->ended) return 0;
    if (!ctx->with[from]) ctx->with[from] = CDP__CTX_WITH;
    here = cdp__ctx_known(rpc, ctx, value, value);
    if (!here) cdp__ctx_fail_here(rpc, ctx, CDP_ERR_NOMEM, "out of memory for a value");
    return here;
}

CDP__PRIVATE bool cdp__ctx_reserve_sent(cdp_rpc *rpc, cdp_ctx *ctx) {
    if (cdp__ctx_reserve(rpc, ctx, 0, 0, 0, CDP__RPC_TENSORS)) return true;
    (void)cdp__fail_nomem("the record of a call", CDP__RPC_TENSORS * sizeof(cdp__wave_receiver));
    return false;
}

/* Records that values among the tensors are sent to a rank. False: out of memory. */
CDP__PRIVATE bool cdp__ctx_record_sent(
    cdp_rpc *rpc, cdp_ctx *ctx, const cdp_args *args, uint32_t to) {
    uint32_t i;
    if (to == rpc->rank) return true;
    if (!ctx->with[to]) ctx->with[to] = CDP__CTX_WITH;
    if (!cdp__ctx_reserve(rpc, ctx, 0, 0, 0, CDP__RPC_TENSORS)) return false;
    for (i = 0; args && i < args->tensor_count; ++i)
        if (args->tensors[i].value)
            cdp__wave_record_sent(&ctx->w, cdp__ctx_entry(ctx, args->tensors[i].value), to);
    return true;
}

/* Refuses a context that is gone; NULL is OK. */
CDP__PRIVATE cdp_status cdp__ctx_lives(const cdp_ctx *ctx, const char *call) {
    if (cdp__ctx_is_orphan(ctx))
        return cdp__fail(CDP_ERR_STATE,
            "%s: the rpc of this context was destroyed, and the context with it; end contexts with "
            "cdp_ctx_end() before",
            call);
    if (cdp__ended(ctx)) return cdp__fail(CDP_ERR_STATE, "%s: this context has ended", call);
    return CDP_OK;
}

/* Checks that values among the tensors are of this context; if not, sets this thread's last
   error. */
CDP__PRIVATE cdp_status cdp__ctx_check(const char *call, const cdp_ctx *ctx, const cdp_args *args) {
    uint32_t i;
    if (ctx && ctx->failed)
        return cdp__fail(CDP_ERR_STATE, "%s: this context has failed; begin another one; why: %s",
            call, ctx->why.text);
    if (ctx && ctx->ended)
        return cdp__fail(CDP_ERR_STATE, "%s: this context has ended; begin another one", call);
    for (i = 0; args && i < args->tensor_count; ++i)
        if (args->tensors[i].value && (!ctx || !cdp__ctx_entry(ctx, args->tensors[i].value)))
            return cdp__fail(CDP_ERR_INVALID,
                ctx ? "%s: tensors[%u] has a value that this rank does not have in this context"
                    : "%s: tensors[%u] has a value, which belongs to a context; set ctx",
                call, i);
    return CDP_OK;
}

/* Adds a node with a function. Constants among its inputs get no edges. 0: out of memory. */
CDP__PRIVATE uint32_t cdp__ctx_node_add(
    cdp_rpc *rpc, cdp_ctx *ctx, const uint64_t *inputs, uint32_t in_count, uint32_t outputs) {
    uint32_t *list = (uint32_t *)cdp__alloc(rpc->os, (in_count + outputs + 1) * sizeof *list);
    uint32_t i, node;
    if (!list || !cdp__ctx_reserve(rpc, ctx, 1, in_count, outputs, 0)) {
        cdp__free(rpc->os, list);
        return 0;
    }
    node = cdp__wave_add_node(&ctx->w, inputs, in_count);
    ctx->nodes[node].outputs = list;
    ctx->nodes[node].in_count = in_count;
    ctx->nodes[node].input_of = list += outputs;
    for (i = 0; i < in_count; ++i)
        if (inputs[i]) *list++ = i;
    return node;
}

#endif /* CDP_SRC_RPC_CONTEXTS_H */
