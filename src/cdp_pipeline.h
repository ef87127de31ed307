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
#include "cdp.h"

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

#include "pipeline/schedule_api.h"
#include "pipeline/driver_api.h"

#ifdef __cplusplus
} /* extern "C" */
#endif
#include "pipeline/cxx_api.h"

#endif /* CDP_PIPELINE_INCLUDED */

#if (defined(CDP_IMPLEMENTATION) || defined(CDP_PIPELINE_IMPLEMENTATION)) \
    && !defined(CDP_PIPELINE_IMPL_INCLUDED)
#define CDP_PIPELINE_IMPL_INCLUDED

#include "pipeline/table.h"
#include "pipeline/kinds.h"
#include "pipeline/rules.h"
#include "pipeline/pace.h"
#include "pipeline/csv.h"
#include "pipeline/schedule.h"
#include "pipeline/choose.h"
#include "pipeline/pictures.h"
#include "pipeline/places.h"
#include "pipeline/meet.h"
#include "pipeline/state.h"
#include "pipeline/reduce.h"
#include "pipeline/shards.h"
#include "pipeline/driver.h"
#include "pipeline/clocks.h"

#endif /* CDP_PIPELINE_IMPL_INCLUDED */
