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
#include "cdp.h"

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

#include "dtensor/mesh_api.h"
#include "dtensor/layout_api.h"
#include "dtensor/plan_api.h"
#include "dtensor/dtensor_api.h"
#include "dtensor/item_api.h"
#include "dtensor/edge_api.h"
#include "dtensor/rules_api.h"
#include "dtensor/tensor_parallel_api.h"
#include "dtensor/context_parallel_api.h"
#include "dtensor/local_map_api.h"
#include "dtensor/counts_api.h"

#ifdef __cplusplus
} /* extern "C" */
#endif
#include "dtensor/cxx_api.h"

#endif /* CDP_DTENSOR_INCLUDED */

#if (defined(CDP_IMPLEMENTATION) || defined(CDP_DTENSOR_IMPLEMENTATION)) \
    && !defined(CDP_DTENSOR_IMPL_INCLUDED)
#define CDP_DTENSOR_IMPL_INCLUDED
#undef CDP__HERE
#define CDP__HERE CDP__FILE_DTENSOR

#include "dtensor/kit.h"
#include "dtensor/kernels.h"
#include "dtensor/philox.h"
#include "dtensor/chunks.h"
#include "dtensor/counter.h"
#include "dtensor/grid.h"
#include "dtensor/cuts.h"
#include "dtensor/moves.h"
#include "dtensor/single.h"
#include "dtensor/sums.h"
#include "dtensor/torch.h"
#include "dtensor/meshes.h"
#include "dtensor/mesh_parts.h"
#include "dtensor/spelling.h"
#include "dtensor/stages.h"
#include "dtensor/scratch.h"
#include "dtensor/phases.h"
#include "dtensor/acts.h"
#include "dtensor/planner.h"
#include "dtensor/plan_words.h"
#include "dtensor/runner.h"
#include "dtensor/runner_async.h"
#include "dtensor/pictures.h"
#include "dtensor/plan_pictures.h"
#include "dtensor/kept.h"
#include "dtensor/tensors.h"
#include "dtensor/fill.h"
#include "dtensor/agreement.h"
#include "dtensor/edges.h"
#include "dtensor/operators.h"
#include "dtensor/operators_special.h"
#include "dtensor/chooser.h"
#include "dtensor/rows.h"
#include "dtensor/products.h"
#include "dtensor/sharers.h"
#include "dtensor/styles.h"
#include "dtensor/losses.h"
#include "dtensor/rings.h"
#include "dtensor/attention_blocks.h"
#include "dtensor/attention.h"
#include "dtensor/local_maps.h"
#include "dtensor/counting.h"

#endif /* CDP_DTENSOR_IMPL_INCLUDED */
