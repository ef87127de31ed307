/* mem/desc_api.h - what an allocator is made from */
#ifndef CDP_SRC_MEM_DESC_API_H
#define CDP_SRC_MEM_DESC_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/log_api.h"
#include "../os/os_api.h"
#include "source_api.h"

typedef enum cdp_mem_history {
    CDP_MEM_HISTORY_OFF = 0,
    CDP_MEM_HISTORY_STATE, /* stacks and labels of blocks that live now; no events */
    CDP_MEM_HISTORY_ALL    /* and events                                           */
} cdp_mem_history;

/* Which stacks are collected: of everything; of allocations, shown at their frees as well; of
   live blocks alone, not in events; none. */
typedef enum cdp_mem_context {
    CDP_MEM_CONTEXT_ALL = 0,
    CDP_MEM_CONTEXT_ALLOC,
    CDP_MEM_CONTEXT_STATE,
    CDP_MEM_CONTEXT_NONE
} cdp_mem_context;

/* How stacks are recorded: by backtrace(3), where the C library has it (about 150 ns a frame); by
   following frame pointers (about 1 ns a frame), in programs compiled with -fno-omit-frame-pointer;
   or only the source line that CDP_MEM_HERE passes. */
typedef enum cdp_mem_stacks {
    CDP_MEM_STACKS_BACKTRACE = 0,
    CDP_MEM_STACKS_FRAME_POINTER,
    CDP_MEM_STACKS_SITE
} cdp_mem_stacks;

/* Kinds of events, as PyTorch names them. MAP and UNMAP are of segments that grow: of
   desc.expandable, of PyTorch, and those that cdp_mem_note_event() records. */
typedef enum cdp_mem_action {
    CDP_MEM_ALLOC = 0,
    CDP_MEM_FREE_REQUESTED,
    CDP_MEM_FREE_COMPLETED,
    CDP_MEM_SEGMENT_ALLOC,
    CDP_MEM_SEGMENT_FREE,
    CDP_MEM_SEGMENT_MAP,
    CDP_MEM_SEGMENT_UNMAP,
    CDP_MEM_OOM,
    CDP_MEM_SNAPSHOT,
    CDP_MEM_USER_DEFINED, /* a moment, of cdp_mem_note(mem, NULL, text)     */
    CDP_MEM_ANNOTATE,     /* what a block is, of cdp_mem_note(mem, p, text) */
    CDP_MEM_ACTION_COUNT
} cdp_mem_action;

/* The word that files use ("free_requested"); "?" for a value that is no action. Static memory. */
CDP_API const char *cdp_mem_action_name(cdp_mem_action action);

typedef struct cdp_mem_record_desc {
    cdp_mem_history history; /* (default: OFF)                                            */
    cdp_mem_context context; /* (default: ALL)                                            */
    cdp_mem_stacks stacks;   /* (default: BACKTRACE)                                      */
    uint32_t max_entries;    /* events kept, 64 bytes each (default: 100000)              */
    uint32_t max_frames;     /* of one stack, at most 64 (default: 32)                    */
    uint32_t max_stacks;     /* different ones (default: 16384)                           */
    uint32_t skip;           /* bit i: action i is not recorded; only SNAPSHOT,
                                USER_DEFINED, ANNOTATE and OOM, else the file could not be
                                replayed                                                  */
    uint64_t min_bytes;      /* events of smaller requests are not recorded (default: 0);
                                a snapshot has the alloc of those that live, for viewers  */
    bool keep;               /* what is recorded already stays, if history, min_bytes and
                                the three max_ are as before (default: starts empty)      */
} cdp_mem_record_desc;

typedef struct cdp_mem_desc {
    const cdp_mem_source *source; /* copied, and destroyed with the allocator (default: CUDA)   */
    bool recorder_only;           /* no source: the calls cdp_mem_note_... alone                */
    uint32_t device;              /* ordinal in snapshots of a recorder_only, up to 1023        */
    uint64_t limit_bytes;         /* never hold more (default: no limit)                        */
    uint64_t max_split_bytes;     /* larger blocks are not split (default: no limit; else at
                                     least 20 MiB)                                              */
    uint64_t max_non_split_rounding_bytes; /* (default: 20 MiB)                                 */
    uint64_t large_segment_bytes; /* for requests from 1 to 10 MiB (default: 20 MiB)            */
    const uint32_t *roundup_divisions; /* NULL, or 16 numbers for sizes from 1, 2, 4 MiB .. 32
                                     GiB; 0, or a power of two up to 64                         */
    /* Segments grow and shrink by pages, which cures fragmentation: the source must have map and
       unmap, and max_split_bytes and no_cache be 0. Pools that are fixed, made with no_split or
       over a source without map have ordinary segments. gc_threshold leaves segments that grow
       alone. A stream that is destroyed must have been forgotten (cdp_mem_forget_stream): pages
       wait for theirs before they are unmapped (default: off). */
    bool expandable;
    double gc_threshold;        /* of the limit, between 0 and 1 (default: 0, no collection)  */
    bool coarse_bins;           /* 32 bins for each power of two in place of one for each
                                     size: 10 KiB a stream in place of 40; worse fit            */
    bool no_cache;              /* every request goes to the source                           */
    uint32_t timeout_ms;        /* longest wait for events (default: 60000)                   */
    cdp_mem_record_desc record; /* recording from the start (default: off)                    */
    const char *dump_path;      /* first failing request: a snapshot into this file (default:
                                     none); copied                                              */
    const cdp_os *os;           /* (default: cdp_os_default())                                */
    cdp_logger logger;          /* (default: warnings to stderr)                              */
    uint64_t (*wall_us)(void *user); /* microseconds since 1970 (default: the system's clock)   */
    void *wall_user;
} cdp_mem_desc;

/* Read settings in PyTorch's form, "max_split_size_mb:128,roundup_power2_divisions:[256:1,>:4]",
   into `desc`. `divisions` has 16 numbers and must live until cdp_mem_create. Known:
   max_split_size_mb, max_non_split_rounding_mb, large_segment_size_mb, expandable_segments,
   garbage_collection_threshold, roundup_power2_divisions. Errors: INVALID (names the word that is
   unknown or out of range); `desc` is then unchanged. */
CDP_MUST_CHECK CDP_API cdp_status cdp_mem_settings_read(
    const char *text, uint32_t divisions[16], cdp_mem_desc *desc);

#endif /* CDP_SRC_MEM_DESC_API_H */
