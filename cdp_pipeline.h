/* SPDX-License-Identifier: MIT-0 OR Unlicense
   Both texts are at the end of cdp.h. */
/*  cdp_pipeline.h - layers over ranks, micro-batches in flight - v0.3.0 - MIT-0 or Unlicense

    WHAT IT IS
        A model that is too deep for one rank is cut into stages, and a batch into micro-batches. A
        schedule says what each rank does in which order. Here a schedule is data: a table with a
        row for each action. It is checked before anything runs: every stage has each micro-batch
        once, forward and backward; no order of the ranks waits in a circle; the bubble, the
        memory and the messages of a step are known on paper. A driver runs any such table:
        callbacks of the program compute, activations and gradients travel between stages.

    DO THIS
        #define CDP_IMPLEMENTATION      in exactly one C or C++ file, before
        #include "cdp_pipeline.h"       which needs cdp.h alone

    QUICK START
        #define CDP_IMPLEMENTATION
        #include "cdp_pipeline.h"
        #include <stdio.h>
        int main(void) {
            static cdp_schedule_desc desc;
            cdp_pipe_cost cost[8] = {{10, 12, 8, 0, 1}};    // forward, backward of input, of
            cdp_pipe_preview p;                             // weights, -, a message: all in us
            cdp_schedule *s;
            for (int i = 1; i < 8; ++i) cost[i] = cost[0];
            desc.kind = CDP_PIPE_ZERO_BUBBLE;
            desc.ranks = 4;
            desc.stages_per_rank = 2;                       // stages 0 to 7
            desc.micros = 16;
            if (cdp_schedule_create(&desc, &s) != CDP_OK) return cdp_print_error(stderr);
            if (cdp_schedule_preview(s, cost, false, &p) != CDP_OK)
                return cdp_print_error(stderr);
            printf("a step takes %g us, %g %% more than its work; at most %u activations\n",
                p.step_us, 100 * p.bubble, p.peak);
            cdp_schedule_destroy(s);
            return 0;
        }
        gcc -O2 paper.c -o paper -pthread -lm

    CONTENTS
        Each part is marked >>folder/name and comes from src/folder/name.h. `grep '>>'` lists the
        parts in their order, which is that of the #include lines of src/cdp_pipeline.h. A part uses
        what comes before it, never what comes after it. Names in _api hold what programs call.

    API BY TASK
        I want to...                                       call
        take a schedule by its name                        cdp_schedule_create, .kind
        have the best one chosen, and layers cut           cdp_schedule_choose
        bring one of my own                                .csv (as PyTorch writes it), or .rows
        know what is wrong with it                         the error's text: the first wrong row
        know what a step costs                             cdp_schedule_preview
        know who holds how many activations                cdp_schedule_peak
        know when each row runs                            cdp_schedule_times, on paper;
                                                           cdp_pipeline_times, as it ran
        see both as a picture, and why ranks wait          cdp_schedule_draw
        know whether blocking sends would hang             cdp_schedule_deadlock
        see what a rank does                               cdp_schedule_rows, cdp_schedule_text
        run it                                             cdp_pipeline_create, _step
        run it without blocking                            cdp_pipeline_start, _poll
        know where to keep a micro-batch's activations     .slot of cdp_pipe_micro
        know when a stage's gradients are complete         .last of cdp_pipe_micro
        reduce them over data-parallel copies              .ddp of cdp_pipe_stage
        divide a stage's weights over its copies           .shards of cdp_pipe_stage, cdp_fsdp.h
        use other groups in callbacks (tensor parallel)    .groups of cdp_pipe_stage
        tie embeddings of the first and the last stage     .tied of cdp_pipe_stage
        have the loss on all ranks                         .loss of cdp_pipe_micro,
                                                           cdp_pipeline_losses
        clip over all stages                               cdp_grads_norm of cdp.h, on its group
        bring memory of my own for activations             .memory of cdp_pipe_stage

    COMING FROM PyTorch's torch.distributed.pipelining
        ScheduleGPipe                          CDP_PIPE_GPIPE
        Schedule1F1B                           CDP_PIPE_1F1B
        ScheduleInterleaved1F1B                CDP_PIPE_INTERLEAVED
        ScheduleLoopedBFS                      CDP_PIPE_BFS
        ScheduleInterleavedZeroBubble          CDP_PIPE_ZERO_BUBBLE
        ScheduleZBVZeroBubble                  CDP_PIPE_ZBV
        ScheduleDualPipeV                      CDP_PIPE_DUALPIPEV
        _load_csv(file, "compute_only")        .csv; "compute_comms" is read, too
        _dump_csv                              cdp_schedule_text
        PipelineStage(module, ...)             cdp_pipe_stage: callbacks for F, B, I and W
        schedule.step(x)                       cdp_pipeline_step; callbacks of the first stage have
                                               the data, those of the last one the loss
        schedule.eval(x)                       a pipeline of CDP_PIPE_EVAL
        scale_grads                            none: multiply the loss by 1 / m, or by the share of
                                               samples, also where the last micro-batch is smaller
        DDP of each stage, no_sync                .ddp: only the last backward reduces
        fully_shard of each stage; UNSHARD,       .shards: gathered before a run of rows of the
            RESHARD, REDUCE_GRAD                      stage, freed after it, reduced after its last
        Differences: shapes are given, not sent, and compared at creation; nothing is pickled.

    SCHEDULES
        p ranks, v stages on each, m micro-batches; F, I, W: times of one stage (forward, backward
        of the input, of the weights), B = I + W; equal stages, messages that cost nothing. What a
        step takes longer than the work of a rank, and the most activations (stages x micro-batches)
        that rank r holds; q = m / max(1, m / p), each division rounded down:
            1F1B         (p-1)(F+B)                            min(m, p-r)
            GPIPE        (p-1)(F+B)                            m
            INTERLEAVED  (p-1 + (v-1) max(0, p-m)) (F+B)       min((v-1)q + 2(p-1-r) + 1, mv)
            BFS          the same                              mv
            ZERO_BUBBLE  (p-1)(F+I-W), if W <= F, W <= I and m >= p
                                                               min((v-1)q + p-1-r, mv) + 1 + r, at
                                                               most mv
            ZBV          (p-1) max(I, 2(I-W)), if W <= F <= I and m >= 2p-1
                                                               2p
            DUALPIPEV    (p-1)(3F-W), if W <= F = I and a pair costs F + B
                                                               2p+1
        Steady 1F1B has no slack: a message that takes time delays each round of p micro-batches.
        `ahead` forwards more hide it, for as many activations more.

        cdp_schedule_choose() tries all of them, with .ahead, on the costs of layers that a program
        gives, and cuts the layers into stages. Beside all cuts of all schedules (200 random models
        of 4 to 9 layers, 2 or 3 ranks, half of them with little memory) 179 of 189 choices were the
        best ones; the worst step was 1.09 of the best.

    A STEP
            cdp_status forward(void *user, const cdp_pipe_micro *m) {
                // in[], of the stage before (the first stage: data of the program) -> out[]
            }
            cdp_status backward(void *user, const cdp_pipe_micro *m) {
                // grad_out[] (the last stage: of its loss) -> grad_in[], and gradients of weights
                if (m->last) ...    // of all micro-batches: a data-parallel group may reduce them
            }
        Each rank runs its rows in their order: it waits for what a row needs, computes, and starts
        to send what came out, without waiting for that. Receives start `ahead` rows early, right
        into the memory of the tensor. So messages travel while rows compute, and no schedule that
        exists can hang. Messages have tags of their own for each stage and micro-batch. Between
        two stages of one rank nothing is sent or copied: they see the same memory. The two rows of
        a pair run one after the other, forward and backward in the order of the table.

    GRADIENTS THAT OTHER RANKS HOLD, TOO
        A stage with .ddp has copies on other ranks. Backward adds to cdp_ddp_grad(); when the last
        micro-batch has passed, the pass of the ddp begins, and its buckets travel while other rows
        compute. Then .tied gradients of the first and the last stage become their sum. Both are
        complete when the step ends. Then clip: cdp_grads_norm() on the group of the pipeline, where
        all ranks list the gradients of all stages; of tied ones the last stage sets .copy.
        A stage with .shards has its weights divided over its copies by cdp_fsdp.h: they are
        gathered before rows that use them, and its gradients are summed and divided after its last
        row. The program ends the step, with a norm and an overflow of all stages where norm_group
        of the cdp_fsdp_desc has all ranks:

            .shards = {f, first_unit, unit_count,
                cdp_fsdp_need, cdp_fsdp_done, cdp_fsdp_ready, cdp_fsdp_abort}
            st = cdp_pipeline_step(pipeline);
            if (st == CDP_OK) st = cdp_fsdp_backward_end(f, loss_scale, &info);
            if (st == CDP_OK) st = cdp_fsdp_step(f);

        Inside a stage callbacks may cut tensors further, over a group that is in .groups: rank k of
        it in one stage sends to rank k of the next one, so there are as many pipelines as it has
        ranks. A pipeline of CDP_PIPE_EVAL takes the same stages: it gathers and reduces nothing
        else.
        The last micro-batch may have fewer samples: tensors have the same counts, of which the rest
        is not read; the loss of each micro-batch is weighed by its samples.

    PICTURES
        cdp_schedule_draw() shows a step on paper, as it ran, or both on one scale, as text or SVG
        (here the first 88 columns):
            rank 0    paper 0F0=====0F1=====........................0B0=================........
                      ran   ..0F0===0F1=====........................0B0=================........
            rank 1    paper ..........1F0=====1B0=================1F1=====1B1=================..
                      ran   ....................1F0=====1B0=====....1F1=====1B1=================
            as it ran: a step takes 80.0 us; the longest waits:
                rank 1 waits 20.0 us before 1F0, for 0F0 of rank 0 (12.0 us of it for the message)
        Names are stage, action and micro-batch; dots are bubbles. The driver records when callbacks
        begin and end; cdp_pipeline_times() collects this of all ranks on one clock.

    CONFIGURATION
        CDP_PIPELINE_IMPLEMENTATION  this header alone; cdp.h is implemented elsewhere
        The macros of cdp.h hold here, too: CDP_API, CDP_STATIC, CDP_ASSERT, CDP_NO_STDIO.

    THREADS
        A schedule does not change: any thread may use it. Destroying it is for one thread alone.
        A pipeline belongs to one thread at a time, which also runs its callbacks.

    MEMORY
        From the os of the desc. A schedule: 8 bytes for each row, 4 for each stage. Checking it,
        and each preview, take 18 bytes for each micro-batch of a stage and 16 for each row
        meanwhile; buffers of cdp_schedule_deadlock() 4 for each pair of ranks.
        A pipeline: the tensors of all micro-batches at the borders of this rank's stages, for
        which the program brings no memory, and gradients of as many; 32 bytes for each tensor of
        each micro-batch; 32 for each tensor of each row, and 16 for each row. What a stage keeps
        between forward and backward is the program's, in cdp_schedule_peak() slots.

    ERRORS
        INVALID, UNSUPPORTED, NOMEM: nothing was done. UNSUPPORTED says which sizes a kind has.
        MISMATCH of cdp_pipeline_create(): ranks have different schedules, or tensors between
        stages; the text shows the first row that differs. A callback that fails, or a rank that
        dies, ends the step on all ranks: their errors name the stage, the action and the
        micro-batch. Of a rank that died nobody knows more than what it has sent: named is the first
        action that it is not known to have done. A step that fails aborts the groups of
        .ddp, .shards and .groups, too, so that their ranks do not wait for it.

    WHAT IS NOT THERE
        Nothing travels before a row has ended: a B hands on its gradient as a whole (take I and W).
        Callbacks have one thread: a pair does not overlap by itself. Weights in .shards are not
        tied, and frames (cdp_pipeline_start) do not take them.

    License: MIT-0 or Unlicense, as you like; see the end of cdp.h.                            */

/* Joined from src/cdp_pipeline.h and what it includes: change that, then `make headers`. */
#if !defined(CDP_INCLUDED) \
    || defined(CDP_IMPLEMENTATION) || defined(CDP_CORE_IMPLEMENTATION) \
    || defined(CDP_PIPELINE_IMPLEMENTATION)
#include "cdp.h"
#endif

#ifndef CDP_PIPELINE_INCLUDED
#define CDP_PIPELINE_INCLUDED

#define CDP_PIPELINE_VERSION 300 /* major * 10000 + minor * 100 + patch */
#if CDP_PIPELINE_VERSION != CDP_VERSION
#error "cdp_pipeline.h and cdp.h are of different versions: copy both from the same release"
#endif

#ifdef CDP_NO_MESSAGES
#error "cdp_pipeline.h needs what CDP_NO_MESSAGES leaves out"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- >>pipeline/schedule_api: schedules of a pipeline: tables that are checked before they run  */

/* What a rank does with one micro-batch of one stage. */
typedef enum cdp_act_kind {
    CDP_ACT_F = 1, /* forward */
    CDP_ACT_B,     /* backward, whole: gradients of the input and of the weights */
    CDP_ACT_I,     /* backward, gradient of the input alone */
    CDP_ACT_W      /* backward, gradients of the weights alone; after its I */
} cdp_act_kind;

/* A row of a schedule. Sends, receives, unsharding and reductions follow from the rows. */
typedef struct cdp_act {
    uint8_t kind;   /* of cdp_act_kind */
    bool pair;      /* the program may overlap it with the next row: one is F, the other B or I */
    uint16_t stage; /* of all stages */
    uint32_t micro; /* micro-batch */
} cdp_act;

/* p ranks, v stages on each of them, m micro-batches. Stages lie in a loop (stage s on rank
   s mod p), those of ZBV and DUALPIPEV in a V (up the ranks, and down again). */
typedef enum cdp_pipe_kind {
    CDP_PIPE_1F1B = 0,    /* v = 1 */
    CDP_PIPE_GPIPE,       /* v = 1 */
    CDP_PIPE_INTERLEAVED, /* 1F1B; max(1, m / p) must divide m */
    CDP_PIPE_BFS,         /* looped breadth-first */
    CDP_PIPE_ZERO_BUBBLE, /* interleaved, backward is split; v = 1: ZB-H1 */
    CDP_PIPE_ZBV,         /* v = 2; backward is split */
    CDP_PIPE_DUALPIPEV,   /* v = 2, m >= 2 p */
    CDP_PIPE_EVAL         /* forward only, breadth-first */
} cdp_pipe_kind;

typedef struct cdp_schedule cdp_schedule;

/* One of the built-in kinds; or text; or rows of the program's own. */
typedef struct cdp_schedule_desc {
    cdp_pipe_kind kind;
    uint32_t ranks;           /* p */
    uint32_t stages_per_rank; /* v (default: 1; ZBV, DUALPIPEV: 2) */
    uint32_t micros;          /* m */
    /* 1F1B: so many more forwards before the first backward, at most one for each rank behind;
       they hide the time of messages and keep more activations (default: none) */
    uint32_t ahead;
    /* In place of kind: text as PyTorch's schedules have it, a line for each rank, an action in
       each cell: "0F0,0F1,0B0", a pair "(4F3;2B1)OVERLAP_F_B". Empty cells are idle. Actions of
       communication (1UNSHARD, 3SEND_F1 and the like) are read over: they follow from the others.
       `ranks` and `micros`: what it must have (default: whatever it has). */
    const char *csv;
    /* In place of kind: rows[r][0 .. row_counts[r] - 1] are what rank r does in this order; read
       and copied. `ranks` is required. */
    const cdp_act *const *rows;
    const uint32_t *row_counts;
    /* With csv or rows: stage s lies on rank place[s], `stages` of them (default: where its first
       action is). The rows of a built-in kind follow the place that it has. */
    const uint32_t *place;
    uint32_t stages;
    const cdp_os *os; /* whose memory it lies in (default: cdp_os_default()) */
} cdp_schedule_desc;

/* What a schedule has. */
typedef struct cdp_schedule_info {
    uint32_t ranks, stages, micros;
    bool forward_only;
    bool split; /* there are rows I and W */
    uint64_t rows;
} cdp_schedule_info;

/* Make a schedule and prove that it ends: each stage lies on one rank and has each micro-batch
   once, forward and then backward (B, or I and then W); and no row waits for itself in the end,
   whatever the ranks' speeds. Local, no rank is asked. Errors: INVALID: the text names the first
   wrong row by rank, number (from 0) and action, or, for ranks that wait in a circle, the row at
   which each of them waits; NOMEM; UNSUPPORTED (sizes that the kind does not have, and which it
   has). */
CDP_MUST_CHECK CDP_API cdp_status cdp_schedule_create(
    const cdp_schedule_desc *desc, cdp_schedule **out);

/* NULL is allowed. */
CDP_API void cdp_schedule_destroy(cdp_schedule *schedule);

/* All zeros for NULL. */
CDP_API cdp_schedule_info cdp_schedule_info_of(const cdp_schedule *schedule);

/* How many rows a rank has; *acts (NULL is allowed) are these rows, the schedule's. 0: no such
   rank. */
CDP_API uint32_t cdp_schedule_rows(
    const cdp_schedule *schedule, uint32_t rank, const cdp_act **acts);

/* The rank on which a stage lies; UINT32_MAX: no such stage. */
CDP_API uint32_t cdp_schedule_rank_of(const cdp_schedule *schedule, uint32_t stage);

/* Most activations that a rank holds at one time, counted in stages x micro-batches: from F to B
   or W (forward only: 1, or 0 without a row). 0: no such rank. */
CDP_API uint32_t cdp_schedule_peak(const cdp_schedule *schedule, uint32_t rank);

/* What one stage costs for a micro-batch, in microseconds or any other unit. B takes i + w. */
typedef struct cdp_pipe_cost {
    double f_us, i_us, w_us;
    double pair_us;    /* an F of this stage overlapped with a backward (default: their sum) */
    double message_us; /* from when the stage has computed until another rank has its result */
} cdp_pipe_cost;

typedef struct cdp_pipe_preview {
    double step_us;     /* from the first row until the last one has ended */
    double work_us;     /* of the rank that computes most */
    double bubble_us;   /* step - work */
    double rank_us;     /* most time that a rank waits between its first row and its last one */
    double bubble;      /* bubble / work */
    uint32_t peak;      /* most activations that a rank holds, see cdp_schedule_peak() */
    uint32_t peak_rank; /* the first rank that holds so many */
    uint32_t messages;  /* of all ranks in a step */
    /* most messages for one rank that are sent and not yet used, at any speeds of the ranks */
    uint32_t slots;
} cdp_pipe_preview;

/* Run a schedule on paper: each rank does its rows in their order, each as soon as what it needs
   is there. each_stage[s]: what stage s costs. `early`: B hands on the gradient of its input
   before it computes those of the weights. Local. Errors: INVALID (NULL; a time that is negative
   or no number), NOMEM. */
CDP_MUST_CHECK CDP_API cdp_status cdp_schedule_preview(const cdp_schedule *schedule,
    const cdp_pipe_cost *each_stage, bool early, cdp_pipe_preview *out);

/* When rows run, in microseconds from the begin of the step: two arrays of the program, with an
   entry for each row of all ranks (.rows of cdp_schedule_info), those of rank 0 first. */
typedef struct cdp_pipe_times {
    double *start_us, *end_us;
} cdp_pipe_times;

/* Fill them with what cdp_schedule_preview() computes. Both rows of a pair have the same times.
   Local. Errors: as there. */
CDP_MUST_CHECK CDP_API cdp_status cdp_schedule_times(const cdp_schedule *schedule,
    const cdp_pipe_cost *each_stage, bool early, const cdp_pipe_times *out);

/* What a layer of a model costs for a micro-batch, in microseconds, and what it needs. */
typedef struct cdp_pipe_layer {
    double f_us, i_us, w_us; /* forward, backward of the input, of the weights */
    double message_us;       /* of its result to another rank, where a stage ends behind it */
    uint64_t weight_bytes;   /* always there: weights, gradients, state of the optimizer */
    uint64_t kept_bytes;     /* of a micro-batch, from forward to backward */
} cdp_pipe_layer;

typedef struct cdp_pipe_choice_desc {
    const cdp_pipe_layer *layers; /* in the order of forward */
    uint32_t layer_count;         /* at least one for each rank, at most 1024 */
    uint32_t ranks, micros;
    uint32_t most_stages_per_rank; /* (default: 4) */
    uint64_t memory_bytes;         /* of each rank (default: as much as needed) */
    bool whole;       /* the program has no backward in halves: no schedules with I and W */
    const cdp_os *os; /* whose memory it takes meanwhile (default: cdp_os_default()) */
} cdp_pipe_choice_desc;

typedef struct cdp_pipe_choice {
    cdp_schedule_desc schedule;
    uint32_t stages;
    double step_us;        /* as cdp_schedule_preview() has it */
    uint64_t memory_bytes; /* of the rank that needs most: weights, and what it keeps at its peak */
} cdp_pipe_choice;

/* Choose a built-in schedule, `ahead` of 1F1B included, and cut the layers into its stages, so that
   a step is short and memory suffices. For each schedule the cut whose longest stage is shortest
   (dynamic programming), then borders move by a layer while the step becomes shorter. Equally fast
   ones: that with less memory. cuts[s] .. cuts[s + 1] - 1 are the layers of stage s; costs[s] (NULL
   is allowed) what it costs, for the preview and its picture: ranks * most_stages_per_rank + 1
   entries each, the caller's. Local, and the same on all ranks. Errors: INVALID, NOMEM, UNSUPPORTED
   (numbers of layers; no schedule fits into memory_bytes: the text says how much the smallest one
   needs). */
CDP_MUST_CHECK CDP_API cdp_status cdp_schedule_choose(
    const cdp_pipe_choice_desc *desc, uint32_t *cuts, cdp_pipe_cost *costs, cdp_pipe_choice *out);

/* How messages travel, for cdp_schedule_deadlock(). */
typedef struct cdp_pipe_wire {
    bool blocking;    /* a rank stops at a send until its message is received or buffered */
    uint32_t ahead;   /* receives are posted so many rows early (default: at their use) */
    uint32_t buffers; /* so many messages from one rank to another may wait for their receives */
} cdp_pipe_wire;

/* Does a program that sends and receives like this end? CDP_OK: yes, at any speeds of the ranks.
   STATE: it does not; the text says at which row each rank waits. Sends that do not block always
   end. Other errors: INVALID (NULL), NOMEM. Local. */
CDP_MUST_CHECK CDP_API cdp_status cdp_schedule_deadlock(
    const cdp_schedule *schedule, const cdp_pipe_wire *wire);

/* What cdp_schedule_text() writes. */
typedef enum cdp_pipe_text {
    CDP_PIPE_CSV = 0, /* a line for each rank, as .csv of cdp_schedule_desc has it */
    /* with the sends, receives, unsharding, resharding and reductions that follow */
    CDP_PIPE_CSV_ALL
} cdp_pipe_text;

/* Writes at most `room` bytes, a zero at the end among them; `text` may be NULL. Returns the length
   of the whole text without the zero; 0 for NULL. */
CDP_API uint64_t cdp_schedule_text(
    const cdp_schedule *schedule, cdp_pipe_text what, char *text, uint64_t room);

/* How cdp_schedule_draw() writes. */
typedef enum cdp_pipe_picture {
    CDP_PIPE_PICTURE_TEXT = 0, /* ASCII, about 100 columns */
    CDP_PIPE_PICTURE_SVG       /* readable on dark and on light pages */
} cdp_pipe_picture;

/* Draw a step: for each rank a line of the schedule on paper, and below it one of the step as it
   ran, on the same scale. Then the longest times in which a rank waits, and for which action of
   which rank it does; in SVG each of them says so. `paper` (of cdp_schedule_times()) or `ran` (of
   cdp_pipeline_times()) may be NULL. Writes at most `room` bytes, a zero at the end among them;
   `text` may be NULL. Returns the length of the whole text without the zero; 0 for NULL, for times
   that are negative or no numbers, and out of memory. Local. */
CDP_API uint64_t cdp_schedule_draw(const cdp_schedule *schedule, const cdp_pipe_times *paper,
    const cdp_pipe_times *ran, cdp_pipe_picture format, char *text, uint64_t room);

/* ---- >>pipeline/driver_api: runs a schedule: callbacks compute, messages travel between stages  */

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

#ifdef __cplusplus
} /* extern "C" */
#endif
/* ---- >>pipeline/cxx_api: descs by reference in C++ ------------------------------------------- */

#ifdef __cplusplus
extern "C++" { /* also where a program includes the header in extern "C" */
inline cdp_status cdp_schedule_create(const cdp_schedule_desc &desc, cdp_schedule **out) {
    return cdp_schedule_create(&desc, out);
}
inline cdp_status cdp_pipeline_create(const cdp_pipeline_desc &desc, cdp_pipeline **out) {
    return cdp_pipeline_create(&desc, out);
}
inline cdp_status cdp_schedule_choose(
    const cdp_pipe_choice_desc &desc, uint32_t *cuts, cdp_pipe_cost *costs, cdp_pipe_choice *out) {
    return cdp_schedule_choose(&desc, cuts, costs, out);
}
inline cdp_status cdp_schedule_deadlock(const cdp_schedule *schedule, const cdp_pipe_wire &wire) {
    return cdp_schedule_deadlock(schedule, &wire);
}
} /* extern "C++" */
#endif

#endif /* CDP_PIPELINE_INCLUDED */

#if (defined(CDP_IMPLEMENTATION) || defined(CDP_PIPELINE_IMPLEMENTATION)) \
    && !defined(CDP_PIPELINE_IMPL_INCLUDED)
#define CDP_PIPELINE_IMPL_INCLUDED

/* ---- >>pipeline/table: rows of all ranks (pure) ---------------------------------------------- */

/* Knows: who needs what of whom. Promises: no row has more than one message to receive and one to
   send. */

#define CDP__PIPE_NONE UINT64_MAX

typedef struct cdp__pipe_table {
    uint32_t ranks, stages, micros;
    bool forward_only, split;
    uint32_t *place; /* of each stage */
    uint64_t *first; /* of each rank, and the number of all */
    cdp_act *acts;
} cdp__pipe_table;

/* A micro-batch of a stage, as an index. */
CDP__PRIVATE uint64_t cdp__pipe_cell(const cdp__pipe_table *t, uint32_t stage, uint32_t micro) {
    return (uint64_t)stage * t->micros + micro;
}
CDP__PRIVATE uint64_t cdp__pipe_cells(const cdp__pipe_table *t) {
    return (uint64_t)t->stages * t->micros;
}

/* Does it compute the gradient of the input? */
CDP__PRIVATE bool cdp__pipe_is_back(const cdp_act *a) {
    return a->kind == CDP_ACT_B || a->kind == CDP_ACT_I;
}

/* Are the gradients of the weights complete with it? */
CDP__PRIVATE bool cdp__pipe_is_last(const cdp_act *a) {
    return a->kind == CDP_ACT_B || a->kind == CDP_ACT_W;
}

/* The message of other ranks that a row needs: the cell of the row for what goes forward, behind
   all of these for a gradient. CDP__PIPE_NONE: none. */
CDP__PRIVATE uint64_t cdp__pipe_needs(const cdp__pipe_table *t, const cdp_act *a) {
    const uint32_t here = t->place[a->stage];
    if (a->kind == CDP_ACT_F && a->stage && t->place[a->stage - 1] != here)
        return cdp__pipe_cell(t, a->stage, a->micro);
    if (cdp__pipe_is_back(a) && a->stage + 1u < t->stages && t->place[a->stage + 1] != here)
        return cdp__pipe_cells(t) + cdp__pipe_cell(t, a->stage, a->micro);
    return CDP__PIPE_NONE;
}

/* The message that it sends, by the cell of its receiver. */
CDP__PRIVATE uint64_t cdp__pipe_gives(const cdp__pipe_table *t, const cdp_act *a) {
    const uint32_t here = t->place[a->stage];
    if (a->kind == CDP_ACT_F && a->stage + 1u < t->stages && t->place[a->stage + 1] != here)
        return cdp__pipe_cell(t, a->stage + 1u, a->micro);
    if (cdp__pipe_is_back(a) && a->stage && t->place[a->stage - 1] != here)
        return cdp__pipe_cells(t) + cdp__pipe_cell(t, a->stage - 1u, a->micro);
    return CDP__PIPE_NONE;
}

/* The rank that takes a message. */
CDP__PRIVATE uint32_t cdp__pipe_taker(const cdp__pipe_table *t, uint64_t message) {
    return t->place[message % cdp__pipe_cells(t) / t->micros];
}

/* How many rows run as one: 2 for a pair. */
CDP__PRIVATE uint32_t cdp__pipe_width(const cdp_act *a) {
    return a->pair ? 2 : 1;
}

CDP__PRIVATE char cdp__pipe_letter(uint32_t kind) {
    return kind <= CDP_ACT_W ? "?FBIW"[kind] : '?';
}

/* Writes "2F0": stage, kind, micro-batch. */
CDP__PRIVATE void cdp__pipe_add_act(cdp__text *t, const cdp_act *a) {
    cdp__text_add(t, "%u%c%u", (unsigned)a->stage, cdp__pipe_letter(a->kind), a->micro);
}

/* "rank 1, row 4 (2B0)" */
CDP__PRIVATE void cdp__pipe_add_row(
    cdp__text *why, const cdp__pipe_table *t, uint32_t rank, uint64_t row) {
    cdp__text_add(why, "rank %u, row %llu", rank, (unsigned long long)row);
    if (t->first[rank] + row < t->first[rank + 1]) {
        cdp__text_add(why, " (");
        cdp__pipe_add_act(why, &t->acts[t->first[rank] + row]);
        cdp__text_add(why, ")");
    }
}

/* ---- >>pipeline/kinds: the rows of built-in schedules (pure) --------------------------------- */

/* Knows: the rule of each kind. Promises: rows depend on sizes alone. */

/* The rows of one rank while they are made. */
typedef struct cdp__pipe_maker {
    uint32_t p, v, m, rank;
    uint32_t ahead;
    cdp_act *acts;
    uint64_t count;
    uint64_t later;                               /* rows before it have had their W */
    uint32_t forward[2], backward[2], weights[2]; /* the next micro-batch, of the kinds in a V */
} cdp__pipe_maker;

CDP__PRIVATE bool cdp__pipe_is_v(cdp_pipe_kind kind) {
    return kind == CDP_PIPE_ZBV || kind == CDP_PIPE_DUALPIPEV;
}

/* Up the ranks and down again, or always from the first rank on. */
CDP__PRIVATE uint32_t cdp__pipe_place(cdp_pipe_kind kind, uint32_t p, uint32_t stage) {
    return cdp__pipe_is_v(kind) && stage / p % 2 ? p - 1 - stage % p : stage % p;
}

/* At most so many rows for each micro-batch of a stage. */
CDP__PRIVATE uint32_t cdp__pipe_row_kinds(cdp_pipe_kind kind) {
    if (kind == CDP_PIPE_EVAL) return 1;
    return cdp__pipe_is_v(kind) || kind == CDP_PIPE_ZERO_BUBBLE ? 3 : 2;
}

CDP__PRIVATE void cdp__pipe_put(
    cdp__pipe_maker *k, cdp_act_kind kind, uint32_t stage, uint32_t micro) {
    cdp_act *a = &k->acts[k->count];
    if (micro >= k->m) return; /* ZBV is made for more of them than there may be */
    a->kind = (uint8_t)kind;
    a->pair = false;
    a->stage = (uint16_t)stage;
    a->micro = micro;
    ++k->count;
}

CDP__PRIVATE void cdp__pipe_make_gpipe(cdp__pipe_maker *k) {
    for (uint32_t i = 0; i < k->m; ++i)
        cdp__pipe_put(k, CDP_ACT_F, k->rank, i);
    for (uint32_t i = 0; i < k->m; ++i)
        cdp__pipe_put(k, CDP_ACT_B, k->rank, i);
}

CDP__PRIVATE void cdp__pipe_make_1f1b(cdp__pipe_maker *k) {
    const uint32_t behind = k->p - 1 - k->rank;
    const uint32_t most = behind + (k->ahead < behind ? k->ahead : behind);
    const uint32_t warm = k->m < most ? k->m : most;
    for (uint32_t i = 0; i < warm; ++i)
        cdp__pipe_put(k, CDP_ACT_F, k->rank, i);
    for (uint32_t i = 0; i < k->m; ++i) {
        if (warm + i < k->m) cdp__pipe_put(k, CDP_ACT_F, k->rank, warm + i);
        cdp__pipe_put(k, CDP_ACT_B, k->rank, i);
    }
}

/* How many micro-batches a stage takes before the next stage of the rank has its turn; 0: they
   cannot be dealt out. */
CDP__PRIVATE uint32_t cdp__pipe_turn(uint32_t p, uint32_t m) {
    const uint32_t rounds = m / p ? m / p : 1;
    return m % rounds ? 0 : m / rounds;
}

/* Number n of the forwards of this rank, or of its backwards. */
CDP__PRIVATE void cdp__pipe_put_nth(cdp__pipe_maker *k, cdp_act_kind kind, uint64_t n) {
    const uint64_t q = cdp__pipe_turn(k->p, k->m);
    const uint32_t up = (uint32_t)(n / q % k->v);
    const uint32_t nth = kind == CDP_ACT_F ? up : k->v - 1 - up;
    const uint32_t micro = (uint32_t)(n / (q * k->v) * q + n % q);
    cdp__pipe_put(k, kind, nth * k->p + k->rank, micro);
}

CDP__PRIVATE void cdp__pipe_make_interleaved(cdp__pipe_maker *k, uint32_t per_hop, bool split) {
    const uint64_t total = (uint64_t)k->m * k->v, q = cdp__pipe_turn(k->p, k->m);
    const uint64_t warm =
        cdp__min((k->v - 1) * q + (uint64_t)per_hop * (k->p - 1 - k->rank), total);
    uint64_t weights = 0;
    for (uint64_t n = 0; n < warm; ++n)
        cdp__pipe_put_nth(k, CDP_ACT_F, n);
    for (uint64_t n = 0; n < total; ++n) {
        if (warm + n < total) cdp__pipe_put_nth(k, CDP_ACT_F, warm + n);
        cdp__pipe_put_nth(k, split ? CDP_ACT_I : CDP_ACT_B, n);
        if (split && n >= k->rank) cdp__pipe_put_nth(k, CDP_ACT_W, weights++);
    }
    while (split && weights < total)
        cdp__pipe_put_nth(k, CDP_ACT_W, weights++);
}

CDP__PRIVATE void cdp__pipe_make_bfs(cdp__pipe_maker *k, bool forward_only) {
    for (uint32_t nth = 0; nth < k->v; ++nth)
        for (uint32_t i = 0; i < k->m; ++i)
            cdp__pipe_put(k, CDP_ACT_F, nth * k->p + k->rank, i);
    for (uint32_t nth = forward_only ? 0 : k->v; nth-- > 0;)
        for (uint32_t i = k->m; i-- > 0;)
            cdp__pipe_put(k, CDP_ACT_B, nth * k->p + k->rank, i);
}

/* ---- in a V: this rank has stage 0, on the way up, and stage 1, on the way down ---- */

CDP__PRIVATE uint32_t cdp__pipe_v_stage(const cdp__pipe_maker *k, uint32_t which) {
    return which ? 2 * k->p - 1 - k->rank : k->rank;
}

CDP__PRIVATE void cdp__pipe_v_put(cdp__pipe_maker *k, cdp_act_kind kind, uint32_t which) {
    uint32_t *next = kind == CDP_ACT_F ? &k->forward[which] : &k->backward[which];
    if (kind == CDP_ACT_W) next = &k->weights[which];
    cdp__pipe_put(k, kind, cdp__pipe_v_stage(k, which), (*next)++);
}

/* Forward, and both halves of backward, of a stage. */
CDP__PRIVATE void cdp__pipe_v_halves(cdp__pipe_maker *k, uint32_t which) {
    cdp__pipe_v_put(k, CDP_ACT_I, which);
    cdp__pipe_v_put(k, CDP_ACT_W, which);
}

CDP__PRIVATE void cdp__pipe_make_zbv(cdp__pipe_maker *k) {
    const uint32_t p = k->p, r = k->rank, n = k->m > 2 * p - 1 ? k->m : 2 * p - 1;
    for (uint32_t i = 0; i < 2 * (p - r) - 1; ++i)
        cdp__pipe_v_put(k, CDP_ACT_F, 0);
    for (uint32_t i = 0; i < r; ++i) {
        cdp__pipe_v_put(k, CDP_ACT_F, 1);
        cdp__pipe_v_put(k, CDP_ACT_F, 0);
    }
    for (uint32_t i = 0; i < p - r; ++i) {
        cdp__pipe_v_put(k, CDP_ACT_F, 1);
        cdp__pipe_v_halves(k, 1);
    }
    while (k->forward[1] < k->forward[0] || k->forward[0] < n) {
        if (k->forward[0] < n) cdp__pipe_v_put(k, CDP_ACT_F, 0);
        cdp__pipe_v_halves(k, 0);
        cdp__pipe_v_put(k, CDP_ACT_F, 1);
        cdp__pipe_v_halves(k, 1);
    }
    for (uint32_t i = 0; i < r; ++i) {
        cdp__pipe_v_put(k, CDP_ACT_I, 0);
        cdp__pipe_v_put(k, CDP_ACT_I, 1);
    }
    for (uint32_t i = 0; i < p - r; ++i)
        cdp__pipe_v_halves(k, 0);
    for (uint32_t which = 2; which-- > 0;)
        while (k->weights[which] < k->backward[which])
            cdp__pipe_v_put(k, CDP_ACT_W, which);
}

/* The W of the first I that has had none, if there is one. */
CDP__PRIVATE void cdp__pipe_v_weights(cdp__pipe_maker *k) {
    while (k->later < k->count && k->acts[k->later].kind != CDP_ACT_I)
        ++k->later;
    if (k->later == k->count) return;
    const cdp_act a = k->acts[k->later++];
    cdp__pipe_put(k, CDP_ACT_W, a.stage, a.micro);
}

CDP__PRIVATE void cdp__pipe_v_pair(cdp__pipe_maker *k, uint32_t forward, uint32_t backward) {
    cdp__pipe_v_put(k, CDP_ACT_F, forward);
    k->acts[k->count - 1].pair = true;
    cdp__pipe_v_put(k, CDP_ACT_B, backward);
}

/* DualPipeV's end: backwards of both stages, from the middle on in halves. */
CDP__PRIVATE void cdp__pipe_v_cool(cdp__pipe_maker *k) {
    const uint32_t r = k->rank, half = (r + 1) / 2;
    for (uint32_t i = 0; i < r + 1; ++i) {
        const bool first = r % 2 ? i >= half : i > half, second = i >= half;
        cdp__pipe_v_put(k, first ? CDP_ACT_I : CDP_ACT_B, 1);
        cdp__pipe_v_put(k, second ? CDP_ACT_I : CDP_ACT_B, 0);
    }
    for (uint32_t i = 0; i < k->p - r - 1; ++i) {
        cdp__pipe_v_weights(k);
        cdp__pipe_v_put(k, CDP_ACT_I, 0);
    }
    for (uint32_t i = 0; i < r + 1; ++i)
        cdp__pipe_v_weights(k);
}

CDP__PRIVATE void cdp__pipe_make_dualpipev(cdp__pipe_maker *k) {
    const uint32_t p = k->p, r = k->rank;
    for (uint32_t i = 0; i < 2 * (p - r - 1); ++i)
        cdp__pipe_v_put(k, CDP_ACT_F, 0);
    for (uint32_t i = 0; i < r + 1; ++i) {
        cdp__pipe_v_put(k, CDP_ACT_F, 0);
        cdp__pipe_v_put(k, CDP_ACT_F, 1);
    }
    for (uint32_t i = 0; i < p - r - 1; ++i) {
        cdp__pipe_v_put(k, CDP_ACT_I, 1);
        cdp__pipe_v_weights(k);
        cdp__pipe_v_put(k, CDP_ACT_F, 1);
    }
    for (uint32_t i = 0; i < k->m - 2 * p + r + 1; ++i) {
        if (i == 0 && r == p - 1) {
            cdp__pipe_v_put(k, CDP_ACT_F, 0);
            cdp__pipe_v_put(k, CDP_ACT_B, 1);
        } else {
            cdp__pipe_v_pair(k, 0, 1);
        }
        cdp__pipe_v_pair(k, 1, 0);
    }
    for (uint32_t i = 0; i < p - r - 1; ++i) {
        cdp__pipe_v_put(k, CDP_ACT_B, 1);
        cdp__pipe_v_pair(k, 1, 0);
    }
    cdp__pipe_v_cool(k);
}

/* Makes the rows of k->rank at k->acts, and counts them. */
CDP__PRIVATE void cdp__pipe_make(cdp__pipe_maker *k, cdp_pipe_kind kind) {
    switch (kind) {
    case CDP_PIPE_GPIPE: cdp__pipe_make_gpipe(k); break;
    case CDP_PIPE_INTERLEAVED: cdp__pipe_make_interleaved(k, 2, false); break;
    case CDP_PIPE_BFS: cdp__pipe_make_bfs(k, false); break;
    case CDP_PIPE_ZERO_BUBBLE: cdp__pipe_make_interleaved(k, 1, true); break;
    case CDP_PIPE_ZBV: cdp__pipe_make_zbv(k); break;
    case CDP_PIPE_DUALPIPEV: cdp__pipe_make_dualpipev(k); break;
    case CDP_PIPE_EVAL: cdp__pipe_make_bfs(k, true); break;
    default: cdp__pipe_make_1f1b(k); break;
    }
}

/* ---- >>pipeline/rules: is a table complete, and in an order that each rank can keep? (pure) -- */

/* Knows: the rows of a table. Promises: the first wrong row is named. */

/* `seen`: a byte for each cell, with bit k for kind k. */

CDP__PRIVATE bool cdp__pipe_has(uint8_t seen, uint32_t kind) {
    return seen >> kind & 1;
}

/* Does row a of a pair go with row b? */
CDP__PRIVATE bool cdp__pipe_pairs(const cdp_act *a, const cdp_act *b) {
    return (a->kind == CDP_ACT_F && cdp__pipe_is_back(b))
        || (cdp__pipe_is_back(a) && b->kind == CDP_ACT_F);
}

/* Is the row right after those before it? Marks what it does. */
CDP__PRIVATE const char *cdp__pipe_row_fault(
    const cdp__pipe_table *t, uint32_t rank, uint64_t row, uint8_t *seen) {
    const cdp_act *a = &t->acts[row];
    uint8_t *cell;
    if (a->kind < CDP_ACT_F || a->kind > CDP_ACT_W) return "this kind of action does not exist";
    if (a->stage >= t->stages) return "there is no such stage";
    if (a->micro >= t->micros) return "there is no such micro-batch";
    if (t->place[a->stage] != rank) return "the stage lies on another rank";
    cell = &seen[cdp__pipe_cell(t, a->stage, a->micro)];
    if (cdp__pipe_has(*cell, a->kind)) return "it is there twice";
    if (cdp__pipe_is_back(a) && !cdp__pipe_has(*cell, CDP_ACT_F))
        return "it comes before the forward of this stage and micro-batch";
    if (a->kind == CDP_ACT_W && !cdp__pipe_has(*cell, CDP_ACT_I))
        return "it comes before the I of this stage and micro-batch";
    if ((a->kind == CDP_ACT_B && cdp__pipe_has(*cell, CDP_ACT_I))
        || (a->kind == CDP_ACT_I && cdp__pipe_has(*cell, CDP_ACT_B)))
        return "a backward is B, or I and W, not both";
    if (a->pair && (row + 1 == t->first[rank + 1] || a[1].pair || !cdp__pipe_pairs(a, a + 1)))
        return "a pair is one F and one B or I";
    *cell = (uint8_t)(*cell | 1u << a->kind);
    return NULL;
}

/* What a micro-batch of a stage lacks; NULL: nothing. */
CDP__PRIVATE const char *cdp__pipe_lacks(uint8_t seen, bool forward_only) {
    if (!cdp__pipe_has(seen, CDP_ACT_F)) return "no forward";
    if (forward_only || cdp__pipe_has(seen, CDP_ACT_B)) return NULL;
    if (!cdp__pipe_has(seen, CDP_ACT_I)) return "a forward and no backward";
    return cdp__pipe_has(seen, CDP_ACT_W) ? NULL : "an I and no W";
}

CDP__PRIVATE bool cdp__pipe_complete(
    const cdp__pipe_table *t, const uint8_t *seen, cdp__text *why) {
    for (uint32_t s = 0; s < t->stages; ++s) {
        for (uint32_t i = 0; i < t->micros; ++i) {
            const char *const lacks =
                cdp__pipe_lacks(seen[cdp__pipe_cell(t, s, i)], t->forward_only);
            if (!lacks) continue;
            cdp__text_add(
                why, "rank %u: stage %u has %s of micro-batch %u", t->place[s], s, lacks, i);
            return false;
        }
    }
    return true;
}

/* Also finds out whether there are backwards, and halves of them. */
CDP__PRIVATE bool cdp__pipe_valid(cdp__pipe_table *t, uint8_t *seen, cdp__text *why) {
    t->forward_only = true;
    t->split = false;
    for (uint32_t r = 0; r < t->ranks; ++r) {
        for (uint64_t row = t->first[r]; row < t->first[r + 1]; ++row) {
            const char *const fault = cdp__pipe_row_fault(t, r, row, seen);
            if (fault) {
                cdp__pipe_add_row(why, t, r, row - t->first[r]);
                cdp__text_add(why, ": %s", fault);
                return false;
            }
            if (t->acts[row].kind != CDP_ACT_F) t->forward_only = false;
            if (t->acts[row].kind == CDP_ACT_I) t->split = true;
        }
    }
    return cdp__pipe_complete(t, seen, why);
}

/* Most activations of a rank at one time. */
CDP__PRIVATE uint32_t cdp__pipe_peak(const cdp__pipe_table *t, uint32_t rank) {
    uint32_t live = 0, top = 0;
    for (uint64_t row = t->first[rank]; row < t->first[rank + 1]; ++row) {
        if (t->acts[row].kind == CDP_ACT_F) ++live;
        if (live > top) top = live;
        if (cdp__pipe_is_last(&t->acts[row]) || t->forward_only) --live;
    }
    return top;
}

/* ---- >>pipeline/pace: when does each row run, and does each one run at all? (pure) ----------- */

/* Knows: a table that is complete. Promises: every walk ends, since each turn of its loop runs a
   row or ends it. */

/* ---- with times ---- */

typedef struct cdp__pipe_pace {
    const cdp__pipe_table *table;
    const cdp_pipe_cost *cost; /* of each stage; NULL: each row costs nothing */
    bool early;
    double *forward, *backward; /* of each cell: when its result is there; below 0: not yet */
    double *start, *end;        /* of each row; may be NULL */
    uint64_t *at;               /* of each rank: its next row */
    double *free;               /* and when it is free */
} cdp__pipe_pace;

CDP__PRIVATE double cdp__pipe_time(const cdp__pipe_pace *k, const cdp_act *a) {
    if (!k->cost) return 0;
    const cdp_pipe_cost *c = &k->cost[a->stage];
    if (a->kind == CDP_ACT_F) return c->f_us;
    if (a->kind == CDP_ACT_B) return c->i_us + c->w_us;
    return a->kind == CDP_ACT_I ? c->i_us : c->w_us;
}

/* What a row that may be a pair takes. */
CDP__PRIVATE double cdp__pipe_span(const cdp__pipe_pace *k, const cdp_act *a) {
    if (!a->pair) return cdp__pipe_time(k, a);
    const cdp_act *f = a->kind == CDP_ACT_F ? a : a + 1;
    const double given = k->cost ? k->cost[f->stage].pair_us : 0;
    return given > 0 ? given : cdp__pipe_time(k, a) + cdp__pipe_time(k, a + 1);
}

/* The time at which the result of a stage is on the rank of another one. */
CDP__PRIVATE double cdp__pipe_arrives(
    const cdp__pipe_pace *k, double done, uint32_t from, uint32_t to) {
    const bool apart = k->table->place[from] != k->table->place[to];
    return done < 0 || !apart || !k->cost ? done : done + k->cost[from].message_us;
}

/* When what the row needs is there; below 0: not known yet. `other`: the other row of its pair,
   which may give it. */
CDP__PRIVATE double cdp__pipe_ready(
    const cdp__pipe_pace *k, const cdp_act *a, const cdp_act *other) {
    const cdp__pipe_table *t = k->table;
    uint32_t stage = a->stage;
    bool forward = a->kind == CDP_ACT_F;
    if (a->kind == CDP_ACT_W || (forward && !stage)) return 0; /* its I came before on its rank */
    if (forward)
        --stage;
    else if (stage + 1u < t->stages)
        ++stage;
    else
        forward = true; /* the last stage goes back from its own forward */
    if (other && other->stage == stage && other->micro == a->micro
        && (other->kind == CDP_ACT_F) == forward)
        return 0;
    return cdp__pipe_arrives(k,
        (forward ? k->forward : k->backward)[cdp__pipe_cell(t, stage, a->micro)], stage, a->stage);
}

CDP__PRIVATE void cdp__pipe_ran(cdp__pipe_pace *k, const cdp_act *a, double begin, double end) {
    const uint64_t cell = cdp__pipe_cell(k->table, a->stage, a->micro);
    const uint64_t row = (uint64_t)(a - k->table->acts);
    if (a->kind == CDP_ACT_F) k->forward[cell] = end;
    if (cdp__pipe_is_back(a)) {
        const bool early = k->early && a->kind == CDP_ACT_B && k->cost;
        k->backward[cell] = early ? begin + k->cost[a->stage].i_us : end;
    }
    if (k->start) k->start[row] = begin;
    if (k->end) k->end[row] = end;
}

/* Runs the next row of a rank, or pair; false if what it needs is not there. */
CDP__PRIVATE bool cdp__pipe_tick(cdp__pipe_pace *k, uint32_t r) {
    const cdp__pipe_table *t = k->table;
    const cdp_act *a = &t->acts[k->at[r]];
    double begin = k->free[r];
    for (uint32_t i = 0; i < cdp__pipe_width(a); ++i) {
        const cdp_act *other = NULL;
        if (a->pair) other = i ? a : a + 1;
        const double ready = cdp__pipe_ready(k, a + i, other);
        if (ready < 0) return false;
        if (ready > begin) begin = ready;
    }
    k->free[r] = begin + cdp__pipe_span(k, a);
    for (uint32_t i = 0; i < cdp__pipe_width(a); ++i)
        cdp__pipe_ran(k, a + i, begin, k->free[r]);
    k->at[r] += cdp__pipe_width(a);
    return true;
}

/* Runs all rows; false: some of them wait in a circle, and k->at says which. */
CDP__PRIVATE bool cdp__pipe_run_rows(cdp__pipe_pace *k) {
    const cdp__pipe_table *t = k->table;
    bool moved = true, all = true;
    for (uint64_t c = 0; c < cdp__pipe_cells(t); ++c)
        k->forward[c] = k->backward[c] = -1;
    for (uint32_t r = 0; r < t->ranks; ++r) {
        k->at[r] = t->first[r];
        k->free[r] = 0;
    }
    while (moved) {
        moved = false;
        for (uint32_t r = 0; r < t->ranks; ++r)
            while (k->at[r] < t->first[r + 1] && cdp__pipe_tick(k, r))
                moved = true;
    }
    for (uint32_t r = 0; r < t->ranks; ++r)
        if (k->at[r] < t->first[r + 1]) all = false;
    return all;
}

/* ": rank 0, row 3 (1B0); rank 1, row 2 (0F1)": where each rank waits. */
CDP__PRIVATE void cdp__pipe_add_waits(
    cdp__text *why, const cdp__pipe_table *t, const uint64_t *at) {
    uint32_t n = 0, more = 0;
    for (uint32_t r = 0; r < t->ranks; ++r) {
        if (at[r] >= t->first[r + 1]) continue;
        if (n == 8) {
            ++more;
            continue;
        }
        cdp__text_add(why, n++ ? "; " : ": ");
        cdp__pipe_add_row(why, t, r, at[r] - t->first[r]);
    }
    if (more) cdp__text_add(why, "; and %u more", more);
}

/* ---- with messages ---- */

enum {
    CDP__PIPE_POSTED = 1,  /* the receiver waits for it */
    CDP__PIPE_SENT = 2,    /* and it was sent */
    CDP__PIPE_BUFFERED = 4 /* it left its sender */
};

typedef struct cdp__pipe_messages {
    const cdp__pipe_table *table;
    cdp_pipe_wire wire;
    uint8_t *state;     /* of each message */
    uint32_t *buffered; /* from rank to rank; NULL: none can be */
    uint64_t *at;       /* of each rank: its next row */
    uint64_t *posted;   /* of each rank: rows before it have posted their receives */
    bool *sent;         /* of each rank: its row has sent, and waits */
    bool moved;         /* something has changed since the last look at all ranks */
} cdp__pipe_messages;

CDP__PRIVATE uint32_t cdp__pipe_sender(const cdp__pipe_table *t, uint64_t message) {
    const uint64_t cells = cdp__pipe_cells(t);
    const uint32_t stage = (uint32_t)(message % cells / t->micros);
    return t->place[message < cells ? stage - 1 : stage + 1];
}

CDP__PRIVATE uint32_t *cdp__pipe_buffer(cdp__pipe_messages *k, uint64_t message) {
    return &k->buffered[(uint64_t)cdp__pipe_sender(k->table, message) * k->table->ranks
        + cdp__pipe_taker(k->table, message)];
}

/* Posts the receives of the row of a rank and of those `ahead` of it. */
CDP__PRIVATE void cdp__pipe_post(cdp__pipe_messages *k, uint32_t r) {
    const cdp__pipe_table *t = k->table;
    const uint64_t width = cdp__pipe_width(&t->acts[k->at[r]]);
    const uint64_t to = cdp__min(k->at[r] + width + k->wire.ahead, t->first[r + 1]);
    for (; k->posted[r] < to; ++k->posted[r]) {
        const uint64_t m = cdp__pipe_needs(t, &t->acts[k->posted[r]]);
        if (m == CDP__PIPE_NONE) continue;
        if (k->state[m] & CDP__PIPE_BUFFERED) --*cdp__pipe_buffer(k, m);
        k->state[m] |= CDP__PIPE_POSTED;
        k->moved = true;
    }
}

CDP__PRIVATE void cdp__pipe_send(cdp__pipe_messages *k, uint64_t m) {
    k->state[m] |= CDP__PIPE_SENT;
    if (k->state[m] & CDP__PIPE_POSTED || !k->buffered) return;
    uint32_t *const buffer = cdp__pipe_buffer(k, m);
    if (*buffer >= k->wire.buffers) return;
    k->state[m] |= CDP__PIPE_BUFFERED;
    ++*buffer;
}

/* Has the sender of a message done its part? */
CDP__PRIVATE bool cdp__pipe_left(const cdp__pipe_messages *k, uint64_t m) {
    return (k->state[m] & (CDP__PIPE_POSTED | CDP__PIPE_BUFFERED)) != 0;
}

/* The next step of a rank: false if it waits. */
CDP__PRIVATE bool cdp__pipe_messages_step(cdp__pipe_messages *k, uint32_t r) {
    const cdp__pipe_table *t = k->table;
    const cdp_act *a = &t->acts[k->at[r]];
    const uint32_t width = cdp__pipe_width(a);
    cdp__pipe_post(k, r);
    for (uint32_t i = 0; i < width && !k->sent[r]; ++i) {
        const uint64_t m = cdp__pipe_needs(t, a + i);
        if (m != CDP__PIPE_NONE && !(k->state[m] & CDP__PIPE_SENT)) return false;
    }
    for (uint32_t i = 0; i < width && !k->sent[r]; ++i) {
        const uint64_t m = cdp__pipe_gives(t, a + i);
        if (m == CDP__PIPE_NONE) continue;
        cdp__pipe_send(k, m);
        k->moved = true;
    }
    k->sent[r] = true;
    for (uint32_t i = 0; i < width && k->wire.blocking; ++i) {
        const uint64_t m = cdp__pipe_gives(t, a + i);
        if (m != CDP__PIPE_NONE && !cdp__pipe_left(k, m)) return false;
    }
    k->sent[r] = false;
    k->at[r] += width;
    return true;
}

/* False: ranks wait for each other. The memory of `k` is all zeros before. */
CDP__PRIVATE bool cdp__pipe_messages_end(cdp__pipe_messages *k) {
    const cdp__pipe_table *t = k->table;
    bool all = true;
    for (uint32_t r = 0; r < t->ranks; ++r)
        k->at[r] = k->posted[r] = t->first[r];
    for (k->moved = true; k->moved;) {
        k->moved = false;
        for (uint32_t r = 0; r < t->ranks; ++r)
            while (k->at[r] < t->first[r + 1] && cdp__pipe_messages_step(k, r))
                k->moved = true;
    }
    for (uint32_t r = 0; r < t->ranks; ++r)
        if (k->at[r] < t->first[r + 1]) all = false;
    return all;
}

/* One row of a rank, where messages are only counted; false if what it needs is not sent. */
CDP__PRIVATE bool cdp__pipe_count_step(
    const cdp__pipe_table *t, uint8_t *state, uint64_t *at, uint32_t watched, int64_t *waiting) {
    const cdp_act *a = &t->acts[*at];
    const uint32_t width = cdp__pipe_width(a);
    for (uint32_t i = 0; i < width; ++i) {
        const uint64_t m = cdp__pipe_needs(t, a + i);
        if (m != CDP__PIPE_NONE && !(state[m] & CDP__PIPE_SENT)) return false;
    }
    for (uint32_t i = 0; i < width; ++i) {
        const uint64_t needs = cdp__pipe_needs(t, a + i), gives = cdp__pipe_gives(t, a + i);
        if (needs != CDP__PIPE_NONE && cdp__pipe_taker(t, needs) == watched) --*waiting;
        if (gives == CDP__PIPE_NONE) continue;
        state[gives] |= CDP__PIPE_SENT;
        if (cdp__pipe_taker(t, gives) == watched) ++*waiting;
    }
    *at += width;
    return true;
}

/* Most messages that are sent to a rank and not yet used: it is stopped before each of its rows
   in turn while all others run on. `state` and `at` are all zeros before. */
CDP__PRIVATE uint32_t cdp__pipe_slots_of(
    const cdp__pipe_table *t, uint32_t watched, uint8_t *state, uint64_t *at) {
    int64_t waiting = 0, top = 0;
    for (uint32_t r = 0; r < t->ranks; ++r)
        at[r] = t->first[r];
    for (;;) {
        bool moved = true;
        while (moved) {
            moved = false;
            for (uint32_t r = 0; r < t->ranks; ++r)
                while (r != watched && at[r] < t->first[r + 1]
                    && cdp__pipe_count_step(t, state, &at[r], watched, &waiting))
                    moved = true;
        }
        if (waiting > top) top = waiting;
        if (at[watched] == t->first[watched + 1]) return (uint32_t)top;
        (void)cdp__pipe_count_step(t, state, &at[watched], watched, &waiting);
    }
}

/* ---- >>pipeline/csv: schedules as text, in the form of PyTorch's (pure) ---------------------- */

/* Knows: the words of actions. Promises: reading what was written gives the same rows; a word that
   it does not know is named with its line and cell. */

#include <string.h>

/* ---- reading ---- */

/* A cell of the text, without blanks around it. */
typedef struct cdp__pipe_cell_text {
    const char *at, *end;
} cdp__pipe_cell_text;

/* Takes the cell that begins at *at, and moves *at to the ',' or the end of the line behind it. */
CDP__PRIVATE cdp__pipe_cell_text cdp__pipe_next_cell(const char **at) {
    cdp__pipe_cell_text c;
    c.at = *at;
    while (**at && **at != ',' && **at != '\n')
        ++*at;
    c.end = *at;
    while (c.at < c.end && (*c.at == ' ' || *c.at == '\t'))
        ++c.at;
    while (c.at < c.end && (c.end[-1] == ' ' || c.end[-1] == '\t' || c.end[-1] == '\r'))
        --c.end;
    return c;
}

CDP__PRIVATE bool cdp__pipe_read_number(cdp__pipe_cell_text *c, uint32_t limit, uint32_t *out) {
    uint64_t value = 0;
    const char *const from = c->at;
    while (c->at < c->end && *c->at >= '0' && *c->at <= '9' && value <= limit)
        value = value * 10 + (uint64_t)(*c->at++ - '0');
    *out = (uint32_t)value;
    return c->at > from && value <= limit;
}

/* Words of communication; all but the first two have a micro-batch or none. */
CDP__PRIVATE bool cdp__pipe_is_communication(const cdp__pipe_cell_text *c) {
    static const char *const words[] = {"UNSHARD", "RESHARD", "SEND_F", "RECV_F", "SEND_B",
        "RECV_B", "WAIT_SEND_F", "WAIT_SEND_B", "REDUCE_GRAD", "WAIT_REDUCE_GRAD"};
    for (uint32_t i = 0; i < sizeof words / sizeof *words; ++i) {
        const size_t n = strlen(words[i]);
        cdp__pipe_cell_text rest = *c;
        uint32_t micro;
        if ((size_t)(c->end - c->at) < n || memcmp(c->at, words[i], n) != 0) continue;
        rest.at += n;
        if (rest.at == rest.end
            || (cdp__pipe_read_number(&rest, UINT32_MAX - 1, &micro) && rest.at == rest.end))
            return true;
    }
    return false;
}

/* Reads "2F0". Returns 1 for an action, 0 for one of communication, -1 for another word. */
CDP__PRIVATE int32_t cdp__pipe_read_act(cdp__pipe_cell_text *c, cdp_act *out) {
    uint32_t stage = 0, micro = 0, kind = CDP_ACT_F;
    if (!cdp__pipe_read_number(c, UINT16_MAX - 1u, &stage)) return -1;
    if (cdp__pipe_is_communication(c)) {
        c->at = c->end;
        return 0;
    }
    while (kind <= CDP_ACT_W && (c->at == c->end || *c->at != cdp__pipe_letter(kind)))
        ++kind;
    if (kind > CDP_ACT_W) return -1;
    ++c->at;
    if (!cdp__pipe_read_number(c, UINT32_MAX - 1, &micro)) return -1;
    out->kind = (uint8_t)kind;
    out->pair = false;
    out->stage = (uint16_t)stage;
    out->micro = micro;
    return 1;
}

/* Reads a cell into at most two rows; returns how many, or -1. */
CDP__PRIVATE int32_t cdp__pipe_read_cell(cdp__pipe_cell_text c, cdp_act *rows) {
    static const char end[] = ")OVERLAP_F_B";
    if (c.at == c.end) return 0;
    if (*c.at != '(') {
        const int32_t got = cdp__pipe_read_act(&c, rows);
        return c.at == c.end ? got : -1;
    }
    ++c.at;
    if (cdp__pipe_read_act(&c, &rows[0]) != 1 || c.at == c.end || *c.at++ != ';') return -1;
    if (cdp__pipe_read_act(&c, &rows[1]) != 1) return -1;
    if ((size_t)(c.end - c.at) != sizeof end - 1 || memcmp(c.at, end, sizeof end - 1) != 0)
        return -1;
    rows[0].pair = true;
    return 2;
}

/* What a text holds. */
typedef struct cdp__pipe_text_size {
    uint32_t ranks, stages, micros;
    uint64_t rows;
} cdp__pipe_text_size;

/* Counts what a text has; with `acts` it also fills them, and first[0 .. ranks]. False: *why names
   the word that is wrong. Lines without an action at the end of the text are no ranks. */
CDP__PRIVATE bool cdp__pipe_read_text(const char *text, cdp__pipe_text_size *size, cdp_act *acts,
    uint64_t *first, uint32_t ranks, cdp__text *why) {
    uint32_t line = 0, cell = 0;
    memset(size, 0, sizeof *size);
    for (const char *at = text;; ++at) {
        const cdp__pipe_cell_text c = cdp__pipe_next_cell(&at);
        cdp_act rows[2];
        const int32_t n = cdp__pipe_read_cell(c, rows);
        ++cell;
        if (n < 0) {
            cdp__text_add(why, "line %u, cell %u: \"", line + 1, cell);
            cdp__text_bytes(why, c.at, cdp__min((uint64_t)(c.end - c.at), 40));
            cdp__text_add(why,
                "\" is no action; actions look like 2F0, 2B0, 2I0, 2W0, or "
                "(2F1;3B0)OVERLAP_F_B");
            return false;
        }
        for (int32_t i = 0; i < n; ++i, ++size->rows) {
            if (acts) acts[size->rows] = rows[i];
            size->stages = (uint32_t)cdp__max(size->stages, rows[i].stage + 1u);
            size->micros = (uint32_t)cdp__max(size->micros, (uint64_t)rows[i].micro + 1);
        }
        if (n) size->ranks = line + 1;
        if (acts && line < ranks) first[line + 1] = size->rows;
        if (!*at) return true;
        if (*at == ',') continue;
        ++line;
        cell = 0;
    }
}

/* ---- writing ---- */

CDP__PRIVATE void cdp__pipe_add_word(cdp__text *t, bool *later, uint32_t stage, const char *word) {
    cdp__text_add(t, *later ? ",%u%s" : "%u%s", stage, word);
    *later = true;
}

/* Is the row the first of its stage that needs weights, or the last one? */
CDP__PRIVATE bool cdp__pipe_edge_row(
    const cdp__pipe_table *t, uint32_t rank, uint64_t row, bool last) {
    const uint64_t from = last ? row + 1 : t->first[rank];
    const uint64_t to = last ? t->first[rank + 1] : row;
    for (uint64_t i = from; i < to; ++i)
        if (t->acts[i].stage == t->acts[row].stage) return false;
    return true;
}

CDP__PRIVATE void cdp__pipe_add_before(
    cdp__text *text, const cdp__pipe_table *t, uint32_t rank, uint64_t row, bool *later) {
    const cdp_act *a = &t->acts[row];
    if (cdp__pipe_edge_row(t, rank, row, false))
        cdp__pipe_add_word(text, later, a->stage, "UNSHARD");
    if (cdp__pipe_needs(t, a) == CDP__PIPE_NONE) return;
    cdp__pipe_add_word(text, later, a->stage, a->kind == CDP_ACT_F ? "RECV_F" : "RECV_B");
    cdp__text_add(text, "%u", a->micro);
}

CDP__PRIVATE void cdp__pipe_add_after(
    cdp__text *text, const cdp__pipe_table *t, uint32_t rank, uint64_t row, bool *later) {
    const cdp_act *a = &t->acts[row];
    if (cdp__pipe_gives(t, a) != CDP__PIPE_NONE) {
        cdp__pipe_add_word(text, later, a->stage, a->kind == CDP_ACT_F ? "SEND_F" : "SEND_B");
        cdp__text_add(text, "%u", a->micro);
    }
    if (!cdp__pipe_edge_row(t, rank, row, true)) return;
    cdp__pipe_add_word(text, later, a->stage, "RESHARD");
    if (!t->forward_only) cdp__pipe_add_word(text, later, a->stage, "REDUCE_GRAD");
}

/* Writes the rows of a rank from `row` on that run as one; returns how many. */
CDP__PRIVATE uint32_t cdp__pipe_add_step(cdp__text *text, const cdp_act *a, bool *later) {
    if (*later) cdp__text_char(text, ',');
    *later = true;
    if (!a->pair) {
        cdp__pipe_add_act(text, a);
        return 1;
    }
    cdp__text_char(text, '(');
    cdp__pipe_add_act(text, a);
    cdp__text_char(text, ';');
    cdp__pipe_add_act(text, a + 1);
    cdp__text_add(text, ")OVERLAP_F_B");
    return 2;
}

CDP__PRIVATE void cdp__pipe_write_text(cdp__text *text, const cdp__pipe_table *t, bool all) {
    for (uint32_t r = 0; r < t->ranks; ++r) {
        bool later = false;
        for (uint64_t row = t->first[r]; row < t->first[r + 1];) {
            const uint32_t width = cdp__pipe_width(&t->acts[row]);
            for (uint32_t i = 0; all && i < width; ++i)
                cdp__pipe_add_before(text, t, r, row + i, &later);
            (void)cdp__pipe_add_step(text, &t->acts[row], &later);
            for (uint32_t i = 0; all && i < width; ++i)
                cdp__pipe_add_after(text, t, r, row + i, &later);
            row += width;
        }
        cdp__text_char(text, '\n');
    }
    (void)cdp__text_end(text);
}

/* ---- >>pipeline/schedule: schedules: made, proved and shown ---------------------------------- */

/* Knows: descs and memory. Promises: a schedule that exists is complete and ends. */

#include <string.h>

#define CDP__PIPE_ROWS 0x40000000u /* most rows of a schedule */

struct cdp_schedule {
    const cdp_os *os;
    cdp__pipe_table table;
};

/* Zeroed memory. */
CDP__PRIVATE void *cdp__pipe_alloc(const cdp_os *os, uint64_t bytes) {
    void *const p = os->alloc(os->user, bytes ? bytes : 1);
    if (p) memset(p, 0, (size_t)bytes);
    return p;
}
CDP__PRIVATE void cdp__pipe_free(const cdp_os *os, void *p) {
    if (p) os->release(os->user, p);
}

CDP__PRIVATE CDP__COLD cdp_status cdp__pipe_nomem(const char *call, uint64_t bytes) {
    return cdp_error_set(
        CDP_ERR_NOMEM, -1, 0, "%s: out of memory: %llu bytes", call, (unsigned long long)bytes);
}

CDP__PRIVATE CDP__COLD cdp_status cdp__pipe_missing(const char *call, const char *what) {
    return cdp_error_set(CDP_ERR_INVALID, -1, 0, CDP__MISSING, call, what);
}

/* ---- making one ---- */

CDP__PRIVATE CDP__COLD cdp_status cdp__pipe_invalid(const char *why) {
    return cdp_error_set(CDP_ERR_INVALID, -1, 0, "cdp_schedule_create: %s", why);
}

CDP__PRIVATE cdp_status cdp__pipe_room(cdp_schedule *s, uint64_t rows) {
    cdp__pipe_table *t = &s->table;
    const uint64_t bytes = rows * sizeof *t->acts;
    t->first = (uint64_t *)cdp__pipe_alloc(s->os, (t->ranks + 1ull) * sizeof *t->first);
    t->place = (uint32_t *)cdp__pipe_alloc(s->os, (uint64_t)t->stages * sizeof *t->place);
    t->acts = (cdp_act *)cdp__pipe_alloc(s->os, bytes);
    if (t->first && t->place && t->acts) return CDP_OK;
    return cdp__pipe_nomem("cdp_schedule_create", bytes);
}

/* The sizes that a kind asks for. */
CDP__PRIVATE cdp_status cdp__pipe_fits(const cdp_schedule_desc *d, uint32_t v) {
    const uint32_t p = d->ranks, m = d->micros;
    const char *needs = NULL;
    if ((uint32_t)d->kind > (uint32_t)CDP_PIPE_EVAL)
        return cdp__pipe_invalid("desc.kind is none of cdp_pipe_kind");
    if (!p || !m) return cdp__pipe_invalid("desc.ranks and desc.micros must be at least 1");
    if ((uint64_t)p * v > UINT16_MAX || (uint64_t)p * v * m > CDP__PIPE_ROWS / 3)
        return cdp_error_set(CDP_ERR_UNSUPPORTED, -1, 0,
            "cdp_schedule_create: %u ranks x %u stages x %u micro-batches; at most 65535 stages, "
            "and %u micro-batches of stages",
            p, v, m, CDP__PIPE_ROWS / 3);
    if (d->kind <= CDP_PIPE_GPIPE && v != 1)
        needs = "1F1B and GPipe have one stage on each rank: take INTERLEAVED or BFS";
    if (cdp__pipe_is_v(d->kind) && v != 2) needs = "ZBV and DualPipeV have 2 stages on each rank";
    if (d->kind == CDP_PIPE_DUALPIPEV && m < 2 * p)
        needs = "DualPipeV needs at least 2 micro-batches for each rank";
    if ((d->kind == CDP_PIPE_INTERLEAVED || d->kind == CDP_PIPE_ZERO_BUBBLE)
        && !cdp__pipe_turn(p, m))
        needs = "interleaved schedules need a multiple of micro-batches / ranks, rounded down";
    if (!needs) return CDP_OK;
    return cdp_error_set(CDP_ERR_UNSUPPORTED, -1, 0,
        "cdp_schedule_create: %s (ranks %u, stages_per_rank %u, micros %u)", needs, p, v, m);
}

CDP__PRIVATE cdp_status cdp__pipe_built_in(cdp_schedule *s, const cdp_schedule_desc *d) {
    const uint32_t v = cdp__def(d->stages_per_rank, cdp__pipe_is_v(d->kind) ? 2u : 1u);
    cdp__pipe_table *t = &s->table;
    cdp__pipe_maker k;
    cdp_status st = cdp__pipe_fits(d, v);
    if (st != CDP_OK) return st;
    t->ranks = d->ranks;
    t->stages = d->ranks * v;
    t->micros = d->micros;
    st = cdp__pipe_room(s, cdp__pipe_cells(t) * cdp__pipe_row_kinds(d->kind));
    if (st != CDP_OK) return st;
    for (uint32_t i = 0; i < t->stages; ++i)
        t->place[i] = cdp__pipe_place(d->kind, d->ranks, i);
    for (uint32_t r = 0; r < t->ranks; ++r) {
        memset(&k, 0, sizeof k);
        k.p = d->ranks;
        k.v = v;
        k.m = d->micros;
        k.ahead = d->ahead;
        k.rank = r;
        k.acts = t->acts + t->first[r];
        cdp__pipe_make(&k, d->kind);
        t->first[r + 1] = t->first[r] + k.count;
    }
    return CDP_OK;
}

/* A stage lies where its first action is, or where the desc says. */
CDP__PRIVATE cdp_status cdp__pipe_find_places(cdp__pipe_table *t, const cdp_schedule_desc *d) {
    for (uint32_t i = 0; i < t->stages; ++i) {
        t->place[i] = d->place && i < d->stages ? d->place[i] : UINT32_MAX;
        if (d->place && (i >= d->stages || t->place[i] >= t->ranks))
            return cdp_error_set(CDP_ERR_INVALID, -1, 0,
                "cdp_schedule_create: desc.place has no rank for stage %u", i);
    }
    for (uint32_t r = 0; r < t->ranks; ++r)
        for (uint64_t i = t->first[r]; i < t->first[r + 1] && !d->place; ++i)
            if (t->place[t->acts[i].stage] == UINT32_MAX) t->place[t->acts[i].stage] = r;
    for (uint32_t i = 0; i < t->stages; ++i)
        if (t->place[i] == UINT32_MAX)
            return cdp_error_set(CDP_ERR_INVALID, -1, 0,
                "cdp_schedule_create: no rank has an action of stage %u of %u", i, t->stages);
    return CDP_OK;
}

/* Takes the sizes of rows of one's own. Nothing as large as the sizes is allocated unless so many
   rows are there. */
CDP__PRIVATE cdp_status cdp__pipe_take_sizes(
    cdp_schedule *s, const cdp_schedule_desc *d, const cdp__pipe_text_size *size) {
    cdp__pipe_table *t = &s->table;
    t->ranks = (uint32_t)cdp__max(size->ranks, d->ranks);
    t->stages = (uint32_t)cdp__max(size->stages, d->place ? d->stages : 0);
    t->micros = (uint32_t)cdp__max(size->micros, d->micros);
    if ((d->ranks && size->ranks > d->ranks) || (d->micros && size->micros > d->micros))
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_schedule_create: the rows are of %u ranks and %u micro-batches, desc.ranks is %u "
            "and desc.micros %u",
            size->ranks, size->micros, d->ranks, d->micros);
    if (!size->rows) return cdp__pipe_invalid("there is no action");
    if (size->rows > CDP__PIPE_ROWS || t->ranks > UINT16_MAX)
        return cdp_error_set(CDP_ERR_UNSUPPORTED, -1, 0,
            "cdp_schedule_create: %llu rows of %u ranks; at most %u of 65535",
            (unsigned long long)size->rows, t->ranks, CDP__PIPE_ROWS);
    if (cdp__pipe_cells(t) > size->rows)
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_schedule_create: actions are missing: %llu rows for %u stages and %u "
            "micro-batches",
            (unsigned long long)size->rows, t->stages, t->micros);
    return cdp__pipe_room(s, size->rows);
}

CDP__PRIVATE cdp_status cdp__pipe_from_text(
    cdp_schedule *s, const cdp_schedule_desc *d, cdp__text *why) {
    cdp__pipe_text_size size;
    cdp__pipe_table *t = &s->table;
    if (!cdp__pipe_read_text(d->csv, &size, NULL, NULL, 0, why)) return cdp__pipe_invalid(why->at);
    const cdp_status st = cdp__pipe_take_sizes(s, d, &size);
    if (st != CDP_OK) return st;
    (void)cdp__pipe_read_text(d->csv, &size, t->acts, t->first, t->ranks, why);
    for (uint32_t r = size.ranks; r < t->ranks; ++r)
        t->first[r + 1] = size.rows;
    return cdp__pipe_find_places(t, d);
}

CDP__PRIVATE cdp_status cdp__pipe_from_rows(cdp_schedule *s, const cdp_schedule_desc *d) {
    cdp__pipe_table *t = &s->table;
    cdp__pipe_text_size size;
    memset(&size, 0, sizeof size);
    size.ranks = d->ranks;
    if (!d->ranks || !d->row_counts)
        return cdp__pipe_invalid("desc.rows needs desc.ranks and desc.row_counts");
    for (uint32_t r = 0; r < d->ranks; ++r) {
        if (d->row_counts[r] && !d->rows[r])
            return cdp_error_set(
                CDP_ERR_INVALID, -1, 0, "cdp_schedule_create: desc.rows[%u] is NULL", r);
        for (uint32_t i = 0; i < d->row_counts[r]; ++i, ++size.rows) {
            size.stages = (uint32_t)cdp__max(size.stages, d->rows[r][i].stage + 1u);
            size.micros = (uint32_t)cdp__max(size.micros,
                d->rows[r][i].micro == UINT32_MAX ? UINT32_MAX : d->rows[r][i].micro + 1u);
        }
    }
    const cdp_status st = cdp__pipe_take_sizes(s, d, &size);
    if (st != CDP_OK) return st;
    for (uint32_t r = 0; r < d->ranks; ++r) {
        t->first[r + 1] = t->first[r] + d->row_counts[r];
        if (d->row_counts[r])
            memcpy(t->acts + t->first[r], d->rows[r], d->row_counts[r] * sizeof *t->acts);
    }
    return cdp__pipe_find_places(t, d);
}

/* ---- proving it ---- */

/* Memory of a walk over a table, in one piece. */
typedef struct cdp__pipe_walk {
    void *memory;
    double *forward, *backward, *start, *end, *free;
    uint64_t *at, *posted;
    uint8_t *state;
    bool *sent;
} cdp__pipe_walk;

CDP__PRIVATE cdp_status cdp__pipe_walk_open(
    const cdp_schedule *s, const char *call, cdp__pipe_walk *w) {
    const cdp__pipe_table *t = &s->table;
    const uint64_t cells = cdp__pipe_cells(t), rows = t->first[t->ranks], p = t->ranks;
    const uint64_t bytes = (2 * cells + 2 * rows + p) * sizeof(double) + 2 * p * sizeof(uint64_t)
        + 2 * cells + p * sizeof(bool);
    memset(w, 0, sizeof *w);
    w->memory = cdp__pipe_alloc(s->os, bytes);
    if (!w->memory) return cdp__pipe_nomem(call, bytes);
    w->forward = (double *)w->memory;
    w->backward = w->forward + cells;
    w->start = w->backward + cells;
    w->end = w->start + rows;
    w->free = w->end + rows;
    w->at = (uint64_t *)(void *)(w->free + p);
    w->posted = w->at + p;
    w->state = (uint8_t *)(void *)(w->posted + p);
    w->sent = (bool *)(void *)(w->state + 2 * cells);
    return CDP_OK;
}

CDP__PRIVATE cdp__pipe_pace cdp__pipe_pace_of(const cdp_schedule *s, const cdp__pipe_walk *w) {
    cdp__pipe_pace k;
    memset(&k, 0, sizeof k);
    k.table = &s->table;
    k.forward = w->forward;
    k.backward = w->backward;
    k.start = w->start;
    k.end = w->end;
    k.free = w->free;
    k.at = w->at;
    return k;
}

CDP__PRIVATE cdp_status cdp__pipe_prove(cdp_schedule *s, cdp__text *why) {
    cdp__pipe_walk w;
    cdp_status st = cdp__pipe_walk_open(s, "cdp_schedule_create", &w);
    if (st != CDP_OK) return st;
    if (!cdp__pipe_valid(&s->table, w.state, why)) {
        st = cdp__pipe_invalid(why->at);
    } else {
        cdp__pipe_pace k = cdp__pipe_pace_of(s, &w);
        if (!cdp__pipe_run_rows(&k)) {
            cdp__text_add(why, "ranks wait for each other");
            cdp__pipe_add_waits(why, &s->table, k.at);
            st = cdp__pipe_invalid(why->at);
        }
    }
    cdp__pipe_free(s->os, w.memory);
    return st;
}

CDP__PRIVATE bool cdp__pipe_has_schedule(const cdp_schedule *s) {
    return s && !cdp__ended(s);
}

/* Refuses no schedule, and one that was destroyed. */
CDP__PRIVATE cdp_status cdp__pipe_schedule_lives(
    const cdp_schedule *s, const char *call, const char *argument) {
    if (!s) return cdp__pipe_missing(call, argument);
    if (!cdp__ended(s)) return CDP_OK;
    return cdp_error_set(CDP_ERR_STATE, -1, 0, "%s: this schedule was destroyed", call);
}

CDP_API void cdp_schedule_destroy(cdp_schedule *schedule) {
    if (!schedule || cdp__ended(schedule)) return;
    cdp__ended_add(schedule);
    const cdp_os *os = schedule->os;
    cdp__pipe_free(os, schedule->table.first);
    cdp__pipe_free(os, schedule->table.place);
    cdp__pipe_free(os, schedule->table.acts);
    cdp__pipe_free(os, schedule);
}

CDP_API cdp_status cdp_schedule_create(const cdp_schedule_desc *desc, cdp_schedule **out) {
    char room[600];
    cdp__text why = cdp__text_of(room, sizeof room);
    cdp_status st;
    if (out) *out = NULL;
    if (!desc || !out) return cdp__pipe_missing("cdp_schedule_create", desc ? "out" : "desc");
    if (cdp__os_whole(desc->os, "cdp_schedule_create") != CDP_OK) return CDP_ERR_INVALID;
    const cdp_os *os = desc->os ? desc->os : cdp_os_default();
    if (!os) return cdp__pipe_missing("cdp_schedule_create", "desc.os");
    cdp_schedule *s = (cdp_schedule *)cdp__pipe_alloc(os, sizeof *s);
    if (!s) return cdp__pipe_nomem("cdp_schedule_create", sizeof *s);
    cdp__ended_remove(s);
    s->os = os;
    if (desc->csv)
        st = cdp__pipe_from_text(s, desc, &why);
    else
        st = desc->rows ? cdp__pipe_from_rows(s, desc) : cdp__pipe_built_in(s, desc);
    if (st == CDP_OK) st = cdp__pipe_prove(s, &why);
    if (st == CDP_OK)
        *out = s;
    else
        cdp_schedule_destroy(s);
    return st;
}

/* ---- what it says ---- */

CDP_API cdp_schedule_info cdp_schedule_info_of(const cdp_schedule *schedule) {
    cdp_schedule_info i;
    memset(&i, 0, sizeof i);
    if (!cdp__pipe_has_schedule(schedule)) return i;
    i.ranks = schedule->table.ranks;
    i.stages = schedule->table.stages;
    i.micros = schedule->table.micros;
    i.forward_only = schedule->table.forward_only;
    i.split = schedule->table.split;
    i.rows = schedule->table.first[i.ranks];
    return i;
}

CDP_API uint32_t cdp_schedule_rows(
    const cdp_schedule *schedule, uint32_t rank, const cdp_act **acts) {
    if (acts) *acts = NULL;
    if (!cdp__pipe_has_schedule(schedule) || rank >= schedule->table.ranks) return 0;
    const cdp__pipe_table *t = &schedule->table;
    if (acts) *acts = t->acts + t->first[rank];
    return (uint32_t)(t->first[rank + 1] - t->first[rank]);
}

CDP_API uint32_t cdp_schedule_rank_of(const cdp_schedule *schedule, uint32_t stage) {
    if (!cdp__pipe_has_schedule(schedule) || stage >= schedule->table.stages) return UINT32_MAX;
    return schedule->table.place[stage];
}

CDP_API uint32_t cdp_schedule_peak(const cdp_schedule *schedule, uint32_t rank) {
    if (!cdp__pipe_has_schedule(schedule) || rank >= schedule->table.ranks) return 0;
    return cdp__pipe_peak(&schedule->table, rank);
}

CDP_API uint64_t cdp_schedule_text(
    const cdp_schedule *schedule, cdp_pipe_text what, char *text, uint64_t room) {
    cdp__text t = cdp__text_of(text, room);
    if (cdp__pipe_has_schedule(schedule))
        cdp__pipe_write_text(&t, &schedule->table, what == CDP_PIPE_CSV_ALL);
    return cdp__text_end(&t);
}

/* ---- on paper ---- */

CDP__PRIVATE void cdp__pipe_rank_times(const cdp__pipe_pace *k, uint32_t r, cdp_pipe_preview *out) {
    const cdp__pipe_table *t = k->table;
    double work = 0;
    if (t->first[r] == t->first[r + 1]) return;
    for (uint64_t i = t->first[r]; i < t->first[r + 1]; i += cdp__pipe_width(&t->acts[i]))
        work += cdp__pipe_span(k, &t->acts[i]);
    const double last = k->end[t->first[r + 1] - 1];
    const double waits = last - k->start[t->first[r]] - work;
    if (work > out->work_us) out->work_us = work;
    if (last > out->step_us) out->step_us = last;
    if (waits > out->rank_us) out->rank_us = waits;
}

CDP__PRIVATE void cdp__pipe_count_messages(
    const cdp_schedule *s, cdp__pipe_walk *w, cdp_pipe_preview *out) {
    const cdp__pipe_table *t = &s->table;
    for (uint64_t i = 0; i < t->first[t->ranks]; ++i)
        if (cdp__pipe_gives(t, &t->acts[i]) != CDP__PIPE_NONE) ++out->messages;
    for (uint32_t r = 0; r < t->ranks; ++r) {
        const uint32_t peak = cdp__pipe_peak(t, r);
        if (peak > out->peak) {
            out->peak = peak;
            out->peak_rank = r;
        }
        memset(w->state, 0, (size_t)(2 * cdp__pipe_cells(t)));
        const uint32_t slots = cdp__pipe_slots_of(t, r, w->state, w->at);
        if (slots > out->slots) out->slots = slots;
    }
}

/* Is it a time? */
CDP__PRIVATE bool cdp__pipe_is_time(double us) {
    return us >= 0 && us < 1e300;
}

CDP__PRIVATE cdp_status cdp__pipe_check_costs(
    const char *call, const cdp_schedule *schedule, const cdp_pipe_cost *each_stage) {
    for (uint32_t s = 0; s < schedule->table.stages; ++s) {
        const cdp_pipe_cost *c = &each_stage[s];
        if (!cdp__pipe_is_time(c->f_us) || !cdp__pipe_is_time(c->i_us)
            || !cdp__pipe_is_time(c->w_us) || !cdp__pipe_is_time(c->pair_us)
            || !cdp__pipe_is_time(c->message_us))
            return cdp_error_set(CDP_ERR_INVALID, -1, 0,
                "%s: each_stage[%u] has a time that is negative or no number", call, s);
    }
    return CDP_OK;
}

CDP_API cdp_status cdp_schedule_preview(const cdp_schedule *schedule,
    const cdp_pipe_cost *each_stage, bool early, cdp_pipe_preview *out) {
    cdp__pipe_walk w;
    if (out) memset(out, 0, sizeof *out);
    cdp_status st = cdp__pipe_schedule_lives(schedule, "cdp_schedule_preview", "schedule");
    if (st == CDP_OK && (!each_stage || !out))
        st = cdp__pipe_missing("cdp_schedule_preview", out ? "each_stage" : "out");
    if (st == CDP_OK) st = cdp__pipe_check_costs("cdp_schedule_preview", schedule, each_stage);
    if (st == CDP_OK) st = cdp__pipe_walk_open(schedule, "cdp_schedule_preview", &w);
    if (st != CDP_OK) return st;
    cdp__pipe_pace k = cdp__pipe_pace_of(schedule, &w);
    k.cost = each_stage;
    k.early = early;
    (void)cdp__pipe_run_rows(&k);
    for (uint32_t r = 0; r < schedule->table.ranks; ++r)
        cdp__pipe_rank_times(&k, r, out);
    out->bubble_us = out->step_us - out->work_us;
    out->bubble = out->work_us > 0 ? out->bubble_us / out->work_us : 0;
    cdp__pipe_count_messages(schedule, &w, out);
    cdp__pipe_free(schedule->os, w.memory);
    return CDP_OK;
}

CDP_API cdp_status cdp_schedule_times(const cdp_schedule *schedule, const cdp_pipe_cost *each_stage,
    bool early, const cdp_pipe_times *out) {
    cdp__pipe_walk w;
    cdp_status st = cdp__pipe_schedule_lives(schedule, "cdp_schedule_times", "schedule");
    if (st != CDP_OK) return st;
    if (!each_stage || !out)
        return cdp__pipe_missing("cdp_schedule_times", out ? "each_stage" : "out");
    if (!out->start_us || !out->end_us)
        return cdp__pipe_missing(
            "cdp_schedule_times", out->start_us ? "out->end_us" : "out->start_us");
    st = cdp__pipe_check_costs("cdp_schedule_times", schedule, each_stage);
    if (st == CDP_OK) st = cdp__pipe_walk_open(schedule, "cdp_schedule_times", &w);
    if (st != CDP_OK) return st;
    cdp__pipe_pace k = cdp__pipe_pace_of(schedule, &w);
    k.cost = each_stage;
    k.early = early;
    k.start = out->start_us;
    k.end = out->end_us;
    (void)cdp__pipe_run_rows(&k);
    cdp__pipe_free(schedule->os, w.memory);
    return CDP_OK;
}

CDP_API cdp_status cdp_schedule_deadlock(const cdp_schedule *schedule, const cdp_pipe_wire *wire) {
    char room[600];
    cdp__text why = cdp__text_of(room, sizeof room);
    cdp__pipe_walk w;
    cdp__pipe_messages k;
    cdp_status st = cdp__pipe_schedule_lives(schedule, "cdp_schedule_deadlock", "schedule");
    if (st == CDP_OK && !wire) st = cdp__pipe_missing("cdp_schedule_deadlock", "wire");
    if (st == CDP_OK) st = cdp__pipe_walk_open(schedule, "cdp_schedule_deadlock", &w);
    if (st != CDP_OK) return st;
    memset(&k, 0, sizeof k);
    k.table = &schedule->table;
    k.wire = *wire;
    k.state = w.state;
    k.at = w.at;
    k.posted = w.posted;
    k.sent = w.sent;
    if (wire->buffers) {
        const uint64_t bytes = (uint64_t)schedule->table.ranks * schedule->table.ranks * 4;
        k.buffered = (uint32_t *)cdp__pipe_alloc(schedule->os, bytes);
        if (!k.buffered) st = cdp__pipe_nomem("cdp_schedule_deadlock", bytes);
    }
    if (st == CDP_OK && !cdp__pipe_messages_end(&k)) {
        cdp__pipe_add_waits(&why, &schedule->table, k.at);
        st = cdp_error_set(CDP_ERR_STATE, -1, 0,
            "cdp_schedule_deadlock: with sends like these ranks wait for each other%s", room);
    }
    cdp__pipe_free(schedule->os, k.buffered);
    cdp__pipe_free(schedule->os, w.memory);
    return st;
}

/* ---- >>pipeline/choose: which schedule, and which layers are a stage ------------------------- */

/* Knows: built-in schedules, costs of layers. Promises: the longest stage of a first cut is as
   short as any cut can make it; a move of a border is kept only where it is better. */

#define CDP__PIPE_LAYERS 1024u
#define CDP__PIPE_TRIED 20000000u /* rows on paper for each schedule, while borders move */

typedef struct cdp__pipe_chooser {
    const cdp_pipe_choice_desc *desc;
    const cdp_os *os;
    void *memory;
    double *sum, *best;          /* of layers before each one; see cdp__pipe_cut() */
    uint32_t *from, *cut, *kept; /* kept: the best cut of all schedules */
    cdp_pipe_cost *cost;         /* of each stage */
    cdp_pipe_choice found;       /* stages 0: nothing yet */
} cdp__pipe_chooser;

/* ---- dynamic programming ---- */

/* Cuts n layers into `stages` pieces, so that the longest one is as short as possible: cut[0 ..
   stages]. sum[i]: the time of i layers. best, from: (stages + 1) x (n + 1), of the first j layers
   in k pieces: the longest one, and where the last one begins. */
CDP__PRIVATE void cdp__pipe_cut(
    const double *sum, uint32_t n, uint32_t stages, double *best, uint32_t *from, uint32_t *cut) {
    const uint64_t wide = n + 1ull;
    for (uint32_t j = 0; j <= n; ++j) {
        best[wide + j] = sum[j];
        from[wide + j] = 0;
    }
    for (uint32_t k = 2; k <= stages; ++k) {
        for (uint32_t j = k; j <= n; ++j) {
            double least = -1;
            for (uint32_t i = k - 1; i < j; ++i) {
                double longest = sum[j] - sum[i];
                if (best[(k - 1) * wide + i] > longest) longest = best[(k - 1) * wide + i];
                if (least >= 0 && longest >= least) continue;
                least = longest;
                from[k * wide + j] = i;
            }
            best[k * wide + j] = least;
        }
    }
    cut[stages] = n;
    for (uint32_t k = stages; k > 0; --k)
        cut[k - 1] = from[k * wide + cut[k]];
}

/* ---- what a cut is worth ---- */

typedef struct cdp__pipe_worth {
    double step_us;
    uint64_t bytes;
} cdp__pipe_worth;

CDP__PRIVATE void cdp__pipe_stage_costs(cdp__pipe_chooser *k, uint32_t stages) {
    for (uint32_t s = 0; s < stages; ++s) {
        cdp_pipe_cost *c = &k->cost[s];
        memset(c, 0, sizeof *c);
        for (uint32_t i = k->cut[s]; i < k->cut[s + 1]; ++i) {
            c->f_us += k->desc->layers[i].f_us;
            c->i_us += k->desc->layers[i].i_us;
            c->w_us += k->desc->layers[i].w_us;
            c->message_us = k->desc->layers[i].message_us;
        }
    }
}

CDP__PRIVATE uint64_t cdp__pipe_stage_bytes(
    const cdp__pipe_chooser *k, uint32_t stage, bool weights) {
    uint64_t bytes = 0;
    for (uint32_t i = k->cut[stage]; i < k->cut[stage + 1]; ++i)
        bytes += weights ? k->desc->layers[i].weight_bytes : k->desc->layers[i].kept_bytes;
    return bytes;
}

/* Weights, and what a rank keeps at its peak. */
CDP__PRIVATE uint64_t cdp__pipe_rank_bytes(
    const cdp__pipe_chooser *k, const cdp__pipe_table *t, uint32_t rank) {
    uint64_t now = 0, top = 0, weights = 0;
    for (uint32_t s = 0; s < t->stages; ++s)
        if (t->place[s] == rank) weights += cdp__pipe_stage_bytes(k, s, true);
    for (uint64_t i = t->first[rank]; i < t->first[rank + 1]; ++i) {
        const cdp_act *a = &t->acts[i];
        if (a->kind != CDP_ACT_F && !cdp__pipe_is_last(a)) continue;
        const uint64_t bytes = cdp__pipe_stage_bytes(k, a->stage, false);
        now = a->kind == CDP_ACT_F ? now + bytes : now - bytes;
        top = cdp__max(top, now);
    }
    return weights + top;
}

CDP__PRIVATE cdp__pipe_worth cdp__pipe_worth_of(
    cdp__pipe_chooser *k, const cdp_schedule *s, const cdp__pipe_walk *w) {
    const cdp__pipe_table *t = &s->table;
    cdp__pipe_worth worth;
    cdp__pipe_pace pace = cdp__pipe_pace_of(s, w);
    cdp__pipe_stage_costs(k, t->stages);
    pace.cost = k->cost;
    (void)cdp__pipe_run_rows(&pace);
    worth.step_us = 0;
    worth.bytes = 0;
    for (uint32_t r = 0; r < t->ranks; ++r) {
        const uint64_t bytes = cdp__pipe_rank_bytes(k, t, r);
        worth.bytes = cdp__max(worth.bytes, bytes);
        if (pace.free[r] > worth.step_us) worth.step_us = pace.free[r];
    }
    return worth;
}

/* First what fits into memory, then what is faster, then what needs less memory. */
CDP__PRIVATE bool cdp__pipe_is_better(
    const cdp_pipe_choice_desc *d, cdp__pipe_worth a, cdp__pipe_worth b) {
    const uint64_t limit = d->memory_bytes ? d->memory_bytes : UINT64_MAX;
    const uint64_t over_a = a.bytes > limit ? a.bytes : 0, over_b = b.bytes > limit ? b.bytes : 0;
    const double least = 1e-9 * b.step_us; /* sums in another order differ by less */
    if (over_a != over_b) return over_a < over_b;
    if (a.step_us < b.step_us - least) return true;
    return a.step_us <= b.step_us + least && a.bytes < b.bytes;
}

/* Moves border `a` by `by_a` layers, and `b` by `by_b`; those between them, too, if both go the
   same way. False: a stage would have no layer; then nothing was moved. */
CDP__PRIVATE bool cdp__pipe_shift(
    cdp__pipe_chooser *k, uint32_t a, uint32_t b, int32_t by_a, int32_t by_b) {
    for (uint32_t i = a; i <= b; ++i) {
        const int32_t by = i == a ? by_a : by_b;
        if (i == a || i == b || by_a == by_b) k->cut[i] = (uint32_t)((int32_t)k->cut[i] + by);
    }
    if (k->cut[a - 1] < k->cut[a] && k->cut[b] < k->cut[b + 1]
        && (a == b || (k->cut[a] < k->cut[a + 1] && k->cut[b - 1] < k->cut[b])))
        return true;
    for (uint32_t i = a; i <= b; ++i) {
        const int32_t by = i == a ? by_a : by_b;
        if (i == a || i == b || by_a == by_b) k->cut[i] = (uint32_t)((int32_t)k->cut[i] - by);
    }
    return false;
}

/* Moves one border or two, or a run of them, by one layer, as long as that is better. */
CDP__PRIVATE void cdp__pipe_move_borders(
    cdp__pipe_chooser *k, const cdp_schedule *s, const cdp__pipe_walk *w, cdp__pipe_worth *worth) {
    const uint32_t stages = s->table.stages;
    uint64_t tries = CDP__PIPE_TRIED / s->table.first[s->table.ranks] + 1;
    for (bool moved = true; moved;) {
        moved = false;
        for (uint32_t a = 1; a < stages; ++a) {
            for (uint32_t n = 0; n < 4 * (stages - a) && tries > 0; ++n) {
                const uint32_t b = a + n / 4;
                const int32_t by_a = n & 1 ? 1 : -1, by_b = n & 2 ? -by_a : by_a;
                if ((a == b && by_a != by_b) || !cdp__pipe_shift(k, a, b, by_a, by_b)) continue;
                const cdp__pipe_worth now = cdp__pipe_worth_of(k, s, w);
                --tries;
                if (cdp__pipe_is_better(k->desc, now, *worth)) {
                    *worth = now;
                    moved = true;
                } else {
                    (void)cdp__pipe_shift(k, a, b, -by_a, -by_b);
                }
            }
        }
    }
}

/* ---- all schedules ---- */

/* Tries one schedule; one whose sizes do not fit is passed over. */
CDP__PRIVATE cdp_status cdp__pipe_try(cdp__pipe_chooser *k, const cdp_schedule_desc *d) {
    const cdp_pipe_choice_desc *desc = k->desc;
    cdp_schedule *s;
    cdp__pipe_walk w;
    cdp__pipe_worth worth, best;
    cdp_status st = cdp_schedule_create(d, &s);
    if (st == CDP_ERR_UNSUPPORTED) return CDP_OK;
    if (st != CDP_OK) return st;
    const uint32_t stages = s->table.stages;
    st = cdp__pipe_walk_open(s, "cdp_schedule_choose", &w);
    if (st == CDP_OK) {
        cdp__pipe_cut(k->sum, desc->layer_count, stages, k->best, k->from, k->cut);
        worth = cdp__pipe_worth_of(k, s, &w);
        cdp__pipe_move_borders(k, s, &w, &worth);
        best.step_us = k->found.step_us;
        best.bytes = k->found.memory_bytes;
        if (!k->found.stages || cdp__pipe_is_better(desc, worth, best)) {
            k->found.schedule = *d;
            k->found.stages = stages;
            k->found.step_us = worth.step_us;
            k->found.memory_bytes = worth.bytes;
            memcpy(k->kept, k->cut, (size_t)((stages + 1ull) * sizeof *k->kept));
        }
        cdp__pipe_free(s->os, w.memory);
    }
    cdp_schedule_destroy(s);
    return st;
}

CDP__PRIVATE cdp_status cdp__pipe_try_all(cdp__pipe_chooser *k, uint32_t most) {
    const cdp_pipe_choice_desc *d = k->desc;
    cdp_schedule_desc s;
    cdp_status st = CDP_OK;
    memset(&s, 0, sizeof s);
    s.ranks = d->ranks;
    s.micros = d->micros;
    s.os = k->os;
    for (uint32_t kind = CDP_PIPE_1F1B; kind < CDP_PIPE_EVAL; ++kind) {
        s.kind = (cdp_pipe_kind)kind;
        if (d->whole && cdp__pipe_row_kinds(s.kind) > 2) continue;
        for (uint32_t v = 1; v <= most && st == CDP_OK; ++v) {
            const uint32_t ahead = kind == CDP_PIPE_1F1B ? d->ranks - 1 : 0;
            s.stages_per_rank = v;
            if ((uint64_t)d->ranks * v > d->layer_count) break;
            for (s.ahead = 0; s.ahead <= ahead && st == CDP_OK; ++s.ahead)
                st = cdp__pipe_try(k, &s);
        }
    }
    return st;
}

CDP__PRIVATE cdp_status cdp__pipe_chooser_open(cdp__pipe_chooser *k, uint32_t stages) {
    const uint64_t n = k->desc->layer_count + 1ull, all = (stages + 1ull) * n;
    const uint64_t bytes = (n + all) * sizeof(double) + stages * sizeof *k->cost
        + (all + 2 * (stages + 1ull)) * sizeof *k->cut;
    k->memory = cdp__pipe_alloc(k->os, bytes);
    if (!k->memory) return cdp__pipe_nomem("cdp_schedule_choose", bytes);
    k->sum = (double *)k->memory;
    k->best = k->sum + n;
    k->cost = (cdp_pipe_cost *)(void *)(k->best + all);
    k->from = (uint32_t *)(void *)(k->cost + stages);
    k->cut = k->from + all;
    k->kept = k->cut + stages + 1;
    for (uint32_t i = 0; i + 1 < n; ++i) {
        const cdp_pipe_layer *l = &k->desc->layers[i];
        k->sum[i + 1] = k->sum[i] + l->f_us + l->i_us + l->w_us;
    }
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__pipe_check_choice(const cdp_pipe_choice_desc *d) {
    if (!d->layers) return cdp__pipe_missing("cdp_schedule_choose", "desc.layers");
    if (!d->ranks || !d->micros)
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_schedule_choose: desc.ranks and desc.micros must be at least 1");
    if (d->layer_count < d->ranks || d->layer_count > CDP__PIPE_LAYERS)
        return cdp_error_set(CDP_ERR_UNSUPPORTED, -1, 0,
            "cdp_schedule_choose: %u layers for %u ranks; at least one for each rank, at most %u",
            d->layer_count, d->ranks, CDP__PIPE_LAYERS);
    for (uint32_t i = 0; i < d->layer_count; ++i)
        if (!cdp__pipe_is_time(d->layers[i].f_us) || !cdp__pipe_is_time(d->layers[i].i_us)
            || !cdp__pipe_is_time(d->layers[i].w_us) || !cdp__pipe_is_time(d->layers[i].message_us))
            return cdp_error_set(CDP_ERR_INVALID, -1, 0,
                "cdp_schedule_choose: layers[%u] has a time that is negative or no number", i);
    return CDP_OK;
}

CDP_API cdp_status cdp_schedule_choose(
    const cdp_pipe_choice_desc *desc, uint32_t *cuts, cdp_pipe_cost *costs, cdp_pipe_choice *out) {
    cdp__pipe_chooser k;
    memset(&k, 0, sizeof k);
    if (out) memset(out, 0, sizeof *out);
    if (!desc || !cuts || !out)
        return cdp__pipe_missing("cdp_schedule_choose", "desc, cuts or out");
    if (cdp__os_whole(desc->os, "cdp_schedule_choose") != CDP_OK) return CDP_ERR_INVALID;
    cdp_status st = cdp__pipe_check_choice(desc);
    if (st != CDP_OK) return st;
    const uint32_t most = (uint32_t)cdp__min(
        cdp__def(desc->most_stages_per_rank, 4u), desc->layer_count / desc->ranks);
    k.desc = desc;
    k.os = desc->os ? desc->os : cdp_os_default();
    if (!k.os) return cdp__pipe_missing("cdp_schedule_choose", "desc.os");
    st = cdp__pipe_chooser_open(&k, desc->ranks * most);
    if (st == CDP_OK) st = cdp__pipe_try_all(&k, most);
    if (st == CDP_OK && desc->memory_bytes && k.found.memory_bytes > desc->memory_bytes)
        st = cdp_error_set(CDP_ERR_UNSUPPORTED, -1, 0,
            "cdp_schedule_choose: no schedule fits into %llu bytes for each rank; one needs %llu",
            (unsigned long long)desc->memory_bytes, (unsigned long long)k.found.memory_bytes);
    if (st == CDP_OK) {
        *out = k.found;
        memcpy(cuts, k.kept, (size_t)((k.found.stages + 1ull) * sizeof *cuts));
        memcpy(k.cut, k.kept, (size_t)((k.found.stages + 1ull) * sizeof *cuts));
        cdp__pipe_stage_costs(&k, k.found.stages);
        if (costs) memcpy(costs, k.cost, (size_t)(k.found.stages * sizeof *costs));
    }
    cdp__pipe_free(k.os, k.memory);
    return st;
}

/* ---- >>pipeline/pictures: a step as a picture, on paper and as it ran ------------------------ */

/* Knows: a table and times of its rows. Promises: each time in which a rank waits is explained by
   the row that it waits for. */

#define CDP__PIPE_COLUMNS 88u /* of a line of text */
#define CDP__PIPE_LISTED 12u  /* most waits in a list */
#define CDP__PIPE_LEFT 130u
#define CDP__PIPE_WIDE 1050.0

typedef struct cdp__pipe_drawing {
    const cdp__pipe_table *table;
    const cdp_pipe_times *times[2]; /* on paper, and as it ran; NULL: not drawn */
    const uint64_t *givers;         /* of each message: the row that sends it */
    double ends[2], total;          /* of each step, and of the longer one */
    cdp__text *text;
} cdp__pipe_drawing;

CDP__PRIVATE const char *cdp__pipe_side(uint32_t side) {
    return side ? "as it ran" : "on paper";
}

/* ---- why a rank waits ---- */

typedef struct cdp__pipe_gap {
    uint32_t side, rank;
    uint64_t row, source; /* of all rows: the next one, and the one that it waits for; NONE */
    double from, to;
} cdp__pipe_gap;

/* The row that gives what a row needs and ends last; a pair waits for both of its rows. */
CDP__PRIVATE uint64_t cdp__pipe_last_giver(
    const cdp__pipe_drawing *d, const double *end, uint64_t row) {
    uint64_t source = CDP__PIPE_NONE;
    for (uint64_t i = row; i < row + cdp__pipe_width(&d->table->acts[row]); ++i) {
        const uint64_t m = cdp__pipe_needs(d->table, &d->table->acts[i]);
        if (m == CDP__PIPE_NONE) continue;
        if (source == CDP__PIPE_NONE || end[d->givers[m]] > end[source]) source = d->givers[m];
    }
    return source;
}

/* The time before a row, or after the last one (row: first[rank + 1]), in which a rank computes
   nothing; false: there is none. Less than a thousandth of the picture is none. */
CDP__PRIVATE bool cdp__pipe_gap_before(
    const cdp__pipe_drawing *d, uint32_t side, uint32_t rank, uint64_t row, cdp__pipe_gap *g) {
    const cdp__pipe_table *t = d->table;
    const double *start = d->times[side]->start_us, *end = d->times[side]->end_us;
    const bool more = row < t->first[rank + 1];
    g->side = side;
    g->rank = rank;
    g->row = row;
    g->source = more ? cdp__pipe_last_giver(d, end, row) : CDP__PIPE_NONE;
    g->from = row > t->first[rank] ? end[row - 1] : 0;
    g->to = more ? start[row] : d->ends[side];
    return g->to - g->from > d->total / 1000;
}

CDP__PRIVATE void cdp__pipe_add_us(cdp__text *t, double us) {
    cdp__text_tenths(t, us);
    cdp__text_add(t, " us");
}

/* "rank 1 waits 20.0 us before 1B0, for 2B0 of rank 2 (5.0 us of it for the message)" */
CDP__PRIVATE void cdp__pipe_add_gap(const cdp__pipe_drawing *d, const cdp__pipe_gap *g) {
    const cdp__pipe_table *t = d->table;
    cdp__text *text = d->text;
    cdp__text_add(text, "rank %u waits ", g->rank);
    cdp__pipe_add_us(text, g->to - g->from);
    if (g->row == t->first[g->rank + 1]) {
        cdp__text_add(text, " at the end: it has no more rows");
        return;
    }
    cdp__text_add(text, " before ");
    cdp__pipe_add_act(text, &t->acts[g->row]);
    if (g->source == CDP__PIPE_NONE) {
        cdp__text_add(text, ", not for another rank: its own thread came late");
        return;
    }
    const double done = d->times[g->side]->end_us[g->source];
    cdp__text_add(text, done > g->from ? ", for " : ", for the message of ");
    cdp__pipe_add_act(text, &t->acts[g->source]);
    cdp__text_add(text, " of rank %u", t->place[t->acts[g->source].stage]);
    if (done <= g->from || g->to - done <= d->total / 1000) return;
    cdp__text_add(text, " (");
    cdp__pipe_add_us(text, g->to - done);
    cdp__text_add(text, " of it for the message)");
}

/* The longest waits of a side that are shorter than those before. */
CDP__PRIVATE bool cdp__pipe_next_gap(
    const cdp__pipe_drawing *d, uint32_t side, const cdp__pipe_gap *before, cdp__pipe_gap *next) {
    const cdp__pipe_table *t = d->table;
    bool found = false;
    for (uint32_t r = 0; r < t->ranks; ++r) {
        for (uint64_t row = t->first[r]; row <= t->first[r + 1]; ++row) {
            cdp__pipe_gap g;
            if (!cdp__pipe_gap_before(d, side, r, row, &g)) continue;
            const double took = g.to - g.from, least = found ? next->to - next->from : 0;
            const double most = before ? before->to - before->from : took + 1;
            const bool later =
                before && (r > before->rank || (r == before->rank && row > before->row));
            if (took > most || (took >= most && !later) || took <= least) continue;
            *next = g;
            found = true;
        }
    }
    return found;
}

/* ---- as text ---- */

CDP__PRIVATE uint32_t cdp__pipe_column(const cdp__pipe_drawing *d, double us) {
    const double at = us / d->total * CDP__PIPE_COLUMNS + 1e-6; /* a whole number stays one */
    return at < CDP__PIPE_COLUMNS ? (uint32_t)at : CDP__PIPE_COLUMNS - 1;
}

/* Fills the columns of a row: "2F0=====", or as much of it as fits. */
CDP__PRIVATE void cdp__pipe_paint(
    const cdp__pipe_drawing *d, uint32_t side, uint64_t row, char *line) {
    char name[32];
    cdp__text n = cdp__text_of(name, sizeof name);
    const cdp_act *a = &d->table->acts[row];
    const uint32_t from = cdp__pipe_column(d, d->times[side]->start_us[row]);
    uint32_t to = cdp__pipe_column(d, d->times[side]->end_us[row]);
    if (d->times[side]->end_us[row] >= d->total) to = CDP__PIPE_COLUMNS;
    if (to == from) ++to;
    cdp__pipe_add_act(&n, a);
    const bool fits = cdp__text_end(&n) < to - from;
    for (uint32_t i = from; i < to; ++i)
        line[i] = '=';
    line[from] = cdp__pipe_letter(a->kind);
    if (fits) memcpy(line + from, name, (size_t)n.used);
}

CDP__PRIVATE void cdp__pipe_draw_line(const cdp__pipe_drawing *d, uint32_t side, uint32_t rank) {
    char line[CDP__PIPE_COLUMNS + 1];
    memset(line, '.', sizeof line);
    line[CDP__PIPE_COLUMNS] = 0;
    for (uint64_t row = d->table->first[rank]; row < d->table->first[rank + 1]; ++row)
        cdp__pipe_paint(d, side, row, line);
    const uint64_t from = d->text->used;
    if (!side || !d->times[0]) cdp__text_add(d->text, "rank %u", rank);
    cdp__text_pad(d->text, from, 10);
    cdp__text_add(d->text, side ? "ran   " : "paper ");
    cdp__text_add(d->text, "%s\n", line);
}

CDP__PRIVATE void cdp__pipe_add_side(const cdp__pipe_drawing *d, uint32_t side) {
    cdp__text_add(d->text, "%s: a step takes ", cdp__pipe_side(side));
    cdp__pipe_add_us(d->text, d->ends[side]);
}

CDP__PRIVATE void cdp__pipe_draw_text(const cdp__pipe_drawing *d) {
    for (uint32_t r = 0; r < d->table->ranks; ++r)
        for (uint32_t side = 0; side < 2; ++side)
            if (d->times[side]) cdp__pipe_draw_line(d, side, r);
    for (uint32_t side = 0; side < 2; ++side) {
        cdp__pipe_gap gaps[2];
        const cdp__pipe_gap *before = NULL;
        if (!d->times[side]) continue;
        cdp__pipe_add_side(d, side);
        cdp__text_add(d->text, "; the longest waits:\n");
        for (uint32_t i = 0; i < CDP__PIPE_LISTED; ++i) {
            if (!cdp__pipe_next_gap(d, side, before, &gaps[i % 2])) break;
            before = &gaps[i % 2];
            cdp__text_add(d->text, "    ");
            cdp__pipe_add_gap(d, before);
            cdp__text_add(d->text, "\n");
        }
    }
}

/* ---- as SVG ---- */

/* A box from one time to another, dashed if the rank waits (tint: NULL); it stays open for its
   title. */
CDP__PRIVATE void cdp__pipe_open_box(
    const cdp__pipe_drawing *d, double from, double to, uint32_t y, const char *tint) {
    cdp__text_add(d->text, "<rect class=\"box\" y=\"%u\" height=\"18\" x=\"", y);
    cdp__text_tenths(d->text, CDP__PIPE_LEFT + from / d->total * CDP__PIPE_WIDE);
    cdp__text_add(d->text, "\" width=\"");
    cdp__text_tenths(d->text, (to - from) / d->total * CDP__PIPE_WIDE);
    if (tint)
        cdp__text_add(d->text, "\" fill=\"%s\"><title>", tint);
    else
        cdp__text_add(
            d->text, "\" fill=\"none\" pointer-events=\"all\" stroke-dasharray=\"2 3\"><title>");
}

CDP__PRIVATE void cdp__pipe_draw_row(
    const cdp__pipe_drawing *d, uint32_t side, uint32_t rank, uint64_t row, uint32_t y) {
    const cdp_act *a = &d->table->acts[row];
    const double from = d->times[side]->start_us[row], to = d->times[side]->end_us[row];
    cdp__pipe_open_box(d, from, to, y, cdp__svg_tint(a->kind - 1u));
    cdp__pipe_add_act(d->text, a);
    cdp__text_add(d->text, " on rank %u: ", rank);
    cdp__pipe_add_us(d->text, from);
    cdp__text_add(d->text, " to ");
    cdp__pipe_add_us(d->text, to);
    cdp__text_add(d->text, "</title></rect>");
    if ((to - from) / d->total * CDP__PIPE_WIDE >= 26) {
        cdp__text_add(d->text, "<text class=\"in\" text-anchor=\"middle\" y=\"%u\" x=\"", y + 13);
        cdp__text_tenths(d->text, CDP__PIPE_LEFT + (from + to) / 2 / d->total * CDP__PIPE_WIDE);
        cdp__text_add(d->text, "\">");
        cdp__pipe_add_act(d->text, a);
        cdp__text_add(d->text, "</text>");
    }
    cdp__text_add(d->text, "\n");
}

CDP__PRIVATE void cdp__pipe_draw_lane(
    const cdp__pipe_drawing *d, uint32_t side, uint32_t rank, uint32_t y) {
    const cdp__pipe_table *t = d->table;
    cdp__text_add(d->text, "<text x=\"10\" y=\"%u\">rank %u, %s</text>\n", y + 13, rank,
        cdp__pipe_side(side));
    for (uint64_t row = t->first[rank]; row <= t->first[rank + 1]; ++row) {
        cdp__pipe_gap g;
        if (cdp__pipe_gap_before(d, side, rank, row, &g)) {
            cdp__pipe_open_box(d, g.from, g.to, y, NULL);
            cdp__pipe_add_gap(d, &g);
            cdp__text_add(d->text, "</title></rect>\n");
        }
        if (row < t->first[rank + 1]) cdp__pipe_draw_row(d, side, rank, row, y);
    }
}

CDP__PRIVATE void cdp__pipe_draw_legend(const cdp__pipe_drawing *d, uint32_t y) {
    static const char *const words[] = {
        "F: forward", "B: backward", "I: of the input", "W: of the weights"};
    for (uint32_t i = 0; i < 4; ++i)
        cdp__text_add(d->text,
            "<rect class=\"box\" x=\"%u\" y=\"%u\" width=\"18\" height=\"14\" fill=\"%s\"/>"
            "<text x=\"%u\" y=\"%u\">%s</text>\n",
            CDP__PIPE_LEFT + 140 * i, y, cdp__svg_tint(i), CDP__PIPE_LEFT + 24 + 140 * i, y + 12,
            words[i]);
    cdp__text_add(d->text, "<text class=\"thin\" x=\"%u\" y=\"%u\">dashed: the rank waits</text>\n",
        CDP__PIPE_LEFT + 560, y + 12);
}

CDP__PRIVATE void cdp__pipe_draw_svg(const cdp__pipe_drawing *d) {
    const uint32_t lanes = d->times[0] && d->times[1] ? 2 : 1, high = 20 * lanes + 10;
    uint32_t y = 40;
    cdp__svg_begin(d->text, CDP__PIPE_LEFT + 1070, 80 + d->table->ranks * high);
    cdp__text_add(d->text, "<text x=\"10\" y=\"20\">");
    for (uint32_t side = 0; side < 2; ++side) {
        if (!d->times[side]) continue;
        if (side && d->times[0]) cdp__text_add(d->text, "; ");
        cdp__pipe_add_side(d, side);
    }
    cdp__text_add(d->text, "</text>\n");
    for (uint32_t r = 0; r < d->table->ranks; ++r, y += 10)
        for (uint32_t side = 0; side < 2; ++side)
            if (d->times[side]) {
                cdp__pipe_draw_lane(d, side, r, y);
                y += 20;
            }
    cdp__pipe_draw_legend(d, y + 5);
    cdp__text_add(d->text, "</svg>\n");
}

/* Are all of them times? Finds the end of the longer step. */
CDP__PRIVATE bool cdp__pipe_can_draw(cdp__pipe_drawing *d) {
    for (uint32_t side = 0; side < 2; ++side) {
        const cdp_pipe_times *k = d->times[side];
        if (!k) continue;
        if (!k->start_us || !k->end_us) return false;
        for (uint64_t i = 0; i < d->table->first[d->table->ranks]; ++i) {
            if (!cdp__pipe_is_time(k->start_us[i]) || !cdp__pipe_is_time(k->end_us[i])
                || k->end_us[i] < k->start_us[i])
                return false;
            if (k->end_us[i] > d->ends[side]) d->ends[side] = k->end_us[i];
        }
        if (d->ends[side] > d->total) d->total = d->ends[side];
    }
    return d->total > 0;
}

CDP_API uint64_t cdp_schedule_draw(const cdp_schedule *schedule, const cdp_pipe_times *paper,
    const cdp_pipe_times *ran, cdp_pipe_picture format, char *text, uint64_t room) {
    cdp__text t = cdp__text_of(text, room);
    cdp__pipe_drawing d;
    (void)cdp__text_end(&t);
    if (!cdp__pipe_has_schedule(schedule)) return 0;
    memset(&d, 0, sizeof d);
    d.table = &schedule->table;
    d.times[0] = paper;
    d.times[1] = ran;
    d.text = &t;
    if (!cdp__pipe_can_draw(&d)) return 0;
    uint64_t *givers =
        (uint64_t *)cdp__pipe_alloc(schedule->os, 2 * cdp__pipe_cells(d.table) * sizeof *givers);
    if (!givers) return 0;
    for (uint64_t i = 0; i < d.table->first[d.table->ranks]; ++i) {
        const uint64_t m = cdp__pipe_gives(d.table, &d.table->acts[i]);
        if (m != CDP__PIPE_NONE) givers[m] = i;
    }
    d.givers = givers;
    if (format == CDP_PIPE_PICTURE_SVG)
        cdp__pipe_draw_svg(&d);
    else
        cdp__pipe_draw_text(&d);
    cdp__pipe_free(schedule->os, givers);
    return cdp__text_end(&t);
}

/* ---- >>pipeline/places: what is known of other ranks' rows, and where activations are kept (pure)  */

/* Knows: a table. Promises: no two activations that live at one time have one slot. */

/* Gives each F of a rank a slot, and later rows of its stage and micro-batch the same one.
   of_cell: an entry for each micro-batch of each stage; used: one for each slot, all false. */
CDP__PRIVATE void cdp__pipe_deal_slots(
    const cdp__pipe_table *t, uint32_t rank, uint32_t *of_cell, bool *used) {
    for (uint64_t i = t->first[rank]; i < t->first[rank + 1]; ++i) {
        const cdp_act *a = &t->acts[i];
        uint32_t *slot = &of_cell[cdp__pipe_cell(t, a->stage, a->micro)];
        if (a->kind == CDP_ACT_F) {
            for (*slot = 0; used[*slot];)
                ++*slot;
            used[*slot] = true;
        }
        if (cdp__pipe_is_last(a) || t->forward_only) used[*slot] = false;
    }
}

/* The row of all rows that sends what the row needs; CDP__PIPE_NONE: it needs no message. */
CDP__PRIVATE uint64_t cdp__pipe_source(const cdp__pipe_table *t, const cdp_act *a) {
    const uint64_t m = cdp__pipe_needs(t, a);
    if (m == CDP__PIPE_NONE) return m;
    const uint32_t from = t->place[a->kind == CDP_ACT_F ? a->stage - 1u : a->stage + 1u];
    uint64_t row = t->first[from];
    while (row < t->first[from + 1] && cdp__pipe_gives(t, &t->acts[row]) != m)
        ++row;
    return row;
}

/* How many rows each rank must have run, if known[r] of each rank r have: raises known[]. */
CDP__PRIVATE void cdp__pipe_spread_known(const cdp__pipe_table *t, uint64_t *known) {
    for (bool moved = true; moved;) {
        moved = false;
        for (uint32_t r = 0; r < t->ranks; ++r) {
            for (uint64_t i = 0; i < known[r]; ++i) {
                const uint64_t row = cdp__pipe_source(t, &t->acts[t->first[r] + i]);
                if (row == CDP__PIPE_NONE) continue;
                const uint32_t from = t->place[t->acts[row].stage];
                const uint64_t number = row - t->first[from] + 1;
                if (number <= known[from]) continue;
                known[from] = number;
                moved = true;
            }
        }
    }
}

/* ---- >>pipeline/meet: ranks compare their schedules and the tensors between stages ----------- */

/* Knows: collectives of a group. Promises: all ranks return the same kind of answer, and the group
   stays usable. */

CDP__PRIVATE uint64_t cdp__pipe_mix(uint64_t h, uint64_t word) {
    for (uint32_t byte = 0; byte < 8; ++byte)
        h = (h ^ (word >> 8 * byte & 0xff)) * 0x100000001b3u;
    return h;
}

CDP__PRIVATE uint64_t cdp__pipe_packed(const cdp_act *a) {
    return (uint64_t)a->kind | (uint64_t)a->pair << 8 | (uint64_t)a->stage << 16
        | (uint64_t)a->micro << 32;
}

CDP__PRIVATE cdp_act cdp__pipe_unpacked(uint64_t word) {
    cdp_act a;
    a.kind = (uint8_t)(word & 0xff);
    a.pair = (word >> 8 & 1) != 0;
    a.stage = (uint16_t)(word >> 16 & 0xffff);
    a.micro = (uint32_t)(word >> 32);
    return a;
}

CDP__PRIVATE uint64_t cdp__pipe_hash(const cdp__pipe_table *t) {
    uint64_t h = cdp__pipe_mix(0xcbf29ce484222325u, t->stages);
    for (uint32_t r = 0; r <= t->ranks; ++r)
        h = cdp__pipe_mix(h, t->first[r]);
    for (uint64_t i = 0; i < t->first[t->ranks]; ++i)
        h = cdp__pipe_mix(h, cdp__pipe_packed(&t->acts[i]));
    return h;
}

/* 0: no tensors. */
CDP__PRIVATE uint64_t cdp__pipe_edge_hash(const cdp_pipe_edge *list, uint32_t count) {
    uint64_t h = 0xcbf29ce484222325u;
    for (uint32_t i = 0; i < count; ++i) {
        h = cdp__pipe_mix(h, list[i].count);
        h = cdp__pipe_mix(h, (uint64_t)list[i].dtype);
    }
    return count ? h | 1 : 0;
}

CDP__PRIVATE uint64_t cdp__pipe_tied_hash(const cdp_pipe_stage *s) {
    uint64_t h = 0xcbf29ce484222325u;
    for (uint32_t i = 0; i < s->tied_count; ++i) {
        h = cdp__pipe_mix(h, s->tied[i].count);
        h = cdp__pipe_mix(h, (uint64_t)s->tied[i].dtype);
    }
    return s->tied_count ? h | 1 : 0;
}

/* ---- which row differs ---- */

/* Row i of the table of a rank in the order of its sending: ends of ranks, then rows. */
CDP__PRIVATE uint64_t cdp__pipe_word(const cdp__pipe_table *t, uint32_t rank, uint64_t row) {
    const uint64_t i = t->first[rank] + row;
    return i < t->first[rank + 1] ? cdp__pipe_packed(&t->acts[i]) : 0;
}

typedef struct cdp__pipe_difference {
    uint64_t place, mine, other; /* place: rank << 32 | row; UINT64_MAX: none */
} cdp__pipe_difference;

/* The first row that differs from that of rank 0, of one rank's list in it. */
CDP__PRIVATE cdp_status cdp__pipe_compare_list(
    const cdp_pipeline_desc *d, uint32_t list, cdp__pipe_difference *first) {
    const cdp__pipe_table *t = &d->schedule->table;
    uint64_t all = t->first[list + 1] - t->first[list];
    cdp_status st = cdp_allreduce(d->group, NULL, &all, 1, CDP_DTYPE_U64, CDP_REDUCE_MAX);
    if (st != CDP_OK) return st;
    for (uint64_t from = 0; from < all && st == CDP_OK; from += 64) {
        uint64_t piece[64] = {0};
        const uint32_t n = (uint32_t)cdp__min(64, all - from);
        for (uint32_t i = 0; i < n; ++i)
            piece[i] = cdp__pipe_word(t, list, from + i);
        st = cdp_broadcast(d->group, piece, n, CDP_DTYPE_U64, 0);
        for (uint32_t i = 0; i < n && st == CDP_OK; ++i) {
            const uint64_t mine = cdp__pipe_word(t, list, from + i);
            if (first->place != UINT64_MAX || mine == piece[i]) continue;
            first->place = (uint64_t)list << 32 | (from + i);
            first->mine = mine;
            first->other = piece[i];
        }
    }
    return st;
}

CDP__PRIVATE void cdp__pipe_add_packed(cdp__text *t, uint64_t word) {
    const cdp_act a = cdp__pipe_unpacked(word);
    if (word)
        cdp__pipe_add_act(t, &a);
    else
        cdp__text_add(t, "no row");
    if (a.pair) cdp__text_add(t, " (of a pair)");
}

/* All ranks find out which row differs first, and say so. Their tables have equally many ranks. */
CDP__PRIVATE CDP__COLD cdp_status cdp__pipe_find_difference(const cdp_pipeline_desc *d) {
    cdp__pipe_difference mine = {UINT64_MAX, 0, 0};
    uint64_t record[3], best[4] = {UINT64_MAX, 0, 0, 0};
    char room[200];
    cdp__text text = cdp__text_of(room, sizeof room);
    for (uint32_t r = 0; r < d->schedule->table.ranks; ++r) {
        const cdp_status st = cdp__pipe_compare_list(d, r, &mine);
        if (st != CDP_OK) return st;
    }
    for (uint32_t r = 0; r < cdp_size(d->group); ++r) {
        record[0] = mine.place;
        record[1] = mine.mine;
        record[2] = mine.other;
        const cdp_status st = cdp_broadcast(d->group, record, 3, CDP_DTYPE_U64, r);
        if (st != CDP_OK) return st;
        if (record[0] >= best[0]) continue;
        memcpy(best, record, sizeof record);
        best[3] = r;
    }
    if (best[0] == UINT64_MAX)
        return cdp_error_set(CDP_ERR_MISMATCH, -1, 0,
            "cdp_pipeline_create: ranks have different schedules: other numbers of stages or "
            "ranks");
    cdp__pipe_add_packed(&text, best[1]);
    cdp__text_add(&text, " on rank %u, ", (unsigned)best[3]);
    cdp__pipe_add_packed(&text, best[2]);
    return cdp_error_set(CDP_ERR_MISMATCH, (int32_t)best[3], 0,
        "cdp_pipeline_create: ranks have different schedules: row %u of rank %u is %s on rank 0",
        (unsigned)(best[0] & 0xffffffffu), (unsigned)(best[0] >> 32), room);
}

/* ---- meeting ---- */

/* Two stages that disagree about what is between them. */
CDP__PRIVATE cdp_status cdp__pipe_check_edges(const cdp__pipe_table *t, const uint64_t *hashes) {
    for (uint32_t s = 0; s + 1 < t->stages; ++s)
        if (hashes[2 * s + 1] != hashes[2 * (s + 1)])
            return cdp_error_set(CDP_ERR_MISMATCH, (int32_t)t->place[s + 1], 0,
                "cdp_pipeline_create: the out of stage %u on rank %u is not the in of stage %u on "
                "rank %u: numbers of tensors, counts or dtypes differ",
                s, t->place[s], s + 1, t->place[s + 1]);
    if (hashes[2 * t->stages] != hashes[2 * t->stages + 1])
        return cdp_error_set(CDP_ERR_MISMATCH, (int32_t)t->place[t->stages - 1], 0,
            "cdp_pipeline_create: the tied gradients of stage 0 on rank %u are not those of stage "
            "%u on rank %u: numbers, counts or dtypes differ",
            t->place[0], t->stages - 1, t->place[t->stages - 1]);
    return CDP_OK;
}

/* Collective: `st` is what this rank found out alone. */
CDP__PRIVATE cdp_status cdp__pipe_agree(
    const cdp_pipeline_desc *d, cdp_status st, uint64_t *hashes) {
    const uint32_t n = cdp_size(d->group);
    uint64_t first = 0;
    bool same = true;
    uint32_t refused = UINT32_MAX;
    for (uint32_t r = 0; r < n; ++r) {
        uint64_t word[2];
        word[0] = (uint64_t)(st != CDP_OK);
        word[1] = st == CDP_OK ? cdp__pipe_hash(&d->schedule->table) : 0;
        const cdp_status met = cdp_broadcast(d->group, word, 2, CDP_DTYPE_U64, r);
        if (met != CDP_OK) return met;
        if (r == 0) first = word[1];
        if (word[1] != first) same = false;
        if (word[0] && refused == UINT32_MAX) refused = r;
    }
    if (st != CDP_OK) return st;
    if (refused != UINT32_MAX)
        return cdp_error_set(CDP_ERR_MISMATCH, (int32_t)refused, 0,
            "cdp_pipeline_create: rank %u refused: its error says why", refused);
    if (!same) return cdp__pipe_find_difference(d);
    st = cdp_allreduce(d->group, NULL, hashes, 2ull * d->schedule->table.stages + 2, CDP_DTYPE_U64,
        CDP_REDUCE_SUM);
    return st == CDP_OK ? cdp__pipe_check_edges(&d->schedule->table, hashes) : st;
}

/* ---- >>pipeline/state: what a pipeline has, and how its step fails --------------------------- */

/* Knows: rows of this rank, works of a group. Promises: every operation that it starts itself has
   the deadline of the step; a failure reaches all groups of the step. */

struct cdp_pipeline {
    cdp_pipeline_desc desc;
    const cdp_os *os;
    const cdp__pipe_table *table;
    uint32_t rank, stage_count, widest; /* widest: most tensors of an edge of this rank */
    cdp_pipe_stage *stages;
    uint8_t *kept;              /* the lists that they point to */
    uint32_t *nth;              /* of each stage: its number on this rank */
    uint32_t *slots;            /* of each cell */
    uint64_t *turns;            /* of each stage of this rank: its first row, and its last one */
    void **pointers;            /* see cdp__pipe_list() */
    uint8_t *memory;            /* of tensors that the program brings no memory for */
    cdp_work *receives, *sends; /* `widest` for each row */
    uint64_t rows, at, posted, ended; /* rows; the next one; receives started; sends that ended */
    uint64_t *times;                  /* of each row: when its callback began and ended, in ns */
    double *losses;                   /* of each micro-batch, where the last stage is */
    cdp_group *tie;         /* of the ranks that hold tied gradients; NULL: this one does not */
    cdp_work *tied;         /* sums of the tied gradients */
    cdp_pipe_stage *holder; /* has them; NULL: no sum is needed here */
    uint32_t reduced;       /* the copies of so many stages have reduced */
    uint64_t begin_ns, deadline_ns;
    bool running, timed;  /* timed: a step has ended, so `times` are complete */
    bool ending, summing; /* a reduction is ended in frames; sums of tied gradients have started */
};

CDP__PRIVATE const cdp_act *cdp__pipe_row(const cdp_pipeline *p, uint64_t row) {
    return &p->table->acts[p->table->first[p->rank] + row];
}

/* ---- errors ---- */

/* The first row of a rank that it is not known to have run. */
CDP__PRIVATE void cdp__pipe_add_suspect(cdp__text *text, const cdp_pipeline *p, uint32_t suspect) {
    const cdp__pipe_table *t = p->table;
    uint64_t *known = (uint64_t *)cdp__pipe_alloc(p->os, t->ranks * sizeof *known);
    if (!known) return;
    known[p->rank] = p->at;
    cdp__pipe_spread_known(t, known);
    const uint64_t row = known[suspect];
    if (t->first[suspect] + row < t->first[suspect + 1]) {
        const cdp_act *a = &t->acts[t->first[suspect] + row];
        cdp__text_add(text, "; rank %u (stage %u) is not known to have done more than before ",
            suspect, (unsigned)a->stage);
        cdp__pipe_add_act(text, a);
        cdp__text_add(text, ", micro-batch %u", a->micro);
    }
    cdp__pipe_free(p->os, known);
}

/* What an abort was about, without the groups that it has come through. */
CDP__PRIVATE const char *cdp__pipe_reason(const char *text) {
    static const char mark[] = CDP__ABORTED;
    const char *reason = text;
    for (; *text; ++text)
        if (!strncmp(text, mark, sizeof mark - 1)) reason = text + sizeof mark - 1;
    return reason;
}

/* Ranks that wait for this one in the other groups of the step are told why it does not come. */
CDP__PRIVATE void cdp__pipe_abort_others(cdp_pipeline *p, const char *why) {
    if (p->tie) cdp_group_abort(p->tie, why);
    for (uint32_t i = 0; i < p->stage_count; ++i) {
        const cdp_pipe_stage *s = &p->stages[i];
        if (s->shards.unit_count) s->shards.abort(s->shards.fsdp, why);
        for (uint32_t k = 0; k < s->group_count; ++k)
            cdp_group_abort(s->groups[k], why);
#ifndef CDP_NO_DDP
        if (s->ddp && !p->table->forward_only) cdp_group_abort(cdp_ddp_group(s->ddp), why);
#endif
    }
}

/* Communication has failed while this rank was at a row. */
CDP__PRIVATE CDP__COLD cdp_status cdp__pipe_failed(cdp_pipeline *p, cdp_status st) {
    const cdp_error was = *cdp_last_error();
    char room[300];
    cdp__text text = cdp__text_of(room, sizeof room);
    const uint32_t suspect =
        was.peer < 0 ? UINT32_MAX : cdp_rank_of_world(p->desc.group, (uint32_t)was.peer);
    p->running = false;
    if (p->at < p->rows) {
        cdp__text_add(&text, "stage %u at ", (unsigned)cdp__pipe_row(p, p->at)->stage);
        cdp__pipe_add_act(&text, cdp__pipe_row(p, p->at));
        cdp__text_add(&text, ", micro-batch %u", cdp__pipe_row(p, p->at)->micro);
    } else {
        cdp__text_add(&text, "after its last row");
    }
    if (suspect < p->table->ranks && suspect != p->rank) cdp__pipe_add_suspect(&text, p, suspect);
    /* of a rank that is lost the group learns itself */
    if (st != CDP_ERR_PEER_LOST) cdp_group_abort(p->desc.group, cdp__pipe_reason(was.text));
    cdp__pipe_abort_others(p, cdp__pipe_reason(was.text));
    return cdp_error_set(st, was.peer, was.sys_errno, "cdp_pipeline_step: %s: %s", room, was.text);
}

/* A callback has returned an error: all ranks end. */
CDP__PRIVATE CDP__COLD cdp_status cdp__pipe_threw(
    cdp_pipeline *p, const cdp_act *a, cdp_status st) {
    const cdp_error was = *cdp_last_error();
    char room[200];
    cdp__text text = cdp__text_of(room, sizeof room);
    const char *const why = cdp__pipe_reason(was.text);
    const bool told = was.status == st && why != was.text; /* another one has failed */
    const uint32_t world = cdp_world_rank_of(p->desc.group, p->rank);
    cdp__text_add(&text, "stage %u on rank %u ", (unsigned)a->stage, p->rank);
    if (world != p->rank) cdp__text_add(&text, "(of the job: %u) ", world);
    cdp__text_add(&text, "failed in ");
    cdp__pipe_add_act(&text, a);
    cdp__text_add(
        &text, ", micro-batch %u: %s", a->micro, was.status == st ? why : cdp_status_name(st));
    p->running = false;
    cdp_group_abort(p->desc.group, told ? why : room);
    cdp__pipe_abort_others(p, told ? why : room);
    return cdp_error_set(st, was.status == st ? was.peer : -1, 0, "cdp_pipeline_step: %s", room);
}

/* Refuses no pipeline, one that was destroyed, and one whose schedule was. */
CDP__PRIVATE cdp_status cdp__pipe_alive(const cdp_pipeline *p, const char *call) {
    if (!p) return cdp__pipe_missing(call, "pipeline");
    if (!cdp__ended(p)) return cdp__pipe_schedule_lives(p->desc.schedule, call, "schedule");
    return cdp_error_set(CDP_ERR_STATE, -1, 0, "%s: this pipeline was destroyed", call);
}

/* The deadline of an operation of this step. */
CDP__PRIVATE uint32_t cdp__pipe_left_ms(const cdp_pipeline *p) {
    if (p->deadline_ns == UINT64_MAX) return CDP_NO_TIMEOUT;
    const uint64_t now = p->os->now_ns(p->os->user);
    const uint64_t left_ns = p->deadline_ns > now ? p->deadline_ns - now : 0;
    return (uint32_t)cdp__min(left_ns / 1000000 + 1, CDP_NO_TIMEOUT - 1);
}

/* Has a work ended? `wait`: not before it has. */
CDP__PRIVATE cdp_status cdp__pipe_wait(cdp_pipeline *p, cdp_work work, bool wait) {
    cdp_status st = work.seq ? cdp_work_test(work) : CDP_OK;
    if (st == CDP_PENDING && wait) st = cdp_work_wait(work);
    return st == CDP_OK || st == CDP_PENDING ? st : cdp__pipe_failed(p, st);
}

/* ---- >>pipeline/reduce: gradients that other ranks hold, too; losses ------------------------- */

/* Knows: the ddp of a stage, the group of the first and the last stage. Promises: reductions start
   when the last micro-batch has passed, and all of them have ended when the step ends. */

/* ---- tied gradients ---- */

/* `stages`: the `own` ones of `rank`, complete. */
CDP__PRIVATE cdp_status cdp__pipe_check_tied(
    const cdp__pipe_table *t, const cdp_pipe_stage *stages, uint32_t own, uint32_t rank) {
    uint32_t nth = 0;
    for (uint32_t s = 0; s < t->stages; ++s) {
        if (t->place[s] != rank) continue;
        const cdp_pipe_stage *k = &stages[nth++];
        if (k->tied_count && s && s + 1 < t->stages)
            return cdp_error_set(CDP_ERR_INVALID, -1, 0,
                "cdp_pipeline_create: stage %u has tied gradients; only the first stage and the "
                "last one can",
                s);
        for (uint32_t i = 0; i < k->tied_count; ++i)
            if (!k->tied || !k->tied[i].grad)
                return cdp_error_set(CDP_ERR_INVALID, -1, 0,
                    "cdp_pipeline_create: tied gradient %u of stage %u is NULL", i, s);
    }
    if (own < 2 || t->place[0] != rank || t->place[t->stages - 1] != rank) return CDP_OK;
    const cdp_pipe_stage *first = &stages[0], *last = &stages[own - 1];
    for (uint32_t i = 0; i < first->tied_count && i < last->tied_count; ++i)
        if (first->tied[i].grad != last->tied[i].grad)
            return cdp_error_set(CDP_ERR_INVALID, -1, 0,
                "cdp_pipeline_create: tied gradient %u has two memories on one rank: stages 0 and "
                "%u must add to the same one",
                i, t->stages - 1);
    return CDP_OK;
}

/* The group of the first and the last stage, where they are on two ranks. */
CDP__PRIVATE cdp_status cdp__pipe_open_tie(cdp_pipeline *p) {
    uint32_t ranks[2];
    ranks[0] = p->table->place[0];
    ranks[1] = p->table->place[p->table->stages - 1];
    if (p->table->forward_only || ranks[0] == ranks[1]) return CDP_OK;
    if (p->rank != ranks[0] && p->rank != ranks[1]) return CDP_OK;
    p->holder = &p->stages[p->rank == ranks[0] ? 0 : p->stage_count - 1];
    if (!p->holder->tied_count) p->holder = NULL;
    if (!p->holder) return CDP_OK;
    const uint64_t bytes = p->holder->tied_count * sizeof *p->tied;
    p->tied = (cdp_work *)cdp__pipe_alloc(p->os, bytes);
    if (!p->tied) return cdp__pipe_nomem("cdp_pipeline_create", bytes);
#ifdef CDP_NO_GROUPS
    return cdp_error_set(CDP_ERR_UNSUPPORTED, -1, 0,
        "cdp_pipeline_create: tied gradients need what CDP_NO_GROUPS leaves out");
#else
    return cdp_group_new(p->desc.group, ranks, 2, &p->tie);
#endif
}

CDP__PRIVATE cdp_status cdp__pipe_sum_tied(cdp_pipeline *p) {
    cdp_status st = CDP_OK;
    if (p->summing || !p->holder) return CDP_OK;
    p->summing = true;
    for (uint32_t i = 0; i < p->holder->tied_count && st == CDP_OK; ++i) {
        const cdp_pipe_tied *k = &p->holder->tied[i];
        cdp_request rq;
        memset(&rq, 0, sizeof rq);
        rq.kind = CDP_COLL_ALLREDUCE;
        rq.out = k->grad;
        rq.count = k->count;
        rq.dtype = k->dtype;
        rq.op = CDP_REDUCE_SUM;
        rq.timeout_ms = cdp__pipe_left_ms(p);
        st = cdp_start(p->tie, &rq, &p->tied[i]);
    }
    return st;
}

/* ---- copies of a stage ---- */

CDP__PRIVATE bool cdp__pipe_has_copies(const cdp_pipe_stage *s) {
#ifdef CDP_NO_DDP
    (void)s;
    return false;
#else
    return s->ddp != NULL;
#endif
}

/* Before the last row of a stage. */
CDP__PRIVATE cdp_status cdp__pipe_reduce_begin(const cdp_pipe_stage *s) {
#ifndef CDP_NO_DDP
    if (s->ddp) return cdp_ddp_backward_begin(s->ddp);
#endif
    (void)s;
    return CDP_OK;
}

/* After it: what can travel already does. */
CDP__PRIVATE cdp_status cdp__pipe_reduce_ready(cdp_pipeline *p, const cdp_pipe_stage *s) {
    cdp_status st = CDP_OK;
#ifndef CDP_NO_DDP
    uint32_t i = s->ddp && !s->marks ? cdp_ddp_param_count(s->ddp) : 0;
    while (i-- > 0 && st == CDP_OK)
        st = cdp_ddp_ready(s->ddp, i);
#endif
    return st == CDP_OK && s == p->holder && !cdp__pipe_has_copies(s) ? cdp__pipe_sum_tied(p) : st;
}

/* The end of the pass of a stage. */
CDP__PRIVATE cdp_status cdp__pipe_reduce_stage(
    cdp_pipeline *p, const cdp_pipe_stage *s, bool wait) {
#ifndef CDP_NO_DDP
#ifndef CDP_NO_FRAMES
    if (!wait) {
        const cdp_status st = p->ending ? CDP_OK : cdp_ddp_backward_end_start(s->ddp);
        p->ending = true;
        return st == CDP_OK ? cdp_ddp_poll(s->ddp, 0) : st;
    }
#endif
    return cdp_ddp_backward_end(s->ddp);
#else
    (void)s;
#endif
    (void)p;
    (void)wait;
    return CDP_OK;
}

/* All ranks of the pipeline end: gradients of a stage of this one are not what they should be. */
CDP__PRIVATE CDP__COLD cdp_status cdp__pipe_unreduced(cdp_pipeline *p, cdp_status st) {
    const cdp_error was = *cdp_last_error();
    char room[300];
    cdp__format(
        room, sizeof room, "the gradients of rank %u could not be reduced: %s", p->rank, was.text);
    p->running = false;
    cdp_group_abort(p->desc.group, room);
    cdp__pipe_abort_others(p, room);
    return cdp_error_set(st, was.peer, was.sys_errno, "cdp_pipeline_step: %s", room);
}

/* After the last row of this rank. */
CDP__PRIVATE cdp_status cdp__pipe_reduce_end(cdp_pipeline *p, bool wait) {
    cdp_status st;
    if (p->table->forward_only) return CDP_OK;
    for (; p->reduced < p->stage_count; ++p->reduced) {
        const cdp_pipe_stage *s = &p->stages[p->reduced];
        st = cdp__pipe_has_copies(s) ? cdp__pipe_reduce_stage(p, s, wait) : CDP_OK;
        if (st == CDP_PENDING) return st;
        if (st != CDP_OK) return cdp__pipe_unreduced(p, st);
        p->ending = false;
    }
    st = cdp__pipe_sum_tied(p);
    if (st != CDP_OK) return cdp__pipe_unreduced(p, st);
    for (uint32_t i = 0; p->holder && i < p->holder->tied_count && st == CDP_OK; ++i)
        st = cdp__pipe_wait(p, p->tied[i], wait);
    return st;
}

/* ---- losses ---- */

CDP_API cdp_status cdp_pipeline_losses(cdp_pipeline *pipeline, double *each, double *sum) {
    const cdp_pipeline *p = pipeline;
    if (sum) *sum = 0;
    cdp_status st = cdp__pipe_alive(p, "cdp_pipeline_losses");
    if (st == CDP_OK && !sum) st = cdp__pipe_missing("cdp_pipeline_losses", "sum");
    if (st != CDP_OK) return st;
    if (p->running)
        return cdp_error_set(
            CDP_ERR_STATE, -1, 0, "cdp_pipeline_losses: a step is running: poll it");
    const cdp__pipe_table *t = p->table;
    st = cdp_broadcast(p->desc.group, p->losses, t->micros, CDP_DTYPE_F64, t->place[t->stages - 1]);
    for (uint32_t i = 0; i < t->micros && st == CDP_OK; ++i) {
        *sum += p->losses[i];
        if (each) each[i] = p->losses[i];
    }
    return st;
}

/* ---- >>pipeline/shards: weights of stages that are divided over ranks ------------------------ */

/* Knows: which rows of this rank follow each other on one stage. Promises: ranks with equal
   schedules make equal calls in one order; weights are here from the first row of such a run until
   its last one. */

CDP__PRIVATE cdp_status cdp__pipe_check_shards(const cdp_pipe_stage *s, uint32_t stage) {
    const cdp_pipe_shards *k = &s->shards;
    const char *lacks = NULL;
    if (!k->unit_count) return CDP_OK;
    if (!k->fsdp) lacks = "fsdp";
    if (!k->need) lacks = "need";
    if (!k->done) lacks = "done";
    if (!k->ready) lacks = "ready";
    if (!k->abort) lacks = "abort";
    if (!lacks) return CDP_OK;
    return cdp_error_set(CDP_ERR_INVALID, -1, 0,
        "cdp_pipeline_create: stage %u has .shards.unit_count %u and lacks .shards.%s", stage,
        k->unit_count, lacks);
}

CDP__PRIVATE bool cdp__pipe_has_shards(const cdp_pipeline *p) {
    for (uint32_t i = 0; i < p->stage_count; ++i)
        if (p->stages[i].shards.unit_count) return true;
    return false;
}

/* Is there a row beside this one, `step` rows on, of the same stage? */
CDP__PRIVATE bool cdp__pipe_goes_on(const cdp_pipeline *p, uint64_t row, int step) {
    const uint64_t other = step < 0 ? row - 1 : row + 1;
    if (step < 0 ? !row : other == p->rows) return false;
    return cdp__pipe_row(p, other)->stage == cdp__pipe_row(p, row)->stage;
}

/* Before a row: the weights of its stage are here. */
CDP__PRIVATE cdp_status cdp__pipe_unshard(cdp_pipeline *p, uint64_t row) {
    const cdp_act *a = cdp__pipe_row(p, row);
    const cdp_pipe_shards *k = &p->stages[p->nth[a->stage]].shards;
    if (cdp__pipe_goes_on(p, row, -1)) return CDP_OK;
    for (uint32_t i = 0; i < k->unit_count; ++i) {
        const cdp_status st = k->need(k->fsdp, k->first_unit + i);
        if (st != CDP_OK) return cdp__pipe_threw(p, a, st);
    }
    return CDP_OK;
}

/* After a row: its weights may go, and complete gradients leave, those of the last unit first. */
CDP__PRIVATE cdp_status cdp__pipe_reshard(cdp_pipeline *p, uint64_t row) {
    const cdp_act *a = cdp__pipe_row(p, row);
    const cdp_pipe_shards *k = &p->stages[p->nth[a->stage]].shards;
    const bool complete = p->turns[2 * p->nth[a->stage] + 1] == row && !p->table->forward_only;
    if (cdp__pipe_goes_on(p, row, 1)) return CDP_OK;
    for (uint32_t i = k->unit_count; i-- > 0;) {
        const uint32_t unit = k->first_unit + i;
        const cdp_status st = complete ? k->ready(k->fsdp, unit) : k->done(k->fsdp, unit);
        if (st != CDP_OK) return cdp__pipe_threw(p, a, st);
    }
    return CDP_OK;
}

/* ---- >>pipeline/driver: a step: rows of this rank, one after the other ----------------------- */

/* Knows: callbacks, memory of tensors, sends and receives. Promises: a send never stops a row;
   every operation has the deadline of the step; later steps allocate nothing here. */

#define CDP__PIPE_STEP_MS 600000u /* as cdp_group_desc.timeout_ms */

/* ---- memory ---- */

/* The pointers of a role of a micro-batch of a stage of this rank. */
CDP__PRIVATE void **cdp__pipe_list(
    const cdp_pipeline *p, uint32_t stage, uint32_t micro, cdp_pipe_role role) {
    const uint64_t cell = (uint64_t)p->nth[stage] * p->table->micros + micro;
    return p->pointers + (cell * 4 + (uint64_t)role) * p->widest;
}

CDP__PRIVATE const cdp_pipe_edge *cdp__pipe_edges(
    const cdp_pipe_stage *s, cdp_pipe_role role, uint32_t *count) {
    const bool in = role == CDP_PIPE_IN || role == CDP_PIPE_GRAD_IN;
    *count = in ? s->in_count : s->out_count;
    return in ? s->in : s->out;
}

/* Is the memory that of a neighbour stage on the same rank? */
CDP__PRIVATE bool cdp__pipe_is_shared(
    const cdp_pipeline *p, uint32_t stage, cdp_pipe_role role, uint32_t *from) {
    *from = role == CDP_PIPE_IN ? stage - 1 : stage + 1;
    if (role == CDP_PIPE_IN) return stage && p->table->place[stage - 1] == p->rank;
    return role == CDP_PIPE_GRAD_OUT && stage + 1 < p->table->stages
        && p->table->place[stage + 1] == p->rank;
}

CDP__PRIVATE bool cdp__pipe_has_role(const cdp_pipeline *p, cdp_pipe_role role) {
    return !p->table->forward_only || role == CDP_PIPE_IN || role == CDP_PIPE_OUT;
}

/* Places the tensors of a role of a stage from `*used` bytes of the pipeline's memory on; without
   memory it counts only. */
CDP__PRIVATE cdp_status cdp__pipe_place_role(
    cdp_pipeline *p, uint32_t stage, cdp_pipe_role role, uint64_t *used) {
    const cdp_pipe_stage *s = &p->stages[p->nth[stage]];
    uint32_t count, from;
    const cdp_pipe_edge *edges = cdp__pipe_edges(s, role, &count);
    if (!cdp__pipe_has_role(p, role) || cdp__pipe_is_shared(p, stage, role, &from)) return CDP_OK;
    for (uint32_t i = 0; i < p->table->micros; ++i) {
        for (uint32_t k = 0; k < count; ++k) {
            void **at = &cdp__pipe_list(p, stage, i, role)[k];
            if (!s->memory) {
                *at = p->memory ? p->memory + *used : NULL;
                *used += (edges[k].count * cdp_dtype_size(edges[k].dtype) + 63) & ~63ull;
                continue;
            }
            if (!p->memory) continue; /* asked for once */
            *at = s->memory(s->user, role, i, k);
            if (!*at)
                return cdp_error_set(CDP_ERR_INVALID, -1, 0,
                    "cdp_pipeline_create: memory() of stage %u gives NULL for micro-batch %u",
                    stage, i);
        }
    }
    return CDP_OK;
}

CDP__PRIVATE void cdp__pipe_share_role(cdp_pipeline *p, uint32_t stage, cdp_pipe_role role) {
    const cdp_pipe_role other = role == CDP_PIPE_IN ? CDP_PIPE_OUT : CDP_PIPE_GRAD_IN;
    uint32_t from;
    if (!cdp__pipe_is_shared(p, stage, role, &from)) return;
    for (uint32_t i = 0; i < p->table->micros; ++i)
        memcpy(cdp__pipe_list(p, stage, i, role), cdp__pipe_list(p, from, i, other),
            p->widest * sizeof(void *));
}

CDP__PRIVATE cdp_status cdp__pipe_place_all(cdp_pipeline *p, uint64_t *used) {
    *used = 0;
    for (uint32_t s = 0; s < p->table->stages; ++s) {
        if (p->table->place[s] != p->rank) continue;
        for (uint32_t role = 0; role < 4; ++role) {
            const cdp_status st = cdp__pipe_place_role(p, s, (cdp_pipe_role)role, used);
            if (st != CDP_OK) return st;
        }
    }
    for (uint32_t s = 0; s < p->table->stages && p->memory; ++s) {
        if (p->table->place[s] != p->rank) continue;
        cdp__pipe_share_role(p, s, CDP_PIPE_IN);
        cdp__pipe_share_role(p, s, CDP_PIPE_GRAD_OUT);
    }
    return CDP_OK;
}

/* ---- creation ---- */

CDP__PRIVATE cdp_status cdp__pipe_check_stage(
    const cdp__pipe_table *t, const cdp_pipe_stage *s, uint32_t stage) {
    const char *lacks = NULL;
    if (!s->forward) lacks = "forward";
    if (!t->forward_only && t->split && (!s->backward_input || !s->backward_weights))
        lacks = s->backward_input ? "backward_weights" : "backward_input";
    for (uint64_t i = t->first[t->place[stage]]; i < t->first[t->place[stage] + 1]; ++i)
        if (t->acts[i].stage == stage && t->acts[i].kind == CDP_ACT_B && !s->backward)
            lacks = "backward";
    if (stage && !s->in_count) lacks = "in";
    if (stage + 1 < t->stages && !s->out_count) lacks = "out";
    if ((s->in_count && !s->in) || (s->out_count && !s->out)) lacks = s->in ? "out" : "in";
    if (lacks)
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_pipeline_create: stage %u lacks .%s, which the schedule needs", stage, lacks);
    if ((!stage && s->in_count) || (stage + 1 == t->stages && s->out_count))
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_pipeline_create: the first stage has no in, and the last one no out; set %s of "
            "stage %u to 0",
            stage ? "out_count" : "in_count", stage);
    for (uint32_t k = 0; k < s->in_count + s->out_count; ++k) {
        const cdp_pipe_edge *e = k < s->in_count ? &s->in[k] : &s->out[k - s->in_count];
        if (!cdp_dtype_size(e->dtype) || e->count > UINT64_MAX >> 8)
            return cdp_error_set(CDP_ERR_UNSUPPORTED, -1, 0,
                "cdp_pipeline_create: a tensor of stage %u has dtype %d and %llu elements", stage,
                (int)e->dtype, (unsigned long long)e->count);
    }
    for (uint32_t i = 0; i < s->group_count; ++i)
        if (!s->groups || !s->groups[i])
            return cdp_error_set(CDP_ERR_INVALID, -1, 0,
                "cdp_pipeline_create: stage %u has .group_count %u and lacks .groups[%u]", stage,
                s->group_count, i);
    return cdp__pipe_check_shards(s, stage);
}

CDP__PRIVATE cdp_status cdp__pipe_check_desc(const cdp_pipeline_desc *d) {
    const cdp__pipe_table *t = &d->schedule->table;
    const uint32_t rank = cdp_rank(d->group);
    uint32_t own = 0;
    if (d->stage_count && !d->stages)
        return cdp__pipe_missing("cdp_pipeline_create", "desc.stages");
    if (cdp_size(d->group) != t->ranks)
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_pipeline_create: the group has %u ranks, the schedule %u", cdp_size(d->group),
            t->ranks);
    for (uint32_t s = 0; s < t->stages; ++s) {
        if (t->place[s] != rank) continue;
        if (own < d->stage_count) {
            const cdp_status st = cdp__pipe_check_stage(t, &d->stages[own], s);
            if (st != CDP_OK) return st;
        }
        ++own;
    }
    if (own != d->stage_count)
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_pipeline_create: this rank has %u stages, desc.stage_count is %u", own,
            d->stage_count);
    const cdp_status st = cdp__pipe_check_tied(t, d->stages, own, rank);
    if (st != CDP_OK) return st;
    if (cdp__pipe_cells(t) * 2 + d->tag > INT32_MAX)
        return cdp_error_set(CDP_ERR_UNSUPPORTED, -1, 0,
            "cdp_pipeline_create: tags beyond 31 bits: %u stages x %u micro-batches from tag %u on",
            t->stages, t->micros, d->tag);
    return CDP_OK;
}

/* The first row of each stage of this rank, and the last one. */
CDP__PRIVATE void cdp__pipe_find_turns(cdp_pipeline *p) {
    for (uint64_t row = p->rows; row-- > 0;)
        p->turns[2 * p->nth[cdp__pipe_row(p, row)->stage]] = row;
    for (uint64_t row = 0; row < p->rows; ++row)
        p->turns[2 * p->nth[cdp__pipe_row(p, row)->stage] + 1] = row;
}

/* Copies `bytes` of a list behind *used bytes, and *used grows; without `kept` it is counted alone.
   Returns where the copy is. */
CDP__PRIVATE const void *cdp__pipe_keep(
    uint8_t *kept, uint64_t *used, const void *list, uint64_t bytes) {
    const uint64_t at = *used;
    *used += (bytes + 7) / 8 * 8;
    if (!kept || !bytes) return list;
    memcpy(kept + at, list, (size_t)bytes);
    return kept + at;
}

/* The lists of this rank's stages, in memory of the pipeline. Returns how many bytes they have. */
CDP__PRIVATE uint64_t cdp__pipe_keep_lists(cdp_pipe_stage *stages, uint32_t count, uint8_t *kept) {
    uint64_t used = 0;
    for (uint32_t k = 0; k < count; ++k) {
        cdp_pipe_stage *s = &stages[k];
        s->in =
            (const cdp_pipe_edge *)cdp__pipe_keep(kept, &used, s->in, s->in_count * sizeof *s->in);
        s->out = (const cdp_pipe_edge *)cdp__pipe_keep(
            kept, &used, s->out, s->out_count * sizeof *s->out);
        s->tied = (const cdp_pipe_tied *)cdp__pipe_keep(
            kept, &used, s->tied, s->tied_count * sizeof *s->tied);
        s->groups = (cdp_group *const *)cdp__pipe_keep(
            kept, &used, s->groups, s->group_count * sizeof *s->groups);
    }
    return used;
}

CDP__PRIVATE cdp_status cdp__pipe_take_stages(cdp_pipeline *p, const cdp_pipeline_desc *d) {
    const uint64_t bytes = d->stage_count * sizeof *p->stages;
    p->stages = (cdp_pipe_stage *)cdp__pipe_alloc(p->os, bytes);
    if (!p->stages) return cdp__pipe_nomem("cdp_pipeline_create", bytes);
    if (bytes) memcpy(p->stages, d->stages, (size_t)bytes);
    const uint64_t lists = cdp__pipe_keep_lists(p->stages, d->stage_count, NULL);
    p->kept = (uint8_t *)cdp__pipe_alloc(p->os, lists);
    if (!p->kept) return cdp__pipe_nomem("cdp_pipeline_create", lists);
    (void)cdp__pipe_keep_lists(p->stages, d->stage_count, p->kept);
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__pipe_take_desc(cdp_pipeline *p, const cdp_pipeline_desc *d) {
    const cdp__pipe_table *t = p->table;
    uint64_t used;
    uint32_t own = 0;
    bool *live;
    for (uint32_t k = 0; k < d->stage_count; ++k) {
        p->widest = (uint32_t)cdp__max(p->widest, d->stages[k].in_count);
        p->widest = (uint32_t)cdp__max(p->widest, d->stages[k].out_count);
    }
    const uint64_t lists = (uint64_t)d->stage_count * t->micros * 4;
    const cdp_status st = cdp__pipe_take_stages(p, d);
    if (st != CDP_OK) return st;
    p->nth = (uint32_t *)cdp__pipe_alloc(p->os, t->stages * sizeof *p->nth);
    p->slots = (uint32_t *)cdp__pipe_alloc(p->os, cdp__pipe_cells(t) * sizeof *p->slots);
    p->turns = (uint64_t *)cdp__pipe_alloc(p->os, 2ull * d->stage_count * sizeof *p->turns);
    p->pointers = (void **)cdp__pipe_alloc(p->os, lists * p->widest * sizeof *p->pointers);
    p->receives = (cdp_work *)cdp__pipe_alloc(p->os, p->rows * p->widest * sizeof *p->receives);
    p->sends = (cdp_work *)cdp__pipe_alloc(p->os, p->rows * p->widest * sizeof *p->sends);
    p->losses = (double *)cdp__pipe_alloc(p->os, t->micros * sizeof *p->losses);
    p->times = (uint64_t *)cdp__pipe_alloc(p->os, 2 * p->rows * sizeof *p->times);
    live = (bool *)cdp__pipe_alloc(p->os, p->rows + 1);
    if (live && p->slots) cdp__pipe_deal_slots(t, p->rank, p->slots, live);
    const bool dealt = live != NULL;
    cdp__pipe_free(p->os, live);
    if (!dealt || !p->nth || !p->slots || !p->turns || !p->pointers || !p->receives || !p->sends
        || !p->times || !p->losses)
        return cdp__pipe_nomem("cdp_pipeline_create", lists * p->widest * sizeof *p->pointers);
    for (uint32_t s = 0; s < t->stages; ++s)
        if (t->place[s] == p->rank) p->nth[s] = own++;
    cdp__pipe_find_turns(p);
    (void)cdp__pipe_place_all(p, &used);
    p->memory = (uint8_t *)cdp__pipe_alloc(p->os, used + 64);
    if (!p->memory) return cdp__pipe_nomem("cdp_pipeline_create", used);
    return cdp__pipe_place_all(p, &used);
}

CDP_API void cdp_pipeline_destroy(cdp_pipeline *pipeline) {
    cdp_pipeline *p = pipeline;
    if (!p || cdp__ended(p)) return;
    cdp__ended_add(p);
    const cdp_os *os = p->os;
    cdp__pipe_free(os, p->stages);
    cdp__pipe_free(os, p->kept);
    cdp__pipe_free(os, p->nth);
    cdp__pipe_free(os, p->slots);
    cdp_group_destroy(p->tie);
    cdp__pipe_free(os, p->tied);
    cdp__pipe_free(os, p->losses);
    cdp__pipe_free(os, p->turns);
    cdp__pipe_free(os, p->times);
    cdp__pipe_free(os, p->pointers);
    cdp__pipe_free(os, p->memory);
    cdp__pipe_free(os, p->receives);
    cdp__pipe_free(os, p->sends);
    cdp__pipe_free(os, p);
}

/* What this rank says of the edges of its stages: two words for each stage of all, and two
   for tied gradients. */
CDP__PRIVATE void cdp__pipe_hash_edges(const cdp_pipeline *p, uint64_t *hashes) {
    for (uint32_t s = 0; s < p->table->stages; ++s) {
        if (p->table->place[s] != p->rank) continue;
        const cdp_pipe_stage *k = &p->stages[p->nth[s]];
        hashes[2 * s] = cdp__pipe_edge_hash(k->in, k->in_count);
        hashes[2 * s + 1] = cdp__pipe_edge_hash(k->out, k->out_count);
        if (!s) hashes[2 * p->table->stages] = cdp__pipe_tied_hash(k);
        if (s + 1 == p->table->stages) hashes[2 * s + 3] = cdp__pipe_tied_hash(k);
    }
}

CDP_API cdp_status cdp_pipeline_create(const cdp_pipeline_desc *desc, cdp_pipeline **out) {
    if (out) *out = NULL;
    if (!desc || !out) return cdp__pipe_missing("cdp_pipeline_create", desc ? "out" : "desc");
    if (!desc->group) return cdp__pipe_missing("cdp_pipeline_create", "desc.group");
    cdp_status st =
        cdp__pipe_schedule_lives(desc->schedule, "cdp_pipeline_create", "desc.schedule");
    if (st != CDP_OK) return cdp__pipe_agree(desc, st, NULL); /* the others hear of it */
    const cdp_os *os = desc->schedule->os;
    const cdp__pipe_table *t = &desc->schedule->table;
    uint64_t *hashes = (uint64_t *)cdp__pipe_alloc(os, (2ull * t->stages + 2) * sizeof *hashes);
    cdp_pipeline *p = (cdp_pipeline *)cdp__pipe_alloc(os, sizeof *p);
    if (p) cdp__ended_remove(p);
    st = cdp__pipe_check_desc(desc);
    if (!hashes || !p) st = cdp__pipe_nomem("cdp_pipeline_create", sizeof *p);
    if (st == CDP_OK) {
        p->desc = *desc;
        p->os = os;
        p->table = t;
        p->rank = cdp_rank(desc->group);
        p->stage_count = desc->stage_count;
        p->rows = t->first[p->rank + 1] - t->first[p->rank];
        st = cdp__pipe_take_desc(p, desc);
        if (st == CDP_OK) cdp__pipe_hash_edges(p, hashes);
    }
    st = cdp__pipe_agree(desc, st, hashes);
    cdp__pipe_free(os, hashes);
    if (st == CDP_OK) st = cdp__pipe_open_tie(p);
    if (st == CDP_OK) {
        *out = p;
    } else if (p) {
        p->os = os;
        cdp_pipeline_destroy(p);
    }
    return st;
}

/* ---- a step ---- */

CDP__PRIVATE cdp_work *cdp__pipe_works(const cdp_pipeline *p, cdp_work *list, uint64_t row) {
    return list + row * p->widest;
}

/* The tag of a message is that of its receiver's cell and direction. */
CDP__PRIVATE uint32_t cdp__pipe_tag(const cdp_pipeline *p, uint64_t message) {
    const uint64_t cells = cdp__pipe_cells(p->table);
    return p->desc.tag + (uint32_t)(message % cells * 2 + message / cells);
}

/* Starts the receives or the sends of a row. */
CDP__PRIVATE cdp_status cdp__pipe_start(cdp_pipeline *p, uint64_t row, bool receive) {
    const cdp_act *a = cdp__pipe_row(p, row);
    const uint64_t message = receive ? cdp__pipe_needs(p->table, a) : cdp__pipe_gives(p->table, a);
    const bool forward = a->kind == CDP_ACT_F;
    cdp_work *works = cdp__pipe_works(p, receive ? p->receives : p->sends, row);
    cdp_pipe_role role = forward ? CDP_PIPE_OUT : CDP_PIPE_GRAD_IN;
    uint32_t count, other = a->stage + 1u;
    if (receive) role = forward ? CDP_PIPE_IN : CDP_PIPE_GRAD_OUT;
    if (forward == receive) other = a->stage - 1u;
    if (message == CDP__PIPE_NONE) return CDP_OK;
    const cdp_pipe_edge *e = cdp__pipe_edges(&p->stages[p->nth[a->stage]], role, &count);
    void **at = cdp__pipe_list(p, a->stage, a->micro, role);
    cdp_transfer t;
    memset(&t, 0, sizeof t);
    t.receive = receive;
    t.peer = p->table->place[other];
    t.tag = cdp__pipe_tag(p, message);
    t.timeout_ms = cdp__pipe_left_ms(p);
    for (uint32_t k = 0; k < count; ++k) {
        t.data = at[k];
        t.count = e[k].count;
        t.dtype = e[k].dtype;
        const cdp_status st = cdp_batch(p->desc.group, &t, 1, &works[k]);
        if (st != CDP_OK) return st;
    }
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__pipe_wait_row(
    cdp_pipeline *p, cdp_work *list, uint64_t row, bool wait) {
    cdp_work *works = cdp__pipe_works(p, list, row);
    for (uint32_t k = 0; k < p->widest; ++k) {
        const cdp_status st = cdp__pipe_wait(p, works[k], wait);
        if (st != CDP_OK) return st;
    }
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__pipe_compute(cdp_pipeline *p, uint64_t row) {
    const cdp_act *a = cdp__pipe_row(p, row);
    const cdp_pipe_stage *s = &p->stages[p->nth[a->stage]];
    const uint64_t *turns = &p->turns[2 * p->nth[a->stage]];
    cdp_pipe_fn *call = s->forward;
    cdp_pipe_micro m;
    m.kind = (cdp_act_kind)a->kind;
    m.stage = a->stage;
    m.micro = a->micro;
    m.slot = p->slots[cdp__pipe_cell(p->table, a->stage, a->micro)];
    m.first = turns[0] == row;
    m.last = turns[1] == row;
    m.in = cdp__pipe_list(p, a->stage, a->micro, CDP_PIPE_IN);
    m.out = cdp__pipe_list(p, a->stage, a->micro, CDP_PIPE_OUT);
    m.grad_out = cdp__pipe_list(p, a->stage, a->micro, CDP_PIPE_GRAD_OUT);
    m.grad_in = cdp__pipe_list(p, a->stage, a->micro, CDP_PIPE_GRAD_IN);
    if (a->kind == CDP_ACT_B) call = s->backward;
    if (a->kind == CDP_ACT_I) call = s->backward_input;
    if (a->kind == CDP_ACT_W) call = s->backward_weights;
    m.loss = a->stage + 1u == p->table->stages ? &p->losses[a->micro] : NULL;
    const bool closes = m.last && !p->table->forward_only;
    cdp_status st = closes ? cdp__pipe_reduce_begin(s) : CDP_OK;
    p->times[2 * row] = p->os->now_ns(p->os->user);
    if (st == CDP_OK) st = call(s->user, &m);
    p->times[2 * row + 1] = p->os->now_ns(p->os->user);
    if (st == CDP_OK && closes) st = cdp__pipe_reduce_ready(p, s);
    return st == CDP_OK ? CDP_OK : cdp__pipe_threw(p, a, st);
}

/* Starts receives of the next row, or pair, and of those a little ahead. */
CDP__PRIVATE cdp_status cdp__pipe_post_rows(cdp_pipeline *p, uint32_t width) {
    const uint64_t to = cdp__min(p->at + width + cdp__def(p->desc.ahead, 2u), p->rows);
    for (; p->posted < to; ++p->posted) {
        const cdp_status st = cdp__pipe_start(p, p->posted, true);
        if (st != CDP_OK) return cdp__pipe_failed(p, st);
    }
    return CDP_OK;
}

/* The next row, or pair: waits, computes, sends. */
CDP__PRIVATE cdp_status cdp__pipe_advance(cdp_pipeline *p, bool wait) {
    const uint32_t width = cdp__pipe_width(cdp__pipe_row(p, p->at));
    cdp_status st = cdp__pipe_post_rows(p, width);
    for (uint32_t i = 0; i < width && st == CDP_OK; ++i)
        st = cdp__pipe_unshard(p, p->at + i);
    for (uint32_t i = 0; i < width && st == CDP_OK; ++i)
        st = cdp__pipe_wait_row(p, p->receives, p->at + i, wait);
    for (uint32_t i = 0; i < width && st == CDP_OK; ++i) {
        st = cdp__pipe_compute(p, p->at + i);
        if (st != CDP_OK) return st;
        st = cdp__pipe_start(p, p->at + i, false);
        if (st != CDP_OK) return cdp__pipe_failed(p, st);
        st = cdp__pipe_reshard(p, p->at + i);
    }
    if (st == CDP_OK) p->at += width;
    return st;
}

CDP__PRIVATE cdp_status cdp__pipe_go_on(cdp_pipeline *p, bool wait) {
    cdp_status st = CDP_OK;
    while (p->at < p->rows && st == CDP_OK)
        st = cdp__pipe_advance(p, wait);
    while (p->ended < p->rows && st == CDP_OK) {
        st = cdp__pipe_wait_row(p, p->sends, p->ended, wait);
        if (st == CDP_OK) ++p->ended;
    }
    if (st == CDP_OK) st = cdp__pipe_reduce_end(p, wait);
    if (st == CDP_OK) {
        p->running = false;
        p->timed = true;
    }
    return st;
}

CDP__PRIVATE cdp_status cdp__pipe_begin(cdp_pipeline *p, const char *call) {
    const cdp_status st = cdp__pipe_alive(p, call);
    if (st != CDP_OK) return st;
    if (p->running)
        return cdp_error_set(CDP_ERR_STATE, -1, 0, "%s: a step is running: poll it", call);
    const uint32_t ms = cdp__def(p->desc.timeout_ms, CDP__PIPE_STEP_MS);
    p->begin_ns = p->os->now_ns(p->os->user);
    p->deadline_ns = UINT64_MAX;
    if (ms != CDP_NO_TIMEOUT) p->deadline_ns = p->begin_ns + ms * 1000000ull;
    p->at = p->posted = p->ended = 0;
    p->reduced = 0;
    p->ending = p->summing = false;
    memset(p->losses, 0, (size_t)(p->table->micros * sizeof *p->losses));
    memset(p->receives, 0, (size_t)(p->rows * p->widest * sizeof *p->receives));
    memset(p->sends, 0, (size_t)(p->rows * p->widest * sizeof *p->sends));
    p->running = true;
    p->timed = false;
    return CDP_OK;
}

CDP_API cdp_status cdp_pipeline_step(cdp_pipeline *pipeline) {
    const cdp_status st = cdp__pipe_begin(pipeline, "cdp_pipeline_step");
    return st == CDP_OK ? cdp__pipe_go_on(pipeline, true) : st;
}

#ifndef CDP_NO_FRAMES
CDP_API cdp_status cdp_pipeline_start(cdp_pipeline *pipeline) {
    const cdp_status st = cdp__pipe_alive(pipeline, "cdp_pipeline_start");
    if (st != CDP_OK) return st;
    if (cdp__pipe_has_shards(pipeline))
        return cdp_error_set(CDP_ERR_UNSUPPORTED, -1, 0,
            "cdp_pipeline_start: a stage has .shards, whose gathers wait for other ranks; call "
            "cdp_pipeline_step");
    return cdp__pipe_begin(pipeline, "cdp_pipeline_start");
}

CDP_API cdp_status cdp_pipeline_poll(cdp_pipeline *pipeline, uint32_t budget_us) {
    const cdp_status st = cdp__pipe_alive(pipeline, "cdp_pipeline_poll");
    if (st != CDP_OK) return st;
    if (!pipeline->running)
        return cdp_error_set(
            CDP_ERR_STATE, -1, 0, "cdp_pipeline_poll: no step is running: call cdp_pipeline_start");
    (void)cdp_poll(pipeline->desc.group, budget_us); /* a failure is seen by what waits */
    return cdp__pipe_go_on(pipeline, false);
}
#endif

/* ---- >>pipeline/clocks: when the rows of all ranks ran, on one clock ------------------------- */

/* Knows: times of rows on each rank. Promises: where all ranks read the same clock, times are not
   changed by comparing. */

/* The times of the rows of all ranks, one rank after the other. */
CDP__PRIVATE cdp_status cdp__pipe_share_times(
    cdp_pipeline *p, uint64_t zero, const cdp_pipe_times *out) {
    const cdp__pipe_table *t = p->table;
    for (uint64_t row = 0; row < p->rows; ++row) {
        const uint64_t at = t->first[p->rank] + row;
        out->start_us[at] = (double)(p->times[2 * row] - zero) / 1e3;
        out->end_us[at] = (double)(p->times[2 * row + 1] - zero) / 1e3;
    }
    for (uint32_t r = 0; r < t->ranks; ++r) {
        const uint64_t at = t->first[r], rows = t->first[r + 1] - at;
        cdp_status st = cdp_broadcast(p->desc.group, out->start_us + at, rows, CDP_DTYPE_F64, r);
        if (st == CDP_OK)
            st = cdp_broadcast(p->desc.group, out->end_us + at, rows, CDP_DTYPE_F64, r);
        if (st != CDP_OK) return st;
    }
    return CDP_OK;
}

CDP_API cdp_status cdp_pipeline_times(cdp_pipeline *pipeline, const cdp_pipe_times *out) {
    cdp_pipeline *p = pipeline;
    uint64_t ready, begin;
    int64_t add = 0;
    cdp_status st = cdp__pipe_alive(p, "cdp_pipeline_times");
    if (st != CDP_OK) return st;
    if (!out || !out->start_us || !out->end_us)
        return cdp__pipe_missing("cdp_pipeline_times", "out, out->start_us or out->end_us");
    ready = p->timed && !p->running;
    st = cdp_allreduce(p->desc.group, NULL, &ready, 1, CDP_DTYPE_U64, CDP_REDUCE_MIN);
    if (st != CDP_OK) return st;
    if (!ready)
        return cdp_error_set(CDP_ERR_STATE, -1, 0,
            "cdp_pipeline_times: a rank has not ended a step yet: call cdp_pipeline_step first");
    st = cdp__clock_compare(p->desc.group, p->os, &add);
    if (st != CDP_OK) return st;
    begin = p->begin_ns + (uint64_t)add;
    st = cdp_allreduce(p->desc.group, NULL, &begin, 1, CDP_DTYPE_U64, CDP_REDUCE_MIN);
    return st == CDP_OK ? cdp__pipe_share_times(p, begin - (uint64_t)add, out) : st;
}

#endif /* CDP_PIPELINE_IMPL_INCLUDED */
