/* dtensor/edge_api.h - a plan and the plan of its gradient */
#ifndef CDP_SRC_DTENSOR_EDGE_API_H
#define CDP_SRC_DTENSOR_EDGE_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../group/collectives_api.h"
#include "mesh_api.h"
#include "layout_api.h"
#include "plan_api.h"

typedef struct cdp_edge cdp_edge;

typedef struct cdp_edge_desc {
    cdp_layout from, to;
    /* How the gradient of `to` arrives, and how that of `from` is wanted (default, with mesh
       NULL: as `to` and as `from`, PARTIAL made replicated). */
    cdp_layout grad_in, grad_out;
    cdp_dtype wire, grad_wire; /* floats travel as this dtype (default: as they are) */
    cdp_net net;
} cdp_edge_desc;

/* Make an edge: `from` to `to` forward, `grad_in` to `grad_out` backward. Both directions are the
   identity on the whole tensor. The gradient of each contribution to a sum is the gradient of the
   sum; to a mean (AVG) it is that divided by the number of contributions. Local. Errors: those of
   cdp_plan_create(); UNSUPPORTED (PARTIAL of min, max or product, which have no linear gradient;
   a wire dtype for tensors that are no floats). */
CDP_MUST_CHECK CDP_API cdp_status cdp_edge_create(const cdp_edge_desc *desc, cdp_edge **out);
/* Local; NULL is allowed. A second call does nothing but set cdp_last_error() (STATE). */
CDP_API void cdp_edge_destroy(cdp_edge *edge);

/* Run one direction: as cdp_plan_run(), with the same errors. */
CDP_MUST_CHECK CDP_API cdp_status cdp_edge_forward(cdp_edge *edge, const void *x, void *y);
CDP_MUST_CHECK CDP_API cdp_status cdp_edge_backward(
    cdp_edge *edge, const void *grad_y, void *grad_x);
CDP_MUST_CHECK CDP_API cdp_status cdp_edge_forward_async(
    cdp_edge *edge, const void *x, void *y, cdp_work *work);
CDP_MUST_CHECK CDP_API cdp_status cdp_edge_backward_async(
    cdp_edge *edge, const void *grad_y, void *grad_x, cdp_work *work);

/* Forward, calling piece(user, box) in this thread for each box of the whole tensor as soon as it
   is complete in y, this rank's own one first. The boxes are disjoint and together are all of y.
   Where the source is PARTIAL, or with a wire dtype, there is one box. An error of piece() ends
   the calls and is returned after the transfer. */
CDP_MUST_CHECK CDP_API cdp_status cdp_edge_forward_pieces(cdp_edge *edge, const void *x, void *y,
    cdp_status (*piece)(void *user, const cdp_box *box), void *user);

/* What a direction costs. */
CDP_API cdp_plan_info cdp_edge_info(const cdp_edge *edge, bool backward);
/* The desc with its defaults filled in. */
CDP_API const cdp_edge_desc *cdp_edge_desc_of(const cdp_edge *edge);

#endif /* CDP_SRC_DTENSOR_EDGE_API_H */
