/* pipeline/driver_api.h - runs a schedule: callbacks compute, messages travel between stages */
#ifndef CDP_SRC_PIPELINE_DRIVER_API_H
#define CDP_SRC_PIPELINE_DRIVER_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../group/group_api.h"
#include "../ddp/ddp_api.h"
#include "schedule_api.h"

struct cdp_fsdp;

/* A tensor that goes from a stage to the next one, and its gradient back: the same of each
   micro-batch. */
typedef struct cdp_pipe_edge {
    uint64_t count; /* elements */
    cdp_dtype dtype;
} cdp_pipe_edge;

/* Memory of a micro-batch at a stage. */
typedef enum cdp_pipe_role {
    CDP_PIPE_IN,       /* what comes from the stage before */
    CDP_PIPE_OUT,      /* what goes to the next stage */
    CDP_PIPE_GRAD_OUT, /* the gradient of OUT, from the next stage */
    CDP_PIPE_GRAD_IN   /* the gradient of IN, to the stage before */
} cdp_pipe_role;

/* What a callback gets. Arrays have one pointer for each tensor of the edge; the memory stays as it
   is until the step ends. The callback fills out (forward), or grad_in (backward). */
typedef struct cdp_pipe_micro {
    cdp_act_kind kind;
    uint32_t stage, micro;
    /* 0 .. cdp_schedule_peak() - 1: no other micro-batch or stage of this rank has it between F and
       B or W; where the program keeps what backward needs */
    uint32_t slot;
    bool first; /* of this stage in the step: its weights are needed from now on */
    bool last;  /* of this stage in the step: its gradients are complete after it */
    void *const *in, *const *out, *const *grad_out, *const *grad_in;
    /* Forward of the last stage sets it to the loss of the micro-batch, which cdp_pipeline_losses()
       brings to all ranks; 0 before. NULL at other stages. */
    double *loss;
} cdp_pipe_micro;

/* Computes. An error ends the step on all ranks, with the text of cdp_last_error(). It may use
   other groups, but not the one of the pipeline. */
typedef cdp_status cdp_pipe_fn(void *user, const cdp_pipe_micro *micro);

/* A gradient that the first stage and the last one both hold, as of tied embeddings. */
typedef struct cdp_pipe_tied {
    void *grad; /* of this stage; host memory; the sum of both in the end */
    uint64_t count;
    cdp_dtype dtype;
} cdp_pipe_tied;

/* Weights of a stage that are divided over ranks: units of a cdp_fsdp, and the functions of
   cdp_fsdp.h, or others that do the same:
       {fsdp, 0, 2, cdp_fsdp_need, cdp_fsdp_done, cdp_fsdp_ready, cdp_fsdp_abort}
   Rows of the stage that follow each other are a run. Before a run the pipeline calls `need` for
   each unit, after it `done`; after the last row of the stage in a training step `ready`, the last
   unit first. Backward adds to cdp_fsdp_grad(); the program ends the step as it does without a
   pipeline, with cdp_fsdp_backward_end() and cdp_fsdp_step(). A step that fails calls `abort`. */
typedef struct cdp_pipe_shards {
    struct cdp_fsdp *fsdp;
    uint32_t first_unit, unit_count; /* the units of this stage (default: none) */
    cdp_status (*need)(struct cdp_fsdp *fsdp, uint32_t unit);
    cdp_status (*done)(struct cdp_fsdp *fsdp, uint32_t unit);
    cdp_status (*ready)(struct cdp_fsdp *fsdp, uint32_t unit);
    void (*abort)(struct cdp_fsdp *fsdp, const char *reason);
} cdp_pipe_shards;

typedef struct cdp_pipe_stage {
    const cdp_pipe_edge *in, *out; /* the first stage has no in, the last one no out */
    uint32_t in_count, out_count;
    /* required where the schedule has F, B, I and W */
    cdp_pipe_fn *forward, *backward, *backward_input, *backward_weights;
    /* The program's memory for a tensor of a micro-batch, in which messages arrive and from which
       they leave; asked for once, at creation; each must be one of its own. Between two stages of
       one rank IN and GRAD_OUT are not asked for: they are the other stage's OUT and GRAD_IN.
       (default: the pipeline's memory) */
    void *(*memory)(void *user, cdp_pipe_role role, uint32_t micro, uint32_t tensor);
#ifndef CDP_NO_DDP
    /* Copies of the stage on other ranks, in a group of their own: its gradients become their mean
       in each step. The pass begins before the last backward of the stage; its buckets travel
       while other rows compute, and the step ends when they have arrived. Backward adds to
       cdp_ddp_grad(), which the program sets to zero before a step (default: no copies). */
    cdp_ddp *ddp;
    /* The last backward calls cdp_ddp_ready() or cdp_ddp_unused() for each parameter, so that
       buckets leave earlier (default: the pipeline marks all of them after it) */
    bool marks;
#endif
    /* Of the first stage and of the last one: gradients that become the sum of both in each step,
       after the mean of .ddp. Lists of equal length; at the end both ranks have the same bits. Both
       stages begin with equal values and make equal updates. Where they are on one rank (in a V),
       both have the same memory (default: none) */
    const cdp_pipe_tied *tied;
    uint32_t tied_count;
    /* Weights that ranks of copies of the stage divide among them. Tied gradients and those of .ddp
       are of other weights (default: all weights are here) */
    cdp_pipe_shards shards;
    /* Groups that callbacks use, as of tensor parallel ranks; a step that fails aborts
       them, so that their ranks do not wait for this one (default: none) */
    cdp_group *const *groups;
    uint32_t group_count;
    void *user;
} cdp_pipe_stage;

typedef struct cdp_pipeline_desc {
    cdp_group *group; /* of as many ranks as the schedule has; must outlive the pipeline */
    const cdp_schedule *schedule; /* must outlive it, too */
    /* of this rank, in the order of their numbers; copied, with their lists of edges, of tied
       gradients and of groups */
    const cdp_pipe_stage *stages;
    uint32_t stage_count;
    uint32_t
        timeout_ms; /* deadline of a step, from its start (default: 600000; CDP_NO_TIMEOUT: none) */
    uint32_t tag;   /* of its messages: from here on 2 for each micro-batch of each stage */
    uint32_t ahead; /* receives are started so many rows early (default: 2) */
} cdp_pipeline_desc;

typedef struct cdp_pipeline cdp_pipeline;

/* Collective over desc->group. Errors: INVALID, NOMEM, UNSUPPORTED (a dtype; tags beyond 31 bits):
   on this rank, the others get MISMATCH, which names it. MISMATCH: ranks have different schedules
   (the text shows the first row that differs), or two stages disagree about the tensors between
   them. After all these the group stays usable. Else the group's failure. */
CDP_MUST_CHECK CDP_API cdp_status cdp_pipeline_create(
    const cdp_pipeline_desc *desc, cdp_pipeline **out);

/* Local. Not in a step that has not ended, unless its group has failed or is not used any more:
   messages may still read the memory. NULL is allowed. */
CDP_API void cdp_pipeline_destroy(cdp_pipeline *pipeline);

/* Run the schedule once: all callbacks of this rank, on this thread. Ranks meet only by the
   messages between stages. The first step allocates records of messages. Later ones
   allocate nothing but, once for a stream, room for a message that comes early.
   Errors: what a callback returned (the text names stage, action and micro-batch, on all ranks);
   or the group's failure: the text adds for which action this rank waits, and of a rank that is to
   blame the first action that it is not known to have done. TIMEOUT: the deadline of the step; it
   names the rank for which all wait in the end, and the group is broken. STATE: a step is being
   polled. A step that fails aborts the groups of .ddp, .shards and .groups, too. */
CDP_MUST_CHECK CDP_API cdp_status cdp_pipeline_step(cdp_pipeline *pipeline);

#ifndef CDP_NO_FRAMES
/* The same for a program that must not block: start, then poll until it does not return PENDING.
   Communication advances for at most `budget_us` in a call, and rows run for which all is there:
   callbacks take their time on top. Errors: as above; UNSUPPORTED of start: a stage has .shards,
   whose `need` waits for other ranks. */
CDP_MUST_CHECK CDP_API cdp_status cdp_pipeline_start(cdp_pipeline *pipeline);
CDP_MUST_CHECK CDP_API cdp_status cdp_pipeline_poll(cdp_pipeline *pipeline, uint32_t budget_us);
#endif

/* The losses of the last step on all ranks: each[micro] (NULL is allowed), and their sum in this
   order. The program weighs them, as by the share of samples of a micro-batch. Collective over the
   group of the pipeline, between steps. Errors: INVALID (NULL), STATE (a step is being polled),
   those of the group. */
CDP_MUST_CHECK CDP_API cdp_status cdp_pipeline_losses(
    cdp_pipeline *pipeline, double *each, double *sum);

/* When the rows of all ranks ran in the last step, on the clock of rank 0, from when the first rank
   began; the same numbers on every rank. Clocks of other machines are compared in
   barriers: they are right within the fastest of eight; ranks of one machine have one clock.
   Collective over the group of the pipeline, between steps. Errors: INVALID (NULL), STATE (on all
   ranks: a rank has not ended a step yet, or is polling one), those of the group. */
CDP_MUST_CHECK CDP_API cdp_status cdp_pipeline_times(
    cdp_pipeline *pipeline, const cdp_pipe_times *out);

#endif /* CDP_SRC_PIPELINE_DRIVER_API_H */
