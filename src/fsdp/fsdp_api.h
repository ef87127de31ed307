/* fsdp/fsdp_api.h - parameters, gradients and optimizer state divided over ranks */
#ifndef CDP_SRC_FSDP_FSDP_API_H
#define CDP_SRC_FSDP_FSDP_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../os/os_api.h"
#include "../group/group_api.h"
#include "../ddp/ddp_api.h"
#include "../train/optimizers_api.h"

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

#endif /* CDP_SRC_FSDP_FSDP_API_H */
