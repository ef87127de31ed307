/*  cdp_dtensor.h - distributed tensors for C: meshes, layouts, plans - v0.1.0 - MIT-0 or Unlicense

    WHAT IT IS
        A tensor that is cut over a mesh of ranks, as PyTorch's DTensor describes it, for programs
        that bring their own kernels. A mesh is an n-dimensional array of ranks. A layout says
        which part of a tensor each rank of a mesh holds. A plan moves a tensor from one layout to
        another with the least number of bytes, and can be printed before any rank exists. An edge
        is a plan together with the plan of its gradient. Nothing is communicated implicitly.

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

    CONTENTS (search for the name with >> before it)
        mesh          ranks as an n-dimensional array, with a group for each dimension
        layout        which part of a tensor each rank holds
        plan          moves a tensor from one layout to another
        dtensor       a layout and a pointer: fill, distribute, collect, redistribute
        edge          a plan and the plan of its gradient
        rules         which placements an operator accepts
        (implementation) kit: small helpers; kernels: reductions, conversions, strided copies;
        philox: random numbers; chunks: the arithmetic of cuts; grid: layouts as numbers; moves: who
        sends whom what; torch: PyTorch's steps; meshes; spelling: layouts as text; planner; runner;
        pictures; tensors; edges; operators

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
        know what that will cost                           cdp_plan_create, cdp_plan_info_of
        see who sends whom                                 cdp_plan_draw
        find out whether replicas are equal, repair them   cdp_dtensor_check
        communicate with a gradient                        cdp_edge_create, _forward, _backward
        compute with pieces while others still travel      cdp_edge_forward_pieces

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
        Differences: nothing is redistributed implicitly; uneven sizes and orders of cuts are
        exact; S(i) to S(j) is one exchange, not a gather; a plan states its bytes.

    CONFIGURATION
        CDP_DTENSOR_IMPLEMENTATION   this header alone; cdp.h is implemented elsewhere
        The macros of cdp.h hold here, too: CDP_API, CDP_STATIC, CDP_ASSERT, CDP_NO_STDIO.

    THREADS
        A mesh and everything made from it belong to one thread at a time. All ranks of a mesh
        make the same calls on it in the same order.

    MEMORY
        From the os of the group. A mesh: one group per dimension and two of all ranks. A plan:
        about 600 bytes per message, and scratch memory that cdp_plan_info.scratch_bytes states.
        A run allocates nothing, except the first asynchronous one of a plan of several phases.

    ERRORS
        INVALID and UNSUPPORTED: nothing was started; correct the call. MISMATCH of a mesh, layout
        or plan: ranks described different things; the group stays usable. A failure of
        communication breaks the group of the mesh; destroy the mesh and make another.

    LIMITS
        mesh: 6 dimensions, 65535 ranks | tensor: 8 dimensions, 63 bits of elements and bytes
        names of mesh dimensions: 31 bytes | host memory only: device memory is UNSUPPORTED

    License: MIT-0 or Unlicense, as you like; see the end of cdp.h.                            */
#include "cdp.h"

#ifndef CDP_DTENSOR_INCLUDED
#define CDP_DTENSOR_INCLUDED

#define CDP_DTENSOR_VERSION 100 /* major * 10000 + minor * 100 + patch */
#if CDP_DTENSOR_VERSION != CDP_VERSION
#error "cdp_dtensor.h and cdp.h are of different versions: copy both from the same release"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* The name of the enum of reductions from version 0.2 on. */
#if CDP_VERSION < 200
typedef cdp_reduce cdp_reduce_op;
#endif

#define CDP_MESH_DIMS 6u       /* most dimensions of a mesh */
#define CDP_TENSOR_DIMS 8u     /* most dimensions of a tensor */
#define CDP_NO_DIM 0xffffffffu /* no such dimension; or, where a function says so, all of them */
#define CDP_EACH 0xffffffffu   /* in place of a rank: every rank */

/* ---- >>mesh: ranks as an n-dimensional array ----------------------------------------------- */

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
    bool no_check;       /* do not compare the meshes of the ranks */
} cdp_mesh_desc;

/* Make a mesh and the groups of all its dimensions. Collective over desc->group, also for ranks
   that are left out: they get a mesh in which they have no coordinate, and every collective call
   on it returns at once. Errors: INVALID (the text names the member to change), NOMEM, MISMATCH
   (ranks gave different meshes; the text names the first difference and both ranks; the group
   stays usable), or the group's failure. */
CDP_MUST_CHECK CDP_API cdp_status cdp_mesh_create(const cdp_mesh_desc *desc, cdp_mesh **out);

/* The same with one existing group per dimension in groups[0..ndim-1]. They must hold this rank's
   row of the mesh along that dimension, in its order, and outlive the mesh. Additional error:
   INVALID (a group has other ranks than the mesh says). */
CDP_MUST_CHECK CDP_API cdp_status cdp_mesh_from_groups(
    const cdp_mesh_desc *desc, cdp_group *const *groups, cdp_mesh **out);

/* Destroy a mesh, its plans, and groups that no other mesh uses. Meshes made from it stay valid.
   Tensors and plans of the mesh must be gone. Local. NULL is allowed. */
CDP_API void cdp_mesh_destroy(cdp_mesh *mesh);

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
   *cut is a number for cdp_place.cut, valid on this mesh alone. Local; all ranks must make the
   same calls. Errors: INVALID (no such dimension, sizes of more than 63 bits), NOMEM. */
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

/* Measure it on this mesh: collective, about 50 ms, the same numbers on all ranks. Far values are
   those of the slowest pair, near ones those of neighbours. Errors: STATE (on paper), the group's
   failure. */
CDP_MUST_CHECK CDP_API cdp_status cdp_mesh_measure(cdp_mesh *mesh, cdp_net *out);

/* ---- >>layout: which part of a tensor each rank holds -------------------------------------- */

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

/* A tensor's element type and shape, and how it lies on a mesh. A plain value; zero-initialise
   it. Chunk rule: `size` elements over n ranks give pieces of c = ceil(size / n): rank i holds
   elements [c*i, c*(i+1)) as far as they exist, so the last pieces may be short or empty. With
   `block` b the rule divides ceil(size / b) blocks. If several mesh dimensions shard one tensor
   dimension, each cuts what the one before it left. Every rank holds one box of the tensor,
   contiguous and row-major. */
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
   start. Returns the length without the zero; writes at most `room` bytes, always a zero. */
CDP_API uint64_t cdp_layout_text(const cdp_layout *layout, char *text, uint64_t room);

/* OK if every member is valid. Errors: INVALID (no mesh, a dim out of range, too large a shape, a
   block that is no multiple of the block of a later cut, a cut beside another shard of its
   dimension or with another total); UNSUPPORTED (PARTIAL placements of different ops, except sum
   with avg; an op that the dtype does not have). */
CDP_MUST_CHECK CDP_API cdp_status cdp_layout_check(const cdp_layout *layout);

/* Set *out (NULL: not wanted) to what the rank at coord[0..] of the mesh holds (NULL: this rank).
   In a dimension where it holds nothing, size is 0 and start is the size of the whole tensor.
   Returns the number of its elements, 0 for ranks outside the mesh. `layout` must be valid. */
CDP_API uint64_t cdp_layout_box(const cdp_layout *layout, const uint32_t *coord, cdp_box *out);

/* True if every rank holds the same data under both: no byte need be moved. */
CDP_API bool cdp_layout_same(const cdp_layout *a, const cdp_layout *b);

/* Draw which rank holds what, for every rank of the mesh; tensors of more than two dimensions as
   planes. Local, also on paper. Returns the length without the zero, 0 if `layout` is not valid;
   writes at most `room` bytes. */
CDP_API uint64_t cdp_layout_draw(
    const cdp_layout *layout, cdp_draw_format format, char *text, uint64_t room);

/* ---- >>plan: moves a tensor from one layout to another ------------------------------------- */

typedef enum cdp_plan_kind {
    CDP_PLAN_BEST = 0, /* the lowest predicted time of DIRECT and BY_DIM; equal: DIRECT */
    CDP_PLAN_DIRECT,   /* the fewest bytes: reduce at owners, then one exchange */
    CDP_PLAN_BY_DIM,   /* a step per mesh dimension; equal neighbouring steps are merged */
    CDP_PLAN_TORCH     /* the steps that PyTorch's greedy planner makes, for comparison */
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

/* Bytes are those that ranks receive from other ranks. */
typedef struct cdp_plan_info {
    uint32_t steps;                  /* phases with communication, on any rank */
    uint32_t messages;               /* that this rank sends */
    uint64_t recv_bytes, send_bytes; /* of this rank */
    uint64_t most_recv_bytes; /* of the busiest rank; with PARTIAL and over 256 ranks: an average */
    uint64_t total_bytes;     /* of all ranks */
    uint64_t bound_bytes;     /* the least possible for this pair of layouts */
    uint64_t torch_bytes;     /* of PyTorch's steps, with their padding, for all ranks */
    uint64_t copied_bytes;    /* that this rank packs, unpacks or copies */
    uint64_t scratch_bytes;   /* memory of this rank beside the tensors */
    double predicted_us;
} cdp_plan_info;

/* Make a plan. Local, without a message; it works on paper, too. Both layouts are copied.
   Every element is reduced once, at one rank, in the order of coordinates, and then copied:
   replicas get equal bits, and so does every run. AVG divides once, after summing.
   Errors: INVALID (layouts, shapes, dtypes or ranks that do not fit), UNSUPPORTED (a target
   PARTIAL that the source does not have), NOMEM. */
CDP_MUST_CHECK CDP_API cdp_status cdp_plan_create(const cdp_plan_desc *desc, cdp_plan **out);
CDP_API void cdp_plan_destroy(cdp_plan *plan); /* local; NULL is allowed */

/* Run it: collective over the mesh; if the meshes of `from` and `to` have different ranks, over
   all ranks of their group. `in` and `out` are this rank's local arrays (NULL where it holds
   nothing) and do not overlap. One run of a plan at a time. The first run compares the plans of
   the ranks. Errors: INVALID (overlapping or missing memory), UNSUPPORTED (device memory), STATE
   (on paper; still running), MISMATCH (ranks run different plans; the text names both; the group
   stays usable), or the group's failure. */
CDP_MUST_CHECK CDP_API cdp_status cdp_plan_run(cdp_plan *plan, const void *in, void *out);

/* The same; *work is done when `out` is complete and `in` may change. The first run waits for the
   other ranks at the call, to compare plans. Additional error: NOMEM. */
CDP_MUST_CHECK CDP_API cdp_status cdp_plan_run_async(
    cdp_plan *plan, const void *in, void *out, cdp_work *work);

CDP_API cdp_plan_info cdp_plan_info_of(const cdp_plan *plan);

/* Draw the steps of all ranks: who sends whom how many bytes of which box, beside the bound and
   PyTorch's bytes. Returns the length without the zero; writes at most `room` bytes. */
CDP_API uint64_t cdp_plan_draw(
    const cdp_plan *plan, cdp_draw_format format, char *text, uint64_t room);

/* ---- >>dtensor: a layout and a pointer ----------------------------------------------------- */

typedef struct cdp_dtensor {
    cdp_layout layout;
    void *data; /* this rank's box, contiguous and row-major; may be NULL if that is empty */
    bool owned; /* cdp_dtensor_free() frees `data` */
} cdp_dtensor;

/* Make a tensor. Local. data NULL: memory of cdp_group_alloc(), not cleared; else it stays the
   caller's and must outlive the tensor. Errors: those of cdp_layout_check(), NOMEM. */
CDP_MUST_CHECK CDP_API cdp_status cdp_dtensor_create(
    const cdp_layout *layout, void *data, cdp_dtensor *out);
CDP_API void cdp_dtensor_free(cdp_dtensor *tensor); /* NULL is allowed */

/* Complete a layout whose pieces have any size: layout->place, dtype and ndim are set,
   local_shape is the shape of this rank's piece. Gathers the shapes; sets layout->shape, and cuts
   where pieces do not follow the chunk rule. Collective. Errors: INVALID, UNSUPPORTED (pieces
   that do not follow the chunk rule where several mesh dimensions shard one tensor dimension),
   MISMATCH (pieces that do not fit together; names the dimension and two ranks; the group stays
   usable), NOMEM, or the group's failure. */
CDP_MUST_CHECK CDP_API cdp_status cdp_layout_from_local(
    cdp_mesh *mesh, cdp_layout *layout, const uint64_t *local_shape);

/* Compare layouts over all ranks of the mesh, and replicas bit by bit. repair: copy the replica
   at coordinate 0 over the others instead of failing. Collective. Errors: MISMATCH (names the
   first element and two ranks; the group stays usable), NOMEM, STATE (on paper), or the group's
   failure. */
CDP_MUST_CHECK CDP_API cdp_status cdp_dtensor_check(cdp_dtensor *tensor, bool repair);

typedef enum cdp_fill_kind {
    CDP_FILL_ZERO = 0,
    CDP_FILL_VALUE,   /* a */
    CDP_FILL_UNIFORM, /* random in [a, b) (default b: 1 where both are 0) */
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
   Philox4x32-10. Errors: UNSUPPORTED (a dtype that cannot hold it: random kinds need floats, f8
   takes only zeros). */
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

/* ---- >>edge: a plan and the plan of its gradient ------------------------------------------- */

typedef struct cdp_edge cdp_edge;

typedef struct cdp_edge_desc {
    cdp_layout from, to;
    /* How the gradient of `to` arrives, and how that of `from` is wanted (default, with mesh NULL:
       as `to` and as `from`, PARTIAL made replicated). */
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
CDP_API void cdp_edge_destroy(cdp_edge *edge); /* local; NULL is allowed */

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

/* ---- >>rules: which placements an operator accepts ----------------------------------------- */

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* CDP_DTENSOR_INCLUDED */
