/* rpc/optimizer.h - objects on owners, and the calls to them

   Knows: parameters of this rank, cdp_optim_update(), references to objects of other ranks.
   Promises: a step writes a parameter once per gradient; an error names every owner that failed. */
#ifndef CDP_SRC_RPC_OPTIMIZER_H
#define CDP_SRC_RPC_OPTIMIZER_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../base/error_api.h"
#include "../os/os_api.h"
#include "../base/compiler.h"
#include "../base/kept_error.h"
#include "../base/ended.h"
#include "../base/basics.h"
#include "../text/format.h"
#include "../base/text.h"
#include "../base/bytes.h"
#include "worker_api.h"
#include "calls_api.h"
#include "references_api.h"
#include "handler_api.h"
#include "gradients_api.h"
#include "optimizer_api.h"
#include "packets.h"
#include "state.h"
#include "update_rules.h"
#include "waits.h"

typedef struct cdp__optim_param {
    cdp_rref rref;
    cdp_tensor t;
    void *state[3]; /* each as long as the parameter */
    uint64_t steps;
} cdp__optim_param;

typedef struct cdp__optim {
    cdp__optim_rule rule;
    const cdp_os *os;
    uint32_t count;
    cdp__optim_param params[CDP__RPC_RREFS];
} cdp__optim;

CDP__PRIVATE void cdp__optim_free(void *user, void *data) {
    cdp__optim *o = (cdp__optim *)data;
    uint32_t i, k;
    (void)user;
    for (i = 0; i < o->count; ++i) {
        for (k = 0; k < 3; ++k)
            cdp__free(o->os, o->params[i].state[k]);
        cdp_rref_drop(o->params[i].rref);
    }
    cdp__free(o->os, o);
}

CDP__PRIVATE double cdp__optim_load(const cdp_tensor *t, const void *data, uint64_t i) {
    return t->dtype == CDP_DTYPE_F64 ? ((const double *)data)[i] : (double)((const float *)data)[i];
}
CDP__PRIVATE void cdp__optim_store(const cdp_tensor *t, void *data, uint64_t i, double x) {
    if (t->dtype == CDP_DTYPE_F64)
        ((double *)data)[i] = x;
    else
        ((float *)data)[i] = (float)x;
}

/* Adds a parameter of this rank. Returns NULL or what is wrong with it. */
CDP__PRIVATE const char *cdp__optim_take(cdp__optim *o, cdp_rref rref) {
    cdp__optim_param *p = &o->params[o->count];
    uint64_t bytes, i;
    cdp_value v;
    uint32_t k;
    if (cdp_rref_local(rref, 0, 0, &v) != CDP_OK) return cdp_last_error()->text;
    p->rref = rref; /* its pin is removed with the object */
    ++o->count;
    if (!v.param)
        return "the value is no parameter: set param of cdp_value where it may be written to";
    if (v.plain.tensor_count != 1 || !v.plain.tensors || !v.plain.tensors->data)
        return "a parameter is a value whose plain is one tensor";
    p->t = *v.plain.tensors;
    if (p->t.dtype != CDP_DTYPE_F32 && p->t.dtype != CDP_DTYPE_F64)
        return "a parameter has another dtype than F32 and F64";
    bytes = cdp__rpc_tensor_bytes(&p->t);
    for (k = 0; k < 3; ++k) {
        p->state[k] = cdp__alloc_zero(o->os, bytes);
        if (!p->state[k]) return "out of memory for the state of a parameter";
    }
    if (o->rule.kind == CDP_OPTIM_ADAGRAD)
        for (i = 0; i < bytes / cdp_dtype_size(p->t.dtype); ++i)
            cdp__optim_store(&p->t, p->state[0], i, o->rule.initial);
    return NULL;
}

CDP__PRIVATE void cdp__optim_new(void *user, cdp_rpc_request *q) {
    cdp__optim *o = (cdp__optim *)cdp__alloc_zero(q->rpc->os, sizeof *o);
    const char *wrong = o ? NULL : "out of memory";
    cdp_value v;
    uint32_t i;
    (void)user;
    if (o) o->os = q->rpc->os;
    if (o && (!q->data || !cdp__optim_get((const uint8_t *)q->data, q->bytes, &o->rule)))
        wrong = "unknown settings";
    if (!q->remote) wrong = "it is made by cdp_dist_optim_create()";
    for (i = 0; !wrong && i < q->rref_count; ++i)
        wrong = cdp__optim_take(o, q->rrefs[i]);
    if (!wrong) {
        memset(&v, 0, sizeof v);
        v.data = o;
        v.destroy = cdp__optim_free;
        if (cdp_rpc_reply_value(q, &v) == CDP_OK) return;
    } else {
        (void)cdp_rpc_fail(q, 1, wrong);
    }
    if (o) cdp__optim_free(NULL, o);
}

/* The optimizer that a function is called on. NULL: it is called on another value, and was
   answered. */
CDP__PRIVATE cdp__optim *cdp__optim_of(cdp_rpc_request *q) {
    if (q->on && q->on->destroy == cdp__optim_free) return (cdp__optim *)q->on->data;
    (void)cdp_rpc_fail(q, 1, "it is called on a value that is no optimizer");
    return NULL;
}

/* Returns NULL, or why a gradient does not fit its parameter. */
CDP__PRIVATE const char *cdp__optim_misfit(
    const cdp__optim_rule *rule, const cdp_tensor *t, const cdp_tensor *g, const uint32_t *rows) {
    uint64_t i;
    if (g->dtype != t->dtype) return "a gradient has another dtype than its parameter";
    if (!rows)
        return cdp__rpc_tensor_bytes(g) == cdp__rpc_tensor_bytes(t)
            ? NULL
            : "a gradient is not as long as its parameter";
    if (rule->kind != CDP_OPTIM_SGD && rule->kind != CDP_OPTIM_ADAGRAD
        && rule->kind != CDP_OPTIM_ADAM)
        return "a gradient is of some rows, which only SGD, ADAGRAD and ADAM take";
    if (rule->decay != 0) return "a gradient is of some rows; weight_decay must be 0 then";
    if (g->dims != t->dims
        || memcmp(g->shape + 1, t->shape + 1, (g->dims - 1) * sizeof *g->shape) != 0)
        return "the rows of a gradient have another shape than those of its parameter";
    for (i = 0; i < g->shape[0]; ++i)
        if (rows[i] >= t->shape[0])
            return "a gradient is of a row that its parameter does not have";
    return NULL;
}

/* Updates a parameter element by element. `rows`: the rows of the gradient, each of `width`
   elements; NULL: all. */
CDP__PRIVATE void cdp__optim_elements(const cdp__optim_rule *rule, cdp__optim_param *p,
    const cdp_tensor *g, const uint32_t *rows, uint64_t n, uint64_t width) {
    const double t = (double)p->steps;
    uint64_t i;
    uint32_t k;
    for (i = 0; i < n; ++i) {
        const uint64_t at = rows ? rows[i / width] * width + i % width : i;
        double s[3];
        for (k = 0; k < 3; ++k)
            s[k] = cdp__optim_load(&p->t, p->state[k], at);
        cdp__optim_store(&p->t, p->t.data, at,
            cdp__optim_element(rule, t, cdp__optim_load(&p->t, p->t.data, at),
                cdp__optim_load(&p->t, g->data, i), s));
        for (k = 0; k < 3; ++k)
            cdp__optim_store(&p->t, p->state[k], at, s[k]);
    }
}

#ifndef CDP_NO_TRAINING
/* Updates a parameter of F32 by a rule that cdp_optim_update() has, row by row. */
CDP__PRIVATE cdp_status cdp__optim_rows(const cdp__optim_rule *rule, cdp__optim_param *p,
    const cdp_tensor *g, const uint32_t *rows, uint64_t n, uint64_t width) {
    const cdp_optim settings = cdp__optim_settings(rule, p->steps);
    cdp_status st = CDP_OK;
    cdp_optim_range r;
    uint64_t i, at;
    uint32_t k;
    memset(&r, 0, sizeof r);
    r.count = width;
    for (i = 0; st == CDP_OK && i < n; i += width) {
        at = rows ? rows[i / width] * width : i;
        r.param = (float *)p->t.data + at;
        r.grad = (const float *)g->data + i;
        for (k = 0; k < 3; ++k)
            r.state[k] = (float *)p->state[k] + at;
        st = cdp_optim_update(&settings, &r);
    }
    return st;
}

/* Whether cdp_optim_update() has this rule for parameters of this dtype. */
CDP__PRIVATE bool cdp__optim_by_rows(const cdp__optim_rule *rule, cdp_dtype dtype) {
    const cdp_optim settings = cdp__optim_settings(rule, 1);
    return dtype == CDP_DTYPE_F32
        && (rule->kind == CDP_OPTIM_SGD || cdp_optim_states(&settings) != 0);
}
#endif /* CDP_NO_TRAINING */

/* Updates a parameter. `rows`: the rows of the gradient; NULL: all. */
CDP__PRIVATE cdp_status cdp__optim_update(
    const cdp__optim_rule *rule, cdp__optim_param *p, const cdp_tensor *g, const uint32_t *rows) {
    const uint64_t n = cdp__rpc_tensor_bytes(g) / cdp_dtype_size(g->dtype);
    const uint64_t width = rows && n ? n / g->shape[0] : n;
    ++p->steps;
#ifndef CDP_NO_TRAINING
    if (cdp__optim_by_rows(rule, p->t.dtype)) return cdp__optim_rows(rule, p, g, rows, n, width);
#endif
    cdp__optim_elements(rule, p, g, rows, n, width);
    return CDP_OK;
}

CDP__PRIVATE void cdp__optim_step_here(void *user, cdp_rpc_request *q) {
    cdp__optim *o = cdp__optim_of(q);
    uint32_t i;
    (void)user;
    for (i = 0; o && i < o->count; ++i) {
        cdp__optim_param *p = &o->params[i];
        const uint32_t *rows;
        const char *wrong;
        uint64_t value;
        cdp_tensor g;
        if (cdp_ctx_param(q->ctx, p->rref, &value) != CDP_OK
            || cdp_ctx_grad(q->ctx, value, &g) != CDP_OK) {
            (void)cdp_rpc_fail(q, 1, cdp_last_error()->text);
            return;
        }
        if (!g.data) continue;
        rows = cdp_ctx_grad_rows(q->ctx, value);
        wrong = cdp__optim_misfit(&o->rule, &p->t, &g, rows);
        if (wrong) {
            (void)cdp_rpc_fail(q, 1, wrong);
            return;
        }
        if (cdp__optim_update(&o->rule, p, &g, rows) != CDP_OK) {
            (void)cdp_rpc_fail(q, 1, cdp_last_error()->text);
            return;
        }
    }
}

CDP__PRIVATE void cdp__optim_set_here(void *user, cdp_rpc_request *q) {
    cdp__optim *o = cdp__optim_of(q);
    uint64_t bits;
    double x;
    (void)user;
    if (!o || q->bytes != 16) return;
    bits = cdp__get_u64((const uint8_t *)q->data);
    memcpy(&x, &bits, 8);
    o->rule.lr = cdp__optim_or(x, o->rule.lr);
    bits = cdp__get_u64((const uint8_t *)q->data + 8);
    memcpy(&x, &bits, 8);
    o->rule.decay = cdp__optim_or(x, o->rule.decay);
}

CDP__PRIVATE void cdp__rpc_builtins(cdp_rpc *rpc) {
    static const struct {
        const char *name;
        void (*func)(void *user, cdp_rpc_request *q);
    } table[CDP__RPC_BUILTINS] = {{"cdp.optim.new", cdp__optim_new},
        {"cdp.optim.step", cdp__optim_step_here}, {"cdp.optim.set", cdp__optim_set_here}};
    uint32_t i;
    for (i = 0; i < CDP__RPC_BUILTINS; ++i) {
        rpc->builtins[i].name = table[i].name;
        rpc->builtins[i].func = table[i].func;
        rpc->builtins[i].max_running = 1;
    }
}

/* ---- for the program */

typedef struct cdp__optim_part {
    uint32_t owner;
    cdp_rref object;                 /* not with OWN */
    cdp_rref params[CDP__RPC_RREFS]; /* with OWN */
    uint32_t param_count;
    bool started;
    cdp_call call;
} cdp__optim_part;

struct cdp_dist_optim {
    cdp_rpc *rpc;
    const cdp_os *os; /* of the rpc, which may be destroyed before */
    uint32_t timeout_ms, count;
    uint32_t own;       /* with OWN: the function that makes a step */
    double settings[2]; /* with OWN: lr, weight_decay */
    cdp__optim_part *parts;
};

/* Refuses no optimizer, and one that was destroyed. */
CDP__PRIVATE cdp_status cdp__optim_alive(const cdp_dist_optim *o, const char *call) {
    if (!o) return cdp__missing(call, "optim");
    if (!cdp__ended(o)) return CDP_OK;
    return cdp__fail(CDP_ERR_STATE, "%s: this optimizer was destroyed", call);
}

/* Calls a function on all objects and waits for all. */
CDP__PRIVATE cdp_status cdp__optim_all(cdp_dist_optim *o, const char *call, uint32_t function,
    cdp_ctx *ctx, const void *data, uint64_t bytes) {
    cdp_status first = CDP_OK, st;
    char ranks[120] = "";
    uint32_t i, failed = 0, used = 0;
    cdp_error why;
    cdp_call_desc d;
    cdp_iov iov;
    if (cdp__rpc_may_wait() != CDP_OK) return CDP_ERR_STATE;
    memset(&why, 0, sizeof why);
    memset(&d, 0, sizeof d);
    iov.data = (void *)(uintptr_t)data;
    iov.bytes = bytes;
    d.function = function;
    d.timeout_ms = o->timeout_ms;
    d.ctx = ctx;
    d.args.iov = &iov;
    d.args.iov_count = bytes ? 1 : 0;
    for (i = 0; i < o->count; ++i) {
        cdp__optim_part *p = &o->parts[i];
        memset(&p->call, 0, sizeof p->call);
        d.on = p->object;
        d.to = p->owner;
        d.args.rrefs = p->params;
        d.args.rref_count = p->param_count;
        st = cdp_rpc_start(o->rpc, &d, &p->call);
        p->started = st == CDP_OK; /* from now on other threads write to the call */
        if (p->started) continue;
        p->call.status = st;
        p->call.error = *cdp_last_error();
    }
    for (i = 0; i < o->count; ++i) {
        cdp__optim_part *p = &o->parts[i];
        st = p->started ? cdp_call_wait(&p->call) : p->call.status;
        if (st != CDP_OK && !failed++) {
            first = st;
            why = p->call.error;
        }
        if (st != CDP_OK && used + 8 < sizeof ranks) {
            cdp__format(ranks + used, sizeof ranks - used, " %u", p->owner);
            used = (uint32_t)strlen(ranks);
        }
        cdp_call_free(&p->call);
    }
    if (!failed) return CDP_OK;
    return cdp__fail_peer(
        first, (uint32_t)why.peer, 0, "%s: failed on rank%s; first: %s", call, ranks, why.text);
}

/* Creates the next object: up to 16 parameters of the first owner that has some left. */
CDP__PRIVATE cdp_status cdp__optim_make(cdp_dist_optim *o, const cdp_optim_desc *d,
    const uint32_t *owners, bool *done, const uint8_t *settings) {
    cdp_rref rrefs[CDP__RPC_RREFS];
    cdp__optim_part *p = &o->parts[o->count];
    cdp_call_desc call;
    cdp_status st;
    cdp_iov iov;
    uint32_t i, n = 0;
    for (i = 0; i < d->param_count && n < CDP__RPC_RREFS; ++i) {
        if (done[i] || (n && owners[i] != p->owner)) continue;
        p->owner = owners[i];
        rrefs[n++] = d->params[i];
        done[i] = true;
    }
    if (o->own) {
        memcpy(p->params, rrefs, n * sizeof *rrefs);
        p->param_count = n;
        ++o->count;
        for (i = 0; i < n; ++i)
            cdp_rref_keep(rrefs[i]);
        return CDP_OK;
    }
    memset(&call, 0, sizeof call);
    iov.data = (void *)(uintptr_t)settings;
    iov.bytes = CDP__OPTIM_BYTES;
    call.to = p->owner;
    call.function = cdp_rpc_id("cdp.optim.new");
    call.timeout_ms = o->timeout_ms;
    call.label = "an optimizer";
    call.args.iov = &iov;
    call.args.iov_count = 1;
    call.args.rrefs = rrefs;
    call.args.rref_count = n;
    st = cdp_rpc_remote(o->rpc, &call, &p->object);
    if (st == CDP_OK) ++o->count;
    return st;
}

CDP__PRIVATE cdp_status cdp__optim_check(const cdp_optim_desc *d, cdp_dist_optim **out) {
    if (!out) return cdp__missing("cdp_dist_optim_create", "out");
    *out = NULL;
    if (!d) return cdp__missing("cdp_dist_optim_create", "desc");
    if (!d->rpc) return cdp__missing("cdp_dist_optim_create", "desc.rpc");
    if (cdp__rpc_gone(d->rpc, "cdp_dist_optim_create")) return CDP_ERR_INVALID;
    if (!d->params) return cdp__missing("cdp_dist_optim_create", "desc.params");
    if (!d->param_count)
        return cdp__fail(CDP_ERR_INVALID, "cdp_dist_optim_create: param_count is 0");
    if (d->kind < CDP_OPTIM_SGD || d->kind > CDP_OPTIM_OWN)
        return cdp__fail(CDP_ERR_INVALID, "cdp_dist_optim_create: set kind, not %d", (int)d->kind);
    if ((d->kind == CDP_OPTIM_OWN) != (d->own_function != 0))
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_dist_optim_create: set own_function to cdp_rpc_id(name) with CDP_OPTIM_OWN, and "
            "with no other kind");
    if (d->nesterov && (d->momentum <= 0 || d->dampening > 0))
        return cdp__fail(
            CDP_ERR_INVALID, "cdp_dist_optim_create: nesterov needs momentum, and no dampening");
    return d->kind == CDP_OPTIM_OWN ? CDP_OK : cdp__rpc_may_wait();
}

CDP_API cdp_status cdp_dist_optim_create(const cdp_optim_desc *desc, cdp_dist_optim **out) {
    cdp_status st = cdp__optim_check(desc, out);
    uint8_t settings[CDP__OPTIM_BYTES];
    static const uint8_t zeros[16] = {0};
    cdp__optim_rule rule;
    cdp_dist_optim *o;
    uint32_t *owners, i;
    bool *done;
    if (st != CDP_OK) return st;
    *out = NULL;
    o = (cdp_dist_optim *)cdp__alloc_zero(desc->rpc->os, sizeof *o);
    owners = (uint32_t *)cdp__alloc(desc->rpc->os, desc->param_count * sizeof *owners);
    done = (bool *)cdp__alloc_zero(desc->rpc->os, desc->param_count);
    if (o) {
        cdp__ended_remove(o);
        o->os = desc->rpc->os;
        o->parts =
            (cdp__optim_part *)cdp__alloc_zero(desc->rpc->os, desc->param_count * sizeof *o->parts);
    }
    if (!o || !owners || !done || !o->parts) {
        st = cdp__fail_nomem("an optimizer", desc->param_count * sizeof *o->parts);
    } else {
        o->rpc = desc->rpc;
        o->timeout_ms = desc->timeout_ms;
        o->own = desc->own_function;
        o->settings[0] = cdp__optim_or(desc->lr, 0);
        o->settings[1] = cdp__optim_or(desc->weight_decay, 0);
    }
    for (i = 0; st == CDP_OK && i < desc->param_count; ++i) {
        cdp_rref_info info;
        if (desc->params[i].rpc != desc->rpc)
            st = cdp__fail(CDP_ERR_INVALID,
                "cdp_dist_optim_create: params[%u] is no reference of this rpc", i);
        else
            st = cdp_rref_info_of(desc->params[i], &info);
        if (st == CDP_OK) owners[i] = info.owner;
    }
    if (st == CDP_OK && !o->own) {
        rule = cdp__optim_rule_of(desc);
        cdp__optim_put(settings, &rule);
    }
    for (i = 0; st == CDP_OK && i < desc->param_count; ++i)
        if (!done[i]) st = cdp__optim_make(o, desc, owners, done, settings);
    if (st == CDP_OK && !o->own)
        st = cdp__optim_all(
            o, "cdp_dist_optim_create", cdp_rpc_id("cdp.optim.set"), NULL, zeros, sizeof zeros);
    cdp__free(desc->rpc->os, owners);
    cdp__free(desc->rpc->os, done);
    if (st != CDP_OK) {
        const cdp_error e = *cdp_last_error();
        cdp_dist_optim_destroy(o);
        return cdp__error_again(st, &e);
    }
    *out = o;
    return CDP_OK;
}

CDP_API cdp_status cdp_dist_optim_step(cdp_dist_optim *optim, cdp_ctx *ctx) {
    const cdp_status st = cdp__optim_alive(optim, "cdp_dist_optim_step");
    if (st != CDP_OK) return st;
    if (!ctx) return cdp__missing("cdp_dist_optim_step", "ctx");
    if (optim->own)
        return cdp__optim_all(
            optim, "cdp_dist_optim_step", optim->own, ctx, optim->settings, sizeof optim->settings);
    return cdp__optim_all(optim, "cdp_dist_optim_step", cdp_rpc_id("cdp.optim.step"), ctx, NULL, 0);
}

CDP_API cdp_status cdp_dist_optim_set(cdp_dist_optim *optim, double lr, double weight_decay) {
    uint8_t data[16];
    uint64_t bits;
    const cdp_status st = cdp__optim_alive(optim, "cdp_dist_optim_set");
    if (st != CDP_OK) return st;
    if (optim->own) {
        optim->settings[0] = cdp__optim_or(lr, optim->settings[0]);
        optim->settings[1] = cdp__optim_or(weight_decay, optim->settings[1]);
        return CDP_OK;
    }
    memcpy(&bits, &lr, 8);
    cdp__put_u64(data, bits);
    memcpy(&bits, &weight_decay, 8);
    cdp__put_u64(data + 8, bits);
    return cdp__optim_all(
        optim, "cdp_dist_optim_set", cdp_rpc_id("cdp.optim.set"), NULL, data, sizeof data);
}

CDP_API void cdp_dist_optim_destroy(cdp_dist_optim *optim) {
    uint32_t i, k;
    if (!optim || cdp__ended(optim)) return;
    cdp__ended_add(optim);
    for (i = 0; i < optim->count; ++i) {
        cdp_rref_drop(optim->parts[i].object);
        for (k = 0; k < optim->parts[i].param_count; ++k)
            cdp_rref_drop(optim->parts[i].params[k]);
    }
    cdp__free(optim->os, optim->parts);
    cdp__free(optim->os, optim);
}

#endif /* CDP_SRC_RPC_OPTIMIZER_H */
