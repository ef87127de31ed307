/* SPDX-License-Identifier: MIT-0 OR Unlicense
   Both texts are at the end of cdp.h. */
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

/* Joined from src/cdp_fsdp.h and what it includes: change that, then `make headers`. */
#if !defined(CDP_INCLUDED) \
    || defined(CDP_IMPLEMENTATION) || defined(CDP_CORE_IMPLEMENTATION) \
    || defined(CDP_FSDP_IMPLEMENTATION)
#include "cdp.h"
#endif

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

/* ---- >>fsdp/fsdp_api: parameters, gradients and optimizer state divided over ranks ----------- */

#define CDP_FSDP_DIMS 8u           /* most dimensions of a parameter */
#define CDP_FSDP_STATES 4u         /* most arrays of optimizer state */
#define CDP_FSDP_UNITS 65534u      /* most units */
#define CDP_FSDP_COPIES 3u         /* most copies of each shard */
#define CDP_FSDP_AGREE UINT64_MAX  /* in place of a number of steps: the ranks find it */
#define CDP_FSDP_VALUES UINT32_MAX /* in place of a state: the parameter itself */

/* Where a parameter may be cut: at multiples of so many elements, and at its ends. */
#define CDP_GRAIN_ROW 0u /* rows stay whole: the product of all dimensions but the first */
#define CDP_GRAIN_ANY 1u /* at any element */
#define CDP_GRAIN_WHOLE UINT64_MAX /* one rank has all of it */

typedef enum cdp_fsdp_stage {
    CDP_FSDP_FULL = 0,  /* ZeRO 3: parameters, gradients and optimizer state are divided */
    CDP_FSDP_GRADIENTS, /* ZeRO 2: all parameters stay on every rank */
    CDP_FSDP_OPTIMIZER  /* ZeRO 1: all gradients do, too */
} cdp_fsdp_stage;

/* All but the pointers is the same on all ranks; creation compares it. */
typedef struct cdp_fsdp_param {
    const char *name; /* copied (default: "param<index>") */
    uint32_t unit;    /* which unit it is gathered with */
    uint32_t ndim;
    uint64_t shape[CDP_FSDP_DIMS]; /* a size may be 0; no dimensions: one element */
    uint64_t grain;                /* CDP_GRAIN_..., or a number of elements (default: ROW) */
    const float *init;             /* first values of the whole parameter: rank 0's, or each
                                      rank's own with own_init (default: desc.fill, or zeros) */
    bool frozen;                   /* has no gradient and no optimizer state */
    bool copy; /* norm_group has another rank whose copy of this parameter counts in the norm */
} cdp_fsdp_param;

typedef struct cdp_fsdp_unit {
    const char *name; /* copied (default: "unit<index>") */
    bool keep;        /* gathered once per step, and not freed between forward and backward */
    uint32_t uses;    /* calls of cdp_fsdp_ready() after which its gradients travel (default: 1) */
} cdp_fsdp_unit;

/* A contiguous range of one parameter that this rank owns. */
typedef struct cdp_fsdp_piece {
    uint32_t param;
    uint64_t first, count; /* elements, row-major */
    float *data;
    const float *grad; /* after cdp_fsdp_backward_end(): the mean. NULL: frozen */
    float *state[CDP_FSDP_STATES];
    double scale;  /* multiply `grad` by it: the factor of a clip, and 1 / loss_scale */
    uint64_t step; /* number of this update, from 1; skipped ones do not count */
} cdp_fsdp_piece;

typedef struct cdp_fsdp_desc {
    cdp_group *group;      /* the ranks over which everything is divided */
    cdp_group *replicate;  /* ranks with the same position in other such groups: their shards
                                    are copies of this rank's (default: there are none) */
    cdp_group *norm_group; /* all ranks that hold a part of the model (default: group) */
    const cdp_fsdp_param *params;
    uint32_t param_count;
    const cdp_fsdp_unit *units;
    uint32_t unit_count; /* (default: as many as params name) */
    cdp_fsdp_stage stage;
    cdp_dtype compute; /* what is gathered: F32, BF16 or F16 (default: F32) */
    cdp_dtype reduce;  /* what gradients travel as: F32, BF16 or F16 (default: F32) */
    /* The program's own, as in cdp_optimizer_desc: it must outlive the fsdp, and `step` counts
       updates. Equal on all ranks: creation compares it. */
    cdp_optim *optim;
    /* An optimizer of the program's own, in place of `optim`: changes one piece. */
    cdp_status (*update)(void *user, const cdp_fsdp_piece *piece);
    /* Hears how many bytes are in use under a label, as soon as that changes: "<unit>" for its
       gathered parameters, "<unit> gradients" for whole gradients; 0: none any more. What
       cdp_mem_external() takes. Called in the midst of calls with this fsdp, so none is allowed. */
    void (*label)(void *user, const char *label, uint64_t bytes);
    /* First values of parameters without `init`: `count` elements from `first` on, which depend on
       `param` and their place alone, so that nobody ever holds a whole parameter. On all
       ranks, or on none. */
    void (*fill)(void *user, uint32_t param, uint64_t first, uint64_t count, float *out);
    void *user;
    uint32_t states;     /* arrays of state that `update` needs; zeros at first */
    double max_norm;     /* gradients are clipped to it (default: not) */
    double divisor;      /* of sums over ranks (default: ranks of group and replicate) */
    bool skip_nonfinite; /* no rank updates if any gradient is infinite or NaN */
    uint32_t prefetch;   /* units gathered ahead (default: 1) */
    bool no_prefetch;    /* none is */
    bool own_init;       /* each rank's `init` counts, not rank 0's */
    uint32_t events;     /* so many of a step are kept for cdp_fsdp_trace() (default: none) */
    /* So many further ranks hold each shard, get its gradient in each step, and repeat its updates:
       then cdp_fsdp_rebind() loses nothing when a rank dies. Holders of the shard of rank r are
       r + k * copy_distance for k = 1 to `copies`, modulo the number of ranks; with fewer ranks
       there are fewer. Results of `update` may depend on its piece and on constants alone, and what
       it sets, as the settings of `optim`, is set for a step before its cdp_fsdp_backward_end()
       (default: none) */
    uint32_t copies;
    uint32_t copy_distance; /* e.g. ranks of a host, so a host may die (default: 1) */
    bool receive;  /* a newcomer: the others call cdp_fsdp_rebind(), and values come from them */
    uint64_t turn; /* steps that have ended before creation, for cdp_fsdp_turn() (default: 0) */
    uint32_t paper_ranks; /* for cdp_fsdp_preview() and cdp_fsdp_range() without a group */
} cdp_fsdp_desc;

typedef struct cdp_fsdp cdp_fsdp;

/* The same on all ranks. */
typedef struct cdp_fsdp_info {
    double norm;    /* of the mean gradient of the whole model, divided by the loss scale */
    double scale;   /* what updates multiply the mean by */
    bool found_inf; /* an element is infinite or NaN */
    bool skipped;   /* cdp_fsdp_step() will update nothing */
} cdp_fsdp_info;

/* Of one rank. Bytes received follow from the cuts; what a transport adds is not counted. */
typedef struct cdp_fsdp_stats {
    uint64_t shard_bytes;    /* own pieces: values and gradients */
    uint64_t state_bytes;    /* optimizer state */
    uint64_t copy_bytes;     /* own pieces in the dtype that is gathered, if that is not f32 */
    uint64_t slot_bytes;     /* where units are gathered */
    uint64_t gradient_bytes; /* whole gradients */
    uint64_t scratch_bytes;  /* gradients on their way in 16 bits */
    uint64_t held_bytes;     /* copies of other ranks' shards, with gradients and state */
    uint64_t total_bytes;    /* all of these */
    uint64_t gather_bytes, reduce_bytes; /* received in the last step; on paper: in each step */
    uint64_t forward_bytes; /* sent to holders of copies in the last step; on paper: in each */
    uint64_t moved_bytes;   /* received when shards moved to this group */
    uint32_t gathers, reductions; /* of the last step */
    uint32_t misses;              /* of the last step: gathers that began when they were needed */
    uint64_t exposed_ns;  /* of the last step: how long calls waited for gathers, reductions */
    double largest_share; /* the largest rank's elements over the mean of all ranks */
    uint64_t steps;       /* that have ended since creation, or the last cdp_fsdp_rebind() */
    uint64_t step_ns;     /* of the last step: from the end of the one before to its own */
    uint64_t comm_ns; /* of the last step: a gather or a reduction was under way, until a call saw
                         its end */
    double hidden;    /* of the last step: 1 - exposed_ns / comm_ns, 0 to 1 */
    uint64_t total_step_ns, total_comm_ns, total_exposed_ns; /* of all steps */
} cdp_fsdp_stats;

/* For cdp_fsdp_preview_times(). An operation takes `latency_us` for each doubling of ranks, and its
   bytes at `bytes_per_us`, one operation after the other. */
typedef struct cdp_fsdp_speed {
    double latency_us, bytes_per_us;
    const double *unit_us; /* forward time of each unit; backward takes twice that (NULL: 0) */
} cdp_fsdp_speed;

typedef struct cdp_fsdp_times {
    double step_us;    /* without the update */
    double comm_us;    /* gathers and reductions travel */
    double exposed_us; /* the part of step_us in which calls wait for them */
    double hidden;     /* 1 - exposed_us / comm_us */
} cdp_fsdp_times;

/* Group parameters into units of at least `elements` elements each, in the order of the list (the
   last one may have fewer): what an auto_wrap_policy by size does. Writes params[i].unit, and
   returns the number of units; 0 for NULL. Pure. At most CDP_FSDP_UNITS: the last one has the rest.
   */
CDP_API uint32_t cdp_fsdp_wrap(cdp_fsdp_param *params, uint32_t param_count, uint64_t elements);

/* The elements of a unit that rank `rank` of `ranks` owns: [start, end) of its trainable or frozen
   parameters, one after the other in the order of the list. Pure. A rank's range begins at the
   allowed place nearest to rank * total / ranks, of two equally near ones the lower. INVALID:
   cdp_fsdp_create() would refuse desc->params, or there is no such unit or rank; 0 and 0. */
CDP_MUST_CHECK CDP_API cdp_status cdp_fsdp_range(const cdp_fsdp_desc *desc, uint32_t unit,
    bool frozen, uint32_t ranks, uint32_t rank, uint64_t *start, uint64_t *end);

/* What rank `rank` of desc->paper_ranks (or of the group) will need and receive in each step that
   uses every unit once forward and once backward, in the order of their numbers. Pure: no rank
   runs. Errors: INVALID, UNSUPPORTED, as cdp_fsdp_create(). */
CDP_MUST_CHECK CDP_API cdp_status cdp_fsdp_preview(
    const cdp_fsdp_desc *desc, uint32_t rank, cdp_fsdp_stats *out);
/* How long such a step will take, and how much of it is waiting. Pure, as cdp_fsdp_preview(). Of
   `prefetch` at most 63 count; what goes to `replicate` and to `copies` does not. Errors: those of
   cdp_fsdp_preview(); INVALID (a speed of 0, a time that is negative). */
CDP_MUST_CHECK CDP_API cdp_status cdp_fsdp_preview_times(
    const cdp_fsdp_desc *desc, uint32_t rank, const cdp_fsdp_speed *speed, cdp_fsdp_times *out);

/* Make it. Collective over desc->group, replicate and norm_group; compares descs, distributes first
   values. Descs, names and `init` may go afterwards, the groups and `optim` not. Errors: INVALID
   (the text names the member), UNSUPPORTED (another dtype), NOMEM, MISMATCH (the text names the
   first difference and both ranks), or the group's failure. All ranks return the error of one, with
   its rank and text; the groups stay usable. A rank without desc or desc->group cannot tell. One
   that alone lacks `replicate` cannot tell the copies of its shard: those without norm_group wait
   for their deadline, and name it. */
CDP_MUST_CHECK CDP_API cdp_status cdp_fsdp_create(const cdp_fsdp_desc *desc, cdp_fsdp **out);
/* Waits for what is in flight. Before its groups are destroyed. A child of fork() must not use the
   cdp_fsdp of its parent: calls are STATE. Ranks that wait in a step for this
   one learn that it has left. NULL is allowed. */
CDP_API void cdp_fsdp_destroy(cdp_fsdp *fsdp);
/* This rank does not go on: its calls fail from now on with CDP_ERR_ABORTED and `reason`, and so do
   those of other ranks that communicate, also where they wait already. The groups of the desc stay
   usable. Not collective. NULL is allowed. */
CDP_API void cdp_fsdp_abort(cdp_fsdp *fsdp, const char *reason);

/* Between `need` and `done` or `ready` all parameters of a unit are here. need: returns when they
   are, and begins to gather what will be needed next; calls nest. done: ends one need. ready: this
   rank has added all that it will to the unit's gradients; their sum begins to travel; ends one
   need if one is open. All ranks make the same calls in the same order. Errors: INVALID (no such
   unit), STATE (done or ready without what must come before; ready between cdp_fsdp_backward_end()
   and cdp_fsdp_step()), NOMEM, MISMATCH (ranks use units in different orders; the text names a
   unit), or the group's failure. */
CDP_MUST_CHECK CDP_API cdp_status cdp_fsdp_need(cdp_fsdp *fsdp, uint32_t unit);
CDP_API cdp_status cdp_fsdp_done(cdp_fsdp *fsdp, uint32_t unit);
CDP_MUST_CHECK CDP_API cdp_status cdp_fsdp_ready(cdp_fsdp *fsdp, uint32_t unit);

/* The whole parameter, of desc.compute, aligned to its elements; NULL if its unit is not needed
   now. Read it only. Ask anew after each need. */
CDP_API const void *cdp_fsdp_data(cdp_fsdp *fsdp, uint32_t param);
/* The whole gradient, f32, until ready: add to it, it begins as zeros. NULL: frozen, or no memory
   or a failure (the last error says which). May wait for an earlier unit's gradients to leave. */
CDP_API float *cdp_fsdp_grad(cdp_fsdp *fsdp, uint32_t param);

/* On: `ready` keeps the whole gradients of its unit on this rank, and later ones add to them; off:
   the next `ready` of each unit sends them. Errors: INVALID; STATE (after cdp_fsdp_backward_end());
   the same on all ranks. */
CDP_API cdp_status cdp_fsdp_no_sync(cdp_fsdp *fsdp, bool on);

/* Ends the backward passes of a step: waits for all sums, and agrees on norm and overflow with one
   operation. Divides the sums by desc.divisor. loss_scale: the loss was multiplied by it (0: 1).
   OK on any rank: every rank has what its update needs. Errors: INVALID; STATE (a unit with
   gradients that are not `ready`, or still needed: the text names it, and the call may be made
   again after that is mended; it was ended already), or the group's failure. */
CDP_MUST_CHECK CDP_API cdp_status cdp_fsdp_backward_end(
    cdp_fsdp *fsdp, double loss_scale, cdp_fsdp_info *info);
/* Updates this rank's pieces, forgets the gradients, and begins to gather. Errors: STATE (without
   cdp_fsdp_backward_end(), or a unit is needed), what `update` or cdp_optim_update() returns, which
   breaks the group. */
CDP_MUST_CHECK CDP_API cdp_status cdp_fsdp_step(cdp_fsdp *fsdp);
/* Forgets the gradients of this step: no update. Errors: as cdp_fsdp_step(). */
CDP_API cdp_status cdp_fsdp_drop(cdp_fsdp *fsdp);

/* Go on with the ranks of another group, after a death or a change: fewer or more of them. All that
   had a cdp_fsdp call this, newcomers create one with desc.receive, at the same time; the group
   before may have failed, and may be destroyed. Every rank gets what it lacks from one that holds
   it, in place of the shards that it had; the bytes that move are the fewest possible. A step that
   one of these ranks has ended counts for all: those that lack its update make it here. Any other
   step in flight is forgotten, with its gradients; cdp_fsdp_turn() says which one comes next.
   turn: how many steps count, where something else decides that, as cdp_elastic_commit(); or
   CDP_FSDP_AGREE. Collective over `group`. Errors: INVALID; UNSUPPORTED (desc.replicate or
   norm_group); STATE (all ranks that held a shard are gone: the text names it; load what was saved.
   Or `turn` cannot be reached); NOMEM; MISMATCH; the failure of `group`. After an error nothing is
   lost: call it again with another group; other calls but cdp_fsdp_destroy() fail until then.
   Pieces are others afterwards, in other memory: cdp_ckpt_staged() comes before if a save with
   `late` goes on, and items are made anew. */
CDP_MUST_CHECK CDP_API cdp_status cdp_fsdp_rebind(cdp_fsdp *fsdp, cdp_group *group, uint64_t turn);
/* How many steps have ended, by cdp_fsdp_step() or cdp_fsdp_drop(), on this group and those before;
   0 for NULL. */
CDP_API uint64_t cdp_fsdp_turn(const cdp_fsdp *fsdp);

/* The pieces of this rank, in the order of units and of parameters in them. */
CDP_API uint32_t cdp_fsdp_piece_count(const cdp_fsdp *fsdp);
CDP_API cdp_fsdp_piece cdp_fsdp_piece_at(const cdp_fsdp *fsdp, uint32_t index);
/* Save and restore a parameter (state CDP_FSDP_VALUES), or array `state` of its optimizer state: it
   is gathered in `values` of rank `root`, or taken from there; f32, as many as the parameter has
   elements, unused on other ranks. What was saved is restored on any number of ranks. Collective
   over group, and restoring also over replicate, where `root` is a rank of group and each replica
   has its own `values`. Between steps. Errors: INVALID, STATE, the group's failure. */
CDP_MUST_CHECK CDP_API cdp_status cdp_fsdp_save(
    cdp_fsdp *fsdp, uint32_t param, uint32_t state, float *values, uint32_t root);
CDP_MUST_CHECK CDP_API cdp_status cdp_fsdp_restore(
    cdp_fsdp *fsdp, uint32_t param, uint32_t state, const float *values, uint32_t root);

/* The program has written into its pieces, or cdp_ckpt_load() has (items with `part` are made of
   pieces): copies in other dtypes are made anew, what was gathered is forgotten, and the next
   cdp_fsdp_backward_end() sends the shard to the holders of desc.copies anew. Each replica writes
   its own. Local, between steps, and on all ranks; write only right after cdp_fsdp_create(), or
   after another call of this one, because a step begins to gather. Errors: INVALID, STATE, the
   group's failure. */
CDP_MUST_CHECK CDP_API cdp_status cdp_fsdp_loaded(cdp_fsdp *fsdp);

#if !defined(CDP_NO_TRACE) && !defined(CDP_NO_DDP)
/* The last step as a picture, JSON or SVG (TEXT: as JSON): when units were gathered and gradients
   reduced, from the beginning until a call saw the end; how long calls waited; and how many bytes
   of gathered units and whole gradients were in use. With more than desc.events events the picture
   lacks the last ones, and says how many. Writes at most `room` bytes, a zero at the end among
   them; `text` may be NULL. Returns the length of the whole text without the zero; 0 without
   desc.events, before the first step has ended, or for NULL. */
CDP_API uint64_t cdp_fsdp_trace(
    const cdp_fsdp *fsdp, cdp_trace_format format, char *text, uint64_t room);
#endif

/* Zeros for NULL. */
CDP_API cdp_fsdp_stats cdp_fsdp_stats_of(const cdp_fsdp *fsdp);

#ifdef __cplusplus
} /* extern "C" */
#endif
/* ---- >>fsdp/cxx_api: descs by reference in C++ ----------------------------------------------- */

#ifdef __cplusplus
extern "C++" { /* also where a program includes the header in extern "C" */
inline cdp_status cdp_fsdp_create(const cdp_fsdp_desc &desc, cdp_fsdp **out) {
    return cdp_fsdp_create(&desc, out);
}
inline cdp_status cdp_fsdp_preview(const cdp_fsdp_desc &desc, uint32_t rank, cdp_fsdp_stats *out) {
    return cdp_fsdp_preview(&desc, rank, out);
}
inline cdp_status cdp_fsdp_preview_times(
    const cdp_fsdp_desc &desc, uint32_t rank, const cdp_fsdp_speed &speed, cdp_fsdp_times *out) {
    return cdp_fsdp_preview_times(&desc, rank, &speed, out);
}
inline cdp_status cdp_fsdp_range(const cdp_fsdp_desc &desc, uint32_t unit, bool frozen,
    uint32_t ranks, uint32_t rank, uint64_t *start, uint64_t *end) {
    return cdp_fsdp_range(&desc, unit, frozen, ranks, rank, start, end);
}
} /* extern "C++" */
#endif

#endif /* CDP_FSDP_INCLUDED */

#if (defined(CDP_IMPLEMENTATION) || defined(CDP_FSDP_IMPLEMENTATION)) \
    && !defined(CDP_FSDP_IMPL_INCLUDED)
#define CDP_FSDP_IMPL_INCLUDED

/* ---- >>fsdp/cuts: where the range of a unit is cut (pure) ------------------------------------ */

/* Knows: shapes, grains, a number of ranks. Promises: every rank computes all cuts alone; pieces
   are disjoint, cover the range in the order of ranks, and have at most total / ranks + grain
   elements. */

/* The product of the dimensions from `first` on; false if it has more than 62 bits. */
CDP__PRIVATE bool cdp__fsdp_product(const cdp_fsdp_param *p, uint32_t first, uint64_t *out) {
    uint64_t n = 1;
    uint32_t d;
    for (d = first; d < p->ndim; ++d) {
        if (p->shape[d] && n > (UINT64_MAX >> 2) / p->shape[d]) return false;
        n *= p->shape[d];
    }
    *out = n;
    return true;
}

CDP__PRIVATE uint64_t cdp__fsdp_count(const cdp_fsdp_param *p) {
    uint64_t n = 0;
    (void)cdp__fsdp_product(p, 0, &n);
    return n;
}

CDP__PRIVATE uint64_t cdp__fsdp_grain(const cdp_fsdp_param *p) {
    uint64_t row = 1;
    if (p->grain != CDP_GRAIN_ROW) return p->grain;
    (void)cdp__fsdp_product(p, 1, &row);
    return row ? row : 1;
}

/* All parameters. Where they are in the order of their units, those of one unit are found at once;
   else each search looks at all of them. */
typedef struct cdp__fsdp_list {
    const cdp_fsdp_param *params;
    uint32_t count;
    bool sorted;
} cdp__fsdp_list;

CDP__PRIVATE cdp__fsdp_list cdp__fsdp_list_of(const cdp_fsdp_desc *d) {
    cdp__fsdp_list l;
    uint32_t i;
    l.params = d->params;
    l.count = d->param_count;
    for (i = 1; i < l.count && l.params[i - 1].unit <= l.params[i].unit; ++i) {
    }
    l.sorted = i >= l.count;
    return l;
}

/* The first parameter of `unit` or a later one, if they are in order; 0 if not. */
CDP__PRIVATE uint32_t cdp__fsdp_first(const cdp__fsdp_list *l, uint32_t unit) {
    uint32_t low = 0, high = l->sorted ? l->count : 0;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (l->params[middle].unit < unit)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* All parameters of `unit` are before this one. */
CDP__PRIVATE uint32_t cdp__fsdp_end(const cdp__fsdp_list *l, uint32_t unit) {
    return l->sorted ? cdp__fsdp_first(l, unit + 1) : l->count;
}

/* A walk over the cuts of one range, in the order of ranks. */
typedef struct cdp__fsdp_walk {
    const cdp_fsdp_param *params;
    uint32_t unit;
    bool frozen;
    uint64_t total; /* elements of the range */
    uint32_t at;    /* the parameter that the walk has reached */
    uint64_t base;  /* where it begins in the range */
} cdp__fsdp_walk;

CDP__PRIVATE bool cdp__fsdp_in_range(const cdp__fsdp_walk *w, uint32_t i) {
    return w->params[i].unit == w->unit && w->params[i].frozen == w->frozen;
}

CDP__PRIVATE cdp__fsdp_walk cdp__fsdp_walk_of(const cdp__fsdp_list *l, uint32_t unit, bool frozen) {
    const uint32_t end = cdp__fsdp_end(l, unit);
    cdp__fsdp_walk w;
    uint32_t i;
    memset(&w, 0, sizeof w);
    w.params = l->params;
    w.unit = unit;
    w.frozen = frozen;
    w.at = cdp__fsdp_first(l, unit);
    for (i = w.at; i < end; ++i)
        if (cdp__fsdp_in_range(&w, i)) w.total += cdp__fsdp_count(&w.params[i]);
    return w;
}

/* Moves to the parameter that holds element x; x < total, and not less than in the call before. */
CDP__PRIVATE void cdp__fsdp_walk_to(cdp__fsdp_walk *w, uint64_t x) {
    for (;; ++w->at) {
        uint64_t n;
        if (!cdp__fsdp_in_range(w, w->at)) continue;
        n = cdp__fsdp_count(&w->params[w->at]);
        if (x - w->base < n) return;
        w->base += n;
    }
}

/* The first element of piece `rank`, which is not less than in the call before. The ideal place is
   x + rest / ranks. */
CDP__PRIVATE uint64_t cdp__fsdp_cut(cdp__fsdp_walk *w, uint32_t ranks, uint32_t rank) {
    const uint64_t part = (uint64_t)rank * (w->total % ranks), rest = part % ranks;
    const uint64_t x = w->total / ranks * rank + part / ranks;
    uint64_t n, grain, low, below, above;
    if (rank >= ranks || x >= w->total) return w->total;
    cdp__fsdp_walk_to(w, x);
    n = cdp__fsdp_count(&w->params[w->at]);
    grain = cdp__min(cdp__fsdp_grain(&w->params[w->at]), n);
    low = (x - w->base) / grain * grain;
    below = x - w->base - low;                /* and rest / ranks: the way to the place below */
    above = cdp__min(grain, n - low) - below; /* less rest / ranks: to the one above */
    if (above > below + 1 || (above == below + 1 && 2 * rest <= ranks)
        || (above == below && rest == 0))
        return w->base + low;
    return w->base + low + below + above;
}

/* One rank's range. */
CDP__PRIVATE void cdp__fsdp_cut_of(
    const cdp__fsdp_walk *whole, uint32_t ranks, uint32_t rank, uint64_t *start, uint64_t *end) {
    cdp__fsdp_walk w = *whole;
    *start = cdp__fsdp_cut(&w, ranks, rank);
    *end = cdp__fsdp_cut(&w, ranks, rank + 1);
}

/* ---- >>fsdp/checks: what a desc may say (pure) ----------------------------------------------- */

/* Knows: descs. Promises: a mistake is reported in one sentence before anything happens. */

#define CDP__FSDP_NONE UINT32_MAX

CDP__PRIVATE cdp_status cdp__fsdp_missing(const char *call, const char *argument) {
    return cdp_error_set(CDP_ERR_INVALID, -1, 0, CDP__MISSING, call, argument);
}

CDP__PRIVATE cdp_status cdp__fsdp_nomem(const char *what, uint64_t bytes) {
    return cdp_error_set(CDP_ERR_NOMEM, -1, 0, "out of memory: %s of a cdp_fsdp needs %llu bytes",
        what, (unsigned long long)bytes);
}

/* How many units there are. */
CDP__PRIVATE uint32_t cdp__fsdp_unit_count(const cdp_fsdp_desc *d) {
    uint32_t i, n = 0;
    if (d->unit_count) return d->unit_count;
    for (i = 0; i < d->param_count; ++i)
        if (d->params[i].unit < CDP_FSDP_UNITS && d->params[i].unit >= n) n = d->params[i].unit + 1;
    return n;
}

CDP__PRIVATE cdp_status cdp__fsdp_check_param(
    const char *call, const cdp_fsdp_desc *d, uint32_t i, uint32_t units, uint64_t *all) {
    const cdp_fsdp_param *p = &d->params[i];
    uint64_t count = 0, row = 0;
    if (p->ndim > CDP_FSDP_DIMS)
        return cdp_error_set(CDP_ERR_INVALID, -1, 0, "%s: params[%u].ndim is %u; the most is %u",
            call, i, p->ndim, CDP_FSDP_DIMS);
    if (p->unit >= units)
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "%s: params[%u].unit is %u; it should be less than the number of units, %u", call, i,
            p->unit, units);
    if (!cdp__fsdp_product(p, 0, &count) || !cdp__fsdp_product(p, 1, &row)
        || (*all += count) > UINT64_MAX >> 3)
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "%s: params[%u] and those before it have more than 2^61 elements", call, i);
    return CDP_OK;
}

CDP__PRIVATE bool cdp__fsdp_is_dtype(cdp_dtype t) {
    return t == CDP_DTYPE_DEFAULT || t == CDP_DTYPE_F32 || t == CDP_DTYPE_F16
        || t == CDP_DTYPE_BF16;
}

/* Lets the optimizer look at its settings, by an update of no elements. */
CDP__PRIVATE cdp_status cdp__fsdp_check_optim(const char *call, const cdp_optim *own) {
    cdp_optim o = *own;
    cdp_optim_range none;
    cdp_status st;
    cdp_error e;
    memset(&none, 0, sizeof none);
    none.scale = 1;
    o.step = 1;
    st = cdp_optim_update(&o, &none);
    if (st == CDP_OK) return st;
    e = *cdp_last_error();
    return cdp_error_set(st, -1, 0, "%s: desc.optim: %s", call, e.text);
}

CDP__PRIVATE cdp_status cdp__fsdp_check_optimizer(const char *call, const cdp_fsdp_desc *d) {
    if (d->optim && d->update)
        return cdp_error_set(
            CDP_ERR_INVALID, -1, 0, "%s: set desc.optim or desc.update, not both", call);
    if (d->states > CDP_FSDP_STATES || (d->states && !d->update))
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "%s: desc.states is %u; it is for desc.update, and at most %u", call, d->states,
            CDP_FSDP_STATES);
    if (!(d->max_norm >= 0) || !(d->divisor >= 0))
        return cdp_error_set(
            CDP_ERR_INVALID, -1, 0, "%s: desc.max_norm or desc.divisor is negative or NaN", call);
    return d->optim ? cdp__fsdp_check_optim(call, d->optim) : CDP_OK;
}

CDP__PRIVATE cdp_status cdp__fsdp_check_copies(const char *call, const cdp_fsdp_desc *d) {
    if (!d->copies) return CDP_OK;
    if (d->copies > CDP_FSDP_COPIES || !(d->optim || d->update))
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "%s: desc.copies is %u; at most %u, and holders repeat updates, so set desc.optim or "
            "desc.update",
            call, d->copies, CDP_FSDP_COPIES);
    if (d->replicate || d->norm_group)
        return cdp_error_set(CDP_ERR_UNSUPPORTED, -1, 0,
            "%s: desc.copies is not offered with desc.replicate or desc.norm_group; leave one out",
            call);
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__fsdp_check(const char *call, const cdp_fsdp_desc *d) {
    uint64_t all = 0;
    uint32_t i, units;
    cdp_status st = CDP_OK;
    if (!d) return cdp__fsdp_missing(call, "desc");
    if (d->param_count && !d->params) return cdp__fsdp_missing(call, "desc.params");
    if (!d->param_count || d->param_count > 1u << 20 || d->unit_count > CDP_FSDP_UNITS)
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "%s: desc.param_count is %u, unit_count %u; there are 1 to 1048576 parameters in at "
            "most %u units",
            call, d->param_count, d->unit_count, CDP_FSDP_UNITS);
    if ((uint32_t)d->stage > (uint32_t)CDP_FSDP_OPTIMIZER)
        return cdp_error_set(
            CDP_ERR_INVALID, -1, 0, "%s: desc.stage %d does not exist", call, (int)d->stage);
    if (!cdp__fsdp_is_dtype(d->compute) || !cdp__fsdp_is_dtype(d->reduce))
        return cdp_error_set(CDP_ERR_UNSUPPORTED, -1, 0, "%s: desc.%s is %s; use F32, BF16 or F16",
            call, cdp__fsdp_is_dtype(d->compute) ? "reduce" : "compute",
            cdp_dtype_name(cdp__fsdp_is_dtype(d->compute) ? d->reduce : d->compute));
    units = cdp__fsdp_unit_count(d);
    for (i = 0; i < d->param_count && st == CDP_OK; ++i)
        st = cdp__fsdp_check_param(call, d, i, units, &all);
    if (st == CDP_OK) st = cdp__fsdp_check_optimizer(call, d);
    return st == CDP_OK ? cdp__fsdp_check_copies(call, d) : st;
}

CDP__PRIVATE uint64_t cdp__fsdp_size_of(cdp_dtype t) {
    return t == CDP_DTYPE_F16 || t == CDP_DTYPE_BF16 ? 2 : 4;
}

CDP__PRIVATE uint32_t cdp__fsdp_states(const cdp_fsdp_desc *d) {
    return d->optim ? cdp_optim_states(d->optim) : d->states;
}

/* How many slots units of one size share. */
CDP__PRIVATE uint32_t cdp__fsdp_slots_for(const cdp_fsdp_desc *d, uint32_t units) {
    const uint64_t most = d->no_prefetch ? 1 : 1ull + cdp__def(d->prefetch, 1u);
    return (uint32_t)cdp__min(units, most);
}

CDP__PRIVATE bool cdp__fsdp_keeps(const cdp_fsdp_desc *d, uint32_t unit) {
    return d->stage != CDP_FSDP_FULL || (d->units && d->unit_count && d->units[unit].keep);
}

CDP__PRIVATE uint32_t cdp__fsdp_uses(const cdp_fsdp_desc *d, uint32_t unit) {
    return d->units && d->unit_count && d->units[unit].uses ? d->units[unit].uses : 1;
}

/* Whether a unit has memory of its own for whole gradients. */
CDP__PRIVATE bool cdp__fsdp_owns_gradients(const cdp_fsdp_desc *d, uint32_t unit) {
    return d->stage == CDP_FSDP_OPTIMIZER || cdp__fsdp_uses(d, unit) > 1;
}

/* ---- >>fsdp/holders: who holds which shard, and what counts after a death (pure) ------------- */

/* Knows: records in which ranks describe themselves. Promises: every rank decides the same from the
   same records. A step counts for all ranks or for none: a rank enters the closing allreduce when
   it has all that its update needs, so where one rank has seen the end of it, all can update. */

/* What a rank says of itself where groups change. All words are of one size: they are sent. */
typedef struct cdp__fsdp_record {
    uint64_t layout; /* number of the layout whose shards it holds; 0: it holds none */
    uint64_t ranks, rank, copies, distance; /* of that layout */
    uint64_t pending; /* number of a later one that is complete here; others may use it already */
    uint64_t pending_ranks, pending_rank, pending_copies;
    uint64_t seen;    /* the highest number that it has met */
    uint64_t turn;    /* steps that have ended here */
    uint64_t wanted;  /* those that the program says count; CDP_FSDP_AGREE: as the ranks find */
    uint64_t updates; /* of the program's optimizer, and of its own count */
    uint64_t optim_step;
    uint64_t flags;
    double scale; /* of the last update, or of the one that comes next if ENDED */
} cdp__fsdp_record;

enum {
    CDP__FSDP_READY = 1,    /* it has entered the closing allreduce of its step: can update */
    CDP__FSDP_ENDED = 2,    /* the allreduce has ended: so can all */
    CDP__FSDP_TORN = 4,     /* an update has stopped half-way: nothing that it holds counts */
    CDP__FSDP_FILLED = 8,   /* its copies of other shards are complete */
    CDP__FSDP_LEFT_OUT = 16 /* ENDED: that step will update nothing; else: the last one has not */
};

/* What a rank does before shards move. */
typedef enum cdp__fsdp_role {
    CDP__FSDP_RECEIVES, /* holds nothing that counts */
    CDP__FSDP_KEEPS,
    CDP__FSDP_UPDATES /* has all of a step that counts, and lacks its update */
} cdp__fsdp_role;

typedef struct cdp__fsdp_verdict {
    uint64_t layout, seen;
    uint32_t ranks, copies, distance;   /* of the layout */
    uint64_t turn, updates, optim_step; /* afterwards */
    bool left_out;                      /* the last step updates nothing */
    bool unknown;                       /* nobody has the scale of the update */
    double scale;
    uint32_t lost;   /* the first shard without a holder; CDP__FSDP_NONE: there is none */
    bool impossible; /* the wanted turn, which is now in `turn`, is not one that ranks can reach */
} cdp__fsdp_verdict;

/* Where a shard is held in its layout: by its owner (0) and by `copies` further ranks. */
CDP__PRIVATE uint32_t cdp__fsdp_holder(
    uint32_t ranks, uint32_t distance, uint32_t shard, uint32_t copy) {
    return (uint32_t)((shard + (uint64_t)copy * distance) % ranks);
}

/* The shard of which `rank` has copy number `copy`. */
CDP__PRIVATE uint32_t cdp__fsdp_held(
    uint32_t ranks, uint32_t distance, uint32_t rank, uint32_t copy) {
    return (uint32_t)((rank + ranks - (uint64_t)copy * distance % ranks) % ranks);
}

/* As many copies as there are other ranks for. */
CDP__PRIVATE uint32_t cdp__fsdp_copies(uint32_t copies, uint32_t distance, uint32_t ranks) {
    return (uint32_t)cdp__min(copies, (ranks - 1) / distance);
}

/* Whether the layout that all go on with is this rank's: 1, its pending one: 2, or neither: 0. */
CDP__PRIVATE uint32_t cdp__fsdp_has_layout(const cdp__fsdp_record *r, uint64_t layout) {
    if (!layout || r->flags & CDP__FSDP_TORN) return 0;
    if (r->layout == layout) return 1;
    return r->pending == layout ? 2 : 0;
}

CDP__PRIVATE cdp__fsdp_role cdp__fsdp_role_of(
    const cdp__fsdp_record *r, const cdp__fsdp_verdict *v) {
    if (!cdp__fsdp_has_layout(r, v->layout)) return CDP__FSDP_RECEIVES;
    if (r->turn == v->turn) return CDP__FSDP_KEEPS;
    if (cdp__fsdp_has_layout(r, v->layout) == 2) return CDP__FSDP_RECEIVES; /* no gradient there */
    return r->turn + 1 == v->turn && r->flags & CDP__FSDP_READY ? CDP__FSDP_UPDATES
                                                                : CDP__FSDP_RECEIVES;
}

/* The rank in the layout that all go on with; CDP__FSDP_NONE: it receives. */
CDP__PRIVATE uint32_t cdp__fsdp_old_rank(const cdp__fsdp_record *r, const cdp__fsdp_verdict *v) {
    if (cdp__fsdp_role_of(r, v) == CDP__FSDP_RECEIVES) return CDP__FSDP_NONE;
    return (uint32_t)(cdp__fsdp_has_layout(r, v->layout) == 1 ? r->rank : r->pending_rank);
}

/* Which copy of a shard a member holds, 0 for its owner; CDP__FSDP_NONE: it does not hold it. */
CDP__PRIVATE uint32_t cdp__fsdp_holds(
    const cdp__fsdp_record *r, const cdp__fsdp_verdict *v, uint32_t shard) {
    const uint32_t old = cdp__fsdp_old_rank(r, v);
    const bool filled = cdp__fsdp_has_layout(r, v->layout) == 2 || r->flags & CDP__FSDP_FILLED;
    uint32_t copy;
    if (old == CDP__FSDP_NONE) return CDP__FSDP_NONE;
    for (copy = 0; copy <= (filled ? v->copies : 0); ++copy)
        if (cdp__fsdp_held(v->ranks, v->distance, old, copy) == shard) return copy;
    return CDP__FSDP_NONE;
}

/* Goes on with a layout that r describes, if it is newer than the one before. */
CDP__PRIVATE void cdp__fsdp_take_newer(cdp__fsdp_verdict *v, const cdp__fsdp_record *r,
    uint64_t layout, uint64_t ranks, uint64_t copies) {
    if (layout <= v->layout || r->flags & CDP__FSDP_TORN) return;
    v->layout = layout;
    v->ranks = (uint32_t)ranks;
    v->copies = (uint32_t)copies;
    v->distance = (uint32_t)r->distance;
}

/* The layout of the member that has used the newest one. Whoever used it had seen that it is
   complete on all of its ranks. */
CDP__PRIVATE void cdp__fsdp_find_layout(
    const cdp__fsdp_record *r, uint32_t count, cdp__fsdp_verdict *v) {
    uint32_t i;
    for (i = 0; i < count; ++i) {
        v->seen = cdp__max(v->seen, r[i].seen);
        cdp__fsdp_take_newer(v, &r[i], r[i].layout, r[i].ranks, r[i].copies);
    }
}

/* How many steps count. */
CDP__PRIVATE void cdp__fsdp_find_turn(
    const cdp__fsdp_record *r, uint32_t count, cdp__fsdp_verdict *v) {
    uint64_t wanted = CDP_FSDP_AGREE, most = 0;
    bool ended = false, ready = false;
    uint32_t i;
    for (i = 0; i < count; ++i) {
        if (r[i].wanted != CDP_FSDP_AGREE) wanted = r[i].wanted;
        if (cdp__fsdp_has_layout(&r[i], v->layout)) most = cdp__max(most, r[i].turn);
    }
    for (i = 0; i < count; ++i) {
        if (cdp__fsdp_has_layout(&r[i], v->layout) != 1 || r[i].turn != most) continue;
        ready = ready || r[i].flags & CDP__FSDP_READY;
        ended = ended || r[i].flags & CDP__FSDP_ENDED;
    }
    v->turn = wanted == CDP_FSDP_AGREE ? most + ended : wanted;
    v->impossible = v->turn < most || v->turn > most + ready;
    for (i = 0; i < count; ++i)
        if (r[i].wanted != CDP_FSDP_AGREE && r[i].wanted != wanted) v->impossible = true;
}

/* How well a member knows what the last step that counts has done, or will do. */
CDP__PRIVATE uint32_t cdp__fsdp_knows(const cdp__fsdp_record *r, const cdp__fsdp_verdict *v) {
    const cdp__fsdp_role role = cdp__fsdp_role_of(r, v);
    if (role == CDP__FSDP_RECEIVES) return 0;
    if (role == CDP__FSDP_KEEPS) return 3; /* it has made that step */
    return r->flags & CDP__FSDP_ENDED ? 2 : 1;
}

CDP__PRIVATE void cdp__fsdp_find_update(
    const cdp__fsdp_record *r, uint32_t count, cdp__fsdp_verdict *v) {
    const cdp__fsdp_record *best = NULL;
    bool adds;
    uint32_t i;
    for (i = 0; i < count; ++i)
        if (cdp__fsdp_knows(&r[i], v) > (best ? cdp__fsdp_knows(best, v) : 0)) best = &r[i];
    v->unknown = best && cdp__fsdp_knows(best, v) == 1;
    if (!best) return;
    v->scale = best->scale;
    v->left_out = !v->unknown && best->flags & CDP__FSDP_LEFT_OUT;
    adds = best->turn < v->turn && !v->left_out;
    v->updates = best->updates + adds;
    v->optim_step = best->optim_step + adds;
}

/* Decides how many steps count, and whether all shards of the layout are there. */
CDP__PRIVATE void cdp__fsdp_weigh(const cdp__fsdp_record *r, uint32_t count, cdp__fsdp_verdict *v) {
    uint32_t i, shard;
    v->lost = CDP__FSDP_NONE;
    cdp__fsdp_find_turn(r, count, v);
    cdp__fsdp_find_update(r, count, v);
    for (shard = 0; shard < v->ranks && v->lost == CDP__FSDP_NONE; ++shard) {
        for (i = 0; i < count && cdp__fsdp_holds(&r[i], v, shard) == CDP__FSDP_NONE; ++i) {
        }
        if (i == count) v->lost = shard;
    }
}

/* The newest layout that a member has all of its part of, though nobody has seen that all do: what
   is there of it is right. */
CDP__PRIVATE void cdp__fsdp_find_pending(
    const cdp__fsdp_record *r, uint32_t count, cdp__fsdp_verdict *v) {
    uint32_t i;
    for (i = 0; i < count; ++i)
        cdp__fsdp_take_newer(v, &r[i], r[i].pending, r[i].pending_ranks, r[i].pending_copies);
}

/* All ranks of the new group decide from their records. v->layout 0: no rank holds anything. */
CDP__PRIVATE void cdp__fsdp_resolve(
    const cdp__fsdp_record *r, uint32_t count, cdp__fsdp_verdict *v) {
    cdp__fsdp_verdict other;
    memset(v, 0, sizeof *v);
    v->lost = CDP__FSDP_NONE;
    cdp__fsdp_find_layout(r, count, v);
    if (!v->layout) return;
    cdp__fsdp_weigh(r, count, v);
    if (v->lost == CDP__FSDP_NONE) return;
    other = *v;
    cdp__fsdp_find_pending(r, count, &other);
    if (other.layout == v->layout) return;
    cdp__fsdp_weigh(r, count, &other);
    if (other.lost == CDP__FSDP_NONE) *v = other;
}

/* ---- moves ---- */

/* A stretch of one range of a unit that a rank of the new layout lacks or has. */
typedef struct cdp__fsdp_piece_move {
    uint32_t to, image;    /* the rank of the new group, and which of the shards that it holds */
    uint32_t from;         /* the rank of the new group that has it; `to` itself: it stays there */
    uint32_t shard;        /* of the old layout */
    uint64_t first, count; /* elements of the range */
} cdp__fsdp_piece_move;

/* Walks over all stretches of one range. Each that its receiver does not hold moves once, so no
   plan moves less; it comes from the holder that has sent least. */
typedef struct cdp__fsdp_mover {
    const cdp__fsdp_record *records; /* of the new group */
    const cdp__fsdp_verdict *verdict;
    uint32_t ranks, copies, distance; /* of the new layout */
    uint64_t *old_cuts, *new_cuts;    /* one more than ranks */
    uint32_t *member; /* of the new group, for each old rank; CDP__FSDP_NONE: it has none */
    uint64_t *sent;   /* elements, by each rank of the new group, so far */
    uint32_t to, image, shard;
} cdp__fsdp_mover;

CDP__PRIVATE void cdp__fsdp_cut_all(
    const cdp__fsdp_list *l, uint32_t unit, bool frozen, uint32_t ranks, uint64_t *cuts) {
    cdp__fsdp_walk w = cdp__fsdp_walk_of(l, unit, frozen);
    uint32_t r;
    for (r = 0; r <= ranks; ++r)
        cuts[r] = cdp__fsdp_cut(&w, ranks, r);
}

/* The walk begins anew, for one range. */
CDP__PRIVATE void cdp__fsdp_move_range(
    cdp__fsdp_mover *m, const cdp__fsdp_list *l, uint32_t unit, bool frozen) {
    cdp__fsdp_cut_all(l, unit, frozen, m->verdict->ranks, m->old_cuts);
    cdp__fsdp_cut_all(l, unit, frozen, m->ranks, m->new_cuts);
    m->to = m->image = m->shard = 0;
}

/* The rank that sends a shard's stretch to `to`. */
CDP__PRIVATE uint32_t cdp__fsdp_sender(const cdp__fsdp_mover *m, uint32_t shard, uint32_t to) {
    const cdp__fsdp_verdict *v = m->verdict;
    uint32_t copy, best = CDP__FSDP_NONE;
    if (cdp__fsdp_holds(&m->records[to], v, shard) != CDP__FSDP_NONE) return to;
    for (copy = 0; copy <= v->copies; ++copy) {
        const uint32_t i = m->member[cdp__fsdp_holder(v->ranks, v->distance, shard, copy)];
        if (i == CDP__FSDP_NONE || cdp__fsdp_holds(&m->records[i], v, shard) == CDP__FSDP_NONE)
            continue;
        if (best == CDP__FSDP_NONE || m->sent[i] < m->sent[best]) best = i;
    }
    return best;
}

/* The next stretch; false: there is no other one. */
CDP__PRIVATE bool cdp__fsdp_next_move(cdp__fsdp_mover *m, cdp__fsdp_piece_move *out) {
    for (; m->to < m->ranks; ++m->to, m->image = 0)
        for (; m->image <= m->copies; ++m->image, m->shard = 0) {
            const uint32_t held = cdp__fsdp_held(m->ranks, m->distance, m->to, m->image);
            for (; m->shard < m->verdict->ranks; ++m->shard) {
                const uint64_t low = cdp__max(m->new_cuts[held], m->old_cuts[m->shard]);
                const uint64_t high = cdp__min(m->new_cuts[held + 1], m->old_cuts[m->shard + 1]);
                if (low >= high) continue;
                out->to = m->to;
                out->image = m->image;
                out->shard = m->shard++;
                out->first = low;
                out->count = high - low;
                out->from = cdp__fsdp_sender(m, out->shard, out->to);
                if (out->from != out->to) m->sent[out->from] += out->count;
                return true;
            }
        }
    return false;
}

/* ---- >>fsdp/paper: what a rank will need and receive, without ranks -------------------------- */

/* Knows: a desc. Promises: the same numbers as a run. */

/* A unit on one rank: elements of all ranks and of this one; [0] trainable, [1] frozen. */
typedef struct cdp__fsdp_plan {
    uint64_t total[2], own[2];
} cdp__fsdp_plan;

CDP__PRIVATE cdp__fsdp_plan cdp__fsdp_plan_of(
    const cdp__fsdp_list *l, uint32_t unit, uint32_t ranks, uint32_t rank) {
    cdp__fsdp_plan p;
    uint32_t k;
    for (k = 0; k < 2; ++k) {
        const cdp__fsdp_walk w = cdp__fsdp_walk_of(l, unit, k == 1);
        uint64_t start, end;
        cdp__fsdp_cut_of(&w, ranks, rank, &start, &end);
        p.total[k] = w.total;
        p.own[k] = end - start;
    }
    return p;
}

CDP__PRIVATE uint64_t cdp__fsdp_whole(const cdp__fsdp_plan *p) {
    return p->total[0] + p->total[1];
}

#define CDP__FSDP_SIZES 64u /* sizes that are counted at once; of others all units are looked at */

/* How many units with slots there are of each size, and how many of them came so far. */
typedef struct cdp__fsdp_sizes {
    const cdp_fsdp_desc *d;
    cdp__fsdp_list list;
    uint64_t whole[CDP__FSDP_SIZES];
    uint32_t units[CDP__FSDP_SIZES], came[CDP__FSDP_SIZES], count;
} cdp__fsdp_sizes;

CDP__PRIVATE uint64_t cdp__fsdp_whole_of(const cdp__fsdp_list *l, uint32_t unit) {
    return cdp__fsdp_walk_of(l, unit, false).total + cdp__fsdp_walk_of(l, unit, true).total;
}

CDP__PRIVATE uint32_t cdp__fsdp_find_size(const cdp__fsdp_sizes *s, uint64_t whole) {
    uint32_t i;
    for (i = 0; i < s->count && s->whole[i] != whole; ++i) {
    }
    return i;
}

CDP__PRIVATE cdp__fsdp_sizes cdp__fsdp_sizes_of(
    const cdp_fsdp_desc *d, const cdp__fsdp_list *l, uint32_t units) {
    cdp__fsdp_sizes s;
    uint32_t u;
    memset(&s, 0, sizeof s);
    s.d = d;
    s.list = *l;
    for (u = 0; u < units; ++u) {
        const uint64_t whole = cdp__fsdp_whole_of(l, u);
        const uint32_t i = cdp__fsdp_find_size(&s, whole);
        if (cdp__fsdp_keeps(d, u) || i == CDP__FSDP_SIZES) continue;
        s.whole[i] = whole;
        ++s.units[i];
        if (i == s.count) ++s.count;
    }
    return s;
}

/* How many units with slots of the same size come before `unit`, and with *all, there are at all.
   Asked once for each unit with a slot, in order. */
CDP__PRIVATE uint32_t cdp__fsdp_alike(
    cdp__fsdp_sizes *s, uint32_t unit, uint32_t units, uint32_t *all) {
    const uint64_t whole = cdp__fsdp_whole_of(&s->list, unit);
    const uint32_t i = cdp__fsdp_find_size(s, whole);
    uint32_t u, before = 0;
    *all = 0;
    if (i < s->count) {
        *all = s->units[i];
        return s->came[i]++;
    }
    for (u = 0; u < units; ++u) {
        if (cdp__fsdp_keeps(s->d, u) || cdp__fsdp_whole_of(&s->list, u) != whole) continue;
        ++*all;
        before += u < unit;
    }
    return before;
}

/* Slots, and gathers in a step: of each size the last units stay until backward begins. */
CDP__PRIVATE void cdp__fsdp_preview_slots(cdp__fsdp_sizes *s, uint32_t unit, uint32_t units,
    const cdp__fsdp_plan *p, cdp_fsdp_stats *out) {
    const cdp_fsdp_desc *const d = s->d;
    const uint64_t size = cdp__fsdp_size_of(d->compute), bytes = cdp__fsdp_whole(p) * size;
    const uint64_t received = bytes - (p->own[0] + p->own[1]) * size;
    uint32_t gathers = 1;
    if (!bytes) return;
    if (cdp__fsdp_keeps(d, unit))
        out->slot_bytes += bytes;
    else {
        uint32_t alike;
        const uint32_t before = cdp__fsdp_alike(s, unit, units, &alike);
        const uint32_t slots = cdp__fsdp_slots_for(d, alike);
        if (before < slots) out->slot_bytes += bytes;
        if (before + slots < alike) gathers = 2;
    }
    out->gathers += gathers;
    out->gather_bytes += gathers * received;
}

#define CDP__FSDP_RANKS 256u /* whose shares are added up at a time */

/* Adds what ranks from `first` on own of one range. */
CDP__PRIVATE void cdp__fsdp_add_shares(
    cdp__fsdp_walk *w, uint32_t ranks, uint32_t first, uint32_t count, uint64_t *share) {
    uint64_t from = cdp__fsdp_cut(w, ranks, first);
    uint32_t r;
    for (r = 0; r < count; ++r) {
        const uint64_t at = cdp__fsdp_cut(w, ranks, first + r + 1);
        share[r] += at - from;
        from = at;
    }
}

/* The largest rank's share of all elements over the mean. */
CDP__PRIVATE double cdp__fsdp_largest_share(
    const cdp__fsdp_list *l, uint32_t units, uint32_t ranks) {
    uint64_t all = 0, largest = 0, share[CDP__FSDP_RANKS];
    uint32_t first, k, r;
    for (first = 0; first < ranks; first += CDP__FSDP_RANKS) {
        const uint32_t count = (uint32_t)cdp__min(CDP__FSDP_RANKS, ranks - first);
        memset(share, 0, sizeof share);
        for (k = 0; k < 2 * units; ++k) {
            cdp__fsdp_walk w = cdp__fsdp_walk_of(l, k / 2, k % 2 == 1);
            if (!first) all += w.total;
            cdp__fsdp_add_shares(&w, ranks, first, count, share);
        }
        for (r = 0; r < count; ++r)
            largest = cdp__max(largest, share[r]);
    }
    return all ? (double)largest * ranks / (double)all : 1;
}

CDP__PRIVATE void cdp__fsdp_preview_sum(cdp_fsdp_stats *s) {
    s->total_bytes = s->shard_bytes + s->state_bytes + s->copy_bytes + s->slot_bytes
        + s->gradient_bytes + s->scratch_bytes + s->held_bytes;
}

/* Copies of other shards, and what goes to the holders of this one. */
CDP__PRIVATE void cdp__fsdp_preview_held(const cdp_fsdp_desc *d, const cdp__fsdp_list *l,
    uint32_t unit, uint32_t ranks, uint32_t rank, const cdp__fsdp_plan *own, cdp_fsdp_stats *out) {
    const uint32_t distance = cdp__def(d->copy_distance, 1u);
    const uint32_t copies = cdp__fsdp_copies(d->copies, distance, ranks);
    uint32_t k;
    for (k = 1; k <= copies; ++k) {
        const cdp__fsdp_plan p =
            cdp__fsdp_plan_of(l, unit, ranks, cdp__fsdp_held(ranks, distance, rank, k));
        out->held_bytes += ((2 + cdp__fsdp_states(d)) * p.own[0] + p.own[1]) * 4;
    }
    out->forward_bytes += copies * own->own[0] * 4;
}

CDP__PRIVATE void cdp__fsdp_preview(
    const cdp_fsdp_desc *d, uint32_t ranks, uint32_t rank, cdp_fsdp_stats *out) {
    const uint32_t units = cdp__fsdp_unit_count(d);
    const cdp__fsdp_list l = cdp__fsdp_list_of(d);
    cdp__fsdp_sizes sizes = cdp__fsdp_sizes_of(d, &l, units);
    uint64_t most_shared = 0, most = 0;
    uint32_t u, shared = 0, trained = 0;
    for (u = 0; u < units; ++u) {
        const cdp__fsdp_plan p = cdp__fsdp_plan_of(&l, u, ranks, rank);
        out->shard_bytes += (2 * p.own[0] + p.own[1]) * 4;
        out->state_bytes += cdp__fsdp_states(d) * p.own[0] * 4;
        if (cdp__fsdp_size_of(d->compute) == 2) out->copy_bytes += (p.own[0] + p.own[1]) * 2;
        cdp__fsdp_preview_held(d, &l, u, ranks, rank, &p, out);
        cdp__fsdp_preview_slots(&sizes, u, units, &p, out);
        if (!p.total[0]) continue;
        ++trained;
        most = cdp__max(most, p.total[0]);
        ++out->reductions;
        out->reduce_bytes += (ranks - 1ull) * p.own[0] * cdp__fsdp_size_of(d->reduce);
        if (cdp__fsdp_owns_gradients(d, u)) {
            out->gradient_bytes += p.total[0] * 4;
            continue;
        }
        ++shared;
        most_shared = cdp__max(most_shared, p.total[0]);
    }
    out->gradient_bytes += cdp__min(shared, 2) * most_shared * 4;
    if (cdp__fsdp_size_of(d->reduce) == 2) out->scratch_bytes = cdp__min(trained, 2) * most * 2;
    cdp__fsdp_preview_sum(out);
    out->largest_share = cdp__fsdp_largest_share(&l, units, ranks);
}

/* Of which rank of how many paper is about. */
CDP__PRIVATE cdp_status cdp__fsdp_paper_ranks(
    const char *call, const cdp_fsdp_desc *d, uint32_t rank, uint32_t *ranks) {
    *ranks = d->group ? cdp_size(d->group) : d->paper_ranks;
    if (*ranks <= 65535 && rank < *ranks) return CDP_OK;
    return cdp_error_set(CDP_ERR_INVALID, -1, 0,
        "%s: rank %u of %u; set desc.group, or desc.paper_ranks to 1 to 65535", call, rank, *ranks);
}

CDP_API cdp_status cdp_fsdp_preview(const cdp_fsdp_desc *d, uint32_t rank, cdp_fsdp_stats *out) {
    cdp_status st;
    uint32_t ranks;
    if (!out) return cdp__fsdp_missing("cdp_fsdp_preview", "out");
    memset(out, 0, sizeof *out);
    st = cdp__fsdp_check("cdp_fsdp_preview", d);
    if (st == CDP_OK) st = cdp__fsdp_paper_ranks("cdp_fsdp_preview", d, rank, &ranks);
    if (st != CDP_OK) return st;
    cdp__fsdp_preview(d, ranks, rank, out);
    return CDP_OK;
}

CDP_API uint32_t cdp_fsdp_wrap(cdp_fsdp_param *params, uint32_t param_count, uint64_t elements) {
    uint64_t so_far = 0;
    uint32_t i, unit = 0;
    if (!params || !param_count) return 0;
    for (i = 0; i < param_count; ++i) {
        const bool full = i && so_far >= elements && unit + 1 < CDP_FSDP_UNITS;
        if (full) {
            ++unit;
            so_far = 0;
        }
        params[i].unit = unit;
        so_far += cdp__fsdp_count(&params[i]);
    }
    return unit + 1;
}

CDP_API cdp_status cdp_fsdp_range(const cdp_fsdp_desc *d, uint32_t unit, bool frozen,
    uint32_t ranks, uint32_t rank, uint64_t *start, uint64_t *end) {
    cdp__fsdp_list l;
    cdp__fsdp_walk w;
    cdp_status st;
    if (start) *start = 0;
    if (end) *end = 0;
    if (!start) return cdp__fsdp_missing("cdp_fsdp_range", "start");
    if (!end) return cdp__fsdp_missing("cdp_fsdp_range", "end");
    st = cdp__fsdp_check("cdp_fsdp_range", d);
    if (st != CDP_OK) return st;
    if (unit >= cdp__fsdp_unit_count(d) || rank >= ranks || ranks > 65535)
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_fsdp_range: there is no rank %u of %u, or no unit %u", rank, ranks, unit);
    l = cdp__fsdp_list_of(d);
    w = cdp__fsdp_walk_of(&l, unit, frozen);
    cdp__fsdp_cut_of(&w, ranks, rank, start, end);
    return CDP_OK;
}

/* ---- >>fsdp/times: how long a step will take, without ranks ---------------------------------- */

/* Knows: a desc, the speed of a network, the time of each unit. Promises: one pass over the units
   forward and one backward, in memory that does not grow with them. */

#define CDP__FSDP_AHEAD 64u /* most units whose gathers are looked at ahead */

/* Of a step, in microseconds from its begin. Needs are numbered: every unit forward, then the other
   way. */
typedef struct cdp__fsdp_timing {
    const cdp_fsdp_desc *d;
    const cdp_fsdp_speed *speed;
    cdp__fsdp_list list;
    cdp__fsdp_sizes sizes; /* that came in backward */
    uint32_t ranks, rank, units, ahead, asked;
    double rounds;                   /* of an operation, times the latency */
    double now, link;                /* the program is here; the link is free from here on */
    double arrives[CDP__FSDP_AHEAD]; /* of needs that were asked for */
    double reduced[2];               /* when the last two reductions end */
    double busy, waited;
} cdp__fsdp_timing;

/* An operation that begins now, or when the link is free. Returns when it ends. */
CDP__PRIVATE double cdp__fsdp_travel(cdp__fsdp_timing *t, uint64_t bytes) {
    const double took = t->rounds + (double)bytes / t->speed->bytes_per_us;
    t->link = (t->link > t->now ? t->link : t->now) + took;
    t->busy += took;
    return t->link;
}

CDP__PRIVATE void cdp__fsdp_wait_until(cdp__fsdp_timing *t, double until) {
    if (until <= t->now) return;
    t->waited += until - t->now;
    t->now = until;
}

CDP__PRIVATE uint32_t cdp__fsdp_unit_of_need(const cdp__fsdp_timing *t, uint32_t need) {
    return need < t->units ? need : 2 * t->units - 1 - need;
}

/* Whether a unit that backward needs is here still: of each size the last ones of forward are. */
CDP__PRIVATE bool cdp__fsdp_stays(cdp__fsdp_timing *t, uint32_t unit) {
    const uint32_t i = cdp__fsdp_find_size(&t->sizes, cdp__fsdp_whole_of(&t->list, unit));
    const uint32_t slots = cdp__fsdp_slots_for(t->d, UINT32_MAX);
    uint32_t before, all;
    if (cdp__fsdp_keeps(t->d, unit)) return true;
    if (i < t->sizes.count) return t->sizes.came[i]++ < slots;
    before = cdp__fsdp_alike(&t->sizes, unit, t->units, &all);
    return all - 1 - before < slots;
}

/* Asks for the next unit that was not asked for. */
CDP__PRIVATE void cdp__fsdp_ask(cdp__fsdp_timing *t) {
    const uint32_t need = t->asked++, unit = cdp__fsdp_unit_of_need(t, need);
    const cdp__fsdp_plan p = cdp__fsdp_plan_of(&t->list, unit, t->ranks, t->rank);
    const uint64_t bytes =
        (cdp__fsdp_whole(&p) - p.own[0] - p.own[1]) * cdp__fsdp_size_of(t->d->compute);
    double *const arrives = &t->arrives[need % CDP__FSDP_AHEAD];
    *arrives = 0;
    if (t->ranks == 1 || !cdp__fsdp_whole(&p)) return;
    if (need < t->units || !cdp__fsdp_stays(t, unit)) *arrives = cdp__fsdp_travel(t, bytes);
}

/* Waits for the memory of the last but one gradient, and begins a reduction. */
CDP__PRIVATE void cdp__fsdp_time_reduction(cdp__fsdp_timing *t, uint32_t unit) {
    const cdp__fsdp_plan p = cdp__fsdp_plan_of(&t->list, unit, t->ranks, t->rank);
    if (!p.total[0] || t->ranks == 1) return;
    cdp__fsdp_wait_until(t, t->reduced[0]);
    t->reduced[0] = t->reduced[1];
    t->reduced[1] =
        cdp__fsdp_travel(t, (t->ranks - 1ull) * p.own[0] * cdp__fsdp_size_of(t->d->reduce));
}

/* Backward takes twice the time of forward. */
CDP__PRIVATE void cdp__fsdp_time_units(cdp__fsdp_timing *t) {
    uint32_t need;
    for (need = 0; need < 2 * t->units; ++need) {
        const uint32_t unit = cdp__fsdp_unit_of_need(t, need);
        const double us = t->speed->unit_us ? t->speed->unit_us[unit] : 0;
        while (t->asked < 2 * t->units && t->asked <= need + t->ahead)
            cdp__fsdp_ask(t);
        cdp__fsdp_wait_until(t, t->arrives[need % CDP__FSDP_AHEAD]);
        t->now += need < t->units ? us : 2 * us;
        if (need >= t->units) cdp__fsdp_time_reduction(t, unit);
    }
}

CDP__PRIVATE void cdp__fsdp_time(cdp__fsdp_timing *t, cdp_fsdp_times *out) {
    uint32_t n;
    for (n = 1; n < t->ranks; n *= 2)
        t->rounds += t->speed->latency_us;
    cdp__fsdp_time_units(t);
    cdp__fsdp_wait_until(t, t->reduced[1]);
    if (t->ranks > 1) cdp__fsdp_wait_until(t, cdp__fsdp_travel(t, 16));
    out->step_us = t->now;
    out->exposed_us = t->waited;
    out->comm_us = t->busy;
    out->hidden = t->busy > 0 ? 1 - t->waited / t->busy : 0;
}

CDP_API cdp_status cdp_fsdp_preview_times(
    const cdp_fsdp_desc *d, uint32_t rank, const cdp_fsdp_speed *speed, cdp_fsdp_times *out) {
    cdp__fsdp_timing t;
    cdp_status st;
    uint32_t i;
    if (!out) return cdp__fsdp_missing("cdp_fsdp_preview_times", "out");
    memset(out, 0, sizeof *out);
    memset(&t, 0, sizeof t);
    if (!speed) return cdp__fsdp_missing("cdp_fsdp_preview_times", "speed");
    st = cdp__fsdp_check("cdp_fsdp_preview_times", d);
    if (st == CDP_OK) st = cdp__fsdp_paper_ranks("cdp_fsdp_preview_times", d, rank, &t.ranks);
    if (st != CDP_OK) return st;
    if (!(speed->bytes_per_us > 0) || !(speed->latency_us >= 0))
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_fsdp_preview_times: speed->bytes_per_us is not above 0, or latency_us is negative "
            "or NaN");
    t.d = d;
    t.speed = speed;
    t.list = cdp__fsdp_list_of(d);
    t.rank = rank;
    t.units = cdp__fsdp_unit_count(d);
    t.sizes = cdp__fsdp_sizes_of(d, &t.list, t.units);
    t.ahead = d->no_prefetch ? 0 : cdp__def(d->prefetch, 1u);
    t.ahead = (uint32_t)cdp__min(t.ahead, CDP__FSDP_AHEAD - 1);
    for (i = 0; i < t.units && speed->unit_us; ++i)
        if (!(speed->unit_us[i] >= 0))
            return cdp_error_set(CDP_ERR_INVALID, -1, 0,
                "cdp_fsdp_preview_times: speed->unit_us[%u] is negative or NaN", i);
    cdp__fsdp_time(&t, out);
    return CDP_OK;
}

/* ---- >>fsdp/state: what a cdp_fsdp consists of ----------------------------------------------- */

/* Knows: units, slots, gradients on their way. Promises: memory is counted where it is made. */

#define CDP__FSDP_FLIGHTS 2u /* reductions in flight */
/* In the place of the root, which gathers and reductions do not have: they carry the number of
   their unit as buckets of a ddp do, so ranks that use different units of one size get an error. */
#define CDP__FSDP_TAG 0xddff0000u

/* One of the two ranges of a unit. */
typedef struct cdp__fsdp_range {
    uint64_t total, start, own; /* elements of all ranks; where this rank's begin; how many */
    uint64_t *counts;           /* of each rank */
    float *value;               /* this rank's */
    uint8_t *copy;              /* the same in the dtype that is gathered, if that is not f32 */
} cdp__fsdp_range;

/* What pictures show. */
enum {
    CDP__FSDP_WAITS = 0,
    CDP__FSDP_GATHERS,
    CDP__FSDP_REDUCTIONS,
    CDP__FSDP_ROWS
};

typedef struct cdp__fsdp_event {
    uint32_t row, unit;
    uint64_t from_ns, to_ns; /* to_ns 0: it has not ended */
    uint64_t bytes;          /* received */
    uint64_t held;           /* in use when it began */
} cdp__fsdp_event;

typedef struct cdp__fsdp_spans {
    cdp__fsdp_event *events;
    uint32_t count, lost;
    uint64_t begin_ns, end_ns;
} cdp__fsdp_spans;

typedef struct cdp__fsdp_unit {
    char *name;
    bool keep;
    uint32_t uses;
    cdp__fsdp_range range[2]; /* trainable, frozen */
    float *mean;              /* this rank's part of the sum of gradients, then of the mean */
    float *state[CDP_FSDP_STATES];
    uint32_t slot;  /* where it is gathered; CDP__FSDP_NONE: nowhere */
    uint32_t opens; /* needs without done */
    cdp_work gather;
    bool gathering;
    uint32_t event;          /* of the gather */
    float *grad;             /* whole gradient that the program adds to; NULL: not begun */
    uint32_t pool;           /* which of the shared memories `grad` is; CDP__FSDP_NONE: own_grad */
    float *own_grad;         /* of units that do not share */
    uint32_t reducing;       /* reductions in flight */
    uint32_t ready_count;    /* since the last reduction */
    bool reduced;            /* a sum of this step is in `mean`, or on its way there */
    bool held;               /* no_sync has kept its gradients */
    uint32_t sums, expected; /* that have arrived in this step; in the one before */
    uint32_t forwarded;      /* so many sums were in what holders got */
    bool forwarding;
    cdp_work forward;
} cdp__fsdp_unit;

typedef struct cdp__fsdp_slot {
    uint8_t *memory;
    uint64_t bytes;
    uint32_t unit;  /* CDP__FSDP_NONE: free */
    uint64_t stamp; /* when it was used */
} cdp__fsdp_slot;

/* A reduction in flight. */
typedef struct cdp__fsdp_flight {
    uint32_t unit, pool, event;
    float *grad;
    uint8_t *narrow; /* the gradient in 16 bits; NULL: it travels as f32 */
    bool first;      /* the sum is stored, not added */
    cdp_work work;
} cdp__fsdp_flight;

/* A shard that this rank holds: its own one, or a copy. */
typedef struct cdp__fsdp_image {
    uint32_t shard;
    float *values, *means, *states[CDP_FSDP_STATES];
    uint64_t value_count, mean_count;
    uint64_t *at; /* where the trainable and the frozen range of each unit begin */
} cdp__fsdp_image;

struct cdp_fsdp {
    cdp_fsdp_desc desc; /* without what its caller may free */
    const cdp_os *os;
    /* Of the same ranks as desc.group, replicate and norm_group: no kind of operation waits for
       another one, and they end with the fsdp, so others do not wait for this rank. */
    cdp_group *gathers, *reductions, *replicas, *norms, *buddies;
    uint32_t ranks, rank, unit_count, piece_count;
    uint32_t held_pieces;   /* with those of copies, which come after the own ones */
    cdp_fsdp_param *params; /* with copies of names */
    cdp__fsdp_list list;    /* the same */
    uint64_t *offset;       /* of each parameter in its range */
    cdp__fsdp_unit *units;
    cdp_fsdp_piece *pieces;
    cdp__fsdp_slot *slots;
    uint32_t slot_count;
    uint64_t clock;
    float *values, *means, *states[CDP_FSDP_STATES]; /* of all units */
    uint64_t value_count, mean_count;
    uint8_t *copies;
    uint64_t *counts;
    uint64_t *parts; /* of each rank, of the parameter that is moved */
    float *pool[CDP__FSDP_FLIGHTS];
    bool pool_taken[CDP__FSDP_FLIGHTS];
    uint8_t *narrow[CDP__FSDP_FLIGHTS];
    uint64_t most, most_shared; /* elements of the largest whole gradients */
    cdp__fsdp_flight flight[CDP__FSDP_FLIGHTS];
    uint32_t flights;
    uint32_t *record, *next_record; /* units in the order of needs: of the last step, of this one */
    uint32_t record_count, next_count, record_room, cursor, last;
    bool backward, no_sync, ended;
    cdp_fsdp_info info;
    uint64_t step;
    /* Copies: [0] is this rank's own shard. */
    cdp__fsdp_image images[1 + CDP_FSDP_COPIES];
    uint32_t image_count, distance;
    bool filled;           /* copies are complete */
    bool own_divisor;      /* the program has set it */
    uint64_t layout, seen; /* number of this layout of shards; the highest that was met */
    uint64_t turn;         /* steps that have ended */
    bool entered;          /* the closing allreduce of this step: this rank can update */
    bool torn;             /* an update has stopped half-way */
    bool left_out;         /* the last step has updated nothing */
    double loss_scale;
    cdp_fsdp
        *pending; /* a complete new layout, of which this rank does not know whether all use it */
    cdp_status failed; /* of the first call that failed in the midst of a step */
    char cause[512];   /* its text */
    cdp_fsdp_stats stats, now;
    uint32_t under_way;          /* gathers and reductions */
    uint64_t since_ns, begin_ns; /* when the first of these began; when this step did */
    uint64_t held;               /* bytes of gathered units and of whole gradients in use */
    cdp__fsdp_spans spans[2];    /* of the last step, of this one */
};

CDP__PRIVATE void *cdp__fsdp_alloc(const cdp_fsdp *f, uint64_t bytes) {
    void *p = f->os->alloc(f->os->user, bytes ? bytes : 1);
    if (p) memset(p, 0, (size_t)bytes);
    return p;
}

CDP__PRIVATE void cdp__fsdp_free(const cdp_fsdp *f, void *p) {
    if (p) f->os->release(f->os->user, p);
}

/* Memory that operations use; zeros. NULL: the last error says why. */
CDP__PRIVATE void *cdp__fsdp_memory(cdp_fsdp *f, uint64_t bytes, uint64_t *counter) {
    void *p = NULL;
    if (cdp_group_alloc(f->gathers, bytes ? bytes : 1, &p) != CDP_OK) return NULL;
    memset(p, 0, (size_t)bytes);
    *counter += bytes;
    f->stats.total_bytes += bytes;
    return p;
}

/* Refuses no fsdp, and one that was destroyed. */
CDP__PRIVATE cdp_status cdp__fsdp_alive(const cdp_fsdp *f, const char *call) {
    if (!f) return cdp__fsdp_missing(call, "fsdp");
    if (cdp__ended(f))
        return cdp_error_set(CDP_ERR_STATE, -1, 0, "%s: this cdp_fsdp was destroyed", call);
    /* a child of fork() shares memory of groups; failures are those of the calls that follow */
    return cdp_group_status(f->gathers) == CDP_ERR_STATE ? CDP_ERR_STATE : CDP_OK;
}

/* Refuses calls that come at the wrong time. */
CDP__PRIVATE cdp_status cdp__fsdp_may(
    cdp_fsdp *f, const char *call, uint32_t unit, bool before_end) {
    const cdp_status st = cdp__fsdp_alive(f, call);
    if (st != CDP_OK) return st;
    if (f->failed != CDP_OK)
        return cdp_error_set(f->failed, -1, 0,
            "%s: an earlier call has failed, so destroy this cdp_fsdp: %s", call, f->cause);
    if (unit >= f->unit_count)
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "%s: unit %u should be less than the number of units, %u", call, unit, f->unit_count);
    if (before_end && f->ended)
        return cdp_error_set(CDP_ERR_STATE, -1, 0,
            "%s: cdp_fsdp_backward_end() has ended this step; call cdp_fsdp_step() or "
            "cdp_fsdp_drop() first",
            call);
    return CDP_OK;
}

CDP__PRIVATE uint64_t cdp__fsdp_now(const cdp_fsdp *f) {
    return f->os->now_ns(f->os->user);
}

/* Notes that something begins; CDP__FSDP_NONE: there is no room. */
CDP__PRIVATE uint32_t cdp__fsdp_begins(
    cdp_fsdp *f, uint32_t row, uint32_t unit, uint64_t bytes, uint64_t now) {
    cdp__fsdp_spans *const spans = &f->spans[1];
    cdp__fsdp_event *e;
    if (spans->count == f->desc.events) {
        ++spans->lost;
        return CDP__FSDP_NONE;
    }
    e = &spans->events[spans->count];
    e->row = row;
    e->unit = unit;
    e->from_ns = now;
    e->to_ns = 0;
    e->bytes = bytes;
    e->held = f->held;
    return spans->count++;
}

CDP__PRIVATE void cdp__fsdp_ends(cdp_fsdp *f, uint32_t event) {
    if (event != CDP__FSDP_NONE) f->spans[1].events[event].to_ns = cdp__fsdp_now(f);
}

/* A step has ended: what is still on its way belongs to none. */
CDP__PRIVATE void cdp__fsdp_end_spans(cdp_fsdp *f) {
    cdp__fsdp_spans was;
    uint32_t i;
    if (!f->desc.events) return;
    f->spans[1].end_ns = cdp__fsdp_now(f);
    for (i = 0; i < f->unit_count; ++i)
        f->units[i].event = CDP__FSDP_NONE;
    was = f->spans[0];
    f->spans[0] = f->spans[1];
    f->spans[1].events = was.events;
    f->spans[1].count = f->spans[1].lost = 0;
    f->spans[1].begin_ns = f->spans[0].end_ns;
}

/* An operation has begun, or its end was seen. */
CDP__PRIVATE void cdp__fsdp_travels(cdp_fsdp *f, bool begins) {
    const uint64_t now = cdp__fsdp_now(f);
    if (begins && !f->under_way++) f->since_ns = now;
    if (!begins && !--f->under_way) f->now.comm_ns += now - f->since_ns;
}

/* Figures of a step that ends; operations that are under way go on in the next one. */
CDP__PRIVATE void cdp__fsdp_end_figures(cdp_fsdp *f) {
    const uint64_t now = cdp__fsdp_now(f);
    cdp_fsdp_stats *s = &f->stats;
    if (f->under_way) f->now.comm_ns += now - f->since_ns;
    s->gathers = f->now.gathers;
    s->reductions = f->now.reductions;
    s->misses = f->now.misses;
    s->gather_bytes = f->now.gather_bytes;
    s->reduce_bytes = f->now.reduce_bytes;
    s->exposed_ns = f->now.exposed_ns;
    s->forward_bytes = f->now.forward_bytes;
    s->comm_ns = cdp__max(f->now.comm_ns, s->exposed_ns);
    s->step_ns = now - f->begin_ns;
    s->hidden = s->comm_ns ? 1 - (double)s->exposed_ns / (double)s->comm_ns : 0;
    s->total_comm_ns += s->comm_ns;
    s->total_exposed_ns += s->exposed_ns;
    s->total_step_ns += s->step_ns;
    ++s->steps;
    f->since_ns = f->begin_ns = now;
    memset(&f->now, 0, sizeof f->now);
}

/* Tells the program what is in use under the name of a unit. */
CDP__PRIVATE void cdp__fsdp_label(
    const cdp_fsdp *f, const cdp__fsdp_unit *u, const char *what, uint64_t bytes) {
    char label[96];
    cdp__text t = cdp__text_of(label, sizeof label);
    if (!f->desc.label) return;
    cdp__text_add(&t, "%s%s", u->name, what);
    f->desc.label(f->desc.user, label, bytes);
}

CDP__PRIVATE void cdp__fsdp_label_gradients(const cdp_fsdp *f, const cdp__fsdp_unit *u) {
    const uint64_t held = u->reducing + (u->grad ? 1ull : 0);
    cdp__fsdp_label(f, u, " gradients", held * u->range[0].total * sizeof(float));
}

/* What this thread's last error says, with units in the place of buckets. */
CDP__PRIVATE void cdp__fsdp_retell(char *out, uint64_t room) {
    static const char bucket[] = "for bucket ", ddp[] = " of ddp 255";
    cdp__text t = cdp__text_of(out, room);
    const char *from = cdp_last_error()->text;
    while (*from)
        if (!strncmp(from, bucket, sizeof bucket - 1)) {
            cdp__text_add(&t, "for unit ");
            from += sizeof bucket - 1;
        } else if (!strncmp(from, ddp, sizeof ddp - 1))
            from += sizeof ddp - 1;
        else
            cdp__text_add(&t, "%c", *from++);
}

/* Names the call and the unit in the last error. */
CDP__PRIVATE cdp_status cdp__fsdp_named(const char *call, const cdp__fsdp_unit *u, cdp_status st) {
    char text[512];
    const int32_t peer = cdp_last_error()->peer;
    if (st == CDP_OK) return st;
    cdp__fsdp_retell(text, sizeof text);
    return cdp_error_set(st, peer, 0, "%s: unit '%s': %s", call, u->name, text);
}

/* Waits for an operation. Groups of the fsdp fail alone: where desc.group has failed meanwhile, as
   at the end of an epoch of cdp_elastic.h, other ranks may not come here any more. */
CDP__PRIVATE cdp_status cdp__fsdp_await(cdp_fsdp *f, cdp_work work) {
    const uint32_t look_ms = 50;
    cdp_status st = cdp_work_wait_for(work, look_ms);
    while (st == CDP_PENDING) {
        if (cdp_group_status(f->desc.group) != CDP_OK) {
            const cdp_error e = *cdp_last_error();
            cdp_group_abort(work.group, e.text);
            return cdp_work_wait(work);
        }
        st = cdp_work_wait_for(work, look_ms);
    }
    return st;
}

/* Waits for a unit's operation. */
CDP__PRIVATE cdp_status cdp__fsdp_wait(
    cdp_fsdp *f, const char *call, const cdp__fsdp_unit *u, cdp_work work) {
    const uint64_t from = cdp__fsdp_now(f);
    const uint32_t event = cdp__fsdp_begins(f, CDP__FSDP_WAITS, (uint32_t)(u - f->units), 0, from);
    const cdp_status st = cdp__fsdp_await(f, work);
    f->now.exposed_ns += cdp__fsdp_now(f) - from;
    cdp__fsdp_ends(f, event);
    return cdp__fsdp_named(call, u, st);
}

/* ---- >>fsdp/gather: parameters are gathered before they are needed, and freed after ---------- */

/* Knows: slots, the order of needs of the last step. Promises: what is gathered, where and when,
   follows from the calls alone, so it is the same on all ranks; a step like the one before
   allocates nothing. */

CDP__PRIVATE uint64_t cdp__fsdp_slot_bytes(const cdp_fsdp *f, const cdp__fsdp_unit *u) {
    return (u->range[0].total + u->range[1].total) * cdp__fsdp_size_of(f->desc.compute);
}

/* Waits for the unit's parameters, if they are on their way. */
CDP__PRIVATE cdp_status cdp__fsdp_arrive(cdp_fsdp *f, cdp__fsdp_unit *u) {
    cdp_status st;
    if (!u->gathering) return CDP_OK;
    st = cdp__fsdp_wait(f, "cdp_fsdp_need", u, u->gather);
    if (st != CDP_OK) return st;
    u->gathering = false;
    cdp__fsdp_travels(f, false);
    cdp__fsdp_ends(f, u->event);
    return CDP_OK;
}

CDP__PRIVATE void cdp__fsdp_vacate(cdp_fsdp *f, cdp__fsdp_slot *s) {
    if (s->unit != CDP__FSDP_NONE) {
        cdp__fsdp_label(f, &f->units[s->unit], "", 0);
        f->units[s->unit].slot = CDP__FSDP_NONE;
        f->held -= s->bytes;
    }
    s->unit = CDP__FSDP_NONE;
    s->stamp = 0;
}

/* The slot that was not used for longest, of those before `before` that a unit of so many bytes may
   take; CDP__FSDP_NONE: there is none. `arriving`: it may be of a unit that is on its way. */
CDP__PRIVATE uint32_t cdp__fsdp_oldest(
    const cdp_fsdp *f, uint64_t bytes, uint64_t before, bool arriving) {
    uint32_t i, best = CDP__FSDP_NONE;
    for (i = 0; i < f->slot_count; ++i) {
        const cdp__fsdp_slot *s = &f->slots[i];
        const cdp__fsdp_unit *u = s->unit == CDP__FSDP_NONE ? NULL : &f->units[s->unit];
        if (s->bytes != bytes || s->stamp > before) continue;
        if (u && (u->keep || u->opens || (u->gathering && !arriving))) continue;
        if (best == CDP__FSDP_NONE || s->stamp < f->slots[best].stamp) best = i;
    }
    return best;
}

CDP__PRIVATE cdp_status cdp__fsdp_add_slot(cdp_fsdp *f, uint64_t bytes, uint32_t *out) {
    cdp__fsdp_slot *s = &f->slots[f->slot_count];
    s->memory = (uint8_t *)cdp__fsdp_memory(f, bytes, &f->stats.slot_bytes);
    if (!s->memory) return CDP_ERR_NOMEM;
    s->bytes = bytes;
    s->unit = CDP__FSDP_NONE;
    *out = f->slot_count++;
    return CDP_OK;
}

/* One allgather for each range that is not empty. */
CDP__PRIVATE cdp_status cdp__fsdp_start_gather(cdp_fsdp *f, uint32_t unit, uint32_t slot) {
    const uint64_t size = cdp__fsdp_size_of(f->desc.compute);
    cdp__fsdp_unit *u = &f->units[unit];
    cdp__fsdp_slot *s = &f->slots[slot];
    cdp_request rq[2];
    uint64_t received = 0;
    uint32_t k, n = 0;
    cdp_status st;
    memset(rq, 0, sizeof rq);
    for (k = 0; k < 2; ++k) {
        const cdp__fsdp_range *r = &u->range[k];
        if (!r->total) continue;
        rq[n].kind = CDP_COLL_ALLGATHER;
        rq[n].in = r->copy ? (const void *)r->copy : (const void *)r->value;
        rq[n].out = s->memory + (k ? u->range[0].total * size : 0);
        rq[n].dtype = f->desc.compute;
        rq[n].out_counts = r->counts;
        rq[n++].root = CDP__FSDP_TAG | unit;
        received += (r->total - r->own) * size;
    }
    st = cdp_start_all(f->gathers, rq, n, &u->gather);
    if (st != CDP_OK) return cdp__fsdp_named("cdp_fsdp_need", u, st);
    ++f->now.gathers;
    f->now.gather_bytes += received;
    f->held += s->bytes;
    cdp__fsdp_travels(f, true);
    cdp__fsdp_label(f, u, "", s->bytes);
    u->event = cdp__fsdp_begins(f, CDP__FSDP_GATHERS, unit, received, cdp__fsdp_now(f));
    s->unit = unit;
    s->stamp = ++f->clock;
    u->slot = slot;
    u->gathering = true;
    return CDP_OK;
}

/* Gathers a unit that is not here. `now`: it is needed, so it gets a slot in any case. */
CDP__PRIVATE cdp_status cdp__fsdp_fetch(
    cdp_fsdp *f, uint32_t unit, uint64_t before, bool now, bool *started) {
    cdp__fsdp_unit *u = &f->units[unit];
    const uint64_t bytes = cdp__fsdp_slot_bytes(f, u);
    uint32_t slot = cdp__fsdp_oldest(f, bytes, before, false);
    cdp_status st = CDP_OK;
    *started = false;
    if (slot == CDP__FSDP_NONE && now) {
        slot = cdp__fsdp_oldest(f, bytes, before, true);
        if (slot != CDP__FSDP_NONE)
            st = cdp__fsdp_arrive(f, &f->units[f->slots[slot].unit]);
        else
            st = cdp__fsdp_add_slot(f, bytes, &slot);
    }
    if (st != CDP_OK || slot == CDP__FSDP_NONE) return st;
    cdp__fsdp_vacate(f, &f->slots[slot]);
    *started = true;
    return cdp__fsdp_start_gather(f, unit, slot);
}

/* The unit that is expected k needs from now: as recorded in the last step; without a record, the
   neighbours in the order of numbers, backwards after the first `ready`. */
CDP__PRIVATE uint32_t cdp__fsdp_expected(const cdp_fsdp *f, uint32_t k) {
    if (f->record_count)
        return k < f->record_count - f->cursor ? f->record[f->cursor + k] : CDP__FSDP_NONE;
    if (f->last == CDP__FSDP_NONE) return k < f->unit_count ? k : CDP__FSDP_NONE;
    if (f->backward) return k < f->last ? f->last - 1 - k : CDP__FSDP_NONE;
    return k < f->unit_count - 1 - f->last ? f->last + 1 + k : CDP__FSDP_NONE;
}

CDP__PRIVATE cdp_status cdp__fsdp_prefetch(cdp_fsdp *f) {
    const uint64_t before = f->clock;
    uint32_t k, unit, left = f->desc.no_prefetch ? 0 : cdp__def(f->desc.prefetch, 1u);
    cdp_status st = CDP_OK;
    bool started = true;
    for (k = 0; left && st == CDP_OK && started; ++k) {
        cdp__fsdp_unit *u;
        unit = cdp__fsdp_expected(f, k);
        if (unit == CDP__FSDP_NONE) break;
        u = &f->units[unit];
        if (unit == f->last || !cdp__fsdp_slot_bytes(f, u)) continue;
        if (u->slot == CDP__FSDP_NONE) {
            st = cdp__fsdp_fetch(f, unit, before, false, &started);
            --left;
        } else if (f->slots[u->slot].stamp <= before) {
            f->slots[u->slot].stamp = ++f->clock;
            --left;
        }
    }
    return st;
}

/* Finds the place of a need in the record of the last step: the next one, or else the first. */
CDP__PRIVATE void cdp__fsdp_find_place(cdp_fsdp *f, uint32_t unit) {
    uint32_t i;
    for (i = 0; i < f->record_count; ++i) {
        const uint32_t at = (uint32_t)(((uint64_t)f->cursor + i) % f->record_count);
        if (f->record[at] != unit) continue;
        f->cursor = at + 1;
        return;
    }
}

/* Notes a need. Of steps with more needs than `most`, such as long evaluations, whose batches are
   alike, the newer ones stay. */
CDP__PRIVATE cdp_status cdp__fsdp_record_need(cdp_fsdp *f, uint32_t unit) {
    const uint32_t most = (uint32_t)cdp__max(64, 16 * f->unit_count), half = f->next_count / 2;
    if (f->next_count == f->record_room && f->record_room >= most) {
        memmove(
            f->next_record, f->next_record + half, (f->next_count - half) * sizeof *f->next_record);
        f->next_count -= half;
    }
    if (f->next_count == f->record_room) {
        const uint32_t room = f->record_room ? 2 * f->record_room : 64;
        uint32_t *grown[2];
        grown[0] = (uint32_t *)cdp__fsdp_alloc(f, room * sizeof *grown[0]);
        grown[1] = (uint32_t *)cdp__fsdp_alloc(f, room * sizeof *grown[1]);
        if (!grown[0] || !grown[1]) {
            cdp__fsdp_free(f, grown[0]);
            cdp__fsdp_free(f, grown[1]);
            return cdp__fsdp_nomem("the order of units", room * sizeof *grown[0]);
        }
        if (f->record_count) memcpy(grown[0], f->record, f->record_count * sizeof *f->record);
        if (f->next_count) memcpy(grown[1], f->next_record, f->next_count * sizeof *f->record);
        cdp__fsdp_free(f, f->record);
        cdp__fsdp_free(f, f->next_record);
        f->record = grown[0];
        f->next_record = grown[1];
        f->record_room = room;
    }
    f->next_record[f->next_count++] = unit;
    f->last = unit;
    cdp__fsdp_find_place(f, unit);
    return CDP_OK;
}

/* Others may wait for this rank in any group of this fsdp. */
CDP__PRIVATE void cdp__fsdp_abort_groups(cdp_fsdp *f, const char *reason) {
    cdp_group *groups[5];
    uint32_t i;
    groups[0] = f->gathers;
    groups[1] = f->reductions;
    groups[2] = f->replicas;
    groups[3] = f->norms;
    groups[4] = f->buddies;
    for (i = 0; i < 5; ++i)
        if (groups[i]) cdp_group_abort(groups[i], reason);
}

/* This rank alone cannot go on, and others would wait for it: they learn why. */
CDP__PRIVATE void cdp__fsdp_give_up(cdp_fsdp *f, cdp_status st, const char *what) {
    const cdp_error e = *cdp_last_error();
    cdp__fsdp_abort_groups(f, e.text);
    (void)cdp_error_set(st, -1, 0, "%s%s", what, e.text);
}

#define CDP__FSDP_LOST "cdp_fsdp has lost rank " /* and its number: what such aborts begin with */

/* This rank has lost another one, perhaps in a group in which others do not communicate with it:
   they learn of it where they wait for this one. */
CDP__PRIVATE void cdp__fsdp_pass_loss(cdp_fsdp *f) {
    const cdp_error e = *cdp_last_error();
    char reason[512];
    cdp__text t = cdp__text_of(reason, sizeof reason);
    if (e.peer < 0) return;
    cdp__text_add(&t, CDP__FSDP_LOST "%d: %s", (int)e.peer, e.text);
    cdp__fsdp_abort_groups(f, reason);
    (void)cdp__error_again(CDP_ERR_PEER_LOST, &e);
}

/* An abort because of a lost rank is its loss here, too. */
CDP__PRIVATE cdp_status cdp__fsdp_told(void) {
    const cdp_error e = *cdp_last_error();
    const char *at = strstr(e.text, CDP__FSDP_LOST);
    int32_t peer = 0;
    if (!at) return CDP_ERR_ABORTED;
    for (at += sizeof CDP__FSDP_LOST - 1; *at >= '0' && *at <= '9'; ++at)
        peer = peer * 10 + (*at - '0');
    return cdp_error_set(CDP_ERR_PEER_LOST, peer, 0, "%s", e.text);
}

/* A failure that may concern a rank that is lost. */
CDP__PRIVATE cdp_status cdp__fsdp_share_loss(cdp_fsdp *f, cdp_status st) {
    if (st == CDP_ERR_PEER_LOST) cdp__fsdp_pass_loss(f);
    return st == CDP_ERR_ABORTED ? cdp__fsdp_told() : st;
}

/* Memory that runs out in the midst of a step, or a failure of communication, ends this fsdp. */
CDP__PRIVATE cdp_status cdp__fsdp_broken(cdp_fsdp *f, cdp_status st) {
    cdp__text t = cdp__text_of(f->cause, sizeof f->cause);
    if (st == CDP_OK || f->failed != CDP_OK) return st;
    if (st == CDP_ERR_NOMEM) cdp__fsdp_give_up(f, st, "");
    st = cdp__fsdp_share_loss(f, st);
    f->failed = st;
    cdp__text_add(&t, "%s", cdp_last_error()->text);
    return st;
}

CDP_API cdp_status cdp_fsdp_need(cdp_fsdp *f, uint32_t unit) {
    cdp_status st = cdp__fsdp_may(f, "cdp_fsdp_need", unit, false);
    cdp__fsdp_unit *u;
    bool started = false;
    if (st != CDP_OK) return st;
    u = &f->units[unit];
    if (u->opens++) return CDP_OK;
    st = cdp__fsdp_record_need(f, unit);
    if (st == CDP_OK && cdp__fsdp_slot_bytes(f, u)) {
        if (u->slot == CDP__FSDP_NONE) {
            st = cdp__fsdp_fetch(f, unit, f->clock, true, &started);
            ++f->now.misses;
        } else
            f->slots[u->slot].stamp = ++f->clock;
    }
    if (st == CDP_OK) st = cdp__fsdp_prefetch(f);
    if (st == CDP_OK) st = cdp__fsdp_arrive(f, u);
    return cdp__fsdp_broken(f, st);
}

CDP_API cdp_status cdp_fsdp_done(cdp_fsdp *f, uint32_t unit) {
    const cdp_status st = cdp__fsdp_may(f, "cdp_fsdp_done", unit, false);
    if (st != CDP_OK) return st;
    if (!f->units[unit].opens)
        return cdp_error_set(CDP_ERR_STATE, -1, 0,
            "cdp_fsdp_done: unit '%s' is not needed; call cdp_fsdp_need() before",
            f->units[unit].name);
    --f->units[unit].opens;
    return CDP_OK;
}

CDP_API const void *cdp_fsdp_data(cdp_fsdp *f, uint32_t param) {
    const cdp__fsdp_unit *u;
    uint64_t at;
    if (!f || cdp__ended(f) || param >= f->desc.param_count) return NULL;
    u = &f->units[f->params[param].unit];
    if (!u->opens || u->gathering || u->slot == CDP__FSDP_NONE) return NULL;
    at = f->offset[param] + (f->params[param].frozen ? u->range[0].total : 0);
    return f->slots[u->slot].memory + at * cdp__fsdp_size_of(f->desc.compute);
}

/* Parameters change: what was gathered is old. Nothing may be on its way. */
CDP__PRIVATE void cdp__fsdp_forget_slots(cdp_fsdp *f) {
    uint32_t i;
    for (i = 0; i < f->slot_count; ++i)
        cdp__fsdp_vacate(f, &f->slots[i]);
}

CDP__PRIVATE cdp_status cdp__fsdp_arrive_all(cdp_fsdp *f) {
    cdp_status st = CDP_OK;
    uint32_t i;
    for (i = 0; i < f->unit_count && st == CDP_OK; ++i)
        st = cdp__fsdp_arrive(f, &f->units[i]);
    return st;
}

/* ---- >>fsdp/copies: further holders of a shard repeat its updates ---------------------------- */

/* Knows: the shards that this rank holds for others. Promises: what an update needs is with all
   holders before any rank can update; in place, while backward goes on. */

/* Elements of one range of a unit that a shard has. */
CDP__PRIVATE uint64_t cdp__fsdp_in_image(
    const cdp_fsdp *f, uint32_t unit, uint32_t frozen, uint32_t image) {
    return f->units[unit].range[frozen].counts[f->images[image].shard];
}

CDP__PRIVATE uint64_t cdp__fsdp_place(
    const cdp_fsdp *f, uint32_t unit, uint32_t frozen, uint32_t image) {
    return f->images[image].at[2 * unit + frozen];
}

/* Where each unit begins in a shard: trainable ranges of all units, then the frozen ones. */
CDP__PRIVATE void cdp__fsdp_lay_out(cdp_fsdp *f, uint32_t image) {
    cdp__fsdp_image *m = &f->images[image];
    uint32_t unit, k;
    for (k = 0; k < 2; ++k) {
        for (unit = 0; unit < f->unit_count; ++unit) {
            m->at[2 * unit + k] = m->value_count;
            m->value_count += cdp__fsdp_in_image(f, unit, k, image);
        }
        if (!k) m->mean_count = m->value_count;
    }
}

/* The shards that this rank holds: its own one, and copies. */
CDP__PRIVATE cdp_status cdp__fsdp_open_images(cdp_fsdp *f) {
    uint32_t i, k;
    for (i = 0; i < f->image_count; ++i) {
        cdp__fsdp_image *m = &f->images[i];
        m->shard = cdp__fsdp_held(f->ranks, f->distance, f->rank, i);
        m->at = (uint64_t *)cdp__fsdp_alloc(f, 2ull * f->unit_count * sizeof *m->at);
        if (!m->at) return cdp__fsdp_nomem("places", 2ull * f->unit_count * sizeof *m->at);
        cdp__fsdp_lay_out(f, i);
        if (!i) {
            m->values = f->values;
            m->means = f->means;
            memcpy(m->states, f->states, sizeof m->states);
            continue;
        }
        m->values = (float *)cdp__fsdp_memory(f, m->value_count * 4, &f->stats.held_bytes);
        m->means = (float *)cdp__fsdp_memory(f, m->mean_count * 4, &f->stats.held_bytes);
        if (!m->values || !m->means) return CDP_ERR_NOMEM;
        for (k = 0; k < cdp__fsdp_states(&f->desc); ++k) {
            m->states[k] = (float *)cdp__fsdp_memory(f, m->mean_count * 4, &f->stats.held_bytes);
            if (!m->states[k]) return CDP_ERR_NOMEM;
        }
    }
    return CDP_OK;
}

CDP__PRIVATE void cdp__fsdp_free_images(cdp_fsdp *f) {
    uint32_t i, k;
    for (i = 0; i < f->image_count; ++i) {
        cdp__fsdp_free(f, f->images[i].at);
        if (!i) continue;
        cdp_group_free(f->gathers, f->images[i].values);
        cdp_group_free(f->gathers, f->images[i].means);
        for (k = 0; k < CDP_FSDP_STATES; ++k)
            cdp_group_free(f->gathers, f->images[i].states[k]);
    }
}

/* ---- messages to holders ---- */

/* Adds one stretch: this rank's goes to its holders, those of others come. `array` of each image
   begins at `at`. */
CDP__PRIVATE void cdp__fsdp_add_transfers(cdp_fsdp *f, uint32_t tag, float *const *array,
    const uint64_t *count, cdp_transfer *list, uint32_t *n) {
    uint32_t i;
    for (i = 1; i < f->image_count; ++i) {
        const uint32_t to = cdp__fsdp_holder(f->ranks, f->distance, f->rank, i);
        cdp_transfer t;
        memset(&t, 0, sizeof t);
        t.tag = tag;
        t.data = array[0];
        t.count = count[0];
        t.peer = to;
        if (t.count) list[(*n)++] = t;
        f->now.forward_bytes += t.count * sizeof(float);
        t.receive = true;
        t.data = array[i];
        t.count = count[i];
        t.peer = f->images[i].shard;
        if (t.count) list[(*n)++] = t;
    }
}

/* The unit's gradient was sent, and its copies have come. */
CDP__PRIVATE cdp_status cdp__fsdp_forwarded(cdp_fsdp *f, cdp__fsdp_unit *u) {
    cdp_status st;
    if (!u->forwarding) return CDP_OK;
    st = cdp__fsdp_wait(f, "cdp_fsdp_backward_end: copies", u, u->forward);
    if (st == CDP_OK) u->forwarding = false;
    return st;
}

/* Sends the sum of this rank's part of a unit's gradient on, and lets those of others come. */
CDP__PRIVATE cdp_status cdp__fsdp_forward(cdp_fsdp *f, uint32_t unit) {
    cdp__fsdp_unit *u = &f->units[unit];
    cdp_transfer list[2 * CDP_FSDP_COPIES];
    float *array[1 + CDP_FSDP_COPIES];
    uint64_t count[1 + CDP_FSDP_COPIES];
    uint32_t i, n = 0;
    cdp_status st = cdp__fsdp_forwarded(f, u);
    if (st != CDP_OK) return st;
    for (i = 0; i < f->image_count; ++i) {
        array[i] = f->images[i].means + cdp__fsdp_place(f, unit, 0, i);
        count[i] = cdp__fsdp_in_image(f, unit, 0, i);
    }
    cdp__fsdp_add_transfers(f, unit, array, count, list, &n);
    u->forwarded = u->sums;
    if (!n) return CDP_OK;
    st = cdp_batch(f->buddies, list, n, &u->forward);
    if (st != CDP_OK) return cdp__fsdp_named("cdp_fsdp_ready", u, st);
    u->forwarding = true;
    return CDP_OK;
}

/* A sum has arrived. If the last step had no more of this unit, it goes on at once. */
CDP__PRIVATE cdp_status cdp__fsdp_pass_on(cdp_fsdp *f, uint32_t unit) {
    cdp__fsdp_unit *u = &f->units[unit];
    ++u->sums;
    return f->image_count > 1 && u->sums >= u->expected ? cdp__fsdp_forward(f, unit) : CDP_OK;
}

/* Values and state of this rank's shard go to its holders. */
CDP__PRIVATE cdp_status cdp__fsdp_refill(cdp_fsdp *f) {
    cdp_transfer list[2 * CDP_FSDP_COPIES];
    float *array[1 + CDP_FSDP_COPIES];
    uint64_t count[1 + CDP_FSDP_COPIES];
    const uint32_t states = cdp__fsdp_states(&f->desc);
    uint32_t i, k, n;
    cdp_work work;
    cdp_status st = CDP_OK;
    for (k = 0; k <= states && st == CDP_OK && f->image_count > 1; ++k) {
        n = 0;
        for (i = 0; i < f->image_count; ++i) {
            array[i] = k < states ? f->images[i].states[k] : f->images[i].values;
            count[i] = k < states ? f->images[i].mean_count : f->images[i].value_count;
        }
        cdp__fsdp_add_transfers(f, UINT32_MAX - 1, array, count, list, &n);
        if (n) st = cdp_batch(f->buddies, list, n, &work);
        if (n && st == CDP_OK) st = cdp__fsdp_await(f, work);
    }
    if (st == CDP_OK) f->filled = true;
    return st;
}

/* Everything that an update of a copy needs is here, and what others need has left. */
CDP__PRIVATE cdp_status cdp__fsdp_complete_copies(cdp_fsdp *f) {
    cdp_status st = f->filled || f->image_count == 1 ? CDP_OK : cdp__fsdp_refill(f);
    uint32_t i;
    for (i = 0; i < f->unit_count && st == CDP_OK && f->image_count > 1; ++i)
        if (f->units[i].forwarded != f->units[i].sums) st = cdp__fsdp_forward(f, i);
    for (i = 0; i < f->unit_count && st == CDP_OK; ++i)
        st = cdp__fsdp_forwarded(f, &f->units[i]);
    return st;
}

/* ---- >>fsdp/reduce: gradients leave while backward goes on ----------------------------------- */

/* Knows: whole gradients, reductions in flight. Promises: at most two are in flight; sums are added
   in f32, in the order of the calls. */

/* Adds a sum that has arrived. Where it is the first, f32 was received in place. */
CDP__PRIVATE cdp_status cdp__fsdp_add(cdp_fsdp *f, const cdp__fsdp_flight *g) {
    cdp__fsdp_unit *u = &f->units[g->unit];
    const cdp__fsdp_range *r = &u->range[0];
    const float *sum = g->grad + r->start;
    uint64_t i;
    if (g->narrow) {
        const cdp_status st = cdp_convert(g->narrow + 2 * r->start, f->desc.reduce,
            g->first ? u->mean : g->grad + r->start, CDP_DTYPE_F32, r->own, NULL);
        if (st != CDP_OK) return st;
    }
    for (i = 0; i < r->own && !g->first; ++i)
        u->mean[i] += sum[i];
    return CDP_OK;
}

/* Waits for the oldest reduction. */
CDP__PRIVATE cdp_status cdp__fsdp_retire(cdp_fsdp *f) {
    const cdp__fsdp_flight g = f->flight[0];
    cdp__fsdp_unit *u = &f->units[g.unit];
    cdp_status st = cdp__fsdp_wait(f, "cdp_fsdp_ready", u, g.work);
    if (st == CDP_OK && !g.first) st = cdp__fsdp_forwarded(f, u); /* it is read in place */
    if (st == CDP_OK) st = cdp__fsdp_add(f, &g);
    if (st != CDP_OK) return st;
    if (g.pool != CDP__FSDP_NONE) f->pool_taken[g.pool] = false;
    f->held -= u->range[0].total * sizeof(float);
    cdp__fsdp_ends(f, g.event);
    --u->reducing;
    --f->flights;
    cdp__fsdp_travels(f, false);
    cdp__fsdp_label_gradients(f, u);
    memmove(&f->flight[0], &f->flight[1], f->flights * sizeof f->flight[0]);
    return cdp__fsdp_pass_on(f, g.unit);
}

CDP__PRIVATE cdp_status cdp__fsdp_give_own(cdp_fsdp *f, cdp__fsdp_unit *u) {
    if (!u->own_grad)
        u->own_grad = (float *)cdp__fsdp_memory(
            f, u->range[0].total * sizeof(float), &f->stats.gradient_bytes);
    return u->own_grad ? CDP_OK : CDP_ERR_NOMEM;
}

/* Finds memory for a unit's whole gradient: its own, one of two that units share, or, if both are
   held by units that are not ready, own memory from now on. */
CDP__PRIVATE cdp_status cdp__fsdp_find_memory(cdp_fsdp *f, cdp__fsdp_unit *u) {
    cdp_status st = CDP_OK;
    uint32_t i;
    if (f->no_sync) st = cdp__fsdp_give_own(f, u);
    u->pool = CDP__FSDP_NONE;
    while (st == CDP_OK && !u->own_grad) {
        for (i = 0; i < CDP__FSDP_FLIGHTS; ++i)
            if (!f->pool_taken[i] && f->pool[i]) break;
        if (i < CDP__FSDP_FLIGHTS) {
            u->pool = i;
            f->pool_taken[i] = true;
            u->grad = f->pool[i];
            return CDP_OK;
        }
        st = f->flights ? cdp__fsdp_retire(f) : cdp__fsdp_give_own(f, u);
    }
    while (st == CDP_OK && u->reducing)
        st = cdp__fsdp_retire(f);
    if (st == CDP_OK) u->grad = u->own_grad;
    return st;
}

/* Begins a gradient, as zeros, if there is none. */
CDP__PRIVATE cdp_status cdp__fsdp_begin_grad(cdp_fsdp *f, cdp__fsdp_unit *u) {
    cdp_status st;
    if (u->grad) return CDP_OK;
    st = cdp__fsdp_find_memory(f, u);
    if (st != CDP_OK) return st;
    memset(u->grad, 0, (size_t)(u->range[0].total * sizeof(float)));
    f->held += u->range[0].total * sizeof(float);
    cdp__fsdp_label_gradients(f, u);
    return CDP_OK;
}

/* Rounds a whole gradient to 16 bits. Sums of f16 would overflow, so it is divided before. */
CDP__PRIVATE cdp_status cdp__fsdp_narrow(
    cdp_fsdp *f, const cdp__fsdp_unit *u, float *grad, uint8_t *out) {
    const float by = (float)f->desc.divisor;
    uint64_t i;
    for (i = 0; i < u->range[0].total && f->desc.reduce == CDP_DTYPE_F16; ++i)
        grad[i] /= by;
    return cdp_convert(grad, CDP_DTYPE_F32, out, f->desc.reduce, u->range[0].total, NULL);
}

/* Narrow memory that no reduction in flight uses. */
CDP__PRIVATE uint8_t *cdp__fsdp_free_narrow(const cdp_fsdp *f) {
    uint32_t i, k;
    for (i = 0; i < CDP__FSDP_FLIGHTS; ++i) {
        for (k = 0; k < f->flights && f->flight[k].narrow != f->narrow[i]; ++k) {
        }
        if (k == f->flights) break;
    }
    return f->narrow[i < CDP__FSDP_FLIGHTS ? i : 0];
}

CDP__PRIVATE cdp_status cdp__fsdp_start_reduction(cdp_fsdp *f, uint32_t unit) {
    cdp__fsdp_unit *u = &f->units[unit];
    cdp__fsdp_range *r = &u->range[0];
    cdp__fsdp_flight *g;
    cdp_request rq;
    cdp_status st = CDP_OK;
    const uint64_t received = (f->ranks - 1ull) * r->own * cdp__fsdp_size_of(f->desc.reduce);
    while (st == CDP_OK && f->flights == CDP__FSDP_FLIGHTS)
        st = cdp__fsdp_retire(f);
    if (st != CDP_OK) return st;
    g = &f->flight[f->flights];
    g->unit = unit;
    g->pool = u->pool;
    g->grad = u->grad;
    g->first = !u->reduced;
    g->narrow = cdp__fsdp_size_of(f->desc.reduce) == 2 ? cdp__fsdp_free_narrow(f) : NULL;
    if (g->narrow) st = cdp__fsdp_narrow(f, u, u->grad, g->narrow);
    if (st != CDP_OK) return st;
    memset(&rq, 0, sizeof rq);
    rq.kind = CDP_COLL_REDUCE_SCATTER;
    rq.in = g->narrow ? (const void *)g->narrow : (const void *)u->grad;
    rq.in_counts = r->counts;
    rq.dtype = f->desc.reduce;
    rq.accumulate = CDP_DTYPE_F32;
    rq.root = CDP__FSDP_TAG | unit;
    /* in place: this rank's part of `in` */
    rq.out = g->narrow ? (void *)(g->narrow + 2 * r->start) : (void *)(u->grad + r->start);
    if ((g->first && !g->narrow) || !r->own) rq.out = u->mean;
    st = cdp_start(f->reductions, &rq, &g->work);
    if (st != CDP_OK) return cdp__fsdp_named("cdp_fsdp_ready", u, st);
    ++f->flights;
    ++u->reducing;
    cdp__fsdp_travels(f, true);
    ++f->now.reductions;
    f->now.reduce_bytes += received;
    g->event = cdp__fsdp_begins(f, CDP__FSDP_REDUCTIONS, unit, received, cdp__fsdp_now(f));
    u->reduced = true;
    u->held = false;
    u->ready_count = 0;
    u->grad = NULL;
    return CDP_OK;
}

CDP_API float *cdp_fsdp_grad(cdp_fsdp *f, uint32_t param) {
    cdp__fsdp_unit *u;
    cdp_status st = cdp__fsdp_may(f, "cdp_fsdp_grad", 0, true);
    if (st == CDP_OK && param >= f->desc.param_count)
        st = cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_fsdp_grad: parameter %u should be less than param_count, %u", param,
            f->desc.param_count);
    if (st != CDP_OK || f->params[param].frozen) return NULL;
    u = &f->units[f->params[param].unit];
    st = cdp__fsdp_broken(f, cdp__fsdp_begin_grad(f, u));
    return st == CDP_OK ? u->grad + f->offset[param] : NULL;
}

CDP_API cdp_status cdp_fsdp_ready(cdp_fsdp *f, uint32_t unit) {
    cdp_status st = cdp__fsdp_may(f, "cdp_fsdp_ready", unit, true);
    cdp__fsdp_unit *u;
    if (st != CDP_OK) return st;
    u = &f->units[unit];
    if (u->opens) --u->opens;
    f->backward = true;
    if (!u->range[0].total) return CDP_OK;
    st = cdp__fsdp_begin_grad(f, u);
    if (f->no_sync)
        u->held = true;
    else if (st == CDP_OK && ++u->ready_count >= u->uses)
        st = cdp__fsdp_start_reduction(f, unit);
    return cdp__fsdp_broken(f, st);
}

CDP_API cdp_status cdp_fsdp_no_sync(cdp_fsdp *f, bool on) {
    const cdp_status st = cdp__fsdp_may(f, "cdp_fsdp_no_sync", 0, true);
    uint32_t i;
    if (st != CDP_OK) return st;
    for (i = 0; i < f->unit_count; ++i)
        if (f->units[i].ready_count)
            return cdp_error_set(CDP_ERR_STATE, -1, 0,
                "cdp_fsdp_no_sync: unit '%s' is ready %u of %u times; change it between passes",
                f->units[i].name, f->units[i].ready_count, f->units[i].uses);
    if (f->no_sync != on) f->backward = false;
    f->no_sync = on;
    return CDP_OK;
}

/* ---- >>fsdp/step: the end of a step: norm, overflow, updates --------------------------------- */

/* Knows: sums of gradients, an optimizer. Promises: nothing is updated before every rank has what
   its update needs; all ranks skip a step, or none. */

/* Names the first unit with which this step cannot end. */
CDP__PRIVATE cdp_status cdp__fsdp_complete(const cdp_fsdp *f) {
    uint32_t i;
    for (i = 0; i < f->unit_count; ++i) {
        const cdp__fsdp_unit *u = &f->units[i];
        const char *why = NULL;
        if (u->opens) why = "is still needed; call cdp_fsdp_done() or cdp_fsdp_ready()";
        if (!why && !u->range[0].total) continue;
        if (!why && u->held)
            why = "has gradients that no_sync has kept; turn it off before the last pass";
        if (!why && u->ready_count) why = "was not ready as often as its `uses` says";
        if (!why && u->grad) why = "has new gradients; call cdp_fsdp_ready()";
        if (!why && !u->reduced)
            why = "was not ready; call cdp_fsdp_ready(), also if this step has not used it";
        if (why)
            return cdp_error_set(
                CDP_ERR_STATE, -1, 0, "cdp_fsdp_backward_end: unit '%s' %s", u->name, why);
    }
    return CDP_OK;
}

/* Adds the sums of the copies, and divides, as all holders of a shard do. */
CDP__PRIVATE cdp_status cdp__fsdp_mean(cdp_fsdp *f) {
    const float by = (float)f->desc.divisor;
    uint64_t i;
    uint32_t k;
    if (f->replicas && f->mean_count) {
        const cdp_status st = cdp_allreduce(
            f->replicas, NULL, f->means, f->mean_count, CDP_DTYPE_F32, CDP_REDUCE_SUM);
        if (st != CDP_OK) return st;
    }
    if (by == 1 || f->desc.reduce == CDP_DTYPE_F16) return CDP_OK;
    for (k = 0; k < f->image_count; ++k)
        for (i = 0; i < f->images[k].mean_count; ++i)
            f->images[k].means[i] /= by;
    return CDP_OK;
}

/* The squares of the mean of all ranks, and whether an element is not finite: each element once. */
CDP__PRIVATE cdp_status cdp__fsdp_squares(cdp_fsdp *f, double *squares, bool *found_inf) {
    cdp_group *const g = f->norms ? f->norms : f->reductions;
    const bool replica = f->norms && f->replicas && cdp_rank(f->replicas);
    double sums[2] = {0, 0};
    uint32_t i;
    cdp_work work;
    cdp_status st;
    for (i = 0; i < f->piece_count; ++i) {
        const cdp_fsdp_piece *p = &f->pieces[i];
        double q;
        if (!p->grad) continue;
        q = cdp__norm_of(CDP_DTYPE_F32, CDP__NORM_SQUARES, p->grad, p->count);
        if (q - q != 0) sums[1] = 1;
        if (!replica && !f->params[p->param].copy) sums[0] += q;
    }
    st = cdp_allreduce_async(g, NULL, sums, 2, CDP_DTYPE_F64, CDP_REDUCE_SUM, &work);
    if (st == CDP_OK) st = cdp__fsdp_await(f, work);
    *squares = sums[0];
    *found_inf = sums[1] != 0;
    return st;
}

/* What the step will do. */
CDP__PRIVATE void cdp__fsdp_judge(cdp_fsdp *f, double squares) {
    f->info.norm = cdp__sqrt(squares) / f->loss_scale;
    f->info.scale = 1 / f->loss_scale;
    if (f->desc.max_norm > 0 && !(f->info.norm + 1e-6 <= f->desc.max_norm))
        f->info.scale *= f->desc.max_norm / (f->info.norm + 1e-6);
    f->info.skipped = f->info.found_inf && f->desc.skip_nonfinite;
    f->ended = true;
    for (uint32_t i = 0; i < f->held_pieces; ++i) {
        f->pieces[i].scale = f->info.scale;
        f->pieces[i].step = f->step + (f->info.skipped ? 0 : 1);
    }
}

CDP_API cdp_status cdp_fsdp_backward_end(cdp_fsdp *f, double loss_scale, cdp_fsdp_info *info) {
    cdp_status st = cdp__fsdp_may(f, "cdp_fsdp_backward_end", 0, true);
    double squares = 0;
    if (info) memset(info, 0, sizeof *info);
    if (st == CDP_OK && !(loss_scale >= 0 && loss_scale <= DBL_MAX))
        st = cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_fsdp_backward_end: loss_scale is negative or not finite; pass 0 for 1");
    if (st == CDP_OK) st = cdp__fsdp_complete(f);
    if (st != CDP_OK) return st;
    f->loss_scale = loss_scale == 0 ? 1 : loss_scale;
    while (st == CDP_OK && f->flights)
        st = cdp__fsdp_retire(f);
    if (st == CDP_OK) st = cdp__fsdp_complete_copies(f);
    if (st == CDP_OK) st = cdp__fsdp_mean(f);
    f->entered = st == CDP_OK;
    if (st == CDP_OK) st = cdp__fsdp_squares(f, &squares, &f->info.found_inf);
    if (st != CDP_OK) return cdp__fsdp_broken(f, st);
    cdp__fsdp_judge(f, squares);
    if (info) *info = f->info;
    return CDP_OK;
}

/* ---- updates ---- */

CDP__PRIVATE cdp_status cdp__fsdp_cast(cdp_fsdp *f) {
    if (!f->copies) return CDP_OK;
    return cdp_convert(f->values, CDP_DTYPE_F32, f->copies, f->desc.compute, f->value_count, NULL);
}

CDP__PRIVATE cdp_status cdp__fsdp_update_unit(cdp_fsdp *f, cdp__fsdp_unit *u) {
    cdp_optim_range r;
    uint32_t k;
    memset(&r, 0, sizeof r);
    r.param = u->range[0].value;
    for (k = 0; k < cdp_optim_states(f->desc.optim); ++k)
        r.state[k] = u->state[k];
    r.grad = u->mean;
    r.count = u->range[0].own;
    r.scale = f->info.scale;
    r.compute = u->range[0].copy;
    r.compute_dtype = u->range[0].copy ? f->desc.compute : CDP_DTYPE_DEFAULT;
    return cdp_optim_update(f->desc.optim, &r);
}

/* Repeats the update of a unit on this rank's copy of a shard. */
CDP__PRIVATE cdp_status cdp__fsdp_update_copy(cdp_fsdp *f, uint32_t unit, uint32_t image) {
    const cdp__fsdp_image *m = &f->images[image];
    const uint64_t at = cdp__fsdp_place(f, unit, 0, image);
    cdp_optim_range r;
    uint32_t k;
    memset(&r, 0, sizeof r);
    r.param = m->values + at;
    for (k = 0; k < cdp_optim_states(f->desc.optim); ++k)
        r.state[k] = m->states[k] + at;
    r.grad = m->means + at;
    r.count = cdp__fsdp_in_image(f, unit, 0, image);
    r.scale = f->info.scale;
    return cdp_optim_update(f->desc.optim, &r);
}

CDP__PRIVATE cdp_status cdp__fsdp_update(cdp_fsdp *f) {
    cdp_status st = CDP_OK;
    uint32_t i, k;
    f->torn = true;
    if (f->desc.optim) ++f->desc.optim->step;
    for (i = 0; i < f->unit_count && f->desc.optim && st == CDP_OK; ++i) {
        st = cdp__fsdp_update_unit(f, &f->units[i]);
        for (k = 1; k < f->image_count && st == CDP_OK; ++k)
            st = cdp__fsdp_update_copy(f, i, k);
    }
    for (i = 0; i < f->held_pieces && f->desc.update && st == CDP_OK; ++i)
        if (f->pieces[i].grad) st = f->desc.update(f->desc.user, &f->pieces[i]);
    if (st == CDP_OK && !f->desc.optim) st = cdp__fsdp_cast(f);
    if (st != CDP_OK) return st;
    ++f->step;
    f->torn = false;
    return CDP_OK;
}

/* What has to be true before parameters change. */
CDP__PRIVATE cdp_status cdp__fsdp_may_change(cdp_fsdp *f, const char *call, bool ended) {
    cdp_status st = cdp__fsdp_may(f, call, 0, false);
    uint32_t i;
    if (st == CDP_OK && f->ended != ended)
        st = cdp_error_set(CDP_ERR_STATE, -1, 0,
            ended ? "%s: call cdp_fsdp_backward_end() first" : "%s: call cdp_fsdp_step() first",
            call);
    for (i = 0; st == CDP_OK && i < f->unit_count; ++i)
        if (f->units[i].opens)
            st = cdp_error_set(CDP_ERR_STATE, -1, 0,
                "%s: unit '%s' is still needed; call cdp_fsdp_done()", call, f->units[i].name);
    return st;
}

/* The next step begins. */
CDP__PRIVATE cdp_status cdp__fsdp_next_step(cdp_fsdp *f, bool changed) {
    uint32_t *const was = f->record;
    cdp_status st;
    uint32_t i;
    f->record = f->next_record;
    f->next_record = was;
    f->record_count = f->next_count;
    f->next_count = f->cursor = 0;
    f->last = CDP__FSDP_NONE;
    f->backward = f->ended = f->entered = false;
    ++f->turn;
    f->left_out = !changed;
    for (i = 0; i < f->unit_count; ++i) {
        cdp__fsdp_unit *u = &f->units[i];
        u->reduced = false;
        u->expected = u->sums;
        u->sums = u->forwarded = 0;
    }
    if (changed) cdp__fsdp_forget_slots(f);
    cdp__fsdp_end_figures(f);
    cdp__fsdp_end_spans(f);
    st = f->record_count ? cdp__fsdp_prefetch(f) : CDP_OK;
    return cdp__fsdp_broken(f, st);
}

/* Whether the update of a step that has ended is possible: a NaN as the norm allows no clip. */
CDP__PRIVATE bool cdp__fsdp_can_scale(const cdp_fsdp *f) {
    return f->info.scale > 0 && f->info.scale <= DBL_MAX;
}

CDP__PRIVATE bool cdp__fsdp_will_update(const cdp_fsdp *f) {
    return !f->info.skipped && cdp__fsdp_can_scale(f);
}

CDP_API cdp_status cdp_fsdp_step(cdp_fsdp *f) {
    cdp_status st = cdp__fsdp_may_change(f, "cdp_fsdp_step", true);
    if (st == CDP_OK && !f->info.skipped && !cdp__fsdp_can_scale(f))
        st = cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_fsdp_step: the norm of the gradients is not finite, so no clip is possible; set "
            "desc.skip_nonfinite, or call cdp_fsdp_drop()");
    if (st != CDP_OK) return st;
    st = cdp__fsdp_arrive_all(f);
    if (st == CDP_OK && !f->info.skipped) {
        st = cdp__fsdp_update(f);
        if (st != CDP_OK) cdp__fsdp_give_up(f, st, "cdp_fsdp_step: the update has failed: ");
    }
    if (st != CDP_OK) return cdp__fsdp_broken(f, st);
    return cdp__fsdp_next_step(f, !f->info.skipped);
}

CDP_API cdp_status cdp_fsdp_drop(cdp_fsdp *f) {
    cdp_status st = cdp__fsdp_may_change(f, "cdp_fsdp_drop", true);
    return st == CDP_OK ? cdp__fsdp_next_step(f, false) : st;
}

/* ---- >>fsdp/picture: one step as a picture --------------------------------------------------- */

/* Knows: events of the last step. Promises: at most `room` bytes are written, and the length of the
   whole text is returned. */

#if !defined(CDP_NO_TRACE) && !defined(CDP_NO_DDP)

CDP__PRIVATE const char *cdp__fsdp_row(uint32_t row) {
    static const char *const names[CDP__FSDP_ROWS] = {"wait", "gather", "reduction"};
    return names[row];
}

/* When an event ended, from the beginning of the step. */
CDP__PRIVATE uint64_t cdp__fsdp_until(const cdp__fsdp_spans *spans, const cdp__fsdp_event *e) {
    return (e->to_ns ? e->to_ns : spans->end_ns) - spans->begin_ns;
}

CDP__PRIVATE void cdp__fsdp_title(const cdp_fsdp *f, const cdp__fsdp_event *e, char out[96]) {
    cdp__text t = cdp__text_of(out, 96);
    char name[64];
    cdp__trace_name(f->units[e->unit].name, name);
    cdp__text_add(&t, "%s %s", cdp__fsdp_row(e->row), name);
}

CDP__PRIVATE void cdp__fsdp_json(const cdp_fsdp *f, const cdp__fsdp_spans *spans, cdp__text *t) {
    char title[96];
    uint32_t i;
    cdp__text_add(
        t, "{\"displayTimeUnit\":\"ns\",\"lost_events\":%u,\"traceEvents\":[\n", spans->lost);
    for (i = 0; i < spans->count; ++i) {
        const cdp__fsdp_event *e = &spans->events[i];
        cdp__fsdp_title(f, e, title);
        cdp__trace_slice(t, title, f->rank, 1 + e->row, e->from_ns - spans->begin_ns,
            cdp__fsdp_until(spans, e), e->bytes);
        cdp__text_add(t, "{\"name\":\"memory\",\"ph\":\"C\",\"pid\":%u,\"ts\":", f->rank);
        cdp__trace_us(t, e->from_ns - spans->begin_ns);
        cdp__text_add(t, ",\"args\":{\"bytes\":%llu}},\n", (unsigned long long)e->held);
    }
    for (i = 0; i < CDP__FSDP_ROWS; ++i)
        cdp__text_add(t,
            "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%u,\"tid\":%u,\"args\":{\"name\":"
            "\"%ss\"}},\n",
            f->rank, 1 + i, cdp__fsdp_row(i));
    cdp__text_add(t,
        "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%u,\"args\":{\"name\":\"rank %u\"}}]}\n",
        f->rank, f->rank);
}

/* Memory in use from each event to the next one, as columns from the bottom. */
CDP__PRIVATE void cdp__fsdp_svg_memory(
    const cdp__fsdp_spans *spans, uint64_t whole, uint64_t most, cdp__text *t) {
    uint32_t i;
    for (i = 0; i < spans->count; ++i) {
        const cdp__fsdp_event *e = &spans->events[i];
        const uint64_t to = i + 1 < spans->count ? e[1].from_ns : spans->end_ns;
        const uint64_t x = 80 + (e->from_ns - spans->begin_ns) * 900 / whole;
        const uint64_t w = cdp__max(1, (to - e->from_ns) * 900 / whole), h = e->held * 40 / most;
        cdp__text_add(t,
            "<rect x=\"%llu\" y=\"%llu\" width=\"%llu\" height=\"%llu\" "
            "fill=\"#9ab58a\"><title>%llu "
            "bytes</title></rect>\n",
            (unsigned long long)x, (unsigned long long)(190 - h), (unsigned long long)w,
            (unsigned long long)h, (unsigned long long)e->held);
    }
}

CDP__PRIVATE void cdp__fsdp_svg(const cdp_fsdp *f, const cdp__fsdp_spans *spans, cdp__text *t) {
    static const char *const colours[CDP__FSDP_ROWS][2] = {
        {"#d9d9d9", "#b8b8b8"}, {"#7aa6c2", "#5b88a5"}, {"#e0b07f", "#c98f5a"}};
    const uint64_t whole = cdp__max(1, spans->end_ns - spans->begin_ns);
    uint64_t most = 1;
    char title[96];
    uint32_t i;
    cdp__svg_begin(t, 1000, 230);
    cdp__text_add(t, "<text x=\"5\" y=\"187\">memory</text>\n");
    for (i = 0; i < CDP__FSDP_ROWS; ++i)
        cdp__text_add(t, "<text x=\"5\" y=\"%u\">%ss</text>\n", 37 + 40 * i, cdp__fsdp_row(i));
    for (i = 0; i < spans->count; ++i) {
        const cdp__fsdp_event *e = &spans->events[i];
        cdp__fsdp_title(f, e, title);
        cdp__trace_bar(t, e->from_ns - spans->begin_ns, cdp__fsdp_until(spans, e), whole,
            20 + 40 * e->row, colours[e->row][e->unit % 2], title);
        most = cdp__max(most, e->held);
    }
    cdp__fsdp_svg_memory(spans, whole, most, t);
    cdp__text_add(t,
        "<text x=\"80\" y=\"215\">rank %u: %llu us, of which %llu us were waited for; most %llu "
        "bytes; %u events are not shown</text>\n</svg>\n",
        f->rank, (unsigned long long)(whole / 1000),
        (unsigned long long)(f->stats.exposed_ns / 1000), (unsigned long long)most, spans->lost);
}

CDP_API uint64_t cdp_fsdp_trace(
    const cdp_fsdp *f, cdp_trace_format format, char *text, uint64_t room) {
    cdp__text t = cdp__text_of(text, room);
    const bool known = f && !cdp__ended(f) && f->spans[0].end_ns;
    if (known && format == CDP_TRACE_SVG)
        cdp__fsdp_svg(f, &f->spans[0], &t);
    else if (known)
        cdp__fsdp_json(f, &f->spans[0], &t);
    return cdp__text_end(&t);
}

#endif /* CDP_NO_TRACE, CDP_NO_DDP */

/* ---- >>fsdp/agree: ranks compare their descs ------------------------------------------------- */

/* Knows: a desc on every rank. Promises: a difference is named, with both ranks, before anything
   else is sent. */

#define CDP__FSDP_LINE 320u /* bytes of a text about a parameter or a unit */
#define CDP__FSDP_SHOWN 48u /* of a name in it */

enum {
    CDP__FSDP_GROUPS = 12, /* the first of the words about groups */
    CDP__FSDP_PLACE = 20,  /* the word that only ranks of desc.replicate compare */
    CDP__FSDP_WORDS = 22
};

#define CDP__FSDP_HASH 0xcbf29ce484222325u

CDP__PRIVATE uint64_t cdp__fsdp_hash(uint64_t h, const void *data, uint64_t bytes) {
    const uint8_t *at = (const uint8_t *)data;
    for (; bytes; --bytes)
        h = (h ^ *at++) * 0x100000001b3u;
    return h;
}

/* All settings of an optimizer: shards with different ones would be updated differently. `later`: a
   newcomer gets its step, and a schedule may have gone on on some ranks. */
CDP__PRIVATE uint64_t cdp__fsdp_optim_hash(const cdp_optim *o, bool later) {
    const double numbers[] = {later ? 0 : o->lr, o->momentum, o->dampening, o->beta1, o->beta2,
        o->alpha, o->eps, o->weight_decay, o->lr_decay, o->initial};
    const uint64_t others[] = {(uint64_t)o->kind, later ? 0 : o->step, o->nesterov, o->amsgrad,
        o->centered, o->maximize, o->fma};
    return cdp__fsdp_hash(
        cdp__fsdp_hash(CDP__FSDP_HASH, numbers, sizeof numbers), others, sizeof others);
}

/* All ranks of a group learn whether one of them cannot go on, which, and why. */
CDP__PRIVATE cdp_status cdp__fsdp_vote(cdp_group *g, cdp_status own) {
    return cdp__vote(g, own, "cdp_fsdp_create");
}

/* The settings that have to be equal, and a sum of all parameters and units. */
CDP__PRIVATE void cdp__fsdp_words(
    const cdp_fsdp *f, cdp_group *g, uint64_t hash, uint64_t *word, const char **name) {
    static const char *const names[CDP__FSDP_WORDS] = {"param_count", "unit_count", "stage",
        "compute", "reduce", "states", "optim", "update", "prefetch", "no_prefetch",
        "skip_nonfinite", "own_init", "replicate", "norm_group", "max_norm", "divisor", "fill",
        "copies", "copy_distance", "receive", "", ""};
    const cdp_fsdp_desc *d = &f->desc;
    uint32_t i;
    word[0] = d->param_count;
    word[1] = f->unit_count;
    word[2] = (uint64_t)d->stage;
    word[3] = (uint64_t)d->compute;
    word[4] = (uint64_t)d->reduce;
    word[5] = cdp__fsdp_states(d);
    word[6] = d->optim ? cdp__fsdp_optim_hash(d->optim, d->receive) : 0;
    word[7] = d->update != NULL;
    word[8] = d->prefetch;
    word[9] = d->no_prefetch;
    word[10] = d->skip_nonfinite;
    word[11] = d->own_init;
    word[CDP__FSDP_GROUPS] = d->replicate ? cdp_size(d->replicate) : 0;
    word[CDP__FSDP_GROUPS + 1] = d->norm_group ? cdp_size(d->norm_group) : 0;
    memcpy(&word[14], &d->max_norm, sizeof d->max_norm);
    memcpy(&word[15], &d->divisor, sizeof d->divisor);
    word[16] = d->fill != NULL;
    word[17] = d->copies;
    word[18] = f->distance;
    word[19] = d->receive;
    word[CDP__FSDP_PLACE] = g == d->replicate ? (uint64_t)f->ranks << 32 | f->rank : 0;
    word[CDP__FSDP_PLACE + 1] = hash;
    for (i = 0; i < CDP__FSDP_WORDS; ++i)
        name[i] = names[i];
}

/* The name of what a line is about. */
CDP__PRIVATE const char *cdp__fsdp_line_name(const cdp_fsdp *f, uint32_t i) {
    return i < f->desc.param_count ? f->params[i].name : f->units[i - f->desc.param_count].name;
}

/* A line about parameter `i`, or, after the last one, about unit `i - param_count`. */
CDP__PRIVATE void cdp__fsdp_line(const cdp_fsdp *f, uint32_t i, char *out) {
    cdp__text t = cdp__text_of(out, CDP__FSDP_LINE);
    const char *const name = cdp__fsdp_line_name(f, i);
    const uint64_t length = strlen(name);
    uint32_t d;
    memset(out, 0, CDP__FSDP_LINE);
    cdp__text_add(&t, i < f->desc.param_count ? "'" : "unit '");
    cdp__text_bytes(&t, name, cdp__min(length, CDP__FSDP_SHOWN));
    cdp__text_add(&t, length > CDP__FSDP_SHOWN ? "...'" : "'");
    if (i >= f->desc.param_count) {
        const cdp__fsdp_unit *u = &f->units[i - f->desc.param_count];
        cdp__text_add(&t, " with uses %u%s", u->uses, u->keep ? ", kept" : "");
        return;
    }
    cdp__text_add(&t, " [");
    for (d = 0; d < f->params[i].ndim; ++d)
        cdp__text_add(&t, "%s%llu", d ? "x" : "", (unsigned long long)f->params[i].shape[d]);
    cdp__text_add(&t, "] in unit %u, grain %llu%s%s", f->params[i].unit,
        (unsigned long long)cdp__fsdp_grain(&f->params[i]), f->params[i].frozen ? ", frozen" : "",
        f->params[i].copy ? ", a copy" : "");
}

/* Finds the first parameter or unit that rank `other` has otherwise than rank 0, and names it. */
CDP__PRIVATE cdp_status cdp__fsdp_name_difference(
    cdp_fsdp *f, cdp_group *g, uint32_t other, uint64_t *own) {
    const uint64_t n = f->desc.param_count + (uint64_t)f->unit_count, ranks = cdp_size(g);
    uint64_t *all = (uint64_t *)cdp__fsdp_alloc(f, ranks * n * sizeof *all);
    char *lines = (char *)cdp__fsdp_alloc(f, ranks * CDP__FSDP_LINE), mine[CDP__FSDP_LINE];
    cdp_status st = all && lines ? CDP_OK : cdp__fsdp_nomem("comparing", ranks * n * sizeof *all);
    uint32_t i = 0;
    st = cdp__fsdp_vote(g, st);
    if (st == CDP_OK) st = cdp_allgather(g, own, all, n, CDP_DTYPE_U64);
    while (st == CDP_OK && i + 1 < n && all[i] == all[other * n + i])
        ++i;
    if (st == CDP_OK) {
        cdp__fsdp_line(f, i, mine);
        st = cdp_allgather(g, mine, lines, CDP__FSDP_LINE, CDP_DTYPE_U8);
    }
    if (st == CDP_OK)
        st = cdp_error_set(CDP_ERR_MISMATCH, (int32_t)cdp_world_rank_of(g, other), 0,
            "cdp_fsdp_create: ranks have different models: parameter or unit %u is %s on rank %u, "
            "but %s on rank %u; give every rank the same in the same order",
            i, lines, cdp_world_rank_of(g, 0), lines + other * CDP__FSDP_LINE,
            cdp_world_rank_of(g, other));
    cdp__fsdp_free(f, all);
    cdp__fsdp_free(f, lines);
    return st;
}

/* Whether this rank alone is in both groups, as far as ranks of their worlds tell. */
CDP__PRIVATE bool cdp__fsdp_meet_once(cdp_group *a, cdp_group *b) {
    uint32_t i, common = 0;
    for (i = 0; i < cdp_size(a); ++i)
        common += cdp_rank_of_world(b, cdp_world_rank_of(a, i)) != UINT32_MAX;
    return common == 1;
}

/* Groups that not all ranks of `g` name: nobody may wait where others do not come. A group of
   copies that has no other rank of `g` is told nevertheless: its ranks cannot learn otherwise. */
CDP__PRIVATE void cdp__fsdp_leave_groups(cdp_fsdp *f, cdp_group *g, const uint64_t *all) {
    cdp_fsdp_desc *d = &f->desc;
    uint32_t r;
    for (r = 1; r < cdp_size(g); ++r) {
        const uint64_t *other = all + (uint64_t)r * CDP__FSDP_WORDS + CDP__FSDP_GROUPS;
        if (other[0] != all[CDP__FSDP_GROUPS] && d->replicate
            && !cdp__fsdp_meet_once(g, d->replicate))
            d->replicate = NULL;
        if (other[1] != all[CDP__FSDP_GROUPS + 1]) d->norm_group = NULL;
    }
}

CDP__PRIVATE cdp_status cdp__fsdp_compare(
    cdp_fsdp *f, cdp_group *g, uint64_t *own, uint64_t *all, uint64_t hash) {
    uint64_t word[CDP__FSDP_WORDS];
    const char *name[CDP__FSDP_WORDS];
    uint32_t r, k;
    cdp_status st;
    cdp__fsdp_words(f, g, hash, word, name);
    st = cdp_allgather(g, word, all, CDP__FSDP_WORDS, CDP_DTYPE_U64);
    if (st == CDP_OK) cdp__fsdp_leave_groups(f, g, all);
    for (r = 1; st == CDP_OK && r < cdp_size(g); ++r) {
        const uint64_t *other = all + (uint64_t)r * CDP__FSDP_WORDS;
        for (k = 0; k + 1 < CDP__FSDP_WORDS && other[k] == all[k]; ++k) {
        }
        if (k == CDP__FSDP_PLACE)
            return cdp_error_set(CDP_ERR_MISMATCH, (int32_t)cdp_world_rank_of(g, r), 0,
                "cdp_fsdp_create: rank %u of desc.replicate is rank %u of %u in its "
                "desc.group, but rank 0 is rank %u of %u; copies of a shard have the same place "
                "in groups of one size",
                r, (uint32_t)other[k], (uint32_t)(other[k] >> 32), (uint32_t)all[k],
                (uint32_t)(all[k] >> 32));
        if (k + 1 < CDP__FSDP_WORDS)
            return cdp_error_set(CDP_ERR_MISMATCH, (int32_t)cdp_world_rank_of(g, r), 0,
                "cdp_fsdp_create: desc.%s is another one on rank %u than on rank %u%s; give every "
                "rank the same",
                name[k], cdp_world_rank_of(g, r), cdp_world_rank_of(g, 0),
                k < 2 ? ", so are their models" : "");
        if (other[k] != all[k]) return cdp__fsdp_name_difference(f, g, r, own);
    }
    return st;
}

CDP__PRIVATE cdp_status cdp__fsdp_agree(cdp_fsdp *f, cdp_group *g) {
    const uint32_t n = f->desc.param_count + f->unit_count;
    uint64_t *own = (uint64_t *)cdp__fsdp_alloc(f, n * sizeof *own);
    uint64_t *all =
        (uint64_t *)cdp__fsdp_alloc(f, (uint64_t)cdp_size(g) * CDP__FSDP_WORDS * sizeof *all);
    uint64_t hash = CDP__FSDP_HASH;
    char line[CDP__FSDP_LINE];
    uint32_t i;
    cdp_status st = CDP_OK;
    if (!own || !all) st = cdp__fsdp_nomem("comparing", n * sizeof *own);
    st = cdp__fsdp_vote(g, st);
    for (i = 0; i < n && st == CDP_OK; ++i) {
        const char *const whole = cdp__fsdp_line_name(f, i); /* which a line may shorten */
        cdp__fsdp_line(f, i, line);
        own[i] = cdp__fsdp_hash(CDP__FSDP_HASH, line, strlen(line));
        own[i] = cdp__fsdp_hash(own[i], whole, strlen(whole));
        hash = cdp__fsdp_hash(hash, &own[i], sizeof own[i]);
    }
    if (st == CDP_OK) st = cdp__fsdp_compare(f, g, own, all, hash);
    cdp__fsdp_free(f, own);
    cdp__fsdp_free(f, all);
    return st;
}

/* ---- >>fsdp/create: making and ending -------------------------------------------------------- */

/* Knows: descs, groups. Promises: nothing is left behind where creation fails; all memory of later
   steps is allocated here, but for what the text of cdp_fsdp.h names. */

/* A copy of a name, or of "<what><i>" if there is none. */
CDP__PRIVATE char *cdp__fsdp_name(
    const cdp_fsdp *f, const char *name, const char *what, uint32_t i) {
    char fallback[32], *copy;
    cdp__text t = cdp__text_of(fallback, sizeof fallback);
    cdp__text_add(&t, "%s%u", what, i);
    if (!name) name = fallback;
    copy = (char *)cdp__fsdp_alloc(f, strlen(name) + 1);
    if (copy) memcpy(copy, name, strlen(name) + 1);
    return copy;
}

/* The tables, without memory for elements. */
CDP__PRIVATE cdp_status cdp__fsdp_open_tables(cdp_fsdp *f, const cdp_fsdp_desc *d) {
    const uint64_t bytes = d->param_count * sizeof *f->params;
    uint32_t i;
    bool named = true;
    f->params = (cdp_fsdp_param *)cdp__fsdp_alloc(f, bytes);
    f->offset = (uint64_t *)cdp__fsdp_alloc(f, d->param_count * sizeof *f->offset);
    f->units = (cdp__fsdp_unit *)cdp__fsdp_alloc(f, f->unit_count * sizeof *f->units);
    f->slots = (cdp__fsdp_slot *)cdp__fsdp_alloc(f, f->unit_count * sizeof *f->slots);
    f->counts = (uint64_t *)cdp__fsdp_alloc(f, 2ull * f->unit_count * f->ranks * sizeof *f->counts);
    f->pieces = (cdp_fsdp_piece *)cdp__fsdp_alloc(
        f, d->param_count * (uint64_t)f->image_count * sizeof *f->pieces);
    f->parts = (uint64_t *)cdp__fsdp_alloc(f, f->ranks * sizeof *f->parts);
    if (!f->params || !f->offset || !f->units || !f->slots || !f->counts || !f->pieces || !f->parts)
        return cdp__fsdp_nomem("the tables", bytes);
    for (i = 0; i < 2 && d->events; ++i) {
        f->spans[i].events =
            (cdp__fsdp_event *)cdp__fsdp_alloc(f, d->events * sizeof(cdp__fsdp_event));
        if (!f->spans[i].events)
            return cdp__fsdp_nomem("events", d->events * sizeof(cdp__fsdp_event));
    }
    for (i = 0; i < d->param_count; ++i) {
        f->params[i] = d->params[i];
        f->params[i].name = cdp__fsdp_name(f, d->params[i].name, "param", i);
        named = named && f->params[i].name;
    }
    for (i = 0; i < f->unit_count; ++i) {
        cdp__fsdp_unit *u = &f->units[i];
        u->name = cdp__fsdp_name(f, d->units && d->unit_count ? d->units[i].name : NULL, "unit", i);
        u->keep = cdp__fsdp_keeps(d, i);
        u->uses = cdp__fsdp_uses(d, i);
        u->slot = u->pool = u->event = CDP__FSDP_NONE;
        u->expected = 1;
        named = named && u->name;
    }
    return named ? CDP_OK : cdp__fsdp_nomem("names", bytes);
}

/* Cuts both ranges of a unit. */
CDP__PRIVATE void cdp__fsdp_cut_unit(cdp_fsdp *f, uint32_t unit) {
    const uint32_t first = cdp__fsdp_first(&f->list, unit), end = cdp__fsdp_end(&f->list, unit);
    uint32_t k, r, i;
    for (k = 0; k < 2; ++k) {
        cdp__fsdp_range *g = &f->units[unit].range[k];
        cdp__fsdp_walk w = cdp__fsdp_walk_of(&f->list, unit, k == 1);
        uint64_t from = 0, at = 0;
        g->counts = f->counts + (2ull * unit + k) * f->ranks;
        g->total = w.total;
        for (r = 0; r < f->ranks; ++r) {
            const uint64_t to = cdp__fsdp_cut(&w, f->ranks, r + 1);
            g->counts[r] = to - from;
            if (r == f->rank) g->start = from;
            from = to;
        }
        g->own = g->counts[f->rank];
        for (i = first; i < end; ++i)
            if (f->params[i].unit == unit && f->params[i].frozen == (k == 1)) {
                f->offset[i] = at;
                at += cdp__fsdp_count(&f->params[i]);
            }
        f->value_count += g->own;
        if (k) continue;
        f->mean_count += g->own;
        f->most = cdp__max(f->most, g->total);
        if (!cdp__fsdp_owns_gradients(&f->desc, unit))
            f->most_shared = cdp__max(f->most_shared, g->total);
    }
}

/* Memory of the shards, and each unit's place in it: trainable ones of all units first, so that
   what belongs to gradients is one stretch. */
CDP__PRIVATE cdp_status cdp__fsdp_open_shards(cdp_fsdp *f) {
    uint64_t at[2], size = cdp__fsdp_size_of(f->desc.compute);
    uint32_t i, k;
    f->values = (float *)cdp__fsdp_memory(f, f->value_count * 4, &f->stats.shard_bytes);
    f->means = (float *)cdp__fsdp_memory(f, f->mean_count * 4, &f->stats.shard_bytes);
    if (size == 2)
        f->copies = (uint8_t *)cdp__fsdp_memory(f, f->value_count * 2, &f->stats.copy_bytes);
    if (!f->values || !f->means || (size == 2 && !f->copies)) return CDP_ERR_NOMEM;
    for (k = 0; k < cdp__fsdp_states(&f->desc); ++k) {
        f->states[k] = (float *)cdp__fsdp_alloc(f, f->mean_count * 4);
        if (!f->states[k]) return cdp__fsdp_nomem("optimizer state", f->mean_count * 4);
        f->stats.state_bytes += f->mean_count * 4;
        f->stats.total_bytes += f->mean_count * 4;
    }
    at[0] = 0;
    at[1] = f->mean_count;
    for (i = 0; i < f->unit_count; ++i) {
        cdp__fsdp_unit *u = &f->units[i];
        u->mean = f->means + at[0];
        for (k = 0; k < cdp__fsdp_states(&f->desc); ++k)
            u->state[k] = f->states[k] + at[0];
        for (k = 0; k < 2; ++k) {
            u->range[k].value = f->values + at[k];
            if (f->copies) u->range[k].copy = f->copies + at[k] * size;
            at[k] += u->range[k].own;
        }
    }
    return CDP_OK;
}

/* Slots, and memory of whole gradients. */
CDP__PRIVATE cdp_status cdp__fsdp_open_slots(cdp_fsdp *f) {
    cdp__fsdp_sizes sizes = cdp__fsdp_sizes_of(&f->desc, &f->list, f->unit_count);
    uint32_t i, k, shared = 0, trained = 0, slot, all;
    cdp_status st = CDP_OK;
    for (i = 0; i < f->unit_count && st == CDP_OK; ++i) {
        cdp__fsdp_unit *u = &f->units[i];
        const uint64_t bytes = cdp__fsdp_slot_bytes(f, u);
        const uint32_t before = u->keep ? 0 : cdp__fsdp_alike(&sizes, i, f->unit_count, &all);
        if (bytes && before < cdp__fsdp_slots_for(&f->desc, before + 1))
            st = cdp__fsdp_add_slot(f, bytes, &slot);
        if (!u->range[0].total) continue;
        ++trained;
        if (!cdp__fsdp_owns_gradients(&f->desc, i))
            ++shared;
        else if (st == CDP_OK)
            st = cdp__fsdp_give_own(f, u);
    }
    for (k = 0; k < CDP__FSDP_FLIGHTS && st == CDP_OK; ++k) {
        if (k < shared)
            f->pool[k] = (float *)cdp__fsdp_memory(f, f->most_shared * 4, &f->stats.gradient_bytes);
        if (k < trained && cdp__fsdp_size_of(f->desc.reduce) == 2)
            f->narrow[k] = (uint8_t *)cdp__fsdp_memory(f, f->most * 2, &f->stats.scratch_bytes);
        if ((k < shared && !f->pool[k])
            || (k < trained && cdp__fsdp_size_of(f->desc.reduce) == 2 && !f->narrow[k]))
            st = CDP_ERR_NOMEM;
    }
    return st;
}

/* The part of parameter `param` that a range of elements of its unit holds. */
CDP__PRIVATE uint64_t cdp__fsdp_overlap(
    const cdp_fsdp *f, uint32_t param, uint64_t start, uint64_t count, uint64_t *first) {
    const uint64_t begin = f->offset[param], end = begin + cdp__fsdp_count(&f->params[param]);
    const uint64_t low = cdp__max(begin, start), high = cdp__min(end, start + count);
    *first = low > begin ? cdp__min(low, end) - begin : 0;
    return high > low ? high - low : 0;
}

/* The piece of a parameter in one of the shards that this rank holds. */
CDP__PRIVATE void cdp__fsdp_open_piece(cdp_fsdp *f, uint32_t image, uint32_t i) {
    cdp_fsdp_piece *p = &f->pieces[f->held_pieces];
    const cdp__fsdp_image *m = &f->images[image];
    const uint32_t unit = f->params[i].unit, frozen = f->params[i].frozen;
    const uint64_t *const counts = f->units[unit].range[frozen].counts;
    uint64_t start = 0, at;
    uint32_t k;
    for (k = 0; k < m->shard; ++k)
        start += counts[k];
    p->count = cdp__fsdp_overlap(f, i, start, counts[m->shard], &p->first);
    if (!p->count) return;
    p->param = i;
    at = cdp__fsdp_place(f, unit, frozen, image) + f->offset[i] + p->first - start;
    p->data = m->values + at;
    for (k = 0; k < CDP_FSDP_STATES && !frozen; ++k)
        p->state[k] = m->states[k] ? m->states[k] + at : NULL;
    p->grad = frozen ? NULL : m->means + at;
    ++f->held_pieces;
}

CDP__PRIVATE void cdp__fsdp_open_pieces(cdp_fsdp *f) {
    uint32_t image, unit, i;
    for (image = 0; image < f->image_count; ++image) {
        for (unit = 0; unit < f->unit_count; ++unit) {
            const uint32_t end = cdp__fsdp_end(&f->list, unit);
            for (i = cdp__fsdp_first(&f->list, unit); i < end; ++i)
                if (f->params[i].unit == unit) cdp__fsdp_open_piece(f, image, i);
        }
        if (!image) f->piece_count = f->held_pieces;
    }
}

/* ---- first values, saving and restoring ---- */

/* Moves pieces of one parameter between their owners and `root`. */
CDP__PRIVATE cdp_status cdp__fsdp_move(
    cdp_fsdp *f, cdp_coll_kind kind, uint32_t param, float *own, float *whole, uint32_t root) {
    const cdp__fsdp_unit *u = &f->units[f->params[param].unit];
    const cdp__fsdp_range *r = &u->range[f->params[param].frozen];
    const bool gathers = kind == CDP_COLL_GATHER, here = f->rank == root;
    uint64_t at = 0, first;
    cdp_work work;
    cdp_request rq;
    uint32_t i;
    cdp_status st;
    for (i = 0; i < f->ranks; ++i) {
        f->parts[i] = cdp__fsdp_overlap(f, param, at, r->counts[i], &first);
        at += r->counts[i];
    }
    memset(&rq, 0, sizeof rq);
    rq.kind = kind;
    rq.root = root;
    rq.in = own;
    rq.out = own;
    if (gathers) {
        rq.out = here ? whole : NULL;
        rq.out_counts = f->parts;
    } else {
        rq.in = here ? whole : NULL;
        rq.in_counts = f->parts;
    }
    st = cdp_start(f->gathers, &rq, &work);
    return st == CDP_OK ? cdp__fsdp_await(f, work) : st;
}

/* Where this rank's elements of a parameter are, in its values or one of its states. */
CDP__PRIVATE float *cdp__fsdp_own(cdp_fsdp *f, uint32_t param, uint32_t state) {
    cdp__fsdp_unit *u = &f->units[f->params[param].unit];
    const cdp__fsdp_range *r = &u->range[f->params[param].frozen];
    float *const base = state == CDP_FSDP_VALUES ? r->value : u->state[state];
    uint64_t first;
    if (!cdp__fsdp_overlap(f, param, r->start, r->own, &first)) return base;
    return base + (f->offset[param] + first - r->start);
}

/* Gives one parameter its first values. */
CDP__PRIVATE cdp_status cdp__fsdp_init_param(cdp_fsdp *f, const cdp_fsdp_desc *d, uint32_t i) {
    const cdp__fsdp_range *r = &f->units[f->params[i].unit].range[f->params[i].frozen];
    float *const own = cdp__fsdp_own(f, i, CDP_FSDP_VALUES);
    uint64_t first, count = cdp__fsdp_overlap(f, i, r->start, r->own, &first);
    if (!cdp__fsdp_count(&d->params[i])) return CDP_OK;
    if (f->params[i].init && d->own_init)
        memcpy(own, d->params[i].init + first, (size_t)(count * sizeof *own));
    else if (f->params[i].init)
        return cdp__fsdp_move(
            f, CDP_COLL_SCATTER, i, own, (float *)(uintptr_t)d->params[i].init, 0);
    else if (d->fill && count)
        d->fill(d->user, i, first, count, own);
    return CDP_OK;
}

/* Whether rank 0 has first values of its own decides for all ranks: one number per parameter. */
CDP__PRIVATE cdp_status cdp__fsdp_init(cdp_fsdp *f, const cdp_fsdp_desc *d, uint8_t *given) {
    cdp_status st = CDP_OK;
    uint32_t i;
    for (i = 0; i < d->param_count; ++i)
        given[i] = d->params[i].init != NULL;
    if (!d->own_init) st = cdp_broadcast(f->gathers, given, d->param_count, CDP_DTYPE_U8, 0);
    for (i = 0; i < d->param_count && st == CDP_OK; ++i) {
        static const float some = 0;
        f->params[i].init = given[i] ? &some : NULL; /* only whether there are any */
        st = cdp__fsdp_init_param(f, d, i);
        f->params[i].init = NULL;
    }
    if (st == CDP_OK && d->replicate && !d->own_init && f->value_count)
        st = cdp_broadcast(f->replicas, f->values, f->value_count, CDP_DTYPE_F32, 0);
    if (st == CDP_OK) st = cdp__fsdp_refill(f);
    return st == CDP_OK ? cdp__fsdp_cast(f) : st;
}

CDP__PRIVATE cdp_status cdp__fsdp_may_move(
    cdp_fsdp *f, const char *call, uint32_t param, uint32_t state, const void *values, bool here) {
    const cdp_status st = cdp__fsdp_may_change(f, call, false);
    if (st != CDP_OK) return st;
    if (param >= f->desc.param_count
        || (state != CDP_FSDP_VALUES
            && (state >= cdp__fsdp_states(&f->desc) || f->params[param].frozen)))
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "%s: there is no parameter %u, or it has no state %u", call, param, state);
    if (here && !values && cdp__fsdp_count(&f->params[param]))
        return cdp__fsdp_missing(call, "values");
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__fsdp_check_root(const cdp_fsdp *f, const char *call, uint32_t root) {
    const cdp_status st = cdp__fsdp_alive(f, call);
    if (st != CDP_OK || root < f->ranks) return st;
    return cdp_error_set(
        CDP_ERR_INVALID, -1, 0, "%s: root %u is no rank of %u", call, root, f->ranks);
}

CDP_API cdp_status cdp_fsdp_save(
    cdp_fsdp *f, uint32_t param, uint32_t state, float *values, uint32_t root) {
    cdp_status st = cdp__fsdp_check_root(f, "cdp_fsdp_save", root);
    if (st == CDP_OK)
        st = cdp__fsdp_may_move(f, "cdp_fsdp_save", param, state, values, f->rank == root);
    if (st != CDP_OK || !cdp__fsdp_count(&f->params[param])) return st;
    st = cdp__fsdp_move(f, CDP_COLL_GATHER, param, cdp__fsdp_own(f, param, state), values, root);
    return cdp__fsdp_broken(f, st);
}

/* This rank's shard has other values: what was made of it is old. */
CDP__PRIVATE cdp_status cdp__fsdp_changed(cdp_fsdp *f, cdp_status st) {
    if (st == CDP_OK) st = cdp__fsdp_cast(f);
    if (st == CDP_OK) cdp__fsdp_forget_slots(f);
    f->filled = false; /* until the next step ends: many parameters are restored at a time */
    return cdp__fsdp_broken(f, st);
}

CDP_API cdp_status cdp_fsdp_restore(
    cdp_fsdp *f, uint32_t param, uint32_t state, const float *values, uint32_t root) {
    cdp_status st = cdp__fsdp_check_root(f, "cdp_fsdp_restore", root);
    if (st == CDP_OK)
        st = cdp__fsdp_may_move(f, "cdp_fsdp_restore", param, state, values, f->rank == root);
    if (st != CDP_OK || !cdp__fsdp_count(&f->params[param])) return st;
    st = cdp__fsdp_arrive_all(f);
    if (st == CDP_OK)
        st = cdp__fsdp_move(f, CDP_COLL_SCATTER, param, cdp__fsdp_own(f, param, state),
            (float *)(uintptr_t)values, root);
    return cdp__fsdp_changed(f, st);
}

CDP_API cdp_status cdp_fsdp_loaded(cdp_fsdp *f) {
    cdp_status st = cdp__fsdp_alive(f, "cdp_fsdp_loaded");
    if (st == CDP_OK) st = cdp__fsdp_may_change(f, "cdp_fsdp_loaded", false);
    if (st != CDP_OK) return st;
    return cdp__fsdp_changed(f, cdp__fsdp_arrive_all(f));
}

CDP_API uint32_t cdp_fsdp_piece_count(const cdp_fsdp *f) {
    return f && !cdp__ended(f) ? f->piece_count : 0;
}

CDP_API cdp_fsdp_piece cdp_fsdp_piece_at(const cdp_fsdp *f, uint32_t index) {
    cdp_fsdp_piece none;
    memset(&none, 0, sizeof none);
    return f && !cdp__ended(f) && index < f->piece_count ? f->pieces[index] : none;
}

CDP_API cdp_fsdp_stats cdp_fsdp_stats_of(const cdp_fsdp *f) {
    cdp_fsdp_stats none;
    memset(&none, 0, sizeof none);
    return f && !cdp__ended(f) ? f->stats : none;
}

/* ---- life ---- */

CDP__PRIVATE void cdp__fsdp_settle(cdp_fsdp *f) {
    uint32_t i;
    for (i = 0; f->units && i < f->unit_count; ++i)
        if (f->units[i].gathering) (void)!cdp_work_wait(f->units[i].gather);
    for (i = 0; f->units && i < f->unit_count; ++i)
        if (f->units[i].forwarding) (void)!cdp_work_wait(f->units[i].forward);
    for (i = 0; i < f->flights; ++i)
        (void)!cdp_work_wait(f->flight[i].work);
}

/* Frees what follows from shards: slots, and whole gradients. */
CDP__PRIVATE void cdp__fsdp_free_caches(cdp_fsdp *f) {
    uint32_t i;
    cdp__fsdp_forget_slots(f);
    for (i = 0; i < f->slot_count; ++i)
        cdp_group_free(f->gathers, f->slots[i].memory);
    for (i = 0; f->units && i < f->unit_count; ++i) {
        cdp__fsdp_unit *u = &f->units[i];
        const bool labelled = u->grad || u->reducing;
        cdp_group_free(f->gathers, u->own_grad);
        u->own_grad = u->grad = NULL;
        u->gathering = u->forwarding = false;
        u->reducing = 0;
        if (labelled) cdp__fsdp_label_gradients(f, u);
    }
    for (i = 0; i < CDP__FSDP_FLIGHTS; ++i) {
        cdp_group_free(f->gathers, f->pool[i]);
        cdp_group_free(f->gathers, f->narrow[i]);
        f->pool[i] = NULL;
        f->narrow[i] = NULL;
    }
    f->slot_count = f->flights = f->under_way = 0;
}

CDP__PRIVATE void cdp__fsdp_free_all(cdp_fsdp *f) {
    cdp_group *const g = f->gathers;
    uint32_t i;
    cdp__fsdp_free_caches(f);
    cdp__fsdp_free_images(f);
    for (i = 0; f->units && i < f->unit_count; ++i)
        cdp__fsdp_free(f, f->units[i].name);
    for (i = 0; f->params && i < f->desc.param_count; ++i)
        cdp__fsdp_free(f, (void *)(uintptr_t)f->params[i].name);
    for (i = 0; i < CDP_FSDP_STATES; ++i)
        cdp__fsdp_free(f, f->states[i]);
    cdp_group_free(g, f->values);
    cdp_group_free(g, f->means);
    cdp_group_free(g, f->copies);
    cdp__fsdp_free(f, f->params);
    cdp__fsdp_free(f, f->offset);
    cdp__fsdp_free(f, f->units);
    cdp__fsdp_free(f, f->pieces);
    cdp__fsdp_free(f, f->slots);
    cdp__fsdp_free(f, f->counts);
    cdp__fsdp_free(f, f->parts);
    cdp__fsdp_free(f, f->spans[0].events);
    cdp__fsdp_free(f, f->spans[1].events);
    cdp__fsdp_free(f, f->record);
    cdp__fsdp_free(f, f->next_record);
    cdp__fsdp_free(f, f);
}

CDP_API void cdp_fsdp_abort(cdp_fsdp *f, const char *reason) {
    if (!f || cdp__ended(f)) return;
    cdp__fsdp_abort_groups(f, reason);
    cdp_fsdp_abort(f->pending, reason);
    (void)cdp_error_set(
        CDP_ERR_ABORTED, -1, 0, CDP__ABORTED "%s", reason && *reason ? reason : "no reason given");
    (void)cdp__fsdp_broken(f, CDP_ERR_ABORTED);
}

CDP_API void cdp_fsdp_destroy(cdp_fsdp *f) {
    cdp_group *gathers;
    if (!f || cdp__ended(f)) return;
    cdp__ended_add(f);
    cdp_fsdp_destroy(f->pending);
    cdp__fsdp_settle(f);
    cdp_group_destroy(f->reductions);
    cdp_group_destroy(f->replicas);
    cdp_group_destroy(f->norms);
    cdp_group_destroy(f->buddies);
    gathers = f->gathers;
    cdp__fsdp_free_all(f);
    cdp_group_destroy(gathers); /* its memory goes with it */
}

/* A group of the same ranks. */
CDP__PRIVATE cdp_status cdp__fsdp_twin(const cdp_fsdp *f, cdp_group *of, cdp_group **out) {
    const uint32_t n = cdp_size(of);
    uint32_t *ranks = (uint32_t *)cdp__fsdp_alloc(f, n * sizeof *ranks), i;
    cdp_status st;
    if (!ranks) return cdp__fsdp_nomem("groups", n * sizeof *ranks);
    for (i = 0; i < n; ++i)
        ranks[i] = i;
    st = cdp_group_new(of, ranks, n, out);
    cdp__fsdp_free(f, ranks);
    return st;
}

CDP__PRIVATE cdp_status cdp__fsdp_open_groups(cdp_fsdp *f) {
    const cdp_fsdp_desc *d = &f->desc;
    cdp_status st = cdp__fsdp_twin(f, d->group, &f->gathers);
    if (st == CDP_OK) st = cdp__fsdp_twin(f, d->group, &f->reductions);
    if (st == CDP_OK && d->replicate) st = cdp__fsdp_twin(f, d->replicate, &f->replicas);
    if (st == CDP_OK && d->norm_group) st = cdp__fsdp_twin(f, d->norm_group, &f->norms);
    if (st == CDP_OK && f->image_count > 1) st = cdp__fsdp_twin(f, d->group, &f->buddies);
    if (st == CDP_OK && f->buddies)
        st = cdp_group_reserve(
            f->buddies, 2 * CDP_FSDP_COPIES * (uint32_t)cdp__min(64, f->unit_count));
    return st;
}

/* All that needs memory, without another rank. */
CDP__PRIVATE cdp_status cdp__fsdp_open_own(cdp_fsdp *f, uint8_t **given) {
    cdp_status st = cdp__fsdp_open_groups(f);
    uint32_t i;
    for (i = 0; i < f->unit_count; ++i)
        cdp__fsdp_cut_unit(f, i);
    if (st == CDP_OK) st = cdp__fsdp_open_shards(f);
    if (st == CDP_OK) st = cdp__fsdp_open_images(f);
    if (st == CDP_OK) st = cdp__fsdp_open_slots(f);
    *given = (uint8_t *)cdp__fsdp_alloc(f, f->desc.param_count);
    return st != CDP_OK || *given ? st : cdp__fsdp_nomem("first values", f->desc.param_count);
}

/* The ranks of desc.group agree already; those of the others do. What fails in norm_group is known
   to all ranks, so nobody votes in replicate then, where one of them may be missing. */
CDP__PRIVATE cdp_status cdp__fsdp_vote_wide(const cdp_fsdp_desc *d, cdp_status st) {
    if (d->norm_group) st = cdp__fsdp_vote(d->norm_group, st);
    if (st != CDP_OK && d->norm_group) return st;
    return d->replicate ? cdp__fsdp_vote(d->replicate, st) : st;
}

/* In a group that was never used, a rank that waits learns only after a second that another one has
   left; in one that was used, at once. */
CDP__PRIVATE cdp_status cdp__fsdp_use_groups(cdp_fsdp *f) {
    cdp_status st = cdp_barrier(f->gathers);
    if (st == CDP_OK) st = cdp_barrier(f->reductions);
    if (st == CDP_OK && f->replicas) st = cdp_barrier(f->replicas);
    if (st == CDP_OK && f->buddies) st = cdp_barrier(f->buddies);
    return st == CDP_OK && f->norms ? cdp_barrier(f->norms) : st;
}

CDP__PRIVATE cdp_status cdp__fsdp_open(cdp_fsdp *f, const cdp_fsdp_desc *d) {
    uint8_t *given = NULL;
    cdp_status st = cdp__fsdp_open_tables(f, d);
    f->desc.params = f->params;
    st = cdp__fsdp_vote(d->group, st);
    if (st == CDP_OK) st = cdp__fsdp_agree(f, d->group);
    st = cdp__fsdp_vote_wide(&f->desc, st);
    if (st != CDP_OK) return st;
    f->list = cdp__fsdp_list_of(&f->desc);
    if (d->replicate) st = cdp__fsdp_vote(d->group, cdp__fsdp_agree(f, d->replicate));
    if (st == CDP_OK) st = cdp__fsdp_open_own(f, &given);
    st = cdp__fsdp_vote_wide(d, cdp__fsdp_vote(d->group, st));
    if (st == CDP_OK) st = cdp__fsdp_use_groups(f);
    if (st == CDP_OK) {
        cdp__fsdp_open_pieces(f);
        f->stats.largest_share = cdp__fsdp_largest_share(&f->list, f->unit_count, f->ranks);
        f->desc.units = NULL; /* the caller's */
        f->spans[1].begin_ns = f->begin_ns = cdp__fsdp_now(f);
        if (!d->receive) st = cdp__fsdp_init(f, d, given);
    }
    cdp__fsdp_free(f, given);
    return st;
}

/* What may be said without memory. */
CDP__PRIVATE void cdp__fsdp_settings(cdp_fsdp *f, const cdp_os *os, const cdp_fsdp_desc *d) {
    cdp__ended_remove(f);
    memset(f, 0, sizeof *f);
    f->os = os;
    f->desc = *d;
    f->desc.compute = cdp__def(d->compute, CDP_DTYPE_F32);
    f->desc.reduce = cdp__def(d->reduce, CDP_DTYPE_F32);
    f->ranks = cdp_size(d->group);
    f->rank = cdp_rank(d->group);
    f->unit_count = cdp__fsdp_unit_count(d);
    f->distance = cdp__def(d->copy_distance, 1u);
    f->image_count = 1 + cdp__fsdp_copies(d->copies, f->distance, f->ranks);
    f->layout = f->seen = 1;
    f->turn = d->turn;
    f->own_divisor = d->divisor != 0;
    if (!f->own_divisor)
        f->desc.divisor = (double)f->ranks * (d->replicate ? cdp_size(d->replicate) : 1);
    f->last = CDP__FSDP_NONE;
    f->loss_scale = f->info.scale = 1;
}

/* ---- >>fsdp/rebind: shards move to another group of ranks ------------------------------------ */

/* Knows: shards of the layout before, records of all ranks. Promises: what a rank holds stays as
   it is until all ranks have what is new; a rank that does not know whether others go on keeps
   both. */

/* One change, on one rank. */
typedef struct cdp__fsdp_change {
    cdp_group *group;
    cdp_fsdp *old; /* NULL: it holds nothing that counts */
    cdp__fsdp_record own, *all;
    cdp__fsdp_verdict verdict;
} cdp__fsdp_change;

CDP__PRIVATE cdp__fsdp_record cdp__fsdp_describe(const cdp_fsdp *f, uint64_t wanted) {
    cdp__fsdp_record r;
    memset(&r, 0, sizeof r);
    r.wanted = wanted;
    if (!f) return r;
    r.layout = f->layout;
    r.ranks = f->ranks;
    r.rank = f->rank;
    r.copies = f->image_count - 1;
    r.distance = f->distance;
    r.seen = f->seen;
    r.turn = f->turn;
    r.updates = f->step;
    r.optim_step = f->desc.optim ? f->desc.optim->step : 0;
    r.scale = f->info.scale;
    if (f->entered) r.flags |= CDP__FSDP_READY;
    if (f->ended) r.flags |= CDP__FSDP_ENDED;
    if (f->torn) r.flags |= CDP__FSDP_TORN;
    if (f->filled) r.flags |= CDP__FSDP_FILLED;
    if (f->ended ? !cdp__fsdp_will_update(f) : f->left_out) r.flags |= CDP__FSDP_LEFT_OUT;
    if (!f->pending) return r;
    r.pending = f->pending->layout;
    r.pending_ranks = f->pending->ranks;
    r.pending_copies = f->pending->image_count - 1;
    r.pending_rank = f->pending->rank;
    return r;
}

CDP__PRIVATE cdp_status cdp__fsdp_judge_records(const cdp__fsdp_verdict *v) {
    if (!v->layout)
        return cdp_error_set(CDP_ERR_STATE, -1, 0,
            "cdp_fsdp_rebind: no rank of the new group holds a shard; create without desc.receive, "
            "and load what was saved");
    if (v->impossible)
        return cdp_error_set(CDP_ERR_STATE, -1, 0,
            "cdp_fsdp_rebind: the ranks cannot reach turn %llu, which the program says counts; "
            "pass what cdp_elastic_next() says, or CDP_FSDP_AGREE",
            (unsigned long long)v->turn);
    if (v->lost == CDP__FSDP_NONE) return CDP_OK;
    return cdp_error_set(CDP_ERR_STATE, (int32_t)v->lost, 0,
        "cdp_fsdp_rebind: of %u ranks before, all that held the shard of rank %u are gone (it had "
        "%u copies); load what was saved, and raise desc.copies to survive so many deaths",
        v->ranks, v->lost, v->copies);
}

/* All ranks learn what each one holds. */
CDP__PRIVATE cdp_status cdp__fsdp_meet(cdp__fsdp_change *c) {
    const uint32_t n = cdp_size(c->group);
    cdp_status st = cdp_allgather(c->group, &c->own, c->all, sizeof c->own, CDP_DTYPE_U8);
    if (st != CDP_OK) return st;
    cdp__fsdp_resolve(c->all, n, &c->verdict);
    if (c->old) c->old->seen = c->verdict.seen + 1;
    return cdp__fsdp_judge_records(&c->verdict);
}

/* Goes on with the layout that others use already, or forgets it. */
CDP__PRIVATE void cdp__fsdp_choose_layout(cdp_fsdp *f, uint32_t which) {
    cdp_fsdp *next = f->pending;
    if (!next) return;
    f->pending = NULL;
    if (which == 2) {
        const cdp_fsdp was = *f;
        *f = *next;
        *next = was;
        f->seen = was.seen;
        f->failed = was.failed;
        memcpy(f->cause, was.cause, sizeof f->cause);
    }
    cdp_fsdp_destroy(next);
}

/* Nobody has the scale of the step that counts, so nobody has used it: it is computed anew, each
   shard by the first rank that has its gradient. */
CDP__PRIVATE cdp_status cdp__fsdp_find_scale(cdp__fsdp_change *c, const cdp_fsdp_desc *d) {
    cdp__fsdp_verdict *v = &c->verdict;
    double sums[2] = {0, 0};
    uint32_t shard, i;
    cdp_status st;
    for (shard = 0; shard < v->ranks && c->old; ++shard) {
        const uint32_t image = cdp__fsdp_holds(&c->own, v, shard);
        double q;
        for (i = 0; cdp__fsdp_holds(&c->all[i], v, shard) == CDP__FSDP_NONE; ++i) {
        }
        if (i != cdp_rank(c->group)) continue;
        q = cdp__norm_of(CDP_DTYPE_F32, CDP__NORM_SQUARES, c->old->images[image].means,
            c->old->images[image].mean_count);
        if (q - q != 0) sums[1] = 1;
        sums[0] += q;
    }
    st = cdp_allreduce(c->group, NULL, sums, 2, CDP_DTYPE_F64, CDP_REDUCE_SUM);
    if (st != CDP_OK) return st;
    v->left_out = sums[1] != 0 && (d->skip_nonfinite || d->max_norm > 0);
    if (v->left_out) {
        --v->updates;
        --v->optim_step;
    }
    if (!c->old) return CDP_OK;
    c->old->info.found_inf = sums[1] != 0;
    cdp__fsdp_judge(c->old, sums[0]);
    v->scale = c->old->info.scale;
    return CDP_OK;
}

/* Makes the update of a step that counts, if this rank lacks it. */
CDP__PRIVATE cdp_status cdp__fsdp_catch_up(cdp__fsdp_change *c, const cdp_fsdp_desc *d) {
    const cdp__fsdp_verdict *v = &c->verdict;
    const cdp__fsdp_role role = cdp__fsdp_role_of(&c->own, v);
    cdp_fsdp *f = c->old;
    cdp_status st = CDP_OK;
    uint32_t i;
    if (f) cdp__fsdp_choose_layout(f, cdp__fsdp_has_layout(&c->own, v->layout));
    if (role == CDP__FSDP_RECEIVES) c->old = f = NULL;
    if (v->unknown) st = cdp__fsdp_find_scale(c, d);
    if (st != CDP_OK || role != CDP__FSDP_UPDATES) return st;
    f->info.scale = v->scale;
    for (i = 0; i < f->held_pieces; ++i) {
        f->pieces[i].scale = v->scale;
        f->pieces[i].step = f->step + 1;
    }
    if (!v->left_out) st = cdp__fsdp_update(f);
    if (st != CDP_OK) return st;
    f->turn = v->turn;
    f->left_out = v->left_out;
    f->entered = f->ended = false;
    return CDP_OK;
}

/* ---- moves ---- */

enum {
    CDP__FSDP_BATCH = 64 /* transfers at a time */
};

typedef struct cdp__fsdp_porter {
    cdp_fsdp *next;
    const cdp__fsdp_change *change;
    cdp__fsdp_mover mover;
    cdp_transfer list[CDP__FSDP_BATCH];
    uint32_t count;
} cdp__fsdp_porter;

/* All ranks see one order of stretches, and each takes part in some of them in that order, so
   nobody waits in a circle. */
CDP__PRIVATE cdp_status cdp__fsdp_flush(cdp__fsdp_porter *p) {
    cdp_work work;
    cdp_status st = CDP_OK;
    if (p->count) st = cdp_batch(p->next->reductions, p->list, p->count, &work);
    if (p->count && st == CDP_OK) st = cdp__fsdp_await(p->next, work);
    p->count = 0;
    return st;
}

/* Array `k` of a shard: its states, then its values. */
CDP__PRIVATE float *cdp__fsdp_array(const cdp_fsdp *f, uint32_t image, uint32_t k, uint64_t at) {
    const cdp__fsdp_image *m = &f->images[image];
    return (k < cdp__fsdp_states(&f->desc) ? m->states[k] : m->values) + at;
}

CDP__PRIVATE void cdp__fsdp_carry(
    cdp__fsdp_porter *p, const cdp__fsdp_piece_move *v, float *from, float *to, uint32_t rank) {
    cdp_transfer t;
    memset(&t, 0, sizeof t);
    if (v->from == v->to) {
        memcpy(to, from, (size_t)(v->count * sizeof *to));
        return;
    }
    t.receive = v->to == rank;
    t.data = t.receive ? to : from;
    t.count = v->count;
    t.peer = t.receive ? v->from : v->to;
    p->list[p->count++] = t;
    if (t.receive) p->next->stats.moved_bytes += t.count * sizeof *to;
}

/* One stretch, if this rank sends or receives it: values, and of trainable ones the states. */
CDP__PRIVATE cdp_status cdp__fsdp_carry_all(
    cdp__fsdp_porter *p, const cdp__fsdp_piece_move *v, uint32_t unit, uint32_t frozen) {
    cdp_fsdp *const next = p->next, *const old = p->change->old;
    const uint32_t states = cdp__fsdp_states(&next->desc), me = next->rank;
    const uint64_t new_start =
        p->mover.new_cuts[cdp__fsdp_held(p->mover.ranks, p->mover.distance, v->to, v->image)];
    uint64_t out = 0, in = 0;
    uint32_t k, image = 0;
    cdp_status st = CDP_OK;
    if (v->from != me && v->to != me) return CDP_OK;
    if (p->count + states + 1 > CDP__FSDP_BATCH) st = cdp__fsdp_flush(p);
    if (st != CDP_OK) return st;
    if (v->from == me) {
        image = cdp__fsdp_holds(&p->change->own, &p->change->verdict, v->shard);
        out = cdp__fsdp_place(old, unit, frozen, image) + v->first - p->mover.old_cuts[v->shard];
    }
    if (v->to == me) in = cdp__fsdp_place(next, unit, frozen, v->image) + v->first - new_start;
    for (k = frozen ? states : 0; k <= states; ++k)
        cdp__fsdp_carry(p, v, v->from == me ? cdp__fsdp_array(old, image, k, out) : NULL,
            v->to == me ? cdp__fsdp_array(next, v->image, k, in) : NULL, me);
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__fsdp_open_mover(cdp__fsdp_porter *p) {
    const cdp__fsdp_change *c = p->change;
    cdp_fsdp *const next = p->next;
    const uint64_t old = c->verdict.ranks, ranks = next->ranks;
    uint32_t i;
    p->mover.records = c->all;
    p->mover.verdict = &c->verdict;
    p->mover.ranks = next->ranks;
    p->mover.copies = next->image_count - 1;
    p->mover.distance = next->distance;
    p->mover.old_cuts = (uint64_t *)cdp__fsdp_alloc(next, (old + 1) * sizeof(uint64_t));
    p->mover.new_cuts = (uint64_t *)cdp__fsdp_alloc(next, (ranks + 1) * sizeof(uint64_t));
    p->mover.sent = (uint64_t *)cdp__fsdp_alloc(next, ranks * sizeof(uint64_t));
    p->mover.member = (uint32_t *)cdp__fsdp_alloc(next, old * sizeof(uint32_t));
    if (!p->mover.old_cuts || !p->mover.new_cuts || !p->mover.sent || !p->mover.member)
        return cdp__fsdp_nomem("moving shards", (old + ranks) * 16);
    memset(p->mover.member, 0xff, (size_t)(old * sizeof(uint32_t)));
    for (i = 0; i < ranks; ++i) {
        const uint32_t was = cdp__fsdp_old_rank(&c->all[i], &c->verdict);
        if (was != CDP__FSDP_NONE) p->mover.member[was] = i;
    }
    return CDP_OK;
}

/* Fills the shards of `next`. */
CDP__PRIVATE cdp_status cdp__fsdp_move_shards(cdp_fsdp *next, const cdp__fsdp_change *c) {
    cdp__fsdp_porter p;
    cdp__fsdp_piece_move v;
    uint32_t unit, k;
    cdp_status st;
    memset(&p, 0, sizeof p);
    p.next = next;
    p.change = c;
    st = cdp__fsdp_vote(c->group, cdp__fsdp_open_mover(&p));
    for (unit = 0; unit < next->unit_count && st == CDP_OK; ++unit)
        for (k = 0; k < 2 && st == CDP_OK; ++k) {
            cdp__fsdp_move_range(&p.mover, &next->list, unit, k == 1);
            while (st == CDP_OK && cdp__fsdp_next_move(&p.mover, &v))
                st = cdp__fsdp_carry_all(&p, &v, unit, k);
        }
    if (st == CDP_OK) st = cdp__fsdp_flush(&p);
    cdp__fsdp_free(next, p.mover.old_cuts);
    cdp__fsdp_free(next, p.mover.new_cuts);
    cdp__fsdp_free(next, p.mover.sent);
    cdp__fsdp_free(next, p.mover.member);
    next->filled = st == CDP_OK;
    return st == CDP_OK ? cdp__fsdp_cast(next) : st;
}

/* ---- the change ---- */

/* Fills `next`, which has its settings alone. OK: all ranks have all, and this one may use it.
   *complete: it has all itself, but may not know whether others do. */
CDP__PRIVATE cdp_status cdp__fsdp_change_to(
    cdp__fsdp_change *c, cdp_fsdp *next, const cdp_fsdp_desc *d, bool *complete) {
    const cdp__fsdp_verdict *v = &c->verdict;
    cdp_status st = cdp__fsdp_meet(c);
    if (st == CDP_OK) st = cdp__fsdp_vote(c->group, cdp__fsdp_catch_up(c, d));
    if (st == CDP_OK) st = cdp__fsdp_open(next, d);
    if (st == CDP_OK) st = cdp__fsdp_move_shards(next, c);
    if (st != CDP_OK) return st;
    next->layout = next->seen = v->seen + 1;
    next->turn = v->turn;
    next->step = v->updates;
    next->left_out = v->left_out;
    next->info.scale = v->scale;
    if (d->optim) d->optim->step = v->optim_step;
    *complete = true;
    return cdp__fsdp_vote(c->group, CDP_OK);
}

/* `old` NULL: a newcomer. */
CDP__PRIVATE cdp_status cdp__fsdp_join_group(
    cdp_fsdp *old, cdp_fsdp *next, const cdp_fsdp_desc *d, uint64_t wanted, bool *complete) {
    cdp__fsdp_change c;
    cdp_status st;
    memset(&c, 0, sizeof c);
    *complete = false;
    c.group = d->group;
    c.old = old;
    c.own = cdp__fsdp_describe(old, wanted);
    c.all = (cdp__fsdp_record *)cdp__fsdp_alloc(next, cdp_size(d->group) * sizeof c.own);
    st = c.all ? CDP_OK : cdp__fsdp_nomem("records", cdp_size(d->group) * sizeof c.own);
    st = cdp__fsdp_vote(d->group, st);
    if (st == CDP_OK) st = cdp__fsdp_change_to(&c, next, d, complete);
    cdp__fsdp_free(next, c.all);
    return st;
}

CDP__PRIVATE cdp_status cdp__fsdp_join(cdp_fsdp *next, const cdp_fsdp_desc *d) {
    bool complete;
    return cdp__fsdp_join_group(NULL, next, d, CDP_FSDP_AGREE, &complete);
}

/* The desc of the new layout. */
CDP__PRIVATE cdp_fsdp_desc cdp__fsdp_desc_for(
    const cdp_fsdp *f, cdp_group *group, cdp_fsdp_unit *units) {
    cdp_fsdp_desc d = f->desc;
    uint32_t i;
    for (i = 0; i < f->unit_count; ++i) {
        units[i].name = f->units[i].name;
        units[i].keep = f->units[i].keep;
        units[i].uses = f->units[i].uses;
    }
    d.group = group;
    d.units = units;
    d.unit_count = f->unit_count;
    d.receive = true;
    if (!f->own_divisor) d.divisor = 0;
    return d;
}

/* Ends what is in flight. A healthy group ends it by itself. */
CDP__PRIVATE void cdp__fsdp_calm(cdp_fsdp *f) {
    cdp_status st = CDP_OK;
    uint32_t i;
    for (i = 0; i < f->unit_count; ++i) {
        const cdp__fsdp_unit *u = &f->units[i];
        if (u->gathering && st != CDP_PENDING) st = cdp_work_wait_for(u->gather, 500);
        if (u->forwarding && st != CDP_PENDING) st = cdp_work_wait_for(u->forward, 500);
    }
    for (i = 0; i < f->flights && st != CDP_PENDING; ++i)
        st = cdp_work_wait_for(f->flight[i].work, 500);
    if (st == CDP_PENDING) {
        cdp_group_abort(f->gathers, "cdp_fsdp_rebind has left this group");
        cdp_group_abort(f->reductions, "cdp_fsdp_rebind has left this group");
        if (f->buddies) cdp_group_abort(f->buddies, "cdp_fsdp_rebind has left this group");
    }
    cdp__fsdp_settle(f);
    cdp__fsdp_free_caches(f);
    if (f->failed != CDP_OK) return;
    (void)cdp_error_set(CDP_ERR_STATE, -1, 0, "cdp_fsdp_rebind has not ended; call it again");
    (void)cdp__fsdp_broken(f, CDP_ERR_STATE);
}

CDP__PRIVATE void cdp__fsdp_adopt(cdp_fsdp *f, cdp_fsdp *next) {
    const cdp_fsdp was = *f;
    *f = *next;
    *next = was;
    f->desc.units = NULL;
    cdp_fsdp_destroy(next);
}

CDP__PRIVATE cdp_status cdp__fsdp_rebind(cdp_fsdp *f, cdp_group *group, uint64_t turn) {
    cdp_fsdp *next = (cdp_fsdp *)cdp__fsdp_alloc(f, sizeof *next);
    cdp_fsdp_unit *units =
        (cdp_fsdp_unit *)cdp__fsdp_alloc(f, f->unit_count * sizeof(cdp_fsdp_unit));
    const cdp_os *os = cdp_group_desc_of(group)->os;
    bool complete = false;
    cdp_status st;
    if (next && units) {
        const cdp_fsdp_desc d = cdp__fsdp_desc_for(f, group, units);
        cdp__fsdp_settings(next, os, &d);
        st = cdp__fsdp_share_loss(next, cdp__fsdp_join_group(f, next, &d, turn, &complete));
    } else
        st = cdp__fsdp_vote(group, cdp__fsdp_nomem("the struct", sizeof *next));
    if (st == CDP_OK)
        cdp__fsdp_adopt(f, next);
    else if (complete)
        f->pending = next;
    else if (next && units)
        cdp_fsdp_destroy(next);
    else
        cdp__fsdp_free(f, next);
    cdp__fsdp_free(f, units);
    return st;
}

CDP_API cdp_status cdp_fsdp_rebind(cdp_fsdp *f, cdp_group *group, uint64_t turn) {
    cdp_status st = cdp__fsdp_alive(f, "cdp_fsdp_rebind");
    if (st == CDP_OK && !group) st = cdp__fsdp_missing("cdp_fsdp_rebind", "group");
    if (st == CDP_OK) st = cdp_group_status(group);
    if (st != CDP_OK) return st;
    if (f->desc.replicate || f->desc.norm_group)
        return cdp_error_set(CDP_ERR_UNSUPPORTED, -1, 0,
            "cdp_fsdp_rebind: not offered with desc.replicate or desc.norm_group; save, and "
            "restore on the new groups");
    cdp__fsdp_calm(f);
    return cdp__fsdp_rebind(f, group, turn);
}

CDP_API uint64_t cdp_fsdp_turn(const cdp_fsdp *f) {
    return f && !cdp__ended(f) ? f->turn : 0;
}

/* ---- creation ---- */

CDP_API cdp_status cdp_fsdp_create(const cdp_fsdp_desc *d, cdp_fsdp **out) {
    const cdp_os *os;
    cdp_fsdp *f = NULL;
    cdp_status st;
    if (!out) return cdp__fsdp_missing("cdp_fsdp_create", "out");
    *out = NULL;
    if (!d || !d->group) return cdp__fsdp_missing("cdp_fsdp_create", d ? "desc.group" : "desc");
    st = cdp_group_status(d->group);
    if (st != CDP_OK) return st;
    os = cdp_group_desc_of(d->group)->os;
    st = cdp__fsdp_check("cdp_fsdp_create", d);
    if (st == CDP_OK) f = (cdp_fsdp *)os->alloc(os->user, sizeof *f);
    if (st == CDP_OK && !f) st = cdp__fsdp_nomem("the struct", sizeof *f);
    if (!f) return cdp__fsdp_vote_wide(d, cdp__fsdp_vote(d->group, st));
    cdp__fsdp_settings(f, os, d);
    st = d->receive ? cdp__fsdp_join(f, d) : cdp__fsdp_open(f, d);
    if (st == CDP_OK) {
        *out = f;
        return CDP_OK;
    }
    st = cdp__fsdp_share_loss(f, st);
    cdp_fsdp_destroy(f);
    return st;
}

#endif /* CDP_FSDP_IMPL_INCLUDED */
