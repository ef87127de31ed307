/* mem/live_api.h - who holds memory while the program runs, without a snapshot */
#ifndef CDP_SRC_MEM_LIVE_API_H
#define CDP_SRC_MEM_LIVE_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "allocator_api.h"
#include "statistics_api.h"

/* What blocks with one label hold, blocks that wait for streams among them. */
typedef struct cdp_mem_held {
    char label[128];      /* the whole one, "step 12/forward"; "": blocks without a label         */
    uint64_t bytes, peak; /* now; most since the label came up, or since cdp_mem_reset of peaks   */
    uint64_t blocks;      /* now */
} cdp_mem_held;

/* Write one row for each label that blocks carry, or have carried, the largest first; at most
   `room` rows to `out`, which may be NULL. Returns how many there are. Counted while something is
   recorded: desc.record.history STATE with context NONE is the cheapest. The first 256 labels keep
   their peaks when no block carries them any more; later ones may be forgotten. 0 when nothing is
   recorded, or memory is missing. */
CDP_API uint32_t cdp_mem_held_by(const cdp_mem *mem, cdp_mem_held *out, uint32_t room);

/* How much memory a stretch of a program takes: set by cdp_mem_scope_end. `current` is that of the
   end; peak, allocated and freed are those of the scope alone. */
typedef struct cdp_mem_scope {
    cdp_mem_stat allocated_bytes, active_bytes, reserved_bytes;
    struct cdp_mem_scope *next; /* the library's, while the scope is open */
} cdp_mem_scope;

/* Begin and end a scope. `scope` needs no value before; it belongs to the library until the end,
   and must stay where it is. Scopes may nest and overlap, on any threads, and count what all
   threads allocate. They change no statistics, and cdp_mem_reset changes no scope. A request costs
   what it costs without them. Errors: INVALID (open already; not open). */
CDP_MUST_CHECK CDP_API cdp_status cdp_mem_scope_begin(cdp_mem *mem, cdp_mem_scope *scope);
CDP_MUST_CHECK CDP_API cdp_status cdp_mem_scope_end(cdp_mem *mem, cdp_mem_scope *scope);

/* Write a table of all statistics and of the 20 largest labels for people to read: at most `room`
   bytes, a zero at the end among them; `text` may be NULL. Returns the length of the whole text
   without the zero; 0 and an empty text when `mem` is NULL. */
CDP_API uint64_t cdp_mem_summary(const cdp_mem *mem, char *text, uint64_t room);

/* Write one line of JSON with the most important statistics, named as in PyTorch's memory_stats(),
   and all labels; it ends with \n. For logs: once a step, which is its first member. Peaks are
   those since the last cdp_mem_reset(mem, true, false); call that after each line to have those of
   each step. `text`, `room` and the result are as for cdp_mem_summary: a line that has no room
   is cut. */
CDP_API uint64_t cdp_mem_json_line(const cdp_mem *mem, uint64_t step, char *text, uint64_t room);

/* Called on the thread whose request took the memory in use (allocated_bytes) above `level_bytes`,
   without the lock, before that request returns; now_bytes were in use then. `func` may use the
   allocator: take a snapshot, free a cache. */
typedef void (*cdp_mem_level_func)(
    void *user, cdp_mem *mem, uint64_t level_bytes, uint64_t now_bytes);

/* Call `func` when more than `bytes` are in use, and again each time after at most `again_bytes`
   were in use in between; above already: at the next request. cdp_mem_unwatch removes those with
   this `user`; a call that has begun on another thread may still run then. For segments in place of
   memory in use: cdp_mem_watch. Errors: INVALID (again_bytes above bytes; 8 levels are watched
   already). */
CDP_MUST_CHECK CDP_API cdp_status cdp_mem_watch_level(
    cdp_mem *mem, uint64_t bytes, uint64_t again_bytes, cdp_mem_level_func func, void *user);

/* Let blocks with this label, and with labels inside it ("activations/layer 3" of "activations"),
   hold at most `bytes`; 0: no budget any more. A request that would hold more is NOMEM before
   memory is searched, and its text names label, budget and what is held; cdp_mem_on_oom is not
   called. Bytes are those of cdp_mem_held_by, so budgets hold while something is recorded; a block
   whose rest is not divided off may exceed its budget by that rest. 8 labels may have one. Errors:
   INVALID (no label, or one of more than 127 bytes; 8 budgets exist), STATE (nothing is recorded).
   */
CDP_MUST_CHECK CDP_API cdp_status cdp_mem_set_budget(
    cdp_mem *mem, const char *label, uint64_t bytes);

#endif /* CDP_SRC_MEM_LIVE_API_H */
