/* pipeline/schedule_api.h - schedules of a pipeline: tables that are checked before they run */
#ifndef CDP_SRC_PIPELINE_SCHEDULE_API_H
#define CDP_SRC_PIPELINE_SCHEDULE_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../os/os_api.h"

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

#endif /* CDP_SRC_PIPELINE_SCHEDULE_API_H */
