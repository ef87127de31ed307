/* dtensor/tensor_parallel_api.h - layers and losses whose parameters are cut */
#ifndef CDP_SRC_DTENSOR_TENSOR_PARALLEL_API_H
#define CDP_SRC_DTENSOR_TENSOR_PARALLEL_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "mesh_api.h"
#include "layout_api.h"
#include "edge_api.h"

#ifndef CDP_NO_TENSOR_OPS

/* How a layer y = x w^T + bias, or a table of rows, is divided over the ranks of a mesh.

       style      weight [out, in]   table [rows, width]   x             y
       COLUMN     S0, bias S0        S1                    R  (ids R)    S1
       ROW        S1, bias R         S0                    S1 (ids R)    R, a sum of all ranks
       SEQUENCE   R,  bias R         R                     S0            S0

   `input` and `output` say how x arrives and y leaves; messages are sent only where these differ
   from the table. COLUMN then ROW: one allreduce forward, one backward. With input S0 of the
   column layer and output S0 of the row layer (sequence parallel), each allreduce becomes an
   allgather and a reduce_scatter of the same bytes, and what lies between holds 1/n of the rows.
   Column layers of one x (q, k, v; gate, up) need that once for all of them: see x_of below. */
typedef enum cdp_tp_style {
    CDP_TP_COLUMN = 0, /* each rank computes some of the results */
    CDP_TP_ROW,        /* each rank has some of the inputs; results are summed */
    CDP_TP_SEQUENCE    /* each rank has some of the rows; gradients of parameters are summed */
} cdp_tp_style;

/* c[m, n] = a b, or c + a b if `add`. a is [m, k], or [k, m] and is transposed if ta; b is [k, n],
   or [n, k] if tb. All are contiguous and row-major. gemm NULL: plain loops, for f32, f64, i32 and
   i64. An error that it returns is returned by the call. */
typedef struct cdp_blas {
    cdp_status (*gemm)(void *user, cdp_dtype dtype, bool ta, bool tb, uint64_t m, uint64_t n,
        uint64_t k, const void *a, const void *b, bool add, void *c);
    void *user;
} cdp_blas;

typedef struct cdp_tp cdp_tp;

typedef struct cdp_tp_desc {
    cdp_mesh *mesh; /* of one dimension; cdp_mesh_sub() takes it from a larger mesh */
    cdp_tp_style style;
    bool embedding; /* a table of in_features rows of width out_features, looked up by i32 ids */
    uint64_t rows;  /* of x and y: batch times sequence */
    uint64_t in_features, out_features;
    uint64_t head; /* cut features only at multiples of this (default: 1) */
    /* copied (default: as in the table above). An input may be PARTIAL (sum or avg): each rank has
       a contribution. Then grad_x is whole: the gradient of one contribution */
    const cdp_place *input, *output;
    cdp_dtype dtype;   /* of everything but ids (default: f32) */
    cdp_dtype wire;    /* floats travel as this dtype (default: as they are) */
    bool gather_again; /* backward gathers x anew; else it uses what the last forward gathered */
    bool no_grad_x;    /* x needs no gradient: that of a first layer is not computed */
    /* COLUMN whose x is replicated: grad_x is what this rank adds to the gradient, not the sum over
       the ranks: for an x that other computations share, too. Add what each of them adds, then
       call the backward of the edge that made x, whose grad_in is PARTIAL */
    bool grad_x_partial;
    /* COLUMN: the layer whose x this one has, too: q for k and v, gate for up (default: none). x is
       gathered once for all of them, and one sum of their gradients is sent. Forward of x_of is
       called before that of the others, with the same x. Then each of the others runs backward
       exactly once, and x_of after all of them: it alone writes grad_x. Where one of these calls
       has failed, begin again with the forward of x_of. All members above are equal in these
       layers, except out_features, head and output. x_of is destroyed last */
    cdp_tp *x_of;
    cdp_blas blas;
} cdp_tp_desc;

/* What each array of a layer looks like. `used` and `made`: x and y around the product. */
typedef struct cdp_tp_layouts {
    cdp_layout x, used, made, y, weight, bias;
} cdp_tp_layouts;

/* Make a layer; it holds no parameters. Local. Memory: x and y as the product needs them, and
   their gradients, where they differ from what the program passes. Errors: INVALID (a sentence
   names the member), UNSUPPORTED (a dtype without gemm), NOMEM. */
CDP_MUST_CHECK CDP_API cdp_status cdp_tp_create(const cdp_tp_desc *desc, cdp_tp **out);
/* Local; NULL is allowed. A second call does nothing but set cdp_last_error() (STATE). */
CDP_API void cdp_tp_destroy(cdp_tp *tp);
CDP_API const cdp_tp_layouts *cdp_tp_layouts_of(const cdp_tp *tp);

/* The edge before or behind the product: what it costs, its layouts. The one before belongs to all
   layers that share x. */
CDP_API cdp_edge *cdp_tp_edge(const cdp_tp *tp, bool behind);

/* y = x w^T + bias, of local arrays that lie as cdp_tp_layouts_of() says; for tables x holds ids,
   and bias is not used. bias may be NULL. Where y is a sum, the bias is added once, after it.
   Collective. Errors: INVALID (an array is NULL; an id is not in the table: the row is 0 then; x
   is not that of x_of), STATE (x_of ran no forward, or was destroyed), those of cdp_plan_run() and
   of gemm. */
CDP_MUST_CHECK CDP_API cdp_status cdp_tp_forward(
    cdp_tp *tp, const void *x, const void *w, const void *bias, void *y);

/* The gradients of the last forward. grad_x is written, unless no_grad_x or x_of is set; grad_w
   and grad_bias are added to, and may be NULL on all ranks alike. x and w as in forward.
   Collective. Errors: as forward; STATE (layers that share x were called in another order, or
   again after a failure). */
CDP_MUST_CHECK CDP_API cdp_status cdp_tp_backward(cdp_tp *tp, const void *x, const void *w,
    const void *grad_y, void *grad_x, void *grad_w, void *grad_bias);

/* Losses of logits [rows, classes] that lie on a mesh of one dimension, replicated or cut along
   the classes (S1), and their gradient: losses[i] = log(sum over j of exp(x[i,j])) - x[i,target];
   grad (NULL: not wanted; may be `piece`, which a failure then leaves changed) =
   scale (softmax(x) - 1 at the target). Targets are the same on all ranks; rows with a negative one
   count as 0, with no gradient. One allgather of three numbers per row, combined in the order of
   ranks in f64: all ranks get equal losses. Exponentials have the dtype of the logits, f32 or f64,
   and so have losses. Allocates while it runs. Collective. Errors: INVALID (a target is not below
   `classes`: names the row), UNSUPPORTED, NOMEM, the group's failure. */
CDP_MUST_CHECK CDP_API cdp_status cdp_cross_entropy(const cdp_layout *logits, const void *piece,
    const int32_t *targets, void *losses, void *grad, double scale);

/* The loops of it in a kernel of your own. For each row i of x [rows, classes] of this rank:
   most[i] = the largest x[i,j], a NaN if one is; sum[i] = the sum of exp(x[i,j] - most[i]);
   e[i,j] = these exponentials (e NULL: not wanted; may be x). If all are -infinity: sum and
   exponentials 0. An error that it returns is returned by the call, after the allgather. */
typedef struct cdp_loss_kernel {
    cdp_status (*exponentials)(void *user, cdp_dtype dtype, uint64_t rows, uint64_t classes,
        const void *x, void *e, double *most, double *sum);
    void *user;
} cdp_loss_kernel;

/* The same with a kernel; NULL, or a member that is NULL: plain loops. Collective. */
CDP_MUST_CHECK CDP_API cdp_status cdp_cross_entropy_with(const cdp_layout *logits,
    const void *piece, const int32_t *targets, void *losses, void *grad, double scale,
    const cdp_loss_kernel *kernel);

#endif /* CDP_NO_TENSOR_OPS */

#endif /* CDP_SRC_DTENSOR_TENSOR_PARALLEL_API_H */
