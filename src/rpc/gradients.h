/* rpc/gradients.h - public functions for contexts

   Knows: contexts. Promises: a pass ends by its deadline on the rank that has begun it, and then
   fails on all others. */
#ifndef CDP_SRC_RPC_GRADIENTS_H
#define CDP_SRC_RPC_GRADIENTS_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../base/error_api.h"
#include "../message/transport_api.h"
#include "../group/group_api.h"
#include "../base/compiler.h"
#include "../base/kept_error.h"
#include "../base/ended.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "../dtype/dtype.h"
#include "../group/deferred.h"
#include "worker_api.h"
#include "handler_api.h"
#include "gradients_api.h"
#include "alive.h"
#include "table.h"
#include "waves.h"
#include "packets.h"
#include "state.h"
#include "pools.h"
#include "send.h"
#include "contexts.h"
#include "passes.h"
#include "intake.h"
#include "waits.h"

CDP_API cdp_status cdp_ctx_begin(cdp_rpc *rpc, cdp_ctx **out) {
    cdp_ctx *ctx = NULL;
    cdp_status st = CDP_OK;
    if (!out) return cdp__missing("cdp_ctx_begin", "out");
    *out = NULL;
    if (!rpc) return cdp__missing("cdp_ctx_begin", "rpc");
    if (cdp__rpc_gone(rpc, "cdp_ctx_begin")) return CDP_ERR_INVALID;
    cdp__rpc_lock(rpc);
    if (rpc->phase != CDP__RPC_OPEN) {
        st = cdp__fail(CDP_ERR_STATE, "cdp_ctx_begin: the rpc was shut down");
    } else if (rpc->context_count >= rpc->desc.max_contexts) {
        st = cdp__fail(CDP_ERR_BUSY,
            "cdp_ctx_begin: this rank takes part in %u contexts (max_contexts of the desc); end "
            "one with cdp_ctx_end()",
            rpc->context_count);
    } else {
        ctx = cdp__ctx_make(rpc, cdp__rpc_number(rpc));
        if (!ctx) st = cdp__fail_nomem("a context", sizeof *ctx);
    }
    *out = ctx;
    cdp__rpc_leave(rpc);
    return st;
}

CDP_API uint64_t cdp_ctx_id(const cdp_ctx *ctx) {
    return ctx && !cdp__ctx_is_orphan(ctx) && !cdp__ended(ctx) ? ctx->id : 0;
}

/* OK: the rpc of this context can be used; else the reason is this thread's last error. */
CDP__PRIVATE cdp_status cdp__ctx_usable(const char *call, const cdp_ctx *ctx) {
    if (!ctx) return cdp__missing(call, "ctx");
    if (cdp__ctx_lives(ctx, call) != CDP_OK) return CDP_ERR_STATE;
    return cdp__rpc_forked(ctx->rpc, call) ? CDP_ERR_INVALID : CDP_OK;
}

CDP__PRIVATE bool cdp__ctx_answered(cdp_rpc *rpc, void *arg) {
    (void)rpc;
    return !((cdp_ctx *)arg)->answers;
}

/* Lock held. */
CDP__PRIVATE void cdp__ctx_notify_end(cdp_rpc *rpc, cdp_ctx *ctx) {
    uint32_t r;
    ctx->ended = true;
    for (r = 0; r < rpc->ranks; ++r) {
        if (ctx->with[r] != CDP__CTX_WITH || r == rpc->rank || rpc->lost[r]) continue;
        ctx->with[r] = CDP__CTX_ENDING;
        ++ctx->answers;
        cdp__rpc_control(rpc, r, CDP__RPC_CTX_END, ctx->id, 0, 0);
    }
}

CDP_API cdp_status cdp_ctx_end(cdp_ctx *ctx, uint32_t timeout_ms) {
    cdp_rpc *rpc;
    cdp_status st;
    uint64_t until;
    uint32_t r;
    if (!ctx) return CDP_OK;
    st = cdp__ctx_usable("cdp_ctx_end", ctx);
    if (st != CDP_OK) return st;
    rpc = ctx->rpc;
    cdp__rpc_lock(rpc);
    if (cdp__rpc_maker(ctx->id) != rpc->rank || cdp__rpc_here_of()->no_wait || *cdp__inside()
        || ctx->mine || ctx->ended) {
        cdp_lock_release(&rpc->lock);
        return cdp__fail(CDP_ERR_STATE,
            "cdp_ctx_end: only the rank that has begun a context ends it, once, outside callbacks "
            "and after its passes");
    }
    ++ctx->uses;
    cdp__ctx_notify_end(rpc, ctx);
    until = cdp__rpc_until(rpc, cdp__def(timeout_ms, rpc->desc.timeout_ms));
    st = cdp__rpc_wait(rpc, cdp__ctx_answered, ctx, until, until);
    if (st == CDP_PENDING) {
        for (r = 0; r < rpc->ranks && ctx->with[r] != CDP__CTX_ENDING;)
            ++r;
        st = cdp__fail_peer(CDP_ERR_TIMEOUT, cdp_world_rank_of(rpc->group, r % rpc->ranks), 0,
            "cdp_ctx_end: rank %u has not answered in time", r);
    }
    cdp__ctx_drop(rpc, ctx);
    cdp__ctx_unuse(rpc, ctx);
    cdp__rpc_leave(rpc);
    return st;
}

/* ---- the graph */

/* Checks a context. After OK the lock is held. */
CDP__PRIVATE cdp_status cdp__ctx_open(const char *call, cdp_ctx *ctx) {
    cdp_status st = cdp__ctx_usable(call, ctx);
    if (st != CDP_OK) return st;
    cdp__rpc_lock(ctx->rpc);
    st = cdp__ctx_check(call, ctx, NULL);
    if (st != CDP_OK) cdp_lock_release(&ctx->rpc->lock);
    return st;
}

CDP_API cdp_status cdp_ctx_value(cdp_ctx *ctx, uint64_t *value) {
    cdp_status st =
        value ? cdp__ctx_open("cdp_ctx_value", ctx) : cdp__missing("cdp_ctx_value", "out");
    if (st != CDP_OK) return st;
    *value = cdp__ctx_leaf(ctx->rpc, ctx, 0);
    if (!*value) st = cdp__fail_nomem("a value", sizeof(cdp__ctx_value));
    cdp_lock_release(&ctx->rpc->lock);
    return st;
}

CDP_API cdp_status cdp_ctx_param(cdp_ctx *ctx, cdp_rref param, uint64_t *value) {
    cdp_status st =
        value ? cdp__ctx_open("cdp_ctx_param", ctx) : cdp__missing("cdp_ctx_param", "out");
    cdp_rpc *rpc;
    uint32_t slot;
    if (st != CDP_OK) return st;
    rpc = ctx->rpc;
    *value = 0;
    slot = cdp__rpc_slot(rpc, "cdp_ctx_param", param);
    if (!slot) {
        st = cdp_last_error()->status;
    } else if (rpc->refs.at[slot].kind != CDP__REF_OWNER) {
        st = cdp__fail(CDP_ERR_INVALID,
            "cdp_ctx_param: the parameter is on rank %u, this is rank %u; call a function there "
            "that returns it",
            rpc->refs.at[slot].rank, rpc->rank);
    } else {
        *value = cdp__ctx_known(rpc, ctx, rpc->refs.at[slot].rid, 0);
        if (!*value) st = cdp__fail_nomem("a value", sizeof(cdp__ctx_value));
    }
    cdp_lock_release(&rpc->lock);
    return st;
}

CDP__PRIVATE cdp_status cdp__ctx_op_check(const cdp_ctx *ctx, const cdp_ctx_op_desc *d) {
    uint32_t i, k;
    if (!d) return cdp__missing("cdp_ctx_op", "desc");
    if (!d->backward) return cdp__missing("cdp_ctx_op", "desc.backward");
    if (d->input_count && !d->inputs) return cdp__missing("cdp_ctx_op", "desc.inputs");
    if (!d->outputs) return cdp__missing("cdp_ctx_op", "desc.outputs");
    if (!d->output_count)
        return cdp__fail(
            CDP_ERR_INVALID, "cdp_ctx_op: output_count is 0; an operation has outputs");
    for (i = 0; i < d->input_count; ++i)
        if (d->inputs[i] && !cdp__ctx_entry(ctx, d->inputs[i]))
            return cdp__fail(CDP_ERR_INVALID,
                "cdp_ctx_op: inputs[%u] is not a value of this rank in this context", i);
    for (i = 0; i < d->output_count; ++i) {
        const uint32_t entry = cdp__ctx_entry(ctx, d->outputs[i]);
        const uint32_t node = entry ? ctx->w.values[entry].node : 0;
        bool twice = false;
        for (k = 0; k < i; ++k)
            twice = twice || d->outputs[k] == d->outputs[i];
        if (!node || twice || ctx->nodes[node].backward || ctx->w.nodes[node].edges
            || ctx->values[entry].other)
            return cdp__fail(CDP_ERR_INVALID,
                "cdp_ctx_op: outputs[%u] must be a value of cdp_ctx_value(), listed once and an "
                "output of no other step",
                i);
        for (k = 0; k < d->input_count; ++k)
            if (d->inputs[k] == d->outputs[i])
                return cdp__fail(CDP_ERR_INVALID, "cdp_ctx_op: inputs[%u] is outputs[%u]", k, i);
    }
    return CDP_OK;
}

CDP_API cdp_status cdp_ctx_op(cdp_ctx *ctx, const cdp_ctx_op_desc *desc) {
    cdp_status st = cdp__ctx_open("cdp_ctx_op", ctx);
    uint32_t i, node = 0;
    if (st == CDP_OK) {
        st = cdp__ctx_op_check(ctx, desc);
        if (st == CDP_OK) {
            node = cdp__ctx_node_add(
                ctx->rpc, ctx, desc->inputs, desc->input_count, desc->output_count);
            if (!node) st = cdp__fail_nomem("a step", sizeof(cdp__ctx_node));
        }
        for (i = 0; node && i < desc->output_count; ++i) {
            const uint32_t entry = cdp__ctx_entry(ctx, desc->outputs[i]);
            ctx->w.values[entry].node = node;
            ctx->w.values[entry].output = i;
            ctx->nodes[node].outputs[i] = entry;
        }
        if (node) {
            ctx->nodes[node].out_count = desc->output_count;
            ctx->nodes[node].backward = desc->backward;
            ctx->nodes[node].user = desc->user;
            ctx->nodes[node].saved = desc->saved;
            ctx->nodes[node].release = desc->release;
        }
        cdp_lock_release(&ctx->rpc->lock);
    }
    if (st != CDP_OK && desc && desc->release) {
        const cdp_error e = *cdp_last_error();
        desc->release(desc->saved);
        return cdp__error_again(st, &e);
    }
    return st;
}

CDP_API cdp_status cdp_ctx_save(cdp_rpc_request *request, void *saved, void (*release)(void *saved),
    const uint64_t *inputs, uint32_t input_count) {
    cdp__rpc_rq *rq = (cdp__rpc_rq *)(void *)request;
    cdp_status st;
    uint32_t i;
    if (!request) return cdp__missing("cdp_ctx_save", "request");
    if (input_count && !inputs) return cdp__missing("cdp_ctx_save", "inputs");
    if (!request->ctx || !rq->f->backward || rq->made_node || rq->stage == CDP__RPC_REPLIED)
        return cdp__fail(CDP_ERR_STATE,
            "cdp_ctx_save: the call belongs to no context, its function has no backward, or it "
            "has saved or replied before");
    st = cdp__ctx_open("cdp_ctx_save", request->ctx);
    if (st != CDP_OK) return st;
    for (i = 0; i < input_count && st == CDP_OK; ++i)
        if (inputs[i] && !cdp__ctx_entry(request->ctx, inputs[i]))
            st = cdp__fail(CDP_ERR_INVALID,
                "cdp_ctx_save: inputs[%u] is not a value of this rank in this context", i);
    if (st == CDP_OK && !cdp__ctx_call_node(request->rpc, rq, inputs, input_count))
        st = cdp__fail_nomem("the record of a call", sizeof(cdp__ctx_node));
    if (st == CDP_OK) {
        request->ctx->nodes[rq->made_node].saved = saved;
        request->ctx->nodes[rq->made_node].release = release;
    }
    cdp_lock_release(&request->rpc->lock);
    return st;
}

/* ---- passes */

/* True if a backward function can run in this thread, or the pass has ended. */
CDP__PRIVATE bool cdp__ctx_next(cdp_rpc *rpc, void *arg) {
    const cdp_ctx *ctx = (const cdp_ctx *)arg;
    (void)rpc;
    return ctx->fires || ctx->over || ctx->failed || ctx->ended;
}

/* Checks the roots and their gradients. *ones: memory for gradients that the caller has left
   out. */
CDP__PRIVATE cdp_status cdp__ctx_roots(const cdp_ctx *ctx, const cdp_backward_desc *d,
    cdp_tensor *roots, uint64_t *values, uint64_t *most) {
    uint32_t i;
    if (!d || !d->roots || !d->root_count || d->root_count > CDP__RPC_TENSORS)
        return cdp__fail(CDP_ERR_INVALID, "cdp_ctx_backward needs 1 to 16 roots");
    for (i = 0; i < d->root_count; ++i) {
        const cdp_tensor *t = &d->roots[i];
        if (!cdp__ctx_entry(ctx, t->value))
            return cdp__fail(CDP_ERR_INVALID,
                "cdp_ctx_backward: roots[%u].value is not a value of this rank in this context", i);
        if (!cdp__reduce_exists(t->dtype, CDP_REDUCE_SUM) || t->dims > 8
            || cdp__rpc_tensor_bytes(t) > ctx->rpc->desc.max_message_bytes)
            return cdp__fail(CDP_ERR_INVALID,
                "cdp_ctx_backward: set dtype and shape of roots[%u], with at most 8 dims and "
                "max_message_bytes",
                i);
        if (d->grads
            && (!d->grads[i].data || d->grads[i].dtype != t->dtype
                || cdp__rpc_tensor_bytes(&d->grads[i]) != cdp__rpc_tensor_bytes(t)))
            return cdp__fail(CDP_ERR_INVALID,
                "cdp_ctx_backward: grads[%u] has no memory, or is not like its root", i);
        roots[i] = *t;
        roots[i].data = d->grads ? d->grads[i].data : NULL;
        values[i] = t->value;
        if (!d->grads) *most += cdp__rpc_filled(cdp__rpc_tensor_bytes(t));
    }
    return CDP_OK;
}

/* Fills a gradient with ones. */
CDP__PRIVATE void cdp__ctx_ones(cdp_tensor *t, uint8_t *at) {
    const uint64_t size = cdp_dtype_size(t->dtype), n = cdp__rpc_tensor_bytes(t) / size;
    uint64_t i;
    t->data = at;
    for (i = 0; i < n; ++i)
        cdp__dtype_one(t->dtype, at + i * size);
}

/* Runs a pass until it ends. Lock held; released meanwhile. */
CDP__PRIVATE cdp_status cdp__ctx_drive(cdp_rpc *rpc, cdp_ctx *ctx, uint64_t until_ns) {
    cdp_status st = CDP_OK;
    cdp__rpc_tidy(rpc);
    while (st == CDP_OK && !ctx->over && !ctx->failed && !ctx->ended) {
        cdp__rpc_rq *rq = ctx->fires;
        if (rq) {
            ctx->fires = rq->next;
            if (!rq->next) ctx->fires_end = &ctx->fires;
            cdp__rpc_help(rpc, rq, until_ns);
        } else {
            st = cdp__rpc_wait(rpc, cdp__ctx_next, ctx, until_ns, until_ns);
        }
    }
    if (st == CDP_PENDING)
        cdp__ctx_fail_here(rpc, ctx, CDP_ERR_TIMEOUT,
            "cdp_ctx_backward: the pass that rank %u (%s) has begun was not over in time",
            rpc->rank, rpc->peers[rpc->rank].name);
    else if (st != CDP_OK)
        cdp__ctx_fail_here(rpc, ctx, st, "%s", cdp_last_error()->text);
    while (ctx->fires) {
        cdp__rpc_rq *rq = ctx->fires;
        ctx->fires = rq->next;
        rq->stage = CDP__RPC_REPLIED;
        cdp__rpc_rq_close(rpc, rq);
    }
    ctx->fires_end = &ctx->fires;
    if (ctx->failed) return cdp__error_again(ctx->why.status, &ctx->why);
    if (!ctx->over)
        return cdp__fail(CDP_ERR_ABORTED,
            "cdp_ctx_backward: the context has ended, or its origin "
            "is lost");
    return CDP_OK;
}

CDP_API cdp_status cdp_ctx_backward(cdp_ctx *ctx, const cdp_backward_desc *desc) {
    cdp_tensor roots[CDP__RPC_TENSORS];
    uint64_t values[CDP__RPC_TENSORS], most = 0;
    uint8_t *ones = NULL, *at;
    cdp_status st = cdp__ctx_open("cdp_ctx_backward", ctx);
    cdp_rpc *rpc;
    uint32_t i;
    if (st != CDP_OK) return st;
    rpc = ctx->rpc;
    st = cdp__ctx_roots(ctx, desc, roots, values, &most);
    if (st == CDP_OK && (cdp__rpc_here_of()->no_wait || *cdp__inside()))
        st = cdp__fail(CDP_ERR_STATE,
            "cdp_ctx_backward: an INLINE function and a callback must not wait for a pass; begin "
            "it outside of them");
    if (st == CDP_OK && (ctx->mine || ctx->w.open))
        st = cdp__fail(CDP_ERR_STATE,
            "cdp_ctx_backward: a pass of this context is under way; begin one after the other");
    if (st == CDP_OK && most) ones = (uint8_t *)cdp__alloc(rpc->os, most);
    if (st == CDP_OK && ((most && !ones) || !cdp__ctx_reserve(rpc, ctx, 0, desc->root_count, 0, 0)))
        st = cdp__fail_nomem("roots of a pass", most);
    if (st != CDP_OK) {
        cdp__free(rpc->os, ones);
        cdp_lock_release(&rpc->lock);
        return st;
    }
    for (i = 0, at = ones; i < desc->root_count; ++i) {
        if (roots[i].data) continue;
        cdp__ctx_ones(&roots[i], at);
        at += cdp__rpc_filled(cdp__rpc_tensor_bytes(&roots[i]));
    }
    ++ctx->uses;
    ctx->mine = true;
    ctx->over = false;
    ctx->roots = roots;
    (void)cdp__wave_begin(&ctx->w, cdp__rpc_number(rpc), values, desc->root_count);
    st = cdp__ctx_drive(
        rpc, ctx, cdp__rpc_until(rpc, cdp__def(desc->timeout_ms, rpc->desc.timeout_ms)));
    ctx->mine = false;
    ctx->roots = NULL;
    cdp__free(rpc->os, ones);
    cdp__ctx_unuse(rpc, ctx);
    cdp__rpc_leave(rpc);
    return st;
}

CDP_API cdp_status cdp_ctx_grad(cdp_ctx *ctx, uint64_t value, cdp_tensor *out) {
    cdp_status st = out ? cdp__ctx_open("cdp_ctx_grad", ctx) : cdp__missing("cdp_ctx_grad", "out");
    uint32_t entry, node;
    if (st != CDP_OK) return st;
    memset(out, 0, sizeof *out);
    entry = cdp__ctx_entry(ctx, value);
    node = entry ? ctx->w.values[entry].node : 0;
    if (!node || ctx->nodes[node].backward || ctx->w.nodes[node].edges)
        st = cdp__fail(CDP_ERR_INVALID,
            "cdp_ctx_grad: the value is not one that cdp_ctx_value() or cdp_ctx_param() of this "
            "rank has made, or a step has made it");
    else if (ctx->values[entry].grad)
        *out = ctx->values[entry].grad->t;
    cdp_lock_release(&ctx->rpc->lock);
    return st;
}

CDP_API const uint32_t *cdp_ctx_grad_rows(cdp_ctx *ctx, uint64_t value) {
    const uint32_t *rows = NULL;
    uint32_t entry;
    if (!ctx || cdp__ctx_usable("cdp_ctx_grad_rows", ctx) != CDP_OK) return NULL;
    cdp__rpc_lock(ctx->rpc);
    entry = cdp__ctx_entry(ctx, value);
    if (entry && ctx->values[entry].grad) rows = ctx->values[entry].grad->rows;
    cdp_lock_release(&ctx->rpc->lock);
    return rows;
}

#endif /* CDP_SRC_RPC_GRADIENTS_H */
