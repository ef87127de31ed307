/* dtensor/mesh_api.h - ranks as an n-dimensional array */
#ifndef CDP_SRC_DTENSOR_MESH_API_H
#define CDP_SRC_DTENSOR_MESH_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../group/group_api.h"

#define CDP_MESH_DIMS 6u       /* most dimensions of a mesh */
#define CDP_TENSOR_DIMS 8u     /* most dimensions of a tensor */
#define CDP_MESH_CUTS 4096u    /* most cuts of cdp_layout_from_local() in one dimension of a mesh */
#define CDP_NO_DIM 0xffffffffu /* no such dimension; or, where a function says so, all of them */
#define CDP_EACH 0xffffffffu   /* in place of a rank: every rank */

/* An n-dimensional array of ranks. Each position along a dimension has a group of its own. */
typedef struct cdp_mesh cdp_mesh;

typedef struct cdp_mesh_desc {
    cdp_group *group;     /* the ranks' group; it must outlive the mesh (NULL: a mesh on paper) */
    uint32_t paper_ranks; /* on paper: how many ranks there are */
    uint32_t paper_rank;  /* on paper: which of them this one is */
    uint32_t ndim;        /* (default: 1 dimension of all ranks) */
    uint32_t shape[CDP_MESH_DIMS]; /* one size may be 0: as many as fit into the number of ranks */
    /* Copied: letters, digits, '_' and '-' (default: "0", "1", ...). */
    const char *names[CDP_MESH_DIMS];
    /* Copied: ranks of the group, row-major, each at most once (default: 0, 1, ...). */
    const uint32_t *ranks;
    uint32_t host_ranks; /* so many consecutive ranks share a host; a hint (default: all) */
    bool no_check;       /* do not compare meshes: the first run of each plan still does */
} cdp_mesh_desc;

/* Make a mesh and the groups of all its dimensions. Collective over desc->group, also for ranks
   that are left out: they get a mesh in which they have no coordinate, and every collective call
   on it returns at once. Errors: INVALID (the text names the member to change), NOMEM, MISMATCH
   (ranks gave different meshes; the text names the first difference and both ranks; the group
   stays usable), or the group's failure. */
CDP_MUST_CHECK CDP_API cdp_status cdp_mesh_create(const cdp_mesh_desc *desc, cdp_mesh **out);

/* The same with one existing group per dimension in groups[0..ndim-1]. They must hold this rank's
   row of the mesh along that dimension, in its order, and outlive the mesh. Plans do not run their
   collectives there (see cdp_plan_info.collective), but as messages. Additional error:
   INVALID (a group has other ranks than the mesh says). */
CDP_MUST_CHECK CDP_API cdp_status cdp_mesh_from_groups(
    const cdp_mesh_desc *desc, cdp_group *const *groups, cdp_mesh **out);

/* Destroy a mesh, its plans, and groups that no other mesh uses. Meshes made from it stay valid.
   Tensors, plans, edges and layers of the mesh must be gone: otherwise the memory that they have of
   its groups is lost. A second call does nothing but set cdp_last_error() (STATE), getters answer
   as for NULL, and other calls return STATE, as long as no other object has its memory; the last
   few hundred handles are known. Local. NULL is allowed. */
CDP_API void cdp_mesh_destroy(cdp_mesh *mesh);

/* Free the plans that cdp_redistribute(), cdp_distribute() and cdp_dtensor_full() keep for layouts
   of this mesh, and the memory that no plan runs in just now. Plans in flight end first. Local;
   all ranks must call it between the same runs. NULL is allowed. */
CDP_API void cdp_mesh_drop_plans(cdp_mesh *mesh);

/* Make meshes from a mesh, without a message; all its ranks must make the same calls. Each result
   has to be destroyed. `names` lists dimensions, such as "dp,tp", in any order.
   sub: the part with these dimensions, in this order, that holds this rank.
   flatten: one dimension `name` over all of `names`, the last one varying fastest.
   unflatten: dimension `name` becomes `ndim` dimensions with these shape and names.
   join: a mesh with the dimensions of `outer`, then those of `inner`; both are parts of one mesh.
   Errors: INVALID (an unknown or repeated name, sizes that do not fit), NOMEM. */
CDP_MUST_CHECK CDP_API cdp_status cdp_mesh_sub(cdp_mesh *mesh, const char *names, cdp_mesh **out);
CDP_MUST_CHECK CDP_API cdp_status cdp_mesh_flatten(
    cdp_mesh *mesh, const char *names, const char *name, cdp_mesh **out);
CDP_MUST_CHECK CDP_API cdp_status cdp_mesh_unflatten(cdp_mesh *mesh, const char *name,
    uint32_t ndim, const uint32_t *shape, const char *const *names, cdp_mesh **out);
CDP_MUST_CHECK CDP_API cdp_status cdp_mesh_join(cdp_mesh *outer, cdp_mesh *inner, cdp_mesh **out);

/* The index of the dimension called `name`, or CDP_NO_DIM. */
CDP_API uint32_t cdp_mesh_dim(const cdp_mesh *mesh, const char *name);

/* Ranks along dimension `dim`; CDP_NO_DIM: all ranks of the mesh. 0 if there is no such
   dimension. */
CDP_API uint32_t cdp_mesh_size(const cdp_mesh *mesh, uint32_t dim);

/* This rank's coordinate along `dim`; CDP_NO_DIM: its row-major position in the whole mesh.
   Returns CDP_NO_DIM if this rank is not in the mesh. */
CDP_API uint32_t cdp_mesh_coord(const cdp_mesh *mesh, uint32_t dim);

/* The rank, in desc.group, at coord[0..ndim-1]; CDP_NO_DIM if a coordinate is out of range. */
CDP_API uint32_t cdp_mesh_rank_at(const cdp_mesh *mesh, const uint32_t *coord);

/* The group of this rank's row along `dim`, in the order of coordinates; CDP_NO_DIM: of all ranks
   of the mesh, row-major. The mesh owns it; plans use the group of all ranks. NULL on paper,
   outside the mesh, and for no such dimension. */
CDP_API cdp_group *cdp_mesh_group(const cdp_mesh *mesh, uint32_t dim);

/* The desc with its defaults filled in; names and ranks point into the mesh. */
CDP_API const cdp_mesh_desc *cdp_mesh_desc_of(const cdp_mesh *mesh);

/* Register a cut of one's own along mesh dimension `dim`: sizes[i] elements for coordinate i.
   *cut is a number for cdp_place.cut, valid on this mesh alone until it ends; equal sizes get the
   same number. A cut that cdp_layout_from_local() made is kept then, too. Local; all ranks must
   make the same calls. Errors: INVALID (no such dimension, sizes of more than 63 bits), NOMEM. */
CDP_MUST_CHECK CDP_API cdp_status cdp_mesh_cut(
    cdp_mesh *mesh, uint32_t dim, const uint64_t *sizes, uint32_t *cut);

/* What messages cost. A member that is 0 gets a default: 3 and 30 us, 4000 and 1000 bytes/us,
   8000 and 4000 bytes/us. "far": between ranks of different hosts, see cdp_mesh_desc.host_ranks.
   */
typedef struct cdp_net {
    double latency_us, far_latency_us;
    double bytes_per_us, far_bytes_per_us;
    double copy_bytes_per_us, reduce_bytes_per_us;
} cdp_net;

/* Measure it on this mesh: collective, about 50 ms, the same numbers on all ranks. Near values
   are those of neighbours, far ones those of ranks host_ranks apart (not set: of neighbours).
   Errors: STATE (on paper), NOMEM, the group's failure. */
CDP_MUST_CHECK CDP_API cdp_status cdp_mesh_measure(cdp_mesh *mesh, cdp_net *out);

#endif /* CDP_SRC_DTENSOR_MESH_API_H */
