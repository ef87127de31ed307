/* mem/shots_api.h - snapshots, files, pictures */
#ifndef CDP_SRC_MEM_SHOTS_API_H
#define CDP_SRC_MEM_SHOTS_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../os/os_api.h"
#include "desc_api.h"
#include "allocator_api.h"

/* Snapshot of several allocators: segments, blocks and events, each allocator copied at one moment
   under its lock; events of allocators of one device are merged by time. Memory is allocated
   before the lock is taken. `no_events`: segments and blocks only. Free it with
   cdp_mem_shot_free. Errors: INVALID, NOMEM. */
CDP_MUST_CHECK CDP_API cdp_status cdp_mem_snapshot(
    cdp_mem *const *mems, uint32_t count, bool no_events, cdp_mem_shot **out);
/* NULL is allowed. A second call does nothing but set cdp_last_error(); other calls of a shot that
   was freed are STATE, or answer as for NULL. */
CDP_API void cdp_mem_shot_free(cdp_mem_shot *shot);

/* Replace addresses by names of functions, as far as the running program exports them
   (-rdynamic); some 2 us an address. Only for a shot of this process. Does nothing where the C
   library cannot. */
CDP_API void cdp_mem_shot_names(cdp_mem_shot *shot);

/* What one row of a report (PEAK, SVG, cdp_mem_compare) sums up. A place is the innermost frame
   that is not skipped: function, file and line, or module and offset. */
typedef enum cdp_mem_rows {
    CDP_MEM_ROWS_LABEL = 0, /* a label, or a place where there is none */
    CDP_MEM_ROWS_PLACE,     /* a place, whatever the labels            */
    CDP_MEM_ROWS_STACK      /* a whole stack, whatever the labels      */
} cdp_mem_rows;

/* Set the rows of reports of this shot, the largest first in each. `skip`: names of functions that
   only pass requests on, separated by commas ("tensor_new,xmalloc"; a * at the end of a name
   stands for any rest); frames with them are left out as long as they are the innermost. Copied;
   NULL: none. Errors: INVALID, NOMEM; nothing changed then. */
CDP_MUST_CHECK CDP_API cdp_status cdp_mem_shot_rows(
    cdp_mem_shot *shot, cdp_mem_rows rows, const char *skip);

typedef enum cdp_mem_format {
    CDP_MEM_PICKLE = 0,   /* for pytorch.org/memory_viz and _memory_viz.py */
    CDP_MEM_JSON,         /* the same as JSON                              */
    CDP_MEM_SVG,          /* active memory over time, of each device       */
    CDP_MEM_SVG_SEGMENTS, /* segments and blocks                           */
    CDP_MEM_FLAME,        /* lines for flamegraph.pl, with segments        */
    CDP_MEM_FLAME_MEMORY, /* the same without segments                     */
    CDP_MEM_TRACE,        /* events as a program                           */
    CDP_MEM_PEAK          /* the largest holders at the peak and at the end */
} cdp_mem_format;

/* Write a shot in pieces, as they are made: no second copy in memory. `sink` returns false to
   stop. Errors: IO (it did), INVALID, NOMEM (pictures need memory for their elements). */
typedef bool (*cdp_mem_sink)(void *user, const void *data, uint64_t bytes);
/* Returns when the last piece was written. The same bytes for the same shot. */
CDP_MUST_CHECK CDP_API cdp_status cdp_mem_write(
    const cdp_mem_shot *shot, cdp_mem_format format, cdp_mem_sink sink, void *user);

/* The same into a file: PATH.tmp, then renamed. Errors: also IO (the system's reason),
   UNSUPPORTED (the os of the memory has no files). */
CDP_MUST_CHECK CDP_API cdp_status cdp_mem_write_file(
    const cdp_mem_shot *shot, cdp_mem_format format, const char *path);

/* Take a snapshot of one allocator and write it to `path` as a pickle. */
CDP_MUST_CHECK CDP_API cdp_status cdp_mem_dump(cdp_mem *mem, const char *path);

/* Read a snapshot, a pickle of protocol 0 to 5 or JSON, written here or by PyTorch. The bytes need
   not be trusted. What stands under keys that are not known here is kept, and cdp_mem_write writes
   it again, as pickle and as JSON; tuples become lists, and texts end at a zero byte.
   Errors: INVALID (names the byte and the reason), UNSUPPORTED (an opcode that no snapshot has),
   NOMEM. */
CDP_MUST_CHECK CDP_API cdp_status cdp_mem_read(
    const void *data, uint64_t bytes, const cdp_os *os, cdp_mem_shot **out);

/* Write a text of what grew and shrank between two shots, largest first, in the rows of `after`
   (cdp_mem_shot_rows): at most `room` bytes, a zero at the end among them; `text` may be NULL.
   Returns the length of the whole text without the zero. *more, if wanted: the bytes that `after`
   holds more. 0 and an empty text if a shot is NULL or memory is missing. */
CDP_API uint64_t cdp_mem_compare(const cdp_mem_shot *before, const cdp_mem_shot *after,
    int64_t *more, char *text, uint64_t room);

/* Look into a shot. Everything below belongs to it. */
typedef struct cdp_mem_frame {
    const char *filename, *name;
    uint32_t line;
    uint32_t others; /* of a file: keys that are not known here, kept for cdp_mem_write; 0: none */
} cdp_mem_frame;

typedef enum cdp_mem_state {
    CDP_MEM_INACTIVE = 0,
    CDP_MEM_ACTIVE,
    CDP_MEM_PENDING
} cdp_mem_state;

typedef struct cdp_mem_block {
    uint64_t address, size, requested;
    cdp_mem_state state;
    uint32_t stack;    /* for cdp_mem_frames; 0: none */
    const char *label; /* NULL: none                  */
    uint32_t others;   /* as in a frame               */
} cdp_mem_block;

typedef struct cdp_mem_segment {
    uint32_t device, stack, block_count;
    uint32_t others;  /* as in a frame */
    uint64_t pool[2]; /* (0, 0): the ordinary pool */
    uint64_t address, size, stream, allocated, active, requested;
    bool large, grows, external;
    const char *label;
    const cdp_mem_block *blocks; /* in the order of addresses; they tile the segment */
} cdp_mem_segment;

typedef struct cdp_mem_event {
    uint64_t address, size, stream, time_us;
    uint64_t device_free; /* OOM only */
    uint64_t pool[2];
    cdp_mem_action action;
    uint32_t stack;
    uint32_t others; /* as in a frame */
    const char *label;
} cdp_mem_event;

CDP_API uint32_t cdp_mem_segments(const cdp_mem_shot *shot, const cdp_mem_segment **out);
CDP_API uint32_t cdp_mem_devices(const cdp_mem_shot *shot); /* the highest ordinal + 1 */
CDP_API uint64_t cdp_mem_events(
    const cdp_mem_shot *shot, uint32_t device, const cdp_mem_event **out);
CDP_API uint32_t cdp_mem_frames(
    const cdp_mem_shot *shot, uint32_t stack, const cdp_mem_frame **out);
/* Where the modules lay that frames named "module+0x4f1a" are of, for addr2line; false: no i-th
   one. */
CDP_API bool cdp_mem_module(
    const cdp_mem_shot *shot, uint32_t i, const char **path, uint64_t *base);
/* Give a frame other texts (names found later); both are copied. Errors: INVALID, NOMEM. */
CDP_MUST_CHECK CDP_API cdp_status cdp_mem_frame_set(cdp_mem_shot *shot, uint32_t stack,
    uint32_t frame, const char *filename, const char *name, uint32_t line);

#endif /* CDP_SRC_MEM_SHOTS_API_H */
