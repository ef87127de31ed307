/* dtensor/operators.h - rules, one dimension of a mesh at a time

   Knows: shapes of operands, and placements. Promises: if the inputs are placed according to a
   rule, applying the operator to the pieces gives the pieces of the result, for every size, even
   or not. A rule is for one dimension of a mesh; rules of several dimensions can be combined if
   dimensions that cut the same dimension of a tensor follow the same rule
   (cdp__dt_rules_agree()). */
#ifndef CDP_SRC_DTENSOR_OPERATORS_H
#define CDP_SRC_DTENSOR_OPERATORS_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../message/transport_api.h"
#include "../base/helpers.h"
#include "mesh_api.h"
#include "layout_api.h"
#include "rules_api.h"
#include "kit.h"

#ifndef CDP_NO_TENSOR_OPS

/* A list of rules: `n` counts all, `out` stores the first `max`. */
typedef struct cdp__dt_rules {
    cdp_rule *out, spill;
    uint32_t n, max;
} cdp__dt_rules;

CDP__DT cdp_rule *cdp__dt_rule(cdp__dt_rules *r) {
    cdp_rule *rule = r->n < r->max ? &r->out[r->n] : &r->spill;
    ++r->n;
    memset(rule, 0, sizeof *rule);
    return rule;
}

CDP__DT cdp_place cdp__dt_shard(uint32_t dim, uint64_t block) {
    cdp_place p;
    memset(&p, 0, sizeof p);
    p.kind = CDP_PLACE_SHARD;
    p.dim = (int32_t)dim;
    p.block = block;
    return p;
}

CDP__DT cdp_place cdp__dt_sum_of(cdp_reduce_op op) {
    cdp_place p;
    memset(&p, 0, sizeof p);
    p.kind = CDP_PLACE_PARTIAL;
    p.op = op;
    return p;
}

CDP__DT cdp_status cdp__dt_op_wrong(const char *kind, const char *why, uint32_t input) {
    return cdp_error_set(CDP_ERR_INVALID, -1, 0, "cdp_op: %s: %s (input %u)", kind, why, input);
}

/* Converts `dim` to a number from the start; `most`: the first invalid one. */
CDP__DT cdp_status cdp__dt_op_dim(const char *kind, int32_t dim, uint32_t most, uint32_t *out) {
    const int64_t d = dim < 0 ? (int64_t)dim + most : dim;
    *out = 0;
    if (d < 0 || d >= (int64_t)most)
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_op: %s: dim %d of a tensor of %u dimensions", kind, dim, most);
    *out = (uint32_t)d;
    return CDP_OK;
}

/* ---- sums of products ---- */

#define CDP__DT_NO_INPUT 99u

typedef struct cdp__dt_letters {
    uint32_t inputs, addend; /* addend: the input after '+', or CDP__DT_NO_INPUT */
    char in[CDP_OP_INPUTS][CDP_TENSOR_DIMS + 1], out[CDP_TENSOR_DIMS + 1];
} cdp__dt_letters;

CDP__DT int32_t cdp__dt_letter_at(const char *operand, char c) {
    const char *at = strchr(operand, c);
    return at ? (int32_t)(at - operand) : -1;
}

/* Parses the letters of one operand; returns the character after them. */
CDP__DT const char *cdp__dt_operand(const char *s, char *out) {
    uint32_t n = 0;
    while (n < CDP_TENSOR_DIMS && *s >= 'a' && *s <= 'z' && !memchr(out, *s, n))
        out[n++] = *s++;
    out[n] = 0;
    return s;
}

CDP__DT cdp_status cdp__dt_letters_parse(const char *text, cdp__dt_letters *l) {
    const char *s = text;
    memset(l, 0, sizeof *l);
    l->addend = CDP__DT_NO_INPUT;
    if (!text) return cdp__dt_missing("cdp_op: einsum", "text");
    for (;;) {
        s = cdp__dt_operand(s, l->in[l->inputs++]);
        const bool last = l->addend != CDP__DT_NO_INPUT || l->inputs == CDP_OP_INPUTS;
        if ((*s != ',' && *s != '+') || last) break;
        if (*s == '+') l->addend = l->inputs;
        ++s;
    }
    bool ok = s[0] == '-' && s[1] == '>';
    if (ok) s = cdp__dt_operand(s + 2, l->out);
    ok = ok && !*s;
    for (const char *c = l->out; ok && *c; ++c) {
        bool known = false;
        for (uint32_t k = 0; k < l->inputs; ++k)
            known = known || cdp__dt_letter_at(l->in[k], *c) >= 0;
        ok = known;
    }
    const char *added = l->addend == CDP__DT_NO_INPUT ? "" : l->in[l->addend];
    for (; ok && *added; ++added)
        ok = cdp__dt_letter_at(l->out, *added) >= 0;
    if (ok) return CDP_OK;
    return cdp_error_set(CDP_ERR_INVALID, -1, 0,
        "cdp_op: einsum: \"%s\" at character %u; write at most 4 operands such as \"mk,kn->mn\" or "
        "\"mk,kn+n->mn\", each letter once per operand, and none that only the result has",
        text, (unsigned)(s - text));
}

/* Checks that every letter has one size. */
CDP__DT cdp_status cdp__dt_letter_sizes(
    const cdp__dt_letters *l, const cdp_layout *in, uint64_t size[26]) {
    uint32_t seen = 0;
    for (uint32_t k = 0; k < l->inputs; ++k) {
        if (strlen(l->in[k]) != in[k].ndim)
            return cdp__dt_op_wrong("einsum", "it has more or fewer dimensions than letters", k);
        for (uint32_t d = 0; d < in[k].ndim; ++d) {
            const uint32_t c = (uint32_t)(l->in[k][d] - 'a');
            if ((seen >> c & 1) && size[c] != in[k].shape[d])
                return cdp_error_set(CDP_ERR_INVALID, -1, 0,
                    "cdp_op: einsum: dimension '%c' has size %llu and, in input %u, size %llu",
                    l->in[k][d], (unsigned long long)size[c], k,
                    (unsigned long long)in[k].shape[d]);
            size[c] = in[k].shape[d];
            seen |= 1u << c;
        }
    }
    return CDP_OK;
}

/* The rule that cuts one letter in all operands; if the result lacks it, the result is a sum. */
CDP__DT void cdp__dt_letter_rule(cdp__dt_rules *r, const cdp__dt_letters *l, char c) {
    cdp_rule *rule = cdp__dt_rule(r);
    for (uint32_t k = 0; k < l->inputs; ++k) {
        const int32_t at = cdp__dt_letter_at(l->in[k], c);
        if (at >= 0) rule->in[k] = cdp__dt_shard((uint32_t)at, 0);
    }
    const int32_t at = cdp__dt_letter_at(l->out, c);
    rule->out = at >= 0 ? cdp__dt_shard((uint32_t)at, 0) : cdp__dt_sum_of(CDP_REDUCE_SUM);
    if (at < 0 && l->addend != CDP__DT_NO_INPUT) rule->flags = CDP_RULE_ONCE;
}

/* Rules from linearity: a product is linear in each of its factors. */
CDP__DT void cdp__dt_linear_rules(cdp__dt_rules *r, const cdp__dt_letters *l, cdp_reduce_op op) {
    for (uint32_t k = 0; k < l->inputs; ++k) {
        if (k == l->addend) continue;
        cdp_rule *rule = cdp__dt_rule(r);
        rule->in[k] = rule->out = cdp__dt_sum_of(op);
        if (l->addend == CDP__DT_NO_INPUT) continue;
        if (op == CDP_REDUCE_SUM) rule->flags = CDP_RULE_ONCE;
        rule = cdp__dt_rule(r);
        rule->in[k] = rule->in[l->addend] = rule->out = cdp__dt_sum_of(op);
    }
}

CDP__DT cdp_status cdp__dt_einsum(
    const cdp_op *op, const cdp_layout *in, uint32_t in_count, cdp__dt_rules *r, cdp_layout *out) {
    cdp__dt_letters l;
    uint64_t size[26];
    cdp_status st = cdp__dt_letters_parse(op->text, &l);
    if (st != CDP_OK) return st;
    if (l.inputs != in_count)
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_op: einsum: \"%s\" has %u operands, the call %u", op->text, l.inputs, in_count);
    st = cdp__dt_letter_sizes(&l, in, size);
    if (st != CDP_OK) return st;
    out->ndim = (uint32_t)strlen(l.out);
    for (uint32_t d = 0; d < out->ndim; ++d)
        out->shape[d] = size[l.out[d] - 'a'];
    for (char c = 'a'; c <= 'z'; ++c) {
        bool used = false;
        for (uint32_t k = 0; k < l.inputs; ++k)
            used = used || cdp__dt_letter_at(l.in[k], c) >= 0;
        if (used) cdp__dt_letter_rule(r, &l, c);
    }
    cdp__dt_linear_rules(r, &l, CDP_REDUCE_SUM);
    cdp__dt_linear_rules(r, &l, CDP_REDUCE_AVG);
    return CDP_OK;
}

/* ---- element by element ---- */

/* Adds a rule: inputs in `mask` are PARTIAL with `op`, the others replicated. */
CDP__DT void cdp__dt_mask_rule(
    cdp__dt_rules *r, uint32_t mask, cdp_reduce_op in_op, cdp_reduce_op out_op) {
    cdp_rule *rule = cdp__dt_rule(r);
    for (uint32_t k = 0; k < CDP_OP_INPUTS; ++k)
        if (mask >> k & 1) rule->in[k] = cdp__dt_sum_of(in_op);
    rule->out = cdp__dt_sum_of(out_op);
}

/* Adds rules in which any inputs, at least one, are PARTIAL. */
CDP__DT void cdp__dt_any_rules(cdp__dt_rules *r, uint32_t in_count, cdp_reduce_op op) {
    for (uint32_t mask = 1; mask < 1u << in_count; ++mask)
        cdp__dt_mask_rule(r, mask, op, op);
}

/* Adds rules in which exactly one of the first `n` inputs is a sum or a mean. */
CDP__DT void cdp__dt_one_rules(cdp__dt_rules *r, uint32_t n) {
    for (uint32_t k = 0; k < n; ++k) {
        cdp__dt_mask_rule(r, 1u << k, CDP_REDUCE_SUM, CDP_REDUCE_SUM);
        cdp__dt_mask_rule(r, 1u << k, CDP_REDUCE_AVG, CDP_REDUCE_AVG);
    }
}

CDP__DT void cdp__dt_partial_rules(cdp__dt_rules *r, cdp_linear linear, uint32_t in_count) {
    const uint32_t every = (1u << in_count) - 1;
    const bool rising = linear == CDP_LINEAR_RISING || linear == CDP_LINEAR_ADD;
    if (linear == CDP_LINEAR_ADD) {
        cdp__dt_mask_rule(r, every, CDP_REDUCE_SUM, CDP_REDUCE_SUM);
        cdp__dt_any_rules(r, in_count, CDP_REDUCE_AVG);
    }
    if (linear == CDP_LINEAR_SCALE || linear == CDP_LINEAR_QUOTIENT) cdp__dt_one_rules(r, 1);
    if (linear == CDP_LINEAR_PRODUCT) {
        cdp__dt_one_rules(r, in_count);
        cdp__dt_mask_rule(r, every, CDP_REDUCE_PRODUCT, CDP_REDUCE_PRODUCT);
    }
    if (rising) { /* in the first input, for any other inputs */
        cdp__dt_mask_rule(r, 1, CDP_REDUCE_MAX, CDP_REDUCE_MAX);
        cdp__dt_mask_rule(r, 1, CDP_REDUCE_MIN, CDP_REDUCE_MIN);
    }
    if (linear == CDP_LINEAR_FALLING) {
        cdp__dt_mask_rule(r, 1, CDP_REDUCE_MAX, CDP_REDUCE_MIN);
        cdp__dt_mask_rule(r, 1, CDP_REDUCE_MIN, CDP_REDUCE_MAX);
    }
    if (linear == CDP_LINEAR_MAX) cdp__dt_any_rules(r, in_count, CDP_REDUCE_MAX);
    if (linear == CDP_LINEAR_MIN) cdp__dt_any_rules(r, in_count, CDP_REDUCE_MIN);
}

CDP__DT cdp_status cdp__dt_broadcast(const cdp_layout *in, uint32_t in_count, cdp_layout *out) {
    for (uint32_t k = 0; k < in_count; ++k)
        out->ndim = (uint32_t)cdp__max(out->ndim, in[k].ndim);
    for (uint32_t d = 0; d < out->ndim; ++d)
        out->shape[d] = 1;
    for (uint32_t k = 0; k < in_count; ++k)
        for (uint32_t e = 0; e < in[k].ndim; ++e) {
            const uint32_t d = out->ndim - in[k].ndim + e;
            if (in[k].shape[e] != 1 && out->shape[d] != 1 && in[k].shape[e] != out->shape[d])
                return cdp__dt_op_wrong("pointwise", "a size is neither 1 nor that of others", k);
            if (in[k].shape[e] != 1) out->shape[d] = in[k].shape[e];
        }
    return CDP_OK;
}

CDP__DT cdp_status cdp__dt_pointwise(
    const cdp_op *op, const cdp_layout *in, uint32_t in_count, cdp__dt_rules *r, cdp_layout *out) {
    const cdp_linear linear = op->linear;
    const bool unary =
        linear == CDP_LINEAR_SCALE || linear == CDP_LINEAR_RISING || linear == CDP_LINEAR_FALLING;
    if ((uint32_t)linear > CDP_LINEAR_MIN || (unary && in_count != 1))
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_op: pointwise: linear %u is none of cdp_linear, or is about one input, not %u",
            (unsigned)linear, in_count);
    const cdp_status st = cdp__dt_broadcast(in, in_count, out);
    if (st != CDP_OK) return st;
    for (uint32_t d = 0; d < out->ndim; ++d) {
        cdp_rule *rule = cdp__dt_rule(r);
        rule->out = cdp__dt_shard(d, 0);
        for (uint32_t k = 0; k < in_count; ++k) {
            const uint32_t before = out->ndim - in[k].ndim;
            if (d >= before && in[k].shape[d - before] == out->shape[d])
                rule->in[k] = cdp__dt_shard(d - before, 0);
        }
    }
    cdp__dt_partial_rules(r, linear, in_count);
    return CDP_OK;
}

/* ---- reductions ---- */

CDP__DT cdp_status cdp__dt_reduce_rules(
    const cdp_op *op, const cdp_layout *in, uint32_t in_count, cdp__dt_rules *r, cdp_layout *out) {
    const cdp_reduce_op what = op->reduce == CDP_REDUCE_DEFAULT ? CDP_REDUCE_SUM : op->reduce;
    const bool mean = what == CDP_REDUCE_AVG, adds = mean || what == CDP_REDUCE_SUM;
    const cdp_reduce_op adding = adds ? CDP_REDUCE_SUM : what;
    uint32_t dim = 0, gone = 0;
    (void)in_count;
    if (what > CDP_REDUCE_PRODUCT)
        return cdp__dt_op_wrong("reduce", "use sum, avg, min, max or product", 0);
    if (!op->all) {
        const cdp_status st = cdp__dt_op_dim("reduce", op->dim, in->ndim, &dim);
        if (st != CDP_OK) return st;
    }
    for (uint32_t d = 0; d < in->ndim; ++d) {
        const bool reduced = op->all || d == dim;
        cdp_rule *rule = cdp__dt_rule(r);
        rule->in[0] = cdp__dt_shard(d, 0);
        rule->out = reduced ? cdp__dt_sum_of(adding) : cdp__dt_shard(d - gone, 0);
        if (reduced && mean) rule->flags = CDP_RULE_WHOLE;
        if (reduced && !op->keep_dim)
            ++gone;
        else
            out->shape[out->ndim++] = reduced ? 1 : in->shape[d];
    }
    cdp__dt_mask_rule(r, 1, adding, adding);
    if (adds) cdp__dt_mask_rule(r, 1, CDP_REDUCE_AVG, CDP_REDUCE_AVG);
    return CDP_OK;
}

CDP__DT void cdp__dt_shape_of(cdp_layout *out, const cdp_layout *in) {
    out->ndim = in->ndim;
    memcpy(out->shape, in->shape, sizeof out->shape);
}

CDP__DT cdp_status cdp__dt_softmax_rules(
    const cdp_op *op, const cdp_layout *in, uint32_t in_count, cdp__dt_rules *r, cdp_layout *out) {
    uint32_t dim;
    (void)in_count;
    const cdp_status st = cdp__dt_op_dim("softmax", op->dim, in->ndim, &dim);
    if (st != CDP_OK) return st;
    cdp__dt_shape_of(out, in);
    for (uint32_t d = 0; d < in->ndim; ++d) {
        if (d == dim) continue;
        cdp_rule *rule = cdp__dt_rule(r);
        rule->in[0] = rule->out = cdp__dt_shard(d, 0);
    }
    return CDP_OK;
}

/* Weight and bias have the trailing dimensions, and are the same for all rows. */
CDP__DT cdp_status cdp__dt_norm_rules(
    const cdp_op *op, const cdp_layout *in, uint32_t in_count, cdp__dt_rules *r, cdp_layout *out) {
    uint32_t dim;
    const cdp_status st = cdp__dt_op_dim("norm", op->dim, in->ndim, &dim);
    if (st != CDP_OK) return st;
    for (uint32_t k = 1; k < in_count; ++k)
        if (in[k].ndim != in->ndim - dim
            || memcmp(in[k].shape, in->shape + dim, in[k].ndim * sizeof in->shape[0]) != 0)
            return cdp__dt_op_wrong("norm", "it must have the shape of the last dims of x", k);
    cdp__dt_shape_of(out, in);
    for (uint32_t d = 0; d < dim; ++d) {
        cdp_rule *rule = cdp__dt_rule(r);
        rule->in[0] = rule->out = cdp__dt_shard(d, 0);
    }
    return CDP_OK;
}

#endif /* CDP_NO_TENSOR_OPS */

#endif /* CDP_SRC_DTENSOR_OPERATORS_H */
