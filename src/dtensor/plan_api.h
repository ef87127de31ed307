/* dtensor/plan_api.h - moves a tensor from one layout to another */
#ifndef CDP_SRC_DTENSOR_PLAN_API_H
#define CDP_SRC_DTENSOR_PLAN_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../group/collectives_api.h"
#include "mesh_api.h"
#include "layout_api.h"

typedef enum cdp_plan_kind {
    /* the lowest predicted time of DIRECT and BY_DIM, equal: DIRECT; COLLECTIVES, where that is
       predicted to take less than four fifths of it */
    CDP_PLAN_BEST = 0,
    CDP_PLAN_DIRECT, /* the fewest bytes: reduce at owners, then one exchange */
    CDP_PLAN_BY_DIM, /* a step per mesh dimension; equal neighbouring steps are merged */
    CDP_PLAN_TORCH,  /* the steps that PyTorch's greedy planner makes, for comparison */
    /* sums as collectives of mesh dimensions, then the moves that are left; without a sum, or
       between two meshes: DIRECT */
    CDP_PLAN_COLLECTIVES
} cdp_plan_kind;

typedef struct cdp_plan cdp_plan;

typedef struct cdp_plan_desc {
    /* The same shape and dtype; meshes of one group, which may differ. `to` may have PARTIAL only
       where `from` has it, or SUM where `from` has SHARD. */
    cdp_layout from, to;
    cdp_plan_kind kind;
    cdp_net net;   /* for the prediction (default: see cdp_net); the same on all ranks */
    bool to_one;   /* only rank `root` of the mesh's group receives; `to` must be replicated */
    bool from_one; /* only rank `root` has the tensor; `from` must be replicated */
    uint32_t root; /* a rank of cdp_mesh_desc.group */
} cdp_plan_desc;

/* Bytes are those that ranks receive from other ranks. If `collective` is set, bytes and messages
   are those of its algorithms for large messages. The group may choose another one for small
   messages, which takes fewer rounds and more bytes. */
typedef struct cdp_plan_info {
    uint32_t steps;                  /* phases with communication, on any rank */
    uint32_t messages;               /* that this rank sends */
    uint64_t recv_bytes, send_bytes; /* of this rank */
    /* of the busiest rank; an average where a PARTIAL source is cut and (ranks) x (pieces of the
       target) are more than 2^18 */
    uint64_t most_recv_bytes;
    uint64_t total_bytes;  /* of all ranks */
    uint64_t bound_bytes;  /* the least possible for this pair of layouts */
    uint64_t torch_bytes;  /* of PyTorch's steps, with their padding, for all ranks */
    uint64_t copied_bytes; /* that this rank packs, unpacks or copies */
    /* of this rank, while it runs; plans share that memory. The first asynchronous run of a plan
       makes it more where contributions to sums arrive in windows; `messages` is less then */
    uint64_t scratch_bytes;
    double predicted_us;
    /* ALLREDUCE, ALLGATHER or REDUCE_SCATTER: a run is one call of that collective, by the group of
       the mesh or of one of its dimensions. NONE: a run is messages. */
    cdp_coll_kind collective;
    /* of collectives by this rank, along dimensions of the mesh, where a run is several, or some
       and messages; 0: it is messages, or the one of `collective` */
    uint32_t calls;
} cdp_plan_info;

/* Make a plan. Local, without a message; it works on paper, too. Both layouts are copied.
   Every element is reduced once, at one rank, in the order of coordinates, and then copied:
   replicas get equal bits, and so does every run. AVG divides once, after summing.
   A plan that is one collective runs as that one: from PARTIAL to replicated or to equal pieces,
   contiguous in what was summed, and from such pieces to replicated; of all dimensions of the mesh,
   or of one, in its group. Along one dimension, a sum over three or more ranks that another
   dimension replicates is none: there messages take fewer bytes.
   Other sums can be several collectives (COLLECTIVES; see `calls`), each in the group of one
   dimension: each replica sums a slice, and gathers the others. The sum then lies as the source
   did, and moves from there to the target by collectives or messages. Sums that end where they
   begin, such as P,R to R,R, take the least bytes, and their time grows with the logarithm of the
   ranks. Messages remain in the move; and in sums of which a rank needs only a piece, such as P,R
   to S0,R, because whole sums would take more bytes: then up to one to each rank of a dimension.
   A plan without a sum that is no collective sends up to one message to each rank in each step:
   compare `messages` and `predicted_us` of kinds before running it on thousands of ranks.
   Replicas and runs get equal bits then, too, but the order of operands, and the dtype in which
   means are computed, are those of cdp_allreduce() and cdp_reduce_scatter(); see
   cdp_group_desc.reproducible.
   Errors: INVALID (layouts, shapes, dtypes or ranks that do not fit), UNSUPPORTED (a target
   PARTIAL that the source does not have), NOMEM. */
CDP_MUST_CHECK CDP_API cdp_status cdp_plan_create(const cdp_plan_desc *desc, cdp_plan **out);
/* Local; NULL is allowed. A second call does nothing but set cdp_last_error() (STATE). */
CDP_API void cdp_plan_destroy(cdp_plan *plan);

/* Run it: collective over the mesh; if the meshes of `from` and `to` have different ranks, over
   all ranks of their group. `in` and `out` are this rank's local arrays (NULL where it holds
   nothing) and do not overlap. One run of a plan at a time. The first run compares the plans of
   the ranks, their meshes included, whatever cdp_mesh_desc.no_check says; layouts that mean the
   same are equal. It waits for all of these ranks, and takes some small messages (24 or 32 bytes,
   in log2 (ranks) rounds) in the group of the mesh and in that of each dimension; later runs take
   none. Errors: INVALID (overlapping or missing memory), UNSUPPORTED (device memory), STATE (on
   paper; still running), MISMATCH (ranks run different plans; the text names the first difference;
   the group stays usable if it was the first run of all of them, and so do the groups of dimensions
   if the meshes are the same; where a plan was compared before, the text names the ranks and what
   they call), or the group's failure. Where a run is several calls, a failure of one breaks the
   groups of all of them. A plan that is a collective of one dimension meets the ranks
   of that row alone: what other rows do is compared with the next first run. */
CDP_MUST_CHECK CDP_API cdp_status cdp_plan_run(cdp_plan *plan, const void *in, void *out);

/* The same; *work is done when `out` is complete and `in` may change. The first run waits for the
   other ranks at the call, to compare plans. Additional error: NOMEM. */
CDP_MUST_CHECK CDP_API cdp_status cdp_plan_run_async(
    cdp_plan *plan, const void *in, void *out, cdp_work *work);

/* What the plan costs; zeros for NULL. */
CDP_API cdp_plan_info cdp_plan_info_of(const cdp_plan *plan);

/* Draw the steps of all ranks: who sends whom how many bytes of which box, beside the bound and
   PyTorch's bytes. A plan that runs as a collective: what each rank receives, because the group
   chooses who sends. Writes at most `room` bytes, a zero at the end among them; `text` may be NULL.
   Returns the length of the whole text without the zero. */
CDP_API uint64_t cdp_plan_draw(
    const cdp_plan *plan, cdp_draw_format format, char *text, uint64_t room);

#endif /* CDP_SRC_DTENSOR_PLAN_API_H */
