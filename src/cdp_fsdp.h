/*  cdp_fsdp.h - sharded training for C: FSDP, ZeRO - v0.3.0 - MIT-0 or Unlicense

    WHAT IT IS
        Trains a model whose parameters, gradients and optimizer state do not fit on one rank, with
        the numbers that one rank would get: PyTorch's FullyShardedDataParallel, and stages 1 to 3
        of ZeRO. Parameters are grouped into units, mostly one per layer. A unit is one flat range
        that is cut at row boundaries, without padding. It is gathered before it is used, the next
        one meanwhile, and freed after. Its gradients travel while backward goes on; each rank
        updates its own pieces.

    DO THIS
        #define CDP_IMPLEMENTATION      in exactly one C or C++ file, before
        #include "cdp_tcp.h"            or another way to connect ranks, and
        #include "cdp_fsdp.h"           which needs cdp.h alone

    QUICK START
        #define CDP_IMPLEMENTATION
        #include "cdp_tcp.h"
        #include "cdp_fsdp.h"
        #include <stdio.h>
        int main(void) {                                     // least squares: w becomes 3
            cdp_group *world;
            cdp_fsdp *f;
            if (cdp_init_from_env(NULL, &world) != CDP_OK) return cdp_print_error(stderr);
            cdp_fsdp_param w = { .name = "w", .ndim = 2, .shape = { 6, 4 } };
            cdp_optim adam = { .kind = CDP_OPTIM_ADAM, .lr = 0.1 };
            cdp_fsdp_desc desc = { .group = world, .params = &w, .param_count = 1,
                .optim = &adam, .max_norm = 1 };
            if (cdp_fsdp_create(&desc, &f) != CDP_OK) return cdp_print_error(stderr);
            for (int step = 0; step < 200; ++step) {
                if (cdp_fsdp_need(f, 0) != CDP_OK) return cdp_print_error(stderr);
                const float *x = (const float *)cdp_fsdp_data(f, 0);
                float *grad = cdp_fsdp_grad(f, 0);
                if (!grad) return cdp_print_error(stderr);
                for (int i = 0; i < 24; ++i) grad[i] += 2 * (x[i] - 3);
                if (step == 199) printf("rank %u: %g\n", cdp_rank(world), x[0]);
                if (cdp_fsdp_ready(f, 0) != CDP_OK || cdp_fsdp_backward_end(f, 0, NULL) != CDP_OK
                    || cdp_fsdp_step(f) != CDP_OK) return cdp_print_error(stderr);
            }
            cdp_fsdp_destroy(f);
            cdp_group_destroy(world);
            return 0;
        }
        gcc -O2 fit.c -o fit -pthread        cdprun -n 4 ./fit

    A STEP
        forward    need(u)  read cdp_fsdp_data()                            done(u)
        backward   need(u)  read cdp_fsdp_data(), add to cdp_fsdp_grad()    ready(u)
        then       cdp_fsdp_backward_end(), cdp_fsdp_step()
        Recomputation: need and done again, inside backward; needs nest. A unit that is used twice,
        or holds a tied parameter: `ready` after each use sends and adds each time, `uses` in its
        desc sends once. Micro-batches: each `ready` sends, and sums are added where they are owned;
        with cdp_fsdp_no_sync() whole gradients stay until it is off. A unit that a step did not
        use: `ready` alone, its gradients are zeros.

    A DEATH
        With desc.copies, further ranks hold each shard: they get the sum of its gradient as soon as
        its owner has it, and repeat its updates. When a rank dies, calls fail on the others; they
        make a group of those that are left, by cdp_elastic.h or otherwise, and go on:

            if now.changed: if f, and now.step is not 0, cdp_fsdp_rebind(f, now.group, now.step);
                else destroy f, and create it with now.group
            forward and backward as above, up to cdp_fsdp_backward_end()
            where any of these calls, or cdp_fsdp_rebind(), fails: cdp_elastic_alarm(e, why), and
                the next turn of the loop: cdp_elastic_next()
            if (cdp_elastic_commit(e) == CDP_OK) cdp_fsdp_step(f);

        A newcomer creates with desc.receive, where `now.step` is not 0; desc.turn is the step of
        the start. cdp_fsdp_step() follows a commit before any other call. Where no cdp_elastic
        decides, pass CDP_FSDP_AGREE, and ask cdp_fsdp_turn() which step comes next. A rank ends
        cdp_fsdp_backward_end() only after all ranks have entered it, with all that their updates
        need; so what one rank has updated all others can update, and at most the step in flight is
        computed again. With c copies any c deaths between two changes lose nothing, and more if
        each shard keeps a holder. Otherwise cdp_fsdp_rebind() says which shard is gone.

    CONTENTS
        Each part is marked >>folder/name and comes from src/folder/name.h. `grep '>>'` lists the
        parts in their order, which is that of the #include lines of src/cdp_fsdp.h. A part uses
        what comes before it, never what comes after it. Names in _api hold what programs call.

    API BY TASK
        I want to...                                       call
        know whether it fits, before a rank runs           cdp_fsdp_preview
        know how long a step takes, how much is hidden     cdp_fsdp_preview_times
        group parameters into units by size                cdp_fsdp_wrap
        know who owns which elements                       cdp_fsdp_range, cdp_fsdp_piece_at
        divide a model                                     cdp_fsdp_create
        use a unit, free it                                cdp_fsdp_need, _done, cdp_fsdp_data
        add gradients, send them                           cdp_fsdp_grad, cdp_fsdp_ready
        add micro-batches without sending                  cdp_fsdp_no_sync
        clip, find overflow                                cdp_fsdp_backward_end
        update                                             cdp_fsdp_step; leave out: _drop
        bring an optimizer of my own                       cdp_fsdp_desc.update
        save, load, on any number of ranks                 cdp_fsdp_save, cdp_fsdp_restore; or
                                                           cdp_checkpoint.h, cdp_fsdp_loaded
        know what the last step took                       cdp_fsdp_stats_of
        see it: gathers, reductions, waits, memory         cdp_fsdp_trace
        see units in the pictures of cdp_mem.h             desc.label
        go on when ranks die or join                       desc.copies, cdp_fsdp_rebind
        tell the others that this rank does not go on      cdp_fsdp_abort
        divide the weights of stages of a pipeline         .shards of cdp_pipe_stage, see
                                                           cdp_pipeline.h

    COMING FROM PyTorch
        FSDP(module, process_group)                   cdp_fsdp_create, desc.group
        fully_shard(module, mesh=mesh); device_mesh   desc.group, and for HSDP desc.replicate: the
                                                          groups cdp_mesh_group() gives
        device_id                                     the group's; host memory
        auto_wrap_policy; nested fully_shard          cdp_fsdp_wrap, by size; cdp_fsdp_param.unit
        FULL_SHARD; SHARD_GRAD_OP                     the default; `keep` on all units
        HYBRID_SHARD; _HYBRID_SHARD_ZERO2             desc.replicate; and `keep`
        NO_SHARD                                      cdp_ddp_create
        reshard_after_forward True; False             the default; cdp_fsdp_unit.keep
        reshard_after_forward = int                   not offered
        set_reshard_after_forward, _backward          cdp_fsdp_unit.keep: until the step ends
        shard_placement_fn                            cdp_fsdp_param.grain
        MixedPrecision, mp_policy: param_dtype        desc.compute, for all parameters
        reduce_dtype                                  desc.reduce; sums are f32 at every step
        keep_low_precision_grads, buffer_dtype,       the program's: gradients are f32, buffers and
            output_dtype, cast_forward_inputs,            activations belong to it
            cast_root_forward_inputs,
            _module_classes_to_ignore
        cpu_offload, offload_policy (pin_memory)      everything is in host memory
        backward_prefetch = BACKWARD_PRE,             desc.prefetch: both directions, in the order
            forward_prefetch, set_modules_to_             of the last step
            forward_prefetch, _backward_prefetch
        backward_prefetch = None; BACKWARD_POST       desc.no_prefetch; not offered
        set_unshard_in_backward(False)                cdp_fsdp_grad and _ready without _need
        set_is_last_backward                          cdp_fsdp_backward_end
        limit_all_gathers                             always: there are 1 + prefetch slots
        use_orig_params                               always: updates see pieces of parameters
        sync_module_states                            the default; False: desc.own_init
        param_init_fn                                 desc.fill: no rank ever has the whole
        ignored_modules, _parameters, _states,        do not list them
            ignored_params
        requires_grad = False                         cdp_fsdp_param.frozen
        no_sync(), set_requires_gradient_sync         cdp_fsdp_no_sync
        set_gradient_divide_factor,                   desc.divisor
            set_reduce_scatter_divide_factor
        set_force_sum_reduction_for_comms             always: sums are divided once, at the end
        set_allocate_memory_from_process_             always: cdp_group_alloc
            group_for_comm
        set_requires_all_reduce                       not offered: copies are added once per step
        unshard, reshard; summon_full_params          cdp_fsdp_need, _done
        clip_grad_norm_                               desc.max_norm
        ShardedGradScaler                             cdp_scaler, skip_nonfinite, found_inf
        state_dict (full), optim_state_dict;          cdp_fsdp_save; cdp_fsdp_restore: values, and
            load_state_dict, set_state_dict_type          each state
        state_dict (sharded, local)                   cdp_checkpoint.h, cdp_fsdp_loaded
        register_forward_hook, register_comm_hook,    not offered
            set_all_reduce_hook, set_post_optim_
            event, set_custom_all_gather,
            set_custom_reduce_scatter
        ZeroRedundancyOptimizer(params,               stage CDP_FSDP_OPTIMIZER; desc.params, .group
            process_group)
            optimizer_class, **defaults                   desc.optim or desc.update
            add_param_group                               not offered: list all at creation
            whole parameters to one rank                  CDP_GRAIN_WHOLE
            parameters_as_bucket_view                     always
            overlap_with_ddp                              gathers of new values overlap forward;
                                                          no update runs inside backward
            consolidate_state_dict                        cdp_fsdp_save of each state
            join                                          a rank without data: `ready` alone

    CONFIGURATION
        CDP_FSDP_IMPLEMENTATION      this header alone; cdp.h is implemented elsewhere
        The macros of cdp.h hold here, too: CDP_API, CDP_STATIC, CDP_ASSERT, CDP_NO_STDIO.

    THREADS
        A cdp_fsdp belongs to one thread at a time. Gathers and reductions go on in the progress
        thread of the group, or inside calls.

    MEMORY
        n ranks, P elements. Own pieces: 8 P/n bytes, 4 P/n for each array of state, 2 P/n for a
        16-bit copy; each of desc.copies the same without a 16-bit copy. Slots: units of one size
        share 1 + prefetch of them; kept units have their own. Whole gradients: two of the largest
        unit; with stage 1, of units with `uses` and of what no_sync keeps, all. 16-bit reductions:
        two more of half the size. All of it is allocated at creation, but: what no_sync keeps,
        slots for units of one size that are needed at one time, whole gradients of more than two
        units at one time, and the order of units, which the first steps record.
        cdp_fsdp_rebind() holds the shards before and after it at one time, without slots of the
        former. cdp_fsdp_preview() says how much; cdp_fsdp_stats_of() counts. The group adds what
        peers send early: cdp_group_desc.window_bytes bounds it.
        Ranks of one host map each other's memory of cdp_group_alloc(), which all of this is, to
        read it in place. That is the same memory, but it counts in the address space of each of
        them, as `ulimit -v` (RLIMIT_AS) limits it: up to what all ranks of the host hold. Under
        such a limit set cdp_group_desc.expose_bytes to UINT64_MAX: then nothing is mapped, and
        data are copied through rings, as examples/26_gpt2.c does.

    ERRORS
        INVALID, UNSUPPORTED and STATE: nothing was done; correct the call. Creation fails on all
        ranks, with the reason of one; MISMATCH names what differs and both ranks. The groups stay
        usable. In a step others wait for a rank whose call was refused: it corrects the call, or
        destroys its cdp_fsdp, and they learn at once that it has left.
        After a failure of communication, of an update, or of memory in a step, every later call
        fails: destroy the cdp_fsdp, or cdp_fsdp_rebind() it to another group. Other ranks learn of
        it at their next operation; of a rank that is lost, and of memory, at once, where they wait.

    LIMITS
        65535 ranks | 65534 units | 1048576 parameters of 8 dimensions | host memory only
        pieces are f32; gathered and reduced as f32, bf16 or f16
        at most 3 copies of each shard; they and cdp_fsdp_rebind() not with replicate, norm_group
        not yet: device memory, several dtypes in one model, updates inside backward, pipelines' and
        tensors' meshes in one desc (their groups are: norm_group, `copy`)

    License: MIT-0 or Unlicense, as you like; see the end of cdp.h.                            */
#include "cdp.h"

#ifndef CDP_FSDP_INCLUDED
#define CDP_FSDP_INCLUDED

#define CDP_FSDP_VERSION 300 /* major * 10000 + minor * 100 + patch */
#if CDP_FSDP_VERSION != CDP_VERSION
#error "cdp_fsdp.h and cdp.h are of different versions: copy both from the same release"
#endif
#if defined(CDP_NO_GROUPS) || defined(CDP_NO_TRAINING)
#error "cdp_fsdp.h needs what CDP_NO_GROUPS and CDP_NO_TRAINING leave out"
#endif
#ifdef CDP_NO_MESSAGES
#error "cdp_fsdp.h needs what CDP_NO_MESSAGES leaves out"
#endif
#ifdef CDP_FEW_DTYPES
#error "cdp_fsdp.h converts between dtypes: do not define CDP_FEW_DTYPES"
#endif

#ifdef __cplusplus
extern "C" {
#endif

#include "fsdp/fsdp_api.h"

#ifdef __cplusplus
} /* extern "C" */
#endif
#include "fsdp/cxx_api.h"

#endif /* CDP_FSDP_INCLUDED */

#if (defined(CDP_IMPLEMENTATION) || defined(CDP_FSDP_IMPLEMENTATION)) \
    && !defined(CDP_FSDP_IMPL_INCLUDED)
#define CDP_FSDP_IMPL_INCLUDED

#include "fsdp/cuts.h"
#include "fsdp/checks.h"
#include "fsdp/holders.h"
#include "fsdp/paper.h"
#include "fsdp/times.h"
#include "fsdp/state.h"
#include "fsdp/gather.h"
#include "fsdp/copies.h"
#include "fsdp/reduce.h"
#include "fsdp/step.h"
#include "fsdp/picture.h"
#include "fsdp/agree.h"
#include "fsdp/create.h"
#include "fsdp/rebind.h"

#endif /* CDP_FSDP_IMPL_INCLUDED */
