/* SPDX-License-Identifier: MIT-0 OR Unlicense
   Both texts are at the end of cdp.h. */
/*  cdp_dtensor.h - distributed tensors for C: meshes, layouts, plans - v0.3.0 - MIT-0 or Unlicense

    WHAT IT IS
        A tensor that is cut over a mesh of ranks, as PyTorch's DTensor describes it, for programs
        that bring their own kernels. A mesh is an n-dimensional array of ranks. A layout says
        which part of a tensor each rank of a mesh holds. A plan moves a tensor from one layout to
        another with the least number of bytes, and can be printed before any rank exists. An edge
        is a plan together with the plan of its gradient. Rules say how the inputs of an operator
        may lie; layers, losses and attention cut over ranks are made of all these. Nothing is
        communicated implicitly.

    DO THIS
        #define CDP_IMPLEMENTATION      in exactly one C or C++ file, before
        #include "cdp_tcp.h"            or another way to connect ranks, and
        #include "cdp_dtensor.h"        which needs cdp.h alone

    QUICK START
        #define CDP_IMPLEMENTATION
        #include "cdp_tcp.h"
        #include "cdp_dtensor.h"
        #include <stdio.h>
        int main(void) {
            cdp_group *world;
            cdp_mesh *mesh;
            cdp_dtensor rows, columns;
            if (cdp_init_from_env(NULL, &world) != CDP_OK) return cdp_print_error(stderr);
            cdp_mesh_desc desc = { .group = world };          // one dimension of all ranks
            if (cdp_mesh_create(&desc, &mesh) != CDP_OK) return cdp_print_error(stderr);
            cdp_layout layout = { .mesh = mesh, .ndim = 2, .shape = { 6, 8 } };
            cdp_fill ramp = { .kind = CDP_FILL_RAMP, .b = 1 };   // element i of the tensor is i
            if (cdp_layout_parse(&layout, "S0") != CDP_OK) return cdp_print_error(stderr);
            if (cdp_dtensor_create(&layout, NULL, &rows) != CDP_OK) return cdp_print_error(stderr);
            if (cdp_layout_parse(&layout, "S1") != CDP_OK) return cdp_print_error(stderr);
            if (cdp_dtensor_create(&layout, NULL, &columns) != CDP_OK)
                return cdp_print_error(stderr);
            if (cdp_dtensor_fill(&rows, &ramp) != CDP_OK) return cdp_print_error(stderr);
            if (cdp_redistribute(&rows, &columns) != CDP_OK) return cdp_print_error(stderr);
            printf("rank %u: first element %g\n", cdp_rank(world), ((float *)columns.data)[0]);
            cdp_dtensor_free(&rows);
            cdp_dtensor_free(&columns);
            cdp_mesh_destroy(mesh);
            cdp_group_destroy(world);
            return 0;
        }
        gcc -O2 rows.c -o rows -pthread -lm        cdprun -n 4 ./rows

    CONTENTS
        Each part is marked >>folder/name and comes from src/folder/name.h. `grep '>>'` lists the
        parts in their order, which is that of the #include lines of src/cdp_dtensor.h. A part uses
        what comes before it, never what comes after it. Names in _api hold what programs call.

    API BY TASK
        I want to...                                       call
        arrange ranks as an n-dimensional array            cdp_mesh_create
        plan without ranks                                 cdp_mesh_desc.paper_ranks
        communicate along one dimension                    cdp_mesh_group
        use some dimensions of a mesh, or merge, cut them  cdp_mesh_sub, _flatten, _unflatten, _join
        say how a tensor is cut                            cdp_layout, cdp_layout_parse
        know which elements a rank holds                   cdp_layout_box
        see how a tensor lies on a mesh                    cdp_layout_draw
        describe pieces of any size                        cdp_layout_from_local, cdp_mesh_cut
        allocate a piece, fill it with random numbers      cdp_dtensor_create, cdp_dtensor_fill
        cut up a tensor that one rank has                  cdp_distribute
        collect the whole tensor                           cdp_dtensor_full
        change the layout                                  cdp_redistribute, or a plan of your own
        free the plans that it keeps                       cdp_mesh_drop_plans
        know what that will cost                           cdp_plan_create, cdp_plan_info_of
        see who sends whom                                 cdp_plan_draw
        find out whether replicas are equal, repair them   cdp_dtensor_check
        clip gradients that are cut over a mesh            cdp_norm_item_of, cdp_grads_norm,
                                                           cdp_grads_scale
        communicate with a gradient                        cdp_edge_create, _forward, _backward
        compute with pieces while others still travel      cdp_edge_forward_pieces
        ask how an operator's inputs may lie               cdp_op_rules
        find the cheapest way to apply it                  cdp_op_choose
        cut the parameters of a layer, or a table          cdp_tp_create, _forward, _backward
        gather x once for q, k, v, or gate and up          cdp_tp_desc.x_of
        get losses of logits that are cut by classes       cdp_cross_entropy
        the same, with a kernel of my own                  cdp_cross_entropy_with
        cut a sequence that attends to itself              cdp_cp_create, cdp_cp_attention
        the same, with a kernel of my own                  cdp_cp_desc.kernel
        pass blocks around with kernels of my own          cdp_cp_ring, cdp_cp_merge
        run a function on local pieces                     cdp_local_map
        see how much each part of a program communicates   cdp_count_begin, cdp_counts_draw

    COMING FROM PyTorch's DTensor
        init_device_mesh("cpu", (2, 4),               cdp_mesh_create, .ndim = 2,
            mesh_dim_names=("dp", "tp"))                  .shape = {2, 4}, .names = {"dp", "tp"}
        mesh["tp"], mesh["dp", "cp"]                  cdp_mesh_sub(mesh, "tp"), (mesh, "dp,cp")
        mesh["dp", "cp"]._flatten("dp_cp")            cdp_mesh_flatten(mesh, "dp,cp", "dp_cp")
        mesh.get_group("tp")                          cdp_mesh_group(mesh, the index of "tp")
        mesh.get_local_rank("tp"), get_coordinate()   cdp_mesh_coord
        DeviceMesh.from_group                         cdp_mesh_from_groups
        [Shard(0), Replicate(), Partial("max")]       cdp_layout_parse(&layout, "S0,R,P(max)")
        _StridedShard(0, split_factor=2), Shard(0)    "S0!1,S0": the second dimension cuts first
        DTensor.from_local(x, mesh, placements)       cdp_dtensor_create(&layout, x, &t); pieces
                                                          of other sizes: cdp_layout_from_local
        from_local(..., run_check=True)               cdp_dtensor_check
        t.to_local()                                  t.data
        t.full_tensor()                               cdp_dtensor_full(&t, memory, CDP_EACH)
        t.redistribute(placements=...)                cdp_redistribute, _async
        redistribute(forward_dtype, backward_dtype)   cdp_edge_desc.wire, .grad_wire
        grad_placements                               cdp_edge_desc.grad_in, .grad_out
        distribute_tensor(x, mesh, p,                 cdp_distribute(&t, x, 0);
            src_data_rank=0)                              None: CDP_EACH
        zeros, ones, full, rand, randn, linspace      cdp_dtensor_fill: random numbers depend on
                                                          neither the mesh nor the layout
        visualize_sharding                            cdp_layout_draw
        compute_local_shape_and_global_offset         cdp_layout_box
        operators on DTensors                         kernels of your own: cdp_op_choose says how
                                                          inputs must lie and how the result lies
        register_sharding(op)                         cdp_op.rules, .rule_count
        local_map(func, out, in)                      cdp_local_map
        ColwiseParallel(), RowwiseParallel()          cdp_tp_create, .style = CDP_TP_COLUMN, _ROW
        SequenceParallel()                            .style = CDP_TP_SEQUENCE
        (input_layouts=, output_layouts=)             cdp_tp_desc.input, .output
        PrepareModuleInput of attention, of an MLP    cdp_tp_desc.x_of = the first of its layers
        PrepareModuleInput, PrepareModuleOutput       an edge for each argument, each result
        parallelize_module(block, mesh["tp"], plan)   one cdp_tp per layer on cdp_mesh_sub(m, "tp")
        loss_parallel()                               cdp_cross_entropy
        context_parallel(mesh, buffers=...)           cdp_cp_create, cdp_cp_attention
        set_rotate_method("allgather")                cdp_cp_desc.gather
        CommDebugMode()                               cdp_count_begin, cdp_counts, _draw
        Differences: nothing is redistributed implicitly; uneven sizes and orders of cuts are
        exact; S(i) to S(j) is one exchange, not a gather; a plan states its bytes.

    CONFIGURATION
        CDP_DTENSOR_IMPLEMENTATION   this header alone; cdp.h is implemented elsewhere
        CDP_NO_TENSOR_OPS            leaves out rules, tensor-parallel, context-parallel, local-map
                                     and counts, in all files alike
        The macros of cdp.h hold here, too: CDP_API, CDP_STATIC, CDP_ASSERT, CDP_NO_STDIO.

    THREADS
        A mesh and everything made from it belong to one thread at a time. All ranks of a mesh
        make the same calls on it in the same order. Calls of what was destroyed are STATE, and so
        are those in a child of fork() that would run, or write to memory of the parent's groups.

    MEMORY
        From the os of the group. A mesh: one group per dimension and two of all ranks. A plan:
        about 600 bytes per message; none for a reduction that is one collective, see
        cdp_plan_info.collective. It runs in scratch memory, as large as its
        cdp_plan_info.scratch_bytes, which plans of the same meshes share unless they run at one
        time; cdp_mesh_drop_plans frees it. Contributions to sums arrive there in windows of about
        2 MiB, at most 25 of a plan; an asynchronous run has none. A run allocates nothing, except
        what a collective allocates in its group, and asynchronous ones: the first one of a plan,
        and scratch memory for more runs at one time; asynchronous runs of several plans at a time
        may need more messages in flight than any one of them: see cdp_group_reserve. A layer
        allocates when it is made: the x that it gathers, unless it is all here, is its own, and so
        is the sum of gradients if others share its x; what else it needs during a call is scratch
        memory, too. cdp_cross_entropy allocates in each call.

    ERRORS
        INVALID and UNSUPPORTED: nothing was started; correct the call. MISMATCH of a mesh, layout
        or plan: ranks described different things; the group stays usable. A failure of
        communication breaks the group of the mesh: free its tensors and plans, destroy the mesh,
        and only then free memory of your own that the failed call used.

    LIMITS
        mesh: 6 dimensions, 65535 ranks | tensor: 8 dimensions, 63 bits of elements and bytes
        names of mesh dimensions: 31 bytes | cuts that cdp_layout_from_local keeps: 4096 per mesh
        dimension, fewer above 127 ranks | host memory only: device memory is UNSUPPORTED
        operators: 4 inputs, 256 rules | products without a gemm: f32, f64, i32, i64; losses and
        attention: f32, f64 | layers, losses and attention: on meshes of one dimension

    License: MIT-0 or Unlicense, as you like; see the end of cdp.h.                            */

/* Joined from src/cdp_dtensor.h and what it includes: change that, then `make headers`. */
#if !defined(CDP_INCLUDED) \
    || defined(CDP_IMPLEMENTATION) || defined(CDP_CORE_IMPLEMENTATION) \
    || defined(CDP_DTENSOR_IMPLEMENTATION)
#include "cdp.h"
#endif

#ifndef CDP_DTENSOR_INCLUDED
#define CDP_DTENSOR_INCLUDED

#define CDP_DTENSOR_VERSION 300 /* major * 10000 + minor * 100 + patch */
#if CDP_DTENSOR_VERSION != CDP_VERSION
#error "cdp_dtensor.h and cdp.h are of different versions: copy both from the same release"
#endif
#if defined(CDP_NO_MESSAGES) || defined(CDP_NO_GROUPS) || defined(CDP_NO_CHAINS)
#error "cdp_dtensor.h needs what CDP_NO_MESSAGES, CDP_NO_GROUPS and CDP_NO_CHAINS leave out"
#endif
#ifdef CDP_FEW_DTYPES
#error "cdp_dtensor.h converts between all dtypes: do not define CDP_FEW_DTYPES"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- >>dtensor/mesh_api: ranks as an n-dimensional array ------------------------------------- */

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

/* ---- >>dtensor/layout_api: which part of a tensor each rank holds ---------------------------- */

typedef enum cdp_place_kind {
    CDP_PLACE_REPLICATE = 0, /* the same on all ranks of the mesh dimension */
    CDP_PLACE_SHARD,         /* each rank holds a piece of tensor dimension `dim` */
    CDP_PLACE_PARTIAL        /* the tensor is the reduction, by `op`, of what the ranks hold */
} cdp_place_kind;

/* How one dimension of a mesh divides a tensor. */
typedef struct cdp_place {
    cdp_place_kind kind;
    int32_t dim;      /* SHARD: of the tensor; negative: counted from the end */
    cdp_reduce_op op; /* PARTIAL: SUM (default), AVG, MIN, MAX or PRODUCT */
    uint32_t order;   /* SHARD: lower ones cut first; equal ones: left to right (default) */
    uint32_t cut;     /* SHARD: of cdp_mesh_cut(); no other SHARD of that dim (default: none) */
    uint64_t block;   /* SHARD: cut only at multiples of so many elements (default: 1) */
} cdp_place;

/* A tensor's element type and shape, and how it is divided over a mesh. A plain value;
   zero-initialise it. Chunk rule: `size` elements over n ranks give pieces of c = ceil(size / n):
   rank i holds elements [c*i, c*(i+1)) as far as they exist, so the last pieces may be short or
   empty. With `block` b the rule divides ceil(size / b) blocks. If several mesh dimensions shard
   one tensor dimension, each cuts what the one before it left. Every rank holds one box of the
   tensor, contiguous and row-major. */
typedef struct cdp_layout {
    const cdp_mesh *mesh;
    cdp_dtype dtype;                 /* (default: f32) */
    uint32_t ndim;                   /* 0: a single element */
    uint64_t shape[CDP_TENSOR_DIMS]; /* of the whole tensor */
    cdp_place place[CDP_MESH_DIMS];  /* per dimension of the mesh (default: replicated) */
} cdp_layout;

/* Elements [start, start + size) of each dimension of a tensor. */
typedef struct cdp_box {
    uint64_t start[CDP_TENSOR_DIMS], size[CDP_TENSOR_DIMS];
} cdp_box;

typedef enum cdp_draw_format {
    CDP_DRAW_TEXT = 0, /* ASCII, at most 100 columns where the mesh is small */
    CDP_DRAW_COLOR,    /* the same with colours for a terminal */
    CDP_DRAW_SVG,      /* readable on dark and on light backgrounds */
    CDP_DRAW_JSON
} cdp_draw_format;

/* Set layout->place from text, one placement per mesh dimension, separated by commas:
   R, S<dim>, P, P(sum), P(avg), P(min), P(max), P(product). After S<dim>, in any order: /<block>,
   !<order>, #<cut>. Examples: "S0,R", "S-1/64,P(max)", "S0!1,S0". mesh and ndim must be set.
   Errors: INVALID (the text says at which character), and those of cdp_layout_check(). */
CDP_MUST_CHECK CDP_API cdp_status cdp_layout_parse(cdp_layout *layout, const char *places);

/* The placements as text that cdp_layout_parse() reads back; dims are written as counted from the
   start. Writes at most `room` bytes, a zero at the end among them; `text` may be NULL. Returns the
   length of the whole text without the zero. */
CDP_API uint64_t cdp_layout_text(const cdp_layout *layout, char *text, uint64_t room);

/* OK if every member is valid. Errors: INVALID (no mesh, a dim out of range, too large a shape, a
   block that is no multiple of the block of a later cut, a cut beside another shard of its
   dimension or with another total); UNSUPPORTED (PARTIAL placements of different ops, except sum
   with avg; an op that the dtype does not have); STATE (its mesh was destroyed; a cut was
   replaced, see cdp_layout_from_local()). */
CDP_MUST_CHECK CDP_API cdp_status cdp_layout_check(const cdp_layout *layout);

/* Set *out (NULL: not wanted) to what the rank at coord[0..] of the mesh holds (NULL: this rank).
   In a dimension where it holds nothing, size is 0 and start is the size of the whole tensor.
   Returns the number of its elements; 0 for ranks outside the mesh, and if a cut was replaced.
   `layout` must be valid. */
CDP_API uint64_t cdp_layout_box(const cdp_layout *layout, const uint32_t *coord, cdp_box *out);

/* True if every rank holds the same data under both: no byte need be moved. False if a cut was
   replaced. */
CDP_API bool cdp_layout_same(const cdp_layout *a, const cdp_layout *b);

/* Draw which rank holds what, for every rank of the mesh; tensors of more than two dimensions as
   planes. Local, also on paper. Writes at most `room` bytes, a zero at the end among them; `text`
   may be NULL. Returns the length of the whole text without the zero; 0 if `layout` is not
   valid. */
CDP_API uint64_t cdp_layout_draw(
    const cdp_layout *layout, cdp_draw_format format, char *text, uint64_t room);

/* ---- >>dtensor/plan_api: moves a tensor from one layout to another --------------------------- */

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

/* ---- >>dtensor/dtensor_api: a layout and a pointer ------------------------------------------- */

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

/* ---- >>dtensor/item_api: a tensor with a name ------------------------------------------------ */

/* A tensor with a name: an entry of a checkpoint. */
typedef struct cdp_item {
    const char *name; /* UTF-8, at most 511 bytes, unique */
    /* layout.mesh NULL: every rank of the group holds the whole tensor, as in cdp_ddp */
    cdp_dtensor tensor;
    /* in files, where `tensor` is a flat view of it (default: the shape of the tensor) */
    uint32_t ndim;
    uint64_t shape[CDP_TENSOR_DIMS];
    const char *file; /* begin of file names (default: "model") */
    /* `part`: this rank holds `count` elements of it from `first` on, row-major, and other ranks
       hold the rest, as in cdp_fsdp_piece. `tensor` has the shape of the whole, no mesh, and the
       memory of these elements. Where `copies` ranks hold the same ones, `copy` counts them from 0
       (default: one does). A rank that holds none has count 0 */
    bool part;
    uint64_t first, count;
    uint32_t copy, copies;
} cdp_item;

/* ---- >>dtensor/edge_api: a plan and the plan of its gradient --------------------------------- */

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

/* ---- >>dtensor/rules_api: which placements an operator accepts ------------------------------- */

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

/* ---- >>dtensor/tensor_parallel_api: layers and losses whose parameters are cut --------------- */

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

/* ---- >>dtensor/context_parallel_api: attention over a cut sequence --------------------------- */

#ifndef CDP_NO_TENSOR_OPS

/* A part of attention: queries of one sequence, [rows, heads, width], to keys and values of it,
   [keys, kv_heads, width]. Query head h uses key head h / (heads / kv_heads). Scores are
   scale x q k. */
typedef struct cdp_attention_block {
    cdp_dtype dtype;     /* of all arrays: f32 or f64 */
    uint64_t rows, keys; /* 1 or more */
    uint64_t heads, kv_heads, width;
    double scale;
    bool causal; /* query i attends to keys 0 to i, rows == keys; false: to all keys */
} cdp_attention_block;

/* The loops of attention in a kernel of your own, which may use threads or a library. forward
   writes out [rows, heads, width], normalised over the keys of the block, and lse [rows, heads],
   the log of the sums of exponentials of scores; -infinity if these are 0: out is not read then.
   backward adds to grad_q, grad_k and grad_v. Its out, grad_out and lse are those of the whole
   sequence: the weight of a key is exp(score - lse). NULL: plain loops. Blocks of a call come one
   after the other, from the thread that calls. After an error, blocks of this call are left out,
   the call returns it on this rank, and gradients to which this rank should have added are NaN on
   theirs. */
typedef struct cdp_attention_kernel {
    cdp_status (*forward)(void *user, const cdp_attention_block *block, const void *q,
        const void *k, const void *v, void *out, void *lse);
    cdp_status (*backward)(void *user, const cdp_attention_block *block, const void *q,
        const void *k, const void *v, const void *out, const void *lse, const void *grad_out,
        void *grad_q, void *grad_k, void *grad_v);
    void *user;
} cdp_attention_kernel;

/* Each rank holds some positions of a sequence: their queries stay, keys and values of all
   others come to it. Plain: positions follow the chunk rule. Causal: the sequence is divided into
   2n chunks, and rank i holds chunks i and 2n-1-i, in this order, so that all have equal work. */
typedef struct cdp_cp_desc {
    cdp_mesh *mesh;    /* of one dimension */
    uint64_t length;   /* of the whole sequence; causal: a multiple of 2n */
    bool causal;       /* a query attends to its own and to earlier positions */
    bool gather;       /* gather all keys and values at once, instead of passing them on */
    uint64_t batch;    /* sequences (default: 1) */
    uint64_t heads;    /* of queries */
    uint64_t kv_heads; /* of keys and values; divides heads (default: heads) */
    uint64_t width;    /* of a head */
    double scale;      /* of scores (default: 1 / sqrt(width)) */
    cdp_dtype dtype;   /* f32 (default) or f64 */
    cdp_attention_kernel kernel; /* (default: plain loops) */
} cdp_cp_desc;

typedef struct cdp_cp cdp_cp;

/* Make the buffers of such an attention. Local. Errors: INVALID (a sentence names the member: a
   length that does not divide, heads that do not), UNSUPPORTED (dtype), NOMEM. */
CDP_MUST_CHECK CDP_API cdp_status cdp_cp_create(const cdp_cp_desc *desc, cdp_cp **out);
/* Local; NULL is allowed. A second call does nothing but set cdp_last_error() (STATE). */
CDP_API void cdp_cp_destroy(cdp_cp *cp);

/* Which positions the rank at coordinate `coord` holds: [start, start + size) twice, in this
   order; plain: the second is empty. Returns how many; 0 if desc is not valid. Pure. */
CDP_API uint64_t cdp_cp_rows(
    const cdp_cp_desc *desc, uint32_t coord, uint64_t start[2], uint64_t size[2]);

/* Attention of this rank's queries to the whole sequence, in plain loops or desc.kernel. q and out:
   [batch, positions, heads, width]; k and v: [batch, positions, kv_heads, width]; lse (log of the
   sums of exponentials, which backward needs): [batch, positions, heads]. Gradients are written.
   While a block is computed the next one travels. Nothing is allocated. Collective. Errors:
   INVALID (an array is NULL), STATE (on paper), that of the kernel, the failure of the group. */
CDP_MUST_CHECK CDP_API cdp_status cdp_cp_attention(
    cdp_cp *cp, const void *q, const void *k, const void *v, void *out, void *lse);
CDP_MUST_CHECK CDP_API cdp_status cdp_cp_attention_backward(cdp_cp *cp, const void *q,
    const void *k, const void *v, const void *out, const void *lse, const void *grad_out,
    void *grad_q, void *grad_k, void *grad_v);

/* The ring by itself, for kernels of one's own. kv: this rank's keys and values, any bytes,
   `bytes` on every rank (of the largest piece where they differ). block() is called for each
   rank's, its own first, then those of the ranks before it. grad (NULL: none): one buffer of the
   dtype for each kv, `grad_count` elements, cleared at first; block() adds to it, it travels on
   with the next kv, and the sum of all ranks comes back to its owner in `grad`. An error of
   block() is returned after the ring has ended; it is not called again then, and gradients to which
   this rank should have added are NaN on theirs. Collective. */
typedef cdp_status cdp_cp_block(void *user, uint32_t owner, const void *kv, void *grad);
/* One turn of that ring, with block() called once for every rank. */
CDP_MUST_CHECK CDP_API cdp_status cdp_cp_ring(cdp_cp *cp, const void *kv, uint64_t bytes,
    void *grad, uint64_t grad_count, cdp_cp_block *block, void *user);

/* Merge two attention results over different keys: out [rows, width] and lse [rows] become those
   over both. Each lse is the log of the sum of exponentials of its scores, -infinity if it saw no
   key. Pure. */
CDP_API void cdp_cp_merge(
    float *out, float *lse, const float *out_b, const float *lse_b, uint64_t rows, uint64_t width);

#endif /* CDP_NO_TENSOR_OPS */

/* ---- >>dtensor/local_map_api: a function of local arrays ------------------------------------- */

#ifndef CDP_NO_TENSOR_OPS

typedef struct cdp_local_map_desc {
    const cdp_dtensor *in;
    uint32_t in_count;
    const cdp_layout *need; /* in_count layouts; one with mesh NULL, or need NULL: the input's */
    bool redistribute;      /* convert inputs with other layouts; false: these are INVALID */
    cdp_dtensor *out;       /* with their layouts and data */
    uint32_t out_count;
    cdp_status (*func)(void *user, const cdp_dtensor *in, cdp_dtensor *out);
    void *user;
} cdp_local_map_desc;

/* Run func once on the local pieces of the inputs, which have the layouts that it needs. The pieces
   that it writes are taken as pieces of the layouts of `out`. Collective if inputs are
   redistributed. Errors: INVALID (an input has another layout: names it and both layouts), NOMEM,
   what func returns, and those of cdp_redistribute(). */
CDP_MUST_CHECK CDP_API cdp_status cdp_local_map(const cdp_local_map_desc *desc);

#endif /* CDP_NO_TENSOR_OPS */

/* ---- >>dtensor/counts_api: how much is communicated, and by which part of a program ---------- */

#ifndef CDP_NO_TENSOR_OPS

/* Of this rank. SEND stands for exchanges that are no single collective, and for rings. */
typedef struct cdp_comm_count {
    uint64_t calls[CDP_COLL_COUNT], bytes[CDP_COLL_COUNT]; /* bytes that were received */
} cdp_comm_count;

/* Count what runs between begin and end under `label`, below the labels that are open: "block3",
   then "mlp" in it make the path "block3/mlp". Counted are plans, edges, layers, losses and rings
   of all meshes that were made from one another; what edges and layers do backward is kept apart.
   Calls on groups are counted if the program notes them. Local. Errors: INVALID (a label that is
   empty, holds '/', or more than 16 of them, or a path of more than 127 bytes), NOMEM. */
CDP_MUST_CHECK CDP_API cdp_status cdp_count_begin(cdp_mesh *mesh, const char *label);
CDP_API void cdp_count_end(cdp_mesh *mesh);

/* From now on (until false) all communication counts as backward. */
CDP_API void cdp_count_backward(cdp_mesh *mesh, bool on);

/* Count an operation of one's own, such as an allreduce of a group, under the open labels. */
CDP_API void cdp_count_note(cdp_mesh *mesh, cdp_coll_kind kind, uint64_t bytes);

/* What was counted under `path` and below it (NULL: everything), forward or backward. Zeros if
   there is none. */
CDP_API cdp_comm_count cdp_counts(const cdp_mesh *mesh, const char *path, bool backward);
CDP_API void cdp_counts_clear(cdp_mesh *mesh); /* sets all counts to 0; labels stay */

/* A table of labels and operations, forward and backward; TEXT or JSON (others: TEXT). Writes at
   most `room` bytes, a zero at the end among them; `text` may be NULL. Returns the length of the
   whole text without the zero. */
CDP_API uint64_t cdp_counts_draw(
    const cdp_mesh *mesh, cdp_draw_format format, char *text, uint64_t room);

#endif /* CDP_NO_TENSOR_OPS */

#ifdef __cplusplus
} /* extern "C" */
#endif
/* ---- >>dtensor/cxx_api: descs by reference in C++ -------------------------------------------- */

#ifdef __cplusplus
extern "C++" { /* also where a program includes the header in extern "C" */
inline cdp_status cdp_mesh_create(const cdp_mesh_desc &desc, cdp_mesh **out) {
    return cdp_mesh_create(&desc, out);
}
inline cdp_status cdp_plan_create(const cdp_plan_desc &desc, cdp_plan **out) {
    return cdp_plan_create(&desc, out);
}
inline cdp_status cdp_edge_create(const cdp_edge_desc &desc, cdp_edge **out) {
    return cdp_edge_create(&desc, out);
}
inline cdp_status cdp_dtensor_fill(cdp_dtensor *tensor, const cdp_fill &fill) {
    return cdp_dtensor_fill(tensor, &fill);
}
#ifndef CDP_NO_TENSOR_OPS
inline cdp_status cdp_tp_create(const cdp_tp_desc &desc, cdp_tp **out) {
    return cdp_tp_create(&desc, out);
}
inline cdp_status cdp_cp_create(const cdp_cp_desc &desc, cdp_cp **out) {
    return cdp_cp_create(&desc, out);
}
inline cdp_status cdp_local_map(const cdp_local_map_desc &desc) {
    return cdp_local_map(&desc);
}
#endif
inline cdp_status cdp_mesh_from_groups(
    const cdp_mesh_desc &desc, cdp_group *const *groups, cdp_mesh **out) {
    return cdp_mesh_from_groups(&desc, groups, out);
}
} /* extern "C++" */
#endif

#endif /* CDP_DTENSOR_INCLUDED */

#if (defined(CDP_IMPLEMENTATION) || defined(CDP_DTENSOR_IMPLEMENTATION)) \
    && !defined(CDP_DTENSOR_IMPL_INCLUDED)
#define CDP_DTENSOR_IMPL_INCLUDED
#undef CDP__HERE
#define CDP__HERE CDP__FILE_DTENSOR

/* ---- >>dtensor/kit: small helpers ------------------------------------------------------------ */

/* Knows: numbers, memory, and which objects were destroyed; nothing of tensors. Promises: memory is
   zeroed. */

#include <string.h>

#define CDP__DT CDP__PRIVATE

#define cdp__dt_missing(call, argument) \
    cdp_error_set(CDP_ERR_INVALID, -1, 0, CDP__MISSING, (call), (argument))

typedef struct cdp__dt_argument {
    const char *name;
    const void *pointer;
} cdp__dt_argument;

/* Refuses an object of this header that is NULL, or was destroyed; `what` is its kind. */
CDP__DT cdp_status cdp__dt_alive(const void *object, const char *call, const char *what) {
    if (!object) return cdp__dt_missing(call, what);
    if (!cdp__ended(object)) return CDP_OK;
    return cdp_error_set(CDP_ERR_STATE, -1, 0, "%s: this %s was destroyed", call, what);
}

/* Where a mesh that was destroyed is remembered: inside of it. Plans, edges and layers may outlive
   their mesh, whose address may be that of another object then. NULL for NULL. */
CDP__DT const void *cdp__dt_mesh_mark(const void *mesh) {
    return mesh ? (const char *)mesh + 16 : NULL;
}

CDP__DT bool cdp__dt_mesh_ended(const void *mesh) {
    return cdp__ended(cdp__dt_mesh_mark(mesh));
}

/* Refuses the first argument of `list` that is NULL, by its name. */
CDP__DT cdp_status cdp__dt_all_given(
    const char *call, const cdp__dt_argument *list, uint32_t count) {
    for (uint32_t i = 0; i < count; ++i)
        if (!list[i].pointer) return cdp__dt_missing(call, list[i].name);
    return CDP_OK;
}

#define CDP__DT_NONE 0xffffffffu
#define CDP__DT_DIMS (CDP_TENSOR_DIMS + 1u) /* of a region: one more for kept PARTIAL */

CDP__DT double cdp__dt_or(double value, double fallback) {
    return value > 0 ? value : fallback;
}

/* a * b; or 0 with *ok = false if the product has more than 63 bits. */
CDP__DT uint64_t cdp__dt_times(uint64_t a, uint64_t b, bool *ok) {
    if (a && b > (UINT64_MAX >> 1) / a) {
        *ok = false;
        return 0;
    }
    return a * b;
}

/* FNV-1a over the bytes of 64-bit numbers, the same on machines of either byte order. */
CDP__DT uint64_t cdp__dt_hash(const uint64_t *words, uint64_t n) {
    uint64_t h = 0xcbf29ce484222325u;
    for (uint64_t i = 0; i < n; ++i)
        for (uint32_t byte = 0; byte < 8; ++byte)
            h = (h ^ (words[i] >> 8 * byte & 0xff)) * 0x100000001b3u;
    return h;
}

CDP__DT void *cdp__dt_alloc(const cdp_os *os, uint64_t bytes) {
    void *p = os->alloc(os->user, bytes ? bytes : 1);
    if (p) memset(p, 0, (size_t)bytes);
    return p;
}

CDP__DT void cdp__dt_free(const cdp_os *os, void *p) {
    if (p) os->release(os->user, p);
}

CDP__DT cdp_status cdp__dt_nomem(const char *what, uint64_t bytes) {
    return cdp_error_set(CDP_ERR_NOMEM, -1, 0, "out of memory: %s needs %llu bytes", what,
        (unsigned long long)bytes);
}

/* Memory that peers read in place; NULL: none, and the last error says why. */
CDP__DT void *cdp__dt_group_memory(cdp_group *g, uint64_t bytes) {
    void *p;
    return cdp_group_alloc(g, bytes, &p) == CDP_OK ? p : NULL;
}

/* ---- >>dtensor/kernels: strided copies and reductions (pure) --------------------------------- */

/* Knows: elements of a dtype, in arrays and in boxes of arrays. Promises: the arithmetic of
   >>dtype/reduce. */

/* True if a PARTIAL layout of the dtype may have this reduction. */
CDP__DT bool cdp__dt_reduces(cdp_dtype t, cdp_reduce_op op) {
    return op <= CDP_REDUCE_PRODUCT && cdp__reduce_exists(t, op);
}

/* Elements [start, start + size) of each dimension; a box with room for one more dimension. */
typedef struct cdp__dt_region {
    uint64_t start[CDP__DT_DIMS], size[CDP__DT_DIMS];
} cdp__dt_region;

CDP__DT uint64_t cdp__dt_volume(const cdp__dt_region *r, uint32_t ndim) {
    uint64_t v = 1;
    for (uint32_t d = 0; d < ndim; ++d)
        v *= r->size[d];
    return v;
}

/* Intersects two regions. False if they have no common element. */
CDP__DT bool cdp__dt_intersect(
    const cdp__dt_region *a, const cdp__dt_region *b, uint32_t ndim, cdp__dt_region *out) {
    for (uint32_t d = 0; d < ndim; ++d) {
        const uint64_t low = cdp__max(a->start[d], b->start[d]);
        const uint64_t high = cdp__min(a->start[d] + a->size[d], b->start[d] + b->size[d]);
        if (low >= high) return false;
        out->start[d] = low;
        out->size[d] = high - low;
    }
    return true;
}

/* How a region is copied between two arrays: runs of contiguous bytes inside `dims` loops. */
typedef struct cdp__dt_copy {
    uint64_t from_at, to_at, run; /* bytes */
    uint32_t dims;
    uint64_t count[CDP__DT_DIMS], from_step[CDP__DT_DIMS], to_step[CDP__DT_DIMS];
} cdp__dt_copy;

/* How to copy `part`, which lies within both regions, between their row-major arrays; `elem`:
   bytes of an element. */
CDP__DT cdp__dt_copy cdp__dt_copy_of(const cdp__dt_region *part, const cdp__dt_region *from,
    const cdp__dt_region *to, uint32_t ndim, uint64_t elem) {
    cdp__dt_copy c;
    uint64_t from_step = elem, to_step = elem;
    memset(&c, 0, sizeof c);
    c.run = elem;
    for (uint32_t d = ndim; d-- > 0;) {
        const uint64_t n = part->size[d];
        c.from_at += (part->start[d] - from->start[d]) * from_step;
        c.to_at += (part->start[d] - to->start[d]) * to_step;
        if (n != 1 && c.dims == 0 && from_step == c.run && to_step == c.run) {
            c.run *= n;
        } else if (n != 1) {
            const uint32_t k = c.dims ? c.dims - 1 : 0;
            const bool joins = c.dims && from_step == c.from_step[k] * c.count[k]
                && to_step == c.to_step[k] * c.count[k];
            if (joins) {
                c.count[k] *= n;
            } else {
                c.count[c.dims] = n;
                c.from_step[c.dims] = from_step;
                c.to_step[c.dims++] = to_step;
            }
        }
        from_step *= from->size[d];
        to_step *= to->size[d];
    }
    return c;
}

/* Copies one row: `n` runs of `run` bytes. Runs of one element are copied without a call. */
CDP__DT void cdp__dt_copy_row(uint8_t *to, uint64_t to_step, const uint8_t *from,
    uint64_t from_step, uint64_t n, uint64_t run) {
    uint64_t i;
    if (run == 4) {
        for (i = 0; i < n; ++i)
            memcpy(to + i * to_step, from + i * from_step, 4);
    } else if (run == 8) {
        for (i = 0; i < n; ++i)
            memcpy(to + i * to_step, from + i * from_step, 8);
    } else if (run == 2) {
        for (i = 0; i < n; ++i)
            memcpy(to + i * to_step, from + i * from_step, 2);
    } else {
        for (i = 0; i < n; ++i)
            memcpy(to + i * to_step, from + i * from_step, (size_t)run);
    }
}

/* Advances the loops around a row; false after the last one. */
CDP__DT bool cdp__dt_copy_next(const cdp__dt_copy *c, uint64_t *at, uint64_t *from, uint64_t *to) {
    for (uint32_t d = 1; d < c->dims; ++d) {
        *from += c->from_step[d];
        *to += c->to_step[d];
        if (++at[d] < c->count[d]) return true;
        *from -= at[d] * c->from_step[d];
        *to -= at[d] * c->to_step[d];
        at[d] = 0;
    }
    return false;
}

CDP__DT void cdp__dt_copy_run(const cdp__dt_copy *c, void *to, const void *from) {
    uint8_t *out = (uint8_t *)to + c->to_at;
    const uint8_t *in = (const uint8_t *)from + c->from_at;
    uint64_t at[CDP__DT_DIMS] = {0}, f = 0, t = 0;
    if (!c->dims) {
        if (out != in) memcpy(out, in, (size_t)c->run);
        return;
    }
    do
        cdp__dt_copy_row(out + t, c->to_step[0], in + f, c->from_step[0], c->count[0], c->run);
    while (cdp__dt_copy_next(c, at, &f, &t));
}

/* The same, but combines with the elements at `to`. */
CDP__DT void cdp__dt_copy_combine(
    const cdp__dt_copy *c, cdp_dtype t, cdp_reduce_op op, void *to, const void *from) {
    const uint64_t rows = c->dims ? c->count[0] : 1, elem = cdp_dtype_size(t);
    uint8_t *out = (uint8_t *)to + c->to_at;
    const uint8_t *in = (const uint8_t *)from + c->from_at;
    uint64_t at[CDP__DT_DIMS] = {0}, f = 0, w = 0;
    do
        for (uint64_t i = 0; i < rows; ++i)
            cdp__reduce(t, op, false, out + w + i * c->to_step[0], in + f + i * c->from_step[0],
                c->run / elem);
    while (cdp__dt_copy_next(c, at, &f, &w));
}

CDP__DT uint64_t cdp__dt_copy_bytes(const cdp__dt_copy *c) {
    uint64_t n = c->run;
    for (uint32_t d = 0; d < c->dims; ++d)
        n *= c->count[d];
    return n;
}

/* ---- >>dtensor/philox: random numbers that depend on seed, stream and index alone (pure) ----- */

/* Knows: Philox4x32-10: key = seed, counter = (index / 4, stream), word = index % 4. Promises: the
   same bits on every machine, because no function of the C library is used. */

CDP__DT void cdp__dt_philox(uint64_t seed, uint64_t stream, uint64_t block, uint32_t out[4]) {
    uint32_t c0 = (uint32_t)block, c1 = (uint32_t)(block >> 32);
    uint32_t c2 = (uint32_t)stream, c3 = (uint32_t)(stream >> 32);
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (uint32_t round = 0; round < 10; ++round) {
        const uint64_t a = (uint64_t)0xD2511F53u * c0, b = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)b;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* log(x) for 0 < x <= 1: x = m 2^e with m in [0.7, 1.42), log m by a series in (m-1)/(m+1). */
CDP__DT double cdp__dt_log(double x) {
    int32_t e = 0;
    while (x < 0.70710678118654752) {
        x *= 2;
        --e;
    }
    const double z = (x - 1) / (x + 1), zz = z * z;
    double sum = 0;
    for (int32_t k = 21; k >= 1; k -= 2)
        sum = sum * zz + 1.0 / k;
    return 2 * z * sum + (double)e * 0.69314718055994530942;
}

/* Square root by Newton's iteration, for 0 <= x < 2^10. */
CDP__DT double cdp__dt_sqrt(double x) {
    double r = x > 1 ? x : 1;
    if (x <= 0) return 0;
    for (uint32_t i = 0; i < 40; ++i) {
        const double next = 0.5 * (r + x / r);
        if (next == r) break;
        r = next;
    }
    return r;
}

/* Cosine or sine of 2 pi u for 0 <= u < 1, by Taylor series within an eighth of a turn. */
CDP__DT double cdp__dt_wave(double u, bool sine) {
    const uint32_t eighth = (uint32_t)(u * 8);
    const uint32_t quarter = (eighth + 1) / 2;
    const double y = (u - (double)quarter / 4) * 6.28318530717958647692, yy = y * y;
    double c = 0, s = 0;
    for (int32_t k = 18; k >= 2; k -= 2) {
        c = (c + 1) * -yy / (k * (k - 1));
        s = (s + 1) * -yy / (k * (k + 1));
    }
    c += 1;
    s = (s + 1) * y;
    const uint32_t turn = (quarter + (sine ? 3u : 0u)) % 4;
    if (turn == 0) return c;
    if (turn == 1) return -s;
    return turn == 2 ? -c : s;
}

/* Uniform in [0, 1) at `index`: 24 bits of one word, or 53 bits of two for f64. */
CDP__DT double cdp__dt_uniform(uint64_t seed, uint64_t stream, uint64_t index, bool wide) {
    uint32_t w[4];
    if (!wide) {
        cdp__dt_philox(seed, stream, index / 4, w);
        return (double)(w[index % 4] >> 8) / 16777216.0;
    }
    cdp__dt_philox(seed, stream, index / 2, w);
    const uint64_t high = w[index % 2 * 2], low = w[index % 2 * 2 + 1];
    return (double)((high << 32 | low) >> 11) / 9007199254740992.0;
}

/* Standard normal at `index`, by Box and Muller: even indices take the cosine, odd ones the sine.
   */
CDP__DT double cdp__dt_normal(uint64_t seed, uint64_t stream, uint64_t index, bool wide) {
    const uint64_t pair = index & ~(uint64_t)1;
    const double radius = 1 - cdp__dt_uniform(seed, stream, pair, wide);
    const double angle = cdp__dt_uniform(seed, stream, pair + 1, wide);
    return cdp__dt_sqrt(-2 * cdp__dt_log(radius)) * cdp__dt_wave(angle, index & 1);
}

/* ---- >>dtensor/chunks: the sizes of pieces (pure) -------------------------------------------- */

/* Knows: sizes and numbers of pieces. Promises: the chunk rule of cdp_layout. */

/* Piece `index` of `parts` of `size` elements, cut at multiples of `block`; returns its size. */
CDP__DT uint64_t cdp__dt_chunk(
    uint64_t size, uint64_t block, uint32_t parts, uint32_t index, uint64_t *start) {
    const uint64_t blocks = size / block + (size % block != 0);
    const uint64_t each = blocks / parts + (blocks % parts != 0);
    const uint64_t low = cdp__min(blocks, each * index);
    const uint64_t high = cdp__min(blocks, each * (index + 1ull));
    *start = low < blocks ? low * block : size;
    return (high < blocks ? high * block : size) - *start;
}

/* Piece `index` of `parts` balanced pieces of `box`: cut along the first dimension that is long
   enough, else along the longest. */
CDP__DT cdp__dt_region cdp__dt_slab(
    const cdp__dt_region *box, uint32_t ndim, uint64_t parts, uint64_t index) {
    cdp__dt_region r = *box;
    uint32_t best = 0;
    if (!ndim || parts <= 1) return r;
    for (uint32_t d = 1; d < ndim && box->size[best] < parts; ++d)
        if (box->size[d] > box->size[best]) best = d;
    const uint64_t each = box->size[best] / parts, more = box->size[best] % parts;
    r.start[best] += each * index + cdp__min(index, more);
    r.size[best] = each + (index < more);
    return r;
}

/* a + b, below a * b; or the largest number. */
CDP__DT uint64_t cdp__dt_plus_most(uint64_t a, uint64_t b) {
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

CDP__DT uint64_t cdp__dt_times_most(uint64_t a, uint64_t b) {
    return a && b > UINT64_MAX / a ? UINT64_MAX : a * b;
}

/* ---- >>dtensor/counter: operations by label -------------------------------------------------- */

/* Knows: labels and numbers. Promises: counting allocates nothing; a new label does, once. */

#define CDP__DT_PATH 128u
#define CDP__DT_LABELS 16u

typedef struct cdp__dt_label {
    struct cdp__dt_label *next;
    char path[CDP__DT_PATH];
    uint64_t calls[2][CDP_COLL_COUNT], bytes[2][CDP_COLL_COUNT]; /* forward, backward */
} cdp__dt_label;

typedef struct cdp__dt_counter {
    cdp__dt_label *first, **last;
    cdp__dt_label *open[CDP__DT_LABELS + 1]; /* open[0]: what is under no label */
    uint32_t depth, backward;
    bool user_backward;
} cdp__dt_counter;

CDP__DT void cdp__dt_count(cdp__dt_counter *c, cdp_coll_kind kind, uint64_t bytes, bool backward) {
    if (!c) return;
    cdp__dt_label *l = c->open[c->depth];
    const uint32_t way = backward || c->backward || c->user_backward;
    ++l->calls[way][kind];
    l->bytes[way][kind] += bytes;
}

/* The label with this path, created on first use; NULL: out of memory. */
CDP__DT cdp__dt_label *cdp__dt_label_of(cdp__dt_counter *c, const cdp_os *os, const char *path) {
    for (cdp__dt_label *l = c->first; l; l = l->next)
        if (strcmp(l->path, path) == 0) return l;
    cdp__dt_label *l = (cdp__dt_label *)cdp__dt_alloc(os, sizeof *l);
    if (!l) return NULL;
    memcpy(l->path, path, strlen(path) + 1);
    *c->last = l;
    c->last = &l->next;
    return l;
}

CDP__DT void cdp__dt_counter_free(cdp__dt_counter *c, const cdp_os *os) {
    while (c && c->first) {
        cdp__dt_label *next = c->first->next;
        cdp__dt_free(os, c->first);
        c->first = next;
    }
    cdp__dt_free(os, c);
}

CDP__DT cdp__dt_counter *cdp__dt_counter_make(const cdp_os *os) {
    cdp__dt_counter *c = (cdp__dt_counter *)cdp__dt_alloc(os, sizeof *c);
    if (!c) return NULL;
    c->last = &c->first;
    c->open[0] = cdp__dt_label_of(c, os, "");
    if (c->open[0]) return c;
    cdp__dt_free(os, c);
    return NULL;
}

/* ---- >>dtensor/grid: layouts in terms of regions (pure) -------------------------------------- */

/* Knows: layouts as a mesh stores them, and the structs of meshes. Promises: the region of every
   rank. */

/* A cut that the program has chosen: starts[i] of piece i, and the total at the end. */
typedef struct cdp__dt_cut {
    struct cdp__dt_cut *next, *next_hash; /* of the chains of its number, and of its hash */
    struct cdp__dt_cut *older, *newer;    /* that may be replaced */
    uint64_t hash, *starts;
    uint32_t dim, number;
    uint32_t plans; /* that use it */
    bool passing;   /* it may be replaced */
    bool replaced;  /* it was, and is no cut for new plans */
} cdp__dt_cut;

typedef struct cdp__dt_passing {
    cdp__dt_cut *oldest, *newest;
    uint32_t count;
} cdp__dt_passing;

/* The cuts of a mesh. */
typedef struct cdp__dt_cuts {
    cdp__dt_cut **by_hash, **by_number; /* `size` chains each, one behind the other in memory */
    uint32_t size, count;
    uint32_t last; /* number that was given */
    cdp__dt_passing passing[CDP_MESH_DIMS];
} cdp__dt_cuts;

/* Memory that messages or callbacks of a failed group may still access. It is freed after the
   group: first `memory` (may be NULL), then this record. */
typedef struct cdp__dt_retired {
    struct cdp__dt_retired *next;
    void *memory;
} cdp__dt_retired;

/* The group of one list of ranks, reference-counted. */
typedef struct cdp__dt_link {
    struct cdp__dt_link *next;
    cdp_group *group;
    cdp__dt_retired *retired;
    bool borrowed;
    uint32_t refs, count;
    uint32_t *ranks;
} cdp__dt_link;

/* Memory that plans and layers of a root use while they run, one after the other. */
typedef struct cdp__dt_scratch {
    struct cdp__dt_scratch *next;
    uint8_t *at;
    uint64_t bytes;
    cdp__dt_link *link; /* of its last user */
    cdp_plan *user;     /* the last one; NULL: it is gone, or was a layer */
    bool held;          /* a run has not returned, or its group has failed */
} cdp__dt_scratch;

/* State shared by meshes made from one another. */
typedef struct cdp__dt_root {
    uint32_t refs;
    const cdp_os *os;
    cdp_group *group; /* the caller's; NULL on paper */
    uint32_t size, rank;
    cdp__dt_link *links, *base; /* base: all ranks of the group, for plans between meshes */
    cdp__dt_scratch *scratch;
    cdp__dt_counter *counter;                    /* NULL: nothing is counted */
    uint32_t ndim, shape[CDP_MESH_DIMS], *ranks; /* of the first mesh */
} cdp__dt_root;

/* A plan that a mesh keeps, and its key: see >>dtensor/plan_words. */
#define CDP__DT_PLACE_WORDS 6u
#define CDP__DT_LAYOUT_WORDS (5u + CDP_TENSOR_DIMS + (2u + CDP__DT_PLACE_WORDS) * CDP_MESH_DIMS)
#define CDP__DT_KEY_WORDS (2u + 2u * CDP__DT_LAYOUT_WORDS)

typedef struct cdp__dt_kept {
    struct cdp__dt_kept *next;    /* of mesh `from`; the last used one is first */
    struct cdp__dt_kept *next_to; /* of mesh `to` */
    cdp_mesh *from, *to;
    cdp_plan *plan; /* and its spare ones: each run in flight has one of its own */
    uint64_t key[CDP__DT_KEY_WORDS];
} cdp__dt_kept;

struct cdp_mesh {
    cdp_mesh_desc desc; /* with defaults; names and ranks point into this struct */
    char names[CDP_MESH_DIMS][32];
    uint32_t count, me;             /* ranks; this one's position, or CDP__DT_NONE */
    uint32_t stride[CDP_MESH_DIMS]; /* of positions */
    uint32_t *ranks;
    uint64_t ranks_hash, name_hash[CDP_MESH_DIMS];
    cdp__dt_root *root;
    cdp__dt_link *link[CDP_MESH_DIMS], *all; /* groups; NULL on paper and outside */
    cdp__dt_cuts cuts;
    cdp__dt_kept *kept;    /* plans of cdp_redistribute() from this mesh */
    cdp__dt_kept *kept_to; /* those to this mesh, kept by their source */
    cdp_plan *retired;     /* no longer kept, but still running */
};

typedef enum cdp__dt_role {
    CDP__DT_SAME,
    CDP__DT_CUTS,
    CDP__DT_TERM
} cdp__dt_role;

typedef struct cdp__dt_side {
    uint32_t ndim; /* of regions */
    uint64_t shape[CDP__DT_DIMS];
    uint32_t dims; /* of the mesh */
    uint32_t size[CDP_MESH_DIMS], stride[CDP_MESH_DIMS];
    cdp__dt_role role[CDP_MESH_DIMS];
    uint32_t
        cuts; /* in the order of cutting: dimension of the mesh, of the region, block, starts */
    uint32_t cut_by[CDP_MESH_DIMS], cut_dim[CDP_MESH_DIMS];
    uint64_t block[CDP_MESH_DIMS];
    const uint64_t *own[CDP_MESH_DIMS];
    uint32_t count;                 /* number of positions */
    uint32_t cells, members, terms; /* members of a cell: copies x terms */
    uint32_t only;        /* the one node that holds all elements; CDP__DT_NONE: the mesh does */
    const uint32_t *node; /* node of each position; NULL: the position itself */
    const uint32_t *at;   /* position of each node, CDP__DT_NONE: outside; NULL: the same */
} cdp__dt_side;

CDP__DT uint32_t cdp__dt_digit(const cdp__dt_side *s, uint32_t position, uint32_t dim) {
    return position / s->stride[dim] % s->size[dim];
}

CDP__DT cdp__dt_region cdp__dt_whole(const cdp__dt_side *s) {
    cdp__dt_region r;
    memset(&r, 0, sizeof r);
    for (uint32_t d = 0; d < s->ndim; ++d)
        r.size[d] = s->shape[d];
    return r;
}

/* The region that the rank at a position holds. Empty pieces start at the end of the tensor. */
CDP__DT cdp__dt_region cdp__dt_region_of(const cdp__dt_side *s, uint32_t position) {
    cdp__dt_region r = cdp__dt_whole(s);
    uint64_t start;
    if (s->only != CDP__DT_NONE) return r;
    for (uint32_t k = 0; k < s->cuts; ++k) {
        const uint32_t d = s->cut_dim[k], by = s->cut_by[k];
        const uint32_t index = cdp__dt_digit(s, position, by);
        if (s->own[k]) {
            r.start[d] = s->own[k][index];
            r.size[d] = s->own[k][index + 1] - r.start[d];
        } else {
            r.size[d] = cdp__dt_chunk(r.size[d], s->block[k], s->size[by], index, &start);
            r.start[d] += start;
        }
        if (!r.size[d]) r.start[d] = s->shape[d];
    }
    return r;
}

/* The first position whose rank holds the element at `at`. */
CDP__DT uint32_t cdp__dt_position_of(const cdp__dt_side *s, const uint64_t *at) {
    cdp__dt_region r = cdp__dt_whole(s);
    uint32_t position = 0;
    uint64_t start;
    for (uint32_t k = 0; k < s->cuts; ++k) {
        const uint32_t d = s->cut_dim[k], by = s->cut_by[k];
        const uint64_t *own = s->own[k], offset = at[d] - r.start[d];
        uint32_t index = 0, above = s->size[by];
        while (own && above - index > 1) { /* the last piece that begins at or before the element */
            const uint32_t middle = index + (above - index) / 2;
            if (own[middle] <= at[d])
                index = middle;
            else
                above = middle;
        }
        if (!own) {
            const uint64_t piece = cdp__dt_chunk(r.size[d], s->block[k], s->size[by], 0, &start);
            index = piece ? (uint32_t)(offset / piece) : 0;
            r.size[d] = cdp__dt_chunk(r.size[d], s->block[k], s->size[by], index, &start);
            r.start[d] += start;
        }
        position += index * s->stride[by];
    }
    return position;
}

CDP__DT uint32_t cdp__dt_position(const cdp__dt_side *s, uint32_t node) {
    if (s->only != CDP__DT_NONE) return node == s->only ? 0 : CDP__DT_NONE;
    return s->at ? s->at[node] : node;
}

CDP__DT uint32_t cdp__dt_node(const cdp__dt_side *s, uint32_t position) {
    if (s->only != CDP__DT_NONE) return s->only;
    return s->node ? s->node[position] : position;
}

/* Combines the coordinates in the dimensions with (or without) role `role` to one number. */
CDP__DT uint32_t cdp__dt_squeeze(
    const cdp__dt_side *s, uint32_t position, cdp__dt_role role, bool with) {
    uint32_t n = 0;
    for (uint32_t d = 0; d < s->dims; ++d)
        if ((s->role[d] == role) == with) n = n * s->size[d] + cdp__dt_digit(s, position, d);
    return n;
}

/* The reverse: the position with these coordinates; its other coordinates are 0. */
CDP__DT uint32_t cdp__dt_spread(const cdp__dt_side *s, uint32_t n, cdp__dt_role role, bool with) {
    uint32_t position = 0;
    for (uint32_t d = s->dims; d-- > 0;)
        if ((s->role[d] == role) == with) {
            position += n % s->size[d] * s->stride[d];
            n /= s->size[d];
        }
    return position;
}

CDP__DT uint32_t cdp__dt_cell(const cdp__dt_side *s, uint32_t node) {
    const uint32_t position = cdp__dt_position(s, node);
    if (position == CDP__DT_NONE) return CDP__DT_NONE;
    return s->only != CDP__DT_NONE ? 0 : cdp__dt_squeeze(s, position, CDP__DT_CUTS, true);
}

CDP__DT cdp__dt_region cdp__dt_cell_region(const cdp__dt_side *s, uint32_t cell) {
    if (s->only != CDP__DT_NONE) return cdp__dt_whole(s);
    return cdp__dt_region_of(s, cdp__dt_spread(s, cell, CDP__DT_CUTS, true));
}

/* The number of a node among the members of its cell; below, the node of a member. */
CDP__DT uint32_t cdp__dt_member(const cdp__dt_side *s, uint32_t node) {
    if (s->only != CDP__DT_NONE) return 0;
    return cdp__dt_squeeze(s, cdp__dt_position(s, node), CDP__DT_CUTS, false);
}

CDP__DT uint32_t cdp__dt_member_node(const cdp__dt_side *s, uint32_t cell, uint32_t member) {
    if (s->only != CDP__DT_NONE) return s->only;
    return cdp__dt_node(s,
        cdp__dt_spread(s, cell, CDP__DT_CUTS, true)
            + cdp__dt_spread(s, member, CDP__DT_CUTS, false));
}

/* The number of the contribution that a node holds; below, the node that holds another
   contribution to the same replica. */
CDP__DT uint32_t cdp__dt_term(const cdp__dt_side *s, uint32_t node) {
    return cdp__dt_squeeze(s, cdp__dt_position(s, node), CDP__DT_TERM, true);
}

CDP__DT uint32_t cdp__dt_with_term(const cdp__dt_side *s, uint32_t node, uint32_t term) {
    uint32_t position = cdp__dt_position(s, node);
    position -= cdp__dt_spread(s, cdp__dt_term(s, node), CDP__DT_TERM, true);
    return cdp__dt_node(s, position + cdp__dt_spread(s, term, CDP__DT_TERM, true));
}

/* The sharding dimensions in the order in which they cut. */
CDP__DT uint32_t cdp__dt_sequence(
    const cdp_layout *l, uint32_t dims, uint32_t sequence[CDP_MESH_DIMS]) {
    uint32_t n = 0;
    for (uint32_t d = 0; d < dims; ++d) {
        uint32_t k = n;
        if (l->place[d].kind != CDP_PLACE_SHARD) continue;
        for (; k > 0 && l->place[sequence[k - 1]].order > l->place[d].order; --k)
            sequence[k] = sequence[k - 1];
        sequence[k] = d;
        ++n;
    }
    return n;
}

CDP__DT cdp__dt_cut **cdp__dt_cut_chain(const cdp__dt_cuts *t, uint32_t number) {
    return &t->by_number[number % t->size];
}

/* NULL: there is none of this number, or it was replaced and no plan uses it. */
CDP__DT cdp__dt_cut *cdp__dt_cut_find(const cdp_mesh *m, uint32_t number) {
    cdp__dt_cut *c = m->cuts.size ? *cdp__dt_cut_chain(&m->cuts, number) : NULL;
    while (c && c->number != number)
        c = c->next;
    return c;
}

CDP__DT const uint64_t *cdp__dt_cut_starts(const cdp_mesh *m, uint32_t number) {
    const cdp__dt_cut *c = cdp__dt_cut_find(m, number);
    return c ? c->starts : NULL;
}

CDP__DT cdp_dtype cdp__dt_dtype(const cdp_layout *l) {
    return l->dtype == CDP_DTYPE_DEFAULT ? CDP_DTYPE_F32 : l->dtype;
}

CDP__DT cdp_reduce_op cdp__dt_op(const cdp_place *p) {
    return p->op == CDP_REDUCE_DEFAULT ? CDP_REDUCE_SUM : p->op;
}

CDP__DT uint32_t cdp__dt_dim(const cdp_layout *l, uint32_t by) {
    const int32_t d = l->place[by].dim;
    return d < 0 ? (uint32_t)(d + (int32_t)l->ndim) : (uint32_t)d;
}

CDP__DT void cdp__dt_side_cut(
    cdp__dt_side *s, uint32_t by, uint32_t dim, uint64_t block, const uint64_t *own) {
    s->role[by] = CDP__DT_CUTS;
    s->cut_by[s->cuts] = by;
    s->cut_dim[s->cuts] = dim;
    s->block[s->cuts] = block ? block : 1;
    s->own[s->cuts++] = own;
}

/* Converts a valid layout to a side. `kept`: bits of mesh dimensions whose contributions stay
   separate, because the other layout has them, too. They cut an extra dimension after those of
   the tensor, with one element per contribution. */
CDP__DT cdp__dt_side cdp__dt_side_of(const cdp_layout *l, uint32_t kept) {
    const cdp_mesh *m = l->mesh;
    cdp__dt_side s;
    uint32_t sequence[CDP_MESH_DIMS], n, d;
    memset(&s, 0, sizeof s);
    s.ndim = l->ndim + (kept != 0);
    for (d = 0; d < l->ndim; ++d)
        s.shape[d] = l->shape[d];
    if (kept) s.shape[l->ndim] = 1;
    s.dims = m->desc.ndim;
    for (d = 0; d < s.dims; ++d) {
        s.size[d] = m->desc.shape[d];
        s.stride[d] = m->stride[d];
        if (l->place[d].kind == CDP_PLACE_PARTIAL) s.role[d] = CDP__DT_TERM;
    }
    n = cdp__dt_sequence(l, s.dims, sequence);
    for (uint32_t k = 0; k < n; ++k) {
        const cdp_place *p = &l->place[sequence[k]];
        cdp__dt_side_cut(&s, sequence[k], cdp__dt_dim(l, sequence[k]), p->block,
            p->cut ? cdp__dt_cut_starts(m, p->cut) : NULL);
    }
    for (d = 0; d < s.dims; ++d)
        if (kept >> d & 1) {
            s.shape[l->ndim] *= s.size[d];
            cdp__dt_side_cut(&s, d, l->ndim, 1, NULL);
        }
    s.count = m->count;
    s.only = CDP__DT_NONE;
    s.cells = s.terms = 1;
    for (d = 0; d < s.dims; ++d) {
        if (s.role[d] == CDP__DT_CUTS) s.cells *= s.size[d];
        if (s.role[d] == CDP__DT_TERM) s.terms *= s.size[d];
    }
    s.members = s.count / s.cells;
    return s;
}

/* The side of a tensor that one node holds completely. */
CDP__DT cdp__dt_side cdp__dt_side_only(const cdp_layout *l, uint32_t node) {
    cdp__dt_side s;
    memset(&s, 0, sizeof s);
    s.ndim = l->ndim;
    for (uint32_t d = 0; d < l->ndim; ++d)
        s.shape[d] = l->shape[d];
    s.only = node;
    s.count = s.cells = s.members = s.terms = 1;
    return s;
}

/* ---- >>dtensor/cuts: cuts that a program has chosen ------------------------------------------ */

/* Knows: the cuts of a mesh. Promises: equal cuts have one number, and no number is given twice;
   cuts of pieces do not grow with calls, and which of them are replaced follows from calls that
   all ranks make; plans keep what they use. */

/* Why the mesh is no mesh: it is NULL, or was destroyed. */
CDP__DT cdp_status cdp__dt_mesh_alive(const cdp_mesh *m, const char *call) {
    return m ? cdp__dt_alive(cdp__dt_mesh_mark(m), call, "mesh") : cdp__dt_missing(call, "mesh");
}

/* NULL for a mesh that was destroyed. */
CDP__DT const cdp_mesh *cdp__dt_mesh_known(const cdp_mesh *m) {
    return cdp__dt_mesh_ended(m) ? NULL : m;
}

/* How many cuts of pieces a dimension of n ranks has: CDP_MESH_CUTS, fewer if they took more than
   4 MiB, but 64. */
CDP__DT uint32_t cdp__dt_cuts_most(uint32_t n) {
    const uint64_t fit = (4ull << 20) / ((n + 1ull) * 8);
    return (uint32_t)cdp__max(64, cdp__min(fit, CDP_MESH_CUTS));
}

CDP__DT void cdp__dt_cut_link(cdp__dt_cuts *t, cdp__dt_cut *c) {
    cdp__dt_cut **number = cdp__dt_cut_chain(t, c->number), **hash = &t->by_hash[c->hash % t->size];
    c->next = *number;
    *number = c;
    if (c->replaced) return;
    c->next_hash = *hash;
    *hash = c;
}

CDP__DT void cdp__dt_cut_unlink_hash(cdp__dt_cuts *t, const cdp__dt_cut *c) {
    cdp__dt_cut **at = &t->by_hash[c->hash % t->size];
    while (*at != c)
        at = &(*at)->next_hash;
    *at = c->next_hash;
}

/* Makes room for one more. */
CDP__DT cdp_status cdp__dt_cuts_grow(cdp__dt_cuts *t, const cdp_os *os) {
    const cdp__dt_cuts old = *t;
    if (t->count < t->size) return CDP_OK;
    const uint32_t size = old.size ? 2 * old.size : 64;
    const uint64_t bytes = 2ull * size * sizeof *t->by_hash;
    cdp__dt_cut **chains = (cdp__dt_cut **)cdp__dt_alloc(os, bytes);
    if (!chains) return cdp__dt_nomem("a table of cuts", bytes);
    t->size = size;
    t->by_hash = chains;
    t->by_number = chains + size;
    for (uint32_t i = 0; i < old.size; ++i)
        for (cdp__dt_cut *c = old.by_number[i], *next; c; c = next) {
            next = c->next;
            cdp__dt_cut_link(t, c);
        }
    cdp__dt_free(os, old.by_hash);
    return CDP_OK;
}

/* The list of the cuts that may be replaced: puts one at its new end, or takes one out. */
CDP__DT void cdp__dt_cut_pass(cdp__dt_cuts *t, cdp__dt_cut *c) {
    cdp__dt_passing *list = &t->passing[c->dim];
    c->passing = true;
    c->newer = NULL;
    c->older = list->newest;
    if (c->older) c->older->newer = c;
    if (!list->oldest) list->oldest = c;
    list->newest = c;
    ++list->count;
}

CDP__DT void cdp__dt_cut_stay(cdp__dt_cuts *t, cdp__dt_cut *c) {
    cdp__dt_passing *list = &t->passing[c->dim];
    if (!c->passing) return;
    c->passing = false;
    if (c->older) c->older->newer = c->newer;
    if (c->newer) c->newer->older = c->older;
    if (list->oldest == c) list->oldest = c->newer;
    if (list->newest == c) list->newest = c->older;
    --list->count;
}

/* Frees one that was replaced, and that no plan uses. */
CDP__DT void cdp__dt_cut_end(cdp__dt_cuts *t, const cdp_os *os, cdp__dt_cut *c) {
    cdp__dt_cut **at = cdp__dt_cut_chain(t, c->number);
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    --t->count;
    cdp__dt_free(os, c);
}

/* Whether plans use a cut may differ between ranks; so that does not decide what is replaced. */
CDP__DT void cdp__dt_cuts_trim(cdp_mesh *m, uint32_t dim) {
    cdp__dt_cuts *t = &m->cuts;
    while (t->passing[dim].count > cdp__dt_cuts_most(m->desc.shape[dim])) {
        cdp__dt_cut *c = t->passing[dim].oldest;
        cdp__dt_cut_stay(t, c);
        cdp__dt_cut_unlink_hash(t, c);
        c->replaced = true;
        if (!c->plans) cdp__dt_cut_end(t, m->root->os, c);
    }
}

CDP__DT void cdp__dt_cuts_free(cdp_mesh *m) {
    cdp__dt_cuts *t = &m->cuts;
    for (uint32_t i = 0; i < t->size; ++i)
        while (t->by_number[i])
            cdp__dt_cut_end(t, m->root->os, t->by_number[i]);
    cdp__dt_free(m->root->os, t->by_hash);
}

/* Fills in where the pieces start. */
CDP__DT cdp_status cdp__dt_cut_fill(cdp__dt_cut *c, uint32_t n, const uint64_t *sizes) {
    for (uint32_t i = 0; i < n; ++i) {
        c->starts[i + 1] = c->starts[i] + sizes[i];
        if (sizes[i] >> 62 || c->starts[i + 1] >> 62)
            return cdp_error_set(CDP_ERR_INVALID, -1, 0,
                "cdp_mesh_cut: sizes[%u] is %llu; the sum must stay below 2^62", i,
                (unsigned long long)sizes[i]);
    }
    c->hash = cdp__dt_hash(c->starts, n + 1ull);
    return CDP_OK;
}

CDP__DT cdp__dt_cut *cdp__dt_cut_equal(const cdp__dt_cuts *t, const cdp__dt_cut *c, uint32_t n) {
    cdp__dt_cut *old = t->size ? t->by_hash[c->hash % t->size] : NULL;
    while (old
        && (old->hash != c->hash || old->dim != c->dim
            || memcmp(old->starts, c->starts, (size_t)(n + 1ull) * sizeof *c->starts) != 0))
        old = old->next_hash;
    return old;
}

/* Finds the cut that equals *c, or makes *c a cut of the mesh; sets *c to it. */
CDP__DT cdp_status cdp__dt_cut_take(cdp_mesh *m, bool passing, cdp__dt_cut **c) {
    cdp__dt_cuts *t = &m->cuts;
    cdp__dt_cut *old = cdp__dt_cut_equal(t, *c, m->desc.shape[(*c)->dim]);
    if (old) {
        cdp__dt_free(m->root->os, *c);
        *c = old;
        passing = passing && old->passing;
        cdp__dt_cut_stay(t, old);
        if (passing) cdp__dt_cut_pass(t, old);
        return CDP_OK;
    }
    const cdp_status st = cdp__dt_cuts_grow(t, m->root->os);
    if (st != CDP_OK) return st;
    do
        ++t->last;
    while (!t->last || cdp__dt_cut_find(m, t->last));
    (*c)->number = t->last;
    ++t->count;
    cdp__dt_cut_link(t, *c);
    if (passing) cdp__dt_cut_pass(t, *c);
    return CDP_OK;
}

/* As cdp_mesh_cut(). passing: others may replace it. */
CDP__DT cdp_status cdp__dt_cut_of(
    cdp_mesh *m, uint32_t dim, const uint64_t *sizes, bool passing, uint32_t *number) {
    const uint32_t n = m->desc.shape[dim];
    const uint64_t bytes = sizeof(cdp__dt_cut) + (n + 1ull) * 8;
    cdp__dt_cut *c = (cdp__dt_cut *)cdp__dt_alloc(m->root->os, bytes);
    if (!c) return cdp__dt_nomem("a cut", bytes);
    c->dim = dim;
    c->starts = (uint64_t *)(void *)(c + 1);
    cdp_status st = cdp__dt_cut_fill(c, n, sizes);
    if (st == CDP_OK) st = cdp__dt_cut_take(m, passing, &c);
    if (st != CDP_OK) {
        cdp__dt_free(m->root->os, c);
        return st;
    }
    *number = c->number;
    cdp__dt_cuts_trim(m, dim);
    return CDP_OK;
}

/* The cut of a placement, NULL: it has none. */
CDP__DT cdp__dt_cut *cdp__dt_cut_placed(const cdp_layout *l, uint32_t by) {
    const cdp_place *p = &l->place[by];
    return p->kind == CDP_PLACE_SHARD && p->cut ? cdp__dt_cut_find(l->mesh, p->cut) : NULL;
}

/* True: the cuts of the layout exist, and none was replaced. */
CDP__DT bool cdp__dt_cuts_last(const cdp_layout *l) {
    for (uint32_t by = 0; by < l->mesh->desc.ndim; ++by) {
        const cdp__dt_cut *c = cdp__dt_cut_placed(l, by);
        if (c ? c->replaced : l->place[by].kind == CDP_PLACE_SHARD && l->place[by].cut != 0)
            return false;
    }
    return true;
}

/* True: numbers of the cuts of one layout mean the same on the mesh of the other. */
CDP__DT bool cdp__dt_cuts_shared(const cdp_layout *a, const cdp_layout *b) {
    for (uint32_t by = 0; a->mesh != b->mesh && by < a->mesh->desc.ndim; ++by)
        if (cdp__dt_cut_placed(a, by) || cdp__dt_cut_placed(b, by)) return false;
    return true;
}

/* A plan begins to use the cuts of a valid layout. */
CDP__DT void cdp__dt_cuts_hold(const cdp_layout *l) {
    for (uint32_t by = 0; by < l->mesh->desc.ndim; ++by) {
        cdp__dt_cut *c = cdp__dt_cut_placed(l, by);
        if (c) ++c->plans;
    }
}

CDP__DT void cdp__dt_cuts_release(const cdp_layout *l) {
    if (cdp__dt_mesh_ended(l->mesh)) return;
    cdp_mesh *m = (cdp_mesh *)(uintptr_t)l->mesh;
    for (uint32_t by = 0; by < m->desc.ndim; ++by) {
        cdp__dt_cut *c = cdp__dt_cut_placed(l, by);
        if (c && !--c->plans && c->replaced) cdp__dt_cut_end(&m->cuts, m->root->os, c);
    }
}

/* A collective call has used the layout: its cuts are the last ones to be replaced. */
CDP__DT void cdp__dt_cuts_touch(const cdp_layout *l) {
    cdp_mesh *m = (cdp_mesh *)(uintptr_t)l->mesh;
    for (uint32_t by = 0; by < m->desc.ndim; ++by) {
        cdp__dt_cut *c = cdp__dt_cut_placed(l, by);
        if (!c || !c->passing) continue;
        cdp__dt_cut_stay(&m->cuts, c);
        cdp__dt_cut_pass(&m->cuts, c);
    }
}

CDP_API cdp_status cdp_mesh_cut(cdp_mesh *m, uint32_t dim, const uint64_t *sizes, uint32_t *cut) {
    const cdp_status st = cdp__dt_mesh_alive(m, "cdp_mesh_cut");
    if (st != CDP_OK) return st;
    if (!sizes) return cdp__dt_missing("cdp_mesh_cut", "sizes");
    if (!cut) return cdp__dt_missing("cdp_mesh_cut", "cut");
    if (dim >= m->desc.ndim)
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_mesh_cut: there is no dimension %u; the mesh has %u dimensions", dim,
            m->desc.ndim);
    return cdp__dt_cut_of(m, dim, sizes, false, cut);
}

/* ---- >>dtensor/moves: which rank sends what to which (pure) ---------------------------------- */

/* Knows: two sides. Promises: every rank computes its own sends and receives without messages; the
   bytes of all ranks are the minimum. */

typedef struct cdp__dt_pair {
    cdp__dt_side from, to;
    uint32_t nodes;
    /* both sides number their positions alike, so counts have closed formulas */
    bool product;
    uint32_t host_nodes; /* so many consecutive nodes share a host; 0: all */
} cdp__dt_pair;

typedef enum cdp__dt_move_kind {
    CDP__DT_LOCAL,     /* phase B: from the source array to the target array */
    CDP__DT_SEND,      /* phase B: from the source array to a peer */
    CDP__DT_RECV,      /* phase B: from a peer to the target array */
    CDP__DT_OWN,       /* phase A: this rank is to reduce the region; opens a slab */
    CDP__DT_TERM_SEND, /* phase A: this rank's contribution to a peer */
    CDP__DT_TERM_RECV, /* phase A: a contribution to the last slab */
    CDP__DT_OWN_LOCAL, /* phase B: from the last slab to the target array */
    CDP__DT_OWN_SEND   /* phase B: from the last slab to a peer */
} cdp__dt_move_kind;

typedef struct cdp__dt_move {
    cdp__dt_move_kind kind;
    uint32_t peer; /* OWN: this rank's own term */
    cdp__dt_region region;
} cdp__dt_move;

typedef void cdp__dt_emit(void *user, const cdp__dt_move *move);

CDP__DT void cdp__dt_emit_move(cdp__dt_emit *emit, void *user, cdp__dt_move_kind kind,
    uint32_t peer, const cdp__dt_region *region) {
    cdp__dt_move m;
    m.kind = kind;
    m.peer = peer;
    m.region = *region;
    emit(user, &m);
}

/* The number of members of target cell `t`, below member `before`, that are members of source
   cell `c`. */
CDP__DT uint32_t cdp__dt_common_product(
    const cdp__dt_pair *p, uint32_t t, uint32_t c, uint32_t before) {
    const uint32_t tp = cdp__dt_spread(&p->to, t, CDP__DT_CUTS, true);
    const uint32_t cp = cdp__dt_spread(&p->from, c, CDP__DT_CUTS, true);
    uint32_t inner[CDP_MESH_DIMS + 1], n = 0, d, free_size = 1;
    inner[p->to.dims] = 1;
    for (d = p->to.dims; d-- > 0;) {
        const bool by_to = p->to.role[d] == CDP__DT_CUTS, by_from = p->from.role[d] == CDP__DT_CUTS;
        if (by_to && by_from && cdp__dt_digit(&p->to, tp, d) != cdp__dt_digit(&p->from, cp, d))
            return 0;
        inner[d] = inner[d + 1] * (by_to || by_from ? 1 : p->to.size[d]);
        if (!by_to) free_size *= p->to.size[d];
    }
    if (before >= free_size) return inner[0];
    const uint32_t at = cdp__dt_spread(&p->to, before, CDP__DT_CUTS, false);
    for (d = 0; d < p->to.dims; ++d) {
        const uint32_t digit = cdp__dt_digit(&p->to, at, d);
        if (p->to.role[d] == CDP__DT_CUTS) continue;
        if (p->from.role[d] != CDP__DT_CUTS) {
            n += digit * inner[d + 1];
            continue;
        }
        const uint32_t fixed = cdp__dt_digit(&p->from, cp, d);
        if (fixed < digit) return n + inner[d + 1];
        if (fixed > digit) return n;
    }
    return n;
}

CDP__DT uint32_t cdp__dt_common(const cdp__dt_pair *p, uint32_t t, uint32_t c, uint32_t before) {
    uint32_t n = 0;
    if (p->product) return cdp__dt_common_product(p, t, c, before);
    for (uint32_t k = 0; k < before && k < p->to.members; ++k)
        n += cdp__dt_cell(&p->from, cdp__dt_member_node(&p->to, t, k)) == c;
    return n;
}

/* The holder that sends to the `i`-th rank that needs the element: if possible, one on the same
   host. */
CDP__DT uint32_t cdp__dt_holder(
    const cdp__dt_pair *p, uint32_t c, uint32_t t, uint32_t i, uint32_t node) {
    const uint32_t members = p->from.members, h = p->host_nodes;
    uint32_t nearby = 0, k;
    for (k = 0; h && k < members; ++k)
        nearby += cdp__dt_member_node(&p->from, c, k) / h == node / h;
    if (!nearby) return cdp__dt_member_node(&p->from, c, (i + t) % members);
    uint32_t skip = (i + t) % nearby;
    for (k = 0; k < members; ++k) {
        const uint32_t holder = cdp__dt_member_node(&p->from, c, k);
        if (holder / h == node / h && skip-- == 0) return holder;
    }
    return CDP__DT_NONE;
}

CDP__DT void cdp__dt_plain_receives(
    const cdp__dt_pair *p, uint32_t node, cdp__dt_emit *emit, void *user) {
    const uint32_t t = cdp__dt_cell(&p->to, node), own = cdp__dt_cell(&p->from, node);
    cdp__dt_region part, target;
    if (t == CDP__DT_NONE) return;
    const uint32_t k = cdp__dt_member(&p->to, node);
    target = cdp__dt_cell_region(&p->to, t);
    for (uint32_t c = 0; c < p->from.cells; ++c) {
        const cdp__dt_region source = cdp__dt_cell_region(&p->from, c);
        if (!cdp__dt_intersect(&source, &target, p->to.ndim, &part)) continue;
        if (c == own) {
            cdp__dt_emit_move(emit, user, CDP__DT_LOCAL, node, &part);
            continue;
        }
        const uint32_t i = k - cdp__dt_common(p, t, c, k);
        cdp__dt_emit_move(emit, user, CDP__DT_RECV, cdp__dt_holder(p, c, t, i, node), &part);
    }
}

CDP__DT void cdp__dt_plain_sends(
    const cdp__dt_pair *p, uint32_t node, cdp__dt_emit *emit, void *user) {
    const uint32_t c = cdp__dt_cell(&p->from, node), holders = p->from.members;
    cdp__dt_region part;
    if (c == CDP__DT_NONE) return;
    const cdp__dt_region source = cdp__dt_cell_region(&p->from, c);
    const uint32_t mine = cdp__dt_member(&p->from, node);
    for (uint32_t t = 0; t < p->to.cells; ++t) {
        const cdp__dt_region target = cdp__dt_cell_region(&p->to, t);
        if (!cdp__dt_intersect(&source, &target, p->to.ndim, &part)) continue;
        for (uint32_t k = 0, i = 0; k < p->to.members; ++k) {
            const uint32_t peer = cdp__dt_member_node(&p->to, t, k);
            if (cdp__dt_cell(&p->from, peer) == c) continue;
            const bool serves = p->host_nodes ? cdp__dt_holder(p, c, t, i, peer) == node
                                              : (i + t) % holders == mine;
            if (serves) cdp__dt_emit_move(emit, user, CDP__DT_SEND, peer, &part);
            ++i;
        }
    }
}

/* The owners of the common elements of source cell c and target cell t: `count` nodes. The first
   `parts` of them, rotated by `turn`, get a slab each. */
typedef struct cdp__dt_owners {
    uint32_t c, t, count, parts;
    bool needed; /* they are members of t; otherwise of c only */
} cdp__dt_owners;

CDP__DT cdp__dt_owners cdp__dt_owners_of(const cdp__dt_pair *p, uint32_t c, uint32_t t) {
    cdp__dt_owners o;
    o.c = c;
    o.t = t;
    o.count = cdp__dt_common(p, t, c, p->to.members);
    o.needed = o.count > 0;
    if (!o.needed) o.count = p->from.members;
    const bool whole = !p->to.ndim || (!o.needed && p->to.cells >= o.count);
    o.parts = whole ? 1 : o.count;
    return o;
}

/* The slab of owner number `a`; false if it is empty. */
CDP__DT bool cdp__dt_owner_slab(const cdp__dt_pair *p, const cdp__dt_owners *o, uint32_t a,
    const cdp__dt_region *part, cdp__dt_region *slab) {
    const uint32_t index = (a + o->t + o->c) % o->count;
    if (index >= o->parts) return false;
    *slab = cdp__dt_slab(part, p->to.ndim, o->parts, index);
    return cdp__dt_volume(slab, p->to.ndim) != 0;
}

/* Finds the next owner, from member number *k on, which begins at 0. Stores its node in *node, and
   the number of the member after it in *k. False: there are no more owners. */
CDP__DT bool cdp__dt_owner_next(
    const cdp__dt_pair *p, const cdp__dt_owners *o, uint32_t *k, uint32_t *node) {
    const cdp__dt_side *s = o->needed ? &p->to : &p->from;
    while (*k < s->members) {
        *node = cdp__dt_member_node(s, o->needed ? o->t : o->c, (*k)++);
        if (!o->needed || cdp__dt_cell(&p->from, *node) == o->c) return true;
    }
    return false;
}

/* Emits the moves of the owner of a slab. */
CDP__DT void cdp__dt_own(const cdp__dt_pair *p, uint32_t t, uint32_t node,
    const cdp__dt_region *slab, cdp__dt_emit *emit, void *user) {
    const uint32_t own = cdp__dt_term(&p->from, node);
    cdp__dt_emit_move(emit, user, CDP__DT_OWN, own, slab);
    for (uint32_t term = 0; term < p->from.terms; ++term)
        if (term != own)
            cdp__dt_emit_move(
                emit, user, CDP__DT_TERM_RECV, cdp__dt_with_term(&p->from, node, term), slab);
    for (uint32_t k = 0; k < p->to.members; ++k) {
        const uint32_t peer = cdp__dt_member_node(&p->to, t, k);
        cdp__dt_emit_move(
            emit, user, peer == node ? CDP__DT_OWN_LOCAL : CDP__DT_OWN_SEND, peer, slab);
    }
}

CDP__DT void cdp__dt_term_sends(
    const cdp__dt_pair *p, uint32_t node, cdp__dt_emit *emit, void *user) {
    const uint32_t c = cdp__dt_cell(&p->from, node);
    cdp__dt_region part, slab;
    if (c == CDP__DT_NONE) return;
    const cdp__dt_region source = cdp__dt_cell_region(&p->from, c);
    const uint32_t term = cdp__dt_term(&p->from, node);
    for (uint32_t t = 0; t < p->to.cells; ++t) {
        const cdp__dt_region target = cdp__dt_cell_region(&p->to, t);
        if (!cdp__dt_intersect(&source, &target, p->to.ndim, &part)) continue;
        const cdp__dt_owners o = cdp__dt_owners_of(p, c, t);
        uint32_t owner = 0;
        for (uint32_t k = 0, a = 0; cdp__dt_owner_next(p, &o, &k, &owner); ++a) {
            if (!cdp__dt_owner_slab(p, &o, a, &part, &slab)) continue;
            if (owner == node)
                cdp__dt_own(p, t, node, &slab, emit, user);
            else if (cdp__dt_with_term(&p->from, owner, term) == node)
                cdp__dt_emit_move(emit, user, CDP__DT_TERM_SEND, owner, &slab);
        }
    }
}

CDP__DT void cdp__dt_term_receives(
    const cdp__dt_pair *p, uint32_t node, cdp__dt_emit *emit, void *user) {
    const uint32_t t = cdp__dt_cell(&p->to, node);
    cdp__dt_region part, slab;
    if (t == CDP__DT_NONE) return;
    const cdp__dt_region target = cdp__dt_cell_region(&p->to, t);
    for (uint32_t c = 0; c < p->from.cells; ++c) {
        const cdp__dt_region source = cdp__dt_cell_region(&p->from, c);
        if (!cdp__dt_intersect(&source, &target, p->to.ndim, &part)) continue;
        const cdp__dt_owners o = cdp__dt_owners_of(p, c, t);
        uint32_t owner = 0;
        for (uint32_t k = 0, a = 0; cdp__dt_owner_next(p, &o, &k, &owner); ++a)
            if (owner != node && cdp__dt_owner_slab(p, &o, a, &part, &slab))
                cdp__dt_emit_move(emit, user, CDP__DT_RECV, owner, &slab);
    }
}

/* Emits all moves of `node`. */
CDP__DT void cdp__dt_moves(const cdp__dt_pair *p, uint32_t node, cdp__dt_emit *emit, void *user) {
    if (p->from.terms > 1) {
        cdp__dt_term_sends(p, node, emit, user);
        cdp__dt_term_receives(p, node, emit, user);
    } else {
        cdp__dt_plain_sends(p, node, emit, user);
        cdp__dt_plain_receives(p, node, emit, user);
    }
}

/* The elements that a node receives while contributions are reduced and copied. */
CDP__DT uint64_t cdp__dt_reduced_recv(const cdp__dt_pair *p, uint32_t node) {
    const uint32_t c = cdp__dt_cell(&p->from, node), own = cdp__dt_cell(&p->to, node);
    const bool all =
        p->from.cells > 1 || !p->product; /* else a node owns slabs of its own target alone */
    cdp__dt_region part, slab;
    uint64_t got = 0;
    if (own != CDP__DT_NONE) {
        const cdp__dt_region target = cdp__dt_cell_region(&p->to, own);
        got = cdp__dt_volume(&target, p->to.ndim);
    }
    if (c == CDP__DT_NONE) return got;
    const cdp__dt_region source = cdp__dt_cell_region(&p->from, c);
    for (uint32_t t = all ? 0 : own; t < p->to.cells && (all || t == own); ++t) {
        const cdp__dt_region target = cdp__dt_cell_region(&p->to, t);
        if (!cdp__dt_intersect(&source, &target, p->to.ndim, &part)) continue;
        const cdp__dt_owners o = cdp__dt_owners_of(p, c, t);
        if (o.needed && t != own) continue;
        const uint32_t a = o.needed ? cdp__dt_common(p, t, c, cdp__dt_member(&p->to, node))
                                    : cdp__dt_member(&p->from, node);
        if (!cdp__dt_owner_slab(p, &o, a, &part, &slab)) continue;
        got += (p->from.terms - 1) * cdp__dt_volume(&slab, p->to.ndim);
        if (t == own) got -= cdp__dt_volume(&slab, p->to.ndim);
    }
    return got;
}

/* The most that one node receives. Where contributions are cut, too, and it would take more than
   2^18 looks at pieces, it is the mean, rounded up. */
CDP__DT uint64_t cdp__dt_reduced_most(const cdp__dt_pair *p, uint64_t total) {
    uint64_t most = 0;
    const bool alone = p->product && p->from.cells == 1;
    if (!alone && (uint64_t)p->nodes * p->to.cells > (1u << 18))
        return (total + p->nodes - 1) / p->nodes;
    for (uint32_t node = 0; node < p->nodes; ++node)
        most = cdp__max(most, cdp__dt_reduced_recv(p, node));
    return most;
}

/* Elements that all ranks receive together, and the most that one receives. */
typedef struct cdp__dt_cost {
    uint64_t total, busiest;
} cdp__dt_cost;

CDP__DT cdp__dt_cost cdp__dt_cost_of(const cdp__dt_pair *p) {
    const uint64_t terms = p->from.terms;
    cdp__dt_cost cost = {0, 0};
    uint64_t shared = 0;
    cdp__dt_region part;
    for (uint32_t k = 0; k < p->to.count; ++k) {
        const uint32_t node = cdp__dt_node(&p->to, k), c = cdp__dt_cell(&p->from, node);
        const cdp__dt_region target = cdp__dt_region_of(&p->to, k);
        const uint64_t need = cdp__dt_volume(&target, p->to.ndim);
        uint64_t have = 0;
        if (c != CDP__DT_NONE) {
            const cdp__dt_region source = cdp__dt_cell_region(&p->from, c);
            if (cdp__dt_intersect(&source, &target, p->to.ndim, &part))
                have = cdp__dt_volume(&part, p->to.ndim);
        }
        if (terms > 1 && have) { /* counted once for each common member of both cells */
            const uint32_t t = cdp__dt_cell(&p->to, node), m = cdp__dt_member(&p->to, node);
            if (cdp__dt_common(p, t, c, m) == 0) shared += have;
        }
        cost.total = cdp__dt_plus_most(cost.total, terms > 1 ? need : need - have);
        cost.busiest = cdp__max(cost.busiest, need - have);
    }
    if (terms
        > 1) { /* need counts m copies of each element: the bound is (terms - 1) + m - shared */
        const cdp__dt_region all = cdp__dt_whole(&p->from);
        const uint64_t sums = cdp__dt_times_most(terms - 1, cdp__dt_volume(&all, p->from.ndim));
        cost.total = cdp__dt_plus_most(cost.total - shared, sums);
        cost.busiest = cdp__dt_reduced_most(p, cost.total);
    }
    return cost;
}

/* ---- >>dtensor/single: moves that are one collective of all ranks, or of the ranks along one - */

/* dimension of their mesh (pure)

   Knows: two sides. Promises: the same answer on all ranks; a collective of contiguous memory, in
   the order of the nodes. */

/* A collective of `nodes` nodes, whose numbers are `step` apart. All nodes of the mesh take part,
   each in one such row. */
typedef struct cdp__dt_single {
    cdp_coll_kind kind; /* NONE: the moves are not one collective */
    uint32_t by;        /* dimension of the mesh; CDP__DT_NONE: one row has all nodes */
    uint32_t nodes, step;
    uint64_t count; /* elements, as that collective counts them; the most of all rows */
    uint64_t total; /* elements that the nodes of all rows receive */
} cdp__dt_single;

/* The number of a node in its row; below, the first node of that row. */
CDP__DT uint32_t cdp__dt_single_index(const cdp__dt_single *s, uint32_t node) {
    return node / s->step % s->nodes;
}

CDP__DT uint32_t cdp__dt_single_first(const cdp__dt_single *s, uint32_t node) {
    return node - cdp__dt_single_index(s, node) * s->step;
}

/* Elements for the collective s->kind of the row that begins at node `first`. False: what its nodes
   have are not equal pieces that follow one another in what they shall have, or the reverse. */
CDP__DT bool cdp__dt_row_count(
    const cdp__dt_pair *p, const cdp__dt_single *s, uint32_t first, uint64_t *count) {
    const bool gathers = s->kind == CDP_COLL_ALLGATHER;
    const uint64_t parts = s->kind == CDP_COLL_ALLREDUCE ? 1 : s->nodes;
    const cdp__dt_side *whole = gathers ? &p->to : &p->from, *cut = gathers ? &p->from : &p->to;
    const cdp__dt_region all = cdp__dt_region_of(whole, first);
    const uint64_t volume = cdp__dt_volume(&all, whole->ndim), each = volume / parts;
    *count = each;
    for (uint32_t i = 0; i < s->nodes; ++i) {
        const cdp__dt_region same = cdp__dt_region_of(whole, first + i * s->step);
        const cdp__dt_region piece = cdp__dt_region_of(cut, first + i * s->step);
        if (memcmp(&same, &all, sizeof same) != 0) return false;
        if (cdp__dt_volume(&piece, cut->ndim) * parts != volume) return false;
        if (!volume) continue;
        const cdp__dt_copy c = cdp__dt_copy_of(&piece, &all, &piece, cut->ndim, 1);
        if (c.dims || c.from_at != (parts == 1 ? 0 : i * each)) return false;
    }
    return true;
}

/* The collective of a dimension whose nodes have roles `from` and shall have roles `to`. */
CDP__DT cdp_coll_kind cdp__dt_role_kind(cdp__dt_role from, cdp__dt_role to) {
    if (from == CDP__DT_TERM && to == CDP__DT_SAME) return CDP_COLL_ALLREDUCE;
    if (from == CDP__DT_TERM && to == CDP__DT_CUTS) return CDP_COLL_REDUCE_SCATTER;
    if (from == CDP__DT_CUTS && to == CDP__DT_SAME) return CDP_COLL_ALLGATHER;
    return CDP_COLL_NONE;
}

/* A row of all nodes, if all dimensions change. A target may be cut by some of them alone; then
   its pieces do not fit. */
CDP__DT cdp__dt_single cdp__dt_single_whole(const cdp__dt_pair *p) {
    cdp__dt_single s = {CDP_COLL_NONE, CDP__DT_NONE, p->nodes, 1, 0, 0};
    const bool sums = p->from.terms == p->nodes && p->from.cells == 1;
    const bool replicated = p->to.cells == 1 && p->to.terms == 1;
    if (sums && p->to.terms == 1)
        s.kind = cdp__dt_role_kind(CDP__DT_TERM, replicated ? CDP__DT_SAME : CDP__DT_CUTS);
    else if (p->from.terms == 1 && p->from.cells == p->nodes && replicated)
        s.kind = CDP_COLL_ALLGATHER;
    return s;
}

/* The rows along the only dimension that changes. */
CDP__DT cdp__dt_single cdp__dt_single_along(const cdp__dt_pair *p) {
    cdp__dt_single s = {CDP_COLL_NONE, CDP__DT_NONE, 0, 0, 0, 0};
    for (uint32_t d = 0; d < p->from.dims; ++d) {
        if (p->from.size[d] == 1 || p->from.role[d] == p->to.role[d]) continue;
        if (s.by != CDP__DT_NONE) s.kind = CDP_COLL_NONE;
        if (s.by != CDP__DT_NONE) return s;
        s.by = d;
        s.kind = cdp__dt_role_kind(p->from.role[d], p->to.role[d]);
        s.nodes = p->from.size[d];
        s.step = p->from.stride[d];
    }
    return s;
}

/* Fills in what all rows have together; NONE if there is a row that is no such collective. */
CDP__DT void cdp__dt_single_rows(const cdp__dt_pair *p, cdp__dt_single *s) {
    const uint64_t others = s->nodes - 1ull;
    const uint64_t times = s->kind == CDP_COLL_ALLREDUCE ? 2 * others : s->nodes * others;
    for (uint32_t node = 0; s->kind && node < p->nodes; ++node) {
        uint64_t count;
        if (cdp__dt_single_first(s, node) != node) continue;
        if (!cdp__dt_row_count(p, s, node, &count)) s->kind = CDP_COLL_NONE;
        s->count = cdp__max(s->count, count);
        s->total = cdp__dt_plus_most(s->total, cdp__dt_times_most(times, count));
    }
    if (!s->count) s->kind = CDP_COLL_NONE;
}

/* The collective that changes p->from into p->to. */
CDP__DT cdp__dt_single cdp__dt_single_of(const cdp__dt_pair *p) {
    cdp__dt_single s = {CDP_COLL_NONE, CDP__DT_NONE, 0, 0, 0, 0};
    if (!p->product || p->nodes < 2 || p->from.count != p->nodes) return s;
    s = cdp__dt_single_whole(p);
    cdp__dt_single_rows(p, &s);
    if (s.kind == CDP_COLL_NONE) {
        s = cdp__dt_single_along(p);
        cdp__dt_single_rows(p, &s);
    }
    if (s.kind == CDP_COLL_NONE) s.count = 0;
    return s;
}

/* The elements that a node receives: it reduces one part, and receives the others. `count`: that of
   its row. */
CDP__DT uint64_t cdp__dt_single_recv(const cdp__dt_single *s, uint32_t node, uint64_t count) {
    const uint32_t index = cdp__dt_single_index(s, node);
    const uint64_t others = s->nodes - 1ull;
    if (s->kind != CDP_COLL_ALLREDUCE) return cdp__dt_times_most(others, count);
    const uint64_t part = count / s->nodes + (index < count % s->nodes);
    return cdp__dt_plus_most(cdp__dt_times_most(others, part), count - part);
}

/* The rounds in which all nodes hear from all others, if a node sends to one at a time. */
CDP__DT uint32_t cdp__dt_single_rounds(uint32_t nodes) {
    uint32_t rounds = 0;
    while ((uint64_t)1 << rounds < nodes)
        ++rounds;
    return rounds;
}

/* ---- >>dtensor/sums: sums that are several collectives, along dimensions of the mesh (pure) -- */

/* Knows: two sides that differ only where the source is PARTIAL. Promises: every element is summed
   once; the same calls, in the same order, on all ranks of a row. */

/* A sum over some dimensions, of a tensor that others replicate. Each replica sums a slice, and
   gathers the others. */
typedef struct cdp__dt_sum {
    uint32_t terms, copies; /* bits of dimensions of the mesh; terms 0: this is no such sum */
    bool whole;             /* all dimensions are terms: one call of all ranks */
} cdp__dt_sum;

/* One call: `count` elements of the local array from `at` on, of which the ranks of an allgather or
   reduce-scatter have a share each. */
typedef struct cdp__dt_call {
    cdp_coll_kind kind;
    uint32_t by; /* dimension of the mesh; CDP__DT_NONE: all ranks */
    uint32_t nodes, index;
    uint64_t at, count;
} cdp__dt_call;

#define CDP__DT_CALLS (2u * CDP_MESH_DIMS) /* at most, of one sum */

typedef struct cdp__dt_calls {
    cdp__dt_call call[CDP__DT_CALLS];
    uint32_t count;
} cdp__dt_calls;

/* The elements of share `index`; *start: those before it. */
CDP__DT uint64_t cdp__dt_share(uint64_t n, uint32_t nodes, uint32_t index, uint64_t *start) {
    const uint64_t each = n / nodes, more = n % nodes;
    *start = each * index + cdp__min(index, more);
    return each + (index < more);
}

/* The elements that a node receives in a call. */
CDP__DT uint64_t cdp__dt_call_recv(const cdp__dt_call *c) {
    uint64_t start;
    const uint64_t own = cdp__dt_share(c->count, c->nodes, c->index, &start);
    const uint64_t terms = cdp__dt_times_most(c->nodes - 1ull, own);
    switch (c->kind) {
    case CDP_COLL_ALLREDUCE: return cdp__dt_plus_most(terms, c->count - own);
    case CDP_COLL_REDUCE_SCATTER: return terms;
    default: return c->count - own; /* of an allgather */
    }
}

CDP__DT void cdp__dt_call_add(cdp__dt_calls *out, cdp_coll_kind kind, const cdp__dt_side *side,
    uint32_t by, uint32_t node, uint64_t at, uint64_t count) {
    const bool all = by == CDP__DT_NONE;
    if (!count) return;
    cdp__dt_call *c = &out->call[out->count++];
    c->kind = kind;
    c->by = by;
    c->nodes = all ? side->count : side->size[by];
    c->index = all ? node : cdp__dt_digit(side, node, by);
    c->at = at;
    c->count = count;
}

/* The last of these dimensions. */
CDP__DT uint32_t cdp__dt_last_dim(uint32_t bits) {
    uint32_t by = CDP_MESH_DIMS - 1;
    while (by && !(bits >> by & 1))
        --by;
    return by;
}

/* The calls of a node that has n elements: replicas take slices; all but the last dimension of
   terms scatter, that one reduces; then all are gathered in the reverse order. */
CDP__DT cdp__dt_calls cdp__dt_sum_calls(
    const cdp__dt_side *side, const cdp__dt_sum *s, uint32_t node, uint64_t n) {
    const uint32_t last = s->whole ? CDP__DT_NONE : cdp__dt_last_dim(s->terms);
    uint32_t outer[CDP_MESH_DIMS], levels = 0;
    uint64_t at[CDP_MESH_DIMS + 1] = {0}, count[CDP_MESH_DIMS + 1], start;
    cdp__dt_calls out;
    memset(&out, 0, sizeof out);
    count[0] = n;
    for (uint32_t turn = 0; turn < 2 && !s->whole; ++turn)
        for (uint32_t by = 0; by < side->dims; ++by) {
            const uint32_t bits = turn ? s->terms : s->copies;
            if (!(bits >> by & 1) || (turn && by == last)) continue;
            if (turn)
                cdp__dt_call_add(
                    &out, CDP_COLL_REDUCE_SCATTER, side, by, node, at[levels], count[levels]);
            outer[levels] = by;
            count[levels + 1] =
                cdp__dt_share(count[levels], side->size[by], cdp__dt_digit(side, node, by), &start);
            at[levels + 1] = at[levels] + start;
            ++levels;
        }
    cdp__dt_call_add(&out, CDP_COLL_ALLREDUCE, side, last, node, at[levels], count[levels]);
    while (levels-- > 0)
        cdp__dt_call_add(
            &out, CDP_COLL_ALLGATHER, side, outer[levels], node, at[levels], count[levels]);
    return out;
}

/* What all nodes receive; in *most, the most elements that one has. */
CDP__DT cdp__dt_cost cdp__dt_sum_cost(
    const cdp__dt_side *side, const cdp__dt_sum *s, uint64_t *most) {
    cdp__dt_cost cost = {0, 0};
    *most = 0;
    for (uint32_t node = 0; node < side->count; ++node) {
        const cdp__dt_region r = cdp__dt_region_of(side, node);
        const uint64_t n = cdp__dt_volume(&r, side->ndim);
        const cdp__dt_calls calls = cdp__dt_sum_calls(side, s, node, n);
        uint64_t got = 0;
        for (uint32_t k = 0; k < calls.count; ++k)
            got = cdp__dt_plus_most(got, cdp__dt_call_recv(&calls.call[k]));
        cost.total = cdp__dt_plus_most(cost.total, got);
        cost.busiest = cdp__max(cost.busiest, got);
        *most = cdp__max(*most, n);
    }
    return cost;
}

/* Finds out whether a stage is such a sum. `usable`: bits of the dimensions that have a group. */
CDP__DT cdp__dt_sum cdp__dt_sum_find(const cdp__dt_pair *p, uint32_t usable) {
    cdp__dt_sum s = {0, 0, false}, none = {0, 0, false};
    uint32_t cuts = 0;
    if (!p->product || p->from.count != p->nodes) return none;
    for (uint32_t by = 0; by < p->from.dims; ++by) {
        const cdp__dt_role from = p->from.role[by], to = p->to.role[by];
        if (p->from.size[by] == 1) continue;
        if (from != to && (from != CDP__DT_TERM || to != CDP__DT_SAME)) return none;
        if (from == CDP__DT_CUTS) cuts |= 1u << by;
        if (from == CDP__DT_SAME) s.copies |= 1u << by;
        if (from == CDP__DT_TERM) s.terms |= 1u << by;
    }
    for (uint32_t node = 0; cuts && node < p->nodes; ++node) {
        const cdp__dt_region a = cdp__dt_region_of(&p->from, node);
        const cdp__dt_region b = cdp__dt_region_of(&p->to, node);
        if (memcmp(&a, &b, sizeof a) != 0) return none;
    }
    s.whole = !cuts && !s.copies;
    return s.whole || !((s.terms | s.copies) & ~usable) ? s : none;
}

/* ---- >>dtensor/torch: PyTorch's steps (pure) ------------------------------------------------- */

/* Knows: layouts. Promises: the sequence of layouts that PyTorch's greedy planner uses, one mesh
   dimension at a time, and the bytes that its padded collectives receive. */

#define CDP__DT_STEPS (2u * CDP_MESH_DIMS + 1u)

/* True: the cuts of shards in mesh dimension `by` are equal. Numbers are those of one mesh. */
CDP__DT bool cdp__dt_own_same(const cdp_layout *a, const cdp_layout *b, uint32_t by) {
    const uint32_t x = a->place[by].cut, y = b->place[by].cut;
    if (a->mesh == b->mesh || !x || !y) return x == y;
    const uint64_t *p = cdp__dt_cut_starts(a->mesh, x), *q = cdp__dt_cut_starts(b->mesh, y);
    return p && q && memcmp(p, q, (a->mesh->desc.shape[by] + (size_t)1) * sizeof *p) == 0;
}

CDP__DT bool cdp__dt_place_same(const cdp_layout *a, const cdp_layout *b, uint32_t by) {
    const cdp_place *p = &a->place[by], *q = &b->place[by];
    if (p->kind != q->kind) return false;
    if (p->kind == CDP_PLACE_PARTIAL) return cdp__dt_op(p) == cdp__dt_op(q);
    if (p->kind == CDP_PLACE_REPLICATE) return true;
    return cdp__dt_dim(a, by) == cdp__dt_dim(b, by) && cdp__dt_own_same(a, b, by)
        && (p->block ? p->block : 1) == (q->block ? q->block : 1);
}

/* The mesh dimensions that cut tensor dimension `dim` before mesh dimension `by` does, as bits. */
CDP__DT uint32_t cdp__dt_cut_before(const cdp_layout *l, uint32_t by, uint32_t dim) {
    uint32_t sequence[CDP_MESH_DIMS], bits = 0;
    const uint32_t n = cdp__dt_sequence(l, l->mesh->desc.ndim, sequence);
    for (uint32_t k = 0; k < n && sequence[k] != by; ++k)
        if (cdp__dt_dim(l, sequence[k]) == dim) bits |= 1u << sequence[k];
    return bits;
}

CDP__DT bool cdp__dt_has_order(const cdp_layout *l) {
    for (uint32_t d = 0; d < l->mesh->desc.ndim; ++d)
        if (l->place[d].kind == CDP_PLACE_SHARD && l->place[d].order) return true;
    return false;
}

/* True if both layouts cut tensor dimension `dim` by the same mesh dimensions in the same order. */
CDP__DT bool cdp__dt_cuts_same(const cdp_layout *a, const cdp_layout *b, uint32_t dim) {
    uint32_t x[CDP_MESH_DIMS], y[CDP_MESH_DIMS];
    const uint32_t nx = cdp__dt_sequence(a, a->mesh->desc.ndim, x);
    const uint32_t ny = cdp__dt_sequence(b, b->mesh->desc.ndim, y);
    uint32_t i = 0, j = 0;
    for (;;) {
        while (i < nx && cdp__dt_dim(a, x[i]) != dim)
            ++i;
        while (j < ny && cdp__dt_dim(b, y[j]) != dim)
            ++j;
        if (i == nx || j == ny) return i == nx && j == ny;
        if (x[i] != y[j] || !cdp__dt_place_same(a, b, x[i])) return false;
        ++i;
        ++j;
    }
}

CDP__DT void cdp__dt_replicate(cdp_layout *l, uint32_t by) {
    cdp_place replicated;
    memset(&replicated, 0, sizeof replicated);
    l->place[by] = replicated; /* of a memset in place gcc 12 believes at -O3 that it is too long */
}

/* True if PyTorch's first pass replicates mesh dimension `by`. */
CDP__DT bool cdp__dt_undone_first(
    const cdp_layout *now, const cdp_layout *to, uint32_t by, bool ordered) {
    if (now->place[by].kind == CDP_PLACE_SHARD && ordered)
        return !cdp__dt_cuts_same(now, to, cdp__dt_dim(now, by));
    if (ordered || to->place[by].kind != CDP_PLACE_SHARD) return false;
    const uint32_t dim = cdp__dt_dim(to, by), below = (1u << by) - 1;
    uint32_t a = 0, b = 0;
    for (uint32_t d = 0; d < to->mesh->desc.ndim; ++d) {
        const bool x = now->place[d].kind == CDP_PLACE_SHARD && cdp__dt_dim(now, d) == dim;
        const bool y = to->place[d].kind == CDP_PLACE_SHARD && cdp__dt_dim(to, d) == dim;
        a |= (uint32_t)x << d;
        b |= (uint32_t)y << d;
    }
    return (a & below) != (b & below);
}

/* Fills steps[0] = from, ..., the last one = to; returns their number. Both are on one mesh. */
CDP__DT uint32_t cdp__dt_torch_steps(
    const cdp_layout *from, const cdp_layout *to, cdp_layout steps[CDP__DT_STEPS]) {
    const uint32_t dims = from->mesh->desc.ndim;
    const bool ordered = cdp__dt_has_order(from) || cdp__dt_has_order(to);
    uint32_t sequence[CDP_MESH_DIMS], n = 1, k, shards;
    cdp_layout now = *from;
    steps[0] = *from;
    shards = cdp__dt_sequence(from, dims, sequence);
    k = shards ? dims : 0;
    for (k = ordered ? shards : k; k-- > 0;) {
        const uint32_t by = ordered ? sequence[k] : k;
        const bool undo = cdp__dt_undone_first(&now, to, by, ordered);
        if (!undo && (ordered || cdp__dt_place_same(&now, to, by))) continue;
        if (undo && now.place[by].kind == CDP_PLACE_REPLICATE) continue;
        /* what is replicated becomes no sum again: a cut that shall be one does at once */
        if (undo && to->place[by].kind != CDP_PLACE_PARTIAL)
            cdp__dt_replicate(&now, by);
        else
            now.place[by] = to->place[by];
        steps[n++] = now;
    }
    if (ordered)
        for (k = 0; k < dims; ++k)
            if (cdp__dt_place_same(&now, to, k)) now.place[k] = to->place[k];
    shards = cdp__dt_sequence(to, dims, sequence);
    /* first the dimensions that do not shard in the target, then cuts in order */
    for (k = 0; k < dims; ++k) {
        const uint32_t by = k;
        if (ordered && to->place[by].kind == CDP_PLACE_SHARD) continue;
        if (cdp__dt_place_same(&now, to, by)) continue;
        now.place[by] = to->place[by];
        steps[n++] = now;
    }
    for (k = 0; k < shards; ++k) {
        if (cdp__dt_place_same(&now, to, sequence[k])) continue;
        now.place[sequence[k]] = to->place[sequence[k]];
        steps[n++] = now;
    }
    steps[n - 1] = n == 1 ? *from : *to;
    return n;
}

/* The mesh dimension in which two neighbouring steps differ. */
CDP__DT uint32_t cdp__dt_step_dim(const cdp_layout *a, const cdp_layout *b) {
    for (uint32_t d = 0; d < a->mesh->desc.ndim; ++d)
        if (!cdp__dt_place_same(a, b, d)) return d;
    return CDP__DT_NONE;
}

/* True if PyTorch communicates in this step: it is neither a local cut nor a dimension of one
   rank. */
CDP__DT bool cdp__dt_torch_talks(const cdp_layout *a, const cdp_layout *b) {
    const uint32_t by = cdp__dt_step_dim(a, b);
    if (by == CDP__DT_NONE || a->mesh->desc.shape[by] == 1) return false;
    if (b->place[by].kind == CDP_PLACE_PARTIAL) return false;
    return a->place[by].kind != CDP_PLACE_REPLICATE;
}

CDP__DT uint64_t cdp__dt_up(uint64_t size, uint64_t parts) {
    return size / parts + (size % parts != 0);
}

/* Bytes that PyTorch's collective for one step makes all ranks receive, padding included;
   UINT64_MAX if they have more than 64 bits. */
CDP__DT uint64_t cdp__dt_torch_bytes(const cdp_layout *a, const cdp_layout *b) {
    const uint32_t by = cdp__dt_step_dim(a, b);
    const uint64_t n = by == CDP__DT_NONE ? 1 : a->mesh->desc.shape[by];
    const uint64_t elem = cdp_dtype_size(a->dtype);
    uint64_t elements = 0;
    if (!cdp__dt_torch_talks(a, b)) return 0;
    const cdp__dt_side before = cdp__dt_side_of(a, 0), after = cdp__dt_side_of(b, 0);
    const bool reduces = a->place[by].kind == CDP_PLACE_PARTIAL;
    const bool cuts = b->place[by].kind == CDP_PLACE_SHARD;
    const uint32_t i = cdp__dt_dim(a, by), j = cdp__dt_dim(b, by);
    for (uint32_t k = 0; k < before.count; ++k) {
        const cdp__dt_region old = cdp__dt_region_of(&before, k);
        cdp__dt_region r = reduces ? old : cdp__dt_region_of(&after, k);
        if (!reduces) {
            if (cuts) r.size[j] = old.size[j];
            r.size[i] = cdp__dt_up(r.size[i], n);
        }
        if (cuts) r.size[j] = cdp__dt_up(r.size[j], n);
        elements = cdp__dt_plus_most(elements, cdp__dt_volume(&r, before.ndim));
    }
    /* an allreduce moves (n - 1) / n of its vector twice */
    if (reduces && !cuts) elements = 2 * (elements / n);
    return cdp__dt_times_most(cdp__dt_times_most(elements, n - 1), elem);
}

/* ---- >>dtensor/meshes: ranks as an n-dimensional array, with groups -------------------------- */

/* Knows: lists of ranks and their groups. Promises: each list's group is created once, in the same
   order on all ranks, and freed with its last mesh. */

/* Compares n words over a group. *rank: the first one that differs from rank 0, CDP__DT_NONE:
   none; *word: the first word that differs; values[]: that word on rank 0 and on *rank. */
CDP__DT cdp_status cdp__dt_agree(cdp_group *g, const cdp_os *os, const uint64_t *words, uint32_t n,
    uint32_t *rank, uint32_t *word, uint64_t values[2]) {
    const uint32_t size = cdp_size(g);
    uint64_t *all, hash = cdp__dt_hash(words, n);
    uint32_t i;
    cdp_status st;
    *rank = CDP__DT_NONE;
    *word = 0;
    if (size == 1) return CDP_OK;
    all = (uint64_t *)cdp__dt_alloc(os, (uint64_t)size * n * 8);
    if (!all) return cdp__dt_nomem("comparing ranks", (uint64_t)size * n * 8);
    st = cdp_allgather(g, &hash, all, 1, CDP_DTYPE_U64);
    for (i = 1; st == CDP_OK && i < size && all[i] == all[0]; ++i) {
    }
    if (st == CDP_OK && i < size) {
        *rank = i;
        st = cdp_allgather(g, words, all, n, CDP_DTYPE_U64);
        while (st == CDP_OK && *word + 1 < n && all[(uint64_t)i * n + *word] == all[*word])
            ++*word;
        values[0] = all[*word];
        values[1] = all[(uint64_t)i * n + *word];
    }
    cdp__dt_free(os, all);
    return st;
}

CDP__DT void cdp__dt_link_drop(cdp__dt_root *root, cdp__dt_link *link) {
    cdp__dt_link **at = &root->links;
    if (!link || --link->refs) return;
    while (*at != link)
        at = &(*at)->next;
    *at = link->next;
    for (cdp__dt_scratch *s = root->scratch; s; s = s->next)
        if (s->link == link) s->link = NULL;
    if (!link->borrowed) cdp_group_destroy(link->group);
    while (link->retired) {
        cdp__dt_retired *g = link->retired;
        link->retired = g->next;
        if (g->memory) cdp_group_free(root->group, g->memory);
        cdp__dt_free(root->os, g);
    }
    cdp__dt_free(root->os, link->ranks);
    cdp__dt_free(root->os, link);
}

/* Refuses to run in a child of fork(): it shares memory of groups with the process whose mesh this
   is. */
CDP__DT cdp_status cdp__dt_link_here(const cdp__dt_link *link) {
    const cdp_status st = link ? cdp_group_status(link->group) : CDP_OK;
    return st == CDP_ERR_STATE ? st : CDP_OK; /* failures are those of the calls that follow */
}

/* Frees memory of cdp_group_alloc() that messages of this group have used. If the group has
   failed, the memory is freed later; without memory for a record of that, it is leaked. */
CDP__DT void cdp__dt_retire(cdp__dt_root *root, cdp__dt_link *link, void *memory) {
    cdp__dt_retired *g;
    if (!memory) return;
    if (!link || cdp_group_status(link->group) == CDP_OK) {
        cdp_group_free(root->group, memory);
        return;
    }
    g = (cdp__dt_retired *)cdp__dt_alloc(root->os, sizeof *g);
    if (!g) return;
    g->memory = memory;
    g->next = link->retired;
    link->retired = g;
}

/* Makes a link for a list of ranks; `borrowed`: the caller's group, or NULL. */
CDP__DT cdp_status cdp__dt_link_make(cdp__dt_root *root, const uint32_t *ranks, uint32_t count,
    cdp_group *borrowed, cdp__dt_link **out) {
    cdp__dt_link *l = (cdp__dt_link *)cdp__dt_alloc(root->os, sizeof *l);
    uint32_t *list = (uint32_t *)cdp__dt_alloc(root->os, count * sizeof *list);
    cdp_status st = CDP_OK;
    if (!l || !list)
        st = cdp__dt_nomem("a group of a mesh", count * sizeof *list);
    else if (!borrowed)
        st = cdp_group_new(root->group, ranks, count, &l->group);
    if (st != CDP_OK) {
        cdp__dt_free(root->os, l);
        cdp__dt_free(root->os, list);
        return st;
    }
    memcpy(list, ranks, count * sizeof *list);
    if (borrowed) l->group = borrowed;
    l->borrowed = borrowed != NULL;
    l->refs = 1;
    l->count = count;
    l->ranks = list;
    l->next = root->links;
    root->links = l;
    *out = l;
    return CDP_OK;
}

CDP__DT cdp_status cdp__dt_link_get(
    cdp__dt_root *root, const uint32_t *ranks, uint32_t count, cdp__dt_link **out) {
    for (cdp__dt_link *l = root->links; l; l = l->next)
        if (l->count == count && memcmp(l->ranks, ranks, count * sizeof *ranks) == 0) {
            ++l->refs;
            *out = l;
            return CDP_OK;
        }
    return cdp__dt_link_make(root, ranks, count, NULL, out);
}

CDP__DT void cdp__dt_root_drop(cdp__dt_root *root) {
    const cdp_os *os;
    if (!root || --root->refs) return;
    os = root->os;
    cdp__dt_link_drop(root, root->base);
    while (root->scratch) {
        cdp__dt_scratch *s = root->scratch;
        root->scratch = s->next;
        cdp_group_free(root->group, s->at);
        cdp__dt_free(os, s);
    }
    cdp__dt_counter_free(root->counter, os);
    cdp__dt_free(os, root->ranks);
    cdp__dt_free(os, root);
}

CDP__DT bool cdp__dt_name_good(const char *s) {
    uint32_t n = 0;
    for (; s[n]; ++n) {
        const char c = s[n];
        const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        if (n == 31 || !(letter || (c >= '0' && c <= '9') || c == '_' || c == '-')) return false;
    }
    return n > 0;
}

CDP__DT cdp_status cdp__dt_mesh_names(cdp_mesh *m, const char *const *names) {
    uint64_t words[sizeof m->names[0] / 8];
    for (uint32_t d = 0; d < m->desc.ndim; ++d) {
        if (names && names[d]) {
            if (!cdp__dt_name_good(names[d]))
                return cdp_error_set(CDP_ERR_INVALID, -1, 0,
                    "mesh: names[%u] \"%s\" must be 1 to 31 letters, digits, '_' or '-'", d,
                    names[d]);
            memcpy(m->names[d], names[d], strlen(names[d]) + 1);
        } else {
            m->names[d][0] = (char)('0' + d);
        }
        m->desc.names[d] = m->names[d];
        memcpy(words, m->names[d], sizeof words);
        m->name_hash[d] = cdp__dt_hash(words, 4);
        for (uint32_t e = 0; e < d; ++e)
            if (strcmp(m->names[e], m->names[d]) == 0)
                return cdp_error_set(CDP_ERR_INVALID, -1, 0,
                    "mesh: dimensions %u and %u are both called \"%s\"; give each its own name", e,
                    d, m->names[d]);
    }
    return CDP_OK;
}

/* Copies the shape, and computes the size that is given as 0. */
CDP__DT cdp_status cdp__dt_mesh_shape(cdp_mesh *m, uint32_t ndim, const uint32_t *shape) {
    const uint32_t size = m->root->size;
    uint64_t known = 1;
    uint32_t open = CDP__DT_NONE, d;
    if (ndim > CDP_MESH_DIMS)
        return cdp_error_set(
            CDP_ERR_INVALID, -1, 0, "mesh: ndim %u is above the limit of %u", ndim, CDP_MESH_DIMS);
    m->desc.ndim = ndim ? ndim : 1;
    for (d = 0; d < m->desc.ndim; ++d) {
        m->desc.shape[d] = shape ? shape[d] : 0;
        if (!m->desc.shape[d] && open != CDP__DT_NONE)
            return cdp_error_set(CDP_ERR_INVALID, -1, 0,
                "mesh: shape[%u] and shape[%u] are both 0; one size at most may be left open", open,
                d);
        if (!m->desc.shape[d]) open = d;
        known = known * cdp__max(m->desc.shape[d], 1);
        if (known > size)
            return cdp_error_set(CDP_ERR_INVALID, -1, 0,
                "mesh: its shape needs at least %llu ranks, there are %u",
                (unsigned long long)known, size);
    }
    if (open != CDP__DT_NONE) {
        m->desc.shape[open] = (uint32_t)(size / known);
        known *= m->desc.shape[open];
    }
    m->count = (uint32_t)known;
    for (d = m->desc.ndim, known = 1; d-- > 0; known *= m->desc.shape[d])
        m->stride[d] = (uint32_t)known;
    return CDP_OK;
}

/* Copies the ranks; NULL: 0, 1, ... */
CDP__DT cdp_status cdp__dt_mesh_ranks(cdp_mesh *m, const uint32_t *ranks) {
    cdp__dt_root *root = m->root;
    uint8_t *seen = (uint8_t *)cdp__dt_alloc(root->os, root->size);
    cdp_status st = CDP_OK;
    m->me = CDP__DT_NONE;
    m->ranks = (uint32_t *)cdp__dt_alloc(root->os, m->count * sizeof *m->ranks);
    if (!m->ranks || !seen) st = cdp__dt_nomem("a mesh", m->count * sizeof *m->ranks);
    for (uint32_t i = 0; st == CDP_OK && i < m->count; ++i) {
        const uint32_t r = m->ranks[i] = ranks ? ranks[i] : i;
        if (r >= root->size || seen[r])
            st = cdp_error_set(CDP_ERR_INVALID, -1, 0, "mesh: ranks[%u] is %u; %s", i, r,
                r >= root->size ? "the group has fewer ranks" : "each rank may occur only once");
        else
            seen[r] = 1;
        if (r == root->rank) m->me = i;
        m->ranks_hash = (m->ranks_hash ^ (r + 1ull)) * 0x100000001b3u;
    }
    cdp__dt_free(root->os, seen);
    m->desc.ranks = m->ranks;
    return st;
}

/* Writes the ranks of this rank's row along `dim` to `row`. */
CDP__DT void cdp__dt_mesh_row(const cdp_mesh *m, uint32_t dim, uint32_t *row) {
    const uint32_t step = m->stride[dim], own = m->me / step % m->desc.shape[dim];
    for (uint32_t i = 0; i < m->desc.shape[dim]; ++i)
        row[i] = m->ranks[m->me - own * step + i * step];
}

CDP__DT cdp_status cdp__dt_mesh_groups(cdp_mesh *m) {
    cdp__dt_root *root = m->root;
    uint32_t *row;
    cdp_status st = CDP_OK;
    if (!root->group || m->me == CDP__DT_NONE) return CDP_OK;
    row = (uint32_t *)cdp__dt_alloc(root->os, m->count * sizeof *row);
    if (!row) return cdp__dt_nomem("a mesh", m->count * sizeof *row);
    st = cdp__dt_link_get(root, m->ranks, m->count, &m->all);
    for (uint32_t d = 0; st == CDP_OK && d < m->desc.ndim; ++d) {
        if (m->link[d]) continue;
        cdp__dt_mesh_row(m, d, row);
        st = cdp__dt_link_get(root, row, m->desc.shape[d], &m->link[d]);
    }
    cdp__dt_free(root->os, row);
    return st;
}

/* Fills in everything except groups. The mesh belongs to the root even if this fails. */
CDP__DT cdp_status cdp__dt_mesh_fill(cdp_mesh *m, uint32_t ndim, const uint32_t *shape,
    const char *const *names, const uint32_t *ranks) {
    cdp_status st = cdp__dt_mesh_shape(m, ndim, shape);
    if (st == CDP_OK) st = cdp__dt_mesh_names(m, names);
    if (st == CDP_OK) st = cdp__dt_mesh_ranks(m, ranks);
    return st;
}

CDP__DT cdp_mesh *cdp__dt_mesh_of_root(cdp__dt_root *root) {
    cdp_mesh *m = (cdp_mesh *)cdp__dt_alloc(root->os, sizeof *m);
    cdp__ended_remove(cdp__dt_mesh_mark(m));
    if (!m) return NULL;
    m->root = root;
    ++root->refs;
    m->desc.group = root->group;
    m->desc.paper_ranks = root->group ? 0 : root->size;
    m->desc.paper_rank = root->group ? 0 : root->rank;
    m->me = CDP__DT_NONE;
    return m;
}

/* Frees a mesh that keeps no plans. */
CDP__DT void cdp__dt_mesh_free(cdp_mesh *m) {
    const cdp_os *os = m->root->os;
    CDP_ASSERT(!m->kept);
    cdp__ended_add(cdp__dt_mesh_mark(m));
    cdp__dt_cuts_free(m);
    for (uint32_t d = 0; d < CDP_MESH_DIMS; ++d)
        cdp__dt_link_drop(m->root, m->link[d]);
    cdp__dt_link_drop(m->root, m->all); /* it has the memory of plans that use several groups */
    cdp__dt_free(os, m->ranks);
    cdp__dt_root_drop(m->root);
    cdp__dt_free(os, m);
}

CDP__DT cdp_status cdp__dt_root_make(const cdp_mesh_desc *d, cdp__dt_root **out) {
    const cdp_group_desc *group = cdp_group_desc_of(d->group);
    const cdp_os *os = group ? group->os : NULL;
    if (d->group && !group) return cdp_group_status(d->group); /* it was destroyed */
    if (!os) os = cdp_os_default();
    if (!d->group && (!d->paper_ranks || d->paper_rank >= d->paper_ranks))
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_mesh_create: no group, and paper_rank %u of paper_ranks %u; set .group, or both",
            d->paper_rank, d->paper_ranks);
    cdp__dt_root *root = (cdp__dt_root *)cdp__dt_alloc(os, sizeof *root);
    if (!root) return cdp__dt_nomem("a mesh", sizeof *root);
    root->refs = 1;
    root->os = os;
    root->group = d->group;
    root->size = d->group ? cdp_size(d->group) : d->paper_ranks;
    root->rank = d->group ? cdp_rank(d->group) : d->paper_rank;
    *out = root;
    return CDP_OK;
}

#define CDP__DT_MESH_WORDS (3u + CDP_MESH_DIMS + 4u * CDP_MESH_DIMS)

CDP__DT void cdp__dt_mesh_words(const cdp_mesh *m, bool good, uint64_t *words) {
    memset(words, 0, CDP__DT_MESH_WORDS * sizeof *words);
    if (!good) return;
    words[0] = 1;
    words[1] = m->desc.ndim;
    words[2] = m->desc.host_ranks;
    for (uint32_t d = 0; d < m->desc.ndim; ++d) {
        words[3 + d] = m->desc.shape[d];
        memcpy(words + 3 + CDP_MESH_DIMS + 4 * d, m->names[d], 32);
    }
}

/* The name of the desc member at a word, for errors. */
CDP__DT void cdp__dt_mesh_word_name(uint32_t word, char *text, uint64_t room) {
    cdp__text t = cdp__text_of(text, room);
    const uint32_t d = word < 3 ? 0 : word - 3;
    if (word < 3)
        cdp__text_add(&t, "%s", word == 1 ? "ndim" : "host_ranks");
    else if (d < CDP_MESH_DIMS)
        cdp__text_add(&t, "shape[%u]", d);
    else
        cdp__text_add(&t, "names[%u]", (d - CDP_MESH_DIMS) / 4);
    (void)cdp__text_end(&t);
}

CDP__DT cdp_status cdp__dt_mesh_differs(uint32_t word, uint32_t rank, const uint64_t values[2]) {
    char name[32];
    if (word == 0)
        return cdp_error_set(CDP_ERR_MISMATCH, (int32_t)(values[0] ? rank : 0), 0,
            "cdp_mesh_create: the desc of rank %u is not valid; its error says why",
            values[0] ? rank : 0u);
    cdp__dt_mesh_word_name(word, name, sizeof name);
    if (word >= 3 + CDP_MESH_DIMS)
        return cdp_error_set(CDP_ERR_MISMATCH, (int32_t)rank, 0,
            "cdp_mesh_create: ranks 0 and %u gave different %s", rank, name);
    return cdp_error_set(CDP_ERR_MISMATCH, (int32_t)rank, 0,
        "cdp_mesh_create: %s is %llu on rank 0 and %llu on rank %u", name,
        (unsigned long long)values[0], (unsigned long long)values[1], rank);
}

CDP__DT cdp_status cdp__dt_mesh_compare(const cdp_mesh *m, bool good) {
    uint64_t words[CDP__DT_MESH_WORDS], values[2] = {0, 0}, *list;
    uint32_t rank, word;
    cdp__dt_mesh_words(m, good, words);
    cdp_status st =
        cdp__dt_agree(m->root->group, m->root->os, words, CDP__DT_MESH_WORDS, &rank, &word, values);
    if (st != CDP_OK) return st;
    if (rank != CDP__DT_NONE) return cdp__dt_mesh_differs(word, rank, values);
    if (!good) return CDP_OK;
    list = (uint64_t *)cdp__dt_alloc(m->root->os, m->count * sizeof *list);
    if (!list) return cdp__dt_nomem("a mesh", m->count * sizeof *list);
    for (uint32_t i = 0; i < m->count; ++i)
        list[i] = m->ranks[i];
    st = cdp__dt_agree(m->root->group, m->root->os, list, m->count, &rank, &word, values);
    cdp__dt_free(m->root->os, list);
    if (st != CDP_OK || rank == CDP__DT_NONE) return st;
    return cdp_error_set(CDP_ERR_MISMATCH, (int32_t)rank, 0,
        "cdp_mesh_create: ranks[%u] is %llu on rank 0 and %llu on rank %u", word,
        (unsigned long long)values[0], (unsigned long long)values[1], rank);
}

/* Checks that the caller's group for one dimension has the ranks of the mesh. */
CDP__DT cdp_status cdp__dt_mesh_borrow(cdp_mesh *m, uint32_t dim, cdp_group *g) {
    const uint32_t n = m->desc.shape[dim];
    uint32_t *row = (uint32_t *)cdp__dt_alloc(m->root->os, n * sizeof *row);
    cdp_status st = CDP_OK;
    if (!row) return cdp__dt_nomem("a mesh", n * sizeof *row);
    cdp__dt_mesh_row(m, dim, row);
    for (uint32_t i = 0; st == CDP_OK && i < n; ++i) {
        const uint32_t want = cdp_world_rank_of(m->root->group, row[i]);
        if (!g || cdp_size(g) != n || cdp_world_rank_of(g, i) != want)
            st = cdp_error_set(CDP_ERR_INVALID, -1, 0,
                "cdp_mesh_from_groups: groups[%u] must have %u ranks, and at %u rank %u of the "
                "world",
                dim, n, i, want);
    }
    if (st == CDP_OK) st = cdp__dt_link_make(m->root, row, n, g, &m->link[dim]);
    cdp__dt_free(m->root->os, row);
    return st;
}

/* Creates the groups of a first mesh, and records the mesh in its root. */
CDP__DT cdp_status cdp__dt_mesh_first(cdp_mesh *m, cdp_group *const *groups) {
    cdp__dt_root *root = m->root;
    cdp_status st = CDP_OK;
    uint32_t *every = (uint32_t *)cdp__dt_alloc(root->os, root->size * sizeof *every);
    root->ranks = (uint32_t *)cdp__dt_alloc(root->os, m->count * sizeof *every);
    if (!every || !root->ranks) st = cdp__dt_nomem("a mesh", root->size * sizeof *every);
    for (uint32_t i = 0; st == CDP_OK && i < root->size; ++i)
        every[i] = i;
    if (st == CDP_OK && root->group) st = cdp__dt_link_get(root, every, root->size, &root->base);
    cdp__dt_free(root->os, every);
    if (st != CDP_OK) return st;
    memcpy(root->ranks, m->ranks, m->count * sizeof *root->ranks);
    memcpy(root->shape, m->desc.shape, sizeof root->shape);
    root->ndim = m->desc.ndim;
    for (uint32_t d = 0; st == CDP_OK && groups && m->me != CDP__DT_NONE && d < m->desc.ndim; ++d)
        st = cdp__dt_mesh_borrow(m, d, groups[d]);
    return st == CDP_OK ? cdp__dt_mesh_groups(m) : st;
}

CDP__DT cdp_status cdp__dt_mesh_create(
    const cdp_mesh_desc *desc, cdp_group *const *groups, cdp_mesh **out) {
    cdp__dt_root *root = NULL;
    if (!out) return cdp__dt_missing("cdp_mesh_create", "out");
    *out = NULL;
    if (!desc) return cdp__dt_missing("cdp_mesh_create", "desc");
    cdp_status st = cdp__dt_root_make(desc, &root), own;
    if (st != CDP_OK) return st;
    cdp_mesh *m = cdp__dt_mesh_of_root(root);
    cdp__dt_root_drop(root); /* the mesh holds a reference */
    if (!m) return cdp__dt_nomem("a mesh", sizeof *m);
    m->desc.host_ranks = desc->host_ranks;
    m->desc.no_check = desc->no_check;
    own = cdp__dt_mesh_fill(m, desc->ndim, desc->shape, desc->names, desc->ranks);
    const cdp_error why = *cdp_last_error();
    if (root->group && !desc->no_check) st = cdp__dt_mesh_compare(m, own == CDP_OK);
    /* this rank's own error, not the report of the others */
    if (own != CDP_OK) st = cdp__error_again(own, &why);
    if (st == CDP_OK) st = cdp__dt_mesh_first(m, groups);
    if (st != CDP_OK) {
        cdp__dt_mesh_free(m);
        return st;
    }
    *out = m;
    return CDP_OK;
}

CDP_API cdp_status cdp_mesh_create(const cdp_mesh_desc *desc, cdp_mesh **out) {
    return cdp__dt_mesh_create(desc, NULL, out);
}

CDP_API cdp_status cdp_mesh_from_groups(
    const cdp_mesh_desc *desc, cdp_group *const *groups, cdp_mesh **out) {
    if (!out) return cdp__dt_missing("cdp_mesh_from_groups", "out");
    *out = NULL;
    if (!groups) return cdp__dt_missing("cdp_mesh_from_groups", "groups");
    if (!desc) return cdp__dt_missing("cdp_mesh_from_groups", "desc");
    if (!desc->group) return cdp__dt_missing("cdp_mesh_from_groups", "desc.group");
    return cdp__dt_mesh_create(desc, groups, out);
}

CDP_API uint32_t cdp_mesh_dim(const cdp_mesh *m, const char *name) {
    m = cdp__dt_mesh_known(m);
    for (uint32_t d = 0; m && name && d < m->desc.ndim; ++d)
        if (strcmp(m->names[d], name) == 0) return d;
    return CDP_NO_DIM;
}

CDP_API uint32_t cdp_mesh_size(const cdp_mesh *m, uint32_t dim) {
    m = cdp__dt_mesh_known(m);
    if (m && dim == CDP_NO_DIM) return m->count;
    return m && dim < m->desc.ndim ? m->desc.shape[dim] : 0;
}

CDP_API uint32_t cdp_mesh_coord(const cdp_mesh *m, uint32_t dim) {
    m = cdp__dt_mesh_known(m);
    if (!m || m->me == CDP__DT_NONE) return CDP_NO_DIM;
    if (dim == CDP_NO_DIM) return m->me;
    return dim < m->desc.ndim ? m->me / m->stride[dim] % m->desc.shape[dim] : CDP_NO_DIM;
}

CDP_API uint32_t cdp_mesh_rank_at(const cdp_mesh *m, const uint32_t *coord) {
    uint32_t position = 0;
    m = cdp__dt_mesh_known(m);
    for (uint32_t d = 0; m && d < m->desc.ndim; ++d) {
        if (!coord || coord[d] >= m->desc.shape[d]) return CDP_NO_DIM;
        position += coord[d] * m->stride[d];
    }
    return m ? m->ranks[position] : CDP_NO_DIM;
}

CDP_API cdp_group *cdp_mesh_group(const cdp_mesh *m, uint32_t dim) {
    m = cdp__dt_mesh_known(m);
    const cdp__dt_link *l = NULL;
    if (m && dim == CDP_NO_DIM) l = m->all;
    if (m && dim < m->desc.ndim) l = m->link[dim];
    return l ? l->group : NULL;
}

CDP_API const cdp_mesh_desc *cdp_mesh_desc_of(const cdp_mesh *m) {
    return cdp__dt_mesh_known(m) ? &m->desc : NULL;
}

/* ---- >>dtensor/mesh_parts: meshes made from other meshes ------------------------------------- */

/* Knows: meshes. Promises: sends no message; creates groups only for new lists of ranks. */

/* Parses a list like "dp,tp" to indices of dimensions. */
CDP__DT cdp_status cdp__dt_mesh_list(
    const cdp_mesh *m, const char *names, uint32_t dims[CDP_MESH_DIMS], uint32_t *n) {
    char word[32];
    uint32_t used = 0, seen = 0;
    *n = 0;
    for (const char *s = names ? names : "";; ++s) {
        if (*s && *s != ',') {
            if (used < 31) word[used++] = *s;
            continue;
        }
        word[used] = 0;
        used = 0;
        const uint32_t d = cdp_mesh_dim(m, word);
        if (d == CDP_NO_DIM || seen >> d & 1)
            return cdp_error_set(CDP_ERR_INVALID, -1, 0,
                d == CDP_NO_DIM ? "mesh: there is no dimension \"%s\""
                                : "mesh: dimension \"%s\" is named twice",
                word);
        seen |= 1u << d;
        dims[(*n)++] = d;
        if (!*s) return CDP_OK;
    }
}

/* Makes a mesh with the root of `like` and with these ranks. */
CDP__DT cdp_status cdp__dt_mesh_from(cdp_mesh *like, uint32_t ndim, const uint32_t *shape,
    const char *const *names, const uint32_t *ranks, cdp_mesh **out) {
    cdp_mesh *m = cdp__dt_mesh_of_root(like->root);
    if (!m) return cdp__dt_nomem("a mesh", sizeof *m);
    m->desc.host_ranks = like->desc.host_ranks;
    cdp_status st = cdp__dt_mesh_fill(m, ndim, shape, names, ranks);
    if (st == CDP_OK) st = cdp__dt_mesh_groups(m);
    if (st != CDP_OK) {
        cdp__dt_mesh_free(m);
        return st;
    }
    *out = m;
    return CDP_OK;
}

/* The sub-mesh of these dimensions that contains this rank; `one`: for a single dimension. */
CDP__DT cdp_status cdp__dt_mesh_part(
    cdp_mesh *m, const char *names, const char *one, cdp_mesh **out) {
    uint32_t dims[CDP_MESH_DIMS], n, shape[CDP_MESH_DIMS], count = 1;
    const char *list[CDP_MESH_DIMS];
    const char *const call = one ? "cdp_mesh_flatten" : "cdp_mesh_sub";
    if (!out) return cdp__dt_missing(call, "out");
    *out = NULL;
    cdp_status st = cdp__dt_mesh_alive(m, call);
    if (st != CDP_OK) return st;
    st = cdp__dt_mesh_list(m, names, dims, &n);
    if (st != CDP_OK) return st;
    uint32_t at = m->me == CDP__DT_NONE ? 0 : m->me;
    for (uint32_t k = 0; k < n; ++k) {
        shape[k] = m->desc.shape[dims[k]];
        list[k] = m->names[dims[k]];
        count *= shape[k];
        at -= at / m->stride[dims[k]] % shape[k] * m->stride[dims[k]];
    }
    uint32_t *ranks = (uint32_t *)cdp__dt_alloc(m->root->os, count * sizeof *ranks);
    if (!ranks) return cdp__dt_nomem("a mesh", count * sizeof *ranks);
    for (uint32_t i = 0; i < count; ++i) {
        uint32_t position = at, rest = i;
        for (uint32_t k = n; k-- > 0; rest /= shape[k])
            position += rest % shape[k] * m->stride[dims[k]];
        ranks[i] = m->ranks[position];
    }
    st = one ? cdp__dt_mesh_from(m, 1, &count, &one, ranks, out)
             : cdp__dt_mesh_from(m, n, shape, list, ranks, out);
    cdp__dt_free(m->root->os, ranks);
    return st;
}

CDP_API cdp_status cdp_mesh_sub(cdp_mesh *m, const char *names, cdp_mesh **out) {
    return cdp__dt_mesh_part(m, names, NULL, out);
}

CDP_API cdp_status cdp_mesh_flatten(
    cdp_mesh *m, const char *names, const char *name, cdp_mesh **out) {
    if (out) *out = NULL;
    if (!name) return cdp__dt_missing("cdp_mesh_flatten", "name");
    return cdp__dt_mesh_part(m, names, name, out);
}

CDP_API cdp_status cdp_mesh_unflatten(cdp_mesh *m, const char *name, uint32_t ndim,
    const uint32_t *shape, const char *const *names, cdp_mesh **out) {
    const uint32_t dim = cdp_mesh_dim(m, name);
    uint32_t sizes[CDP_MESH_DIMS], n = 0;
    uint64_t product = 1;
    const char *list[CDP_MESH_DIMS];
    if (out) *out = NULL;
    cdp_status st = cdp__dt_mesh_alive(m, "cdp_mesh_unflatten");
    if (st != CDP_OK) return st;
    if (!name) return cdp__dt_missing("cdp_mesh_unflatten", "name");
    if (!shape) return cdp__dt_missing("cdp_mesh_unflatten", "shape");
    if (!names) return cdp__dt_missing("cdp_mesh_unflatten", "names");
    if (!out) return cdp__dt_missing("cdp_mesh_unflatten", "out");
    if (dim == CDP_NO_DIM || !ndim)
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_mesh_unflatten: ndim is 0, or there is no dimension \"%s\"", name);
    if (m->desc.ndim + ndim - 1 > CDP_MESH_DIMS || ndim > CDP_MESH_DIMS)
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_mesh_unflatten: that makes more than %u dimensions", CDP_MESH_DIMS);
    for (uint32_t d = 0; d < m->desc.ndim; ++d) {
        for (uint32_t k = 0; d == dim && k < ndim; ++k) {
            product *= shape[k];
            list[n] = names[k];
            sizes[n++] = shape[k];
        }
        if (d == dim) continue;
        list[n] = m->names[d];
        sizes[n++] = m->desc.shape[d];
    }
    if (product != m->desc.shape[dim])
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_mesh_unflatten: the sizes make %llu, but \"%s\" has %u ranks",
            (unsigned long long)product, name, m->desc.shape[dim]);
    return cdp__dt_mesh_from(m, n, sizes, list, m->ranks, out);
}

/* The position of each rank in the first mesh; ranks outside have the position 0. The caller frees
   it. NULL: out of memory. */
CDP__DT uint32_t *cdp__dt_root_positions(const cdp__dt_root *root) {
    uint32_t count = 1;
    for (uint32_t d = 0; d < root->ndim; ++d)
        count *= root->shape[d];
    uint32_t *at = (uint32_t *)cdp__dt_alloc(root->os, root->size * sizeof *at);
    for (uint32_t i = 0; at && i < count; ++i)
        at[root->ranks[i]] = i;
    return at;
}

/* The rank that has the coordinates of `a` where these differ from `base`, else those of `b`. */
CDP__DT uint32_t cdp__dt_root_cross(
    const cdp__dt_root *root, uint32_t a, uint32_t b, uint32_t base) {
    uint32_t stride = 1, position = 0;
    for (uint32_t d = root->ndim; d-- > 0;) {
        const uint32_t n = root->shape[d], x = a / stride % n, y = b / stride % n;
        position += (x != base / stride % n ? x : y) * stride;
        stride *= n;
    }
    return root->ranks[position];
}

CDP_API cdp_status cdp_mesh_join(cdp_mesh *outer, cdp_mesh *inner, cdp_mesh **out) {
    uint32_t shape[CDP_MESH_DIMS], n = 0, d;
    const char *names[CDP_MESH_DIMS];
    if (out) *out = NULL;
    if (cdp__dt_mesh_ended(outer)) return cdp__dt_mesh_alive(outer, "cdp_mesh_join");
    if (cdp__dt_mesh_ended(inner)) return cdp__dt_mesh_alive(inner, "cdp_mesh_join");
    if (!outer || !inner || !out || outer->root != inner->root)
        return cdp_error_set(
            CDP_ERR_INVALID, -1, 0, "cdp_mesh_join: both meshes must have been made from one mesh");
    if (outer->desc.ndim + inner->desc.ndim > CDP_MESH_DIMS)
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_mesh_join: that makes more than %u dimensions", CDP_MESH_DIMS);
    for (d = 0; d < outer->desc.ndim; ++d, ++n) {
        shape[n] = outer->desc.shape[d];
        names[n] = outer->names[d];
    }
    for (d = 0; d < inner->desc.ndim; ++d, ++n) {
        shape[n] = inner->desc.shape[d];
        names[n] = inner->names[d];
    }
    const cdp__dt_root *root = outer->root;
    const uint64_t count = (uint64_t)outer->count * inner->count;
    if (count > root->size)
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_mesh_join: the meshes share a dimension, or have more than all ranks together");
    uint32_t *ranks = (uint32_t *)cdp__dt_alloc(root->os, count * sizeof *ranks);
    uint32_t *at = cdp__dt_root_positions(root);
    const uint32_t me = outer->me == CDP__DT_NONE ? outer->ranks[0] : outer->ranks[outer->me];
    for (uint64_t i = 0; ranks && at && i < count; ++i)
        ranks[i] = cdp__dt_root_cross(
            root, at[outer->ranks[i / inner->count]], at[inner->ranks[i % inner->count]], at[me]);
    const bool made = ranks && at;
    cdp__dt_free(root->os, at);
    cdp_status st = made ? CDP_OK : cdp__dt_nomem("a mesh", (count + root->size) * sizeof *ranks);
    if (made) st = cdp__dt_mesh_from(outer, n, shape, names, ranks, out);
    cdp__dt_free(root->os, ranks);
    return st;
}

/* Measures `rounds` exchanges of `bytes` with the ranks `step` positions away, in us. */
CDP__DT cdp_status cdp__dt_measure(
    cdp_mesh *m, uint32_t step, uint32_t rounds, uint64_t bytes, uint8_t *memory, double *us) {
    const cdp_os *os = m->root->os;
    const uint32_t to = (m->me + step) % m->count, from = (m->me + m->count - step) % m->count;
    cdp_status st = cdp_barrier(m->all->group);
    const uint64_t start = os->now_ns(os->user);
    for (uint32_t i = 0; st == CDP_OK && i < rounds; ++i)
        st = cdp_sendrecv(m->all->group, memory, bytes, to, memory + bytes, bytes, from,
            CDP_DTYPE_U8, 0xcd700001u);
    *us = (double)(os->now_ns(os->user) - start) / 1000.0 / rounds;
    return st;
}

/* Measures copying and adding n bytes, in bytes per us. */
CDP__DT void cdp__dt_measure_memory(const cdp_os *os, uint8_t *memory, uint64_t n, cdp_net *net) {
    uint64_t start = os->now_ns(os->user);
    for (uint32_t i = 0; i < 4; ++i)
        memcpy(memory + n, memory, (size_t)n);
    net->copy_bytes_per_us = (double)(4 * n) * 1000 / (double)(os->now_ns(os->user) - start + 1);
    start = os->now_ns(os->user);
    for (uint32_t i = 0; i < 4; ++i)
        cdp__reduce(CDP_DTYPE_F32, CDP_REDUCE_SUM, false, memory + n, memory, n / 4);
    net->reduce_bytes_per_us = (double)(4 * n) * 1000 / (double)(os->now_ns(os->user) - start + 1);
}

CDP__DT cdp_status cdp__dt_measure_links(cdp_mesh *m, uint8_t *memory, uint64_t n, cdp_net *net) {
    const uint32_t distant =
        m->desc.host_ranks && m->desc.host_ranks < m->count ? m->desc.host_ranks : 1;
    double short_us, long_us;
    cdp_status st = cdp__dt_measure(m, 1, 20, 8, memory, &short_us);
    if (st == CDP_OK) st = cdp__dt_measure(m, 1, 200, 8, memory, &short_us);
    if (st == CDP_OK) st = cdp__dt_measure(m, 1, 8, n, memory, &long_us);
    if (st != CDP_OK) return st;
    net->latency_us = short_us;
    net->bytes_per_us = (double)n / cdp__dt_or(long_us - short_us, 1);
    st = cdp__dt_measure(m, distant, 100, 8, memory, &short_us);
    if (st == CDP_OK) st = cdp__dt_measure(m, distant, 8, n, memory, &long_us);
    net->far_latency_us = short_us;
    net->far_bytes_per_us = (double)n / cdp__dt_or(long_us - short_us, 1);
    return st;
}

CDP_API cdp_status cdp_mesh_measure(cdp_mesh *m, cdp_net *out) {
    const uint64_t n = 1u << 20;
    if (!out) return cdp__dt_missing("cdp_mesh_measure", "out");
    cdp_status st = cdp__dt_mesh_alive(m, "cdp_mesh_measure");
    if (st != CDP_OK) return st;
    if (!m->root->group)
        return cdp_error_set(CDP_ERR_STATE, -1, 0, "cdp_mesh_measure: the mesh is on paper");
    memset(out, 0, sizeof *out);
    if (!m->all) return CDP_OK;
    uint8_t *memory = (uint8_t *)cdp__dt_group_memory(m->all->group, 2 * n);
    if (!memory) return cdp__dt_nomem("cdp_mesh_measure", 2 * n);
    memset(memory, 0, (size_t)(2 * n));
    cdp__dt_measure_memory(m->root->os, memory, n, out);
    st = m->count > 1 ? cdp__dt_measure_links(m, memory, n, out) : CDP_OK;
    if (st == CDP_OK)
        st = cdp_allreduce(m->all->group, NULL, out, 6, CDP_DTYPE_F64, CDP_REDUCE_AVG);
    cdp_group_free(m->all->group, memory);
    return st;
}

/* ---- >>dtensor/spelling: layouts as text, and whether they are valid ------------------------- */

/* Knows: layouts and their text. Promises: a layout that passes the checks has a plan; its text can
   be parsed again. Pure except for the text of errors. */

/* True if there is a mesh, which was not destroyed. */
CDP__DT bool cdp__dt_has_mesh(const cdp_layout *l) {
    return l && l->mesh && !cdp__dt_mesh_ended(l->mesh);
}

CDP__DT cdp_status cdp__dt_mesh_refused(const cdp_layout *l, const char *call) {
    if (!l) return cdp__dt_missing(call, "layout");
    if (!l->mesh) return cdp__dt_missing(call, "layout.mesh");
    return cdp_error_set(CDP_ERR_STATE, -1, 0, "%s: its mesh was destroyed", call);
}

CDP__DT cdp_status cdp__dt_wrong(const char *what, uint32_t by, const char *why) {
    return cdp_error_set(
        CDP_ERR_INVALID, -1, 0, "layout: %s of mesh dimension %u: %s", what, by, why);
}

CDP__DT cdp_status cdp__dt_check_shard(const cdp_layout *l, uint32_t by) {
    const cdp_place *p = &l->place[by];
    const int64_t d = p->dim < 0 ? (int64_t)p->dim + l->ndim : p->dim;
    if (d < 0 || d >= (int64_t)l->ndim)
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "layout: mesh dimension %u shards dimension %d of a tensor of %u dimensions", by,
            p->dim, l->ndim);
    if (p->block >> 62) return cdp__dt_wrong("block", by, "it must be below 2^62");
    if (!p->cut) return CDP_OK;
    const cdp__dt_cut *c = cdp__dt_cut_find(l->mesh, p->cut);
    if (c ? c->replaced : p->cut <= l->mesh->cuts.last)
        return cdp_error_set(CDP_ERR_STATE, -1, 0,
            "layout: cut %u of mesh dimension %u was replaced by later ones; call "
            "cdp_layout_from_local() again, or keep such a cut with cdp_mesh_cut()",
            p->cut, by);
    if (!c || c->dim != by)
        return cdp__dt_wrong("cut", by, "cdp_mesh_cut() gave no such number there");
    if (c->starts[l->mesh->desc.shape[by]] != l->shape[d])
        return cdp__dt_wrong("cut", by, "its sizes do not add up to the size of the tensor");
    for (uint32_t e = 0; e < l->mesh->desc.ndim; ++e)
        if (e != by && l->place[e].kind == CDP_PLACE_SHARD && cdp__dt_dim(l, e) == (uint32_t)d)
            return cdp__dt_wrong("cut", by, "another mesh dimension shards the same dimension");
    return CDP_OK;
}

CDP__DT cdp_status cdp__dt_check_partial(const cdp_layout *l, uint32_t by, cdp_reduce_op *kind) {
    const cdp_reduce_op op = cdp__dt_op(&l->place[by]);
    if (op > CDP_REDUCE_PRODUCT) return cdp__dt_wrong("op", by, "use sum, avg, min, max, product");
    if (!cdp__dt_reduces(l->dtype, op))
        return cdp_error_set(CDP_ERR_UNSUPPORTED, -1, 0, "layout: there is no %s of %s",
            cdp_reduce_name(op), cdp_dtype_name(l->dtype));
    const cdp_reduce_op base = op == CDP_REDUCE_AVG ? CDP_REDUCE_SUM : op;
    if (*kind != CDP_REDUCE_DEFAULT && *kind != base)
        return cdp_error_set(CDP_ERR_UNSUPPORTED, -1, 0,
            "layout: PARTIAL of %s and of %s in one layout; only sum and avg can be mixed",
            cdp_reduce_name(*kind), cdp_reduce_name(op));
    *kind = base;
    return CDP_OK;
}

/* Checks the cuts of one dimension of the tensor: each block must be a multiple of the next one. */
CDP__DT cdp_status cdp__dt_check_blocks(const cdp_layout *l) {
    uint32_t sequence[CDP_MESH_DIMS];
    const uint32_t n = cdp__dt_sequence(l, l->mesh->desc.ndim, sequence);
    for (uint32_t a = 0; a < n; ++a)
        for (uint32_t b = a + 1; b < n; ++b) {
            const uint64_t outer = l->place[sequence[a]].block, inner = l->place[sequence[b]].block;
            if (cdp__dt_dim(l, sequence[a]) != cdp__dt_dim(l, sequence[b])) continue;
            if (cdp__max(outer, 1) % cdp__max(inner, 1))
                return cdp__dt_wrong(
                    "block", sequence[b], "it must divide the block of the cut before it");
        }
    return CDP_OK;
}

CDP_API cdp_status cdp_layout_check(const cdp_layout *l) {
    cdp_reduce_op kind = CDP_REDUCE_DEFAULT;
    cdp_status st = CDP_OK;
    bool fits = true;
    if (!cdp__dt_has_mesh(l)) return cdp__dt_mesh_refused(l, "cdp_layout_check");
    if (l->ndim > CDP_TENSOR_DIMS || !cdp_dtype_size(l->dtype))
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "layout: ndim %u (at most %u) or dtype %u is out of range", l->ndim, CDP_TENSOR_DIMS,
            (unsigned)l->dtype);
    uint64_t bytes = cdp_dtype_size(l->dtype);
    for (uint32_t d = 0; d < l->ndim; ++d)
        bytes = cdp__dt_times(bytes, cdp__max(l->shape[d], 1), &fits);
    if (!fits)
        return cdp_error_set(CDP_ERR_INVALID, -1, 0, "layout: the shape has more than 2^63 bytes");
    for (uint32_t by = 0; st == CDP_OK && by < l->mesh->desc.ndim; ++by) {
        if (l->place[by].kind == CDP_PLACE_SHARD)
            st = cdp__dt_check_shard(l, by);
        else if (l->place[by].kind == CDP_PLACE_PARTIAL)
            st = cdp__dt_check_partial(l, by, &kind);
        else if (l->place[by].kind != CDP_PLACE_REPLICATE)
            st = cdp__dt_wrong("kind", by, "it is none of cdp_place_kind");
    }
    return st == CDP_OK ? cdp__dt_check_blocks(l) : st;
}

CDP__DT const char *cdp__dt_digits(const char *s, uint64_t *v) {
    uint64_t n = 0;
    const char *first = s;
    for (; *s >= '0' && *s <= '9'; ++s) {
        if (n >> 58) return first;
        n = n * 10 + (uint64_t)(*s - '0');
    }
    *v = n;
    return s;
}

/* Parses one placement; returns the character after it, or NULL with *at at the invalid
   character. */
CDP__DT const char *cdp__dt_parse_shard(const char *s, cdp_place *p, const char **at) {
    const bool minus = *s == '-';
    uint64_t v = 0;
    const char *end;
    *at = s += minus;
    end = cdp__dt_digits(s, &v);
    if (end == s || v > CDP_TENSOR_DIMS) return NULL;
    p->kind = CDP_PLACE_SHARD;
    p->dim = minus ? -(int32_t)v : (int32_t)v;
    while (*end == '/' || *end == '!' || *end == '#') {
        const char what = *end;
        *at = s = end + 1;
        end = cdp__dt_digits(s, &v);
        if (end == s || (what != '/' && v >> 32) || (what == '/' && !v)) return NULL;
        if (what == '/') p->block = v;
        if (what == '!') p->order = (uint32_t)v;
        if (what == '#') p->cut = (uint32_t)v;
    }
    return end;
}

CDP__DT const char *cdp__dt_parse_partial(const char *s, cdp_place *p, const char **at) {
    p->kind = CDP_PLACE_PARTIAL;
    p->op = CDP_REDUCE_SUM;
    if (*s != '(') return s;
    *at = ++s;
    for (uint32_t op = CDP_REDUCE_SUM; op <= CDP_REDUCE_PRODUCT; ++op) {
        const char *name = cdp_reduce_name((cdp_reduce_op)op);
        const size_t n = strlen(name);
        if (strncmp(s, name, n) != 0 || s[n] != ')') continue;
        p->op = (cdp_reduce_op)op;
        return s + n + 1;
    }
    return NULL;
}

CDP_API cdp_status cdp_layout_parse(cdp_layout *l, const char *places) {
    cdp_place place[CDP_MESH_DIMS];
    const char *s = places, *at = places;
    if (!cdp__dt_has_mesh(l)) return cdp__dt_mesh_refused(l, "cdp_layout_parse");
    if (!places) return cdp__dt_missing("cdp_layout_parse", "text");
    memset(place, 0, sizeof place);
    for (uint32_t by = 0; s && by < l->mesh->desc.ndim; ++by) {
        at = s;
        if (by > 0 && *s++ != ',') s = NULL;
        if (s) at = s;
        if (s && *s == 'R')
            ++s;
        else if (s && *s == 'S')
            s = cdp__dt_parse_shard(s + 1, &place[by], &at);
        else if (s && *s == 'P')
            s = cdp__dt_parse_partial(s + 1, &place[by], &at);
        else
            s = NULL;
    }
    if (s && *s) at = s;
    if (!s || *s)
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_layout_parse: \"%s\" at character %u: expected %u placements such as R, S0, "
            "P(max)",
            places, (unsigned)(at - places), l->mesh->desc.ndim);
    memcpy(l->place, place, sizeof place);
    return cdp_layout_check(l);
}

CDP__DT void cdp__dt_add_place(cdp__text *t, const cdp_layout *l, uint32_t by) {
    const cdp_place *p = &l->place[by];
    if (p->kind == CDP_PLACE_REPLICATE) cdp__text_add(t, "R");
    if (p->kind == CDP_PLACE_PARTIAL) cdp__text_add(t, "P");
    if (p->kind == CDP_PLACE_PARTIAL && cdp__dt_op(p) != CDP_REDUCE_SUM)
        cdp__text_add(t, "(%s)", cdp_reduce_name(p->op));
    if (p->kind != CDP_PLACE_SHARD) return;
    cdp__text_add(t, "S%u", cdp__dt_dim(l, by));
    if (p->block > 1) cdp__text_add(t, "/%llu", (unsigned long long)p->block);
    if (p->order) cdp__text_add(t, "!%u", p->order);
    if (p->cut) cdp__text_add(t, "#%u", p->cut);
}

CDP__DT void cdp__dt_add_places(cdp__text *t, const cdp_layout *l) {
    for (uint32_t by = 0; by < l->mesh->desc.ndim; ++by) {
        if (by) cdp__text_char(t, ',');
        cdp__dt_add_place(t, l, by);
    }
}

CDP_API uint64_t cdp_layout_text(const cdp_layout *l, char *text, uint64_t room) {
    cdp__text t = cdp__text_of(text, room);
    if (cdp__dt_has_mesh(l)) cdp__dt_add_places(&t, l);
    return cdp__text_end(&t);
}

CDP__DT uint64_t cdp__dt_box_out(const cdp__dt_region *r, uint32_t ndim, cdp_box *out) {
    for (uint32_t d = 0; out && d < CDP_TENSOR_DIMS; ++d) {
        out->start[d] = d < ndim ? r->start[d] : 0;
        out->size[d] = d < ndim ? r->size[d] : 0;
    }
    return cdp__dt_volume(r, ndim);
}

CDP_API uint64_t cdp_layout_box(const cdp_layout *l, const uint32_t *coord, cdp_box *out) {
    cdp__dt_region r;
    memset(&r, 0, sizeof r);
    if (out) memset(out, 0, sizeof *out);
    if (!cdp__dt_has_mesh(l) || !cdp__dt_cuts_last(l)) return 0;
    uint32_t position = l->mesh->me;
    if (coord) {
        position = 0;
        for (uint32_t d = 0; d < l->mesh->desc.ndim; ++d)
            position += coord[d] * l->mesh->stride[d];
    }
    if (position == CDP__DT_NONE) {
        for (uint32_t d = 0; out && d < l->ndim; ++d)
            out->start[d] = l->shape[d];
        return 0;
    }
    const cdp__dt_side s = cdp__dt_side_of(l, 0);
    r = cdp__dt_region_of(&s, position);
    return cdp__dt_box_out(&r, l->ndim, out);
}

CDP__DT bool cdp__dt_mesh_same(const cdp_mesh *a, const cdp_mesh *b) {
    return a == b
        || (a->root->group == b->root->group && a->count == b->count && a->desc.ndim == b->desc.ndim
            && memcmp(a->desc.shape, b->desc.shape, a->desc.ndim * sizeof a->desc.shape[0]) == 0
            && memcmp(a->ranks, b->ranks, a->count * sizeof *a->ranks) == 0);
}

CDP__DT bool cdp__dt_shape_same(const cdp_layout *a, const cdp_layout *b) {
    return a->ndim == b->ndim && cdp__dt_dtype(a) == cdp__dt_dtype(b)
        && memcmp(a->shape, b->shape, a->ndim * sizeof a->shape[0]) == 0;
}

CDP_API bool cdp_layout_same(const cdp_layout *a, const cdp_layout *b) {
    if (!cdp__dt_has_mesh(a) || !cdp__dt_has_mesh(b) || !cdp__dt_shape_same(a, b)) return false;
    if (!cdp__dt_mesh_same(a->mesh, b->mesh)) return false;
    if (!cdp__dt_cuts_last(a) || !cdp__dt_cuts_last(b)) return false;
    for (uint32_t by = 0; by < a->mesh->desc.ndim; ++by) {
        const cdp_place *p = &a->place[by], *q = &b->place[by];
        const bool x = p->kind == CDP_PLACE_PARTIAL, y = q->kind == CDP_PLACE_PARTIAL;
        if (a->mesh->desc.shape[by] == 1) continue;
        if (x != y || (x && cdp__dt_op(p) != cdp__dt_op(q))) return false;
    }
    const cdp__dt_side s = cdp__dt_side_of(a, 0), t = cdp__dt_side_of(b, 0);
    for (uint32_t k = 0; k < s.count; ++k) {
        const cdp__dt_region x = cdp__dt_region_of(&s, k), y = cdp__dt_region_of(&t, k);
        const uint64_t n = cdp__dt_volume(&x, s.ndim);
        if (n != cdp__dt_volume(&y, t.ndim)) return false;
        if (n && memcmp(x.start, y.start, a->ndim * sizeof x.start[0]) != 0) return false;
        if (n && memcmp(x.size, y.size, a->ndim * sizeof x.size[0]) != 0) return false;
    }
    return true;
}

/* ---- >>dtensor/stages: the data of a plan ---------------------------------------------------- */

/* Knows: pairs of layouts. Promises: the cost of a stage for all ranks. */

typedef enum cdp__dt_memory {
    CDP__DT_IN,
    CDP__DT_OUT,
    CDP__DT_SCRATCH
} cdp__dt_memory;

/* Rows at least this long are received in place. Shorter ones are cheaper to receive together
   and then to copy. */
#define CDP__DT_ROW_BYTES 64u

/* One message, or one local copy. */
typedef struct cdp__dt_piece {
    uint32_t peer;           /* node */
    cdp__dt_memory from, to; /* what the offsets of copy refer to */
    bool direct;             /* the message is contiguous in the tensor: not packed or unpacked */
    bool rows;               /* received into rows of the tensor: not unpacked */
    bool again;              /* already packed for the previous piece */
    uint64_t elements, at;   /* at: offset of the message in its memory */
    cdp__dt_copy copy;
    cdp__dt_region region;
} cdp__dt_piece;

/* A slab that this rank reduces, or a window of one: its own contribution, and those received from
   piece `first` on. */
typedef struct cdp__dt_fold {
    uint64_t at, elements;
    uint32_t own, first;
    cdp__dt_memory from, to; /* to: where the slab is */
    cdp__dt_copy copy;       /* of the own contribution */
} cdp__dt_fold;

typedef struct cdp__dt_phase {
    cdp__dt_piece *send, *recv, *here;
    cdp__dt_fold *fold;
    uint32_t sends, recvs, locals, folds;
    bool zero; /* clear the target first */
    uint64_t zero_at, zero_bytes;
    cdp__dt_memory zero_in;
    uint32_t stage;
} cdp__dt_phase;

typedef struct cdp__dt_stage {
    cdp_layout from, to;
    cdp__dt_pair pair;
    cdp__dt_side host_to; /* the target's arrays: larger than pair.to's where PARTIAL is filled */
    bool zero;
    cdp_reduce_op op;
    uint64_t divisor;
    uint32_t *maps; /* position of each node in either mesh, where these differ */
    cdp__dt_cost cost;
    cdp__dt_single single; /* the collective that the stage is */
    cdp__dt_sum sum;       /* the collectives that it is, one after the other */
    uint64_t sum_most;     /* elements, of one rank */
} cdp__dt_stage;

/* One phase of an asynchronous run: its messages in sequence, ordered by peer. */
typedef struct cdp__dt_wide {
    uint64_t *send_count, *recv_count; /* bytes, per node */
    uint64_t *send_at, *recv_at;       /* of each piece */
    uint8_t *out, *in;
    uint64_t out_bytes, in_bytes;
} cdp__dt_wide;

/* The most phases, or steps, of a plan. */
#define CDP__DT_TURNS (4u * CDP__DT_STEPS)

typedef struct cdp__dt_turn {
    struct cdp__dt_turns *all;
    uint32_t phase;
} cdp__dt_turn;

/* A step of a plan that is several collectives, and messages between or after them. Offsets are
   bytes. */
typedef struct cdp__dt_act {
    uint32_t phase; /* number of the phase; CDP__DT_NONE: the step is a call */
    uint32_t by;    /* of the row that calls, a dimension of the mesh; CDP__DT_NONE: all ranks */
    cdp_coll_kind kind;
    cdp_reduce_op op;
    cdp__dt_memory from, to;
    uint64_t from_at, to_at;
    uint64_t count, *counts; /* as in cdp_request */
    uint32_t divisor;        /* of what the call has summed */
} cdp__dt_act;

/* State of callbacks of works. It outlives its plan if a callback is still to be called, with a
   failure, when the group is destroyed; `plan` is only used after a success. */
typedef struct cdp__dt_turns {
    cdp__dt_retired retirement; /* first member: frees this struct then */
    cdp_plan *plan;
    uint32_t pending; /* callbacks to come; if any, the plan is running */
    cdp__dt_turn turn[CDP__DT_TURNS];
} cdp__dt_turns;

struct cdp_plan {
    cdp_plan_desc desc;
    const cdp_os *os;
    cdp_mesh *mesh;
    cdp__dt_link *link; /* NULL: on paper, or this rank takes no part */
    cdp_group *group;   /* of link */
    uint32_t node, nodes;
    cdp_dtype dtype;
    uint64_t elem, in_bytes, out_bytes;
    cdp__dt_stage *stages;
    cdp__dt_phase *phases;
    uint32_t stage_count, phase_count;
    bool calls;        /* its stages are collectives where they can be */
    cdp__dt_act *acts; /* what a run does, in place of all phases; NULL: those */
    uint32_t act_count;
    /* the collective that a run is, with the count of this rank; kind NONE: it runs the phases */
    cdp__dt_single single;
    cdp__dt_link *row; /* that runs it, if it is one along a dimension of the mesh; else NULL */
    cdp_transfer *list;
    uint8_t *scratch;
    uint64_t scratch_used;
    bool whole, windows; /* windows: some phases have windows of slabs; whole: none shall */
    cdp_plan_info info;
    bool holds;                        /* the cuts of its layouts */
    bool compared, identity, backward; /* backward: counted as such */
    cdp_coll_kind kind;                /* counted as this */
    struct cdp__dt_wide *wide;         /* of asynchronous runs */
    cdp__dt_turns *turns;              /* likewise; NULL before the first one */
    struct cdp_plan *spare;            /* another plan of the same layouts, see cdp__dt_kept */
    const void *in;
    void *out;
};

/* True: plans may use the group of a dimension. One of the caller may be of another world. */
CDP__DT bool cdp__dt_link_usable(const cdp_mesh *m, uint32_t dim) {
    return !m->link[dim] || !m->link[dim]->borrowed;
}

/* The ranks that a run communicates with, and their group. */
CDP__DT cdp__dt_link *cdp__dt_run_link(const cdp_plan *p) {
    return p->row ? p->row : p->link;
}

CDP__DT cdp_group *cdp__dt_act_group(const cdp_plan *p, const cdp__dt_act *a) {
    return a->by == CDP__DT_NONE ? p->group : p->mesh->link[a->by]->group;
}

CDP__DT bool cdp__dt_partial(const cdp_layout *l, uint32_t by) {
    return l->place[by].kind == CDP_PLACE_PARTIAL;
}

/* Simplifies what cuts one dimension of the tensor: orders are 0 where cuts go from left to right,
   else 0, 1, ...; the first one has no block and no cut of its own where its pieces are those of
   the chunk rule. */
CDP__DT void cdp__dt_plain_cuts(cdp_layout *l, uint32_t dim) {
    uint32_t sequence[CDP_MESH_DIMS], by[CDP_MESH_DIMS], n = 0;
    const uint32_t all = cdp__dt_sequence(l, l->mesh->desc.ndim, sequence);
    bool plain = true;
    for (uint32_t k = 0; k < all; ++k)
        if (cdp__dt_dim(l, sequence[k]) == dim) by[n++] = sequence[k];
    for (uint32_t k = 1; k < n; ++k)
        plain = plain && by[k - 1] < by[k];
    for (uint32_t k = 0; k < n; ++k) {
        l->place[by[k]].dim = (int32_t)dim;
        l->place[by[k]].order = plain ? 0 : k;
        if (l->place[by[k]].block == 1) l->place[by[k]].block = 0;
    }
    if (!n) return;
    cdp_place *p = &l->place[by[0]];
    const uint32_t ranks = l->mesh->desc.shape[by[0]];
    const uint64_t *own = p->cut ? cdp__dt_cut_starts(l->mesh, p->cut) : NULL;
    uint64_t start, other;
    for (uint32_t i = 0; (own || p->block) && i < ranks; ++i) {
        const uint64_t size = cdp__dt_chunk(l->shape[dim], 1, ranks, i, &start);
        const uint64_t is =
            own ? own[i + 1] - own[i] : cdp__dt_chunk(l->shape[dim], p->block, ranks, i, &other);
        if (is != size) return;
    }
    p->block = 0;
    if (own) p->cut = 0;
}

/* The simplest layout with the same meaning: dimensions of a single rank neither shard nor
   reduce. */
CDP__DT cdp_layout cdp__dt_plain(const cdp_layout *l) {
    cdp_layout out = *l;
    out.dtype = cdp__dt_dtype(l);
    for (uint32_t by = 0; by < l->mesh->desc.ndim; ++by)
        if (l->mesh->desc.shape[by] == 1 && !out.place[by].cut) cdp__dt_replicate(&out, by);
    for (uint32_t dim = 0; dim < l->ndim; ++dim)
        cdp__dt_plain_cuts(&out, dim);
    return out;
}

/* Which PARTIAL dimensions of the target are kept; in *expand, which SHARD dimensions become
   PARTIAL. */
CDP__DT cdp_status cdp__dt_target_partial(
    const cdp_layout *from, const cdp_layout *to, bool product, uint32_t *kept, uint32_t *expand) {
    *kept = *expand = 0;
    for (uint32_t by = 0; by < to->mesh->desc.ndim; ++by) {
        if (!cdp__dt_partial(to, by)) continue;
        const cdp_reduce_op op = cdp__dt_op(&to->place[by]);
        if (product && cdp__dt_partial(from, by) && cdp__dt_op(&from->place[by]) == op)
            *kept |= 1u << by;
        else if (product && from->place[by].kind == CDP_PLACE_SHARD && op == CDP_REDUCE_SUM)
            *expand |= 1u << by;
        else
            return cdp_error_set(CDP_ERR_UNSUPPORTED, -1, 0,
                "plan: the target is PARTIAL (%s) in mesh dimension %u, where the source is "
                "neither "
                "that nor, for a sum, SHARD",
                cdp_reduce_name(op), by);
    }
    return CDP_OK;
}

/* The target of the moves. The contribution of each rank to a sum is the piece that it would
   hold if the dimension sharded after all others, surrounded by zeros. */
CDP__DT cdp_layout cdp__dt_expanded(const cdp_layout *from, const cdp_layout *to, uint32_t expand) {
    cdp_layout l = *to;
    for (uint32_t by = 0; by < to->mesh->desc.ndim; ++by) {
        if (!(expand >> by & 1)) continue;
        l.place[by] = from->place[by];
        l.place[by].order = UINT32_MAX;
        if (from->mesh != to->mesh) l.place[by].cut = 0; /* any pieces will do */
        for (uint32_t d = 0; d < to->mesh->desc.ndim; ++d)
            if (d != by && l.place[d].kind == CDP_PLACE_SHARD
                && cdp__dt_dim(&l, d) == cdp__dt_dim(&l, by))
                l.place[by].cut = 0;
    }
    return l;
}

/* If the meshes differ, nodes are ranks of their group: makes tables of positions. */
CDP__DT cdp_status cdp__dt_stage_maps(cdp__dt_stage *s, const cdp_os *os) {
    const cdp_mesh *a = s->from.mesh, *b = s->to.mesh;
    const uint32_t n = a->root->size;
    s->maps = (uint32_t *)cdp__dt_alloc(os, 2ull * n * sizeof *s->maps);
    if (!s->maps) return cdp__dt_nomem("a plan between meshes", 2ull * n * sizeof *s->maps);
    for (uint32_t i = 0; i < 2 * n; ++i)
        s->maps[i] = CDP__DT_NONE;
    for (uint32_t i = 0; i < a->count; ++i)
        s->maps[a->ranks[i]] = i;
    for (uint32_t i = 0; i < b->count; ++i)
        s->maps[n + b->ranks[i]] = i;
    s->pair.from.at = s->maps;
    s->pair.from.node = a->ranks;
    s->pair.to.at = s->host_to.at = s->maps + n;
    s->pair.to.node = s->host_to.node = b->ranks;
    s->pair.nodes = n;
    return CDP_OK;
}

/* Finds out whether the only stage of a plan is one collective. A mean of some dimensions and a sum
   of others is none. Nor is what takes more bytes than messages do: sums along a dimension of three
   or more ranks of a tensor that another dimension replicates. Each row would compute them, perhaps
   in another order, and replicas would differ. Nor are rows that leave their hosts at uneven
   places: messages take the replica that is nearest. */
CDP__DT void cdp__dt_stage_single(cdp__dt_stage *s) {
    const cdp__dt_single one = cdp__dt_single_of(&s->pair);
    if (s->zero || (s->divisor != 1 && s->divisor != one.nodes)) return;
    if (one.kind == CDP_COLL_NONE || one.total != s->cost.total) return;
    if (one.by != CDP__DT_NONE && !cdp__dt_link_usable(s->from.mesh, one.by)) return;
    const uint32_t host = s->pair.host_nodes;
    if (one.by != CDP__DT_NONE && host && host % (one.nodes * one.step) && one.step % host) return;
    s->single = one;
    if (s->divisor != 1) s->op = CDP_REDUCE_AVG;
    s->cost.busiest = cdp__dt_single_recv(&s->single, 0, s->single.count);
}

/* `from_only`, `to_only`: the one node that holds the tensor, or CDP__DT_NONE. */
CDP__DT cdp_status cdp__dt_stage_make(cdp__dt_stage *s, const cdp_os *os, const cdp_layout *from,
    const cdp_layout *to, uint32_t from_only, uint32_t to_only) {
    const bool one_mesh = cdp__dt_mesh_same(from->mesh, to->mesh);
    uint32_t kept, expand;
    memset(s, 0, sizeof *s);
    s->from = *from;
    s->to = *to;
    s->pair.product = one_mesh && from_only == CDP__DT_NONE && to_only == CDP__DT_NONE;
    cdp_status st = cdp__dt_target_partial(from, to, s->pair.product, &kept, &expand);
    if (st != CDP_OK) return st;
    const cdp_layout target = cdp__dt_expanded(from, to, expand);
    s->pair.from = from_only == CDP__DT_NONE ? cdp__dt_side_of(from, kept)
                                             : cdp__dt_side_only(from, from_only);
    s->pair.to =
        to_only == CDP__DT_NONE ? cdp__dt_side_of(&target, kept) : cdp__dt_side_only(to, to_only);
    s->host_to = to_only == CDP__DT_NONE ? cdp__dt_side_of(to, kept) : s->pair.to;
    s->zero = expand != 0;
    s->pair.nodes = from->mesh->count;
    s->pair.host_nodes = from->mesh->desc.host_ranks;
    if (s->pair.host_nodes >= s->pair.nodes) s->pair.host_nodes = 0;
    s->op = CDP_REDUCE_SUM;
    s->divisor = 1;
    for (uint32_t by = 0; by < from->mesh->desc.ndim; ++by) {
        if (!cdp__dt_partial(from, by) || kept >> by & 1) continue;
        s->op = cdp__dt_op(&from->place[by]);
        if (s->op == CDP_REDUCE_AVG) s->divisor *= from->mesh->desc.shape[by];
        if (s->op == CDP_REDUCE_AVG) s->op = CDP_REDUCE_SUM;
    }
    if (!one_mesh) st = cdp__dt_stage_maps(s, os);
    if (st != CDP_OK) return st;
    s->cost = cdp__dt_cost_of(&s->pair);
    return st;
}

/* ---- >>dtensor/scratch: memory that plans and layers use while they run ---------------------- */

/* Knows: plans and the root of their meshes. Promises: what does not run at one time uses the same
   memory; memory that a failed group may still access is not used again. */

/* True while an asynchronous run is in flight. */
CDP__DT bool cdp__dt_running(const cdp_plan *p) {
    return p->turns && cdp__atomic_load_u32(&p->turns->pending, CDP__ACQUIRE) != 0;
}

/* Of a group that has failed, peers may still access the memory that it was given. */
CDP__DT bool cdp__dt_groups_fine(const cdp_plan *p) {
    bool fine = cdp_group_status(p->group) == CDP_OK;
    for (uint32_t k = 0; k < p->act_count && fine; ++k)
        fine = cdp_group_status(cdp__dt_act_group(p, &p->acts[k])) == CDP_OK;
    return fine;
}

CDP__DT bool cdp__dt_scratch_idle(const cdp__dt_scratch *s) {
    const cdp_plan *const p = s->user;
    return !s->held && (!p || (!cdp__dt_running(p) && (!p->turns || cdp__dt_groups_fine(p))));
}

/* Frees what no run uses, all of it or only what is smaller than `below` bytes. */
CDP__DT void cdp__dt_scratch_trim(cdp__dt_root *root, uint64_t below) {
    for (cdp__dt_scratch **at = &root->scratch; *at;) {
        cdp__dt_scratch *s = *at;
        if (s->bytes >= below || !cdp__dt_scratch_idle(s)) {
            at = &s->next;
            continue;
        }
        *at = s->next;
        cdp__dt_retire(root, s->link, s->at);
        cdp__dt_free(root->os, s);
    }
}

/* Finds so many bytes, at best some that are idle; makes them if there are none, or none that are
   idle and `idle` says that they must be. */
CDP__DT cdp_status cdp__dt_scratch_find(
    cdp__dt_root *root, uint64_t bytes, bool idle, cdp__dt_scratch **out) {
    *out = NULL;
    for (cdp__dt_scratch *s = root->scratch; s; s = s->next) {
        if (s->bytes < bytes || (idle && !cdp__dt_scratch_idle(s))) continue;
        if (!*out || s->bytes < (*out)->bytes) *out = s;
    }
    if (*out) return CDP_OK;
    cdp__dt_scratch_trim(root, bytes);
    cdp__dt_scratch *s = (cdp__dt_scratch *)cdp__dt_alloc(root->os, sizeof *s);
    uint8_t *at = s ? (uint8_t *)cdp__dt_group_memory(root->group, bytes) : NULL;
    if (!at) {
        cdp__dt_free(root->os, s);
        return cdp__dt_nomem("the scratch memory of a plan or layer", bytes);
    }
    s->at = at;
    s->bytes = bytes;
    s->next = root->scratch;
    root->scratch = s;
    *out = s;
    return CDP_OK;
}

/* Makes sure that a run of this plan alone finds memory. */
CDP__DT cdp_status cdp__dt_scratch_reserve(cdp_plan *p) {
    cdp__dt_scratch *s;
    return p->scratch_used ? cdp__dt_scratch_find(p->mesh->root, p->scratch_used, false, &s)
                           : CDP_OK;
}

/* Takes memory for a run. */
CDP__DT cdp_status cdp__dt_scratch_take(cdp_plan *p) {
    cdp__dt_scratch *s;
    p->scratch = NULL;
    if (!p->scratch_used) return CDP_OK;
    const cdp_status st = cdp__dt_scratch_find(p->mesh->root, p->scratch_used, true, &s);
    if (st != CDP_OK) return st;
    s->user = p;
    s->link = p->link;
    s->held = true;
    p->scratch = s->at;
    return CDP_OK;
}

/* A run has returned: others may have its memory, once it is not in flight. `gone`: so is the
   plan. */
CDP__DT void cdp__dt_scratch_give(cdp_plan *p, bool gone) {
    for (cdp__dt_scratch *s = p->mesh->root->scratch; s; s = s->next) {
        if (s->user != p) continue;
        s->held = s->held && !cdp__dt_groups_fine(p);
        if (!gone) continue;
        s->held = s->held || cdp__dt_running(p) || !cdp__dt_groups_fine(p);
        s->user = NULL;
    }
}

/* Takes memory for a call that ends before it returns, see cdp__dt_scratch_back(). */
CDP__DT cdp_status cdp__dt_scratch_lend(
    cdp__dt_root *root, cdp__dt_link *link, uint64_t bytes, cdp__dt_scratch **out) {
    const cdp_status st = cdp__dt_scratch_find(root, bytes, true, out);
    if (st != CDP_OK) return st;
    (*out)->user = NULL;
    (*out)->link = link;
    (*out)->held = true;
    return CDP_OK;
}

CDP__DT void cdp__dt_scratch_back(cdp__dt_scratch *s) {
    if (s) s->held = cdp_group_status(s->link->group) != CDP_OK;
}

/* ---- >>dtensor/phases: what one rank does in a stage ----------------------------------------- */

/* Knows: the moves of a stage, by their kinds only. Promises: phases that need no further memory
   when they run, and of which contributions to sums share scratch memory. */

typedef struct cdp__dt_tally {
    uint32_t count[8];
    uint64_t elements[8];
    uint32_t ndim;
} cdp__dt_tally;

CDP__DT void cdp__dt_tally_move(void *user, const cdp__dt_move *m) {
    cdp__dt_tally *t = (cdp__dt_tally *)user;
    ++t->count[m->kind];
    t->elements[m->kind] += cdp__dt_volume(&m->region, t->ndim);
}

CDP__DT cdp__dt_tally cdp__dt_tally_of(const cdp__dt_pair *p, uint32_t node) {
    cdp__dt_tally t;
    memset(&t, 0, sizeof t);
    t.ndim = p->to.ndim;
    cdp__dt_moves(p, node, cdp__dt_tally_move, &t);
    return t;
}

/* Contributions to a sum arrive in windows of about so many bytes, which use the same scratch
   memory one after the other. */
#ifndef CDP__DT_WINDOW_BYTES /* tests have small ones */
#define CDP__DT_WINDOW_BYTES (2u << 20)
#endif

/* Where a slab is that this rank reduces. */
typedef struct cdp__dt_slab_place {
    cdp__dt_memory in;
    bool there; /* in the target */
    uint64_t at;
} cdp__dt_slab_place;

/* State while the phases of one stage are filled in. */
typedef struct cdp__dt_build {
    cdp_plan *plan;
    const cdp__dt_stage *stage;
    cdp__dt_phase *terms, *copies;   /* terms: of this window */
    cdp__dt_slab_place *slab;        /* of each that this rank reduces, in the order of moves */
    uint32_t slabs, window, windows; /* slabs: so many have been opened */
    cdp__dt_memory from, to;         /* where the tensors of the stage are, and at which offset */
    uint64_t from_at, to_at;
    cdp__dt_region from_box, to_box; /* regions that this rank holds */
} cdp__dt_build;

CDP__DT uint64_t cdp__dt_reserve(cdp_plan *p, uint64_t bytes) {
    const uint64_t at = p->scratch_used;
    p->scratch_used += (bytes + 63) & ~(uint64_t)63;
    return at;
}

/* Adds a message from the tensor; packed unless it is contiguous there. */
CDP__DT void cdp__dt_build_send(cdp__dt_build *b, cdp__dt_phase *ph, const cdp__dt_move *m) {
    const uint32_t ndim = b->stage->pair.to.ndim;
    cdp__dt_piece *s = &ph->send[ph->sends], *last = ph->sends ? s - 1 : NULL;
    ++ph->sends;
    s->peer = m->peer;
    s->region = m->region;
    s->elements = cdp__dt_volume(&m->region, ndim);
    s->from = b->from;
    s->copy = cdp__dt_copy_of(&m->region, &b->from_box, &m->region, ndim, b->plan->elem);
    s->copy.from_at += b->from_at;
    s->direct = s->copy.dims == 0;
    s->at = s->copy.from_at;
    if (s->direct) return;
    s->to = CDP__DT_SCRATCH;
    s->again = last && !last->direct && last->from == s->from
        && memcmp(&last->region, &s->region, sizeof s->region) == 0;
    s->at = s->again ? last->at : cdp__dt_reserve(b->plan, s->elements * b->plan->elem);
    s->copy.to_at = s->at;
    if (!s->again) b->plan->info.copied_bytes += s->elements * b->plan->elem;
}

CDP__DT void cdp__dt_build_recv(cdp__dt_build *b, const cdp__dt_move *m) {
    const uint32_t ndim = b->stage->pair.to.ndim;
    cdp__dt_piece *r = &b->copies->recv[b->copies->recvs++];
    r->peer = m->peer;
    r->region = m->region;
    r->elements = cdp__dt_volume(&m->region, ndim);
    r->to = b->to;
    r->copy = cdp__dt_copy_of(&m->region, &m->region, &b->to_box, ndim, b->plan->elem);
    r->copy.to_at += b->to_at;
    r->direct = r->copy.dims == 0;
    r->rows = r->copy.dims == 1 && r->copy.run >= CDP__DT_ROW_BYTES;
    r->at = r->copy.to_at;
    if (r->direct || r->rows) return;
    r->from = CDP__DT_SCRATCH;
    r->at = r->copy.from_at = cdp__dt_reserve(b->plan, r->elements * b->plan->elem);
    b->plan->info.copied_bytes += r->elements * b->plan->elem;
}

CDP__DT void cdp__dt_build_local(cdp__dt_build *b, const cdp__dt_move *m, bool from_slab) {
    const cdp__dt_slab_place *f = from_slab ? &b->slab[b->slabs - 1] : NULL;
    if (f && f->there) return;
    cdp__dt_piece *l = &b->copies->here[b->copies->locals++];
    l->peer = m->peer;
    l->region = m->region;
    l->elements = cdp__dt_volume(&m->region, b->stage->pair.to.ndim);
    l->from = from_slab ? CDP__DT_SCRATCH : b->from;
    l->to = b->to;
    l->copy = cdp__dt_copy_of(&m->region, from_slab ? &m->region : &b->from_box, &b->to_box,
        b->stage->pair.to.ndim, b->plan->elem);
    l->copy.from_at += from_slab ? f->at : b->from_at;
    l->copy.to_at += b->to_at;
    b->plan->info.copied_bytes += l->elements * b->plan->elem;
}

/* Finds the place of a slab: in the target, if it is contiguous there. */
CDP__DT void cdp__dt_build_slab(void *user, const cdp__dt_move *m) {
    cdp__dt_build *b = (cdp__dt_build *)user;
    const uint32_t ndim = b->stage->pair.to.ndim;
    cdp__dt_region part;
    if (m->kind != CDP__DT_OWN) return;
    cdp__dt_slab_place *slab = &b->slab[b->slabs++];
    const bool here = !b->stage->zero && cdp__dt_intersect(&m->region, &b->to_box, ndim, &part)
        && memcmp(&part, &m->region, sizeof part) == 0;
    const cdp__dt_copy c = cdp__dt_copy_of(
        &m->region, &m->region, here ? &b->to_box : &m->region, ndim, b->plan->elem);
    slab->there = here && c.dims == 0;
    if (slab->there) {
        slab->in = b->to;
        slab->at = b->to_at + c.to_at;
    } else {
        slab->in = CDP__DT_SCRATCH;
        slab->at = cdp__dt_reserve(b->plan, cdp__dt_volume(&m->region, ndim) * b->plan->elem);
    }
}

/* The part of a region that this window has: some of its rows. False: none. *before: elements of
   the region that lie before them. */
CDP__DT bool cdp__dt_window_of(
    const cdp__dt_build *b, const cdp__dt_region *all, cdp__dt_region *part, uint64_t *before) {
    const uint32_t ndim = b->stage->pair.to.ndim;
    uint32_t d = 0;
    uint64_t start;
    *part = *all;
    *before = 0;
    if (b->windows == 1) return true;
    while (d + 1 < ndim && all->size[d] == 1)
        ++d;
    part->size[d] = cdp__dt_chunk(all->size[d], 1, b->windows, b->window, &start);
    part->start[d] += start;
    if (!part->size[d]) return false;
    *before = cdp__dt_volume(part, ndim) / part->size[d] * start;
    return true;
}

CDP__DT void cdp__dt_build_fold(
    cdp__dt_build *b, const cdp__dt_move *m, const cdp__dt_region *part, uint64_t before) {
    const uint32_t ndim = b->stage->pair.to.ndim;
    cdp__dt_fold *f = &b->terms->fold[b->terms->folds++];
    f->elements = cdp__dt_volume(part, ndim);
    f->to = b->slab[b->slabs - 1].in;
    f->at = b->slab[b->slabs - 1].at + before * b->plan->elem;
    f->own = m->peer;
    f->first = b->terms->recvs;
    f->from = b->from;
    f->copy = cdp__dt_copy_of(part, &b->from_box, part, ndim, b->plan->elem);
    f->copy.from_at += b->from_at;
    f->copy.to_at = f->at;
}

/* A message that is contiguous in memory. */
CDP__DT void cdp__dt_build_direct(const cdp__dt_build *b, cdp__dt_piece *x, const cdp__dt_move *m,
    cdp__dt_memory memory, uint64_t at) {
    x->peer = m->peer;
    x->region = m->region;
    x->elements = cdp__dt_volume(&m->region, b->stage->pair.to.ndim);
    x->from = x->to = memory;
    x->direct = true;
    x->at = at;
}

/* Moves of contributions, in one window. */
CDP__DT void cdp__dt_build_term(void *user, const cdp__dt_move *m) {
    cdp__dt_build *b = (cdp__dt_build *)user;
    cdp__dt_move part = *m;
    uint64_t before, bytes;
    if (m->kind == CDP__DT_OWN) ++b->slabs;
    if (m->kind != CDP__DT_OWN && m->kind != CDP__DT_TERM_SEND && m->kind != CDP__DT_TERM_RECV)
        return;
    if (!cdp__dt_window_of(b, &m->region, &part.region, &before)) return;
    bytes = cdp__dt_volume(&part.region, b->stage->pair.to.ndim) * b->plan->elem;
    if (m->kind == CDP__DT_OWN)
        cdp__dt_build_fold(b, m, &part.region, before);
    else if (m->kind == CDP__DT_TERM_SEND)
        cdp__dt_build_send(b, b->terms, &part);
    else
        cdp__dt_build_direct(b, &b->terms->recv[b->terms->recvs++], &part, CDP__DT_SCRATCH,
            cdp__dt_reserve(b->plan, bytes));
}

/* Moves of what was not reduced, or has been. */
CDP__DT void cdp__dt_build_move(void *user, const cdp__dt_move *m) {
    cdp__dt_build *b = (cdp__dt_build *)user;
    const cdp__dt_slab_place *slab;
    switch (m->kind) {
    case CDP__DT_OWN: ++b->slabs; break;
    case CDP__DT_LOCAL: cdp__dt_build_local(b, m, false); break;
    case CDP__DT_OWN_LOCAL: cdp__dt_build_local(b, m, true); break;
    case CDP__DT_SEND: cdp__dt_build_send(b, b->copies, m); break;
    case CDP__DT_RECV: cdp__dt_build_recv(b, m); break;
    case CDP__DT_OWN_SEND:
        slab = &b->slab[b->slabs - 1];
        cdp__dt_build_direct(b, &b->copies->send[b->copies->sends++], m, slab->in, slab->at);
        break;
    default: break;
    }
}

CDP__DT cdp_status cdp__dt_phase_alloc(cdp_plan *p, cdp__dt_phase *ph, uint32_t sends,
    uint32_t recvs, uint32_t locals, uint32_t folds) {
    const uint64_t pieces = (uint64_t)sends + recvs + locals;
    ph->send = (cdp__dt_piece *)cdp__dt_alloc(p->os, pieces * sizeof *ph->send);
    ph->fold = (cdp__dt_fold *)cdp__dt_alloc(p->os, folds * sizeof *ph->fold);
    if (!ph->send || !ph->fold) return cdp__dt_nomem("a plan", pieces * sizeof *ph->send);
    ph->recv = ph->send + sends;
    ph->here = ph->recv + recvs;
    return CDP_OK;
}

CDP__DT uint64_t cdp__dt_held(const cdp__dt_side *s, uint32_t node, cdp__dt_region *box) {
    const uint32_t at = cdp__dt_position(s, node);
    memset(box, 0, sizeof *box);
    if (at == CDP__DT_NONE) return 0;
    *box = cdp__dt_region_of(s, at);
    return cdp__dt_volume(box, s->ndim);
}

/* In how many windows the contributions of a stage arrive: the same number on all ranks. A plan
   has at most as many phases as an asynchronous run has turns. */
CDP__DT uint32_t cdp__dt_windows(const cdp_plan *p, const cdp__dt_stage *s) {
    const uint64_t bytes = cdp__dt_times_most(s->cost.busiest, p->elem);
    const uint32_t most = 2u * CDP__DT_STEPS / p->stage_count - 1u;
    if (s->pair.from.terms <= 1) return 0;
    return p->whole ? 1 : (uint32_t)cdp__min(bytes / CDP__DT_WINDOW_BYTES + 1, most);
}

/* Fills in the phases of contributions. What they have in scratch memory from `mark` on is used
   again by each. */
CDP__DT cdp_status cdp__dt_terms_build(
    cdp__dt_build *b, uint32_t k, const cdp__dt_tally *t, uint64_t *mark) {
    cdp_plan *p = b->plan;
    uint64_t most;
    cdp_status st = CDP_OK;
    if (!b->windows) return CDP_OK;
    b->slab = (cdp__dt_slab_place *)cdp__dt_alloc(p->os, t->count[CDP__DT_OWN] * sizeof *b->slab);
    if (!b->slab) return cdp__dt_nomem("a plan", t->count[CDP__DT_OWN] * sizeof *b->slab);
    cdp__dt_moves(&b->stage->pair, p->node, cdp__dt_build_slab, b);
    *mark = most = p->scratch_used;
    for (b->window = 0; st == CDP_OK && b->window < b->windows; ++b->window) {
        p->scratch_used = *mark;
        b->slabs = 0;
        b->terms = &p->phases[p->phase_count++];
        b->terms->stage = k;
        st = cdp__dt_phase_alloc(p, b->terms, t->count[CDP__DT_TERM_SEND],
            t->count[CDP__DT_TERM_RECV], 0, t->count[CDP__DT_OWN]);
        if (st == CDP_OK) cdp__dt_moves(&b->stage->pair, p->node, cdp__dt_build_term, b);
        most = cdp__max(most, p->scratch_used);
    }
    p->scratch_used = most;
    return st;
}

/* Fills in the phases of stage number `k`. Tensors between stages are in scratch memory. */
CDP__DT cdp_status cdp__dt_stage_build(cdp_plan *p, uint32_t k, uint64_t *between) {
    const cdp__dt_stage *s = &p->stages[k];
    const cdp__dt_tally t = cdp__dt_tally_of(&s->pair, p->node);
    cdp__dt_build b;
    memset(&b, 0, sizeof b);
    b.plan = p;
    b.stage = s;
    b.windows = cdp__dt_windows(p, s);
    b.from = k ? CDP__DT_SCRATCH : CDP__DT_IN;
    b.from_at = k ? *between : 0;
    const uint64_t held = cdp__dt_held(&s->host_to, p->node, &b.to_box) * p->elem;
    (void)cdp__dt_held(&s->pair.from, p->node, &b.from_box);
    b.to = k + 1 < p->stage_count ? CDP__DT_SCRATCH : CDP__DT_OUT;
    if (b.to == CDP__DT_SCRATCH) b.to_at = *between = cdp__dt_reserve(p, held);
    uint64_t mark = p->scratch_used;
    cdp_status st = cdp__dt_terms_build(&b, k, &t, &mark);
    const uint64_t most = p->scratch_used;
    p->scratch_used = mark;
    p->windows = p->windows || b.windows > 1;
    b.slabs = 0;
    b.copies = &p->phases[p->phase_count++];
    b.copies->stage = k;
    b.copies->zero = s->zero;
    b.copies->zero_in = b.to;
    b.copies->zero_at = b.to_at;
    b.copies->zero_bytes = held;
    if (st == CDP_OK)
        st = cdp__dt_phase_alloc(p, b.copies, t.count[CDP__DT_SEND] + t.count[CDP__DT_OWN_SEND],
            t.count[CDP__DT_RECV], t.count[CDP__DT_LOCAL] + t.count[CDP__DT_OWN_LOCAL], 0);
    if (st == CDP_OK) cdp__dt_moves(&s->pair, p->node, cdp__dt_build_move, &b);
    p->scratch_used = cdp__max(most, p->scratch_used);
    cdp__dt_free(p->os, b.slab);
    return st;
}

/* ---- >>dtensor/acts: the steps of a plan that is several collectives ------------------------- */

/* Knows: stages that are collectives, and phases of those that are not. Promises: tensors between
   stages are in scratch memory; a step that is a call needs no other. */

CDP__DT cdp_status cdp__dt_acts_build(cdp_plan *p) {
    const uint64_t bytes = CDP__DT_TURNS * sizeof *p->acts;
    p->acts = (cdp__dt_act *)cdp__dt_alloc(p->os, bytes);
    return p->acts ? CDP_OK : cdp__dt_nomem("a plan", bytes);
}

CDP__DT void cdp__dt_acts_free(cdp_plan *p) {
    for (uint32_t k = 0; k < p->act_count; ++k)
        cdp__dt_free(p->os, p->acts[k].counts);
    cdp__dt_free(p->os, p->acts);
    p->acts = NULL;
    p->act_count = 0;
}

/* Where the tensors of a stage are. */
typedef struct cdp__dt_ends {
    cdp__dt_memory from, to;
    uint64_t from_at, to_at;
} cdp__dt_ends;

CDP__DT cdp__dt_act *cdp__dt_act_add(cdp_plan *p, uint32_t by, const cdp__dt_ends *e) {
    cdp__dt_act *a = &p->acts[p->act_count++];
    a->phase = CDP__DT_NONE;
    a->by = by;
    a->from = e->from;
    a->from_at = e->from_at;
    a->to = e->to;
    a->to_at = e->to_at;
    return a;
}

/* The counts of the ranks' shares, if they differ. */
CDP__DT cdp_status cdp__dt_act_counts(cdp_plan *p, cdp__dt_act *a, const cdp__dt_call *c) {
    uint64_t start;
    if (c->count % c->nodes == 0) return CDP_OK;
    a->counts = (uint64_t *)cdp__dt_alloc(p->os, c->nodes * sizeof *a->counts);
    if (!a->counts) return cdp__dt_nomem("a plan", c->nodes * sizeof *a->counts);
    for (uint32_t k = 0; k < c->nodes; ++k)
        a->counts[k] = cdp__dt_share(c->count, c->nodes, k, &start);
    return CDP_OK;
}

/* What a call adds to the figures of this rank. */
CDP__DT void cdp__dt_act_tally(cdp_plan *p, const cdp__dt_call *c) {
    const uint32_t others = c->nodes - 1;
    const uint64_t got = cdp__dt_call_recv(c);
    uint64_t start, sent = got;
    const uint64_t own = cdp__dt_share(c->count, c->nodes, c->index, &start);
    if (c->kind == CDP_COLL_REDUCE_SCATTER) sent = c->count - own;
    if (c->kind == CDP_COLL_ALLGATHER) sent = cdp__dt_times_most(others, own);
    p->info.recv_bytes = cdp__dt_plus_most(p->info.recv_bytes, cdp__dt_times_most(got, p->elem));
    p->info.send_bytes = cdp__dt_plus_most(p->info.send_bytes, cdp__dt_times_most(sent, p->elem));
    ++p->info.calls;
    p->info.messages += c->kind == CDP_COLL_ALLREDUCE ? 2 * others : others;
}

/* One call of a sum. The first one that reduces reads the source; all others are in place. */
CDP__DT cdp_status cdp__dt_sum_act(cdp_plan *p, const cdp__dt_stage *s, const cdp__dt_call *c,
    const cdp__dt_ends *e, bool *first) {
    const uint32_t divisor = (uint32_t)s->divisor;
    uint64_t start;
    cdp__dt_act *a = cdp__dt_act_add(p, c->by, e);
    const uint64_t own = cdp__dt_share(c->count, c->nodes, c->index, &start);
    const bool reduces = c->kind == CDP_COLL_ALLREDUCE || c->kind == CDP_COLL_REDUCE_SCATTER;
    const bool scatters = c->kind == CDP_COLL_REDUCE_SCATTER;
    const bool gathers = c->kind == CDP_COLL_ALLGATHER;
    a->kind = c->kind;
    a->op = s->op;
    a->count = scatters || gathers ? own : c->count;
    if (!reduces || !*first) a->from = a->to;
    if (!reduces || !*first) a->from_at = a->to_at;
    a->from_at += (c->at + (gathers ? start : 0)) * p->elem;
    a->to_at += (c->at + (scatters ? start : 0)) * p->elem;
    if (c->kind == CDP_COLL_ALLREDUCE && divisor > 1) {
        if (divisor == c->nodes)
            a->op = CDP_REDUCE_AVG;
        else
            a->divisor = divisor;
    }
    if (reduces) *first = false;
    cdp__dt_act_tally(p, c);
    return scatters || gathers ? cdp__dt_act_counts(p, a, c) : CDP_OK;
}

/* A stage that is one collective. */
CDP__DT void cdp__dt_single_act(cdp_plan *p, const cdp__dt_stage *s, const cdp__dt_ends *e) {
    const cdp__dt_single *one = &s->single;
    cdp__dt_call c;
    uint64_t count;
    (void)cdp__dt_row_count(&s->pair, one, cdp__dt_single_first(one, p->node), &count);
    if (!count) return;
    cdp__dt_act *a = cdp__dt_act_add(p, one->by, e);
    a->kind = one->kind;
    a->op = s->op;
    a->count = count;
    c.kind = one->kind;
    c.by = one->by;
    c.nodes = one->nodes;
    c.index = cdp__dt_single_index(one, p->node);
    c.at = 0;
    c.count = one->kind == CDP_COLL_ALLREDUCE ? count : count * one->nodes;
    cdp__dt_act_tally(p, &c);
}

/* Adds what this rank does in stage number `k`. *between: where the tensor before it is. */
CDP__DT cdp_status cdp__dt_stage_act(cdp_plan *p, uint32_t k, uint64_t *between) {
    const cdp__dt_stage *s = &p->stages[k];
    const bool last = k + 1 == p->stage_count;
    cdp_status st = CDP_OK;
    cdp__dt_region box;
    bool first = true;
    cdp__dt_ends e = {k ? CDP__DT_SCRATCH : CDP__DT_IN, last ? CDP__DT_OUT : CDP__DT_SCRATCH,
        k ? *between : 0, 0};
    if (!s->single.kind && !s->sum.terms) {
        const uint32_t before = p->phase_count;
        st = cdp__dt_stage_build(p, k, between);
        for (uint32_t i = before; i < p->phase_count; ++i)
            cdp__dt_act_add(p, CDP__DT_NONE, &e)->phase = i;
        return st;
    }
    if (!last)
        e.to_at = *between = cdp__dt_reserve(p, cdp__dt_held(&s->host_to, p->node, &box) * p->elem);
    if (s->single.kind) {
        cdp__dt_single_act(p, s, &e);
        return CDP_OK;
    }
    const uint64_t n = cdp__dt_held(&s->pair.from, p->node, &box);
    const cdp__dt_calls calls = cdp__dt_sum_calls(&s->pair.from, &s->sum, p->node, n);
    for (uint32_t i = 0; st == CDP_OK && i < calls.count; ++i)
        st = cdp__dt_sum_act(p, s, &calls.call[i], &e, &first);
    return st;
}

/* ---- >>dtensor/planner: which stages a plan has ---------------------------------------------- */

/* Knows: the cost of stages, and the moves of each, counted by kind. Promises: the fewest bytes, or
   the shortest predicted time. */

CDP__DT cdp_net cdp__dt_net_of(const cdp_net *net) {
    cdp_net n;
    n.latency_us = cdp__dt_or(net->latency_us, 3);
    n.far_latency_us = cdp__dt_or(net->far_latency_us, 30);
    n.bytes_per_us = cdp__dt_or(net->bytes_per_us, 4000);
    n.far_bytes_per_us = cdp__dt_or(net->far_bytes_per_us, 1000);
    n.copy_bytes_per_us = cdp__dt_or(net->copy_bytes_per_us, 8000);
    n.reduce_bytes_per_us = cdp__dt_or(net->reduce_bytes_per_us, 4000);
    return n;
}

/* The largest amount of work of up to eight sampled nodes; equal on all ranks. */
CDP__DT cdp__dt_tally cdp__dt_tally_most(const cdp__dt_pair *p) {
    const uint32_t samples = p->nodes > 256 ? 2 : (uint32_t)cdp__min(p->nodes, 8);
    cdp__dt_tally most = cdp__dt_tally_of(p, 0);
    for (uint32_t k = 1; k < samples; ++k) {
        const uint32_t node = (uint32_t)((uint64_t)k * (p->nodes - 1) / (samples - 1));
        const cdp__dt_tally t = cdp__dt_tally_of(p, node);
        for (uint32_t i = 0; i < 8; ++i) {
            most.count[i] = (uint32_t)cdp__max(most.count[i], t.count[i]);
            most.elements[i] = cdp__max(most.elements[i], t.elements[i]);
        }
    }
    return most;
}

/* The latency and the bytes per us of what goes from host to host, or of what does not. */
typedef struct cdp__dt_pace {
    double latency, rate;
} cdp__dt_pace;

CDP__DT cdp__dt_pace cdp__dt_pace_of(const cdp_net *net, bool distant) {
    cdp__dt_pace pace = {net->latency_us, net->bytes_per_us};
    if (!distant) return pace;
    pace.latency = net->far_latency_us;
    pace.rate = net->far_bytes_per_us;
    return pace;
}

/* Predicts the time of a collective in which a rank receives `recv` elements, and reduces `terms`:
   in each half of an allreduce, messages one by one, of which each further one costs a quarter of
   the first, or fewer and larger ones in rounds. */
CDP__DT double cdp__dt_collective_us(cdp_coll_kind kind, uint32_t nodes, uint64_t recv,
    uint64_t terms, const cdp_net *net, cdp__dt_pace pace, uint64_t elem) {
    const double one_by_one = 1 + 0.25 * (2.0 * (nodes - 1) - 1);
    const double rounds = cdp__dt_single_rounds(nodes);
    const bool halves = kind == CDP_COLL_ALLREDUCE;
    double us = pace.latency * (halves ? 2 : 1) * (rounds < one_by_one ? rounds : one_by_one);
    us += (double)recv * (double)elem / pace.rate;
    return us + (double)terms * (double)elem / net->reduce_bytes_per_us;
}

CDP__DT double cdp__dt_single_us(
    const cdp__dt_stage *s, const cdp_net *net, cdp__dt_pace pace, uint64_t elem) {
    const uint32_t others = s->single.nodes - 1;
    const bool halves = s->single.kind == CDP_COLL_ALLREDUCE;
    const uint64_t part = halves ? (s->single.count + others) / s->single.nodes : s->single.count;
    return cdp__dt_collective_us(s->single.kind, s->single.nodes, s->cost.busiest,
        s->single.kind == CDP_COLL_ALLGATHER ? 0 : part * others, net, pace, elem);
}

/* True: messages go from host to host. A row of nodes is within one if its block of numbers is. */
CDP__DT bool cdp__dt_row_distant(const cdp__dt_pair *p, uint32_t nodes, uint32_t step) {
    return p->host_nodes % ((uint64_t)nodes * step) != 0;
}

CDP__DT bool cdp__dt_stage_distant(const cdp__dt_stage *s) {
    if (!s->single.kind) return s->pair.host_nodes != 0;
    return cdp__dt_row_distant(&s->pair, s->single.nodes, s->single.step);
}

/* Predicts the time of the calls of a sum of `most` elements. */
CDP__DT double cdp__dt_sum_us(
    const cdp__dt_pair *p, const cdp__dt_sum *s, uint64_t most, const cdp_net *net, uint64_t elem) {
    const cdp__dt_calls calls = cdp__dt_sum_calls(&p->from, s, 0, most);
    double us = 0;
    for (uint32_t k = 0; k < calls.count; ++k) {
        const cdp__dt_call *c = &calls.call[k];
        const uint32_t step = c->by == CDP__DT_NONE ? 1 : p->from.stride[c->by];
        const bool sums = c->kind == CDP_COLL_ALLREDUCE || c->kind == CDP_COLL_REDUCE_SCATTER;
        const uint64_t part = (c->count + c->nodes - 1) / c->nodes;
        us += cdp__dt_collective_us(c->kind, c->nodes, cdp__dt_call_recv(c),
            sums ? cdp__dt_times_most(part, c->nodes - 1ull) : 0, net,
            cdp__dt_pace_of(net, cdp__dt_row_distant(p, c->nodes, step)), elem);
    }
    return us;
}

/* Makes a stage the calls of a sum, if it is one. */
CDP__DT void cdp__dt_stage_sum(cdp__dt_stage *s) {
    uint32_t usable = 0;
    for (uint32_t by = 0; by < s->from.mesh->desc.ndim; ++by)
        if (cdp__dt_link_usable(s->from.mesh, by)) usable |= 1u << by;
    if (!s->zero) s->sum = cdp__dt_sum_find(&s->pair, usable);
    if (s->sum.terms) s->cost = cdp__dt_sum_cost(&s->pair.from, &s->sum, &s->sum_most);
}

/* Predicts the time of one stage. Each further message of a phase costs a quarter of the first. */
CDP__DT double cdp__dt_stage_us(const cdp__dt_stage *s, const cdp_net *net, uint64_t elem) {
    const cdp__dt_pace pace = cdp__dt_pace_of(net, cdp__dt_stage_distant(s));
    const double latency = pace.latency, rate = pace.rate;
    if (s->single.kind) return cdp__dt_single_us(s, net, pace, elem);
    if (s->sum.terms) return cdp__dt_sum_us(&s->pair, &s->sum, s->sum_most, net, elem);
    const cdp__dt_tally t = cdp__dt_tally_most(&s->pair);
    const uint64_t adds = t.elements[CDP__DT_TERM_RECV] * elem;
    const uint64_t moved = (s->cost.busiest + t.elements[CDP__DT_LOCAL]) * elem;
    const uint32_t a = t.count[CDP__DT_TERM_SEND] + t.count[CDP__DT_TERM_RECV];
    const uint32_t b = t.count[CDP__DT_SEND] + t.count[CDP__DT_RECV] + t.count[CDP__DT_OWN_SEND];
    double us = (double)s->cost.busiest * (double)elem / rate;
    if (a) us += latency * (1 + 0.25 * (a - 1));
    if (b) us += latency * (1 + 0.25 * (b - 1));
    us += (double)adds / net->reduce_bytes_per_us;
    return us + (double)moved / net->copy_bytes_per_us;
}

/* The layouts of a plan by dimensions: PyTorch's steps, with equal neighbours merged. */
CDP__DT uint32_t cdp__dt_merged(cdp_layout steps[CDP__DT_STEPS], uint32_t n) {
    uint32_t kept = n > 1 ? 2 : n;
    for (uint32_t k = 2; k < n; ++k) {
        const cdp_layout *a = &steps[kept - 2], *b = &steps[kept - 1], *c = &steps[k];
        const uint32_t x = cdp__dt_step_dim(a, b), y = cdp__dt_step_dim(b, c);
        bool same = x != CDP__DT_NONE && y != CDP__DT_NONE && x != y;
        if (same) {
            const cdp_place *p = &a->place[x], *q = &b->place[x];
            const cdp_place *r = &b->place[y], *s = &c->place[y];
            const bool exchange = p->kind == CDP_PLACE_SHARD && q->kind == CDP_PLACE_SHARD;
            same = p->kind == r->kind && q->kind == s->kind && !exchange;
        }
        if (same)
            steps[kept - 1] = *c;
        else
            steps[kept++] = *c;
    }
    return kept;
}

CDP__DT void cdp__dt_stages_drop(const cdp_os *os, cdp__dt_stage *stages, uint32_t count) {
    for (uint32_t k = 0; k < count; ++k)
        cdp__dt_free(os, stages[k].maps);
    cdp__dt_free(os, stages);
}

CDP__DT void cdp__dt_stages_free(cdp_plan *p) {
    cdp__dt_stages_drop(p->os, p->stages, p->stage_count);
    p->stages = NULL;
    p->stage_count = 0;
}

/* Makes stages through the layouts steps[0..n-1], and predicts their time. `calls`: those that are
   collectives run as such; else only a stage that is alone. */
CDP__DT cdp_status cdp__dt_stages(cdp_plan *p, const cdp_layout *steps, uint32_t n,
    uint32_t from_only, uint32_t to_only, bool calls, double *us) {
    const cdp_net net = cdp__dt_net_of(&p->desc.net);
    cdp_status st = CDP_OK;
    cdp__dt_stages_free(p);
    *us = 0;
    p->stages = (cdp__dt_stage *)cdp__dt_alloc(p->os, n * sizeof *p->stages);
    if (!p->stages) return cdp__dt_nomem("a plan", n * sizeof *p->stages);
    for (uint32_t k = 0; st == CDP_OK && k + 1 < n; ++k) {
        st = cdp__dt_stage_make(&p->stages[k], p->os, &steps[k], &steps[k + 1], from_only, to_only);
        ++p->stage_count;
        if (st == CDP_OK && (n == 2 || calls)) cdp__dt_stage_single(&p->stages[k]);
        if (st == CDP_OK && calls && !p->stages[k].single.kind) cdp__dt_stage_sum(&p->stages[k]);
        if (st == CDP_OK) *us += cdp__dt_stage_us(&p->stages[k], &net, p->elem);
    }
    return st;
}

/* True: mesh dimension `by` may scatter a sum as the target is cut there, and what follows is a
   layout. Pieces of a cut of its own are those of the whole tensor. */
CDP__DT bool cdp__dt_scatters(const cdp_layout *now, const cdp_layout *to, uint32_t by) {
    if (to->place[by].kind != CDP_PLACE_SHARD) return false;
    for (uint32_t d = 0; d < now->mesh->desc.ndim; ++d)
        if (now->place[d].kind == CDP_PLACE_SHARD && cdp__dt_dim(now, d) == cdp__dt_dim(to, by)
            && (now->place[d].cut || to->place[by].cut))
            return false;
    return true;
}

/* The layouts of a plan of collectives: sums that a reduce-scatter along one dimension makes, then
   the others, which end where they began; 1: there is no sum. What is left are moves. Of several
   dimensions of which one has means, only one sum is divided, and so all are one. */
CDP__DT cdp_status cdp__dt_sum_steps(const cdp_plan *p, const cdp_layout *from,
    const cdp_layout *to, cdp_layout steps[CDP__DT_STEPS], uint32_t *n) {
    uint32_t terms = 0, count = 0;
    bool means = false;
    cdp_layout next;
    steps[0] = *from;
    *n = 1;
    for (uint32_t by = 0; by < from->mesh->desc.ndim; ++by) {
        if (!cdp__dt_partial(from, by) || cdp__dt_partial(to, by)) continue;
        terms |= 1u << by;
        ++count;
        means = means || cdp__dt_op(&from->place[by]) == CDP_REDUCE_AVG;
    }
    for (uint32_t by = 0; by < from->mesh->desc.ndim && (count == 1 || !means); ++by) {
        cdp__dt_stage s;
        next = steps[*n - 1];
        if (!(terms >> by & 1) || !cdp__dt_scatters(&next, to, by)) continue;
        next.place[by] = to->place[by];
        const cdp_status st =
            cdp__dt_stage_make(&s, p->os, &steps[*n - 1], &next, CDP__DT_NONE, CDP__DT_NONE);
        if (st != CDP_OK) return st;
        cdp__dt_stage_single(&s);
        if (!s.single.kind) continue;
        terms &= ~(1u << by);
        steps[(*n)++] = next;
    }
    if (!terms) return CDP_OK;
    next = steps[*n - 1];
    for (uint32_t by = 0; by < from->mesh->desc.ndim; ++by)
        if (terms >> by & 1) cdp__dt_replicate(&next, by);
    steps[(*n)++] = next;
    return CDP_OK;
}

/* Adds the layouts from the last of steps[0..n-1] to the target: at once, or by dimension. Returns
   their number; 0: there is no other way, or there are too many. */
CDP__DT uint32_t cdp__dt_rest_steps(
    cdp_layout steps[CDP__DT_STEPS], uint32_t n, const cdp_layout *to, bool by_dim) {
    cdp_layout rest[CDP__DT_STEPS];
    uint32_t more = 2;
    if (cdp_layout_same(&steps[n - 1], to)) return by_dim ? 0 : n;
    rest[1] = *to;
    if (by_dim) more = cdp__dt_merged(rest, cdp__dt_torch_steps(&steps[n - 1], to, rest));
    if ((by_dim && more < 3) || n + more - 1 > CDP__DT_STEPS) return 0;
    for (uint32_t k = 1; k < more; ++k)
        steps[n++] = rest[k];
    return n;
}

/* True: the first `sums` stages are collectives, as they should be. */
CDP__DT bool cdp__dt_calls_possible(const cdp_plan *p, uint32_t sums) {
    for (uint32_t k = 0; k < sums; ++k)
        if (!p->stages[k].single.kind && !p->stages[k].sum.terms) return false;
    return true;
}

/* Collectives cost more than their messages. They must be so many times as fast to be chosen. */
#define CDP__DT_CALLS_PAY 1.25

/* Tries to make a sum of collectives, and keeps what is predicted to be faster than *us. */
CDP__DT cdp_status cdp__dt_sums_choose(
    cdp_plan *p, const cdp_layout *from, const cdp_layout *to, double *us) {
    cdp_layout steps[CDP__DT_STEPS];
    uint32_t sums;
    double other;
    cdp_status st = cdp__dt_sum_steps(p, from, to, steps, &sums);
    for (uint32_t by_dim = 0; st == CDP_OK && sums > 1 && by_dim < 2; ++by_dim) {
        const uint32_t n = cdp__dt_rest_steps(steps, sums, to, by_dim != 0);
        cdp__dt_stage *stages = p->stages;
        const uint32_t count = p->stage_count;
        if (!n) continue;
        p->stages = NULL;
        p->stage_count = 0;
        st = cdp__dt_stages(p, steps, n, CDP__DT_NONE, CDP__DT_NONE, true, &other);
        const bool all = st == CDP_OK && cdp__dt_calls_possible(p, sums - 1);
        const bool first = p->desc.kind == CDP_PLAN_COLLECTIVES && !p->calls;
        const bool pays = p->calls ? other < *us : other * CDP__DT_CALLS_PAY < *us;
        if (all && (first || pays)) {
            cdp__dt_stages_drop(p->os, stages, count);
            p->calls = true;
            *us = other;
            continue;
        }
        cdp__dt_stages_free(p);
        p->stages = stages;
        p->stage_count = count;
    }
    return st;
}

/* Chooses the stages, and fills in their cost for all ranks. */
CDP__DT cdp_status cdp__dt_plan_choose(cdp_plan *p, uint32_t from_only, uint32_t to_only) {
    const cdp_layout from = cdp__dt_plain(&p->desc.from), to = cdp__dt_plain(&p->desc.to);
    const bool steps_exist = cdp__dt_mesh_same(from.mesh, to.mesh)
        && cdp__dt_cuts_shared(&from, &to) && from_only == CDP__DT_NONE && to_only == CDP__DT_NONE;
    const bool by_dim = p->desc.kind == CDP_PLAN_BY_DIM || p->desc.kind == CDP_PLAN_TORCH;
    cdp_layout steps[CDP__DT_STEPS], pair[2];
    uint32_t n = 0;
    double us, other;
    pair[0] = from;
    pair[1] = to;
    if (by_dim && !steps_exist)
        return cdp_error_set(CDP_ERR_UNSUPPORTED, -1, 0,
            "plan: steps by dimension exist on one mesh only, of which all cuts must be; use "
            "CDP_PLAN_DIRECT");
    cdp_status st = cdp__dt_stages(p, pair, 2, from_only, to_only, false, &us);
    if (st != CDP_OK) return st;
    p->info.bound_bytes = cdp__dt_times_most(p->stages[0].cost.total, p->elem);
    p->info.torch_bytes = p->info.bound_bytes;
    if (steps_exist) {
        n = cdp__dt_torch_steps(&from, &to, steps);
        p->info.torch_bytes = 0;
        for (uint32_t k = 0; k + 1 < n; ++k)
            p->info.torch_bytes = cdp__dt_plus_most(
                p->info.torch_bytes, cdp__dt_torch_bytes(&steps[k], &steps[k + 1]));
        if (n > 1 && p->desc.kind != CDP_PLAN_TORCH) n = cdp__dt_merged(steps, n);
    }
    const bool one = p->desc.kind == CDP_PLAN_DIRECT || p->desc.kind == CDP_PLAN_COLLECTIVES;
    const bool tries = n > 2 && !one;
    if (tries) {
        st = cdp__dt_stages(p, steps, n, from_only, to_only, false, &other);
        if (st != CDP_OK) return st;
        if (by_dim || other < us)
            us = other;
        else
            st = cdp__dt_stages(p, pair, 2, from_only, to_only, false, &us);
    }
    const bool single = p->stage_count == 1 && p->stages[0].single.kind;
    const bool sums = p->desc.kind == CDP_PLAN_BEST || p->desc.kind == CDP_PLAN_COLLECTIVES;
    if (st == CDP_OK && steps_exist && sums && !single)
        st = cdp__dt_sums_choose(p, &from, &to, &us);
    if (st != CDP_OK) return st;
    p->info.predicted_us = us;
    for (uint32_t k = 0; k < p->stage_count; ++k) {
        p->info.total_bytes = cdp__dt_plus_most(
            p->info.total_bytes, cdp__dt_times_most(p->stages[k].cost.total, p->elem));
        p->info.most_recv_bytes += p->stages[k].cost.busiest * p->elem;
    }
    return st;
}

/* The collective that changes one placement into another; NONE: no message is needed. */
CDP__DT cdp_coll_kind cdp__dt_place_kind(const cdp_layout *a, const cdp_layout *b, uint32_t by) {
    const cdp_place_kind from = a->place[by].kind, to = b->place[by].kind;
    if (from == CDP_PLACE_PARTIAL && to == CDP_PLACE_SHARD) return CDP_COLL_REDUCE_SCATTER;
    if (from == CDP_PLACE_PARTIAL && to == CDP_PLACE_REPLICATE) return CDP_COLL_ALLREDUCE;
    if (from != CDP_PLACE_SHARD || to == CDP_PLACE_PARTIAL) return CDP_COLL_NONE;
    if (to == CDP_PLACE_REPLICATE) return CDP_COLL_ALLGATHER;
    return cdp__dt_place_same(a, b, by) ? CDP_COLL_NONE : CDP_COLL_ALLTOALL;
}

/* The kind of a plan that is one collective over some dimensions of the mesh; otherwise SEND. */
CDP__DT cdp_coll_kind cdp__dt_plan_kind(const cdp_plan *p) {
    const cdp_layout a = cdp__dt_plain(&p->desc.from), b = cdp__dt_plain(&p->desc.to);
    cdp_coll_kind kind = CDP_COLL_NONE;
    bool reduces = false, cuts = false;
    if (!p->info.steps) return CDP_COLL_NONE;
    if (!cdp__dt_mesh_same(a.mesh, b.mesh)) return CDP_COLL_SEND;
    for (uint32_t by = 0; by < a.mesh->desc.ndim; ++by) {
        const cdp_coll_kind one = cdp__dt_place_kind(&a, &b, by);
        reduces = reduces || a.place[by].kind == CDP_PLACE_PARTIAL;
        cuts = cuts || b.place[by].kind == CDP_PLACE_SHARD;
        if (one == CDP_COLL_NONE || kind == CDP_COLL_SEND) continue;
        kind = kind == CDP_COLL_NONE || kind == one ? one : CDP_COLL_SEND;
    }
    if (p->desc.from_one) return cuts ? CDP_COLL_SCATTER : CDP_COLL_BROADCAST;
    if (p->desc.to_one) return reduces ? CDP_COLL_REDUCE : CDP_COLL_GATHER;
    return kind == CDP_COLL_NONE ? CDP_COLL_SEND : kind;
}

/* The calls of a sum, of which an allreduce reduces and spreads. */
CDP__DT uint32_t cdp__dt_sum_rounds(const cdp__dt_stage *s) {
    const cdp__dt_calls calls = cdp__dt_sum_calls(&s->pair.from, &s->sum, 0, s->sum_most);
    uint32_t rounds = calls.count;
    for (uint32_t k = 0; k < calls.count; ++k)
        rounds += calls.call[k].kind == CDP_COLL_ALLREDUCE;
    return rounds;
}

/* Counts the phases in which ranks communicate: a stage without bytes has none. */
CDP__DT void cdp__dt_plan_steps(cdp_plan *p) {
    for (uint32_t k = 0; k < p->stage_count; ++k) {
        const cdp__dt_stage *s = &p->stages[k];
        const cdp__dt_region all = cdp__dt_whole(&s->pair.from);
        const uint64_t terms = (s->pair.from.terms - 1) * cdp__dt_volume(&all, s->pair.from.ndim);
        if (s->sum.terms) {
            p->info.steps += cdp__dt_sum_rounds(s);
            continue;
        }
        if (terms) ++p->info.steps;
        if (s->cost.total > terms) ++p->info.steps;
    }
}

/* The figures of this rank in a plan that has no phases, because a collective reduces. */
CDP__DT void cdp__dt_single_tally(cdp_plan *p) {
    const cdp__dt_single *s = &p->single;
    p->info.messages = (s->kind == CDP_COLL_ALLREDUCE ? 2 : 1) * (s->nodes - 1);
    p->info.recv_bytes = cdp__dt_times_most(cdp__dt_single_recv(s, p->node, s->count), p->elem);
    p->info.send_bytes = p->info.recv_bytes;
}

CDP__DT void cdp__dt_plan_tally(cdp_plan *p) {
    if (!p->phase_count && !p->acts) cdp__dt_single_tally(p);
    for (uint32_t k = 0; k < p->phase_count; ++k) {
        const cdp__dt_phase *ph = &p->phases[k];
        p->info.messages += ph->sends;
        for (uint32_t i = 0; i < ph->sends; ++i)
            p->info.send_bytes += ph->send[i].elements * p->elem;
        for (uint32_t i = 0; i < ph->recvs; ++i)
            p->info.recv_bytes += ph->recv[i].elements * p->elem;
    }
    p->info.scratch_bytes = p->scratch_used;
    if (!p->acts && p->phase_count == 1 && p->phases[0].sends + p->phases[0].recvs == 0) {
        const cdp__dt_phase *ph = &p->phases[0];
        const bool one = ph->locals == 1 && !ph->zero && p->in_bytes == p->out_bytes;
        p->identity = p->in_bytes == 0
            || (one && ph->here[0].copy.dims == 0 && ph->here[0].copy.run == p->in_bytes);
    }
}

/* True: the plan is a collective that reduces, and has no phases. Those of an allgather are for
   cdp_edge_forward_pieces(). */
CDP__DT bool cdp__dt_single_sums(const cdp_plan *p) {
    return p->single.kind != CDP_COLL_NONE && p->single.kind != CDP_COLL_ALLGATHER;
}

/* Builds this rank's part: phases, the list of messages, scratch memory. */
CDP__DT cdp_status cdp__dt_plan_build(cdp_plan *p) {
    uint64_t between = 0;
    uint32_t most = 0;
    cdp_status st = CDP_OK;
    cdp__dt_region box;
    uint64_t phases = p->stage_count;
    for (uint32_t k = 0; k < p->stage_count; ++k)
        phases += cdp__dt_windows(p, &p->stages[k]);
    p->phases = (cdp__dt_phase *)cdp__dt_alloc(p->os, phases * sizeof *p->phases);
    if (!p->phases) return cdp__dt_nomem("a plan", phases * sizeof *p->phases);
    if (p->calls) st = cdp__dt_acts_build(p);
    for (uint32_t k = 0; st == CDP_OK && k < p->stage_count; ++k) {
        if (p->calls)
            st = cdp__dt_stage_act(p, k, &between);
        else if (!cdp__dt_single_sums(p))
            st = cdp__dt_stage_build(p, k, &between);
    }
    for (uint32_t k = 0; k < p->phase_count; ++k)
        most = (uint32_t)cdp__max(most, p->phases[k].sends + p->phases[k].recvs);
    if (st != CDP_OK) return st;
    const cdp__dt_stage *last = &p->stages[p->stage_count - 1];
    p->in_bytes = cdp__dt_held(&p->stages[0].pair.from, p->node, &box) * p->elem;
    p->out_bytes = cdp__dt_held(&last->host_to, p->node, &box) * p->elem;
    cdp__dt_plan_tally(p);
    if (!p->group) return CDP_OK;
    p->list = (cdp_transfer *)cdp__dt_alloc(p->os, most * sizeof *p->list);
    if (!p->list) return cdp__dt_nomem("a plan", most * sizeof *p->list);
    st = cdp__dt_scratch_reserve(p);
    return st == CDP_OK ? cdp_group_reserve(p->group, most) : st;
}

/* Numbers the nodes: positions in the mesh or, if the meshes differ, ranks of the group. */
CDP__DT cdp_status cdp__dt_plan_nodes(cdp_plan *p, uint32_t *only) {
    cdp_mesh *m = (cdp_mesh *)(uintptr_t)p->desc.from.mesh;
    const bool same = cdp__dt_mesh_same(m, p->desc.to.mesh);
    p->mesh = m;
    p->os = m->root->os;
    *only = CDP__DT_NONE;
    if (same) {
        p->nodes = m->count;
        p->node = m->me;
        p->link = m->all;
        for (uint32_t i = 0; i < m->count; ++i)
            if (m->ranks[i] == p->desc.root) *only = i;
    } else {
        p->nodes = m->root->size;
        p->node = m->root->rank;
        p->link = m->root->base;
    }
    p->group = p->link ? p->link->group : NULL;
    const bool one = p->desc.to_one || p->desc.from_one;
    if (!same && (one || m->root->group != p->desc.to.mesh->root->group))
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "plan: the two meshes differ; they must be of one group, and to_one or from_one unset");
    if (one && *only == CDP__DT_NONE)
        return cdp_error_set(
            CDP_ERR_INVALID, -1, 0, "plan: root %u is not a rank of the mesh", p->desc.root);
    return CDP_OK;
}

CDP__DT cdp_status cdp__dt_plan_check(const cdp_plan_desc *d) {
    cdp_status st = cdp_layout_check(&d->from);
    if (st == CDP_OK) st = cdp_layout_check(&d->to);
    if (st != CDP_OK) return st;
    if (!cdp__dt_shape_same(&d->from, &d->to))
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "plan: from and to must have the same shape and dtype; the program casts and reshapes");
    if (d->from.mesh->root->group != d->to.mesh->root->group
        || d->from.mesh->root->size != d->to.mesh->root->size)
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "plan: the meshes are of two groups, of %u and of %u ranks; both must be of one group",
            d->from.mesh->root->size, d->to.mesh->root->size);
    for (uint32_t by = 0; by < CDP_MESH_DIMS; ++by) {
        const bool from = by < d->from.mesh->desc.ndim && d->from.place[by].kind != 0;
        const bool to = by < d->to.mesh->desc.ndim && d->to.place[by].kind != 0;
        if ((d->from_one && from) || (d->to_one && to))
            return cdp_error_set(CDP_ERR_INVALID, -1, 0,
                "plan: a tensor that one rank holds must be replicated in every mesh dimension");
    }
    if ((uint32_t)d->kind > CDP_PLAN_COLLECTIVES || (d->from_one && d->to_one))
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "plan: kind %u is none of cdp_plan_kind, or both from_one and to_one are set",
            (unsigned)d->kind);
    return CDP_OK;
}

/* The plan is one stage: what this rank does in its collective, if it is one. */
CDP__DT void cdp__dt_plan_single(cdp_plan *p) {
    const cdp__dt_stage *s = &p->stages[0];
    p->single = s->single;
    if (p->single.kind == CDP_COLL_NONE || p->node == CDP__DT_NONE) return;
    (void)cdp__dt_row_count(
        &s->pair, &p->single, cdp__dt_single_first(&p->single, p->node), &p->single.count);
    if (p->single.by != CDP__DT_NONE) p->row = p->mesh->link[p->single.by];
}

CDP__DT cdp_status cdp__dt_plan_fill(cdp_plan *p) {
    uint32_t only;
    cdp_status st = cdp__dt_plan_nodes(p, &only);
    p->dtype = cdp__dt_dtype(&p->desc.from);
    p->elem = cdp_dtype_size(p->dtype);
    if (st == CDP_OK)
        st = cdp__dt_plan_choose(
            p, p->desc.from_one ? only : CDP__DT_NONE, p->desc.to_one ? only : CDP__DT_NONE);
    if (st != CDP_OK) return st;
    if (p->stage_count == 1 && !p->calls) cdp__dt_plan_single(p);
    p->info.collective = p->single.kind;
    cdp__dt_plan_steps(p);
    p->kind = cdp__dt_plan_kind(p);
    return p->node == CDP__DT_NONE ? CDP_OK : cdp__dt_plan_build(p);
}

/* Adds this rank to the text of the error `st`; a mesh on paper has none. */
CDP__DT cdp_status cdp__dt_plan_refused(const cdp_plan_desc *d, cdp_status st) {
    const cdp_mesh *m = d->from.mesh;
    const cdp_error why = *cdp_last_error();
    if (st == CDP_OK || !cdp__dt_has_mesh(&d->from)) return st;
    if (!m->root->group || strncmp(why.text, "rank ", 5) == 0) return st;
    return cdp_error_set(
        st, why.peer, why.sys_errno, "rank %u/%u: %s", m->root->rank, m->root->size, why.text);
}

/* The plan is not made, compared or drawn any more: it needs no cuts. */
CDP__DT void cdp__dt_plan_release(cdp_plan *p) {
    if (!p->holds) return;
    p->holds = false;
    cdp__dt_cuts_release(&p->desc.from);
    cdp__dt_cuts_release(&p->desc.to);
}

CDP_API cdp_status cdp_plan_create(const cdp_plan_desc *desc, cdp_plan **out) {
    if (!out) return cdp__dt_missing("cdp_plan_create", "out");
    *out = NULL;
    if (!desc) return cdp__dt_missing("cdp_plan_create", "desc");
    cdp_status st = cdp__dt_plan_check(desc);
    if (st != CDP_OK) return cdp__dt_plan_refused(desc, st);
    const cdp_os *os = desc->from.mesh->root->os;
    cdp_plan *p = (cdp_plan *)cdp__dt_alloc(os, sizeof *p);
    cdp__ended_remove(p);
    if (!p) return cdp__dt_nomem("a plan", sizeof *p);
    p->desc = *desc;
    p->os = os;
    p->holds = true;
    cdp__dt_cuts_hold(&desc->from);
    cdp__dt_cuts_hold(&desc->to);
    st = cdp__dt_plan_fill(p);
    if (st != CDP_OK) {
        cdp_plan_destroy(p);
        return cdp__dt_plan_refused(desc, st);
    }
    *out = p;
    return CDP_OK;
}

CDP_API cdp_plan_info cdp_plan_info_of(const cdp_plan *p) {
    cdp_plan_info none;
    memset(&none, 0, sizeof none);
    return p && !cdp__ended(p) ? p->info : none;
}

/* ---- >>dtensor/plan_words: plans as numbers that ranks compare ------------------------------- */

/* Knows: layouts, meshes and plans. Promises: what means the same has the same numbers; ranks with
   different plans are told the first difference, and the group stays usable. */

#define CDP__DT_TAG 0xcd700000u /* of all messages of plans */

/* The words of a layout: its tensor, its mesh, and some for each placement. */
#define CDP__DT_AT_SHAPE 2u
#define CDP__DT_AT_MESH (CDP__DT_AT_SHAPE + CDP_TENSOR_DIMS) /* ndim, host_ranks */
#define CDP__DT_AT_SIZES (CDP__DT_AT_MESH + 2u)
#define CDP__DT_AT_NAMES (CDP__DT_AT_SIZES + CDP_MESH_DIMS)
#define CDP__DT_AT_RANKS (CDP__DT_AT_NAMES + CDP_MESH_DIMS)
#define CDP__DT_AT_PLACES (CDP__DT_AT_RANKS + 1u)

/* The numbers of a layout in its simplest form. Names, ranks and cuts are hashes. */
CDP__DT void cdp__dt_layout_words(const cdp_layout *layout, uint64_t *w) {
    const cdp_layout plain = cdp__dt_plain(layout), *l = &plain;
    const cdp_mesh *m = l->mesh;
    memset(w, 0, CDP__DT_LAYOUT_WORDS * sizeof *w);
    w[0] = (uint64_t)l->dtype;
    w[1] = l->ndim;
    for (uint32_t d = 0; d < l->ndim; ++d)
        w[CDP__DT_AT_SHAPE + d] = l->shape[d];
    w[CDP__DT_AT_MESH] = m->desc.ndim;
    w[CDP__DT_AT_MESH + 1] = m->desc.host_ranks;
    w[CDP__DT_AT_RANKS] = m->ranks_hash;
    for (uint32_t by = 0; by < m->desc.ndim; ++by) {
        const cdp_place *p = &l->place[by];
        const uint64_t *starts = p->cut ? cdp__dt_cut_starts(m, p->cut) : NULL;
        uint64_t *x = w + CDP__DT_AT_PLACES + CDP__DT_PLACE_WORDS * by;
        w[CDP__DT_AT_SIZES + by] = m->desc.shape[by];
        w[CDP__DT_AT_NAMES + by] = m->name_hash[by];
        x[0] = (uint64_t)p->kind;
        if (p->kind == CDP_PLACE_PARTIAL) x[2] = (uint64_t)cdp__dt_op(p);
        if (p->kind != CDP_PLACE_SHARD) continue;
        x[1] = cdp__dt_dim(l, by);
        x[3] = p->order;
        x[4] = p->block;
        if (starts) x[5] = cdp__dt_hash(starts, m->desc.shape[by] + 1ull);
    }
}

/* Names a word of a layout, like "shape[1]" or "place[0].dim". True: its values are numbers of the
   program, and not hashes. */
CDP__DT bool cdp__dt_layout_word_name(uint32_t word, cdp__text *t) {
    static const char *const members[CDP__DT_PLACE_WORDS] = {
        "kind", "dim", "op", "order", "block", "cut"};
    const uint32_t at = word < CDP__DT_AT_PLACES ? 0 : word - CDP__DT_AT_PLACES;
    const uint32_t member = at % CDP__DT_PLACE_WORDS;
    if (word < CDP__DT_AT_SHAPE)
        cdp__text_add(t, "%s", word ? "ndim" : "dtype");
    else if (word < CDP__DT_AT_MESH)
        cdp__text_add(t, "shape[%u]", word - CDP__DT_AT_SHAPE);
    else if (word < CDP__DT_AT_SIZES)
        cdp__text_add(t, "mesh.%s", word == CDP__DT_AT_MESH ? "ndim" : "host_ranks");
    else if (word < CDP__DT_AT_NAMES)
        cdp__text_add(t, "mesh.shape[%u]", word - CDP__DT_AT_SIZES);
    else if (word < CDP__DT_AT_RANKS)
        cdp__text_add(t, "mesh.names[%u]", word - CDP__DT_AT_NAMES);
    else if (word < CDP__DT_AT_PLACES)
        cdp__text_add(t, "mesh.ranks");
    else
        cdp__text_add(t, "place[%u].%s", at / CDP__DT_PLACE_WORDS, members[member]);
    if (word >= CDP__DT_AT_PLACES) return member < 5;
    return word < CDP__DT_AT_NAMES;
}

/* The error for ranks `a` and `b`; values: NULL if these would say nothing. */
CDP__DT cdp_status cdp__dt_words_differ(
    const char *what, const uint64_t *values, const char *name, uint32_t a, uint32_t b) {
    if (!values)
        return cdp_error_set(CDP_ERR_MISMATCH, (int32_t)b, 0,
            "%s: %s is not the same on ranks %u and %u", what, name, a, b);
    return cdp_error_set(CDP_ERR_MISMATCH, (int32_t)b, 0,
        "%s: %s is %llu on rank %u and %llu on rank %u", what, name, (unsigned long long)values[0],
        a, (unsigned long long)values[1], b);
}

/* The words of a plan: how it moves, its two layouts, and how many stages it has. */
CDP__DT void cdp__dt_plan_words(const cdp_plan_desc *d, uint64_t stages, uint64_t *w) {
    const bool one = d->from_one || d->to_one;
    w[0] = (uint64_t)d->kind << 34 | (uint64_t)d->from_one << 33 | (uint64_t)d->to_one << 32
        | (one ? d->root : 0);
    cdp__dt_layout_words(&d->from, w + 1);
    cdp__dt_layout_words(&d->to, w + 1 + CDP__DT_LAYOUT_WORDS);
    w[CDP__DT_KEY_WORDS - 1] = stages;
}

CDP__DT bool cdp__dt_plan_word_name(uint32_t word, cdp__text *t) {
    if (word == 0) cdp__text_add(t, "kind, from_one, to_one or root");
    if (word == CDP__DT_KEY_WORDS - 1)
        cdp__text_add(t, "the steps, as a number that follows from desc.net,");
    if (word == 0 || word == CDP__DT_KEY_WORDS - 1) return true;
    cdp__text_add(t, word <= CDP__DT_LAYOUT_WORDS ? "from." : "to.");
    return cdp__dt_layout_word_name((word - 1) % CDP__DT_LAYOUT_WORDS, t);
}

/* What all ranks compare by one number each: the plan, and the meshes in it. */
typedef struct cdp__dt_sums {
    uint64_t plan, mesh;
    bool same, same_mesh;
} cdp__dt_sums;

CDP__DT void cdp__dt_sums_of(const uint64_t *words, cdp__dt_sums *s) {
    const uint64_t *from = words + 1, *to = from + CDP__DT_LAYOUT_WORDS;
    const uint32_t count = CDP__DT_AT_PLACES - CDP__DT_AT_MESH;
    memset(s, 0, sizeof *s);
    s->plan = cdp__dt_hash(words, CDP__DT_KEY_WORDS);
    s->mesh = cdp__dt_hash(from + CDP__DT_AT_MESH, count) * 31
        + cdp__dt_hash(to + CDP__DT_AT_MESH, count);
}

/* Finds out whether all ranks of the group have the same numbers. The messages are those of plans:
   a rank that runs another plan at this time, which was compared long ago, takes one of them and
   finds that it is none of its own. */
CDP__DT cdp_status cdp__dt_same_everywhere(cdp_group *g, cdp__dt_sums *s) {
    const uint32_t n = cdp_size(g), me = cdp_rank(g);
    uint64_t range[4] = {s->plan, s->plan, s->mesh, s->mesh}, got[4];
    cdp_status st = CDP_OK;
    for (uint64_t step = 1; st == CDP_OK && step < n; step *= 2) {
        st = cdp_sendrecv(g, range, 4, (uint32_t)((me + step) % n), got, 4,
            (uint32_t)((me + n - step) % n), CDP_DTYPE_U64, CDP__DT_TAG);
        for (uint32_t k = 0; k < 4; k += 2) {
            range[k] = cdp__min(range[k], got[k]);
            range[k + 1] = cdp__max(range[k + 1], got[k + 1]);
        }
    }
    s->same = range[0] == range[1];
    s->same_mesh = range[2] == range[3];
    return st;
}

/* An allreduce in the group of a plan, and one in that of each dimension of its meshes, which are
   there to differ from all collectives of plans. A rank that runs such a plan, which was compared
   long ago, takes no message of cdp__dt_same_everywhere(): it meets one of these. */
typedef struct cdp__dt_meeting {
    cdp_group *all, *group; /* of the plan; that of this meeting */
    cdp_work met, spread;   /* spread: all ranks of the plan are told of a failure */
    uint32_t over;          /* atomic: it is not to fail the plan any more */
    uint64_t sums[3];
} cdp__dt_meeting;

typedef struct cdp__dt_meetings {
    uint32_t count;
    cdp__dt_meeting meeting[2 * CDP_MESH_DIMS + 1];
} cdp__dt_meetings;

/* Called when a meeting is done, in the thread that makes progress. What has failed in the group of
   a dimension fails the group of the plan, in which all ranks wait, for the same cause. */
CDP__DT cdp_status cdp__dt_meeting_done(void *user, cdp_status status) {
    cdp__dt_meeting *x = (cdp__dt_meeting *)user;
    cdp_request rq;
    cdp_work told;
    if (status == CDP_OK || x->group == x->all) return CDP_OK;
    if (cdp__atomic_load_u32(&x->over, CDP__ACQUIRE)) return CDP_OK;
    memset(&rq, 0, sizeof rq);
    rq.kind = CDP_COLL_BARRIER;
    const cdp_status st = cdp_start_after(x->all, &rq, x->met, &told);
    (void)st; /* refused: the group of the plan has failed already */
    return CDP_OK;
}

CDP__DT cdp_status cdp__dt_meeting_start(
    cdp__dt_meetings *all, const cdp_plan *p, cdp_group *group) {
    for (uint32_t k = 0; k < all->count; ++k)
        if (all->meeting[k].group == group) return CDP_OK;
    cdp__dt_meeting *x = &all->meeting[all->count++];
    x->all = p->group;
    x->group = group;
    const cdp_status st =
        cdp_allreduce_async(group, x->sums, x->sums, 3, CDP_DTYPE_U64, CDP_REDUCE_BXOR, &x->met);
    return st == CDP_OK ? cdp_work_then(x->met, cdp__dt_meeting_done, x, &x->spread) : st;
}

CDP__DT cdp_status cdp__dt_meetings_start(cdp__dt_meetings *all, const cdp_plan *p) {
    const cdp_mesh *meshes[2];
    memset(all, 0, sizeof *all);
    meshes[0] = p->mesh;
    meshes[1] = p->desc.to.mesh;
    cdp_status st = cdp__dt_meeting_start(all, p, p->group);
    for (uint32_t k = 0; k < (cdp__dt_mesh_same(meshes[0], meshes[1]) ? 1u : 2u); ++k)
        for (uint32_t d = 0; st == CDP_OK && d < meshes[k]->desc.ndim; ++d)
            if (meshes[k]->link[d] && cdp__dt_link_usable(meshes[k], d))
                st = cdp__dt_meeting_start(all, p, meshes[k]->link[d]->group);
    return st;
}

/* Breaks the group of a meeting: for the cause for which the group of the plan has failed, if that
   has. */
CDP__DT void cdp__dt_meeting_break(
    const cdp__dt_meeting *x, const cdp__dt_meeting *first, const char *why) {
    cdp_request rq;
    cdp_work told;
    memset(&rq, 0, sizeof rq);
    rq.kind = CDP_COLL_BARRIER;
    const bool same = x != first && cdp_group_status(x->all) != CDP_OK
        && cdp_start_after(x->group, &rq, first->met, &told) == CDP_OK;
    if (!same) cdp_group_abort(x->group, why);
}

/* Waits for the meetings, whose memory ends here. `broken`: they may not come, so what is still to
   come breaks its group. */
CDP__DT cdp_status cdp__dt_meetings_end(cdp__dt_meetings *all, cdp_status st, bool broken) {
    const cdp_error why = *cdp_last_error();
    for (uint32_t k = 0; k < all->count; ++k) {
        cdp__dt_meeting *x = &all->meeting[k];
        if (broken) cdp__atomic_store_u32(&x->over, 1, CDP__RELEASE);
        if (broken && x->met.seq && cdp_work_test(x->met) == CDP_PENDING)
            cdp__dt_meeting_break(x, &all->meeting[0], why.text);
        const cdp_status met = x->met.seq ? cdp_work_wait(x->met) : CDP_OK;
        const cdp_status spread = x->spread.seq ? cdp_work_wait(x->spread) : CDP_OK;
        (void)spread; /* `met` says what went wrong */
        if (!broken && st == CDP_OK) st = met;
    }
    if (st == CDP_OK || !broken) return st;
    return cdp__error_again(st, &why);
}

/* Names the first difference; *st stays OK if there is none. */
CDP__DT cdp_status cdp__dt_plan_differs(const cdp_plan *p, const uint64_t *words) {
    uint64_t values[2];
    char name[80];
    uint32_t rank, word;
    const cdp_status st =
        cdp__dt_agree(p->group, p->os, words, CDP__DT_KEY_WORDS, &rank, &word, values);
    if (st != CDP_OK || rank == CDP__DT_NONE) return st;
    cdp__text t = cdp__text_of(name, sizeof name);
    const bool plain = cdp__dt_plan_word_name(word, &t);
    (void)cdp__text_end(&t);
    return cdp__dt_words_differ("plan: ranks run different plans", plain ? values : NULL, name,
        p->link->ranks[0], p->link->ranks[rank]);
}

/* What ranks choose by predicted times: how many stages there are, and in a bit each, which are
   collectives. */
CDP__DT uint64_t cdp__dt_form(const cdp_plan *p) {
    uint64_t form = p->stage_count;
    for (uint32_t k = 0; p->calls && k < p->stage_count; ++k) {
        const cdp__dt_stage *s = &p->stages[k];
        if (s->single.kind || s->sum.terms) form |= 1ull << (8 + k);
    }
    return form;
}

/* Checks that all ranks run the same plan. */
CDP__DT cdp_status cdp__dt_plan_compare(cdp_plan *p) {
    uint64_t words[CDP__DT_KEY_WORDS];
    cdp__dt_meetings meetings;
    cdp__dt_sums sums;
    cdp__dt_plan_words(&p->desc, cdp__dt_form(p), words);
    cdp__dt_sums_of(words, &sums);
    cdp_status st = cdp__dt_meetings_start(&meetings, p);
    if (st == CDP_OK) st = cdp__dt_same_everywhere(p->group, &sums);
    const bool failed = st != CDP_OK;
    if (st == CDP_OK && !sums.same) st = cdp__dt_plan_differs(p, words);
    st = cdp__dt_meetings_end(&meetings, st, failed || !sums.same_mesh);
    if (st == CDP_OK) p->compared = sums.same;
    return st;
}

/* ---- >>dtensor/runner: runs a plan ----------------------------------------------------------- */

/* Knows: phases. Promises: sends and receives of a phase are one batch, so the order of messages
   never blocks a rank; ranks that run different plans get an error. */

/* All ranks run a phase at the same time, so its messages may wait for their receivers. Shorter
   ones are faster through the link. */
#define CDP__DT_RENDEZVOUS_BYTES (128u * 1024u)

CDP__DT uint8_t *cdp__dt_at(const cdp_plan *p, cdp__dt_memory memory) {
    if (memory == CDP__DT_IN) return (uint8_t *)(uintptr_t)p->in;
    return memory == CDP__DT_OUT ? (uint8_t *)p->out : p->scratch;
}

CDP__DT void cdp__dt_copy_piece(const cdp_plan *p, const cdp__dt_piece *x) {
    cdp__dt_copy_run(&x->copy, cdp__dt_at(p, x->to), cdp__dt_at(p, x->from));
}

CDP__DT void cdp__dt_pack(const cdp_plan *p, const cdp__dt_phase *ph) {
    if (ph->zero && ph->zero_bytes)
        memset(cdp__dt_at(p, ph->zero_in) + ph->zero_at, 0, (size_t)ph->zero_bytes);
    for (uint32_t i = 0; i < ph->sends; ++i)
        if (!ph->send[i].direct && !ph->send[i].again) cdp__dt_copy_piece(p, &ph->send[i]);
}

/* Reduces a slab: adds one contribution after the other, in the order of coordinates. */
CDP__DT void cdp__dt_fold_run(const cdp_plan *p, const cdp__dt_phase *ph, const cdp__dt_fold *f) {
    const cdp__dt_stage *s = &p->stages[ph->stage];
    const uint32_t terms = s->pair.from.terms;
    uint8_t *at = cdp__dt_at(p, f->to), *slab = at + f->at;
    for (uint32_t term = 0, got = f->first; term < terms; ++term) {
        if (term == f->own && term == 0) {
            cdp__dt_copy_run(&f->copy, at, cdp__dt_at(p, f->from));
        } else if (term == f->own) {
            cdp__dt_copy_combine(&f->copy, p->dtype, s->op, at, cdp__dt_at(p, f->from));
        } else {
            const uint8_t *in = p->scratch + ph->recv[got++].at;
            if (term == 0)
                memcpy(slab, in, (size_t)(f->elements * p->elem));
            else
                cdp__reduce(p->dtype, s->op, false, slab, in, f->elements);
        }
    }
    if (s->divisor > 1) cdp__divide(p->dtype, slab, f->elements, (uint32_t)s->divisor);
}

/* A message has arrived: copies it to its place, unless it was received there. */
CDP__DT void cdp__dt_unpack(const cdp_plan *p, const cdp__dt_piece *x) {
    if (!x->direct && !x->rows) cdp__dt_copy_piece(p, x);
}

CDP__DT void cdp__dt_finish(const cdp_plan *p, const cdp__dt_phase *ph) {
    for (uint32_t i = 0; i < ph->folds; ++i)
        cdp__dt_fold_run(p, ph, &ph->fold[i]);
    for (uint32_t i = 0; i < ph->recvs; ++i)
        cdp__dt_unpack(p, &ph->recv[i]);
}

CDP__DT void cdp__dt_locals(const cdp_plan *p, const cdp__dt_phase *ph) {
    for (uint32_t i = 0; i < ph->locals; ++i)
        cdp__dt_copy_piece(p, &ph->here[i]);
}

CDP__DT void cdp__dt_transfer(
    const cdp_plan *p, cdp_transfer *t, const cdp__dt_piece *x, bool receive) {
    const cdp__dt_memory tensor = receive ? x->to : x->from;
    const cdp__dt_memory memory = x->direct || x->rows ? tensor : CDP__DT_SCRATCH;
    memset(t, 0, sizeof *t);
    t->receive = receive;
    t->data = cdp__dt_at(p, memory) + x->at;
    t->count = x->elements;
    t->dtype = p->dtype;
    t->peer = x->peer;
    t->tag = CDP__DT_TAG;
    t->rendezvous = !receive && x->elements * p->elem >= CDP__DT_RENDEZVOUS_BYTES;
    if (!x->rows) return;
    t->row = x->copy.run / p->elem;
    t->step = x->copy.to_step[0] / p->elem;
}

/* Starts the messages of a phase; *work stays empty if there are none. */
CDP__DT cdp_status cdp__dt_post(cdp_plan *p, const cdp__dt_phase *ph, cdp_work *work) {
    uint32_t n = 0, i;
    work->group = p->group;
    work->seq = 0;
    for (i = 0; i < ph->recvs; ++i)
        cdp__dt_transfer(p, &p->list[n++], &ph->recv[i], true);
    for (i = 0; i < ph->sends; ++i)
        cdp__dt_transfer(p, &p->list[n++], &ph->send[i], false);
    return n ? cdp_batch(p->group, p->list, n, work) : CDP_OK;
}

CDP__DT cdp_status cdp__dt_phase_run(cdp_plan *p, const cdp__dt_phase *ph) {
    cdp_work work;
    cdp__dt_pack(p, ph);
    cdp_status st = cdp__dt_post(p, ph, &work);
    if (st != CDP_OK) return st;
    cdp__dt_locals(p, ph);
    if (work.seq) st = cdp_work_wait(work);
    if (st == CDP_OK) cdp__dt_finish(p, ph);
    return st;
}

CDP__DT bool cdp__dt_overlap(const void *a, uint64_t a_bytes, const void *b, uint64_t b_bytes) {
    const uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;
    return a_bytes && b_bytes && x < y + b_bytes && y < x + a_bytes;
}

CDP__DT cdp_status cdp__dt_run_check(cdp_plan *p, const void *in, void *out) {
    const cdp_backend *backend = cdp_group_backend(p->mesh->root->group);
    if (p->in_bytes && !in) return cdp__dt_missing("cdp_plan_run", "in");
    if (p->out_bytes && !out) return cdp__dt_missing("cdp_plan_run", "out");
    if (!(p->identity && in == out) && cdp__dt_overlap(in, p->in_bytes, out, p->out_bytes))
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "plan: in and out overlap; use separate memory (in place works only if nothing moves)");
    if (backend
        && ((in && backend->owns(backend->self, in)) || (out && backend->owns(backend->self, out))))
        return cdp_error_set(CDP_ERR_UNSUPPORTED, -1, 0,
            "plan: device memory cannot be packed yet; copy it to host memory first");
    return CDP_OK;
}

/* Checks the call; sets *ready if there is something to run. Then cdp__dt_scratch_give() must
   follow. */
CDP__DT cdp_status cdp__dt_run_begin(cdp_plan *p, const void *in, void *out, bool *ready) {
    *ready = false;
    if (cdp__dt_alive(p, "cdp_plan_run", "plan") != CDP_OK) return cdp_last_error()->status;
    if (!cdp__dt_has_mesh(&p->desc.from))
        return cdp__dt_mesh_refused(&p->desc.from, "cdp_plan_run");
    if (!cdp__dt_has_mesh(&p->desc.to)) return cdp__dt_mesh_refused(&p->desc.to, "cdp_plan_run");
    if (!p->mesh->root->group)
        return cdp_error_set(CDP_ERR_STATE, -1, 0, "plan: its mesh is on paper; it cannot run");
    if (!p->group || p->node == CDP__DT_NONE) return CDP_OK;
    const cdp_status failed = cdp_group_status(cdp__dt_run_link(p)->group);
    if (failed == CDP_ERR_STATE) return failed; /* of another process, see cdp__dt_link_here() */
    if (cdp__dt_running(p) && failed != CDP_OK) return failed;
    if (cdp__dt_running(p))
        return cdp_error_set(CDP_ERR_STATE, -1, 0,
            "plan: its last asynchronous run is not done; wait for that work first");
    cdp_status st = cdp__dt_plan_refused(&p->desc, cdp__dt_run_check(p, in, out));
    if (st == CDP_OK && !p->compared) st = cdp__dt_plan_compare(p);
    if (st == CDP_OK) st = cdp__dt_scratch_take(p);
    if (st != CDP_OK) return st;
    p->in = in;
    p->out = out;
    *ready = true;
    if (p->kind != CDP_COLL_NONE)
        cdp__dt_count(p->mesh->root->counter, p->kind, p->info.recv_bytes, p->backward);
    return CDP_OK;
}

/* The collective that the plan is, as a call of its group. */
CDP__DT cdp_status cdp__dt_single_run(const cdp_plan *p) {
    const uint64_t n = p->single.count;
    cdp_group *g = cdp__dt_run_link(p)->group;
    const cdp_reduce_op op = p->stages[0].op;
    if (p->single.kind == CDP_COLL_ALLREDUCE)
        return cdp_allreduce(g, p->in, p->out, n, p->dtype, op);
    if (p->single.kind == CDP_COLL_REDUCE_SCATTER)
        return cdp_reduce_scatter(g, p->in, p->out, n, p->dtype, op);
    return cdp_allgather(g, p->in, p->out, n, p->dtype);
}

/* The call that a step is. */
CDP__DT cdp_request cdp__dt_act_request(const cdp_plan *p, const cdp__dt_act *a) {
    cdp_request rq;
    memset(&rq, 0, sizeof rq);
    rq.kind = a->kind;
    rq.in = cdp__dt_at(p, a->from) + a->from_at;
    rq.out = cdp__dt_at(p, a->to) + a->to_at;
    rq.count = a->count;
    rq.dtype = p->dtype;
    if (a->kind == CDP_COLL_ALLREDUCE || a->kind == CDP_COLL_REDUCE_SCATTER) rq.op = a->op;
    if (a->kind == CDP_COLL_REDUCE_SCATTER) rq.in_counts = a->counts;
    if (a->kind == CDP_COLL_ALLGATHER) rq.out_counts = a->counts;
    return rq;
}

/* A step is done: what is left to do with its result. */
CDP__DT void cdp__dt_act_finish(const cdp_plan *p, const cdp__dt_act *a) {
    if (a->phase == CDP__DT_NONE && a->divisor > 1)
        cdp__divide(p->dtype, cdp__dt_at(p, a->to) + a->to_at, a->count, a->divisor);
}

CDP__DT cdp_status cdp__dt_act_run(cdp_plan *p, const cdp__dt_act *a) {
    cdp_work work;
    if (a->phase != CDP__DT_NONE) return cdp__dt_phase_run(p, &p->phases[a->phase]);
    const cdp_request rq = cdp__dt_act_request(p, a);
    cdp_status st = cdp_start(cdp__dt_act_group(p, a), &rq, &work);
    if (st == CDP_OK) st = cdp_work_wait(work);
    if (st == CDP_OK) cdp__dt_act_finish(p, a);
    return st;
}

/* Breaks the groups of a plan of which one step has failed: ranks of other rows wait for this one
   in theirs. */
CDP__DT cdp_status cdp__dt_acts_break(const cdp_plan *p, cdp_status st) {
    const cdp_error why = *cdp_last_error();
    for (uint32_t k = 0; k < p->act_count; ++k) {
        cdp_group *group = cdp__dt_act_group(p, &p->acts[k]);
        if (cdp_group_status(group) == CDP_OK) cdp_group_abort(group, why.text);
    }
    if (cdp_group_status(p->group) == CDP_OK) cdp_group_abort(p->group, why.text);
    return cdp__error_again(st, &why);
}

CDP__DT cdp_status cdp__dt_acts_run(cdp_plan *p) {
    cdp_status st = CDP_OK;
    for (uint32_t k = 0; k < p->act_count; ++k) {
        st = cdp__dt_act_run(p, &p->acts[k]);
        if (st != CDP_OK) return cdp__dt_acts_break(p, st);
    }
    return st;
}

CDP_API cdp_status cdp_plan_run(cdp_plan *p, const void *in, void *out) {
    bool ready;
    cdp_status st = cdp__dt_run_begin(p, in, out, &ready);
    if (st == CDP_OK && ready && p->single.kind) return cdp__dt_single_run(p);
    if (st == CDP_OK && ready && p->acts) {
        st = cdp__dt_acts_run(p);
        cdp__dt_scratch_give(p, false);
        return st;
    }
    for (uint32_t k = 0; st == CDP_OK && ready && k < p->phase_count; ++k)
        st = cdp__dt_phase_run(p, &p->phases[k]);
    if (ready) cdp__dt_scratch_give(p, false);
    return st;
}

/* ---- >>dtensor/runner_async: phases that start one another ----------------------------------- */

/* Knows: phases and works. Promises: all phases take their place in the group's order at the
   call. */

CDP__DT void cdp__dt_wide_free(cdp_plan *p) {
    for (uint32_t k = 0; p->wide && k < p->phase_count; ++k) {
        cdp__dt_free(p->os, p->wide[k].send_count);
        if (p->mesh) cdp__dt_retire(p->mesh->root, p->link, p->wide[k].out);
    }
    cdp__dt_free(p->os, p->wide);
    p->wide = NULL;
    if (p->turns && p->mesh && cdp__atomic_load_u32(&p->turns->pending, CDP__ACQUIRE)) {
        p->turns->retirement.next = cdp__dt_run_link(p)->retired;
        cdp__dt_run_link(p)->retired = &p->turns->retirement;
    } else {
        cdp__dt_free(p->os, p->turns);
    }
    p->turns = NULL;
}

CDP__DT void cdp__dt_phases_free(cdp_plan *p) {
    cdp__dt_acts_free(p);
    for (uint32_t k = 0; k < p->phase_count; ++k) {
        cdp__dt_free(p->os, p->phases[k].send);
        cdp__dt_free(p->os, p->phases[k].fold);
    }
    cdp__dt_free(p->os, p->phases);
    cdp__dt_free(p->os, p->list);
}

CDP_API void cdp_plan_destroy(cdp_plan *p) {
    if (!p || cdp__dt_alive(p, "cdp_plan_destroy", "plan") != CDP_OK) return;
    cdp__ended_add(p);
    if (cdp__dt_mesh_ended(p->mesh)) {
        (void)cdp__dt_mesh_refused(&p->desc.from, "cdp_plan_destroy");
        p->mesh = NULL; /* what it has of the group stays there */
    }
    cdp__dt_plan_release(p);
    if (p->mesh) cdp__dt_scratch_give(p, true);
    cdp__dt_wide_free(p);
    cdp__dt_phases_free(p);
    cdp__dt_stages_free(p);
    cdp__dt_free(p->os, p);
}

/* Places pieces in a row that is ordered by peer; returns its length. */
CDP__DT uint64_t cdp__dt_wide_row(const cdp__dt_piece *x, uint32_t n, uint32_t nodes, uint64_t elem,
    uint64_t *count, uint64_t *at) {
    uint64_t total = 0;
    for (uint32_t i = 0; i < n; ++i)
        count[x[i].peer] += x[i].elements * elem;
    for (uint32_t peer = 0; peer < nodes; ++peer) {
        uint64_t next = total;
        for (uint32_t i = 0; count[peer] && i < n; ++i)
            if (x[i].peer == peer) {
                at[i] = next;
                next += x[i].elements * elem;
            }
        total = next;
    }
    return total;
}

CDP__DT cdp_status cdp__dt_wide_phase(cdp_plan *p, const cdp__dt_phase *ph, cdp__dt_wide *w) {
    const uint64_t words = 2ull * p->nodes + ph->sends + ph->recvs;
    w->send_count = (uint64_t *)cdp__dt_alloc(p->os, words * 8);
    if (!w->send_count) return cdp__dt_nomem("an asynchronous plan", words * 8);
    w->recv_count = w->send_count + p->nodes;
    w->send_at = w->recv_count + p->nodes;
    w->recv_at = w->send_at + ph->sends;
    w->out_bytes =
        cdp__dt_wide_row(ph->send, ph->sends, p->nodes, p->elem, w->send_count, w->send_at);
    w->in_bytes =
        cdp__dt_wide_row(ph->recv, ph->recvs, p->nodes, p->elem, w->recv_count, w->recv_at);
    w->out = (uint8_t *)cdp__dt_group_memory(p->group, w->out_bytes + w->in_bytes + 128);
    if (!w->out) return cdp__dt_nomem("an asynchronous plan", w->out_bytes + w->in_bytes);
    /* a separate address even if nothing is sent */
    w->in = w->out + ((w->out_bytes + 64) & ~(uint64_t)63);
    return CDP_OK;
}

CDP__DT cdp_status cdp__dt_wide_make(cdp_plan *p) {
    cdp_status st = CDP_OK;
    if (p->turns) return CDP_OK;
    p->wide = (cdp__dt_wide *)cdp__dt_alloc(p->os, p->phase_count * sizeof *p->wide);
    if (!p->wide) return cdp__dt_nomem("an asynchronous plan", p->phase_count * sizeof *p->wide);
    for (uint32_t k = p->acts ? 0 : 1; st == CDP_OK && k < p->phase_count; ++k)
        st = cdp__dt_wide_phase(p, &p->phases[k], &p->wide[k]);
    cdp__dt_turns *turns = (cdp__dt_turns *)cdp__dt_alloc(p->os, sizeof *turns);
    if (st == CDP_OK && !turns) st = cdp__dt_nomem("an asynchronous plan", sizeof *turns);
    for (uint32_t k = 0; turns && k < CDP__DT_TURNS; ++k) {
        turns->turn[k].all = turns;
        turns->turn[k].phase = k;
    }
    if (turns) turns->plan = p;
    p->turns = turns;
    if (st != CDP_OK) cdp__dt_wide_free(p);
    return st;
}

CDP__DT void cdp__dt_wide_pack(cdp_plan *p, uint32_t k) {
    const cdp__dt_phase *ph = &p->phases[k];
    cdp__dt_pack(p, ph);
    cdp__dt_locals(p, ph);
    for (uint32_t i = 0; i < ph->sends; ++i) {
        const cdp__dt_piece *x = &ph->send[i];
        const uint8_t *from = cdp__dt_at(p, x->direct ? x->from : CDP__DT_SCRATCH) + x->at;
        memcpy(p->wide[k].out + p->wide[k].send_at[i], from, (size_t)(x->elements * p->elem));
    }
}

CDP__DT void cdp__dt_wide_unpack(cdp_plan *p, uint32_t k) {
    const cdp__dt_phase *ph = &p->phases[k];
    for (uint32_t i = 0; i < ph->recvs; ++i) {
        const cdp__dt_piece *x = &ph->recv[i];
        const uint8_t *from = p->wide[k].in + p->wide[k].recv_at[i];
        uint8_t *to = cdp__dt_at(p, x->direct ? x->to : CDP__DT_SCRATCH) + x->at;
        if (x->rows)
            cdp__dt_copy_run(&x->copy, cdp__dt_at(p, x->to), from);
        else
            memcpy(to, from, (size_t)(x->elements * p->elem));
    }
}

/* Step number k of a plan is done, as a step of cdp__dt_turn_done(). */
CDP__DT void cdp__dt_act_done(cdp_plan *p, uint32_t k) {
    const cdp__dt_act *a = &p->acts[k];
    if (a->phase != CDP__DT_NONE) {
        cdp__dt_wide_unpack(p, a->phase);
        cdp__dt_finish(p, &p->phases[a->phase]);
    }
    cdp__dt_act_finish(p, a);
    if (k + 1 < p->act_count && a[1].phase != CDP__DT_NONE) cdp__dt_wide_pack(p, a[1].phase);
}

/* Called when the messages of a phase are done, in the thread that makes progress. */
CDP__DT cdp_status cdp__dt_turn_done(void *user, cdp_status status) {
    const cdp__dt_turn *turn = (const cdp__dt_turn *)user;
    const uint32_t k = turn->phase;
    if (status == CDP_OK) {
        cdp_plan *p = turn->all->plan;
        if (p->acts) {
            cdp__dt_act_done(p, k);
        } else {
            if (k) cdp__dt_wide_unpack(p, k);
            if (!p->single.kind) cdp__dt_finish(p, &p->phases[k]);
            if (k + 1 < p->phase_count) cdp__dt_wide_pack(p, k + 1);
        }
    }
    (void)cdp__atomic_sub_u32(&turn->all->pending, 1, CDP__ACQ_REL);
    return CDP_OK;
}

/* Starts phase k > 0 after `before` (empty: at once). */
CDP__DT cdp_status cdp__dt_wide_start(cdp_plan *p, uint32_t k, cdp_work before, cdp_work *work) {
    const cdp__dt_wide *w = &p->wide[k];
    cdp_request rq;
    memset(&rq, 0, sizeof rq);
    rq.kind = CDP_COLL_ALLTOALL;
    rq.in = w->out;
    rq.out = w->in;
    rq.dtype = CDP_DTYPE_U8;
    rq.in_counts = w->send_count;
    rq.out_counts = w->recv_count;
    if (before.seq) return cdp_start_after(p->group, &rq, before, work);
    return cdp_start(p->group, &rq, work);
}

/* Starts the collective that the plan is. */
CDP__DT cdp_status cdp__dt_single_start(const cdp_plan *p, cdp_work *work) {
    cdp_request rq;
    memset(&rq, 0, sizeof rq);
    rq.kind = p->single.kind;
    rq.in = p->in;
    rq.out = p->out;
    rq.count = p->single.count;
    rq.dtype = p->dtype;
    rq.op = p->stages[0].op;
    return cdp_start(cdp__dt_run_link(p)->group, &rq, work);
}

/* Starts the first phase, or the collective that the plan is; *work stays empty if there is no
   message. */
CDP__DT cdp_status cdp__dt_first_start(cdp_plan *p, cdp_work *work) {
    if (p->single.kind) return cdp__dt_single_start(p, work);
    cdp__dt_pack(p, &p->phases[0]);
    const cdp_status st = cdp__dt_post(p, &p->phases[0], work);
    if (st == CDP_OK) cdp__dt_locals(p, &p->phases[0]);
    return st;
}

/* Starts step k after `before` (empty: at once). */
CDP__DT cdp_status cdp__dt_act_start(cdp_plan *p, uint32_t k, cdp_work before, cdp_work *work) {
    const cdp__dt_act *a = &p->acts[k];
    if (a->phase != CDP__DT_NONE) return cdp__dt_wide_start(p, a->phase, before, work);
    const cdp_request rq = cdp__dt_act_request(p, a);
    cdp_group *group = cdp__dt_act_group(p, a);
    return before.seq ? cdp_start_after(group, &rq, before, work) : cdp_start(group, &rq, work);
}

/* The same as cdp__dt_chain(), of steps. All messages are collectives. */
CDP__DT cdp_status cdp__dt_act_chain(cdp_plan *p, cdp_work *work) {
    cdp_status st = CDP_OK;
    cdp_work step;
    if (p->act_count && p->acts[0].phase != CDP__DT_NONE) cdp__dt_wide_pack(p, p->acts[0].phase);
    for (uint32_t k = 0; st == CDP_OK && k < p->act_count; ++k) {
        st = cdp__dt_act_start(p, k, *work, &step);
        if (st != CDP_OK) return st;
        *work = step;
        (void)cdp__atomic_add_u32(&p->turns->pending, 1, CDP__ACQ_REL);
        st = cdp_work_then(step, cdp__dt_turn_done, &p->turns->turn[k], work);
        if (st != CDP_OK) (void)cdp__atomic_sub_u32(&p->turns->pending, 1, CDP__ACQ_REL);
    }
    return st;
}

CDP__DT cdp_status cdp__dt_chain(cdp_plan *p, cdp_work *work) {
    const uint32_t phases = p->single.kind ? 1 : p->phase_count;
    cdp_work step;
    cdp_status st = cdp__dt_first_start(p, &step);
    if (st != CDP_OK) return st;
    for (uint32_t k = 0; st == CDP_OK; ++k) {
        *work = step;
        (void)cdp__atomic_add_u32(&p->turns->pending, 1, CDP__ACQ_REL);
        if (step.seq)
            st = cdp_work_then(step, cdp__dt_turn_done, &p->turns->turn[k], work);
        else
            st = cdp__dt_turn_done(&p->turns->turn[k], CDP_OK);
        if (st != CDP_OK) (void)cdp__atomic_sub_u32(&p->turns->pending, 1, CDP__ACQ_REL);
        if (st != CDP_OK || k + 1 == phases) return st;
        st = cdp__dt_wide_start(p, k + 1, *work, &step);
    }
    return st;
}

/* Asynchronous runs have no windows, which would all need memory of their own: builds the phases
   again without. */
CDP__DT cdp_status cdp__dt_plan_whole(cdp_plan *p) {
    cdp_plan old;
    if (!p || cdp__ended(p) || !p->windows || p->whole || cdp__dt_mesh_ended(p->mesh))
        return CDP_OK;
    old = *p;
    p->whole = true;
    p->phases = NULL;
    p->list = NULL;
    p->acts = NULL;
    p->act_count = p->info.calls = 0;
    p->phase_count = p->info.messages = 0;
    p->scratch_used = p->info.send_bytes = p->info.recv_bytes = p->info.copied_bytes = 0;
    const cdp_status st = cdp__dt_plan_build(p);
    cdp__dt_phases_free(st == CDP_OK ? &old : p);
    if (st != CDP_OK) *p = old;
    return st;
}

CDP_API cdp_status cdp_plan_run_async(cdp_plan *p, const void *in, void *out, cdp_work *work) {
    bool ready;
    if (!work) return cdp__dt_missing("cdp_plan_run_async", "work");
    cdp_status st = cdp__dt_plan_whole(p);
    if (st == CDP_OK) st = cdp__dt_run_begin(p, in, out, &ready);
    work->group = st == CDP_OK && p->group ? cdp__dt_run_link(p)->group : NULL;
    work->seq = 0;
    if (st != CDP_OK || !ready) return st;
    st = cdp__dt_wide_make(p);
    const bool made = st == CDP_OK;
    if (made) st = p->acts ? cdp__dt_act_chain(p, work) : cdp__dt_chain(p, work);
    cdp__dt_scratch_give(p, false);
    if (!made) return st;
    if (st != CDP_OK && p->acts) return cdp__dt_acts_break(p, st);
    if (st != CDP_OK && cdp_group_status(work->group) == CDP_OK) {
        const cdp_error why = *cdp_last_error();
        cdp_group_abort(cdp__dt_run_link(p)->group, why.text);
        st = cdp__error_again(st, &why);
    }
    return st;
}

/* ---- >>dtensor/pictures: how a tensor lies on a mesh ----------------------------------------- */

/* Knows: the boxes of a layout. Promises: text, SVG and JSON of it. */

typedef struct cdp__dt_grid {
    const cdp_layout *layout;
    cdp__dt_side side;
    uint32_t dims, rows, columns; /* which dimensions of the tensor; CDP__DT_NONE: none */
    uint32_t count[CDP_TENSOR_DIMS];
    uint64_t *start[CDP_TENSOR_DIMS], *size[CDP_TENSOR_DIMS];
} cdp__dt_grid;

/* Inserts an interval into the sorted list, if it is not there yet. */
CDP__DT void cdp__dt_grid_add(cdp__dt_grid *g, uint32_t d, uint64_t start, uint64_t size) {
    uint32_t k = g->count[d], low = 0, high = k;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (g->start[d][middle] == start) return;
        if (g->start[d][middle] < start)
            low = middle + 1;
        else
            high = middle;
    }
    for (; k > low; --k) {
        g->start[d][k] = g->start[d][k - 1];
        g->size[d][k] = g->size[d][k - 1];
    }
    g->start[d][k] = start;
    g->size[d][k] = size;
    ++g->count[d];
}

/* `memory`: 2 * CDP_TENSOR_DIMS numbers for each cell. */
CDP__DT void cdp__dt_grid_make(cdp__dt_grid *g, const cdp_layout *l, uint64_t *memory) {
    const cdp__dt_side s = cdp__dt_side_of(l, 0);
    memset(g, 0, sizeof *g);
    g->layout = l;
    g->side = s;
    g->dims = l->ndim;
    g->columns = l->ndim ? l->ndim - 1 : CDP__DT_NONE;
    g->rows = l->ndim > 1 ? l->ndim - 2 : CDP__DT_NONE;
    for (uint32_t d = 0; d < l->ndim; ++d) {
        g->start[d] = memory + 2ull * d * s.cells;
        g->size[d] = g->start[d] + s.cells;
    }
    for (uint32_t c = 0; c < s.cells; ++c) {
        const cdp__dt_region r = cdp__dt_cell_region(&s, c);
        for (uint32_t d = 0; d < l->ndim; ++d)
            if (r.size[d]) cdp__dt_grid_add(g, d, r.start[d], r.size[d]);
    }
}

CDP__DT uint32_t cdp__dt_grid_count(const cdp__dt_grid *g, uint32_t d) {
    return d == CDP__DT_NONE ? 1 : g->count[d];
}

/* The region at interval index[d] of each dimension. */
CDP__DT cdp__dt_region cdp__dt_grid_box(const cdp__dt_grid *g, const uint32_t *index) {
    cdp__dt_region r;
    memset(&r, 0, sizeof r);
    for (uint32_t d = 0; d < g->dims; ++d) {
        r.start[d] = g->start[d][index[d]];
        r.size[d] = g->size[d][index[d]];
    }
    return r;
}

CDP__DT bool cdp__dt_region_same(const cdp__dt_region *a, const cdp__dt_region *b, uint32_t ndim) {
    for (uint32_t d = 0; d < ndim; ++d)
        if (a->start[d] != b->start[d] || a->size[d] != b->size[d]) return false;
    return true;
}

/* Writes the ranks that hold a region, like "0 4"; at most `most` of them. */
CDP__DT void cdp__dt_add_holders(
    cdp__text *t, const cdp__dt_grid *g, const cdp__dt_region *box, uint32_t most) {
    const uint32_t first = cdp__dt_position_of(&g->side, box->start);
    const cdp__dt_region r = cdp__dt_region_of(&g->side, first);
    if (!cdp__dt_region_same(&r, box, g->dims)) return;
    for (uint32_t k = 0; k < g->side.members && k < most; ++k)
        cdp__text_add(t, k ? " %u" : "%u",
            g->layout->mesh->ranks[first + cdp__dt_spread(&g->side, k, CDP__DT_CUTS, false)]);
    if (g->side.members > most) cdp__text_add(t, " +%u", g->side.members - most);
}

/* Writes "0-3", or "5" for one element. */
CDP__DT void cdp__dt_add_interval(cdp__text *t, uint64_t start, uint64_t size) {
    cdp__text_add(t, "%llu", (unsigned long long)start);
    if (size > 1) cdp__text_add(t, "-%llu", (unsigned long long)(start + size - 1));
}

CDP__DT void cdp__dt_add_shape(cdp__text *t, const cdp_layout *l) {
    cdp__text_add(t, "%s[", cdp_dtype_name(l->dtype));
    for (uint32_t d = 0; d < l->ndim; ++d)
        cdp__text_add(t, d ? ",%llu" : "%llu", (unsigned long long)l->shape[d]);
    cdp__text_add(t, "]");
}

/* Writes a mesh like "2x4 (dp,tp)". */
CDP__DT void cdp__dt_add_mesh(cdp__text *t, const cdp_mesh *m) {
    for (uint32_t d = 0; d < m->desc.ndim; ++d)
        cdp__text_add(t, d ? "x%u" : "%u", m->desc.shape[d]);
    for (uint32_t d = 0; d < m->desc.ndim; ++d)
        cdp__text_add(t, d ? ",%s" : " (%s", m->names[d]);
    cdp__text_add(t, ")");
}

CDP__DT void cdp__dt_add_layout(cdp__text *t, const cdp_layout *l) {
    cdp__dt_add_shape(t, l);
    cdp__text_add(t, " as ");
    cdp__dt_add_places(t, l);
    cdp__text_add(t, " on mesh ");
    cdp__dt_add_mesh(t, l->mesh);
}

/* Writes the ranks without elements, if there are any. */
CDP__DT void cdp__dt_add_empty(cdp__text *t, const cdp__dt_grid *g) {
    uint32_t n = 0;
    for (uint32_t k = 0; k < g->side.count; ++k) {
        const cdp__dt_region r = cdp__dt_region_of(&g->side, k);
        if (cdp__dt_volume(&r, g->dims)) continue;
        cdp__text_add(t, n++ ? " %u" : "empty on ranks %u", g->layout->mesh->ranks[k]);
    }
    if (n) cdp__text_add(t, "\n");
}

/* Advances to the next combination of intervals of the leading dimensions; false after the last
   one. */
CDP__DT bool cdp__dt_grid_next(const cdp__dt_grid *g, uint32_t *index) {
    for (uint32_t d = g->dims > 2 ? g->dims - 2 : 0; d-- > 0; index[d] = 0)
        if (++index[d] < g->count[d]) return true;
    return false;
}

CDP__DT bool cdp__dt_grid_empty(const cdp__dt_grid *g) {
    for (uint32_t d = 0; d < g->dims; ++d)
        if (!g->count[d]) return true;
    return false;
}

CDP__DT void cdp__dt_plane_name(cdp__text *t, const cdp__dt_grid *g, const uint32_t *index) {
    cdp__text_add(t, "plane [");
    for (uint32_t d = 0; d + 2 < g->dims; ++d) {
        if (d) cdp__text_add(t, ", ");
        cdp__dt_add_interval(t, g->start[d][index[d]], g->size[d][index[d]]);
    }
    cdp__text_add(t, "]");
}

/* Writes a table: columns of elements across, rows down, and in each cell the ranks that hold
   it. */
CDP__DT void cdp__dt_plane_text(
    cdp__text *t, const cdp__dt_grid *g, uint32_t *index, uint32_t width, bool color) {
    const uint32_t columns = cdp__dt_grid_count(g, g->columns),
                   rows = cdp__dt_grid_count(g, g->rows);
    uint64_t line = t->used;
    for (uint32_t c = 0; c < columns && g->columns != CDP__DT_NONE; ++c) {
        cdp__text_pad(t, line, 10 + c * width);
        cdp__dt_add_interval(t, g->start[g->columns][c], g->size[g->columns][c]);
    }
    if (g->columns != CDP__DT_NONE) cdp__text_add(t, "\n");
    for (uint32_t r = 0; r < rows; ++r) {
        line = t->used;
        if (g->rows != CDP__DT_NONE) {
            cdp__text_add(t, "  ");
            cdp__dt_add_interval(t, g->start[g->rows][r], g->size[g->rows][r]);
            index[g->rows] = r;
        }
        for (uint32_t c = 0; c < columns; ++c) {
            if (g->columns != CDP__DT_NONE) index[g->columns] = c;
            const cdp__dt_region box = cdp__dt_grid_box(g, index);
            cdp__text_pad(t, line, 10 + c * width);
            if (color) {
                const uint64_t before = t->used;
                cdp__text_add(t, "\033[3%um", 1 + (r * columns + c) % 6);
                line += t->used - before + 5;
            }
            cdp__dt_add_holders(t, g, &box, 8);
            if (color) cdp__text_add(t, "\033[39m");
        }
        cdp__text_add(t, "\n");
    }
}

CDP__DT void cdp__dt_layout_as_text(cdp__text *t, const cdp__dt_grid *g, bool color) {
    uint32_t index[CDP_TENSOR_DIMS] = {0};
    const uint32_t copies = g->side.members;
    const uint32_t width = 4 + 4 * (uint32_t)cdp__min(copies, 8) + (copies > 8 ? 6 : 0);
    cdp__dt_add_layout(t, g->layout);
    cdp__text_add(t, g->dims > 1 ? "; rows down, columns across, ranks inside\n" : "\n");
    if (!cdp__dt_grid_empty(g)) {
        do {
            if (g->dims > 2) {
                cdp__dt_plane_name(t, g, index);
                cdp__text_add(t, "\n");
            }
            cdp__dt_plane_text(t, g, index, width < 12 ? 12 : width, color);
        } while (cdp__dt_grid_next(g, index));
    }
    cdp__dt_add_empty(t, g);
}

CDP__DT void cdp__dt_add_box(cdp__text *t, const cdp__dt_region *r, uint32_t ndim) {
    cdp__text_add(t, "[");
    for (uint32_t d = 0; d < ndim; ++d) {
        if (d) cdp__text_add(t, ", ");
        cdp__text_add(t, "%llu:%llu", (unsigned long long)r->start[d],
            (unsigned long long)(r->start[d] + r->size[d]));
    }
    cdp__text_add(t, "]");
}

CDP__DT void cdp__dt_json_list(cdp__text *t, const uint64_t *v, uint32_t n) {
    cdp__text_add(t, "[");
    for (uint32_t i = 0; i < n; ++i)
        cdp__text_add(t, i ? ",%llu" : "%llu", (unsigned long long)v[i]);
    cdp__text_add(t, "]");
}

CDP__DT void cdp__dt_layout_as_json(cdp__text *t, const cdp__dt_grid *g) {
    cdp__text_add(t, "{\"layout\": \"");
    cdp__dt_add_places(t, g->layout);
    cdp__text_add(t, "\", \"dtype\": \"%s\", \"shape\": ", cdp_dtype_name(g->layout->dtype));
    cdp__dt_json_list(t, g->layout->shape, g->dims);
    cdp__text_add(t, ", \"ranks\": [");
    for (uint32_t k = 0; k < g->side.count; ++k) {
        const cdp__dt_region r = cdp__dt_region_of(&g->side, k);
        cdp__text_add(t, k ? ",\n  {\"rank\": %u, \"start\": " : "\n  {\"rank\": %u, \"start\": ",
            g->layout->mesh->ranks[k]);
        cdp__dt_json_list(t, r.start, g->dims);
        cdp__text_add(t, ", \"size\": ");
        cdp__dt_json_list(t, r.size, g->dims);
        cdp__text_add(t, "}");
    }
    cdp__text_add(t, "]}\n");
}

/* Draws one plane as rectangles in proportion; returns its height. */
CDP__DT uint32_t cdp__dt_plane_svg(
    cdp__text *t, const cdp__dt_grid *g, uint32_t *index, uint32_t left, uint32_t top) {
    const uint32_t columns = cdp__dt_grid_count(g, g->columns),
                   rows = cdp__dt_grid_count(g, g->rows);
    const uint64_t across = g->columns == CDP__DT_NONE ? 1 : g->layout->shape[g->columns];
    const uint64_t down = g->rows == CDP__DT_NONE ? 1 : g->layout->shape[g->rows];
    const uint32_t width = 400, height = g->rows == CDP__DT_NONE ? 40 : 60 + 40 * rows;
    if (g->dims > 2) {
        cdp__text_add(t, "<text x=\"%u\" y=\"%u\">", left, top - 20);
        cdp__dt_plane_name(t, g, index);
        cdp__text_add(t, "</text>\n");
    }
    for (uint32_t k = 0; k < rows * columns; ++k) {
        const uint32_t r = k / columns, c = k % columns;
        if (g->rows != CDP__DT_NONE) index[g->rows] = r;
        if (g->columns != CDP__DT_NONE) index[g->columns] = c;
        const cdp__dt_region box = cdp__dt_grid_box(g, index);
        const uint64_t x0 = g->columns == CDP__DT_NONE ? 0 : box.start[g->columns];
        const uint64_t w = g->columns == CDP__DT_NONE ? 1 : box.size[g->columns];
        const uint64_t y0 = g->rows == CDP__DT_NONE ? 0 : box.start[g->rows];
        const uint64_t h = g->rows == CDP__DT_NONE ? 1 : box.size[g->rows];
        const uint32_t x = left + (uint32_t)(width * x0 / across),
                       y = top + (uint32_t)(height * y0 / down);
        const uint32_t wide = (uint32_t)(width * w / across), high = (uint32_t)(height * h / down);
        cdp__text_add(t,
            "<rect class=\"box\" x=\"%u\" y=\"%u\" width=\"%u\" height=\"%u\" fill=\"%s\"/>", x, y,
            wide, high, cdp__svg_tint(k));
        cdp__text_add(t, "<text class=\"in\" text-anchor=\"middle\" x=\"%u\" y=\"%u\">",
            x + wide / 2, y + high / 2 + 4);
        cdp__dt_add_holders(t, g, &box, 8);
        cdp__text_add(t, "</text>\n");
        if (r == 0 && g->columns != CDP__DT_NONE) {
            cdp__text_add(t, "<text class=\"thin\" text-anchor=\"middle\" x=\"%u\" y=\"%u\">",
                x + wide / 2, top - 5);
            cdp__dt_add_interval(t, x0, w);
            cdp__text_add(t, "</text>\n");
        }
        if (c == 0 && g->rows != CDP__DT_NONE) {
            cdp__text_add(t, "<text class=\"thin\" text-anchor=\"end\" x=\"%u\" y=\"%u\">",
                left - 6, y + high / 2 + 4);
            cdp__dt_add_interval(t, y0, h);
            cdp__text_add(t, "</text>\n");
        }
    }
    return height;
}

CDP__DT void cdp__dt_layout_as_svg(cdp__text *t, const cdp__dt_grid *g) {
    uint32_t index[CDP_TENSOR_DIMS] = {0}, planes = 0, top = 56;
    const uint32_t rows = cdp__dt_grid_count(g, g->rows);
    const uint32_t high = (g->rows == CDP__DT_NONE ? 40 : 60 + 40 * rows) + 50;
    const bool empty = cdp__dt_grid_empty(g);
    do
        ++planes;
    while (!empty && cdp__dt_grid_next(g, index));
    cdp__svg_begin(t, 520, 60 + planes * high);
    cdp__text_add(t, "<text x=\"10\" y=\"20\">");
    cdp__dt_add_layout(t, g->layout);
    cdp__text_add(t, "</text>\n");
    memset(index, 0, sizeof index);
    while (!empty) {
        (void)cdp__dt_plane_svg(t, g, index, 90, top);
        top += high;
        if (!cdp__dt_grid_next(g, index)) break;
    }
    cdp__text_add(t, "<text class=\"thin\" x=\"10\" y=\"%u\">", 50 + planes * high);
    cdp__dt_add_empty(t, g);
    cdp__text_add(t, "</text>\n</svg>\n");
}

CDP_API uint64_t cdp_layout_draw(
    const cdp_layout *l, cdp_draw_format format, char *text, uint64_t room) {
    cdp__text t = cdp__text_of(text, room);
    cdp__dt_grid g;
    (void)cdp__text_end(&t);
    if (cdp_layout_check(l) != CDP_OK) return 0;
    const cdp__dt_side s = cdp__dt_side_of(l, 0);
    const uint64_t bytes = 2ull * CDP_TENSOR_DIMS * s.cells * sizeof(uint64_t);
    uint64_t *memory = (uint64_t *)cdp__dt_alloc(l->mesh->root->os, bytes);
    if (!memory) return 0;
    cdp__dt_grid_make(&g, l, memory);
    if (format == CDP_DRAW_SVG)
        cdp__dt_layout_as_svg(&t, &g);
    else if (format == CDP_DRAW_JSON)
        cdp__dt_layout_as_json(&t, &g);
    else
        cdp__dt_layout_as_text(&t, &g, format == CDP_DRAW_COLOR);
    cdp__dt_free(l->mesh->root->os, memory);
    return cdp__text_end(&t);
}

/* ---- >>dtensor/plan_pictures: which rank sends what to which --------------------------------- */

/* Knows: the moves of every rank, so it works without a group and on any rank. Promises: text, SVG
   and JSON of a plan. */

typedef struct cdp__dt_flow {
    cdp__text *text;
    const cdp_plan *plan;
    const cdp__dt_stage *stage;
    uint32_t node, shown, most; /* the sender; lines so far, and at most */
    bool terms;                 /* phase A, else B */
    uint64_t *bytes;            /* nodes x nodes: from, to */
} cdp__dt_flow;

CDP__DT uint32_t cdp__dt_rank_of_node(const cdp__dt_stage *s, uint32_t node) {
    return s->maps ? node : s->from.mesh->ranks[node];
}

CDP__DT bool cdp__dt_flow_sends(const cdp__dt_flow *f, const cdp__dt_move *m) {
    if (f->terms) return m->kind == CDP__DT_TERM_SEND;
    return m->kind == CDP__DT_SEND || m->kind == CDP__DT_OWN_SEND;
}

CDP__DT void cdp__dt_flow_sum(void *user, const cdp__dt_move *m) {
    cdp__dt_flow *f = (cdp__dt_flow *)user;
    if (cdp__dt_flow_sends(f, m))
        f->bytes[(uint64_t)f->node * f->stage->pair.nodes + m->peer] +=
            cdp__dt_volume(&m->region, f->stage->pair.to.ndim) * f->plan->elem;
}

CDP__DT void cdp__dt_flow_line(void *user, const cdp__dt_move *m) {
    cdp__dt_flow *f = (cdp__dt_flow *)user;
    if (!cdp__dt_flow_sends(f, m) || f->shown++ >= f->most) return;
    cdp__text_add(f->text, "    %u -> %u  ", cdp__dt_rank_of_node(f->stage, f->node),
        cdp__dt_rank_of_node(f->stage, m->peer));
    cdp__dt_add_box(f->text, &m->region, f->stage->from.ndim);
    cdp__text_add(f->text, "  %llu bytes\n",
        (unsigned long long)(cdp__dt_volume(&m->region, f->stage->pair.to.ndim) * f->plan->elem));
}

CDP__DT void cdp__dt_flow_json(void *user, const cdp__dt_move *m) {
    cdp__dt_flow *f = (cdp__dt_flow *)user;
    if (!cdp__dt_flow_sends(f, m)) return;
    cdp__text_add(f->text,
        f->shown++ ? ",\n    {\"from\": %u, \"to\": %u, \"start\": "
                   : "\n    {\"from\": %u, \"to\": %u, \"start\": ",
        cdp__dt_rank_of_node(f->stage, f->node), cdp__dt_rank_of_node(f->stage, m->peer));
    cdp__dt_json_list(f->text, m->region.start, f->stage->from.ndim);
    cdp__text_add(f->text, ", \"size\": ");
    cdp__dt_json_list(f->text, m->region.size, f->stage->from.ndim);
    cdp__text_add(f->text, "}");
}

CDP__DT void cdp__dt_flow_all(cdp__dt_flow *f, cdp__dt_emit *emit) {
    for (f->node = 0; f->node < f->stage->pair.nodes; ++f->node)
        cdp__dt_moves(&f->stage->pair, f->node, emit, f);
}

CDP__DT const char *cdp__dt_plan_name(const cdp_plan *p) {
    if (p->single.kind) return cdp_coll_name(p->single.kind);
    if (p->desc.kind == CDP_PLAN_TORCH) return "PyTorch's steps";
    if (p->calls) return "collectives";
    return p->stage_count > 1 || p->desc.kind == CDP_PLAN_BY_DIM ? "by dimension" : "direct";
}

CDP__DT void cdp__dt_plan_head(cdp__text *t, const cdp_plan *p) {
    cdp__dt_add_shape(t, &p->desc.from);
    cdp__text_add(t, " from ");
    cdp__dt_add_places(t, &p->desc.from);
    cdp__text_add(t, " to ");
    cdp__dt_add_places(t, &p->desc.to);
    cdp__text_add(t, " on mesh ");
    cdp__dt_add_mesh(t, p->desc.from.mesh);
}

CDP__DT void cdp__dt_plan_numbers(cdp__text *t, const cdp_plan *p) {
    cdp__text_add(t, "%s: phases: %u; bytes: %llu, the least possible %llu, PyTorch's steps %llu; ",
        cdp__dt_plan_name(p), p->info.steps, (unsigned long long)p->info.total_bytes,
        (unsigned long long)p->info.bound_bytes, (unsigned long long)p->info.torch_bytes);
    cdp__text_add(t, "about ");
    cdp__text_tenths(t, p->info.predicted_us);
    cdp__text_add(t, " us");
}

/* Writes a table of bytes: rows send, columns receive. */
CDP__DT void cdp__dt_flow_matrix(cdp__text *t, const cdp__dt_flow *f) {
    const uint32_t n = f->stage->pair.nodes;
    uint64_t line = t->used;
    cdp__text_add(t, "  from\\to");
    for (uint32_t to = 0; to < n; ++to) {
        cdp__text_pad(t, line, 12 + 8 * to);
        cdp__text_add(t, "%u", cdp__dt_rank_of_node(f->stage, to));
    }
    cdp__text_add(t, "\n");
    for (uint32_t from = 0; from < n; ++from) {
        line = t->used;
        cdp__text_add(t, "  %u", cdp__dt_rank_of_node(f->stage, from));
        for (uint32_t to = 0; to < n; ++to) {
            cdp__text_pad(t, line, 12 + 8 * to);
            const uint64_t bytes = f->bytes[(uint64_t)from * n + to];
            if (bytes)
                cdp__text_add(t, "%llu", (unsigned long long)bytes);
            else
                cdp__text_add(t, ".");
        }
        cdp__text_add(t, "\n");
    }
}

/* Draws two columns of ranks, and a line for each pair that communicates, as thick as its bytes. */
CDP__DT void cdp__dt_flow_svg(cdp__text *t, const cdp__dt_flow *f, uint32_t top) {
    const uint32_t n = f->stage->pair.nodes;
    uint64_t most = 1;
    for (uint64_t i = 0; i < (uint64_t)n * n; ++i)
        most = cdp__max(most, f->bytes[i]);
    for (uint64_t i = 0; i < (uint64_t)n * n; ++i) {
        const uint32_t y = top + 24 * (uint32_t)(i / n), z = top + 24 * (uint32_t)(i % n);
        if (!f->bytes[i]) continue;
        cdp__text_add(t, "<path class=\"line\" stroke-width=\"%u\" stroke-opacity=\"0.6\" ",
            1 + (uint32_t)(5 * f->bytes[i] / most));
        cdp__text_add(t, "d=\"M110 %u C230 %u 290 %u 410 %u\"><title>", y, y, z, z);
        cdp__text_add(t, "%u to %u: %llu bytes</title></path>\n",
            cdp__dt_rank_of_node(f->stage, (uint32_t)(i / n)),
            cdp__dt_rank_of_node(f->stage, (uint32_t)(i % n)), (unsigned long long)f->bytes[i]);
    }
    for (uint32_t k = 0; k < n; ++k) {
        const uint32_t rank = cdp__dt_rank_of_node(f->stage, k), y = top + 24 * k + 4;
        cdp__text_add(t, "<text text-anchor=\"end\" x=\"104\" y=\"%u\">rank %u</text>", y, rank);
        cdp__text_add(t, "<text x=\"416\" y=\"%u\">rank %u</text>\n", y, rank);
    }
}

CDP__DT void cdp__dt_flow_title(cdp__text *t, const cdp__dt_flow *f) {
    cdp__dt_add_places(t, &f->stage->from);
    cdp__text_add(t, " to ");
    cdp__dt_add_places(t, &f->stage->to);
    if (f->stage->pair.from.terms > 1)
        cdp__text_add(t, f->terms ? ", contributions to owners" : ", results from owners");
}

/* Draws one phase of all ranks; `top`: where it begins. Returns whether it has messages. */
CDP__DT bool cdp__dt_flow_draw(
    cdp__dt_flow *f, cdp_draw_format format, uint32_t phase, uint32_t top) {
    const uint32_t n = f->stage->pair.nodes;
    uint64_t total = 0;
    memset(f->bytes, 0, (size_t)n * n * sizeof *f->bytes);
    cdp__dt_flow_all(f, cdp__dt_flow_sum);
    for (uint64_t i = 0; i < (uint64_t)n * n; ++i)
        total += f->bytes[i];
    if (!total) return false;
    if (format == CDP_DRAW_SVG) {
        cdp__text_add(f->text, "<text x=\"10\" y=\"%u\">%u. ", top, phase);
        cdp__dt_flow_title(f->text, f);
        cdp__text_add(f->text, ": %llu bytes</text>\n", (unsigned long long)total);
        cdp__dt_flow_svg(f->text, f, top + 22);
        return true;
    }
    cdp__text_add(f->text, "  %u. ", phase);
    cdp__dt_flow_title(f->text, f);
    cdp__text_add(f->text, ": %llu bytes\n", (unsigned long long)total);
    if (n <= 16) cdp__dt_flow_matrix(f->text, f);
    f->shown = 0;
    f->most = 64;
    cdp__dt_flow_all(f, cdp__dt_flow_line);
    if (f->shown > f->most) cdp__text_add(f->text, "    and %u more\n", f->shown - f->most);
    return true;
}

/* ---- stages that run as collectives: who sends to whom is the group's choice ---- */

CDP__DT bool cdp__dt_called(const cdp__dt_stage *s) {
    return s->single.kind || s->sum.terms;
}

CDP__DT uint64_t cdp__dt_called_bytes(const cdp__dt_flow *f, uint32_t node) {
    const cdp__dt_single *s = &f->stage->single;
    uint64_t count = 0;
    cdp__dt_region box;
    if (s->kind) {
        (void)cdp__dt_row_count(&f->stage->pair, s, cdp__dt_single_first(s, node), &count);
        return cdp__dt_single_recv(s, node, count) * f->plan->elem;
    }
    const uint64_t n = cdp__dt_held(&f->stage->pair.from, node, &box);
    const cdp__dt_calls calls = cdp__dt_sum_calls(&f->stage->pair.from, &f->stage->sum, node, n);
    for (uint32_t k = 0; k < calls.count; ++k)
        count += cdp__dt_call_recv(&calls.call[k]);
    return count * f->plan->elem;
}

/* The names of the collectives of a stage; `between` them. */
CDP__DT void cdp__dt_called_names(const cdp__dt_flow *f, const char *between) {
    const cdp__dt_stage *s = f->stage;
    if (s->single.kind) cdp__text_add(f->text, "%s", cdp_coll_name(s->single.kind));
    if (s->single.kind) return;
    const cdp__dt_calls calls = cdp__dt_sum_calls(&s->pair.from, &s->sum, 0, s->sum_most);
    for (uint32_t k = 0; k < calls.count; ++k)
        cdp__text_add(f->text, "%s%s", k ? between : "", cdp_coll_name(calls.call[k].kind));
}

/* Draws two columns of ranks, and between them a bar that stands for the collectives. */
CDP__DT void cdp__dt_called_svg(const cdp__dt_flow *f, uint32_t top) {
    const uint32_t n = f->plan->nodes, middle = top + 12 * (n - 1);
    cdp__text_add(f->text,
        "<path class=\"box\" stroke-width=\"3\" d=\"M260 %u V%u\"/>"
        "<text x=\"268\" y=\"%u\">",
        top - 6, top + 24 * (n - 1) + 6, middle + 4);
    cdp__dt_called_names(f, ", ");
    cdp__text_add(f->text, "</text>\n");
    for (uint32_t k = 0; k < n; ++k) {
        const uint32_t rank = cdp__dt_rank_of_node(f->stage, k), y = top + 24 * k;
        cdp__text_add(
            f->text, "<path class=\"line\" d=\"M110 %u H260 M260 %u H410\"><title>", y, y);
        cdp__text_add(f->text, "rank %u receives %llu bytes</title></path>\n", rank,
            (unsigned long long)cdp__dt_called_bytes(f, k));
        cdp__text_add(f->text, "<text text-anchor=\"end\" x=\"104\" y=\"%u\">", y + 4);
        cdp__text_add(
            f->text, "rank %u</text><text x=\"416\" y=\"%u\">rank %u</text>\n", rank, y + 4, rank);
    }
}

/* Draws a stage as number `phase`; `top`: where it begins. */
CDP__DT void cdp__dt_called_draw(
    const cdp__dt_flow *f, cdp_draw_format format, uint32_t phase, uint32_t top) {
    const bool svg = format == CDP_DRAW_SVG;
    const cdp__dt_single *one = &f->stage->single;
    if (svg)
        cdp__text_add(f->text, "<text x=\"10\" y=\"%u\">%u. ", top, phase);
    else
        cdp__text_add(f->text, "  %u. ", phase);
    cdp__dt_add_places(f->text, &f->stage->from);
    cdp__text_add(f->text, " to ");
    cdp__dt_add_places(f->text, &f->stage->to);
    cdp__text_add(f->text, one->kind ? ", one " : ", ");
    cdp__dt_called_names(f, ", ");
    if (one->kind)
        cdp__text_add(f->text, " of %s", one->by == CDP__DT_NONE ? "the group" : "each row");
    cdp__text_add(f->text, ": %llu bytes%s\n",
        (unsigned long long)cdp__dt_times_most(f->stage->cost.total, f->plan->elem),
        svg ? "</text>" : "");
    if (svg) {
        cdp__dt_called_svg(f, top + 22);
        return;
    }
    for (uint32_t k = 0; k < f->plan->nodes && k < 64; ++k)
        cdp__text_add(f->text, "    %u receives %llu bytes\n", cdp__dt_rank_of_node(f->stage, k),
            (unsigned long long)cdp__dt_called_bytes(f, k));
    if (f->plan->nodes > 64) cdp__text_add(f->text, "    and %u more\n", f->plan->nodes - 64);
}

CDP__DT void cdp__dt_called_json(const cdp__dt_flow *f, bool first) {
    cdp__text_add(f->text, "%s\n  {\"reduces\": %s, \"collective\": \"", first ? "" : ",",
        f->stage->single.kind == CDP_COLL_ALLGATHER ? "false" : "true");
    cdp__dt_called_names(f, ", ");
    cdp__text_add(f->text, "\", \"recv_bytes\": [");
    for (uint32_t k = 0; k < f->plan->nodes; ++k)
        cdp__text_add(
            f->text, k ? ", %llu" : "%llu", (unsigned long long)cdp__dt_called_bytes(f, k));
    cdp__text_add(f->text, "], \"messages\": []}");
}

/* Draws a stage from phase number `phase` on; returns the number of the next one. */
CDP__DT uint32_t cdp__dt_stage_draw(cdp__dt_flow *f, cdp_draw_format format, uint32_t phase) {
    const uint32_t high = 24 * f->plan->nodes + 40;
    if (cdp__dt_called(f->stage)) {
        cdp__dt_called_draw(f, format, phase, 60 + (phase - 1) * high);
        return phase + 1;
    }
    for (uint32_t b = 0; b < 2; ++b) {
        f->terms = b == 0;
        if (cdp__dt_flow_draw(f, format, phase, 60 + (phase - 1) * high)) ++phase;
    }
    return phase;
}

CDP__DT void cdp__dt_plan_phases(cdp__dt_flow *f, cdp_draw_format format) {
    uint32_t phase = 1;
    for (uint32_t k = 0; k < f->plan->stage_count; ++k) {
        f->stage = &f->plan->stages[k];
        phase = cdp__dt_stage_draw(f, format, phase);
    }
}

CDP__DT void cdp__dt_plan_json(cdp__dt_flow *f) {
    const cdp_plan_info *i = &f->plan->info;
    cdp__text_add(f->text, "{\"plan\": \"");
    cdp__dt_plan_head(f->text, f->plan);
    cdp__text_add(f->text,
        "\", \"total_bytes\": %llu, \"bound_bytes\": %llu, \"torch_bytes\": %llu, ",
        (unsigned long long)i->total_bytes, (unsigned long long)i->bound_bytes,
        (unsigned long long)i->torch_bytes);
    cdp__text_add(f->text, "\"phases\": [");
    for (uint32_t k = 0; k < f->plan->stage_count; ++k)
        for (uint32_t b = 0; b < 2; ++b) {
            f->stage = &f->plan->stages[k];
            if (b == 0 && cdp__dt_called(f->stage)) cdp__dt_called_json(f, k == 0);
            if (cdp__dt_called(f->stage)) continue;
            f->terms = b == 0;
            f->shown = 0;
            if (f->terms && f->stage->pair.from.terms == 1) continue;
            cdp__text_add(f->text,
                k + b && (k || f->stage->pair.from.terms > 1)
                    ? ",\n  {\"reduces\": %s, \"messages\": ["
                    : "\n  {\"reduces\": %s, \"messages\": [",
                f->terms ? "true" : "false");
            cdp__dt_flow_all(f, cdp__dt_flow_json);
            cdp__text_add(f->text, "]}");
        }
    cdp__text_add(f->text, "]}\n");
}

CDP_API uint64_t cdp_plan_draw(
    const cdp_plan *p, cdp_draw_format format, char *text, uint64_t room) {
    cdp__text t = cdp__text_of(text, room);
    cdp__dt_flow f;
    (void)cdp__text_end(&t);
    if (!p || cdp__ended(p)) return 0;
    memset(&f, 0, sizeof f);
    f.text = &t;
    f.plan = p;
    f.bytes = (uint64_t *)cdp__dt_alloc(p->os, (uint64_t)p->nodes * p->nodes * sizeof *f.bytes);
    if (!f.bytes) return 0;
    if (format == CDP_DRAW_JSON) {
        cdp__dt_plan_json(&f);
    } else if (format == CDP_DRAW_SVG) {
        cdp__svg_begin(&t, 640, 70 + p->info.steps * (24 * p->nodes + 40));
        cdp__text_add(&t, "<text x=\"10\" y=\"18\">");
        cdp__dt_plan_head(&t, p);
        cdp__text_add(&t, "</text>\n<text class=\"thin\" x=\"10\" y=\"36\">");
        cdp__dt_plan_numbers(&t, p);
        cdp__text_add(&t, "</text>\n");
        cdp__dt_plan_phases(&f, format);
        cdp__text_add(&t, "</svg>\n");
    } else {
        cdp__dt_plan_head(&t, p);
        cdp__text_add(&t, "\n  ");
        cdp__dt_plan_numbers(&t, p);
        cdp__text_add(&t, "\n");
        cdp__dt_plan_phases(&f, format);
    }
    cdp__dt_free(p->os, f.bytes);
    return cdp__text_end(&t);
}

/* ---- >>dtensor/kept: plans that a mesh keeps for cdp_redistribute() -------------------------- */

/* Knows: plans and the meshes that they lie between. Promises: a kept plan ends with either of its
   meshes; runs that are in flight at one time never share a plan; which layouts are kept is the
   same on all ranks, whatever runs are in flight on one of them. */

#include <string.h>

#define CDP__DT_KEPT 64u /* pairs of layouts; the one that was used longest ago goes first */

/* Destroys the plans in the list that are not running; the others stay in it. */
CDP__DT void cdp__dt_plans_reap(cdp_plan **list, bool all) {
    while (*list) {
        cdp_plan *p = *list;
        if (!all && cdp__dt_running(p)) {
            list = &p->spare;
            continue;
        }
        *list = p->spare;
        cdp_plan_destroy(p);
    }
}

/* Ends what is kept for one pair of layouts, which the source's list no longer holds. */
CDP__DT void cdp__dt_kept_end(cdp__dt_kept *k) {
    cdp__dt_kept **at = &k->to->kept_to;
    cdp_plan **last = &k->plan;
    while (*at != k)
        at = &(*at)->next_to;
    *at = k->next_to;
    for (; *last; last = &(*last)->spare)
        cdp__dt_plan_release(*last);
    *last = k->from->retired;
    k->from->retired = k->plan;
    cdp__dt_plans_reap(&k->from->retired, false);
    cdp__dt_free(k->from->root->os, k);
}

/* Ends all pairs of layouts from or to a mesh. */
CDP__DT void cdp__dt_kept_clear(cdp_mesh *m) {
    while (m->kept) {
        cdp__dt_kept *k = m->kept;
        m->kept = k->next;
        cdp__dt_kept_end(k);
    }
    while (m->kept_to) {
        cdp__dt_kept *k = m->kept_to, **at = &k->from->kept;
        while (*at != k)
            at = &(*at)->next;
        *at = k->next;
        cdp__dt_kept_end(k);
    }
}

CDP_API void cdp_mesh_drop_plans(cdp_mesh *m) {
    if (!cdp__dt_mesh_known(m)) return;
    cdp__dt_kept_clear(m);
    cdp__dt_scratch_trim(m->root, UINT64_MAX);
}

CDP_API void cdp_mesh_destroy(cdp_mesh *m) {
    if (!m || cdp__dt_mesh_alive(m, "cdp_mesh_destroy") != CDP_OK) return;
    cdp__dt_kept_clear(m);
    cdp__dt_plans_reap(&m->retired, true);
    cdp__dt_mesh_free(m);
}

/* Ends the pair of layouts that was used longest ago if there are too many. */
CDP__DT void cdp__dt_kept_trim(cdp_mesh *m) {
    cdp__dt_kept **at = &m->kept;
    for (uint32_t n = 0; *at && n < CDP__DT_KEPT; ++n)
        at = &(*at)->next;
    cdp__dt_plans_reap(&m->retired, false);
    if (!*at) return;
    cdp__dt_kept *last = *at;
    *at = NULL;
    cdp__dt_kept_end(last);
}

CDP__DT cdp_status cdp__dt_kept_make(
    const cdp_plan_desc *desc, const uint64_t *key, cdp_plan **out) {
    cdp_mesh *m = (cdp_mesh *)(uintptr_t)desc->from.mesh;
    cdp__dt_kept *k = (cdp__dt_kept *)cdp__dt_alloc(m->root->os, sizeof *k);
    if (!k) return cdp__dt_nomem("a plan", sizeof *k);
    const cdp_status st = cdp_plan_create(desc, &k->plan);
    if (st != CDP_OK) {
        cdp__dt_free(m->root->os, k);
        return st;
    }
    memcpy(k->key, key, sizeof k->key);
    k->from = m;
    k->to = (cdp_mesh *)(uintptr_t)desc->to.mesh;
    k->next = m->kept;
    m->kept = k;
    k->next_to = k->to->kept_to;
    k->to->kept_to = k;
    *out = k->plan;
    cdp__dt_kept_trim(m);
    return CDP_OK;
}

/* A plan of these that is not running. A spare one is made without a word to the other ranks: what
   ranks compare was compared when the first one ran. */
CDP__DT cdp_status cdp__dt_kept_idle(cdp__dt_kept *k, const cdp_plan_desc *desc, cdp_plan **out) {
    cdp_plan *p = k->plan;
    while (p && cdp__dt_running(p))
        p = p->spare;
    if (!p && cdp_group_status(cdp__dt_run_link(k->plan)->group) != CDP_OK)
        p = k->plan; /* it says why */
    *out = p;
    if (p) return CDP_OK;
    const cdp_status st = cdp_plan_create(desc, &p);
    if (st != CDP_OK) return st;
    p->compared = k->plan->compared;
    p->spare = k->plan->spare;
    k->plan->spare = p;
    *out = p;
    return CDP_OK;
}

CDP__DT bool cdp__dt_place_written_same(const cdp_place *a, const cdp_place *b) {
    return a->kind == b->kind && a->dim == b->dim && a->op == b->op && a->order == b->order
        && a->cut == b->cut && a->block == b->block;
}

/* True: two layouts are written with the same numbers, on the same mesh. No number is given
   to two cuts. */
CDP__DT bool cdp__dt_written_same(const cdp_layout *a, const cdp_layout *b) {
    if (a->mesh != b->mesh || a->dtype != b->dtype || a->ndim != b->ndim) return false;
    for (uint32_t d = 0; d < a->ndim; ++d)
        if (a->shape[d] != b->shape[d]) return false;
    for (uint32_t by = 0; by < a->mesh->desc.ndim; ++by)
        if (!cdp__dt_place_written_same(&a->place[by], &b->place[by])) return false;
    return true;
}

/* A plan that was kept for layouts that are written like these two, which were checked then; *out
   is NULL if there is none. Layouts that only mean the same are found by cdp__dt_kept_plan(). */
CDP__DT cdp_status cdp__dt_kept_found(
    const cdp_layout *from, const cdp_layout *to, cdp_plan **out) {
    cdp_mesh *m = (cdp_mesh *)(uintptr_t)from->mesh;
    *out = NULL;
    if (!m || cdp__dt_mesh_ended(m)) return CDP_OK;
    for (cdp__dt_kept **at = &m->kept; *at; at = &(*at)->next) {
        cdp__dt_kept *k = *at;
        const cdp_plan_desc *d = &k->plan->desc;
        if (d->from_one || d->to_one || !cdp__dt_written_same(&d->from, from)
            || !cdp__dt_written_same(&d->to, to))
            continue;
        if (!cdp__dt_cuts_last(from) || !cdp__dt_cuts_last(to)) return CDP_OK;
        *at = k->next;
        cdp__dt_cuts_touch(from);
        cdp__dt_cuts_touch(to);
        k->next = m->kept;
        m->kept = k;
        return cdp__dt_kept_idle(k, d, out);
    }
    return CDP_OK;
}

/* The plan for `desc`, kept or new. */
CDP__DT cdp_status cdp__dt_kept_plan(const cdp_plan_desc *desc, cdp_plan **out) {
    uint64_t key[CDP__DT_KEY_WORDS];
    const cdp_status st = cdp__dt_plan_check(desc);
    if (st != CDP_OK) return cdp__dt_plan_refused(desc, st);
    cdp__dt_cuts_touch(&desc->from);
    cdp__dt_cuts_touch(&desc->to);
    cdp_mesh *m = (cdp_mesh *)(uintptr_t)desc->from.mesh;
    cdp__dt_plan_words(desc, 0, key);
    for (cdp__dt_kept **at = &m->kept; *at; at = &(*at)->next) {
        cdp__dt_kept *k = *at;
        if (k->to != desc->to.mesh || memcmp(k->key, key, sizeof key) != 0) continue;
        *at = k->next;
        k->next = m->kept;
        m->kept = k;
        return cdp__dt_kept_idle(k, desc, out);
    }
    return cdp__dt_kept_make(desc, key, out);
}

/* ---- >>dtensor/tensors: a layout and a pointer ----------------------------------------------- */

/* Knows: tensors, and plans that the mesh keeps for them. Promises: the same redistribution is
   planned only once. */

CDP__DT cdp_status cdp__dt_tensor_check(const cdp_dtensor *t, const char *call) {
    if (!t) return cdp__dt_missing(call, "tensor");
    cdp_status st = cdp_layout_check(&t->layout);
    if (st == CDP_OK && !t->data && cdp_layout_box(&t->layout, NULL, NULL))
        st = cdp__dt_missing(call, "tensor.data");
    return st;
}

CDP__DT uint64_t cdp__dt_local_bytes(const cdp_layout *l) {
    return cdp_layout_box(l, NULL, NULL) * cdp_dtype_size(l->dtype);
}

CDP_API cdp_status cdp_dtensor_create(const cdp_layout *layout, void *data, cdp_dtensor *out) {
    if (!out) return cdp__dt_missing("cdp_dtensor_create", "out");
    memset(out, 0, sizeof *out);
    cdp_status st = cdp_layout_check(layout);
    if (st == CDP_OK && !data) st = cdp__dt_link_here(layout->mesh->all);
    if (st != CDP_OK) return st;
    const cdp__dt_root *root = layout->mesh->root;
    const uint64_t bytes = cdp__dt_local_bytes(layout);
    out->layout = *layout;
    out->layout.dtype = cdp__dt_dtype(layout);
    out->data = data;
    if (data || !bytes) return CDP_OK;
    out->data = root->group ? cdp__dt_group_memory(root->group, bytes)
                            : root->os->alloc(root->os->user, bytes);
    if (!out->data) return cdp__dt_nomem("a tensor", bytes);
    out->owned = true;
    return CDP_OK;
}

CDP_API void cdp_dtensor_free(cdp_dtensor *t) {
    if (!t) return;
    if (t->owned && !cdp__dt_has_mesh(&t->layout)) { /* nobody knows whose memory it is */
        (void)cdp__dt_mesh_refused(&t->layout, "cdp_dtensor_free");
        return;
    }
    cdp__dt_root *root = t->owned ? t->layout.mesh->root : NULL;
    if (t->owned && root->group)
        cdp__dt_retire(root, t->layout.mesh->all, t->data);
    else if (t->owned)
        cdp__dt_free(root->os, t->data);
    t->data = NULL;
    t->owned = false;
}

/* The plan that moves one tensor into another. */
CDP__DT cdp_status cdp__dt_plan_between(
    const cdp_dtensor *from, const cdp_dtensor *to, const char *call, cdp_plan **out) {
    cdp_plan_desc d;
    cdp_status st = CDP_OK;
    *out = NULL;
    if (from && to && from->data && to->data)
        st = cdp__dt_kept_found(&from->layout, &to->layout, out);
    if (st != CDP_OK || *out) return st;
    st = cdp__dt_tensor_check(from, call);
    if (st == CDP_OK) st = cdp__dt_tensor_check(to, call);
    if (st != CDP_OK) return st;
    memset(&d, 0, sizeof d);
    d.from = from->layout;
    d.to = to->layout;
    return cdp__dt_kept_plan(&d, out);
}

CDP_API cdp_status cdp_redistribute(const cdp_dtensor *from, cdp_dtensor *to) {
    cdp_plan *plan;
    const cdp_status st = cdp__dt_plan_between(from, to, "cdp_redistribute", &plan);
    return st == CDP_OK ? cdp_plan_run(plan, from->data, to->data) : st;
}

CDP_API cdp_status cdp_redistribute_async(
    const cdp_dtensor *from, cdp_dtensor *to, cdp_work *work) {
    cdp_plan *plan;
    const cdp_status st = cdp__dt_plan_between(from, to, "cdp_redistribute_async", &plan);
    return st == CDP_OK ? cdp_plan_run_async(plan, from->data, to->data, work) : st;
}

/* The layout of the same tensor, replicated on all ranks. */
CDP__DT cdp_layout cdp__dt_replicated(const cdp_layout *l) {
    cdp_layout out = *l;
    memset(out.place, 0, sizeof out.place);
    return out;
}

CDP__DT bool cdp__dt_any_partial(const cdp_layout *l) {
    for (uint32_t by = 0; by < l->mesh->desc.ndim; ++by)
        if (cdp__dt_partial(l, by)) return true;
    return false;
}

CDP_API cdp_status cdp_distribute(cdp_dtensor *t, const void *full, uint32_t source) {
    cdp_plan_desc d;
    cdp_plan *plan;
    cdp_status st = cdp__dt_tensor_check(t, "cdp_distribute");
    if (st == CDP_OK) st = cdp__dt_link_here(t->layout.mesh->all);
    if (st != CDP_OK) return st;
    if (cdp__dt_any_partial(&t->layout))
        return cdp_error_set(CDP_ERR_UNSUPPORTED, -1, 0,
            "cdp_distribute: a PARTIAL tensor cannot be cut from a whole one; use "
            "cdp_dtensor_fill");
    if (source == CDP_EACH) {
        const cdp__dt_side s = cdp__dt_side_of(&t->layout, 0);
        const cdp__dt_region all = cdp__dt_whole(&s);
        if (t->layout.mesh->me == CDP__DT_NONE || !cdp__dt_local_bytes(&t->layout)) return CDP_OK;
        if (!full) return cdp__dt_missing("cdp_distribute", "full");
        const cdp__dt_region own = cdp__dt_region_of(&s, t->layout.mesh->me);
        const cdp__dt_copy c =
            cdp__dt_copy_of(&own, &all, &own, s.ndim, cdp_dtype_size(t->layout.dtype));
        cdp__dt_copy_run(&c, t->data, full);
        return CDP_OK;
    }
    memset(&d, 0, sizeof d);
    d.from = cdp__dt_replicated(&t->layout);
    d.to = t->layout;
    d.from_one = true;
    d.root = source;
    st = cdp__dt_kept_plan(&d, &plan);
    return st == CDP_OK ? cdp_plan_run(plan, full, t->data) : st;
}

CDP_API cdp_status cdp_dtensor_full(const cdp_dtensor *t, void *full, uint32_t root) {
    cdp_plan_desc d;
    cdp_plan *plan;
    cdp_status st = cdp__dt_tensor_check(t, "cdp_dtensor_full");
    if (st != CDP_OK) return st;
    memset(&d, 0, sizeof d);
    d.from = t->layout;
    d.to = cdp__dt_replicated(&t->layout);
    d.to_one = root != CDP_EACH;
    d.root = root != CDP_EACH ? root : 0;
    st = cdp__dt_kept_plan(&d, &plan);
    return st == CDP_OK ? cdp_plan_run(plan, t->data, full) : st;
}

/* ---- >>dtensor/fill: values that depend only on the index in the whole tensor ---------------- */

/* Knows: indices in the whole tensor. Promises: values that do not depend on mesh or layout. */

/* A fill as it is carried out. low, high: the numbers of the dtype at both ends of the interval of
   UNIFORM, both within it. */
typedef struct cdp__dt_filler {
    const cdp_fill *fill;
    cdp_dtype dtype;
    double end, low, high; /* end: b, or its default */
} cdp__dt_filler;

/* The float of the dtype beside `x`, which is one itself. */
CDP__DT double cdp__dt_beside(cdp_dtype t, double x, bool up) {
    uint8_t narrow = 0;
    uint16_t half = 0;
    uint32_t single = 0;
    uint64_t wide = 0;
    void *const raw[4] = {&narrow, &half, &single, &wide};
    const uint32_t size = (uint32_t)cdp_dtype_size(t), k = size == 8 ? 3 : size / 2;
    const bool away = (x > 0) == up;
    cdp__number_put(t, raw[k], 0, x);
    if (x == 0) { /* the least positive number, or the same with the sign */
        narrow = up ? 1 : 0x81;
        half = up ? 1 : 0x8001;
        single = up ? 1 : 0x80000001u;
        wide = up ? 1 : 0x8000000000000001u;
    } else { /* bits of floats count up from zero, on either side */
        narrow = (uint8_t)(away ? narrow + 1 : narrow - 1);
        half = (uint16_t)(away ? half + 1 : half - 1);
        single = away ? single + 1 : single - 1;
        wide = away ? wide + 1 : wide - 1;
    }
    return cdp__number_get(t, raw[k], 0);
}

/* The number of the dtype that is nearest to x; the last finite one if it is beyond. */
CDP__DT double cdp__dt_nearest(cdp_dtype t, double x) {
    uint64_t room = 0;
    cdp__number_put(t, &room, 0, x);
    const double got = cdp__number_get(t, &room, 0);
    if (got - got == 0) return got;
    cdp__number_limit(t, &room, 0, x > 0);
    const double last = cdp__number_get(t, &room, 0);
    return last - last == 0 ? last : cdp__dt_beside(t, last, x < 0);
}

/* Sets the ends of the interval. */
CDP__DT cdp_status cdp__dt_filler_of(cdp__dt_filler *f, const cdp_fill *fill, cdp_dtype t) {
    const double a = fill->a, b = a == 0 && fill->b == 0 ? 1 : fill->b;
    memset(f, 0, sizeof *f);
    f->fill = fill;
    f->dtype = t;
    if (fill->kind == CDP_FILL_MASK && !(a >= 0 && a <= 1))
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_dtensor_fill: a is the probability of a mask and must be between 0 and 1");
    if (fill->kind != CDP_FILL_UNIFORM) return CDP_OK;
    f->end = b;
    if (a - a == 0 && b - b == 0 && a < b) {
        f->low = cdp__dt_nearest(t, a);
        f->high = cdp__dt_nearest(t, b);
        if (f->low < a) f->low = cdp__dt_beside(t, f->low, true);
        if (f->high >= b) f->high = cdp__dt_beside(t, f->high, false);
        if (f->low <= f->high) return CDP_OK;
    }
    return cdp_error_set(CDP_ERR_INVALID, -1, 0,
        "cdp_dtensor_fill: no number of %s is in [a, b); choose a < b further apart, both finite",
        cdp_dtype_name(t));
}

/* A number of the interval; what would be rounded out of it becomes the last one within. */
CDP__DT double cdp__dt_fill_uniform(const cdp__dt_filler *f, uint64_t index) {
    const cdp_fill *fill = f->fill;
    const double a = fill->a, width = f->end - a;
    const double u = cdp__dt_uniform(fill->seed, fill->stream, index, f->dtype == CDP_DTYPE_F64);
    const double x = width <= DBL_MAX ? a + width * u : a * (1 - u) + f->end * u;
    if (x < f->low) return f->low;
    return x > f->high ? f->high : x;
}

CDP__DT double cdp__dt_fill_value(const cdp__dt_filler *filler, uint64_t index) {
    const cdp_fill *f = filler->fill;
    const double b = f->b;
    const bool wide = filler->dtype == CDP_DTYPE_F64;
    switch (f->kind) {
    case CDP_FILL_VALUE: return f->a;
    case CDP_FILL_UNIFORM: return cdp__dt_fill_uniform(filler, index);
    case CDP_FILL_NORMAL:
        return f->a + (b == 0 ? 1 : b) * cdp__dt_normal(f->seed, f->stream, index, wide);
    case CDP_FILL_RAMP: return f->a + b * (double)index;
    case CDP_FILL_MASK: return cdp__dt_uniform(f->seed, f->stream, index, false) < f->a ? 1 : 0;
    default: return 0;
    }
}

/* Fills data[at] .. with elements `first`, first + 1, ... of the whole tensor. Ramps of 64-bit
   integers are exact. */
CDP__DT void cdp__dt_fill_run(
    const cdp__dt_filler *filler, void *data, uint64_t at, uint64_t n, uint64_t first) {
    const cdp_fill *f = filler->fill;
    const cdp_dtype t = filler->dtype;
    const bool whole = t == CDP_DTYPE_I64 || t == CDP_DTYPE_U64;
    const uint64_t a = (uint64_t)cdp__i64_of(f->a), b = (uint64_t)cdp__i64_of(f->b);
    for (uint64_t i = 0; i < n; ++i) {
        if (whole && f->kind == CDP_FILL_RAMP)
            ((uint64_t *)data)[at + i] = a + b * (first + i);
        else
            cdp__number_put(t, data, at + i, cdp__dt_fill_value(filler, first + i));
    }
}

/* Fills every element with the identity of a reduction. */
CDP__DT void cdp__dt_fill_identity(cdp_dtype t, void *data, uint64_t n, cdp_reduce_op op) {
    for (uint64_t i = 0; i < n; ++i) {
        if (op == CDP_REDUCE_MIN || op == CDP_REDUCE_MAX)
            cdp__number_limit(t, data, i, op == CDP_REDUCE_MIN);
        else
            cdp__number_put(t, data, i, op == CDP_REDUCE_PRODUCT);
    }
}

/* True if this rank holds no contribution to a filled tensor, only the identity of *op. */
CDP__DT bool cdp__dt_fill_idle(const cdp_layout *l, cdp_reduce_op *op) {
    for (uint32_t by = 0; by < l->mesh->desc.ndim; ++by) {
        *op = cdp__dt_op(&l->place[by]);
        if (cdp__dt_partial(l, by) && *op != CDP_REDUCE_AVG && cdp_mesh_coord(l->mesh, by) != 0)
            return true;
    }
    return false;
}

CDP_API cdp_status cdp_dtensor_fill(cdp_dtensor *t, const cdp_fill *f) {
    cdp_reduce_op op;
    cdp_status st = cdp__dt_tensor_check(t, "cdp_dtensor_fill");
    if (st == CDP_OK) st = cdp__dt_link_here(t->layout.mesh->all);
    if (st != CDP_OK) return st;
    if (!f) return cdp__dt_missing("cdp_dtensor_fill", "fill");
    if ((uint32_t)f->kind > CDP_FILL_MASK)
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_dtensor_fill: fill.kind %u is none of cdp_fill_kind", (unsigned)f->kind);
    const cdp_dtype d = cdp__dt_dtype(&t->layout);
    const bool random = f->kind == CDP_FILL_UNIFORM || f->kind == CDP_FILL_NORMAL;
    if (random && !cdp__dtype_is_float(d))
        return cdp_error_set(CDP_ERR_UNSUPPORTED, -1, 0,
            "cdp_dtensor_fill: %s cannot hold these values; use a float dtype", cdp_dtype_name(d));
    cdp__dt_filler filler;
    st = cdp__dt_filler_of(&filler, f, d);
    if (st != CDP_OK) return st;
    const cdp_mesh *m = t->layout.mesh;
    const uint64_t bytes = cdp__dt_local_bytes(&t->layout);
    if (!bytes) return CDP_OK;
    if (f->kind == CDP_FILL_ZERO) memset(t->data, 0, (size_t)bytes);
    if (cdp__dt_fill_idle(&t->layout, &op)) {
        cdp__dt_fill_identity(d, t->data, bytes / cdp_dtype_size(d), op);
        return CDP_OK;
    }
    if (f->kind == CDP_FILL_ZERO) return CDP_OK;
    const cdp__dt_side s = cdp__dt_side_of(&t->layout, 0);
    const cdp__dt_region own = cdp__dt_region_of(&s, m->me), all = cdp__dt_whole(&s);
    const cdp__dt_copy c = cdp__dt_copy_of(&own, &all, &own, s.ndim, 1); /* in elements */
    const uint64_t rows = c.dims ? c.count[0] : 1;
    uint64_t at[CDP__DT_DIMS] = {0}, whole = c.from_at, mine = 0;
    do
        for (uint64_t i = 0; i < rows; ++i)
            cdp__dt_fill_run(
                &filler, t->data, mine + i * c.to_step[0], c.run, whole + i * c.from_step[0]);
    while (cdp__dt_copy_next(&c, at, &whole, &mine));
    return CDP_OK;
}

/* ---- >>dtensor/agreement: layouts from pieces, and checks of replicas ------------------------ */

/* Knows: shapes and replicas of all ranks. Promises: an error names the first difference, and the
   group stays usable. */

/* The shapes of the pieces of all ranks of a mesh, by position. */
typedef struct cdp__dt_shapes {
    const cdp_mesh *mesh;
    uint32_t ndim;
    const uint64_t *of; /* CDP_TENSOR_DIMS numbers for each */
} cdp__dt_shapes;

CDP__DT cdp_status cdp__dt_shapes_differ(
    const cdp__dt_shapes *s, uint32_t dim, uint32_t a, uint32_t b) {
    return cdp_error_set(CDP_ERR_MISMATCH, (int32_t)s->mesh->ranks[b], 0,
        "cdp_layout_from_local: dimension %u has %llu elements on rank %u and %llu on rank %u; "
        "their layout says that these are equal",
        dim, (unsigned long long)s->of[(uint64_t)a * CDP_TENSOR_DIMS + dim], s->mesh->ranks[a],
        (unsigned long long)s->of[(uint64_t)b * CDP_TENSOR_DIMS + dim], s->mesh->ranks[b]);
}

/* Checks that ranks with equal coordinates in the dimensions `by` (bits) have equal sizes. */
CDP__DT cdp_status cdp__dt_shapes_equal(const cdp__dt_shapes *s, uint32_t dim, uint32_t by) {
    const cdp_mesh *m = s->mesh;
    for (uint32_t k = 0; k < m->count; ++k) {
        uint32_t first = 0;
        for (uint32_t d = 0; d < m->desc.ndim; ++d)
            if (by >> d & 1) first += k / m->stride[d] % m->desc.shape[d] * m->stride[d];
        const uint64_t a = s->of[(uint64_t)first * CDP_TENSOR_DIMS + dim];
        if (s->of[(uint64_t)k * CDP_TENSOR_DIMS + dim] != a)
            return cdp__dt_shapes_differ(s, dim, first, k);
    }
    return CDP_OK;
}

/* Joins one tensor dimension: computes its whole size, and a cut if one mesh dimension cuts it
   unevenly. */
CDP__DT cdp_status cdp__dt_shapes_join(
    const cdp__dt_shapes *s, cdp_layout *l, uint32_t dim, uint64_t *sizes) {
    cdp_mesh *m = (cdp_mesh *)(uintptr_t)s->mesh;
    uint32_t by = 0, count = 0, only = 0;
    uint64_t total = 0, start;
    for (uint32_t d = 0; d < m->desc.ndim; ++d)
        if (l->place[d].kind == CDP_PLACE_SHARD && cdp__dt_dim(l, d) == dim) {
            by |= 1u << d;
            only = d;
            ++count;
        }
    cdp_status st = cdp__dt_shapes_equal(s, dim, by);
    if (st != CDP_OK) return st;
    for (uint32_t k = 0; k < m->count; ++k) {
        bool first = true;
        for (uint32_t d = 0; d < m->desc.ndim; ++d)
            if (!(by >> d & 1) && k / m->stride[d] % m->desc.shape[d]) first = false;
        if (first) total += s->of[(uint64_t)k * CDP_TENSOR_DIMS + dim];
    }
    l->shape[dim] = total;
    if (count != 1) return CDP_OK;
    const uint32_t n = m->desc.shape[only];
    const uint64_t block = cdp__max(l->place[only].block, 1);
    bool even = true;
    for (uint32_t i = 0; i < n; ++i) {
        sizes[i] = s->of[(uint64_t)i * m->stride[only] * CDP_TENSOR_DIMS + dim];
        even = even && sizes[i] == cdp__dt_chunk(total, block, n, i, &start);
    }
    l->place[only].cut = 0;
    return even ? CDP_OK : cdp__dt_cut_of(m, only, sizes, true, &l->place[only].cut);
}

/* Checks that the layout found gives every rank the shape of its piece. */
CDP__DT cdp_status cdp__dt_shapes_fit(const cdp__dt_shapes *s, const cdp_layout *l) {
    const cdp__dt_side side = cdp__dt_side_of(l, 0);
    for (uint32_t k = 0; k < s->mesh->count; ++k) {
        const cdp__dt_region r = cdp__dt_region_of(&side, k);
        for (uint32_t d = 0; d < l->ndim; ++d) {
            const uint64_t has = s->of[(uint64_t)k * CDP_TENSOR_DIMS + d];
            if (has == r.size[d]) continue;
            return cdp_error_set(CDP_ERR_UNSUPPORTED, -1, 0,
                "cdp_layout_from_local: dimension %u, sharded by several mesh dimensions, has %llu "
                "elements on rank %u; the chunk rule gives %llu",
                d, (unsigned long long)has, s->mesh->ranks[k], (unsigned long long)r.size[d]);
        }
    }
    return CDP_OK;
}

CDP__DT cdp_status cdp__dt_from_local(
    cdp_mesh *m, cdp_layout *l, const uint64_t *local_shape, uint64_t *memory) {
    uint64_t own[CDP_TENSOR_DIMS] = {0};
    cdp__dt_shapes s;
    s.mesh = m;
    s.ndim = l->ndim;
    s.of = memory;
    for (uint32_t d = 0; d < l->ndim; ++d)
        own[d] = local_shape[d];
    cdp_status st = cdp_allgather(m->all->group, own, memory, CDP_TENSOR_DIMS, CDP_DTYPE_U64);
    for (uint32_t d = 0; st == CDP_OK && d < l->ndim; ++d)
        st = cdp__dt_shapes_join(&s, l, d, memory + (uint64_t)m->count * CDP_TENSOR_DIMS);
    if (st == CDP_OK) st = cdp_layout_check(l);
    return st == CDP_OK ? cdp__dt_shapes_fit(&s, l) : st;
}

CDP_API cdp_status cdp_layout_from_local(cdp_mesh *m, cdp_layout *l, const uint64_t *local_shape) {
    if (!m) return cdp__dt_missing("cdp_layout_from_local", "mesh");
    if (!l) return cdp__dt_missing("cdp_layout_from_local", "layout");
    if (l->ndim && !local_shape) return cdp__dt_missing("cdp_layout_from_local", "local_shape");
    l->mesh = m;
    for (uint32_t d = 0; d < CDP_TENSOR_DIMS; ++d)
        l->shape[d] = 0;
    for (uint32_t by = 0; by < m->desc.ndim; ++by)
        l->place[by].cut = 0;
    cdp_status st = cdp_layout_check(l);
    if (st != CDP_OK) return st;
    if (!m->root->group)
        return cdp_error_set(CDP_ERR_STATE, -1, 0, "cdp_layout_from_local: the mesh is on paper");
    if (!m->all) return CDP_OK;
    const uint64_t bytes = (uint64_t)m->count * (CDP_TENSOR_DIMS + 1) * 8;
    uint64_t *memory = (uint64_t *)cdp__dt_alloc(m->root->os, bytes);
    if (!memory) return cdp__dt_nomem("cdp_layout_from_local", bytes);
    st = cdp__dt_from_local(m, l, local_shape, memory);
    cdp__dt_free(m->root->os, memory);
    return st;
}

CDP__DT uint64_t cdp__dt_hash_bytes(const void *data, uint64_t bytes) {
    const uint8_t *at = (const uint8_t *)data;
    uint64_t h = bytes, word;
    for (; bytes >= 8; bytes -= 8, at += 8) {
        memcpy(&word, at, 8);
        h = (h ^ word) * 0x9e3779b97f4a7c15u;
        h ^= h >> 29;
    }
    for (; bytes; --bytes, ++at)
        h = (h ^ *at) * 0x9e3779b97f4a7c15u;
    return h ^ h >> 32;
}

/* The position whose replica a position must equal: coordinate 0 in all dimensions in which the
   tensor is replicated. */
CDP__DT uint32_t cdp__dt_original(const cdp__dt_side *s, uint32_t position) {
    uint32_t at = 0;
    for (uint32_t d = 0; d < s->dims; ++d)
        if (s->role[d] != CDP__DT_SAME) at += cdp__dt_digit(s, position, d) * s->stride[d];
    return at;
}

/* Sends the original to the replicas that differ from it; a replica receives it in `other`. */
CDP__DT cdp_status cdp__dt_check_exchange(
    cdp_dtensor *t, const cdp__dt_side *s, const uint64_t *hash, void *other) {
    const cdp_mesh *m = t->layout.mesh;
    const cdp_os *os = m->root->os;
    const uint64_t bytes = cdp__dt_local_bytes(&t->layout);
    cdp_transfer *list = (cdp_transfer *)cdp__dt_alloc(os, m->count * sizeof *list);
    cdp_work work;
    cdp_status st = CDP_OK;
    uint32_t n = 0;
    if (!list) return cdp__dt_nomem("cdp_dtensor_check", m->count * sizeof *list);
    for (uint32_t k = 0; k < m->count; ++k) {
        const uint32_t first = cdp__dt_original(s, k);
        if (hash[k] == hash[first] || (k != m->me && first != m->me)) continue;
        list[n].receive = k == m->me;
        list[n].data = k == m->me ? other : t->data;
        list[n].count = bytes;
        list[n].dtype = CDP_DTYPE_U8;
        list[n].peer = k == m->me ? first : k;
        list[n++].tag = CDP__DT_TAG + 2;
    }
    if (n) st = cdp_batch(m->all->group, list, n, &work);
    if (n && st == CDP_OK) st = cdp_work_wait(work);
    cdp__dt_free(os, list);
    return st;
}

/* The index in the whole tensor of the first element that differs; UINT64_MAX: none. */
CDP__DT uint64_t cdp__dt_first_difference(const cdp_dtensor *t, const void *other) {
    const uint64_t elem = cdp_dtype_size(t->layout.dtype);
    const uint64_t n = cdp_layout_box(&t->layout, NULL, NULL);
    const uint8_t *a = (const uint8_t *)t->data, *b = (const uint8_t *)other;
    cdp_box box;
    uint64_t i = 0, index = 0, step = 1;
    while (i < n && memcmp(a + i * elem, b + i * elem, (size_t)elem) == 0)
        ++i;
    if (i == n) return UINT64_MAX;
    (void)cdp_layout_box(&t->layout, NULL, &box);
    for (uint32_t d = t->layout.ndim; d-- > 0; step *= t->layout.shape[d]) {
        index += (box.start[d] + i % box.size[d]) * step;
        i /= box.size[d];
    }
    return index;
}

CDP__DT cdp_status cdp__dt_element_differs(
    const cdp_layout *l, uint64_t index, uint32_t original, uint32_t rank) {
    char text[160];
    cdp__text t = cdp__text_of(text, sizeof text);
    uint64_t step = 1, rest = index;
    for (uint32_t d = 0; d < l->ndim; ++d)
        step *= l->shape[d];
    for (uint32_t d = 0; d < l->ndim; ++d) {
        step /= l->shape[d];
        cdp__text_add(&t, d ? ",%llu" : "%llu", (unsigned long long)(rest / step));
        rest %= step;
    }
    (void)cdp__text_end(&t);
    return cdp_error_set(CDP_ERR_MISMATCH, (int32_t)rank, 0,
        "cdp_dtensor_check: replicas differ: element [%s] is not the same on ranks %u and %u", text,
        original, rank);
}

/* Compares replicas with the original byte by byte if hashes differ; all ranks get the first
   difference. */
CDP__DT cdp_status cdp__dt_check_replicas(
    cdp_dtensor *t, const cdp__dt_side *s, uint64_t *all, bool repair) {
    const cdp_mesh *m = t->layout.mesh;
    const uint64_t bytes = cdp__dt_local_bytes(&t->layout);
    const bool differs = all[m->me] != all[cdp__dt_original(s, m->me)];
    uint64_t first = UINT64_MAX;
    void *other = differs ? m->root->os->alloc(m->root->os->user, bytes) : NULL;
    if (differs && !other) return cdp__dt_nomem("cdp_dtensor_check", bytes);
    cdp_status st = cdp__dt_check_exchange(t, s, all, other);
    if (st == CDP_OK && differs) first = cdp__dt_first_difference(t, other);
    if (st == CDP_OK && differs && repair) memcpy(t->data, other, (size_t)bytes);
    cdp__dt_free(m->root->os, other);
    if (st != CDP_OK || repair) return st;
    st = cdp_allgather(m->all->group, &first, all, 1, CDP_DTYPE_U64);
    for (uint32_t k = 0; st == CDP_OK && k < m->count; ++k)
        if (all[k] != UINT64_MAX)
            return cdp__dt_element_differs(
                &t->layout, all[k], m->ranks[cdp__dt_original(s, k)], m->ranks[k]);
    return st;
}

CDP__DT cdp_status cdp__dt_check_layouts(const cdp_dtensor *t) {
    const cdp_mesh *m = t->layout.mesh;
    uint64_t words[CDP__DT_LAYOUT_WORDS], values[2];
    uint32_t rank, word;
    char name[48];
    cdp__dt_layout_words(&t->layout, words);
    const cdp_status st = cdp__dt_agree(
        m->all->group, m->root->os, words, CDP__DT_LAYOUT_WORDS, &rank, &word, values);
    if (st != CDP_OK || rank == CDP__DT_NONE) return st;
    cdp__text text = cdp__text_of(name, sizeof name);
    const bool plain = cdp__dt_layout_word_name(word, &text);
    (void)cdp__text_end(&text);
    return cdp__dt_words_differ("cdp_dtensor_check: layouts differ", plain ? values : NULL, name,
        m->ranks[0], m->ranks[rank]);
}

CDP_API cdp_status cdp_dtensor_check(cdp_dtensor *t, bool repair) {
    cdp_status st = cdp__dt_tensor_check(t, "cdp_dtensor_check");
    if (st != CDP_OK) return st;
    const cdp_mesh *m = t->layout.mesh;
    if (!m->root->group)
        return cdp_error_set(CDP_ERR_STATE, -1, 0, "cdp_dtensor_check: the mesh is on paper");
    if (!m->all) return CDP_OK;
    st = cdp__dt_check_layouts(t);
    if (st != CDP_OK) return st;
    const cdp__dt_side s = cdp__dt_side_of(&t->layout, 0);
    const uint64_t hash = cdp__dt_hash_bytes(t->data, cdp__dt_local_bytes(&t->layout));
    uint64_t *all = (uint64_t *)cdp__dt_alloc(m->root->os, m->count * sizeof *all);
    bool equal = true;
    if (!all) return cdp__dt_nomem("cdp_dtensor_check", m->count * sizeof *all);
    st = cdp_allgather(m->all->group, &hash, all, 1, CDP_DTYPE_U64);
    for (uint32_t k = 0; st == CDP_OK && k < m->count; ++k)
        equal = equal && all[k] == all[cdp__dt_original(&s, k)];
    if (st == CDP_OK && !equal) st = cdp__dt_check_replicas(t, &s, all, repair);
    cdp__dt_free(m->root->os, all);
    return st;
}

#if !defined(CDP_NO_DDP) && !defined(CDP_NO_CLIP)
CDP_API cdp_status cdp_norm_item_of(const cdp_dtensor *t, cdp_norm_item *out) {
    if (!out) return cdp__dt_missing("cdp_norm_item_of", "out");
    memset(out, 0, sizeof *out);
    const cdp_status st = cdp__dt_tensor_check(t, "cdp_norm_item_of");
    if (st != CDP_OK) return st;
    const cdp_mesh *m = t->layout.mesh;
    for (uint32_t d = 0; d < m->desc.ndim; ++d)
        if (t->layout.place[d].kind == CDP_PLACE_PARTIAL)
            return cdp_error_set(CDP_ERR_INVALID, -1, 0,
                "cdp_norm_item_of: the gradient is partial over '%s'; redistribute it first",
                m->names[d]);
    out->grad = t->data;
    out->dtype = cdp__dt_dtype(&t->layout);
    if (m->me == CDP__DT_NONE) return CDP_OK;
    const cdp__dt_side s = cdp__dt_side_of(&t->layout, 0);
    out->count = cdp_layout_box(&t->layout, NULL, NULL);
    out->copy = cdp__dt_original(&s, m->me) != m->me;
    return CDP_OK;
}
#endif

/* ---- >>dtensor/edges: plans with the plans of their gradients -------------------------------- */

/* Knows: a plan forward and a plan backward. Promises: backward is the adjoint of forward. */

/* One direction: a plan, casts to and from the dtype of its messages, and a division of the
   result. */
typedef struct cdp__dt_way {
    cdp_plan *plan;
    cdp_dtype dtype, wire;
    uint64_t in_elements, out_elements, divisor;
    void *in_wire, *out_wire; /* NULL: no cast */
    void *out;                /* of an asynchronous run */
} cdp__dt_way;

struct cdp_edge {
    cdp_edge_desc desc;
    const cdp_os *os;
    cdp__dt_way forward, backward;
};

CDP__DT cdp_layout cdp__dt_gradient_of(const cdp_layout *l) {
    cdp_layout out = *l;
    for (uint32_t by = 0; by < l->mesh->desc.ndim; ++by)
        if (cdp__dt_partial(l, by)) cdp__dt_replicate(&out, by);
    return out;
}

CDP__DT cdp_status cdp__dt_edge_partial(const cdp_layout *l, bool gradient) {
    for (uint32_t by = 0; by < l->mesh->desc.ndim; ++by) {
        const cdp_reduce_op op = cdp__dt_op(&l->place[by]);
        if (!cdp__dt_partial(l, by) || op == CDP_REDUCE_SUM) continue;
        if (op == CDP_REDUCE_AVG && !gradient) continue;
        return cdp_error_set(CDP_ERR_UNSUPPORTED, -1, 0,
            "cdp_edge_create: PARTIAL (%s) has no linear gradient; reduce it with a plan first",
            cdp_reduce_name(op));
    }
    return CDP_OK;
}

CDP__DT cdp_status cdp__dt_way_make(cdp__dt_way *w, const cdp_layout *from, const cdp_layout *to,
    cdp_dtype wire, const cdp_net *net) {
    cdp_plan_desc d;
    memset(&d, 0, sizeof d);
    d.from = *from;
    d.to = *to;
    d.kind = CDP_PLAN_DIRECT;
    d.net = *net;
    w->dtype = cdp__dt_dtype(from);
    w->wire = wire == CDP_DTYPE_DEFAULT ? w->dtype : wire;
    if (w->wire != w->dtype && (!cdp__dtype_is_float(w->wire) || !cdp__dtype_is_float(w->dtype)))
        return cdp_error_set(CDP_ERR_UNSUPPORTED, -1, 0,
            "cdp_edge_create: %s cannot travel as %s; a wire dtype is for floats",
            cdp_dtype_name(w->dtype), cdp_dtype_name(wire));
    d.from.dtype = d.to.dtype = w->wire;
    cdp_status st = cdp_plan_create(&d, &w->plan);
    if (st != CDP_OK) return st;
    const uint64_t size = cdp_dtype_size(w->wire);
    w->in_elements = w->plan->in_bytes / size;
    w->out_elements = w->plan->out_bytes / size;
    w->divisor = 1;
    if (w->wire == w->dtype || !w->plan->group) return CDP_OK;
    st = cdp__dt_link_here(cdp__dt_run_link(w->plan));
    if (st != CDP_OK) return st;
    w->in_wire = cdp__dt_group_memory(w->plan->group, w->plan->in_bytes + 1);
    w->out_wire = cdp__dt_group_memory(w->plan->group, w->plan->out_bytes + 1);
    if (!w->in_wire || !w->out_wire)
        return cdp__dt_nomem("an edge", w->plan->in_bytes + w->plan->out_bytes);
    return CDP_OK;
}

CDP__DT void cdp__dt_way_free(cdp__dt_way *w) {
    if (!w->plan) return;
    if (cdp__dt_mesh_known(w->plan->mesh)) { /* else the group keeps them */
        cdp__dt_retire(w->plan->mesh->root, cdp__dt_run_link(w->plan), w->in_wire);
        cdp__dt_retire(w->plan->mesh->root, cdp__dt_run_link(w->plan), w->out_wire);
    }
    cdp_plan_destroy(w->plan);
}

CDP_API void cdp_edge_destroy(cdp_edge *e) {
    if (!e || cdp__dt_alive(e, "cdp_edge_destroy", "edge") != CDP_OK) return;
    cdp__ended_add(e);
    cdp__dt_way_free(&e->forward);
    cdp__dt_way_free(&e->backward);
    cdp__dt_free(e->os, e);
}

CDP__DT cdp_status cdp__dt_edge_fill(cdp_edge *e) {
    cdp_edge_desc *d = &e->desc;
    if (!d->grad_in.mesh) d->grad_in = cdp__dt_gradient_of(&d->to);
    if (!d->grad_out.mesh) d->grad_out = cdp__dt_gradient_of(&d->from);
    cdp_status st = cdp_layout_check(&d->grad_in);
    if (st == CDP_OK) st = cdp_layout_check(&d->grad_out);
    if (st == CDP_OK) st = cdp__dt_edge_partial(&d->from, false);
    if (st == CDP_OK) st = cdp__dt_edge_partial(&d->to, false);
    if (st == CDP_OK) st = cdp__dt_edge_partial(&d->grad_in, true);
    if (st == CDP_OK) st = cdp__dt_edge_partial(&d->grad_out, true);
    if (st == CDP_OK && !cdp__dt_shape_same(&d->from, &d->grad_in))
        st = cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_edge_create: grad_in must have the shape and dtype of `to`");
    if (st == CDP_OK) st = cdp__dt_way_make(&e->forward, &d->from, &d->to, d->wire, &d->net);
    if (st == CDP_OK)
        st = cdp__dt_way_make(&e->backward, &d->grad_in, &d->grad_out, d->grad_wire, &d->net);
    if (st != CDP_OK) return st;
    e->backward.divisor = e->forward.plan->stages[0].divisor;
    e->backward.plan->backward = true;
    return CDP_OK;
}

CDP_API cdp_status cdp_edge_create(const cdp_edge_desc *desc, cdp_edge **out) {
    if (!out) return cdp__dt_missing("cdp_edge_create", "out");
    *out = NULL;
    if (!desc) return cdp__dt_missing("cdp_edge_create", "desc");
    cdp_status st = cdp_layout_check(&desc->from);
    if (st == CDP_OK) st = cdp_layout_check(&desc->to);
    if (st != CDP_OK) return st;
    const cdp_os *os = desc->from.mesh->root->os;
    cdp_edge *e = (cdp_edge *)cdp__dt_alloc(os, sizeof *e);
    cdp__ended_remove(e);
    if (!e) return cdp__dt_nomem("an edge", sizeof *e);
    e->os = os;
    e->desc = *desc;
    st = cdp__dt_edge_fill(e);
    if (st != CDP_OK) {
        cdp_edge_destroy(e);
        return st;
    }
    *out = e;
    return CDP_OK;
}

/* Returns the input after the cast; below, the buffer of the result. */
CDP__DT const void *cdp__dt_way_in(cdp__dt_way *w, const void *in) {
    if (!w->in_wire || !in) return in;
    cdp__convert(w->dtype, in, w->wire, w->in_wire, w->in_elements);
    return w->in_wire;
}

CDP__DT void cdp__dt_way_out(const cdp__dt_way *w, void *out) {
    if (w->out_wire && out) cdp__convert(w->wire, w->out_wire, w->dtype, out, w->out_elements);
    if (w->divisor > 1 && out) cdp__divide(w->dtype, out, w->out_elements, (uint32_t)w->divisor);
}

/* Before a cast, which writes to memory of a group. */
CDP__DT cdp_status cdp__dt_way_here(const cdp__dt_way *w) {
    if (!w->in_wire || !cdp__dt_mesh_known(w->plan->mesh)) return CDP_OK;
    return cdp__dt_link_here(cdp__dt_run_link(w->plan));
}

CDP__DT cdp_status cdp__dt_way_run(cdp__dt_way *w, const void *in, void *out) {
    cdp_status st = cdp__dt_way_here(w);
    if (st != CDP_OK) return st;
    const void *from = cdp__dt_way_in(w, in);
    st = cdp_plan_run(w->plan, from, w->out_wire ? w->out_wire : out);
    if (st == CDP_OK) cdp__dt_way_out(w, out);
    return st;
}

CDP__DT cdp_status cdp__dt_way_done(void *user, cdp_status status) {
    const cdp__dt_way *w = (const cdp__dt_way *)user;
    if (status == CDP_OK) cdp__dt_way_out(w, w->out);
    return CDP_OK;
}

CDP__DT cdp_status cdp__dt_way_start(cdp__dt_way *w, const void *in, void *out, cdp_work *work) {
    cdp_work moved;
    if (!work) return cdp__dt_missing("cdp_edge", "work");
    memset(work, 0, sizeof *work);
    cdp_status st = cdp__dt_way_here(w);
    if (st != CDP_OK) return st;
    const void *from = cdp__dt_way_in(w, in);
    st = cdp_plan_run_async(w->plan, from, w->out_wire ? w->out_wire : out, &moved);
    *work = moved;
    if (st != CDP_OK || (!w->out_wire && w->divisor == 1)) return st;
    w->out = out;
    if (moved.seq) return cdp_work_then(moved, cdp__dt_way_done, w, work);
    return cdp__dt_way_done(w, CDP_OK);
}

CDP_API cdp_status cdp_edge_forward(cdp_edge *e, const void *x, void *y) {
    const cdp_status st = cdp__dt_alive(e, "cdp_edge_forward", "edge");
    return st == CDP_OK ? cdp__dt_way_run(&e->forward, x, y) : st;
}

CDP_API cdp_status cdp_edge_backward(cdp_edge *e, const void *grad_y, void *grad_x) {
    const cdp_status st = cdp__dt_alive(e, "cdp_edge_backward", "edge");
    return st == CDP_OK ? cdp__dt_way_run(&e->backward, grad_y, grad_x) : st;
}

CDP_API cdp_status cdp_edge_forward_async(cdp_edge *e, const void *x, void *y, cdp_work *work) {
    const cdp_status st = cdp__dt_alive(e, "cdp_edge_forward_async", "edge");
    return st == CDP_OK ? cdp__dt_way_start(&e->forward, x, y, work) : st;
}

CDP_API cdp_status cdp_edge_backward_async(
    cdp_edge *e, const void *grad_y, void *grad_x, cdp_work *work) {
    const cdp_status st = cdp__dt_alive(e, "cdp_edge_backward_async", "edge");
    return st == CDP_OK ? cdp__dt_way_start(&e->backward, grad_y, grad_x, work) : st;
}

CDP_API cdp_plan_info cdp_edge_info(const cdp_edge *e, bool backward) {
    if (!e || cdp__ended(e)) return cdp_plan_info_of(NULL);
    return cdp_plan_info_of(backward ? e->backward.plan : e->forward.plan);
}

CDP_API const cdp_edge_desc *cdp_edge_desc_of(const cdp_edge *e) {
    return e && !cdp__ended(e) ? &e->desc : NULL;
}

typedef struct cdp__dt_feed {
    cdp_status (*piece)(void *user, const cdp_box *box);
    void *user;
    uint32_t ndim;
    cdp_status status; /* of the first piece that failed */
} cdp__dt_feed;

CDP__DT void cdp__dt_feed_piece(cdp__dt_feed *f, const cdp__dt_region *region) {
    cdp_box box;
    if (f->status != CDP_OK) return;
    (void)cdp__dt_box_out(region, f->ndim, &box);
    f->status = f->piece(f->user, &box);
}

/* The number of receives in one batch: each batch takes one of the group's max_pending places. */
CDP__DT uint32_t cdp__dt_feed_step(const cdp_plan *p, const cdp__dt_phase *ph) {
    const uint32_t places = cdp_group_desc_of(p->group)->max_pending / 4;
    bool rows = false;
    for (uint32_t i = 0; i < ph->recvs; ++i)
        rows = rows || ph->recv[i].rows;
    if (!rows) return 0;
    return places ? ph->recvs / places + 1 : ph->recvs;
}

/* Posts receives one by one, so that each can be used while others are in flight. Only batches
   can receive into rows; if there are more receives than places for batches, several share one. */
CDP__DT cdp_status cdp__dt_feed_post(cdp_plan *p, const cdp__dt_phase *ph, cdp_work *works) {
    const uint32_t step = cdp__dt_feed_step(p, ph);
    cdp_status st = CDP_OK;
    uint32_t i, k;
    for (i = 0; st == CDP_OK && !step && i < ph->recvs; ++i) {
        cdp__dt_transfer(p, &p->list[0], &ph->recv[i], true);
        st = cdp_recv_async(p->group, p->list[0].data, p->list[0].count, p->dtype, p->list[0].peer,
            CDP__DT_TAG, &works[i]);
    }
    for (i = 0; st == CDP_OK && step && i < ph->recvs; i += k) {
        for (k = 0; k < step && i + k < ph->recvs; ++k) {
            cdp__dt_transfer(p, &p->list[k], &ph->recv[i + k], true);
            works[i + k].group = p->group;
            works[i + k].seq = 0; /* completes with the first one of its batch */
        }
        st = cdp_batch(p->group, p->list, k, &works[i]);
    }
    return st;
}

CDP__DT cdp_status cdp__dt_feed_run(cdp_plan *p, cdp__dt_feed *f, cdp_work *works) {
    const cdp__dt_phase *ph = &p->phases[0];
    cdp_work sent = {NULL, 0};
    cdp_status st;
    uint32_t i;
    cdp__dt_pack(p, ph);
    st = cdp__dt_feed_post(p, ph, works);
    for (i = 0; i < ph->sends; ++i)
        cdp__dt_transfer(p, &p->list[i], &ph->send[i], false);
    if (st == CDP_OK && ph->sends) st = cdp_batch(p->group, p->list, ph->sends, &sent);
    for (i = 0; st == CDP_OK && i < ph->locals; ++i) {
        cdp__dt_copy_piece(p, &ph->here[i]);
        cdp__dt_feed_piece(f, &ph->here[i].region);
    }
    for (i = 0; st == CDP_OK && i < ph->recvs; ++i) {
        if (works[i].seq) st = cdp_work_wait(works[i]);
        if (st != CDP_OK) break;
        cdp__dt_unpack(p, &ph->recv[i]);
        cdp__dt_feed_piece(f, &ph->recv[i].region);
    }
    if (st == CDP_OK && sent.seq) st = cdp_work_wait(sent);
    return st;
}

CDP__DT cdp_status cdp__dt_feed_whole(cdp_edge *e, const void *x, void *y, cdp__dt_feed *f) {
    cdp__dt_region own;
    const cdp_status st = cdp__dt_way_run(&e->forward, x, y);
    const cdp__dt_stage *s = &e->forward.plan->stages[0];
    if (st != CDP_OK || e->forward.plan->node == CDP__DT_NONE) return st;
    if (cdp__dt_held(&s->host_to, e->forward.plan->node, &own)) cdp__dt_feed_piece(f, &own);
    return f->status;
}

CDP_API cdp_status cdp_edge_forward_pieces(cdp_edge *e, const void *x, void *y,
    cdp_status (*piece)(void *user, const cdp_box *box), void *user) {
    cdp__dt_feed f;
    bool ready;
    cdp_status st = cdp__dt_alive(e, "cdp_edge_forward_pieces", "edge");
    if (st != CDP_OK) return st;
    if (!piece) return cdp__dt_missing("cdp_edge_forward_pieces", "piece");
    cdp_plan *p = e->forward.plan;
    f.piece = piece;
    f.user = user;
    f.ndim = e->desc.to.ndim;
    f.status = CDP_OK;
    if (p->acts || p->phase_count != 1 || p->phases[0].zero || e->forward.out_wire)
        return cdp__dt_feed_whole(e, x, y, &f);
    st = cdp__dt_run_begin(p, x, y, &ready);
    if (st != CDP_OK || !ready) return st;
    const uint64_t bytes = (p->phases[0].recvs + 1ull) * sizeof(cdp_work);
    cdp_work *works = (cdp_work *)cdp__dt_alloc(p->os, bytes);
    st = works ? cdp__dt_feed_run(p, &f, works) : cdp__dt_nomem("cdp_edge_forward_pieces", bytes);
    cdp__dt_free(p->os, works);
    cdp__dt_scratch_give(p, false);
    return st == CDP_OK ? f.status : st;
}

/* ---- >>dtensor/operators: rules, one dimension of a mesh at a time --------------------------- */

/* Knows: shapes of operands, and placements. Promises: if the inputs are placed according to a
   rule, applying the operator to the pieces gives the pieces of the result, for every size, even
   or not. A rule is for one dimension of a mesh; rules of several dimensions can be combined if
   dimensions that cut the same dimension of a tensor follow the same rule
   (cdp__dt_rules_agree()). */

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

/* ---- >>dtensor/operators_special: lookups, losses, attention, views -------------------------- */

/* Knows: what operators knows, and the inputs of each operator. Promises: cdp_op_rules(). */

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

/* ---- >>dtensor/chooser: the cheapest rules --------------------------------------------------- */

/* Knows: rules, and the cost of a redistribution. Promises: cdp_op_choose(). */

#ifndef CDP_NO_TENSOR_OPS

#define CDP__DT_CANDIDATES 256u /* most rules of one mesh dimension, each with its blocks */
#define CDP__DT_COMBINATIONS 4096u

typedef struct cdp__dt_choice {
    const cdp_layout *have, *want;
    uint32_t in_count, dims, count[CDP_MESH_DIMS], at[CDP_MESH_DIMS];
    cdp_rule *rules[CDP_MESH_DIMS]; /* candidates of each dimension */
    cdp_layout out;                 /* mesh, dtype and shape of the result */
    cdp_net net;
    cdp_op_choice now, best;
    bool found;
} cdp__dt_choice;

/* Copies order, cut and blocks of `like` to the placements of `rule`, if `like` has the
   placements that `as` asks for. */
CDP__DT bool cdp__dt_adopt(
    cdp_rule *rule, const cdp_place *as, const cdp_place *like, uint32_t ndim, uint32_t in_count) {
    const int32_t own = as->dim < 0 ? as->dim + (int32_t)ndim : as->dim;
    const int32_t there = like->dim < 0 ? like->dim + (int32_t)ndim : like->dim;
    if (as->kind != CDP_PLACE_SHARD || like->kind != CDP_PLACE_SHARD || own != there) return false;
    const uint64_t unit = cdp__max(as->block, 1), block = cdp__max(like->block, 1);
    const uint64_t times = cdp__dt_multiple(unit, block) / unit;
    bool plain = true;
    if (!times) return false;
    for (uint32_t k = 0; k <= in_count; ++k)
        plain = plain && (k == in_count ? rule->out.block : rule->in[k].block) <= 1;
    for (uint32_t k = 0; k <= in_count; ++k) {
        cdp_place *p = k == in_count ? &rule->out : &rule->in[k];
        if (p->kind != CDP_PLACE_SHARD) continue;
        p->block = cdp__max(p->block, 1) * times;
        p->order = like->order;
        p->cut = plain ? like->cut : 0;
    }
    return true;
}

CDP__DT void cdp__dt_candidate(cdp__dt_choice *c, uint32_t by, const cdp_rule *rule) {
    for (uint32_t i = 0; i < c->count[by]; ++i)
        if (memcmp(&c->rules[by][i], rule, sizeof *rule) == 0) return;
    if (c->count[by] < CDP__DT_CANDIDATES) c->rules[by][c->count[by]++] = *rule;
}

/* Adds a rule as it is, and variants with the blocks that the inputs, and the wanted result,
   have. */
CDP__DT void cdp__dt_candidates(cdp__dt_choice *c, uint32_t by, const cdp_rule *rule) {
    cdp_rule r;
    for (uint32_t k = 0; k < c->in_count; ++k) {
        r = *rule;
        if (cdp__dt_adopt(&r, &rule->in[k], &c->have[k].place[by], c->have[k].ndim, c->in_count))
            cdp__dt_candidate(c, by, &r);
    }
    r = *rule;
    if (c->want && cdp__dt_adopt(&r, &rule->out, &c->want->place[by], c->want->ndim, c->in_count))
        cdp__dt_candidate(c, by, &r);
    cdp__dt_candidate(c, by, rule);
}

/* True if the placements can be combined: one kind of PARTIAL, nested blocks, no second cut
   beside one of the program. */
CDP__DT bool cdp__dt_places_fit(const cdp_layout *l) {
    cdp_reduce_op kind = CDP_REDUCE_DEFAULT;
    for (uint32_t a = 0; a < l->mesh->desc.ndim; ++a) {
        const cdp_place *p = &l->place[a];
        cdp_reduce_op op = cdp__dt_op(p);
        if (op == CDP_REDUCE_AVG) op = CDP_REDUCE_SUM;
        if (p->kind == CDP_PLACE_PARTIAL && kind != CDP_REDUCE_DEFAULT && kind != op) return false;
        if (p->kind == CDP_PLACE_PARTIAL && !cdp__dt_reduces(l->dtype, cdp__dt_op(p))) return false;
        if (p->kind == CDP_PLACE_PARTIAL) kind = op;
        for (uint32_t b = 0; b < l->mesh->desc.ndim; ++b) {
            const cdp_place *q = &l->place[b];
            const bool both = p->kind == CDP_PLACE_SHARD && q->kind == CDP_PLACE_SHARD;
            if (a == b || !both || cdp__dt_dim(l, a) != cdp__dt_dim(l, b)) continue;
            const bool first = p->order < q->order || (p->order == q->order && a < b);
            if (p->cut || (first && cdp__max(p->block, 1) % cdp__max(q->block, 1))) return false;
        }
    }
    return true;
}

/* True if `to` can be reached: a target is PARTIAL only where the source is, with the same op. A
   shard is not turned into a sum to satisfy a rule, because that is free now but costs more
   later. */
CDP__DT bool cdp__dt_reaches(const cdp_layout *from, const cdp_layout *to) {
    for (uint32_t by = 0; by < to->mesh->desc.ndim; ++by) {
        if (!cdp__dt_partial(to, by)) continue;
        const cdp_reduce_op op = cdp__dt_op(&to->place[by]);
        if (!cdp__dt_partial(from, by) || cdp__dt_op(&from->place[by]) != op) return false;
    }
    return true;
}

/* Adds the cost of changing a tensor from one layout to another; false: not possible. */
CDP__DT bool cdp__dt_add_cost(cdp__dt_choice *c, const cdp_layout *from, const cdp_layout *to) {
    cdp__dt_stage s;
    const cdp_layout a = cdp__dt_plain(from), b = cdp__dt_plain(to);
    const uint64_t elem = cdp_dtype_size(a.dtype);
    if (!cdp__dt_places_fit(&b) || !cdp__dt_reaches(&a, &b)) return false;
    if (cdp_layout_same(&a, &b)) return true;
    if (cdp__dt_stage_make(&s, a.mesh->root->os, &a, &b, CDP__DT_NONE, CDP__DT_NONE) != CDP_OK)
        return false;
    cdp__dt_stage_single(&s);
    c->now.bytes += s.cost.total * elem;
    c->now.predicted_us += cdp__dt_stage_us(&s, &c->net, elem);
    return true;
}

CDP__DT bool cdp__dt_choice_fits(const cdp__dt_choice *c) {
    const cdp_layout *t[CDP_OP_INPUTS + 1];
    bool fits = cdp__dt_places_fit(&c->now.out);
    for (uint32_t k = 0; k < c->in_count; ++k)
        t[k] = &c->now.in[k];
    t[c->in_count] = &c->now.out;
    for (uint32_t a = 0; a < c->dims; ++a)
        for (uint32_t b = 0; b < a; ++b)
            fits = fits && cdp__dt_rules_agree(t, c->in_count, a, b);
    return fits;
}

/* Computes the cost of the candidates at[], and keeps them if it is the lowest so far. */
CDP__DT bool cdp__dt_try(cdp__dt_choice *c) {
    bool possible;
    memset(&c->now, 0, sizeof c->now);
    for (uint32_t k = 0; k < c->in_count; ++k)
        c->now.in[k] = c->have[k];
    c->now.out = c->out;
    for (uint32_t by = 0; by < c->dims; ++by) {
        const cdp_rule *rule = &c->rules[by][c->at[by]];
        for (uint32_t k = 0; k < c->in_count; ++k)
            c->now.in[k].place[by] = rule->in[k];
        c->now.out.place[by] = rule->out;
        c->now.flags[by] = rule->flags;
    }
    possible = cdp__dt_choice_fits(c);
    for (uint32_t k = 0; possible && k < c->in_count; ++k)
        possible = cdp__dt_add_cost(c, &c->have[k], &c->now.in[k]);
    if (possible && c->want) possible = cdp__dt_add_cost(c, &c->now.out, c->want);
    const bool equal = c->found && c->now.bytes == c->best.bytes;
    const bool cheaper = !c->found || c->now.bytes < c->best.bytes
        || (equal && c->now.predicted_us < c->best.predicted_us);
    if (!possible || !cheaper) return false;
    c->best = c->now;
    c->found = true;
    return true;
}

/* Tries all combinations, the last dimension varying fastest. */
CDP__DT void cdp__dt_try_all(cdp__dt_choice *c) {
    for (;;) {
        uint32_t by = c->dims;
        (void)cdp__dt_try(c);
        while (by > 0 && ++c->at[by - 1] == c->count[by - 1])
            c->at[--by] = 0;
        if (!by) return;
    }
}

/* Finds the cheapest candidate of each dimension separately, with the inputs unchanged in the
   others. */
CDP__DT void cdp__dt_try_apart(cdp__dt_choice *c) {
    for (uint32_t by = 0; by < c->dims; ++by) {
        uint64_t least = UINT64_MAX;
        for (uint32_t i = 0; i < c->count[by]; ++i) {
            bool possible = true;
            c->now.bytes = 0;
            for (uint32_t k = 0; possible && k < c->in_count; ++k) {
                cdp_layout need = c->have[k];
                need.place[by] = c->rules[by][i].in[k];
                possible = cdp__dt_add_cost(c, &c->have[k], &need);
            }
            if (!possible || c->now.bytes >= least) continue;
            least = c->now.bytes;
            c->at[by] = i;
        }
    }
}

/* Improves one dimension after the other, until a round improves nothing. */
CDP__DT void cdp__dt_try_each(cdp__dt_choice *c) {
    bool better = true;
    (void)cdp__dt_try(c); /* everything replicated */
    cdp__dt_try_apart(c);
    if (!cdp__dt_try(c)) memset(c->at, 0, sizeof c->at);
    while (better) {
        better = false;
        for (uint32_t by = 0; by < c->dims; ++by) {
            uint32_t kept = c->at[by];
            for (c->at[by] = 0; c->at[by] < c->count[by]; ++c->at[by])
                if (cdp__dt_try(c)) {
                    kept = c->at[by];
                    better = true;
                }
            c->at[by] = kept;
        }
    }
}

CDP__DT cdp_status cdp__dt_choose(cdp__dt_choice *c, const cdp_op *op, cdp_rule *memory) {
    cdp__dt_rules r;
    uint64_t combinations = 1;
    memset(&r, 0, sizeof r);
    r.out = memory;
    r.max = CDP__DT_CANDIDATES;
    cdp_status st = cdp__dt_rules_of(op, c->have, c->in_count, &r, &c->out);
    if (st == CDP_OK && r.n > CDP__DT_CANDIDATES)
        st = cdp__dt_op_wrong("rules", "there are more than 256 of them", 0);
    if (st == CDP_OK && c->want && !cdp__dt_shape_same(c->want, &c->out))
        st = cdp__dt_op_wrong("want", "its shape or dtype is not that of the result", 0);
    if (st != CDP_OK) return st;
    for (uint32_t by = 0; by < c->dims; ++by) {
        c->rules[by] = memory + (by + 1) * CDP__DT_CANDIDATES;
        for (uint32_t i = 0; i < r.n; ++i)
            cdp__dt_candidates(c, by, &memory[i]);
        combinations *= c->count[by];
    }
    if (combinations <= CDP__DT_COMBINATIONS)
        cdp__dt_try_all(c);
    else
        cdp__dt_try_each(c);
    if (c->found) return CDP_OK;
    return cdp_error_set(CDP_ERR_UNSUPPORTED, -1, 0,
        "cdp_op_choose: no rule of the operator leads from these inputs to the wanted result; a "
        "result is PARTIAL only where its inputs make it so");
}

CDP_API cdp_status cdp_op_choose(const cdp_op *op, const cdp_layout *have, uint32_t in_count,
    const cdp_layout *want, const cdp_net *net, cdp_op_choice *out) {
    cdp__dt_choice c;
    cdp__dt_op_kind kind;
    cdp_net none;
    if (!out) return cdp__dt_missing("cdp_op_choose", "out");
    cdp_status st = cdp__dt_op_check(op, have, in_count, &kind);
    for (uint32_t k = 0; st == CDP_OK && k < in_count; ++k)
        st = cdp_layout_check(&have[k]);
    if (st == CDP_OK && want) st = cdp_layout_check(want);
    if (st != CDP_OK) return st;
    if (want && !cdp__dt_mesh_same(want->mesh, have->mesh))
        return cdp__dt_op_wrong(kind.name, "the wanted result is on another mesh", 0);
    memset(&none, 0, sizeof none);
    memset(&c, 0, sizeof c);
    c.have = have;
    c.want = want;
    c.in_count = in_count;
    c.dims = have->mesh->desc.ndim;
    c.net = cdp__dt_net_of(net ? net : &none);
    const cdp_os *os = have->mesh->root->os;
    const uint64_t bytes = (c.dims + 1ull) * CDP__DT_CANDIDATES * sizeof(cdp_rule);
    cdp_rule *memory = (cdp_rule *)cdp__dt_alloc(os, bytes);
    if (!memory) return cdp__dt_nomem("cdp_op_choose", bytes);
    st = cdp__dt_choose(&c, op, memory);
    cdp__dt_free(os, memory);
    if (st == CDP_OK) *out = c.best;
    return st;
}

#endif /* CDP_NO_TENSOR_OPS */

/* ---- >>dtensor/rows: exponentials, largest numbers and sums of rows (pure) ------------------- */

/* Knows: contiguous f32 and f64. Promises: NaN and infinity come out as they do of exp(), of a
   comparison and of a sum; loops of a constant number of elements, which compilers vectorise. */

#ifndef CDP_NO_TENSOR_OPS

#define CDP__DT_ROW 64u   /* elements whose exponentials are computed in one loop */
#define CDP__DT_LANES 16u /* sums that do not depend on each other */

/* The series of e^r for |r| <= log(2) / 2, to the digits of the type. */
CDP__DT float cdp__dt_exp_f32_series(float r) {
    float e = 1.98412698e-4f; /* 1 / 7! */
    e = e * r + 1.38888889e-3f;
    e = e * r + 8.33333333e-3f;
    e = e * r + 4.16666667e-2f;
    e = e * r + 1.66666667e-1f;
    e = e * r + 0.5f;
    e = e * r + 1;
    return e * r + 1;
}
CDP__DT double cdp__dt_exp_f64_series(double r) {
    double e = 1.6059043836821613e-10; /* 1 / 13! */
    e = e * r + 2.08767569878681e-09;
    e = e * r + 2.505210838544172e-08;
    e = e * r + 2.755731922398589e-07;
    e = e * r + 2.7557319223985893e-06;
    e = e * r + 2.48015873015873e-05;
    e = e * r + 0.0001984126984126984;
    e = e * r + 0.001388888888888889;
    e = e * r + 0.008333333333333333;
    e = e * r + 0.041666666666666664;
    e = e * r + 0.16666666666666666;
    e = e * r + 0.5;
    e = e * r + 1;
    return e * r + 1;
}
/* e^x of a number in the range of T: x = k log 2 + r, a series in r, times 2^k in two factors,
   because 2^128 is no float. LN2 and REST: log 2 in two parts. */
#define CDP__DT_EXP(S, T, U, LN2, REST, BIAS, DIGITS)                                              \
    CDP__DT T cdp__dt_exp_##S##_within(T x) {                                                      \
        const int32_t k = (int32_t)(x * (T)1.44269504088896340736 + (T)(BIAS + 2.5)) - (BIAS + 2); \
        const T r = (x - (T)k * LN2) - (T)k * REST;                                                \
        const U some = (U)(k / 2 + BIAS) << DIGITS, rest = (U)(k - k / 2 + BIAS) << DIGITS;        \
        T a, b;                                                                                    \
        memcpy(&a, &some, sizeof a);                                                               \
        memcpy(&b, &rest, sizeof b);                                                               \
        return cdp__dt_exp_##S##_series(r) * a * b;                                                \
    }
CDP__DT_EXP(f32, float, uint32_t, 0.693145752f, 1.42860677e-6f, 127, 23)
CDP__DT_EXP(f64, double, uint64_t, 0.693147180369123816490, 1.90821492927058770002e-10, 1023, 52)
#undef CDP__DT_EXP

/* exps: to[i] = exp(x[i] - less); `to` may be x. Below LOW, where T loses digits, it is 0; from
   HIGH on it is infinite. One choice a loop, because compilers vectorise no others. most: the
   largest number, a NaN if one is, -infinity of none. total: the sum. */
#define CDP__DT_ROWS(S, T, LOW, HIGH)                                                       \
    CDP__DT void cdp__dt_exps_some_##S(T *to, const T *from, T less) {                      \
        T v[CDP__DT_ROW], x[CDP__DT_ROW];                                                   \
        CDP__SHORT_LOOP                                                                     \
        for (uint32_t i = 0; i < CDP__DT_ROW; ++i) {                                        \
            v[i] = from[i] - less;                                                          \
        }                                                                                   \
        CDP__SHORT_LOOP                                                                     \
        for (uint32_t i = 0; i < CDP__DT_ROW; ++i) {                                        \
            x[i] = v[i] > LOW ? v[i] : LOW;                                                 \
        }                                                                                   \
        CDP__SHORT_LOOP                                                                     \
        for (uint32_t i = 0; i < CDP__DT_ROW; ++i) {                                        \
            x[i] = x[i] < HIGH ? x[i] : HIGH;                                               \
        }                                                                                   \
        CDP__SHORT_LOOP                                                                     \
        for (uint32_t i = 0; i < CDP__DT_ROW; ++i) {                                        \
            x[i] = cdp__dt_exp_##S##_within(x[i]);                                          \
        }                                                                                   \
        CDP__SHORT_LOOP                                                                     \
        for (uint32_t i = 0; i < CDP__DT_ROW; ++i) {                                        \
            x[i] = v[i] < LOW ? 0 : x[i];                                                   \
        }                                                                                   \
        CDP__SHORT_LOOP                                                                     \
        for (uint32_t i = 0; i < CDP__DT_ROW; ++i) {                                        \
            x[i] = v[i] != v[i] ? v[i] : x[i];                                              \
        }                                                                                   \
        memcpy(to, x, sizeof x);                                                            \
    }                                                                                       \
    CDP__DT void cdp__dt_exps_##S(T *to, const T *x, uint64_t n, T less) {                  \
        const uint64_t rest = n % CDP__DT_ROW;                                              \
        T some[CDP__DT_ROW] = {0};                                                          \
        for (uint64_t i = 0; i + CDP__DT_ROW <= n; i += CDP__DT_ROW)                        \
            cdp__dt_exps_some_##S(to + i, x + i, less);                                     \
        if (!rest) return;                                                                  \
        memcpy(some, x + n - rest, (size_t)rest * sizeof *x);                               \
        cdp__dt_exps_some_##S(some, some, less);                                            \
        memcpy(to + n - rest, some, (size_t)rest * sizeof *x);                              \
    }                                                                                       \
    CDP__DT T cdp__dt_most_##S(const T *x, uint64_t n) {                                    \
        T lane[CDP__DT_LANES], most = -(T)INFINITY;                                         \
        uint64_t i = 0;                                                                     \
        for (uint32_t d = 0; d < CDP__DT_LANES; ++d)                                        \
            lane[d] = most;                                                                 \
        for (; i + CDP__DT_LANES <= n; i += CDP__DT_LANES) {                                \
            const T *from = x + i;                                                          \
            CDP__SHORT_LOOP                                                                 \
            for (uint32_t d = 0; d < CDP__DT_LANES; ++d) {                                  \
                lane[d] = ((from[d] > lane[d]) | (from[d] != from[d])) ? from[d] : lane[d]; \
            }                                                                               \
        }                                                                                   \
        for (; i < n; ++i)                                                                  \
            lane[0] = ((x[i] > lane[0]) | (x[i] != x[i])) ? x[i] : lane[0];                 \
        for (uint32_t d = 0; d < CDP__DT_LANES; ++d)                                        \
            most = ((lane[d] > most) | (lane[d] != lane[d])) ? lane[d] : most;              \
        return most;                                                                        \
    }                                                                                       \
    CDP__DT double cdp__dt_total_##S(const T *x, uint64_t n) {                              \
        double sum = 0;                                                                     \
        for (uint64_t i = 0, end; i < n; i = end) {                                         \
            T lane[CDP__DT_LANES] = {0};                                                    \
            end = cdp__min(n, i + 4 * CDP__DT_ROW);                                         \
            for (; i + CDP__DT_LANES <= end; i += CDP__DT_LANES) {                          \
                const T *from = x + i;                                                      \
                CDP__SHORT_LOOP                                                             \
                for (uint32_t d = 0; d < CDP__DT_LANES; ++d) {                              \
                    lane[d] += from[d];                                                     \
                }                                                                           \
            }                                                                               \
            for (; i < end; ++i)                                                            \
                lane[i % CDP__DT_LANES] += x[i];                                            \
            for (uint32_t d = 0; d < CDP__DT_LANES; ++d)                                    \
                sum += (double)lane[d];                                                     \
        }                                                                                   \
        return sum;                                                                         \
    }                                                                                       \
    CDP__DT void cdp__dt_times_all_##S(T *x, uint64_t n, T factor) {                        \
        for (uint64_t i = 0; i < n; ++i)                                                    \
            x[i] *= factor;                                                                 \
    }
CDP__DT_ROWS(f32, float, -87.3365448f, 89.0f)
CDP__DT_ROWS(f64, double, -708.0, 710.0)
#undef CDP__DT_ROWS

CDP__DT double cdp__dt_exp(double x) {
    if (!(x >= -708)) return x < 0 ? 0 : x; /* keeps NaN */
    return cdp__dt_exp_f64_within(x < 710 ? x : 710);
}

#endif /* CDP_NO_TENSOR_OPS */

/* ---- >>dtensor/products: plain loops over local arrays (pure) -------------------------------- */

/* Knows: contiguous row-major arrays of f32, f64, i32 and i64. Promises: each element of a product
   is summed over k in ascending order, so a piece of a product has the same bits as in the
   whole. */

#ifndef CDP_NO_TENSOR_OPS

/* Columns of b that are multiplied together, as many bytes as eight sums of vectors take. */
#if defined(__AVX__) || defined(__aarch64__)
#define CDP__DT_PANEL_BYTES 64u
#else
#define CDP__DT_PANEL_BYTES 32u
#endif
#define CDP__DT_PANEL 128u /* rows of a, and products of a sum, per block: both stay in a cache */

/* c = a b, or c + a b: element (i, s) of a is a[i * a_row + s * a_next], element (s, j) of b is
   b[s * b_next + j * b_col], element (i, j) of c is c[i * c_row + j]. */
typedef struct cdp__dt_strides {
    uint64_t m, n, k, a_row, a_next, b_next, b_col, c_row;
    bool add;
} cdp__dt_strides;

/* NAME_four adds to four rows of sums: x is the first element of each row of a, b a panel. */
#define CDP__DT_GEMM(NAME, T)                                                                     \
    enum {                                                                                        \
        NAME##_width = CDP__DT_PANEL_BYTES / sizeof(T)                                            \
    };                                                                                            \
    CDP__DT void NAME##_four(uint64_t k, const T *const *x, uint64_t next, const T *b, T *sums) { \
        const T *x0 = x[0], *x1 = x[1], *x2 = x[2], *x3 = x[3];                                   \
        T s0[NAME##_width], s1[NAME##_width], s2[NAME##_width], s3[NAME##_width];                 \
        memcpy(s0, sums, sizeof s0);                                                              \
        memcpy(s1, sums + NAME##_width, sizeof s0);                                               \
        memcpy(s2, sums + 2 * NAME##_width, sizeof s0);                                           \
        memcpy(s3, sums + 3 * NAME##_width, sizeof s0);                                           \
        for (uint64_t s = 0; s < k; ++s, b += NAME##_width) {                                     \
            const uint64_t at = s * next;                                                         \
            const T a0 = x0[at], a1 = x1[at], a2 = x2[at], a3 = x3[at];                           \
            CDP__SHORT_LOOP                                                                       \
            for (uint32_t d = 0; d < NAME##_width; ++d) {                                         \
                s0[d] = (T)(s0[d] + a0 * b[d]);                                                   \
                s1[d] = (T)(s1[d] + a1 * b[d]);                                                   \
                s2[d] = (T)(s2[d] + a2 * b[d]);                                                   \
                s3[d] = (T)(s3[d] + a3 * b[d]);                                                   \
            }                                                                                     \
        }                                                                                         \
        memcpy(sums, s0, sizeof s0);                                                              \
        memcpy(sums + NAME##_width, s1, sizeof s0);                                               \
        memcpy(sums + 2 * NAME##_width, s2, sizeof s0);                                           \
        memcpy(sums + 3 * NAME##_width, s3, sizeof s0);                                           \
    }                                                                                             \
    CDP__DT void NAME##_panel(const cdp__dt_strides *p, uint64_t s, uint64_t depth, uint64_t j,   \
        uint64_t columns, const T *b, T *panel) {                                                 \
        if (columns < NAME##_width) memset(panel, 0, (size_t)depth *CDP__DT_PANEL_BYTES);         \
        for (uint64_t i = 0; p->b_col == 1 && i < depth; ++i)                                     \
            memcpy(panel + i * NAME##_width, b + (s + i) * p->b_next + j,                         \
                (size_t)columns * sizeof *b);                                                     \
        for (uint64_t d = 0; p->b_col != 1 && d < columns; ++d)                                   \
            for (uint64_t i = 0; i < depth; ++i)                                                  \
                panel[i * NAME##_width + d] = b[(s + i) * p->b_next + (j + d) * p->b_col];        \
    }                                                                                             \
    CDP__DT void NAME##_block(const cdp__dt_strides *p, uint64_t i, uint64_t rows, uint64_t j,    \
        const T *a, const T *b, T *c) {                                                           \
        T panel[CDP__DT_PANEL * NAME##_width], sums[CDP__DT_PANEL * NAME##_width];                \
        const uint64_t columns = cdp__min(p->n - j, NAME##_width);                                \
        memset(sums, 0, (size_t)(rows + 3) / 4 * 4 * CDP__DT_PANEL_BYTES);                        \
        for (uint64_t s = 0; s < p->k; s += CDP__DT_PANEL) {                                      \
            const uint64_t depth = cdp__min(p->k - s, CDP__DT_PANEL);                             \
            NAME##_panel(p, s, depth, j, columns, b, panel);                                      \
            for (uint64_t r = 0; r < rows; r += 4) {                                              \
                const T *x[4];                                                                    \
                for (uint64_t d = 0; d < 4; ++d) /* a row that is none repeats the last one */    \
                    x[d] = a + (i + cdp__min(r + d, rows - 1)) * p->a_row + s * p->a_next;        \
                NAME##_four(depth, x, p->a_next, panel, sums + r * NAME##_width);                 \
            }                                                                                     \
        }                                                                                         \
        for (uint64_t r = 0; r < rows; ++r) {                                                     \
            T *to = c + (i + r) * p->c_row + j;                                                   \
            const T *sum = sums + r * NAME##_width;                                               \
            for (uint64_t d = 0; d < columns; ++d)                                                \
                to[d] = (T)(p->add ? to[d] + sum[d] : sum[d]);                                    \
        }                                                                                         \
    }                                                                                             \
    CDP__DT void NAME(const cdp__dt_strides *p, const T *a, const T *b, T *c) {                   \
        for (uint64_t i = 0; i < p->m; i += CDP__DT_PANEL)                                        \
            for (uint64_t j = 0; j < p->n; j += NAME##_width)                                     \
                NAME##_block(p, i, cdp__min(p->m - i, CDP__DT_PANEL), j, a, b, c);                \
    }
CDP__DT_GEMM(cdp__dt_gemm_f32, float)
CDP__DT_GEMM(cdp__dt_gemm_f64, double)
CDP__DT_GEMM(cdp__dt_gemm_i32, uint32_t)
CDP__DT_GEMM(cdp__dt_gemm_i64, uint64_t)
#undef CDP__DT_GEMM

CDP__DT bool cdp__dt_plain_dtype(cdp_dtype t) {
    return t == CDP_DTYPE_F32 || t == CDP_DTYPE_F64 || t == CDP_DTYPE_I32 || t == CDP_DTYPE_I64;
}

CDP__DT void cdp__dt_gemm_of(
    cdp_dtype t, const cdp__dt_strides *p, const void *a, const void *b, void *c) {
    if (t == CDP_DTYPE_F64)
        cdp__dt_gemm_f64(p, (const double *)a, (const double *)b, (double *)c);
    else if (t == CDP_DTYPE_I32)
        cdp__dt_gemm_i32(p, (const uint32_t *)a, (const uint32_t *)b, (uint32_t *)c);
    else if (t == CDP_DTYPE_I64)
        cdp__dt_gemm_i64(p, (const uint64_t *)a, (const uint64_t *)b, (uint64_t *)c);
    else
        cdp__dt_gemm_f32(p, (const float *)a, (const float *)b, (float *)c);
}

/* As cdp_blas.gemm. */
CDP__DT void cdp__dt_gemm(cdp_dtype t, bool ta, bool tb, uint64_t m, uint64_t n, uint64_t k,
    const void *a, const void *b, bool add, void *c) {
    const cdp__dt_strides p = {m, n, k, ta ? 1 : k, ta ? m : 1, tb ? 1 : n, tb ? k : 1, n, add};
    cdp__dt_gemm_of(t, &p, a, b, c);
}

/* Adds n numbers to others. */
CDP__DT void cdp__dt_plus(cdp_dtype t, void *to, const void *from, uint64_t n) {
    cdp__reduce(t, CDP_REDUCE_SUM, false, to, from, n);
}

/* Every row of y [rows, n] plus bias[first .. first + n - 1]. */
CDP__DT void cdp__dt_add_bias(
    cdp_dtype t, void *y, uint64_t rows, uint64_t n, const void *bias, uint64_t first) {
    const uint64_t elem = cdp_dtype_size(t);
    for (uint64_t i = 0; i < rows; ++i)
        cdp__dt_plus(t, (uint8_t *)y + i * n * elem, (const uint8_t *)bias + first * elem, n);
}

/* sum[j] += y[0,j] + y[1,j] + ... */
CDP__DT void cdp__dt_add_rows(cdp_dtype t, void *sum, const void *y, uint64_t rows, uint64_t n) {
    for (uint64_t i = 0; i < rows; ++i)
        cdp__dt_plus(t, sum, (const uint8_t *)y + i * n * cdp_dtype_size(t), n);
}

/* Copies rows of a table by their ids. This rank has rows first .. first + held - 1; other ids
   give rows of zeros. */
CDP__DT void cdp__dt_look_up(const int32_t *ids, uint64_t n, const void *table, uint64_t first,
    uint64_t held, uint64_t row_bytes, void *out) {
    for (uint64_t i = 0; i < n; ++i) {
        uint8_t *to = (uint8_t *)out + i * row_bytes;
        /* a huge number if the id is below `first` */
        const uint64_t id = (uint64_t)(int64_t)ids[i] - first;
        if (id < held)
            memcpy(to, (const uint8_t *)table + id * row_bytes, (size_t)row_bytes);
        else
            memset(to, 0, (size_t)row_bytes);
    }
}

/* The reverse: adds rows of a gradient to those of the table. */
CDP__DT void cdp__dt_look_up_backward(cdp_dtype t, const int32_t *ids, uint64_t n, void *table,
    uint64_t first, uint64_t held, uint64_t width, const void *grad) {
    const uint64_t row_bytes = width * cdp_dtype_size(t);
    for (uint64_t i = 0; i < n; ++i) {
        const uint64_t id = (uint64_t)(int64_t)ids[i] - first;
        if (id >= held) continue;
        cdp__dt_plus(
            t, (uint8_t *)table + id * row_bytes, (const uint8_t *)grad + i * row_bytes, width);
    }
}

/* log(x) for x >= 0; -infinity for 0. */
CDP__DT double cdp__dt_ln(double x) {
    double twos = 0;
    if (x <= 0) return -1.0 / (x * x);
    if (!(x <= 1e300)) return x;
    for (; x > 1; x *= 0.5)
        twos += 0.69314718055994530942;
    return cdp__dt_log(x) + twos;
}

#endif /* CDP_NO_TENSOR_OPS */

/* ---- >>dtensor/sharers: layers that share their x -------------------------------------------- */

/* Knows: what a layer has, and which layers use the x that it gathered. Promises: x is gathered
   once for all of them, and one sum of its gradients is sent, or the order of calls is refused; no
   layer touches one that was destroyed. */

#ifndef CDP_NO_TENSOR_OPS

struct cdp_tp {
    cdp_tp_desc desc;
    cdp_place input, output;
    const cdp_os *os;
    cdp__dt_root *root;
    cdp_tp_layouts l;
    cdp_edge *in, *out, *weight, *bias; /* the last two: sums of gradients, SEQUENCE alone */
    bool in_same, out_same;             /* x is used as it is; y is made as it is */
    bool gathered;                      /* `used` holds x of the last forward */
    void *used;
    void *made, *grad_used, *sums, *sums_out; /* in `room`, during a call */
    cdp__dt_scratch *room;
    uint64_t room_bytes;
    cdp_tp *of;             /* whose `in`, `used` and `sum` this layer uses; NULL: its own */
    cdp_tp *sharers, *next; /* those that use what this one has; the next of them */
    bool lost;              /* `of` was destroyed */
    const void *x;          /* what `used` is of */
    void *sum;              /* of the gradients of x; NULL: nobody shares x, or wants a gradient */
    uint32_t sharer_count, summed; /* of sharers, those that ran backward in this turn */
    uint32_t turn;  /* it ends with backward; of a sharer: that of `of` in which it ran backward */
    uint32_t begun; /* the turn in which backward has begun to add to gradients */
};

CDP__DT cdp_status cdp__dt_tp_wrong(const char *why) {
    return cdp_error_set(CDP_ERR_INVALID, -1, 0, "cdp_tp_create: %s", why);
}

/* The layer that gathers x. */
CDP__DT cdp_tp *cdp__dt_tp_gatherer(cdp_tp *tp) {
    return tp->of ? tp->of : tp;
}

/* Before memory is allocated, which may be that of a layer that was destroyed. */
CDP__DT cdp_status cdp__dt_tp_has_gatherer(const cdp_tp_desc *d) {
    if (!d->x_of || (!cdp__ended(d->x_of) && !d->x_of->lost)) return CDP_OK;
    return cdp_error_set(CDP_ERR_STATE, -1, 0,
        "cdp_tp_create: the layer desc.x_of, or the one that has its x, was destroyed");
}

/* The first member in which layers differ that want to share x; NULL: none. */
CDP__DT const char *cdp__dt_tp_differs(const cdp_tp *a, const cdp_tp *b) {
    const cdp_tp_desc *d = &a->desc, *e = &b->desc;
    if (d->mesh != e->mesh) return "mesh";
    if (d->style != e->style) return "style";
    if (d->embedding != e->embedding) return "embedding";
    if (d->rows != e->rows) return "rows";
    if (d->in_features != e->in_features) return "in_features";
    if (d->dtype != e->dtype) return "dtype";
    if (d->wire != e->wire) return "wire";
    if (d->gather_again != e->gather_again) return "gather_again";
    if (d->no_grad_x != e->no_grad_x) return "no_grad_x";
    if (d->grad_x_partial != e->grad_x_partial) return "grad_x_partial";
    return cdp_layout_same(&a->l.x, &b->l.x) ? NULL : "input";
}

/* Finds the layer whose x this one shares, and the memory for the sum of their gradients. */
CDP__DT cdp_status cdp__dt_tp_share(cdp_tp *tp) {
    cdp_tp *const of = cdp__dt_tp_gatherer(tp->desc.x_of);
    if (tp->desc.style != CDP_TP_COLUMN || tp->desc.embedding)
        return cdp__dt_tp_wrong("x_of is for COLUMN without a table");
    const char *differs = cdp__dt_tp_differs(tp, of);
    if (differs)
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_tp_create: %s differs from that of x_of; layers that share x have it alike",
            differs);
    const uint64_t bytes = cdp__dt_local_bytes(&tp->l.used) + 1;
    const bool room = tp->desc.mesh->all && !tp->desc.no_grad_x && !of->sum;
    if (room) of->sum = cdp__dt_group_memory(tp->desc.mesh->all->group, bytes);
    if (room && !of->sum) return cdp__dt_nomem("a tensor-parallel layer", bytes);
    tp->of = of;
    tp->in = of->in;
    return CDP_OK;
}

/* Counts a new layer among those that share x. */
CDP__DT void cdp__dt_tp_join(cdp_tp *tp) {
    cdp_tp *const of = tp->of;
    tp->turn = of ? 0 : 1;
    if (!of) return;
    tp->next = of->sharers;
    of->sharers = tp;
    ++of->sharer_count;
}

/* A layer that is destroyed leaves those that share x, and they leave it. */
CDP__DT void cdp__dt_tp_part_from(cdp_tp *tp) {
    cdp_tp **at = tp->of ? &tp->of->sharers : NULL;
    while (at && *at && *at != tp)
        at = &(*at)->next;
    if (at && *at) {
        *at = tp->next;
        --tp->of->sharer_count;
        if (tp->turn == tp->of->turn) --tp->of->summed;
    }
    for (cdp_tp *s = tp->sharers; s; s = s->next) {
        s->of = NULL;
        s->in = NULL;
        s->lost = true;
    }
}

CDP__DT cdp_status cdp__dt_tp_not_alone(const cdp_tp *tp, const char *call) {
    if (!tp->lost) return CDP_OK;
    return cdp_error_set(CDP_ERR_STATE, -1, 0,
        "%s: the layer x_of of this one was destroyed; destroy it after all that share its x",
        call);
}

/* A new turn: no gradient is summed. */
CDP__DT void cdp__dt_tp_anew(cdp_tp *tp) {
    ++tp->turn;
    tp->summed = 0;
}

/* A layer that gathers has x. */
CDP__DT void cdp__dt_tp_has(cdp_tp *tp, const void *x) {
    tp->gathered = true;
    tp->x = x;
    cdp__dt_tp_anew(tp);
}

CDP__DT void cdp__dt_tp_ran_back(cdp_tp *tp) {
    if (!tp->of) {
        cdp__dt_tp_anew(tp);
        return;
    }
    tp->turn = tp->of->turn;
    ++tp->of->summed;
}

/* Refuses a forward before that of x_of, or with another x. */
CDP__DT cdp_status cdp__dt_tp_forward_order(const cdp_tp *tp, const void *x) {
    if (!tp->of) return CDP_OK;
    if (!tp->of->gathered)
        return cdp_error_set(CDP_ERR_STATE, -1, 0,
            "cdp_tp_forward: the layer x_of has no x yet; call its forward before");
    if (tp->of->x == x) return CDP_OK;
    return cdp_error_set(CDP_ERR_INVALID, -1, 0,
        "cdp_tp_forward: x is not that of the last forward of x_of; pass the same array");
}

/* Backward of a layer that shares x adds to gradients from here on. */
CDP__DT void cdp__dt_tp_adds(cdp_tp *tp) {
    tp->begun = cdp__dt_tp_gatherer(tp)->turn;
}

/* Refuses a backward of x_of before that of a sharer, one of a sharer too many, and the second try
   of one that has failed: it would add to the sum again. */
CDP__DT cdp_status cdp__dt_tp_backward_order(const cdp_tp *tp) {
    if (tp->of && tp->turn == tp->of->turn)
        return cdp_error_set(CDP_ERR_STATE, -1, 0,
            "cdp_tp_backward: this layer ran backward already; that of x_of is next");
    if ((tp->of && tp->begun == tp->of->turn) || (tp->sharer_count && tp->begun == tp->turn))
        return cdp_error_set(CDP_ERR_STATE, -1, 0,
            "cdp_tp_backward: the last call failed after it had added to gradients, which layers "
            "that share x sum; clear the gradients, and begin again with the forward of x_of");
    if (tp->summed == tp->sharer_count) return CDP_OK;
    return cdp_error_set(CDP_ERR_STATE, -1, 0,
        "cdp_tp_backward: %u of the %u layers that share x ran backward; this one is the last",
        tp->summed, tp->sharer_count);
}

#endif /* CDP_NO_TENSOR_OPS */

/* ---- >>dtensor/styles: layers whose parameters are cut --------------------------------------- */

/* Knows: one linear layer or table, and the two edges around its product. Promises: forward and
   backward are those of the whole layer; each parameter's gradient has the layout of the
   parameter. */

#ifndef CDP_NO_TENSOR_OPS

CDP__DT cdp_status cdp__dt_tp_check(const cdp_tp_desc *d) {
    if (!d->mesh) return cdp__dt_missing("cdp_tp_create", "desc.mesh");
    if (cdp__dt_mesh_ended(d->mesh)) return cdp__dt_mesh_alive(d->mesh, "cdp_tp_create");
    if (d->mesh->desc.ndim != 1)
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_tp_create: the mesh has %u dimensions; take one of them by cdp_mesh_sub()",
            d->mesh->desc.ndim);
    if ((uint32_t)d->style > CDP_TP_SEQUENCE)
        return cdp__dt_tp_wrong("style is none of cdp_tp_style");
    if (!d->rows || !d->in_features || !d->out_features)
        return cdp__dt_tp_wrong("rows, in_features or out_features is 0; set all three");
    if (d->embedding && d->in_features > 0x7fffffffu)
        return cdp__dt_tp_wrong("in_features of a table must fit an i32 id");
    if (d->output && d->output->kind == CDP_PLACE_PARTIAL)
        return cdp__dt_tp_wrong("output is PARTIAL; use R, or S0 to keep some of the rows");
    if (d->grad_x_partial
        && (d->style != CDP_TP_COLUMN || (d->input && d->input->kind != CDP_PLACE_REPLICATE)))
        return cdp__dt_tp_wrong("grad_x_partial is for COLUMN with a replicated input");
    if (d->embedding && d->input && d->input->kind == CDP_PLACE_PARTIAL)
        return cdp__dt_tp_wrong("input is PARTIAL, but ids are no sum");
    if (!cdp__dtype_is_float(d->dtype) && d->wire != CDP_DTYPE_DEFAULT)
        return cdp__dt_tp_wrong("wire is set, but dtype is no float");
    if (d->embedding ? cdp_dtype_size(d->dtype) > 0 : d->blas.gemm || cdp__dt_plain_dtype(d->dtype))
        return CDP_OK;
    return cdp_error_set(CDP_ERR_UNSUPPORTED, -1, 0,
        "cdp_tp_create: there is no plain product of %s; set blas.gemm", cdp_dtype_name(d->dtype));
}

CDP__DT cdp_layout cdp__dt_tp_layout(const cdp_tp *tp, uint32_t ndim, uint64_t a, uint64_t b) {
    cdp_layout l;
    memset(&l, 0, sizeof l);
    l.mesh = tp->desc.mesh;
    l.dtype = tp->desc.dtype;
    l.ndim = ndim;
    l.shape[0] = a;
    if (ndim > 1) l.shape[1] = b;
    return l;
}

/* The layouts from the table at cdp_tp_style. */
CDP__DT void cdp__dt_tp_layouts(cdp_tp *tp) {
    const cdp_tp_desc *d = &tp->desc;
    const uint64_t in = d->in_features, out = d->out_features;
    const uint64_t head = cdp__max(d->head, 1);
    const cdp_place rows = cdp__dt_shard(0, 0), last = cdp__dt_shard(1, head);
    cdp_tp_layouts *l = &tp->l;
    l->used =
        d->embedding ? cdp__dt_tp_layout(tp, 1, d->rows, 0) : cdp__dt_tp_layout(tp, 2, d->rows, in);
    if (d->embedding) l->used.dtype = CDP_DTYPE_I32;
    l->made = cdp__dt_tp_layout(tp, 2, d->rows, out);
    l->weight =
        d->embedding ? cdp__dt_tp_layout(tp, 2, in, out) : cdp__dt_tp_layout(tp, 2, out, in);
    l->bias = cdp__dt_tp_layout(tp, 1, out, 0);
    l->x = l->used;
    l->y = l->made;
    if (d->style == CDP_TP_COLUMN) {
        l->made.place[0] = l->y.place[0] = last;
        l->weight.place[0] = d->embedding ? last : cdp__dt_shard(0, head);
        l->bias.place[0] = cdp__dt_shard(0, head);
    } else if (d->style == CDP_TP_ROW) {
        l->weight.place[0] = d->embedding ? cdp__dt_shard(0, head) : last;
        if (!d->embedding) l->used.place[0] = l->x.place[0] = last;
        l->made.place[0] = cdp__dt_sum_of(CDP_REDUCE_SUM);
    } else {
        l->used.place[0] = l->x.place[0] = l->made.place[0] = l->y.place[0] = rows;
    }
    if (d->input) l->x.place[0] = *d->input;
    if (d->output) l->y.place[0] = *d->output;
}

/* Makes an edge; its gradient arrives as a sum over all ranks if `sum` is set. */
CDP__DT cdp_status cdp__dt_tp_edge(
    const cdp_tp *tp, const cdp_layout *from, const cdp_layout *to, bool sum, cdp_edge **out) {
    cdp_edge_desc e;
    memset(&e, 0, sizeof e);
    e.from = *from;
    e.to = *to;
    if (cdp__dtype_is_float(from->dtype)) e.wire = e.grad_wire = tp->desc.wire;
    if (sum) {
        e.grad_in = *to;
        e.grad_in.place[0] = cdp__dt_sum_of(CDP_REDUCE_SUM);
        if (tp->desc.grad_x_partial) e.grad_out = e.grad_in;
    }
    return cdp_edge_create(&e, out);
}

CDP__DT cdp_status cdp__dt_tp_edges(cdp_tp *tp) {
    const cdp_tp_desc *d = &tp->desc;
    const cdp_tp_layouts *l = &tp->l;
    const bool sum = d->style == CDP_TP_COLUMN && !d->embedding;
    const uint32_t n = d->mesh->count;
    cdp_status st = cdp_layout_check(&l->x);
    if (st == CDP_OK) st = cdp_layout_check(&l->y);
    if (st == CDP_OK) st = cdp_layout_check(&l->weight);
    if (st == CDP_OK && d->x_of) st = cdp__dt_tp_share(tp);
    if (st == CDP_OK && !tp->of) st = cdp__dt_tp_edge(tp, &l->x, &l->used, sum && n > 1, &tp->in);
    if (st == CDP_OK) st = cdp__dt_tp_edge(tp, &l->made, &l->y, false, &tp->out);
    if (st != CDP_OK) return st;
    tp->in_same = cdp_layout_same(&l->x, &l->used);
    tp->out_same = cdp_layout_same(&l->made, &l->y);
    if (d->style != CDP_TP_SEQUENCE || n == 1) return CDP_OK;
    st = cdp__dt_tp_edge(tp, &l->weight, &l->weight, true, &tp->weight);
    if (st == CDP_OK && !d->embedding)
        st = cdp__dt_tp_edge(tp, &l->bias, &l->bias, true, &tp->bias);
    return st;
}

/* The arrays of a call follow one another; returns the place of the next one. */
CDP__DT void *cdp__dt_tp_part(uint8_t *room, uint64_t *at, const cdp_layout *l) {
    void *const part = room ? room + *at : NULL;
    *at += (cdp__dt_local_bytes(l) + 64) / 64 * 64;
    return part;
}

/* Places the arrays of a call in its memory. Returns how many bytes they have. */
CDP__DT uint64_t cdp__dt_tp_place(cdp_tp *tp, uint8_t *room) {
    const cdp_edge_desc *e = cdp_edge_desc_of(tp->in);
    const bool wanted = !tp->desc.no_grad_x && !tp->desc.embedding && !tp->of;
    uint64_t at = 0;
    if (!tp->out_same) tp->made = cdp__dt_tp_part(room, &at, &tp->l.made);
    if (wanted && !cdp_layout_same(&e->grad_in, &e->grad_out))
        tp->grad_used = cdp__dt_tp_part(room, &at, &tp->l.used);
    if (tp->weight) tp->sums = cdp__dt_tp_part(room, &at, &tp->l.weight);
    if (tp->weight) tp->sums_out = cdp__dt_tp_part(room, &at, &tp->l.weight);
    return at;
}

/* Takes the memory of a call, and gives it back. */
CDP__DT cdp_status cdp__dt_tp_take(cdp_tp *tp) {
    tp->room = NULL;
    if (!tp->room_bytes) return CDP_OK;
    const cdp_status st =
        cdp__dt_scratch_lend(tp->root, tp->desc.mesh->all, tp->room_bytes, &tp->room);
    if (st == CDP_OK) (void)cdp__dt_tp_place(tp, tp->room->at);
    return st;
}
CDP__DT void cdp__dt_tp_give(cdp_tp *tp) {
    cdp__dt_scratch_back(tp->room);
    tp->room = NULL;
    tp->made = tp->grad_used = tp->sums = tp->sums_out = NULL;
}

/* Makes sure that the plans of an edge find memory beside that of a call. */
CDP__DT cdp_status cdp__dt_tp_beside(const cdp_tp *tp, const cdp_edge *e) {
    const cdp_plan *const plans[2] = {e ? e->forward.plan : NULL, e ? e->backward.plan : NULL};
    cdp__dt_scratch *s;
    cdp_status st = CDP_OK;
    for (uint32_t i = 0; st == CDP_OK && i < 2; ++i)
        if (plans[i] && plans[i]->scratch_used)
            st = cdp__dt_scratch_find(tp->root, plans[i]->scratch_used, true, &s);
    return st;
}

/* Allocates the memory that the layer keeps, and that of a call, which layers share. */
CDP__DT cdp_status cdp__dt_tp_memory(cdp_tp *tp) {
    const cdp_edge *const edges[4] = {tp->in, tp->out, tp->weight, tp->bias};
    const uint64_t used = cdp__dt_local_bytes(&tp->l.used) + 1;
    if (!tp->desc.mesh->all) return CDP_OK;
    tp->room_bytes = cdp__dt_tp_place(tp, NULL);
    const bool gathers = !tp->in_same && !tp->of;
    if (gathers) tp->used = cdp__dt_group_memory(tp->desc.mesh->all->group, used);
    if (gathers && !tp->used) return cdp__dt_nomem("a tensor-parallel layer", used);
    cdp_status st = cdp__dt_tp_take(tp);
    for (uint32_t i = 0; st == CDP_OK && i < 4; ++i)
        st = cdp__dt_tp_beside(tp, edges[i]);
    cdp__dt_tp_give(tp);
    return st;
}

CDP_API void cdp_tp_destroy(cdp_tp *tp) {
    if (!tp || cdp__dt_alive(tp, "cdp_tp_destroy", "tp") != CDP_OK) return;
    cdp__ended_add(tp);
    if (!cdp__dt_mesh_ended(tp->desc.mesh)) { /* else the group keeps them */
        cdp__dt_link *link = tp->desc.mesh ? tp->desc.mesh->all : NULL;
        cdp__dt_retire(tp->root, link, tp->used);
        cdp__dt_retire(tp->root, link, tp->sum);
    }
    if (!tp->of) cdp_edge_destroy(tp->in);
    cdp__dt_tp_part_from(tp);
    cdp_edge_destroy(tp->out);
    cdp_edge_destroy(tp->weight);
    cdp_edge_destroy(tp->bias);
    cdp__dt_free(tp->os, tp);
}

CDP_API cdp_status cdp_tp_create(const cdp_tp_desc *desc, cdp_tp **out) {
    cdp_tp_desc d;
    if (!out) return cdp__dt_missing("cdp_tp_create", "out");
    *out = NULL;
    if (!desc) return cdp__dt_missing("cdp_tp_create", "desc");
    d = *desc;
    if (d.dtype == CDP_DTYPE_DEFAULT) d.dtype = CDP_DTYPE_F32;
    cdp_status st = cdp__dt_tp_check(&d);
    if (st == CDP_OK) st = cdp__dt_tp_has_gatherer(&d);
    if (st != CDP_OK) return st;
    const cdp_os *os = d.mesh->root->os;
    cdp_tp *tp = (cdp_tp *)cdp__dt_alloc(os, sizeof *tp);
    cdp__ended_remove(tp);
    if (!tp) return cdp__dt_nomem("a tensor-parallel layer", sizeof *tp);
    tp->desc = d;
    tp->os = os;
    tp->root = d.mesh->root;
    cdp__dt_tp_layouts(tp);
    tp->desc.input = tp->desc.output = NULL; /* copied to the layouts */
    st = cdp__dt_tp_edges(tp);
    tp->desc.x_of = NULL; /* it is tp->of */
    if (st == CDP_OK) st = cdp__dt_tp_memory(tp);
    if (st != CDP_OK) {
        cdp_tp_destroy(tp);
        return st;
    }
    cdp__dt_tp_join(tp);
    *out = tp;
    return CDP_OK;
}

CDP_API const cdp_tp_layouts *cdp_tp_layouts_of(const cdp_tp *tp) {
    return tp && !cdp__ended(tp) ? &tp->l : NULL;
}

CDP_API cdp_edge *cdp_tp_edge(const cdp_tp *tp, bool behind) {
    if (!tp || cdp__ended(tp)) return NULL;
    return behind ? tp->out : tp->in;
}

CDP__DT cdp_status cdp__dt_product(const cdp_tp *tp, bool ta, bool tb, uint64_t m, uint64_t n,
    uint64_t k, const void *a, const void *b, bool add, void *c) {
    const cdp_blas *blas = &tp->desc.blas;
    if (blas->gemm) return blas->gemm(blas->user, tp->desc.dtype, ta, tb, m, n, k, a, b, add, c);
    cdp__dt_gemm(tp->desc.dtype, ta, tb, m, n, k, a, b, add, c);
    return CDP_OK;
}

/* Reports ids outside the table. The layer runs on, so that no rank waits for another. */
CDP__DT cdp_status cdp__dt_tp_ids(const cdp_tp *tp, const int32_t *ids, uint64_t n) {
    for (uint64_t i = 0; i < n; ++i)
        if (ids[i] < 0 || (uint64_t)ids[i] >= tp->desc.in_features)
            return cdp_error_set(CDP_ERR_INVALID, -1, 0,
                "cdp_tp_forward: ids[%llu] is %d; the table has %llu rows", (unsigned long long)i,
                ids[i], (unsigned long long)tp->desc.in_features);
    return CDP_OK;
}

/* Computes made = used w^T, or copies rows of the table. */
CDP__DT cdp_status cdp__dt_tp_make(
    const cdp_tp *tp, const void *used, const void *w, const void *bias, void *made) {
    cdp_box x, y, table;
    (void)cdp_layout_box(&tp->l.used, NULL, &x);
    (void)cdp_layout_box(&tp->l.made, NULL, &y);
    (void)cdp_layout_box(&tp->l.weight, NULL, &table);
    if (tp->desc.embedding) {
        cdp__dt_look_up((const int32_t *)used, x.size[0], w, table.start[0], table.size[0],
            table.size[1] * cdp_dtype_size(tp->desc.dtype), made);
        return cdp__dt_tp_ids(tp, (const int32_t *)used, x.size[0]);
    }
    const cdp_status st =
        cdp__dt_product(tp, false, true, x.size[0], y.size[1], x.size[1], used, w, false, made);
    if (bias && tp->desc.style != CDP_TP_ROW) /* with the layout of the bias */
        cdp__dt_add_bias(tp->desc.dtype, made, y.size[0], y.size[1], bias, 0);
    return st;
}

/* `y_name`: what the caller calls y. */
CDP__DT cdp_status cdp__dt_tp_ready(const cdp_tp *tp, const char *call, const void *x,
    const void *w, const char *y_name, const void *y) {
    cdp_status st = cdp__dt_alive(tp, call, "tp");
    if (st == CDP_OK) st = cdp__dt_tp_not_alone(tp, call);
    if (st == CDP_OK) st = cdp__dt_mesh_alive(tp->desc.mesh, call);
    if (st == CDP_OK) st = cdp__dt_link_here(tp->desc.mesh->all);
    if (st != CDP_OK) return st;
    if (!tp->root->group)
        return cdp_error_set(CDP_ERR_STATE, -1, 0, "cdp_tp: its mesh is on paper; it cannot run");
    if (tp->desc.mesh->me == CDP__DT_NONE) return CDP_OK;
    if (!x && cdp__dt_local_bytes(&tp->l.x)) return cdp__dt_missing(call, "x");
    if (!w && cdp__dt_local_bytes(&tp->l.weight)) return cdp__dt_missing(call, "w");
    if (!y && cdp__dt_local_bytes(&tp->l.y)) return cdp__dt_missing(call, y_name);
    return CDP_OK;
}

/* The first error of a matrix product. Messages of a layer continue after it, so that no rank waits
   for another; the call returns the error at its end. */
typedef struct cdp__dt_fault {
    cdp_status status;
    cdp_error why;
} cdp__dt_fault;

CDP__DT void cdp__dt_fault_keep(cdp__dt_fault *f, cdp_status st) {
    if (st == CDP_OK || f->status != CDP_OK) return;
    f->status = st;
    f->why = *cdp_last_error();
}

/* The result of a call of a layer: the failure `st` of its messages, if any, else the first error
   of its matrix products. */
CDP__DT cdp_status cdp__dt_verdict(const cdp__dt_fault *f, cdp_status st) {
    if (st != CDP_OK || f->status == CDP_OK) return st;
    return cdp__error_again(f->status, &f->why);
}

/* Runs the messages of the forward pass, and the computation between them. */
CDP__DT cdp_status cdp__dt_tp_ahead(
    cdp_tp *tp, const void *x, const void *w, const void *bias, void *y, cdp__dt_fault *fault) {
    cdp_status st = CDP_OK;
    if (!tp->in_same && !tp->of) st = cdp_edge_forward(tp->in, x, tp->used);
    if (st != CDP_OK) return st;
    if (!tp->of) cdp__dt_tp_has(tp, x);
    const void *used = tp->in_same ? x : cdp__dt_tp_gatherer(tp)->used;
    cdp__dt_fault_keep(fault, cdp__dt_tp_make(tp, used, w, bias, tp->out_same ? y : tp->made));
    if (!tp->out_same) st = cdp_edge_forward(tp->out, tp->made, y);
    if (st == CDP_OK && bias && tp->desc.style == CDP_TP_ROW && !tp->desc.embedding) {
        cdp_box box;
        (void)cdp_layout_box(&tp->l.y, NULL, &box);
        if (box.size[0] && box.size[1])
            cdp__dt_add_bias(tp->desc.dtype, y, box.size[0], box.size[1], bias, box.start[1]);
    }
    return st;
}

CDP_API cdp_status cdp_tp_forward(
    cdp_tp *tp, const void *x, const void *w, const void *bias, void *y) {
    cdp__dt_fault fault;
    cdp_status st = cdp__dt_tp_ready(tp, "cdp_tp_forward", x, w, "y", y);
    if (st != CDP_OK || tp->desc.mesh->me == CDP__DT_NONE) return st;
    memset(&fault, 0, sizeof fault);
    st = cdp__dt_tp_forward_order(tp, x);
    if (st == CDP_OK) st = cdp__dt_tp_take(tp);
    if (st == CDP_OK) st = cdp__dt_tp_ahead(tp, x, w, bias, y, &fault);
    cdp__dt_tp_give(tp);
    return cdp__dt_verdict(&fault, st);
}

/* Computes the gradient of the weight; SEQUENCE sums it over the ranks. */
CDP__DT cdp_status cdp__dt_tp_weight(
    const cdp_tp *tp, const void *used, const void *grad, void *grad_w, cdp__dt_fault *fault) {
    const cdp_dtype t = tp->desc.dtype;
    const uint64_t bytes = cdp__dt_local_bytes(&tp->l.weight);
    cdp_box x, y, w;
    cdp_status st;
    (void)cdp_layout_box(&tp->l.used, NULL, &x);
    (void)cdp_layout_box(&tp->l.made, NULL, &y);
    (void)cdp_layout_box(&tp->l.weight, NULL, &w);
    void *to = tp->weight ? tp->sums : grad_w;
    if (tp->weight) memset(to, 0, (size_t)bytes);
    if (tp->desc.embedding)
        cdp__dt_look_up_backward(
            t, (const int32_t *)used, x.size[0], to, w.start[0], w.size[0], w.size[1], grad);
    else
        cdp__dt_fault_keep(fault,
            cdp__dt_product(
                tp, true, false, y.size[1], x.size[1], y.size[0], grad, used, true, to));
    if (!tp->weight) return CDP_OK;
    st = cdp_edge_backward(tp->weight, tp->sums, tp->sums_out);
    if (st == CDP_OK) cdp__dt_plus(t, grad_w, tp->sums_out, bytes / cdp_dtype_size(t));
    return st;
}

/* Computes the gradient of the bias; SEQUENCE sums it over the ranks. */
CDP__DT cdp_status cdp__dt_tp_bias(const cdp_tp *tp, const void *grad, void *grad_bias) {
    const cdp_dtype t = tp->desc.dtype;
    cdp_box y;
    (void)cdp_layout_box(&tp->l.made, NULL, &y);
    if (!tp->bias) {
        cdp__dt_add_rows(t, grad_bias, grad, y.size[0], y.size[1]);
        return CDP_OK;
    }
    const uint64_t out = tp->desc.out_features; /* a rank without rows takes part, too */
    memset(tp->sums, 0, (size_t)(out * cdp_dtype_size(t)));
    cdp__dt_add_rows(t, tp->sums, grad, y.size[0], y.size[1]);
    const cdp_status st = cdp_edge_backward(tp->bias, tp->sums, tp->sums_out);
    if (st == CDP_OK) cdp__dt_plus(t, grad_bias, tp->sums_out, out);
    return st;
}

/* Computes the gradient of x, and sends it through the input edge; that of layers that share x is
   summed before. */
CDP__DT cdp_status cdp__dt_tp_input(
    cdp_tp *tp, const void *w, const void *grad, void *grad_x, cdp__dt_fault *fault) {
    const cdp_edge_desc *e = cdp_edge_desc_of(tp->in);
    const cdp_tp *const g = cdp__dt_tp_gatherer(tp);
    const bool same = !g->sum && cdp_layout_same(&e->grad_in, &e->grad_out);
    void *to = same ? grad_x : tp->grad_used;
    cdp_box x, y;
    (void)cdp_layout_box(&tp->l.used, NULL, &x);
    (void)cdp_layout_box(&tp->l.made, NULL, &y);
    if (g->sum) to = g->sum;
    cdp__dt_fault_keep(fault,
        cdp__dt_product(
            tp, false, false, y.size[0], x.size[1], y.size[1], grad, w, g->summed > 0, to));
    return same || tp->of ? CDP_OK : cdp_edge_backward(tp->in, to, grad_x);
}

/* Runs all messages of the backward pass, and the computations between them. */
CDP__DT cdp_status cdp__dt_tp_back(cdp_tp *tp, const void *x, const void *w, const void *grad_y,
    void *grad_x, void *grad_w, void *grad_bias, cdp__dt_fault *fault) {
    const void *grad = tp->out_same ? grad_y : tp->made;
    cdp_status st = CDP_OK;
    if (!tp->out_same) st = cdp_edge_backward(tp->out, grad_y, tp->made);
    cdp_tp *const g = cdp__dt_tp_gatherer(tp);
    const bool again = (tp->desc.gather_again && !g->summed) || !g->gathered;
    if (st == CDP_OK && again && !tp->in_same) {
        g->x = x; /* a layer that shares it goes forward with no other one */
        st = cdp_edge_forward(tp->in, x, g->used);
    }
    if (st == CDP_OK) cdp__dt_tp_adds(tp);
    const bool weight = st == CDP_OK && grad_w;
    if (weight) st = cdp__dt_tp_weight(tp, tp->in_same ? x : g->used, grad, grad_w, fault);
    const bool bias = st == CDP_OK && grad_bias && !tp->desc.embedding;
    if (bias) st = cdp__dt_tp_bias(tp, grad, grad_bias);
    const bool input = !tp->desc.no_grad_x && !tp->desc.embedding;
    if (st == CDP_OK && input) st = cdp__dt_tp_input(tp, w, grad, grad_x, fault);
    if (st == CDP_OK) cdp__dt_tp_ran_back(tp);
    return st;
}

CDP_API cdp_status cdp_tp_backward(cdp_tp *tp, const void *x, const void *w, const void *grad_y,
    void *grad_x, void *grad_w, void *grad_bias) {
    cdp__dt_fault fault;
    cdp_status st = cdp__dt_tp_ready(tp, "cdp_tp_backward", x, w, "grad_y", grad_y);
    if (st != CDP_OK || tp->desc.mesh->me == CDP__DT_NONE) return st;
    const bool wanted = !tp->desc.no_grad_x && !tp->desc.embedding && !tp->of;
    if (wanted && !grad_x && cdp__dt_local_bytes(&tp->l.x)) /* a rank without rows has no memory */
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_tp_backward: grad_x is NULL; set .no_grad_x if it is not wanted");
    st = cdp__dt_tp_backward_order(tp);
    if (st != CDP_OK) return st;
    cdp__dt_counter *c = tp->root->counter;
    memset(&fault, 0, sizeof fault);
    if (c) ++c->backward;
    st = cdp__dt_tp_take(tp);
    if (st == CDP_OK) st = cdp__dt_tp_back(tp, x, w, grad_y, grad_x, grad_w, grad_bias, &fault);
    cdp__dt_tp_give(tp);
    if (c) --c->backward;
    return cdp__dt_verdict(&fault, st);
}

#endif /* CDP_NO_TENSOR_OPS */

/* ---- >>dtensor/losses: cross entropy of logits that are cut along the classes ---------------- */

/* Knows: one row of logits, in pieces. Promises: cdp_cross_entropy(); every rank combines the same
   numbers in the same order. */

#ifndef CDP_NO_TENSOR_OPS

typedef struct cdp__dt_loss {
    const cdp_layout *l;
    const void *x;
    const int32_t *targets;
    uint64_t rows, first, held; /* held: this rank has classes first .. first + held - 1 */
    cdp_dtype dtype;
    uint32_t n;
    const cdp_loss_kernel *kernel;
    /* The largest logit of each row; then of each the sum of exponentials from there; then its
       target's logit. `all`: of each rank. */
    double *own, *all;
} cdp__dt_loss;

CDP__DT cdp_status cdp__dt_loss_check(
    const cdp_layout *l, const void *x, const int32_t *targets, const void *losses) {
    cdp_status st = cdp_layout_check(l);
    if (st != CDP_OK) return st;
    const cdp_dtype t = cdp__dt_dtype(l);
    const cdp_place *p = &l->place[0];
    if (t != CDP_DTYPE_F32 && t != CDP_DTYPE_F64)
        return cdp_error_set(CDP_ERR_UNSUPPORTED, -1, 0,
            "cdp_cross_entropy: logits of %s; use f32 or f64", cdp_dtype_name(t));
    const bool cut = p->kind == CDP_PLACE_SHARD && l->ndim == 2 && cdp__dt_dim(l, 0) == 1;
    if (l->ndim != 2 || l->mesh->desc.ndim != 1 || !(cut || p->kind == CDP_PLACE_REPLICATE))
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_cross_entropy: logits must be [rows, classes] on a mesh of one dimension, S1 or "
            "R");
    if (!x && cdp__dt_local_bytes(l)) return cdp__dt_missing("cdp_cross_entropy", "piece");
    if (!targets) return cdp__dt_missing("cdp_cross_entropy", "targets");
    if (!losses) return cdp__dt_missing("cdp_cross_entropy", "losses");
    for (uint64_t i = 0; i < l->shape[0]; ++i)
        if (targets[i] >= 0 && (uint64_t)targets[i] >= l->shape[1])
            return cdp_error_set(CDP_ERR_INVALID, -1, 0,
                "cdp_cross_entropy: targets[%llu] is %d; there are %llu classes",
                (unsigned long long)i, targets[i], (unsigned long long)l->shape[1]);
    return CDP_OK;
}

/* The larger number; a NaN if one of them is. */
CDP__DT double cdp__dt_larger(double a, double b) {
    return a > b || a != a ? a : b;
}

/* The exponentials of some elements of a row, from its largest number on; `e` NULL: their sum
   alone. */
#define CDP__DT_LOSS_SUM(S, T)                                                        \
    CDP__DT double cdp__dt_loss_sum_##S(const T *x, T *e, uint64_t n, double *most) { \
        T some[CDP__DT_ROW];                                                          \
        const T from = cdp__dt_most_##S(x, n);                                        \
        double sum = 0;                                                               \
        *most = (double)from;                                                         \
        if (from == -(T)INFINITY) {                                                   \
            if (e) memset(e, 0, (size_t)n * sizeof *e);                               \
            return 0;                                                                 \
        }                                                                             \
        for (uint64_t i = 0, k; i < n; i += k) {                                      \
            T *to = e ? e + i : some;                                                 \
            k = cdp__min(n - i, CDP__DT_ROW);                                         \
            cdp__dt_exps_##S(to, x + i, k, from);                                     \
            sum += cdp__dt_total_##S(to, k);                                          \
        }                                                                             \
        return sum;                                                                   \
    }
CDP__DT_LOSS_SUM(f32, float)
CDP__DT_LOSS_SUM(f64, double)
#undef CDP__DT_LOSS_SUM

/* cdp_loss_kernel.exponentials in plain loops. */
CDP__DT cdp_status cdp__dt_loss_exponentials(void *user, cdp_dtype t, uint64_t rows,
    uint64_t classes, const void *x, void *e, double *most, double *sum) {
    (void)user;
    for (uint64_t i = 0; i < rows; ++i) {
        const uint64_t at = i * classes;
        if (t == CDP_DTYPE_F32)
            sum[i] = cdp__dt_loss_sum_f32(
                (const float *)x + at, e ? (float *)e + at : NULL, classes, &most[i]);
        else
            sum[i] = cdp__dt_loss_sum_f64(
                (const double *)x + at, e ? (double *)e + at : NULL, classes, &most[i]);
    }
    return CDP_OK;
}

/* The numbers of this rank's classes; the exponentials go to `grad`, which may be the logits. */
CDP__DT cdp_status cdp__dt_loss_rows(const cdp__dt_loss *s, void *grad) {
    double *most = s->own, *sum = most + s->rows, *logit = sum + s->rows;
    for (uint64_t i = 0; i < s->rows; ++i) {
        const uint64_t target = (uint64_t)(int64_t)s->targets[i] - s->first;
        most[i] = -(double)INFINITY;
        sum[i] = 0;
        logit[i] = target < s->held ? cdp__number_get(s->dtype, s->x, i * s->held + target) : 0;
    }
    if (!s->held) return CDP_OK;
    return s->kernel->exponentials(
        s->kernel->user, s->dtype, s->rows, s->held, s->x, grad, most, sum);
}

/* Merges the numbers of all ranks for a row: in[r * 3 * rows], and so on, are those of rank r. The
   sum of a row of which every logit is -infinity is a NaN. */
CDP__DT void cdp__dt_loss_merge(const double *in, uint64_t rows, uint32_t n, double out[3]) {
    const uint64_t next = 3 * rows;
    out[0] = -(double)INFINITY;
    out[1] = out[2] = 0;
    for (uint32_t r = 0; r < n; ++r)
        out[0] = cdp__dt_larger(out[0], in[r * next]);
    if (out[0] == -(double)INFINITY) out[1] = out[0] - out[0];
    for (uint32_t r = 0; r < n; ++r) {
        const double *row = in + r * next;
        if (row[0] != -(double)INFINITY) out[1] += row[rows] * cdp__dt_exp(row[0] - out[0]);
        out[2] += row[2 * rows];
    }
}

/* grad holds exponentials e: scale (e factor - 1 at the target), where `factor` makes shares of the
   whole sum of them. */
CDP__DT void cdp__dt_loss_grad(
    const cdp__dt_loss *s, uint64_t row, void *grad, double factor, double scale) {
    const uint64_t at = row * s->held, elem = cdp_dtype_size(s->dtype);
    const uint64_t target = (uint64_t)(int64_t)s->targets[row] - s->first;
    const bool here = target < s->held;
    const double e = here ? cdp__number_get(s->dtype, grad, at + target) : 0;
    if (s->targets[row] < 0)
        memset((uint8_t *)grad + at * elem, 0, (size_t)(s->held * elem));
    else if (s->dtype == CDP_DTYPE_F32)
        cdp__dt_times_all_f32((float *)grad + at, s->held, (float)(factor * scale));
    else
        cdp__dt_times_all_f64((double *)grad + at, s->held, factor * scale);
    if (here) cdp__number_put(s->dtype, grad, at + target, (e * factor - 1) * scale);
}

CDP__DT void cdp__dt_loss_finish(const cdp__dt_loss *s, void *losses, void *grad, double scale) {
    for (uint64_t i = 0; i < s->rows; ++i) {
        const bool counts = s->targets[i] >= 0;
        double row[3];
        cdp__dt_loss_merge(s->all + i, s->rows, s->n, row);
        cdp__number_put(s->dtype, losses, i, counts ? cdp__dt_ln(row[1]) + row[0] - row[2] : 0);
        if (!grad) continue;
        /* the exponentials of a piece that has only -infinity are 0 */
        const bool none = s->own[i] == -(double)INFINITY;
        const double share = none ? 1 : cdp__dt_exp(s->own[i] - row[0]);
        cdp__dt_loss_grad(s, i, grad, share / row[1], scale);
    }
}

CDP_API cdp_status cdp_cross_entropy_with(const cdp_layout *logits, const void *piece,
    const int32_t *targets, void *losses, void *grad, double scale, const cdp_loss_kernel *kernel) {
    static const cdp_loss_kernel plain = {cdp__dt_loss_exponentials, NULL};
    cdp__dt_loss s;
    cdp_box box;
    cdp_status st = cdp__dt_loss_check(logits, piece, targets, losses);
    if (st != CDP_OK) return st;
    const cdp_mesh *m = logits->mesh;
    if (m->me == CDP__DT_NONE) return CDP_OK;
    (void)cdp_layout_box(logits, NULL, &box);
    memset(&s, 0, sizeof s);
    s.l = logits;
    s.x = piece;
    s.targets = targets;
    s.rows = logits->shape[0];
    s.first = box.start[1];
    s.held = box.size[0] ? box.size[1] : 0;
    s.dtype = cdp__dt_dtype(logits);
    s.kernel = kernel && kernel->exponentials ? kernel : &plain;
    s.n = logits->place[0].kind == CDP_PLACE_SHARD ? m->count : 1;
    const bool talks = s.n > 1 && m->all;
    if (s.n > 1 && !m->all)
        return cdp_error_set(CDP_ERR_STATE, -1, 0, "cdp_cross_entropy: its mesh is on paper");
    const uint64_t bytes = 3 * s.rows * 8 * (s.n + 1ull);
    s.own = (double *)cdp__dt_alloc(m->root->os, bytes);
    if (!s.own) return cdp__dt_nomem("cdp_cross_entropy", bytes);
    s.all = talks ? s.own + 3 * s.rows : s.own;
    const cdp_status own = cdp__dt_loss_rows(&s, grad);
    const cdp_error why = *cdp_last_error();
    for (uint64_t i = 0; i < s.rows && own != CDP_OK; ++i)
        s.own[i] = NAN; /* no other rank takes a part of a row for a result */
    if (talks) {
        cdp__dt_count(m->root->counter, CDP_COLL_ALLGATHER, 3 * s.rows * 8 * (s.n - 1ull), false);
        st = cdp_allgather(m->all->group, s.own, s.all, 3 * s.rows, CDP_DTYPE_F64);
    }
    if (st == CDP_OK && own == CDP_OK) cdp__dt_loss_finish(&s, losses, grad, scale);
    cdp__dt_free(m->root->os, s.own);
    if (st != CDP_OK || own == CDP_OK) return st;
    return cdp__error_again(own, &why);
}

CDP_API cdp_status cdp_cross_entropy(const cdp_layout *logits, const void *piece,
    const int32_t *targets, void *losses, void *grad, double scale) {
    return cdp_cross_entropy_with(logits, piece, targets, losses, grad, scale, NULL);
}

#endif /* CDP_NO_TENSOR_OPS */

/* ---- >>dtensor/rings: keys and values pass from rank to rank --------------------------------- */

/* Knows: blocks of bytes, one per rank, and a function that uses them. Promises: every rank sees
   every block, its own first, while the next one travels; what it adds to a block's gradient
   reaches the block's owner, added in the order of the ring. */

#ifndef CDP_NO_TENSOR_OPS

#define CDP__DT_RING_KV (CDP__DT_TAG + 1u)
#define CDP__DT_RING_GRAD (CDP__DT_TAG + 2u)

/* Memory that grows on demand and is kept. */
typedef struct cdp__dt_room {
    uint8_t *at;
    uint64_t bytes;
} cdp__dt_room;

struct cdp_cp {
    cdp_cp_desc desc;
    const cdp_os *os;
    cdp__dt_root *root;
    cdp_group *group;
    uint32_t n, me;
    cdp__dt_room kv[2], grad[2]; /* of the ring; gather: kv[0] and grad[0] hold all blocks */
    cdp_plan *gather_plan, *sum_plan;
    uint64_t plan_bytes, plan_count;
    double *state; /* of attention: results, then sums, per query and head */
    void *tiles; /* of attention: scores, their gradients, sums of one tile; results of a kernel */
    void *pack, *pack_grad;
    uint64_t rows, most_rows;
};

CDP__DT cdp_status cdp__dt_cp_wrong(const char *why) {
    return cdp_error_set(CDP_ERR_INVALID, -1, 0, "cdp_cp_create: %s", why);
}

CDP__DT cdp_status cdp__dt_cp_check(const cdp_cp_desc *d) {
    if (!d) return cdp__dt_missing("cdp_cp_create", "desc");
    if (!d->mesh) return cdp__dt_missing("cdp_cp_create", "desc.mesh");
    if (cdp__dt_mesh_ended(d->mesh)) return cdp__dt_mesh_alive(d->mesh, "cdp_cp_create");
    if (d->mesh->desc.ndim != 1)
        return cdp__dt_cp_wrong(
            "the mesh has several dimensions; take one of them by cdp_mesh_sub()");
    if (!d->heads || !d->width) return cdp__dt_cp_wrong("heads or width is 0; set both");
    if (!(d->scale >= 0 && d->scale <= DBL_MAX))
        return cdp__dt_cp_wrong("scale is negative or not finite; 0 means 1 / sqrt(width)");
    if (d->kv_heads && d->heads % d->kv_heads)
        return cdp__dt_cp_wrong("heads must be a multiple of kv_heads");
    if (d->causal && d->length % (2ull * d->mesh->count))
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_cp_create: a causal length of %llu does not divide into 2 x %u chunks; pad it",
            (unsigned long long)d->length, d->mesh->count);
    const cdp_dtype t = d->dtype;
    if (t == CDP_DTYPE_DEFAULT || t == CDP_DTYPE_F32 || t == CDP_DTYPE_F64) return CDP_OK;
    return cdp_error_set(CDP_ERR_UNSUPPORTED, -1, 0,
        "cdp_cp_create: attention of %s; use f32 or f64", cdp_dtype_name(t));
}

CDP_API uint64_t cdp_cp_rows(
    const cdp_cp_desc *d, uint32_t coord, uint64_t start[2], uint64_t size[2]) {
    start[0] = start[1] = size[0] = size[1] = 0;
    if (!d || !cdp__dt_mesh_known(d->mesh) || coord >= d->mesh->count) return 0;
    const uint32_t n = d->mesh->count;
    if (!d->causal) {
        size[0] = cdp__dt_chunk(d->length, 1, n, coord, &start[0]);
        return size[0];
    }
    const uint64_t chunk = d->length / (2ull * n);
    if (chunk * 2 * n != d->length) return 0;
    size[0] = size[1] = chunk;
    start[0] = coord * chunk;
    start[1] = (2ull * n - 1 - coord) * chunk;
    return 2 * chunk;
}

CDP__DT cdp_status cdp__dt_room_for(cdp_cp *cp, cdp__dt_room *room, uint64_t bytes) {
    if (room->at && room->bytes >= bytes) return CDP_OK;
    cdp__dt_retire(cp->root, cp->desc.mesh->all, room->at);
    room->bytes = bytes;
    room->at = (uint8_t *)cdp__dt_group_memory(cp->group, bytes + 1);
    return room->at ? CDP_OK : cdp__dt_nomem("a ring", bytes);
}

/* Sends a message to the next rank, and receives one from the previous rank. */
CDP__DT cdp_status cdp__dt_ring_pass(cdp_cp *cp, const void *out, void *in, uint64_t count,
    cdp_dtype t, uint32_t tag, cdp_work *work) {
    cdp_transfer pair[2];
    memset(pair, 0, sizeof pair);
    pair[0].receive = true;
    pair[0].data = in;
    pair[0].peer = (cp->me + cp->n - 1) % cp->n;
    pair[1].data = (void *)(uintptr_t)out;
    pair[1].peer = (cp->me + 1) % cp->n;
    for (uint32_t i = 0; i < 2; ++i) {
        pair[i].count = count;
        pair[i].dtype = t;
        pair[i].tag = tag;
    }
    cdp__dt_count(cp->root->counter, CDP_COLL_SEND, count * cdp_dtype_size(t), false);
    return cdp_batch(cp->group, pair, 2, work);
}

/* One call of a ring, or of a gather that replaces it. */
typedef struct cdp__dt_ring {
    cdp_cp_block *block;
    void *user;
    const void *kv;
    uint64_t bytes;
    void *grad;
    uint64_t count;
    cdp_dtype dtype;   /* of grad */
    cdp_status status; /* of the first block that failed */
    cdp_error why;
} cdp__dt_ring;

/* Once a block has failed, gradients are NaN: no other rank takes a part of a sum for all of it. */
CDP__DT void cdp__dt_ring_block(cdp__dt_ring *r, uint32_t owner, const void *kv, void *grad) {
    if (r->status == CDP_OK) {
        r->status = r->block(r->user, owner, kv, grad);
        if (r->status != CDP_OK) r->why = *cdp_last_error();
    }
    for (uint64_t i = 0; grad && r->status != CDP_OK && i < r->count; ++i)
        cdp__number_put(r->dtype, grad, i, NAN);
}

CDP__DT cdp_status cdp__dt_ring_run(cdp_cp *cp, cdp__dt_ring *r) {
    const uint32_t n = cp->n;
    const cdp_dtype t = cp->desc.dtype;
    const void *kv = r->kv;
    uint8_t *grad = r->grad ? cp->grad[0].at : NULL;
    cdp_work moving, back;
    cdp_status st = CDP_OK;
    if (grad) memset(grad, 0, (size_t)(r->count * cdp_dtype_size(t)));
    for (uint32_t s = 0; st == CDP_OK && s < n; ++s) {
        const bool last = s + 1 == n;
        uint8_t *next = cp->kv[s % 2].at;
        if (!last)
            st = cdp__dt_ring_pass(cp, kv, next, r->bytes, CDP_DTYPE_U8, CDP__DT_RING_KV, &moving);
        if (st != CDP_OK) break;
        cdp__dt_ring_block(r, (cp->me + n - s) % n, kv, grad);
        if (grad) { /* to the rank that uses this block next; after the last step, to its owner */
            uint8_t *other = last ? (uint8_t *)r->grad : cp->grad[(s + 1) % 2].at;
            st = cdp__dt_ring_pass(cp, grad, other, r->count, t, CDP__DT_RING_GRAD, &back);
            if (st == CDP_OK) st = cdp_work_wait(back);
            grad = other;
        }
        if (st == CDP_OK && !last) st = cdp_work_wait(moving);
        kv = next;
    }
    return st;
}

/* Makes plans that gather blocks of `bytes`, and that sum gradients of `count` elements. */
CDP__DT cdp_status cdp__dt_gather_plans(cdp_cp *cp, uint64_t bytes, uint64_t count) {
    cdp_plan_desc d;
    cdp_status st = CDP_OK;
    if (!cp->gather_plan || cp->plan_bytes != bytes) {
        memset(&d, 0, sizeof d);
        cdp_plan_destroy(cp->gather_plan);
        cp->gather_plan = NULL;
        d.from.mesh = cp->desc.mesh;
        d.from.dtype = CDP_DTYPE_U8;
        d.from.ndim = 1;
        d.from.shape[0] = bytes * cp->n;
        d.to = d.from;
        d.from.place[0] = cdp__dt_shard(0, 0);
        st = cdp_plan_create(&d, &cp->gather_plan);
        cp->plan_bytes = bytes;
    }
    if (st != CDP_OK || !count || (cp->sum_plan && cp->plan_count == count)) return st;
    memset(&d, 0, sizeof d);
    cdp_plan_destroy(cp->sum_plan);
    cp->sum_plan = NULL;
    d.from.mesh = cp->desc.mesh;
    d.from.dtype = cp->desc.dtype;
    d.from.ndim = 1;
    d.from.shape[0] = count * cp->n;
    d.to = d.from;
    d.from.place[0] = cdp__dt_sum_of(CDP_REDUCE_SUM);
    d.to.place[0] = cdp__dt_shard(0, 0);
    cp->plan_count = count;
    return cdp_plan_create(&d, &cp->sum_plan);
}

/* Gathers all blocks at once, and uses them in the order of the ring. */
CDP__DT cdp_status cdp__dt_ring_gather(cdp_cp *cp, cdp__dt_ring *r) {
    const uint64_t size = r->count * cdp_dtype_size(cp->desc.dtype);
    cdp_status st = cdp__dt_gather_plans(cp, r->bytes, r->grad ? r->count : 0);
    if (st == CDP_OK) st = cdp_plan_run(cp->gather_plan, r->kv, cp->kv[0].at);
    if (st != CDP_OK) return st;
    if (r->grad) memset(cp->grad[0].at, 0, (size_t)(size * cp->n));
    for (uint32_t s = 0; s < cp->n; ++s) {
        const uint32_t owner = (cp->me + cp->n - s) % cp->n;
        cdp__dt_ring_block(r, owner, cp->kv[0].at + owner * r->bytes,
            r->grad ? cp->grad[0].at + owner * size : NULL);
    }
    return r->grad ? cdp_plan_run(cp->sum_plan, cp->grad[0].at, r->grad) : CDP_OK;
}

CDP__DT cdp_status cdp__dt_ring_alone(const cdp_cp *cp, cdp__dt_ring *r) {
    if (r->grad) memset(r->grad, 0, (size_t)(r->count * cdp_dtype_size(cp->desc.dtype)));
    cdp__dt_ring_block(r, 0, r->kv, r->grad);
    return CDP_OK;
}

/* Its mesh is there, and has a group. */
CDP__DT cdp_status cdp__dt_cp_runs(const cdp_cp *cp, const char *call) {
    cdp_status st = cdp__dt_mesh_alive(cp->desc.mesh, call);
    if (st == CDP_OK) st = cdp__dt_link_here(cp->desc.mesh->all);
    if (st != CDP_OK || cp->root->group) return st;
    return cdp_error_set(CDP_ERR_STATE, -1, 0, "cdp_cp: its mesh is on paper; it cannot run");
}

CDP_API cdp_status cdp_cp_ring(cdp_cp *cp, const void *kv, uint64_t bytes, void *grad,
    uint64_t grad_count, cdp_cp_block *block, void *user) {
    cdp__dt_ring r;
    cdp_status st = cdp__dt_alive(cp, "cdp_cp_ring", "cp");
    if (st != CDP_OK) return st;
    if (!kv) return cdp__dt_missing("cdp_cp_ring", "kv");
    if (!block) return cdp__dt_missing("cdp_cp_ring", "block");
    st = cdp__dt_cp_runs(cp, "cdp_cp_ring");
    if (st != CDP_OK) return st;
    if (cp->desc.mesh->me == CDP__DT_NONE) return CDP_OK;
    memset(&r, 0, sizeof r);
    r.kv = kv;
    r.bytes = bytes;
    r.grad = grad;
    r.count = grad ? grad_count : 0;
    r.dtype = cp->desc.dtype;
    r.block = block;
    r.user = user;
    const uint64_t size = r.count * cdp_dtype_size(cp->desc.dtype);
    const uint32_t copies = cp->desc.gather ? cp->n : 1, kinds = cp->desc.gather ? 1 : 2;
    for (uint32_t i = 0; st == CDP_OK && i < kinds && cp->n > 1; ++i) {
        st = cdp__dt_room_for(cp, &cp->kv[i], bytes * copies);
        if (st == CDP_OK && grad) st = cdp__dt_room_for(cp, &cp->grad[i], size * copies);
    }
    if (st != CDP_OK) return st;
    if (cp->n == 1)
        st = cdp__dt_ring_alone(cp, &r);
    else if (cp->desc.gather)
        st = cdp__dt_ring_gather(cp, &r);
    else
        st = cdp__dt_ring_run(cp, &r);
    if (st != CDP_OK || r.status == CDP_OK) return st;
    return cdp__error_again(r.status, &r.why);
}

#endif /* CDP_NO_TENSOR_OPS */

/* ---- >>dtensor/attention_blocks: attention in a kernel of the program ------------------------ */

/* Knows: chunks of queries, keys and values, and a kernel. Promises: the kernel sees chunks of one
   sequence that follow one another in memory, of which it uses all, or a triangle; results of
   chunks are merged in f64. */

#ifndef CDP_NO_TENSOR_OPS

/* Constants of one call. Rows are positions of all sequences of the batch. */
typedef struct cdp__dt_heads {
    const cdp_cp *cp;
    const void *q, *out, *grad_out;
    const void *lse;
    uint64_t start[2], size[2]; /* of the queries */
} cdp__dt_heads;

/* A chunk of queries and a chunk of keys of one sequence. Offsets are in elements. */
typedef struct cdp__dt_chunks {
    cdp_attention_block block;
    uint64_t query, q, k, v; /* query: number of the first query and head; q: of its vector */
} cdp__dt_chunks;

typedef cdp_status cdp__dt_chunks_use(
    const cdp__dt_heads *a, const cdp__dt_chunks *c, const void *kv, void *grad);

CDP__DT const void *cdp__dt_element(const cdp_attention_block *b, const void *x, uint64_t at) {
    return (const uint8_t *)x + at * cdp_dtype_size(b->dtype);
}

CDP__DT void *cdp__dt_element_of(const cdp_attention_block *b, void *x, uint64_t at) {
    return (uint8_t *)x + at * cdp_dtype_size(b->dtype);
}

/* The bytes that results of a block take. */
CDP__DT uint64_t cdp__dt_block_bytes(const cdp_cp *cp) {
    return cp->rows * cp->desc.heads * (cp->desc.width + 1) * cdp_dtype_size(cp->desc.dtype);
}

/* Merges the results of a block: it is as if its keys were one key with the score lse. */
CDP__DT void cdp__dt_merge_block(
    const cdp__dt_heads *a, const cdp__dt_chunks *c, const void *out, const void *lse) {
    const cdp_attention_block *b = &c->block;
    const uint64_t w = b->width;
    for (uint64_t i = 0; i < b->rows * b->heads; ++i) {
        const double score = cdp__number_get(b->dtype, lse, i);
        double *state = a->cp->state + (c->query + i) * (w + 2), shrink = 1, weight = 1;
        if (score == -(double)INFINITY) continue; /* no key weighs anything */
        if (score > state[0]) {
            shrink = state[1] > 0 ? cdp__dt_exp(state[0] - score) : 0;
            state[0] = score;
        } else {
            weight = cdp__dt_exp(score - state[0]);
        }
        state[1] = state[1] * shrink + weight;
        for (uint64_t x = 0; x < w; ++x)
            state[2 + x] =
                state[2 + x] * shrink + weight * cdp__number_get(b->dtype, out, i * w + x);
    }
}

CDP__DT cdp_status cdp__dt_kernel_forward(
    const cdp__dt_heads *a, const cdp__dt_chunks *c, const void *kv, void *grad) {
    const cdp_attention_kernel *kernel = &a->cp->desc.kernel;
    const cdp_attention_block *b = &c->block;
    void *out = a->cp->tiles, *lse = cdp__dt_element_of(b, out, b->rows * b->heads * b->width);
    (void)grad;
    const cdp_status st = kernel->forward(kernel->user, b, cdp__dt_element(b, a->q, c->q),
        cdp__dt_element(b, kv, c->k), cdp__dt_element(b, kv, c->v), out, lse);
    if (st == CDP_OK) cdp__dt_merge_block(a, c, out, lse);
    return st;
}

CDP__DT cdp_status cdp__dt_kernel_backward(
    const cdp__dt_heads *a, const cdp__dt_chunks *c, const void *kv, void *grad) {
    const cdp_attention_kernel *kernel = &a->cp->desc.kernel;
    const cdp_attention_block *b = &c->block;
    const uint64_t w = b->width, n = b->rows * b->heads;
    void *grad_q = a->cp->tiles;
    memset(grad_q, 0, (size_t)(n * w * cdp_dtype_size(b->dtype)));
    const cdp_status st = kernel->backward(kernel->user, b, cdp__dt_element(b, a->q, c->q),
        cdp__dt_element(b, kv, c->k), cdp__dt_element(b, kv, c->v),
        cdp__dt_element(b, a->out, c->q), cdp__dt_element(b, a->lse, c->query),
        cdp__dt_element(b, a->grad_out, c->q), grad_q, cdp__dt_element_of(b, grad, c->k),
        cdp__dt_element_of(b, grad, c->v));
    for (uint64_t i = 0; st == CDP_OK && i < n * w; ++i)
        a->cp->state[(c->query + i / w) * (w + 2) + 2 + i % w] +=
            cdp__number_get(b->dtype, grad_q, i);
    return st;
}

/* Uses the chunks of one sequence: x of the queries and y of the keys. start, size: of all keys. */
CDP__DT cdp_status cdp__dt_chunks_pair(const cdp__dt_heads *a, uint64_t batch, uint32_t x,
    uint32_t y, const uint64_t start[2], const uint64_t size[2], const void *kv, void *grad,
    cdp__dt_chunks_use *use) {
    const cdp_cp_desc *d = &a->cp->desc;
    const uint64_t keys = size[0] + size[1];
    cdp__dt_chunks c;
    if (!a->size[x] || !size[y] || (d->causal && a->start[x] < start[y])) return CDP_OK;
    memset(&c, 0, sizeof c);
    c.block.dtype = d->dtype;
    c.block.rows = a->size[x];
    c.block.keys = size[y];
    c.block.heads = d->heads;
    c.block.kv_heads = d->kv_heads;
    c.block.width = d->width;
    c.block.scale = d->scale;
    c.block.causal = d->causal && a->start[x] == start[y];
    c.query = (batch * a->cp->rows + (x ? a->size[0] : 0)) * d->heads;
    c.q = c.query * d->width;
    c.k = (batch * keys + (y ? size[0] : 0)) * d->kv_heads * d->width;
    c.v = d->batch * keys * d->kv_heads * d->width + c.k; /* behind the keys */
    return use(a, &c, kv, grad);
}

CDP__DT cdp_status cdp__dt_chunks_run(
    const cdp__dt_heads *a, uint32_t owner, const void *kv, void *grad, cdp__dt_chunks_use *use) {
    uint64_t start[2], size[2];
    cdp_status st = CDP_OK;
    (void)cdp_cp_rows(&a->cp->desc, owner, start, size);
    for (uint64_t batch = 0; batch < a->cp->desc.batch; ++batch)
        for (uint32_t k = 0; st == CDP_OK && k < 4; ++k)
            st = cdp__dt_chunks_pair(a, batch, k / 2, k % 2, start, size, kv, grad, use);
    return st;
}

#endif /* CDP_NO_TENSOR_OPS */

/* ---- >>dtensor/attention: products of tiles of the blocks of a ring -------------------------- */

/* Knows: queries, keys and values of some positions. Promises: the same attention over all
   positions as in one process, except for the order of sums; f64 between the blocks. */

#ifndef CDP_NO_TENSOR_OPS

/* The position in the sequence of row i of a rank's piece. */
CDP__DT uint64_t cdp__dt_cp_at(const uint64_t start[2], const uint64_t size[2], uint64_t i) {
    return i < size[0] ? start[0] + i : start[1] + i - size[0];
}

CDP__DT double cdp__dt_dot(
    cdp_dtype t, const void *a, uint64_t at_a, const void *b, uint64_t at_b, uint64_t n) {
    double sum = 0;
    for (uint64_t i = 0; i < n; ++i)
        sum += cdp__number_get(t, a, at_a + i) * cdp__number_get(t, b, at_b + i);
    return sum;
}

#define CDP__DT_TILE 64u /* queries, and keys, that are multiplied together */

/* weights: scores become weights, beside the largest score and the sum of weights so far, which are
   state[0] and state[1]; returns what former sums are multiplied by. mix: to = to factor + x. */
#define CDP__DT_ATTEND(S, T)                                                          \
    CDP__DT double cdp__dt_weights_##S(T *x, uint64_t n, T scale, double *state) {    \
        cdp__dt_times_all_##S(x, n, scale);                                           \
        const double most = (double)cdp__dt_most_##S(x, n), before = state[0];        \
        double shrink = 1;                                                            \
        if (most > before) {                                                          \
            state[0] = most;                                                          \
            shrink = state[1] > 0 ? cdp__dt_exp(before - most) : 0;                   \
        }                                                                             \
        cdp__dt_exps_##S(x, x, n, (T)state[0]);                                       \
        state[1] = state[1] * shrink + cdp__dt_total_##S(x, n);                       \
        return shrink;                                                                \
    }                                                                                 \
    CDP__DT void cdp__dt_mix_##S(double *to, double factor, const T *x, uint64_t n) { \
        for (uint64_t i = 0; i < n; ++i)                                              \
            to[i] = to[i] * factor + (double)x[i];                                    \
    }                                                                                 \
    /* p = exp(score - lse); ds = p (dp - own) scale, in place of dp */               \
    CDP__DT void cdp__dt_slopes_##S(T *p, T *ds, uint64_t n, T scale, T lse, T own) { \
        cdp__dt_times_all_##S(p, n, scale);                                           \
        cdp__dt_exps_##S(p, p, n, lse);                                               \
        for (uint64_t i = 0; i < n; ++i)                                              \
            ds[i] = p[i] * (ds[i] - own) * scale;                                     \
    }
CDP__DT_ATTEND(f32, float)
CDP__DT_ATTEND(f64, double)
#undef CDP__DT_ATTEND

CDP__DT void cdp__dt_mix(cdp_dtype t, double *to, double factor, const void *x, uint64_t n) {
    if (t == CDP_DTYPE_F32)
        cdp__dt_mix_f32(to, factor, (const float *)x, n);
    else
        cdp__dt_mix_f64(to, factor, (const double *)x, n);
}

/* Some queries of one head and some keys of one owner, all of which they attend to. Offsets are in
   elements. */
typedef struct cdp__dt_tile {
    uint64_t query, q, k, v; /* query: number of the first query and head; q: of its vector */
    uint64_t rows, keys;
} cdp__dt_tile;

typedef void cdp__dt_tile_use(
    const cdp__dt_heads *a, const cdp__dt_tile *s, const void *kv, void *grad);

CDP__DT void *cdp__dt_tile_memory(const cdp_cp *cp, uint64_t which) {
    return (uint8_t *)cp->tiles
        + which * CDP__DT_TILE * CDP__DT_TILE * cdp_dtype_size(cp->desc.dtype);
}

/* One row of scores per query: the products of rows `x` with rows `y`. */
CDP__DT void cdp__dt_tile_scores(const cdp__dt_heads *a, const cdp__dt_tile *s, const void *x,
    const void *y, uint64_t y_at, void *scores) {
    const cdp_cp_desc *d = &a->cp->desc;
    const uint64_t elem = cdp_dtype_size(d->dtype);
    const cdp__dt_strides p = {s->rows, s->keys, d->width, d->heads * d->width, 1, 1,
        d->kv_heads * d->width, CDP__DT_TILE, false};
    cdp__dt_gemm_of(
        d->dtype, &p, (const uint8_t *)x + s->q * elem, (const uint8_t *)y + y_at * elem, scores);
}

/* The sums of rows of keys or values, by weights: a row per query. */
CDP__DT void cdp__dt_tile_sums(const cdp__dt_heads *a, const cdp__dt_tile *s, const void *weights,
    const void *kv, uint64_t at, void *sums) {
    const cdp_cp_desc *d = &a->cp->desc;
    const cdp__dt_strides p = {
        s->rows, d->width, s->keys, CDP__DT_TILE, 1, d->kv_heads * d->width, 1, d->width, false};
    cdp__dt_gemm_of(
        d->dtype, &p, weights, (const uint8_t *)kv + at * cdp_dtype_size(d->dtype), sums);
}

/* Adds to rows of a gradient of keys or values: sums of rows of queries, by weights. */
CDP__DT void cdp__dt_tile_add(const cdp__dt_heads *a, const cdp__dt_tile *s, const void *weights,
    const void *x, void *grad, uint64_t at) {
    const cdp_cp_desc *d = &a->cp->desc;
    const uint64_t elem = cdp_dtype_size(d->dtype);
    const cdp__dt_strides p = {s->keys, d->width, s->rows, 1, CDP__DT_TILE, d->heads * d->width, 1,
        d->kv_heads * d->width, true};
    cdp__dt_gemm_of(
        d->dtype, &p, weights, (const uint8_t *)x + s->q * elem, (uint8_t *)grad + at * elem);
}

CDP__DT double *cdp__dt_tile_state(const cdp__dt_heads *a, const cdp__dt_tile *s, uint64_t row) {
    const cdp_cp_desc *d = &a->cp->desc;
    return a->cp->state + (s->query + row * d->heads) * (d->width + 2);
}

CDP__DT void cdp__dt_tile_forward(
    const cdp__dt_heads *a, const cdp__dt_tile *s, const void *kv, void *grad) {
    const cdp_cp_desc *d = &a->cp->desc;
    const uint64_t elem = cdp_dtype_size(d->dtype);
    uint8_t *weights = (uint8_t *)cdp__dt_tile_memory(a->cp, 0);
    uint8_t *sums = (uint8_t *)cdp__dt_tile_memory(a->cp, 2);
    double shrink[CDP__DT_TILE];
    (void)grad;
    cdp__dt_tile_scores(a, s, a->q, kv, s->k, weights);
    for (uint64_t i = 0; i < s->rows; ++i) {
        void *row = weights + i * CDP__DT_TILE * elem;
        double *state = cdp__dt_tile_state(a, s, i);
        shrink[i] = d->dtype == CDP_DTYPE_F32
            ? cdp__dt_weights_f32((float *)row, s->keys, (float)d->scale, state)
            : cdp__dt_weights_f64((double *)row, s->keys, d->scale, state);
    }
    cdp__dt_tile_sums(a, s, weights, kv, s->v, sums);
    for (uint64_t i = 0; i < s->rows; ++i)
        cdp__dt_mix(d->dtype, cdp__dt_tile_state(a, s, i) + 2, shrink[i],
            sums + i * d->width * elem, d->width);
}

/* p = exp(score - lse); dv += p dout; ds = p (dout v - dout out) scale; dq += ds k; dk += ds q */
CDP__DT void cdp__dt_tile_backward(
    const cdp__dt_heads *a, const cdp__dt_tile *s, const void *kv, void *grad) {
    const cdp_cp_desc *d = &a->cp->desc;
    const uint64_t elem = cdp_dtype_size(d->dtype);
    uint8_t *p = (uint8_t *)cdp__dt_tile_memory(a->cp, 0);
    uint8_t *ds = (uint8_t *)cdp__dt_tile_memory(a->cp, 1);
    uint8_t *sums = (uint8_t *)cdp__dt_tile_memory(a->cp, 2);
    cdp__dt_tile_scores(a, s, a->q, kv, s->k, p);
    cdp__dt_tile_scores(a, s, a->grad_out, kv, s->v, ds);
    for (uint64_t i = 0; i < s->rows; ++i) {
        const uint64_t at = i * CDP__DT_TILE * elem;
        const double own = cdp__dt_tile_state(a, s, i)[0]; /* dout out: the same for all keys */
        const double lse = cdp__number_get(d->dtype, a->lse, s->query + i * d->heads);
        if (d->dtype == CDP_DTYPE_F32)
            cdp__dt_slopes_f32((float *)(void *)(p + at), (float *)(void *)(ds + at), s->keys,
                (float)d->scale, (float)lse, (float)own);
        else
            cdp__dt_slopes_f64((double *)(void *)(p + at), (double *)(void *)(ds + at), s->keys,
                d->scale, lse, own);
    }
    cdp__dt_tile_add(a, s, p, a->grad_out, grad, s->v);
    cdp__dt_tile_add(a, s, ds, a->q, grad, s->k);
    cdp__dt_tile_sums(a, s, ds, kv, s->k, sums);
    for (uint64_t i = 0; i < s->rows; ++i)
        cdp__dt_mix(
            d->dtype, cdp__dt_tile_state(a, s, i) + 2, 1, sums + i * d->width * elem, d->width);
}

/* One head of one sequence, and the keys of one owner. */
typedef struct cdp__dt_cover {
    const cdp__dt_heads *a;
    uint64_t start[2], size[2]; /* of the keys */
    uint64_t batch, head, keys;
    const void *kv;
    void *grad;
    cdp__dt_tile_use *use;
} cdp__dt_cover;

CDP__DT void cdp__dt_cover_tile(
    const cdp__dt_cover *c, uint64_t i, uint64_t rows, uint64_t j, uint64_t keys) {
    const cdp_cp_desc *d = &c->a->cp->desc;
    const uint64_t query = (c->batch * c->a->cp->rows + i) * d->heads + c->head;
    const uint64_t shared = d->heads / d->kv_heads;
    const uint64_t k = ((c->batch * c->keys + j) * d->kv_heads + c->head / shared) * d->width;
    const uint64_t values = d->batch * c->keys * d->kv_heads * d->width; /* behind the keys */
    const cdp__dt_tile s = {query, query * d->width, k, values + k, rows, keys};
    c->use(c->a, &s, c->kv, c->grad);
}

/* Covers queries i and keys j by tiles; causal: those keys alone that are not after a query,
   because a weight of 0 does not hide a value that is not finite. */
CDP__DT void cdp__dt_cover_run(
    const cdp__dt_cover *c, uint64_t i, uint64_t rows, uint64_t j, uint64_t keys) {
    uint64_t common = keys;
    if (c->a->cp->desc.causal) {
        const uint64_t first = cdp__dt_cp_at(c->a->start, c->a->size, i);
        const uint64_t last = cdp__dt_cp_at(c->a->start, c->a->size, i + rows - 1);
        while (common && cdp__dt_cp_at(c->start, c->size, j + common - 1) > first)
            --common;
        if (common < keys && rows > 1 && cdp__dt_cp_at(c->start, c->size, j + common) <= last) {
            cdp__dt_cover_run(c, i, rows / 2, j + common, keys - common);
            cdp__dt_cover_run(c, i + rows / 2, rows - rows / 2, j + common, keys - common);
        }
    }
    if (common) cdp__dt_cover_tile(c, i, rows, j, common);
}

CDP__DT cdp_status cdp__dt_tiles(
    const cdp__dt_heads *a, uint32_t owner, const void *kv, void *grad, cdp__dt_tile_use *use) {
    const cdp_cp_desc *d = &a->cp->desc;
    const uint64_t rows = a->cp->rows;
    cdp__dt_cover c;
    memset(&c, 0, sizeof c);
    c.a = a;
    c.kv = kv;
    c.grad = grad;
    c.use = use;
    c.keys = cdp_cp_rows(d, owner, c.start, c.size);
    for (; c.batch < d->batch; ++c.batch)
        for (c.head = 0; c.head < d->heads; ++c.head)
            for (uint64_t j = 0; j < c.keys; j += CDP__DT_TILE)
                for (uint64_t i = 0; i < rows; i += CDP__DT_TILE)
                    cdp__dt_cover_run(&c, i, cdp__min(rows - i, CDP__DT_TILE), j,
                        cdp__min(c.keys - j, CDP__DT_TILE));
    return CDP_OK;
}

CDP__DT cdp_status cdp__dt_block_forward(void *user, uint32_t owner, const void *kv, void *grad) {
    const cdp__dt_heads *a = (const cdp__dt_heads *)user;
    if (a->cp->desc.kernel.forward)
        return cdp__dt_chunks_run(a, owner, kv, grad, cdp__dt_kernel_forward);
    return cdp__dt_tiles(a, owner, kv, grad, cdp__dt_tile_forward);
}

CDP__DT cdp_status cdp__dt_block_backward(void *user, uint32_t owner, const void *kv, void *grad) {
    const cdp__dt_heads *a = (const cdp__dt_heads *)user;
    if (a->cp->desc.kernel.backward)
        return cdp__dt_chunks_run(a, owner, kv, grad, cdp__dt_kernel_backward);
    return cdp__dt_tiles(a, owner, kv, grad, cdp__dt_tile_backward);
}

CDP__DT uint64_t cdp__dt_kv_elements(const cdp_cp *cp, uint64_t rows) {
    return cp->desc.batch * rows * cp->desc.kv_heads * cp->desc.width;
}

CDP__DT cdp_status cdp__dt_cp_memory(cdp_cp *cp) {
    const cdp_cp_desc *d = &cp->desc;
    const uint64_t elem = cdp_dtype_size(d->dtype);
    const uint64_t kv = 2 * cdp__dt_kv_elements(cp, cp->most_rows);
    const uint64_t state = d->batch * cp->rows * d->heads * (d->width + 2);
    cp->state = (double *)cdp__dt_alloc(cp->os, state * sizeof *cp->state);
    if (!cp->state) return cdp__dt_nomem("attention", state * sizeof *cp->state);
    const bool own = d->kernel.forward || d->kernel.backward;
    const uint64_t tiles = cdp__max(
        CDP__DT_TILE * (2 * CDP__DT_TILE + d->width) * elem, own ? cdp__dt_block_bytes(cp) : 0);
    cp->tiles = cdp__dt_alloc(cp->os, tiles);
    if (!cp->tiles) return cdp__dt_nomem("attention", tiles);
    if (!cp->group) return CDP_OK;
    cdp_status st = cdp__dt_link_here(d->mesh->all);
    if (st != CDP_OK) return st;
    cp->pack = cdp__dt_group_memory(cp->group, kv * elem + 1);
    cp->pack_grad = cdp__dt_group_memory(cp->group, kv * elem + 1);
    if (!cp->pack || !cp->pack_grad) return cdp__dt_nomem("attention", 2 * kv * elem);
    if (cp->n == 1) return CDP_OK;
    const uint32_t copies = d->gather ? cp->n : 1, kinds = d->gather ? 1 : 2;
    for (uint32_t i = 0; st == CDP_OK && i < kinds; ++i) {
        st = cdp__dt_room_for(cp, &cp->kv[i], kv * elem * copies);
        if (st == CDP_OK) st = cdp__dt_room_for(cp, &cp->grad[i], kv * elem * copies);
    }
    if (st == CDP_OK && d->gather) st = cdp__dt_gather_plans(cp, kv * elem, kv);
    return st;
}

CDP_API void cdp_cp_destroy(cdp_cp *cp) {
    if (!cp || cdp__dt_alive(cp, "cdp_cp_destroy", "cp") != CDP_OK) return;
    cdp__ended_add(cp);
    const bool ended = cdp__dt_mesh_ended(cp->desc.mesh); /* then the group keeps them */
    cdp__dt_link *link = ended ? NULL : cp->desc.mesh->all;
    for (uint32_t i = 0; !ended && i < 2; ++i) {
        cdp__dt_retire(cp->root, link, cp->kv[i].at);
        cdp__dt_retire(cp->root, link, cp->grad[i].at);
    }
    if (!ended) cdp__dt_retire(cp->root, link, cp->pack);
    if (!ended) cdp__dt_retire(cp->root, link, cp->pack_grad);
    cdp_plan_destroy(cp->gather_plan);
    cdp_plan_destroy(cp->sum_plan);
    cdp__dt_free(cp->os, cp->state);
    cdp__dt_free(cp->os, cp->tiles);
    cdp__dt_free(cp->os, cp);
}

CDP_API cdp_status cdp_cp_create(const cdp_cp_desc *desc, cdp_cp **out) {
    uint64_t start[2], size[2];
    if (!out) return cdp__dt_missing("cdp_cp_create", "out");
    *out = NULL;
    cdp_status st = cdp__dt_cp_check(desc);
    if (st != CDP_OK) return st;
    const cdp_os *os = desc->mesh->root->os;
    cdp_cp *cp = (cdp_cp *)cdp__dt_alloc(os, sizeof *cp);
    cdp__ended_remove(cp);
    if (!cp) return cdp__dt_nomem("attention", sizeof *cp);
    cp->desc = *desc;
    cp->os = os;
    cp->root = desc->mesh->root;
    cp->group = desc->mesh->all ? desc->mesh->all->group : NULL;
    cp->n = desc->mesh->count;
    cp->me = desc->mesh->me;
    if (cp->desc.dtype == CDP_DTYPE_DEFAULT) cp->desc.dtype = CDP_DTYPE_F32;
    if (!cp->desc.batch) cp->desc.batch = 1;
    if (!cp->desc.kv_heads) cp->desc.kv_heads = cp->desc.heads;
    if (cp->desc.scale == 0) { /* 1 / sqrt(width): a reciprocal keeps it below 2^10 */
        cp->desc.scale = cdp__dt_sqrt(1.0 / (double)cp->desc.width);
    }
    cp->rows = cp->me == CDP__DT_NONE ? 0 : cdp_cp_rows(&cp->desc, cp->me, start, size);
    cp->most_rows = cdp_cp_rows(&cp->desc, 0, start, size);
    st = cdp__dt_cp_memory(cp);
    if (st != CDP_OK) {
        cdp_cp_destroy(cp);
        return st;
    }
    *out = cp;
    return CDP_OK;
}

/* Packs this rank's keys, then its values. */
CDP__DT void cdp__dt_cp_pack(cdp_cp *cp, const void *k, const void *v) {
    const uint64_t n = cdp__dt_kv_elements(cp, cp->rows) * cdp_dtype_size(cp->desc.dtype);
    if (!n) return;
    memcpy(cp->pack, k, (size_t)n);
    memcpy((uint8_t *)cp->pack + n, v, (size_t)n);
}

CDP__DT cdp_status cdp__dt_cp_ready(
    const cdp_cp *cp, const char *call, const cdp__dt_argument *arrays, uint32_t count) {
    cdp_status st = cdp__dt_alive(cp, call, "cp");
    if (st == CDP_OK && cp->rows) st = cdp__dt_all_given(call, arrays, count);
    return st == CDP_OK ? cdp__dt_cp_runs(cp, call) : st;
}

CDP_API cdp_status cdp_cp_attention(
    cdp_cp *cp, const void *q, const void *k, const void *v, void *out, void *lse) {
    cdp__dt_heads a;
    const cdp__dt_argument arrays[] = {{"q", q}, {"k", k}, {"v", v}, {"out", out}, {"lse", lse}};
    cdp_status st = cdp__dt_cp_ready(cp, "cdp_cp_attention", arrays, 5);
    if (st != CDP_OK || cp->me == CDP__DT_NONE) return st;
    const cdp_cp_desc *d = &cp->desc;
    const uint64_t queries = d->batch * cp->rows * d->heads, step = d->width + 2;
    const double least = d->dtype == CDP_DTYPE_F32 ? -(double)FLT_MAX : -DBL_MAX;
    memset(&a, 0, sizeof a);
    a.cp = cp;
    a.q = q;
    (void)cdp_cp_rows(d, cp->me, a.start, a.size);
    cdp__dt_cp_pack(cp, k, v);
    memset(cp->state, 0, (size_t)(queries * step * sizeof *cp->state));
    for (uint64_t i = 0; i < queries; ++i)
        cp->state[i * step] = least; /* a score of -infinity weighs nothing beside it */
    st = cdp_cp_ring(cp, cp->pack,
        2 * cdp__dt_kv_elements(cp, cp->most_rows) * cdp_dtype_size(d->dtype), NULL, 0,
        cdp__dt_block_forward, &a);
    for (uint64_t i = 0; st == CDP_OK && i < queries; ++i) {
        const double *state = cp->state + i * step;
        cdp__number_put(d->dtype, lse, i, state[0] + cdp__dt_ln(state[1]));
        for (uint64_t x = 0; x < d->width; ++x) /* a NaN if every score was -infinity */
            cdp__number_put(d->dtype, out, i * d->width + x, state[2 + x] / state[1]);
    }
    return st;
}

CDP_API cdp_status cdp_cp_attention_backward(cdp_cp *cp, const void *q, const void *k,
    const void *v, const void *out, const void *lse, const void *grad_out, void *grad_q,
    void *grad_k, void *grad_v) {
    cdp__dt_heads a;
    const cdp__dt_argument arrays[] = {{"q", q}, {"k", k}, {"v", v}, {"out", out}, {"lse", lse},
        {"grad_out", grad_out}, {"grad_q", grad_q}, {"grad_k", grad_k}, {"grad_v", grad_v}};
    cdp_status st = cdp__dt_cp_ready(cp, "cdp_cp_attention_backward", arrays, 9);
    if (st != CDP_OK || cp->me == CDP__DT_NONE) return st;
    const cdp_cp_desc *d = &cp->desc;
    const uint64_t queries = d->batch * cp->rows * d->heads, step = d->width + 2;
    const uint64_t elem = cdp_dtype_size(d->dtype), own = cdp__dt_kv_elements(cp, cp->rows);
    const uint64_t most = 2 * cdp__dt_kv_elements(cp, cp->most_rows);
    memset(&a, 0, sizeof a);
    a.cp = cp;
    a.q = q;
    a.out = out;
    a.lse = lse;
    a.grad_out = grad_out;
    (void)cdp_cp_rows(d, cp->me, a.start, a.size);
    cdp__dt_cp_pack(cp, k, v);
    memset(cp->state, 0, (size_t)(queries * step * sizeof *cp->state));
    for (uint64_t i = 0; i < queries; ++i)
        cp->state[i * step] =
            cdp__dt_dot(d->dtype, grad_out, i * d->width, out, i * d->width, d->width);
    if (cp->root->counter) ++cp->root->counter->backward;
    st = cdp_cp_ring(cp, cp->pack, most * elem, cp->pack_grad, most, cdp__dt_block_backward, &a);
    if (cp->root->counter) --cp->root->counter->backward;
    for (uint64_t i = 0; st == CDP_OK && i < queries * d->width; ++i)
        cdp__number_put(d->dtype, grad_q, i, cp->state[i / d->width * step + 2 + i % d->width]);
    if (st != CDP_OK || !own) return st;
    memcpy(grad_k, cp->pack_grad, (size_t)(own * elem));
    memcpy(grad_v, (uint8_t *)cp->pack_grad + own * elem, (size_t)(own * elem));
    return CDP_OK;
}

CDP_API void cdp_cp_merge(
    float *out, float *lse, const float *out_b, const float *lse_b, uint64_t rows, uint64_t width) {
    for (uint64_t i = 0; i < rows; ++i) {
        const double a = (double)lse[i], b = (double)lse_b[i];
        const bool no_a = a == -(double)INFINITY, no_b = b == -(double)INFINITY; /* no key yet */
        const double most = a > b ? a : b;
        if (no_b) continue;
        const double x = no_a ? 0 : cdp__dt_exp(a - most), y = cdp__dt_exp(b - most);
        for (uint64_t d = i * width; d < (i + 1) * width; ++d)
            out[d] = (float)((x * (no_a ? 0 : (double)out[d]) + y * (double)out_b[d]) / (x + y));
        lse[i] = (float)(most + cdp__dt_ln(x + y));
    }
}

#endif /* CDP_NO_TENSOR_OPS */

/* ---- >>dtensor/local_maps: functions of local arrays ----------------------------------------- */

/* Knows: the layouts of inputs, and those that a function needs. Promises: cdp_local_map(). */

#ifndef CDP_NO_TENSOR_OPS

CDP__DT cdp_status cdp__dt_map_lies(const cdp_dtensor *t, const cdp_layout *need, uint32_t k) {
    char is[128], must[128];
    (void)cdp_layout_text(&t->layout, is, sizeof is);
    (void)cdp_layout_text(need, must, sizeof must);
    return cdp_error_set(CDP_ERR_INVALID, -1, 0,
        cdp__dt_mesh_same(t->layout.mesh, need->mesh)
            ? "cdp_local_map: in[%u] lies as %s, the function needs %s; set .redistribute or move "
              "it"
            : "cdp_local_map: in[%u] lies as %s of another mesh, the function needs %s of its own; "
              "set .redistribute or move it",
        k, is, must);
}

/* An input with the layout that the function needs: itself, or a new tensor. */
CDP__DT cdp_status cdp__dt_map_input(const cdp_local_map_desc *d, uint32_t k, cdp_dtensor *out) {
    const cdp_layout *need = d->need ? &d->need[k] : NULL;
    cdp_status st = cdp__dt_tensor_check(&d->in[k], "cdp_local_map");
    *out = d->in[k];
    out->owned = false;
    if (st != CDP_OK || !need || !need->mesh) return st;
    st = cdp_layout_check(need);
    if (st != CDP_OK || cdp_layout_same(&d->in[k].layout, need)) return st;
    if (!d->redistribute) return cdp__dt_map_lies(&d->in[k], need, k);
    st = cdp_dtensor_create(need, NULL, out);
    return st == CDP_OK ? cdp_redistribute(&d->in[k], out) : st;
}

CDP_API cdp_status cdp_local_map(const cdp_local_map_desc *d) {
    cdp_dtensor *in;
    const cdp_os *os = NULL;
    if (!d) return cdp__dt_missing("cdp_local_map", "desc");
    if (!d->func) return cdp__dt_missing("cdp_local_map", "desc.func");
    if (d->in_count && !d->in) return cdp__dt_missing("cdp_local_map", "desc.in");
    if (d->out_count && !d->out) return cdp__dt_missing("cdp_local_map", "desc.out");
    if (!d->in_count) return d->func(d->user, NULL, d->out);
    cdp_status st = cdp_layout_check(&d->in[0].layout);
    for (uint32_t k = 0; st == CDP_OK && k < d->out_count; ++k)
        st = cdp__dt_tensor_check(&d->out[k], "cdp_local_map");
    if (st != CDP_OK) return st;
    os = d->in[0].layout.mesh->root->os;
    in = (cdp_dtensor *)cdp__dt_alloc(os, d->in_count * sizeof *in);
    if (!in) return cdp__dt_nomem("cdp_local_map", d->in_count * sizeof *in);
    for (uint32_t k = 0; st == CDP_OK && k < d->in_count; ++k)
        st = cdp__dt_map_input(d, k, &in[k]);
    if (st == CDP_OK) st = d->func(d->user, in, d->out);
    for (uint32_t k = 0; k < d->in_count; ++k)
        cdp_dtensor_free(&in[k]);
    cdp__dt_free(os, in);
    return st;
}

#endif /* CDP_NO_TENSOR_OPS */

/* ---- >>dtensor/counting: labels and their table ---------------------------------------------- */

/* Knows: the counter of a mesh. Promises: the functions of section counts. */

#ifndef CDP_NO_TENSOR_OPS

/* NULL: nothing is counted, or the mesh was destroyed. */
CDP__DT cdp__dt_counter *cdp__dt_counter_of(const cdp_mesh *m) {
    m = cdp__dt_mesh_known(m);
    return m ? m->root->counter : NULL;
}

CDP_API cdp_status cdp_count_begin(cdp_mesh *m, const char *label) {
    char path[CDP__DT_PATH];
    const cdp_status st = cdp__dt_mesh_alive(m, "cdp_count_begin");
    if (st != CDP_OK) return st;
    if (!label) return cdp__dt_missing("cdp_count_begin", "label");
    if (!*label || strchr(label, '/'))
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_count_begin: the label \"%s\" is empty or holds a '/'", label);
    cdp__dt_root *root = m->root;
    if (!root->counter) root->counter = cdp__dt_counter_make(root->os);
    cdp__dt_counter *c = root->counter;
    if (!c) return cdp__dt_nomem("a label", sizeof *c);
    const char *above = c->open[c->depth]->path;
    if (c->depth == CDP__DT_LABELS || strlen(above) + strlen(label) + 2 > CDP__DT_PATH)
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_count_begin: \"%s\" lies too deep: at most %u labels and %u bytes", label,
            CDP__DT_LABELS, CDP__DT_PATH - 1);
    cdp__text t = cdp__text_of(path, sizeof path);
    cdp__text_add(&t, *above ? "%s/%s" : "%s%s", above, label);
    (void)cdp__text_end(&t);
    cdp__dt_label *l = cdp__dt_label_of(c, root->os, path);
    if (!l) return cdp__dt_nomem("a label", sizeof *l);
    c->open[++c->depth] = l;
    return CDP_OK;
}

CDP_API void cdp_count_end(cdp_mesh *m) {
    cdp__dt_counter *c = cdp__dt_counter_of(m);
    if (c && c->depth) --c->depth;
}

CDP_API void cdp_count_backward(cdp_mesh *m, bool on) {
    cdp__dt_counter *c = cdp__dt_counter_of(m);
    if (c) c->user_backward = on;
}

CDP_API void cdp_count_note(cdp_mesh *m, cdp_coll_kind kind, uint64_t bytes) {
    if ((uint32_t)kind < CDP_COLL_COUNT) cdp__dt_count(cdp__dt_counter_of(m), kind, bytes, false);
}

/* True if `path` is this label, or above it. */
CDP__DT bool cdp__dt_label_below(const cdp__dt_label *l, const char *path) {
    const size_t n = path ? strlen(path) : 0;
    return !n || (strncmp(l->path, path, n) == 0 && (!l->path[n] || l->path[n] == '/'));
}

CDP_API cdp_comm_count cdp_counts(const cdp_mesh *m, const char *path, bool backward) {
    cdp_comm_count sum;
    memset(&sum, 0, sizeof sum);
    const cdp__dt_counter *c = cdp__dt_counter_of(m);
    for (const cdp__dt_label *l = c ? c->first : NULL; l; l = l->next)
        for (uint32_t k = 0; cdp__dt_label_below(l, path) && k < CDP_COLL_COUNT; ++k) {
            sum.calls[k] += l->calls[backward][k];
            sum.bytes[k] += l->bytes[backward][k];
        }
    return sum;
}

CDP_API void cdp_counts_clear(cdp_mesh *m) {
    cdp__dt_counter *c = cdp__dt_counter_of(m);
    for (cdp__dt_label *l = c ? c->first : NULL; l; l = l->next) {
        memset(l->calls, 0, sizeof l->calls);
        memset(l->bytes, 0, sizeof l->bytes);
    }
}

/* Writes counts like "2 allreduce 4096, 1 allgather 512": bytes after the names. */
CDP__DT void cdp__dt_add_counts(cdp__text *t, const cdp_comm_count *c, bool json) {
    bool some = false;
    for (uint32_t k = 0; k < CDP_COLL_COUNT; ++k) {
        if (!c->calls[k]) continue;
        const unsigned long long calls = c->calls[k], bytes = c->bytes[k];
        cdp__text_add(t, some ? ", " : "");
        if (json)
            cdp__text_add(t, "\"%s\": {\"calls\": %llu, \"bytes\": %llu}",
                cdp_coll_name((cdp_coll_kind)k), calls, bytes);
        else
            cdp__text_add(t, "%llu %s (%llu B)", calls, cdp_coll_name((cdp_coll_kind)k), bytes);
        some = true;
    }
    if (!some && !json) cdp__text_add(t, "-");
}

CDP__DT void cdp__dt_counts_line(
    cdp__text *t, const cdp_mesh *m, const char *path, bool json, bool first) {
    const cdp_comm_count forward = cdp_counts(m, path, false), backward = cdp_counts(m, path, true);
    const uint64_t line = t->used;
    if (json) {
        cdp__text_add(t, first ? "\n  {\"path\": \"" : ",\n  {\"path\": \"");
        cdp__json_inside(t, path);
        cdp__text_add(t, "\", \"forward\": {");
        cdp__dt_add_counts(t, &forward, true);
        cdp__text_add(t, "}, \"backward\": {");
        cdp__dt_add_counts(t, &backward, true);
        cdp__text_add(t, "}}");
        return;
    }
    cdp__text_add(t, "%s", *path ? path : "(all)");
    cdp__text_pad(t, line, 20);
    cdp__dt_add_counts(t, &forward, false);
    cdp__text_pad(t, line, 66);
    cdp__text_add(t, " ");
    cdp__dt_add_counts(t, &backward, false);
    cdp__text_char(t, '\n');
}

CDP__DT void cdp__dt_counts_head(cdp__text *t) {
    cdp__text_add(t, "label");
    cdp__text_pad(t, 0, 20);
    cdp__text_add(t, "forward");
    cdp__text_pad(t, 0, 67);
    cdp__text_add(t, "backward\n");
}

CDP_API uint64_t cdp_counts_draw(
    const cdp_mesh *m, cdp_draw_format format, char *text, uint64_t room) {
    cdp__text t = cdp__text_of(text, room);
    const cdp__dt_counter *c = cdp__dt_counter_of(m);
    const bool json = format == CDP_DRAW_JSON;
    if (json)
        cdp__text_add(&t, "[");
    else
        cdp__dt_counts_head(&t);
    for (const cdp__dt_label *l = c ? c->first : NULL; l; l = l->next)
        cdp__dt_counts_line(&t, m, l->path, json, l == c->first);
    if (json) cdp__text_add(&t, "\n]\n");
    return cdp__text_end(&t);
}

#endif /* CDP_NO_TENSOR_OPS */

#endif /* CDP_DTENSOR_IMPL_INCLUDED */
