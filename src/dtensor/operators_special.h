/* dtensor/operators_special.h - lookups, losses, attention, views

   Knows: what operators knows, and the inputs of each operator. Promises: cdp_op_rules(). */
#ifndef CDP_SRC_DTENSOR_OPERATORS_SPECIAL_H
#define CDP_SRC_DTENSOR_OPERATORS_SPECIAL_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../message/transport_api.h"
#include "../base/helpers.h"
#include "mesh_api.h"
#include "layout_api.h"
#include "rules_api.h"
#include "kit.h"
#include "grid.h"
#include "spelling.h"
#include "operators.h"

#ifndef CDP_NO_TENSOR_OPS

CDP__DT cdp_status cdp__dt_embedding_rules(
    const cdp_op *op, const cdp_layout *in, uint32_t in_count, cdp__dt_rules *r, cdp_layout *out) {
    (void)op;
    (void)in_count;
    if (in[0].ndim != 2 || in[1].ndim + 1 > CDP_TENSOR_DIMS)
        return cdp__dt_op_wrong("embedding", "inputs are a table [rows, width] and ids", 0);
    cdp__dt_shape_of(out, &in[1]);
    out->shape[out->ndim++] = in[0].shape[1];
    cdp_rule *rule = cdp__dt_rule(r); /* the width is cut */
    rule->in[0] = cdp__dt_shard(1, 0);
    rule->out = cdp__dt_shard(out->ndim - 1, 0);
    rule = cdp__dt_rule(r); /* rows of the table are cut: each id has its row on one rank */
    rule->in[0] = cdp__dt_shard(0, 0);
    rule->out = cdp__dt_sum_of(CDP_REDUCE_SUM);
    rule->flags = CDP_RULE_MASK;
    for (uint32_t d = 0; d < in[1].ndim; ++d) {
        rule = cdp__dt_rule(r);
        rule->in[1] = rule->out = cdp__dt_shard(d, 0);
    }
    cdp__dt_one_rules(r, 1);
    return CDP_OK;
}

CDP__DT cdp_status cdp__dt_loss_rules(
    const cdp_op *op, const cdp_layout *in, uint32_t in_count, cdp__dt_rules *r, cdp_layout *out) {
    (void)op;
    (void)in_count;
    if (in[0].ndim != in[1].ndim + 1
        || memcmp(in[0].shape, in[1].shape, in[1].ndim * sizeof in->shape[0]) != 0)
        return cdp__dt_op_wrong("cross entropy", "targets must have the logits' other dims", 1);
    cdp__dt_shape_of(out, &in[1]);
    for (uint32_t d = 0; d < in[0].ndim; ++d) {
        cdp_rule *rule = cdp__dt_rule(r);
        rule->in[0] = cdp__dt_shard(d, 0);
        if (d < in[1].ndim)
            rule->in[1] = rule->out = cdp__dt_shard(d, 0);
        else
            rule->flags = CDP_RULE_SHARED;
    }
    return CDP_OK;
}

/* Heads are cut in the same way; a head of k and v serves H / G heads of q, which stay together. */
CDP__DT cdp_status cdp__dt_attention_rules(
    const cdp_op *op, const cdp_layout *in, uint32_t in_count, cdp__dt_rules *r, cdp_layout *out) {
    const cdp_layout *q = &in[0], *k = &in[1], *v = &in[2];
    cdp_rule *rule;
    (void)op;
    (void)in_count;
    if (q->ndim != 4 || k->ndim != 4 || v->ndim != 4)
        return cdp__dt_op_wrong("attention", "q, k and v need 4 dims: batch, heads, length, size",
            q->ndim != 4 ? 0 : 1);
    if (k->shape[0] != q->shape[0] || v->shape[0] != q->shape[0] || k->shape[1] != v->shape[1]
        || k->shape[2] != v->shape[2] || k->shape[3] != q->shape[3])
        return cdp__dt_op_wrong("attention", "its sizes do not fit those of the others", 1);
    if (!k->shape[1] || q->shape[1] % k->shape[1])
        return cdp__dt_op_wrong("attention", "the heads of q must be a multiple of its heads", 1);
    cdp__dt_shape_of(out, q);
    out->shape[3] = v->shape[3];
    rule = cdp__dt_rule(r);
    rule->in[0] = rule->in[1] = rule->in[2] = rule->out = cdp__dt_shard(0, 0);
    rule = cdp__dt_rule(r);
    rule->in[0] = rule->out = cdp__dt_shard(1, q->shape[1] / k->shape[1]);
    rule->in[1] = rule->in[2] = cdp__dt_shard(1, 1);
    for (uint32_t d = 1; d < 3; ++d) { /* cuts heads, or queries, of q only */
        rule = cdp__dt_rule(r);
        rule->in[0] = rule->out = cdp__dt_shard(d, 0);
        rule->flags = CDP_RULE_OFFSET;
    }
    return CDP_OK;
}

/* The least common multiple; 0 if one is 0, or if it has more than 62 bits. */
CDP__DT uint64_t cdp__dt_multiple(uint64_t a, uint64_t b) {
    uint64_t x = a, y = b;
    bool fits = true;
    while (y) {
        const uint64_t rest = x % y;
        x = y;
        y = rest;
    }
    const uint64_t least = x ? cdp__dt_times(a / x, b, &fits) : 0;
    return fits && !(least >> 62) ? least : 0;
}

/* The first dimension of [first, end) that is not of size 1; *inner: elements of one of its rows.
   */
CDP__DT uint32_t cdp__dt_major(
    const uint64_t *shape, uint32_t first, uint32_t end, uint64_t *inner) {
    uint32_t major = first;
    *inner = 1;
    while (major + 1 < end && shape[major] == 1)
        ++major;
    for (uint32_t d = major + 1; d < end; ++d)
        *inner *= shape[d];
    return major;
}

/* Groups of dimensions with equal products on both sides change into one another: a cut of the
   first dimension of one side is a cut of that of the other, if it lies at a multiple of both
   their rows. */
CDP__DT void cdp__dt_view_group(cdp__dt_rules *r, const cdp_layout *in, const uint32_t a[2],
    const cdp_layout *out, const uint32_t b[2]) {
    uint64_t x, y;
    if (a[0] == a[1] || b[0] == b[1]) return;
    const uint32_t from = cdp__dt_major(in->shape, a[0], a[1], &x);
    const uint32_t to = cdp__dt_major(out->shape, b[0], b[1], &y);
    const uint64_t unit = cdp__dt_multiple(x, y);
    if (!unit) return; /* no elements */
    cdp_rule *rule = cdp__dt_rule(r);
    rule->in[0] = cdp__dt_shard(from, unit / x);
    rule->out = cdp__dt_shard(to, unit / y);
}

CDP__DT cdp_status cdp__dt_view_rules(
    const cdp_op *op, const cdp_layout *in, uint32_t in_count, cdp__dt_rules *r, cdp_layout *out) {
    uint32_t a[2] = {0, 0}, b[2] = {0, 0};
    uint64_t x = 1, y = 1;
    (void)in_count;
    for (uint32_t d = 0; d < in->ndim; ++d)
        x *= in->shape[d];
    for (uint32_t d = 0; d < out->ndim; ++d)
        y *= out->shape[d];
    if (x != y)
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_op: view: the input has %llu elements, the shape of the result %llu",
            (unsigned long long)x, (unsigned long long)y);
    x = y = 1;
    while (a[1] < in->ndim || b[1] < out->ndim) {
        const bool left = a[1] < in->ndim && (x <= y || b[1] == out->ndim);
        if (left)
            x *= in->shape[a[1]++];
        else
            y *= out->shape[b[1]++];
        if (x != y || a[0] == a[1] || b[0] == b[1]) continue;
        cdp__dt_view_group(r, in, a, out, b);
        a[0] = a[1];
        b[0] = b[1];
        x = y = 1;
    }
    for (uint32_t what = CDP_REDUCE_SUM; what <= CDP_REDUCE_PRODUCT; ++what)
        cdp__dt_mask_rule(r, 1, (cdp_reduce_op)what, (cdp_reduce_op)what);
    (void)op;
    return CDP_OK;
}

/* ---- all operators ---- */

typedef cdp_status cdp__dt_op_rules_of(
    const cdp_op *op, const cdp_layout *in, uint32_t in_count, cdp__dt_rules *r, cdp_layout *out);

typedef struct cdp__dt_op_kind {
    const char *name;
    uint32_t least, most; /* inputs */
    cdp__dt_op_rules_of *rules;
} cdp__dt_op_kind;

CDP__DT cdp__dt_op_kind cdp__dt_op_kind_of(cdp_op_kind kind) {
    static const cdp__dt_op_kind kinds[] = {
        {"einsum", 1, 4, cdp__dt_einsum},
        {"pointwise", 1, 4, cdp__dt_pointwise},
        {"reduce", 1, 1, cdp__dt_reduce_rules},
        {"softmax", 1, 1, cdp__dt_softmax_rules},
        {"norm", 1, 3, cdp__dt_norm_rules},
        {"embedding", 2, 2, cdp__dt_embedding_rules},
        {"cross entropy", 2, 2, cdp__dt_loss_rules},
        {"attention", 3, 3, cdp__dt_attention_rules},
        {"view", 1, 1, cdp__dt_view_rules},
        {"custom", 1, 4, NULL},
    };
    return kinds[kind];
}

CDP__DT cdp_status cdp__dt_op_check(
    const cdp_op *op, const cdp_layout *in, uint32_t in_count, cdp__dt_op_kind *kind) {
    if (!op || !in || (uint32_t)op->kind > CDP_OP_CUSTOM)
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_op: the operator or its inputs are NULL, or its kind is none of cdp_op_kind");
    *kind = cdp__dt_op_kind_of(op->kind);
    if (in_count < kind->least || in_count > kind->most)
        return cdp_error_set(CDP_ERR_INVALID, -1, 0, "cdp_op: %s: %u inputs; it has %u to %u",
            kind->name, in_count, kind->least, kind->most);
    for (uint32_t k = 0; k < in_count; ++k) {
        cdp_layout plain = in[k];
        memset(plain.place, 0, sizeof plain.place);
        const cdp_status st = cdp_layout_check(&plain);
        if (st != CDP_OK) return st;
        if (!cdp__dt_mesh_same(in[k].mesh, in[0].mesh))
            return cdp__dt_op_wrong(kind->name, "it is on another mesh than input 0", k);
    }
    if (op->rule_count && !op->rules) return cdp__dt_missing("cdp_op", "op.rules");
    if (op->kind == CDP_OP_CUSTOM && !op->rules)
        return cdp__dt_op_wrong(kind->name, "it needs rules", 0);
    return CDP_OK;
}

CDP__DT bool cdp__dt_place_fits(const cdp_place *p, uint32_t ndim) {
    const int64_t d = p->dim < 0 ? (int64_t)p->dim + ndim : p->dim;
    return p->kind != CDP_PLACE_SHARD || (d >= 0 && d < (int64_t)ndim);
}

/* The program's own rules replace those found. */
CDP__DT cdp_status cdp__dt_own_rules(const cdp_op *op, const cdp_layout *in, uint32_t in_count,
    cdp__dt_rules *r, const cdp_layout *out) {
    r->n = 1;
    for (uint32_t i = 0; i < op->rule_count; ++i) {
        bool fits = cdp__dt_place_fits(&op->rules[i].out, out->ndim);
        for (uint32_t k = 0; k < in_count; ++k)
            fits = fits && cdp__dt_place_fits(&op->rules[i].in[k], in[k].ndim);
        if (!fits)
            return cdp_error_set(CDP_ERR_INVALID, -1, 0,
                "cdp_op: rules[%u] shards a dimension that the input or the result lacks", i);
        *cdp__dt_rule(r) = op->rules[i];
    }
    return CDP_OK;
}

/* Finds the rules, and the shape of the result. */
CDP__DT cdp_status cdp__dt_rules_of(
    const cdp_op *op, const cdp_layout *in, uint32_t in_count, cdp__dt_rules *r, cdp_layout *out) {
    cdp__dt_op_kind kind;
    cdp_status st = cdp__dt_op_check(op, in, in_count, &kind);
    if (st != CDP_OK) return st;
    memset(out, 0, sizeof *out);
    out->mesh = in->mesh;
    out->dtype = cdp__dt_dtype(in);
    if (op->kind == CDP_OP_VIEW || op->kind == CDP_OP_CUSTOM) {
        if (op->ndim > CDP_TENSOR_DIMS)
            return cdp__dt_op_wrong(kind.name, "the result has too many dimensions", 0);
        out->ndim = op->ndim;
        memcpy(out->shape, op->shape, sizeof out->shape);
    }
    (void)cdp__dt_rule(r); /* everything replicated */
    if (kind.rules) st = kind.rules(op, in, in_count, r, out);
    if (st == CDP_OK) st = cdp_layout_check(out);
    if (st == CDP_OK && op->rules) st = cdp__dt_own_rules(op, in, in_count, r, out);
    return st;
}

/* True if rules of two dimensions of a mesh may be combined: if both shard the same dimension of
   a tensor, they cut all tensors alike. `t`: the tensors of a choice, the result last. */
CDP__DT bool cdp__dt_rules_agree(
    const cdp_layout *const *t, uint32_t in_count, uint32_t a, uint32_t b) {
    bool meet = false, alike = true;
    for (uint32_t k = 0; k <= in_count; ++k) {
        const cdp_place *p = &t[k]->place[a], *q = &t[k]->place[b];
        const bool both = p->kind == CDP_PLACE_SHARD && q->kind == CDP_PLACE_SHARD;
        const bool same_dim = both && cdp__dt_dim(t[k], a) == cdp__dt_dim(t[k], b);
        meet = meet || same_dim;
        alike = alike && p->kind == q->kind && (!both || same_dim);
    }
    return !meet || alike;
}

CDP_API cdp_status cdp_op_rules(const cdp_op *op, const cdp_layout *in, uint32_t in_count,
    cdp_rule *out, uint32_t max, uint32_t *count) {
    cdp__dt_rules r;
    cdp_layout result;
    if (!count) return cdp__dt_missing("cdp_op_rules", "count");
    if (max && !out) return cdp__dt_missing("cdp_op_rules", "out");
    memset(&r, 0, sizeof r);
    r.out = out;
    r.max = max;
    const cdp_status st = cdp__dt_rules_of(op, in, in_count, &r, &result);
    *count = st == CDP_OK ? r.n : 0;
    return st;
}

#endif /* CDP_NO_TENSOR_OPS */

#endif /* CDP_SRC_DTENSOR_OPERATORS_SPECIAL_H */
