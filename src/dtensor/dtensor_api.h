/* dtensor/dtensor_api.h - a layout and a pointer */
#ifndef CDP_SRC_DTENSOR_DTENSOR_API_H
#define CDP_SRC_DTENSOR_DTENSOR_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../group/collectives_api.h"
#include "../ddp/norm_api.h"
#include "mesh_api.h"
#include "layout_api.h"

typedef struct cdp_dtensor {
    cdp_layout layout;
    void *data; /* this rank's box, contiguous and row-major; may be NULL if that is empty */
    bool owned; /* cdp_dtensor_free() frees `data` */
} cdp_dtensor;

/* Make a tensor. Local. data NULL: memory of cdp_group_alloc(), not cleared; else it stays the
   caller's and must outlive the tensor. Errors: those of cdp_layout_check(), NOMEM. */
CDP_MUST_CHECK CDP_API cdp_status cdp_dtensor_create(
    const cdp_layout *layout, void *data, cdp_dtensor *out);
/* NULL is allowed. After its mesh was destroyed: sets the last error (STATE), and frees nothing. */
CDP_API void cdp_dtensor_free(cdp_dtensor *tensor);

/* Complete a layout whose pieces have any size: layout->place, dtype and ndim are set,
   local_shape is the shape of this rank's piece. Gathers the shapes; sets layout->shape, and cuts
   where pieces do not follow the chunk rule; equal cuts are one. The mesh keeps the last
   CDP_MESH_CUTS such cuts of each of its dimensions; of one with more than 127 ranks as many as
   take 4 MiB, but at least 64. If there are more, the one is replaced that was longest not used: by
   this call, or by a layout in cdp_redistribute(), cdp_distribute() or cdp_dtensor_full(). Layouts
   with it are STATE from then on; plans and edges that exist go on. To keep a cut, give its sizes
   to cdp_mesh_cut(). Collective. Errors: INVALID, UNSUPPORTED (pieces that do not follow the chunk
   rule where several mesh dimensions shard one tensor dimension), MISMATCH (pieces that do not fit
   together; names the dimension and two ranks; the group stays usable), NOMEM, or the failure of
   the group. */
CDP_MUST_CHECK CDP_API cdp_status cdp_layout_from_local(
    cdp_mesh *mesh, cdp_layout *layout, const uint64_t *local_shape);

/* Compare layouts over all ranks of the mesh, and replicas bit by bit. repair: copy the replica
   at coordinate 0 over the others instead of failing. Collective. Errors: MISMATCH (names the
   first element and two ranks; the group stays usable), NOMEM, STATE (on paper), or the group's
   failure. */
CDP_MUST_CHECK CDP_API cdp_status cdp_dtensor_check(cdp_dtensor *tensor, bool repair);

#if !defined(CDP_NO_DDP) && !defined(CDP_NO_CLIP)
/* Set *out to this rank's part of a gradient, for cdp_grads_norm() and cdp_grads_scale(): its box
   counts on the rank at coordinate 0 of the mesh dimensions that replicate the tensor, and is a
   copy on others. If ranks outside the mesh hold copies, too, set out->copy there. Local; also for
   a mesh on paper. *out points to the tensor's data. Errors: those of cdp_layout_check(), INVALID
   (a PARTIAL placement, whose sum must be computed first). */
CDP_MUST_CHECK CDP_API cdp_status cdp_norm_item_of(const cdp_dtensor *gradient, cdp_norm_item *out);
#endif

typedef enum cdp_fill_kind {
    CDP_FILL_ZERO = 0,
    CDP_FILL_VALUE,   /* a */
    CDP_FILL_UNIFORM, /* random in [a, b), in every dtype (default b: 1 where both are 0) */
    CDP_FILL_NORMAL,  /* random with mean a and deviation b (default b: 1) */
    CDP_FILL_RAMP,    /* a + b * index in the whole tensor, row-major */
    CDP_FILL_MASK     /* 1 with probability a, else 0 */
} cdp_fill_kind;

typedef struct cdp_fill {
    cdp_fill_kind kind;
    double a, b;
    uint64_t seed, stream; /* use another stream for each tensor and each step */
} cdp_fill;

/* Fill a tensor with values that depend on seed, stream and the index in the whole tensor alone:
   the same bits for every mesh and layout, and on one rank. Local. PARTIAL: coordinate 0 gets the
   values, others the operation's identity (AVG: all get the values). Random numbers:
   Philox4x32-10. Errors: UNSUPPORTED (random kinds need floats), INVALID (no number of the dtype
   is in [a, b); a probability that is none). */
CDP_MUST_CHECK CDP_API cdp_status cdp_dtensor_fill(cdp_dtensor *tensor, const cdp_fill *fill);

/* Cut up a whole tensor. `full` counts on rank `source` of the mesh's group alone; with CDP_EACH
   every rank has it and nothing is sent. Collective unless CDP_EACH. Errors: UNSUPPORTED
   (PARTIAL), INVALID, and those of cdp_plan_run(). */
CDP_MUST_CHECK CDP_API cdp_status cdp_distribute(
    cdp_dtensor *tensor, const void *full, uint32_t source);

/* Collect the whole tensor, row-major, at rank `root` of the mesh's group, or everywhere with
   CDP_EACH; reduces PARTIAL. `full` may be NULL elsewhere. Collective. Errors: those of
   cdp_plan_run(). */
CDP_MUST_CHECK CDP_API cdp_status cdp_dtensor_full(
    const cdp_dtensor *tensor, void *full, uint32_t root);

/* Copy a tensor into one with another layout. The mesh of `from` keeps the last 64 plans.
   Collective. Errors: those of cdp_plan_create() and cdp_plan_run(). */
CDP_MUST_CHECK CDP_API cdp_status cdp_redistribute(const cdp_dtensor *from, cdp_dtensor *to);
CDP_MUST_CHECK CDP_API cdp_status cdp_redistribute_async(
    const cdp_dtensor *from, cdp_dtensor *to, cdp_work *work);

#endif /* CDP_SRC_DTENSOR_DTENSOR_API_H */
