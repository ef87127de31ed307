/* rpc/passes.h - backward passes

   Knows: messages of waves, nodes that fire. Promises: a gradient is added to a value once;
   functions of nodes run without the lock, like those of calls. */
#ifndef CDP_SRC_RPC_PASSES_H
#define CDP_SRC_RPC_PASSES_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../base/error_api.h"
#include "../message/transport_api.h"
#include "../group/group_api.h"
#include "../base/compiler.h"
#include "../base/status.h"
#include "../base/basics.h"
#include "../text/utf8.h"
#include "../base/text.h"
#include "../dtype/dtype.h"
#include "worker_api.h"
#include "handler_api.h"
#include "gradients_api.h"
#include "waves.h"
#include "levels.h"
#include "packets.h"
#include "state.h"
#include "pools.h"
#include "send.h"
#include "contexts.h"
#include "sums.h"

/* ---- nodes fire */

typedef struct cdp__ctx_room {
    struct cdp__ctx_room *next;
    uint64_t filled;
} cdp__ctx_room;

CDP_API cdp_status cdp_backward_alloc(cdp_backward *b, uint64_t bytes, void **out) {
    cdp__ctx_room *room;
    if (!out) return cdp__missing("cdp_backward_alloc", "out");
    *out = NULL;
    if (!b) return cdp__missing("cdp_backward_alloc", "backward");
    room = bytes > UINT64_MAX / 2 ? NULL
                                  : (cdp__ctx_room *)cdp__alloc(b->rpc->os, sizeof *room + bytes);
    if (!room) return cdp__fail_nomem("gradients", bytes);
    room->next = (cdp__ctx_room *)b->priv;
    b->priv = room;
    *out = room + 1;
    return CDP_OK;
}

/* Checks the gradients that a function has returned. Returns NULL, or what is wrong with number
   *i. */
CDP__PRIVATE const char *cdp__ctx_wrong(const cdp_backward *b, uint32_t *i) {
    for (*i = 0; *i < b->in_count; ++*i) {
        const cdp_tensor *t = &b->grad_in[*i];
        if (!t->data) continue;
        if (!cdp__reduce_exists(t->dtype, CDP_REDUCE_SUM)) return "its dtype cannot be added";
        if (t->dims > 8) return "it has more than 8 dims";
        if (cdp__rpc_tensor_bytes(t) > b->rpc->desc.max_message_bytes)
            return "it is longer than max_message_bytes";
        if (b->grad_rows[*i] && !t->dims) return "it has rows, but no dims";
    }
    return NULL;
}

/* A backward function has returned: sends its gradients, or fails the context. */
CDP__PRIVATE void cdp__ctx_ran(
    cdp_rpc *rpc, cdp_ctx *ctx, uint32_t node, const cdp_backward *b, cdp_status st) {
    uint32_t i = 0;
    const char *wrong = st == CDP_OK ? cdp__ctx_wrong(b, &i) : cdp_last_error()->text;
    if (st != CDP_OK) {
        const bool text = cdp_last_error()->status == st && wrong[0];
        cdp__ctx_fail_here(rpc, ctx, st < CDP_OK ? st : CDP_ERR_REMOTE,
            text ? "a backward function on rank %u (%s) returned %d: %s"
                 : "a backward function on rank %u (%s) returned %d without saying why%s",
            rpc->rank, rpc->peers[rpc->rank].name, (int)st, text ? wrong : "");
    } else if (wrong) {
        cdp__ctx_fail_here(rpc, ctx, CDP_ERR_INVALID,
            "a backward function on rank %u (%s) left a wrong grad_in[%u]: %s", rpc->rank,
            rpc->peers[rpc->rank].name, i, wrong);
    } else if (!ctx->failed && !ctx->ended) {
        ctx->sending = b->grad_in;
        ctx->sending_rows = b->grad_rows;
        cdp__wave_fired(&ctx->w, node);
        ctx->sending = NULL;
        ctx->sending_rows = NULL;
    }
}

/* Runs a backward function, without the lock. */
CDP__PRIVATE void cdp__ctx_run_node(void *user, cdp_rpc_request *request) {
    const cdp__rpc_rq *rq = (const cdp__rpc_rq *)(const void *)request;
    cdp_rpc *rpc = request->rpc;
    cdp_ctx *ctx = request->ctx;
    cdp__ctx_node x;
    cdp__ctx_sum **held;
    cdp_tensor *t;
    cdp_backward b;
    cdp_status st;
    uint32_t i;
    (void)user;
    cdp__rpc_lock(rpc);
    x = ctx->nodes[rq->node];
    memset(&b, 0, sizeof b);
    b.rpc = rpc;
    b.rpc_user = rpc->desc.user;
    b.ctx = ctx;
    b.saved = x.saved;
    b.out_count = x.out_count;
    b.in_count = x.in_count;
    t = (cdp_tensor *)cdp__alloc_zero(rpc->os, (x.in_count + x.out_count + 1) * sizeof *t);
    held = (cdp__ctx_sum **)cdp__alloc_zero(rpc->os, (x.out_count + 1) * sizeof *held);
    b.grad_rows =
        (const uint32_t **)cdp__alloc_zero(rpc->os, (x.in_count + 1) * sizeof *b.grad_rows);
    if (!t || !held || !b.grad_rows)
        cdp__ctx_fail_here(rpc, ctx, CDP_ERR_NOMEM, "out of memory for gradients");
    for (i = 0; i < x.out_count && !ctx->failed && !ctx->ended; ++i) {
        held[i] = cdp__ctx_total(rpc, ctx, x.outputs[i]);
        if (held[i]) t[i] = held[i]->t;
    }
    if (!ctx->failed && !ctx->ended) {
        b.grad_out = t;
        b.grad_in = t + x.out_count;
        cdp_lock_release(&rpc->lock);
        st = x.backward(x.user, &b);
        cdp__rpc_lock(rpc);
        cdp__ctx_ran(rpc, ctx, rq->node, &b, st);
    }
    for (i = 0; held && i < x.out_count; ++i)
        cdp__free(rpc->os, held[i]);
    while (b.priv) {
        cdp__ctx_room *next = ((cdp__ctx_room *)b.priv)->next;
        cdp__free(rpc->os, b.priv);
        b.priv = next;
    }
    cdp__free(rpc->os, (void *)(uintptr_t)b.grad_rows);
    cdp__free(rpc->os, held);
    cdp__free(rpc->os, t);
    cdp_lock_release(&rpc->lock);
}

/* Queues a backward function, as a request of this rank to itself. */
CDP__PRIVATE void cdp__ctx_queue(cdp_rpc *rpc, cdp_ctx *ctx, uint32_t node) {
    cdp__rpc_rq *rq = cdp__rpc_rq_open(rpc);
    if (!rq) {
        cdp__ctx_fail_here(rpc, ctx, CDP_ERR_NOMEM, "out of memory for a backward function");
        return;
    }
    rq->f = &rpc->backward;
    rq->use = &rpc->backward_use;
    rq->stage = CDP__RPC_QUEUED;
    rq->pub.from = rpc->rank;
    rq->pub.ctx = ctx;
    rq->pub.deadline_ns = CDP__NEVER;
    rq->node = node;
    rq->level = CDP__RPC_BACKWARD_LEVEL;
    ++ctx->uses;
    if (ctx->mine)
        cdp__rpc_append(&ctx->fires_end, rq);
    else
        cdp__rpc_enqueue(rpc, rq);
    rpc->changed = true;
}

/* Adds the gradient of a pass to that of a leaf. True: the leaf keeps the record `total`. */
CDP__PRIVATE bool cdp__ctx_keep(
    cdp_rpc *rpc, cdp_ctx *ctx, cdp__ctx_sum **grad, cdp__ctx_sum *total) {
    cdp__ctx_sum *both;
    if (!*grad) {
        *grad = total;
        return true;
    }
    if (!(*grad)->rows && !total->rows) {
        (void)cdp__ctx_plus(rpc, ctx, &(*grad)->t, &total->t);
        return false;
    }
    (*grad)->next = total;
    both = cdp__ctx_rows_total(rpc, ctx, *grad);
    (*grad)->next = NULL;
    if (both) {
        cdp__ctx_sums_free(rpc, grad);
        *grad = both;
    }
    return false;
}

/* All gradients of a node have arrived: runs its function, or passes the gradient on. */
CDP__PRIVATE void cdp__ctx_fire(cdp_rpc *rpc, cdp_ctx *ctx, uint32_t node) {
    const uint32_t value = ctx->nodes[node].value;
    cdp__ctx_sum *total;
    cdp_tensor none;
    if (ctx->nodes[node].backward) {
        cdp__ctx_queue(rpc, ctx, node);
        return;
    }
    memset(&none, 0, sizeof none);
    total = cdp__ctx_total(rpc, ctx, value);
    if (ctx->failed) return;
    if (!ctx->w.nodes[node].edges && total) {
        if (cdp__ctx_keep(rpc, ctx, &ctx->values[value].grad, total)) total = NULL;
        if (ctx->failed) {
            cdp__ctx_sums_free(rpc, &total);
            return;
        }
    }
    ctx->sending = total ? &total->t : &none;
    cdp__wave_fired(&ctx->w, node);
    ctx->sending = NULL;
    cdp__ctx_sums_free(rpc, &total);
}

/* ---- messages */

/* Handles the result of a message. False: no peer of this version sends it. */
CDP__PRIVATE bool cdp__ctx_received(cdp_rpc *rpc, cdp_ctx *ctx, uint32_t from, cdp__wave_how how) {
    if (how == CDP__WAVE_CONFLICT)
        cdp__ctx_fail_here(rpc, ctx, CDP_ERR_STATE,
            "two backward passes of one context at once; start the second one after the first");
    if (how == CDP__WAVE_DISORDER)
        cdp__ctx_fail_here(rpc, ctx, CDP_ERR_INTERNAL,
            "messages of a backward pass came to rank %u (%s) in an order that cannot be, the last "
            "one from rank %u (%s): a rank of the context has sent what it should not",
            rpc->rank, rpc->peers[rpc->rank].name, from, rpc->peers[from].name);
    return how != CDP__WAVE_LIE;
}

CDP__PRIVATE bool cdp__ctx_got_grad(cdp_rpc *rpc, cdp_ctx *ctx, uint32_t from, uint32_t node,
    uint64_t pass, uint64_t value, cdp__ctx_sum *sum) {
    uint32_t entry;
    const cdp__wave_how how = cdp__wave_got_grad(&ctx->w, from, node, pass, value, &entry);
    if (sum && sum->rows && how == CDP__WAVE_OK) {
        const uint32_t to = ctx->w.values[entry].node;
        if (ctx->nodes[to].backward || ctx->w.nodes[to].edges)
            cdp__ctx_fail_here(rpc, ctx, CDP_ERR_INVALID,
                "a backward function on rank %u (%s) has left rows as the gradient of a value that "
                "is no parameter of that rank",
                rpc->rank, rpc->peers[rpc->rank].name);
    }
    if (sum && how == CDP__WAVE_OK && !ctx->failed)
        cdp__ctx_add(ctx, entry, sum);
    else
        cdp__free(rpc->os, sum);
    return cdp__ctx_received(rpc, ctx, from, how);
}

/* Handles the steps of this rank, until there are none. */
CDP__PRIVATE void cdp__ctx_steps(cdp_rpc *rpc) {
    while (rpc->waves) {
        cdp__rpc_wave *w = rpc->waves;
        cdp_ctx *ctx = w->ctx;
        const cdp__wave_act *a = &w->act;
        bool fine = true;
        rpc->waves = w->next;
        if (!w->next) rpc->waves_end = &rpc->waves;
        if (ctx->failed || ctx->ended) {
            cdp__free(rpc->os, w->sum);
        } else if (a->what == CDP__WAVE_SEND_MARK) {
            fine = cdp__ctx_received(rpc, ctx, rpc->rank,
                cdp__wave_got_mark(&ctx->w, rpc->rank, a->node, ctx->w.pass, a->value));
        } else if (a->what == CDP__WAVE_SEND_GRAD) {
            fine = cdp__ctx_got_grad(rpc, ctx, rpc->rank, a->node, ctx->w.pass, a->value, w->sum);
        } else if (a->what == CDP__WAVE_SEND_DONE) {
            fine = cdp__ctx_received(
                rpc, ctx, rpc->rank, cdp__wave_got_done(&ctx->w, rpc->rank, ctx->w.pass, a->node));
        } else if (a->what == CDP__WAVE_FIRE) {
            cdp__ctx_fire(rpc, ctx, a->node);
        } else {
            ctx->sending = ctx->roots;
            cdp__wave_grads(&ctx->w);
            ctx->sending = NULL;
        }
        CDP_ASSERT(fine);
        (void)fine;
        cdp__free(rpc->os, w);
        cdp__ctx_unuse(rpc, ctx);
    }
}

/* Handles a MARK, GRAD or DONE. Returns NULL or what is wrong with it. */
CDP__PRIVATE const char *cdp__ctx_got_wave(cdp_rpc *rpc, uint32_t from, const cdp__rpc_packet *p) {
    cdp_ctx *ctx = cdp__ctx_find(rpc, p->a);
    cdp__ctx_sum *sum = NULL;
    cdp__wave_how how;
    if (!ctx || ctx->failed || ctx->ended) return NULL; /* its sender was told, or will be */
    if (p->kind == CDP__RPC_DONE) {
        how = cdp__wave_got_done(&ctx->w, from, p->b, p->aux);
        return cdp__ctx_received(rpc, ctx, from, how) ? NULL : "an answer to no message of a pass";
    }
    if (p->kind == CDP__RPC_MARK) {
        how = cdp__wave_got_mark(&ctx->w, from, p->aux, p->slot, p->b);
        if (how == CDP__WAVE_OK) ++rpc->peers[from].marks;
        return cdp__ctx_received(rpc, ctx, from, how)
            ? NULL
            : "a value that it does not have, or twice in one pass";
    }
    if (p->tensors) {
        cdp_tensor t = cdp__rpc_get_shape(p->shapes);
        t.data = (void *)(uintptr_t)p->area;
        sum = cdp__ctx_copy(rpc, &t, NULL, from, p->aux, 0);
        if (!sum) {
            cdp__ctx_fail_here(rpc, ctx, CDP_ERR_NOMEM, "out of memory for a gradient");
            return NULL;
        }
    }
    return cdp__ctx_got_grad(rpc, ctx, from, p->aux, p->slot, p->b, sum)
        ? NULL
        : "a gradient that nobody waits for";
}

/* ---- members */

CDP__PRIVATE const char *cdp__ctx_got_join(cdp_rpc *rpc, uint32_t from, uint64_t id) {
    cdp_ctx *ctx = cdp__ctx_find(rpc, id);
    if (cdp__rpc_maker(id) != rpc->rank) return "a context of another rank";
    if (!ctx) {
        cdp__rpc_control(rpc, from, CDP__RPC_CTX_END, id, 0, 0);
    } else if (ctx->ended && ctx->with[from] <= CDP__CTX_WITH) {
        ctx->with[from] = CDP__CTX_ENDING;
        ++ctx->answers;
        cdp__rpc_control(rpc, from, CDP__RPC_CTX_END, id, 0, 0);
    } else if (ctx->with[from] == CDP__CTX_STRANGER) {
        ctx->with[from] = CDP__CTX_WITH;
        if (ctx->failed) cdp__ctx_post_fail(rpc, ctx, from);
    }
    return NULL;
}

CDP__PRIVATE const char *cdp__ctx_got_member(
    cdp_rpc *rpc, uint32_t from, const cdp__rpc_packet *p) {
    cdp_ctx *ctx = cdp__ctx_find(rpc, p->a);
    const bool origin = cdp__rpc_maker(p->a) == rpc->rank;
    char text[CDP__RPC_TEXT + 1];
    if (p->kind == CDP__RPC_JOIN) return cdp__ctx_got_join(rpc, from, p->a);
    if (!origin && from != cdp__rpc_maker(p->a)) return "a context of another rank";
    if (p->kind == CDP__RPC_CTX_END) {
        if (origin) return "a context of another rank";
        if (ctx) cdp__ctx_drop(rpc, ctx);
        cdp__rpc_control(rpc, from, CDP__RPC_CTX_ENDED, p->a, 0, 0);
    } else if (p->kind == CDP__RPC_CTX_ENDED) {
        if (ctx && ctx->with[from] == CDP__CTX_ENDING) {
            ctx->with[from] = CDP__CTX_LOST;
            --ctx->answers;
            rpc->changed = true;
        }
    } else if (!cdp__status_is_error((int32_t)(0u - p->aux))) {
        return "an unknown status";
    } else if (p->b != UINT32_MAX
        && (p->b > UINT32_MAX || cdp_rank_of_world(rpc->group, (uint32_t)p->b) == UINT32_MAX)) {
        return "a rank to blame that there is not";
    } else if (ctx && ctx->with[from] == CDP__CTX_STRANGER) {
        return "a failure of a context in which it has no part";
    } else if (ctx) {
        cdp__text_foreign(text, sizeof text, p->body, p->bytes);
        cdp__ctx_fail(
            rpc, ctx, (cdp_status) - (int32_t)p->aux, (int32_t)(uint32_t)p->b, from, text);
    }
    return NULL;
}

/* The link to a rank has ended: fails its contexts. */
CDP__PRIVATE void cdp__ctx_lose(cdp_rpc *rpc, uint32_t rank) {
    cdp_ctx *ctx, *next;
    for (ctx = rpc->contexts; ctx; ctx = next) {
        const uint8_t with = ctx->with[rank];
        next = ctx->next;
        ctx->with[rank] = CDP__CTX_LOST;
        if (with == CDP__CTX_ENDING) --ctx->answers;
        if (rank != rpc->rank && (with == CDP__CTX_WITH || cdp__rpc_maker(ctx->id) == rank)
            && (ctx->w.open || ctx->mine))
            cdp__ctx_fail(rpc, ctx, CDP_ERR_PEER_LOST, (int32_t)cdp_world_rank_of(rpc->group, rank),
                rpc->rank, rpc->peers[rank].why.text);
        if (rank != rpc->rank && cdp__rpc_maker(ctx->id) == rank) cdp__ctx_drop(rpc, ctx);
    }
    rpc->changed = true;
}

/* ---- calls of a context */

/* Enters a request into its context. Returns NULL, or why it does not run, with *status. */
CDP__PRIVATE const char *cdp__ctx_enter(cdp_rpc *rpc, cdp__rpc_rq *rq, cdp_status *status) {
    const uint64_t id = rq->ctx_number;
    const uint32_t origin = cdp__rpc_maker(id), from = rq->pub.from;
    cdp_ctx *ctx = cdp__ctx_find(rpc, id);
    uint32_t i;
    *status = CDP_ERR_STATE;
    if (!ctx && origin == rpc->rank) return "its context has ended";
    if (ctx && (ctx->failed || ctx->ended)) return "its context has failed, or ended";
    *status = CDP_ERR_PEER_LOST;
    if (!ctx && rpc->lost[origin]) return "the origin of its context is lost";
    *status = CDP_ERR_BUSY;
    if (!ctx && rpc->context_count >= rpc->desc.max_contexts)
        return "that rank takes part in max_contexts contexts";
    *status = CDP_ERR_NOMEM;
    if (!ctx) {
        ctx = cdp__ctx_make(rpc, id);
        if (ctx && from != origin) cdp__rpc_control(rpc, origin, CDP__RPC_JOIN, id, 0, 0);
        if (ctx) ctx->with[origin] = CDP__CTX_WITH;
    }
    if (!ctx) return "out of memory for its context";
    if (from != rpc->rank) ctx->with[from] = CDP__CTX_WITH;
    rq->pub.ctx = ctx;
    ++ctx->uses;
    for (i = 0; i < rq->pub.tensor_count && from != rpc->rank; ++i) {
        if (!rq->tensors[i].value) continue;
        rq->tensors[i].value = cdp__ctx_import(rpc, ctx, id, from, rq->tensors[i].value);
        if (!rq->tensors[i].value) return "out of memory for a value";
    }
    return NULL;
}

/* Adds the node of a call, with these inputs besides its tensors. 0: out of memory. */
CDP__PRIVATE uint32_t cdp__ctx_call_node(
    cdp_rpc *rpc, cdp__rpc_rq *rq, const uint64_t *more, uint32_t count) {
    const uint32_t tensors = rq->pub.tensor_count;
    cdp_ctx *ctx = rq->pub.ctx;
    uint64_t *inputs = (uint64_t *)cdp__alloc(rpc->os, (tensors + count + 1) * sizeof *inputs);
    uint32_t i, node;
    if (!inputs) return 0;
    for (i = 0; i < tensors; ++i)
        inputs[i] = rq->tensors[i].value;
    if (count) memcpy(inputs + tensors, more, count * sizeof *inputs);
    node = cdp__ctx_node_add(rpc, ctx, inputs, tensors + count, CDP__RPC_TENSORS);
    cdp__free(rpc->os, inputs);
    if (!node) return 0;
    ctx->nodes[node].backward = rq->f->backward;
    ctx->nodes[node].user = rq->f->user;
    rq->made_node = node;
    return node;
}

/* Prepares the results of a request in a context: those of a function with `backward` become
   values. */
CDP__PRIVATE cdp_status cdp__ctx_results(
    cdp_rpc *rpc, cdp__rpc_rq *rq, const cdp_args *args, cdp_tensor *out) {
    cdp_ctx *ctx = rq->pub.ctx;
    uint32_t i, node = rq->made_node;
    cdp_status st;
    for (i = 0; i < args->tensor_count; ++i)
        out[i] = args->tensors[i];
    if (ctx->failed || ctx->ended) { /* the call itself continues */
        for (i = 0; i < args->tensor_count; ++i)
            out[i].value = 0;
        return CDP_OK;
    }
    if (!rq->f->backward) {
        st = cdp__ctx_check("cdp_rpc_reply", ctx, args);
        if (st != CDP_OK) return st;
    } else {
        if (!node) node = cdp__ctx_call_node(rpc, rq, NULL, 0);
        if (!node || !cdp__ctx_reserve(rpc, ctx, 0, 0, args->tensor_count, 0))
            return cdp__fail_nomem("the record of a call", sizeof(cdp__ctx_node));
        ctx->nodes[node].out_count = args->tensor_count;
        for (i = 0; i < args->tensor_count; ++i) {
            out[i].value = cdp__wave_add_value(&ctx->w, node, i);
            ctx->nodes[node].outputs[i] = (uint32_t)out[i].value;
        }
    }
    {
        cdp_args sent = *args;
        sent.tensors = out;
        if (!cdp__ctx_record_sent(rpc, ctx, &sent, rq->pub.from))
            return cdp__fail_nomem("the record of a call", sizeof(cdp__wave_receiver));
    }
    return CDP_OK;
}

#endif /* CDP_SRC_RPC_PASSES_H */
