/* dtensor/rules_api.h - which placements an operator accepts */
#ifndef CDP_SRC_DTENSOR_RULES_API_H
#define CDP_SRC_DTENSOR_RULES_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "mesh_api.h"
#include "layout_api.h"

#ifndef CDP_NO_TENSOR_OPS

typedef enum cdp_op_kind {
    CDP_OP_EINSUM = 0,    /* sums of products: matrix products, transposes, linear layers */
    CDP_OP_POINTWISE,     /* element by element, with broadcasting as in NumPy; see `linear` */
    CDP_OP_REDUCE,        /* over one dimension, or all */
    CDP_OP_SOFTMAX,       /* over one dimension */
    CDP_OP_NORM,          /* inputs: x, weight, bias (both may be left out); over dims dim.. */
    CDP_OP_EMBEDDING,     /* inputs: table [rows, width], ids [any shape] */
    CDP_OP_CROSS_ENTROPY, /* inputs: logits [.., classes], targets [..]; one loss per row */
    CDP_OP_ATTENTION,     /* inputs: q [B, H, T, D], k, v [B, G, S, D]; H a multiple of G */
    CDP_OP_VIEW,          /* the same elements in another shape */
    CDP_OP_CUSTOM         /* the rules are the program's */
} cdp_op_kind;

/* How a pointwise function treats PARTIAL inputs. */
typedef enum cdp_linear {
    CDP_LINEAR_NO = 0,   /* they must be reduced first */
    CDP_LINEAR_ADD,      /* x + y, x - y */
    CDP_LINEAR_SCALE,    /* of one input: times a number, negated, cast */
    CDP_LINEAR_PRODUCT,  /* x * y */
    CDP_LINEAR_QUOTIENT, /* x / y */
    CDP_LINEAR_RISING,   /* of one input, never decreasing: exp, tanh, relu, floor */
    CDP_LINEAR_FALLING,  /* of one input, never increasing */
    CDP_LINEAR_MAX,      /* max(x, y) */
    CDP_LINEAR_MIN       /* min(x, y) */
} cdp_linear;

#define CDP_OP_INPUTS 4u    /* most inputs of an operator */
#define CDP_RULE_MASK 1u    /* ids outside this rank's rows of the table give rows of zeros */
#define CDP_RULE_ONCE 2u    /* add the operand behind '+' once: after the reduction */
#define CDP_RULE_WHOLE 4u   /* a mean: divide the local sum by the size of the whole dimension */
#define CDP_RULE_SHARED 8u  /* ranks combine row maxima and sums; see cdp_cross_entropy() */
#define CDP_RULE_OFFSET 16u /* heads or queries are counted from the start of the local box */

/* Placements, in one dimension of a mesh, under which applying the operator to the local pieces
   gives the local pieces of the result. `block` of all placements of a rule may be multiplied by a
   common factor. Dimensions of a mesh that shard one dimension of a tensor must follow one rule.
   Where a piece is empty, a reduction over it gives the operation's identity. */
typedef struct cdp_rule {
    cdp_place in[CDP_OP_INPUTS], out;
    uint32_t flags; /* CDP_RULE_..., what the local kernel must mind */
} cdp_rule;

typedef struct cdp_op {
    cdp_op_kind kind;
    /* EINSUM: a letter per dimension, "mk,kn->mn"; each at most once per operand. The operand
       behind '+' is added to the product: "btc,oc+o->bto". */
    const char *text;
    cdp_linear linear;    /* POINTWISE */
    int32_t dim;          /* REDUCE, SOFTMAX: over which; NORM: from which on; may be negative */
    bool all, keep_dim;   /* REDUCE: over all dimensions; reduced dimensions stay, of size 1 */
    cdp_reduce_op reduce; /* REDUCE (default: SUM; AVG: the mean) */
    uint32_t ndim;        /* VIEW, CUSTOM: of the result */
    uint64_t shape[CDP_TENSOR_DIMS];
    const cdp_rule *rules; /* CUSTOM, or in place of the built-in ones */
    uint32_t rule_count;
} cdp_op;

/* How inputs must lie, and how the result then lies. */
typedef struct cdp_op_choice {
    cdp_layout in[CDP_OP_INPUTS], out;
    uint32_t flags[CDP_MESH_DIMS]; /* of the rule that each mesh dimension follows */
    uint64_t bytes;                /* all ranks receive to redistribute inputs and result */
    double predicted_us;
} cdp_op_choice;

/* All rules for inputs of these shapes, into out[0..max-1]; *count: how many there are. The first
   one replicates everything. Of `in`, mesh, dtype and shape count. Local. Errors: INVALID (a
   sentence says which input does not fit the operator). */
CDP_MUST_CHECK CDP_API cdp_status cdp_op_rules(const cdp_op *op, const cdp_layout *in,
    uint32_t in_count, cdp_rule *out, uint32_t max, uint32_t *count);

/* The cheapest choice for inputs that lie as `have` on one mesh, if the result is to lie as
   `want` (NULL: anyhow): the fewest bytes; of equal ones the shortest predicted time, then the
   first rule. Every combination of rules over the mesh dimensions is tried where there are at most
   4096; else one dimension after the other is improved until nothing gets cheaper. Local, also
   on paper. Errors: INVALID, UNSUPPORTED (no rule leads to `want`), NOMEM. */
CDP_MUST_CHECK CDP_API cdp_status cdp_op_choose(const cdp_op *op, const cdp_layout *have,
    uint32_t in_count, const cdp_layout *want, const cdp_net *net, cdp_op_choice *out);

#endif /* CDP_NO_TENSOR_OPS */

#endif /* CDP_SRC_DTENSOR_RULES_API_H */
