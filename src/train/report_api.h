/* train/report_api.h - watching a job */
#ifndef CDP_SRC_TRAIN_REPORT_API_H
#define CDP_SRC_TRAIN_REPORT_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../group/group_api.h"
#include "../ddp/ddp_api.h"

#ifndef CDP_NO_DDP
#ifndef CDP_NO_TRACE
#ifndef CDP_NO_TRAINING
/* One line of JSON every few steps for the whole job, and one for each step of a rank; a rank that
   is often the last one is named. */
typedef struct cdp_report cdp_report;

typedef struct cdp_report_desc {
    cdp_ddp *ddp; /* required; the report is destroyed before it */
    /* Steps between two lines of the job, which cost an allgather of 8 bytes for each step and 64
       more (default: 10). */
    uint32_t every;
    /* Gets lines without a newline, valid in the call. `job`: a line of the job, on rank 0; else
       one of this rank, if `each_step`. Required on ranks that want lines. */
    void (*line)(void *user, bool job, const char *json, uint64_t bytes);
    void *user;
    bool each_step; /* may differ between ranks */
} cdp_report_desc;

/* What the program knows of a step of this rank. */
typedef struct cdp_report_figures {
    double loss, norm; /* loss: the job's is the mean over ranks; NaN becomes null */
    uint64_t samples;  /* or tokens, that this rank has used in the step */
    uint64_t memory;   /* bytes; the job's is that of the rank that has most */
    bool overflow;     /* the step was left out */
} cdp_report_figures;

/* The rank that was last in at least half of the last 100 steps, by over 5 % of a step. */
typedef struct cdp_straggler {
    bool found;
    uint32_t rank;
    uint32_t often, of;  /* it was the last one in `often` of the last `of` steps */
    double late_ms;      /* in these, behind the median rank, on average */
    uint64_t since_step; /* the first step of the last `of` in which it was */
} cdp_straggler;

/* Collective (it makes a group of all ranks). *out belongs to the caller. Errors: INVALID (a
   missing member), NOMEM (of one rank, on all of them: the text names it), those of
   cdp_group_new(). */
CDP_MUST_CHECK CDP_API cdp_status cdp_report_create(const cdp_report_desc *desc, cdp_report **out);

/* After cdp_ddp_backward_end() and the update, on all ranks in every step. The line of the job
   comes up to `every` steps later: nobody waits for it. A line: {"step":20,"ranks":4,"loss":2.5,
   "norm":0.84,"samples_per_s":512.0,"step_ms":99.8,"hidden":0.9,"overflows":0,"memory":1048576,
   "slowest":{"rank":3,"late_ms":7.1,"often":62,"of":100,"since":41}}; `slowest` is null without
   one. That of a rank has "rank" and "backward_ms" in place of "ranks" and "slowest". Errors:
   INVALID (NULL), or the group's failure. */
CDP_MUST_CHECK CDP_API cdp_status cdp_report_step(
    cdp_report *report, const cdp_report_figures *figures);

/* What the lines that have come so far say of a straggler: the same on all ranks after steps that
   are multiples of `every`; between these a line may not have come to each rank yet. */
CDP_API cdp_straggler cdp_report_straggler(const cdp_report *report);

/* The last step of all ranks as one SVG picture on one clock: ranks compare theirs in eight
   barriers. Collective, between steps; waits. Writes at most `room` bytes, a zero at the end
   among them; *bytes, which may be NULL, gets the length of the whole text without the zero.
   Errors: INVALID (NULL), STATE (no step yet, or the last pass was not synchronized), NOMEM, or the
   group's failure. */
CDP_MUST_CHECK CDP_API cdp_status cdp_report_svg(
    cdp_report *report, char *text, uint64_t room, uint64_t *bytes);

/* Local. Waits for a line that is on its way, at most until its deadline. NULL is allowed. */
CDP_API void cdp_report_destroy(cdp_report *report);
#endif /* CDP_NO_TRAINING */
#endif /* CDP_NO_TRACE */
#endif /* CDP_NO_DDP */

#endif /* CDP_SRC_TRAIN_REPORT_API_H */
