/* train/outer_api.h - training over slow networks */
#ifndef CDP_SRC_TRAIN_OUTER_API_H
#define CDP_SRC_TRAIN_OUTER_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../group/group_api.h"
#include "../ddp/ddp_api.h"
#include "../ddp/hooks_api.h"

#ifndef CDP_NO_DDP
#ifndef CDP_NO_AVERAGER
#ifndef CDP_NO_TRAINING
/* Ranks train alone for `period` steps, then agree: DiLoCo (Douillard and others 2023). An outer
   optimizer, SGD with Nesterov momentum, takes the mean over all ranks of how far each has gone
   as a gradient. With lr 1 and no momentum this is LocalSGD. `fragments` and `delay` make it
   Streaming DiLoCo: a part of the parameters at a time, on its way while training goes on. `wire`
   makes it smaller, CDP_HOOK_QUANTIZE_4 eight times. A ddp is not needed; where there is one, for
   the ranks of one site, `group` has one rank of each site, and the others get its parameters.

       for (step = 0; step < steps; ++step) {
           ...                               // forward, backward, an optimizer step of this rank
           st = cdp_outer_step(outer);
           if (st != CDP_OK) {               // a rank was lost: some ranks get PEER_LOST, others
               ...                           // ABORTED; cdp_elastic_next() makes a smaller group
               st = cdp_outer_rebind(outer, group);
           }
       }

   In such a job these parameters are no entries of cdp_elastic_desc, which are equal on all ranks.

   Memory: 8 bytes for each parameter, 4 for each of one fragment, and what `wire` needs.
   Threads: one thread at a time. */
typedef struct cdp_outer cdp_outer;

typedef struct cdp_outer_desc {
    cdp_group *group;        /* required; it may be destroyed before the outer, its hub not */
    const cdp_param *params; /* required; f32 in host memory; `data` outlives the outer; copied */
    uint32_t param_count;
    uint64_t period; /* steps between two means of a parameter (default: 500) */
    /* parts of equal size that travel one after the other, every period / fragments steps, and so
       are as many times smaller (default: 1) */
    uint32_t fragments;
    /* steps between the start of a fragment's mean and its use; fewer than period / fragments
       (default: 0, cdp_outer_step() waits) */
    uint64_t delay;
    double lr;       /* of the outer optimizer (default: 0.7) */
    double momentum; /* (default: 0.9; CDP_OPTIM_ZERO: 0) */
    /* What a rank keeps of its own parameters when others arrive, 0 to 1 (default: 0): 0.5 is
       usual with a delay. */
    double alpha;
    /* How differences travel (default: as f32). It is owned by the outer, also if creation fails;
       its `device` is false, POWERSGD is of no use. */
    const cdp_hook *wire;
    /* Of a run that goes on: `steps` of cdp_outer_stats when its state was saved, which is
       not possible while a fragment is on its way (INVALID); that of rank 0 counts (default: 0) */
    uint64_t steps;
} cdp_outer_desc;

typedef struct cdp_outer_stats {
    uint64_t steps;      /* desc.steps, and calls of cdp_outer_step() that count */
    uint64_t rounds;     /* fragments that were agreed on in these steps */
    uint64_t sent_bytes; /* given to operations, by this rank */
    uint64_t wait_ns;    /* in which cdp_outer_step() waited for others */
} cdp_outer_stats;

/* Collective; waits. All ranks get the parameters of rank 0, or, where other ranks call
   cdp_outer_rebind() in the same group, of these. *out belongs to the caller. Errors: INVALID (a
   missing member, values out of their range; `fragments` does not divide `period`), UNSUPPORTED
   (a parameter that is not f32), STATE (the group was destroyed), NOMEM, MISMATCH on all ranks
   (other settings or numbers of parameters), or the group's failure. What one rank refuses, with a
   group in its desc, is the error of all: the text names that rank. */
CDP_MUST_CHECK CDP_API cdp_status cdp_outer_create(const cdp_outer_desc *desc, cdp_outer **out);

/* After each inner step, on all ranks equally often. Starts the mean of a fragment, moves it on, or
   waits for it and changes `data` of its parameters. Errors: INVALID (NULL), STATE (destroyed; a
   failure before), NOMEM, what `wire` returns, or the group's failure: then nothing was changed,
   and the fragment is repeated after cdp_outer_rebind(). */
CDP_MUST_CHECK CDP_API cdp_status cdp_outer_step(cdp_outer *outer);

/* Goes on with the ranks of another group; those that are new in it call cdp_outer_create().
   Collective over `group`; waits. A rank that failed may lack the last fragment that another one
   has: all take what they agreed on from the lowest rank that has most rounds. Parameters of ranks
   that agreed already stay as they trained them. Errors: as cdp_outer_create(); call it again, with
   a later group, or destroy the outer. */
CDP_MUST_CHECK CDP_API cdp_status cdp_outer_rebind(cdp_outer *outer, cdp_group *group);

/* What all ranks have alike: the parameters on which they agreed last, and the outer momentum. */
#define CDP_OUTER_PARAMS 0u
#define CDP_OUTER_MOMENTUM 1u
/* Save and restore: the state of one parameter is copied to `values` of rank `root`, or taken from
   there by all ranks; as many f32 as the parameter has elements, on other ranks unused. Gathering
   is local. Restoring is collective, and leaves `data` alone.

   A run that goes on has the same bits if it has as many ranks, and each restores its own of what
   ranks do not share. This is the state of its inner optimizer; that of `wire`, if that has any
   (save of cdp_outer_hook(), and load before desc.wire is set); and its parameters, after
   cdp_outer_create(), which overwrites them. Only where fragments is 1 and alpha 0, right after a
   round, all ranks have the same parameters.

   Errors: INVALID (NULL; no such rank, parameter or state), STATE (destroyed; a failure before; a
   fragment is on its way: none is in steps that are multiples of period / fragments), and for
   restoring the group's failure; then call cdp_outer_rebind(). */
CDP_MUST_CHECK CDP_API cdp_status cdp_outer_gather(
    cdp_outer *outer, uint32_t state, uint32_t index, float *values, uint32_t root);
CDP_MUST_CHECK CDP_API cdp_status cdp_outer_scatter(
    cdp_outer *outer, uint32_t state, uint32_t index, const float *values, uint32_t root);
/* The outer's copy of desc.wire, for save and error_norm; NULL: it has none. */
CDP_API const cdp_hook *cdp_outer_hook(const cdp_outer *outer);

/* Local. What is on its way is waited for, at most until its deadline. NULL is allowed. */
CDP_API void cdp_outer_destroy(cdp_outer *outer);

/* All zero for NULL. */
CDP_API cdp_outer_stats cdp_outer_stats_of(const cdp_outer *outer);
#endif /* CDP_NO_TRAINING */
#endif /* CDP_NO_AVERAGER */
#endif /* CDP_NO_DDP */

#endif /* CDP_SRC_TRAIN_OUTER_API_H */
